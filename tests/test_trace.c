/* test_trace.c - gpusync_device_set_trace: what is told of what happens, when, and where (S10, R40)

   A table has a situation a row, and every event of it as a line of text. Events may arrive in another order than that
   of their times, so rows are compared as sets; tests behind them are about the order. Time stands still but for what a
   test passes; waits sleep in hooks under which a park is over at its deadline. */
#define GPUSYNC_IMPLEMENTATION
#include "still.h"

/* -- the recorder -------------------------------------------------------------------------------------------------- */

enum { MOST_EVENTS = 64 };

static struct {
    pthread_mutex_t lock;
    unsigned count;
    gpusync_trace_event event[MOST_EVENTS];
    char label[MOST_EVENTS][64];
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Fields that a kind does not name are zero. */
static void check_fields(const gpusync_trace_event *e)
{
    bool waits = e->kind == GPUSYNC_TRACE_WAIT, ended = e->kind == GPUSYNC_TRACE_ENDED;
    bool of_work = e->kind <= GPUSYNC_TRACE_ENDED;
    must(e->kind <= GPUSYNC_TRACE_WAIT && e->time_ns && e->label, "a kind, a time, a label");
    must(waits || of_work == (e->queue != NULL), "a queue");
    must(waits || (e->kind == GPUSYNC_TRACE_SIGNAL) == (e->timeline != NULL), "a timeline");
    must(!e->queue || !e->timeline, "one point");
    must(of_work ? !e->ticket == !!e->number : !e->number, "a ticket, or a number");
    must((e->queue || !e->ticket) && (e->timeline || !e->value), "of its object");
    must(waits ? e->begin_ns && e->begin_ns <= e->time_ns : !e->begin_ns && (int)e->how == 0, "how and when");
    must(waits || ended || e->result == GPUSYNC_OK, "a result");
    must(ended || (e->gpu_start_s == 0 && e->gpu_end_s == 0), "the GPU's times");
}

static void record(void *user, const gpusync_trace_event *event)
{
    must(user == &seen, "the user's pointer");
    check_fields(event);
    pthread_mutex_lock(&seen.lock);
    must(seen.count < MOST_EVENTS, "too many events");
    seen.event[seen.count] = *event;
    snprintf(seen.label[seen.count], sizeof seen.label[0], "%s", event->label);
    seen.count++;
    pthread_mutex_unlock(&seen.lock);
}

static const gpusync_trace recorder = {record, &seen};

static void begin_trace(stage *s)
{
    seen.count = 0;
    assert_ok(gpusync_device_set_trace(s->device, &recorder));
}

/* The n-th event of a kind, from 0; NULL: there are fewer. */
static const gpusync_trace_event *event_of(gpusync_trace_kind kind, unsigned n)
{
    for (unsigned i = 0; i < seen.count; i++)
        if (seen.event[i].kind == kind && n-- == 0)
            return &seen.event[i];
    return NULL;
}

/* One line: kind, object of the stage, ticket or value (#1: the number of UNORDERED work), label; the result of what
   has ended; and how a wait did. */
static void tell(unsigned i, const stage *all, char *out, size_t size)
{
    static const char *const kinds[] = {"commit", "sent", "ended", "signal", "wait"};
    static const char *const hows[] = {" inline", " status", " spin", " sleep", " unmet"};
    const gpusync_trace_event *e = &seen.event[i];
    char who[8], result[8] = "";
    snprintf(who, sizeof who, "%s", e->queue || e->timeline ? "?" : "-");
    for (unsigned k = 0; k < STAGE_MOST; k++) {
        if (e->queue && e->queue == all->q[k])
            snprintf(who, sizeof who, "q%u", k);
        if (e->timeline && e->timeline == all->t[k])
            snprintf(who, sizeof who, "t%u", k);
    }
    if (e->kind == GPUSYNC_TRACE_ENDED || e->kind == GPUSYNC_TRACE_WAIT)
        snprintf(result, sizeof result, " %d", e->result);
    uint64_t number = (uint64_t)e->ticket + e->number + e->value; /* two of them are 0 */
    snprintf(out, size, "%s %s %s%" PRIu64 " '%s'%s%s", kinds[e->kind], who, e->number ? "#" : "", number,
             seen.label[i], result, e->kind == GPUSYNC_TRACE_WAIT ? hows[e->how] : "");
}

/* The events are these lines, in any order. */
static bool same_events(const char *name, const char *const *expected, const stage *all)
{
    bool taken[MOST_EVENTS] = {false}, good = true;
    char told[160];
    for (; *expected; expected++) {
        unsigned i = 0;
        for (; i < seen.count; i++) {
            tell(i, all, told, sizeof told);
            if (!taken[i] && strcmp(told, *expected) == 0)
                break;
        }
        if (i < seen.count) {
            taken[i] = true;
            continue;
        }
        print_error("%s: missing: %s\n", name, *expected);
        good = false;
    }
    for (unsigned i = 0; i < seen.count; i++) {
        tell(i, all, told, sizeof told);
        if (taken[i])
            continue;
        print_error("%s: not expected: %s\n", name, told);
        good = false;
    }
    return good;
}

/* -- situations ---------------------------------------------------------------------------------------------------- */

#define MINE (&(const gpusync_wait_options){.spin = &(const gpusync_spin){0, 5, 0}})

static void finish_in_park(void *argument, unsigned park)
{
    if (park == 1)
        must(finish_next((gpusync_queue *)argument), "something ends");
}

static void signal_in_park(void *argument, unsigned park)
{
    if (park == 1)
        signal_value((gpusync_timeline *)argument, 1);
}

static void ignore(void *user, gpusync_result result, const gpusync_error *error)
{
}

static void commits(stage *s)
{
    commit_new(s->q[0]);
    commit_new(s->q[1]);
    finish_all(s);
}

/* What has no label has its queue's. A marker passes held work, and ends behind it. */
static void a_marker(stage *s)
{
    void *buffer = named_buffer(s->q[0], "frame");
    encode_wait(s->q[0], buffer, at(s->t[0], 1));
    commit(s->q[0], buffer);
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    finish_all(s);
    signal_value(s->t[0], 1);
    finish_all(s);
}

/* Metal gets nothing of work without command buffers. */
static void submissions(stage *s)
{
    SUBMIT(s->q[0], BUFFERS(named_buffer(s->q[0], "one"), named_buffer(s->q[0], "two")), .label = "both");
    SUBMIT(s->q[0], WAITS(ticket_at(s->q[0], 1)));
    SUBMIT(s->q[1], .label = "nothing");
    finish_all(s);
}

static void refused(stage *s)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_error error;
    assert_result(gpusync_commit(s->q[1], buffer, NULL), GPUSYNC_ERROR_WRONG_QUEUE);
    assert_result(gpusync_wait(s->q[0], 1, 0, NULL), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_timeline_signal(s->t[0], 0), GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_timeline_wait(s->t[0], UINT64_MAX, 0, &(gpusync_wait_options){.error = &error}),
                  GPUSYNC_ERROR_NOT_RISING);
}

