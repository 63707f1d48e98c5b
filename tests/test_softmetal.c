/* test_softmetal.c - the software device itself: it behaves as softmetal.h says, and aborts where it must

   Plain C, as every program that softmetal is made for. Each rule has a case that breaks it: the test
   runs itself again with the case's number and expects SIGABRT and the rule's name on stderr. Under
   ThreadSanitizer it also runs itself with races that the device must not hide. What dispatch queues do as
   long as no rule is broken is in test_softmetal_dispatch.c. */
#include "softmetal_words.h"

#include <dlfcn.h>

/* ------------------------------------------------------------------------------- a stage -- */

typedef struct stage {
    void *device, *queue, *pool;
    log_ log;
} stage;

static void stage_open(stage *s, softmetal_clock clock, unsigned long limit)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->log.lock, NULL);
    softmetal_reset();
    softmetal_set_clock(clock);
    s->device = device_new();
    s->queue = s->log.queue = queue_new_of(s->device, limit);
    s->pool = objc_autoreleasePoolPush();
}

static void stage_close(stage *s)
{
    objc_autoreleasePoolPop(s->pool);
    s->log.queue = NULL;
    objc_release(s->queue);
    objc_release(s->device);
    assert_true(softmetal_settle(10 * SECOND));
    softmetal_reset();
    assert_int_equal(softmetal_live(NULL), 0);
}

/* ----------------------------------------------------------------------- the real clock -- */

static void fill_reaches_memory(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *memory = memory_new(s.device, 64), *buffer = buffer_in(s.queue);
    assert_int_equal(status(buffer), NOT_ENQUEUED);
    DO(buffer, "enqueue");
    DO(buffer, "enqueue");
    assert_int_equal(status(buffer), ENQUEUED);
    void *encoder = GET(buffer, "blitCommandEncoder");
    fill_in(encoder, memory, 1, 62, 7);
    DO(encoder, "endEncoding");
    commit(buffer);
    assert_true(status(buffer) >= COMMITTED);
    wait_done(buffer);
    assert_int_equal(status(buffer), COMPLETED);
    assert_null(GET(buffer, "error"));
    assert_int_equal(contents(memory)[0], 0);
    assert_int_equal(contents(memory)[1], 7);
    assert_int_equal(contents(memory)[62], 7);
    assert_int_equal(contents(memory)[63], 0);
    objc_release(memory);
    stage_close(&s);
}

static void work_of_one_queue_keeps_its_order(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *a = memory_new(s.device, 4096), *b = memory_new(s.device, 4096), *last = NULL;
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.execute = timing.schedule = timing.notify = (softmetal_range){0, 200000};
    softmetal_set_timing(&timing);
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000});
    for (int i = 1; i <= 20; i++) {
        last = buffer_in(s.queue);
        fill(last, a, (unsigned char)i);
        copy(last, a, b);
        commit(last);
    }
    wait_done(last);
    for (int i = 0; i < 4096; i++) assert_int_equal(contents(b)[i], 20);
    objc_release(a);
    objc_release(b);
    stage_close(&s);
}

static void handlers_run_before_the_wait_returns(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.notify = (softmetal_range){5 * MS, 5 * MS};
    softmetal_set_timing(&timing);
    void *buffer = buffer_in(s.queue);
    on_scheduled(buffer, &s.log, 1);
    on_completed(buffer, &s.log, 2);
    on_completed(buffer, &s.log, 3);
    assert_int_equal(softmetal_live("block"), 3);
    commit(buffer);
    DO(buffer, "waitUntilScheduled");
    assert_true(log_count(&s.log) >= 1);
    wait_done(buffer);
    assert_int_equal(log_count(&s.log), 3);
    for (int i = 0; i < 3; i++) assert_int_equal(s.log.order[i], i + 1);
    assert_int_equal(s.log.status, COMPLETED);
    assert_false(pthread_equal(s.log.thread, pthread_self()));
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(s.log.disposed, 3);
    assert_int_equal(softmetal_live("block"), 0);
    stage_close(&s);
}

static void times_are_ordered_and_durations_kept(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    const uint64_t wanted[] = {50000, 5 * MS};
    for (int i = 0; i < 2; i++) {
        void *buffer = buffer_in(s.queue);
        assert_true(GET_DOUBLE(buffer, "GPUStartTime") == 0);
        assert_true(GET_DOUBLE(buffer, "GPUEndTime") == 0);
        softmetal_set_duration(buffer, wanted[i]);
        double before = (double)now_ns() / 1e9;
        commit(buffer);
        wait_done(buffer);
        double kernel = GET_DOUBLE(buffer, "kernelStartTime"), start = GET_DOUBLE(buffer, "GPUStartTime");
        double end = GET_DOUBLE(buffer, "GPUEndTime"), took = end - start;
        assert_true(before <= kernel && kernel <= start && start <= end);
        assert_true(kernel <= GET_DOUBLE(buffer, "kernelEndTime"));
        assert_true(took >= (double)wanted[i] / 1e9);
        assert_true(took < (double)wanted[i] / 1e9 + 0.5); /* loose: a loaded machine is late */
    }
    stage_close(&s);
}

static void *take_and_drop_buffer(void *user)
{
    stage *s = user;
    void *pool = objc_autoreleasePoolPush();
    (void)buffer_in(s->queue);
    log_add(&s->log, 1);
    objc_autoreleasePoolPop(pool);
    return NULL;
}

static void a_full_queue_blocks_the_next_buffer(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 2);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    void *pool = objc_autoreleasePoolPush();
    (void)buffer_in(s.queue);
    assert_int_equal(softmetal_outstanding(s.queue), 1);
    objc_autoreleasePoolPop(pool);
    assert_int_equal(softmetal_outstanding(s.queue), 0);

    void *first = buffer_in(s.queue), *second = buffer_in(s.queue);
    assert_ptr_equal(softmetal_last_buffer(s.queue), second);
    assert_ptr_equal(softmetal_buffer_at(s.queue, 1), first);
    assert_null(softmetal_buffer_at(s.queue, 2));
    softmetal_hang(first);
    commit(first);
    pthread_t thread;
    pthread_create(&thread, NULL, take_and_drop_buffer, &s);
    sleep_ms(20);
    assert_int_equal(log_count(&s.log), 0);
    softmetal_unhang(first);
    pthread_join(thread, NULL);
    assert_int_equal(log_count(&s.log), 1);
    commit(second);
    wait_done(second);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    stage_close(&s);
}

static void a_test_is_told_that_threads_are_blocked(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 1);
    void *first = buffer_in(s.queue);
    softmetal_hang(first);
    commit(first);
    assert_int_equal(softmetal_blocked(s.queue), 0);
    assert_true(softmetal_await_blocked(s.queue, 0, 0));
    assert_false(softmetal_await_blocked(s.queue, 1, MS));
    pthread_t threads[2];
    uint64_t start = now_ns();
    for (unsigned k = 0; k < 2; k++) {
        pthread_create(&threads[k], NULL, take_and_drop_buffer, &s);
        assert_true(softmetal_await_blocked(s.queue, k + 1, 20 * SECOND));
        assert_int_equal(softmetal_blocked(s.queue), k + 1);
    }
    assert_true(now_ns() - start < 20 * SECOND); /* told, not timed out */
    assert_int_equal(log_count(&s.log), 0);
    softmetal_unhang(first);
    for (unsigned k = 0; k < 2; k++) pthread_join(threads[k], NULL);
    assert_int_equal(log_count(&s.log), 2);
    assert_int_equal(softmetal_blocked(s.queue), 0);
    softmetal_set_quirks(&(softmetal_quirks){.full_queue_aborts = true}); /* a place is free */
    (void)buffer_in(s.queue);
    stage_close(&s);
}

static void references_last_until_the_end(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *memory = memory_new(s.device, 16), *event = GET(s.device, "newEvent"), *buffer = buffer_in(s.queue);
    assert_true(SEND(signed char, (void *, void *), buffer, "retainedReferences") != 0);
    fill(buffer, memory, 1);
    encode_signal(buffer, event, 1);
    assert_int_equal(softmetal_retain_count(memory), 2);
    objc_release(memory);
    objc_release(event);
    assert_int_equal(softmetal_live("buffer"), 1);
    commit(buffer);
    wait_done(buffer);
    assert_int_equal(softmetal_live("buffer"), 0);
    assert_int_equal(softmetal_live("event"), 0);

    void *other = memory_new(s.device, 16);
    buffer = GET(s.queue, "commandBufferWithUnretainedReferences");
    assert_true(SEND(signed char, (void *, void *), buffer, "retainedReferences") == 0);
    fill(buffer, other, 9);
    assert_int_equal(softmetal_retain_count(other), 1);
    commit(buffer);
    wait_done(buffer);
    assert_int_equal(contents(other)[15], 9);
    objc_release(other);
    stage_close(&s);
}

static void a_committed_buffer_keeps_itself_alive(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *pool = objc_autoreleasePoolPush();
    void *buffer = buffer_in(s.queue);
    softmetal_set_duration(buffer, 10 * MS);
    on_completed(buffer, &s.log, 1);
    commit(buffer);
    objc_autoreleasePoolPop(pool);
    assert_int_equal(softmetal_live("command_buffer"), 1);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(log_count(&s.log), 1);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    stage_close(&s);
}

/* Asks the queue, whose lock must be free. */
static void dropped_invoke(void *self, void *buffer)
{
    block *b = self;
    assert_int_equal(softmetal_outstanding(b->log->queue), 1);
    handler_invoke(self, buffer);
}

static void handlers_of_a_dropped_buffer_run_as_it_goes(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 1);
    void *pool = objc_autoreleasePoolPush(), *buffer = buffer_in(s.queue);
    block b = stack_block((any_function)dropped_invoke, &s.log, 1);
    DO1(buffer, "addCompletedHandler:", &b);
    on_completed(buffer, &s.log, 2);
    on_scheduled(buffer, &s.log, 3);
    s.log.status = COMPLETED;
    objc_autoreleasePoolPop(pool);
    assert_int_equal(log_count(&s.log), 2);
    assert_int_equal(s.log.order[0], 1);
    assert_int_equal(s.log.order[1], 2);
    assert_int_equal(s.log.status, NOT_ENQUEUED);
    assert_true(pthread_equal(s.log.thread, pthread_self()));
    assert_int_equal(s.log.disposed, 3);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    assert_int_equal(softmetal_live("command_buffer"), 0);

    pool = objc_autoreleasePoolPush();
    buffer = buffer_in(s.queue);
    on_completed(buffer, &s.log, 4);
    softmetal_lose_handlers(buffer);
    objc_autoreleasePoolPop(pool);
    assert_int_equal(log_count(&s.log), 2);
    assert_int_equal(s.log.disposed, 4);
    stage_close(&s);
}

static void a_global_block_stays_where_it_is(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    block b = global_block((any_function)handler_invoke, &s.log, 5);
    for (int i = 0; i < 3; i++) {
        void *buffer = buffer_in(s.queue);
        DO1(buffer, "addCompletedHandler:", &b);
        commit(buffer);
        wait_done(buffer);
    }
    assert_int_equal(log_count(&s.log), 3);
    assert_int_equal(s.log.order[2], 5);
    stage_close(&s);
}

static void descriptors_labels_and_relations(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *wanted = GET(GET(objc_getClass("MTLCommandBufferDescriptor"), "alloc"), "init");
    SEND_WITH(void, (void *, void *, signed char), wanted, "setRetainedReferences:", 0);
    SEND_WITH(void, (void *, void *, unsigned long), wanted, "setErrorOptions:", 1ul);
    void *buffer = GET1(s.queue, "commandBufferWithDescriptor:", wanted);
    assert_true(SEND(signed char, (void *, void *), buffer, "retainedReferences") == 0);
    assert_int_equal(GET_LONG(buffer, "errorOptions"), 1);
    assert_ptr_equal(GET(buffer, "commandQueue"), s.queue);
    assert_ptr_equal(GET(buffer, "device"), s.device);
    assert_ptr_equal(GET(s.queue, "device"), s.device);
    assert_null(GET(buffer, "label"));
    DO1(buffer, "setLabel:", string("frame"));
    DO1(s.queue, "setLabel:", string("main"));
    assert_string_equal(text_of(GET(buffer, "label")), "frame");
    assert_string_equal(text_of(GET(s.queue, "label")), "main");
    objc_release(wanted);

    void *again = device_new(), *list = MTLCopyAllDevices();
    assert_ptr_equal(again, s.device);
    assert_int_equal(GET_LONG(list, "count"), 1);
    assert_ptr_equal(SEND_WITH(void *, (void *, void *, unsigned long), list, "objectAtIndex:", 0ul), s.device);
    assert_true(SEND(uint64_t, (void *, void *), s.device, "registryID") != 0);
    assert_true(SEND(signed char, (void *, void *), s.device, "hasUnifiedMemory") != 0);
    assert_true(SEND_WITH(signed char, (void *, void *, long), s.device, "supportsFamily:", 1007l) != 0);
    assert_true(SEND_WITH(signed char, (void *, void *, long), s.device, "supportsFamily:", 5002l) != 0);
    assert_true(SEND_WITH(signed char, (void *, void *, long), s.device, "supportsFamily:", 1010l) == 0);
    assert_true(strlen(text_of(GET(s.device, "name"))) > 0);
    objc_release(list);
    objc_release(again);
    stage_close(&s);
}

/* --------------------------------------------------------------------------------- faults -- */

static void assert_error(void *buffer, const char *domain, long code, const char *text)
{
    void *error = GET(buffer, "error");
    assert_non_null(error);
    assert_int_equal(status(buffer), FAILED);
    assert_int_equal(SEND(long, (void *, void *), error, "code"), code);
    assert_string_equal(text_of(GET(error, "domain")), domain);
    if (text)
        assert_string_equal(text_of(GET(error, "localizedDescription")), text);
    else
        assert_true(strlen(text_of(GET(error, "localizedDescription"))) > 0);
}

static void a_failed_buffer_does_nothing_and_says_why(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *memory = memory_new(s.device, 16), *event = GET(s.device, "newSharedEvent");
    void *buffer = buffer_in(s.queue);
    fill(buffer, memory, 3);
    encode_signal(buffer, event, 4);
    on_completed(buffer, &s.log, 1);
    softmetal_fail(buffer, NULL, 8, NULL);
    commit(buffer);
    wait_done(buffer);
    assert_error(buffer, "MTLCommandBufferErrorDomain", 8, NULL);
    assert_int_equal(s.log.status, FAILED);
    assert_int_equal(contents(memory)[0], 0);
    assert_int_equal(event_value(event), 0);
    assert_string_equal(text_of(MTLCommandBufferErrorDomain), "MTLCommandBufferErrorDomain");

    buffer = buffer_in(s.queue);
    softmetal_fail(buffer, "OtherDomain", -3, "went wrong");
    commit(buffer);
    wait_done(buffer);
    assert_error(buffer, "OtherDomain", -3, "went wrong");

    softmetal_fail_next(2, 3);
    for (int i = 0; i < 3; i++) {
        buffer = buffer_in(s.queue);
        commit(buffer);
        wait_done(buffer);
        assert_int_equal(status(buffer), i < 2 ? FAILED : COMPLETED);
    }
    objc_release(memory);
    objc_release(event);
    stage_close(&s);
}

/* A committed buffer that has failed so. */
static void *failed_as(stage *s, unsigned number, const char *text)
{
    void *buffer = buffer_in(s->queue);
    softmetal_fail_as(buffer, number, text);
    commit(buffer);
    wait_done(buffer);
    return buffer;
}

static void buffers_fail_as_softmetal_makes_it_of_the_drivers_number(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    for (size_t i = 0; i < MADE_OF_NUMBERS; i++) {
        const made_of_number *made = &made_of_numbers[i];
        char text[LONGEST_TEXT];
        text_of_number(text, made, "GPU");
        void *buffer = failed_as(&s, made->number, NULL), *below = error_below(GET(buffer, "error"));
        assert_error(buffer, "MTLCommandBufferErrorDomain", made->code, text);
        assert_string_equal(text_of(GET(below, "domain")), "IOGPUCommandQueueErrorDomain");
        assert_int_equal(code_of(below), made->number);
        assert_null(error_below(below));
        assert_true(strlen(text_of(GET(below, "localizedDescription"))) > 0);
        assert_int_equal(GET_LONG(GET(below, "userInfo"), "count"), 0);
    }
    void *buffer = failed_as(&s, SOFTMETAL_IMPACTING_INTERACTIVITY, "Internal Error (0000000e:Internal Error)");
    assert_error(buffer, "MTLCommandBufferErrorDomain", 1, "Internal Error (0000000e:Internal Error)");
    assert_int_equal(code_of(error_below(GET(buffer, "error"))), 14);
    softmetal_fail_next_as(1, SOFTMETAL_PAGE_FAULT);
    buffer = buffer_in(s.queue);
    commit(buffer);
    wait_done(buffer);
    assert_error(buffer, "MTLCommandBufferErrorDomain", 3, NULL);
    assert_int_equal(code_of(error_below(GET(buffer, "error"))), 11);
    stage_close(&s);
}

/* Where a test knows Metal's code alone. */
static void the_likeliest_number_is_behind_a_code(void **state)
{
    static const struct {
        long code, number;
    } rows[] = {{0, -1}, {1, SOFTMETAL_INTERNAL}, {2, 2}, {3, 11}, {4, 4}, {5, -1}, {6, -1}, {7, 6}, {8, 8}, {9, 9},
                {10, -1}, {11, -1}, {12, -1}, {-1, -1}};
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *buffer = buffer_in(s.queue);
        softmetal_fail(buffer, NULL, rows[i].code, i % 2 ? "on purpose" : NULL);
        commit(buffer);
        wait_done(buffer);
        assert_error(buffer, "MTLCommandBufferErrorDomain", rows[i].code, i % 2 ? "on purpose" : NULL);
        assert_int_equal(code_of(error_below(GET(buffer, "error"))), rows[i].number);
    }
    stage_close(&s);
}

static void errors_of_other_drivers_have_the_number_in_another_form_or_not_at_all(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    for (size_t i = 0; i < MADE_OF_NUMBERS; i++) {
        const made_of_number *made = &made_of_numbers[i];
        char text[LONGEST_TEXT];
        softmetal_set_quirks(&(softmetal_quirks){.ioaccel_errors = true});
        text_of_number(text, made, "Accel");
        void *buffer = failed_as(&s, made->number, NULL);
        assert_error(buffer, "MTLCommandBufferErrorDomain", made->code, text);
        assert_null(error_below(GET(buffer, "error")));

        softmetal_set_quirks(&(softmetal_quirks){.ioaf_errors = true});
        snprintf(text, sizeof text, "%s (IOAF code %d)", made->words, (int)made->number);
        buffer = failed_as(&s, made->number, NULL);
        assert_error(buffer, "MTLCommandBufferErrorDomain", made->code, text);
        assert_null(error_below(GET(buffer, "error")));

        softmetal_set_quirks(&(softmetal_quirks){.bare_errors = true});
        buffer = failed_as(&s, made->number, NULL);
        assert_error(buffer, "MTLCommandBufferErrorDomain", made->code, made->words);
        assert_null(error_below(GET(buffer, "error")));
    }
    stage_close(&s);
}

