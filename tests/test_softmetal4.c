/* test_softmetal4.c - Metal 4 of the software device: it behaves as Metal does, and aborts where it must

   As test_softmetal.c, which has what both generations share. */
#include "../examples/metal.h" /* first: its parameters have names of that one's types */
#include "softmetal_words.h"

extern void *const MTL4CommandQueueErrorDomain;

/* ------------------------------------------------------------------------------- a stage -- */

/* What feedback handlers found, in order. */
typedef struct report {
    long code, cause, root; /* -1: there is no such error */
    char domain[64], root_domain[64], text[LONGEST_TEXT];
    double start, end;
} report;

typedef struct stage4 {
    void *device, *queue, *buffer, *allocator, *memory, *options, *pool;
    log_ log;
    report report; /* of the last feedback */
} stage4;

static stage4 *on_stage;

static void stage4_open(stage4 *s, softmetal_clock clock)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->log.lock, NULL);
    softmetal_reset();
    softmetal_set_clock(clock);
    s->device = device_new();
    s->queue = metal4_queue_new(s->device);
    s->buffer = metal4_buffer_new(s->device);
    s->allocator = metal4_allocator_new(s->device);
    s->memory = memory_new(s->device, 64);
    s->options = metal4_options_new();
    s->pool = objc_autoreleasePoolPush();
    on_stage = s;
}

static void stage4_close(stage4 *s)
{
    objc_autoreleasePoolPop(s->pool);
    assert_true(softmetal_settle(10 * SECOND));
    objc_release(s->options);
    objc_release(s->memory);
    objc_release(s->allocator);
    objc_release(s->buffer);
    objc_release(s->queue);
    objc_release(s->device);
    softmetal_reset();
    assert_int_equal(softmetal_live(NULL), 0);
}

static void keep_text(char *to, size_t room, void *nsstring)
{
    snprintf(to, room, "%s", nsstring ? text_of(nsstring) : "");
}

static void feedback_invoke(void *self, void *feedback)
{
    block *b = self;
    report *r = &on_stage->report;
    void *pool = objc_autoreleasePoolPush(), *error = GET(feedback, "error");
    void *cause = error_below(error), *root = error_below(cause);
    __atomic_add_fetch(&b->log->inside, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&b->log->gate, __ATOMIC_ACQUIRE)) sleep_ms(1);
    __atomic_sub_fetch(&b->log->inside, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&b->log->lock);
    r->code = code_of(error);
    r->cause = code_of(cause);
    r->root = code_of(root);
    keep_text(r->domain, sizeof r->domain, error ? GET(error, "domain") : NULL);
    keep_text(r->root_domain, sizeof r->root_domain, root ? GET(root, "domain") : NULL);
    keep_text(r->text, sizeof r->text, cause ? GET(cause, "localizedDescription") : NULL);
    r->start = GET_DOUBLE(feedback, "GPUStartTime");
    r->end = GET_DOUBLE(feedback, "GPUEndTime");
    pthread_mutex_unlock(&b->log->lock);
    objc_autoreleasePoolPop(pool);
    log_add(b->log, b->number);
}

static void on_feedback(stage4 *s, int number)
{
    block b = stack_block((any_function)feedback_invoke, &s->log, number);
    metal4_add_feedback_handler(s->options, &b);
}

/* The buffer fills the memory, and is ended. */
static void record_fill(void *buffer, void *allocator, void *memory, unsigned char value)
{
    metal4_begin(buffer, allocator);
    void *encoder = GET(buffer, "computeCommandEncoder");
    fill_in(encoder, memory, 0, GET_LONG(memory, "length"), value);
    DO(encoder, "endEncoding");
    metal4_end(buffer);
}

static void record_nothing(void *buffer, void *allocator)
{
    metal4_begin(buffer, allocator);
    metal4_end(buffer);
}

/* Commits the stage's buffer with its options; the run, under the manual clock. */
static void *run_of(stage4 *s, unsigned char value)
{
    record_fill(s->buffer, s->allocator, s->memory, value);
    metal4_commit(s->queue, &s->buffer, 1, s->options);
    return softmetal_last_buffer(s->queue);
}

static void *run_of_nothing(stage4 *s)
{
    record_nothing(s->buffer, s->allocator);
    metal4_commit(s->queue, &s->buffer, 1, s->options);
    return softmetal_last_buffer(s->queue);
}

static void set_quirks(softmetal_quirks quirks)
{
    softmetal_set_quirks(&quirks);
}

/* -------------------------------------------------------------------- recording and work -- */

static void a_commit_does_the_work_and_tells(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    double before = (double)now_ns() / 1e9;
    on_feedback(&s, 1);
    on_feedback(&s, 2);
    assert_int_equal(softmetal_live("block"), 2);
    run_of(&s, 7);
    assert_true(log_reaches(&s.log, 2));
    assert_int_equal(s.log.order[0], 1);
    assert_int_equal(s.log.order[1], 2);
    assert_int_equal(contents(s.memory)[0], 7);
    assert_int_equal(contents(s.memory)[63], 7);
    assert_int_equal(s.report.code, -1);
    assert_true(before <= s.report.start && s.report.start <= s.report.end);
    assert_true(s.report.end <= (double)now_ns() / 1e9);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(softmetal_live("block"), 0);
    assert_int_equal(softmetal_live("feedback"), 0);
    assert_int_equal(softmetal_live("run"), 0);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    stage4_close(&s);
}

static void buffers_of_a_commit_run_in_order(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    void *buffers[3] = {s.buffer, metal4_buffer_new(s.device), metal4_buffer_new(s.device)};
    void *allocators[3] = {s.allocator, metal4_allocator_new(s.device), metal4_allocator_new(s.device)};
    void *other = memory_new(s.device, 64);
    record_fill(buffers[0], allocators[0], s.memory, 1);
    metal4_begin(buffers[1], allocators[1]);
    void *encoder = GET(buffers[1], "computeCommandEncoder");
    assert_ptr_equal(GET(encoder, "commandBuffer"), buffers[1]);
    copy_in(encoder, s.memory, 0, other, 0, 64);
    SEND_WITH(void, (void *, void *, unsigned long, unsigned long, unsigned long), encoder,
              "barrierAfterEncoderStages:beforeEncoderStages:visibilityOptions:", 1ul, 1ul, 0ul);
    SEND_WITH(void, (void *, void *, unsigned long, unsigned long, unsigned long), encoder,
              "barrierAfterQueueStages:beforeStages:visibilityOptions:", 1ul, 1ul, 0ul);
    DO(encoder, "endEncoding");
    metal4_end(buffers[1]);
    record_fill(buffers[2], allocators[2], s.memory, 3);
    on_feedback(&s, 1);
    metal4_commit(s.queue, buffers, 3, s.options);
    assert_true(log_reaches(&s.log, 1));
    assert_int_equal(contents(other)[5], 1);
    assert_int_equal(contents(s.memory)[5], 3);
    assert_true(softmetal_settle(10 * SECOND));
    for (int i = 1; i < 3; i++) {
        objc_release(buffers[i]);
        objc_release(allocators[i]);
    }
    objc_release(other);
    stage4_close(&s);
}

static void a_run_needs_no_handler(void **state)
{
    (void)state;
    for (int manual = 0; manual < 2; manual++) {
        stage4 s;
        stage4_open(&s, manual ? SOFTMETAL_MANUAL : SOFTMETAL_REAL);
        record_fill(s.buffer, s.allocator, s.memory, 4);
        metal4_commit(s.queue, &s.buffer, 1, NULL);
        if (manual) softmetal_complete(softmetal_last_buffer(s.queue));
        assert_true(softmetal_settle(10 * SECOND));
        assert_int_equal(softmetal_live("run"), 0);
        record_fill(s.buffer, s.allocator, s.memory, 5);
        metal4_commit(s.queue, &s.buffer, 1, s.options);
        if (manual) softmetal_complete(softmetal_last_buffer(s.queue));
        assert_true(softmetal_settle(10 * SECOND));
        assert_int_equal(contents(s.memory)[0], 5);
        stage4_close(&s);
    }
}

static void one_buffer_is_in_several_runs(void **state)
{
    (void)state;
    stage4 s;
    void *allocators[3], *runs[3];
    stage4_open(&s, SOFTMETAL_MANUAL);
    for (int i = 0; i < 3; i++) {
        allocators[i] = metal4_allocator_new(s.device);
        on_feedback(&s, i);
        record_fill(s.buffer, allocators[i], s.memory, (unsigned char)(i + 1));
        metal4_commit(s.queue, &s.buffer, 1, s.options);
        runs[i] = softmetal_last_buffer(s.queue);
    }
    assert_int_equal(softmetal_outstanding(s.queue), 3);
    assert_ptr_equal(softmetal_buffer_at(s.queue, 2), runs[0]);
    assert_ptr_equal(softmetal_first_in_line(s.queue), runs[0]);
    for (int i = 0; i < 3; i++) {
        softmetal_finish(runs[i]);
        assert_int_equal(contents(s.memory)[0], i + 1);
        DO(allocators[i], "reset"); /* the other runs do not need it */
        assert_int_equal(log_count(&s.log), (unsigned)i + 1);
    }
    for (int i = 0; i < 3; i++) objc_release(allocators[i]);
    stage4_close(&s);
}

