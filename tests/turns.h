/* turns.h - threads of a test that take turns: one runs at a time, and a seed, or a search, decides which one goes on

   A race is a small program of several tasks. turns_run_all runs each of its schedules that has at most so many
   switches that nothing forces; turns_run_seeds runs one schedule for each seed. A schedule in which no task can go on
   is reported as a deadlock, or as a wake-up that is lost. Every report ends with what runs its schedule again.

   At a point another task may go on. Points are
     - each lock, try-lock and unlock of os_unfair_lock: this file defines them, in place of those of softmetal's
       archive. The point of an unlock comes behind it; where another lock was taken within, one comes before it, too
     - each message, release, pool and dispatch call of the program (softmetal_before)
     - yield, park and unpark (turns_hooks), and each look at the clock
     - with turns_atomics.c each atomic operation
     - turns_point, which a test calls itself.
   Nothing of the inside of gpusync.h is named here.

   A thread is known by the turn. What a thread of softmetal's runs while a task steps the manual clock counts as the
   task's, because only one task runs.

   Tasks run on threads of their own, which live from one schedule to the next. So cmocka's assertions cannot jump out
   of a task: turns_check and turns_expect end the program. And a task that gets autoreleased objects makes a pool.

   The program that has the implementation defines GPUSYNC_IMPLEMENTATION and includes this file, and gpusync.h only
   through it: the library's clock is then the one of this file. One file of a program includes it.

       static void one(void *user) { ... turns_expect(gpusync_commit(queue, buffer, &ticket), GPUSYNC_OK); ... }
       static void set_up(void *user) { ...; turns_add("one", one, NULL); turns_gpu(metal_queue); }
       static void tear_down(void *user) { turns_check(called == 1); ... }
       static const turns_race race = {.name = "commit", .setup = set_up, .teardown = tear_down};
       turns_run_all(&race, 2);
       turns_run_seeds(&race, 1000);

   Environment
     TURNS_RACE=name         only the race of this name runs
     TURNS_CHOICES="i:c ..." one schedule: choice i, counted from 0, takes candidate c; other choices take candidate 0
     TURNS_SEED=n or n:reach one schedule, the one of seed n
     TURNS_TRACE=1           prints each point
     TURNS_SWITCHES=n        turns_run_all allows n switches
     TURNS_SEEDS=n           turns_run_seeds runs n seeds
     TURNS_FIRST_SEED=n      ... and begins with seed n; 1 where it is not set
     TURNS_SUMMARY=1         one line for each race: schedules, points, time
     TURNS_UNPINNED=1        the threads of a program may run on several cores

   Contents
     >>state    what is known of a task, and of a schedule
     >>report   what a failure prints
     >>choose   which task goes on
     >>turn     how a task stands at a point, and how the turn is handed on
     >>locks    os_unfair_lock
     >>clock    time, which moves only when no task can go on
     >>hooks    yield, park and unpark
     >>tasks    what the body of a task may call
     >>helpers  tasks that play the GPU, the caller of callbacks, and the workers of libdispatch
     >>races    set-up, schedule, tear-down: for each seed, or for each schedule of a search */
#ifndef TURNS_H
#define TURNS_H

#ifdef GPUSYNC_VERSION_MAJOR
#error "include turns.h before gpusync.h: the library's clock is the one of turns.h"
#endif

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <semaphore.h>
#endif

/* All of what the library's implementation includes was included above, so that the macro meets the library alone. */
#ifdef __APPLE__
static inline uint64_t turns_clock(clockid_t id);
#define clock_gettime_nsec_np turns_clock
#include "gpusync.h"
#undef clock_gettime_nsec_np
#else
static inline int turns_clock(clockid_t id, struct timespec *now);
#define clock_gettime turns_clock
#include "gpusync.h"
#undef clock_gettime
#endif
#include "softmetal.h"

/* How the callbacks of a device with GPUSYNC_CALLBACKS_MANUAL are run. */
#ifndef TURNS_RUN_CALLBACKS
#define TURNS_RUN_CALLBACKS(device, max, count) gpusync_device_run_callbacks(device, max, count)
#endif

#define TURNS_UNUSED __attribute__((unused))

/* ------------------------------------------------------------------------------------------------------ >>state -- */

enum {
    TURNS_TASKS = 16,        /* of one race */
    TURNS_POINTS = 50000,    /* of one schedule: a task that passes more never ends */
    TURNS_FAIR = 1000,       /* see turns_change_priority */
    TURNS_CHOICES = 1 << 16, /* of one schedule */
    TURNS_CHANGES = 32       /* of priority in one schedule by seed, at most */
};
#define TURNS_NOBODY (-1)
#define TURNS_LOOKS 4                           /* at the clock in a row: the task waits for others */
#define TURNS_BRIEFLY UINT64_C(2000000)         /* ns: see turns_park */
#define TURNS_LONG_ENOUGH UINT64_C(60000000000) /* ns of the real clock, for what softmetal's threads do at once */

typedef enum turns_state {
    TURNS_READY,
    TURNS_WANTS,  /* a lock */
    TURNS_PARKED, /* inside park */
    TURNS_UNTIL,  /* waits for a condition of the test's */
    TURNS_IDLE,   /* a helper that has nothing to do */
    TURNS_OVER
} turns_state;

typedef bool (*turns_condition)(void *argument);

