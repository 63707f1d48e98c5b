/* support.h - what the tests share: a device and a queue, real work, memory and hooks that count

   A test program defines GPUSYNC_IMPLEMENTATION, includes this, and is done with set-up:

       static void test_x(void **state) { rig r; rig_open(&r, SOFTMETAL_MANUAL); ... rig_close(&r); } */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../gpusync.h"
#undef pthread_mutex_lock /* of locks.h: for the implementation alone */
#undef sched_yield
#include "../examples/metal.h"
#include "softmetal/softmetal.h"

#define MAYBE_UNUSED __attribute__((unused))
#define SECONDS(n) ((uint64_t)(n) * 1000000000u)
#define MS(n) ((uint64_t)(n) * 1000000u)

#define assert_result(call, expected) \
    assert_result_at((call), (expected), #call, __FILE__, __LINE__)
static MAYBE_UNUSED void assert_result_at(gpusync_result got, gpusync_result expected, const char *call,
                                          const char *file, int line)
{
    if (got == expected) return;
    print_error("%s: %d (%s), expected %d (%s)\n", call, got, gpusync_result_string(got), expected,
                gpusync_result_string(expected));
    _fail(file, line);
}
#define assert_ok(call) assert_result(call, GPUSYNC_OK)

/* -- an allocator that counts, checks sizes, can fail, and makes released memory unreadable --------- */

typedef struct memory_log {
    long live, calls, bytes; /* bytes: of what is live */
    long fail_at;     /* fail the n-th call from now, 1 is the next; 0: never */
    bool fail_after;  /* and every later one */
} memory_log;

static MAYBE_UNUSED void *memory_allocate(void *user, size_t size, size_t alignment)
{
    memory_log *log = (memory_log *)user;
    size_t *block;
    long at = __atomic_load_n(&log->fail_at, __ATOMIC_SEQ_CST);
    if (at > 0 && __atomic_sub_fetch(&log->fail_at, 1, __ATOMIC_SEQ_CST) == 0) {
        if (log->fail_after) __atomic_store_n(&log->fail_at, 1, __ATOMIC_SEQ_CST);
        return NULL;
    }
    if (posix_memalign((void **)&block, 128, size + 128)) return NULL;
    assert_true(alignment <= 128);
    block[0] = size;
    __atomic_fetch_add(&log->live, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&log->calls, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&log->bytes, (long)size, __ATOMIC_SEQ_CST);
    return (char *)block + 128;
}

static MAYBE_UNUSED void memory_release(void *user, void *memory, size_t size)
{
    memory_log *log = (memory_log *)user;
    size_t *block = (size_t *)(void *)((char *)memory - 128);
    if (block[0] != size) {
        fprintf(stderr, "released with size %zu, allocated with %zu\n", size, block[0]);
        abort();
    }
    memset(memory, 0xDD, size); /* a use after release reads nonsense; ASan sees it as well */
    free(block);
    __atomic_fetch_sub(&log->live, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&log->bytes, (long)size, __ATOMIC_SEQ_CST);
}

/* A count that callbacks raise, once those that are due have run: they run on a dispatch queue. */
static MAYBE_UNUSED long called(const void *count, size_t size)
{
    assert_true(softmetal_dispatched(SECONDS(20)));
    if (size == sizeof(uint32_t)) return (long)__atomic_load_n((const uint32_t *)count, __ATOMIC_SEQ_CST);
    return (long)__atomic_load_n((const uint64_t *)count, __ATOMIC_SEQ_CST);
}
#define CALLED(variable) called(&(variable), sizeof(variable))

/* The object's references, once what is due was released. */
static MAYBE_UNUSED unsigned long owners_of(void *object)
{
    assert_true(softmetal_dispatched(SECONDS(20)));
    return softmetal_retain_count(object);
}

/* -- a device with one queue ----------------------------------------------------------------------- */

typedef struct rig {
    memory_log memory;
    gpusync_allocator allocator;
    gpusync_device *device;
    gpusync_queue *queue;
    void *metal_device, *metal_queue; /* borrowed */
} rig;

/* What the tests may fill in before rig_open_with. */
static MAYBE_UNUSED void rig_open_with(rig *r, softmetal_clock clock, gpusync_device_desc device_desc,
                                       gpusync_queue_desc queue_desc)
{
    memset(r, 0, sizeof *r);
    softmetal_reset();
    softmetal_set_clock(clock);
    r->allocator.allocate = memory_allocate;
    r->allocator.release = memory_release;
    r->allocator.user = &r->memory;
    device_desc.allocator = &r->allocator;
    assert_ok(gpusync_device_create(&device_desc, &r->device));
    assert_ok(gpusync_queue_create(r->device, &queue_desc, &r->queue));
    r->metal_device = gpusync_device_metal(r->device);
    r->metal_queue = gpusync_queue_metal(r->queue);
}

static MAYBE_UNUSED void rig_open(rig *r, softmetal_clock clock)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    rig_open_with(r, clock, device_desc, queue_desc);
}