static void held_work(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .label = "frame");
    commit_new(s->q[0]);
    finish_all(s);
    assert_int_equal(seen.count, 2);
    signal_value(s->t[0], 1);
    finish_all(s);
}

/* Of the GPU, of the host in the work's turn, of the host alone. Of several at once the highest is told. */
static void signals(stage *s)
{
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 3), at(s->t[1], 4)),
           .flags = GPUSYNC_SUBMIT_ON_GPU);
    finish_all(s);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 5), at(s->t[0], 6)));
    finish_all(s);
    signal_value(s->t[0], 9);
}

/* What was reached before the trace was set, and where a timeline begins, is no event when the host writes the event for
   another reason: it writes a failure. */
static void values_of_before(stage *s)
{
    assert_ok(gpusync_device_set_trace(s->device, NULL));
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 3)), .flags = GPUSYNC_SUBMIT_ON_GPU);
    finish_all(s);
    begin_trace(s);
    s->t[2] = timeline_from(s->device, &(const gpusync_timeline_desc){.label = "c", .initial_value = 2});
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
    assert_ok(gpusync_timeline_fail(s->t[2], NULL));
    signal_value(s->t[1], 1);
}

/* The later command buffer is over first: both end with the earlier one. */
static void signals_of_several_works(stage *s)
{
    void *buffers[2];
    for (unsigned i = 0; i < 2; i++)
        SUBMIT(s->q[0], BUFFERS(buffers[i] = new_buffer(s->q[0])), SIGNALS(at(s->t[0], i + 1)));
    for (unsigned i = 2; i-- > 0;)
        softmetal_finish(buffers[i]);
}

/* The listener hears the first value, and not the second: a look finds that. */
static void signals_of_other_code(stage *s)
{
    gpusync_timeline *others = s->t[2] = timeline_from(
        s->device, &(const gpusync_timeline_desc){.label = "c", .signalled_by_others = true, .initial_value = 2});
    assert_ok(gpusync_on_done(at(others, 3), ignore, NULL));
    other_code_signals(others, 3);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_int_equal(seen.count, 1);
    other_code_signals(others, 5);
    assert_result(gpusync_timeline_wait(others, 6, 0, NULL), GPUSYNC_TIMEOUT);
}

/* The second fails with the first, and never runs; an order_only timeline rises all the same. */
static void failing_work(stage *s)
{
    void *buffer = new_buffer(s->q[0]);
    s->t[2] = timeline_from(s->device, &(const gpusync_timeline_desc){.label = "c", .order_only = true});
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    SUBMIT(s->q[0], BUFFERS(buffer), SIGNALS(at(s->t[0], 3), at(s->t[2], 3)));
    SUBMIT(s->q[1], WAITS(ticket_at(s->q[0], 1)), BUFFERS(new_buffer(s->q[1])), SIGNALS(at(s->t[1], 3)));
    finish_all(s);
}

/* Overtaken while it was held, by a higher value; cancelled; what the third waits for is destroyed; and the fourth ends
   at its commit: what it waits for has failed before. */
static void work_that_never_runs(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[1], 3)));
    signal_value(s->t[1], 5);
    signal_value(s->t[0], 1);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 2)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[1], 7)));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 2)), BUFFERS(new_buffer(s->q[0])));
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->t[0] = NULL;
    SUBMIT(s->q[0], WAITS(at(s->t[1], 7)), BUFFERS(new_buffer(s->q[0])));
}

