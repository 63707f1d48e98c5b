/* test_timelines.c - numbers that only rise

   Proved: how a timeline starts, what the host may signal (R3), that a write of the host which crosses one of the GPU
   takes nothing back, waits for values, failure (R13, T5), order_only (R12), values of other code (R18), the pool of
   events. How work is held for values is in test_held.c, the end of a timeline in test_destroy.c. */
#include "kit.h"

#define OTHERS .timelines = 1, .timeline = {.signalled_by_others = true}
#define ORDER .timelines = 1, .timeline = {.order_only = true}
#define UNORDERED GPUSYNC_SUBMIT_UNORDERED
#define ON_GPU GPUSYNC_SUBMIT_ON_GPU

static void assert_failed_at(gpusync_timeline *timeline, gpusync_result result, uint64_t reached)
{
    uint64_t value = UINT64_MAX;
    assert_result(gpusync_timeline_query(timeline, &value, NULL), result);
    assert_int_equal(value, reached);
}

/* Has something happen right before, or right after, the host's next write to an event. */
static struct {
    softmetal_phase phase;
    void (*act)(void *what);
    void *what;
} at_write;

static void see_write(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase != at_write.phase || strcmp(selector, "setSignaledValue:") != 0) return;
    softmetal_set_message_hook(NULL, NULL);
    at_write.act(at_write.what);
}

static void on_write(softmetal_phase phase, void (*act)(void *what), void *what)
{
    at_write.phase = phase;
    at_write.act = act;
    at_write.what = what;
    softmetal_set_message_hook(see_write, NULL);
}

/* The GPU has ended with it, its handlers have not run. Retained: metal_release. */
static void *complete(void *buffer)
{
    metal_retain(buffer);
    softmetal_complete(buffer);
    return buffer;
}

static void finish_and_release(void *buffer)
{
    softmetal_finish(buffer);
    metal_release(buffer);
}

/* -- the start ---------------------------------------------------------------------------------------------------- */

