/* counts.c - what the calls of gpusync.h cost, in instructions

   Under valgrind --tool=callgrind --collect-atstart=no: a dump for each scenario, "NAME TIMES", of what stands in COUNTED
   and of handlers, which run on a thread of softmetal's. Where a first time makes what is kept there are two dumps. The
   manual clock, so that nothing else runs and every run counts the same. */
#include <string.h>

#include <gpusync.h>
#include <valgrind/callgrind.h>

#if GPUSYNC_VERSION < 500 /* 0.4, beside this version */
#define gpusync_command_buffer_create(queue, desc, timeout_ns, out) gpusync_command_buffer(queue, desc, out)
#define gpusync_poll(queue, ticket, times) gpusync_poll(queue, ticket)
#define gpusync_wait(queue, ticket, timeout_ns, options) gpusync_wait(queue, ticket, timeout_ns)
uint64_t dispatch_time(uint64_t when, int64_t delta_ns); /* which softmetal no longer has */
uint64_t dispatch_time(uint64_t when, int64_t delta_ns)
{
    return when + (uint64_t)delta_ns;
}
#else
#define gpusync_commit4(queue, work, n, ticket)                                                                       \
    ((n) == 1 ? gpusync_commit(queue, (work)[0], ticket)                                                              \
              : gpusync_submit(queue, &(gpusync_submission){.command_buffers = work, .command_buffer_count = n}, ticket))
#endif
#include "common.h"

#define REPEAT 50u
#define SUBMITTED 30u /* in flight at a time */
#define TOGETHER 8u   /* command buffers of Metal 4 */
#define POINTS 100u   /* of one wait, for work of so many queues: */
#define QUEUES 4u

#define COUNTED(...)              \
    do {                          \
        CALLGRIND_TOGGLE_COLLECT; \
        __VA_ARGS__;              \
        CALLGRIND_TOGGLE_COLLECT; \
    } while (0)

static gpusync_device *device;
static gpusync_queue *parked_on[QUEUES]; /* a wait of this thread sleeps for their work, which ends in the park hook, */
static gpusync_timeline *timelines[QUEUES]; /* and for values of these, which it signals */
static uint64_t reached;

static void dump(const char *name, unsigned times)
{
    char text[64];
    snprintf(text, sizeof text, "%s %u", name, times);
    CALLGRIND_DUMP_STATS_AT(text);
}

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    reached += POINTS;
    for (unsigned i = 0; i < QUEUES; i++) {
        if (parked_on[i])
            finish_queue(parked_on[i]);
        if (timelines[i])
            ok(gpusync_timeline_signal(timelines[i], reached));
    }
}

static void unpark(void *user, gpusync_waiter *waiter)
{
}

/* A queue that has worked, and is drained: what is made at the first use is there. */
static gpusync_queue *drained_queue(void)
{
    gpusync_queue *queue = queue_of(device, 4 * REPEAT);
    for (unsigned i = 0; i < REPEAT; i++)
        ok(gpusync_commit(queue, open_buffer(queue), NULL));
    finish_queue(queue);
    ok(gpusync_wait(queue, GPUSYNC_EVERYTHING, 0, NULL));
    CALLGRIND_ZERO_STATS;
    return queue;
}

/* -- commits, handlers, polls, waits that need not wait ------------------------------------------------------------ */

static void run_commits(bool foreign)
{
    gpusync_queue *queue = drained_queue();
    for (unsigned i = 0; i < REPEAT; i++) {
        void *buffer = foreign ? metal_queue_command_buffer(gpusync_queue_metal(queue)) : open_buffer(queue);
        COUNTED(ok(gpusync_commit(queue, buffer, NULL)));
        if (foreign)
            metal_release(buffer);
    }
    dump(foreign ? "commit_foreign" : "commit", REPEAT);
    finish_queue(queue);
    dump(foreign ? "handler_foreign" : "handler", REPEAT);
    must(gpusync_in_flight(queue) == 0, "all handlers have run");
    ok(gpusync_queue_destroy(queue));
}

