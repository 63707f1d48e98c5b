/* test_submit_failure.c - submissions that fail: what is told, of which failure, and what is never sent to the device

   Proved: the failure of a pending signal reaches all that waits for it, on the host, on the device and held; the error
   is that of the first wait that failed, and says which ticket is the origin; what was reached before stays reached.

   This also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

/* == failures ================================================================================================== */

static void test_the_failure_of_a_pending_signal_reaches_waits_on_the_host(void **state)
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

static void test_the_failure_of_a_pending_signal_reaches_work_that_waits_on_the_device(void **state)
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
    assert_int_equal(status_of(buffer), COMMITTED);
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

static void test_the_failure_of_a_pending_signal_ends_what_is_held_for_it_and_for_that(void **state)
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
    assert_int_equal(value_of(s.b), 0); /* no work was to signal anything there */
    close_stage(&s);
}

/* The first failure that is found counts: of held work as it happens, of work on the device when that is over. The work
   was killed (3); the host fails one of its timelines (7); the work that was to signal the other is killed (42). */
static void test_of_several_failures_the_first_that_is_found_is_told(void **state)
{
    enum { OWN, OF_ITS_WAITS, OF_A_HELD_ONE, WAYS };
    int way;
    (void)state;
    for (way = 0; way < WAYS; way++) {
        gpusync_ticket ticket;
        gpusync_error error, reason;
        void *buffer;
        stage s;
        memset(&reason, 0, sizeof reason);
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.b, 1)));
        (void)submit_failing(&s, 1, at(s.a, 1));
        buffer = open_on(&s, 0);
        if (way == OWN) softmetal_fail(buffer, NULL, 3, "its own");
        ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 1), at(s.b, 1)),
                        .flags = way == OF_A_HELD_ONE ? GPUSYNC_STRICT : 0);
        reason.code = 7;
        assert_ok(gpusync_timeline_fail(s.b, &reason));
        finish(&s, 1);
        finish(&s, 0);
        error = error_of(s.q[0], ticket);
        if (way == OF_ITS_WAITS) assert_original(&error, "second", ticket);
        else assert_int_equal(error.code, way == OWN ? 3 : 7);
        close_stage(&s);
    }
}

static void test_a_submission_after_the_failure_ends_at_once(void **state)
{
    gpusync_ticket culprit, ticket;
    gpusync_error error;
    outcome told;
    unsigned long owners;
    void *buffer;
    uint32_t flags;
    stage s;
    (void)state;
    for (flags = 0; flags <= GPUSYNC_STRICT; flags += GPUSYNC_STRICT) {
        memset(&told, 0, sizeof told);
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        culprit = submit_failing(&s, 0, at(s.a, 1));
        finish(&s, 0);
        buffer = their_buffer(s.q[1]);
        owners = softmetal_retain_count(buffer);
        ticket = SUBMIT(s.q[1], BUFFERS(buffer), WAITS(after(s.q[0], culprit)), SIGNALS(at(s.b, 1)), TELL(&told),
                        .flags = flags);
        assert_int_equal(calls_of(&told), 1);
        assert_false(ran_here(&told));
        assert_original(&told.error, "first", ticket);
        assert_int_equal(status_of(buffer), NOT_ENQUEUED);
        assert_int_equal(softmetal_retain_count(buffer), owners);
        metal_release(buffer);
        error = error_at(s.b, 1);
        assert_original(&error, "first", error.ticket);
        /* any value of a failed timeline */
        ticket = SUBMIT(s.q[1], NO_WORK(s.q[1]), WAITS(at(s.b, 0)), .flags = flags);
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

/* No code writes the imported event of a failed timeline: the watchdog ends the wait. That is what the work fails of, as
   it learns of its waits later. With Metal 4 the queue signals behind failed work, too. */
static void test_a_device_wait_for_the_imported_event_of_a_failed_timeline_is_ended_by_the_watchdog(void **state)
{
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    gpusync_error error;
    void *event;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    event = metal_shared_event_new(s.rig.metal_device);
    assert_ok(timeline_import(s.device, event, NULL, &timeline));
    (void)submit_failing(&s, 0, at(timeline, 1));
    ticket = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(timeline, 1)));
    finish(&s, 0);
    if (!metal4_run()) softmetal_time_out(softmetal_first_in_line(s.metal[1]));
    finish(&s, 1);
    assert_result(gpusync_poll(s.q[1], ticket), GPUSYNC_ERROR_EXECUTION);
    error = error_of(s.q[1], ticket);
    if (metal4_run()) assert_original(&error, "first", ticket);
    else assert_int_equal(error.failure, GPUSYNC_FAILURE_TIMEOUT);
    assert_int_equal(metal_event_value(event), metal4_run() ? 1 : 0);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_stage(&s);
}

