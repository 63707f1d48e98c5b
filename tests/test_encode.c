/* test_encode.c - gpusync_encode_wait and gpusync_encode_signal: waits and signals in a program's own command buffers */
#include "probe.h"
#include "stage.h"

/* Messages of this name since the last time. */
static uint64_t sent(const char *selector, uint64_t *before)
{
    uint64_t now = softmetal_message_count(selector), since = now - *before;
    *before = now;
    return since;
}

/* A buffer that signals, kept by the test. */
static void *signaller(gpusync_queue *queue, gpusync_point point)
{
    void *buffer = kept_buffer_of(queue);
    assert_ok(gpusync_encode_signal(queue, buffer, point));
    return buffer;
}

static void drop(void *buffer) { metal_release(buffer); }

static void discard(gpusync_queue *queue, void *buffer)
{
    assert_ok(gpusync_command_buffer_discard(queue, buffer));
    drop(buffer);
}

/* -- pending signals of open buffers -------------------------------------------------------------------------- */

static void test_a_signal_is_pending_at_once_and_is_reached_when_its_buffer_has_ended(void **state)
{
    void *first, *second;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    first = signaller(p.q[0], at(p.a, 5));
    second = kept_buffer_of(p.q[1]);
    assert_result(gpusync_encode_signal(p.q[1], second, at(p.a, 5)), GPUSYNC_ERROR_NOT_RISING);
    assert_result(TRY_SUBMIT(p.q[1], &ticket, BUFFERS(second), SIGNALS(at(p.a, 5))), GPUSYNC_ERROR_NOT_RISING);
    assert_ok(gpusync_timeline_signal(p.a, 9)); /* hidden until 5 has come */
    assert_int_equal(value_of(p.a), 4);
    ticket = commit_to(p.q[0], first);
    assert_int_equal(value_of(p.a), 4);
    softmetal_finish(first);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    assert_int_equal(value_of(p.a), 9);
    drop(first);
    discard(p.q[1], second);
    close_idle_stage(&p);
}

/* Work of two queues signals 7 before 5. What needs 5 is held until 5 is kept, also when a pending signal below is taken back. */
static void test_a_pending_signal_that_is_taken_back_lets_no_work_past_one_that_is_overtaken(void **state)
{
    void *lowest, *larger, *smaller, *last;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 3);
    lowest = signaller(p.q[0], at(p.a, 3));
    (void)SUBMIT(p.q[1], BUFFERS(larger = kept_buffer_of(p.q[1])), SIGNALS(at(p.a, 7)));
    (void)SUBMIT(p.q[2], BUFFERS(smaller = kept_buffer_of(p.q[2])), SIGNALS(at(p.a, 5)));
    discard(p.q[0], lowest);
    ticket = SUBMIT(p.q[0], WAITS(at(p.a, 5)), BUFFERS(last = kept_buffer_of(p.q[0])));
    finish_queue(p.q[1]);
    assert_int_equal(status_of(last), 0);
    assert_int_equal(held_on(p.device, p.q[0]), 1);
    finish_queue(p.q[2]);
    assert_int_equal(value_of(p.a), 7);
    finish_queue(p.q[0]);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    drop(larger);
    drop(smaller);
    drop(last);
    close_idle_stage(&p);
}

/* The event stands at 7, though 3 is still to come: it would not keep back on the device what needs 5. */
static void test_what_needs_a_value_that_a_lower_pending_signal_hides_is_held(void **state)
{
    void *lowest, *first, *second, *last;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 3);
    lowest = signaller(p.q[0], at(p.a, 3));
    (void)SUBMIT(p.q[1], BUFFERS(first = kept_buffer_of(p.q[1])), SIGNALS(at(p.a, 7)));
    finish_queue(p.q[1]);
    assert_int_equal(value_of(p.a), 2);
    (void)SUBMIT(p.q[1], BUFFERS(second = kept_buffer_of(p.q[1])), SIGNALS(at(p.a, 9)));
    ticket = SUBMIT(p.q[2], WAITS(at(p.a, 5)), BUFFERS(last = kept_buffer_of(p.q[2])));
    assert_int_equal(status_of(last), 0);
    assert_int_equal(held_on(p.device, p.q[2]), 1);
    (void)commit_to(p.q[0], lowest);
    finish_queue(p.q[0]);
    assert_int_equal(value_of(p.a), 7);
    finish_queue(p.q[2]);
    assert_ok(gpusync_wait(p.q[2], ticket, 0));
    finish_queue(p.q[1]);
    drop(lowest);
    drop(first);
    drop(second);
    drop(last);
    close_idle_stage(&p);
}

static void test_a_wait_counts_after_a_commit_that_was_refused(void **state)
{
    void *buffer, *signals;
    char *report;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = kept_buffer_of(p.q[0]);
    assert_ok(gpusync_encode_wait(p.q[0], buffer, at(p.a, 1)));
    metal_enqueue(buffer);
    assert_result(gpusync_commit(p.q[0], buffer, NULL), GPUSYNC_ERROR_ENQUEUED);
    signals = signaller(p.q[1], at(p.a, 1));
    (void)commit_to(p.q[1], signals);
    (void)commit_to(p.q[0], buffer);
    report = report_of(p.device);
    assert_non_null(strstr(report, "waits for value 1 of "));
    free(report);
    finish_queue(p.q[1]);
    finish_queue(p.q[0]);
    drop(signals);
    drop(buffer);
    close_idle_stage(&p);
}

/* The GPU has ended with both, and 7 is told first. */
static void test_what_needs_a_value_that_is_told_later_is_held(void **state)
{
    void *lower, *larger, *last;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 3);
    (void)commit_to(p.q[1], lower = signaller(p.q[1], at(p.a, 3)));
    (void)commit_to(p.q[1], larger = signaller(p.q[1], at(p.a, 7)));
    softmetal_complete(lower);
    softmetal_complete(larger);
    softmetal_run_handler(larger, 0);
    assert_int_equal(value_of(p.a), 2);
    (void)SUBMIT(p.q[2], WAITS(at(p.a, 5)), BUFFERS(last = kept_buffer_of(p.q[2])));
    assert_int_equal(status_of(last), 0);
    softmetal_run_handler(lower, 0);
    assert_int_equal(value_of(p.a), 7);
    assert_true(status_of(last) >= COMMITTED);
    finish_queue(p.q[1]);
    finish_queue(p.q[2]);
    drop(lower);
    drop(larger);
    drop(last);
    close_idle_stage(&p);
}

/* One queue signals 5 and then 4. The device keeps the order of a queue, so 4 goes there at once. What needs 4 is held:
   the event stands at 5 before the work of 4 has run. below: another queue is to signal 3, and not committed it. */
static void check_a_queue_that_signals_more_first(bool below)
{
    void *smaller, *larger, *lowest = NULL, *last;
    gpusync_ticket ticket;
    stage p;
    open_stage(&p, SOFTMETAL_MANUAL, 3);
    smaller = signaller(p.q[0], at(p.a, 4));
    larger = signaller(p.q[0], at(p.a, 5));
    (void)commit_to(p.q[0], larger);
    if (below) lowest = signaller(p.q[2], at(p.a, 3));
    (void)commit_to(p.q[0], smaller);
    assert_int_equal(status_of(larger), COMMITTED);
    assert_int_equal(status_of(smaller), COMMITTED);
    ticket = commit_to(p.q[1], last = kept_buffer_after(p.q[1], at(p.a, 4)));
    assert_int_equal(status_of(last), NOT_ENQUEUED);
    softmetal_finish(larger);
    assert_int_equal(value_of(p.a), below ? 2 : 3);
    assert_int_equal(status_of(last), NOT_ENQUEUED);
    if (below) discard(p.q[2], lowest);
    softmetal_finish(smaller);
    assert_int_equal(value_of(p.a), 5);
    assert_int_equal(status_of(last), COMMITTED);
    softmetal_finish(last);
    assert_ok(gpusync_wait(p.q[1], ticket, 0));
    drop(smaller);
    drop(larger);
    drop(last);
    close_idle_stage(&p);
}

static void test_a_queue_that_signals_more_first_holds_what_needs_less(void **state)
{
    (void)state;
    check_a_queue_that_signals_more_first(false);
    check_a_queue_that_signals_more_first(true);
}

/* What a buffer has of a timeline is known also when another buffer, or a submission, has come to the timeline since. */
static void test_a_buffer_rises_though_others_have_come_to_its_timeline_meanwhile(void **state)
{
    void *buffer, *other;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = kept_buffer_after(p.q[0], at(p.b, 6));
    assert_ok(gpusync_encode_signal(p.q[0], buffer, at(p.a, 7)));
    other = signaller(p.q[1], at(p.a, 20));
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(p.a, 6)), GPUSYNC_ERROR_NOT_RISING);
    assert_ok(gpusync_encode_signal(p.q[1], other, at(p.b, 20)));
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(p.b, 6)), GPUSYNC_ERROR_NOT_RISING);
    assert_ok(gpusync_encode_signal(p.q[0], buffer, at(p.a, 8)));
    assert_ok(gpusync_encode_signal(p.q[0], buffer, at(p.b, 7)));
    assert_result(gpusync_encode_signal(p.q[1], other, at(p.a, 19)), GPUSYNC_ERROR_NOT_RISING);
    discard(p.q[0], buffer);
    discard(p.q[1], other);
    close_stage(&p);
}

