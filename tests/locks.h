/* locks.h - what the library may do under its locks, watched while the tests run

   Included in front of the implementation, by the compiler (-include). Each thread has a list of the locks that it
   holds. The program ends, with one line that says what was done under which locks, when a thread takes a lock against
   the order of the table below, unlocks one that it does not hold, or does under a lock what the table does not allow.

   How each is seen, without a line for tests in gpusync.h:
     locks      macros in front of the three functions, whose names stand in brackets where the header declares them
     functions of the program, and its allocator: macros with the names of the members through which they are called;
                each puts the question in front of the first argument
     malloc, posix_memalign: macros. Within the default allocator they are the allocator's
     messages, releases, pools, dispatch calls: softmetal_before, on Linux. On a Mac the same calls come in the same order,
                so there nothing is missed by not looking */
#ifndef LOCKS_H
#define LOCKS_H

#include <math.h> /* has a function log, too */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What may happen under a lock. */
enum {
    LOCKS_HOOK = 1,       /* a function of the program runs, but for its allocator */
    LOCKS_MESSAGE = 2,    /* Metal or Foundation gets a message */
    LOCKS_RELEASE = 4,    /* an object is released: the program's dealloc may run */
    LOCKS_POOL = 8,       /* an autorelease pool ends, which releases what Metal put into it */
    LOCKS_DISPATCH = 16,  /* libdispatch is called */
    LOCKS_ALLOCATOR = 32, /* the program's allocator is called */
    LOCKS_MALLOC = 64     /* the C library is asked for memory */
};

enum {
    LOCKS_LIBRARY, LOCKS_ORDER, LOCKS_DEVICE, LOCKS_GRAPH, LOCKS_QUEUE, LOCKS_WAITS, LOCKS_SUBMISSION, LOCKS_GLOBAL, LOCKS_KINDS
};

/* In the order in which they are taken: a thread that holds one takes none of a row above it, and no second one of its
   row; a queue's and a timeline's count as one row. What a thread does is allowed by the row of every lock that it holds. */
static const struct {
    const char *name;
    unsigned may;
} locks_rules[LOCKS_KINDS] = {
    {"library", LOCKS_MESSAGE},                            /* of a warm-up; it is compiled */
    {"order", LOCKS_MESSAGE | LOCKS_RELEASE | LOCKS_POOL}, /* of a queue */
    {"device", LOCKS_MESSAGE},       /* its listener is made */
    {"graph", 0},                    /* over submissions, and what they wait for and signal */
    {"queue", 0},                    /* over its tickets */
    {"wait list", 0},                /* of a timeline, or whichever */
    {"submission", LOCKS_ALLOCATOR}, /* what is due; what is free */
    {"global", LOCKS_MALLOC},        /* slots are made */
};

/* In one hold of a queue's lock a thread takes no more than so many others: one for each callback that becomes due. So
   however many are listed, others get the queue in between. */
#define LOCKS_WITHIN_MOST 66

/* By which name each is seen. */
static const struct {
    const char *name;
    unsigned act;
} locks_acts[] = {
    {"yield", LOCKS_HOOK},
    {"park", LOCKS_HOOK},
    {"unpark", LOCKS_HOOK},
    {"log", LOCKS_HOOK},
    {"trace", LOCKS_HOOK},
    {"callback", LOCKS_HOOK},
    {"notify", LOCKS_HOOK},
    {"run", LOCKS_HOOK},
    {"objc_msgSend", LOCKS_MESSAGE},
    {"objc_release", LOCKS_RELEASE},
    {"objc_autoreleasePoolPop", LOCKS_POOL},
    {"dispatch_async_f", LOCKS_DISPATCH},
    {"dispatch_after_f", LOCKS_DISPATCH},
    {"dispatch_retain", LOCKS_DISPATCH},
    {"dispatch_release", LOCKS_DISPATCH},
    {"allocate", LOCKS_ALLOCATOR},
    {"release", LOCKS_ALLOCATOR},
    {"malloc", LOCKS_MALLOC},
    {"posix_memalign", LOCKS_MALLOC},
};
#define LOCKS_ACTS (sizeof locks_acts / sizeof locks_acts[0])

/* On a Mac softmetal_before is not there. */
static __attribute__((unused)) bool locks_are_seen(unsigned act)
{
#ifdef __APPLE__
    return !(act & (LOCKS_MESSAGE | LOCKS_RELEASE | LOCKS_POOL | LOCKS_DISPATCH));
#else
    return act != 0;
#endif
}

