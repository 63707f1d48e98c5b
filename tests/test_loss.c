/* test_loss.c - T6: what becomes of everything when the device is lost

   q[0] has work that hangs: the manual clock does not end it. q[1] has the work whose failure tells of the loss. Time
   stands still, or passes as the thread that waits sleeps: still.h. "The second": from one second after the loss on. */
#define GPUSYNC_IMPLEMENTATION
#include "still.h"

#define SECOND SECONDS(1)
#define SLICE MS(400) /* the longest time between two looks of a wait that sleeps: T7 */

#define by_hand(parking) {.callback_mode = GPUSYNC_CALLBACKS_MANUAL, .hooks = &(parking)}

static uint64_t lost_at;
static gpusync_error loss; /* the failure that told of it */

static void lose_device(stage *s)
{
    gpusync_ticket ticket = commit_failing(s->q[1], SOFTMETAL_SUBMISSIONS_IGNORED);
    while (finish_next(s->q[1])) {}
    assert_result(gpusync_poll(s->q[1], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_true(gpusync_device_is_lost(s->device));
    lost_at = GET(&still_now);
    loss = failure_at(s->q[1], 0);
}

/* R38: whoever is told of the loss is told why. */
static void assert_is_loss(const gpusync_error *error)
{
    assert_result(error->result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(error->failure, GPUSYNC_FAILURE_ACCESS_REVOKED);
    assert_int_equal(error->code, loss.code);
    assert_true(loss.domain[0] && loss.message[0]);
    assert_string_equal(error->domain, loss.domain);
    assert_string_equal(error->message, loss.message);
    assert_false(error->transient);
}

/* -- what loses a device ------------------------------------------------------------------------------------------ */

/* By which failures, R14 tells: test_failures. */

/* Metal often tells of the loss in the second place: one buffer faults, and what comes behind it is ignored. A look
   finds it, too. */
without_stage(test_T6_a_loss_behind_another_failure_of_the_same_ticket_loses_the_device)
{
    for (unsigned lost_handlers = 0; lost_handlers < 2; lost_handlers++) {
        stage s;
        stage_open(&s, &(stage_desc){0});
        void *first = new_buffer(s.q[0]), *second = new_buffer(s.q[0]);
        softmetal_fail_as(first, SOFTMETAL_PAGE_FAULT, NULL);
        softmetal_fail_as(second, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
        if (lost_handlers)
            softmetal_lose_handlers(second);
        SUBMIT(s.q[0], BUFFERS(first, second));
        finish_all(&s);
        assert_result(gpusync_poll(s.q[0], 1, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(failure_at(s.q[0], 0).failure, GPUSYNC_FAILURE_PAGE_FAULT);
        assert_true(gpusync_device_is_lost(s.device));
        assert_true(log_has(GPUSYNC_LOG_ERROR, "page fault") && log_has(GPUSYNC_LOG_ERROR, "the device is lost"));
        assert_int_equal(kit_now().log_lines, 2);
        stage_close(&s);
    }
}

on_stage(test_T6_a_removed_device_is_lost)
{
    commit_new(s->q[0]);
    softmetal_remove_device(s->metal_device);
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failure_at(s->q[0], 0).failure, GPUSYNC_FAILURE_DEVICE_REMOVED);
    assert_true(gpusync_device_is_lost(s->device));
    assert_false(gpusync_device_is_lost(NULL));
}

/* T2: what other code committed tells of the loss, through the marker behind it. */
on_stage(test_T6_a_marker_behind_a_buffer_that_tells_of_the_loss_loses_the_device)
{
    void *others = foreign_buffer(s->q[0]);
    gpusync_ticket marker = 0;
    softmetal_fail_as(others, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    metal_commit(others);
    assert_ok(gpusync_commit_marker(s->q[0], others, &marker));
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], marker, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failure_at(s->q[0], 0).failure, GPUSYNC_FAILURE_ACCESS_REVOKED);
    assert_true(gpusync_device_is_lost(s->device));
    metal_release(others);
}

/* Another device of the program's goes on, and a new one works. */
on_stage_with(test_T6_the_loss_of_a_device_leaves_others_alone, .queues = 2)
{
    gpusync_device *others[2] = {NULL, NULL};
    gpusync_queue *queues[2] = {NULL, NULL};
    assert_ok(gpusync_device_create(NULL, &others[0]));
    assert_ok(gpusync_queue_create(others[0], NULL, &queues[0]));
    lose_device(s);
    assert_ok(gpusync_device_create(NULL, &others[1]));
    assert_ok(gpusync_queue_create(others[1], NULL, &queues[1]));
    for (int i = 0; i < 2; i++) {
        gpusync_ticket ticket = commit_new(queues[i]);
        assert_false(gpusync_device_is_lost(others[i]));
        assert_true(finish_next(queues[i]));
        assert_ok(gpusync_wait(queues[i], ticket, GPUSYNC_FOREVER, NULL));
        assert_ok(gpusync_queue_destroy(queues[i]));
        assert_ok(gpusync_device_destroy(others[i]));
    }
}

/* -- new work ----------------------------------------------------------------------------------------------------- */

on_stage_with(test_T6_new_work_is_refused, .queues = 2, .timelines = 1)
{
    void *open = new_buffer(s->q[0]), *foreign = foreign_buffer(s->q[0]);
    void *buffer = open;
    gpusync_ticket ticket = 77;
    gpusync_queue *queue = s->q[0];
    gpusync_timeline *timeline = s->t[0];
    note n = {0};
    lose_device(s);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(buffer);
    assert_result(gpusync_commit(s->q[0], open, &ticket), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_commit(s->q[0], foreign, &ticket), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(TRY_SUBMIT(s->q[0], &ticket, .on_complete = remember, .user = &n), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_commit_marker(s->q[0], NULL, &ticket), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_encode_wait(s->q[0], open, at(s->t[0], 1)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_encode_signal(s->q[0], open, at(s->t[0], 1)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_queue_create(s->device, NULL, &queue), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(queue);
    assert_result(gpusync_timeline_create(s->device, NULL, &timeline), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(timeline);
    assert_int_equal(ticket, 77);
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
    assert_false(is_sent(open) || is_sent(foreign));
    assert_ok(gpusync_command_buffer_discard(s->q[0], open));
    metal_release(foreign);
    settle(s);
    assert_int_equal(calls_of(&n), 0);
}

/* -- work that Metal has ------------------------------------------------------------------------------------------ */

on_stage_with(test_T6_work_that_metal_has_goes_on, .queues = 2, .device = by_hand(passing_hooks))
{
    const uint64_t waits[] = {0, SECOND - 1, SECONDS(3600)};
    note notes[LENGTH(waits)];
    memset(notes, 0, sizeof notes);
    for (size_t i = 0; i < LENGTH(waits); i++)
        on_done(ticket_at(s->q[0], commit_new(s->q[0])), &notes[i]);
    lose_device(s);
    for (size_t i = 0; i < LENGTH(waits); i++) {
        const gpusync_ticket ticket = (gpusync_ticket)i + 1;
        pass(waits[i]);
        assert_false(gpusync_is_done(s->q[0], ticket));
        assert_true(finish_next(s->q[0]));
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL));
        assert_true(gpusync_is_done(s->q[0], ticket));
        run_callbacks(s);
        assert_noted(&notes[i], GPUSYNC_OK);
    }
    assert_int_equal(failures_of(s->q[0]), 0);
}

on_stage_with(test_T6_work_that_fails_after_the_loss_has_its_own_error, .queues = 2)
{
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    lose_device(s);
    pass(2 * SECOND);
    assert_true(finish_next(s->q[0]));
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failure_at(s->q[0], 0).failure, GPUSYNC_FAILURE_PAGE_FAULT);
}

on_stage_with(test_T6_a_value_that_comes_after_the_second_is_reached, .queues = 2, .timelines = 1)
{
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 1)));
    lose_device(s);
    pass(SECOND);
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(value_of(s->t[0]), 0);
    assert_true(finish_next(s->q[0]));
    assert_ok(gpusync_timeline_wait(s->t[0], 1, 0, NULL));
    assert_int_equal(value_of(s->t[0]), 1);
}

/* -- the second --------------------------------------------------------------------------------------------------- */

static gpusync_error told;
static const gpusync_wait_options telling = {.error = &told};

static gpusync_result ask_poll(stage *s) { return gpusync_poll(s->q[0], 1, NULL); }
static gpusync_result ask_poll_all(stage *s) { return gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL); }
static gpusync_result ask_wait(stage *s) { return gpusync_wait(s->q[0], 1, 0, &telling); }
static gpusync_result ask_wait_all(stage *s) { return gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, &telling); }
static gpusync_result ask_value(stage *s) { return gpusync_timeline_wait(s->t[0], 1, 0, &telling); }

static gpusync_result ask_many(stage *s, gpusync_wait_for how)
{
    const gpusync_point points[] = {ticket_at(s->q[1], 0), ticket_at(s->q[0], 1), at(s->t[0], 1)};
    size_t which = 99;
    gpusync_result result = gpusync_wait_many(how == GPUSYNC_WAIT_ANY ? points + 1 : points,
                                              how == GPUSYNC_WAIT_ANY ? 2 : 3, how, 0, &telling, &which);
    assert_int_equal(which, result == GPUSYNC_ERROR_DEVICE_LOST ? how != GPUSYNC_WAIT_ANY
                            : how == GPUSYNC_WAIT_ANY           ? 2
                                                                : 3);
    return result;
}

static gpusync_result ask_all(stage *s) { return ask_many(s, GPUSYNC_WAIT_ALL); }
static gpusync_result ask_any(stage *s) { return ask_many(s, GPUSYNC_WAIT_ANY); }
static gpusync_result ask_all_or_failure(stage *s) { return ask_many(s, GPUSYNC_WAIT_ALL_OR_FAILURE); }

/* The device's own: the culprit's failure is told first, so that what is left is the work that hangs. */
static gpusync_result ask_device(stage *s)
{
    gpusync_result first = gpusync_wait(s->q[1], GPUSYNC_EVERYTHING, 0, NULL);
    assert_true(first == GPUSYNC_ERROR_EXECUTION || first == GPUSYNC_OK);
    return gpusync_device_wait(s->device, 0, &telling);
}

on_stage_with(test_T6_R38_waits_and_polls_tell_of_the_loss_after_a_second, .queues = 2, .timelines = 1)
{
    static const struct {
        gpusync_result (*ask)(stage *s);
        gpusync_result before;
    } rows[] = {
        {ask_poll, GPUSYNC_NOT_READY}, {ask_poll_all, GPUSYNC_NOT_READY}, {ask_wait, GPUSYNC_TIMEOUT},
        {ask_wait_all, GPUSYNC_TIMEOUT}, {ask_value, GPUSYNC_TIMEOUT}, {ask_all, GPUSYNC_TIMEOUT},
        {ask_any, GPUSYNC_TIMEOUT}, {ask_all_or_failure, GPUSYNC_TIMEOUT}, {ask_device, GPUSYNC_TIMEOUT},
    };
    commit_new(s->q[0]);
    pass(SECONDS(5));
    lose_device(s);
    for (size_t i = 0; i < LENGTH(rows); i++)
        assert_result(rows[i].ask(s), rows[i].before);
    pass(SECOND - 1);
    for (size_t i = 0; i < LENGTH(rows); i++)
        assert_result(rows[i].ask(s), rows[i].before);
    pass(1);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        memset(&told, 0, sizeof told);
        assert_result(rows[i].ask(s), GPUSYNC_ERROR_DEVICE_LOST);
        if (rows[i].before == GPUSYNC_TIMEOUT)
            assert_is_loss(&told);
    }
    assert_false(gpusync_is_done(s->q[0], 1));
    assert_int_equal(gpusync_in_flight(s->q[0]), 1);
    assert_int_equal(failures_of(s->q[0]), 0);
    finish_all(s);
    assert_true(gpusync_is_done(s->q[0], 1));
    assert_ok(ask_poll(s));
    assert_ok(ask_wait_all(s));
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL));
}

