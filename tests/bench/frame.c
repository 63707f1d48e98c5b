/* frame.c - what a frame costs on a Metal that costs nothing: see frame.sh

   Compiled once for each way, with WAY as the name of the function that it has, and once as the program, without. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FRAMES 2000u    /* of a round of ENDED and SLEEPS: short, so that most rounds see nothing of other programs */
#define COMMITS_US 2000 /* of a round of COMMITS */
#define MOST 16u        /* threads, and queues */

typedef struct row {
    enum { ENDED, SLEEPS, COMMITS } kind;
    unsigned threads, queues, message_us; /* message_us: what a commit message takes */
} row;

typedef struct figures {
    double cost, held; /* cycles a frame, or thousand commits a second; cycles in the device's lock, a frame */
    const char *wrong; /* the last wrong result, or NULL */
} figures;

typedef figures way(const row *row, double cycles_a_us);

static inline uint64_t cycles(void)
{
    return __builtin_ia32_rdtsc();
}

#ifdef WAY
/* -- Metal, as far as it is needed. Nothing takes time but a commit message, if it is to --------------------------- */

#include <linux/futex.h>
#include <sys/syscall.h>

#define ROOM 64u /* command buffers of a queue */
#define AHEAD 8u /* so many run before the making of a buffer ends one */
#define APART _Alignas(128) /* threads share none of its cache lines */
#define LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define STORE(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
#define ADD(p, n) __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST)

typedef struct block {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct block *self, void *buffer);
    const struct descriptor {
        uintptr_t reserved, size;
        void (*copy)(void *to, const void *from), (*dispose)(const void *self);
    } *descriptor;
    void *captured[4];
} block;
enum { HAS_COPY = 1 << 25, IS_GLOBAL = 1 << 28 };

typedef struct buffer {
    uint32_t refs; /* first in each object. A command buffer without references is free */
    uint32_t status;
    struct metal_queue *queue;
    block *handler, copy;
} buffer;

typedef struct metal_queue {
    APART uint32_t refs, made, sent, ended; /* counts of command buffers, modulo 2^32 */
    bool ends;                              /* a thread calls handlers: one at a time, in order */
    buffer buffers[ROOM];
    buffer *committed[ROOM]; /* number n at n % ROOM */
} metal_queue;

static metal_queue metal_queues[MOST], *sleeps_on; /* the work of sleeps_on ends when a wait sleeps */
static uint32_t queue_count, started, the_device;
static uint64_t sleeps, message_cycles, held; /* held: in the device's lock, if HELD */
static double a_us;                           /* cycles in a us */
void *_NSConcreteStackBlock[32], *_NSConcreteGlobalBlock[32];

__attribute__((noinline)) void objc_release(uint32_t *refs)
{
    if (refs) ADD(refs, -1u);
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
            objc_release(&b->refs);
        }
        STORE(&q->ends, false);
        if (!b) return; /* counted, but not there yet */
    }
}

/* With one reference, which its end drops. Metal, too, blocks while there is no room. */
static buffer *make_buffer(metal_queue *q)
{
    buffer *b = &q->buffers[ADD(&q->made, 1) % ROOM];
    end_some(q, AHEAD, 2);
    for (uint32_t none = 0; !__atomic_compare_exchange_n(&b->refs, &none, 1, false, __ATOMIC_SEQ_CST, 0); none = 0) {
        sched_yield();
        end_some(q, 0, 1);
    }
    b->queue = q;
    b->status = 0;
    return b;
}

static void add_handler(buffer *b, block *given)
{
    b->handler = given;
    if (given->flags & IS_GLOBAL) return;
    if (given->descriptor->size > sizeof b->copy) abort();
    b->handler = memcpy(&b->copy, given, sizeof b->copy);
    if (given->flags & HAS_COPY) given->descriptor->copy(&b->copy, given);
}

static void commit(buffer *b)
{
    for (uint64_t from = cycles(); message_cycles && cycles() - from < message_cycles;) __builtin_ia32_pause();
    STORE(&b->status, 2);
    STORE(&b->queue->committed[ADD(&b->queue->sent, 1) % ROOM], b);
}

/* By the ABI of x86-64 the word is in rax, the number in xmm0: so one function is of either result. */
typedef struct answer {
    uintptr_t word;
    double number;
} answer;

/* The other selectors are NULL. */
enum { NEW_QUEUE = 1, MAKE, ADD_HANDLER, COMMIT, STATUS, START, END, SELECTORS };

