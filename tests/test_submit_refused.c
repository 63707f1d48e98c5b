/* test_submit_refused.c - submissions that are refused: for what, and that nothing has changed then

   Proved: each mistake gets the result that the header names; a refused submission leaves its command buffers the
   caller's, has no pending signal and takes no room; what Metal or memory does not give changes nothing.

   This also runs on queues of Metal 4. */
#include "probe.h"
#include "clock.h"
#include "stage.h"

/* == what is refused =========================================================================================== */

static void test_arguments_that_make_no_sense_are_refused(void **state)
{
    gpusync_point point;
    gpusync_device_desc device_desc;
    gpusync_device *other = NULL;
    static const size_t counts[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / sizeof(gpusync_point) + 1, UINT32_MAX};
    gpusync_queue *strange_queue = NULL;
    gpusync_timeline *strange = NULL;
    gpusync_ticket ticket = 9;
    gpusync_point one;
    size_t i;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    one = at(s.a, 1);
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.metal_device = s.rig.metal_device;
    assert_ok(gpusync_device_create(&device_desc, &other));
    strange_queue = queue_new(other);
    assert_ok(gpusync_timeline_create(other, NULL, &strange));
    buffer = open_on(&s, 0);
    memset(&point, 0, sizeof point);
    assert_result(gpusync_submit(s.q[0], NULL, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_submit(s.q[0], NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, NULL, BUFFERS(buffer));
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], .wait_count = 1);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], .signal_count = 1);
    assert_result(gpusync_submit(s.q[0], &(gpusync_submission){.command_buffer_count = 1}, &ticket),
                  GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(NULL));
    for (i = 0; i < LENGTH(counts); i++) { /* no program has an array of so many */
        gpusync_submission waits = {.waits = &one, .wait_count = counts[i]};
        gpusync_submission signals = {.signals = &one, .signal_count = counts[i]};
        gpusync_submission buffers = {.command_buffers = &buffer, .command_buffer_count = counts[i]};
        assert_result(gpusync_submit(s.q[0], &waits, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_result(gpusync_submit(s.q[0], &signals, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_result(gpusync_submit(s.q[0], &buffers, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    }
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
    (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.a, 1))); /* none of them is to signal it */
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
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 3), at(s.a, 9), at(s.b, 2)),
                .flags = flags);
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), WAITS(at(s.b, 5), at(s.b, 2)), SIGNALS(at(s.b, 4)),
                .flags = flags);
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, GPUSYNC_MAX_VALUE + 1)),
                .flags = flags);
        REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), WAITS(at(s.b, GPUSYNC_MAX_VALUE + 1)),
                .flags = flags);
        assert_int_equal(softmetal_live("command_buffer"), made);
        if (!metal4_run()) assert_int_equal(softmetal_outstanding(s.metal[0]), 1);
        (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 1), at(s.a, 6)), .flags = flags); /* 6 is free */
        finish(&s, 0);
        assert_int_equal(value_of(s.a), 6);
        finish(&s, 1);
        assert_int_equal(value_of(s.a), 8);
        assert_int_equal(value_of(s.b), 1);
        close_stage(&s);
    }
}

static void test_a_failed_timeline_has_no_pending_signal(void **state)
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
    (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.b, 1)));
    assert_ok(either_discard(s.q[0], buffer));
    finish(&s, 0);
    close_stage(&s);
}

/* A host that is to wait for a value which others signal needs the listener to tell it. */
static void test_strict_work_for_a_value_of_others_needs_a_listener(void **state)
{
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    void *event, *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    timeline = timeline_over(s.device, &event);
    buffer = open_on(&s, 0);
    softmetal_hide_class("MTLSharedEventListener");
    REFUSED(GPUSYNC_ERROR_UNSUPPORTED, s.q[0], BUFFERS(buffer), WAITS(at(timeline, 1)), .flags = GPUSYNC_STRICT);
    softmetal_hide_class(NULL);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(timeline, 1)), .flags = GPUSYNC_STRICT);
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    metal_event_signal(event, 1);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_stage(&s);
}

