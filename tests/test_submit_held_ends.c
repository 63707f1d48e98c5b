/* test_submit_held_ends.c - how held submissions end that never reach the device, and chains of hundreds of them

   Proved: held work ends once, with the error of what it waited for, when that fails, is cancelled, or goes with its
   timeline, its queue or the device; work that still has hope outlives them; a chain needs no stack for its length.

   This also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

/* So that every failure of a long chain stays on record. */
static void open_held_stage(stage *s, softmetal_clock clock, unsigned queues, uint32_t max_buffers)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = max_buffers;
    queue_desc.error_log_count = 1024;
    open_stage_on(s, clock, QUEUE_OF_GPUSYNC, queues, device_desc, queue_desc);
}

/* -- chains ----------------------------------------------------------------------------------------------- */

static void *signal_one(void *timeline)
{
    assert_ok(gpusync_timeline_signal((gpusync_timeline *)timeline, 1));
    return NULL;
}

static void *cancel_line_of(void *queue)
{
    assert_ok(gpusync_cancel_held((gpusync_queue *)queue));
    return NULL;
}

#define LINKS 700

static outcome link_endings[LINKS];
static gpusync_ticket link_tickets[LINKS];
static gpusync_timeline *link_timelines[LINKS + 1];

/* Link i waits for timeline i and signals timeline i + 1, on the queues in turn; by tickets, for link i - 1. */
static void make_chain(stage *s, unsigned queues, bool by_tickets)
{
    unsigned i;
    memset(link_endings, 0, sizeof link_endings);
    assert_ok(gpusync_timeline_create(s->device, NULL, &link_timelines[0]));
    for (i = 0; i < LINKS; i++) {
        gpusync_queue *queue = s->q[i % queues];
        gpusync_point wait = at(link_timelines[i], 1), signal;
        gpusync_submission link = {NO_WORK(queue), .waits = &wait, .wait_count = 1, TELL(&link_endings[i])};
        if (by_tickets && i > 0) wait = after(s->q[(i - 1) % queues], link_tickets[i - 1]);
        if (!by_tickets) {
            assert_ok(gpusync_timeline_create(s->device, NULL, &link_timelines[i + 1]));
            signal = at(link_timelines[i + 1], 1);
            link.signals = &signal;
            link.signal_count = 1;
        }
        assert_ok(either_submit(queue, &link, &link_tickets[i]));
    }
    assert_int_equal(held_on(s->device, s->q[0]), (LINKS + queues - 1) / queues);
}

static void drop_chain(void)
{
    unsigned i;
    for (i = 0; i <= LINKS; i++) {
        assert_ok(gpusync_timeline_destroy(link_timelines[i]));
        link_timelines[i] = NULL;
    }
}

static void check_long_chain(unsigned queues, bool by_tickets, void *(*end)(void *), gpusync_result expected)
{
    unsigned i;
    stage s;
    open_held_stage(&s, SOFTMETAL_REAL, queues, 1024);
    make_chain(&s, queues, by_tickets);
    on_small_stack(end, end == cancel_line_of ? (void *)s.q[0] : (void *)link_timelines[0]);
    for (i = 0; i < LINKS; i++) {
        gpusync_error error = {0};
        gpusync_wait_options options = {.error = &error};
        assert_result(gpusync_wait_ex(s.q[i % queues], link_tickets[i], GPUSYNC_FOREVER, &options), expected);
        assert_ended(&link_endings[i], expected);
        if (end != fail_with_code_77) continue;
        assert_int_equal(error.code, 77);
        assert_string_equal(error.domain, "test");
        assert_string_equal(error.message, "the first link broke");
        assert_int_equal(error.ticket, link_tickets[i]);
    }
    for (i = 0; i < queues; i++) assert_true(gpusync_is_idle(s.q[i]));
    drop_chain();
    close_idle_stage(&s);
}

static void test_a_long_chain_over_queues_goes_at_the_first_signal(void **state)
{
    (void)state;
    check_long_chain(3, false, signal_one, GPUSYNC_OK);
}

static void test_a_long_chain_on_one_queue_goes_at_the_first_signal(void **state)
{
    (void)state;
    check_long_chain(1, false, signal_one, GPUSYNC_OK);
}

static void test_a_long_chain_of_tickets_goes_at_the_first_signal(void **state)
{
    (void)state;
    check_long_chain(3, true, signal_one, GPUSYNC_OK);
}

