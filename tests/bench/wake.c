/* wake.c - a wait on the real clock: how long after the GPU's end it returns, and its processor time. See wake.sh

     wake NAME WAY...      prints lines of length, NAME, way, number of a figure, median */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GPUSYNC_IMPLEMENTATION
#include <gpusync.h>
#include "metal.h"
#ifndef VULKAN
#include "softmetal.h"
#endif

#define WAITS 40u
#define AHEAD 30u /* waits before those that count */
#define ok(call) ((call) == GPUSYNC_OK ? (void)0 : abort())

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool by_hand, over;
static double called_us; /* when the program's handler began, ahead of gpusync's; 0: not yet */

static double us_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* The waiting thread has processor 0 for itself, once the device has made its threads on the others: a GPU needs none
   that a thread spins on. */
static void move_to(bool zero)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int k = 0; k < CPU_SETSIZE; k++)
        if ((k == 0) == zero) CPU_SET(k, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* The program's handler, ahead of gpusync's: a block as a compiler makes it, with nothing captured. */
static void handle(void *block, void *buffer)
{
    double now = us_of(CLOCK_MONOTONIC);
    __atomic_store(&called_us, &now, __ATOMIC_SEQ_CST);
    if (!by_hand) return;
    pthread_mutex_lock(&lock);
    over = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

extern void *wake_global_block[32] METAL__ASM("_NSConcreteGlobalBlock");
static const struct { uintptr_t reserved, size; const char *signature; } descriptor = {0, 32, "v16@?0@8"};
static struct {
    void *isa;
    int flags, reserved;
    void (*invoke)(void *block, void *buffer);
    const void *descriptor;
} block = {wake_global_block, 1 << 28 | 1 << 30, 0, handle, &descriptor};

static const unsigned lengths[] = {20, 100, 2000}; /* us; over Vulkan hundreds of rounds */

static void encode(void *metal_device, void *buffer, unsigned length)
{
#ifdef VULKAN
    static const char source[] = "kernel void work(device uint *data [[buffer(0)]],"
                                 " constant uint &rounds [[buffer(1)]])"; /* as tests/vulkan/kernels.comp has it */
    static void *pipeline, *data;
    const metal_size one = {1, 1, 1}, group = {64, 1, 1};
    uint32_t rounds = 100 * length;
    if (!pipeline) pipeline = metal_pipeline_new(metal_device, source, "work", NULL, 0);
    if (!data) data = metal_buffer_new(metal_device, 256);
    void *compute = metal_compute_begin(buffer);
    metal_set_pipeline(compute, pipeline);
    metal_set_buffer(compute, data, 0, 0);
    metal_set_bytes(compute, &rounds, sizeof rounds, 1);
    metal_dispatch(compute, one, group);
    metal_end(compute);
#else
    softmetal_set_duration(buffer, length * 1000u);
#endif
}

#if GPUSYNC_VERSION < 500 /* its timers look for lost handlers: none is lost here, and softmetal has none any more */
uint64_t wake_time(uint64_t when, int64_t delta_ns) { return when + (uint64_t)delta_ns; }
void wake_after(uint64_t when, void *queue, void *context, void (*function)(void *)) {}
#define wait_with_options gpusync_wait_ex
#else
#define wait_with_options gpusync_wait
#endif

/* us from the GPU's end, and from the call of the handler, to the return; processor time of this thread, and of all. */
enum { LATE, CALLED, OWN, ALL, FIGURES };
static double figures[FIGURES][AHEAD + WAITS];

/* A frame is one command buffer, and a wait for it. */
static void frame(void *metal_queue, gpusync_device *device, gpusync_queue *queue, const gpusync_wait_options *options,
                  unsigned length, unsigned i)
{
    double own = us_of(CLOCK_THREAD_CPUTIME_ID), all = us_of(CLOCK_PROCESS_CPUTIME_ID), called = 0;
    void *buffer = metal_queue_command_buffer(metal_queue);
    gpusync_ticket ticket;
    over = false;
    __atomic_store(&called_us, &called, __ATOMIC_SEQ_CST); /* 0: not called */
    encode(gpusync_device_metal(device), buffer, length);
    metal_add_completed_handler(buffer, &block);
    if (by_hand) {
        metal_commit(buffer);
        pthread_mutex_lock(&lock);
        while (!over) pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    } else {
        ok(gpusync_commit(queue, buffer, &ticket));
        ok(wait_with_options(queue, ticket, GPUSYNC_FOREVER, options));
    }
    double now = us_of(CLOCK_MONOTONIC);
    figures[OWN][i] = us_of(CLOCK_THREAD_CPUTIME_ID) - own;
    figures[ALL][i] = us_of(CLOCK_PROCESS_CPUTIME_ID) - all;
    while (called == 0) { /* a status may have told before the handler */
        sched_yield();
        __atomic_load(&called_us, &called, __ATOMIC_SEQ_CST);
    }
    figures[LATE][i] = now - metal_gpu_end(buffer) * 1e6;
    figures[CALLED][i] = now - called;
    metal_release(buffer);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Its objects stay: in 0.4 a destroy would wait for timers. */
static void run(const char *name, const char *way, unsigned length)
{
    static const gpusync_spin none = {0};
    const gpusync_wait_options options = {.spin = strcmp(way, "park") ? NULL : &none};
    gpusync_queue_desc desc = {0};
    gpusync_device *device;
    gpusync_queue *queue;
    ok(gpusync_device_create(NULL, &device));
    desc.metal_queue = metal_queue_new(gpusync_device_metal(device), 64);
    ok(gpusync_queue_create(device, &desc, &queue));
    by_hand = strcmp(way, "hand") == 0;
    move_to(false);
    for (unsigned i = 0; i < AHEAD + WAITS; i++) {
        if (i == 3) move_to(true);
        frame(desc.metal_queue, device, queue, &options, length, i);
    }
    for (int k = 0; k < FIGURES; k++) {
        qsort(figures[k] + AHEAD, WAITS, sizeof figures[k][0], compare);
        printf("%u %s %s %d %.1f\n", length, name, way, k, figures[k][AHEAD + WAITS / 2]);
    }
}

int main(int count, char **arguments)
{
    for (unsigned k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
        for (int i = 2; i < count; i++) run(arguments[1], arguments[i], lengths[k]);
    fflush(stdout);
    _exit(0);
}
