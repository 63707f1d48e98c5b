/* test_submit_held.c - submissions that are held on the host: for what, in which order, what lets them go

   Proved: work whose signal no work is to signal is held, and all behind it but what is UNORDERED; it goes in the order of
   its queue once each signal is on its way; an eighth of the room stays free of it; asking, waiting and cancelling see
   it as work that is not done.

   This also runs on queues of Metal 4. */
#include "stage.h"

/* == waits before their signals ================================================================================ */

static void test_a_wait_that_no_work_is_to_signal_is_held_until_the_host_signals(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 2)), SIGNALS(at(s.b, 1)));
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    assert_false(gpusync_is_idle(s.q[0]));
    assert_int_equal(stats_of(s.q[0]).held, 1);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 2));
    assert_int_equal(status_of(buffer), COMMITTED); /* when the call returns */
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
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    (void)SUBMIT(s.q[1], BUFFERS(producer), SIGNALS(at(s.a, 5)));
    assert_int_equal(status_of(buffer), COMMITTED);
    assert_int_equal(status_of(producer), COMMITTED); /* no more than that */
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
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    assert_int_equal(raw_of(s.a), 0);
    finish(&s, 1);
    assert_int_equal(raw_of(s.a), 1);
    assert_int_equal(status_of(buffer), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

static void test_a_strict_submission_signals_when_all_of_it_has_ended(void **state)
{
    const char *signal = metal4_run() ? "signalEvent:value:" : "encodeSignalEvent:value:";
    uint64_t signals;
    void *buffers[2];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffers[0] = open_on(&s, 0);
    buffers[1] = open_on(&s, 0);
    signals = softmetal_message_count(signal);
    (void)SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1]), SIGNALS(at(s.a, 1)),
                 .flags = GPUSYNC_STRICT);
    assert_count(signal, signals, 0);
    if (!metal4_run()) softmetal_finish(buffers[1]); /* overtakes the other */
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
    tickets[1] = SUBMIT(s.q[1], BUFFERS(buffers[1]), WAITS(at(s.b, 1)), SIGNALS(at(s.c, 1)));
    tickets[2] = SUBMIT(s.q[2], BUFFERS(buffers[2]), WAITS(at(s.c, 1)), SIGNALS(at(s.a, 2)));
    tickets[3] = SUBMIT(s.q[3], BUFFERS(buffers[3]), WAITS(at(s.a, 2)));
    for (i = 0; i < 4; i++) assert_int_equal(status_of(buffers[i]), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    for (i = 0; i < 4; i++) assert_int_equal(status_of(buffers[i]), COMMITTED);
    for (i = 0; i < 4; i++) finish(&s, i);
    for (i = 0; i < 4; i++) assert_ok(gpusync_wait(s.q[i], tickets[i], 0));
    close_stage(&s);
}

static void test_what_comes_later_lines_up_behind_what_is_held(void **state)
{
    void *held, *plain, *submitted, *passing, *tracked = NULL;
    gpusync_ticket tickets[5];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    held = open_on(&s, 0);
    plain = open_on(&s, 0);
    submitted = open_on(&s, 0);
    passing = open_on(&s, 0);
    tickets[0] = SUBMIT(s.q[0], BUFFERS(held), WAITS(at(s.a, 1)));
    tickets[1] = commit_to(s.q[0], plain);
    tickets[2] = SUBMIT(s.q[0], BUFFERS(submitted));
    tickets[3] = SUBMIT(s.q[0], BUFFERS(passing), .flags = GPUSYNC_UNORDERED);
    if (!metal4_run()) {
        tracked = metal_queue_command_buffer(s.metal[0]);
        assert_ok(gpusync_track(s.q[0], tracked, &tickets[4]));
        metal_commit(tracked);
    }
    assert_int_equal(stats_of(s.q[0]).held, 3);
    assert_int_equal(status_of(plain), NOT_ENQUEUED);
    assert_int_equal(status_of(submitted), NOT_ENQUEUED);
    softmetal_finish(passing);
    if (tracked) softmetal_finish(tracked);
    assert_ok(gpusync_poll(s.q[0], tickets[3]));
    if (tracked) assert_ok(gpusync_poll(s.q[0], tickets[4]));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(status_of(held), COMMITTED);
    assert_int_equal(status_of(plain), COMMITTED);
    assert_int_equal(status_of(submitted), COMMITTED);
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
    assert_int_equal(status_of(plain), COMMITTED);
    assert_int_equal(status_of(held), NOT_ENQUEUED);
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
    assert_int_equal(status_of(buffers[FIRST]), NOT_ENQUEUED);
    assert_int_equal(status_of(buffers[LOOSE]), NOT_ENQUEUED);
    assert_int_equal(status_of(buffers[SECOND]), NOT_ENQUEUED); /* ready, but behind the first */
    assert_int_equal(status_of(buffers[LATER]), COMMITTED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(status_of(buffers[FIRST]), COMMITTED);
    assert_int_equal(status_of(buffers[LOOSE]), NOT_ENQUEUED);
    assert_int_equal(status_of(buffers[SECOND]), COMMITTED); /* past what is unordered */
    assert_ok(gpusync_timeline_signal(s.b, 3));
    assert_int_equal(status_of(buffers[LOOSE]), COMMITTED);
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
    assert_string_equal(told.error.label, "work"); /* of the command buffer, which has one */
    assert_string_equal(told.error.queue_label, "first");
    assert_result(gpusync_wait(s.q[0], held, 0), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_wait(s.q[0], behind, 0), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_timeline_wait(s.b, 1, 0, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(value_of(s.a), 0);
    if (!metal4_run()) assert_int_equal(softmetal_live("command_buffer"), 1);
    assert_result(gpusync_poll(s.q[0], running), GPUSYNC_NOT_READY);
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], running));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    assert_ok(gpusync_cancel_held(s.q[0])); /* nothing is held: nothing happens */
    assert_int_equal(calls_of(&told), 1);
    close_stage(&s);
}