typedef struct turns_task {
    const char *name;
    const char *at; /* the last point */
    void (*body)(void *argument);
    void *argument;
    turns_state state;
    const uint32_t *lock;      /* WANTS */
    unsigned locks;            /* that the task owns */
    const uint32_t *outer;     /* the first lock that it owns; NULL: it owns none */
    bool within;               /* it has taken another one within */
    gpusync_waiter *waiter;    /* PARKED, and NULL else: then the waiter's memory may be gone */
    uint64_t deadline;         /* PARKED */
    bool brief;                /* PARKED: the deadline is near, see turns_park */
    turns_condition condition; /* UNTIL, IDLE. NULL of an idle helper: it looks again after each step of others */
    void *condition_argument;
    uint64_t seen; /* of such a helper: turns.progress as it looked last */
    bool polls;    /* is such a helper: others need not look again for its points */
    bool limited;  /* its waits have a limit of the program's: time may move to their deadline */
    uint64_t priority;
    unsigned looks; /* at the clock, with no other point in between */
} turns_task;

/* Passes the turn to one thread. A post that comes before the wait is kept. */
typedef struct turns_baton {
#ifdef __linux__
    sem_t semaphore;
#else
    pthread_mutex_t mutex;
    pthread_cond_t passed;
    unsigned count;
#endif
} turns_baton;

typedef struct turns_race {
    const char *name;
    void (*setup)(void *user);    /* makes objects, and adds the tasks */
    void (*teardown)(void *user); /* checks how it ended, and releases the objects */
    void *user;
    uint64_t reach;   /* roughly the points of a schedule, for seeds. 0: a first schedule measures it. A race whose
                         program depends on turns_seed or turns_draw sets it, or no seed finds its schedule again. */
    unsigned changes; /* of priority in a schedule by seed; 0: 3 */
    uint64_t limit;   /* a search ends after so many schedules; 0: when it has seen all */
    bool timed; /* time may move to every deadline. Else a wake-up that is lost is not hidden by a wait in slices */
} turns_race;

/* Only the thread that has the turn touches this: while no schedule runs that is the thread of the test. */
static struct {
    turns_task task[TURNS_TASKS];
    int count;
    int current; /* TURNS_NOBODY while no schedule runs */
    uint64_t now, points;
    uint64_t progress; /* rises with each step that may give a polling helper something to do */
    uint64_t told;     /* calls of turns_notify */
    bool over;         /* only helpers are left: they end */

    const turns_race *race;
    uint64_t schedules;    /* of the race, with the present one */
    uint64_t total_points; /* of the race, without the present schedule */
    bool trace;
    bool reported;

    bool by_seed;
    uint64_t seed;                  /* 0: a search */
    uint64_t reach;                 /* the changes of priority are at points below this */
    uint64_t random;                /* the scheduler's generator */
    uint64_t drawn;                 /* the test's generator */
    uint64_t change[TURNS_CHANGES]; /* points at which the present task loses its priority */
    unsigned changes;
    uint64_t lowest; /* priority */

    unsigned most;                        /* switches that nothing forces */
    unsigned spent;                       /* of these */
    bool yields;                          /* the present point is a yield */
    unsigned length;                      /* choices made in this schedule */
    unsigned prefix;                      /* choices that are given: those made before are repeated */
    unsigned char choice[TURNS_CHOICES];  /* which candidate went on */
    unsigned char offered[TURNS_CHOICES]; /* candidates there were; 0: not known */
    unsigned char open[TURNS_CHOICES];    /* candidates that the search may take */

    turns_baton baton[TURNS_TASKS]; /* of the threads of the tasks, which live from one schedule to the next */
    turns_baton end;                /* of the thread of the test */
    int threads;
    pid_t process; /* whose threads these are: a fork has none of them */
} turns = {.current = TURNS_NOBODY, .now = UINT64_C(1000000000)};

static inline turns_task *turns_self(void)
{
    return &turns.task[turns.current];
}

static inline bool turns_running(void)
{
    return __atomic_load_n(&turns.current, __ATOMIC_RELAXED) != TURNS_NOBODY;
}

/* ----------------------------------------------------------------------------------------------------- >>report -- */

/* How the present schedule is run again. */
static inline void turns_print_schedule(void)
{
    const char *between = "";
    fprintf(stderr, "  again: TURNS_RACE='%s' ", turns.race ? turns.race->name : "");
    if (turns.by_seed) {
        fprintf(stderr, "TURNS_SEED=%llu:%llu\n", (unsigned long long)turns.seed, (unsigned long long)turns.reach);
        return;
    }
    fprintf(stderr, "TURNS_CHOICES=\"");
    for (unsigned i = 0; i < turns.length; i++) {
        if (turns.choice[i] == 0)
            continue;
        fprintf(stderr, "%s%u:%u", between, i, turns.choice[i]);
        between = " ";
    }
    fprintf(stderr, "\"\n");
}

static inline void turns_print_task(const turns_task *task, bool has_turn)
{
    static const char *const states[] = {"ready", "wants a lock of ", "parked", "waits for a condition", "idle",
                                         "over"};
    const char *owner = "";
    if (task->state == TURNS_WANTS && *task->lock > 0 && *task->lock <= TURNS_TASKS)
        owner = turns.task[*task->lock - 1].name;
    fprintf(stderr, "  %c %-12s %s%s, at: %s\n", has_turn ? '*' : ' ', task->name, states[task->state], owner,
            task->at ? task->at : "its start");
}

