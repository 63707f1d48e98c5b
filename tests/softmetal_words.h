/* softmetal_words.h - what the tests of the software device itself share: few words for messages, blocks by hand, and
   broken rules

   Plain C, as every program that softmetal is made for, and without gpusync. */
#ifndef SOFTMETAL_WORDS_H
#define SOFTMETAL_WORDS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "from.h"

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

#define MAYBE_UNUSED __attribute__((unused))

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
extern void *_NSConcreteGlobalBlock[32], *_NSConcreteStackBlock[32], *_NSConcreteMallocBlock[32];
extern void *dispatch_queue_create(const char *label, void *attribute);
extern void *dispatch_queue_attr_make_with_qos_class(void *attribute, unsigned qos_class, int relative_priority);
extern void *dispatch_get_global_queue(intptr_t identifier, uintptr_t flags);
extern uint64_t dispatch_time(uint64_t when, int64_t delta);
extern void dispatch_async_f(void *queue, void *context, void (*function)(void *));
extern void dispatch_after_f(uint64_t when, void *queue, void *context, void (*function)(void *));
extern void dispatch_retain(void *object);
extern void dispatch_release(void *object);

/* Not const: a compiler that knows the callee rejects the call through another type. */
static MAYBE_UNUSED void (*message_send)(void) = objc_msgSend;

#define SEND(result, types, object, selector) (((result(*) types)message_send)((object), sel_registerName(selector)))
#define SEND_WITH(result, types, object, selector, ...) \
    (((result(*) types)message_send)((object), sel_registerName(selector), __VA_ARGS__))
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

/* The clock of the device's times. */
static MAYBE_UNUSED uint64_t now_ns(void)
{
#ifdef __APPLE__
    return clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
#endif
}

static MAYBE_UNUSED void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* ------------------------------------------------------------------- words for messages -- */

static MAYBE_UNUSED void *device_new(void)
{
    return MTLCreateSystemDefaultDevice();
}
static MAYBE_UNUSED void *queue_new(void *device)
{
    return GET(device, "newCommandQueue");
}
static MAYBE_UNUSED void *queue_new_of(void *device, unsigned long count)
{
    return SEND_WITH(void *, (void *, void *, unsigned long), device,
                     "newCommandQueueWithMaxCommandBufferCount:", count);
}
static MAYBE_UNUSED void *memory_new(void *device, unsigned long bytes)
{
    return SEND_WITH(void *, (void *, void *, unsigned long, unsigned long), device,
                     "newBufferWithLength:options:", bytes, 0ul);
}
static MAYBE_UNUSED unsigned char *contents(void *memory)
{
    return GET(memory, "contents");
}
static MAYBE_UNUSED void *buffer_in(void *queue)
{
    return GET(queue, "commandBuffer");
}
static MAYBE_UNUSED unsigned long status(void *buffer)
{
    return GET_LONG(buffer, "status");
}
static MAYBE_UNUSED void commit(void *buffer)
{
    DO(buffer, "commit");
}
static MAYBE_UNUSED void wait_done(void *buffer)
{
    DO(buffer, "waitUntilCompleted");
}
static MAYBE_UNUSED void *string(const char *text)
{
    return SEND_WITH(void *, (void *, void *, const char *), objc_getClass("NSString"), "stringWithUTF8String:", text);
}
static MAYBE_UNUSED const char *text_of(void *nsstring)
{
    return GET(nsstring, "UTF8String");
}

/* NULL: there is none. */
static MAYBE_UNUSED void *error_below(void *error)
{
    return error ? GET1(GET(error, "userInfo"), "objectForKey:", string("NSUnderlyingError")) : NULL;
}
static MAYBE_UNUSED long code_of(void *error) /* -1: there is no error */
{
    return error ? (long)GET_LONG(error, "code") : -1;
}

/* What softmetal makes of the driver's numbers, for either kind of queue. */
typedef struct made_of_number {
    unsigned number;
    long code, code4;
    const char *words, *name; /* name NULL: the words once more */
} made_of_number;

