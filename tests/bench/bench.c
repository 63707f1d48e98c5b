/* bench.c - gpusync against the other ways of waiting, on softmetal with the real clock

   One run, one process: in every round each contestant has its turn, and the order changes from round to round. What is
   printed are medians over the rounds and ratios of them. softmetal is no GPU: the ratios say how the
   algorithms compare under the settings that are printed with them, nothing about Apple's hardware.

   With two processors the program runs on one and softmetal, its completion threads included, on the other: who spins
   must not keep the thread from running that ends the wait. Where that is allowed, all threads have one real-time
   priority. The duels and the warm-up, which have threads of their own, have neither.

   BENCH_ROUNDS         rounds of every case, default 31
   BENCH_ONLY           cases to run, patterns of the shell with commas in between: BENCH_ONLY='150 us x 1,mix *'
   BENCH_JSON           a file for the results
   BENCH_PIN=0          nothing is pinned, and no priority changed
   BENCH_<SETTING>_NS   a latency of softmetal, by the names in the table that is printed first: BENCH_SCHEDULE_NS=4000 */
#include <fnmatch.h>
#include <pthread.h>
#ifdef __linux__
#include <dirent.h>
#include <sched.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/metal.h"
#include "../../gpusync.h"
#include "../softmetal/softmetal.h"
#include "bench.h"
#include "peers.h"

#define MAX_CONTESTANTS 16
#define IDLE_QUEUES 32u

bench the_bench = {31, NULL, NULL, -1, -1, 0, 0};

double now_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double wall_us(void)
{
    return now_us(CLOCK_MONOTONIC);
}

void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "bench: failed: %s\n", what);
    exit(1);
}

void settle(void)
{
    must(softmetal_settle(10000000000u), "softmetal comes to rest");
}

bool is_wanted(const char *title)
{
    const char *list = getenv("BENCH_ONLY");
    while (list && *list) {
        char pattern[128];
        size_t length = strcspn(list, ",");
        snprintf(pattern, sizeof pattern, "%.*s", (int)length, list);
        if (fnmatch(pattern, title, 0) == 0) return true;
        list += length + (list[length] == ',');
        if (!*list) return false;
    }
    return true;
}

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

/* A GPU takes a processor from nobody. Threads that play it would, where they share one with completion threads: so all
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

setting settings[] = {
    {"SCHEDULE", offsetof(softmetal_timing, schedule), 0,
     "waking softmetal's own thread costs a condition variable's wake-up already (below)"},
    {"NOTIFY", offsetof(softmetal_timing, notify), 0, "the same, for the thread that sets the status and runs handlers"},
    {"WAIT_RETURN", offsetof(softmetal_timing, wait_return), 0,
     "as fast as a handler: ggml's source notes no clear difference; others report up to 2 ms"},
    {"EVENT_LISTENER", offsetof(softmetal_timing, event_listener), 0, "as NOTIFY; case 5 alone uses a listener"},
    {"EVENT_CREATE", offsetof(softmetal_timing, event_create), 80000,
     "80 to 180 us in MoltenVK issue 1472; paid once for a queue, outside of what is timed"},
};

const unsigned setting_count = sizeof settings / sizeof settings[0];

static void apply_settings(void)
{
    softmetal_timing timing;
    unsigned i;
    softmetal_get_timing(&timing);
    printf("softmetal's latencies (BENCH_<NAME>_NS changes them):\n");
    for (i = 0; i < setting_count; i++) {
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
    if (the_bench.softmetal_on >= 0) run_on(the_bench.softmetal_on);
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
    must(pthread_create(&thread, NULL, listen, &b) == 0, "pthread_create");
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
    the_bench.wake_up_us = quartiles_of(took, 51).median;
    printf("measured here: a condition variable's signal to the sleeper running: %.1f us (median of 51)\n",
           the_bench.wake_up_us);
}

/* -- waits that have nothing to wait for -------------------------------------------------------------- */

static double times[MAX_CONTESTANTS][MAX_ROUNDS];

