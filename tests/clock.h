/* clock.h - what the library takes for the time: a number that moves by 100 ns with each look at it

   Included before gpusync.h, and before anything that includes it; then the two names are the machine's clock again:
   #undef clock_gettime, #undef clock_gettime_nsec_np. Nothing depends on real time, so a test does the same each time. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>
#include <time.h>

static uint64_t clock_now;

#ifdef __APPLE__
static uint64_t planned_clock(clockid_t id)
{
    (void)id;
    return __atomic_add_fetch(&clock_now, 100, __ATOMIC_SEQ_CST);
}
#define clock_gettime_nsec_np planned_clock
#else
static int planned_clock(clockid_t id, struct timespec *now)
{
    uint64_t ns = __atomic_add_fetch(&clock_now, 100, __ATOMIC_SEQ_CST);
    (void)id;
    now->tv_sec = (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}
#define clock_gettime planned_clock
#endif

#endif
