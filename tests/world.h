/* world.h - a clock that a test moves, and a GPU that keeps to a plan: what a wait does is the same on every run

   A program defines GPUSYNC_IMPLEMENTATION and includes this in place of kit.h, gpusync.h through it alone. The
   library's clock is then the one of this file in tests that on_world makes, and the machine's in those of on_stage.

   One thread, the test's. The clock moves by 100 ns with each look at it, and in park to the next moment of the plan,
   or to the park's deadline. A plan says what happens when: it comes true in park, in yield, and at a look of the
   test's thread at a status or a value.

       plan(MS(3), finish_now, buffer);
       assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL));
       assert_about(world_passed(), MS(3)); */
#ifndef WORLD_H
#define WORLD_H

#ifdef GPUSYNC_VERSION_MAJOR
#error "include world.h before gpusync.h: the library's clock is the one of this file"
#endif

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kit_memory.h"

/* All of what the library's implementation includes was included above, so that the macro meets the library alone. */
#ifdef __APPLE__
static uint64_t world_clock(clockid_t id);
#define clock_gettime_nsec_np world_clock
#include "gpusync.h"
#undef clock_gettime_nsec_np
#else
static int world_clock(clockid_t id, struct timespec *now);
#define clock_gettime world_clock
#include "gpusync.h"
#undef clock_gettime
#endif
#include "kit.h"

#define US(n) ((uint64_t)(n) * 1000u)
#define WORLD_PLANS 64u
#define WORLD_PARKS 64u
#define WORLD_SLACK US(5) /* what the looks at the clock add to a time */

typedef void (*world_act)(void *what);

typedef struct world_plan {
    uint64_t when;
    world_act act;
    void *what;
} world_plan;

static struct {
    bool on;
    bool restless; /* every park returns after a microsecond, for no reason */
    bool busy;     /* the plan comes true */
    pthread_t thread;
    uint64_t now, begun;
    world_plan plans[WORLD_PLANS];
    unsigned planned, done;
    unsigned long parks, unparks, yields;
    uint64_t times_asked; /* of the GPU, before the last unpark */
    unsigned long looks; /* at a status or a value, by the test's thread */
    uint64_t began[WORLD_PARKS], deadline[WORLD_PARKS]; /* of the first parks */
} world;

/* -- the clock */

static uint64_t world_now(void)
{
    return GET(&world.now);
}

#ifdef __APPLE__
static uint64_t world_clock(clockid_t id)
{
    if (!GET(&world.on)) return clock_gettime_nsec_np(id);
    return __atomic_add_fetch(&world.now, 100, __ATOMIC_SEQ_CST);
}
#else
static int world_clock(clockid_t id, struct timespec *now)
{
    if (!GET(&world.on)) return clock_gettime(id, now);
    uint64_t ns = __atomic_add_fetch(&world.now, 100, __ATOMIC_SEQ_CST);
    now->tv_sec = (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}
#endif

/* The GPU's times are of this clock, too: a wait learns from them. */
static double world_gpu_seconds(void)
{
    return (double)world_now() / 1e9;
}

/* -- the plan */

static void world_go_on(void)
{
    if (world.busy || !pthread_equal(pthread_self(), world.thread)) return;
    world.busy = true;
    while (world.done < world.planned && world.plans[world.done].when <= world_now()) {
        const world_plan *p = &world.plans[world.done++];
        p->act(p->what);
    }
    world.busy = false;
}

/* Plans are made in the order of their moments. */
static void plan(uint64_t in_ns, world_act act, void *what)
{
    if (world.done == world.planned) world.done = world.planned = 0;
    must(world.planned < WORLD_PLANS, "too many plans");
    world_plan *p = &world.plans[world.planned++];
    p->when = world_now() + in_ns;
    p->act = act;
    p->what = what;
    must(p == world.plans || p->when >= p[-1].when, "a plan is made out of order");
}

static void finish_now(void *buffer)
{
    softmetal_finish(buffer);
}

/* The status is there; the handlers have not run. */
static __attribute__((unused)) void complete_now(void *buffer)
{
    softmetal_complete(buffer);
}

static __attribute__((unused)) void lose_handlers_now(void *buffer)
{
    softmetal_lose_handlers(buffer);
    softmetal_finish(buffer);
}

/* -- hooks */

static void world_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    bool early = false;
    must(deadline_ns != GPUSYNC_FOREVER, "a park without a deadline");
    if (world.parks < WORLD_PARKS) {
        world.began[world.parks] = world_now();
        world.deadline[world.parks] = deadline_ns;
    }
    world.parks++;
    while (!GET(&waiter->scheduler_data[0]) && !early) {
        uint64_t now = GET(&world.on) ? world_now() : gpusync_now_ns();
        uint64_t next = world.done < world.planned ? world.plans[world.done].when : deadline_ns;
        if (now >= deadline_ns) break;
        if (!GET(&world.on)) {
            sched_yield();
            continue;
        }
        early = world.restless;
        if (early) next = now + US(1);
        if (next > deadline_ns) next = deadline_ns;
        if (next > now) PUT(&world.now, next);
        world_go_on();
    }
    PUT(&waiter->scheduler_data[0], NULL);
}

