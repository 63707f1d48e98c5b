/* bench.c - gpusync against the other ways of waiting, on softmetal with the real clock

   One run, one process: in every round each contestant has its turn, and the order moves on by one from round to
   round. What is printed are medians over the rounds and ratios of them. softmetal is no GPU: the ratios say how the
   algorithms compare under the settings that are printed with them, nothing about Apple's hardware.

   BENCH_ROUNDS         rounds of every case, default 41
   BENCH_<SETTING>_NS   a latency of softmetal, by the names in the table that is printed first: BENCH_SCHEDULE_NS=4000 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../examples/metal.h"
#include "../../gpusync.h"
#include "../softmetal/softmetal.h"
#include "peers.h"

#define MAX_ROUNDS 200
#define MAX_CONTESTANTS 16
#define IDLE_QUEUES 32u
#define LOOP 40u

static unsigned rounds = 41;
static gpusync_device *device;
static void *metal_device;

static double now_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double wall_us(void)
{
    return now_us(CLOCK_MONOTONIC);
}

/* Of the calling thread: what its waits burn. */
static double cpu_us(void)
{
    return now_us(CLOCK_THREAD_CPUTIME_ID);
}

static void settle(void)
{
    if (softmetal_settle(10000000000u)) return;
    fprintf(stderr, "bench: softmetal does not come to rest\n");
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, unsigned count)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, compare);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

/* -- settings ----------------------------------------------------------------------------------------- */

typedef struct setting {
    const char *name;
    size_t offset; /* of the range in softmetal_timing */
    uint64_t ns;
    const char *source;
} setting;

static setting settings[] = {
    {"SCHEDULE", offsetof(softmetal_timing, schedule), 0,
     "waking softmetal's own thread costs a condition variable's wake-up already (below)"},
    {"NOTIFY", offsetof(softmetal_timing, notify), 0, "the same, for the thread that runs handlers"},
    {"WAIT_RETURN", offsetof(softmetal_timing, wait_return), 0,
     "as fast as a handler: ggml's source notes no clear difference; others report up to 2 ms"},
    {"EVENT_LISTENER", offsetof(softmetal_timing, event_listener), 0, "as NOTIFY; case 5 alone uses a listener"},
    {"EVENT_CREATE", offsetof(softmetal_timing, event_create), 80000,
     "80 to 180 us in MoltenVK issue 1472; paid once for a queue, outside of what is timed"},
};

