/* test_trace.c - gpusync_set_trace: every event, with the right fields, at the right time; and the counts of wake-ups

   Every event is noted, with the thread that told it and whether that held a lock of gpusync's at the time. The manual
   clock makes the moments: what happens between two of them has a time between theirs.

   It also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

#define MAX_NOTED 40000u

/* -- what was told ---------------------------------------------------------------------------------------------- */

typedef struct noted {
    gpusync_trace_event event;
    char label[64];
    pthread_t thread;
    bool locked; /* by the thread that told it */
} noted;

typedef struct trace {
    noted *events;
    unsigned count;
} trace;

static void note(void *user, const gpusync_trace_event *event)
{
    trace *t = (trace *)user;
    unsigned n = __atomic_fetch_add(&t->count, 1, __ATOMIC_SEQ_CST);
    noted *made;
    if (n >= MAX_NOTED) abort();
    made = &t->events[n];
    made->event = *event;
    made->thread = pthread_self();
    snprintf(made->label, sizeof made->label, "%s", event->label);
    made->locked = !probe_holds_no_lock();
}

static void trace_on(trace *t, gpusync_device *device)
{
    memset(t, 0, sizeof *t);
    t->events = (noted *)calloc(MAX_NOTED, sizeof *t->events);
    assert_non_null(t->events);
    assert_ok(gpusync_set_trace(device, note, t));
}

static void trace_free(trace *t)
{
    unsigned i;
    for (i = 0; i < t->count; i++) assert_false(t->events[i].locked);
    free(t->events);
    t->events = NULL;
}

/* A rig with one queue, traced from the start. */
static void open_traced(rig *r, trace *t, softmetal_clock clock)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.label = "traced";
    device_desc.spin = &no_spin;
    rig_open_with(r, clock, device_desc, queue_desc);
    trace_on(t, r->device);
}

static void close_traced(rig *r, trace *t)
{
    rig_close(r);
    trace_free(t);
}

/* Events, once the callbacks that are due have run. */
static unsigned count_of(const trace *t)
{
    assert_true(softmetal_dispatched(SECONDS(20)));
    return t->count;
}

static unsigned told(const trace *t, gpusync_trace_kind kind)
{
    unsigned i, n = 0;
    for (i = 0; i < count_of(t); i++) n += t->events[i].event.kind == kind;
    return n;
}

static unsigned told_of(const trace *t, gpusync_trace_kind kind, const gpusync_queue *queue, gpusync_ticket ticket)
{
    unsigned i, n = 0;
    for (i = 0; i < count_of(t); i++) {
        const gpusync_trace_event *e = &t->events[i].event;
        n += e->kind == kind && e->queue == queue && e->ticket == ticket;
    }
    return n;
}

/* The one event of this kind about this ticket. */
#define the(t, kind, queue, ticket) the_at(t, kind, queue, ticket, __FILE__, __LINE__)
static const noted *the_at(const trace *t, gpusync_trace_kind kind, const gpusync_queue *queue, gpusync_ticket ticket,
                           const char *file, int line)
{
    const noted *found = NULL;
    unsigned i, n = told_of(t, kind, queue, ticket);
    for (i = 0; i < t->count && !found; i++) {
        const gpusync_trace_event *e = &t->events[i].event;
        if (e->kind == kind && e->queue == queue && e->ticket == ticket) found = &t->events[i];
    }
    if (n == 1) return found;
    print_error("%u events of kind %d about ticket %llu\n", n, (int)kind, (unsigned long long)ticket);
    _fail(file, line);
    return NULL;
}

static uint64_t time_of(const trace *t, gpusync_trace_kind kind, const gpusync_queue *queue, gpusync_ticket ticket)
{
    return the(t, kind, queue, ticket)->event.time_ns;
}

/* The one event of this kind about this value. */
static const noted *the_value(const trace *t, gpusync_trace_kind kind, const gpusync_timeline *timeline, uint64_t value)
{
    const noted *found = NULL;
    unsigned i, n = 0;
    for (i = 0; i < count_of(t); i++) {
        const gpusync_trace_event *e = &t->events[i].event;
        if (e->kind != kind || e->timeline != timeline || e->value != value) continue;
        found = &t->events[i];
        n++;
    }
    assert_int_equal(n, 1);
    return found;
}

/* Nothing but what the kind has. */
static void assert_about_ticket(const noted *n, const char *label, gpusync_result result)
{
    assert_null(n->event.timeline);
    assert_int_equal(n->event.value, 0);
    assert_string_equal(n->label, label);
    assert_result(n->event.result, result);
    assert_int_equal(n->event.how, 0);
    if (n->event.kind == GPUSYNC_TRACE_COMPLETED) return;
    assert_true(n->event.gpu_start_s == 0 && n->event.gpu_end_s == 0);
}

/* Its time is not after that of the end. */
static void assert_before_its_end(const trace *t, gpusync_trace_kind before, const gpusync_queue *queue,
                                  gpusync_ticket ticket)
{
    assert_true(time_of(t, before, queue, ticket) <= time_of(t, GPUSYNC_TRACE_COMPLETED, queue, ticket));
}

static void assert_about_value(const noted *n, const char *label, gpusync_result result)
{
    assert_null(n->event.queue);
    assert_int_equal(n->event.ticket, 0);
    assert_string_equal(n->label, label);
    assert_result(n->event.result, result);
    assert_true(n->event.gpu_start_s == 0 && n->event.gpu_end_s == 0);
}

static gpusync_timeline *new_timeline(rig *r, const char *label)
{
    gpusync_timeline_desc desc;
    gpusync_timeline *timeline;
    memset(&desc, 0, sizeof desc);
    desc.label = label;
    assert_ok(gpusync_timeline_create(r->device, &desc, &timeline));
    return timeline;
}

static void ignore(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)result, (void)error;
}

typedef struct told_first {
    const trace *trace;
    unsigned ended;
} told_first;

/* A callback that has been told of. */
static void count_end(void *user, gpusync_result result, const gpusync_error *error)
{
    told_first *t = (told_first *)user;
    (void)error;
    if (result != GPUSYNC_OK || told(t->trace, GPUSYNC_TRACE_CALLBACK) != ++t->ended) abort();
}

/* A submission of one command buffer with a label, a wait, a signal and a callback, each where it is given. */
static gpusync_ticket submit_one(rig *r, void **buffer, gpusync_timeline *waits, gpusync_timeline *signals,
                                 gpusync_done_fn fn)
{
    gpusync_submission work;
    gpusync_point wait, signal;
    gpusync_ticket ticket;
    void *made = open_buffer(r);
    memset(&work, 0, sizeof work);
    memset(&wait, 0, sizeof wait);
    memset(&signal, 0, sizeof signal);
    wait.timeline = waits;
    signal.timeline = signals;
    wait.value = signal.value = 1;
    work.waits = &wait;
    work.wait_count = waits != NULL;
    work.signals = &signal;
    work.signal_count = signals != NULL;
    work.command_buffers = &made;
    work.command_buffer_count = 1;
    work.flags = SIGNALS_INSIDE;
    work.on_complete = fn;
    work.label = "the work";
    assert_ok(submit_as_told(r->queue, &work, &ticket));
    if (buffer) *buffer = made;
    return ticket;
}

/* -- commits ---------------------------------------------------------------------------------------------------- */

