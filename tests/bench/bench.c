/* bench.c - gpusync against the other ways of waiting: on softmetal with the real clock, on a Mac on its Metal device

   One run, one process: in every round each contestant has its turn, and the order changes from round to round. What is
   printed are medians over the rounds and ratios of them. softmetal is no GPU: the ratios say how the
   algorithms compare under the settings that are printed with them, nothing about Apple's hardware.

   With two processors the program runs on one and softmetal, its completion threads included, on the other: a waiter
   that spins must not keep the thread that ends its wait from running. Where that is allowed, all threads have one
   real-time priority. The duels and the warm-up, which have threads of their own, have neither.

   BENCH_ROUNDS         rounds of every case, default 31
   BENCH_ONLY           cases to run, patterns of the shell with commas in between: BENCH_ONLY='150 us x 1,mix *'
   BENCH_JSON           a file for the results
   BENCH_DEVICE=kernels softmetal runs kernels that are calibrated, as make bench-device does on a Mac
   BENCH_PIN=0          nothing is pinned, and no priority changed
   BENCH_<SETTING>_NS   a latency of softmetal, by the names in the table that is printed first: BENCH_SCHEDULE_NS=4000 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/metal.h"
#include "../../gpusync.h"
#include "bench.h"
#include "device.h"
#include "peers.h"

#define MAX_CONTESTANTS 16
#define IDLE_QUEUES 32u

bench the_bench = {31, NULL, NULL, "", -1, -1, false, true, 0, 0};
const bench_device *the_device;

/* -- waits that have nothing to wait for -------------------------------------------------------------- */

static double times[MAX_CONTESTANTS][MAX_ROUNDS];

/* An empty command buffer that no contestant knows of: Metal's threads of this queue exist after it. */
static void start_threads(void *metal_queue)
{
    void *buffer = metal_queue_command_buffer(metal_queue);
    metal_commit(buffer);
    metal_release(buffer);
}

/* The first wait on each of several queues, never used or drained. No contestant has waited on them before. */
static double idle(const contestant *c, bool used)
{
    void *metal_queues[IDLE_QUEUES];
    peer *peers[IDLE_QUEUES];
    unsigned i;
    double took;
    for (i = 0; i < IDLE_QUEUES; i++) {
        metal_queues[i] = metal_queue_new(the_bench.metal_device, 64);
        start_threads(metal_queues[i]);
        peers[i] = c->open(the_bench.device, metal_queues[i]);
        if (used) c->commit(peers[i], c->make(peers[i]), true);
    }
    for (i = 0; i < IDLE_QUEUES; i++) the_device->settle(metal_queues[i]);
    took = wall_us();
    for (i = 0; i < IDLE_QUEUES; i++) c->wait(peers[i]);
    took = (wall_us() - took) / IDLE_QUEUES;
    for (i = 0; i < IDLE_QUEUES; i++) {
        the_device->settle(metal_queues[i]);
        c->close(peers[i]);
        metal_release(metal_queues[i]);
    }
    return took;
}

/* Prints times[0 .. count - 1] of all rounds under the title; the ratios refer to the first. */
static void print_times(const char *title, const char *(*name_of)(const void *of, unsigned n), const void *of, unsigned count)
{
    unsigned n;
    double own = quartiles_of(times[0], the_bench.rounds).median;
    printf("  %-44s %12s %9s\n", "", "median us", "ratio");
    for (n = 0; n < count; n++) {
        quartiles us = quartiles_of(times[n], the_bench.rounds);
        printf("  %-44s %12.3f %8.2fx\n", name_of(of, n), us.median, us.median / own);
        json_add_other(title, name_of(of, n), us);
    }
    fflush(stdout);
}

static const char *contestant_name(const void *of, unsigned n)
{
    (void)of;
    return contestants[n].name;
}

