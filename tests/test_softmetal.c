/* test_softmetal.c - the software device itself: it behaves as softmetal.h says, and aborts where it must

   Plain C, as every program that softmetal is made for. For each rule that is broken the program runs itself again, and
   expects SIGABRT and the rule's name on stderr. Under ThreadSanitizer it also runs itself with races that the device
   must not hide. Metal 4 is in test_softmetal4.c. */
#include "softmetal_words.h"

#include <dlfcn.h>

extern void os_unfair_lock_lock(uint32_t *lock);
extern bool os_unfair_lock_trylock(uint32_t *lock);
extern void os_unfair_lock_unlock(uint32_t *lock);
extern void *MTLCopyAllDevices(void);
extern signed char class_respondsToSelector(void *cls, void *selector);
extern uint64_t dispatch_time(uint64_t when, int64_t delta);
extern void dispatch_after_f(uint64_t when, void *queue, void *context, void (*function)(void *));
extern void dispatch_retain(void *object);

static int set_up(void **state) { return !(*state = stage_open(*(const softmetal_clock *)*state)); }

static void *unretained_in(void *queue) { return metal_get(queue, "commandBufferWithUnretainedReferences"); }
static void *serial(void) { return dispatch_queue_create("q", NULL); }
static void nothing(void *context) { (void)context; }
static void count_up(void *context) { COUNT((unsigned *)context); }
static void *in_thread(void *(*body)(void *), void *argument)
{
    pthread_join(begin_thread(body, argument), NULL);
    return NULL;
}
/* Commits it, and brings it to its end. */
static void *run(stage *s, void *buffer)
{
    metal_commit(buffer);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish(buffer);
    metal_wait_until_completed(buffer);
    return buffer;
}
static void *error_of(stage *s, void *buffer) { return metal_get(run(s, buffer), "error"); }

/* -- how a command buffer ends ------------------------------------------------------------------------------------ */

static void work_reaches_memory_in_the_queues_order(void **state)
{
    stage *s = *state;
    void *a = memory_new(s->device, 4), *b = memory_new(s->device, 4), *first = buffer_in(s->queue), *last = first;
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000});
    assert_int_equal(metal_status(first), NOT_ENQUEUED);
    metal_enqueue(first);
    metal_enqueue(first);
    assert_int_equal(metal_status(first), ENQUEUED);
    for (unsigned char i = 1; i <= 10; i++) {
        void *blit;
        if (i > 1) last = buffer_in(s->queue);
        blit = metal_get(last, "blitCommandEncoder");
        metal_fill(blit, a, 1, 2, i);
        metal_copy(blit, a, 1, b, 2, 2);
        metal_do(blit, "endEncoding");
        if (i > 1) metal_commit(last);
    }
    assert_int_equal(bytes_of(b)[2], 0); /* nothing passes the one that is enqueued */
    metal_commit(first);
    metal_wait_until_completed(last);
    assert_int_equal(metal_status(last), COMPLETED);
    assert_null(metal_get(last, "error"));
    assert_memory_equal(bytes_of(a), ((unsigned char[4]){0, 10, 10, 0}), 4);
    assert_memory_equal(bytes_of(b), ((unsigned char[4]){0, 0, 10, 10}), 4);
}

/* 1: the times are there, 2: the status, 4: what the buffer refers to, 8: its place; 16: of each block that is gone. */
static void look_at_end(block *self, void *buffer)
{
    self->notes->found[self->number] = (metal_gpu_end(buffer) > 0) + 2u * (metal_status(buffer) == COMPLETED) +
                                       4u * (softmetal_live("event") == 1) +
                                       8u * (softmetal_outstanding(self->notes->queue) == 1) + 16u * self->notes->disposed;
}

static void a_buffer_ends_in_this_order(void **state)
{
    stage *s = *state;
    void *event = metal_get(s->device, "newEvent"), *pool = metal_pool_push(), *buffer = buffer_in(s->queue);
    metal_encode_signal(buffer, event, 1);
    metal_release(event);
    on_completed_do(buffer, &s->n, 1, look_at_end);
    on_completed_do(buffer, &s->n, 2, look_at_end);
    run(s, buffer);
    ORDER(&s->n, 1, 2);
    assert_int_equal(s->n.found[1], 15);
    assert_int_equal(s->n.found[2], s->clock == SOFTMETAL_MANUAL ? 15 : 15 + 16);
    assert_false(pthread_equal(s->n.thread, pthread_self()));
    assert_int_equal(softmetal_live("event") + softmetal_outstanding(s->queue), 0);
    metal_pool_pop(pool);
    settle(s);
    assert_int_equal(softmetal_live("command_buffer") + softmetal_live("block"), 0);
    assert_int_equal(s->n.disposed, 2);
}

/* Three buffers, the first of which has a handler that stays; the second one's status meanwhile. */
static unsigned long status_behind_a_slow_handler(stage *s)
{
    void *first = buffer_in(s->queue), *second = buffer_in(s->queue), *third = buffer_in(s->queue), *event = event_new(s->device);
    s->n.gated = true;
    metal_commit(on_completed(first, &s->n, 1));
    assert_true(comes_to(&s->n.inside, 1));
    metal_commit(second);
    metal_encode_signal(third, event, 1);
    metal_commit(third);
    assert_true(reaches(event, 1, 20000)); /* the GPU has ended with the second one: events go past */
    return metal_status(second);
}

static void a_slow_handler_delays_its_queue_and_no_other(void **state)
{
    stage *s = *state;
    assert_true(status_behind_a_slow_handler(s) < COMPLETED);
    run(s, buffer_in(mine(metal_queue_new(s->device, 1))));
    assert_true(softmetal_outstanding(s->queue) == 3 && GET(&s->n.count) == 0);
}

static void a_poller_sees_the_work(void **state)
{
    stage *s = *state;
    for (unsigned char i = 1; i <= 20; i++) {
        void *memory = memory_new(s->device, 64), *buffer = fill(buffer_in(s->queue), memory, i);
        metal_commit(buffer);
        while (metal_status(buffer) < COMPLETED)
            sched_yield();
        assert_int_equal(bytes_of(memory)[63], i);
    }
}

static void a_buffer_that_is_dropped_runs_its_handlers(void **state)
{
    stage *s = *state;
    for (int lost = 0; lost < 2; lost++) {
        void *pool = metal_pool_push(), *buffer = on_completed(buffer_in(s->queue), &s->n, 1);
        s->n.status = COMPLETED;
        if (lost) softmetal_lose_handlers(buffer);
        metal_pool_pop(pool);
        ORDER(&s->n, 1);
        assert_true(pthread_equal(s->n.thread, pthread_self()));
        assert_int_equal(s->n.status, lost ? COMPLETED : NOT_ENQUEUED);
        assert_int_equal(s->n.disposed, 1 + lost);
        assert_int_equal(softmetal_outstanding(s->queue), 0);
    }
}

static void references_last_until_the_end(void **state)
{
    stage *s = *state;
    void *memory = metal_buffer_new(s->device, 4), *queue = metal_queue_new(s->device, 1), *pool = metal_pool_push();
    void *wanted = mine(metal_get(metal__class("MTLCommandBufferDescriptor"), "new")), *buffer = buffer_in(queue);
    metal_commit(fill(buffer, memory, 2));
    assert_int_equal(softmetal_retain_count(memory), 2);
    metal_release(memory);
    metal_release(queue);
    metal_pool_pop(pool); /* Metal keeps the buffer, the buffer its queue */
    assert_int_equal(softmetal_live("queue") + softmetal_live("command_buffer") + softmetal_live("buffer"), 4);
    softmetal_finish(buffer);
    assert_int_equal(softmetal_live("queue") + softmetal_live("command_buffer") + softmetal_live("buffer"), 1);
    wanted = mine(metal_get(metal__class("MTLCommandBufferDescriptor"), "new"));
    SEND(void, (ID, signed char), wanted, "setRetainedReferences:", 0);
    SEND(void, (ID, unsigned long), wanted, "setErrorOptions:", 1ul);
    buffer = SEND(void *, (ID, void *), s->queue, "commandBufferWithDescriptor:", wanted);
    assert_true(metal_number(buffer, "errorOptions") == 1 && !(metal_number(buffer, "retainedReferences") & 255));
    assert_true(metal_get(buffer, "commandQueue") == s->queue && metal_get(buffer, "device") == s->device);
    metal_set_label(buffer, "name");
    assert_text(metal_get(buffer, "label"), "name");
    memory = memory_new(s->device, 4);
    fill(buffer, memory, 3);
    fill(unretained_in(s->queue), memory, 4);
    assert_int_equal(softmetal_retain_count(memory), 1);
    run(s, buffer);
    assert_int_equal(bytes_of(memory)[3], 3);
}

static double test_clock(void) { return 7; }

static void times_are_ordered_and_durations_kept(void **state)
{
    stage *s = *state;
    void *buffer = buffer_in(s->queue);
    double before = (double)now_ns() / 1e9, took;
    assert_true(metal_gpu_start(buffer) == 0 && metal_gpu_end(buffer) == 0);
    softmetal_set_duration(buffer, MS(5));
    run(s, buffer);
    took = metal_gpu_end(buffer) - metal_gpu_start(buffer);
    assert_true(before <= metal_gpu_start(buffer) && took >= 0.005 && took < 2);
    softmetal_set_gpu_clock(test_clock);
    buffer = run(s, buffer_in(s->queue));
    assert_true(metal_gpu_start(buffer) == 7 && metal_gpu_end(buffer) == 7);
}

static void *take_and_drop(void *user)
{
    stage *s = user;
    void *pool = metal_pool_push();
    (void)buffer_in(s->n.queue);
    COUNT(&s->n.found[0]);
    metal_pool_pop(pool);
    return NULL;
}