/* Everything destroyed, all memory given back, no Metal object of the program left. */
static MAYBE_UNUSED void rig_close(rig *r)
{
    if (r->queue) assert_ok(gpusync_queue_destroy(r->queue));
    assert_ok(gpusync_device_destroy(r->device));
    assert_int_equal(r->memory.live, 0);
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(softmetal_live("command_buffer"), 0);
    assert_int_equal(softmetal_live("queue"), 0);
    assert_int_equal(softmetal_live("block"), 0);
    assert_int_equal(softmetal_live("error"), 0);
}

/* A timeline over an event that others signal too. desc may be NULL. */
static MAYBE_UNUSED gpusync_result timeline_import(gpusync_device *device, void *event,
                                                   const gpusync_timeline_desc *desc, gpusync_timeline **out)
{
    gpusync_timeline_desc with;
    memset(&with, 0, sizeof with);
    if (desc) with = *desc;
    with.shared_event = event;
    return gpusync_timeline_create(device, &with, out);
}

/* -- work ------------------------------------------------------------------------------------------- */

/* A command buffer with these waits at its head. On an error *buffer is NULL. */
static MAYBE_UNUSED gpusync_result make_behind(gpusync_queue *queue, const gpusync_command_buffer_desc *desc,
                                               const gpusync_point *waits, size_t count, void **buffer)
{
    gpusync_result result = gpusync_command_buffer(queue, desc, buffer);
    size_t i;
    for (i = 0; i < count && result == GPUSYNC_OK; i++) result = gpusync_encode_wait(queue, *buffer, waits[i]);
    if (result == GPUSYNC_OK || !*buffer) return result;
    assert_ok(gpusync_command_buffer_discard(queue, *buffer));
    *buffer = NULL;
    return result;
}

/* ... with this wait (NULL: none), which the test keeps alive. */
static MAYBE_UNUSED void *buffer_behind(gpusync_queue *queue, const gpusync_point *wait)
{
    void *buffer = NULL;
    assert_ok(make_behind(queue, NULL, wait, wait != NULL, &buffer));
    return metal_retain(buffer);
}

/* A flag of submissions in tests: the signals are encoded at the end of the last command buffer, if there is one. */
#define SIGNALS_INSIDE (1u << 16)

static MAYBE_UNUSED gpusync_result submit_as_told(gpusync_queue *queue, const gpusync_submission *submission,
                                                  gpusync_ticket *ticket)
{
    gpusync_submission s = *submission;
    size_t i;
    if (ticket) *ticket = GPUSYNC_NO_TICKET;
    if (s.flags & SIGNALS_INSIDE && s.command_buffer_count) {
        for (i = 0; i < s.signal_count; i++) {
            gpusync_result result =
                gpusync_encode_signal(queue, s.command_buffers[s.command_buffer_count - 1], s.signals[i]);
            if (result != GPUSYNC_OK) return result;
        }
        s.signals = NULL;
        s.signal_count = 0;
    }
    s.flags &= ~SIGNALS_INSIDE;
    return gpusync_submit(queue, &s, ticket);
}