static void test_commit_and_completed(void **state)
{
    rig r;
    trace t;
    void *buffer;
    gpusync_ticket ticket;
    gpusync_ticket_info info;
    uint64_t times[4];
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    times[0] = gpusync_now_ns();
    ticket = commit_empty(&r, &buffer);
    times[1] = gpusync_now_ns();
    assert_int_equal(count_of(&t), 1);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMMIT, r.queue, ticket), "traced", GPUSYNC_OK);
    softmetal_schedule(buffer);
    assert_int_equal(count_of(&t), 1);
    times[2] = gpusync_now_ns();
    softmetal_finish(buffer);
    times[3] = gpusync_now_ns();
    assert_int_equal(count_of(&t), 2);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket), "traced", GPUSYNC_OK);
    assert_in_range(time_of(&t, GPUSYNC_TRACE_COMMIT, r.queue, ticket), times[0], times[1]);
    assert_in_range(time_of(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket), times[2], times[3]);
    assert_ok(gpusync_get_info(r.queue, ticket, &info));
    assert_true(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket)->event.gpu_start_s == info.gpu_start_s);
    assert_true(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket)->event.gpu_end_s == info.gpu_end_s);
    assert_true(info.gpu_start_s > 0 && info.gpu_end_s >= info.gpu_start_s);
    close_traced(&r, &t);
}

static void finish_at_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    unsigned *left = (unsigned *)user;
    if (phase != SOFTMETAL_AFTER || strncmp(selector, "commit", 6) || !*left) return;
    --*left;
    if (metal4_run()) softmetal_finish_queue(object);
    else softmetal_finish(object);
}

/* A GPU that is quicker than the call: the events arrive in another order, and have their times in this one. */
static void test_commit_is_before_its_end(void **state)
{
    rig r;
    trace t;
    gpusync_ticket ticket;
    unsigned left = 1;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    softmetal_set_message_hook(finish_at_commit, &left);
    ticket = commit_empty(&r, NULL);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(left, 0);
    assert_before_its_end(&t, GPUSYNC_TRACE_COMMIT, r.queue, ticket);
    close_traced(&r, &t);
}

/* The second ends while the first runs: the event is about the second. */
static void test_an_end_out_of_order_is_told_of_its_ticket(void **state)
{
    rig r;
    trace t;
    void *buffers[2];
    gpusync_ticket tickets[2];
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    tickets[0] = commit_empty(&r, &buffers[0]);
    tickets[1] = commit_empty(&r, &buffers[1]);
    softmetal_finish(buffers[1]);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, tickets[1]), "traced", GPUSYNC_OK);
    assert_int_equal(count_of(&t), 3);
    softmetal_finish(buffers[0]);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, tickets[0]), "traced", GPUSYNC_OK);
    assert_int_equal(count_of(&t), 4);
    close_traced(&r, &t);
}

/* No event tells of a commit that fails. */
static void test_no_event_of_what_did_not_happen(void **state)
{
    rig r;
    trace t;
    void *buffer;
    gpusync_ticket ticket;
    gpusync_submission work;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    memset(&work, 0, sizeof work);
    if (metal4_run()) {
        assert_result(gpusync_commit(r.queue, buffer, NULL), GPUSYNC_ERROR_UNSUPPORTED);
        assert_result(gpusync_submit(r.queue, &work, NULL), GPUSYNC_ERROR_UNSUPPORTED);
    } else {
        assert_result(gpusync_commit(r.queue, buffer, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
        work.command_buffers = &buffer;
        work.command_buffer_count = 1;
        assert_result(gpusync_submit(r.queue, &work, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    }
    assert_result(gpusync_wait(r.queue, ticket + 1, 0), GPUSYNC_ERROR_INVALID_TICKET);
    assert_int_equal(count_of(&t), 1);
    softmetal_finish(buffer);
    assert_int_equal(count_of(&t), 2);
    close_traced(&r, &t);
}

static void test_tracked(void **state)
{
    rig r;
    trace t;
    void *buffer;
    gpusync_ticket ticket;
    (void)state;
    NOT_ON_METAL4("no track");
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    buffer = metal_queue_command_buffer(r.metal_queue);
    assert_ok(gpusync_track(r.queue, buffer, &ticket));
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMMIT, r.queue, ticket), "traced", GPUSYNC_OK);
    metal_commit(buffer);
    softmetal_finish(buffer);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket), "traced", GPUSYNC_OK);
    metal_release(buffer);
    assert_int_equal(count_of(&t), 2);

    buffer = metal_queue_command_buffer(r.metal_queue); /* its owner thinks better of it */
    assert_ok(gpusync_track(r.queue, buffer, &ticket));
    assert_ok(gpusync_untrack(r.queue, ticket));
    metal_release(buffer);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket), "traced", GPUSYNC_ERROR_CANCELLED);
    close_traced(&r, &t);
}

static void test_failed(void **state)
{
    rig r;
    trace t;
    void *buffer;
    gpusync_ticket ticket;
    const noted *end;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), ignore, NULL));
    softmetal_fail(buffer, NULL, 3, "page fault");
    softmetal_finish(buffer);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket), "traced", GPUSYNC_ERROR_EXECUTION);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_CALLBACK, r.queue, ticket), "traced", GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait(r.queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    end = the(&t, GPUSYNC_TRACE_WAIT_END, r.queue, ticket);
    assert_int_equal(end->event.how, GPUSYNC_ENDED_INLINE);
    assert_result(end->event.result, GPUSYNC_ERROR_EXECUTION); /* what the wait returned */
    close_traced(&r, &t);
}

/* -- submissions ------------------------------------------------------------------------------------------------ */

static void test_submission(void **state)
{
    rig r;
    trace t;
    void *buffer;
    gpusync_timeline *signals;
    gpusync_ticket ticket;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    signals = new_timeline(&r, "signals");
    ticket = submit_one(&r, &buffer, NULL, signals, ignore);
    assert_int_equal(count_of(&t), 2); /* SUBMIT, ISSUE */
    softmetal_finish(buffer);
    assert_int_equal(count_of(&t), 5);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_SUBMIT, r.queue, ticket), "the work", GPUSYNC_OK);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_ISSUE, r.queue, ticket), "the work", GPUSYNC_OK);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket), "the work", GPUSYNC_OK);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_CALLBACK, r.queue, ticket), "the work", GPUSYNC_OK);
    assert_about_value(the_value(&t, GPUSYNC_TRACE_SIGNAL, signals, 1), "signals", GPUSYNC_OK);
    assert_true(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket)->event.gpu_end_s > 0);
    assert_ok(gpusync_timeline_destroy(signals));
    close_traced(&r, &t);
}

