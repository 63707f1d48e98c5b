/* still.h - time that moves only when the test says so: for a program that has the implementation in it

   The library's clock is a number. It moves by `pass`, and by each park under passing_hooks. Defined before this:
   GPUSYNC_IMPLEMENTATION. Includes gpusync.h and kit.h. */
#ifndef STILL_H
#define STILL_H

#ifdef GPUSYNC_VERSION_MAJOR
#error "include still.h before gpusync.h: the library's clock is the one of still.h"
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

static uint64_t still_now = UINT64_C(1000000000000);

/* All of what the implementation includes was included above, so that the macro meets the library alone. */
#ifdef __APPLE__
static uint64_t still_clock(clockid_t id)
{
    (void)id;
    return __atomic_load_n(&still_now, __ATOMIC_SEQ_CST);
}
#define clock_gettime_nsec_np still_clock
#else
static int still_clock(clockid_t id, struct timespec *now)
{
    uint64_t ns = __atomic_load_n(&still_now, __ATOMIC_SEQ_CST);
    (void)id;
    now->tv_sec = (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}
#define clock_gettime still_clock
#endif
#include "kit_memory.h"
#include "gpusync.h"
#ifdef __APPLE__
#undef clock_gettime_nsec_np
#else
#undef clock_gettime
#endif

#include "kit.h"

static inline void pass(uint64_t ns)
{
    __atomic_fetch_add(&still_now, ns, __ATOMIC_SEQ_CST);
}

/* Sleeps until unpark or end_parks, whatever the deadline: other threads wait, and the test has time pass. A park that is
   to be over in two milliseconds is over at once: gpusync has such ones for what another thread is about to do, and no
   unpark follows them. */
static inline void park_patiently(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    bool brief = deadline_ns <= GET(&still_now) + MS(2);
    if (brief)
        sched_yield();
    kit_park(user, waiter, brief ? 0 : UINT64_MAX / 4);
}

static const gpusync_hooks patient_hooks __attribute__((unused)) = {
    .yield = kit_yield,
    .park = park_patiently,
    .unpark = kit_unpark,
};

/* A park takes no time, and is over at its deadline: for the one thread that waits. `meanwhile`, if there is one, is
   called first with the number of the park, from 1 on. */
static struct {
    void (*meanwhile)(void *argument, unsigned park);
    void *argument;
    unsigned parks;
} passing;

static inline void park_and_pass(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    passing.parks++;
    if (passing.meanwhile)
        passing.meanwhile(passing.argument, passing.parks);
    if (!__atomic_exchange_n(&waiter->scheduler_data[0], NULL, __ATOMIC_SEQ_CST) && GET(&still_now) < deadline_ns)
        PUT(&still_now, deadline_ns);
}

static inline void unpark_passing(void *user, gpusync_waiter *waiter)
{
    __atomic_store_n(&waiter->scheduler_data[0], (void *)waiter, __ATOMIC_SEQ_CST);
}

static inline void yield_passing(void *user)
{
    sched_yield();
}

static const gpusync_hooks passing_hooks __attribute__((unused)) = {
    .yield = yield_passing,
    .park = park_and_pass,
    .unpark = unpark_passing,
};

/* Counts parks from here on, and calls `meanwhile` in them; NULL: calls nothing. */
static inline void while_parked(void (*meanwhile)(void *argument, unsigned park), void *argument)
{
    passing.meanwhile = meanwhile;
    passing.argument = argument;
    passing.parks = 0;
}

#endif