static void held_handlers_wait_and_lost_ones_never_run(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *held = buffer_in(s.queue), *next = buffer_in(s.queue), *lost = buffer_in(s.queue);
    on_completed(held, &s.log, 1);
    on_completed(next, &s.log, 2);
    on_completed(lost, &s.log, 3);
    softmetal_hold_handlers(held);
    softmetal_lose_handlers(lost);
    commit(held);
    commit(next);
    commit(lost);
    wait_done(lost);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(status(held), COMPLETED);
    assert_int_equal(log_count(&s.log), 1);
    assert_int_equal(softmetal_outstanding(s.queue), 1);
    softmetal_deliver(held);
    wait_done(held);
    assert_int_equal(log_count(&s.log), 2);
    assert_int_equal(s.log.order[0], 2);
    assert_int_equal(s.log.order[1], 1);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(s.log.disposed, 3);

    void *forgotten = buffer_in(s.queue); /* reset clears it away */
    on_completed(forgotten, &s.log, 4);
    softmetal_hold_handlers(forgotten);
    commit(forgotten);
    assert_true(softmetal_settle(SECOND));
    softmetal_reset();
    assert_int_equal(log_count(&s.log), 2);
    assert_int_equal(s.log.disposed, 4);
    stage_close(&s);
}

static void the_queue_goes_on_while_handlers_are_delayed(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *delayed = buffer_in(s.queue), *next = buffer_in(s.queue);
    on_completed(delayed, &s.log, 1);
    on_completed(next, &s.log, 2);
    softmetal_delay_handlers(delayed, 20 * MS);
    commit(delayed);
    commit(next);
    wait_done(delayed);
    assert_true((double)now_ns() / 1e9 - GET_DOUBLE(delayed, "GPUEndTime") >= 0.02);
    wait_done(next);
    assert_int_equal(log_count(&s.log), 2);

    const uint64_t hour = 3600 * SECOND; /* the test is not that patient */
    delayed = buffer_in(s.queue);
    on_completed(delayed, &s.log, 3);
    softmetal_delay_handlers(delayed, hour);
    commit(delayed);
    while (status(delayed) < COMPLETED) sleep_ms(1);
    for (int i = 0; i < 3; i++) {
        void *other = buffer_in(s.queue);
        on_completed(other, &s.log, 4 + i);
        if (i == 1) softmetal_delay_handlers(other, MS);
        commit(other);
        wait_done(other);
        assert_int_equal(log_count(&s.log), 3 + i);
        assert_int_equal(s.log.order[2 + i], 4 + i);
    }
    assert_int_equal(status(delayed), COMPLETED);
    assert_int_equal(softmetal_outstanding(s.queue), 1);
    assert_false(softmetal_settle(MS));
    softmetal_reset(); /* loses them */
    assert_int_equal(log_count(&s.log), 5);
    assert_int_equal(s.log.disposed, 6);
    stage_close(&s);
}

static void status_may_follow_the_handlers(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *buffer = buffer_in(s.queue);
    on_completed(buffer, &s.log, 1);
    softmetal_status_after_handlers(buffer);
    commit(buffer);
    wait_done(buffer);
    assert_int_equal(s.log.status, SCHEDULED);
    assert_int_equal(status(buffer), COMPLETED);
    stage_close(&s);
}

/* ... and not the error. */
static void the_error_is_there_before_a_status_that_follows_the_handlers(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *buffer = buffer_in(s.queue);
    on_completed(buffer, &s.log, 1);
    softmetal_status_after_handlers(buffer);
    softmetal_fail(buffer, NULL, 3, NULL);
    commit(buffer);
    softmetal_schedule(buffer);
    assert_null(GET(buffer, "error"));
    softmetal_complete(buffer);
    s.log.gate = 1;
    softmetal_begin_handler(buffer, 0); /* and it stays there */
    assert_int_equal(status(buffer), SCHEDULED);
    assert_int_equal(SEND(long, (void *, void *), GET(buffer, "error"), "code"), 3);
    __atomic_store_n(&s.log.gate, 0, __ATOMIC_RELEASE);
    softmetal_finish(buffer);
    assert_int_equal(status(buffer), FAILED);
    stage_close(&s);
}

static void a_buffer_is_scheduled_while_another_runs(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *running = buffer_in(s.queue), *behind = buffer_in(s.queue);
    softmetal_hang(running);
    on_scheduled(behind, &s.log, 1);
    commit(running);
    commit(behind);
    DO(behind, "waitUntilScheduled");
    assert_int_equal(log_count(&s.log), 1);
    assert_int_equal(status(behind), SCHEDULED);
    softmetal_unhang(running);
    wait_done(behind);
    stage_close(&s);
}

static void a_hang_ends_with_unhang_or_removal(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *first = buffer_in(s.queue), *second = buffer_in(s.queue);
    softmetal_hang(first);
    softmetal_hang(second);
    commit(first);
    commit(second);
    sleep_ms(10);
    assert_false(softmetal_settle(0));
    assert_true(status(first) < COMPLETED);
    softmetal_unhang(first);
    wait_done(first);
    assert_int_equal(status(first), COMPLETED);
    void *waiting = buffer_in(s.queue), *event = GET(s.device, "newSharedEvent");
    encode_wait(waiting, event, 1);
    commit(waiting);
    softmetal_remove_device(s.device);
    wait_done(waiting);
    assert_error(second, "MTLCommandBufferErrorDomain", 11, NULL);
    assert_error(waiting, "MTLCommandBufferErrorDomain", 11, NULL);
    void *late = buffer_in(s.queue);
    softmetal_set_duration(late, 100 * SECOND);
    commit(late);
    wait_done(late);
    assert_error(late, "MTLCommandBufferErrorDomain", 11, NULL);
    objc_release(event);
    stage_close(&s);
}

/* A late handler waits for those of the next buffer, but not for longer than 2 ms: a busy machine may take more from the
   end of one to that of the other. So this counts as seen when one of 100 pairs has changed places. */
static void chaos_reorders_handlers_and_fails_buffers(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    for (int pair = 0; pair < 100 && s.log.order[0] != 2; pair++) {
        s.log.count = 0;
        softmetal_set_chaos(&(softmetal_chaos){.late_handler_per_mille = 1000});
        void *late = buffer_in(s.queue), *next = buffer_in(s.queue);
        on_completed(late, &s.log, 1);
        on_completed(next, &s.log, 2);
        softmetal_hang(late);
        commit(late);
        softmetal_set_chaos(&(softmetal_chaos){.fail_per_mille = 1000});
        commit(next);
        softmetal_unhang(late); /* both are committed: so the next one is there when this one ends */
        wait_done(late);
        wait_done(next);
        assert_error(next, "MTLCommandBufferErrorDomain", 1, NULL);
    }
    assert_int_equal(s.log.order[0], 2);
    assert_int_equal(s.log.order[1], 1);
    stage_close(&s);
}

static void independent_buffers_overlap(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000});
    void *a = memory_new(s.device, 16), *b = memory_new(s.device, 16);
    void *slow = buffer_in(s.queue), *apart = buffer_in(s.queue), *same = buffer_in(s.queue);
    fill(slow, a, 1);
    fill(apart, b, 2);
    copy(same, a, b);
    softmetal_hang(slow);
    commit(slow);
    commit(apart);
    commit(same);
    wait_done(apart); /* would never return in strict order */
    assert_true(status(slow) < COMPLETED);
    assert_true(status(same) < COMPLETED);
    assert_int_equal(contents(b)[0], 2);
    softmetal_unhang(slow);
    wait_done(same);
    assert_int_equal(contents(b)[0], 1);
    objc_release(a);
    objc_release(b);
    stage_close(&s);
}

static void the_nth_creation_fails(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_fail_creation(2, false);
    void *event = GET(s.device, "newSharedEvent");
    assert_non_null(event);
    assert_null(GET(s.queue, "commandBuffer"));
    void *buffer = buffer_in(s.queue);
    assert_non_null(buffer);
    assert_int_equal(softmetal_creations(), 3);
    assert_int_equal(softmetal_outstanding(s.queue), 1);
    softmetal_fail_creation(1, true);
    assert_null(MTLCreateSystemDefaultDevice());
    assert_null(MTLCopyAllDevices());
    assert_null(queue_new(s.device));
    assert_null(memory_new(s.device, 4));
    assert_null(GET(s.device, "newEvent"));
    assert_null(GET(s.device, "newSharedEvent"));
    assert_null(GET(buffer, "blitCommandEncoder"));
    assert_null(GET(buffer, "computeCommandEncoder"));
    void *error = NULL;
    assert_null(SEND_WITH(void *, (void *, void *, void *, void *, void **), s.device,
                          "newLibraryWithSource:options:error:", string(""), NULL, &error));
    assert_int_equal(softmetal_creations(), 9);
    softmetal_fail_creation(1, false);
    softmetal_fail_creation_too(3, false);
    assert_null(GET(s.device, "newSharedEvent"));
    assert_non_null(buffer_in(s.queue));
    assert_null(GET(s.device, "newSharedEvent"));
    softmetal_fail_creation(0, false);
    assert_non_null(buffer_in(s.queue));
    objc_release(event);
    stage_close(&s);
}

static void hidden_selectors_are_not_answered(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    assert_true(responds(s.device, "newSharedEvent"));
    assert_true(class_respondsToSelector(object_getClass(s.device), sel_registerName("newSharedEvent")));
    assert_false(responds(s.device, "newTeapot"));
    softmetal_hide_selector("newSharedEvent");
    assert_false(responds(s.device, "newSharedEvent"));
    assert_false(class_respondsToSelector(object_getClass(s.device), sel_registerName("newSharedEvent")));
    assert_true(responds(s.device, "newEvent"));
    softmetal_reset();
    assert_true(responds(s.device, "newSharedEvent"));
    stage_close(&s);
}

static void hidden_classes_are_not_found(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *listener = objc_getClass("MTLSharedEventListener");
    assert_non_null(listener);
    softmetal_hide_class("MTLSharedEventListener");
    assert_null(objc_getClass("MTLSharedEventListener"));
    assert_non_null(objc_getClass("MTLCommandBufferDescriptor"));
    softmetal_hide_class(NULL);
    assert_ptr_equal(objc_getClass("MTLSharedEventListener"), listener);
    softmetal_hide_class("MTLSharedEventListener");
    softmetal_reset();
    assert_ptr_equal(objc_getClass("MTLSharedEventListener"), listener);
    assert_null(objc_getClass("NoClassOfThisName"));
    stage_close(&s);
}

static void a_twin_is_another_object_of_the_same_device(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *twin = softmetal_new_twin(s.device), *other = softmetal_new_device();
    uint64_t id = SEND(uint64_t, (void *, void *), s.device, "registryID");
    assert_ptr_not_equal(twin, s.device);
    assert_true(SEND(uint64_t, (void *, void *), twin, "registryID") == id);
    assert_true(SEND(uint64_t, (void *, void *), other, "registryID") != id);
    objc_release(other);
    objc_release(twin);
    stage_close(&s);
}

/* ------------------------------------------------------ what an error says of the encoders -- */

extern void *const MTLCommandBufferEncoderInfoErrorKey;

/* A command buffer that was asked for with the option. */
static void *telling_buffer(stage *s)
{
    void *wanted = GET(GET(objc_getClass("MTLCommandBufferDescriptor"), "alloc"), "init");
    SEND_WITH(void, (void *, void *, unsigned long), wanted, "setErrorOptions:", 1ul);
    void *buffer = GET1(s->queue, "commandBufferWithDescriptor:", wanted);
    objc_release(wanted);
    return buffer;
}

/* Three encoders: a label and signposts, neither, and not even a command. A signal is behind each of the first two. */
static void encode_three(void *buffer, void *memory, void *event)
{
    void *encoder = GET(buffer, "blitCommandEncoder");
    DO1(encoder, "setLabel:", string("first"));
    DO1(encoder, "insertDebugSignpost:", string("begin"));
    fill_in(encoder, memory, 0, 4, 1);
    DO1(encoder, "insertDebugSignpost:", string("end"));
    DO(encoder, "endEncoding");
    encode_signal(buffer, event, 1);
    fill(buffer, memory, 2);
    encode_signal(buffer, event, 2);
    DO(GET(buffer, "computeCommandEncoder"), "endEncoding");
}

static void *encoder_infos(void *buffer) /* NULL: nothing is under the key */
{
    void *error = GET(buffer, "error");
    assert_non_null(error);
    return GET1(GET(error, "userInfo"), "objectForKey:", string("MTLCommandBufferEncoderInfoErrorKey"));
}
static void *item(void *array, unsigned long k)
{
    return SEND_WITH(void *, (void *, void *, unsigned long), array, "objectAtIndex:", k);
}
static void assert_states(void *buffer, long first, long second, long third)
{
    const long wanted[] = {first, second, third};
    void *infos = encoder_infos(buffer);
    assert_non_null(infos);
    assert_int_equal(GET_LONG(infos, "count"), 3);
    for (unsigned k = 0; k < 3; k++)
        assert_int_equal(SEND(long, (void *, void *), item(infos, k), "errorState"), wanted[k]);
}

static void an_error_tells_of_the_encoders(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *memory = memory_new(s.device, 4), *event = GET(s.device, "newSharedEvent");
    assert_string_equal(text_of(MTLCommandBufferEncoderInfoErrorKey), "MTLCommandBufferEncoderInfoErrorKey");
    assert_ptr_equal(dlsym(RTLD_DEFAULT, "MTLCommandBufferEncoderInfoErrorKey"), &MTLCommandBufferEncoderInfoErrorKey);
    void *buffer = telling_buffer(&s);
    encode_three(buffer, memory, event);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    commit(buffer);
    wait_done(buffer);
    assert_error(buffer, "MTLCommandBufferErrorDomain", 3, NULL);
    assert_states(buffer, SOFTMETAL_ENCODER_FAULTED, SOFTMETAL_ENCODER_PENDING, SOFTMETAL_ENCODER_PENDING);
    void *infos = encoder_infos(buffer), *posts = GET(item(infos, 0), "debugSignposts");
    assert_int_equal(softmetal_live("encoder_info"), 3);
    assert_string_equal(text_of(GET(item(infos, 0), "label")), "first");
    assert_int_equal(GET_LONG(posts, "count"), 2);
    assert_string_equal(text_of(item(posts, 0)), "begin");
    assert_string_equal(text_of(item(posts, 1)), "end");
    assert_string_equal(text_of(GET(item(infos, 1), "label")), "");
    assert_int_equal(GET_LONG(GET(item(infos, 2), "debugSignposts"), "count"), 0);
    assert_int_equal(code_of(error_below(GET(buffer, "error"))), SOFTMETAL_PAGE_FAULT);

    buffer = telling_buffer(&s); /* no encoder */
    softmetal_fail_next(1, 2);
    commit(buffer);
    wait_done(buffer);
    assert_int_equal(GET_LONG(encoder_infos(buffer), "count"), 0);
    for (int own_domain = 0; own_domain < 2; own_domain++) { /* without the option; an error that is not of Metal */
        buffer = own_domain ? telling_buffer(&s) : buffer_in(s.queue);
        encode_three(buffer, memory, event);
        softmetal_fail(buffer, own_domain ? "OtherDomain" : NULL, 1, NULL);
        commit(buffer);
        wait_done(buffer);
        assert_null(encoder_infos(buffer));
    }
    buffer = telling_buffer(&s); /* no error */
    encode_three(buffer, memory, event);
    commit(buffer);
    wait_done(buffer);
    assert_null(GET(buffer, "error"));
    objc_release(memory);
    objc_release(event);
    stage_close(&s);
}

static void the_states_of_encoders_follow_from_where_the_gpu_ended(void **state)
{
    enum { DONE = SOFTMETAL_ENCODER_COMPLETED, PENDING = SOFTMETAL_ENCODER_PENDING, FAULT = SOFTMETAL_ENCODER_FAULTED };
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *memory = memory_new(s.device, 4), *event = GET(s.device, "newSharedEvent"), *buffer;
    static const long rows[][3] = {{FAULT, PENDING, PENDING}, {DONE, FAULT, PENDING}, {DONE, DONE, FAULT}};
    for (unsigned signals = 0; signals < 3; signals++) {
        buffer = telling_buffer(&s);
        encode_three(buffer, memory, event);
        softmetal_fail_after_signals(buffer, signals);
        commit(buffer);
        softmetal_complete(buffer);
        assert_states(buffer, rows[signals][0], rows[signals][1], rows[signals][2]);
    }
    buffer = telling_buffer(&s);
    DO(GET(buffer, "computeCommandEncoder"), "endEncoding"); /* as the first it is to blame, too */
    for (unsigned char k = 0; k < 2; k++) fill(buffer, memory, k);
    softmetal_fail(buffer, NULL, 1, NULL);
    commit(buffer);
    softmetal_complete(buffer);
    assert_states(buffer, FAULT, PENDING, PENDING);
    for (int late = 0; late < 2; late++) { /* all is done: before the fault is set, and as it waits for signals */
        buffer = telling_buffer(&s);
        for (unsigned char k = 0; k < 3; k++) fill(buffer, memory, k);
        if (!late) softmetal_fail_after_signals(buffer, 1);
        commit(buffer);
        softmetal_schedule(buffer);
        softmetal_execute(buffer);
        if (late) softmetal_fail(buffer, NULL, 1, NULL);
        softmetal_complete(buffer);
        assert_states(buffer, DONE, DONE, FAULT);
    }
    void *never = GET(s.device, "newSharedEvent");
    for (unsigned char wait_at = 1; wait_at <= 3; wait_at++) {
        buffer = telling_buffer(&s);
        for (unsigned char k = 0; k <= 3; k++) {
            if (k == wait_at) encode_wait(buffer, never, 1);
            if (k < 3) fill(buffer, memory, k);
        }
        commit(buffer);
        softmetal_time_out(buffer);
        assert_states(buffer, DONE, wait_at == 1 ? PENDING : DONE, wait_at == 3 ? DONE : PENDING);
    }
    buffer = telling_buffer(&s);
    encode_three(buffer, memory, event);
    commit(buffer);
    softmetal_remove_device(s.device);
    softmetal_complete(buffer);
    assert_states(buffer, SOFTMETAL_ENCODER_AFFECTED, PENDING, PENDING);

    softmetal_finish_queue(s.queue);
    objc_release(never);
    objc_release(memory);
    objc_release(event);
    stage_close(&s);
}

