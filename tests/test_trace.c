/* test_trace.c - gpusync_device_set_trace: what is told of what happens, when, and where (S10)

   A table has a situation a row, and every event of it as a line of text. Events of one object may arrive in another
   order than that of their times, so rows are compared as sets; tests behind them are about the order. Time stands
   still but for what a test passes; waits sleep in hooks under which a park is over at its deadline. */
#define GPUSYNC_IMPLEMENTATION
#include "still.h"

/* -- the recorder -------------------------------------------------------------------------------------------------- */

enum { MOST_EVENTS = 256 };

static struct {
    pthread_mutex_t lock;
    stage *s;
    unsigned count;
    gpusync_trace_event event[MOST_EVENTS];
    char label[MOST_EVENTS][64];
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Fields that a kind does not name are zero. */
static void check_fields(const gpusync_trace_event *e)
{
    bool waits = e->kind == GPUSYNC_TRACE_WAIT_BEGIN || e->kind == GPUSYNC_TRACE_WAIT_END;
    bool ticket = e->kind != GPUSYNC_TRACE_SIGNAL && !e->timeline && (!waits || e->queue);
    bool value = e->kind == GPUSYNC_TRACE_SIGNAL || e->timeline;
    bool ends =
        e->kind == GPUSYNC_TRACE_COMPLETED || e->kind == GPUSYNC_TRACE_WAIT_END || e->kind == GPUSYNC_TRACE_CALLBACK;
    must(ticket == (e->queue != NULL) && (ticket || !e->ticket), "a queue and a ticket");
    must(value == (e->timeline != NULL) && (value || !e->value), "a timeline and a value");
    must(!e->number || (ticket && !waits && !e->ticket), "the number of UNORDERED work");
    must(ends || e->result == GPUSYNC_OK, "a result");
    must(e->kind == GPUSYNC_TRACE_WAIT_END || (int)e->how == 0, "how");
    must(e->kind == GPUSYNC_TRACE_COMPLETED || (e->gpu_start_s == 0 && e->gpu_end_s == 0), "times");
    must(e->label != NULL, "a label");
    must(e->time_ns != 0, "a time");
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

static void begin_trace(stage *s)
{
    seen.s = s;
    seen.count = 0;
    assert_ok(gpusync_device_set_trace(s->device, record, &seen));
}

static const char *const kinds[] = {"commit",     "submit",   "hold",   "issue",   "completed",
                                    "wait_begin", "wait_end", "signal", "callback"};

/* Of the queues and timelines of the stage alone. */
static const char *who(const gpusync_trace_event *e, const stage *all)
{
    static const char *const queues[] = {"q0", "q1", "q2", "q3"}, *const timelines[] = {"t0", "t1", "t2", "t3"};
    for (unsigned i = 0; i < STAGE_MOST; i++) {
        if (e->queue && e->queue == all->q[i])
            return queues[i];
        if (e->timeline && e->timeline == all->t[i])
            return timelines[i];
    }
    return e->queue || e->timeline ? "?" : "-";
}

/* One line: kind, object, ticket or value (#1: the number of UNORDERED work), label; then the result, and how a wait
   ended. */
static void tell(unsigned i, const stage *all, char *out, size_t size)
{
    static const char *const hows[] = {"inline", "status", "spin", "sleep", "unmet"};
    const gpusync_trace_event *e = &seen.event[i];
    bool ends =
        e->kind == GPUSYNC_TRACE_COMPLETED || e->kind == GPUSYNC_TRACE_WAIT_END || e->kind == GPUSYNC_TRACE_CALLBACK;
    int n = snprintf(out, size, "%s %s %s%" PRIu64 " '%s'", kinds[e->kind], who(e, all), e->number ? "#" : "",
                     e->timeline ? e->value : e->number ? e->number : (uint64_t)e->ticket, seen.label[i]);
    if (ends)
        n += snprintf(out + n, size - (size_t)n, " %d", e->result);
    if (e->kind == GPUSYNC_TRACE_WAIT_END)
        snprintf(out + n, size - (size_t)n, " %s", hows[e->how]);
}

/* The events are these lines, in any order. */
static bool same_events(const char *name, const char *const *expected, const stage *all)
{
    bool taken[MOST_EVENTS] = {false}, good = true;
    char told[160];
    unsigned count = 0;
    for (; *expected; expected++, count++) {
        unsigned i = 0;
        for (; i < seen.count; i++) {
            tell(i, all, told, sizeof told);
            if (!taken[i] && strcmp(told, *expected) == 0)
                break;
        }
        if (i == seen.count) {
            print_error("%s: missing: %s\n", name, *expected);
            good = false;
        } else {
            taken[i] = true;
        }
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

/* The n-th event of a kind, from 0. */
static const gpusync_trace_event *event_of(gpusync_trace_kind kind, unsigned n)
{
    for (unsigned i = 0; i < seen.count; i++)
        if (seen.event[i].kind == kind && n-- == 0)
            return &seen.event[i];
    must(false, kinds[kind]);
    return NULL;
}

static unsigned count_of(gpusync_trace_kind kind)
{
    unsigned count = 0;
    for (unsigned i = 0; i < seen.count; i++)
        count += seen.event[i].kind == kind;
    return count;
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
        must(gpusync_timeline_signal((gpusync_timeline *)argument, 1) == GPUSYNC_OK, "a signal");
}

static void commits(stage *s)
{
    commit(s->q[0], named_buffer(s->q[0], "frame"));
    commit(s->q[1], new_buffer(s->q[1])); /* no label: the queue's */
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    finish_all(s);
}

static void a_submission(stage *s)
{
    SUBMIT(s->q[0], BUFFERS(named_buffer(s->q[0], "one"), named_buffer(s->q[0], "two")), .label = "both");
    SUBMIT(s->q[0], WAITS(ticket_at(s->q[0], 1)));
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

/* Each event of work has its label: a submission without one has that of its buffer. */
static void held_work(stage *s)
{
    void *buffer = named_buffer(s->q[0], "frame");
    encode_wait(s->q[0], buffer, at(s->t[0], 1));
    commit(s->q[0], buffer);
    SUBMIT(s->q[0], BUFFERS(named_buffer(s->q[0], "behind")));
    signal_value(s->t[0], 1);
    finish_all(s);
}

static void signals_of_work(stage *s)
{
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 3), at(s->t[1], 4)),
           .flags = GPUSYNC_SUBMIT_ON_GPU);
    finish_all(s);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 5)));
    finish_all(s);
    signal_value(s->t[0], 9);
}

