/* test_sweep.c - the sweeper: what a lost handler or a silent listener costs

   On the manual clock a sweep comes when the test fires its timer. The program also runs on queues of Metal 4. */
#include <pthread.h>

#include "clock.h"
#include "probe.h"
#include "stage.h"

/* -- sleepers ------------------------------------------------------------------------------------------------------ */

/* Threads that sleep until the test has time pass. */
#define SLEEPERS 50
#define SLICES 10

typedef struct sleeper {
    uint64_t deadline_ns;
    struct sleeper *next;
} sleeper;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sleeper *sleepers;
    unsigned count;
    uint64_t now;
    long wakes; /* without an unpark */
    long unparks;
} dormitory = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0, 0, 0};

static void sleep_in_dormitory(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    sleeper me = {deadline_ns, NULL}, **link = &dormitory.sleepers;
    (void)user;
    pthread_mutex_lock(&dormitory.lock);
    me.next = dormitory.sleepers;
    dormitory.sleepers = &me;
    dormitory.count++;
    pthread_cond_broadcast(&dormitory.changed);
    while (!waiter->scheduler_data[0] && dormitory.now < deadline_ns)
        pthread_cond_wait(&dormitory.changed, &dormitory.lock);
    if (!waiter->scheduler_data[0]) dormitory.wakes++;
    waiter->scheduler_data[0] = NULL;
    while (*link != &me) link = &(*link)->next;
    *link = me.next;
    dormitory.count--;
    pthread_mutex_unlock(&dormitory.lock);
}

static void wake_in_dormitory(void *user, gpusync_waiter *waiter)
{
    (void)user;
    pthread_mutex_lock(&dormitory.lock);
    waiter->scheduler_data[0] = waiter;
    dormitory.unparks++;
    pthread_cond_broadcast(&dormitory.changed);
    pthread_mutex_unlock(&dormitory.lock);
}

/* With the lock. */
static bool all_sleep(void)
{
    const sleeper *s;
    for (s = dormitory.sleepers; s; s = s->next)
        if (s->deadline_ns <= dormitory.now) return false;
    return dormitory.count == SLEEPERS;
}

static void *wait_for_one(void *timeline)
{
    if (gpusync_timeline_wait((gpusync_timeline *)timeline, 1, GPUSYNC_FOREVER, NULL) != GPUSYNC_OK) abort();
    return NULL;
}

