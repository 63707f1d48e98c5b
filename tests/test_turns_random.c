/* test_turns_random.c - small programs that a seed draws, whose every answer a model knows: see races.h

   Three threads submit, encode, commit, signal and wait at once, on three queues and two timelines. In the programs of
   test_turns_graphs.c one thread does. */
#define GPUSYNC_IMPLEMENTATION
#include "races.h"

/* Thread i has queue i. Step k of threads 0 and 1 waits for value k of the other one's timeline, and signals value k + 1
   of its own; thread 2 only waits. A step is a submission, a buffer with encoded points, or plain work behind which the
   host signals. */
enum { THREADS = 3, STEPS = 4 };
typedef enum step_kind { SUBMITS, ENCODES, SIGNALS, KINDS } step_kind;
enum {
    FROM_OTHER = 1, /* thread 2 waits for the other timeline */
    ON_GPU = 2,
    UNORDERED = 4,
    ASKS = 8,      /* on_done */
    POLLS = 16,
    LIMITS = 32,
    WAITS = 64,
    EXTRAS = 128
};

typedef struct step {
    step_kind kind;
    unsigned extra;
    bool fails;
    bool accepted;
    gpusync_ticket ticket;
    outcome complete, asked;
} step;
static step plan[THREADS][STEPS];
static int places[THREADS] = {0, 1, 2};

static int source_of(int thread, int k)
{
    return thread < 2 ? !thread : (int)(plan[2][k].extra & FROM_OTHER);
}

static uint64_t waits_for(int thread, int k)
{
    if (plan[thread][k].kind == SIGNALS)
        return 0;
    return (uint64_t)(thread < 2 ? k : k + 1);
}

/* -- the model */

static bool work_is_good(int thread, int k);

/* A value is reached where it and each lower one was signalled by work that succeeds, or by the host. */
static bool value_is_good(int timeline, uint64_t value)
{
    for (uint64_t v = 1; v <= value; v++)
        if (plan[timeline][v - 1].kind != SIGNALS && !work_is_good(timeline, (int)v - 1))
            return false;
    return true;
}

static bool work_is_good(int thread, int k)
{
    return !plan[thread][k].fails && value_is_good(source_of(thread, k), waits_for(thread, k));
}

static gpusync_result result_of(bool good)
{
    return good ? GPUSYNC_OK : GPUSYNC_ERROR_EXECUTION;
}

/* -- the threads */

/* May the step be refused because the thread's timeline has failed? */
static gpusync_result expect_accepted(int thread, int k, gpusync_result result)
{
    bool may_be_refused = thread < 2 && !value_is_good(thread, (uint64_t)k);
    turns_check(result == GPUSYNC_OK || (may_be_refused && result == GPUSYNC_ERROR_EXECUTION));
    return result;
}

static gpusync_result submit_step(int me, int k, void *buffer)
{
    step *now = &plan[me][k];
    const gpusync_point wait = gpusync_at_value(stage.t[source_of(me, k)], waits_for(me, k));
    const gpusync_point signal = gpusync_at_value(stage.t[me & 1], (uint64_t)k + 1);
    gpusync_submission submission = {
        .wait_points = &wait,
        .wait_count = wait.value != 0,
        .command_buffers = &buffer,
        .command_buffer_count = 1,
        .signal_points = &signal,
        .signal_count = me < 2,
        .on_complete = note_outcome,
        .user = &now->complete,
    };
    bool unordered = now->extra & UNORDERED;
    submission.flags |= now->extra & ON_GPU ? GPUSYNC_SUBMIT_ON_GPU : 0;
    submission.flags |= unordered ? GPUSYNC_SUBMIT_UNORDERED : 0;
    return expect_accepted(me, k, gpusync_submit(stage.q[me], &submission, unordered ? NULL : &now->ticket));
}

