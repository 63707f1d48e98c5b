/* fuzz.h - what both kinds of inputs of fuzz.c share: the clock and the GPU's steps

   Included once, in fuzz.c. Nothing here sleeps and nothing depends on real time: gpusync's clock is a number that
   moves a little with each look at it, and the park hook moves the GPU on, or the clock where the GPU has nothing to
   do. So an input does the same each time. */
#ifndef FUZZ_H
#define FUZZ_H

#define GPUSYNC_IMPLEMENTATION
#include <errno.h>
#include <pthread.h>
#include "../clock.h"

/* -- what is destroyed later ---------------------------------------------------------------------------- */

/* A dispatched function waits for what goes. For softmetal it rests then, as one that waits for a command buffer, and it
   looks again when the main thread says so: never by itself. */
bool sm_in_dispatched(void);
void sm_dispatch_rest(int more);
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned resting, round, left; /* left: so many rest still, of those that are to look again */
} linger = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0};

static int linger_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *at)
{
    unsigned round;
    if (__atomic_load_n(&clock_is_real, __ATOMIC_SEQ_CST) || !sm_in_dispatched())
        return pthread_cond_timedwait(cond, mutex, at);
    pthread_mutex_unlock(mutex);
    pthread_mutex_lock(&linger.lock);
    round = linger.round;
    linger.resting++;
    sm_dispatch_rest(1);
    while (linger.round == round) pthread_cond_wait(&linger.changed, &linger.lock);
    sm_dispatch_rest(-1);
    linger.resting--;
    linger.left--;
    pthread_cond_broadcast(&linger.changed);
    pthread_mutex_unlock(&linger.lock);
    pthread_mutex_lock(mutex);
    return ETIMEDOUT;
}
#undef pthread_cond_timedwait
#define pthread_cond_timedwait linger_timedwait

#define SPIN_NS 4000 /* 40 looks at the clock */
#define MEETS_HERE(X) X(program) X(sticky_program) X(destroyed_at_once_with_work)
#include "common.h"
#undef pthread_cond_timedwait

#include "../submit_graphs.h"

/* For submit_graphs.h, which draws below 1000 and less. */
static uint64_t draw_from_bytes(void) { return byte() * 257u; }

/* -- the GPU ------------------------------------------------------------------------------------------ */

#define METAL_QUEUES 8
static struct {
    void *queues[METAL_QUEUES]; /* +1 */
    int count;
    bool in_order; /* nothing passes what is before it on its queue, though it might */
    unsigned idle; /* parks in a row in which nothing moved */
    unsigned yields;
    void *warming; /* the queue of a warm-up: nothing moves but this one */
    unsigned naps; /* of the main thread, while that goes on */
    bool sweeps;   /* timers fire where nothing else moves: objects go by them, and work may wait for that */
    bool hangs;    /* nothing moves */
    bool loses;    /* a device may be lost: timers fire in waits that last longer, so that it gives its work up */
    pthread_t main;
    void (*unstick)(unsigned idle); /* in a park, when nothing has moved for long */
} gpu;

static void gpu_add(void *queue) { gpu.queues[gpu.count++] = metal_retain(queue); }

static void gpu_forget(void)
{
    while (gpu.count > 0) metal_release(gpu.queues[--gpu.count]);
}

/* The n-th of those that can be moved on, or the last; NULL: none. */
static void *find_due(void *queue, unsigned n)
{
    void *first = softmetal_first_in_line(queue), *found = NULL, *buffer;
    softmetal_due due = SOFTMETAL_NOTHING_DUE;
    unsigned k;
    for (k = 0; (buffer = softmetal_due_at(queue, k, &due)) != NULL; k++) {
        if (due != SOFTMETAL_HANDLERS_DUE && (due != SOFTMETAL_COMPLETE_DUE || (gpu.in_order && buffer != first)))
            continue;
        found = buffer;
        if (n-- == 0) break;
    }
    return found;
}