/* The second fails with the first, and never runs. */
static void failing_work(stage *s)
{
    void *buffer = new_buffer(s->q[0]);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    SUBMIT(s->q[0], BUFFERS(buffer), SIGNALS(at(s->t[0], 3)));
    SUBMIT(s->q[1], WAITS(ticket_at(s->q[0], 1)), BUFFERS(new_buffer(s->q[1])), SIGNALS(at(s->t[1], 3)));
    finish_all(s);
}

/* Overtaken while it was held, by a higher value; cancelled; what the third waits for is destroyed; and the fourth ends
   at its commit, and is not held: what it waits for has failed before. */
static void work_that_never_runs(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[1], 3)));
    signal_value(s->t[1], 5);
    signal_value(s->t[0], 1);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 2)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[1], 7)));
    assert_ok(gpusync_queue_cancel_held(s->q[0]));
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


static unsigned yields;
static stage *spinning;

/* Work ends in the second yield of a spin. */
static void yield_and_end(void *user)
{
    if (spinning && ++yields == 2)
        finish_next(spinning->q[0]);
}

/* At once; by a look; in a spin; asleep. */
static void waits_that_end(stage *s)
{
    void *buffer = new_buffer(s->q[0]);
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    finish_all(s);
    assert_result(gpusync_wait(s->q[0], 1, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    commit(s->q[0], buffer);
    softmetal_complete(buffer);
    assert_ok(gpusync_wait(s->q[0], 2, 0, NULL));
    softmetal_finish(buffer);
    commit_new(s->q[0]);
    yields = 0;
    spinning = s;
    assert_ok(gpusync_wait(s->q[0], 3, SECONDS(1), MINE));
    spinning = NULL;
    commit_new(s->q[0]);
    while_parked(finish_in_park, s->q[0]);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, SECONDS(1), NULL));
    while_parked(NULL, NULL);
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
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
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

static void wait_inside(void *user, gpusync_result result, const gpusync_error *error)
{
    stage *s = (stage *)user;
    assert_result(gpusync_wait(s->q[0], 2, SECONDS(1), NULL), GPUSYNC_ERROR_WOULD_DEADLOCK);
}

static void a_wait_in_a_callback(stage *s)
{
    commit_new(s->q[0]);
    commit_new(s->q[0]);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), wait_inside, s));
    finish_next(s->q[0]);
    assert_int_equal(run_callbacks(s), 1);
}

