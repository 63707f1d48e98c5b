// cc -std=c99 job_system.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o job_system
//
// A job system as game engines have them: a few threads run thousands of jobs on fibers, and a job that has to wait
// makes room for another one. With the hooks of gpusync a job waits for the GPU like that:
//
//     park      leave the thread to the others, until the deadline, or ...
//     unpark    ... gpusync makes the fiber ready; any thread may go on with it

#include "fiber.h" /* ucontext */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { JOBS = 10000, THREADS = 4, FIBERS = 120, SIZE = 16, STACK = 64 * 1024, SCAN_NS = 2000000 };

/* -- the scheduler ------------------------------------------------------------------------------------------------ */

typedef struct fiber {
    fiber_context context, *thread; /* thread: the one that runs it */
    gpusync_waiter *waiter;         /* the fiber is parked with it; its scheduler_data[0] is the fiber, or &permit */
    uint64_t deadline;
    bool ended;
    struct fiber *next;
} fiber;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows, and of what is in the fibers */
static pthread_cond_t something_ready = PTHREAD_COND_INITIALIZER;
static fiber fibers[FIBERS], *first_ready, **last_ready = &first_ready;
static unsigned living = FIBERS, parks, moves;
static uint64_t next_scan;
static char permit;                 /* its address in a waiter: unpark came first */
static __thread fiber *running_now; /* NULL on threads that are not ours: Metal's, main */

/* Not inlined: a fiber must not remember the address of a variable of the thread that it was on. */
__attribute__((noinline)) static fiber **running(void)
{
    __asm__ volatile("");
    return &running_now;
}

/* Under the lock. */
static void make_ready(fiber *f)
{
    f->waiter = NULL;
    f->next = NULL;
    *last_ready = f;
    last_ready = &f->next;
    pthread_cond_signal(&something_ready);
}

/* Under the lock. Deadlines are met within two scans. */
static void end_parks_that_are_due(void)
{
    uint64_t now = gpusync_now_ns();
    if (now < next_scan) return;
    next_scan = now + SCAN_NS;
    for (fiber *f = fibers; f < fibers + FIBERS; f++) {
        if (!f->waiter || f->waiter->scheduler_data[0] != f || f->deadline > now) continue;
        f->waiter->scheduler_data[0] = NULL;
        make_ready(f);
    }
}

/* The next fiber to run; NULL when all have ended. Under the lock. */
static fiber *next_fiber(void)
{
    fiber *f;
    for (end_parks_that_are_due(); !first_ready && living; end_parks_that_are_due()) {
        struct timespec at;
        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_nsec += SCAN_NS;
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&something_ready, &lock, &at);
    }
    f = first_ready;
    if (f && !(first_ready = f->next)) last_ready = &first_ready;
    return f;
}

static void *work(void *nothing)
{
    fiber_context thread = {.size = 0};
    pthread_mutex_lock(&lock);
    for (fiber *f; (f = next_fiber()) != NULL;) {
        moves += f->thread && f->thread != &thread;
        f->thread = &thread;
        pthread_mutex_unlock(&lock);
        *running() = f;
        fiber_switch(&thread, &f->context);
        *running() = NULL;
        pthread_mutex_lock(&lock); /* the fiber has left its stack: only now may another thread have it */
        if (f->ended) living--;
        else if (f->waiter->scheduler_data[0] == &permit) f->waiter->scheduler_data[0] = NULL, make_ready(f);
        else f->waiter->scheduler_data[0] = f;
    }
    pthread_cond_broadcast(&something_ready);
    pthread_mutex_unlock(&lock);
    return nothing;
}

/* -- the hooks ---------------------------------------------------------------------------------------------------- */

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    const struct timespec a_moment = {0, SCAN_NS};
    fiber *f = *running();
    (void)user;
    if (!f) { /* main, in a destroy: to return early is allowed */
        nanosleep(&a_moment, NULL);
        return;
    }
    pthread_mutex_lock(&lock);
    parks++;
    f->waiter = waiter;
    f->deadline = deadline_ns;
    pthread_mutex_unlock(&lock);
    fiber_switch(&f->context, f->thread);
}

static void unpark(void *user, gpusync_waiter *waiter)
{
    fiber *f;
    (void)user;
    pthread_mutex_lock(&lock);
    f = (fiber *)waiter->scheduler_data[0];
    waiter->scheduler_data[0] = f && (void *)f != &permit ? NULL : &permit;
    if (!waiter->scheduler_data[0]) make_ready(f);
    pthread_mutex_unlock(&lock);
}

/* -- the jobs ----------------------------------------------------------------------------------------------------- */

static gpusync_device *device;
static gpusync_queue *queue;
static unsigned char *bytes; /* SIZE for each job */
static void *memory;         /* the MTLBuffer that they are in */
static unsigned next_job, good;

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define CHECK(call) check(#call, call)

/* This code is the same without fibers. */
static void job(unsigned n)
{
    unsigned char byte = (unsigned char)(n % 255 + 1);
    gpusync_ticket ticket;
    void *buffer, *blit;
    CHECK(gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer)); /* may wait for room */
    blit = metal_blit_begin(buffer); /* an autorelease pool is the thread's: none may be open over a wait */
    if (!blit) check("blitCommandEncoder", GPUSYNC_ERROR_METAL_NIL);
    metal_fill(blit, memory, (size_t)n * SIZE, SIZE, byte);
    metal_end(blit);
    CHECK(gpusync_commit(queue, buffer, &ticket));
    CHECK(gpusync_wait(queue, ticket, GPUSYNC_FOREVER, NULL)); /* meanwhile others run */
    if (bytes[n * SIZE] == byte && bytes[n * SIZE + SIZE - 1] == byte) __atomic_fetch_add(&good, 1, __ATOMIC_RELAXED);
}

static void run_jobs(void *argument)
{
    fiber *f = (fiber *)argument;
    for (unsigned n; (n = __atomic_fetch_add(&next_job, 1, __ATOMIC_RELAXED)) < JOBS;) job(n);
    f->ended = true;
    fiber_switch(&f->context, f->thread);
}

int main(void)
{
    static const gpusync_spin none; /* why spin, where there is other work? So there is no yield hook either */
    gpusync_hooks hooks = {.park = park, .unpark = unpark};
    gpusync_device_desc desc = {.hooks = &hooks, .spin = &none};
    pthread_t threads[THREADS];
    CHECK(gpusync_device_create(&desc, &device));
    CHECK(gpusync_queue_create(device, NULL, &queue));
    memory = metal_buffer_new(gpusync_device_metal(device), JOBS * SIZE);
    if (!memory) check("newBufferWithLength:options:", GPUSYNC_ERROR_METAL_NIL);
    bytes = (unsigned char *)metal_contents(memory);

    for (fiber *f = fibers; f < fibers + FIBERS; f++) {
        if (!fiber_make(&f->context, STACK, run_jobs, f)) check("fiber_make", GPUSYNC_ERROR_OUT_OF_MEMORY);
        make_ready(f); /* no thread runs yet */
    }
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, NULL)) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

    CHECK(gpusync_queue_destroy(queue));
    CHECK(gpusync_device_destroy(device));
    for (fiber *f = fibers; f < fibers + FIBERS; f++) fiber_free(&f->context);
    metal_release(memory);
    printf("jobs: %u of %d as they should be, by %d fibers on %d threads\n", good, JOBS, FIBERS, THREADS);
    printf("waits: parked %u times; went on on another thread %u times\n", parks, moves);
    return good != JOBS;
}
