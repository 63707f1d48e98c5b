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
extern void *dispatch_queue_attr_make_with_qos_class(void *attribute, unsigned qos_class, int relative_priority);
extern signed char class_respondsToSelector(void *cls, void *selector);

static void *in_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, body, argument), 0);
    pthread_join(thread, &result);
    return result;
}
static pthread_t begin_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, argument), 0);
    return thread;
}

static void *unretained_in(void *queue) { return metal_get(queue, "commandBufferWithUnretainedReferences"); }
static void *committed_in(void *queue)
{
    void *buffer = buffer_in(queue);
    metal_commit(buffer);
    return buffer;
}
static void set_range(softmetal_range *(*field)(softmetal_timing *), uint64_t min, uint64_t max)
{
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    *field(&timing) = (softmetal_range){min, max};
    softmetal_set_timing(&timing);
}
#define RANGE(name) \
    static softmetal_range *range_of_##name(softmetal_timing *t) { return &t->name; }
RANGE(schedule)
RANGE(execute)
RANGE(notify)
RANGE(handler)
RANGE(event_listener)
static void set_watchdog(uint64_t ns)
{
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.watchdog_ns = ns;
    softmetal_set_timing(&timing);
}

/* -- how a command buffer ends ------------------------------------------------------------------------------------ */

static void work_reaches_memory_in_the_queues_order(void **state)
{
    stage *s = *state;
    void *a = memory_new(s->device, 64), *b = memory_new(s->device, 64), *first = buffer_in(s->queue), *last = NULL;
    set_range(range_of_execute, 0, 200000);
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000});
    assert_int_equal(metal_status(first), NOT_ENQUEUED);
    metal_enqueue(first);
    metal_enqueue(first);
    assert_int_equal(metal_status(first), ENQUEUED);
    for (unsigned char i = 1; i <= 10; i++) {
        void *blit;
        last = i > 1 ? buffer_in(s->queue) : first;
        blit = metal_get(last, "blitCommandEncoder");
        metal_fill(blit, a, 1, 62, i);
        metal_copy(blit, a, 1, b, 2, 62);
        metal_do(blit, "endEncoding");
        if (i > 1) metal_commit(last);
    }
    assert_int_equal(bytes_of(b)[2], 0); /* nothing passes the one that is enqueued */
    metal_commit(first);
    metal_wait_until_completed(last);
    assert_int_equal(metal_status(last), COMPLETED);
    assert_null(metal_get(last, "error"));
    for (int i = 0; i < 64; i++) {
        assert_int_equal(bytes_of(a)[i], i > 0 && i < 63 ? 10 : 0);
        assert_int_equal(bytes_of(b)[i], i > 1 ? 10 : 0);
    }
}

/* In a handler: 1 for the times, 2 for the status, 4 for what the buffer refers to, 8 for its place; blocks gone. */
static void look_at_end(block *self, void *buffer)
{
    notes *n = self->notes;
    n->found[self->number] = (metal_gpu_end(buffer) > 0) + 2u * (metal_status(buffer) == COMPLETED) +
                             4u * (softmetal_live("event") == 1) + 8u * (softmetal_outstanding(n->queue) == 1) +
                             16u * n->disposed;
}

static void a_buffer_ends_in_this_order(void **state)
{
    stage *s = *state;
    void *event = metal_get(s->device, "newEvent"), *pool = metal_pool_push(), *buffer = buffer_in(s->queue);
    set_range(range_of_notify, MS(2), MS(2));
    metal_encode_signal(buffer, event, 1);
    metal_release(event);
    on_completed_do(buffer, &s->n, 1, look_at_end);
    on_completed_do(buffer, &s->n, 2, look_at_end);
    assert_int_equal(softmetal_live("block"), 2);
    metal_commit(buffer);
    metal_wait_until_completed(buffer);
    ORDER(&s->n, 1, 2);
    assert_int_equal(s->n.found[1], 15);
    assert_int_equal(s->n.found[2], 15 + 16);
    assert_int_equal(s->n.disposed, 2);
    assert_false(pthread_equal(s->n.thread, pthread_self()));
    assert_int_equal(softmetal_live("event"), 0);
    assert_int_equal(softmetal_outstanding(s->queue), 0);
    metal_pool_pop(pool);
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(softmetal_live("command_buffer") + softmetal_live("block"), 0);
}

static void a_slow_handler_delays_its_queue_and_no_other(void **state)
{
    stage *s = *state;
    void *other = mine(metal_queue_new(s->device, 64)), *event = event_new(s->device);
    void *first = buffer_in(s->queue), *second = buffer_in(s->queue), *third = buffer_in(other);
    s->n.gated = true;
    on_completed(first, &s->n, 1);
    metal_encode_signal(second, event, 1);
    metal_commit(first);
    assert_true(comes_to(&s->n.inside, 1));
    metal_commit(second);
    metal_commit(third);
    metal_wait_until_completed(third);
    assert_true(event_reaches(event, 1, 20000));
    assert_true(metal_status(second) < COMPLETED);
    assert_int_equal(softmetal_outstanding(s->queue), 2);
    PUT(&s->n.open, 1);
    metal_wait_until_completed(second);
    assert_int_equal(s->n.status, COMPLETED);
}

static void a_poller_sees_the_work(void **state)
{
    stage *s = *state;
    for (unsigned char i = 1; i <= 20; i++) {
        void *memory = memory_new(s->device, 64), *buffer = buffer_in(s->queue);
        fill(buffer, memory, i);
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
        void *pool = metal_pool_push(), *buffer = buffer_in(s->queue);
        s->n.status = COMPLETED;
        on_completed(buffer, &s->n, 1);
        on_completed(buffer, &s->n, 2);
        if (lost) softmetal_lose_handlers(buffer);
        metal_pool_pop(pool);
        ORDER(&s->n, 1, 2);
        assert_true(pthread_equal(s->n.thread, pthread_self()));
        assert_int_equal(s->n.status, lost ? COMPLETED : NOT_ENQUEUED);
        assert_int_equal(s->n.disposed, 2 + 2 * lost);
        assert_int_equal(softmetal_outstanding(s->queue), 0);
    }
}

static void references_last_until_the_end(void **state)
{
    stage *s = *state;
    void *memory = metal_buffer_new(s->device, 16), *pool = metal_pool_push(), *buffer = buffer_in(s->queue);
    void *queue = metal_queue_new(s->device, 1), *wanted, *other;
    fill(buffer, memory, 1);
    fill(buffer, memory, 2);
    assert_int_equal(softmetal_retain_count(memory), 2);
    metal_release(memory);
    on_completed(buffer, &s->n, 1);
    metal_commit(buffer);
    metal_pool_pop(pool);
    assert_int_equal(softmetal_live("command_buffer"), 1);
    softmetal_finish_queue(s->queue);
    assert_int_equal(softmetal_live("command_buffer") + softmetal_live("buffer"), 0);
    ORDER(&s->n, 1);
    wanted = mine(metal_get(metal__class("MTLCommandBufferDescriptor"), "new"));
    SEND(void, (ID, signed char), wanted, "setRetainedReferences:", 0);
    SEND(void, (ID, unsigned long), wanted, "setErrorOptions:", 1ul);
    memory = memory_new(s->device, 16);
    pool = metal_pool_push();
    buffer = SEND(void *, (ID, void *), queue, "commandBufferWithDescriptor:", wanted);
    assert_int_equal(metal_number(buffer, "errorOptions"), 1);
    assert_int_equal((signed char)metal_number(buffer, "retainedReferences"), 0);
    assert_ptr_equal(metal_get(buffer, "commandQueue"), queue);
    assert_ptr_equal(metal_get(buffer, "device"), s->device);
    metal_set_label(buffer, "name");
    assert_text(metal_get(buffer, "label"), "name");
    fill(buffer, memory, 3);
    assert_int_equal(softmetal_retain_count(memory), 1);
    metal_commit(buffer);
    metal_release(queue); /* a buffer keeps its queue */
    softmetal_finish_queue(queue);
    assert_int_equal(bytes_of(memory)[15], 3);
    metal_pool_pop(pool);
    assert_int_equal(softmetal_live("queue"), 1);
    other = unretained_in(s->queue);
    fill(other, memory, 4);
    assert_int_equal(softmetal_retain_count(memory), 1);
}

static double test_clock(void) { return 7; }

static void times_are_ordered_and_durations_kept(void **state)
{
    stage *s = *state;
    void *buffer = buffer_in(s->queue);
    double before = (double)now_ns() / 1e9, took;
    assert_true(metal_gpu_start(buffer) == 0 && metal_gpu_end(buffer) == 0);
    softmetal_set_duration(buffer, MS(5));
    metal_commit(buffer);
    metal_wait_until_completed(buffer);
    took = metal_gpu_end(buffer) - metal_gpu_start(buffer);
    assert_true(before <= metal_gpu_start(buffer) && took >= 0.005 && took < 2);
    softmetal_set_gpu_clock(test_clock);
    buffer = committed_in(s->queue);
    metal_wait_until_completed(buffer);
    assert_true(metal_gpu_start(buffer) == 7 && metal_gpu_end(buffer) == 7);
}

static void *take_and_drop(void *user)
{
    stage *s = user;
    void *pool = metal_pool_push();
    (void)buffer_in(s->n.queue);
    __atomic_add_fetch(&s->n.count, 1, __ATOMIC_SEQ_CST);
    metal_pool_pop(pool);
    return NULL;
}