static void a_test_chooses_the_states_of_encoders(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    static const long states[] = {SOFTMETAL_ENCODER_COMPLETED, SOFTMETAL_ENCODER_AFFECTED, -99, 7};
    void *memory = memory_new(s.device, 4), *event = GET(s.device, "newSharedEvent");
    for (unsigned count = 0; count <= 4; count++) {
        void *buffer = telling_buffer(&s);
        softmetal_set_encoder_states(buffer, states, 4); /* the last call counts */
        softmetal_set_encoder_states(buffer, states, count);
        encode_three(buffer, memory, event);
        softmetal_fail(buffer, NULL, 1, NULL);
        commit(buffer);
        wait_done(buffer);
        const long pending = SOFTMETAL_ENCODER_PENDING;
        assert_states(buffer, count > 0 ? states[0] : SOFTMETAL_ENCODER_FAULTED, count > 1 ? states[1] : pending,
                      count > 2 ? states[2] : pending);
    }
    objc_release(memory);
    objc_release(event);
    stage_close(&s);
}

static void what_is_said_of_the_encoders_may_be_spoilt(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *memory = memory_new(s.device, 4), *event = GET(s.device, "newSharedEvent"), *buffer = telling_buffer(&s);
    void *null = GET(objc_getClass("NSNull"), "null");
    encode_three(buffer, memory, event);
    softmetal_fail(buffer, NULL, 1, NULL);
    commit(buffer);
    wait_done(buffer);
    softmetal_set_quirks(&(softmetal_quirks){.no_encoder_info = true});
    assert_null(encoder_infos(buffer));
    assert_non_null(error_below(GET(buffer, "error")));
    softmetal_set_quirks(&(softmetal_quirks){.null_encoder_info = true});
    assert_ptr_equal(encoder_infos(buffer), null);
    softmetal_set_quirks(&(softmetal_quirks){.empty_encoder_info = true});
    assert_int_equal(GET_LONG(encoder_infos(buffer), "count"), 0);
    softmetal_set_quirks(&(softmetal_quirks){.alien_encoder_info = true});
    assert_int_equal(GET_LONG(encoder_infos(buffer), "count"), 3);
    for (unsigned k = 0; k < 3; k++) assert_ptr_equal(item(encoder_infos(buffer), k), null);
    softmetal_set_quirks(&(softmetal_quirks){.bare_encoder_info = true});
    assert_states(buffer, SOFTMETAL_ENCODER_FAULTED, SOFTMETAL_ENCODER_PENDING, SOFTMETAL_ENCODER_PENDING);
    void *info = item(encoder_infos(buffer), 0);
    assert_null(GET(info, "label"));
    assert_null(GET(info, "debugSignposts"));
    softmetal_set_quirks(&(softmetal_quirks){.bare_encoder_info = false});
    assert_non_null(GET(info, "label"));
    assert_true(responds(info, "errorState"));
    softmetal_hide_selector("errorState");
    assert_false(responds(info, "errorState"));
    assert_true(responds(info, "label") && responds(info, "debugSignposts"));
    objc_release(memory);
    objc_release(event);
    stage_close(&s);
}

/* ------------------------------------------------------------------ a fault behind signals -- */

static void a_buffer_may_signal_and_then_fail(void **state)
{
    (void)state;
    for (int clock = SOFTMETAL_REAL; clock <= SOFTMETAL_MANUAL; clock++) {
        for (unsigned signals = 0; signals <= 3; signals++) {
            stage s;
            stage_open(&s, (softmetal_clock)clock, 64);
            void *memory = memory_new(s.device, 4), *buffer = buffer_in(s.queue);
            void *event = GET(s.device, "newSharedEvent");
            void *before = GET(s.device, "newSharedEvent"), *never = GET(s.device, "newSharedEvent");
            set_event(before, 1);
            if (signals > 0) encode_wait(buffer, before, 1);
            for (unsigned k = 1; k <= 2; k++) {
                fill(buffer, memory, (unsigned char)k);
                encode_signal(buffer, event, k);
            }
            if (signals < 3) encode_wait(buffer, never, 1); /* a fault that has come waits for nothing */
            fill(buffer, memory, 3);
            on_completed(buffer, &s.log, 1);
            bool named = signals != 1; /* by a call before or after; else it is the usual one */
            if (named && signals != 2) softmetal_fail(buffer, NULL, 8, NULL);
            softmetal_fail_after_signals(buffer, signals);
            if (named && signals == 2) softmetal_fail(buffer, NULL, 8, NULL);
            if (signals == 0) set_event(never, 1); /* but with n 0 all is as ever */
            commit(buffer);
            if (clock == SOFTMETAL_MANUAL) {
                assert_int_equal(softmetal_what_is_due(buffer), SOFTMETAL_COMPLETE_DUE);
                softmetal_finish(buffer);
            }
            wait_done(buffer);
            assert_error(buffer, "MTLCommandBufferErrorDomain", named ? 8 : 1, NULL);
            assert_int_equal(s.log.status, FAILED);
            assert_int_equal(event_value(event), signals < 2 ? signals : 2);
            assert_int_equal(contents(memory)[0], signals);
            assert_true(softmetal_settle(10 * SECOND)); /* Metal lets the buffer go */
            objc_release(never);
            objc_release(before);
            objc_release(event);
            objc_release(memory);
            stage_close(&s);
        }
    }
}

static void a_fault_behind_a_wait_is_not_due(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *gate = GET(s.device, "newSharedEvent");
    void *buffer = buffer_in(s.queue), *late = buffer_in(s.queue);
    encode_wait(buffer, gate, 1);
    encode_signal(buffer, event, 1);
    encode_wait(late, gate, 2);
    encode_signal(late, event, 2);
    softmetal_fail_after_signals(buffer, 1);
    softmetal_fail_after_signals(late, 1);
    commit(buffer);
    commit(late);
    assert_int_equal(softmetal_what_is_due(buffer), SOFTMETAL_WAIT_DUE);
    set_event(gate, 1);
    assert_int_equal(softmetal_what_is_due(buffer), SOFTMETAL_COMPLETE_DUE);
    softmetal_complete(buffer);
    assert_int_equal(status(buffer), FAILED);
    assert_int_equal(event_value(event), 1);
    softmetal_time_out(late); /* the watchdog comes before the fault */
    assert_error(late, "MTLCommandBufferErrorDomain", 2, NULL);
    assert_int_equal(event_value(event), 1);
    objc_release(gate);
    objc_release(event);
    stage_close(&s);
}

/* ---------------------------------------------------------------------------------- layers -- */

typedef struct extent { double width, height; } extent; /* CGSize */
typedef struct region_of { size origin, area; } region_of; /* MTLRegion */

static void *layer_new(void *device, double width, double height)
{
    void *layer = GET(GET(objc_getClass("CAMetalLayer"), "alloc"), "init");
    DO1(layer, "setDevice:", device);
    SEND_WITH(void, (void *, void *, extent), layer, "setDrawableSize:", ((extent){width, height}));
    SEND_WITH(void, (void *, void *, signed char), layer, "setFramebufferOnly:", (signed char)0);
    return layer;
}

static void copy_to(void *encoder, void *memory, unsigned long pitch, size area, void *drawable, size origin)
{
    SEND_WITH(void, (void *, void *, void *, unsigned long, unsigned long, unsigned long, size, void *, unsigned long,
                     unsigned long, size),
              encoder,
              "copyFromBuffer:sourceOffset:sourceBytesPerRow:sourceBytesPerImage:sourceSize:toTexture:destinationSlice:"
              "destinationLevel:destinationOrigin:",
              memory, 0ul, pitch, 0ul, area, GET(drawable, "texture"), 0ul, 0ul, origin);
}

static uint32_t pixel_of(void *drawable, unsigned long x, unsigned long y)
{
    uint32_t pixel = 0;
    SEND_WITH(void, (void *, void *, void *, unsigned long, region_of, unsigned long), GET(drawable, "texture"),
              "getBytes:bytesPerRow:fromRegion:mipmapLevel:", &pixel, 4ul, ((region_of){{x, y, 0}, {1, 1, 1}}), 0ul);
    return pixel;
}

static void shown_invoke(const block *self, void *drawable)
{
    (void)drawable;
    log_add(self->log, self->number);
}

static void a_copy_reaches_a_drawable(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *layer = layer_new(s.device, 4, 3), *memory = memory_new(s.device, 24), *buffer = buffer_in(s.queue);
    void *drawable = GET(layer, "nextDrawable"), *encoder = GET(buffer, "blitCommandEncoder");
    assert_int_equal(GET_LONG(GET(drawable, "texture"), "width"), 4);
    assert_int_equal(GET_LONG(GET(drawable, "texture"), "height"), 3);
    assert_ptr_equal(GET(drawable, "layer"), layer);
    for (unsigned i = 0; i < 24; i++) contents(memory)[i] = (unsigned char)(i / 4 + 1);
    copy_to(encoder, memory, 12, (size){2, 2, 1}, drawable, (size){1, 1, 0});
    DO(encoder, "endEncoding");
    commit(buffer);
    wait_done(buffer);
    assert_int_equal(pixel_of(drawable, 1, 1), 0x01010101);
    assert_int_equal(pixel_of(drawable, 2, 1), 0x02020202);
    assert_int_equal(pixel_of(drawable, 1, 2), 0x04040404); /* the second row begins 12 bytes on */
    assert_int_equal(pixel_of(drawable, 0, 1), 0);
    assert_int_equal(pixel_of(drawable, 3, 2), 0);
    objc_release(memory);
    objc_release(layer);
    stage_close(&s);
}

/* What the screen of a test was told, and what it answers. */
typedef struct screen { double asked[8], answer[8]; unsigned count; } screen;

static double answer_for_picture(void *user, void *drawable, double seconds)
{
    screen *s = user;
    (void)drawable;
    s->asked[s->count] = seconds;
    return s->answer[s->count++] > 0 ? seconds : s->answer[s->count - 1];
}

/* Presents with 50 ms between the pictures, without a picture, without a handler, and at a time. */
static void drawables_are_shown_at_pictures_of_the_display(void **state)
{
    (void)state;
    stage s;
    screen seen = {.answer = {1, 1, 0, -1, 1}};
    void *layer, *drawables[5], *buffer;
    double at = 0;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    softmetal_set_screen(answer_for_picture, &seen);
    layer = layer_new(s.device, 1, 1);
    for (int i = 0; i < 5; i++) {
        void *pool = objc_autoreleasePoolPush();
        block b = stack_block((any_function)shown_invoke, &s.log, i);
        buffer = buffer_in(s.queue);
        drawables[i] = objc_retain(GET(layer, "nextDrawable"));
        assert_int_equal(GET_LONG(drawables[i], "drawableID"), i + 1);
        DO1(drawables[i], "addPresentedHandler:", &b);
        if (i == 4) at = seen.asked[1] + 3600;
        if (i == 0) DO1(buffer, "presentDrawable:", drawables[i]);
        else if (i == 4)
            SEND_WITH(void, (void *, void *, void *, double), buffer, "presentDrawable:atTime:", drawables[i], at);
        else
            SEND_WITH(void, (void *, void *, void *, double), buffer, "presentDrawable:afterMinimumDuration:",
                      drawables[i], 0.05);
        commit(buffer);
        softmetal_schedule(buffer);
        softmetal_execute(buffer);
        assert_int_equal(seen.count, i);
        if (i == 1) softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        softmetal_finish(buffer);
        assert_int_equal(seen.count, i + 1);
        if (i > 1) objc_release(drawables[i - 2]);
        objc_autoreleasePoolPop(pool);
    }
    assert_int_equal(s.log.count, 4);
    assert_int_equal(s.log.order[2], 2);
    assert_int_equal(s.log.order[3], 4);
    assert_true(seen.asked[1] - seen.asked[0] >= 0.05 && seen.asked[1] - seen.asked[0] < 0.07);
    assert_true(seen.asked[3] == seen.asked[2]); /* a picture that was dropped kept nobody from its place */
    assert_true(seen.asked[4] >= at && seen.asked[4] < at + 0.02);
    assert_true(GET_DOUBLE(drawables[3], "presentedTime") == 0);
    assert_true(GET_DOUBLE(drawables[4], "presentedTime") == seen.asked[4]);
    objc_release(drawables[3]);
    objc_release(drawables[4]);
    objc_release(layer);
    stage_close(&s);
}

static void a_layer_may_have_no_drawable(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *layer = layer_new(NULL, 4, 4), *empty = layer_new(s.device, 0, 4), *drawables[2], *pool, *buffer;
    assert_null(GET(layer, "nextDrawable"));
    assert_null(GET(empty, "nextDrawable"));
    DO1(layer, "setDevice:", s.device);
    softmetal_fail_creation(1, false);
    assert_null(GET(layer, "nextDrawable"));
    SEND_WITH(void, (void *, void *, unsigned long), layer, "setMaximumDrawableCount:", 2ul);
    pool = objc_autoreleasePoolPush();
    for (int i = 0; i < 2; i++) drawables[i] = objc_retain(GET(layer, "nextDrawable"));
    objc_autoreleasePoolPop(pool);
    assert_int_equal(softmetal_live("drawable"), 2);
    assert_null(GET(layer, "nextDrawable")); /* after a second */
    objc_release(drawables[0]);
    assert_non_null(GET(layer, "nextDrawable"));
    buffer = buffer_in(s.queue); /* is dropped, and with it the wish to present */
    DO1(buffer, "presentDrawable:", drawables[1]);
    objc_release(drawables[1]);
    objc_release(layer);
    objc_release(empty);
    stage_close(&s);
}

/* ------------------------------------------------------------------ the end of a buffer -- */

/* What a handler finds. */
typedef struct findings {
    log_ *log;
    unsigned long status;
    double start, end;
    unsigned disposed, places;
    long memories;
} findings;

static findings *finding; /* of the handlers of one test */

static void finding_invoke(void *self, void *buffer)
{
    block *b = self;
    findings *f = &finding[b->number];
    f->status = status(buffer);
    f->start = GET_DOUBLE(buffer, "GPUStartTime");
    f->end = GET_DOUBLE(buffer, "GPUEndTime");
    f->disposed = b->log->disposed;
    f->places = softmetal_outstanding(b->log->queue);
    f->memories = softmetal_live("buffer");
}

static void a_buffer_ends_in_this_order(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    findings found[2] = {{.status = 0}, {.status = 0}};
    finding = found;
    void *memory = memory_new(s.device, 16), *buffer = buffer_in(s.queue);
    fill(buffer, memory, 1);
    objc_release(memory);
    for (int i = 0; i < 2; i++) {
        block b = stack_block((any_function)finding_invoke, &s.log, i);
        DO1(buffer, "addCompletedHandler:", &b);
    }
    commit(buffer);
    wait_done(buffer);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(found[i].status, COMPLETED);
        assert_true(found[i].start > 0 && found[i].start <= found[i].end);
        assert_int_equal(found[i].disposed, i); /* each block goes when it has run */
        assert_int_equal(found[i].memories, 1);
        assert_int_equal(found[i].places, 1);
    }
    assert_int_equal(s.log.disposed, 2);
    assert_int_equal(softmetal_live("buffer"), 0);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    stage_close(&s);
}

/* No wait and no handler: the status alone orders the work, and times can be read at any time. */
static void a_poller_sees_the_work(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *memory = memory_new(s.device, 64), *buffer = buffer_in(s.queue);
    fill(buffer, memory, 7);
    commit(buffer);
    while (status(buffer) < COMPLETED) assert_true(GET_DOUBLE(buffer, "GPUEndTime") >= 0);
    assert_int_equal(contents(memory)[63], 7);
    objc_release(memory);
    stage_close(&s);
}

/* Three buffers: the handler of the first is in the gate, the GPU has ended with the second and does the third. */
typedef struct jam {
    void *event, *first, *second, *third;
} jam;

static void jam_make(jam *j, stage *s)
{
    j->event = GET(s->device, "newSharedEvent");
    j->first = buffer_in(s->queue);
    j->second = buffer_in(s->queue);
    j->third = buffer_in(s->queue);
    on_completed(j->first, &s->log, 1);
    on_completed(j->second, &s->log, 2);
    encode_signal(j->second, j->event, 1);
    encode_signal(j->third, j->event, 2); /* the second has ended by then */
    __atomic_store_n(&s->log.gate, 1, __ATOMIC_RELEASE);
    commit(j->first);
    commit(j->second);
    commit(j->third);
    assert_true(event_wait(j->event, 2, 10000));
    while (__atomic_load_n(&s->log.inside, __ATOMIC_SEQ_CST) < 1) sleep_ms(1);
}

static void jam_end(jam *j, stage *s)
{
    __atomic_store_n(&s->log.gate, 0, __ATOMIC_RELEASE);
    wait_done(j->third);
    assert_int_equal(status(j->second), COMPLETED);
    assert_int_equal(softmetal_outstanding(s->queue), 0);
    objc_release(j->event);
}

static void *wait_on_thread(void *user)
{
    log_ *log = user;
    wait_done(log->library);
    log_add(log, 9);
    return NULL;
}

static void a_slow_handler_holds_up_its_queue_and_no_other(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    jam j;
    pthread_t thread;
    jam_make(&j, &s);
    void *other_queue = queue_new(s.device), *other = buffer_in(other_queue);
    commit(other);
    wait_done(other);
    assert_int_equal(status(other), COMPLETED);
    s.log.library = j.second;
    pthread_create(&thread, NULL, wait_on_thread, &s.log);
    sleep_ms(10);
    assert_int_equal(status(j.first), COMPLETED);
    assert_int_equal(status(j.second), SCHEDULED);
    assert_true(GET_DOUBLE(j.second, "GPUEndTime") == 0);
    assert_int_equal(softmetal_outstanding(s.queue), 3);
    assert_int_equal(log_count(&s.log), 0);
    jam_end(&j, &s);
    pthread_join(thread, NULL);
    assert_int_equal(s.log.order[1], 2);
    assert_int_equal(s.log.order[2], 9);
    objc_release(other_queue);
    stage_close(&s);
}

static void two_latencies_lie_before_the_handlers(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    const softmetal_range gap = {20 * MS, 20 * MS}, none = {0, 0};
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.notify = gap;
    softmetal_set_timing(&timing);
    void *buffer = buffer_in(s.queue);
    commit(buffer);
    while (status(buffer) < COMPLETED) sleep_ms(1);
    double seen = (double)now_ns() / 1e9;
    wait_done(buffer);
    assert_true(seen - GET_DOUBLE(buffer, "GPUEndTime") >= 0.02);

    timing.notify = none;
    timing.handler = gap;
    softmetal_set_timing(&timing);
    bool between = false; /* a busy machine may sleep through it: again */
    for (int i = 0; i < 50 && !between; i++) {
        unsigned before = log_count(&s.log);
        buffer = buffer_in(s.queue);
        on_completed(buffer, &s.log, i);
        commit(buffer);
        while (status(buffer) < COMPLETED) sleep_ms(1);
        between = log_count(&s.log) == before;
        wait_done(buffer);
        assert_int_equal(log_count(&s.log), before + 1);
    }
    assert_true(between);
    stage_close(&s);
}