/* By hand a full queue waits as long as a handler runs: its end is near, and the place comes with it. */
static void a_full_queue_blocks_the_next_buffer(void **state)
{
    stage *s = *state;
    void *queue = s->n.queue = mine(metal_queue_new(s->device, 1)), *first = on_completed(buffer_in(queue), &s->n, 1);
    pthread_t threads[2];
    s->n.gated = true;
    metal_commit(first);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_complete(first), softmetal_begin_handler(first, 0);
    assert_false(softmetal_await_blocked(queue, 1, MS(1)));
    for (unsigned k = 0; k < 2; k++) {
        threads[k] = begin_thread(take_and_drop, s);
        assert_true(softmetal_await_blocked(queue, k + 1, SECONDS(20)));
    }
    assert_true(softmetal_blocked(queue) == 2 && softmetal_outstanding(queue) == 1 && GET(&s->n.found[0]) == 0);
    PUT(&s->n.open, 1);
    for (unsigned k = 0; k < 2; k++)
        pthread_join(threads[k], NULL);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish(first);
    assert_true(softmetal_blocked(queue) == 0 && softmetal_outstanding(queue) == 0);
    softmetal_set_quirks(&(softmetal_quirks){.full_queue_aborts = true}); /* there is room */
    (void)buffer_in(queue);
}

/* -- the manual clock --------------------------------------------------------------------------------------------- */

static void *wait_for_end(void *user)
{
    stage *s = user;
    metal_wait_until_completed(s->n.object);
    PUT(&s->n.found[0], 1);
    return NULL;
}

static void each_transition_by_hand(void **state)
{
    stage *s = *state;
    void *memory = memory_new(s->device, 4), *buffer = s->n.object = fill(buffer_in(s->queue), memory, 9);
    pthread_t waiter;
    on_completed(buffer, &s->n, 0);
    on_completed(buffer, &s->n, 1);
    assert_int_equal(softmetal_handler_count(buffer), 2);
    metal_commit(buffer);
    waiter = begin_thread(wait_for_end, s);
    assert_int_equal(metal_status(buffer), COMMITTED);
    softmetal_schedule(buffer);
    assert_true(metal_status(buffer) == SCHEDULED && bytes_of(memory)[0] == 0);
    softmetal_execute(buffer);
    assert_true(metal_status(buffer) == SCHEDULED && bytes_of(memory)[0] == 9);
    assert_ptr_equal(softmetal_first_in_line(s->queue), buffer);
    softmetal_complete(buffer);
    assert_null(softmetal_first_in_line(s->queue));
    assert_true(metal_status(buffer) == COMPLETED && s->n.count == 0);
    softmetal_run_handler(buffer, 1); /* in any order */
    softmetal_call_handler_again(buffer, 1);
    ORDER(&s->n, 1, 1);
    assert_true(GET(&s->n.found[0]) == 0 && softmetal_outstanding(s->queue) == 1);
    softmetal_run_handler(buffer, 0);
    pthread_join(waiter, NULL);
    assert_true(softmetal_outstanding(s->queue) == 0 && softmetal_live("block") == 2);
    softmetal_finish(buffer);
    assert_int_equal(softmetal_live("block"), 0);
    ORDER(&s->n, 1, 1, 0);
}

static void handlers_of_two_buffers_run_at_once(void **state)
{
    stage *s = *state;
    notes other = {.gated = true};
    void *first = on_completed(buffer_in(s->queue), &s->n, 1), *second = on_completed(buffer_in(s->queue), &other, 2);
    s->n.gated = true;
    metal_commit(first);
    metal_commit(second);
    softmetal_complete(second); /* they share nothing: in any order */
    softmetal_complete(first);
    softmetal_begin_handler(first, 0);
    softmetal_begin_handler(second, 0);
    assert_true(comes_to(&s->n.inside, 1) && comes_to(&other.inside, 1));
    PUT(&other.open, 1);
    softmetal_join_handler(second, 0);
    assert_true(other.count == 1 && GET(&s->n.count) == 0);
    PUT(&s->n.open, 1);
    settle(s); /* `other` goes */
}

static void a_test_can_ask_what_is_due(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device), *first = on_completed(buffer_in(s->queue), &s->n, 1), *second = buffer_in(s->queue);
    softmetal_due due = SOFTMETAL_FAULT_DUE;
#define DUE(buffer, expected) assert_int_equal(softmetal_what_is_due(buffer), SOFTMETAL_##expected##_DUE)
    metal_encode_signal(first, event, 1);
    metal_encode_wait(first, event, 1);
    metal_encode_wait(second, event, 2);
    DUE(first, NOTHING);
    metal_commit(first);
    metal_commit(second);
    DUE(first, COMPLETE);
    DUE(second, NOTHING); /* they share an event */
    assert_ptr_equal(softmetal_first_in_line(s->queue), first);
    softmetal_complete(first);
    DUE(first, HANDLERS);
    DUE(second, WAIT);
    assert_ptr_equal(softmetal_first_in_line(s->queue), second);
    assert_ptr_equal(softmetal_due_at(s->queue, 1, &due), first);
    assert_int_equal(due, SOFTMETAL_HANDLERS_DUE);
    assert_true(softmetal_last_buffer(s->queue) == second && softmetal_buffer_at(s->queue, 1) == first);
    assert_true(!softmetal_buffer_at(s->queue, 2) && !softmetal_due_at(s->queue, 2, &due));
    softmetal_finish(first);
    DUE(first, NOTHING);
    softmetal_fail(second, NULL, 1, NULL);
    DUE(second, FAULT);
    softmetal_complete(second);
    DUE(second, NOTHING);
    assert_int_equal(metal_status(second), FAILED);
}

static void let_go(block *self, void *buffer) { (void)buffer, metal_release(self->notes->object); }

static void a_queue_is_finished_in_order_and_reset_loses_the_rest(void **state)
{
    stage *s = *state;
    softmetal_quirks quirks;
    softmetal_timing timing;
    void *pool = metal_pool_push(), *queue = s->n.object = metal_queue_new(s->device, 8), *left;
    for (int i = 1; i <= 3; i++) /* the third lets go of the last reference to the queue */
        metal_commit(on_completed_do(buffer_in(queue), &s->n, i, i == 3 ? let_go : NULL));
    metal_pool_pop(pool);
    softmetal_finish_queue(queue);
    ORDER(&s->n, 1, 2, 3);
    assert_int_equal(softmetal_live("queue"), 1);
    left = on_completed(buffer_in(s->queue), &s->n, 4);
    metal_commit(left);
    softmetal_complete(left);
    softmetal_set_quirks(&(softmetal_quirks){.lost_handlers = true});
    set_watchdog(1);
    softmetal_reset();
    ORDER(&s->n, 1, 2, 3);
    assert_int_equal(s->n.disposed, 4);
    softmetal_get_quirks(&quirks);
    softmetal_get_timing(&timing);
    assert_memory_equal(&quirks, &(softmetal_quirks){0}, sizeof quirks);
    assert_int_equal(timing.watchdog_ns, SECONDS(5));
}

static void the_watchdog_ends_a_wait(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device), *buffer = buffer_in(s->queue), *behind = buffer_in(s->queue);
    metal_encode_signal(buffer, event, 1);
    metal_encode_wait(buffer, event, 3);
    metal_encode_signal(buffer, event, 9);
    metal_encode_wait(behind, event, 1);
    set_watchdog(MS(30));
    metal_commit(buffer);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_time_out(buffer);
    run(s, behind);
    assert_int_equal(code_of(metal_get(buffer, "error")), 2);
    assert_int_equal(metal_event_value(event), 1);
    assert_int_equal(metal_status(behind), COMPLETED);
}

/* -- faults ------------------------------------------------------------------------------------------------------- */

static void *failed_in(stage *s, unsigned reason, const char *own)
{
    void *buffer = buffer_in(s->queue);
    softmetal_fail_as(buffer, reason, own);
    return error_of(s, buffer);
}

static void the_drivers_number_makes_the_error(void **state)
{
    stage *s = *state;
    for (size_t i = 0; i < LENGTH(made_of_numbers); i++) {
        const struct made *made = &made_of_numbers[i];
        void *error = failed_in(s, made->number, NULL);
        char said[200];
        snprintf(said, sizeof said, "%s (%08x:%s%s)", made->words, made->number,
                 made->name ? "kIOGPUCommandBufferCallbackError" : "", made->name ? made->name : made->words);
        assert_text(metal_get(error, "domain"), "MTLCommandBufferErrorDomain");
        assert_text(metal_get(error, "localizedDescription"), said);
        assert_text(metal_get(below(error), "domain"), "IOGPUCommandQueueErrorDomain");
        assert_true(code_of(error) == made->code && code_of(below(error)) == made->number);
    }
    assert_text(metal_get(failed_in(s, SOFTMETAL_HANG, "own words"), "localizedDescription"), "own words");
}

static void metals_code_stands_for_a_number(void **state)
{
    static const long rows[][2] = {{1, SOFTMETAL_INTERNAL}, {2, 2}, {3, 11}, {4, 4}, {7, 6}, {8, 8}, {9, 9}, {10, -1}, {12, -1}};
    stage *s = *state;
    void *error, *buffer = buffer_in(s->queue);
    softmetal_fail(buffer, "own", 2, "text");
    error = error_of(s, buffer);
    assert_true(code_of(error) == 2 && !below(error));
    assert_text(metal_get(error, "domain"), "own");
    assert_text(metal_get(error, "localizedDescription"), "text");
    for (size_t i = 0; i < LENGTH(rows); i++) {
        buffer = buffer_in(s->queue);
        softmetal_fail(buffer, NULL, rows[i][0], NULL);
        error = error_of(s, buffer);
        assert_true(code_of(error) == rows[i][0] && code_of(below(error)) == rows[i][1]);
    }
    softmetal_fail_next(2, 9);
    assert_int_equal(code_of(error_of(s, buffer_in(s->queue))), 9);
    softmetal_fail_next_as(1, SOFTMETAL_HANG);
    assert_int_equal(code_of(below(error_of(s, buffer_in(s->queue)))), SOFTMETAL_HANG);
    assert_null(error_of(s, buffer_in(s->queue)));
}