static void a_full_queue_blocks_the_next_buffer(void **state)
{
    stage *s = *state;
    void *queue = s->n.queue = mine(metal_queue_new(s->device, 1)), *first = buffer_in(queue);
    pthread_t threads[2];
    assert_int_equal(softmetal_outstanding(queue), 1);
    softmetal_hang(first);
    metal_commit(first);
    assert_false(softmetal_await_blocked(queue, 1, MS(1)));
    for (unsigned k = 0; k < 2; k++) {
        threads[k] = begin_thread(take_and_drop, s);
        assert_true(softmetal_await_blocked(queue, k + 1, SECONDS(20)));
        assert_int_equal(softmetal_blocked(queue), k + 1);
    }
    assert_int_equal(READ(&s->n.count), 0);
    softmetal_unhang(first);
    for (unsigned k = 0; k < 2; k++)
        pthread_join(threads[k], NULL);
    assert_int_equal(s->n.count, 2);
    assert_int_equal(softmetal_blocked(queue) + softmetal_outstanding(queue), 0);
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
    void *memory = memory_new(s->device, 4), *buffer = s->n.object = buffer_in(s->queue);
    pthread_t waiter;
    fill(buffer, memory, 9);
    on_completed(buffer, &s->n, 0);
    on_completed(buffer, &s->n, 1);
    assert_int_equal(softmetal_handler_count(buffer), 2);
    metal_commit(buffer);
    waiter = begin_thread(wait_for_end, s);
    assert_int_equal(metal_status(buffer), COMMITTED);
    softmetal_schedule(buffer);
    assert_int_equal(metal_status(buffer), SCHEDULED);
    assert_int_equal(bytes_of(memory)[0], 0);
    softmetal_execute(buffer);
    assert_int_equal(bytes_of(memory)[0], 9);
    assert_int_equal(metal_status(buffer), SCHEDULED);
    assert_ptr_equal(softmetal_first_in_line(s->queue), buffer);
    softmetal_complete(buffer);
    assert_null(softmetal_first_in_line(s->queue));
    assert_int_equal(metal_status(buffer), COMPLETED);
    assert_int_equal(s->n.count, 0);
    softmetal_run_handler(buffer, 1); /* in any order */
    ORDER(&s->n, 1);
    assert_int_equal(READ(&s->n.found[0]), 0);
    assert_int_equal(softmetal_outstanding(s->queue), 1);
    softmetal_call_handler_again(buffer, 1);
    ORDER(&s->n, 1, 1);
    softmetal_run_handler(buffer, 0);
    pthread_join(waiter, NULL);
    assert_int_equal(softmetal_outstanding(s->queue), 0);
    assert_int_equal(softmetal_live("block"), 2);
    softmetal_finish(buffer);
    assert_int_equal(softmetal_live("block"), 0);
    ORDER(&s->n, 1, 1, 0);
}

static void handlers_of_two_buffers_run_at_once(void **state)
{
    stage *s = *state;
    notes other = {.gated = true};
    void *first = buffer_in(s->queue), *second = buffer_in(s->queue), *queue = mine(metal_queue_new(s->device, 1));
    s->n.gated = true;
    on_completed(first, &s->n, 1);
    on_completed(second, &other, 2);
    metal_commit(first);
    metal_commit(second);
    softmetal_complete(second); /* they share nothing: in any order */
    softmetal_complete(first);
    softmetal_begin_handler(first, 0);
    softmetal_begin_handler(second, 0);
    assert_true(comes_to(&s->n.inside, 1) && comes_to(&other.inside, 1));
    PUT(&other.open, 1);
    softmetal_join_handler(second, 0);
    assert_int_equal(other.count, 1);
    assert_int_equal(READ(&s->n.count), 0);
    PUT(&s->n.open, 1);
    softmetal_finish_queue(s->queue);
    /* A full queue waits where a handler runs, as its end is near. */
    memset(&s->n, 0, sizeof s->n);
    s->n.gated = true;
    s->n.queue = queue;
    first = buffer_in(queue);
    on_completed(first, &s->n, 1);
    metal_commit(first);
    softmetal_complete(first);
    softmetal_begin_handler(first, 0);
    pthread_t taker = begin_thread(take_and_drop, s);
    assert_true(softmetal_await_blocked(queue, 1, SECONDS(20)));
    PUT(&s->n.open, 1);
    pthread_join(taker, NULL);
    softmetal_finish(first);
}

static void a_test_can_ask_what_is_due(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device), *first = buffer_in(s->queue), *second = buffer_in(s->queue);
    softmetal_due due = SOFTMETAL_FAULT_DUE;
    metal_encode_signal(first, event, 1);
    metal_encode_wait(first, event, 1);
    on_completed(first, &s->n, 1);
    metal_encode_wait(second, event, 2);
    assert_int_equal(softmetal_what_is_due(first), SOFTMETAL_NOTHING_DUE);
    metal_commit(first);
    metal_commit(second);
    assert_int_equal(softmetal_what_is_due(first), SOFTMETAL_COMPLETE_DUE);
    assert_int_equal(softmetal_what_is_due(second), SOFTMETAL_NOTHING_DUE); /* they share an event */
    assert_ptr_equal(softmetal_first_in_line(s->queue), first);
    softmetal_complete(first);
    assert_int_equal(softmetal_what_is_due(first), SOFTMETAL_HANDLERS_DUE);
    assert_int_equal(softmetal_what_is_due(second), SOFTMETAL_WAIT_DUE);
    assert_ptr_equal(softmetal_first_in_line(s->queue), second);
    assert_ptr_equal(softmetal_due_at(s->queue, 1, &due), first);
    assert_int_equal(due, SOFTMETAL_HANDLERS_DUE);
    assert_ptr_equal(softmetal_last_buffer(s->queue), second);
    assert_ptr_equal(softmetal_buffer_at(s->queue, 1), first);
    assert_null(softmetal_buffer_at(s->queue, 2));
    assert_null(softmetal_due_at(s->queue, 2, &due));
    softmetal_finish(first);
    assert_int_equal(softmetal_what_is_due(first), SOFTMETAL_NOTHING_DUE);
    softmetal_fail(second, NULL, 1, NULL);
    assert_int_equal(softmetal_what_is_due(second), SOFTMETAL_FAULT_DUE);
    softmetal_complete(second);
    assert_int_equal(softmetal_what_is_due(second), SOFTMETAL_NOTHING_DUE);
    assert_int_equal(metal_status(second), FAILED);
}

static void let_go(block *self, void *buffer)
{
    (void)buffer;
    metal_release(self->notes->object);
}

static void a_queue_is_finished_in_order_and_reset_loses_the_rest(void **state)
{
    stage *s = *state;
    void *pool = metal_pool_push(), *queue = s->n.object = metal_queue_new(s->device, 8), *left;
    for (int i = 1; i <= 3; i++) {
        void *buffer = buffer_in(queue);
        on_completed_do(buffer, &s->n, i, i == 3 ? let_go : NULL); /* the last reference to the queue but softmetal's */
        metal_commit(buffer);
    }
    metal_pool_pop(pool);
    softmetal_finish_queue(queue);
    ORDER(&s->n, 1, 2, 3);
    assert_int_equal(softmetal_live("queue"), 1);
    left = buffer_in(s->queue);
    on_completed(left, &s->n, 4);
    metal_commit(left);
    softmetal_complete(left);
    softmetal_set_quirks(&(softmetal_quirks){.lost_handlers = true});
    set_watchdog(1);
    softmetal_hide_selector("name");
    softmetal_reset();
    ORDER(&s->n, 1, 2, 3);
    assert_int_equal(s->n.disposed, 4);
    softmetal_quirks quirks;
    softmetal_timing timing;
    softmetal_get_quirks(&quirks);
    softmetal_get_timing(&timing);
    assert_memory_equal(&quirks, &(softmetal_quirks){0}, sizeof quirks);
    assert_int_equal(timing.watchdog_ns, SECONDS(5));
    assert_true(responds(s->device, "name"));
}

static void the_watchdog_ends_a_wait(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device), *buffer = buffer_in(s->queue), *behind = buffer_in(s->queue);
    metal_encode_signal(buffer, event, 1);
    metal_encode_wait(buffer, event, 3);
    metal_encode_signal(buffer, event, 9);
    metal_encode_wait(behind, event, 1);
    if (s->clock == SOFTMETAL_REAL) set_watchdog(MS(30));
    metal_commit(buffer);
    metal_commit(behind);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_time_out(buffer), softmetal_finish(behind);
    metal_wait_until_completed(behind);
    assert_int_equal(metal_status(buffer), FAILED);
    assert_int_equal(code_of(metal_get(buffer, "error")), 2);
    assert_int_equal(metal_event_value(event), 1);
    assert_int_equal(metal_status(behind), COMPLETED);
}

/* -- faults ------------------------------------------------------------------------------------------------------- */

static void *failed_in(stage *s, unsigned reason, const char *words)
{
    void *buffer = buffer_in(s->queue);
    softmetal_fail_as(buffer, reason, words);
    metal_commit(buffer);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish(buffer);
    metal_wait_until_completed(buffer);
    return metal_get(buffer, "error");
}

static void the_drivers_number_makes_the_error(void **state)
{
    static const struct row {
        unsigned number;
        long code;
        const char *text;
    } rows[] = {
        {SOFTMETAL_TIMEOUT, 2, "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"},
        {SOFTMETAL_HANG, 2, "Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)"},
        {SOFTMETAL_SUBMISSIONS_IGNORED, 4,
         "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"},
        {SOFTMETAL_INNOCENT_VICTIM, 1,
         "Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)"},
        {SOFTMETAL_BACKGROUND, 7,
         "Insufficient Permission (to submit GPU work from background) "
         "(00000006:kIOGPUCommandBufferCallbackErrorBackgroundExecutionNotPermitted)"},
        {SOFTMETAL_OUT_OF_MEMORY, 8, "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"},
        {SOFTMETAL_INVALID_RESOURCE, 9, "Invalid Resource (00000009:kIOGPUCommandBufferCallbackErrorInvalidResource)"},
        {SOFTMETAL_PAGE_FAULT, 3, "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)"},
        {SOFTMETAL_IMPACTING_INTERACTIVITY, 1,
         "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"},
        {SOFTMETAL_INTERNAL, 1, "Internal Error (00000813:Internal Error)"},
        {0xE00002BD, 1, "Internal Error (e00002bd:Internal Error)"},
    };
    stage *s = *state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        void *error = failed_in(s, rows[i].number, NULL), *below = user_info(error, "NSUnderlyingError");
        assert_text(metal_get(error, "domain"), "MTLCommandBufferErrorDomain");
        assert_int_equal(code_of(error), rows[i].code);
        assert_text(metal_get(error, "localizedDescription"), rows[i].text);
        assert_text(metal_get(below, "domain"), "IOGPUCommandQueueErrorDomain");
        assert_int_equal(code_of(below), rows[i].number);
    }
    assert_text(metal_get(failed_in(s, SOFTMETAL_HANG, "own words"), "localizedDescription"), "own words");
}