/* The wait of a destroy is not the program's. */
static void queues_that_go(stage *s)
{
    commit_new(s->q[0]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    assert_ok(gpusync_queue_abandon(s->q[0]));
    s->q[0] = NULL;
    finish_all(s);
    commit_new(s->q[1]);
    while_parked(finish_in_park, s->q[1]);
    assert_ok(gpusync_queue_destroy(s->q[1]));
    while_parked(NULL, NULL);
    s->q[1] = NULL;
}

/* It has numbers of its own; the queue's tickets go on without it. */
static void unordered_work(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .label = "loose",
           .flags = GPUSYNC_SUBMIT_UNORDERED);
    commit_new(s->q[0]);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), .flags = GPUSYNC_SUBMIT_UNORDERED);
    SUBMIT(s->q[1], .flags = GPUSYNC_SUBMIT_UNORDERED);
    finish_all(s);
    signal_value(s->t[0], 1);
    finish_all(s);
}

/* The failure ends what is held, on every queue. */
static void a_lost_device(stage *s)
{
    SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[1])));
    commit_failing(s->q[0], SOFTMETAL_SUBMISSIONS_IGNORED);
    finish_all(s);
}

static unsigned yields;
static stage *spinning;

/* Work ends in the second yield of a spin. */
static void yield_and_end(void *user)
{
    if (spinning && ++yields == 2)
        finish_next(spinning->q[0]);
}

/* At once; in a spin; asleep. */
static void waits_that_end(stage *s)
{
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    finish_all(s);
    assert_result(gpusync_wait(s->q[0], 1, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    commit_new(s->q[0]);
    yields = 0;
    spinning = s;
    assert_ok(gpusync_wait(s->q[0], 2, SECONDS(1), MINE));
    spinning = NULL;
    commit_new(s->q[0]);
    while_parked(finish_in_park, s->q[0]);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, SECONDS(1), NULL));
    while_parked(NULL, NULL);
    assert_ok(gpusync_wait(s->q[0], 3, SECONDS(1), NULL)); /* loads answer */
}

static void a_wait_that_looks(stage *s)
{
    void *buffer = new_buffer(s->q[0]);
    commit(s->q[0], buffer);
    softmetal_complete(buffer);
    assert_ok(gpusync_wait(s->q[0], 1, 0, NULL));
    softmetal_finish(buffer);
}

static void waits_unmet(stage *s)
{
    commit_new(s->q[0]);
    assert_result(gpusync_wait(s->q[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(s->q[0], 1, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_timeline_wait(s->t[0], 7, 0, NULL), GPUSYNC_TIMEOUT);
}

static void waits_for_a_value(stage *s)
{
    while_parked(signal_in_park, s->t[0]);
    assert_ok(gpusync_timeline_wait(s->t[0], 1, SECONDS(1), NULL));
    while_parked(NULL, NULL);
    fail_timeline(s->t[0], GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_timeline_wait(s->t[0], 2, SECONDS(1), NULL), GPUSYNC_ERROR_EXECUTION);
}

/* Or for the device: of no object. */
static void waits_for_several_points(stage *s)
{
    const gpusync_point points[] = {at(s->t[0], 1), at(s->t[1], 1)};
    while_parked(signal_in_park, s->t[0]);
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, SECONDS(1), NULL, NULL));
    while_parked(NULL, NULL);
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, 0, NULL, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait_many(&points[1], 1, GPUSYNC_WAIT_ANY, 0, NULL, NULL), GPUSYNC_TIMEOUT); /* of one */
    commit_new(s->q[1]);
    assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_TIMEOUT);
}

static void discard_in_park(void *argument, unsigned park)
{
    stage *s = (stage *)argument;
    if (park == 1)
        must(gpusync_command_buffer_discard(s->q[0], softmetal_buffer_at(s->metal[0], 0)) == GPUSYNC_OK, "a discard");
}

/* Of no ticket. */
static void waits_for_room(stage *s)
{
    void *buffer = NULL;
    for (unsigned i = 0; i < 63; i++)
        new_buffer(s->q[0]);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), GPUSYNC_TIMEOUT);
    while_parked(discard_in_park, s);
    assert_ok(gpusync_command_buffer_create(s->q[0], NULL, SECONDS(1), &buffer));
    while_parked(NULL, NULL);
}

static void wait_inside(void *user, gpusync_result result, const gpusync_error *error)
{
    stage *s = (stage *)user;
    assert_result(gpusync_wait(s->q[0], 2, SECONDS(1), NULL), GPUSYNC_ERROR_WOULD_DEADLOCK);
}

/* A callback itself is no event. */
static void a_wait_in_a_callback(stage *s)
{
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), .on_complete = wait_inside, .user = s);
    commit_new(s->q[0]);
    finish_next(s->q[0]);
    assert_int_equal(run_callbacks(s), 1);
}

