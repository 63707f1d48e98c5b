/* test_raise.c - gpusync_timeline_signal_from: a block that other code calls raises a timeline (R45)

   Proved: what such a value is for waits, callbacks and work; its place in the order of values; calls and drops of the
   block, in the message too; what is refused; that the block outlives the timeline, and holds the device. */
#include "kit.h"

#define UNORDERED GPUSYNC_SUBMIT_UNORDERED
#define ON_GPU GPUSYNC_SUBMIT_ON_GPU

/* -- an object of other code: it keeps the blocks that it gets ------------------------------------------------------ */

extern void *objc_allocateClassPair(void *superclass, const char *name, size_t extra);
extern void objc_registerClassPair(void *cls);
extern void *sel_registerName(const char *name);
extern signed char class_addMethod(void *cls, void *selector, void (*method)(void), const char *types);
extern void *class_createInstance(void *cls, size_t extra);
extern void *object_dispose(void *object);
extern void *_Block_copy(const void *block);
extern void _Block_release(const void *block);

typedef struct any_block {
    void *isa;
    int flags, reserved;
    void (*invoke)(void *block, void *argument);
} any_block;

#define MOST_KEPT 8
static struct {
    any_block *block[MOST_KEPT];
    unsigned count;
} kept;

static void call_block(any_block *block)
{
    block->invoke(block, NULL);
}

static void keep_block(void *self, void *selector, any_block *block)
{
    must(kept.count < MOST_KEPT, "there is room for the block");
    kept.block[kept.count++] = (any_block *)_Block_copy(block);
}

static void call_at_once(void *self, void *selector, any_block *block)
{
    call_block(block);
}

static void call_a_copy_at_once(void *self, void *selector, any_block *block)
{
    any_block *copy = (any_block *)_Block_copy(block);
    call_block(copy);
    _Block_release(copy);
}

static void drop_at_once(void *self, void *selector, any_block *block)
{
    _Block_release(_Block_copy(block));
}

static void *keeper(void)
{
    static void *cls;
    if (!cls) {
        cls = objc_allocateClassPair(metal__class("NSObject"), "KeepsBlocks", 0);
        class_addMethod(cls, sel_registerName("keep:"), (void (*)(void))keep_block, "v@:@");
        class_addMethod(cls, sel_registerName("call:"), (void (*)(void))call_at_once, "v@:@");
        class_addMethod(cls, sel_registerName("copyAndCall:"), (void (*)(void))call_a_copy_at_once, "v@:@");
        class_addMethod(cls, sel_registerName("drop:"), (void (*)(void))drop_at_once, "v@:@");
        objc_registerClassPair(cls);
    }
    static void *object;
    if (!object)
        object = class_createInstance(cls, 0);
    kept.count = 0;
    return object;
}

static void drop_block(unsigned i)
{
    _Block_release(kept.block[i]);
}

static void call_and_drop(unsigned i)
{
    call_block(kept.block[i]);
    drop_block(i);
}

#define FROM(timeline, value, object, selector) \
    assert_ok(gpusync_timeline_signal_from(timeline, value, object, selector))

/* -- who calls ------------------------------------------------------------------------------------------------------ */

/* Each of Metal's that the front names: a wait that sleeps, a callback and held work have the value when the handler has
   been called, and the event shows it. */