static inline void turns_report(const char *what)
{
    if (turns.reported)
        return;
    turns.reported = true;
    fprintf(stderr, "turns: %s\n  schedule %llu, point %llu\n", what, (unsigned long long)turns.schedules,
            (unsigned long long)turns.points);
    turns_print_schedule();
    for (int i = 0; i < turns.count; i++)
        turns_print_task(&turns.task[i], i == turns.current);
    fflush(stderr);
}

__attribute__((noreturn)) static inline void turns_fail(const char *what)
{
    turns_report(what);
    abort();
}

/* For tasks, and for set-up and tear-down: what fails is reported with its schedule, and ends the program. */
#define turns_check(condition) ((condition) ? (void)0 : turns_check_failed(#condition, __FILE__, __LINE__))
__attribute__((noreturn)) static inline void turns_check_failed(const char *text, const char *file, int line)
{
    char what[512];
    snprintf(what, sizeof what, "%s:%d: not true: %s", file, line, text);
    turns_fail(what);
}

#define turns_expect(call, expected) \
    turns_expect_at((long long)(call), (long long)(expected), #call, __FILE__, __LINE__)
static inline void turns_expect_at(long long got, long long expected, const char *call, const char *file, int line)
{
    char what[512];
    if (got == expected)
        return;
    snprintf(what, sizeof what, "%s:%d: %s: %lld, expected %lld", file, line, call, got, expected);
    turns_fail(what);
}

/* Signals that end a program: a fault, abort of softmetal's or an assertion's, and SIGTERM of a time limit. */
static const int turns_signals[] = {SIGABRT, SIGTERM, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { TURNS_SIGNALS = sizeof turns_signals / sizeof turns_signals[0] };
static struct sigaction turns_old_action[TURNS_SIGNALS];

static inline void turns_died(int number)
{
    char what[64];
    snprintf(what, sizeof what, "the program ends by signal %d", number);
    turns_report(what);
    raise(number); /* the action is the default one again */
}

static inline void turns_died_by_sanitizer(void)
{
    turns_report("a sanitizer ends the program");
}

/* A sanitizer keeps its signals of faults: its own report is better. */
#ifdef __linux__
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));
#define TURNS_SANITIZER (__sanitizer_set_death_callback != NULL)
#define TURNS_AT_DEATH(callback) __sanitizer_set_death_callback(callback)
#else
#define TURNS_SANITIZER false
#define TURNS_AT_DEATH(callback) ((void)(callback))
#endif

static inline int turns_signal_count(void)
{
    return TURNS_SANITIZER ? 2 : TURNS_SIGNALS;
}

static inline void turns_watch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = turns_died;
    action.sa_flags = (int)(SA_RESETHAND | SA_NODEFER);
    for (int i = 0; i < turns_signal_count(); i++)
        sigaction(turns_signals[i], &action, &turns_old_action[i]);
    if (TURNS_SANITIZER)
        TURNS_AT_DEATH(turns_died_by_sanitizer);
}

static inline void turns_unwatch_signals(void)
{
    for (int i = 0; i < turns_signal_count(); i++)
        sigaction(turns_signals[i], &turns_old_action[i], NULL);
    if (TURNS_SANITIZER)
        TURNS_AT_DEATH(NULL);
}

/* ----------------------------------------------------------------------------------------------------- >>choose -- */

/* xorshift64: never 0 when it was not. */
static inline uint64_t turns_next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Neighbouring seeds give generators that have nothing in common (splitmix64). */
static inline uint64_t turns_generator(uint64_t seed)
{
    uint64_t state = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
    state = (state ^ (state >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    state = (state ^ (state >> 27)) * UINT64_C(0x94D049BB133111EB);
    state ^= state >> 31;
    return state | 1;
}

/* May time move to the deadline at which the task is parked? */
static inline bool turns_has_deadline(const turns_task *task)
{
    bool timed = turns.race && turns.race->timed;
    if (task->state != TURNS_PARKED || task->deadline == UINT64_MAX)
        return false;
    return task->brief || task->limited || timed;
}

static inline bool turns_can_go_on(const turns_task *task)
{
    switch (task->state) {
    case TURNS_READY: return true;
    case TURNS_WANTS: return *task->lock == 0;
    case TURNS_PARKED:
        if (task->waiter->scheduler_data[0])
            return true;
        return turns_has_deadline(task) && task->deadline <= turns.now;
    case TURNS_UNTIL: return task->condition(task->condition_argument);
    case TURNS_IDLE:
        if (turns.over)
            return true;
        if (task->condition)
            return task->condition(task->condition_argument);
        return task->seen != turns.progress;
    case TURNS_OVER: break;
    }
    return false;
}

/* Which tasks can go on? The present one comes first, so that candidate 0 is no switch; after a yield it comes last. */
static inline int turns_candidates(int self, int can[TURNS_TASKS])
{
    int count = 0;
    int first = self == TURNS_NOBODY ? 0 : self;
    if (turns.yields)
        first++;
    for (int k = 0; k < turns.count; k++) {
        int i = (first + k) % turns.count;
        if (turns_can_go_on(&turns.task[i]))
            can[count++] = i;
    }
    return count;
}

static inline bool turns_only_helpers_left(void)
{
    for (int i = 0; i < turns.count; i++)
        if (turns.task[i].state != TURNS_IDLE && turns.task[i].state != TURNS_OVER)
            return false;
    return true;
}

static inline void turns_move_time(void)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < turns.count; i++)
        if (turns_has_deadline(&turns.task[i]) && turns.task[i].deadline < next)
            next = turns.task[i].deadline;
    if (next == UINT64_MAX)
        turns_fail("no task can go on: a deadlock, or a wake-up is lost");
    turns.now = next;
}

