/* test_softmetal4.c - Metal 4 of the software device: it behaves as softmetal.h says, and aborts where it must

   As test_softmetal.c, which has what both generations share. */
#include "softmetal_words.h"

/* What the last feedback said. */
static struct report {
    long code, cause, root; /* -1: there is no such error */
    double start, end;
} report;

static void note_feedback(block *self, void *feedback)
{
    void *pool = metal_pool_push(), *error = metal_get(feedback, "error"), *cause = below(error);
    (void)self;
    report = (struct report){code_of(error), code_of(cause), code_of(below(cause)), metal_gpu_start(feedback), metal_gpu_end(feedback)};
    metal_pool_pop(pool);
}

static void on_feedback(stage *s, int number)
{
    block b = stack_block(&s->n, number, note_feedback);
    metal4_add_feedback_handler(s->options, &b);
}

static stage *open4(softmetal_clock clock)
{
    stage *s = stage_open(clock);
    s->queue = s->n.queue = mine(metal4_queue_new(s->device));
    s->buffer = mine(metal4_buffer_new(s->device));
    s->allocator = mine(metal4_allocator_new(s->device));
    s->memory = memory_new(s->device, 64);
    s->options = mine(metal4_options_new());
    return s;
}
static int set_up(void **state) { return !(*state = open4(*(const softmetal_clock *)*state)); }

/* The buffer fills the memory, or does nothing with 0, and is ended. */
static void record(stage *s, void *buffer, void *allocator, unsigned char value)
{
    metal4_begin(buffer, allocator);
    if (value) fill(buffer, s->memory, value);
    metal4_end(buffer);
}
static void *commit(stage *s)
{
    metal4_commit(s->queue, &s->buffer, 1, s->options);
    return s->clock == SOFTMETAL_MANUAL ? softmetal_last_buffer(s->queue) : NULL;
}
/* The stage's buffer, with another allocator each time. */
static void *run_of(stage *s, unsigned char value)
{
    record(s, s->buffer, mine(metal4_allocator_new(s->device)), value);
    return commit(s);
}

/* -- work --------------------------------------------------------------------------------------------------------- */

static void a_commit_does_its_buffers_in_order_and_tells(void **state)
{
    stage *s = *state;
    void *buffers[3] = {s->buffer, mine(metal4_buffer_new(s->device)), mine(metal4_buffer_new(s->device))};
    void *other = memory_new(s->device, 64), *compute;
    double before = (double)now_ns() / 1e9;
    record(s, buffers[0], s->allocator, 1);
    metal4_begin(buffers[1], s->allocator); /* which serves one buffer after another */
    compute = metal_get(buffers[1], "computeCommandEncoder");
    assert_ptr_equal(metal_get(compute, "commandBuffer"), buffers[1]);
    metal4_barrier(compute);
    metal_copy(compute, s->memory, 0, other, 0, 64);
    metal_do(compute, "endEncoding");
    metal4_end(buffers[1]);
    record(s, buffers[2], s->allocator, 3);
    on_feedback(s, 1);
    on_feedback(s, 2);
    metal4_commit(s->queue, buffers, 3, s->options);
    settle(s);
    ORDER(&s->n, 1, 2);
    assert_int_equal(bytes_of(other)[63], 1);
    assert_int_equal(bytes_of(s->memory)[63], 3);
    assert_int_equal(report.code, -1);
    assert_true(before <= report.start && report.start <= report.end);
    metal4_allocator_reset(s->allocator);
    record(s, s->buffer, s->allocator, 4);
    record(s, s->buffer, s->allocator, 0); /* the former one is dropped */
    metal4_commit(s->queue, &s->buffer, 1, s->options); /* has no handlers any more */
    settle(s);
    ORDER(&s->n, 1, 2);
    assert_int_equal(bytes_of(s->memory)[0], 3);
    assert_int_equal(softmetal_live("run") + softmetal_live("feedback") + softmetal_live("block"), 0);
    on_feedback(s, 3); /* goes with the options */
}

