/* test_softmetal.c - the software device itself: it behaves as Metal does, and aborts where it must

   Plain C, as every program that softmetal is made for. Each rule has a case that breaks it: the test
   runs itself again with the case's name and expects SIGABRT and the rule's name on stderr. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rules.h"
#include "softmetal.h"

/* ------------------------------------------------------------- the runtime, seen from C -- */

extern void os_unfair_lock_lock(uint32_t *lock);
extern bool os_unfair_lock_trylock(uint32_t *lock);
extern void os_unfair_lock_unlock(uint32_t *lock);
extern void objc_msgSend(void);
extern void *sel_registerName(const char *name);
extern void *objc_getClass(const char *name);
extern void *object_getClass(void *object);
extern signed char class_respondsToSelector(void *cls, void *selector);
extern void *objc_retain(void *object);
extern void objc_release(void *object);
extern void *objc_autorelease(void *object);
extern void *objc_autoreleasePoolPush(void);
extern void objc_autoreleasePoolPop(void *token);
extern void *MTLCreateSystemDefaultDevice(void);
extern void *MTLCopyAllDevices(void);
extern void *const MTLCommandBufferErrorDomain;
extern void *_NSConcreteGlobalBlock[32], *_NSConcreteStackBlock[32];

/* Not const: a compiler that knows the callee rejects the call through another type. */
static void (*message)(void) = objc_msgSend;

#define SEND(result, types, object, selector) (((result(*) types)message)((object), sel_registerName(selector)))
#define SEND_WITH(result, types, object, selector, ...) \
    (((result(*) types)message)((object), sel_registerName(selector), __VA_ARGS__))
#define GET(object, selector) SEND(void *, (void *, void *), object, selector)
#define DO(object, selector) SEND(void, (void *, void *), object, selector)
#define DO1(object, selector, argument) SEND_WITH(void, (void *, void *, void *), object, selector, argument)
#define GET1(object, selector, argument) SEND_WITH(void *, (void *, void *, void *), object, selector, argument)
#define GET_DOUBLE(object, selector) SEND(double, (void *, void *), object, selector)
#define GET_LONG(object, selector) SEND(unsigned long, (void *, void *), object, selector)

typedef struct range {
    unsigned long location, length;
} range;
typedef struct size {
    unsigned long width, height, depth;
} size;

enum { NOT_ENQUEUED, ENQUEUED, COMMITTED, SCHEDULED, COMPLETED, FAILED };

#define SECOND UINT64_C(1000000000)
#define MS UINT64_C(1000000)

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* ------------------------------------------------------------------- words for messages -- */

static void *device_new(void)
{
    return MTLCreateSystemDefaultDevice();
}
static void *queue_new(void *device)
{
    return GET(device, "newCommandQueue");
}
static void *queue_new_of(void *device, unsigned long count)
{
    return SEND_WITH(void *, (void *, void *, unsigned long), device,
                     "newCommandQueueWithMaxCommandBufferCount:", count);
}
static void *memory_new(void *device, unsigned long bytes)
{
    return SEND_WITH(void *, (void *, void *, unsigned long, unsigned long), device,
                     "newBufferWithLength:options:", bytes, 0ul);
}
static unsigned char *contents(void *memory)
{
    return GET(memory, "contents");
}
static void *buffer_in(void *queue)
{
    return GET(queue, "commandBuffer");
}
static unsigned long status(void *buffer)
{
    return GET_LONG(buffer, "status");
}
static void commit(void *buffer)
{
    DO(buffer, "commit");
}
static void wait_done(void *buffer)
{
    DO(buffer, "waitUntilCompleted");
}
static void *string(const char *text)
{
    return SEND_WITH(void *, (void *, void *, const char *), objc_getClass("NSString"), "stringWithUTF8String:", text);
}
static const char *text_of(void *nsstring)
{
    return GET(nsstring, "UTF8String");
}