static void test_one_failing_command_buffer_of_several_fails_the_submission(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error;
    void *buffers[3];
    unsigned culprit = metal4_run() ? 0 : 1; /* there they are one run, which has the label of the first */
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 3; i++) buffers[i] = OPEN(s.q[0], .label = i == culprit ? "the culprit" : "another");
    softmetal_fail(buffers[culprit], "TestDomain", 42, "it broke");
    ticket = SUBMIT(s.q[0], .command_buffers = buffers, .command_buffer_count = 3, SIGNALS(at(s.a, 1)));
    if (!metal4_run()) {
        softmetal_finish(buffers[0]);
        softmetal_finish(buffers[1]);
    }
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    finish(&s, 0);
    error = error_of(s.q[0], ticket);
    assert_original(&error, "first", ticket);
    error = error_at(s.a, 1);
    assert_original(&error, "first", ticket);
    close_stage(&s);
}

/* While others of many are in flight. */
static void test_the_first_of_many_command_buffers_may_fail(void **state)
{
    enum { MANY = 40 };
    void *buffers[MANY];
    gpusync_submission submission;
    gpusync_ticket ticket = 0;
    gpusync_error error;
    char *report, *line;
    stage s;
    int i;
    (void)state;
    NOT_ON_METAL4("they are one commit, and fail together");
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < MANY; i++) buffers[i] = open_on(&s, 0);
    softmetal_fail(buffers[0], "TestDomain", 42, "it broke");
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = buffers;
    submission.command_buffer_count = MANY;
    assert_ok(gpusync_submit(s.q[0], &submission, &ticket));
    softmetal_finish(buffers[0]);
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    report = report_of(s.device);
    for (i = 0, line = report; (line = strstr(line, "': committed for ")) != NULL; i++) line++;
    free(report);
    assert_int_equal(i, MANY - 1);
    finish(&s, 0);
    error = error_of(s.q[0], ticket);
    assert_int_equal(error.code, 42);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    close_stage(&s);
}

static void test_of_two_failing_command_buffers_the_first_is_told(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error;
    void *buffers[2];
    stage s;
    (void)state;
    NOT_ON_METAL4("the command buffers of a submission are one run");
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

static char logged[512];

static void keep_last_line(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)snprintf(logged, sizeof logged, "%s", text);
}

/* What has no label of its own has that of its submission. Of work that waits for it the ticket is its own, and all else
   that of the first failure: so the log says of which queue the ticket is. */
static void test_a_failure_has_the_label_of_its_submission_and_the_log_the_queue_of_its_ticket(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_ticket culprit, inherits;
    gpusync_error error;
    void *buffer;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.log = keep_last_line;
    open_stage_on(&s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, 2, device_desc, queue_desc);
    assert_int_equal(SUBMIT(s.q[0], BUFFERS(open_on(&s, 0))), 1);
    buffer = OPEN(s.q[0], .label = NULL);
    softmetal_fail(buffer, "TestDomain", 42, "it broke");
    culprit = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)), .label = "shadow pass");
    inherits = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)), .label = "waits for it");
    finish(&s, 0);
    error = error_of(s.q[0], culprit);
    assert_string_equal(error.label, "shadow pass");
    assert_non_null(strstr(logged, "queue 'first', ticket 2: "));
    assert_non_null(strstr(logged, "in command buffer 'shadow pass' of queue 'first' (TestDomain 42: it broke)"));
    finish(&s, 1);
    error = error_of(s.q[1], inherits);
    assert_string_equal(error.label, "shadow pass");
    assert_non_null(strstr(logged, "queue 'second', ticket 1: "));
    assert_non_null(strstr(logged, "in command buffer 'shadow pass' of queue 'first' (TestDomain 42: it broke)"));
    close_stage(&s);
}

