/* test_submit_tickets.c - what is waited for, by the host and by submissions, and what can be asked of a ticket

   Proved: pending values, tickets of every kind, waits at the head of a command buffer and events that others signal can
   all be waited for, alone or with others; the ticket's info, the statistics and the report tell what it waits for.

   This also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

/* Work without a label has no name: not that of a submission before it. */
static void test_a_label_is_that_of_one_submission(void **state)
{
    char *report;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 1)), .label = "the one before");
    report = report_of(s.device);
    assert_non_null(strstr(report, "'the one before'"));
    free(report);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 2)));
    report = report_of(s.device);
    assert_null(strstr(report, "'the one before'"));
    assert_non_null(strstr(report, ": held for "));
    free(report);
    assert_ok(gpusync_timeline_signal(s.a, 2));
    close_stage(&s);
}

/* The command buffers of a submission since its issue. And it waits for nothing that has come. */
static void test_the_report_of_a_submission_goes_with_the_time(void **state)
{
    uint64_t begun = gpusync_now_ns();
    char *report, *age;
    double most;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)));
    report = report_of(s.device);
    assert_non_null(strstr(report, "waits for value 1 of "));
    free(report);
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 1);
    report = report_of(s.device);
    most = (double)(gpusync_now_ns() - begun) / 1e6 + 0.1;
    assert_null(strstr(report, "waits for value "));
    age = strstr(report, "': committed for ");
    assert_non_null(age);
    assert_true(strtod(age + strlen("': committed for "), NULL) <= most);
    free(report);
    close_stage(&s);
}

static double at_five_seconds(void) { return 5; }
static double without_times(void) { return 0; }

static void test_a_command_buffer_without_times_leaves_those_of_the_others(void **state)
{
    void *first, *second;
    gpusync_ticket_info info;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    NOT_ON_METAL4("they are one commit");
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    first = open_on(&s, 0);
    second = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(first, second));
    softmetal_set_gpu_clock(at_five_seconds);
    softmetal_finish(first);
    softmetal_set_gpu_clock(without_times);
    softmetal_finish(second);
    softmetal_set_gpu_clock(NULL);
    assert_ok(gpusync_get_info(s.q[0], ticket, &info));
    assert_int_equal(info.gpu_start_s * 1e9, 5e9);
    assert_int_equal(info.gpu_end_s * 1e9, 5e9);
    close_stage(&s);
}

/* == waits on the host ========================================================================================= */

static void test_a_wait_with_a_limit_for_a_pending_value_ends_there_and_can_be_repeated(void **state)
{
    static const gpusync_wait_options ways[] = {{.spin = NULL}, {.spin = &no_spin}, {.blocking = true}};
    unsigned round;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (round = 0; round < (metal4_run() ? 2u : 3u); round++) {
        const gpusync_wait_options *options = &ways[round];
        gpusync_ticket ticket;
        uint64_t begin, value = round + 1u;
        ticket = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, value)));
        assert_result(gpusync_timeline_wait(s.a, value, 0, options), GPUSYNC_TIMEOUT);
        begin = gpusync_now_ns();
        assert_result(gpusync_timeline_wait(s.a, value, MS(3), options), GPUSYNC_TIMEOUT);
        assert_true(gpusync_now_ns() - begin >= MS(3));
        assert_result(gpusync_wait_ex(s.q[0], ticket, MS(1), options), GPUSYNC_TIMEOUT);
        assert_int_equal(value_of(s.a), value - 1);
        finish(&s, 0);
        assert_ok(gpusync_timeline_wait(s.a, value, 0, options));
        assert_int_equal(value_of(s.a), value);
    }
    close_stage(&s);
}