#define EVENTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static const struct {
    const char *name;
    void (*play)(stage *s);
    bool legacy; /* not on Metal 4, which has no such call, or no such look */
    const char *const *events;
} rows[] = {
    {"commits", commits, false,
     EVENTS("commit q0 1 'first'", "commit q1 1 'second'", "sent q0 1 'first'", "sent q1 1 'second'",
            "ended q0 1 'first' 0", "ended q1 1 'second' 0")},
    {"a marker", a_marker, true,
     EVENTS("commit q0 1 'frame'", "commit q0 2 'first'", "sent q0 2 'first'", "signal t0 1 'a'", "sent q0 1 'frame'",
            "ended q0 1 'frame' 0", "ended q0 2 'first' 0")},
    {"submissions", submissions, false,
     EVENTS("commit q0 1 'both'", "sent q0 1 'both'", "commit q0 2 'first'", "commit q1 1 'nothing'",
            "ended q0 1 'both' 0", "ended q0 2 'first' 0", "ended q1 1 'nothing' 0")},
    {"refused", refused, true, (const char *const[]){NULL}},
    {"held work", held_work, false,
     EVENTS("commit q0 1 'frame'", "commit q0 2 'first'", "signal t0 1 'a'", "sent q0 1 'frame'", "sent q0 2 'first'",
            "ended q0 1 'frame' 0", "ended q0 2 'first' 0")},
    {"signals", signals, false,
     EVENTS("commit q0 1 'first'", "sent q0 1 'first'", "ended q0 1 'first' 0", "signal t0 3 'a'", "signal t1 4 'b'",
            "commit q0 2 'first'", "sent q0 2 'first'", "ended q0 2 'first' 0", "signal t0 6 'a'", "signal t0 9 'a'")},
    {"values of before", values_of_before, false, EVENTS("signal t1 1 'b'")},
    {"signals of several works", signals_of_several_works, true,
     EVENTS("commit q0 1 'first'", "sent q0 1 'first'", "commit q0 2 'first'", "sent q0 2 'first'",
            "ended q0 1 'first' 0", "ended q0 2 'first' 0", "signal t0 2 'a'")},
    {"signals of other code", signals_of_other_code, false,
     EVENTS("signal t2 3 'c'", "signal t2 5 'c'", "wait t2 6 'c' 1 unmet")},
    {"failing work", failing_work, false,
     EVENTS("commit q0 1 'first'", "sent q0 1 'first'", "commit q1 1 'second'", "ended q0 1 'first' -12",
            "signal t2 3 'c'", "ended q1 1 'second' -12")},
    {"work that never runs", work_that_never_runs, false,
     EVENTS("commit q0 1 'first'", "signal t1 5 'b'", "signal t0 1 'a'", "ended q0 1 'first' -19",
            "commit q0 2 'first'", "ended q0 2 'first' -14", "commit q0 3 'first'", "ended q0 3 'first' -16",
            "commit q0 4 'first'", "ended q0 4 'first' -14")},
    {"queues that go", queues_that_go, false,
     EVENTS("commit q0 1 'first'", "sent q0 1 'first'", "commit q0 2 'first'", "ended q0 1 'first' -16",
            "ended q0 2 'first' -14", "commit q1 1 'second'", "sent q1 1 'second'", "ended q1 1 'second' 0")},
    {"unordered work", unordered_work, false,
     EVENTS("commit q0 #1 'loose'", "commit q0 1 'first'", "sent q0 1 'first'", "commit q0 #2 'first'",
            "sent q0 #2 'first'", "commit q1 #1 'second'", "ended q0 1 'first' 0", "ended q0 #2 'first' 0",
            "ended q1 #1 'second' 0", "signal t0 1 'a'", "sent q0 #1 'loose'", "ended q0 #1 'loose' 0")},
    {"a lost device", a_lost_device, false,
     EVENTS("commit q1 1 'second'", "commit q0 1 'first'", "sent q0 1 'first'", "ended q0 1 'first' -12",
            "ended q1 1 'second' -15")},
    {"waits that end", waits_that_end, false,
     EVENTS("commit q0 1 'first'", "sent q0 1 'first'", "ended q0 1 'first' -12", "wait q0 1 'first' -12 inline",
            "wait q0 1 'first' -12 inline", "commit q0 2 'first'", "sent q0 2 'first'", "ended q0 2 'first' 0",
            "wait q0 2 'first' 0 spin", "commit q0 3 'first'", "sent q0 3 'first'", "ended q0 3 'first' 0",
            "wait q0 3 'first' 0 sleep")},
    {"a wait that looks", a_wait_that_looks, true,
     EVENTS("commit q0 1 'first'", "sent q0 1 'first'", "ended q0 1 'first' 0", "wait q0 1 'first' 0 status")},
    {"waits unmet", waits_unmet, false,
     EVENTS("commit q0 1 'first'", "sent q0 1 'first'", "wait q0 1 'first' 1 unmet", "wait q0 1 'first' 1 unmet",
            "wait t0 7 'a' 1 unmet")},
    {"waits for a value", waits_for_a_value, false,
     EVENTS("signal t0 1 'a'", "wait t0 1 'a' 0 sleep", "wait t0 2 'a' -12 inline")},
    {"waits for several points", waits_for_several_points, false,
     EVENTS("signal t0 1 'a'", "wait - 0 '' 0 sleep", "wait - 0 '' 1 unmet", "wait t1 1 'b' 1 unmet",
            "commit q1 1 'second'", "sent q1 1 'second'", "wait - 0 '' 1 unmet")},
    {"waits for room", waits_for_room, true, EVENTS("wait q0 0 'first' 1 unmet", "wait q0 0 'first' 0 sleep")},
    {"a wait in a callback", a_wait_in_a_callback, false,
     EVENTS("commit q0 1 'first'", "sent q0 1 'first'", "commit q0 2 'first'", "sent q0 2 'first'",
            "ended q0 1 'first' 0", "wait q0 2 'first' -17 unmet")},
};

static const gpusync_hooks trace_hooks = {
    .yield = yield_and_end,
    .park = park_and_pass,
    .unpark = unpark_passing,
};

