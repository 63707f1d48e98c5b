// cc -std=c99 fibers.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o fibers
//
// Jobs on fibers, as game engines have them: a job that waits for the GPU parks its fiber, and the thread runs another
// job meanwhile. Two hooks make a device do that. These hooks are for ONE thread that runs all fibers: `running` is
// global, and a switch keeps the lock. For several threads take park and unpark of "Fibers" in README.md: they need a
// current task for each thread and a wake that any thread may call. gpusync lets a fiber change threads.

#ifdef __APPLE__ /* ucontext is deprecated there, and works. Engines switch stacks in a few lines of assembler. */
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <pthread.h>
#include <ucontext.h>

enum { JOBS = 200, SIZE = 16, STACK = 64 * 1024 };

typedef struct fiber {
    ucontext_t context;
    gpusync_waiter *waiter; /* of a parked fiber */
    uint64_t deadline;      /* of its park */
    bool ended;
    char stack[STACK];
} fiber;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the permits. A switch between fibers keeps it locked */
static pthread_cond_t unparked = PTHREAD_COND_INITIALIZER;
static fiber fibers[JOBS], *running; /* NULL: none */
static ucontext_t scheduler;
static gpusync_device *device;
static gpusync_queue *queue;
static void *memory; /* an MTLBuffer: SIZE bytes for each job */
static unsigned living = JOBS, good, switches;

static void sleep_until_unpark(void) /* a millisecond at most: then deadlines are looked at */
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += (at.tv_nsec + 1000000) / 1000000000;
    at.tv_nsec = (at.tv_nsec + 1000000) % 1000000000;
    pthread_cond_timedwait(&unparked, &lock, &at);
}

/* A permit is in scheduler_data[0]: unpark leaves it, and the park that it ends takes it. */
static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    pthread_mutex_lock(&lock);
    if (running) {
        running->waiter = waiter;
        running->deadline = deadline_ns;
        swapcontext(&running->context, &scheduler);
        running->waiter = NULL;
    } else if (!waiter->scheduler_data[0]) {
        sleep_until_unpark(); /* no fiber: main, in a destroy. A park may return early */
    }
    waiter->scheduler_data[0] = NULL;
    pthread_mutex_unlock(&lock);
}

static void unpark(void *user, gpusync_waiter *waiter) /* on any thread */
{
    (void)user;
    pthread_mutex_lock(&lock);
    waiter->scheduler_data[0] = waiter;
    pthread_cond_signal(&unparked);
    pthread_mutex_unlock(&lock);
}

static void job(void) /* between the locks it is the same code as without fibers */
{
    size_t n = (size_t)(running - fibers);
    gpusync_ticket ticket;
    void *buffer;
    pthread_mutex_unlock(&lock);
    MUST(gpusync_command_buffer_create(queue, NULL, 10000000000, &buffer));  /* may wait for room in the queue */
    metal_must_fill(buffer, memory, n * SIZE, SIZE, (unsigned char)(n + 1)); /* no pool may be open in a wait */
    MUST(gpusync_commit(queue, buffer, &ticket));
    MUST(gpusync_wait(queue, ticket, 10000000000, NULL));
    good += ((unsigned char *)metal_contents(memory))[n * SIZE + SIZE - 1] == n + 1;
    pthread_mutex_lock(&lock);
    running->ended = true;
    living--;
    swapcontext(&running->context, &scheduler);
}

int main(void)
{
    gpusync_hooks hooks = {.park = park, .unpark = unpark};
    gpusync_device_desc desc = {.hooks = &hooks, .spin = &(const gpusync_spin){0}}; /* no spin: there is other work */
    MUST(gpusync_device_create(&desc, &device));
    MUST(gpusync_queue_create(device, NULL, &queue));
    memory = MUST_GET(metal_buffer_new(gpusync_device_metal(device), JOBS * SIZE));
    for (fiber *f = fibers; f < fibers + JOBS; f++) {
        if (getcontext(&f->context))
            return perror("getcontext"), 1;
        f->context.uc_stack.ss_sp = f->stack;
        f->context.uc_stack.ss_size = STACK;
        makecontext(&f->context, job, 0);
    }
    pthread_mutex_lock(&lock);
    /* A real scheduler has a list of the fibers that may go on. */
    for (; living > 0; switches += running != NULL, running = NULL) {
        for (fiber *f = fibers; f < fibers + JOBS; f++)
            if (!f->ended && (!f->waiter || f->waiter->scheduler_data[0] || f->deadline <= gpusync_now_ns()))
                running = f;
        if (running)
            swapcontext(&scheduler, &running->context);
        else
            sleep_until_unpark();
    }
    pthread_mutex_unlock(&lock);
    MUST(gpusync_queue_destroy(queue));
    MUST(gpusync_device_destroy(device));
    metal_release(memory);
    printf("jobs: %u of %d as they should be; %u switches\n", good, JOBS, switches);
    return good != JOBS;
}