/* The event has the value long before the work has ended. */
static void test_a_pending_value_is_not_reached_before_its_submission_has_ended(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 4)));
    if (metal4_run()) softmetal_complete(buffer); /* the feedback is not there yet */
    else softmetal_finish(softmetal_last_buffer(s.metal[0])); /* shares nothing with the work, and overtakes it */
    assert_int_equal(raw_of(s.a), 4);
    assert_int_equal(value_of(s.a), 0);
    assert_result(gpusync_timeline_wait(s.a, 4, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_timeline_wait(s.a, 1, 0, NULL), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_int_equal(value_of(s.a), 4);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

static void test_a_value_counts_only_when_every_signal_below_it_is_kept(void **state)
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

static void test_waits_for_any_and_all_of_pending_values_and_tickets(void **state)
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
    fourth = SUBMIT(s.q[3], NO_WORK(s.q[3]), WAITS(after(s.q[2], third)));
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
    points[2] = after(s.q[2], SUBMIT(s.q[2], NO_WORK(s.q[2]), WAITS(at(s.b, 1))));
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

/* What raises the value does not matter to the sleeper: a thread, the device, another queue. */
static void signal_by_host(stage *s) { assert_ok(gpusync_timeline_signal(s->a, 1)); }

static void signal_by_work(stage *s)
{
    (void)SUBMIT(s->q[0], BUFFERS(open_on(s, 0)), SIGNALS(at(s->a, 1)), .flags = SIGNALS_INSIDE);
    finish(s, 0);
}

static void signal_by_barrier(stage *s)
{
    (void)SUBMIT(s->q[1], NO_WORK(s->q[1]), SIGNALS(at(s->a, 1)));
    finish(s, 1);
}

static void signal_by_strict_barrier(stage *s)
{
    (void)SUBMIT(s->q[1], NO_WORK(s->q[1]), SIGNALS(at(s->a, 1)), .flags = GPUSYNC_STRICT);
    if (metal4_run()) finish(s, 1);
}

static void signal_by_larger_value(stage *s)
{
    (void)SUBMIT(s->q[1], NO_WORK(s->q[1]), SIGNALS(at(s->a, 1000)));
    finish(s, 1);
}

static void signal_by_others(stage *s)
{
    uint64_t base;
    void *event = gpusync_timeline_metal(s->a, &base);
    void *queue = metal_queue_new(s->rig.metal_device, 8), *buffer = metal_queue_command_buffer(queue);
    metal_encode_signal(buffer, event, base + 1);
    metal_commit(buffer);
    softmetal_finish(buffer);
    metal_release(buffer);
    metal_release(queue);
    assert_true(softmetal_dispatched(SECONDS(20)));
}

static void test_it_does_not_matter_what_signals(void **state)
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
        if (ways[i] == signal_by_others) share_timeline(&s, 0);
        buffers[0] = open_on(&s, 2);
        buffers[1] = open_on(&s, 3);
        on_device = SUBMIT(s.q[2], BUFFERS(buffers[0]), WAITS(at(s.a, 1)));
        on_host = SUBMIT(s.q[3], BUFFERS(buffers[1]), WAITS(at(s.a, 1)), .flags = GPUSYNC_STRICT);
        value_job_start(&sleeper, s.a, 1, SECONDS(20));
        await_sleepers(s.device, 1);
        assert_int_equal(status_of(buffers[0]), ways[i] == signal_by_others ? COMMITTED : NOT_ENQUEUED);
        assert_int_equal(status_of(buffers[1]), NOT_ENQUEUED);
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

/* == waits for tickets ========================================================================================= */

static void test_tickets_of_every_kind_can_be_waited_for(void **state)
{
    static const uint32_t flags[] = {0, GPUSYNC_STRICT, GPUSYNC_UNORDERED};
    int kind;
    unsigned fails, same, k;
    (void)state;
    for (kind = 0; kind < (metal4_run() ? BARRIER : TICKET_KINDS); kind++)
        for (fails = 0; fails < 2; fails++)
            for (same = 0; same < 2; same++)
                for (k = 0; k < 3; k++) {
                    gpusync_ticket awaited, ticket;
                    unsigned other = same ? 0 : 1;
                    void *buffer;
                    stage s;
                    open_stage(&s, SOFTMETAL_MANUAL, 2);
                    awaited = ticket_of(&s, other, kind, fails);
                    buffer = kept_buffer_of(s.q[0]);
                    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(after(s.q[other], awaited)), .flags = flags[k]);
                    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
                    assert_int_equal(stats_of(s.q[0]).held, 1);
                    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
                    finish(&s, other);
                    if (fails) assert_int_equal(status_of(buffer), NOT_ENQUEUED); /* it never runs */
                    else assert_true(status_of(buffer) >= COMMITTED);
                    finish(&s, 0);
                    finish(&s, 0); /* what was committed by then */
                    assert_result(gpusync_poll(s.q[0], ticket), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
                    if (fails) assert_int_equal(error_of(s.q[0], ticket).code, 42);
                    /* and once more, now that it has ended */
                    ticket = SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(after(s.q[other], awaited)), .flags = flags[k]);
                    if (metal4_run()) finish(&s, 0);
                    assert_result(gpusync_poll(s.q[0], ticket), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
                    if (fails) assert_int_equal(error_of(s.q[0], ticket).code, 42);
                    metal_release(buffer);
                    close_stage(&s);
                }
}

/* From queue to queue, of either kind, and within one: the host waits, and nothing is encoded for it. What comes later on
   the queue lines up behind. */
static void test_work_that_waits_for_a_ticket_is_held_on_every_kind_of_queue(void **state)
{
    static const char *const messages[] = {"encodeWaitForEvent:value:", "encodeSignalEvent:value:", "waitForEvent:value:",
                                           "signalEvent:value:", "newSharedEvent"};
    queue_kind kinds[2];
    unsigned encodes, i;
    (void)state;
    for (kinds[0] = QUEUE_OF_THE_PROGRAM; kinds[0] < QUEUE_KINDS; kinds[0]++)
        for (kinds[1] = QUEUE_OF_THE_PROGRAM; kinds[1] < QUEUE_KINDS; kinds[1]++)
            for (encodes = 0; encodes < (kinds[1] == QUEUE_OF_METAL4 ? 1u : 2u); encodes++) {
                gpusync_ticket awaited, ticket, behind;
                gpusync_queue *queues[2];
                uint64_t before[LENGTH(messages)];
                void *buffer, *next;
                stage s;
                open_stage(&s, SOFTMETAL_MANUAL, 1);
                for (i = 0; i < 2; i++) queues[i] = queue_of_kind(kinds[i], s.device, NULL);
                awaited = commit_to(queues[0], buffer_of(queues[0]));
                buffer = kept_buffer_of(queues[1]);
                next = kept_buffer_of(queues[1]);
                for (i = 0; i < LENGTH(messages); i++) before[i] = softmetal_message_count(messages[i]);
                if (encodes) {
                    assert_ok(gpusync_encode_wait(queues[1], buffer, after(queues[0], awaited)));
                    ticket = commit_to(queues[1], buffer);
                } else {
                    ticket = SUBMIT(queues[1], BUFFERS(buffer), WAITS(after(queues[0], awaited)));
                }
                behind = commit_to(queues[1], next);
                assert_int_equal(status_of(buffer), NOT_ENQUEUED);
                assert_int_equal(status_of(next), NOT_ENQUEUED);
                assert_int_equal(stats_of(queues[1]).held, 2);
                finish_queue(queues[0]);
                assert_int_equal(status_of(buffer), COMMITTED);
                assert_int_equal(status_of(next), COMMITTED);
                for (i = 0; i < LENGTH(messages); i++) assert_count(messages[i], before[i], 0);
                finish_queue(queues[1]);
                assert_ok(gpusync_wait(queues[1], ticket, 0));
                assert_ok(gpusync_wait(queues[1], behind, 0));
                metal_release(buffer);
                metal_release(next);
                for (i = 0; i < 2; i++) assert_ok(gpusync_queue_destroy(queues[i]));
                close_stage(&s);
            }
}

/* As held work it counts, and cannot be enqueued. */
static void test_work_that_waits_for_a_ticket_is_refused_where_it_cannot_be_held(void **state)
{
    gpusync_ticket awaited, ticket;
    void *buffer, *held;
    stage s;
    (void)state;
    NOT_ON_METAL4("no command buffer is enqueued there");
    open_stage_with(&s, SOFTMETAL_MANUAL, 2, 2); /* one may be held */
    awaited = commit_on(&s, 1);
    buffer = kept_buffer_of(s.q[0]);
    assert_ok(gpusync_encode_wait(s.q[0], buffer, after(s.q[1], awaited)));
    held = kept_buffer_of(s.q[0]);
    (void)SUBMIT(s.q[0], BUFFERS(held), WAITS(after(s.q[1], awaited)));
    assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_QUEUE_FULL);
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(buffer));
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(buffer), WAITS(after(s.q[1], awaited)), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_cancel_held(s.q[0]));
    metal_enqueue(buffer);
    assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ENQUEUED);
    REFUSED(GPUSYNC_ERROR_ENQUEUED, s.q[0], BUFFERS(buffer), WAITS(after(s.q[1], awaited)));
    finish(&s, 1);
    ticket = commit_to(s.q[0], buffer); /* the ticket has ended */
    assert_int_equal(status_of(buffer), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    metal_release(buffer);
    metal_release(held);
    close_stage(&s);
}