static void an_allocator_serves_one_buffer_after_another(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    void *second = metal4_buffer_new(s.device), *buffers[2] = {s.buffer, second};
    assert_int_equal(GET_LONG(s.allocator, "allocatedSize"), 0);
    record_fill(s.buffer, s.allocator, s.memory, 1);
    record_fill(second, s.allocator, s.memory, 2);
    assert_true(GET_LONG(s.allocator, "allocatedSize") > 0);
    metal4_commit(s.queue, buffers, 2, NULL);
    softmetal_finish_queue(s.queue);
    assert_int_equal(contents(s.memory)[0], 2);
    metal4_allocator_reset(s.allocator);
    assert_int_equal(GET_LONG(s.allocator, "allocatedSize"), 0);
    record_fill(s.buffer, s.allocator, s.memory, 3);
    record_nothing(s.buffer, s.allocator); /* the former one is dropped */
    metal4_commit(s.queue, buffers, 1, NULL);
    softmetal_finish_queue(s.queue);
    assert_int_equal(contents(s.memory)[0], 2);
    metal4_begin(second, s.allocator);
    objc_release(second); /* ... and records no longer */
    metal4_allocator_reset(s.allocator);
    stage4_close(&s);
}

/* -- kernels -- */

static void add_kernel(void *user, const softmetal_kernel_args *args)
{
    (void)user;
    for (unsigned long i = 0; i < args->grid[0] * args->grid[1] * args->grid[2]; i++)
        ((unsigned char *)args->buffers[0])[i] =
            (unsigned char)(((unsigned char *)args->buffers[0])[i] + ((unsigned char *)args->buffers[2])[0]);
}

static void kernels_find_memory_by_its_address(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    softmetal_set_kernel("add", add_kernel, NULL, 0);
    void *pipeline = metal_pipeline_new(s.device, "kernel void add(", "add", NULL, 0);
    void *table = metal4_table_new(s.device, 3), *addend = memory_new(s.device, 8), *unused = memory_new(s.device, 8);
    assert_int_equal(softmetal_live("argument_table"), 1);
    contents(addend)[1] = 5;
    contents(addend)[2] = 20;
    assert_true(metal4_address(unused) != metal4_address(addend));
    metal4_begin(s.buffer, s.allocator);
    void *encoder = GET(s.buffer, "computeCommandEncoder");
    metal_set_pipeline(encoder, pipeline);
    metal4_table_set(table, metal4_address(s.memory) + 1, 0);
    metal4_table_set(table, metal4_address(addend) + 1, 2);
    metal4_set_table(encoder, table);
    metal_dispatch(encoder, (metal_size){2, 1, 1}, (metal_size){2, 1, 1});
    metal4_table_set(table, metal4_address(addend) + 2, 2); /* counts for the next dispatch */
    SEND_WITH(void, (void *, void *, size, size), encoder, "dispatchThreads:threadsPerThreadgroup:", (size){1, 1, 1},
              (size){1, 1, 1});
    DO(encoder, "endEncoding");
    metal4_end(s.buffer);
    objc_release(table); /* not needed any more */
    metal4_commit(s.queue, &s.buffer, 1, NULL);
    assert_true(softmetal_settle(10 * SECOND));
    const unsigned char expected[6] = {0, 25, 5, 5, 5, 0};
    assert_memory_equal(contents(s.memory), expected, 6);
    objc_release(unused);
    objc_release(addend);
    objc_release(pipeline);
    stage4_close(&s);
}

static void a_queue_lives_until_its_work_is_over(void **state)
{
    (void)state;
    for (int manual = 0; manual < 2; manual++) {
        stage4 s;
        stage4_open(&s, manual ? SOFTMETAL_MANUAL : SOFTMETAL_REAL);
        void *event = GET(s.device, "newSharedEvent");
        metal4_wait(s.queue, event, 1);
        on_feedback(&s, 1);
        void *run = run_of(&s, 1);
        metal4_signal(s.queue, event, 2);
        objc_release(s.queue);
        s.queue = NULL;
        assert_int_equal(softmetal_live("queue4"), 1);
        set_event(event, 1);
        if (manual) softmetal_finish(run);
        assert_true(event_wait(event, 2, 10000));
        assert_true(log_reaches(&s.log, 1));
        assert_true(softmetal_settle(10 * SECOND));
        assert_int_equal(softmetal_live("queue4"), 0);
        objc_release(event);
        stage4_close(&s);
    }
}

static void nothing_is_retained(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    void *event = GET(s.device, "newEvent");
    metal4_wait(s.queue, event, 1);
    run_of(&s, 1);
    assert_int_equal(softmetal_retain_count(s.buffer), 1);
    assert_int_equal(softmetal_retain_count(s.allocator), 1);
    assert_int_equal(softmetal_retain_count(s.memory), 1);
    assert_int_equal(softmetal_retain_count(s.options), 1);
    assert_int_equal(softmetal_retain_count(event), 1);
    softmetal_time_out(softmetal_last_buffer(s.queue));
    softmetal_finish_queue(s.queue);
    objc_release(event);
    stage4_close(&s);
}

/* ----------------------------------------------------------------------------- feedback -- */

static void *serial_queue;

static void block_the_queue(void *gate)
{
    while (__atomic_load_n((int *)gate, __ATOMIC_ACQUIRE)) sleep_ms(1);
}

static void feedback_comes_on_its_dispatch_queue(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    int gate = 1;
    void *event = GET(s.device, "newSharedEvent");
    serial_queue = dispatch_queue_create("feedback", NULL);
    void *queue = metal4_queue_new_on(s.device, serial_queue);
    assert_int_equal(softmetal_retain_count(serial_queue), 1);
    dispatch_async_f(serial_queue, &gate, block_the_queue);
    for (int i = 1; i <= 3; i++) {
        on_feedback(&s, i);
        record_fill(s.buffer, s.allocator, s.memory, (unsigned char)i);
        metal4_commit(queue, &s.buffer, 1, s.options);
    }
    metal4_signal(queue, event, 1);
    assert_true(event_wait(event, 1, 10000));
    sleep_ms(5);
    assert_int_equal(log_count(&s.log), 0);
    objc_release(queue); /* its last runs are to come */
    __atomic_store_n(&gate, 0, __ATOMIC_RELEASE);
    assert_true(log_reaches(&s.log, 3));
    for (int i = 0; i < 3; i++) assert_int_equal(s.log.order[i], i + 1);
    assert_int_equal(softmetal_dispatches(), 1);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(softmetal_live("queue4"), 1);
    objc_release(event);

    set_quirks((softmetal_quirks){.lost_handlers = true});
    queue = metal4_queue_new_on(s.device, serial_queue);
    on_feedback(&s, 4);
    record_nothing(s.buffer, s.allocator);
    metal4_commit(queue, &s.buffer, 1, s.options);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(log_count(&s.log), 3);
    assert_int_equal(softmetal_live("block"), 0);
    objc_release(queue);
    dispatch_release(serial_queue);
    stage4_close(&s);
}

/* The test steps it: on the completion thread. */
static void the_manual_clock_keeps_feedback_off_its_dispatch_queue(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    serial_queue = dispatch_queue_create("feedback", NULL);
    void *queue = metal4_queue_new_on(s.device, serial_queue);
    softmetal_set_dispatch_threads(0);
    on_feedback(&s, 1);
    record_nothing(s.buffer, s.allocator);
    metal4_commit(queue, &s.buffer, 1, s.options);
    softmetal_finish_queue(queue);
    assert_int_equal(log_count(&s.log), 1);
    objc_release(queue);
    dispatch_release(serial_queue);
    stage4_close(&s);
}

static void a_commit_takes_the_handlers_out_of_its_options(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    on_feedback(&s, 1);
    void *run = run_of_nothing(&s);
    assert_int_equal(softmetal_handler_count(run), 1);
    softmetal_finish(run);
    assert_int_equal(s.log.disposed, 1);
    run = run_of_nothing(&s);
    assert_int_equal(softmetal_handler_count(run), 0);
    softmetal_finish(run);
    assert_int_equal(log_count(&s.log), 1);

    set_quirks((softmetal_quirks){.options_keep_handlers = true});
    on_feedback(&s, 2);
    for (int i = 0; i < 2; i++) softmetal_finish(run_of_nothing(&s));
    assert_int_equal(log_count(&s.log), 3);
    assert_int_equal(s.log.order[2], 2);
    assert_int_equal(softmetal_live("block"), 1); /* of the options */
    stage4_close(&s);
}

static void options_drop_what_no_commit_took(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    void *options = metal4_options_new();
    block b = stack_block((any_function)feedback_invoke, &s.log, 1);
    metal4_add_feedback_handler(options, &b);
    assert_int_equal(softmetal_live("commit_options"), 2);
    objc_release(options);
    assert_int_equal(s.log.disposed, 1);
    assert_int_equal(log_count(&s.log), 0);
    stage4_close(&s);
}

static void *kept_feedback;
static void keeping_invoke(void *self, void *feedback)
{
    block *b = self;
    kept_feedback = objc_retain(feedback);
    log_add(b->log, b->number);
}