on_stage_with(test_R45_a_handler_of_metals_raises_a_timeline, .queues = 2, .timelines = 1)
{
    static const char *const selectors[] = {"addPresentedHandler:", "addScheduledHandler:", "addCompletedHandler:"};
    for (unsigned i = 0; i < LENGTH(selectors); i++) {
        void *object = i ? foreign_buffer(s->q[0]) : softmetal_new_drawable(s->metal_device);
        void *held = new_buffer(s->q[1]);
        job j = {0};
        note n = {0};
        uint64_t value = i + 1;
        FROM(s->t[0], value, object, selectors[i]);
        job_value(&j, s->t[0], value, GPUSYNC_FOREVER);
        on_done(at(s->t[0], value), &n);
        SUBMIT(s->q[1], WAITS(at(s->t[0], value)), BUFFERS(held), .flags = ON_GPU);
        await_parked(1);
        assert_false(is_sent(held)); /* what the GPU does not bring holds work */
        assert_int_equal(value_of(s->t[0]), value - 1);
        if (i == 0)
            softmetal_present(object);
        else
            metal_commit(object);
        if (i == 1)
            softmetal_schedule(object);
        if (i)
            softmetal_finish(object);
        assert_ok(job_end(&j));
        assert_int_equal(calls_of(&n), 1);
        assert_noted(&n, GPUSYNC_OK);
        assert_true(is_sent(held));
        assert_int_equal(shown(s->t[0]), value);
        finish_all(s);
        metal_release(object);
    }
}

/* -- the order of values -------------------------------------------------------------------------------------------- */

/* It counts as sent from the call on: lower values and its own are refused, the host may signal below it, and higher
   signals of work wait until it is reached. */
on_both_kinds_with(test_R45_the_value_counts_as_sent_until_it_is_reached, .timelines = 1)
{
    void *object = keeper(), *strict = new_buffer(s->q[0]), *on_gpu = new_buffer(s->q[0]);
    FROM(s->t[0], 5, object, "keep:");
    assert_result(gpusync_timeline_signal_from(s->t[0], 5, object, "keep:"), GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_timeline_signal(s->t[0], 5), GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_timeline_signal(s->t[0], 6), GPUSYNC_ERROR_NOT_RISING);
    assert_result(TRY_SUBMIT(s->q[0], NULL, SIGNALS(at(s->t[0], 4))), GPUSYNC_ERROR_NOT_RISING);
    signal_value(s->t[0], 3);
    SUBMIT(s->q[0], BUFFERS(strict), SIGNALS(at(s->t[0], 6)), .flags = UNORDERED);
    SUBMIT(s->q[0], BUFFERS(on_gpu), SIGNALS(at(s->t[0], 7)), .flags = UNORDERED | ON_GPU);
    assert_false(is_sent(strict) || is_sent(on_gpu));
    assert_int_equal(kept.count, 1);
    call_and_drop(0);
    assert_int_equal(value_of(s->t[0]), 5);
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 7);
}

/* A block that is called early raises the timeline behind the lower ones, and so does one above a signal that Metal has. */
on_both_kinds_with(test_R45_a_value_is_reached_behind_each_lower_one, .timelines = 1)
{
    void *object = keeper();
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 1)), .flags = ON_GPU);
    for (unsigned i = 0; i < 3; i++)
        FROM(s->t[0], i + 2, object, "keep:");
    call_and_drop(1);
    call_and_drop(0);
    assert_int_equal(value_of(s->t[0]), 0);
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 3);
    call_and_drop(2);
    assert_int_equal(value_of(s->t[0]), 4);
}

/* Where held work is to signal the timeline the call is refused; when that is sent it is not. */
on_both_kinds_with(test_R45_held_signals_come_first, .timelines = 2)
{
    void *object = keeper();
    SUBMIT(s->q[0], WAITS(at(s->t[1], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 1)));
    assert_result(gpusync_timeline_signal_from(s->t[0], 2, object, "keep:"), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(kept.count, 0);
    signal_value(s->t[1], 1);
    FROM(s->t[0], 2, object, "keep:");
    call_and_drop(0);
    assert_int_equal(value_of(s->t[0]), 0);
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 2);
}

/* -- calls and drops ------------------------------------------------------------------------------------------------ */

/* A call counts once, and a drop behind it does nothing. */
on_stage_with(test_R45_a_second_call_does_nothing, .timelines = 1)
{
    FROM(s->t[0], 1, keeper(), "keep:");
    call_block(kept.block[0]);
    call_block(kept.block[0]);
    signal_value(s->t[0], 2);
    call_and_drop(0);
    assert_int_equal(value_of(s->t[0]), 2);
}