static void fill_in(void *encoder, void *memory, unsigned long at, unsigned long bytes, unsigned char value)
{
    SEND_WITH(void, (void *, void *, void *, range, unsigned char), encoder, "fillBuffer:range:value:", memory,
              (range){at, bytes}, value);
}
static void copy_in(void *encoder, void *from, unsigned long from_at, void *to, unsigned long to_at,
                    unsigned long bytes)
{
    SEND_WITH(void, (void *, void *, void *, unsigned long, void *, unsigned long, unsigned long), encoder,
              "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", from, from_at, to, to_at, bytes);
}
static void fill(void *buffer, void *memory, unsigned char value)
{
    void *encoder = GET(buffer, "blitCommandEncoder");
    fill_in(encoder, memory, 0, GET_LONG(memory, "length"), value);
    DO(encoder, "endEncoding");
}
static void copy(void *buffer, void *from, void *to)
{
    void *encoder = GET(buffer, "blitCommandEncoder");
    copy_in(encoder, from, 0, to, 0, GET_LONG(from, "length"));
    DO(encoder, "endEncoding");
}
static void encode_signal(void *buffer, void *event, uint64_t value)
{
    SEND_WITH(void, (void *, void *, void *, uint64_t), buffer, "encodeSignalEvent:value:", event, value);
}
static void encode_wait(void *buffer, void *event, uint64_t value)
{
    SEND_WITH(void, (void *, void *, void *, uint64_t), buffer, "encodeWaitForEvent:value:", event, value);
}
static uint64_t event_value(void *event)
{
    return SEND(uint64_t, (void *, void *), event, "signaledValue");
}
static void set_event(void *event, uint64_t value)
{
    SEND_WITH(void, (void *, void *, uint64_t), event, "setSignaledValue:", value);
}
static bool event_wait(void *event, uint64_t value, uint64_t ms)
{
    return SEND_WITH(signed char, (void *, void *, uint64_t, uint64_t), event,
                     "waitUntilSignaledValue:timeoutMS:", value, ms) != 0;
}
static bool responds(void *object, const char *selector)
{
    return SEND_WITH(signed char, (void *, void *, void *), object,
                     "respondsToSelector:", sel_registerName(selector)) != 0;
}

/* ------------------------------------------------------------------------ blocks by hand -- */

typedef struct descriptor {
    uintptr_t reserved, size;
    void (*copy)(void *to, const void *from);
    void (*dispose)(const void *block);
    const char *signature, *layout;
} descriptor;

typedef struct global_descriptor {
    uintptr_t reserved, size;
    const char *signature, *layout;
} global_descriptor;

typedef void (*any_function)(void);

typedef struct block {
    void *isa;
    int32_t flags, reserved;
    any_function invoke;
    const void *descriptor;
    struct log *log;
    int number;
} block;

/* What the blocks of a test did, in order. */
typedef struct log {
    pthread_mutex_t lock;
    int order[64];
    unsigned count, disposed;
    unsigned long status;
    uint64_t value;
    pthread_t thread;
    void *library, *error; /* of a compilation; retained */
    volatile int gate;     /* a handler waits until it is not 1 */
    int inside;            /* handlers that are in the gate now */
} log_;

static void log_add(log_ *log, int number)
{
    pthread_mutex_lock(&log->lock);
    log->order[log->count++ % 64] = number;
    log->thread = pthread_self();
    pthread_mutex_unlock(&log->lock);
}
static unsigned log_count(log_ *log)
{
    pthread_mutex_lock(&log->lock);
    unsigned count = log->count;
    pthread_mutex_unlock(&log->lock);
    return count;
}
static bool log_reaches(log_ *log, unsigned count)
{
    for (int i = 0; i < 5000 && log_count(log) < count; i++) sleep_ms(1);
    return log_count(log) >= count;
}

