/* test_flow.c - how many command buffers may be in flight, and what happens at the limit

   max_command_buffer_count of a queue, and the wait by which a program paces itself. Most tests run on one thread: the park
   hook of the program is where time passes and where the device does its work, so that a wait of a second takes none.

   It also runs on queues of Metal 4. No call waits for room there: the limit bounds what may be held. */
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "clock.h"
#include "probe.h"
#include "stage.h"

/* -- a queue whose program has hooks of its own ----------------------------------------------------------------- */

typedef struct flow {
    rig r;
    gpusync_timeline *t, *own; /* own: what by_submit signals */
    long parks, yields, unparks;
    uint64_t slept_ns;             /* virtual, while parked */
    long act_at;                   /* the park in which `act` runs, from 1; 0: none */
    void (*act)(struct flow *);
    void *buffer;                  /* for act */
    gpusync_result answers[8];     /* of callbacks */
} flow;

static void flow_yield(void *user) { COUNT(&((flow *)user)->yields); }

static void flow_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    flow *f = (flow *)user;
    uint64_t now = gpusync_now_ns();
    (void)waiter;
    if (COUNT(&f->parks) + 1 == f->act_at) {
        f->act(f);
        return;
    }
    must(deadline_ns != GPUSYNC_FOREVER, "a sleep for room has an end: it looks by itself now and then");
    if (deadline_ns <= now) return;
    if (deadline_ns - now > MS(50)) deadline_ns = now + MS(50); /* it may return early */
    if (softmetal_timers() && softmetal_next_timer() <= MS(50)) softmetal_fire_timer();
    PUT(&clock_now, deadline_ns);
    f->slept_ns += deadline_ns - now;
}

static void flow_unpark(void *user, gpusync_waiter *waiter)
{
    (void)waiter;
    COUNT(&((flow *)user)->unparks);
}

static void open_flow_on(flow *f, queue_kind kind, gpusync_queue_desc desc, gpusync_callback_mode mode)
{
    gpusync_device_desc device_desc;
    gpusync_hooks hooks;
    memset(f, 0, sizeof *f);
    memset(&device_desc, 0, sizeof device_desc);
    hooks.yield = flow_yield;
    hooks.park = flow_park;
    hooks.unpark = flow_unpark;
    hooks.user = f;
    device_desc.hooks = &hooks;
    device_desc.callback_mode = mode;
    PUT(&clock_now, SECONDS(1000));
    PUT(&clock_is_real, false);
    rig_open_on(&f->r, SOFTMETAL_MANUAL, kind, device_desc, desc);
    assert_ok(gpusync_timeline_create(f->r.device, NULL, &f->t));
    assert_ok(gpusync_timeline_create(f->r.device, NULL, &f->own));
}

/* The Metal queue has more room than gpusync counts: for buffers that are made elsewhere, or whose handler does not come. */
static queue_kind roomy(void) { return metal4_run() ? QUEUE_OF_GPUSYNC : QUEUE_OF_THE_PROGRAM; }

/* max: max_command_buffer_count, 0 for the default. */
static void open_flow(flow *f, uint32_t max)
{
    open_flow_on(f, roomy(), queue_desc_of(max, 0), GPUSYNC_CALLBACKS_QUEUED);
}

static void close_flow(flow *f)
{
    f->act_at = 0;
    assert_ok(gpusync_cancel_held(f->r.queue));
    softmetal_finish_queue(f->r.metal_queue);
    assert_ok(gpusync_timeline_destroy(f->t));
    assert_ok(gpusync_timeline_destroy(f->own));
    rig_close(&f->r);
}

/* In the n-th park from now. */
static void act_in_park(flow *f, long n, void (*act)(flow *))
{
    f->act = act;
    f->act_at = f->parks + n;
}

static void finish_all(flow *f) { softmetal_finish_queue(f->r.metal_queue); }
static void finish_one(flow *f) { softmetal_finish(f->buffer); }
static void discard_one(flow *f) { assert_ok(gpusync_command_buffer_discard(f->r.queue, f->buffer)); }

static void commit(flow *f, void *buffer) { assert_ok(either_commit(f->r.queue, buffer, NULL)); }

static void commit_some(flow *f, unsigned n)
{
    while (n--) commit_empty(&f->r, NULL);
}

/* Room for one more, within this time? */
static gpusync_result make_within(flow *f, uint64_t timeout_ns, void **buffer)
{
    gpusync_command_buffer_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &timeout_ns;
    return gpusync_command_buffer(f->r.queue, &desc, buffer);
}

static gpusync_result ask_for_room(flow *f, void **buffer) { return make_within(f, 0, buffer); }

/* A buffer of this queue that gpusync has not made; +1. */
static void *made_elsewhere_for(gpusync_queue *queue)
{
    return is_metal4(queue) ? kept_buffer_of(queue) : metal_queue_command_buffer(gpusync_queue_metal(queue));
}

static void *made_elsewhere(flow *f) { return made_elsewhere_for(f->r.queue); }

/* == a wait for room ============================================================================================ */

static void test_it_waits_for_as_long_as_it_takes_while_work_is_in_flight(void **state)
{
    flow f;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    open_flow(&f, 2);
    commit_some(&f, 1);
    open_buffer(&f.r);
    act_in_park(&f, 200, finish_all); /* ten seconds of slices: one may be open, but one goes on */
    open_buffer(&f.r);
    assert_true(f.slept_ns > SECONDS(2));
    close_flow(&f);
}

static void test_a_time_limit_is_kept(void **state)
{
    uint64_t began;
    void *buffer;
    flow f;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    open_flow(&f, 2);
    commit_some(&f, 2);
    assert_result(ask_for_room(&f, &buffer), GPUSYNC_TIMEOUT);
    assert_int_equal(f.parks, 0);
    began = gpusync_now_ns();
    assert_result(make_within(&f, MS(730), &buffer), GPUSYNC_TIMEOUT);
    assert_true(gpusync_now_ns() - began >= MS(730));
    assert_true(f.slept_ns <= MS(730));
    assert_result(make_within(&f, SECONDS(30), &buffer), GPUSYNC_TIMEOUT); /* over several slices and seconds */
    assert_true(f.slept_ns <= SECONDS(31));
    act_in_park(&f, 3, finish_all);
    assert_ok(make_within(&f, SECONDS(30), &buffer)); /* a wait that timed out leaves nothing behind */
    close_flow(&f);
}

static void test_a_lost_handler_costs_time_and_not_the_room(void **state)
{
    void *buffer;
    flow f;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is lost");
    open_flow(&f, 1);
    commit_empty(&f.r, &f.buffer);
    softmetal_complete(f.buffer); /* and no handler comes */
    assert_ok(make_within(&f, SECONDS(1), &buffer));
    assert_true(f.slept_ns > MS(40)); /* so long it is given, before it is taken for lost */
    close_flow(&f);
}

/* Two sweeps may come one right after the other. And a handler that was taken for lost may come after all: its room is
   given back once. */