static void a_feedback_may_be_kept(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    block b = stack_block((any_function)keeping_invoke, &s.log, 1);
    metal4_add_feedback_handler(s.options, &b);
    void *run = run_of_nothing(&s);
    softmetal_fail(run, NULL, 3, NULL);
    softmetal_finish(run);
    assert_int_equal(softmetal_live("feedback"), 1);
    assert_int_equal(softmetal_live("run"), 0);
    assert_int_equal(code_of(GET(kept_feedback, "error")), 1);
    assert_true(metal_gpu_end(kept_feedback) >= metal_gpu_start(kept_feedback));
    objc_release(kept_feedback);
    stage4_close(&s);
}

/* ------------------------------------------------------------------------------- errors -- */

static void assert_report(stage4 *s, const char *domain, long code, long cause)
{
    assert_string_equal(s->report.domain, domain);
    assert_int_equal(s->report.code, code);
    assert_int_equal(s->report.cause, cause);
}

static void a_failed_run_has_a_wrapped_error(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    const char *domain = "MTL4CommandQueueErrorDomain";
    assert_string_equal(text_of(MTL4CommandQueueErrorDomain), domain);
    on_feedback(&s, 1);
    void *run = run_of(&s, 9);
    softmetal_fail(run, NULL, 3, "out of memory on purpose");
    softmetal_finish(run);
    assert_report(&s, domain, 1, 3);
    assert_int_equal(s.report.root, SOFTMETAL_OUT_OF_MEMORY);
    assert_string_equal(s.report.root_domain, "IOGPUCommandQueueErrorDomain");
    assert_string_equal(s.report.text, "out of memory on purpose");
    assert_int_equal(contents(s.memory)[0], 0);

    set_quirks((softmetal_quirks){.bare_feedback_errors = true});
    on_feedback(&s, 2);
    run = run_of(&s, 9);
    softmetal_fail(run, NULL, 5, NULL);
    softmetal_finish(run);
    assert_report(&s, domain, 5, SOFTMETAL_SUBMISSIONS_IGNORED);
    assert_string_equal(s.report.root_domain, "");

    on_feedback(&s, 3);
    run = run_of(&s, 9);
    softmetal_fail(run, "OtherDomain", -3, "went wrong");
    softmetal_finish(run);
    assert_report(&s, "OtherDomain", -3, -1);
    set_quirks((softmetal_quirks){.bare_feedback_errors = false});

    on_feedback(&s, 4);
    softmetal_fail_next(1, 2);
    softmetal_finish(run_of(&s, 9));
    assert_report(&s, domain, 1, 2);
    assert_int_equal(s.report.root, SOFTMETAL_BACKGROUND);
    assert_int_equal(contents(s.memory)[0], 0);

    on_feedback(&s, 5);
    softmetal_set_chaos(&(softmetal_chaos){.fail_per_mille = 1000});
    softmetal_finish(run_of(&s, 9));
    assert_report(&s, domain, 1, 6);
    assert_int_equal(s.report.root, SOFTMETAL_INTERNAL);
    softmetal_set_chaos(&(softmetal_chaos){.fail_per_mille = 0});

    on_feedback(&s, 6);
    softmetal_finish(run_of(&s, 9));
    assert_report(&s, "", -1, -1);
    assert_int_equal(contents(s.memory)[0], 9);
    stage4_close(&s);
}

/* Three levels: a wrapper, the error with the text, and the number. */
static void runs_fail_as_softmetal_makes_it_of_the_drivers_number(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    for (size_t i = 0; i < MADE_OF_NUMBERS; i++) {
        const made_of_number *made = &made_of_numbers[i];
        char text[LONGEST_TEXT];
        text_of_number(text, made, "GPU");
        on_feedback(&s, (int)i);
        if (i % 2) softmetal_fail_next_as(1, made->number);
        void *run = run_of_nothing(&s);
        if (i % 2 == 0) softmetal_fail_as(run, made->number, NULL);
        softmetal_finish(run);
        assert_report(&s, "MTL4CommandQueueErrorDomain", 1, made->code4);
        assert_string_equal(s.report.text, text);
        assert_string_equal(s.report.root_domain, "IOGPUCommandQueueErrorDomain");
        assert_int_equal(s.report.root, made->number);
    }
    stage4_close(&s);
}

static void every_code_has_a_text(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    for (long code = 0; code < 13; code++) {
        on_feedback(&s, (int)code);
        void *run = run_of_nothing(&s);
        softmetal_fail(run, NULL, code, NULL);
        softmetal_finish(run);
        assert_report(&s, "MTL4CommandQueueErrorDomain", 1, code);
        assert_true(strlen(s.report.text) > 0);
    }
    stage4_close(&s);
}

static void the_wrapper_names_all_its_errors(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    block b = stack_block((any_function)keeping_invoke, &s.log, 1);
    metal4_add_feedback_handler(s.options, &b);
    void *run = run_of_nothing(&s);
    softmetal_fail(run, NULL, 3, NULL);
    softmetal_finish(run);
    void *error = GET(kept_feedback, "error");
    void *all = GET1(GET(error, "userInfo"), "objectForKey:", string("NSMultipleUnderlyingErrorsKey"));
    assert_int_equal(GET_LONG(all, "count"), 1);
    assert_ptr_equal(GET(all, "lastObject"), error_below(error));
    assert_null(GET1(GET(error_below(error), "userInfo"), "objectForKey:", string("NSMultipleUnderlyingErrorsKey")));
    assert_non_null(error_below(error_below(error)));
    assert_null(error_below(error_below(error_below(error))));
    assert_null(GET1(GET(error, "userInfo"), "objectForKey:", string("NSLocalizedDescription")));
    assert_true(strlen(text_of(GET(error, "localizedDescription"))) > 0);
    objc_release(kept_feedback);
    stage4_close(&s);
}

static void a_removed_device_fails_its_runs(void **state)
{
    (void)state;
    for (int manual = 0; manual < 2; manual++) {
        stage4 s;
        stage4_open(&s, manual ? SOFTMETAL_MANUAL : SOFTMETAL_REAL);
        void *event = GET(s.device, "newSharedEvent");
        metal4_wait(s.queue, event, 1);
        on_feedback(&s, 1);
        void *run = run_of(&s, 9);
        metal4_signal(s.queue, event, 2);
        softmetal_remove_device(s.device);
        if (manual) softmetal_finish(run);
        assert_true(log_reaches(&s.log, 1));
        assert_report(&s, "MTL4CommandQueueErrorDomain", 1, 4);
        assert_true(softmetal_settle(10 * SECOND));
        assert_int_equal(contents(s.memory)[0], 0);
        assert_true(event_value(event) == 0);
        objc_release(event);
        stage4_close(&s);
    }
}

static void a_removed_device_ends_its_waits(void **state)
{
    (void)state;
    for (int manual = 0; manual < 2; manual++) {
        stage4 s;
        stage4_open(&s, manual ? SOFTMETAL_MANUAL : SOFTMETAL_REAL);
        void *event = GET(s.device, "newSharedEvent");
        metal4_wait(s.queue, event, 1);
        metal4_signal(s.queue, event, 2);
        softmetal_remove_device(s.device);
        assert_true(softmetal_settle(10 * SECOND));
        assert_int_equal(softmetal_live("queue_operation"), 0);
        assert_true(event_value(event) == 0);
        objc_release(event);
        stage4_close(&s);
    }
}

/* ------------------------------------------------------------------ waits and signals -- */

static void a_wait_holds_all_later_work(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    void *event = GET(s.device, "newSharedEvent"), *done = GET(s.device, "newSharedEvent");
    void *allocators[3] = {s.allocator, metal4_allocator_new(s.device), metal4_allocator_new(s.device)}, *runs[3];
    for (int i = 0; i < 3; i++) {
        if (i == 1) metal4_wait(s.queue, event, 1);
        record_fill(s.buffer, allocators[i], s.memory, (unsigned char)(i + 1));
        metal4_commit(s.queue, &s.buffer, 1, NULL);
        runs[i] = softmetal_last_buffer(s.queue);
        metal4_signal(s.queue, done, (uint64_t)i + 1);
    }
    assert_int_equal(softmetal_live("queue_operation"), 4);
    assert_int_equal(softmetal_what_is_due(runs[0]), SOFTMETAL_COMPLETE_DUE);
    assert_int_equal(softmetal_what_is_due(runs[1]), SOFTMETAL_NOTHING_DUE);
    assert_true(event_value(done) == 0);
    softmetal_finish(runs[0]);
    assert_true(event_value(done) == 1);
    assert_int_equal(softmetal_what_is_due(runs[1]), SOFTMETAL_WAIT_DUE);
    assert_int_equal(softmetal_what_is_due(runs[2]), SOFTMETAL_NOTHING_DUE);
    assert_ptr_equal(softmetal_first_in_line(s.queue), runs[1]);
    set_event(event, 1);
    assert_int_equal(softmetal_what_is_due(runs[1]), SOFTMETAL_COMPLETE_DUE);
    softmetal_schedule(runs[1]);
    softmetal_execute(runs[1]);
    assert_true(event_value(done) == 1); /* not ended yet */
    softmetal_complete(runs[1]);
    assert_true(event_value(done) == 2);
    softmetal_finish_queue(s.queue);
    assert_true(event_value(done) == 3);
    assert_int_equal(contents(s.memory)[0], 3);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    objc_release(allocators[1]);
    objc_release(allocators[2]);
    objc_release(event);
    objc_release(done);
    stage4_close(&s);
}