static void test_sleepers_that_nothing_happens_to_do_not_wake(void **state)
{
    gpusync_hooks hooks = {NULL, sleep_in_dormitory, wake_in_dormitory, NULL};
    gpusync_timeline *timeline;
    pthread_t threads[SLEEPERS];
    int i;
    rig r;
    (void)state;
    rig_open_hooked(&r, SOFTMETAL_MANUAL, &hooks, 0);
    timeline = timeline_new(r.device);
    for (i = 0; i < SLEEPERS; i++) threads[i] = start(wait_for_one, timeline);
    pthread_mutex_lock(&dormitory.lock);
    while (!all_sleep()) pthread_cond_wait(&dormitory.changed, &dormitory.lock);
    dormitory.wakes = dormitory.unparks = 0;
    for (i = 0; i < SLICES; i++) {
        dormitory.now = gpusync_now_ns() + (uint64_t)i * MS(500);
        pthread_cond_broadcast(&dormitory.changed);
        while (!all_sleep()) pthread_cond_wait(&dormitory.changed, &dormitory.lock);
        pthread_mutex_unlock(&dormitory.lock);
        softmetal_fire_timer(); /* one sweep for all of them */
        pthread_mutex_lock(&dormitory.lock);
    }
    pthread_mutex_unlock(&dormitory.lock);
    assert_int_equal(dormitory.wakes, 0);
    assert_int_equal(dormitory.unparks, 0);
    assert_int_equal(softmetal_timers(), 1);
    assert_ok(gpusync_timeline_signal(timeline, 1));
    for (i = 0; i < SLEEPERS; i++) join(threads[i]);
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

/* -- behind held work whose event no listener tells of ----------------------------------------------------------- */

typedef struct deaf {
    rig r;
    gpusync_timeline *abroad, *out;
    void *event;
    gpusync_ticket last; /* signals `out` to 1 */
} deaf;

/* Work waits on the host for an event that other code raises from the CPU, of which no listener hears; other work is
   behind it. The event is raised. From here on all it takes is a look at the event. */
static void deaf_open_limited(deaf *d, uint32_t limit)
{
    gpusync_device_desc device_desc;
    softmetal_quirks quirks;
    void *buffers[2];
    int i;
    memset(&device_desc, 0, sizeof device_desc);
    rig_open_with(&d->r, SOFTMETAL_REAL, device_desc, queue_desc_of(limit, 0));
    softmetal_get_quirks(&quirks);
    quirks.deaf_listeners = true;
    softmetal_set_quirks(&quirks);
    d->abroad = timeline_over(d->r.device, &d->event);
    d->out = timeline_new(d->r.device);
    for (i = 0; i < 2; i++) buffers[i] = kept_buffer_of(d->r.queue);
    (void)SUBMIT(d->r.queue, WAITS(gpusync_at_value(d->abroad, 1)), BUFFERS(buffers[0]), .flags = GPUSYNC_STRICT);
    d->last = SUBMIT(d->r.queue, BUFFERS(buffers[1]), SIGNALS(gpusync_at_value(d->out, 1)));
    for (i = 0; i < 2; i++) assert_int_equal(status_of(buffers[i]), 0); /* held */
    for (i = 0; i < 2; i++) metal_release(buffers[i]);
    metal_event_signal(d->event, 1);
}

static void deaf_open(deaf *d) { deaf_open_limited(d, 0); }

static void deaf_close(deaf *d)
{
    assert_ok(gpusync_queue_wait(d->r.queue, SECONDS(2)));
    assert_ok(gpusync_timeline_destroy(d->abroad));
    assert_ok(gpusync_timeline_destroy(d->out));
    metal_release(d->event);
    rig_close(&d->r);
}

static void test_a_wait_for_a_ticket_looks_at_what_holds_up_the_work_in_front(void **state)
{
    deaf d;
    (void)state;
    deaf_open(&d);
    assert_ok(gpusync_wait(d.r.queue, d.last, SECONDS(2)));
    deaf_close(&d);
}

static void test_a_wait_for_a_value_looks_at_what_holds_up_the_work_in_front(void **state)
{
    deaf d;
    (void)state;
    deaf_open(&d);
    assert_ok(gpusync_timeline_wait(d.out, 1, SECONDS(2), NULL));
    deaf_close(&d);
}

static void test_a_wait_for_many_looks_at_what_holds_up_the_work_in_front(void **state)
{
    gpusync_point points[2];
    deaf d;
    (void)state;
    deaf_open(&d);
    points[0] = gpusync_at_ticket(d.r.queue, d.last);
    points[1] = gpusync_at_value(d.out, 1);
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, SECONDS(2), NULL, NULL));
    deaf_close(&d);
}

static void test_a_wait_for_room_looks_at_what_holds_up_the_work_in_front(void **state)
{
    const uint64_t limit = SECONDS(2);
    const gpusync_command_buffer_desc desc = {.timeout_ns = &limit};
    void *open, *buffer;
    deaf d;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    deaf_open_limited(&d, 4); /* three are held */
    open = open_buffer(&d.r);
    assert_ok(gpusync_command_buffer(d.r.queue, &desc, &buffer));
    assert_ok(gpusync_command_buffer_discard(d.r.queue, open));
    assert_ok(gpusync_command_buffer_discard(d.r.queue, buffer));
    deaf_close(&d);
}

/* -- lost handlers -------------------------------------------------------------------------------------------------- */

/* The first ticket waits, on the device, for what the second one signals, whose handler is lost. Both have ended. */
static void test_destroy_ends_where_a_handler_is_lost_and_another_ticket_stands_in_front(void **state)
{
    gpusync_timeline *timeline;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("a lost handler is lost for good");
    rig_open(&r, SOFTMETAL_MANUAL);
    timeline = timeline_new(r.device);
    (void)SUBMIT(r.queue, WAITS(gpusync_at_value(timeline, 1)));
    buffer = kept_buffer_of(r.queue);
    softmetal_lose_handlers(buffer);
    (void)SUBMIT(r.queue, BUFFERS(buffer), SIGNALS(gpusync_at_value(timeline, 1)), .flags = GPUSYNC_UNORDERED);
    finish_queue(r.queue);
    assert_int_equal(metal_status(buffer), 4);
    metal_release(buffer);
    assert_ok(gpusync_queue_destroy(r.queue));
    r.queue = NULL;
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

static void *destroy_it(void *queue)
{
    assert_ok(gpusync_queue_destroy((gpusync_queue *)queue));
    return NULL;
}

static long woken;
static bool drains; /* a destroy waits for what is in flight, in slices of 50 ms; it waits for calls in slices of 1 ms */

static void park_and_tell(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    if (deadline_ns != GPUSYNC_FOREVER && deadline_ns > gpusync_now_ns() + MS(10)) PUT(&drains, true);
    thread_park(waiter, deadline_ns);
}

static void count_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    COUNT(&woken);
    thread_unpark(waiter);
}