#define TRACED .queues = 2, .timelines = 2, .device = {.hooks = &trace_hooks, .callback_mode = GPUSYNC_CALLBACKS_MANUAL}
#define ON_TRACE(test) on_both_kinds_with(test, TRACED)

/* A timeline view in an engine draws these: each situation has its events, with their fields, and no others. */
without_stage_on_both_kinds(test_R40_events_of_each_situation)
{
    bool good = true;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        stage s;
        stage_open(&s, &(const stage_desc){TRACED});
        stage all = s; /* what the row destroys, too */
        if (!rows[i].legacy || !is_metal4(s.q[0])) {
            begin_trace(&s);
            rows[i].play(&s);
            all.t[2] = s.t[2]; /* what it makes */
            good &= same_events(rows[i].name, rows[i].events, &all);
        }
        finish_all(&s);
        assert_ok(gpusync_device_set_trace(s.device, NULL));
        stage_close(&s);
    }
    assert_true(good);
}

/* -- times and order ----------------------------------------------------------------------------------------------- */

static double gpu_seconds(void)
{
    return (double)GET(&still_now) / 1e9;
}

/* A GPU track beside the CPU's: the times of a ticket are those that gpusync_poll has, none where it has none. */
ON_TRACE(test_S10_times_of_the_GPU)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_times times;
    softmetal_set_gpu_clock(gpu_seconds);
    begin_trace(s);
    commit(s->q[0], buffer);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    pass(MS(3));
    buffer = softmetal_first_in_line(s->metal[0]); /* Metal 4: its run */
    softmetal_schedule(buffer);
    softmetal_execute(buffer);
    pass(MS(4));
    while_parked(finish_in_park, s->q[0]); /* a handler that wakes a thread first still tells them */
    assert_ok(gpusync_wait(s->q[0], 1, SECONDS(1), NULL));
    while_parked(NULL, NULL);
    assert_ok(gpusync_poll(s->q[0], 1, &times));
    const gpusync_trace_event *e = event_of(GPUSYNC_TRACE_ENDED, 0);
    assert_true(times.gpu_end_s > 0 && e->gpu_start_s == times.gpu_start_s && e->gpu_end_s == times.gpu_end_s);
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING)); /* it never ran */
    e = event_of(GPUSYNC_TRACE_ENDED, 1);
    assert_true(e->ticket == 2 && e->gpu_start_s == 0 && e->gpu_end_s == 0);
    assert_ok(gpusync_device_set_trace(s->device, NULL));
    softmetal_set_gpu_clock(NULL);
}

/* A look finds the second of two buffers over: the times of the first alone are not the submission's. */
on_stage_with(test_S10_times_of_some_of_the_buffers_are_not_told, TRACED)
{
    void *buffers[] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    begin_trace(s);
    SUBMIT(s->q[0], BUFFERS(buffers[0], buffers[1]));
    softmetal_finish(buffers[0]);
    softmetal_complete(buffers[1]);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    const gpusync_trace_event *e = event_of(GPUSYNC_TRACE_ENDED, 0);
    assert_true(e->gpu_start_s == 0 && e->gpu_end_s == 0);
    finish_all(s);
}

/* Each event has its own time, a wait the time when it began, too. Work that never ran ends when it is given up. */
ON_TRACE(test_R40_times_are_of_the_clock)
{
    static const struct {
        gpusync_trace_kind kind;
        unsigned n;
        uint64_t at;
    } expected[] = {
        {GPUSYNC_TRACE_COMMIT, 0, 1000}, {GPUSYNC_TRACE_COMMIT, 1, 1000}, {GPUSYNC_TRACE_SIGNAL, 0, 3000},
        {GPUSYNC_TRACE_SENT, 0, 3000},   {GPUSYNC_TRACE_ENDED, 0, 7000},  {GPUSYNC_TRACE_SIGNAL, 1, 7000},
        {GPUSYNC_TRACE_ENDED, 1, 15000}, {GPUSYNC_TRACE_WAIT, 0, 31000},
    };
    begin_trace(s);
    uint64_t begin = gpusync_now_ns();
    pass(1000);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 2)));
    SUBMIT(s->q[1], WAITS(at(s->t[0], 3)), BUFFERS(new_buffer(s->q[1])));
    pass(2000);
    signal_value(s->t[0], 1);
    pass(4000);
    finish_all(s);
    pass(8000);
    assert_ok(gpusync_queue_cancel_held(s->q[1], GPUSYNC_EVERYTHING));
    assert_result(gpusync_timeline_wait(s->t[0], 3, 16000, NULL), GPUSYNC_TIMEOUT);
    for (size_t i = 0; i < LENGTH(expected); i++)
        assert_int_equal(event_of(expected[i].kind, expected[i].n)->time_ns - begin, expected[i].at);
    assert_int_equal(event_of(GPUSYNC_TRACE_WAIT, 0)->begin_ns - begin, 15000);
}

static void end_in_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase != SOFTMETAL_AFTER || strcmp(selector, "commit") != 0)
        return;
    pass(MS(1));
    softmetal_finish(object);
    pass(MS(1));
}

/* A quick GPU ends the work before the call that commits it has returned. Events may arrive in another order, but by
   their times a ticket is committed and sent, then ended: a viewer draws no span with a negative length. */