static void test_destroying_a_timeline_ends_what_is_held_for_a_value_no_work_is_to_signal(void **state)
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

/* -- the order of a queue --------------------------------------------------------------------------------- */

static void test_what_comes_behind_a_held_submission_is_committed_after_it_in_the_order_of_tickets(void **state)
{
    commit_log log = {{NULL}, 0};
    gpusync_ticket tickets[6];
    void *buffers[6];
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 6; i++) buffers[i] = buffer_of(s.q[0]);
    softmetal_set_message_hook(log_commits, &log);
    tickets[0] = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffers[0]));
    tickets[1] = commit_to(s.q[0], buffers[1]);
    tickets[2] = SUBMIT(s.q[0], BUFFERS(buffers[2]));
    tickets[3] = SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), BUFFERS(buffers[3]));
    tickets[4] = SUBMIT(s.q[0], BUFFERS(buffers[4]), SIGNALS(at(s.t[2], 1)));
    tickets[5] = commit_to(s.q[0], buffers[5]);
    for (i = 0; i < 6; i++) assert_int_equal(tickets[i], i + 1);
    assert_int_equal(held_on(s.device, s.q[0]), 6);
    assert_int_equal(stats_of(s.q[0]).held, 6);
    assert_ok(gpusync_timeline_signal(s.t[1], 1)); /* the fourth could go, but for those in front */
    assert_int_equal(log.count, 0);
    for (i = 0; i < 6; i++) assert_int_equal(status_of(buffers[i]), 0);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_commits(&log, buffers, 6);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    for (i = 0; i < 6; i++) assert_ok(gpusync_wait(s.q[0], tickets[i], 0));
    assert_int_equal(value_of(s.t[2]), 1);
    close_idle_stage(&s);
}

static void test_only_what_is_behind_the_second_wait_stays_when_the_first_is_over(void **state)
{
    commit_log log = {{NULL}, 0};
    void *buffers[4];
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 4; i++) buffers[i] = buffer_of(s.q[0]);
    softmetal_set_message_hook(log_commits, &log);
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffers[0]));
    commit_to(s.q[0], buffers[1]);
    SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), BUFFERS(buffers[2]));
    commit_to(s.q[0], buffers[3]);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_commits(&log, buffers, 2);
    assert_int_equal(held_on(s.device, s.q[0]), 2);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_true(gpusync_is_done(s.q[0], 2));
    assert_false(gpusync_is_done(s.q[0], 3));
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_commits(&log, buffers, 4);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_true(gpusync_is_idle(s.q[0]));
    close_idle_stage(&s);
}

/* Each hands one byte on to the next cell: in any other order the last cell does not get it. */
static void test_held_work_does_its_work_in_the_order_of_the_queue(void **state)
{
    enum { CELLS = 20 };
    unsigned char *bytes;
    void *memory;
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 1);
    memory = metal_buffer_new(s.rig.metal_device, CELLS + 1);
    bytes = (unsigned char *)metal_contents(memory);
    memset(bytes, 0, CELLS + 1);
    bytes[0] = 42;
    for (i = 0; i < CELLS; i++) {
        void *buffer = buffer_of(s.q[0]);
        copy(buffer, memory, i, memory, i + 1);
        if (i % 3 == 0)
            SUBMIT(s.q[0], WAITS(at(s.t[i % 2], 1)), BUFFERS(buffer));
        else commit_to(s.q[0], buffer);
    }
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_int_equal(bytes[1], 0);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER));
    for (i = 0; i <= CELLS; i++) assert_int_equal(bytes[i], 42);
    metal_release(memory);
    close_idle_stage(&s);
}

static void test_an_unordered_submission_passes_what_is_held(void **state)
{
    gpusync_ticket held, passing;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 1);
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    passing = SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_wait(s.q[0], passing, GPUSYNC_FOREVER));
    assert_false(gpusync_is_done(s.q[0], passing)); /* which speaks of all in front as well */
    assert_result(gpusync_poll(s.q[0], held), GPUSYNC_NOT_READY);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER));
    assert_true(gpusync_is_done(s.q[0], passing));
    close_idle_stage(&s);
}