static void metals_code_stands_for_a_number(void **state)
{
    static const struct row {
        const char *domain, *text;
        long code, below; /* -1: there is none */
    } rows[] = {{NULL, NULL, 1, SOFTMETAL_INTERNAL}, {NULL, NULL, 2, SOFTMETAL_TIMEOUT}, {NULL, NULL, 3, 11},
                {NULL, NULL, 4, 4},  {NULL, NULL, 7, 6},  {NULL, "text", 8, 8}, {NULL, NULL, 9, 9},
                {NULL, NULL, 10, -1}, {NULL, NULL, 12, -1}, {"own", "text", 2, -1}};
    stage *s = *state;
    for (size_t i = 0; i < LENGTH(rows) + 2; i++) {
        void *buffer = buffer_in(s->queue), *error;
        long code = i < LENGTH(rows) ? rows[i].code : i == LENGTH(rows) ? 9 : 2;
        if (i < LENGTH(rows))
            softmetal_fail(buffer, rows[i].domain, code, rows[i].text);
        else if (i == LENGTH(rows))
            softmetal_fail_next(1, 9);
        else
            softmetal_fail_next_as(1, SOFTMETAL_HANG);
        metal_commit(buffer);
        softmetal_finish(buffer);
        error = metal_get(buffer, "error");
        assert_int_equal(code_of(error), code);
        if (i >= LENGTH(rows)) continue;
        assert_text(metal_get(error, "domain"), rows[i].domain ? rows[i].domain : "MTLCommandBufferErrorDomain");
        assert_int_equal(code_of(user_info(error, "NSUnderlyingError")), rows[i].below);
        if (rows[i].text) assert_text(metal_get(error, "localizedDescription"), rows[i].text);
    }
    void *good = committed_in(s->queue); /* softmetal_fail_next is used up */
    softmetal_finish(good);
    assert_int_equal(metal_status(good), COMPLETED);
}

static void a_failed_buffer_does_what_comes_before_its_fault(void **state)
{
    stage *s = *state;
    for (unsigned n = 0; n <= 3; n++) { /* signals before the fault; 3 are more than there are */
        void *event = event_new(s->device), *memory = memory_new(s->device, 4), *buffer = buffer_in(s->queue);
        metal_encode_signal(buffer, event, 1);
        fill(buffer, memory, 1);
        metal_encode_signal(buffer, event, 2);
        fill(buffer, memory, 2);
        if (n == 2) metal_encode_wait(buffer, event, 5); /* not met */
        if (n != 1) softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        softmetal_fail_after_signals(buffer, n);
        metal_commit(buffer);
        if (s->clock == SOFTMETAL_MANUAL) assert_int_equal(softmetal_what_is_due(buffer), SOFTMETAL_COMPLETE_DUE);
        if (s->clock == SOFTMETAL_MANUAL) softmetal_finish(buffer);
        metal_wait_until_completed(buffer);
        assert_int_equal(code_of(metal_get(buffer, "error")), n == 1 ? 1 : 3);
        assert_int_equal(metal_event_value(event), n < 3 ? n : 2);
        assert_int_equal(bytes_of(memory)[0], n < 2 ? 0 : n - 1);
    }
}

/* A buffer of `count` encoders, the k-th with the label "k", and a signal behind the first. */
static void *buffer_with_encoders(stage *s, unsigned count, void *event)
{
    void *wanted = mine(metal_get(metal__class("MTLCommandBufferDescriptor"), "new")), *buffer;
    SEND(void, (ID, unsigned long), wanted, "setErrorOptions:", 1ul);
    buffer = SEND(void *, (ID, void *), s->queue, "commandBufferWithDescriptor:", wanted);
    for (unsigned k = 0; k < count; k++) {
        void *encoder = metal_get(buffer, "blitCommandEncoder");
        if (k > 0) metal_set_label(encoder, k == 1 ? "1" : "2");
        metal_fill(encoder, memory_new(s->device, 4), 0, 4, 1);
        metal_do(encoder, "endEncoding");
        if (k == 0) metal_encode_signal(buffer, event, 1);
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
    enum { WAS_FIRST, AFTER_SIGNAL, TIMED_OUT, REMOVED, CHOSEN };
    static const long states[][3] = {{4, 3, 3}, {1, 4, 3}, {1, 1, 3}, {2, 3, 3}, {9, 0, 3}};
    stage *s = *state;
    for (int how = WAS_FIRST; how <= CHOSEN; how++) {
        void *event = event_new(s->device), *buffer = buffer_with_encoders(s, how == TIMED_OUT ? 2 : 3, event), *all;
        if (how == WAS_FIRST || how == CHOSEN) softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        if (how == CHOSEN) softmetal_set_encoder_states(buffer, (const long[]){9, 0}, 2);
        if (how == AFTER_SIGNAL) softmetal_fail_after_signals(buffer, 1);
        if (how == TIMED_OUT) {
            metal_encode_wait(buffer, event, 5);
            void *encoder = metal_get(buffer, "blitCommandEncoder");
            metal_set_label(encoder, "2");
            metal_do(encoder, "endEncoding");
        }
        metal_commit(buffer);
        if (how == REMOVED) softmetal_remove_device(s->device);
        if (how == TIMED_OUT) softmetal_time_out(buffer);
        softmetal_finish(buffer);
        if (how == REMOVED) softmetal_reset();
        if (how == REMOVED) softmetal_set_clock(SOFTMETAL_MANUAL);
        all = encoders_of(buffer);
        assert_int_equal(metal_number(all, "count"), 3);
        for (unsigned k = 0; k < 3; k++) {
            assert_int_equal(metal_number(object_at(all, k), "errorState"), states[how][k]);
            assert_text(metal_get(object_at(all, k), "label"), k == 0 ? "" : k == 1 ? "1" : "2");
        }
    }
    void *plain = buffer_in(s->queue);
    softmetal_fail_as(plain, SOFTMETAL_HANG, NULL);
    metal_commit(plain);
    softmetal_finish(plain);
    assert_null(encoders_of(plain)); /* nobody asked for them */
}

static void handlers_are_held_and_lost(void **state)
{
    stage *s = *state;
    void *held = buffer_in(s->queue), *next = buffer_in(s->queue), *lost = buffer_in(s->queue), *left = buffer_in(s->queue);
    on_completed(held, &s->n, 1);
    on_completed(next, &s->n, 2);
    on_completed(lost, &s->n, 3);
    on_completed(left, &s->n, 4);
    softmetal_hold_handlers(held);
    softmetal_lose_handlers(lost);
    softmetal_hold_handlers(left);
    metal_commit(held);
    metal_commit(next);
    metal_wait_until_completed(next);
    assert_int_equal(metal_status(held), COMPLETED);
    ORDER(&s->n, 2);
    metal_commit(lost);
    metal_wait_until_completed(lost);
    assert_int_equal(metal_status(lost), COMPLETED);
    softmetal_deliver(held);
    metal_wait_until_completed(held);
    ORDER(&s->n, 2, 1);
    metal_commit(left);
    assert_true(softmetal_settle(SECONDS(20)));
    softmetal_reset();
    ORDER(&s->n, 2, 1);
    assert_int_equal(s->n.disposed, 4);
}

static void a_hang_ends_with_unhang_or_removal(void **state)
{
    stage *s = *state;
    void *buffer = buffer_in(s->queue), *second = buffer_in(s->queue), *event = event_new(s->device), *third;
    softmetal_hang(buffer);
    metal_commit(buffer);
    assert_false(softmetal_settle(MS(5)));
    softmetal_unhang(buffer);
    metal_wait_until_completed(buffer);
    assert_int_equal(metal_status(buffer), COMPLETED);
    softmetal_hang(second);
    metal_encode_signal(second, event, 1);
    metal_commit(second);
    third = buffer_in(s->queue);
    metal_encode_wait(third, event, 1);
    metal_commit(third);
    softmetal_remove_device(s->device);
    metal_wait_until_completed(third);
    assert_int_equal(code_of(metal_get(second, "error")), 11);
    assert_int_equal(code_of(metal_get(third, "error")), 11);
    assert_int_equal(metal_event_value(event), 0);
    buffer = committed_in(s->queue);
    metal_wait_until_completed(buffer);
    assert_int_equal(code_of(metal_get(buffer, "error")), 11);
    softmetal_reset(); /* it is back */
    buffer = committed_in(s->queue);
    metal_wait_until_completed(buffer);
    assert_int_equal(metal_status(buffer), COMPLETED);
}

static void *layer_of(stage *s, unsigned long side) { return mine(metal_layer_new(s->device, side, side)); }

static void *create(stage *s, unsigned which)
{
    void *error = NULL, *library, *function;
    switch (which) {
    case 0: return mine(metal_device_new());
    case 1: return mine(MTLCopyAllDevices());
    case 2: return mine(metal_queue_new(s->device, 2));
    case 3: return buffer_in(s->queue);
    case 4: return event_new(s->device);
    case 5: return mine(metal_get(s->device, "newEvent"));
    case 6: return listener_new(NULL);
    case 7: return memory_new(s->device, 4);
    case 8: return unretained_in(s->queue);
    case 9: return metal_next_drawable(layer_of(s, 2));
    }
    library = mine(SEND(void *, (ID, void *, void *, void **), s->device, "newLibraryWithSource:options:error:",
                        text("kernel void add("), NULL, &error));
    if (which == 10) return library;
    function = library ? mine(SEND(void *, (ID, void *), library, "newFunctionWithName:", text("add"))) : NULL;
    if (which == 11 || !function) return function;
    return mine(SEND(void *, (ID, void *, void **), s->device, "newComputePipelineStateWithFunction:error:", function,
                     &error));
}
enum { CREATIONS = 13 };

static void the_nth_creation_fails(void **state)
{
    stage *s = *state;
    for (unsigned which = 0; which < CREATIONS; which++) {
        unsigned own = which <= 10 ? 1 : which - 9;
        softmetal_fail_creation(0, false);
        assert_non_null(create(s, which));
        assert_int_equal(softmetal_creations(), own);
        softmetal_fail_creation(own, which % 2);
        assert_null(create(s, which));
        assert_true((create(s, which) == NULL) == which % 2);
    }
    softmetal_fail_creation(0, false);
    void *blit = buffer_in(s->queue);
    softmetal_fail_creation(1, false);
    assert_null(metal_get(blit, "blitCommandEncoder"));
}

static void what_is_hidden_is_not_there(void **state)
{
    stage *s = *state;
    assert_true(responds(s->queue, "commandBufferWithDescriptor:"));
    softmetal_hide_selector("commandBufferWithDescriptor:");
    softmetal_hide_class("MTL4CommitOptions");
    assert_false(responds(s->queue, "commandBufferWithDescriptor:"));
    assert_false(class_respondsToSelector(metal_get(s->queue, "class"), metal__sel("commandBufferWithDescriptor:")));
    assert_true(class_respondsToSelector(metal_get(s->queue, "class"), metal__sel("commandBuffer")));
    assert_null(metal__class("MTL4CommitOptions"));
    assert_non_null(metal__class("MTLCommandBufferDescriptor"));
    softmetal_reset();
    assert_true(responds(s->queue, "commandBufferWithDescriptor:"));
    assert_non_null(metal__class("MTL4CommitOptions"));
}

static void there_are_other_devices(void **state)
{
    stage *s = *state;
    void *other = mine(softmetal_new_device()), *twin = mine(softmetal_new_twin(s->device)), *list = mine(MTLCopyAllDevices());
#define REGISTRY(device) METAL__AS0(uint64_t)(device, metal__sel("registryID"))
    assert_ptr_equal(mine(metal_device_new()), s->device);
    assert_int_equal(metal_number(list, "count"), 1);
    assert_ptr_equal(object_at(list, 0), s->device);
    assert_true(REGISTRY(other) != REGISTRY(s->device));
    assert_true(twin != s->device && REGISTRY(twin) == REGISTRY(s->device));
}

static void chance_fails_reorders_and_overlaps(void **state)
{
    stage *s = *state;
    void *first = buffer_in(s->queue), *second = buffer_in(s->queue);
    on_completed(first, &s->n, 1);
    on_completed(second, &s->n, 2);
    softmetal_set_chaos(&(softmetal_chaos){.fail_per_mille = 1000, .late_handler_per_mille = 1000});
    softmetal_hang(first);
    metal_commit(first);
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000});
    metal_commit(second);
    for (int i = 0; i < 20000 && metal_status(second) < COMPLETED; i++)
        sleep_ms(1);
    assert_int_equal(metal_status(second), COMPLETED); /* while the first one hangs */
    softmetal_unhang(first);
    metal_wait_until_completed(first);
    ORDER(&s->n, 2, 1);
    assert_int_equal(code_of(metal_get(first, "error")), 1);
    for (int i = 0; i < 20; i++) { /* the next one's handlers run before those that are late */
        memset(&s->n, 0, sizeof s->n);
        void *late = buffer_in(s->queue), *next = buffer_in(s->queue);
        on_completed(late, &s->n, 1);
        on_completed(next, &s->n, 2);
        softmetal_set_chaos(&(softmetal_chaos){.late_handler_per_mille = 1000});
        metal_commit(late);
        softmetal_set_chaos(&(softmetal_chaos){0});
        metal_commit(next);
        metal_wait_until_completed(late);
        metal_wait_until_completed(next);
        if (s->n.order[0] == 2) return;
    }
    fail_msg("no handler was late");
}

