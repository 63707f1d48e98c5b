/* test_submit.c - submissions as a program sees them: what goes to the device when, in which order, at what price, and
   what becomes of it when something fails. Bytes in real buffers tell whether the order held. */
#define GPUSYNC_IMPLEMENTATION
#include "probe.h"
#include "stage.h"

#if defined(__SANITIZE_THREAD__)
#define SLOW 20u
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLOW 20u
#endif
#endif
#ifndef SLOW
#define SLOW 1u
#endif

/* == what it costs ============================================================================================= */

static void test_waits_for_what_is_reached_cost_nothing(void **state)
{
    gpusync_ticket ended, ticket;
    uint64_t made, waits;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    assert_ok(gpusync_timeline_signal(s.a, 5));
    ended = commit_on(&s, 1);
    finish(&s, 1);
    buffer = open_on(&s, 0);
    made = made_so_far();
    waits = waits_so_far();
    ticket = SUBMIT(s.q[0], BUFFERS(buffer),
                    WAITS(at(s.a, 5), at(s.a, 3), at(s.b, 0), after(s.q[1], ended), after(s.q[0], GPUSYNC_NO_TICKET)));
    assert_count("commandBuffer", made, 0);
    assert_count("encodeWaitForEvent:value:", waits, 0);
    assert_int_equal(metal_status(buffer), COMMITTED);
    assert_int_equal(stats_of(s.q[0]).waits_skipped, 5);
    assert_int_equal(stats_of(s.q[0]).buffers_saved, 1);
    assert_int_equal(stats_of(s.q[0]).held, 0);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

static void test_of_several_waits_only_those_not_reached_are_encoded(void **state)
{
    gpusync_ticket ticket;
    uint64_t made, waits;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    assert_ok(gpusync_timeline_signal(s.a, 5));
    (void)SUBMIT(s.q[1], SIGNALS(at(s.b, 1)));
    buffer = open_on(&s, 0);
    made = made_so_far();
    waits = waits_so_far();
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 5), at(s.b, 1), at(s.a, 1)));
    assert_count("commandBuffer", made, 1);
    assert_count("encodeWaitForEvent:value:", waits, 1);
    assert_int_equal(stats_of(s.q[0]).waits_skipped, 2);
    assert_int_equal(stats_of(s.q[0]).buffers_saved, 0);
    finish(&s, 1);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

/* What was reached while the submission was held needs no wait either: the command buffer for it is not committed. */
static void test_a_wait_that_is_reached_while_held_is_not_encoded(void **state)
{
    gpusync_ticket ticket;
    uint64_t waits;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = open_on(&s, 0);
    waits = waits_so_far();
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 1)));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_count("encodeWaitForEvent:value:", waits, 0);
    assert_int_equal(stats_of(s.q[0]).buffers_saved, 1);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    close_stage(&s);
}

/* Every shape of a submission: what it makes, when it ends, and that its signal comes. */
static void test_every_shape_ends_and_makes_no_more_command_buffers_than_it_needs(void **state)
{
    static const struct shape {
        bool waits, works, signals;
        uint32_t flags;
        unsigned made;
    } shapes[] = {
        {false, false, false, 0, 0},
        {true, false, false, 0, 1},
        {false, false, true, 0, 1},
        {true, false, true, 0, 1},
        {false, true, false, 0, 0},
        {true, true, false, 0, 1},
        {false, true, true, 0, 1},
        {true, true, true, 0, 2},
        {false, true, true, SIGNALS_INSIDE, 0},
        {true, true, true, SIGNALS_INSIDE, 1},
        {true, true, false, SIGNALS_INSIDE, 1},
        {false, false, true, SIGNALS_INSIDE, 1},
        {true, false, true, SIGNALS_INSIDE, 1},
        {false, false, false, GPUSYNC_STRICT, 0},
        {true, false, false, GPUSYNC_STRICT, 0},
        {false, false, true, GPUSYNC_STRICT, 0},
        {true, false, true, GPUSYNC_STRICT, 0},
        {true, true, false, GPUSYNC_STRICT, 0},
        {false, true, true, GPUSYNC_STRICT, 0},
        {true, true, true, GPUSYNC_STRICT, 0},
        {true, true, true, GPUSYNC_STRICT | SIGNALS_INSIDE, 0},
        {true, true, true, GPUSYNC_UNORDERED, 2},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *shape = &shapes[i];
        bool at_once = !shape->works && (shape->flags & GPUSYNC_STRICT ? !shape->waits : shape->made == 0);
        gpusync_submission submission;
        gpusync_point wait, signal;
        gpusync_ticket ticket = 0, other;
        void *buffers[2] = {NULL, NULL};
        outcome told;
        uint64_t made;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        memset(&submission, 0, sizeof submission);
        memset(&told, 0, sizeof told);
        other = SUBMIT(s.q[1], SIGNALS(at(s.b, 7)));
        wait = at(s.b, 7);
        signal = at(s.a, 3);
        submission.waits = &wait;
        submission.wait_count = shape->waits;
        submission.signals = &signal;
        submission.signal_count = shape->signals;
        submission.command_buffers = buffers;
        submission.command_buffer_count = shape->works ? 2 : 0;
        submission.flags = shape->flags;
        submission.on_complete = remember;
        submission.user = &told;
        if (shape->works) buffers[0] = open_on(&s, 0), buffers[1] = open_on(&s, 0);
        made = made_so_far();
        assert_ok(submit_as_told(s.q[0], &submission, &ticket));
        assert_count("commandBuffer", made, shape->made);
        assert_int_equal(ticket, 1);
        assert_result(gpusync_wait(s.q[0], ticket, 0), at_once ? GPUSYNC_OK : GPUSYNC_TIMEOUT);
        assert_int_equal(calls_of(&told), at_once);
        if (shape->waits) assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
        finish(&s, 1);
        finish(&s, 0);
        assert_ok(gpusync_wait(s.q[0], ticket, 0));
        assert_ok(gpusync_wait(s.q[1], other, 0));
        assert_int_equal(value_of(s.a), shape->signals ? 3 : 0);
        assert_int_equal(raw_of(s.a), shape->signals ? 3 : 0);
        assert_int_equal(calls_of(&told), 1);
        assert_int_equal(told.result, GPUSYNC_OK);
        assert_false(told.has_error);
        assert_true(gpusync_is_idle(s.q[0]));
        assert_int_equal(stats_of(s.q[0]).commits, 1);
        assert_int_equal(stats_of(s.q[0]).completions, 1);
        assert_int_equal(stats_of(s.q[0]).failures, 0);
        assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
        close_stage(&s);
    }
}

static void test_a_submission_of_nothing_waits_for_nobody(void **state)
{
    gpusync_ticket before, ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    before = commit_on(&s, 0);
    ticket = SUBMIT(s.q[0], .flags = 0);
    assert_int_equal(ticket, before + 1);
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_result(gpusync_poll(s.q[0], before), GPUSYNC_NOT_READY);
    assert_false(gpusync_is_done(s.q[0], ticket)); /* the row of tickets has a gap */
    finish(&s, 0);
    assert_true(gpusync_is_done(s.q[0], ticket));
    close_stage(&s);
}

static void test_several_command_buffers_run_in_their_order_and_end_as_one(void **state)
{
    gpusync_ticket ticket;
    void *memory, *buffers[20];
    size_t i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    memory = memory_of(&s, 24);
    bytes_of(memory)[0] = 7;
    for (i = 0; i < 20; i++) {
        buffers[i] = open_on(&s, 0);
        copy(buffers[i], memory, i, memory, i + 1);
    }
    ticket = SUBMIT(s.q[0], .command_buffers = buffers, .command_buffer_count = 20, SIGNALS(at(s.a, 1)));
    for (i = 0; i < 20; i++) {
        softmetal_finish(buffers[i]);
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
        assert_int_equal(value_of(s.a), 0);
    }
    finish(&s, 0); /* the signal's */
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_int_equal(value_of(s.a), 1);
    assert_int_equal(bytes_of(memory)[20], 7);
    metal_release(memory);
    close_stage(&s);
}

static void test_command_buffers_may_come_from_anywhere(void **state)
{
    gpusync_ticket ticket;
    void *ours, *theirs, *memory;
    unsigned long owners;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    memory = memory_of(&s, 4);
    bytes_of(memory)[0] = 7;
    ours = open_on(&s, 0);
    theirs = metal_queue_command_buffer(s.metal[0]);
    copy(theirs, memory, 0, memory, 1);
    copy(ours, memory, 1, memory, 2);
    owners = softmetal_retain_count(theirs);
    ticket = SUBMIT(s.q[0], BUFFERS(theirs, ours), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE);
    assert_true(softmetal_retain_count(theirs) > owners);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(bytes_of(memory)[2], 7);
    assert_int_equal(softmetal_retain_count(theirs), owners);
    metal_release(theirs);
    metal_release(memory);
    close_stage(&s);
}

static void test_many_waits_and_signals_of_one_submission(void **state)
{
    enum { MANY = 30 };
    gpusync_timeline *timelines[MANY];
    gpusync_point points[MANY], signals[MANY];
    gpusync_ticket ticket;
    size_t i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < MANY; i++) {
        timelines[i] = timeline_named(s.device, NULL);
        points[i] = at(timelines[i], 1);
        signals[i] = at(timelines[i], 2);
    }
    ticket = SUBMIT(s.q[0], .waits = points, .wait_count = MANY, .signals = signals, .signal_count = MANY,
                    BUFFERS(open_on(&s, 0)));
    for (i = 0; i < MANY; i++) {
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
        assert_int_equal(softmetal_outstanding(s.metal[0]), 3);
        assert_ok(gpusync_timeline_signal(timelines[i], 1));
    }
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_ok(gpusync_wait_many(signals, MANY, GPUSYNC_WAIT_ALL, 0, NULL, NULL));
    for (i = 0; i < MANY; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    close_stage(&s);
}

/* == waits on the host ========================================================================================= */

static void test_a_wait_with_a_limit_for_a_promised_value_ends_there_and_can_be_repeated(void **state)
{
    static const gpusync_wait_mode modes[] = {GPUSYNC_WAIT_SPIN_THEN_HANDLER, GPUSYNC_WAIT_HANDLER,
                                              GPUSYNC_WAIT_BLOCKING};
    unsigned round;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (round = 0; round < 3; round++) {
        gpusync_wait_options options;
        gpusync_ticket ticket;
        uint64_t begin, value = round + 1u;
        memset(&options, 0, sizeof options);
        options.mode = modes[round];
        ticket = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, value)));
        assert_result(gpusync_timeline_wait(s.a, value, 0, &options), GPUSYNC_TIMEOUT);
        begin = gpusync_now_ns();
        assert_result(gpusync_timeline_wait(s.a, value, MS(3), &options), GPUSYNC_TIMEOUT);
        assert_true(gpusync_now_ns() - begin >= MS(3));
        assert_result(gpusync_wait_ex(s.q[0], ticket, MS(1), &options), GPUSYNC_TIMEOUT);
        assert_int_equal(value_of(s.a), value - 1);
        finish(&s, 0);
        assert_ok(gpusync_timeline_wait(s.a, value, 0, &options));
        assert_int_equal(value_of(s.a), value);
    }
    close_stage(&s);
}

/* The event has the value long before the promise is kept. */
static void test_a_promised_value_is_not_reached_before_its_submission_has_ended(void **state)
{
    gpusync_ticket ticket;
    void *buffer, *signal;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 4)));
    signal = softmetal_last_buffer(s.metal[0]);
    softmetal_finish(signal); /* shares nothing with the work, and overtakes it */
    assert_int_equal(raw_of(s.a), 4);
    assert_int_equal(value_of(s.a), 0);
    assert_result(gpusync_timeline_wait(s.a, 4, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_timeline_wait(s.a, 1, 0, NULL), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_int_equal(value_of(s.a), 4);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

static void test_a_value_counts_only_when_every_promise_below_it_is_kept(void **state)
{
    void *low, *high;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    high = open_on(&s, 1);
    low = open_on(&s, 0);
    (void)SUBMIT(s.q[1], BUFFERS(high), SIGNALS(at(s.a, 5)), .flags = SIGNALS_INSIDE);
    (void)SUBMIT(s.q[0], BUFFERS(low), SIGNALS(at(s.a, 3)), .flags = SIGNALS_INSIDE);
    softmetal_finish(high);
    assert_int_equal(value_of(s.a), 2);
    assert_result(gpusync_timeline_wait(s.a, 3, 0, NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_signal(s.a, 9));
    assert_int_equal(value_of(s.a), 2);
    softmetal_finish(low);
    assert_int_equal(value_of(s.a), 9);
    close_stage(&s);
}

static void test_waits_for_any_and_all_of_promised_values_and_tickets(void **state)
{
    gpusync_ticket third, fourth;
    gpusync_point points[4];
    size_t which = 9;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.b, 1)));
    third = SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)));
    fourth = SUBMIT(s.q[3], WAITS(after(s.q[2], third)));
    points[0] = at(s.a, 1);
    points[1] = at(s.b, 1);
    points[2] = after(s.q[2], third);
    points[3] = after(s.q[3], fourth);
    assert_result(gpusync_wait_many(points, 4, GPUSYNC_WAIT_ANY, MS(1), NULL, &which), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait_many(points, 4, GPUSYNC_WAIT_ALL, MS(1), NULL, &which), GPUSYNC_TIMEOUT);
    finish(&s, 2);
    assert_ok(gpusync_wait_many(points, 4, GPUSYNC_WAIT_ANY, 0, NULL, &which));
    assert_int_equal(which, 2);
    finish(&s, 1);
    assert_ok(gpusync_wait_many(points, 4, GPUSYNC_WAIT_ANY, 0, NULL, &which));
    assert_int_equal(which, 1);
    finish(&s, 3);
    assert_result(gpusync_wait_many(points, 4, GPUSYNC_WAIT_ALL, MS(1), NULL, &which), GPUSYNC_TIMEOUT);
    finish(&s, 0);
    assert_ok(gpusync_wait_many(points, 4, GPUSYNC_WAIT_ALL, 0, NULL, &which));
    assert_int_equal(which, 4);
    close_stage(&s);
}

static void test_waits_for_any_and_all_where_some_fail(void **state)
{
    gpusync_point points[3];
    size_t which = 9;
    void *failing;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    failing = open_on(&s, 1);
    softmetal_fail(failing, NULL, 8, NULL);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(failing), SIGNALS(at(s.b, 1)));
    points[0] = at(s.a, 1);
    points[1] = at(s.b, 1);
    points[2] = after(s.q[2], SUBMIT(s.q[2], WAITS(at(s.b, 1))));
    finish(&s, 1);
    assert_result(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ALL, 0, NULL, &which), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(which, 1);
    assert_result(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ANY, 0, NULL, &which), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(which, 1);
    finish(&s, 0);
    assert_ok(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ANY, 0, NULL, &which));
    assert_int_equal(which, 0);
    finish(&s, 2);
    assert_result(gpusync_wait_many(points + 2, 1, GPUSYNC_WAIT_ALL, 0, NULL, &which), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ALL, 0, NULL, &which), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(which, 1);
    close_stage(&s);
}

static void test_sleeping_waits_for_any_and_all_are_woken_by_the_end_of_submissions(void **state)
{
    gpusync_point points[2];
    many_job any, all;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    points[0] = at(s.a, 1);
    points[1] = after(s.q[1], SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.b, 1))));
    many_job_start(&any, points, 2, GPUSYNC_WAIT_ANY, SECONDS(20));
    many_job_start(&all, points, 2, GPUSYNC_WAIT_ALL, SECONDS(20));
    await_sleepers(s.device, 4);
    finish(&s, 0);
    assert_ok(many_job_join(&any));
    assert_int_equal(any.which, 0);
    assert_ok(gpusync_timeline_signal(s.b, 1));
    finish(&s, 1);
    assert_ok(many_job_join(&all));
    assert_int_equal(all.which, 2);
    close_stage(&s);
}

/* Who raises it does not matter to who sleeps: a thread, the device, another queue. */
static void signal_by_host(stage *s) { assert_ok(gpusync_timeline_signal(s->a, 1)); }

static void signal_by_work(stage *s)
{
    (void)SUBMIT(s->q[0], BUFFERS(open_on(s, 0)), SIGNALS(at(s->a, 1)), .flags = SIGNALS_INSIDE);
    finish(s, 0);
}

static void signal_by_barrier(stage *s)
{
    (void)SUBMIT(s->q[1], SIGNALS(at(s->a, 1)));
    finish(s, 1);
}

static void signal_by_strict_barrier(stage *s)
{
    (void)SUBMIT(s->q[1], SIGNALS(at(s->a, 1)), .flags = GPUSYNC_STRICT);
}

static void signal_by_larger_value(stage *s)
{
    (void)SUBMIT(s->q[1], SIGNALS(at(s->a, 1000)));
    finish(s, 1);
}

static void signal_by_others(stage *s)
{
    uint64_t base;
    void *event = gpusync_timeline_metal(s->a, &base);
    void *buffer = metal_queue_command_buffer(s->metal[1]);
    assert_ok(gpusync_timeline_expect(s->a, 1));
    metal_encode_signal(buffer, event, base + 1);
    metal_commit(buffer);
    finish(s, 1);
    metal_release(buffer);
}

static void test_it_does_not_matter_who_signals(void **state)
{
    static void (*const ways[])(stage *) = {signal_by_host,           signal_by_work,         signal_by_barrier,
                                            signal_by_strict_barrier, signal_by_larger_value, signal_by_others};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        gpusync_ticket on_device, on_host;
        value_job sleeper;
        void *buffers[2];
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 4);
        buffers[0] = open_on(&s, 2);
        buffers[1] = open_on(&s, 3);
        on_device = SUBMIT(s.q[2], BUFFERS(buffers[0]), WAITS(at(s.a, 1)));
        on_host = SUBMIT(s.q[3], BUFFERS(buffers[1]), WAITS(at(s.a, 1)), .flags = GPUSYNC_STRICT);
        value_job_start(&sleeper, s.a, 1, SECONDS(20));
        await_sleepers(s.device, 1);
        assert_int_equal(metal_status(buffers[0]), NOT_ENQUEUED);
        assert_int_equal(metal_status(buffers[1]), NOT_ENQUEUED);
        ways[i](&s);
        assert_ok(value_job_join(&sleeper));
        await_status(buffers[0], COMMITTED);
        await_status(buffers[1], COMMITTED);
        finish(&s, 2);
        finish(&s, 3);
        assert_ok(gpusync_wait(s.q[2], on_device, 0));
        assert_ok(gpusync_wait(s.q[3], on_host, 0));
        close_stage(&s);
    }
}