/* The queue in front waits for its work. Until it does, it may wake waiters of other queues, so that they leave. */
static void test_a_sweep_looks_behind_a_queue_that_is_being_destroyed(void **state)
{
    gpusync_hooks hooks = {NULL, park_and_tell, count_unpark, NULL};
    gpusync_queue *other;
    pthread_t destroyer;
    wait_job job;
    void *buffer, *lost, *metal;
    rig r;
    (void)state;
    NOT_ON_METAL4("a lost handler is lost for good");
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    other = queue_new(r.device);
    metal = metal_retain(r.metal_queue);
    commit_empty(&r, &buffer);
    lost = kept_buffer_of(other);
    softmetal_lose_handlers(lost);
    wait_job_start(&job, other, commit_to(other, lost), GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    PUT(&drains, false);
    destroyer = start(destroy_it, r.queue);
    while (!GET(&drains)) sched_yield();
    softmetal_finish(lost);
    PUT(&woken, 0);
    softmetal_fire_timer();
    assert_int_equal(GET(&woken), 1);
    assert_ok(wait_job_join(&job));
    softmetal_finish_queue(metal);
    join(destroyer);
    r.queue = NULL;
    metal_release(lost);
    metal_release(metal);
    assert_ok(gpusync_queue_destroy(other));
    rig_close(&r);
}

/* A submission that is held for the value. */
static void hold_for(rig *r, gpusync_timeline *timeline, uint64_t value)
{
    gpusync_point wait = at(timeline, value);
    if (metal4_run()) (void)hold_on(r->queue, timeline, value, NULL); /* which needs a command buffer */
    else (void)submit_between(r->queue, &wait, NULL, NULL);
}

/* -- when it comes ------------------------------------------------------------------------------------------------ */

static uint64_t next_in_ms(void) { return (softmetal_next_timer() + MS(1) - 1) / MS(1); }

static void test_sweeps_come_less_often_while_they_find_nothing_and_a_new_reason_begins_anew(void **state)
{
    static const uint64_t paces[] = {50, 50, 100, 200, 400, 500, 500};
    gpusync_timeline *timeline;
    size_t i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    timeline = timeline_new(r.device);
    assert_int_equal(softmetal_timers(), 0); /* no reason yet */
    hold_for(&r, timeline, 1);
    for (i = 0; i < sizeof paces / sizeof paces[0]; i++) {
        assert_int_equal(softmetal_timers(), 1);
        assert_int_equal(next_in_ms(), paces[i]);
        softmetal_fire_timer();
    }
    hold_for(&r, timeline, 2);
    assert_int_equal(softmetal_timers(), 2); /* no call can take one back */
    assert_int_equal(next_in_ms(), 50);
    hold_for(&r, timeline, 3);
    assert_int_equal(softmetal_timers(), 2); /* one is on its way that comes as early */
    softmetal_fire_timer();
    softmetal_fire_timer();
    assert_int_equal(softmetal_timers(), 1);
    assert_ok(gpusync_timeline_signal(timeline, 3));
    finish_queue(r.queue);
    softmetal_fire_timer();
    assert_int_equal(softmetal_timers(), 0); /* the last one found no reason */
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

static void test_plain_work_without_a_waiter_is_no_reason(void **state)
{
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, NULL);
    assert_result(gpusync_wait(r.queue, 1, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_poll(r.queue, 1), GPUSYNC_NOT_READY);
    assert_int_equal(softmetal_timers(), 0);
    softmetal_finish_queue(r.metal_queue);
    rig_close(&r);
}

static void count_call(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    if (result == GPUSYNC_OK) __atomic_fetch_add((unsigned *)user, 1, __ATOMIC_SEQ_CST);
}

/* Each by itself: no thread sleeps or asks, and the handler is lost. */
static void test_a_callback_is_reason_enough(void **state)
{
    unsigned by_note, calls;
    (void)state;
    NOT_ON_METAL4("a lost handler is lost for good");
    for (by_note = 0; by_note < 2; by_note++) {
        gpusync_submission s;
        gpusync_ticket ticket;
        void *buffer;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        calls = 0;
        buffer = kept_buffer_of(r.queue);
        softmetal_lose_handlers(buffer);
        memset(&s, 0, sizeof s);
        s.command_buffers = &buffer;
        s.command_buffer_count = 1;
        s.on_complete = by_note ? NULL : count_call;
        s.user = &calls;
        if (by_note) ticket = commit_to(r.queue, buffer);
        else assert_ok(gpusync_submit(r.queue, &s, &ticket));
        if (by_note) assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), count_call, &calls));
        assert_int_equal(softmetal_timers(), 1);
        softmetal_fire_timer(); /* it has not ended yet: another sweep is to come */
        softmetal_finish(buffer);
        metal_release(buffer);
        assert_int_equal(softmetal_timers(), 1);
        softmetal_fire_timer();
        assert_true(softmetal_dispatched(SECONDS(20)));
        assert_int_equal(calls, 1);
        assert_ok(gpusync_queue_destroy_now(r.queue));
        r.queue = NULL;
        rig_close(&r);
    }
}