static void a_wait_that_times_out_lets_later_work_run(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    void *event = GET(s.device, "newSharedEvent"), *other = GET(s.device, "newSharedEvent");
    metal4_wait(s.queue, event, 1);
    metal4_signal(s.queue, other, 1);
    metal4_wait(s.queue, event, 2);
    on_feedback(&s, 1);
    void *run = run_of(&s, 6);
    assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_WAIT_DUE);
    softmetal_time_out(run);
    assert_true(event_value(other) == 1);
    assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_WAIT_DUE); /* the second one */
    softmetal_time_out(run);
    assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_COMPLETE_DUE);
    assert_int_equal(log_count(&s.log), 0);
    objc_release(event); /* nothing needs it any more */
    softmetal_finish(run);
    assert_int_equal(s.report.code, -1);
    assert_int_equal(contents(s.memory)[0], 6);
    objc_release(other);
    stage4_close(&s);
}

static void a_fault_does_not_pass_a_wait_of_the_queue(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    void *event = GET(s.device, "newSharedEvent");
    metal4_wait(s.queue, event, 1);
    void *run = run_of(&s, 6);
    softmetal_fail(run, NULL, 3, NULL);
    assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_WAIT_DUE);
    set_event(event, 1);
    assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_COMPLETE_DUE);
    softmetal_finish(run);
    objc_release(event);
    stage4_close(&s);
}

/* Chaos lets runs overlap; no wait is passed. */
static void an_overlapping_run_passes_no_wait(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000});
    void *event = GET(s.device, "newSharedEvent"), *other = GET(s.device, "newSharedEvent");
    metal4_wait(s.queue, event, 1);
    on_feedback(&s, 1);
    run_of(&s, 1);
    metal4_signal(s.queue, other, 1);
    sleep_ms(5);
    assert_int_equal(log_count(&s.log), 0);
    assert_true(event_value(other) == 0);
    set_event(event, 1);
    assert_true(event_wait(other, 1, 10000));
    assert_int_equal(contents(s.memory)[0], 1);
    assert_true(softmetal_settle(10 * SECOND));
    objc_release(event);
    objc_release(other);
    stage4_close(&s);
}

/* No run is near: signals follow the waits before them, across queues. */
static void operations_alone_go_on_by_themselves(void **state)
{
    (void)state;
    for (int manual = 0; manual < 2; manual++) {
        stage4 s;
        stage4_open(&s, manual ? SOFTMETAL_MANUAL : SOFTMETAL_REAL);
        void *event = GET(s.device, "newSharedEvent"), *second = metal4_queue_new(s.device);
        metal4_wait(second, event, 2);
        metal4_signal(second, event, 3);
        metal4_wait(s.queue, event, 1);
        metal4_signal(s.queue, event, 2);
        assert_true(event_value(event) == 0);
        set_event(event, 1);
        assert_true(event_wait(event, 3, 10000));
        objc_release(event); /* a thread that sees the signal may */
        assert_true(softmetal_settle(10 * SECOND));
        assert_int_equal(softmetal_live("queue_operation"), 0);
        assert_int_equal(softmetal_live("shared_event"), 0);
        objc_release(second);
        stage4_close(&s);
    }
}

static void both_kinds_of_queue_meet_at_events(void **state)
{
    (void)state;
    for (int manual = 0; manual < 2; manual++) {
        stage4 s;
        stage4_open(&s, manual ? SOFTMETAL_MANUAL : SOFTMETAL_REAL);
        void *legacy = queue_new(s.device), *events[2] = {GET(s.device, "newEvent"), GET(s.device, "newSharedEvent")};
        void *target = memory_new(s.device, 64), *buffers[2] = {buffer_in(legacy), buffer_in(legacy)};
        encode_wait(buffers[0], events[0], 1);
        copy(buffers[0], s.memory, target);
        encode_signal(buffers[0], events[1], 1);
        commit(buffers[0]);
        run_of(&s, 5);
        metal4_signal(s.queue, events[0], 1);
        metal4_wait(s.queue, events[1], 1);
        void *allocator = metal4_allocator_new(s.device);
        record_fill(s.buffer, allocator, target, 6);
        metal4_commit(s.queue, &s.buffer, 1, NULL);
        metal4_signal(s.queue, events[0], 2);
        encode_wait(buffers[1], events[0], 2);
        copy(buffers[1], target, s.memory);
        commit(buffers[1]);
        if (manual) {
            assert_int_equal(softmetal_what_is_due(buffers[0]), SOFTMETAL_WAIT_DUE);
            softmetal_finish(softmetal_buffer_at(s.queue, 1));
            softmetal_finish(buffers[0]);
            assert_int_equal(contents(target)[0], 5);
            softmetal_finish_queue(s.queue);
            softmetal_finish(buffers[1]);
        }
        wait_done(buffers[1]);
        assert_true(softmetal_settle(10 * SECOND));
        assert_int_equal(contents(s.memory)[0], 6);
        objc_release(allocator);
        objc_release(target);
        objc_release(events[0]);
        objc_release(events[1]);
        objc_release(legacy);
        stage4_close(&s);
    }
}

static void the_watchdog_ends_a_wait_of_the_queue(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.watchdog_ns = 20 * MS;
    softmetal_set_timing(&timing);
    void *event = GET(s.device, "newSharedEvent");
    uint64_t before = now_ns();
    metal4_wait(s.queue, event, 1);
    on_feedback(&s, 1);
    run_of(&s, 8);
    metal4_signal(s.queue, event, 5);
    assert_true(log_reaches(&s.log, 1));
    assert_true(now_ns() - before >= 20 * MS);
    assert_int_equal(s.report.code, -1);
    assert_int_equal(contents(s.memory)[0], 8);
    assert_true(event_wait(event, 5, 10000));
    assert_true(softmetal_settle(10 * SECOND));
    objc_release(event);
    stage4_close(&s);
}

static void signals_may_die_with_the_run_before_them(void **state)
{
    (void)state;
    for (int dies = 0; dies < 2; dies++) {
        stage4 s;
        stage4_open(&s, SOFTMETAL_MANUAL);
        set_quirks((softmetal_quirks){.signals_die_with_failure = dies});
        void *before = GET(s.device, "newSharedEvent"), *after = GET(s.device, "newSharedEvent");
        void *later = GET(s.device, "newSharedEvent"), *allocator = metal4_allocator_new(s.device);
        metal4_signal(s.queue, before, 1);
        void *failing = run_of_nothing(&s);
        softmetal_fail(failing, NULL, 3, NULL);
        metal4_signal(s.queue, after, 1);
        metal4_signal(s.queue, after, 2);
        record_nothing(s.buffer, allocator);
        metal4_commit(s.queue, &s.buffer, 1, NULL);
        metal4_signal(s.queue, later, 1);
        softmetal_finish_queue(s.queue);
        assert_true(event_value(before) == 1);
        assert_true(event_value(after) == (dies ? 0u : 2u));
        assert_true(event_value(later) == 1);

        failing = run_of_nothing(&s);
        softmetal_fail(failing, NULL, 3, NULL);
        softmetal_finish(failing);
        metal4_signal(s.queue, later, 2); /* after its end, and before the next commit */
        assert_true(event_value(later) == (dies ? 1u : 2u));
        softmetal_finish(run_of_nothing(&s));
        metal4_signal(s.queue, later, 3);
        assert_true(event_value(later) == 3);
        objc_release(allocator);
        objc_release(before);
        objc_release(after);
        objc_release(later);
        stage4_close(&s);
    }
}

/* Whether the second of two signals was there before the first, in one of so many rounds. */
static bool seen_in_the_wrong_order(stage4 *s, uint64_t rounds)
{
    void *gate = GET(s->device, "newSharedEvent");
    void *first = GET(s->device, "newSharedEvent"), *second = GET(s->device, "newSharedEvent");
    bool wrong = false;
    for (uint64_t i = 1; i <= rounds && !wrong; i++) {
        metal4_wait(s->queue, gate, i);
        metal4_signal(s->queue, first, i);
        metal4_signal(s->queue, second, i);
        set_event(gate, i);
        while (event_value(second) < i) continue;
        wrong = event_value(first) < i;
    }
    assert_true(softmetal_settle(10 * SECOND));
    objc_release(gate);
    objc_release(first);
    objc_release(second);
    return wrong;
}

static void a_signal_may_be_overtaken_by_the_next(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    assert_false(seen_in_the_wrong_order(&s, 20));
    set_quirks((softmetal_quirks){.overtaken_signals = true});
    assert_true(seen_in_the_wrong_order(&s, 1000)); /* a busy machine hides some */
    stage4_close(&s);
}