static void ignore(void *user, gpusync_result result, const gpusync_error *error)
{
}

/* Its events have a number of its own; the queue's tickets go on without it. */
static void unordered_work(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .label = "loose",
           .flags = GPUSYNC_SUBMIT_UNORDERED);
    commit_new(s->q[0]);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), .on_complete = ignore, .flags = GPUSYNC_SUBMIT_UNORDERED);
    finish_all(s);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_int_equal(run_callbacks(s), 1);
}

/* Those of a destroy run in it. A release is no callback. */
static void callbacks(stage *s)
{
    void *buffer = new_buffer(s->q[0]), *object = metal_buffer_new(s->metal_device, 16);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), .on_complete = ignore);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[0], buffer);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 2), ignore, NULL));
    assert_ok(gpusync_on_done(at(s->t[0], 4), ignore, NULL));
    assert_ok(gpusync_on_done(at(s->t[0], 6), ignore, NULL));
    finish_all(s);
    signal_value(s->t[0], 5);
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
    assert_ok(gpusync_release_after(s->q[0], 2, object));
    metal_release(object);
    assert_int_equal(run_callbacks(s), 5);
    assert_ok(gpusync_on_done(at(s->t[1], 4), ignore, NULL));
    assert_ok(gpusync_timeline_destroy(s->t[1]));
    s->t[1] = NULL;
}

/* The failure ends what is held, on every queue. */
static void a_lost_device(stage *s)
{
    SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[1])));
    commit_failing(s->q[0], SOFTMETAL_SUBMISSIONS_IGNORED);
    finish_all(s);
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

#define EVENTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static const struct {
    const char *name;
    void (*play)(stage *s);
    const char *const *events;
} rows[] = {
    {"commits", commits,
     EVENTS("commit q0 1 'frame'", "commit q1 1 'second'", "commit q0 2 'first'", "completed q0 1 'frame' 0",
            "completed q1 1 'second' 0", "completed q0 2 'first' 0")},
    {"a submission", a_submission,
     EVENTS("submit q0 1 'both'", "submit q0 2 'first'", "hold q0 2 'first'", "completed q0 1 'both' 0",
            "issue q0 2 'first'", "completed q0 2 'first' 0")},
    {"refused", refused, (const char *const[]){NULL}},
    {"held work", held_work,
     EVENTS("commit q0 1 'frame'", "hold q0 1 'frame'", "submit q0 2 'behind'", "hold q0 2 'behind'",
            "signal t0 1 'a'", "issue q0 1 'frame'", "issue q0 2 'behind'", "completed q0 1 'frame' 0",
            "completed q0 2 'behind' 0")},
    {"signals of work", signals_of_work,
     EVENTS("submit q0 1 'first'", "completed q0 1 'first' 0", "signal t0 3 'a'", "signal t1 4 'b'",
            "submit q0 2 'first'", "completed q0 2 'first' 0", "signal t0 5 'a'", "signal t0 9 'a'")},
    {"failing work", failing_work,
     EVENTS("submit q0 1 'first'", "submit q1 1 'second'", "hold q1 1 'second'", "completed q0 1 'first' -12",
            "completed q1 1 'second' -12")},
    {"work that never runs", work_that_never_runs,
     EVENTS("submit q0 1 'first'", "hold q0 1 'first'", "signal t1 5 'b'", "signal t0 1 'a'",
            "completed q0 1 'first' -19", "submit q0 2 'first'", "hold q0 2 'first'", "completed q0 2 'first' -14",
            "submit q0 3 'first'", "hold q0 3 'first'", "completed q0 3 'first' -16", "submit q0 4 'first'",
            "completed q0 4 'first' -14")},
    {"queues that go", queues_that_go,
     EVENTS("commit q0 1 'first'", "submit q0 2 'first'", "hold q0 2 'first'", "completed q0 1 'first' -16",
            "completed q0 2 'first' -14", "commit q1 1 'second'", "completed q1 1 'second' 0")},
    {"unordered work", unordered_work,
     EVENTS("submit q0 #1 'loose'", "hold q0 #1 'loose'", "commit q0 1 'first'", "submit q0 #2 'first'",
            "completed q0 1 'first' 0", "completed q0 #2 'first' 0", "signal t0 1 'a'", "issue q0 #1 'loose'",
            "completed q0 #1 'loose' 0", "callback q0 #2 'first' 0")},
    {"a lost device", a_lost_device,
     EVENTS("submit q1 1 'second'", "hold q1 1 'second'", "commit q0 1 'first'", "completed q0 1 'first' -12",
            "completed q1 1 'second' -15")},
    {"waits that end", waits_that_end,
     EVENTS("commit q0 1 'first'", "completed q0 1 'first' -12", "wait_begin q0 1 'first'",
            "wait_end q0 1 'first' -12 inline", "wait_begin q0 1 'first'", "wait_end q0 1 'first' -12 inline",
            "commit q0 2 'first'", "wait_begin q0 2 'first'", "completed q0 2 'first' 0",
            "wait_end q0 2 'first' 0 status", "commit q0 3 'first'", "wait_begin q0 3 'first'",
            "completed q0 3 'first' 0", "wait_end q0 3 'first' 0 spin", "commit q0 4 'first'",
            "wait_begin q0 4 'first'", "completed q0 4 'first' 0", "wait_end q0 4 'first' 0 sleep")},
    {"waits unmet", waits_unmet,
     EVENTS("commit q0 1 'first'", "wait_begin q0 1 'first'", "wait_end q0 1 'first' 1 unmet",
            "wait_begin q0 1 'first'", "wait_end q0 1 'first' 1 unmet", "wait_begin t0 7 'a'",
            "wait_end t0 7 'a' 1 unmet")},
    {"waits for a value", waits_for_a_value,
     EVENTS("wait_begin t0 1 'a'", "signal t0 1 'a'", "wait_end t0 1 'a' 0 sleep", "wait_begin t0 2 'a'",
            "wait_end t0 2 'a' -12 inline")},
    {"waits for several points", waits_for_several_points,
     EVENTS("wait_begin - 0 ''", "signal t0 1 'a'", "wait_end - 0 '' 0 sleep", "wait_begin - 0 ''",
            "wait_end - 0 '' 1 unmet", "wait_begin t1 1 'b'", "wait_end t1 1 'b' 1 unmet", "commit q1 1 'second'",
            "wait_begin - 0 ''", "wait_end - 0 '' 1 unmet")},
    {"waits for room", waits_for_room,
     EVENTS("wait_begin q0 0 'first'", "wait_end q0 0 'first' 1 unmet", "wait_begin q0 0 'first'",
            "wait_end q0 0 'first' 0 sleep")},
    {"a wait in a callback", a_wait_in_a_callback,
     EVENTS("commit q0 1 'first'", "commit q0 2 'first'", "completed q0 1 'first' 0", "callback q0 1 'first' 0",
            "wait_begin q0 2 'first'", "wait_end q0 2 'first' -17 unmet")},
    {"callbacks", callbacks,
     EVENTS("submit q0 1 'first'", "commit q0 2 'first'", "completed q0 1 'first' 0", "completed q0 2 'first' -12",
            "signal t0 5 'a'", "callback q0 1 'first' 0", "callback q0 2 'first' -12", "callback t0 4 'a' 0",
            "callback t0 6 'a' -12", "callback t1 4 'b' -16")},
};