static void one_buffer_is_in_several_runs(void **state)
{
    stage *s = *state;
    void *runs[3], *allocators[3];
    for (int i = 0; i < 3; i++) {
        allocators[i] = mine(metal4_allocator_new(s->device));
        on_feedback(s, i);
        record(s, s->buffer, allocators[i], (unsigned char)(i + 1));
        runs[i] = commit(s);
    }
    assert_int_equal(softmetal_outstanding(s->queue), 3);
    assert_ptr_equal(softmetal_buffer_at(s->queue, 2), runs[0]);
    assert_ptr_equal(softmetal_first_in_line(s->queue), runs[0]);
    for (int i = 0; i < 3; i++) {
        softmetal_schedule(runs[i]);
        softmetal_execute(runs[i]);
        assert_int_equal(bytes_of(s->memory)[0], i + 1);
        softmetal_complete(runs[i]);
        metal4_allocator_reset(allocators[i]); /* the other runs do not need it */
        assert_int_equal(s->n.count, i);
        softmetal_run_handler(runs[i], 0);
        assert_int_equal(s->n.count, i + 1);
        softmetal_finish(runs[i]);
    }
    assert_int_equal(softmetal_outstanding(s->queue), 0);
}

static void add_kernel(void *user, const softmetal_kernel_args *args)
{
    (void)user;
    *(unsigned char *)args->buffers[0] = (unsigned char)(*(unsigned char *)args->buffers[2] + args->grid[0]);
}
static const metal_size one = {1, 1, 1};
static void *pipeline_of(stage *s) { return mine(metal_pipeline_new(s->device, "kernel void add(", "add", NULL, 0)); }

static void kernels_find_memory_by_its_address(void **state)
{
    stage *s = *state;
    void *table = metal4_table_new(s->device, 3), *addend = memory_new(s->device, 8), *compute;
    softmetal_set_kernel("add", add_kernel, NULL, 0);
    bytes_of(addend)[1] = 5;
    bytes_of(addend)[2] = 20;
    metal4_begin(s->buffer, s->allocator);
    compute = metal_get(s->buffer, "computeCommandEncoder");
    metal_set_pipeline(compute, pipeline_of(s));
    metal4_table_set(table, metal4_address(s->memory) + 1, 0);
    metal4_table_set(table, metal4_address(addend) + 1, 2);
    metal4_set_table(compute, table);
    metal_dispatch(compute, one, one);
    metal4_table_set(table, metal4_address(s->memory) + 2, 0); /* counts for the next dispatch */
    metal4_table_set(table, metal4_address(addend) + 2, 2);
    metal_dispatch(compute, one, one);
    metal_do(compute, "endEncoding");
    metal4_end(s->buffer);
    metal_release(table);
    commit(s);
    settle(s);
    assert_memory_equal(bytes_of(s->memory), "\0\6\25", 3);
}

static void note_place(block *self, void *feedback)
{
    self->notes->found[0] = softmetal_dispatch_qos(NULL);
    self->notes->object = metal_retain(feedback); /* may be kept */
}

static void feedback_comes_on_its_dispatch_queue_under_the_real_clock(void **state)
{
    stage *s = *state;
    void *serial = dispatch_queue_create("q", dispatch_queue_attr_make_with_qos_class(NULL, 0x19, 0));
    void *queue = metal4_queue_new_on(s->device, serial);
    block b = stack_block(&s->n, 1, note_place);
    metal4_add_feedback_handler(s->options, &b);
    record(s, s->buffer, s->allocator, 7);
    metal4_commit(queue, &s->buffer, 1, s->options);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish_queue(queue);
    metal_release(queue); /* lives until its work is over */
    settle(s);
    ORDER(&s->n, 1);
    assert_int_equal(s->n.found[0], s->clock == SOFTMETAL_MANUAL ? 0 : 0x19);
    assert_true(metal_gpu_end(s->n.object) > 0);
    metal_release(s->n.object);
    assert_int_equal(softmetal_live("feedback"), 0);
    dispatch_release(serial);
}

/* -- failures ----------------------------------------------------------------------------------------------------- */

