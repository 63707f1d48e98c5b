/* test_kit.c - what kit.h promises to the other tests: memory, parks, jobs, marks, notes, the log, the stage */
#include "kit.h"

/* -- memory -------------------------------------------------------------------------------------------------------- */

without_stage(test_memory_is_counted_and_refused_on_demand)
{
    kit_counts before = kit_now();
    void *first = kit_malloc(10);
    assert_non_null(first);
    assert_int_equal(kit_now().blocks, before.blocks + 1);
    assert_int_equal(kit_now().bytes, before.bytes + 10);
    memory_fail(2, false);
    void *second = kit_malloc(1);
    assert_non_null(second);
    assert_null(kit_malloc(1));
    assert_int_equal(kit_now().refusals, before.refusals + 1);
    kit_free(second);
    second = kit_malloc(1);
    assert_non_null(second);
    memory_fail(1, true);
    assert_null(kit_malloc(1));
    assert_null(kit_malloc(1));
    memory_fail(0, false);
    kit_free(second);
    kit_free(first);
    kit_free(NULL);
    assert_int_equal(kit_now().blocks, before.blocks);
    assert_int_equal(kit_now().bytes, before.bytes);
    assert_int_equal(kit_now().allocations, before.allocations + 6);
}

on_stage(test_gpusync_gets_its_memory_from_the_kit)
{
    gpusync_timeline *timeline = NULL;
    assert_true(kit_now().blocks > 0);
    memory_fail(1, true);
    assert_result(gpusync_timeline_create(s->device, NULL, &timeline), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_null(timeline);
    assert_true(kit_now().refusals > 0);
}

/* -- threads that sleep -------------------------------------------------------------------------------------------- */

on_stage(test_a_thread_that_sleeps_is_known_to)
{
    gpusync_ticket ticket = commit_new(s->q[0]);
    job first = {0}, second = {0};
    job_wait(&first, s->q[0], ticket, GPUSYNC_FOREVER);
    job_wait(&second, s->q[0], ticket, GPUSYNC_FOREVER);
    await_parked(2);
    assert_false(job_is_over(&first));
    assert_false(job_is_over(&second));
    assert_true(kit_now().parks >= 2);
    assert_true(kit_now().park_deadline > 0);
    assert_true(finish_next(s->q[0]));
    assert_ok(job_end(&first));
    assert_ok(job_end(&second));
    assert_true(job_is_over(&first));
    assert_int_equal(kit_now().parked, 0);
    assert_true(kit_now().unparks >= 2);
}

on_stage(test_a_wait_outlives_a_park_that_ends_early)
{
    gpusync_ticket ticket = commit_new(s->q[0]);
    job waiting = {0};
    job_wait(&waiting, s->q[0], ticket, GPUSYNC_FOREVER);
    await_parked(1);
    unsigned long before = kit_now().parks;
    end_parks();
    await_parks(before + 1);
    assert_false(job_is_over(&waiting));
    finish_all(s);
    assert_ok(job_end(&waiting));
}

on_stage_with(test_each_kind_of_job_gives_its_result, .timelines = 1, .queue = {.max_command_buffer_count = 2})
{
    gpusync_point points[2] = {at(s->t[0], 5), at(s->t[0], 1)};
    job value = {0}, many = {0}, device = {0}, room = {0};
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    gpusync_ticket ticket = commit(s->q[0], buffers[0]);
    job_value(&value, s->t[0], 1, GPUSYNC_FOREVER);
    job_many(&many, points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
    job_device(&device, s->device, GPUSYNC_FOREVER);
    job_buffer(&room, s->q[0], SECONDS(60));
    await_parked(4);
    signal_value(s->t[0], 1);
    assert_ok(job_end(&value));
    assert_ok(job_end(&many));
    assert_int_equal(many.which, 1);
    finish_all(s);
    assert_ok(job_end(&device));
    assert_ok(job_end(&room));
    assert_non_null(room.buffer);
    assert_ok(gpusync_command_buffer_discard(s->q[0], room.buffer));
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffers[1]));
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
}