/* Whatever order they arrive in: cause before effect. */
static void test_times_are_in_order_of_cause(void **state)
{
    rig r;
    trace t;
    void *buffer;
    gpusync_timeline *waits, *signals;
    gpusync_ticket ticket;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    waits = new_timeline(&r, "waits"), signals = new_timeline(&r, "signals");
    ticket = submit_one(&r, &buffer, waits, signals, ignore);
    assert_ok(gpusync_timeline_signal(waits, 1));
    softmetal_finish_queue(r.metal_queue);
    assert_true(time_of(&t, GPUSYNC_TRACE_SUBMIT, r.queue, ticket) <= time_of(&t, GPUSYNC_TRACE_HOLD, r.queue, ticket));
    assert_true(time_of(&t, GPUSYNC_TRACE_HOLD, r.queue, ticket) <=
                the_value(&t, GPUSYNC_TRACE_SIGNAL, waits, 1)->event.time_ns);
    assert_true(the_value(&t, GPUSYNC_TRACE_SIGNAL, waits, 1)->event.time_ns <=
                time_of(&t, GPUSYNC_TRACE_ISSUE, r.queue, ticket));
    assert_true(time_of(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket) <=
                time_of(&t, GPUSYNC_TRACE_CALLBACK, r.queue, ticket));

    ticket = submit_one(&r, &buffer, NULL, NULL, NULL); /* and one that is not held */
    softmetal_finish_queue(r.metal_queue);
    assert_true(time_of(&t, GPUSYNC_TRACE_SUBMIT, r.queue, ticket) <=
                time_of(&t, GPUSYNC_TRACE_ISSUE, r.queue, ticket));
    assert_before_its_end(&t, GPUSYNC_TRACE_ISSUE, r.queue, ticket);
    assert_ok(gpusync_timeline_destroy(waits));
    assert_ok(gpusync_timeline_destroy(signals));
    close_traced(&r, &t);
}

/* The events are those of the submission, however many command buffers it has. */
static void test_several_command_buffers_have_one_end(void **state)
{
    rig r;
    trace t;
    gpusync_submission work;
    gpusync_ticket ticket;
    void *buffers[2];
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    memset(&work, 0, sizeof work);
    buffers[0] = open_buffer(&r), buffers[1] = open_buffer(&r);
    work.command_buffers = buffers;
    work.command_buffer_count = 2;
    assert_ok(either_submit(r.queue, &work, &ticket));
    softmetal_finish_queue(r.metal_queue);
    the(&t, GPUSYNC_TRACE_SUBMIT, r.queue, ticket);
    the(&t, GPUSYNC_TRACE_ISSUE, r.queue, ticket);
    the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket);
    assert_int_equal(count_of(&t), 3);
    close_traced(&r, &t);
}

static void test_held(void **state)
{
    rig r;
    trace t;
    void *buffer, *behind;
    gpusync_timeline *waits;
    gpusync_ticket ticket, plain;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    waits = new_timeline(&r, "waits");
    ticket = submit_one(&r, &buffer, waits, NULL, NULL);
    plain = commit_empty(&r, &behind); /* lines up */
    assert_int_equal(softmetal_message_count(metal4_run() ? "commit:count:options:" : "commit"), 0);
    the(&t, GPUSYNC_TRACE_SUBMIT, r.queue, ticket);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_HOLD, r.queue, ticket), "the work", GPUSYNC_OK);
    the(&t, GPUSYNC_TRACE_COMMIT, r.queue, plain);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_HOLD, r.queue, plain), "traced", GPUSYNC_OK);
    assert_int_equal(told(&t, GPUSYNC_TRACE_ISSUE), 0);
    assert_ok(gpusync_timeline_signal(waits, 1));
    the(&t, GPUSYNC_TRACE_ISSUE, r.queue, ticket);
    the(&t, GPUSYNC_TRACE_ISSUE, r.queue, plain);
    assert_int_equal(told(&t, GPUSYNC_TRACE_COMPLETED), 0);
    softmetal_finish_queue(r.metal_queue);
    the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket);
    the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, plain);
    assert_int_equal(told(&t, GPUSYNC_TRACE_SUBMIT), 1);
    assert_int_equal(told(&t, GPUSYNC_TRACE_HOLD), 2);
    assert_ok(gpusync_timeline_destroy(waits));
    close_traced(&r, &t);
}

static void test_cancelled(void **state)
{
    rig r;
    trace t;
    gpusync_timeline *waits;
    gpusync_ticket ticket;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    waits = new_timeline(&r, "waits");
    ticket = submit_one(&r, NULL, waits, NULL, ignore);
    assert_ok(gpusync_cancel_held(r.queue));
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_CANCELLED);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket), "the work", GPUSYNC_ERROR_CANCELLED);
    assert_about_ticket(the(&t, GPUSYNC_TRACE_CALLBACK, r.queue, ticket), "the work", GPUSYNC_ERROR_CANCELLED);
    assert_true(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket)->event.gpu_end_s == 0);
    assert_int_equal(told(&t, GPUSYNC_TRACE_ISSUE), 0);
    assert_int_equal(count_of(&t), 4); /* SUBMIT, HOLD and these two */
    assert_ok(gpusync_timeline_destroy(waits));
    close_traced(&r, &t);
}

/* What waited for something that failed ends with the error of that, never having run; no value is signalled. */
static void test_failed_by_what_it_waited_for(void **state)
{
    rig r;
    trace t;
    gpusync_error reason;
    gpusync_timeline *waits, *signals;
    gpusync_ticket ticket;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    waits = new_timeline(&r, "waits"), signals = new_timeline(&r, "signals");
    ticket = submit_one(&r, NULL, waits, signals, NULL);
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_EXECUTION;
    assert_ok(gpusync_timeline_fail(waits, &reason));
    assert_about_ticket(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket), "the work", GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(told(&t, GPUSYNC_TRACE_SIGNAL) + told(&t, GPUSYNC_TRACE_ISSUE), 0);
    assert_ok(gpusync_timeline_destroy(waits));
    assert_ok(gpusync_timeline_destroy(signals));
    close_traced(&r, &t);
}

/* -- signals and callbacks -------------------------------------------------------------------------------------- */

static void test_signals(void **state)
{
    rig r;
    trace t;
    gpusync_timeline *timeline;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    timeline = new_timeline(&r, "mine");
    assert_ok(gpusync_timeline_signal(timeline, 3));
    assert_about_value(the_value(&t, GPUSYNC_TRACE_SIGNAL, timeline, 3), "mine", GPUSYNC_OK);
    assert_result(gpusync_timeline_signal(timeline, 2), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(count_of(&t), 1);
    assert_ok(gpusync_on_done(gpusync_at_value(timeline, 5), ignore, NULL));
    assert_ok(gpusync_timeline_signal(timeline, 7));
    assert_about_value(the_value(&t, GPUSYNC_TRACE_SIGNAL, timeline, 7), "mine", GPUSYNC_OK);
    assert_about_value(the_value(&t, GPUSYNC_TRACE_CALLBACK, timeline, 5), "mine", GPUSYNC_OK);
    assert_int_equal(count_of(&t), 3);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_traced(&r, &t);
}

static void test_the_signals_of_a_submission_are_told_in_the_order_of_execution(void **state)
{
    rig r;
    trace t;
    gpusync_timeline *timeline;
    void *buffer;
    (void)state;
    NOT_ON_METAL4("a command buffer has no signals");
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    timeline = new_timeline(&r, "mine");
    buffer = buffer_of(r.queue);
    assert_ok(gpusync_encode_signal(r.queue, buffer, at(timeline, 1)));
    (void)SUBMIT(r.queue, BUFFERS(buffer), SIGNALS(at(timeline, 2))); /* behind that of the buffer */
    finish_queue(r.queue);
    assert_true(the_value(&t, GPUSYNC_TRACE_SIGNAL, timeline, 1) < the_value(&t, GPUSYNC_TRACE_SIGNAL, timeline, 2));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_traced(&r, &t);
}

/* Each callback is told, before it runs, on its thread. Releases are none. */
static void test_callbacks(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    rig r;
    trace t;
    void *buffer, *object;
    gpusync_ticket ticket;
    told_first first = {&t, 0};
    size_t ran;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    trace_on(&t, r.device);
    ticket = commit_empty(&r, &buffer);
    object = metal_buffer_new(r.metal_device, 16);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), count_end, &first));
    assert_ok(gpusync_release_after(gpusync_at_ticket(r.queue, ticket), object));
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), count_end, &first));
    metal_release(object);
    softmetal_finish(buffer);
    assert_int_equal(told(&t, GPUSYNC_TRACE_CALLBACK), 0); /* due, but not dispatched */
    assert_ok(gpusync_dispatch(r.device, SIZE_MAX, &ran));
    assert_int_equal(ran, 3);
    assert_int_equal(first.ended, 2);
    assert_int_equal(told_of(&t, GPUSYNC_TRACE_CALLBACK, r.queue, ticket), 2);
    assert_int_equal(count_of(&t), 4);
    assert_true(pthread_equal(t.events[2].thread, pthread_self()));
    close_traced(&r, &t);
}