static void work_behind_a_signal_may_be_held_or_pass_it(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        stage4 s;
        stage4_open(&s, SOFTMETAL_MANUAL);
        void *event = GET(s.device, "newSharedEvent");
        set_quirks((softmetal_quirks){.signals_held = !late, .signals_late = late});
        metal4_signal(s.queue, event, 1);
        void *behind = objc_retain(run_of_nothing(&s));
        metal4_signal(s.queue, event, 2);
        assert_int_equal(softmetal_what_is_due(behind), late ? SOFTMETAL_COMPLETE_DUE : SOFTMETAL_NOTHING_DUE);
        if (late) softmetal_finish(behind);
        assert_true(event_value(event) == 0);
        set_quirks((softmetal_quirks){.signals_held = false});
        assert_true(event_value(event) == (late ? 2u : 1u));
        if (!late) softmetal_finish(behind);
        assert_true(event_value(event) == 2);
        objc_release(behind);
        objc_release(event);
        stage4_close(&s);
    }
}

/* The panel knows the event of the signal that a queue was given last, also where that has not come. */
static void the_panel_knows_the_event_of_the_last_signal(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    void *first = GET(s.device, "newSharedEvent"), *second = GET(s.device, "newSharedEvent"), *older = queue_new(s.device);
    assert_null(softmetal_last_signalled(s.queue));
    metal4_wait(s.queue, first, 1);
    assert_null(softmetal_last_signalled(s.queue)); /* a wait is none */
    metal4_signal(s.queue, first, 2);
    assert_ptr_equal(softmetal_last_signalled(s.queue), first);
    metal4_signal(s.queue, second, 1);
    assert_ptr_equal(softmetal_last_signalled(s.queue), second);
    set_event(first, 1);
    assert_true(event_value(second) == 1);
    assert_ptr_equal(softmetal_last_signalled(s.queue), second);
    assert_int_equal(softmetal_retain_count(second), 1);
    assert_null(softmetal_last_signalled(older));
    objc_release(older);
    objc_release(first);
    objc_release(second);
    stage4_close(&s);
}

/* ---------------------------------------------------------------------- the panel on runs -- */

static void each_transition_of_a_run_by_hand(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    on_feedback(&s, 1);
    on_feedback(&s, 2);
    void *run = objc_retain(run_of(&s, 3));
    assert_int_equal(status(run), COMMITTED);
    softmetal_schedule(run);
    assert_int_equal(status(run), SCHEDULED);
    softmetal_execute(run);
    assert_int_equal(contents(s.memory)[0], 3);
    assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_COMPLETE_DUE);
    softmetal_complete(run);
    assert_int_equal(status(run), COMPLETED);
    assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_HANDLERS_DUE);
    assert_null(softmetal_first_in_line(s.queue));
    s.log.gate = 1;
    softmetal_begin_handler(run, 1);
    softmetal_begin_handler(run, 0);
    __atomic_store_n(&s.log.gate, 0, __ATOMIC_RELEASE);
    softmetal_join_handler(run, 0);
    softmetal_join_handler(run, 1);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    assert_int_equal(s.log.disposed, 0);
    softmetal_release_block(run, 0);
    softmetal_release_block(run, 1);
    assert_int_equal(s.log.disposed, 2);
    assert_int_equal(softmetal_what_is_due(run), SOFTMETAL_NOTHING_DUE);
    objc_release(run);
    assert_null(softmetal_last_buffer(s.queue));

    on_feedback(&s, 3);
    run = run_of(&s, 4);
    softmetal_complete(run);
    softmetal_run_handler(run, 0);
    assert_int_equal(s.log.order[2], 3);
    softmetal_finish(run);

    on_feedback(&s, 4);
    run = run_of(&s, 5);
    softmetal_lose_handlers(run);
    softmetal_finish(run);
    assert_int_equal(log_count(&s.log), 3);
    assert_int_equal(softmetal_live("block"), 0);
    stage4_close(&s);
}

static void runs_that_share_nothing_are_stepped_out_of_order(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    void *others[3] = {metal4_buffer_new(s.device), metal4_allocator_new(s.device), memory_new(s.device, 8)};
    void *event = GET(s.device, "newSharedEvent");
    void *first = run_of(&s, 1);
    metal4_signal(s.queue, event, 1);
    record_fill(others[0], others[1], others[2], 2);
    metal4_commit(s.queue, others, 1, NULL);
    softmetal_finish(softmetal_last_buffer(s.queue));
    assert_true(event_value(event) == 0);
    assert_int_equal(contents(others[2])[0], 2);
    softmetal_finish(first);
    assert_true(event_value(event) == 1);
    for (int i = 0; i < 3; i++) objc_release(others[i]);
    objc_release(event);
    stage4_close(&s);
}

static void feedback_may_be_held_late_and_lost(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    void *event = GET(s.device, "newSharedEvent"), *allocator = metal4_allocator_new(s.device);
    metal4_wait(s.queue, event, 1);
    on_feedback(&s, 1);
    void *run = run_of(&s, 1);
    softmetal_hold_handlers(run);
    on_feedback(&s, 2);
    record_fill(s.buffer, allocator, s.memory, 2);
    metal4_commit(s.queue, &s.buffer, 1, s.options);
    set_event(event, 1);
    assert_true(log_reaches(&s.log, 1));
    assert_int_equal(s.log.order[0], 2);
    softmetal_deliver(run);
    assert_true(log_reaches(&s.log, 2));
    assert_true(softmetal_settle(10 * SECOND));

    softmetal_set_chaos(&(softmetal_chaos){.late_handler_per_mille = 1000});
    on_feedback(&s, 3);
    run_of(&s, 3);
    assert_true(log_reaches(&s.log, 3));
    softmetal_set_chaos(&(softmetal_chaos){.late_handler_per_mille = 0});
    assert_true(softmetal_settle(10 * SECOND));

    set_quirks((softmetal_quirks){.lost_handlers = true});
    on_feedback(&s, 4);
    run_of(&s, 4);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(log_count(&s.log), 3);
    assert_int_equal(s.log.disposed, 4);
    assert_int_equal(contents(s.memory)[0], 4);
    objc_release(allocator);
    objc_release(event);
    stage4_close(&s);
}

static void a_run_may_hang_and_take_its_time(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    void *event = GET(s.device, "newSharedEvent");
    metal4_wait(s.queue, event, 1);
    on_feedback(&s, 1);
    void *run = run_of(&s, 1);
    softmetal_hang(run);
    softmetal_set_duration(run, 3 * MS);
    set_event(event, 1);
    sleep_ms(5);
    assert_int_equal(log_count(&s.log), 0);
    softmetal_unhang(run);
    assert_true(log_reaches(&s.log, 1));
    assert_true(s.report.end - s.report.start >= 0.003);
    assert_true(softmetal_settle(10 * SECOND));
    objc_release(event);
    stage4_close(&s);
}

static void creations_of_metal4_fail_too(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    softmetal_fail_creation(1, true);
    assert_null(metal4_queue_new(s.device));
    assert_null(metal4_queue_new_on(s.device, NULL));
    assert_null(metal4_buffer_new(s.device));
    assert_null(metal4_allocator_new(s.device));
    assert_null(metal4_table_new(s.device, 1));
    assert_null(metal4_options_new());
    assert_null(GET(GET(objc_getClass("MTL4CommitOptions"), "alloc"), "init"));
    metal4_begin(s.buffer, s.allocator);
    assert_null(GET(s.buffer, "computeCommandEncoder"));
    metal4_end(s.buffer);
    assert_int_equal(softmetal_creations(), 8);
    softmetal_fail_creation(0, false);
    stage4_close(&s);
}

static void metal4_may_be_missing(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    assert_true(responds(s.device, "newMTL4CommandQueue"));
    softmetal_hide_selector("newMTL4CommandQueue");
    assert_false(responds(s.device, "newMTL4CommandQueue"));
    assert_true(responds(s.device, "newCommandAllocator"));
    assert_non_null(objc_getClass("MTL4CommitOptions"));
    softmetal_hide_class("MTL4CommitOptions");
    assert_null(objc_getClass("MTL4CommitOptions"));
    softmetal_hide_class("MTL4CommandQueueDescriptor");
    assert_null(objc_getClass("MTL4CommandQueueDescriptor"));
    softmetal_hide_class("MTL4ArgumentTableDescriptor");
    assert_null(objc_getClass("MTL4ArgumentTableDescriptor"));
    stage4_close(&s);
}

static void messages_of_the_other_generation_are_not_understood(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    static const char *const of_queue[] = {"commandBuffer", "commandBufferWithUnretainedReferences",
                                           "commandBufferWithDescriptor:", "setLabel:"};
    static const char *const of_buffer[] = {"status",  "error",   "waitUntilCompleted", "addCompletedHandler:", "commit",
                                            "enqueue", "commandQueue", "retainedReferences", "blitCommandEncoder"};
    for (size_t i = 0; i < sizeof of_queue / sizeof of_queue[0]; i++) assert_false(responds(s.queue, of_queue[i]));
    for (size_t i = 0; i < sizeof of_buffer / sizeof of_buffer[0]; i++) assert_false(responds(s.buffer, of_buffer[i]));
    void *legacy = queue_new(s.device), *buffer = buffer_in(legacy);
    assert_false(responds(legacy, "commit:count:options:"));
    assert_false(responds(legacy, "signalEvent:value:"));
    assert_false(responds(buffer, "beginCommandBufferWithAllocator:"));
    objc_release(legacy);
    stage4_close(&s);
}