/* ---------------------------------------------------------------------------------- quirks -- */

static void the_status_may_be_early(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    jam j;
    softmetal_set_quirks(&(softmetal_quirks){.status_early = true});
    jam_make(&j, &s);
    assert_int_equal(status(j.second), COMPLETED);
    assert_true(GET_DOUBLE(j.second, "GPUEndTime") == 0);
    assert_int_equal(log_count(&s.log), 0);
    jam_end(&j, &s);
    assert_true(GET_DOUBLE(j.second, "GPUEndTime") > 0);
    stage_close(&s);
}

static void the_times_may_be_late(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        stage s;
        stage_open(&s, SOFTMETAL_MANUAL, 64);
        findings found = {.status = 0};
        finding = &found;
        softmetal_set_quirks(&(softmetal_quirks){.late_times = late});
        void *buffer = buffer_in(s.queue), *plain = buffer_in(s.queue);
        block b = stack_block((any_function)finding_invoke, &s.log, 0);
        DO1(buffer, "addCompletedHandler:", &b);
        commit(buffer);
        commit(plain);
        softmetal_schedule(buffer);
        softmetal_execute(buffer);
        assert_true(GET_DOUBLE(buffer, "GPUStartTime") == 0);
        softmetal_complete(buffer);
        assert_int_equal(status(buffer), COMPLETED);
        assert_true((GET_DOUBLE(buffer, "GPUStartTime") == 0) == late);
        assert_true((GET_DOUBLE(buffer, "GPUEndTime") == 0) == late);
        softmetal_run_handler(buffer, 0);
        assert_true(found.start > 0 && found.end >= found.start);
        assert_true(GET_DOUBLE(buffer, "GPUEndTime") == found.end);
        softmetal_finish(buffer);
        softmetal_finish(plain);
        assert_true(GET_DOUBLE(plain, "GPUEndTime") > 0);
        stage_close(&s);
    }
}

static void handlers_may_be_lost_and_statuses_follow_for_every_buffer(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *before = buffer_in(s.queue), *lost = buffer_in(s.queue), *after = buffer_in(s.queue);
    on_completed(before, &s.log, 1);
    on_completed(lost, &s.log, 2);
    on_completed(after, &s.log, 3);
    softmetal_hang(before);
    commit(before);
    softmetal_set_quirks(&(softmetal_quirks){.lost_handlers = true});
    commit(lost);
    softmetal_set_quirks(&(softmetal_quirks){.status_after_handlers = true});
    commit(after);
    softmetal_unhang(before);
    wait_done(after);
    assert_int_equal(log_count(&s.log), 2);
    assert_int_equal(s.log.order[0], 1);
    assert_int_equal(s.log.order[1], 3);
    assert_int_equal(s.log.status, SCHEDULED);
    assert_int_equal(status(lost), COMPLETED);
    assert_int_equal(status(after), COMPLETED);
    assert_int_equal(s.log.disposed, 3);
    stage_close(&s);
}

/* Keeps what it got. */
static void keeping_invoke(void *self, void *buffer)
{
    block *b = self;
    b->log->given = objc_retain(buffer);
    handler_invoke(self, buffer);
}

static void count_after(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)object, (void)selector;
    if (phase == SOFTMETAL_AFTER) ++*(int *)user;
}

static void handlers_may_get_a_wrapper(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_set_quirks(&(softmetal_quirks){.wrapped_buffers = true});
    void *pool = objc_autoreleasePoolPush(), *buffer = buffer_in(s.queue);
    block b = stack_block((any_function)keeping_invoke, &s.log, 1);
    DO1(buffer, "addCompletedHandler:", &b);
    DO1(buffer, "setLabel:", string("wrapped"));
    softmetal_fail(buffer, NULL, 8, NULL);
    commit(buffer);
    wait_done(buffer);
    assert_true(softmetal_settle(SECOND));
    void *wrapper = s.log.given;
    assert_ptr_not_equal(wrapper, buffer);
    assert_int_equal(s.log.status, FAILED);
    assert_int_equal(softmetal_live("wrapper"), 1);
    assert_error(wrapper, "MTLCommandBufferErrorDomain", 8, NULL);
    assert_true(GET_DOUBLE(wrapper, "GPUEndTime") > 0);
    assert_true(GET_DOUBLE(wrapper, "GPUEndTime") == GET_DOUBLE(buffer, "GPUEndTime"));
    assert_ptr_equal(GET(wrapper, "commandQueue"), s.queue);
    assert_string_equal(text_of(GET(wrapper, "label")), "wrapped");
    assert_true(responds(wrapper, "GPUStartTime"));
    assert_false(responds(wrapper, "newCommandQueue"));
    assert_true(class_respondsToSelector(object_getClass(wrapper), sel_registerName("GPUStartTime")));
    wait_done(wrapper);
    int afters = 0; /* passed on as it came: hooks see it arrive */
    softmetal_set_message_hook(count_after, &afters);
    status(wrapper);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(afters, 1);
    objc_autoreleasePoolPop(pool);
    assert_int_equal(softmetal_live("command_buffer"), 1); /* the wrapper's */
    objc_release(wrapper);
    assert_int_equal(softmetal_live("command_buffer"), 0);

    s.log.given = NULL;
    pool = objc_autoreleasePoolPush();
    on_completed(buffer_in(s.queue), &s.log, 2); /* of a dropped buffer */
    s.log.status = COMPLETED;
    objc_autoreleasePoolPop(pool);
    assert_int_equal(log_count(&s.log), 2);
    assert_int_equal(s.log.status, NOT_ENQUEUED);
    assert_int_equal(softmetal_live("wrapper"), 0);
    stage_close(&s);
}

static void blocks_may_be_released_after_the_wait(void **state)
{
    (void)state;
    for (unsigned late = 0; late < 2; late++) {
        stage s;
        stage_open(&s, SOFTMETAL_REAL, 64);
        softmetal_set_quirks(&(softmetal_quirks){.blocks_released_late = late});
        void *buffer = buffer_in(s.queue);
        on_completed(buffer, &s.log, 1);
        commit(buffer);
        wait_done(buffer);
        assert_true(softmetal_settle(SECOND));
        assert_int_equal(s.log.disposed, 1);
        assert_int_equal(s.log.places_at_dispose, late ? 0 : 1);
        stage_close(&s);
    }
}

/* --------------------------------------------------------------------------------- events -- */

static void *listener_new(void)
{
    return GET(GET(objc_getClass("MTLSharedEventListener"), "alloc"), "init");
}

static void events_only_rise_and_wake(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *listener = listener_new();
    assert_null(GET(event, "device"));
    assert_int_equal(event_value(event), 0);
    assert_false(event_wait(event, 1, 0));
    uint64_t before = now_ns();
    assert_false(event_wait(event, 1, 5));
    assert_true(now_ns() - before >= 5 * MS);
    on_event(event, listener, 3, &s.log, 3);
    on_event(event, listener, 100, &s.log, 100);
    set_event(event, 2);
    assert_true(event_wait(event, 2, 0));
    set_event(event, 1);
    assert_int_equal(event_value(event), 2);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 0);
    set_event(event, 7);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 1);
    assert_int_equal(s.log.value, 7);
    assert_false(pthread_equal(s.log.thread, pthread_self()));
    on_event(event, GET(objc_getClass("MTLSharedEventListener"), "sharedListener"), 5, &s.log, 5);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 2); /* reached before it was asked for */
    objc_release(event);                    /* the block for 100 never runs, but is disposed */
    assert_int_equal(s.log.disposed, 3);
    assert_int_equal(log_count(&s.log), 2);
    objc_release(listener);
    stage_close(&s);
}

static void *set_event_to_one(void *event)
{
    sleep_ms(5);
    set_event(event, 1);
    return NULL;
}

static void queues_meet_at_events(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *other = queue_new(s.device), *event = GET(s.device, "newSharedEvent"), *memory = memory_new(s.device, 8);
    void *reader = buffer_in(other), *writer = buffer_in(s.queue), *result = memory_new(s.device, 8);
    encode_wait(reader, event, 2);
    copy(reader, memory, result);
    encode_wait(writer, event, 1);
    fill(writer, memory, 6);
    encode_signal(writer, event, 2);
    commit(reader);
    commit(writer);
    pthread_t thread;
    pthread_create(&thread, NULL, set_event_to_one, event);
    assert_true(event_wait(event, 2, UINT64_MAX));
    wait_done(reader);
    assert_int_equal(contents(result)[7], 6);
    pthread_join(thread, NULL);
    objc_release(memory);
    objc_release(result);
    objc_release(event);
    objc_release(other);
    stage_close(&s);
}

static void the_watchdog_ends_a_wait_for_ever(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    assert_int_equal(timing.watchdog_ns, 5 * SECOND);
    timing.watchdog_ns = 10 * MS;
    softmetal_set_timing(&timing);
    void *event = GET(s.device, "newSharedEvent"), *buffer = buffer_in(s.queue), *after = buffer_in(s.queue);
    encode_wait(buffer, event, 1);
    encode_signal(buffer, event, 9);
    commit(buffer);
    commit(after);
    wait_done(after);
    assert_error(buffer, "MTLCommandBufferErrorDomain", 2, NULL);
    assert_int_equal(status(after), COMPLETED);
    assert_int_equal(event_value(event), 0);
    objc_release(event);
    stage_close(&s);
}

static void listeners_may_be_deaf_to_the_host(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *listener = listener_new(), *buffer = buffer_in(s.queue);
    softmetal_set_quirks(&(softmetal_quirks){.deaf_listeners = true});
    on_event(event, listener, 3, &s.log, 3);
    on_event(event, listener, 5, &s.log, 5);
    set_event(event, 3);
    assert_true(event_wait(event, 3, 0));
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 0);
    on_event(event, listener, 2, &s.log, 2); /* reached already */
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 1);
    encode_wait(buffer, event, 3); /* the device hears */
    encode_signal(buffer, event, 4);
    commit(buffer);
    wait_done(buffer);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 2);
    assert_int_equal(s.log.order[1], 3);
    softmetal_set_quirks(&(softmetal_quirks){.deaf_listeners = false});
    set_event(event, 5);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(s.log.order[2], 5);
    objc_release(event);
    objc_release(listener);
    stage_close(&s);
}

/* ------------------------------------------------------------- quirks against how Metal behaves ------- */

static void listeners_may_be_deaf_to_the_past(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *listener = listener_new();
    softmetal_set_quirks(&(softmetal_quirks){.deaf_to_the_past = true});
    set_event(event, 1);
    on_event(event, listener, 1, &s.log, 1);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 0);
    set_event(event, 2);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 1);
    objc_release(event);
    objc_release(listener);
    stage_close(&s);
}

static void listeners_may_be_deaf_to_everything(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *listener = listener_new(), *buffer = buffer_in(s.queue);
    softmetal_set_quirks(&(softmetal_quirks){.deaf_to_everything = true});
    for (int i = 1; i <= 4; i++) on_event(event, listener, (uint64_t)i, &s.log, i);
    encode_signal(buffer, event, 1);
    commit(buffer);
    wait_done(buffer);
    assert_true(event_wait(event, 1, 0)); /* the GPU has signalled */
    set_event(event, 2);
    on_event(event, listener, 1, &s.log, 5);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 0);
    softmetal_tell_listeners(event); /* still deaf */
    assert_true(softmetal_settle_listeners(SECOND));
    assert_int_equal(log_count(&s.log), 3);
    const int told[] = {1, 2, 5};
    for (int i = 0; i < 3; i++) assert_int_equal(s.log.order[i], told[i]);
    set_event(event, 3);
    softmetal_set_quirks(&(softmetal_quirks){.deaf_to_everything = false});
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 3);
    set_event(event, 4);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 5);
    softmetal_tell_listeners(event); /* each of them once */
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(log_count(&s.log), 5);
    objc_release(event);
    objc_release(listener);
    stage_close(&s);
}

static void set_watchdog(uint64_t ns)
{
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.watchdog_ns = ns;
    softmetal_set_timing(&timing);
}

static void the_device_may_be_deaf_to_the_host(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *other = queue_new(s.device);
    void *deaf = buffer_in(s.queue), *hears = buffer_in(s.queue), *signal = buffer_in(other);
    softmetal_set_quirks(&(softmetal_quirks){.deaf_device = true});
    set_watchdog(20 * MS);
    set_event(event, 1);
    encode_wait(deaf, event, 1);
    commit(deaf);
    wait_done(deaf);
    assert_int_equal(status(deaf), FAILED);
    encode_signal(signal, event, 2);
    commit(signal);
    wait_done(signal);
    encode_wait(hears, event, 2);
    commit(hears);
    wait_done(hears);
    assert_int_equal(status(hears), COMPLETED);
    objc_release(other);
    objc_release(event);
    stage_close(&s);
}

static void waits_may_be_open(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *buffer = buffer_in(s.queue);
    softmetal_set_quirks(&(softmetal_quirks){.open_waits = true});
    encode_wait(buffer, event, 1);
    commit(buffer);
    wait_done(buffer);
    assert_int_equal(status(buffer), COMPLETED);
    assert_int_equal(event_value(event), 0);
    objc_release(event);
    stage_close(&s);
}

static void signals_may_be_early(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *buffer = buffer_in(s.queue), *memory = memory_new(s.device, 16);
    softmetal_set_quirks(&(softmetal_quirks){.early_signals = true});
    fill(buffer, memory, 1);
    encode_signal(buffer, event, 1);
    softmetal_hang(buffer);
    commit(buffer);
    assert_true(event_wait(event, 1, 10000));
    assert_int_equal(contents(memory)[0], 0);
    assert_true(status(buffer) < COMPLETED);
    softmetal_unhang(buffer);
    wait_done(buffer);
    assert_int_equal(contents(memory)[0], 1);
    objc_release(memory);
    objc_release(event);
    stage_close(&s);
}

static void signals_may_overtake(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *slow = buffer_in(s.queue), *quick = buffer_in(s.queue);
    softmetal_hang(slow);
    commit(slow);
    softmetal_set_quirks(&(softmetal_quirks){.overtaking_signals = true});
    encode_signal(quick, event, 1);
    commit(quick);
    assert_int_equal(event_value(event), 1);
    assert_true(status(quick) < COMPLETED);
    softmetal_unhang(slow);
    wait_done(quick);
    objc_release(event);
    stage_close(&s);
}

static void the_killed_may_signal(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    set_watchdog(20 * MS);
    for (int alive = 0; alive < 2; alive++) {
        void *never = GET(s.device, "newSharedEvent"), *event = GET(s.device, "newSharedEvent");
        void *buffer = buffer_in(s.queue);
        softmetal_set_quirks(&(softmetal_quirks){.signals_of_the_killed = alive});
        encode_wait(buffer, never, 1);
        encode_signal(buffer, event, 1);
        commit(buffer);
        wait_done(buffer);
        assert_int_equal(status(buffer), FAILED);
        assert_int_equal(event_value(event), alive);
        objc_release(event);
        objc_release(never);
    }
    stage_close(&s);
}

static void events_may_not_be_kept(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *kept = buffer_in(s.queue), *bare = buffer_in(s.queue);
    encode_signal(kept, event, 1);
    assert_int_equal(softmetal_retain_count(event), 2);
    softmetal_set_quirks(&(softmetal_quirks){.events_not_kept = true});
    encode_signal(bare, event, 2);
    assert_int_equal(softmetal_retain_count(event), 2);
    commit(kept);
    commit(bare);
    wait_done(bare);
    assert_int_equal(event_value(event), 2);
    objc_release(event);
    stage_close(&s);
}

static void handlers_may_run_backwards(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *buffer = buffer_in(s.queue);
    softmetal_set_quirks(&(softmetal_quirks){.handlers_backwards = true});
    for (int i = 0; i < 3; i++) on_completed(buffer, &s.log, i);
    commit(buffer);
    wait_done(buffer);
    assert_int_equal(log_count(&s.log), 3);
    for (int i = 0; i < 3; i++) assert_int_equal(s.log.order[i], 2 - i);
    stage_close(&s);
    assert_int_equal(s.log.disposed, 3);
}

static void handlers_may_be_called_twice(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_set_quirks(&(softmetal_quirks){.handlers_twice = true});
    void *buffer = buffer_in(s.queue), *lost = buffer_in(s.queue);
    on_completed(buffer, &s.log, 1);
    on_completed(buffer, &s.log, 2);
    on_completed(lost, &s.log, 3);
    softmetal_lose_handlers(lost);
    commit(buffer);
    commit(lost);
    wait_done(lost);
    assert_int_equal(log_count(&s.log), 4);
    for (int i = 0; i < 4; i++) assert_int_equal(s.log.order[i], 1 + i / 2);
    assert_true(softmetal_settle(SECOND));
    assert_int_equal(s.log.disposed, 3);
    stage_close(&s);
}

static void a_dealloc_may_be_silent(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_set_quirks(&(softmetal_quirks){.silent_dealloc = true});
    void *pool = objc_autoreleasePoolPush();
    on_completed(buffer_in(s.queue), &s.log, 1);
    objc_autoreleasePoolPop(pool);
    assert_int_equal(log_count(&s.log), 0);
    assert_int_equal(s.log.disposed, 1);
    stage_close(&s);
}

static void own_address_invoke(void *self, void *buffer)
{
    block *b = self;
    b->log->given = self;
    handler_invoke(self, buffer);
}

static void global_blocks_may_be_copied(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    for (int copied = 0; copied < 2; copied++) {
        void *buffer = buffer_in(s.queue);
        block b = global_block((any_function)own_address_invoke, &s.log, 1);
        softmetal_set_quirks(&(softmetal_quirks){.global_blocks_copied = copied});
        DO1(buffer, "addCompletedHandler:", &b);
        commit(buffer);
        wait_done(buffer);
        assert_int_equal(log_count(&s.log), copied + 1);
        assert_true((s.log.given != (void *)&b) == copied);
    }
    stage_close(&s);
}

static void a_status_may_be_autoreleased(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *buffer = buffer_in(s.queue), *pool = objc_autoreleasePoolPush();
    unsigned long before = softmetal_retain_count(buffer);
    (void)status(buffer);
    assert_int_equal(softmetal_retain_count(buffer), before);
    softmetal_set_quirks(&(softmetal_quirks){.status_autoreleases = true});
    (void)status(buffer);
    assert_int_equal(softmetal_retain_count(buffer), before + 1);
    objc_autoreleasePoolPop(pool);
    assert_int_equal(softmetal_retain_count(buffer), before);
    stage_close(&s);
}

static void uncommitted_buffers_may_be_free(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 1);
    softmetal_set_quirks(&(softmetal_quirks){.uncommitted_are_free = true});
    void *first = buffer_in(s.queue), *second = buffer_in(s.queue);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    softmetal_hang(first);
    commit(first);
    assert_int_equal(softmetal_outstanding(s.queue), 1);
    softmetal_unhang(first);
    wait_done(first);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    commit(second);
    wait_done(second);
    stage_close(&s);
}