static void a_failed_buffer_does_what_comes_before_its_fault(void **state)
{
    stage *s = *state;
    for (unsigned n = 0; n <= 3; n++) { /* signals before the fault; 3 are more than there are */
        void *event = event_new(s->device), *memory = memory_new(s->device, 4), *buffer = buffer_in(s->queue);
        metal_encode_signal(buffer, event, 1);
        metal_encode_signal(fill(buffer, memory, 1), event, 2);
        fill(buffer, memory, 2);
        if (n == 2) metal_encode_wait(buffer, event, 5); /* not met */
        if (n != 1) softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        softmetal_fail_after_signals(buffer, n);
        assert_int_equal(code_of(error_of(s, buffer)), n == 1 ? 1 : 3);
        assert_int_equal(metal_event_value(event), n < 3 ? n : 2);
        assert_int_equal(bytes_of(memory)[0], n < 2 ? 0 : n - 1);
    }
}

/* Of three encoders: "", "1" and "2", the first with a signal behind it; or, with a wait, that one before the third. */
static void *buffer_with_encoders(stage *s, bool waits)
{
    void *wanted = mine(metal_get(metal__class("MTLCommandBufferDescriptor"), "new")), *event = event_new(s->device), *buffer;
    SEND(void, (ID, unsigned long), wanted, "setErrorOptions:", 1ul);
    buffer = SEND(void *, (ID, void *), s->queue, "commandBufferWithDescriptor:", wanted);
    for (int k = 0; k < 3; k++) {
        if (k == 1) metal_encode_signal(buffer, event, 1);
        if (k == 2 && waits) metal_encode_wait(buffer, event, 5);
        void *encoder = metal_get(buffer, "blitCommandEncoder");
        if (k > 0) metal_set_label(encoder, k == 1 ? "1" : "2");
        metal_fill(encoder, memory_new(s->device, 4), 0, 4, 1);
        metal_do(encoder, "endEncoding");
    }
    return buffer;
}
static void *encoders_of(void *buffer)
{
    return user_info(metal_get(buffer, "error"), "MTLCommandBufferEncoderInfoErrorKey");
}
static void *object_at(void *array, unsigned long k) { return SEND(void *, (ID, unsigned long), array, "objectAtIndex:", k); }

static void an_error_tells_of_the_encoders(void **state)
{
    enum { FAULTY, AFTER_SIGNAL, TIMED_OUT, CHOSEN, REMOVED };
    static const long states[][3] = {{4, 3, 3}, {1, 4, 3}, {1, 1, 3}, {9, 0, 3}, {2, 3, 3}};
    stage *s = *state;
    for (int how = FAULTY; how <= REMOVED; how++) {
        void *buffer = buffer_with_encoders(s, how == TIMED_OUT);
        if (how == FAULTY || how == CHOSEN) softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        if (how == CHOSEN) softmetal_set_encoder_states(buffer, (const long[]){9, 0}, 2);
        if (how == AFTER_SIGNAL) softmetal_fail_after_signals(buffer, 1);
        metal_commit(buffer);
        if (how == REMOVED) softmetal_remove_device(s->device);
        if (how == TIMED_OUT) softmetal_time_out(buffer);
        softmetal_finish(buffer);
        assert_int_equal(metal_number(encoders_of(buffer), "count"), 3);
        for (unsigned k = 0; k < 3; k++) {
            void *info = object_at(encoders_of(buffer), k);
            assert_int_equal(metal_number(info, "errorState"), states[how][k]);
            assert_text(metal_get(info, "label"), k == 0 ? "" : k == 1 ? "1" : "2");
        }
    }
    void *plain = buffer_in(s->queue);
    assert_int_equal(code_of(error_of(s, plain)), 11);
    assert_null(encoders_of(plain)); /* which the program did not ask for */
}

static void handlers_are_held_and_lost(void **state)
{
    stage *s = *state;
    void *buffers[4]; /* held, next, lost, left */
    for (int i = 0; i < 4; i++)
        buffers[i] = on_completed(buffer_in(s->queue), &s->n, i);
    softmetal_hold_handlers(buffers[0]);
    softmetal_lose_handlers(buffers[2]);
    softmetal_hold_handlers(buffers[3]);
    for (int i = 0; i < 4; i++)
        metal_commit(buffers[i]);
    metal_wait_until_completed(buffers[2]);
    assert_true(metal_status(buffers[0]) == COMPLETED && metal_status(buffers[2]) == COMPLETED);
    ORDER(&s->n, 1);
    softmetal_deliver(buffers[0]);
    metal_wait_until_completed(buffers[0]);
    settle(s);
    softmetal_reset();
    ORDER(&s->n, 1, 0);
    assert_int_equal(s->n.disposed, 4);
}

static void a_hang_ends_with_unhang_or_removal(void **state)
{
    stage *s = *state;
    void *buffer = buffer_in(s->queue), *second = buffer_in(s->queue), *third = buffer_in(s->queue), *event = event_new(s->device);
    softmetal_hang(buffer);
    metal_commit(buffer);
    assert_false(softmetal_settle(MS(5)));
    softmetal_unhang(buffer);
    metal_wait_until_completed(buffer);
    assert_int_equal(metal_status(buffer), COMPLETED);
    softmetal_hang(second);
    metal_encode_signal(second, event, 1);
    metal_encode_wait(third, event, 1);
    metal_commit(second);
    metal_commit(third);
    softmetal_remove_device(s->device);
    metal_wait_until_completed(third);
    assert_true(code_of(metal_get(second, "error")) == 11 && code_of(metal_get(third, "error")) == 11);
    assert_int_equal(metal_event_value(event), 0);
    assert_int_equal(code_of(error_of(s, buffer_in(s->queue))), 11);
    softmetal_reset(); /* it is back */
    assert_null(error_of(s, buffer_in(s->queue)));
}

static void *layer_of(stage *s, unsigned long side) { return mine(metal_layer_new(s->device, side, side)); }
static void *library_of(stage *s, const char *source)
{
    return mine(SEND(void *, (ID, void *, void *, void **), s->device, "newLibraryWithSource:options:error:", text(source), NULL,
                     NULL));
}
static void *function_of(void *library, const char *name)
{
    return mine(SEND(void *, (ID, void *), library, "newFunctionWithName:", text(name)));
}
static void *create(stage *s, unsigned which)
{
    switch (which) {
    case 0: return mine(metal_device_new());
    case 1: return mine(MTLCopyAllDevices());
    case 2: return mine(metal_queue_new(s->device, 2));
    case 3: return buffer_in(s->queue);
    case 4: return event_new(s->device);
    case 5: return mine(metal_get(s->device, "newEvent"));
    case 6: return listener_new();
    case 7: return memory_new(s->device, 4);
    case 8: return unretained_in(s->queue);
    case 9: return metal_next_drawable(layer_of(s, 2));
    case 10: return library_of(s, "kernel void add(");
    case 11: return function_of(library_of(s, "kernel void add("), "add");
    default: return mine(metal_pipeline_new(s->device, "kernel void add(", "add", NULL, 0));
    }
}

static void the_nth_creation_fails(void **state)
{
    stage *s = *state;
    void *buffer = buffer_in(s->queue);
    for (unsigned which = 0; which <= 12; which++) {
        unsigned own = which <= 10 ? 1 : which - 9;
        softmetal_fail_creation(0, false);
        assert_non_null(create(s, which));
        assert_int_equal(softmetal_creations(), own);
        softmetal_fail_creation(own, which % 2);
        assert_null(create(s, which));
        assert_true((create(s, which) == NULL) == which % 2);
    }
    softmetal_fail_creation(1, false);
    assert_null(metal_get(buffer, "blitCommandEncoder"));
}

static void what_is_hidden_is_not_there(void **state)
{
    static const char hidden[] = "commandBufferWithDescriptor:";
    stage *s = *state;
    void *cls = metal_get(s->queue, "class");
    assert_true(responds(s->queue, hidden) && class_respondsToSelector(cls, metal__sel(hidden)));
    softmetal_hide_selector(hidden);
    softmetal_hide_class("MTL4CommitOptions");
    assert_false(responds(s->queue, hidden) || class_respondsToSelector(cls, metal__sel(hidden)));
    assert_true(class_respondsToSelector(cls, metal__sel("commandBuffer")));
    assert_true(!metal__class("MTL4CommitOptions") && metal__class("MTLCommandBufferDescriptor"));
    softmetal_reset();
    assert_true(responds(s->queue, hidden) && metal__class("MTL4CommitOptions"));
}

static uint64_t registry(void *device) { return METAL__AS0(uint64_t)(device, metal__sel("registryID")); }

static void there_are_other_devices(void **state)
{
    stage *s = *state;
    void *other = mine(softmetal_new_device()), *twin = mine(softmetal_new_twin(s->device)), *list = mine(MTLCopyAllDevices());
    assert_ptr_equal(mine(metal_device_new()), s->device);
    assert_true(metal_number(list, "count") == 1 && object_at(list, 0) == s->device);
    assert_true(registry(other) != registry(s->device));
    assert_true(twin != s->device && registry(twin) == registry(s->device));
}

static void chance_fails_reorders_and_overlaps(void **state)
{
    stage *s = *state;
    void *first = on_completed(buffer_in(s->queue), &s->n, 1), *second = on_completed(buffer_in(s->queue), &s->n, 2), *next;
    softmetal_set_chaos(&(softmetal_chaos){.fail_per_mille = 1000, .late_handler_per_mille = 1000});
    softmetal_hang(first);
    metal_commit(first);
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000});
    metal_commit(second);
    metal_wait_until_completed(second); /* while the first one hangs */
    softmetal_hold_handlers(first);
    softmetal_unhang(first);
    softmetal_set_chaos(&(softmetal_chaos){0});
    next = run(s, on_completed(buffer_in(s->queue), &s->n, 3)); /* passes the late one */
    softmetal_deliver(first);
    metal_wait_until_completed(first);
    ORDER(&s->n, 2, 3, 1);
    assert_true(code_of(metal_get(first, "error")) == 1 && metal_status(next) == COMPLETED);
}