static const gpusync_hooks trace_hooks = {
    .yield = yield_and_end,
    .park = park_and_pass,
    .unpark = unpark_passing,
};

#define TRACED .device = {.hooks = &trace_hooks, .callback_mode = GPUSYNC_CALLBACKS_MANUAL}
#define ON_TRACE(test) on_stage_with(test, .queues = 2, .timelines = 2, TRACED)

/* A timeline view in an engine draws these: each situation has its events, with their fields, and no others. */
without_stage(test_S10_events_of_each_situation)
{
    bool good = true;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const stage_desc desc = {.queues = 2, .timelines = 2, TRACED};
        stage s;
        stage_open(&s, &desc);
        stage all = s; /* what the row destroys, too */
              begin_trace(&s);
        rows[i].play(&s);
        good &= same_events(rows[i].name, rows[i].events, &all);
        finish_all(&s);
        assert_ok(gpusync_device_set_trace(s.device, NULL, NULL));
        stage_close(&s);
    }
    assert_true(good);
}

/* On a queue of Metal 4 each commit is a submission. */
on_stage_with(test_S10_events_of_Metal_4, .timelines = 1, .metal4 = true, TRACED)
{
    begin_trace(s);
    assert_ok(gpusync_commit(s->q[0], new_buffer(s->q[0]), NULL));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 2)));
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_true(same_events("Metal 4",
                            EVENTS("submit q0 1 'first'", "submit q0 2 'first'", "hold q0 2 'first'", "signal t0 1 'a'",
                                   "issue q0 2 'first'", "completed q0 1 'first' 0", "completed q0 2 'first' 0",
                                   "signal t0 2 'a'"),
                            s));
}

