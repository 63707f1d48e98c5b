/* What gpusync.h needs of the world, for a model checker: see model.sh. */

#include <assert.h>
#include <genmc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What GenMC's pthread.h lacks. The default hooks are never called. */
typedef int pthread_cond_t, pthread_condattr_t;
#define pthread_cond_init(cond, attributes) ((void)0)
#define pthread_condattr_init(attributes) ((void)0)
#define pthread_condattr_setclock(attributes, clock) ((void)0)
#define pthread_condattr_destroy(attributes) ((void)0)
#define pthread_cond_destroy(cond) ((void)0)
#define pthread_cond_timedwait(cond, mutex, at) ((void)0)
#define pthread_cond_signal(cond) ((void)0)

#define COPY_ERROR(to, from)                                                                  \
    ((to).result = (from).result, (to).failure = (from).failure, (to).ticket = (from).ticket, \
     (to).origin = (from).origin, (to).dropped = (from).dropped, (to).inherited = (from).inherited)

/* GenMC promotes these two, and no calls, to accesses. */
#define memset(to, value, size) __builtin_memset(to, value, size)
#define memcpy(to, from, size) __builtin_memcpy(to, from, size)

#define GPUSYNC_IMPLEMENTATION
#define GPUSYNC_STATIC
#define GPUSYNC_OBJC 1
#include "header.h"

#define RELAXED(p) __atomic_load_n(p, __ATOMIC_RELAXED)

/* os_unfair_lock promises to acquire and to release. A thread that would wait goes no further: those executions are the
   same as the ones in which it comes later. SEQ, for row `missed`: a lock that is sequentially consistent. Without it C
   lets a load go before the release in front of it, and a try before the store in front of it. Processors do not: Arm
   keeps a load-acquire behind a store-release, x86 every access behind a locked instruction. */
#ifdef SEQ
#define ACQUIRES __ATOMIC_SEQ_CST
#define LOOKS __ATOMIC_SEQ_CST
#define RELEASES __ATOMIC_SEQ_CST
#else
#define ACQUIRES __ATOMIC_ACQUIRE
#define LOOKS __ATOMIC_RELAXED
#define RELEASES __ATOMIC_RELEASE
#endif

bool gpusync__mutex_try_lock(gpusync__mutex *mutex)
{
    uint32_t none = 0;
    return __atomic_compare_exchange_n(&mutex->word, &none, 1, false, ACQUIRES, LOOKS);
}
void gpusync__mutex_lock(gpusync__mutex *mutex)
{
    __VERIFIER_assume(gpusync__mutex_try_lock(mutex));
}
void gpusync__mutex_unlock(gpusync__mutex *mutex)
{
    __atomic_store_n(&mutex->word, 0, RELEASES);
}

void *gpusync__stack_block[32];
void gpusync__objc_msg_send(void)
{
    assert(false); /* no row leads to Metal */
}
void gpusync__release(void *object)
{
    assert(!object);
}
void *gpusync__pool_push(void)
{
    return NULL;
}
void gpusync__pool_pop(void *pool) {}

static uint64_t gpusync_now_ns(void)
{
    return 1; /* the clock stands still */
}

static void gpusync__copy_text(char *to, size_t size, const char *text) {}
