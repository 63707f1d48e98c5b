/* device_softmetal.c - softmetal as the GPU: latencies, processors, the cases that need it

   Kernels have their lengths from softmetal_set_duration. With BENCH_DEVICE=kernels they are dispatched, calibrated and
   waited for as on a Mac: softmetal runs a C function for the kernel, and it goes round in time. */
#ifdef __linux__
#include <dirent.h>
#endif
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/metal.h"
#include "../../gpusync.h"
#include "../softmetal/softmetal.h"
#include "bench.h"
#include "device.h"
#include "peers.h"

#define LOOP_NS 2.0   /* what stands in for a kernel takes this for each loop, */
#define KERNEL_US 2.0 /* and this beside them */

/* -- processors --------------------------------------------------------------------------------------- */

#ifdef __linux__

static cpu_set_t all_processors;

static bool run_on(int processor)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)processor, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

/* Every thread of the process; those to come inherit it. false: not allowed. */
static bool schedule_all(int policy)
{
    struct sched_param parameters;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");
    bool good = tasks != NULL;
    memset(&parameters, 0, sizeof parameters);
    parameters.sched_priority = policy == SCHED_FIFO ? 10 : 0;
    while (tasks && (entry = readdir(tasks)) != NULL) {
        int task = atoi(entry->d_name);
        if (task > 0 && sched_setscheduler(task, policy, &parameters)) good = false;
    }
    if (tasks) closedir(tasks);
    return good;
}

/* A GPU takes no thread's processor. Threads that play it would, where they share one with completion threads: so all
   have the same real-time priority, where that is allowed, and none ousts another. Nor does another program then. */
static void pin(void)
{
    int i;
    the_bench.program_on = the_bench.softmetal_on = -1;
    if (getenv("BENCH_PIN") && strcmp(getenv("BENCH_PIN"), "0") == 0) return;
    if (sched_getaffinity(0, sizeof all_processors, &all_processors)) return;
    for (i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET((unsigned)i, &all_processors)) continue;
        if (the_bench.program_on < 0) the_bench.program_on = i;
        the_bench.softmetal_on = i;
    }
    if (the_bench.program_on == the_bench.softmetal_on || !softmetal_pin(the_bench.softmetal_on) ||
        !run_on(the_bench.program_on))
        the_bench.program_on = the_bench.softmetal_on = -1;
    the_bench.real_time = the_bench.program_on >= 0 && schedule_all(SCHED_FIFO);
}

static void unpin(void)
{
    if (the_bench.program_on < 0) return;
    if (the_bench.real_time) must(schedule_all(SCHED_OTHER), "back to the usual priorities");
    must(sched_setaffinity(0, sizeof all_processors, &all_processors) == 0 && softmetal_pin(-1), "back to all processors");
}

#else

static bool run_on(int processor)
{
    (void)processor;
    return false;
}
static void pin(void)
{
}
static void unpin(void)
{
}

#endif

/* -- settings ----------------------------------------------------------------------------------------- */

static setting settings[] = {
    {"SCHEDULE", offsetof(softmetal_timing, schedule), 0,
     "waking softmetal's own thread costs a condition variable's wake-up already (below)"},
    {"NOTIFY", offsetof(softmetal_timing, notify), 0, "the same, for the thread that sets the status and runs handlers"},
    {"WAIT_RETURN", offsetof(softmetal_timing, wait_return), 0,
     "as fast as a handler: ggml's source notes no clear difference; others report up to 2 ms"},
    {"EVENT_LISTENER", offsetof(softmetal_timing, event_listener), 0, "as NOTIFY; case 5 alone uses a listener"},
    {"EVENT_CREATE", offsetof(softmetal_timing, event_create), 80000,
     "80 to 180 us in MoltenVK issue 1472; paid once for a queue, outside of what is timed"},
};

#define SETTINGS (sizeof settings / sizeof settings[0])

static void apply_settings(void)
{
    softmetal_timing timing;
    unsigned i;
    softmetal_get_timing(&timing);
    printf("softmetal's latencies (BENCH_<NAME>_NS changes them):\n");
    for (i = 0; i < SETTINGS; i++) {
        setting *s = &settings[i];
        softmetal_range range;
        char name[64];
        snprintf(name, sizeof name, "BENCH_%s_NS", s->name);
        if (getenv(name)) s->ns = strtoull(getenv(name), NULL, 10);
        range.min_ns = range.max_ns = s->ns;
        memcpy((char *)&timing + s->offset, &range, sizeof range);
        printf("  %-14s %8.1f us   %s\n", s->name, (double)s->ns / 1e3, s->source);
    }
    softmetal_set_timing(&timing);
}

/* -- the device --------------------------------------------------------------------------------------- */

static void begin_softmetal(void)
{
    softmetal_reset();
    pin();
}

static void settle_all(void *metal_queue)
{
    (void)metal_queue;
    must(softmetal_settle(10000000000u), "softmetal comes to rest");
}

static double engine_us(void)
{
    return (double)softmetal_engine_cpu_ns() / 1e3;
}

static void run_beside_softmetal(void)
{
    if (the_bench.softmetal_on >= 0) run_on(the_bench.softmetal_on);
}

static void run_duels(void)
{
    unsigned i;
    unpin();
    for (i = 0; i < duel_count; i++) run_duel(&duels[i]);
}

static void run_warm_up(void)
{
    if (is_wanted("9. the first kernel")) run_first_uses(the_bench.rounds);
}

static const bench_device softmetal_device = {
    "softmetal",
    "gpusync's benchmark on softmetal, a software device: the ratios hold for it, with these settings, and for\n"
    "nothing else.",
    settings, SETTINGS, begin_softmetal, apply_settings, softmetal_set_duration, settle_all, engine_us,
    run_beside_softmetal, run_duels, run_warm_up};

/* -- kernels on it ------------------------------------------------------------------------------------ */

/* Threads that share its processor and priority get their turns. */
static void loop(void *user, const softmetal_kernel_args *args)
{
    double until = wall_us() + KERNEL_US;
    uint32_t count;
    (void)user;
    memcpy(&count, args->buffers[1], sizeof count);
    until += count * LOOP_NS / 1e3;
    while (wall_us() < until) sched_yield();
    memcpy(args->buffers[0], &count, sizeof count);
}

static void begin_kernels(void)
{
    begin_softmetal();
    softmetal_set_kernel("bench_loop", loop, NULL, 0);
}

static void open_kernels(void)
{
    apply_settings();
    kernels_device.open();
}

const bench_device *device_choose(void)
{
    static bench_device stand_in;
    const char *wanted = getenv("BENCH_DEVICE");
    if (!wanted || strcmp(wanted, softmetal_device.name) == 0) return &softmetal_device;
    must(strcmp(wanted, "kernels") == 0, "BENCH_DEVICE is softmetal or kernels");
    stand_in = kernels_device;
    stand_in.name = "softmetal, kernels that are calibrated";
    stand_in.heading = "gpusync's benchmark on softmetal, a software device, with kernels that are calibrated, as on a Mac:\n"
                       "nothing here is a Mac's.";
    stand_in.settings = settings;
    stand_in.setting_count = SETTINGS;
    stand_in.begin = begin_kernels;
    stand_in.open = open_kernels;
    stand_in.engine_us = engine_us;
    stand_in.as_completion_thread = run_beside_softmetal;
    return &stand_in;
}