on_stage(test_S7_a_timeline_starts_at_its_initial_value)
{
    static const uint64_t values[] = {0, 1, 7, UINT64_C(1) << 40, GPUSYNC_MAX_VALUE - 1, GPUSYNC_MAX_VALUE};
    for (size_t i = 0; i < LENGTH(values); i++) {
        gpusync_timeline *timeline = i & 1 ? new_timeline(s->device) : NULL;
        if (timeline) signal_value(timeline, 20);
        assert_ok(gpusync_timeline_destroy(timeline)); /* the next one gets its event, or a new one */
        gpusync_timeline_desc desc = {.initial_value = values[i]};
        timeline = timeline_from(s->device, &desc);
        assert_int_equal(value_of(timeline), values[i]);
        assert_int_equal(shown(timeline), values[i]);
        assert_ok(gpusync_timeline_wait(timeline, values[i], 0, NULL));
        assert_result(gpusync_timeline_signal(timeline, values[i]), GPUSYNC_ERROR_NOT_RISING);
        if (values[i] < GPUSYNC_MAX_VALUE) {
            assert_result(gpusync_timeline_wait(timeline, values[i] + 1, 0, NULL), GPUSYNC_TIMEOUT);
            signal_value(timeline, values[i] + 1);
            assert_int_equal(shown(timeline), values[i] + 1);
        }
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

on_stage(test_S5_a_timeline_that_cannot_be_made_leaves_nothing)
{
    const struct {
        gpusync_timeline_desc desc;
        gpusync_result result;
    } rows[] = {
        {{.initial_value = GPUSYNC_MAX_VALUE + 1}, GPUSYNC_ERROR_NOT_RISING},
        {{.initial_value = UINT64_MAX}, GPUSYNC_ERROR_NOT_RISING},
        {{.shared_event = s->metal_device}, GPUSYNC_ERROR_INVALID_ARGUMENT},
        {{.label = "no event"}, GPUSYNC_ERROR_METAL_NIL},
        {{.label = "no selector"}, GPUSYNC_ERROR_UNSUPPORTED},
    };
    gpusync_timeline *timeline;
    long blocks = kit_now().blocks, live = softmetal_live(NULL);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        timeline = (gpusync_timeline *)s;
        if (rows[i].result == GPUSYNC_ERROR_METAL_NIL) softmetal_fail_creation(1, true);
        if (rows[i].result == GPUSYNC_ERROR_UNSUPPORTED) softmetal_hide_selector("newSharedEvent");
        assert_result(gpusync_timeline_create(s->device, &rows[i].desc, &timeline), rows[i].result);
        softmetal_fail_creation(0, false);
        assert_null(timeline);
    }
    assert_result(gpusync_timeline_create(NULL, NULL, &timeline), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_timeline_create(s->device, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(kit_now().blocks, blocks);
    assert_int_equal(softmetal_live(NULL), live);
}

without_stage(test_S5_calls_without_a_timeline_are_refused)
{
    uint64_t value = 7, base = 7;
    assert_null(gpusync_timeline_metal(NULL, NULL));
    assert_null(gpusync_timeline_metal(NULL, &base));
    assert_int_equal(base, 0);
    assert_result(gpusync_timeline_query(NULL, &value, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(value, 7);
    assert_result(gpusync_timeline_signal(NULL, 1), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_timeline_fail(NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
}

/* -- R3: what the host may signal --------------------------------------------------------------------------------- */

typedef struct host_signal {
    uint64_t value;
    gpusync_result result;
} host_signal;

static void signal_rows(gpusync_timeline *timeline, const host_signal *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t before = value_of(timeline);
        gpusync_result result = gpusync_timeline_signal(timeline, rows[i].value);
        if (result != rows[i].result) print_error("the host signals %llu\n", (unsigned long long)rows[i].value);
        assert_result(result, rows[i].result);
        assert_int_equal(value_of(timeline), result == GPUSYNC_OK ? rows[i].value : before);
    }
}

on_stage_with(test_R3_the_host_signals_between_what_is_reached_and_what_is_sent, .queues = 2)
{
    static const host_signal below[] = {
        {0, GPUSYNC_ERROR_NOT_RISING},          {9, GPUSYNC_ERROR_NOT_RISING},  {10, GPUSYNC_ERROR_NOT_RISING},
        {20, GPUSYNC_ERROR_NOT_RISING},         {21, GPUSYNC_ERROR_NOT_RISING}, {25, GPUSYNC_ERROR_NOT_RISING},
        {UINT64_MAX, GPUSYNC_ERROR_NOT_RISING}, {11, GPUSYNC_OK},               {11, GPUSYNC_ERROR_NOT_RISING},
        {19, GPUSYNC_OK},
    };
    static const host_signal above[] = {
        {20, GPUSYNC_ERROR_NOT_RISING},         {21, GPUSYNC_OK},
        {UINT64_MAX, GPUSYNC_ERROR_NOT_RISING}, {GPUSYNC_MAX_VALUE + 1, GPUSYNC_ERROR_NOT_RISING},
        {GPUSYNC_MAX_VALUE, GPUSYNC_OK},        {GPUSYNC_MAX_VALUE, GPUSYNC_ERROR_NOT_RISING},
    };
    for (unsigned strict = 0; strict < 2; strict++) {
        gpusync_timeline *timeline = new_timeline(s->device), *gate_of_held = new_timeline(s->device);
        signal_value(timeline, 10);
        SUBMIT(s->q[0], SIGNALS(at(timeline, 20)), BUFFERS(new_buffer(s->q[0])), .flags = strict ? 0 : ON_GPU);
        SUBMIT(s->q[1], WAITS(at(gate_of_held, 1)), SIGNALS(at(timeline, 25)));
        signal_rows(timeline, below, LENGTH(below)); /* the held 25 does not count */
        finish_all(s);
        assert_int_equal(value_of(timeline), 20);
        signal_rows(timeline, above, LENGTH(above));
        assert_ok(gpusync_queue_cancel_held(s->q[1], GPUSYNC_EVERYTHING));
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_ok(gpusync_timeline_destroy(gate_of_held));
    }
}

/* Vulkan's ping-pong with the host: the GPU waits for 1 and signals 2, the host signals the 1. Where other code signals
   the event, the work is on the GPU by then, and its 2 is sent. */
on_stage(test_R3_the_host_lets_work_go_that_signals_the_same_timeline)
{
    for (unsigned others = 0; others < 2; others++) {
        gpusync_timeline_desc desc = {.signalled_by_others = others};
        gpusync_timeline *timeline = timeline_from(s->device, &desc);
        void *buffer = waiting(s->q[0], at(timeline, 1));
        encode_signal(s->q[0], buffer, at(timeline, 2));
        gpusync_ticket ticket = commit(s->q[0], buffer);
        assert_int_equal(is_sent(buffer), others);
        assert_false(finish_next(s->q[0]));
        signal_value(timeline, 1);
        assert_int_equal(value_of(timeline), 1);
        finish_all(s);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        assert_int_equal(value_of(timeline), 2);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

/* K22: other code signals, too. What a wait or a query has called reached, the host may go on from. */
on_stage_with(test_R3_the_host_goes_on_from_a_value_that_it_was_told_of, OTHERS)
{
    for (uint64_t i = 0; i < 4; i++) {
        void *buffer = signalling(s->q[0], at(s->t[0], 2 * i + 1));
        commit(s->q[0], buffer);
        complete(buffer);
        if (i & 1) while (value_of(s->t[0]) < 2 * i + 1) (void)!gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL);
        else assert_ok(gpusync_timeline_wait(s->t[0], 2 * i + 1, SECONDS(60), NULL));
        uint64_t now = value_of(s->t[0]);
        assert_int_equal(now, 2 * i + 1);
        signal_value(s->t[0], now + 1);
        finish_and_release(buffer);
        assert_int_equal(value_of(s->t[0]), 2 * i + 2);
    }
}

/* The GPU signals while the host is about to write 3, which it has found to be higher than what the event shows. */
static void execute(void *buffer)
{
    softmetal_schedule(buffer);
    softmetal_execute(buffer);
}

on_stage_with(test_S7_a_write_of_the_host_that_crosses_one_of_the_gpu_takes_nothing_back, .queues = 2, .timelines = 1)
{
    void *producer = signalling(s->q[0], at(s->t[0], 4)), *consumer = waiting(s->q[1], at(s->t[0], 5));
    encode_signal(s->q[0], producer, at(s->t[0], 5)); /* both cross the write: the lower one alone is noted */
    commit(s->q[0], producer);
    gpusync_ticket ticket = commit(s->q[1], consumer);
    set_quirks(.falling_events = true); /* the event just stores what is written */
    on_write(SOFTMETAL_BEFORE, execute, producer);
    signal_value(s->t[0], 3);
    assert_int_equal(value_of(s->t[0]), 3);
    assert_int_equal(shown(s->t[0]), 3); /* it has fallen */
    finish_next(s->q[0]);
    assert_int_equal(value_of(s->t[0]), 5);
    assert_int_equal(shown(s->t[0]), 5);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[1], ticket, NULL));
}

/* ... also one that was sent when the host was about to write. */
static gpusync_queue *sends_on;

static void send_and_execute(void *buffer)
{
    commit(sends_on, buffer);
    execute(buffer);
}

on_stage_with(test_S7_a_write_that_crosses_a_signal_sent_meanwhile_takes_nothing_back, .queues = 2, .timelines = 1)
{
    void *producer = signalling(s->q[0], at(s->t[0], 5)), *consumer = waiting(s->q[1], at(s->t[0], 5));
    sends_on = s->q[0];
    set_quirks(.falling_events = true); /* the event just stores what is written */
    on_write(SOFTMETAL_BEFORE, send_and_execute, producer);
    signal_value(s->t[0], 3);
    assert_int_equal(shown(s->t[0]), 3); /* it has fallen */
    finish_next(s->q[0]);
    assert_int_equal(shown(s->t[0]), 5);
    gpusync_ticket ticket = commit(s->q[1], consumer);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[1], ticket, NULL));
}

/* The host is about to write 3, and another thread's signal of 5 comes first. */
static void signal_five(void *timeline)
{
    gpusync_timeline *t = (gpusync_timeline *)timeline;
    signal_value(t, 5);
    assert_int_equal(value_of(t), 5);
    assert_int_equal(shown(t), 0); /* else the event would fall, to the 3 that is on its way */
}

on_stage_with(test_S7_the_host_writes_no_higher_value_before_a_lower_one_that_is_on_its_way, .timelines = 1)
{
    on_write(SOFTMETAL_BEFORE, signal_five, s->t[0]);
    signal_value(s->t[0], 3);
    assert_int_equal(value_of(s->t[0]), 5);
    assert_int_equal(shown(s->t[0]), 5);
}

/* -- S7: what is reached ------------------------------------------------------------------------------------------ */

/* A message to Metal may take its time: what waits on the host is woken first. */
static void note_unparks(void *unparks)
{
    *(unsigned long *)unparks = kit_now().unparks;
}

on_stage_with(test_S5_a_thread_is_woken_before_metal_is_told_of_the_value, .timelines = 1)
{
    unsigned long unparks = 0;
    job j = {0};
    job_value(&j, s->t[0], 1, GPUSYNC_FOREVER);
    await_parked(1);
    on_write(SOFTMETAL_BEFORE, note_unparks, &unparks);
    signal_value(s->t[0], 1);
    assert_int_equal(unparks, 1);
    assert_ok(job_end(&j));
}

on_stage_with(test_S7_a_value_is_reached_when_its_work_has_succeeded, .timelines = 1)
{
    void *buffer = signalling(s->q[0], at(s->t[0], 1)), *failing = signalling(s->q[0], at(s->t[0], 2));
    commit(s->q[0], buffer);
    commit(s->q[0], failing);
    softmetal_schedule(buffer);
    softmetal_execute(buffer);
    assert_int_equal(shown(s->t[0]), 1);
    assert_int_equal(value_of(s->t[0]), 0);
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_int_equal(value_of(s->t[0]), 1);
    softmetal_fail_as(failing, SOFTMETAL_PAGE_FAULT, NULL);
    softmetal_fail_after_signals(failing, 1);
    softmetal_finish(failing);
    assert_int_equal(softmetal_outstanding(s->metal[0]), 0);
    assert_failed_at(s->t[0], GPUSYNC_ERROR_EXECUTION, 1);
}

/* -- R13, T5: failure --------------------------------------------------------------------------------------------- */

on_stage_with(test_R13_T5_the_first_failure_answers_every_later_call, .timelines = 1)
{
    gpusync_error reason = {.result = GPUSYNC_ERROR_COMPILE, .ticket = 3, .origin = 2, .code = 77, .dropped = 4,
                            .inherited = true, .ran = true, .message = "no shader"}; /* as of a record */
    gpusync_error other = {.result = GPUSYNC_ERROR_METAL_NIL};
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    void *open = signalling(s->q[0], at(s->t[0], 6)), *waits = new_buffer(s->q[0]);
    gpusync_ticket ticket = 77;
    note notes[2] = {0};
    signal_value(s->t[0], 5);
    on_done(at(s->t[0], 6), &notes[0]);
    assert_ok(gpusync_timeline_fail(s->t[0], &reason));
    memset(&reason, 0, sizeof reason); /* it was copied */
    assert_result(gpusync_timeline_fail(s->t[0], &other), GPUSYNC_ERROR_COMPILE);
    assert_failed_at(s->t[0], GPUSYNC_ERROR_COMPILE, 5);
    assert_result(gpusync_timeline_wait(s->t[0], 6, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_COMPILE);
    assert_int_equal(error.result, GPUSYNC_ERROR_COMPILE);
    assert_int_equal(error.code, 77);
    assert_string_equal(error.message, "no shader");
    assert_true(error.ticket == 0 && error.origin == 0 && error.dropped == 0 && !error.inherited && !error.ran);
    assert_ok(gpusync_timeline_wait(s->t[0], 5, 0, NULL)); /* T5: what was reached stays reached, later too */
    on_done(at(s->t[0], 5), &notes[1]);
    assert_noted(&notes[0], GPUSYNC_ERROR_COMPILE);
    assert_noted(&notes[1], GPUSYNC_OK);
    assert_result(gpusync_timeline_signal(s->t[0], 7), GPUSYNC_ERROR_COMPILE);
    assert_result(gpusync_commit(s->q[0], open, &ticket), GPUSYNC_ERROR_COMPILE);
    assert_ok(gpusync_command_buffer_discard(s->q[0], open));
    assert_result(gpusync_encode_signal(s->q[0], waits, at(s->t[0], 7)), GPUSYNC_ERROR_COMPILE);
    assert_result(TRY_SUBMIT(s->q[0], &ticket, SIGNALS(at(s->t[0], 7))), GPUSYNC_ERROR_COMPILE);
    assert_int_equal(ticket, 77);
    encode_wait(s->q[0], waits, at(s->t[0], 6)); /* accepted, and the ticket tells */
    ticket = commit(s->q[0], waits);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_COMPILE);
    ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 5)));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
}

