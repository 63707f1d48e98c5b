/* test_callbacks_inside.c - what a callback may do: anything but wait for what is not over, and destroy

   Proved for callbacks by gpusync_on_done and by submissions: inside they submit, signal, fail, cancel and register, also
   with other queues and devices; none is nested in another, however long the chain; a wait that would have to wait
   is refused.

   It also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

/* A submission without command buffers; Metal 4 has none, so there it gets one. */
static void leave_bare(gpusync_submission *submission, gpusync_queue *queue, void **buffer)
{
    if (!metal4_run()) return;
    *buffer = buffer_of(queue);
    submission->command_buffers = buffer;
    submission->command_buffer_count = 1;
}

static gpusync_ticket hold_bare(gpusync_queue *queue, gpusync_timeline *timeline, uint64_t value)
{
    if (metal4_run()) return hold_on(queue, timeline, value, NULL);
    return SUBMIT(queue, WAITS(at(timeline, value)));
}

/* == what a callback may do ===================================================================================== */

static const gpusync_result expected_answers[] = {
    GPUSYNC_OK,                   /* make a command buffer */
    GPUSYNC_OK,                   /* commit it */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* wait for it, for ever */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* ... or not at all */
    GPUSYNC_NOT_READY,            /* poll */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* queue_wait */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* device_wait */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* wait_many */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* a value that no work is to signal */
    GPUSYNC_OK,                   /* a wait that is over */
    GPUSYNC_OK,                   /* on_done: in flight */
    GPUSYNC_OK,                   /* ... over */
    GPUSYNC_OK,                   /* release_after */
    GPUSYNC_OK,                   /* submit, held */
    GPUSYNC_OK,                   /* cancel_held */
    GPUSYNC_OK,                   /* signal */
    GPUSYNC_OK,                   /* on_done, of a value */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* destroy the queue */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* ... now */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* ... the timeline */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* ... the device */
    GPUSYNC_ERROR_WOULD_DEADLOCK, /* dispatch */
};