/* A ticket that fails, is cancelled or goes with its queue fails the held work, with the same result; what that was to
   signal fails, too. */
static void test_work_that_waits_for_a_ticket_fails_as_that_does(void **state)
{
    enum { FAILS, IS_CANCELLED, IS_DESTROYED, WAYS };
    static const gpusync_result results[WAYS] = {GPUSYNC_ERROR_EXECUTION, GPUSYNC_ERROR_CANCELLED,
                                                 GPUSYNC_ERROR_DESTROYED};
    int way;
    (void)state;
    for (way = 0; way < WAYS; way++) {
        gpusync_ticket awaited, ticket;
        void *buffer, *metal;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        if (way == FAILS) {
            buffer = open_on(&s, 1);
            softmetal_fail(buffer, NULL, 3, NULL);
            awaited = commit_to(s.q[1], buffer);
        } else if (way == IS_CANCELLED) {
            awaited = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.c, 1)));
        } else {
            awaited = commit_on(&s, 1);
        }
        buffer = kept_buffer_of(s.q[0]);
        ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(after(s.q[1], awaited)), SIGNALS(at(s.a, 1)));
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
        metal = metal_retain(s.metal[1]);
        if (way == FAILS) finish(&s, 1);
        if (way == IS_CANCELLED) assert_ok(gpusync_cancel_held(s.q[1]));
        if (way == IS_DESTROYED) take_down_queue(&s, 1, true);
        assert_result(gpusync_poll(s.q[0], ticket), results[way]);
        assert_result(gpusync_timeline_wait(s.a, 1, 0, NULL), results[way]);
        assert_int_equal(status_of(buffer), NOT_ENQUEUED);
        assert_true(gpusync_is_idle(s.q[0]));
        softmetal_finish_queue(metal);
        metal_release(metal);
        metal_release(buffer);
        close_stage(&s);
    }
}

/* The reason is that of the ticket, and no answer to the call: the work is taken, and fails with it. */
static void test_work_that_waits_for_a_ticket_that_has_failed_is_taken_whatever_the_failure_was(void **state)
{
    static const gpusync_result reasons[] = {GPUSYNC_ERROR_DESTROYED, GPUSYNC_ERROR_INVALID_TICKET,
                                             GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_COMPILE};
    size_t i;
    (void)state;
    for (i = 0; i <= LENGTH(reasons); i++) { /* the last: its timeline is destroyed */
        bool goes = i == LENGTH(reasons);
        gpusync_result reason = goes ? GPUSYNC_ERROR_DESTROYED : reasons[i];
        gpusync_ticket failed, ticket;
        gpusync_error why;
        void *buffer;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        failed = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 5)));
        memset(&why, 0, sizeof why);
        why.result = reason;
        if (goes) take_down_timeline(&s, 0);
        else assert_ok(gpusync_timeline_fail(s.a, &why));
        assert_result(gpusync_poll(s.q[1], failed), reason);
        if (!metal4_run()) {
            buffer = buffer_of(s.q[0]);
            assert_ok(gpusync_encode_wait(s.q[0], buffer, after(s.q[1], failed)));
            assert_result(gpusync_wait(s.q[0], commit_to(s.q[0], buffer), 0), reason);
        }
        ticket = SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), WAITS(after(s.q[1], failed)), SIGNALS(at(s.b, 1)));
        assert_result(gpusync_wait(s.q[0], ticket, 0), reason);
        assert_int_equal(reached(s.b, reason), 0);
        assert_false(gpusync_device_is_lost(s.device));
        close_stage(&s);
    }
}

/* Its owner may take his time, and may commit it behind what waits for it: the device must not wait. */
static void test_work_that_waits_for_a_tracked_buffer_goes_after_its_owner_has_committed_it(void **state)
{
    unsigned same;
    (void)state;
    NOT_ON_METAL4("nothing is tracked");
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
        assert_int_equal(status_of(ours), NOT_ENQUEUED);
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

static void test_a_ticket_that_is_taken_back_fails_what_waits_for_it(void **state)
{
    gpusync_ticket tracked, held, ticket = 0, behind;
    void *buffer = NULL;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    if (!metal4_run()) {
        buffer = metal_queue_command_buffer(s.metal[1]);
        assert_ok(gpusync_track(s.q[1], buffer, &tracked));
        ticket = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(after(s.q[1], tracked)));
    }
    held = SUBMIT(s.q[2], NO_WORK(s.q[2]), WAITS(at(s.a, 1)));
    behind = SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(after(s.q[2], held)));
    if (!metal4_run()) {
        assert_ok(gpusync_untrack(s.q[1], tracked));
        metal_release(buffer);
        finish(&s, 0);
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_ERROR_CANCELLED);
    }
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

/* The issue of the held work is not enough; its end is, though later work of that queue stays held. */
static void test_work_that_waits_for_a_held_ticket_goes_when_that_has_ended(void **state)
{
    gpusync_ticket first, last;
    void *buffer, *behind;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = kept_buffer_of(s.q[0]);
    first = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 1)));
    last = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 2)));
    behind = open_on(&s, 1);
    (void)SUBMIT(s.q[1], BUFFERS(behind), WAITS(after(s.q[0], first)));
    assert_int_equal(status_of(behind), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(status_of(buffer), COMMITTED);
    assert_int_equal(status_of(behind), NOT_ENQUEUED);
    assert_result(gpusync_poll(s.q[0], first), GPUSYNC_NOT_READY);
    softmetal_finish(buffer);
    assert_int_equal(status_of(behind), COMMITTED);
    assert_ok(gpusync_timeline_signal(s.a, 2));
    finish(&s, 0);
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[0], last, 0));
    metal_release(buffer);
    close_stage(&s);
}