/* By seed, as PCT does it (Burckhardt et al., ASPLOS 2010): the highest priority goes on. */
static inline int turns_highest(const int *can, int count)
{
    int best = can[0];
    for (int k = 1; k < count; k++)
        if (turns.task[can[k]].priority > turns.task[best].priority)
            best = can[k];
    return best;
}

/* ... and at a few points the present task loses its own. So it does each TURNS_FAIR points: a task that waits in a
   loop without a yield keeps no other one from what it waits for. */
static inline void turns_change_priority(int self)
{
    if (turns.points % TURNS_FAIR == 0)
        turns.task[self].priority = --turns.lowest;
    for (unsigned k = 0; k < turns.changes; k++)
        if (turns.points == turns.change[k])
            turns.task[self].priority = --turns.lowest;
}

/* In a search: the choice of this schedule that is due. Only choices between several candidates are counted. A search
   with other bounds counts them alike, so that the choices of a report mean the same everywhere. */
static inline int turns_chosen(int self, const int *can, int count)
{
    bool forced = self == TURNS_NOBODY || !turns_can_go_on(&turns.task[self]);
    unsigned i = turns.length;
    if (i == TURNS_CHOICES)
        turns_fail("too many choices");
    if (i >= turns.prefix)
        turns.choice[i] = 0;
    else if ((turns.offered[i] && turns.offered[i] != count) || turns.choice[i] >= count)
        turns_fail("the program is not the same each time");
    turns.length++;
    turns.offered[i] = (unsigned char)count;
    turns.open[i] = !forced && turns.spent >= turns.most ? 1 : (unsigned char)count;
    if (!forced && turns.choice[i] != 0)
        turns.spent++;
    return can[turns.choice[i]];
}

/* Which task goes on? TURNS_NOBODY: all are over. */
static inline int turns_pick(int self)
{
    int can[TURNS_TASKS];
    int count;
    while ((count = turns_candidates(self, can)) == 0) {
        if (turns.over)
            return TURNS_NOBODY;
        if (turns_only_helpers_left())
            turns.over = true;
        else
            turns_move_time();
    }
    if (count == 1 || turns.over) /* the order in which helpers end is of no interest */
        return can[0];
    return turns.by_seed ? turns_highest(can, count) : turns_chosen(self, can, count);
}

/* ------------------------------------------------------------------------------------------------------- >>turn -- */

#ifdef __linux__
static inline void turns_baton_init(turns_baton *baton)
{
    sem_init(&baton->semaphore, 0, 0);
}

static inline void turns_baton_pass(turns_baton *baton)
{
    sem_post(&baton->semaphore);
}

static inline void turns_baton_await(turns_baton *baton)
{
    while (sem_wait(&baton->semaphore) != 0 && errno == EINTR)
        continue;
}
#else
static inline void turns_baton_init(turns_baton *baton)
{
    pthread_mutex_init(&baton->mutex, NULL);
    pthread_cond_init(&baton->passed, NULL);
    baton->count = 0;
}

static inline void turns_baton_pass(turns_baton *baton)
{
    pthread_mutex_lock(&baton->mutex);
    baton->count++;
    pthread_cond_signal(&baton->passed);
    pthread_mutex_unlock(&baton->mutex);
}

static inline void turns_baton_await(turns_baton *baton)
{
    pthread_mutex_lock(&baton->mutex);
    while (baton->count == 0)
        pthread_cond_wait(&baton->passed, &baton->mutex);
    baton->count--;
    pthread_mutex_unlock(&baton->mutex);
}
#endif

/* The present task stands like this. Returns when it has the turn again; at its end at once. */
static inline void turns_stand(turns_state state, const char *at)
{
    int self = turns.current;
    turns_task *task = &turns.task[self];
    task->state = state;
    task->at = at;
    task->looks = 0;
    turns.points++;
    if (turns.points > TURNS_POINTS)
        turns_fail("a schedule does not end");
    if (!task->polls && !turns.yields && state != TURNS_IDLE)
        turns.progress++;
    if (turns.trace)
        fprintf(stderr, "%llu %s: %s\n", (unsigned long long)turns.points, task->name, at);
    if (turns.by_seed)
        turns_change_priority(self);
    int next = turns_pick(self);
    turns.yields = false;
    if (next != self) {
        turns.current = next;
        turns_baton_pass(next == TURNS_NOBODY ? &turns.end : &turns.baton[next]);
        if (state == TURNS_OVER)
            return;
        turns_baton_await(&turns.baton[self]);
    }
    task->state = TURNS_READY;
}

/* Another task may go on here. Outside of a schedule, as in set-up and tear-down, it is nothing. */
static inline void turns_point(const char *name)
{
    if (turns_running())
        turns_stand(TURNS_READY, name);
}

/* At the next point, which is a yield, the present task waits for others. By seed it comes behind all. In a search the
   next one goes on, which is no switch that counts; to stay, or to take another one, is. So a loop ends that yields
   until others have done something. */