static void test_a_long_chain_fails_with_the_error_of_its_first_link(void **state)
{
    (void)state;
    check_long_chain(3, false, fail_with_code_77, GPUSYNC_ERROR_EXECUTION);
    check_long_chain(2, true, fail_with_code_77, GPUSYNC_ERROR_EXECUTION);
}

/* The links of the other queues are not cancelled themselves: what they wait for fails. */
static void test_a_long_chain_ends_where_the_first_of_its_queues_is_cancelled(void **state)
{
    (void)state;
    check_long_chain(3, false, cancel_line_of, GPUSYNC_ERROR_CANCELLED);
}

/* All of them have run, and their handlers come and gone; none is told of before the first, whose handler is late. */
static void *poll_first_link(void *queue)
{
    assert_ok(gpusync_poll((gpusync_queue *)queue, link_tickets[0]));
    return NULL;
}

static void test_a_long_chain_that_has_run_is_told_of_when_its_first_link_is(void **state)
{
    static void *buffers[LINKS];
    gpusync_submission submission;
    gpusync_point wait, signal;
    unsigned i;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 2, 1024);
    memset(&submission, 0, sizeof submission);
    submission.command_buffer_count = 1;
    submission.signals = &signal;
    submission.signal_count = 1;
    submission.flags = SIGNALS_INSIDE;
    for (i = 0; i <= LINKS; i++) assert_ok(gpusync_timeline_create(s.device, NULL, &link_timelines[i]));
    for (i = 0; i < LINKS; i++) {
        wait = at(link_timelines[i], 1);
        signal = at(link_timelines[i + 1], 1);
        submission.waits = &wait;
        submission.wait_count = metal4_run() && i > 0;
        assert_ok(make_behind(s.q[i % 2], NULL, &wait, i > 0 && !metal4_run(), &buffers[i]));
        submission.command_buffers = &buffers[i];
        assert_ok(submit_as_told(s.q[i % 2], &submission, &link_tickets[i]));
    }
    softmetal_complete(buffers[0]);
    for (i = 1; i < LINKS; i++) softmetal_finish(buffers[i]);
    assert_int_equal(stats_of(s.q[0]).completions + stats_of(s.q[1]).completions, 0);
    if (metal4_run()) softmetal_finish(buffers[0]);
    else on_small_stack(poll_first_link, s.q[0]);
    assert_int_equal(stats_of(s.q[0]).completions + stats_of(s.q[1]).completions, LINKS);
    assert_true(gpusync_is_idle(s.q[0]) && gpusync_is_idle(s.q[1]));
    if (!metal4_run()) softmetal_finish(buffers[0]);
    drop_chain();
    close_idle_stage(&s);
}

/* -- what it waits for fails ------------------------------------------------------------------------------ */

