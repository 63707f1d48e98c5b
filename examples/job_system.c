// cc -std=c99 job_system.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o jobs
//
// A job system as game engines have them: a few threads run thousands of jobs on fibers, and a job that has to wait
// makes room for another one. The three hooks of gpusync let it do so while it waits for the GPU: 10,000 jobs launch
// work and wait for it, and no thread is ever blocked.
//
//     yield                let the others run, and go on after them
//     park                 leave the thread to the others, until ...
//     unpark               ... gpusync makes the fiber ready; any thread may go on with it

#include "fiber.h" /* ucontext */
#include <pthread.h>
#include <time.h>

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "counted.h" /* gpusync.h, with a count of the threads that it blocks */
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"

enum { JOBS = 10000, THREADS = 4, FIBERS = 120, QUEUES = 2, SIZE = 16, STACK = 64 * 1024 };

/* -- the scheduler ---------------------------------------------------------------------------------------------- */

typedef struct worker worker;
typedef struct fiber {
    fiber_context context;
    enum { YIELDS, PARKS, ENDS } leaves; /* why it went back to its worker */
    gpusync_waiter *waiter;              /* parked with it, until the deadline */
    uint64_t deadline;
    worker *on, *was_on; /* the thread that runs it, and that did before */
    struct fiber *next;
} fiber;

struct worker {
    pthread_t thread;
    fiber_context context;
    fiber *running;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static pthread_cond_t something_ready = PTHREAD_COND_INITIALIZER;
static fiber fibers[FIBERS], *first_ready, **last_ready = &first_ready;
static worker workers[THREADS];
static unsigned living = FIBERS, parks, moves;
static uint64_t next_deadline = GPUSYNC_FOREVER;
static char unparked; /* its address in a waiter: unpark came first */

static __thread worker *this_worker; /* NULL on threads that are not ours: Metal's */

/* Not inlined: a fiber must not remember the thread that it was on. */
__attribute__((noinline)) static fiber *this_fiber(void)
{
    __asm__ volatile("");
    return this_worker ? this_worker->running : NULL;
}

/* Under the lock, as are the next two. */
static void make_ready(fiber *f)
{
    f->next = NULL;
    *last_ready = f;
    last_ready = &f->next;
    pthread_cond_signal(&something_ready);
}

/* The fiber has left its stack: only now may others have it. */
static void park_fiber(fiber *f)
{
    if (f->waiter->scheduler_data[0] == &unparked) { /* meanwhile */
        f->waiter->scheduler_data[0] = NULL;
        make_ready(f);
        return;
    }
    f->waiter->scheduler_data[0] = f;
    if (next_deadline > f->deadline) next_deadline = f->deadline;
}

static void end_parks_that_are_due(uint64_t now)
{
    next_deadline = GPUSYNC_FOREVER;
    for (fiber *f = fibers; f < fibers + FIBERS; f++) {
        if (!f->waiter || f->waiter->scheduler_data[0] != f) continue;
        if (f->deadline <= now) {
            f->waiter->scheduler_data[0] = NULL;
            make_ready(f);
        } else if (next_deadline > f->deadline) {
            next_deadline = f->deadline;
        }
    }
}

/* The next fiber to run; NULL when all have ended. A thread that has nothing to run sleeps here: that is no wait for
   the GPU, any fiber wakes it. */
static fiber *next_fiber(void)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        if (gpusync_now_ns() >= next_deadline) end_parks_that_are_due(gpusync_now_ns());
        if (first_ready || !living) break;
        struct timespec at;
        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_nsec += 2000000; /* so that no deadline is missed by more than that */
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&something_ready, &lock, &at);
    }
    fiber *f = first_ready;
    if (f && !(first_ready = f->next)) last_ready = &first_ready;
    pthread_mutex_unlock(&lock);
    return f;
}