static void descriptors_labels_and_relations_of_metal4(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    void *error = &s, *queue4 = GET(objc_getClass("MTL4CommandQueueDescriptor"), "new");
    assert_null(GET(queue4, "feedbackQueue"));
    DO1(queue4, "setLabel:", string("q"));
    void *queue = SEND_WITH(void *, (void *, void *, void *, void **), s.device,
                            "newMTL4CommandQueueWithDescriptor:error:", queue4, &error);
    assert_null(error);
    assert_string_equal(text_of(GET(queue4, "label")), "q");
    assert_string_equal(text_of(GET(queue, "label")), "q");
    assert_null(GET(s.queue, "label"));
    assert_ptr_equal(GET(queue, "device"), s.device);
    void *of_allocator = GET(objc_getClass("MTL4CommandAllocatorDescriptor"), "new");
    DO1(of_allocator, "setLabel:", string("a"));
    void *allocator = SEND_WITH(void *, (void *, void *, void *, void **), s.device,
                                "newCommandAllocatorWithDescriptor:error:", of_allocator, (void **)NULL);
    assert_string_equal(text_of(GET(allocator, "label")), "a");
    assert_ptr_equal(GET(allocator, "device"), s.device);
    DO1(s.buffer, "setLabel:", string("b"));
    assert_string_equal(text_of(GET(s.buffer, "label")), "b");
    assert_ptr_equal(GET(s.buffer, "device"), s.device);
    SEND_WITH(void, (void *, void *, void *, void *), s.buffer, "beginCommandBufferWithAllocator:options:", allocator,
              (void *)NULL);
    DO1(s.buffer, "pushDebugGroup:", string("g"));
    DO(s.buffer, "popDebugGroup");
    metal4_end(s.buffer);
    void *table = metal4_table_new(s.device, 31);
    assert_ptr_equal(GET(table, "device"), s.device);
    objc_release(table);
    objc_release(allocator);
    objc_release(of_allocator);
    objc_release(queue);
    objc_release(queue4);
    stage4_close(&s);
}

static unsigned seen_before, seen_after;
static void watch_commits(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (object != user || strcmp(selector, "commit:count:options:")) return;
    if (phase == SOFTMETAL_BEFORE) seen_before++;
    if (phase == SOFTMETAL_AFTER && softmetal_last_buffer(object)) seen_after++;
}

static void hooks_see_commits(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    seen_before = seen_after = 0;
    softmetal_set_message_hook(watch_commits, s.queue);
    void *run = run_of_nothing(&s);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(seen_before, 1);
    assert_int_equal(seen_after, 1);
    softmetal_finish(run);
    stage4_close(&s);
}

static void reset_loses_what_was_not_stepped(void **state)
{
    (void)state;
    stage4 s;
    stage4_open(&s, SOFTMETAL_MANUAL);
    on_feedback(&s, 1);
    softmetal_complete(run_of(&s, 1));
    set_quirks((softmetal_quirks){.options_keep_handlers = true, .status_early = true});
    softmetal_reset();
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    assert_false(quirks.options_keep_handlers || quirks.status_early);
    assert_int_equal(log_count(&s.log), 0);
    assert_int_equal(softmetal_live("run"), 0);
    assert_int_equal(softmetal_live("block"), 0);
    objc_release(s.queue);
    s.queue = metal4_queue_new(s.device); /* of the real clock */
    on_feedback(&s, 2);
    void *event = GET(s.device, "newSharedEvent");
    metal4_wait(s.queue, event, 1);
    softmetal_hold_handlers(run_of(&s, 2));
    metal4_signal(s.queue, event, 2);
    set_event(event, 1);
    assert_true(event_wait(event, 2, 10000));
    softmetal_reset();
    assert_int_equal(log_count(&s.log), 0);
    assert_int_equal(softmetal_live("run"), 0);
    objc_release(event);
    stage4_close(&s);
}

/* ------------------------------------------------------------------------------ threads -- */

enum { COMMITTERS = 4, COMMITS = 50 };

typedef struct committer {
    stage4 *s;
    void *event;
    log_ log;
    pthread_t thread;
} committer;

static void counting_invoke(void *self, void *feedback)
{
    block *b = self;
    (void)feedback;
    log_add(b->log, b->number);
}

/* On a thread where an assertion of cmocka's cannot jump. */
static void must(bool good)
{
    if (!good) abort();
}

static void *commit_often(void *argument)
{
    committer *c = argument;
    void *device = c->s->device, *buffer = metal4_buffer_new(device), *options = metal4_options_new();
    void *allocator = metal4_allocator_new(device), *memory = memory_new(device, 8);
    for (int i = 1; i <= COMMITS; i++) {
        void *pool = objc_autoreleasePoolPush();
        block b = stack_block((any_function)counting_invoke, &c->log, i);
        record_fill(buffer, allocator, memory, (unsigned char)i);
        metal4_add_feedback_handler(options, &b);
        metal4_commit(c->s->queue, &buffer, 1, options);
        metal4_signal(c->s->queue, c->event, (uint64_t)i);
        must(event_wait(c->event, (uint64_t)i, 20000));
        must(contents(memory)[7] == i);
        metal4_allocator_reset(allocator); /* the signal came after the run */
        objc_autoreleasePoolPop(pool);
    }
    must(log_reaches(&c->log, COMMITS));
    objc_release(memory);
    objc_release(allocator);
    objc_release(options);
    objc_release(buffer);
    return NULL;
}

static void threads_commit_to_one_queue(void **state)
{
    (void)state;
    static committer committers[COMMITTERS];
    stage4 s;
    stage4_open(&s, SOFTMETAL_REAL);
    softmetal_set_chaos(&(softmetal_chaos){.late_handler_per_mille = 100, .overlap_per_mille = 300});
    for (int i = 0; i < COMMITTERS; i++) {
        committer *c = &committers[i];
        memset(c, 0, sizeof *c);
        c->s = &s;
        c->event = GET(s.device, "newSharedEvent");
        pthread_mutex_init(&c->log.lock, NULL);
        pthread_create(&c->thread, NULL, commit_often, c);
    }
    for (int i = 0; i < COMMITTERS; i++) pthread_join(committers[i].thread, NULL);
    assert_true(softmetal_settle(10 * SECOND));
    for (int i = 0; i < COMMITTERS; i++) objc_release(committers[i].event);
    stage4_close(&s);
}

/* -------------------------------------------------------------------------------- rules -- */