__attribute__((noinline)) answer objc_msgSend(void *self, uintptr_t selector, void *argument)
{
    switch (self ? selector : 0) {
    case NEW_QUEUE: return (answer){(uintptr_t)&metal_queues[queue_count++], 0};
    case MAKE: return (answer){(uintptr_t)make_buffer(self), 0};
    case ADD_HANDLER: add_handler(self, argument); break;
    case COMMIT: commit(self); break;
    case STATUS: return (answer){LOAD(&((buffer *)self)->status), 0};
    case START: return (answer){0, 1e-6};
    case END: return (answer){0, (double)cycles() / a_us / 1e6};
    }
    return (answer){0, 0};
}

static void sleep_once(void)
{
    sleeps++;
    end_some(sleeps_on, 0, ROOM);
}

/* -- the ways ------------------------------------------------------------------------------------------------------ */

#ifdef BY_HAND
typedef struct lane {
    APART metal_queue *metal;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t sent, completed;
} lane;

static void count_one(block *self, void *buffer)
{
    lane *l = self->captured[0];
    pthread_mutex_lock(&l->lock);
    l->completed++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static void open_lane(lane *l)
{
    *l = (lane){(void *)objc_msgSend(&the_device, NEW_QUEUE, NULL).word, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_cond_init(&l->changed, NULL);
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
    while (l->completed < number) { /* here stands pthread_cond_wait */
        pthread_mutex_unlock(&l->lock);
        sleep_once();
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
}

/* Returns how many have ended. */
static uint64_t close_lane(lane *l)
{
    return l->completed;
}

#else
#ifndef HELD
#define HELD 0
#endif
static uint64_t held_from;

/* Behind all instructions before it. */
static uint64_t cycles_now(void)
{
    __builtin_ia32_lfence();
    return cycles();
}

static uint32_t *watched; /* the device's lock */

bool os_unfair_lock_trylock(uint32_t *lock)
{
    uint32_t seen = 0;
    return __atomic_compare_exchange_n(lock, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* As Apple's it does not spin. 2: a thread may be asleep. */
void os_unfair_lock_lock(uint32_t *lock)
{
    if (!os_unfair_lock_trylock(lock))
        while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE)) syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, 2, NULL);
    if (HELD && lock == watched) held_from = cycles_now();
}

void os_unfair_lock_unlock(uint32_t *lock)
{
    if (HELD && lock == watched) {
        uint64_t now = cycles_now(), took = now - held_from, own = cycles_now() - now; /* own: what reading it takes */
        if (took > own && took < 10000) held += took - own; /* else the thread lost its processor meanwhile */
    }
    if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2) syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1);
}

/* The counter and some arithmetic, as on a Mac: in a virtual machine the system's may take ten times as long. */
int clock_gettime(clockid_t which, struct timespec *now)
{
    uint64_t ns = (uint64_t)((double)cycles() / a_us * 1e3);
    now->tv_sec = (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}

void *sel_registerName(const char *name)
{
    static const char *const names[SELECTORS] = {"", "newCommandQueueWithMaxCommandBufferCount:", "commandBuffer",
        "addCompletedHandler:", "commit", "status", "GPUStartTime", "GPUEndTime"};
    uintptr_t k = SELECTORS - 1;
    while (k && strcmp(name, names[k])) k--;
    return (void *)k;
}

/* Dispatched is nothing here but a timer of 0.4's, for looks at what was lost. */
void *objc_retain(uint32_t *refs) { return refs ? ADD(refs, 1), refs : NULL; }
void *objc_autoreleasePoolPush(void) { return &the_device; }
void objc_autoreleasePoolPop(void *pool) {}
void *objc_getClass(const char *name) { return NULL; }
void *object_getClass(void *object) { return object; }
signed char class_respondsToSelector(void *class, void *selector) { return selector != NULL; }
void *MTLCreateSystemDefaultDevice(void) { return &the_device; }
void *dispatch_queue_create(const char *label, void *attributes) { return &the_device; }
void *dispatch_queue_attr_make_with_qos_class(void *attributes, unsigned qos, int priority) { return NULL; }
void dispatch_async_f(void *queue, void *context, void (*fn)(void *)) { abort(); }
void dispatch_after_f(uint64_t when, void *queue, void *context, void (*fn)(void *)) {}
uint64_t dispatch_time(uint64_t when, int64_t delta) { return 0; }
void dispatch_retain(void *queue) {}
void dispatch_release(void *queue) {}

#define GPUSYNC_IMPLEMENTATION
#include <gpusync.h>
#if GPUSYNC_VERSION < 500
#define gpusync_command_buffer_create(queue, desc, timeout, buffer) gpusync_command_buffer(queue, desc, buffer)
#define gpusync_wait(queue, ticket, timeout, options) gpusync_wait(queue, ticket, timeout)
#define gpusync_device_get_stats(device, queue, stats) gpusync_get_stats(queue, stats)
#endif
#define ok(call) ((call) == GPUSYNC_OK ? (void)0 : (puts("frame: failed: " #call), exit(1)))

typedef struct lane {
    APART metal_queue *metal;
    gpusync_queue *queue;
} lane;

static gpusync_device *device;

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    sleep_once();
}