on_stage(test_R13_the_result_of_a_failure)
{
    static const struct {
        int given;
        gpusync_result result;
    } rows[] = {{GPUSYNC_OK, GPUSYNC_ERROR_EXECUTION},
                {GPUSYNC_TIMEOUT, GPUSYNC_ERROR_EXECUTION},
                {GPUSYNC_NOT_READY, GPUSYNC_ERROR_EXECUTION},
                {-1, GPUSYNC_ERROR_INVALID_ARGUMENT},
                {-9, (gpusync_result)-9}, /* a number without a name */
                {GPUSYNC_ERROR_CANCELLED, GPUSYNC_ERROR_CANCELLED},
                {GPUSYNC_ERROR_COMPILE, GPUSYNC_ERROR_COMPILE},
                {GPUSYNC_ERROR_COMPILE - 1, GPUSYNC_ERROR_EXECUTION},
                {INT32_MIN, GPUSYNC_ERROR_EXECUTION}};
    for (size_t i = 0; i <= LENGTH(rows); i++) {
        gpusync_timeline *timeline = new_timeline(s->device);
        gpusync_error reason = {0}, error;
        gpusync_wait_options options = {.error = &error};
        gpusync_result result = GPUSYNC_ERROR_EXECUTION;
        if (i < LENGTH(rows)) {
            reason.result = (gpusync_result)rows[i].given;
            result = rows[i].result;
        }
        assert_ok(gpusync_timeline_fail(timeline, i < LENGTH(rows) ? &reason : NULL));
        assert_failed_at(timeline, result, 0);
        assert_result(gpusync_timeline_wait(timeline, 1, 0, &options), result);
        assert_string_equal(error.message, "the program failed the timeline");
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

on_stage_with(test_R13_a_failure_wakes_sleepers_and_ends_held_work, .timelines = 1)
{
    gpusync_ticket held = commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    job jobs[2] = {{.which = 0}};
    job_value(&jobs[0], s->t[0], 1, GPUSYNC_FOREVER);
    job_wait(&jobs[1], s->q[0], held, GPUSYNC_FOREVER);
    await_parked(2);
    fail_timeline(s->t[0], GPUSYNC_ERROR_NO_DEVICE);
    assert_result(job_end(&jobs[0]), GPUSYNC_ERROR_NO_DEVICE);
    assert_result(job_end(&jobs[1]), GPUSYNC_ERROR_NO_DEVICE);
    assert_int_equal(jobs[1].error.ticket, held);
    assert_int_equal(jobs[1].error.failure, GPUSYNC_FAILURE_OTHER); /* the reason had no class */
    assert_true(jobs[1].error.inherited);
    assert_int_equal(jobs[1].error.origin, 0); /* no work failed */
    assert_false(jobs[1].error.ran);
}

/* No GPU wait hangs on an own event; an imported one is not written. */
on_stage_with(test_R13_the_own_event_gets_the_highest_value_and_an_imported_one_is_not_written, .queues = 2)
{
    for (unsigned imported = 0; imported < 2; imported++) {
        void *event = imported ? metal_shared_event_new(s->metal_device) : NULL;
        gpusync_timeline_desc desc = {.shared_event = event};
        gpusync_timeline *timeline = timeline_from(s->device, &desc);
        void *runs = signalling(s->q[0], at(timeline, 1)), *waits = waiting(s->q[1], at(timeline, 1));
        gpusync_ticket producer = commit(s->q[0], runs);
        gpusync_ticket consumer = commit(s->q[1], waits);
        assert_true(is_sent(waits));
        assert_ok(gpusync_timeline_fail(timeline, NULL));
        assert_int_equal(finish_next(s->q[1]), !imported);
        if (imported) {
            assert_int_equal(metal_event_value(event), 0);
            assert_result(gpusync_poll(s->q[1], consumer, NULL), GPUSYNC_NOT_READY); /* the GPU uses its memory */
        } else {
            assert_result(gpusync_poll(s->q[1], consumer, NULL), GPUSYNC_ERROR_EXECUTION);
            assert_true(metal_event_value(gpusync_timeline_metal(timeline, NULL)) == UINT64_MAX);
        }
        finish_all(s);
        assert_result(gpusync_poll(s->q[1], consumer, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_poll(s->q[0], producer, NULL)); /* it was only to signal it */
        assert_failed_at(timeline, GPUSYNC_ERROR_EXECUTION, 0);
        assert_ok(gpusync_timeline_destroy(timeline));
        metal_release(event);
    }
}

/* The GPU's signal of work that was sent before comes behind the value that means failure: after the call that failed
   the timeline, or while that still writes. */
static void end_next(void *queue)
{
    finish_next((gpusync_queue *)queue);
}

on_stage(test_R13_the_event_of_a_failed_timeline_is_failed_again_behind_a_late_signal)
{
    set_quirks(.falling_events = true); /* the event just stores what is written */
    for (int writes = 0; writes < 2; writes++) {
        gpusync_timeline *timeline = timeline_from(s->device, NULL);
        commit(s->q[0], signalling(s->q[0], at(timeline, 3)));
        if (writes) on_write(SOFTMETAL_AFTER, end_next, s->q[0]);
        assert_ok(gpusync_timeline_fail(timeline, NULL));
        finish_all(s);
        assert_true(shown(timeline) == UINT64_MAX); /* else other code that waits for more would wait for ever */
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

static void fail_now(void *timeline)
{
    assert_ok(gpusync_timeline_fail((gpusync_timeline *)timeline, NULL));
}

on_stage(test_R13_an_imported_event_is_not_failed_by_a_write_on_its_way)
{
    void *event = metal_shared_event_new(s->metal_device);
    gpusync_timeline_desc desc = {.shared_event = event};
    gpusync_timeline *timeline = timeline_from(s->device, &desc);
    on_write(SOFTMETAL_BEFORE, fail_now, timeline);
    signal_value(timeline, 3);
    assert_failed_at(timeline, GPUSYNC_ERROR_EXECUTION, 3);
    assert_int_equal(shown(timeline), 3);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
}

on_stage_with(test_R13_work_that_was_only_to_signal_a_failed_timeline_succeeds, .timelines = 2)
{
    static const uint32_t kinds[] = {ON_GPU, ON_GPU | UNORDERED, 0};
    for (unsigned i = 0; i < LENGTH(kinds); i++) {
        gpusync_timeline *timeline = new_timeline(s->device);
        gpusync_ticket sent = SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(timeline, 1)),
                                     .flags = kinds[i]);
        gpusync_ticket held = SUBMIT(s->q[0], WAITS(at(s->t[0], i + 1)), BUFFERS(new_buffer(s->q[0])),
                                     SIGNALS(at(timeline, 2), at(s->t[1], i + 1)), .flags = kinds[i]);
        assert_ok(gpusync_timeline_fail(timeline, NULL));
        signal_value(s->t[0], i + 1);
        finish_all(s);
        assert_ok(gpusync_poll(s->q[0], sent, NULL));
        assert_ok(gpusync_poll(s->q[0], held, NULL));
        assert_int_equal(value_of(s->t[1]), i + 1);
        assert_failed_at(timeline, GPUSYNC_ERROR_EXECUTION, 0);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

/* -- R12: order_only ---------------------------------------------------------------------------------------------- */

on_stage_with(test_R12_failure_does_not_pass_along_an_order_only_timeline, .queues = 3, ORDER)
{
    void *upload = signalling(s->q[0], at(s->t[0], 1));
    gpusync_ticket failed, frames[3];
    softmetal_fail_as(upload, SOFTMETAL_OUT_OF_MEMORY, NULL);
    failed = commit(s->q[0], upload);
    frames[0] = commit(s->q[1], waiting(s->q[1], at(s->t[0], 1))); /* on the GPU already */
    frames[1] = SUBMIT(s->q[2], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[2])));
    assert_false(finish_next(s->q[1]));
    finish_all(s);
    frames[2] = commit(s->q[2], waiting(s->q[2], at(s->t[0], 1))); /* later */
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], failed, NULL), GPUSYNC_ERROR_EXECUTION);
    for (unsigned i = 0; i < 3; i++) assert_ok(gpusync_poll(s->q[i ? 2 : 1], frames[i], NULL));
    assert_int_equal(value_of(s->t[0]), 1);
    assert_int_equal(shown(s->t[0]), 1);
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 2)));
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 2); /* the next upload */
}