/* == failures behind a signal that is on the device ================================================================ */

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
    (void)SUBMIT(s.q[1], NO_WORK(s.q[1]), WAITS(at(s.b, 9)));
    buffers[0] = metal_retain(open_on(&s, 1));
    buffers[1] = metal_retain(open_on(&s, 2));
    buffers[2] = metal_retain(metal4_run() ? open_on(&s, 3) : OPEN(s.q[3], WAITS(at(s.a, 1))));
    behind = SUBMIT(s.q[1], BUFFERS(buffers[0]), WAITS(at(s.a, 1)));
    among = SUBMIT(s.q[2], BUFFERS(buffers[1]), WAITS(at(s.b, 9), at(s.a, 1)));
    if (metal4_run()) strict = SUBMIT(s.q[3], BUFFERS(buffers[2]), WAITS(at(s.a, 1)), .flags = GPUSYNC_STRICT);
    else strict = SUBMIT(s.q[3], BUFFERS(buffers[2]), .flags = GPUSYNC_STRICT);
    assert_int_equal(status_of(buffers[2]), NOT_ENQUEUED);
    finish(&s, 0);
    error = error_of(s.q[1], behind);
    assert_original(&error, "first", behind);
    error = error_of(s.q[2], among);
    assert_original(&error, "first", among);
    error = error_of(s.q[3], strict);
    assert_original(&error, "first", strict);
    assert_int_equal(culprit, 1);
    assert_int_equal(status_of(buffers[0]), NOT_ENQUEUED);
    assert_int_equal(status_of(buffers[1]), NOT_ENQUEUED);
    assert_int_equal(status_of(buffers[2]), NOT_ENQUEUED);
    metal_release(buffers[0]);
    metal_release(buffers[1]);
    metal_release(buffers[2]);
    assert_ok(gpusync_cancel_held(s.q[1]));
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

/* Whatever had failed by then: what it waits for, or one of its command buffers. What it was to signal fails so, too. */
static void test_work_that_destroy_now_leaves_on_the_device_was_destroyed(void **state)
{
    int own;
    (void)state;
    for (own = 0; own < (metal4_run() ? 1 : 2); own++) { /* there the command buffers of a submission are one run */
        outcome told;
        void *buffer, *more;
        stage s;
        memset(&told, 0, sizeof told);
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        if (own) (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.a, 1)));
        else (void)submit_failing(&s, 0, at(s.a, 1));
        buffer = metal_retain(open_on(&s, 1));
        more = metal_retain(open_on(&s, 1));
        if (own) softmetal_fail(buffer, NULL, 3, NULL);
        (void)SUBMIT(s.q[1], BUFFERS(buffer, more), WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)), TELL(&told));
        finish(&s, 0);
        if (own) softmetal_finish(buffer);
        metal_retain(s.metal[1]);
        assert_ok(gpusync_queue_destroy_now(s.q[1]));
        s.q[1] = NULL;
        assert_ended(&told, GPUSYNC_ERROR_DESTROYED);
        assert_int_equal(told.error.failure, GPUSYNC_FAILURE_CANCELLED);
        assert_result(gpusync_timeline_wait(s.b, 1, 0, NULL), GPUSYNC_ERROR_DESTROYED);
        softmetal_finish_queue(s.metal[1]);
        drop_queue_that_stays(s.metal[1]);
        drop_what_stays(gpusync_timeline_metal(s.a, NULL));
        drop_what_stays(gpusync_timeline_metal(s.b, NULL));
        metal_release(s.metal[1]);
        metal_release(buffer);
        metal_release(more);
        close_stage(&s);
    }
}

