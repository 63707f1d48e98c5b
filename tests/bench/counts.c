/* counts.c - what the calls of gpusync.h cost, in instructions

   Under callgrind --collect-atstart=no: dumps "SCENARIO TIMES" of what stands in COUNTED, and of handlers, which run on
   a thread of softmetal's. Two or more of each: the first one may count what is made once. The manual clock, so that
   nothing else runs. */
#include <pthread.h>

#include <gpusync.h>
#include <valgrind/callgrind.h>

#if GPUSYNC_VERSION < 500 /* the names of 0.4 */
#define wait_points waits
#define signal_points signals
#define gpusync_command_buffer_create(queue, desc, timeout_ns, out) gpusync_command_buffer(queue, desc, out)
#define gpusync_poll(queue, ticket, times) gpusync_poll(queue, ticket)
#define gpusync_wait(queue, ticket, timeout_ns, options) gpusync_wait(queue, ticket, timeout_ns)
uint64_t no_timer(void);
uint64_t no_timer(void) { return 0; } /* dispatch_time and dispatch_after_f: its sweep never runs */
#else
#define gpusync_commit4(queue, all, n, ticket)                                                                     \
    ((n) == 1 ? gpusync_commit(queue, (all)[0], ticket)                                                            \
              : gpusync_submit(queue, &(gpusync_submission){.command_buffers = all, .command_buffer_count = n}, ticket))
#endif
#include "common.h"

#define REPEAT 50u
#define SUBMITTED 30u /* in flight at a time */
#define POINTS 100u   /* of one wait */
#define QUEUES 4u     /* that they belong to */
#define COUNTED(...) do { CALLGRIND_TOGGLE_COLLECT; __VA_ARGS__; CALLGRIND_TOGGLE_COLLECT; } while (0)

static gpusync_queue *queues[QUEUES], *queue4;
static void *metal; /* the first one's MTLCommandQueue */
static gpusync_timeline *timelines[QUEUES], *before, *after;
static uint64_t value; /* the highest that a timeline has had */
static bool by_hand, signals;

static void dump(const char *scenario, unsigned times)
{
    char text[64];
    snprintf(text, sizeof text, "%s%s %u", by_hand ? "hand_" : "", scenario, times);
    CALLGRIND_DUMP_STATS_AT(text);
}

/* Waits sleep here: the work ends on this thread, so that no count hangs on how threads meet. */
static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    for (unsigned i = 0; i < QUEUES; i++) finish_queue(queues[i]);
    for (unsigned i = 0; i < QUEUES && signals; i++) ok(gpusync_timeline_signal(timelines[i], value));
}

static void unpark(void *user, gpusync_waiter *waiter)
{
}

/* -- by hand: a condition variable and its mutex, and a handler that counts and signals. One thread commits. ------- */

#define HAND static __attribute__((noinline))
typedef struct hand {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t committed, completed;
} hand;
typedef struct hand_block {
    void *isa;
    int32_t flags, reserved;
    void (*invoke)(struct hand_block *self, void *buffer);
    const void *descriptor;
    hand *of;
} hand_block;
static hand hands = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

HAND void hand_completed(hand_block *self, void *buffer)
{
    pthread_mutex_lock(&self->of->mutex);
    self->of->completed++;
    pthread_cond_broadcast(&self->of->changed);
    pthread_mutex_unlock(&self->of->mutex);
}

HAND uint64_t hand_commit(hand *h, void *buffer)
{
    extern void *_NSConcreteStackBlock[32];
    static const struct { unsigned long reserved, size; } descriptor = {0, sizeof(hand_block)};
    hand_block block = {_NSConcreteStackBlock, 0, 0, hand_completed, &descriptor, h};
    metal_add_completed_handler(buffer, &block);
    metal_commit(buffer);
    return ++h->committed;
}

/* The park hook stands for the sleep of pthread_cond_wait. */
HAND void hand_wait(hand *h, uint64_t ticket)
{
    pthread_mutex_lock(&h->mutex);
    while (h->completed < ticket) {
        pthread_mutex_unlock(&h->mutex);
        park(NULL, NULL, 0);
        pthread_mutex_lock(&h->mutex);
    }
    pthread_mutex_unlock(&h->mutex);
}

/* encoded: into the work. Else that is full already, and the wait needs a command buffer in front. */
HAND void hand_submit(void *work, void *from, void *to, bool encoded)
{
    void *front = encoded ? work : metal_queue_command_buffer(metal);
    metal_encode_wait(front, from, value);
    if (front != work) {
        metal_commit(front);
        metal_release(front);
    }
    metal_encode_signal(work, to, value);
    hand_commit(&hands, work);
}