static void test_an_unordered_submission_that_is_held_lets_others_pass(void **state)
{
    gpusync_ticket held, second, plain, behind;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 1);
    held = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_UNORDERED);
    plain = commit_to(s.q[0], buffer_of(s.q[0]));
    assert_ok(gpusync_wait(s.q[0], plain, GPUSYNC_FOREVER));
    /* one that is held for another value, and is not flagged, keeps those behind it, but not the flagged one */
    second = hold_on(s.q[0], s.t[1], 1, NULL);
    behind = commit_to(s.q[0], buffer_of(s.q[0]));
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait(s.q[0], held, GPUSYNC_FOREVER));
    assert_result(gpusync_poll(s.q[0], second), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s.q[0], behind), GPUSYNC_NOT_READY);
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_ok(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

/* The same among those that are held: what the first waits for comes last. */
static void test_among_held_submissions_the_flag_works_both_ways(void **state)
{
    unsigned flagged;
    (void)state;
    for (flagged = 0; flagged < 2; flagged++) {
        gpusync_ticket first, second;
        stage s;
        open_stage(&s, SOFTMETAL_REAL, 1);
        first = SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.t[0], 1)), .flags = flagged == 0 ? GPUSYNC_UNORDERED : 0);
        second = SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.t[1], 1)), .flags = flagged == 1 ? GPUSYNC_UNORDERED : 0);
        assert_int_equal(held_on(s.device, s.q[0]), 2);
        assert_ok(gpusync_timeline_signal(s.t[1], 1));
        assert_int_equal(held_on(s.device, s.q[0]), 1);
        assert_ok(gpusync_wait(s.q[0], second, GPUSYNC_FOREVER));
        assert_result(gpusync_poll(s.q[0], first), GPUSYNC_NOT_READY);
        assert_ok(gpusync_timeline_signal(s.t[0], 1));
        assert_ok(gpusync_wait(s.q[0], first, GPUSYNC_FOREVER));
        close_idle_stage(&s);
    }
}

static void test_a_wait_before_its_signal_on_one_queue_needs_the_flag(void **state)
{
    gpusync_ticket waiting, signalling;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 1);
    waiting = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_UNORDERED);
    signalling = SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), SIGNALS(at(s.t[0], 1)));
    assert_ok(gpusync_wait(s.q[0], waiting, GPUSYNC_FOREVER));
    assert_ok(gpusync_wait(s.q[0], signalling, GPUSYNC_FOREVER));
    /* without it the signal lines up behind the wait for it; the flag on the signal's side serves as well */
    waiting = hold_on(s.q[0], s.t[0], 3, NULL);
    signalling = SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.t[0], 2)));
    assert_result(gpusync_wait(s.q[0], signalling, MS(1)), GPUSYNC_TIMEOUT);
    assert_int_equal(held_on(s.device, s.q[0]), 2);
    SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.t[0], 3)), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_wait(s.q[0], signalling, GPUSYNC_FOREVER));
    assert_ok(gpusync_wait(s.q[0], waiting, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

/* The later ticket ends first, and ends the earlier one. */
static void test_strict_work_waits_for_what_passes_it_on_its_own_queue(void **state)
{
    gpusync_ticket waiting, signalling;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    waiting = SUBMIT(s.q[0], WAITS(at(s.a, 1)), NO_WORK(s.q[0]), .flags = GPUSYNC_STRICT);
    signalling = SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.a, 1)), .flags = GPUSYNC_UNORDERED);
    assert_result(gpusync_poll(s.q[0], waiting), GPUSYNC_NOT_READY);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], signalling, 0));
    finish(&s, 0); /* with Metal 4 there is a command buffer, which has gone to the device by now */
    assert_ok(gpusync_wait(s.q[0], waiting, 0));
    close_stage(&s);
}

/* No thread could end it: the value is reached when the submission has ended well. */
static void test_a_submission_cannot_wait_for_its_own_signal(void **state)
{
    gpusync_point wait;
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[0], 5)));
    assert_result(TRY_SUBMIT(s.q[1], &ticket, NO_WORK(s.q[1]), WAITS(at(s.t[0], 2)), SIGNALS(at(s.t[0], 2))),
                  GPUSYNC_ERROR_NOT_RISING);
    wait = at(s.t[0], 3);
    if (metal4_run()) {
        ticket = SUBMIT(s.q[1], NO_WORK(s.q[1]), WAITS(wait), SIGNALS(at(s.t[0], 6)));
    } else {
        assert_ok(make_behind(s.q[1], NULL, &wait, 1, &buffer));
        assert_result(TRY_SUBMIT(s.q[1], &ticket, BUFFERS(buffer), SIGNALS(at(s.t[0], 2))), GPUSYNC_ERROR_NOT_RISING);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        ticket = SUBMIT(s.q[1], BUFFERS(buffer), SIGNALS(at(s.t[0], 6)));
    }
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_ok(gpusync_wait(s.q[1], ticket, GPUSYNC_FOREVER));
    assert_int_equal(value_of(s.t[0]), 6);
    close_idle_stage(&s);
}