static inline void turns_give_way(void)
{
    turns_self()->priority = --turns.lowest;
    turns.yields = true;
}

/* A thread takes the tasks of its place, one in each schedule. */
static inline void *turns_thread(void *baton)
{
    ptrdiff_t place = (turns_baton *)baton - turns.baton;
    turns_task *task = &turns.task[place];
    for (;;) {
        turns_baton_await(&turns.baton[place]);
        task->state = TURNS_READY;
        if (!turns.over) /* else a helper that had nothing to do */
            task->body(task->argument);
        turns_stand(TURNS_OVER, "its end");
    }
    return NULL;
}

static inline void turns_start_threads(void)
{
    pthread_attr_t detached;
    if (turns.process != getpid()) {
        turns.process = getpid();
        turns.threads = 0;
        turns_baton_init(&turns.end);
    }
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    while (turns.threads < turns.count) {
        pthread_t thread;
        turns_baton *baton = &turns.baton[turns.threads++];
        turns_baton_init(baton);
        if (pthread_create(&thread, &detached, turns_thread, baton) != 0)
            turns_fail("no thread");
    }
    pthread_attr_destroy(&detached);
}

/* The end of an object may run code of the program's (its dealloc, the captures of a handler), which calls the library:
   no reference is given back under a lock. */
static inline void turns_before(const char *name)
{
    if (turns_self()->locks > 0 && (strcmp(name, "objc_release") == 0 || strcmp(name, "objc_autoreleasePoolPop") == 0))
        turns_fail("a release under a lock");
    turns_point(name);
}

/* Runs the tasks to their end. */
static inline void turns_go(void)
{
    turns_start_threads();
    softmetal_before = turns_before;
    turns.current = turns_pick(TURNS_NOBODY);
    turns_baton_pass(&turns.baton[turns.current]);
    turns_baton_await(&turns.end);
    softmetal_before = NULL;
}

/* turns_atomics.c calls it before each atomic operation; those of this file are none of the program's. */
extern void turns_atomic(const volatile void *p, const char *name);
void turns_atomic(const volatile void *p, const char *name)
{
    uintptr_t at = (uintptr_t)p;
    if (at >= (uintptr_t)&turns && at < (uintptr_t)(&turns + 1))
        return;
    turns_point(name);
}

/* ------------------------------------------------------------------------------------------------------ >>locks -- */

/* A lock is 0, or the owner's place among the tasks plus one. */
#define TURNS_OUTSIDE UINT32_MAX /* its owner while no schedule runs */

extern void os_unfair_lock_lock(uint32_t *lock);
extern bool os_unfair_lock_trylock(uint32_t *lock);
extern void os_unfair_lock_unlock(uint32_t *lock);