static void a_failed_run_has_a_wrapped_error(void **state)
{
    stage *s = *state;
    for (size_t i = 0; i < LENGTH(made_of_numbers); i++) {
        on_feedback(s, 1);
        softmetal_prepare_run(s->buffer, s->queue);
        softmetal_fail_as(s->buffer, made_of_numbers[i].number, NULL); /* means its next run */
        assert_ptr_equal(softmetal_run_of(s->buffer), run_of(s, 1));
        softmetal_finish(s->buffer);
        assert_int_equal(report.code, 1);
        assert_int_equal(report.cause, made_of_numbers[i].code4);
        assert_int_equal(report.root, made_of_numbers[i].number);
        assert_int_equal(bytes_of(s->memory)[0], 0);
    }
    for (int own = 0; own < 2; own++) { /* by code: the one with a star; of another domain there is no wrapper */
        on_feedback(s, 1);
        void *run = run_of(s, 1);
        softmetal_fail(run, own ? "own" : NULL, 6, "text");
        softmetal_finish(run);
        assert_int_equal(report.code, own ? 6 : 1);
        assert_int_equal(report.cause, own ? -1 : 6);
        assert_int_equal(report.root, own ? -1 : SOFTMETAL_INTERNAL);
    }
}

static void a_removed_device_fails_its_runs_and_ends_its_waits(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device);
    metal4_wait(s->queue, event, 1);
    on_feedback(s, 1);
    run_of(s, 1);
    metal4_signal(s->queue, event, 5);
    softmetal_remove_device(s->device);
    settle(s);
    ORDER(&s->n, 1);
    assert_int_equal(report.cause, 4);
    assert_int_equal(metal_event_value(event), 0); /* and nothing is signalled */
    assert_int_equal(bytes_of(s->memory)[0], 0);
}

/* -- signals and waits of the queue ------------------------------------------------------------------------------- */

static void a_wait_holds_all_later_work(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device), *other = event_new(s->device), *run;
    metal4_signal(s->queue, event, 1);
    assert_true(reaches(event, 1, 20000)); /* nothing is before it */
    metal4_wait(s->queue, event, 2);
    run = run_of(s, 1);
    metal4_signal(s->queue, event, 3);
    metal4_signal(s->queue, other, 1);
    assert_ptr_equal(softmetal_last_signalled(s->queue), other);
    if (s->clock == SOFTMETAL_MANUAL) assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_WAIT_DUE);
    assert_false(reaches(other, 1, 5));
    metal_event_signal(event, 2);
    if (s->clock == SOFTMETAL_MANUAL) assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_COMPLETE_DUE);
    settle(s);
    assert_int_equal(metal_event_value(event), 3);
    assert_int_equal(metal_event_value(other), 1);
    assert_int_equal(bytes_of(s->memory)[0], 1);
    assert_int_equal(softmetal_live("queue_operation"), 0);
}

static void a_wait_that_times_out_lets_later_work_run(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device), *run;
    set_watchdog(MS(20));
    metal4_wait(s->queue, event, 1);
    on_feedback(s, 1);
    run = run_of(s, 1);
    metal4_signal(s->queue, event, 9);
    if (s->clock == SOFTMETAL_MANUAL) {
        softmetal_time_out(run);
        assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_COMPLETE_DUE);
        assert_int_equal(bytes_of(s->memory)[0], 0);
    }
    settle(s);
    ORDER(&s->n, 1);
    assert_int_equal(report.code, -1);
    assert_int_equal(bytes_of(s->memory)[0], 1);
    assert_int_equal(metal_event_value(event), 9);
}

static void both_kinds_of_queue_meet_at_events(void **state)
{
    stage *s = *state;
    void *older = mine(metal_queue_new(s->device, 4)), *buffer = buffer_in(older), *event = event_new(s->device);
    metal_encode_wait(buffer, event, 1);
    fill(buffer, s->memory, 9);
    metal_encode_signal(buffer, event, 2);
    metal_commit(buffer);
    run_of(s, 1);
    metal4_signal(s->queue, event, 1);
    metal4_wait(s->queue, event, 2);
    metal4_signal(s->queue, event, 3);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish_queue(s->queue), softmetal_finish(buffer);
    assert_true(reaches(event, 3, 20000));
    settle(s);
    assert_int_equal(bytes_of(s->memory)[0], 9);
}

static void metal4_may_be_missing(void **state)
{
    static const char *const creations[] = {"newMTL4CommandQueue", "newCommandBuffer", "newCommandAllocator"};
    stage *s = *state;
    assert_true(SEND(signed char, (ID, long), s->device, "supportsFamily:", 5002l));
    for (unsigned i = 0; i < 5; i++) {
        softmetal_fail_creation(1, false);
        assert_null(i < 3 ? metal_get(s->device, creations[i]) : i < 4 ? metal4_options_new() : metal4_table_new(s->device, 1));
    }
    softmetal_fail_creation(0, false);
    for (unsigned i = 0; i < 3; i++) {
        softmetal_hide_selector(creations[i]);
        assert_false(responds(s->device, creations[i]));
    }
    assert_true(responds(s->device, "newCommandQueue"));
    assert_false(responds(s->queue, "commandBuffer"));
}

