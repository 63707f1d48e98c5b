/* waiting.c - every contestant with kernels of 5 us to 14 ms: time, latency, processor, context switches; the rules

   A turn makes and commits one command buffer, or ten, and waits. In a round each contestant takes as many turns as make
   some 12 ms of kernels. For a round a contestant gets a Metal queue and objects that are new, so that all of them begin
   alike and none keeps an unlucky place in memory for a whole case. Four command buffers at least, and 1 ms, come before
   what is measured. gpusync learns from them, and the processors forget the contestant before.

   The order changes from round to round: which contestant begins, and which comes after which. What a contestant leaves
   behind, such as a processor that has gone to sleep, is not always the same one's burden.

   Latency is from the GPU's end of a turn's last command buffer to the return of the wait. The benchmark keeps that buffer
   and asks for its time when the device has come to rest. The processor time is that of the process. It includes what is
   left to do for the round when its last wait has returned, but not the threads that play the GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../../examples/metal.h"
#include "bench.h"
#include "device.h"
#include "peers.h"

#define ROUND_US 12000.0
#define AHEAD_US 1000.0
#define TURN_US 40.0 /* what a turn takes beside its kernels, about */
#define MAX_TURNS 60u
#define COMMITS_AHEAD 4u
#define MAX_CASES 20u
#define MAX_RULES 64u

static const double kernels_us[] = {5, 20, 50, 150, 300, 1000, 3000, 0, 14000};
static const double mix_us[] = {5, 20, 50, 100, 200, 500, 1000, 3000};
#define MIX 0.0

/* -- measuring ---------------------------------------------------------------------------------------- */

/* Of one case: by contestant and round, for a turn; latencies of all turns. */
static struct {
    double time[CONTESTANTS][MAX_ROUNDS], cpu[CONTESTANTS][MAX_ROUNDS], engine_cpu[CONTESTANTS][MAX_ROUNDS];
    double voluntary[CONTESTANTS][MAX_ROUNDS], involuntary[CONTESTANTS][MAX_ROUNDS];
    double latency[CONTESTANTS][MAX_ROUNDS * MAX_TURNS], gpu[CONTESTANTS][MAX_ROUNDS * MAX_TURNS];
} seen;

/* xorshift: the same kernels for each contestant of a round */
static uint64_t mix_state;

static uint64_t next_kernel_ns(const waiting_case *c)
{
    if (c->kernel_us > MIX) return (uint64_t)(c->kernel_us * 1e3);
    mix_state ^= mix_state << 13;
    mix_state ^= mix_state >> 7;
    mix_state ^= mix_state << 17;
    return (uint64_t)(mix_us[(mix_state >> 32) % 8] * 1e3);
}

/* Returns the last buffer, +1. */
static void *take_turn(const waiting_case *c, const contestant *by, peer *p)
{
    void *buffer = NULL;
    unsigned i;
    for (i = 1; i <= c->commits; i++) {
        buffer = by->make(p);
        the_device->set_length(buffer, next_kernel_ns(c));
        if (i == c->commits) metal_retain(buffer);
        by->commit(p, buffer, i == c->commits);
    }
    by->wait(p);
    return buffer;
}