enum { SLEEPERS = 5 };

static void begin_sleepers(stage *s, job jobs[SLEEPERS], const gpusync_point points[2])
{
    job_wait(&jobs[0], s->q[0], 1, GPUSYNC_FOREVER);
    job_wait(&jobs[1], s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    job_value(&jobs[2], s->t[0], 1, GPUSYNC_FOREVER);
    job_many(&jobs[3], points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
    job_buffer(&jobs[4], s->q[0], GPUSYNC_FOREVER);
    await_parked(SLEEPERS);
}

/* Each looks once more, and sleeps again. */
static void have_sleepers_look(unsigned n)
{
    unsigned long before = kit_now().parks;
    end_parks();
    await_parks(before + n);
    await_parked(n);
}

on_stage_with(test_T6_waits_that_sleep_end_after_a_second, .queues = 2, .timelines = 1,
              .device = by_hand(patient_hooks), .queue = {.max_command_buffer_count = 2})
{
    const gpusync_point points[2] = {ticket_at(s->q[0], 1), at(s->t[0], 1)};
    job jobs[SLEEPERS] = {0};
    commit_new(s->q[0]);
    commit_new(s->q[0]); /* q[0] is full */
    begin_sleepers(s, jobs, points);
    lose_device(s);
    assert_result(job_end(&jobs[4]), GPUSYNC_ERROR_DEVICE_LOST); /* room for new work, which is refused at once */
    assert_null(jobs[4].buffer);
    have_sleepers_look(SLEEPERS - 1);
    pass(SECOND - 1);
    have_sleepers_look(SLEEPERS - 1);
    for (size_t i = 0; i < SLEEPERS - 1; i++)
        assert_false(job_is_over(&jobs[i]));
    pass(1);
    end_parks();
    for (size_t i = 0; i < SLEEPERS - 1; i++) {
        assert_result(job_end(&jobs[i]), GPUSYNC_ERROR_DEVICE_LOST);
        assert_is_loss(&jobs[i].error);
    }
}

/* Alone: nothing but its own slices has it look. */
on_stage_with(test_T6_a_wait_that_sleeps_finds_the_second_by_itself, .queues = 2, .device = by_hand(passing_hooks))
{
    commit_new(s->q[0]);
    lose_device(s);
    assert_result(gpusync_wait(s->q[0], 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_in_range(GET(&still_now) - lost_at, SECOND, SECOND + SLICE);
    assert_int_equal(kit_now().log_lines, 2); /* F8: the failure and the loss; the wait has no limit that passed */
}

/* The loss itself is found by the look of a wait: Metal has lost the handler that would have told. */
on_stage_with(test_T6_a_wait_that_sleeps_finds_the_loss, .queues = 2, .device = by_hand(passing_hooks))
{
    void *culprit = new_buffer(s->q[1]);
    const uint64_t began = GET(&still_now);
    commit_new(s->q[0]);
    softmetal_fail_as(culprit, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    softmetal_lose_handlers(culprit);
    commit(s->q[1], culprit);
    finish_next(s->q[1]);
    assert_false(gpusync_device_is_lost(s->device));
    assert_result(gpusync_wait(s->q[0], 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_in_range(GET(&still_now) - began, SECOND, SECOND + 2 * SLICE);
}

/* The first failure of everything is yet to be told when such a wait ends with the loss, and not with all work. */
on_stage_with(test_T6_R27_a_wait_that_ends_with_the_loss_tells_of_no_failure, .queues = 2,
              .device = by_hand(passing_hooks))
{
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    assert_true(finish_next(s->q[0]));
    commit_new(s->q[0]);
    lose_device(s);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(finish_next(s->q[0]));
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL));
}

/* Nor does one for handlers, though the work has settled: its handler is to come. */
on_stage_with(test_T6_R27_R28_a_wait_for_handlers_that_ends_with_the_loss_tells_of_no_failure, .queues = 2,
              .device = by_hand(passing_hooks))
{
    void *buffer = new_buffer(s->q[0]);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[0], buffer);
    softmetal_complete(buffer);
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_EXECUTION);
    lose_device(s);
    gpusync_wait_options options = {.handlers = true};
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_DEVICE_LOST);
    softmetal_finish(buffer);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, &options));
}