/* The signals of an open command buffer count for it alone, and only those that were encoded. */
static void test_a_refused_signal_leaves_those_of_the_command_buffer_as_they_were(void **state)
{
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head, and no signals");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 8)));
    buffer = open_on(&s, 0);
    assert_ok(gpusync_encode_signal(s.q[0], buffer, at(s.a, 3)));
    assert_result(gpusync_encode_signal(s.q[0], buffer, at(s.a, 8)), GPUSYNC_ERROR_NOT_RISING);
    assert_ok(gpusync_encode_signal(s.q[0], buffer, at(s.a, 5)));
    REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 4)));
    assert_result(gpusync_encode_signal(s.q[0], buffer, at(s.a, 4)), GPUSYNC_ERROR_NOT_RISING);
    assert_ok(gpusync_encode_signal(s.q[0], buffer, at(s.a, 6)));
    assert_ok(either_commit(s.q[0], buffer, NULL));
    finish(&s, 0);
    finish(&s, 1);
    assert_int_equal(value_of(s.a), 8);
    close_stage(&s);
}

/* They had set out, above another signal of their queue, before a later one was refused. Work of another queue that signals
   a higher value goes after that other signal, and not after theirs, which no thread ends any more. */
static void test_signals_of_a_refused_submission_keep_no_later_signal_back(void **state)
{
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    assert_ok(gpusync_timeline_signal(s.b, 5));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.b, 9)), SIGNALS(at(s.a, 20)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 3)));
    buffer = open_on(&s, 0);
    REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 5), at(s.a, 6), at(s.b, 5)));
    must_return_within(20);
    assert_ok(gpusync_timeline_signal(s.b, 9));
    has_returned();
    assert_int_equal(held_on(s.rig.device, s.q[1]), 1);
    (void)commit_to(s.q[0], buffer);
    finish(&s, 0);
    finish(&s, 1);
    assert_int_equal(value_of(s.a), 20);
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
    NOT_ON_METAL4("no buffer there has a head, an owner or a status");
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
    assert_int_equal(status_of(with_head), NOT_ENQUEUED); /* its wait is still one */
    assert_ok(either_discard(s.q[0], plain));
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
    theirs = their_buffer(s.q[0]);
    tickets[0] = SUBMIT(s.q[0], BUFFERS(ours, theirs), WAITS(at(s.a, 1)));
    REFUSED(GPUSYNC_ERROR_ALREADY_TRACKED, s.q[0], BUFFERS(ours));
    REFUSED(GPUSYNC_ERROR_ALREADY_TRACKED, s.q[0], BUFFERS(theirs), .flags = GPUSYNC_UNORDERED);
    assert_result(either_commit(s.q[0], ours, &tickets[1]), GPUSYNC_ERROR_ALREADY_TRACKED);
    if (!metal4_run()) {
        assert_result(gpusync_track(s.q[0], theirs, &tickets[1]), GPUSYNC_ERROR_ALREADY_TRACKED);
        assert_result(gpusync_command_buffer_discard(s.q[0], ours), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    }
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], tickets[0], 0));
    metal_release(theirs);
    close_stage(&s);
}

/* Each is looked at, not the last alone. */
static void test_a_buffer_that_the_program_has_committed_is_refused_wherever_it_stands(void **state)
{
    void *committed, *good;
    size_t first;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer may be committed again");
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    committed = kept_buffer_of(s.q[0]);
    good = buffer_of(s.q[0]);
    metal_commit(committed);
    for (first = 0; first < 2; first++)
        REFUSED(GPUSYNC_ERROR_ALREADY_COMMITTED, s.q[0], BUFFERS(first ? good : committed, first ? committed : good));
    assert_int_equal(status_of(good), NOT_ENQUEUED);
    assert_int_equal(SUBMIT(s.q[0], BUFFERS(good)), 1);
    finish(&s, 0);
    assert_ok(gpusync_command_buffer_discard(s.q[0], committed));
    metal_release(committed);
    close_stage(&s);
}