static void case_reset_in_use(stage4 *s)
{
    run_of(s, 1);
    metal4_allocator_reset(s->allocator);
}
static void case_reset_while_recording(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    metal4_allocator_reset(s->allocator);
}
static void case_allocator_taken(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    metal4_begin(metal4_buffer_new(s->device), s->allocator);
}
static void case_begin_twice(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    metal4_begin(s->buffer, metal4_allocator_new(s->device));
}
static void case_end_without_begin(stage4 *s)
{
    metal4_end(s->buffer);
}
static void case_end_twice(stage4 *s)
{
    record_nothing(s->buffer, s->allocator);
    metal4_end(s->buffer);
}
static void case_end_with_encoder(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    GET(s->buffer, "computeCommandEncoder");
    metal4_end(s->buffer);
}
static void case_second_encoder(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    GET(s->buffer, "computeCommandEncoder");
    GET(s->buffer, "computeCommandEncoder");
}
static void case_encoder_without_begin(stage4 *s)
{
    GET(s->buffer, "computeCommandEncoder");
}
static void case_encoder_after_end(stage4 *s)
{
    record_nothing(s->buffer, s->allocator);
    GET(s->buffer, "computeCommandEncoder");
}
static void case_encode_after_end(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    void *encoder = GET(s->buffer, "computeCommandEncoder");
    DO(encoder, "endEncoding");
    fill_in(encoder, s->memory, 0, 1, 1);
}
static void case_buffer_dropped_with_encoder(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    GET(s->buffer, "computeCommandEncoder");
    objc_release(s->buffer);
}
static void *compute_in(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    return GET(s->buffer, "computeCommandEncoder");
}
static void case_fill_out_of_range(stage4 *s)
{
    fill_in(compute_in(s), s->memory, 60, 5, 1);
}
static void case_dispatch_without_pipeline(stage4 *s)
{
    metal_dispatch(compute_in(s), (metal_size){1, 1, 1}, (metal_size){1, 1, 1});
}
static void *dispatch_with(stage4 *s, uint64_t address)
{
    void *table = metal4_table_new(s->device, 1), *encoder = compute_in(s);
    metal_set_pipeline(encoder, metal_pipeline_new(s->device, "kernel void add(", "add", NULL, 0));
    metal4_table_set(table, address, 0);
    metal4_set_table(encoder, table);
    metal_dispatch(encoder, (metal_size){1, 1, 1}, (metal_size){1, 1, 1});
    return encoder;
}
static void case_unknown_address(stage4 *s)
{
    dispatch_with(s, metal4_address(s->memory) + 64);
}
static void case_address_of_freed(stage4 *s)
{
    void *memory = memory_new(s->device, 1 << 16);
    uint64_t address = metal4_address(memory);
    objc_release(memory);
    dispatch_with(s, address);
}
static void case_dispatch_with_freed_table(stage4 *s)
{
    void *table = metal4_table_new(s->device, 1), *encoder = compute_in(s);
    metal_set_pipeline(encoder, metal_pipeline_new(s->device, "kernel void add(", "add", NULL, 0));
    metal4_set_table(encoder, table);
    objc_release(table);
    metal_dispatch(encoder, (metal_size){1, 1, 1}, (metal_size){1, 1, 1});
}
static void case_binding_out_of_table(stage4 *s)
{
    metal4_table_set(metal4_table_new(s->device, 2), 0, 2);
}
static void case_table_too_large(stage4 *s)
{
    metal4_table_new(s->device, 32);
}
static void case_empty_commit(stage4 *s)
{
    metal4_commit(s->queue, &s->buffer, 0, NULL);
}
static void case_no_array(stage4 *s)
{
    metal4_commit(s->queue, NULL, 1, NULL);
}
static void case_nil_in_commit(stage4 *s)
{
    void *buffers[2] = {s->buffer, NULL};
    record_nothing(s->buffer, s->allocator);
    metal4_commit(s->queue, buffers, 2, NULL);
}
static void case_twice_in_commit(stage4 *s)
{
    void *buffers[2] = {s->buffer, s->buffer};
    record_nothing(s->buffer, s->allocator);
    metal4_commit(s->queue, buffers, 2, NULL);
}
static void case_commit_of_recording(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    metal4_commit(s->queue, &s->buffer, 1, NULL);
}
static void case_commit_of_nothing(stage4 *s)
{
    metal4_commit(s->queue, &s->buffer, 1, NULL);
}
static void case_commit_twice(stage4 *s)
{
    run_of(s, 1);
    metal4_commit(s->queue, &s->buffer, 1, NULL);
}
static void case_commit_after_reset(stage4 *s)
{
    record_nothing(s->buffer, s->allocator);
    metal4_allocator_reset(s->allocator);
    metal4_commit(s->queue, &s->buffer, 1, NULL);
}
static void case_commit_of_legacy_buffer(stage4 *s)
{
    void *buffer = buffer_in(queue_new(s->device));
    metal4_commit(s->queue, &buffer, 1, NULL);
}
static void case_commit_to_other_device(stage4 *s)
{
    record_nothing(s->buffer, s->allocator);
    metal4_commit(metal4_queue_new(softmetal_new_device()), &s->buffer, 1, NULL);
}
static void case_options_of_other_class(stage4 *s)
{
    record_nothing(s->buffer, s->allocator);
    metal4_commit(s->queue, &s->buffer, 1, s->memory);
}
static void case_nil_handler(stage4 *s)
{
    metal4_add_feedback_handler(s->options, NULL);
}
static void case_nil_event(stage4 *s)
{
    metal4_signal(s->queue, NULL, 1);
}
static void case_nil_wait(stage4 *s)
{
    metal4_wait(s->queue, NULL, 1);
}
static void case_event_of_other_device(stage4 *s)
{
    metal4_wait(s->queue, GET(softmetal_new_device(), "newEvent"), 1);
}
static void case_memory_gone(stage4 *s)
{
    run_of(s, 1);
    objc_release(s->memory);
}
static void case_allocator_gone(stage4 *s)
{
    run_of(s, 1);
    objc_release(s->allocator);
}
static void case_allocator_gone_while_recording(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    objc_release(s->allocator);
}
static void case_allocator_gone_before_commit(stage4 *s)
{
    record_nothing(s->buffer, s->allocator);
    metal4_allocator_reset(s->allocator); /* which no call may look at */
    objc_release(s->allocator);
    metal4_commit(s->queue, &s->buffer, 1, NULL);
}
static void case_memory_gone_before_commit(stage4 *s)
{
    record_fill(s->buffer, s->allocator, s->memory, 1);
    objc_release(s->memory);
    metal4_commit(s->queue, &s->buffer, 1, NULL);
}
static void case_buffer_gone(stage4 *s)
{
    run_of(s, 1);
    objc_release(s->buffer);
}
static void case_pipeline_gone(stage4 *s)
{
    void *pipeline = metal_pipeline_new(s->device, "kernel void add(", "add", NULL, 0), *encoder = compute_in(s);
    metal_set_pipeline(encoder, pipeline);
    metal_dispatch(encoder, (metal_size){1, 1, 1}, (metal_size){1, 1, 1});
    DO(encoder, "endEncoding");
    metal4_end(s->buffer);
    metal4_commit(s->queue, &s->buffer, 1, NULL);
    objc_release(pipeline);
}
static void case_bound_memory_gone(stage4 *s)
{
    DO(dispatch_with(s, metal4_address(s->memory)), "endEncoding");
    metal4_end(s->buffer);
    metal4_commit(s->queue, &s->buffer, 1, NULL);
    objc_release(s->memory);
}
static void case_waited_event_gone(stage4 *s)
{
    void *event = GET(s->device, "newSharedEvent");
    metal4_wait(s->queue, event, 1);
    objc_release(event);
}
static void case_signalled_event_gone(stage4 *s)
{
    void *event = GET(s->device, "newEvent");
    run_of(s, 1);
    metal4_signal(s->queue, event, 1);
    objc_release(event);
}
static void case_waited_event_gone_on_real_clock(stage4 *s)
{
    void *event = GET(s->device, "newSharedEvent");
    softmetal_set_clock(SOFTMETAL_REAL);
    metal4_wait(metal4_queue_new(s->device), event, 1);
    objc_release(event);
}
static void *add_another_handler(void *options)
{
    block b = global_block((any_function)counting_invoke, &on_stage->log, 2);
    metal4_add_feedback_handler(options, &b);
    return NULL;
}
static void intruding_copy(void *to, const void *from)
{
    pthread_t thread;
    (void)to, (void)from;
    pthread_create(&thread, NULL, add_another_handler, on_stage->options);
    pthread_join(thread, NULL);
}
static void case_options_on_two_threads(stage4 *s)
{
    static const descriptor intruding = {0, sizeof(block), intruding_copy, block_dispose, "v16@?0@8", NULL};
    block b = stack_block((any_function)counting_invoke, &s->log, 1);
    b.descriptor = &intruding;
    metal4_add_feedback_handler(s->options, &b);
}
static void case_time_out_without_wait(stage4 *s)
{
    softmetal_time_out(run_of(s, 1));
}
static void case_time_out_behind_another(stage4 *s)
{
    run_of(s, 1);
    metal4_wait(s->queue, GET(s->device, "newSharedEvent"), 1);
    record_fill(s->buffer, metal4_allocator_new(s->device), s->memory, 2);
    metal4_commit(s->queue, &s->buffer, 1, NULL);
    softmetal_time_out(softmetal_last_buffer(s->queue));
}
static void case_complete_behind_wait(stage4 *s)
{
    metal4_wait(s->queue, GET(s->device, "newSharedEvent"), 1);
    softmetal_complete(run_of(s, 1));
}
static void case_complete_behind_held_signal(stage4 *s)
{
    set_quirks((softmetal_quirks){.signals_held = true});
    metal4_signal(s->queue, GET(s->device, "newSharedEvent"), 1);
    softmetal_complete(run_of(s, 1));
}
static void case_reset_with_run(stage4 *s)
{
    run_of(s, 1);
    softmetal_reset();
}
static void case_reset_with_wait(stage4 *s)
{
    metal4_wait(s->queue, GET(s->device, "newSharedEvent"), 1);
    alarm(5); /* at once, and not when it is tired of waiting */
    softmetal_reset();
}
static void case_hidden_selector(stage4 *s)
{
    softmetal_hide_selector("newMTL4CommandQueue");
    metal4_queue_new(s->device);
}
static void case_encoder_without_pool(stage4 *s)
{
    metal4_begin(s->buffer, s->allocator);
    objc_autoreleasePoolPop(s->pool);
    GET(s->buffer, "computeCommandEncoder");
}
static void poolless_invoke(void *self, void *feedback)
{
    (void)self;
    GET(feedback, "error");
}
static void case_error_without_pool(stage4 *s)
{
    block b = stack_block((any_function)poolless_invoke, &s->log, 1);
    metal4_add_feedback_handler(s->options, &b);
    void *run = run_of(s, 1);
    softmetal_fail(run, NULL, 1, NULL);
    softmetal_finish(run);
}
static void giving_invoke(void *self, void *feedback)
{
    block *b = self;
    b->log->given = feedback;
}
static void case_feedback_after_the_handler(stage4 *s)
{
    block b = stack_block((any_function)giving_invoke, &s->log, 1);
    metal4_add_feedback_handler(s->options, &b);
    softmetal_finish(run_of(s, 1));
    metal_gpu_start(s->log.given);
}
static void case_run_after_its_end(stage4 *s)
{
    void *run = run_of(s, 1);
    softmetal_finish(run);
    softmetal_what_is_due(run);
}