on_stage_with(test_T6_a_limit_before_the_second_is_a_timeout, .queues = 2, .device = by_hand(passing_hooks))
{
    commit_new(s->q[0]);
    lose_device(s);
    assert_result(gpusync_wait(s->q[0], 1, SECOND / 2, NULL), GPUSYNC_TIMEOUT);
    assert_in_range(GET(&still_now) - lost_at, SECOND / 2, SECOND - 1);
}

/* -- held work ---------------------------------------------------------------------------------------------------- */

static void expect_lost_unsent(const gpusync_error *error, const char *label)
{
    assert_is_loss(error);
    assert_false(error->ran || error->in_use || error->inherited);
    assert_string_equal(error->label, label);
    assert_string_equal(error->queue_label, "first");
}

/* That of a record, of this ticket. */
static void expect_record_lost_unsent(stage *s, unsigned record, gpusync_ticket ticket, const char *label)
{
    gpusync_error error = failure_at(s->q[0], record);
    assert_int_equal(error.ticket, ticket);
    expect_lost_unsent(&error, label);
}

/* With nothing before it, its turn is at the loss; what it waited for comes too late then. */
on_stage_with(test_T6_R38_held_work_ends_with_the_loss, .queues = 2, .timelines = 2)
{
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    note notes[2] = {0};
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(buffers[0]), SIGNALS(at(s->t[1], 1)), .label = "blur");
    commit(s->q[0], buffers[1]);
    on_done(ticket_at(s->q[0], 1), &notes[0]);
    on_done(ticket_at(s->q[0], 2), &notes[1]);
    metal_retain(buffers[0]);
    metal_retain(buffers[1]);
    lose_device(s);
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_poll(s->q[0], 2, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    expect_record_lost_unsent(s, 0, 1, "blur");
    expect_record_lost_unsent(s, 1, 2, "");
    assert_result(gpusync_timeline_query(s->t[1], &(uint64_t){0}, &told), GPUSYNC_ERROR_DEVICE_LOST);
    assert_is_loss(&told);
    run_callbacks(s);
    for (unsigned i = 0; i < 2; i++) {
        assert_noted(&notes[i], GPUSYNC_ERROR_DEVICE_LOST);
        expect_lost_unsent(&notes[i].error, i ? "" : "blur");
    }
    assert_false(is_sent(buffers[0]) || is_sent(buffers[1]));
    metal_release(buffers[0]);
    metal_release(buffers[1]);
}