/* -- scenarios ----------------------------------------------------------------------------------------------------- */

static void *make(bool foreign)
{
    return foreign ? metal_queue_command_buffer(metal) : open_buffer(queues[0]);
}

static void run_commits(bool foreign)
{
    CALLGRIND_ZERO_STATS;
    for (unsigned i = 0; i < REPEAT; i++) {
        void *buffer = make(foreign || by_hand);
        COUNTED(if (by_hand) hand_commit(&hands, buffer); else ok(gpusync_commit(queues[0], buffer, NULL)));
        if (foreign || by_hand)
            metal_release(buffer);
    }
    dump(foreign ? "commit_foreign" : "commit", REPEAT);
    finish_queue(queues[0]);
    dump(foreign ? "handler_foreign" : "handler", REPEAT);
    must(gpusync_in_flight(queues[0]) == 0 && hands.completed == hands.committed, "all handlers have run");
}

static void run_commits4(const char *scenario, unsigned together)
{
    void *device = metal_get(metal, "device"), *allocator = metal4_allocator_new(device);
    CALLGRIND_ZERO_STATS;
    for (unsigned i = 0; i < REPEAT; i++) {
        void *work[8];
        for (unsigned k = 0; k < together; k++) {
            work[k] = metal4_buffer_new(device);
            metal4_begin(work[k], allocator);
            metal4_end(work[k]);
        }
        COUNTED(ok(gpusync_commit4(queue4, work, together, NULL)));
        for (unsigned k = 0; k < together; k++) metal_release(work[k]);
    }
    dump(scenario, REPEAT);
    finish_queue(queue4);
    metal_release(allocator);
}

static void run_looks(void)
{
    gpusync_ticket ticket;
    ok(gpusync_commit(queues[0], open_buffer(queues[0]), &ticket));
    CALLGRIND_ZERO_STATS;
    for (unsigned i = 0; i < REPEAT; i++) COUNTED(must(gpusync_poll(queues[0], ticket, NULL) > 0, "the work runs"));
    dump("poll", REPEAT);
    finish_queue(queues[0]);
    CALLGRIND_ZERO_STATS;
    for (unsigned i = 0; i < REPEAT; i++) COUNTED(ok(gpusync_wait(queues[0], ticket, GPUSYNC_FOREVER, NULL)));
    dump("wait_ticket", REPEAT);
    for (unsigned i = 0; i < REPEAT; i++) COUNTED(ok(gpusync_wait(queues[0], GPUSYNC_EVERYTHING, 0, NULL)));
    dump("wait_everything", REPEAT);
    for (unsigned i = 0; i < REPEAT; i++) COUNTED(ok(gpusync_timeline_wait(timelines[0], 1, GPUSYNC_FOREVER, NULL)));
    dump("wait_value", REPEAT);
}

static void submit_with(gpusync_queue *queue, const gpusync_point *wait, void *work, const gpusync_point *signal,
                        uint32_t flags)
{
    gpusync_submission submission = {
        .wait_points = wait, .wait_count = wait != NULL, .command_buffers = &work, .command_buffer_count = 1,
        .signal_points = signal, .signal_count = 1, .flags = flags,
    };
    ok(gpusync_submit(queue, &submission, NULL));
}

/* Up to 0.5 what is ON_GPU was the default, and HOST_SYNC, which was 2, is strict. */
enum { ON_GPU = GPUSYNC_VERSION < 600 ? 0 : 8, STRICT = GPUSYNC_VERSION < 600 ? 2 : 0 };

static void submit(gpusync_queue *queue, const gpusync_point *wait, void *work, const gpusync_point *signal)
{
    submit_with(queue, wait, work, signal, ON_GPU);
}

static void submit_strict(gpusync_queue *queue, const gpusync_point *wait, void *work, const gpusync_point *signal)
{
    submit_with(queue, wait, work, signal, STRICT);
}

static void encode(gpusync_queue *queue, const gpusync_point *wait, void *work, const gpusync_point *signal)
{
    ok(gpusync_encode_wait(queue, work, *wait));
    ok(gpusync_encode_signal(queue, work, *signal));
    ok(gpusync_commit(queue, work, NULL));
}

