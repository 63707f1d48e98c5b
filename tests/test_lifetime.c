/* test_lifetime.c - the end of queues and devices with work in flight, waiters asleep and handlers to come; that nothing is
   called or kept afterwards; the report; autorelease pools

   It also runs on queues of Metal 4. */
#include "probe.h"
#include <time.h>
#include "stage.h"

static const gpusync_spin endless = {0, UINT32_MAX, 0, false};
static const gpusync_spin *const budgets[] = {NULL, &no_spin, &endless};

/* -- hooks that notice when they are called too late ------------------------------------------------ */

typedef struct watch {
    gpusync_hooks hooks;
    long parks, unparks, yields, logs;
    long deaf;     /* so many parks know no deadline: only an unpark ends them */
    long gave_up;  /* ... or five seconds */
    bool over;     /* from here on every call is one too many */
    long too_late;
    int gate;      /* closed: this function waits in it */
    bool inside, outside; /* of the gate: a function has come there; it has gone on */
} watch;

enum { OPEN_GATE, IN_LOG, IN_TRACE, IN_UNPARK, GATES };

static void pass_gate(watch *w, int where)
{
    if (__atomic_load_n(&w->gate, __ATOMIC_SEQ_CST) != where) return;
    __atomic_store_n(&w->inside, true, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&w->gate, __ATOMIC_SEQ_CST)) sched_yield();
    __atomic_store_n(&w->outside, true, __ATOMIC_SEQ_CST);
}

static long watch_count(watch *w, long *counter)
{
    if (__atomic_load_n(&w->over, __ATOMIC_SEQ_CST)) __atomic_fetch_add(&w->too_late, 1, __ATOMIC_SEQ_CST);
    return __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
}

static long read_count(long *counter)
{
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST);
}

static void watch_yield(void *user)
{
    watch *w = (watch *)user;
    watch_count(w, &w->yields);
    sched_yield();
}

static void watch_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    watch *w = (watch *)user;
    bool deaf = watch_count(w, &w->parks) <= w->deaf;
    if (deaf) deadline_ns = gpusync_now_ns() + SECONDS(5);
    while (!__atomic_exchange_n(&waiter->scheduler_data[0], NULL, __ATOMIC_SEQ_CST)) {
        if (gpusync_now_ns() >= deadline_ns) {
            if (deaf) __atomic_fetch_add(&w->gave_up, 1, __ATOMIC_SEQ_CST);
            return;
        }
        sched_yield();
    }
}

static void watch_unpark(void *user, gpusync_waiter *waiter)
{
    watch *w = (watch *)user;
    watch_count(w, &w->unparks);
    pass_gate(w, IN_UNPARK);
    __atomic_store_n(&waiter->scheduler_data[0], (void *)waiter, __ATOMIC_SEQ_CST);
}

static void watch_log(void *user, gpusync_log_level level, const char *text)
{
    watch *w = (watch *)user;
    (void)level;
    (void)text;
    watch_count(w, &w->logs);
    pass_gate(w, IN_LOG);
}

static void watch_trace(void *user, const gpusync_trace_event *event)
{
    if (event->kind == GPUSYNC_TRACE_COMPLETED) pass_gate((watch *)user, IN_TRACE);
}

static bool comes_true_within(uint64_t ns, const bool *flag)
{
    uint64_t limit = gpusync_now_ns() + ns;
    while (!__atomic_load_n(flag, __ATOMIC_SEQ_CST) && gpusync_now_ns() < limit) sched_yield();
    return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}

static bool comes_true(const bool *flag) { return comes_true_within(SECONDS(20), flag); }

static void rig_open_watched(rig *r, softmetal_clock clock, watch *w, const gpusync_spin *spin, uint32_t limit)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(w, 0, sizeof *w);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    w->hooks.yield = watch_yield;
    w->hooks.park = watch_park;
    w->hooks.unpark = watch_unpark;
    w->hooks.user = w;
    device_desc.hooks = &w->hooks;
    device_desc.log = watch_log;
    device_desc.log_user = w;
    queue_desc.spin = spin;
    queue_desc.max_command_buffer_count = limit;
    rig_open_with(r, clock, device_desc, queue_desc);
}

typedef struct destroyer {
    gpusync_queue *queue;
    watch *w;
    bool now, handler_had_ended, returned;
    gpusync_result result;
    pthread_t thread;
} destroyer;

static void *destroyer_body(void *argument)
{
    destroyer *d = (destroyer *)argument;
    d->result = d->now ? gpusync_queue_destroy_now(d->queue) : gpusync_queue_destroy(d->queue);
    d->handler_had_ended = d->w && __atomic_load_n(&d->w->outside, __ATOMIC_SEQ_CST);
    __atomic_store_n(&d->returned, true, __ATOMIC_SEQ_CST);
    return NULL;
}

static void destroyer_start(destroyer *d, rig *r, watch *w, bool now)
{
    memset(d, 0, sizeof *d);
    d->queue = r->queue;
    d->w = w;
    d->now = now;
    d->thread = start(destroyer_body, d);
}

/* -- destroy with work in flight -------------------------------------------------------------------- */

static struct {
    void *buffer;
    long yields, parks, finish_at;
} sleepless;

static void sleepless_yield(void *user)
{
    (void)user;
    if (COUNT(&sleepless.yields) + 1 == sleepless.finish_at) softmetal_finish(sleepless.buffer);
    sched_yield();
}

static void sleepless_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    COUNT(&sleepless.parks);
    thread_park(waiter, deadline_ns);
}

static void sleepless_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

/* It yields the processor instead, also for longer than a wait would. */
static void test_destroy_waits_for_work_without_memory_to_sleep_with(void **state)
{
    gpusync_hooks hooks = {sleepless_yield, sleepless_park, sleepless_unpark, NULL};
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    memset(&sleepless, 0, sizeof sleepless);
    (void)commit_empty(&r, &sleepless.buffer);
    sleepless.finish_at = 1000;
    r.memory.fail_after = true;
    r.memory.fail_at = 1;
    assert_ok(gpusync_queue_destroy(r.queue));
    assert_true(GET(&sleepless.yields) >= 1000);
    assert_int_equal(GET(&sleepless.parks), 0);
    r.queue = NULL;
    rig_close(&r);
}

static void finish_one(void *buffer) { softmetal_finish(buffer); }

/* The first of two command buffers of a submission: as destroy gives it up, the events that it may use are kept for its
   handler. Where that comes just then, they go all the same. */
static void test_a_command_buffer_may_end_at_every_point_of_destroy_now(void **state)
{
    bool over = false;
    int place;
    (void)state;
    NOT_ON_METAL4("all of a commit ends at once");
    for (place = 1; !over; place++) {
        void *buffers[2], *metal;
        uint64_t value;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 1);
        buffers[0] = buffer_of(s.q[0]);
        buffers[1] = buffer_of(s.q[0]);
        (void)SUBMIT(s.q[0], .command_buffers = buffers, .command_buffer_count = 2, SIGNALS(at(s.a, 1)));
        metal = metal_retain(s.metal[0]);
        probe_at_each(place, finish_one, buffers[0]);
        assert_ok(gpusync_queue_destroy_now(s.q[0]));
        over = !probe_has_acted();
        s.q[0] = NULL;
        assert_true(gpusync_timeline_query(s.a, &value) != GPUSYNC_OK); /* the second one is still on the GPU */
        softmetal_finish_queue(metal);
        metal_release(metal);
        close_stage(&s);
    }
    assert_true(place > 2);
}

typedef struct beside {
    destroyer d;
    rig *r;
} beside;

/* Until it has returned, or waits. */
static void destroy_now_beside(void *argument)
{
    beside *b = (beside *)argument;
    long before = GET(&sleepless.yields);
    destroyer_start(&b->d, b->r, NULL, true);
    while (!GET(&b->d.returned) && GET(&sleepless.yields) < before + 50) sched_yield();
}

/* A device whose waits only yield, and whose callbacks no other thread runs: so none comes to the places of a probe. */
static void rig_open_sleepless(rig *r)
{
    gpusync_hooks hooks = {sleepless_yield, sleepless_park, sleepless_unpark, NULL};
    gpusync_device_desc device_desc;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.hooks = &hooks;
    device_desc.spin = &no_spin;
    device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    memset(&sleepless, 0, sizeof sleepless);
    rig_open_with(r, SOFTMETAL_MANUAL, device_desc, queue_desc_of(0, 0));
}

/* A signal ends what a queue holds. Where it is about to, destroy_now leaves the end, and what is to be told of it, to it;
   else it ends the work itself. */
static void test_destroy_now_may_come_at_every_point_of_a_signal_that_ends_held_work(void **state)
{
    bool over = false;
    int place, well = 0;
    (void)state;
    NOT_ON_METAL4("nothing is submitted without command buffers");
    for (place = 1; !over; place++) {
        outcome o = {0};
        gpusync_timeline *t;
        beside b;
        rig r;
        rig_open_sleepless(&r);
        t = timeline_new(r.device);
        assert_ok(gpusync_on_done(after(r.queue, SUBMIT(r.queue, WAITS(at(t, 1)))), remember, &o));
        b.r = &r;
        probe_at_each(place, destroy_now_beside, &b);
        assert_ok(gpusync_timeline_signal(t, 1));
        over = !probe_has_acted();
        if (over) destroy_now_beside(&b);
        join(b.d.thread);
        assert_ok(b.d.result);
        r.queue = NULL;
        assert_int_equal(calls_of(&o), 1);
        assert_true(o.result == GPUSYNC_OK || o.result == GPUSYNC_ERROR_DESTROYED);
        well += o.result == GPUSYNC_OK;
        assert_ok(gpusync_timeline_destroy(t));
        rig_close(&r);
    }
    assert_true(well > 1);
}

/* Work of one queue waits for a ticket of the other: neither waits for what the other gives up, wherever they meet. */
static void test_destroy_now_of_two_queues_may_meet_at_every_point(void **state)
{
    bool over = false;
    int place;
    (void)state;
    for (place = 1; !over; place++) {
        gpusync_submission submission;
        gpusync_point wait;
        outcome o = {0};
        void *metal[2], *buffer;
        gpusync_queue *second;
        beside b;
        rig r;
        rig_open_sleepless(&r);
        second = queue_new(r.device);
        metal[0] = metal_retain(r.metal_queue);
        metal[1] = metal_retain(gpusync_queue_metal(second));
        wait = after(r.queue, commit_empty(&r, NULL));
        buffer = buffer_of(second);
        memset(&submission, 0, sizeof submission);
        submission.waits = &wait;
        submission.wait_count = 1;
        submission.command_buffers = &buffer;
        submission.command_buffer_count = 1;
        submission.on_complete = remember;
        submission.user = &o;
        (void)submit_well(second, &submission);
        b.r = &r;
        probe_at_each(place, destroy_now_beside, &b);
        assert_ok(gpusync_queue_destroy_now(second));
        over = !probe_has_acted();
        if (over) destroy_now_beside(&b);
        join(b.d.thread);
        assert_ok(b.d.result);
        r.queue = NULL;
        assert_int_equal(calls_of(&o), 1);
        assert_result(o.result, GPUSYNC_ERROR_DESTROYED);
        softmetal_finish_queue(metal[0]);
        softmetal_finish_queue(metal[1]);
        metal_release(metal[0]);
        metal_release(metal[1]);
        rig_close(&r);
    }
    assert_true(place > 3);
}

