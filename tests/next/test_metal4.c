/* test_metal4.c - queues of Metal 4: R29, and what differs there */
#include "kit.h"

/* A recorded command buffer, whose run the steps of softmetal take. The test releases both. */
typedef struct recording {
    void *buffer, *allocator;
} recording;

static recording record(stage *s, gpusync_queue *queue)
{
    recording r = {metal4_buffer_new(s->metal_device), metal4_allocator_new(s->metal_device)};
    metal4_begin(r.buffer, r.allocator);
    metal4_end(r.buffer);
    softmetal_prepare_run(r.buffer, gpusync_queue_metal(queue));
    return r;
}

static void drop(recording r)
{
    metal_release(r.buffer);
    metal_release(r.allocator);
}

static void test_R29_a_commit_ends_with_its_feedback(void **state)
{
    stage *s = stage_of(state);
    recording r = record(s, s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], r.buffer);
    assert_false(gpusync_is_done(s->q[0], ticket));
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    assert_true(finish_next(s->q[0]));
    assert_true(gpusync_is_done(s->q[0], ticket));
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_ok(gpusync_queue_destroy(s->q[0]));
    s->q[0] = NULL;
    drop(r);
}

static void test_R29_what_is_not_supported(void **state)
{
    stage *s = stage_of(state);
    gpusync_queue *plain = NULL;
    recording r = record(s, s->q[0]);
    void *buffer = NULL, *legacy;
    gpusync_ticket ticket = 7;
    assert_ok(gpusync_queue_create(s->device, NULL, &plain));
    legacy = new_buffer(plain);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), GPUSYNC_ERROR_UNSUPPORTED);
    assert_null(buffer);
    assert_result(gpusync_encode_wait(s->q[0], r.buffer, at(s->t[0], 1)), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_encode_signal(s->q[0], r.buffer, at(s->t[0], 1)), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_commit_marker(s->q[0], NULL, &ticket), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_commit(s->q[0], legacy, &ticket), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_commit(plain, r.buffer, &ticket), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_encode_wait(plain, r.buffer, at(s->t[0], 1)), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_commit_marker(plain, r.buffer, &ticket), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(TRY_SUBMIT(plain, &ticket, BUFFERS(r.buffer)), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(TRY_SUBMIT(s->q[0], &ticket, BUFFERS(r.buffer, legacy)), GPUSYNC_ERROR_UNSUPPORTED);
    assert_int_equal(ticket, 7);
    assert_ok(gpusync_queue_destroy(plain));
    drop(r);
}

static void test_R29_points_pass_between_both_kinds_of_queue(void **state)
{
    stage *s = stage_of(state);
    gpusync_queue *plain = NULL;
    recording r = record(s, s->q[0]), r2 = record(s, s->q[0]);
    gpusync_ticket tickets[3];
    void *buffer;
    assert_ok(gpusync_queue_create(s->device, NULL, &plain));
    buffer = new_buffer(plain);
    tickets[0] = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(r.buffer), SIGNALS(at(s->t[0], 2)));
    assert_false(finish_next(s->q[0])); /* it is held */
    encode_wait(plain, buffer, at(s->t[0], 2));
    tickets[1] = commit(plain, buffer);
    tickets[2] = SUBMIT(s->q[0], WAITS(ticket_at(plain, tickets[1])), BUFFERS(r2.buffer));
    signal_value(s->t[0], 1);
    assert_true(finish_next(s->q[0]));
    assert_int_equal(value_of(s->t[0]), 2);
    assert_true(finish_next(plain));
    assert_true(finish_next(s->q[0]));
    for (int i = 0; i < 3; i++) assert_ok(gpusync_poll(i == 1 ? plain : s->q[0], tickets[i], NULL));
    assert_ok(gpusync_queue_destroy(plain));
    drop(r);
    drop(r2);
}

/* The feedback comes, and the queue has not made its signal yet: its event and the queue stay until then, also when the
   host or another queue has passed the value. */