/* A look ends the submission before the handler runs. Until the handler has run, gpusync_track finds the command buffer. */
static void test_command_buffers_that_outlive_their_submission_are_known_until_their_handlers_have_run(void **state)
{
    enum { MANY = 40 };
    void *ended, *buffer;
    gpusync_ticket ticket;
    stage s;
    int i;
    (void)state;
    NOT_ON_METAL4("no track");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    ended = metal_retain(open_on(&s, 0));
    assert_ok(gpusync_commit(s.q[0], ended, NULL));
    softmetal_finish(ended);
    buffer = metal_retain(open_on(&s, 0));
    ticket = SUBMIT(s.q[0], BUFFERS(buffer));
    for (i = 0; i < MANY; i++) assert_ok(gpusync_commit(s.q[0], open_on(&s, 0), NULL));
    assert_result(gpusync_track(s.q[0], ended, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED); /* none of the many */
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_result(gpusync_track(s.q[0], buffer, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    softmetal_finish(buffer);
    assert_result(gpusync_track(s.q[0], buffer, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    metal_release(ended);
    metal_release(buffer);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], GPUSYNC_EVERYTHING, SECONDS(10)));
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
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[1], NO_WORK(s.q[1]), SIGNALS(at(s.b, 1)));
    waits = waits_so_far();
    going = OPEN(s.q[0], WAITS(at(s.b, 1), at(s.a, 0)), .label = "going");
    held = OPEN(s.q[0], WAITS(at(s.a, 1), at(s.b, 1)), .label = "held");
    assert_count("encodeWaitForEvent:value:", waits, 3);
    first = commit_to(s.q[0], going);
    second = commit_to(s.q[0], held);
    assert_int_equal(status_of(going), COMMITTED);
    assert_int_equal(status_of(held), NOT_ENQUEUED);
    assert_int_equal(stats_of(s.q[0]).held, 1);
    assert_result(gpusync_poll(s.q[0], first), GPUSYNC_NOT_READY);
    finish(&s, 1);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(status_of(held), COMMITTED);
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
    NOT_ON_METAL4("a command buffer has no waits at its head");
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
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    ended = commit_on(&s, 1);
    buffers[0] = OPEN(s.q[0], WAITS(at(s.a, 1)));
    buffers[1] = OPEN(s.q[0], WAITS(after(s.q[1], ended), at(s.a, 2)));
    ticket = SUBMIT(s.q[0], .command_buffers = buffers, .command_buffer_count = 2, WAITS(at(s.b, 1)));
    assert_ok(gpusync_timeline_signal(s.a, 2));
    assert_int_equal(status_of(buffers[0]), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.b, 1));
    assert_int_equal(status_of(buffers[0]), NOT_ENQUEUED);
    finish(&s, 1); /* the ticket of a wait at the second head */
    assert_int_equal(status_of(buffers[0]), COMMITTED);
    assert_int_equal(status_of(buffers[1]), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

/* The wait stays in the buffer, whether it has come true before the commit or after. */
/* Whichever of them comes last. */
static void test_each_wait_of_the_submission_and_at_each_head_holds_it(void **state)
{
    unsigned last, i;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head");
    for (last = 0; last < 3; last++) {
        gpusync_timeline *timelines[3];
        gpusync_ticket ticket;
        void *buffers[2];
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 1);
        timelines[0] = s.a;
        timelines[1] = s.b;
        timelines[2] = s.c;
        for (i = 0; i < 2; i++) buffers[i] = OPEN(s.q[0], WAITS(at(timelines[i + 1], 1)));
        ticket = SUBMIT(s.q[0], .command_buffers = buffers, .command_buffer_count = 2, WAITS(at(s.a, 1)));
        for (i = 0; i < 3; i++)
            if (i != last) assert_ok(gpusync_timeline_signal(timelines[i], 1));
        assert_int_equal(status_of(buffers[0]), NOT_ENQUEUED);
        assert_ok(gpusync_timeline_signal(timelines[last], 1));
        assert_int_equal(status_of(buffers[0]), COMMITTED);
        finish(&s, 0);
        assert_ok(gpusync_wait(s.q[0], ticket, 0));
        close_stage(&s);
    }
}

static void test_a_wait_at_the_head_that_came_true_before_the_commit(void **state)
{
    gpusync_ticket awaited, ticket;
    void *buffers[2];
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    awaited = commit_on(&s, 1);
    buffers[0] = OPEN(s.q[0], WAITS(after(s.q[1], awaited)));
    buffers[1] = OPEN(s.q[0], WAITS(at(s.a, 1)));
    finish(&s, 1);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    ticket = SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1]));
    assert_int_equal(status_of(buffers[0]), COMMITTED);
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
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = OPEN(s.q[0], WAITS(at(s.a, 1)));
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), .flags = GPUSYNC_STRICT);
    (void)SUBMIT(s.q[1], NO_WORK(s.q[1]), SIGNALS(at(s.a, 1)));
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    finish(&s, 1);
    assert_int_equal(status_of(buffer), COMMITTED);
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
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    memory = memory_of(&s, 1);
    ticket = commit_on(&s, 1);
    buffer = OPEN(s.q[0], WAITS(at(s.a, 1), after(s.q[1], ticket)));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 1);
    assert_ok(either_discard(s.q[0], buffer));
    assert_result(either_discard(s.q[0], buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
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
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = OPEN(s.q[0], WAITS(at(s.a, 1)));
    assert_ok(gpusync_timeline_destroy(s.a));
    s.a = NULL;
    ticket = commit_to(s.q[0], buffer);
    assert_result(gpusync_wait(s.q[0], ticket, 0), GPUSYNC_ERROR_DESTROYED); /* no work can signal it any more */
    close_stage(&s);
}

static void test_the_queue_of_a_wait_at_the_head_may_go_before_the_commit(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    gpusync_result result;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_REAL, 2);
    buffer = OPEN(s.q[0], WAITS(after(s.q[1], commit_on(&s, 1))));
    close_queue(&s, 1);
    ticket = commit_to(s.q[0], buffer);
    result = gpusync_wait(s.q[0], ticket, SECONDS(20));
    assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
    close_stage(&s);
}