/* -- destroy_now at every point of a wait */

enum wait_kind { FOR_ONE, FOR_ALL, BEHIND_A_SPIN, WITH_HANDLERS, FOR_MANY, FOR_ROOM, WAIT_KINDS };

static struct {
    beside b;
    bool begun, slept;
} amid;

static void destroy_amid(void *unused)
{
    (void)unused;
    PUT(&amid.begun, true);
    destroy_now_beside(&amid.b);
}

/* The waiting thread has come to its sleep, and was at no such point before. */
static void park_amid(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    if (!GET(&amid.begun)) {
        (void)probe_has_acted();
        amid.slept = true;
        destroy_amid(NULL);
    }
    thread_park(waiter, deadline_ns);
}

static gpusync_result wait_amid(enum wait_kind kind, gpusync_queue *queue, gpusync_point other)
{
    static const gpusync_spin few = {3, 3, 0, false};
    const gpusync_wait_options handlers = {.handlers = true}, spin = {.spin = &few};
    gpusync_point points[2];
    void *buffer = NULL;
    switch (kind) {
    case FOR_ONE: return gpusync_wait(queue, 1, GPUSYNC_FOREVER);
    case FOR_ALL: return gpusync_queue_wait(queue, GPUSYNC_FOREVER);
    case BEHIND_A_SPIN: return gpusync_wait_ex(queue, 1, GPUSYNC_FOREVER, &spin);
    case WITH_HANDLERS: return gpusync_wait_ex(queue, 1, GPUSYNC_FOREVER, &handlers);
    case FOR_ROOM: return gpusync_command_buffer(queue, NULL, &buffer);
    default: break;
    }
    points[0] = other;
    points[1] = after(queue, 1);
    return gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL);
}

/* Rule: a wait is listed in the hold in which it sees that its queue is not being destroyed; who destroys that wakes what
   is listed behind the mark. So no wait sleeps on in a queue that goes, wherever it is when that begins. */
static void test_destroy_now_may_come_at_every_point_of_a_wait(void **state)
{
    gpusync_hooks hooks = {sleepless_yield, park_amid, sleepless_unpark, NULL};
    enum wait_kind kind;
    int place;
    (void)state;
    for (kind = FOR_ONE; kind < WAIT_KINDS; kind++) {
        if (metal4_run() && kind == FOR_ROOM) continue; /* no call waits for it */
        place = 0;
        do {
            gpusync_queue *other;
            gpusync_point point;
            gpusync_result result;
            void *metal;
            rig r;
            memset(&amid, 0, sizeof amid);
            memset(&sleepless, 0, sizeof sleepless);
            rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(1, 0));
            other = queue_new(r.device);
            point = after(other, commit_empty_to(other, NULL));
            metal = metal_retain(r.metal_queue);
            (void)commit_empty(&r, NULL);
            if (kind == WITH_HANDLERS && !metal4_run()) { /* it has ended, and its handler is late */
                softmetal_complete(softmetal_last_buffer(metal));
                assert_ok(gpusync_poll(r.queue, 1));
            }
            amid.b.r = &r;
            probe_at_each(++place, destroy_amid, NULL);
            must_return_within(60);
            result = wait_amid(kind, r.queue, point);
            has_returned();
            (void)probe_has_acted();
            assert_true(amid.begun);
            join(amid.b.d.thread);
            assert_ok(amid.b.d.result);
            assert_result(result, GPUSYNC_ERROR_DESTROYED);
            softmetal_finish_queue(metal);
            metal_release(metal);
            finish_queue(other);
            r.queue = other;
            rig_close(&r);
        } while (!amid.slept);
        assert_true(place > 2);
    }
}

/* They are told in several holds of the queue's lock. */
static void test_destroy_now_tells_every_callback_however_many_there_are(void **state)
{
    enum { CROWD = 150 };
    static outcome told[CROWD];
    gpusync_ticket ticket;
    void *metal;
    size_t i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(told, 0, sizeof told);
    ticket = commit_empty(&r, NULL);
    for (i = 0; i < CROWD; i++) assert_ok(gpusync_on_done(after(r.queue, ticket), remember, &told[i]));
    metal = metal_retain(r.metal_queue);
    assert_ok(gpusync_queue_destroy_now(r.queue));
    r.queue = NULL;
    for (i = 0; i < CROWD; i++) {
        assert_int_equal(calls_of(&told[i]), 1);
        assert_result(told[i].result, GPUSYNC_ERROR_DESTROYED);
        assert_true(i == 0 || told[i].order > told[i - 1].order);
    }
    softmetal_finish_queue(metal);
    metal_release(metal);
    rig_close(&r);
}

typedef struct device_destroyer {
    gpusync_device *device;
    gpusync_result result;
    bool returned;
    pthread_t thread;
} device_destroyer;

static void *device_destroyer_body(void *argument)
{
    device_destroyer *d = (device_destroyer *)argument;
    d->result = gpusync_device_destroy(d->device);
    PUT(&d->returned, true);
    return NULL;
}

/* Until it waits. */
static void destroy_the_device(void *argument)
{
    device_destroyer *d = (device_destroyer *)argument;
    d->thread = start(device_destroyer_body, d);
    while (GET(&sleepless.yields) < 2) sched_yield();
    must(!GET(&d->returned), "the device went while a call was in it");
}

/* The wait has no queue that would keep the device. */
static void test_the_destroy_of_a_device_waits_for_a_call_in_it(void **state)
{
    gpusync_hooks hooks = {sleepless_yield, sleepless_park, sleepless_unpark, NULL};
    device_destroyer d = {0};
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    memset(&sleepless, 0, sizeof sleepless);
    assert_ok(gpusync_queue_destroy(r.queue));
    r.queue = NULL;
    d.device = r.device;
    PUT(&sleepless.yields, 0);
    probe_at(PROBE_QUEUES_LISTED, NULL, 1, destroy_the_device, &d);
    assert_ok(gpusync_device_wait(r.device, 0, NULL));
    assert_true(probe_has_acted());
    join(d.thread);
    assert_ok(d.result);
    r.device = NULL;
    rig_close(&r);
}

static void test_destroy_waits_for_what_is_in_flight_with_every_budget(void **state)
{
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(budgets); i++) {
        gpusync_device_desc device_desc;
        gpusync_queue_desc queue_desc;
        void *last;
        rig r;
        memset(&device_desc, 0, sizeof device_desc);
        memset(&queue_desc, 0, sizeof queue_desc);
        queue_desc.spin = budgets[i];
        rig_open_with(&r, SOFTMETAL_REAL, device_desc, queue_desc);
        commit_lasting(&r, MS(3));
        last = metal_retain(open_buffer(&r));
        softmetal_set_duration(last, MS(3));
        assert_ok(either_commit(r.queue, last, NULL));
        assert_ok(gpusync_queue_destroy(r.queue));
        assert_int_equal(status_of(last), COMPLETED);
        metal_release(last);
        r.queue = NULL;
        rig_close(&r);
    }
}

static void test_destroy_waits_for_work_that_was_committed_elsewhere(void **state)
{
    void *foreign;
    rig r;
    (void)state;
    NOT_ON_METAL4("nothing is tracked");
    rig_open(&r, SOFTMETAL_REAL);
    foreign = metal_queue_command_buffer(r.metal_queue);
    softmetal_set_duration(foreign, MS(5));
    assert_ok(gpusync_track(r.queue, foreign, NULL));
    metal_commit(foreign);
    assert_ok(gpusync_queue_destroy(r.queue));
    assert_int_equal(metal_status(foreign), 4);
    metal_release(foreign);
    r.queue = NULL;
    rig_close(&r);
}

/* The handler runs a function of the program, which takes its time. */
static void check_destroy_waits_for_the_handler(int where, bool now)
{
    destroyer d;
    wait_job job;
    watch w;
    gpusync_ticket ticket;
    long before;
    void *buffer;
    rig r;
    rig_open_watched(&r, SOFTMETAL_MANUAL, &w, &no_spin, 0);
    if (where == IN_TRACE) assert_ok(gpusync_set_trace(r.device, watch_trace, &w));
    buffer = open_buffer(&r);
    metal_retain(buffer);
    softmetal_fail(buffer, NULL, 1, NULL);
    assert_ok(either_commit(r.queue, buffer, &ticket));
    if (where == IN_UNPARK) wait_job_start(&job, r.queue, ticket, GPUSYNC_FOREVER);
    if (where == IN_UNPARK) await_sleepers(r.device, 1);
    __atomic_store_n(&w.gate, where, __ATOMIC_SEQ_CST);
    softmetal_complete(buffer);
    softmetal_begin_handler(buffer, softmetal_handler_count(buffer) - 1); /* comes as far as the gate */
    while (!__atomic_load_n(&w.inside, __ATOMIC_SEQ_CST)) sched_yield();
    before = read_count(&w.yields) + read_count(&w.parks);
    destroyer_start(&d, &r, &w, now);
    while (read_count(&w.yields) + read_count(&w.parks) == before && !__atomic_load_n(&d.returned, __ATOMIC_SEQ_CST))
        sched_yield();
    __atomic_store_n(&w.gate, OPEN_GATE, __ATOMIC_SEQ_CST);
    join(d.thread);
    assert_ok(d.result);
    assert_true(d.handler_had_ended);
    r.queue = NULL;
    if (where == IN_UNPARK) (void)wait_job_join(&job);
    softmetal_join_handler(buffer, softmetal_handler_count(buffer) - 1);
    softmetal_finish(buffer);
    metal_release(buffer);
    rig_close(&r);
}

static void test_destroy_waits_for_a_handler_that_runs_a_function_of_the_program(void **state)
{
    int where;
    (void)state;
    for (where = IN_LOG; where < GATES; where++) {
        check_destroy_waits_for_the_handler(where, false);
        check_destroy_waits_for_the_handler(where, true);
    }
}

typedef struct long_call {
    watch *w;
    bool inside;
} long_call;

/* Until the thread that waits for it has parked 200 times; or for 400 ms, should it need fewer. */
static void last_long(void *user, gpusync_result result, const gpusync_error *error)
{
    long_call *call = (long_call *)user;
    uint64_t limit = gpusync_now_ns() + MS(400);
    (void)result;
    (void)error;
    __atomic_store_n(&call->inside, true, __ATOMIC_SEQ_CST);
    while (read_count(&call->w->parks) < 200 && gpusync_now_ns() < limit) sched_yield();
}

static void test_destroy_takes_no_memory_however_long_a_callback_runs(void **state)
{
    long_call call = {NULL, false};
    gpusync_ticket ticket;
    long before;
    void *buffer;
    watch w;
    rig r;
    (void)state;
    rig_open_watched(&r, SOFTMETAL_MANUAL, &w, &no_spin, 0);
    call.w = &w;
    ticket = commit_empty(&r, &buffer);
    metal_retain(buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), last_long, &call));
    softmetal_complete(buffer);
    softmetal_begin_handler(buffer, 0);
    assert_true(comes_true(&call.inside));
    before = __atomic_load_n(&r.memory.calls, __ATOMIC_SEQ_CST);
    assert_ok(gpusync_queue_destroy(r.queue));
    r.queue = NULL;
    assert_in_range(__atomic_load_n(&r.memory.calls, __ATOMIC_SEQ_CST) - before, 0, 2); /* something to sleep with */
    softmetal_join_handler(buffer, 0);
    softmetal_finish(buffer);
    metal_release(buffer);
    rig_close(&r);
}