static void test_a_late_handler_is_not_lost_before_its_time(void **state)
{
    void *buffer, *more;
    flow f;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is late");
    open_flow(&f, 1);
    commit_empty(&f.r, &f.buffer);
    assert_result(ask_for_room(&f, &buffer), GPUSYNC_TIMEOUT);
    softmetal_complete(f.buffer);
    softmetal_fire_timer(); /* sees the end */
    softmetal_fire_timer();
    assert_result(ask_for_room(&f, &buffer), GPUSYNC_TIMEOUT);
    PUT(&clock_now, GET(&clock_now) + MS(51));
    softmetal_fire_timer();
    assert_ok(ask_for_room(&f, &buffer));
    softmetal_run_handler(f.buffer, 0);
    assert_result(ask_for_room(&f, &more), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_command_buffer_discard(f.r.queue, buffer));
    close_flow(&f);
}

static void ask_once_in_a_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    flow *f = (flow *)user;
    void *made;
    (void)result, (void)error;
    f->answers[0] = ask_for_room(f, &made);
    if (f->answers[0] == GPUSYNC_OK) assert_ok(gpusync_command_buffer_discard(f->r.queue, made));
}

/* Nothing sleeps, and no callback is outstanding: only what was refused has the timer look. The work ends before the call
   or after. */
static void test_a_lost_handler_keeps_no_room_from_calls_in_callbacks(void **state)
{
    unsigned looks, late;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is lost");
    for (late = 0; late < 2; late++) {
        flow f;
        open_flow_on(&f, roomy(), queue_desc_of(1, 0), GPUSYNC_CALLBACKS_MANUAL);
        commit_empty(&f.r, &f.buffer);
        softmetal_finish(f.buffer);
        commit_empty(&f.r, &f.buffer);
        if (!late) {
            softmetal_complete(f.buffer); /* and no handler comes */
            assert_ok(gpusync_poll(f.r.queue, 2));
        }
        assert_ok(gpusync_on_done(gpusync_at_ticket(f.r.queue, 1), ask_once_in_a_callback, &f));
        assert_ok(gpusync_dispatch(f.r.device, 1, NULL));
        assert_result(f.answers[0], GPUSYNC_ERROR_WOULD_DEADLOCK);
        assert_true(softmetal_timers() > 0);
        if (late) {
            PUT(&clock_now, GET(&clock_now) + MS(550));
            softmetal_fire_timer(); /* finds nothing that has ended, and looks again */
            softmetal_complete(f.buffer);
        }
        for (looks = 0; looks < 5 && softmetal_timers() > 0; looks++) {
            PUT(&clock_now, GET(&clock_now) + MS(550));
            softmetal_fire_timer();
        }
        assert_ok(gpusync_on_done(gpusync_at_ticket(f.r.queue, 1), ask_once_in_a_callback, &f));
        assert_ok(gpusync_dispatch(f.r.device, 1, NULL));
        assert_ok(f.answers[0]);
        close_flow(&f);
    }
}

static void test_without_memory_to_sleep_with_it_says_so(void **state)
{
    gpusync_result result;
    void *buffer;
    flow f;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    open_flow(&f, 1);
    commit_some(&f, 1);
    f.r.memory.fail_at = 1;
    f.r.memory.fail_after = true;
    result = make_within(&f, MS(10), &buffer);
    f.r.memory.fail_at = 0;
    assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_result(make_within(&f, MS(10), &buffer), GPUSYNC_TIMEOUT);
    close_flow(&f);
}

/* == what counts ================================================================================================ */

typedef struct credit {
    const char *name;
    void *(*begin)(flow *);
    unsigned takes;
    void (*end)(flow *, void *buffer);
    int takes4; /* of Metal 4, where all that is committed together is one; NOT_THERE */
} credit;

enum { NOT_THERE = -1 };
static unsigned taken_by_held; /* by what begin_held has made */

static void *begin_open(flow *f) { return open_buffer(&f->r); }
static void *begin_commit(flow *f)
{
    void *buffer;
    commit_empty(&f->r, &buffer);
    return buffer;
}
static void *begin_failing(flow *f)
{
    void *buffer = open_buffer(&f->r);
    softmetal_fail(buffer, NULL, 3, NULL);
    commit(f, buffer);
    return buffer;
}
static void *begin_elsewhere(flow *f)
{
    void *buffer = made_elsewhere(f);
    commit(f, buffer);
    metal_release(buffer);
    return buffer;
}
static void *begin_track(flow *f)
{
    void *buffer = open_buffer(&f->r);
    gpusync_ticket ticket;
    assert_ok(gpusync_track(f->r.queue, buffer, &ticket));
    return buffer;
}
static void *submit_some(flow *f, unsigned n, bool held)
{
    gpusync_point wait = {NULL, 0, f->t, 1};
    gpusync_submission submission;
    void *buffers[8];
    unsigned i;
    for (i = 0; i < n; i++) buffers[i] = open_buffer(&f->r);
    memset(&submission, 0, sizeof submission);
    submission.waits = &wait;
    submission.wait_count = held;
    submission.command_buffers = buffers;
    submission.command_buffer_count = n;
    submission.flags = held ? GPUSYNC_STRICT : 0; /* so that it needs no command buffer of gpusync's to wait */
    assert_ok(either_submit(f->r.queue, &submission, NULL));
    return n ? buffers[0] : NULL;
}
static void *begin_three(flow *f) { return submit_some(f, 3, false); }
static void *begin_held(flow *f)
{
    taken_by_held = metal4_run() ? 1 : 2;
    return submit_some(f, 2, true);
}
static void *begin_held_barrier(flow *f) { return submit_some(f, 0, true); }
static void *begin_own(flow *f) /* work, and a command buffer of gpusync's behind it that signals */
{
    gpusync_point signal = {NULL, 0, f->t, 7};
    gpusync_submission submission;
    void *buffer = open_buffer(&f->r);
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.signals = &signal;
    submission.signal_count = 1;
    assert_ok(either_submit(f->r.queue, &submission, NULL));
    return buffer;
}

static void end_discard(flow *f, void *buffer)
{
    assert_ok(gpusync_command_buffer_discard(f->r.queue, buffer));
}
static void end_finish(flow *f, void *buffer)
{
    (void)buffer;
    finish_all(f);
}
static void end_commit(flow *f, void *buffer)
{
    commit(f, buffer);
    assert_int_equal(rooms_taken(f->r.queue), 1); /* it is the same one */
    finish_all(f);
}
static void end_owner(flow *f, void *buffer)
{
    metal_commit(buffer);
    assert_int_equal(rooms_taken(f->r.queue), 1);
    finish_all(f);
}
static void end_untrack(flow *f, void *buffer)
{
    (void)buffer;
    assert_ok(gpusync_untrack(f->r.queue, 1));
}
static void end_cancel(flow *f, void *buffer)
{
    (void)buffer;
    assert_ok(gpusync_cancel_held(f->r.queue));
}
static void end_signal(flow *f, void *buffer)
{
    (void)buffer;
    assert_ok(gpusync_timeline_signal(f->t, 1));
    /* from held to committed: nothing changes */
    assert_int_equal(rooms_taken(f->r.queue), taken_by_held);
    finish_all(f);
}