/* The queue is there until its work ends, but no ticket of it is waited for any more. */
static void test_a_wait_at_the_head_fails_where_its_queue_was_let_go_with_work_in_flight(void **state)
{
    gpusync_ticket ticket;
    void *buffer, *metal;
    gpusync_error error;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    metal = metal_retain(s.metal[1]);
    buffer = OPEN(s.q[0], WAITS(after(s.q[1], commit_on(&s, 1))));
    assert_ok(gpusync_queue_destroy_later(s.q[1], NULL, NULL));
    s.q[1] = NULL;
    ticket = commit_to(s.q[0], buffer);
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_ERROR_DESTROYED);
    error = error_of(s.q[0], ticket);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_string_equal(error.message, "the queue of the ticket was destroyed");
    softmetal_finish_queue(metal);
    metal_release(metal);
    assert_true(softmetal_dispatched(SECONDS(20)));
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
    NOT_ON_METAL4("a command buffer has no waits at its head");
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
    assert_ok(either_discard(s.q[0], buffer));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    assert_ok(gpusync_timeline_destroy(strange));
    assert_ok(gpusync_device_destroy(other));
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
    NOT_ON_METAL4("a command buffer has no waits at its head");
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
    assert_int_equal(status_of(buffers[0]), NOT_ENQUEUED);
    (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(other, 1)), SIGNALS(at(s.a, 5))); /* held, and below the event */
    finish(&s, 0);
    held = commit_to(s.q[2], buffers[1]);
    assert_int_equal(status_of(buffers[1]), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(other, 1));
    finish(&s, 0);
    finish(&s, 2);
    assert_ok(gpusync_poll(s.q[2], held));
    assert_ok(gpusync_timeline_destroy(other));
    assert_ok(gpusync_timeline_fail(s.a, &reason)); /* after 10 was reached, and before it is asked for */
    late = commit_to(s.q[3], buffers[2]);
    error = error_of(s.q[3], late);
    assert_int_equal(error.code, 7);
    assert_int_equal(status_of(buffers[2]), NOT_ENQUEUED);
    metal_release(buffers[0]);
    metal_release(buffers[1]);
    metal_release(buffers[2]);
    close_stage(&s);
}

/* An open command buffer with this signal. */
static void *signaller_of(stage *s, unsigned i, gpusync_point signal)
{
    void *buffer = open_on(s, i);
    assert_ok(gpusync_encode_signal(s->q[i], buffer, signal));
    return buffer;
}

/* == signals of others ========================================================================================= */

static void test_work_that_waits_for_an_imported_timeline_goes_to_the_device_at_once(void **state)
{
    gpusync_ticket ticket;
    void *buffer, *memory;
    foreign_stage f;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    memory = memory_of(&f.stage, 2);
    if (metal4_run()) {
        buffer = open_on(&f.stage, 0);
        copy(buffer, memory, 0, memory, 1);
        ticket = SUBMIT(f.stage.q[0], BUFFERS(buffer), WAITS(at(f.timeline, 5)));
    } else {
        buffer = OPEN(f.stage.q[0], WAITS(at(f.timeline, 5)));
        copy(buffer, memory, 0, memory, 1);
        ticket = SUBMIT(f.stage.q[0], BUFFERS(buffer));
    }
    assert_int_equal(status_of(buffer), COMMITTED);
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
    foreign_stage f;
    void *memory;
    (void)state;
    open_foreign(&f, SOFTMETAL_REAL);
    memory = memory_of(&f.stage, 2);
    for (value = 1; value <= 40 / SLOW + 2; value++) {
        void *buffer = metal_retain(open_on(&f.stage, 0));
        gpusync_ticket ticket;
        copy(buffer, memory, 0, memory, 1);
        ticket = SUBMIT(f.stage.q[0], BUFFERS(buffer), WAITS(at(f.timeline, value)), .flags = GPUSYNC_STRICT);
        assert_int_equal(status_of(buffer), NOT_ENQUEUED);
        if (value % 2) {
            signal_abroad(&f, memory, (unsigned char)value, value);
        } else {
            bytes_of(memory)[0] = (unsigned char)value;
            metal_event_signal(f.event, value); /* from the host, but behind gpusync's back */
        }
        await_status(buffer, COMMITTED); /* no call asks gpusync anything meanwhile */
        assert_ok(gpusync_wait(f.stage.q[0], ticket, SECONDS(20)));
        assert_int_equal(bytes_of(memory)[1], (unsigned char)value);
        metal_release(buffer);
    }
    assert_true(softmetal_settle(SECONDS(20)));
    metal_release(memory);
    close_foreign(&f);
}

static void test_pending_signals_and_signals_of_others_on_one_event(void **state)
{
    gpusync_ticket ticket;
    foreign_stage f;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    ticket = SUBMIT(f.stage.q[0], BUFFERS(open_on(&f.stage, 0)), SIGNALS(at(f.timeline, 3)));
    metal_event_signal(f.event, 2);
    assert_int_equal(value_of(f.timeline), 2);
    signal_abroad(&f, NULL, 0, 8);
    assert_int_equal(value_of(f.timeline), 2); /* 3 is pending */
    finish(&f.stage, 0);
    assert_ok(gpusync_wait(f.stage.q[0], ticket, 0));
    assert_int_equal(value_of(f.timeline), 8);
    REFUSED(GPUSYNC_ERROR_NOT_RISING, f.stage.q[0], NO_WORK(f.stage.q[0]), SIGNALS(at(f.timeline, 8)));
    close_foreign(&f);
}

/* Others have set the event to 4, though 2 is still pending: so the device would not wait for 3. open: by a command
   buffer that is not committed; else by work that is held. */
static void check_an_event_that_stands_above_a_pending_signal(bool open)
{
    void *signals = NULL, *waits, *event;
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    timeline = timeline_over(s.device, &event);
    if (open) assert_ok(gpusync_encode_signal(s.q[0], signals = open_on(&s, 0), at(timeline, 2)));
    else (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.b, 1)), SIGNALS(at(timeline, 2)));
    (void)SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)), SIGNALS(at(timeline, 5)));
    metal_event_signal(event, 4);
    assert_int_equal(value_of(timeline), 1);
    ticket = SUBMIT(s.q[1], WAITS(at(timeline, 3)), BUFFERS(waits = metal_retain(open_on(&s, 1))));
    assert_int_equal(status_of(waits), NOT_ENQUEUED);
    if (open) (void)commit_to(s.q[0], signals);
    else assert_ok(gpusync_timeline_signal(s.b, 1));
    assert_int_equal(status_of(waits), NOT_ENQUEUED);
    finish(&s, 0);
    assert_int_equal(value_of(timeline), 4);
    assert_int_equal(status_of(waits), COMMITTED);
    finish(&s, 2);
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[1], ticket, 0));
    metal_release(waits);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_stage(&s);
}

static void test_what_waits_above_a_pending_signal_is_held_wherever_the_event_of_others_stands(void **state)
{
    (void)state;
    check_an_event_that_stands_above_a_pending_signal(false);
    if (!metal4_run()) check_an_event_that_stands_above_a_pending_signal(true);
}