/* == waits before their signals ================================================================================ */

static void test_a_wait_that_nobody_has_promised_is_held_until_the_host_signals(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 2)), SIGNALS(at(s.b, 1)));
    assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    assert_false(gpusync_is_idle(s.q[0]));
    assert_int_equal(stats_of(s.q[0]).held, 1);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 2));
    assert_int_equal(metal_status(buffer), COMMITTED); /* when the call returns */
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(value_of(s.b), 1);
    close_stage(&s);
}

static void test_a_held_submission_goes_as_soon_as_its_signal_is_on_the_way(void **state)
{
    gpusync_ticket ticket;
    void *buffer, *producer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = open_on(&s, 0);
    producer = open_on(&s, 1);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 2)));
    assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
    (void)SUBMIT(s.q[1], BUFFERS(producer), SIGNALS(at(s.a, 5)));
    assert_int_equal(metal_status(buffer), COMMITTED);
    assert_int_equal(metal_status(producer), COMMITTED); /* no more than that */
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    finish(&s, 1);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

static void test_a_strict_submission_is_held_until_its_signal_has_come(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 1)), .flags = GPUSYNC_STRICT);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 1)), .flags = GPUSYNC_STRICT);
    assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
    assert_int_equal(raw_of(s.a), 0);
    finish(&s, 1);
    assert_int_equal(raw_of(s.a), 1);
    assert_int_equal(metal_status(buffer), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

static void test_a_strict_submission_signals_when_all_of_it_has_ended(void **state)
{
    uint64_t signals;
    void *buffers[2];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffers[0] = open_on(&s, 0);
    buffers[1] = open_on(&s, 0);
    signals = softmetal_message_count("encodeSignalEvent:value:");
    (void)SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1]), SIGNALS(at(s.a, 1)),
                 .flags = GPUSYNC_STRICT);
    assert_count("encodeSignalEvent:value:", signals, 0);
    softmetal_finish(buffers[1]); /* overtakes the other */
    assert_int_equal(raw_of(s.a), 0);
    softmetal_finish(buffers[0]);
    assert_int_equal(raw_of(s.a), 1);
    close_stage(&s);
}

static void test_a_signal_lets_a_whole_chain_of_held_submissions_go(void **state)
{
    gpusync_ticket tickets[4];
    void *buffers[4];
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    for (i = 0; i < 4; i++) buffers[i] = open_on(&s, i);
    tickets[0] = SUBMIT(s.q[0], BUFFERS(buffers[0]), WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)));
    tickets[1] = SUBMIT(s.q[1], BUFFERS(buffers[1]), WAITS(at(s.b, 1)));
    tickets[2] = SUBMIT(s.q[2], BUFFERS(buffers[2]), WAITS(after(s.q[1], tickets[1])), SIGNALS(at(s.a, 2)));
    tickets[3] = SUBMIT(s.q[3], BUFFERS(buffers[3]), WAITS(at(s.a, 2)));
    for (i = 0; i < 4; i++) assert_int_equal(metal_status(buffers[i]), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    for (i = 0; i < 4; i++) assert_int_equal(metal_status(buffers[i]), COMMITTED);
    for (i = 0; i < 4; i++) finish(&s, i);
    for (i = 0; i < 4; i++) assert_ok(gpusync_wait(s.q[i], tickets[i], 0));
    close_stage(&s);
}

static void test_what_comes_later_lines_up_behind_what_is_held(void **state)
{
    void *held, *plain, *submitted, *passing, *tracked;
    gpusync_ticket tickets[5];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    held = open_on(&s, 0);
    plain = open_on(&s, 0);
    submitted = open_on(&s, 0);
    passing = open_on(&s, 0);
    tracked = metal_queue_command_buffer(s.metal[0]);
    tickets[0] = SUBMIT(s.q[0], BUFFERS(held), WAITS(at(s.a, 1)));
    tickets[1] = commit_to(s.q[0], plain);
    tickets[2] = SUBMIT(s.q[0], BUFFERS(submitted));
    tickets[3] = SUBMIT(s.q[0], BUFFERS(passing), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_track(s.q[0], tracked, &tickets[4]));
    metal_commit(tracked);
    assert_int_equal(stats_of(s.q[0]).held, 3);
    assert_int_equal(metal_status(plain), NOT_ENQUEUED);
    assert_int_equal(metal_status(submitted), NOT_ENQUEUED);
    softmetal_finish(passing);
    softmetal_finish(tracked);
    assert_ok(gpusync_poll(s.q[0], tickets[3]));
    assert_ok(gpusync_poll(s.q[0], tickets[4]));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(metal_status(held), COMMITTED);
    assert_int_equal(metal_status(plain), COMMITTED);
    assert_int_equal(metal_status(submitted), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    metal_release(tracked);
    close_stage(&s);
}

static void test_an_unordered_submission_is_passed_while_it_is_held(void **state)
{
    gpusync_ticket ticket;
    void *held, *plain;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    held = open_on(&s, 0);
    plain = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(held), WAITS(at(s.a, 1)), .flags = GPUSYNC_UNORDERED);
    (void)commit_to(s.q[0], plain);
    assert_int_equal(metal_status(plain), COMMITTED);
    assert_int_equal(metal_status(held), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

/* What is ready waits for its turn, unless it is unordered or only unordered work stands before it. */
static void test_held_work_goes_in_the_order_of_the_queue(void **state)
{
    enum { FIRST, LOOSE, SECOND, LATER };
    static const uint32_t flags[] = {0, GPUSYNC_UNORDERED, 0, GPUSYNC_UNORDERED};
    void *buffers[4];
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 4; i++) buffers[i] = open_on(&s, 0);
    for (i = 0; i < 4; i++) /* b@3 before b@2: the last is ready before the one in front of it */
        (void)SUBMIT(s.q[0], BUFFERS(buffers[i]), WAITS(i == FIRST ? at(s.a, 1) : at(s.b, 4 - i)), .flags = flags[i]);
    assert_ok(gpusync_timeline_signal(s.b, 2));
    assert_int_equal(metal_status(buffers[FIRST]), NOT_ENQUEUED);
    assert_int_equal(metal_status(buffers[LOOSE]), NOT_ENQUEUED);
    assert_int_equal(metal_status(buffers[SECOND]), NOT_ENQUEUED); /* ready, but behind the first */
    assert_int_equal(metal_status(buffers[LATER]), COMMITTED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(metal_status(buffers[FIRST]), COMMITTED);
    assert_int_equal(metal_status(buffers[LOOSE]), NOT_ENQUEUED);
    assert_int_equal(metal_status(buffers[SECOND]), COMMITTED); /* past what is unordered */
    assert_ok(gpusync_timeline_signal(s.b, 3));
    assert_int_equal(metal_status(buffers[LOOSE]), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    close_stage(&s);
}

static void test_cancelling_ends_all_that_is_held_and_nothing_else(void **state)
{
    gpusync_ticket running, held, behind;
    void *buffers[2];
    outcome told;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    running = commit_on(&s, 0);
    buffers[0] = open_on(&s, 0);
    buffers[1] = open_on(&s, 0);
    held = SUBMIT(s.q[0], BUFFERS(buffers[0]), WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)), TELL(&told), .label = "held");
    behind = commit_to(s.q[0], buffers[1]);
    assert_ok(gpusync_cancel_held(s.q[0]));
    assert_int_equal(calls_of(&told), 1);
    assert_false(ran_here(&told));
    assert_int_equal(told.result, GPUSYNC_ERROR_CANCELLED);
    assert_true(told.has_error);
    assert_int_equal(told.error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_int_equal(told.error.ticket, held);
    assert_string_equal(told.error.label, "held");
    assert_string_equal(told.error.queue_label, "first");
    assert_result(gpusync_wait(s.q[0], held, 0), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_wait(s.q[0], behind, 0), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_timeline_wait(s.b, 1, 0, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(value_of(s.a), 0);
    assert_int_equal(softmetal_live("command_buffer"), 1);
    assert_result(gpusync_poll(s.q[0], running), GPUSYNC_NOT_READY);
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], running));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    assert_ok(gpusync_cancel_held(s.q[0])); /* nothing is held: nothing happens */
    assert_int_equal(calls_of(&told), 1);
    close_stage(&s);
}

static void test_destroying_a_timeline_ends_what_is_held_for_a_value_nobody_has_promised(void **state)
{
    gpusync_ticket held, going;
    outcome told;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    (void)SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)), SIGNALS(at(s.a, 1)));
    going = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)));
    held = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 2)), TELL(&told));
    assert_ok(gpusync_timeline_destroy(s.a));
    s.a = NULL;
    assert_result(gpusync_wait(s.q[0], held, 0), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(calls_of(&told), 1);
    assert_int_equal(told.result, GPUSYNC_ERROR_DESTROYED);
    finish(&s, 2);
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[1], going, 0));
    close_stage(&s);
}

/* == real work: bytes that show the order ====================================================================== */

/* Ways to order work: with a command buffer in front and one behind; with waits and signals inside the work itself; on
   the host. The first needs a device that keeps command buffers in their order, where no tracked resource does. */
typedef enum { PLAIN, HEADS, STRICT, FORMS } form_of_order;

/* One step of a computation: a fill, or where there is a source, a copy. */
typedef struct hop {
    gpusync_queue *queue;
    const gpusync_point *waits, *signals;
    size_t wait_count, signal_count;
    void *from, *to;
    size_t from_at, to_at;
    unsigned char byte;
} hop;

#define HOP(form, ...) make_hop(form, &(hop){__VA_ARGS__}, NULL)
static gpusync_ticket make_hop(form_of_order form, const hop *h, void **work)
{
    gpusync_submission submission;
    gpusync_ticket ticket = 0;
    void *buffer = NULL;
    memset(&submission, 0, sizeof submission);
    if (form != HEADS) {
        submission.waits = h->waits;
        submission.wait_count = h->wait_count;
    }
    assert_ok(make_behind(h->queue, NULL, h->waits, form == HEADS ? h->wait_count : 0, &buffer));
    if (h->from) copy(buffer, h->from, h->from_at, h->to, h->to_at);
    else fill(buffer, h->to, h->to_at, h->byte);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.signals = h->signals;
    submission.signal_count = h->signal_count;
    submission.flags = form == HEADS ? SIGNALS_INSIDE : form == STRICT ? GPUSYNC_STRICT : 0;
    if (work) *work = metal_retain(buffer);
    assert_ok(submit_as_told(h->queue, &submission, &ticket));
    return ticket;
}

/* Command buffers that share nothing overlap, unless the form relies on their order. */
static void open_real_stage(stage *s, form_of_order form, unsigned queues)
{
    softmetal_chaos chaos;
    memset(&chaos, 0, sizeof chaos);
    chaos.overlap_per_mille = form == PLAIN ? 0 : 1000;
    open_stage(s, SOFTMETAL_REAL, queues);
    softmetal_set_chaos(&chaos);
}

static void test_host_and_device_hand_a_byte_on_by_turns(void **state)
{
    form_of_order form;
    (void)state;
    for (form = PLAIN; form < FORMS; form++) {
        unsigned char *bytes;
        uint64_t round;
        void *memory;
        stage s;
        open_real_stage(&s, form, 2);
        memory = memory_of(&s, 4);
        bytes = bytes_of(memory);
        for (round = 0; round < 100 / SLOW; round++) {
            uint64_t turn = 4 * round;
            unsigned char byte = (unsigned char)(round + 1);
            gpusync_ticket last;
            /* the whole round is submitted before it begins */
            (void)HOP(form, s.q[0], WAITS(at(s.a, turn + 1)), SIGNALS(at(s.b, turn + 1)), .from = memory, .to = memory,
                      .to_at = 1);
            last = HOP(form, s.q[1], WAITS(at(s.a, turn + 2)), SIGNALS(at(s.b, turn + 2)), .from = memory, .from_at = 2,
                       .to = memory, .to_at = 3);
            bytes[0] = byte;
            assert_ok(gpusync_timeline_signal(s.a, turn + 1));
            assert_ok(gpusync_timeline_wait(s.b, turn + 1, SECONDS(20), NULL));
            assert_int_equal(bytes[1], byte);
            bytes[2] = (unsigned char)(bytes[1] + 1);
            assert_ok(gpusync_timeline_signal(s.a, turn + 2));
            assert_ok(gpusync_wait(s.q[1], last, SECONDS(20)));
            assert_int_equal(bytes[3], (unsigned char)(byte + 1));
            assert_int_equal(value_of(s.b), turn + 2);
        }
        metal_release(memory);
        close_stage(&s);
    }
}

/* One makes it, two work on it side by side, one joins what they made. */
static void test_a_diamond_over_four_queues(void **state)
{
    form_of_order form;
    (void)state;
    for (form = PLAIN; form < FORMS; form++) {
        unsigned char *bytes;
        uint64_t round;
        void *memory;
        stage s;
        open_real_stage(&s, form, 4);
        memory = memory_of(&s, 8);
        bytes = bytes_of(memory);
        for (round = 0; round < 100 / SLOW; round++) {
            uint64_t turn = 4 * round;
            unsigned char byte = (unsigned char)(round + 1);
            gpusync_ticket left, right, both;
            (void)HOP(form, s.q[0], SIGNALS(at(s.a, turn + 1)), .to = memory, .byte = byte);
            left = HOP(form, s.q[1], WAITS(at(s.a, turn + 1)), SIGNALS(at(s.b, turn + 1)), .from = memory, .to = memory,
                       .to_at = 1);
            right = HOP(form, s.q[2], WAITS(at(s.a, turn + 1)), .from = memory, .to = memory, .to_at = 2);
            (void)HOP(form, s.q[3], WAITS(at(s.b, turn + 1), after(s.q[2], right)), .from = memory, .from_at = 1,
                      .to = memory, .to_at = 3);
            both = HOP(form, s.q[3], WAITS(after(s.q[2], right), after(s.q[1], left)), .from = memory, .from_at = 2,
                       .to = memory, .to_at = 4);
            assert_ok(gpusync_wait(s.q[3], both, SECONDS(20)));
            assert_ok(gpusync_queue_wait(s.q[3], SECONDS(20)));
            assert_int_equal(bytes[3], byte);
            assert_int_equal(bytes[4], byte);
            assert_ok(gpusync_device_wait(s.device, SECONDS(20))); /* the next round writes what this one reads */
        }
        metal_release(memory);
        close_stage(&s);
    }
}

static void test_one_producer_and_a_consumer_on_each_queue(void **state)
{
    form_of_order form;
    (void)state;
    for (form = PLAIN; form < FORMS; form++) {
        gpusync_point ends[STAGE_QUEUES];
        uint64_t round;
        void *memory;
        stage s;
        open_real_stage(&s, form, STAGE_QUEUES);
        memory = memory_of(&s, STAGE_QUEUES + 1);
        for (round = 0; round < 100 / SLOW; round++) {
            unsigned char byte = (unsigned char)(round + 1);
            unsigned i;
            size_t which;
            for (i = 0; i < STAGE_QUEUES; i++) /* the consumers come first */
                ends[i] = after(s.q[i], HOP(form, s.q[i], WAITS(at(s.a, round + 1)), .from = memory, .to = memory,
                                            .to_at = i + 1u));
            (void)SUBMIT(s.q[1], .flags = GPUSYNC_UNORDERED, SIGNALS(at(s.b, round + 1)));
            bytes_of(memory)[0] = byte;
            assert_ok(gpusync_timeline_signal(s.a, round + 1));
            assert_ok(gpusync_wait_many(ends, STAGE_QUEUES, GPUSYNC_WAIT_ALL, SECONDS(20), NULL, &which));
            for (i = 0; i < STAGE_QUEUES; i++) assert_int_equal(bytes_of(memory)[i + 1], byte);
        }
        metal_release(memory);
        close_stage(&s);
    }
}

/* A byte goes through every queue, and is looked at on the host after each hop. */
static void test_what_a_producer_made_is_there_at_every_hop(void **state)
{
    enum { HOPS = 12 };
    form_of_order form;
    (void)state;
    for (form = PLAIN; form < FORMS; form++) {
        uint64_t round, i;
        void *memory;
        stage s;
        open_real_stage(&s, form, STAGE_QUEUES);
        memory = memory_of(&s, HOPS + 1);
        for (round = 0; round < 20 / SLOW + 1; round++) {
            uint64_t base = round * (HOPS + 1);
            unsigned char byte = (unsigned char)(round + 1);
            (void)HOP(form, s.q[0], WAITS(at(s.b, round + 1)), SIGNALS(at(s.a, base + 1)), .to = memory, .byte = byte);
            for (i = 1; i <= HOPS; i++)
                (void)HOP(form, s.q[i % STAGE_QUEUES], WAITS(at(s.a, base + i)), SIGNALS(at(s.a, base + i + 1)),
                          .from = memory, .from_at = i - 1, .to = memory, .to_at = i);
            assert_ok(gpusync_timeline_signal(s.b, round + 1));
            for (i = 0; i <= HOPS; i++) {
                assert_ok(gpusync_timeline_wait(s.a, base + i + 1, SECONDS(20), NULL));
                assert_int_equal(bytes_of(memory)[i], byte);
            }
        }
        metal_release(memory);
        close_stage(&s);
    }
}