static void places_may_come_early(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    for (int early = 0; early < 2; early++) {
        void *buffer = buffer_in(s.queue);
        softmetal_set_quirks(&(softmetal_quirks){.early_places = early});
        __atomic_store_n(&s.log.gate, 1, __ATOMIC_RELEASE);
        on_completed(buffer, &s.log, 1);
        commit(buffer);
        while (!__atomic_load_n(&s.log.inside, __ATOMIC_ACQUIRE)) sleep_ms(1);
        assert_int_equal(softmetal_outstanding(s.queue), early ? 0 : 1);
        __atomic_store_n(&s.log.gate, 0, __ATOMIC_RELEASE);
        wait_done(buffer);
        assert_int_equal(softmetal_outstanding(s.queue), 0);
    }
    stage_close(&s);
}

static void a_library_may_know_every_name(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    for (int quirky = 0; quirky < 2; quirky++) {
        softmetal_set_quirks(&(softmetal_quirks){.any_function = quirky});
        void *error = NULL;
        void *library = SEND_WITH(void *, (void *, void *, void *, void *, void **), s.device,
                                  "newLibraryWithSource:options:error:", string("kernel void k()"), NULL, &error);
        void *function = GET1(library, "newFunctionWithName:", string("another"));
        assert_true((function != NULL) == quirky);
        objc_release(function);
        objc_release(library);
    }
    stage_close(&s);
}

static void an_unlock_may_look_again(void **state)
{
    (void)state;
    stage s;
    uint32_t lock = 0;
    NOT_ON_A_MAC("the lock is the system's");
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_set_quirks(&(softmetal_quirks){.late_unlock = true});
    os_unfair_lock_lock(&lock);
    lock |= 1; /* a thread may be asleep */
    uint64_t begin = now_ns();
    os_unfair_lock_unlock(&lock);
    assert_true(now_ns() - begin >= MS); /* a sleep is never too short */
    assert_int_equal(lock, 0);
    stage_close(&s);
}

static void note_thread(void *log)
{
    log_add(log, 1);
}

/* A queue with nothing else to do: its blocks come in their order and never at once. */
static void a_listener_may_have_a_dispatch_queue(void **state)
{
    (void)state;
    for (unsigned latency = 0; latency < 2; latency++) {
        stage s;
        stage_open(&s, SOFTMETAL_REAL, 64);
        void *queue = dispatch_queue_create("listener", NULL), *event = GET(s.device, "newSharedEvent");
        void *listener = GET1(GET(objc_getClass("MTLSharedEventListener"), "alloc"), "initWithDispatchQueue:", queue);
        assert_ptr_equal(GET(listener, "dispatchQueue"), queue);
        softmetal_timing timing;
        softmetal_get_timing(&timing);
        timing.event_listener.max_ns = latency * MS;
        softmetal_set_timing(&timing);
        softmetal_set_dispatch_threads(0);
        on_event(event, listener, 1, &s.log, 2);
        on_event(event, listener, 2, &s.log, 3);
        dispatch_async_f(queue, &s.log, note_thread);
        assert_int_equal(softmetal_dispatches(), 1);
        set_event(event, 2);
        assert_false(softmetal_settle(10 * MS));
        assert_int_equal(log_count(&s.log), 0);
        softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
        assert_true(softmetal_settle(10 * SECOND));
        assert_int_equal(log_count(&s.log), 3);
        for (int i = 0; i < 3; i++) assert_int_equal(s.log.order[i], i + 1);
        assert_int_equal(softmetal_dispatches(), 1); /* the blocks are not the program's calls */
        objc_release(listener);
        dispatch_release(queue);
        objc_release(event);
        stage_close(&s);
    }
}

/* ------------------------------------------------------------------------------- messages -- */

static void messages_are_counted(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *buffer = buffer_in(s.queue);
    uint64_t all = softmetal_messages(), mine = softmetal_thread_messages(), retains = softmetal_retain_count_calls();
    uint64_t statuses = softmetal_message_count("status");
    status(buffer);
    status(buffer);
    GET(buffer, "device");
    assert_int_equal(softmetal_messages() - all, 3);
    assert_int_equal(softmetal_thread_messages() - mine, 3);
    assert_int_equal(softmetal_message_count("status") - statuses, 2);
    objc_release(objc_retain(buffer));
    assert_int_equal(softmetal_retain_count_calls() - retains, 2);
    assert_int_equal(softmetal_messages() - all, 3);
    commit(buffer);
    wait_done(buffer);
    assert_int_equal(softmetal_messages() - all, 5); /* Metal's own are not seen */
    softmetal_reset();
    assert_int_equal(softmetal_messages(), 0);
    assert_int_equal(softmetal_message_count("status"), 0);
    stage_close(&s);
}

static void nil_answers_zero_and_arguments_arrive(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    assert_null(GET(NULL, "commandBuffer"));
    assert_int_equal(status(NULL), 0);
    volatile double full = 3.5;
    assert_true(full * GET_DOUBLE(NULL, "GPUEndTime") == 0);
    DO(NULL, "commit");
    void *number = SEND_WITH(void *, (void *, void *, double), objc_getClass("NSNumber"), "numberWithDouble:", 2.25);
    assert_true(GET_DOUBLE(number, "doubleValue") == 2.25);
    void *text = string("abc"); /* seven words: the last one travels on the stack */
    assert_string_equal(
        text_of(SEND_WITH(void *, (void *, void *, range, void *), text,
                          "stringByReplacingCharactersInRange:withString:", (range){1, 1}, string("xyz"))),
        "axyzc");
    void *a = memory_new(s.device, 8), *b = memory_new(s.device, 8), *buffer = buffer_in(s.queue);
    memcpy(contents(a), "01234567", 8);
    void *encoder = GET(buffer, "blitCommandEncoder");
    copy_in(encoder, a, 2, b, 5, 3);
    DO(encoder, "endEncoding");
    commit(buffer);
    wait_done(buffer);
    assert_memory_equal(contents(b), "\0\0\0\0\000234", 8);
    objc_release(a);
    objc_release(b);
    stage_close(&s);
}

typedef struct hook_log {
    char text[512];
    void *object;
} hook_log;

static void write_hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    hook_log *log = user;
    log->object = object;
    strncat(log->text, phase == SOFTMETAL_BEFORE ? "<" : ">", 2);
    strncat(log->text, selector, 100);
    if (phase == SOFTMETAL_BEFORE) GET(object, "self"); /* not seen again */
}

static void hooks_see_the_programs_messages(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    hook_log log = {"", NULL};
    softmetal_set_message_hook(write_hook, &log);
    void *buffer = buffer_in(s.queue);
    GET(buffer, "device");
    status(buffer);
    on_completed(buffer, &s.log, 1);
    commit(buffer);
    assert_ptr_equal(log.object, buffer);
    softmetal_set_message_hook(NULL, NULL);
    status(buffer);
    assert_string_equal(log.text, "<commandBuffer>commandBuffer<device<status>status"
                                  "<addCompletedHandler:>addCompletedHandler:<commit>commit");
    softmetal_finish(buffer);
    stage_close(&s);
}

/* --------------------------------------------------------------------------------- kernels -- */

static void add_kernel(void *user, const softmetal_kernel_args *args)
{
    const uint32_t *step = args->buffers[1];
    uint32_t *data = args->buffers[0];
    for (unsigned long i = 0; i < args->grid[0]; i++) data[i] += *step;
    ++*(int *)user;
    *(size_t *)args->buffers[2] = args->lengths[0];
}

static void *library_of(void *device, const char *source, void **error)
{
    return SEND_WITH(void *, (void *, void *, void *, void *, void **), device,
                     "newLibraryWithSource:options:error:", string(source), NULL, error);
}

static void kernels_run(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    int calls = 0;
    softmetal_set_kernel("add", add_kernel, &calls, 1 * MS);
    void *error = NULL,
         *library = library_of(s.device, "kernel void add(device uint *a) {}\nkernel  void sub (int)", &error);
    assert_non_null(library);
    assert_int_equal(GET_LONG(GET(library, "functionNames"), "count"), 2);
    assert_null(GET1(library, "newFunctionWithName:", string("mul")));
    void *function = GET1(library, "newFunctionWithName:", string("add"));
    assert_string_equal(text_of(GET(function, "name")), "add");
    void *pipeline = SEND_WITH(void *, (void *, void *, void *, void **), s.device,
                               "newComputePipelineStateWithFunction:error:", function, &error);
    assert_non_null(pipeline);
    assert_int_equal(softmetal_compiles(), 1);
    void *data = memory_new(s.device, 64), *size_out = memory_new(s.device, 8), *buffer = buffer_in(s.queue);
    void *encoder = GET(buffer, "computeCommandEncoder");
    uint32_t step = 5;
    DO1(encoder, "setComputePipelineState:", pipeline);
    SEND_WITH(void, (void *, void *, void *, unsigned long, unsigned long), encoder, "setBuffer:offset:atIndex:", data,
              32ul, 0ul);
    SEND_WITH(void, (void *, void *, const void *, unsigned long, unsigned long), encoder,
              "setBytes:length:atIndex:", &step, 4ul, 1ul);
    SEND_WITH(void, (void *, void *, void *, unsigned long, unsigned long), encoder,
              "setBuffer:offset:atIndex:", size_out, 0ul, 2ul);
    SEND_WITH(void, (void *, void *, size, size), encoder,
              "dispatchThreadgroups:threadsPerThreadgroup:", (size){2, 1, 1}, (size){4, 1, 1});
    step = 100;
    SEND_WITH(void, (void *, void *, const void *, unsigned long, unsigned long), encoder,
              "setBytes:length:atIndex:", &step, 4ul, 1ul);
    SEND_WITH(void, (void *, void *, size, size), encoder, "dispatchThreads:threadsPerThreadgroup:", (size){1, 1, 1},
              (size){1, 1, 1});
    DO(encoder, "endEncoding");
    commit(buffer);
    wait_done(buffer);
    assert_int_equal(calls, 2);
    const uint32_t *words = (const uint32_t *)(const void *)contents(data);
    assert_int_equal(words[7], 0);
    assert_int_equal(words[8], 105);
    assert_int_equal(words[9], 5);
    assert_int_equal(words[15], 5);
    assert_int_equal(*(const size_t *)(const void *)contents(size_out), 32);
    assert_true(GET_DOUBLE(buffer, "GPUEndTime") - GET_DOUBLE(buffer, "GPUStartTime") >= 0.002);
    objc_release(data);
    objc_release(size_out);
    objc_release(pipeline);
    objc_release(function);
    objc_release(library);
    stage_close(&s);
}

static void compilation_fails_and_takes_time(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *error = NULL;
    assert_null(library_of(s.device, "#error no", &error));
    assert_int_equal(SEND(long, (void *, void *), error, "code"), 3);
    assert_string_equal(text_of(GET(error, "domain")), "MTLLibraryErrorDomain");

    block b = stack_block((any_function)compile_invoke, &s.log, 1);
    SEND_WITH(void, (void *, void *, void *, void *, void *), s.device,
              "newLibraryWithSource:options:completionHandler:", string("kernel void k()"), NULL, &b);
    assert_true(log_reaches(&s.log, 1));
    assert_true(softmetal_settle(SECOND));
    assert_null(s.log.error);
    void *library = s.log.library, *function = GET1(library, "newFunctionWithName:", string("k"));
    softmetal_set_compile_time(10 * MS, 0);
    uint64_t before = now_ns();
    SEND_WITH(void, (void *, void *, void *, void *), s.device,
              "newComputePipelineStateWithFunction:completionHandler:", function, &b);
    assert_true(log_reaches(&s.log, 2));
    assert_true(now_ns() - before >= 10 * MS);
    assert_true(softmetal_settle(SECOND));
    assert_non_null(s.log.library);
    objc_release(s.log.library);
    softmetal_fail_creation(1, false);
    SEND_WITH(void, (void *, void *, void *, void *), s.device,
              "newComputePipelineStateWithFunction:completionHandler:", function, &b);
    assert_true(softmetal_settle(SECOND));
    assert_null(s.log.library);
    assert_non_null(s.log.error);
    objc_release(s.log.error);
    objc_release(function);
    objc_release(library);
    stage_close(&s);
}

/* ----------------------------------------------------------------------- the manual clock -- */

static void each_transition_by_hand(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *memory = memory_new(s.device, 8), *buffer = objc_retain(buffer_in(s.queue));
    fill(buffer, memory, 4);
    on_scheduled(buffer, &s.log, 0);
    on_completed(buffer, &s.log, 1);
    on_completed(buffer, &s.log, 2);
    assert_int_equal(softmetal_handler_count(buffer), 2);
    commit(buffer);
    sleep_ms(5);
    assert_int_equal(status(buffer), COMMITTED);
    softmetal_schedule(buffer);
    assert_int_equal(status(buffer), SCHEDULED);
    assert_int_equal(log_count(&s.log), 1);
    assert_int_equal(contents(memory)[0], 0);
    softmetal_execute(buffer);
    assert_int_equal(contents(memory)[0], 4);
    assert_int_equal(status(buffer), SCHEDULED);
    softmetal_complete(buffer);
    assert_int_equal(status(buffer), COMPLETED);
    assert_int_equal(log_count(&s.log), 1);
    softmetal_run_handler(buffer, 1); /* any order */
    assert_int_equal(s.log.order[1], 2);
    assert_int_equal(softmetal_outstanding(s.queue), 1);
    softmetal_run_handler(buffer, 0);
    assert_int_equal(s.log.order[2], 1);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    wait_done(buffer);
    assert_int_equal(s.log.disposed, 1); /* the scheduled one */
    softmetal_release_block(buffer, 0);
    assert_int_equal(s.log.disposed, 2);
    assert_int_equal(softmetal_retain_count(buffer), 4); /* pool, encoder, ours, Metal's */
    softmetal_release_block(buffer, 1);
    assert_int_equal(softmetal_retain_count(buffer), 3);
    objc_release(buffer);
    objc_release(memory);
    stage_close(&s);
}

static void a_handler_is_called_again(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *buffer = buffer_in(s.queue);
    on_completed(buffer, &s.log, 1);
    on_completed(buffer, &s.log, 2);
    commit(buffer);
    softmetal_complete(buffer);
    softmetal_run_handler(buffer, 0);
    softmetal_call_handler_again(buffer, 0); /* before the last one has run */
    assert_int_equal(softmetal_outstanding(s.queue), 1);
    softmetal_run_handler(buffer, 1);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    softmetal_release_block(buffer, 0);
    softmetal_call_handler_again(buffer, 1); /* and when all is over but for the block */
    softmetal_call_handler_again(buffer, 1);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    assert_int_equal(log_count(&s.log), 5);
    const int order[] = {1, 1, 2, 2, 2};
    for (int i = 0; i < 5; i++) assert_int_equal(s.log.order[i], order[i]);
    assert_false(pthread_equal(s.log.thread, pthread_self()));
    assert_int_equal(s.log.status, COMPLETED);
    assert_int_equal(s.log.disposed, 1);
    softmetal_release_block(buffer, 1);
    assert_int_equal(s.log.disposed, 2);
    stage_close(&s);
}

static void handlers_of_two_buffers_run_at_once(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *first = buffer_in(s.queue), *second = buffer_in(s.queue);
    on_completed(first, &s.log, 1);
    on_completed(second, &s.log, 2);
    commit(first);
    commit(second);
    softmetal_complete(second); /* nothing shared: out of order is fine */
    softmetal_complete(first);
    __atomic_store_n(&s.log.gate, 1, __ATOMIC_RELEASE);
    softmetal_begin_handler(second, 0);
    softmetal_begin_handler(first, 0);
    while (__atomic_load_n(&s.log.inside, __ATOMIC_SEQ_CST) < 2) sleep_ms(1);
    assert_int_equal(log_count(&s.log), 0);
    __atomic_store_n(&s.log.gate, 0, __ATOMIC_RELEASE);
    softmetal_join_handler(first, 0);
    softmetal_join_handler(second, 0);
    assert_int_equal(log_count(&s.log), 2);
    softmetal_finish_queue(s.queue);
    assert_int_equal(s.log.disposed, 2);
    stage_close(&s);
}

static void a_manual_buffer_lets_its_waiter_go_at_the_end(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *buffer = buffer_in(s.queue);
    on_completed(buffer, &s.log, 1);
    commit(buffer);
    s.log.library = buffer;
    pthread_t thread;
    pthread_create(&thread, NULL, wait_on_thread, &s.log);
    softmetal_fail(buffer, NULL, 2, "stuck");
    softmetal_complete(buffer);
    sleep_ms(5);
    assert_int_equal(log_count(&s.log), 0);
    softmetal_finish(buffer);
    pthread_join(thread, NULL);
    assert_int_equal(s.log.order[0], 1);
    assert_int_equal(s.log.order[1], 9);
    assert_error(buffer, "MTLCommandBufferErrorDomain", 2, "stuck");
    stage_close(&s);
}

static void finish_queue_takes_them_in_order(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *pool = objc_autoreleasePoolPush();
    for (int i = 1; i <= 3; i++) {
        void *buffer = buffer_in(s.queue);
        encode_wait(buffer, event, (uint64_t)i - 1);
        encode_signal(buffer, event, (uint64_t)i);
        on_completed(buffer, &s.log, i);
        commit(buffer);
    }
    void *unused = softmetal_last_buffer(s.queue);
    softmetal_lose_handlers(unused);
    objc_autoreleasePoolPop(pool);
    softmetal_finish_queue(s.queue);
    assert_int_equal(event_value(event), 3);
    assert_int_equal(log_count(&s.log), 2);
    assert_int_equal(s.log.order[1], 2);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    void *left = buffer_in(s.queue); /* complete, but never stepped further: reset clears it away */
    on_completed(left, &s.log, 4);
    commit(left);
    softmetal_complete(left);
    softmetal_reset();
    assert_int_equal(s.log.disposed, 4);
    assert_int_equal(log_count(&s.log), 2);
    objc_release(event);
    stage_close(&s);
}

static void letting_go_invoke(void *self, void *buffer)
{
    block *b = self;
    objc_release(b->log->library);
    handler_invoke(self, buffer);
}

static void finish_queue_outlives_the_last_reference(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *pool = objc_autoreleasePoolPush(), *queue = GET(s.device, "newCommandQueue"), *buffer = buffer_in(queue);
    block b = stack_block((any_function)letting_go_invoke, &s.log, 1);
    s.log.library = queue;
    DO1(buffer, "addCompletedHandler:", &b);
    commit(buffer);
    objc_autoreleasePoolPop(pool);
    assert_int_equal(softmetal_live("queue"), 2);
    softmetal_finish_queue(queue);
    assert_int_equal(log_count(&s.log), 1);
    assert_int_equal(softmetal_live("queue"), 1);
    stage_close(&s);
}