static void latencies_lie_where_they_should(void **state)
{
    static softmetal_range *(*const fields[])(softmetal_timing *) = {range_of_schedule, range_of_execute, range_of_notify,
                                                                      range_of_handler};
    stage *s = *state;
    for (size_t i = 0; i < LENGTH(fields); i++) {
        void *buffer = buffer_in(s->queue);
        uint64_t start = now_ns(), ended;
        double gpu;
        on_completed(buffer, &s->n, 1);
        set_range(fields[i], MS(30), MS(30));
        metal_commit(buffer);
        while (metal_status(buffer) < COMPLETED)
            sched_yield();
        ended = now_ns() - start;
        metal_wait_until_completed(buffer);
        gpu = metal_gpu_end(buffer) - metal_gpu_start(buffer);
        assert_true(now_ns() - start >= MS(30));
        assert_true(fields[i] == range_of_handler || ended >= MS(30));
        assert_true((fields[i] != range_of_execute) == (gpu < 0.03));
        if (fields[i] == range_of_handler) assert_true(now_ns() - start >= ended);
        set_range(fields[i], 0, 0);
    }
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static void events_rise_and_wake(void **state)
{
    stage *s = *state;
    void *event = event_new(s->device), *listener = listener_new(NULL), *buffer = buffer_in(s->queue);
    metal_event_signal(event, 5);
    metal_event_signal(event, 3);
    assert_int_equal(metal_event_value(event), 5);
    assert_false(event_reaches(event, 6, 5));
    on_event(event, listener, 9, &s->n, 9);
    on_event(event, listener, 7, &s->n, 7);
    on_event(event, listener, 9, &s->n, 10);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    assert_int_equal(s->n.count, 0);
    metal_encode_signal(buffer, event, 8);
    metal_commit(buffer);
    assert_true(event_reaches(event, 8, 20000));
    assert_true(comes_to(&s->n.count, 1));
    metal_event_signal(event, 10);
    assert_true(comes_to(&s->n.count, 3));
    ORDER(&s->n, 7, 9, 10);
    set_range(range_of_event_listener, MS(20), MS(20));
    uint64_t start = now_ns();
    on_event(event, listener, 10, &s->n, 11); /* reached already */
    assert_true(comes_to(&s->n.count, 4));
    assert_true(now_ns() - start >= MS(20));
    assert_int_equal(s->n.value, 10);
    on_event(event, listener, 99, &s->n, 12); /* goes with the event */
}

static void queues_meet_at_events(void **state)
{
    stage *s = *state;
    void *other = mine(metal_queue_new(s->device, 8)), *event = event_new(s->device), *memory = memory_new(s->device, 4);
    void *first = buffer_in(s->queue), *second = buffer_in(other);
    metal_encode_wait(first, event, 1);
    fill(first, memory, 2);
    metal_encode_signal(first, event, 2);
    fill(second, memory, 1);
    metal_encode_signal(second, event, 1);
    metal_commit(first);
    metal_commit(second);
    metal_wait_until_completed(first);
    assert_int_equal(bytes_of(memory)[3], 2);
    assert_int_equal(metal_event_value(event), 2);
}

static void a_listener_may_have_a_dispatch_queue(void **state)
{
    stage *s = *state;
    void *queue = dispatch_queue_create("q", NULL), *event = event_new(s->device), *pool = metal_pool_push();
    void *listener = listener_new(queue);
    softmetal_set_dispatch_threads(0);
    on_event(event, listener, 1, &s->n, 1);
    on_event(event, listener, 1, &s->n, 2);
    metal_event_signal(event, 1);
    sleep_ms(2);
    assert_int_equal(READ(&s->n.count), 0);
    softmetal_set_dispatch_threads(1);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    ORDER(&s->n, 1, 2);
    metal_pool_pop(pool);
    dispatch_release(queue);
}

/* -- kernels, layers ---------------------------------------------------------------------------------------------- */

static void add_kernel(void *user, const softmetal_kernel_args *args)
{
    *(unsigned *)user += 1;
    ((unsigned char *)args->buffers[1])[0] =
        (unsigned char)(*(unsigned char *)args->buffers[0] + args->grid[0] * args->grid[1] * args->grid[2]);
    assert_int_equal(args->lengths[0], 2);
    assert_int_equal(args->lengths[1], 5);
    assert_null(args->buffers[2]);
}

static void kernels_run(void **state)
{
    stage *s = *state;
    unsigned ran = 0;
    char message[100];
    void *memory = memory_new(s->device, 8), *buffer = buffer_in(s->queue), *pipeline, *compute, *other;
    unsigned char bytes[2] = {40, 0};
    softmetal_set_kernel("add", add_kernel, &ran, MS(5));
    softmetal_set_compile_time(MS(10), 0);
    uint64_t start = now_ns();
    pipeline = mine(metal_pipeline_new(s->device, "kernel void none (\nkernel void add(", "add", NULL, 0));
    assert_true(now_ns() - start >= MS(10));
    assert_int_equal(softmetal_compiles(), 1);
    assert_null(metal_pipeline_new(s->device, "kernel void add(", "other", NULL, 0));
    assert_null(metal_pipeline_new(s->device, "#error", "add", message, sizeof message));
    assert_string_equal(message, "program_source: error: #error");
    compute = metal_get(buffer, "computeCommandEncoder");
    metal_set_pipeline(compute, pipeline);
    metal_set_bytes(compute, bytes, 2, 0);
    bytes[0] = 0;
    metal_set_buffer(compute, memory, 3, 1);
    metal_dispatch(compute, (metal_size){2, 1, 1}, (metal_size){1, 1, 1});
    other = memory_new(s->device, 8);
    metal_set_buffer(compute, other, 3, 1);
    SEND(void, (ID, metal_size, metal_size), compute, "dispatchThreads:threadsPerThreadgroup:", ((metal_size){3, 1, 1}),
         ((metal_size){1, 1, 1}));
    metal_do(compute, "endEncoding");
    metal_commit(buffer);
    metal_wait_until_completed(buffer);
    assert_int_equal(ran, 2);
    assert_int_equal(bytes_of(memory)[3], 42);
    assert_int_equal(bytes_of(other)[3], 43);
    assert_true(metal_gpu_end(buffer) - metal_gpu_start(buffer) >= 0.01);
}

static unsigned char pixel_of(void *drawable, unsigned long x, unsigned long y)
{
    unsigned char pixel[4];
    const unsigned long region[6] = {x, y, 0, 1, 1, 1};
    typedef struct region { unsigned long at[6]; } region_;
    region_ where;
    memcpy(&where, region, sizeof where);
    SEND(void, (ID, void *, unsigned long, region_, unsigned long), metal_get(drawable, "texture"),
         "getBytes:bytesPerRow:fromRegion:mipmapLevel:", pixel, 4ul, where, 0ul);
    return pixel[0];
}
static double time_shown(void *drawable) { return METAL__AS0(double)(drawable, metal__sel("presentedTime")); }
static double drop_second(void *user, void *drawable, double seconds)
{
    (void)drawable;
    unsigned *shown = user;
    return ++*shown == 2 ? 0 : *shown == 3 ? -1 : seconds;
}
static void note_shown(block *self, void *drawable) { self->notes->found[0] += time_shown(drawable) > 0; }

static void drawables_are_shown_at_pictures_of_the_display(void **state)
{
    stage *s = *state;
    void *layer = layer_of(s, 2), *memory = memory_new(s->device, 16), *pool = metal_pool_push(), *drawables[3];
    unsigned shown = 0;
    double gap;
    bytes_of(memory)[12] = 77;
    softmetal_set_screen(drop_second, &shown);
    for (int i = 0; i < 3; i++) {
        void *buffer = buffer_in(s->queue), *blit = metal_get(buffer, "blitCommandEncoder");
        block b = stack_block(&s->n, i, note_shown);
        drawables[i] = metal_next_drawable(layer);
        metal_copy_to_drawable(blit, memory, 2, 2, drawables[i]);
        metal_do(blit, "endEncoding");
        SEND(void, (ID, void *), drawables[i], "addPresentedHandler:", &b);
        if (i < 2)
            metal_present(buffer, drawables[i]);
        else
            SEND(void, (ID, void *, double), buffer, "presentDrawable:afterMinimumDuration:", drawables[i], 0.1);
        metal_commit(buffer);
        metal_wait_until_completed(buffer);
    }
    assert_int_equal(pixel_of(drawables[0], 1, 1), 77);
    assert_int_equal(pixel_of(drawables[0], 0, 1), 0);
    ORDER(&s->n, 0, 1); /* the third one's never runs */
    assert_int_equal(s->n.found[0], 1);
    assert_true(time_shown(drawables[0]) > 0 && time_shown(drawables[1]) == 0 && time_shown(drawables[2]) == 0);
    assert_null(metal_next_drawable(layer)); /* after a second: all three are in use */
    metal_pool_pop(pool);
    assert_null(metal_next_drawable(layer_of(s, 0)));
    softmetal_set_screen(NULL, NULL);
    for (int i = 0; i < 2; i++) {
        void *buffer = buffer_in(s->queue);
        drawables[i] = metal_next_drawable(layer);
        if (i == 0)
            metal_present(buffer, drawables[i]);
        else
            SEND(void, (ID, void *, double), buffer, "presentDrawable:atTime:", drawables[i], time_shown(drawables[0]) + 0.05);
        metal_commit(buffer);
        metal_wait_until_completed(buffer);
    }
    gap = time_shown(drawables[1]) - time_shown(drawables[0]);
    assert_true(gap > 0.0499 && gap < 0.0834); /* the next of 60 in a second */
}

/* -- messages ----------------------------------------------------------------------------------------------------- */

static stage *hooked;
static char hook_saw[200];

static void hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    assert_ptr_equal(user, hooked);
    assert_non_null(object);
    (void)metal_status(hooked->n.object); /* is not seen */
    snprintf(hook_saw + strlen(hook_saw), sizeof hook_saw - strlen(hook_saw), "%c%s ", phase == SOFTMETAL_BEFORE ? '<' : '>',
             selector);
}
static char before_saw[200];
static void note_before(const char *name)
{
    snprintf(before_saw + strlen(before_saw), sizeof before_saw - strlen(before_saw), "%s ", name);
}