static void test_destroy_now_leaves_work_to_itself_and_late_handlers_touch_nothing(void **state)
{
    watch w;
    void *metal, *lost, *tracked = NULL, *foreign = NULL;
    rig r;
    (void)state;
    rig_open_watched(&r, SOFTMETAL_MANUAL, &w, &no_spin, 0);
    metal = metal_retain(r.metal_queue);
    commit_empty(&r, NULL);
    commit_empty(&r, &lost);
    if (!metal4_run()) softmetal_lose_handlers(lost); /* there its feedback alone lets go of it */
    softmetal_fail_next(1, 11);
    commit_empty(&r, NULL);
    if (!metal4_run()) {
        tracked = metal_queue_command_buffer(r.metal_queue);
        assert_ok(gpusync_track(r.queue, tracked, NULL));
        foreign = metal_queue_command_buffer(r.metal_queue);
        assert_ok(gpusync_track(r.queue, foreign, NULL));
        metal_commit(foreign);
    }
    open_buffer(&r);
    assert_ok(gpusync_queue_destroy_now(r.queue));
    r.queue = NULL;
    if (tracked) {
        assert_int_equal(softmetal_retain_count(tracked), 1);
        assert_int_equal(softmetal_retain_count(foreign), 2); /* ours and Metal's */
        assert_int_equal(softmetal_live("command_buffer"), 5); /* three commits and these two: the open one is gone */
    }
    assert_ok(gpusync_device_destroy(r.device));
    assert_int_equal(r.memory.live, 0);
    w.over = true;
    if (tracked) metal_commit(tracked);
    softmetal_finish_queue(metal);
    metal_release(tracked);
    metal_release(foreign);
    metal_release(metal);
    assert_true(softmetal_settle_listeners(SECONDS(20))); /* with Metal 4 one of them lets go of the queue */
    drop_recordings();
    assert_int_equal(w.too_late, 0);
    assert_int_equal(softmetal_live("command_buffer") + softmetal_live("command_buffer4"), 0);
    assert_int_equal(softmetal_live("run"), 0);
    assert_int_equal(softmetal_live("queue") + softmetal_live("queue4"), 0);
}

static void test_destroy_now_with_a_hanging_gpu_returns_on_the_real_clock(void **state)
{
    void *hanging;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    hanging = open_buffer(&r);
    metal_retain(hanging);
    softmetal_hang(hanging);
    assert_ok(either_commit(r.queue, hanging, NULL));
    commit_empty(&r, NULL);
    assert_ok(gpusync_queue_destroy_now(r.queue));
    r.queue = NULL;
    softmetal_unhang(hanging);
    assert_true(softmetal_settle(SECONDS(10)));
    metal_release(hanging);
    rig_close(&r);
}

static void test_an_ended_ticket_whose_handler_is_late_does_not_hold_destroy_up(void **state)
{
    void *buffer, *metal;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no status shows the end before the feedback");
    rig_open(&r, SOFTMETAL_MANUAL);
    metal = metal_retain(r.metal_queue);
    ticket = commit_empty(&r, &buffer);
    metal_retain(buffer);
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(r.queue, ticket));
    assert_ok(gpusync_queue_destroy(r.queue));
    r.queue = NULL;
    assert_int_equal(softmetal_retain_count(buffer), 2); /* this test's and Metal's */
    softmetal_finish(buffer);
    metal_release(buffer);
    metal_release(metal);
    rig_close(&r);
}

/* -- destroy while others wait ---------------------------------------------------------------------- */

#define WAITERS 20

static void count_waits(void *user, const gpusync_trace_event *event)
{
    if (event->kind == GPUSYNC_TRACE_WAIT_BEGIN) __atomic_fetch_add((long *)user, 1, __ATOMIC_SEQ_CST);
}

static void destroy_with_waiters(bool custom_hooks, const gpusync_spin *spin, bool now)
{
    wait_job jobs[WAITERS];
    destroyer d;
    watch w;
    void *buffer, *metal;
    gpusync_ticket ticket;
    long inside = 0;
    int i;
    rig r;
    if (custom_hooks) {
        rig_open_watched(&r, SOFTMETAL_MANUAL, &w, spin, 0);
        w.deaf = spin->yield_iterations ? 0 : WAITERS; /* destroy's own parks come later and have a deadline to keep */
    } else {
        gpusync_device_desc device_desc;
        gpusync_queue_desc queue_desc;
        memset(&device_desc, 0, sizeof device_desc);
        memset(&queue_desc, 0, sizeof queue_desc);
        queue_desc.spin = spin;
        rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    }
    assert_ok(gpusync_set_trace(r.device, count_waits, &inside)); /* a wait that spins shows in no report */
    metal = metal_retain(r.metal_queue);
    ticket = commit_empty(&r, &buffer);
    for (i = 0; i < WAITERS; i++) wait_job_start(&jobs[i], r.queue, i % 2 ? ticket : GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    while (read_count(&inside) < WAITERS) sched_yield();
    if (!spin->yield_iterations) await_sleepers(r.device, WAITERS);
    while (custom_hooks && !spin->yield_iterations && read_count(&w.parks) < WAITERS) sched_yield();
    destroyer_start(&d, &r, NULL, now);
    for (i = 0; i < WAITERS; i++) assert_result(wait_job_join(&jobs[i]), GPUSYNC_ERROR_DESTROYED);
    if (!now) assert_false(__atomic_load_n(&d.returned, __ATOMIC_SEQ_CST)); /* the work goes on */
    if (!now) softmetal_finish(buffer);
    join(d.thread);
    assert_ok(d.result);
    if (custom_hooks) assert_int_equal(w.gave_up, 0);
    r.queue = NULL;
    softmetal_finish_queue(metal);
    metal_release(metal);
    rig_close(&r);
}

static void test_destroy_ends_waits_that_sleep(void **state)
{
    (void)state;
    destroy_with_waiters(false, &no_spin, false);
    destroy_with_waiters(true, &no_spin, false);
}

static void test_destroy_ends_waits_that_spin(void **state)
{
    (void)state;
    destroy_with_waiters(false, &endless, true);
    destroy_with_waiters(true, &endless, true);
}

static void test_destroy_now_ends_waits_that_sleep(void **state)
{
    (void)state;
    destroy_with_waiters(false, &no_spin, true);
    destroy_with_waiters(true, &no_spin, true);
}

typedef struct device_job {
    gpusync_device *device;
    gpusync_result result;
} device_job;

static void *device_job_body(void *argument)
{
    device_job *job = (device_job *)argument;
    job->result = gpusync_device_wait(job->device, SECONDS(20), NULL);
    return NULL;
}

/* ... but not those for the device: what is in flight on the queue is none of its work any more. */
static void test_destroy_now_of_a_queue_ends_its_part_of_a_wait_for_the_device(void **state)
{
    void *buffer, *metal;
    device_job job;
    pthread_t thread;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    metal = metal_retain(r.metal_queue);
    commit_empty(&r, &buffer);
    metal_retain(buffer);
    job.device = r.device;
    thread = start(device_job_body, &job);
    await_sleepers(r.device, 1);
    assert_ok(gpusync_queue_destroy_now(r.queue));
    r.queue = NULL;
    join(thread);
    assert_ok(job.result);
    assert_int_equal(status_of(buffer), COMMITTED); /* it goes on */
    softmetal_finish(buffer);
    metal_release(buffer);
    metal_release(metal);
    rig_close(&r);
}

static void *make_buffer_body(void *argument)
{
    wait_job *job = (wait_job *)argument;
    void *buffer = NULL;
    job->result = gpusync_command_buffer(job->queue, NULL, &buffer);
    return NULL;
}

static void test_destroy_ends_a_wait_for_room(void **state)
{
    wait_job job;
    watch w;
    rig r;
    (void)state;
    NOT_ON_METAL4("command buffers take no room before their commit");
    rig_open_watched(&r, SOFTMETAL_MANUAL, &w, &no_spin, 1);
    open_buffer(&r);
    memset(&job, 0, sizeof job);
    job.queue = r.queue;
    job.thread = start(make_buffer_body, &job);
    await_sleepers(r.device, 1);
    assert_ok(gpusync_queue_destroy(r.queue)); /* the open buffer is given up */
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DESTROYED);
    r.queue = NULL;
    rig_close(&r);
}

static void test_calls_during_a_destroy_say_destroyed(void **state)
{
    gpusync_ticket_info info;
    destroyer d;
    watch w;
    unsigned long owners;
    void *buffer, *own, *made;
    gpusync_queue *another;
    gpusync_timeline *t;
    gpusync_ticket ticket;
    outcome o = {0};
    rig r;
    (void)state;
    rig_open_watched(&r, SOFTMETAL_MANUAL, &w, &no_spin, 0);
    another = queue_new(r.device);
    t = timeline_new(r.device);
    own = metal4_run() ? kept_buffer_of(r.queue) : metal_queue_command_buffer(r.metal_queue);
    owners = softmetal_retain_count(own);
    ticket = commit_empty(&r, &buffer);
    destroyer_start(&d, &r, NULL, false);
    while (read_count(&w.parks) < 1) sched_yield(); /* it waits for the work */
    assert_result(gpusync_queue_destroy(r.queue), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_queue_destroy_now(r.queue), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_wait(r.queue, ticket, 0), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_queue_wait(r.queue, GPUSYNC_FOREVER), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_get_info(r.queue, ticket, &info), GPUSYNC_ERROR_DESTROYED);
    assert_result(either_commit(r.queue, own, NULL), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_cancel_held(r.queue), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_on_done(after(r.queue, ticket), remember, &o), GPUSYNC_ERROR_DESTROYED);
    REFUSED(GPUSYNC_ERROR_DESTROYED, r.queue, BUFFERS(own), SIGNALS(at(t, 1)));
    made = buffer_of(another);
    REFUSED(GPUSYNC_ERROR_DESTROYED, another, BUFFERS(made), WAITS(after(r.queue, ticket)), SIGNALS(at(t, 1)));
    if (!metal4_run()) {
        assert_result(gpusync_encode_wait(r.queue, own, at(t, 1)), GPUSYNC_ERROR_DESTROYED);
        assert_result(gpusync_encode_signal(r.queue, own, at(t, 1)), GPUSYNC_ERROR_DESTROYED);
        assert_result(gpusync_encode_wait(another, made, after(r.queue, ticket)), GPUSYNC_ERROR_DESTROYED);
    }
    assert_ok(gpusync_timeline_signal(t, 1)); /* which no work is to signal */
    assert_ok(either_discard(another, made));
    if (!metal4_run()) {
        assert_result(gpusync_command_buffer(r.queue, NULL, &made), GPUSYNC_ERROR_DESTROYED);
        assert_result(gpusync_track(r.queue, own, NULL), GPUSYNC_ERROR_DESTROYED);
        assert_result(gpusync_command_buffer_discard(r.queue, own), GPUSYNC_ERROR_DESTROYED);
        assert_result(gpusync_untrack(r.queue, ticket), GPUSYNC_ERROR_DESTROYED);
    }
    assert_ok(gpusync_device_wait(r.device, GPUSYNC_FOREVER, NULL)); /* no longer a queue of the device */
    assert_int_equal(softmetal_retain_count(own), owners);
    metal_release(own);
    softmetal_finish(buffer);
    join(d.thread);
    assert_ok(d.result);
    r.queue = NULL;
    assert_int_equal(calls_of(&o), 0);
    assert_ok(gpusync_timeline_destroy(t));
    assert_ok(gpusync_queue_destroy(another));
    rig_close(&r);
}

