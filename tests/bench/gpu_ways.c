/* gpu_ways.c - the ways of waiting that gpu.c compares. Those of peers.c wait for all that was committed */
#include "gpu_ways.h"

#include <errno.h>
#include <sched.h>

#include "../../examples/metal.h"
#include "bench.h"

/* -- gpusync ------------------------------------------------------------------------------------------ */

static void gpusync_open(line *l, const way *w, gpusync_device *device)
{
    gpusync_queue_desc desc = {0};
    desc.metal_queue = l->metal_queue;
    desc.spin = w->spin;
    must(gpusync_queue_create(device, &desc, &l->queue) == GPUSYNC_OK, "gpusync_queue_create");
}

static void gpusync_commit_it(line *l, item *i)
{
    must(gpusync_commit(l->queue, metal_retain(i->buffer), &i->ticket) == GPUSYNC_OK, "gpusync_commit");
}

static void gpusync_wait_for_it(line *l, item *i)
{
    gpusync_result result = gpusync_wait(l->queue, i->ticket, GPUSYNC_FOREVER);
    must(result == GPUSYNC_OK, gpusync_result_string(result));
}

/* -- waitUntilCompleted, and the status again and again ----------------------------------------------- */

static void plain_commit(line *l, item *i)
{
    (void)l;
    metal_commit(i->buffer);
}

static void completed_wait(line *l, item *i)
{
    (void)l;
    metal_wait_until_completed(i->buffer);
}

/* A yield now and then lets the work end on a machine with one processor. */
static void spin_wait(line *l, item *i)
{
    unsigned long n;
    (void)l;
    for (n = 1; metal_status(i->buffer) < 4; n++) {
        if (n % 1024 == 0) sched_yield();
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* -- a semaphore, posted by a handler or by a listener ------------------------------------------------ */

/* A block as a compiler makes it: on the stack, copied to the heap by Metal, with one captured pointer. As a listener's
   block it gets one argument more, and does not look at it. */
typedef struct block {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct block *self, void *object);
    const struct block_descriptor *descriptor;
    item *i;
} block;

static const struct block_descriptor {
    uintptr_t reserved, size;
    const char *signature;
} of_handler = {0, sizeof(block), "v16@?0@8"}, of_listener = {0, sizeof(block), "v24@?0@8Q16"};

extern void *bench_gpu_block[32] METAL__ASM("_NSConcreteStackBlock");

static void post(block *self, void *object)
{
    (void)object;
    sem_post(&self->i->done);
}

static block posting(const struct block_descriptor *descriptor, item *i)
{
    block b = {bench_gpu_block, 1 << 30, 0, post, descriptor, i};
    return b;
}

static void handler_commit(line *l, item *i)
{
    block b = posting(&of_handler, i);
    metal_add_completed_handler(i->buffer, &b);
    plain_commit(l, i);
}

static void listener_open(line *l, const way *w, gpusync_device *device)
{
    (void)w;
    (void)device;
    l->event = metal_shared_event_new(metal_get(l->metal_queue, "device"));
    l->listener = metal_get(metal_get(metal__class("MTLSharedEventListener"), "alloc"), "init");
    must(l->event && l->listener, "newSharedEvent and MTLSharedEventListener");
}

static void listener_commit(line *l, item *i)
{
    block b = posting(&of_listener, i);
    metal_encode_signal(i->buffer, l->event, ++l->value);
    METAL__AS(void, void *, uint64_t, void *)
    (l->event, metal__sel("notifyListener:atValue:block:"), l->listener, l->value, &b);
    plain_commit(l, i);
}

static void semaphore_wait(line *l, item *i)
{
    (void)l;
    while (sem_wait(&i->done) && errno == EINTR) continue;
}

/* ----------------------------------------------------------------------------------------------------- */

/* The last spins from 50 us before the end until a status shows the end. It yields: where the driver's threads need the
   processor, a spin that does not keeps the thread waiting that is to tell of the end. */
static const gpusync_spin by_counts = {32, 224, 0, false}, near_the_end = {0, UINT32_MAX, 200000, true};

const way ways[WAYS] = {
    {"gpusync", "as it is: each wait decides whether to spin", NULL, gpusync_open, gpusync_commit_it, gpusync_wait_for_it},
    {"gpusync until_near", "sleeps until 50 us before the expected end, then yields for 200 us at most", &near_the_end, gpusync_open,
     gpusync_commit_it, gpusync_wait_for_it},
    {"gpusync 32/224", "32 pauses, 224 yields, then sleeps", &by_counts, gpusync_open, gpusync_commit_it,
     gpusync_wait_for_it},
    {"waitUntilCompleted", "of the command buffer", NULL, NULL, plain_commit, completed_wait},
    {"handler + semaphore", "a completed handler posts a semaphore", NULL, NULL, handler_commit, semaphore_wait},
    {"event + listener", "the work signals a shared event, whose listener posts a semaphore", NULL, listener_open,
     listener_commit, semaphore_wait},
    {"spin for ever", "status, with the processor's pause in between", NULL, NULL, plain_commit, spin_wait},
};

line open_line(const way *w, void *metal_queue, gpusync_device *device)
{
    line l = {metal_queue, NULL, NULL, NULL, 0};
    if (w->open) w->open(&l, w, device);
    return l;
}

void close_line(line *l)
{
    if (l->queue) must(gpusync_queue_destroy(l->queue) == GPUSYNC_OK, "gpusync_queue_destroy");
    metal_release(l->listener);
    metal_release(l->event);
    metal_release(l->metal_queue);
}

void *make_buffer(line *l)
{
    void *buffer;
    if (!l->queue) return metal_queue_command_buffer(l->metal_queue);
    must(gpusync_command_buffer(l->queue, NULL, &buffer) == GPUSYNC_OK, "gpusync_command_buffer");
    return buffer;
}