static const credit credits[] = {
    {"made", begin_open, 1, end_discard, NOT_THERE},
    {"made, then committed", begin_open, 1, end_commit, 0},
    {"committed", begin_commit, 1, end_finish, 1},
    {"failing", begin_failing, 1, end_finish, 1},
    {"made elsewhere", begin_elsewhere, 1, end_finish, 1},
    {"tracked", begin_track, 1, end_owner, NOT_THERE},
    {"tracked and untracked", begin_track, 1, end_untrack, NOT_THERE},
    {"submission of three", begin_three, 3, end_finish, 1},
    {"submission that signals", begin_own, 2, end_finish, 1},
    {"held, cancelled", begin_held, 2, end_cancel, 1},
    {"held, issued", begin_held, 2, end_signal, 1},
    {"held barrier", begin_held_barrier, 0, end_cancel, NOT_THERE},
};

static void test_credits_are_counted_from_the_making_to_the_end(void **state)
{
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(credits); i++) {
        const credit *c = &credits[i];
        unsigned takes = metal4_run() ? (unsigned)c->takes4 : c->takes;
        unsigned taken;
        void *buffer;
        flow f;
        if (metal4_run() && c->takes4 == NOT_THERE) continue;
        open_flow(&f, 0);
        buffer = c->begin(&f);
        taken = rooms_taken(f.r.queue);
        if (taken != takes) fail_msg("%s: takes %u, not %u", c->name, taken, takes);
        c->end(&f, buffer);
        assert_true(softmetal_dispatched(SECONDS(20)));
        if (rooms_taken(f.r.queue)) fail_msg("%s: does not give back what it took", c->name);
        close_flow(&f);
    }
}

/* == the limit ================================================================================================== */

static void test_the_limit_of_the_queue_holds_whatever_the_order_of_calls(void **state)
{
    void *buffers[4], *refused = NULL;
    uint64_t made;
    unsigned i;
    flow f;
    (void)state;
    NOT_ON_METAL4("command buffers take no room before their commit");
    open_flow(&f, 4);
    for (i = 0; i < 4; i++) buffers[i] = open_buffer(&f.r);
    made = softmetal_message_count("commandBuffer");
    assert_result(ask_for_room(&f, &refused), GPUSYNC_TIMEOUT);
    assert_null(refused);
    assert_int_equal(softmetal_message_count("commandBuffer"), made); /* Metal was not asked: it might have blocked */
    for (i = 0; i < 4; i++) commit(&f, buffers[i]); /* never waits: it has its room */
    assert_int_equal(f.parks, 0);
    assert_result(ask_for_room(&f, &refused), GPUSYNC_TIMEOUT);
    softmetal_finish(buffers[0]);
    assert_ok(ask_for_room(&f, &buffers[0]));
    assert_result(ask_for_room(&f, &refused), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_command_buffer_discard(f.r.queue, buffers[0]));
    assert_ok(ask_for_room(&f, &buffers[0]));
    assert_ok(gpusync_command_buffer_discard(f.r.queue, buffers[0]));
    close_flow(&f);
}

static void test_making_a_command_buffer_waits_for_room(void **state)
{
    void *buffer;
    flow f;
    (void)state;
    NOT_ON_METAL4("command buffers take no room before their commit");
    open_flow(&f, 2);
    commit_empty(&f.r, &f.buffer);
    commit_some(&f, 1);
    act_in_park(&f, 2, finish_one);
    buffer = open_buffer(&f.r);
    assert_int_equal(f.parks, 2);
    assert_true(f.unparks >= 1); /* the handler has told it */
    commit(&f, buffer);
    assert_int_equal(softmetal_outstanding(f.r.metal_queue), 2);
    close_flow(&f);
}

/* Metal has no more room than that, and never blocks the program, which softmetal would not forgive. */
static void test_metal_is_not_asked_beyond_its_limit(void **state)
{
    static const uint32_t limits[] = {1, 5};
    size_t i;
    (void)state;
    NOT_ON_METAL4("Metal 4 has no limit");
    for (i = 0; i < LENGTH(limits); i++) {
        void *refused;
        flow f;
        open_flow_on(&f, QUEUE_OF_GPUSYNC, queue_desc_of(limits[i], 0), GPUSYNC_CALLBACKS_QUEUED);
        commit_some(&f, limits[i]);
        assert_result(ask_for_room(&f, &refused), GPUSYNC_TIMEOUT);
        assert_result(make_within(&f, MS(200), &refused), GPUSYNC_TIMEOUT);
        assert_int_equal(softmetal_outstanding(f.r.metal_queue), limits[i]);
        close_flow(&f);
    }
}

/* A Metal 4 queue has no limit of its own, and no commit waits for one: it is for held work, in both runs of this program.
   An eighth stays free of that. */
static void test_a_limit_of_metal4_bounds_what_may_be_held(void **state)
{
    enum { LIMIT = 8, MANY = 2 * LIMIT };
    void *buffers[MANY + LIMIT];
    gpusync_queue_desc desc;
    unsigned n;
    flow f;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.metal4 = true;
    desc.max_command_buffer_count = LIMIT;
    open_flow_on(&f, QUEUE_OF_GPUSYNC, desc, GPUSYNC_CALLBACKS_QUEUED);
    for (n = 0; n < MANY + LIMIT; n++) buffers[n] = made_elsewhere(&f);
    for (n = 0; n < MANY; n++) commit(&f, buffers[n]);
    assert_int_equal(softmetal_outstanding(f.r.metal_queue), MANY);
    for (; n < MANY + LIMIT - 1; n++)
        SUBMIT(f.r.queue, WAITS(at(f.t, 1)), BUFFERS(buffers[n]));
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, f.r.queue, WAITS(at(f.t, 1)), BUFFERS(buffers[n]));
    assert_result(either_commit(f.r.queue, buffers[n], NULL), GPUSYNC_ERROR_QUEUE_FULL); /* behind held work */
    assert_int_equal(rooms_taken(f.r.queue), MANY + LIMIT - 1);
    assert_ok(gpusync_timeline_signal(f.t, 1));
    commit(&f, buffers[n]);
    assert_int_equal(softmetal_outstanding(f.r.metal_queue), MANY + LIMIT);
    assert_int_equal(f.parks + f.yields, 0);
    for (n = 0; n < MANY + LIMIT; n++) metal_release(buffers[n]);
    close_flow(&f);
}

static void test_by_default_it_is_one_less_than_metals_own_limit(void **state)
{
    void *refused;
    flow f;
    (void)state;
    NOT_ON_METAL4("Metal 4 has no limit");
    open_flow_on(&f, QUEUE_OF_GPUSYNC, queue_desc_of(0, 0), GPUSYNC_CALLBACKS_QUEUED);
    commit_some(&f, 63);
    assert_result(ask_for_room(&f, &refused), GPUSYNC_TIMEOUT);
    act_in_park(&f, 1, finish_all);
    assert_ok(gpusync_command_buffer_discard(f.r.queue, open_buffer(&f.r)));
    close_flow(&f);
}

/* -- more than one that waits for room -------------------------------------------------------------------------- */