typedef struct locks_lock {
    const void *lock;
    const char *name; /* as the library calls it */
    int kind;
} locks_lock;

/* Read in functions of their own: a fiber may go on on another thread. */
typedef struct locks_list {
    locks_lock held[LOCKS_KINDS]; /* in the order */
    unsigned count, within; /* within: others that were taken since it has that of a queue */
    uint64_t taken;
} locks_list;
static __thread locks_list locks_mine;

/* For probe.h: a thread is about to take a lock, or (`after`) has unlocked one. `held`: how many others it holds. The
   function stands for another thread, which holds none. */
typedef struct locks_step {
    const char *function; /* of the library */
    const void *lock;
    bool after;
    unsigned held;
} locks_step;
static void (*locks_at_step)(const locks_step *step);

/* For test_locks.c: which rule is to be broken. A thread that does `act`, or takes a lock of the kind with that name, seems
   to hold a lock of this kind. "unlock": no thread seems to hold the lock that it unlocks. "many": in a hold of a queue's
   lock a thread seems to take many more. NULL: nothing is pretended. */
static struct {
    const char *act;
    int kind;
} locks_pretended;

static __attribute__((noreturn, noinline, unused)) void locks_wrong(const char *what, const char *name, int pretended)
{
    unsigned i;
    fprintf(stderr, "locks: %s %s; held:", name, what);
    for (i = 0; i < locks_mine.count; i++) fprintf(stderr, " %s", locks_mine.held[i].name);
    if (pretended >= 0) fprintf(stderr, " as it were %s", locks_rules[pretended].name);
    fprintf(stderr, "\n");
    abort();
}

/* A kind, or -1. */
static __attribute__((noinline, unused)) int locks_pretend(const char *act)
{
    const char *wanted = __atomic_load_n(&locks_pretended.act, __ATOMIC_SEQ_CST);
    return wanted && strcmp(wanted, act) == 0 ? __atomic_load_n(&locks_pretended.kind, __ATOMIC_RELAXED) : -1;
}

/* The thread is about to do this. */
static __attribute__((noinline, unused)) void locks_do(const char *act)
{
    int pretended = locks_pretend(act);
    unsigned may = pretended < 0 ? ~0u : locks_rules[pretended].may, i;
    if (!locks_mine.count && pretended < 0) return;
    for (i = 0; i < locks_mine.count; i++) may &= locks_rules[locks_mine.held[i].kind].may;
    for (i = 0; i < LOCKS_ACTS; i++)
        if (strcmp(locks_acts[i].name, act) == 0 && may & locks_acts[i].act) return;
    locks_wrong("is not allowed under a lock that the thread holds", act, pretended);
}

static __attribute__((noinline, unused)) void locks_do_malloc(const char *act, const char *function)
{
    if (strcmp(function, "gpusync__default_allocate") != 0) locks_do(act);
}

/* The kind of the lock that an expression of the library stands for; LOCKS_KINDS: none. A constant: a search at each lock
   took 5 to 21 % of a test program's time. */
#define LOCKS_NAMED(name, part) __builtin_strstr(name, part)
#define LOCKS_KIND(name)                                           \
    (LOCKS_NAMED(name, "l->mutex") ? LOCKS_LIBRARY                 \
     : LOCKS_NAMED(name, "order") ? LOCKS_ORDER                    \
     : LOCKS_NAMED(name, "graph") ? LOCKS_GRAPH                    \
     : LOCKS_NAMED(name, "(t)->waits") ? LOCKS_WAITS               \
     : LOCKS_NAMED(name, "timeline)->waits") ? LOCKS_WAITS         \
     : LOCKS_NAMED(name, ")->waits.lock") ? LOCKS_QUEUE            \
     : LOCKS_NAMED(name, "waits") ? LOCKS_WAITS                    \
     : LOCKS_NAMED(name, "submission_lock") ? LOCKS_SUBMISSION     \
     : LOCKS_NAMED(name, "gpusync__global.lock") ? LOCKS_GLOBAL    \
     : LOCKS_NAMED(name, "device->lock") ? LOCKS_DEVICE            \
     : LOCKS_NAMED(name, "dev->lock") ? LOCKS_DEVICE : LOCKS_KINDS)

static __attribute__((noinline, unused)) void locks_step_of(const void *lock, const char *function, bool after)
{
    void (*act)(const locks_step *) = __atomic_load_n(&locks_at_step, __ATOMIC_SEQ_CST);
    locks_list mine;
    if (!act) return;
    mine = locks_mine;
    locks_mine.count = 0;
    act(&(locks_step){function, lock, after, mine.count});
    mine.taken = locks_mine.taken; /* what it took counts for this thread, too; `within` does not */
    locks_mine = mine;
}