/* Each in turn. What it registers goes to o->next[0..3]. */
static void do_everything(outcome *o)
{
    gpusync_queue *q = o->stage->q[0];
    gpusync_point point;
    gpusync_submission submission;
    gpusync_timeline *t = o->timeline;
    void *buffer = NULL, *object = metal_buffer_new(o->stage->rig.metal_device, 16);
    size_t count = 99;
    answer(o, either_buffer(q, NULL, &buffer));
    answer(o, either_commit(q, buffer, &o->ticket));
    answer(o, gpusync_wait(q, o->ticket, GPUSYNC_FOREVER));
    answer(o, gpusync_wait(q, o->ticket, 0));
    answer(o, gpusync_poll(q, o->ticket));
    answer(o, gpusync_queue_wait(q, GPUSYNC_FOREVER));
    answer(o, gpusync_device_wait(o->stage->device, GPUSYNC_FOREVER, NULL));
    memset(&point, 0, sizeof point);
    point.queue = q;
    point.ticket = o->ticket;
    answer(o, gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
    answer(o, gpusync_timeline_wait(t, 1000, GPUSYNC_FOREVER, NULL));
    answer(o, gpusync_wait(q, GPUSYNC_NO_TICKET, GPUSYNC_FOREVER));
    answer(o, gpusync_on_done(gpusync_at_ticket(q, o->ticket), remember, &o->next[0]));
    answer(o, gpusync_on_done(gpusync_at_ticket(q, GPUSYNC_NO_TICKET), remember, &o->next[1]));
    answer(o, gpusync_release_after(gpusync_at_ticket(q, o->ticket), object));
    metal_release(object);
    memset(&submission, 0, sizeof submission);
    point = at(t, 1001);
    submission.waits = &point;
    submission.wait_count = 1;
    submission.on_complete = remember;
    submission.user = &o->next[2];
    leave_bare(&submission, q, &buffer);
    answer(o, either_submit(q, &submission, NULL));
    answer(o, gpusync_cancel_held(q));
    answer(o, gpusync_timeline_signal(t, 900));
    answer(o, gpusync_on_done(gpusync_at_value(t, 900), remember, &o->next[3]));
    answer(o, gpusync_queue_destroy(q));
    answer(o, gpusync_queue_destroy_now(q));
    answer(o, gpusync_timeline_destroy(t));
    answer(o, gpusync_device_destroy(o->stage->device));
    answer(o, gpusync_dispatch(o->stage->device, 1, &count));
    must(count == 0, "a dispatch that is refused runs nothing");
}

/* What makes a callback due; each has `o` called and everything settled. */
static void after_a_handler(stage *s, outcome *o)
{
    on_done(s->q[1], commit_to(s->q[1], buffer_of(s->q[1])), o);
    softmetal_finish_queue(gpusync_queue_metal(s->q[1]));
}

static void at_once(stage *s, outcome *o) { on_done(s->q[1], GPUSYNC_NO_TICKET, o); }

static void in_a_signal(stage *s, outcome *o)
{
    on_value(s->t[0], 1, o);
    assert_ok(gpusync_timeline_signal(s->t[0], 1));
}

static void in_a_cancellation(stage *s, outcome *o)
{
    on_done(s->q[1], submit_held(s, s->q[1]), o);
    assert_ok(gpusync_cancel_held(s->q[1]));
}

static void in_destroy(stage *s, outcome *o)
{
    on_done(s->q[1], commit_to(s->q[1], buffer_of(s->q[1])), o);
    softmetal_complete(softmetal_last_buffer(gpusync_queue_metal(s->q[1])));
    orphan_queue(s, 1);
}

static void in_the_end_of_a_timeline(stage *s, outcome *o)
{
    on_value(s->t[0], 1, o);
    take_down_timeline(s, 0);
}

static void do_everything_in(void (*place)(stage *, outcome *), gpusync_callback_mode mode)
{
    outcome o = {0}, next[4] = {0};
    size_t i;
    stage s;
    open_callback_stage(&s, SOFTMETAL_MANUAL, mode);
    o.then = do_everything;
    o.stage = &s;
    o.next = next;
    assert_ok(gpusync_timeline_create(s.device, NULL, &o.timeline));
    place(&s, &o);
    settle(&s);
    settle(&s);
    assert_int_equal(calls_of(&o), 1);
    assert_int_equal(o.answered, LENGTH(expected_answers));
    for (i = 0; i < LENGTH(expected_answers); i++)
        if (o.answers[i] != expected_answers[i])
            fail_msg("answer %zu: %s", i, gpusync_result_string(o.answers[i]));
    for (i = 0; i < 4; i++) {
        assert_int_equal(calls_of(&next[i]), 1);
        assert_false(next[i].nested); /* callbacks do not pile up on the stack */
    }
    assert_result(next[0].result, GPUSYNC_OK);
    assert_result(next[1].result, GPUSYNC_OK);
    assert_result(next[2].result, GPUSYNC_ERROR_CANCELLED);
    assert_result(next[3].result, GPUSYNC_OK);
    assert_int_equal(softmetal_live("buffer"), 0);
    assert_ok(gpusync_timeline_destroy(o.timeline));
    close_idle_stage(&s);
}

/* Once for each reason, in both modes. */
static void in_every_place(void (*act)(void (*place)(stage *, outcome *), gpusync_callback_mode mode))
{
    static void (*const places[])(stage *, outcome *) = {
        after_a_handler, at_once, in_a_signal, in_a_cancellation, in_destroy, in_the_end_of_a_timeline,
    };
    size_t i;
    for (i = 0; i < LENGTH(places); i++) {
        act(places[i], GPUSYNC_CALLBACKS_QUEUED);
        act(places[i], GPUSYNC_CALLBACKS_MANUAL);
    }
}

static void test_a_callback_may_do_all_but_wait_and_destroy(void **state)
{
    (void)state;
    in_every_place(do_everything_in);
}

static void signal_twice(outcome *o)
{
    answer(o, gpusync_timeline_signal(o->timeline, 1));
    answer(o, gpusync_timeline_signal(o->timeline, 2));
}

static void signal_twice_in(void (*place)(stage *, outcome *), gpusync_callback_mode mode)
{
    outcome o = {0}, next[3] = {0};
    stage s;
    open_callback_stage(&s, SOFTMETAL_MANUAL, mode);
    o.then = signal_twice;
    assert_ok(gpusync_timeline_create(s.device, NULL, &o.timeline));
    on_value(o.timeline, 1, &next[0]);
    on_value(o.timeline, 2, &next[1]);
    on_value(o.timeline, 2, &next[2]);
    place(&s, &o);
    settle(&s);
    settle(&s);
    await_calls(&next[2], 1);
    assert_ok(o.answers[0]);
    assert_ok(o.answers[1]);
    assert_in_order(next, 3);
    assert_true(o.order < next[0].order);
    assert_false(next[0].nested || next[1].nested || next[2].nested);
    assert_result(next[0].result, GPUSYNC_OK);
    assert_result(next[1].result, GPUSYNC_OK);
    assert_ok(gpusync_timeline_destroy(o.timeline));
    close_idle_stage(&s);
    assert_in_order(next, 3);
}

static void test_a_callback_that_signals_another_timeline_twice_has_both_values_told(void **state)
{
    (void)state;
    in_every_place(signal_twice_in);
}

static void autorelease(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)result;
    (void)error;
    metal_do(metal_retain(user), "autorelease");
}