/* Metal has made them, and has counted them: gpusync counts them as well, and waits for nothing. */
static void test_a_commit_from_elsewhere_never_waits(void **state)
{
    enum { LIMIT = 5, MORE = 3 };
    void *buffers[LIMIT + MORE], *refused;
    unsigned i;
    flow f;
    (void)state;
    open_flow(&f, LIMIT);
    for (i = 0; i < LIMIT + MORE; i++) buffers[i] = made_elsewhere(&f);
    for (i = 0; i < LIMIT + MORE; i++) commit(&f, buffers[i]);
    assert_int_equal(f.parks + f.yields, 0);
    assert_int_equal(rooms_taken(f.r.queue), LIMIT + MORE);
    for (i = 0; i < MORE && !metal4_run(); i++) {
        assert_result(ask_for_room(&f, &refused), GPUSYNC_TIMEOUT);
        softmetal_finish(buffers[i]);
    }
    if (!metal4_run()) {
        assert_result(ask_for_room(&f, &refused), GPUSYNC_TIMEOUT); /* five are left */
        softmetal_finish(buffers[MORE]);
        assert_ok(ask_for_room(&f, &f.buffer));
        assert_ok(gpusync_command_buffer_discard(f.r.queue, f.buffer));
    }
    for (i = 0; i < LIMIT + MORE; i++) metal_release(buffers[i]);
    close_flow(&f);
}

typedef struct make_job {
    flow *f;
    void *buffer;
    gpusync_result result;
} make_job;

static void *make_body(void *argument)
{
    make_job *job = (make_job *)argument;
    job->result = gpusync_command_buffer(job->f->r.queue, NULL, &job->buffer);
    return NULL;
}

static void make_on_a_thread(void *argument) { join(start(make_body, argument)); }

/* One is made, at each place where it can be, while the other is: there is room for one, so one of the two sleeps. */
static void test_two_command_buffers_do_not_share_one_room(void **state)
{
    int place;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    for (place = 1;; place++) {
        make_job second;
        gpusync_result first;
        bool over;
        void *buffer;
        flow f;
        open_flow(&f, 2);
        commit_some(&f, 1);
        second.f = &f;
        second.result = GPUSYNC_NOT_READY;
        act_in_park(&f, 1, finish_all);
        probe_at_each(place, make_on_a_thread, &second);
        first = gpusync_command_buffer(f.r.queue, NULL, &buffer);
        over = !probe_has_acted(); /* it has been to every place */
        if (over) make_on_a_thread(&second);
        assert_ok(first);
        assert_ok(second.result);
        assert_true(f.parks >= 1);
        commit(&f, buffer);
        commit(&f, second.buffer);
        close_flow(&f);
        if (over) break;
    }
    assert_true(place > 1);
}

/* == stuck: nothing that is in the way can end ================================================================== */

enum { ROOM = 3 }; /* two may be held */

/* What is left is taken by buffers that are made and not committed. */
static void fill_rest(flow *f)
{
    while (rooms_taken(f->r.queue) < ROOM) f->buffer = open_buffer(&f->r);
}
static void fill_open(flow *f) { (void)f; }
static void fill_held(flow *f) { submit_some(f, 2, true); }
static void fill_held_and_open(flow *f) { submit_some(f, 1, true); }
static void fill_held_commits(flow *f)
{
    submit_some(f, 1, true);
    commit_some(f, 1); /* lines up behind it */
}
static void fill_tracked(flow *f) { begin_track(f); } /* its owner never commits it */
static void fill_tracked_in_front(flow *f) /* of work that has ended, and takes no room */
{
    void *buffer;
    begin_track(f);
    commit_empty(&f->r, &buffer);
    softmetal_finish(buffer);
}
static void fill_tracked_around(flow *f) /* the same, and one behind it that is not committed either */
{
    fill_tracked_in_front(f);
    begin_track(f);
}

static void open_full_flow(flow *f, void (*fill_first)(flow *))
{
    open_flow(f, ROOM);
    fill_first(f);
    fill_rest(f);
}

static gpusync_result by_command_buffer(flow *f)
{
    void *buffer;
    return gpusync_command_buffer(f->r.queue, NULL, &buffer);
}
static gpusync_result by_submit(flow *f) /* which needs one of gpusync's own, to signal with; not behind held work */
{
    gpusync_point signal = {NULL, 0, f->own, 1};
    gpusync_submission submission;
    memset(&submission, 0, sizeof submission);
    submission.signals = &signal;
    submission.signal_count = 1;
    submission.flags = GPUSYNC_UNORDERED;
    return gpusync_submit(f->r.queue, &submission, NULL);
}

static gpusync_result (*const waits[])(flow *) = {by_command_buffer, by_submit};

/* The test has seen enough: 50 seconds. */
static void give_up(flow *f)
{
    gpusync_untrack(f->r.queue, 1);
    gpusync_cancel_held(f->r.queue);
    if (f->buffer) gpusync_command_buffer_discard(f->r.queue, f->buffer);
}

static void test_a_wait_that_nothing_can_end_is_an_error_after_a_second(void **state)
{
    static void (*const fills[])(flow *) = {fill_open,    fill_held,             fill_held_and_open, fill_held_commits,
                                           fill_tracked, fill_tracked_in_front, fill_tracked_around};
    size_t i, k;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    for (i = 0; i < LENGTH(fills); i++)
        for (k = 0; k < LENGTH(waits); k++) {
            gpusync_result result;
            flow f;
            open_full_flow(&f, fills[i]);
            act_in_park(&f, 1000, give_up);
            result = waits[k](&f);
            if (result != GPUSYNC_ERROR_QUEUE_FULL)
                fail_msg("fill %zu, wait %zu: %s", i, k, gpusync_result_string(result));
            assert_true(f.slept_ns >= MS(990));
            close_flow(&f);
        }
}

/* A buffer that gpusync_track refuses counts as one that was made, once, and not as a tracked one too: one that is in
   flight is left, so that this is not an error after a second. */
