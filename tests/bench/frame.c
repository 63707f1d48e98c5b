/* frame.c - what a frame costs on a Metal that costs nothing: see frame.sh

   Compiled once for each way, with WAY as the name of the function that it has, and once as the program (no WAY). */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FRAMES 2000u     /* of a round of ENDED and SLEEPS */
#define COMMITS_US 12000 /* of a round of COMMITS */
#define THREADS_MOST 16u

typedef enum kind { ENDED, SLEEPS, COMMITS } kind;

typedef struct row {
    const char *name;
    kind kind;
    unsigned threads, queues, message_us; /* message_us: what the commit message takes */
} row;

typedef struct figures {
    double cost, held, holds; /* cycles a frame, or commits a second; of the device's lock, a frame */
    const char *wrong;        /* the first wrong result, or NULL */
} figures;

typedef figures way(const row *row, double cycles_a_us);

static inline uint64_t cycles(void)
{
    return __builtin_ia32_rdtsc();
}

#ifdef WAY
/* -- Metal and its runtime, as far as they are needed. Nothing here takes time but a commit, if it is to. ---------- */

#include <linux/futex.h>
#include <sys/syscall.h>

#define ROOM 64u  /* command buffers of a queue */
#define AHEAD 8u  /* how many run at a time where nothing ends them earlier */
#define KEEP __attribute__((noinline)) /* a message is a call, as in a program */

#define LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define STORE(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
#define ADD(p, n) __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST)

#ifndef HELD
#define HELD 0
#endif

static double a_us; /* cycles in a us */
static uint64_t message_cycles, held, holds; /* held, holds: of the device's lock, if HELD */