static void test_held_work_is_never_issued_when_its_timeline_fails(void **state)
{
    outcome first = {0}, second = {0};
    commit_log log = {{NULL}, 0};
    gpusync_ticket behind;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    hold_on(s.q[1], s.t[1], 1, &second);
    softmetal_set_message_hook(log_commits, &log);
    fail_with_code_77(s.t[0]);
    assert_int_equal(log.count, 0);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    assert_ended(&first, GPUSYNC_ERROR_EXECUTION);
    assert_ended(&second, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(second.error.code, 77);
    assert_string_equal(second.error.domain, "test");
    assert_string_equal(second.error.message, "the first link broke");
    assert_int_equal(second.error.ticket, 1);
    /* submitted after the failure: over within the call, and not committed */
    memset(&first, 0, sizeof first);
    SUBMIT(s.q[0], WAITS(at(s.t[1], 7)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    assert_int_equal(calls_of(&first), 1);
    assert_int_equal(first.error.code, 77);
    assert_int_equal(log.count, 0);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    softmetal_set_message_hook(NULL, NULL);
    behind = commit_to(s.q[0], buffer_of(s.q[0]));
    assert_ok(gpusync_wait(s.q[0], behind, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

/* The work that was to signal a smaller value of the timeline is killed: what waits for larger ones has no hope. */
static void test_held_work_gets_the_error_of_the_producer_that_was_killed(void **state)
{
    static const uint32_t flags[] = {0, GPUSYNC_STRICT, GPUSYNC_UNORDERED};
    outcome producer, held, behind_it;
    void *killed;
    unsigned i;
    stage s;
    (void)state;
    for (i = 0; i < 3; i++) {
        memset(&producer, 0, sizeof producer);
        memset(&held, 0, sizeof held);
        memset(&behind_it, 0, sizeof behind_it);
        open_stage(&s, SOFTMETAL_REAL, 3);
        killed = buffer_of(s.q[0]);
        metal_set_label(killed, "victim");
        softmetal_fail(killed, NULL, 3, "page fault in a test");
        softmetal_hang(killed);
        metal_retain(killed);
        SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(killed), TELL(&producer));
        SUBMIT(s.q[1], WAITS(at(s.t[0], flags[i] & GPUSYNC_STRICT ? 1 : 2)), SIGNALS(at(s.t[1], 1)),
               BUFFERS(buffer_of(s.q[1])), .flags = flags[i], TELL(&held));
        SUBMIT(s.q[2], WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[2], 1)), BUFFERS(buffer_of(s.q[2])), TELL(&behind_it));
        assert_int_equal(held_on(s.device, s.q[1]), 1);
        assert_int_equal(held_on(s.device, s.q[2]), 1);
        softmetal_unhang(killed);
        metal_release(killed);
        assert_result(gpusync_timeline_wait(s.t[2], 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_ended(&producer, GPUSYNC_ERROR_EXECUTION);
        assert_ended(&held, GPUSYNC_ERROR_EXECUTION);
        assert_ended(&behind_it, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(behind_it.error.code, 3);
        assert_int_equal(behind_it.error.failure,
                         metal4_run() ? GPUSYNC_FAILURE_OUT_OF_MEMORY : GPUSYNC_FAILURE_PAGE_FAULT);
        assert_string_equal(behind_it.error.domain, producer.error.domain);
        assert_string_equal(behind_it.error.message, "page fault in a test");
        assert_string_equal(behind_it.error.label, "victim");
        assert_int_equal(held_on(s.device, s.q[1]) + held_on(s.device, s.q[2]), 0);
        close_idle_stage(&s);
    }
}

/* Two waits of held work fail, in either order: it ends with the first failure, whichever place that has in the
   submission. */
static void test_held_work_ends_with_the_first_failure_of_its_waits(void **state)
{
    static const long codes[] = {3, 9};
    unsigned first, i;
    (void)state;
    for (first = 0; first < 2; first++) {
        outcome consumer = {0};
        void *killed[2];
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 3);
        for (i = 0; i < 2; i++) {
            killed[i] = buffer_of(s.q[i]);
            softmetal_fail(killed[i], NULL, codes[i], NULL);
            SUBMIT(s.q[i], SIGNALS(at(s.t[i], 1)), BUFFERS(killed[i]), .flags = SIGNALS_INSIDE);
        }
        SUBMIT(s.q[2], NO_WORK(s.q[2]), WAITS(at(s.t[0], 1), at(s.t[1], 1)), .flags = GPUSYNC_STRICT, TELL(&consumer));
        assert_int_equal(held_on(s.device, s.q[2]), 1);
        softmetal_finish(killed[first]);
        assert_ended(&consumer, GPUSYNC_ERROR_EXECUTION); /* while the other may still come */
        assert_int_equal(consumer.error.code, codes[first]);
        softmetal_finish(killed[!first]);
        assert_int_equal(error_of(s.q[2], 1).code, codes[first]);
        close_stage(&s);
    }
}

/* Work on the device learns of its waits when it is over. What it was killed for comes before that. */
static void test_work_on_the_device_ends_with_its_own_failure_before_those_of_its_waits(void **state)
{
    unsigned first, i;
    (void)state;
    for (first = 0; first < 2; first++) {
        outcome consumer = {0};
        void *killed[2];
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 3);
        for (i = 0; i < 2; i++) {
            killed[i] = buffer_of(s.q[i]);
            softmetal_fail(killed[i], NULL, 3, NULL);
            SUBMIT(s.q[i], SIGNALS(at(s.t[i], 1)), BUFFERS(killed[i]), .flags = SIGNALS_INSIDE);
        }
        SUBMIT(s.q[2], NO_WORK(s.q[2]), WAITS(at(s.t[0], 1), at(s.t[1], 1)), TELL(&consumer));
        softmetal_fail(softmetal_last_buffer(gpusync_queue_metal(s.q[2])), NULL, 2, NULL);
        softmetal_finish(killed[first]);
        if (!metal4_run()) finish(&s, 2); /* there the queue waits */
        assert_int_equal(calls_of(&consumer), 0); /* it ends when the other has ended, too */
        softmetal_finish(killed[!first]);
        if (metal4_run()) finish(&s, 2);
        assert_ended(&consumer, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(consumer.error.code, 2);
        close_stage(&s);
    }
}

/* The failure of the second producer is what the value after it says; what the first has reached stands. */
static void test_held_work_behind_a_value_that_was_reached_goes_before_the_failure(void **state)
{
    gpusync_ticket good, bad;
    void *killed;
    uint64_t reached;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    good = hold_on(s.q[1], s.t[0], 1, NULL);
    bad = hold_on(s.q[1], s.t[0], 3, NULL);
    SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.t[0], 1)));
    assert_ok(gpusync_wait(s.q[1], good, GPUSYNC_FOREVER));
    killed = buffer_of(s.q[0]);
    softmetal_fail(killed, NULL, 3, NULL);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 2)), BUFFERS(killed));
    assert_result(gpusync_wait(s.q[1], bad, GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_timeline_query(s.t[0], &reached), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(reached, 1);
    assert_ok(gpusync_wait(s.q[1], good, 0));
    close_idle_stage(&s);
}

/* -- timelines that go ------------------------------------------------------------------------------------ */

static void test_held_work_ends_with_the_timeline_of_a_value_that_no_work_is_to_signal(void **state)
{
    outcome first = {0}, second = {0};
    gpusync_ticket other;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    other = commit_to(s.q[0], buffer_of(s.q[0]));
    hold_on(s.q[1], s.t[1], 1, &second);
    take_down_timeline(&s, 0);
    assert_int_equal(calls_of(&first), 1);
    assert_ended(&first, GPUSYNC_ERROR_DESTROYED);
    assert_ended(&second, GPUSYNC_ERROR_DESTROYED);
    assert_ok(gpusync_wait(s.q[0], other, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

static void test_held_work_outlives_the_timeline_of_a_value_that_is_pending(void **state)
{
    outcome consumer = {0}, producer = {0};
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&producer));
    hold_on(s.q[1], s.t[0], 1, &consumer);
    take_down_timeline(&s, 0);
    assert_int_equal(calls_of(&consumer) + calls_of(&producer), 0);
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_ok(gpusync_device_wait(s.device, GPUSYNC_FOREVER, NULL));
    assert_ended(&producer, GPUSYNC_OK);
    assert_ended(&consumer, GPUSYNC_OK);
    close_idle_stage(&s);
}

static void test_work_in_flight_goes_on_with_the_event_of_a_timeline_that_went(void **state)
{
    static const bool killed[] = {false, true};
    outcome consumer, producer;
    void *buffer;
    unsigned i;
    stage s;
    (void)state;
    for (i = 0; i < 2; i++) {
        gpusync_result expected = killed[i] ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
        memset(&consumer, 0, sizeof consumer);
        memset(&producer, 0, sizeof producer);
        open_stage(&s, SOFTMETAL_REAL, 2);
        buffer = buffer_of(s.q[0]);
        metal_retain(buffer);
        softmetal_hang(buffer);
        if (killed[i]) softmetal_fail(buffer, NULL, 3, NULL);
        SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(buffer), TELL(&producer));
        hold_on(s.q[1], s.t[0], 1, &consumer);
        assert_int_equal(held_on(s.device, s.q[1]), 0);
        take_down_timeline(&s, 0);
        softmetal_unhang(buffer);
        metal_release(buffer);
        assert_ended(&producer, expected);
        assert_ended(&consumer, expected);
        close_idle_stage(&s);
    }
}

/* The larger value is signalled, only a smaller one, to be signalled by work in flight, keeps it from being reached:
   work that waits for it has not lost anything with the timeline. */
static void check_signalled_value_counts_as_pending(bool by_host)
{
    outcome consumer = {0};
    void *slow;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    slow = buffer_of(s.q[0]);
    if (!by_host) /* before the other, else it goes after that */
        SUBMIT(s.q[1], NO_WORK(s.q[1]), SIGNALS(at(s.t[0], 10)));
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 5)), BUFFERS(slow));
    if (by_host) assert_ok(gpusync_timeline_signal(s.t[0], 10));
    else softmetal_finish_queue(gpusync_queue_metal(s.q[1]));
    hold_on(s.q[2], s.t[0], 10, &consumer);
    take_down_timeline(&s, 0);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    softmetal_finish_queue(gpusync_queue_metal(s.q[2]));
    assert_ended(&consumer, GPUSYNC_OK);
    close_idle_stage(&s);
}