static void run_commits4(unsigned together, const char *name)
{
    gpusync_queue_desc desc = {.max_command_buffer_count = 2 * REPEAT * TOGETHER, .metal4 = true};
    void *metal = gpusync_device_metal(device);
    void *allocator = metal4_allocator_new(metal);
    gpusync_queue *queue;
    ok(gpusync_queue_create(device, &desc, &queue));
    for (unsigned i = 0; i <= REPEAT; i++) {
        void *work[TOGETHER];
        for (unsigned k = 0; k < together; k++) {
            work[k] = metal4_buffer_new(metal);
            metal4_begin(work[k], allocator);
            metal4_end(work[k]);
        }
        if (i == 1) /* the first one makes what stays */
            CALLGRIND_ZERO_STATS;
        COUNTED(ok(gpusync_commit4(queue, work, together, NULL)));
        for (unsigned k = 0; k < together; k++)
            metal_release(work[k]);
    }
    dump(name, REPEAT);
    finish_queue(queue);
    ok(gpusync_queue_destroy(queue));
    metal_release(allocator);
}

static void run_looks(void)
{
    gpusync_queue *queue = drained_queue();
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    ok(gpusync_timeline_create(device, NULL, &timeline));
    ok(gpusync_timeline_signal(timeline, 1));
    for (unsigned i = 0; i < REPEAT; i++)
        COUNTED(ok(gpusync_wait(queue, REPEAT, GPUSYNC_FOREVER, NULL)));
    dump("wait_ticket", REPEAT);
    for (unsigned i = 0; i < REPEAT; i++)
        COUNTED(ok(gpusync_wait(queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL)));
    dump("wait_everything", REPEAT);
    for (unsigned i = 0; i < REPEAT; i++)
        COUNTED(ok(gpusync_timeline_wait(timeline, 1, GPUSYNC_FOREVER, NULL)));
    dump("wait_value", REPEAT);
    ok(gpusync_commit(queue, open_buffer(queue), &ticket));
    for (unsigned i = 0; i <= REPEAT; i++) {
        if (i == 1) /* the first one binds symbols and caches */
            CALLGRIND_ZERO_STATS;
        COUNTED(must(gpusync_poll(queue, ticket, NULL) == GPUSYNC_NOT_READY, "the work runs"));
    }
    dump("poll", REPEAT);
    finish_queue(queue);
    ok(gpusync_queue_destroy(queue));
    ok(gpusync_timeline_destroy(timeline));
}

/* -- work between a value that work of another queue signals, and a signal ----------------------------------------- */

static void submit(gpusync_queue *queue, const gpusync_point *wait, void *work, const gpusync_point *signal)
{
    gpusync_submission submission = {
        .waits = wait, .wait_count = wait != NULL, .command_buffers = &work, .command_buffer_count = work != NULL,
        .signals = signal, .signal_count = 1,
    };
    ok(gpusync_submit(queue, &submission, NULL));
}

static void encode(gpusync_queue *queue, const gpusync_point *wait, void *work, const gpusync_point *signal)
{
    ok(gpusync_encode_wait(queue, work, *wait));
    ok(gpusync_encode_signal(queue, work, *signal));
    ok(gpusync_commit(queue, work, NULL));
}