/* The system kills work in its wait for a lower value, so its signal is the host's, in its turn: what its queue would
   signal behind it waits for that, and no value shows what the lower one does not have. */
on_stage_with(test_R12_a_signal_behind_work_that_was_killed_in_its_wait_keeps_the_order, .queues = 2, ORDER)
{
    void *waits = waiting(s->q[1], at(s->t[0], 5));
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 5)));
    encode_signal(s->q[1], waits, at(s->t[0], 7));
    gpusync_ticket killed = commit(s->q[1], waits);
    softmetal_time_out(waits);
    softmetal_finish(waits);
    assert_result(gpusync_poll(s->q[1], killed, NULL), GPUSYNC_ERROR_EXECUTION);
    gpusync_ticket ticket = commit(s->q[1], signalling(s->q[1], at(s->t[0], 9)));
    assert_false(finish_next(s->q[1])); /* held */
    assert_int_equal(shown(s->t[0]), 0);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[1], ticket, NULL));
    assert_int_equal(value_of(s->t[0]), 9);
}

typedef enum never_ran {
    CANCELLED,
    WAIT_FAILED,
    OVERTAKEN, /* another of its signals is */
    A_FAILURE_STICKS,
    DEVICE_LOST, /* that held work has not run is known then, too */
    QUEUE_DESTROYED,
    WAYS
} never_ran;

