/* at_lock.h - support.h, with code to run when the header takes a lock

   Included in its place, after GPUSYNC_IMPLEMENTATION is defined. */
#ifndef AT_LOCK_H
#define AT_LOCK_H

#include <stddef.h>

/* When it takes this lock for the n-th time from now, before it has it; once. */
static struct {
    void *lock;
    int countdown;
    void (*act)(void *);
    void *argument;
} at_lock;

static void hooked_lock(void *lock);
#define gpusync__lock(mutex) hooked_lock(mutex)
#include "support.h"
#undef gpusync__lock

static void hooked_lock(void *lock)
{
    void *expected = lock;
    if (__atomic_load_n(&at_lock.lock, __ATOMIC_SEQ_CST) == lock &&
        __atomic_sub_fetch(&at_lock.countdown, 1, __ATOMIC_SEQ_CST) == 0 &&
        __atomic_compare_exchange_n(&at_lock.lock, &expected, NULL, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        at_lock.act(at_lock.argument);
    gpusync__lock((gpusync__mutex *)lock);
}

#endif