static void test_a_device_with_queues_is_not_destroyed(void **state)
{
    gpusync_queue *second;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    second = queue_new(r.device);
    assert_result(gpusync_device_destroy(r.device), GPUSYNC_ERROR_IN_USE);
    assert_ok(gpusync_queue_destroy(r.queue));
    assert_result(gpusync_device_destroy(r.device), GPUSYNC_ERROR_IN_USE);
    r.queue = second;
    softmetal_finish((commit_empty(&r, NULL), softmetal_last_buffer(gpusync_queue_metal(second))));
    assert_ok(gpusync_queue_wait(second, 0)); /* it still works */
    rig_close(&r);
}

static void *device_wait_body(void *argument)
{
    rig *r = (rig *)argument;
    assert_ok(gpusync_device_wait(r->device, GPUSYNC_FOREVER, NULL));
    return NULL;
}

static void test_a_wait_for_the_device_keeps_no_other_queue_from_being_destroyed(void **state)
{
    gpusync_queue *other;
    pthread_t thread;
    void *buffer;
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, NULL, queue_desc_of(0, 0));
    other = queue_new(r.device);
    commit_empty(&r, &buffer);
    thread = start(device_wait_body, &r);
    await_sleepers(r.device, 1);
    assert_ok(gpusync_queue_destroy(other)); /* hangs when the waiter is inside of it */
    softmetal_finish(buffer);
    join(thread);
    rig_close(&r);
}

/* -- what is given up ------------------------------------------------------------------------------- */

/* Tickets of the queue that goes, and values of a, b and c. */
enum { IN_FLIGHT, SUBMITTED, TRACKED_UNCOMMITTED, HELD, BEHIND_HELD, GIVEN_TICKETS };
enum { OF_SUBMITTED, OF_OPEN, OF_HELD, GIVEN_VALUES, GIVEN = GIVEN_TICKETS + GIVEN_VALUES };

static const char *const given_names[GIVEN] = {
    "a plain commit in flight", "a submission in flight", "a tracked buffer", "held work", "a commit behind held work",
    "a value of a submission in flight", "a value of an open buffer", "a value of held work"};

typedef struct given_up {
    stage s;
    gpusync_point points[GIVEN];   /* NULL: there is none of the kind */
    outcome told[GIVEN];           /* of gpusync_on_done */
    outcome submitted, held;       /* their on_complete */
    gpusync_ticket after[GIVEN];   /* on the other queue: work that waits for the point */
    void *tracked;
    long lines;
} given_up;

static void count_a_line(void *user, gpusync_log_level level, const char *text)
{
    (void)level, (void)text;
    COUNT((long *)user);
}

static bool is_none(gpusync_point point) { return !point.queue && !point.timeline; }

static void open_given_up(given_up *g, bool in_flight)
{
    gpusync_device_desc device_desc;
    stage *s = &g->s;
    gpusync_point *p = g->points;
    gpusync_ticket ticket;
    size_t i;
    memset(g, 0, sizeof *g);
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.log = count_a_line;
    device_desc.log_user = &g->lines;
    open_stage_on(s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, 2, device_desc, queue_desc_of(0, 0));
    if (in_flight) {
        p[IN_FLIGHT] = after(s->q[0], commit_on(s, 0));
        p[SUBMITTED] = after(s->q[0], SUBMIT(s->q[0], BUFFERS(open_on(s, 0)), SIGNALS(at(s->a, 1)), TELL(&g->submitted)));
        p[GIVEN_TICKETS + OF_SUBMITTED] = at(s->a, 1);
    }
    if (!metal4_run()) {
        g->tracked = metal_queue_command_buffer(s->metal[0]);
        assert_ok(gpusync_track(s->q[0], g->tracked, &ticket));
        p[TRACKED_UNCOMMITTED] = after(s->q[0], ticket);
        p[GIVEN_TICKETS + OF_OPEN] = at(s->b, 1);
        assert_ok(gpusync_encode_signal(s->q[0], open_on(s, 0), p[GIVEN_TICKETS + OF_OPEN]));
    }
    p[GIVEN_TICKETS + OF_HELD] = at(s->c, 1);
    p[HELD] = after(s->q[0], SUBMIT(s->q[0], WAITS(at(s->d, 1)), BUFFERS(open_on(s, 0)),
                                    SIGNALS(p[GIVEN_TICKETS + OF_HELD]), TELL(&g->held)));
    p[BEHIND_HELD] = after(s->q[0], commit_on(s, 0));
    for (i = 0; i < GIVEN; i++) {
        if (is_none(p[i])) continue;
        assert_ok(gpusync_on_done(p[i], remember, &g->told[i]));
        g->after[i] = SUBMIT(s->q[1], WAITS(p[i]), BUFFERS(open_on(s, 1)), .flags = GPUSYNC_UNORDERED);
    }
}

static void check_given_up(const gpusync_error *error, gpusync_result expected, const char *what, const char *where)
{
    if (error->result == expected && error->failure == GPUSYNC_FAILURE_CANCELLED && error->message[0] &&
        strcmp(error->queue_label, "first") == 0)
        return;
    fail_msg("%s, %s: %s, of the class '%s', of the queue '%s'", what, where, gpusync_result_string(error->result),
             gpusync_failure_string(error->failure), error->queue_label);
}

static void check_told(outcome *o, gpusync_result expected, const char *what)
{
    assert_ended(o, expected);
    check_given_up(&o->error, expected, what, "its callback");
}

/* Callbacks, waits, records and work that waited get one result and one class. The log gets no line. */
static void check_what_ends_with_the_queue(bool now)
{
    gpusync_result expected = now ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_ERROR_CANCELLED;
    gpusync_error error;
    uint64_t cursor = 0;
    unsigned i, records = 0, count = 0;
    given_up g;
    void *metal, *event;
    open_given_up(&g, now); /* the plain destroy waits for work in flight */
    metal = metal_retain(g.s.metal[0]);
    event = gpusync_timeline_metal(g.s.a, NULL);
    must_return_within(60);
    take_down_queue(&g.s, 0, now);
    has_returned();
    finish(&g.s, 1); /* what waited for a value of work in flight was on the GPU */
    for (i = 0; i < GIVEN; i++) {
        if (is_none(g.points[i])) continue;
        count++;
        check_told(&g.told[i], expected, given_names[i]);
        if (g.points[i].timeline) {
            error = error_of_point(g.points[i]);
            check_given_up(&error, expected, given_names[i], "a wait for it");
        }
        error = error_of(g.s.q[1], g.after[i]);
        check_given_up(&error, expected, given_names[i], "work that waited for it");
    }
    check_told(&g.held, expected, "held work");
    if (now) check_told(&g.submitted, expected, "a submission in flight");
    while (gpusync_next_error(g.s.q[1], &cursor, &error) == GPUSYNC_OK) {
        check_given_up(&error, expected, "work that waited", "the record");
        records++;
    }
    assert_int_equal(records, count);
    softmetal_finish_queue(metal);
    if (now) drop_queue_that_stays(metal);
    if (now) drop_what_stays(event); /* which the submission in flight was to signal */
    metal_release(metal);
    if (g.tracked) metal_release(g.tracked);
    assert_int_equal(GET(&g.lines), 0);
    close_stage(&g.s);
}

static void test_destroy_now_ends_all_that_had_not_ended_as_destroyed(void **state)
{
    (void)state;
    check_what_ends_with_the_queue(true);
}

static void test_destroy_ends_what_was_not_committed_as_cancelled(void **state)
{
    (void)state;
    check_what_ends_with_the_queue(false);
}

static void test_buffers_made_or_tracked_and_never_committed_are_given_up(void **state)
{
    void *kept, *tracked, *done;
    rig r;
    (void)state;
    NOT_ON_METAL4("gpusync knows none before its commit");
    rig_open(&r, SOFTMETAL_MANUAL);
    open_buffer(&r);
    kept = metal_retain(open_buffer(&r));
    tracked = metal_queue_command_buffer(r.metal_queue);
    assert_ok(gpusync_track(r.queue, tracked, NULL));
    commit_empty(&r, &done);
    softmetal_finish(done);
    assert_ok(gpusync_queue_destroy(r.queue)); /* waits for none of them */
    r.queue = NULL;
    assert_int_equal(softmetal_retain_count(kept), 1);
    assert_int_equal(softmetal_retain_count(tracked), 1);
    assert_int_equal(softmetal_live("command_buffer"), 2);
    metal_release(kept);
    metal_release(tracked);
    rig_close(&r);
}

/* ... also behind work that runs, which destroy waits for. */
static void test_destroy_waits_for_running_work_and_gives_up_what_is_tracked_behind_it(void **state)
{
    outcome ran = {0}, dropped = {0};
    void *running, *tracked;
    gpusync_ticket ticket;
    destroyer d;
    rig r;
    (void)state;
    NOT_ON_METAL4("nothing is tracked");
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &running);
    metal_retain(running);
    assert_ok(gpusync_on_done(after(r.queue, ticket), remember, &ran));
    assert_ok(gpusync_on_done(after(r.queue, track_a_buffer(&r, &tracked)), remember, &dropped));
    must_return_within(60);
    destroyer_start(&d, &r, NULL, false);
    await_calls(&dropped, 1);
    assert_false(GET(&d.returned));
    assert_int_equal(calls_so_far(&ran), 0);
    softmetal_finish(running);
    join(d.thread);
    has_returned();
    assert_ok(d.result);
    r.queue = NULL;
    assert_ended(&ran, GPUSYNC_OK);
    assert_ended(&dropped, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(softmetal_retain_count(tracked), 1);
    metal_release(running);
    metal_release(tracked);
    rig_close(&r);
}

static void test_a_given_up_buffer_may_be_committed_by_its_owner_afterwards(void **state)
{
    void *tracked, *metal;
    rig r;
    (void)state;
    NOT_ON_METAL4("nothing is tracked");
    rig_open(&r, SOFTMETAL_MANUAL);
    metal = metal_retain(r.metal_queue);
    tracked = metal_queue_command_buffer(metal);
    assert_ok(gpusync_track(r.queue, tracked, NULL));
    assert_ok(gpusync_queue_destroy(r.queue));
    assert_ok(gpusync_device_destroy(r.device));
    assert_int_equal(r.memory.live, 0);
    metal_commit(tracked);
    softmetal_finish(tracked);
    metal_release(tracked);
    metal_release(metal);
}

/* The work ends when the queue is gone: on the real clock it could end before, and destroy would tell of it. */
static void test_after_destroy_nothing_of_the_program_is_called(void **state)
{
    watch w;
    void *failing, *metal;
    int i;
    rig r;
    (void)state;
    rig_open_watched(&r, SOFTMETAL_MANUAL, &w, &no_spin, 0);
    for (i = 0; i < 20; i++) {
        metal = metal_retain(gpusync_queue_metal(r.queue));
        failing = open_buffer(&r);
        softmetal_fail(failing, NULL, 4, NULL); /* would log, lose the device, wake */
        metal_retain(failing);
        assert_ok(either_commit(r.queue, failing, NULL));
        assert_ok(gpusync_queue_destroy_now(r.queue));
        w.over = true;
        softmetal_finish(failing);
        assert_true(softmetal_settle_listeners(SECONDS(10)));
        metal_release(failing);
        metal_release(metal);
        assert_int_equal(w.too_late, 0);
        w.over = false;
        assert_false(gpusync_device_is_lost(r.device));
        r.queue = queue_new(r.device);
    }
    rig_close(&r);
}