/* ... and not when a pool of the caller's is. */
static void test_what_a_callback_autoreleases_goes_when_it_is_over(void **state)
{
    gpusync_callback_mode mode;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        outcome after = {0};
        void *object, *pool;
        uint64_t limit;
        stage s;
        open_callback_stage(&s, SOFTMETAL_MANUAL, mode);
        object = metal_buffer_new(s.rig.metal_device, 1);
        pool = metal_pool_push();
        assert_ok(gpusync_on_done(gpusync_at_value(s.t[0], 1), autorelease, object));
        on_value(s.t[0], 1, &after);
        assert_ok(gpusync_timeline_signal(s.t[0], 1));
        assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
        await_calls(&after, 1);
        for (limit = gpusync_now_ns() + SECONDS(20); softmetal_retain_count(object) != 1; sched_yield())
            assert_true(gpusync_now_ns() < limit);
        metal_pool_pop(pool);
        metal_release(object);
        close_idle_stage(&s);
    }
}

/* Each registers the next: the stack stays as flat as it was, wherever the first one runs. */
enum { CHAIN = 5000 };

static void register_again(outcome *o)
{
    if (++o->answered < CHAIN && gpusync_on_done(gpusync_at_ticket(o->queue, GPUSYNC_NO_TICKET), remember, o))
        o->answered = 0;
}

static void test_a_long_chain_of_callbacks_needs_no_stack(void **state)
{
    static void (*const places[])(stage *, outcome *) = {after_a_handler, at_once, in_a_signal, in_a_cancellation};
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(places); i++) {
        outcome o = {0};
        stage s;
        open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
        o.then = register_again;
        o.queue = s.q[0];
        places[i](&s, &o);
        await_calls(&o, CHAIN);
        assert_false(o.nested);
        close_idle_stage(&s);
    }
}

/* A pipeline of the program's: each end commits the next, without any thread of its own. */
static void commit_next(outcome *o)
{
    void *buffer;
    if (++o->answered == 200) return;
    must(either_buffer(o->queue, NULL, &buffer) == GPUSYNC_OK, "command_buffer");
    must(either_commit(o->queue, buffer, &o->ticket) == GPUSYNC_OK, "commit");
    must(gpusync_on_done(gpusync_at_ticket(o->queue, o->ticket), remember, o) == GPUSYNC_OK, "on_done");
}

static void test_callbacks_that_commit_keep_a_queue_going(void **state)
{
    outcome o = {0};
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED);
    o.then = commit_next;
    o.queue = s.q[0];
    on_done(s.q[0], GPUSYNC_NO_TICKET, &o);
    await_calls(&o, 200);
    close_idle_stage(&s);
    assert_int_equal(calls_of(&o), 200);
}

static void submit_again(outcome *o)
{
    o->answers[0] = either_submit(o->stage->q[0], &(gpusync_submission){TELL(o->next)}, &o->ticket);
    o->answers[1] = gpusync_poll(o->stage->q[0], o->ticket);
    o->answers[2] = calls_of(o->next) ? GPUSYNC_OK : GPUSYNC_NOT_READY;
}

static void test_a_callback_may_submit_and_the_next_comes_after_it(void **state)
{
    unsigned own; /* the first is over in the call */
    (void)state;
    NOT_ON_METAL4("submissions have command buffers");
    for (own = 0; own < 2; own++) {
        outcome told[4];
        unsigned i;
        stage s;
        memset(told, 0, sizeof told);
        open_stage(&s, SOFTMETAL_MANUAL, 1);
        for (i = 0; i < 3; i++) {
            told[i].then = submit_again;
            told[i].stage = &s;
            told[i].next = &told[i + 1];
        }
        if (own) (void)SUBMIT(s.q[0], TELL(&told[0]));
        else (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), TELL(&told[0]));
        finish(&s, 0);
        finish(&s, 0); /* what may have been sent to have a handler run */
        for (i = 0; i < 4; i++) {
            await_call(&told[i]);
            assert_int_equal(calls_of(&told[i]), 1);
            assert_int_equal(told[i].result, GPUSYNC_OK);
            assert_false(told[i].nested);
            assert_false(ran_here(&told[i]));
            if (i == 3) continue;
            assert_ok(told[i].answers[0]);
            assert_ok(told[i].answers[1]); /* it is over: a barrier of nothing */
            assert_int_equal(told[i].answers[2], GPUSYNC_NOT_READY);
        }
        close_stage(&s);
    }
}