on_stage_with(test_S10_by_the_times_a_ticket_is_sent_before_it_ends, TRACED)
{
    begin_trace(s);
    softmetal_set_message_hook(end_in_commit, NULL);
    commit_new(s->q[0]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    signal_value(s->t[0], 1);
    softmetal_set_message_hook(NULL, NULL);
    for (unsigned i = 0; i < 2; i++) {
        const gpusync_trace_event *sent = event_of(GPUSYNC_TRACE_SENT, i), *ended = event_of(GPUSYNC_TRACE_ENDED, i);
        assert_true(event_of(GPUSYNC_TRACE_COMMIT, i)->time_ns <= sent->time_ns);
        assert_true(sent->ticket == ended->ticket && sent->time_ns <= ended->time_ns);
    }
}

static void unpark_slowly(void *user, gpusync_waiter *waiter)
{
    unpark_passing(user, waiter);
    pass(MS(1)); /* the sleeper may be back by now */
}

static const gpusync_hooks slow_hooks = {.yield = yield_and_end, .park = park_and_pass, .unpark = unpark_slowly};

/* A ticket ends, and a sleeper is woken: the time of the end is not the one behind the unparks. Else a viewer shows a
   wait that is over before its ticket is. */
on_both_kinds_with(test_S10_the_time_of_an_end_is_before_its_waits_return, .device = {.hooks = &slow_hooks})
{
    begin_trace(s);
    commit_new(s->q[0]);
    uint64_t begun = gpusync_now_ns();
    while_parked(finish_in_park, s->q[0]);
    assert_ok(gpusync_wait(s->q[0], 1, SECONDS(1), NULL));
    while_parked(NULL, NULL);
    assert_int_equal(event_of(GPUSYNC_TRACE_ENDED, 0)->time_ns, begun);
}

/* The last command buffer is over first, and its ticket ends behind the others (sentence 3), by the times, too; whether
   a look finds all of them, or the handlers come. */
on_stage_with(test_R40_ends_come_in_the_order_of_tickets, TRACED)
{
    for (unsigned handlers = 0; handlers < 2; handlers++) {
        void *buffers[6];
        begin_trace(s);
        for (unsigned i = 0; i < 6; i++)
            commit(s->q[handlers], buffers[i] = new_buffer(s->q[handlers]));
        for (unsigned i = 6; i-- > 0;) {
            assert_null(event_of(GPUSYNC_TRACE_ENDED, 0));
            if (handlers)
                softmetal_finish(buffers[i]);
            else
                softmetal_complete(buffers[i]);
            pass(1000);
        }
        assert_ok(gpusync_poll(s->q[handlers], 6, NULL));
        for (unsigned i = 0; i < 6; i++) {
            const gpusync_trace_event *e = event_of(GPUSYNC_TRACE_ENDED, i);
            assert_int_equal(e->ticket, i + 1);
            assert_true(i == 0 || e->time_ns >= event_of(GPUSYNC_TRACE_ENDED, i - 1)->time_ns);
        }
        finish_all(s);
    }
}

static gate door;

/* The first time it stays. */
static void stay_in_unpark(void *user, gpusync_waiter *waiter)
{
    static unsigned calls;
    if (COUNT(&calls) == 0) {
        gate_wait(&door);
        gate_wait(&door);
    }
    kit_unpark(user, waiter);
}

static const gpusync_hooks staying_hooks = {.yield = kit_yield, .park = park_patiently, .unpark = stay_in_unpark};

/* The thread that has ended the first ticket is slow to tell of it; another one ends the second, and may tell first. By
   their times they are in order. */
on_stage_with(test_R40_ends_of_several_threads_are_in_the_order_of_tickets, .device = {.hooks = &staying_hooks})
{
    void *buffers[] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    uint64_t times[3] = {0};
    job j = {0};
    gate_init(&door, 2);
    begin_trace(s);
    for (unsigned i = 0; i < 2; i++)
        commit(s->q[0], buffers[i]);
    job_wait(&j, s->q[0], 1, GPUSYNC_FOREVER);
    await_parked(1);
    softmetal_complete(buffers[0]);
    softmetal_begin_handler(buffers[0], 0);
    gate_wait(&door);
    softmetal_finish(buffers[1]);
    pass(1000);
    gate_wait(&door);
    softmetal_join_handler(buffers[0], 0);
    assert_ok(job_end(&j));
    settle(s);
    for (unsigned i = 0; i < 2; i++)
        times[event_of(GPUSYNC_TRACE_ENDED, i)->ticket] = event_of(GPUSYNC_TRACE_ENDED, i)->time_ns;
    assert_true(times[1] <= times[2]);
    gate_destroy(&door);
}

/* -- set at any time ----------------------------------------------------------------------------------------------- */

static void count(void *user, const gpusync_trace_event *event)
{
    COUNT((unsigned *)user);
}

static gpusync_trace one_of_three[3];

static void next_trace(void *user, gpusync_result result, const gpusync_error *error)
{
    assert_ok(gpusync_device_set_trace((gpusync_device *)user, &one_of_three[2]));
}

/* A debugger's menu switches the trace on, to another view, and off, whatever goes on: each gets what happens while it
   is set. */
ON_TRACE(test_R40_a_trace_is_set_exchanged_and_removed)
{
    unsigned calls[3] = {0};
    for (unsigned i = 0; i < 3; i++)
        one_of_three[i] = (gpusync_trace){count, &calls[i]};
    commit_new(s->q[0]);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), next_trace, s->device));
    assert_ok(gpusync_device_set_trace(s->device, &one_of_three[0])); /* with work in flight */
    assert_int_equal(calls[0], 0);                                    /* not what was before */
    signal_value(s->t[0], 1);
    assert_int_equal(calls[0], 1);
    assert_ok(gpusync_device_set_trace(s->device, &one_of_three[1]));
    finish_all(s); /* that of a commit which was not told */
    signal_value(s->t[0], 2);
    assert_int_equal(calls[1], 2);
    assert_int_equal(run_callbacks(s), 1); /* sets the third */
    signal_value(s->t[0], 3);
    assert_ok(gpusync_device_set_trace(s->device, NULL));
    signal_value(s->t[0], 4);
    commit_new(s->q[0]);
    finish_all(s);
    assert_result(gpusync_timeline_wait(s->t[0], 9, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(calls[0], 1);
    assert_int_equal(calls[1], 2);
    assert_int_equal(calls[2], 1);
    assert_ok(gpusync_device_set_trace(s->device, NULL)); /* there is none: still OK */
    assert_result(gpusync_device_set_trace(NULL, &one_of_three[0]), GPUSYNC_ERROR_INVALID_ARGUMENT);
}

static void set_in_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase == SOFTMETAL_BEFORE && strcmp(selector, "commit") == 0)
        assert_ok(gpusync_device_set_trace((gpusync_device *)user, &recorder));
}

