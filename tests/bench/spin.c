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
#define YIELD 500u     /* ns of a yield, where no other thread is ready */
#define WAITS 1000u    /* of a row */

/* -- patterns ------------------------------------------------------------------------------------------------------ */

typedef enum kind {
    PERIODIC,    /* b at the end of each period, else a */
    BURSTS,      /* a period of a, a period of b */
    BETWEEN,     /* a to b, at random */
    DRIFT,       /* from a to b in a period */
    SOMETIMES,   /* one in `period`, at random, is b, else a */
    EXPONENTIAL, /* at random, b in the mean */
    MIXED,       /* 5 us to 14 ms, at random */
    ADVERSE      /* late whenever it is spun for: see park */
} kind;

static const struct pattern {
    const char *name;
    kind kind;
    unsigned a, b, period; /* us, us, works */
    double late, cpu;      /* the default's limits in us; 0: none */
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
    {"100 us", PERIODIC, 0, 100, 1, 0, 0},
    {"150 us", PERIODIC, 0, 150, 1, 0, 0},
    {"240 us", PERIODIC, 0, 240, 1, 0, 0},
    {"260 us", PERIODIC, 0, 260, 1, 0, 0},
    {"500 us", PERIODIC, 0, 500, 1, 0, 0},
    {"1 ms", PERIODIC, 0, 1000, 1, 0, 0},
    {"3 ms", PERIODIC, 0, 3000, 1, 0, 0},
    {"50 us to 150 us", BETWEEN, 50, 150, 1, 0, 0},
    {"150 us to 450 us", BETWEEN, 150, 450, 1, 0, 0},
    {"mean of 20 us", EXPONENTIAL, 0, 20, 1, 0, 0},
    {"mean of 100 us", EXPONENTIAL, 0, 100, 1, 0, 0},
    {"mean of 200 us", EXPONENTIAL, 0, 200, 1, 0, 0},
    {"mean of 300 us", EXPONENTIAL, 0, 300, 1, 0, 0},
    {"5 us to 14 ms", MIXED, 0, 0, 1, 0, 0},
    {"20 us or 2 ms", SOMETIMES, 20, 2000, 2, 0, 0},
    {"50 x 100 us, 3 ms", BURSTS, 100, 3000, 50, 0, 0},
    {"2 x 60 us, 230 us", PERIODIC, 60, 230, 3, 0, 0},
};

static uint64_t random_state;

static uint64_t draw(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}