/* False: nothing is destroyed later, or it is not waited for. */
static bool look_at_what_goes(void)
{
    bool any;
    pthread_mutex_lock(&linger.lock);
    any = linger.resting > 0;
    linger.left = linger.resting;
    linger.round++;
    pthread_cond_broadcast(&linger.changed);
    while (linger.left > 0) pthread_cond_wait(&linger.changed, &linger.lock);
    pthread_mutex_unlock(&linger.lock);
    return any;
}

/* What listeners and dispatched functions have to do is done. The function of a warm-up has to wait for the GPU. What goes
   waits for callbacks, too: so it looks more than once. */
static void come_to_rest_now(void)
{
    int look = 0;
    if (gpu.warming) return;
    do must(softmetal_settle_listeners(SECONDS(20)), "a listener does not end");
    while (look++ < 3 && look_at_what_goes());
}

/* Timers are fired by hand, and only where an input asks for it, or where something goes later. False: none is armed. */
static bool pass_time(void)
{
    if (gpu.warming || softmetal_timers() == 0) return false;
    PUT(&clock_now, clock_now + softmetal_next_timer());
    softmetal_fire_timer();
    come_to_rest_now();
    return true;
}

/* What goes later sleeps between two looks. */
static void let_time_pass(void)
{
    if (pass_time()) return;
    PUT(&clock_now, clock_now + MS(50));
    come_to_rest_now();
}

/* One step of one command buffer. False: there is nothing to do on any queue. A callback that still runs would release
   command buffers while this looks at them. */
static bool gpu_step(unsigned which, unsigned nth, bool fully)
{
    int i;
    come_to_rest_now();
    for (i = 0; i < gpu.count && !gpu.hangs; i++) {
        void *queue = gpu.queues[(which + (unsigned)i) % (unsigned)gpu.count], *buffer;
        if (gpu.warming && queue != gpu.warming) continue;
        buffer = find_due(queue, nth);
        if (!buffer) continue;
        if (!fully && softmetal_what_is_due(buffer) == SOFTMETAL_COMPLETE_DUE) softmetal_complete(buffer);
        else softmetal_finish(buffer);
        come_to_rest_now();
        return true;
    }
    return false;
}

static bool gpu_step_any(void)
{
    unsigned which = byte(), how = byte();
    return gpu_step(which, how >> 1 & 3, how & 1);
}

static void gpu_finish(void)
{
    while (gpu_step(0, 0, true)) continue;
}

/* A function of a warm-up is at work: it sleeps, and asks for its command buffer. How often this comes round is luck, and
   takes no bytes. */
static void gpu_warm(void)
{
    struct timespec nap = {0, 20000};
    if (gpu_step(0, 0, true)) return;
    nanosleep(&nap, NULL);
    if (++gpu.naps % 256 == 0 && gpu.unstick) gpu.unstick(gpu.naps / 256 * 64);
    PUT(&clock_now, clock_now + MS(1));
}

/* -- a reader that begins late -------------------------------------------------------------------------- */

/* A reader that begins with GPUSYNC_FROM_NOW: it finds what is recorded later, and nothing else. */
typedef struct late_reader {
    uint64_t cursor, before; /* before: so many were recorded when it began */
    bool reads;
} late_reader;

/* While nothing is recorded. again: it begins anew when it is through. */
static void read_late(late_reader *reader, gpusync_queue *queue, bool again)
{
    uint64_t from_the_first = 0, all = count_failures(queue, &from_the_first), found;
    if (reader->reads) {
        found = count_failures(queue, &reader->cursor);
        must(found == all - reader->before, "a reader finds %llu failures of the %llu since it began",
             (unsigned long long)found, (unsigned long long)(all - reader->before));
        meet_if(found, errors_from_now);
    }
    if (reader->reads && !again) {
        reader->before = all;
        return;
    }
    reader->cursor = begin_to_read(queue);
    must(count_failures(queue, &reader->cursor) == 0, "a reader finds what is older than it");
    reader->before = all;
    reader->reads = true;
}

/* -- a wait that is told of nothing ---------------------------------------------------------------------- */