static void wait_and_destroy(outcome *o)
{
    gpusync_point point = after(o->stage->q[0], o->ticket);
    o->answers[0] = gpusync_wait(o->stage->q[0], o->ticket, SECONDS(20));
    o->answers[1] = gpusync_timeline_wait(o->stage->a, 1, GPUSYNC_FOREVER, NULL);
    o->answers[2] = gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, NULL, NULL);
    o->answers[3] = gpusync_queue_destroy(o->stage->q[0]);
    o->answers[4] = gpusync_timeline_destroy(o->stage->a);
    o->answers[5] = gpusync_device_destroy(o->stage->device);
    o->answers[6] = gpusync_wait(o->stage->q[0], 1, GPUSYNC_FOREVER); /* is over */
    o->answers[7] = gpusync_timeline_wait(o->stage->b, 1, GPUSYNC_FOREVER, NULL);
}

static void test_a_callback_must_not_wait_for_what_is_not_over_nor_destroy(void **state)
{
    outcome told;
    unsigned i;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    told.then = wait_and_destroy;
    told.stage = &s;
    told.ticket = 2;
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.b, 1)), .flags = SIGNALS_INSIDE, TELL(&told));
    (void)hold_bare(s.q[0], s.a, 1);
    finish(&s, 0);
    assert_int_equal(calls_of(&told), 1);
    for (i = 0; i < 6; i++) assert_int_equal(told.answers[i], GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(told.answers[6]);
    assert_ok(told.answers[7]);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    close_stage(&s);
}

/* ... also one of what was over in the call. */
static void test_a_callback_of_what_was_over_in_the_call_must_not_wait_either(void **state)
{
    outcome told;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("submissions have command buffers");
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    (void)SUBMIT(s.q[0], SIGNALS(at(s.b, 1)));
    finish(&s, 0);
    (void)commit_on(&s, 0);
    told.then = wait_and_destroy;
    told.stage = &s;
    told.ticket = 2;
    (void)SUBMIT(s.q[0], TELL(&told));
    assert_int_equal(calls_of(&told), 1);
    assert_false(ran_here(&told));
    for (i = 0; i < 6; i++) assert_int_equal(told.answers[i], GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(told.answers[6]);
    assert_result(gpusync_wait(s.q[0], 2, MS(1)), GPUSYNC_TIMEOUT); /* outside of it a wait is a wait again */
    finish(&s, 0);
    close_stage(&s);
}

static void signal_and_report(outcome *o)
{
    gpusync_stats stats;
    o->answers[0] = gpusync_timeline_signal(o->stage->a, 1);
    o->answers[1] = gpusync_report(o->stage->device, NULL, 0) > 0 ? GPUSYNC_OK : GPUSYNC_NOT_READY;
    o->answers[2] = gpusync_get_stats(o->stage->q[0], &stats);
    o->answers[3] = gpusync_cancel_held(o->stage->q[0]);
    o->answers[4] = gpusync_timeline_fail(o->stage->b, NULL);
}

static void test_a_callback_may_signal_and_let_held_work_go(void **state)
{
    gpusync_ticket ticket, cancelled, failed;
    outcome told;
    void *buffer;
    unsigned i;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    told.then = signal_and_report;
    told.stage = &s;
    buffer = open_on(&s, 1);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), TELL(&told));
    cancelled = hold_bare(s.q[0], s.a, 2);
    ticket = SUBMIT(s.q[1], BUFFERS(buffer), WAITS(at(s.a, 1)));
    failed = hold_bare(s.q[2], s.b, 1);
    finish(&s, 0);
    assert_int_equal(calls_of(&told), 1);
    for (i = 0; i < 5; i++) assert_ok(told.answers[i]);
    assert_int_equal(status_of(buffer), COMMITTED);
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[1], ticket, 0));
    assert_result(gpusync_wait(s.q[0], cancelled, 0), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_wait(s.q[2], failed, 0), GPUSYNC_ERROR_EXECUTION);
    close_stage(&s);
}

/* A loop that keeps itself going: each callback submits the next frame. */
typedef struct loop {
    gpusync_queue *queue;
    unsigned frames;
    gpusync_result trouble;
} loop;