static void unpark(void *user, gpusync_waiter *waiter) {}

static void open_lane(lane *l)
{
    static const gpusync_spin none;
    static const gpusync_hooks hooks = {.park = park, .unpark = unpark};
    const gpusync_device_desc desc = {.hooks = &hooks, .spin = &none};
    const gpusync_queue_desc roomy = {.max_command_buffer_count = 2 * ROOM}; /* Metal's own room comes first */
    if (!device) ok(gpusync_device_create(&desc, &device));
#if HELD
    watched = &device->lock.word;
#endif
    ok(gpusync_queue_create(device, &roomy, &l->queue));
    l->metal = gpusync_queue_metal(l->queue);
}

static uint64_t send_frame(lane *l)
{
    gpusync_ticket ticket;
    void *b;
    ok(gpusync_command_buffer_create(l->queue, NULL, GPUSYNC_FOREVER, &b));
    ok(gpusync_commit(l->queue, b, &ticket));
    return ticket;
}

static void wait_for(lane *l, uint64_t ticket)
{
    ok(gpusync_wait(l->queue, ticket, GPUSYNC_FOREVER, NULL));
}

static uint64_t close_lane(lane *l)
{
    gpusync_stats stats;
    ok(gpusync_device_get_stats(device, l->queue, &stats));
    bool done = gpusync_is_done(l->queue, stats.commits) && gpusync_in_flight(l->queue) == 0 && stats.failures == 0;
    ok(gpusync_queue_destroy(l->queue));
    return done ? stats.completions : 0;
}
#endif

typedef struct runner {
    APART const row *row;
    lane *lane;
    uint64_t count, last, from, end;
    unsigned processor;
    pthread_t thread;
} runner;

static void *run_frames(void *of)
{
    runner *r = of;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(r->processor, &own);
    if (r->row->kind == COMMITS) sched_setaffinity(0, sizeof own, &own); /* short threads do not spread by themselves */
    ADD(&started, 1);
    while (LOAD(&started) < r->row->threads) sched_yield();
    r->from = cycles();
    do
        for (unsigned i = 0; i < 8; i++) {
            r->last = send_frame(r->lane);
            if (r->row->kind == ENDED) end_some(r->lane->metal, 0, ROOM);
            if (r->row->kind != COMMITS) wait_for(r->lane, r->last);
            r->count++;
        }
    while (r->row->kind == COMMITS ? (double)(cycles() - r->from) < COMMITS_US * a_us : r->count < FRAMES);
    r->end = cycles();
    return NULL;
}

figures WAY(const row *row, double cycles_a_us)
{
    lane lanes[MOST];
    runner runners[MOST] = {{0}};
    figures f = {0, 0, NULL};
    uint64_t all = 0, from = UINT64_MAX, end = 0;
    a_us = cycles_a_us;
    message_cycles = (uint64_t)(row->message_us * a_us);
    memset(metal_queues, 0, sizeof metal_queues);
    queue_count = 0;
    for (unsigned k = 0; k < row->queues; k++) open_lane(&lanes[k]);
    sleeps_on = lanes[0].metal;
    for (unsigned k = 0; k < row->threads; k++)
        runners[k] = (runner){row, &lanes[k % row->queues], .processor = k % (unsigned)sysconf(_SC_NPROCESSORS_ONLN)};
    if (row->kind != COMMITS) run_frames(&(runner){row, &lanes[0], .count = FRAMES - ROOM}); /* makes memory */
    sleeps = held = started = 0;
    if (row->kind != COMMITS) run_frames(&runners[0]);
    for (unsigned k = 0; k < row->threads && row->kind == COMMITS; k++)
        if (pthread_create(&runners[k].thread, NULL, run_frames, &runners[k])) abort();
    for (unsigned k = 0; k < row->threads && row->kind == COMMITS; k++) pthread_join(runners[k].thread, NULL);
    for (unsigned k = 0; k < row->threads; k++) {
        all += runners[k].count;
        if (from > runners[k].from) from = runners[k].from;
        if (end < runners[k].end) end = runners[k].end;
    }
    f.cost = (double)(end - from) / (double)all;
    if (row->kind == COMMITS) f.cost = a_us * 1e3 / f.cost;
    f.held = (double)held / (double)all;
    if (sleeps != (row->kind == SLEEPS ? all : 0)) f.wrong = "a wait did not sleep, or another did";
    for (unsigned k = 0; k < row->queues; k++) {
        uint64_t last = 0, count = row->kind == COMMITS ? 0 : ROOM;
        for (unsigned i = k; i < row->threads; i += row->queues) {
            count += runners[i].count;
            if (last < runners[i].last) last = runners[i].last;
        }
        end_some(lanes[k].metal, 0, ROOM);
        if (last != count) f.wrong = "the last number is not that of the last frame";
        if (close_lane(&lanes[k]) != count) f.wrong = "not every frame has ended well";
    }
    return f;
}