/* Behind work that hangs its turn has not come; but what it ends with is decided. UNORDERED work has no turn. */
on_stage_with(test_T6_R30_held_work_behind_work_that_metal_has_ends_in_its_turn, .queues = 2, .timelines = 1)
{
    note notes[3] = {0};
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &notes[0]);
    on_done(ticket_at(s->q[0], SUBMIT(s->q[0], WAITS(at(s->t[0], 1)))), &notes[1]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), .label = "loose", .on_complete = remember, .user = &notes[2],
           .flags = GPUSYNC_SUBMIT_UNORDERED);
    lose_device(s);
    assert_result(gpusync_poll(s->q[0], 2, NULL), GPUSYNC_NOT_READY);
    expect_record_lost_unsent(s, 0, 0, "loose");
    assert_int_equal(gpusync_in_flight(s->q[0]), 2);
    run_callbacks(s);
    assert_noted(&notes[2], GPUSYNC_ERROR_DEVICE_LOST);
    expect_lost_unsent(&notes[2].error, "loose");
    assert_int_equal(calls_of(&notes[1]), 0);
    signal_value(s->t[0], 1);
    finish_next(s->q[0]);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    assert_result(gpusync_poll(s->q[0], 2, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    expect_record_lost_unsent(s, 1, 2, "");
    run_callbacks(s);
    assert_noted(&notes[0], GPUSYNC_OK);
    assert_noted(&notes[1], GPUSYNC_ERROR_DEVICE_LOST);
    assert_in_order(notes, 2);
}

/* -- destroy ------------------------------------------------------------------------------------------------------ */

static struct {
    gpusync_queue *queue;
    bool done; /* was ticket 1, in its callback? */
    note sent, loose, held;
    void *object;
} hung;

static void note_sent(void *user, gpusync_result result, const gpusync_error *error)
{
    hung.done = gpusync_is_done(hung.queue, 1);
    remember(&hung.sent, result, error);
}

/* Ticket 1 is Metal's and signals t[0], and t[1], which is order_only; UNORDERED work is Metal's; ticket 2 is held. */
static void hang(stage *s)
{
    const gpusync_timeline_desc order_only = {.order_only = true};
    void *buffer = new_buffer(s->q[0]);
    memset(&hung, 0, sizeof hung);
    hung.queue = s->q[0];
    hung.object = metal_buffer_new(s->metal_device, 16);
    assert_ok(gpusync_timeline_destroy(s->t[1]));
    s->t[1] = timeline_from(s->device, &order_only);
    encode_signal(s->q[0], buffer, at(s->t[0], 1));
    encode_signal(s->q[0], buffer, at(s->t[1], 1));
    commit(s->q[0], buffer);
    SUBMIT(s->q[0], WAITS(at(s->t[2], 1)), .on_complete = remember, .user = &hung.held);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), .on_complete = remember, .user = &hung.loose,
           .flags = GPUSYNC_SUBMIT_UNORDERED);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), note_sent, NULL));
    assert_ok(gpusync_release_after(s->q[0], 1, hung.object));
}