static gpusync_result encode_step(int me, int k, void *buffer)
{
    const gpusync_point wait = gpusync_at_value(stage.t[source_of(me, k)], waits_for(me, k));
    gpusync_result result = GPUSYNC_OK;
    if (wait.value)
        turns_expect(gpusync_encode_wait(stage.q[me], buffer, wait), GPUSYNC_OK);
    if (me < 2)
        result = gpusync_encode_signal(stage.q[me], buffer, gpusync_at_value(stage.t[me], (uint64_t)k + 1));
    if (result == GPUSYNC_OK)
        result = gpusync_commit(stage.q[me], buffer, &plan[me][k].ticket);
    return expect_accepted(me, k, result);
}

static gpusync_result signal_step(int me, int k, void *buffer)
{
    step *now = &plan[me][k];
    now->ticket = commit_buffer(stage.q[me], buffer);
    if (me == 2)
        return GPUSYNC_OK;
    turns_expect(wait_for_ever(stage.q[me], now->ticket), result_of(work_is_good(me, k)));
    /* UNORDERED work before it may not have ended. */
    turns_expect(gpusync_timeline_wait(stage.t[me], (uint64_t)k, GPUSYNC_FOREVER, NULL),
                 result_of(value_is_good(me, (uint64_t)k)));
    turns_expect(gpusync_timeline_signal(stage.t[me], (uint64_t)k + 1), result_of(value_is_good(me, (uint64_t)k)));
    return GPUSYNC_OK;
}

static void ask_about_step(int me, int k)
{
    step *now = &plan[me][k];
    gpusync_queue *q = stage.q[me];
    gpusync_result right = result_of(work_is_good(me, k));
    gpusync_result result;
    if (!now->ticket)
        return;
    if (now->extra & ASKS)
        turns_expect(gpusync_on_done(gpusync_at_ticket(q, now->ticket), note_outcome, &now->asked), GPUSYNC_OK);
    if (now->extra & POLLS) {
        result = gpusync_poll(q, now->ticket, NULL);
        turns_check(result == right || result == GPUSYNC_NOT_READY);
        turns_check(result == right || !gpusync_is_done(q, now->ticket) || gpusync_poll(q, now->ticket, NULL) == right);
    }
    if (now->extra & LIMITS) {
        turns_limit(true);
        result = gpusync_wait(q, now->ticket, 500, NULL);
        turns_limit(false);
        turns_check(result == right || result == GPUSYNC_TIMEOUT);
        see(result == GPUSYNC_TIMEOUT ? 0 : 1);
    }
    if (now->extra & WAITS || k == STEPS - 1)
        turns_expect(wait_for_ever(q, now->ticket), right);
}

static void wait_for_both(void)
{
    const gpusync_point both[2] = {gpusync_at_value(stage.t[0], STEPS), gpusync_at_value(stage.t[1], STEPS)};
    bool good[2] = {value_is_good(0, STEPS), value_is_good(1, STEPS)};
    bool all = plan[2][0].extra & FROM_OTHER;
    gpusync_wait_for how = all ? GPUSYNC_WAIT_ALL : GPUSYNC_WAIT_ALL_OR_FAILURE;
    size_t which = 9;
    gpusync_result result = gpusync_wait_many(both, 2, how, GPUSYNC_FOREVER, NULL, &which);
    turns_expect(result, result_of(good[0] && good[1]));
    turns_check(which < 2 ? !good[which] : which == 2 && good[0] && good[1]);
    turns_check(!all || good[0] || which == 0);
}

static void take_steps(void *place)
{
    static gpusync_result (*const take[KINDS])(int, int, void *) = {submit_step, encode_step, signal_step};
    int me = *(int *)place;
    bool good = true;
    for (int k = 0; k < STEPS; k++) {
        step *now = &plan[me][k];
        void *buffer = make_buffer(stage.q[me]);
        if (now->fails)
            softmetal_fail(buffer, NULL, 3, NULL);
        now->accepted = take[now->kind](me, k, buffer) == GPUSYNC_OK;
        if (now->accepted)
            ask_about_step(me, k);
        else
            turns_expect(gpusync_command_buffer_discard(stage.q[me], buffer), GPUSYNC_OK);
        see(now->accepted ? 2 : 3);
        good = good && (!now->accepted || work_is_good(me, k));
    }
    if (me == 2)
        wait_for_both();
    turns_expect(wait_for_ever(stage.q[me], GPUSYNC_EVERYTHING), result_of(good));
    turns_expect(wait_for_ever(stage.q[me], GPUSYNC_EVERYTHING), GPUSYNC_OK); /* told once */
}