static void measure(const waiting_case *c, unsigned n, unsigned round)
{
    const contestant *by = &contestants[n];
    void *pool = metal_pool_push(), *metal_queue = metal_queue_new(the_bench.metal_device, 64), *last[MAX_TURNS];
    peer *p = by->open(the_bench.device, metal_queue);
    double returned[MAX_TURNS], begin, cpu, engine, own, turns = c->turns;
    struct rusage before, after;
    unsigned i;
    mix_state = 0x9e3779b97f4a7c15u + round;
    for (i = 0; i < c->warm_turns; i++) metal_release(take_turn(c, by, p));
    the_device->settle(metal_queue);

    getrusage(RUSAGE_SELF, &before);
    engine = the_device->engine_us();
    cpu = now_us(CLOCK_PROCESS_CPUTIME_ID);
    begin = wall_us();
    for (i = 0; i < c->turns; i++) {
        last[i] = take_turn(c, by, p);
        returned[i] = wall_us();
    }
    getrusage(RUSAGE_SELF, &after);
    /* A wait that returns early leaves work to the completion thread. That work counts; this thread's wait does not. */
    own = now_us(CLOCK_THREAD_CPUTIME_ID);
    the_device->settle(metal_queue);
    own = now_us(CLOCK_THREAD_CPUTIME_ID) - own;
    cpu = now_us(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    engine = the_device->engine_us() - engine;

    seen.time[n][round] = (returned[c->turns - 1] - begin) / turns;
    seen.cpu[n][round] = (cpu - engine - own) / turns;
    seen.engine_cpu[n][round] = engine / turns;
    seen.voluntary[n][round] = (double)(after.ru_nvcsw - before.ru_nvcsw) / turns;
    seen.involuntary[n][round] = (double)(after.ru_nivcsw - before.ru_nivcsw) / turns;
    for (i = 0; i < c->turns; i++) {
        double end = gpu_us(last[i], "GPUEndTime");
        bool timed = end > begin || !the_bench.gpu_clock;
        must(timed && metal_status(last[i]) == 4, "a command buffer that completed, with its times");
        seen.latency[n][round * c->turns + i] = the_bench.gpu_clock ? returned[i] - end : 0;
        seen.gpu[n][round * c->turns + i] = end - gpu_us(last[i], "GPUStartTime");
        metal_release(last[i]);
    }
    by->close(p);
    metal_release(metal_queue);
    metal_pool_pop(pool);
}

/* -- the table ---------------------------------------------------------------------------------------- */

static void fill_row(const waiting_case *c, unsigned n, row *r)
{
    unsigned rounds = the_bench.rounds;
    size_t latencies = (size_t)rounds * c->turns;
    r->contestant = contestants[n].name;
    r->time = quartiles_of(seen.time[n], rounds);
    r->cpu = quartiles_of(seen.cpu[n], rounds);
    r->engine_cpu = quartiles_of(seen.engine_cpu[n], rounds);
    r->voluntary = quartiles_of(seen.voluntary[n], rounds);
    r->involuntary = quartiles_of(seen.involuntary[n], rounds);
    r->latency = quartiles_of(seen.latency[n], latencies);
    r->gpu = quartiles_of(seen.gpu[n], latencies);
    r->latency_p95 = quantile(seen.latency[n], latencies, 0.95);
    r->latency_p99 = quantile(seen.latency[n], latencies, 0.99);
    r->beside_gpusync = compare(seen.time[n], seen.time[GPUSYNC_OWN], rounds, 0, 0);
}

static void print_table(const waiting_case *c, const row *rows)
{
    unsigned n;
    printf("\n%s commit%s, %u turns a round\n  %-20s %9s %-22s %9s %9s %9s %7s %7s %9s\n", c->title,
           c->commits > 1 ? "s" : "", c->turns, "", "us/turn", "  by gpusync's, 95 %", "late p50", "p99", "CPU us", "slept",
           "ousted", "GPU us");
    for (n = 0; n < CONTESTANTS; n++) {
        const row *r = &rows[n];
        printf("  %-20s %9.1f  %5.3f [%5.3f, %6.3f] %9.1f %9.1f %9.1f %7.1f %7.2f %9.1f\n", r->contestant, r->time.median,
               r->beside_gpusync.ratio.median, r->beside_gpusync.ratio.low, r->beside_gpusync.ratio.high,
               r->latency.median, r->latency_p99, r->cpu.median, r->voluntary.median, r->involuntary.median,
               r->gpu.median);
    }
    fflush(stdout);
}

/* -- the rules ---------------------------------------------------------------------------------------- */

static rule rules[MAX_RULES];
const rule *waiting_rules = rules;
unsigned waiting_rule_count;

static rule *new_rule(const waiting_case *c, const char *name, unsigned against)
{
    rule *r = &rules[waiting_rule_count++];
    must(waiting_rule_count <= MAX_RULES, "room for rules");
    r->name = name;
    r->against = contestants[against].name;
    memcpy(r->title, c->title, sizeof r->title);
    return r;
}

static void judge(rule *r)
{
    verdict by_time = verdict_of(&r->time.excess_us), by_cpu = verdict_of(&r->cpu.excess_us);
    if (!r->by_cpu) r->verdict = by_time;
    else if (!r->by_time) r->verdict = by_cpu;
    else r->verdict = by_time < by_cpu ? by_time : by_cpu; /* missed is what is missed in both */
}

static void time_rule(const waiting_case *c, const char *name, unsigned against, double share, double us)
{
    rule *r = new_rule(c, name, against);
    r->by_time = true;
    r->time = compare(seen.time[GPUSYNC_OWN], seen.time[against], the_bench.rounds, share, us);
    judge(r);
}

static void cpu_rule(const waiting_case *c, const char *name, unsigned against, double share)
{
    rule *r = new_rule(c, name, against);
    r->by_cpu = true;
    r->cpu = compare(seen.cpu[GPUSYNC_OWN], seen.cpu[against], the_bench.rounds, share, 0);
    judge(r);
}

/* The best time of those that take less than twice gpusync's processor time, by the medians. */
static unsigned best_of_the_frugal(const row *rows)
{
    unsigned n, best = 0;
    for (n = 1; n < CONTESTANTS; n++)
        if (rows[n].cpu.median < 2 * rows[GPUSYNC_OWN].cpu.median && (!best || rows[n].time.median < rows[best].time.median))
            best = n;
    return best;
}

static double closer(const rule *r) /* of both: the one that is further from being missed */
{
    double time = r->time.excess_us.median, cpu = r->cpu.excess_us.median;
    return time < cpu ? time : cpu;
}

/* One line for all: of the worst verdict, and among those of the one that comes closest to beating gpusync. */
static void beaten_in_both(const waiting_case *c, double share, double us)
{
    rule worst, r;
    unsigned n;
    memset(&worst, 0, sizeof worst);
    for (n = 1; n < CONTESTANTS; n++) {
        memset(&r, 0, sizeof r);
        r.name = "none better in both";
        r.against = contestants[n].name;
        memcpy(r.title, c->title, sizeof r.title);
        r.by_time = r.by_cpu = true;
        r.time = compare(seen.time[GPUSYNC_OWN], seen.time[n], the_bench.rounds, share, us);
        r.cpu = compare(seen.cpu[GPUSYNC_OWN], seen.cpu[n], the_bench.rounds, share, us);
        judge(&r);
        if (n == 1 || r.verdict > worst.verdict || (r.verdict == worst.verdict && closer(&r) > closer(&worst))) worst = r;
    }
    *new_rule(c, worst.name, 0) = worst;
}

static void add_rules(const waiting_case *c, const row *rows)
{
    unsigned best = best_of_the_frugal(rows);
    bool short_one = c->kernel_us > MIX && c->kernel_us <= 3000;
    if (best && short_one) time_rule(c, "time near the best", best, 0.05, 2);
    if (best && c->kernel_us > 3000) time_rule(c, "time near the best", best, 0.01, 2);
    if (short_one) beaten_in_both(c, 0.03, 2);
    if (c->kernel_us == 150 && c->commits == 1) time_rule(c, "time ahead of 32/224", GPUSYNC_COUNTS, -0.1, 0);
    if (c->kernel_us == MIX || c->kernel_us == 1000 || c->kernel_us == 3000)
        cpu_rule(c, "CPU as parked at once", GPUSYNC_PARKED, 0.15);
}

static void print_part(const comparison *c, const char *what)
{
    char limit[40];
    if (c->us > 0) snprintf(limit, sizeof limit, "%.2f or +%.0f us", 1 + c->share, c->us);
    else snprintf(limit, sizeof limit, "%.2f", 1 + c->share);
    printf(" %-4s %6.3f [%6.3f, %6.3f] of %-15s beyond it: %8.1f us [%8.1f, %8.1f]", what, c->ratio.median, c->ratio.low,
           c->ratio.high, limit, c->excess_us.median, c->excess_us.low, c->excess_us.high);
}

void print_rules(void)
{
    static const char *const words[] = {"held", "open", "MISSED"};
    unsigned i, of[3] = {0, 0, 0};
    if (!waiting_rule_count) return;
    printf("\nrules: gpusync by another contestant, medians over the rounds with 95 %% intervals. Missed: the whole interval\n"
           "lies beyond the limit. Open: the limit lies inside. Of two lines, time and CPU, both have to be missed.\n");
    for (i = 0; i < waiting_rule_count; i++) {
        const rule *r = &rules[i];
        of[r->verdict]++;
        printf("  %-6s %-22s %-13s %-20s", words[r->verdict], r->name, r->title, r->against);
        if (r->by_time) print_part(&r->time, "time");
        if (r->by_time && r->by_cpu) printf("\n%66s", "");
        if (r->by_cpu) print_part(&r->cpu, "CPU");
        printf("\n");
    }
    printf("%u held, %u open, %u missed\n", of[HELD], of[OPEN], of[MISSED]);
}

/* ----------------------------------------------------------------------------------------------------- */

static unsigned clamped(double value, unsigned least, unsigned most)
{
    return value < least ? least : value > most ? most : (unsigned)value;
}

static waiting_case new_case(double kernel_us, unsigned commits)
{
    waiting_case c;
    double mean = kernel_us;
    unsigned i;
    for (i = 0; kernel_us <= MIX && i < 8; i++) mean += mix_us[i] / 8;
    memset(&c, 0, sizeof c);
    c.kernel_us = kernel_us;
    c.commits = commits;
    c.turns = clamped(ROUND_US / (mean * commits + TURN_US), kernel_us > 3000 ? 1 : 2, MAX_TURNS);
    c.warm_turns = clamped(AHEAD_US / (mean * commits + TURN_US), (COMMITS_AHEAD + commits - 1) / commits, MAX_TURNS);
    if (kernel_us > MIX) snprintf(c.title, sizeof c.title, "%.0f us x %u", kernel_us, commits);
    else snprintf(c.title, sizeof c.title, "mix x %u", commits);
    return c;
}

static void run_case(double kernel_us, unsigned commits, row_sink sink)
{
    static row rows[CONTESTANTS];
    waiting_case c = new_case(kernel_us, commits);
    unsigned round, k, n;
    if (!is_wanted(c.title)) return;
    for (round = 0; round < the_bench.rounds; round++)
        for (k = 0; k < CONTESTANTS; k++) measure(&c, in_order(k, round, CONTESTANTS), round);
    for (n = 0; n < CONTESTANTS; n++) fill_row(&c, n, &rows[n]);
    print_table(&c, rows);
    add_rules(&c, rows);
    sink(&c, rows, CONTESTANTS);
}

void run_waiting(row_sink sink)
{
    size_t i;
    for (i = 0; i < sizeof kernels_us / sizeof kernels_us[0]; i++) {
        run_case(kernels_us[i], 1, sink);
        if (kernels_us[i] <= 3000) run_case(kernels_us[i], 10, sink);
    }
}
