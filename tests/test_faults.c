/* test_faults.c - one program with everything in it, and one fault, at each place where there may be one

   The program of `play` makes a device, queues of both kinds, timelines and a warm-up; it encodes, commits, submits,
   holds, fails, cancels, discards, has callbacks, and destroys all of it in each way that there is. It runs again and
   again with a fault at the n-th place (enum fault), until there is no such place; with callbacks by hand, and QUEUED.

     missing   A call that refuses returns an error of its list and has changed nothing (S5, R16): no ticket is given,
               no object is made, and the same call succeeds once there is memory. Calls that list none never refuse.
     lost      The device is lost at a message, or as a buffer ends. What Metal has ends as it would have, held work
               with the loss, and new work is refused (T6). Or the GPU goes no further: destroy gives up after a second.
     handlers  of one buffer are lost, late, called twice, or run before the status turns: nothing changes (S4, R24).
     listeners are deaf, or hear twice: nothing changes (R18).

   In each run every ticket and value has a result that its rule allows, each callback that was accepted has run once,
   each ticket ends once in the trace, and nothing is left. */
#define GPUSYNC_IMPLEMENTATION
#include "still.h"

typedef enum fault {
    NOTHING,
    MEMORY,          /* the n-th block is missing; `on`: and every later one, until a call has refused */
    OBJECTS,         /* of Metal; likewise */
    DISPATCH_QUEUES, /* likewise */
    ALL_AT_TIMES,    /* there is neither, while what was accepted ends, and while all is destroyed */
    LOST_AT_MESSAGE, /* in the n-th message to Metal a buffer ends that tells of the loss; `on`: the last that ends */
    LOST_AT_END,     /* the n-th buffer that ends tells of it; likewise */
    HANDLER_LOST,    /* of the n-th buffer that ends. Not of Metal 4: such a ticket does not end */
    HANDLER_LATE,    /* ... until nothing else goes on */
    HANDLER_TWICE,
    STATUS_LATE, /* ... turns behind the handlers */
    DEAF,        /* from the n-th call on that listens, until all is to be destroyed; `on`: for ever */
    HEARD_TWICE  /* from the n-th call on that listens */
} fault;

enum { A, B, NEW, CULPRIT, QUEUES }; /* NEW is of Metal 4. CULPRIT has one buffer, which Metal has all the time */
enum { OWN, OTHERS, IMPORTED, ORDER, TIMELINES };

/* What is told: the ends of tickets, one of them twice, and of values. */
enum { OF_CULPRIT, HELD, MANY, HOST, MARKER, WAITER, OF_NEW, BAD, INHERITS, CANCELLED, LAST, COMPLETE, TICKETS };
enum { OWN_3 = TICKETS, OTHERS_1, IMPORTED_2, TOLD };

static const gpusync_result expected[TOLD] = {
    [OF_CULPRIT] = GPUSYNC_ERROR_DESTROYED, [BAD] = GPUSYNC_ERROR_EXECUTION, [INHERITS] = GPUSYNC_ERROR_EXECUTION,
    [CANCELLED] = GPUSYNC_ERROR_CANCELLED};

static struct run {
    fault what;
    bool on, queued;
    unsigned n, seen, refused; /* the place of the fault; places so far; calls */
    bool lost, incomplete;     /* the device; for a call was refused with that, or told it */
    void *culprit, *late;      /* buffers */
    unsigned begun, ended;     /* in the trace */
    unsigned sent;             /* ... after the loss */
    gpusync_result result;     /* of the last TRY */
} run;

static struct {
    gpusync_device *device;
    gpusync_queue *q[QUEUES];
    gpusync_timeline *t[TIMELINES];
    gpusync_warmup *warmup;
    void *metal[QUEUES], *witness;
    note gone; /* the witness */
    struct {
        gpusync_point point;
        note n;
        bool accepted;
    } told[TOLD];
} p;

static bool hangs(void) { return GET(&run.lost) && run.on; }
static bool place(void) { return COUNT(&run.seen) + 1 == run.n; }

static void all_is_missing(bool missing)
{
    memory_fail(missing, missing);
    softmetal_fail_creation(missing, missing);
    softmetal_fail_dispatch_queue(missing, missing);
}

