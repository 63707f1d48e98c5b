/* timelines.c - timelines, submissions and waits for many points, beside the same by hand

   Each way makes what it needs, does the thing `count` times, and returns the time of one in us, without the making. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../examples/metal.h"
#include "../../gpusync.h"
#include "peers.h"

#define MAX_POINTS 4096u
#define QUEUE_LIMIT 256u

static void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "bench: %s failed\n", what);
    exit(1);
}
#define ok(call) must((call) == GPUSYNC_OK, #call)

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* -- a number that one thread raises and another waits for --------------------------------------------- */

typedef struct number {
    gpusync_timeline *timeline; /* gpusync */
    const gpusync_wait_options *options;
    void *event, *listener;     /* the others, +1 */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t heard;
} number;

typedef struct scheme {
    void (*open)(number *n, gpusync_device *device);
    void (*close)(number *n);
    void (*raise)(number *n, uint64_t value);
    void (*wait)(number *n, uint64_t value);
} scheme;

static void timeline_open(number *n, gpusync_device *device)
{
    ok(gpusync_timeline_create(device, NULL, &n->timeline));
}

static void timeline_open_handler(number *n, gpusync_device *device)
{
    static const gpusync_spin none = {0, 0, 0, false};
    static const gpusync_wait_options options = {.spin = &none};
    timeline_open(n, device);
    n->options = &options;
}

static void timeline_close(number *n)
{
    ok(gpusync_timeline_destroy(n->timeline));
}

static void timeline_raise(number *n, uint64_t value)
{
    ok(gpusync_timeline_signal(n->timeline, value));
}

static void timeline_wait(number *n, uint64_t value)
{
    ok(gpusync_timeline_wait(n->timeline, value, GPUSYNC_FOREVER, n->options));
}

static void event_open(number *n, gpusync_device *device)
{
    n->event = metal_shared_event_new(gpusync_device_metal(device));
    must(n->event != NULL, "newSharedEvent");
}

static void event_close(number *n)
{
    metal_release(n->event);
}

static void event_raise(number *n, uint64_t value)
{
    metal_event_signal(n->event, value);
}

static void event_wait(number *n, uint64_t value)
{
    METAL__AS(signed char, uint64_t, uint64_t)
    (n->event, metal__sel("waitUntilSignaledValue:timeoutMS:"), value, UINT64_MAX);
}

/* notifyListener:atValue:block: for every wait, with a block as a compiler makes it, and a condition variable. */
typedef struct block {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct block *self, void *event, uint64_t value);
    const struct block_descriptor *descriptor;
    number *n;
} block;

struct block_descriptor {
    uintptr_t reserved, size;
    const char *signature;
};

extern void *bench_listener_block[32] METAL__ASM("_NSConcreteStackBlock");

static void listener_open(number *n, gpusync_device *device)
{
    event_open(n, device);
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, NULL);
    n->listener = metal_get(metal_get(metal__class("MTLSharedEventListener"), "alloc"), "init");
    must(n->listener != NULL, "MTLSharedEventListener");
}

static void listener_close(number *n)
{
    metal_release(n->listener);
    event_close(n);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
}