static void case_feedback_queue_not_serial(stage4 *s)
{
    metal4_queue_new_on(s->device, dispatch_get_global_queue(0, 0));
}
static void case_feedback_queue_gone(stage4 *s)
{
    serial_queue = dispatch_queue_create("feedback", NULL);
    softmetal_set_clock(SOFTMETAL_REAL);
    void *queue = metal4_queue_new_on(s->device, serial_queue);
    dispatch_release(serial_queue);
    on_feedback(s, 1);
    record_nothing(s->buffer, s->allocator);
    metal4_commit(queue, &s->buffer, 1, s->options);
    softmetal_settle(10 * SECOND);
}

typedef struct rule_case {
    const char *rule;
    void (*run)(stage4 *s);
} rule_case;

static const rule_case rule_cases[] = {
    {"allocator-reset-in-use", case_reset_in_use},
    {"allocator-reset-while-recording", case_reset_while_recording},
    {"allocator-taken", case_allocator_taken},
    {"begin-while-recording", case_begin_twice},
    {"end-without-begin", case_end_without_begin},
    {"end-without-begin", case_end_twice},
    {"end-with-active-encoder", case_end_with_encoder},
    {"second-active-encoder", case_second_encoder},
    {"encoder-outside-recording", case_encoder_without_begin},
    {"encoder-outside-recording", case_encoder_after_end},
    {"encode-after-end", case_encode_after_end},
    {"encoder-not-ended", case_buffer_dropped_with_encoder},
    {"blit-out-of-range", case_fill_out_of_range},
    {"no-pipeline", case_dispatch_without_pipeline},
    {"unknown-gpu-address", case_unknown_address},
    {"unknown-gpu-address", case_address_of_freed},
    {"message-to-freed", case_dispatch_with_freed_table},
    {"bad-binding", case_binding_out_of_table},
    {"bad-binding", case_table_too_large},
    {"empty-commit", case_empty_commit},
    {"nil-argument", case_no_array},
    {"nil-in-commit", case_nil_in_commit},
    {"buffer-twice-in-commit", case_twice_in_commit},
    {"commit-not-ended", case_commit_of_recording},
    {"commit-not-ended", case_commit_of_nothing},
    {"commit-not-ended", case_commit_twice},
    {"recording-reset", case_commit_after_reset},
    {"wrong-class", case_commit_of_legacy_buffer},
    {"other-device", case_commit_to_other_device},
    {"wrong-class", case_options_of_other_class},
    {"nil-argument", case_nil_handler},
    {"nil-argument", case_nil_event},
    {"nil-argument", case_nil_wait},
    {"other-device", case_event_of_other_device},
    {"destroyed-in-use", case_memory_gone},
    {"destroyed-in-use", case_allocator_gone},
    {"destroyed-in-use", case_allocator_gone_while_recording},
    {"destroyed-in-use", case_allocator_gone_before_commit},
    {"destroyed-in-use", case_memory_gone_before_commit},
    {"destroyed-in-use", case_buffer_gone},
    {"destroyed-in-use", case_pipeline_gone},
    {"destroyed-in-use", case_bound_memory_gone},
    {"destroyed-in-use", case_waited_event_gone},
    {"destroyed-in-use", case_signalled_event_gone},
    {"destroyed-in-use", case_waited_event_gone_on_real_clock},
    {"options-on-two-threads", case_options_on_two_threads},
    {"step-not-due", case_time_out_without_wait},
    {"step-not-due", case_time_out_behind_another},
    {"step-not-due", case_complete_behind_wait},
    {"step-not-due", case_complete_behind_held_signal},
    {"reset-with-work", case_reset_with_run},
    {"reset-with-work", case_reset_with_wait},
    {"message-to-freed", case_feedback_after_the_handler},
    {"message-to-freed", case_run_after_its_end},
    {"hidden-selector", case_hidden_selector},
    {"feedback-queue-not-serial", case_feedback_queue_not_serial},
    {"message-to-freed", case_feedback_queue_gone},
    /* pools */
    {"autorelease-without-pool", case_encoder_without_pool},
    {"autorelease-without-pool", case_error_without_pool},
};
#define RULE_CASES (sizeof rule_cases / sizeof rule_cases[0])

static int break_rule(const char *number)
{
    stage4 s;
    alarm(50);
    stage4_open(&s, SOFTMETAL_MANUAL);
    rule_cases[atoi(number)].run(&s);
    fprintf(stderr, "the rule did not hold\n");
    return 0;
}

/* From the case `first` up to `end`. */
static void assert_abort(void (*first)(stage4 *s), void (*end)(stage4 *s))
{
    unsigned wrong = 0, i = 0;
    while (rule_cases[i].run != first) i++;
    for (; i < RULE_CASES && rule_cases[i].run != end; i++) wrong += !case_breaks(i, rule_cases[i].rule);
    assert_int_equal(wrong, 0);
}

static void every_broken_rule_of_metal4_aborts(void **state)
{
    (void)state;
    assert_abort(rule_cases[0].run, case_encoder_without_pool);
}

static void an_object_without_a_pool_aborts(void **state)
{
    (void)state;
    NOT_ON_A_MAC("softmetal does not see every pool");
    assert_abort(case_encoder_without_pool, NULL);
}

static void every_rule_of_metal4_has_a_case(void **state)
{
    (void)state;
    static const char *const names[] = {
#define NAME_OF_RULE(identifier, name, text) name,
        SM_RULES_OF_METAL4(NAME_OF_RULE)
#undef NAME_OF_RULE
    };
    for (unsigned r = 0; r < sizeof names / sizeof names[0]; r++) {
        bool found = false;
        for (unsigned i = 0; i < RULE_CASES; i++) found = found || strcmp(rule_cases[i].rule, names[r]) == 0;
        if (!found) fail_msg("rule %s has no case", names[r]);
    }
}

int main(int argc, char **argv)
{
    own_path = argv[0];
    if (argc == 3 && strcmp(argv[1], "--break") == 0) return break_rule(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_commit_does_the_work_and_tells),
        cmocka_unit_test(buffers_of_a_commit_run_in_order),
        cmocka_unit_test(a_run_needs_no_handler),
        cmocka_unit_test(one_buffer_is_in_several_runs),
        cmocka_unit_test(an_allocator_serves_one_buffer_after_another),
        cmocka_unit_test(kernels_find_memory_by_its_address),
        cmocka_unit_test(feedback_comes_on_its_dispatch_queue),
        cmocka_unit_test(the_manual_clock_keeps_feedback_off_its_dispatch_queue),
        cmocka_unit_test(a_queue_lives_until_its_work_is_over),
        cmocka_unit_test(nothing_is_retained),
        cmocka_unit_test(a_commit_takes_the_handlers_out_of_its_options),
        cmocka_unit_test(options_drop_what_no_commit_took),
        cmocka_unit_test(a_feedback_may_be_kept),
        cmocka_unit_test(a_failed_run_has_a_wrapped_error),
        cmocka_unit_test(runs_fail_as_softmetal_makes_it_of_the_drivers_number),
        cmocka_unit_test(every_code_has_a_text),
        cmocka_unit_test(the_wrapper_names_all_its_errors),
        cmocka_unit_test(a_removed_device_fails_its_runs),
        cmocka_unit_test(a_removed_device_ends_its_waits),
        cmocka_unit_test(a_wait_holds_all_later_work),
        cmocka_unit_test(a_wait_that_times_out_lets_later_work_run),
        cmocka_unit_test(a_fault_does_not_pass_a_wait_of_the_queue),
        cmocka_unit_test(an_overlapping_run_passes_no_wait),
        cmocka_unit_test(operations_alone_go_on_by_themselves),
        cmocka_unit_test(both_kinds_of_queue_meet_at_events),
        cmocka_unit_test(the_watchdog_ends_a_wait_of_the_queue),
        cmocka_unit_test(signals_may_die_with_the_run_before_them),
        cmocka_unit_test(a_signal_may_be_overtaken_by_the_next),
        cmocka_unit_test(work_behind_a_signal_may_be_held_or_pass_it),
        cmocka_unit_test(the_panel_knows_the_event_of_the_last_signal),
        cmocka_unit_test(each_transition_of_a_run_by_hand),
        cmocka_unit_test(runs_that_share_nothing_are_stepped_out_of_order),
        cmocka_unit_test(feedback_may_be_held_late_and_lost),
        cmocka_unit_test(a_run_may_hang_and_take_its_time),
        cmocka_unit_test(creations_of_metal4_fail_too),
        cmocka_unit_test(metal4_may_be_missing),
        cmocka_unit_test(messages_of_the_other_generation_are_not_understood),
        cmocka_unit_test(descriptors_labels_and_relations_of_metal4),
        cmocka_unit_test(hooks_see_commits),
        cmocka_unit_test(reset_loses_what_was_not_stepped),
        cmocka_unit_test(threads_commit_to_one_queue),
        cmocka_unit_test(every_broken_rule_of_metal4_aborts),
        cmocka_unit_test(an_object_without_a_pool_aborts),
        cmocka_unit_test(every_rule_of_metal4_has_a_case),
    };
    return cmocka_run_group_tests_name("softmetal4", tests, NULL, NULL);
}
