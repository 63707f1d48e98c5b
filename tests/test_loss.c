/* test_loss.c - a lost device: every wait goes on until Metal has reported the end of the work, or until gpusync gives
   the work up, a second after the loss

   On the manual clock work that no test steps hangs, and no timer fires by itself. After each wait the test asks
   softmetal for the command buffers of the ticket: when the result, or gpusync_get_info, says that the GPU is finished
   with them, none of them may be unfinished. Time is a number of the test's: a limit passes when a test says so.

   It also runs on queues of Metal 4. */
#include <pthread.h>

#include "clock.h"
#include "probe.h"
#include "stage.h"

/* -- the stage, and its work ------------------------------------------------------------------------------------- */

static stage s;
static bool gave_up; /* the device, what had not ended */
static unsigned culprit; /* the last queue: its work takes the device with it */
static long loss_lines;  /* of the log */

#define MOST_PARTS 8u
#define MOST_WORKS 64u

/* A ticket, and all command buffers of it; those that gpusync has made are among them. */
typedef struct work {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffers[MOST_PARTS]; /* +1. With Metal 4 the first stands for the commit, and is alone */
    unsigned count;
} work;

static work works[MOST_WORKS];
static unsigned work_count;

static work *work_new(unsigned i)
{
    work *w = &works[work_count++];
    must(work_count <= MOST_WORKS, "too much work");
    memset(w, 0, sizeof *w);
    w->queue = s.q[i];
    return w;
}

static void *work_add(work *w, void *buffer)
{
    must(w->count < MOST_PARTS, "too many parts");
    return w->buffers[w->count++] = metal_retain(buffer);
}

static work *commit_work(unsigned i)
{
    work *w = work_new(i);
    w->ticket = commit_to(w->queue, work_add(w, buffer_of(w->queue)));
    return w;
}

/* The newest of the queue, down to this one, of those that the work does not have yet. */
static void add_buffers_of_gpusync(work *w, void *metal_queue, const void *before)
{
    unsigned k, i;
    void *buffer;
    for (k = 0; (buffer = softmetal_buffer_at(metal_queue, k)) != NULL && buffer != before; k++) {
        for (i = 0; i < w->count && w->buffers[i] != buffer; i++) {}
        if (i == w->count) work_add(w, buffer);
    }
}

/* A submission of so many command buffers; wait and signal may be NULL. */
static work *submit_work(unsigned i, unsigned parts, const gpusync_point *wait, const gpusync_point *signal)
{
    gpusync_submission submission;
    work *w = work_new(i);
    void *before = metal_retain(softmetal_last_buffer(s.metal[i]));
    unsigned k;
    memset(&submission, 0, sizeof submission);
    for (k = 0; k < parts; k++) work_add(w, buffer_of(w->queue));
    submission.waits = wait;
    submission.wait_count = wait != NULL;
    submission.command_buffers = w->buffers;
    submission.command_buffer_count = parts;
    submission.signals = signal;
    submission.signal_count = signal != NULL;
    w->ticket = submit_well(w->queue, &submission);
    if (!is_metal4(w->queue)) add_buffers_of_gpusync(w, s.metal[i], before);
    else
        while (w->count > 1) metal_release(w->buffers[--w->count]);
    metal_release(before);
    return w;
}

static work *track_work(unsigned i)
{
    work *w = work_new(i);
    void *buffer = metal_queue_command_buffer(s.metal[i]);
    assert_ok(gpusync_track(w->queue, work_add(w, buffer), &w->ticket));
    metal_release(buffer);
    return w;
}

/* No work is to signal what it waits for. */
static work *hold_work(unsigned i)
{
    gpusync_point never = at(s.d, 1000);
    return submit_work(i, 1, &never, NULL);
}

static void finish_work(const work *w)
{
    unsigned i;
    for (i = 0; i < w->count; i++) softmetal_finish(w->buffers[i]);
}

/* For the GPU; its handlers have not run. */
static void complete_work(const work *w)
{
    unsigned i;
    for (i = 0; i < w->count; i++) softmetal_complete(w->buffers[i]);
}

static void fail_work(const work *w, const char *text)
{
    softmetal_fail(w->buffers[0], "TestDomain", 42, text);
}

static bool gpu_has(void *buffer)
{
    unsigned long status = status_of(buffer);
    return status >= COMMITTED && status < COMPLETED;
}

static bool gpu_has_work(const work *w)
{
    unsigned i;
    for (i = 0; i < w->count; i++)
        if (gpu_has(w->buffers[i])) return true;
    return false;
}

/* The device goes with work of the last queue. */
static void lose(void)
{
    void *buffer;
    commit_empty_to(s.q[culprit], &buffer);
    fail_with_the_device(buffer);
    softmetal_finish(buffer);
    assert_true(gpusync_device_is_lost(s.device));
    assert_ptr_equal(gpusync_device_metal(s.device), s.rig.metal_device);
}

#define LOOK MS(500) /* from the loss to the first look, and from that to the second */

/* The second passes: both looks come. */
static void give_up_on(gpusync_device *device)
{
    unsigned look, timers;
    gave_up = true;
    for (look = 1; look <= 2; look++)
        do {
            PUT(&clock_now, GET(&clock_now) + LOOK);
            for (timers = softmetal_timers(); timers > 0; timers--) softmetal_fire_timer();
        } while (probe_looks_again(device, look));
}
static void give_up(void) { give_up_on(s.device); }

/* -- what happens while a wait sleeps, or spins ------------------------------------------------------------------- */

/* One step of a plan, and whether it wakes the sleeper. */
typedef struct step {
    void (*act)(void);
    bool wakes;
} step;

/* The wait of the test's own thread: its park hook takes a step, and the next one, until the sleeper has been woken; its
   yield hook takes one step. Other threads that sleep go by the permit alone, and read nothing of the plan. */
static struct {
    step steps[16];
    unsigned count, done;
    void (*more)(void); /* behind the last step, as often as it takes; NULL: nothing */
    bool yields;
    uint64_t deadline;
    gpusync_waiter *waiter;
} plan;
static __thread bool is_planned; /* of this thread */

static bool is_permitted(const gpusync_waiter *waiter)
{
    bool permitted;
    pthread_mutex_lock(&asleep.lock);
    permitted = waiter->scheduler_data[0] != NULL;
    pthread_mutex_unlock(&asleep.lock);
    return permitted;
}

static void plan_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    if (!is_planned) {
        thread_park(waiter, deadline_ns);
        return;
    }
    assert_false(plan.yields);
    plan.waiter = waiter;
    plan.deadline = deadline_ns;
    while (!is_permitted(waiter)) {
        const step *now;
        if (plan.done == plan.count && plan.more) {
            plan.more();
            continue;
        }
        if (plan.done == plan.count) fail_msg("the wait sleeps on behind the last step");
        now = &plan.steps[plan.done++];
        now->act();
        if (is_permitted(waiter) != now->wakes)
            fail_msg("step %u has %swoken the sleeper", plan.done, now->wakes ? "not " : "");
    }
    thread_park(waiter, deadline_ns); /* takes the permit */
}

static void plan_yield(void *user)
{
    (void)user;
    if (!is_planned || !plan.yields) {
        sched_yield();
        return;
    }
    if (plan.done == plan.count) fail_msg("the wait spins on behind the last step");
    plan.steps[plan.done++].act();
}

/* The thread that wakes a sleeper goes on when the sleeper has returned. */
static bool waker_waits, sleeper_returned;

static void plan_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
    while (GET(&waker_waits) && !GET(&sleeper_returned)) sched_yield();
}

static const gpusync_hooks plan_hooks = {plan_yield, plan_park, plan_unpark, NULL};

static void end_plan(void)
{
    memset(&plan, 0, sizeof plan);
    is_planned = false;
}

static void set_plan(const step *steps, unsigned count, bool yields)
{
    memset(&plan, 0, sizeof plan);
    assert_true(count <= LENGTH(plan.steps));
    memcpy(plan.steps, steps, count * sizeof *steps);
    plan.count = count;
    plan.yields = yields;
    is_planned = true;
}
#define STEPS(...) (const step[]){__VA_ARGS__}, sizeof((const step[]){__VA_ARGS__}) / sizeof(step)
#define WHILE_IT_SLEEPS(...) set_plan(STEPS(__VA_ARGS__), false)
#define WHILE_IT_SPINS(...) set_plan(STEPS(__VA_ARGS__), true)

/* The wait has gone on until the last step, and no further. */
static void assert_played(void)
{
    unsigned left = plan.count - plan.done;
    end_plan();
    assert_int_equal(left, 0);
}

/* Steps. The work is that of the test, by its number. */
static void nothing(void) {}
static void finish_0(void) { finish_work(&works[0]); }
static void finish_1(void) { finish_work(&works[1]); }
static void complete_0(void) { complete_work(&works[0]); }
static void fail_and_finish_0(void)
{
    fail_work(&works[0], "it broke behind the loss");
    finish_work(&works[0]);
}
static void end_unheard_0(void)
{
    softmetal_lose_handlers(works[0].buffers[0]);
    finish_work(&works[0]);
}
static void commit_0(void) { metal_commit(works[0].buffers[0]); }
static void sweep(void) { softmetal_fire_timer(); }

/* The sleeper wakes for no reason, well before its limit. (The clock moves by 100 ns at each look.) */
static void nearly_reach_the_limit(void)
{
    PUT(&clock_now, plan.deadline - 100000);
    thread_unpark(plan.waiter);
}

static void reach_the_limit(void)
{
    PUT(&clock_now, plan.deadline);
    thread_unpark(plan.waiter);
}

/* -- opening and closing ------------------------------------------------------------------------------------------ */

static void note_line(void *user, gpusync_log_level level, const char *text)
{
    (void)user, (void)level;
    if (strstr(text, "device lost")) COUNT(&loss_lines);
}

static void open_play_logging(unsigned queues, softmetal_clock clock, gpusync_log_fn log)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &plan_hooks;
    device_desc.spin = &no_spin;
    device_desc.log = log;
    culprit = queues;
    work_count = 0;
    loss_lines = 0;
    gave_up = false;
    open_stage_on(&s, clock, QUEUE_OF_GPUSYNC, queues + 1, device_desc, queue_desc);
}

/* So many queues, and that of the culprit. */
static void open_play(unsigned queues) { open_play_logging(queues, SOFTMETAL_MANUAL, note_line); }

static void release_works(void)
{
    while (work_count > 0) {
        work *w = &works[--work_count];
        while (w->count > 0) metal_release(w->buffers[--w->count]);
    }
}

static void close_play(void)
{
    release_works();
    close_stage(&s);
}

/* -- the waits ---------------------------------------------------------------------------------------------------- */

/* What gpusync_get_info says of the work. */
static gpusync_result info_of(const work *w)
{
    gpusync_ticket_info info;
    return gpusync_get_info(w->queue, w->ticket, &info);
}

/* Does the result say that the GPU is finished? */
static bool says_over(const work *w, gpusync_result result)
{
    if (result == GPUSYNC_ERROR_DEVICE_LOST) return info_of(w) == GPUSYNC_OK;
    return result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION || result == GPUSYNC_ERROR_CANCELLED ||
           result == GPUSYNC_ERROR_RESULT_UNKNOWN;
}

/* ... of a wait for everything? */
static bool says_all_over(gpusync_result result)
{
    return result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION ||
           (result == GPUSYNC_ERROR_DEVICE_LOST && !gave_up);
}

/* The error is that of the result; without one nothing was written. */
static void assert_error(const gpusync_error *error, gpusync_result result, gpusync_ticket ticket)
{
    if (result >= GPUSYNC_OK) {
        assert_int_equal(error->code, -99);
        return;
    }
    assert_result(error->result, result);
    assert_int_equal(error->ticket, ticket);
    assert_true(error->message[0] != '\0');
}

static gpusync_error last_error; /* of the waits below */

static gpusync_wait_options options_with(const gpusync_wait_options *more)
{
    gpusync_wait_options options = {0};
    if (more) options = *more;
    memset(&last_error, 0, sizeof last_error);
    last_error.code = -99;
    options.error = &last_error;
    return options;
}

static gpusync_result through_with(const work *w, uint64_t timeout_ns, const gpusync_wait_options *more)
{
    gpusync_wait_options options = options_with(more);
    gpusync_result result = gpusync_wait_ex(w->queue, w->ticket, timeout_ns, &options);
    if (says_over(w, result)) assert_false(gpu_has_work(w));
    assert_error(&last_error, result, w->ticket);
    return result;
}

static gpusync_result through(const work *w, uint64_t timeout_ns) { return through_with(w, timeout_ns, NULL); }

static gpusync_result poll_of(const work *w) { return gpusync_poll(w->queue, w->ticket); }