/* gpusync_track knows nothing of lines: its owner commits when it likes. */
static void test_tracked_work_does_not_line_up(void **state)
{
    gpusync_ticket held, tracked;
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("nothing is tracked");
    open_stage(&s, SOFTMETAL_REAL, 1);
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    buffer = metal_queue_command_buffer(gpusync_queue_metal(s.q[0]));
    assert_ok(gpusync_track(s.q[0], buffer, &tracked));
    metal_commit(buffer);
    assert_ok(gpusync_wait(s.q[0], tracked, GPUSYNC_FOREVER));
    metal_release(buffer);
    assert_result(gpusync_wait(s.q[0], held, 0), GPUSYNC_TIMEOUT);
    /* and one that is taken back while something is held */
    buffer = metal_queue_command_buffer(gpusync_queue_metal(s.q[0]));
    assert_ok(gpusync_track(s.q[0], buffer, &tracked));
    assert_ok(gpusync_untrack(s.q[0], tracked));
    metal_release(buffer);
    assert_result(gpusync_untrack(s.q[0], held), GPUSYNC_ERROR_INVALID_TICKET);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait(s.q[0], held, GPUSYNC_FOREVER));
    assert_result(gpusync_wait(s.q[0], tracked, 0), GPUSYNC_ERROR_CANCELLED);
    close_idle_stage(&s);
}

/* -- what lets it go -------------------------------------------------------------------------------------- */

/* Where other code signals the timeline: what a pending signal covers is held, what none covers is not, and the discard of
   the signal lets the rest go. */
static void test_work_is_held_where_others_signal_while_a_pending_signal_covers_its_value(void **state)
{
    gpusync_ticket covered, above;
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no signals");
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    share_timeline(&s, 0);
    buffer = buffer_of(s.q[2]);
    assert_ok(gpusync_encode_signal(s.q[2], buffer, at(s.a, 5)));
    covered = hold_on(s.q[0], s.a, 3, NULL);
    above = hold_on(s.q[1], s.a, 6, NULL);
    assert_int_equal(held_on(s.device, s.q[0]), 1);
    assert_int_equal(held_on(s.device, s.q[1]), 0);
    assert_ok(gpusync_command_buffer_discard(s.q[2], buffer));
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    raise_behind_its_back(s.a, 5);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], covered, 0));
    assert_int_equal(value_of(s.a), 5);
    assert_result(gpusync_wait(s.q[1], above, 0), GPUSYNC_TIMEOUT);
    raise_behind_its_back(s.a, 6);
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[1], above, 0));
    close_stage(&s);
}

static void test_work_for_a_timeline_that_others_signal_is_not_held(void **state)
{
    gpusync_timeline *imported;
    outcome strict = {0};
    gpusync_ticket ticket;
    void *event;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    event = metal_shared_event_new(s.rig.metal_device);
    assert_ok(timeline_import(s.device, event, NULL, &imported));
    ticket = hold_on(s.q[0], imported, 1, NULL);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_ok(gpusync_timeline_destroy(imported));
    assert_ok(timeline_import(s.device, event, NULL, &imported));
    SUBMIT(s.q[1], WAITS(at(imported, 1)), BUFFERS(buffer_of(s.q[1])), .flags = GPUSYNC_STRICT,
           TELL(&strict)); /* waits on the host */
    assert_int_equal(held_on(s.device, s.q[1]), 1);
    metal_event_signal(event, 1);
    assert_ended(&strict, GPUSYNC_OK); /* told by the event's listener: no call asks for anything here */
    assert_ok(gpusync_wait(s.q[0], ticket, GPUSYNC_FOREVER));
    assert_ok(gpusync_timeline_destroy(imported));
    metal_release(event);
    close_idle_stage(&s);
}

static void test_a_signal_on_its_way_lets_held_work_go_to_the_device(void **state)
{
    gpusync_ticket consumer, by_ticket;
    void *work_of_producer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    consumer = hold_on(s.q[1], s.t[0], 2, NULL);
    work_of_producer = buffer_of(s.q[0]);
    SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[0], 2)), BUFFERS(work_of_producer));
    by_ticket = SUBMIT(s.q[2], WAITS(after(s.q[0], 1)), BUFFERS(buffer_of(s.q[2])));
    assert_int_equal(held_on(s.device, s.q[1]), 1); /* pending, but by something that is held itself */
    assert_int_equal(held_on(s.device, s.q[2]), 1);
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_int_equal(held_on(s.device, s.q[1]), 0);
    assert_int_equal(held_on(s.device, s.q[2]), 1); /* a ticket has to end */
    assert_result(gpusync_poll(s.q[1], consumer), GPUSYNC_NOT_READY);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_int_equal(held_on(s.device, s.q[2]), 0);
    softmetal_finish_queue(gpusync_queue_metal(s.q[1]));
    softmetal_finish_queue(gpusync_queue_metal(s.q[2]));
    assert_ok(gpusync_wait(s.q[1], consumer, 0));
    assert_ok(gpusync_wait(s.q[2], by_ticket, 0));
    close_idle_stage(&s);
}