/* -- times --------------------------------------------------------------------------------------------------------- */

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
    softmetal_schedule(buffer);
    softmetal_execute(buffer);
    pass(MS(4));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 1, &times));
    const gpusync_trace_event *e = event_of(GPUSYNC_TRACE_COMPLETED, 0);
    assert_true(times.gpu_end_s > 0 && e->gpu_start_s == times.gpu_start_s && e->gpu_end_s == times.gpu_end_s);
    assert_ok(gpusync_queue_cancel_held(s->q[0])); /* it never ran */
    e = event_of(GPUSYNC_TRACE_COMPLETED, 1);
    assert_true(e->ticket == 2 && e->gpu_start_s == 0 && e->gpu_end_s == 0);
    assert_ok(gpusync_device_set_trace(s->device, NULL, NULL));
    softmetal_set_gpu_clock(NULL);
}

/* Each event has its own time. Values pass as their work ends; work that never ran ends when it is given up. */
ON_TRACE(test_S10_times_are_of_the_clock)
{
    static const struct {
        gpusync_trace_kind kind;
        unsigned n;
        uint64_t at;
    } expected[] = {
        {GPUSYNC_TRACE_SUBMIT, 0, 1000},     {GPUSYNC_TRACE_HOLD, 0, 1000},       {GPUSYNC_TRACE_SIGNAL, 0, 3000},
        {GPUSYNC_TRACE_ISSUE, 0, 3000},      {GPUSYNC_TRACE_COMPLETED, 0, 7000},  {GPUSYNC_TRACE_SIGNAL, 1, 7000},
        {GPUSYNC_TRACE_SIGNAL, 2, 7000},     {GPUSYNC_TRACE_COMPLETED, 1, 15000}, {GPUSYNC_TRACE_WAIT_BEGIN, 0, 15000},
        {GPUSYNC_TRACE_WAIT_END, 0, 31000},  {GPUSYNC_TRACE_CALLBACK, 0, 63000},
    };
    begin_trace(s);
    uint64_t begin = gpusync_now_ns();
    pass(1000);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 2), at(s->t[1], 1)));
    SUBMIT(s->q[1], WAITS(at(s->t[0], 3)), BUFFERS(new_buffer(s->q[1])));
    pass(2000);
    signal_value(s->t[0], 1);
    pass(4000);
    finish_all(s);
    pass(8000);
    assert_ok(gpusync_queue_cancel_held(s->q[1]));
    assert_result(gpusync_timeline_wait(s->t[0], 3, 16000, NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), ignore, NULL));
    pass(32000);
    assert_int_equal(run_callbacks(s), 1);
    for (size_t i = 0; i < LENGTH(expected); i++)
        assert_int_equal(event_of(expected[i].kind, expected[i].n)->time_ns - begin, expected[i].at);
}

/* A queue's tickets, one after the other: the last command buffer is over first, and its ticket ends behind the others
   (sentence 3), by the times, too; whether a look finds all of them, or the handlers come. */
ON_TRACE(test_S10_ends_come_in_the_order_of_tickets)
{
    for (unsigned handlers = 0; handlers < 2; handlers++) {
        void *buffers[6];
        begin_trace(s);
        for (unsigned i = 0; i < 6; i++)
            commit(s->q[handlers], buffers[i] = new_buffer(s->q[handlers]));
        for (unsigned i = 6; i-- > 0;) {
            assert_int_equal(count_of(GPUSYNC_TRACE_COMPLETED), 0);
            if (handlers)
                softmetal_finish(buffers[i]);
            else
                softmetal_complete(buffers[i]);
            pass(1000);
        }
        assert_ok(gpusync_poll(s->q[handlers], 6, NULL));
        for (unsigned i = 0; i < 6; i++) {
            const gpusync_trace_event *e = event_of(GPUSYNC_TRACE_COMPLETED, i);
            assert_int_equal(e->ticket, i + 1);
            assert_true(i == 0 || e->time_ns >= event_of(GPUSYNC_TRACE_COMPLETED, i - 1)->time_ns);
        }
        finish_all(s);
    }
}

static void expect_event(void *user, gpusync_result result, const gpusync_error *error)
{
    assert_int_equal(count_of(GPUSYNC_TRACE_CALLBACK), *(const unsigned *)user);
    assert_ok(result);
}