typedef struct given_up {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffer;
} given_up;

/* Its owner commits it all the same, and it ends. */
static void give_up_and_commit(void *argument)
{
    given_up *g = (given_up *)argument;
    must(gpusync_untrack(g->queue, g->ticket) == GPUSYNC_OK, "not given up");
    metal_commit(g->buffer);
    softmetal_finish(g->buffer);
}

/* The sweep is in the middle of it: it finds an end, and that of no ticket any more. */
static void test_a_tracked_buffer_may_be_given_up_at_every_point_of_a_sweep(void **state)
{
    bool over = false;
    int place;
    (void)state;
    NOT_ON_METAL4("no track");
    for (place = 1; !over; place++) {
        outcome told = {0};
        given_up g;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        g.queue = r.queue;
        g.buffer = metal_queue_command_buffer(r.metal_queue);
        assert_ok(gpusync_track(r.queue, g.buffer, &g.ticket));
        assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, g.ticket), remember, &told));
        assert_int_equal(softmetal_timers(), 1);
        probe_at_each(place, give_up_and_commit, &g);
        softmetal_fire_timer();
        over = !probe_has_acted();
        if (over) give_up_and_commit(&g);
        assert_int_equal(calls_of(&told), 1);
        assert_result(told.result, GPUSYNC_ERROR_CANCELLED);
        assert_result(gpusync_poll(r.queue, g.ticket), GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(rooms_taken(r.queue), 0);
        metal_release(g.buffer);
        rig_close(&r);
    }
    assert_true(place > 2);
}

/* The ticket in front goes on. */
static void test_a_sweep_looks_behind_work_that_has_not_ended(void **state)
{
    unsigned calls = 0;
    void *first, *lost;
    rig r;
    (void)state;
    NOT_ON_METAL4("a lost handler is lost for good");
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &first);
    lost = kept_buffer_of(r.queue);
    softmetal_lose_handlers(lost);
    (void)SUBMIT(r.queue, BUFFERS(lost), .on_complete = count_call, .user = &calls);
    softmetal_fire_timer(); /* another sweep is to come */
    softmetal_finish(lost);
    softmetal_fire_timer();
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(calls, 1);
    assert_result(gpusync_poll(r.queue, 1), GPUSYNC_NOT_READY);
    softmetal_finish(first);
    metal_release(lost);
    rig_close(&r);
}

static void test_a_new_reason_needs_no_timer_where_one_comes_as_early(void **state)
{
    unsigned calls = 0;
    gpusync_ticket ticket;
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), count_call, &calls));
    softmetal_fire_timer(); /* finds nothing: the one behind the next would come later */
    assert_int_equal(softmetal_timers(), 1);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), count_call, &calls));
    assert_int_equal(softmetal_timers(), 1);
    softmetal_finish(buffer);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(calls, 2);
    rig_close(&r);
}

static struct {
    pthread_t waiter;
    gpusync_queue *other;      /* which is destroyed in the first park */
    void *first, *buffer;      /* its work, and that of the queue that is waited for */
    pthread_t destroyer;
    unsigned parks, timers;    /* of the waiter; timers: in its second park */
    unsigned woken;
} leaving;