static void hooks_and_counters_see_the_programs_messages(void **state)
{
    stage *s = hooked = *state;
    void *event = event_new(s->device), *buffer = s->n.object = buffer_in(s->queue);
    uint64_t all = softmetal_messages(), own = softmetal_thread_messages();
    hook_saw[0] = before_saw[0] = 0;
    on_completed(buffer, &s->n, 1); /* prepares its selector */
    softmetal_set_message_hook(hook, s);
    (void)metal_status(buffer);
    metal_commit(buffer);
    (void)metal_event_value(event);
    metal_event_signal(event, 1);
    (void)metal_number(event, "hash");
    softmetal_set_message_hook(NULL, NULL);
    assert_string_equal(hook_saw, "<status >status <commit >commit <signaledValue >signaledValue <setSignaledValue: "
                                  ">setSignaledValue: <hash ");
    assert_int_equal(softmetal_message_count("commit"), 1);
    assert_int_equal(softmetal_message_count("status"), 9 + 1); /* one more in each call of the hook */
    assert_int_equal(softmetal_messages() - all, 6 + 9);
    assert_int_equal(softmetal_thread_messages() - own, 6 + 9);
    softmetal_finish(buffer);
    softmetal_before = note_before;
    void *pool = metal_pool_push();
    metal_release(metal_retain(event));
    metal_pool_pop(pool);
    (void)metal_status(buffer);
    softmetal_before = NULL;
    assert_string_equal(before_saw, "objc_release objc_autoreleasePoolPop objc_msgSend ");
    softmetal_reset();
    assert_int_equal(softmetal_messages() + softmetal_message_count("commit"), 0);
}

static void gone(void *user) { *(unsigned *)user += 1; }

static void objects_count_and_nil_answers_zero(void **state)
{
    stage *s = *state;
    unsigned ended = 0;
    void *witness = softmetal_new_witness(gone, &ended);
    (void)s;
    metal_release(metal_retain(witness));
    assert_int_equal(ended, 0);
    metal_release(witness);
    assert_int_equal(ended, 1);
    assert_null(metal_get(NULL, "device"));
    assert_true(metal_gpu_end(NULL) == 0);
    metal_release(NULL);
    assert_text(metal_get(s->device, "name"), "softmetal");
#ifdef __linux__
    uint64_t used = softmetal_engine_cpu_ns();
    void *buffer = buffer_in(s->queue);
    softmetal_set_duration(buffer, 190000); /* spun */
    assert_true(softmetal_pin(0));
    metal_commit(buffer);
    metal_wait_until_completed(buffer);
    assert_true(softmetal_engine_cpu_ns() > used);
    assert_false(softmetal_pin(100000));
    assert_true(softmetal_pin(-1));
#endif
}

/* -- libdispatch, and the lock ------------------------------------------------------------------------------------ */

static void nothing(void *context) { (void)context; }

typedef struct gate {
    unsigned inside, most, passed, open;
} gate;

