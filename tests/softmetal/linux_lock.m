/* linux_lock.m - os_unfair_lock, which Linux lacks

   The word is 0, or the owner's thread number times two, plus one when a thread may be asleep. As Apple's it ends the
   program when its owner takes it again or another thread lets go of it. Linux only. */
#include "softmetal_internal.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ThreadSanitizer finds locks that are taken in two orders when it is told that they are locks. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define TELL(call) call
#endif
#endif
#ifndef TELL
#define TELL(call) ((void)0)
#endif

#define ASLEEP 1u

void os_unfair_lock_lock(uint32_t *lock);
bool os_unfair_lock_trylock(uint32_t *lock);
void os_unfair_lock_unlock(uint32_t *lock);

static __thread uint32_t owner_number;

static inline bool take(uint32_t *lock, uint32_t *seen, uint32_t number)
{
    *seen = 0;
    return __atomic_compare_exchange_n(lock, seen, number, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static __attribute__((noinline)) void wait_for_it(uint32_t *lock)
{
    uint32_t seen, number = owner_number;
    if (!number) number = owner_number = (uint32_t)syscall(SYS_gettid) << 1;
    if (take(lock, &seen, number)) return;
    SM_REQUIRE((seen & ~ASLEEP) != number, LOCKED_TWICE, "lock %p", (void *)lock);
    do {
        if (seen == 0) continue;
        if (!(seen & ASLEEP) && !__atomic_compare_exchange_n(lock, &seen, seen | ASLEEP, false, __ATOMIC_RELAXED,
                                                             __ATOMIC_RELAXED))
            continue;
        syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, seen | ASLEEP, NULL, NULL, 0);
    } while (!take(lock, &seen, number | ASLEEP)); /* others may be asleep too */
}

void os_unfair_lock_lock(uint32_t *lock)
{
    uint32_t seen, number = owner_number;
    TELL(__tsan_mutex_pre_lock(lock, __tsan_mutex_linker_init));
    if (!number || !take(lock, &seen, number)) wait_for_it(lock);
    TELL(__tsan_mutex_post_lock(lock, __tsan_mutex_linker_init, 0));
}

bool os_unfair_lock_trylock(uint32_t *lock)
{
    uint32_t seen, number = owner_number;
    if (!number) number = owner_number = (uint32_t)syscall(SYS_gettid) << 1;
    TELL(__tsan_mutex_pre_lock(lock, __tsan_mutex_linker_init | __tsan_mutex_try_lock));
    bool taken = take(lock, &seen, number);
    TELL(__tsan_mutex_post_lock(lock, __tsan_mutex_linker_init | __tsan_mutex_try_lock |
                                          (taken ? 0 : __tsan_mutex_try_lock_failed), 0));
    return taken;
}

static __attribute__((noinline)) void wake_one(uint32_t *lock, uint32_t seen)
{
    SM_REQUIRE((seen & ~ASLEEP) == owner_number, UNLOCKED_BY_OTHER, "lock %p", (void *)lock);
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
    syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); /* the memory may be gone: no harm */
}

void os_unfair_lock_unlock(uint32_t *lock)
{
    uint32_t seen = owner_number;
    TELL(__tsan_mutex_pre_unlock(lock, __tsan_mutex_linker_init));
    if (!__atomic_compare_exchange_n(lock, &seen, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) wake_one(lock, seen);
    TELL(__tsan_mutex_post_unlock(lock, __tsan_mutex_linker_init));
}