static MAYBE_UNUSED const made_of_number made_of_numbers[] = {
    {SOFTMETAL_TIMEOUT, 2, 1, "Caused GPU Timeout Error", "Timeout"},
    {SOFTMETAL_HANG, 2, 1, "Caused GPU Hang Error", "Hang"},
    {SOFTMETAL_SUBMISSIONS_IGNORED, 4, 5, "Ignored (for causing prior/excessive GPU errors)", "SubmissionsIgnored"},
    {SOFTMETAL_INNOCENT_VICTIM, 1, 6, "Discarded (victim of GPU error/recovery)", "InnocentVictim"},
    {SOFTMETAL_BACKGROUND, 7, 2, "Insufficient Permission (to submit GPU work from background)",
     "BackgroundExecutionNotPermitted"},
    {SOFTMETAL_OUT_OF_MEMORY, 8, 3, "Insufficient Memory", "OutOfMemory"},
    {SOFTMETAL_INVALID_RESOURCE, 9, 6, "Invalid Resource", "InvalidResource"},
    {SOFTMETAL_PAGE_FAULT, 3, 6, "Caused GPU Address Fault Error", "PageFault"},
    {SOFTMETAL_IMPACTING_INTERACTIVITY, 1, 6, "Impacting Interactivity", "ImpactingInteractivity"},
    {SOFTMETAL_FIRST_INTERNAL, 1, 6, "Internal Error", NULL},
    {SOFTMETAL_INTERNAL, 1, 6, "Internal Error", NULL},
    {0xE00002BD, 1, 6, "Internal Error", NULL},
};
#define MADE_OF_NUMBERS (sizeof made_of_numbers / sizeof *made_of_numbers)

#define LONGEST_TEXT 160

/* `driver` is GPU or Accel. */
static MAYBE_UNUSED void text_of_number(char text[LONGEST_TEXT], const made_of_number *made, const char *driver)
{
    if (made->name)
        snprintf(text, LONGEST_TEXT, "%s (%08x:kIO%sCommandBufferCallbackError%s)", made->words, made->number, driver,
                 made->name);
    else
        snprintf(text, LONGEST_TEXT, "%s (%08x:%s)", made->words, made->number, made->words);
}

static MAYBE_UNUSED void fill_in(void *encoder, void *memory, unsigned long at, unsigned long bytes, unsigned char value)
{
    SEND_WITH(void, (void *, void *, void *, range, unsigned char), encoder, "fillBuffer:range:value:", memory,
              (range){at, bytes}, value);
}
static MAYBE_UNUSED void copy_in(void *encoder, void *from, unsigned long from_at, void *to, unsigned long to_at,
                    unsigned long bytes)
{
    SEND_WITH(void, (void *, void *, void *, unsigned long, void *, unsigned long, unsigned long), encoder,
              "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", from, from_at, to, to_at, bytes);
}
static MAYBE_UNUSED void fill(void *buffer, void *memory, unsigned char value)
{
    void *encoder = GET(buffer, "blitCommandEncoder");
    fill_in(encoder, memory, 0, GET_LONG(memory, "length"), value);
    DO(encoder, "endEncoding");
}
static MAYBE_UNUSED void copy(void *buffer, void *from, void *to)
{
    void *encoder = GET(buffer, "blitCommandEncoder");
    copy_in(encoder, from, 0, to, 0, GET_LONG(from, "length"));
    DO(encoder, "endEncoding");
}
static MAYBE_UNUSED void encode_signal(void *buffer, void *event, uint64_t value)
{
    SEND_WITH(void, (void *, void *, void *, uint64_t), buffer, "encodeSignalEvent:value:", event, value);
}
static MAYBE_UNUSED void encode_wait(void *buffer, void *event, uint64_t value)
{
    SEND_WITH(void, (void *, void *, void *, uint64_t), buffer, "encodeWaitForEvent:value:", event, value);
}
static MAYBE_UNUSED uint64_t event_value(void *event)
{
    return SEND(uint64_t, (void *, void *), event, "signaledValue");
}
static MAYBE_UNUSED void set_event(void *event, uint64_t value)
{
    SEND_WITH(void, (void *, void *, uint64_t), event, "setSignaledValue:", value);
}
static MAYBE_UNUSED bool event_wait(void *event, uint64_t value, uint64_t ms)
{
    return SEND_WITH(signed char, (void *, void *, uint64_t, uint64_t), event,
                     "waitUntilSignaledValue:timeoutMS:", value, ms) != 0;
}
static MAYBE_UNUSED bool responds(void *object, const char *selector)
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
    void *queue, *given;   /* given: what the handler got */
    unsigned places_at_dispose;
} log_;

static MAYBE_UNUSED void log_add(log_ *log, int number)
{
    pthread_mutex_lock(&log->lock);
    log->order[log->count++ % 64] = number;
    log->thread = pthread_self();
    pthread_mutex_unlock(&log->lock);
}
static MAYBE_UNUSED unsigned log_count(log_ *log)
{
    pthread_mutex_lock(&log->lock);
    unsigned count = log->count;
    pthread_mutex_unlock(&log->lock);
    return count;
}
static MAYBE_UNUSED bool log_reaches(log_ *log, unsigned count)
{
    for (int i = 0; i < 5000 && log_count(log) < count; i++) sleep_ms(1);
    return log_count(log) >= count;
}