/* The points of the wait that the main thread is in: as long as it sleeps, it is woken by what ends it. */
#define MOST_POINTS 20
static struct {
    gpusync_point points[MOST_POINTS];
    size_t count; /* 0: it is not known what the wait is for */
    gpusync_wait_for what;
} awaited;

static void await_points(const gpusync_point *points, size_t count, gpusync_wait_for what)
{
    memcpy(awaited.points, points, count * sizeof *points);
    awaited.count = count;
    awaited.what = what;
}

static void await_nothing(void) { awaited.count = 0; }

/* Asked so that nothing is looked for: only what gpusync knows already. Given up: it will never end. */
static bool is_known_to_be_over(const gpusync_point *point, bool *failed)
{
    if (point->timeline) {
        uint64_t value = probe_value_of(point->timeline);
        *failed = value == UINT64_MAX;
        return value >= point->value;
    }
    *failed = probe_is_given_up(point->queue);
    if (!gpusync_is_done(point->queue, point->ticket)) return *failed;
    *failed = point->ticket != GPUSYNC_EVERYTHING && gpusync_poll(point->queue, point->ticket) < 0;
    return true;
}

/* The wait has parked, and the GPU has moved on. woken: there is a permit. */
static void must_be_woken(bool woken)
{
    size_t i, over = 0;
    bool any_failed = false;
    for (i = 0; i < awaited.count && !woken; i++) {
        bool failed;
        over += is_known_to_be_over(&awaited.points[i], &failed);
        any_failed = any_failed || failed;
    }
    must(woken || awaited.count == 0 ||
             (over < awaited.count && !(awaited.what == GPUSYNC_WAIT_ALL_OR_FAILURE && any_failed) &&
              !(awaited.what == GPUSYNC_WAIT_ANY && over)),
         "a wait sleeps on: of its %zu points %zu are over, %s", awaited.count, over, any_failed ? "one failed" : "well");
}

/* -- hooks -------------------------------------------------------------------------------------------- */

/* Nothing has moved. */
static void be_idle(void)
{
    gpu.idle++;
    if (gpu.sweeps && gpu.idle % 8 == 0) let_time_pass();
    if (gpu.unstick && gpu.idle % 64 == 0) gpu.unstick(gpu.idle);
}

/* Some look again and again, and never sleep: or spin, until the time is over in which they would sleep. */
static void hook_yield(void *user)
{
    (void)user;
    if (!pthread_equal(pthread_self(), gpu.main) || ++gpu.yields % 32 != 0) return;
    if (gpu_step(0, 0, true)) gpu.idle = 0;
    else if (!gpu.warming) be_idle();
}

/* Every wait that sleeps comes by here. On the main thread the GPU moves on; when it cannot, time does. */
static void hook_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    bool woken = __atomic_exchange_n(&waiter->scheduler_data[0], NULL, __ATOMIC_SEQ_CST) != NULL;
    (void)user;
    if (!pthread_equal(pthread_self(), gpu.main)) { /* a warm-up's: the main thread moves on */
        struct timespec nap = {0, 20000};
        nanosleep(&nap, NULL);
        return;
    }
    if (gpu.warming) {
        gpu_warm();
        return;
    }
    if (woken) return; /* it has a permit */
    if (gpu_step_any()) {
        gpu.idle = 0;
        must_be_woken(GET(&waiter->scheduler_data[0]) != NULL);
        return;
    }
    be_idle();
    must(gpu.idle < 4096, "a wait does not end: %s", fuzz_doing[0]);
    if (gpu.loses && deadline_ns > clock_now && softmetal_next_timer() < deadline_ns - clock_now && pass_time()) {
        must_be_woken(GET(&waiter->scheduler_data[0]) != NULL);
        return;
    }
    if (deadline_ns != GPUSYNC_FOREVER && deadline_ns > clock_now) clock_now = deadline_ns;
    else clock_now += MS(1);
}

static void hook_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    __atomic_store_n(&waiter->scheduler_data[0], waiter, __ATOMIC_SEQ_CST);
}

static const gpusync_hooks fuzz_hooks = {hook_yield, hook_park, hook_unpark, NULL};

#endif