static void test_what_is_refused_encodes_nothing(void **state)
{
    uint64_t signals = 0, waits = 0;
    void *buffer, *stranger, *elsewhere;
    gpusync_timeline *strange;
    gpusync_device *device;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    assert_ok(gpusync_device_create(NULL, &device));
    assert_ok(gpusync_timeline_create(device, NULL, &strange));
    buffer = kept_buffer_after(p.q[0], at(p.b, 4));
    stranger = metal_queue_command_buffer(p.metal[0]);
    assert_ok(gpusync_encode_signal(p.q[0], buffer, at(p.a, 3)));
    (void)sent("encodeSignalEvent:value:", &signals);
    (void)sent("encodeWaitForEvent:value:", &waits);
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(p.a, 3)), GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(p.a, 2)), GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(p.a, 0)), GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(p.b, 4)), GPUSYNC_ERROR_NOT_RISING); /* it waits for it */
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(p.a, GPUSYNC_MAX_VALUE + 1)), GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_encode_signal(p.q[0], buffer, gpusync_at_ticket(p.q[0], 1)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(strange, 1)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_encode_wait(p.q[0], stranger, at(strange, 1)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_encode_wait(p.q[0], NULL, at(p.a, 1)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_encode_wait(NULL, buffer, at(p.a, 1)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_encode_signal(p.q[0], NULL, at(p.a, 9)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_encode_signal(NULL, buffer, at(p.a, 9)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_encode_wait(p.q[0], buffer, gpusync_at_ticket(NULL, 1)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    /* behind a signal, whether it has been reached or not */
    assert_result(gpusync_encode_wait(p.q[0], buffer, at(p.b, 1)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_ok(gpusync_timeline_signal(p.b, 1));
    assert_result(gpusync_encode_wait(p.q[0], buffer, at(p.b, 1)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(sent("encodeSignalEvent:value:", &signals) + sent("encodeWaitForEvent:value:", &waits), 0);
    assert_int_equal(softmetal_retain_count(stranger), 1);
    elsewhere = metal_queue_command_buffer(gpusync_queue_metal(p.q[1]));
    assert_result(gpusync_encode_signal(p.q[1], elsewhere, at(p.a, 0)), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(softmetal_retain_count(elsewhere), 1);
    assert_int_equal(rooms_taken(p.q[1]), 0);
    drop(elsewhere);
    assert_result(gpusync_command_buffer_discard(p.q[0], stranger), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    drop(stranger);
    discard(p.q[0], buffer);
    assert_ok(gpusync_timeline_destroy(strange));
    assert_ok(gpusync_device_destroy(device));
    close_idle_stage(&p);
}

static void test_a_discard_takes_the_pending_signal_back(void **state)
{
    void *given_up, *waiting, *again;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    given_up = signaller(p.q[0], at(p.a, 5));
    waiting = kept_buffer_after(p.q[1], at(p.a, 5));
    ticket = commit_to(p.q[1], waiting);
    assert_int_equal(metal_status(waiting), 0); /* held: the signal is not committed */
    assert_ok(gpusync_timeline_signal(p.a, 3));
    assert_int_equal(value_of(p.a), 3);
    discard(p.q[0], given_up);
    assert_int_equal(metal_status(waiting), 0);
    again = signaller(p.q[0], at(p.a, 5));
    (void)commit_to(p.q[0], again);
    assert_int_equal(metal_status(waiting), 2); /* the signal is on its way */
    softmetal_finish(again);
    softmetal_finish(waiting);
    assert_ok(gpusync_wait(p.q[1], ticket, 0));
    drop(waiting);
    drop(again);
    close_idle_stage(&p);
}

static void test_a_value_hidden_by_an_open_signal_comes_with_its_discard(void **state)
{
    void *buffer;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = signaller(p.q[0], at(p.a, 5));
    assert_ok(gpusync_timeline_signal(p.a, 9));
    assert_int_equal(value_of(p.a), 4);
    discard(p.q[0], buffer);
    assert_int_equal(value_of(p.a), 9);
    close_idle_stage(&p);
}

/* Work that waits goes when the commit comes, in whatever order the two are committed. */
static void test_held_work_goes_with_the_commit_of_the_signal(void **state)
{
    void *producer, *consumer, *last;
    gpusync_ticket tickets[3];
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    last = kept_buffer_after(p.q[1], at(p.b, 1));
    consumer = kept_buffer_after(p.q[0], at(p.a, 1));
    assert_ok(gpusync_encode_signal(p.q[0], consumer, at(p.b, 1)));
    producer = signaller(p.q[1], at(p.a, 1));
    tickets[2] = commit_to(p.q[1], last);
    tickets[1] = commit_to(p.q[0], consumer);
    assert_result(gpusync_poll(p.q[0], tickets[1]), GPUSYNC_NOT_READY);
    assert_int_equal(metal_status(last) + metal_status(consumer), 0);
    assert_ok(TRY_SUBMIT(p.q[1], &tickets[0], BUFFERS(producer), .flags = GPUSYNC_UNORDERED));
    assert_int_equal(metal_status(consumer), 2);
    assert_int_equal(metal_status(last), 2);
    softmetal_finish(producer);
    softmetal_finish(consumer);
    softmetal_finish(last);
    assert_ok(gpusync_wait(p.q[1], tickets[0], 0));
    assert_ok(gpusync_wait(p.q[0], tickets[1], 0));
    assert_ok(gpusync_wait(p.q[1], tickets[2], 0));
    assert_int_equal(value_of(p.b), 1);
    drop(producer);
    drop(consumer);
    drop(last);
    close_idle_stage(&p);
}

enum { MANY = 20 };

static void test_as_many_waits_and_signals_as_one_likes(void **state)
{
    gpusync_timeline *in[MANY], *out[MANY];
    uint64_t waits = 0, signals = 0;
    gpusync_ticket ticket;
    void *buffer;
    int i;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    for (i = 0; i < MANY; i++) {
        in[i] = timeline_new(p.device);
        out[i] = timeline_new(p.device);
    }
    buffer = kept_buffer_of(p.q[0]);
    (void)sent("encodeWaitForEvent:value:", &waits);
    (void)sent("encodeSignalEvent:value:", &signals);
    for (i = 0; i < MANY; i++) assert_ok(gpusync_encode_wait(p.q[0], buffer, at(in[i], 7)));
    for (i = 0; i < MANY; i++) assert_ok(gpusync_encode_signal(p.q[0], buffer, at(out[i], 7)));
    assert_int_equal(sent("encodeWaitForEvent:value:", &waits), MANY);
    assert_int_equal(sent("encodeSignalEvent:value:", &signals), MANY);
    ticket = commit_to(p.q[0], buffer);
    assert_int_equal(sent("encodeWaitForEvent:value:", &waits) + sent("encodeSignalEvent:value:", &signals), 0);
    for (i = 0; i < MANY; i++) {
        assert_int_equal(metal_status(buffer), 0);
        assert_ok(gpusync_timeline_signal(in[i], 7));
    }
    assert_int_equal(metal_status(buffer), 2);
    assert_int_equal(sent("encodeSignalEvent:value:", &signals), 0);
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    for (i = 0; i < MANY; i++) {
        assert_int_equal(value_of(out[i]), 7);
        assert_ok(gpusync_timeline_destroy(in[i]));
        assert_ok(gpusync_timeline_destroy(out[i]));
    }
    drop(buffer);
    close_idle_stage(&p);
}

static void test_a_wait_for_a_ticket_is_let_go_at_its_end(void **state)
{
    void *first, *second;
    gpusync_ticket tickets[2];
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    tickets[0] = commit_empty_to(p.q[0], &first);
    second = kept_buffer_after(p.q[1], gpusync_at_ticket(p.q[0], tickets[0]));
    tickets[1] = commit_to(p.q[1], second);
    assert_int_equal(metal_status(second), 0); /* held: the host waits */
    assert_int_equal(held_on(p.device, p.q[1]), 1);
    softmetal_finish(first);
    assert_int_equal(metal_status(second), 2);
    softmetal_finish(second);
    assert_ok(gpusync_wait(p.q[1], tickets[1], 0));
    assert_result(gpusync_encode_wait(p.q[1], second, gpusync_at_ticket(p.q[1], 9)), GPUSYNC_ERROR_INVALID_TICKET);
    drop(second);
    close_idle_stage(&p);
}

/* -- failures ------------------------------------------------------------------------------------------ */

static void test_work_that_is_killed_fails_what_it_was_to_signal(void **state)
{
    void *killed, *waiting;
    gpusync_ticket tickets[2];
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    killed = signaller(p.q[0], at(p.a, 1));
    softmetal_fail(killed, NULL, 8, NULL);
    waiting = kept_buffer_after(p.q[1], at(p.a, 2));
    tickets[1] = commit_to(p.q[1], waiting);
    tickets[0] = commit_to(p.q[0], killed);
    softmetal_finish(killed);
    assert_result(gpusync_wait(p.q[0], tickets[0], 0), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_timeline_wait(p.a, 1, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait(p.q[1], tickets[1], GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(metal_status(waiting), 0); /* never committed */
    drop(killed);
    drop(waiting);
    close_idle_stage(&p);
}

/* The timeline has failed meanwhile: the work goes, and no waiter hears of the signal. */
static void test_a_pending_signal_outlives_the_failure_of_its_timeline(void **state)
{
    void *buffer, *late;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = signaller(p.q[0], at(p.a, 1));
    late = kept_buffer_of(p.q[0]);
    assert_ok(gpusync_timeline_fail(p.a, NULL));
    assert_result(gpusync_encode_signal(p.q[0], late, at(p.a, 2)), GPUSYNC_ERROR_EXECUTION);
    ticket = commit_to(p.q[0], buffer);
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    assert_result(gpusync_timeline_wait(p.a, 1, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    drop(buffer);
    discard(p.q[0], late);
    close_idle_stage(&p);
}

/* ... and says so with the failure's own result, though that is one of a call that found no memory. */
static void test_a_timeline_that_failed_for_want_of_memory_refuses_a_signal_once(void **state)
{
    gpusync_error error;
    void *ours, *theirs;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 1);
    ours = kept_buffer_of(p.q[0]);
    theirs = metal_queue_command_buffer(gpusync_queue_metal(p.q[0]));
    memset(&error, 0, sizeof error);
    error.result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    assert_ok(gpusync_timeline_fail(p.a, &error));
    must_return_within(20);
    assert_result(gpusync_encode_signal(p.q[0], ours, at(p.a, 1)), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_result(gpusync_encode_signal(p.q[0], theirs, at(p.a, 1)), GPUSYNC_ERROR_OUT_OF_MEMORY);
    has_returned();
    assert_int_equal(softmetal_retain_count(theirs), 1);
    discard(p.q[0], ours);
    metal_release(theirs);
    close_idle_stage(&p);
}

/* No wait is left for a value of it: so 5 need not go after 3, which another queue has on the device. An enqueued
   buffer could not be held for that. */
static void test_what_signals_a_failed_timeline_goes_at_once(void **state)
{
    void *first, *second;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    first = signaller(p.q[0], at(p.a, 3));
    second = signaller(p.q[1], at(p.a, 5));
    (void)commit_to(p.q[0], first);
    assert_ok(gpusync_timeline_fail(p.a, NULL));
    metal_enqueue(second);
    ticket = commit_to(p.q[1], second);
    assert_int_equal(status_of(second), COMMITTED);
    softmetal_finish(second);
    assert_ok(gpusync_wait(p.q[1], ticket, 0));
    softmetal_finish(first);
    drop(first);
    drop(second);
    close_idle_stage(&p);
}

/* A commit that failed leaves buffer and pending signals as they were, and another one may do. */
static void test_after_a_commit_that_failed_all_is_as_before(void **state)
{
    void *buffer, *waiting;
    gpusync_ticket tickets[2];
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = kept_buffer_after(p.q[0], at(p.b, 1));
    assert_ok(gpusync_encode_wait(p.q[0], buffer, at(p.b, 2)));
    assert_ok(gpusync_encode_signal(p.q[0], buffer, at(p.a, 1)));
    waiting = kept_buffer_after(p.q[1], at(p.a, 1));
    tickets[1] = commit_to(p.q[1], waiting);
    metal_enqueue(buffer);
    tickets[0] = 99;
    assert_result(gpusync_commit(p.q[0], buffer, &tickets[0]), GPUSYNC_ERROR_ENQUEUED); /* it would have to be held */
    assert_int_equal(tickets[0], GPUSYNC_NO_TICKET);
    assert_int_equal(metal_status(buffer), 1);
    assert_result(gpusync_encode_signal(p.q[1], waiting, at(p.b, 2)), GPUSYNC_ERROR_ALREADY_TRACKED); /* held */
    assert_result(TRY_SUBMIT(p.q[1], &tickets[0], SIGNALS(at(p.a, 1))), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(value_of(p.a), 0);
    assert_ok(gpusync_timeline_signal(p.b, 2));
    tickets[0] = commit_to(p.q[0], buffer);
    assert_int_equal(metal_status(waiting), 2);
    softmetal_finish(buffer);
    softmetal_finish(waiting);
    assert_ok(gpusync_wait(p.q[0], tickets[0], 0));
    assert_ok(gpusync_wait(p.q[1], tickets[1], 0));
    drop(buffer);
    drop(waiting);
    close_idle_stage(&p);
}

/* What has come, or failed, meanwhile counts. */
static void commit_again(bool fails)
{
    gpusync_queue_desc desc;
    gpusync_queue *small;
    void *held, *buffer;
    gpusync_ticket ticket;
    int i;
    stage p;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    memset(&desc, 0, sizeof desc);
    desc.max_command_buffer_count = 2; /* one of them may be held */
    small = queue_of_kind(QUEUE_OF_GPUSYNC, p.device, &desc);
    held = kept_buffer_after(small, at(p.b, 1));
    (void)commit_to(small, held);
    buffer = kept_buffer_after(small, at(p.b, 1));
    assert_ok(gpusync_encode_wait(small, buffer, at(p.b, 2)));
    for (i = 0; i < 2; i++) assert_result(gpusync_commit(small, buffer, &ticket), GPUSYNC_ERROR_QUEUE_FULL);
    if (fails) {
        assert_ok(gpusync_timeline_fail(p.b, NULL));
        ticket = commit_to(small, buffer);
        assert_result(gpusync_wait(small, ticket, 0), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(metal_status(buffer), 0);
    } else {
        assert_ok(gpusync_timeline_signal(p.b, 1));
        softmetal_finish(held);
        ticket = commit_to(small, buffer); /* held: for one of its two */
        assert_int_equal(metal_status(buffer), 0);
        assert_ok(gpusync_timeline_signal(p.b, 2));
        assert_int_equal(metal_status(buffer), 2);
        softmetal_finish(buffer);
        assert_ok(gpusync_wait(small, ticket, 0));
    }
    drop(held);
    drop(buffer);
    assert_ok(gpusync_queue_destroy(small));
    close_idle_stage(&p);
}

static void test_a_second_commit_asks_again(void **state)
{
    (void)state;
    commit_again(true);
    commit_again(false);
}

static void test_without_memory_nothing_has_changed(void **state)
{
    long k;
    (void)state;
    for (k = 1; k < 30; k++) {
        gpusync_result results[3];
        gpusync_ticket ticket = 0;
        void *buffer;
        int i;
        stage p;
        open_stage(&p, SOFTMETAL_MANUAL, 2);
        buffer = metal_queue_command_buffer(p.metal[0]);
        softmetal_fail_creation((unsigned)k, false);
        p.rig.memory.fail_at = k;
        results[0] = gpusync_encode_wait(p.q[0], buffer, at(p.b, 1));
        results[1] = gpusync_encode_signal(p.q[0], buffer, at(p.a, 1));
        for (i = 0; i < 2; i++) assert_true(results[i] == GPUSYNC_OK || results[i] == GPUSYNC_ERROR_OUT_OF_MEMORY);
        results[2] = gpusync_commit(p.q[0], buffer, &ticket);
        softmetal_fail_creation(0, false);
        p.rig.memory.fail_at = 0;
        if (results[2] != GPUSYNC_OK) {
            assert_result(results[2], GPUSYNC_ERROR_OUT_OF_MEMORY);
            assert_int_equal(metal_status(buffer), 0);
            if (results[1] != GPUSYNC_OK) assert_ok(gpusync_encode_signal(p.q[0], buffer, at(p.a, 1)));
            ticket = commit_to(p.q[0], buffer);
            results[1] = GPUSYNC_OK;
        }
        assert_ok(gpusync_timeline_signal(p.b, 1));
        assert_int_equal(metal_status(buffer), 2);
        softmetal_finish(buffer);
        assert_ok(gpusync_wait(p.q[0], ticket, 0));
        assert_int_equal(value_of(p.a), results[1] == GPUSYNC_OK);
        drop(buffer);
        close_idle_stage(&p);
    }
}

/* -- command buffers that gpusync did not make --------------------------------------------------------- */

static void test_any_buffer_of_the_queue_will_do(void **state)
{
    void *buffer, *unused;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = metal_queue_command_buffer(p.metal[0]);
    unused = metal_queue_command_buffer(p.metal[0]);
    assert_ok(gpusync_encode_wait(p.q[0], buffer, at(p.a, 0))); /* reached: kept all the same */
    assert_int_equal(softmetal_retain_count(buffer), 2);
    assert_ok(gpusync_encode_wait(p.q[0], buffer, at(p.a, 1)));
    assert_ok(gpusync_encode_signal(p.q[0], buffer, at(p.b, 1)));
    assert_int_equal(softmetal_retain_count(buffer), 2);
    assert_ok(gpusync_encode_signal(p.q[0], unused, at(p.b, 2)));
    assert_result(gpusync_encode_wait(p.q[1], unused, at(p.a, 1)), GPUSYNC_ERROR_WRONG_QUEUE);
    assert_ok(gpusync_command_buffer_discard(p.q[0], unused));
    assert_int_equal(softmetal_retain_count(unused), 1);
    assert_result(gpusync_command_buffer_discard(p.q[0], unused), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    assert_ok(gpusync_timeline_signal(p.a, 1));
    ticket = commit_to(p.q[0], buffer);
    assert_int_equal(metal_status(buffer), 2);
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(p.b, 3)), GPUSYNC_ERROR_ALREADY_COMMITTED);
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    assert_int_equal(value_of(p.b), 1);
    drop(buffer);
    drop(unused);
    close_idle_stage(&p);
}

static void test_what_waits_or_signals_is_not_tracked_and_what_is_tracked_neither_waits_nor_signals(void **state)
{
    void *buffer, *tracked;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = signaller(p.q[0], at(p.a, 1));
    tracked = metal_queue_command_buffer(p.metal[0]);
    assert_result(gpusync_track(p.q[0], buffer, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_ok(gpusync_track(p.q[0], tracked, &ticket));
    assert_result(gpusync_encode_wait(p.q[0], tracked, at(p.a, 2)), GPUSYNC_ERROR_ALREADY_TRACKED);
    assert_result(gpusync_encode_signal(p.q[0], tracked, at(p.a, 2)), GPUSYNC_ERROR_ALREADY_TRACKED);
    assert_ok(gpusync_untrack(p.q[0], ticket));
    drop(tracked);
    discard(p.q[0], buffer);
    close_idle_stage(&p);
}

/* What gpusync has put into a buffer needs a commit by gpusync. One that the program has committed all the same is
   refused by each call, and is still open: its pending signal stands until the discard. */
static void test_what_waits_or_signals_is_refused_once_the_program_has_committed_it(void **state)
{
    gpusync_ticket ticket = 99;
    void *buffer;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = signaller(p.q[0], at(p.a, 1));
    metal_commit(buffer);
    assert_result(gpusync_track(p.q[0], buffer, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_result(gpusync_commit(p.q[0], buffer, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    REFUSED(GPUSYNC_ERROR_ALREADY_COMMITTED, p.q[0], BUFFERS(buffer));
    REFUSED(GPUSYNC_ERROR_NOT_RISING, p.q[1], SIGNALS(at(p.a, 1)));
    assert_int_equal(rooms_taken(p.q[0]), 1);
    assert_ok(gpusync_queue_wait(p.q[0], 0)); /* there is no ticket of it */
    softmetal_finish(buffer);
    discard(p.q[0], buffer);
    assert_int_equal(rooms_taken(p.q[0]), 0);
    assert_result(gpusync_timeline_wait(p.a, 1, 0, NULL), GPUSYNC_TIMEOUT);
    (void)SUBMIT(p.q[1], SIGNALS(at(p.a, 2)));
    finish_queue(p.q[1]);
    assert_ok(gpusync_timeline_wait(p.a, 2, 0, NULL));
    close_idle_stage(&p);
}

static void test_on_a_lost_device_nothing_is_encoded(void **state)
{
    uint64_t signals = 0, waits = 0;
    void *buffer, *killed;
    unsigned long owners;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = metal_queue_command_buffer(p.metal[0]);
    owners = softmetal_retain_count(buffer);
    killed = open_on(&p, 1);
    fail_with_the_device(killed);
    (void)commit_to(p.q[1], killed);
    softmetal_finish(killed);
    assert_true(gpusync_device_is_lost(p.device));
    (void)sent("encodeSignalEvent:value:", &signals);
    (void)sent("encodeWaitForEvent:value:", &waits);
    assert_result(gpusync_encode_wait(p.q[0], buffer, at(p.a, 1)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_encode_signal(p.q[0], buffer, at(p.b, 1)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(sent("encodeSignalEvent:value:", &signals) + sent("encodeWaitForEvent:value:", &waits), 0);
    assert_int_equal(softmetal_retain_count(buffer), owners);
    drop(buffer);
    close_idle_stage(&p);
}

static struct {
    void *looked_at, *killed;
    gpusync_device *gives_up; /* or NULL */
} losing;

/* The device is lost while a call asks how far this work is; or the work is given up, too. */
static void lose_in_between(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_BEFORE || object != GET(&losing.looked_at) || strcmp(selector, "status") != 0) return;
    PUT(&losing.looked_at, NULL);
    softmetal_finish(losing.killed);
    if (losing.gives_up) probe_give_up_lost(losing.gives_up);
}

/* A call that was let in before the device was lost does not encode a wait for work that was given up meanwhile. Work that
   the GPU goes on with may be waited for, and the commit is refused. */
static void lose_while_a_wait_is_encoded(bool given_up)
{
    void *buffer, *producer, *killed;
    gpusync_ticket ticket;
    stage p;
    open_stage(&p, SOFTMETAL_MANUAL, 3);
    buffer = kept_buffer_of(p.q[0]);
    producer = kept_buffer_of(p.q[1]);
    killed = open_on(&p, 2);
    fail_with_the_device(killed);
    ticket = commit_to(p.q[1], producer);
    (void)commit_to(p.q[2], killed);
    losing.killed = killed;
    losing.gives_up = given_up ? p.device : NULL;
    PUT(&losing.looked_at, producer);
    softmetal_set_message_hook(lose_in_between, NULL);
    assert_result(gpusync_encode_wait(p.q[0], buffer, after(p.q[1], ticket)),
                  given_up ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK);
    softmetal_set_message_hook(NULL, NULL);
    assert_null(GET(&losing.looked_at));
    assert_int_equal(softmetal_message_count("encodeWaitForEvent:value:"), 0);
    assert_result(gpusync_commit(p.q[0], buffer, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    discard(p.q[0], buffer);
    finish(&p, 1);
    assert_result(gpusync_poll(p.q[1], ticket), given_up ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK);
    drop(producer);
    close_idle_stage(&p);
}

static void test_a_loss_while_a_wait_is_encoded(void **state)
{
    (void)state;
    lose_while_a_wait_is_encoded(false);
    lose_while_a_wait_is_encoded(true);
}

/* A value of a command buffer that is open when the device is lost fails when the work is given up; the command buffer is
   refused, and may be discarded before that or after it. */
static void test_an_encoded_signal_fails_when_a_lost_device_gives_up(void **state)
{
    outcome told;
    void *buffer, *killed;
    stage p;
    int first;
    (void)state;
    for (first = 0; first < 2; first++) {
        memset(&told, 0, sizeof told);
        open_stage(&p, SOFTMETAL_MANUAL, 2);
        buffer = kept_buffer_of(p.q[0]);
        assert_ok(gpusync_encode_signal(p.q[0], buffer, at(p.a, 1)));
        on_value(p.a, 1, &told);
        killed = open_on(&p, 1);
        fail_with_the_device(killed);
        (void)commit_to(p.q[1], killed);
        softmetal_finish(killed);
        assert_result(gpusync_commit(p.q[0], buffer, NULL), GPUSYNC_ERROR_DEVICE_LOST);
        if (first) discard(p.q[0], buffer);
        probe_give_up_lost(p.device);
        assert_ended(&told, GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(reached(p.a, GPUSYNC_ERROR_DEVICE_LOST), 0);
        assert_result(gpusync_timeline_wait(p.a, 1, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST);
        if (!first) discard(p.q[0], buffer);
        close_idle_stage(&p);
    }
}

/* The queue of the ticket is gone, and a newer one is there: it is not taken for that. */
static void test_a_wait_for_a_ticket_of_a_queue_that_went_fails_with_newer_queues_about(void **state)
{
    gpusync_ticket ticket;
    gpusync_queue *newer;
    void *buffer, *producer, *metal;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    metal = metal_retain(p.metal[1]);
    producer = metal_retain(open_on(&p, 1));
    ticket = commit_to(p.q[1], producer);
    buffer = kept_buffer_after(p.q[0], after(p.q[1], ticket));
    newer = queue_new(p.device);
    (void)commit_empty_to(newer, NULL); /* with a ticket of that number */
    take_down_queue(&p, 1, true);
    ticket = commit_to(p.q[0], buffer);
    softmetal_finish_queue(p.metal[0]);
    assert_result(gpusync_wait(p.q[0], ticket, 0), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(error_of(p.q[0], ticket).failure, GPUSYNC_FAILURE_CANCELLED); /* as if held meanwhile */
    softmetal_finish_queue(metal);
    finish_queue(newer);
    assert_ok(gpusync_queue_destroy(newer));
    metal_release(metal);
    drop(producer);
    drop(buffer);
    close_idle_stage(&p);
}

static void test_a_ticket_that_had_ended_well_counts_as_reached_though_its_queue_goes_before_the_commit(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    ticket = commit_empty_to(p.q[1], NULL);
    finish_queue(p.q[1]);
    buffer = kept_buffer_after(p.q[0], after(p.q[1], ticket));
    take_down_queue(&p, 1, false);
    ticket = commit_to(p.q[0], buffer);
    finish_queue(p.q[0]);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    drop(buffer);
    close_idle_stage(&p);
}

static void test_the_report_names_the_open_buffer_whose_signal_keeps_back_what_was_signalled(void **state)
{
    char words[160];
    void *buffer;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = buffer_of(p.q[1]);
    assert_ok(gpusync_encode_signal(p.q[1], buffer, at(p.a, 1)));
    assert_ok(gpusync_timeline_signal(p.a, 2));
    (void)SUBMIT(p.q[0], BUFFERS(buffer_of(p.q[0])), WAITS(at(p.a, 2)));
    snprintf(words, sizeof words, "kept back by value 1, pending in a command buffer of queue 2 (%p) that is not committed\n", buffer);
    assert_true(reports(p.device, words));
    (void)commit_to(p.q[1], buffer);
    finish_queue(p.q[1]);
    finish_queue(p.q[0]);
    assert_int_equal(value_of(p.a), 2);
    close_idle_stage(&p);
}

/* Found by a hash, which grows. */
static void test_hundreds_of_open_buffers_are_told_apart(void **state)
{
    enum { OPEN = 700 };
    static void *buffers[OPEN];
    gpusync_queue_desc desc;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    unsigned i;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    memset(&desc, 0, sizeof desc);
    desc.max_command_buffer_count = OPEN;
    queue = queue_of_kind(QUEUE_OF_GPUSYNC, p.device, &desc);
    for (i = 0; i < OPEN; i++) {
        p.rig.memory.fail_at = i == 64; /* when it is to grow first: it does later */
        assert_ok(gpusync_command_buffer(queue, NULL, &buffers[i]));
        p.rig.memory.fail_at = 0;
    }
    for (i = 0; i < OPEN; i++) {
        void *buffer = buffers[(i * 331) % OPEN];
        if (i % 3 == 0) assert_ok(gpusync_command_buffer_discard(queue, buffer));
        if (i % 3 == 1) assert_ok(gpusync_commit(queue, buffer, &ticket));
        if (i % 3 == 2) assert_ok(gpusync_encode_signal(queue, buffer, at(p.a, i)));
    }
    assert_int_equal(value_of(p.a), 0);
    for (i = 2; i < OPEN; i += 3) assert_ok(gpusync_commit(queue, buffers[(i * 331) % OPEN], &ticket));
    finish_queue(queue);
    assert_ok(gpusync_wait(queue, ticket, 0));
    assert_ok(gpusync_queue_wait(queue, 0));
    assert_int_equal(value_of(p.a), 698);
    assert_ok(gpusync_queue_destroy(queue));
    close_idle_stage(&p);
}

/* -- several buffers as one ticket --------------------------------------------------------------------- */

static void test_a_submission_takes_along_what_is_in_its_buffers(void **state)
{
    void *buffers[2];
    uint64_t waits = 0, signals = 0;
    gpusync_point more[2];
    gpusync_submission s;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffers[0] = kept_buffer_after(p.q[0], at(p.b, 1));
    assert_ok(gpusync_encode_signal(p.q[0], buffers[0], at(p.a, 1)));
    buffers[1] = kept_buffer_after(p.q[0], at(p.b, 2));
    assert_ok(gpusync_encode_signal(p.q[0], buffers[1], at(p.a, 2)));
    memset(&s, 0, sizeof s);
    more[0] = at(p.b, 3);
    more[1] = at(p.a, 1);
    s.waits = &more[0];
    s.signals = &more[1];
    s.wait_count = s.signal_count = 1;
    s.command_buffers = buffers;
    s.command_buffer_count = 2;
    assert_result(gpusync_submit(p.q[0], &s, &ticket), GPUSYNC_ERROR_NOT_RISING); /* that is the first's */
    more[1] = at(p.a, 3);
    (void)sent("encodeWaitForEvent:value:", &waits);
    (void)sent("encodeSignalEvent:value:", &signals);
    assert_ok(gpusync_submit(p.q[0], &s, &ticket));
    assert_ok(gpusync_timeline_signal(p.b, 2));
    assert_int_equal(metal_status(buffers[0]), 0); /* 3 is a wait of all */
    assert_ok(gpusync_timeline_signal(p.b, 3));
    assert_int_equal(metal_status(buffers[1]), 2);
    assert_int_equal(sent("encodeWaitForEvent:value:", &waits), 0); /* all had come */
    assert_int_equal(sent("encodeSignalEvent:value:", &signals), 1);
    softmetal_finish(buffers[0]);
    assert_int_equal(value_of(p.a), 0); /* when all of it has ended */
    finish_queue(p.q[0]);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    assert_int_equal(value_of(p.a), 3);
    drop(buffers[0]);
    drop(buffers[1]);
    close_idle_stage(&p);
}

/* The device waits once for each: in front for what the submission names, in the buffer for what stands there. */
static void test_what_is_in_a_buffer_is_not_encoded_again(void **state)
{
    uint64_t waits = 0, signals = 0;
    void *producer, *consumer;
    gpusync_ticket ticket;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    producer = signaller(p.q[1], at(p.b, 1));
    assert_ok(gpusync_encode_signal(p.q[1], producer, at(p.c, 1)));
    (void)commit_to(p.q[1], producer);
    consumer = kept_buffer_after(p.q[0], at(p.b, 1));
    assert_ok(gpusync_encode_signal(p.q[0], consumer, at(p.a, 1)));
    (void)sent("encodeWaitForEvent:value:", &waits);
    (void)sent("encodeSignalEvent:value:", &signals);
    ticket = SUBMIT(p.q[0], BUFFERS(consumer), WAITS(at(p.c, 1)), SIGNALS(at(p.a, 2)));
    assert_int_equal(sent("encodeWaitForEvent:value:", &waits), 1);
    assert_int_equal(sent("encodeSignalEvent:value:", &signals), 1);
    finish_queue(p.q[1]);
    finish_queue(p.q[0]);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    assert_int_equal(value_of(p.a), 2);
    drop(producer);
    drop(consumer);
    close_idle_stage(&p);
}

/* The second buffer waits for what the first signals: as one ticket that would never end; as two it does. */
static void test_a_submission_that_waits_for_itself_is_refused_and_its_buffers_are_as_before(void **state)
{
    void *buffers[2];
    gpusync_submission s;
    gpusync_ticket tickets[2];
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffers[0] = signaller(p.q[0], at(p.a, 1));
    buffers[1] = kept_buffer_after(p.q[0], at(p.a, 1));
    assert_ok(gpusync_encode_signal(p.q[0], buffers[1], at(p.b, 1)));
    memset(&s, 0, sizeof s);
    s.command_buffers = buffers;
    s.command_buffer_count = 2;
    assert_result(gpusync_submit(p.q[0], &s, &tickets[0]), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(tickets[0], GPUSYNC_NO_TICKET);
    assert_result(gpusync_timeline_wait(p.b, 1, 0, NULL), GPUSYNC_TIMEOUT);
    tickets[0] = commit_to(p.q[0], buffers[0]);
    tickets[1] = commit_to(p.q[0], buffers[1]);
    finish_queue(p.q[0]);
    assert_ok(gpusync_wait(p.q[0], tickets[0], 0));
    assert_ok(gpusync_wait(p.q[0], tickets[1], 0));
    assert_int_equal(value_of(p.a) + value_of(p.b), 2);
    drop(buffers[0]);
    drop(buffers[1]);
    close_idle_stage(&p);
}

/* ... also when it was refused after some of its waits were asked for. */
static void test_a_submission_that_cannot_be_held_leaves_its_buffers_as_they_were(void **state)
{
    gpusync_wait_options options;
    gpusync_error error;
    void *buffers[2], *waiting;
    gpusync_submission s;
    gpusync_ticket tickets[3];
    stage p;
    int i;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    waiting = kept_buffer_after(p.q[1], at(p.a, 2));
    tickets[2] = commit_to(p.q[1], waiting);
    for (i = 0; i < 2; i++) {
        buffers[i] = kept_buffer_after(p.q[0], at(p.b, 1));
        assert_ok(gpusync_encode_signal(p.q[0], buffers[i], at(p.a, 1 + (uint64_t)i)));
    }
    metal_enqueue(buffers[0]);
    metal_enqueue(buffers[1]);
    memset(&s, 0, sizeof s);
    s.command_buffers = buffers;
    s.command_buffer_count = 2;
    assert_result(gpusync_submit(p.q[0], &s, &tickets[0]), GPUSYNC_ERROR_ENQUEUED);
    assert_ok(gpusync_timeline_signal(p.b, 1));
    assert_int_equal(metal_status(buffers[0]), 1);
    tickets[0] = commit_to(p.q[0], buffers[0]);
    assert_int_equal(metal_status(waiting), 0);
    softmetal_fail(buffers[1], "TestDomain", 42, "killed");
    tickets[1] = commit_to(p.q[0], buffers[1]);
    assert_int_equal(metal_status(waiting), 2);
    finish_queue(p.q[0]);
    finish_queue(p.q[1]);
    assert_ok(gpusync_wait(p.q[0], tickets[0], 0));
    assert_result(gpusync_wait(p.q[0], tickets[1], 0), GPUSYNC_ERROR_EXECUTION);
    memset(&options, 0, sizeof options);
    options.error = &error;
    assert_result(gpusync_wait_ex(p.q[1], tickets[2], 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.code, 42);
    assert_result(gpusync_timeline_wait(p.a, 2, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.code, 42); /* the pending signal is its own buffer's again */
    for (i = 0; i < 2; i++) drop(buffers[i]);
    drop(waiting);
    close_idle_stage(&p);
}

/* -- a circle that a watchdog ends -------------------------------------------------------------------- */

/* The first waits, on the device, for a value that comes only when the second has ended, which is held for the first: the
   program's mistake. The watchdog ends the first. */
typedef struct circle {
    rig r;
    gpusync_timeline *timeline;
    void *event, *buffers[2];
    gpusync_ticket tickets[2];
} circle;

static void circle_open(circle *c)
{
    int i;
    rig_open(&c->r, SOFTMETAL_MANUAL);
    c->timeline = timeline_over(c->r.device, &c->event);
    c->buffers[0] = kept_buffer_after(c->r.queue, gpusync_at_value(c->timeline, 18));
    c->tickets[0] = commit_to(c->r.queue, c->buffers[0]);
    c->buffers[1] = kept_buffer_after(c->r.queue, gpusync_at_ticket(c->r.queue, c->tickets[0]));
    c->tickets[1] = SUBMIT(c->r.queue, BUFFERS(c->buffers[1]), SIGNALS(gpusync_at_value(c->timeline, 4)),
                           .flags = SIGNALS_INSIDE);
    for (i = 0; i < 2; i++) assert_int_equal(metal_status(c->buffers[i]), i == 0 ? 2 : 0);
    assert_ok(gpusync_timeline_signal(c->timeline, 29)); /* not to be seen before 4 is signalled */
    softmetal_time_out(c->buffers[0]);
    softmetal_finish(c->buffers[0]);
    assert_int_equal(metal_status(c->buffers[0]), 5);
}

static void circle_close(circle *c)
{
    int i;
    for (i = 0; i < 2; i++) metal_release(c->buffers[i]);
    assert_ok(gpusync_timeline_destroy(c->timeline));
    metal_release(c->event);
    rig_close(&c->r);
}

static void test_the_ticket_of_work_that_was_killed_ends_and_ends_what_is_held_for_it(void **state)
{
    circle c;
    (void)state;
    circle_open(&c);
    assert_result(gpusync_poll(c.r.queue, c.tickets[0]), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(c.r.queue, c.tickets[1]), GPUSYNC_ERROR_EXECUTION); /* as what it waited for */
    assert_int_equal(metal_status(c.buffers[1]), 0);
    circle_close(&c);
}

static void test_destroy_ends_when_all_work_was_killed(void **state)
{
    circle c;
    (void)state;
    circle_open(&c);
    assert_ok(gpusync_queue_destroy(c.r.queue));
    c.r.queue = NULL;
    circle_close(&c);
}

/* -- what goes ----------------------------------------------------------------------------------------- */

static void open_signal_goes_with_its_queue(gpusync_result (*destroy)(gpusync_queue *), gpusync_result expected)
{
    gpusync_error error;
    const gpusync_wait_options options = {.error = &error};
    void *buffer, *waiting;
    gpusync_ticket ticket;
    wait_job job;
    stage p;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = signaller(p.q[1], at(p.a, 1));
    waiting = kept_buffer_after(p.q[0], at(p.a, 1));
    ticket = commit_to(p.q[0], waiting);
    wait_job_start(&job, p.q[0], ticket, GPUSYNC_FOREVER);
    await_sleepers(p.device, 1);
    assert_ok(destroy(p.q[1]));
    p.q[1] = NULL;
    assert_result(wait_job_join(&job), expected);
    memset(&error, 0, sizeof error);
    assert_result(gpusync_timeline_wait(p.a, 1, 0, &options), expected);
    assert_result(error.result, expected);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED); /* the program has given it up */
    memset(&error, 0, sizeof error);
    assert_result(gpusync_wait_ex(p.q[0], ticket, 0, &options), expected);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_int_equal(owners_of(buffer), 1);
    drop(buffer);
    drop(waiting);
    close_idle_stage(&p);
}

static void test_an_open_signal_goes_with_its_queue(void **state)
{
    (void)state;
    open_signal_goes_with_its_queue(gpusync_queue_destroy, GPUSYNC_ERROR_CANCELLED);
    open_signal_goes_with_its_queue(gpusync_queue_destroy_now, GPUSYNC_ERROR_DESTROYED);
}

/* The timeline goes first: the commit comes all the same, and lets go the work that waits; a discard ends that work. */
static void timeline_goes_before(bool commits)
{
    void *buffer, *waiting;
    gpusync_ticket tickets[2];
    stage p;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = signaller(p.q[0], at(p.a, 1));
    waiting = kept_buffer_after(p.q[1], at(p.a, 1));
    tickets[1] = commit_to(p.q[1], waiting);
    assert_ok(gpusync_timeline_destroy(p.a));
    p.a = NULL;
    assert_result(gpusync_poll(p.q[1], tickets[1]), GPUSYNC_NOT_READY);
    if (commits) {
        tickets[0] = commit_to(p.q[0], buffer);
        assert_int_equal(metal_status(waiting), 2);
        softmetal_finish(buffer);
        softmetal_finish(waiting);
        assert_ok(gpusync_wait(p.q[0], tickets[0], 0));
        assert_ok(gpusync_wait(p.q[1], tickets[1], 0));
        drop(buffer);
    } else {
        discard(p.q[0], buffer);
        assert_result(gpusync_wait(p.q[1], tickets[1], 0), GPUSYNC_ERROR_DESTROYED);
    }
    drop(waiting);
    close_idle_stage(&p);
}

static void test_a_timeline_may_go_while_open_buffers_name_it(void **state)
{
    (void)state;
    timeline_goes_before(true);
    timeline_goes_before(false);
}

/* Work waits for 1 of a timeline and signals 2 of it; with `chained` other work waits for 2. No work is to signal 1, and
   no call can any more. inside: the signal is in the work's own buffer, which is committed after the timeline went. */
static void timeline_goes_under(bool chained, bool commit_behind, bool inside)
{
    gpusync_ticket first = 0, second = 0;
    void *buffer = NULL;
    stage p;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    if (inside) {
        buffer = kept_buffer_after(p.q[0], at(p.a, 1));
        assert_ok(gpusync_encode_signal(p.q[0], buffer, at(p.a, 2)));
    } else {
        first = SUBMIT(p.q[0], WAITS(at(p.a, 1)), SIGNALS(at(p.a, 2)));
    }
    if (chained) second = SUBMIT(p.q[0], WAITS(at(p.a, 2)), SIGNALS(at(p.a, 3)), .flags = GPUSYNC_UNORDERED);
    if (commit_behind) second = commit_empty_to(p.q[0], NULL);
    assert_ok(gpusync_timeline_destroy(p.a));
    p.a = NULL;
    if (inside) {
        first = commit_to(p.q[0], buffer);
        drop(buffer);
    }
    assert_result(gpusync_poll(p.q[0], first), GPUSYNC_ERROR_DESTROYED);
    if (chained) assert_result(gpusync_poll(p.q[0], second), GPUSYNC_ERROR_DESTROYED);
    finish_queue(p.q[0]);
    if (commit_behind) assert_ok(gpusync_poll(p.q[0], second));
    close_idle_stage(&p);
}

/* Others have signalled the value, and a pending signal keeps it back: it will come, though the timeline goes. */
static void test_a_commit_waits_for_a_value_that_is_kept_back_though_the_timeline_went(void **state)
{
    gpusync_timeline *abroad;
    gpusync_ticket ticket;
    void *event, *buffer;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    abroad = timeline_over(p.device, &event);
    (void)SUBMIT(p.q[0], WAITS(at(p.a, 1)), BUFFERS(open_on(&p, 0)), SIGNALS(at(abroad, 4)));
    metal_event_signal(event, 5);
    assert_int_equal(value_of(abroad), 3);
    buffer = kept_buffer_after(p.q[1], at(abroad, 5));
    assert_ok(gpusync_timeline_destroy(abroad));
    ticket = commit_to(p.q[1], buffer);
    assert_int_equal(metal_status(buffer), 0); /* held, and not given up */
    assert_ok(gpusync_timeline_signal(p.a, 1));
    finish(&p, 0);
    assert_int_equal(metal_status(buffer), 2);
    finish(&p, 1);
    assert_ok(gpusync_wait(p.q[1], ticket, 0));
    drop(buffer);
    metal_release(event);
    close_idle_stage(&p);
}

static void test_a_timeline_that_goes_ends_work_that_signals_what_it_waits_for(void **state)
{
    (void)state;
    timeline_goes_under(false, false, false);
    timeline_goes_under(false, false, true);
}

static void test_a_timeline_that_goes_ends_a_chain_of_work_along_it(void **state)
{
    (void)state;
    timeline_goes_under(true, false, false);
    timeline_goes_under(true, false, true);
}

static void test_a_timeline_that_goes_lets_the_commit_behind_such_work_go(void **state)
{
    (void)state;
    timeline_goes_under(false, true, false);
}

static void test_the_report_names_the_buffer_that_is_not_committed(void **state)
{
    static char text[1 << 14];
    char wanted[128];
    void *buffer, *waiting;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = signaller(p.q[1], at(p.a, 1));
    waiting = NULL;
    {
        gpusync_command_buffer_desc desc;
        gpusync_point wait = at(p.a, 1);
        memset(&desc, 0, sizeof desc);
        desc.label = "impatient";
        assert_ok(make_behind(p.q[0], &desc, &wait, 1, &waiting));
    }
    (void)commit_to(p.q[0], waiting);
    (void)gpusync_report(p.device, text, sizeof text);
    assert_non_null(strstr(text, "ticket 1 'impatient': held for "));
    snprintf(wanted, sizeof wanted, "pending in a command buffer of queue 2 (%p) that is not committed", buffer);
    assert_non_null(strstr(text, wanted));
    discard(p.q[1], buffer);
    {
        gpusync_point wait = at(p.b, 1);
        assert_ok(make_behind(p.q[1], NULL, &wait, 1, &buffer));
        assert_ok(gpusync_encode_signal(p.q[1], buffer, at(p.a, 1)));
    }
    (void)commit_to(p.q[1], buffer); /* and is held: from here on the ticket is named */
    (void)gpusync_report(p.device, text, sizeof text);
    assert_non_null(strstr(text, "pending in ticket 1 of queue 2, which is held"));
    assert_ok(gpusync_cancel_held(p.q[0]));
    assert_ok(gpusync_cancel_held(p.q[1]));
    close_idle_stage(&p);
}

/* A submission takes over what was encoded into its command buffers. A report comes when it enters the first or the
   second timeline for the n-th time, and names the pending signal of the value all the same: that of the command buffer until
   the submission has its ticket, and that of the submission from then on. */
static struct {
    gpusync_device *device;
    unsigned signals, of_a_buffer; /* of this report */
} told;

static void tell_of_signals(void *unused)
{
    char *report = report_of(told.device), *line = report;
    (void)unused;
    for (; (line = strstr(line, " waits for value 1 of ")) != NULL; line++) {
        const char *by = strchr(line, ':');
        if (strncmp(by, ": pending in ", 13) == 0) told.signals++;
        if (strncmp(by, ": pending in a command buffer ", 30) == 0) told.of_a_buffer++;
    }
    free(report);
}

static bool is_told_at(probe_place place, int n)
{
    void *waits, *signals;
    gpusync_ticket ticket;
    bool acted;
    stage p;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    told.device = p.device;
    told.signals = told.of_a_buffer = 0;
    (void)SUBMIT(p.q[1], WAITS(at(p.a, 1), at(p.b, 1)), BUFFERS(waits = kept_buffer_of(p.q[1])));
    signals = signaller(p.q[0], at(p.a, 1));
    assert_ok(gpusync_encode_signal(p.q[0], signals, at(p.b, 1)));
    if (place) probe_at(place, NULL, n, tell_of_signals, NULL);
    else probe_at_each(n, tell_of_signals, NULL);
    ticket = SUBMIT(p.q[0], BUFFERS(signals));
    acted = probe_has_acted();
    assert_int_equal(told.signals, acted ? 2 : 0);
    assert_true(told.of_a_buffer == told.signals || (!place && !told.of_a_buffer));
    told.signals = told.of_a_buffer = 0;
    tell_of_signals(NULL);
    assert_int_equal(told.signals, 2);
    assert_int_equal(told.of_a_buffer, 0);
    finish_queue(p.q[0]);
    finish_queue(p.q[1]);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    drop(waits);
    drop(signals);
    close_idle_stage(&p);
    return acted;
}

static void test_a_report_names_the_pending_signal_while_a_submission_takes_it_over(void **state)
{
    int n;
    (void)state;
    assert_true(is_told_at(PROBE_ENTERS, 1));
    for (n = 1; is_told_at(PROBE_NOWHERE, n); n++) {}
    assert_true(n > 1);
}

/* -- room ---------------------------------------------------------------------------------------------- */

static struct {
    unsigned parks;
    void *buffer; /* finished in the first of them */
} room_sleep;

static void finish_in_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter, (void)deadline_ns;
    if (room_sleep.parks++ == 0) softmetal_finish(room_sleep.buffer);
}

static void unpark_nothing(void *user, gpusync_waiter *waiter) { (void)user, (void)waiter; }

/* A queue of eight: seven held, which is all that may be, and one that is running. */
static void test_what_cannot_be_held_is_told_so_at_once(void **state)
{
    static const uint64_t none = 0;
    gpusync_hooks hooks = {NULL, finish_in_park, unpark_nothing, NULL};
    gpusync_timeline *timeline;
    gpusync_result result;
    gpusync_ticket ticket;
    int i;
    rig r;
    (void)state;
    rig_open_hooked(&r, SOFTMETAL_MANUAL, &hooks, 8);
    timeline = timeline_new(r.device);
    commit_empty(&r, &room_sleep.buffer);
    for (i = 0; i < 7; i++) {
        void *buffer = kept_buffer_of(r.queue);
        (void)SUBMIT(r.queue, WAITS(gpusync_at_value(timeline, 1)), BUFFERS(buffer), .flags = GPUSYNC_STRICT);
        metal_release(buffer);
    }
    /* it would be held for 2, with a command buffer of our own */
    result = TRY_SUBMIT(r.queue, &ticket, WAITS(gpusync_at_value(timeline, 2)), .timeout_ns = &none);
    assert_result(result, GPUSYNC_ERROR_QUEUE_FULL);
    result = TRY_SUBMIT(r.queue, &ticket, WAITS(gpusync_at_value(timeline, 2)));
    assert_int_equal(room_sleep.parks, 0);
    assert_result(result, GPUSYNC_ERROR_QUEUE_FULL);
    softmetal_finish(room_sleep.buffer);
    assert_ok(gpusync_timeline_signal(timeline, 1));
    finish_queue(r.queue);
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

static struct {
    gpusync_queue *queue;
    unsigned most;
} rooms_seen;

static void see_rooms(void *unused)
{
    (void)unused;
    if (rooms_taken(rooms_seen.queue) > rooms_seen.most) rooms_seen.most = (unsigned)rooms_taken(rooms_seen.queue);
}

static bool is_refused_at(int n)
{
    void *stranger, *first;
    bool acted;
    stage p;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    rooms_seen.queue = p.q[0];
    rooms_seen.most = 0;
    first = signaller(p.q[1], at(p.a, 1));
    stranger = metal_queue_command_buffer(p.metal[0]);
    probe_at_each(n, see_rooms, NULL);
    assert_result(gpusync_encode_signal(p.q[0], stranger, at(p.a, 1)), GPUSYNC_ERROR_NOT_RISING);
    acted = probe_has_acted();
    assert_int_equal(rooms_seen.most, 0);
    drop(stranger);
    discard(p.q[1], first);
    close_idle_stage(&p);
    return acted;
}

/* The value is taken: a buffer that the program made itself takes no room at any point of the call. */
static void test_a_refused_signal_takes_no_room(void **state)
{
    int n;
    (void)state;
    for (n = 1; is_refused_at(n); n++) {}
    assert_true(n > 1);
}

/* -- while a commit comes in ---------------------------------------------------------------------------- */

static void signal_b(void *argument) { assert_ok(gpusync_timeline_signal(((stage *)argument)->b, 1)); }
static void fail_b(void *argument) { assert_ok(gpusync_timeline_fail(((stage *)argument)->b, NULL)); }

/* What it waits for comes, or fails, just before the work is in the line. */
static void comes_in_between(void (*act)(void *), uint32_t flags, gpusync_result expected)
{
    void *buffer;
    gpusync_ticket ticket;
    stage p;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    buffer = kept_buffer_after(p.q[0], at(p.b, 1));
    probe_at(PROBE_ENTERS, NULL, 1, act, &p);
    ticket = SUBMIT(p.q[0], BUFFERS(buffer), SIGNALS(at(p.a, 1)), .flags = flags);
    assert_true(probe_has_acted());
    if (expected == GPUSYNC_OK) assert_int_equal(metal_status(buffer), 2);
    finish_queue(p.q[0]);
    assert_result(gpusync_wait(p.q[0], ticket, 0), expected);
    drop(buffer);
    close_idle_stage(&p);
}

static void test_what_comes_before_work_is_in_the_line_is_seen_there(void **state)
{
    (void)state;
    comes_in_between(signal_b, 0, GPUSYNC_OK);
    comes_in_between(signal_b, GPUSYNC_UNORDERED, GPUSYNC_OK);
    comes_in_between(fail_b, 0, GPUSYNC_ERROR_EXECUTION);
    comes_in_between(fail_b, GPUSYNC_UNORDERED, GPUSYNC_ERROR_EXECUTION);
}

static void finish_it(void *buffer) { softmetal_finish(buffer); }

/* So is the loss of the device, wherever it comes: the thread that told of that did not see the work yet. */
static void test_a_loss_before_work_is_in_the_line_is_seen_there(void **state)
{
    bool acted = true;
    unsigned taken = 0;
    int n;
    (void)state;
    for (n = 1; acted; n++) {
        void *buffer, *killed;
        gpusync_ticket ticket = 0;
        gpusync_result result;
        stage p;
        open_stage(&p, SOFTMETAL_MANUAL, 2);
        killed = open_on(&p, 1);
        fail_with_the_device(killed);
        (void)commit_to(p.q[1], killed);
        buffer = kept_buffer_of(p.q[0]);
        must_return_within(20);
        probe_at_each(n, finish_it, killed);
        result = TRY_SUBMIT(p.q[0], &ticket, BUFFERS(buffer), WAITS(at(p.b, 1)), SIGNALS(at(p.a, 1)));
        acted = probe_has_acted();
        has_returned();
        if (!acted) softmetal_finish(killed);
        assert_true(gpusync_device_is_lost(p.device));
        if (result == GPUSYNC_OK) {
            taken++;
            assert_result(gpusync_wait(p.q[0], ticket, 0), GPUSYNC_ERROR_DEVICE_LOST);
            assert_int_equal(held_on(p.device, p.q[0]), 0); /* ended, not left where no thread comes by */
            drop(buffer);
        } else {
            assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
            discard(p.q[0], buffer);
        }
        close_idle_stage(&p);
    }
    assert_true(taken > 1); /* the last, and one while which the device was lost */
}

static void test_a_buffer_that_comes_twice_is_refused_however_many_there_are(void **state)
{
    enum { COUNT = 40 };
    void *buffers[COUNT];
    gpusync_submission s;
    gpusync_ticket ticket;
    size_t i, count;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 2);
    for (i = 0; i < COUNT; i++) buffers[i] = i == 17 ? buffers[3] : buffer_of(p.q[0]);
    memset(&s, 0, sizeof s);
    s.command_buffers = buffers;
    for (count = COUNT; count >= 18; count -= 11) {
        s.command_buffer_count = count;
        assert_result(gpusync_submit(p.q[0], &s, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    }
    s.command_buffer_count = 17;
    assert_ok(gpusync_submit(p.q[0], &s, &ticket));
    finish_queue(p.q[0]);
    assert_ok(gpusync_wait(p.q[0], ticket, 0));
    for (i = 18; i < COUNT; i++) assert_ok(gpusync_command_buffer_discard(p.q[0], buffers[i]));
    close_idle_stage(&p);
}

/* -- afterwards ------------------------------------------------------------------------------------------ */

/* A thread with an old pointer to what is spare may count a reference to it, and give it back: that must not be the
   last. */
static void assert_spare(gpusync_queue *queue)
{
    uint32_t references = 99;
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_true(probe_spare_submissions(queue, &references) > 0);
    assert_int_equal(references, 0);
}

/* More of them than one block of memory has places for, so that others are joined to it. */
static void *buffer_with_many(stage *p, uint64_t value)
{
    void *buffer = kept_buffer_of(p->q[0]);
    unsigned i;
    for (i = 0; i < 12; i++) assert_ok(gpusync_encode_wait(p->q[0], buffer, at(p->b, value + i)));
    for (i = 0; i < 12; i++) assert_ok(gpusync_encode_signal(p->q[0], buffer, at(p->a, value + i)));
    return buffer;
}

static void test_what_was_joined_to_a_submission_has_no_reference_left_when_it_is_spare(void **state)
{
    enum { ONE_BY_ONE, TOGETHER, REFUSED_FIRST, GIVEN_UP_OPEN, CANCELLED, WAYS };
    void *buffers[3];
    uint64_t value = 1;
    int way, i;
    stage p;
    (void)state;
    open_stage(&p, SOFTMETAL_MANUAL, 1);
    for (way = 0; way < WAYS; way++) {
        for (i = 0; i < 3; i++, value += 12) buffers[i] = buffer_with_many(&p, value);
        if (way != CANCELLED) assert_ok(gpusync_timeline_signal(p.b, value));
        if (way == ONE_BY_ONE) {
            for (i = 0; i < 3; i++) (void)commit_to(p.q[0], buffers[i]);
        } else if (way == GIVEN_UP_OPEN) {
            for (i = 0; i < 3; i++) assert_ok(gpusync_command_buffer_discard(p.q[0], buffers[i]));
        } else {
            if (way == REFUSED_FIRST)
                REFUSED(GPUSYNC_ERROR_NOT_RISING, p.q[0], BUFFERS(buffers[0], buffers[1], buffers[2]),
                        SIGNALS(at(p.a, value - 1)));
            (void)SUBMIT(p.q[0], BUFFERS(buffers[0], buffers[1], buffers[2]), SIGNALS(at(p.c, value)));
            if (way == CANCELLED) assert_ok(gpusync_cancel_held(p.q[0]));
        }
        softmetal_finish_queue(p.metal[0]);
        for (i = 0; i < 3; i++) drop(buffers[i]);
        assert_spare(p.q[0]);
    }
    close_idle_stage(&p);
}

/* -- threads ------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 200 };

typedef struct encoder {
    gpusync_queue *shared, *queue;
    gpusync_timeline *mine, *before;
    long failures;
    pthread_t thread;
} encoder;

/* Each thread's buffers wait for the thread before, and signal; on a queue of its own, for what is held there keeps back
   what comes later. Others are given up, on a queue that all share. */
static void *encode_rounds(void *argument)
{
    encoder *e = (encoder *)argument;
    gpusync_queue *queue = e->queue;
    uint64_t round;
    for (round = 1; round <= ROUNDS; round++) {
        void *given_up = NULL, *buffer = NULL;
        gpusync_ticket ticket;
        bool well = gpusync_command_buffer(e->shared, NULL, &given_up) == GPUSYNC_OK &&
                    gpusync_encode_signal(e->shared, given_up, at(e->mine, round)) == GPUSYNC_OK &&
                    gpusync_command_buffer_discard(e->shared, given_up) == GPUSYNC_OK &&
                    gpusync_command_buffer(queue, NULL, &buffer) == GPUSYNC_OK &&
                    (!e->before || gpusync_encode_wait(queue, buffer, at(e->before, round)) == GPUSYNC_OK) &&
                    gpusync_encode_signal(queue, buffer, at(e->mine, round)) == GPUSYNC_OK &&
                    gpusync_commit(queue, buffer, &ticket) == GPUSYNC_OK &&
                    gpusync_timeline_wait(e->mine, round, SECONDS(60), NULL) == GPUSYNC_OK &&
                    gpusync_wait(queue, ticket, SECONDS(60)) == GPUSYNC_OK;
        if (!well) e->failures++;
    }
    return NULL;
}

static void test_threads_encode_wait_and_discard_at_once(void **state)
{
    encoder encoders[THREADS];
    gpusync_timeline *timelines[THREADS];
    rig r;
    int i;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    for (i = 0; i < THREADS; i++) timelines[i] = timeline_new(r.device);
    memset(encoders, 0, sizeof encoders);
    for (i = 0; i < THREADS; i++) {
        encoders[i].shared = r.queue;
        encoders[i].queue = queue_new(r.device);
        encoders[i].mine = timelines[i];
        encoders[i].before = i ? timelines[i - 1] : NULL;
        encoders[i].thread = start(encode_rounds, &encoders[i]);
    }
    for (i = 0; i < THREADS; i++) {
        join(encoders[i].thread);
        assert_int_equal(encoders[i].failures, 0);
        assert_ok(gpusync_queue_destroy(encoders[i].queue));
    }
    for (i = 0; i < THREADS; i++) {
        assert_int_equal(value_of(timelines[i]), ROUNDS);
        assert_ok(gpusync_timeline_destroy(timelines[i]));
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_is_pending_at_once_and_is_reached_when_its_buffer_has_ended),
        cmocka_unit_test(test_a_pending_signal_that_is_taken_back_lets_no_work_past_one_that_is_overtaken),
        cmocka_unit_test(test_what_needs_a_value_that_a_lower_pending_signal_hides_is_held),
        cmocka_unit_test(test_a_wait_counts_after_a_commit_that_was_refused),
        cmocka_unit_test(test_what_needs_a_value_that_is_told_later_is_held),
        cmocka_unit_test(test_a_queue_that_signals_more_first_holds_what_needs_less),
        cmocka_unit_test(test_a_buffer_rises_though_others_have_come_to_its_timeline_meanwhile),
        cmocka_unit_test(test_what_is_refused_encodes_nothing),
        cmocka_unit_test(test_a_discard_takes_the_pending_signal_back),
        cmocka_unit_test(test_a_value_hidden_by_an_open_signal_comes_with_its_discard),
        cmocka_unit_test(test_held_work_goes_with_the_commit_of_the_signal),
        cmocka_unit_test(test_as_many_waits_and_signals_as_one_likes),
        cmocka_unit_test(test_a_wait_for_a_ticket_is_let_go_at_its_end),
        cmocka_unit_test(test_work_that_is_killed_fails_what_it_was_to_signal),
        cmocka_unit_test(test_a_pending_signal_outlives_the_failure_of_its_timeline),
        cmocka_unit_test(test_a_timeline_that_failed_for_want_of_memory_refuses_a_signal_once),
        cmocka_unit_test(test_what_signals_a_failed_timeline_goes_at_once),
        cmocka_unit_test(test_after_a_commit_that_failed_all_is_as_before),
        cmocka_unit_test(test_a_second_commit_asks_again),
        cmocka_unit_test(test_without_memory_nothing_has_changed),
        cmocka_unit_test(test_any_buffer_of_the_queue_will_do),
        cmocka_unit_test(test_what_waits_or_signals_is_not_tracked_and_what_is_tracked_neither_waits_nor_signals),
        cmocka_unit_test(test_what_waits_or_signals_is_refused_once_the_program_has_committed_it),
        cmocka_unit_test(test_on_a_lost_device_nothing_is_encoded),
        cmocka_unit_test(test_a_loss_while_a_wait_is_encoded),
        cmocka_unit_test(test_an_encoded_signal_fails_when_a_lost_device_gives_up),
        cmocka_unit_test(test_a_wait_for_a_ticket_of_a_queue_that_went_fails_with_newer_queues_about),
        cmocka_unit_test(test_a_ticket_that_had_ended_well_counts_as_reached_though_its_queue_goes_before_the_commit),
        cmocka_unit_test(test_the_report_names_the_open_buffer_whose_signal_keeps_back_what_was_signalled),
        cmocka_unit_test(test_hundreds_of_open_buffers_are_told_apart),
        cmocka_unit_test(test_a_submission_takes_along_what_is_in_its_buffers),
        cmocka_unit_test(test_what_is_in_a_buffer_is_not_encoded_again),
        cmocka_unit_test(test_a_submission_that_waits_for_itself_is_refused_and_its_buffers_are_as_before),
        cmocka_unit_test(test_a_submission_that_cannot_be_held_leaves_its_buffers_as_they_were),
        cmocka_unit_test(test_the_ticket_of_work_that_was_killed_ends_and_ends_what_is_held_for_it),
        cmocka_unit_test(test_destroy_ends_when_all_work_was_killed),
        cmocka_unit_test(test_an_open_signal_goes_with_its_queue),
        cmocka_unit_test(test_a_timeline_may_go_while_open_buffers_name_it),
        cmocka_unit_test(test_a_commit_waits_for_a_value_that_is_kept_back_though_the_timeline_went),
        cmocka_unit_test(test_a_timeline_that_goes_ends_work_that_signals_what_it_waits_for),
        cmocka_unit_test(test_a_timeline_that_goes_ends_a_chain_of_work_along_it),
        cmocka_unit_test(test_a_timeline_that_goes_lets_the_commit_behind_such_work_go),
        cmocka_unit_test(test_the_report_names_the_buffer_that_is_not_committed),
        cmocka_unit_test(test_a_report_names_the_pending_signal_while_a_submission_takes_it_over),
        cmocka_unit_test(test_what_cannot_be_held_is_told_so_at_once),
        cmocka_unit_test(test_a_refused_signal_takes_no_room),
        cmocka_unit_test(test_what_comes_before_work_is_in_the_line_is_seen_there),
        cmocka_unit_test(test_a_loss_before_work_is_in_the_line_is_seen_there),
        cmocka_unit_test(test_a_buffer_that_comes_twice_is_refused_however_many_there_are),
        cmocka_unit_test(test_what_was_joined_to_a_submission_has_no_reference_left_when_it_is_spare),
        cmocka_unit_test(test_threads_encode_wait_and_discard_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