/* -- waits ------------------------------------------------------------------------------------------------------ */

static void assert_wait(const trace *t, const gpusync_queue *queue, gpusync_ticket ticket, gpusync_wait_end how,
                        gpusync_result result)
{
    const noted *begin = the(t, GPUSYNC_TRACE_WAIT_BEGIN, queue, ticket);
    const noted *end = the(t, GPUSYNC_TRACE_WAIT_END, queue, ticket);
    assert_about_ticket(begin, "traced", GPUSYNC_OK);
    assert_null(end->event.timeline);
    assert_int_equal(end->event.value, 0);
    assert_string_equal(end->label, "traced");
    assert_int_equal(end->event.how, how);
    assert_result(end->event.result, result);
    assert_true(pthread_equal(begin->thread, end->thread));
    assert_true(begin < end && begin->event.time_ns <= end->event.time_ns);
}

static void test_wait_inline_and_status(void **state)
{
    rig r;
    trace t;
    void *buffer;
    gpusync_ticket ticket;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    softmetal_complete(buffer);
    if (!metal4_run()) { /* it has no status */
        assert_ok(gpusync_wait(r.queue, ticket, 0));
        assert_wait(&t, r.queue, ticket, GPUSYNC_ENDED_STATUS, GPUSYNC_OK);
    }
    softmetal_finish(buffer);
    (void)count_of(&t);
    t.count = 0;
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    assert_wait(&t, r.queue, ticket, GPUSYNC_ENDED_INLINE, GPUSYNC_OK);
    (void)count_of(&t);
    t.count = 0;
    assert_ok(gpusync_queue_wait(r.queue, GPUSYNC_FOREVER)); /* all that is committed: up to this ticket */
    assert_wait(&t, r.queue, ticket, GPUSYNC_ENDED_INLINE, GPUSYNC_OK);
    assert_int_equal(count_of(&t), 2);
    close_traced(&r, &t);
}

static void test_wait_unmet(void **state)
{
    rig r;
    trace t;
    void *buffer;
    gpusync_ticket ticket;
    uint64_t before, after;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    assert_result(gpusync_wait(r.queue, ticket, 0), GPUSYNC_TIMEOUT);
    assert_wait(&t, r.queue, ticket, GPUSYNC_ENDED_UNMET, GPUSYNC_TIMEOUT);
    (void)count_of(&t);
    t.count = 0;
    before = gpusync_now_ns();
    assert_result(gpusync_wait(r.queue, ticket, MS(3)), GPUSYNC_TIMEOUT);
    after = gpusync_now_ns();
    assert_wait(&t, r.queue, ticket, GPUSYNC_ENDED_UNMET, GPUSYNC_TIMEOUT);
    assert_in_range(time_of(&t, GPUSYNC_TRACE_WAIT_BEGIN, r.queue, ticket), before, after - MS(3));
    assert_in_range(time_of(&t, GPUSYNC_TRACE_WAIT_END, r.queue, ticket), before + MS(3), after);
    softmetal_finish(buffer);
    close_traced(&r, &t);
}

typedef struct completer {
    void *buffer;
    unsigned looks;
} completer;

static void complete_at_third_look(void *user, softmetal_phase phase, void *object, const char *selector)
{
    completer *c = (completer *)user;
    if (phase == SOFTMETAL_BEFORE && object == c->buffer && !strcmp(selector, "status") && ++c->looks == 3)
        softmetal_complete(c->buffer);
}

static void test_wait_spin(void **state)
{
    static const gpusync_spin some = {10, 10, 0, false};
    gpusync_wait_options options;
    rig r;
    trace t;
    completer c = {NULL, 0};
    gpusync_ticket ticket;
    (void)state;
    NOT_ON_METAL4("no status to look at");
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    memset(&options, 0, sizeof options);
    options.spin = &some;
    ticket = commit_empty(&r, &c.buffer);
    softmetal_set_message_hook(complete_at_third_look, &c);
    assert_ok(gpusync_wait_ex(r.queue, ticket, GPUSYNC_FOREVER, &options));
    softmetal_set_message_hook(NULL, NULL);
    assert_wait(&t, r.queue, ticket, GPUSYNC_ENDED_SPIN, GPUSYNC_OK);
    softmetal_finish(c.buffer);
    close_traced(&r, &t);
}

/* Told on the thread that waits, not where the end was seen. */
static void test_wait_sleep(void **state)
{
    rig r;
    trace t;
    void *buffer;
    wait_job job;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    wait_job_start(&job, r.queue, commit_empty(&r, &buffer), GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&job));
    assert_wait(&t, r.queue, job.ticket, GPUSYNC_ENDED_SLEEP, GPUSYNC_OK);
    assert_false(pthread_equal(the(&t, GPUSYNC_TRACE_WAIT_END, r.queue, job.ticket)->thread, pthread_self()));
    close_traced(&r, &t);
}

static void assert_value_wait(const trace *t, const gpusync_timeline *timeline, uint64_t value, gpusync_wait_end how,
                              gpusync_result result)
{
    const noted *begin = the_value(t, GPUSYNC_TRACE_WAIT_BEGIN, timeline, value);
    const noted *end = the_value(t, GPUSYNC_TRACE_WAIT_END, timeline, value);
    assert_about_value(begin, "mine", GPUSYNC_OK);
    assert_about_value(end, "mine", result);
    assert_int_equal(end->event.how, how);
}