static void listener_heard(block *self, void *event, uint64_t value)
{
    number *n = self->n;
    (void)event;
    pthread_mutex_lock(&n->lock);
    if (value > n->heard) n->heard = value;
    pthread_cond_signal(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

static void listener_wait(number *n, uint64_t value)
{
    static const struct block_descriptor descriptor = {0, sizeof(block), "v24@?0@8Q16"};
    block b = {bench_listener_block, 1 << 30, 0, listener_heard, &descriptor, NULL};
    b.n = n;
    METAL__AS(void, void *, uint64_t, void *)
    (n->event, metal__sel("notifyListener:atValue:block:"), n->listener, value, &b);
    pthread_mutex_lock(&n->lock);
    while (n->heard < value) pthread_cond_wait(&n->changed, &n->lock);
    pthread_mutex_unlock(&n->lock);
}

static const scheme by_gpusync = {timeline_open, timeline_close, timeline_raise, timeline_wait};
static const scheme by_gpusync_asleep = {timeline_open_handler, timeline_close, timeline_raise, timeline_wait};
static const scheme by_event = {event_open, event_close, event_raise, event_wait};
static const scheme by_listener = {listener_open, listener_close, event_raise, listener_wait};

/* There and back: two threads, two numbers. */
typedef struct court {
    const scheme *by;
    number there, back;
    unsigned count;
} court;

static void *return_balls(void *argument)
{
    court *c = (court *)argument;
    unsigned i;
    for (i = 1; i <= c->count; i++) {
        c->by->wait(&c->there, i);
        c->by->raise(&c->back, i);
    }
    return NULL;
}

static double round_trip(void *device, unsigned count, const scheme *by)
{
    static const number fresh;
    court c;
    pthread_t thread;
    double start;
    unsigned i;
    c.by = by;
    c.there = c.back = fresh;
    c.count = count;
    by->open(&c.there, (gpusync_device *)device);
    by->open(&c.back, (gpusync_device *)device);
    must(pthread_create(&thread, NULL, return_balls, &c) == 0, "pthread_create");
    start = now_us();
    for (i = 1; i <= count; i++) {
        by->raise(&c.there, i);
        by->wait(&c.back, i);
    }
    start = now_us() - start;
    pthread_join(thread, NULL);
    by->close(&c.there);
    by->close(&c.back);
    return start / count;
}

/* One thread does both: nothing to wait for. */
static double alone(void *device, unsigned count, const scheme *by)
{
    static const number fresh;
    number n = fresh;
    double start;
    unsigned i;
    by->open(&n, (gpusync_device *)device);
    start = now_us();
    for (i = 1; i <= count; i++) {
        by->raise(&n, i);
        by->wait(&n, i);
    }
    start = now_us() - start;
    by->close(&n);
    return start / count;
}

#define WAY(function, scheme)                                       \
    static double function##_##scheme(void *device, unsigned count) \
    {                                                               \
        return function(device, count, &scheme);                    \
    }
WAY(round_trip, by_gpusync)
WAY(round_trip, by_gpusync_asleep)
WAY(round_trip, by_event)
WAY(round_trip, by_listener)
WAY(alone, by_gpusync)
WAY(alone, by_event)
WAY(alone, by_listener)

/* -- submitting: one wait, one buffer, one signal, while what is waited for is on its way -------------- */

/* Two queues and what each signals, as gpusync's objects and as Metal's. */
typedef struct sides {
    gpusync_queue *queues[2];
    gpusync_timeline *timelines[2];
    void *metal_queues[2], *events[2], *gate; /* +1 */
} sides;

static void sides_open(sides *s, gpusync_device *device)
{
    void *metal_device = gpusync_device_metal(device);
    unsigned i;
    s->gate = metal_shared_event_new(metal_device);
    for (i = 0; i < 2; i++) {
        gpusync_queue_desc desc = {0};
        s->metal_queues[i] = metal_queue_new(metal_device, QUEUE_LIMIT);
        desc.metal_queue = s->metal_queues[i];
        desc.max_command_buffer_count = QUEUE_LIMIT;
        ok(gpusync_queue_create(device, &desc, &s->queues[i]));
        ok(gpusync_timeline_create(device, NULL, &s->timelines[i]));
        s->events[i] = metal_shared_event_new(metal_device);
        must(s->metal_queues[i] && s->events[i] && s->gate, "Metal's objects");
    }
}

static void sides_close(sides *s)
{
    unsigned i;
    for (i = 0; i < 2; i++) {
        ok(gpusync_queue_destroy(s->queues[i]));
        ok(gpusync_timeline_destroy(s->timelines[i]));
        metal_release(s->metal_queues[i]);
        metal_release(s->events[i]);
    }
    metal_release(s->gate);
}

typedef enum place { AT_HEAD, IN_FRONT } place; /* of the wait: in the work, or in a command buffer of its own */

static gpusync_point value_of(gpusync_timeline *timeline, uint64_t value)
{
    gpusync_point point = {0};
    point.timeline = timeline;
    point.value = value;
    return point;
}

/* Queue `side` waits for the other's value `wait` (0: for nothing) and signals `signal`. */
static gpusync_ticket submit(sides *s, unsigned side, uint64_t wait, uint64_t signal, place where)
{
    gpusync_point before = value_of(s->timelines[!side], wait), after = value_of(s->timelines[side], signal);
    gpusync_submission submission = {0};
    gpusync_ticket ticket;
    void *buffer;
    if (where != AT_HEAD) {
        submission.waits = &before;
        submission.wait_count = wait > 0;
    }
    ok(gpusync_command_buffer(s->queues[side], NULL, &buffer));
    if (where == AT_HEAD && wait) ok(gpusync_encode_wait(s->queues[side], buffer, before));
    ok(gpusync_encode_signal(s->queues[side], buffer, after));
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    if (where == AT_HEAD) ok(gpusync_commit(s->queues[side], buffer, &ticket));
    else ok(gpusync_submit(s->queues[side], &submission, &ticket));
    return ticket;
}

/* The last one is kept for the caller, +1. */
static void *commit_by_hand(sides *s, unsigned side, uint64_t wait, uint64_t signal, place where)
{
    void *buffer = metal_queue_command_buffer(s->metal_queues[side]);
    if (wait && where == AT_HEAD) metal_encode_wait(buffer, s->events[!side], wait);
    if (wait && where == IN_FRONT) {
        void *front = metal_queue_command_buffer(s->metal_queues[side]);
        metal_encode_wait(front, s->events[!side], wait);
        metal_commit(front);
        metal_release(front);
    }
    metal_encode_signal(buffer, s->events[side], signal);
    metal_commit(buffer);
    return buffer;
}

/* Both queues wait for this: nothing runs until gate_open. */
static void gate_close(sides *s)
{
    void *buffer;
    ok(gpusync_command_buffer(s->queues[0], NULL, &buffer));
    metal_encode_wait(buffer, s->gate, 1);
    ok(gpusync_commit(s->queues[0], buffer, NULL));
}

static void gate_open(sides *s)
{
    metal_event_signal(s->gate, 1);
}

static double submissions(void *device, unsigned count, place where)
{
    sides s;
    double start;
    unsigned i;
    sides_open(&s, (gpusync_device *)device);
    gate_close(&s);
    for (i = 1; i <= count; i++) (void)submit(&s, 0, 0, i, where);
    start = now_us();
    for (i = 1; i <= count; i++) (void)submit(&s, 1, i, i, where);
    start = now_us() - start;
    gate_open(&s);
    ok(gpusync_queue_wait(s.queues[1], GPUSYNC_FOREVER));
    sides_close(&s);
    return start / count;
}

static double commits_by_hand(void *device, unsigned count, place where)
{
    sides s;
    void *last = NULL;
    double start;
    unsigned i;
    sides_open(&s, (gpusync_device *)device);
    gate_close(&s);
    for (i = 1; i <= count; i++) metal_release(commit_by_hand(&s, 0, 0, i, where));
    start = now_us();
    for (i = 1; i <= count; i++) {
        metal_release(last);
        last = commit_by_hand(&s, 1, i, i, where);
    }
    start = now_us() - start;
    gate_open(&s);
    metal_wait_until_completed(last);
    metal_release(last);
    sides_close(&s);
    return start / count;
}

static double submissions_at_head(void *device, unsigned count)
{
    return submissions(device, count, AT_HEAD);
}
static double submissions_in_front(void *device, unsigned count)
{
    return submissions(device, count, IN_FRONT);
}
static double hand_at_head(void *device, unsigned count)
{
    return commits_by_hand(device, count, AT_HEAD);
}
static double hand_in_front(void *device, unsigned count)
{
    return commits_by_hand(device, count, IN_FRONT);
}

/* -- two queues by turns: until the last has ended ----------------------------------------------------- */

static double turns(void *device, unsigned count)
{
    sides s;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    double start;
    unsigned i;
    sides_open(&s, (gpusync_device *)device);
    start = now_us();
    for (i = 1; i <= count; i++) {
        (void)submit(&s, 0, i - 1, i, AT_HEAD);
        ticket = submit(&s, 1, i, i, AT_HEAD);
    }
    ok(gpusync_wait(s.queues[1], ticket, GPUSYNC_FOREVER));
    start = now_us() - start;
    sides_close(&s);
    return start / count;
}

static double turns_by_hand(void *device, unsigned count)
{
    sides s;
    void *last = NULL;
    double start;
    unsigned i;
    sides_open(&s, (gpusync_device *)device);
    start = now_us();
    for (i = 1; i <= count; i++) {
        metal_release(commit_by_hand(&s, 0, i - 1, i, AT_HEAD));
        metal_release(last);
        last = commit_by_hand(&s, 1, i, i, AT_HEAD);
    }
    metal_wait_until_completed(last);
    start = now_us() - start;
    metal_release(last);
    sides_close(&s);
    return start / count;
}

/* The CPU stands between the queues: commit here, wait, commit there, wait. */
static double turns_of_the_host(void *device, unsigned count)
{
    sides s;
    double start;
    unsigned i;
    sides_open(&s, (gpusync_device *)device);
    start = now_us();
    for (i = 0; i < 2 * count; i++) {
        void *buffer;
        gpusync_ticket ticket;
        ok(gpusync_command_buffer(s.queues[i % 2], NULL, &buffer));
        ok(gpusync_commit(s.queues[i % 2], buffer, &ticket));
        ok(gpusync_wait(s.queues[i % 2], ticket, GPUSYNC_FOREVER));
    }
    start = now_us() - start;
    sides_close(&s);
    return start / count;
}

static double turns_until_completed(void *device, unsigned count)
{
    sides s;
    double start;
    unsigned i;
    sides_open(&s, (gpusync_device *)device);
    start = now_us();
    for (i = 0; i < 2 * count; i++) {
        void *buffer = metal_queue_command_buffer(s.metal_queues[i % 2]);
        metal_commit(buffer);
        metal_wait_until_completed(buffer);
        metal_release(buffer);
    }
    start = now_us() - start;
    sides_close(&s);
    return start / count;
}

/* -- many points: a value and a ticket by turns, for one point ----------------------------------------- */

typedef struct crowd {
    sides s;
    gpusync_point points[MAX_POINTS];
} crowd;

static void crowd_open(crowd *c, void *device, unsigned count, bool reached)
{
    gpusync_ticket ticket;
    unsigned i;
    sides_open(&c->s, (gpusync_device *)device);
    if (!reached) gate_close(&c->s);
    ticket = submit(&c->s, 0, 0, MAX_POINTS, AT_HEAD);
    for (i = 0; i < count; i++) {
        c->points[i] = value_of(i % 2 ? NULL : c->s.timelines[0], i + 1);
        c->points[i].queue = c->s.queues[0];
        c->points[i].ticket = ticket;
    }
    if (reached) ok(gpusync_wait(c->s.queues[0], ticket, GPUSYNC_FOREVER));
}

static double crowd_close(crowd *c, double us, unsigned count)
{
    gate_open(&c->s);
    sides_close(&c->s);
    return us / count;
}

static double many(void *device, unsigned count, bool reached)
{
    static crowd c;
    double start;
    gpusync_result result;
    crowd_open(&c, device, count, reached);
    start = now_us();
    result = gpusync_wait_many(c.points, count, GPUSYNC_WAIT_ALL, 0, NULL, NULL);
    start = now_us() - start;
    must(result == (reached ? GPUSYNC_OK : GPUSYNC_TIMEOUT), "gpusync_wait_many");
    return crowd_close(&c, start, count);
}

static double one_by_one(void *device, unsigned count, bool reached)
{
    static crowd c;
    double start;
    unsigned i;
    crowd_open(&c, device, count, reached);
    start = now_us();
    for (i = 0; i < count; i++) {
        gpusync_point *p = &c.points[i];
        gpusync_result result = p->timeline ? gpusync_timeline_wait(p->timeline, p->value, 0, NULL)
                                            : gpusync_wait(p->queue, p->ticket, 0);
        must(result == (reached ? GPUSYNC_OK : GPUSYNC_TIMEOUT), "one of many");
    }
    return crowd_close(&c, now_us() - start, count);
}

static double many_reached(void *device, unsigned count)
{
    return many(device, count, true);
}
static double many_unmet(void *device, unsigned count)
{
    return many(device, count, false);
}
static double each_reached(void *device, unsigned count)
{
    return one_by_one(device, count, true);
}
static double each_unmet(void *device, unsigned count)
{
    return one_by_one(device, count, false);
}

/* ------------------------------------------------------------------------------------------------------ */

#define COUNT(ways) (unsigned)(sizeof(ways) / sizeof(ways)[0])

static const way round_trips[] = {
    {"gpusync_timeline_signal, _wait", round_trip_by_gpusync, NULL},
    {"... without spinning", round_trip_by_gpusync_asleep, NULL},
    {"setSignaledValue:, waitUntilSignaledValue:", round_trip_by_event,
     "MLX's streams of the CPU: each way is a wake-up of Metal's, where gpusync may spin"},
    {"setSignaledValue:, notifyListener, condvar", round_trip_by_listener,
     "MoltenVK's timeline semaphores: each way is a listener's thread and a wake-up"},
};
static const way lone[] = {
    {"gpusync_timeline_signal, _wait", alone_by_gpusync, NULL},
    {"setSignaledValue:, waitUntilSignaledValue:", alone_by_event,
     "MLX: the price of a wait that has nothing to wait for"},
    {"setSignaledValue:, notifyListener, condvar", alone_by_listener,
     "MoltenVK reads the value first: the price of not doing so"},
};
static const way at_head[] = {
    {"gpusync_command_buffer, gpusync_submit", submissions_at_head, NULL},
    {"encodeWait, encodeSignal, commit", hand_at_head,
     "MLX's streams: the ratio is the price of knowing which work signals what"},
};
static const way in_front[] = {
    {"gpusync_submit", submissions_in_front, NULL},
    {"encodeWait, commit, encodeSignal, commit", hand_in_front,
     "wgpu (others' events), llama.cpp's ggml-metal, IREE: at its head a wait takes no command buffer"},
};
static const way by_turns[] = {
    {"gpusync_submit, all ahead", turns, NULL},
    {"encodeWait, encodeSignal, all ahead", turns_by_hand,
     "MLX's streams: the host wakes once, at the end, with gpusync or without"},
    {"gpusync_commit, gpusync_wait, by turns", turns_of_the_host, NULL},
    {"commit, waitUntilCompleted, by turns", turns_until_completed,
     "a program without events: each round has two wake-ups of the host"},
};
static const way crowds[] = {
    {"gpusync_wait_many, all reached", many_reached, NULL},
    {"a wait for each, all reached", each_reached,
     "SDL_gpu's fences, by waitUntilCompleted: where all are reached, no loss"},
    {"gpusync_wait_many, none reached, limit 0", many_unmet, NULL},
    {"a wait for each, none reached, limit 0", each_unmet, NULL},
};

const duel duels[] = {
    {"5. a value there and back between two threads", 200, round_trips, COUNT(round_trips)},
    {"5. a value raised and waited for by one thread", 200, lone, COUNT(lone)},
    {"6. one wait, one buffer, one signal: the wait at its head", 60, at_head, COUNT(at_head)},
    {"6. one wait, one buffer, one signal: the wait in front of it", 60, in_front, COUNT(in_front)},
    {"7. two queues by turns, each waits for the other: one round", 100, by_turns, COUNT(by_turns)},
    {"8. 1 point, for a point", 1, crowds, COUNT(crowds)},
    {"8. 16 points, for a point", 16, crowds, COUNT(crowds)},
    {"8. 256 points, for a point", 256, crowds, COUNT(crowds)},
    {"8. 4,096 points, for a point", 4096, crowds, COUNT(crowds)},
};
const unsigned duel_count = COUNT(duels);