/* An empty command buffer that no contestant knows of: softmetal's threads of this queue exist after it. */
static void start_threads(void *metal_queue)
{
    void *buffer = metal_queue_command_buffer(metal_queue);
    metal_commit(buffer);
    metal_release(buffer);
}

/* The first wait on each of several queues, never used or drained. Nobody has waited on them before. */
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
    settle();
    took = wall_us();
    for (i = 0; i < IDLE_QUEUES; i++) c->wait(peers[i]);
    took = (wall_us() - took) / IDLE_QUEUES;
    settle();
    for (i = 0; i < IDLE_QUEUES; i++) {
        c->close(peers[i]);
        metal_release(metal_queues[i]);
    }
    return took;
}

/* Prints times[0 .. count - 1] of all rounds; the ratios refer to the first. */
static void print_times(const char *title, const char *(*name_of)(const void *of, unsigned n), const void *of, unsigned count)
{
    unsigned n;
    double own = quartiles_of(times[0], the_bench.rounds).median;
    printf("\n%s\n  %-44s %12s %9s\n", title, "", "median us", "ratio");
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
    print_times(title, contestant_name, NULL, CONTESTANTS);
}

static const char *way_name(const void *of, unsigned n)
{
    return ((const duel *)of)->ways[n].name;
}

static void run_duel(const duel *d)
{
    unsigned round, k, n;
    if (!is_wanted(d->title)) return;
    for (round = 0; round < the_bench.rounds; round++)
        for (k = 0; k < d->way_count; k++) {
            n = (k + round) % d->way_count;
            times[n][round] = d->ways[n].run(the_bench.device, d->count);
            settle();
        }
    print_times(d->title, way_name, d, d->way_count);
}

static void print_heading(void)
{
    unsigned i;
    printf("gpusync's benchmark on softmetal, a software device: the ratios hold for it, with these settings, and for\n"
           "nothing else. %u rounds, contestants interleaved, medians. ",
           the_bench.rounds);
    if (the_bench.program_on < 0) printf("Nothing is pinned.\n\n");
    else
        printf("Program on processor %d, softmetal on %d, %s.\n\n", the_bench.program_on, the_bench.softmetal_on,
               the_bench.real_time ? "all threads at one real-time priority" : "at the usual priorities");
    apply_settings();
    measure_wake_up();
    printf("\ncontestants:\n");
    for (i = 0; i < CONTESTANTS; i++) printf("  %-20s %s\n", contestants[i].name, contestants[i].what);
}

int main(void)
{
    gpusync_device_desc desc = {0};
    void *pool = metal_pool_push();
    double start = wall_us();
    gpusync_device *device;
    unsigned i;
    if (getenv("BENCH_ROUNDS")) the_bench.rounds = (unsigned)strtoul(getenv("BENCH_ROUNDS"), NULL, 10);
    if (the_bench.rounds < 1) the_bench.rounds = 1;
    if (the_bench.rounds > MAX_ROUNDS) the_bench.rounds = MAX_ROUNDS;
    softmetal_reset();
    pin();
    desc.metal_device = the_bench.metal_device = metal_device_new();
    must(gpusync_device_create(&desc, &device) == GPUSYNC_OK, "gpusync_device_create");
    the_bench.device = device;
    print_heading();
    run_idle("1. wait on a queue that was never used", false);
    run_idle("2. wait on a drained queue", true);
    printf("\n3, 4. one kernel and a wait, ten kernels and a wait. late: from the GPU's end to the return of the wait.\n"
           "CPU: of the process, for a turn, without the threads that play the GPU. slept, ousted: context switches of all\n"
           "threads for a turn, voluntary and involuntary.\n");
    run_waiting(json_add_rows);
    unpin();
    for (i = 0; i < duel_count; i++) run_duel(&duels[i]);
    must(gpusync_device_destroy(device) == GPUSYNC_OK, "gpusync_device_destroy");
    metal_release(the_bench.metal_device);
    if (is_wanted("9. the first kernel")) run_first_uses(the_bench.rounds);
    print_rules();
    the_bench.seconds = (wall_us() - start) / 1e6;
    printf("\n%.1f s\n", the_bench.seconds);
    json_write();
    metal_pool_pop(pool);
    return 0;
}