/* -- asking and waiting ----------------------------------------------------------------------------------- */

static void test_what_is_held_is_not_done(void **state)
{
    gpusync_wait_options blocking = {.blocking = !metal4_run()};
    gpusync_ticket_info info;
    gpusync_ticket held, plain;
    gpusync_point points[2];
    size_t which;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    plain = commit_to(s.q[0], buffer_of(s.q[0]));
    assert_false(gpusync_is_idle(s.q[0]));
    assert_false(gpusync_is_done(s.q[0], held));
    assert_false(gpusync_is_done(s.q[0], plain));
    assert_result(gpusync_poll(s.q[0], held), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s.q[0], plain), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s.q[0], GPUSYNC_EVERYTHING), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(s.q[0], held, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(s.q[0], plain, MS(2)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_queue_wait(s.q[0], MS(1)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(s.device, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_get_info(s.q[0], held, &info), GPUSYNC_NOT_READY);
    points[0] = after(s.q[0], held);
    points[1] = after(s.q[0], plain);
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, MS(1), NULL, &which), GPUSYNC_TIMEOUT);
    /* with a limit this never sends waitUntilCompleted: softmetal ends the program at one to an uncommitted buffer */
    assert_result(gpusync_wait_ex(s.q[0], held, MS(1), &blocking), GPUSYNC_TIMEOUT);
    assert_int_equal(stats_of(s.q[0]).completions, 0);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which));
    assert_ok(gpusync_get_info(s.q[0], held, &info));
    assert_result(info.result, GPUSYNC_OK);
    assert_int_equal(stats_of(s.q[0]).completions, 2);
    close_idle_stage(&s);
}

static void *blocking_wait_body(void *argument)
{
    wait_job *job = (wait_job *)argument;
    gpusync_wait_options blocking = {.blocking = !metal4_run()};
    job->result = gpusync_wait_ex(job->queue, job->ticket, GPUSYNC_FOREVER, &blocking);
    return NULL;
}

static void *device_wait_body(void *device)
{
    assert_ok(gpusync_device_wait((gpusync_device *)device, GPUSYNC_FOREVER, NULL));
    return NULL;
}

static void test_waits_that_began_while_it_was_held_end_when_it_has(void **state)
{
    wait_job one, all, blocking;
    pthread_t device_wait;
    gpusync_ticket held;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 1);
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    wait_job_start(&one, s.q[0], held, GPUSYNC_FOREVER);
    wait_job_start(&all, s.q[0], GPUSYNC_EVERYTHING, SECONDS(100));
    memset(&blocking, 0, sizeof blocking);
    blocking.queue = s.q[0];
    blocking.ticket = held;
    blocking.thread = start(blocking_wait_body, &blocking);
    device_wait = start(device_wait_body, s.device);
    await_sleepers(s.device, 4);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(wait_job_join(&one));
    assert_ok(wait_job_join(&all));
    assert_ok(wait_job_join(&blocking));
    join(device_wait);
    close_idle_stage(&s);
}

/* -- limits ----------------------------------------------------------------------------------------------- */

/* A queue of `size` can hold this many command buffers. */
static unsigned most_held(unsigned size) { return size - (size / 8 ? size / 8 : 1); }

static void test_an_eighth_of_the_queue_is_kept_free_of_what_is_held(void **state)
{
    static const unsigned sizes[] = {1, 2, 3, 8, 9, 16, 33};
    gpusync_ticket ticket;
    gpusync_stats before;
    unsigned i, k;
    void *buffer;
    stage s;
    (void)state;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        open_stage_with(&s, SOFTMETAL_REAL, 1, sizes[i]);
        for (k = 0; k < most_held(sizes[i]); k++) { /* STRICT: no command buffers but this one */
            if (k % 2) commit_to(s.q[0], buffer_of(s.q[0]));
            else SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_STRICT);
        }
        before = stats_of(s.q[0]);
        buffer = buffer_of(s.q[0]); /* there is room for it, and it may go to the device, but not be held */
        assert_result(TRY_SUBMIT(s.q[0], &ticket, WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 5)), BUFFERS(buffer),
                                 .flags = GPUSYNC_STRICT), GPUSYNC_ERROR_QUEUE_FULL);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        if (k > 0) assert_result(either_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_QUEUE_FULL);
        assert_int_equal(stats_of(s.q[0]).commits, before.commits);
        assert_int_equal(stats_of(s.q[0]).held, before.held);
        assert_int_equal(held_on(s.device, s.q[0]), k);
        assert_ok(gpusync_timeline_signal(s.t[1], 4)); /* No work is to signal anything */
        assert_int_equal(value_of(s.t[1]), 4);
        assert_ok(gpusync_timeline_signal(s.t[0], 1));
        /* once the line is gone, the same again does it */
        SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 5)), BUFFERS(buffer), .flags = GPUSYNC_STRICT);
        assert_ok(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER));
        assert_int_equal(value_of(s.t[1]), 5);
        close_idle_stage(&s);
    }
}