/* Dropped, the block fails its timeline, with a class and a text; an order_only one rises. */
on_stage_with(test_R45_a_block_that_is_dropped_fails_its_timeline, .timelines = 1)
{
    gpusync_timeline *order = timeline_from(s->device, &(const gpusync_timeline_desc){.order_only = true});
    gpusync_error error = {0};
    uint64_t value;
    void *object = keeper();
    job j = {0};
    FROM(s->t[0], 2, object, "keep:");
    FROM(order, 2, object, "keep:");
    job_value(&j, s->t[0], 2, GPUSYNC_FOREVER);
    await_parked(1);
    drop_block(0);
    drop_block(1);
    assert_result(job_end(&j), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_timeline_query(s->t[0], &value, &error), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_string_equal(error.message, "the block that was to signal it was dropped without a call");
    assert_int_equal(error.ticket, 0);
    assert_int_equal(value_of(order), 2);
    assert_ok(gpusync_timeline_destroy(order));
}

/* A frame that is dropped: its handler is called, or its block goes. */
on_stage_with(test_R45_a_drawable_that_is_dropped, .timelines = 2)
{
    for (unsigned calls = 0; calls < 2; calls++) {
        void *drawable = softmetal_new_drawable(s->metal_device);
        FROM(s->t[calls], 1, drawable, "addPresentedHandler:");
        softmetal_drop_drawable(drawable, calls);
        metal_release(drawable);
    }
    assert_failed(s->t[0], GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(value_of(s->t[1]), 1);
}

/* The object calls, or drops, the block before the message has returned. */
on_stage_with(test_R45_the_block_may_be_called_in_the_message, .timelines = 2)
{
    FROM(s->t[0], 1, keeper(), "call:");
    assert_int_equal(value_of(s->t[0]), 1);
    FROM(s->t[0], 2, keeper(), "copyAndCall:");
    assert_int_equal(value_of(s->t[0]), 2);
    FROM(s->t[1], 1, keeper(), "drop:");
    assert_failed(s->t[1], GPUSYNC_ERROR_CANCELLED);
}

/* -- what is refused ------------------------------------------------------------------------------------------------ */

/* After an error the object has been asked whether it responds, at most, and nothing has changed. */
on_stage_with(test_R45_what_is_refused_has_changed_nothing, .timelines = 2)
{
    void *object = keeper();
    gpusync_timeline *t = s->t[0];
    fail_timeline(s->t[1], GPUSYNC_ERROR_COMPILE);
    signal_value(t, 1);
    const struct {
        gpusync_timeline *timeline;
        uint64_t value;
        void *object;
        const char *selector;
        gpusync_result result;
    } rows[] = {
        {NULL, 2, object, "keep:", GPUSYNC_ERROR_INVALID_ARGUMENT},
        {t, 2, NULL, "keep:", GPUSYNC_ERROR_INVALID_ARGUMENT},
        {t, 2, object, NULL, GPUSYNC_ERROR_INVALID_ARGUMENT},
        {t, 2, object, "addPresentedHandler:", GPUSYNC_ERROR_UNSUPPORTED},
        {t, 2, object, "", GPUSYNC_ERROR_UNSUPPORTED},
        {t, 0, object, "keep:", GPUSYNC_ERROR_NOT_RISING},
        {t, 1, object, "keep:", GPUSYNC_ERROR_NOT_RISING},
        {t, GPUSYNC_MAX_VALUE + 1, object, "keep:", GPUSYNC_ERROR_NOT_RISING},
        {s->t[1], 2, object, "keep:", GPUSYNC_ERROR_COMPILE},
    };
    for (size_t i = 0; i < LENGTH(rows); i++)
        assert_result(gpusync_timeline_signal_from(rows[i].timeline, rows[i].value, rows[i].object, rows[i].selector),
                      rows[i].result);
    memory_fail(1, false);
    assert_result(gpusync_timeline_signal_from(t, 2, object, "keep:"), GPUSYNC_ERROR_OUT_OF_MEMORY);
    memory_fail(0, false);
    assert_int_equal(kept.count, 0);
    FROM(t, 2, object, "keep:");
    call_and_drop(0);
    commit_failing(s->q[0], SOFTMETAL_SUBMISSIONS_IGNORED);
    finish_all(s);
    assert_result(gpusync_timeline_signal_from(t, 3, object, "keep:"), GPUSYNC_ERROR_DEVICE_LOST);
}

static void signal_when_destroyed(void *user, gpusync_result result, const gpusync_error *error)
{
    assert_result(gpusync_timeline_signal_from((gpusync_timeline *)user, 2, keeper(), "keep:"),
                  GPUSYNC_ERROR_DESTROYED);
}

on_stage_with(test_R45_a_timeline_that_is_being_destroyed_takes_no_block, .timelines = 1)
{
    assert_ok(gpusync_on_done(at(s->t[0], 1), signal_when_destroyed, s->t[0]));
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->t[0] = NULL;
}

/* -- lifetimes ------------------------------------------------------------------------------------------------------ */

/* The timeline is gone, and the value still reaches the event and committed work. */
on_both_kinds_with(test_R45_the_block_outlives_the_timeline, .queues = 2, .timelines = 1)
{
    void *held = new_buffer(s->q[1]), *event = metal_retain(gpusync_timeline_metal(s->t[0], NULL));
    uint64_t before = metal_event_value(event);
    FROM(s->t[0], 2, keeper(), "keep:");
    SUBMIT(s->q[1], WAITS(at(s->t[0], 2)), BUFFERS(held));
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->t[0] = NULL;
    assert_false(is_sent(held));
    call_and_drop(0);
    assert_true(is_sent(held));
    assert_int_equal(metal_event_value(event), before + 2);
    finish_all(s);
    metal_release(event);
}

/* The block holds the device: its destroy waits for a second, then says so. What the block does later is safe. */
on_stage_with(test_R45_the_destroy_of_the_device_waits_for_the_block, .timelines = 1)
{
    FROM(s->t[0], 1, keeper(), "keep:");
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    assert_ok(gpusync_queue_destroy(s->q[0]));
    s->t[0] = NULL;
    s->q[0] = NULL;
    assert_ok(gpusync_device_destroy(s->device));
    s->device = NULL;
    assert_true(log_has(GPUSYNC_LOG_WARNING, "Metal still has blocks of gpusync"));
    call_and_drop(0);
}

/* It is no work of a queue: no count, no wait for everything and no trace knows it; the report names it. */
static unsigned traced[8];

static void count_kind(void *user, const gpusync_trace_event *event)
{
    traced[event->kind]++;
}

static const gpusync_trace counting = {count_kind, NULL};

on_stage_with(test_R45_the_report_names_the_block, .timelines = 1)
{
    char text[2048];
    gpusync_stats stats;
    job j = {0};
    memset(traced, 0, sizeof traced);
    assert_ok(gpusync_device_set_trace(s->device, &counting));
    FROM(s->t[0], 3, keeper(), "keep:");
    job_value(&j, s->t[0], 2, GPUSYNC_FOREVER);
    await_parked(1);
    gpusync_device_report(s->device, text, sizeof text);
    assert_non_null(
        strstr(text, "value 2 of timeline 'a', which UNORDERED work 1 of queue 'blocks of other code' is to"));
    assert_ok(gpusync_device_wait(s->device, 0, NULL));
    assert_ok(gpusync_device_get_stats(s->device, NULL, &stats));
    assert_int_equal(stats.commits, 0);
    call_and_drop(0);
    assert_ok(job_end(&j));
    assert_ok(gpusync_device_set_trace(s->device, NULL));
    assert_int_equal(traced[GPUSYNC_TRACE_SIGNAL], 1);
    assert_int_equal(traced[GPUSYNC_TRACE_WAIT], 2); /* of the device, of the value */
    assert_int_equal(traced[GPUSYNC_TRACE_COMMIT] + traced[GPUSYNC_TRACE_SENT] + traced[GPUSYNC_TRACE_ENDED], 0);
}