/* Others signal 5, which lets the work run. A pending signal of 3 is open, so no call sees 5, nor the work's end. */
static void test_work_that_others_let_go_ends_with_the_pending_signal_that_hides_its_value(void **state)
{
    gpusync_ticket hiding, hidden;
    foreign_stage f;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    hidden = SUBMIT(f.stage.q[0], BUFFERS(open_on(&f.stage, 0)), WAITS(at(f.timeline, 5)));
    hiding = SUBMIT(f.stage.q[1], BUFFERS(open_on(&f.stage, 1)), SIGNALS(at(f.timeline, 3)), .flags = GPUSYNC_STRICT);
    signal_abroad(&f, NULL, 0, 5);
    finish(&f.stage, 0);
    assert_result(gpusync_poll(f.stage.q[0], hidden), GPUSYNC_NOT_READY);
    assert_true(value_of(f.timeline) < 3);
    finish(&f.stage, 1);
    assert_ok(gpusync_wait(f.stage.q[1], hiding, 0));
    assert_ok(gpusync_wait(f.stage.q[0], hidden, 0));
    assert_int_equal(value_of(f.timeline), 5);
    close_foreign(&f);
}

static void test_a_value_signalled_by_others_before_the_call_is_not_waited_for(void **state)
{
    gpusync_ticket ticket;
    foreign_stage f;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    signal_abroad(&f, NULL, 0, 4);
    ticket = SUBMIT(f.stage.q[0], NO_WORK(f.stage.q[0]), WAITS(at(f.timeline, 4)));
    finish(&f.stage, 0);
    assert_ok(gpusync_wait(f.stage.q[0], ticket, 0));
    close_foreign(&f);
}

static void test_the_value_of_failure_on_an_event_of_others_fails_work_that_waits_on_the_device(void **state)
{
    gpusync_ticket ticket;
    foreign_stage f;
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
    foreign_stage f;
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

/* A signal covers what is waited for: the work is held. When the signal is discarded the value may come from other code,
   and the work goes to the device; but what a lower pending signal still covers stays, and so does strict work, which the
   event lets go. */
static void test_the_discard_of_the_signal_lets_work_go_to_the_device_where_other_code_signals(void **state)
{
    gpusync_ticket covered, uncovered, strict;
    void *buffers[3], *higher, *lower;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no signals");
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    share_timeline(&s, 0);
    lower = signaller_of(&s, 3, at(s.a, 1));
    higher = signaller_of(&s, 3, at(s.a, 3));
    for (i = 0; i < 3; i++) buffers[i] = kept_buffer_of(s.q[i]);
    covered = SUBMIT(s.q[0], BUFFERS(buffers[0]), WAITS(at(s.a, 1)));
    uncovered = SUBMIT(s.q[1], BUFFERS(buffers[1]), WAITS(at(s.a, 2)));
    strict = SUBMIT(s.q[2], BUFFERS(buffers[2]), WAITS(at(s.a, 2)), .flags = GPUSYNC_STRICT);
    for (i = 0; i < 3; i++) assert_int_equal(status_of(buffers[i]), NOT_ENQUEUED);
    assert_ok(gpusync_command_buffer_discard(s.q[3], higher));
    for (i = 0; i < 3; i++) assert_int_equal(status_of(buffers[i]), i == 1 ? COMMITTED : NOT_ENQUEUED);
    assert_true(reports(s.device, "waits for value 2 of timeline 5 '': others signal it\n"));
    assert_ok(gpusync_command_buffer_discard(s.q[3], lower));
    for (i = 0; i < 3; i++) assert_int_equal(status_of(buffers[i]), i < 2 ? COMMITTED : NOT_ENQUEUED);
    raise_behind_its_back(s.a, 2);
    await_status(buffers[2], COMMITTED); /* told by the event, though a signal covered the value when it was held */
    for (i = 0; i < 3; i++) finish(&s, i);
    assert_ok(gpusync_wait(s.q[0], covered, 0));
    assert_ok(gpusync_wait(s.q[1], uncovered, 0));
    assert_ok(gpusync_wait(s.q[2], strict, 0));
    assert_int_equal(value_of(s.a), 2);
    for (i = 0; i < 3; i++) metal_release(buffers[i]);
    close_stage(&s);
}

/* The event is the timeline's own: work that waits goes to the device at once all the same. */
static void test_work_that_waits_for_a_timeline_signalled_by_others_goes_to_the_device_at_once(void **state)
{
    gpusync_ticket ticket, signals;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    share_timeline(&s, 0);
    buffer = kept_buffer_of(s.q[0]);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 5)));
    assert_int_equal(status_of(buffer), COMMITTED);
    assert_int_equal(stats_of(s.q[0]).held, 0);
    signals = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 3)));
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[1], signals, 0));
    assert_int_equal(value_of(s.a), 3);
    raise_behind_its_back(s.a, 5);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(value_of(s.a), 5);
    metal_release(buffer);
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
    start = METAL__AS0(double)(metal4_run() ? softmetal_run_of(buffers[0]) : buffers[0], metal__sel("GPUStartTime"));
    end = METAL__AS0(double)(metal4_run() ? softmetal_run_of(buffers[0]) : buffers[2], metal__sel("GPUEndTime"));
    assert_true(info.gpu_start_s >= start && info.gpu_start_s <= start);
    assert_true(info.gpu_end_s >= end && info.gpu_end_s <= end);
    assert_true(end - start >= (metal4_run() ? 0.001 : 0.003)); /* there all of it is one run */
    for (i = 0; i < 3; i++) metal_release(buffers[i]);
    if (!metal4_run()) {
        nothing = SUBMIT(s.q[0], .flags = 0);
        assert_ok(gpusync_get_info(s.q[0], nothing, &info));
        assert_ok(info.result);
        assert_true(info.gpu_start_s >= 0 && info.gpu_start_s <= 0 && info.gpu_end_s >= 0 && info.gpu_end_s <= 0);
    }
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
                 .flags = SIGNALS_INSIDE); /* both waits are for what is reached: not held */
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 2)), SIGNALS(at(s.b, 2))); /* held */
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.b, 2))); /* held: the first has not gone; its wait stays */
    (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_timeline_signal(s.a, 2));
    (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.a, 3)));
    assert_ok(gpusync_cancel_held(s.q[0]));
    finish(&s, 0);
    stats = stats_of(s.q[0]);
    assert_int_equal(stats.commits, 5);
    assert_int_equal(stats.completions, 5);
    assert_int_equal(stats.failures, 0); /* what was cancelled did not fail */
    assert_int_equal(stats.held, 3);
    close_queue(&s, 0);
    assert_ok(gpusync_device_get_stats(s.device, &stats));
    assert_int_equal(stats.commits, 5);
    assert_int_equal(stats.held, 3);
    close_stage(&s);
}