static void handler_invoke(void *self, void *buffer)
{
    block *b = self;
    __atomic_store_n(&b->log->status, status(buffer), __ATOMIC_RELEASE);
    __atomic_add_fetch(&b->log->inside, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&b->log->gate, __ATOMIC_ACQUIRE)) sleep_ms(1);
    __atomic_sub_fetch(&b->log->inside, 1, __ATOMIC_SEQ_CST);
    log_add(b->log, b->number);
}
static void event_invoke(void *self, void *event, uint64_t value)
{
    block *b = self;
    (void)event;
    __atomic_store_n(&b->log->value, value, __ATOMIC_RELEASE);
    log_add(b->log, b->number);
}
static void compile_invoke(void *self, void *result, void *error)
{
    block *b = self;
    b->log->library = objc_retain(result);
    b->log->error = objc_retain(error);
    log_add(b->log, b->number);
}

static void block_copy(void *to, const void *from)
{
    (void)to, (void)from;
}
static void block_dispose(const void *self)
{
    log_ *log = ((const block *)self)->log;
    pthread_mutex_lock(&log->lock);
    log->disposed++;
    pthread_mutex_unlock(&log->lock);
}

static const descriptor stack_descriptor = {0, sizeof(block), block_copy, block_dispose, "v16@?0@8", NULL};
static const global_descriptor plain_descriptor = {0, sizeof(block), "v16@?0@8", NULL};

static block stack_block(any_function invoke, log_ *log, int number)
{
    return (block){_NSConcreteStackBlock, (int32_t)(1u << 25 | 1u << 30), 0, invoke, &stack_descriptor, log, number};
}
static block global_block(any_function invoke, log_ *log, int number)
{
    return (block){_NSConcreteGlobalBlock, (int32_t)(1u << 28 | 1u << 30), 0, invoke, &plain_descriptor, log, number};
}
static void on_completed(void *buffer, log_ *log, int number)
{
    block b = stack_block((any_function)handler_invoke, log, number);
    DO1(buffer, "addCompletedHandler:", &b);
}
static void on_scheduled(void *buffer, log_ *log, int number)
{
    block b = stack_block((any_function)handler_invoke, log, number);
    DO1(buffer, "addScheduledHandler:", &b);
}
static void on_event(void *event, void *listener, uint64_t value, log_ *log, int number)
{
    block b = stack_block((any_function)event_invoke, log, number);
    SEND_WITH(void, (void *, void *, void *, uint64_t, void *), event, "notifyListener:atValue:block:", listener, value,
              &b);
}

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
    s->queue = queue_new_of(s->device, limit);
    s->pool = objc_autoreleasePoolPush();
}

