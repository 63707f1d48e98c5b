/* test_turns_warmup.c - races of warm-ups, each searched: see races.h */
#define GPUSYNC_IMPLEMENTATION
#include "races.h"

/* Six tasks have more schedules than there is time for: seeds go where the search does not. */
enum { MOST = 2000, SEEDS = 500 };

static gpusync_warmup *warmup;
static void *made[4];
static gpusync_result results[4];
static const turns_task *begun[4];
static bool makes[4]; /* in fn */
static int numbers[4] = {0, 1, 2, 3};
static int made_count, gone_count; /* objects */
static bool gone, lost;

static gpusync_result make(void *user, size_t i, void **object, gpusync_error *error)
{
    check_called();
    for (int k = 0; k < 4; k++)
        makes[k] = makes[k] || begun[k] == turns_self();
    turns_point("makes");
    *object = softmetal_new_witness(count_gone, &gone_count);
    made_count++;
    return GPUSYNC_OK;
}

static void begin(int queues)
{
    open_stage(queues, 0);
    warmup = NULL;
    memset(made, 0, sizeof made);
    memset(begun, 0, sizeof begun);
    memset(results, 0, sizeof results);
    memset(makes, 0, sizeof makes);
    made_count = gone_count = 0;
    gone = lost = false;
}

static void start_it(void *disabled)
{
    const gpusync_warmup_desc desc = {make, NULL, 2, disabled != NULL};
    gpusync_result result = gpusync_warmup_start(stage.device, &desc, &warmup);
    lost = result == GPUSYNC_ERROR_DEVICE_LOST && stage.q[0];
    turns_check(lost || result == GPUSYNC_OK);
}

static bool is_there(void *unused)
{
    return warmup || lost;
}

static void close_warm_up(void)
{
    if (!gone)
        turns_expect(gpusync_warmup_destroy(warmup), GPUSYNC_OK);
    turns_check(softmetal_dispatched(UINT64_C(60000000000)));
    close_stage();
    turns_expect(gone_count, made_count);
}

/* The first two ask for the first item, the third for the second one. */
static void ask_for_one(void *number)
{
    int who = *(int *)number;
    turns_until(is_there, NULL);
    begun[who] = turns_self();
    if (!warmup)
        return;
    results[who] = gpusync_warmup_get(warmup, who == 2, GPUSYNC_FOREVER, &made[who], NULL);
    turns_check((made[who] != NULL) == (results[who] == GPUSYNC_OK));
}

static void ask_for_all(void *unused)
{
    turns_until(is_there, NULL);
    begun[3] = turns_self();
    if (!warmup)
        return;
    results[3] = gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL);
}

/* -- three threads of a game, the loading screen, and the dispatch queue */

static void add_threads(void *disabled)
{
    turns_add("starts", start_it, disabled);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"first", "again", "second"};
        turns_add(names[i], ask_for_one, &numbers[i]);
    }
    turns_add("all", ask_for_all, NULL);
    turns_workers();
}

static void set_up_share(void *disabled)
{
    begin(0);
    add_threads(disabled);
}

static void tear_down_share(void *unused)
{
    for (int i = 0; i < 4; i++)
        turns_expect(results[i], GPUSYNC_OK);
    turns_check(made[0] == made[1] && made[0] != made[2] && made[2]);
    turns_expect(made_count, 2);
    close_warm_up();
}

/* The first thread that comes to an item makes it, once, and each that waits is woken. */
without_stage(test_threads_that_ask_at_once_share_an_item)
{
    const turns_race races[] = {
        {.name = "share", .setup = set_up_share, .teardown = tear_down_share, .limit = MOST},
        {.name = "share a disabled one", .setup = set_up_share, .teardown = tear_down_share, .user = numbers,
         .limit = MOST},
    };
    for (int i = 0; i < 2; i++)
        run_race(&races[i], 1, SEEDS, 0);
}

/* -- the player leaves meanwhile */