/* -- the GPU ------------------------------------------------------------------------------------------------------- */

on_stage(test_marks_tell_what_the_gpu_ran)
{
    void *first = new_buffer(s->q[0]), *second = new_buffer(s->q[0]);
    mark(s, first, 1);
    mark(s, first, 2);
    mark(s, second, 3);
    commit(s->q[0], second);
    commit(s->q[0], first);
    assert_int_equal(marks(), 0);
    finish_all(s);
    assert_marks(3, 1, 2);
    forget_marks();
    assert_int_equal(marks(), 0);
}

on_stage_with(test_held_work_is_not_sent, .queues = 2, .timelines = 2)
{
    void *buffer = new_buffer(s->q[1]);
    gpusync_ticket ticket = SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(buffer), SIGNALS(at(s->t[1], 1)));
    assert_false(is_sent(buffer));
    finish_all(s);
    assert_result(gpusync_poll(s->q[1], ticket, NULL), GPUSYNC_NOT_READY);
    signal_value(s->t[0], 1);
    assert_true(is_sent(buffer));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[1], ticket, NULL));
    assert_int_equal(value_of(s->t[1]), 1);
    assert_false(finish_next(s->q[0]));
}

on_stage(test_a_failure_is_on_record_and_in_the_log)
{
    gpusync_ticket ticket = commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failures_of(s->q[0]), 1);
    assert_int_equal(failure_at(s->q[0], 0).failure, GPUSYNC_FAILURE_PAGE_FAULT);
    assert_int_equal(failure_at(s->q[0], 0).ticket, ticket);
    assert_int_equal(kit_now().log_lines, 1);
    assert_true(log_has(GPUSYNC_LOG_ERROR, "first"));
    assert_false(log_has(GPUSYNC_LOG_WARNING, ""));
}

/* -- callbacks ----------------------------------------------------------------------------------------------------- */

on_stage(test_notes_tell_what_callbacks_were_told)
{
    note notes[2] = {0};
    gpusync_ticket ticket = commit_failing(s->q[0], SOFTMETAL_OUT_OF_MEMORY);
    on_done(ticket_at(s->q[0], ticket), &notes[0]);
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &notes[1]);
    assert_int_equal(calls_of(&notes[0]), 0);
    settle(s);
    assert_noted(&notes[0], GPUSYNC_ERROR_EXECUTION);
    assert_noted(&notes[1], GPUSYNC_OK);
    assert_in_order(notes, 2);
    assert_true(notes[0].has_error);
    assert_int_equal(notes[0].error.ticket, ticket);
    assert_false(notes[1].has_error);
}

on_stage_with(test_callbacks_by_hand_are_told_and_counted, .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    note n = {0};
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &n);
    finish_all(s);
    assert_int_equal(calls_of(&n), 0);
    assert_true(kit_now().notifies > 0);
    assert_int_equal(run_callbacks(s), 1);
    assert_noted(&n, GPUSYNC_OK);
}

on_stage_with(test_the_end_of_an_object_is_noted, .timelines = 1)
{
    note n = {0};
    assert_ok(gpusync_timeline_destroy_later(s->t[0], remember_destroyed, &n));
    s->t[0] = NULL;
    settle(s);
    assert_noted(&n, GPUSYNC_OK);
}

/* -- the stage ----------------------------------------------------------------------------------------------------- */

on_stage_with(test_the_real_clock_settles, .queues = 2, .real = true, .threads = true, .spins = true)
{
    gpusync_ticket ticket = commit_new(s->q[0]);
    assert_ok(gpusync_wait(s->q[0], ticket, SECONDS(60), NULL));
    ticket = commit_new(s->q[1]);
    settle(s);
    assert_ok(gpusync_poll(s->q[1], ticket, NULL));
}

on_stage(test_a_stage_may_be_taken_down_by_the_test)
{
    assert_ok(gpusync_queue_destroy(s->q[0]));
    s->q[0] = NULL;
    assert_ok(gpusync_device_destroy(s->device));
    s->device = NULL;
    assert_int_equal(kit_now().blocks, 0);
}
