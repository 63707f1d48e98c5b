/* counts.c - what the calls of gpusync.h cost, in instructions

   Under valgrind --tool=callgrind, which is given the functions to collect (counts.sh does that):
     counts calls   one dump for each scenario, of the calls alone
     counts whole   one dump of all that a command buffer's life costs

   The manual clock, so that nothing else runs and every run counts the same. */
#include <stdlib.h>
#include <string.h>

#include <valgrind/callgrind.h>
#include "common.h"

#define REPEAT 50u
#define SUBMITTED 30u /* in flight at a time */

static gpusync_device *device;
static gpusync_queue *parked_on; /* a wait of this thread sleeps for its work, which ends in the park hook */

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    finish_queue(parked_on);
}

static void unpark(void *user, gpusync_waiter *waiter)
{
}

/* A queue that has worked, and is drained: what is made at the first use is there. */
static gpusync_queue *drained_queue(void)
{
    gpusync_queue *queue = queue_of(device, 4 * REPEAT);
    unsigned i;
    for (i = 0; i < REPEAT; i++)
        ok(gpusync_commit(queue, open_buffer(queue), NULL));
    finish_queue(queue);
    ok(gpusync_wait(queue, GPUSYNC_EVERYTHING, 0, NULL));
    return queue;
}

/* -- commits, polls, handlers ------------------------------------------------------------------------------------- */

static void run_commits(bool foreign)
{
    gpusync_queue *queue = drained_queue();
    unsigned i;
    CALLGRIND_ZERO_STATS;
    for (i = 0; i < REPEAT; i++) {
        void *buffer = foreign ? metal_queue_command_buffer(gpusync_queue_metal(queue)) : open_buffer(queue);
        ok(gpusync_commit(queue, buffer, NULL));
        if (foreign)
            metal_release(buffer);
    }
    CALLGRIND_DUMP_STATS_AT(foreign ? "commit_foreign" : "commit");
    CALLGRIND_ZERO_STATS;
    finish_queue(queue);
    CALLGRIND_DUMP_STATS_AT(foreign ? "handler_foreign" : "handler");
    must(gpusync_in_flight(queue) == 0, "all handlers have run");
    ok(gpusync_queue_destroy(queue));
}

static void run_polls(void)
{
    gpusync_queue *queue = drained_queue();
    gpusync_ticket ticket;
    unsigned i;
    ok(gpusync_commit(queue, open_buffer(queue), &ticket));
    for (i = 0; i <= REPEAT; i++) {
        if (i == 1) /* the first one binds symbols and caches */
            CALLGRIND_ZERO_STATS;
        must(gpusync_poll(queue, ticket, NULL) == GPUSYNC_NOT_READY, "the work runs");
    }
    CALLGRIND_DUMP_STATS_AT("poll");
    finish_queue(queue);
    ok(gpusync_queue_destroy(queue));
}

/* -- submissions: one command buffer between a value that work of another queue signals, and a signal ------------- */

__attribute__((noinline)) void count_submit(gpusync_queue *queue, const gpusync_submission *submission);
void count_submit(gpusync_queue *queue, const gpusync_submission *submission)
{
    ok(gpusync_submit(queue, submission, NULL));
}

static void run_submissions(void)
{
    gpusync_queue *producer = queue_of(device, 4 * REPEAT);
    gpusync_queue *consumer = queue_of(device, 4 * REPEAT);
    gpusync_timeline *before;
    gpusync_timeline *after;
    uint64_t value = 0;
    unsigned round;
    unsigned i;
    ok(gpusync_timeline_create(device, NULL, &before));
    ok(gpusync_timeline_create(device, NULL, &after));
    for (round = 0; round < 2; round++) { /* the first one makes room */
        CALLGRIND_ZERO_STATS;
        for (i = 0; i < SUBMITTED; i++) {
            gpusync_point wait = gpusync_at_value(before, ++value);
            gpusync_point signal = gpusync_at_value(after, value);
            void *work = open_buffer(consumer);
            gpusync_submission submission;
            memset(&submission, 0, sizeof submission);
            submission.signals = &wait;
            submission.signal_count = 1;
            ok(gpusync_submit(producer, &submission, NULL));
            memset(&submission, 0, sizeof submission);
            submission.waits = &wait;
            submission.wait_count = 1;
            submission.command_buffers = &work;
            submission.command_buffer_count = 1;
            submission.signals = &signal;
            submission.signal_count = 1;
            count_submit(consumer, &submission);
            must(metal_status(work) >= 2, "the work is sent, not held");
        }
        CALLGRIND_DUMP_STATS_AT(round ? "submit" : "warm");
        finish_queue(producer);
        finish_queue(consumer);
    }
    ok(gpusync_wait(consumer, GPUSYNC_EVERYTHING, 0, NULL));
    ok(gpusync_queue_destroy(producer));
    ok(gpusync_queue_destroy(consumer));
    ok(gpusync_timeline_destroy(before));
    ok(gpusync_timeline_destroy(after));
}

/* -- a whole life: made, committed, ended by its handler, waited for asleep. The park hook of the wait has the work
   end, on this thread: so no count hangs on how threads meet. --------------------------------------------------- */

static void run_whole(void)
{
    unsigned i;
    parked_on = drained_queue();
    for (i = 0; i < 2 * REPEAT; i++) {
        gpusync_ticket ticket;
        if (i == REPEAT) /* the first ones make waiters */
            CALLGRIND_ZERO_STATS;
        ok(gpusync_commit(parked_on, open_buffer(parked_on), &ticket));
        ok(gpusync_wait(parked_on, ticket, GPUSYNC_FOREVER, NULL));
    }
    CALLGRIND_DUMP_STATS_AT("whole");
    ok(gpusync_queue_destroy(parked_on));
}

int main(int argc, char **argv)
{
    gpusync_spin none;
    gpusync_hooks hooks;
    gpusync_device_desc desc;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    memset(&none, 0, sizeof none);
    memset(&hooks, 0, sizeof hooks);
    memset(&desc, 0, sizeof desc);
    hooks.park = park;
    hooks.unpark = unpark;
    desc.hooks = &hooks;
    desc.spin = &none;
    ok(gpusync_device_create(&desc, &device));
    if (argc > 1 && strcmp(argv[1], "whole") == 0) {
        run_whole();
    } else {
        run_commits(false);
        run_commits(true);
        run_polls();
        run_submissions();
    }
    ok(gpusync_device_destroy(device));
    return 0;
}