static char saw[200];
static void hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    assert_ptr_equal(object, user);
    snprintf(saw + strlen(saw), sizeof saw - strlen(saw), "%c%s ", phase == SOFTMETAL_BEFORE ? '<' : '>', selector);
}

static void hooks_see_commits_and_operations(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device);
    saw[0] = 0;
    record(s, s->buffer, s->allocator, 1);
    softmetal_set_message_hook(hook, s->queue);
    commit(s);
    metal4_wait(s->queue, event, 0);
    metal4_signal(s->queue, event, 1);
    softmetal_set_message_hook(NULL, NULL);
    settle(s);
    assert_string_equal(saw, "<commit:count:options: >commit:count:options: <waitForEvent:value: >waitForEvent:value: "
                             "<signalEvent:value: >signalEvent:value: ");
}

static void *commit_often(void *user)
{
    stage *s = user;
    void *pool = metal_pool_push(), *buffer = mine(metal4_buffer_new(s->device)), *event = event_new(s->device);
    void *allocator = mine(metal4_allocator_new(s->device));
    for (uint64_t i = 1; i <= 50; i++) {
        record(s, buffer, allocator, 0);
        metal4_commit(s->queue, &buffer, 1, NULL);
        metal4_signal(s->queue, event, i);
        while (metal_event_value(event) < i)
            sched_yield();
        metal4_allocator_reset(allocator);
    }
    metal_pool_pop(pool);
    return NULL;
}

static void threads_commit_to_one_queue(void **state)
{
    stage *s = *state;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        threads[i] = begin_thread(commit_often, s);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    settle(s);
    assert_int_equal(softmetal_outstanding(s->queue), 0);
}

/* -- quirks ------------------------------------------------------------------------------------------------------- */

static void fail_one(stage *s)
{
    on_feedback(s, 1);
    softmetal_fail_next_as(1, SOFTMETAL_HANG);
    run_of(s, 1);
}
static bool signals_in_order(stage *s, void *event, void *other)
{
    void *release = event_new(s->device), *listener = listener_new();
    metal4_wait(s->queue, release, 1);
    metal4_signal(s->queue, event, 1);
    metal4_signal(s->queue, other, 1);
    on_event(other, listener, 1, &s->n, 2);
    on_event(event, listener, 1, &s->n, 1);
    metal_event_signal(release, 1);
    settle(s);
    assert_int_equal(s->n.count, 2);
    return s->n.order[0] == 1;
}
/* ... which is then over. */
static softmetal_due due_behind(stage *s, void *event)
{
    metal4_signal(s->queue, event, 1);
    void *run = run_of(s, 1);
    softmetal_due due = softmetal_what_is_due(run);
    if (due == SOFTMETAL_COMPLETE_DUE) softmetal_finish(run);
    softmetal_set_quirks(&(softmetal_quirks){0});
    assert_int_equal(metal_event_value(event), 1);
    return due;
}
static bool fires_before_a_run(stage *s, void *event)
{
    metal4_signal(s->queue, event, 1);
    bool fires = metal_event_value(event) == 1;
    softmetal_complete(run_of(s, 1));
    return fires;
}

/* In the order of softmetal.h */
#define QUIRKS(X)                                                                                                        \
    X(no_metal4_family, REAL, , !SEND(signed char, (ID, long), s->device, "supportsFamily:", 5002l))                     \
    X(bare_feedback_errors, MANUAL, fail_one(s); settle(s), report.code == 1 && report.cause == SOFTMETAL_HANG)          \
    X(options_keep_handlers, MANUAL, on_feedback(s, 1); run_of(s, 1); run_of(s, 2); settle(s), s->n.count == 2)          \
    X(signals_die_with_failure, MANUAL, fail_one(s); metal4_signal(s->queue, e, 1); settle(s), metal_event_value(e) == 0) \
    X(overtaken_signals, REAL, , !signals_in_order(s, e, f))                                                             \
    X(signals_held, MANUAL, , due_behind(s, e) == SOFTMETAL_NOTHING_DUE)                                                 \
    X(signals_late, MANUAL, , !fires_before_a_run(s, e))