static void test_a_thousand_queues_and_devices_come_and_go_without_a_trace(void **state)
{
    long objects, live, i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    commit_empty(&r, NULL);
    rig_close(&r);
    softmetal_reset(); /* timers that were left come, and let the memory of their device go */
    objects = softmetal_live(NULL);
    live = GET(&probe_memory.live);
    for (i = 0; i < 1000; i++) {
        rig_open(&r, SOFTMETAL_REAL);
        commit_empty(&r, NULL);
        if (i % 3 == 0) commit_lasting(&r, 50000);
        if (i % 5 == 0) open_buffer(&r);
        if (i % 7 == 0) {
            assert_ok(gpusync_queue_destroy_now(r.queue));
            r.queue = NULL;
        }
        rig_close(&r);
        assert_int_equal(softmetal_live(NULL), objects);
    }
    softmetal_reset();
    assert_int_equal(GET(&probe_memory.live), live);
}

static void test_destroy_now_gives_back_the_slots_of_buffers_that_are_never_committed(void **state)
{
    long live = 0;
    int i;
    (void)state;
    NOT_ON_METAL4("nothing is tracked");
    for (i = 0; i < 400; i++) {
        void *buffer;
        rig r;
        rig_open_sleepy(&r, SOFTMETAL_MANUAL, NULL, queue_desc_of(0, 0));
        track_a_buffer(&r, &buffer);
        assert_ok(gpusync_queue_destroy_now(r.queue));
        r.queue = NULL;
        metal_release(buffer);
        rig_close(&r);
        softmetal_reset();
        if (i == 10) live = GET(&probe_memory.live);
    }
    assert_int_equal(GET(&probe_memory.live), live);
}

/* -- statistics and report -------------------------------------------------------------------------- */

static void test_the_counts_of_destroyed_queues_stay_in_those_of_the_device(void **state)
{
    gpusync_stats stats;
    void *buffer;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 1; i <= 3; i++) {
        softmetal_fail_next(1, 1);
        commit_empty(&r, &buffer);
        softmetal_finish(buffer);
        commit_empty(&r, &buffer);
        assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_TIMEOUT);
        softmetal_finish(buffer);
        assert_ok(gpusync_device_get_stats(r.device, &stats));
        assert_int_equal(stats.commits, 2 * i);
        assert_int_equal(stats.failures, i);
        assert_ok(gpusync_queue_destroy(r.queue));
        assert_ok(gpusync_device_get_stats(r.device, &stats));
        assert_int_equal(stats.commits, 2 * i);
        assert_int_equal(stats.completions, 2 * i);
        assert_int_equal(stats.failures, i);
        assert_int_equal(stats.waits_unmet, i);
        r.queue = NULL;
        if (i < 3) r.queue = queue_new(r.device);
        if (i < 3) assert_int_equal(stats_of(r.queue).commits, 0);
    }
    rig_close(&r);
}

/* Waits that a report lists. */
typedef struct crowd {
    gpusync_hooks hooks;
    wait_job jobs[17];
    void *buffer;
    unsigned parked;
} crowd;

static void park_in_crowd(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    COUNT(&((crowd *)user)->parked);
    thread_park(waiter, deadline_ns);
}

static void unpark_in_crowd(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

static void end_crowd(void *argument)
{
    crowd *c = (crowd *)argument;
    size_t i;
    softmetal_finish(c->buffer);
    for (i = 0; i < LENGTH(c->jobs); i++) (void)pthread_join(c->jobs[i].thread, NULL);
}

/* All of them leave at the n-th point of a report. A wait for a later ticket may stay. False: there is no such point. */
static bool leave_while_a_report_lists(int n, bool one_stays)
{
    crowd c = {{0}, {{0}}, NULL, 0};
    char text[8192], *at = text;
    gpusync_ticket ticket;
    size_t i, listed = 0;
    wait_job behind;
    void *last = NULL;
    bool acted;
    rig r;
    c.hooks.park = park_in_crowd;
    c.hooks.unpark = unpark_in_crowd;
    c.hooks.user = &c;
    rig_open_hooked(&r, SOFTMETAL_MANUAL, &c.hooks, 64);
    ticket = commit_empty(&r, &c.buffer);
    for (i = 0; i < LENGTH(c.jobs); i++) wait_job_start(&c.jobs[i], r.queue, ticket, SECONDS(60));
    if (one_stays) wait_job_start(&behind, r.queue, commit_empty(&r, &last), SECONDS(60));
    while (GET(&c.parked) < LENGTH(c.jobs) + one_stays) sched_yield();
    probe_at_each(n, end_crowd, &c);
    assert_true(gpusync_queue_report(r.queue, text, sizeof text) < sizeof text);
    acted = probe_has_acted();
    if (!acted) end_crowd(&c);
    for (i = 0; i < LENGTH(c.jobs); i++) assert_ok(c.jobs[i].result);
    for (; (at = strstr(at, "a wait for ticket 1,")) != NULL; at++) listed++;
    assert_in_range(listed, acted ? 0 : LENGTH(c.jobs), LENGTH(c.jobs));
    assert_int_equal(strstr(text, "a wait for ticket 2,") != NULL, one_stays);
    if (one_stays) {
        softmetal_finish(last);
        assert_ok(wait_job_join(&behind));
    }
    rig_close(&r);
    return acted;
}

/* Before, between and after the holds in which the report lists them. */
static void test_waits_may_leave_while_a_report_lists_them(void **state)
{
    int one_stays, n;
    (void)state;
    for (one_stays = 0; one_stays < 2; one_stays++) {
        for (n = 1; leave_while_a_report_lists(n, one_stays > 0); n++) {
        }
        assert_true(n > 1);
    }
}

static void test_the_report_names_unfinished_buffers_waiters_and_queues(void **state)
{
    gpusync_queue_desc queue_desc;
    gpusync_queue *shadows;
    wait_job jobs[2];
    char text[4096], head[64];
    void *done, *labelled, *foreign;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.label = "shadows";
    shadows = queue_of_kind(QUEUE_OF_GPUSYNC, r.device, &queue_desc);
    commit_empty(&r, &done);
    softmetal_finish(done);
    labelled = OPEN(r.queue, .label = "opaque pass");
    assert_ok(either_commit(r.queue, labelled, NULL));
    softmetal_schedule(labelled);
    if (metal4_run()) {
        foreign = metal_retain(OPEN(r.queue, .label = "elsewhere"));
        assert_ok(either_commit(r.queue, foreign, NULL));
    } else {
        foreign = metal_queue_command_buffer(r.metal_queue);
        metal_set_label(foreign, "elsewhere");
        assert_ok(gpusync_track(r.queue, foreign, NULL));
        metal_commit(foreign);
    }
    wait_job_start(&jobs[0], r.queue, 2, GPUSYNC_FOREVER);
    wait_job_start(&jobs[1], r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    gpusync_report(r.device, text, sizeof text);
    snprintf(head, sizeof head, "gpusync %d.%d.%d device\n", GPUSYNC_VERSION_MAJOR, GPUSYNC_VERSION_MINOR,
             GPUSYNC_VERSION_PATCH);
    assert_memory_equal(text, head, strlen(head));
    assert_non_null(strstr(text, metal4_run() ? "queue 1 '': Metal 4, committed 3, completed 1, failed 0"
                                              : "queue 1 '': committed 3, completed 1, failed 0"));
    assert_non_null(strstr(text, metal4_run() ? "queue 2 'shadows': Metal 4, committed 0, completed 0, failed 0"
                                              : "queue 2 'shadows': committed 0, completed 0, failed 0"));
    assert_non_null(strstr(text, ", idle\n"));
    /* Metal 4 does not tell what is scheduled. */
    assert_non_null(strstr(text, metal4_run() ? "ticket 2 'opaque pass': committed for "
                                              : "ticket 2 'opaque pass': scheduled for "));
    assert_non_null(strstr(text, "ticket 3 'elsewhere': committed for "));
    assert_null(strstr(text, "ticket 1 ''"));
    assert_non_null(strstr(text, "a wait for ticket 2, asleep for "));
    assert_non_null(strstr(text, "a wait for everything up to ticket 3, asleep for "));
    if (!metal4_run()) { /* the wait goes on for ticket 2, and the report still names ticket 3 */
        softmetal_finish(foreign);
        gpusync_report(r.device, text, sizeof text);
        assert_null(strstr(text, "elsewhere"));
        assert_non_null(strstr(text, "a wait for everything up to ticket 3, asleep for "));
    }
    softmetal_finish_queue(r.metal_queue);
    assert_ok(wait_job_join(&jobs[0]));
    assert_ok(wait_job_join(&jobs[1]));
    gpusync_report(r.device, text, sizeof text);
    assert_null(strstr(text, "a wait for"));
    assert_null(strstr(text, "opaque pass"));
    metal_release(foreign);
    assert_ok(gpusync_queue_destroy(shadows));
    gpusync_report(r.device, text, sizeof text);
    assert_null(strstr(text, "shadows"));
    rig_close(&r);
}

/* A queue on which work has failed is not lost for that; all queues of a lost device are, whatever failed on them. */
static void test_the_report_tells_a_lost_queue_from_one_that_has_failed(void **state)
{
    static const char *const failed[2][2] = {{", failed 1, ", ", failed 0, "}, {", failed 2, ", ", failed 0, "}};
    gpusync_queue *queues[2];
    char text[2000];
    void *buffer;
    int lost, i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    queues[0] = r.queue;
    queues[1] = queue_new(r.device);
    for (lost = 0; lost < 2; lost++) {
        (void)commit_empty(&r, &buffer);
        softmetal_fail(buffer, NULL, 3, "killed");
        if (lost) fail_with_the_device(buffer);
        softmetal_finish(buffer);
        assert_int_equal(gpusync_device_is_lost(r.device), lost);
        for (i = 0; i < 2; i++) {
            gpusync_queue_report(queues[i], text, sizeof text);
            assert_non_null(strstr(text, failed[lost][i]));
            assert_non_null(strstr(text, lost ? ", idle, lost\n" : ", idle\n"));
        }
    }
    assert_ok(gpusync_queue_destroy(queues[1]));
    rig_close(&r);
}

/* A label cannot make lines that look like the report's own. */
static void test_the_report_shows_control_characters_of_labels_as_blanks(void **state)
{
    gpusync_queue_desc queue_desc;
    gpusync_timeline_desc timeline_desc;
    gpusync_timeline *timeline;
    gpusync_queue *queue;
    char text[2048];
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&timeline_desc, 0, sizeof timeline_desc);
    queue_desc.label = "shadow\x7F" "queue\n";
    timeline_desc.label = "frame\x1B[2Jtimeline";
    queue = queue_of_kind(QUEUE_OF_GPUSYNC, r.device, &queue_desc);
    assert_ok(gpusync_timeline_create(r.device, &timeline_desc, &timeline));
    buffer = OPEN(r.queue, .label = "opaque\r\n  queue 9 '': committed 1 \xC3\xA9");
    assert_ok(either_commit(r.queue, buffer, NULL));
    assert_true(gpusync_report(r.device, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "'shadow queue '"));
    assert_non_null(strstr(text, "'frame [2Jtimeline'"));
    assert_non_null(strstr(text, "'opaque    queue 9 '': committed 1 \xC3\xA9'"));
    assert_null(strstr(text, "\n  queue 9"));
    softmetal_finish(buffer);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_queue_destroy(queue));
    rig_close(&r);
}

