/* softmetal_time.m - clock, precise waits, threads, random numbers */
#import "softmetal_internal.h"
#include <sched.h>
#include <time.h>

uint64_t sm_now(void)
{
#ifdef __APPLE__
    return clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
#endif
}

uint64_t sm_after(uint64_t now, uint64_t delay) { return delay > SM_FOREVER - now ? SM_FOREVER : now + delay; }

static void sm_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void sm_cond_init(pthread_cond_t *cond)
{
#ifdef __APPLE__
    pthread_cond_init(cond, NULL);
#else
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
#endif
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

void sm_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline)
{
    if (deadline == SM_FOREVER) {
        pthread_cond_wait(cond, lock);
        return;
    }
#ifdef __APPLE__
    uint64_t now = sm_now();
    if (now >= deadline) return;
    struct timespec left = timespec_of(deadline - now);
    pthread_cond_timedwait_relative_np(cond, lock, &left);
#else
    struct timespec at = timespec_of(deadline);
    pthread_cond_timedwait(cond, lock, &at);
#endif
}

/* Waits shorter than this are spun: a sleep of unknown wake-up cost would blur them. */
#define SHORT_WAIT UINT64_C(200000)
/* A sleep ends this much early, the rest is spun. */
#define SPUN_TAIL UINT64_C(100000)

static bool undisturbed(const unsigned *interrupted, unsigned expected)
{
    return !interrupted || __atomic_load_n(interrupted, __ATOMIC_ACQUIRE) == expected;
}

/* Spins to the deadline. The processor is given away now and then: with fewer processors than
   spinning threads the others would not run at all. */
static bool spin_until(uint64_t deadline, const unsigned *interrupted, unsigned expected)
{
    for (unsigned round = 1; sm_now() < deadline; round++) {
        if (!undisturbed(interrupted, expected)) return false;
        if (round % 64 == 0)
            sched_yield();
        else
            sm_pause();
    }
    return undisturbed(interrupted, expected);
}

void sm_doze(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t due)
{
    uint64_t now = sm_now();
    if (due == SM_FOREVER || (due > now && due - now > SHORT_WAIT)) {
        sm_cond_wait_until(cond, lock, due == SM_FOREVER ? due : due - SPUN_TAIL);
        return;
    }
    pthread_mutex_unlock(lock);
    spin_until(due, NULL, 0);
    pthread_mutex_lock(lock);
}

bool sm_wait_precisely(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline, const unsigned *interrupted,
                       unsigned expected)
{
    while (undisturbed(interrupted, expected)) {
        uint64_t now = sm_now();
        if (now >= deadline) return true;
        if (deadline - now > SHORT_WAIT) {
            sm_cond_wait_until(cond, lock, deadline == SM_FOREVER ? deadline : deadline - SPUN_TAIL);
            continue;
        }
        pthread_mutex_unlock(lock);
        bool reached = spin_until(deadline, interrupted, expected);
        pthread_mutex_lock(lock);
        return reached;
    }
    return false;
}

void sm_sleep_precisely(uint64_t duration)
{
    if (duration == 0) return;
    uint64_t deadline = sm_after(sm_now(), duration);
    if (duration > SHORT_WAIT) {
        struct timespec nap = timespec_of(duration - SPUN_TAIL);
        nanosleep(&nap, NULL);
    }
    spin_until(deadline, NULL, 0);
}

static void *make_a_pool(void *unused)
{
    [[NSAutoreleasePool new] release];
    return unused;
}

/* What GNUstep does at the first pool of a second thread it does without a lock, and beside what it does in exit(): one of
   two such threads, or one that is late, calls NULL or retains what was freed. So one comes and goes before all others. */
static void become_multithreaded(void)
{
    pthread_t first;
    if (pthread_create(&first, NULL, make_a_pool, NULL) == 0) pthread_join(first, NULL);
}

static pthread_t start(void *(*body)(void *), void *argument)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, become_multithreaded);
    pthread_t started;
    SM_REQUIRE(pthread_create(&started, NULL, body, argument) == 0, INTERNAL, "no more threads");
    return started;
}

void sm_thread_start(void *(*body)(void *), void *argument) { pthread_detach(start(body, argument)); }
void sm_thread_run(void *(*body)(void *), void *argument) { pthread_join(start(body, argument), NULL); }

/* ----------------------------------------------------------------------------- random -- */

/* A counter stepped atomically and then scrambled: threads share the sequence without a lock. */
static uint64_t random_state = 1;

void softmetal_set_seed(uint64_t seed) { __atomic_store_n(&random_state, seed, __ATOMIC_RELAXED); }

static uint64_t sm_random(void)
{
    const uint64_t step = UINT64_C(0xd1b54a32d192ed03); /* odd: visits every state */
    uint64_t x = __atomic_add_fetch(&random_state, step, __ATOMIC_RELAXED);
    x = (x ^ (x >> 32)) * UINT64_C(0xdaba0b6eb09322e3);
    x = (x ^ (x >> 29)) * UINT64_C(0xdaba0b6eb09322e3);
    return x ^ (x >> 32);
}

uint64_t sm_draw(softmetal_range range)
{
    if (range.max_ns <= range.min_ns) return range.min_ns;
    uint64_t span = range.max_ns - range.min_ns;
    return span == UINT64_MAX ? sm_random() : range.min_ns + sm_random() % (span + 1);
}

bool sm_chance(unsigned per_mille) { return per_mille > 0 && sm_random() % 1000 < per_mille; }