static void test_held_work_for_a_signalled_value_behind_a_pending_signal_outlives_the_timeline(void **state)
{
    (void)state;
    check_signalled_value_counts_as_pending(true);
    check_signalled_value_counts_as_pending(false);
}

/* -- queues that go --------------------------------------------------------------------------------------- */

static void test_destroy_gives_up_what_is_held_and_what_waits_for_it(void **state)
{
    static const bool now[] = {false, true};
    outcome first, behind, other, by_ticket;
    unsigned i;
    stage s;
    (void)state;
    for (i = 0; i < 2; i++) {
        gpusync_result given_up = now[i] ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_ERROR_CANCELLED;
        memset(&first, 0, sizeof first);
        memset(&behind, 0, sizeof behind);
        memset(&other, 0, sizeof other);
        memset(&by_ticket, 0, sizeof by_ticket);
        open_stage(&s, SOFTMETAL_REAL, 3);
        SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
        commit_to(s.q[0], buffer_of(s.q[0]));
        SUBMIT(s.q[0], NO_WORK(s.q[0]), TELL(&behind));
        hold_on(s.q[1], s.t[1], 1, &other);
        SUBMIT(s.q[2], WAITS(after(s.q[0], 2)), BUFFERS(buffer_of(s.q[2])), TELL(&by_ticket));
        take_down_queue(&s, 0, now[i]);
        assert_int_equal(calls_of(&first) + calls_of(&behind), 2);
        assert_ended(&first, given_up);
        assert_ended(&behind, given_up);
        assert_ended(&other, given_up);
        assert_ended(&by_ticket, given_up);
        assert_result(gpusync_poll(s.q[1], 1), given_up);
        assert_result(gpusync_poll(s.q[2], 1), given_up);
        assert_int_equal(softmetal_live("command_buffer"), 0);
        close_idle_stage(&s);
    }
}