static void test_a_buffer_that_track_refused_is_in_the_way_once(void **state)
{
    gpusync_point wait;
    void *buffer;
    flow f;
    (void)state;
    NOT_ON_METAL4("nothing is tracked");
    open_flow(&f, 3);
    memset(&wait, 0, sizeof wait);
    wait.timeline = f.t;
    wait.value = 1;
    commit_empty(&f.r, &f.buffer);
    begin_track(&f); /* and never committed */
    assert_ok(make_behind(f.r.queue, NULL, &wait, 1, &buffer));
    assert_result(gpusync_track(f.r.queue, buffer, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    act_in_park(&f, 100, finish_one); /* five seconds */
    assert_ok(by_command_buffer(&f));
    assert_true(f.slept_ns > SECONDS(2));
    assert_ok(gpusync_command_buffer_discard(f.r.queue, buffer));
    close_flow(&f);
}

static void test_with_a_time_limit_it_is_a_timeout(void **state)
{
    void *buffer;
    flow f;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    open_full_flow(&f, fill_held_and_open);
    assert_result(make_within(&f, SECONDS(5), &buffer), GPUSYNC_TIMEOUT);
    assert_true(f.slept_ns >= MS(4990));
    close_flow(&f);
}

static void test_room_that_comes_within_the_second_ends_the_wait(void **state)
{
    size_t k;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    for (k = 0; k < LENGTH(waits); k++) {
        flow f;
        open_full_flow(&f, fill_open);
        act_in_park(&f, 5, discard_one);
        assert_ok(waits[k](&f));
        close_flow(&f);
    }
}

static void commit_the_open_one(flow *f)
{
    commit(f, f->buffer);
    act_in_park(f, 60, finish_one); /* long after */
}

/* What is committed in time is work in flight: from there on the wait has no end but its end. */
static void test_a_commit_within_the_second_makes_it_an_ordinary_wait(void **state)
{
    size_t k;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    for (k = 0; k < LENGTH(waits); k++) {
        flow f;
        open_full_flow(&f, fill_open);
        act_in_park(&f, 5, commit_the_open_one);
        assert_ok(waits[k](&f));
        assert_true(f.slept_ns > SECONDS(2));
        close_flow(&f);
    }
}

static uint64_t moved_at;

/* One goes through, another takes its place: all is as it was, but something has moved. */
static void replace_the_open_one(flow *f)
{
    commit(f, f->buffer);
    softmetal_finish(f->buffer);
    open_buffer(&f->r);
    moved_at = f->slept_ns;
}

static void test_the_second_begins_again_when_something_has_moved(void **state)
{
    flow f;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    open_full_flow(&f, fill_open);
    act_in_park(&f, 10, replace_the_open_one);
    assert_result(by_command_buffer(&f), GPUSYNC_ERROR_QUEUE_FULL);
    assert_true(f.slept_ns - moved_at >= MS(990));
    close_flow(&f);
}

/* == the ends that a wait for room can have ===================================================================== */

static void ask_for_room_in_a_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    flow *f = (flow *)user;
    void *buffer = made_elsewhere(f), *made;
    (void)result, (void)error;
    f->answers[0] = by_command_buffer(f);
    f->answers[1] = by_submit(f);
    f->answers[2] = ask_for_room(f, &made);
    f->answers[3] = gpusync_commit(f->r.queue, buffer, NULL); /* needs none */
    metal_release(buffer);
}

/* Three in flight where the limit is two: gpusync_track waits for no room. So there is none either when the first has
   ended. */
static void fill_beyond_the_limit(flow *f)
{
    void *buffer;
    commit_empty(&f->r, &f->buffer);
    commit_some(f, 1);
    buffer = made_elsewhere(f);
    assert_ok(gpusync_track(f->r.queue, buffer, NULL));
    metal_commit(buffer);
    metal_release(buffer);
}

/* Due by a handler, due at once, and by gpusync_dispatch: no call may wait in a callback. */
static void test_in_a_callback_it_would_be_a_deadlock(void **state)
{
    int place;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    for (place = 0; place < 3; place++) {
        flow f;
        size_t i;
        open_flow_on(&f, roomy(), queue_desc_of(2, 0), place == 2 ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED);
        fill_beyond_the_limit(&f);
        if (place == 0) assert_ok(gpusync_on_done(gpusync_at_ticket(f.r.queue, 1), ask_for_room_in_a_callback, &f));
        softmetal_finish(f.buffer);
        if (place) assert_ok(gpusync_on_done(gpusync_at_ticket(f.r.queue, 1), ask_for_room_in_a_callback, &f));
        assert_ok(gpusync_dispatch(f.r.device, 5, NULL));
        assert_true(softmetal_dispatched(SECONDS(20)));
        for (i = 0; i < 3; i++) assert_result(f.answers[i], GPUSYNC_ERROR_WOULD_DEADLOCK);
        assert_ok(f.answers[3]);
        assert_int_equal(gpusync_in_flight(f.r.queue), 3);
        assert_int_equal(f.parks, 0);
        close_flow(&f);
    }
}

static void lose_the_device(flow *f)
{
    softmetal_fail(f->buffer, NULL, 4, "locked out");
    softmetal_finish(f->buffer);
}

static void test_the_loss_of_the_device_ends_the_wait(void **state)
{
    size_t k;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    for (k = 0; k < LENGTH(waits); k++) {
        void *buffer;
        flow f;
        open_flow(&f, 2);
        fill_beyond_the_limit(&f);
        act_in_park(&f, 2, lose_the_device);
        assert_result(waits[k](&f), GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(ask_for_room(&f, &buffer), GPUSYNC_ERROR_DEVICE_LOST);
        close_flow(&f);
    }
}

/* On a thread of its own, which is asleep when the queue goes. */
typedef struct room_job {
    flow f; /* the queue alone, and the timeline that by_submit signals */
    gpusync_result (*wait)(flow *);
    void *buffer; /* what was made, where there is no `wait` */
    gpusync_result result;
} room_job;

static void *room_body(void *argument)
{
    room_job *job = (room_job *)argument;
    void *buffer = NULL;
    if (job->wait) {
        job->result = job->wait(&job->f);
        return NULL;
    }
    job->result = gpusync_command_buffer(job->f.r.queue, NULL, &buffer);
    PUT(&job->buffer, buffer);
    return NULL;
}

static void test_destroy_ends_the_wait(void **state)
{
    size_t k;
    int now;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    for (k = 0; k < LENGTH(waits); k++)
        for (now = 0; now < 2; now++) {
            gpusync_device_desc device_desc;
            pthread_t thread;
            room_job job;
            void *metal;
            rig r;
            memset(&device_desc, 0, sizeof device_desc);
            memset(&job, 0, sizeof job);
            PUT(&clock_is_real, true);
            rig_open_with(&r, now ? SOFTMETAL_MANUAL : SOFTMETAL_REAL, device_desc, queue_desc_of(1, 0));
            metal = metal_retain(r.metal_queue);
            job.f.r.queue = r.queue;
            job.f.own = timeline_new(r.device);
            job.wait = waits[k];
            if (now) commit_empty(&r, NULL);
            else open_buffer(&r); /* with a drain there must be nothing that hangs */
            thread = start(room_body, &job);
            await_sleepers(r.device, 1);
            assert_ok(now ? gpusync_queue_destroy_now(r.queue) : gpusync_queue_destroy(r.queue));
            join(thread);
            r.queue = NULL;
            assert_result(job.result, GPUSYNC_ERROR_DESTROYED);
            assert_ok(gpusync_timeline_destroy(job.f.own));
            if (now) softmetal_finish_queue(metal);
            metal_release(metal);
            rig_close(&r);
        }
}

/* == several threads ============================================================================================ */

/* They compete for a few rooms, and discard some of what they make: never more in flight than the limit, no thread starves,
   nothing is lost. */
enum { THREADS = 4 };

/* What they have made, kept until the end, so that any thread can ask for its status. */
typedef struct contest {
    rig r;
    unsigned rounds, count, most;
    void **made;
} contest;

static bool flies(void *buffer)
{
    unsigned long status = buffer ? status_of(buffer) : 0;
    return status == 2 || status == 3;
}

/* Committed and not ended: of the newest, which is where those are. The statuses are read one after another, so those
   found are asked again: a buffer that flies both times flew in between, when all of them had been found. */
static unsigned in_flight(contest *race)
{
    void *found[32];
    unsigned i, n = 0, both = 0, count = GET(&race->count);
    for (i = count > 32 ? count - 32 : 0; i < count; i++) {
        void *buffer = GET(&race->made[i]);
        if (flies(buffer)) found[n++] = buffer;
    }
    for (i = 0; i < n; i++) both += flies(found[i]);
    return both;
}

static void *compete(void *argument)
{
    contest *race = (contest *)argument;
    gpusync_queue *q = race->r.queue;
    unsigned i;
    for (i = 0; i < race->rounds; i++) {
        void *buffer = NULL;
        unsigned now, most;
        must(gpusync_command_buffer(q, NULL, &buffer) == GPUSYNC_OK, "command_buffer");
        softmetal_set_duration(buffer, (i % 3) * 10000);
        if (i % 7 == 3) {
            must(gpusync_command_buffer_discard(q, buffer) == GPUSYNC_OK, "discard");
            continue;
        }
        PUT(&race->made[COUNT(&race->count)], metal_retain(buffer));
        must(gpusync_commit(q, buffer, NULL) == GPUSYNC_OK, "commit");
        now = in_flight(race);
        most = GET(&race->most);
        while (now > most && !__atomic_compare_exchange_n(&race->most, &most, now, 0, __ATOMIC_SEQ_CST,
                                                          __ATOMIC_SEQ_CST)) {
        }
    }
    return NULL;
}

/* A single one, which is in flight for as long as it takes to find it. */
static void measure_one(contest *race)
{
    void *buffer = metal_retain(open_buffer(&race->r));
    PUT(&race->made[COUNT(&race->count)], buffer);
    softmetal_hang(buffer);
    assert_ok(either_commit(race->r.queue, buffer, NULL));
    assert_int_equal(in_flight(race), 1);
    softmetal_unhang(buffer);
}

/* Metal itself has more room, so that gpusync alone keeps to the limit. */
static void race_for_room(uint32_t limit)
{
    const char *stress = getenv("STRESS");
    gpusync_device_desc device_desc;
    pthread_t threads[THREADS];
    contest race;
    unsigned i;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&race, 0, sizeof race);
    PUT(&clock_is_real, true);
    rig_open_on(&race.r, SOFTMETAL_REAL, roomy(), device_desc, queue_desc_of(limit, 0));
    race.rounds = stress && strcmp(stress, "full") == 0 ? 5000 : 150;
    race.made = (void **)calloc(THREADS * race.rounds + 1, sizeof *race.made);
    assert_non_null(race.made);
    measure_one(&race);
    for (i = 0; i < THREADS; i++) threads[i] = start(compete, &race);
    for (i = 0; i < THREADS; i++) join(threads[i]);
    assert_true(race.most <= limit);
    assert_ok(gpusync_queue_wait(race.r.queue, SECONDS(20)));
    assert_true(softmetal_settle(SECONDS(20)));
    assert_int_equal(rooms_taken(race.r.queue), 0); /* every room was given back */
    for (i = 0; i < race.count; i++) metal_release(race.made[i]);
    free(race.made);
    rig_close(&race.r);
}

static void test_rivals_never_exceed_the_limit(void **state)
{
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    race_for_room(1);
    race_for_room(3);
}

static long woken;

/* Until it is woken: time does not end it. But for destroy, which sleeps a millisecond while others are on their way. */
static void park_until_woken(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    if (deadline_ns < gpusync_now_ns() + MS(10)) sched_yield();
    else thread_park(waiter, GPUSYNC_FOREVER);
}

static void wake_and_count(void *user, gpusync_waiter *waiter)
{
    (void)user;
    COUNT(&woken);
    thread_unpark(waiter);
}

/* A queue with this limit, whose Metal has more room. `woken` counts from here on. */
static void open_counting_wakes(rig *r, uint32_t limit)
{
    static const gpusync_hooks hooks = {.park = park_until_woken, .unpark = wake_and_count};
    const gpusync_device_desc device_desc = {.hooks = &hooks};
    PUT(&clock_now, SECONDS(1000));
    PUT(&clock_is_real, false);
    PUT(&woken, 0);
    rig_open_on(r, SOFTMETAL_MANUAL, roomy(), device_desc, queue_desc_of(limit, 0));
}

/* Many wait for one room: each that ends lets one more in, and wakes no other. */
static void test_each_end_lets_one_in(void **state)
{
    enum { WAITERS = 5 };
    pthread_t threads[WAITERS];
    room_job jobs[WAITERS];
    void *buffer;
    rig r;
    int i;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    open_counting_wakes(&r, 1);
    commit_empty(&r, &buffer);
    memset(jobs, 0, sizeof jobs);
    for (i = 0; i < WAITERS; i++) {
        jobs[i].f.r.queue = r.queue;
        threads[i] = start(room_body, &jobs[i]);
    }
    for (i = 0; i < WAITERS; i++) {
        int k;
        await_sleepers(r.device, (unsigned)(WAITERS - i));
        assert_int_equal(rooms_taken(r.queue), 1);
        softmetal_finish(buffer);
        for (buffer = NULL, k = 0; !buffer; k = (k + 1) % WAITERS) { /* the one that comes in */
            buffer = __atomic_exchange_n(&jobs[k].buffer, NULL, __ATOMIC_SEQ_CST);
            sched_yield();
        }
        (void)commit_to(r.queue, buffer);
    }
    for (i = 0; i < WAITERS; i++) {
        join(threads[i]);
        assert_ok(jobs[i].result);
    }
    assert_int_equal(GET(&woken), WAITERS);
    softmetal_finish_queue(r.metal_queue);
    rig_close(&r);
}

/* It needs two of gpusync's own: to wait with, for what others signal, and to signal with. */
static gpusync_result by_submit_of_two(flow *f)
{
    return TRY_SUBMIT(f->r.queue, NULL, WAITS(at(f->t, 1)), BUFFERS(f->buffer), SIGNALS(at(f->own, 1)));
}

/* two_first: the one that waits for room for two was there before the one that waits for one. */
static void check_room_for_one(bool two_first)
{
    pthread_t threads[2];
    room_job jobs[2]; /* for one; for two */
    void *buffers[2], *event;
    unsigned i;
    rig r;
    open_counting_wakes(&r, 3);
    memset(jobs, 0, sizeof jobs);
    jobs[0].f.r.queue = jobs[1].f.r.queue = r.queue;
    jobs[1].wait = by_submit_of_two;
    jobs[1].f.t = timeline_over(r.device, &event);
    jobs[1].f.own = timeline_new(r.device);
    jobs[1].f.buffer = open_buffer(&r);
    for (i = 0; i < 2; i++) commit_empty(&r, &buffers[i]);
    for (i = 0; i < 2; i++) {
        unsigned job = two_first ? !i : i;
        threads[job] = start(room_body, &jobs[job]);
        await_sleepers(r.device, i + 1);
    }
    softmetal_finish(buffers[0]);
    assert_int_equal(GET(&woken), 1);
    join(threads[0]);
    assert_ok(jobs[0].result);
    assert_ok(gpusync_command_buffer_discard(r.queue, jobs[0].buffer));
    assert_int_equal(GET(&woken), 1); /* the other needs two */
    softmetal_finish(buffers[1]);
    assert_int_equal(GET(&woken), 2);
    join(threads[1]);
    assert_ok(jobs[1].result);
    metal_event_signal(event, 1);
    softmetal_finish_queue(r.metal_queue);
    assert_int_equal(value_of(jobs[1].f.own), 1);
    assert_ok(gpusync_timeline_destroy(jobs[1].f.t));
    assert_ok(gpusync_timeline_destroy(jobs[1].f.own));
    metal_release(event);
    rig_close(&r);
}

/* Room for one does not stay free behind a wait for two. */
static void test_room_for_one_wakes_the_one_that_needs_no_more(void **state)
{
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    check_room_for_one(true);
    check_room_for_one(false);
}

/* Two wait for room that a submission has taken for buffers of gpusync's own. */
static struct {
    room_job jobs[2];
    pthread_t threads[2];
    rig *r;
    bool there;
} shut_out;

static void shut_two_out(void *user, softmetal_phase phase, void *object, const char *selector)
{
    unsigned i;
    (void)user;
    (void)object;
    if (shut_out.there || phase != SOFTMETAL_BEFORE || strcmp(selector, "commandBuffer") != 0) return;
    shut_out.there = true;
    for (i = 0; i < 2; i++) {
        shut_out.jobs[i].f.r.queue = shut_out.r->queue;
        shut_out.threads[i] = start(room_body, &shut_out.jobs[i]);
        await_sleepers(shut_out.r->device, i + 1);
    }
}

/* Both rooms of a submission that is refused come back in one hold. */
static void test_the_rooms_of_a_refused_submission_wake_a_waiter_each(void **state)
{
    gpusync_timeline *timelines[2];
    void *event, *buffer;
    unsigned i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    open_counting_wakes(&r, 3);
    timelines[0] = timeline_over(r.device, &event);
    timelines[1] = timeline_new(r.device);
    buffer = open_buffer(&r);
    memset(&shut_out, 0, sizeof shut_out);
    shut_out.r = &r;
    softmetal_set_message_hook(shut_two_out, NULL);
    assert_result(TRY_SUBMIT(r.queue, NULL, WAITS(at(timelines[0], 1)), BUFFERS(buffer), SIGNALS(at(timelines[1], 0))),
                  GPUSYNC_ERROR_NOT_RISING);
    softmetal_set_message_hook(NULL, NULL);
    assert_true(shut_out.there);
    assert_int_equal(GET(&woken), 2);
    for (i = 0; i < 2; i++) {
        join(shut_out.threads[i]);
        assert_ok(shut_out.jobs[i].result);
        assert_ok(gpusync_command_buffer_discard(r.queue, shut_out.jobs[i].buffer));
        assert_ok(gpusync_timeline_destroy(timelines[i]));
    }
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    assert_int_equal(rooms_taken(r.queue), 0);
    metal_release(event);
    rig_close(&r);
}

/* Room for all of them comes at once. The waiters that are told first have taken theirs when the next hold begins: what
   they took does not count twice. */
static void test_room_for_many_lets_all_of_them_in(void **state)
{
    unsigned came;
    audience a;
    stage s;
    (void)state;
    NOT_ON_METAL4("room for many does not come at once");
    PUT(&clock_is_real, true);
    open_stage_for(&a, &s, 1, 0);
    keep_out(&a, &s);
    PUT(&a.one_by_one, true);
    assert_ok(gpusync_cancel_held(s.q[0]));
    came = GET(&a.in);
    send_home(&a);
    close_idle_stage(&s);
    assert_int_equal(came, AUDIENCE);
}

/* -- room and callbacks ------------------------------------------------------------------------------------------ */

static struct {
    gpusync_queue *queue;
    gpusync_result answer;
    unsigned rooms;
    long calls;
} announced;

static void *ask_for_the_room(void *unused)
{
    const uint64_t none = 0;
    const gpusync_command_buffer_desc desc = {.timeout_ns = &none};
    void *buffer;
    announced.rooms = rooms_taken(announced.queue);
    if (metal4_run()) return unused;
    announced.answer = gpusync_command_buffer(announced.queue, &desc, &buffer);
    if (announced.answer == GPUSYNC_OK) announced.answer = gpusync_command_buffer_discard(announced.queue, buffer);
    return unused;
}

/* As a thread would that is told to dispatch. */
static void ask_when_announced(void *user)
{
    join(start(ask_for_the_room, user));
    announced.calls++;
}

static void count_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    assert_ok(result);
    ++*(long *)user;
}