/* Each side signals its own timeline and waits for the other's. */
static void test_two_timelines_cross(void **state)
{
    form_of_order form;
    (void)state;
    for (form = PLAIN; form < FORMS; form++) {
        uint64_t turn, rounds = 100 / SLOW;
        void *memory;
        stage s;
        open_real_stage(&s, form, 2);
        memory = memory_of(&s, 4);
        for (turn = 1; turn <= rounds; turn++) {
            unsigned char byte = (unsigned char)turn;
            gpusync_ticket left, right;
            (void)HOP(form, s.q[0], SIGNALS(at(s.a, 2 * turn - 1)), .to = memory, .to_at = 0, .byte = byte);
            left = HOP(form, s.q[0], WAITS(at(s.b, 2 * turn - 1)), SIGNALS(at(s.a, 2 * turn)), .from = memory,
                       .from_at = 1, .to = memory, .to_at = 2);
            (void)HOP(form, s.q[1], SIGNALS(at(s.b, 2 * turn - 1)), .to = memory, .to_at = 1,
                      .byte = (unsigned char)~byte);
            right = HOP(form, s.q[1], WAITS(at(s.a, 2 * turn - 1)), SIGNALS(at(s.b, 2 * turn)), .from = memory,
                        .from_at = 0, .to = memory, .to_at = 3);
            assert_ok(gpusync_wait(s.q[0], left, SECONDS(20)));
            assert_ok(gpusync_wait(s.q[1], right, SECONDS(20)));
            assert_int_equal(bytes_of(memory)[2], (unsigned char)~byte);
            assert_int_equal(bytes_of(memory)[3], byte);
            assert_int_equal(value_of(s.a), 2 * turn);
            assert_int_equal(value_of(s.b), 2 * turn);
        }
        metal_release(memory);
        close_stage(&s);
    }
}

/* A plain counter that two queues raise by turns: whoever comes out of turn sees the wrong one. */
typedef struct rally {
    uint64_t count, faults;
} rally;

static void ping(void *user, const softmetal_kernel_args *args)
{
    rally *r = (rally *)user;
    (void)args;
    if (r->count++ % 2 != 0) r->faults++;
}

static void pong(void *user, const softmetal_kernel_args *args)
{
    rally *r = (rally *)user;
    (void)args;
    if (r->count++ % 2 != 1) r->faults++;
}

static gpusync_ticket hit(gpusync_queue *queue, void *pipeline, gpusync_point wait, gpusync_point signal)
{
    static const metal_size one = {1, 1, 1};
    void *buffer = OPEN(queue, WAITS(wait)), *compute = metal_compute_begin(buffer);
    metal_set_pipeline(compute, pipeline);
    metal_dispatch(compute, one, one);
    metal_end(compute);
    return SUBMIT(queue, BUFFERS(buffer), SIGNALS(signal), .flags = SIGNALS_INSIDE);
}

static void test_two_queues_take_turns_ten_thousand_times(void **state)
{
    const char *stress = getenv("STRESS"), *source = "kernel void ping() {} kernel void pong() {}";
    uint64_t turn, turns = 10000 / SLOW * (stress && strcmp(stress, "full") == 0 ? 10 : 1);
    softmetal_chaos chaos;
    rally score = {0, 0};
    void *pipelines[2];
    stage s;
    (void)state;
    memset(&chaos, 0, sizeof chaos);
    chaos.overlap_per_mille = 500;
    chaos.late_handler_per_mille = 1;
    open_stage(&s, SOFTMETAL_REAL, 2);
    softmetal_set_chaos(&chaos);
    softmetal_set_kernel("ping", ping, &score, 0);
    softmetal_set_kernel("pong", pong, &score, 0);
    pipelines[0] = metal_pipeline_new(s.rig.metal_device, source, "ping", NULL, 0);
    pipelines[1] = metal_pipeline_new(s.rig.metal_device, source, "pong", NULL, 0);
    for (turn = 1; turn <= turns; turn++) {
        (void)hit(s.q[0], pipelines[0], at(s.b, turn - 1), at(s.a, turn));
        (void)hit(s.q[1], pipelines[1], at(s.a, turn), at(s.b, turn));
    }
    assert_ok(gpusync_timeline_wait(s.b, turns, SECONDS(60), NULL));
    assert_int_equal(score.count, 2 * turns);
    assert_int_equal(score.faults, 0);
    assert_int_equal(value_of(s.a), turns);
    metal_release(pipelines[0]);
    metal_release(pipelines[1]);
    close_stage(&s);
}

/* -- command buffers of one queue that overlap ----------------------------------------------------------------- */

/* What a consumer reads while its producer is still at work, where nothing but the submissions orders the two. */
static unsigned char consume_early(form_of_order form, bool one_queue)
{
    unsigned char byte;
    gpusync_ticket made, used;
    void *from, *to, *producer, *consumer;
    softmetal_chaos chaos;
    stage s;
    memset(&chaos, 0, sizeof chaos);
    chaos.overlap_per_mille = 1000;
    open_stage(&s, SOFTMETAL_REAL, 2);
    softmetal_set_chaos(&chaos);
    from = untracked_memory(&s, 1);
    to = untracked_memory(&s, 1);
    {
        gpusync_submission submission = {.flags = form == HEADS    ? SIGNALS_INSIDE
                                                  : form == STRICT ? GPUSYNC_STRICT
                                                                   : 0,
                                         SIGNALS(at(s.a, 1))};
        producer = metal_retain(open_on(&s, 0));
        submission.command_buffers = &producer;
        submission.command_buffer_count = 1;
        fill(producer, from, 0, 7);
        softmetal_hang(producer);
        assert_ok(submit_as_told(s.q[0], &submission, &made));
    }
    used = make_hop(form, &(hop){s.q[one_queue ? 0 : 1], WAITS(at(s.a, 1)), .from = from, .to = to}, &consumer);
    if (form == PLAIN) metal_wait_until_completed(consumer); /* though the producer hangs */
    if (form == STRICT) assert_int_equal(metal_status(consumer), NOT_ENQUEUED);
    assert_result(gpusync_poll(s.q[one_queue ? 0 : 1], used), GPUSYNC_NOT_READY); /* in any form */
    assert_int_equal(value_of(s.a), 0);
    softmetal_unhang(producer);
    assert_ok(gpusync_wait(s.q[0], made, SECONDS(20)));
    assert_ok(gpusync_wait(s.q[one_queue ? 0 : 1], used, SECONDS(20)));
    byte = bytes_of(to)[0];
    metal_release(producer);
    metal_release(consumer);
    assert_ok(gpusync_device_wait(s.device, SECONDS(20)));
    assert_true(softmetal_settle(SECONDS(20)));
    metal_release(from);
    metal_release(to);
    close_stage(&s);
    return byte;
}

static void test_waits_in_front_and_signals_behind_do_not_gate_work_that_overlaps(void **state)
{
    (void)state;
    assert_int_equal(consume_early(PLAIN, true), 0); /* why the two forms below exist */
    assert_int_equal(consume_early(PLAIN, false), 0);
}

static void test_waits_at_the_head_and_open_signals_gate_work_that_overlaps(void **state)
{
    (void)state;
    assert_int_equal(consume_early(HEADS, true), 7);
    assert_int_equal(consume_early(HEADS, false), 7);
}

static void test_strict_submissions_gate_work_that_overlaps(void **state)
{
    (void)state;
    assert_int_equal(consume_early(STRICT, true), 7);
    assert_int_equal(consume_early(STRICT, false), 7);
}

/* == failures ================================================================================================== */

/* Work on this queue that will fail in a way of its own, and promises the value. Killed work signals nothing. */
static gpusync_ticket submit_failing(stage *s, unsigned i, gpusync_point signal)
{
    void *buffer = OPEN(s->q[i], .label = "the culprit");
    softmetal_fail(buffer, "TestDomain", 42, "it broke");
    return SUBMIT(s->q[i], BUFFERS(buffer), SIGNALS(signal), .flags = SIGNALS_INSIDE, .label = "submission");
}

static void assert_original(const gpusync_error *error, const char *queue_label, gpusync_ticket ticket)
{
    assert_int_equal(error->result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error->failure, GPUSYNC_FAILURE_OTHER);
    assert_int_equal(error->code, 42);
    assert_string_equal(error->domain, "TestDomain");
    assert_string_equal(error->message, "it broke");
    assert_string_equal(error->label, "the culprit");
    assert_string_equal(error->queue_label, queue_label);
    assert_int_equal(error->ticket, ticket);
}

static void test_the_failure_of_a_promise_reaches_who_waits_on_the_host(void **state)
{
    gpusync_error error;
    gpusync_ticket ticket;
    value_job sleeper;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    ticket = submit_failing(&s, 0, at(s.a, 3));
    value_job_start(&sleeper, s.a, 2, SECONDS(20));
    await_sleepers(s.device, 1);
    finish(&s, 0);
    assert_result(value_job_join(&sleeper), GPUSYNC_ERROR_EXECUTION);
    assert_original(&sleeper.error, "first", ticket);
    error = error_of(s.q[0], ticket);
    assert_original(&error, "first", ticket);
    error = error_at(s.a, 3);
    assert_original(&error, "first", ticket);
    assert_int_equal(reached(s.a, GPUSYNC_ERROR_EXECUTION), 1); /* as far as it was good */
    assert_int_equal(stats_of(s.q[0]).failures, 1);
    close_stage(&s);
}

static void test_the_failure_of_a_promise_reaches_work_that_waits_on_the_device(void **state)
{
    gpusync_ticket culprit, ticket;
    gpusync_error error;
    uint64_t cursor = 0;
    outcome told;
    void *buffer;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    culprit = submit_failing(&s, 0, at(s.a, 1));
    (void)commit_on(&s, 1);
    buffer = open_on(&s, 1);
    ticket = SUBMIT(s.q[1], BUFFERS(buffer), WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)), TELL(&told));
    assert_int_equal(metal_status(buffer), COMMITTED);
    finish(&s, 0);
    assert_result(gpusync_poll(s.q[1], ticket), GPUSYNC_NOT_READY); /* its command buffers go on */
    assert_result(gpusync_timeline_wait(s.b, 1, 0, NULL), GPUSYNC_TIMEOUT);
    finish(&s, 1);
    error = error_of(s.q[1], ticket);
    assert_original(&error, "first", ticket);
    error = error_at(s.b, 1);
    assert_original(&error, "first", error.ticket);
    assert_int_equal(calls_of(&told), 1);
    assert_original(&told.error, "first", ticket);
    assert_ok(gpusync_next_error(s.q[1], &cursor, &error));
    assert_original(&error, "first", ticket);
    assert_result(gpusync_next_error(s.q[1], &cursor, &error), GPUSYNC_NOT_READY);
    error = error_of(s.q[0], culprit);
    assert_original(&error, "first", culprit);
    assert_result(gpusync_queue_wait(s.q[1], 0), GPUSYNC_ERROR_EXECUTION);
    close_stage(&s);
}

static void test_the_failure_of_a_promise_ends_what_is_held_for_it_and_for_that(void **state)
{
    gpusync_ticket tickets[3];
    gpusync_error error;
    outcome told[3];
    stage s;
    unsigned i;
    (void)state;
    memset(told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    /* b@9 never comes: without the failure they would stay */
    tickets[0] = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.b, 9), at(s.a, 1)), SIGNALS(at(s.a, 2)),
                        TELL(&told[0]));
    tickets[1] = SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)), WAITS(after(s.q[1], tickets[0]), at(s.b, 9)), TELL(&told[1]));
    tickets[2] = SUBMIT(s.q[3], BUFFERS(open_on(&s, 3)), WAITS(at(s.a, 2)), TELL(&told[2]), .flags = GPUSYNC_STRICT);
    (void)submit_failing(&s, 0, at(s.a, 1));
    for (i = 0; i < 3; i++) assert_result(gpusync_poll(s.q[i + 1], tickets[i]), GPUSYNC_NOT_READY);
    finish(&s, 0);
    for (i = 0; i < 3; i++) {
        error = error_of(s.q[i + 1], tickets[i]);
        assert_original(&error, "first", tickets[i]);
        assert_int_equal(softmetal_outstanding(s.metal[i + 1]), 0);
        await_call(&told[i]);
        assert_original(&told[i].error, "first", tickets[i]);
        assert_false(ran_here(&told[i]));
    }
    assert_int_equal(value_of(s.b), 0); /* nobody promised anything there */
    close_stage(&s);
}

static void test_the_error_is_that_of_the_first_wait_that_failed_and_the_works_own_comes_last(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error, reason;
    void *buffer;
    stage s;
    (void)state;
    memset(&reason, 0, sizeof reason);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.b, 1)));
    (void)submit_failing(&s, 1, at(s.a, 1));
    buffer = open_on(&s, 0);
    softmetal_fail(buffer, NULL, 3, "its own");
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 1), at(s.b, 1)));
    reason.code = 7;
    assert_ok(gpusync_timeline_fail(s.b, &reason));
    finish(&s, 1);
    finish(&s, 0);
    error = error_of(s.q[0], ticket);
    assert_original(&error, "second", ticket);
    close_stage(&s);
}

static void test_a_submission_after_the_failure_ends_at_once(void **state)
{
    gpusync_ticket culprit, ticket;
    gpusync_error error;
    outcome told;
    void *buffer;
    uint32_t flags;
    stage s;
    (void)state;
    for (flags = 0; flags <= GPUSYNC_STRICT; flags += GPUSYNC_STRICT) {
        memset(&told, 0, sizeof told);
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        culprit = submit_failing(&s, 0, at(s.a, 1));
        finish(&s, 0);
        buffer = metal_queue_command_buffer(s.metal[1]);
        ticket = SUBMIT(s.q[1], BUFFERS(buffer), WAITS(after(s.q[0], culprit)), SIGNALS(at(s.b, 1)), TELL(&told),
                        .flags = flags);
        assert_int_equal(calls_of(&told), 1);
        assert_false(ran_here(&told));
        assert_original(&told.error, "first", ticket);
        assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
        assert_int_equal(softmetal_retain_count(buffer), 1);
        metal_release(buffer);
        error = error_at(s.b, 1);
        assert_original(&error, "first", error.ticket);
        ticket = SUBMIT(s.q[1], WAITS(at(s.b, 0)), .flags = flags); /* any value of a failed timeline */
        error = error_of(s.q[1], ticket);
        assert_original(&error, "first", ticket);
        close_stage(&s);
    }
}

static void test_a_failure_by_the_host_ends_what_is_held_in_the_call(void **state)
{
    gpusync_ticket ticket;
    gpusync_error reason, error;
    outcome told;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    memset(&reason, 0, sizeof reason);
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    ticket = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 1)), TELL(&told));
    reason.result = GPUSYNC_ERROR_CANCELLED;
    reason.code = 5;
    strcpy(reason.message, "no longer wanted");
    assert_ok(gpusync_timeline_fail(s.a, &reason));
    assert_int_equal(calls_of(&told), 1);
    assert_false(ran_here(&told));
    error = error_of(s.q[0], ticket);
    assert_int_equal(error.result, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(error.code, 5);
    assert_string_equal(error.message, "no longer wanted");
    close_stage(&s);
}

/* Nobody writes the imported event of a failed timeline: the watchdog ends the wait, but the error is the first one. */
static void test_a_device_wait_that_the_watchdog_ends_tells_of_the_failure_behind_it(void **state)
{
    softmetal_timing timing;
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    gpusync_error error;
    void *event;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    softmetal_get_timing(&timing);
    timing.watchdog_ns = MS(20);
    softmetal_set_timing(&timing);
    event = metal_shared_event_new(s.rig.metal_device);
    assert_ok(timeline_import(s.device, event, NULL, &timeline));
    (void)submit_failing(&s, 0, at(timeline, 1));
    ticket = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(timeline, 1)));
    assert_result(gpusync_wait(s.q[1], ticket, SECONDS(20)), GPUSYNC_ERROR_EXECUTION);
    error = error_of(s.q[1], ticket);
    assert_original(&error, "first", ticket);
    assert_int_equal(metal_event_value(event), 0);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_stage(&s);
}

static void test_one_failing_command_buffer_of_several_fails_the_submission(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error;
    void *buffers[3];
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 3; i++) buffers[i] = OPEN(s.q[0], .label = i == 1 ? "the culprit" : "another");
    softmetal_fail(buffers[1], "TestDomain", 42, "it broke");
    ticket = SUBMIT(s.q[0], .command_buffers = buffers, .command_buffer_count = 3, SIGNALS(at(s.a, 1)));
    softmetal_finish(buffers[0]);
    softmetal_finish(buffers[1]);
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    finish(&s, 0);
    error = error_of(s.q[0], ticket);
    assert_original(&error, "first", ticket);
    error = error_at(s.a, 1);
    assert_original(&error, "first", ticket);
    close_stage(&s);
}

static void test_of_two_failing_command_buffers_the_first_is_told(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error;
    void *buffers[2];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffers[0] = OPEN(s.q[0], .label = "the culprit");
    buffers[1] = OPEN(s.q[0], .label = "another");
    softmetal_fail(buffers[0], "TestDomain", 42, "it broke");
    softmetal_fail(buffers[1], "TestDomain", 43, "it broke too");
    ticket = SUBMIT(s.q[0], .command_buffers = buffers, .command_buffer_count = 2);
    softmetal_finish(buffers[0]);
    softmetal_finish(buffers[1]);
    error = error_of(s.q[0], ticket);
    assert_original(&error, "first", ticket);
    close_stage(&s);
}

/* == signals of others ========================================================================================= */

/* A timeline over an event that others know too. Waits for it go to the device at once: nobody needs to promise. */
typedef struct foreign {
    stage stage;
    gpusync_timeline *timeline;
    void *event, *queue; /* a queue that gpusync has never heard of */
} foreign;

static void open_foreign(foreign *f, softmetal_clock clock)
{
    open_stage(&f->stage, clock, 2);
    f->event = metal_shared_event_new(f->stage.rig.metal_device);
    f->queue = metal_queue_new(f->stage.rig.metal_device, 8);
    assert_ok(timeline_import(f->stage.device, f->event, NULL, &f->timeline));
}