static void run_submissions(bool encoded)
{
    gpusync_queue *producer = queue_of(device, 4 * REPEAT);
    gpusync_queue *consumer = queue_of(device, 4 * REPEAT);
    gpusync_timeline *before;
    gpusync_timeline *after;
    uint64_t value = 0;
    ok(gpusync_timeline_create(device, NULL, &before));
    ok(gpusync_timeline_create(device, NULL, &after));
    for (unsigned round = 0; round < 2; round++) {
        CALLGRIND_ZERO_STATS;
        for (unsigned i = 0; i < SUBMITTED; i++) {
            gpusync_point wait = gpusync_at_value(before, ++value);
            gpusync_point signal = gpusync_at_value(after, value);
            void *work = open_buffer(consumer);
            submit(producer, NULL, NULL, &wait);
            COUNTED((encoded ? encode : submit)(consumer, &wait, work, &signal));
            must(metal_status(work) >= 2, "the work is sent, not held");
        }
        dump(encoded ? "encode" : "submit", SUBMITTED);
        finish_queue(producer);
        finish_queue(consumer);
    }
    ok(gpusync_wait(consumer, GPUSYNC_EVERYTHING, 0, NULL));
    ok(gpusync_queue_destroy(producer));
    ok(gpusync_queue_destroy(consumer));
    ok(gpusync_timeline_destroy(before));
    ok(gpusync_timeline_destroy(after));
}

/* -- waits that sleep: the park hook has the work end, on this thread, so no count hangs on how threads meet ------- */

/* A whole life: made, committed, ended by its handler, waited for. */
static void run_whole(void)
{
    parked_on[0] = drained_queue();
    for (unsigned i = 0; i < 2 * REPEAT; i++) {
        gpusync_ticket ticket;
        if (i == REPEAT) /* the first ones make waiters */
            CALLGRIND_ZERO_STATS;
        COUNTED(ok(gpusync_commit(parked_on[0], open_buffer(parked_on[0]), &ticket));
                ok(gpusync_wait(parked_on[0], ticket, GPUSYNC_FOREVER, NULL)));
    }
    dump("whole", REPEAT);
    ok(gpusync_queue_destroy(parked_on[0]));
    parked_on[0] = NULL;
}

/* Tickets of work and values by turns. The park hook ends the work, and signals. */
static void run_many(const char *name, bool ended, bool asleep)
{
    gpusync_queue *queues[QUEUES];
    for (unsigned k = 0; k < QUEUES; k++) {
        parked_on[k] = queues[k] = drained_queue();
        ok(gpusync_timeline_create(device, NULL, &timelines[k]));
    }
    for (reached = 0; reached < 2 * POINTS;) {
        gpusync_ticket tickets[QUEUES];
        gpusync_point points[POINTS];
        for (unsigned k = 0; k < QUEUES; k++)
            ok(gpusync_commit(queues[k], open_buffer(queues[k]), &tickets[k]));
        for (unsigned i = 0; i < POINTS; i++)
            points[i] = i / QUEUES % 2 ? gpusync_at_value(timelines[i % QUEUES], reached + i + 1)
                                       : gpusync_at_ticket(queues[i % QUEUES], tickets[i % QUEUES]);
        if (ended)
            park(NULL, NULL, 0);
        CALLGRIND_ZERO_STATS;
        COUNTED(must(gpusync_wait_many(points, POINTS, GPUSYNC_WAIT_ALL, asleep ? GPUSYNC_FOREVER : 0, NULL, NULL) ==
                         (ended || asleep ? GPUSYNC_OK : GPUSYNC_TIMEOUT),
                     name));
        dump(name, POINTS);
        if (!ended && !asleep)
            park(NULL, NULL, 0);
    }
    for (unsigned k = 0; k < QUEUES; k++) {
        ok(gpusync_queue_destroy(queues[k]));
        ok(gpusync_timeline_destroy(timelines[k]));
        parked_on[k] = NULL;
        timelines[k] = NULL;
    }
}

int main(void)
{
    static const gpusync_spin none;
    gpusync_hooks hooks = {.park = park, .unpark = unpark};
    gpusync_device_desc desc = {.hooks = &hooks, .spin = &none};
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    ok(gpusync_device_create(&desc, &device));
    run_commits(false);
    run_commits(true);
    run_commits4(1, "commit4");
    run_commits4(TOGETHER, "submit4");
    run_looks();
    run_submissions(false);
    run_submissions(true);
    run_whole();
    run_many("many_ended", true, false);
    run_many("many_unmet", false, false);
    run_many("many_asleep", false, true);
    ok(gpusync_device_destroy(device));
    return 0;
}