/* A call is in progress when it sleeps, or makes an item. Before that no destroy may begin. */
static bool are_in_progress(void *unused)
{
    bool all = true;
    for (int i = 0; i < 4; i++) {
        const turns_task *task = begun[i];
        all = all && task && (task->state == TURNS_PARKED || task->state == TURNS_OVER || makes[i]);
    }
    return all;
}

static void destroy_it(void *unused)
{
    turns_until(are_in_progress, NULL);
    turns_expect(gpusync_warmup_destroy(warmup), GPUSYNC_OK);
    gone = true;
}

static void set_up_leave(void *disabled)
{
    set_up_share(disabled);
    turns_add("destroys", destroy_it, NULL);
}

static void tear_down_leave(void *disabled)
{
    for (int i = 0; i < 4; i++) {
        turns_check(results[i] == GPUSYNC_OK || results[i] == GPUSYNC_ERROR_DESTROYED);
        see(results[i] == GPUSYNC_OK ? 0 : 1);
    }
    turns_check(made_count <= 2);
    turns_check(disabled || results[3] != GPUSYNC_OK || made_count == 2);
    see(2 + (unsigned)made_count);
    close_warm_up();
}

/* A wait that is in progress ends, one way or the other, and what is made is released. */
without_stage(test_a_destroy_ends_those_that_wait)
{
    const turns_race races[] = {
        {.name = "leave", .setup = set_up_leave, .teardown = tear_down_leave, .limit = MOST},
        {.name = "leave a disabled one", .setup = set_up_leave, .teardown = tear_down_leave, .user = numbers,
         .limit = MOST},
    };
    for (int i = 0; i < 2; i++)
        run_race(&races[i], 1, SEEDS, 3);
}

/* -- the card is pulled out meanwhile */

static void set_up_lose(void *disabled)
{
    begin(1);
    void *buffer = make_buffer(stage.q[0]);
    softmetal_fail_as(buffer, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    commit_buffer(stage.q[0], buffer);
    add_threads(disabled);
    turns_gpus(1);
}

static void tear_down_lose(void *disabled)
{
    turns_check(gpusync_device_is_lost(stage.device));
    for (int i = 0; i < 4 && warmup; i++) {
        turns_check(results[i] == GPUSYNC_OK || results[i] == GPUSYNC_ERROR_DEVICE_LOST);
        see(results[i] == GPUSYNC_OK ? 0 : 1);
    }
    turns_check(!warmup || disabled || (results[3] == GPUSYNC_OK) == (made_count == 2));
    close_warm_up();
}

/* What has begun ends well, what has not never begins, and each wait ends. */
without_stage(test_R41_a_lost_device_ends_those_that_wait)
{
    const turns_race races[] = {
        {.name = "lose", .setup = set_up_lose, .teardown = tear_down_lose, .timed = true, .limit = MOST},
        {.name = "lose with a disabled one", .setup = set_up_lose, .teardown = tear_down_lose, .timed = true,
         .user = numbers, .limit = MOST},
    };
    for (int i = 0; i < 2; i++)
        run_race(&races[i], 1, SEEDS, 3);
}

/* -- a progress bar */

static void ask_for_progress(void *unused)
{
    size_t done = 0, total = 0;
    turns_until(is_there, NULL);
    gpusync_result result = gpusync_warmup_wait(warmup, 0, &done, &total);
    turns_expect(result, done < total ? GPUSYNC_TIMEOUT : GPUSYNC_OK);
    turns_expect(total, 2);
    see(done == total ? 2 : (unsigned)done);
}

static void set_up_progress(void *unused)
{
    begin(0);
    turns_add("starts", start_it, NULL);
    turns_add("asks", ask_for_progress, NULL);
    turns_workers();
}

static void tear_down_progress(void *unused)
{
    close_warm_up();
}

/* The numbers are those of the result, though the last item is made between the two. */
without_stage(test_the_progress_fits_the_result)
{
    const turns_race race = {.name = "progress", .setup = set_up_progress, .teardown = tear_down_progress};
    run_race(&race, 2, SEEDS, 3);
}