static void close_foreign(foreign *f)
{
    assert_ok(gpusync_timeline_destroy(f->timeline));
    metal_release(f->event);
    metal_release(f->queue);
    close_stage(&f->stage);
}

/* Work of somebody else: writes a byte, then signals. */
static void signal_abroad(foreign *f, void *memory, unsigned char byte, uint64_t value)
{
    void *buffer = metal_queue_command_buffer(f->queue);
    if (memory) fill(buffer, memory, 0, byte);
    metal_encode_signal(buffer, f->event, value);
    metal_commit(buffer);
    if (f->stage.clock == SOFTMETAL_MANUAL) softmetal_finish(buffer);
    metal_release(buffer);
}

static void test_work_that_waits_for_an_imported_timeline_goes_to_the_device_at_once(void **state)
{
    gpusync_ticket ticket;
    void *buffer, *memory;
    foreign f;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    memory = memory_of(&f.stage, 2);
    buffer = OPEN(f.stage.q[0], WAITS(at(f.timeline, 5)));
    copy(buffer, memory, 0, memory, 1);
    ticket = SUBMIT(f.stage.q[0], BUFFERS(buffer));
    assert_int_equal(metal_status(buffer), COMMITTED);
    assert_int_equal(stats_of(f.stage.q[0]).held, 0);
    signal_abroad(&f, memory, 7, 6);
    finish(&f.stage, 0);
    assert_ok(gpusync_wait(f.stage.q[0], ticket, 0));
    assert_int_equal(bytes_of(memory)[1], 7);
    metal_release(memory);
    close_foreign(&f);
}

static void test_a_strict_submission_is_told_by_the_event_when_others_signal(void **state)
{
    uint64_t value;
    foreign f;
    void *memory;
    (void)state;
    open_foreign(&f, SOFTMETAL_REAL);
    memory = memory_of(&f.stage, 2);
    for (value = 1; value <= 40 / SLOW + 2; value++) {
        void *buffer = metal_retain(open_on(&f.stage, 0));
        gpusync_ticket ticket;
        copy(buffer, memory, 0, memory, 1);
        ticket = SUBMIT(f.stage.q[0], BUFFERS(buffer), WAITS(at(f.timeline, value)), .flags = GPUSYNC_STRICT);
        assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
        if (value % 2) {
            signal_abroad(&f, memory, (unsigned char)value, value);
        } else {
            bytes_of(memory)[0] = (unsigned char)value;
            metal_event_signal(f.event, value); /* from the host, but behind gpusync's back */
        }
        await_status(buffer, COMMITTED); /* nobody asks gpusync anything meanwhile */
        assert_ok(gpusync_wait(f.stage.q[0], ticket, SECONDS(20)));
        assert_int_equal(bytes_of(memory)[1], (unsigned char)value);
        metal_release(buffer);
    }
    assert_true(softmetal_settle(SECONDS(20)));
    metal_release(memory);
    close_foreign(&f);
}

static void test_promises_and_signals_of_others_on_one_event(void **state)
{
    gpusync_ticket ticket;
    foreign f;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    ticket = SUBMIT(f.stage.q[0], BUFFERS(open_on(&f.stage, 0)), SIGNALS(at(f.timeline, 3)));
    metal_event_signal(f.event, 2);
    assert_int_equal(value_of(f.timeline), 2);
    signal_abroad(&f, NULL, 0, 8);
    assert_int_equal(value_of(f.timeline), 2); /* 3 is promised, and not kept */
    finish(&f.stage, 0);
    assert_ok(gpusync_wait(f.stage.q[0], ticket, 0));
    assert_int_equal(value_of(f.timeline), 8);
    REFUSED(GPUSYNC_ERROR_NOT_RISING, f.stage.q[0], SIGNALS(at(f.timeline, 8)));
    close_foreign(&f);
}

static void test_a_value_signalled_by_others_before_the_call_is_not_waited_for(void **state)
{
    gpusync_ticket ticket;
    foreign f;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    signal_abroad(&f, NULL, 0, 4);
    ticket = SUBMIT(f.stage.q[0], WAITS(at(f.timeline, 4)));
    finish(&f.stage, 0);
    assert_ok(gpusync_wait(f.stage.q[0], ticket, 0));
    close_foreign(&f);
}

static void test_the_value_of_failure_on_an_event_of_others_fails_who_waits_on_the_device(void **state)
{
    gpusync_ticket ticket;
    foreign f;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    ticket = SUBMIT(f.stage.q[0], BUFFERS(open_on(&f.stage, 0)), WAITS(at(f.timeline, 4)));
    metal_event_signal(f.event, ~(uint64_t)0);
    finish(&f.stage, 0);
    assert_result(gpusync_wait(f.stage.q[0], ticket, 0), GPUSYNC_ERROR_EXECUTION);
    close_foreign(&f);
}

static void test_work_goes_on_with_the_event_of_a_timeline_that_is_destroyed(void **state)
{
    gpusync_ticket waits, signals;
    gpusync_timeline *again;
    foreign f;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    assert_ok(timeline_import(f.stage.device, f.event, NULL, &again));
    signals = SUBMIT(f.stage.q[1], BUFFERS(open_on(&f.stage, 1)), SIGNALS(at(f.timeline, 6)));
    waits = SUBMIT(f.stage.q[0], BUFFERS(open_on(&f.stage, 0)), WAITS(at(f.timeline, 8)));
    assert_ok(gpusync_timeline_destroy(f.timeline));
    f.timeline = again;
    assert_result(gpusync_poll(f.stage.q[0], waits), GPUSYNC_NOT_READY);
    finish(&f.stage, 1);
    assert_ok(gpusync_wait(f.stage.q[1], signals, 0));
    assert_int_equal(metal_event_value(f.event), 6);
    signal_abroad(&f, NULL, 0, 8);
    finish(&f.stage, 0);
    assert_ok(gpusync_wait(f.stage.q[0], waits, 0));
    assert_int_equal(value_of(again), 8);
    close_foreign(&f);
}

static void test_an_expected_value_lets_held_work_go_to_the_device(void **state)
{
    uint64_t base;
    gpusync_ticket ticket, strict;
    void *event, *buffers[2], *theirs;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    event = gpusync_timeline_metal(s.a, &base);
    buffers[0] = open_on(&s, 0);
    buffers[1] = open_on(&s, 2);
    ticket = SUBMIT(s.q[0], BUFFERS(buffers[0]), WAITS(at(s.a, 2)));
    strict = SUBMIT(s.q[2], BUFFERS(buffers[1]), WAITS(at(s.a, 2)), .flags = GPUSYNC_STRICT);
    assert_ok(gpusync_timeline_expect(s.a, 1));
    assert_int_equal(metal_status(buffers[0]), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_expect(s.a, 2));
    assert_int_equal(metal_status(buffers[0]), COMMITTED);
    assert_int_equal(metal_status(buffers[1]), NOT_ENQUEUED);
    theirs = metal_queue_command_buffer(s.metal[1]);
    metal_encode_signal(theirs, event, base + 2);
    metal_commit(theirs);
    finish(&s, 1);
    metal_release(theirs);
    await_status(buffers[1], COMMITTED); /* told by the event, though it was held before anybody expected anything */
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    finish(&s, 2);
    assert_ok(gpusync_wait(s.q[2], strict, 0));
    assert_int_equal(value_of(s.a), 2);
    close_stage(&s);
}

/* == waits for tickets ========================================================================================= */

enum { PLAIN_COMMIT, SUBMISSION, BARRIER, TRACKED, TRACKED_COMMITTED, TICKET_KINDS };

/* A ticket of this kind on the queue; the buffer that has to be finished for it. */
static gpusync_ticket ticket_of(stage *s, unsigned i, int kind, bool fails)
{
    gpusync_ticket ticket = 0;
    void *buffer = kind == TRACKED || kind == TRACKED_COMMITTED ? metal_queue_command_buffer(s->metal[i])
                   : kind != BARRIER                            ? open_on(s, i)
                                                                : NULL;
    if (buffer && fails) softmetal_fail(buffer, "TestDomain", 42, "it broke");
    if (kind == PLAIN_COMMIT) {
        ticket = commit_to(s->q[i], buffer);
    } else if (kind == SUBMISSION) {
        ticket = SUBMIT(s->q[i], BUFFERS(buffer));
    } else if (kind == BARRIER) {
        if (fails) softmetal_fail_next(1, 42);
        ticket = SUBMIT(s->q[i], SIGNALS(at(s->b, value_of(s->b) + 1)));
    } else if (kind == TRACKED) {
        assert_ok(gpusync_track(s->q[i], buffer, &ticket));
        metal_commit(buffer);
        metal_release(buffer);
    } else {
        metal_commit(buffer);
        assert_ok(gpusync_track_committed(s->q[i], buffer, &ticket));
        metal_release(buffer);
    }
    return ticket;
}

static void test_tickets_of_every_kind_can_be_waited_for(void **state)
{
    static const uint32_t flags[] = {0, GPUSYNC_STRICT, GPUSYNC_UNORDERED};
    int kind;
    unsigned fails, same, k;
    (void)state;
    for (kind = 0; kind < TICKET_KINDS; kind++)
        for (fails = 0; fails < 2; fails++)
            for (same = 0; same < 2; same++)
                for (k = 0; k < 3; k++) {
                    gpusync_ticket awaited, ticket;
                    unsigned other = same ? 0 : 1;
                    /* no handler tells of the end of what was committed before: not a matter for the device */
                    bool held = kind == TRACKED_COMMITTED || flags[k] == GPUSYNC_STRICT;
                    void *buffer;
                    stage s;
                    open_stage(&s, SOFTMETAL_MANUAL, 2);
                    awaited = ticket_of(&s, other, kind, fails);
                    buffer = open_on(&s, 0);
                    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(after(s.q[other], awaited)), .flags = flags[k]);
                    assert_int_equal(metal_status(buffer), held ? NOT_ENQUEUED : COMMITTED);
                    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
                    finish(&s, other);
                    finish(&s, 0);
                    finish(&s, 0); /* what was committed by then */
                    assert_result(gpusync_poll(s.q[0], ticket), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
                    if (fails) assert_int_equal(error_of(s.q[0], ticket).code, 42);
                    /* and once more, now that it has ended */
                    ticket = SUBMIT(s.q[0], WAITS(after(s.q[other], awaited)), .flags = flags[k]);
                    assert_result(gpusync_poll(s.q[0], ticket), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
                    if (fails) assert_int_equal(error_of(s.q[0], ticket).code, 42);
                    close_stage(&s);
                }
}

/* Its owner may take his time, and may commit it behind what waits for it: the device must not wait. */
static void test_work_that_waits_for_a_tracked_buffer_goes_after_its_owner_has_committed_it(void **state)
{
    unsigned same;
    (void)state;
    for (same = 0; same < 2; same++) {
        gpusync_ticket tracked, ticket;
        void *theirs, *ours, *memory;
        unsigned other = same ? 0 : 1;
        stage s;
        open_stage(&s, SOFTMETAL_REAL, 2);
        memory = memory_of(&s, 2);
        theirs = metal_queue_command_buffer(s.metal[other]);
        ours = metal_retain(open_on(&s, 0));
        fill(theirs, memory, 0, 7);
        copy(ours, memory, 0, memory, 1);
        assert_ok(gpusync_track(s.q[other], theirs, &tracked));
        ticket = SUBMIT(s.q[0], BUFFERS(ours), WAITS(after(s.q[other], tracked)));
        assert_int_equal(metal_status(ours), NOT_ENQUEUED);
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
        metal_commit(theirs);
        assert_ok(gpusync_wait(s.q[0], ticket, SECONDS(20)));
        assert_int_equal(bytes_of(memory)[1], 7);
        assert_true(softmetal_settle(SECONDS(20)));
        metal_release(theirs);
        metal_release(ours);
        metal_release(memory);
        close_stage(&s);
    }
}

static void test_a_ticket_that_is_taken_back_fails_who_waits_for_it(void **state)
{
    gpusync_ticket tracked, held, ticket, behind;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    buffer = metal_queue_command_buffer(s.metal[1]);
    assert_ok(gpusync_track(s.q[1], buffer, &tracked));
    ticket = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(after(s.q[1], tracked)));
    held = SUBMIT(s.q[2], WAITS(at(s.a, 1)));
    behind = SUBMIT(s.q[0], WAITS(after(s.q[2], held)));
    assert_ok(gpusync_untrack(s.q[1], tracked));
    metal_release(buffer);
    finish(&s, 0);
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_poll(s.q[0], behind), GPUSYNC_NOT_READY);
    assert_ok(gpusync_cancel_held(s.q[2]));
    assert_result(gpusync_poll(s.q[0], behind), GPUSYNC_ERROR_CANCELLED);
    close_stage(&s);
}

/* A held submission waits for its ticket, another for it in turn, and so on: all in line on one queue. */
static void test_a_wait_for_a_ticket_of_the_same_queue_that_is_held(void **state)
{
    gpusync_ticket tickets[6];
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    tickets[0] = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 1)));
    for (i = 1; i < 6; i++)
        tickets[i] = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(after(s.q[0], tickets[i - 1])));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    for (i = 0; i < 6; i++) assert_ok(gpusync_wait(s.q[0], tickets[i], 0));
    close_stage(&s);
}

static void test_the_end_of_a_ticket_of_a_destroyed_queue_is_known(void **state)
{
    gpusync_ticket well, gone;
    gpusync_point points[2];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 3);
    points[0] = after(s.q[1], commit_on(&s, 1));
    well = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), .waits = points, .wait_count = 1);
    close_queue(&s, 1); /* which waits for it */
    assert_ok(gpusync_wait(s.q[0], well, SECONDS(20)));
    points[1] = after(s.q[2], SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)), WAITS(at(s.a, 1))));
    gone = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), .waits = points + 1, .wait_count = 1);
    close_queue(&s, 2);
    assert_result(gpusync_wait(s.q[0], gone, SECONDS(20)), GPUSYNC_ERROR_CANCELLED);
    close_stage(&s);
}

/* == waits at the head of a command buffer ==================================================================== */

static void test_a_command_buffer_with_waits_at_its_head_can_simply_be_committed(void **state)
{
    gpusync_ticket first, second;
    uint64_t waits;
    void *held, *going;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[1], SIGNALS(at(s.b, 1)));
    waits = waits_so_far();
    going = OPEN(s.q[0], WAITS(at(s.b, 1), at(s.a, 0)), .label = "going");
    held = OPEN(s.q[0], WAITS(at(s.a, 1), at(s.b, 1)), .label = "held");
    assert_count("encodeWaitForEvent:value:", waits, 3);
    first = commit_to(s.q[0], going);
    second = commit_to(s.q[0], held);
    assert_int_equal(metal_status(going), COMMITTED);
    assert_int_equal(metal_status(held), NOT_ENQUEUED);
    assert_int_equal(stats_of(s.q[0]).held, 1);
    assert_result(gpusync_poll(s.q[0], first), GPUSYNC_NOT_READY);
    finish(&s, 1);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(metal_status(held), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], first, 0));
    assert_ok(gpusync_wait(s.q[0], second, 0));
    close_stage(&s);
}

static void test_the_failure_of_a_wait_at_the_head_fails_the_commit(void **state)
{
    gpusync_ticket going, held, late;
    gpusync_error error;
    void *buffers[3];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffers[0] = OPEN(s.q[0], WAITS(at(s.a, 1)));
    buffers[1] = OPEN(s.q[0], WAITS(at(s.b, 9), at(s.a, 1)));
    buffers[2] = OPEN(s.q[0], WAITS(at(s.a, 1)));
    (void)submit_failing(&s, 1, at(s.a, 1));
    going = commit_to(s.q[0], buffers[0]);
    held = commit_to(s.q[0], buffers[1]);
    finish(&s, 1);
    error = error_of(s.q[0], held);
    assert_original(&error, "second", held);
    assert_result(gpusync_poll(s.q[0], going), GPUSYNC_NOT_READY);
    finish(&s, 0);
    error = error_of(s.q[0], going);
    assert_original(&error, "second", going);
    late = commit_to(s.q[0], buffers[2]); /* it is never committed to Metal, but has its ticket */
    error = error_of(s.q[0], late);
    assert_original(&error, "second", late);
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    close_stage(&s);
}

static void test_waits_at_the_heads_and_waits_of_the_submission_all_count(void **state)
{
    gpusync_ticket ended, ticket;
    void *buffers[2];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    ended = commit_on(&s, 1);
    buffers[0] = OPEN(s.q[0], WAITS(at(s.a, 1)));
    buffers[1] = OPEN(s.q[0], WAITS(after(s.q[1], ended), at(s.a, 2)));
    ticket = SUBMIT(s.q[0], .command_buffers = buffers, .command_buffer_count = 2, WAITS(at(s.b, 1)));
    assert_ok(gpusync_timeline_signal(s.a, 2));
    assert_int_equal(metal_status(buffers[0]), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.b, 1));
    assert_int_equal(metal_status(buffers[0]), COMMITTED);
    assert_int_equal(metal_status(buffers[1]), COMMITTED);
    softmetal_finish(buffers[0]);
    finish(&s, 1);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

