/* spin.c - the default spin of a wait against two simple rules, in virtual time: see spin.sh

   The library is the one that ships, on softmetal's manual clock; only its clock is the one of this file. One thread
   commits work, waits for it, thinks, and goes on. So each run counts the same. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* It moves with each look at it. A handler runs while this thread stands in softmetal_finish: no two threads meet. */
static uint64_t now = 1000000000;

static int look_at_the_clock(clockid_t id, struct timespec *time)
{
    now += 20;
    time->tv_sec = (time_t)(now / 1000000000u);
    time->tv_nsec = (long)(now % 1000000000u);
    return 0;
}
#define clock_gettime look_at_the_clock
#define GPUSYNC_IMPLEMENTATION
#include <gpusync.h>
#undef clock_gettime
#include "common.h"

#define US(n) ((uint64_t)(n) * 1000u)
#define THINK US(10)   /* of the thread, between a wait and the next commit */
#define SCHEDULE US(3) /* from the commit to the GPU's start */
#define STATUS US(5)   /* from the GPU's end until a status shows it */
#define HANDLER US(5)  /* from there until the handler comes */
#define WAKE US(5)     /* from unpark to the return of park */
#define SLEEP US(4)    /* of processor time for a park */
#define WAITS 1000u    /* of a row */

/* -- patterns ------------------------------------------------------------------------------------------------------ */

typedef enum kind {
    PERIODIC, /* b at the end of each period, else a */
    BURSTS,   /* a period of a, a period of b */
    BETWEEN,  /* a to b, at random */
    DRIFT,    /* from a to b in a period */
    ADVERSE   /* late whenever it is spun for: see park */
} kind;

static const struct pattern {
    const char *name;
    kind kind;
    unsigned a, b, period; /* us, us, works */
    double late, cpu;      /* the default's limits in us */
} patterns[] = {
    {"5 us", PERIODIC, 0, 5, 1, 6, 15},
    {"20 us", PERIODIC, 0, 20, 1, 6, 30},
    {"50 us", PERIODIC, 0, 50, 1, 6, 60},
    {"200 us", PERIODIC, 0, 200, 1, 6, 215},
    {"300 us", PERIODIC, 0, 300, 1, 15.5, 5},
    {"14 ms", PERIODIC, 0, 14000, 1, 15.5, 5},
    {"10 us to 30 us", BETWEEN, 10, 30, 1, 6, 30},
    {"100 us to 300 us", BETWEEN, 100, 300, 1, 9, 215},
    {"5 us to 3 ms", BETWEEN, 5, 3000, 1, 15.5, 6},
    {"drift, 5 us to 1 ms", DRIFT, 5, 1000, 500, 9, 60},
    {"20 us, 2 ms", PERIODIC, 20, 2000, 2, 15.5, 6},
    {"3 x 5 us, 300 us", PERIODIC, 5, 300, 4, 9, 42},
    {"3 x 5 us, 2 ms", PERIODIC, 5, 2000, 4, 9, 18},
    {"31 x 20 us, 16 ms", PERIODIC, 20, 16000, 32, 13, 20},
    {"10 x 20 us, 400 us", BURSTS, 20, 400, 10, 13, 70},
    {"200 x 20 us, 2 ms", BURSTS, 20, 2000, 200, 11, 17},
    {"late if spun for", ADVERSE, 0, 0, 1, 15.5, 6.5},
};

static uint64_t random_state;

static uint64_t length_of(const struct pattern *p, unsigned i)
{
    switch (p->kind) {
    case PERIODIC: return US((i + 1) % p->period ? p->a : p->b);
    case BURSTS: return US(i / p->period % 2 ? p->b : p->a);
    case DRIFT: return (uint64_t)(1e3 * p->a * pow((double)p->b / p->a, (double)(i % p->period) / p->period));
    case BETWEEN:
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        return US(p->a) + (random_state >> 33) % US(p->b - p->a);
    case ADVERSE: break;
    }
    return GPUSYNC_FOREVER;
}

/* -- the GPU, and a processor that sleeps -------------------------------------------------------------------------- */

static gpusync_device *device;
static void *buffer;          /* in flight */
static uint64_t end;          /* of the GPU's work; GPUSYNC_FOREVER: not decided yet */
static int shown;             /* 1: a status shows the end; 2: the handler has run */
static uint64_t began, slept; /* of this wait; 0: there is none */
static bool permit;

static double gpu_seconds(void)
{
    return (double)(end == GPUSYNC_FOREVER ? now : end) / 1e9;
}