static inline bool turns_take_outside(uint32_t *lock)
{
    uint32_t none = 0;
    return __atomic_compare_exchange_n(lock, &none, TURNS_OUTSIDE, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void turns_own(uint32_t *lock)
{
    turns_task *self = turns_self();
    *lock = (uint32_t)turns.current + 1;
    self->locks++;
    self->within = self->outer != NULL;
    if (!self->outer)
        self->outer = lock;
}

void os_unfair_lock_lock(uint32_t *lock)
{
    if (!turns_running()) { /* softmetal's threads may want it, too */
        while (!turns_take_outside(lock))
            sched_yield();
        return;
    }
    turns_self()->lock = lock;
    turns_stand(TURNS_WANTS, "lock");
    turns_own(lock);
}

bool os_unfair_lock_trylock(uint32_t *lock)
{
    if (!turns_running())
        return turns_take_outside(lock);
    turns_point("try-lock");
    if (*lock != 0)
        return false;
    turns_own(lock);
    return true;
}

void os_unfair_lock_unlock(uint32_t *lock)
{
    if (!turns_running()) {
        __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
        return;
    }
    if (*lock != (uint32_t)turns.current + 1)
        turns_fail("an unlock of a lock that the task does not own");
    if (turns_self()->outer == lock) {
        if (turns_self()->within) /* a try-lock of another task may fail here, behind all that this one has looked at */
            turns_point("about to unlock");
        turns_self()->outer = NULL;
        turns_self()->within = false;
    }
    *lock = 0;
    turns_self()->locks--;
    turns_point("unlock"); /* the lock's memory may be gone by now */
}

/* ------------------------------------------------------------------------------------------------------ >>clock -- */

/* Each look moves the time, so that a loop that waits for a moment ends. A task that only looks at the clock waits for
   others, and yields. */
static inline uint64_t turns_now(void)
{
    if (turns_running()) {
        unsigned looks = turns_self()->looks + 1;
        if (looks > TURNS_LOOKS)
            turns_give_way();
        turns_point("the clock");
        turns_self()->looks = looks;
    }
    return __atomic_add_fetch(&turns.now, 100, __ATOMIC_RELAXED);
}

#ifdef __APPLE__
static inline uint64_t turns_clock(clockid_t id)
{
    (void)id;
    return turns_now();
}
#else
static inline int turns_clock(clockid_t id, struct timespec *now)
{
    uint64_t ns = turns_now();
    (void)id;
    now->tv_sec = (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}
#endif

/* ------------------------------------------------------------------------------------------------------ >>hooks -- */

/* scheduler_data[0] is the permit that an unpark leaves. A task's waiter is read by others only while the task is
   inside park: after its last park a wait gives the waiter's memory away. */

/* With no schedule the time goes by on its own while the thread waits. */
static inline void turns_park_outside(gpusync_waiter *waiter, uint64_t deadline)
{
    while (!__atomic_load_n(&waiter->scheduler_data[0], __ATOMIC_ACQUIRE)) {
        if (__atomic_add_fetch(&turns.now, 1000, __ATOMIC_RELAXED) >= deadline)
            break;
        sched_yield();
    }
    waiter->scheduler_data[0] = NULL;
}

/* Time moves to the deadline only where no task can go on, and
     - the task has a limit of the program's (turns_limit), or
     - the deadline is near: such a brief park waits for what another thread is about to do, and looks again.
   Every other deadline is the end of a slice. It does not come, or it would hide that a wake-up is lost. */
static inline void turns_park(void *user, gpusync_waiter *waiter, uint64_t deadline)
{
    if (!turns_running()) {
        turns_park_outside(waiter, deadline);
        return;
    }
    turns_task *task = turns_self();
    task->waiter = waiter;
    task->deadline = deadline;
    task->brief = deadline <= turns.now + TURNS_BRIEFLY;
    turns_stand(TURNS_PARKED, task->brief ? "park, briefly" : "park");
    task->waiter = NULL;
    waiter->scheduler_data[0] = NULL;
}

static inline void turns_unpark(void *user, gpusync_waiter *waiter)
{
    static char permit;
    if (!turns_running()) {
        __atomic_store_n(&waiter->scheduler_data[0], (void *)&permit, __ATOMIC_RELEASE);
        return;
    }
    turns_point("unpark");
    waiter->scheduler_data[0] = &permit;
    turns_point("unparked"); /* the waiter may be gone by now */
}

static inline void turns_yield(void *user)
{
    if (!turns_running()) {
        sched_yield();
        return;
    }
    turns_give_way();
    turns_point("yield");
}

static const gpusync_hooks turns_hooks TURNS_UNUSED = {
    .yield = turns_yield,
    .park = turns_park,
    .unpark = turns_unpark,
};

/* ------------------------------------------------------------------------------------------------------ >>tasks -- */

static inline turns_task *turns_add(const char *name, void (*body)(void *argument), void *argument)
{
    turns_task *task = &turns.task[turns.count];
    if (turns.count == TURNS_TASKS)
        turns_fail("too many tasks");
    turns.count++;
    memset(task, 0, sizeof *task);
    task->name = name;
    task->body = body;
    task->argument = argument;
    return task;
}

/* true: the waits of the present task have a limit of the program's from now on, and time may move to it. */
static inline void turns_limit(bool limited)
{
    turns_self()->limited = limited;
}

/* The present task goes on when the condition holds. The scheduler asks for it at any time: it must not have points. */
static inline void turns_until(turns_condition condition, void *argument)
{
    turns_self()->condition = condition;
    turns_self()->condition_argument = argument;
    turns_stand(TURNS_UNTIL, "a condition");
}

static inline turns_state turns_state_of(const char *name)
{
    for (int i = 0; i < turns.count; i++)
        if (strcmp(turns.task[i].name, name) == 0)
            return turns.task[i].state;
    turns_fail("no task has this name");
}

/* A helper begins when something is due: see turns_idle. */
static inline turns_task *turns_add_helper(const char *name, void (*body)(void *argument), void *argument,
                                           turns_condition condition)
{
    turns_task *task = turns_add(name, body, argument);
    task->state = TURNS_IDLE;
    task->seen = turns.progress;
    task->polls = condition == NULL;
    task->condition = condition;
    return task;
}

/* Of a helper: nothing is due before the condition holds; NULL: before another task has done a step. false: nothing
   will be due any more, and the helper ends. */
static inline bool turns_idle(turns_condition condition, void *argument)
{
    turns_task *task = turns_self();
    task->condition = condition;
    task->condition_argument = argument;
    turns_stand(TURNS_IDLE, "idle");
    if (!condition)
        task->seen = turns.progress;
    return !turns.over;
}

/* The seed of the present schedule, for a race that makes its program from it; 0 in a search. */
static inline uint64_t turns_seed(void)
{
    return turns.seed;
}

/* A random number below `below`, of a generator that begins anew with each schedule. */
static inline unsigned turns_draw(unsigned below)
{
    return (unsigned)((turns_next_random(&turns.drawn) >> 20) % below);
}

/* ---------------------------------------------------------------------------------------------------- >>helpers -- */

/* The oldest command buffer of the queue of which a step is due. */
static inline void *turns_oldest_due(void *metal_queue, softmetal_due *due)
{
    softmetal_due one = SOFTMETAL_NOTHING_DUE;
    void *oldest = NULL, *buffer;
    for (unsigned k = 0; (buffer = softmetal_due_at(metal_queue, k, &one)) != NULL; k++) {
        if (one != SOFTMETAL_COMPLETE_DUE && one != SOFTMETAL_HANDLERS_DUE)
            continue;
        oldest = buffer;
        *due = one;
    }
    return oldest;
}

static inline bool turns_gpu_is_due(void *metal_queue)
{
    softmetal_due due;
    return turns_oldest_due(metal_queue, &due) != NULL;
}

static inline void turns_gpu_body(void *metal_queue)
{
    softmetal_due due = SOFTMETAL_NOTHING_DUE;
    void *buffer;
    do {
        while ((buffer = turns_oldest_due(metal_queue, &due)) != NULL) {
            if (due == SOFTMETAL_COMPLETE_DUE)
                softmetal_complete(buffer);
            else
                softmetal_finish(buffer);
            turns_point("a step of the GPU");
        }
    } while (turns_idle(turns_gpu_is_due, metal_queue));
}

/* Adds a task that steps the manual clock of one queue. The test keeps the queue alive until the schedule is over. */
static inline void turns_gpu(void *metal_queue)
{
    static const char *const names[TURNS_TASKS] = {"gpu 0",  "gpu 1",  "gpu 2",  "gpu 3", "gpu 4",  "gpu 5",
                                                   "gpu 6",  "gpu 7",  "gpu 8",  "gpu 9", "gpu 10", "gpu 11",
                                                   "gpu 12", "gpu 13", "gpu 14", "gpu 15"};
    int number = 0;
    for (int i = 0; i < turns.count; i++)
        number += turns.task[i].body == turns_gpu_body;
    turns_add_helper(names[number], turns_gpu_body, metal_queue, turns_gpu_is_due)->condition_argument = metal_queue;
}

static inline void turns_callbacks_body(void *device)
{
    do {
        size_t count = 0;
        int result = (int)TURNS_RUN_CALLBACKS((gpusync_device *)device, SIZE_MAX, &count);
        if (result == 0 && count > 0)
            turns.progress++; /* what a callback has done may concern other helpers */
    } while (turns_idle(NULL, NULL));
}

/* Adds a task that runs the callbacks of a MANUAL device: it looks after each step of other tasks. */
static inline void turns_callbacks(void *device)
{
    turns_add_helper("callbacks", turns_callbacks_body, device, NULL);
}

/* For a device that tells when callbacks are due: a search is smaller with turns_callbacks_when_told. */
static inline void turns_notify(void *user)
{
    turns.told++;
    turns_point("notify");
}

static inline bool turns_is_told(void *task)
{
    return ((turns_task *)task)->seen != turns.told;
}

static inline void turns_callbacks_when_told_body(void *device)
{
    turns_task *task = turns_self();
    do {
        size_t count;
        task->seen = turns.told;
        (void)TURNS_RUN_CALLBACKS((gpusync_device *)device, SIZE_MAX, &count);
        turns.progress++;
    } while (turns_idle(turns_is_told, task));
}

/* As turns_callbacks, but it looks only after turns_notify: a callback of which the device does not tell is not run. */
static inline void turns_callbacks_when_told(void *device)
{
    turns_task *task = turns_add_helper("callbacks", turns_callbacks_when_told_body, device, turns_is_told);
    task->condition_argument = task;
    task->seen = 0;
}

/* Timers that have fired, which a task has them do with softmetal_fire_timers, and else none does, are dispatched, too. */
static inline uint64_t turns_dispatched(void)
{
    return softmetal_dispatches() + softmetal_timers_armed() - softmetal_timers_pending();
}

static inline bool turns_is_dispatched(void *task)
{
    return ((turns_task *)task)->seen != turns_dispatched();
}

/* softmetal's worker runs what was dispatched so far, and what is dispatched meanwhile. */
static inline void turns_workers_body(void *unused)
{
    turns_task *task = turns_self();
    do {
        while (turns_is_dispatched(task)) {
            task->seen = turns_dispatched();
            softmetal_set_dispatch_threads(1);
            if (!softmetal_dispatched(TURNS_LONG_ENOUGH))
                turns_fail("a dispatched function does not end");
            softmetal_set_dispatch_threads(0);
            turns_point("dispatched functions ran");
        }
    } while (turns_idle(turns_is_dispatched, task));
}

/* Adds a task that runs what was given to libdispatch, one function at a time. */
static inline void turns_workers(void)
{
    turns_task *task = turns_add_helper("workers", turns_workers_body, NULL, turns_is_dispatched);
    task->condition_argument = task;
    task->seen = turns_dispatched();
}

/* ------------------------------------------------------------------------------------------------------ >>races -- */

static inline void turns_begin_schedule(void)
{
    turns.count = 0;
    turns.now = UINT64_C(1000000000);
    turns.points = 0;
    turns.progress = 1;
    turns.told = 0;
    turns.over = false;
    turns.yields = false;
    turns.length = 0;
    turns.spent = 0;
    turns.random = turns_generator(turns.seed);
    turns.drawn = turns_generator(~turns.seed);
    turns.lowest = UINT64_C(1) << 32;
    for (unsigned k = 0; k < turns.changes; k++)
        turns.change[k] = turns.reach ? 1 + turns_next_random(&turns.random) % turns.reach : UINT64_MAX;
    turns.schedules++;
}

static inline void turns_draw_priorities(void)
{
    for (int i = 0; i < turns.count; i++)
        turns.task[i].priority = (UINT64_C(1) << 32) + (turns_next_random(&turns.random) >> 32);
}

/* softmetal's workers rest while tasks take turns, but for what turns_workers has them run. */
static inline void turns_run_schedule(void)
{
    const turns_race *race = turns.race;
    turns_begin_schedule();
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    race->setup(race->user);
    softmetal_dispatched(TURNS_LONG_ENOUGH);
    softmetal_set_dispatch_threads(0);
    turns_draw_priorities();
    if (turns.count > 0)
        turns_go();
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    if (race->teardown)
        race->teardown(race->user);
    turns.total_points += turns.points;
    turns.count = 0;
}

static inline uint64_t turns_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* A turn that is handed to another core comes later, by the time that a sleeping core takes to wake up. */
static inline void turns_pin(void)
{
#ifdef __linux__
    static bool pinned;
    int core = sched_getcpu();
    cpu_set_t one;
    if (pinned || core < 0 || turns_environment("TURNS_UNPINNED", 0))
        return;
    pinned = true;
    CPU_ZERO(&one);
    CPU_SET((size_t)core, &one);
    sched_setaffinity(0, sizeof one, &one);
#endif
}

/* Without a seed: no switches, and no choices that are given. */
static inline void turns_begin_race(const turns_race *race)
{
    turns.race = race;
    turns.schedules = 0;
    turns.total_points = 0;
    turns.reported = false;
    turns.trace = turns_environment("TURNS_TRACE", 0) != 0;
    turns.by_seed = false;
    turns.seed = 0;
    turns.most = 0;
    turns.prefix = 0;
    turns.reach = race->reach;
    turns.changes = race->changes ? race->changes : 3;
    if (turns.changes > TURNS_CHANGES)
        turns.changes = TURNS_CHANGES;
    turns_pin();
    turns_watch_signals();
}

static inline double turns_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline uint64_t turns_end_race(double began)
{
    turns_unwatch_signals();
    if (turns_environment("TURNS_SUMMARY", 0))
        fprintf(stderr, "turns: %s: %llu schedules, %.1f points each, %.2f s\n", turns.race->name,
                (unsigned long long)turns.schedules, (double)turns.total_points / (double)turns.schedules,
                turns_seconds() - began);
    turns.race = NULL;
    return turns.schedules;
}

/* "i:c i:c ...": the other choices before the last of these are 0. */
static inline void turns_read_choices(const char *text)
{
    memset(turns.choice, 0, sizeof turns.choice);
    memset(turns.offered, 0, sizeof turns.offered);
    turns.prefix = 0;
    turns.most = UINT32_MAX;
    while (*text) {
        char *end;
        unsigned long i = strtoul(text, &end, 10);
        unsigned long choice = *end == ':' ? strtoul(end + 1, &end, 10) : TURNS_TASKS;
        if (i >= TURNS_CHOICES || choice >= TURNS_TASKS)
            turns_fail("TURNS_CHOICES is not \"i:c i:c ...\"");
        turns.choice[i] = (unsigned char)choice;
        turns.prefix = (unsigned)i + 1;
        text = end + strspn(end, " ");
    }
}

static inline void turns_read_seed(const char *text)
{
    char *end;
    turns.by_seed = true;
    turns.seed = strtoull(text, &end, 10);
    if (*end == ':')
        turns.reach = strtoull(end + 1, NULL, 10);
}

/* The first schedule of a race by seed shows how many points there are. */
static inline void turns_measure_reach(void)
{
    if (turns.reach)
        return;
    turns_run_schedule();
    turns.reach = turns.points + turns.points / 8 + 1;
}

/* Runs the one schedule that the environment names. false: it names none. */
static inline bool turns_run_given(void)
{
    const char *choices = getenv("TURNS_CHOICES");
    const char *seed = getenv("TURNS_SEED");
    if (!choices && !seed)
        return false;
    if (choices) {
        turns_read_choices(choices);
    } else {
        const char *reach = strchr(seed, ':');
        if (!reach)
            turns_measure_reach();
        turns_read_seed(seed);
    }
    turns_run_schedule();
    return true;
}

static inline bool turns_is_wanted(const turns_race *race)
{
    const char *name = getenv("TURNS_RACE");
    return !name || strcmp(name, race->name) == 0;
}

/* The next schedule of the search: the last choice that has another candidate takes it. false: there is none. */
static inline bool turns_next_choices(void)
{
    unsigned i = turns.length;
    while (i > 0 && turns.choice[i - 1] + 1 >= turns.open[i - 1])
        i--;
    if (i == 0)
        return false;
    turns.choice[i - 1]++;
    turns.prefix = i;
    return true;
}

/* Runs all schedules of the race that have at most so many switches which nothing forces. Returns how many ran. */
static inline uint64_t turns_run_all(const turns_race *race, unsigned switches)
{
    double began = turns_seconds();
    if (!turns_is_wanted(race))
        return 0;
    turns_begin_race(race);
    if (turns_run_given())
        return turns_end_race(began);
    turns.most = (unsigned)turns_environment("TURNS_SWITCHES", switches);
    do {
        turns_run_schedule();
        if (turns.schedules == race->limit)
            break;
    } while (turns_next_choices());
    return turns_end_race(began);
}

/* Runs a schedule for each of so many seeds, and one more where the race does not say how many points it has. */
static inline uint64_t turns_run_seeds(const turns_race *race, uint64_t seeds)
{
    double began = turns_seconds();
    uint64_t first = turns_environment("TURNS_FIRST_SEED", 1);
    if (!turns_is_wanted(race))
        return 0;
    turns_begin_race(race);
    if (turns_run_given())
        return turns_end_race(began);
    turns_measure_reach();
    turns.by_seed = true;
    seeds = turns_environment("TURNS_SEEDS", seeds);
    for (uint64_t k = 0; k < seeds; k++) {
        turns.seed = first + k;
        turns_run_schedule();
    }
    return turns_end_race(began);
}

#endif
