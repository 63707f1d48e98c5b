/* peers.c - the contestants of the benchmark: gpusync with its options, and what others do

   What they do with ten command buffers and one wait: gpusync is told of each. "handler + condvar" adds a handler to
   each, counts, and wakes the waiter once, at the count that it waits for. "handler + semaphore" and "signal in the work"
   act on the last one. All others look at the last one, or commit one more behind it. */
#include "peers.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifdef __APPLE__
#include <dispatch/dispatch.h>
#else
#include <semaphore.h>
#endif

#include "../../examples/metal.h"
#include "../../gpusync.h"

/* A dispatch semaphore where there is one. POSIX's does the same: without a waiter it is one atomic add. */
#ifdef __APPLE__
typedef dispatch_semaphore_t semaphore;
static void semaphore_open(semaphore *s) { *s = dispatch_semaphore_create(0); }
static void semaphore_close(semaphore *s) { dispatch_release(*s); }
static void semaphore_signal(semaphore *s) { dispatch_semaphore_signal(*s); }
static void semaphore_wait(semaphore *s) { dispatch_semaphore_wait(*s, DISPATCH_TIME_FOREVER); }
#else
typedef sem_t semaphore;
static void semaphore_open(semaphore *s) { sem_init(s, 0, 0); }
static void semaphore_close(semaphore *s) { sem_destroy(s); }
static void semaphore_signal(semaphore *s) { sem_post(s); }
static void semaphore_wait(semaphore *s)
{
    while (sem_wait(s) && errno == EINTR) continue;
}
#endif

struct peer {
    void *metal_queue; /* +1 */
    /* gpusync */
    gpusync_queue *queue;
    /* the others: what was committed last, +1 */
    void *last;
    /* shared event */
    void *event;
    uint64_t value;
    /* handlers and a condition variable */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned long committed, completed, awaited;
    /* a handler and a semaphore */
    semaphore done;
    bool armed;
};

static void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "bench: %s failed\n", what);
    exit(1);
}

static peer *peer_new(void *metal_queue)
{
    peer *p = (peer *)calloc(1, sizeof *p);
    must(p != NULL, "calloc");
    p->metal_queue = metal_retain(metal_queue);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    semaphore_open(&p->done);
    return p;
}