static bool sees(stage *s, size_t row, bool with)
{
    void *e = event_new(s->device), *f = event_new(s->device);
    QUIRKS(SEE_IN_TURN)
    (void)with;
    return false;
}
static void each_quirk_is_seen_with_it_and_not_without(void **state)
{
    static const quirk_row rows[] = {QUIRKS(ROW_OF_QUIRK)};
    const size_t from = offsetof(softmetal_quirks, no_metal4_family);
    (void)state;
    assert_int_equal(LENGTH(rows), sizeof(softmetal_quirks) - from);
    assert_quirks(rows, LENGTH(rows), from, sees, open4);
}

/* -- rules -------------------------------------------------------------------------------------------------------- */

static stage *on_stage;
static void *add_another(void *unused)
{
    block b = global_block(&on_stage->n, 2, NULL);
    metal4_add_feedback_handler(on_stage->options, &b);
    return unused;
}
static void intrude(void *to, const void *from)
{
    (void)to, (void)from;
    pthread_join(begin_thread(add_another, NULL), NULL);
}
static void add_intruding(stage *s)
{
    static const descriptor intruding = {0, sizeof(block), intrude, block_dispose, "v16@?0@8", NULL};
    block b = stack_block(&s->n, 1, NULL);
    b.descriptor = &intruding;
    metal4_add_feedback_handler(s->options, &b);
}
static void ask_its_error(block *self, void *feedback) { (void)self, (void)metal_get(feedback, "error"); }
static void on_feedback_do(stage *s, void (*does)(block *, void *))
{
    block b = stack_block(&s->n, 1, does);
    metal4_add_feedback_handler(s->options, &b);
}
/* An encoder of the stage's buffer, which records; then with a dispatch that has one argument. */
static void *compute_in(stage *s)
{
    metal4_begin(s->buffer, s->allocator);
    return metal_get(s->buffer, "computeCommandEncoder");
}
static void *bind(stage *s, void *pipeline, uint64_t address)
{
    void *compute = compute_in(s), *table = metal4_table_new(s->device, 1);
    metal_set_pipeline(compute, pipeline);
    metal4_table_set(table, address, 0);
    metal4_set_table(compute, table);
    metal_dispatch(compute, one, one);
    return compute;
}
static void end_and_commit(stage *s, void *compute)
{
    metal_do(compute, "endEncoding");
    metal4_end(s->buffer);
    commit(s);
}
static void commit_two(stage *s, void *second)
{
    void *buffers[2] = {s->buffer, second};
    record(s, s->buffer, s->allocator, 1);
    metal4_commit(s->queue, buffers, 2, NULL);
}
static void feedback_on_released_queue(stage *s)
{
    void *serial = dispatch_queue_create("q", NULL), *queue;
    softmetal_set_clock(SOFTMETAL_REAL);
    queue = metal4_queue_new_on(s->device, serial);
    dispatch_release(serial);
    on_feedback(s, 1);
    record(s, s->buffer, s->allocator, 0);
    metal4_commit(queue, &s->buffer, 1, s->options);
    softmetal_settle(SECONDS(20));
}