/* How often Metal was asked when the GPU ran. */
static uint64_t times_asked(void)
{
    return softmetal_message_count("GPUStartTime") + softmetal_message_count("GPUEndTime");
}

static void world_unpark(void *user, gpusync_waiter *waiter)
{
    COUNT(&world.unparks);
    PUT(&world.times_asked, times_asked());
    PUT(&waiter->scheduler_data[0], (void *)waiter);
}

static void world_yield(void *user)
{
    world.yields++;
    sched_yield();
    world_go_on();
}

static const gpusync_hooks world_hooks = {world_yield, world_park, world_unpark, NULL};

static void world_message(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase != SOFTMETAL_AFTER || world.busy || !pthread_equal(pthread_self(), world.thread)) return;
    if (strcmp(selector, "status") != 0 && strcmp(selector, "signaledValue") != 0) return;
    world.looks++;
    world_go_on();
}

/* -- a test's stage on this clock */

/* From here on world_passed and the counts count. */
static void world_begin(void)
{
    world.parks = world.yields = world.looks = 0;
    PUT(&world.unparks, 0);
    world.begun = world_now();
}

static uint64_t world_passed(void)
{
    return world_now() - world.begun;
}

#define assert_about(ns, expected) assert_about_at((ns), (expected), __FILE__, __LINE__)
static __attribute__((unused)) void assert_about_at(uint64_t ns, uint64_t expected, const char *file, int line)
{
    if (ns + WORLD_SLACK >= expected && ns <= expected + WORLD_SLACK) return;
    print_error("%" PRIu64 " ns, expected about %" PRIu64 "\n", ns, expected);
    _fail(file, line);
}

static int world_set_up(void **state)
{
    stage_desc *desc = (stage_desc *)*state;
    memset(&world, 0, sizeof world);
    world.thread = pthread_self();
    PUT(&world.now, gpusync_now_ns());
    PUT(&world.on, true);
    desc->device.hooks = &world_hooks;
    if (stage_set_up(state) != 0) return -1;
    softmetal_set_message_hook(world_message, NULL);
    softmetal_set_gpu_clock(world_gpu_seconds);
    world_begin();
    return 0;
}

static int world_tear_down(void **state)
{
    assert_int_equal(world.done, world.planned); /* what the test planned has happened */
    softmetal_set_message_hook(NULL, NULL);
    softmetal_set_gpu_clock(NULL);
    PUT(&world.on, false);
    return stage_tear_down(state);
}

#define on_world(test) on_world_with(test, 0)
#define on_world_with(test, ...) KIT_TEST(test, ON_WORLD(test, __VA_ARGS__))
#define on_both_worlds(test) on_both_worlds_with(test, 0)
#define on_both_worlds_with(test, ...) \
    KIT_TEST(test, ON_WORLD(test, __VA_ARGS__), ON_METAL4(test, world_set_up, world_tear_down, __VA_ARGS__))
#define on_all_worlds_with(test, ...) \
    KIT_TEST(test, ON_WORLD(test, __VA_ARGS__), ON_METAL4(test, world_set_up, world_tear_down, __VA_ARGS__), \
             ON_BOTH(test, world_set_up, world_tear_down, __VA_ARGS__))
#define ON_WORLD(test, ...) {#test, test, world_set_up, world_tear_down, (void *)&(stage_desc){__VA_ARGS__}}

#endif