/* The wait stays in the buffer, whether it has come true before the commit or after. */
static void test_a_wait_at_the_head_that_came_true_before_the_commit(void **state)
{
    gpusync_ticket awaited, ticket;
    void *buffers[2];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    awaited = commit_on(&s, 1);
    buffers[0] = OPEN(s.q[0], WAITS(after(s.q[1], awaited)));
    buffers[1] = OPEN(s.q[0], WAITS(at(s.a, 1)));
    finish(&s, 1);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    ticket = SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1]));
    assert_int_equal(metal_status(buffers[0]), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

static void test_a_strict_submission_holds_for_waits_at_the_head_too(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = OPEN(s.q[0], WAITS(at(s.a, 1)));
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), .flags = GPUSYNC_STRICT);
    (void)SUBMIT(s.q[1], SIGNALS(at(s.a, 1)));
    assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
    finish(&s, 1);
    assert_int_equal(metal_status(buffer), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

static void test_a_command_buffer_with_waits_at_its_head_that_is_not_committed(void **state)
{
    gpusync_ticket ticket = 9;
    void *buffer, *memory;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    memory = memory_of(&s, 1);
    ticket = commit_on(&s, 1);
    buffer = OPEN(s.q[0], WAITS(at(s.a, 1), after(s.q[1], ticket)));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 1);
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
    assert_result(gpusync_command_buffer_discard(s.q[0], buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    buffer = OPEN(s.q[0], WAITS(at(s.a, 1), after(s.q[1], ticket)));
    assert_result(gpusync_track(s.q[0], buffer, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    finish(&s, 1);
    close_queue(&s, 0); /* with the buffer open */
    metal_release(memory);
    close_stage(&s);
}

static void test_the_timeline_of_a_wait_at_the_head_may_go_before_the_commit(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = OPEN(s.q[0], WAITS(at(s.a, 1)));
    assert_ok(gpusync_timeline_destroy(s.a));
    s.a = NULL;
    ticket = commit_to(s.q[0], buffer);
    assert_result(gpusync_wait(s.q[0], ticket, 0), GPUSYNC_ERROR_DESTROYED); /* nobody can promise it any more */
    close_stage(&s);
}

static void test_the_queue_of_a_wait_at_the_head_may_go_before_the_commit(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    gpusync_result result;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    buffer = OPEN(s.q[0], WAITS(after(s.q[1], commit_on(&s, 1))));
    close_queue(&s, 1);
    ticket = commit_to(s.q[0], buffer);
    result = gpusync_wait(s.q[0], ticket, SECONDS(20));
    assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
    close_stage(&s);
}

static void test_waits_at_a_head_that_make_no_sense_are_refused(void **state)
{
    gpusync_timeline *strange = NULL;
    gpusync_device *other = NULL;
    static const gpusync_result expected[] = {GPUSYNC_ERROR_INVALID_ARGUMENT, GPUSYNC_ERROR_INVALID_ARGUMENT,
                                              GPUSYNC_ERROR_NOT_RISING, GPUSYNC_ERROR_INVALID_TICKET,
                                              GPUSYNC_ERROR_INVALID_TICKET};
    gpusync_point points[5];
    gpusync_device_desc device_desc;
    uint64_t waits;
    void *buffer;
    int i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.metal_device = s.rig.metal_device;
    assert_ok(gpusync_device_create(&device_desc, &other));
    assert_ok(gpusync_timeline_create(other, NULL, &strange));
    buffer = open_on(&s, 0);
    points[0] = at(strange, 1);
    points[1] = at(NULL, 1);
    points[2] = at(s.a, GPUSYNC_MAX_VALUE + 1);
    points[3] = after(s.q[0], 5);
    points[4] = after(s.q[0], GPUSYNC_EVERYTHING);
    waits = softmetal_message_count("encodeWaitForEvent:value:");
    for (i = 0; i < 5; i++) assert_result(gpusync_encode_wait(s.q[0], buffer, points[i]), expected[i]);
    assert_count("encodeWaitForEvent:value:", waits, 0);
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    assert_ok(gpusync_timeline_destroy(strange));
    assert_ok(gpusync_device_destroy(other));
    close_stage(&s);
}

/* == callbacks ================================================================================================= */

static void test_a_callback_comes_once_on_metals_thread_with_the_result(void **state)
{
    unsigned fails;
    (void)state;
    for (fails = 0; fails < 2; fails++) {
        gpusync_ticket ticket;
        outcome told;
        stage s;
        memset(&told, 0, sizeof told);
        open_stage(&s, SOFTMETAL_MANUAL, 1);
        if (fails) {
            void *buffer = OPEN(s.q[0], .label = "the culprit");
            softmetal_fail(buffer, "TestDomain", 42, "it broke");
            ticket = SUBMIT(s.q[0], BUFFERS(buffer), TELL(&told));
        } else {
            ticket = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)), TELL(&told));
        }
        assert_int_equal(calls_of(&told), 0);
        finish(&s, 0);
        assert_int_equal(calls_of(&told), 1);
        assert_false(ran_here(&told));
        assert_int_equal(told.result, fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_int_equal(told.has_error, fails);
        if (fails) assert_original(&told.error, "first", ticket);
        close_stage(&s);
        assert_int_equal(calls_of(&told), 1);
    }
}

static void test_no_callback_comes_inside_a_wait(void **state)
{
    gpusync_ticket ticket;
    outcome told, barrier;
    gpusync_point point;
    void *buffer;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    memset(&barrier, 0, sizeof barrier);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE, TELL(&told));
    point = after(s.q[1], SUBMIT(s.q[1], WAITS(after(s.q[0], ticket)), .flags = GPUSYNC_STRICT, TELL(&barrier)));
    softmetal_set_dispatch_threads(0);
    softmetal_complete(buffer); /* its handler is still to come: every wait finds the end by itself */
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_ok(gpusync_timeline_wait(s.a, 1, 0, NULL));
    assert_ok(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, 0, NULL, NULL));
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    assert_ok(gpusync_device_wait(s.device, 0));
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_true(gpusync_is_idle(s.q[0]));
    assert_int_equal(calls_so_far(&told), 0);
    assert_int_equal(calls_so_far(&barrier), 0);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    finish(&s, 0);
    finish(&s, 1);
    assert_int_equal(calls_of(&told), 1);
    assert_int_equal(calls_of(&barrier), 1);
    assert_false(ran_here(&told));
    assert_false(ran_here(&barrier));
    close_stage(&s);
}

/* Nobody but a wait finds the end, and no handler is to come: one is made to. */
static void test_a_callback_that_a_wait_found_due_comes_although_no_handler_does(void **state)
{
    gpusync_ticket ticket;
    outcome told;
    foreign f;
    (void)state;
    memset(&told, 0, sizeof told);
    open_foreign(&f, SOFTMETAL_REAL);
    ticket = SUBMIT(f.stage.q[0], WAITS(at(f.timeline, 1)), .flags = GPUSYNC_STRICT, TELL(&told));
    metal_event_signal(f.event, 1);
    assert_ok(gpusync_wait(f.stage.q[0], ticket, SECONDS(20)));
    await_call(&told);
    assert_false(ran_here(&told));
    assert_true(softmetal_settle(SECONDS(20)));
    close_foreign(&f);
    assert_int_equal(calls_of(&told), 1);
}

static void test_of_a_held_submission_the_callback_comes_when_a_call_has_ended_it(void **state)
{
    outcome told[4];
    stage s;
    (void)state;
    memset(told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), .flags = GPUSYNC_STRICT, TELL(&told[0]));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(calls_of(&told[0]), 1);
    assert_false(ran_here(&told[0]));
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 2)), .flags = GPUSYNC_STRICT, TELL(&told[1]));
    (void)SUBMIT(s.q[1], SIGNALS(at(s.a, 2)), .flags = GPUSYNC_STRICT);
    assert_int_equal(calls_of(&told[1]), 1);
    assert_false(ran_here(&told[1]));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 3)), TELL(&told[2]));
    close_queue(&s, 0);
    assert_int_equal(calls_so_far(&told[2]), 1); /* by now, wherever it was */
    assert_int_equal(told[2].result, GPUSYNC_ERROR_CANCELLED);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 3)), TELL(&told[3]));
    assert_ok(gpusync_timeline_destroy(s.a));
    s.a = NULL;
    assert_int_equal(calls_of(&told[3]), 1);
    assert_int_equal(told[3].result, GPUSYNC_ERROR_DESTROYED);
    close_stage(&s);
}

/* Its command buffers have ended, and only the fate of what it waited for was open: no handler of its own is due. */
static void test_a_callback_of_work_whose_handlers_have_run_comes_on_metals_thread(void **state)
{
    outcome told;
    void *producer;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    producer = open_on(&s, 0);
    (void)SUBMIT(s.q[0], BUFFERS(producer), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)), TELL(&told));
    softmetal_finish(softmetal_last_buffer(s.metal[0])); /* the signal overtakes the work */
    finish(&s, 1);
    assert_int_equal(calls_of(&told), 0);
    assert_ok(gpusync_timeline_fail(s.a, NULL));
    while (calls_of(&told) == 0) sched_yield(); /* the listener's thread */
    assert_int_equal(calls_of(&told), 1);
    assert_false(ran_here(&told));
    assert_int_equal(told.result, GPUSYNC_ERROR_EXECUTION);
    finish(&s, 0);
    close_stage(&s);
}

static void test_destroying_a_queue_settles_every_callback(void **state)
{
    outcome told[3];
    unsigned i;
    stage s;
    (void)state;
    memset(told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_REAL, 2);
    for (i = 0; i < 2; i++) {
        void *buffer = open_on(&s, 0);
        softmetal_set_duration(buffer, MS(2));
        (void)SUBMIT(s.q[0], BUFFERS(buffer), TELL(&told[i]));
    }
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), TELL(&told[2]));
    close_queue(&s, 0);
    for (i = 0; i < 3; i++) {
        assert_int_equal(calls_of(&told[i]), 1);
        assert_int_equal(told[i].result, i < 2 ? GPUSYNC_OK : GPUSYNC_ERROR_CANCELLED);
    }
    close_stage(&s);
}

static void test_destroying_a_queue_now_ends_what_is_in_flight_for_those_who_asked_to_be_told(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error;
    outcome told;
    void *buffer;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = metal_retain(open_on(&s, 0));
    (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE, TELL(&told));
    ticket = SUBMIT(s.q[1], WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)));
    metal_retain(s.metal[0]);
    assert_ok(gpusync_queue_destroy_now(s.q[0]));
    s.q[0] = NULL;
    assert_int_equal(calls_of(&told), 1);
    assert_int_equal(told.result, GPUSYNC_ERROR_CANCELLED);
    finish(&s, 1);
    error = error_of(s.q[1], ticket);
    assert_int_equal(error.result, GPUSYNC_ERROR_CANCELLED);
    assert_string_equal(error.queue_label, "first");
    softmetal_finish(buffer);
    metal_release(buffer);
    metal_release(s.metal[0]);
    assert_int_equal(calls_of(&told), 1);
    close_stage(&s);
}

/* -- waits whose signal is on the device: they are looked after when the work that has them is over -------------- */

static void test_a_wait_whose_signal_is_on_the_device_is_listed_when_the_work_is_over(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    ticket = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)));
    assert_false(probe_is_listed(s.a));
    finish(&s, 0);
    finish(&s, 1);
    assert_false(probe_is_listed(s.a));
    assert_ok(gpusync_poll(s.q[1], ticket));
    close_stage(&s);
}

/* The same with the work of another queue behind which it is held, with another wait of its own, and as a strict one. */
static void test_what_is_held_ends_with_the_failure_of_a_signal_that_was_on_the_device(void **state)
{
    gpusync_ticket culprit, behind, among, strict;
    gpusync_error error;
    void *buffers[3];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    culprit = submit_failing(&s, 0, at(s.a, 1));
    (void)SUBMIT(s.q[1], WAITS(at(s.b, 9)));
    buffers[0] = metal_retain(open_on(&s, 1));
    buffers[1] = metal_retain(open_on(&s, 2));
    buffers[2] = metal_retain(OPEN(s.q[3], WAITS(at(s.a, 1))));
    behind = SUBMIT(s.q[1], BUFFERS(buffers[0]), WAITS(at(s.a, 1)));
    among = SUBMIT(s.q[2], BUFFERS(buffers[1]), WAITS(at(s.b, 9), at(s.a, 1)));
    strict = SUBMIT(s.q[3], BUFFERS(buffers[2]), .flags = GPUSYNC_STRICT);
    assert_int_equal(metal_status(buffers[2]), NOT_ENQUEUED);
    finish(&s, 0);
    error = error_of(s.q[1], behind);
    assert_original(&error, "first", behind);
    error = error_of(s.q[2], among);
    assert_original(&error, "first", among);
    error = error_of(s.q[3], strict);
    assert_original(&error, "first", strict);
    assert_int_equal(culprit, 1);
    assert_int_equal(metal_status(buffers[0]), NOT_ENQUEUED);
    assert_int_equal(metal_status(buffers[1]), NOT_ENQUEUED);
    assert_int_equal(metal_status(buffers[2]), NOT_ENQUEUED);
    metal_release(buffers[0]);
    metal_release(buffers[1]);
    metal_release(buffers[2]);
    assert_ok(gpusync_cancel_held(s.q[1]));
    close_stage(&s);
}

/* below: the promise that is held comes after the one that is not. */
static void check_promises_in_and_out_of_order(bool below)
{
    gpusync_ticket ticket, last;
    void *buffer;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    buffer = metal_retain(open_on(&s, 2));
    if (below) (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 1)));
    if (!below) (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    ticket = SUBMIT(s.q[2], BUFFERS(buffer), WAITS(at(s.a, 1)));
    assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.b, 1));
    assert_int_equal(metal_status(buffer), NOT_ENQUEUED); /* the device may signal 2 first */
    last = SUBMIT(s.q[3], BUFFERS(open_on(&s, 3)), WAITS(at(s.a, 2)));
    finish(&s, 0);
    assert_int_equal(metal_status(buffer), COMMITTED);
    finish(&s, 1);
    finish(&s, 2);
    finish(&s, 3);
    assert_ok(gpusync_poll(s.q[2], ticket));
    assert_ok(gpusync_poll(s.q[3], last));
    metal_release(buffer);
    close_stage(&s);
}

static void test_a_promise_that_is_held_holds_who_waits_for_it_whatever_is_promised_above(void **state)
{
    (void)state;
    check_promises_in_and_out_of_order(false);
    check_promises_in_and_out_of_order(true);
}

/* The event has passed the value already, on behalf of a later one, or soon will: the device would not wait. */
static void test_work_is_held_for_a_value_that_the_event_passes_too_early(void **state)
{
    gpusync_ticket tickets[2];
    void *buffers[2];
    stage s;
    unsigned i;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    for (i = 0; i < 2; i++) {
        if (i == 1) finish(&s, 1);
        buffers[i] = metal_retain(open_on(&s, 2 + i));
        tickets[i] = SUBMIT(s.q[2 + i], BUFFERS(buffers[i]), WAITS(at(s.a, 1)));
        assert_int_equal(metal_status(buffers[i]), NOT_ENQUEUED);
    }
    finish(&s, 0);
    for (i = 0; i < 2; i++) {
        assert_int_equal(metal_status(buffers[i]), COMMITTED);
        finish(&s, 2 + i);
        assert_ok(gpusync_poll(s.q[2 + i], tickets[i]));
        metal_release(buffers[i]);
    }
    close_stage(&s);
}

/* The device might signal the larger value first, and let go who waits there for the smaller: so that work goes after. */
static void check_larger_goes_after(bool encoded, bool killed, bool gone)
{
    gpusync_ticket ticket = 0;
    char report[2000];
    void *larger, *smaller;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    smaller = metal_retain(open_on(&s, 1));
    larger = metal_retain(open_on(&s, 0));
    if (killed) softmetal_fail(smaller, NULL, 3, NULL);
    (void)SUBMIT(s.q[1], BUFFERS(smaller), SIGNALS(at(s.a, 1)));
    if (encoded) assert_ok(gpusync_encode_signal(s.q[0], larger, at(s.a, 2)));
    if (encoded) assert_ok(gpusync_commit(s.q[0], larger, &ticket));
    else ticket = SUBMIT(s.q[0], BUFFERS(larger), SIGNALS(at(s.a, 2)));
    assert_int_equal(metal_status(larger), NOT_ENQUEUED);
    (void)gpusync_report(s.device, report, sizeof report);
    assert_non_null(strstr(report, "waits for value 1 of"));
    metal_retain(s.metal[1]);
    if (gone) {
        assert_ok(gpusync_queue_destroy_now(s.q[1]));
        s.q[1] = NULL;
    }
    softmetal_finish_queue(s.metal[1]);
    assert_int_equal(metal_status(larger), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0)); /* it does not need the smaller one */
    assert_result(gpusync_timeline_wait(s.a, 2, 0, NULL),
                  gone ? GPUSYNC_ERROR_CANCELLED : killed ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    metal_release(smaller);
    metal_release(larger);
    metal_release(s.metal[1]);
    close_stage(&s);
}

static void test_what_signals_more_goes_after_what_other_queues_have_on_the_device(void **state)
{
    unsigned i;
    (void)state;
    for (i = 0; i < 2; i++) {
        check_larger_goes_after(i, false, false);
        check_larger_goes_after(i, true, false);
        check_larger_goes_after(i, false, true);
    }
}