static void *destroy_other(void *unused)
{
    (void)unused;
    must(gpusync_queue_destroy(leaving.other) == GPUSYNC_OK, "destroy");
    return NULL;
}

/* In the first park a queue is destroyed whose point has ended: the waiter is woken, so that it leaves that queue. A sweep
   comes before the waiter sleeps again. */
static void park_while_a_queue_goes(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter, (void)deadline_ns;
    if (!pthread_equal(pthread_self(), leaving.waiter)) {
        sched_yield();
    } else if (leaving.parks++ == 0) {
        must(softmetal_timers() == 1, "a sweep is on its way");
        softmetal_finish(leaving.first);
        leaving.destroyer = start(destroy_other, NULL);
        while (!GET(&leaving.woken)) sched_yield();
        softmetal_fire_timer();
        must(softmetal_timers() == 1, "the waiter is a reason still");
    } else {
        leaving.timers = softmetal_timers();
        softmetal_finish(leaving.buffer);
    }
}

static void wake_no_thread(void *user, gpusync_waiter *waiter)
{
    (void)user, (void)waiter;
    COUNT(&leaving.woken);
}

/* Without a sweep the wait would never end if the handler were lost. */
static void test_a_thread_that_leaves_a_queue_and_sleeps_on_has_a_sweep(void **state)
{
    gpusync_hooks hooks = {NULL, park_while_a_queue_goes, wake_no_thread, NULL};
    gpusync_wait_options options = {.spin = &no_spin};
    gpusync_point points[2];
    rig r;
    (void)state;
    memset(&leaving, 0, sizeof leaving);
    leaving.waiter = pthread_self();
    rig_open_hooked(&r, SOFTMETAL_MANUAL, &hooks, 0);
    leaving.other = queue_of_kind(QUEUE_OF_GPUSYNC, r.device, NULL);
    points[0] = gpusync_at_ticket(leaving.other, commit_empty_to(leaving.other, &leaving.first));
    points[1] = gpusync_at_ticket(r.queue, commit_empty(&r, &leaving.buffer));
    must_return_within(60);
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, &options, NULL));
    has_returned();
    join(leaving.destroyer);
    assert_int_equal(leaving.parks, 2);
    assert_int_equal(leaving.timers, 1);
    rig_close(&r);
}

/* -- a lost device: its two looks ---------------------------------------------------------------------------------- */

/* On the test's clock. Work is in flight on the first queue, and that of the other takes the device away. */
typedef struct loss {
    rig r;
    gpusync_queue *other;
    gpusync_ticket ticket;
    void *buffer, *culprit;
    uint64_t began; /* when the device was lost, or a moment before */
} loss;

static void open_loss(loss *l)
{
    memset(l, 0, sizeof *l);
    PUT(&clock_now, SECONDS(1000));
    PUT(&clock_is_real, false);
    rig_open(&l->r, SOFTMETAL_MANUAL);
    l->other = queue_of_kind(QUEUE_OF_GPUSYNC, l->r.device, NULL);
    l->ticket = commit_empty(&l->r, &l->buffer);
    metal_retain(l->buffer);
    (void)commit_empty_to(l->other, &l->culprit);
    fail_with_the_device(l->culprit);
}

static void lose_it(loss *l)
{
    l->began = gpusync_now_ns();
    softmetal_finish(l->culprit);
    assert_true(gpusync_device_is_lost(l->r.device));
}

static void close_loss(loss *l)
{
    softmetal_finish(l->buffer);
    metal_release(l->buffer);
    assert_ok(gpusync_queue_destroy(l->other));
    rig_close(&l->r);
    PUT(&clock_is_real, true);
}

static void pass(uint64_t ns) { PUT(&clock_now, GET(&clock_now) + ns); }

/* The timer comes in its time. */
static void fire_in_time(void)
{
    pass(softmetal_next_timer());
    softmetal_fire_timer();
}

/* No thread sleeps, and nothing else is a reason for a sweep: a program that only polls hears of it as well. */
static void test_a_loss_is_reason_enough_and_its_second_look_gives_up(void **state)
{
    loss l;
    (void)state;
    open_loss(&l);
    assert_int_equal(softmetal_timers(), 0);
    lose_it(&l);
    assert_int_equal(softmetal_timers(), 1);
    assert_in_range(softmetal_next_timer(), MS(499), MS(500));
    fire_in_time();
    assert_result(gpusync_poll(l.r.queue, l.ticket), GPUSYNC_NOT_READY);
    assert_int_equal(softmetal_timers(), 1);
    assert_in_range(softmetal_next_timer(), MS(499), MS(500));
    fire_in_time();
    assert_result(gpusync_poll(l.r.queue, l.ticket), GPUSYNC_ERROR_DEVICE_LOST);
    assert_in_range(gpusync_now_ns() - l.began, SECONDS(1), SECONDS(1) + MS(1));
    assert_int_equal(softmetal_timers(), 0); /* and that was the last */
    close_loss(&l);
}