/* A callback may commit the next frame: it finds the room of the one that it is about. */
static void test_room_is_there_when_a_callback_is_announced(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_ticket ticket;
    long calls = 0;
    void *buffer;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&announced, 0, sizeof announced);
    device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    device_desc.notify = ask_when_announced;
    rig_open_on(&r, SOFTMETAL_MANUAL, roomy(), device_desc, queue_desc_of(1, 0));
    announced.queue = r.queue;
    ticket = commit_empty(&r, &buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), count_callback, &calls));
    assert_int_equal(rooms_taken(r.queue), 1);
    softmetal_finish(buffer);
    assert_int_equal(announced.calls, 1);
    assert_int_equal(announced.rooms, 0);
    assert_ok(announced.answer);
    assert_ok(gpusync_dispatch(r.device, SIZE_MAX, NULL));
    assert_int_equal(calls, 1);
    rig_close(&r);
}

static struct {
    gpusync_queue *queue;
    void *buffer;
    unsigned commits, rooms;
} let_go_on;

static void ask_for_the_room_at_a_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_BEFORE || object != let_go_on.buffer || strcmp(selector, "commit") != 0) return;
    let_go_on.commits++;
    let_go_on.rooms = rooms_taken(let_go_on.queue);
}

/* What waits for a submission is issued in its handler, while Metal may count the command buffer: its room is taken. */
static void test_a_submission_keeps_its_room_while_its_handler_lets_others_go_on(void **state)
{
    gpusync_ticket ticket;
    gpusync_queue *other;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("its command buffers take no room");
    memset(&let_go_on, 0, sizeof let_go_on);
    rig_open(&r, SOFTMETAL_MANUAL);
    other = queue_new(r.device);
    buffer = kept_buffer_of(r.queue);
    let_go_on.queue = r.queue;
    let_go_on.buffer = kept_buffer_of(other);
    ticket = SUBMIT(r.queue, BUFFERS(buffer));
    (void)SUBMIT(other, WAITS(gpusync_at_ticket(r.queue, ticket)), BUFFERS(let_go_on.buffer), .flags = GPUSYNC_STRICT);
    assert_int_equal(metal_status(let_go_on.buffer), 0); /* held */
    softmetal_set_message_hook(ask_for_the_room_at_a_commit, NULL);
    softmetal_finish(buffer);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(let_go_on.commits, 1);
    assert_int_equal(let_go_on.rooms, 1);
    assert_int_equal(rooms_taken(r.queue), 0);
    softmetal_finish(let_go_on.buffer);
    metal_release(let_go_on.buffer);
    metal_release(buffer);
    assert_ok(gpusync_queue_destroy(other));
    rig_close(&r);
}