static void run_idle(const char *title, bool used)
{
    unsigned round, k, n;
    if (!is_wanted(title)) return;
    for (round = 0; round < the_bench.rounds; round++)
        for (k = 0; k < CONTESTANTS; k++) {
            n = (k + round) % CONTESTANTS;
            times[n][round] = idle(&contestants[n], used);
        }
    printf("\n%s\n", title);
    print_times(title, contestant_name, NULL, CONTESTANTS);
}

static const char *way_name(const void *of, unsigned n)
{
    return ((const duel *)of)->ways[n].name;
}

/* Who goes these ways: once for the duels that have the same ones. */
static void introduce(const duel *d)
{
    static const way *introduced;
    unsigned n;
    printf("\n%s\n", d->title);
    for (n = 0; n < d->way_count && d->ways != introduced; n++)
        if (d->ways[n].today) printf("  %-44s %s\n", d->ways[n].name, d->ways[n].today);
    introduced = d->ways;
}

void run_duel(const duel *d)
{
    unsigned round, k, n;
    if (!is_wanted(d->title)) return;
    for (round = 0; round < the_bench.rounds; round++)
        for (k = 0; k < d->way_count; k++) {
            n = (k + round) % d->way_count;
            times[n][round] = d->ways[n].run(the_bench.device, d->count);
            the_device->settle(NULL);
        }
    introduce(d);
    print_times(d->title, way_name, d, d->way_count);
}

static void print_heading(void)
{
    unsigned i;
    printf("%s %u rounds, contestants interleaved, medians. ", the_device->heading, the_bench.rounds);
    if (the_bench.program_on < 0) printf("Nothing is pinned.\n\n");
    else
        printf("Program on processor %d, softmetal on %d, %s.\n\n", the_bench.program_on, the_bench.softmetal_on,
               the_bench.real_time ? "all threads at one real-time priority" : "at the usual priorities");
    printf("device: %s\n", the_bench.device_name);
    the_device->open();
    measure_wake_up();
    printf("\ncontestants, and who waits so:\n");
    for (i = 0; i < CONTESTANTS; i++)
        printf("  %-20s %s\n      %s\n", contestants[i].name, contestants[i].what, contestants[i].today);
}

int main(void)
{
    gpusync_device_desc desc = {0};
    void *pool = metal_pool_push();
    double start = wall_us();
    gpusync_device *device;
    if (getenv("BENCH_ROUNDS")) the_bench.rounds = (unsigned)strtoul(getenv("BENCH_ROUNDS"), NULL, 10);
    if (the_bench.rounds < 1) the_bench.rounds = 1;
    if (the_bench.rounds > MAX_ROUNDS) the_bench.rounds = MAX_ROUNDS;
    the_device = device_choose();
    if (the_device->begin) the_device->begin();
    desc.metal_device = the_bench.metal_device = metal_device_new();
    must(desc.metal_device != NULL, "there is a Metal device");
    metal_string_copy(metal_get(desc.metal_device, "name"), the_bench.device_name, sizeof the_bench.device_name);
    must(gpusync_device_create(&desc, &device) == GPUSYNC_OK, "gpusync_device_create");
    the_bench.device = device;
    print_heading();
    run_idle("1. wait on a queue that was never used", false);
    run_idle("2. wait on a drained queue", true);
    printf("\n3, 4. one kernel and a wait, ten kernels and a wait. late: from the GPU's end to the return of the wait.\n"
           "CPU: of the process, for a turn, without the threads that play the GPU. slept, ousted: context switches of all\n"
           "threads for a turn, voluntary and involuntary. GPU: the last kernel of a turn, by its times.\n");
    run_waiting(json_add_rows);
    if (the_device->others) the_device->others();
    must(gpusync_device_destroy(device) == GPUSYNC_OK, "gpusync_device_destroy");
    metal_release(the_bench.metal_device);
    if (the_device->end) the_device->end();
    print_rules();
    the_bench.seconds = (wall_us() - start) / 1e6;
    printf("\n%.1f s\n", the_bench.seconds);
    json_write();
    metal_pool_pop(pool);
    return 0;
}