static void move_to(uint64_t time)
{
    if (time > now) now = time;
}

/* What is due comes true. */
static void go_on(void)
{
    if (end == GPUSYNC_FOREVER) return;
    if (shown == 0 && now >= end + STATUS) {
        shown = 1;
        softmetal_complete(buffer);
    }
    if (shown == 1 && now >= end + STATUS + HANDLER) {
        shown = 2;
        softmetal_finish(buffer);
    }
}

static void look_hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase == SOFTMETAL_AFTER && began && strcmp(selector, "status") == 0) go_on();
}

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    uint64_t from = now, until;
    if (end == GPUSYNC_FOREVER) /* just when a spin has given up, or so that a spin would have been right */
        end = now - began > US(3) ? now + US(2) : now + US(60);
    until = permit || shown == 2 ? now : end + STATUS + HANDLER;
    if (until > deadline_ns) until = deadline_ns;
    if (until > end + STATUS) move_to(end + STATUS);
    go_on();
    move_to(until);
    go_on();
    move_to(now + WAKE);
    permit = false;
    slept += now - from - SLEEP;
}

static void unpark(void *user, gpusync_waiter *waiter)
{
    permit = true;
}

/* -- the table ----------------------------------------------------------------------------------------------------- */

static const gpusync_spin none = {0, 0, 0}, spin_50 = {0, 0, US(50)};

typedef struct figures {
    double late, cpu;
} figures;

static figures run(const struct pattern *p, const gpusync_spin *spin)
{
    const gpusync_wait_options options = {spin, NULL, false};
    gpusync_queue *queue;
    gpusync_ticket ticket;
    figures mean = {0, 0};
    random_state = 1;
    ok(gpusync_queue_create(device, NULL, &queue));
    for (unsigned i = 0; i < WAITS; i++) {
        uint64_t length = length_of(p, i);
        ok(gpusync_command_buffer_create(queue, NULL, 0, &buffer));
        ok(gpusync_commit(queue, buffer, &ticket));
        end = length == GPUSYNC_FOREVER ? length : now + SCHEDULE + length;
        permit = false;
        shown = 0;
        slept = 0;
        began = now;
        ok(gpusync_wait(queue, ticket, GPUSYNC_FOREVER, &options));
        must(shown && now >= end + STATUS, "a wait ended before its work");
        mean.late += (double)(now - end) / 1e3 / WAITS;
        mean.cpu += (double)(now - began - slept) / 1e3 / WAITS;
        began = 0;
        move_to(now + THINK);
        move_to(end + STATUS + HANDLER);
        go_on();
    }
    ok(gpusync_queue_destroy(queue));
    return mean;
}

static bool is_worse(figures a, figures b)
{
    return a.late > 1.02 * b.late && a.cpu > 1.02 * b.cpu;
}

/* Returns whether the default keeps to its limits. */
static bool row(const struct pattern *p)
{
    const figures own = run(p, NULL), parks = run(p, &none), spins = run(p, &spin_50);
    bool good = own.late <= p->late && own.cpu <= p->cpu;
    printf("%-20s |%7.1f %7.1f |%7.1f %7.1f |%7.1f %7.1f |%7.1f %7.1f  %s%s%s\n", p->name, own.late, own.cpu,
           parks.late, parks.cpu, spins.late, spins.cpu, p->late, p->cpu, good ? "ok" : "FAILED",
           is_worse(own, parks) ? "; to park is better" : "", is_worse(own, spins) ? "; to spin is better" : "");
    return good;
}

int main(void)
{
    static const gpusync_hooks hooks = {NULL, park, unpark, NULL};
    gpusync_device_desc desc = {.hooks = &hooks};
    size_t passed = 0, count = sizeof patterns / sizeof patterns[0];
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    ok(gpusync_device_create(&desc, &device));
    softmetal_set_gpu_clock(gpu_seconds);
    softmetal_set_message_hook(look_hook, NULL);
    printf("%-20s |%15s |%15s |%15s |%15s\n%-20s ", "", "default", "park at once", "spin 50 us", "limit", "us");
    for (int k = 0; k < 4; k++) printf("|%7s %7s%s", "late", "cpu", k < 3 ? " " : "\n");
    for (size_t k = 0; k < count; k++) passed += row(&patterns[k]);
    softmetal_set_message_hook(NULL, NULL);
    ok(gpusync_device_destroy(device));
    printf("%zu passed, %zu failed\n", passed, count - passed);
    return passed != count;
}