static void expect_begin(void *argument, unsigned park)
{
    assert_int_equal(park, 1);
    assert_int_equal(count_of(GPUSYNC_TRACE_WAIT_BEGIN), 1);
    assert_int_equal(count_of(GPUSYNC_TRACE_WAIT_END), 0);
}

/* Spans are drawn while they last: a callback's event comes before it runs, a wait's before it sleeps. */
ON_TRACE(test_S10_what_begins_is_told_before)
{
    const unsigned nth[] = {1, 2};
    begin_trace(s);
    assert_ok(gpusync_on_done(at(s->t[0], 1), expect_event, (void *)(uintptr_t)&nth[0]));
    assert_ok(gpusync_on_done(at(s->t[0], 1), expect_event, (void *)(uintptr_t)&nth[1]));
    signal_value(s->t[0], 1);
    assert_int_equal(run_callbacks(s), 2);
    while_parked(expect_begin, NULL);
    assert_result(gpusync_timeline_wait(s->t[0], 2, MS(1), NULL), GPUSYNC_TIMEOUT);
    while_parked(NULL, NULL);
}

/* -- set and unset ------------------------------------------------------------------------------------------------- */

static void count(void *user, const gpusync_trace_event *event)
{
    COUNT((unsigned *)user);
}

/* A debugger's menu switches the trace on, to another view, and off: each function gets what happens while it is
   set. */