/* d device, q queue, b buffer, a allocator, x: of a reference that the case releases; other: a device */
#define RULES(X)                                                                                                         \
    X("allocator-reset-in-use", record(s, b, a, 1); commit(s); metal4_allocator_reset(a))                                \
    X("allocator-reset-while-recording", metal4_begin(b, a); metal4_allocator_reset(a))                                  \
    X("allocator-taken", metal4_begin(b, a); metal4_begin(metal4_buffer_new(d), a))                                      \
    X("begin-while-recording", metal4_begin(b, a); metal4_begin(b, metal4_allocator_new(d)))                             \
    X("end-without-begin", metal4_end(b))                                                                                \
    X("end-without-begin", record(s, b, a, 1); metal4_end(b))                                                            \
    X("end-with-active-encoder", compute_in(s); metal4_end(b))                                                           \
    X("second-active-encoder", compute_in(s); metal_get(b, "computeCommandEncoder"))                                     \
    X("encoder-outside-recording", metal_get(b, "computeCommandEncoder"))                                                \
    X("encoder-outside-recording", record(s, b, a, 0); metal_get(b, "computeCommandEncoder"))                            \
    X("encode-after-end", x = compute_in(s); metal_do(x, "endEncoding"); metal_fill(x, s->memory, 0, 1, 1))              \
    X("encoder-not-ended", s->buffer = metal4_buffer_new(d); compute_in(s); metal_release(s->buffer))                    \
    X("blit-out-of-range", metal_fill(compute_in(s), s->memory, 1, 64, 1))                                               \
    X("no-pipeline", metal_dispatch(compute_in(s), one, one))                                                            \
    X("unknown-gpu-address", bind(s, pipeline_of(s), 4096))                                                              \
    X("unknown-gpu-address", x = metal_buffer_new(d, 4); address = metal4_address(x); metal_release(x);                  \
      bind(s, pipeline_of(s), address))                                                                                  \
    X("message-to-freed", x = compute_in(s); metal_set_pipeline(x, pipeline_of(s)); y = metal4_table_new(d, 1);           \
      metal4_set_table(x, y); metal_release(y); metal_dispatch(x, one, one))                                             \
    X("bad-binding", metal4_table_set(metal4_table_new(d, 2), 0, 2))                                                     \
    X("bad-binding", metal4_table_new(d, 32))                                                                            \
    X("empty-commit", metal4_commit(q, &b, 0, NULL))                                                                     \
    X("nil-argument", metal4_commit(q, NULL, 1, NULL))                                                                   \
    X("nil-in-commit", commit_two(s, NULL))                                                                              \
    X("buffer-twice-in-commit", commit_two(s, b))                                                                        \
    X("wrong-class", commit_two(s, buffer_in(metal_queue_new(d, 1))))                                                    \
    X("commit-not-ended", metal4_begin(b, a); commit(s))                                                                 \
    X("commit-not-ended", commit(s))                                                                                     \
    X("commit-not-ended", run_of(s, 1); commit(s))                                                                       \
    X("recording-reset", record(s, b, a, 1); metal4_allocator_reset(a); commit(s))                                       \
    X("other-device", record(s, b, a, 1); metal4_commit(metal4_queue_new(other), &b, 1, NULL))                           \
    X("other-device", metal4_wait(q, metal_get(other, "newEvent"), 1))                                                   \
    X("wrong-class", record(s, b, a, 1); metal4_commit(q, &b, 1, s->memory))                                             \
    X("nil-argument", metal4_add_feedback_handler(s->options, NULL))                                                     \
    X("nil-argument", metal4_signal(q, NULL, 1))                                                                         \
    X("destroyed-in-use", s->memory = metal_buffer_new(d, 4); run_of(s, 1); metal_release(s->memory))                    \
    X("destroyed-in-use", x = metal4_allocator_new(d); record(s, b, x, 1); commit(s); metal_release(x))                  \
    X("destroyed-in-use", x = metal4_allocator_new(d); metal4_begin(b, x); metal_release(x))                             \
    X("destroyed-in-use", x = metal4_allocator_new(d); record(s, b, x, 1); metal_release(x); commit(s))                  \
    X("destroyed-in-use", s->memory = metal_buffer_new(d, 4); record(s, b, a, 1); metal_release(s->memory); commit(s))   \
    X("destroyed-in-use", s->buffer = metal4_buffer_new(d); run_of(s, 1); metal_release(s->buffer))                      \
    X("destroyed-in-use", x = metal_pipeline_new(d, "kernel void add(", "add", NULL, 0);                                 \
      end_and_commit(s, bind(s, x, 0)); metal_release(x))                                                                \
    X("destroyed-in-use", x = metal_buffer_new(d, 4); end_and_commit(s, bind(s, pipeline_of(s), metal4_address(x)));     \
      metal_release(x))                                                                                                  \
    X("destroyed-in-use", x = metal_shared_event_new(d); metal4_wait(q, x, 1); metal_release(x))                         \
    X("destroyed-in-use", x = metal_shared_event_new(d); run_of(s, 1); metal4_signal(q, x, 1); metal_release(x))         \
    X("options-on-two-threads", add_intruding(s))                                                                        \
    X("step-not-due", softmetal_time_out(run_of(s, 1)))                                                                  \
    X("step-not-due", run_of(s, 1); metal4_wait(q, event_new(d), 1); softmetal_time_out(run_of(s, 2)))                   \
    X("step-not-due", metal4_wait(q, event_new(d), 1); softmetal_complete(run_of(s, 1)))                                 \
    X("step-not-due", softmetal_set_quirks(&(softmetal_quirks){.signals_held = true});                                   \
      metal4_signal(q, event_new(d), 1); softmetal_complete(run_of(s, 1)))                                               \
    X("reset-with-work", run_of(s, 1); softmetal_reset())                                                                \
    X("reset-with-work", metal4_wait(q, event_new(d), 1); alarm(5); softmetal_reset())                                   \
    X("message-to-freed", on_feedback(s, 1); softmetal_finish(run_of(s, 1)); metal_gpu_start(s->n.given))                \
    X("message-to-freed", x = run_of(s, 1); softmetal_finish(x); softmetal_what_is_due(x))                               \
    X("message-to-freed", feedback_on_released_queue(s))                                                                 \
    X("panel-misuse", softmetal_fail_as(b, SOFTMETAL_HANG, NULL)) /* no run was prepared */                              \
    X("hidden-selector", softmetal_hide_selector("newMTL4CommandQueue"); metal4_queue_new(d))                            \
    X("feedback-queue-not-serial", metal4_queue_new_on(d, dispatch_get_global_queue(0, 0)))