#else
/* -- the program: each row, by each way in turn -------------------------------------------------------------------- */

enum { HAND, OLD, NEW, LOCK, WAYS };
way run_hand, run_new, run_lock;
extern way run_old __attribute__((weak)); /* there if the script has found 0.4 */
static way *ways[WAYS] = {run_hand, NULL, run_new, run_lock};
static double cycles_a_us;

#define ROUNDS_MOST 1000u
static double costs[WAYS][ROUNDS_MOST], ratios[ROUNDS_MOST], held[ROUNDS_MOST];

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints a median with quartiles. */
static void print(double *of, unsigned count, int digits)
{
    char text[64];
    qsort(of, count, sizeof *of, compare);
    double low = of[count / 4], median = of[count / 2], high = of[count * 3 / 4];
    snprintf(text, sizeof text, "%.*f (%.*f-%.*f)", digits, median, digits, low, digits, high);
    printf(" | %-20s", median > 0 ? text : "-");
}

static bool run(const char *name, row row, unsigned rounds)
{
    const char *wrong = NULL;
    unsigned count = row.kind == COMMITS ? WAYS : LOCK;
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned k = 0; k < count; k++) {
            unsigned at = (k + round) % count;
            figures f = ways[at] ? ways[at](&row, cycles_a_us) : (figures){0, 0, NULL};
            if (f.wrong) wrong = f.wrong;
            costs[at][round] = f.cost;
            if (at == LOCK) held[round] = f.held;
        }
        ratios[round] = ways[OLD] ? costs[NEW][round] / costs[OLD][round] : 0;
    }
    printf("%-26s", name);
    for (unsigned k = 0; k <= NEW; k++) print(costs[k], rounds, 0);
    print(ratios, rounds, 2);
    printf(" | %4.2f-%-7.2f", ratios[0], ratios[rounds - 1]);
    print(held, rounds, 0);
    printf(" %s%s\n", wrong ? "FAILED: " : "ok", wrong ? wrong : "");
    fflush(stdout);
    return !wrong;
}

static void print_head(const char *what, const char *last)
{
    printf("\n%-26s | %-20s | %-20s | %-20s | %-20s | %-12s | %s\n", what, "by hand", "0.4", "0.5",
           "0.5 / 0.4, by round", "range", last);
}

int main(int argc, char **argv)
{
    const unsigned messages[] = {0, 1, 5, 20}, most = sysconf(_SC_NPROCESSORS_ONLN) >= (long)MOST ? MOST : 8;
    const unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 31;
    unsigned passed = 0, all = 2;
    struct timespec a, b, pause = {0, 50000000};
    uint64_t from = cycles();
    if (rounds < 1 || rounds > ROUNDS_MOST / 3) return puts("frame: ROUNDS is from 1 to 333"), 1;
    clock_gettime(CLOCK_MONOTONIC, &a);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_MONOTONIC, &b);
    cycles_a_us = (double)(cycles() - from);
    cycles_a_us /= (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3;
    ways[OLD] = run_old;
    printf("%.0f cycles in a us, %u rounds, of the first two rows %u\n", cycles_a_us, rounds, 3 * rounds);
    print_head("cycles a frame", "");
    passed += run("ended when waited for", (row){ENDED, 1, 1, 0}, 3 * rounds);
    passed += run("sleeps", (row){SLEEPS, 1, 1, 0}, 3 * rounds);
    print_head("thousand commits a second", "0.5: cycles in the device's lock, a commit");
    for (unsigned threads = 1; threads <= most; threads *= 2)
        for (unsigned queues = threads; queues; queues = queues > 1)
            for (unsigned k = 0; k < sizeof messages / sizeof *messages; k++, all++) {
                char name[64];
                snprintf(name, sizeof name, "threads %u, queues %u, %u us", threads, queues, messages[k]);
                passed += run(name, (row){COMMITS, threads, queues, messages[k]}, rounds);
            }
    printf("%u passed, %u failed\n", passed, all - passed);
    return passed != all;
}
#endif