static void pass(void *context)
{
    gate *g = context;
    unsigned inside = __atomic_add_fetch(&g->inside, 1, __ATOMIC_SEQ_CST), most = READ(&g->most);
    while (inside > most &&
           !__atomic_compare_exchange_n(&g->most, &most, inside, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    while (!READ(&g->open))
        sleep_ms(1);
    __atomic_sub_fetch(&g->inside, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&g->passed, 1, __ATOMIC_SEQ_CST);
}

typedef struct tally {
    uint32_t lock;
    void *queue;
    unsigned count, next; /* plain */
    bool wrong;
} tally;
static void count_up(void *context) { ((tally *)context)->count++; }
static void *give(void *context)
{
    for (int i = 0; i < 500; i++)
        dispatch_async_f(((tally *)context)->queue, context, count_up);
    return NULL;
}
static struct item { tally *t; unsigned number; } items[200];
static void expect_next(void *context)
{
    struct item *item = context;
    if (item->number != item->t->next++) item->t->wrong = true;
}

static void a_serial_queue_runs_one_function_at_a_time_in_order(void **state)
{
    tally t = {.queue = dispatch_queue_create("q", NULL)};
    gate g = {0};
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
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(g.most, 1);
    assert_int_equal(t.count, 1500);
    assert_true(!t.wrong && t.next == LENGTH(items));
    assert_int_equal(softmetal_dispatches(), 1500 + LENGTH(items) + 3);
}

static void queues_run_at_once_as_far_as_there_are_workers(void **state)
{
    void *global = dispatch_get_global_queue(0, 0), *serial = dispatch_queue_create("q", NULL);
    (void)state;
    for (unsigned most = 2; most <= SOFTMETAL_DISPATCH_THREADS; most *= 32) {
        gate g = {0};
        softmetal_set_dispatch_threads(most);
        dispatch_async_f(serial, &g, pass);
        for (unsigned i = 0; i < most; i++)
            dispatch_async_f(global, &g, pass);
        assert_true(comes_to(&g.inside, most));
        assert_false(softmetal_dispatched(MS(2)));
        PUT(&g.open, 1);
        assert_true(softmetal_dispatched(SECONDS(20)));
        assert_int_equal(g.most, most);
        assert_int_equal(g.passed, most + 1);
    }
    dispatch_release(global);
    dispatch_release(global); /* it does not count */
    assert_null(dispatch_get_global_queue(3, 0));
    assert_null(dispatch_get_global_queue(0, 1));
    dispatch_release(serial);
}

static void note_class(void *context) { *(unsigned *)context = softmetal_dispatch_qos(NULL); }

static void a_queue_has_its_class_of_service(void **state)
{
    void *attribute = dispatch_queue_attr_make_with_qos_class(NULL, 0x19, -1), *queue;
    unsigned in_function = 0;
    (void)state;
    assert_ptr_equal(dispatch_queue_attr_make_with_qos_class(attribute, 5, 0), attribute);
    assert_ptr_equal(dispatch_queue_attr_make_with_qos_class(attribute, 0x21, 1), attribute);
    queue = dispatch_queue_create("q", attribute);
    assert_int_equal(softmetal_dispatch_qos(queue), 0x19);
    dispatch_async_f(queue, &in_function, note_class);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(in_function, 0x19);
    dispatch_release(queue);
}

static void note_time(void *context) { PUT((uint64_t *)context, now_ns()); }

static void timers_come_late_and_by_themselves(void **state)
{
    void *queue = dispatch_queue_create("q", NULL);
    uint64_t start = now_ns(), came[2] = {0, 0};
    (void)state;
    assert_int_equal(dispatch_time(UINT64_MAX, -5), UINT64_MAX);
    assert_int_equal(dispatch_time(100, -200), 1);
    assert_int_equal(dispatch_time(100, 5), 105);
    assert_int_equal(dispatch_time(100, INT64_MAX), UINT64_MAX);
    dispatch_after_f(dispatch_time(0, (int64_t)MS(30)), queue, &came[0], note_time);
    dispatch_after_f(dispatch_time(0, (int64_t)MS(10)), queue, &came[1], note_time);
    assert_int_equal(softmetal_timers_armed(), 2);
    for (int i = 0; i < 20000 && softmetal_timers() > 0; i++)
        sleep_ms(1);
    assert_true(softmetal_settle(SECONDS(20)));
    assert_true(came[1] - start >= MS(11) && came[0] - start >= MS(33));
    softmetal_set_clock(SOFTMETAL_MANUAL); /* from here on the test is waited for */
    came[0] = 0;
    dispatch_after_f(dispatch_time(0, 1), queue, &came[0], note_time);
    sleep_ms(5);
    assert_true(softmetal_settle(SECONDS(20)));
    assert_int_equal(READ(&came[0]), 0);
    assert_int_equal(softmetal_timers(), 1);
    softmetal_reset();
    assert_true(came[0] > 0);
    assert_int_equal(softmetal_timers() + softmetal_timers_armed(), 0);
    dispatch_release(queue);
}

static void wait_in_function(void *user)
{
    stage *s = user;
    metal_wait_until_completed(s->n.object);
    PUT(&s->n.found[0], 1);
}

/* A function that waits for a buffer of the manual clock, and what is behind it, does not come by itself. */
static void who_waits_for_the_test_is_not_waited_for(void **state)
{
    stage *s = *state;
    tally t = {.queue = dispatch_queue_create("q", NULL)};
    s->n.object = committed_in(s->queue);
    dispatch_async_f(t.queue, s, wait_in_function);
    dispatch_async_f(t.queue, &t, count_up);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(READ(&s->n.found[0]), 0);
    softmetal_finish(s->n.object);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(READ(&s->n.found[0]), 1);
    assert_int_equal(t.count, 1);
    dispatch_release(t.queue);
}

static void what_the_system_made_is_left_to_the_system(void **state)
{
    void *(*create_)(const char *, void *) = NULL;
    unsigned count = 0;
    (void)state;
    *(void **)&create_ = dlsym(RTLD_NEXT, "dispatch_queue_create");
    if (!create_) {
        print_message("skip: there is no libdispatch behind softmetal's\n");
        skip();
    }
    void *queue = create_("q", NULL);
    dispatch_async_f(queue, &count, gone);
    assert_true(comes_to(&count, 1));
    dispatch_after_f(dispatch_time(0, (int64_t)MS(1)), queue, &count, gone);
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
    assert_int_equal(t.count, 4 * (100000 / SLOW));
    assert_int_equal(t.lock, 0);
}

/* -- quirks ------------------------------------------------------------------------------------------------------- */

/* To its end, on either clock. */
static void run(stage *s, void *buffer)
{
    metal_commit(buffer);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish(buffer);
    metal_wait_until_completed(buffer);
}
static void *handled(stage *s, void (*does)(block *, void *))
{
    void *buffer = buffer_in(s->queue);
    on_completed_do(buffer, &s->n, 1, does);
    on_completed(buffer, &s->n, 2);
    run(s, buffer);
    return buffer;
}
static void note_places(block *self, void *buffer)
{
    (void)buffer;
    self->notes->found[0] = softmetal_outstanding(self->notes->queue);
}
/* Three buffers, the first of which has a handler that stays; true: the second one's status is terminal meanwhile. */
static bool ends_behind_slow_handler(stage *s, void *event)
{
    void *first = buffer_in(s->queue), *second = buffer_in(s->queue), *third = buffer_in(s->queue);
    s->n.gated = true;
    on_completed(first, &s->n, 1);
    metal_commit(first);
    assert_true(comes_to(&s->n.inside, 1));
    metal_commit(second);
    metal_encode_signal(third, event, 1);
    metal_commit(third);
    assert_true(event_reaches(event, 1, 20000)); /* the GPU is through with the second one */
    bool ended = metal_status(second) >= COMPLETED;
    PUT(&s->n.open, 1);
    return ended;
}
static unsigned heard(stage *s)
{
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    return READ(&s->n.count);
}
static void listen(stage *s, void *event, uint64_t value) { on_event(event, listener_new(NULL), value, &s->n, 1); }
static void wait_in_vain(stage *s, void *buffer, void *event, void *signalled)
{
    metal_encode_wait(buffer, event, 1);
    metal_encode_signal(buffer, signalled, 1);
    set_watchdog(MS(50));
    metal_commit(buffer);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_time_out(buffer);
    metal_wait_until_completed(buffer);
}
/* With something ready to be done, which hangs. */
static void hang(void *buffer, void *event)
{
    softmetal_hang(buffer);
    if (event) metal_encode_signal(buffer, event, 1);
    metal_commit(buffer);
}
static void *function_that_is_missing(stage *s)
{
    void *library = mine(SEND(void *, (ID, void *, void *, void **), s->device, "newLibraryWithSource:options:error:",
                              text("kernel void add("), NULL, NULL));
    return mine(SEND(void *, (ID, void *), library, "newFunctionWithName:", text("other")));
}
static bool hang_says(stage *s, const char *words)
{
    void *error = failed_in(s, SOFTMETAL_HANG, NULL);
    char said[200];
    metal_error_copy(error, said, sizeof said);
    return !strcmp(said, words) && !user_info(error, "NSUnderlyingError");
}
static void *info(stage *s)
{
    void *buffer = buffer_with_encoders(s, 2, event_new(s->device));
    softmetal_fail_as(buffer, SOFTMETAL_HANG, NULL);
    run(s, buffer);
    return encoders_of(buffer);
}
static bool is_null(void *object) { return object == metal_get(metal__class("NSNull"), "null"); }

/* Nanoseconds, at least, of an unlock when a thread may wait. */
static uint64_t time_of_unlock(void)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        uint32_t lock = 0;
        os_unfair_lock_lock(&lock);
        lock |= 1; /* linux_lock.m: a thread may be asleep */
        uint64_t start = now_ns();
        os_unfair_lock_unlock(&lock);
        uint64_t took = now_ns() - start;
        if (took < least) least = took;
    }
    return least;
}
static bool signals_in_its_hang(void *buffer, void *event)
{
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    bool signals = event_reaches(event, 1, quirks.early_signals || quirks.overtaking_signals ? 20000 : 20);
    softmetal_unhang(buffer);
    return signals;
}
/* In a process of its own, with the quirks of this one: 101 listeners, or a second buffer of a queue for one. */
static bool ends_the_process(size_t which)
{
    char said[4096];
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    int result = run_again("--end", 2 * which + (quirks.refused_listeners || quirks.full_queue_aborts), said, sizeof said);
    return WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT;
}
static int end_process(unsigned number)
{
    stage *s = stage_open(SOFTMETAL_REAL);
    void *event = event_new(s->device), *queue = mine(metal_queue_new(s->device, 1));
    softmetal_set_quirks(&(softmetal_quirks){.refused_listeners = number & 1, .full_queue_aborts = number & 1});
    alarm(2);
    for (int i = 0; i < (number < 2 ? 101 : 0); i++)
        listen(s, event, 9);
    for (int i = 0; i < (number < 2 ? 0 : 2); i++)
        buffer_in(queue);
    return 0;
}
static void drop(stage *s)
{
    void *pool = metal_pool_push();
    on_completed(buffer_in(s->queue), &s->n, 1);
    metal_pool_pop(pool);
}
static unsigned long count_behind_status(void *buffer)
{
    void *pool = metal_pool_push();
    (void)metal_status(buffer);
    unsigned long count = softmetal_retain_count(buffer);
    metal_pool_pop(pool);
    return count;
}

/* In the order of softmetal.h */
#define QUIRKS(X)                                                                                                        \
    X(status_early, REAL, , ends_behind_slow_handler(s, e))                                                              \
    X(late_times, MANUAL, on_completed(b, &s->n, 1); metal_commit(b); softmetal_complete(b), metal_gpu_end(b) == 0)      \
    X(status_after_handlers, MANUAL, handled(s, NULL), s->n.status == SCHEDULED)                                         \
    X(lost_handlers, MANUAL, handled(s, NULL), s->n.count == 0)                                                          \
    X(wrapped_buffers, MANUAL, b = handled(s, NULL), s->n.given != b && s->n.status == COMPLETED)                        \
    X(deaf_listeners, REAL, listen(s, e, 1); metal_event_signal(e, 1), heard(s) == 0)                                    \
    X(deaf_to_everything, REAL, listen(s, e, 1); metal_encode_signal(b, e, 1); run(s, b),                                \
      heard(s) == 0 && (softmetal_tell_listeners(e), heard(s) == 1))                                                     \
    X(deaf_to_the_past, REAL, metal_event_signal(e, 1); listen(s, e, 1),                                                 \
      heard(s) == 0 && (metal_event_signal(e, 2), heard(s) == 1))                                                        \
    X(refused_listeners, REAL, , ends_the_process(0))                                                                    \
    X(deaf_device, REAL, metal_event_signal(e, 1); wait_in_vain(s, b, e, f), metal_status(b) == FAILED)                  \
    X(falling_events, REAL, metal_event_signal(e, 5); metal_event_signal(e, 3), metal_event_value(e) == 3)               \
    X(open_waits, REAL, wait_in_vain(s, b, e, f), metal_status(b) == COMPLETED)                                          \
    X(early_signals, REAL, hang(b, e), signals_in_its_hang(b, e))                                                        \
    X(overtaking_signals, REAL, hang(b, NULL); metal_encode_signal(c, e, 1); metal_commit(c),                            \
      signals_in_its_hang(b, e))                                                                                         \
    X(signals_of_the_killed, MANUAL, wait_in_vain(s, b, e, f), metal_event_value(f) == 1)                                \
    X(events_not_kept, MANUAL, metal_encode_signal(b, e, 1), softmetal_retain_count(e) == 1)                             \
    X(handlers_backwards, REAL, handled(s, NULL), s->n.order[0] == 2)                                                    \
    X(silent_dealloc, REAL, drop(s), s->n.count == 0)                                                                    \
    X(global_blocks_copied, MANUAL, metal_add_completed_handler(b, &global); run(s, b), s->n.self != &global)            \
    X(status_autoreleases, REAL, , count_behind_status(b) == 2)                                                          \
    X(uncommitted_are_free, REAL, , softmetal_outstanding(s->queue) == 0)                                                \
    X(early_places, REAL, handled(s, note_places), s->n.found[0] == 2)                                                   \
    X(full_queue_aborts, REAL, , ends_the_process(1))                                                                    \
    X(any_function, REAL, , function_that_is_missing(s))                                                                 \
    X(bare_errors, MANUAL, , hang_says(s, "Caused GPU Hang Error"))                                                      \
    X(ioaccel_errors, MANUAL, ,                                                                                          \
      hang_says(s, "Caused GPU Hang Error (00000003:kIOAccelCommandBufferCallbackErrorHang)"))                           \
    X(ioaf_errors, MANUAL, , hang_says(s, "Caused GPU Hang Error (IOAF code 3)"))                                        \
    X(no_encoder_info, MANUAL, , !info(s))                                                                               \
    X(null_encoder_info, MANUAL, , is_null(info(s)))                                                                     \
    X(empty_encoder_info, MANUAL, , metal_number(info(s), "count") == 0)                                                 \
    X(alien_encoder_info, MANUAL, , is_null(object_at(info(s), 1)))                                                      \
    X(bare_encoder_info, MANUAL, , !metal_get(object_at(info(s), 1), "label"))                                           \
    X(late_unlock, REAL, , time_of_unlock() >= MS(1))