#define RULES_OF_LINUX(X)                                                                                                \
    X("autorelease-without-pool", metal4_begin(b, a); metal_retain(b); metal_retain(a); metal_pool_pop(s->pool);         \
      metal_get(b, "computeCommandEncoder"))                                                                             \
    X("autorelease-without-pool", on_feedback_do(s, ask_its_error); x = run_of(s, 1);                                    \
      softmetal_fail(x, NULL, 1, NULL); softmetal_finish(x))
static const char *const broken[] = {RULES(NAME_OF_CASE) RULES_OF_LINUX(NAME_OF_CASE)};
enum { OF_ANY_SYSTEM = 0 RULES(COUNT_CASE) };

static int break_rule(size_t wanted)
{
    alarm(50);
    stage *s = on_stage = open4(SOFTMETAL_MANUAL);
    void *d = s->device, *q = s->queue, *b = s->buffer, *a = s->allocator, *other = mine(softmetal_new_device()), *x, *y;
    uint64_t address;
    RULES(BREAK_IN_TURN)
    RULES_OF_LINUX(BREAK_IN_TURN)
    fprintf(stderr, "the rule did not hold\n");
    return 0;
}
static void each_rule_that_is_broken_aborts(void **state)
{
    static const char *const rules[] = {SM_RULES_OF_METAL4(NAME_OF_RULE)};
    (void)state;
    assert_each_has_a_case(rules, LENGTH(rules), broken, LENGTH(broken));
    assert_they_abort(broken, 0, OF_ANY_SYSTEM);
}
static void pools_are_watched(void **state)
{
    (void)state;
    NOT_ON_A_MAC("softmetal does not see every pool");
    assert_they_abort(broken, OF_ANY_SYSTEM, LENGTH(broken));
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        on_real(a_commit_does_its_buffers_in_order_and_tells),
        on_manual(a_commit_does_its_buffers_in_order_and_tells),
        on_manual(one_buffer_is_in_several_runs),
        on_real(kernels_find_memory_by_its_address),
        on_real(feedback_comes_on_its_dispatch_queue_under_the_real_clock),
        on_manual(feedback_comes_on_its_dispatch_queue_under_the_real_clock),
        on_manual(a_failed_run_has_a_wrapped_error),
        on_real(a_removed_device_fails_its_runs_and_ends_its_waits),
        on_manual(a_removed_device_fails_its_runs_and_ends_its_waits),
        on_real(a_wait_holds_all_later_work),
        on_manual(a_wait_holds_all_later_work),
        on_real(a_wait_that_times_out_lets_later_work_run),
        on_manual(a_wait_that_times_out_lets_later_work_run),
        on_real(both_kinds_of_queue_meet_at_events),
        on_manual(both_kinds_of_queue_meet_at_events),
        on_real(metal4_may_be_missing),
        on_real(hooks_see_commits_and_operations),
        on_real(threads_commit_to_one_queue),
        cmocka_unit_test(each_quirk_is_seen_with_it_and_not_without),
        cmocka_unit_test(each_rule_that_is_broken_aborts),
        cmocka_unit_test(pools_are_watched),
    };
    own_path = arguments[0];
    if (count == 3 && !strcmp(arguments[1], "--break")) return break_rule((size_t)atoi(arguments[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
