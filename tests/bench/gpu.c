/* gpu.c - how late seven ways of waiting are, and what they cost, on the Vulkan device of this machine (tests/vulkan)

   A contestant waits for the oldest of the command buffers in flight, one or four, and then the next one is committed.
   In every round each contestant has its turn with a Metal queue and objects that are new; what comes first, and what
   comes after what, changes from round to round.

   late     from the GPU's end of the command buffer to the return of the wait for it; of all waits
   idle     waits that began behind that end: late then has the time in it in which the program made and committed others
   CPU      processor time of the process for a command buffer: making, committing, waiting, handlers; by round. Without
            the threads that play the GPU, where there are such: players.c
   spun     of gpusync's waits, %: those that ended in a spin, those that slept, those that spun in vain before
   GPU us   what the kernels really took, by the GPU's times, median

   `make bench-gpu` calls this through gpu.sh, five times. BENCH_ROUNDS (25), BENCH_ONLY ('20 us x 4'), BENCH_JSON: as of
   bench.c. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../../examples/metal.h"
#include "../vulkan/vulkan.h"
#include "bench.h"
#include "device.h"
#include "gpu_ways.h"

#define MOST_IN_FLIGHT 4u
#define MOST_TURNS 40u
#define CHECKS 51u
#define PIPELINE_US 2000.0 /* one of the lengths */
#define CLOCK_US 10.0 /* the GPU's clock may be off by this */

bench the_bench = {25, NULL, NULL, "", -1, -1, false, true, 0, 0};
static bench_device vulkan_device;
const bench_device *the_device = &vulkan_device;
const rule *waiting_rules; /* there are none: json.c asks */
unsigned waiting_rule_count;

static const struct length {
    double us;
    unsigned turns, warm_turns; /* of a round */
} lengths[] = {{20, 40, 16}, {100, 40, 16}, {500, 20, 12}, {2000, 8, 6}, {20000, 4, 3}};
#define LENGTHS (sizeof lengths / sizeof lengths[0])
static item items[MOST_TURNS + MOST_IN_FLIGHT];

/* -- measuring ---------------------------------------------------------------------------------------- */

/* Of one case: by contestant and round, for a command buffer; and of all waits. */
static struct {
    double time[WAYS][MAX_ROUNDS], cpu[WAYS][MAX_ROUNDS], players[WAYS][MAX_ROUNDS];
    double voluntary[WAYS][MAX_ROUNDS], involuntary[WAYS][MAX_ROUNDS];
    double late[WAYS][MAX_ROUNDS * MOST_TURNS], gpu[WAYS][MAX_ROUNDS * MOST_TURNS];
    double idle[WAYS], spun[WAYS], slept[WAYS], vain[WAYS]; /* waits */
} seen;

static void start(const way *by, line *l, item *i, double us)
{
    i->buffer = make_buffer(l);
    the_device->set_length(i->buffer, (uint64_t)(us * 1e3));
    by->commit(l, i);
}

/* Waits for `count` command buffers, each with so many in flight, but for the last ones. */
static void take_turns(const way *by, line *l, double us, unsigned in_flight, unsigned count)
{
    unsigned started = 0, i;
    for (i = 0; i < count; i++) {
        while (started < count && started < i + in_flight) start(by, l, &items[started++], us);
        items[i].called_us = wall_us();
        by->wait(l, &items[i]);
        items[i].returned_us = wall_us();
    }
}

/* Adds what gpusync has counted, times `sign`. */
static void count_ways(gpusync_queue *queue, unsigned n, int sign)
{
    gpusync_stats now;
    if (!queue) return;
    must(gpusync_get_stats(queue, &now) == GPUSYNC_OK, "gpusync_get_stats");
    seen.spun[n] += sign * (double)now.waits_spin;
    seen.slept[n] += sign * (double)now.waits_sleep;
    seen.vain[n] += sign * (double)now.spins_in_vain;
}