/* Where all has ended by then, there is nothing to give up, and no more sweeps than without a loss. */
static void test_after_a_loss_that_leaves_nothing_the_sweeps_end(void **state)
{
    loss l;
    (void)state;
    open_loss(&l);
    lose_it(&l);
    softmetal_finish(l.buffer);
    fire_in_time();
    fire_in_time();
    assert_ok(gpusync_poll(l.r.queue, l.ticket));
    assert_int_equal(softmetal_timers(), 0);
    close_loss(&l);
}

/* The first look comes an hour late, and Metal may just be about to report: it has half a second from there. */
static void test_after_a_suspension_there_is_half_a_second_more(void **state)
{
    unsigned ends;
    (void)state;
    for (ends = 0; ends < 2; ends++) {
        loss l;
        open_loss(&l);
        lose_it(&l);
        pass(SECONDS(3600));
        softmetal_fire_timer();
        assert_result(gpusync_poll(l.r.queue, l.ticket), GPUSYNC_NOT_READY);
        assert_int_equal(softmetal_timers(), 1);
        assert_in_range(softmetal_next_timer(), MS(499), MS(500));
        pass(MS(490));
        assert_result(gpusync_poll(l.r.queue, l.ticket), GPUSYNC_NOT_READY);
        if (ends) softmetal_finish(l.buffer);
        pass(MS(11));
        softmetal_fire_timer();
        assert_result(gpusync_poll(l.r.queue, l.ticket), ends ? GPUSYNC_OK : GPUSYNC_ERROR_DEVICE_LOST);
        close_loss(&l);
    }
}

/* Sweeps that come for other reasons, and earlier, are no looks. They make none come later. */
static void test_other_sweeps_hurry_and_delay_no_look(void **state)
{
    outcome o = {0};
    unsigned sweeps = 0;
    loss l;
    (void)state;
    open_loss(&l);
    assert_ok(gpusync_on_done(gpusync_at_ticket(l.r.queue, l.ticket), remember, &o));
    fire_in_time(); /* they have slowed down already */
    fire_in_time();
    lose_it(&l);
    for (; gpusync_poll(l.r.queue, l.ticket) == GPUSYNC_NOT_READY; sweeps++) {
        assert_in_range(gpusync_now_ns() - l.began, 0, SECONDS(1) + MS(50));
        assert_true(softmetal_timers() > 0);
        fire_in_time();
    }
    assert_in_range(gpusync_now_ns() - l.began, SECONDS(1), SECONDS(1) + MS(50));
    assert_true(sweeps > 2);
    assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
    close_loss(&l);
}

