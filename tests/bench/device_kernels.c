/* device_kernels.c - kernels that take as long as asked, on whatever Metal device there is

   One threadgroup goes round a loop. How often, for a given length, is found out at the start by GPUStartTime and
   GPUEndTime: first with counts that double, then, between the two neighbours, for each length of the benchmark. A GPU
   changes its clock with its load. So this is not exact, and the table has a column with what kernels really took. */
#include <stdio.h>

#include "../../examples/metal.h"
#include "bench.h"
#include "device.h"

#define RUNS 11u
#define RUNS_AHEAD 3u
#define MAX_POINTS 64u
#define FIRST_COUNT 64u
#define MAX_COUNT (1u << 30)
#define MAX_LENGTHS 16u

/* Each step needs the one before, and the result is written: nothing of it can be left out. */
static const char source[] = "#include <metal_stdlib>\n"
                             "using namespace metal;\n"
                             "kernel void bench_loop(device uint *out [[buffer(0)]],\n"
                             "                       constant uint &count [[buffer(1)]],\n"
                             "                       uint at [[thread_position_in_grid]])\n"
                             "{\n"
                             "    uint x = at + 1;\n"
                             "    for (uint i = 0; i < count; i++) {\n"
                             "        x ^= x << 13;\n"
                             "        x ^= x >> 17;\n"
                             "        x ^= x << 5;\n"
                             "    }\n"
                             "    out[at] = x;\n"
                             "}\n";

/* All lengths that waiting.c and unknown.c ask for */
static const double usual_us[] = {5, 20, 50, 100, 150, 200, 300, 500, 1000, 3000, 14000};

static struct {
    double us;
    uint32_t count;
} lengths[MAX_LENGTHS];
static unsigned length_count;

static const metal_size one_group = {1, 1, 1}, threads = {32, 1, 1};
static void *pipeline, *memory; /* +1 */

/* What counts took, in their order */
typedef struct point {
    uint32_t count;
    double us;
} point;

static point points[MAX_POINTS];
static unsigned point_count;

/* Every kernel writes to the same memory, which Metal tracks: none of them runs beside another. */
static void encode(void *command_buffer, uint32_t count)
{
    void *compute = metal_compute_begin(command_buffer);
    must(compute != NULL, "computeCommandEncoder");
    metal_set_pipeline(compute, pipeline);
    metal_set_buffer(compute, memory, 0, 0);
    metal_set_bytes(compute, &count, sizeof count, 1);
    metal_dispatch(compute, one_group, threads);
    metal_end(compute);
}

static void set_length(void *command_buffer, uint64_t ns)
{
    unsigned i;
    for (i = 0; i < length_count; i++) {
        if ((uint64_t)(lengths[i].us * 1e3) != ns) continue;
        encode(command_buffer, lengths[i].count);
        return;
    }
    must(false, "a length that was calibrated");
}

static quartiles measure(uint32_t count)
{
    void *metal_queue = metal_queue_new(the_bench.metal_device, 64), *pool = metal_pool_push();
    double us[RUNS];
    unsigned i;
    for (i = 0; i < RUNS_AHEAD + RUNS; i++) {
        void *buffer = metal_queue_command_buffer(metal_queue);
        encode(buffer, count);
        metal_commit(buffer);
        metal_wait_until_completed(buffer);
        must(metal_status(buffer) == 4, "a kernel that completed");
        if (i >= RUNS_AHEAD) us[i - RUNS_AHEAD] = gpu_us(buffer, "GPUEndTime") - gpu_us(buffer, "GPUStartTime");
        metal_release(buffer);
    }
    metal_pool_pop(pool);
    metal_release(metal_queue);
    return quartiles_of(us, RUNS);
}

static void add_point(uint32_t count, double us)
{
    unsigned i = point_count;
    if (point_count == MAX_POINTS) return;
    for (; i > 0 && points[i - 1].count > count; i--) points[i] = points[i - 1];
    points[i].count = count;
    points[i].us = us;
    point_count++;
}

/* Between the neighbours. An empty kernel may take longer already. */
static uint32_t count_for(double us)
{
    unsigned i;
    for (i = 0; i < point_count && points[i].us < us; i++) continue;
    if (i == 0) return points[0].count;
    must(i < point_count, "a kernel that takes long enough");
    return points[i - 1].count + (uint32_t)((points[i].count - points[i - 1].count) * (us - points[i - 1].us) /
                                            (points[i].us - points[i - 1].us));
}

static void calibrate(double us, uint32_t *count)
{
    quartiles got;
    unsigned tries;
    char name[32];
    for (tries = 0;; tries++) {
        *count = count_for(us);
        got = measure(*count);
        if (tries == 2 || *count == 0 || (got.median > us * 0.98 && got.median < us * 1.02)) break;
        add_point(*count, got.median);
    }
    printf("  %8.0f %12lu %12.1f [%.1f, %.1f]\n", us, (unsigned long)*count, got.median, got.low, got.high);
    snprintf(name, sizeof name, "%.0f us asked", us);
    json_add_other("calibration", name, got);
}

void calibrate_kernels(const double *us, unsigned us_count)
{
    char message[200];
    double enough_us = us[us_count - 1] * 1.3;
    uint32_t count;
    must(us_count <= MAX_LENGTHS, "room for lengths");
    pipeline = metal_pipeline_new(the_bench.metal_device, source, "bench_loop", message, sizeof message);
    if (!pipeline) fprintf(stderr, "bench: %s\n", message);
    must(pipeline != NULL, "the kernel compiles");
    memory = metal_buffer_new(the_bench.metal_device, threads.width * sizeof(uint32_t));
    must(memory != NULL, "newBufferWithLength:options:");
    add_point(0, measure(0).median);
    for (count = FIRST_COUNT; points[point_count - 1].us < enough_us && count < MAX_COUNT; count *= 2)
        add_point(count, measure(count).median);
    printf("calibration, %u runs for each length:\n  %8s %12s %12s\n", RUNS, "asked us", "loops", "got us");
    for (; length_count < us_count; length_count++) {
        lengths[length_count].us = us[length_count];
        calibrate(us[length_count], &lengths[length_count].count);
    }
    fflush(stdout);
}

static void open_kernels(void)
{
    calibrate_kernels(usual_us, sizeof usual_us / sizeof usual_us[0]);
    measure_unknowns();
}

/* An empty buffer behind all others. waitUntilCompleted returns when that buffer's own handlers have run. Those of earlier
   buffers have run by then, if Metal serves the buffers of a queue in order. No contract says so: it is assumed, and the
   row "empty behind" of beliefs/probes.h asks a Mac. This buffer's few microseconds on Metal's threads count as processor
   time, for each contestant. */
static void settle_queue(void *metal_queue)
{
    void *buffer = metal_queue_command_buffer(metal_queue);
    metal_commit(buffer);
    metal_wait_until_completed(buffer);
    metal_release(buffer);
}

static double no_engine_us(void)
{
    return 0;
}

static void end_kernels(void)
{
    metal_release(memory);
    metal_release(pipeline);
}

const bench_device kernels_device = {
    "Metal device, kernels that are calibrated",
    "gpusync's benchmark on the Metal device of this machine, with kernels that are calibrated: the ratios hold for this\n"
    "machine and system.",
    NULL, 0, NULL, open_kernels, set_length, settle_queue, no_engine_us, NULL, NULL, end_kernels};