static uint64_t length_of(const struct pattern *p, unsigned i)
{
    static const unsigned mixed[] = {5, 20, 50, 150, 300, 1000, 3000, 14000};
    switch (p->kind) {
    case PERIODIC: return US((i + 1) % p->period ? p->a : p->b);
    case BURSTS: return US(i / p->period % 2 ? p->b : p->a);
    case DRIFT: return (uint64_t)(1e3 * p->a * pow((double)p->b / p->a, (double)(i % p->period) / p->period));
    case BETWEEN: return US(p->a) + draw() % US(p->b - p->a);
    case SOMETIMES: return US(draw() % p->period ? p->a : p->b);
    case EXPONENTIAL: return (uint64_t)(1e3 * p->b * -log((double)(draw() + 1) / 2147483648.0));
    case MIXED: return US(mixed[draw() % (sizeof mixed / sizeof mixed[0])]);
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

static void yield(void *user)
{
    now += YIELD;
}

/* -- the table ----------------------------------------------------------------------------------------------------- */

typedef struct figures {
    double late, cpu;
} figures;

enum { DEFAULT, PARKS, SPINS_20, SPINS_50, COUNTS, RULES };
static const struct rule {
    const char *name;
    gpusync_spin spin;
} rules[RULES] = {
    {"default", {0, 0, 0}},
    {"park at once", {0, 0, 0}},
    {"spin 20 us", {0, 0, US(20)}},
    {"spin 50 us", {0, 0, US(50)}},
    {"32 + 224", {32, 224, 0}}, /* pauses and yields: the default of 0.1, and what CUDA.jl does */
};
/* Rows in which the default is the best or within 5 %; [DEFAULT]: beside all rules, else beside that one. */
static unsigned rows, in_a_figure[RULES], in_cost[RULES];

static figures run(const struct pattern *p, int by)
{
    const gpusync_wait_options options = {by == DEFAULT ? NULL : &rules[by].spin, NULL, false};
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

#define DEAR 25 /* us of processor time for 1 us late: the default spins for up to 250 us to be 10 us earlier */
#define IN_A_FIGURE 144 /* rows at least, beside all rules */
#define IN_COST 69

static double cost(figures f)
{
    return DEAR * f.late + f.cpu;
}

/* Returns whether the default keeps to its limits. */
static bool row(const struct pattern *p)
{
    figures f[RULES], best = {INFINITY, INFINITY};
    double least = INFINITY;
    printf("%-20s", p->name);
    for (int by = RULES; by-- > 0;) {
        f[by] = run(p, by);
        if (by == DEFAULT) continue;
        best.late = fmin(best.late, f[by].late);
        best.cpu = fmin(best.cpu, f[by].cpu);
        least = fmin(least, cost(f[by]));
    }
    const figures own = f[DEFAULT];
    const bool good = !p->late || (own.late <= p->late && own.cpu <= p->cpu);
    rows++;
    for (int by = 0; by < RULES; by++) {
        const figures other = by == DEFAULT ? best : f[by];
        const double slack = p->kind == ADVERSE ? 1.5 : 1.05;
        in_a_figure[by] += own.late <= 1.05 * other.late || own.cpu <= slack * other.cpu;
        in_cost[by] += cost(own) <= 1.05 * (by == DEFAULT ? least : cost(other));
        printf(" |%6.1f %6.1f", f[by].late, f[by].cpu);
    }
    if (p->late) printf(" |%6.1f %6.1f  %s", p->late, p->cpu, good ? "ok" : "FAILED");
    if (cost(own) > 1.05 * least) printf("  cost: %.0f %%", 100 * cost(own) / least);
    printf("\n");
    return good;
}

/* Returns whether there are enough. */
static bool tell(const char *what, const unsigned *counts, unsigned enough)
{
    printf("best or within 5 %% %s: %u of %u", what, counts[DEFAULT], rows);
    for (int by = 1; by < RULES; by++) printf("; of %s %u", rules[by].name, counts[by]);
    printf("%s\n", counts[DEFAULT] >= enough ? "" : "  FAILED");
    return counts[DEFAULT] >= enough;
}

static bool row_of(kind kind, unsigned length, unsigned period)
{
    char name[32];
    const struct pattern p = {name, kind, 5, length, period, 0, 0};
    if (kind == PERIODIC) snprintf(name, sizeof name, "%u x 5 us, %u us", period - 1, length);
    else snprintf(name, sizeof name, "5 us, 1/%u %u us", period, length);
    return row(&p);
}

int main(void)
{
    static const gpusync_hooks hooks = {yield, park, unpark, NULL};
    static const unsigned lengths[] = {100, 150, 200, 250, 300, 350, 400, 500, 700, 1000, 2000, 3000};
    gpusync_device_desc desc = {.hooks = &hooks};
    unsigned passed = 0;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    ok(gpusync_device_create(&desc, &device));
    softmetal_set_gpu_clock(gpu_seconds);
    softmetal_set_message_hook(look_hook, NULL);
    printf("%-20s", "us: late, processor");
    for (int by = 0; by < RULES; by++) printf(" |%13s", rules[by].name);
    printf(" |%13s\n", "limit");
    for (size_t k = 0; k < sizeof patterns / sizeof patterns[0]; k++) passed += row(&patterns[k]);
    for (unsigned period = 2; period <= 8; period++)
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            if (period != 4 || (lengths[k] != 300 && lengths[k] != 2000)) passed += row_of(PERIODIC, lengths[k], period);
            if (period % 2 == 0) passed += row_of(SOMETIMES, lengths[k], period);
        }
    softmetal_set_message_hook(NULL, NULL);
    ok(gpusync_device_destroy(device));
    passed += tell("in one of the figures", in_a_figure, IN_A_FIGURE);
    passed += tell("in 25 late + processor time", in_cost, IN_COST);
    printf("%u passed, %u failed\n", passed, rows + 2 - passed);
    return passed != rows + 2;
}