static void test_the_report_says_what_is_held_for_what_and_what_is_to_signal_it(void **state)
{
    const gpusync_timeline_desc shared_desc = {.label = "shared", .signalled_by_others = true};
    foreign_stage f;
    gpusync_timeline *shared;
    value_job sleeper;
    stage *s = &f.stage;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL); /* timelines 1 'a', 2 'b', ..., 5 imported; queues 1 and 2 */
    (void)SUBMIT(s->q[0], BUFFERS(open_on(s, 0)), WAITS(at(s->a, 7)), SIGNALS(at(s->b, 4)), .label = "shadows");
    assert_true(reports(s->device, "ticket 1 'shadows': held for "));
    assert_true(reports(s->device, "waits for value 7 of timeline 1 'a': no other work is to signal it\n"));
    (void)SUBMIT(s->q[1], NO_WORK(s->q[1]), WAITS(at(s->b, 3), after(s->q[0], 1), at(f.timeline, 2)),
                 .label = "lights");
    assert_true(reports(s->device, "ticket 1 'lights': held for "));
    assert_true(reports(s->device, "waits for value 3 of timeline 2 'b': pending in ticket 1 of queue 1, which is held\n"));
    assert_true(reports(s->device, "waits for ticket 1 of queue 1\n"));
    assert_true(reports(s->device, "waits for value 2 of timeline 5 '': others signal it\n"));
    value_job_start(&sleeper, s->b, 4, SECONDS(20));
    await_sleepers(s->device, 1);
    assert_true(reports(s->device, "a wait for value 4"));
    assert_ok(gpusync_timeline_signal(s->a, 7));
    assert_true(reports(s->device, "ticket 1 'shadows': submitted for "));
    assert_true(reports(s->device, "'work': committed for "));
    assert_false(reports(s->device, "no other work is to signal it"));
    assert_false(reports(s->device, "which is held"));
    assert_true(reports(s->device, "waits for value 3 of timeline 2 'b': pending in ticket 1 of queue 1\n"));
    finish(s, 0);
    assert_ok(value_job_join(&sleeper));
    assert_false(reports(s->device, "shadows"));
    assert_false(reports(s->device, "waits for value 3"));
    assert_true(reports(s->device, "others signal it"));
    signal_abroad(&f, NULL, 0, 2);
    finish(s, 1);
    assert_true(reports(s->device, ", idle"));
    assert_ok(gpusync_timeline_create(s->device, &shared_desc, &shared));
    (void)SUBMIT(s->q[0], NO_WORK(s->q[0]), WAITS(at(shared, 2)));
    assert_true(reports(s->device, "'shared': others signal it\n"));
    raise_behind_its_back(shared, 2);
    finish(s, 0);
    assert_ok(gpusync_timeline_destroy(shared));
    close_foreign(&f);
}

static struct {
    gpusync_queue *queue;
    void *looked_at;
} cancelling;

static void cancel_at_label(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_BEFORE || object != cancelling.looked_at || strcmp(selector, "label") != 0) return;
    cancelling.looked_at = NULL;
    must(gpusync_cancel_held(cancelling.queue) == GPUSYNC_OK, "gpusync_cancel_held");
}

/* A report reads the label of held work, which another thread cancels meanwhile: the ticket ends and the room comes back
   at once, and the command buffer stays until the report has done with it. */
static void test_a_report_outlives_the_work_that_it_looks_at(void **state)
{
    gpusync_ticket ticket;
    void *buffers[2];
    size_t i, count;
    stage s;
    (void)state;
    NOT_ON_METAL4("a commit is one part, whatever it commits, and there is nothing of gpusync's own");
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 2; i++) buffers[i] = OPEN(s.q[0], .label = i ? "other" : "work");
    for (count = 1; count < 3; count++) { /* with GPUSYNC_STRICT the first part is the program's */
        ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(buffers[count - 1]), .flags = GPUSYNC_STRICT);
        cancelling.queue = s.q[0];
        cancelling.looked_at = buffers[count - 1];
        softmetal_set_message_hook(cancel_at_label, NULL);
        assert_true(reports(s.device, count == 1 ? "'work': given up for " : "'other': given up for "));
        softmetal_set_message_hook(NULL, NULL);
        assert_null(cancelling.looked_at);
        assert_result(gpusync_wait(s.q[0], ticket, 0), GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(rooms_taken(s.q[0]), 2 - count);
        assert_int_equal(softmetal_live("command_buffer"), 2 - (long)count);
        assert_true(gpusync_is_idle(s.q[0]));
    }
    close_stage(&s);
}

/* Nor is there a command buffer whose label could stand for that of the work. */
static void test_the_report_tells_of_held_work_without_a_label_and_without_command_buffers(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    NOT_ON_METAL4("a submission without command buffers is refused");
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), .flags = GPUSYNC_STRICT);
    assert_true(reports(s.device, "ticket 1 '': held for "));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_false(reports(s.device, "ticket 1 "));
    close_stage(&s);
}

/* A device that does not wait: the end of the work counts, whatever the value is. */
static void test_work_that_ends_well_without_the_value_has_ended(void **state)
{
    softmetal_quirks quirks;
    outcome o = {0};
    foreign_stage f;
    (void)state;
    NOT_ON_METAL4("the queue waits, and not the command buffer");
    open_foreign(&f, SOFTMETAL_MANUAL);
    softmetal_get_quirks(&quirks);
    quirks.open_waits = true;
    softmetal_set_quirks(&quirks);
    (void)SUBMIT(f.stage.q[0], WAITS(at(f.timeline, 5)), BUFFERS(open_on(&f.stage, 0)), TELL(&o));
    finish(&f.stage, 0);
    assert_ended(&o, GPUSYNC_OK);
    assert_int_equal(value_of(f.timeline), 0);
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
    assert_false(reports(s.device, "timeline 1 'a': no other work"));
    assert_true(reports(s.device, "waits for value 1 of timeline 2 'b': no other work is to signal it\n"));
    assert_ok(gpusync_timeline_signal(s.b, 1));
    finish(&s, 1);
    close_stage(&s);
}