/* Has the held work of the queue end so. It waits for `go`, and signals 1 of `other`. */
static void end_unsent(stage *s, never_ran way, gpusync_queue *queue, gpusync_timeline *go, gpusync_timeline *other)
{
    if (way == CANCELLED) assert_ok(gpusync_queue_cancel_held(queue, GPUSYNC_EVERYTHING));
    if (way == WAIT_FAILED) assert_ok(gpusync_timeline_fail(go, NULL));
    if (way == OVERTAKEN) signal_value(other, 1);
    if (way == A_FAILURE_STICKS) finish_next(queue);
    if (way == DEVICE_LOST) {
        void *culprit = new_buffer(s->q[1]);
        softmetal_fail_as(culprit, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
        SUBMIT(s->q[1], BUFFERS(culprit), .flags = UNORDERED);
        softmetal_finish(culprit);
    }
    if (way == QUEUE_DESTROYED) assert_ok(gpusync_queue_destroy(queue));
}

without_stage(test_R12_a_value_of_work_that_never_ran_is_raised_behind_the_lower_ones_of_sent_work)
{
    static const gpusync_timeline_desc order = {.order_only = true};
    static const gpusync_queue_desc sticky = {.sticky_failure = true};
    static const gpusync_result results[] = {GPUSYNC_ERROR_CANCELLED,   GPUSYNC_ERROR_EXECUTION,
                                             GPUSYNC_ERROR_NOT_RISING,  GPUSYNC_ERROR_EXECUTION,
                                             GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_OK};
    for (unsigned way = 0; way < WAYS; way++) {
        stage s;
        bool lives = way != QUEUE_DESTROYED;
        stage_open(&s, &(stage_desc){.queues = 2});
        gpusync_timeline *timeline = timeline_from(s.device, &order);
        gpusync_timeline *go = new_timeline(s.device), *other = new_timeline(s.device);
        gpusync_queue *queue = queue_from(s.device, &sticky);
        commit(s.q[0], signalling(s.q[0], at(timeline, 5)));
        if (way == A_FAILURE_STICKS) commit_failing(queue, SOFTMETAL_PAGE_FAULT);
        gpusync_ticket ticket = SUBMIT(queue, WAITS(at(go, 1)), SIGNALS(at(timeline, 7), at(other, 1)));
        gpusync_ticket consumer = SUBMIT(s.q[1], WAITS(at(timeline, 7)));
        end_unsent(&s, (never_ran)way, queue, go, other);
        if (lives) assert_result(gpusync_poll(queue, ticket, NULL), results[way]); /* at once */
        assert_int_equal(value_of(timeline), 0); /* not before 5: what waits for 5 may not go */
        signal_value(timeline, 4);
        assert_result(gpusync_timeline_signal(timeline, 6), GPUSYNC_ERROR_NOT_RISING);
        finish_all(&s);
        assert_int_equal(value_of(timeline), 7);
        assert_int_equal(shown(timeline), 7);
        finish_all(&s);
        assert_result(gpusync_poll(s.q[1], consumer, NULL),
                      way == DEVICE_LOST ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK); /* it was held, too */
        if (lives) assert_ok(gpusync_queue_destroy(queue));
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_ok(gpusync_timeline_destroy(go));
        assert_ok(gpusync_timeline_destroy(other));
        stage_close(&s);
    }
}

/* Until raised, the value of work that never ran counts as held: lower ones go, and higher ones behind it. The next
   lower one is sent, or held. */
on_stage_with(test_R12_the_value_of_work_that_never_ran_comes_in_its_turn, .queues = 3)
{
    static const gpusync_timeline_desc order = {.order_only = true};
    for (unsigned held = 0; held < 2; held++) {
        gpusync_timeline *timeline = timeline_from(s->device, &order), *go = new_timeline(s->device);
        void *six = waiting(s->q[2], at(timeline, 5)), *eight = waiting(s->q[2], at(timeline, 6));
        encode_signal(s->q[2], six, at(timeline, 6));
        encode_signal(s->q[2], eight, at(timeline, 8));
        void *five = held ? waiting(s->q[0], at(go, 1)) : new_buffer(s->q[0]);
        encode_signal(s->q[0], five, at(timeline, 5));
        commit(s->q[0], five);
        gpusync_ticket ticket = SUBMIT(s->q[1], WAITS(at(go, 2)), SIGNALS(at(timeline, 7)));
        assert_ok(gpusync_queue_cancel_held(s->q[1], GPUSYNC_EVERYTHING));
        assert_result(gpusync_poll(s->q[1], ticket, NULL), GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(value_of(timeline), 0);
        commit(s->q[2], six);
        if (held) signal_value(go, 1);
        assert_true(is_sent(six));
        commit(s->q[2], eight);
        assert_false(is_sent(eight));
        finish_next(s->q[0]);
        assert_int_equal(value_of(timeline), 5);
        assert_false(is_sent(eight));
        finish_next(s->q[2]);
        assert_int_equal(value_of(timeline), 7);
        assert_true(shown(timeline) == 7);
        assert_true(is_sent(eight));
        finish_all(s);
        assert_int_equal(value_of(timeline), 8);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_ok(gpusync_timeline_destroy(go));
    }
}

/* Frame 1 never runs, and frame 2 waits for what other code answers to frame 1: that sees its value first. */
on_stage(test_R12_other_code_sees_a_value_of_work_that_never_ran_in_its_turn)
{
    for (unsigned cancels = 0; cancels < 2; cancels++) {
        void *event = metal_shared_event_new(s->metal_device);
        const gpusync_timeline_desc desc = {.shared_event = event, .order_only = true};
        gpusync_timeline *frames = timeline_from(s->device, &desc), *input = new_timeline(s->device);
        void *one = waiting(s->q[0], at(input, 1)), *two = waiting(s->q[0], at(frames, 2));
        encode_signal(s->q[0], one, at(frames, 1));
        encode_signal(s->q[0], two, at(frames, 3));
        commit(s->q[0], new_buffer(s->q[0]));
        gpusync_ticket ticket = commit(s->q[0], one);
        if (cancels) assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
        else assert_ok(gpusync_timeline_fail(input, NULL));
        gpusync_ticket last = commit(s->q[0], two);
        assert_false(is_sent(two));
        assert_int_equal(metal_event_value(event), 0);
        finish_next(s->q[0]);
        assert_result(gpusync_poll(s->q[0], ticket, NULL),
                      cancels ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(metal_event_value(event), 1);
        assert_true(is_sent(two)); /* the GPU waits for the answer */
        metal_event_signal(event, 2);
        finish_all(s);
        assert_ok(gpusync_poll(s->q[0], last, NULL));
        assert_int_equal(value_of(frames), 3);
        assert_ok(gpusync_timeline_destroy(frames));
        assert_ok(gpusync_timeline_destroy(input));
        metal_release(event);
    }
}

/* Where Metal had the work, it counts as sent. A failure of the timeline drops it: the stage asks that nothing is
   left. */
on_stage_with(test_R12_until_raised_the_value_of_failed_work_counts_as_sent, .queues = 3)
{
    static const gpusync_timeline_desc order = {.order_only = true};
    for (unsigned fails = 0; fails < 2; fails++) {
        gpusync_timeline *timeline = timeline_from(s->device, &order);
        void *seven = metal_retain(waiting(s->q[1], at(timeline, 5)));
        void *six = waiting(s->q[2], at(timeline, 5));
        encode_signal(s->q[1], seven, at(timeline, 7));
        commit(s->q[0], signalling(s->q[0], at(timeline, 5)));
        gpusync_ticket ticket = commit(s->q[1], seven);
        assert_true(is_sent(seven));
        softmetal_time_out(seven);
        finish_and_release(seven);
        assert_result(gpusync_poll(s->q[1], ticket, NULL), GPUSYNC_ERROR_EXECUTION); /* the ticket does not wait */
        assert_int_equal(value_of(timeline), 0);
        assert_result(gpusync_encode_signal(s->q[2], six, at(timeline, 6)), GPUSYNC_ERROR_NOT_RISING);
        assert_ok(gpusync_command_buffer_discard(s->q[2], six));
        if (fails) assert_ok(gpusync_timeline_fail(timeline, NULL));
        finish_all(s);
        if (fails) assert_failed_at(timeline, GPUSYNC_ERROR_EXECUTION, 0);
        else assert_int_equal(value_of(timeline), 7);
        assert_true(shown(timeline) == (fails ? UINT64_MAX : 7));
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

on_stage_with(test_R12_an_imported_event_is_raised_too, .timeline = {.order_only = true})
{
    void *event = metal_shared_event_new(s->metal_device);
    gpusync_timeline_desc desc = {.shared_event = event, .order_only = true};
    gpusync_timeline *timeline = timeline_from(s->device, &desc);
    void *buffer = signalling(s->q[0], at(timeline, 3));
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[0], buffer);
    finish_all(s);
    assert_int_equal(value_of(timeline), 3);
    assert_int_equal(metal_event_value(event), 3);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
}

/* S8: nothing tells whether abandoned work has ended. */
on_stage_with(test_S8_an_abandoned_queue_fails_the_order_only_timelines_of_what_metal_has, .timelines = 3,
              .timeline = {.order_only = true})
{
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 1)));
    SUBMIT(s->q[0], WAITS(at(s->t[2], 1)), SIGNALS(at(s->t[1], 1)));
    assert_ok(gpusync_queue_abandon(s->q[0]));
    s->q[0] = NULL;
    assert_failed_at(s->t[0], GPUSYNC_ERROR_DESTROYED, 0);
    assert_int_equal(value_of(s->t[1]), 1); /* held work never ran: that is known */
}

/* R11: also while a failure sticks. The value may be signalled by other work. */
on_stage_with(test_R11_a_discard_signals_nothing_and_fails_no_timeline, .queues = 2, .queue.sticky_failure = true)
{
    for (unsigned order_only = 0; order_only < 2; order_only++) {
        const gpusync_timeline_desc desc = {.order_only = order_only};
        gpusync_timeline *timeline = timeline_from(s->device, &desc);
        void *open = signalling(s->q[0], at(timeline, 4));
        commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
        finish_all(s);
        assert_result(gpusync_commit(s->q[0], open, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_command_buffer_discard(s->q[0], open));
        assert_int_equal(value_of(timeline), 0);
        assert_int_equal(shown(timeline), 0);
        commit(s->q[1], signalling(s->q[1], at(timeline, 4)));
        finish_all(s);
        assert_int_equal(value_of(timeline), 4);
        assert_ok(gpusync_queue_clear_failure(s->q[0], GPUSYNC_EVERYTHING));
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

/* -- R18: values of other code ------------------------------------------------------------------------------------ */

on_stage_with(test_R18_the_event_counts_below_the_lowest_own_signal_that_is_sent, OTHERS)
{
    static const struct {
        uint64_t shows, value;
    } rows[] = {{1, 1}, {3, 3}, {4, 4}, {5, 4}, {6, 4}, {9, 4}};
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 5)));
    for (size_t i = 0; i < LENGTH(rows); i++) {
        other_code_signals(s->t[0], rows[i].shows);
        assert_int_equal(value_of(s->t[0]), rows[i].value);
        assert_ok(gpusync_timeline_wait(s->t[0], rows[i].value, 0, NULL));
        assert_result(gpusync_timeline_wait(s->t[0], rows[i].value + 1, 0, NULL), GPUSYNC_TIMEOUT);
    }
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 9);
}

/* Nobody looks, and no listener is to tell of a value that the event shows already: the end of the own work does. */
on_stage_with(test_R18_a_value_that_was_not_believed_comes_with_the_end_of_the_own_work, OTHERS)
{
    note seven = {0};
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 5)));
    other_code_signals(s->t[0], 7);
    on_done(at(s->t[0], 7), &seven);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_int_equal(calls_of(&seven), 0);
    assert_true(finish_next(s->q[0]));
    assert_noted(&seven, GPUSYNC_OK);
}