/* Was it the fault that we made? From now on nothing is missing. */
static bool is_refusal(gpusync_result result)
{
    bool nil = result == GPUSYNC_ERROR_METAL_NIL || (result == GPUSYNC_ERROR_NO_DEVICE && !p.device);
    bool missing = run.what >= MEMORY && run.what <= DISPATCH_QUEUES && result == GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (!missing && !(nil && run.what == OBJECTS)) return false;
    if (run.what == MEMORY) assert_true(kit_now().refusals > 0);
    all_is_missing(false);
    run.refused++;
    return true;
}

/* In the run for it there is neither memory nor Metal's objects, while what was given ends (R16), and objects (R22). */
static void drought(bool begins)
{
    if (run.what == ALL_AT_TIMES) all_is_missing(begins);
}

/* On a lost device a call may say so, or that what it got was refused before, or has not come; of what a buffer was to
   bring whose end told of the loss, that it has failed. */
static bool is_of_the_loss(gpusync_result result)
{
    switch (result) {
    case GPUSYNC_ERROR_DEVICE_LOST: return GET(&run.lost);
    case GPUSYNC_OK: return run.incomplete || hangs();
    case GPUSYNC_ERROR_INVALID_ARGUMENT:
    case GPUSYNC_ERROR_UNKNOWN_BUFFER: return run.incomplete;
    case GPUSYNC_NOT_READY:
    case GPUSYNC_TIMEOUT: return hangs();
    case GPUSYNC_ERROR_EXECUTION: return GET(&run.lost) && run.what == LOST_AT_END;
    default: return false;
    }
}

static void judge(gpusync_result result, gpusync_result wanted, const char *call, int line)
{
    if (result != wanted && is_of_the_loss(result)) run.incomplete = true;
    else assert_result_at(result, wanted, call, __FILE__, line);
}
#define CHECK(call, wanted) judge((call), (wanted), #call, __LINE__)