/* Asleep until the test says so, whatever happens meanwhile. */
typedef struct bed {
    bool unparked, up;
} bed;

static void lie_in(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    bed *b = (bed *)user;
    (void)waiter;
    (void)deadline_ns;
    (void)comes_true(&b->up);
}

static void ring(void *user, gpusync_waiter *waiter)
{
    (void)waiter;
    __atomic_store_n(&((bed *)user)->unparked, true, __ATOMIC_SEQ_CST);
}

static void test_the_report_leaves_out_a_wait_that_is_over(void **state)
{
    bed b = {false, false};
    gpusync_hooks hooks = {NULL, lie_in, ring, NULL};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    char text[4096];
    void *buffer;
    wait_job job;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    hooks.user = &b;
    device_desc.hooks = &hooks;
    queue_desc.spin = &no_spin;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    wait_job_start(&job, r.queue, commit_empty(&r, &buffer), SECONDS(20));
    await_sleepers(r.device, 1);
    softmetal_finish(buffer);
    assert_true(comes_true(&b.unparked));
    gpusync_report(r.device, text, sizeof text);
    assert_null(strstr(text, "a wait for")); /* its thread has not even woken up */
    __atomic_store_n(&b.up, true, __ATOMIC_SEQ_CST);
    assert_ok(wait_job_join(&job));
    rig_close(&r);
}

/* The number in front of "ms" that follows these words. */
static double ms_behind(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    assert_non_null(at);
    return atof(at + strlen(words));
}

static void test_the_report_gives_ages_in_milliseconds(void **state)
{
    const struct timespec nap = {0, 20000000};
    uint64_t begun;
    char text[4096];
    double most;
    void *buffer;
    wait_job job;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    begun = gpusync_now_ns();
    wait_job_start(&job, r.queue, commit_empty(&r, &buffer), SECONDS(20));
    await_sleepers(r.device, 1);
    nanosleep(&nap, NULL);
    gpusync_report(r.device, text, sizeof text);
    most = (double)(gpusync_now_ns() - begun) / 1e6 + 0.1;
    assert_true(ms_behind(text, "committed for ") >= 20 && ms_behind(text, "committed for ") <= most);
    assert_true(ms_behind(text, "asleep for ") >= 20 && ms_behind(text, "asleep for ") <= most);
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&job));
    rig_close(&r);
}

static void test_the_report_is_cut_as_by_snprintf(void **state)
{
    char whole[1024], part[1024];
    size_t length, size;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    length = gpusync_report(r.device, whole, sizeof whole);
    assert_int_equal(length, strlen(whole));
    assert_true(length > 20);
    assert_int_equal(gpusync_report(r.device, NULL, 0), length);
    assert_int_equal(gpusync_report(r.device, NULL, 100), length);
    for (size = 0; size <= length + 2; size++) {
        memset(part, '#', sizeof part);
        assert_int_equal(gpusync_report(r.device, part, size), length);
        assert_int_equal(part[size], '#');
        if (size == 0) continue;
        assert_int_equal(strlen(part), size - 1 < length ? size - 1 : length);
        assert_memory_equal(part, whole, strlen(part));
    }
    assert_int_equal(gpusync_report(NULL, part, sizeof part), 0);
    assert_string_equal(part, "");
    rig_close(&r);
}

/* -- autorelease pools ------------------------------------------------------------------------------ */

typedef struct tour {
    gpusync_device_desc desc;
    bool ok;
} tour;

/* Every call on a thread that never had a pool: softmetal aborts when an object is autoreleased. */
static void *tour_body(void *argument)
{
    static const uint64_t limit = 1000000;
    tour *t = (tour *)argument;
    gpusync_command_buffer_desc desc;
    gpusync_queue_desc queue_desc;
    gpusync_ticket_info info;
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL, *given = NULL;
    gpusync_ticket ticket = 0, tracked = 0, foreign = 0;
    gpusync_error error;
    uint64_t cursor = 0;
    char text[2048];
    void *buffer = NULL, *own, *buffers[2];
    memset(&desc, 0, sizeof desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.label = "a label that is too long to hide in a tagged pointer";
    queue_desc.metal4 = metal4_run();
    desc.label = queue_desc.label;
    desc.timeout_ns = &limit;
    t->ok = gpusync_device_create(&t->desc, &device) == GPUSYNC_OK;
    t->ok = t->ok && gpusync_queue_create(device, &queue_desc, &queue) == GPUSYNC_OK;
    queue_desc.metal_queue = gpusync_queue_metal(queue);
    t->ok = t->ok && gpusync_queue_create(device, &queue_desc, &given) == GPUSYNC_OK;
    t->ok = t->ok && either_buffer(queue, &desc, &buffer) == GPUSYNC_OK;
    t->ok = t->ok && either_discard(queue, buffer) == GPUSYNC_OK;
    t->ok = t->ok && either_buffer(queue, &desc, &buffer) == GPUSYNC_OK;
    if (!t->ok) return NULL;
    softmetal_fail(buffer, NULL, 2, NULL);
    t->ok = either_commit(queue, buffer, &ticket) == GPUSYNC_OK;
    t->ok = t->ok && gpusync_wait(queue, ticket, GPUSYNC_FOREVER) == GPUSYNC_ERROR_EXECUTION;
    if (metal4_run()) {
        gpusync_submission submission = {.command_buffers = buffers, .command_buffer_count = 2};
        own = metal_retain(record_for(queue, "one"));
        buffers[0] = own;
        buffers[1] = record_for(queue, "two");
        t->ok = t->ok && either_submit(queue, &submission, &foreign) == GPUSYNC_OK;
    } else {
        own = metal_queue_command_buffer(gpusync_queue_metal(queue));
        t->ok = t->ok && gpusync_track(queue, own, &tracked) == GPUSYNC_OK;
        t->ok = t->ok && gpusync_untrack(queue, tracked) == GPUSYNC_OK;
        t->ok = t->ok && gpusync_track(queue, own, &foreign) == GPUSYNC_OK;
        metal_commit(own);
    }
    gpusync_report(device, text, sizeof text);
    t->ok = t->ok && gpusync_queue_wait(queue, GPUSYNC_FOREVER) == GPUSYNC_ERROR_EXECUTION;
    t->ok = t->ok && gpusync_device_wait(device, GPUSYNC_FOREVER, NULL) == GPUSYNC_OK;
    t->ok = t->ok && gpusync_poll(queue, foreign) == GPUSYNC_OK;
    t->ok = t->ok && gpusync_get_info(queue, ticket, &info) == GPUSYNC_OK;
    t->ok = t->ok && gpusync_next_error(queue, &cursor, &error) == GPUSYNC_OK;
    metal_release(own);
    t->ok = t->ok && either_buffer(queue, NULL, &buffer) == GPUSYNC_OK; /* for destroy to give up */
    t->ok = gpusync_queue_destroy(given) == GPUSYNC_OK && t->ok;
    t->ok = gpusync_queue_destroy(queue) == GPUSYNC_OK && t->ok;
    t->ok = gpusync_device_destroy(device) == GPUSYNC_OK && t->ok;
    return NULL;
}

static void test_no_call_needs_an_autorelease_pool_of_the_caller(void **state)
{
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(budgets); i++) {
        tour t;
        softmetal_reset();
        memset(&t, 0, sizeof t);
        t.desc.spin = budgets[i];
        join(start(tour_body, &t));
        assert_true(t.ok);
        assert_true(softmetal_settle(SECONDS(10)));
        drop_recordings();
        assert_int_equal(softmetal_live("command_buffer") + softmetal_live("run"), 0);
    }
}

/* What makes an object, or takes one, may autorelease others inside of Metal: so at each message of the library's, on
   whatever thread, one is autoreleased, for which softmetal demands a pool. The messages that return a number, and that
   are sent again and again, do without. */
static struct {
    long autoreleased, gone;
} inside_metal;
extern void *objc_autorelease(void *object);
static __thread bool of_the_test; /* messages on this thread are none of the library's */

static void one_is_gone(void *unused)
{
    (void)unused;
    COUNT(&inside_metal.gone);
}

static void autorelease_inside(void *user, softmetal_phase phase, void *object, const char *selector)
{
    static const char *const numbers[] = {"status", "signaledValue", "GPUStartTime", "GPUEndTime"};
    size_t i;
    (void)user;
    (void)object;
    if (phase != SOFTMETAL_BEFORE || of_the_test) return;
    for (i = 0; i < LENGTH(numbers); i++)
        if (strcmp(selector, numbers[i]) == 0) return;
    COUNT(&inside_metal.autoreleased);
    (void)objc_autorelease(softmetal_new_witness(one_is_gone, NULL));
}

static void nothing_to_do(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)result;
    (void)error;
}