/* -- the race */

static bool failures; /* are drawn, in one program of three; and whatever else needs no value */

static void draw_plan(void)
{
    bool failing = failures && turns_draw(3) == 0;
    memset(plan, 0, sizeof plan);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < STEPS; k++) {
            plan[i][k].kind = (step_kind)turns_draw(KINDS);
            plan[i][k].extra = turns_draw(EXTRAS) & turns_draw(EXTRAS);
            plan[i][k].fails = failing && turns_draw(5) == 0;
            if (!failures)
                plan[i][k].extra &= FROM_OTHER | ON_GPU | UNORDERED | WAITS;
            else if (i < 2) /* it would fail a timeline before lower values of it are there */
                plan[i][k].extra &= ~(unsigned)UNORDERED;
        }
}

/* Whether the thread makes waits ON_GPU: such a submission needs a second place, and does not wait for it. */
static bool needs_places(int i)
{
    bool needs = false;
    for (int k = 0; k < STEPS; k++)
        needs |= plan[i][k].kind == SUBMITS && plan[i][k].extra & ON_GPU && waits_for(i, k);
    return needs;
}

enum { PLACES = 3 };

static void open_queues(void)
{
    const gpusync_queue_desc narrow = {.max_command_buffer_count = PLACES};
    for (int i = 0; i < QUEUES; i++)
        open_queue(i, turns_draw(2) && !needs_places(i) ? &narrow : NULL);
}

static void set_up_program(void *fails)
{
    static const char *const names[THREADS] = {"one", "two", "three"};
    failures = *(bool *)fails;
    draw_plan();
    open_stage(0, TIMELINES);
    open_queues();
    for (int i = 0; i < THREADS; i++)
        turns_add(names[i], take_steps, &places[i]);
    turns_gpus(QUEUES);
    turns_callbacks_when_told(stage.device);
}

static void check_outcome(const outcome *o, bool called, gpusync_result right)
{
    turns_expect(o->calls, called);
    if (called)
        turns_expect(o->result, right);
}

static void check_step(int i, int k, unsigned *failed)
{
    const step *now = &plan[i][k];
    gpusync_result right = result_of(work_is_good(i, k));
    check_outcome(&now->complete, now->accepted && now->kind == SUBMITS, right);
    check_outcome(&now->asked, now->ticket && now->extra & ASKS, right);
    if (now->ticket)
        turns_expect(gpusync_poll(stage.q[i], now->ticket, NULL), right);
    *failed += now->accepted && right != GPUSYNC_OK;
}

static void check_timeline(int i)
{
    uint64_t value = 0, reached = 0;
    while (reached < STEPS && value_is_good(i, reached + 1))
        reached++;
    turns_expect(gpusync_timeline_query(stage.t[i], &value, NULL), result_of(reached == STEPS));
    turns_expect(value, reached);
}

static void tear_down_program(void *unused)
{
    for (int i = 0; i < THREADS; i++) {
        unsigned failed = 0;
        turns_expect(gpusync_in_flight(stage.q[i]), 0);
        for (int k = 0; k < STEPS; k++)
            check_step(i, k, &failed);
        turns_expect(records_of(stage.q[i]), failed);
    }
    for (int i = 0; i < TIMELINES; i++)
        check_timeline(i);
    close_stage();
}

without_stage(test_S7_random_programs_reach_each_value)
{
    static bool fails = false;
    const turns_race race = {.name = "values",
                             .setup = set_up_program,
                             .teardown = tear_down_program,
                             .user = &fails,
                             .reach = 800,
                             .changes = 4};
    run_random(&race, 500, 1u << 2);
}

without_stage(test_S8_random_programs_fail_as_the_model_says)
{
    static bool fails = true;
    const turns_race race = {.name = "failures",
                             .setup = set_up_program,
                             .teardown = tear_down_program,
                             .user = &fails,
                             .reach = 800,
                             .changes = 4};
    run_random(&race, 1000, 15);
}