/* What waits on other queues for work that destroy_now leaves to itself: by value, by ticket, by the ticket of a plain
   commit; in flight and held. */
static void test_destroy_now_ends_what_depends_on_work_in_flight(void **state)
{
    outcome producer = {0}, flying = {0}, held = {0}, by_ticket = {0}, by_plain = {0};
    void *slow, *plain, *metal;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    slow = buffer_of(s.q[0]);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(slow), TELL(&producer), .flags = SIGNALS_INSIDE);
    plain = buffer_of(s.q[0]);
    commit_to(s.q[0], plain);
    hold_on(s.q[1], s.t[0], 1, &flying);
    assert_int_equal(held_on(s.device, s.q[1]), 0);
    SUBMIT(s.q[2], WAITS(at(s.t[0], 2)), BUFFERS(buffer_of(s.q[2])), TELL(&held), .flags = GPUSYNC_UNORDERED);
    SUBMIT(s.q[1], NO_WORK(s.q[1]), WAITS(after(s.q[0], 1)), TELL(&by_ticket));
    SUBMIT(s.q[1], NO_WORK(s.q[1]), WAITS(after(s.q[0], 2)), TELL(&by_plain));
    assert_int_equal(held_on(s.device, s.q[2]), 1);
    metal = s.metal[0];
    take_down_queue(&s, 0, true);
    assert_int_equal(calls_of(&producer), 1);
    assert_ended(&producer, GPUSYNC_ERROR_DESTROYED);
    assert_ended(&held, GPUSYNC_ERROR_DESTROYED);
    softmetal_finish_queue(gpusync_queue_metal(s.q[1])); /* nothing on the device waits for ever */
    assert_ended(&flying, GPUSYNC_ERROR_DESTROYED);
    assert_ended(&by_ticket, GPUSYNC_ERROR_DESTROYED);
    assert_ended(&by_plain, GPUSYNC_ERROR_DESTROYED);
    softmetal_finish(slow);
    softmetal_finish(plain);
    drop_what_stays(gpusync_timeline_metal(s.t[0], NULL));
    drop_queue_that_stays(metal);
    close_idle_stage(&s);
}

/* The consumer's queue goes, and the producer is still in flight: it has nothing to tell any more. */
static void test_destroy_now_of_the_waiting_side_takes_its_waits_back(void **state)
{
    outcome flying = {0}, held = {0}, later = {0};
    void *orphans;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])));
    SUBMIT(s.q[1], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[1])), TELL(&flying));
    hold_on(s.q[1], s.t[0], 2, &held);
    hold_on(s.q[2], s.t[1], 1, &later);
    orphans = metal_retain(gpusync_queue_metal(s.q[1]));
    take_down_queue(&s, 1, true);
    assert_ended(&flying, GPUSYNC_ERROR_DESTROYED);
    assert_ended(&held, GPUSYNC_ERROR_DESTROYED);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_int_equal(value_of(s.t[0]), 1);
    softmetal_finish_queue(gpusync_queue_metal(s.q[2]));
    assert_ended(&later, GPUSYNC_ERROR_DESTROYED);
    softmetal_finish_queue(orphans);
    drop_what_stays(gpusync_timeline_metal(s.t[0], NULL));
    drop_what_stays(gpusync_timeline_metal(s.t[1], NULL));
    drop_queue_that_stays(orphans);
    metal_release(orphans);
    close_idle_stage(&s);
}