static __attribute__((noinline, unused)) void locks_taking(const void *lock, const char *name, int kind,
                                                           const char *function)
{
    int pretended;
    if (kind == LOCKS_KINDS) locks_wrong("is of no kind that the table has", name, -1);
    pretended = locks_pretend(locks_rules[kind].name);
    locks_step_of(lock, function, false);
    int least = kind == LOCKS_WAITS ? LOCKS_QUEUE : kind; /* a thread that holds one of these may not take it */
    if (pretended >= least || (locks_mine.count && locks_mine.held[locks_mine.count - 1].kind >= least))
        locks_wrong("is taken against the order", locks_rules[kind].name, pretended);
}

#ifndef __APPLE__
extern void (*softmetal_before)(const char *act);
#endif

static __attribute__((noinline, unused)) void locks_have(const void *lock, const char *name, int kind)
{
    locks_lock *held = &locks_mine.held[locks_mine.count++];
    held->lock = lock;
    held->name = name;
    held->kind = kind;
    locks_mine.taken++;
    if (held->kind == LOCKS_QUEUE) locks_mine.within = 0;
    else if (held > locks_mine.held && held[-1].kind == LOCKS_QUEUE)
        locks_mine.within += locks_pretend("many") < 0 ? 1 : LOCKS_WITHIN_MOST + 1;
    if (locks_mine.within > LOCKS_WITHIN_MOST) locks_wrong("is one of too many in one hold of a queue's lock", name, -1);
#ifndef __APPLE__
    if (!__atomic_load_n(&softmetal_before, __ATOMIC_RELAXED))
        __atomic_store_n(&softmetal_before, locks_do, __ATOMIC_RELAXED);
#endif
}

static __attribute__((noinline, unused)) void locks_leaving(const void *lock, const char *name)
{
    unsigned i = locks_mine.count;
    while (i && locks_mine.held[i - 1].lock != lock) i--;
    if (!i || locks_pretend("unlock") >= 0) locks_wrong("is unlocked by a thread that does not hold it", name, -1);
    memmove(&locks_mine.held[i - 1], &locks_mine.held[i], (locks_mine.count - i) * sizeof locks_mine.held[0]);
    locks_mine.count--;
}

/* How often the default yield hook gave the processor away on this thread. */
static _Thread_local __attribute__((unused)) uint64_t locks_yields;

/* A function's name that is not called by it is the function itself. */
#define gpusync__lock(mutex)                                                            \
    (locks_taking(mutex, #mutex, LOCKS_KIND(#mutex), __func__), (gpusync__lock)(mutex), \
     locks_have(mutex, #mutex, LOCKS_KIND(#mutex)))
#define gpusync__try_lock(mutex)                                \
    (locks_taking(mutex, #mutex, LOCKS_KIND(#mutex), __func__), \
     (gpusync__try_lock)(mutex) && (locks_have(mutex, #mutex, LOCKS_KIND(#mutex)), true))
/* The lock is found once: when it is unlocked, what leads to it may be another thread's. */
#define gpusync__unlock(mutex)                      \
    __extension__({                                 \
        __typeof__(mutex) locks_found = (mutex);    \
        locks_leaving(locks_found, #mutex);         \
        (gpusync__unlock)(locks_found);             \
        locks_step_of(locks_found, __func__, true); \
    })

/* From here on for the implementation alone: locks_end.h takes them back. */
#define yield(user) yield((locks_do("yield"), user))
#define park(user, ...) park((locks_do("park"), user), __VA_ARGS__)
#define unpark(user, ...) unpark((locks_do("unpark"), user), __VA_ARGS__)
#define log(user, ...) log((locks_do("log"), user), __VA_ARGS__)
#define trace_fn(user, ...) trace_fn((locks_do("trace"), user), __VA_ARGS__)
#define fn(user, ...) fn((locks_do("callback"), user), __VA_ARGS__)
#define notify(user) notify((locks_do("notify"), user))
#define run(user) run((locks_do("run"), user))
#define allocate(user, ...) allocate((locks_do("allocate"), user), __VA_ARGS__)
#define release(user, ...) release((locks_do("release"), user), __VA_ARGS__)
#define malloc(size) (locks_do_malloc("malloc", __func__), malloc(size))
#define posix_memalign(memory, alignment, size) \
    (locks_do_malloc("posix_memalign", __func__), posix_memalign(memory, alignment, size))
#define sched_yield() (locks_yields++, sched_yield())

#endif