static void the_watchdog_comes_by_hand(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *buffer = buffer_in(s.queue), *after = buffer_in(s.queue);
    encode_signal(buffer, event, 1);
    encode_wait(buffer, event, 1);
    encode_wait(buffer, event, 3);
    encode_signal(buffer, event, 9);
    on_completed(buffer, &s.log, 1);
    encode_wait(after, event, 1);
    commit(buffer);
    commit(after);
    softmetal_time_out(buffer);
    assert_error(buffer, "MTLCommandBufferErrorDomain", 2, NULL);
    assert_int_equal(event_value(event), 1);
    assert_int_equal(log_count(&s.log), 0);
    softmetal_finish_queue(s.queue);
    assert_int_equal(s.log.status, FAILED);
    assert_int_equal(status(after), COMPLETED);
    objc_release(event);
    stage_close(&s);
}

static void a_test_can_ask_what_is_due(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    void *event = GET(s.device, "newSharedEvent"), *buffer = buffer_in(s.queue), *after = buffer_in(s.queue);
    encode_signal(buffer, event, 1);
    encode_wait(buffer, event, 1);
    on_completed(buffer, &s.log, 1);
    encode_wait(after, event, 2);
    assert_int_equal(softmetal_what_is_due(buffer), SOFTMETAL_NOTHING_DUE);
    commit(buffer);
    commit(after);
    assert_int_equal(softmetal_what_is_due(buffer), SOFTMETAL_COMPLETE_DUE);
    assert_int_equal(softmetal_what_is_due(after), SOFTMETAL_NOTHING_DUE); /* they share an event */
    assert_ptr_equal(softmetal_first_in_line(s.queue), buffer);
    softmetal_complete(buffer);
    assert_ptr_equal(softmetal_first_in_line(s.queue), after);
    assert_int_equal(softmetal_what_is_due(buffer), SOFTMETAL_HANDLERS_DUE);
    assert_int_equal(softmetal_what_is_due(after), SOFTMETAL_WAIT_DUE);
    softmetal_finish(buffer);
    assert_int_equal(softmetal_what_is_due(buffer), SOFTMETAL_NOTHING_DUE);
    softmetal_fail(after, NULL, 1, NULL);
    assert_int_equal(softmetal_what_is_due(after), SOFTMETAL_FAULT_DUE);
    softmetal_complete(after);
    assert_int_equal(softmetal_what_is_due(after), SOFTMETAL_NOTHING_DUE);
    assert_true(softmetal_settle_listeners(10000000000u));
    objc_release(event);
    stage_close(&s);
}

static void reset_ends_quirks_and_latencies(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_quirks quirks;
    const softmetal_quirks none = {.status_early = false};
    memset(&quirks, 1, sizeof quirks);
    softmetal_set_quirks(&quirks);
    softmetal_timing timing, reset_timing;
    softmetal_get_timing(&timing);
    timing.handler.min_ns = timing.handler.max_ns = 1;
    softmetal_set_timing(&timing);
    void *buffer = buffer_in(s.queue);
    on_completed(buffer, &s.log, 1);
    commit(buffer); /* under all of them */
    wait_done(buffer);
    assert_int_equal(status(buffer), COMPLETED);
    assert_int_equal(log_count(&s.log), 0);
    softmetal_get_quirks(&quirks);
    assert_true(quirks.deaf_listeners && quirks.lost_handlers);
    softmetal_reset();
    softmetal_get_quirks(&quirks);
    assert_memory_equal(&quirks, &none, sizeof quirks);
    softmetal_get_timing(&reset_timing);
    assert_int_equal(reset_timing.handler.max_ns, 0);
    stage_close(&s);
}

/* --------------------------------------------------------------------------------- stress -- */

static void *stress_thread(void *user)
{
    stage *s = user;
    for (int i = 0; i < 100; i++) {
        void *pool = objc_autoreleasePoolPush();
        void *memory = memory_new(s->device, 256), *buffer = buffer_in(s->queue);
        fill(buffer, memory, (unsigned char)i);
        on_completed(buffer, &s->log, i);
        commit(buffer);
        wait_done(buffer);
        unsigned char expected = status(buffer) == COMPLETED ? (unsigned char)i : 0;
        assert_int_equal(contents(memory)[255], expected);
        objc_release(memory);
        objc_autoreleasePoolPop(pool);
    }
    return NULL;
}

static void threads_share_a_queue(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 3); /* fewer places than threads */
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.schedule = timing.execute = timing.notify = (softmetal_range){0, 20000};
    softmetal_set_timing(&timing);
    softmetal_set_chaos(&(softmetal_chaos){50, 100, 300});
    softmetal_set_seed(42);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, stress_thread, &s);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(log_count(&s.log), 400);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(s.log.disposed, 400);
    assert_int_equal(softmetal_outstanding(s.queue), 0);
    stage_close(&s);
}

/* Each thread's queue waits for its left neighbour's event and raises its own. */
enum { RING = 4, LAPS = 60 };

typedef struct ring_place {
    stage *s;
    void *queue, *before, *own, *listener, *memory;
} ring_place;

static void *ring_thread(void *user)
{
    ring_place *place = user;
    void *last = NULL, *pool = objc_autoreleasePoolPush();
    for (uint64_t lap = 1; lap <= LAPS; lap++) {
        void *inner = objc_autoreleasePoolPush();
        void *buffer = lap % 2 ? buffer_in(place->queue) : GET(place->queue, "commandBufferWithUnretainedReferences");
        encode_wait(buffer, place->before, lap - 1);
        fill(buffer, place->memory, (unsigned char)lap);
        encode_signal(buffer, place->own, lap);
        on_completed(buffer, &place->s->log, (int)lap);
        on_event(place->own, place->listener, lap, &place->s->log, (int)lap);
        commit(buffer);
        if (lap == LAPS) last = objc_retain(buffer);
        objc_autoreleasePoolPop(inner);
    }
    wait_done(last);
    assert_int_equal(contents(place->memory)[0], LAPS);
    objc_release(last);
    objc_autoreleasePoolPop(pool);
    return NULL;
}

static void queues_pass_events_around(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.schedule = timing.execute = timing.notify = timing.event_listener = (softmetal_range){0, 30000};
    softmetal_set_timing(&timing);
    softmetal_set_chaos(&(softmetal_chaos){.late_handler_per_mille = 100, .overlap_per_mille = 500});
    ring_place places[RING];
    pthread_t threads[RING];
    for (int i = 0; i < RING; i++)
        places[i] = (ring_place){.s = &s,
                                 .queue = queue_new_of(s.device, 8),
                                 .own = GET(s.device, "newSharedEvent"),
                                 .listener = listener_new(),
                                 .memory = memory_new(s.device, 64)};
    for (int i = 0; i < RING; i++) {
        places[i].before = places[(i + RING - 1) % RING].own;
        pthread_create(&threads[i], NULL, ring_thread, &places[i]);
    }
    for (int i = 0; i < RING; i++) pthread_join(threads[i], NULL);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(log_count(&s.log), 2 * RING * LAPS);
    assert_int_equal(s.log.disposed, 2 * RING * LAPS);
    for (int i = 0; i < RING; i++) {
        assert_int_equal(event_value(places[i].own), LAPS);
        objc_release(places[i].queue);
        objc_release(places[i].own);
        objc_release(places[i].listener);
        objc_release(places[i].memory);
    }
    stage_close(&s);
}

/* ------------------------------------------------------------------------- rules to break -- */

static void case_handler_after_commit(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    on_completed(buffer, &s->log, 1);
}
static void adding_invoke(void *self, void *buffer)
{
    on_completed(buffer, ((block *)self)->log, 2);
}
/* `selector` adds a handler that adds another one to its own buffer. */
static void add_from_handler(stage *s, const char *selector, bool dropped)
{
    block b = stack_block((any_function)adding_invoke, &s->log, 1);
    void *pool = objc_autoreleasePoolPush(), *buffer = buffer_in(s->queue);
    DO1(buffer, selector, &b);
    if (!dropped) commit(buffer);
    if (!dropped) softmetal_finish(buffer);
    objc_autoreleasePoolPop(pool);
}
static void case_add_in_scheduled_handler(stage *s)
{
    softmetal_set_quirks(&(softmetal_quirks){.handlers_under_lock = true});
    add_from_handler(s, "addScheduledHandler:", false);
}
static void case_add_in_completed_handler(stage *s)
{
    softmetal_set_quirks(&(softmetal_quirks){.handlers_under_lock = true});
    add_from_handler(s, "addCompletedHandler:", false);
}
static void case_add_in_handler_of_dropped(stage *s)
{
    softmetal_set_quirks(&(softmetal_quirks){.handlers_under_lock = true});
    add_from_handler(s, "addCompletedHandler:", true);
}
static void case_add_in_handler_under_validation(stage *s)
{
    setenv("MTL_DEBUG_LAYER", "1", 1);
    add_from_handler(s, "addCompletedHandler:", false);
}
static void case_double_commit(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    commit(buffer);
}
static void case_commit_with_active_encoder(stage *s)
{
    void *buffer = buffer_in(s->queue);
    GET(buffer, "blitCommandEncoder");
    commit(buffer);
}
static void case_encode_after_commit(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    GET(buffer, "computeCommandEncoder");
}
static void case_encode_event_after_commit(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    encode_signal(buffer, GET(s->device, "newEvent"), 1);
}
static void case_wait_before_commit(stage *s)
{
    wait_done(buffer_in(s->queue));
}

