/* softmetal_threads.m - starting threads; what they cost, and where they run */
#ifdef __linux__
#define _GNU_SOURCE /* processors */
#endif
#import "softmetal_internal.h"
#include <sched.h>
#include <stdlib.h>
#include <time.h>

/* A thread of softmetal, from its first line to its last. */
typedef struct sm_thread {
    struct sm_thread *previous, *next;
    void *(*body)(void *);
    void *argument;
    pthread_t self;
    bool engine;
} sm_thread;

static struct {
    pthread_mutex_t lock;
    sm_thread *first;
    uint64_t ended_ns; /* processor time of engine threads that are gone */
#ifdef __linux__
    bool pinned; /* softmetal_pin was called: new threads run on `processors` */
    cpu_set_t processors;
#endif
} threads = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread sm_thread *running;

/* ----------------------------------------------------------------- what differs on Apple -- */

#ifdef __linux__

static uint64_t processor_time(const sm_thread *thread)
{
    clockid_t clock;
    struct timespec used;
    if (pthread_getcpuclockid(thread->self, &clock) || clock_gettime(clock, &used)) return 0;
    return (uint64_t)used.tv_sec * UINT64_C(1000000000) + (uint64_t)used.tv_nsec;
}

/* With the lock. */
static bool move(const sm_thread *thread)
{
    return !threads.pinned || pthread_setaffinity_np(thread->self, sizeof threads.processors, &threads.processors) == 0;
}

bool softmetal_pin(int processor)
{
    cpu_set_t wanted, mine;
    if (processor >= CPU_SETSIZE || sched_getaffinity(0, sizeof mine, &mine)) return false;
    if (processor < 0) {
        wanted = mine;
    } else {
        CPU_ZERO(&wanted);
        CPU_SET((unsigned)processor, &wanted);
        /* Is there such a processor? The calling thread tries it. */
        if (sched_setaffinity(0, sizeof wanted, &wanted)) return false;
        sched_setaffinity(0, sizeof mine, &mine);
    }
    pthread_mutex_lock(&threads.lock);
    threads.pinned = true;
    threads.processors = wanted;
    bool moved = true;
    for (sm_thread *thread = threads.first; thread; thread = thread->next) moved = move(thread) && moved;
    pthread_mutex_unlock(&threads.lock);
    return moved;
}

#else

static uint64_t processor_time(const sm_thread *thread)
{
    (void)thread;
    return 0;
}

static bool move(const sm_thread *thread)
{
    (void)thread;
    return true;
}

bool softmetal_pin(int processor)
{
    (void)processor;
    return false;
}

#endif

/* ---------------------------------------------------------------------------- the list -- */

static void join_list(sm_thread *thread)
{
    pthread_mutex_lock(&threads.lock);
    thread->next = threads.first;
    if (threads.first) threads.first->previous = thread;
    threads.first = thread;
    move(thread);
    pthread_mutex_unlock(&threads.lock);
}

static void leave_list(sm_thread *thread)
{
    pthread_mutex_lock(&threads.lock);
    if (thread->engine) threads.ended_ns += processor_time(thread);
    if (thread->previous)
        thread->previous->next = thread->next;
    else
        threads.first = thread->next;
    if (thread->next) thread->next->previous = thread->previous;
    pthread_mutex_unlock(&threads.lock);
}

static void *thread_main(void *argument)
{
    sm_thread *thread = argument;
    thread->self = pthread_self();
    running = thread;
    join_list(thread);
    thread->body(thread->argument);
    leave_list(thread);
    free(thread);
    return NULL;
}

void sm_thread_start(void *(*body)(void *), void *argument)
{
    sm_thread *thread = calloc(1, sizeof *thread);
    SM_REQUIRE(thread, INTERNAL, "out of memory");
    thread->body = body;
    thread->argument = argument;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t started;
    int failed = pthread_create(&started, &attributes, thread_main, thread);
    pthread_attr_destroy(&attributes);
    SM_REQUIRE(failed == 0, INTERNAL, "no more threads");
}

void sm_thread_is_engine(void)
{
    pthread_mutex_lock(&threads.lock);
    running->engine = true;
    pthread_mutex_unlock(&threads.lock);
}

uint64_t softmetal_engine_cpu_ns(void)
{
    pthread_mutex_lock(&threads.lock);
    uint64_t sum = threads.ended_ns;
    for (sm_thread *thread = threads.first; thread; thread = thread->next)
        if (thread->engine) sum += processor_time(thread);
    pthread_mutex_unlock(&threads.lock);
    return sum;
}