static bool sees(stage *s, size_t row)
{
    void *e = event_new(s->device), *f = event_new(s->device), *b = buffer_in(s->queue), *c = unretained_in(s->queue);
    static block global;
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
static void *handled_by(void *buffer, notes *n, void (*does)(block *, void *))
{
    on_completed_do(buffer, n, 1, does);
    return buffer;
}
static void finish(void *buffer)
{
    metal_commit(buffer);
    softmetal_finish(buffer);
}
static void complete(void *buffer)
{
    metal_commit(buffer);
    softmetal_complete(buffer);
}
static void *blit_in(void *buffer) { return metal_get(buffer, "blitCommandEncoder"); }
static void *compute_in(void *buffer) { return metal_get(buffer, "computeCommandEncoder"); }
static void *waiting(void *buffer, void *event)
{
    metal_encode_wait(buffer, event, 1);
    return buffer;
}
static void *filling(void *buffer, void *memory)
{
    fill(buffer, memory, 1);
    return buffer;
}
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
static void *serial(void) { return dispatch_queue_create("q", NULL); }
static void *released(bool pending)
{
    void *queue = serial();
    if (pending) dispatch_after_f(dispatch_time(0, 1), queue, NULL, nothing); /* keeps it, and is no licence */
    dispatch_release(queue);
    return queue;
}
static void arm_again(void *queue) { dispatch_after_f(dispatch_time(0, 1), queue, queue, arm_again); }
static void *lock_it(void *lock)
{
    os_unfair_lock_lock(lock);
    return NULL;
}
static void set_fault_and_wait(void *buffer, void *event)
{
    softmetal_fail(waiting(buffer, event), NULL, 1, NULL);
    metal_commit(buffer);
}

/* d device, q queue, b and c buffers, m memory, e event, n notes, other: of another device */
#define RULES(X)                                                                                                         \
    X("handler-after-commit", metal_commit(b); on_completed(b, n, 1))                                                    \
    X("double-commit", metal_commit(b); metal_commit(b))                                                                 \
    X("commit-with-active-encoder", blit_in(b); metal_commit(b))                                                         \
    X("encode-after-commit", metal_commit(b); compute_in(b))                                                             \
    X("encode-after-commit", metal_commit(b); metal_encode_signal(b, e, 1))                                              \
    X("encode-after-commit", metal_commit(b); metal_present(b, drawable_of(s, false)))                                   \
    X("wait-before-commit", metal_wait_until_completed(b))                                                               \
    X("wait-in-own-handler", finish(handled_by(b, n, wait_for_it)))                                                      \
    X("enqueued-never-committed", pool = metal_pool_push(); metal_enqueue(buffer_in(q)); metal_pool_pop(pool))           \
    X("command-buffer-would-block", q = metal_queue_new(d, 1); buffer_in(q); buffer_in(q))                               \
    X("queue-full-block", softmetal_set_quirks(&(softmetal_quirks){.full_queue_aborts = true});                          \
      q = metal_queue_new(d, 1); buffer_in(q); buffer_in(q))                                                             \
    X("second-active-encoder", blit_in(b); compute_in(b))                                                                \
    X("event-with-active-encoder", blit_in(b); metal_encode_wait(b, e, 1))                                               \
    X("event-with-active-encoder", blit_in(b); metal_encode_signal(b, e, 1))                                             \
    X("double-end-encoding", m = blit_in(b); metal_do(m, "endEncoding"); metal_do(m, "endEncoding"))                     \
    X("encode-after-end", c = blit_in(b); metal_do(c, "endEncoding"); metal_fill(c, m, 0, 4, 1))                         \
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
    X("nil-argument", metal_encode_wait(b, NULL, 1))                                                                     \
    X("nil-argument", metal_present(b, NULL))                                                                            \
    X("nil-argument", on_event(e, NULL, 1, n, 1))                                                                        \
    X("nil-argument", listener_new(NULL); metal_get(SEND(void *, (ID, void *), metal_get(metal__class(                   \
      "MTLSharedEventListener"), "alloc"), "initWithDispatchQueue:", NULL), "self"))                                     \
    X("nil-argument", dispatch_async_f(NULL, NULL, nothing))                                                                \
    X("nil-argument", dispatch_async_f(serial(), NULL, NULL))                                                            \
    X("nil-argument", dispatch_after_f(dispatch_time(0, 1), NULL, NULL, nothing))                                           \
    X("nil-argument", dispatch_after_f(dispatch_time(0, 1), serial(), NULL, NULL))                                       \
    X("nil-argument", dispatch_release(NULL))                                                                            \
    X("wrong-class", metal_fill(blit_in(b), e, 0, 1, 1))                                                                 \
    X("wrong-class", dispatch_async_f(e, NULL, nothing))                                                                    \
    X("other-device", metal_fill(blit_in(b), memory_new(other, 4), 0, 4, 1))                                             \
    X("other-device", metal_encode_wait(b, metal_get(other, "newEvent"), 1))                                             \
    X("other-device", metal_present(b, metal_next_drawable(metal_layer_new(other, 2, 2))))                               \
    X("bad-length", memory_new(d, 0))                                                                                    \
    X("bad-length", metal_queue_new(d, 0))                                                                               \
    X("bad-layer", SEND(void, (ID, unsigned long), layer_of(s, 2), "setMaximumDrawableCount:", 4ul))                     \
    X("bad-layer", SEND(void, (ID, unsigned long), layer_of(s, 2), "setPixelFormat:", 1ul))                              \
    X("framebuffer-only", metal_copy_to_drawable(blit_in(b), memory_new(d, 64), 2, 2, drawable_of(s, true)))             \
    X("framebuffer-only", pixel_of(drawable_of(s, true), 0, 0))                                                          \
    X("hidden-selector", softmetal_hide_selector("commandBuffer"); buffer_in(q))                                         \
    X("over-release", m = metal_buffer_new(d, 4); metal_release(m); metal_release(m))                                    \
    X("over-release", metal_release(b); metal_pool_pop(s->pool))                                                         \
    X("over-release", m = softmetal_new_device(); metal_release(m); metal_release(m))                                    \
    X("over-release", dispatch_release(released(false)))                                                                 \
    X("over-release", dispatch_release(released(true)))                                                                  \
    X("message-to-freed", m = metal_buffer_new(d, 4); metal_release(m); metal_contents(m))                               \
    X("message-to-freed", m = metal_buffer_new(d, 4); metal_release(m); metal_retain(m))                                 \
    X("message-to-freed", m = metal_buffer_new(d, 4); metal_release(m); metal_fill(blit_in(b), m, 0, 4, 1))              \
    X("message-to-freed", pool = metal_pool_push(); handled_by(buffer_in(q), n, retain_it); metal_pool_pop(pool))        \
    X("message-to-freed", softmetal_set_quirks(&(softmetal_quirks){.wrapped_buffers = true});                            \
      finish(handled_by(b, n, NULL)); metal_status(n->given))                                                            \
    X("message-to-freed", dispatch_async_f(released(false), NULL, nothing))                                                 \
    X("message-to-freed", dispatch_async_f(released(true), NULL, nothing))                                                  \
    X("message-to-freed", dispatch_after_f(dispatch_time(0, 1), released(true), NULL, nothing))                             \
    X("pool-order", pool = metal_pool_push(); c = metal_pool_push(); metal_pool_pop(pool); metal_pool_pop(c))            \
    X("pool-order", dispatch_async_f(serial(), NULL, pool_in_function); softmetal_settle(SECONDS(20)))                   \
    X("destroyed-in-use", m = metal_buffer_new(d, 4); metal_commit(filling(c, m)); metal_release(m))                     \
    X("destroyed-in-use", m = metal_shared_event_new(d); metal_commit(waiting(c, m)); metal_release(m))                  \
    X("destroyed-in-use", m = metal_buffer_new(d, 4); filling(c, m); metal_release(m); metal_commit(c))                  \
    X("bad-block", add_block(b, NULL, 1 << 28, block_invoke))                                                            \
    X("bad-block", add_block(b, _NSConcreteGlobalBlock, 0, block_invoke))                                                \
    X("bad-block", add_block(b, _NSConcreteStackBlock, 1 << 28, block_invoke))                                           \
    X("bad-block", add_block(b, _NSConcreteMallocBlock, 0, block_invoke))                                                \
    X("bad-block", add_block(b, _NSConcreteGlobalBlock, 1 << 28, NULL))                                                  \
    X("block-changed", metal_add_completed_handler(b, &block_of_case); block_of_case.invoke = NULL; finish(b))           \
    X("dispatch-attribute", dispatch_queue_create("q", s))                                                               \
    X("dispatch-attribute", dispatch_queue_attr_make_with_qos_class(s, 0x19, 0))                                         \
    X("exit-in-function", dispatch_async_f(serial(), NULL, pthread_exit); softmetal_settle(SECONDS(20)))                 \
    X("dispatch-time", dispatch_after_f(UINT64_MAX, serial(), NULL, nothing))                                               \
    X("dispatch-time", dispatch_time(UINT64_MAX - 1, 0)) /* of the wall clock */                                         \
    X("step-not-due", metal_commit(b); softmetal_execute(b))                                                             \
    X("step-not-due", metal_commit(b); softmetal_schedule(b); softmetal_schedule(b))                                     \
    X("step-not-due", metal_commit(handled_by(b, n, NULL)); softmetal_run_handler(b, 0))                                 \
    X("step-not-due", handled_by(handled_by(b, n, NULL), n, NULL); complete(b); softmetal_run_handler(b, 0);             \
      softmetal_run_handler(b, 0))                                                                                       \
    X("step-not-due", complete(handled_by(b, n, NULL)); softmetal_call_handler_again(b, 0))                              \
    X("step-not-due", complete(waiting(b, e)))                                                                           \
    X("step-not-due", metal_commit(filling(b, m)); complete(filling(c, m)))                                              \
    X("step-not-due", metal_enqueue(b); complete(c))                                                                     \
    X("step-not-due", metal_commit(b); softmetal_time_out(b))                                                            \
    X("step-not-due", metal_event_signal(e, 1); metal_commit(waiting(b, e)); softmetal_time_out(b))                      \
    X("step-not-due", set_fault_and_wait(b, e); softmetal_time_out(b))                                                   \
    X("step-not-due", metal_commit(b); softmetal_schedule(b); softmetal_execute(b); softmetal_time_out(b))               \
    X("step-not-due", softmetal_time_out(b))                                                                             \
    X("step-on-real-clock", softmetal_set_clock(SOFTMETAL_REAL); complete(buffer_in(metal_queue_new(d, 1))))             \
    X("reset-with-work", metal_commit(b); softmetal_reset())                                                             \
    X("timer-without-end", arm_again(serial()); softmetal_reset())                                                       \
    X("panel-misuse", complete(b); softmetal_fail(b, NULL, 1, NULL))                                                     \
    X("panel-misuse", softmetal_fail_as(b, SOFTMETAL_FIRST_INTERNAL - 1, NULL))                                          \
    X("panel-misuse", softmetal_fail_next_as(1, 0))                                                                      \
    X("panel-misuse", softmetal_live("teapot"))                                                                          \
    X("panel-misuse", softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS + 1))