static void test_an_unordered_submission_is_subject_to_the_limit_only_where_it_is_held(void **state)
{
    void *buffer;
    stage s;
    (void)state;
    open_stage_with(&s, SOFTMETAL_REAL, 1, 2);
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_STRICT);
    buffer = buffer_of(s.q[0]);
    assert_result(either_commit(s.q[0], buffer, NULL), GPUSYNC_ERROR_QUEUE_FULL);
    SUBMIT(s.q[0], BUFFERS(buffer), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_wait(s.q[0], 2, GPUSYNC_FOREVER));
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    close_idle_stage(&s);
}

static void test_where_no_room_can_come_a_submission_says_so_at_once(void **state)
{
    gpusync_ticket ticket;
    void *open;
    stage s;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers there that need room");
    open_stage_with(&s, SOFTMETAL_REAL, 1, 4);
    while (held_on(s.device, s.q[0]) < 3)
        SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_STRICT);
    open = buffer_of(s.q[0]);
    /* needs a command buffer of gpusync's own; all four are held or not committed, so a wait would have no end */
    assert_result(TRY_SUBMIT(s.q[0], &ticket, WAITS(at(s.t[1], 1))), GPUSYNC_ERROR_QUEUE_FULL);
    assert_result(TRY_SUBMIT(s.q[0], &ticket, SIGNALS(at(s.t[1], 1)), .flags = GPUSYNC_UNORDERED),
                  GPUSYNC_ERROR_QUEUE_FULL);
    assert_int_equal(softmetal_outstanding(gpusync_queue_metal(s.q[0])), 4);
    assert_ok(either_discard(s.q[0], open));
    SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.t[1], 1)), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_timeline_wait(s.t[1], 1, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    close_idle_stage(&s);
}

typedef struct submit_job {
    gpusync_queue *queue;
    gpusync_submission submission;
    gpusync_ticket ticket;
    gpusync_result result;
} submit_job;

static void *submit_body(void *argument)
{
    submit_job *job = (submit_job *)argument;
    job->result = either_submit(job->queue, &job->submission, &job->ticket);
    return NULL;
}

static void test_a_submission_waits_for_room_as_long_as_it_may(void **state)
{
    uint64_t limit = MS(5), begun;
    gpusync_ticket ticket;
    submit_job job;
    pthread_t thread;
    void *slow[2];
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers there that need room");
    open_stage_with(&s, SOFTMETAL_REAL, 1, 2);
    for (i = 0; i < 2; i++) {
        slow[i] = metal_retain(buffer_of(s.q[0]));
        softmetal_hang(slow[i]);
        commit_to(s.q[0], slow[i]);
    }
    begun = gpusync_now_ns();
    job.queue = s.q[0];
    job.submission = (gpusync_submission){SIGNALS(at(s.t[0], 1)), .timeout_ns = &limit};
    assert_result(either_submit(job.queue, &job.submission, &ticket), GPUSYNC_TIMEOUT);
    assert_true(gpusync_now_ns() - begun >= limit);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_int_equal(stats_of(s.q[0]).commits, 2);
    job.submission.timeout_ns = NULL;
    thread = start(submit_body, &job);
    await_sleepers(s.device, 1);
    for (i = 0; i < 2; i++) {
        softmetal_unhang(slow[i]);
        metal_release(slow[i]);
    }
    join(thread);
    assert_ok(job.result);
    assert_int_equal(job.ticket, 3);
    assert_ok(gpusync_timeline_wait(s.t[0], 1, GPUSYNC_FOREVER, NULL));
    close_idle_stage(&s);
}