static void test_wait_for_a_value(void **state)
{
    rig r;
    trace t;
    gpusync_timeline *timeline;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    timeline = new_timeline(&r, "mine");
    assert_result(gpusync_timeline_wait(timeline, 4, 0, NULL), GPUSYNC_TIMEOUT);
    assert_value_wait(&t, timeline, 4, GPUSYNC_ENDED_UNMET, GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_signal(timeline, 4));
    (void)count_of(&t);
    t.count = 0;
    assert_ok(gpusync_timeline_wait(timeline, 4, GPUSYNC_FOREVER, NULL));
    assert_value_wait(&t, timeline, 4, GPUSYNC_ENDED_INLINE, GPUSYNC_OK);
    assert_ok(gpusync_timeline_fail(timeline, NULL));
    (void)count_of(&t);
    t.count = 0;
    assert_result(gpusync_timeline_wait(timeline, 5, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_value_wait(&t, timeline, 5, GPUSYNC_ENDED_INLINE, GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_traced(&r, &t);
}

/* Several points that are done: one look tells, and the trace is told all the same. */
static void test_wait_for_many_that_are_done(void **state)
{
    gpusync_timeline *timeline;
    gpusync_point points[2];
    trace t;
    rig r;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    timeline = new_timeline(&r, "mine");
    assert_ok(gpusync_timeline_signal(timeline, 4));
    points[0] = gpusync_at_value(timeline, 3);
    points[1] = gpusync_at_value(timeline, 4);
    (void)count_of(&t);
    t.count = 0;
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
    assert_int_equal(count_of(&t), 2);
    assert_int_equal(t.events[0].event.kind, GPUSYNC_TRACE_WAIT_BEGIN);
    assert_int_equal(t.events[1].event.kind, GPUSYNC_TRACE_WAIT_END);
    assert_int_equal(t.events[1].event.how, GPUSYNC_ENDED_INLINE);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_traced(&r, &t);
}

/* Several points, and the device: about nothing in particular, and one wait. */
static void test_wait_for_many(void **state)
{
    gpusync_point points[2];
    rig r;
    trace t;
    void *buffer;
    unsigned round, i;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    memset(points, 0, sizeof points);
    points[0].queue = points[1].queue = r.queue;
    points[0].ticket = commit_empty(&r, &buffer);
    points[1].ticket = GPUSYNC_EVERYTHING;
    for (round = 0; round < 2; round++) {
        (void)count_of(&t);
        t.count = 0;
        if (round == 0)
            assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, 0, NULL, NULL), GPUSYNC_TIMEOUT);
        else assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_TIMEOUT);
        assert_int_equal(count_of(&t), 2);
        assert_int_equal(t.events[0].event.kind, GPUSYNC_TRACE_WAIT_BEGIN);
        assert_int_equal(t.events[1].event.kind, GPUSYNC_TRACE_WAIT_END);
        assert_int_equal(t.events[1].event.how, GPUSYNC_ENDED_UNMET);
        assert_result(t.events[1].event.result, GPUSYNC_TIMEOUT);
        for (i = 0; i < 2 && round == 0; i++) {
            assert_null(t.events[i].event.queue);
            assert_null(t.events[i].event.timeline);
            assert_string_equal(t.events[i].label, "");
        }
    }
    softmetal_finish(buffer);
    close_traced(&r, &t);
}

/* Whatever the wait is for, it is traced with the result that it returns. */
static void test_a_wait_for_everything_is_traced_with_the_failure_that_it_returns(void **state)
{
    enum { DEVICE, QUEUE, MANY, WAYS };
    gpusync_point point;
    rig r;
    trace t;
    void *buffer;
    int how;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    point = gpusync_at_ticket(r.queue, GPUSYNC_EVERYTHING);
    for (how = DEVICE; how < WAYS; how++) {
        gpusync_result result;
        (void)commit_empty(&r, &buffer);
        softmetal_fail(buffer, "TestDomain", 42, "it broke");
        softmetal_finish(buffer);
        (void)count_of(&t);
        t.count = 0;
        if (how == DEVICE) result = gpusync_device_wait(r.device, 0, NULL);
        else if (how == QUEUE) result = gpusync_queue_wait(r.queue, 0);
        else result = gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, 0, NULL, NULL);
        assert_result(result, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(count_of(&t), 2);
        assert_int_equal(t.events[0].event.kind, GPUSYNC_TRACE_WAIT_BEGIN);
        assert_int_equal(t.events[1].event.kind, GPUSYNC_TRACE_WAIT_END);
        assert_result(t.events[1].event.result, result);
    }
    close_traced(&r, &t);
}

/* -- set and unset ---------------------------------------------------------------------------------------------- */

typedef struct cost {
    uint64_t messages, retains;
    long calls;
} cost;

/* What everything that can be traced sends to Metal, once. */
static cost cost_of_a_round(rig *r, gpusync_timeline *timeline, uint64_t value)
{
    cost before = {softmetal_thread_messages(), softmetal_retain_count_calls(), r->memory.calls}, after;
    void *buffer;
    gpusync_ticket ticket = commit_empty(r, &buffer);
    assert_result(gpusync_wait(r->queue, ticket, 0), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_ok(gpusync_queue_wait(r->queue, GPUSYNC_FOREVER));
    assert_ok(gpusync_on_done(gpusync_at_ticket(r->queue, ticket), ignore, NULL));
    ticket = submit_one(r, &buffer, NULL, NULL, ignore);
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(r->queue, ticket, GPUSYNC_FOREVER));
    assert_ok(gpusync_timeline_signal(timeline, value));
    assert_ok(gpusync_timeline_wait(timeline, value, GPUSYNC_FOREVER, NULL));
    after.messages = softmetal_thread_messages() - before.messages;
    after.retains = softmetal_retain_count_calls() - before.retains;
    after.calls = r->memory.calls - before.calls;
    return after;
}

/* A trace, set or not any more, adds no message, no retain and no allocation. */
static void test_nothing_costs_when_unset(void **state)
{
    rig r;
    trace t;
    cost without, again, with;
    gpusync_timeline *timeline;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    timeline = new_timeline(&r, "mine");
    (void)cost_of_a_round(&r, timeline, 1); /* the first time of everything */
    assert_true(softmetal_dispatched(SECONDS(20)));
    without = cost_of_a_round(&r, timeline, 2);
    assert_true(softmetal_dispatched(SECONDS(20))); /* nothing is in flight, callbacks included */
    trace_on(&t, r.device);
    with = cost_of_a_round(&r, timeline, 3);
    assert_memory_equal(&with, &without, sizeof with);
    assert_true(count_of(&t) > 10);
    assert_ok(gpusync_set_trace(r.device, NULL, NULL));
    (void)count_of(&t);
    t.count = 0;
    again = cost_of_a_round(&r, timeline, 4);
    assert_memory_equal(&again, &without, sizeof again);
    (void)probe_took_no_lock();
    assert_ok(gpusync_queue_wait(r.queue, GPUSYNC_FOREVER));
    assert_true(probe_took_no_lock()); /* waits of an idle queue are three loads, as before */
    assert_int_equal(count_of(&t), 0);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_traced(&r, &t);
}