static void *tour_through_metal(void *unused)
{
    gpusync_queue_desc queue_desc;
    gpusync_warmup *warmup;
    gpusync_device *device;
    gpusync_queue *queues[2];
    gpusync_timeline *timeline, *foreign;
    gpusync_ticket running, ticket;
    void *buffers[5], *object;
    char text[4096];
    int i;
    must(gpusync_device_create(NULL, &device) == GPUSYNC_OK, "device");
    for (i = 0; i < 2; i++) {
        memset(&queue_desc, 0, sizeof queue_desc);
        queue_desc.label = "a label that is too long to hide in a tagged pointer";
        queue_desc.metal4 = metal4_run();
        must(gpusync_queue_create(device, &queue_desc, &queues[i]) == GPUSYNC_OK, "queue");
    }
    must(gpusync_timeline_create(device, &(gpusync_timeline_desc){.label = "progress"}, &timeline) == GPUSYNC_OK,
         "timeline");
    must(gpusync_timeline_create(device, &(gpusync_timeline_desc){.signalled_by_others = true}, &foreign) == GPUSYNC_OK,
         "timeline");
    of_the_test = true;
    for (i = 0; i < 5; i++) {
        if (metal4_run()) buffers[i] = metal_retain(record_for(queues[i % 2], "mine"));
        else buffers[i] = metal_queue_command_buffer(gpusync_queue_metal(queues[i % 2]));
    }
    object = metal_buffer_new(gpusync_device_metal(device), 16);
    for (i = 0; metal4_run() && i < 5; i++) end_recording(buffers[i]);
    softmetal_hang(buffers[1]);
    softmetal_fail(buffers[2], NULL, 2, NULL);
    of_the_test = false;
    /* a ticket that work waits for, and a value of others, which needs the listener */
    must(either_commit(queues[1], buffers[1], &running) == GPUSYNC_OK, "commit");
    if (!metal4_run()) {
        must(gpusync_encode_wait(queues[0], buffers[4], after(queues[1], running)) == GPUSYNC_OK, "encode_wait");
        must(gpusync_encode_signal(queues[0], buffers[4], at(timeline, 29)) == GPUSYNC_OK, "encode_signal");
    }
    must(gpusync_submit(queues[0],
                        &(gpusync_submission){WAITS(after(queues[1], running)), BUFFERS(buffers[0]),
                                              SIGNALS(at(timeline, 1)), .on_complete = nothing_to_do},
                        &ticket) == GPUSYNC_OK,
         "submit");
    must(gpusync_on_done(at(timeline, 2), nothing_to_do, NULL) == GPUSYNC_OK, "on_done");
    must(gpusync_on_done(at(foreign, 1), nothing_to_do, NULL) == GPUSYNC_OK, "on_done");
    must(gpusync_release_after(after(queues[0], ticket), object) == GPUSYNC_OK, "release_after");
    must(gpusync_report(device, text, sizeof text) > 0, "report");
    of_the_test = true;
    softmetal_unhang(buffers[1]);
    of_the_test = false;
    must(gpusync_wait(queues[0], ticket, GPUSYNC_FOREVER) == GPUSYNC_OK, "wait");
    must(gpusync_timeline_signal(timeline, 2) == GPUSYNC_OK, "signal");
    must(either_commit(queues[0], buffers[2], &ticket) == GPUSYNC_OK, "commit");
    must(gpusync_wait(queues[0], ticket, GPUSYNC_FOREVER) == GPUSYNC_ERROR_EXECUTION, "wait");
    must(gpusync_submit(queues[1], &(gpusync_submission){WAITS(at(timeline, 20)), BUFFERS(buffers[3])}, NULL) ==
             GPUSYNC_OK,
         "submit");
    must(gpusync_cancel_held(queues[1]) == GPUSYNC_OK, "cancel");
    must(gpusync_submit(queues[0],
                        &(gpusync_submission){WAITS(at(timeline, 2)), BUFFERS(buffers[4]), SIGNALS(at(timeline, 30)),
                                              .flags = GPUSYNC_STRICT},
                        &ticket) == GPUSYNC_OK,
         "submit");
    must(gpusync_timeline_wait(timeline, 30, GPUSYNC_FOREVER, NULL) == GPUSYNC_OK, "wait");
    must(gpusync_warmup_start(device, NULL, &warmup) == GPUSYNC_OK, "warm-up");
    must(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER) == GPUSYNC_OK, "warm-up");
    must(gpusync_warmup_destroy(warmup) == GPUSYNC_OK, "warm-up");
    for (i = 0; i < 2; i++) must(gpusync_queue_destroy(queues[i]) == GPUSYNC_OK, "destroy");
    must(gpusync_timeline_destroy(timeline) == GPUSYNC_OK, "destroy");
    must(gpusync_timeline_destroy(foreign) == GPUSYNC_OK, "destroy");
    must(gpusync_device_destroy(device) == GPUSYNC_OK, "destroy");
    of_the_test = true;
    for (i = 0; i < 5; i++) metal_release(buffers[i]);
    metal_release(object);
    return unused;
}

static void test_every_message_that_may_autorelease_has_a_pool(void **state)
{
    (void)state;
    softmetal_reset();
    memset(&inside_metal, 0, sizeof inside_metal);
    softmetal_set_message_hook(autorelease_inside, NULL);
    join(start(tour_through_metal, NULL));
    softmetal_set_message_hook(NULL, NULL);
    assert_true(softmetal_settle(SECONDS(10)));
    drop_recordings();
    assert_true(inside_metal.autoreleased > 20);
    assert_int_equal(inside_metal.gone, inside_metal.autoreleased); /* each with its pool */
}

/* A completed handler of the program's that autoreleases. */
typedef struct autoreleasing_block {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct autoreleasing_block *self, void *buffer);
    const void *descriptor;
    void *object;
} autoreleasing_block;

static const struct {
    unsigned long reserved, size;
    const char *signature;
} autoreleasing_descriptor = {0, sizeof(autoreleasing_block), "v16@?0@8"};
extern void *global_block_class[] METAL__ASM("_NSConcreteGlobalBlock");

static void autorelease_object(autoreleasing_block *self, void *buffer)
{
    (void)buffer;
    metal_do(metal_retain(self->object), "autorelease");
}

static void *discard_on_a_bare_thread(void *arguments)
{
    void **of = (void **)arguments;
    return gpusync_command_buffer_discard((gpusync_queue *)of[0], of[1]) == GPUSYNC_OK ? NULL : arguments;
}

/* Metal runs the handlers of a buffer that was never committed when it deallocates it: inside of a call of gpusync's. */
static void test_what_a_dealloc_autoreleases_goes_with_the_pool_of_the_call(void **state)
{
    static autoreleasing_block block;
    void *arguments[2], *failed;
    pthread_t thread;
    rig r;
    (void)state;
    NOT_ON_METAL4("command buffers have no handlers");
    rig_open(&r, SOFTMETAL_MANUAL);
    block.isa = global_block_class;
    block.flags = 1 << 28 | 1 << 30;
    block.invoke = autorelease_object;
    block.descriptor = &autoreleasing_descriptor;
    block.object = metal_buffer_new(r.metal_device, 1);
    arguments[0] = r.queue;
    arguments[1] = open_buffer(&r);
    metal_add_completed_handler(arguments[1], &block);
    thread = start(discard_on_a_bare_thread, arguments);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    assert_int_equal(softmetal_retain_count(block.object), 1);
    metal_release(block.object);
    rig_close(&r);
}

/* An argument is a pattern of the names of the tests to run: test_a_*. */
/* -- events that the device is not through with ------------------------------------------------------------------- */

typedef struct outlived {
    rig r;
    gpusync_queue *other;
    void *metal, *metal_other; /* +1 */
} outlived;

static void outlived_open(outlived *o)
{
    rig_open(&o->r, SOFTMETAL_MANUAL);
    o->other = queue_new(o->r.device);
    o->metal = metal_retain(o->r.metal_queue);
    o->metal_other = metal_retain(gpusync_queue_metal(o->other));
}

/* A command buffer that keeps nothing alive by itself, with this wait at its head, if any; +1. */
static void *unretained_buffer(gpusync_queue *queue, const gpusync_point *wait)
{
    gpusync_command_buffer_desc desc;
    void *buffer;
    memset(&desc, 0, sizeof desc);
    desc.unretained_references = true;
    assert_ok(make_behind(queue, &desc, wait, wait != NULL, &buffer));
    return metal_retain(buffer);
}

/* Commits a command buffer behind this wait, which may be such a one; +1. With Metal 4 it is the queue that waits. */
static gpusync_ticket commit_behind(gpusync_queue *queue, gpusync_point wait, bool unretained, void **buffer)
{
    if (is_metal4(queue)) {
        *buffer = kept_buffer_of(queue);
        return SUBMIT(queue, BUFFERS(*buffer), WAITS(wait));
    }
    *buffer = unretained ? unretained_buffer(queue, &wait) : buffer_behind(queue, &wait);
    return commit_to(queue, *buffer);
}

static void all_goes_now(outlived *o, gpusync_timeline *timeline)
{
    assert_ok(gpusync_queue_destroy_now(o->r.queue));
    assert_ok(gpusync_queue_destroy_now(o->other));
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_device_destroy(o->r.device));
}

/* Some owner besides the test. */
static void assert_kept(void *event) { assert_true(softmetal_retain_count(event) > 1); }

/* of_both: work of either queue needed the event, and not that of the first one alone. */
static void outlived_close(outlived *o, void *buffer, void *event, bool of_both)
{
    softmetal_finish_queue(o->metal_other);
    softmetal_finish_queue(o->metal);
    metal_release(buffer);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    drop_recordings();
    drop_what_stays(event);
    drop_queue_that_stays(o->metal);
    if (of_both) drop_what_stays(event);
    if (of_both) drop_queue_that_stays(o->metal_other);
    assert_int_equal(softmetal_retain_count(event), 1); /* nothing keeps it for longer */
    metal_release(event);
    metal_release(o->metal);
    metal_release(o->metal_other);
}

static void test_an_event_stays_for_work_that_waits_for_its_value(void **state)
{
    gpusync_timeline *timeline;
    gpusync_point wait;
    void *signalling, *waiting, *event;
    outlived o;
    (void)state;
    outlived_open(&o);
    timeline = timeline_new(o.r.device);
    event = metal_retain(gpusync_timeline_metal(timeline, NULL));
    wait = gpusync_at_value(timeline, 1);
    signalling = kept_buffer_of(o.other);
    (void)SUBMIT(o.other, BUFFERS(signalling), SIGNALS(wait), .flags = SIGNALS_INSIDE);
    (void)commit_behind(o.r.queue, wait, true, &waiting);
    assert_int_equal(status_of(waiting), COMMITTED);
    all_goes_now(&o, timeline);
    softmetal_finish(signalling); /* which had kept the event */
    metal_release(signalling);
    assert_kept(event);
    outlived_close(&o, waiting, event, true);
}

/* The timeline goes, and the device waits on for the value: the next timeline takes another event. */
static void test_an_event_that_the_device_waits_for_serves_no_other_timeline(void **state)
{
    const gpusync_timeline_desc desc = {.signalled_by_others = true};
    gpusync_timeline *timeline;
    void *waiting;
    uint64_t made;
    outlived o;
    (void)state;
    NOT_ON_METAL4("the queue stays for good, with the event");
    outlived_open(&o);
    assert_ok(gpusync_timeline_create(o.r.device, &desc, &timeline));
    (void)commit_behind(o.r.queue, gpusync_at_value(timeline, 1), false, &waiting);
    assert_int_equal(status_of(waiting), COMMITTED);
    assert_ok(gpusync_queue_destroy_now(o.r.queue));
    assert_ok(gpusync_timeline_destroy(timeline));
    made = softmetal_message_count("newSharedEvent");
    assert_ok(gpusync_timeline_destroy(timeline_new(o.r.device)));
    assert_int_equal(softmetal_message_count("newSharedEvent"), made + 1);
    softmetal_time_out(waiting);
    softmetal_finish(waiting);
    metal_release(waiting);
    assert_ok(gpusync_queue_destroy(o.other));
    assert_ok(gpusync_device_destroy(o.r.device));
    metal_release(o.metal);
    metal_release(o.metal_other);
}

static void test_an_event_stays_for_work_that_signals_it(void **state)
{
    gpusync_timeline *timeline;
    void *signalling, *event;
    outlived o;
    (void)state;
    outlived_open(&o);
    timeline = timeline_new(o.r.device);
    event = metal_retain(gpusync_timeline_metal(timeline, NULL));
    signalling = unretained_buffer(o.r.queue, NULL);
    (void)SUBMIT(o.r.queue, BUFFERS(signalling), SIGNALS(gpusync_at_value(timeline, 1)), .flags = SIGNALS_INSIDE);
    all_goes_now(&o, timeline);
    assert_kept(event);
    outlived_close(&o, signalling, event, false);
}

/* -- what is told when a queue goes ------------------------------------------------------------------- */

typedef struct told {
    unsigned calls;
    gpusync_result result;
    gpusync_error error;
} told;

static void on_told(void *user, gpusync_result result, const gpusync_error *error)
{
    told *t = (told *)user;
    t->result = result;
    if (error) t->error = *error;
    __atomic_fetch_add(&t->calls, 1, __ATOMIC_SEQ_CST);
}

/* A ticket whose work ended with ERROR_DESTROYED: its timeline went while it was held. */
static gpusync_ticket ended_destroyed(rig *r)
{
    gpusync_timeline *t = timeline_new(r->device);
    gpusync_point wait = gpusync_at_value(t, 1);
    void *buffer;
    gpusync_ticket ticket = commit_behind(r->queue, wait, false, &buffer);
    metal_release(buffer);
    assert_ok(gpusync_timeline_destroy(t));
    assert_result(gpusync_poll(r->queue, ticket), GPUSYNC_ERROR_DESTROYED);
    return ticket;
}