/* The counter and some arithmetic, as on a Mac: virtual machines may take ten times as long. */
int clock_gettime(clockid_t which, struct timespec *now)
{
    uint64_t ns = (uint64_t)((double)cycles() / a_us * 1e3);
    now->tv_sec = (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}

typedef struct block {
    void *isa;
    int flags, reserved;
    void (*invoke)(void *self, void *buffer);
    const struct descriptor {
        uintptr_t reserved, size;
        void (*copy)(void *to, const void *from), (*dispose)(const void *self);
    } *descriptor;
    void *captured[4];
} block;
enum { HAS_COPY = 1 << 25, IS_GLOBAL = 1 << 28 };

typedef struct object {
    uint32_t refs;
    bool is_queue;
} object;

typedef struct buffer {
    object object; /* without references it is free */
    uint32_t status;
    struct metal_queue *queue;
    block *handler, copy;
} buffer;

typedef struct metal_queue {
    object object;
    buffer buffers[ROOM];
    buffer *committed[ROOM]; /* number n at n % ROOM */
    uint32_t made, sent, ended; /* counts, modulo 2^32 */
    bool ends;                  /* a thread calls handlers: one at a time, in order */
} metal_queue;

static object the_device = {1, false};
void *_NSConcreteStackBlock[32], *_NSConcreteGlobalBlock[32];

KEEP void *objc_retain(object *o)
{
    if (o) ADD(&o->refs, 1);
    return o;
}

KEEP void objc_release(object *o)
{
    if (o && ADD(&o->refs, -1u) == 1 && o->is_queue) free(o);
}

/* Has the oldest work end, at most `most`, while more than `ahead` run. */
static void end_some(metal_queue *q, uint32_t ahead, uint32_t most)
{
    for (; most && (int32_t)(LOAD(&q->sent) - LOAD(&q->ended) - ahead) > 0; most--) {
        if (__atomic_exchange_n(&q->ends, true, __ATOMIC_ACQUIRE)) return;
        buffer **place = &q->committed[q->ended % ROOM], *b = LOAD(place);
        if (b) {
            *place = NULL;
            STORE(&q->ended, q->ended + 1);
            STORE(&b->status, 4);
            b->handler->invoke(b->handler, b);
            if (b->handler->flags & HAS_COPY) b->handler->descriptor->dispose(b->handler);
            objc_release(&b->object);
        }
        STORE(&q->ends, false);
        if (!b) return;
    }
}

/* With one reference, which its end drops. Metal, too, blocks while there is no room. */
static buffer *make_buffer(metal_queue *q)
{
    buffer *b = &q->buffers[ADD(&q->made, 1) % ROOM];
    uint32_t none = 0;
    end_some(q, AHEAD, 2);
    while (!__atomic_compare_exchange_n(&b->object.refs, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        sched_yield();
        end_some(q, 0, 1);
        none = 0;
    }
    b->queue = q;
    b->status = 0;
    b->handler = NULL;
    return b;
}

static void add_handler(buffer *b, block *given)
{
    if (b->handler || given->descriptor->size > sizeof *given) abort();
    b->handler = given;
    if (given->flags & IS_GLOBAL) return;
    b->handler = memcpy(&b->copy, given, sizeof b->copy);
    if (given->flags & HAS_COPY) given->descriptor->copy(&b->copy, given);
}

static void commit(buffer *b)
{
    metal_queue *q = b->queue;
    for (uint64_t from = cycles(); message_cycles && cycles() - from < message_cycles;) __builtin_ia32_pause();
    STORE(&b->status, 2);
    STORE(&q->committed[ADD(&q->sent, 1) % ROOM], b);
}

/* Selectors are small numbers. To the others nothing answers. */
enum { NEW_QUEUE = 1, MAKE, ADD_HANDLER, COMMIT, STATUS, START, END, QUEUE, SELECTORS };

KEEP void *sel_registerName(const char *name)
{
    static const char *const names[SELECTORS] = {
        "", "newCommandQueueWithMaxCommandBufferCount:", "commandBuffer", "addCompletedHandler:", "commit", "status",
        "GPUStartTime", "GPUEndTime", "commandQueue"};
    for (uintptr_t k = 1; k < SELECTORS; k++)
        if (strcmp(name, names[k]) == 0) return (void *)k;
    return NULL;
}

/* By the ABI of x86-64 the word is in rax and the number in xmm0: so this is a function of either result. */
typedef struct answer {
    uintptr_t word;
    double number;
} answer;

KEEP answer objc_msgSend(void *self, uintptr_t selector, void *argument)
{
    metal_queue *made;
    switch (self ? selector : 0) {
    case MAKE: return (answer){(uintptr_t)make_buffer(self), 0};
    case ADD_HANDLER: add_handler(self, argument); break;
    case COMMIT: commit(self); break;
    case STATUS: return (answer){LOAD(&((buffer *)self)->status), 0};
    case START: return (answer){0, 1e-6};
    case END: return (answer){0, (double)cycles() / a_us / 1e6};
    case QUEUE: return (answer){(uintptr_t)((buffer *)self)->queue, 0};
    case NEW_QUEUE:
        made = calloc(1, sizeof *made);
        made->object = (object){1, true};
        return (answer){(uintptr_t)made, 0};
    }
    return (answer){0, 0};
}

KEEP void *objc_autoreleasePoolPush(void)
{
    return &the_device;
}

KEEP void objc_autoreleasePoolPop(void *pool)
{
}

/* -- the ways: each has a lane for a Metal queue, sends a frame, and waits for it ---------------------------------- */

static metal_queue *sleeps_on; /* its work ends when a wait for it sleeps */
static uint64_t sleeps;

static void sleep_once(void)
{
    sleeps++;
    end_some(sleeps_on, 0, ROOM);
}

#ifdef BY_HAND
typedef struct lane {
    metal_queue *metal;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t sent, completed;
} lane;

static void count_one(void *self, void *buffer)
{
    lane *l = ((block *)self)->captured[0];
    pthread_mutex_lock(&l->lock);
    l->completed++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static lane *open_lane(void)
{
    lane *l = calloc(1, sizeof *l);
    l->metal = (void *)objc_msgSend(&the_device, NEW_QUEUE, NULL).word;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    return l;
}

static uint64_t send_frame(lane *l)
{
    static const struct descriptor descriptor = {0, sizeof(block), NULL, NULL};
    block counts = {_NSConcreteStackBlock, 0, 0, count_one, &descriptor, {l}};
    void *b = (void *)objc_msgSend(l->metal, MAKE, NULL).word;
    objc_msgSend(b, ADD_HANDLER, &counts);
    objc_msgSend(b, COMMIT, NULL);
    return ADD(&l->sent, 1) + 1;
}

static void wait_for(lane *l, uint64_t number)
{
    pthread_mutex_lock(&l->lock);
    while (l->completed < number) { /* pthread_cond_wait, if it did not sleep */
        pthread_mutex_unlock(&l->lock);
        sleep_once();
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
}

/* Returns how many have ended. */
static uint64_t close_lane(lane *l, uint64_t last)
{
    uint64_t count = l->completed;
    objc_release(&l->metal->object);
    free(l);
    return count;
}
#else
/* Apple's locks, and what else makes a device. Only 0.4 dispatches here: a timer for looks at what was lost. */

static uint32_t *watched; /* the device's lock */
static uint64_t held_from;

void os_unfair_lock_lock(uint32_t *lock)
{
    uint32_t seen = 0;
    if (!__atomic_compare_exchange_n(lock, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE)) syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, 2, NULL);
    if (HELD && lock == watched) held_from = cycles();
}

bool os_unfair_lock_trylock(uint32_t *lock)
{
    uint32_t seen = 0;
    return __atomic_compare_exchange_n(lock, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

void os_unfair_lock_unlock(uint32_t *lock)
{
    uint64_t took = HELD && lock == watched ? cycles() - held_from : 0;
    if (took && took < 10000) { /* else the thread lost its processor meanwhile */
        held += took;
        holds++;
    }
    if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2) syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1);
}

KEEP void *objc_getClass(const char *name) { return NULL; }
KEEP void *object_getClass(void *o) { return o; }
KEEP signed char class_respondsToSelector(void *class, void *selector) { return selector != NULL; }
void *MTLCreateSystemDefaultDevice(void) { return objc_retain(&the_device); }
void *dispatch_queue_create(const char *label, void *attributes) { return &the_device; }
void *dispatch_queue_attr_make_with_qos_class(void *attributes, unsigned qos, int priority) { return NULL; }
void dispatch_async_f(void *queue, void *context, void (*fn)(void *)) { abort(); }
uint64_t dispatch_time(uint64_t when, int64_t delta) { return 0; }
void dispatch_retain(void *queue) {}
void dispatch_release(void *queue) {}
void dispatch_after_f(uint64_t when, void *queue, void *context, void (*fn)(void *)) {}

#define GPUSYNC_IMPLEMENTATION
#include <gpusync.h>

#define ok(call) do { if ((call) != GPUSYNC_OK) puts("frame: failed: " #call), exit(1); } while (0)

#if GPUSYNC_VERSION < 500 /* 0.4 */
#define MAKE_BUFFER(queue, buffer) gpusync_command_buffer(queue, NULL, buffer)
#define WAIT(queue, ticket) gpusync_wait(queue, ticket, GPUSYNC_FOREVER)
#define STATS(queue, stats) gpusync_get_stats(queue, stats)
#else
#define MAKE_BUFFER(queue, buffer) gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, buffer)
#define WAIT(queue, ticket) gpusync_wait(queue, ticket, GPUSYNC_FOREVER, NULL)
#define STATS(queue, stats) gpusync_device_get_stats(the_gpusync_device, queue, stats)
#endif

typedef struct lane {
    metal_queue *metal;
    gpusync_queue *queue;
} lane;

static gpusync_device *the_gpusync_device;

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    sleep_once();
}

static void unpark(void *user, gpusync_waiter *waiter)
{
}

static lane *open_lane(void)
{
    static const gpusync_spin none;
    static const gpusync_hooks hooks = {.park = park, .unpark = unpark};
    const gpusync_device_desc desc = {.hooks = &hooks, .spin = &none};
    const gpusync_queue_desc roomy = {.max_command_buffer_count = 2 * ROOM}; /* Metal's own room is less */
    lane *l = calloc(1, sizeof *l);
    if (!the_gpusync_device) ok(gpusync_device_create(&desc, &the_gpusync_device));
#if HELD
    watched = &the_gpusync_device->lock.word;
#endif
    ok(gpusync_queue_create(the_gpusync_device, &roomy, &l->queue));
    l->metal = gpusync_queue_metal(l->queue);
    return l;
}

static uint64_t send_frame(lane *l)
{
    gpusync_ticket ticket;
    void *b;
    ok(MAKE_BUFFER(l->queue, &b));
    ok(gpusync_commit(l->queue, b, &ticket));
    return ticket;
}

static void wait_for(lane *l, uint64_t ticket)
{
    ok(WAIT(l->queue, ticket));
}

static uint64_t close_lane(lane *l, uint64_t last)
{
    gpusync_stats stats;
    bool done = gpusync_is_done(l->queue, last) && gpusync_in_flight(l->queue) == 0;
    ok(STATS(l->queue, &stats));
    ok(gpusync_queue_destroy(l->queue));
    free(l);
    return done && stats.failures == 0 && stats.commits == last ? stats.completions : 0;
}
#endif

/* -- a row --------------------------------------------------------------------------------------------------------- */

typedef struct runner {
    lane *lane;
    pthread_t thread;
    uint64_t count, last, until;
} runner;

static void *commit_on(void *of)
{
    runner *r = of;
    do
        for (unsigned i = 0; i < 8; i++, r->count++) r->last = send_frame(r->lane);
    while ((int64_t)(cycles() - r->until) < 0);
    return NULL;
}

static void wait_on(runner *r, kind kind, unsigned frames)
{
    metal_queue *q = r->lane->metal;
    sleeps_on = q;
    for (unsigned i = 0; i < frames; i++, r->count++) {
        r->last = send_frame(r->lane);
        if (kind == ENDED) end_some(q, 0, ROOM);
        wait_for(r->lane, r->last);
    }
}

figures WAY(const row *row, double cycles_a_us)
{
    runner runners[THREADS_MOST] = {{0}};
    lane *lanes[THREADS_MOST];
    figures f = {0};
    uint64_t from, last[THREADS_MOST] = {0}, count[THREADS_MOST] = {0}, all = 0;
    a_us = cycles_a_us;
    message_cycles = (uint64_t)(row->message_us * a_us);
    for (unsigned k = 0; k < row->queues; k++) lanes[k] = open_lane();
    for (unsigned k = 0; k < row->threads; k++) runners[k].lane = lanes[k % row->queues];
    if (row->kind != COMMITS) {
        wait_on(&runners[0], row->kind, 2 * ROOM);
        sleeps = 0;
        from = cycles();
        wait_on(&runners[0], row->kind, FRAMES);
        f.cost = (double)(cycles() - from) / FRAMES;
        if (sleeps != (row->kind == SLEEPS ? FRAMES : 0)) f.wrong = "a wait did not sleep, or slept";
    } else {
        held = holds = 0;
        from = cycles();
        for (unsigned k = 0; k < row->threads; k++) runners[k].until = from + (uint64_t)(COMMITS_US * a_us);
        for (unsigned k = 1; k < row->threads; k++)
            if (pthread_create(&runners[k].thread, NULL, commit_on, &runners[k])) abort();
        commit_on(&runners[0]);
        for (unsigned k = 1; k < row->threads; k++) pthread_join(runners[k].thread, NULL);
        f.cost = (double)(cycles() - from) / a_us;
    }
    for (unsigned k = 0; k < row->threads; k++) {
        unsigned at = k % row->queues;
        all += runners[k].count;
        count[at] += runners[k].count;
        if (last[at] < runners[k].last) last[at] = runners[k].last;
    }
    if (row->kind == COMMITS) f.cost = (double)all / f.cost * 1e3;
    f.held = (double)held / (double)all;
    f.holds = (double)holds / (double)all;
    for (unsigned k = 0; k < row->queues; k++) {
        while (lanes[k]->metal->ended != lanes[k]->metal->sent) end_some(lanes[k]->metal, 0, ROOM);
        if (last[k] != count[k]) f.wrong = "the last number is not the count of the frames";
        if (close_lane(lanes[k], last[k]) != count[k]) f.wrong = "not all frames have ended well";
    }
    return f;
}

#else
/* -- the program: the rows, each way in turn, and what they took --------------------------------------------------- */

enum { HAND, OLD, NEW, LOCK, WAYS };
way run_hand, run_new, run_lock;
extern way run_old __attribute__((weak)); /* there if the script has found 0.4 */
static way *ways[WAYS] = {run_hand, NULL, run_new, run_lock};

#define ROUNDS_MOST 900u
static figures samples[WAYS][ROUNDS_MOST];

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints the median of some figures, with quartiles or, of a ratio, the range. */
static void print(double *of, unsigned count, const char *format, unsigned low, unsigned high)
{
    char text[64];
    qsort(of, count, sizeof *of, compare);
    snprintf(text, sizeof text, format, of[count / 2], of[low], of[high]);
    printf(" | %-22s", text);
}

static bool run(const row *row, unsigned rounds, double cycles_a_us, double own)
{
    double sorted[ROUNDS_MOST];
    const char *wrong = NULL;
    unsigned count = row->kind == COMMITS ? WAYS : LOCK;
    for (unsigned round = 0; round < rounds; round++)
        for (unsigned k = 0; k < count; k++) {
            unsigned at = (k + round) % count;
            if (!ways[at]) continue;
            samples[at][round] = ways[at](row, cycles_a_us);
            if (samples[at][round].wrong) wrong = samples[at][round].wrong;
        }
    printf("%-28s", row->name);
    for (unsigned k = 0; k <= NEW; k++) {
        for (unsigned round = 0; round < rounds; round++) sorted[round] = samples[k][round].cost;
        if (ways[k]) print(sorted, rounds, "%.0f (%.0f-%.0f)", rounds / 4, rounds * 3 / 4);
        else printf(" | %-22s", "-");
    }
    for (unsigned round = 0; round < rounds; round++)
        sorted[round] = ways[OLD] ? samples[NEW][round].cost / samples[OLD][round].cost : 0;
    print(sorted, rounds, "%.2f (%.2f-%.2f)", 0, rounds - 1);
    for (unsigned round = 0; round < rounds && row->kind == COMMITS; round++)
        sorted[round] = samples[LOCK][round].held - own * samples[LOCK][round].holds;
    if (row->kind == COMMITS) print(sorted, rounds, "%.0f (%.0f-%.0f)", rounds / 4, rounds * 3 / 4);
    printf("  %s%s\n", wrong ? "FAILED: " : "ok", wrong ? wrong : "");
    fflush(stdout);
    return !wrong;
}

static void print_head(const char *what, const char *last)
{
    printf("\n%-28s | %-22s | %-22s | %-22s | %-22s%s\n", what, "by hand", "0.4", "0.5", "0.5 / 0.4 (range)", last);
}

int main(int argc, char **argv)
{
    static const row frames[] = {{"ended when waited for", ENDED, 1, 1, 0}, {"sleeps", SLEEPS, 1, 1, 0}};
    static const unsigned messages[] = {0, 1, 5, 20};
    const unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 31;
    const unsigned most = sysconf(_SC_NPROCESSORS_ONLN) >= (long)THREADS_MOST ? THREADS_MOST : 8;
    unsigned passed = 0, all = 2;
    struct timespec a, b, pause = {0, 50000000};
    double cycles_a_us, own = 0;
    uint64_t from = cycles();
    if (rounds < 1 || rounds > ROUNDS_MOST / 3) return puts("frame: ROUNDS is from 1 to 300"), 1;
    ways[OLD] = run_old;
    clock_gettime(CLOCK_MONOTONIC, &a);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_MONOTONIC, &b);
    cycles_a_us = (double)(cycles() - from);
    cycles_a_us /= (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3;
    for (unsigned k = 0; k < 1000; k++) {
        from = cycles();
        own += (double)(cycles() - from) / 1000;
    }
    printf("%u rounds, %.0f cycles in a us\n", rounds, cycles_a_us);
    print_head("cycles a frame", "");
    for (unsigned k = 0; k < 2; k++) passed += run(&frames[k], 3 * rounds, cycles_a_us, own);
    print_head("thousand commits a second", " | 0.5: cycles in the device's lock");
    for (unsigned threads = 1; threads <= most; threads *= 2)
        for (unsigned queues = threads; queues; queues = queues > 1 ? 1 : 0)
            for (unsigned k = 0; k < sizeof messages / sizeof *messages; k++, all++) {
                char name[64];
                row r = {name, COMMITS, threads, queues, messages[k]};
                snprintf(name, sizeof name, "%u thread%s, %u queue%s, %u us", threads, threads > 1 ? "s" : "", queues,
                         queues > 1 ? "s" : "", messages[k]);
                passed += run(&r, (rounds + 2) / 3, cycles_a_us, own);
            }
    printf("%u passed, %u failed\n", passed, all - passed);
    return passed != all;
}
#endif
