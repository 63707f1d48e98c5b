/* warmup.c - what the first kernel costs: without a warm-up, after one, and while one is under way

   softmetal's compiler takes as long as it is told: 1.7 s for the first pipeline of a process, 35 ms for a later one.
   It stands for all that is slow in the case of Metal.jl's pull request 721 (1.75 s; 0.035 s after a warm-up, 0.20 s in
   one), most of which is Julia's own compiler. A first use is a pipeline, a command buffer that dispatches it, and the
   wait for that. The device and the warm-up are new each time; compilations are counted.

   BENCH_FIRST_COMPILE_NS, BENCH_LATER_COMPILE_NS   other times for the compiler */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../examples/metal.h"
#include "../../gpusync.h"
#include "../softmetal/softmetal.h"
#include "peers.h"

#define MAX_ROUNDS 3u

static void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "bench: %s failed\n", what);
    exit(1);
}
#define ok(call) must((call) == GPUSYNC_OK, #call)

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t first_ns = 1700000000u, later_ns = 35000000u;

typedef struct first_use {
    const char *name;
    bool disabled, blocking;
    bool another;      /* the warm-up compiles another kernel, which takes the first compilation's time all the same */
    unsigned of_17;    /* how much of the first compilation the program does other things for, before it asks */
    unsigned compiles; /* of the process: one for each pipeline that is made */
} first_use;

static const first_use uses[] = {
    {"without a warm-up", true, false, false, 0, 1},
    {"after a blocking one, of another kernel", false, true, true, 0, 2},
    {"after a blocking one, of this kernel", false, true, false, 0, 1},
    {"while one is under way, 15/17 into it", false, false, false, 15, 1},
    {"while one is under way, at once", false, false, false, 0, 1},
};
#define USES (sizeof uses / sizeof uses[0])

static void busy_with_other_things(uint64_t ns)
{
    struct timespec nap;
    nap.tv_sec = (time_t)(ns / 1000000000u);
    nap.tv_nsec = (long)(ns % 1000000000u);
    nanosleep(&nap, NULL);
}

static void run_kernel(gpusync_queue *queue, void *pipeline)
{
    metal_size one = {1, 1, 1};
    gpusync_ticket ticket;
    void *buffer, *encoder;
    ok(gpusync_command_buffer(queue, NULL, &buffer));
    encoder = metal_compute_begin(buffer);
    metal_set_pipeline(encoder, pipeline);
    metal_dispatch(encoder, one, one);
    metal_end(encoder);
    ok(gpusync_commit(queue, buffer, &ticket));
    ok(gpusync_wait(queue, ticket, GPUSYNC_FOREVER));
}

/* Pipeline, kernel, result: in seconds. */
static double use(gpusync_device *device, gpusync_queue *queue, gpusync_warmup *warmup, bool another)
{
    static const char source[] = "kernel void wanted() {}";
    double start = now_s();
    void *pipeline = NULL;
    if (another) pipeline = metal_pipeline_new(gpusync_device_metal(device), source, "wanted", NULL, 0);
    else ok(gpusync_warmup_pipeline(warmup, 0, GPUSYNC_FOREVER, &pipeline, NULL));
    must(pipeline != NULL, "the pipeline");
    run_kernel(queue, pipeline);
    start = now_s() - start;
    if (another) metal_release(pipeline);
    return start;
}

static void do_nothing(void *user, const softmetal_kernel_args *args)
{
    (void)user;
    (void)args;
}

static double measure(const first_use *u)
{
    gpusync_pipeline_desc pipeline = {0};
    gpusync_warmup_desc desc = {0};
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_warmup *warmup;
    softmetal_timing timing;
    double seconds;
    softmetal_get_timing(&timing);
    softmetal_reset(); /* the compiler has compiled nothing yet */
    softmetal_set_timing(&timing);
    softmetal_set_compile_time(first_ns, later_ns);
    softmetal_set_kernel("wanted", do_nothing, NULL, 0);
    ok(gpusync_device_create(NULL, &device));
    ok(gpusync_queue_create(device, NULL, &queue));
    pipeline.source = u->another ? "kernel void unrelated() {}" : "kernel void wanted() {}";
    pipeline.function = u->another ? "unrelated" : "wanted";
    desc.pipelines = &pipeline;
    desc.pipeline_count = 1;
    desc.blocking = u->blocking;
    desc.disabled = u->disabled;
    ok(gpusync_warmup_start(device, &desc, &warmup));
    if (u->of_17) busy_with_other_things(first_ns / 17 * u->of_17);
    seconds = use(device, queue, warmup, u->another);
    must(softmetal_compiles() == u->compiles, "one compilation for each pipeline");
    ok(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER));
    ok(gpusync_queue_destroy(queue));
    ok(gpusync_warmup_destroy(warmup));
    ok(gpusync_device_destroy(device));
    must(softmetal_compiles() == u->compiles, "no compilation after that");
    must(softmetal_settle(10000000000u), "softmetal_settle");
    return seconds;
}

static double median_of(double *values, unsigned count)
{
    unsigned i, k;
    for (i = 1; i < count; i++)
        for (k = i; k > 0 && values[k] < values[k - 1]; k--) {
            double swap = values[k];
            values[k] = values[k - 1];
            values[k - 1] = swap;
        }
    return values[count / 2];
}

void run_first_uses(unsigned rounds)
{
    double seconds[USES][MAX_ROUNDS], without = 0;
    unsigned round;
    size_t n;
    if (getenv("BENCH_FIRST_COMPILE_NS")) first_ns = strtoull(getenv("BENCH_FIRST_COMPILE_NS"), NULL, 10);
    if (getenv("BENCH_LATER_COMPILE_NS")) later_ns = strtoull(getenv("BENCH_LATER_COMPILE_NS"), NULL, 10);
    if (rounds > MAX_ROUNDS) rounds = MAX_ROUNDS; /* they take seconds, and vary little */
    for (round = 0; round < rounds; round++)
        for (n = 0; n < USES; n++) seconds[n][round] = measure(&uses[n]);
    printf("\n9. the first kernel of a process, pipeline to result; the first compilation: %.0f ms, later: %.0f ms\n",
           (double)first_ns / 1e6, (double)later_ns / 1e6);
    printf("  Metal.jl's took 1.75 s (pull request 721), most of it in Julia's compiler, which now works ahead (747, 859):\n"
           "  a warm-up like these is for what Metal compiles\n");
    printf("  %-44s %12s %9s %9s\n", "", "median ms", "faster", "compiled");
    for (n = 0; n < USES; n++) {
        double s = median_of(seconds[n], rounds);
        if (n == 0) without = s;
        printf("  %-44s %12.3f %8.1fx %9u\n", uses[n].name, s * 1e3, without / s, uses[n].compiles);
    }
    printf("  median of %u rounds\n", rounds);
    fflush(stdout);
}