ON_TRACE(test_S10_a_trace_is_set_and_unset)
{
    unsigned first = 0, second = 0;
    signal_value(s->t[0], 1);
    assert_ok(gpusync_device_set_trace(s->device, count, &first));
    assert_int_equal(first, 0); /* not what was before */
    signal_value(s->t[0], 2);
    assert_int_equal(first, 1);
    assert_ok(gpusync_device_set_trace(s->device, count, &second));
    signal_value(s->t[0], 3);
    signal_value(s->t[0], 4);
    assert_int_equal(first, 1);
    assert_int_equal(second, 2);
    assert_ok(gpusync_device_set_trace(s->device, NULL, &first));
    signal_value(s->t[0], 5);
    commit_new(s->q[0]);
    finish_all(s);
    assert_result(gpusync_timeline_wait(s->t[0], 9, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(first, 1);
    assert_int_equal(second, 2);
    assert_ok(gpusync_device_set_trace(s->device, NULL, NULL)); /* there is none: still OK */
    assert_result(gpusync_device_set_trace(NULL, count, &first), GPUSYNC_ERROR_INVALID_ARGUMENT);
}

static void set_inside(void *user, gpusync_result result, const gpusync_error *error)
{
    stage *s = (stage *)user;
    assert_result(gpusync_device_set_trace(s->device, NULL, NULL), GPUSYNC_ERROR_WOULD_DEADLOCK);
}

/* In a callback it would wait for itself: refused, and the function that was set is called as before. */
ON_TRACE(test_S10_a_trace_is_not_set_in_a_callback)
{
    begin_trace(s);
    assert_ok(gpusync_on_done(at(s->t[0], 1), set_inside, s));
    signal_value(s->t[0], 1);
    assert_int_equal(run_callbacks(s), 1);
    signal_value(s->t[0], 2);
    assert_int_equal(count_of(GPUSYNC_TRACE_SIGNAL), 2);
}

static gate door;

static void stay(void *user, const gpusync_trace_event *event)
{
    COUNT((unsigned *)user);
    if (event->kind != GPUSYNC_TRACE_COMPLETED)
        return;
    gate_wait(&door);
    gate_wait(&door);
}

/* A handler has begun and is in the trace's function: for a second the call waits for it, then nothing has changed.
   When the handler has gone, the trace ends at once, and with OK the function is not called any more. */
ON_TRACE(test_S10_a_trace_is_not_unset_under_a_handler)
{
    void *buffer = new_buffer(s->q[0]);
    unsigned calls = 0, other = 0;
    gate_init(&door, 2);
    assert_ok(gpusync_device_set_trace(s->device, stay, &calls));
    commit(s->q[0], buffer);
    softmetal_complete(buffer);
    softmetal_begin_handler(buffer, 0);
    gate_wait(&door);
    uint64_t begun = gpusync_now_ns();
    assert_result(gpusync_device_set_trace(s->device, count, &other), GPUSYNC_ERROR_IN_USE);
    assert_in_range(gpusync_now_ns() - begun, SECONDS(1), SECONDS(1) + MS(2));
    signal_value(s->t[0], 1);
    assert_int_equal(GET(&calls), 3); /* commit, completed, signal */
    assert_int_equal(other, 0);
    gate_wait(&door);
    softmetal_join_handler(buffer, 0);
    softmetal_finish(buffer);
    begun = gpusync_now_ns();
    assert_ok(gpusync_device_set_trace(s->device, NULL, NULL));
    assert_int_equal(gpusync_now_ns(), begun); /* nothing to wait for */
    signal_value(s->t[0], 2);
    assert_int_equal(calls, 3);
    gate_destroy(&door);
}

static void stay_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    gate_wait(&door);
    gate_wait(&door);
}

static gpusync_result run_all_callbacks(void *device)
{
    return gpusync_device_run_callbacks((gpusync_device *)device, SIZE_MAX, NULL);
}

/* A call of another thread runs a callback: it may be about to trace. */
ON_TRACE(test_S10_a_trace_is_not_unset_under_a_call)
{
    job j = {0};
    unsigned calls = 0;
    gate_init(&door, 2);
    assert_ok(gpusync_device_set_trace(s->device, count, &calls));
    assert_ok(gpusync_on_done(at(s->t[0], 1), stay_in_callback, NULL));
    signal_value(s->t[0], 1);
    job_call(&j, run_all_callbacks, s->device);
    gate_wait(&door);
    assert_result(gpusync_device_set_trace(s->device, NULL, NULL), GPUSYNC_ERROR_IN_USE);
    signal_value(s->t[0], 2);
    assert_int_equal(GET(&calls), 3); /* signal, callback, signal */
    gate_wait(&door);
    assert_ok(job_end(&j));
    assert_ok(gpusync_device_set_trace(s->device, NULL, NULL));
    gate_destroy(&door);
}

/* What is in flight is to end first: the call says IN_USE, and no handler meets half a trace. */
ON_TRACE(test_S10_a_trace_is_not_set_with_work_in_flight)
{
    unsigned calls = 0;
    commit_new(s->q[0]);
    assert_result(gpusync_device_set_trace(s->device, count, &calls), GPUSYNC_ERROR_IN_USE);
    finish_all(s);
    assert_int_equal(calls, 0);
    assert_ok(gpusync_device_set_trace(s->device, count, &calls));
    commit_new(s->q[0]);
    finish_all(s);
    assert_int_equal(calls, 2);
}

/* -- no lock ------------------------------------------------------------------------------------------------------- */

static struct {
    stage *s;
    bool inside;
    unsigned calls[LENGTH(kinds)];
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
    for (unsigned i = 0; i < 2; i++) {
        void *buffer = NULL;
        gpusync_result result = gpusync_command_buffer_create(s->q[i], NULL, 0, &buffer);
        if (result == GPUSYNC_OK)
            result = gpusync_commit(s->q[i], buffer, NULL);
        if (result != GPUSYNC_OK)
            return result;
    }
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
    job_end(&j);
    must(j.result == GPUSYNC_OK, gpusync_result_string(j.result));
    PUT(&look.inside, false);
}

ON_TRACE(test_S10_no_lock_is_held_in_a_trace)
{
    memset(&look, 0, sizeof look);
    look.s = s;
    assert_ok(gpusync_device_set_trace(s->device, let_another_thread_in, NULL));
    commit_new(s->q[0]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 2)),
           .on_complete = ignore);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_result(gpusync_timeline_wait(s->t[0], 9, 0, NULL), GPUSYNC_TIMEOUT);
    run_callbacks(s);
    finish_all(s);
    for (size_t i = 0; i < LENGTH(kinds); i++)
        if (!look.calls[i])
            fail_msg("no event of kind %s", kinds[i]);
    PUT(&look.inside, true);
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

static struct {
    stage *s;
    unsigned kind[LENGTH(kinds)], how[GPUSYNC_ENDED_UNMET + 1], failed;
} busy;

static void count_kinds(void *user, const gpusync_trace_event *event)
{
    check_fields(event);
    COUNT(&busy.kind[event->kind]);
    if (event->kind == GPUSYNC_TRACE_WAIT_END)
        COUNT(&busy.how[event->how]);
    if (event->kind == GPUSYNC_TRACE_COMPLETED && event->result != GPUSYNC_OK)
        COUNT(&busy.failed);
}

