/* clock.h - what the library takes for the time: the machine's clock; or, where a program says so, a number that moves by
   100 ns with each look at it

   Nothing depends on real time then, so a test does the same each time. The clock is compiled where the implementation is:
   in compile/inside.c; and in a program that defines GPUSYNC_IMPLEMENTATION before this, and includes this before
   gpusync.h, and before anything that includes it. There the two names are the machine's clock again behind
   #undef clock_gettime, #undef clock_gettime_nsec_np. */
#ifndef CLOCK_H
#define CLOCK_H

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
#define clock_gettime planned_clock
#endif
#endif

#endif
