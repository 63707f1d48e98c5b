/* unknown.c - what gpusync's way of spinning depends on, and only a Mac can tell

   How long after GPUEndTime does a thread that asks `status` again and again see the end, and how long after it does one
   run that a handler wakes? How long is the processor's pause? How late does a timed sleep come, which
   gpusync_spin.until_near relies on? Is GPUEndTime in the clock of gpusync_now_ns? */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../../examples/metal.h"
#include "../../gpusync.h"
#include "bench.h"
#include "device.h"
#include "peers.h"

#define RUNS 101u
#define RUNS_AHEAD 5u
#define SECOND_US 1e6

static double least_us, most_us; /* from GPUEndTime to when the end was seen */

static double seen_by_status(void *metal_queue, void **buffer, uint64_t ns)
{
    *buffer = metal_queue_command_buffer(metal_queue);
    the_device->set_length(*buffer, ns);
    metal_commit(*buffer);
    while (metal_status(*buffer) < 4) continue;
    return wall_us();
}

/* The contestant does what is to be measured. */
static double seen_by_handler(void *metal_queue, void **buffer, uint64_t ns)
{
    const contestant *by = contestants;
    double seen;
    peer *p;
    while (strcmp(by->name, "handler + condvar") != 0) must(++by < contestants + CONTESTANTS, "handler + condvar");
    p = by->open(the_bench.device, metal_queue);
    *buffer = metal_retain(by->make(p));
    the_device->set_length(*buffer, ns);
    by->commit(p, *buffer, true);
    by->wait(p);
    seen = wall_us();
    the_device->settle(metal_queue);
    by->close(p);
    return seen;
}

/* The times are read when all is over: a thread that sees the status may not see them yet. */
static void measure_seeing(double (*see)(void *, void **, uint64_t), const char *how, double kernel_us)
{
    void *metal_queue = metal_queue_new(the_bench.metal_device, 64), *pool = metal_pool_push(), *buffer;
    double late[RUNS], seen, p99;
    quartiles q;
    unsigned i;
    char name[48];
    the_device->settle(metal_queue); /* Metal's threads of the queue exist: a spin would keep a new one from running */
    for (i = 0; i < RUNS_AHEAD + RUNS; i++) {
        seen = see(metal_queue, &buffer, (uint64_t)(kernel_us * 1e3));
        the_device->settle(metal_queue);
        must(metal_status(buffer) == 4, "a kernel that completed");
        if (i >= RUNS_AHEAD) late[i - RUNS_AHEAD] = seen - gpu_us(buffer, "GPUEndTime");
        metal_release(buffer);
    }
    metal_pool_pop(pool);
    metal_release(metal_queue);
    for (i = 0; i < RUNS; i++) {
        if (late[i] < least_us) least_us = late[i];
        if (late[i] > most_us) most_us = late[i];
    }
    q = quartiles_of(late, RUNS);
    p99 = quantile(late, RUNS, 0.99);
    printf("  %-36s %6.0f us kernel: %9.1f us, p99 %9.1f us\n", how, kernel_us, q.median, p99);
    snprintf(name, sizeof name, "%.0f us", kernel_us);
    json_add_other(how, name, q);
    snprintf(name, sizeof name, "%.0f us, p99", kernel_us);
    q.low = q.median = q.high = p99;
    json_add_other(how, name, q);
}

/* -- pauses ------------------------------------------------------------------------------------------- */

#define REPEAT8(what) what; what; what; what; what; what; what; what
#define PAUSE_FN(name, what)                                                                                           \
    static void name(void)                                                                                             \
    {                                                                                                                  \
        unsigned i;                                                                                                    \
        for (i = 0; i < 1000; i++) {                                                                                   \
            REPEAT8(what);                                                                                             \
        }                                                                                                              \
    }

#if defined(__aarch64__)
PAUSE_FN(pause_8000, __asm__ __volatile__("isb"))
PAUSE_FN(yield_8000, __asm__ __volatile__("yield"))
#elif defined(__x86_64__)
PAUSE_FN(pause_8000, __builtin_ia32_pause())
#endif