/* The commit has begun without it, and the queue is busy: gpusync has not looked at the clock. `record` checks. */
on_stage_with(test_R40_a_trace_that_is_set_during_a_commit_gets_no_event_without_a_time, TRACED)
{
    commit_new(s->q[0]);
    void *buffer = new_buffer(s->q[0]);
    seen.count = 0;
    softmetal_set_message_hook(set_in_commit, s->device);
    commit(s->q[0], buffer);
    softmetal_set_message_hook(NULL, NULL);
    finish_all(s);
    assert_non_null(event_of(GPUSYNC_TRACE_ENDED, 1));
}

static void stay(void *user, const gpusync_trace_event *event)
{
    count(user, event);
    if (event->kind != GPUSYNC_TRACE_ENDED)
        return;
    gate_wait(&door);
    gate_wait(&door);
}

/* A handler is in the trace's function for as long as the test likes. No call waits for it: another trace is set, gets
   what happens, and is removed. What the handler tells then goes to none. */
on_stage_with(test_R40_no_call_waits_for_one_in_the_trace_before, TRACED)
{
    void *buffer = new_buffer(s->q[0]);
    unsigned calls[2] = {0};
    const gpusync_trace traces[] = {{stay, &calls[0]}, {count, &calls[1]}};
    gate_init(&door, 2);
    assert_ok(gpusync_device_set_trace(s->device, &traces[0]));
    SUBMIT(s->q[0], BUFFERS(buffer), SIGNALS(at(s->t[0], 1)));
    softmetal_complete(buffer);
    softmetal_begin_handler(buffer, 0);
    gate_wait(&door);
    uint64_t begun = gpusync_now_ns();
    assert_ok(gpusync_device_set_trace(s->device, &traces[1]));
    signal_value(s->t[1], 1);
    assert_ok(gpusync_device_set_trace(s->device, NULL));
    assert_int_equal(gpusync_now_ns(), begun);
    gate_wait(&door);
    softmetal_join_handler(buffer, 0);
    softmetal_finish(buffer);
    assert_int_equal(value_of(s->t[0]), 1);
    assert_int_equal(calls[0], 4); /* commit, sent, signal, ended */
    assert_int_equal(calls[1], 1);
    gate_destroy(&door);
}

/* -- no lock ------------------------------------------------------------------------------------------------------- */

enum { KINDS = GPUSYNC_TRACE_WAIT + 1 };

static struct {
    stage *s;
    bool inside;
    unsigned calls[KINDS];
} look;

/* Takes the device's lock, and each order lock. */
static gpusync_result use_everything(void *argument)
{
    stage *s = (stage *)argument;
    gpusync_stats stats;
    char mine[64];
    uint64_t value;
    if (gpusync_device_get_stats(s->device, NULL, &stats) != GPUSYNC_OK ||
        gpusync_device_report(s->device, mine, sizeof mine) == 0 ||
        gpusync_timeline_query(s->t[1], &value, NULL) != GPUSYNC_OK)
        return GPUSYNC_ERROR_DESTROYED;
    for (unsigned i = 0; i < 2; i++)
        commit_new(s->q[i]);
    return GPUSYNC_OK;
}

/* Another thread uses gpusync, and this one waits for it: with a lock held neither would come back. */
static void let_another_thread_in(void *user, const gpusync_trace_event *event)
{
    job j = {0};
    if (GET(&look.inside) || COUNT(&look.calls[event->kind])) /* of its own; the first of each kind is enough */
        return;
    PUT(&look.inside, true);
    job_call(&j, use_everything, look.s);
    must(job_end(&j) == GPUSYNC_OK, gpusync_result_string(j.result));
    PUT(&look.inside, false);
}