static void stage_close(stage *s)
{
    objc_autoreleasePoolPop(s->pool);
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

static void handlers_of_a_dropped_buffer_are_disposed(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    void *pool = objc_autoreleasePoolPush();
    on_completed(buffer_in(s.queue), &s.log, 1);
    objc_autoreleasePoolPop(pool);
    assert_int_equal(s.log.disposed, 1);
    assert_int_equal(log_count(&s.log), 0);
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
    assert_true(SEND_WITH(signed char, (void *, void *, long), s.device, "supportsFamily:", 5002l) == 0);
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

static void chaos_reorders_handlers_and_fails_buffers(void **state)
{
    (void)state;
    stage s;
    stage_open(&s, SOFTMETAL_REAL, 64);
    softmetal_set_chaos(&(softmetal_chaos){.late_handler_per_mille = 1000});
    void *late = buffer_in(s.queue), *next = buffer_in(s.queue);
    on_completed(late, &s.log, 1);
    on_completed(next, &s.log, 2);
    commit(late);
    softmetal_set_chaos(&(softmetal_chaos){.fail_per_mille = 1000});
    commit(next);
    wait_done(late);
    wait_done(next);
    assert_error(next, "MTLCommandBufferErrorDomain", 1, NULL);
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
    assert_false(responds(s.device, "newMTL4CommandQueue"));
    softmetal_hide_selector("newSharedEvent");
    assert_false(responds(s.device, "newSharedEvent"));
    if (softmetal_sees_messages())
        assert_false(class_respondsToSelector(object_getClass(s.device), sel_registerName("newSharedEvent")));
    assert_true(responds(s.device, "newEvent"));
    softmetal_reset();
    assert_true(responds(s.device, "newSharedEvent"));
    stage_close(&s);
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

/* ------------------------------------------------------------------------------- messages -- */

static void messages_are_counted(void **state)
{
    (void)state;
    if (!softmetal_sees_messages()) skip();
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
    if (softmetal_sees_messages())
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

static void *wait_on_thread(void *user)
{
    log_ *log = user;
    wait_done(log->library);
    log_add(log, 9);
    return NULL;
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
static void case_second_encoder(stage *s)
{
    void *buffer = buffer_in(s->queue);
    GET(buffer, "blitCommandEncoder");
    GET(buffer, "computeCommandEncoder");
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
static void case_unknown_kind(stage *s)
{
    (void)s;
    softmetal_live("teapot");
}

typedef struct rule_case {
    const char *rule;
    void (*run)(stage *s);
} rule_case;

static const rule_case rule_cases[] = {
    {"handler-after-commit", case_handler_after_commit},
    {"double-commit", case_double_commit},
    {"commit-with-active-encoder", case_commit_with_active_encoder},
    {"encode-after-commit", case_encode_after_commit},
    {"encode-after-commit", case_encode_event_after_commit},
    {"wait-before-commit", case_wait_before_commit},
    {"wait-in-own-handler", case_wait_in_own_handler},
    {"enqueued-never-committed", case_enqueued_never_committed},
    {"command-buffer-would-block", case_would_block},
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
    {"autorelease-without-pool", case_no_pool},
    {"autorelease-without-pool", case_no_pool_after_outer_pop},
    {"autorelease-without-pool", case_label_without_pool},
    {"autorelease-without-pool", case_error_in_handler_without_pool},
    {"pool-order", case_pool_order},
    {"locked-twice", case_locked_twice},
    {"unlocked-by-other", case_unlocked_by_other},
    {"destroyed-in-use", case_destroyed_in_use},
    {"destroyed-in-use", case_event_destroyed_in_use},
    {"destroyed-in-use", case_destroyed_before_commit},
    {"block-changed", case_block_changed_before_call},
    {"block-changed", case_block_changed_before_release},
    {"step-not-due", case_execute_unscheduled},
    {"step-not-due", case_schedule_twice},
    {"step-not-due", case_handler_before_completion},
    {"step-not-due", case_handler_twice},
    {"step-not-due", case_release_before_handler},
    {"step-not-due", case_execute_unreached_wait},
    {"step-not-due", case_execute_out_of_order},
    {"step-not-due", case_execute_behind_enqueued},
    {"step-on-real-clock", case_step_real_clock},
    {"reset-with-work", case_reset_with_work},
    {"panel-misuse", case_fail_when_terminal},
    {"panel-misuse", case_unknown_kind},
};
#define RULE_CASES (sizeof rule_cases / sizeof rule_cases[0])

/* Rules that only Linux can watch: Apple's runtime is not ours to look into. */
static bool needs_our_runtime(const char *rule)
{
    return strcmp(rule, "autorelease-without-pool") == 0 || strcmp(rule, "pool-order") == 0 ||
           strcmp(rule, "hidden-selector") == 0 || strcmp(rule, "locked-twice") == 0 ||
           strcmp(rule, "unlocked-by-other") == 0;
}

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

static const char *own_path;

static int break_rule(const char *number)
{
    stage s;
    alarm(50);
    stage_open(&s, SOFTMETAL_MANUAL, 64);
    rule_cases[atoi(number)].run(&s);
    fprintf(stderr, "the rule did not hold\n");
    return 0;
}

/* Runs the case in a process of its own; its stderr goes to `text`. */
static int run_case(unsigned number, char *text, size_t capacity)
{
    int ends[2];
    char argument[16];
    snprintf(argument, sizeof argument, "%u", number);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        execl(own_path, own_path, "--break", argument, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    size_t length = 0;
    ssize_t got;
    while ((got = read(ends[0], text + length, capacity - 1 - length)) > 0) length += (size_t)got;
    text[length] = 0;
    close(ends[0]);
    int result = 0;
    waitpid(child, &result, 0);
    return result;
}

static bool names_rule(const char *text, const char *rule)
{
    char start[100];
    snprintf(start, sizeof start, "softmetal: %s: ", rule);
    return strstr(text, start) != NULL;
}

static void every_broken_rule_aborts(void **state)
{
    (void)state;
    unsigned wrong = 0;
    for (unsigned i = 0; i < RULE_CASES; i++) {
        if (!softmetal_sees_messages() && needs_our_runtime(rule_cases[i].rule)) continue;
        char text[4096];
        int result = run_case(i, text, sizeof text);
        if (WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT && names_rule(text, rule_cases[i].rule)) continue;
        fprintf(stderr, "case %u of %s: status %d, it said: %s\n", i, rule_cases[i].rule, result, text);
        wrong++;
    }
    assert_int_equal(wrong, 0);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fill_reaches_memory),
        cmocka_unit_test(work_of_one_queue_keeps_its_order),
        cmocka_unit_test(handlers_run_before_the_wait_returns),
        cmocka_unit_test(times_are_ordered_and_durations_kept),
        cmocka_unit_test(a_full_queue_blocks_the_next_buffer),
        cmocka_unit_test(references_last_until_the_end),
        cmocka_unit_test(a_committed_buffer_keeps_itself_alive),
        cmocka_unit_test(handlers_of_a_dropped_buffer_are_disposed),
        cmocka_unit_test(a_global_block_stays_where_it_is),
        cmocka_unit_test(descriptors_labels_and_relations),
        cmocka_unit_test(a_failed_buffer_does_nothing_and_says_why),
        cmocka_unit_test(held_handlers_wait_and_lost_ones_never_run),
        cmocka_unit_test(status_may_follow_the_handlers),
        cmocka_unit_test(a_buffer_is_scheduled_while_another_runs),
        cmocka_unit_test(a_hang_ends_with_unhang_or_removal),
        cmocka_unit_test(chaos_reorders_handlers_and_fails_buffers),
        cmocka_unit_test(independent_buffers_overlap),
        cmocka_unit_test(the_nth_creation_fails),
        cmocka_unit_test(hidden_selectors_are_not_answered),
        cmocka_unit_test(events_only_rise_and_wake),
        cmocka_unit_test(queues_meet_at_events),
        cmocka_unit_test(the_watchdog_ends_a_wait_for_ever),
        cmocka_unit_test(messages_are_counted),
        cmocka_unit_test(nil_answers_zero_and_arguments_arrive),
        cmocka_unit_test(hooks_see_the_programs_messages),
        cmocka_unit_test(kernels_run),
        cmocka_unit_test(compilation_fails_and_takes_time),
        cmocka_unit_test(each_transition_by_hand),
        cmocka_unit_test(handlers_of_two_buffers_run_at_once),
        cmocka_unit_test(a_manual_buffer_lets_its_waiter_go_at_the_end),
        cmocka_unit_test(finish_queue_takes_them_in_order),
        cmocka_unit_test(threads_share_a_queue),
        cmocka_unit_test(queues_pass_events_around),
        cmocka_unit_test(every_rule_has_a_case),
        cmocka_unit_test(one_at_a_time_has_a_lock),
        cmocka_unit_test(every_broken_rule_aborts),
    };
    return cmocka_run_group_tests_name("softmetal", tests, NULL, NULL);
}