static void *destroy_a_queue(void *queue)
{
    must(gpusync_queue_destroy((gpusync_queue *)queue) == GPUSYNC_OK, "a destroy");
    return NULL;
}

/* On a lost device destroy waits until what it waited for is given up. Its failure came before that. Without a destroy
   both are given up, in either order. */
static void fail_before_the_giving_up(bool destroys)
{
    outcome told;
    void *signals, *hangs, *buffer, *killed;
    gpusync_ticket ticket;
    pthread_t thread;
    stage s;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    signals = open_on(&s, 0);
    hangs = metal_retain(open_on(&s, 0));
    buffer = metal_retain(open_on(&s, 1));
    killed = open_on(&s, 2);
    assert_ok(gpusync_encode_signal(s.q[0], signals, at(s.a, 1)));
    (void)SUBMIT(s.q[0], BUFFERS(signals, hangs));
    softmetal_fail(buffer, "TestDomain", 42, "it broke");
    ticket = SUBMIT(s.q[1], BUFFERS(buffer), WAITS(at(s.a, 1)), TELL(&told));
    softmetal_finish(signals);
    finish(&s, 1);
    assert_int_equal(calls_of(&told), 0);
    fail_with_the_device(killed);
    (void)commit_to(s.q[2], killed);
    softmetal_finish(killed);
    assert_true(gpusync_device_is_lost(s.device));
    assert_result(gpusync_poll(s.q[1], ticket), GPUSYNC_NOT_READY);
    if (destroys) {
        thread = start(destroy_a_queue, s.q[1]);
        while (gpusync_poll(s.q[1], ticket) != GPUSYNC_ERROR_DESTROYED) sched_yield();
        assert_int_equal(calls_of(&told), 0);
        must_return_within(20);
        probe_give_up_lost(s.device);
        join(thread);
        has_returned();
        s.q[1] = NULL;
        assert_ended(&told, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(told.error.code, 42);
        assert_string_equal(told.error.message, "it broke");
    } else {
        probe_give_up_lost(s.device);
        assert_ended(&told, gpusync_poll(s.q[1], ticket)); /* its own, if what it waited for was given up before it */
        assert_true(told.result == GPUSYNC_ERROR_EXECUTION || told.result == GPUSYNC_ERROR_DEVICE_LOST);
    }
    finish(&s, 0);
    metal_release(hangs);
    metal_release(buffer);
    close_stage(&s);
}

static void test_work_that_has_failed_tells_so_where_destroy_leaves_what_it_waited_for(void **state)
{
    (void)state;
    NOT_ON_METAL4("the queue would stay for good, with the event");
    fail_before_the_giving_up(true);
    fail_before_the_giving_up(false);
}

/* The work of value 1 is held. The GPU has waited for value 2, which was signalled and is hidden by 1. The failed work must
   not wait for 1: its work stands on the GPU behind what waits for the failed one. first: which of the two ends is told
   first, that of value 2 or the failure. beside: other work has waited for value 2, too, and ends well after that. */
static void fail_behind_a_hidden_value(int first, bool beside)
{
    gpusync_ticket low, failed, last;
    void *buffer, *failing;
    gpusync_error error;
    uint64_t value;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    low = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 1)), .flags = GPUSYNC_UNORDERED);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    failing = open_on(&s, 2);
    softmetal_fail(failing, NULL, 8, "it broke");
    failed = SUBMIT(s.q[2], BUFFERS(failing), WAITS(at(s.a, 2)), SIGNALS(at(s.a, 3)));
    if (beside) (void)SUBMIT(s.q[3], BUFFERS(open_on(&s, 3)), WAITS(at(s.a, 2)));
    last = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 3)));
    assert_ok(gpusync_timeline_signal(s.b, 1)); /* the GPU gets the work of value 1 behind that */
    while (first == 1 && (buffer = softmetal_first_in_line(s.metal[1])) != NULL) softmetal_complete(buffer);
    finish(&s, first == 0 ? 1 : 2);
    finish(&s, 3);
    finish(&s, first == 0 ? 2 : 1);
    error = error_of(s.q[2], failed);
    assert_string_equal(error.message, "it broke");
    assert_result(gpusync_timeline_query(s.a, &value), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(value, 0);
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], low));
    error = error_of(s.q[0], last);
    assert_string_equal(error.message, "it broke");
    close_stage(&s);
}