/* An empty command buffer of gpusync_command_buffer. */
static MAYBE_UNUSED void *open_buffer(rig *r)
{
    void *buffer = NULL;
    assert_ok(gpusync_command_buffer(r->queue, NULL, &buffer));
    assert_non_null(buffer);
    return buffer;
}

/* ... committed. *buffer (may be NULL) is borrowed: alive until its handler has run. */
static MAYBE_UNUSED gpusync_ticket commit_empty(rig *r, void **buffer)
{
    gpusync_ticket ticket = 0;
    void *made = open_buffer(r);
    if (buffer) *buffer = made;
    assert_ok(gpusync_commit(r->queue, made, &ticket));
    return ticket;
}

/* A committed command buffer that runs for this long (real clock). */
static MAYBE_UNUSED gpusync_ticket commit_lasting(rig *r, uint64_t ns)
{
    gpusync_ticket ticket = 0;
    void *made = open_buffer(r);
    softmetal_set_duration(made, ns);
    assert_ok(gpusync_commit(r->queue, made, &ticket));
    return ticket;
}

static MAYBE_UNUSED gpusync_stats stats_of(gpusync_queue *queue)
{
    gpusync_stats stats;
    assert_ok(gpusync_get_stats(queue, &stats));
    return stats;
}

/* -- threads ---------------------------------------------------------------------------------------- */

static MAYBE_UNUSED pthread_t start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, argument), 0);
    return thread;
}

static MAYBE_UNUSED void join(pthread_t thread)
{
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* A barrier: macOS has none in pthreads. Holds each thread until `size` of them have come. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t open;
    unsigned size, arrived, rounds;
} gate;

static MAYBE_UNUSED void gate_init(gate *g, unsigned size)
{
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->open, NULL);
    g->size = size;
}