static void latencies_lie_where_they_should(void **state)
{
    enum { SCHEDULE, EXECUTE, NOTIFY, HANDLER };
    stage *s = *state;
    for (int which = SCHEDULE; which <= HANDLER; which++) {
        const softmetal_range some = {MS(30), MS(30)}, none = {0, 0};
        void *buffer = on_completed(buffer_in(s->queue), &s->n, 1);
        uint64_t start = now_ns(), ended;
        softmetal_timing timing;
        softmetal_get_timing(&timing);
        timing.schedule = which == SCHEDULE ? some : none;
        timing.execute = which == EXECUTE ? some : none;
        timing.notify = which == NOTIFY ? some : none;
        timing.handler = which == HANDLER ? some : none;
        softmetal_set_timing(&timing);
        metal_commit(buffer);
        while (metal_status(buffer) < COMPLETED)
            sched_yield();
        ended = now_ns();
        metal_wait_until_completed(buffer);
        assert_true(which == HANDLER ? now_ns() - ended >= MS(29) : ended - start >= MS(30));
        assert_true((which == EXECUTE) == (metal_gpu_end(buffer) - metal_gpu_start(buffer) >= 0.03));
    }
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static unsigned heard(stage *s)
{
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    return GET(&s->n.count);
}

static void events_rise_and_wake(void **state)
{
    stage *s = *state;
    softmetal_timing timing;
    void *event = event_new(s->device), *listener = listener_new(), *buffer = buffer_in(s->queue);
    metal_event_signal(event, 5);
    metal_event_signal(event, 3);
    assert_int_equal(metal_event_value(event), 5);
    assert_false(reaches(event, 6, 5));
    on_event(event, listener, 9, &s->n, 9);
    on_event(event, listener, 7, &s->n, 7);
    on_event(event, listener, 9, &s->n, 10);
    assert_int_equal(heard(s), 0);
    metal_encode_signal(buffer, event, 8);
    run(s, buffer);
    assert_int_equal(heard(s), 1);
    metal_event_signal(event, 10);
    assert_int_equal(heard(s), 3);
    ORDER(&s->n, 7, 9, 10);
    softmetal_get_timing(&timing);
    timing.event_listener = (softmetal_range){MS(20), MS(20)};
    softmetal_set_timing(&timing);
    uint64_t start = now_ns();
    on_event(event, listener, 10, &s->n, 11); /* reached already */
    assert_int_equal(heard(s), 4);
    assert_true(now_ns() - start >= MS(20) && s->n.value == 10);
    on_event(event, listener, 99, &s->n, 12); /* goes with the event */
}

static void queues_meet_at_events(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device), *memory = memory_new(s->device, 4);
    void *first = buffer_in(s->queue), *second = buffer_in(mine(metal_queue_new(s->device, 8)));
    metal_encode_wait(first, event, 1);
    metal_encode_signal(fill(first, memory, 2), event, 2);
    metal_encode_signal(fill(second, memory, 1), event, 1);
    metal_commit(first);
    run(s, second);
    metal_wait_until_completed(first);
    assert_true(bytes_of(memory)[3] == 2 && metal_event_value(event) == 2);
}

static void a_listener_may_have_a_dispatch_queue(void **state)
{
    stage *s = *state;
    void *queue = serial(), *event = event_new(s->device), *listener = listener_on(queue);
    dispatch_release(queue); /* which the listener keeps */
    softmetal_set_dispatch_threads(0);
    on_event(event, listener, 1, &s->n, 1);
    on_event(event, listener, 1, &s->n, 2);
    metal_event_signal(event, 1);
    assert_false(softmetal_settle_listeners(MS(2)));
    softmetal_set_dispatch_threads(1);
    assert_int_equal(heard(s), 2);
    ORDER(&s->n, 1, 2);
}

/* -- kernels, layers, messages ------------------------------------------------------------------------------------ */

static void add_kernel(void *user, const softmetal_kernel_args *args)
{
    unsigned char *to = args->buffers[1];
    COUNT((unsigned *)user);
    *to = (unsigned char)(*(unsigned char *)args->buffers[0] + args->grid[0] * args->grid[1] * args->grid[2]);
    assert_true(args->lengths[0] == 2 && args->lengths[1] == 5 && !args->buffers[2]);
}

static void kernels_run(void **state)
{
    stage *s = *state;
    unsigned ran = 0;
    char message[100];
    void *memory = memory_new(s->device, 8), *other = memory_new(s->device, 8), *buffer = buffer_in(s->queue), *pipeline, *compute;
    unsigned char bytes[2] = {40, 0};
    softmetal_set_kernel("add", add_kernel, &ran, MS(5));
    softmetal_set_compile_time(MS(10), 0);
    uint64_t start = now_ns();
    pipeline = mine(metal_pipeline_new(s->device, "kernel void none (\nkernel void add(", "add", NULL, 0));
    assert_true(now_ns() - start >= MS(10) && softmetal_compiles() == 1);
    assert_null(function_of(library_of(s, "kernel void add("), "other"));
    assert_null(metal_pipeline_new(s->device, "#error", "add", message, sizeof message));
    assert_string_equal(message, "program_source: error: #error");
    compute = metal_get(buffer, "computeCommandEncoder");
    metal_set_pipeline(compute, pipeline);
    metal_set_bytes(compute, bytes, 2, 0);
    bytes[0] = 0;
    metal_set_buffer(compute, memory, 3, 1);
    metal_dispatch(compute, (metal_size){2, 1, 1}, (metal_size){1, 1, 1});
    metal_set_buffer(compute, other, 3, 1);
    SEND(void, (ID, metal_size, metal_size), compute, "dispatchThreads:threadsPerThreadgroup:", ((metal_size){3, 1, 1}),
         ((metal_size){1, 1, 1}));
    metal_do(compute, "endEncoding");
    run(s, buffer);
    assert_true(ran == 2 && bytes_of(memory)[3] == 42 && bytes_of(other)[3] == 43);
    assert_true(metal_gpu_end(buffer) - metal_gpu_start(buffer) >= 0.01);
}

typedef struct region { metal_size at, size; } region;
static unsigned char pixel_of(void *drawable, unsigned long x, unsigned long y)
{
    unsigned char pixel[4];
    SEND(void, (ID, void *, unsigned long, region, unsigned long), metal_get(drawable, "texture"),
         "getBytes:bytesPerRow:fromRegion:mipmapLevel:", pixel, 4ul, ((region){{x, y, 0}, {1, 1, 1}}), 0ul);
    return pixel[0];
}
static double shown_at(void *drawable) { return METAL__AS0(double)(drawable, metal__sel("presentedTime")); }
static double screen(void *user, void *drawable, double seconds)
{
    (void)drawable;
    unsigned shown = COUNT((unsigned *)user);
    return shown == 2 ? 0 : shown == 3 ? -1 : seconds;
}
/* A drawable that the buffer of its own presents, with a time where the message takes one. */
static void *present(stage *s, void *layer, int number, const char *message, double seconds)
{
    void *drawable = metal_next_drawable(layer), *buffer = buffer_in(s->queue), *blit = metal_get(buffer, "blitCommandEncoder");
    void *memory = memory_new(s->device, 16);
    block b = stack_block(&s->n, number, NULL);
    bytes_of(memory)[12] = 77;
    metal_copy_to_drawable(blit, memory, 2, 2, drawable);
    metal_do(blit, "endEncoding");
    SEND(void, (ID, void *), drawable, "addPresentedHandler:", &b);
    SEND(void, (ID, void *, double), buffer, message, drawable, seconds);
    run(s, buffer);
    return drawable;
}

static void drawables_are_shown_at_pictures_of_the_display(void **state)
{
    stage *s = *state;
    void *layer = layer_of(s, 2), *pool = metal_pool_push(), *drawables[3];
    unsigned shown = 0;
    softmetal_set_screen(screen, &shown);
    for (int i = 0; i < 3; i++)
        drawables[i] = present(s, layer, i, "presentDrawable:", 0);
    assert_true(pixel_of(drawables[0], 1, 1) == 77 && pixel_of(drawables[0], 0, 1) == 0);
    ORDER(&s->n, 0, 1); /* the third one's never runs */
    assert_true(shown_at(drawables[0]) > 0 && shown_at(drawables[1]) == 0 && shown_at(drawables[2]) == 0);
    assert_null(metal_next_drawable(layer)); /* after a second: all three are in use */
    metal_pool_pop(pool);
    assert_null(metal_next_drawable(layer_of(s, 0)));
    softmetal_set_screen(NULL, NULL);
    drawables[0] = present(s, layer, 0, "presentDrawable:", 0);
    drawables[1] = present(s, layer, 1, "presentDrawable:atTime:", shown_at(drawables[0]) + 0.05);
    drawables[2] = present(s, layer, 2, "presentDrawable:afterMinimumDuration:", 0.05);
    for (int i = 0; i < 2; i++) /* the next of 60 pictures in a second, or, on a busy machine, a later one */
        assert_true(shown_at(drawables[i + 1]) - shown_at(drawables[i]) > 0.0499);
}

static stage *hooked;
static char saw[300];
static void saw_it(const char *before, const char *what)
{
    snprintf(saw + strlen(saw), sizeof saw - strlen(saw), "%s%s ", before, what);
}
static void hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    assert_true(user == hooked && object);
    (void)metal_status(hooked->n.object); /* is not seen */
    saw_it(phase == SOFTMETAL_BEFORE ? "<" : ">", selector);
}
static void note_before(const char *name) { saw_it("", name); }

