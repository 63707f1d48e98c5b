/* test_atomics_turns.c - the races of test_turns.c once more, with each atomic operation a point, and races that have no
   other points: what a thread may read without a lock

   Contents
     >>loads    is_done, in_flight, the record behind them
     >>asked    callbacks on a dispatch queue
     >>targets  looks at the whole device, while objects of it go */
#define GPUSYNC_IMPLEMENTATION
#define WITH_ATOMICS
#include "test_turns.c"

/* ------------------------------------------------------------------------------------------------------ >>loads -- */

static void end_one(void *number)
{
    softmetal_finish(buffers[*(int *)number]);
}

/* Each work is committed before the one before it ends: the queue is never idle. The second may be UNORDERED. */
static void commit_and_end(void *unordered)
{
    for (int i = 1; i < 3; i++) {
        if (i == 1 && unordered)
            submit_buffer(stage.q[0], buffers[i], NULL, NULL, NULL, GPUSYNC_SUBMIT_UNORDERED);
        else
            tickets[i] = commit_buffer(stage.q[0], buffers[i]);
        softmetal_finish(buffers[i - 1]);
    }
}

static void ask(void *unordered)
{
    for (int i = 0; i < 2; i++) {
        turns_check(!gpusync_is_done(stage.q[0], GPUSYNC_EVERYTHING));
        turns_check(gpusync_in_flight(stage.q[0]) >= 1);
        turns_check(!gpusync_is_done(stage.q[0], unordered ? 2 : 3));
        bool first = gpusync_is_done(stage.q[0], 1), next = !unordered && gpusync_is_done(stage.q[0], 2);
        turns_check(!first || gpusync_is_done(stage.q[0], 1));
        turns_check(!next || gpusync_is_done(stage.q[0], 1));
        see(next ? 2 : first);
    }
}

static void set_up_busy(void *unordered)
{
    begin(1, 0);
    for (int i = 0; i < 3; i++)
        buffers[i] = make_buffer(stage.q[0]);
    tickets[0] = commit_buffer(stage.q[0], buffers[0]);
    turns_add("commits", commit_and_end, unordered);
    turns_add("asks", ask, unordered);
}

static void tear_down_busy(void *unused)
{
    softmetal_finish(buffers[2]);
    turns_check(gpusync_is_done(stage.q[0], GPUSYNC_EVERYTHING));
    turns_expect(gpusync_in_flight(stage.q[0]), 0);
    close_stage();
}

without_stage(test_S2_a_busy_queue_never_looks_idle)
{
    race("busy", set_up_busy, tear_down_busy, NULL, 1, 300, 7);
    race("busy and UNORDERED", set_up_busy, tear_down_busy, numbers, 1, 300, 3);
}

/* Once is_done is true, the record is there, and a poll and a wait tell of the failure; a value that is reached by
   sight of the lock-free load is reached for each call. */