/* What the GPU has passed by such a value has not ended for the host. */
on_stage_with(test_R18_a_ticket_does_not_end_before_a_value_that_is_not_believed, .queues = 4, .timelines = 2,
              .timeline = {.signalled_by_others = true})
{
    void *failing = signalling(s->q[1], at(s->t[1], 1));
    const gpusync_point points[] = {at(s->t[1], 1), at(s->t[0], 7)};
    softmetal_fail_as(failing, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[2], signalling(s->q[2], at(s->t[0], 5)));
    commit(s->q[1], failing);
    for (int i = 0; i < 2; i++) { /* the one that fails is the first, or the last */
        void *buffer = waiting(s->q[3 * i], points[i]);
        encode_wait(s->q[3 * i], buffer, points[!i]);
        commit(s->q[3 * i], buffer);
        assert_true(is_sent(buffer));
    }
    other_code_signals(s->t[0], 7);
    assert_true(finish_next(s->q[1]));
    for (int i = 0; i < 2; i++) {
        assert_true(finish_next(s->q[3 * i])); /* one of the two has failed, the other one is not over */
        assert_false(gpusync_is_done(s->q[3 * i], 1));
        assert_result(gpusync_poll(s->q[3 * i], 1, NULL), GPUSYNC_NOT_READY);
    }
    assert_true(finish_next(s->q[2]));
    for (int i = 0; i < 2; i++) {
        assert_result(gpusync_poll(s->q[3 * i], 1, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_true(gpusync_is_done(s->q[3 * i], 1));
    }
}

/* UNORDERED work holds up no work behind it, so that has to end before the value is believed. */
on_stage_with(test_R18_unordered_work_does_not_end_before_a_value_that_work_behind_it_holds_up, OTHERS)
{
    void *buffer = new_buffer(s->q[0]);
    note ended = {0};
    SUBMIT(s->q[0], WAITS(at(s->t[0], 7)), BUFFERS(new_buffer(s->q[0])), .on_complete = remember, .user = &ended,
           .flags = UNORDERED | ON_GPU);
    encode_signal(s->q[0], buffer, at(s->t[0], 5));
    commit(s->q[0], buffer);
    other_code_signals(s->t[0], 7);
    assert_true(finish_next(s->q[0]));
    assert_true(finish_next(s->q[0])); /* the wait's buffer, and the program's */
    assert_int_equal(value_of(s->t[0]), 4);
    assert_int_equal(calls_of(&ended), 0);
    assert_true(finish_next(s->q[0]));
    assert_int_equal(value_of(s->t[0]), 7);
    assert_noted(&ended, GPUSYNC_OK);
}

/* Work waits for 7 of other code, and work behind it in its queue is to signal 5: neither settles before the other. The
   report shows it, and the program ends it. */
on_stage_with(test_R18_a_circle_over_a_value_of_other_code_is_in_the_report, OTHERS)
{
    static char text[16384];
    gpusync_ticket waits = commit(s->q[0], waiting(s->q[0], at(s->t[0], 7)));
    gpusync_ticket signals = commit(s->q[0], signalling(s->q[0], at(s->t[0], 5)));
    other_code_signals(s->t[0], 7);
    finish_all(s);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_result(gpusync_poll(s->q[0], waits, NULL), GPUSYNC_NOT_READY);
    gpusync_device_report(s->device, text, sizeof text);
    assert_non_null(strstr(text, "its event shows 7, which counts when the work that signals value 5 has ended"));
    assert_non_null(strstr(text, "waits for value 7 of timeline 'a'"));
    fail_timeline(s->t[0], GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_poll(s->q[0], waits, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_ok(gpusync_poll(s->q[0], signals, NULL));
}

/* A signal of work that the GPU has ended, and that fails by what it waits for: its turn is behind work that is not
   over. What the event shows then is its value, and not reached. */
on_stage_with(test_R18_a_value_is_not_believed_before_the_turn_of_the_own_work_that_signals_it, .queues = 4,
              .timelines = 2)
{
    static const gpusync_timeline_desc others = {.signalled_by_others = true};
    gpusync_timeline *timeline = timeline_from(s->device, &others);
    void *brings = signalling(s->q[3], at(s->t[0], 1));
    void *fails = signalling(s->q[2], at(s->t[1], 1));
    void *signals = waiting(s->q[0], at(s->t[1], 1)), *reads = waiting(s->q[1], at(timeline, 1));
    gpusync_ticket tickets[2];
    commit_new(s->q[3]); /* the turn of the next one is behind this */
    commit(s->q[3], brings);
    softmetal_fail_as(fails, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[2], fails);
    commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    encode_signal(s->q[0], signals, at(timeline, 1));
    tickets[0] = commit(s->q[0], signals);
    tickets[1] = commit(s->q[1], reads);
    softmetal_finish(brings);
    finish_next(s->q[0]);
    softmetal_finish(fails);
    finish_next(s->q[0]);
    finish_next(s->q[1]);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_int_equal(metal_event_value(gpusync_timeline_metal(timeline, NULL)), 1);
    assert_int_equal(value_of(timeline), 0);
    assert_result(gpusync_poll(s->q[0], tickets[0], NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s->q[1], tickets[1], NULL), GPUSYNC_NOT_READY);
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], tickets[0], NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(s->q[1], tickets[1], NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_timeline_destroy(timeline));
}

/* It has failed, and its turn to say so is yet to come. */
on_stage_with(test_R18_the_event_is_not_believed_past_own_work_that_has_failed, OTHERS)
{
    void *failing = metal_retain(signalling(s->q[0], at(s->t[0], 5)));
    uint64_t value = 0;
    softmetal_fail_as(failing, SOFTMETAL_PAGE_FAULT, NULL);
    commit_new(s->q[0]);
    commit(s->q[0], failing);
    softmetal_finish(failing);
    other_code_signals(s->t[0], 7);
    assert_int_equal(value_of(s->t[0]), 4);
    assert_result(gpusync_timeline_wait(s->t[0], 5, 0, NULL), GPUSYNC_TIMEOUT);
    assert_true(finish_next(s->q[0]));
    assert_result(gpusync_timeline_query(s->t[0], &value, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(value, 4);
    metal_release(failing);
}

/* A's signal is believed while A waits for its turn; what was to be raised behind it is raised then. */
on_stage_with(test_R12_R18_a_value_behind_one_that_is_believed_is_raised, .queues = 3, .timelines = 2,
              .timeline = {.signalled_by_others = true, .order_only = true})
{
    void *waits = waiting(s->q[0], at(s->t[1], 1)), *brings = signalling(s->q[2], at(s->t[1], 1));
    encode_signal(s->q[0], waits, at(s->t[0], 3));
    commit(s->q[2], brings);
    gpusync_ticket ticket = commit(s->q[0], waits);
    commit(s->q[1], signalling(s->q[1], at(s->t[0], 4))); /* held: 3 is sent, and not reached */
    assert_ok(gpusync_queue_cancel_held(s->q[1], GPUSYNC_EVERYTHING));
    complete(brings);
    complete(waits);
    finish_and_release(waits); /* its handler comes before that of what it waited for */
    finish_and_release(brings);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_int_equal(value_of(s->t[0]), 4);
    assert_int_equal(shown(s->t[0]), 4);
}

/* Another process has signalled 7, and nothing of gpusync's has looked since: work that is encoded now neither signals
   below it, nor has the GPU wait for it. */
on_stage_with(test_R18_work_that_is_encoded_knows_what_the_event_shows, OTHERS)
{
    void *buffer = new_buffer(s->q[0]);
    uint64_t waits = softmetal_message_count("encodeWaitForEvent:value:");
    other_code_signals(s->t[0], 7);
    assert_result(gpusync_encode_signal(s->q[0], buffer, at(s->t[0], 7)), GPUSYNC_ERROR_NOT_RISING);
    other_code_signals(s->t[0], 9);
    encode_wait(s->q[0], buffer, at(s->t[0], 9));
    assert_int_equal(softmetal_message_count("encodeWaitForEvent:value:"), waits);
    encode_signal(s->q[0], buffer, at(s->t[0], 10));
    commit(s->q[0], buffer);
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 10);
}

on_stage_with(test_R18_the_event_is_not_read_where_no_other_code_signals, .timelines = 1)
{
    other_code_signals(s->t[0], 3);
    assert_int_equal(value_of(s->t[0]), 0);
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    uint64_t value = softmetal_message_count("signaledValue");
    assert_int_equal(value_of(s->t[0]), 0);
    assert_int_equal(softmetal_message_count("signaledValue"), value);
}

on_stage_with(test_R18_an_imported_event_starts_where_it_stands, .timeline = {.signalled_by_others = true})
{
    static const uint64_t stands[] = {0, 7, GPUSYNC_MAX_VALUE, GPUSYNC_MAX_VALUE + 1, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < LENGTH(stands); i++) {
        void *event = metal_shared_event_new(s->metal_device);
        gpusync_timeline_desc desc = {.initial_value = UINT64_MAX, .shared_event = event};
        uint64_t base = 5;
        if (stands[i]) metal_event_signal(event, stands[i]);
        gpusync_timeline *timeline = timeline_from(s->device, &desc);
        assert_ptr_equal(gpusync_timeline_metal(timeline, &base), event);
        assert_int_equal(base, 0);
        if (stands[i] == UINT64_MAX) assert_failed_at(timeline, GPUSYNC_ERROR_EXECUTION, 0);
        else assert_int_equal(value_of(timeline), stands[i] < GPUSYNC_MAX_VALUE ? stands[i] : GPUSYNC_MAX_VALUE);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_int_equal(softmetal_retain_count(event), 1);
        metal_release(event);
    }
}

/* ... whose event is not read any more. */
on_stage_with(test_R18_the_value_of_failure_on_the_event_fails_the_timeline, OTHERS)
{
    gpusync_ticket ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 5)), BUFFERS(new_buffer(s->q[0])), .flags = ON_GPU);
    other_code_signals(s->t[0], 3);
    assert_int_equal(value_of(s->t[0]), 3);
    other_code_signals(s->t[0], UINT64_MAX);
    assert_failed_at(s->t[0], GPUSYNC_ERROR_EXECUTION, 3);
    uint64_t reads = softmetal_message_count("signaledValue");
    assert_failed_at(s->t[0], GPUSYNC_ERROR_EXECUTION, 3);
    assert_ok(gpusync_timeline_wait(s->t[0], 3, 0, NULL));
    assert_result(gpusync_timeline_wait(s->t[0], 4, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(softmetal_message_count("signaledValue"), reads);
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
}

on_stage_with(test_R18_the_listener_ends_waits_callbacks_and_held_work, OTHERS)
{
    gpusync_ticket held = SUBMIT(s->q[0], WAITS(at(s->t[0], 2)));
    note notes[3] = {0};
    job j = {0};
    on_done(at(s->t[0], 1), &notes[0]);
    on_done(at(s->t[0], 3), &notes[1]);
    on_done(ticket_at(s->q[0], held), &notes[2]);
    job_value(&j, s->t[0], 3, GPUSYNC_FOREVER);
    await_parked(1);
    other_code_signals(s->t[0], 1);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_noted(&notes[0], GPUSYNC_OK);
    assert_int_equal(calls_of(&notes[2]), 0);
    other_code_signals(s->t[0], 2);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_noted(&notes[2], GPUSYNC_OK);
    assert_true(gpusync_is_done(s->q[0], held));
    assert_int_equal(calls_of(&notes[1]), 0);
    other_code_signals(s->t[0], 3);
    assert_ok(job_end(&j));
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_noted(&notes[1], GPUSYNC_OK);
}

/* Metal ends the process, on some systems, when too many blocks wait for one event. */
on_stage_with(test_R18_blocks_of_listeners_do_not_pile_up, OTHERS)
{
    note n = {0};
    set_quirks(.refused_listeners = true);
    on_done(at(s->t[0], 100000), &n); /* never comes */
    for (uint64_t i = 1; i <= 300; i++) {
        assert_result(gpusync_timeline_wait(s->t[0], i, 1, NULL), GPUSYNC_TIMEOUT);
        assert_result(gpusync_timeline_wait(s->t[0], 50000, 1, NULL), GPUSYNC_TIMEOUT);
        other_code_signals(s->t[0], i);
    }
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_in_range(softmetal_live("block"), 0, 3);
    assert_int_equal(calls_of(&n), 0);
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->t[0] = NULL;
    assert_noted(&n, GPUSYNC_ERROR_DESTROYED);
}

/* Two blocks of one value ask for the next one once. */
on_stage_with(test_R18_what_metal_is_asked_for_does_not_multiply, OTHERS)
{
    enum { ROUNDS = 20 };
    static note notes[2 * ROUNDS + 1];
    memset(notes, 0, sizeof notes);
    uint64_t asked = softmetal_message_count("notifyListener:atValue:block:");
    on_done(at(s->t[0], 10), &notes[0]);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        on_done(at(s->t[0], 10 * i - 5), &notes[2 * i - 1]); /* a lower one */
        other_code_signals(s->t[0], 10 * i - 5);
        assert_true(softmetal_settle_listeners(SECONDS(60)));
        on_done(at(s->t[0], 10 * i + 10), &notes[2 * i]);
        other_code_signals(s->t[0], 10 * i);
        assert_true(softmetal_settle_listeners(SECONDS(60)));
    }
    assert_in_range(softmetal_message_count("notifyListener:atValue:block:") - asked, 2 * ROUNDS, 3 * ROUNDS + 1);
    other_code_signals(s->t[0], 10 * ROUNDS + 10);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    for (unsigned i = 0; i < LENGTH(notes); i++) assert_noted(&notes[i], GPUSYNC_OK);
}

/* Each lower value needs a block of its own; beyond some gpusync asks for none, and looks find the values. */
on_stage_with(test_R18_blocks_for_falling_values_do_not_pile_up, .no_queue = true, .timelines = 1,
              .timeline = {.signalled_by_others = true})
{
    static note notes[300];
    set_quirks(.refused_listeners = true); /* the 101st ends the process */
    memset(notes, 0, sizeof notes);
    for (unsigned i = 0; i < LENGTH(notes); i++) on_done(at(s->t[0], 1000 - i), &notes[i]);
    assert_true(softmetal_live("block") < 100);
    other_code_signals(s->t[0], 1000);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    for (unsigned i = 0; i < LENGTH(notes); i++) assert_noted(&notes[i], GPUSYNC_OK);
}

/* A listener that is asked for a value which the event shows already tells at once. While the value is not believed,
   for work of our own is to signal a lower one, that would never end. */
on_stage_with(test_R18_a_listener_is_not_asked_for_a_value_that_the_event_shows, OTHERS)
{
    note n = {0};
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 4)));
    other_code_signals(s->t[0], 5);
    uint64_t asked = softmetal_message_count("notifyListener:atValue:block:");
    on_done(at(s->t[0], 5), &n);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_in_range(softmetal_message_count("notifyListener:atValue:block:") - asked, 0, 1);
    assert_int_equal(calls_of(&n), 0);
    finish_all(s);
    assert_noted(&n, GPUSYNC_OK);
}