static void hooks_and_counters_see_the_programs_messages(void **state)
{
    stage *s = hooked = *state;
    void *event = event_new(s->device), *buffer = s->n.object = buffer_in(s->queue);
    uint64_t all = softmetal_messages(), own = softmetal_thread_messages();
    saw[0] = 0;
    softmetal_set_message_hook(hook, s);
    (void)metal_status(buffer);
    metal_commit(buffer);
    (void)metal_event_value(event);
    metal_event_signal(event, 1);
    (void)metal_number(event, "hash");
    softmetal_set_message_hook(NULL, NULL);
    assert_string_equal(saw, "<status >status <commit >commit <signaledValue >signaledValue <setSignaledValue: "
                             ">setSignaledValue: <hash ");
    assert_true(softmetal_message_count("commit") == 1 && softmetal_message_count("status") == 1 + 9); /* 9: of the hook */
    assert_true(softmetal_messages() - all == 5 + 9 && softmetal_thread_messages() - own == 5 + 9);
    saw[0] = 0;
    softmetal_before = note_before;
    void *pool = metal_pool_push();
    metal_release(metal_retain(event));
    metal_pool_pop(pool);
    (void)metal_status(buffer);
    softmetal_before = NULL;
    assert_string_equal(saw, "objc_release objc_autoreleasePoolPop objc_msgSend ");
    softmetal_finish(buffer);
    softmetal_reset();
    assert_int_equal(softmetal_messages() + softmetal_message_count("commit"), 0);
}

static void a_witness_tells_nil_answers_zero_and_threads_can_be_pinned(void **state)
{
    stage *s = *state;
    unsigned ended = 0;
    void *witness = softmetal_new_witness(count_up, &ended), *buffer = buffer_in(s->queue);
    metal_release(metal_retain(witness));
    assert_int_equal(ended, 0);
    metal_release(witness);
    assert_int_equal(ended, 1);
    assert_true(!metal_get(NULL, "device") && metal_gpu_end(NULL) == 0);
    metal_release(NULL);
#ifdef __linux__
    uint64_t used = softmetal_engine_cpu_ns();
    softmetal_set_duration(buffer, 190000); /* spun */
    assert_true(softmetal_pin(0));
    run(s, buffer);
    assert_true(softmetal_engine_cpu_ns() > used && !softmetal_pin(100000) && softmetal_pin(-1));
#endif
}

/* -- libdispatch, and the lock ------------------------------------------------------------------------------------ */

typedef struct gate {
    unsigned inside, most, passed, open; /* atomic */
} gate;

