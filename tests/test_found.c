/* test_found.c - faults of an early sketch of 0.5 that no other test looks for

   Each was found by an attack on the sketch, and was a slip that is easily made again. */
#include "kit.h"

/* The work of a submission without command buffers is its waits and its signals. */
typedef struct barrier_case {
    const char *name;
    bool reached, sent, unordered;
} barrier_case;

static void play_barrier(const barrier_case *c)
{
    stage_desc desc = {.queues = 2, .timelines = 2};
    stage s;
    note ended = {0}, done = {0};
    stage_open(&s, &desc);
    if (c->reached)
        signal_value(s.t[0], 1);
    if (c->sent)
        SUBMIT(s.q[1], BUFFERS(new_buffer(s.q[1])), SIGNALS(at(s.t[0], 1)), .flags = GPUSYNC_SUBMIT_ON_GPU);
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), .on_complete = remember, .user = &ended,
           .flags = c->unordered ? GPUSYNC_SUBMIT_UNORDERED : 0);
    gpusync_ticket behind = SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), BUFFERS(new_buffer(s.q[0])));
    on_done(at(s.t[1], 1), &done);
    if (!c->reached && !c->sent)
        signal_value(s.t[0], 1);
    finish_all(&s);
    assert_noted(&ended, GPUSYNC_OK);
    assert_ok(gpusync_poll(s.q[0], behind, NULL));
    assert_int_equal(value_of(s.t[1]), 1);
    assert_true(gpusync_is_done(s.q[0], GPUSYNC_EVERYTHING));
    assert_noted(&done, GPUSYNC_OK);
    stage_close(&s);
}

without_stage(test_S4_S7_a_submission_without_buffers_ends_and_signals)
{
    static const barrier_case cases[] = {
        {.name = "its value is reached", .reached = true},
        {.name = "Metal has its value", .sent = true},
        {.name = "it is held"},
        {.name = "UNORDERED, its value is reached", .reached = true, .unordered = true},
        {.name = "UNORDERED, Metal has its value", .sent = true, .unordered = true},
        {.name = "UNORDERED, it is held", .unordered = true},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        print_message("%s\n", cases[i].name);
        play_barrier(&cases[i]);
    }
}

/* A handler counts, whatever the status says at that time. */
on_stage(test_S4_work_is_well_though_its_status_turns_behind_the_handler)
{
    void *well = new_buffer(s->q[0]), *bad = new_buffer(s->q[0]);
    softmetal_fail_as(bad, SOFTMETAL_PAGE_FAULT, NULL);
    softmetal_status_after_handlers(well);
    softmetal_status_after_handlers(bad);
    gpusync_ticket first = commit(s->q[0], well);
    gpusync_ticket second = commit(s->q[0], bad);
    finish_next(s->q[0]);
    assert_ok(gpusync_poll(s->q[0], first, NULL));
    finish_next(s->q[0]);
    assert_result(gpusync_poll(s->q[0], second, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failures_of(s->q[0]), 1);
}

/* The handler of one buffer counts once for a ticket of several. */
on_stage(test_S2_a_handler_that_is_called_twice_ends_no_ticket_early)
{
    void *first = metal_retain(new_buffer(s->q[0]));
    void *second = new_buffer(s->q[0]);
    gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(first, second));
    unsigned last = softmetal_handler_count(first) - 1;
    softmetal_complete(first);
    softmetal_run_handler(first, last);
    softmetal_call_handler_again(first, last);
    assert_false(gpusync_is_done(s->q[0], ticket));
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    metal_release(first);
}

/* Metal keeps the block of a listener for a value that never comes, and the block keeps nothing. */
on_stage_with(test_R22_a_listener_whose_value_never_comes_keeps_no_timeline, .no_queue = true)
{
    long events = softmetal_live("shared_event");
    gpusync_timeline_desc desc = {.signalled_by_others = true};
    note ended = {0}, gone = {0};
    gpusync_timeline *t = timeline_from(s->device, &desc);
    on_done(at(t, 9), &ended);
    assert_result(gpusync_timeline_wait(t, 9, 0, NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_destroy_later(t, remember_destroyed, &gone));
    assert_noted(&ended, GPUSYNC_ERROR_DESTROYED);
    assert_noted(&gone, GPUSYNC_OK);
    /* One may be kept for the next timeline, until the device goes; the stage asks that nothing is left then. */
    assert_true(softmetal_live("shared_event") <= events + 1);
}

/* ... and leads to nothing when the value comes after the timeline has gone. */
on_stage_with(test_R22_a_listener_whose_value_comes_after_the_timeline_has_gone, .no_queue = true)
{
    void *event = metal_shared_event_new(s->metal_device);
    gpusync_timeline_desc desc = {.shared_event = event};
    note ended = {0};
    gpusync_timeline *t = timeline_from(s->device, &desc);
    on_done(at(t, 9), &ended);
    assert_ok(gpusync_timeline_destroy(t));
    metal_event_signal(event, 9);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_noted(&ended, GPUSYNC_ERROR_DESTROYED);
    metal_release(event);
    assert_ok(gpusync_device_destroy(s->device)); /* Metal has no block any more */
    s->device = NULL;
    assert_false(log_has(GPUSYNC_LOG_WARNING, "Metal still has blocks"));
}

/* Two callbacks whose values are armed in one, and told in the order of their values. */
on_stage_with(test_R18_each_value_of_other_code_is_listened_for, .no_queue = true, .timelines = 1,
              .timeline.signalled_by_others = true)
{
    note three = {0}, five = {0}, four = {0};
    on_done(at(s->t[0], 3), &three);
    on_done(at(s->t[0], 5), &five);
    other_code_signals(s->t[0], 3);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_noted(&three, GPUSYNC_OK);
    on_done(at(s->t[0], 4), &four);
    other_code_signals(s->t[0], 5);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_noted(&four, GPUSYNC_OK);
    assert_noted(&five, GPUSYNC_OK);
    assert_true(four.order < five.order);
}