/* Everything that can be asked says so, again and again. */
static void assert_given_up(const work *w)
{
    assert_result(through(w, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(through(w, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(poll_of(w), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(info_of(w), GPUSYNC_ERROR_DEVICE_LOST);
    assert_false(gpusync_is_done(w->queue, w->ticket));
    assert_false(gpusync_is_idle(w->queue));
    assert_true(gpusync_in_flight(w->queue) > 0);
}

/* Everything of the queue. */
static gpusync_result through_all(unsigned i, uint64_t timeout_ns)
{
    gpusync_wait_options options = options_with(NULL);
    gpusync_result result = gpusync_wait_ex(s.q[i], GPUSYNC_EVERYTHING, timeout_ns, &options);
    if (says_all_over(result)) assert_null(softmetal_first_in_line(s.metal[i]));
    if (result < 0) assert_true(last_error.result < 0);
    else assert_int_equal(last_error.code, -99);
    return result;
}

static gpusync_result through_device(uint64_t timeout_ns)
{
    gpusync_wait_options options = options_with(NULL);
    gpusync_result result = gpusync_device_wait(s.device, timeout_ns, &options);
    unsigned i;
    for (i = 0; i < STAGE_QUEUES && says_all_over(result); i++)
        if (s.q[i]) assert_null(softmetal_first_in_line(s.metal[i]));
    if (result < 0) assert_true(last_error.result < 0);
    else assert_int_equal(last_error.code, -99);
    return result;
}

static gpusync_point point_of(const work *w) { return after(w->queue, w->ticket); }

static size_t which; /* of the waits below */

/* For so many works from this one on. OK, and what `which` names, say that the work is over. */
static gpusync_result through_these(const work *first, unsigned count, gpusync_wait_for how, uint64_t timeout_ns)
{
    gpusync_wait_options options = options_with(NULL);
    gpusync_point points[MOST_WORKS];
    gpusync_result result;
    unsigned i;
    for (i = 0; i < count; i++) points[i] = point_of(&first[i]);
    result = gpusync_wait_many(points, count, how, timeout_ns, &options, &which);
    if (which < count && says_over(&first[which], result)) assert_false(gpu_has_work(&first[which]));
    for (i = 0; i < count && result == GPUSYNC_OK && how != GPUSYNC_WAIT_ANY; i++) assert_false(gpu_has_work(&first[i]));
    assert_error(&last_error, result, which < count ? first[which].ticket : GPUSYNC_NO_TICKET);
    return result;
}

static gpusync_result through_many(unsigned count, gpusync_wait_for how, uint64_t timeout_ns)
{
    return through_these(works, count, how, timeout_ns);
}

/* A wait on a thread of its own. */
static void start_through(wait_job *job, const work *w, const gpusync_wait_options *options)
{
    memset(job, 0, sizeof *job);
    job->queue = w->queue;
    job->ticket = w->ticket;
    job->timeout_ns = GPUSYNC_FOREVER;
    job->options = options;
    job->thread = start(wait_job_body, job);
}

/* -- one ticket --------------------------------------------------------------------------------------------------- */

static void test_a_wait_begun_before_the_loss_goes_on_until_the_work_has_ended(void **state)
{
    static const gpusync_spin few = {5, 10, 0, false};
    static const gpusync_spin *const spins[] = {NULL, &few, &no_spin};
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(spins); i++) {
        gpusync_wait_options options = {.spin = spins[i]};
        open_play(1);
        commit_work(0);
        WHILE_IT_SLEEPS({lose, false}, {finish_0, true});
        assert_ok(through_with(&works[0], GPUSYNC_FOREVER, &options));
        assert_played();
        assert_int_equal(stats_of(s.q[0]).waits_sleep, 1);
        close_play();
    }
}

static void test_a_wait_begun_after_the_loss_goes_on_until_the_work_has_ended(void **state)
{
    (void)state;
    open_play(1);
    commit_work(0);
    lose();
    WHILE_IT_SLEEPS({finish_0, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    assert_ok(through(&works[0], 0)); /* it has ended */
    close_play();
}

static void test_work_that_fails_after_the_loss_returns_its_own_error(void **state)
{
    int begun_after;
    (void)state;
    for (begun_after = 0; begun_after < 2; begun_after++) {
        open_play(1);
        commit_work(0);
        if (begun_after) lose();
        if (begun_after) WHILE_IT_SLEEPS({fail_and_finish_0, true});
        else WHILE_IT_SLEEPS({lose, false}, {fail_and_finish_0, true});
        assert_result(through(&works[0], GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
        assert_played();
        assert_int_equal(last_error.code, 42);
        assert_string_equal(last_error.message, "it broke behind the loss");
        assert_result(through(&works[0], 0), GPUSYNC_ERROR_EXECUTION); /* and again */
        close_play();
    }
}

/* That of the culprit, too. */
static void test_the_work_that_took_the_device_with_it_returns_its_error(void **state)
{
    work *w;
    (void)state;
    open_play(1);
    w = commit_work(culprit);
    fail_with_the_device(w->buffers[0]);
    WHILE_IT_SLEEPS({finish_0, true});
    assert_result(through(w, GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
    assert_played();
    assert_true(gpusync_device_is_lost(s.device));
    assert_int_equal(last_error.failure, GPUSYNC_FAILURE_DEVICE_REMOVED);
    assert_int_equal(last_error.code, metal4_run() ? 4 : 11);
    close_play();
}

static void test_the_limit_comes_first_and_says_timeout(void **state)
{
    uint64_t began;
    (void)state;
    open_play(1);
    commit_work(0);
    began = gpusync_now_ns();
    WHILE_IT_SLEEPS({lose, false}, {nearly_reach_the_limit, true}, {reach_the_limit, true});
    assert_result(through(&works[0], SECONDS(3)), GPUSYNC_TIMEOUT);
    assert_true(gpusync_now_ns() - began >= SECONDS(3));
    assert_played();
    assert_true(gpu_has_work(&works[0]));
    began = gpusync_now_ns(); /* and once more */
    WHILE_IT_SLEEPS({nearly_reach_the_limit, true}, {reach_the_limit, true});
    assert_result(through(&works[0], MS(200)), GPUSYNC_TIMEOUT);
    assert_true(gpusync_now_ns() - began >= MS(200));
    assert_played();
    close_play();
}

/* Found by the wait's last look: with Metal 4 there is none. */
static void test_what_has_ended_at_the_limit_counts_before_the_limit(void **state)
{
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    open_play(1);
    commit_work(0);
    lose();
    WHILE_IT_SLEEPS({complete_0, false}, {reach_the_limit, true});
    assert_ok(through(&works[0], SECONDS(3)));
    assert_played();
    close_play();
}

static void test_a_limit_of_zero_looks_once(void **state)
{
    (void)state;
    open_play(1);
    commit_work(0);
    assert_result(through(&works[0], 0), GPUSYNC_TIMEOUT);
    lose();
    assert_result(through(&works[0], 0), GPUSYNC_TIMEOUT);
    show_end(works[0].buffers[0]);
    assert_ok(through(&works[0], 0));
    close_play();
}

static void test_a_spinning_wait_goes_on_through_the_loss(void **state)
{
    static const gpusync_spin endless = {0, UINT32_MAX, 0, false};
    gpusync_wait_options options = {.spin = &endless};
    (void)state;
    open_play(1);
    commit_work(0);
    WHILE_IT_SPINS({nothing, false}, {lose, false}, {nothing, false}, {finish_0, false});
    assert_ok(through_with(&works[0], GPUSYNC_FOREVER, &options));
    assert_played();
    assert_int_equal(stats_of(s.q[0]).waits_spin, 1);
    close_play();
}

/* ... and sees by the status that the work has ended, whose handler is late. */
static void test_a_spinning_wait_reads_the_status_on_a_lost_device(void **state)
{
    static const gpusync_spin endless = {0, UINT32_MAX, 0, false};
    gpusync_wait_options options = {.spin = &endless};
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_play(1);
    commit_work(0);
    lose();
    WHILE_IT_SPINS({nothing, false}, {complete_0, false});
    assert_ok(through_with(&works[0], GPUSYNC_FOREVER, &options));
    assert_played();
    close_play();
}

static void await_blocked(uint64_t before)
{
    while (softmetal_message_count("waitUntilCompleted") == before) sched_yield();
}

static void test_a_blocking_wait_on_a_lost_device_waits_in_metal(void **state)
{
    gpusync_wait_options options = {.blocking = true};
    uint64_t before;
    wait_job job;
    (void)state;
    open_play(1);
    commit_work(0);
    lose();
    if (metal4_run()) {
        assert_result(gpusync_wait_ex(s.q[0], works[0].ticket, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_UNSUPPORTED);
        close_play();
        return;
    }
    before = softmetal_message_count("waitUntilCompleted");
    start_through(&job, &works[0], &options);
    await_blocked(before);
    finish_work(&works[0]);
    assert_ok(wait_job_join(&job));
    assert_int_equal(softmetal_timers(), 1); /* of the loss, and none for a sleeper */
    close_play();
}

/* Metal's wait is for plain commits. */
static void test_a_blocking_wait_for_a_submission_or_with_a_limit_sleeps_through_the_loss(void **state)
{
    gpusync_wait_options options = {.blocking = true};
    uint64_t before;
    int limited;
    (void)state;
    NOT_ON_METAL4("no waitUntilCompleted");
    for (limited = 0; limited < 2; limited++) {
        open_play(1);
        if (limited) commit_work(0);
        else submit_work(0, 1, NULL, NULL);
        before = softmetal_message_count("waitUntilCompleted");
        WHILE_IT_SLEEPS({lose, false}, {finish_0, true});
        assert_ok(through_with(&works[0], limited ? SECONDS(5) : GPUSYNC_FOREVER, &options));
        assert_played();
        assert_count("waitUntilCompleted", before, 0);
        close_play();
    }
}

static void test_no_ticket_is_done_and_a_ticket_not_given_yet_is_invalid_on_a_lost_device(void **state)
{
    (void)state;
    open_play(1);
    commit_work(0);
    lose();
    assert_ok(gpusync_wait(s.q[0], GPUSYNC_NO_TICKET, GPUSYNC_FOREVER));
    assert_result(gpusync_wait(s.q[0], works[0].ticket + 1, GPUSYNC_FOREVER),
                  GPUSYNC_ERROR_INVALID_TICKET);
    finish_work(&works[0]);
    close_play();
}

/* What a callback asks: waits, each for as long as it takes. */
static void ask_in_callback(outcome *o)
{
    unsigned i;
    for (i = 0; i < work_count; i++) {
        answer(o, gpusync_wait(works[i].queue, works[i].ticket, GPUSYNC_FOREVER));
        answer(o, gpusync_wait(works[i].queue, works[i].ticket, 0));
    }
    answer(o, gpusync_device_wait(s.device, GPUSYNC_FOREVER, NULL));
}

static void test_in_a_callback_a_wait_returns_what_is_over_and_refuses_the_rest(void **state)
{
    static const gpusync_result expected[2][9] = {
        {GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_OK, GPUSYNC_OK, GPUSYNC_ERROR_EXECUTION,
         GPUSYNC_ERROR_EXECUTION, GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_WOULD_DEADLOCK},
        {GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_OK, GPUSYNC_OK, GPUSYNC_ERROR_EXECUTION,
         GPUSYNC_ERROR_EXECUTION, GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_DEVICE_LOST},
    };
    outcome o[2];
    size_t when, i;
    (void)state;
    memset(o, 0, sizeof o);
    open_play(2);
    commit_work(0);
    commit_work(0);
    fail_work(commit_work(1), "it broke");
    hold_work(1);
    lose();
    finish_work(&works[1]);
    finish_work(&works[2]);
    for (when = 0; when < 2; when++) { /* before the giving up, and behind it */
        if (when) give_up();
        o[when].then = ask_in_callback;
        on_done(works[1].queue, works[1].ticket, &o[when]); /* it has ended */
        assert_ended(&o[when], GPUSYNC_OK);
        assert_int_equal(o[when].answered, LENGTH(expected[when]));
        for (i = 0; i < LENGTH(expected[when]); i++) assert_result(o[when].answers[i], expected[when][i]);
    }
    close_play();
}

/* -- what begins at the loss --------------------------------------------------------------------------------------- */

/* Work that the GPU has, and new work, which is refused. */
static void ask_at_the_loss(void)
{
    static const gpusync_queue_desc plain;
    gpusync_point point = point_of(&works[0]);
    gpusync_timeline *timeline = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket = 99;
    void *buffer = NULL, *theirs;
    assert_result(through(&works[0], 0), GPUSYNC_TIMEOUT);
    assert_result(poll_of(&works[0]), GPUSYNC_NOT_READY);
    assert_result(info_of(&works[0]), GPUSYNC_NOT_READY);
    assert_result(through_all(0, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_poll(s.q[0], GPUSYNC_EVERYTHING), GPUSYNC_NOT_READY);
    assert_result(through_device(0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, 0, NULL, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_timeline_wait(s.a, 1, 0, NULL), GPUSYNC_TIMEOUT);
    if (!metal4_run()) {
        assert_result(gpusync_queue_create(s.device, &plain, &queue), GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(gpusync_command_buffer(s.q[0], NULL, &buffer), GPUSYNC_ERROR_DEVICE_LOST);
        theirs = metal_queue_command_buffer(s.metal[0]);
        assert_result(gpusync_track(s.q[0], theirs, &ticket), GPUSYNC_ERROR_DEVICE_LOST);
        metal_release(theirs);
    }
    assert_result(gpusync_timeline_create(s.device, NULL, &timeline), GPUSYNC_ERROR_DEVICE_LOST);
}

static void test_the_loss_refuses_new_work_and_lets_the_old_go_on(void **state)
{
    (void)state;
    open_play(1);
    commit_work(0);
    WHILE_IT_SLEEPS({lose, false}, {ask_at_the_loss, false}, {finish_0, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    close_play();
}

/* Made before the loss, they are committed behind it. */
static void test_an_open_command_buffer_is_refused_at_the_loss(void **state)
{
    gpusync_ticket ticket = 99;
    void *buffers[2];
    int i;
    (void)state;
    open_play(1);
    for (i = 0; i < 2; i++) buffers[i] = buffer_of(s.q[0]);
    lose();
    assert_result(either_commit(s.q[0], buffers[0], &ticket), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_result(TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffers[1])), GPUSYNC_ERROR_DEVICE_LOST);
    for (i = 0; i < 2; i++) assert_ok(either_discard(s.q[0], buffers[i]));
    close_play();
}

typedef struct room_job {
    gpusync_result result;
    void *buffer;
    pthread_t thread;
} room_job;

static void *wait_for_room(void *argument)
{
    room_job *job = (room_job *)argument;
    job->result = gpusync_command_buffer(s.q[2], NULL, &job->buffer);
    return NULL;
}

static void test_a_wait_for_room_ends_at_the_loss(void **state)
{
    gpusync_queue_desc desc;
    room_job job;
    void *buffer;
    (void)state;
    NOT_ON_METAL4("its command buffers take no room");
    memset(&desc, 0, sizeof desc);
    memset(&job, 0, sizeof job);
    desc.max_command_buffer_count = 1;
    open_play(1);
    s.q[2] = queue_of_kind(QUEUE_OF_GPUSYNC, s.device, &desc);
    s.metal[2] = gpusync_queue_metal(s.q[2]);
    commit_empty_to(s.q[2], &buffer);
    job.thread = start(wait_for_room, &job);
    await_sleepers(s.device, 1);
    lose();
    must_return_within(20);
    join(job.thread);
    has_returned();
    assert_result(job.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(job.buffer);
    close_play();
}

/* Its own command buffers have ended. Of the work that was to signal what it waited for one went with its queue, and one may
   never end. */
static void test_work_behind_a_queue_that_went_and_one_that_hangs_is_given_up(void **state)
{
    gpusync_ticket hangs, ticket;
    void *event, *metal;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 3);
    event = gpusync_timeline_metal(p.a, NULL);
    (void)SUBMIT(p.q[1], BUFFERS(open_on(&p, 1)), SIGNALS(at(p.a, 1)));
    hangs = SUBMIT(p.q[2], BUFFERS(open_on(&p, 2)), SIGNALS(at(p.b, 1)));
    ticket = SUBMIT(p.q[0], WAITS(at(p.a, 1), at(p.b, 1)), BUFFERS(open_on(&p, 0)));
    metal = metal_retain(p.metal[1]);
    orphan_queue(&p, 1);
    drop_what_stays(event);
    drop_queue_that_stays(metal);
    metal_release(metal);
    softmetal_remove_device(p.rig.metal_device);
    assert_result(gpusync_wait(p.q[0], ticket, 0), GPUSYNC_TIMEOUT);
    softmetal_finish_queue(p.metal[0]);
    assert_true(gpusync_device_is_lost(p.device));
    assert_result(gpusync_wait(p.q[0], ticket, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(p.q[2], hangs, 0), GPUSYNC_TIMEOUT);
    give_up_on(p.device);
    assert_result(gpusync_wait(p.q[0], ticket, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_wait(p.q[2], hangs, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    finish(&p, 2);
    close_stage(&p);
}

/* -- everything --------------------------------------------------------------------------------------------------- */

static void test_everything_goes_through_until_all_work_of_the_queue_has_ended(void **state)
{
    (void)state;
    open_play(2);
    commit_work(0);
    commit_work(0);
    commit_work(1); /* of another queue: it is not waited for */
    WHILE_IT_SLEEPS({lose, false}, {finish_1, false}, {finish_0, true});
    assert_result(through_all(0, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
    assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_poll(s.q[0], GPUSYNC_EVERYTHING), GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(gpusync_is_idle(s.q[0]));
    assert_result(through_all(1, 0), GPUSYNC_TIMEOUT);
    finish_work(&works[2]);
    assert_result(through_all(1, 0), GPUSYNC_ERROR_DEVICE_LOST);
    close_play();
}

static void test_everything_of_a_queue_without_work_is_device_lost_at_once(void **state)
{
    (void)state;
    open_play(2);
    finish_work(commit_work(0));
    lose();
    assert_result(through_all(0, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(through_all(1, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    close_play();
}

/* Of several points, too: nothing of these queues has failed. */
static void test_everything_of_several_queues_without_work_is_device_lost_at_once(void **state)
{
    static const gpusync_wait_for ways[] = {GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ANY, GPUSYNC_WAIT_ALL_OR_FAILURE};
    unsigned i;
    (void)state;
    for (i = 0; i < LENGTH(ways); i++) {
        gpusync_wait_options options = options_with(NULL);
        gpusync_point points[2];
        size_t at_which;
        open_play(2);
        finish_work(commit_work(0));
        lose();
        points[0] = gpusync_at_ticket(s.q[0], GPUSYNC_EVERYTHING);
        points[1] = gpusync_at_ticket(s.q[1], GPUSYNC_EVERYTHING);
        assert_result(gpusync_wait_many(points, 2, ways[i], GPUSYNC_FOREVER, &options, &at_which),
                      GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(at_which, 0);
        assert_result(last_error.result, GPUSYNC_ERROR_DEVICE_LOST);
        close_play();
    }
}

static void test_everything_times_out_at_the_limit(void **state)
{
    (void)state;
    open_play(1);
    commit_work(0);
    commit_work(0);
    WHILE_IT_SLEEPS({lose, false}, {finish_0, false}, {nearly_reach_the_limit, true}, {reach_the_limit, true});
    assert_result(through_all(0, SECONDS(1)), GPUSYNC_TIMEOUT);
    assert_played();
    close_play();
}

/* Work that failed before the loss, or behind it. Its own ticket tells, and so does gpusync_next_error. */
static void test_everything_is_device_lost_whatever_has_failed(void **state)
{
    int failed_after;
    (void)state;
    for (failed_after = 0; failed_after < 2; failed_after++) {
        gpusync_error error;
        uint64_t cursor = 0;
        int k;
        open_play(1);
        for (k = 0; k < 3; k++) commit_work(0);
        fail_work(&works[0], "the first one");
        if (!failed_after) finish_work(&works[0]);
        lose();
        if (failed_after) finish_work(&works[0]);
        assert_result(through_all(0, 0), GPUSYNC_TIMEOUT);
        finish_work(&works[2]);
        WHILE_IT_SLEEPS({finish_1, true});
        for (k = 0; k < 2; k++) { /* and again */
            assert_result(through_all(0, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
            assert_result(last_error.result, GPUSYNC_ERROR_DEVICE_LOST);
        }
        assert_played();
        assert_result(through(&works[0], 0), GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_next_error(s.q[0], &cursor, &error));
        assert_string_equal(error.message, "the first one");
        assert_result(gpusync_next_error(s.q[0], &cursor, &error), GPUSYNC_NOT_READY);
        close_play();
    }
}

static void test_everything_of_the_culprit_is_device_lost_too(void **state)
{
    (void)state;
    open_play(1);
    lose();
    assert_result(through_all(culprit, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(through_all(culprit, 0), GPUSYNC_ERROR_DEVICE_LOST);
    close_play();
}

/* -- the device --------------------------------------------------------------------------------------------------- */

static void test_a_wait_for_the_device_goes_through_on_every_queue(void **state)
{
    (void)state;
    open_play(3);
    commit_work(0);
    commit_work(1);
    WHILE_IT_SLEEPS({lose, false}, {finish_0, false}, {finish_1, true});
    assert_result(through_device(GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
    assert_result(through_device(0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(through_device(GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    close_play();
}

static void test_a_wait_for_the_device_is_device_lost_whatever_has_failed(void **state)
{
    (void)state;
    open_play(3);
    commit_work(0);
    commit_work(1);
    commit_work(2);
    fail_work(&works[1], "on the second queue");
    fail_work(&works[2], "on the third queue");
    finish_work(&works[2]);
    WHILE_IT_SLEEPS({lose, false}, {finish_1, false}, {finish_0, true});
    assert_result(through_device(GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
    assert_result(through(&works[1], 0), GPUSYNC_ERROR_EXECUTION);
    assert_result(through(&works[2], 0), GPUSYNC_ERROR_EXECUTION);
    close_play();
}

static void test_a_wait_for_the_device_times_out_at_the_limit(void **state)
{
    int i;
    (void)state;
    for (i = 0; i < 2; i++) { /* the hanging queue comes first, or last */
        open_play(2);
        commit_work((unsigned)i);
        commit_work((unsigned)!i);
        fail_work(&works[1], "another one");
        lose();
        finish_work(&works[1]);
        assert_result(through_device(0), GPUSYNC_TIMEOUT);
        WHILE_IT_SLEEPS({nearly_reach_the_limit, true}, {reach_the_limit, true});
        assert_result(through_device(SECONDS(1)), GPUSYNC_TIMEOUT);
        assert_played();
        finish_work(&works[0]);
        assert_result(through_device(0), GPUSYNC_ERROR_DEVICE_LOST);
        close_play();
    }
}

/* The call has no room for so many of its own. */
static void test_a_wait_for_a_device_of_many_queues_goes_through_on_every_queue(void **state)
{
    gpusync_queue *queues[20];
    void *buffers[20];
    size_t i;
    (void)state;
    open_play(1);
    for (i = 0; i < 20; i++) {
        queues[i] = queue_new(s.device);
        commit_empty_to(queues[i], &buffers[i]);
    }
    commit_work(culprit);
    fail_with_the_device(works[0].buffers[0]);
    finish_work(&works[0]);
    for (i = 20; i-- > 0;) {
        assert_result(through_device(0), GPUSYNC_TIMEOUT);
        softmetal_finish(buffers[i]);
    }
    assert_result(through_device(0), GPUSYNC_ERROR_DEVICE_LOST);
    for (i = 0; i < 20; i++) assert_ok(gpusync_queue_destroy(queues[i]));
    close_play();
}

/* -- several points ----------------------------------------------------------------------------------------------- */

static void test_a_wait_for_all_goes_through_until_each_ticket_has_ended(void **state)
{
    (void)state;
    open_play(2);
    commit_work(0);
    commit_work(1);
    WHILE_IT_SLEEPS({lose, false}, {finish_1, false}, {finish_0, true});
    assert_ok(through_many(2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER));
    assert_played();
    assert_int_equal(which, 2);
    close_play();
}

static void test_a_wait_for_any_goes_through_until_one_ticket_has_ended(void **state)
{
    (void)state;
    open_play(2);
    commit_work(0);
    commit_work(1);
    WHILE_IT_SLEEPS({lose, false}, {finish_1, true});
    assert_ok(through_many(2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER));
    assert_played();
    assert_int_equal(which, 1);
    assert_true(gpu_has_work(&works[0]));
    close_play();
}

static void test_a_wait_for_all_or_a_failure_goes_through_until_one_ticket_has_failed(void **state)
{
    (void)state;
    open_play(2);
    commit_work(0);
    commit_work(1);
    commit_work(1);
    fail_work(&works[1], "the second point");
    finish_work(&works[2]);
    WHILE_IT_SLEEPS({lose, false}, {finish_1, true});
    assert_result(through_many(3, GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
    assert_played();
    assert_int_equal(which, 1);
    assert_string_equal(last_error.message, "the second point");
    close_play();
}

static void test_a_wait_for_many_times_out_at_the_limit(void **state)
{
    static const gpusync_wait_for ways[] = {GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ANY, GPUSYNC_WAIT_ALL_OR_FAILURE};
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(ways); i++) {
        open_play(2);
        commit_work(0);
        commit_work(1);
        WHILE_IT_SLEEPS({lose, false}, {nearly_reach_the_limit, true}, {reach_the_limit, true});
        assert_result(through_many(2, ways[i], SECONDS(1)), GPUSYNC_TIMEOUT);
        assert_played();
        assert_int_equal(which, 2);
        assert_result(through_many(2, ways[i], 0), GPUSYNC_TIMEOUT);
        assert_int_equal(which, 2);
        finish_work(&works[1]);
        assert_result(through_many(2, ways[i], 0), i == 1 ? GPUSYNC_OK : GPUSYNC_TIMEOUT);
        assert_int_equal(which, i == 1 ? 1 : 2);
        close_play();
    }
}

/* As gpusync_wait_many says of a limit: the failure counts more than what has not ended. */
static void test_a_failure_counts_more_at_the_limit_of_a_wait_for_all(void **state)
{
    (void)state;
    open_play(2);
    commit_work(0);
    commit_work(1);
    fail_work(&works[1], "the second point");
    lose();
    WHILE_IT_SLEEPS({finish_1, false}, {reach_the_limit, true});
    assert_result(through_many(2, GPUSYNC_WAIT_ALL, SECONDS(1)), GPUSYNC_ERROR_EXECUTION);
    assert_played();
    assert_int_equal(which, 1);
    close_play();
}

/* More than the call has room for. */
static void test_a_wait_for_all_of_many_tickets_goes_through(void **state)
{
    unsigned i;
    (void)state;
    open_play(2);
    for (i = 0; i < 40; i++) commit_work(i % 2);
    for (i = 2; i < 40; i++) finish_work(&works[i]);
    WHILE_IT_SLEEPS({lose, false}, {finish_0, false}, {finish_1, true});
    assert_ok(through_many(40, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER));
    assert_played();
    assert_int_equal(which, 40);
    close_play();
}

/* Its timeline fails then. */
static void test_a_value_that_has_not_come_ends_the_wait_at_the_giving_up(void **state)
{
    static const gpusync_wait_for ways[] = {GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ANY, GPUSYNC_WAIT_ALL_OR_FAILURE};
    gpusync_wait_options options;
    gpusync_point points[2];
    size_t i, at_which;
    (void)state;
    for (i = 0; i < LENGTH(ways); i++) {
        unsigned of_ticket = ways[i] != GPUSYNC_WAIT_ANY; /* that ends before, and then a value alone keeps the wait */
        open_play(1);
        commit_work(0);
        points[0] = of_ticket ? point_of(&works[0]) : at(s.b, 1);
        points[1] = at(s.a, 1);
        options = options_with(NULL);
        WHILE_IT_SLEEPS({lose, false}, {finish_0, false}, {give_up, true});
        assert_result(gpusync_wait_many(points, 2, ways[i], GPUSYNC_FOREVER, &options, &at_which),
                      GPUSYNC_ERROR_DEVICE_LOST);
        assert_played();
        if (of_ticket) assert_int_equal(at_which, 1);
        assert_result(last_error.result, GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(gpusync_wait_many(points, 2, ways[i], GPUSYNC_FOREVER, &options, &at_which),
                      GPUSYNC_ERROR_DEVICE_LOST); /* begun behind it */
        assert_int_equal(at_which, of_ticket);
        close_play();
    }
}

/* Other points that still run do not keep it. */
static void test_a_ticket_that_is_given_up_ends_a_wait_for_many(void **state)
{
    static const gpusync_wait_for ways[] = {GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ANY, GPUSYNC_WAIT_ALL_OR_FAILURE};
    size_t i, late;
    (void)state;
    for (i = 0; i < LENGTH(ways); i++)
        for (late = 0; late < 2; late++) {
            open_play(2);
            commit_work(0);
            commit_work(1);
            commit_work(0);
            lose();
            if (late) give_up();
            if (ways[i] != GPUSYNC_WAIT_ANY && !late) finish_0(); /* the first point is over, and well */
            if (!late) WHILE_IT_SLEEPS({give_up, true});
            assert_result(through_many(3, ways[i], GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
            if (!late) assert_played();
            assert_int_equal(which, ways[i] != GPUSYNC_WAIT_ANY && !late);
            assert_given_up(&works[which]);
            close_play();
        }
}

static void test_a_value_that_is_reached_does_not_keep_the_wait(void **state)
{
    gpusync_point points[2];
    size_t at_which;
    (void)state;
    open_play(1);
    commit_work(0);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    points[0] = at(s.a, 1);
    points[1] = point_of(&works[0]);
    WHILE_IT_SLEEPS({lose, false}, {finish_0, true});
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &at_which));
    assert_played();
    assert_false(gpu_has_work(&works[0]));
    assert_int_equal(at_which, 2);
    close_play();
}

/* -- work that was never committed -------------------------------------------------------------------------------- */

static void test_held_work_ends_at_the_loss(void **state)
{
    (void)state;
    open_play(1);
    hold_work(0);
    assert_result(through(&works[0], 0), GPUSYNC_TIMEOUT);
    WHILE_IT_SLEEPS({lose, true});
    assert_result(through(&works[0], GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
    assert_result(through(&works[0], 0), GPUSYNC_ERROR_DEVICE_LOST); /* begun after the loss */
    assert_result(poll_of(&works[0]), GPUSYNC_ERROR_DEVICE_LOST);
    assert_ok(info_of(&works[0])); /* it never ran */
    assert_true(gpusync_is_done(s.q[0], works[0].ticket));
    give_up();
    assert_ok(info_of(&works[0]));
    assert_true(gpusync_is_idle(s.q[0]));
    close_play();
}

static void test_a_commit_behind_held_work_ends_at_the_loss(void **state)
{
    (void)state;
    open_play(1);
    hold_work(0);
    commit_work(0);
    assert_false(gpu_has_work(&works[1]));
    lose();
    assert_result(through(&works[1], 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(through_many(2, GPUSYNC_WAIT_ALL, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(which, 0);
    assert_ok(info_of(&works[1]));
    close_play();
}

static void test_held_work_does_not_keep_a_wait_for_everything(void **state)
{
    (void)state;
    open_play(1);
    commit_work(0);
    hold_work(0);
    WHILE_IT_SLEEPS({lose, false}, {finish_0, true});
    assert_result(through_all(0, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
    close_play();
}

/* Not at the loss: the program may yet commit it, or untrack it. */
static void test_a_tracked_buffer_that_was_not_committed_is_given_up(void **state)
{
    int untracked;
    (void)state;
    NOT_ON_METAL4("no track");
    for (untracked = 0; untracked < 2; untracked++) {
        open_play(1);
        track_work(0);
        if (untracked) {
            lose();
            assert_result(through(&works[0], 0), GPUSYNC_TIMEOUT);
            assert_ok(gpusync_untrack(s.q[0], works[0].ticket));
            give_up();
            assert_result(through(&works[0], 0), GPUSYNC_ERROR_CANCELLED);
            assert_ok(info_of(&works[0]));
        } else {
            WHILE_IT_SLEEPS({lose, false}, {give_up, true});
            assert_result(through(&works[0], GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
            assert_played();
            assert_given_up(&works[0]);
            assert_result(through_all(0, 0), GPUSYNC_ERROR_DEVICE_LOST);
            assert_result(gpusync_untrack(s.q[0], works[0].ticket), GPUSYNC_ERROR_INVALID_TICKET);
            commit_0(); /* after all */
            finish_0();
            assert_given_up(&works[0]);
        }
        close_play();
    }
}

static void test_a_tracked_buffer_that_was_committed_is_waited_for(void **state)
{
    int committed_after;
    (void)state;
    NOT_ON_METAL4("no track");
    for (committed_after = 0; committed_after < 2; committed_after++) {
        open_play(1);
        track_work(0);
        if (!committed_after) commit_0();
        lose();
        if (committed_after) commit_0();
        assert_result(through(&works[0], 0), GPUSYNC_TIMEOUT);
        assert_result(through_all(0, 0), GPUSYNC_TIMEOUT);
        WHILE_IT_SLEEPS({finish_0, true});
        assert_ok(through(&works[0], GPUSYNC_FOREVER));
        assert_played();
        assert_result(through_all(0, 0), GPUSYNC_ERROR_DEVICE_LOST);
        close_play();
    }
}

/* The owner commits it while a wait sleeps that has begun before, and the loss comes behind. */
static void test_a_tracked_buffer_that_is_committed_while_a_wait_sleeps_is_waited_for(void **state)
{
    (void)state;
    NOT_ON_METAL4("no track");
    open_play(1);
    track_work(0);
    WHILE_IT_SLEEPS({commit_0, false}, {lose, false}, {finish_0, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    close_play();
}

static void test_a_tracked_buffer_that_was_not_committed_keeps_everything(void **state)
{
    (void)state;
    NOT_ON_METAL4("no track");
    open_play(1);
    commit_work(0);
    track_work(0);
    commit_work(0);
    lose();
    finish_work(&works[2]);
    WHILE_IT_SLEEPS({finish_0, false}, {sweep, false}, {give_up, true});
    assert_result(through_all(0, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
    assert_ok(through(&works[0], 0));
    assert_ok(through(&works[2], 0));
    assert_given_up(&works[1]);
    close_play();
}

static void test_a_sleeper_is_told_of_the_end_of_work_that_its_owner_has_committed(void **state)
{
    wait_job job;
    (void)state;
    NOT_ON_METAL4("no track");
    open_play(1);
    track_work(0);
    commit_0();
    start_through(&job, &works[0], NULL);
    await_sleepers(s.device, 1);
    lose();
    must_return_within(20);
    await_sleepers(s.device, 1);
    has_returned();
    fail_work(&works[0], "abroad");
    finish_work(&works[0]);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_EXECUTION);
    close_play();
}

/* -- submissions of several parts, and what they wait for ----------------------------------------------------------- */

static void finish_but_the_last(void)
{
    unsigned i;
    for (i = 0; i + 1 < works[0].count; i++) softmetal_finish(works[0].buffers[i]);
}

static void finish_the_last(void) { softmetal_finish(works[0].buffers[works[0].count - 1]); }

static void test_a_submission_is_over_when_its_last_part_is(void **state)
{
    gpusync_point signal;
    (void)state;
    NOT_ON_METAL4("a commit of several command buffers is one part");
    open_play(1);
    signal = at(s.a, 1);
    submit_work(0, 3, NULL, &signal);
    assert_int_equal(works[0].count, 4); /* gpusync's own signals */
    WHILE_IT_SLEEPS({lose, false}, {finish_but_the_last, false}, {sweep, false}, {finish_the_last, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    close_play();
}

static void test_a_submission_one_part_of_which_hangs_goes_on(void **state)
{
    unsigned hanging, i;
    (void)state;
    NOT_ON_METAL4("a commit of several command buffers is one part");
    for (hanging = 0; hanging < 3; hanging++) {
        open_play(1);
        submit_work(0, 3, NULL, NULL);
        lose();
        for (i = 0; i < 3; i++)
            if (i != hanging) softmetal_finish(works[0].buffers[i]);
        assert_result(through(&works[0], 0), GPUSYNC_TIMEOUT);
        assert_result(through_all(0, 0), GPUSYNC_TIMEOUT);
        softmetal_fail(works[0].buffers[hanging], "TestDomain", 42, "it broke");
        softmetal_finish(works[0].buffers[hanging]);
        assert_result(through(&works[0], 0), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(last_error.code, 42);
        close_play();
    }
}

static void test_a_submission_with_a_signal_goes_through_the_loss(void **state)
{
    gpusync_point signal;
    (void)state;
    open_play(1);
    signal = at(s.a, 1);
    submit_work(0, 2, NULL, &signal);
    WHILE_IT_SLEEPS({lose, false}, {finish_0, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    close_play();
}

/* The second work waits for what the first signals. The first goes so far that the second can go, and hangs then: its last
   command buffer does, or its feedback with Metal 4. */
static void open_chain(void)
{
    gpusync_submission submission;
    gpusync_point signal;
    work *producer;
    unsigned i;
    open_play(2);
    producer = work_new(1);
    signal = at(s.a, 1);
    memset(&submission, 0, sizeof submission);
    for (i = 0; i < (metal4_run() ? 1 : 2); i++) work_add(producer, buffer_of(producer->queue));
    if (metal4_run()) {
        submission.signals = &signal;
        submission.signal_count = 1;
    } else {
        assert_ok(gpusync_encode_signal(producer->queue, producer->buffers[0], signal));
    }
    submission.command_buffers = producer->buffers;
    submission.command_buffer_count = producer->count;
    producer->ticket = submit_well(producer->queue, &submission);
    submit_work(0, 1, &signal, NULL);
}

static void let_the_chain_go(void)
{
    if (metal4_run()) softmetal_complete(works[0].buffers[0]);
    else softmetal_finish(works[0].buffers[0]);
}

static void end_the_chain(void) { softmetal_finish(works[0].buffers[works[0].count - 1]); }

static void test_a_submission_that_has_ended_waits_for_the_end_of_what_it_waited_for(void **state)
{
    int comes;
    (void)state;
    for (comes = 0; comes < 2; comes++) {
        open_chain();
        assert_result(through(&works[1], 0), GPUSYNC_TIMEOUT);
        lose();
        assert_result(through(&works[1], 0), GPUSYNC_TIMEOUT); /* it waits on the GPU */
        let_the_chain_go();
        finish_work(&works[1]);
        assert_result(through(&works[1], 0), GPUSYNC_TIMEOUT);
        assert_result(through_all(0, 0), GPUSYNC_TIMEOUT);
        assert_result(through_many(2, GPUSYNC_WAIT_ANY, 0), GPUSYNC_TIMEOUT);
        if (comes) WHILE_IT_SLEEPS({end_the_chain, true});
        else WHILE_IT_SLEEPS({give_up, true});
        assert_result(through(&works[1], GPUSYNC_FOREVER), comes ? GPUSYNC_OK : GPUSYNC_ERROR_DEVICE_LOST);
        assert_played();
        if (!comes) {
            assert_given_up(&works[1]); /* though its own command buffers have ended */
            end_the_chain();
            assert_given_up(&works[1]);
            assert_given_up(&works[0]);
        }
        close_play();
    }
}

/* -- lost handlers, and the sweep --------------------------------------------------------------------------------- */

static void test_the_sweep_finds_an_end_whose_handler_is_lost(void **state)
{
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_play(1);
    commit_work(0);
    WHILE_IT_SLEEPS({lose, false}, {end_unheard_0, false}, {sweep, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    close_play();
}

static void test_the_sweep_finds_the_end_of_the_last_part_whose_handler_is_lost(void **state)
{
    unsigned i;
    (void)state;
    NOT_ON_METAL4("a commit of several command buffers is one part");
    open_play(1);
    submit_work(0, 2, NULL, NULL);
    for (i = 0; i < 2; i++) softmetal_lose_handlers(works[0].buffers[i]);
    WHILE_IT_SLEEPS({lose, false}, {finish_but_the_last, false}, {sweep, false}, {finish_the_last, false},
                    {sweep, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    close_play();
}

static void test_the_wait_itself_finds_an_end_whose_handler_is_lost(void **state)
{
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_play(1);
    commit_work(0);
    fail_work(commit_work(0), "unheard");
    lose();
    end_unheard_0();
    softmetal_lose_handlers(works[1].buffers[0]);
    finish_work(&works[1]);
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_result(through_all(0, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(through(&works[1], 0), GPUSYNC_ERROR_EXECUTION);
    close_play();
}

static void sweep_and_be_armed_again(void)
{
    assert_int_equal(softmetal_timers(), 1);
    softmetal_fire_timer();
    assert_int_equal(softmetal_timers(), 1);
    assert_true(softmetal_next_timer() <= MS(500));
}

static void test_the_sweep_goes_on_after_a_loss_until_the_work_is_given_up(void **state)
{
    (void)state;
    open_play(1);
    commit_work(0);
    assert_int_equal(softmetal_timers(), 0);
    WHILE_IT_SLEEPS({lose, false}, {sweep_and_be_armed_again, false}, {sweep_and_be_armed_again, false},
                    {sweep_and_be_armed_again, false}, {sweep_and_be_armed_again, false},
                    {sweep_and_be_armed_again, false}, {sweep_and_be_armed_again, false}, {finish_0, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    assert_int_equal(softmetal_timers(), 1);
    sweep_and_be_armed_again(); /* without a sleeper, too */
    give_up();
    assert_int_equal(softmetal_timers(), 0);
    close_play();
}

/* The sweep comes to the queue of the sleeper last. With the loss it has found the sleeper wakes, and is not asleep again
   when the sweep asks whether it has to come again. */
static unsigned timers_behind_the_sweep;

static void find_the_loss_by_a_sweep(void)
{
    sweep();
    assert_true(gpusync_device_is_lost(s.device));
}

static void note_the_timers(void)
{
    timers_behind_the_sweep = softmetal_timers();
    finish_1();
}

static void test_the_sweep_goes_on_for_a_wait_though_it_has_found_the_loss_itself(void **state)
{
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_play(2);
    commit_work(0);
    fail_with_the_device(works[0].buffers[0]);
    commit_work(1);
    WHILE_IT_SLEEPS({end_unheard_0, false}, {find_the_loss_by_a_sweep, false}, {note_the_timers, true});
    assert_ok(through(&works[1], GPUSYNC_FOREVER));
    assert_played();
    close_play();
    assert_in_range(timers_behind_the_sweep, 1, 2); /* for the sleeper, and of the loss */
}

/* -- many sleepers ------------------------------------------------------------------------------------------------- */

/* More than the library wakes in one go, on each queue. */
#define CROWD 60u

static void start_crowd(wait_job jobs[CROWD], unsigned queues)
{
    unsigned i;
    for (i = 0; i < CROWD; i++) {
        work all = works[i % queues];
        if (i % 4 == 3) all.ticket = GPUSYNC_EVERYTHING;
        start_through(&jobs[i], &all, NULL);
    }
    await_sleepers(s.device, CROWD);
}

static void test_all_of_many_sleepers_on_several_queues_go_on_through_the_loss(void **state)
{
    wait_job jobs[CROWD];
    unsigned i;
    (void)state;
    open_play(3);
    for (i = 0; i < 3; i++) commit_work(i);
    start_crowd(jobs, 3);
    lose();
    must_return_within(20);
    await_sleepers(s.device, CROWD);
    has_returned();
    for (i = 0; i < 3; i++) finish_work(&works[i]);
    for (i = 0; i < CROWD; i++)
        assert_result(wait_job_join(&jobs[i]), i % 4 == 3 ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK);
    close_play();
}

static void test_all_of_many_sleepers_are_woken_when_the_work_is_given_up(void **state)
{
    wait_job jobs[CROWD];
    unsigned i;
    (void)state;
    open_play(2);
    for (i = 0; i < 2; i++) commit_work(i);
    start_crowd(jobs, 2);
    must_return_within(20);
    lose();
    give_up();
    for (i = 0; i < CROWD; i++) assert_result(wait_job_join(&jobs[i]), GPUSYNC_ERROR_DEVICE_LOST);
    has_returned();
    close_play();
}

/* Handlers come on Metal's own threads, and with each sweep all sleepers look. */
static void test_on_the_real_clock_a_removed_device_ends_every_such_wait_with_the_result_of_its_work(void **state)
{
    wait_job jobs[CROWD];
    unsigned i;
    (void)state;
    clock_is_real = true;
    open_play_logging(3, SOFTMETAL_REAL, note_line);
    for (i = 0; i < 3; i++) {
        work *w = work_new(i);
        softmetal_hang(work_add(w, buffer_of(w->queue)));
        w->ticket = commit_to(w->queue, w->buffers[0]);
    }
    start_crowd(jobs, 3);
    softmetal_remove_device(s.rig.metal_device);
    for (i = 0; i < CROWD; i++)
        assert_result(wait_job_join(&jobs[i]), i % 4 == 3 ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_ERROR_EXECUTION);
    for (i = 0; i < 3; i++) assert_false(gpu_has_work(&works[i]));
    close_play();
    clock_is_real = false;
}

/* -- with handlers ------------------------------------------------------------------------------------------------- */

static const gpusync_wait_options handlers = {.handlers = true};

static void run_the_handler_of_0(void)
{
    softmetal_run_handler(works[0].buffers[0], softmetal_handler_count(works[0].buffers[0]) - 1);
}

static void test_with_handlers_the_wait_goes_on_until_the_handler_has_run(void **state)
{
    (void)state;
    NOT_ON_METAL4("the feedback is both");
    open_play(1);
    commit_work(0);
    WHILE_IT_SLEEPS({lose, false}, {complete_0, false}, {sweep, false}, {run_the_handler_of_0, true});
    assert_ok(through_with(&works[0], GPUSYNC_FOREVER, &handlers));
    assert_played();
    finish_work(&works[0]);
    close_play();
}

/* The work has ended, and says so: only its handler is given up. */
static void test_with_handlers_a_handler_that_never_comes_is_given_up(void **state)
{
    int fails;
    (void)state;
    NOT_ON_METAL4("the feedback is both");
    for (fails = 0; fails < 2; fails++) {
        gpusync_result result = fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_ERROR_DEVICE_LOST;
        open_play(1);
        commit_work(0);
        if (fails) fail_work(&works[0], "it broke");
        WHILE_IT_SLEEPS({lose, false}, {end_unheard_0, false}, {nearly_reach_the_limit, true}, {reach_the_limit, true});
        assert_result(through_with(&works[0], MS(100), &handlers), GPUSYNC_TIMEOUT);
        assert_played();
        assert_result(through_with(&works[0], 0, &handlers), GPUSYNC_TIMEOUT);
        WHILE_IT_SLEEPS({give_up, true});
        assert_result(through_with(&works[0], GPUSYNC_FOREVER, &handlers), result);
        assert_played();
        assert_result(through(&works[0], 0), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_ok(info_of(&works[0]));
        assert_true(gpusync_is_idle(s.q[0]));
        close_play();
    }
}

static void test_with_handlers_what_was_held_owes_nothing(void **state)
{
    (void)state;
    open_play(1);
    hold_work(0);
    lose();
    assert_result(through_with(&works[0], GPUSYNC_FOREVER, &handlers), GPUSYNC_ERROR_DEVICE_LOST);
    assert_ok(info_of(&works[0]));
    close_play();
}

static void test_with_handlers_work_that_hangs_is_given_up(void **state)
{
    gpusync_wait_options options;
    int everything;
    (void)state;
    for (everything = 0; everything < 2; everything++) {
        open_play(1);
        commit_work(0);
        options = options_with(&handlers);
        WHILE_IT_SLEEPS({lose, false}, {give_up, true});
        if (!everything) assert_result(through_with(&works[0], GPUSYNC_FOREVER, &handlers), GPUSYNC_ERROR_DEVICE_LOST);
        else assert_result(gpusync_device_wait(s.device, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_DEVICE_LOST);
        assert_played();
        assert_given_up(&works[0]);
        close_play();
    }
}

/* -- Metal 4 -------------------------------------------------------------------------------------------------------- */

static void only_on_metal4(void)
{
    if (!metal4_run()) skip();
}

static void test_on_metal_4_the_feedback_ends_the_wait_and_nothing_before(void **state)
{
    (void)state;
    only_on_metal4();
    open_play(1);
    commit_work(0);
    WHILE_IT_SLEEPS({lose, false}, {complete_0, false}, {sweep, false}, {sweep, false}, {finish_0, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    close_play();
}

/* gpusync keeps the command buffers of a feedback that is lost for good: this one comes late, and changes nothing. */
static void test_on_metal_4_a_feedback_that_does_not_come_is_given_up(void **state)
{
    (void)state;
    only_on_metal4();
    open_play(1);
    commit_work(0);
    WHILE_IT_SLEEPS({lose, false}, {complete_0, false}, {sweep, false}, {nearly_reach_the_limit, true},
                    {reach_the_limit, true});
    assert_result(through(&works[0], MS(100)), GPUSYNC_TIMEOUT);
    assert_played();
    assert_result(through_device(0), GPUSYNC_TIMEOUT);
    give_up();
    assert_given_up(&works[0]);
    finish_0();
    assert_given_up(&works[0]);
    close_play();
}

/* -- the second ---------------------------------------------------------------------------------------------------- */

#define A_FEW 20000u /* what so many questions for the time take, at most */

static uint64_t before_the_loss, behind_the_loss;

static void lose_and_note_the_time(void)
{
    before_the_loss = GET(&clock_now);
    lose();
    behind_the_loss = GET(&clock_now);
    assert_true(behind_the_loss - before_the_loss < A_FEW);
}

/* A look at this time. Returns the time behind it. */
static uint64_t look_at(uint64_t ns)
{
    assert_int_equal(softmetal_timers(), 1);
    PUT(&clock_now, ns);
    softmetal_fire_timer();
    assert_true(GET(&clock_now) - ns < A_FEW);
    return GET(&clock_now);
}

/* A program that only polls hears of it: the loss itself arms the timer. */
static void test_what_has_not_ended_is_given_up_at_the_second_look(void **state)
{
    uint64_t first;
    (void)state;
    open_play(1);
    commit_work(0);
    assert_int_equal(softmetal_timers(), 0);
    lose_and_note_the_time();
    assert_int_equal(softmetal_timers(), 1);
    assert_int_equal(softmetal_next_timer(), LOOK);
    first = look_at(behind_the_loss + LOOK);
    assert_result(poll_of(&works[0]), GPUSYNC_NOT_READY);
    assert_int_equal(softmetal_next_timer(), LOOK);
    (void)look_at(first + LOOK);
    assert_result(poll_of(&works[0]), GPUSYNC_ERROR_DEVICE_LOST);
    assert_given_up(&works[0]);
    assert_int_equal(softmetal_timers(), 0); /* nothing is to come */
    close_play();
}

/* A look that comes early does not count, neither as the first nor as the second. */
static void test_a_look_before_half_a_second_does_not_count(void **state)
{
    uint64_t first;
    (void)state;
    open_play(1);
    commit_work(0);
    lose_and_note_the_time();
    (void)look_at(before_the_loss + MS(499));
    assert_result(poll_of(&works[0]), GPUSYNC_NOT_READY);
    assert_in_range(softmetal_next_timer(), MS(1) - A_FEW, MS(1) + A_FEW); /* the rest of it */
    (void)look_at(before_the_loss + LOOK - A_FEW); /* it was the first, were that of 499 ms to count */
    first = look_at(behind_the_loss + LOOK);
    assert_result(poll_of(&works[0]), GPUSYNC_NOT_READY);
    (void)look_at(first - A_FEW + MS(499));
    assert_result(poll_of(&works[0]), GPUSYNC_NOT_READY);
    (void)look_at(behind_the_loss + 2 * LOOK - A_FEW);
    assert_result(poll_of(&works[0]), GPUSYNC_NOT_READY);
    (void)look_at(first + LOOK);
    assert_given_up(&works[0]);
    close_play();
}

/* The system sleeps an hour: then Metal may have much to tell that it had no time for. */
static void test_a_suspension_gives_nothing_up_at_the_first_look(void **state)
{
    uint64_t first;
    (void)state;
    open_play(1);
    commit_work(0);
    commit_work(0);
    lose_and_note_the_time();
    first = look_at(behind_the_loss + SECONDS(3600));
    assert_result(poll_of(&works[0]), GPUSYNC_NOT_READY);
    assert_int_equal(softmetal_next_timer(), LOOK);
    finish_0();
    (void)look_at(first + SECONDS(3600)); /* and again: the second look has come */
    assert_ok(through(&works[0], 0));
    assert_given_up(&works[1]);
    close_play();
}

/* The first look is late, as timers are; the second is not due before its half second. */
static void test_a_late_first_look_makes_the_second_late(void **state)
{
    uint64_t first;
    (void)state;
    open_play(1);
    commit_work(0);
    lose_and_note_the_time();
    first = look_at(behind_the_loss + MS(900));
    (void)look_at(behind_the_loss + MS(1100));
    assert_result(poll_of(&works[0]), GPUSYNC_NOT_READY);
    (void)look_at(first + LOOK);
    assert_given_up(&works[0]);
    close_play();
}

/* Sweeps for sleepers come between. */
static void test_sweeps_for_a_sleeper_are_no_looks(void **state)
{
    uint64_t at;
    wait_job job;
    unsigned n;
    (void)state;
    open_play(1);
    commit_work(0);
    start_through(&job, &works[0], NULL);
    await_sleepers(s.device, 1);
    lose_and_note_the_time();
    for (n = 0, at = before_the_loss; (at += MS(50)) < before_the_loss + LOOK; n++) {
        PUT(&clock_now, at);
        softmetal_fire_timer();
        assert_true(softmetal_timers() > 0);
    }
    assert_result(poll_of(&works[0]), GPUSYNC_NOT_READY);
    for (n = 0; gpusync_poll(s.q[0], works[0].ticket) == GPUSYNC_NOT_READY; n++) {
        PUT(&clock_now, GET(&clock_now) + MS(50));
        softmetal_fire_timer();
    }
    assert_in_range(n, 10, 12); /* two looks, half a second apart */
    must_return_within(20);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
    has_returned();
    while (softmetal_timers()) softmetal_fire_timer();
    close_play();
}

/* Its result is told, also where its handler is lost: each look reads the status first. */
static void test_what_ends_before_the_second_look_keeps_its_result(void **state)
{
    outcome o[3];
    uint64_t first;
    unsigned k;
    (void)state;
    memset(o, 0, sizeof o);
    open_play(1);
    for (k = 0; k < 3; k++) {
        commit_work(0);
        on_done(s.q[0], works[k].ticket, &o[k]);
    }
    fail_work(&works[1], "it broke");
    lose_and_note_the_time();
    finish_work(&works[1]);
    first = look_at(behind_the_loss + LOOK);
    if (metal4_run()) finish_0(); /* no status to read */
    else end_unheard_0();
    (void)look_at(first + LOOK);
    assert_ended(&o[0], GPUSYNC_OK);
    assert_ended(&o[1], GPUSYNC_ERROR_EXECUTION);
    assert_ended(&o[2], GPUSYNC_ERROR_DEVICE_LOST);
    assert_ok(through(&works[0], 0));
    assert_result(through(&works[1], 0), GPUSYNC_ERROR_EXECUTION);
    assert_given_up(&works[2]);
    assert_true(gpusync_is_done(s.q[0], works[1].ticket));
    close_play();
}

/* Nothing is in flight: the timelines fail, and that is all. */
static void test_an_idle_device_is_given_up_too(void **state)
{
    (void)state;
    open_play(1);
    finish_work(commit_work(0));
    lose();
    assert_ok(gpusync_timeline_signal(s.a, 1)); /* by the host, as before */
    assert_int_equal(value_of(s.a), 1);
    give_up();
    assert_int_equal(softmetal_timers(), 0);
    assert_ok(through(&works[0], 0));
    assert_true(gpusync_is_idle(s.q[0]));
    assert_true(gpusync_is_idle(s.q[culprit]));
    assert_result(gpusync_timeline_wait(s.a, 1, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    close_play();
}

/* On the machine's clock, with nothing that the test steps. */
static void test_on_the_real_clock_the_second_is_a_second(void **state)
{
    uint64_t began, lasted;
    outcome o = {0};
    void *buffer;
    work *w;
    (void)state;
    clock_is_real = true;
    open_play_logging(1, SOFTMETAL_REAL, note_line);
    w = work_new(0);
    softmetal_hang(work_add(w, buffer_of(w->queue)));
    w->ticket = commit_to(w->queue, w->buffers[0]);
    on_done(w->queue, w->ticket, &o);
    buffer = buffer_of(s.q[culprit]);
    fail_with_the_device(buffer);
    began = gpusync_now_ns();
    commit_to(s.q[culprit], buffer);
    must_return_within(20);
    assert_result(through(w, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    has_returned();
    lasted = gpusync_now_ns() - began;
    assert_in_range(lasted, SECONDS(1), SECONDS(10)); /* the machine may be busy */
    assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
    gave_up = true;
    assert_given_up(w);
    softmetal_unhang(w->buffers[0]);
    close_play();
    clock_is_real = false;
}

/* -- what was given up --------------------------------------------------------------------------------------------- */

static void sleep_until_given_up(const work *w, void (*act)(void))
{
    set_plan(&(step){act, true}, 1, false);
    assert_result(through(w, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
}

static void test_a_sleeping_wait_returns_when_the_work_is_given_up(void **state)
{
    int submits;
    (void)state;
    for (submits = 0; submits < 2; submits++) {
        open_play(1);
        if (submits) submit_work(0, 2, NULL, NULL);
        else commit_work(0);
        lose();
        sleep_until_given_up(&works[0], give_up);
        assert_given_up(&works[0]);
        WHILE_IT_SLEEPS({nothing, false});
        assert_result(through_all(0, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST); /* begun behind it */
        assert_result(through_device(GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(gpusync_poll(s.q[0], GPUSYNC_EVERYTHING), GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(plan.done, 0);
        end_plan();
        close_play();
    }
}

static void test_a_spinning_wait_returns_when_the_work_is_given_up(void **state)
{
    static const gpusync_spin endless = {0, UINT32_MAX, 0, false};
    gpusync_wait_options options = {.spin = &endless};
    (void)state;
    open_play(1);
    commit_work(0);
    lose();
    WHILE_IT_SPINS({nothing, false}, {give_up, false});
    assert_result(through_with(&works[0], GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
    close_play();
}

static void test_a_wait_for_everything_returns_when_the_rest_is_given_up(void **state)
{
    int of_device;
    (void)state;
    for (of_device = 0; of_device < 2; of_device++) {
        open_play(2);
        commit_work(0);
        commit_work(0);
        commit_work(1);
        WHILE_IT_SLEEPS({lose, false}, {finish_1, false}, {give_up, true});
        assert_result(of_device ? through_device(GPUSYNC_FOREVER) : through_all(0, GPUSYNC_FOREVER),
                      GPUSYNC_ERROR_DEVICE_LOST);
        assert_played();
        assert_ok(through(&works[1], 0));
        assert_given_up(&works[0]);
        assert_given_up(&works[2]);
        close_play();
    }
}

/* Shorter limits, of waits of each kind. */
static void test_a_limit_before_the_second_is_a_timeout(void **state)
{
    (void)state;
    open_play(1);
    commit_work(0);
    lose();
    WHILE_IT_SLEEPS({sweep, false}, {nearly_reach_the_limit, true}, {reach_the_limit, true});
    assert_result(through_device(MS(100)), GPUSYNC_TIMEOUT);
    assert_played();
    WHILE_IT_SLEEPS({reach_the_limit, true});
    assert_result(through_all(0, MS(100)), GPUSYNC_TIMEOUT);
    assert_played();
    WHILE_IT_SLEEPS({reach_the_limit, true});
    assert_result(through_many(1, GPUSYNC_WAIT_ALL, MS(100)), GPUSYNC_TIMEOUT);
    assert_played();
    WHILE_IT_SLEEPS({reach_the_limit, true});
    assert_result(gpusync_timeline_wait(s.a, 1, MS(100), NULL), GPUSYNC_TIMEOUT);
    assert_played();
    close_play();
}

static void test_a_blocking_wait_ends_with_metal_only(void **state)
{
    gpusync_wait_options options = {.blocking = true};
    uint64_t before;
    wait_job job;
    (void)state;
    NOT_ON_METAL4("no waitUntilCompleted");
    open_play(1);
    commit_work(0);
    lose();
    before = softmetal_message_count("waitUntilCompleted");
    start_through(&job, &works[0], &options);
    await_blocked(before);
    give_up();
    assert_given_up(&works[0]);
    assert_true(gpu_has_work(&works[0]));
    finish_work(&works[0]);
    must_return_within(20);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST); /* it was told so before */
    has_returned();
    assert_given_up(&works[0]);
    close_play();
}

/* get_info parts what has ended, or never ran, from what was given up. */
static void test_info_tells_what_has_ended_from_what_was_given_up(void **state)
{
    gpusync_ticket_info info;
    gpusync_ticket hanging;
    (void)state;
    open_play(1);
    fail_work(commit_work(0), "it broke");
    finish_work(&works[0]);
    finish_work(commit_work(0));
    hanging = commit_work(0)->ticket;
    hold_work(0);
    lose();
    assert_result(gpusync_get_info(s.q[0], hanging, &info), GPUSYNC_NOT_READY);
    give_up();
    assert_ok(gpusync_get_info(s.q[0], works[0].ticket, &info));
    assert_result(info.result, GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_get_info(s.q[0], works[1].ticket, &info));
    assert_result(info.result, GPUSYNC_OK);
    assert_result(gpusync_get_info(s.q[0], hanging, &info), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(info.result, GPUSYNC_OK); /* zero */
    assert_ok(gpusync_get_info(s.q[0], works[3].ticket, &info));
    assert_result(info.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(gpusync_is_done(s.q[0], works[1].ticket));
    assert_false(gpusync_is_done(s.q[0], hanging));
    assert_int_equal(gpusync_in_flight(s.q[0]), 2); /* from the first that has not ended */
    close_play();
}

/* A handler, or a feedback, that comes late: well, or with a failure. */
static void test_an_end_that_comes_late_changes_nothing(void **state)
{
    int fails, submits;
    (void)state;
    for (submits = 0; submits < 2; submits++)
        for (fails = 0; fails < 2; fails++) {
            outcome o = {0}, own = {0};
            gpusync_stats before, after;
            gpusync_error error;
            uint64_t cursor = 0;
            open_play(1);
            if (submits) {
                work *w = work_new(0);
                w->ticket = SUBMIT(s.q[0], BUFFERS(work_add(w, buffer_of(s.q[0]))), TELL(&own));
            } else {
                commit_work(0);
            }
            on_done(s.q[0], works[0].ticket, &o);
            if (fails) fail_work(&works[0], "too late");
            lose();
            give_up();
            assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
            if (submits) assert_ended(&own, GPUSYNC_ERROR_DEVICE_LOST);
            before = stats_of(s.q[0]);
            finish_0();
            assert_given_up(&works[0]);
            after = stats_of(s.q[0]);
            assert_int_equal(after.completions, before.completions);
            assert_int_equal(after.failures, before.failures);
            assert_result(gpusync_next_error(s.q[0], &cursor, &error), GPUSYNC_NOT_READY);
            assert_int_equal(calls_of(&o), 1);
            if (submits) assert_int_equal(calls_of(&own), 1);
            close_play();
        }
}

/* The handler has begun, and is about to say how the work ended, when the second look comes. */
static struct {
    void *buffer;
    bool acted;
} amid_the_end;

static void give_up_amid_the_end(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user, (void)selector;
    if (phase != SOFTMETAL_BEFORE || GET(&amid_the_end.acted) || !is_asked_by_handlers(object, amid_the_end.buffer))
        return;
    PUT(&amid_the_end.acted, true);
    give_up();
}

static void test_work_that_is_given_up_while_its_handler_runs_has_one_end(void **state)
{
    int submits;
    (void)state;
    for (submits = 0; submits < 2; submits++) {
        gpusync_result result;
        outcome o = {0};
        open_play(1);
        if (submits) submit_work(0, 1, NULL, NULL);
        else commit_work(0);
        on_done(s.q[0], works[0].ticket, &o);
        lose();
        amid_the_end.buffer = works[0].buffers[0];
        amid_the_end.acted = false;
        must_return_within(20);
        softmetal_set_message_hook(give_up_amid_the_end, NULL);
        finish_0();
        softmetal_set_message_hook(NULL, NULL);
        has_returned();
        assert_true(amid_the_end.acted);
        result = poll_of(&works[0]);
        assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DEVICE_LOST); /* the look may have found the end */
        assert_result(through(&works[0], 0), result);
        assert_ended(&o, result);
        assert_result(info_of(&works[0]), result);
        close_play();
    }
}

/* A commit, and behind it a submission: each callback gets the labels of its own work. */
static void test_what_is_given_up_has_no_label_of_other_work(void **state)
{
    void *first, *second;
    outcome o = {0}, own = {0};
    (void)state;
    open_play(1);
    first = buffer_of(s.q[0]);
    metal_set_label(first, "blur");
    on_done(s.q[0], commit_to(s.q[0], first), &o);
    second = buffer_of(s.q[0]);
    metal_set_label(second, "shade");
    (void)SUBMIT(s.q[0], BUFFERS(second), TELL(&own));
    lose();
    give_up();
    assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
    assert_string_equal(o.error.label, "blur");
    assert_ended(&own, GPUSYNC_ERROR_DEVICE_LOST);
    assert_string_equal(own.error.label, "shade");
    finish(&s, 0);
    close_play();
}

static void test_callbacks_of_work_that_is_given_up_get_device_lost_once(void **state)
{
    outcome before[70], own = {0}, behind = {0}, held = {0}; /* more than are told in one hold */
    gpusync_point never;
    size_t k;
    (void)state;
    memset(before, 0, sizeof before);
    open_play(1);
    commit_work(0);
    for (k = 0; k < LENGTH(before); k++) on_done(s.q[0], works[0].ticket, &before[k]);
    (void)SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), TELL(&own));
    never = at(s.d, 1000);
    (void)SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), .waits = &never, .wait_count = 1, TELL(&held));
    lose();
    assert_ended(&held, GPUSYNC_ERROR_DEVICE_LOST); /* at once */
    assert_int_equal(calls_of(&before[0]), 0);
    assert_int_equal(calls_of(&own), 0);
    give_up();
    for (k = 0; k < LENGTH(before); k++) {
        assert_ended(&before[k], GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(before[k].error.ticket, works[0].ticket);
    }
    assert_in_order(before, LENGTH(before));
    assert_ended(&own, GPUSYNC_ERROR_DEVICE_LOST);
    on_done(s.q[0], works[0].ticket, &behind);
    assert_ended(&behind, GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(behind.error.ticket, works[0].ticket);
    finish(&s, 0);
    assert_int_equal(calls_of(&own) + calls_of(&behind) + calls_of(&before[0]), 3);
    close_play();
}

/* Whatever comes late. */
static void keep_objects_of(bool submits)
{
    void *objects[3], *metal;
    unsigned long owners[3];
    int k;
    open_play(1);
    if (submits) submit_work(0, 1, NULL, NULL);
    else commit_work(0);
    for (k = 0; k < 3; k++) objects[k] = memory_of(&s, 16);
    assert_ok(gpusync_release_after(point_of(&works[0]), objects[0]));
    lose();
    assert_ok(gpusync_release_after(point_of(&works[0]), objects[1])); /* in the second */
    give_up();
    assert_ok(gpusync_release_after(point_of(&works[0]), objects[2])); /* and behind it */
    finish_0();
    for (k = 0; k < 3; k++) owners[k] = owners_of(objects[k]);
    metal = metal_retain(s.metal[0]);
    take_down_queue(&s, 0, false);
    metal_release(metal);
    for (k = 0; k < 3; k++) assert_int_equal(owners_of(objects[k]), 1);
    for (k = 0; k < 3; k++) metal_release(objects[k]);
    close_play();
    for (k = 0; k < 3; k++) assert_int_equal(owners[k], 2);
}

static long handler_lines; /* of the log */

static void note_line_of_a_handler(void *user, gpusync_log_level level, const char *text)
{
    (void)user, (void)level;
    if (strstr(text, "has not called the completed handler")) COUNT(&handler_lines);
}

/* What is kept until destroy is listed, and no reason for a sweep. No handler of a lost device is missed. */
static void test_no_sweep_looks_at_what_was_given_up(void **state)
{
    void *object, *of_a_value;
    int i;
    (void)state;
    open_play_logging(1, SOFTMETAL_MANUAL, note_line_of_a_handler);
    handler_lines = 0;
    commit_work(0);
    object = memory_of(&s, 16);
    assert_ok(gpusync_release_after(point_of(&works[0]), object));
    of_a_value = memory_of(&s, 16);
    assert_ok(gpusync_release_after(at(s.a, 9), of_a_value));
    lose();
    give_up();
    for (i = 0; i < 4 && softmetal_timers(); i++) {
        PUT(&clock_now, GET(&clock_now) + MS(500)); /* longer than a handler may be late */
        softmetal_fire_timer();
    }
    assert_int_equal(handler_lines, 0);
    assert_int_equal(softmetal_timers(), 0);
    assert_int_equal(owners_of(object), 2);
    assert_int_equal(owners_of(of_a_value), 2);
    metal_release(object);
    metal_release(of_a_value);
    close_play();
}

static void test_an_object_of_a_commit_that_is_given_up_is_kept_until_destroy(void **state)
{
    (void)state;
    keep_objects_of(false);
}

static void test_an_object_of_a_submission_that_is_given_up_is_kept_until_destroy(void **state)
{
    (void)state;
    keep_objects_of(true);
}

static void test_an_object_of_a_value_that_is_given_up_is_kept_until_destroy(void **state)
{
    void *objects[3];
    unsigned long owners[3];
    int k;
    (void)state;
    open_play(1);
    for (k = 0; k < 3; k++) objects[k] = memory_of(&s, 16);
    assert_ok(gpusync_release_after(at(s.a, 1), objects[0]));
    lose();
    assert_ok(gpusync_release_after(at(s.a, 1), objects[1]));
    give_up();
    assert_ok(gpusync_release_after(at(s.a, 1), objects[2]));
    for (k = 0; k < 3; k++) owners[k] = owners_of(objects[k]);
    take_down_timeline(&s, 0);
    for (k = 0; k < 3; k++) assert_int_equal(owners_of(objects[k]), 1);
    for (k = 0; k < 3; k++) metal_release(objects[k]);
    close_play();
    for (k = 0; k < 3; k++) assert_int_equal(owners[k], 2);
}

/* Work that waits on the GPU for work that is given up, and its own signal. */
static void test_a_chain_of_submissions_is_given_up_at_once(void **state)
{
    outcome o[3];
    unsigned k;
    (void)state;
    memset(o, 0, sizeof o);
    open_play(3);
    for (k = 0; k < 3; k++) {
        gpusync_point waits = at(s.a, k), signals = at(s.a, k + 1);
        submit_work(k, 1, k ? &waits : NULL, &signals);
        on_done(s.q[k], works[k].ticket, &o[k]);
    }
    lose();
    assert_ok(gpusync_timeline_signal(s.b, 1));
    sleep_until_given_up(&works[2], give_up);
    for (k = 0; k < 3; k++) {
        assert_given_up(&works[k]);
        assert_ended(&o[k], GPUSYNC_ERROR_DEVICE_LOST);
    }
    assert_result(gpusync_timeline_wait(s.a, 3, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    for (k = 0; k < 3; k++) finish(&s, k);
    for (k = 0; k < 3; k++) assert_given_up(&works[k]);
    close_play();
}

/* -- timelines ----------------------------------------------------------------------------------------------------- */

static void test_a_wait_for_a_value_goes_on_until_the_timeline_fails(void **state)
{
    gpusync_wait_options options;
    gpusync_point value;
    outcome o = {0}, behind = {0};
    (void)state;
    open_play(1);
    value = at(s.a, 1);
    submit_work(0, 1, NULL, &value);
    on_value(s.a, 1, &o);
    options = options_with(NULL);
    WHILE_IT_SLEEPS({lose, false}, {sweep, false}, {give_up, true});
    assert_result(gpusync_timeline_wait(s.a, 1, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
    assert_result(last_error.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_timeline_wait(s.a, 1, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    on_value(s.a, 1, &behind);
    assert_ended(&behind, GPUSYNC_ERROR_DEVICE_LOST);
    finish(&s, 0);
    assert_result(gpusync_timeline_wait(s.a, 1, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST); /* though it has come */
    assert_int_equal(calls_of(&o), 1);
    close_play();
}

static void test_a_value_that_comes_in_the_second_is_reached(void **state)
{
    gpusync_point value;
    outcome o = {0};
    (void)state;
    open_play(1);
    value = at(s.a, 1);
    submit_work(0, 1, NULL, &value);
    on_value(s.a, 1, &o);
    WHILE_IT_SLEEPS({lose, false}, {sweep, false}, {finish_0, true});
    assert_ok(gpusync_timeline_wait(s.a, 1, GPUSYNC_FOREVER, NULL));
    assert_played();
    assert_ended(&o, GPUSYNC_OK);
    give_up();
    assert_ok(through(&works[0], 0));
    close_play();
}

/* A poll hears of it, too, whoever was to signal: nobody waits. */
static void test_every_timeline_that_has_not_failed_fails_at_the_second(void **state)
{
    gpusync_error reason = {.result = GPUSYNC_ERROR_CANCELLED};
    uint64_t value, base;
    void *own, *theirs;
    gpusync_timeline *imported;
    (void)state;
    open_play(1);
    share_timeline(&s, 2);
    imported = timeline_over(s.device, &theirs);
    assert_ok(gpusync_timeline_signal(s.a, 5));
    assert_ok(gpusync_timeline_fail(s.b, &reason));
    metal_event_signal(theirs, 3);
    lose();
    assert_ok(gpusync_timeline_signal(s.a, 6)); /* by the host, as before */
    assert_ok(gpusync_timeline_signal(s.d, 1));
    assert_ok(gpusync_timeline_query(imported, &value));
    assert_int_equal(value, 3);
    own = gpusync_timeline_metal(s.a, &base);
    assert_int_equal(metal_event_value(own), 6 + base);
    give_up();
    assert_result(gpusync_timeline_query(s.a, &value), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_timeline_query(s.b, &value), GPUSYNC_ERROR_CANCELLED); /* its first failure */
    assert_result(gpusync_timeline_query(s.c, &value), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_timeline_query(s.d, &value), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_timeline_query(imported, &value), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_timeline_signal(s.a, 7), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_timeline_fail(s.a, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_timeline_wait(s.a, 5, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST); /* though it was reached */
    assert_true(metal_event_value(own) == UINT64_MAX);
    assert_true(metal_event_value(gpusync_timeline_metal(s.c, NULL)) == UINT64_MAX);
    assert_int_equal(metal_event_value(theirs), 3); /* others have it: it is not written */
    metal_event_signal(theirs, 9);
    assert_result(gpusync_timeline_wait(imported, 9, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_ok(gpusync_timeline_destroy(imported));
    metal_release(theirs);
    close_play();
}

/* The loss has been told, and all queues are gone, before the second look: it is the timelines' turn all the same. */
static void test_of_a_device_without_a_queue_the_timelines_fail_at_the_second(void **state)
{
    uint64_t first, value;
    unsigned i;
    (void)state;
    open_play(1);
    lose_and_note_the_time();
    first = look_at(behind_the_loss + LOOK);
    for (i = 0; i <= culprit; i++) {
        assert_ok(gpusync_queue_destroy(s.q[i]));
        s.q[i] = NULL;
    }
    assert_ok(gpusync_timeline_query(s.a, &value));
    (void)look_at(first + LOOK);
    assert_result(gpusync_timeline_query(s.a, &value), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(softmetal_timers(), 0); /* nothing is to come */
    close_play();
}

/* A signal that an open command buffer has encoded fails with its timeline. */
static void test_a_signal_of_an_open_command_buffer_fails_with_its_timeline(void **state)
{
    void *buffer;
    (void)state;
    NOT_ON_METAL4("its command buffers encode no signals");
    open_play(1);
    buffer = buffer_of(s.q[0]);
    assert_ok(gpusync_encode_signal(s.q[0], buffer, at(s.a, 1)));
    lose();
    WHILE_IT_SLEEPS({give_up, true});
    assert_result(gpusync_timeline_wait(s.a, 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_played();
    assert_ok(either_discard(s.q[0], buffer));
    close_play();
}

/* -- destroy -------------------------------------------------------------------------------------------------------- */

/* What a destroyed queue has left on the GPU ends then. */
static void take_down_with_work(unsigned i, bool now)
{
    void *metal = metal_retain(s.metal[i]);
    take_down_queue(&s, i, now);
    softmetal_finish_queue(metal);
    metal_release(metal);
}

/* While destroy waits for the work of a lost device: the second passes, or the work ends. It may park before that,
   until other threads have left the queue: then this wakes it for no reason. */
static struct {
    void (*act)(void);
    bool acted;
} amid_destroy;

static void act_amid_destroy(void)
{
    if (amid_destroy.acted) {
        thread_unpark(plan.waiter);
        return;
    }
    amid_destroy.acted = true;
    amid_destroy.act();
}

static void destroy_while_the_second_passes(unsigned i, void (*act)(void))
{
    static const step none[1] = {{nothing, false}};
    amid_destroy.act = act;
    amid_destroy.acted = false;
    set_plan(none, 0, false);
    plan.more = act_amid_destroy;
    assert_ok(gpusync_queue_destroy(s.q[i]));
    end_plan();
    assert_true(amid_destroy.acted);
    s.q[i] = NULL;
}

/* Threads whose waits destroy ends, before the second has passed. */
static pthread_t leaving[2];
static unsigned leaving_count;

static void join_those_who_leave(void)
{
    while (leaving_count > 0) join(leaving[--leaving_count]);
}

static void join_and_give_up(void)
{
    join_those_who_leave();
    give_up();
}

static void destroy_and_give_up(unsigned i, bool now)
{
    void *metal = metal_retain(s.metal[i]);
    if (now) take_down_queue(&s, i, true);
    else destroy_while_the_second_passes(i, join_and_give_up);
    join_those_who_leave();
    softmetal_finish_queue(metal);
    metal_release(metal);
}

static void test_destroying_the_queue_ends_the_wait_on_a_lost_device(void **state)
{
    wait_job jobs[2];
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    int now;
    (void)state;
    for (now = 0; now < 2; now++) {
        work all;
        open_play(1);
        all = *commit_work(0);
        all.ticket = GPUSYNC_EVERYTHING;
        start_through(&jobs[0], &works[0], &options);
        start_through(&jobs[1], &all, NULL);
        await_sleepers(s.device, 2);
        lose();
        must_return_within(20);
        for (leaving_count = 0; leaving_count < 2; leaving_count++) leaving[leaving_count] = jobs[leaving_count].thread;
        destroy_and_give_up(0, now);
        has_returned();
        assert_result(jobs[0].result, GPUSYNC_ERROR_DESTROYED);
        assert_result(jobs[1].result, GPUSYNC_ERROR_DESTROYED);
        assert_result(error.result, GPUSYNC_ERROR_DESTROYED);
        close_play();
    }
}

/* It takes no second at all, and the work ends as destroyed, not as lost. */
static void test_destroying_the_queue_of_a_lost_device_now_ends_its_work_as_destroyed(void **state)
{
    outcome o = {0};
    (void)state;
    open_play(1);
    commit_work(0);
    on_done(s.q[0], works[0].ticket, &o);
    lose();
    take_down_with_work(0, true);
    assert_ended(&o, GPUSYNC_ERROR_DESTROYED);
    close_play();
}

/* It takes no room, and no call looks at its queue. */
static void test_held_work_without_command_buffers_ends_with_the_loss(void **state)
{
    outcome o = {0};
    gpusync_ticket ticket;
    (void)state;
    NOT_ON_METAL4("a submission has command buffers there");
    open_play(1);
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)), .flags = GPUSYNC_STRICT);
    on_done(s.q[0], ticket, &o);
    assert_int_equal(stats_of(s.q[0]).held, 1);
    lose();
    assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
    close_play();
}

/* Also what stands behind a ticket that has ended. */
static void test_destroying_the_queue_now_ends_all_that_has_not_ended(void **state)
{
    outcome o[2] = {{0}, {0}};
    int i;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    open_play(1);
    for (i = 0; i < 3; i++) commit_work(0);
    on_done(s.q[0], works[0].ticket, &o[0]);
    on_done(s.q[0], works[2].ticket, &o[1]);
    lose();
    complete_work(&works[1]);
    assert_ok(gpusync_poll(s.q[0], works[1].ticket));
    take_down_with_work(0, true);
    assert_ended(&o[0], GPUSYNC_ERROR_DESTROYED);
    assert_ended(&o[1], GPUSYNC_ERROR_DESTROYED);
    close_play();
}

/* It does not take the second when the work ends. */
static void test_destroying_the_queue_of_a_lost_device_waits_until_the_work_ends(void **state)
{
    outcome o = {0};
    (void)state;
    open_play(1);
    commit_work(0);
    on_done(s.q[0], works[0].ticket, &o);
    lose();
    must_return_within(20);
    destroy_while_the_second_passes(0, finish_0);
    has_returned();
    assert_ended(&o, GPUSYNC_OK);
    close_play();
}

static void destroy_in_the_second(bool submits)
{
    outcome o = {0}, own = {0};
    void *object, *metal;
    long before;
    open_play(1);
    if (submits) (void)(work_new(0)->ticket = SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), TELL(&own)));
    else commit_work(0);
    on_done(s.q[0], works[0].ticket, &o);
    object = memory_of(&s, 16);
    assert_ok(gpusync_release_after(point_of(&works[0]), object));
    metal = metal_retain(s.metal[0]);
    lose();
    must_return_within(20);
    destroy_while_the_second_passes(0, give_up);
    has_returned();
    before = calls_of(&o) + calls_of(&own);
    assert_int_equal(owners_of(object), 1); /* released */
    metal_release(object);
    softmetal_finish_queue(metal);
    metal_release(metal);
    close_play();
    assert_int_equal(before, submits ? 2 : 1);
    assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
    if (submits) assert_ended(&own, GPUSYNC_ERROR_DEVICE_LOST);
}

static void test_destroying_the_queue_of_a_lost_device_waits_until_a_commit_is_given_up(void **state)
{
    (void)state;
    destroy_in_the_second(false);
}

static void test_destroying_the_queue_of_a_lost_device_waits_until_a_submission_is_given_up(void **state)
{
    (void)state;
    destroy_in_the_second(true);
}

/* As on a device that is not lost. */
static void test_destroying_the_queue_of_a_lost_device_cancels_what_was_never_committed(void **state)
{
    outcome o = {0};
    (void)state;
    NOT_ON_METAL4("no track");
    open_play(1);
    on_done(s.q[0], track_work(0)->ticket, &o);
    lose();
    must_return_within(20);
    take_down_queue(&s, 0, false);
    has_returned();
    assert_ended(&o, GPUSYNC_ERROR_CANCELLED);
    close_play();
}

/* What Metal's own wait waits for keeps destroy, though it was given up. */
static void test_a_blocking_wait_delays_destroy_though_its_work_was_given_up(void **state)
{
    gpusync_wait_options options = {.blocking = true};
    uint64_t before;
    wait_job job;
    (void)state;
    NOT_ON_METAL4("no waitUntilCompleted");
    open_play(1);
    commit_work(0);
    before = softmetal_message_count("waitUntilCompleted");
    start_through(&job, &works[0], &options);
    await_blocked(before);
    lose();
    give_up();
    must_return_within(20);
    destroy_while_the_second_passes(0, finish_0);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
    has_returned();
    close_play();
}

/* What was given up keeps destroy no more. */
static void test_destroying_the_queue_behind_the_giving_up_does_not_wait(void **state)
{
    void *metal;
    (void)state;
    open_play(1);
    commit_work(0);
    submit_work(0, 2, NULL, NULL);
    lose();
    give_up();
    metal = metal_retain(s.metal[0]);
    must_return_within(20);
    WHILE_IT_SLEEPS({nothing, false});
    take_down_queue(&s, 0, false);
    assert_int_equal(plan.done, 0); /* it has not slept */
    end_plan();
    has_returned();
    softmetal_finish_queue(metal);
    metal_release(metal);
    close_play();
}

static void count_one(void *user) { COUNT((long *)user); }

typedef struct group_job {
    gpusync_point points[2];
    size_t which;
    gpusync_result result;
    pthread_t thread;
} group_job;

static void *wait_for_both(void *argument)
{
    group_job *job = (group_job *)argument;
    job->result =
        gpusync_wait_many(job->points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &job->which);
    return NULL;
}

static void *wait_for_the_device(void *argument)
{
    group_job *job = (group_job *)argument;
    job->result = gpusync_device_wait(s.device, GPUSYNC_FOREVER, NULL);
    return NULL;
}

static void test_destroying_one_queue_ends_a_wait_for_points_of_two(void **state)
{
    group_job job;
    int now;
    (void)state;
    for (now = 0; now < 2; now++) {
        open_play(2);
        job.points[0] = point_of(commit_work(0));
        job.points[1] = point_of(commit_work(1));
        job.thread = start(wait_for_both, &job);
        await_sleepers(s.device, 2);
        lose();
        must_return_within(20);
        leaving[0] = job.thread;
        leaving_count = 1;
        destroy_and_give_up(1, now);
        has_returned();
        assert_result(job.result, GPUSYNC_ERROR_DESTROYED);
        assert_int_equal(job.which, 1);
        close_play();
    }
}

static void test_a_queue_that_is_destroyed_is_left_out_of_a_wait_for_the_device(void **state)
{
    group_job job;
    int now;
    (void)state;
    for (now = 0; now < 2; now++) {
        open_play(2);
        commit_work(0);
        commit_work(1);
        job.thread = start(wait_for_the_device, &job);
        await_sleepers(s.device, 1);
        lose();
        must_return_within(20);
        if (now) take_down_with_work(0, true);
        else destroy_while_the_second_passes(0, finish_0);
        await_sleepers(s.device, 1); /* for the other queue */
        finish_work(&works[1]);
        join(job.thread);
        has_returned();
        assert_result(job.result, GPUSYNC_ERROR_DEVICE_LOST);
        close_play();
    }
}

static void test_destroying_the_queue_later_ends_the_wait_on_a_lost_device(void **state)
{
    int ends;
    (void)state;
    for (ends = 0; ends < 2; ends++) {
        wait_job job;
        outcome o = {0};
        void *metal;
        long gone = 0;
        open_play(1);
        commit_work(0);
        on_done(s.q[0], works[0].ticket, &o);
        start_through(&job, &works[0], NULL);
        await_sleepers(s.device, 1);
        lose();
        must_return_within(20);
        metal = metal_retain(s.metal[0]);
        assert_ok(gpusync_queue_destroy_later(s.q[0], count_one, &gone));
        s.q[0] = NULL;
        assert_result(wait_job_join(&job), GPUSYNC_ERROR_DESTROYED);
        if (ends) finish_0();
        else give_up();
        while (!GET(&gone)) sched_yield();
        has_returned();
        assert_ended(&o, ends ? GPUSYNC_OK : GPUSYNC_ERROR_DEVICE_LOST);
        softmetal_finish_queue(metal);
        metal_release(metal);
        assert_int_equal(CALLED(gone), 1);
        close_play();
    }
}

/* The work is over before destroy has let the waiter out: that counts. */
static void test_what_is_over_when_the_queue_is_destroyed_keeps_its_result(void **state)
{
    wait_job job;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_play(1);
    commit_work(0);
    start_through(&job, &works[0], NULL);
    await_sleepers(s.device, 1);
    lose();
    must_return_within(20);
    complete_work(&works[0]);
    take_down_with_work(0, false);
    assert_ok(wait_job_join(&job));
    has_returned();
    close_play();
}

/* ... though its handler has not come. */
static void test_on_a_lost_device_a_wait_for_what_has_ended_sends_no_message(void **state)
{
    uint64_t before;
    (void)state;
    open_play(1);
    commit_work(0);
    commit_work(0);
    lose();
    show_end(works[0].buffers[0]);
    assert_ok(gpusync_poll(s.q[0], works[0].ticket));
    before = softmetal_thread_messages();
    assert_ok(gpusync_wait(s.q[0], works[0].ticket, GPUSYNC_FOREVER));
    assert_int_equal(softmetal_thread_messages() - before, 0);
    close_play();
}

/* -- more losses ---------------------------------------------------------------------------------------------------- */

static void take_the_device_again(void)
{
    softmetal_fail(works[1].buffers[0], NULL, metal4_run() ? 5 : 4, NULL); /* AccessRevoked */
    finish_work(&works[1]);
    softmetal_fail(works[2].buffers[0], NULL, metal4_run() ? 4 : 11, NULL);
    finish_work(&works[2]);
}

static void test_a_device_that_is_lost_twice_is_gone_through_once(void **state)
{
    (void)state;
    open_play(2);
    commit_work(0);
    commit_work(1);
    commit_work(0);
    WHILE_IT_SLEEPS({lose, false}, {take_the_device_again, false}, {finish_0, true});
    assert_ok(through(&works[0], GPUSYNC_FOREVER));
    assert_played();
    assert_int_equal(loss_lines, 1);
    assert_result(through(&works[1], 0), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(last_error.failure, GPUSYNC_FAILURE_ACCESS_REVOKED);
    assert_result(through(&works[2], 0), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(last_error.failure, GPUSYNC_FAILURE_DEVICE_REMOVED);
    assert_result(through_all(0, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(through_all(1, 0), GPUSYNC_ERROR_DEVICE_LOST);
    close_play();
}

/* The second loss does not begin another second; and it changes nothing behind the first. */
static void test_a_second_loss_changes_nothing(void **state)
{
    uint64_t first;
    (void)state;
    open_play(2);
    commit_work(0);
    commit_work(1);
    commit_work(1);
    lose_and_note_the_time();
    first = look_at(behind_the_loss + LOOK);
    softmetal_fail(works[1].buffers[0], NULL, metal4_run() ? 5 : 4, NULL); /* AccessRevoked */
    finish_work(&works[1]);
    assert_int_equal(softmetal_timers(), 1);
    (void)look_at(first + LOOK);
    assert_given_up(&works[0]);
    assert_given_up(&works[2]);
    assert_result(through(&works[1], 0), GPUSYNC_ERROR_EXECUTION);
    softmetal_fail(works[2].buffers[0], NULL, metal4_run() ? 5 : 4, NULL);
    finish_work(&works[2]);
    assert_given_up(&works[2]);
    assert_int_equal(softmetal_timers(), 0);
    assert_int_equal(loss_lines, 1);
    close_play();
}

/* -- where a failure sticks ------------------------------------------------------------------------------------------- */

static void open_sticky_play(void)
{
    gpusync_queue_desc desc;
    open_play(1);
    memset(&desc, 0, sizeof desc);
    desc.sticky_failure = true;
    s.q[2] = queue_of_kind(QUEUE_OF_GPUSYNC, s.device, &desc);
    s.metal[2] = gpusync_queue_metal(s.q[2]);
}

static work *commit_or_submit(bool submits) { return submits ? submit_work(2, 1, NULL, NULL) : commit_work(2); }

/* Tickets end in any order: what ended well before the failure was found stays well. */
static void test_with_sticky_failure_a_ticket_is_over_with_its_own_command_buffers(void **state)
{
    int submits;
    (void)state;
    for (submits = 0; submits < 2; submits++) {
        work *first, *second;
        open_sticky_play();
        first = commit_work(2);
        second = commit_or_submit(submits);
        lose();
        assert_result(through(second, 0), GPUSYNC_TIMEOUT);
        finish_work(second);
        assert_ok(through(second, 0));
        assert_result(through(first, 0), GPUSYNC_TIMEOUT);
        fail_work(first, "it sticks");
        finish_work(first);
        assert_result(through(first, 0), GPUSYNC_ERROR_EXECUTION);
        assert_ok(through(second, 0));
        close_play();
    }
}

/* What ends well after that takes the error, on a lost device, too. */
static void test_with_sticky_failure_a_ticket_that_ends_later_takes_the_error(void **state)
{
    int submits;
    (void)state;
    for (submits = 0; submits < 2; submits++) {
        work *first, *second;
        open_sticky_play();
        first = commit_work(2);
        second = commit_or_submit(submits);
        lose();
        fail_work(first, "it sticks");
        finish_work(first);
        assert_result(through(first, 0), GPUSYNC_ERROR_EXECUTION);
        assert_result(through(second, 0), GPUSYNC_TIMEOUT);
        finish_work(second);
        assert_result(through(second, 0), GPUSYNC_ERROR_EXECUTION);
        assert_string_equal(last_error.message, "it sticks");
        close_play();
    }
}

/* -- every place of a wait -------------------------------------------------------------------------------------------- */

static bool place_is_past;

static void come_to_the_place(void (*act)(void))
{
    place_is_past = true;
    act();
}
static void lose_at_the_place(void *argument) { (void)argument, come_to_the_place(lose); }
static void finish_at_the_place(void *argument) { (void)argument, come_to_the_place(finish_0); }

static void finish_unless_past(void)
{
    if (place_is_past) return;
    (void)probe_has_acted();
    finish_0();
}

static void test_the_loss_may_come_at_any_place_of_the_wait(void **state)
{
    int place = 0, acted = 0;
    (void)state;
    do {
        place_is_past = false;
        open_play(1);
        commit_work(0);
        WHILE_IT_SLEEPS({finish_0, true});
        probe_at_each(++place, lose_at_the_place, NULL);
        assert_ok(through(&works[0], GPUSYNC_FOREVER));
        assert_played();
        (void)probe_has_acted();
        acted += place_is_past;
        close_play();
    } while (place_is_past);
    assert_true(acted > 3);
}

static void test_the_end_may_come_at_any_place_of_a_wait_on_a_lost_device(void **state)
{
    int place = 0, acted = 0;
    (void)state;
    do {
        place_is_past = false;
        open_play(1);
        commit_work(0);
        lose();
        WHILE_IT_SLEEPS({finish_unless_past, true});
        probe_at_each(++place, finish_at_the_place, NULL);
        assert_ok(through(&works[0], GPUSYNC_FOREVER));
        end_plan();
        (void)probe_has_acted();
        acted += place_is_past;
        close_play();
    } while (place_is_past);
    assert_true(acted > 3);
}

static void give_up_at_the_place(void *argument) { (void)argument, come_to_the_place(give_up); }

static void give_up_unless_past(void)
{
    if (place_is_past) return;
    (void)probe_has_acted();
    give_up();
}

static void test_the_work_may_be_given_up_at_any_place_of_the_wait(void **state)
{
    int kind, place, acted = 0;
    (void)state;
    for (kind = 0; kind < 4; kind++) {
        place = 0;
        do {
            gpusync_result result;
            place_is_past = false;
            open_play(1);
            if (kind == 1) submit_work(0, 1, NULL, NULL);
            else commit_work(0);
            lose();
            WHILE_IT_SLEEPS({give_up_unless_past, true});
            probe_at_each(++place, give_up_at_the_place, NULL);
            result = kind == 2   ? gpusync_timeline_wait(s.a, 1, GPUSYNC_FOREVER, NULL)
                     : kind == 3 ? through_many(1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER)
                                 : through(&works[0], GPUSYNC_FOREVER);
            end_plan();
            (void)probe_has_acted();
            assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
            acted += place_is_past;
            close_play();
        } while (place_is_past);
    }
    assert_true(acted > 3);
}

/* A callback is registered, and told once, on whichever side of the giving up. */
static void test_the_work_may_be_given_up_at_any_place_of_a_registration(void **state)
{
    int of_value, place;
    (void)state;
    for (of_value = 0; of_value < 2; of_value++) {
        place = 0;
        do {
            outcome o = {0};
            place_is_past = false;
            open_play(1);
            commit_work(0);
            lose();
            probe_at_each(++place, give_up_at_the_place, NULL);
            if (of_value) on_value(s.a, 1, &o);
            else on_done(s.q[0], works[0].ticket, &o);
            (void)probe_has_acted();
            if (!place_is_past) give_up();
            assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
            close_play();
        } while (place_is_past);
        assert_true(place > 2);
    }
}

static void ask_all(void)
{
    gpusync_result poll = poll_of(&works[0]), signal = gpusync_timeline_signal(s.a, 1);
    assert_true(poll == GPUSYNC_NOT_READY || poll == GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(signal == GPUSYNC_OK || signal == GPUSYNC_ERROR_DEVICE_LOST);
}
static void ask_all_at_the_place(void *argument) { (void)argument, come_to_the_place(ask_all); }
static void finish_all_at_the_place(void *argument) { (void)argument, come_to_the_place(finish_0); }

/* The end of the work, or questions, come at any place of the giving up. */
static void test_the_end_may_come_at_any_place_of_the_giving_up(void **state)
{
    int kind, place;
    (void)state;
    for (kind = 0; kind < 4; kind++) {
        place = 0;
        do {
            gpusync_point signal;
            gpusync_result result;
            outcome o = {0};
            place_is_past = false;
            open_play(1);
            signal = at(s.b, 1);
            if (kind & 1) submit_work(0, 2, NULL, &signal);
            else commit_work(0);
            on_done(s.q[0], works[0].ticket, &o);
            lose();
            probe_at_each(++place, kind & 2 ? ask_all_at_the_place : finish_all_at_the_place, NULL);
            give_up();
            (void)probe_has_acted();
            result = poll_of(&works[0]);
            if (kind & 2) assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
            else assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DEVICE_LOST);
            assert_ended(&o, result);
            assert_result(info_of(&works[0]), result);
            finish(&s, 0);
            assert_result(poll_of(&works[0]), result);
            assert_int_equal(calls_of(&o), 1);
            close_play();
        } while (place_is_past);
        assert_true(place > 3);
    }
}

static struct {
    void *buffer; /* open, of the first queue */
    unsigned given_up;
} behind_the_end;

/* Behind the giving up no work enters the queue: it would never end. */
static void give_up_and_commit(void)
{
    gpusync_ticket ticket;
    give_up();
    if (!probe_is_given_up(s.q[0])) return;
    behind_the_end.given_up++;
    must(either_commit(s.q[0], behind_the_end.buffer, &ticket) == GPUSYNC_ERROR_DEVICE_LOST,
         "work entered a queue that was given up");
}
static void give_up_and_commit_at_the_place(void *argument)
{
    (void)argument, come_to_the_place(give_up_and_commit);
}

/* A thread stands still while it tells of the loss. Sweeps that have another reason to come are looks, too, and may
   give up a queue that has not heard of the loss. */
static void test_the_giving_up_may_come_at_any_place_of_the_loss(void **state)
{
    int place = 0;
    (void)state;
    behind_the_end.given_up = 0;
    do {
        outcome o = {0};
        place_is_past = false;
        open_play(1);
        commit_work(0);
        on_done(s.q[0], works[0].ticket, &o); /* the sweep's reason to come */
        behind_the_end.buffer = buffer_of(s.q[0]);
        probe_at_each(++place, give_up_and_commit_at_the_place, NULL);
        lose();
        (void)probe_has_acted();
        if (!probe_is_given_up(s.q[0])) give_up();
        assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
        assert_given_up(&works[0]);
        close_play();
    } while (place_is_past);
    assert_true(place > 3 && behind_the_end.given_up > 2);
}

static gpusync_result destroyed;
static bool destroy_is_over;
static pthread_t destroyer;

static void *destroy_the_first(void *unused)
{
    (void)unused;
    destroyed = gpusync_queue_destroy(s.q[0]);
    PUT(&destroy_is_over, true);
    return NULL;
}

/* The destroy has begun; a wait inside Metal keeps the queue. The question takes no lock. */
static void destroy_at_the_place(void *unused)
{
    const gpusync_ticket none = (gpusync_ticket)1 << 40;
    (void)unused;
    destroyer = start(destroy_the_first, NULL);
    while (gpusync_poll(s.q[0], none) != GPUSYNC_ERROR_DESTROYED) sched_yield();
    PUT(&place_is_past, true);
}

/* ... for whoever sleeps until then. */
static void let_time_pass(void)
{
    PUT(&clock_now, GET(&clock_now) + MS(1));
    pthread_mutex_lock(&asleep.lock);
    pthread_cond_broadcast(&asleep.permit);
    pthread_mutex_unlock(&asleep.lock);
    sched_yield();
}

/* A destroy begins at any place of the giving up, also in the midst of a step. What is kept for it is then no longer kept, and
   nothing of it goes while the thread that gives up holds a lock. The last kind is work that its owner has not committed. */
static void test_a_destroy_may_begin_at_any_place_of_the_giving_up(void **state)
{
    gpusync_wait_options options = {.blocking = true};
    int kind, place;
    (void)state;
    NOT_ON_METAL4("no waitUntilCompleted");
    for (kind = 0; kind < 3; kind++) {
        place = 0;
        do {
            work *w;
            uint64_t before;
            outcome o = {0};
            void *object, *metal;
            wait_job job;
            open_play(1);
            commit_work(0);
            w = kind == 0 ? commit_work(0) : kind == 1 ? submit_work(0, 1, NULL, NULL) : track_work(0);
            object = memory_of(&s, 16);
            assert_ok(gpusync_release_after(point_of(w), object));
            on_done(s.q[0], w->ticket, &o);
            before = softmetal_message_count("waitUntilCompleted");
            start_through(&job, &works[0], &options);
            await_blocked(before);
            lose();
            metal = metal_retain(s.metal[0]);
            must_return_within(20);
            PUT(&place_is_past, false);
            PUT(&destroy_is_over, false);
            probe_amid_each(++place, destroy_at_the_place, NULL);
            give_up();
            assert_true(softmetal_dispatched(SECONDS(20)));
            while (probe_has_acted() && !GET(&place_is_past)) sched_yield(); /* it may be another thread that is there */
            if (!GET(&place_is_past)) destroyer = start(destroy_the_first, NULL);
            finish_0();
            (void)wait_job_join(&job);
            while (!GET(&destroy_is_over)) let_time_pass();
            join(destroyer);
            has_returned();
            assert_ok(destroyed);
            s.q[0] = NULL;
            assert_int_equal(owners_of(object), 1);
            metal_release(object);
            assert_int_equal(calls_of(&o), 1);
            assert_true(o.result == GPUSYNC_ERROR_DEVICE_LOST || (kind == 2 && o.result == GPUSYNC_ERROR_CANCELLED));
            softmetal_finish_queue(metal);
            metal_release(metal);
            close_play();
        } while (GET(&place_is_past));
        assert_true(place > 3);
    }
}

static void finish_first(void) { finish_work(&works[0]); }
static void finish_first_at_the_place(void *argument) { (void)argument, come_to_the_place(finish_first); }

/* Such a queue looks at more when a ticket ends, which may be while the wait asks for it. */
static void test_with_sticky_failure_the_end_may_come_at_any_place_of_the_wait(void **state)
{
    int place = 0;
    (void)state;
    do {
        gpusync_result result;
        place_is_past = false;
        open_sticky_play();
        commit_work(2);
        lose();
        probe_at_each(++place, finish_first_at_the_place, NULL);
        result = through(&works[0], 0);
        (void)probe_has_acted();
        assert_true(result == GPUSYNC_OK || result == GPUSYNC_TIMEOUT);
        if (!place_is_past) finish_first();
        assert_ok(through(&works[0], 0));
        close_play();
    } while (place_is_past);
    assert_true(place > 2);
}

static gpusync_result at_the_place;

static void ask_for_the_first(void) { at_the_place = gpusync_wait(works[0].queue, works[0].ticket, 0); }
static void ask_at_the_place(void *argument) { (void)argument, come_to_the_place(ask_for_the_first); }

/* A thread is about to end the ticket: the wait goes on, and does not say that the result is unknown. */
static void test_with_sticky_failure_a_wait_may_come_at_any_place_of_the_end(void **state)
{
    int place = 0;
    (void)state;
    do {
        place_is_past = false;
        open_sticky_play();
        commit_work(2);
        lose();
        at_the_place = GPUSYNC_OK;
        probe_at_each(++place, ask_at_the_place, NULL);
        finish_first();
        (void)probe_has_acted();
        assert_true(at_the_place == GPUSYNC_OK || at_the_place == GPUSYNC_TIMEOUT);
        assert_ok(through(&works[0], 0));
        close_play();
    } while (place_is_past);
    assert_true(place > 3);
}

static void untrack_first(void) { (void)gpusync_untrack(works[0].queue, works[0].ticket); }
static void untrack_at_the_place(void *argument) { (void)argument, come_to_the_place(untrack_first); }

static void test_a_tracked_buffer_may_be_untracked_at_any_place_of_the_wait(void **state)
{
    int place = 0;
    (void)state;
    NOT_ON_METAL4("no track");
    do {
        gpusync_result result;
        place_is_past = false;
        open_play(1);
        track_work(0);
        lose();
        probe_at_each(++place, untrack_at_the_place, NULL);
        result = through(&works[0], 0);
        (void)probe_has_acted();
        assert_true(result == GPUSYNC_TIMEOUT || result == GPUSYNC_ERROR_CANCELLED);
        if (!place_is_past) untrack_first();
        assert_result(through(&works[0], 0), GPUSYNC_ERROR_CANCELLED);
        close_play();
    } while (place_is_past);
    assert_true(place > 2);
}

/* -- at the moment of the loss ---------------------------------------------------------------------------------------- */

/* A wait that sleeps when the device is lost. The log function holds the thread that has found the loss until the sleeper
   has returned or sleeps again. */
static struct {
    wait_job job;
} woken;

static void *note_the_return(void *argument)
{
    (void)wait_job_body(&woken.job);
    PUT(&sleeper_returned, true);
    return argument;
}

static void start_to_be_woken(const work *w)
{
    memset(&woken, 0, sizeof woken);
    PUT(&sleeper_returned, false);
    woken.job.queue = w->queue;
    woken.job.ticket = w->ticket;
    woken.job.timeout_ns = GPUSYNC_FOREVER;
    woken.job.options = NULL;
    woken.job.thread = start(note_the_return, NULL);
    await_sleepers(s.device, 1);
}

static void wait_for_the_woken(void *user, gpusync_log_level level, const char *text)
{
    (void)user, (void)level;
    while (strstr(text, "device lost") && !GET(&sleeper_returned) && !sleepers_of(s.device)) sched_yield();
}

static void test_a_sleeper_for_held_work_is_woken_by_the_loss(void **state)
{
    (void)state;
    open_play_logging(1, SOFTMETAL_MANUAL, wait_for_the_woken);
    hold_work(0);
    start_to_be_woken(&works[0]);
    lose();
    must_return_within(20);
    join(woken.job.thread);
    has_returned();
    close_play();
    assert_result(woken.job.result, GPUSYNC_ERROR_DEVICE_LOST);
}

static void test_a_sleeper_for_the_submission_that_took_the_device_with_it_returns_its_error(void **state)
{
    (void)state;
    open_play_logging(1, SOFTMETAL_MANUAL, wait_for_the_woken);
    submit_work(0, 1, NULL, NULL);
    fail_with_the_device(works[0].buffers[0]);
    start_to_be_woken(&works[0]);
    finish_work(&works[0]);
    must_return_within(20);
    join(woken.job.thread);
    has_returned();
    close_play();
    assert_result(woken.job.result, GPUSYNC_ERROR_EXECUTION);
}

/* The wait ends with the failure that tells of the loss, before any queue has been told. */
static void test_a_sleeper_for_everything_that_the_culprit_wakes_returns_device_lost(void **state)
{
    work all;
    (void)state;
    open_play(1);
    all = *commit_work(0);
    all.ticket = GPUSYNC_EVERYTHING;
    fail_with_the_device(works[0].buffers[0]);
    start_to_be_woken(&all);
    must_return_within(20);
    PUT(&waker_waits, true);
    finish_work(&works[0]);
    PUT(&waker_waits, false);
    join(woken.job.thread);
    has_returned();
    close_play();
    assert_result(woken.job.result, GPUSYNC_ERROR_DEVICE_LOST);
}

/* The thread that issues held work is about to encode its wait when another thread finds the loss. A wait begins then. */
static struct {
    bool asked, said_over;
    gpusync_result result;
} amid_issue;

static void *wait_amid_issue(void *argument)
{
    amid_issue.result = gpusync_wait(works[0].queue, works[0].ticket, 0);
    amid_issue.said_over = says_over(&works[0], amid_issue.result);
    return argument;
}

static void lose_amid_issue(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user, (void)object;
    if (phase != SOFTMETAL_BEFORE || amid_issue.asked ||
        (strcmp(selector, "encodeWaitForEvent:value:") != 0 && strcmp(selector, "waitForEvent:value:") != 0))
        return;
    amid_issue.asked = true;
    finish_work(&works[1]);
    join(start(wait_amid_issue, NULL)); /* this thread has the queue's turn to commit */
}

static void test_held_work_that_is_being_issued_at_the_loss_is_not_over(void **state)
{
    gpusync_point value;
    bool wrong;
    (void)state;
    memset(&amid_issue, 0, sizeof amid_issue);
    open_play(2);
    value = at(s.a, 1);
    submit_work(0, 1, &value, NULL);
    assert_false(gpu_has_work(&works[0]));
    fail_with_the_device(commit_work(culprit)->buffers[0]);
    softmetal_set_message_hook(lose_amid_issue, NULL);
    must_return_within(20);
    submit_work(1, 1, NULL, &value);
    has_returned();
    softmetal_set_message_hook(NULL, NULL);
    assert_true(amid_issue.asked);
    assert_true(gpusync_device_is_lost(s.device));
    wrong = amid_issue.said_over && gpu_has_work(&works[0]);
    finish(&s, 1); /* the other waits for it on the GPU */
    close_play();
    assert_false(wrong);
}

/* Its producer fails at each place of a wait for work whose own command buffers have ended. */
static void fail_the_chain(void) { end_the_chain(); }
static void fail_the_chain_at_the_place(void *argument) { (void)argument, come_to_the_place(fail_the_chain); }

static void open_failing_chain(void)
{
    open_chain();
    softmetal_fail(works[0].buffers[works[0].count - 1], "TestDomain", 42, "the producer");
    let_the_chain_go();
    finish_work(&works[1]);
    lose();
}

static void test_a_ticket_that_fails_at_any_place_of_the_wait_is_never_told_as_well(void **state)
{
    int place = 0, acted = 0;
    bool as_well = false;
    (void)state;
    do {
        gpusync_result result;
        place_is_past = false;
        open_failing_chain();
        probe_at_each(++place, fail_the_chain_at_the_place, NULL);
        result = through(&works[1], 0);
        (void)probe_has_acted();
        if (result == GPUSYNC_OK) as_well = true;
        else if (result != GPUSYNC_TIMEOUT) assert_result(result, GPUSYNC_ERROR_EXECUTION);
        acted += place_is_past;
        if (!place_is_past) end_the_chain();
        assert_result(through(&works[1], 0), GPUSYNC_ERROR_EXECUTION);
        close_play();
    } while (place_is_past);
    assert_true(acted > 3);
    assert_false(as_well);
}

static void test_without_memory_to_sleep_there_is_no_wait(void **state)
{
    gpusync_result result;
    (void)state;
    open_play(1);
    commit_work(0);
    lose();
    s.rig.memory.fail_at = 1;
    s.rig.memory.fail_after = true;
    result = gpusync_wait(s.q[0], works[0].ticket, GPUSYNC_FOREVER);
    s.rig.memory.fail_at = 0;
    assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY); /* which tells nothing of the work */
    assert_true(gpu_has_work(&works[0]));
    close_play();
}

/* A handler has begun, and is about to find the end of its work. Another thread asks. */
static struct {
    const work *handled, *asked_for;
    bool asked;
    gpusync_result result;
} amid_handler;

static void ask_amid_the_handler(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user, (void)selector;
    if (phase != SOFTMETAL_BEFORE || amid_handler.asked ||
        !is_asked_by_handlers(object, amid_handler.handled->buffers[0]))
        return;
    amid_handler.asked = true;
    amid_handler.result =
        gpusync_wait(amid_handler.asked_for->queue, amid_handler.asked_for->ticket, 0);
}

static void finish_and_ask_amid(const work *handled, const work *asked_for)
{
    memset(&amid_handler, 0, sizeof amid_handler);
    amid_handler.handled = handled;
    amid_handler.asked_for = asked_for;
    softmetal_set_message_hook(ask_amid_the_handler, NULL);
    finish_work(handled);
    softmetal_set_message_hook(NULL, NULL);
    assert_true(amid_handler.asked);
}

static void test_a_handler_that_is_about_to_end_the_ticket_is_waited_for(void **state)
{
    (void)state;
    open_play(1);
    commit_work(0);
    lose();
    finish_and_ask_amid(&works[0], &works[0]);
    /* The status tells, too; with Metal 4 nothing else does. */
    assert_result(amid_handler.result, metal4_run() ? GPUSYNC_TIMEOUT : GPUSYNC_OK);
    assert_ok(through(&works[0], 0));
    close_play();
}

/* -- compared with a model -------------------------------------------------------------------------------------------- */

#define MODEL_WORKS 10u
#define PENDING GPUSYNC_NOT_READY
enum { A_COMMIT, A_SUBMISSION, A_HELD_ONE, A_TRACKED_ONE, MODEL_KINDS };

/* Besides each work: what the test knows of it. The last one is the culprit. */
static struct {
    uint64_t seed;
    struct {
        int kind;
        unsigned queue;
        bool fails, committed, given_up;
        outcome told;
    } of[MODEL_WORKS + 1];
    gpusync_ticket covered[STAGE_QUEUES]; /* what waits for everything have told of, before the loss */
    unsigned idle_steps;
} model;

static unsigned any_of(unsigned count)
{
    model.seed = model.seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((model.seed >> 33) % count);
}

static bool is_over_for_metal(void *buffer)
{
    return status_of(buffer) >= COMPLETED && (!metal4_run() || softmetal_what_is_due(buffer) == SOFTMETAL_NOTHING_DUE);
}

/* How a wait for the work ends now. */
static gpusync_result model_of(unsigned k, bool lost)
{
    unsigned i;
    if (model.of[k].kind == A_HELD_ONE) return lost ? GPUSYNC_ERROR_DEVICE_LOST : PENDING;
    if (model.of[k].given_up) return GPUSYNC_ERROR_DEVICE_LOST;
    if (!model.of[k].committed) return PENDING;
    for (i = 0; i < works[k].count; i++)
        if (!is_over_for_metal(works[k].buffers[i])) return PENDING;
    return model.of[k].fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
}

static gpusync_result model_of_queue(unsigned queue, bool lost)
{
    gpusync_result result = lost ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK;
    unsigned k;
    for (k = 0; k < work_count; k++) {
        gpusync_result one = model.of[k].queue == queue ? model_of(k, lost) : GPUSYNC_OK;
        if (one == PENDING) return PENDING;
        if (one != GPUSYNC_OK && !lost && works[k].ticket > model.covered[queue]) result = GPUSYNC_ERROR_EXECUTION;
    }
    return result;
}

static gpusync_result model_of_device(bool lost)
{
    gpusync_result result = GPUSYNC_OK;
    unsigned i;
    for (i = 0; i <= culprit; i++) {
        gpusync_result one = model_of_queue(i, lost);
        if (one == PENDING) return PENDING;
        if (result == GPUSYNC_OK) result = one;
    }
    return result;
}

static gpusync_result model_of_many(unsigned first, unsigned count, gpusync_wait_for how, bool lost, size_t *at_which)
{
    bool pending = false;
    unsigned i;
    for (i = 0; i < count; i++) {
        gpusync_result one = model_of(first + i, lost);
        if (one == PENDING) pending = true;
        if (one == PENDING || (one == GPUSYNC_OK && how != GPUSYNC_WAIT_ANY)) continue;
        *at_which = i;
        return one;
    }
    *at_which = count;
    return pending ? PENDING : GPUSYNC_OK;
}

static void model_commit(unsigned k)
{
    metal_commit(works[k].buffers[0]);
    model.of[k].committed = true;
}

static void model_end(void *buffer, bool may_be_unheard)
{
    if (softmetal_what_is_due(buffer) == SOFTMETAL_HANDLERS_DUE) {
        softmetal_finish(buffer);
        return;
    }
    switch (any_of(3)) {
    case 0:
        if (may_be_unheard) softmetal_lose_handlers(buffer);
        softmetal_finish(buffer);
        break;
    case 1: softmetal_complete(buffer); break;
    default: softmetal_finish(buffer);
    }
}

/* Its two looks see first what has ended. */
static void model_give_up(void)
{
    unsigned k;
    for (k = 0; k < work_count; k++) model.of[k].given_up = model_of(k, true) == PENDING;
    give_up();
}

/* Something happens: a buffer ends, or is heard of, a tracked one is committed, a sweep comes. */
static void model_step(void)
{
    unsigned k = any_of(work_count + 1), i;
    void *buffer;
    if (gpusync_device_is_lost(s.device) && !gave_up && any_of(30) == 0) {
        model_give_up();
        return;
    }
    if (k == work_count) {
        if (softmetal_timers()) sweep();
        return;
    }
    if (k == MODEL_WORKS && any_of(4)) return; /* the culprit comes later than most */
    if (model.of[k].kind == A_TRACKED_ONE && !model.of[k].committed) {
        if (any_of(3) == 0) model_commit(k);
        return;
    }
    i = any_of(works[k].count);
    buffer = works[k].buffers[i];
    if (softmetal_what_is_due(buffer) == SOFTMETAL_NOTHING_DUE) return;
    model_end(buffer, !metal4_run());
}

/* The wait that sleeps must have been woken long before this. */
static void model_step_of_a_sleeper(void)
{
    if (++model.idle_steps > 3000) fail_msg("the wait sleeps for ever");
    model_step();
}

static void model_make(void)
{
    unsigned k;
    for (k = 0; k < MODEL_WORKS; k++) {
        int kind = (int)any_of(metal4_run() ? A_HELD_ONE + 1 : MODEL_KINDS);
        unsigned queue = any_of(culprit);
        work *w;
        model.of[k].kind = kind;
        model.of[k].queue = queue;
        model.of[k].committed = kind != A_TRACKED_ONE;
        model.of[k].fails = (kind == A_COMMIT || kind == A_SUBMISSION) && any_of(3) == 0;
        /* Held work keeps what is behind it in the line: it has a queue of its own kind. */
        if (kind == A_HELD_ONE) model.of[k].queue = queue = culprit - 1;
        else if (queue == culprit - 1) model.of[k].queue = queue = 0;
        w = kind == A_COMMIT        ? commit_work(queue)
            : kind == A_SUBMISSION  ? submit_work(queue, 1 + any_of(3), NULL, NULL)
            : kind == A_HELD_ONE    ? hold_work(queue)
                                    : track_work(queue);
        on_done(w->queue, w->ticket, &model.of[k].told);
        if (!model.of[k].fails) continue;
        if (any_of(2)) fail_work(w, "it broke");
        else softmetal_fail(w->buffers[any_of(w->count)], NULL, any_of(2) ? 11 : metal4_run() ? 5 : 4, NULL);
    }
    fail_with_the_device(commit_work(culprit)->buffers[0]);
    on_done(s.q[culprit], works[MODEL_WORKS].ticket, &model.of[MODEL_WORKS].told);
    model.of[MODEL_WORKS].kind = A_COMMIT;
    model.of[MODEL_WORKS].queue = culprit;
    model.of[MODEL_WORKS].fails = model.of[MODEL_WORKS].committed = true;
}

static gpusync_result at_the_limit(gpusync_result expected)
{
    return expected != PENDING ? expected : GPUSYNC_TIMEOUT;
}

/* A wait that finds the loss itself may have decided before or behind it. */
static void compare(gpusync_result result, gpusync_result without, gpusync_result with, bool lost_before, bool lost)
{
    without = at_the_limit(without);
    with = at_the_limit(with);
    if (!lost_before && result == without) return;
    if (lost_before == lost && !lost) assert_result(result, without);
    else assert_result(result, with);
}

static void model_cover(unsigned queue, gpusync_result result)
{
    unsigned k;
    if (result == GPUSYNC_TIMEOUT || result == GPUSYNC_ERROR_DEVICE_LOST) return;
    for (k = 0; k < work_count; k++)
        if (model.of[k].queue == queue && works[k].ticket > model.covered[queue])
            model.covered[queue] = works[k].ticket;
}

static void model_ask_many(bool lost_before, uint64_t timeout_ns)
{
    unsigned first = any_of(work_count), count = 1 + any_of(work_count - first);
    gpusync_wait_for how = (gpusync_wait_for)any_of(3);
    gpusync_result result = through_these(&works[first], count, how, timeout_ns), expected;
    bool lost = gpusync_device_is_lost(s.device);
    size_t at_which;
    expected = model_of_many(first, count, how, lost, &at_which);
    if (which < count) assert_result(result, model_of(first + (unsigned)which, lost)); /* whichever was seen first */
    if (how == GPUSYNC_WAIT_ALL && lost_before == lost) { /* the others may go by what is known without a look */
        assert_result(result, at_the_limit(expected));
        assert_int_equal(which, at_which);
    } else if (which == count && result != GPUSYNC_OK) {
        if (lost_before == lost) assert_result(expected, PENDING);
        assert_result(result, GPUSYNC_TIMEOUT);
    }
}

static void model_ask(uint64_t timeout_ns)
{
    bool lost_before = gpusync_device_is_lost(s.device);
    unsigned k = any_of(work_count), queue = any_of(culprit + 1), i;
    gpusync_result result;
    unsigned what = any_of(5);
    switch (what) {
    case 0:
        result = through_all(queue, timeout_ns);
        compare(result, model_of_queue(queue, false), model_of_queue(queue, true), lost_before,
                gpusync_device_is_lost(s.device));
        model_cover(queue, result);
        break;
    case 1:
        result = through_device(timeout_ns);
        compare(result, model_of_device(false), model_of_device(true), lost_before, gpusync_device_is_lost(s.device));
        for (i = 0; i <= culprit; i++) model_cover(i, result);
        break;
    case 2: model_ask_many(lost_before, timeout_ns); break;
    default:
        result = through(&works[k], timeout_ns);
        compare(result, model_of(k, false), model_of(k, true), lost_before, gpusync_device_is_lost(s.device));
    }
}

/* It counts with all before it. */
static bool model_is_done(unsigned at)
{
    unsigned k;
    for (k = 0; k <= at; k++)
        if (model.of[k].queue == model.of[at].queue && (model.of[k].given_up || model_of(k, true) == PENDING))
            return false;
    return true;
}

static void model_round(uint64_t seed)
{
    static const step none[1] = {{nothing, false}};
    unsigned i;
    memset(&model, 0, sizeof model);
    model.seed = seed;
    open_play(3);
    model_make();
    for (i = 0; i < 40; i++) {
        model_step();
        model_ask(0);
        if (any_of(10)) continue;
        set_plan(none, 0, false); /* asleep */
        plan.more = model_step_of_a_sleeper;
        model.idle_steps = 0;
        model_ask(GPUSYNC_FOREVER);
        end_plan();
    }
    for (i = 0; i <= culprit; i++) finish(&s, i);
    (void)through(&works[MODEL_WORKS], 0); /* its handler may have been lost */
    assert_true(gpusync_device_is_lost(s.device));
    if (!gave_up && any_of(2)) model_give_up();
    for (i = 0; i < work_count; i++)
        assert_result(through(&works[i], 0), at_the_limit(model_of(i, true)));
    assert_true(softmetal_dispatched(SECONDS(20)));
    for (i = 0; i < work_count; i++) {
        gpusync_result result = model_of(i, true);
        assert_int_equal(GET(&model.of[i].told.calls), result != PENDING);
        if (result != PENDING) assert_result(model.of[i].told.result, result);
        assert_int_equal(info_of(&works[i]) == GPUSYNC_OK, result != PENDING && !model.of[i].given_up);
        assert_int_equal(gpusync_is_done(works[i].queue, works[i].ticket), model_is_done(i));
    }
    close_play();
}

static void test_every_answer_is_that_of_a_model(void **state)
{
    uint64_t seed;
    (void)state;
    for (seed = 0; seed < 1000 / SLOW; seed++) model_round(seed);
}

/* An argument is a pattern of the names of the tests to run: test_a_*. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_begun_before_the_loss_goes_on_until_the_work_has_ended),
        cmocka_unit_test(test_a_wait_begun_after_the_loss_goes_on_until_the_work_has_ended),
        cmocka_unit_test(test_work_that_fails_after_the_loss_returns_its_own_error),
        cmocka_unit_test(test_the_work_that_took_the_device_with_it_returns_its_error),
        cmocka_unit_test(test_the_limit_comes_first_and_says_timeout),
        cmocka_unit_test(test_what_has_ended_at_the_limit_counts_before_the_limit),
        cmocka_unit_test(test_a_limit_of_zero_looks_once),
        cmocka_unit_test(test_a_spinning_wait_goes_on_through_the_loss),
        cmocka_unit_test(test_a_spinning_wait_reads_the_status_on_a_lost_device),
        cmocka_unit_test(test_a_blocking_wait_on_a_lost_device_waits_in_metal),
        cmocka_unit_test(test_a_blocking_wait_for_a_submission_or_with_a_limit_sleeps_through_the_loss),
        cmocka_unit_test(test_no_ticket_is_done_and_a_ticket_not_given_yet_is_invalid_on_a_lost_device),
        cmocka_unit_test(test_in_a_callback_a_wait_returns_what_is_over_and_refuses_the_rest),
        cmocka_unit_test(test_the_loss_refuses_new_work_and_lets_the_old_go_on),
        cmocka_unit_test(test_an_open_command_buffer_is_refused_at_the_loss),
        cmocka_unit_test(test_a_wait_for_room_ends_at_the_loss),
        cmocka_unit_test(test_work_behind_a_queue_that_went_and_one_that_hangs_is_given_up),
        cmocka_unit_test(test_everything_goes_through_until_all_work_of_the_queue_has_ended),
        cmocka_unit_test(test_everything_of_a_queue_without_work_is_device_lost_at_once),
        cmocka_unit_test(test_everything_of_several_queues_without_work_is_device_lost_at_once),
        cmocka_unit_test(test_everything_times_out_at_the_limit),
        cmocka_unit_test(test_everything_is_device_lost_whatever_has_failed),
        cmocka_unit_test(test_everything_of_the_culprit_is_device_lost_too),
        cmocka_unit_test(test_a_wait_for_the_device_goes_through_on_every_queue),
        cmocka_unit_test(test_a_wait_for_the_device_is_device_lost_whatever_has_failed),
        cmocka_unit_test(test_a_wait_for_the_device_times_out_at_the_limit),
        cmocka_unit_test(test_a_wait_for_a_device_of_many_queues_goes_through_on_every_queue),
        cmocka_unit_test(test_a_wait_for_all_goes_through_until_each_ticket_has_ended),
        cmocka_unit_test(test_a_wait_for_any_goes_through_until_one_ticket_has_ended),
        cmocka_unit_test(test_a_wait_for_all_or_a_failure_goes_through_until_one_ticket_has_failed),
        cmocka_unit_test(test_a_wait_for_many_times_out_at_the_limit),
        cmocka_unit_test(test_a_failure_counts_more_at_the_limit_of_a_wait_for_all),
        cmocka_unit_test(test_a_wait_for_all_of_many_tickets_goes_through),
        cmocka_unit_test(test_a_value_that_has_not_come_ends_the_wait_at_the_giving_up),
        cmocka_unit_test(test_a_ticket_that_is_given_up_ends_a_wait_for_many),
        cmocka_unit_test(test_a_value_that_is_reached_does_not_keep_the_wait),
        cmocka_unit_test(test_held_work_ends_at_the_loss),
        cmocka_unit_test(test_a_commit_behind_held_work_ends_at_the_loss),
        cmocka_unit_test(test_held_work_does_not_keep_a_wait_for_everything),
        cmocka_unit_test(test_a_tracked_buffer_that_was_not_committed_is_given_up),
        cmocka_unit_test(test_a_tracked_buffer_that_was_committed_is_waited_for),
        cmocka_unit_test(test_a_tracked_buffer_that_is_committed_while_a_wait_sleeps_is_waited_for),
        cmocka_unit_test(test_a_tracked_buffer_that_was_not_committed_keeps_everything),
        cmocka_unit_test(test_a_sleeper_is_told_of_the_end_of_work_that_its_owner_has_committed),
        cmocka_unit_test(test_a_submission_is_over_when_its_last_part_is),
        cmocka_unit_test(test_a_submission_one_part_of_which_hangs_goes_on),
        cmocka_unit_test(test_a_submission_with_a_signal_goes_through_the_loss),
        cmocka_unit_test(test_a_submission_that_has_ended_waits_for_the_end_of_what_it_waited_for),
        cmocka_unit_test(test_the_sweep_finds_an_end_whose_handler_is_lost),
        cmocka_unit_test(test_the_sweep_finds_the_end_of_the_last_part_whose_handler_is_lost),
        cmocka_unit_test(test_the_wait_itself_finds_an_end_whose_handler_is_lost),
        cmocka_unit_test(test_the_sweep_goes_on_after_a_loss_until_the_work_is_given_up),
        cmocka_unit_test(test_the_sweep_goes_on_for_a_wait_though_it_has_found_the_loss_itself),
        cmocka_unit_test(test_all_of_many_sleepers_on_several_queues_go_on_through_the_loss),
        cmocka_unit_test(test_all_of_many_sleepers_are_woken_when_the_work_is_given_up),
        cmocka_unit_test(test_on_the_real_clock_a_removed_device_ends_every_such_wait_with_the_result_of_its_work),
        cmocka_unit_test(test_with_handlers_the_wait_goes_on_until_the_handler_has_run),
        cmocka_unit_test(test_with_handlers_a_handler_that_never_comes_is_given_up),
        cmocka_unit_test(test_with_handlers_what_was_held_owes_nothing),
        cmocka_unit_test(test_with_handlers_work_that_hangs_is_given_up),
        cmocka_unit_test(test_on_metal_4_the_feedback_ends_the_wait_and_nothing_before),
        cmocka_unit_test(test_on_metal_4_a_feedback_that_does_not_come_is_given_up),
        cmocka_unit_test(test_what_has_not_ended_is_given_up_at_the_second_look),
        cmocka_unit_test(test_a_look_before_half_a_second_does_not_count),
        cmocka_unit_test(test_a_suspension_gives_nothing_up_at_the_first_look),
        cmocka_unit_test(test_a_late_first_look_makes_the_second_late),
        cmocka_unit_test(test_sweeps_for_a_sleeper_are_no_looks),
        cmocka_unit_test(test_what_ends_before_the_second_look_keeps_its_result),
        cmocka_unit_test(test_an_idle_device_is_given_up_too),
        cmocka_unit_test(test_on_the_real_clock_the_second_is_a_second),
        cmocka_unit_test(test_a_sleeping_wait_returns_when_the_work_is_given_up),
        cmocka_unit_test(test_a_spinning_wait_returns_when_the_work_is_given_up),
        cmocka_unit_test(test_a_wait_for_everything_returns_when_the_rest_is_given_up),
        cmocka_unit_test(test_a_limit_before_the_second_is_a_timeout),
        cmocka_unit_test(test_a_blocking_wait_ends_with_metal_only),
        cmocka_unit_test(test_info_tells_what_has_ended_from_what_was_given_up),
        cmocka_unit_test(test_an_end_that_comes_late_changes_nothing),
        cmocka_unit_test(test_work_that_is_given_up_while_its_handler_runs_has_one_end),
        cmocka_unit_test(test_callbacks_of_work_that_is_given_up_get_device_lost_once),
        cmocka_unit_test(test_what_is_given_up_has_no_label_of_other_work),
        cmocka_unit_test(test_no_sweep_looks_at_what_was_given_up),
        cmocka_unit_test(test_an_object_of_a_commit_that_is_given_up_is_kept_until_destroy),
        cmocka_unit_test(test_an_object_of_a_submission_that_is_given_up_is_kept_until_destroy),
        cmocka_unit_test(test_an_object_of_a_value_that_is_given_up_is_kept_until_destroy),
        cmocka_unit_test(test_a_chain_of_submissions_is_given_up_at_once),
        cmocka_unit_test(test_a_wait_for_a_value_goes_on_until_the_timeline_fails),
        cmocka_unit_test(test_a_value_that_comes_in_the_second_is_reached),
        cmocka_unit_test(test_every_timeline_that_has_not_failed_fails_at_the_second),
        cmocka_unit_test(test_of_a_device_without_a_queue_the_timelines_fail_at_the_second),
        cmocka_unit_test(test_a_signal_of_an_open_command_buffer_fails_with_its_timeline),
        cmocka_unit_test(test_destroying_the_queue_ends_the_wait_on_a_lost_device),
        cmocka_unit_test(test_destroying_the_queue_of_a_lost_device_now_ends_its_work_as_destroyed),
        cmocka_unit_test(test_held_work_without_command_buffers_ends_with_the_loss),
        cmocka_unit_test(test_destroying_the_queue_now_ends_all_that_has_not_ended),
        cmocka_unit_test(test_destroying_the_queue_of_a_lost_device_waits_until_the_work_ends),
        cmocka_unit_test(test_destroying_the_queue_of_a_lost_device_waits_until_a_commit_is_given_up),
        cmocka_unit_test(test_destroying_the_queue_of_a_lost_device_waits_until_a_submission_is_given_up),
        cmocka_unit_test(test_destroying_the_queue_of_a_lost_device_cancels_what_was_never_committed),
        cmocka_unit_test(test_a_blocking_wait_delays_destroy_though_its_work_was_given_up),
        cmocka_unit_test(test_destroying_the_queue_behind_the_giving_up_does_not_wait),
        cmocka_unit_test(test_destroying_one_queue_ends_a_wait_for_points_of_two),
        cmocka_unit_test(test_a_queue_that_is_destroyed_is_left_out_of_a_wait_for_the_device),
        cmocka_unit_test(test_destroying_the_queue_later_ends_the_wait_on_a_lost_device),
        cmocka_unit_test(test_what_is_over_when_the_queue_is_destroyed_keeps_its_result),
        cmocka_unit_test(test_on_a_lost_device_a_wait_for_what_has_ended_sends_no_message),
        cmocka_unit_test(test_a_device_that_is_lost_twice_is_gone_through_once),
        cmocka_unit_test(test_a_second_loss_changes_nothing),
        cmocka_unit_test(test_with_sticky_failure_a_ticket_is_over_with_its_own_command_buffers),
        cmocka_unit_test(test_with_sticky_failure_a_ticket_that_ends_later_takes_the_error),
        cmocka_unit_test(test_the_loss_may_come_at_any_place_of_the_wait),
        cmocka_unit_test(test_the_end_may_come_at_any_place_of_a_wait_on_a_lost_device),
        cmocka_unit_test(test_the_work_may_be_given_up_at_any_place_of_the_wait),
        cmocka_unit_test(test_the_work_may_be_given_up_at_any_place_of_a_registration),
        cmocka_unit_test(test_the_end_may_come_at_any_place_of_the_giving_up),
        cmocka_unit_test(test_the_giving_up_may_come_at_any_place_of_the_loss),
        cmocka_unit_test(test_a_destroy_may_begin_at_any_place_of_the_giving_up),
        cmocka_unit_test(test_with_sticky_failure_the_end_may_come_at_any_place_of_the_wait),
        cmocka_unit_test(test_with_sticky_failure_a_wait_may_come_at_any_place_of_the_end),
        cmocka_unit_test(test_a_tracked_buffer_may_be_untracked_at_any_place_of_the_wait),
        cmocka_unit_test(test_a_sleeper_for_held_work_is_woken_by_the_loss),
        cmocka_unit_test(test_a_sleeper_for_the_submission_that_took_the_device_with_it_returns_its_error),
        cmocka_unit_test(test_a_sleeper_for_everything_that_the_culprit_wakes_returns_device_lost),
        cmocka_unit_test(test_held_work_that_is_being_issued_at_the_loss_is_not_over),
        cmocka_unit_test(test_a_ticket_that_fails_at_any_place_of_the_wait_is_never_told_as_well),
        cmocka_unit_test(test_without_memory_to_sleep_there_is_no_wait),
        cmocka_unit_test(test_a_handler_that_is_about_to_end_the_ticket_is_waited_for),
        cmocka_unit_test(test_every_answer_is_that_of_a_model),
    };
    clock_is_real = false;
    clock_now = SECONDS(1000);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