/* What the work itself is to signal comes after it, and so is no signal of what it waits for. */
static void test_the_report_takes_no_signal_of_the_work_itself_for_a_pending_signal(void **state)
{
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 5)), SIGNALS(at(s.a, 10)));
    assert_true(reports(s.device, "waits for value 5 of timeline 1 'a': no other work is to signal it\n"));
    assert_ok(gpusync_timeline_signal(s.a, 5));
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 10);
    close_stage(&s);
}

/* What keeps back a value that has been signalled is the lowest pending signal, and that is what a hang is about. */
static void test_the_report_names_the_pending_signal_that_keeps_back_what_was_signalled(void **state)
{
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 4)));
    assert_ok(gpusync_timeline_signal(s.a, 5));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 5)));
    assert_true(reports(s.device, "waits for value 5 of timeline 1 'a': signalled, but kept back by value 4, pending in ticket 1 of queue 2, "
                                  "which is held\n"));
    assert_ok(gpusync_timeline_signal(s.b, 1));
    finish(&s, 1);
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 5);
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_report_of_a_submission_goes_with_the_time),
        cmocka_unit_test(test_a_command_buffer_without_times_leaves_those_of_the_others),
        cmocka_unit_test(test_a_label_is_that_of_one_submission),
        cmocka_unit_test(test_a_wait_with_a_limit_for_a_pending_value_ends_there_and_can_be_repeated),
        cmocka_unit_test(test_a_pending_value_is_not_reached_before_its_submission_has_ended),
        cmocka_unit_test(test_a_value_counts_only_when_every_signal_below_it_is_kept),
        cmocka_unit_test(test_waits_for_any_and_all_of_pending_values_and_tickets),
        cmocka_unit_test(test_waits_for_any_and_all_where_some_fail),
        cmocka_unit_test(test_sleeping_waits_for_any_and_all_are_woken_by_the_end_of_submissions),
        cmocka_unit_test(test_it_does_not_matter_what_signals),
        cmocka_unit_test(test_tickets_of_every_kind_can_be_waited_for),
        cmocka_unit_test(test_work_that_waits_for_a_tracked_buffer_goes_after_its_owner_has_committed_it),
        cmocka_unit_test(test_a_ticket_that_is_taken_back_fails_what_waits_for_it),
        cmocka_unit_test(test_a_wait_for_a_ticket_of_the_same_queue_that_is_held),
        cmocka_unit_test(test_work_that_waits_for_a_held_ticket_goes_when_that_has_ended),
        cmocka_unit_test(test_work_that_waits_for_a_ticket_is_held_on_every_kind_of_queue),
        cmocka_unit_test(test_work_that_waits_for_a_ticket_is_refused_where_it_cannot_be_held),
        cmocka_unit_test(test_work_that_waits_for_a_ticket_fails_as_that_does),
        cmocka_unit_test(test_work_that_waits_for_a_ticket_that_has_failed_is_taken_whatever_the_failure_was),
        cmocka_unit_test(test_command_buffers_that_outlive_their_submission_are_known_until_their_handlers_have_run),
        cmocka_unit_test(test_the_end_of_a_ticket_of_a_destroyed_queue_is_known),
        cmocka_unit_test(test_a_command_buffer_with_waits_at_its_head_can_simply_be_committed),
        cmocka_unit_test(test_the_failure_of_a_wait_at_the_head_fails_the_commit),
        cmocka_unit_test(test_waits_at_the_heads_and_waits_of_the_submission_all_count),
        cmocka_unit_test(test_each_wait_of_the_submission_and_at_each_head_holds_it),
        cmocka_unit_test(test_a_wait_at_the_head_that_came_true_before_the_commit),
        cmocka_unit_test(test_a_strict_submission_holds_for_waits_at_the_head_too),
        cmocka_unit_test(test_a_command_buffer_with_waits_at_its_head_that_is_not_committed),
        cmocka_unit_test(test_the_timeline_of_a_wait_at_the_head_may_go_before_the_commit),
        cmocka_unit_test(test_the_queue_of_a_wait_at_the_head_may_go_before_the_commit),
        cmocka_unit_test(test_a_wait_at_the_head_fails_where_its_queue_was_let_go_with_work_in_flight),
        cmocka_unit_test(test_waits_at_a_head_that_make_no_sense_are_refused),
        cmocka_unit_test(test_a_wait_at_a_head_is_judged_when_the_buffer_is_committed),
        cmocka_unit_test(test_work_that_waits_for_an_imported_timeline_goes_to_the_device_at_once),
        cmocka_unit_test(test_a_strict_submission_is_told_by_the_event_when_others_signal),
        cmocka_unit_test(test_pending_signals_and_signals_of_others_on_one_event),
        cmocka_unit_test(test_what_waits_above_a_pending_signal_is_held_wherever_the_event_of_others_stands),
        cmocka_unit_test(test_work_that_others_let_go_ends_with_the_pending_signal_that_hides_its_value),
        cmocka_unit_test(test_a_value_signalled_by_others_before_the_call_is_not_waited_for),
        cmocka_unit_test(test_the_value_of_failure_on_an_event_of_others_fails_work_that_waits_on_the_device),
        cmocka_unit_test(test_work_goes_on_with_the_event_of_a_timeline_that_is_destroyed),
        cmocka_unit_test(test_the_discard_of_the_signal_lets_work_go_to_the_device_where_other_code_signals),
        cmocka_unit_test(test_work_that_waits_for_a_timeline_signalled_by_others_goes_to_the_device_at_once),
        cmocka_unit_test(test_the_info_of_a_submission_spans_its_command_buffers),
        cmocka_unit_test(test_statistics_of_submissions),
        cmocka_unit_test(test_the_report_says_what_is_held_for_what_and_what_is_to_signal_it),
        cmocka_unit_test(test_a_report_outlives_the_work_that_it_looks_at),
        cmocka_unit_test(test_the_report_tells_of_held_work_without_a_label_and_without_command_buffers),
        cmocka_unit_test(test_work_that_ends_well_without_the_value_has_ended),
        cmocka_unit_test(test_the_report_leaves_out_what_work_need_not_wait_for_any_more),
        cmocka_unit_test(test_the_report_names_the_pending_signal_that_keeps_back_what_was_signalled),
        cmocka_unit_test(test_the_report_takes_no_signal_of_the_work_itself_for_a_pending_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