static void next_frame(void *user, gpusync_result result, const gpusync_error *error)
{
    loop *l = (loop *)user;
    void *buffer = NULL;
    (void)error;
    if (result == GPUSYNC_OK && ++l->frames < 200 / SLOW) {
        result = either_buffer(l->queue, NULL, &buffer);
        if (result == GPUSYNC_OK)
            result = either_submit(l->queue,
                                    &(gpusync_submission){BUFFERS(buffer), .on_complete = next_frame, .user = l}, NULL);
        if (result == GPUSYNC_OK) return;
    }
    l->trouble = result;
    __atomic_store_n(&l->queue, NULL, __ATOMIC_SEQ_CST);
}

static void test_callbacks_that_submit_the_next_frame_keep_a_loop_going(void **state)
{
    loop l;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 1);
    memset(&l, 0, sizeof l);
    l.queue = s.q[0];
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), .on_complete = next_frame, .user = &l);
    while (__atomic_load_n(&l.queue, __ATOMIC_SEQ_CST)) sched_yield();
    assert_ok(l.trouble);
    assert_int_equal(l.frames, 200 / SLOW);
    close_stage(&s);
}

static struct {
    gpusync_queue *queue;
    gpusync_ticket held;
    gpusync_result wait, queue_wait;
    unsigned calls;
} in_callback;

static void wait_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)result;
    (void)error;
    in_callback.wait = gpusync_wait(in_callback.queue, in_callback.held, GPUSYNC_FOREVER);
    in_callback.queue_wait = gpusync_queue_wait(in_callback.queue, MS(1));
    in_callback.calls++;
}

static void test_a_callback_cannot_wait_for_what_is_held(void **state)
{
    gpusync_submission submission;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    memset(&in_callback, 0, sizeof in_callback);
    in_callback.queue = s.q[0];
    in_callback.held = hold_on(s.q[0], s.t[0], 1, NULL);
    memset(&submission, 0, sizeof submission);
    submission.on_complete = wait_in_callback; /* no waits, nothing to do: over within the call */
    leave_bare(&submission, s.q[1], &buffer);
    assert_ok(either_submit(s.q[1], &submission, NULL));
    if (metal4_run()) assert_true(softmetal_settle(SECONDS(20)));
    assert_int_equal(CALLED(in_callback.calls), 1);
    assert_result(in_callback.wait, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_result(in_callback.queue_wait, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    close_idle_stage(&s);
}

/* A callback that submits what ends at once, whose callback does the same: one after the other, none inside another. */
typedef struct cascade {
    gpusync_queue *queue;
    gpusync_timeline *failed;
    unsigned calls, depth, deepest;
} cascade;

static void cascade_on(void *user, gpusync_result result, const gpusync_error *error);

static void cascade_submit(cascade *c)
{
    gpusync_point wait = at(c->failed, 1);
    gpusync_submission s;
    void *buffer;
    memset(&s, 0, sizeof s);
    s.waits = &wait;
    s.wait_count = 1;
    s.on_complete = cascade_on;
    s.user = c;
    leave_bare(&s, c->queue, &buffer);
    assert_ok(either_submit(c->queue, &s, NULL));
}

static void cascade_on(void *user, gpusync_result result, const gpusync_error *error)
{
    cascade *c = (cascade *)user;
    assert_result(result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error->code, 77);
    if (++c->depth > c->deepest) c->deepest = c->depth;
    if (__atomic_add_fetch(&c->calls, 1, __ATOMIC_SEQ_CST) < 1000) cascade_submit(c);
    c->depth--;
}

static void *cascade_body(void *argument)
{
    cascade_submit((cascade *)argument);
    return NULL;
}

static void test_callbacks_that_lead_to_callbacks_run_one_after_the_other(void **state)
{
    cascade c;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 1);
    memset(&c, 0, sizeof c);
    c.queue = s.q[0];
    c.failed = s.t[0];
    fail_with_code_77(s.t[0]);
    on_small_stack(cascade_body, &c);
    while (__atomic_load_n(&c.calls, __ATOMIC_SEQ_CST) < 1000) sched_yield();
    close_idle_stage(&s);
    assert_int_equal(c.calls, 1000);
    assert_int_equal(c.deepest, 1);
}

/* In a callback too; those of the cancelled then wait for their turn on a thread of Metal's. */
static struct {
    gpusync_queue *queue;
    outcome *held;
    long calls_inside;
} cancelling;

static void cancel_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)result;
    (void)error;
    assert_ok(gpusync_cancel_held(cancelling.queue));
    cancelling.calls_inside = calls_of(cancelling.held);
}