static void pass(void *context)
{
    gate *g = context;
    unsigned inside = COUNT(&g->inside), most = GET(&g->most);
    while (inside > most && !__atomic_compare_exchange_n(&g->most, &most, inside, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    while (!GET(&g->open))
        sleep_ms(1);
    __atomic_sub_fetch(&g->inside, 1, __ATOMIC_SEQ_CST);
    COUNT(&g->passed);
}

typedef struct tally {
    uint32_t lock;
    void *queue;
    unsigned count, next; /* plain */
} tally;
static void tally_up(void *context) { ((tally *)context)->count++; }
static void *give(void *context)
{
    for (int i = 0; i < 500; i++)
        dispatch_async_f(((tally *)context)->queue, context, tally_up);
    return NULL;
}
static struct item { tally *t; unsigned number; } items[200];
static void expect_next(void *context)
{
    struct item *item = context;
    if (item->number == item->t->next) item->t->next++;
}

static void a_serial_queue_runs_one_function_at_a_time_in_order(void **state)
{
    tally t = {.queue = serial()};
    gate g = {0, 0, 0, 0};
    pthread_t givers[3];
    (void)state;
    for (int i = 0; i < 3; i++)
        givers[i] = begin_thread(give, &t);
    for (unsigned i = 0; i < LENGTH(items); i++) {
        items[i] = (struct item){&t, i};
        dispatch_async_f(t.queue, &items[i], expect_next);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(givers[i], NULL);
    for (int i = 0; i < 3; i++)
        dispatch_async_f(t.queue, &g, pass);
    assert_true(comes_to(&g.inside, 1));
    sleep_ms(5);
    PUT(&g.open, 1);
    dispatch_retain(t.queue);
    dispatch_release(t.queue);
    dispatch_release(t.queue); /* what is pending runs all the same */
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_true(g.most == 1 && t.count == 1500 && t.next == LENGTH(items));
    assert_int_equal(softmetal_dispatches(), 1500 + LENGTH(items) + 3);
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
}

static void queues_run_at_once_as_far_as_there_are_workers(void **state)
{
    void *global = dispatch_get_global_queue(0, 0), *queue = serial();
    (void)state;
    for (unsigned most = 2; most <= SOFTMETAL_DISPATCH_THREADS; most *= 32) {
        gate g = {0, 0, 0, 0};
        softmetal_set_dispatch_threads(most);
        dispatch_async_f(queue, &g, pass);
        for (unsigned i = 0; i < most; i++)
            dispatch_async_f(global, &g, pass);
        assert_true(comes_to(&g.inside, most));
        assert_false(softmetal_dispatched(MS(2)));
        PUT(&g.open, 1);
        assert_true(softmetal_dispatched(SECONDS(20)));
        assert_true(g.most == most && g.passed == most + 1);
    }
    dispatch_release(global);
    dispatch_release(global); /* it does not count */
    assert_true(!dispatch_get_global_queue(3, 0) && !dispatch_get_global_queue(0, 1));
    dispatch_release(queue);
}

static void note_class(void *context) { *(unsigned *)context = softmetal_dispatch_qos(NULL); }

static void a_queue_has_its_class_of_service(void **state)
{
    void *attribute = dispatch_queue_attr_make_with_qos_class(NULL, 0x19, -1), *queue = dispatch_queue_create("q", attribute);
    unsigned in_function = 0;
    (void)state;
    assert_ptr_equal(dispatch_queue_attr_make_with_qos_class(attribute, 5, 0), attribute); /* there is no such class */
    assert_ptr_equal(dispatch_queue_attr_make_with_qos_class(attribute, 0x21, 1), attribute);
    dispatch_async_f(queue, &in_function, note_class);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_true(softmetal_dispatch_qos(queue) == 0x19 && in_function == 0x19);
    dispatch_release(queue);
}

static void note_time(void *context) { PUT((uint64_t *)context, now_ns()); }

static void timers_come_late_and_by_themselves(void **state)
{
    void *queue = serial();
    uint64_t start = now_ns(), came[2] = {0, 0};
    (void)state;
    assert_true(dispatch_time(UINT64_MAX, -5) == UINT64_MAX && dispatch_time(100, INT64_MAX) == UINT64_MAX);
    assert_true(dispatch_time(100, -200) == 1 && dispatch_time(100, 5) == 105);
    dispatch_after_f(dispatch_time(0, (int64_t)MS(30)), queue, &came[0], note_time);
    dispatch_after_f(dispatch_time(0, (int64_t)MS(10)), queue, &came[1], note_time);
    assert_int_equal(softmetal_timers_armed(), 2);
    for (int i = 0; i < 20000 && softmetal_timers() > 0; i++)
        sleep_ms(1);
    assert_true(softmetal_settle(SECONDS(20)));
    assert_true(came[1] - start >= MS(11) && came[0] - start >= MS(33));
    softmetal_set_clock(SOFTMETAL_MANUAL);
    PUT(&came[0], 0);
    dispatch_after_f(dispatch_time(0, 1), queue, &came[0], note_time); /* at softmetal_reset */
    sleep_ms(5);
    assert_true(softmetal_settle(SECONDS(20)));
    assert_true(GET(&came[0]) == 0 && softmetal_timers() == 1);
    softmetal_reset();
    assert_true(came[0] > 0 && softmetal_timers() + softmetal_timers_armed() == 0);
    dispatch_release(queue);
}

static void wait_in_function(void *user) { wait_for_end(user); }

/* A function that waits for a buffer of the manual clock, and what is behind it, do not end by themselves. */
static void what_waits_for_the_test_is_not_waited_for(void **state)
{
    stage *s = *state;
    tally t = {.queue = serial()};
    s->n.object = buffer_in(s->queue);
    metal_commit(s->n.object);
    dispatch_async_f(t.queue, s, wait_in_function);
    dispatch_async_f(t.queue, &t, tally_up);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(GET(&s->n.found[0]), 0);
    softmetal_finish(s->n.object);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_true(GET(&s->n.found[0]) == 1 && t.count == 1);
    dispatch_release(t.queue);
}

static void what_the_system_made_is_left_to_the_system(void **state)
{
    void *(*system_create)(const char *, void *), *queue;
    unsigned count = 0;
    (void)state;
    *(void **)&system_create = dlsym(RTLD_NEXT, "dispatch_queue_create");
    if (!system_create) print_message("skip: there is no libdispatch behind softmetal's\n"), skip();
    queue = system_create("q", NULL);
    dispatch_async_f(queue, &count, count_up);
    assert_true(comes_to(&count, 1));
    dispatch_after_f(dispatch_time(0, (int64_t)MS(1)), queue, &count, count_up);
    assert_true(comes_to(&count, 2));
    dispatch_retain(queue);
    dispatch_release(queue);
    dispatch_release(queue);
}

static void *count_under_lock(void *argument)
{
    tally *t = argument;
    for (unsigned i = 0; i < 100000 / SLOW; i++) {
        if (i % 2 || !os_unfair_lock_trylock(&t->lock)) os_unfair_lock_lock(&t->lock);
        t->count++;
        os_unfair_lock_unlock(&t->lock);
    }
    return NULL;
}

static void one_thread_at_a_time_has_a_lock(void **state)
{
    tally t = {.lock = 0};
    pthread_t threads[4];
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        threads[i] = begin_thread(count_under_lock, &t);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(t.count == 4 * (100000 / SLOW) && t.lock == 0);
}

/* -- quirks ------------------------------------------------------------------------------------------------------- */

static void *handled(stage *s, void (*does)(block *, void *))
{
    return run(s, on_completed(on_completed_do(buffer_in(s->queue), &s->n, 1, does), &s->n, 2));
}
static void note_places(block *self, void *buffer)
{
    (void)buffer;
    self->notes->found[0] = softmetal_outstanding(self->notes->queue);
}
static void listen(stage *s, void *event, uint64_t value) { on_event(event, listener_new(), value, &s->n, 1); }
static void *waiting(void *buffer, void *event)
{
    metal_encode_wait(buffer, event, 1);
    return buffer;
}
static void wait_in_vain(stage *s, void *buffer, void *event, void *signalled)
{
    metal_encode_signal(waiting(buffer, event), signalled, 1);
    set_watchdog(MS(50));
    metal_commit(buffer);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_time_out(buffer);
    metal_wait_until_completed(buffer);
}
static void *hanging(void *buffer)
{
    softmetal_hang(buffer);
    metal_commit(buffer);
    return buffer;
}
static bool signals_while_it_hangs(void *buffer, void *event, bool with)
{
    bool signals = reaches(event, 1, with ? 20000 : 20);
    softmetal_unhang(buffer);
    return signals;
}
static bool hang_says(stage *s, const char *words)
{
    void *error = failed_in(s, SOFTMETAL_HANG, NULL);
    char said[200];
    metal_error_copy(error, said, sizeof said);
    return !strcmp(said, words) && !below(error);
}
static void *info(stage *s)
{
    void *buffer = buffer_with_encoders(s, false);
    softmetal_fail_as(buffer, SOFTMETAL_HANG, NULL);
    return encoders_of(run(s, buffer));
}
static void *ns_null(void) { return metal_get(metal__class("NSNull"), "null"); }
static void drop(stage *s)
{
    void *pool = metal_pool_push();
    on_completed(buffer_in(s->queue), &s->n, 1);
    metal_pool_pop(pool);
}
static unsigned long count_behind_status(void *buffer)
{
    void *pool = metal_pool_push();
    unsigned long count = metal_status(buffer) * 0 + softmetal_retain_count(buffer);
    metal_pool_pop(pool);
    return count;
}
/* Nanoseconds, at least, of an unlock when a thread may wait. */
static uint64_t time_of_unlock(void)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        uint32_t lock = 0;
        os_unfair_lock_lock(&lock);
        lock |= 1; /* linux_lock.m: a thread may be asleep */
        uint64_t start = now_ns(), took;
        os_unfair_lock_unlock(&lock);
        took = now_ns() - start;
        if (took < least) least = took;
    }
    return least;
}
/* In a process of its own: 101 listeners, or a second buffer of a queue for one, which else waits for its alarm. */
enum { LISTENERS, PLACES };
static int end_process(unsigned number)
{
    stage *s = stage_open(SOFTMETAL_REAL);
    void *event = event_new(s->device), *queue = mine(metal_queue_new(s->device, 1));
    softmetal_set_quirks(&(softmetal_quirks){.refused_listeners = number & 1, .full_queue_aborts = number & 1});
    alarm(2);
    for (int i = 0; i < (number / 2 == LISTENERS ? 101 : 0); i++)
        listen(s, event, 9);
    for (int i = 0; i < (number / 2 == LISTENERS ? 0 : 2); i++)
        buffer_in(queue);
    return 0;
}
static bool ends_the_process(unsigned what, bool with)
{
    char said[4096];
    return aborted(run_again("--end", 2 * what + with, said, sizeof said));
}

/* b and c are buffers, c of unretained references, e and f events */
#define QUIRKS(X)                                                                                                        \
    X(status_early, REAL, , status_behind_a_slow_handler(s) == COMPLETED)                                                \
    X(late_times, MANUAL, metal_commit(on_completed(b, &s->n, 1)); softmetal_complete(b), metal_gpu_end(b) == 0)         \
    X(status_after_handlers, MANUAL, handled(s, NULL), s->n.status == SCHEDULED)                                         \
    X(lost_handlers, MANUAL, handled(s, NULL), s->n.count == 0)                                                          \
    X(wrapped_buffers, MANUAL, b = handled(s, NULL), s->n.given != b && s->n.status == COMPLETED)                        \
    X(deaf_listeners, REAL, listen(s, e, 1); metal_event_signal(e, 1), heard(s) == 0)                                    \
    X(deaf_to_everything, REAL, listen(s, e, 1); metal_encode_signal(b, e, 1); run(s, b),                                \
      heard(s) == 0 && (softmetal_tell_listeners(e), heard(s) == 1))                                                     \
    X(deaf_to_the_past, REAL, metal_event_signal(e, 1); listen(s, e, 1),                                                 \
      heard(s) == 0 && (metal_event_signal(e, 2), heard(s) == 1))                                                        \
    X(refused_listeners, REAL, , ends_the_process(LISTENERS, with))                                                      \
    X(deaf_device, REAL, metal_event_signal(e, 1); wait_in_vain(s, b, e, f), metal_status(b) == FAILED)                  \
    X(falling_events, REAL, metal_event_signal(e, 5); metal_event_signal(e, 3), metal_event_value(e) == 3)               \
    X(open_waits, REAL, wait_in_vain(s, b, e, f), metal_status(b) == COMPLETED)                                          \
    X(early_signals, REAL, metal_encode_signal(b, e, 1), signals_while_it_hangs(hanging(b), e, with))                    \
    X(overtaking_signals, REAL, hanging(b); metal_encode_signal(c, e, 1); metal_commit(c),                               \
      signals_while_it_hangs(b, e, with))                                                                                \
    X(signals_of_the_killed, MANUAL, wait_in_vain(s, b, e, f), metal_event_value(f) == 1)                                \
    X(events_not_kept, MANUAL, waiting(b, e), softmetal_retain_count(e) == 1)                                            \
    X(handlers_backwards, REAL, handled(s, NULL), s->n.order[0] == 2)                                                    \
    X(silent_dealloc, REAL, drop(s), s->n.count == 0)                                                                    \
    X(global_blocks_copied, MANUAL, metal_add_completed_handler(b, &global); run(s, b), s->n.self != &global)            \
    X(status_autoreleases, REAL, , count_behind_status(b) == 2)                                                          \
    X(uncommitted_are_free, REAL, , softmetal_outstanding(s->queue) == 0)                                                \
    X(early_places, REAL, handled(s, note_places), s->n.found[0] == 2)                                                   \
    X(full_queue_aborts, REAL, , ends_the_process(PLACES, with))                                                         \
    X(any_function, REAL, , function_of(library_of(s, "kernel void add("), "other"))                                     \
    X(bare_errors, MANUAL, , hang_says(s, "Caused GPU Hang Error"))                                                      \
    X(ioaccel_errors, MANUAL, , hang_says(s, "Caused GPU Hang Error (00000003:kIOAccelCommandBufferCallbackErrorHang)")) \
    X(ioaf_errors, MANUAL, , hang_says(s, "Caused GPU Hang Error (IOAF code 3)"))                                        \
    X(no_encoder_info, MANUAL, , !info(s))                                                                               \
    X(null_encoder_info, MANUAL, , info(s) == ns_null())                                                                 \
    X(empty_encoder_info, MANUAL, , metal_number(info(s), "count") == 0)                                                 \
    X(alien_encoder_info, MANUAL, , object_at(info(s), 1) == ns_null())                                                  \
    X(bare_encoder_info, MANUAL, , !metal_get(object_at(info(s), 1), "label"))                                           \
    X(late_unlock, REAL, , time_of_unlock() >= MS(1))

static bool sees(stage *s, size_t row, bool with)
{
    static block global;
    void *e = event_new(s->device), *f = event_new(s->device), *b = buffer_in(s->queue), *c = unretained_in(s->queue);
    global = global_block(&s->n, 1, NULL);
    QUIRKS(SEE_IN_TURN)
    (void)c;
    return false;
}

static void each_quirk_is_seen_with_it_and_not_without(void **state)
{
    static const quirk_row rows[] = {QUIRKS(ROW_OF_QUIRK)};
    size_t count = LENGTH(rows);
    (void)state;
#ifdef __APPLE__
    count--; /* the lock is the system's */
#endif
    assert_int_equal(LENGTH(rows), offsetof(softmetal_quirks, no_metal4_family));
    assert_quirks(rows, count, 0, sees, stage_open);
}

/* -- rules -------------------------------------------------------------------------------------------------------- */

static void wait_for_it(block *self, void *buffer) { (void)self, metal_wait_until_completed(buffer); }
static void ask_its_error(block *self, void *buffer) { (void)self, (void)metal_get(buffer, "error"); }
static void retain_it(block *self, void *buffer) { (void)self, metal_release(metal_retain(buffer)); }
static void *committed(void *buffer)
{
    metal_commit(buffer);
    return buffer;
}
static void *completed(void *buffer)
{
    softmetal_complete(committed(buffer));
    return buffer;
}
static void *ended(void *encoder)
{
    metal_do(encoder, "endEncoding");
    return encoder;
}
static void *gone(void *object)
{
    metal_release(object);
    return object;
}
static void *blit_in(void *buffer) { return metal_get(buffer, "blitCommandEncoder"); }
static void *compute_in(void *buffer) { return metal_get(buffer, "computeCommandEncoder"); }
static void *drawable_of(stage *s, bool framebuffer)
{
    void *layer = layer_of(s, 2);
    if (framebuffer) SEND(void, (ID, signed char), layer, "setFramebufferOnly:", 1);
    return metal_next_drawable(layer);
}
static void add_block(void *buffer, void *isa, int32_t flags, void (*invoke)(void *, void *, uint64_t))
{
    block b = global_block(NULL, 1, NULL);
    b.isa = isa;
    b.flags = flags | 1 << 30;
    b.invoke = invoke;
    metal_add_completed_handler(buffer, &b);
}
static void *without_pool(void *queue) { return buffer_in(queue); }
static void *behind_outer_pop(void *queue)
{
    void *outer = metal_pool_push();
    (void)metal_pool_push();
    metal_pool_pop(outer); /* the inner one goes too */
    return buffer_in(queue);
}
static void *label_without_pool(void *queue) { return metal_get(queue, "label"); }
static void buffer_in_function(void *queue) { (void)buffer_in(queue); }
static void pool_in_function(void *context) { (void)context, (void)metal_pool_push(); }
static void dispatch_on(void *context, void (*function)(void *))
{
    dispatch_async_f(serial(), context, function);
    softmetal_settle(SECONDS(20));
}
static void later_on(void *queue, void (*function)(void *)) { dispatch_after_f(dispatch_time(0, 1), queue, queue, function); }
/* A queue behind its last release, which a timer keeps; that is no licence. */
static void *released(bool pending)
{
    void *queue = serial();
    if (pending) later_on(queue, nothing);
    dispatch_release(queue);
    return queue;
}
static void arm_again(void *queue) { later_on(queue, arm_again); }
static void *lock_it(void *lock)
{
    os_unfair_lock_lock(lock);
    return NULL;
}

/* d device, q queue, b and c buffers, c of unretained references, m memory, e event, n notes; other: a device */
#define RULES(X)                                                                                                         \
    X("handler-after-commit", on_completed(committed(b), n, 1))                                                          \
    X("double-commit", committed(committed(b)))                                                                          \
    X("commit-with-active-encoder", blit_in(b); metal_commit(b))                                                         \
    X("encode-after-commit", compute_in(committed(b)))                                                                   \
    X("encode-after-commit", metal_encode_signal(committed(b), e, 1))                                                    \
    X("encode-after-commit", metal_present(committed(b), drawable_of(s, false)))                                         \
    X("wait-before-commit", metal_wait_until_completed(b))                                                               \
    X("wait-in-own-handler", softmetal_finish(committed(on_completed_do(b, n, 1, wait_for_it))))                         \
    X("enqueued-never-committed", pool = metal_pool_push(); metal_enqueue(buffer_in(q)); metal_pool_pop(pool))           \
    X("command-buffer-would-block", q = metal_queue_new(d, 1); buffer_in(q); buffer_in(q))                               \
    X("queue-full-block", softmetal_set_quirks(&(softmetal_quirks){.full_queue_aborts = true});                          \
      q = metal_queue_new(d, 1); buffer_in(q); buffer_in(q))                                                             \
    X("second-active-encoder", blit_in(b); compute_in(b))                                                                \
    X("event-with-active-encoder", blit_in(b); waiting(b, e))                                                            \
    X("event-with-active-encoder", blit_in(b); metal_encode_signal(b, e, 1))                                             \
    X("double-end-encoding", ended(ended(blit_in(b))))                                                                   \
    X("encode-after-end", metal_fill(ended(blit_in(b)), m, 0, 4, 1))                                                     \
    X("encoder-not-ended", pool = metal_pool_push(); blit_in(buffer_in(q)); metal_pool_pop(pool))                        \
    X("blit-out-of-range", metal_fill(blit_in(b), m, 1, 4, 1))                                                           \
    X("blit-out-of-range", metal_fill(blit_in(b), m, SIZE_MAX, 2, 1))                                                    \
    X("blit-out-of-range", metal_copy(blit_in(b), m, 0, memory_new(d, 2), 0, 3))                                         \
    X("blit-out-of-range", metal_copy_to_drawable(blit_in(b), memory_new(d, 64), 3, 1, drawable_of(s, false)))           \
    X("bad-binding", metal_set_buffer(compute_in(b), m, 0, 31))                                                          \
    X("bad-binding", metal_set_buffer(compute_in(b), m, 4, 0))                                                           \
    X("bad-binding", metal_set_bytes(compute_in(b), m, 4097, 0))                                                         \
    X("no-pipeline", metal_dispatch(compute_in(b), (metal_size){1, 1, 1}, (metal_size){1, 1, 1}))                        \
    X("nil-argument", metal_fill(blit_in(b), NULL, 0, 1, 1))                                                             \
    X("nil-argument", metal_add_completed_handler(b, NULL))                                                              \
    X("nil-argument", on_event(e, NULL, 1, n, 1))                                                                        \
    X("nil-argument", listener_on(NULL))                                                                                 \
    X("nil-argument", dispatch_async_f(NULL, NULL, nothing))                                                             \
    X("nil-argument", dispatch_on(NULL, NULL))                                                                           \
    X("nil-argument", later_on(serial(), NULL))                                                                          \
    X("nil-argument", dispatch_release(NULL))                                                                            \
    X("wrong-class", metal_fill(blit_in(b), e, 0, 1, 1))                                                                 \
    X("wrong-class", dispatch_async_f(e, NULL, nothing))                                                                 \
    X("other-device", metal_fill(blit_in(b), memory_new(other, 4), 0, 4, 1))                                             \
    X("other-device", waiting(b, metal_get(other, "newEvent")))                                                          \
    X("other-device", metal_present(b, metal_next_drawable(metal_layer_new(other, 2, 2))))                               \
    X("bad-length", memory_new(d, 0))                                                                                    \
    X("bad-length", metal_queue_new(d, 0))                                                                               \
    X("bad-layer", SEND(void, (ID, unsigned long), layer_of(s, 2), "setMaximumDrawableCount:", 4ul))                     \
    X("framebuffer-only", metal_copy_to_drawable(blit_in(b), memory_new(d, 64), 2, 2, drawable_of(s, true)))             \
    X("framebuffer-only", pixel_of(drawable_of(s, true), 0, 0))                                                          \
    X("hidden-selector", softmetal_hide_selector("commandBuffer"); buffer_in(q))                                         \
    X("over-release", gone(gone(metal_buffer_new(d, 4))))                                                                \
    X("over-release", metal_release(b); metal_pool_pop(s->pool))                                                         \
    X("over-release", gone(gone(softmetal_new_device())))                                                                \
    X("over-release", dispatch_release(released(true)))                                                                  \
    X("message-to-freed", metal_contents(gone(metal_buffer_new(d, 4))))                                                  \
    X("message-to-freed", metal_retain(gone(metal_buffer_new(d, 4))))                                                    \
    X("message-to-freed", metal_fill(blit_in(b), gone(metal_buffer_new(d, 4)), 0, 4, 1))                                 \
    X("message-to-freed", pool = metal_pool_push(); on_completed_do(buffer_in(q), n, 1, retain_it);                      \
      metal_pool_pop(pool))                                                                                              \
    X("message-to-freed", softmetal_set_quirks(&(softmetal_quirks){.wrapped_buffers = true});                            \
      softmetal_finish(committed(on_completed(b, n, 1))); metal_status(n->given))                                        \
    X("message-to-freed", dispatch_async_f(released(false), NULL, nothing))                                              \
    X("message-to-freed", dispatch_async_f(released(true), NULL, nothing))                                               \
    X("message-to-freed", later_on(released(true), nothing))                                                             \
    X("pool-order", pool = metal_pool_push(); c = metal_pool_push(); metal_pool_pop(pool); metal_pool_pop(c))            \
    X("pool-order", dispatch_on(NULL, pool_in_function))                                                                 \
    X("destroyed-in-use", m = metal_buffer_new(d, 4); committed(fill(c, m, 1)); gone(m))                                 \
    X("destroyed-in-use", m = metal_shared_event_new(d); committed(waiting(c, m)); gone(m))                              \
    X("destroyed-in-use", m = metal_buffer_new(d, 4); fill(c, m, 1); gone(m); metal_commit(c))                           \
    X("bad-block", add_block(b, NULL, 1 << 28, block_invoke))                                                            \
    X("bad-block", add_block(b, _NSConcreteStackBlock, 1 << 28, block_invoke))                                           \
    X("bad-block", add_block(b, _NSConcreteMallocBlock, 0, block_invoke))                                                \
    X("bad-block", add_block(b, _NSConcreteGlobalBlock, 1 << 28, NULL))                                                  \
    X("block-changed", metal_add_completed_handler(b, &changed); changed.invoke = NULL; softmetal_finish(committed(b)))  \
    X("dispatch-attribute", dispatch_queue_create("q", s))                                                               \
    X("exit-in-function", dispatch_on(NULL, pthread_exit))                                                               \
    X("dispatch-time", dispatch_after_f(UINT64_MAX, serial(), NULL, nothing))                                            \
    X("dispatch-time", dispatch_time(UINT64_MAX - 1, 0)) /* of the wall clock */                                         \
    X("step-not-due", softmetal_execute(committed(b)))                                                                   \
    X("step-not-due", softmetal_schedule(committed(b)); softmetal_schedule(b))                                           \
    X("step-not-due", softmetal_run_handler(committed(on_completed(b, n, 1)), 0))                                        \
    X("step-not-due", on_completed(on_completed(b, n, 1), n, 2); softmetal_run_handler(completed(b), 0);                 \
      softmetal_run_handler(b, 0))                                                                                       \
    X("step-not-due", softmetal_call_handler_again(completed(on_completed(b, n, 1)), 0))                                 \
    X("step-not-due", completed(waiting(b, e)))                                                                          \
    X("step-not-due", committed(fill(b, m, 1)); completed(fill(c, m, 1)))                                                \
    X("step-not-due", metal_enqueue(b); completed(c))                                                                    \
    X("step-not-due", softmetal_time_out(committed(b)))                                                                  \
    X("step-not-due", metal_event_signal(e, 1); softmetal_time_out(committed(waiting(b, e))))                            \
    X("step-not-due", softmetal_fail(waiting(b, e), NULL, 1, NULL); softmetal_time_out(committed(b)))                    \
    X("step-on-real-clock", softmetal_set_clock(SOFTMETAL_REAL); completed(buffer_in(metal_queue_new(d, 1))))            \
    X("reset-with-work", committed(b); softmetal_reset())                                                                \
    X("timer-without-end", arm_again(serial()); softmetal_reset())                                                       \
    X("panel-misuse", softmetal_fail(completed(b), NULL, 1, NULL))                                                       \
    X("panel-misuse", softmetal_fail_as(b, SOFTMETAL_FIRST_INTERNAL - 1, NULL))                                          \
    X("panel-misuse", softmetal_live("teapot"))                                                                          \
    X("panel-misuse", softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS + 1))
