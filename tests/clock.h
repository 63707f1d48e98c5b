/* clock.h - what the library takes for the time: the machine's clock; or, where a program says so, a number that moves by
   100 ns with each look at it

   Nothing depends on real time then, so a test does the same each time. The clock is compiled where the implementation is:
   in compile/inside.c; and in a program that defines GPUSYNC_IMPLEMENTATION before this, and includes this before
   gpusync.h, and before anything that includes it. There the names are the machine's again behind #undef clock_gettime,
   #undef clock_gettime_nsec_np, #undef pthread_cond_timedwait. */
#ifndef CLOCK_H
#define CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

extern uint64_t clock_now;
extern bool clock_is_real;

#ifdef GPUSYNC_IMPLEMENTATION
uint64_t clock_now;
bool clock_is_real = true;

#ifdef __APPLE__
static uint64_t planned_clock(clockid_t id)
{
    if (__atomic_load_n(&clock_is_real, __ATOMIC_SEQ_CST)) return clock_gettime_nsec_np(id);
    return __atomic_add_fetch(&clock_now, 100, __ATOMIC_SEQ_CST);
}
#define clock_gettime_nsec_np planned_clock
#else
static int planned_clock(clockid_t id, struct timespec *now)
{
    uint64_t ns;
    if (__atomic_load_n(&clock_is_real, __ATOMIC_SEQ_CST)) return clock_gettime(id, now);
    ns = __atomic_add_fetch(&clock_now, 100, __ATOMIC_SEQ_CST);
    now->tv_sec = (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}

#ifndef pthread_cond_timedwait /* a program may have its own */
/* Sleeps for what the planned clock lacks to the deadline, as pthread_cond_timedwait_relative_np does on a Mac. A machine
   that has been up for less than the planned time would otherwise sleep for hours. */
static int planned_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until)
{
    struct timespec at = *until;
    uint64_t planned = __atomic_load_n(&clock_now, __ATOMIC_SEQ_CST), ns;
    if (!__atomic_load_n(&clock_is_real, __ATOMIC_SEQ_CST)) {
        ns = (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
        ns = ns > planned ? ns - planned : 0;
        clock_gettime(CLOCK_MONOTONIC, &at);
        ns += (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
        at.tv_sec = (time_t)(ns / 1000000000u);
        at.tv_nsec = (long)(ns % 1000000000u);
    }
    return pthread_cond_timedwait(cond, lock, &at);
}
#define pthread_cond_timedwait planned_timedwait
#endif
#define clock_gettime planned_clock
#endif
#endif

#endif