static void test_cancel_inside_a_callback_nests_no_callbacks(void **state)
{
    gpusync_submission submission;
    outcome held = {0};
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    hold_on(s.q[0], s.t[0], 1, &held);
    cancelling.queue = s.q[0];
    cancelling.held = &held;
    memset(&submission, 0, sizeof submission);
    submission.on_complete = cancel_in_callback;
    leave_bare(&submission, s.q[1], &buffer);
    assert_ok(either_submit(s.q[1], &submission, NULL));
    assert_true(metal4_run() ? softmetal_settle(SECONDS(20)) : softmetal_dispatched(SECONDS(20)));
    assert_int_equal(cancelling.calls_inside, 0);
    assert_ended(&held, GPUSYNC_ERROR_CANCELLED);
    close_idle_stage(&s);
}

/* A callback of the queue that is destroyed may still do what it likes, with other queues. */
static struct {
    gpusync_queue *own, *other;
    gpusync_result on_own, on_other;
    outcome outcome;
} last_words;

static void submit_last_words(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)result;
    (void)error;
    if (metal4_run()) last_words.on_own = TRY_SUBMIT(last_words.own, NULL, BUFFERS(buffer_of(last_words.own)));
    else last_words.on_own = TRY_SUBMIT(last_words.own, NULL, .flags = 0);
    last_words.on_other = TRY_SUBMIT(last_words.other, NULL, BUFFERS(buffer_of(last_words.other)),
                                     TELL(&last_words.outcome));
}

static void test_a_callback_in_destroy_may_submit_to_other_queues(void **state)
{
    gpusync_submission submission;
    gpusync_point wait;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    memset(&last_words, 0, sizeof last_words);
    last_words.own = s.q[0];
    last_words.other = s.q[1];
    wait = at(s.t[0], 1);
    memset(&submission, 0, sizeof submission);
    submission.waits = &wait;
    submission.wait_count = 1;
    submission.on_complete = submit_last_words;
    leave_bare(&submission, s.q[0], &buffer);
    assert_ok(either_submit(s.q[0], &submission, NULL));
    take_down_queue(&s, 0, false);
    assert_result(last_words.on_own, GPUSYNC_ERROR_DESTROYED);
    assert_ok(last_words.on_other);
    assert_ended(&last_words.outcome, GPUSYNC_OK);
    close_idle_stage(&s);
}

/* ... and may ask its own queue, which says that it goes. Each in turn: all of it is there until destroy returns. */
static void ask_its_own_queue(outcome *o)
{
    gpusync_queue *q = o->queue;
    gpusync_wait_options handlers = {.handlers = true};
    gpusync_point point = gpusync_at_ticket(q, o->ticket);
    gpusync_ticket_info info;
    gpusync_error error;
    uint64_t cursor = 0;
    void *object = metal_buffer_new(o->stage->rig.metal_device, 16);
    char text[100];
    answer(o, gpusync_poll(q, o->ticket));
    answer(o, gpusync_poll(q, GPUSYNC_EVERYTHING));
    answer(o, gpusync_get_info(q, o->ticket, &info));
    answer(o, gpusync_wait(q, o->ticket, GPUSYNC_FOREVER));
    answer(o, gpusync_wait_ex(q, o->ticket, GPUSYNC_FOREVER, &handlers));
    answer(o, gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
    answer(o, gpusync_queue_wait(q, GPUSYNC_FOREVER));
    answer(o, gpusync_on_done(point, remember, o->next));
    answer(o, gpusync_release_after(point, object));
    metal_release(object);
    answer(o, gpusync_cancel_held(q));
    must(gpusync_queue_report(q, text, sizeof text) == 0, "a queue that goes has no report");
    must(gpusync_in_flight(q) <= 2, "in flight");
    must(gpusync_is_done(q, o->ticket) == (o->result == GPUSYNC_OK), "is_done");
    if (o->result == GPUSYNC_OK) must(gpusync_next_error(q, &cursor, &error) == GPUSYNC_NOT_READY, "next_error");
}

enum { ENDED_BEFORE, ENDS_MEANWHILE, LEFT_TO_ITSELF, WAYS_TO_GO };

static void *finish_meanwhile(void *metal)
{
    softmetal_finish_queue(metal);
    return NULL;
}

static void test_a_callback_in_destroy_may_ask_its_own_queue(void **state)
{
    gpusync_callback_mode mode;
    int way, submitted;
    size_t i;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++)
        for (way = 0; way < WAYS_TO_GO; way++)
            for (submitted = 0; submitted < 2; submitted++) {
                outcome o[2] = {0}, never = {0};
                pthread_t other = 0;
                void *metal;
                stage s;
                open_callback_stage(&s, SOFTMETAL_MANUAL, mode);
                softmetal_set_dispatch_threads(0); /* destroy calls back */
                metal = metal_retain(s.metal[1]);
                o[0].then = o[1].then = ask_its_own_queue;
                o[0].stage = o[1].stage = &s;
                o[0].queue = o[1].queue = s.q[1];
                o[0].next = o[1].next = &never;
                if (submitted) o[0].ticket = SUBMIT(s.q[1], BUFFERS(buffer_of(s.q[1])), TELL(&o[0]));
                else on_done(s.q[1], o[0].ticket = commit_to(s.q[1], buffer_of(s.q[1])), &o[0]);
                o[1].ticket = commit_to(s.q[1], buffer_of(s.q[1]));
                on_done(s.q[1], o[1].ticket, &o[1]);
                if (way == ENDED_BEFORE) softmetal_finish_queue(metal);
                if (way == ENDS_MEANWHILE) other = start(finish_meanwhile, metal);
                must_return_within(60);
                take_down_queue(&s, 1, way == LEFT_TO_ITSELF);
                has_returned();
                if (other) join(other);
                softmetal_finish_queue(metal);
                metal_release(metal);
                assert_int_equal(calls_so_far(&o[0]), 1);
                assert_int_equal(calls_so_far(&o[1]), 1);
                for (i = 0; i < 2 * o[0].answered; i++)
                    assert_result(o[i % 2].answers[i / 2], GPUSYNC_ERROR_DESTROYED);
                assert_int_equal(o[0].answered, o[1].answered);
                assert_true(ran_here(&o[0]));
                softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
                settle(&s);
                assert_int_equal(calls_of(&never), 0);
                close_idle_stage(&s);
            }
}