static void test_an_enqueued_command_buffer_cannot_be_held(void **state)
{
    gpusync_ticket held, ticket;
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("nothing is enqueued");
    open_stage(&s, SOFTMETAL_REAL, 1);
    buffer = buffer_of(s.q[0]);
    metal_enqueue(buffer);
    assert_result(TRY_SUBMIT(s.q[0], &ticket, WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 5)), BUFFERS(buffer)),
                  GPUSYNC_ERROR_ENQUEUED);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_true(gpusync_is_idle(s.q[0]));
    /* where it need not be held it goes, and the signal is no pending signal */
    SUBMIT(s.q[0], SIGNALS(at(s.t[1], 5)), BUFFERS(buffer));
    assert_ok(gpusync_timeline_wait(s.t[1], 5, GPUSYNC_FOREVER, NULL));
    /* nor can it line up behind another one */
    buffer = metal_queue_command_buffer(gpusync_queue_metal(s.q[0]));
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    metal_enqueue(buffer);
    assert_result(either_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ENQUEUED);
    SUBMIT(s.q[0], BUFFERS(buffer), .flags = GPUSYNC_UNORDERED);
    metal_release(buffer);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait(s.q[0], held, GPUSYNC_FOREVER));
    /* behind UNORDERED work alone it need not be held */
    held = SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.t[0], 2)), .flags = GPUSYNC_UNORDERED);
    buffer = buffer_of(s.q[0]);
    metal_enqueue(buffer);
    SUBMIT(s.q[0], BUFFERS(buffer));
    assert_ok(gpusync_timeline_signal(s.t[0], 2));
    assert_ok(gpusync_wait(s.q[0], held, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

static void test_a_command_buffer_that_is_held_is_refused_everywhere(void **state)
{
    gpusync_ticket ticket, held;
    unsigned strange;
    void *buffer;
    stage s;
    (void)state;
    for (strange = 0; strange < 2; strange++) {
        open_stage(&s, SOFTMETAL_REAL, 1);
        buffer = strange ? their_buffer(s.q[0]) : buffer_of(s.q[0]);
        metal_retain(buffer);
        held = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer));
        assert_result(either_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
        if (!metal4_run()) {
            assert_result(gpusync_track(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
            assert_result(gpusync_command_buffer_discard(s.q[0], buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
        }
        assert_result(TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffer), .flags = GPUSYNC_UNORDERED),
                      GPUSYNC_ERROR_ALREADY_TRACKED);
        assert_int_equal(stats_of(s.q[0]).commits, 1);
        assert_ok(gpusync_timeline_signal(s.t[0], 1));
        assert_ok(gpusync_wait(s.q[0], held, GPUSYNC_FOREVER));
        if (!metal4_run()) /* of Metal 4 no call can tell */
            assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED);
        metal_release(buffer);
        if (strange) metal_release(buffer);
        close_idle_stage(&s);
    }
}

/* -- cancelling ------------------------------------------------------------------------------------------- */

static void test_cancel_ends_what_is_held_and_all_that_waits_for_it(void **state)
{
    outcome first = {0}, behind = {0}, other = {0}, third = {0}, unordered = {0};
    gpusync_wait_options options = {0};
    gpusync_ticket tickets[3], on_other, on_third;
    gpusync_error error;
    uint64_t reached;
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 3);
    tickets[0] = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    tickets[1] = commit_to(s.q[0], buffer_of(s.q[0]));
    tickets[2] = SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), TELL(&behind));
    SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.t[0], 1)), .flags = GPUSYNC_UNORDERED, TELL(&unordered));
    on_other = SUBMIT(s.q[1], WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[2], 1)), BUFFERS(buffer_of(s.q[1])), TELL(&other));
    on_third = SUBMIT(s.q[2], WAITS(at(s.t[2], 1)), SIGNALS(at(s.t[3], 1)), BUFFERS(buffer_of(s.q[2])), TELL(&third));
    assert_ok(gpusync_cancel_held(s.q[0]));
    /* all of it is over by now: what was never on the device needs no thread of Metal's */
    assert_int_equal(calls_of(&first) + calls_of(&behind) + calls_of(&unordered), 3);
    assert_int_equal(calls_of(&other) + calls_of(&third), 2);
    assert_false(pthread_equal(first.thread, pthread_self()));
    assert_int_equal(softmetal_live("command_buffer"), 0);
    assert_ended(&first, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&behind, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&unordered, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&other, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&third, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(third.error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_int_equal(third.error.ticket, on_third);
    assert_string_equal(third.error.message, first.error.message);
    options.error = &error;
    for (i = 0; i < 3; i++) {
        assert_result(gpusync_wait_ex(s.q[0], tickets[i], GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
        assert_int_equal(error.ticket, tickets[i]);
        assert_true(error.message[0]);
    }
    assert_result(gpusync_poll(s.q[1], on_other), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_timeline_query(s.t[3], &reached), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(reached, 0);
    assert_int_equal(value_of(s.t[0]), 0); /* what they waited for has nothing to do with it */
    assert_int_equal(stats_of(s.q[0]).completions, 4);
    assert_int_equal(stats_of(s.q[0]).failures, 0); /* nothing ran */
    assert_int_equal(rooms_taken(s.q[0]), 0);
    assert_true(gpusync_is_idle(s.q[0]));
    /* and life goes on */
    commit_to(s.q[0], buffer_of(s.q[0]));
    hold_on(s.q[0], s.t[0], 1, NULL);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait(s.q[0], 5, GPUSYNC_FOREVER));
    assert_ok(gpusync_wait(s.q[0], 6, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

static void test_cancel_leaves_alone_what_is_on_the_device(void **state)
{
    gpusync_ticket flying, held;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    assert_ok(gpusync_cancel_held(s.q[0]));
    buffer = buffer_of(s.q[0]);
    flying = commit_to(s.q[0], buffer);
    assert_ok(gpusync_cancel_held(s.q[0]));
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    assert_ok(gpusync_cancel_held(s.q[0]));
    assert_result(gpusync_wait(s.q[0], held, 0), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_poll(s.q[0], flying), GPUSYNC_NOT_READY);
    softmetal_finish(buffer);
    assert_ok(gpusync_poll(s.q[0], flying));
    close_idle_stage(&s);
}

static void test_cancel_needs_a_queue(void **state)
{
    (void)state;
    assert_result(gpusync_cancel_held(NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
}

/* Of two that wait for one value the first needs the host, and the second does not. */
static void test_a_signal_on_its_way_lets_work_go_behind_strict_work_that_waits_for_it(void **state)
{
    void *strict, *plain;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    strict = open_on(&s, 1);
    plain = open_on(&s, 2);
    (void)SUBMIT(s.q[1], BUFFERS(strict), WAITS(at(s.a, 1)), .flags = GPUSYNC_STRICT);
    (void)SUBMIT(s.q[2], BUFFERS(plain), WAITS(at(s.a, 1)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    assert_int_equal(status_of(strict), NOT_ENQUEUED);
    assert_int_equal(status_of(plain), COMMITTED);
    finish(&s, 0);
    assert_int_equal(status_of(strict), COMMITTED);
    finish(&s, 1);
    finish(&s, 2);
    close_stage(&s);
}

/* It waits for nothing any more, and its signal must stay behind a lower one of another queue. */
static void test_unordered_work_that_stays_behind_a_signal_keeps_no_work_back(void **state)
{
    void *loose, *ordered;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    loose = open_on(&s, 0);
    ordered = open_on(&s, 0);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 3)));
    (void)SUBMIT(s.q[0], BUFFERS(loose), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 5)), .flags = GPUSYNC_UNORDERED);
    (void)SUBMIT(s.q[0], BUFFERS(ordered), WAITS(at(s.b, 2)));
    assert_ok(gpusync_timeline_signal(s.b, 1));
    assert_int_equal(status_of(ordered), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.b, 2));
    assert_int_equal(status_of(loose), NOT_ENQUEUED);
    assert_int_equal(status_of(ordered), COMMITTED);
    finish(&s, 1);
    assert_int_equal(status_of(loose), COMMITTED);
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 5);
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_on_its_way_lets_work_go_behind_strict_work_that_waits_for_it),
        cmocka_unit_test(test_unordered_work_that_stays_behind_a_signal_keeps_no_work_back),
        cmocka_unit_test(test_a_wait_that_no_work_is_to_signal_is_held_until_the_host_signals),
        cmocka_unit_test(test_a_held_submission_goes_as_soon_as_its_signal_is_on_the_way),
        cmocka_unit_test(test_a_strict_submission_is_held_until_its_signal_has_come),
        cmocka_unit_test(test_a_strict_submission_signals_when_all_of_it_has_ended),
        cmocka_unit_test(test_a_signal_lets_a_whole_chain_of_held_submissions_go),
        cmocka_unit_test(test_what_comes_later_lines_up_behind_what_is_held),
        cmocka_unit_test(test_an_unordered_submission_is_passed_while_it_is_held),
        cmocka_unit_test(test_held_work_goes_in_the_order_of_the_queue),
        cmocka_unit_test(test_cancelling_ends_all_that_is_held_and_nothing_else),
        cmocka_unit_test(test_destroying_a_timeline_ends_what_is_held_for_a_value_no_work_is_to_signal),
        cmocka_unit_test(test_what_comes_behind_a_held_submission_is_committed_after_it_in_the_order_of_tickets),
        cmocka_unit_test(test_only_what_is_behind_the_second_wait_stays_when_the_first_is_over),
        cmocka_unit_test(test_held_work_does_its_work_in_the_order_of_the_queue),
        cmocka_unit_test(test_an_unordered_submission_passes_what_is_held),
        cmocka_unit_test(test_an_unordered_submission_that_is_held_lets_others_pass),
        cmocka_unit_test(test_among_held_submissions_the_flag_works_both_ways),
        cmocka_unit_test(test_a_wait_before_its_signal_on_one_queue_needs_the_flag),
        cmocka_unit_test(test_strict_work_waits_for_what_passes_it_on_its_own_queue),
        cmocka_unit_test(test_a_submission_cannot_wait_for_its_own_signal),
        cmocka_unit_test(test_tracked_work_does_not_line_up),
        cmocka_unit_test(test_work_is_held_where_others_signal_while_a_pending_signal_covers_its_value),
        cmocka_unit_test(test_work_for_a_timeline_that_others_signal_is_not_held),
        cmocka_unit_test(test_a_signal_on_its_way_lets_held_work_go_to_the_device),
        cmocka_unit_test(test_what_is_held_is_not_done),
        cmocka_unit_test(test_waits_that_began_while_it_was_held_end_when_it_has),
        cmocka_unit_test(test_an_eighth_of_the_queue_is_kept_free_of_what_is_held),
        cmocka_unit_test(test_an_unordered_submission_is_subject_to_the_limit_only_where_it_is_held),
        cmocka_unit_test(test_where_no_room_can_come_a_submission_says_so_at_once),
        cmocka_unit_test(test_a_submission_waits_for_room_as_long_as_it_may),
        cmocka_unit_test(test_an_enqueued_command_buffer_cannot_be_held),
        cmocka_unit_test(test_a_command_buffer_that_is_held_is_refused_everywhere),
        cmocka_unit_test(test_cancel_ends_what_is_held_and_all_that_waits_for_it),
        cmocka_unit_test(test_cancel_leaves_alone_what_is_on_the_device),
        cmocka_unit_test(test_cancel_needs_a_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