/* The one reference of gpusync's stays: the GPU may still use the object. Callbacks learn that it may (R30). */
static void expect_given_up(stage *s)
{
    note *sent[] = {&hung.sent, &hung.loose};
    for (unsigned i = 0; i < 2; i++) {
        assert_noted(sent[i], GPUSYNC_ERROR_DEVICE_LOST);
        assert_is_loss(&sent[i]->error);
        assert_true(sent[i]->error.ran && sent[i]->error.in_use);
        assert_failed(s->t[i], GPUSYNC_ERROR_DEVICE_LOST);
    }
    assert_noted(&hung.held, GPUSYNC_ERROR_DEVICE_LOST);
    expect_lost_unsent(&hung.held.error, "");
    assert_true(hung.sent.order < hung.held.order);
    assert_false(hung.done);
    assert_int_equal(softmetal_retain_count(hung.object), 2);
    finish_all(s); /* the GPU goes on, and no callback comes a second time */
    settle(s);
    assert_int_equal(calls_of(&hung.sent), 1);
    assert_int_equal(softmetal_retain_count(hung.object), 2);
    metal_release(hung.object);
    metal_release(hung.object);
}

static gpusync_result end_device(void *device)
{
    return gpusync_device_destroy((gpusync_device *)device);
}

static gpusync_result destroy(stage *s, int i)
{
    gpusync_queue *queue = s->q[i];
    s->q[i] = NULL;
    return gpusync_queue_destroy(queue);
}

/* Destroy waits until the second is over; an abandon does not. */
without_stage(test_T6_destroy_gives_up_after_a_second_and_abandon_at_once)
{
    enum { DESTROY, DESTROY_BEHIND_THE_SECOND, ABANDON, WAYS };
    for (unsigned way = DESTROY; way < WAYS; way++) {
        stage s;
        stage_open(&s, &(stage_desc){.queues = 2, .timelines = 3, .device = by_hand(passing_hooks)});
        gpusync_queue *queue = s.q[0];
        hang(&s);
        lose_device(&s);
        pass(way == DESTROY_BEHIND_THE_SECOND ? SECOND : 0);
        while_parked(NULL, NULL);
        s.q[0] = NULL;
        if (way == ABANDON)
            assert_ok(gpusync_queue_abandon(queue));
        else
            assert_result(gpusync_queue_destroy(queue), GPUSYNC_ERROR_DEVICE_LOST);
        uint64_t passed = GET(&still_now) - lost_at;
        assert_in_range(passed, way == ABANDON ? 0 : SECOND, way == ABANDON ? 0 : SECOND + SLICE);
        assert_true(way == DESTROY || !passing.parks);
        assert_true(pthread_equal(hung.sent.thread, pthread_self()));
        expect_given_up(&s);
        stage_close(&s);
    }
}

static void finish_at_the_third(void *argument, unsigned park)
{
    if (park == 3)
        finish_next_of(argument);
}

on_stage_with(test_T6_destroy_waits_for_what_ends_in_the_second, .queues = 2, .device = by_hand(passing_hooks))
{
    note n = {0};
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &n);
    lose_device(s);
    while_parked(finish_at_the_third, s->metal[0]);
    assert_ok(destroy(s, 0));
    while_parked(NULL, NULL);
    assert_true(GET(&still_now) - lost_at < SECOND);
    assert_noted(&n, GPUSYNC_OK);
}