/* -- two devices ------------------------------------------------------------------------------------------------- */

typedef struct second_device {
    memory_log memory;
    gpusync_allocator allocator;
    gpusync_device *device;
    gpusync_queue *queue;
} second_device;

static void open_second(second_device *two)
{
    gpusync_device_desc desc;
    memset(two, 0, sizeof *two);
    memset(&desc, 0, sizeof desc);
    two->allocator.allocate = memory_allocate;
    two->allocator.release = memory_release;
    two->allocator.user = &two->memory;
    desc.allocator = &two->allocator;
    assert_ok(gpusync_device_create(&desc, &two->device));
    two->queue = queue_new(two->device);
}

static void close_second(second_device *two)
{
    assert_ok(gpusync_queue_destroy(two->queue));
    assert_ok(gpusync_device_destroy(two->device));
    assert_int_equal(two->memory.live, 0);
}

static void register_on_the_other_device(outcome *o)
{
    answer(o, gpusync_on_done(gpusync_at_ticket(o->queue, GPUSYNC_NO_TICKET), remember, o->next));
}

/* In a callback of one device another device is called: what is due there is done, and its memory stays its own. */
static void test_a_callback_of_one_device_registers_with_another(void **state)
{
    static void (*const places[])(stage *, outcome *) = {after_a_handler, at_once, in_a_signal, in_destroy};
    size_t i, k;
    (void)state;
    for (i = 0; i < LENGTH(places); i++) {
        outcome o = {0}, next = {0}, more[100];
        second_device two;
        stage s;
        open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
        open_second(&two);
        o.then = register_on_the_other_device;
        o.queue = two.queue;
        o.next = &next;
        places[i](&s, &o);
        assert_int_equal(calls_of(&o), 1);
        assert_ok(o.answers[0]);
        softmetal_finish_queue(gpusync_queue_metal(two.queue)); /* a sentinel, if it took one */
        assert_int_equal(calls_of(&next), 1);
        close_second(&two);
        memset(more, 0, sizeof more);
        for (k = 0; k < LENGTH(more); k++) on_value(s.t[0] ? s.t[0] : NULL, 5000, &more[k]);
        assert_ok(gpusync_timeline_signal(s.t[0], 5000));
        assert_in_order(more, LENGTH(more));
        close_idle_stage(&s);
    }
}

static void stay_and_wait(outcome *o)
{
    gate_wait(o->gate); /* it is here */
    gate_wait(o->gate);
    answer(o, gpusync_wait(o->queue, o->ticket, GPUSYNC_FOREVER));
}