/* Destroy waits for the work in flight, and so for what that waits for on other queues. */
static void *destroy_body(void *queue)
{
    assert_ok(gpusync_queue_destroy((gpusync_queue *)queue));
    return NULL;
}

static void fail_in_between(void *timeline) { (void)fail_with_code_77(timeline); }

/* What work waits for fails just before the work enters. */
static void test_a_failure_just_before_work_is_in_the_line_is_seen_there(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    probe_at(PROBE_ENTERS, NULL, 1, fail_in_between, s.b);
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1), at(s.b, 1)), BUFFERS(buffer_of(s.q[0]))); /* for the one it still waits */
    assert_true(probe_has_acted());
    assert_int_equal(error_of(s.q[0], ticket).code, 77);
    assert_true(gpusync_is_idle(s.q[0]));
    assert_int_equal(rooms_taken(s.q[0]), 0);
    close_stage(&s);
}

typedef struct destruction {
    gpusync_queue *queue;
    pthread_t thread;
    bool begun;
    outcome outcome; /* of the work */
} destruction;

static void *destroy_at_once(void *queue)
{
    must(gpusync_queue_destroy_now((gpusync_queue *)queue) == GPUSYNC_OK, "gpusync_queue_destroy_now");
    return NULL;
}

static void destroy_at_issue(void *user, const gpusync_trace_event *event)
{
    destruction *d = (destruction *)user;
    if (event->kind != GPUSYNC_TRACE_ISSUE || d->begun) return;
    d->begun = true;
    d->thread = start(destroy_at_once, d->queue);
    while (!calls_so_far(&d->outcome)) sched_yield(); /* the work has ended. The rest of destroy waits for this thread */
}

/* Held work goes to the device with the host's signal. Before that thread has told of it the queue is destroyed, and the
   signals of the work end: they end once. */