static void release_items(unsigned count)
{
    while (count > 0) {
        must(metal_status(items[--count].buffer) == 4, "a command buffer that completed");
        metal_release(items[count].buffer);
    }
}

static void measure(const struct length *of, unsigned in_flight, unsigned n, unsigned round)
{
    const way *by = &ways[n];
    void *pool = metal_pool_push();
    line l = open_line(by, metal_queue_new(the_bench.metal_device, 64), the_bench.device);
    unsigned count = of->turns + in_flight - 1, i;
    double begin, cpu, played, own;
    struct rusage before, after;
    take_turns(by, &l, of->us, in_flight, of->warm_turns);
    the_device->settle(l.metal_queue);
    release_items(of->warm_turns);

    count_ways(l.queue, n, -1);
    getrusage(RUSAGE_SELF, &before);
    played = players_us();
    cpu = now_us(CLOCK_PROCESS_CPUTIME_ID);
    begin = wall_us();
    take_turns(by, &l, of->us, in_flight, count);
    getrusage(RUSAGE_SELF, &after);
    count_ways(l.queue, n, 1);
    /* What the end of a wait leaves to other threads counts, and this thread's wait for that does not. */
    own = now_us(CLOCK_THREAD_CPUTIME_ID);
    the_device->settle(l.metal_queue);
    own = now_us(CLOCK_THREAD_CPUTIME_ID) - own;
    cpu = now_us(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    played = players_us() - played;

    seen.time[n][round] = (items[count - 1].returned_us - begin) / count;
    seen.cpu[n][round] = (cpu - played - own) / count;
    seen.players[n][round] = played / count;
    seen.voluntary[n][round] = (double)(after.ru_nvcsw - before.ru_nvcsw) / count;
    seen.involuntary[n][round] = (double)(after.ru_nivcsw - before.ru_nivcsw) / count;
    /* Times are read when all is over: an event's listener may be sooner than they are. */
    for (i = 0; i < of->turns; i++) {
        double end = gpu_us(items[i].buffer, "GPUEndTime");
        seen.late[n][round * of->turns + i] = items[i].returned_us - end;
        seen.gpu[n][round * of->turns + i] = end - gpu_us(items[i].buffer, "GPUStartTime");
        seen.idle[n] += items[i].called_us > end;
    }
    release_items(count);
    close_line(&l);
    metal_pool_pop(pool);
}

/* -- tables ------------------------------------------------------------------------------------------- */

static void fill_row(const waiting_case *c, unsigned n, row *r)
{
    unsigned rounds = the_bench.rounds, waits = rounds * c->turns;
    r->contestant = ways[n].name;
    r->time = quartiles_of(seen.time[n], rounds);
    r->cpu = quartiles_of(seen.cpu[n], rounds);
    r->engine_cpu = quartiles_of(seen.players[n], rounds);
    r->voluntary = quartiles_of(seen.voluntary[n], rounds);
    r->involuntary = quartiles_of(seen.involuntary[n], rounds);
    r->latency = quartiles_of(seen.late[n], waits);
    r->gpu = quartiles_of(seen.gpu[n], waits);
    r->latency_p95 = quantile(seen.late[n], waits, 0.95);
    r->latency_p99 = quantile(seen.late[n], waits, 0.99);
    r->beside_gpusync = compare(seen.time[n], seen.time[0], rounds, 0, 0);
}

static void print_row(const row *r, unsigned n, unsigned waits, unsigned commits)
{
    char ends[24] = "";
    if (ways[n].spin || n == 0)
        snprintf(ends, sizeof ends, "%.0f / %.0f / %.0f", 100 * seen.spun[n] / commits,
                 100 * seen.slept[n] / commits, 100 * seen.vain[n] / commits);
    printf("  %-20s %9.1f %9.1f %9.1f %7.0f %9.1f %9.1f %15s\n", r->contestant, r->latency.median, r->latency_p95,
           r->latency_p99, 100 * seen.idle[n] / waits, r->cpu.median, r->gpu.median, ends);
}

static void run_case(const struct length *of, unsigned in_flight)
{
    static row rows[WAYS];
    waiting_case c = {"", of->us, in_flight, of->turns, of->warm_turns};
    unsigned round, k, n;
    snprintf(c.title, sizeof c.title, "%.0f us x %u", of->us, in_flight);
    if (!is_wanted(c.title)) return;
    memset(&seen, 0, sizeof seen);
    for (round = 0; round < the_bench.rounds; round++)
        for (k = 0; k < WAYS; k++) measure(of, in_flight, in_order(k, round, WAYS), round);
    printf("\n%s in flight, %u waits a round\n  %-20s %9s %9s %9s %7s %9s %9s %15s\n", c.title, c.turns, "", "late p50", "p95",
           "p99", "idle %", "CPU us", "GPU us", "spun/slept/vain");
    for (n = 0; n < WAYS; n++) {
        fill_row(&c, n, &rows[n]);
        print_row(&rows[n], n, the_bench.rounds * c.turns, the_bench.rounds * (c.turns + in_flight - 1));
    }
    fflush(stdout);
    json_add_rows(&c, rows, WAYS);
}

/* -- the device --------------------------------------------------------------------------------------- */

/* A kernel begins behind its commit and ends before the return of its wait, by the host's clock: else nothing of this
   program can be measured. */
static void check_clock(void)
{
    void *metal_queue = metal_queue_new(the_bench.metal_device, 64), *pool = metal_pool_push();
    double begin[CHECKS], end[CHECKS], committed, returned;
    unsigned i;
    for (i = 0; i < CHECKS; i++) {
        void *buffer = metal_queue_command_buffer(metal_queue);
        the_device->set_length(buffer, (uint64_t)(lengths[0].us * 1e3));
        committed = wall_us();
        metal_commit(buffer);
        metal_wait_until_completed(buffer);
        returned = wall_us();
        begin[i] = gpu_us(buffer, "GPUStartTime") - committed;
        end[i] = returned - gpu_us(buffer, "GPUEndTime");
        metal_release(buffer);
    }
    metal_pool_pop(pool);
    metal_release(metal_queue);
    printf("the clock, by %u kernels: from the commit to the GPU's start %.1f us at least, from its end to the return of "
           "waitUntilCompleted %.1f\n", CHECKS, quantile(begin, CHECKS, 0), quantile(end, CHECKS, 0));
    must(quantile(begin, CHECKS, 0) > -CLOCK_US && quantile(end, CHECKS, 0) > -CLOCK_US,
         "the GPU's times are in the clock of gpusync_now_ns");
}

/* Is the end of a command buffer told while the next one runs? Some drivers tell of all that is pending at once. */
static void check_pipeline(void)
{
    void *metal_queue = metal_queue_new(the_bench.metal_device, 64), *pool = metal_pool_push(), *buffers[2];
    double seen_us[CHECKS], share;
    unsigned i, k;
    for (i = 0; i < CHECKS; i++) {
        for (k = 0; k < 2; k++) {
            buffers[k] = metal_queue_command_buffer(metal_queue);
            the_device->set_length(buffers[k], (uint64_t)(PIPELINE_US * 1e3));
            metal_commit(buffers[k]);
        }
        while (metal_status(buffers[0]) < 4) sched_yield();
        seen_us[i] = wall_us();
        the_device->settle(metal_queue);
        seen_us[i] -= gpu_us(buffers[0], "GPUEndTime");
        for (k = 0; k < 2; k++) metal_release(buffers[k]);
    }
    metal_pool_pop(pool);
    metal_release(metal_queue);
    share = quartiles_of(seen_us, CHECKS).median / PIPELINE_US;
    printf("the driver, by two kernels of %.0f us at once: the first one's end is told %.0f us after it%s\n", PIPELINE_US,
           share * PIPELINE_US, share < 0.5 ? "" : ".\nSo it tells of pending work together, and with four in flight, late is the driver's");
}

/* The first work: what the driver still starts, it starts here. */
static void start_driver(void)
{
    void *metal_queue = metal_queue_new(the_bench.metal_device, 64), *pool = metal_pool_push();
    void *buffer = metal_queue_command_buffer(metal_queue);
    call_this_thread(DRIVER);
    metal_commit(buffer);
    call_this_thread("bench_gpu");
    metal_wait_until_completed(buffer);
    metal_release(buffer);
    metal_pool_pop(pool);
    metal_release(metal_queue);
    find_players();
}

static void open_device(void)
{
    static char description[400];
    call_this_thread(DRIVER);
    the_bench.metal_device = metal_device_new();
    call_this_thread("bench_gpu");
    must(the_bench.metal_device != NULL, "there is a Vulkan device");
    metal_string_copy(metal_get(the_bench.metal_device, "name"), the_bench.device_name, sizeof the_bench.device_name);
    vulkan_describe(the_bench.metal_device, description, sizeof description);
    vulkan_device = kernels_device;
    vulkan_device.name = description;
    vulkan_device.engine_us = players_us;
    start_driver();
}

static void print_heading(void)
{
    char model[200];
    double load = 0;
    unsigned n;
    processor_model(model, sizeof model, "a processor without a name");
    getloadavg(&load, 1);
    printf("gpusync on Metal over Vulkan. This is not Apple's hardware, nor Apple's Metal.\n"
           "What carries over: how soon the driver and the system, which others wrote, let a waiting thread run again, and what\n"
           "each way of waiting adds to that: threads in between, looks at the status, sleeps by the clock, processor time.\n"
           "What does not: how long Metal takes from the GPU's end to the status, a handler or a listener, what its calls cost,\n"
           "and how macOS schedules threads and ends timed sleeps.\n\n"
           "device: %s\nprocessor: %s, %ld of them; load before: %.1f\n", the_device->name, model,
           sysconf(_SC_NPROCESSORS_ONLN), load);
    print_players();
    printf("%u rounds, contestants interleaved, nothing is pinned\n", the_bench.rounds);
    measure_wake_up();
    printf("\ncontestants:\n");
    for (n = 0; n < WAYS; n++) printf("  %-20s %s\n", ways[n].name, ways[n].what);
    printf("\n");
}

int main(void)
{
    static const double us[] = {20, 100, 500, 2000, 20000};
    gpusync_device_desc desc = {0};
    void *pool = metal_pool_push();
    double begin = wall_us(), load = 0;
    gpusync_device *device;
    unsigned i;
    if (getenv("BENCH_ROUNDS")) the_bench.rounds = (unsigned)strtoul(getenv("BENCH_ROUNDS"), NULL, 10);
    must(the_bench.rounds > 0 && the_bench.rounds <= MAX_ROUNDS, "BENCH_ROUNDS is from 1 to 200");
    for (i = 0; i < MOST_TURNS + MOST_IN_FLIGHT; i++) must(sem_init(&items[i].done, 0, 0) == 0, "sem_init");
    open_device();
    desc.metal_device = the_bench.metal_device;
    must(gpusync_device_create(&desc, &device) == GPUSYNC_OK, "gpusync_device_create");
    the_bench.device = device;
    print_heading();
    calibrate_kernels(us, LENGTHS);
    check_clock();
    check_pipeline();
    for (i = 0; i < LENGTHS; i++) run_case(&lengths[i], 1);
    for (i = 0; i < LENGTHS; i++) run_case(&lengths[i], MOST_IN_FLIGHT);
    must(gpusync_device_destroy(device) == GPUSYNC_OK, "gpusync_device_destroy");
    vulkan_device.end();
    metal_release(the_bench.metal_device);
    the_bench.seconds = (wall_us() - begin) / 1e6;
    getloadavg(&load, 1);
    printf("\n%.1f s; load: %.1f\n", the_bench.seconds, load);
    json_write();
    metal_pool_pop(pool);
    return 0;
}