typedef enum deafness { TO_THE_HOST, TO_EVERYTHING, TO_THE_PAST, DEAFNESSES } deafness;

static void set_deaf(deafness kind)
{
    set_quirks(.deaf_listeners = kind == TO_THE_HOST, .deaf_to_everything = kind == TO_EVERYTHING,
               .deaf_to_the_past = kind == TO_THE_PAST);
}

typedef enum looker { A_WAIT, A_POLL, RUN_CALLBACKS, LOOKERS } looker;

/* K9: no listener tells of what other code has set; whichever call looks finds it. */
on_stage_with(test_R18_a_deaf_listener_costs_a_look, OTHERS, .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    uint64_t value = 0;
    for (unsigned deaf = 0; deaf < DEAFNESSES; deaf++) {
        set_deaf((deafness)deaf);
        for (unsigned by = 0; by < LOOKERS; by++) {
            note n = {0};
            value++;
            gpusync_ticket held = SUBMIT(s->q[0], WAITS(at(s->t[0], value)));
            on_done(at(s->t[0], value), &n);
            other_code_signals(s->t[0], value);
            assert_true(softmetal_settle_listeners(SECONDS(60))); /* deaf to the past: it hears, and is not raced */
            if (by == A_WAIT) assert_ok(gpusync_wait(s->q[0], held, SECONDS(60), NULL));
            while (by == A_POLL && gpusync_poll(s->q[0], held, NULL) == GPUSYNC_NOT_READY) {} /* a slice at most */
            if (by == RUN_CALLBACKS) assert_ok(gpusync_device_run_callbacks(s->device, 0, NULL));
            assert_true(gpusync_is_done(s->q[0], held));
            run_callbacks(s);
            assert_noted(&n, GPUSYNC_OK);
        }
    }
    softmetal_tell_listeners(gpusync_timeline_metal(s->t[0], NULL));
    assert_true(softmetal_settle_listeners(SECONDS(60)));
}