static void test_destroy_now_ends_work_that_another_thread_has_just_issued(void **state)
{
    destruction d = {0};
    void *metal;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    metal = metal_retain(s.metal[1]);
    (void)SUBMIT(s.q[1], WAITS(at(s.a, 1)), BUFFERS(buffer_of(s.q[1])), SIGNALS(at(s.b, 1), at(s.c, 1)),
                 TELL(&d.outcome));
    d.queue = s.q[1];
    s.q[1] = NULL;
    assert_ok(gpusync_set_trace(s.device, destroy_at_issue, &d));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_true(d.begun);
    join(d.thread);
    assert_ok(gpusync_set_trace(s.device, NULL, NULL));
    assert_ended(&d.outcome, GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(error_at(s.b, 1).result, GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(error_at(s.c, 1).result, GPUSYNC_ERROR_DESTROYED);
    softmetal_finish_queue(metal);
    for (unsigned i = 1; i < 3; i++) drop_what_stays(gpusync_timeline_metal(s.t[i], NULL)); /* what it was to signal */
    drop_queue_that_stays(metal);
    metal_release(metal);
    close_stage(&s);
}

static struct {
    gpusync_queue *queue;
    pthread_t thread;
    unsigned tells;
} going;

static void tells(void *unused)
{
    (void)unused;
    PUT(&going.tells, 1);
}

/* Up to where it tells what it has taken off its list: there it has to wait for the thread that cancels. */
static void destroy_up_to_the_telling(void *unused)
{
    (void)unused;
    probe_at(PROBE_TELLS, NULL, 1, tells, NULL);
    going.thread = start(destroy_at_once, going.queue);
    while (!GET(&going.tells)) sched_yield();
}

/* Work is cancelled, and the queue of a ticket that it waits for goes: it has taken the wait off its list when the work is
   about to do so. How the wait ends does not matter any more, and the work stays until it was told. */
static void test_a_queue_that_goes_tells_work_that_is_just_given_up(void **state)
{
    outcome o = {0};
    gpusync_ticket ticket;
    void *metal;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    metal = metal_retain(s.metal[1]);
    ticket = commit_on(&s, 1);
    (void)SUBMIT(s.q[0], WAITS(after(s.q[1], ticket), at(s.a, 1)), BUFFERS(buffer_of(s.q[0])), TELL(&o));
    going.queue = s.q[1];
    going.tells = 0;
    probe_at(PROBE_UNLISTS, NULL, 1, destroy_up_to_the_telling, NULL);
    assert_ok(gpusync_cancel_held(s.q[0]));
    assert_true(going.tells);
    join(going.thread);
    s.q[1] = NULL;
    assert_ended(&o, GPUSYNC_ERROR_CANCELLED);
    assert_true(gpusync_is_idle(s.q[0]));
    softmetal_finish_queue(metal);
    metal_release(metal);
    close_stage(&s);
}

static void test_destroy_waits_for_work_whose_waits_are_on_their_way(void **state)
{
    outcome consumer = {0}, held = {0};
    pthread_t thread;
    void *slow;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 2);
    slow = buffer_of(s.q[0]);
    metal_retain(slow);
    softmetal_hang(slow);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(slow));
    hold_on(s.q[1], s.t[0], 1, &consumer);
    hold_on(s.q[1], s.t[0], 2, &held);
    thread = start(destroy_body, s.q[1]);
    assert_ended(&held, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(calls_of(&consumer), 0);
    softmetal_unhang(slow);
    metal_release(slow);
    join(thread);
    assert_int_equal(calls_of(&consumer), 1);
    assert_ended(&consumer, GPUSYNC_OK);
    s.q[1] = NULL;
    close_idle_stage(&s);
}

/* -- a device that goes ----------------------------------------------------------------------------------- */

static void test_the_loss_of_the_device_ends_what_is_held(void **state)
{
    outcome first = {0}, behind = {0}, other = {0}, strict = {0}, flying = {0};
    wait_job on_first, on_all;
    gpusync_ticket ticket, held;
    void *buffer, *late;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 3);
    buffer = buffer_of(s.q[2]);
    metal_retain(buffer);
    softmetal_hang(buffer);
    SUBMIT(s.q[2], SIGNALS(at(s.t[2], 1)), BUFFERS(buffer), TELL(&flying));
    held = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), TELL(&behind));
    hold_on(s.q[1], s.t[1], 1, &other);
    SUBMIT(s.q[1], WAITS(at(s.t[2], 1)), BUFFERS(buffer_of(s.q[1])), .flags = GPUSYNC_STRICT | GPUSYNC_UNORDERED,
           TELL(&strict));
    late = buffer_of(s.q[0]);
    wait_job_start(&on_first, s.q[0], held, GPUSYNC_FOREVER);
    wait_job_start(&on_all, s.q[1], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(s.device, 2);
    softmetal_remove_device(s.rig.metal_device);
    assert_true(wait_job_join(&on_first) < 0);
    assert_result(wait_job_join(&on_all), GPUSYNC_ERROR_DEVICE_LOST);
    await_call(&flying);
    await_call(&strict);
    await_call(&other);
    assert_ended(&first, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ended(&behind, GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(TRY_SUBMIT(s.q[0], &ticket, BUFFERS(late)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(held_on(s.device, s.q[0]) + held_on(s.device, s.q[1]), 0);
    metal_release(buffer);
    if (metal4_run()) /* until all is given up its signals may come, and the queue would stay for good */
        assert_result(gpusync_timeline_wait(s.t[0], 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    close_idle_stage(&s);
}

/* == what has ended is on no list ================================================================================ */

/* The next submission gets the memory of the last one, and the next link that of its link. Were that still listed, what
   the list is of would end the link of another submission. */
static gpusync_ticket hold_what_is_new(stage *s, void **buffer)
{
    *buffer = metal_retain(open_on(s, 2));
    return SUBMIT(s->q[2], WAITS(at(s->b, 1)), BUFFERS(*buffer), .flags = GPUSYNC_STRICT);
}

static void end_what_is_new(stage *s, void *buffer, gpusync_ticket ticket)
{
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    assert_int_equal(held_on(s->device, s->q[2]), 1);
    assert_ok(gpusync_timeline_signal(s->b, 1));
    finish(s, 2);
    assert_ok(gpusync_poll(s->q[2], ticket));
    metal_release(buffer);
}

static void test_a_signal_that_stayed_behind_another_one_and_was_cancelled_is_forgotten(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    assert_int_equal(held_on(s.device, s.q[1]), 1);
    assert_ok(gpusync_cancel_held(s.q[1]));
    ticket = hold_what_is_new(&s, &buffer);
    finish(&s, 0); /* what stayed behind that tries again */
    end_what_is_new(&s, buffer, ticket);
    close_stage(&s);
}

static void test_a_wait_of_work_that_was_left_in_flight_is_forgotten(void **state)
{
    gpusync_ticket ticket;
    void *buffer, *event, *metal;
    uint64_t base;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    event = gpusync_timeline_metal(s.a, &base);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)));
    assert_int_equal(held_on(s.device, s.q[1]), 0);
    metal = metal_retain(s.metal[1]);
    take_down_queue(&s, 1, true);
    ticket = hold_what_is_new(&s, &buffer);
    finish(&s, 0); /* the value that the work waited for */
    end_what_is_new(&s, buffer, ticket);
    softmetal_finish_queue(metal);
    drop_queue_that_stays(metal);
    drop_what_stays(event);
    metal_release(metal);
    close_stage(&s);
}

/* == a wait that turns to other code ============================================================================= */

/* The value was to come with an open buffer. Without that other code alone can bring it, which does not: the wait is over
   with the work, which the driver ends. */
static void test_a_wait_whose_signal_was_discarded_is_over_with_its_work(void **state)
{
    gpusync_timeline *t;
    gpusync_ticket ticket;
    void *event, *buffer, *waits;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no signals");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    t = timeline_over(s.device, &event);
    buffer = open_on(&s, 0);
    assert_ok(gpusync_encode_signal(s.q[0], buffer, at(t, 7)));
    waits = metal_retain(open_on(&s, 1));
    ticket = SUBMIT(s.q[1], WAITS(at(t, 5)), BUFFERS(waits));
    assert_int_equal(held_on(s.device, s.q[1]), 1);
    assert_ok(either_discard(s.q[0], buffer));
    assert_true(status_of(waits) >= COMMITTED);
    softmetal_time_out(softmetal_first_in_line(s.metal[1]));
    finish(&s, 1);
    assert_result(gpusync_poll(s.q[1], ticket), GPUSYNC_ERROR_EXECUTION);
    metal_release(waits);
    assert_ok(gpusync_timeline_destroy(t));
    metal_release(event);
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_long_chain_over_queues_goes_at_the_first_signal),
        cmocka_unit_test(test_a_signal_that_stayed_behind_another_one_and_was_cancelled_is_forgotten),
        cmocka_unit_test(test_a_wait_of_work_that_was_left_in_flight_is_forgotten),
        cmocka_unit_test(test_a_wait_whose_signal_was_discarded_is_over_with_its_work),
        cmocka_unit_test(test_a_long_chain_on_one_queue_goes_at_the_first_signal),
        cmocka_unit_test(test_a_long_chain_of_tickets_goes_at_the_first_signal),
        cmocka_unit_test(test_a_long_chain_fails_with_the_error_of_its_first_link),
        cmocka_unit_test(test_a_long_chain_ends_where_the_first_of_its_queues_is_cancelled),
        cmocka_unit_test(test_a_long_chain_that_has_run_is_told_of_when_its_first_link_is),
        cmocka_unit_test(test_held_work_is_never_issued_when_its_timeline_fails),
        cmocka_unit_test(test_held_work_gets_the_error_of_the_producer_that_was_killed),
        cmocka_unit_test(test_held_work_ends_with_the_first_failure_of_its_waits),
        cmocka_unit_test(test_work_on_the_device_ends_with_its_own_failure_before_those_of_its_waits),
        cmocka_unit_test(test_held_work_behind_a_value_that_was_reached_goes_before_the_failure),
        cmocka_unit_test(test_held_work_ends_with_the_timeline_of_a_value_that_no_work_is_to_signal),
        cmocka_unit_test(test_held_work_outlives_the_timeline_of_a_value_that_is_pending),
        cmocka_unit_test(test_work_in_flight_goes_on_with_the_event_of_a_timeline_that_went),
        cmocka_unit_test(test_held_work_for_a_signalled_value_behind_a_pending_signal_outlives_the_timeline),
        cmocka_unit_test(test_destroy_gives_up_what_is_held_and_what_waits_for_it),
        cmocka_unit_test(test_destroy_now_ends_what_depends_on_work_in_flight),
        cmocka_unit_test(test_destroy_now_of_the_waiting_side_takes_its_waits_back),
        cmocka_unit_test(test_a_failure_just_before_work_is_in_the_line_is_seen_there),
        cmocka_unit_test(test_destroy_now_ends_work_that_another_thread_has_just_issued),
        cmocka_unit_test(test_a_queue_that_goes_tells_work_that_is_just_given_up),
        cmocka_unit_test(test_destroy_waits_for_work_whose_waits_are_on_their_way),
        cmocka_unit_test(test_the_loss_of_the_device_ends_what_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