static void test_work_that_goes_after_other_work_is_cancelled_and_let_go_by_a_failure(void **state)
{
    gpusync_ticket ticket;
    void *larger;
    stage s;
    int fails;
    (void)state;
    for (fails = 0; fails < 2; fails++) {
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        larger = metal_retain(open_on(&s, 1));
        (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
        ticket = SUBMIT(s.q[1], BUFFERS(larger), SIGNALS(at(s.a, 2)));
        assert_result(gpusync_poll(s.q[1], ticket), GPUSYNC_NOT_READY);
        if (fails) assert_ok(gpusync_timeline_fail(s.a, NULL));
        else assert_ok(gpusync_cancel_held(s.q[1]));
        assert_int_equal(metal_status(larger), fails ? COMMITTED : NOT_ENQUEUED);
        if (fails) finish(&s, 1);
        assert_result(gpusync_wait(s.q[1], ticket, 0), fails ? GPUSYNC_OK : GPUSYNC_ERROR_CANCELLED);
        finish(&s, 0);
        metal_release(larger);
        close_stage(&s);
    }
}

/* It goes after that work, and not after what is below the value: that may be behind it in its own queue. */
static void test_work_goes_after_other_work_and_not_after_what_that_value_waits_for(void **state)
{
    void *lowest, *larger;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    lowest = open_on(&s, 0);
    larger = metal_retain(open_on(&s, 0));
    assert_ok(gpusync_encode_signal(s.q[0], lowest, at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    (void)SUBMIT(s.q[0], BUFFERS(larger), SIGNALS(at(s.a, 3)));
    assert_int_equal(metal_status(larger), NOT_ENQUEUED);
    finish(&s, 1);
    assert_int_equal(metal_status(larger), COMMITTED);
    assert_ok(gpusync_commit(s.q[0], lowest, NULL));
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 3);
    metal_release(larger);
    close_stage(&s);
}

/* What was refused because it would have to go after other work is not on its way: nobody goes after it. */
static void test_nobody_goes_after_work_that_was_refused(void **state)
{
    void *refused, *larger;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    refused = open_on(&s, 1);
    larger = metal_retain(open_on(&s, 2));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    assert_ok(gpusync_encode_signal(s.q[1], refused, at(s.b, 1)));
    assert_ok(gpusync_encode_signal(s.q[1], refused, at(s.a, 2)));
    metal_enqueue(refused);
    assert_result(gpusync_commit(s.q[1], refused, NULL), GPUSYNC_ERROR_ENQUEUED);
    (void)SUBMIT(s.q[2], BUFFERS(larger), SIGNALS(at(s.b, 2)));
    assert_int_equal(metal_status(larger), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_commit(s.q[1], refused, NULL));
    finish(&s, 1);
    finish(&s, 2);
    assert_int_equal(value_of(s.b), 2);
    metal_release(larger);
    close_stage(&s);
}

/* The device has it wait for the smaller value: it goes at once. */
static void test_what_waits_for_the_smaller_value_need_not_go_after_it(void **state)
{
    void *behind, *beside;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    behind = metal_retain(open_on(&s, 1));
    beside = metal_retain(open_on(&s, 2));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(behind), WAITS(at(s.a, 1)), SIGNALS(at(s.a, 2)));
    assert_int_equal(metal_status(behind), COMMITTED);
    (void)SUBMIT(s.q[2], BUFFERS(beside), WAITS(at(s.a, 2)), SIGNALS(at(s.a, 3)));
    assert_int_equal(metal_status(beside), COMMITTED);
    finish(&s, 0);
    finish(&s, 1);
    finish(&s, 2);
    assert_int_equal(value_of(s.a), 3);
    metal_release(behind);
    metal_release(beside);
    close_stage(&s);
}

/* What one timeline keeps on the host is not on its way on another. */
static void test_work_that_goes_after_other_work_keeps_nobody_else_from_going(void **state)
{
    void *larger, *consumer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    larger = metal_retain(open_on(&s, 1));
    consumer = metal_retain(open_on(&s, 3));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(larger), SIGNALS(at(s.b, 5), at(s.a, 2)));
    assert_int_equal(metal_status(larger), NOT_ENQUEUED);
    (void)SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)), SIGNALS(at(s.b, 3)));
    (void)SUBMIT(s.q[3], BUFFERS(consumer), WAITS(at(s.b, 3)));
    assert_int_equal(metal_status(consumer), COMMITTED);
    finish(&s, 0);
    assert_int_equal(metal_status(larger), NOT_ENQUEUED); /* 3 is below 5 */
    finish(&s, 2);
    assert_int_equal(metal_status(larger), COMMITTED);
    finish(&s, 1);
    finish(&s, 3);
    assert_int_equal(value_of(s.b), 5);
    metal_release(larger);
    metal_release(consumer);
    close_stage(&s);
}

/* On the device already, it would find the event at or above the value. */
static bool would_not_wait(void *buffer, gpusync_timeline *timeline, uint64_t value)
{
    uint64_t base;
    void *event = gpusync_timeline_metal(timeline, &base);
    return metal_status(buffer) != NOT_ENQUEUED && metal_event_value(event) >= value + base;
}

/* ... also when the promise below goes to the device after that. */
static void test_a_promise_that_goes_to_the_device_behind_a_later_one_is_waited_for(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 10))); /* held */
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 20)));
    finish(&s, 1); /* if that went to the device, its event has passed 10 */
    buffer = metal_retain(open_on(&s, 2));
    ticket = SUBMIT(s.q[2], BUFFERS(buffer), WAITS(at(s.a, 10)));
    assert_false(would_not_wait(buffer, s.a, 10));
    assert_ok(gpusync_timeline_signal(s.b, 1)); /* on its way now, but it has not ended */
    assert_false(would_not_wait(buffer, s.a, 10));
    assert_result(gpusync_poll(s.q[2], ticket), GPUSYNC_NOT_READY);
    finish(&s, 0);
    assert_true(metal_status(buffer) >= COMMITTED);
    finish(&s, 1);
    finish(&s, 2);
    assert_ok(gpusync_poll(s.q[2], ticket));
    assert_int_equal(value_of(s.a), 20);
    metal_release(buffer);
    close_stage(&s);
}

static void test_work_on_the_device_does_not_fail_for_a_value_that_was_reached_before_the_failure(void **state)
{
    gpusync_ticket well, badly;
    gpusync_error error, reason;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    memset(&reason, 0, sizeof reason);
    reason.code = 7;
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    well = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)));
    finish(&s, 0);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 2)));
    badly = SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)), WAITS(at(s.a, 2)));
    assert_ok(gpusync_timeline_fail(s.a, &reason));
    finish(&s, 1);
    finish(&s, 2);
    assert_ok(gpusync_poll(s.q[1], well));
    error = error_of(s.q[2], badly);
    assert_int_equal(error.code, 7);
    finish(&s, 0);
    close_stage(&s);
}

static void test_what_failed_before_the_queue_was_destroyed_is_the_error(void **state)
{
    outcome told;
    void *buffer;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)submit_failing(&s, 0, at(s.a, 1));
    buffer = metal_retain(open_on(&s, 1));
    (void)SUBMIT(s.q[1], BUFFERS(buffer), WAITS(at(s.a, 1)), TELL(&told));
    finish(&s, 0);
    metal_retain(s.metal[1]);
    assert_ok(gpusync_queue_destroy_now(s.q[1]));
    s.q[1] = NULL;
    assert_int_equal(calls_of(&told), 1);
    assert_int_equal(told.result, GPUSYNC_ERROR_EXECUTION);
    softmetal_finish_queue(s.metal[1]);
    metal_release(s.metal[1]);
    metal_release(buffer);
    close_stage(&s);
}

/* The wait at its head was listed by the call that was refused, and is one of the next call's again. */
static void test_a_refused_command_buffer_with_a_wait_that_is_coming_fails_with_it(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)submit_failing(&s, 0, at(s.a, 1));
    buffer = OPEN(s.q[1], WAITS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], WAITS(at(s.b, 9)), SIGNALS(at(s.b, 10))); /* held: so what is behind it is looked after */
    REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[1], BUFFERS(buffer), SIGNALS(at(s.b, 10)), .flags = SIGNALS_INSIDE);
    assert_ok(gpusync_cancel_held(s.q[1]));
    ticket = SUBMIT(s.q[1], BUFFERS(buffer));
    finish(&s, 0);
    finish(&s, 1);
    error = error_of(s.q[1], ticket);
    assert_original(&error, "first", ticket);
    close_stage(&s);
}

static void test_a_refused_signal_is_not_on_its_way(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[0], SIGNALS(at(s.b, 1)));
    REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], SIGNALS(at(s.a, 1), at(s.b, 1)));
    buffer = metal_retain(open_on(&s, 1));
    ticket = SUBMIT(s.q[1], BUFFERS(buffer), WAITS(at(s.a, 1)));
    assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    finish(&s, 1);
    assert_ok(gpusync_poll(s.q[1], ticket));
    metal_release(buffer);
    close_stage(&s);
}

static void test_a_wait_at_a_head_is_judged_when_the_buffer_is_committed(void **state)
{
    gpusync_ticket failed, held, late;
    gpusync_error error, reason;
    gpusync_timeline *other;
    void *buffers[3];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    other = timeline_named(s.device, "other");
    memset(&reason, 0, sizeof reason);
    reason.code = 7;
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 10)));
    (void)submit_failing(&s, 1, at(s.b, 1));
    buffers[0] = metal_retain(OPEN(s.q[2], WAITS(at(s.b, 1))));
    buffers[1] = metal_retain(OPEN(s.q[2], WAITS(at(s.a, 10))));
    buffers[2] = metal_retain(OPEN(s.q[3], WAITS(at(s.a, 10))));
    finish(&s, 1); /* the first has failed by now */
    failed = commit_to(s.q[2], buffers[0]);
    error = error_of(s.q[2], failed);
    assert_original(&error, "second", failed);
    assert_int_equal(metal_status(buffers[0]), NOT_ENQUEUED);
    (void)SUBMIT(s.q[0], WAITS(at(other, 1)), SIGNALS(at(s.a, 5))); /* held, and below what the event passes now */
    finish(&s, 0);
    held = commit_to(s.q[2], buffers[1]);
    assert_int_equal(metal_status(buffers[1]), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(other, 1));
    finish(&s, 0);
    finish(&s, 2);
    assert_ok(gpusync_poll(s.q[2], held));
    assert_ok(gpusync_timeline_destroy(other));
    assert_ok(gpusync_timeline_fail(s.a, &reason)); /* after 10 was reached, and before it is asked for */
    late = commit_to(s.q[3], buffers[2]);
    error = error_of(s.q[3], late);
    assert_int_equal(error.code, 7);
    assert_int_equal(metal_status(buffers[2]), NOT_ENQUEUED);
    metal_release(buffers[0]);
    metal_release(buffers[1]);
    metal_release(buffers[2]);
    close_stage(&s);
}

static void test_a_refused_signal_below_others_hides_them_for_no_longer_than_the_call(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.b, 1), at(s.a, 20)));
    REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], SIGNALS(at(s.a, 15), at(s.b, 1)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 21)));
    ticket = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 21)));
    assert_false(probe_is_listed(s.a));
    finish(&s, 0);
    finish(&s, 1);
    assert_ok(gpusync_poll(s.q[1], ticket));
    close_stage(&s);
}

/* Every value is one of a timeline of its own, so that nothing but the chain leads to the first. */
static void test_a_lost_handler_far_up_a_chain_costs_time_only(void **state)
{
    enum { LINKS = 40 };
    gpusync_timeline *timelines[LINKS];
    gpusync_ticket ticket = 0;
    void *buffers[LINKS];
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    for (i = 0; i < LINKS; i++) {
        buffers[i] = metal_retain(i ? OPEN(s.q[i % 4], WAITS(at(timelines[i - 1], 1))) : open_on(&s, 0));
        timelines[i] = timeline_named(s.device, "a link");
        ticket = SUBMIT(s.q[i % 4], BUFFERS(buffers[i]), SIGNALS(at(timelines[i], 1)), .flags = SIGNALS_INSIDE);
    }
    softmetal_lose_handlers(buffers[0]);
    for (i = 0; i < LINKS; i++) softmetal_finish(buffers[i]);
    assert_result(gpusync_poll(s.q[(LINKS - 1) % 4], ticket), GPUSYNC_NOT_READY); /* not as far as that */
    assert_true(softmetal_timers() > 0); /* nobody sleeps */
    softmetal_fire_timer();
    assert_ok(gpusync_poll(s.q[(LINKS - 1) % 4], ticket));
    for (i = 0; i < LINKS; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    for (i = 0; i < LINKS; i++) metal_release(buffers[i]);
    assert_ok(gpusync_queue_destroy_now(s.q[0]));
    s.q[0] = NULL;
    close_stage(&s);
}

static void test_a_buffer_that_is_refused_is_what_it_was(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = OPEN(s.q[0], WAITS(at(s.a, 1)));
    assert_result(gpusync_track(s.q[0], buffer, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
    buffer = metal_retain(OPEN(s.q[0], WAITS(at(s.a, 1))));
    assert_result(gpusync_track(s.q[0], buffer, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    ticket = commit_to(s.q[0], buffer); /* with the wait at its head */
    assert_int_equal(metal_status(buffer), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(metal_status(buffer), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], ticket));
    metal_release(buffer);
    close_stage(&s);
}

/* -- what a callback may do */

static void submit_again(outcome *o)
{
    o->answers[0] = gpusync_submit(o->stage->q[0], &(gpusync_submission){TELL(o->next)}, &o->ticket);
    o->answers[1] = gpusync_poll(o->stage->q[0], o->ticket);
    o->answers[2] = calls_of(o->next) ? GPUSYNC_OK : GPUSYNC_NOT_READY;
}

static void test_a_callback_may_submit_and_the_next_comes_after_it(void **state)
{
    unsigned own; /* the first is over in the call */
    (void)state;
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
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)));
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
    cancelled = SUBMIT(s.q[0], WAITS(at(s.a, 2)));
    ticket = SUBMIT(s.q[1], BUFFERS(buffer), WAITS(at(s.a, 1)));
    failed = SUBMIT(s.q[2], WAITS(at(s.b, 1)));
    finish(&s, 0);
    assert_int_equal(calls_of(&told), 1);
    for (i = 0; i < 5; i++) assert_ok(told.answers[i]);
    assert_int_equal(metal_status(buffer), COMMITTED);
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
        result = gpusync_command_buffer(l->queue, NULL, &buffer);
        if (result == GPUSYNC_OK)
            result = gpusync_submit(l->queue,
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

/* == release after ============================================================================================= */

static void test_an_object_is_released_once_when_its_ticket_has_ended(void **state)
{
    int kind;
    unsigned fails;
    (void)state;
    for (kind = 0; kind < TICKET_KINDS; kind++)
        for (fails = 0; fails < 2; fails++) {
            gpusync_ticket ticket;
            void *object;
            stage s;
            open_stage(&s, SOFTMETAL_MANUAL, 1);
            object = memory_of(&s, 1);
            ticket = ticket_of(&s, 0, kind, fails);
            assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
            assert_int_equal(owners_of(object), 2);
            assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object)); /* the same again */
            assert_int_equal(owners_of(object), 3);
            finish(&s, 0);
            assert_int_equal(owners_of(object), 1);
            assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object)); /* at once */
            assert_int_equal(owners_of(object), 1);
            metal_release(object);
            assert_int_equal(softmetal_live("buffer"), 0);
            close_stage(&s);
        }
}

static void test_an_object_is_not_released_inside_a_wait(void **state)
{
    gpusync_ticket ticket;
    void *object, *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    object = memory_of(&s, 1);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer));
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
    softmetal_set_dispatch_threads(0);
    softmetal_complete(buffer);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(softmetal_retain_count(object), 2);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    finish(&s, 0);
    assert_int_equal(owners_of(object), 1);
    metal_release(object);
    close_stage(&s);
}

/* A ticket may end without any command buffer of Metal's. */
static void test_an_object_is_released_soon_though_no_handler_is_to_come(void **state)
{
    unsigned tracked;
    (void)state;
    for (tracked = 0; tracked < 2; tracked++) {
        void *object, *buffer;
        gpusync_ticket ticket;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 1);
        object = memory_of(&s, 1);
        buffer = metal_queue_command_buffer(s.metal[0]);
        if (tracked) assert_ok(gpusync_track(s.q[0], buffer, &ticket));
        else ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 1)));
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
        assert_int_equal(owners_of(object), 2);
        if (tracked) assert_ok(gpusync_untrack(s.q[0], ticket));
        else assert_ok(gpusync_cancel_held(s.q[0]));
        finish(&s, 0);
        assert_int_equal(owners_of(object), 1);
        metal_release(object);
        metal_release(buffer);
        close_stage(&s);
    }
}

static void test_an_object_waits_for_its_own_ticket_only(void **state)
{
    enum { MANY = 100 };
    gpusync_ticket tickets[3];
    void *objects[3], *buffers[3];
    unsigned i, k;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 3; i++) {
        objects[i] = memory_of(&s, 1);
        buffers[i] = open_on(&s, 0);
        tickets[i] = i == 1 ? commit_to(s.q[0], buffers[i]) : SUBMIT(s.q[0], BUFFERS(buffers[i]));
        for (k = 0; k < MANY; k++) assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], tickets[i]), objects[i]));
    }
    softmetal_finish(buffers[1]);
    assert_int_equal(owners_of(objects[0]), 1 + MANY);
    assert_int_equal(owners_of(objects[1]), 1);
    softmetal_finish(buffers[0]);
    assert_int_equal(owners_of(objects[0]), 1);
    assert_int_equal(owners_of(objects[2]), 1 + MANY);
    finish(&s, 0);
    for (i = 0; i < 3; i++) {
        assert_int_equal(owners_of(objects[i]), 1);
        metal_release(objects[i]);
    }
    close_stage(&s);
}

static void test_destroying_the_queue_releases_what_is_left(void **state)
{
    gpusync_ticket held;
    void *objects[2], *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    objects[0] = memory_of(&s, 1);
    objects[1] = memory_of(&s, 1);
    held = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 1)));
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], held), objects[0]));
    close_queue(&s, 0);
    assert_int_equal(owners_of(objects[0]), 1);
    buffer = metal_retain(open_on(&s, 1));
    metal_retain(s.metal[1]);
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[1], commit_to(s.q[1], buffer)), objects[1]));
    assert_ok(gpusync_queue_destroy_now(s.q[1])); /* with the work in flight */
    s.q[1] = NULL;
    assert_int_equal(owners_of(objects[1]), 1);
    finish(&s, 1);
    assert_int_equal(owners_of(objects[1]), 1);
    metal_release(buffer);
    metal_release(s.metal[1]);
    metal_release(objects[0]);
    metal_release(objects[1]);
    close_stage(&s);
}