/* ... in particular no scheduled handler, on whatever way a command buffer is committed. */
static void test_a_trace_adds_no_scheduled_handler(void **state)
{
    gpusync_timeline *waits;
    gpusync_ticket ticket;
    unsigned buffers = 3;
    void *theirs;
    rig r;
    trace t;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    waits = new_timeline(&r, "waits");
    (void)commit_empty(&r, NULL);
    (void)submit_one(&r, NULL, waits, NULL, NULL); /* held */
    (void)commit_empty(&r, NULL);                  /* behind it */
    assert_ok(gpusync_timeline_signal(waits, 1));
    if (!metal4_run()) {
        theirs = metal_queue_command_buffer(r.metal_queue);
        assert_ok(gpusync_commit(r.queue, theirs, NULL));
        metal_release(theirs);
        theirs = metal_queue_command_buffer(r.metal_queue);
        assert_ok(gpusync_track(r.queue, theirs, &ticket));
        metal_commit(theirs);
        metal_release(theirs);
        buffers = 5;
    }
    softmetal_finish_queue(r.metal_queue);
    assert_int_equal(told(&t, GPUSYNC_TRACE_COMPLETED), buffers);
    assert_int_equal(softmetal_message_count(metal4_run() ? "addFeedbackHandler:" : "addCompletedHandler:"), buffers);
    assert_int_equal(softmetal_message_count("addScheduledHandler:"), 0);
    assert_ok(gpusync_timeline_destroy(waits));
    close_traced(&r, &t);
}

/* Work that was committed before the trace ended is not told of, also where its end takes the longer way. */
static void test_unset_silences_what_is_in_flight(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_ticket ticket;
    unsigned told;
    void *buffer;
    trace t;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.sticky_failure = true;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    trace_on(&t, r.device);
    ticket = commit_empty(&r, &buffer);
    told = count_of(&t);
    assert_ok(gpusync_set_trace(r.device, NULL, NULL));
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(r.queue, ticket, 0));
    assert_int_equal(count_of(&t), told);
    close_traced(&r, &t);
}

static struct {
    rig r;
    bool told, goes, lingers, returned;
} unset;

static void tell_and_stay(void *user, const gpusync_trace_event *event)
{
    (void)user;
    if (event->kind != GPUSYNC_TRACE_COMPLETED) return;
    PUT(&unset.told, true);
    while (!GET(&unset.goes)) sched_yield();
    must(!GET(&unset.returned), "the call that unsets a trace returns behind its last event");
}

static void note_the_lingering(void *user)
{
    (void)user;
    PUT(&unset.lingers, true);
    sched_yield();
}

static void *unset_the_trace(void *unused)
{
    (void)unused;
    assert_ok(gpusync_set_trace(unset.r.device, NULL, NULL));
    PUT(&unset.returned, true);
    return NULL;
}

/* A wait for handlers ends when they have begun. What the handler still tells comes before the trace is unset. */
static void test_unset_waits_for_handlers_that_have_begun(void **state)
{
    gpusync_wait_options options;
    gpusync_ticket ticket;
    gpusync_hooks hooks;
    pthread_t thread;
    void *buffer;
    (void)state;
    memset(&unset, 0, sizeof unset);
    memset(&hooks, 0, sizeof hooks);
    memset(&options, 0, sizeof options);
    hooks.yield = note_the_lingering;
    options.handlers = true;
    rig_open_hooked(&unset.r, SOFTMETAL_MANUAL, &hooks, 0);
    assert_ok(gpusync_set_trace(unset.r.device, tell_and_stay, NULL));
    ticket = commit_empty(&unset.r, &buffer);
    softmetal_complete(buffer);
    softmetal_begin_handler(buffer, 0);
    while (!GET(&unset.told)) sched_yield();
    if (!metal4_run()) assert_ok(gpusync_wait_ex(unset.r.queue, ticket, 0, &options));
    PUT(&unset.lingers, false);
    thread = start(unset_the_trace, NULL);
    while (!GET(&unset.lingers) && !GET(&unset.returned)) sched_yield();
    assert_false(GET(&unset.returned));
    PUT(&unset.goes, true);
    join(thread);
    softmetal_join_handler(buffer, 0);
    softmetal_finish(buffer);
    rig_close(&unset.r);
}

/* A queue made before or after, two traces one after the other, and nothing of another device. */
static void test_set_unset_and_set_again(void **state)
{
    rig r;
    trace t, second;
    gpusync_device_desc desc;
    gpusync_device *other;
    gpusync_queue *late, *of_other;
    gpusync_ticket ticket;
    void *buffer;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    late = queue_new(r.device);
    assert_ok(either_buffer(late, NULL, &buffer));
    assert_ok(either_commit(late, buffer, &ticket));
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(late, ticket, 0));
    assert_int_equal(count_of(&t), 4);
    assert_string_equal(the(&t, GPUSYNC_TRACE_COMMIT, late, ticket)->label, ""); /* it has none */

    memset(&desc, 0, sizeof desc);
    desc.metal_device = r.metal_device;
    assert_ok(gpusync_device_create(&desc, &other));
    of_other = queue_new(other);
    assert_ok(either_buffer(of_other, NULL, &buffer));
    assert_ok(either_commit(of_other, buffer, NULL));
    softmetal_finish(buffer);
    assert_int_equal(count_of(&t), 4);

    trace_on(&second, r.device);
    assert_ok(gpusync_wait(r.queue, commit_empty(&r, &buffer), 0) == GPUSYNC_TIMEOUT ? GPUSYNC_OK : GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_int_equal(count_of(&t), 4);
    assert_int_equal(second.count, 4);
    assert_ok(gpusync_set_trace(r.device, NULL, NULL));
    assert_result(gpusync_set_trace(NULL, note, &t), GPUSYNC_ERROR_INVALID_ARGUMENT);
    commit_empty(&r, &buffer);
    softmetal_finish(buffer);
    assert_int_equal(second.count, 4);
    assert_ok(gpusync_queue_destroy(of_other));
    assert_ok(gpusync_device_destroy(other));
    assert_ok(gpusync_queue_destroy(late));
    trace_free(&second);
    close_traced(&r, &t);
}

/* What is left at the end of a queue is told before its destroy returns; what ends later than that is not told. */
static void test_destroy(void **state)
{
    rig r;
    trace t;
    void *buffer;
    gpusync_ticket ticket;
    unsigned count;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), ignore, NULL));
    metal_retain(buffer);
    assert_ok(gpusync_queue_destroy_now(r.queue));
    the(&t, GPUSYNC_TRACE_CALLBACK, r.queue, ticket);
    count = count_of(&t);
    softmetal_finish(buffer); /* its handlers: the queue is gone */
    metal_release(buffer);
    assert_int_equal(count_of(&t), count);
    r.queue = NULL;
    close_traced(&r, &t);
}

/* -- many at a time --------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 200 };

typedef struct crowd {
    rig *rig;
    gpusync_timeline *timeline;
    unsigned callbacks;
} crowd;

static void count_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    crowd *c = (crowd *)user;
    (void)result, (void)error;
    __atomic_fetch_add(&c->callbacks, 1, __ATOMIC_SEQ_CST);
}

static void *one_of_the_crowd(void *argument)
{
    crowd *c = (crowd *)argument;
    unsigned i;
    for (i = 0; i < ROUNDS; i++) {
        gpusync_ticket ticket = i % 2 ? commit_empty(c->rig, NULL) : submit_one(c->rig, NULL, NULL, NULL, NULL);
        assert_ok(gpusync_on_done(gpusync_at_ticket(c->rig->queue, ticket), count_callback, c));
        assert_ok(gpusync_wait(c->rig->queue, ticket, SECONDS(60)));
    }
    return NULL;
}

/* Real clock: nothing is told twice, nothing is missing, and each wait begins and ends on one thread. */
/* An end is told by the thread that finds it, once: a poll, or destroy, which does not wait for a handler that has not
   begun. */