/* == a program that paces itself ================================================================================= */

static void finish_the_first(flow *f) { softmetal_finish(softmetal_first_in_line(f->r.metal_queue)); }

/* One commit a frame, and no array: the tickets are numbers. While a frame is recorded two are in flight, once there are
   so many, and never more. */
static void test_a_wait_for_the_ticket_but_two_keeps_two_frames_in_flight(void **state)
{
    enum { FRAMES = 20, BUSY = 3 }; /* the device is busy at first, and ends each frame when the program waits for it */
    gpusync_queue_desc desc;
    gpusync_ticket ticket;
    uint64_t frame;
    flow f;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.spin = &no_spin;
    open_flow_on(&f, QUEUE_OF_GPUSYNC, desc, GPUSYNC_CALLBACKS_QUEUED);
    for (frame = 1; frame <= FRAMES; frame++) {
        uint64_t before = frame < 3 ? frame - 1 : 2;
        long parks = f.parks;
        assert_int_equal(gpusync_in_flight(f.r.queue), before); /* while it is recorded */
        ticket = commit_empty(&f.r, NULL);
        assert_int_equal(ticket, frame);
        act_in_park(&f, BUSY, finish_the_first);
        if (ticket > 2) assert_ok(gpusync_wait(f.r.queue, ticket - 2, SECONDS(60)));
        assert_int_equal(f.parks - parks, frame < 3 ? 0 : BUSY); /* it waits for that frame, and for no other */
        assert_true(frame < 3 || gpusync_is_done(f.r.queue, ticket - 2));
    }
    softmetal_finish_queue(f.r.metal_queue); /* a device that is fast: no frame is waited for */
    for (; frame <= 2 * FRAMES; frame++) {
        long parks = f.parks;
        ticket = commit_empty(&f.r, NULL);
        if (ticket > 2) assert_ok(gpusync_wait(f.r.queue, ticket - 2, SECONDS(60)));
        assert_int_equal(f.parks, parks);
        softmetal_finish_queue(f.r.metal_queue);
    }
    close_flow(&f);
}