static void waiting_invoke(void *self, void *buffer)
{
    (void)self;
    wait_done(buffer);
}
static void case_wait_in_own_handler(stage *s)
{
    block b = stack_block((any_function)waiting_invoke, &s->log, 1);
    void *buffer = buffer_in(s->queue);
    DO1(buffer, "addCompletedHandler:", &b);
    commit(buffer);
    softmetal_complete(buffer);
    softmetal_run_handler(buffer, 0);
}
static void case_enqueued_never_committed(stage *s)
{
    void *pool = objc_autoreleasePoolPush();
    DO(buffer_in(s->queue), "enqueue");
    objc_autoreleasePoolPop(pool);
}
static void case_would_block(stage *s)
{
    void *queue = queue_new_of(s->device, 1);
    buffer_in(queue);
    buffer_in(queue);
}
static void case_full_queue(stage *s)
{
    void *queue = queue_new_of(s->device, 1);
    softmetal_set_quirks(&(softmetal_quirks){.full_queue_aborts = true});
    buffer_in(queue);
    buffer_in(queue);
}
static void case_full_queue_of_real_clock(stage *s)
{
    softmetal_set_clock(SOFTMETAL_REAL);
    case_full_queue(s);
}
static void case_second_encoder(stage *s)
{
    void *buffer = buffer_in(s->queue);
    GET(buffer, "blitCommandEncoder");
    GET(buffer, "computeCommandEncoder");
}
static void case_three_hundred_drawables(stage *s)
{
    SEND_WITH(void, (void *, void *, unsigned long), layer_new(s->device, 1, 1), "setMaximumDrawableCount:", 300ul);
}
static void case_pixel_format(stage *s)
{
    SEND_WITH(void, (void *, void *, unsigned long), layer_new(s->device, 1, 1), "setPixelFormat:", 1ul);
}
static void *framebuffer_of(stage *s)
{
    void *layer = layer_new(s->device, 2, 2);
    SEND_WITH(void, (void *, void *, signed char), layer, "setFramebufferOnly:", (signed char)1);
    return GET(layer, "nextDrawable");
}
static void case_copy_to_framebuffer(stage *s)
{
    copy_to(GET(buffer_in(s->queue), "blitCommandEncoder"), memory_new(s->device, 64), 8, (size){2, 2, 1},
            framebuffer_of(s), (size){0, 0, 0});
}
static void case_read_framebuffer(stage *s)
{
    pixel_of(framebuffer_of(s), 0, 0);
}
static void case_copy_beyond_texture(stage *s)
{
    copy_to(GET(buffer_in(s->queue), "blitCommandEncoder"), memory_new(s->device, 64), 8, (size){2, 2, 1},
            GET(layer_new(s->device, 2, 2), "nextDrawable"), (size){1, 0, 0});
}
static void case_present_after_commit(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    DO1(buffer, "presentDrawable:", GET(layer_new(s->device, 2, 2), "nextDrawable"));
}
static void case_present_without_drawable(stage *s)
{
    DO1(buffer_in(s->queue), "presentDrawable:", NULL);
}
static void case_present_of_another_device(stage *s)
{
    void *layer = layer_new(softmetal_new_device(), 2, 2);
    DO1(buffer_in(s->queue), "presentDrawable:", GET(layer, "nextDrawable"));
}
static void case_wait_with_encoder(stage *s)
{
    void *buffer = buffer_in(s->queue);
    GET(buffer, "blitCommandEncoder");
    encode_wait(buffer, GET(s->device, "newEvent"), 1);
}
static void case_signal_with_encoder(stage *s)
{
    void *buffer = buffer_in(s->queue);
    GET(buffer, "blitCommandEncoder");
    encode_signal(buffer, GET(s->device, "newEvent"), 1);
}
static void case_double_end(stage *s)
{
    void *encoder = GET(buffer_in(s->queue), "blitCommandEncoder");
    DO(encoder, "endEncoding");
    DO(encoder, "endEncoding");
}
static void case_encode_after_end(stage *s)
{
    void *encoder = GET(buffer_in(s->queue), "blitCommandEncoder");
    DO(encoder, "endEncoding");
    fill_in(encoder, memory_new(s->device, 4), 0, 4, 1);
}
static void case_encoder_not_ended(stage *s)
{
    void *pool = objc_autoreleasePoolPush();
    GET(buffer_in(s->queue), "blitCommandEncoder");
    objc_autoreleasePoolPop(pool);
}
static void case_fill_out_of_range(stage *s)
{
    fill_in(GET(buffer_in(s->queue), "blitCommandEncoder"), memory_new(s->device, 4), 1, 4, 1);
}
static void case_fill_overflow(stage *s)
{
    fill_in(GET(buffer_in(s->queue), "blitCommandEncoder"), memory_new(s->device, 4), ~0ul, 2, 1);
}
static void case_copy_out_of_range(stage *s)
{
    void *memory = memory_new(s->device, 4);
    copy_in(GET(buffer_in(s->queue), "blitCommandEncoder"), memory, 0, memory, 2, 3);
}
static void case_bad_index(stage *s)
{
    SEND_WITH(void, (void *, void *, void *, unsigned long, unsigned long),
              GET(buffer_in(s->queue), "computeCommandEncoder"), "setBuffer:offset:atIndex:", memory_new(s->device, 4),
              0ul, 31ul);
}
static void case_no_pipeline(stage *s)
{
    SEND_WITH(void, (void *, void *, size, size), GET(buffer_in(s->queue), "computeCommandEncoder"),
              "dispatchThreads:threadsPerThreadgroup:", (size){1, 1, 1}, (size){1, 1, 1});
}
static void case_nil_memory(stage *s)
{
    fill_in(GET(buffer_in(s->queue), "blitCommandEncoder"), NULL, 0, 4, 1);
}
static void case_nil_handler(stage *s)
{
    DO1(buffer_in(s->queue), "addCompletedHandler:", NULL);
}
static void case_nil_event(stage *s)
{
    encode_signal(buffer_in(s->queue), NULL, 1);
}
static void case_nil_listener(stage *s)
{
    on_event(GET(s->device, "newSharedEvent"), NULL, 1, &s->log, 1);
}
static void case_nil_source(stage *s)
{
    void *error;
    SEND_WITH(void *, (void *, void *, void *, void *, void **), s->device, "newLibraryWithSource:options:error:", NULL,
              NULL, &error);
}
static void case_wrong_class(stage *s)
{
    encode_signal(buffer_in(s->queue), memory_new(s->device, 4), 1);
}
static void case_memory_of_other_device(stage *s)
{
    fill_in(GET(buffer_in(s->queue), "blitCommandEncoder"), memory_new(softmetal_new_device(), 4), 0, 4, 1);
}
static void case_event_of_other_device(stage *s)
{
    encode_wait(buffer_in(s->queue), GET(softmetal_new_device(), "newEvent"), 1);
}
static void case_no_bytes(stage *s)
{
    memory_new(s->device, 0);
}
static void case_no_buffers(stage *s)
{
    queue_new_of(s->device, 0);
}
static void case_hidden_selector(stage *s)
{
    softmetal_hide_selector("newEvent");
    GET(s->device, "newEvent");
}
static void case_over_release(stage *s)
{
    void *memory = memory_new(s->device, 4);
    objc_release(memory);
    objc_release(memory);
}
static void case_over_release_by_message(stage *s)
{
    void *memory = memory_new(s->device, 4);
    DO(memory, "release");
    DO(memory, "release");
}
static void case_release_of_autoreleased(stage *s)
{
    void *pool = objc_autoreleasePoolPush();
    objc_release(buffer_in(s->queue));
    objc_autoreleasePoolPop(pool);
}
static void case_over_release_of_device(stage *s)
{
    objc_release(s->queue);
    objc_release(s->device);
    objc_release(s->device);
}
static void case_message_to_freed(stage *s)
{
    void *event = GET(s->device, "newSharedEvent");
    objc_release(event);
    event_value(event);
}
static void case_retain_of_freed(stage *s)
{
    void *event = GET(s->device, "newSharedEvent");
    objc_release(event);
    objc_retain(event);
}
static void case_encode_freed(stage *s)
{
    void *event = GET(s->device, "newSharedEvent");
    objc_release(event);
    encode_signal(buffer_in(s->queue), event, 1);
}
static void *poolless_thread(void *queue)
{
    return buffer_in(queue);
}
static void case_no_pool(stage *s)
{
    pthread_t thread;
    pthread_create(&thread, NULL, poolless_thread, s->queue);
    pthread_join(thread, NULL);
}
static void *thread_with_popped_pools(void *queue)
{
    void *outer = objc_autoreleasePoolPush();
    objc_autoreleasePoolPush();
    objc_autoreleasePoolPop(outer); /* the inner one goes too */
    return buffer_in(queue);
}
static void case_no_pool_after_outer_pop(stage *s)
{
    pthread_t thread;
    pthread_create(&thread, NULL, thread_with_popped_pools, s->queue);
    pthread_join(thread, NULL);
}
static void *poolless_label(void *queue)
{
    return GET(queue, "label");
}
static void case_label_without_pool(stage *s)
{
    pthread_t thread;
    DO1(s->queue, "setLabel:", string("q"));
    pthread_create(&thread, NULL, poolless_label, s->queue);
    pthread_join(thread, NULL);
}
static void poolless_invoke(void *self, void *buffer)
{
    (void)self;
    GET(buffer, "error");
}
static void case_error_in_handler_without_pool(stage *s)
{
    block b = stack_block((any_function)poolless_invoke, &s->log, 1);
    void *buffer = buffer_in(s->queue);
    DO1(buffer, "addCompletedHandler:", &b);
    softmetal_fail(buffer, NULL, 1, NULL);
    commit(buffer);
    softmetal_finish(buffer);
}
static void case_pool_order(stage *s)
{
    (void)s;
    void *outer = objc_autoreleasePoolPush(), *inner = objc_autoreleasePoolPush();
    objc_autoreleasePoolPop(outer);
    objc_autoreleasePoolPop(inner);
}
static void case_locked_twice(stage *s)
{
    uint32_t lock = 0;
    (void)s;
    os_unfair_lock_lock(&lock);
    if (os_unfair_lock_trylock(&lock)) return;
    os_unfair_lock_lock(&lock);
}
static void *lock_it(void *lock)
{
    os_unfair_lock_lock(lock);
    return NULL;
}
static void case_unlocked_by_other(stage *s)
{
    uint32_t lock = 0;
    pthread_t other;
    (void)s;
    if (pthread_create(&other, NULL, lock_it, &lock) || pthread_join(other, NULL)) return;
    os_unfair_lock_unlock(&lock);
}
static void case_destroyed_in_use(stage *s)
{
    void *memory = memory_new(s->device, 4), *buffer = GET(s->queue, "commandBufferWithUnretainedReferences");
    fill(buffer, memory, 1);
    commit(buffer);
    objc_release(memory);
}
static void case_event_destroyed_in_use(stage *s)
{
    void *event = GET(s->device, "newSharedEvent"), *buffer = GET(s->queue, "commandBufferWithUnretainedReferences");
    encode_signal(buffer, event, 1);
    commit(buffer);
    objc_release(event);
}
static void case_destroyed_before_commit(stage *s)
{
    void *memory = memory_new(s->device, 4), *buffer = GET(s->queue, "commandBufferWithUnretainedReferences");
    fill(buffer, memory, 1);
    objc_release(memory);
    commit(buffer);
}
static void case_block_changed_before_call(stage *s)
{
    block b = global_block((any_function)handler_invoke, &s->log, 1);
    void *buffer = buffer_in(s->queue);
    DO1(buffer, "addCompletedHandler:", &b);
    b.invoke = (any_function)waiting_invoke;
    commit(buffer);
    softmetal_finish(buffer);
}
static void case_block_changed_before_release(stage *s)
{
    block b = global_block((any_function)handler_invoke, &s->log, 1);
    void *buffer = buffer_in(s->queue);
    DO1(buffer, "addCompletedHandler:", &b);
    commit(buffer);
    softmetal_complete(buffer);
    softmetal_run_handler(buffer, 0);
    b.flags = 1 << 28;
    softmetal_release_block(buffer, 0);
}
static void case_execute_unscheduled(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    softmetal_execute(buffer);
}
static void case_schedule_twice(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    softmetal_schedule(buffer);
    softmetal_schedule(buffer);
}
static void case_handler_before_completion(stage *s)
{
    void *buffer = buffer_in(s->queue);
    on_completed(buffer, &s->log, 1);
    commit(buffer);
    softmetal_run_handler(buffer, 0);
}
static void case_handler_twice(stage *s)
{
    void *buffer = buffer_in(s->queue);
    on_completed(buffer, &s->log, 1);
    on_completed(buffer, &s->log, 2);
    commit(buffer);
    softmetal_complete(buffer);
    softmetal_run_handler(buffer, 0);
    softmetal_run_handler(buffer, 0);
}
static void case_handler_again_before_it_ran(stage *s)
{
    void *buffer = buffer_in(s->queue);
    on_completed(buffer, &s->log, 1);
    commit(buffer);
    softmetal_complete(buffer);
    softmetal_call_handler_again(buffer, 0);
}
static void case_handler_again_after_release(stage *s)
{
    void *buffer = buffer_in(s->queue);
    on_completed(buffer, &s->log, 1);
    on_completed(buffer, &s->log, 2);
    commit(buffer);
    softmetal_complete(buffer);
    softmetal_run_handler(buffer, 0);
    softmetal_release_block(buffer, 0);
    softmetal_call_handler_again(buffer, 0);
}
static void case_release_before_handler(stage *s)
{
    void *buffer = buffer_in(s->queue);
    on_completed(buffer, &s->log, 1);
    commit(buffer);
    softmetal_complete(buffer);
    softmetal_release_block(buffer, 0);
}
static void case_execute_unreached_wait(stage *s)
{
    void *buffer = buffer_in(s->queue);
    encode_wait(buffer, GET(s->device, "newSharedEvent"), 1);
    commit(buffer);
    softmetal_complete(buffer);
}
static void case_execute_out_of_order(stage *s)
{
    void *memory = memory_new(s->device, 4), *first = buffer_in(s->queue), *second = buffer_in(s->queue);
    fill(first, memory, 1);
    fill(second, memory, 2);
    commit(first);
    commit(second);
    softmetal_complete(second);
}
static void case_execute_behind_enqueued(stage *s)
{
    void *first = buffer_in(s->queue), *second = buffer_in(s->queue);
    DO(first, "enqueue");
    commit(second);
    softmetal_complete(second);
}
static void case_step_real_clock(stage *s)
{
    softmetal_set_clock(SOFTMETAL_REAL);
    void *buffer = buffer_in(queue_new(s->device));
    commit(buffer);
    softmetal_complete(buffer);
}
static void case_reset_with_work(stage *s)
{
    commit(buffer_in(s->queue));
    softmetal_reset();
}
static void case_fail_when_terminal(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    softmetal_complete(buffer);
    softmetal_fail(buffer, NULL, 1, NULL);
}
static void case_unknown_number(stage *s)
{
    softmetal_fail_as(buffer_in(s->queue), SOFTMETAL_FIRST_INTERNAL - 1, NULL);
}
static void case_unknown_number_next(stage *s)
{
    (void)s;
    softmetal_fail_next_as(1, 0);
}
static void retaining_invoke(void *self, void *buffer)
{
    (void)self;
    objc_release(objc_retain(buffer));
}
static void case_retain_in_handler_of_dropped(stage *s)
{
    void *pool = objc_autoreleasePoolPush(), *buffer = buffer_in(s->queue);
    block b = stack_block((any_function)retaining_invoke, &s->log, 1);
    DO1(buffer, "addCompletedHandler:", &b);
    objc_autoreleasePoolPop(pool);
}
static void given_invoke(void *self, void *buffer)
{
    block *b = self;
    b->log->given = buffer;
}
static void case_wrapper_after_the_handler(stage *s)
{
    block b = stack_block((any_function)given_invoke, &s->log, 1);
    void *buffer = buffer_in(s->queue);
    softmetal_set_quirks(&(softmetal_quirks){.wrapped_buffers = true});
    DO1(buffer, "addCompletedHandler:", &b);
    commit(buffer);
    softmetal_finish(buffer);
    status(s->log.given);
}
static void case_wrapper_of_dropped_after_the_handler(stage *s)
{
    block b = stack_block((any_function)keeping_invoke, &s->log, 1);
    void *pool = objc_autoreleasePoolPush(), *buffer = buffer_in(s->queue);
    softmetal_set_quirks(&(softmetal_quirks){.wrapped_buffers = true});
    DO1(buffer, "addCompletedHandler:", &b);
    objc_autoreleasePoolPop(pool);
    status(s->log.given);
}
static void add_block(stage *s, void *isa, unsigned flags, any_function invoke)
{
    block b = stack_block(invoke, &s->log, 1);
    b.isa = isa;
    b.flags = (int32_t)(flags | 1u << 30);
    b.descriptor = &plain_descriptor;
    DO1(buffer_in(s->queue), "addCompletedHandler:", &b);
}
static void case_block_without_class(stage *s)
{
    add_block(s, NULL, 1u << 28, (any_function)handler_invoke);
}
static void case_block_of_other_class(stage *s)
{
    add_block(s, objc_getClass("NSObject"), 1u << 24, (any_function)handler_invoke);
}
static void case_global_block_without_flag(stage *s)
{
    add_block(s, _NSConcreteGlobalBlock, 0, (any_function)handler_invoke);
}
static void case_stack_block_with_global_flag(stage *s)
{
    add_block(s, _NSConcreteStackBlock, 1u << 28, (any_function)handler_invoke);
}
static void case_heap_block_without_flag(stage *s)
{
    add_block(s, _NSConcreteMallocBlock, 0, (any_function)handler_invoke);
}
static void case_block_without_function(stage *s)
{
    add_block(s, _NSConcreteStackBlock, 0, NULL);
}
static void case_time_out_without_wait(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    softmetal_time_out(buffer);
}
static void case_time_out_of_reached_wait(stage *s)
{
    void *buffer = buffer_in(s->queue), *event = GET(s->device, "newSharedEvent");
    encode_wait(buffer, event, 1);
    set_event(event, 1);
    commit(buffer);
    softmetal_time_out(buffer);
}
static void case_time_out_of_failed(stage *s)
{
    void *buffer = buffer_in(s->queue);
    encode_wait(buffer, GET(s->device, "newSharedEvent"), 1);
    softmetal_fail(buffer, NULL, 1, NULL);
    commit(buffer);
    softmetal_time_out(buffer);
}
static void case_time_out_of_executed(stage *s)
{
    void *buffer = buffer_in(s->queue);
    commit(buffer);
    softmetal_schedule(buffer);
    softmetal_execute(buffer);
    softmetal_time_out(buffer);
}
static void case_time_out_before_commit(stage *s)
{
    softmetal_time_out(buffer_in(s->queue));
}
static void case_time_out_behind_another(stage *s)
{
    void *event = GET(s->device, "newSharedEvent"), *first = buffer_in(s->queue), *second = buffer_in(s->queue);
    encode_signal(first, event, 1);
    encode_wait(second, event, 1);
    commit(first);
    commit(second);
    softmetal_time_out(second);
}
static void case_unknown_kind(stage *s)
{
    (void)s;
    softmetal_live("teapot");
}

/* -- dispatch queues -- */

static void nothing(void *context)
{
    (void)context;
}
static void case_dispatch_without_queue(stage *s)
{
    (void)s;
    dispatch_async_f(NULL, NULL, nothing);
}
static void case_dispatch_without_function(stage *s)
{
    (void)s;
    dispatch_async_f(dispatch_queue_create("q", NULL), NULL, NULL);
}
static void case_timer_without_queue(stage *s)
{
    (void)s;
    dispatch_after_f(dispatch_time(0, 1), NULL, NULL, nothing);
}
static void case_timer_without_function(stage *s)
{
    (void)s;
    dispatch_after_f(dispatch_time(0, 1), dispatch_queue_create("q", NULL), NULL, NULL);
}
static void case_release_of_no_queue(stage *s)
{
    (void)s;
    dispatch_release(NULL);
}
static void case_listener_without_queue(stage *s)
{
    (void)s;
    GET1(GET(objc_getClass("MTLSharedEventListener"), "alloc"), "initWithDispatchQueue:", NULL);
}
static void case_dispatch_to_event(stage *s)
{
    dispatch_async_f(GET(s->device, "newSharedEvent"), NULL, nothing);
}
static void case_queue_over_release(stage *s)
{
    void *queue = dispatch_queue_create("q", NULL);
    (void)s;
    dispatch_release(queue);
    dispatch_release(queue);
}
static void case_pending_queue_over_release(stage *s)
{
    void *queue = dispatch_queue_create("q", NULL);
    (void)s;
    dispatch_after_f(dispatch_time(0, 1), queue, NULL, nothing);
    dispatch_release(queue);
    dispatch_release(queue);
}
static void case_dispatch_to_freed(stage *s)
{
    void *queue = dispatch_queue_create("q", NULL);
    (void)s;
    dispatch_release(queue);
    dispatch_async_f(queue, NULL, nothing);
}
static void case_dispatch_to_released(stage *s)
{
    void *queue = dispatch_queue_create("q", NULL);
    (void)s;
    dispatch_after_f(dispatch_time(0, 1), queue, NULL, nothing); /* keeps it alive, and is no licence */
    dispatch_release(queue);
    dispatch_async_f(queue, NULL, nothing);
}
static void case_timer_on_released(stage *s)
{
    void *queue = dispatch_queue_create("q", NULL);
    (void)s;
    dispatch_after_f(dispatch_time(0, 1), queue, NULL, nothing);
    dispatch_release(queue);
    dispatch_after_f(dispatch_time(0, 1), queue, NULL, nothing);
}
static void case_concurrent_queue(stage *s)
{
    dispatch_queue_create("q", s);
}
static void case_attribute_from_elsewhere(stage *s)
{
    dispatch_queue_attr_make_with_qos_class(s, 0x19, 0);
}
static void case_timer_for_never(stage *s)
{
    (void)s;
    dispatch_after_f(dispatch_time(UINT64_MAX, 1), dispatch_queue_create("q", NULL), NULL, nothing);
}
static void case_time_of_the_wall_clock(stage *s)
{
    (void)s;
    dispatch_time(UINT64_MAX - 1, 0); /* DISPATCH_WALLTIME_NOW */
}
static void poolless_function(void *queue)
{
    buffer_in(queue);
}
static void case_dispatched_without_pool(stage *s)
{
    dispatch_async_f(dispatch_queue_create("q", NULL), s->queue, poolless_function);
    softmetal_settle(10 * SECOND);
}
static void pool_leaking_function(void *context)
{
    (void)context;
    objc_autoreleasePoolPush();
}
static void case_pool_left_in_function(stage *s)
{
    (void)s;
    dispatch_async_f(dispatch_queue_create("q", NULL), NULL, pool_leaking_function);
    softmetal_settle(10 * SECOND);
}
static void exiting_function(void *context)
{
    pthread_exit(context);
}
static void case_exit_in_function(stage *s)
{
    dispatch_async_f(dispatch_queue_create("q", NULL), s, exiting_function);
    softmetal_settle(10 * SECOND);
}
static void case_fire_nothing(stage *s)
{
    (void)s;
    softmetal_fire_timer();
}
static void case_fire_timer_of_real_clock(stage *s)
{
    softmetal_set_clock(SOFTMETAL_REAL);
    dispatch_after_f(dispatch_time(0, 10 * (int64_t)SECOND), dispatch_queue_create("q", NULL), s, nothing);
    softmetal_fire_timer();
}
static void fire_another(void *context)
{
    (void)context;
    softmetal_fire_timer();
}
static void case_fire_in_function(stage *s)
{
    void *queue = dispatch_queue_create("q", NULL);
    dispatch_after_f(dispatch_time(0, 1), queue, s, nothing);
    dispatch_async_f(queue, s, fire_another);
    softmetal_settle(10 * SECOND);
}
static void case_too_many_workers(stage *s)
{
    (void)s;
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS + 1);
}
static void arm_again(void *queue)
{
    dispatch_after_f(dispatch_time(0, 1), queue, queue, arm_again);
}
static void case_timer_without_end(stage *s)
{
    (void)s;
    arm_again(dispatch_queue_create("q", NULL));
    softmetal_reset();
}

/* A class that the runtime knows before softmetal's: in a process of its own, which begins with the next function. */
static void case_class_taken(stage *s)
{
    (void)s;
    setenv("PLANT_CLASS", "MTLSharedEventListener", 1);
    execl(own_path, own_path, "--break", "0", (char *)NULL);
}
extern void *objc_allocateClassPair(void *superclass, const char *name, size_t extra);
extern void objc_registerClassPair(void *cls);
static __attribute__((constructor(101))) void plant_class(void)
{
    const char *name = getenv("PLANT_CLASS");
    if (name) objc_registerClassPair(objc_allocateClassPair(objc_getClass("NSObject"), name, 0));
}

typedef struct rule_case {
    const char *rule;
    void (*run)(stage *s);
} rule_case;

static const rule_case rule_cases[] = {
    {"handler-after-commit", case_handler_after_commit},
    {"handler-in-own-handler", case_add_in_scheduled_handler},
    {"handler-in-own-handler", case_add_in_completed_handler},
    {"handler-in-own-handler", case_add_in_handler_of_dropped},
    {"handler-in-own-handler", case_add_in_handler_under_validation},
    {"double-commit", case_double_commit},
    {"commit-with-active-encoder", case_commit_with_active_encoder},
    {"encode-after-commit", case_encode_after_commit},
    {"encode-after-commit", case_encode_event_after_commit},
    {"encode-after-commit", case_present_after_commit},
    {"bad-layer", case_three_hundred_drawables},
    {"bad-layer", case_pixel_format},
    {"framebuffer-only", case_copy_to_framebuffer},
    {"framebuffer-only", case_read_framebuffer},
    {"blit-out-of-range", case_copy_beyond_texture},
    {"nil-argument", case_present_without_drawable},
    {"other-device", case_present_of_another_device},
    {"wait-before-commit", case_wait_before_commit},
    {"wait-in-own-handler", case_wait_in_own_handler},
    {"enqueued-never-committed", case_enqueued_never_committed},
    {"command-buffer-would-block", case_would_block},
    {"queue-full-block", case_full_queue},
    {"queue-full-block", case_full_queue_of_real_clock},
    {"second-active-encoder", case_second_encoder},
    {"event-with-active-encoder", case_wait_with_encoder},
    {"event-with-active-encoder", case_signal_with_encoder},
    {"double-end-encoding", case_double_end},
    {"encode-after-end", case_encode_after_end},
    {"encoder-not-ended", case_encoder_not_ended},
    {"blit-out-of-range", case_fill_out_of_range},
    {"blit-out-of-range", case_fill_overflow},
    {"blit-out-of-range", case_copy_out_of_range},
    {"bad-binding", case_bad_index},
    {"no-pipeline", case_no_pipeline},
    {"nil-argument", case_nil_memory},
    {"nil-argument", case_nil_handler},
    {"nil-argument", case_nil_event},
    {"nil-argument", case_nil_listener},
    {"nil-argument", case_nil_source},
    {"wrong-class", case_wrong_class},
    {"other-device", case_memory_of_other_device},
    {"other-device", case_event_of_other_device},
    {"bad-length", case_no_bytes},
    {"bad-length", case_no_buffers},
    {"hidden-selector", case_hidden_selector},
    {"over-release", case_over_release},
    {"over-release", case_over_release_by_message},
    {"over-release", case_release_of_autoreleased},
    {"over-release", case_over_release_of_device},
    {"message-to-freed", case_message_to_freed},
    {"message-to-freed", case_retain_of_freed},
    {"message-to-freed", case_encode_freed},
    {"pool-order", case_pool_order},
    {"destroyed-in-use", case_destroyed_in_use},
    {"destroyed-in-use", case_event_destroyed_in_use},
    {"destroyed-in-use", case_destroyed_before_commit},
    {"block-changed", case_block_changed_before_call},
    {"block-changed", case_block_changed_before_release},
    {"step-not-due", case_execute_unscheduled},
    {"step-not-due", case_schedule_twice},
    {"step-not-due", case_handler_before_completion},
    {"step-not-due", case_handler_twice},
    {"step-not-due", case_handler_again_before_it_ran},
    {"step-not-due", case_handler_again_after_release},
    {"step-not-due", case_release_before_handler},
    {"step-not-due", case_execute_unreached_wait},
    {"step-not-due", case_execute_out_of_order},
    {"step-not-due", case_execute_behind_enqueued},
    {"step-on-real-clock", case_step_real_clock},
    {"reset-with-work", case_reset_with_work},
    {"panel-misuse", case_fail_when_terminal},
    {"panel-misuse", case_unknown_number},
    {"panel-misuse", case_unknown_number_next},
    {"panel-misuse", case_unknown_kind},
    {"message-to-freed", case_retain_in_handler_of_dropped},
    {"message-to-freed", case_wrapper_after_the_handler},
    {"message-to-freed", case_wrapper_of_dropped_after_the_handler},
    {"bad-block", case_block_without_class},
    {"bad-block", case_block_of_other_class},
    {"bad-block", case_global_block_without_flag},
    {"bad-block", case_stack_block_with_global_flag},
    {"bad-block", case_heap_block_without_flag},
    {"bad-block", case_block_without_function},
    {"step-not-due", case_time_out_without_wait},
    {"step-not-due", case_time_out_of_reached_wait},
    {"step-not-due", case_time_out_of_failed},
    {"step-not-due", case_time_out_of_executed},
    {"step-not-due", case_time_out_before_commit},
    {"step-not-due", case_time_out_behind_another},
    {"nil-argument", case_dispatch_without_queue},
    {"nil-argument", case_dispatch_without_function},
    {"nil-argument", case_timer_without_queue},
    {"nil-argument", case_timer_without_function},
    {"nil-argument", case_release_of_no_queue},
    {"nil-argument", case_listener_without_queue},
    {"wrong-class", case_dispatch_to_event},
    {"over-release", case_queue_over_release},
    {"over-release", case_pending_queue_over_release},
    {"message-to-freed", case_dispatch_to_freed},
    {"message-to-freed", case_dispatch_to_released},
    {"message-to-freed", case_timer_on_released},
    {"dispatch-attribute", case_concurrent_queue},
    {"dispatch-attribute", case_attribute_from_elsewhere},
    {"dispatch-time", case_timer_for_never},
    {"dispatch-time", case_time_of_the_wall_clock},
    {"pool-order", case_pool_left_in_function},
    {"exit-in-function", case_exit_in_function},
    {"step-not-due", case_fire_nothing},
    {"step-not-due", case_fire_timer_of_real_clock},
    {"panel-misuse", case_fire_in_function},
    {"panel-misuse", case_too_many_workers},
    {"timer-without-end", case_timer_without_end},
    /* pools */
    {"autorelease-without-pool", case_no_pool},
    {"autorelease-without-pool", case_no_pool_after_outer_pop},
    {"autorelease-without-pool", case_label_without_pool},
    {"autorelease-without-pool", case_error_in_handler_without_pool},
    {"autorelease-without-pool", case_dispatched_without_pool},
    /* locks */
    {"locked-twice", case_locked_twice},
    {"unlocked-by-other", case_unlocked_by_other},
    /* classes */
    {"class-taken", case_class_taken},
};
#define RULE_CASES (sizeof rule_cases / sizeof rule_cases[0])