/* The buffers have ended; their handlers too (the benchmark lets the device settle before). */
static void peer_free(peer *p)
{
    metal_release(p->last);
    metal_release(p->event);
    metal_release(p->metal_queue);
    semaphore_close(&p->done);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static peer *plain_open(void *device, void *metal_queue)
{
    (void)device;
    return peer_new(metal_queue);
}

static void *plain_make(peer *p)
{
    return metal_queue_command_buffer(p->metal_queue);
}

static bool finished(void *buffer)
{
    return metal_status(buffer) >= 4;
}

/* -- gpusync ------------------------------------------------------------------------------------------ */

static peer *gpusync_open(void *device, void *metal_queue, const gpusync_spin *spin)
{
    gpusync_queue_desc desc = {0};
    peer *p = peer_new(metal_queue);
    desc.metal_queue = metal_queue;
    desc.spin = spin;
    must(gpusync_queue_create((gpusync_device *)device, &desc, &p->queue) == GPUSYNC_OK, "gpusync_queue_create");
    return p;
}

static peer *gpusync_open_default(void *device, void *metal_queue)
{
    return gpusync_open(device, metal_queue, NULL);
}

static peer *gpusync_open_counts(void *device, void *metal_queue)
{
    static const gpusync_spin spin = {32, 224, 0, false};
    return gpusync_open(device, metal_queue, &spin);
}

static peer *gpusync_open_parked(void *device, void *metal_queue)
{
    static const gpusync_spin none = {0, 0, 0, false};
    return gpusync_open(device, metal_queue, &none);
}

static void gpusync_close(peer *p)
{
    must(gpusync_queue_destroy(p->queue) == GPUSYNC_OK, "gpusync_queue_destroy");
    peer_free(p);
}

static void *gpusync_make(peer *p)
{
    void *buffer;
    must(gpusync_command_buffer(p->queue, NULL, &buffer) == GPUSYNC_OK, "gpusync_command_buffer");
    return buffer;
}

static void gpusync_commit_it(peer *p, void *buffer, bool last)
{
    (void)last;
    must(gpusync_commit(p->queue, buffer, NULL) == GPUSYNC_OK, "gpusync_commit");
}

static void gpusync_wait_for_it(peer *p)
{
    must(gpusync_queue_wait(p->queue, GPUSYNC_FOREVER) == GPUSYNC_OK, "gpusync_queue_wait");
}

static void gpusync_block_for_it(peer *p)
{
    gpusync_wait_options options = {0};
    options.blocking = true;
    must(gpusync_wait_ex(p->queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, &options) == GPUSYNC_OK, "gpusync_wait_ex");
}

/* -- waitUntilCompleted ------------------------------------------------------------------------------- */

/* Keeps the last buffer; its place in the queue makes it stand for the earlier ones. */
static void plain_commit(peer *p, void *buffer, bool last)
{
    (void)last;
    metal_commit(buffer);
    metal_release(p->last);
    p->last = buffer;
}

/* With nothing committed that it knows of, an empty buffer asks the queue (MoltenVK, MLX). */
static void completed_wait(peer *p)
{
    void *buffer = p->last;
    p->last = NULL;
    if (!buffer) {
        buffer = plain_make(p);
        metal_commit(buffer);
    }
    metal_wait_until_completed(buffer);
    metal_release(buffer);
}

/* -- the status of the last buffer, again and again --------------------------------------------------- */

static void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* What the default of gpusync 0.1, CUDA.jl and Metal.jl do first: 32 looks with a pause, 224 with a yield. */
static bool spun_to_the_end(void *buffer)
{
    unsigned i;
    if (finished(buffer)) return true;
    for (i = 0; i < 256; i++) {
        if (i < 32) cpu_pause();
        else sched_yield();
        if (finished(buffer)) return true;
    }
    return false;
}

/* A yield now and then lets it end on a machine with one processor. */
static void spin_wait(peer *p)
{
    unsigned long i;
    for (i = 1; p->last && !finished(p->last); i++) {
        if (i % 1024) cpu_pause();
        else sched_yield();
    }
}

static void spin_then_completed_wait(peer *p)
{
    if (p->last && !spun_to_the_end(p->last)) metal_wait_until_completed(p->last);
}

static void millisecond_wait(peer *p)
{
    static const struct timespec nap = {0, 1000000};
    while (p->last && !finished(p->last)) nanosleep(&nap, NULL);
}

/* -- shared events ------------------------------------------------------------------------------------ */

static peer *event_open(void *device, void *metal_queue)
{
    peer *p = plain_open(device, metal_queue);
    p->event = metal_shared_event_new(metal_get(metal_queue, "device"));
    must(p->event != NULL, "newSharedEvent");
    return p;
}

static void forgetful_commit(peer *p, void *buffer, bool last)
{
    (void)p;
    (void)last;
    metal_commit(buffer);
    metal_release(buffer);
}

static void signal_commit(peer *p, void *buffer, bool last)
{
    if (last) metal_encode_signal(buffer, p->event, ++p->value);
    forgetful_commit(p, buffer, last);
}

static void signal_wait(peer *p)
{
    METAL__AS(signed char, uint64_t, uint64_t)
    (p->event, metal__sel("waitUntilSignaledValue:timeoutMS:"), p->value, UINT64_MAX);
}

/* One event for the queue: creating one for every wait would cost event_create on top. */
static void sentinel_event_wait(peer *p)
{
    signal_commit(p, plain_make(p), true);
    signal_wait(p);
}

/* -- handlers ----------------------------------------------------------------------------------------- */

/* A block as a compiler makes it: on the stack, copied to the heap by Metal, with one captured pointer. */
typedef struct block {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct block *self, void *buffer);
    const struct block_descriptor *descriptor;
    peer *p;
} block;

struct block_descriptor {
    uintptr_t reserved, size;
    const char *signature;
};

extern void *bench_stack_block[32] METAL__ASM("_NSConcreteStackBlock");

static void add_handler(peer *p, void *buffer, void (*handler)(block *self, void *buffer))
{
    static const struct block_descriptor descriptor = {0, sizeof(block), "v16@?0@8"};
    block b = {bench_stack_block, 1 << 30, 0, NULL, &descriptor, NULL};
    b.invoke = handler;
    b.p = p;
    metal_add_completed_handler(buffer, &b);
}