/* Callbacks of two devices run at once, and the first to begin is the first to end. The other is known as one still. */
static void test_callbacks_of_two_devices_run_at_once(void **state)
{
    outcome o[2] = {{0}, {0}};
    second_device two;
    gate gates[2];
    gpusync_ticket ticket;
    stage s;
    int i;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    open_second(&two);
    ticket = commit_on(&s, 0);
    for (i = 0; i < 2; i++) {
        gate_init(&gates[i], 2);
        o[i].then = stay_and_wait;
        o[i].gate = &gates[i];
        o[i].queue = s.q[0];
        o[i].ticket = ticket;
        on_done(i ? two.queue : s.q[0], GPUSYNC_NO_TICKET, &o[i]);
        gate_wait(&gates[i]);
    }
    for (i = 0; i < 2; i++) {
        gate_wait(&gates[i]);
        while (calls_so_far(&o[i]) < 1) sched_yield();
        assert_int_equal(o[i].answered, 1);
        assert_result(o[i].answers[0], GPUSYNC_ERROR_WOULD_DEADLOCK);
    }
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    for (i = 0; i < 2; i++) gate_destroy(&gates[i]);
    close_second(&two);
    close_idle_stage(&s);
}

static void ask_about_what_was_given_up(outcome *o)
{
    const gpusync_point point = gpusync_at_ticket(o->queue, o->ticket);
    gpusync_ticket_info info;
    answer(o, gpusync_poll(o->queue, o->ticket));
    answer(o, gpusync_get_info(o->queue, o->ticket, &info));
    answer(o, gpusync_wait(o->queue, o->ticket, GPUSYNC_FOREVER));
    answer(o, gpusync_queue_wait(o->queue, GPUSYNC_FOREVER));
    answer(o, gpusync_device_wait(o->stage->device, GPUSYNC_FOREVER, NULL));
    answer(o, gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
}

/* All that is over: no wait has to wait. One that is told of the loss before that would have to. */
static void test_inside_a_callback_of_given_up_work_no_wait_would_deadlock(void **state)
{
    outcome o = {0}, early = {0};
    void *failing;
    unsigned i;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    fail_with_the_device(failing = buffer_of(s.q[1]));
    o.stage = early.stage = &s;
    o.queue = early.queue = s.q[0];
    o.then = early.then = ask_about_what_was_given_up;
    o.ticket = early.ticket = commit_to(s.q[0], buffer_of(s.q[0]));
    on_done(s.q[0], o.ticket, &o);
    on_done(s.q[1], commit_to(s.q[1], failing), &early);
    softmetal_finish(failing);
    assert_ended(&early, GPUSYNC_ERROR_EXECUTION);
    for (i = 0; i < early.answered; i++)
        assert_result(early.answers[i], i < 2 ? GPUSYNC_NOT_READY : GPUSYNC_ERROR_WOULD_DEADLOCK);
    probe_give_up_lost(s.device);
    assert_ended(&o, GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(o.answered, 6);
    for (i = 0; i < o.answered; i++) assert_result(o.answers[i], GPUSYNC_ERROR_DEVICE_LOST);
    finish_stage(&s);
    close_idle_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_callback_may_do_all_but_wait_and_destroy),
        cmocka_unit_test(test_a_callback_that_signals_another_timeline_twice_has_both_values_told),
        cmocka_unit_test(test_what_a_callback_autoreleases_goes_when_it_is_over),
        cmocka_unit_test(test_a_long_chain_of_callbacks_needs_no_stack),
        cmocka_unit_test(test_callbacks_that_commit_keep_a_queue_going),
        cmocka_unit_test(test_a_callback_may_submit_and_the_next_comes_after_it),
        cmocka_unit_test(test_a_callback_must_not_wait_for_what_is_not_over_nor_destroy),
        cmocka_unit_test(test_a_callback_of_what_was_over_in_the_call_must_not_wait_either),
        cmocka_unit_test(test_a_callback_may_signal_and_let_held_work_go),
        cmocka_unit_test(test_callbacks_that_submit_the_next_frame_keep_a_loop_going),
        cmocka_unit_test(test_a_callback_cannot_wait_for_what_is_held),
        cmocka_unit_test(test_callbacks_that_lead_to_callbacks_run_one_after_the_other),
        cmocka_unit_test(test_cancel_inside_a_callback_nests_no_callbacks),
        cmocka_unit_test(test_a_callback_in_destroy_may_submit_to_other_queues),
        cmocka_unit_test(test_a_callback_in_destroy_may_ask_its_own_queue),
        cmocka_unit_test(test_a_callback_of_one_device_registers_with_another),
        cmocka_unit_test(test_callbacks_of_two_devices_run_at_once),
        cmocka_unit_test(test_inside_a_callback_of_given_up_work_no_wait_would_deadlock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