static void test_work_that_failed_does_not_wait_for_a_value_that_a_lower_signal_hides(void **state)
{
    (void)state;
    NOT_ON_METAL4("the ends of command buffers come one by one here");
    fail_behind_a_hidden_value(0, false);
    fail_behind_a_hidden_value(1, false);
    fail_behind_a_hidden_value(1, true);
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
    NOT_ON_METAL4("no sweep finds the end of a lost feedback");
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    for (i = 0; i < LINKS; i++) {
        buffers[i] = metal_retain(i ? OPEN(s.q[i % 4], WAITS(at(timelines[i - 1], 1))) : open_on(&s, 0));
        timelines[i] = timeline_named(s.device, "a link");
        ticket = SUBMIT(s.q[i % 4], BUFFERS(buffers[i]), SIGNALS(at(timelines[i], 1)), .flags = SIGNALS_INSIDE);
    }
    softmetal_lose_handlers(buffers[0]);
    for (i = 0; i < LINKS; i++) softmetal_finish(buffers[i]);
    assert_result(gpusync_poll(s.q[(LINKS - 1) % 4], ticket), GPUSYNC_NOT_READY); /* not as far as that */
    assert_true(softmetal_timers() > 0); /* no thread sleeps */
    softmetal_fire_timer();
    assert_ok(gpusync_poll(s.q[(LINKS - 1) % 4], ticket));
    for (i = 0; i < LINKS; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    for (i = 0; i < LINKS; i++) metal_release(buffers[i]);
    assert_ok(gpusync_queue_destroy_now(s.q[0]));
    s.q[0] = NULL;
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_failure_of_a_pending_signal_reaches_waits_on_the_host),
        cmocka_unit_test(test_the_failure_of_a_pending_signal_reaches_work_that_waits_on_the_device),
        cmocka_unit_test(test_the_failure_of_a_pending_signal_ends_what_is_held_for_it_and_for_that),
        cmocka_unit_test(test_of_several_failures_the_first_that_is_found_is_told),
        cmocka_unit_test(test_a_submission_after_the_failure_ends_at_once),
        cmocka_unit_test(test_a_failure_by_the_host_ends_what_is_held_in_the_call),
        cmocka_unit_test(test_a_device_wait_for_the_imported_event_of_a_failed_timeline_is_ended_by_the_watchdog),
        cmocka_unit_test(test_one_failing_command_buffer_of_several_fails_the_submission),
        cmocka_unit_test(test_the_first_of_many_command_buffers_may_fail),
        cmocka_unit_test(test_of_two_failing_command_buffers_the_first_is_told),
        cmocka_unit_test(test_a_failure_has_the_label_of_its_submission_and_the_log_the_queue_of_its_ticket),
        cmocka_unit_test(test_what_is_held_ends_with_the_failure_of_a_signal_that_was_on_the_device),
        cmocka_unit_test(test_work_on_the_device_does_not_fail_for_a_value_that_was_reached_before_the_failure),
        cmocka_unit_test(test_work_that_destroy_now_leaves_on_the_device_was_destroyed),
        cmocka_unit_test(test_work_that_has_failed_tells_so_where_destroy_leaves_what_it_waited_for),
        cmocka_unit_test(test_work_that_failed_does_not_wait_for_a_value_that_a_lower_signal_hides),
        cmocka_unit_test(test_a_lost_handler_far_up_a_chain_costs_time_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