static void count_one(block *self, void *buffer)
{
    peer *p = self->p;
    (void)buffer;
    pthread_mutex_lock(&p->lock);
    if (++p->completed == p->awaited) pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void condvar_commit(peer *p, void *buffer, bool last)
{
    p->committed++;
    add_handler(p, buffer, count_one);
    forgetful_commit(p, buffer, last);
}

static void condvar_wait(peer *p)
{
    pthread_mutex_lock(&p->lock);
    p->awaited = p->committed;
    while (p->completed < p->awaited) pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void post(block *self, void *buffer)
{
    (void)buffer;
    semaphore_signal(&self->p->done);
}

static void semaphore_commit(peer *p, void *buffer, bool last)
{
    if (last) add_handler(p, buffer, post);
    if (last) p->armed = true;
    forgetful_commit(p, buffer, last);
}

static void wait_for_semaphore(peer *p)
{
    if (p->armed) semaphore_wait(&p->done);
    p->armed = false;
}

/* -- last buffer, status, spin; then a sentinel with a handler (Metal.jl) ----------------------------- */

/* Any thread may ask for the last buffer. */
static void locked_commit(peer *p, void *buffer, bool last)
{
    pthread_mutex_lock(&p->lock);
    plain_commit(p, buffer, last);
    pthread_mutex_unlock(&p->lock);
}

/* Takes the record of the last buffer: the next wait finds none. */
static void sentinel_handler_wait(peer *p)
{
    void *buffer;
    pthread_mutex_lock(&p->lock);
    buffer = p->last;
    p->last = NULL;
    pthread_mutex_unlock(&p->lock);
    if (buffer && !spun_to_the_end(buffer)) {
        condvar_commit(p, plain_make(p), true);
        condvar_wait(p);
    }
    metal_release(buffer);
}

/* ----------------------------------------------------------------------------------------------------- */

const contestant contestants[CONTESTANTS] = {
    {"gpusync", "as it is: no spin in the desc", "all ratios are to this one", gpusync_open_default, gpusync_close,
     gpusync_make, gpusync_commit_it, gpusync_wait_for_it},
    {"gpusync 32/224", "32 pauses, 224 yields, then sleep",
     "Metal.jl and CUDA.jl spin by these counts: a kernel that takes longer pays for the spin in CPU",
     gpusync_open_counts, gpusync_close, gpusync_make, gpusync_commit_it, gpusync_wait_for_it},
    {"gpusync parked", "a spin of zeros: sleep at once",
     "a program that spares the processor asks for it: late is the price", gpusync_open_parked, gpusync_close,
     gpusync_make, gpusync_commit_it, gpusync_wait_for_it},
    {"gpusync blocking", "waitUntilCompleted inside",
     "a program that comes from waitUntilCompleted: beside that, it shows what gpusync's records cost",
     gpusync_open_default, gpusync_close, gpusync_make, gpusync_commit_it, gpusync_block_for_it},
    {"waitUntilCompleted", "of the last buffer; of an empty one where there is none",
     "llama.cpp's ggml-metal; MLX's synchronize and MoltenVK's vkQueueWaitIdle, which pay for the empty buffer (1)",
     plain_open, peer_free, plain_make, plain_commit, completed_wait},
    {"handler + condvar", "a handler counts, a condition variable wakes",
     "wgpu (pull request 9328), MoltenVK's fences: each wait pays a wake-up, which shows where kernels are short",
     plain_open, peer_free, plain_make, condvar_commit, condvar_wait},
    {"handler + semaphore", "the last buffer's handler signals a semaphore",
     "a game's frame loop, for an earlier frame (Apple's sample, sokol_gfx): beside 14 ms a wake-up is nothing",
     plain_open, peer_free, plain_make, semaphore_commit, wait_for_semaphore},
    {"spin for ever", "status of the last buffer, with a pause in between",
     "Metal.jl's synchronize (it yields), SDL_gpu's wait for any of many: hardly late, and CPU is the whole kernel",
     plain_open, peer_free, plain_make, plain_commit, spin_wait},
    {"spin + waitUntil...", "32 pauses, 224 yields, then waitUntilCompleted",
     "CUDA.jl, which then blocks a worker thread: a kernel beyond the counts pays for the spin and for the wake-up",
     plain_open, peer_free, plain_make, plain_commit, spin_then_completed_wait},
    {"spin + sentinel", "status, 32 pauses, 224 yields, an empty buffer's handler",
     "Metal.jl's device_synchronize: a kernel beyond the counts pays for one more command buffer, too", plain_open,
     peer_free, plain_make, locked_commit, sentinel_handler_wait},
    {"sentinel + event", "an empty buffer signals a shared event, waitUntilSignaledValue",
     "Metal.jl until pull request 783: each wait pays for one more command buffer, also on an idle queue (1, 2)",
     event_open, peer_free, plain_make, forgetful_commit, sentinel_event_wait},
    {"signal in the work", "the last buffer signals a shared event",
     "MLX's events: no handler stands before the end of the wait; for work that fails MLX signals by hand", event_open,
     peer_free, plain_make, signal_commit, signal_wait},
    {"status each 1 ms", "status of the last buffer, nanosleep in between",
     "wgpu until pull request 9328: a short kernel costs a millisecond", plain_open, peer_free, plain_make, plain_commit,
     millisecond_wait},
};
