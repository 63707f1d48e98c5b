/* counted.h - gpusync.h, with a count of whatever in it puts a thread to sleep: for examples that say nothing does */
#ifndef COUNTED_H
#define COUNTED_H

#include <pthread.h>
#include <stdbool.h>

static unsigned sleeps, threads_blocked; /* how often that happened, and to how many threads */

static void count_sleep(void)
{
    static __thread bool blocked_here;
    __atomic_fetch_add(&sleeps, 1, __ATOMIC_SEQ_CST);
    if (!blocked_here) __atomic_fetch_add(&threads_blocked, 1, __ATOMIC_SEQ_CST);
    blocked_here = true;
}

#define pthread_cond_wait(...) (count_sleep(), pthread_cond_wait(__VA_ARGS__))
#define pthread_cond_timedwait(...) (count_sleep(), pthread_cond_timedwait(__VA_ARGS__))
#define pthread_cond_timedwait_relative_np(...) (count_sleep(), pthread_cond_timedwait_relative_np(__VA_ARGS__))
#include "../gpusync.h"
#undef pthread_cond_wait
#undef pthread_cond_timedwait
#undef pthread_cond_timedwait_relative_np

#endif