/* The GPU ends no work any more, but the program's callback does end: destroy sleeps until it has, and does not ask
   again and again, on a core of its own. */
static bool callback_runs, callback_may_end;

static void run_until_told(void *user, gpusync_result result, const gpusync_error *error)
{
    PUT(&callback_runs, true);
    while (!GET(&callback_may_end)) sched_yield();
}

on_stage_with(test_T6_destroy_sleeps_while_a_callback_runs_behind_the_second, .queues = 2,
              .device = {.hooks = &patient_hooks})
{
    job j = {0};
    assert_ok(gpusync_on_done(ticket_at(s->q[0], commit_new(s->q[0])), run_until_told, NULL));
    finish_next(s->q[0]);
    while (!GET(&callback_runs)) sched_yield();
    lose_device(s);
    pass(SECONDS(2));
    job_destroy(&j, s->q[0]);
    await_parked(1);
    assert_false(job_is_over(&j));
    PUT(&callback_may_end, true);
    assert_ok(job_end(&j));
    s->q[0] = NULL;
}

on_stage_with(test_T6_destroy_of_a_queue_without_work_is_ok, .queues = 2, .device = by_hand(passing_hooks))
{
    lose_device(s);
    while_parked(NULL, NULL);
    assert_ok(destroy(s, 0));
    pass(SECOND);
    assert_ok(destroy(s, 1));
    assert_int_equal(passing.parks, 0);
}

/* K6. What is given up is told of as in a destroy. */
on_stage_with(test_T6_destroy_later_gives_up_at_a_look, .queues = 2, .timelines = 3, .device = by_hand(passing_hooks))
{
    note gone = {0};
    hang(s);
    lose_device(s);
    assert_ok(gpusync_queue_destroy_later(s->q[0], remember_destroyed, &gone));
    s->q[0] = NULL;
    pass(SECOND - 1);
    run_callbacks(s);
    assert_int_equal(hung.sent.calls + gone.calls, 0);
    assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
    pass(1);
    run_callbacks(s);
    run_callbacks(s);
    assert_noted(&gone, GPUSYNC_OK);
    assert_true(hung.held.order < gone.order);
    expect_given_up(s);
}

/* Where no wait sleeps, and callbacks run on the dispatch queue, these two calls look. */
without_stage(test_T6_destroy_later_gives_up_at_a_look_that_runs_no_callback)
{
    for (int destroys = 0; destroys < 2; destroys++) {
        note gone = {0};
        stage s;
        stage_open(&s, &(stage_desc){.queues = 2, .device.hooks = &patient_hooks});
        commit_new(s.q[0]);
        lose_device(&s);
        assert_ok(gpusync_queue_destroy_later(s.q[0], remember_destroyed, &gone));
        s.q[0] = NULL;
        pass(SECOND);
        if (destroys)
            assert_result(gpusync_device_destroy(s.device), GPUSYNC_ERROR_IN_USE);
        else
            assert_ok(gpusync_device_run_callbacks(s.device, SIZE_MAX, NULL));
        assert_noted(&gone, GPUSYNC_OK);
        while (finish_next_of(s.metal[0])) {}
        stage_close(&s);
    }
}

