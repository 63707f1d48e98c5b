/* locks.h - the library's order of locks, kept while the tests run

   Included in front of the implementation, by the compiler (-include). Each thread has a list of the locks that it
   holds; one that is taken against the order that gpusync.h states ("Locks, in the order in which they are taken"), or
   let go by who does not hold it, ends the program, as does a hook that runs under one. A lock's kind is read from how
   the library calls it. */
#ifndef LOCKS_H
#define LOCKS_H

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOCKS_ORDER, LOCKS_DEVICE, LOCKS_BOARD, LOCKS_PLAN, LOCKS_WAITER, LOCKS_GLOBAL, LOCKS_KINDS };

typedef struct locks_lock {
    const void *lock;
    const char *name;
    int kind;
} locks_lock;

/* Read in functions of their own: a fiber may go on on another thread. */
typedef struct locks_list {
    locks_lock held[LOCKS_KINDS]; /* in the order */
    unsigned count;
    uint64_t taken;
} locks_list;
static __thread locks_list locks_mine;

/* What a test does in the middle of a call: before a lock is taken, and after the last one is let go. */
static void (*locks_at_lock)(const void *lock, unsigned held);
static void (*locks_at_none)(void);

static __attribute__((noreturn, noinline, unused)) void locks_wrong(const char *what, const char *name)
{
    unsigned i;
    fprintf(stderr, "locks: %s %s; held:", name, what);
    for (i = 0; i < locks_mine.count; i++) fprintf(stderr, " %s", locks_mine.held[i].name);
    fprintf(stderr, "\n");
    abort();
}

static __attribute__((unused)) int locks_kind(const char *name)
{
    static const struct {
        const char *part;
        int kind;
    } kinds[] = {{"order", LOCKS_ORDER},         {"board", LOCKS_BOARD},        {"need_lock", LOCKS_BOARD},
                 {"plan_lock", LOCKS_PLAN},       {"waiter_lock", LOCKS_WAITER}, {"gpusync__global.lock", LOCKS_GLOBAL},
                 {"device->lock", LOCKS_DEVICE}, {"dev->lock", LOCKS_DEVICE}};
    size_t i;
    for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strstr(name, kinds[i].part)) return kinds[i].kind;
    locks_wrong("has no place in the order", name);
}

static __attribute__((noinline, unused)) void locks_taking(const void *lock, const char *name)
{
    void (*act)(const void *, unsigned) = __atomic_load_n(&locks_at_lock, __ATOMIC_SEQ_CST);
    int kind = locks_kind(name);
    if (act) { /* it stands for another thread */
        locks_list mine = locks_mine;
        locks_mine.count = 0;
        act(lock, mine.count);
        mine.taken = locks_mine.taken;
        locks_mine = mine;
    }
    if (locks_mine.count && locks_mine.held[locks_mine.count - 1].kind >= kind)
        locks_wrong("is taken against the order", name);
}

static __attribute__((noinline, unused)) void locks_have(const void *lock, const char *name)
{
    locks_lock *held = &locks_mine.held[locks_mine.count++];
    held->lock = lock;
    held->name = name;
    held->kind = locks_kind(name);
    locks_mine.taken++;
}

static __attribute__((noinline, unused)) void locks_leaving(const void *lock, const char *name)
{
    unsigned i = locks_mine.count;
    while (i && locks_mine.held[i - 1].lock != lock) i--;
    if (!i) locks_wrong("is let go by who does not hold it", name);
    memmove(&locks_mine.held[i - 1], &locks_mine.held[i], (locks_mine.count - i) * sizeof locks_mine.held[0]);
    locks_mine.count--;
}

static __attribute__((noinline, unused)) void locks_left(void)
{
    void (*act)(void) = __atomic_load_n(&locks_at_none, __ATOMIC_SEQ_CST);
    if (act && locks_mine.count == 0) act();
}

/* How often the default yield hook gave the processor away on this thread. */
static _Thread_local __attribute__((unused)) uint64_t locks_yields;

static __attribute__((noinline, unused)) void locks_none(const char *what)
{
    if (locks_mine.count) locks_wrong("runs under a lock", what);
}

/* A function's name that is not called by it is the function itself. */
#define gpusync__lock(mutex) (locks_taking(mutex, #mutex), (gpusync__lock)(mutex), locks_have(mutex, #mutex))
#define gpusync__try_lock(mutex) \
    (locks_taking(mutex, #mutex), (gpusync__try_lock)(mutex) && (locks_have(mutex, #mutex), true))
#define gpusync__unlock(mutex) (locks_leaving(mutex, #mutex), (gpusync__unlock)(mutex), locks_left())
/* The default hooks: nothing else of the library calls these. */
#define pthread_mutex_lock(mutex) (locks_none("park or unpark"), pthread_mutex_lock(mutex))
#define sched_yield() (locks_none("yield"), locks_yields++, sched_yield())

#endif