static MAYBE_UNUSED void handler_invoke(void *self, void *buffer)
{
    block *b = self;
    __atomic_store_n(&b->log->status, status(buffer), __ATOMIC_RELEASE);
    __atomic_add_fetch(&b->log->inside, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&b->log->gate, __ATOMIC_ACQUIRE)) sleep_ms(1);
    __atomic_sub_fetch(&b->log->inside, 1, __ATOMIC_SEQ_CST);
    log_add(b->log, b->number);
}
static MAYBE_UNUSED void event_invoke(void *self, void *event, uint64_t value)
{
    block *b = self;
    (void)event;
    __atomic_store_n(&b->log->value, value, __ATOMIC_RELEASE);
    log_add(b->log, b->number);
}
static MAYBE_UNUSED void compile_invoke(void *self, void *result, void *error)
{
    block *b = self;
    b->log->library = objc_retain(result);
    b->log->error = objc_retain(error);
    log_add(b->log, b->number);
}

static MAYBE_UNUSED void block_copy(void *to, const void *from)
{
    (void)to, (void)from;
}
static MAYBE_UNUSED void block_dispose(const void *self)
{
    log_ *log = ((const block *)self)->log;
    unsigned places = log->queue ? softmetal_outstanding(log->queue) : 0;
    pthread_mutex_lock(&log->lock);
    log->disposed++;
    log->places_at_dispose = places;
    pthread_mutex_unlock(&log->lock);
}

static MAYBE_UNUSED const descriptor stack_descriptor = {0, sizeof(block), block_copy, block_dispose, "v16@?0@8", NULL};
static MAYBE_UNUSED const global_descriptor plain_descriptor = {0, sizeof(block), "v16@?0@8", NULL};

static MAYBE_UNUSED block stack_block(any_function invoke, log_ *log, int number)
{
    return (block){_NSConcreteStackBlock, (int32_t)(1u << 25 | 1u << 30), 0, invoke, &stack_descriptor, log, number};
}
static MAYBE_UNUSED block global_block(any_function invoke, log_ *log, int number)
{
    return (block){_NSConcreteGlobalBlock, (int32_t)(1u << 28 | 1u << 30), 0, invoke, &plain_descriptor, log, number};
}
static MAYBE_UNUSED void on_completed(void *buffer, log_ *log, int number)
{
    block b = stack_block((any_function)handler_invoke, log, number);
    DO1(buffer, "addCompletedHandler:", &b);
}
static MAYBE_UNUSED void on_scheduled(void *buffer, log_ *log, int number)
{
    block b = stack_block((any_function)handler_invoke, log, number);
    DO1(buffer, "addScheduledHandler:", &b);
}
static MAYBE_UNUSED void on_event(void *event, void *listener, uint64_t value, log_ *log, int number)
{
    block b = stack_block((any_function)event_invoke, log, number);
    SEND_WITH(void, (void *, void *, void *, uint64_t, void *), event, "notifyListener:atValue:block:", listener, value,
              &b);
}

/* ------------------------------------------------------------------------- broken rules -- */

/* A test runs itself again with --break and the number of a case. */
static MAYBE_UNUSED const char *own_path;

/* Runs the case in a process of its own; its stderr goes to `text`. */
static MAYBE_UNUSED int run_case(const char *mode, unsigned number, char *text, size_t capacity)
{
    int ends[2];
    char argument[16];
    snprintf(argument, sizeof argument, "%u", number);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        execl(own_path, own_path, mode, argument, (char *)NULL);
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

static MAYBE_UNUSED bool names_rule(const char *text, const char *rule)
{
    char start[100];
    snprintf(start, sizeof start, "softmetal: %s: ", rule);
    return strstr(text, start) != NULL;
}

#ifdef __APPLE__
#define NOT_ON_A_MAC(why)                              \
    do {                                               \
        print_message("skip: on a Mac " why "\n"); \
        skip();                                        \
    } while (0)
#else
#define NOT_ON_A_MAC(why) ((void)0)
#endif

/* Whether the case ends in SIGABRT, with the rule's name on stderr; says so where it does not. */
static MAYBE_UNUSED bool case_breaks(unsigned number, const char *rule)
{
    char text[4096];
    int result = run_case("--break", number, text, sizeof text);
    if (WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT && names_rule(text, rule)) return true;
    fprintf(stderr, "case %u of %s: status %d, it said: %s\n", number, rule, result, text);
    return false;
}

#endif