static void apply_settings(void)
{
    softmetal_timing timing;
    size_t i;
    softmetal_get_timing(&timing);
    printf("softmetal's latencies (BENCH_<NAME>_NS changes them):\n");
    for (i = 0; i < sizeof settings / sizeof settings[0]; i++) {
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

/* -- what a wake-up costs on this machine ------------------------------------------------------------- */

typedef struct bell {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned turn;
    bool over;
    double rung_us, heard_us;
} bell;

static void *listen(void *argument)
{
    bell *b = (bell *)argument;
    unsigned seen = 0;
    pthread_mutex_lock(&b->lock);
    while (!b->over) {
        while (b->turn == seen && !b->over) pthread_cond_wait(&b->changed, &b->lock);
        b->heard_us = wall_us();
        seen = b->turn;
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

static void measure_wake_up(void)
{
    bell b = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false, 0, 0};
    double took[51];
    unsigned i;
    pthread_t thread;
    if (pthread_create(&thread, NULL, listen, &b)) exit(1);
    for (i = 0; i < 51; i++) {
        struct timespec nap = {0, 1000000};
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&b.lock);
        b.turn++;
        b.rung_us = wall_us();
        pthread_cond_signal(&b.changed);
        pthread_mutex_unlock(&b.lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&b.lock);
        took[i] = b.heard_us - b.rung_us;
        pthread_mutex_unlock(&b.lock);
    }
    pthread_mutex_lock(&b.lock);
    b.over = true;
    pthread_cond_signal(&b.changed);
    pthread_mutex_unlock(&b.lock);
    pthread_join(thread, NULL);
    printf("measured here: a condition variable's signal to the sleeper running: %.1f us (median of 51)\n", median(took, 51));
}

/* -- cases -------------------------------------------------------------------------------------------- */

typedef struct sample {
    double us;     /* for one iteration */
    double cpu_us; /* the waiting thread's, for one wait; below 0: not measured */
    double wait_us;
} sample;

typedef struct results {
    double us[MAX_CONTESTANTS][MAX_ROUNDS];
    double cpu_us[MAX_CONTESTANTS][MAX_ROUNDS];
    double cpu_percent[MAX_CONTESTANTS][MAX_ROUNDS];
} results;

static results r;

/* An empty command buffer that no contestant knows of: softmetal's threads of this queue exist after it. */
static void start_threads(void *metal_queue)
{
    void *buffer = metal_queue_command_buffer(metal_queue);
    metal_commit(buffer);
    metal_release(buffer);
}

/* The first wait on each of several queues, never used or drained. Nobody has waited on them before. */
static sample idle(const contestant *c, bool used)
{
    sample s = {0, -1, 0};
    void *metal_queues[IDLE_QUEUES];
    peer *peers[IDLE_QUEUES];
    unsigned i;
    double start;
    for (i = 0; i < IDLE_QUEUES; i++) {
        metal_queues[i] = metal_queue_new(metal_device, 64);
        start_threads(metal_queues[i]);
        peers[i] = c->open(device, metal_queues[i]);
        if (used) c->commit(peers[i], c->make(peers[i]));
    }
    settle();
    start = wall_us();
    for (i = 0; i < IDLE_QUEUES; i++) c->wait(peers[i]);
    s.us = (wall_us() - start) / IDLE_QUEUES;
    settle();
    for (i = 0; i < IDLE_QUEUES; i++) {
        c->close(peers[i]);
        metal_release(metal_queues[i]);
    }
    return s;
}

/* Make, commit and wait, again and again. */
static sample work(const contestant *c, peer *p, uint64_t kernel_ns, unsigned count)
{
    sample s = {0, 0, 0};
    double start = wall_us();
    unsigned i;
    for (i = 0; i < count; i++) {
        void *buffer = c->make(p);
        double cpu, before;
        softmetal_set_duration(buffer, kernel_ns);
        c->commit(p, buffer);
        cpu = cpu_us();
        before = wall_us();
        c->wait(p);
        s.wait_us += wall_us() - before;
        s.cpu_us += cpu_us() - cpu;
    }
    s.us = (wall_us() - start) / count;
    s.cpu_us /= count;
    s.wait_us /= count;
    return s;
}

typedef struct event {
    const char *title;
    bool idle, used;
    uint64_t kernel_ns;
    unsigned count;
} event;

static const event events[] = {
    {"1. wait on a queue that was never used", true, false, 0, 0},
    {"2. wait on a drained queue", true, true, 0, 0},
    {"3. one 14 ms kernel, commit to return", false, false, 14000000, 1},
    {"4. loop: 5 us kernel + wait", false, false, 5000, LOOP},
    {"4. loop: 20 us kernel + wait", false, false, 20000, LOOP},
    {"4. loop: 100 us kernel + wait", false, false, 100000, LOOP},
    {"4. loop: 300 us kernel + wait", false, false, 300000, LOOP},
};

static void take_turn(const event *e, unsigned n, unsigned round)
{
    const contestant *c = &contestants[n];
    sample s;
    if (e->idle) {
        s = idle(c, e->used);
    } else {
        void *metal_queue = metal_queue_new(metal_device, 64);
        peer *p = c->open(device, metal_queue);
        start_threads(metal_queue);
        settle();
        work(c, p, 1000, 1);
        s = work(c, p, e->kernel_ns, e->count);
        settle();
        c->close(p);
        metal_release(metal_queue);
    }
    r.us[n][round] = s.us;
    r.cpu_us[n][round] = s.cpu_us;
    r.cpu_percent[n][round] = s.wait_us > 0 ? 100 * s.cpu_us / s.wait_us : -1;
}

static void print_table(const event *e)
{
    double own = median(r.us[0], rounds);
    unsigned n;
    printf("\n%s\n  %-22s %12s %9s", e->title, "", "median us", "ratio");
    printf(e->idle ? "\n" : " %12s %8s\n", "CPU us/wait", "CPU %");
    for (n = 0; n < contestant_count; n++) {
        double us = median(r.us[n], rounds);
        printf("  %-22s %12.3f %8.2fx", contestants[n].name, us, us / own);
        if (!e->idle) printf(" %12.1f %7.1f%%", median(r.cpu_us[n], rounds), median(r.cpu_percent[n], rounds));
        printf("\n");
    }
}

/* gpusync against the best of those that leave the processor alone. */
static void print_verdict(const event *e, double within)
{
    double own = median(r.us[0], rounds), best = own;
    unsigned n, winner = 0;
    if (e->idle) return;
    for (n = 1; n < contestant_count; n++) {
        double us = median(r.us[n], rounds);
        if (contestants[n].burns || us >= best) continue;
        best = us;
        winner = n;
    }
    printf("  best that burns no core: %s; gpusync is %.1f%% above it (wanted: %.0f%%)%s\n", contestants[winner].name,
           100 * (own / best - 1), 100 * within, own <= best * (1 + within) ? "" : "  <-- MISSED");
    if (e->count > 1) return;
    n = 1; /* gpusync handler: what is left when the spin budget is taken away */
    printf("  CPU while asleep, after the spin budget: %.2f%% (wanted: under 1%%)%s\n", median(r.cpu_percent[n], rounds),
           median(r.cpu_percent[n], rounds) < 1 ? "" : "  <-- MISSED");
}

static void run_event(const event *e)
{
    unsigned round, k;
    for (round = 0; round < rounds; round++)
        for (k = 0; k < contestant_count; k++) take_turn(e, (k + round) % contestant_count, round);
    print_table(e);
    print_verdict(e, e->count > 1 ? 0.05 : 0.01);
    fflush(stdout);
}

static void run_duel(const duel *d)
{
    double own;
    unsigned round, k;
    for (round = 0; round < rounds; round++)
        for (k = 0; k < d->way_count; k++) {
            unsigned n = (k + round) % d->way_count;
            r.us[n][round] = d->ways[n].run(device, d->count);
            settle();
        }
    printf("\n%s\n  %-44s %12s %9s\n", d->title, "", "median us", "ratio");
    own = median(r.us[0], rounds);
    for (k = 0; k < d->way_count; k++)
        printf("  %-44s %12.3f %8.2fx\n", d->ways[k].name, median(r.us[k], rounds), median(r.us[k], rounds) / own);
    fflush(stdout);
}

int main(void)
{
    gpusync_device_desc desc = {0};
    void *pool = metal_pool_push();
    double start = wall_us();
    unsigned i;
    if (getenv("BENCH_ROUNDS")) rounds = (unsigned)strtoul(getenv("BENCH_ROUNDS"), NULL, 10);
    if (rounds < 1) rounds = 1;
    if (rounds > MAX_ROUNDS) rounds = MAX_ROUNDS;
    softmetal_reset();
    metal_device = metal_device_new();
    desc.metal_device = metal_device;
    if (gpusync_device_create(&desc, &device) != GPUSYNC_OK) return 1;
    printf("gpusync's benchmark on softmetal, a software device: the ratios hold for it, with these settings, and for\n"
           "nothing else. %u rounds, contestants interleaved, medians.\n\n",
           rounds);
    apply_settings();
    measure_wake_up();
    printf("\ncontestants:\n");
    for (i = 0; i < contestant_count; i++)
        printf("  %-22s %s%s%s\n", contestants[i].name, contestants[i].what, contestants[i].burns ? "; burns a core" : "",
               contestants[i].sentinel ? "; idle waits may commit a buffer" : "");
    for (i = 0; i < sizeof events / sizeof events[0]; i++) run_event(&events[i]);
    for (i = 0; i < duel_count; i++) run_duel(&duels[i]);
    if (gpusync_device_destroy(device) != GPUSYNC_OK) return 1;
    metal_release(metal_device);
    run_first_uses(rounds);
    printf("\n%.1f s\n", (wall_us() - start) / 1e6);
    metal_pool_pop(pool);
    return 0;
}