static void check_end_without_a_handler(bool polls)
{
    const gpusync_trace_event *end;
    gpusync_ticket ticket;
    void *buffer;
    trace t;
    rig r;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    metal_retain(buffer);
    softmetal_complete(buffer);
    if (polls) assert_ok(gpusync_poll(r.queue, ticket));
    assert_int_equal(told(&t, GPUSYNC_TRACE_COMPLETED), polls);
    assert_ok(gpusync_queue_destroy(r.queue));
    end = &the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket)->event;
    assert_ok(end->result);
    assert_true(end->gpu_end_s > 0);
    softmetal_finish(buffer);
    metal_release(buffer);
    assert_int_equal(told(&t, GPUSYNC_TRACE_COMPLETED), 1);
    r.queue = NULL;
    close_traced(&r, &t);
}

static void test_a_call_that_finds_an_end_tells_of_it(void **state)
{
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    check_end_without_a_handler(true);
    check_end_without_a_handler(false);
}

/* A poll finds the end, and the handler comes after that: it tells of none. */
static void check_a_late_handler(bool tracked, bool fails)
{
    gpusync_ticket ticket;
    gpusync_result result;
    void *buffer;
    trace t;
    rig r;
    open_traced(&r, &t, SOFTMETAL_MANUAL);
    if (tracked) ticket = track_a_buffer(&r, &buffer);
    else ticket = commit_empty(&r, &buffer);
    if (tracked) metal_commit(buffer);
    if (fails) softmetal_fail(buffer, NULL, 3, "page fault");
    softmetal_complete(buffer);
    result = gpusync_poll(r.queue, ticket);
    assert_result(result, fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    assert_int_equal(told(&t, GPUSYNC_TRACE_COMPLETED), 1);
    softmetal_finish(buffer);
    assert_int_equal(told(&t, GPUSYNC_TRACE_COMPLETED), 1);
    assert_result(the(&t, GPUSYNC_TRACE_COMPLETED, r.queue, ticket)->event.result, result);
    if (tracked) metal_release(buffer);
    close_traced(&r, &t);
}

static void test_a_handler_that_comes_late_tells_of_no_second_end(void **state)
{
    int kind;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    for (kind = 0; kind < 4; kind++) check_a_late_handler(kind & 1, kind & 2);
}

static void test_every_event_once(void **state)
{
    pthread_t threads[THREADS];
    crowd c = {NULL, NULL, 0};
    rig r;
    trace t;
    gpusync_ticket ticket;
    unsigned i, total = THREADS * ROUNDS;
    uint8_t *seen;
    (void)state;
    open_traced(&r, &t, SOFTMETAL_REAL);
    c.rig = &r;
    for (i = 0; i < THREADS; i++) threads[i] = start(one_of_the_crowd, &c);
    for (i = 0; i < THREADS; i++) join(threads[i]);
    assert_ok(gpusync_queue_wait(r.queue, GPUSYNC_FOREVER));
    assert_true(softmetal_settle(SECONDS(60)));  /* a handler that destroy would not wait for tells no more */
    assert_ok(gpusync_queue_destroy(r.queue));
    assert_int_equal(c.callbacks, total);
    assert_int_equal(told(&t, GPUSYNC_TRACE_COMMIT), total / 2);
    assert_int_equal(told(&t, GPUSYNC_TRACE_SUBMIT), total / 2);
    assert_int_equal(told(&t, GPUSYNC_TRACE_ISSUE), total / 2);
    assert_int_equal(told(&t, GPUSYNC_TRACE_COMPLETED), total);
    assert_int_equal(told(&t, GPUSYNC_TRACE_CALLBACK), total);
    assert_int_equal(told(&t, GPUSYNC_TRACE_WAIT_BEGIN), total + 1);
    assert_int_equal(told(&t, GPUSYNC_TRACE_WAIT_END), total + 1);
    seen = (uint8_t *)calloc(total + 1, 1);
    assert_non_null(seen);
    for (i = 0; i < t.count; i++) { /* each kind is a bit */
        const gpusync_trace_event *e = &t.events[i].event;
        uint8_t bit = e->kind == GPUSYNC_TRACE_COMPLETED  ? 1
                      : e->kind == GPUSYNC_TRACE_CALLBACK ? 2
                      : e->kind == GPUSYNC_TRACE_COMMIT || e->kind == GPUSYNC_TRACE_SUBMIT ? 4 : 0;
        assert_in_range(e->ticket, 1, total);
        assert_false(seen[e->ticket] & bit);
        seen[e->ticket] = (uint8_t)(seen[e->ticket] | bit);
    }
    for (ticket = 1; ticket <= total; ticket++) assert_int_equal(seen[ticket], 7);
    free(seen);
    r.queue = NULL;
    close_traced(&r, &t);
}

/* -- wake-ups ---------------------------------------------------------------------------------------------------- */

/* A waiter that its scheduler lets sleep on after it was unparked, until this time. */
typedef struct sleepy {
    uint64_t until;
    bool parked, unparked;
} sleepy;

static void sleepy_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    sleepy *s = (sleepy *)user;
    (void)waiter, (void)deadline_ns;
    __atomic_store_n(&s->parked, true, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&s->unparked, __ATOMIC_SEQ_CST) ||
           gpusync_now_ns() < __atomic_load_n(&s->until, __ATOMIC_SEQ_CST))
        sched_yield();
}

static void sleepy_unpark(void *user, gpusync_waiter *waiter)
{
    (void)waiter;
    __atomic_store_n(&((sleepy *)user)->unparked, true, __ATOMIC_SEQ_CST);
}

/* A wait for work of this queue sleeps, and its thread runs so long after the GPU's end. */
static void wake_after(sleepy *s, gpusync_queue *queue, uint64_t ns)
{
    gpusync_stats before = stats_of(queue), stats;
    gpusync_ticket_info info;
    uint64_t after, end;
    void *buffer;
    wait_job job;
    __atomic_store_n(&s->until, GPUSYNC_FOREVER, __ATOMIC_SEQ_CST);
    s->parked = s->unparked = false;
    wait_job_start(&job, queue, commit_empty_to(queue, &buffer), GPUSYNC_FOREVER);
    while (!__atomic_load_n(&s->parked, __ATOMIC_SEQ_CST)) sched_yield();
    softmetal_finish(buffer);
    assert_ok(gpusync_get_info(queue, job.ticket, &info));
    end = (uint64_t)(info.gpu_end_s * 1e9);
    __atomic_store_n(&s->until, end + ns, __ATOMIC_SEQ_CST);
    assert_ok(wait_job_join(&job));
    after = gpusync_now_ns();
    stats = stats_of(queue);
    assert_int_equal(stats.waits_sleep, before.waits_sleep + 1);
    assert_int_equal(stats.wakes, before.wakes + 1);
    assert_in_range(stats.wake_ns - before.wake_ns, ns - 1000, after - end + 1000);
}

static void assert_device_has(const rig *r, uint64_t wakes, uint64_t wake_ns)
{
    gpusync_stats stats;
    assert_ok(gpusync_device_get_stats(r->device, &stats));
    assert_int_equal(stats.wakes, wakes);
    assert_int_equal(stats.wake_ns, wake_ns);
}

/* A sleeping wait counts with the time from the GPU's end until it runs. The device adds up its queues, those that are
   gone included. */
