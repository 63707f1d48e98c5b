/* test_turns_warmup.c - races of warm-ups, each searched: see races.h */
#define GPUSYNC_IMPLEMENTATION
#include "races.h"

/* Six tasks have more schedules than there is time for: seeds go where the search does not. */
enum { MOST = 2000, SEEDS = 500 };

static const char text[] = "kernel void a() {} kernel void b() {}";
static const gpusync_pipeline_desc two[] = {{text, NULL, "a"}, {text, NULL, "b"}};

static gpusync_warmup *warmup;
static void *made[4];
static gpusync_result results[4];
static const turns_task *begun[4];
static int numbers[4] = {0, 1, 2, 3};
static bool gone;

static void begin(void)
{
    open_stage(0, 0);
    warmup = NULL;
    memset(made, 0, sizeof made);
    memset(begun, 0, sizeof begun);
    memset(results, 0, sizeof results);
    gone = false;
}

static void start_it(void *disabled)
{
    const gpusync_warmup_desc desc = {two, 2, disabled != NULL};
    turns_expect(gpusync_warmup_start(stage.device, &desc, &warmup), GPUSYNC_OK);
}

static bool is_there(void *unused)
{
    return warmup != NULL;
}

static void close_warm_up(void)
{
    if (!gone)
        turns_expect(gpusync_warmup_destroy(warmup), GPUSYNC_OK);
    turns_check(softmetal_dispatched(UINT64_C(60000000000)));
    close_stage();
    turns_expect(softmetal_live("pipeline"), 0);
    turns_expect(softmetal_live("library"), 0);
}

/* The first two ask for the first pipeline, the third for the second one. */
static void ask_for_one(void *number)
{
    int who = *(int *)number;
    turns_until(is_there, NULL);
    begun[who] = turns_self();
    results[who] = gpusync_warmup_pipeline(warmup, who == 2, GPUSYNC_FOREVER, &made[who], NULL);
    turns_check((made[who] != NULL) == (results[who] == GPUSYNC_OK));
}

static void ask_for_all(void *unused)
{
    turns_until(is_there, NULL);
    begun[3] = turns_self();
    results[3] = gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL);
}

/* -- three threads of a game, the loading screen, and the dispatch queue */

static void set_up_share(void *disabled)
{
    begin();
    turns_add("starts", start_it, disabled);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"first", "again", "second"};
        turns_add(names[i], ask_for_one, &numbers[i]);
    }
    turns_add("all", ask_for_all, NULL);
    turns_workers();
}

static void tear_down_share(void *unused)
{
    for (int i = 0; i < 4; i++)
        turns_expect(results[i], GPUSYNC_OK);
    turns_check(made[0] == made[1] && made[0] != made[2] && made[2]);
    turns_expect(softmetal_compiles(), 2);
    close_warm_up();
}

/* Whoever comes first to a pipeline compiles it, once, and each that waits is woken. */
without_stage(test_those_who_ask_at_once_share_a_compilation)
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

static bool compiles[4];

static void note_compilation(void *user, softmetal_phase phase, void *object, const char *selector)
{
    for (int i = 0; i < 4 && phase == SOFTMETAL_BEFORE && strcmp(selector, "newFunctionWithName:") == 0; i++)
        compiles[i] = compiles[i] || begun[i] == turns_self();
}

/* A call is in progress when it sleeps, or compiles. Before that no destroy may begin. */
static bool are_in_progress(void *unused)
{
    bool all = true;
    for (int i = 0; i < 4; i++) {
        const turns_task *task = begun[i];
        all = all && task && (task->state == TURNS_PARKED || task->state == TURNS_OVER || compiles[i]);
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
    memset(compiles, 0, sizeof compiles);
    softmetal_set_message_hook(note_compilation, NULL);
    turns_add("destroys", destroy_it, NULL);
}

static void tear_down_leave(void *disabled)
{
    uint64_t compiled = softmetal_compiles();
    softmetal_set_message_hook(NULL, NULL);
    for (int i = 0; i < 4; i++) {
        turns_check(results[i] == GPUSYNC_OK || results[i] == GPUSYNC_ERROR_DESTROYED);
        see(results[i] == GPUSYNC_OK ? 0 : 1);
    }
    turns_check(compiled <= 2);
    turns_check(disabled || results[3] != GPUSYNC_OK || compiled == 2);
    see(2 + (unsigned)compiled);
    close_warm_up();
}

/* A wait that is in progress ends, one way or the other, and what is compiled is released. */
without_stage(test_a_destroy_ends_those_who_ask)
{
    const turns_race races[] = {
        {.name = "leave", .setup = set_up_leave, .teardown = tear_down_leave, .limit = MOST},
        {.name = "leave a disabled one", .setup = set_up_leave, .teardown = tear_down_leave, .user = numbers,
         .limit = MOST},
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
    begin();
    turns_add("starts", start_it, NULL);
    turns_add("asks", ask_for_progress, NULL);
    turns_workers();
}

static void tear_down_progress(void *unused)
{
    close_warm_up();
}

/* The numbers are those of the result, though the last pipeline is compiled between the two. */
without_stage(test_the_progress_fits_the_result)
{
    const turns_race race = {.name = "progress", .setup = set_up_progress, .teardown = tear_down_progress};
    run_race(&race, 2, SEEDS, 3);
}