/* -- locks ------------------------------------------------------------------------------------------ */

typedef struct tally {
    uint32_t lock;
    unsigned long count;
} tally;

static void *count_under_lock(void *argument)
{
    tally *t = argument;
    for (unsigned i = 0; i < 100000; i++) {
        os_unfair_lock_lock(&t->lock);
        t->count++;
        os_unfair_lock_unlock(&t->lock);
    }
    return NULL;
}

static void one_at_a_time_has_a_lock(void **state)
{
    tally t = {0, 0};
    pthread_t threads[4];
    (void)state;
    for (unsigned i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, count_under_lock, &t), 0);
    for (unsigned i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(t.count, 400000);
    assert_int_equal(t.lock, 0);
}

/* -- the lock that validation holds while handlers run ------------------------------------------------- */

static void *add_handler_on_thread(void *buffer)
{
    static log_ log = {.lock = PTHREAD_MUTEX_INITIALIZER};
    on_completed(buffer, &log, 2);
    return NULL;
}

static void waiting_for_adder_invoke(void *self, void *buffer)
{
    pthread_t thread;
    (void)self;
    if (pthread_create(&thread, NULL, add_handler_on_thread, buffer) == 0) pthread_join(thread, NULL);
}

/* The two wait for each other, as they would under validation; else the thread is told that it comes too late. */
static int wait_for_adder(const char *locked)
{
    stage s;
    unsetenv("MTL_DEBUG_LAYER");
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    softmetal_set_quirks(&(softmetal_quirks){.handlers_under_lock = *locked == '1'});
    block b = stack_block((any_function)waiting_for_adder_invoke, &s.log, 1);
    void *buffer = buffer_in(s.queue);
    DO1(buffer, "addCompletedHandler:", &b);
    commit(buffer);
    alarm(1);
    softmetal_finish(buffer);
    return 0;
}

static void a_handler_under_lock_cannot_wait_for_a_thread_that_adds_one(void **state)
{
    char text[4096];
    int result;
    (void)state;
    result = run_case("--adder", 0, text, sizeof text);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT && names_rule(text, "handler-after-commit"));
    result = run_case("--adder", 1, text, sizeof text);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGALRM);
}

/* What handlers may do all the same, of several buffers at once. */
static void handlers_may_run_under_a_lock(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_set_quirks(&(softmetal_quirks){.handlers_under_lock = true});
    for (int i = 0; i < 20; i++) {
        void *buffer = buffer_in(s.queue);
        on_scheduled(buffer, &s.log, 3 * i);
        on_completed(buffer, &s.log, 3 * i + 1);
        on_completed(buffer, &s.log, 3 * i + 2);
        commit(buffer);
        if (i % 4 == 0) wait_done(buffer);
    }
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(log_count(&s.log), 60);
    stage_close(&s);
}

static int break_rule(const char *number)
{
    stage s;
    alarm(50);
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    rule_cases[atoi(number)].run(&s);
    fprintf(stderr, "the rule did not hold\n");
    return 0;
}

/* From the case `first` up to `end`. */
static void assert_abort(void (*first)(stage *s), void (*end)(stage *s))
{
    unsigned wrong = 0, i = 0;
    while (rule_cases[i].run != first) i++;
    for (; i < RULE_CASES && rule_cases[i].run != end; i++) wrong += !case_breaks(i, rule_cases[i].rule);
    assert_int_equal(wrong, 0);
}

static void every_broken_rule_aborts(void **state)
{
    (void)state;
    assert_abort(rule_cases[0].run, case_no_pool);
}

static void an_object_without_a_pool_aborts(void **state)
{
    (void)state;
    NOT_ON_A_MAC("softmetal does not see every pool");
    assert_abort(case_no_pool, case_locked_twice);
}

static void a_lock_used_wrongly_aborts(void **state)
{
    (void)state;
    NOT_ON_A_MAC("the lock is the system's");
    assert_abort(case_locked_twice, case_class_taken);
}

static void another_metal_aborts(void **state)
{
    (void)state;
    NOT_ON_A_MAC("the classes of a program are registered before its first line");
    assert_abort(case_class_taken, NULL);
}

/* -- races: what Metal and libdispatch leave unordered, ThreadSanitizer must find unordered -- */

typedef struct race_stage {
    stage s;
    int plain;           /* what the two sides touch */
    char apart[64];      /* ThreadSanitizer remembers few accesses to one word */
    int written, looked; /* relaxed: they order the moments, not the memory */
    void *first_queue, *second_queue;
} race_stage;

static void wait_relaxed(int *flag)
{
    while (!__atomic_load_n(flag, __ATOMIC_RELAXED)) sleep_ms(1);
}
static void raise_relaxed(int *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
}

/* The handler of one buffer, the status of the next, which the GPU ended with before the handler wrote. */
static race_stage *racing;
static void writing_invoke(void *self, void *buffer)
{
    (void)self, (void)buffer;
    wait_relaxed(&racing->looked);
    racing->plain = 1;
}
static void race_of_handler_and_later_status(race_stage *r)
{
    racing = r;
    block b = global_block((any_function)writing_invoke, &r->s.log, 1);
    void *first = buffer_in(r->s.queue), *second = buffer_in(r->s.queue), *third = buffer_in(r->s.queue);
    void *event = GET(r->s.device, "newSharedEvent");
    DO1(first, "addCompletedHandler:", &b);
    encode_signal(second, event, 1);
    encode_signal(third, event, 2);
    commit(first);
    commit(second);
    commit(third);
    assert_true(event_wait(event, 2, 10000));
    raise_relaxed(&r->looked);
    while (status(second) < COMPLETED) sleep_ms(1);
    assert_int_equal(r->plain, 1);
    wait_done(third);
    objc_release(event);
}

/* Two threads that give work to one queue. */
static void *dispatching_thread(void *user)
{
    race_stage *r = user;
    r->plain = 1;
    dispatch_async_f(r->first_queue, NULL, nothing);
    raise_relaxed(&r->written);
    wait_relaxed(&r->looked);
    return NULL;
}
static void race_of_dispatchers(race_stage *r)
{
    pthread_t thread;
    pthread_create(&thread, NULL, dispatching_thread, r);
    wait_relaxed(&r->written);
    dispatch_async_f(r->first_queue, NULL, nothing);
    assert_int_equal(r->plain, 1);
    raise_relaxed(&r->looked);
    pthread_join(thread, NULL);
}

/* A function, and the thread that gave it to its queue, afterwards. */
static void stay(void *user)
{
    race_stage *r = user;
    raise_relaxed(&r->written);
    wait_relaxed(&r->looked);
}
static void write_and_stay(void *user)
{
    race_stage *r = user;
    r->plain = 1;
    stay(r);
}
static void look(void *user)
{
    race_stage *r = user;
    wait_relaxed(&r->written);
    assert_int_equal(r->plain, 1);
    raise_relaxed(&r->looked);
}
static void race_of_function_and_dispatcher(race_stage *r)
{
    dispatch_async_f(r->first_queue, r, write_and_stay);
    look(r);
    softmetal_settle(10 * SECOND);
}

/* Functions of two queues, one after the other: the worker of the first one is kept busy. */
static void just_write(void *user)
{
    race_stage *r = user;
    r->plain = 1;
}
static void race_of_queues(race_stage *r)
{
    dispatch_async_f(r->first_queue, r, just_write);
    dispatch_async_f(r->first_queue, r, stay);
    wait_relaxed(&r->written);
    dispatch_async_f(r->second_queue, r, look);
    softmetal_settle(10 * SECOND);
}

static void (*const races[])(race_stage *) = {race_of_handler_and_later_status, race_of_dispatchers,
                                              race_of_function_and_dispatcher, race_of_queues};
#define RACES (sizeof races / sizeof races[0])

static int run_race(const char *number)
{
    static race_stage r;
    alarm(50);
    stage_open(&r.s, SOFTMETAL_REAL, 64);
    r.first_queue = dispatch_queue_create("first", NULL);
    r.second_queue = dispatch_queue_create("second", NULL);
    races[atoi(number)](&r);
    dispatch_release(r.first_queue);
    dispatch_release(r.second_queue);
    stage_close(&r.s);
    return 0;
}

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

static void races_are_not_hidden(void **state)
{
    (void)state;
    if (!UNDER_TSAN) {
        print_message("skip: races are looked for with SANITIZE=thread\n");
        skip();
    }
    unsigned hidden = 0;
    for (unsigned i = 0; i < RACES; i++) {
        char text[16384];
        int result = run_case("--race", i, text, sizeof text);
        if (WIFEXITED(result) && WEXITSTATUS(result) != 0 && strstr(text, "data race")) continue;
        fprintf(stderr, "race %u: status %d, it said: %s\n", i, result, text);
        hidden++;
    }
    assert_int_equal(hidden, 0);
}

static void every_rule_has_a_case(void **state)
{
    (void)state;
    static const char *const names[] = {
#define NAME_OF_RULE(identifier, name, text) name,
        SM_RULES(NAME_OF_RULE)
#undef NAME_OF_RULE
    };
    for (unsigned r = 0; r < sizeof names / sizeof names[0]; r++) {
        bool found = strcmp(names[r], "internal") == 0; /* no program can cause it at will */
        for (unsigned i = 0; i < RULE_CASES; i++) found = found || strcmp(rule_cases[i].rule, names[r]) == 0;
        if (!found) fail_msg("rule %s has no case", names[r]);
    }
}

int main(int argc, char **argv)
{
    own_path = argv[0];
    if (argc == 3 && strcmp(argv[1], "--break") == 0) return break_rule(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--adder") == 0) return wait_for_adder(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--race") == 0) return run_race(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fill_reaches_memory),
        cmocka_unit_test(work_of_one_queue_keeps_its_order),
        cmocka_unit_test(handlers_run_before_the_wait_returns),
        cmocka_unit_test(times_are_ordered_and_durations_kept),
        cmocka_unit_test(a_full_queue_blocks_the_next_buffer),
        cmocka_unit_test(a_test_is_told_that_threads_are_blocked),
        cmocka_unit_test(references_last_until_the_end),
        cmocka_unit_test(a_committed_buffer_keeps_itself_alive),
        cmocka_unit_test(handlers_of_a_dropped_buffer_run_as_it_goes),
        cmocka_unit_test(a_global_block_stays_where_it_is),
        cmocka_unit_test(descriptors_labels_and_relations),
        cmocka_unit_test(a_failed_buffer_does_nothing_and_says_why),
        cmocka_unit_test(buffers_fail_as_softmetal_makes_it_of_the_drivers_number),
        cmocka_unit_test(the_likeliest_number_is_behind_a_code),
        cmocka_unit_test(errors_of_other_drivers_have_the_number_in_another_form_or_not_at_all),
        cmocka_unit_test(held_handlers_wait_and_lost_ones_never_run),
        cmocka_unit_test(the_queue_goes_on_while_handlers_are_delayed),
        cmocka_unit_test(status_may_follow_the_handlers),
        cmocka_unit_test(the_error_is_there_before_a_status_that_follows_the_handlers),
        cmocka_unit_test(a_buffer_is_scheduled_while_another_runs),
        cmocka_unit_test(a_hang_ends_with_unhang_or_removal),
        cmocka_unit_test(chaos_reorders_handlers_and_fails_buffers),
        cmocka_unit_test(independent_buffers_overlap),
        cmocka_unit_test(the_nth_creation_fails),
        cmocka_unit_test(hidden_selectors_are_not_answered),
        cmocka_unit_test(hidden_classes_are_not_found),
        cmocka_unit_test(a_twin_is_another_object_of_the_same_device),
        cmocka_unit_test(an_error_tells_of_the_encoders),
        cmocka_unit_test(the_states_of_encoders_follow_from_where_the_gpu_ended),
        cmocka_unit_test(a_test_chooses_the_states_of_encoders),
        cmocka_unit_test(what_is_said_of_the_encoders_may_be_spoilt),
        cmocka_unit_test(a_buffer_may_signal_and_then_fail),
        cmocka_unit_test(a_fault_behind_a_wait_is_not_due),
        cmocka_unit_test(a_copy_reaches_a_drawable),
        cmocka_unit_test(drawables_are_shown_at_pictures_of_the_display),
        cmocka_unit_test(a_layer_may_have_no_drawable),
        cmocka_unit_test(a_buffer_ends_in_this_order),
        cmocka_unit_test(a_poller_sees_the_work),
        cmocka_unit_test(a_slow_handler_holds_up_its_queue_and_no_other),
        cmocka_unit_test(two_latencies_lie_before_the_handlers),
        cmocka_unit_test(the_status_may_be_early),
        cmocka_unit_test(the_times_may_be_late),
        cmocka_unit_test(handlers_may_be_lost_and_statuses_follow_for_every_buffer),
        cmocka_unit_test(handlers_may_get_a_wrapper),
        cmocka_unit_test(blocks_may_be_released_after_the_wait),
        cmocka_unit_test(events_only_rise_and_wake),
        cmocka_unit_test(queues_meet_at_events),
        cmocka_unit_test(the_watchdog_ends_a_wait_for_ever),
        cmocka_unit_test(listeners_may_be_deaf_to_the_host),
        cmocka_unit_test(listeners_may_be_deaf_to_the_past),
        cmocka_unit_test(listeners_may_be_deaf_to_everything),
        cmocka_unit_test(the_device_may_be_deaf_to_the_host),
        cmocka_unit_test(waits_may_be_open),
        cmocka_unit_test(signals_may_be_early),
        cmocka_unit_test(signals_may_overtake),
        cmocka_unit_test(the_killed_may_signal),
        cmocka_unit_test(events_may_not_be_kept),
        cmocka_unit_test(handlers_may_run_backwards),
        cmocka_unit_test(handlers_may_be_called_twice),
        cmocka_unit_test(a_dealloc_may_be_silent),
        cmocka_unit_test(global_blocks_may_be_copied),
        cmocka_unit_test(a_status_may_be_autoreleased),
        cmocka_unit_test(uncommitted_buffers_may_be_free),
        cmocka_unit_test(places_may_come_early),
        cmocka_unit_test(a_library_may_know_every_name),
        cmocka_unit_test(an_unlock_may_look_again),
        cmocka_unit_test(a_listener_may_have_a_dispatch_queue),
        cmocka_unit_test(messages_are_counted),
        cmocka_unit_test(nil_answers_zero_and_arguments_arrive),
        cmocka_unit_test(hooks_see_the_programs_messages),
        cmocka_unit_test(kernels_run),
        cmocka_unit_test(compilation_fails_and_takes_time),
        cmocka_unit_test(each_transition_by_hand),
        cmocka_unit_test(a_handler_is_called_again),
        cmocka_unit_test(handlers_of_two_buffers_run_at_once),
        cmocka_unit_test(a_manual_buffer_lets_its_waiter_go_at_the_end),
        cmocka_unit_test(finish_queue_takes_them_in_order),
        cmocka_unit_test(finish_queue_outlives_the_last_reference),
        cmocka_unit_test(the_watchdog_comes_by_hand),
        cmocka_unit_test(a_test_can_ask_what_is_due),
        cmocka_unit_test(reset_ends_quirks_and_latencies),
        cmocka_unit_test(threads_share_a_queue),
        cmocka_unit_test(queues_pass_events_around),
        cmocka_unit_test(every_rule_has_a_case),
        cmocka_unit_test(one_at_a_time_has_a_lock),
        cmocka_unit_test(a_handler_under_lock_cannot_wait_for_a_thread_that_adds_one),
        cmocka_unit_test(handlers_may_run_under_a_lock),
        cmocka_unit_test(every_broken_rule_aborts),
        cmocka_unit_test(an_object_without_a_pool_aborts),
        cmocka_unit_test(a_lock_used_wrongly_aborts),
        cmocka_unit_test(another_metal_aborts),
        cmocka_unit_test(races_are_not_hidden),
    };
    return cmocka_run_group_tests_name("softmetal", tests, NULL, NULL);
}