#define RULES_OF_LINUX(X)                                                                                                \
    X("autorelease-without-pool", in_thread(without_pool, q))                                                            \
    X("autorelease-without-pool", in_thread(behind_outer_pop, q))                                                        \
    X("autorelease-without-pool", metal_set_label(q, "q"); in_thread(label_without_pool, q))                             \
    X("autorelease-without-pool", softmetal_fail(b, NULL, 1, NULL);                                                      \
      softmetal_finish(committed(on_completed_do(b, n, 1, ask_its_error))))                                              \
    X("autorelease-without-pool", dispatch_on(q, buffer_in_function))                                                    \
    X("locked-twice", lock_it(&lock); if (!os_unfair_lock_trylock(&lock)) lock_it(&lock))                                \
    X("unlocked-by-other", in_thread(lock_it, &lock); os_unfair_lock_unlock(&lock))                                      \
    X("class-taken", setenv("PLANT_CLASS", "MTLSharedEventListener", 1);                                                 \
      execl(own_path, own_path, "--break", "0", (char *)NULL))
static const char *const broken[] = {RULES(NAME_OF_CASE) RULES_OF_LINUX(NAME_OF_CASE)};
enum { OF_ANY_SYSTEM = 0 RULES(COUNT_CASE) };

/* A class that the runtime knows before softmetal's: in a process that begins here. */
extern void *objc_allocateClassPair(void *superclass, const char *name, size_t extra);
extern void objc_registerClassPair(void *cls);
static __attribute__((constructor(101))) void plant_class(void)
{
    const char *name = getenv("PLANT_CLASS");
    if (name) objc_registerClassPair(objc_allocateClassPair(metal__class("NSObject"), name, 0));
}