static void test_an_enqueued_buffer_cannot_be_held(void **state)
{
    gpusync_ticket ticket;
    void *ours, *theirs;
    stage s;
    (void)state;
    NOT_ON_METAL4("nothing is enqueued");
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    ours = open_on(&s, 0);
    theirs = metal_queue_command_buffer(s.metal[0]);
    metal_enqueue(theirs);
    REFUSED(GPUSYNC_ERROR_ENQUEUED, s.q[0], BUFFERS(ours, theirs), WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 2);
    (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.a, 1)));
    assert_result(either_commit(s.q[0], theirs, &ticket), GPUSYNC_ERROR_ENQUEUED); /* behind what is held */
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
    unsigned i, most = metal4_run() ? 14 : 7; /* elsewhere each has one of gpusync's own, too */
    stage s;
    (void)state;
    open_stage_with(&s, SOFTMETAL_MANUAL, 1, 16);
    for (i = 0; i < most; i++) {
        last = open_on(&s, 0);
        if (i == 6 && !metal4_run()) /* a signal, too, would take two of gpusync's own */
            REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(last), WAITS(at(s.a, 7)), SIGNALS(at(s.b, 1)));
        (void)SUBMIT(s.q[0], BUFFERS(last), WAITS(at(s.a, i + 1u)));
    }
    last = open_on(&s, 0);
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(last), WAITS(at(s.a, most + 2)));
    passing = SUBMIT(s.q[0], BUFFERS(last), SIGNALS(at(s.a, most)), .flags = GPUSYNC_UNORDERED);
    finish(&s, 0);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], passing, 0));
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    assert_int_equal(value_of(s.a), most);
    close_stage(&s);
}

static void test_no_room_for_command_buffers_of_our_own(void **state)
{
    uint64_t none = 0, little = MS(2), begin;
    void *buffers[4];
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers there that need room");
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
    assert_ok(either_discard(s.q[0], buffers[3]));
    finish(&s, 0);
    for (i = 0; i < 4; i++) buffers[i] = open_on(&s, 0); /* nothing of this ends by itself, so no wait helps */
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(buffers[0]), SIGNALS(at(s.a, 2)));
    (void)SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1], buffers[2], buffers[3]), SIGNALS(at(s.a, 2)),
                 .flags = SIGNALS_INSIDE);
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 2);
    close_stage(&s);
}

/* Four have room, and so many may not be held. A value that is on its way holds nothing back: room may come. For a value
   that no work is to signal, and for a ticket, it would have to be held. */
static void test_without_room_the_kind_of_wait_tells_whether_room_may_come(void **state)
{
    uint64_t none = 0;
    void *buffers[4];
    gpusync_ticket ticket;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers there that need room");
    open_stage_with(&s, SOFTMETAL_MANUAL, 2, 4);
    ticket = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.b, 1)));
    for (i = 0; i < 4; i++) buffers[i] = open_on(&s, 0);
    REFUSED(GPUSYNC_TIMEOUT, s.q[0], BUFFERS(buffers[0], buffers[1], buffers[2]), WAITS(at(s.b, 1)),
            .timeout_ns = &none);
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(buffers[0], buffers[1], buffers[2]),
            WAITS(at(s.b, 1), at(s.a, 1)), .timeout_ns = &none);
    REFUSED(GPUSYNC_ERROR_QUEUE_FULL, s.q[0], BUFFERS(buffers[0], buffers[1], buffers[2]),
            WAITS(at(s.b, 1), after(s.q[1], ticket)), .timeout_ns = &none);
    assert_ok(either_discard(s.q[0], buffers[3])); /* room for one of its own */
    ticket = SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1], buffers[2]), WAITS(at(s.b, 1)), .timeout_ns = &none);
    finish(&s, 1);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

/* The first ticket stays open, while others behind it come and go: until there is no place for one more, and no memory
   to make any. Then the submission, and the commit of a buffer with a signal in it, change nothing. */