ON_TRACE(test_S10_no_lock_is_held_in_a_trace)
{
    static const gpusync_trace trace = {let_another_thread_in, NULL};
    memset(&look, 0, sizeof look);
    look.s = s;
    assert_ok(gpusync_device_set_trace(s->device, &trace));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 2)));
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_result(gpusync_timeline_wait(s->t[0], 9, 0, NULL), GPUSYNC_TIMEOUT);
    finish_all(s);
    for (unsigned i = 0; i < KINDS; i++)
        if (!look.calls[i])
            fail_msg("no event of kind %u", i);
    PUT(&look.inside, true);
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 100 };

/* What the traces were told, all together. */
static struct {
    stage *s;
    unsigned kind[KINDS], how[GPUSYNC_ENDED_UNMET + 1], failed, working;
} busy;

static void count_kinds(void *user, const gpusync_trace_event *event)
{
    must(user == &busy, "the user's pointer");
    check_fields(event);
    COUNT(&busy.kind[event->kind]);
    if (event->kind == GPUSYNC_TRACE_WAIT)
        COUNT(&busy.how[event->how]);
    if (event->kind == GPUSYNC_TRACE_ENDED && event->result != GPUSYNC_OK)
        COUNT(&busy.failed);
}

static void *work_hard(void *argument)
{
    gpusync_queue *queue = busy.s->q[(uintptr_t)argument];
    for (unsigned i = 0; i < ROUNDS; i++) {
        gpusync_timeline *timeline = NULL;
        gpusync_ticket ticket = 0;
        must(gpusync_timeline_create(busy.s->device, NULL, &timeline) == GPUSYNC_OK, "timeline");
        must(TRY_SUBMIT(queue, &ticket, WAITS(at(timeline, 1))) == GPUSYNC_OK, "submit");
        if (i % 4 == 0)
            must(gpusync_timeline_fail(timeline, NULL) == GPUSYNC_OK, "fail");
        else
            must(gpusync_timeline_signal(timeline, 1) == GPUSYNC_OK, "signal");
        (void)!gpusync_wait(queue, ticket, GPUSYNC_FOREVER, NULL);
        must(gpusync_timeline_destroy(timeline) == GPUSYNC_OK, "destroy");
        for (unsigned k = 0; k < 4; k++) { /* some that are not held */
            void *buffer = NULL;
            must(gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer) == GPUSYNC_OK, "buffer");
            must(gpusync_commit(queue, buffer, &ticket) == GPUSYNC_OK, "commit");
        }
        must(gpusync_wait(queue, ticket, GPUSYNC_FOREVER, NULL) == GPUSYNC_OK, "wait");
    }
    __atomic_fetch_sub(&busy.working, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* While threads work, the traces take turns. Two of them are told everything between them, to the last event, as the
   counts have it; with times without a trace there is less. */
static void take_turns(stage *s, const gpusync_trace *const *traces, size_t traces_count, gpusync_stats *stats)
{
    pthread_t threads[THREADS];
    memset(&busy, 0, sizeof busy);
    busy.s = s;
    busy.working = THREADS;
    assert_ok(gpusync_device_set_trace(s->device, traces[0]));
    for (uintptr_t i = 0; i < THREADS; i++)
        threads[i] = start(work_hard, (void *)i);
    for (size_t i = 1; GET(&busy.working); i++)
        assert_ok(gpusync_device_set_trace(s->device, traces[i % traces_count]));
    for (unsigned i = 0; i < THREADS; i++)
        join(threads[i]);
    settle(s);
    assert_ok(gpusync_device_set_trace(s->device, NULL));
    assert_ok(gpusync_device_get_stats(s->device, NULL, stats));
}

on_stage_with(test_R40_traces_of_threads_agree_with_the_counts, .queues = THREADS, .real = true,
              .device = {.hooks = &patient_hooks})
{
    static const gpusync_trace one = {count_kinds, &busy}, other = {count_kinds, &busy};
    gpusync_stats stats, before;
    take_turns(s, (const gpusync_trace *const[]){&one, &other}, 2, &stats);
    assert_int_equal(busy.kind[GPUSYNC_TRACE_COMMIT], stats.commits);
    assert_int_equal(busy.kind[GPUSYNC_TRACE_SENT], THREADS * ROUNDS * 4);
    assert_int_equal(busy.kind[GPUSYNC_TRACE_ENDED], stats.completions);
    assert_int_equal(busy.kind[GPUSYNC_TRACE_SIGNAL], THREADS * ROUNDS * 3 / 4);
    assert_int_equal(busy.failed, stats.failures);
    assert_int_equal(busy.failed, THREADS * ROUNDS / 4);
    assert_int_equal(busy.how[GPUSYNC_ENDED_INLINE], stats.waits_inline);
    assert_int_equal(busy.how[GPUSYNC_ENDED_STATUS], stats.waits_status);
    assert_int_equal(busy.how[GPUSYNC_ENDED_SPIN], stats.waits_spin);
    assert_int_equal(busy.how[GPUSYNC_ENDED_SLEEP], stats.waits_sleep);
    assert_int_equal(busy.how[GPUSYNC_ENDED_UNMET], stats.waits_unmet);
    before = stats;
    take_turns(s, (const gpusync_trace *const[]){&one, NULL, &other, NULL}, 4, &stats);
    assert_true(busy.kind[GPUSYNC_TRACE_COMMIT] <= stats.commits - before.commits);
    assert_true(busy.kind[GPUSYNC_TRACE_ENDED] <= stats.completions - before.completions);
}