/* A system without listeners: values of other code are found by looks, and by nothing else. */
on_stage(test_R18_without_a_listener_looks_find_the_values)
{
    static const gpusync_timeline_desc others = {.signalled_by_others = true};
    note n = {0};
    softmetal_hide_class("MTLSharedEventListener");
    s->t[0] = timeline_from(s->device, &others);
    gpusync_ticket held = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)));
    on_done(at(s->t[0], 1), &n);
    other_code_signals(s->t[0], 1);
    assert_int_equal(softmetal_live("block"), 0);
    assert_ok(gpusync_timeline_wait(s->t[0], 1, SECONDS(60), NULL));
    assert_ok(gpusync_wait(s->q[0], held, SECONDS(60), NULL));
    run_callbacks(s);
    assert_noted(&n, GPUSYNC_OK);
    softmetal_hide_class(NULL);
}

/* -- the pool of events ------------------------------------------------------------------------------------------- */

on_stage_with(test_S7_an_event_is_used_again_and_no_value_of_its_past_counts, .queues = 2)
{
    static const uint64_t initial[] = {0, 3, 0, 500, 2, 0};
    for (size_t i = 0; i < LENGTH(initial); i++) {
        gpusync_timeline_desc desc = {.initial_value = initial[i]};
        gpusync_timeline *timeline = timeline_from(s->device, &desc);
        void *consumer = waiting(s->q[1], at(timeline, initial[i] + 2));
        assert_int_equal(softmetal_live("shared_event"), 1);
        assert_int_equal(value_of(timeline), initial[i]);
        assert_result(gpusync_timeline_wait(timeline, initial[i] + 1, 0, NULL), GPUSYNC_TIMEOUT);
        signal_value(timeline, initial[i] + 1);
        commit(s->q[0], signalling(s->q[0], at(timeline, initial[i] + 2)));
        gpusync_ticket ticket = commit(s->q[1], consumer);
        assert_true(is_sent(consumer));
        assert_false(finish_next(s->q[1])); /* the GPU sees no value of the event's past as the one that it waits for */
        finish_all(s);
        assert_ok(gpusync_poll(s->q[1], ticket, NULL));
        assert_int_equal(value_of(timeline), initial[i] + 2);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_int_equal(softmetal_live("shared_event"), 1); /* kept */
    }
    assert_in_range(softmetal_message_count("newSharedEvent"), 1, 2); /* 500 is above what the first one shows */
}

on_stage(test_S7_a_base_is_told_and_two_timelines_never_share_an_event)
{
    gpusync_timeline *timeline = new_timeline(s->device);
    uint64_t base = 99;
    signal_value(timeline, 4);
    assert_ok(gpusync_timeline_destroy(timeline));
    timeline = new_timeline(s->device);
    gpusync_timeline *other = new_timeline(s->device);
    assert_int_equal(softmetal_live("shared_event"), 2);
    signal_value(other, 1);
    assert_int_equal(value_of(timeline), 0);
    signal_value(timeline, 3);
    assert_non_null(gpusync_timeline_metal(timeline, &base));
    assert_int_equal(metal_event_value(gpusync_timeline_metal(timeline, NULL)), base + 3);
    assert_ptr_not_equal(gpusync_timeline_metal(timeline, NULL), gpusync_timeline_metal(other, NULL));
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_timeline_destroy(other));
}

typedef enum reason_to_drop { HANDED_OUT, FAILED, USED_UP, OTHERS_SIGNAL, IMPORTED, REASONS } reason_to_drop;

on_stage(test_S7_an_event_that_other_code_may_know_or_that_is_used_up_is_not_used_again)
{
    for (unsigned reason = 0; reason < REASONS; reason++) {
        void *event = reason == IMPORTED ? metal_shared_event_new(s->metal_device) : NULL;
        gpusync_timeline_desc desc = {.shared_event = event, .signalled_by_others = reason == OTHERS_SIGNAL};
        gpusync_timeline *timeline = timeline_from(s->device, &desc);
        if (reason == HANDED_OUT) assert_non_null(gpusync_timeline_metal(timeline, NULL));
        if (reason == FAILED) assert_ok(gpusync_timeline_fail(timeline, NULL));
        if (reason == USED_UP) signal_value(timeline, GPUSYNC_MAX_VALUE);
        assert_ok(gpusync_timeline_destroy(timeline));
        if (event) assert_int_equal(softmetal_retain_count(event), 1);
        metal_release(event);
        assert_int_equal(softmetal_live("shared_event"), 0);
    }
}

/* A signal that is still to come would count for the next timeline over the event. */
on_stage_with(test_S7_an_event_with_a_signal_on_its_way_is_not_used_again, .queues = 2)
{
    gpusync_timeline *timeline = new_timeline(s->device);
    commit(s->q[0], signalling(s->q[0], at(timeline, 5)));
    assert_ok(gpusync_timeline_destroy(timeline));
    timeline = new_timeline(s->device);
    void *held = waiting(s->q[1], at(timeline, 1));
    commit(s->q[1], held);
    finish_all(s);
    assert_int_equal(value_of(timeline), 0);
    assert_false(is_sent(held));
    signal_value(timeline, 1);
    finish_all(s);
    gpusync_ticket ticket = commit_new(s->q[1]);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[1], ticket, NULL));
    assert_ok(gpusync_timeline_destroy(timeline));
}

on_stage(test_S7_a_bounded_number_of_events_is_kept)
{
    enum { TIMELINES = 100 };
    gpusync_timeline *timelines[TIMELINES];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < TIMELINES; i++) {
            gpusync_timeline_desc desc = {.initial_value = (uint64_t)i};
            timelines[i] = timeline_from(s->device, &desc);
        }
        for (int i = 0; i < TIMELINES; i++) assert_int_equal(value_of(timelines[i]), i);
        for (int i = 0; i < TIMELINES; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
        assert_in_range(softmetal_live("shared_event"), 1, 32);
    }
}

/* However high an event of the pool stands, GPUSYNC_MAX_VALUE of the next timeline is below UINT64_MAX on it. */
on_stage(test_S7_no_value_wraps_around_on_an_event_that_stands_high)
{
    static const uint64_t stands[] = {GPUSYNC_MAX_VALUE / 2, GPUSYNC_MAX_VALUE / 2 + 1, GPUSYNC_MAX_VALUE - 2};
    for (size_t i = 0; i < LENGTH(stands); i++) {
        gpusync_timeline *timeline = new_timeline(s->device);
        uint64_t base = 0;
        signal_value(timeline, stands[i]);
        assert_ok(gpusync_timeline_destroy(timeline));
        timeline = new_timeline(s->device);
        commit(s->q[0], signalling(s->q[0], at(timeline, GPUSYNC_MAX_VALUE)));
        finish_all(s);
        assert_int_equal(value_of(timeline), GPUSYNC_MAX_VALUE);
        assert_non_null(gpusync_timeline_metal(timeline, &base));
        assert_true(base <= UINT64_MAX - 1 - GPUSYNC_MAX_VALUE);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}