static void test_without_a_place_for_the_ticket_nothing_is_submitted(void **state)
{
    int encoded;
    (void)state;
    for (encoded = 0; encoded < (metal4_run() ? 1 : 2); encoded++) {
        gpusync_result result = GPUSYNC_OK;
        gpusync_ticket ticket = 0, first, last = 0;
        void *buffer = NULL, *oldest;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 1);
        first = commit_to(s.q[0], oldest = metal_retain(open_on(&s, 0)));
        while (result == GPUSYNC_OK) {
            uint64_t next = last + 1;
            buffer = metal_retain(open_on(&s, 0));
            if (encoded) assert_ok(gpusync_encode_signal(s.q[0], buffer, at(s.a, next)));
            if (last) { /* the first has made what they all need */
                s.rig.memory.fail_after = true;
                s.rig.memory.fail_at = 1;
            }
            if (encoded) result = gpusync_commit(s.q[0], buffer, &ticket);
            else result = TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffer));
            s.rig.memory.fail_at = 0;
            if (result != GPUSYNC_OK) break;
            last = ticket;
            softmetal_finish(buffer);
            metal_release(buffer);
            assert_true(last < 10000);
        }
        assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        assert_true(last > 100);
        if (encoded) ticket = commit_to(s.q[0], buffer);
        else ticket = SUBMIT(s.q[0], BUFFERS(buffer));
        assert_int_equal(ticket, last + 1);
        softmetal_finish(buffer);
        assert_ok(gpusync_poll(s.q[0], ticket));
        assert_result(gpusync_poll(s.q[0], first), GPUSYNC_NOT_READY);
        softmetal_finish(oldest);
        assert_ok(gpusync_wait(s.q[0], GPUSYNC_EVERYTHING, 0));
        metal_release(buffer);
        metal_release(oldest);
        close_stage(&s);
    }
}

/* One in front and one behind never fit in a queue of one, however long the call might wait. */
static void test_more_command_buffers_of_our_own_than_the_queue_has_are_refused(void **state)
{
    uint64_t none = 0, little = MS(20);
    void *theirs;
    stage s;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers there that need room");
    open_stage_with(&s, SOFTMETAL_MANUAL, 1, 1);
    share_timeline(&s, 0); /* so that it need not be held */
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
    o->answers[0] = either_submit(o->stage->q[1], &submission, &o->ticket);
    submission.flags = GPUSYNC_STRICT;
    o->answers[1] = either_submit(o->stage->q[1], &submission, &o->ticket);
}

typedef struct latecomer {
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    void *taken;
} latecomer;

static void take_it_first(void *user)
{
    latecomer *l = (latecomer *)user;
    void *taken = NULL;
    must(gpusync_command_buffer(l->queue, NULL, &taken) == GPUSYNC_OK, "no command buffer");
    PUT(&l->taken, taken);
}

static void *signal_with_room(void *user)
{
    latecomer *l = (latecomer *)user;
    gpusync_point one = at(l->timeline, 1);
    must(submit_between(l->queue, NULL, NULL, &one) == 3, "not submitted");
    return NULL;
}

/* A submission is woken for the room of its own command buffer, and another call is faster: it waits on. */
static void test_a_submission_whose_room_another_takes_waits_for_the_next(void **state)
{
    void *buffers[2];
    pthread_t thread;
    latecomer l;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers there that need room");
    open_stage_with(&s, SOFTMETAL_MANUAL, 1, 2);
    for (i = 0; i < 2; i++) (void)commit_to(s.q[0], buffers[i] = open_on(&s, 0));
    l.queue = s.q[0];
    l.timeline = s.a;
    l.taken = NULL;
    thread = start(signal_with_room, &l);
    await_sleepers(s.device, 1);
    probe_at(PROBE_TAKES_ROOM, NULL, 1, take_it_first, &l);
    softmetal_finish(buffers[0]);
    while (!GET(&l.taken)) sched_yield();
    await_sleepers(s.device, 1);
    assert_true(probe_has_acted());
    assert_int_equal(rooms_taken(s.q[0]), 2);
    softmetal_finish(buffers[1]);
    join(thread);
    assert_int_equal(rooms_taken(s.q[0]), 2);
    assert_ok(gpusync_command_buffer_discard(s.q[0], l.taken));
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 1);
    close_stage(&s);
}