/* Nobody can say any more when the GPU is through with it. */
static void test_on_a_lost_device_an_object_is_kept_until_its_queue_is_destroyed(void **state)
{
    gpusync_ticket ticket;
    void *objects[2], *stuck, *culprit;
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    for (i = 0; i < 2; i++) objects[i] = memory_of(&s, 1);
    stuck = metal_retain(open_on(&s, 0));
    ticket = commit_to(s.q[0], stuck);
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), objects[0])); /* before, */
    culprit = open_on(&s, 1);
    softmetal_fail(culprit, NULL, 4, "access revoked");
    (void)commit_to(s.q[1], culprit);
    finish(&s, 1);
    assert_true(gpusync_device_is_lost(s.device));
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), objects[1])); /* ... and after the loss */
    for (i = 0; i < 2; i++) assert_int_equal(owners_of(objects[i]), 2);
    metal_retain(s.metal[0]);
    assert_ok(gpusync_queue_destroy(s.q[0]));
    s.q[0] = NULL;
    for (i = 0; i < 2; i++) {
        assert_int_equal(owners_of(objects[i]), 1);
        metal_release(objects[i]);
    }
    softmetal_finish(stuck);
    metal_release(stuck);
    metal_release(s.metal[0]);
    close_stage(&s);
}

static void test_nothing_is_retained_where_release_after_refuses(void **state)
{
    gpusync_ticket ticket;
    void *object;
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    object = memory_of(&s, 1);
    ticket = commit_on(&s, 0);
    assert_result(gpusync_release_after(gpusync_at_ticket(NULL, ticket), object), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket + 1), object), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], GPUSYNC_EVERYTHING), object),
                  GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], ((gpusync_ticket)1 << 63) + 1), object),
                  GPUSYNC_ERROR_INVALID_TICKET);
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], GPUSYNC_NO_TICKET), object)); /* which has always ended */
    assert_int_equal(owners_of(object), 1);
    for (i = 0; i < 8; i++)
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object)); /* these need no memory */
    s.rig.memory.fail_at = 1;
    s.rig.memory.fail_after = true;
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object), GPUSYNC_ERROR_OUT_OF_MEMORY);
    s.rig.memory.fail_at = 0;
    assert_int_equal(owners_of(object), 1 + 8);
    finish(&s, 0);
    assert_int_equal(owners_of(object), 1);
    metal_release(object);
    close_stage(&s);
}

/* == what is refused =========================================================================================== */

static void test_arguments_that_make_no_sense_are_refused(void **state)
{
    gpusync_point point;
    gpusync_device_desc device_desc;
    gpusync_device *other = NULL;
    gpusync_queue *strange_queue = NULL;
    gpusync_timeline *strange = NULL;
    gpusync_ticket ticket = 9;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.metal_device = s.rig.metal_device;
    assert_ok(gpusync_device_create(&device_desc, &other));
    strange_queue = queue_new(other);
    assert_ok(gpusync_timeline_create(other, NULL, &strange));
    buffer = open_on(&s, 0);
    memset(&point, 0, sizeof point);
    assert_result(gpusync_submit(s.q[0], NULL, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, NULL, BUFFERS(buffer));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], .wait_count = 1);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], .signal_count = 1);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], .command_buffer_count = 1);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), .flags = 8);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer, NULL));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer, buffer));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), WAITS(point));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), SIGNALS(point));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), SIGNALS(after(s.q[0], 1)));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), WAITS(at(s.a, 1), at(strange, 1)));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1), at(strange, 1)));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), WAITS(after(strange_queue, 0)));
    assert_int_equal(value_of(s.a), 0);
    (void)SUBMIT(s.q[0], SIGNALS(at(s.a, 1))); /* none of them has promised it */
    assert_int_equal(commit_to(s.q[0], buffer), 2); /* nor taken a ticket, nor the buffer */
    finish(&s, 0);
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    assert_ok(gpusync_timeline_destroy(strange));
    assert_ok(gpusync_queue_destroy(strange_queue));
    assert_ok(gpusync_device_destroy(other));
    close_stage(&s);
}

static void test_tickets_that_are_none_are_refused(void **state)
{
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = open_on(&s, 0);
    (void)commit_on(&s, 1);
    REFUSED(GPUSYNC_ERROR_INVALID_TICKET, s.q[0], BUFFERS(buffer), WAITS(after(s.q[1], 1), after(s.q[1], 2)));
    REFUSED(GPUSYNC_ERROR_INVALID_TICKET, s.q[0], BUFFERS(buffer), WAITS(after(s.q[1], ((gpusync_ticket)1 << 63) + 1)));
    REFUSED(GPUSYNC_ERROR_INVALID_TICKET, s.q[0], BUFFERS(buffer), WAITS(after(s.q[1], GPUSYNC_EVERYTHING)));
    REFUSED(GPUSYNC_ERROR_INVALID_TICKET, s.q[0], BUFFERS(buffer), WAITS(after(s.q[0], 1))); /* its own would be */
    finish(&s, 1);
    assert_int_equal(commit_to(s.q[0], buffer), 1);
    finish(&s, 0);
    close_stage(&s);
}

static void test_values_that_do_not_rise_are_refused(void **state)
{
    uint32_t flags;
    (void)state;
    for (flags = 0; flags < 8; flags += 2) { /* STRICT, UNORDERED */
        uint64_t made;
        void *buffer;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        assert_ok(gpusync_timeline_signal(s.a, 5));
        (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 8)));
        buffer = open_on(&s, 0);
        made = (uint64_t)softmetal_live("command_buffer");
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 0)), .flags = flags);
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 5)), .flags = flags);
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 1), at(s.a, 8)), .flags = flags);
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 1), at(s.b, 1)), .flags = flags);
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, GPUSYNC_MAX_VALUE + 1)),
                .flags = flags);
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), WAITS(at(s.b, GPUSYNC_MAX_VALUE + 1)),
                .flags = flags);
        assert_int_equal(softmetal_live("command_buffer"), made);
        assert_int_equal(softmetal_outstanding(s.metal[0]), 1);
        (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 1), at(s.a, 6)), .flags = flags); /* 6 is free */
        finish(&s, 0);
        assert_int_equal(value_of(s.a), 6);
        finish(&s, 1);
        assert_int_equal(value_of(s.a), 8);
        assert_int_equal(value_of(s.b), 1);
        close_stage(&s);
    }
}

static void test_a_failed_timeline_promises_nothing(void **state)
{
    gpusync_error reason;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_CANCELLED;
    assert_ok(gpusync_timeline_fail(s.a, &reason));
    buffer = open_on(&s, 0);
    REFUSED(GPUSYNC_ERROR_CANCELLED, s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 1), at(s.a, 1)));
    (void)SUBMIT(s.q[0], SIGNALS(at(s.b, 1)));
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
    finish(&s, 0);
    close_stage(&s);
}

/* Whichever of several cannot be taken, all of them stay with the caller, with the waits at their heads. */
static void test_buffers_of_a_refused_submission_are_still_the_callers(void **state)
{
    void *with_head, *plain, *theirs, *foreign_buffer, *committed, *tracked, *not_one;
    unsigned long owners;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    with_head = OPEN(s.q[0], WAITS(at(s.a, 1)));
    plain = open_on(&s, 0);
    theirs = metal_queue_command_buffer(s.metal[0]);
    foreign_buffer = open_on(&s, 1);
    committed = metal_retain(open_on(&s, 0));
    (void)commit_to(s.q[0], committed);
    tracked = metal_queue_command_buffer(s.metal[0]);
    not_one = memory_of(&s, 1);
    owners = softmetal_retain_count(theirs);
#define THEM with_head, plain, theirs
    REFUSED(GPUSYNC_ERROR_WRONG_QUEUE, s.q[0], BUFFERS(THEM, foreign_buffer), SIGNALS(at(s.b, 1)));
    REFUSED(GPUSYNC_ERROR_ALREADY_COMMITTED, s.q[0], BUFFERS(THEM, committed), SIGNALS(at(s.b, 1)));
    assert_ok(gpusync_track(s.q[0], tracked, &ticket));
    REFUSED(GPUSYNC_ERROR_ALREADY_TRACKED, s.q[0], BUFFERS(THEM, tracked), SIGNALS(at(s.b, 1)));
    REFUSED(GPUSYNC_ERROR_UNSUPPORTED, s.q[0], BUFFERS(THEM, not_one), SIGNALS(at(s.b, 1)));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(THEM, theirs), SIGNALS(at(s.b, 1)));
#undef THEM
    assert_int_equal(softmetal_retain_count(theirs), owners);
    assert_int_equal(softmetal_outstanding(s.metal[0]), 5);
    assert_int_equal(commit_to(s.q[0], theirs), 3);
    ticket = SUBMIT(s.q[0], BUFFERS(with_head), SIGNALS(at(s.b, 1)));
    assert_int_equal(metal_status(with_head), NOT_ENQUEUED); /* its wait is still one */
    assert_ok(gpusync_command_buffer_discard(s.q[0], plain));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    metal_commit(tracked);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    (void)commit_to(s.q[1], foreign_buffer);
    finish(&s, 1);
    metal_release(theirs);
    metal_release(tracked);
    metal_release(committed);
    metal_release(not_one);
    close_stage(&s);
}

static void test_held_buffers_cannot_be_used_again(void **state)
{
    gpusync_ticket tickets[2];
    void *ours, *theirs;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    ours = open_on(&s, 0);
    theirs = metal_queue_command_buffer(s.metal[0]);
    tickets[0] = SUBMIT(s.q[0], BUFFERS(ours, theirs), WAITS(at(s.a, 1)));
    REFUSED(GPUSYNC_ERROR_ALREADY_TRACKED, s.q[0], BUFFERS(ours));
    REFUSED(GPUSYNC_ERROR_ALREADY_TRACKED, s.q[0], BUFFERS(theirs), .flags = GPUSYNC_UNORDERED);
    assert_result(gpusync_commit(s.q[0], ours, &tickets[1]), GPUSYNC_ERROR_ALREADY_TRACKED);
    assert_result(gpusync_track(s.q[0], theirs, &tickets[1]), GPUSYNC_ERROR_ALREADY_TRACKED);
    assert_result(gpusync_command_buffer_discard(s.q[0], ours), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], tickets[0], 0));
    metal_release(theirs);
    close_stage(&s);
}

static void test_an_enqueued_buffer_cannot_be_held(void **state)
{
    gpusync_ticket ticket;
    void *ours, *theirs;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    ours = open_on(&s, 0);
    theirs = metal_queue_command_buffer(s.metal[0]);
    metal_enqueue(theirs);
    REFUSED(GPUSYNC_ERROR_ENQUEUED, s.q[0], BUFFERS(ours, theirs), WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 2);
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)));
    assert_result(gpusync_commit(s.q[0], theirs, &ticket), GPUSYNC_ERROR_ENQUEUED); /* behind what is held */
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    ticket = SUBMIT(s.q[0], BUFFERS(theirs, ours), SIGNALS(at(s.b, 1)), .flags = GPUSYNC_UNORDERED); /* is not held */
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    metal_release(theirs);
    close_stage(&s);
}

static void test_an_eighth_of_the_room_is_kept_free_of_what_is_held(void **state)
{
    gpusync_ticket passing;
    void *last;
    unsigned i;
    stage s;
    (void)state;
    open_stage_with(&s, SOFTMETAL_MANUAL, 1, 16);
    for (i = 0; i < 7; i++) (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, i + 1u)));
    last = open_on(&s, 0);
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(last), WAITS(at(s.a, 9)));
    passing = SUBMIT(s.q[0], BUFFERS(last), SIGNALS(at(s.a, 7)), .flags = GPUSYNC_UNORDERED);
    finish(&s, 0);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], passing, 0));
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    assert_int_equal(value_of(s.a), 7);
    close_stage(&s);
}

static void test_no_room_for_command_buffers_of_our_own(void **state)
{
    uint64_t none = 0, little = MS(2), begin;
    void *buffers[4];
    unsigned i;
    stage s;
    (void)state;
    open_stage_with(&s, SOFTMETAL_MANUAL, 1, 4);
    for (i = 0; i < 3; i++) buffers[i] = open_on(&s, 0);
    for (i = 0; i < 2; i++) (void)commit_to(s.q[0], buffers[i]);
    buffers[3] = open_on(&s, 0);
    REFUSED(GPUSYNC_TIMEOUT, s.q[0], BUFFERS(buffers[2]), SIGNALS(at(s.a, 1)), .timeout_ns = &none);
    begin = gpusync_now_ns();
    REFUSED(GPUSYNC_TIMEOUT, s.q[0], BUFFERS(buffers[2]), SIGNALS(at(s.a, 1)), .timeout_ns = &little);
    assert_true(gpusync_now_ns() - begin >= little);
    finish(&s, 0);
    (void)commit_on(&s, 0);
    (void)SUBMIT(s.q[0], BUFFERS(buffers[2]), SIGNALS(at(s.a, 1)), .timeout_ns = &none);
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffers[3]));
    finish(&s, 0);
    for (i = 0; i < 4; i++) buffers[i] = open_on(&s, 0); /* nothing of this ends by itself, so no wait helps */
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(buffers[0]), SIGNALS(at(s.a, 2)));
    (void)SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1], buffers[2], buffers[3]), SIGNALS(at(s.a, 2)),
                 .flags = SIGNALS_INSIDE);
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 2);
    close_stage(&s);
}

/* One in front and one behind never fit in a queue of one, however long the call might wait. */
static void test_more_command_buffers_of_our_own_than_the_queue_has_are_refused(void **state)
{
    uint64_t none = 0, little = MS(20);
    void *theirs;
    stage s;
    (void)state;
    open_stage_with(&s, SOFTMETAL_MANUAL, 1, 1);
    assert_ok(gpusync_timeline_expect(s.a, 1)); /* so that it need not be held */
    theirs = metal_queue_command_buffer(s.metal[0]);
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(theirs), WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)),
            .timeout_ns = &none);
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(theirs), WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)),
            .timeout_ns = &little);
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(theirs), WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)));
    (void)commit_to(s.q[0], theirs); /* it is still the caller's */
    finish(&s, 0);
    metal_release(theirs);
    close_stage(&s);
}

static void submit_without_room(outcome *o)
{
    gpusync_submission submission = {SIGNALS(at(o->stage->a, 1))};
    o->answers[0] = gpusync_submit(o->stage->q[1], &submission, &o->ticket);
    submission.flags = GPUSYNC_STRICT;
    o->answers[1] = gpusync_submit(o->stage->q[1], &submission, &o->ticket);
}

static void test_in_a_callback_nobody_waits_for_room(void **state)
{
    outcome told;
    unsigned i;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage_with(&s, SOFTMETAL_MANUAL, 2, 2);
    told.then = submit_without_room;
    told.stage = &s;
    for (i = 0; i < 2; i++) (void)commit_on(&s, 1);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), TELL(&told));
    finish(&s, 0);
    assert_int_equal(calls_of(&told), 1);
    assert_int_equal(told.answers[0], GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(told.answers[1]); /* needs none */
    assert_int_equal(value_of(s.a), 1);
    finish(&s, 1);
    close_stage(&s);
}

static void test_what_metal_or_memory_does_not_give_changes_nothing(void **state)
{
    unsigned way, step, done;
    (void)state;
    for (way = 0; way < 3; way++)
        for (step = 1, done = 0; !done; step++) {
            gpusync_point waits[9], signals[9];
            gpusync_submission submission;
            gpusync_ticket awaited, ticket = 9;
            gpusync_result result;
            void *buffers[2];
            size_t i;
            stage s;
            open_stage(&s, SOFTMETAL_MANUAL, 2);
            awaited = commit_on(&s, 1);
            buffers[0] = OPEN(s.q[0], WAITS(after(s.q[1], awaited)));
            buffers[1] = metal_queue_command_buffer(s.metal[0]);
            memset(&submission, 0, sizeof submission);
            for (i = 0; i < 9; i++) { /* more than there is room for without memory */
                waits[i] = after(s.q[1], awaited);
                signals[i] = at(s.a, i + 1);
            }
            submission.waits = waits;
            submission.signals = signals;
            submission.wait_count = submission.signal_count = 9;
            submission.command_buffers = buffers;
            submission.command_buffer_count = 2;
            if (way < 2) {
                s.rig.memory.fail_after = way;
                s.rig.memory.fail_at = (long)step;
            } else {
                softmetal_fail_creation(step, false);
            }
            result = gpusync_submit(s.q[0], &submission, &ticket);
            s.rig.memory.fail_at = 0;
            softmetal_fail_creation(0, false);
            done = result == GPUSYNC_OK;
            if (!done) {
                assert_int_equal(result, way < 2 ? GPUSYNC_ERROR_OUT_OF_MEMORY : GPUSYNC_ERROR_METAL_NIL);
                assert_int_equal(ticket, GPUSYNC_NO_TICKET);
                assert_int_equal(softmetal_outstanding(s.metal[0]), 2);
                assert_int_equal(softmetal_retain_count(buffers[1]), 1);
                assert_ok(gpusync_submit(s.q[0], &submission, &ticket));
            }
            assert_int_equal(ticket, 1);
            finish(&s, 1);
            finish(&s, 0);
            assert_ok(gpusync_wait(s.q[0], ticket, 0));
            assert_int_equal(value_of(s.a), 9);
            metal_release(buffers[1]);
            close_stage(&s);
            assert_true(step < 100);
        }
}

