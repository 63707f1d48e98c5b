/* support.h - what all tests share: assertions, memory and hooks that count, threads, and what public calls tell

   stage.h, which includes this, has the device and the queues. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "from.h"
#include "slow.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../gpusync.h"
#include "locks_end.h"
#include "../examples/metal.h"
#include "softmetal/softmetal.h"

#define MAYBE_UNUSED __attribute__((unused))
#define SECONDS(n) ((uint64_t)(n) * 1000000000u)
#define MS(n) ((uint64_t)(n) * 1000000u)

/* Between threads. */
#define GET(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define PUT(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)
#define COUNT(p) __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST)

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

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

/* On threads where an assertion of cmocka's cannot jump. */
static MAYBE_UNUSED void must(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* Waits sleep at once. */
static MAYBE_UNUSED const gpusync_spin no_spin = {0, 0, 0, false};

/* -- an allocator that counts, checks sizes, can fail, and makes released memory unreadable --------- */

typedef struct memory_log {
    long live, calls, bytes; /* bytes: of what is live */
    long fail_at;     /* fail the n-th call from now, 1 is the next; 0: never */
    bool fail_after;  /* and every later one */
} memory_log;

/* Counts fail_at down in one step: with fail_after no other thread finds a 0 in between, and gets memory. */
static MAYBE_UNUSED bool call_fails(long *fail_at, bool fail_after)
{
    long at = __atomic_load_n(fail_at, __ATOMIC_SEQ_CST), next;
    do {
        if (at == 0) return false;
        next = at == 1 && fail_after ? 1 : at - 1;
    } while (!__atomic_compare_exchange_n(fail_at, &at, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return at == 1;
}

static MAYBE_UNUSED void *memory_allocate(void *user, size_t size, size_t alignment)
{
    memory_log *log = (memory_log *)user;
    size_t *block;
    if (call_fails(&log->fail_at, log->fail_after)) return NULL;
    if (posix_memalign((void **)&block, 128, size + 128)) return NULL;
    assert_true(alignment <= 128 && alignment % sizeof(void *) == 0); /* posix_memalign takes no smaller one */
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

/* A wait for a value, and one for many points, likewise. */
typedef struct value_job {
    gpusync_timeline *timeline;
    uint64_t value, timeout_ns;
    gpusync_wait_options options;
    gpusync_error error;
    gpusync_result result;
    pthread_t thread;
} value_job;

static MAYBE_UNUSED void *value_job_body(void *argument)
{
    value_job *job = (value_job *)argument;
    job->result = gpusync_timeline_wait(job->timeline, job->value, job->timeout_ns, &job->options);
    return NULL;
}

/* spin may be NULL. */
static MAYBE_UNUSED void value_job_start_spinning(value_job *job, gpusync_timeline *timeline, uint64_t value,
                                                  uint64_t timeout_ns, const gpusync_spin *spin)
{
    memset(job, 0, sizeof *job);
    job->timeline = timeline;
    job->value = value;
    job->timeout_ns = timeout_ns;
    job->options.error = &job->error;
    job->options.spin = spin;
    job->thread = start(value_job_body, job);
}

static MAYBE_UNUSED void value_job_start(value_job *job, gpusync_timeline *timeline, uint64_t value, uint64_t timeout_ns)
{
    value_job_start_spinning(job, timeline, value, timeout_ns, NULL);
}

static MAYBE_UNUSED gpusync_result value_job_join(value_job *job)
{
    join(job->thread);
    return job->result;
}

typedef struct many_job {
    const gpusync_point *points;
    size_t count, which;
    gpusync_wait_for how;
    uint64_t timeout_ns;
    gpusync_result result;
    pthread_t thread;
} many_job;

static MAYBE_UNUSED void *many_job_body(void *argument)
{
    many_job *job = (many_job *)argument;
    job->result = gpusync_wait_many(job->points, job->count, job->how, job->timeout_ns, NULL, &job->which);
    return NULL;
}

static MAYBE_UNUSED void many_job_start(many_job *job, const gpusync_point *points, size_t count, gpusync_wait_for how,
                                        uint64_t timeout_ns)
{
    memset(job, 0, sizeof *job);
    job->points = points;
    job->count = count;
    job->how = how;
    job->timeout_ns = timeout_ns;
    job->thread = start(many_job_body, job);
}

static MAYBE_UNUSED gpusync_result many_job_join(many_job *job)
{
    join(job->thread);
    return job->result;
}

/* -- what can be asked with public calls ------------------------------------------------------------ */

static MAYBE_UNUSED gpusync_stats stats_of(gpusync_queue *queue)
{
    gpusync_stats stats;
    assert_ok(gpusync_get_stats(queue, &stats));
    return stats;
}

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
    static const char before[] = ", buffers ";
    char line[512]; /* the first line of the report is enough */
    const char *number;
    assert_true(gpusync_queue_report(queue, line, sizeof line) > 0);
    number = strstr(line, before);
    assert_non_null(number);
    return (unsigned)strtoul(number + sizeof before - 1, NULL, 10);
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