static void test_in_a_callback_no_call_waits_for_room(void **state)
{
    outcome told;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers there that need room");
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
            unsigned long owners;
            void *buffers[2];
            size_t i;
            stage s;
            open_stage(&s, SOFTMETAL_MANUAL, 2);
            awaited = commit_on(&s, 1);
            buffers[0] = metal4_run() ? buffer_of(s.q[0]) : OPEN(s.q[0], WAITS(after(s.q[1], awaited)));
            buffers[1] = their_buffer(s.q[0]);
            owners = softmetal_retain_count(buffers[1]);
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
            result = either_submit(s.q[0], &submission, &ticket);
            s.rig.memory.fail_at = 0;
            softmetal_fail_creation(0, false);
            done = result == GPUSYNC_OK;
            if (!done) {
                assert_int_equal(result, way < 2 ? GPUSYNC_ERROR_OUT_OF_MEMORY : GPUSYNC_ERROR_METAL_NIL);
                assert_int_equal(ticket, GPUSYNC_NO_TICKET);
                if (!metal4_run()) assert_int_equal(softmetal_outstanding(s.metal[0]), 2);
                assert_int_equal(softmetal_retain_count(buffers[1]), owners);
                assert_ok(either_submit(s.q[0], &submission, &ticket));
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
    fail_with_the_device(buffer);
    (void)SUBMIT(s.q[1], BUFFERS(buffer));
    buffer = open_on(&s, 1);
    finish(&s, 1);
    assert_true(gpusync_device_is_lost(s.device));
    assert_result(gpusync_wait(s.q[0], ticket, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(calls_of(&told), 1);
    assert_int_equal(told.result, GPUSYNC_ERROR_DEVICE_LOST);
    REFUSED(GPUSYNC_ERROR_DEVICE_LOST, s.q[1], BUFFERS(buffer));
    assert_ok(either_discard(s.q[1], buffer));
    close_stage(&s);
}

/* == what is refused is not on its way ============================================================================= */

/* The wait at its head was listed by the call that was refused, and is one of the next call's again. */
static void test_a_refused_command_buffer_with_a_wait_that_is_coming_fails_with_it(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error;
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)submit_failing(&s, 0, at(s.a, 1));
    buffer = OPEN(s.q[1], WAITS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], NO_WORK(s.q[1]), WAITS(at(s.b, 9)), SIGNALS(at(s.b, 10))); /* held: so is what is behind it */
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
    (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.b, 1)));
    REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.a, 1), at(s.b, 1)));
    buffer = metal_retain(open_on(&s, 1));
    ticket = SUBMIT(s.q[1], BUFFERS(buffer), WAITS(at(s.a, 1)));
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    finish(&s, 1);
    assert_ok(gpusync_poll(s.q[1], ticket));
    metal_release(buffer);
    close_stage(&s);
}

enum { MANY_SIGNALS = 100 };

/* The last of many is pending already. What waits for the first was held before, and stays so. */
static void test_of_many_signals_none_is_on_its_way_when_the_last_is_refused(void **state)
{
    gpusync_timeline *timelines[MANY_SIGNALS];
    gpusync_point signals[MANY_SIGNALS];
    gpusync_ticket ticket;
    void *signals_it, *waits;
    int i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    for (i = 0; i < MANY_SIGNALS; i++) signals[i] = at(timelines[i] = timeline_new(s.device), 5);
    signals_it = metal_retain(open_on(&s, 0));
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(signals_it), SIGNALS(signals[MANY_SIGNALS - 1]));
    waits = metal_retain(open_on(&s, 1));
    ticket = SUBMIT(s.q[1], WAITS(signals[0]), BUFFERS(waits));
    REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[2], NO_WORK(s.q[2]), .signals = signals, .signal_count = MANY_SIGNALS);
    assert_int_equal(status_of(waits), NOT_ENQUEUED);
    assert_int_equal(value_of(timelines[0]), 0);
    assert_ok(gpusync_timeline_signal(timelines[0], 5)); /* it is pending no more */
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[1], ticket, 0));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    assert_int_equal(value_of(timelines[MANY_SIGNALS - 1]), 5);
    metal_release(signals_it);
    metal_release(waits);
    for (i = 0; i < MANY_SIGNALS; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    close_stage(&s);
}