static MAYBE_UNUSED void gate_wait(gate *g)
{
    unsigned round;
    pthread_mutex_lock(&g->lock);
    round = g->rounds;
    if (++g->arrived == g->size) {
        g->arrived = 0;
        g->rounds++;
        pthread_cond_broadcast(&g->open);
    }
    while (round == g->rounds) pthread_cond_wait(&g->open, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static MAYBE_UNUSED void gate_destroy(gate *g)
{
    pthread_cond_destroy(&g->open);
    pthread_mutex_destroy(&g->lock);
}

/* A wait on a thread of its own. */
typedef struct wait_job {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    uint64_t timeout_ns;
    const gpusync_wait_options *options;
    gpusync_result result;
    pthread_t thread;
} wait_job;

static MAYBE_UNUSED void *wait_job_body(void *argument)
{
    wait_job *job = (wait_job *)argument;
    job->result = gpusync_wait_ex(job->queue, job->ticket, job->timeout_ns, job->options);
    return NULL;
}

static MAYBE_UNUSED void wait_job_start(wait_job *job, gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns)
{
    memset(job, 0, sizeof *job);
    job->queue = queue;
    job->ticket = ticket;
    job->timeout_ns = timeout_ns;
    job->thread = start(wait_job_body, job);
}

static MAYBE_UNUSED gpusync_result wait_job_join(wait_job *job)
{
    join(job->thread);
    return job->result;
}

/* -- what can be asked with public calls ------------------------------------------------------------ */

/* The text of gpusync_report, to be freed. */
static MAYBE_UNUSED char *report_of(gpusync_device *device)
{
    size_t size = gpusync_report(device, NULL, 0) + 1000; /* it may grow meanwhile */
    char *text = (char *)malloc(size);
    assert_non_null(text);
    gpusync_report(device, text, size);
    return text;
}

/* How many points sleeping waits are for: one for each wait, but for those of gpusync_wait_many. */
static MAYBE_UNUSED unsigned sleepers_of(gpusync_device *device)
{
    char *text = report_of(device), *at = text;
    unsigned n = 0;
    while ((at = strstr(at, "a wait for ")) != NULL) n++, at++;
    free(text);
    return n;
}

/* Until there are this many: the way to know, without a sleep, that a thread has come to rest. */
static MAYBE_UNUSED void await_sleepers(gpusync_device *device, unsigned count)
{
    while (sleepers_of(device) < count) sched_yield();
}

/* Command buffers that take room in the queue: in flight, held, or made and not committed. */
static MAYBE_UNUSED unsigned rooms_taken(gpusync_queue *queue)
{
    uint32_t most = 1;
    while (gpusync_throttle(queue, most, 0) == GPUSYNC_TIMEOUT) most++;
    return most - 1;
}

/* Events that the device keeps, to be used again: timelines take them, until one needs a new one. They are given back,
   and that one is not, as an event that was handed out is not used again. */
static MAYBE_UNUSED long events_kept(gpusync_device *device)
{
    gpusync_timeline *timelines[64];
    long count = 0, live, kept;
    do {
        live = softmetal_live("shared_event");
        assert_in_range(count, 0, 63);
        assert_ok(gpusync_timeline_create(device, NULL, &timelines[count++]));
    } while (softmetal_live("shared_event") == live);
    kept = count - 1;
    assert_non_null(gpusync_timeline_metal(timelines[kept], NULL));
    while (count > 0) assert_ok(gpusync_timeline_destroy(timelines[--count]));
    return kept;
}

/* A call in between must return within so many seconds: some mistakes show in nothing but a call that never does. */
static MAYBE_UNUSED void must_return_within(unsigned seconds) { alarm(seconds); }
static MAYBE_UNUSED void has_returned(void) { alarm(0); }

/* -- threads that sleep: hooks for tests that look at the sleeping ----------------------------------- */

/* Its deadlines are times of gpusync_now_ns. */
static MAYBE_UNUSED void init_condition(pthread_cond_t *condition)
{
#ifdef __APPLE__
    pthread_cond_init(condition, NULL);
#else
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
#endif
}

static MAYBE_UNUSED struct {
    pthread_once_t made;
    pthread_mutex_t lock;
    pthread_cond_t permit; /* some waiter has one, in scheduler_data[0] */
} asleep = {.made = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static MAYBE_UNUSED void make_asleep(void) { init_condition(&asleep.permit); }

/* With the lock. The deadline is not past now. */
static MAYBE_UNUSED void await_permit(uint64_t now, uint64_t deadline_ns)
{
    struct timespec at;
    (void)now;
    if (deadline_ns == GPUSYNC_FOREVER) {
        pthread_cond_wait(&asleep.permit, &asleep.lock);
        return;
    }
#ifdef __APPLE__
    deadline_ns -= now;
#endif
    at.tv_sec = (time_t)(deadline_ns / 1000000000u);
    at.tv_nsec = (long)(deadline_ns % 1000000000u);
#ifdef __APPLE__
    pthread_cond_timedwait_relative_np(&asleep.permit, &asleep.lock, &at);
#else
    pthread_cond_timedwait(&asleep.permit, &asleep.lock, &at);
#endif
}

static MAYBE_UNUSED void thread_park(gpusync_waiter *waiter, uint64_t deadline_ns)
{
    uint64_t now;
    pthread_once(&asleep.made, make_asleep);
    pthread_mutex_lock(&asleep.lock);
    while (!waiter->scheduler_data[0] && (now = gpusync_now_ns()) < deadline_ns) await_permit(now, deadline_ns);
    waiter->scheduler_data[0] = NULL;
    pthread_mutex_unlock(&asleep.lock);
}

static MAYBE_UNUSED void thread_unpark(gpusync_waiter *waiter)
{
    pthread_once(&asleep.made, make_asleep);
    pthread_mutex_lock(&asleep.lock);
    waiter->scheduler_data[0] = waiter;
    pthread_cond_broadcast(&asleep.permit);
    pthread_mutex_unlock(&asleep.lock);
}

#endif