static void test_a_wait_that_slept_counts_with_its_latency(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_queue *second;
    gpusync_hooks hooks;
    uint64_t wake_ns;
    sleepy s;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&hooks, 0, sizeof hooks);
    memset(&s, 0, sizeof s);
    hooks.park = sleepy_park;
    hooks.unpark = sleepy_unpark;
    hooks.user = &s;
    device_desc.hooks = &hooks;
    device_desc.spin = &no_spin;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    second = queue_new(r.device);
    assert_device_has(&r, 0, 0);
    wake_after(&s, r.queue, MS(1));
    wake_after(&s, r.queue, MS(5));
    wake_after(&s, second, MS(40));
    assert_int_equal(stats_of(r.queue).wakes, 2);
    assert_int_equal(stats_of(second).wakes, 1);
    wake_ns = stats_of(r.queue).wake_ns + stats_of(second).wake_ns;
    assert_device_has(&r, 3, wake_ns);
    assert_ok(gpusync_queue_destroy(second));
    assert_device_has(&r, 3, wake_ns);
    assert_ok(gpusync_queue_destroy(r.queue));
    r.queue = NULL;
    assert_device_has(&r, 3, wake_ns);
    rig_close(&r);
}

/* No wait counts that found the work done, that spun to the end, that gave up, or that was for a value. */
static void test_a_wait_that_did_not_sleep_to_the_end_of_a_ticket_is_no_wake(void **state)
{
    static const gpusync_spin some = {10, 10, 0, false};
    gpusync_wait_options options = {.spin = &some};
    completer c = {NULL, 0};
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    gpusync_stats stats;
    value_job job;
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    assert_result(gpusync_wait(r.queue, ticket, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(r.queue, ticket, MS(2)), GPUSYNC_TIMEOUT);
    softmetal_complete(buffer);
    if (!metal4_run()) assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    if (!metal4_run()) { /* it has no status to look at */
        ticket = commit_empty(&r, &c.buffer);
        softmetal_set_message_hook(complete_at_third_look, &c);
        assert_ok(gpusync_wait_ex(r.queue, ticket, GPUSYNC_FOREVER, &options));
        softmetal_set_message_hook(NULL, NULL);
        softmetal_finish(c.buffer);
        assert_int_equal(stats_of(r.queue).waits_spin, 1);
    }
    timeline = new_timeline(&r, "a value");
    value_job_start_spinning(&job, timeline, 1, GPUSYNC_FOREVER, &no_spin);
    await_sleepers(r.device, 1);
    assert_ok(gpusync_timeline_signal(timeline, 1));
    assert_ok(value_job_join(&job));
    assert_int_equal(stats_of(r.queue).waits_sleep, 0);
    assert_ok(gpusync_device_get_stats(r.device, &stats));
    assert_int_equal(stats.waits_sleep, 1);
    assert_device_has(&r, 0, 0);
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

/* Given-up work has no end on the GPU: what stands in its place in the ring is the time of a ticket a lap before. */
static void test_a_wait_for_work_that_is_given_up_is_no_wake(void **state)
{
    enum { LAP = 256 };
    gpusync_ticket_info info;
    gpusync_queue *lost;
    wait_job job;
    void *buffer;
    int i;
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, NULL, queue_desc_of(0, 0));
    lost = queue_new(r.device);
    for (i = 0; i < LAP; i++) {
        (void)commit_empty(&r, &buffer);
        softmetal_finish(buffer);
    }
    wait_job_start(&job, r.queue, commit_empty(&r, NULL), GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    assert_ok(gpusync_get_info(r.queue, job.ticket - LAP, &info));
    assert_true(info.gpu_end_s > 0);
    (void)commit_empty_to(lost, &buffer);
    fail_with_the_device(buffer);
    softmetal_finish(buffer);
    probe_give_up_lost(r.device);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    assert_device_has(&r, 0, 0);
    softmetal_finish_queue(r.metal_queue);
    assert_ok(gpusync_queue_destroy(lost));
    rig_close(&r);
}

static double clock_offset_s; /* of the device's clock */
static double another_clock(void) { return (double)gpusync_now_ns() / 1e9 + clock_offset_s; }
static double no_clock(void) { return 0; }

/* A time that lies ahead, or more than ten seconds back, is none of the program's clock. 0: the device tells none. */
static void test_times_of_another_clock_make_no_wake(void **state)
{
    static const double offsets[] = {1000, -11, 0};
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(offsets); i++) {
        gpusync_stats stats;
        wait_job job;
        void *buffer;
        rig r;
        rig_open_hooked(&r, SOFTMETAL_MANUAL, NULL, 0);
        clock_offset_s = offsets[i];
        softmetal_set_gpu_clock(offsets[i] != 0 ? another_clock : no_clock);
        wait_job_start(&job, r.queue, commit_empty(&r, &buffer), GPUSYNC_FOREVER);
        await_sleepers(r.device, 1);
        softmetal_finish(buffer);
        assert_ok(wait_job_join(&job));
        stats = stats_of(r.queue);
        assert_int_equal(stats.waits_sleep, 1);
        assert_int_equal(stats.wakes, 0);
        assert_int_equal(stats.wake_ns, 0);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commit_and_completed),
        cmocka_unit_test(test_commit_is_before_its_end),
        cmocka_unit_test(test_an_end_out_of_order_is_told_of_its_ticket),
        cmocka_unit_test(test_no_event_of_what_did_not_happen),
        cmocka_unit_test(test_tracked),
        cmocka_unit_test(test_failed),
        cmocka_unit_test(test_submission),
        cmocka_unit_test(test_times_are_in_order_of_cause),
        cmocka_unit_test(test_several_command_buffers_have_one_end),
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_failed_by_what_it_waited_for),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_the_signals_of_a_submission_are_told_in_the_order_of_execution),
        cmocka_unit_test(test_callbacks),
        cmocka_unit_test(test_wait_inline_and_status),
        cmocka_unit_test(test_wait_unmet),
        cmocka_unit_test(test_wait_spin),
        cmocka_unit_test(test_wait_sleep),
        cmocka_unit_test(test_wait_for_a_value),
        cmocka_unit_test(test_wait_for_many),
        cmocka_unit_test(test_a_wait_for_everything_is_traced_with_the_failure_that_it_returns),
        cmocka_unit_test(test_wait_for_many_that_are_done),
        cmocka_unit_test(test_nothing_costs_when_unset),
        cmocka_unit_test(test_a_trace_adds_no_scheduled_handler),
        cmocka_unit_test(test_unset_silences_what_is_in_flight),
        cmocka_unit_test(test_unset_waits_for_handlers_that_have_begun),
        cmocka_unit_test(test_set_unset_and_set_again),
        cmocka_unit_test(test_destroy),
        cmocka_unit_test(test_a_call_that_finds_an_end_tells_of_it),
        cmocka_unit_test(test_a_handler_that_comes_late_tells_of_no_second_end),
        cmocka_unit_test(test_every_event_once),
        cmocka_unit_test(test_a_wait_that_slept_counts_with_its_latency),
        cmocka_unit_test(test_a_wait_that_did_not_sleep_to_the_end_of_a_ticket_is_no_wake),
        cmocka_unit_test(test_a_wait_for_work_that_is_given_up_is_no_wake),
        cmocka_unit_test(test_times_of_another_clock_make_no_wake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