/* The call, once more if it is refused, which has changed nothing. */
#define TRY_AND(call, unchanged)                        \
    do {                                                \
        run.result = (call);                            \
        if (is_refusal(run.result)) {                   \
            assert_true(unchanged);                     \
            run.result = (call);                        \
        }                                               \
        judge(run.result, GPUSYNC_OK, #call, __LINE__); \
    } while (0)
#define TRY(call) TRY_AND(call, true)

/* ... of a call that makes an object: NULL after a refusal. */
#define MAKE(call, out)                                    \
    do {                                                   \
        (out) = (void *)&run;                              \
        TRY_AND(call, !(out));                             \
        assert_true(!(out) == (run.result != GPUSYNC_OK)); \
    } while (0)

/* The end of what is at a point is to be told. */
static void tell(unsigned which, gpusync_point point)
{
    p.told[which].point = point;
    TRY(gpusync_on_done(point, remember, &p.told[which].n));
    p.told[which].accepted = run.result == GPUSYNC_OK;
}

/* ... of a call that gives a ticket, which is `ticket` there: S5, T14. */
#define ENTER(which, queue, call)                                              \
    do {                                                                       \
        uint64_t in_flight_ = gpusync_in_flight(queue);                        \
        gpusync_ticket ticket = -7;                                            \
        TRY_AND(call, ticket == -7 && gpusync_in_flight(queue) == in_flight_); \
        assert_true(run.result == GPUSYNC_OK ? ticket > 0 : ticket == -7);     \
        if (ticket > 0)                                                        \
            tell(which, ticket_at(queue, ticket));                             \
    } while (0)

/* -- the fault ---------------------------------------------------------------------------------------------------- */

/* Other threads may find the loss before the buffer's handler has returned. */
static void lose_with(void *buffer)
{
    PUT(&run.lost, true);
    softmetal_fail_as(buffer, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
}

/* Before a message, on its thread. */
static void at_message(void *user, softmetal_phase phase, void *object, const char *selector)
{
    softmetal_quirks quirks = {.deaf_to_everything = run.what == DEAF, .doubled_listeners = run.what == HEARD_TWICE};
    bool listens = strcmp(selector, "notifyListener:atValue:block:") == 0;
    if (phase != SOFTMETAL_BEFORE || (run.what != LOST_AT_MESSAGE && !listens) || !place()) return;
    if (run.what == LOST_AT_MESSAGE) {
        lose_with(run.culprit);
        softmetal_finish(run.culprit);
    } else softmetal_set_quirks(&quirks);
}

static void end_well_or_not(void *buffer, bool metal4)
{
    bool here = run.what >= LOST_AT_END && run.what < DEAF && !(run.what == HANDLER_LOST && metal4) && place();
    fault what = here ? run.what : NOTHING;
    if (what == LOST_AT_END) lose_with(buffer);
    if (what == HANDLER_LOST) softmetal_lose_handlers(buffer);
    if (what == STATUS_LATE) softmetal_status_after_handlers(buffer);
    if (what == HANDLER_LATE || what == HANDLER_TWICE) softmetal_complete(buffer);
    for (unsigned k = 0; what == HANDLER_TWICE && k < softmetal_handler_count(buffer); k++) {
        softmetal_run_handler(buffer, k);
        softmetal_call_handler_again(buffer, k);
    }
    if (what == HANDLER_LATE) run.late = buffer;
    else softmetal_finish(buffer);
}

static bool end_some(void)
{
    bool moved = false;
    for (unsigned i = 0; i < CULPRIT; i++) {
        void *buffer = p.metal[i] ? softmetal_first_in_line(p.metal[i]) : NULL;
        bool ends = buffer && !hangs() && softmetal_what_is_due(buffer) == SOFTMETAL_COMPLETE_DUE;
        if (ends) end_well_or_not(buffer, i == NEW);
        moved |= ends;
    }
    return moved;
}

/* A look at the whole device, and callbacks. The value never comes. */
static void look(void)
{
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    if (run.queued) CHECK(gpusync_timeline_wait(p.t[OTHERS], 99, MS(60), NULL), GPUSYNC_TIMEOUT);
    else CHECK(gpusync_device_run_callbacks(p.device, SIZE_MAX, NULL), GPUSYNC_OK);
    assert_true(softmetal_dispatched(SECONDS(60)));
}

/* Everything goes, until nothing does. */
static void go(void)
{
    bool moved = true;
    while (moved) {
        look();
        moved = end_some() || run.late;
        while (end_some()) look();
        if (run.late) softmetal_finish(run.late);
        run.late = NULL;
    }
}

/* Sent work ends with the loss where the GPU goes no further, held work always. Such an end passes to values. */
static bool is_allowed(unsigned which, gpusync_result result, bool ran)
{
    if (result == expected[which] || !GET(&run.lost)) return result == expected[which];
    if (result == GPUSYNC_ERROR_DEVICE_LOST) return run.on || which == OF_CULPRIT || !ran;
    if (result == GPUSYNC_ERROR_EXECUTION) return run.what == LOST_AT_END || which == OF_CULPRIT;
    return which >= TICKETS && result == GPUSYNC_ERROR_DESTROYED; /* a value that never came */
}

static void judge_told(bool ended)
{
    for (unsigned i = 0; i < TOLD; i++) {
        const note *n = &p.told[i].n;
        assert_in_range(n->calls, ended && p.told[i].accepted, p.told[i].accepted);
        if (n->calls && !is_allowed(i, n->result, n->error.ran))
            fail_msg("%u has ended with %d, %s", i, n->result, gpusync_result_string(n->result));
        if (n->has_error && !GET(&run.lost)) assert_int_equal(n->error.in_use, i == OF_CULPRIT);
    }
}

/* Polls say what callbacks have said. */
static void poll_tickets(unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++) {
        if (p.told[i].accepted && p.told[i].point.queue) /* UNORDERED work has no ticket */
            CHECK(gpusync_poll(p.told[i].point.queue, p.told[i].point.ticket, NULL),
                  p.told[i].n.calls ? p.told[i].n.result : GPUSYNC_NOT_READY);
        if (!GET(&run.lost)) assert_int_equal(p.told[i].n.calls, 1);
    }
    judge_told(false);
}

static void see_value(unsigned timeline, uint64_t wanted, gpusync_result result)
{
    uint64_t value = 0;
    CHECK(gpusync_timeline_query(p.t[timeline], &value, NULL), result);
    if (!GET(&run.lost)) assert_int_equal(value, wanted);
}

static void trace(void *user, const gpusync_trace_event *event)
{
    if (event->kind == GPUSYNC_TRACE_COMMIT) COUNT(&run.begun);
    if (event->kind == GPUSYNC_TRACE_ENDED) COUNT(&run.ended);
    if (event->kind == GPUSYNC_TRACE_SENT && GET(&run.lost)) COUNT(&run.sent);
}

static const gpusync_trace tracing = {trace, NULL};

/* -- the program -------------------------------------------------------------------------------------------------- */

static void *make_buffer(unsigned queue)
{
    const gpusync_command_buffer_desc desc = {.label = "buffer"};
    void *buffer;
    MAKE(gpusync_command_buffer_create(p.q[queue], &desc, 0, &buffer), buffer);
    return buffer;
}

/* The program's own call, which may get nil, too. */
static void *foreign_one(unsigned queue)
{
    void *buffer = metal_queue_command_buffer(gpusync_queue_metal(p.q[queue]));
    if (!buffer && !run.incomplete) assert_true(is_refusal(GPUSYNC_ERROR_METAL_NIL));
    return buffer || run.incomplete ? buffer : foreign_buffer(p.q[queue]);
}

static gpusync_result make(void *user, size_t i, void **made, gpusync_error *error)
{
    *made = metal_pipeline_new(gpusync_device_metal(p.device), "kernel void mark()", "mark", NULL, 0);
    return *made ? GPUSYNC_OK : GPUSYNC_ERROR_COMPILE;
}

static void make_objects(void *event)
{
    const gpusync_device_desc device = {
        .hooks = &passing_hooks, .spin = &no_spin, .log = kit_log, .callback_mode = (gpusync_callback_mode)!run.queued};
    const gpusync_queue_desc queues[QUEUES] = {
        {.label = "a", .sticky_failure = true, .max_command_buffer_count = 40},
        {.label = "b", .max_command_buffer_count = 40}, {.label = "new"}, {.label = "culprit"}};
    const gpusync_timeline_desc timelines[TIMELINES] = {
        {.label = "own"}, {.label = "others", .signalled_by_others = true},
        {.label = "imported", .shared_event = event}, {.label = "order", .order_only = true}};
    const gpusync_warmup_desc warmup = {make, NULL, 1, false};
    MAKE(gpusync_device_create(&device, &p.device), p.device);
    assert_ok(gpusync_device_set_trace(p.device, &tracing));
    for (int i = QUEUES - 1; i >= 0; i--) {
        if (i == NEW) MAKE(gpusync_metal4_queue_create(p.device, &queues[i], &p.q[i]), p.q[i]);
        else MAKE(gpusync_queue_create(p.device, &queues[i], &p.q[i]), p.q[i]);
        p.metal[i] = metal_retain(gpusync_queue_metal(p.q[i]));
        if (i == CULPRIT) { /* from here on the device may be lost */
            run.culprit = make_buffer(CULPRIT);
            ENTER(OF_CULPRIT, p.q[CULPRIT], gpusync_commit(p.q[CULPRIT], run.culprit, &ticket));
            if (run.what >= DEAF || run.what == LOST_AT_MESSAGE) softmetal_set_message_hook(at_message, NULL);
        }
    }
    for (int i = 0; i < TIMELINES; i++) MAKE(gpusync_timeline_create(p.device, &timelines[i], &p.t[i]), p.t[i]);
    MAKE(gpusync_warmup_start(p.device, &warmup, &p.warmup), p.warmup);
    assert_true(softmetal_dispatched(SECONDS(60)));
    run.result = gpusync_warmup_wait(p.warmup, 0, NULL, NULL);
    if (run.what != OBJECTS || run.result != GPUSYNC_ERROR_COMPILE) CHECK(run.result, GPUSYNC_OK);
}

static void give_work(void *recorded)
{
    enum { LOTS = 6 };
    gpusync_queue *a = p.q[A], *b = p.q[B], *new = p.q[NEW];
    gpusync_timeline *own = p.t[OWN], *order = p.t[ORDER];
    void *buffer, *buffers[LOTS];
    gpusync_point waits[LOTS], signals[] = {at(own, 3), at(order, 2)};
    gpusync_point others_1 = at(p.t[OTHERS], 1), own_3 = at(own, 3), order_3 = at(order, 3);
    const uint32_t on_gpu = GPUSYNC_SUBMIT_ON_GPU;
    gpusync_submission many = {waits, LOTS, buffers, LOTS, signals, 2, remember, &p.told[COMPLETE].n, "many", on_gpu};
    gpusync_submission host = {.wait_points = &others_1, .wait_count = 1, .on_complete = remember,
                               .user = &p.told[HOST].n, .flags = GPUSYNC_SUBMIT_UNORDERED};
    gpusync_submission of_new = {&own_3, 1, &recorded, 1, &order_3, 1, NULL, NULL, "of new", on_gpu};
    /* Encoded points: held for own:1, which the host signals. */
    buffer = make_buffer(A);
    TRY(gpusync_encode_wait(a, buffer, at(own, 1)));
    TRY(gpusync_encode_signal(a, buffer, at(own, 2)));
    TRY(gpusync_encode_signal(a, buffer, at(order, 1)));
    ENTER(HELD, a, gpusync_commit(a, buffer, &ticket));
    /* A buffer made elsewhere is open from its first point on. */
    buffer = foreign_one(B);
    TRY(gpusync_encode_wait(b, buffer, p.told[HELD].point));
    CHECK(gpusync_command_buffer_discard(b, buffer), GPUSYNC_OK);
    metal_release(buffer);
    /* More buffers and points than find room in the work itself. */
    for (unsigned i = 0; i < LOTS; i++) {
        buffers[i] = make_buffer(B);
        waits[i] = i % 2 ? at(own, 2) : p.told[HELD].point;
    }
    ENTER(MANY, b, gpusync_submit(b, &many, &ticket));
    p.told[COMPLETE].accepted = p.told[MANY].accepted;
    p.witness = softmetal_new_witness(remember_destroyed, &p.gone);
    TRY(gpusync_release_after(b, p.told[MANY].point.ticket, p.witness));
    metal_release(p.witness);
    /* For values of other code. */
    uint64_t before = gpusync_in_flight(a);
    TRY_AND(gpusync_submit(a, &host, NULL), gpusync_in_flight(a) == before);
    p.told[HOST].accepted = run.result == GPUSYNC_OK;
    buffer = make_buffer(B);
    TRY(gpusync_encode_wait(b, buffer, at(p.t[IMPORTED], 1)));
    TRY(gpusync_encode_signal(b, buffer, at(p.t[IMPORTED], 2)));
    ENTER(WAITER, b, gpusync_commit(b, buffer, &ticket));
    ENTER(MARKER, b, gpusync_commit_marker(b, NULL, &ticket));
    ENTER(OF_NEW, new, gpusync_submit(new, &of_new, &ticket));
    tell(OWN_3, own_3);
    tell(OTHERS_1, others_1);
    tell(IMPORTED_2, at(p.t[IMPORTED], 2));
}

static void see_work_end(void)
{
    gpusync_point points[20];
    size_t i, which = 0;
    drought(true);
    if (GET(&run.lost) && p.told[HELD].accepted) /* it has ended with the loss, and not with the value */
        assert_result(gpusync_poll(p.q[A], p.told[HELD].point.ticket, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    CHECK(gpusync_timeline_signal(p.t[OWN], 1), GPUSYNC_OK);
    go();
    metal_event_signal(gpusync_timeline_metal(p.t[OTHERS], NULL), 1);
    metal_event_signal(gpusync_timeline_metal(p.t[IMPORTED], NULL), 1);
    go();
    poll_tickets(HELD, OF_NEW + 1);
    see_value(OWN, 3, GPUSYNC_OK);
    see_value(OTHERS, 1, GPUSYNC_OK);
    see_value(IMPORTED, 2, GPUSYNC_OK);
    see_value(ORDER, 3, GPUSYNC_OK);
    drought(false);
    for (i = 0; i < LENGTH(points); i++) points[i] = i % 2 ? at(p.t[OWN], 1 + i % 3) : p.told[MANY].point;
    TRY(gpusync_wait_many(points, LENGTH(points), GPUSYNC_WAIT_ALL, 0, NULL, &which));
    if (!GET(&run.lost)) assert_true(which == LENGTH(points) && p.gone.calls == 1);
}

/* A failure that sticks, what waits for it, what is cancelled. */
static void fail_and_cancel(void)
{
    gpusync_queue *a = p.q[A], *b = p.q[B];
    gpusync_error sticks;
    void *buffer = make_buffer(A);
    if (buffer) softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    TRY(gpusync_encode_signal(a, buffer, at(p.t[OWN], 4)));
    ENTER(BAD, a, gpusync_commit(a, buffer, &ticket));
    buffer = make_buffer(B);
    TRY(gpusync_encode_wait(b, buffer, at(p.t[OWN], 4)));
    ENTER(INHERITS, b, gpusync_commit(b, buffer, &ticket));
    buffer = make_buffer(B);
    TRY(gpusync_encode_wait(b, buffer, at(p.t[ORDER], 9)));
    TRY(gpusync_encode_signal(b, buffer, at(p.t[ORDER], 10)));
    ENTER(CANCELLED, b, gpusync_commit(b, buffer, &ticket));
    drought(true);
    CHECK(gpusync_queue_cancel_held(b, GPUSYNC_EVERYTHING), GPUSYNC_OK);
    go();
    poll_tickets(BAD, CANCELLED + 1);
    see_value(OWN, 3, GPUSYNC_ERROR_EXECUTION);
    see_value(ORDER, 10, GPUSYNC_OK);
    CHECK(gpusync_wait(a, GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    CHECK(gpusync_command_buffer_create(a, NULL, 0, &buffer), GPUSYNC_ERROR_EXECUTION);
    CHECK(gpusync_queue_failure(a, &sticks), p.told[BAD].accepted ? GPUSYNC_OK : GPUSYNC_NOT_READY);
    CHECK(gpusync_queue_clear_failure(a, GPUSYNC_EVERYTHING), GPUSYNC_OK);
    if (!GET(&run.lost)) {
        assert_int_equal(sticks.ticket, p.told[BAD].point.ticket);
        assert_int_equal(failure_at(a, 0).failure, GPUSYNC_FAILURE_PAGE_FAULT);
        assert_int_equal(failures_of(a), 1);
        assert_int_equal(failures_of(b), 2);
    }
    drought(false);
}

static void destroy_all(void)
{
    note of_queue = {0}, of_timeline = {0}, of_device = {0};
    void *open = make_buffer(B);
    ENTER(LAST, p.q[A], gpusync_commit(p.q[A], make_buffer(A), &ticket));
    TRY(gpusync_encode_signal(p.q[B], open, at(p.t[ORDER], 20)));
    for (unsigned i = 0; i < TIMELINES && run.what == DEAF && !run.on; i++) {
        softmetal_set_quirks(&(softmetal_quirks){0});
        softmetal_tell_listeners(gpusync_timeline_metal(p.t[i], NULL));
    }
    drought(true);
    assert_ok(gpusync_queue_destroy_later(p.q[A], remember_destroyed, &of_queue));
    assert_ok(gpusync_timeline_destroy_later(p.t[OWN], remember_destroyed, &of_timeline));
    go();
    CHECK(gpusync_queue_destroy(p.q[B]), GPUSYNC_OK);
    CHECK(gpusync_queue_destroy(p.q[NEW]), GPUSYNC_OK);
    softmetal_set_message_hook(NULL, NULL);
    assert_ok(gpusync_queue_abandon(p.q[CULPRIT]));
    if (hangs()) /* the second passes */
        CHECK(gpusync_timeline_wait(p.t[OTHERS], 99, SECONDS(2), NULL), GPUSYNC_ERROR_DEVICE_LOST);
    look();
    look(); /* `destroyed` becomes due when the other callbacks have run */
    assert_int_equal(calls_of(&of_queue), p.q[A] != NULL);
    assert_int_equal(calls_of(&of_timeline), p.t[OWN] != NULL);
    for (unsigned i = OTHERS; i < TIMELINES; i++) assert_ok(gpusync_timeline_destroy(p.t[i]));
    assert_ok(gpusync_warmup_destroy(p.warmup));
    if (run.queued) assert_ok(gpusync_device_destroy_later(p.device, remember_destroyed, &of_device));
    else assert_ok(gpusync_device_destroy(p.device));
    assert_int_equal(calls_of(&of_device), run.queued);
    drought(false);
}

static void play(stage *s)
{
    void *device = s->metal_device, *event = metal_shared_event_new(device);
    void *recorded = metal4_buffer_new(device), *allocator = metal4_allocator_new(device);
    uint64_t began = GET(&still_now);
    metal4_begin(recorded, allocator);
    metal4_end(recorded);
    memory_fail(run.what == MEMORY ? (long)run.n : 0, run.on);
    softmetal_fail_creation(run.what == OBJECTS ? run.n : 0, run.on);
    softmetal_fail_dispatch_queue(run.what == DISPATCH_QUEUES ? run.n : 0, run.on);
    make_objects(event);
    give_work(recorded);
    see_work_end();
    fail_and_cancel();
    destroy_all();
    if (run.what == OBJECTS ? softmetal_creations() >= run.n : run.what == MEMORY && kit_now().refusals > 0)
        run.refused++;
    all_is_missing(false);
    if (!run.queued) /* else time passes while a destroy waits for a callback that runs */
        assert_true(GET(&still_now) - began < SECONDS(3)); /* the second of a loss, and that of the device's end */
    judge_told(true);
    assert_int_equal(run.begun, run.ended);
    assert_in_range(run.sent, 0, 1); /* that which a thread sends at the loss */
    assert_true(p.gone.calls == 1 || (hangs() && !p.gone.calls));
    if (!p.gone.calls) metal_release(p.witness);
    for (unsigned i = 0; i < 2 * QUEUES; i++) /* what was given up goes on */
        while (p.metal[i % QUEUES] && finish_next_of(p.metal[i % QUEUES])) {}
    for (unsigned i = 0; i < QUEUES; i++) metal_release(p.metal[i]);
    metal_release(recorded);
    metal_release(allocator);
    metal_release(event);
}

/* There are hundreds of messages: less of these runs where each takes long, and with callbacks on a dispatch queue. */
#define STEP(queued) ((SLOW > 1 ? 7u : 1u) * ((queued) ? 5u : 1u))

static void each_place(void **state)
{
    const stage_desc desc = {.no_queue = true, .device.hooks = &passing_hooks};
    const struct run *row = (const struct run *)*state;
    bool queued = false;
    unsigned n = 0;
    stage s;
    do {
        n += row->what == LOST_AT_MESSAGE ? STEP(queued) : 1;
        run = (struct run){.what = row->what, .on = row->on, .queued = queued, .n = n};
        memset(&p, 0, sizeof p);
        stage_open(&s, &desc);
        play(&s);
        stage_close(&s);
        if (run.refused > 0 || run.seen >= n) continue;
        assert_true(n > row->n);
        n = 0;
        queued = !queued;
    } while (n || queued);
}

static int tell_place(void **state)
{
    print_message("the last run had its fault at place %u, callbacks %s\n", run.n, run.queued ? "QUEUED" : "MANUAL");
    return 0;
}

/* The last number: at least so many places. */
#define EACH(name, fault, last, least) \
    {"test_" name, each_place, NULL, tell_place, &(struct run){.what = fault, .on = last, .n = least}}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH("S1_to_S8_a_program_without_a_fault", NOTHING, false, 0),
        EACH("S5_R16_each_block_of_memory_is_missing_once", MEMORY, false, 40),
        EACH("S5_R16_all_memory_is_missing_from_some_block_on", MEMORY, true, 40),
        EACH("S5_each_object_of_Metal_is_missing_once", OBJECTS, false, 30),
        EACH("S5_all_objects_of_Metal_are_missing_from_some_on", OBJECTS, true, 30),
        EACH("S5_each_dispatch_queue_is_missing_once", DISPATCH_QUEUES, false, 2),
        EACH("S5_all_dispatch_queues_are_missing_from_some_on", DISPATCH_QUEUES, true, 2),
        EACH("R16_R22_what_is_accepted_ends_without_memory", ALL_AT_TIMES, false, 0),
        EACH("T6_the_device_is_lost_at_each_message", LOST_AT_MESSAGE, false, 250),
        EACH("T6_the_device_is_lost_at_each_message_and_hangs", LOST_AT_MESSAGE, true, 250),
        EACH("T6_the_device_is_lost_with_each_command_buffer", LOST_AT_END, false, 14),
        EACH("T6_the_device_is_lost_with_each_command_buffer_and_hangs", LOST_AT_END, true, 14),
        EACH("R24_the_handler_of_each_command_buffer_is_lost", HANDLER_LOST, false, 13),
        EACH("R24_the_handler_of_each_command_buffer_is_late", HANDLER_LATE, false, 14),
        EACH("S4_the_handler_of_each_command_buffer_runs_twice", HANDLER_TWICE, false, 14),
        EACH("S4_the_status_of_each_command_buffer_turns_behind_its_handler", STATUS_LATE, false, 14),
        EACH("R18_each_call_that_listens_hears_nothing_until_late", DEAF, false, 2),
        EACH("R18_each_call_that_listens_hears_nothing", DEAF, true, 2),
        EACH("R18_each_call_that_listens_hears_twice", HEARD_TWICE, false, 2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