static void ask_for_the_record(void *unused)
{
    for (int i = 0; i < 3; i++) {
        bool done = gpusync_is_done(stage.q[0], 2);
        see(done);
        if (!done)
            continue;
        turns_expect(records_of(stage.q[0]), 1);
        turns_expect(gpusync_poll(stage.q[0], 2, NULL), GPUSYNC_ERROR_EXECUTION);
        turns_expect(gpusync_wait(stage.q[0], 2, 0, NULL), GPUSYNC_ERROR_EXECUTION);
        turns_expect(gpusync_wait(stage.q[0], 1, 0, NULL), GPUSYNC_OK);
        turns_expect(gpusync_timeline_wait(stage.t[0], 1, 0, NULL), GPUSYNC_OK);
        turns_expect(gpusync_timeline_wait(stage.t[0], 2, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    }
}

static void set_up_record(void *unused)
{
    begin(1, 1);
    for (int i = 0; i < 2; i++) {
        const gpusync_point signal = gpusync_at_value(stage.t[0], (uint64_t)i + 1);
        buffers[i] = make_buffer(stage.q[0]);
        if (i)
            softmetal_fail(buffers[i], NULL, 3, NULL);
        tickets[i] = submit_buffer(stage.q[0], buffers[i], NULL, &signal, NULL, 0);
    }
    turns_add("asks", ask_for_the_record, NULL);
    turns_gpus(1);
}

without_stage(test_S4_the_record_comes_before_is_done)
{
    race("record", set_up_record, close_plainly, NULL, 1, 300, 3);
}

/* The second begins with the loss, for a thread that sees the loss without the lock, too. */
static void poll_across_the_loss(void *unused)
{
    for (int i = 0; i < 3; i++) {
        see(gpusync_device_is_lost(stage.device));
        turns_expect(gpusync_poll(stage.q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_NOT_READY);
    }
}

/* A poll of everything asks further than its loads, and looks at the loss. */
static void set_up_lost(void *unused)
{
    begin(2, 0);
    for (int i = 0; i < 2; i++) {
        buffers[i] = make_buffer(stage.q[i]);
        tickets[i] = commit_buffer(stage.q[i], buffers[i]);
    }
    softmetal_fail_as(buffers[1], SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    turns_add("ends", end_one, &numbers[1]);
    turns_add("polls", poll_across_the_loss, NULL);
}

static void tear_down_lost(void *unused)
{
    softmetal_finish(buffers[0]);
    close_stage();
}

without_stage(test_T6_no_call_tells_of_the_loss_before_its_second)
{
    race("lost", set_up_lost, tear_down_lost, NULL, 1, 4000, 3);
}

/* One thread is to unpark two sleepers, and the first of them sleeps again, for its other point, and is to be unparked
   by another thread: each wakes. */
static bool one_sleeps(void *unused)
{
    return turns_state_of("sleeps, too") == TURNS_PARKED;
}

static void sleep_for_two_queues(void *unused)
{
    const gpusync_point both[2] = {gpusync_at_ticket(stage.q[0], 1), gpusync_at_ticket(stage.q[1], 1)};
    turns_until(one_sleeps, unused);
    turns_expect(gpusync_wait_many(both, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL), GPUSYNC_OK);
}

static void sleep_for_one_queue(void *unused)
{
    turns_expect(wait_for_ever(stage.q[0], 1), GPUSYNC_OK);
}

enum { EARLY = 20 };

static bool both_are_listed(void *unused)
{
    return stage.early_parks < EARLY;
}

static void end_when_both_are_listed(void *number)
{
    turns_until(both_are_listed, NULL);
    end_one(number);
}

static void set_up_two_lists(void *unused)
{
    begin(2, 0);
    for (int i = 0; i < 2; i++) {
        buffers[i] = make_buffer(stage.q[i]);
        commit_buffer(stage.q[i], buffers[i]);
    }
    stage.early_parks = EARLY;
    turns_add("sleeps", sleep_for_two_queues, NULL);
    turns_add("sleeps, too", sleep_for_one_queue, NULL);
    turns_add("ends 0", end_when_both_are_listed, &numbers[0]);
    turns_add("ends 1", end_one, &numbers[1]);
}

without_stage(test_R23_a_sleeper_that_sleeps_again_keeps_no_other_one_asleep)
{
    const turns_race lists = {.name = "two lists", .setup = set_up_two_lists, .teardown = close_plainly, .changes = 8};
    run_race(&lists, 1, 4000, 0);
}

/* ------------------------------------------------------------------------------------------------------ >>asked -- */

/* Each callback that becomes due is run, though no other call follows: the one that is asked for may be about to end. */
static void ask_for_callback(void *unused)
{
    turns_expect(gpusync_on_done(gpusync_at_ticket(stage.q[0], 1), note_outcome, &outcomes[2]), GPUSYNC_OK);
}

static bool are_called(void *unused)
{
    return outcomes[0].calls && outcomes[1].calls && outcomes[2].calls;
}

static void await_callbacks(void *unused)
{
    turns_until(are_called, unused);
}

static void set_up_asked(void *unused)
{
    gpusync_device_desc desc = race_device();
    forget();
    memset(&stage, 0, sizeof stage);
    desc.callback_mode = GPUSYNC_CALLBACKS_QUEUED;
    desc.notify = NULL;
    turns_expect(gpusync_device_create(&desc, &stage.device), GPUSYNC_OK);
    for (int i = 0; i < 2; i++) {
        open_queue(i, NULL);
        buffers[i] = make_buffer(stage.q[i]);
        submit_buffer(stage.q[i], buffers[i], NULL, NULL, &outcomes[i], 0);
    }
    turns_add("ends 0", end_one, &numbers[0]);
    turns_add("ends 1", end_one, &numbers[1]);
    turns_add("asks", ask_for_callback, NULL);
    turns_add("awaits", await_callbacks, NULL);
    turns_workers();
}

static void tear_down_asked(void *unused)
{
    for (int i = 0; i < 3; i++) {
        turns_expect(outcomes[i].calls, 1);
        turns_expect(outcomes[i].result, GPUSYNC_OK);
    }
    close_stage();
}

without_stage(test_R25_a_callback_that_is_due_is_run)
{
    race("asked", set_up_asked, tear_down_asked, NULL, 1, 300, 0);
}

/* ---------------------------------------------------------------------------------------------------- >>targets -- */

/* gpusync_device_run_callbacks and gpusync_device_wait go through all objects, while one is destroyed, and another one
   later. */
static void look_everywhere(void *unused)
{
    turns_expect(gpusync_device_run_callbacks(stage.device, 0, NULL), GPUSYNC_OK);
    turns_expect(gpusync_device_wait(stage.device, GPUSYNC_FOREVER, NULL), GPUSYNC_OK);
}

static void destroy_now(void *unused)
{
    turns_expect(gpusync_queue_destroy(stage.q[0]), GPUSYNC_OK);
    turns_expect(gpusync_timeline_destroy(stage.t[0]), GPUSYNC_OK);
    stage.q[0] = NULL;
    stage.t[0] = NULL;
}

static void destroy_then(void *unused)
{
    turns_expect(gpusync_queue_destroy_later(stage.q[1], count_gone, &gones[QUEUE_GONE]), GPUSYNC_OK);
    stage.q[1] = NULL;
}

static void set_up_targets(void *unused)
{
    begin(3, 1);
    memset(gones, 0, sizeof gones);
    for (int i = 0; i < 3; i++)
        commit_buffer(stage.q[i], make_buffer(stage.q[i]));
    turns_add("looks", look_everywhere, NULL);
    turns_add("destroys", destroy_now, NULL);
    turns_add("destroys later", destroy_then, NULL);
    turns_gpus(3);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_targets(void *unused)
{
    turns_expect(gones[QUEUE_GONE], 1);
    close_stage();
}

without_stage(test_R24_a_look_everywhere_meets_objects_that_go)
{
    race("targets", set_up_targets, tear_down_targets, NULL, 1, 300, 0);
}