/* What the `if` is for: the first ticket but two is GPUSYNC_EVERYTHING, and a wait for that is one for the frame itself. The
   second but two is no ticket, which has ended. */
static void test_the_first_ticket_but_two_is_everything(void **state)
{
    gpusync_queue_desc desc;
    gpusync_ticket ticket;
    flow f;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.spin = &no_spin;
    open_flow_on(&f, QUEUE_OF_GPUSYNC, desc, GPUSYNC_CALLBACKS_QUEUED);
    ticket = commit_empty(&f.r, NULL);
    assert_true(ticket - 2 == GPUSYNC_EVERYTHING);
    assert_result(gpusync_wait(f.r.queue, ticket - 2, MS(10)), GPUSYNC_TIMEOUT);
    act_in_park(&f, 1, finish_the_first);
    assert_ok(gpusync_wait(f.r.queue, ticket - 2, SECONDS(60)));
    assert_true(gpusync_is_idle(f.r.queue)); /* no frame is in flight any more */
    ticket = commit_empty(&f.r, NULL);
    assert_true(ticket - 2 == GPUSYNC_NO_TICKET);
    assert_ok(gpusync_wait(f.r.queue, ticket - 2, 0));
    assert_false(gpusync_is_idle(f.r.queue));
    close_flow(&f);
}

/* -- room that comes back in the handler ------------------------------------------------------------------------- */

/* A completed handler gives the room back, and then calls unpark and notify. Metal counts the command buffer until the
   handler has returned, so that [queue commandBuffer] of a full queue would wait for the handler, from inside it. */
static struct {
    gpusync_queue *queue;
    int calls;
    gpusync_result result;
} in_the_handler;

static void make_a_buffer(void)
{
    static const uint64_t at_once = 0;
    gpusync_command_buffer_desc desc;
    void *buffer;
    if (in_the_handler.calls++) return;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &at_once;
    in_the_handler.result = gpusync_command_buffer(in_the_handler.queue, &desc, &buffer);
    if (in_the_handler.result == GPUSYNC_OK) assert_ok(gpusync_command_buffer_discard(in_the_handler.queue, buffer));
}

static void make_and_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    make_a_buffer();
    thread_unpark(waiter);
}

static void park_on(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    thread_park(waiter, deadline_ns);
}

static void test_unpark_may_make_a_command_buffer_while_the_handler_runs(void **state)
{
    gpusync_hooks hooks = {NULL, park_on, make_and_unpark, NULL};
    gpusync_ticket ticket;
    wait_job sleeper;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("its command buffers take no room");
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(1, 0));
    memset(&in_the_handler, 0, sizeof in_the_handler);
    in_the_handler.queue = r.queue;
    ticket = commit_empty(&r, &buffer);
    wait_job_start(&sleeper, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    must_return_within(20);
    softmetal_finish(buffer);
    has_returned();
    assert_ok(wait_job_join(&sleeper));
    assert_int_equal(in_the_handler.calls, 1);
    assert_ok(in_the_handler.result);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_waits_for_as_long_as_it_takes_while_work_is_in_flight),
        cmocka_unit_test(test_a_time_limit_is_kept),
        cmocka_unit_test(test_a_lost_handler_costs_time_and_not_the_room),
        cmocka_unit_test(test_a_late_handler_is_not_lost_before_its_time),
        cmocka_unit_test(test_a_lost_handler_keeps_no_room_from_calls_in_callbacks),
        cmocka_unit_test(test_without_memory_to_sleep_with_it_says_so),
        cmocka_unit_test(test_credits_are_counted_from_the_making_to_the_end),
        cmocka_unit_test(test_the_limit_of_the_queue_holds_whatever_the_order_of_calls),
        cmocka_unit_test(test_making_a_command_buffer_waits_for_room),
        cmocka_unit_test(test_metal_is_not_asked_beyond_its_limit),
        cmocka_unit_test(test_a_limit_of_metal4_bounds_what_may_be_held),
        cmocka_unit_test(test_by_default_it_is_one_less_than_metals_own_limit),
        cmocka_unit_test(test_a_commit_from_elsewhere_never_waits),
        cmocka_unit_test(test_two_command_buffers_do_not_share_one_room),
        cmocka_unit_test(test_a_wait_that_nothing_can_end_is_an_error_after_a_second),
        cmocka_unit_test(test_a_buffer_that_track_refused_is_in_the_way_once),
        cmocka_unit_test(test_with_a_time_limit_it_is_a_timeout),
        cmocka_unit_test(test_room_that_comes_within_the_second_ends_the_wait),
        cmocka_unit_test(test_a_commit_within_the_second_makes_it_an_ordinary_wait),
        cmocka_unit_test(test_the_second_begins_again_when_something_has_moved),
        cmocka_unit_test(test_in_a_callback_it_would_be_a_deadlock),
        cmocka_unit_test(test_the_loss_of_the_device_ends_the_wait),
        cmocka_unit_test(test_destroy_ends_the_wait),
        cmocka_unit_test(test_rivals_never_exceed_the_limit),
        cmocka_unit_test(test_each_end_lets_one_in),
        cmocka_unit_test(test_room_for_one_wakes_the_one_that_needs_no_more),
        cmocka_unit_test(test_the_rooms_of_a_refused_submission_wake_a_waiter_each),
        cmocka_unit_test(test_room_for_many_lets_all_of_them_in),
        cmocka_unit_test(test_room_is_there_when_a_callback_is_announced),
        cmocka_unit_test(test_a_submission_keeps_its_room_while_its_handler_lets_others_go_on),
        cmocka_unit_test(test_a_wait_for_the_ticket_but_two_keeps_two_frames_in_flight),
        cmocka_unit_test(test_the_first_ticket_but_two_is_everything),
        cmocka_unit_test(test_unpark_may_make_a_command_buffer_while_the_handler_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