static void test_a_lost_device_takes_no_submission_and_ends_what_is_held(void **state)
{
    gpusync_ticket ticket;
    outcome told;
    void *buffer;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    ticket = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 1)), TELL(&told));
    buffer = open_on(&s, 1);
    softmetal_fail(buffer, NULL, 11, NULL);
    (void)SUBMIT(s.q[1], BUFFERS(buffer));
    buffer = open_on(&s, 1);
    finish(&s, 1);
    assert_true(gpusync_device_is_lost(s.device));
    assert_result(gpusync_wait(s.q[0], ticket, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(calls_of(&told), 1);
    assert_int_equal(told.result, GPUSYNC_ERROR_DEVICE_LOST);
    REFUSED(GPUSYNC_ERROR_DEVICE_LOST, s.q[1], BUFFERS(buffer));
    assert_ok(gpusync_command_buffer_discard(s.q[1], buffer));
    close_stage(&s);
}

/* == what can be asked ========================================================================================= */

static void test_the_info_of_a_submission_spans_its_command_buffers(void **state)
{
    gpusync_ticket ticket, nothing, failing;
    gpusync_ticket_info info;
    double start, end;
    void *buffers[3];
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 1);
    for (i = 0; i < 3; i++) {
        buffers[i] = metal_retain(open_on(&s, 0));
        softmetal_set_duration(buffers[i], MS(1));
    }
    ticket = SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1], buffers[2]));
    assert_ok(gpusync_wait(s.q[0], ticket, SECONDS(20)));
    assert_ok(gpusync_get_info(s.q[0], ticket, &info));
    assert_ok(info.result);
    start = METAL__AS0(double)(buffers[0], metal__sel("GPUStartTime"));
    end = METAL__AS0(double)(buffers[2], metal__sel("GPUEndTime"));
    assert_true(info.gpu_start_s >= start && info.gpu_start_s <= start);
    assert_true(info.gpu_end_s >= end && info.gpu_end_s <= end);
    assert_true(end - start >= 0.003);
    for (i = 0; i < 3; i++) metal_release(buffers[i]);
    nothing = SUBMIT(s.q[0], .flags = 0);
    assert_ok(gpusync_get_info(s.q[0], nothing, &info));
    assert_ok(info.result);
    assert_true(info.gpu_start_s >= 0 && info.gpu_start_s <= 0 && info.gpu_end_s >= 0 && info.gpu_end_s <= 0);
    failing = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 1)));
    assert_result(gpusync_get_info(s.q[0], failing, &info), GPUSYNC_NOT_READY);
    assert_ok(gpusync_timeline_fail(s.a, NULL));
    assert_ok(gpusync_get_info(s.q[0], failing, &info));
    assert_int_equal(info.result, GPUSYNC_ERROR_EXECUTION);
    assert_true(info.gpu_start_s >= 0 && info.gpu_start_s <= 0);
    close_stage(&s);
}

static void test_statistics_of_submissions(void **state)
{
    gpusync_stats stats;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0), open_on(&s, 0)), WAITS(at(s.a, 1), at(s.a, 1)), SIGNALS(at(s.b, 1)),
                 .flags = SIGNALS_INSIDE); /* skips two, saves one */
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 2)), SIGNALS(at(s.b, 2))); /* held, saves one */
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.b, 2))); /* held: the first has not gone; its wait stays */
    (void)SUBMIT(s.q[0], .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_timeline_signal(s.a, 2));
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 3)));
    assert_ok(gpusync_cancel_held(s.q[0]));
    finish(&s, 0);
    stats = stats_of(s.q[0]);
    assert_int_equal(stats.commits, 5);
    assert_int_equal(stats.completions, 5);
    assert_int_equal(stats.failures, 0); /* what was cancelled did not fail */
    assert_int_equal(stats.held, 3);
    assert_int_equal(stats.waits_skipped, 2);
    assert_int_equal(stats.buffers_saved, 2);
    close_queue(&s, 0);
    assert_ok(gpusync_device_get_stats(s.device, &stats));
    assert_int_equal(stats.commits, 5);
    assert_int_equal(stats.held, 3);
    assert_int_equal(stats.buffers_saved, 2);
    close_stage(&s);
}

static void test_the_report_says_what_is_held_for_what_and_who_promised_it(void **state)
{
    uint64_t base;
    void *event;
    foreign f;
    gpusync_timeline *expected;
    value_job sleeper;
    stage *s = &f.stage;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL); /* timelines 1 'a', 2 'b', ..., 5 imported; queues 1 and 2 */
    (void)SUBMIT(s->q[0], BUFFERS(open_on(s, 0)), WAITS(at(s->a, 7)), SIGNALS(at(s->b, 4)), .label = "shadows");
    assert_true(reports(s->device, "ticket 1 'shadows': held for "));
    assert_true(reports(s->device, "waits for value 7 of timeline 1 'a': nobody has promised it\n"));
    (void)SUBMIT(s->q[1], WAITS(at(s->b, 3), after(s->q[0], 1), at(f.timeline, 2)), .label = "lights");
    assert_true(reports(s->device, "ticket 1 'lights': held for "));
    assert_true(reports(s->device, "waits for value 3 of timeline 2 'b': promised by ticket 1 of queue 1, which is held\n"));
    assert_true(reports(s->device, "waits for ticket 1 of queue 1\n"));
    assert_true(reports(s->device, "waits for value 2 of timeline 5 '': others signal it\n"));
    value_job_start(&sleeper, s->b, 4, SECONDS(20));
    await_sleepers(s->device, 1);
    assert_true(reports(s->device, "a wait for value 4"));
    assert_ok(gpusync_timeline_signal(s->a, 7));
    assert_true(reports(s->device, "ticket 1 'shadows': submitted for "));
    assert_true(reports(s->device, "'work': committed for "));
    assert_false(reports(s->device, "nobody has promised it"));
    assert_false(reports(s->device, "which is held"));
    assert_true(reports(s->device, "waits for value 3 of timeline 2 'b': promised by ticket 1 of queue 1\n"));
    finish(s, 0);
    assert_ok(value_job_join(&sleeper));
    assert_false(reports(s->device, "shadows"));
    assert_false(reports(s->device, "waits for value 3"));
    assert_true(reports(s->device, "others signal it"));
    signal_abroad(&f, NULL, 0, 2);
    finish(s, 1);
    assert_true(reports(s->device, ", idle"));
    expected = timeline_named(s->device, "expected");
    (void)SUBMIT(s->q[0], WAITS(at(expected, 2)));
    assert_ok(gpusync_timeline_expect(expected, 2));
    assert_true(reports(s->device, "'expected': others signal it\n"));
    event = gpusync_timeline_metal(expected, &base);
    metal_event_signal(event, 2 + base);
    finish(s, 0);
    assert_ok(gpusync_timeline_destroy(expected));
    close_foreign(&f);
}

static void test_the_report_leaves_out_what_work_need_not_wait_for_any_more(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    ticket = commit_on(&s, 0);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(after(s.q[0], ticket), at(s.a, 1), at(s.b, 1)));
    assert_true(reports(s.device, "waits for ticket 1 of queue 1\n"));
    assert_true(reports(s.device, "waits for value 1 of timeline 1 'a'"));
    finish(&s, 0);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_false(reports(s.device, "waits for ticket"));
    assert_false(reports(s.device, "timeline 1 'a': nobody"));
    assert_true(reports(s.device, "waits for value 1 of timeline 2 'b': nobody has promised it\n"));
    assert_ok(gpusync_timeline_signal(s.b, 1));
    finish(&s, 1);
    close_stage(&s);
}

/* What the work itself is to signal comes after it, and so is no promise of what it waits for. */
static void test_the_report_takes_no_signal_of_the_work_itself_for_a_promise(void **state)
{
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 5)), SIGNALS(at(s.a, 10)));
    assert_true(reports(s.device, "waits for value 5 of timeline 1 'a': nobody has promised it\n"));
    assert_ok(gpusync_timeline_signal(s.a, 5));
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 10);
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_for_what_is_reached_cost_nothing),
        cmocka_unit_test(test_of_several_waits_only_those_not_reached_are_encoded),
        cmocka_unit_test(test_a_wait_that_is_reached_while_held_is_not_encoded),
        cmocka_unit_test(test_every_shape_ends_and_makes_no_more_command_buffers_than_it_needs),
        cmocka_unit_test(test_a_submission_of_nothing_waits_for_nobody),
        cmocka_unit_test(test_several_command_buffers_run_in_their_order_and_end_as_one),
        cmocka_unit_test(test_command_buffers_may_come_from_anywhere),
        cmocka_unit_test(test_many_waits_and_signals_of_one_submission),
        cmocka_unit_test(test_a_wait_with_a_limit_for_a_promised_value_ends_there_and_can_be_repeated),
        cmocka_unit_test(test_a_promised_value_is_not_reached_before_its_submission_has_ended),
        cmocka_unit_test(test_a_value_counts_only_when_every_promise_below_it_is_kept),
        cmocka_unit_test(test_waits_for_any_and_all_of_promised_values_and_tickets),
        cmocka_unit_test(test_waits_for_any_and_all_where_some_fail),
        cmocka_unit_test(test_sleeping_waits_for_any_and_all_are_woken_by_the_end_of_submissions),
        cmocka_unit_test(test_it_does_not_matter_who_signals),
        cmocka_unit_test(test_a_wait_that_nobody_has_promised_is_held_until_the_host_signals),
        cmocka_unit_test(test_a_held_submission_goes_as_soon_as_its_signal_is_on_the_way),
        cmocka_unit_test(test_a_strict_submission_is_held_until_its_signal_has_come),
        cmocka_unit_test(test_a_strict_submission_signals_when_all_of_it_has_ended),
        cmocka_unit_test(test_a_signal_lets_a_whole_chain_of_held_submissions_go),
        cmocka_unit_test(test_what_comes_later_lines_up_behind_what_is_held),
        cmocka_unit_test(test_an_unordered_submission_is_passed_while_it_is_held),
        cmocka_unit_test(test_held_work_goes_in_the_order_of_the_queue),
        cmocka_unit_test(test_cancelling_ends_all_that_is_held_and_nothing_else),
        cmocka_unit_test(test_destroying_a_timeline_ends_what_is_held_for_a_value_nobody_has_promised),
        cmocka_unit_test(test_host_and_device_hand_a_byte_on_by_turns),
        cmocka_unit_test(test_a_diamond_over_four_queues),
        cmocka_unit_test(test_one_producer_and_a_consumer_on_each_queue),
        cmocka_unit_test(test_what_a_producer_made_is_there_at_every_hop),
        cmocka_unit_test(test_two_timelines_cross),
        cmocka_unit_test(test_two_queues_take_turns_ten_thousand_times),
        cmocka_unit_test(test_waits_in_front_and_signals_behind_do_not_gate_work_that_overlaps),
        cmocka_unit_test(test_waits_at_the_head_and_open_signals_gate_work_that_overlaps),
        cmocka_unit_test(test_strict_submissions_gate_work_that_overlaps),
        cmocka_unit_test(test_the_failure_of_a_promise_reaches_who_waits_on_the_host),
        cmocka_unit_test(test_the_failure_of_a_promise_reaches_work_that_waits_on_the_device),
        cmocka_unit_test(test_the_failure_of_a_promise_ends_what_is_held_for_it_and_for_that),
        cmocka_unit_test(test_the_error_is_that_of_the_first_wait_that_failed_and_the_works_own_comes_last),
        cmocka_unit_test(test_a_submission_after_the_failure_ends_at_once),
        cmocka_unit_test(test_a_failure_by_the_host_ends_what_is_held_in_the_call),
        cmocka_unit_test(test_a_device_wait_that_the_watchdog_ends_tells_of_the_failure_behind_it),
        cmocka_unit_test(test_one_failing_command_buffer_of_several_fails_the_submission),
        cmocka_unit_test(test_of_two_failing_command_buffers_the_first_is_told),
        cmocka_unit_test(test_work_that_waits_for_an_imported_timeline_goes_to_the_device_at_once),
        cmocka_unit_test(test_a_strict_submission_is_told_by_the_event_when_others_signal),
        cmocka_unit_test(test_promises_and_signals_of_others_on_one_event),
        cmocka_unit_test(test_a_value_signalled_by_others_before_the_call_is_not_waited_for),
        cmocka_unit_test(test_the_value_of_failure_on_an_event_of_others_fails_who_waits_on_the_device),
        cmocka_unit_test(test_work_goes_on_with_the_event_of_a_timeline_that_is_destroyed),
        cmocka_unit_test(test_an_expected_value_lets_held_work_go_to_the_device),
        cmocka_unit_test(test_tickets_of_every_kind_can_be_waited_for),
        cmocka_unit_test(test_work_that_waits_for_a_tracked_buffer_goes_after_its_owner_has_committed_it),
        cmocka_unit_test(test_a_ticket_that_is_taken_back_fails_who_waits_for_it),
        cmocka_unit_test(test_a_wait_for_a_ticket_of_the_same_queue_that_is_held),
        cmocka_unit_test(test_the_end_of_a_ticket_of_a_destroyed_queue_is_known),
        cmocka_unit_test(test_a_command_buffer_with_waits_at_its_head_can_simply_be_committed),
        cmocka_unit_test(test_the_failure_of_a_wait_at_the_head_fails_the_commit),
        cmocka_unit_test(test_waits_at_the_heads_and_waits_of_the_submission_all_count),
        cmocka_unit_test(test_a_wait_at_the_head_that_came_true_before_the_commit),
        cmocka_unit_test(test_a_strict_submission_holds_for_waits_at_the_head_too),
        cmocka_unit_test(test_a_command_buffer_with_waits_at_its_head_that_is_not_committed),
        cmocka_unit_test(test_the_timeline_of_a_wait_at_the_head_may_go_before_the_commit),
        cmocka_unit_test(test_the_queue_of_a_wait_at_the_head_may_go_before_the_commit),
        cmocka_unit_test(test_waits_at_a_head_that_make_no_sense_are_refused),
        cmocka_unit_test(test_a_callback_comes_once_on_metals_thread_with_the_result),
        cmocka_unit_test(test_no_callback_comes_inside_a_wait),
        cmocka_unit_test(test_a_callback_that_a_wait_found_due_comes_although_no_handler_does),
        cmocka_unit_test(test_of_a_held_submission_the_callback_comes_when_a_call_has_ended_it),
        cmocka_unit_test(test_a_callback_of_work_whose_handlers_have_run_comes_on_metals_thread),
        cmocka_unit_test(test_destroying_a_queue_settles_every_callback),
        cmocka_unit_test(test_destroying_a_queue_now_ends_what_is_in_flight_for_those_who_asked_to_be_told),
        cmocka_unit_test(test_a_callback_may_submit_and_the_next_comes_after_it),
        cmocka_unit_test(test_a_wait_whose_signal_is_on_the_device_is_listed_when_the_work_is_over),
        cmocka_unit_test(test_what_is_held_ends_with_the_failure_of_a_signal_that_was_on_the_device),
        cmocka_unit_test(test_a_promise_that_is_held_holds_who_waits_for_it_whatever_is_promised_above),
        cmocka_unit_test(test_work_is_held_for_a_value_that_the_event_passes_too_early),
        cmocka_unit_test(test_what_signals_more_goes_after_what_other_queues_have_on_the_device),
        cmocka_unit_test(test_work_that_goes_after_other_work_is_cancelled_and_let_go_by_a_failure),
        cmocka_unit_test(test_work_goes_after_other_work_and_not_after_what_that_value_waits_for),
        cmocka_unit_test(test_nobody_goes_after_work_that_was_refused),
        cmocka_unit_test(test_what_waits_for_the_smaller_value_need_not_go_after_it),
        cmocka_unit_test(test_work_that_goes_after_other_work_keeps_nobody_else_from_going),
        cmocka_unit_test(test_a_promise_that_goes_to_the_device_behind_a_later_one_is_waited_for),
        cmocka_unit_test(test_work_on_the_device_does_not_fail_for_a_value_that_was_reached_before_the_failure),
        cmocka_unit_test(test_what_failed_before_the_queue_was_destroyed_is_the_error),
        cmocka_unit_test(test_a_refused_command_buffer_with_a_wait_that_is_coming_fails_with_it),
        cmocka_unit_test(test_a_refused_signal_is_not_on_its_way),
        cmocka_unit_test(test_a_wait_at_a_head_is_judged_when_the_buffer_is_committed),
        cmocka_unit_test(test_a_refused_signal_below_others_hides_them_for_no_longer_than_the_call),
        cmocka_unit_test(test_a_lost_handler_far_up_a_chain_costs_time_only),
        cmocka_unit_test(test_a_buffer_that_is_refused_is_what_it_was),
        cmocka_unit_test(test_a_callback_must_not_wait_for_what_is_not_over_nor_destroy),
        cmocka_unit_test(test_a_callback_of_what_was_over_in_the_call_must_not_wait_either),
        cmocka_unit_test(test_a_callback_may_signal_and_let_held_work_go),
        cmocka_unit_test(test_callbacks_that_submit_the_next_frame_keep_a_loop_going),
        cmocka_unit_test(test_an_object_is_released_once_when_its_ticket_has_ended),
        cmocka_unit_test(test_an_object_is_not_released_inside_a_wait),
        cmocka_unit_test(test_an_object_is_released_soon_though_no_handler_is_to_come),
        cmocka_unit_test(test_an_object_waits_for_its_own_ticket_only),
        cmocka_unit_test(test_destroying_the_queue_releases_what_is_left),
        cmocka_unit_test(test_on_a_lost_device_an_object_is_kept_until_its_queue_is_destroyed),
        cmocka_unit_test(test_nothing_is_retained_where_release_after_refuses),
        cmocka_unit_test(test_arguments_that_make_no_sense_are_refused),
        cmocka_unit_test(test_tickets_that_are_none_are_refused),
        cmocka_unit_test(test_values_that_do_not_rise_are_refused),
        cmocka_unit_test(test_a_failed_timeline_promises_nothing),
        cmocka_unit_test(test_buffers_of_a_refused_submission_are_still_the_callers),
        cmocka_unit_test(test_held_buffers_cannot_be_used_again),
        cmocka_unit_test(test_an_enqueued_buffer_cannot_be_held),
        cmocka_unit_test(test_an_eighth_of_the_room_is_kept_free_of_what_is_held),
        cmocka_unit_test(test_no_room_for_command_buffers_of_our_own),
        cmocka_unit_test(test_more_command_buffers_of_our_own_than_the_queue_has_are_refused),
        cmocka_unit_test(test_in_a_callback_nobody_waits_for_room),
        cmocka_unit_test(test_what_metal_or_memory_does_not_give_changes_nothing),
        cmocka_unit_test(test_a_lost_device_takes_no_submission_and_ends_what_is_held),
        cmocka_unit_test(test_the_info_of_a_submission_spans_its_command_buffers),
        cmocka_unit_test(test_statistics_of_submissions),
        cmocka_unit_test(test_the_report_says_what_is_held_for_what_and_who_promised_it),
        cmocka_unit_test(test_the_report_leaves_out_what_work_need_not_wait_for_any_more),
        cmocka_unit_test(test_the_report_takes_no_signal_of_the_work_itself_for_a_promise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