/* A submission that waits for it is taken, and ends so, too. */
static void test_what_waits_for_a_ticket_that_ended_with_its_timeline_ends_so_too(void **state)
{
    rig r;
    gpusync_submission s;
    gpusync_point wait;
    gpusync_ticket ticket;
    gpusync_result result;
    void *buffer;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    wait = gpusync_at_ticket(r.queue, ended_destroyed(&r));
    memset(&s, 0, sizeof s);
    s.waits = &wait;
    s.wait_count = 1;
    if (metal4_run()) {
        buffer = buffer_of(r.queue);
        s.command_buffers = &buffer;
        s.command_buffer_count = 1;
    }
    result = either_submit(r.queue, &s, &ticket);
    if (result == GPUSYNC_OK) assert_result(gpusync_wait(r.queue, ticket, SECONDS(2)), GPUSYNC_ERROR_DESTROYED);
    rig_close(&r);
    assert_ok(result);
}

static void test_the_info_of_a_ticket_that_ended_with_its_timeline(void **state)
{
    rig r;
    gpusync_ticket_info info;
    gpusync_result result;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    result = gpusync_get_info(r.queue, ended_destroyed(&r), &info);
    rig_close(&r);
    assert_ok(result);
}

/* What waits for a ticket of its own queue, in flight when that is destroyed at once. */
static void test_what_waits_for_its_own_queue_goes_with_it(void **state)
{
    rig r;
    told waiting = {0}, submitted = {0};
    gpusync_timeline *t;
    gpusync_submission s;
    gpusync_point wait;
    gpusync_ticket ticket;
    gpusync_result of_timeline;
    void *first, *second, *third, *queue;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    t = timeline_new(r.device);
    queue = metal_retain(r.metal_queue);
    ticket = commit_empty(&r, &first);
    metal_retain(first);
    wait = gpusync_at_ticket(r.queue, ticket);
    if (metal4_run()) {
        second = kept_buffer_of(r.queue);
        third = buffer_of(r.queue);
        ticket = SUBMIT(r.queue, BUFFERS(second), WAITS(wait), SIGNALS(gpusync_at_value(t, 1)));
    } else {
        second = buffer_behind(r.queue, &wait);
        assert_ok(gpusync_encode_signal(r.queue, second, gpusync_at_value(t, 1)));
        assert_ok(gpusync_commit(r.queue, second, &ticket));
    }
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), on_told, &waiting));
    memset(&s, 0, sizeof s);
    s.waits = &wait;
    s.wait_count = 1;
    s.command_buffers = &third;
    s.command_buffer_count = metal4_run();
    s.on_complete = on_told;
    s.user = &submitted;
    assert_ok(either_submit(r.queue, &s, NULL));
    assert_ok(gpusync_queue_destroy_now(r.queue));
    r.queue = NULL;
    of_timeline = gpusync_timeline_wait(t, 1, 0, NULL);
    assert_ok(gpusync_timeline_destroy(t));
    softmetal_finish_queue(queue);
    metal_release(queue);
    metal_release(first);
    metal_release(second);
    rig_close(&r);
    assert_result(waiting.result, GPUSYNC_ERROR_DESTROYED);
    assert_result(submitted.result, GPUSYNC_ERROR_DESTROYED);
    assert_result(of_timeline, GPUSYNC_ERROR_DESTROYED);
}

/* The end of a ticket is known, and its queue is destroyed (which waits for what is in flight), before another thread,
   which ends it, has told the waiters for it. */
static gpusync_queue *going;
static pthread_t destroying;
static bool is_destroying, is_gone;

static void *destroy_body(void *unused)
{
    assert_ok(gpusync_queue_destroy(going));
    __atomic_store_n(&is_gone, true, __ATOMIC_SEQ_CST);
    return unused;
}

/* It gets as far as it can in 20 ms: to its end, where nothing makes it wait for this thread. */
static void goes(void *unused)
{
    (void)unused;
    __atomic_store_n(&is_gone, false, __ATOMIC_SEQ_CST);
    destroying = start(destroy_body, NULL);
    __atomic_store_n(&is_destroying, true, __ATOMIC_SEQ_CST);
    (void)comes_true_within(MS(20), &is_gone);
}

static bool goes_at(int place, gpusync_result *callback, gpusync_result *later)
{
    rig r;
    told ticket = {0};
    gpusync_ticket b, c = 0;
    gpusync_point wait;
    gpusync_timeline *t;
    gpusync_queue *other;
    void *first, *second, *third;
    bool acted;
    rig_open(&r, SOFTMETAL_MANUAL);
    going = queue_new(r.device);
    other = queue_new(r.device);
    t = timeline_new(r.device);
    first = metal_retain(open_buffer(&r));
    wait = gpusync_at_value(t, 1);
    if (metal4_run()) {
        (void)SUBMIT(r.queue, BUFFERS(first), SIGNALS(wait));
    } else {
        assert_ok(gpusync_encode_signal(r.queue, first, wait));
        assert_ok(gpusync_commit(r.queue, first, NULL));
    }
    b = commit_behind(going, wait, false, &second);
    assert_ok(gpusync_on_done(gpusync_at_ticket(going, b), on_told, &ticket));
    wait = gpusync_at_ticket(going, b);
    if (metal4_run()) {
        c = commit_behind(other, wait, false, &third);
        softmetal_complete(first);
    } else {
        third = buffer_behind(other, &wait);
        c = SUBMIT(other, BUFFERS(third));
        softmetal_schedule(first);
        softmetal_execute(first);
    } /* the device has signalled, and gpusync does not know */
    softmetal_finish(second);
    probe_at_each(place, goes, NULL);
    softmetal_finish(first);
    acted = probe_has_acted();
    if (!acted) goes(NULL);
    while (!__atomic_exchange_n(&is_destroying, false, __ATOMIC_SEQ_CST)) sched_yield(); /* the probe acts on any thread */
    join(destroying);
    softmetal_finish(third);
    *callback = ticket.result;
    *later = gpusync_wait(other, c, SECONDS(5));
    assert_int_equal(ticket.calls, 1);
    metal_release(first);
    metal_release(second);
    metal_release(third);
    assert_ok(gpusync_queue_destroy(other));
    assert_ok(gpusync_timeline_destroy(t));
    rig_close(&r);
    return acted;
}

static void test_a_waiter_for_a_ticket_is_told_its_end_though_the_queue_goes(void **state)
{
    gpusync_result callback, later;
    int place = 1, wrong = 0;
    (void)state;
    while (goes_at(place, &callback, &later)) {
        if (callback || later) wrong++;
        place++;
    }
    assert_true(place > 1);
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_destroy_waits_for_what_is_in_flight_with_every_budget),
        cmocka_unit_test(test_destroy_waits_for_work_that_was_committed_elsewhere),
        cmocka_unit_test(test_destroy_waits_for_a_handler_that_runs_a_function_of_the_program),
        cmocka_unit_test(test_destroy_takes_no_memory_however_long_a_callback_runs),
        cmocka_unit_test(test_destroy_now_leaves_work_to_itself_and_late_handlers_touch_nothing),
        cmocka_unit_test(test_destroy_now_with_a_hanging_gpu_returns_on_the_real_clock),
        cmocka_unit_test(test_an_ended_ticket_whose_handler_is_late_does_not_hold_destroy_up),
        cmocka_unit_test(test_destroy_ends_waits_that_sleep),
        cmocka_unit_test(test_destroy_ends_waits_that_spin),
        cmocka_unit_test(test_destroy_now_ends_waits_that_sleep),
        cmocka_unit_test(test_destroy_now_of_a_queue_ends_its_part_of_a_wait_for_the_device),
        cmocka_unit_test(test_destroy_ends_a_wait_for_room),
        cmocka_unit_test(test_calls_during_a_destroy_say_destroyed),
        cmocka_unit_test(test_destroy_waits_for_work_without_memory_to_sleep_with),
        cmocka_unit_test(test_destroy_now_ends_all_that_had_not_ended_as_destroyed),
        cmocka_unit_test(test_destroy_ends_what_was_not_committed_as_cancelled),
        cmocka_unit_test(test_a_command_buffer_may_end_at_every_point_of_destroy_now),
        cmocka_unit_test(test_destroy_now_may_come_at_every_point_of_a_signal_that_ends_held_work),
        cmocka_unit_test(test_destroy_now_of_two_queues_may_meet_at_every_point),
        cmocka_unit_test(test_destroy_now_may_come_at_every_point_of_a_wait),
        cmocka_unit_test(test_destroy_now_tells_every_callback_however_many_there_are),
        cmocka_unit_test(test_the_destroy_of_a_device_waits_for_a_call_in_it),
        cmocka_unit_test(test_a_device_with_queues_is_not_destroyed),
        cmocka_unit_test(test_buffers_made_or_tracked_and_never_committed_are_given_up),
        cmocka_unit_test(test_destroy_waits_for_running_work_and_gives_up_what_is_tracked_behind_it),
        cmocka_unit_test(test_a_given_up_buffer_may_be_committed_by_its_owner_afterwards),
        cmocka_unit_test(test_after_destroy_nothing_of_the_program_is_called),
        cmocka_unit_test(test_a_thousand_queues_and_devices_come_and_go_without_a_trace),
        cmocka_unit_test(test_the_counts_of_destroyed_queues_stay_in_those_of_the_device),
        cmocka_unit_test(test_the_report_names_unfinished_buffers_waiters_and_queues),
        cmocka_unit_test(test_waits_may_leave_while_a_report_lists_them),
        cmocka_unit_test(test_the_report_tells_a_lost_queue_from_one_that_has_failed),
        cmocka_unit_test(test_the_report_shows_control_characters_of_labels_as_blanks),
        cmocka_unit_test(test_the_report_leaves_out_a_wait_that_is_over),
        cmocka_unit_test(test_the_report_gives_ages_in_milliseconds),
        cmocka_unit_test(test_the_report_is_cut_as_by_snprintf),
        cmocka_unit_test(test_no_call_needs_an_autorelease_pool_of_the_caller),
        cmocka_unit_test(test_every_message_that_may_autorelease_has_a_pool),
        cmocka_unit_test(test_what_a_dealloc_autoreleases_goes_with_the_pool_of_the_call),
        cmocka_unit_test(test_an_event_stays_for_work_that_waits_for_its_value),
        cmocka_unit_test(test_an_event_that_the_device_waits_for_serves_no_other_timeline),
        cmocka_unit_test(test_an_event_stays_for_work_that_signals_it),
        cmocka_unit_test(test_what_waits_for_a_ticket_that_ended_with_its_timeline_ends_so_too),
        cmocka_unit_test(test_the_info_of_a_ticket_that_ended_with_its_timeline),
        cmocka_unit_test(test_what_waits_for_its_own_queue_goes_with_it),
        cmocka_unit_test(test_a_waiter_for_a_ticket_is_told_its_end_though_the_queue_goes),
        cmocka_unit_test(test_a_wait_for_the_device_keeps_no_other_queue_from_being_destroyed),
        cmocka_unit_test(test_destroy_now_gives_back_the_slots_of_buffers_that_are_never_committed),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