static void test_a_refused_signal_below_others_hides_them_for_no_longer_than_the_call(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.b, 1), at(s.a, 20)));
    REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.a, 15), at(s.b, 1)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 21)));
    ticket = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 21)));
    assert_false(probe_is_listed(s.a));
    finish(&s, 0);
    finish(&s, 1);
    assert_ok(gpusync_poll(s.q[1], ticket));
    close_stage(&s);
}

static void test_a_buffer_that_is_refused_is_what_it_was(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head");
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = OPEN(s.q[0], WAITS(at(s.a, 1)));
    assert_result(gpusync_track(s.q[0], buffer, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_ok(either_discard(s.q[0], buffer));
    buffer = metal_retain(OPEN(s.q[0], WAITS(at(s.a, 1))));
    assert_result(gpusync_track(s.q[0], buffer, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    ticket = commit_to(s.q[0], buffer); /* with the wait at its head */
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(status_of(buffer), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], ticket));
    metal_release(buffer);
    close_stage(&s);
}

/* No call has looked at the event since. */
static void test_a_value_that_others_have_signalled_is_no_pending_signal(void **state)
{
    gpusync_ticket ticket;
    foreign_stage f;
    void *buffer;
    (void)state;
    open_foreign(&f, SOFTMETAL_MANUAL);
    signal_abroad(&f, NULL, 0, 5);
    buffer = kept_buffer_of(f.stage.q[0]);
    assert_result(TRY_SUBMIT(f.stage.q[0], &ticket, BUFFERS(buffer), SIGNALS(at(f.timeline, 5))),
                  GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(value_of(f.timeline), 5);
    (void)SUBMIT(f.stage.q[0], BUFFERS(buffer), SIGNALS(at(f.timeline, 6)));
    finish(&f.stage, 0);
    assert_int_equal(value_of(f.timeline), 6);
    metal_release(buffer);
    close_foreign(&f);
}

/* Likewise where the event is gpusync's own, and others signal it: by either call. */
static void test_a_value_that_others_have_signalled_on_our_event_is_no_pending_signal(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    int encodes;
    (void)state;
    for (encodes = 0; encodes < (metal4_run() ? 1 : 2); encodes++) { /* Metal 4 encodes no signals */
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 1);
        share_timeline(&s, 0);
        raise_behind_its_back(s.a, 5);
        buffer = buffer_of(s.q[0]);
        if (encodes) assert_result(gpusync_encode_signal(s.q[0], buffer, at(s.a, 3)), GPUSYNC_ERROR_NOT_RISING);
        else assert_result(TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffer), SIGNALS(at(s.a, 3))), GPUSYNC_ERROR_NOT_RISING);
        assert_int_equal(value_of(s.a), 5);
        (void)commit_to(s.q[0], buffer);
        finish(&s, 0);
        close_stage(&s);
    }
}

/* -- the room that a refused submission gives back ------------------------------------------------------------- */

static struct {
    gpusync_hooks hooks;
    stage s;
    unsigned woken;
    void *buffer; /* of the thread that has waited */
    pthread_t thread;
} behind;

/* For as long as it takes: a wait for room without a limit would look again by itself, each second. */
static void park_until_woken(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)deadline_ns;
    thread_park(waiter, GPUSYNC_FOREVER);
}

static void count_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    COUNT(&behind.woken);
    thread_unpark(waiter);
}

static void *take_the_room(void *unused)
{
    must(gpusync_command_buffer(behind.s.q[0], NULL, &behind.buffer) == GPUSYNC_OK, "no command buffer");
    return unused;
}