#define RULES_OF_LINUX(X)                                                                                                \
    X("autorelease-without-pool", in_thread(without_pool, q))                                                            \
    X("autorelease-without-pool", in_thread(behind_outer_pop, q))                                                        \
    X("autorelease-without-pool", metal_set_label(q, "q"); in_thread(label_without_pool, q))                             \
    X("autorelease-without-pool", softmetal_fail(b, NULL, 1, NULL); finish(handled_by(b, n, ask_its_error)))             \
    X("autorelease-without-pool", dispatch_async_f(serial(), q, buffer_in_function); softmetal_settle(SECONDS(20)))      \
    X("locked-twice", os_unfair_lock_lock(&lock); if (!os_unfair_lock_trylock(&lock)) os_unfair_lock_lock(&lock))        \
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
    static block block_of_case;
    static uint32_t lock;
    alarm(50);
    stage *s = stage_open(SOFTMETAL_MANUAL);
    notes *n = &s->n;
    void *d = s->device, *q = s->queue, *b = buffer_in(q), *c = unretained_in(q), *m = memory_new(d, 4), *e = event_new(d);
    void *pool, *other = mine(softmetal_new_device());
    block_of_case = global_block(n, 1, NULL);
    RULES(BREAK_IN_TURN)
    RULES_OF_LINUX(BREAK_IN_TURN)
    fprintf(stderr, "the rule did not hold\n");
    return 0;
}

static void each_rule_that_is_broken_aborts(void **state)
{
    (void)state;
    assert_they_abort(broken, 0, OF_ANY_SYSTEM);
}
static void pools_locks_and_classes_are_watched(void **state)
{
    (void)state;
    NOT_ON_A_MAC("softmetal does not see every pool, and the lock is the system's");
    assert_they_abort(broken, OF_ANY_SYSTEM, LENGTH(broken));
}
static void each_rule_has_a_case(void **state)
{
    static const char *const rules[] = {SM_RULES(NAME_OF_RULE)};
    (void)state;
    assert_each_has_a_case(rules, LENGTH(rules), broken, LENGTH(broken));
}

/* -- many threads, and races -------------------------------------------------------------------------------------- */

static void *work_on_shared_queue(void *user)
{
    stage *s = user;
    notes n = {0};
    for (unsigned i = 1; i <= 100; i++) {
        void *pool = metal_pool_push(), *memory = memory_new(s->device, 64), *buffer = buffer_in(s->n.queue);
        fill(buffer, memory, (unsigned char)i);
        on_completed(buffer, &n, (int)i);
        metal_commit(buffer);
        metal_wait_until_completed(buffer);
        assert_int_equal(bytes_of(memory)[63], metal_status(buffer) == COMPLETED ? i : 0);
        assert_int_equal(READ(&n.count), i);
        metal_pool_pop(pool);
    }
    return NULL;
}

static void threads_share_a_queue(void **state)
{
    stage *s = *state;
    pthread_t threads[4];
    s->n.queue = mine(metal_queue_new(s->device, 3)); /* fewer places than threads */
    set_range(range_of_execute, 0, 20000);
    set_range(range_of_notify, 0, 20000);
    softmetal_set_chaos(&(softmetal_chaos){50, 100, 300});
    softmetal_set_seed(42);
    for (int i = 0; i < 4; i++)
        threads[i] = begin_thread(work_on_shared_queue, s);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(softmetal_settle(SECONDS(20)));
    assert_int_equal(softmetal_outstanding(s->n.queue), 0);
}

/* What Metal and libdispatch leave unordered, ThreadSanitizer must find unordered. The flags order the moments alone. */
static int plain, written, looked;
static void raise_flag(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELAXED); }
static void wait_for_flag(int *flag)
{
    while (!__atomic_load_n(flag, __ATOMIC_RELAXED))
        sleep_ms(1);
}
static void write_late(block *self, void *buffer)
{
    (void)self, (void)buffer;
    wait_for_flag(&looked);
    plain = 1;
}
static void stay(void *context)
{
    (void)context;
    raise_flag(&written);
    wait_for_flag(&looked);
}
static void write_it(void *context) { (void)context, plain = 1; }
static void look(void *context)
{
    (void)context;
    wait_for_flag(&written);
    assert_int_equal(plain, 1);
    raise_flag(&looked);
}
static void *dispatch_and_stay(void *queue)
{
    plain = 1;
    dispatch_async_f(queue, NULL, nothing);
    stay(NULL);
    return NULL;
}
static void race_of_handler_and_later_status(stage *s, void *q, void *p)
{
    void *first = buffer_in(s->queue), *second = buffer_in(s->queue), *third = buffer_in(s->queue), *event = event_new(s->device);
    (void)q, (void)p;
    on_completed_do(first, &s->n, 1, write_late);
    metal_encode_signal(third, event, 1);
    metal_commit(first);
    metal_commit(second);
    metal_commit(third);
    assert_true(event_reaches(event, 1, 20000)); /* the GPU has ended with the second one, before the handler writes */
    raise_flag(&looked);
    while (metal_status(second) < COMPLETED)
        sleep_ms(1);
    assert_int_equal(plain, 1);
    metal_wait_until_completed(third);
}
static void race_of_dispatchers(stage *s, void *q, void *p)
{
    (void)s, (void)p;
    pthread_t thread = begin_thread(dispatch_and_stay, q);
    wait_for_flag(&written);
    dispatch_async_f(q, NULL, nothing);
    look(NULL);
    pthread_join(thread, NULL);
}
static void race_of_function_and_dispatcher(stage *s, void *q, void *p)
{
    (void)s, (void)p;
    dispatch_async_f(q, NULL, write_it);
    dispatch_async_f(q, NULL, stay);
    look(NULL);
}
static void race_of_queues(stage *s, void *q, void *p)
{
    (void)s;
    dispatch_async_f(q, NULL, write_it);
    dispatch_async_f(q, NULL, stay); /* keeps the worker */
    wait_for_flag(&written);
    dispatch_async_f(p, NULL, look);
    assert_true(softmetal_settle(SECONDS(20)));
}
static void (*const races[])(stage *, void *, void *) = {race_of_handler_and_later_status, race_of_dispatchers,
                                                          race_of_function_and_dispatcher, race_of_queues};

static int run_race(size_t number)
{
    alarm(50);
    races[number](stage_open(SOFTMETAL_REAL), dispatch_queue_create("first", NULL), dispatch_queue_create("second", NULL));
    assert_true(softmetal_settle(SECONDS(20)));
    return 0;
}

static void races_are_not_hidden(void **state)
{
    (void)state;
    if (!__has_feature(thread_sanitizer)) {
        print_message("skip: races are looked for with SANITIZE=thread\n");
        skip();
    }
    for (size_t i = 0; i < LENGTH(races); i++) {
        char said[16384];
        int result = run_again("--race", i, said, sizeof said);
        if (!WIFEXITED(result) || !WEXITSTATUS(result) || !strstr(said, "data race")) fail_msg("race %zu: %s", i, said);
    }
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        on_real(work_reaches_memory_in_the_queues_order),
        on_real(a_buffer_ends_in_this_order),
        on_real(a_slow_handler_delays_its_queue_and_no_other),
        on_real(a_poller_sees_the_work),
        on_real(a_buffer_that_is_dropped_runs_its_handlers),
        on_manual(references_last_until_the_end),
        on_real(times_are_ordered_and_durations_kept),
        on_real(a_full_queue_blocks_the_next_buffer),
        on_manual(each_transition_by_hand),
        on_manual(handlers_of_two_buffers_run_at_once),
        on_manual(a_test_can_ask_what_is_due),
        on_manual(a_queue_is_finished_in_order_and_reset_loses_the_rest),
        on_manual(the_watchdog_ends_a_wait),
        on_real(the_watchdog_ends_a_wait),
        on_manual(the_drivers_number_makes_the_error),
        on_manual(metals_code_stands_for_a_number),
        on_manual(a_failed_buffer_does_what_comes_before_its_fault),
        on_real(a_failed_buffer_does_what_comes_before_its_fault),
        on_manual(an_error_tells_of_the_encoders),
        on_real(handlers_are_held_and_lost),
        on_real(a_hang_ends_with_unhang_or_removal),
        on_real(the_nth_creation_fails),
        on_real(what_is_hidden_is_not_there),
        on_real(there_are_other_devices),
        on_real(chance_fails_reorders_and_overlaps),
        on_real(latencies_lie_where_they_should),
        on_real(events_rise_and_wake),
        on_real(queues_meet_at_events),
        on_real(a_listener_may_have_a_dispatch_queue),
        on_real(kernels_run),
        on_real(drawables_are_shown_at_pictures_of_the_display),
        on_manual(hooks_and_counters_see_the_programs_messages),
        on_real(objects_count_and_nil_answers_zero),
        on_real(a_serial_queue_runs_one_function_at_a_time_in_order),
        on_real(queues_run_at_once_as_far_as_there_are_workers),
        on_real(a_queue_has_its_class_of_service),
        on_real(timers_come_late_and_by_themselves),
        on_manual(who_waits_for_the_test_is_not_waited_for),
        on_real(what_the_system_made_is_left_to_the_system),
        on_real(one_thread_at_a_time_has_a_lock),
        cmocka_unit_test(each_quirk_is_seen_with_it_and_not_without),
        cmocka_unit_test(each_rule_that_is_broken_aborts),
        cmocka_unit_test(pools_locks_and_classes_are_watched),
        cmocka_unit_test(each_rule_has_a_case),
        on_real(threads_share_a_queue),
        cmocka_unit_test(races_are_not_hidden),
    };
    own_path = arguments[0];
    if (count == 3 && !strcmp(arguments[1], "--break")) return break_rule((size_t)atoi(arguments[2]));
    if (count == 3 && !strcmp(arguments[1], "--end")) return end_process((unsigned)atoi(arguments[2]));
    if (count == 3 && !strcmp(arguments[1], "--race")) return run_race((size_t)atoi(arguments[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
