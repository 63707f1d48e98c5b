/* peers.c - the contestants of the benchmark: gpusync in its modes, and what others do */
#include "peers.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../examples/metal.h"
#include "../../gpusync.h"

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
    unsigned long committed, completed;
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
    return p;
}

/* The buffers have ended; their handlers too (the benchmark lets the device settle before). */
static void peer_free(peer *p)
{
    metal_release(p->last);
    metal_release(p->event);
    metal_release(p->metal_queue);
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

static peer *gpusync_open(void *device, void *metal_queue, gpusync_wait_mode mode)
{
    gpusync_queue_desc desc = {0};
    peer *p = peer_new(metal_queue);
    desc.metal_queue = metal_queue;
    desc.wait_mode = mode;
    must(gpusync_queue_create((gpusync_device *)device, &desc, &p->queue) == GPUSYNC_OK, "gpusync_queue_create");
    return p;
}

static peer *gpusync_open_default(void *device, void *metal_queue)
{
    return gpusync_open(device, metal_queue, GPUSYNC_WAIT_DEFAULT);
}

static peer *gpusync_open_handler(void *device, void *metal_queue)
{
    return gpusync_open(device, metal_queue, GPUSYNC_WAIT_HANDLER);
}

static peer *gpusync_open_blocking(void *device, void *metal_queue)
{
    return gpusync_open(device, metal_queue, GPUSYNC_WAIT_BLOCKING);
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

static void gpusync_commit_it(peer *p, void *buffer)
{
    must(gpusync_commit(p->queue, buffer, NULL) == GPUSYNC_OK, "gpusync_commit");
}

static void gpusync_wait_for_it(peer *p)
{
    must(gpusync_queue_wait(p->queue, GPUSYNC_FOREVER) == GPUSYNC_OK, "gpusync_queue_wait");
}

/* -- waitUntilCompleted ------------------------------------------------------------------------------- */

/* Keeps the last buffer; its place in the queue makes it stand for the earlier ones. */
static void remember(peer *p, void *buffer)
{
    metal_release(p->last);
    p->last = buffer;
}

static void plain_commit(peer *p, void *buffer)
{
    metal_commit(buffer);
    remember(p, buffer);
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

/* ... and the same where nobody keeps the last buffer: always an empty one. */
static void empty_wait(peer *p)
{
    void *buffer = plain_make(p);
    metal_commit(buffer);
    metal_wait_until_completed(buffer);
    metal_release(buffer);
}

static void forgetful_commit(peer *p, void *buffer)
{
    (void)p;
    metal_commit(buffer);
    metal_release(buffer);
}

/* -- sentinel that signals a shared event ------------------------------------------------------------- */

static peer *event_open(void *device, void *metal_queue)
{
    peer *p = plain_open(device, metal_queue);
    p->event = metal_shared_event_new(metal_get(metal_queue, "device"));
    must(p->event != NULL, "newSharedEvent");
    return p;
}

/* One event for the queue: creating one for every wait would cost event_create on top. */
static void event_wait(peer *p)
{
    void *buffer = plain_make(p);
    uint64_t value = ++p->value;
    metal_encode_signal(buffer, p->event, value);
    metal_commit(buffer);
    METAL__AS(signed char, uint64_t, uint64_t)
    (p->event, metal__sel("waitUntilSignaledValue:timeoutMS:"), value, UINT64_MAX);
    metal_release(buffer);
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

static void handler_ran(block *self, void *buffer)
{
    peer *p = self->p;
    (void)buffer;
    pthread_mutex_lock(&p->lock);
    p->completed++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void add_handler(peer *p, void *buffer)
{
    static const struct block_descriptor descriptor = {0, sizeof(block), "v16@?0@8"};
    block b = {bench_stack_block, 1 << 30, 0, handler_ran, &descriptor, NULL};
    b.p = p;
    METAL__AS(void, void *)(buffer, metal__sel("addCompletedHandler:"), &b);
}

static void condvar_commit(peer *p, void *buffer)
{
    pthread_mutex_lock(&p->lock);
    p->committed++;
    pthread_mutex_unlock(&p->lock);
    add_handler(p, buffer);
    metal_commit(buffer);
    metal_release(buffer);
}

static void condvar_wait(peer *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->completed < p->committed) pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* -- last buffer, status, spin; then a sentinel with a handler, or yields for ever (Metal.jl) --------- */

static void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void locked_commit(peer *p, void *buffer)
{
    pthread_mutex_lock(&p->lock);
    plain_commit(p, buffer);
    pthread_mutex_unlock(&p->lock);
}

/* Takes the record of the last buffer: the next wait finds none. */
static void *take_last(peer *p)
{
    void *buffer;
    pthread_mutex_lock(&p->lock);
    buffer = p->last;
    p->last = NULL;
    pthread_mutex_unlock(&p->lock);
    return buffer;
}

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

static void spin_sentinel_wait(peer *p)
{
    void *buffer = take_last(p);
    if (!buffer) return;
    if (!spun_to_the_end(buffer)) {
        condvar_commit(p, plain_make(p));
        condvar_wait(p);
    }
    metal_release(buffer);
}

static void spin_yield_wait(peer *p)
{
    void *buffer = take_last(p);
    if (!buffer) return;
    if (!spun_to_the_end(buffer))
        while (!finished(buffer)) sched_yield();
    metal_release(buffer);
}

/* ----------------------------------------------------------------------------------------------------- */

const contestant contestants[] = {
    {"gpusync", "spin, then handler (default)", false, false, gpusync_open_default, gpusync_close, gpusync_make,
     gpusync_commit_it, gpusync_wait_for_it},
    {"gpusync handler", "sleep at once", false, false, gpusync_open_handler, gpusync_close, gpusync_make, gpusync_commit_it,
     gpusync_wait_for_it},
    {"gpusync blocking", "waitUntilCompleted inside", false, false, gpusync_open_blocking, gpusync_close, gpusync_make,
     gpusync_commit_it, gpusync_wait_for_it},
    {"waitUntilCompleted", "on the last buffer; never used: on an empty one", false, true, plain_open, peer_free, plain_make,
     plain_commit, completed_wait},
    {"empty + waitUntil...", "an empty buffer every time", false, true, plain_open, peer_free, plain_make, forgetful_commit,
     empty_wait},
    {"sentinel + event", "waitUntilSignaledValue on a shared event", false, true, event_open, peer_free, plain_make,
     forgetful_commit, event_wait},
    {"handler + condvar", "addCompletedHandler, condition variable", false, false, plain_open, peer_free, plain_make,
     condvar_commit, condvar_wait},
    {"spin + sentinel", "status, 32 pauses, 224 yields, sentinel's handler", false, false, plain_open, peer_free, plain_make,
     locked_commit, spin_sentinel_wait},
    {"spin + yield", "the same, then yields to the end", true, false, plain_open, peer_free, plain_make, locked_commit,
     spin_yield_wait},
};
const unsigned contestant_count = sizeof contestants / sizeof contestants[0];