static void *work_hard(void *argument)
{
    gpusync_queue *queue = busy.s->q[(uintptr_t)argument];
    for (unsigned i = 0; i < 100; i++) {
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
    return NULL;
}

/* Trace and counts are two views of one thing: they agree, to the last event. */
on_stage_with(test_S10_a_trace_of_threads_agrees_with_the_counts, .queues = 4, .real = true,
              .device = {.hooks = &patient_hooks})
{
    pthread_t threads[4];
    gpusync_stats stats;
    memset(&busy, 0, sizeof busy);
    busy.s = s;
    assert_ok(gpusync_device_set_trace(s->device, count_kinds, NULL));
    for (uintptr_t i = 0; i < 4; i++)
        threads[i] = start(work_hard, (void *)i);
    for (unsigned i = 0; i < 4; i++)
        join(threads[i]);
    settle(s);
    assert_ok(gpusync_device_set_trace(s->device, NULL, NULL));
    assert_ok(gpusync_device_get_stats(s->device, NULL, &stats));
    assert_int_equal(busy.kind[GPUSYNC_TRACE_COMMIT] + busy.kind[GPUSYNC_TRACE_SUBMIT], stats.commits);
    assert_int_equal(busy.kind[GPUSYNC_TRACE_COMPLETED], stats.completions);
    assert_int_equal(busy.kind[GPUSYNC_TRACE_HOLD], stats.held);
    assert_int_equal(busy.kind[GPUSYNC_TRACE_SIGNAL], 4 * 75);
    assert_int_equal(busy.kind[GPUSYNC_TRACE_ISSUE], 4 * 75);
    assert_int_equal(busy.failed, stats.failures);
    assert_int_equal(busy.failed, 4 * 25);
    assert_int_equal(busy.kind[GPUSYNC_TRACE_WAIT_BEGIN], busy.kind[GPUSYNC_TRACE_WAIT_END]);
    assert_int_equal(busy.how[GPUSYNC_ENDED_INLINE], stats.waits_inline);
    assert_int_equal(busy.how[GPUSYNC_ENDED_STATUS], stats.waits_status);
    assert_int_equal(busy.how[GPUSYNC_ENDED_SPIN], stats.waits_spin);
    assert_int_equal(busy.how[GPUSYNC_ENDED_SLEEP], stats.waits_sleep);
    assert_int_equal(busy.how[GPUSYNC_ENDED_UNMET], stats.waits_unmet);
}

/* -- events that would mislead ------------------------------------------------------------------------------------- */

static void end_in_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase != SOFTMETAL_AFTER || strcmp(selector, "commit") != 0)
        return;
    pass(MS(1));
    softmetal_finish(object);
    pass(MS(1));
}

/* A quick GPU ends the work before the call that commits it has returned. Events may arrive in another order, but by
   their times a ticket is committed, or issued, then ended: a viewer that sorts by time draws no span with a negative
   length. */
ON_TRACE(test_S10_by_the_times_a_ticket_is_sent_before_it_ends)
{
    begin_trace(s);
    softmetal_set_message_hook(end_in_commit, NULL);
    commit_new(s->q[0]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    signal_value(s->t[0], 1);
    softmetal_set_message_hook(NULL, NULL);
    assert_true(event_of(GPUSYNC_TRACE_COMMIT, 0)->time_ns <= event_of(GPUSYNC_TRACE_COMPLETED, 0)->time_ns);
    assert_true(event_of(GPUSYNC_TRACE_SIGNAL, 0)->time_ns <= event_of(GPUSYNC_TRACE_ISSUE, 0)->time_ns);
    assert_true(event_of(GPUSYNC_TRACE_ISSUE, 0)->time_ns <= event_of(GPUSYNC_TRACE_COMPLETED, 1)->time_ns);
}

static void unpark_slowly(void *user, gpusync_waiter *waiter)
{
    unpark_passing(user, waiter);
    pass(MS(1)); /* the sleeper may be back by now */
}

static const gpusync_hooks slow_hooks = {.yield = yield_and_end, .park = park_and_pass, .unpark = unpark_slowly};

/* A ticket ends, and a sleeper is woken: the time of COMPLETED is that of the end, and not the one behind the unparks.
   Else a viewer shows a wait that is over before its ticket is. */
on_stage_with(test_S10_the_time_of_an_end_is_before_its_waits_return, .queues = 2, .device = {.hooks = &slow_hooks})
{
    begin_trace(s);
    commit_new(s->q[0]);
    uint64_t begun = gpusync_now_ns();
    while_parked(finish_in_park, s->q[0]);
    assert_ok(gpusync_wait(s->q[0], 1, SECONDS(1), NULL));
    while_parked(NULL, NULL);
    assert_int_equal(event_of(GPUSYNC_TRACE_COMPLETED, 0)->time_ns, begun);
}