static int break_rule(size_t wanted)
{
    static block changed;
    static uint32_t lock;
    alarm(50);
    stage *s = stage_open(SOFTMETAL_MANUAL);
    notes *n = &s->n;
    void *d = s->device, *q = s->queue, *b = buffer_in(q), *c = unretained_in(q), *m = memory_new(d, 4), *e = event_new(d);
    void *pool, *other = mine(softmetal_new_device());
    changed = global_block(n, 1, NULL);
    RULES(BREAK_IN_TURN)
    RULES_OF_LINUX(BREAK_IN_TURN)
    fprintf(stderr, "the rule did not hold\n");
    return 0;
}

static void each_rule_that_is_broken_aborts(void **state)
{
    static const char *const rules[] = {SM_RULES(NAME_OF_RULE)};
    (void)state;
    assert_each_has_a_case(rules, LENGTH(rules), broken, LENGTH(broken));
    assert_they_abort(broken, 0, OF_ANY_SYSTEM);
}
static void pools_locks_and_classes_are_watched(void **state)
{
    (void)state;
    NOT_ON_A_MAC("softmetal does not see every pool, and the lock is the system's");
    assert_they_abort(broken, OF_ANY_SYSTEM, LENGTH(broken));
}

/* -- many threads, and races -------------------------------------------------------------------------------------- */

static void *work_on_shared_queue(void *user)
{
    stage *s = user;
    notes n = {.count = 0};
    for (unsigned i = 1; i <= 100; i++) {
        void *pool = metal_pool_push(), *memory = memory_new(s->device, 64), *buffer = buffer_in(s->n.queue);
        run(s, on_completed(fill(buffer, memory, (unsigned char)i), &n, 1));
        assert_int_equal(bytes_of(memory)[63], metal_status(buffer) == COMPLETED ? i : 0);
        assert_int_equal(GET(&n.count), i);
        metal_pool_pop(pool);
    }
    return NULL;
}

static void threads_share_a_queue(void **state)
{
    stage *s = *state;
    pthread_t threads[4];
    s->n.queue = mine(metal_queue_new(s->device, 3)); /* fewer places than threads */
    softmetal_set_chaos(&(softmetal_chaos){50, 100, 300});
    softmetal_set_seed(42);
    for (int i = 0; i < 4; i++)
        threads[i] = begin_thread(work_on_shared_queue, s);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    settle(s);
    assert_int_equal(softmetal_outstanding(s->n.queue), 0);
}

/* What Metal and libdispatch leave unordered, ThreadSanitizer must find unordered. The flags order the moments alone. */
static int plain, written, looked;
static void raise_flag(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELAXED); }
static void await_flag(int *flag)
{
    while (!__atomic_load_n(flag, __ATOMIC_RELAXED))
        sleep_ms(1);
}
static void write_it(void *context) { (void)context, plain = 1; }
static void write_late(block *self, void *buffer)
{
    (void)buffer;
    await_flag(&looked);
    write_it(self);
}
static void stay(void *context)
{
    (void)context;
    raise_flag(&written);
    await_flag(&looked);
}
static void look(void *context)
{
    (void)context;
    await_flag(&written);
    assert_int_equal(plain, 1);
    raise_flag(&looked);
}
static void *dispatch_and_stay(void *queue)
{
    write_it(NULL);
    dispatch_async_f(queue, NULL, nothing);
    stay(NULL);
    return NULL;
}
enum { HANDLER_AND_LATER_STATUS, DISPATCHERS, FUNCTION_AND_DISPATCHER, QUEUES, RACES };
static int run_race(size_t race)
{
    stage *s = stage_open(SOFTMETAL_REAL);
    void *first = on_completed_do(buffer_in(s->queue), &s->n, 1, write_late), *second = buffer_in(s->queue);
    void *third = buffer_in(s->queue), *event = event_new(s->device), *queue = serial();
    alarm(50);
    if (race == HANDLER_AND_LATER_STATUS) {
        metal_encode_signal(third, event, 1);
        metal_commit(first);
        metal_commit(second);
        metal_commit(third);
        assert_true(reaches(event, 1, 20000)); /* the GPU ends with the second one before the handler writes */
        raise_flag(&looked);
        while (metal_status(second) < COMPLETED)
            sleep_ms(1);
        assert_int_equal(plain, 1);
    } else if (race == DISPATCHERS) {
        pthread_t thread = begin_thread(dispatch_and_stay, queue);
        await_flag(&written);
        dispatch_async_f(queue, NULL, nothing);
        look(NULL);
        pthread_join(thread, NULL);
    } else {
        dispatch_async_f(queue, NULL, write_it);
        dispatch_async_f(queue, NULL, stay); /* keeps the worker */
        if (race == QUEUES) await_flag(&written), dispatch_async_f(serial(), NULL, look);
        if (race == FUNCTION_AND_DISPATCHER) look(NULL);
    }
    assert_true(softmetal_settle(SECONDS(20)));
    _exit(0);
}

static void races_are_not_hidden(void **state)
{
    (void)state;
    if (!__has_feature(thread_sanitizer)) print_message("skip: races are looked for with SANITIZE=thread\n"), skip();
    for (size_t i = 0; i < RACES; i++) {
        char said[16384];
        (void)run_again("--race", i, said, sizeof said);
        if (!strstr(said, "data race")) fail_msg("race %zu: %s", i, said);
    }
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        on_real(work_reaches_memory_in_the_queues_order), on_real(a_buffer_ends_in_this_order),
        on_manual(a_buffer_ends_in_this_order), on_real(a_slow_handler_delays_its_queue_and_no_other),
        on_real(a_poller_sees_the_work), on_real(a_buffer_that_is_dropped_runs_its_handlers),
        on_manual(references_last_until_the_end), on_real(times_are_ordered_and_durations_kept),
        on_real(a_full_queue_blocks_the_next_buffer), on_manual(a_full_queue_blocks_the_next_buffer),
        on_manual(each_transition_by_hand), on_manual(handlers_of_two_buffers_run_at_once),
        on_manual(a_test_can_ask_what_is_due), on_manual(a_queue_is_finished_in_order_and_reset_loses_the_rest),
        on_real(the_watchdog_ends_a_wait), on_manual(the_watchdog_ends_a_wait),
        on_manual(the_drivers_number_makes_the_error), on_manual(metals_code_stands_for_a_number),
        on_real(a_failed_buffer_does_what_comes_before_its_fault), on_manual(a_failed_buffer_does_what_comes_before_its_fault),
        on_manual(an_error_tells_of_the_encoders), on_real(handlers_are_held_and_lost),
        on_real(a_hang_ends_with_unhang_or_removal), on_real(the_nth_creation_fails),
        on_real(what_is_hidden_is_not_there), on_real(there_are_other_devices),
        on_real(chance_fails_reorders_and_overlaps), on_real(latencies_lie_where_they_should),
        on_real(events_rise_and_wake), on_real(queues_meet_at_events),
        on_real(a_listener_may_have_a_dispatch_queue), on_real(kernels_run),
        on_real(drawables_are_shown_at_pictures_of_the_display), on_manual(hooks_and_counters_see_the_programs_messages),
        on_real(a_witness_tells_nil_answers_zero_and_threads_can_be_pinned),
        on_real(a_serial_queue_runs_one_function_at_a_time_in_order), on_real(queues_run_at_once_as_far_as_there_are_workers),
        on_real(a_queue_has_its_class_of_service), on_real(timers_come_late_and_by_themselves),
        on_manual(what_waits_for_the_test_is_not_waited_for), on_real(what_the_system_made_is_left_to_the_system),
        on_real(one_thread_at_a_time_has_a_lock), cmocka_unit_test(each_quirk_is_seen_with_it_and_not_without),
        cmocka_unit_test(each_rule_that_is_broken_aborts), cmocka_unit_test(pools_locks_and_classes_are_watched),
        on_real(threads_share_a_queue), cmocka_unit_test(races_are_not_hidden),
    };
    own_path = arguments[0];
    if (count == 3 && !strcmp(arguments[1], "--break")) return break_rule((size_t)atoi(arguments[2]));
    if (count == 3 && !strcmp(arguments[1], "--end")) return end_process((unsigned)atoi(arguments[2]));
    if (count == 3 && !strcmp(arguments[1], "--race")) return run_race((size_t)atoi(arguments[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