/* It sleeps for work of another queue, which hangs, too. */
on_stage_with(test_T6_destroy_later_gives_up_at_a_look_of_a_wait_that_sleeps, .queues = 3, .timelines = 3,
              .device = {.hooks = &passing_hooks})
{
    note gone = {0};
    commit_new(s->q[2]);
    hang(s);
    lose_device(s);
    assert_ok(gpusync_queue_destroy_later(s->q[0], remember_destroyed, &gone));
    s->q[0] = NULL;
    assert_result(gpusync_wait(s->q[2], 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_noted(&gone, GPUSYNC_OK);
    assert_true(hung.held.order < gone.order);
    expect_given_up(s);
}

/* Work that ended in time is no reason to give up. */
on_stage_with(test_T6_destroy_later_of_what_ended_in_time_tells_so, .queues = 2, .device = by_hand(passing_hooks))
{
    note n = {0}, gone = {0};
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &n);
    lose_device(s);
    assert_ok(gpusync_queue_destroy_later(s->q[0], remember_destroyed, &gone));
    s->q[0] = NULL;
    pass(SECOND / 2);
    finish_all(s);
    pass(SECOND);
    settle(s);
    assert_noted(&n, GPUSYNC_OK);
    assert_noted(&gone, GPUSYNC_OK);
}

/* -- the program's function for the loss (R43) -------------------------------------------------------------------- */

static void open_in_mode(stage *s, unsigned queues, bool manual)
{
    gpusync_device_desc desc = {.hooks = &passing_hooks};
    desc.callback_mode = manual ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED;
    stage_open(s, &(stage_desc){.queues = queues, .device = desc});
}

static void note_loss(void *user, const gpusync_error *error)
{
    remember(user, error->result, error);
}

static void on_lost(stage *s, note *n)
{
    assert_ok(gpusync_device_on_lost(s->device, note_loss, n));
}

static void lose_by_a_look(stage *s)
{
    void *culprit = new_buffer(s->q[1]);
    softmetal_fail_as(culprit, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    softmetal_lose_handlers(culprit);
    commit(s->q[1], culprit);
    finish_next(s->q[1]);
    assert_false(gpusync_device_is_lost(s->device));
    assert_result(gpusync_poll(s->q[1], 1, NULL), GPUSYNC_ERROR_EXECUTION);
    loss = failure_at(s->q[1], 0);
}

/* Whoever finds the loss, whenever the function is registered, wherever callbacks run. */
without_stage(test_R43_the_program_is_told_of_the_loss_once_and_why)
{
    for (unsigned i = 0; i < 8; i++) {
        const bool manual = i & 1, afterwards = i & 2, by_look = i & 4;
        stage s;
        note n = {0}, refused = {0};
        open_in_mode(&s, 2, manual);
        if (!afterwards)
            on_lost(&s, &n);
        settle(&s);
        assert_int_equal(calls_of(&n), 0);
        (by_look ? lose_by_a_look : lose_device)(&s);
        const unsigned long notifies = kit_now().notifies;
        if (afterwards)
            on_lost(&s, &n);
        assert_result(gpusync_device_on_lost(s.device, note_loss, &refused), GPUSYNC_ERROR_IN_USE);
        if (manual) {
            assert_int_equal(n.calls, 0);
            assert_true(kit_now().notifies > (afterwards ? notifies : 0));
            assert_int_equal(run_callbacks(&s), 1);
        }
        assert_noted(&n, GPUSYNC_ERROR_DEVICE_LOST);
        assert_is_loss(&n.error);
        assert_int_equal(pthread_equal(n.thread, pthread_self()) != 0, manual);
        assert_result(gpusync_device_on_lost(s.device, note_loss, &refused), GPUSYNC_ERROR_IN_USE);
        settle(&s);
        assert_int_equal(calls_of(&n), 1);
        assert_int_equal(calls_of(&refused), 0);
        stage_close(&s);
    }
}

on_stage(test_R43_a_function_for_the_loss_needs_a_device_and_a_function)
{
    note n = {0};
    assert_result(gpusync_device_on_lost(NULL, note_loss, &n), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_device_on_lost(s->device, NULL, &n), GPUSYNC_ERROR_INVALID_ARGUMENT);
    memory_fail(1, true);
    on_lost(s, &n); /* the refused call has left the place free, and it needs no memory */
    memory_fail(0, false);
    settle(s);
    assert_int_equal(calls_of(&n), 0);
}

/* Behind what was due when the device was lost, before what becomes due then. */
on_stage_with(test_R43_it_is_called_in_the_order_of_callbacks, .queues = 2, .device = by_hand(passing_hooks))
{
    note notes[3] = {0};
    on_lost(s, &notes[1]);
    on_done(ticket_at(s->q[0], 0), &notes[0]);
    lose_device(s);
    on_done(ticket_at(s->q[0], 0), &notes[2]);
    for (unsigned i = 0; i < 3; i++) {
        size_t count = 99;
        assert_ok(gpusync_device_run_callbacks(s->device, 1, &count));
        assert_int_equal(count, 1);
        assert_int_equal(notes[i].calls, 1);
    }
    assert_in_order(notes, 3);
}

static struct {
    stage *s;
    gpusync_queue *queue;
    gpusync_result wait, poll, commit, destroy, device, run, again, later;
    note gone;
} at_loss;

static void act_at_loss(void *user, const gpusync_error *error)
{
    stage *s = at_loss.s;
    at_loss.wait = gpusync_wait(s->q[0], 1, 0, NULL);
    at_loss.poll = gpusync_poll(s->q[0], 1, NULL);
    at_loss.commit = gpusync_commit_marker(s->q[0], NULL, NULL);
    at_loss.destroy = gpusync_queue_destroy(s->q[0]);
    at_loss.device = gpusync_device_destroy(s->device);
    at_loss.run = gpusync_device_run_callbacks(s->device, 1, NULL);
    at_loss.again = gpusync_device_on_lost(s->device, note_loss, NULL);
    at_loss.later = gpusync_queue_destroy_later(at_loss.queue, remember_destroyed, &at_loss.gone);
}

/* As a callback: it lets go of what the loss has ended. */
without_stage(test_R43_it_may_call_what_a_callback_may)
{
    for (unsigned manual = 0; manual < 2; manual++) {
        stage s;
        open_in_mode(&s, 3, manual);
        memset(&at_loss, 0, sizeof at_loss);
        at_loss.s = &s;
        at_loss.queue = s.q[2];
        s.q[2] = NULL;
        commit_new(s.q[0]);
        assert_ok(gpusync_device_on_lost(s.device, act_at_loss, NULL));
        lose_device(&s);
        run_callbacks(&s);
        run_callbacks(&s);
        assert_noted(&at_loss.gone, GPUSYNC_OK);
        assert_ok(at_loss.later);
        assert_result(at_loss.wait, GPUSYNC_ERROR_WOULD_DEADLOCK);
        assert_result(at_loss.poll, GPUSYNC_NOT_READY);
        assert_result(at_loss.commit, GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(at_loss.destroy, GPUSYNC_ERROR_WOULD_DEADLOCK);
        assert_result(at_loss.device, GPUSYNC_ERROR_WOULD_DEADLOCK);
        assert_result(at_loss.run, GPUSYNC_ERROR_WOULD_DEADLOCK);
        assert_result(at_loss.again, GPUSYNC_ERROR_IN_USE);
        stage_close(&s);
    }
}

static void destroy_all(stage *s)
{
    for (int i = 0; i < 2; i++)
        assert_ok(destroy(s, i));
    gpusync_device *device = s->device;
    s->device = NULL;
    assert_ok(gpusync_device_destroy(device));
}

/* By hand nothing runs it; on a dispatch queue it comes too late. */
without_stage(test_R43_the_destroy_of_the_device_drops_the_call)
{
    for (unsigned manual = 0; manual < 2; manual++) {
        stage s;
        note n = {0};
        open_in_mode(&s, 2, manual);
        assert_true(softmetal_dispatched(SECONDS(60)));
        softmetal_set_dispatch_threads(0);
        on_lost(&s, &n);
        lose_device(&s);
        destroy_all(&s);
        softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
        assert_true(softmetal_dispatched(SECONDS(60)));
        assert_int_equal(calls_of(&n), 0);
        stage_close(&s);
    }
}

static void stay_in_the_call(void *user, const gpusync_error *error)
{
    run_until_told(user, error->result, error);
}

on_stage_with(test_R43_the_destroy_of_the_device_waits_for_a_call_that_runs, .queues = 2,
              .device = {.hooks = &patient_hooks})
{
    job j = {0};
    callback_runs = callback_may_end = false;
    assert_ok(gpusync_device_on_lost(s->device, stay_in_the_call, NULL));
    lose_device(s);
    while (!GET(&callback_runs))
        sched_yield();
    for (int i = 0; i < 2; i++)
        assert_ok(destroy(s, i));
    job_call(&j, end_device, s->device);
    s->device = NULL;
    for (int i = 0; i < 3; i++) {
        const unsigned long parks = kit_now().parks;
        pass(SECONDS(3600));
        while (!job_is_over(&j) && kit_now().parks < parks + 2)
            sched_yield();
        assert_false(job_is_over(&j));
    }
    PUT(&callback_may_end, true);
    assert_ok(job_end(&j));
}

/* A device that goes later calls it first. */
without_stage(test_R43_a_device_that_goes_later_tells_of_the_loss_first)
{
    for (unsigned manual = 0; manual < 2; manual++) {
        stage s;
        note notes[2] = {0};
        open_in_mode(&s, 2, manual);
        softmetal_set_dispatch_threads(0);
        on_lost(&s, &notes[0]);
        lose_device(&s);
        for (int i = 0; i < 2; i++)
            assert_ok(destroy(&s, i));
        assert_ok(gpusync_device_destroy_later(s.device, remember_destroyed, &notes[1]));
        softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
        if (manual)
            assert_ok(gpusync_device_run_callbacks(s.device, SIZE_MAX, NULL));
        s.device = NULL;
        assert_true(softmetal_dispatched(SECONDS(60)));
        assert_in_order(notes, 2);
        assert_is_loss(&notes[0].error);
        stage_close(&s);
    }
}

/* The work of an abandoned queue tells of the loss when the device has gone, or its `destroyed` is due. */
without_stage(test_R43_S10_behind_the_end_of_the_device_nothing_is_called)
{
    for (unsigned i = 0; i < 4; i++) {
        const bool manual = i & 1, later = i & 2;
        stage s;
        note n = {0}, gone = {0};
        open_in_mode(&s, 1, manual);
        gpusync_device *device = s.device;
        gpusync_queue *queue = s.q[0];
        s.device = NULL;
        s.q[0] = NULL;
        assert_ok(gpusync_device_on_lost(device, note_loss, &n));
        commit_failing(queue, SOFTMETAL_SUBMISSIONS_IGNORED);
        assert_ok(gpusync_queue_abandon(queue));
        softmetal_set_dispatch_threads(0);
        if (later)
            assert_ok(gpusync_device_destroy_later(device, remember_destroyed, &gone));
        else
            assert_ok(gpusync_device_destroy(device));
        while (finish_next_of(s.metal[0])) {}
        softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
        if (later && manual)
            assert_ok(gpusync_device_run_callbacks(device, SIZE_MAX, NULL));
        assert_true(softmetal_dispatched(SECONDS(60)));
        assert_int_equal(calls_of(&gone), later);
        assert_int_equal(calls_of(&n), 0);
        stage_close(&s);
    }
}