/* Work between a value that the GPU signals for another queue, and a signal. Only strict work is held. */
static void run_submissions(const char *scenario,
                            void (*how)(gpusync_queue *, const gpusync_point *, void *, const gpusync_point *))
{
    void *from = gpusync_timeline_metal(before, NULL), *to = gpusync_timeline_metal(after, NULL);
    CALLGRIND_ZERO_STATS;
    for (unsigned i = 0; i < SUBMITTED; i++) {
        gpusync_point wait = gpusync_at_value(before, ++value), signal = gpusync_at_value(after, value);
        void *work = make(by_hand);
        submit(queues[1], NULL, open_buffer(queues[1]), &wait);
        if (by_hand)
            COUNTED(hand_submit(work, from, to, how == encode));
        else
            COUNTED(how(queues[0], &wait, work, &signal));
        must((metal_status(work) < 2) == (how == submit_strict && !by_hand), "strict work is held, other work is sent");
        if (by_hand)
            metal_release(work);
    }
    dump(scenario, SUBMITTED);
    finish_queue(queues[1]);
    finish_queue(queues[0]);
}

static void hand_life(void)
{
    void *buffer = make(true);
    hand_wait(&hands, hand_commit(&hands, buffer));
    metal_release(buffer);
}

static void life(void)
{
    gpusync_ticket ticket;
    ok(gpusync_commit(queues[0], open_buffer(queues[0]), &ticket));
    ok(gpusync_wait(queues[0], ticket, GPUSYNC_FOREVER, NULL));
}

/* A whole life: made, committed, ended by its handler, waited for. */
static void run_whole(void)
{
    CALLGRIND_ZERO_STATS;
    for (unsigned i = 0; i < REPEAT; i++) COUNTED((by_hand ? hand_life : life)());
    dump("whole", REPEAT);
}

/* Tickets of work and values by turns. The park hook ends the work, and signals. */
static void run_many(const char *scenario, uint64_t timeout_ns, bool ended)
{
    gpusync_ticket tickets[QUEUES];
    gpusync_point points[POINTS];
    for (unsigned k = 0; k < QUEUES; k++) ok(gpusync_commit(queues[k], open_buffer(queues[k]), &tickets[k]));
    for (unsigned i = 0; i < POINTS; i++)
        points[i] = i / QUEUES % 2 ? gpusync_at_value(timelines[i % QUEUES], ++value)
                                   : gpusync_at_ticket(queues[i % QUEUES], tickets[i % QUEUES]);
    signals = true;
    if (ended)
        park(NULL, NULL, 0);
    for (unsigned i = 0; i < (timeout_ns ? 1 : 2); i++) { /* short waits look at the whole device once in 50 ms */
        CALLGRIND_ZERO_STATS;
        COUNTED(must(gpusync_wait_many(points, POINTS, GPUSYNC_WAIT_ALL, timeout_ns, NULL, NULL) ==
                         (ended || timeout_ns ? GPUSYNC_OK : GPUSYNC_TIMEOUT), scenario));
        dump(scenario, POINTS);
    }
    if (!ended && !timeout_ns)
        park(NULL, NULL, 0);
    signals = false;
}

int main(void)
{
    static const gpusync_spin none;
    gpusync_hooks hooks = {.park = park, .unpark = unpark};
    gpusync_device_desc desc = {.hooks = &hooks, .spin = &none};
    gpusync_queue_desc desc4 = {.max_command_buffer_count = 1000};
    gpusync_device *device;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    ok(gpusync_device_create(&desc, &device));
    for (unsigned i = 0; i < QUEUES; i++) {
        queues[i] = queue_of(device, 4 * REPEAT);
        ok(gpusync_timeline_create(device, NULL, &timelines[i]));
    }
    ok(gpusync_timeline_create(device, NULL, &before));
    ok(gpusync_timeline_create(device, NULL, &after));
    metal = gpusync_queue_metal(queues[0]);
#if GPUSYNC_VERSION < 600
    desc4.metal4 = true;
    ok(gpusync_queue_create(device, &desc4, &queue4));
#else
    ok(gpusync_metal4_queue_create(device, &desc4, &queue4));
#endif
    for (unsigned round = 0; round < 4; round++) {
        by_hand = round % 2;
        run_commits(false);
        run_whole();
        run_submissions("submit", submit);
        run_submissions("encode", encode);
        if (by_hand)
            continue;
        run_submissions("submit_strict", submit_strict);
        run_commits(true);
        run_commits4("commit4", 1);
        run_commits4("submit4", 8);
        run_many("many_ended", 0, true);
        run_many("many_unmet", 0, false);
        run_many("many_asleep", GPUSYNC_FOREVER, false);
        run_looks();
    }
    ok(gpusync_queue_destroy(queue4));
    for (unsigned i = 0; i < QUEUES; i++) {
        ok(gpusync_queue_destroy(queues[i]));
        ok(gpusync_timeline_destroy(timelines[i]));
    }
    ok(gpusync_timeline_destroy(before));
    ok(gpusync_timeline_destroy(after));
    ok(gpusync_device_destroy(device));
    return 0;
}