/* The status is read once more before the work is given up: a handler that is lost or late takes no result away. */
static void test_the_second_look_reads_every_status_before_it_gives_up(void **state)
{
    unsigned fails;
    (void)state;
    NOT_ON_METAL4("a lost handler is lost for good");
    for (fails = 0; fails < 2; fails++) {
        loss l;
        open_loss(&l);
        if (fails) softmetal_fail(l.buffer, "TestDomain", 42, "it broke");
        lose_it(&l);
        fire_in_time();
        softmetal_complete(l.buffer);
        fire_in_time();
        assert_true(gpusync_is_done(l.r.queue, l.ticket));
        assert_result(gpusync_poll(l.r.queue, l.ticket), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        close_loss(&l);
    }
}

/* Another failure that says the same begins no new second; nor one that comes when all is given up. */
static void test_a_second_loss_changes_nothing(void **state)
{
    void *second, *third;
    loss l;
    (void)state;
    open_loss(&l);
    (void)commit_empty_to(l.other, &second);
    fail_with_the_device(second);
    (void)commit_empty_to(l.other, &third);
    fail_with_the_device(third);
    lose_it(&l);
    fire_in_time();
    pass(MS(400));
    softmetal_finish(second);
    assert_int_equal(softmetal_timers(), 1);
    pass(MS(101));
    softmetal_fire_timer();
    assert_result(gpusync_poll(l.r.queue, l.ticket), GPUSYNC_ERROR_DEVICE_LOST);
    softmetal_finish(third);
    assert_int_equal(softmetal_timers(), 0);
    assert_result(gpusync_poll(l.r.queue, l.ticket), GPUSYNC_ERROR_DEVICE_LOST);
    close_loss(&l);
}

/* The timer of a look comes when the device is gone. */
static void test_the_looks_end_with_the_device(void **state)
{
    loss l;
    (void)state;
    open_loss(&l);
    lose_it(&l);
    close_loss(&l);
    assert_int_equal(softmetal_timers(), 1);
    softmetal_fire_timer();
    assert_int_equal(softmetal_timers(), 0);
}

static void note_call(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    if (result == GPUSYNC_OK) COUNT((unsigned *)user);
}

/* Nothing else does: the work has no callback, and no thread waits. */
static void test_a_callback_for_a_value_has_the_timer_look(void **state)
{
    unsigned calls = 0;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    assert_int_equal(softmetal_timers(), 0);
    assert_ok(gpusync_on_done(at(s.a, 1), note_call, &calls));
    assert_true(softmetal_timers() > 0);
    finish(&s, 0);
    assert_int_equal(CALLED(calls), 1);
    close_stage(&s);
}

/* A timer cannot be taken back. */
static void test_a_sweep_that_comes_after_its_device_is_gone_finds_nothing(void **state)
{
    gpusync_timeline *timeline;
    int i;
    rig r;
    (void)state;
    for (i = 0; i < 3; i++) {
        rig_open(&r, SOFTMETAL_MANUAL);
        timeline = timeline_new(r.device);
        hold_for(&r, timeline, 1);
        assert_ok(gpusync_timeline_signal(timeline, 1));
        finish_queue(r.queue);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_int_equal(softmetal_timers(), 1);
        rig_close(&r);
        softmetal_fire_timer();
        assert_int_equal(softmetal_timers(), 0);
    }
}

/* No thread sleeps for it: the call that was refused is made again. */
static void test_room_of_lost_handlers_comes_back_to_calls_that_do_not_wait(void **state)
{
    static const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    void *buffer;
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    gpusync_result result = GPUSYNC_TIMEOUT;
    int i, tries;
    rig r;
    (void)state;
    NOT_ON_METAL4("a lost handler is lost for good");
    rig_open_hooked(&r, SOFTMETAL_REAL, NULL, 4);
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &none;
    for (i = 0; i < 4; i++) {
        buffer = kept_buffer_of(r.queue);
        softmetal_lose_handlers(buffer);
        (void)commit_to(r.queue, buffer);
        metal_release(buffer);
    }
    assert_ok(gpusync_queue_wait(r.queue, SECONDS(10)));
    for (tries = 0; result == GPUSYNC_TIMEOUT && gpusync_now_ns() < limit; tries++) {
        result = gpusync_command_buffer(r.queue, &desc, &buffer);
        sched_yield();
    }
    assert_ok(result);
    assert_true(tries > 1);
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    assert_ok(gpusync_queue_destroy_now(r.queue));
    r.queue = NULL;
    rig_close(&r);
}

/* The sweeps look for the room of the refused call until there is some, and not any longer. */
static void test_room_that_has_come_ends_the_sweeps(void **state)
{
    static const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    void *buffer, *more;
    rig r;
    (void)state;
    NOT_ON_METAL4("the program makes its command buffers");
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &none;
    rig_open_hooked(&r, SOFTMETAL_MANUAL, NULL, 1);
    commit_empty(&r, &buffer);
    assert_int_equal(softmetal_timers(), 0);
    assert_result(gpusync_command_buffer(r.queue, &desc, &more), GPUSYNC_TIMEOUT);
    assert_int_equal(softmetal_timers(), 1);
    softmetal_fire_timer();
    assert_int_equal(softmetal_timers(), 1);
    softmetal_finish(buffer);
    softmetal_fire_timer();
    if (softmetal_timers()) softmetal_fire_timer(); /* the one before may have come first */
    assert_int_equal(softmetal_timers(), 0);
    rig_close(&r);
}

static struct {
    pthread_t waiter;
    rig *r;
    void *first, *second; /* the work that has all the room, and that of the thread that is quicker */
    unsigned parks, timers; /* timers: in the waiter's second park */
    unsigned woken;
} slow;

static void *take_the_room(void *unused)
{
    (void)unused;
    slow.second = open_buffer(slow.r);
    (void)commit_to(slow.r->queue, slow.second);
    return NULL;
}

/* In the first park the room comes, and another thread has it before the waiter runs. A sweep comes before the waiter sleeps
   again: no thread is listed, and so none follows it. */
static void park_while_the_room_goes(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter, (void)deadline_ns;
    if (!pthread_equal(pthread_self(), slow.waiter)) {
        sched_yield();
    } else if (slow.parks++ == 0) {
        must(softmetal_timers() == 1, "a sweep is on its way");
        softmetal_finish(slow.first);
        must(GET(&slow.woken) == 1, "the waiter is woken");
        join(start(take_the_room, NULL));
        softmetal_fire_timer();
        must(softmetal_timers() == 0, "no reason for another");
    } else {
        slow.timers = softmetal_timers();
        softmetal_finish(slow.second);
    }
}

static void wake_the_slow(void *user, gpusync_waiter *waiter)
{
    (void)user, (void)waiter;
    COUNT(&slow.woken);
}

/* Without a sweep the call would never return if the handler of the other thread's work were lost. */
static void test_a_thread_whose_room_went_to_another_has_a_sweep(void **state)
{
    gpusync_hooks hooks = {NULL, park_while_the_room_goes, wake_the_slow, NULL};
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    memset(&slow, 0, sizeof slow);
    slow.waiter = pthread_self();
    slow.r = &r;
    rig_open_hooked(&r, SOFTMETAL_MANUAL, &hooks, 1);
    commit_empty(&r, &slow.first);
    must_return_within(60);
    assert_ok(gpusync_command_buffer(r.queue, NULL, &buffer));
    has_returned();
    assert_int_equal(slow.parks, 2);
    assert_int_equal(slow.timers, 1);
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sleepers_that_nothing_happens_to_do_not_wake),
        cmocka_unit_test(test_a_wait_for_a_ticket_looks_at_what_holds_up_the_work_in_front),
        cmocka_unit_test(test_a_wait_for_a_value_looks_at_what_holds_up_the_work_in_front),
        cmocka_unit_test(test_a_wait_for_many_looks_at_what_holds_up_the_work_in_front),
        cmocka_unit_test(test_a_wait_for_room_looks_at_what_holds_up_the_work_in_front),
        cmocka_unit_test(test_destroy_ends_where_a_handler_is_lost_and_another_ticket_stands_in_front),
        cmocka_unit_test(test_a_sweep_looks_behind_a_queue_that_is_being_destroyed),
        cmocka_unit_test(test_a_sweep_looks_behind_work_that_has_not_ended),
        cmocka_unit_test(test_sweeps_come_less_often_while_they_find_nothing_and_a_new_reason_begins_anew),
        cmocka_unit_test(test_plain_work_without_a_waiter_is_no_reason),
        cmocka_unit_test(test_a_callback_is_reason_enough),
        cmocka_unit_test(test_a_tracked_buffer_may_be_given_up_at_every_point_of_a_sweep),
        cmocka_unit_test(test_a_new_reason_needs_no_timer_where_one_comes_as_early),
        cmocka_unit_test(test_a_thread_that_leaves_a_queue_and_sleeps_on_has_a_sweep),
        cmocka_unit_test(test_a_loss_is_reason_enough_and_its_second_look_gives_up),
        cmocka_unit_test(test_after_a_loss_that_leaves_nothing_the_sweeps_end),
        cmocka_unit_test(test_after_a_suspension_there_is_half_a_second_more),
        cmocka_unit_test(test_other_sweeps_hurry_and_delay_no_look),
        cmocka_unit_test(test_the_second_look_reads_every_status_before_it_gives_up),
        cmocka_unit_test(test_a_second_loss_changes_nothing),
        cmocka_unit_test(test_the_looks_end_with_the_device),
        cmocka_unit_test(test_a_callback_for_a_value_has_the_timer_look),
        cmocka_unit_test(test_a_sweep_that_comes_after_its_device_is_gone_finds_nothing),
        cmocka_unit_test(test_room_of_lost_handlers_comes_back_to_calls_that_do_not_wait),
        cmocka_unit_test(test_room_that_has_come_ends_the_sweeps),
        cmocka_unit_test(test_a_thread_whose_room_went_to_another_has_a_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