static const struct {
    const char *name;
    void (*pauses)(void);
} ways_to_pause[] = {
#if defined(__aarch64__)
    {"isb (gpusync's)", pause_8000},
    {"yield", yield_8000},
#elif defined(__x86_64__)
    {"pause (gpusync's)", pause_8000},
#endif
    {NULL, NULL}};

static void measure_pauses(void)
{
    unsigned n, i;
    double us[21];
    for (n = 0; ways_to_pause[n].name; n++) {
        quartiles q;
        for (i = 0; i < 21; i++) {
            double begin = wall_us();
            ways_to_pause[n].pauses();
            us[i] = (wall_us() - begin) / 8000;
        }
        q = quartiles_of(us, 21);
        printf("  one pause of the processor, %-18s %9.2f ns\n", ways_to_pause[n].name, q.median * 1e3);
        json_add_other("one pause of the processor", ways_to_pause[n].name, q);
    }
}

/* -- timed sleeps ------------------------------------------------------------------------------------- */

/* Sleeps as the library's park hook does, and returns how late the sleep ends. */
static double sleep_late_us(double us)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    double begin;
    struct timespec time;
    pthread_mutex_lock(&lock);
    begin = wall_us();
#ifdef __APPLE__
    time.tv_sec = 0;
    time.tv_nsec = (long)(us * 1e3);
    (void)pthread_cond_timedwait_relative_np(&never, &lock, &time);
#else
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_nsec += (long)(us * 1e3);
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&never, &lock, &time);
#endif
    begin += us;
    pthread_mutex_unlock(&lock);
    return wall_us() - begin;
}

/* until_near sleeps until 50 us before the end: a sleep that is later than that comes after the end. */
static void measure_timed_sleeps(void)
{
    static const double sleeps_us[] = {100, 300, 1000, 5000};
    unsigned n, i, too_late = 0;
    double late[RUNS];
    for (n = 0; n < 4; n++) {
        quartiles q;
        char name[32];
        for (i = 0; i < RUNS; i++) {
            late[i] = sleep_late_us(sleeps_us[n]);
            too_late += late[i] > 50;
        }
        q = quartiles_of(late, RUNS);
        printf("  a timed sleep of %6.0f us comes late by %17.1f us, p99 %9.1f us\n", sleeps_us[n], q.median,
               quantile(late, RUNS, 0.99));
        snprintf(name, sizeof name, "%.0f us", sleeps_us[n]);
        json_add_other("a timed sleep comes late by", name, q);
    }
    printf("  gpusync_spin.until_near would wake before the end in %.0f of 100 waits, and spin for 50 us in place of all of the"
           " work\n",
           100.0 * (1 - too_late / (4.0 * RUNS)));
}

/* ----------------------------------------------------------------------------------------------------- */

void measure_unknowns(void)
{
    static const double kernels_us[] = {20, 150, 1000};
    unsigned i;
    quartiles seen;
    least_us = 1e300;
    most_us = -1e300;
    printf("what gpusync's way of spinning depends on (times from GPUEndTime, medians of %u):\n", RUNS);
    for (i = 0; i < 3; i++) measure_seeing(seen_by_status, "Completed seen by a spin on status", kernels_us[i]);
    for (i = 0; i < 3; i++) measure_seeing(seen_by_handler, "handler, condition variable, awake", kernels_us[i]);
    measure_pauses();
    measure_timed_sleeps();
    the_bench.gpu_clock = least_us >= 0 && most_us <= SECOND_US;
    printf("  ends were seen %.1f to %.1f us after GPUEndTime: it is %sin the clock of gpusync_now_ns\n", least_us, most_us,
           the_bench.gpu_clock ? "" : "NOT ");
    if (!the_bench.gpu_clock) printf("  LATENCIES BELOW ARE LEFT OUT (0)\n");
    seen.low = least_us;
    seen.median = seen.high = most_us;
    json_add_other("the end was seen after GPUEndTime", "least and most", seen);
    fflush(stdout);
}