static void *work(void *argument)
{
    worker *w = this_worker = (worker *)argument;
    fiber_of_thread(&w->context);
    for (fiber *f; (f = next_fiber()) != NULL;) {
        w->running = f;
        f->on = w;
        fiber_switch(&w->context, &f->context);
        w->running = NULL;
        pthread_mutex_lock(&lock);
        moves += f->was_on && f->was_on != w;
        f->was_on = w;
        if (f->leaves == PARKS) park_fiber(f);
        else if (f->leaves == YIELDS) make_ready(f);
        else if (--living == 0) pthread_cond_broadcast(&something_ready);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* -- the hooks -------------------------------------------------------------------------------------------------- */

static void yield(void *user)
{
    fiber *f = this_fiber();
    (void)user;
    if (!f) return;
    f->leaves = YIELDS;
    fiber_switch(&f->context, &f->on->context);
}

/* On a thread that runs no fiber (main, at the end) this is no park at all: returning early is allowed. */
static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    fiber *f = this_fiber();
    (void)user;
    if (!f) return;
    __atomic_fetch_add(&parks, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    f->waiter = waiter;
    f->deadline = deadline_ns;
    pthread_mutex_unlock(&lock);
    f->leaves = PARKS;
    fiber_switch(&f->context, &f->on->context);
    pthread_mutex_lock(&lock);
    f->waiter = NULL;
    pthread_mutex_unlock(&lock);
}

static void unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    pthread_mutex_lock(&lock);
    fiber *f = (fiber *)waiter->scheduler_data[0];
    if (f && (void *)f != &unparked) {
        waiter->scheduler_data[0] = NULL;
        make_ready(f);
    } else {
        waiter->scheduler_data[0] = &unparked;
    }
    pthread_mutex_unlock(&lock);
}

/* -- the jobs --------------------------------------------------------------------------------------------------- */

static gpusync_device *device;
static gpusync_queue *queues[QUEUES];
static void *memory; /* SIZE bytes for each job */
static unsigned next_job, jobs_done;

/* Have the GPU write something, wait until it has, and look. This code is the same without fibers. */
static void job(unsigned n)
{
    gpusync_queue *queue = queues[n % QUEUES];
    gpusync_ticket ticket;
    void *command_buffer;
    check(!gpusync_command_buffer(queue, NULL, &command_buffer), "gpusync_command_buffer"); /* may wait for room */
    if (n % 100 == 0) softmetal_set_duration(command_buffer, MS / 5);
    void *pool = metal_pool_push(); /* pools are the thread's: none is open over a wait */
    void *blit = metal_blit_begin(command_buffer);
    metal_fill(blit, memory, (size_t)n * SIZE, SIZE, (unsigned char)(n % 255 + 1));
    metal_end(blit);
    metal_pool_pop(pool);
    check(!gpusync_commit(queue, command_buffer, &ticket), "gpusync_commit");
    gpusync_result result = gpusync_wait(queue, ticket, GPUSYNC_FOREVER); /* meanwhile others run */
    check(result == GPUSYNC_OK, name_of(result));
    const unsigned char *bytes = (const unsigned char *)metal_contents(memory) + (size_t)n * SIZE;
    for (int i = 0; i < SIZE; i++) check(bytes[i] == n % 255 + 1, "what the GPU wrote is there after the wait");
    __atomic_fetch_add(&jobs_done, 1, __ATOMIC_RELAXED);
}

static void run_jobs(void *argument)
{
    fiber *f = (fiber *)argument;
    for (unsigned n; (n = __atomic_fetch_add(&next_job, 1, __ATOMIC_RELAXED)) < JOBS;) job(n);
    f->leaves = ENDS;
    fiber_switch(&f->context, &f->on->context);
}

int main(void)
{
    static const gpusync_spin none; /* why spin, where there is other work? */
    gpusync_hooks hooks = {.yield = yield, .park = park, .unpark = unpark};
    gpusync_device_desc desc = {.hooks = &hooks, .spin = &none};
    check_device(gpusync_device_create(&desc, &device));
    for (int i = 0; i < QUEUES; i++) check(!gpusync_queue_create(device, NULL, &queues[i]), "gpusync_queue_create");
    memory = metal_buffer_new(gpusync_device_metal(device), (size_t)JOBS * SIZE);
    check(memory != NULL, "memory");

    for (fiber *f = fibers; f < fibers + FIBERS; f++) {
        check(fiber_make(&f->context, STACK, run_jobs, f), "a fiber");
        make_ready(f);
    }
    for (int i = 0; i < THREADS; i++) check(!pthread_create(&workers[i].thread, NULL, work, &workers[i]), "a thread");
    for (int i = 0; i < THREADS; i++) check(!pthread_join(workers[i].thread, NULL), "pthread_join");

    printf("jobs: %u of %d done, by %d fibers on %d threads\n", jobs_done, JOBS, FIBERS, THREADS);
    printf("waits: parked %u times; went on on another thread %u times\n", parks, moves);
    printf("OS threads ever blocked in a wait: %u\n", threads_blocked);
    check(jobs_done == JOBS && threads_blocked == 0, "every job done, and no thread blocked");

    for (int i = 0; i < QUEUES; i++) check(!gpusync_queue_destroy(queues[i]), "gpusync_queue_destroy");
    check(!gpusync_device_destroy(device), "gpusync_device_destroy");
    for (fiber *f = fibers; f < fibers + FIBERS; f++) fiber_free(&f->context);
    metal_release(memory);
    printf("job_system: all checks passed\n");
    return 0;
}