static void test_R29_what_a_signal_uses_stays_until_it_is_made(void **state)
{
    stage *s = stage_of(state);
    unsigned passed;
    for (passed = 0; passed < 2; passed++) {
        gpusync_queue_desc desc = {.metal4 = true};
        gpusync_timeline *timeline = new_timeline(s->device);
        gpusync_queue *queue = NULL;
        softmetal_quirks quirks;
        recording r;
        void *metal;
        long events = softmetal_live("shared_event");
        assert_ok(gpusync_queue_create(s->device, &desc, &queue));
        r = record(s, queue);
        metal = metal_retain(gpusync_queue_metal(queue));
        softmetal_get_quirks(&quirks);
        quirks.signals_late = true;
        softmetal_set_quirks(&quirks);
        SUBMIT(queue, BUFFERS(r.buffer), SIGNALS(at(timeline, 1)));
        assert_true(finish_next(queue));
        assert_int_equal(value_of(timeline), 1); /* its work has succeeded */
        if (passed) signal_value(timeline, 2);
        assert_ok(gpusync_queue_destroy(queue));
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_true(softmetal_retain_count(metal) > 1);
        assert_int_equal(softmetal_live("shared_event"), events + 1); /* the queue's own, too */
        quirks.signals_late = false;
        softmetal_set_quirks(&quirks);
        assert_true(softmetal_settle_listeners(SECONDS(60)));
        drop(r);
        assert_int_equal(softmetal_retain_count(metal), 1);
        metal_release(metal);
    }
}

/* Metal 4 gives a wait up and runs the work. */
static void test_R29_a_wait_that_metal_gave_up_fails_the_work(void **state)
{
    stage *s = stage_of(state);
    gpusync_timeline_desc others = {.signalled_by_others = true};
    gpusync_timeline *timeline = NULL;
    recording r = record(s, s->q[0]);
    gpusync_ticket ticket;
    assert_ok(gpusync_timeline_create(s->device, &others, &timeline));
    ticket = SUBMIT(s->q[0], WAITS(at(timeline, 1)), BUFFERS(r.buffer), SIGNALS(at(s->t[0], 1)));
    softmetal_time_out(r.buffer);
    assert_true(finish_next(s->q[0]));
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failure_at(s->q[0], 0).failure, GPUSYNC_FAILURE_GPU_TIMEOUT);
    assert_true(failure_at(s->q[0], 0).ran);
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_timeline_destroy(timeline));
    drop(r);
}

static void test_R29_room_counts_tickets(void **state)
{
    stage *s = stage_of(state);
    recording r[4];
    gpusync_ticket ticket = 7;
    unsigned i;
    for (i = 0; i < 4; i++) r[i] = record(s, s->q[0]);
    commit(s->q[0], r[0].buffer);
    SUBMIT(s->q[0], BUFFERS(r[1].buffer, r[2].buffer));
    assert_result(gpusync_commit(s->q[0], r[3].buffer, &ticket), GPUSYNC_ERROR_QUEUE_FULL);
    assert_int_equal(ticket, 7);
    assert_true(finish_next(s->q[0]));
    commit(s->q[0], r[3].buffer);
    finish_all(s);
    for (i = 0; i < 4; i++) drop(r[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        on_stage_with(test_R29_a_commit_ends_with_its_feedback, .queue.metal4 = true),
        on_stage_with(test_R29_what_is_not_supported, .queue.metal4 = true, .timelines = 1),
        on_stage_with(test_R29_points_pass_between_both_kinds_of_queue, .queue.metal4 = true, .timelines = 1),
        on_stage(test_R29_what_a_signal_uses_stays_until_it_is_made),
        on_stage_with(test_R29_a_wait_that_metal_gave_up_fails_the_work, .queue.metal4 = true, .timelines = 1),
        on_stage_with(test_R29_room_counts_tickets, .queue = {.metal4 = true, .max_command_buffer_count = 2}),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