/* Metal makes the refused submission's own command buffer, which has all the room. */
static void sleep_for_the_room(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user, (void)object;
    if (phase != SOFTMETAL_AFTER || strcmp(selector, "commandBuffer") != 0) return;
    softmetal_set_message_hook(NULL, NULL);
    behind.thread = start(take_the_room, NULL);
    await_sleepers(behind.s.device, 1);
}

static void test_a_refused_submission_wakes_who_waits_for_its_room(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_ticket ticket;
    (void)state;
    NOT_ON_METAL4("no command buffers of gpusync's own");
    memset(&behind, 0, sizeof behind);
    behind.hooks.park = park_until_woken;
    behind.hooks.unpark = count_unpark;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.hooks = &behind.hooks;
    PUT(&clock_is_real, false); /* no second goes by, however late a thread is */
    open_stage_on(&behind.s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, 1, device_desc, queue_desc_of(1, 0));
    assert_ok(gpusync_timeline_signal(behind.s.a, 5));
    softmetal_set_message_hook(sleep_for_the_room, NULL);
    assert_result(TRY_SUBMIT(behind.s.q[0], &ticket, SIGNALS(at(behind.s.a, 5))), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(GET(&behind.woken), 1); /* by this call: nothing else would */
    join(behind.thread);
    assert_ok(gpusync_command_buffer_discard(behind.s.q[0], behind.buffer));
    close_stage(&behind.s);
    PUT(&clock_is_real, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_value_that_others_have_signalled_is_no_pending_signal),
        cmocka_unit_test(test_arguments_that_make_no_sense_are_refused),
        cmocka_unit_test(test_tickets_that_are_none_are_refused),
        cmocka_unit_test(test_values_that_do_not_rise_are_refused),
        cmocka_unit_test(test_a_failed_timeline_has_no_pending_signal),
        cmocka_unit_test(test_strict_work_for_a_value_of_others_needs_a_listener),
        cmocka_unit_test(test_a_refused_signal_leaves_those_of_the_command_buffer_as_they_were),
        cmocka_unit_test(test_buffers_of_a_refused_submission_are_still_the_callers),
        cmocka_unit_test(test_held_buffers_cannot_be_used_again),
        cmocka_unit_test(test_a_buffer_that_the_program_has_committed_is_refused_wherever_it_stands),
        cmocka_unit_test(test_an_enqueued_buffer_cannot_be_held),
        cmocka_unit_test(test_an_eighth_of_the_room_is_kept_free_of_what_is_held),
        cmocka_unit_test(test_no_room_for_command_buffers_of_our_own),
        cmocka_unit_test(test_without_room_the_kind_of_wait_tells_whether_room_may_come),
        cmocka_unit_test(test_without_a_place_for_the_ticket_nothing_is_submitted),
        cmocka_unit_test(test_more_command_buffers_of_our_own_than_the_queue_has_are_refused),
        cmocka_unit_test(test_a_submission_whose_room_another_takes_waits_for_the_next),
        cmocka_unit_test(test_in_a_callback_no_call_waits_for_room),
        cmocka_unit_test(test_what_metal_or_memory_does_not_give_changes_nothing),
        cmocka_unit_test(test_a_lost_device_takes_no_submission_and_ends_what_is_held),
        cmocka_unit_test(test_a_refused_command_buffer_with_a_wait_that_is_coming_fails_with_it),
        cmocka_unit_test(test_signals_of_a_refused_submission_keep_no_later_signal_back),
        cmocka_unit_test(test_a_refused_signal_is_not_on_its_way),
        cmocka_unit_test(test_of_many_signals_none_is_on_its_way_when_the_last_is_refused),
        cmocka_unit_test(test_a_refused_signal_below_others_hides_them_for_no_longer_than_the_call),
        cmocka_unit_test(test_a_buffer_that_is_refused_is_what_it_was),
        cmocka_unit_test(test_a_value_that_others_have_signalled_on_our_event_is_no_pending_signal),
        cmocka_unit_test(test_a_refused_submission_wakes_who_waits_for_its_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
