/* growth.c - one row of growth.sh: growth ROW N..., under valgrind --tool=callgrind --instr-atstart=no; a dump for each

   Between COUNT and counted() instructions are counted; then a row checks that they did what it says. Waits are fibers
   of one thread and softmetal's clock is the manual one, so the counts are the same on every run. */
#include "../fiber.h"

#include <string.h>

#include <valgrind/callgrind.h>
#include "common.h"

#define MOST 1000u
#define COUNT CALLGRIND_START_INSTRUMENTATION

static void counted(void)
{
    CALLGRIND_STOP_INSTRUMENTATION;
    CALLGRIND_DUMP_STATS;
}

static size_t n, over; /* callbacks, or waits */
static gpusync_device *device;
static gpusync_queue *queue;
static gpusync_timeline *timeline;
static gpusync_queue *queues[MOST];
static void *buffers[MOST];
static gpusync_ticket tickets[MOST];

/* One command buffer that waits for a value, if that is not 0, and signals 1 of another timeline, if there is one. 0: it is
   UNORDERED. */
static gpusync_ticket submit(gpusync_queue *to, gpusync_timeline *from, uint64_t value, gpusync_timeline *at,
                             uint32_t flags)
{
    gpusync_point before = gpusync_at_value(from, value), after = gpusync_at_value(at, 1);
    void *buffer = open_buffer(to);
    gpusync_submission submission = {
        .wait_points = &before, .wait_count = value != 0, .command_buffers = &buffer, .command_buffer_count = 1,
        .signal_points = &after, .signal_count = at != NULL, .flags = flags,
    };
    gpusync_ticket ticket = 0;
    ok(gpusync_submit(to, &submission, flags & GPUSYNC_SUBMIT_UNORDERED ? NULL : &ticket));
    return ticket;
}

/* A wait that sleeps, on this thread. No lock is kept: a handler that unparks runs while the thread stands in
   softmetal_finish_queue. */
typedef struct task {
    fiber_context context;
    uint64_t value;
    bool woken;
} task;

static fiber_context main_context;
static task *running;

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    waiter->scheduler_data[0] = running;
    fiber_switch(&running->context, &main_context);
}

static void unpark(void *user, gpusync_waiter *waiter)
{
    ((task *)waiter->scheduler_data[0])->woken = true;
}

static void enter(task *t)
{
    running = t;
    fiber_switch(&main_context, &t->context);
}

static void wait_for_value(void *of)
{
    task *t = (task *)of;
    ok(gpusync_timeline_wait(timeline, t->value, GPUSYNC_FOREVER, NULL));
    over++;
    fiber_switch(&t->context, &main_context);
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

static void signal_each(void)
{
    for (size_t i = 1; i <= n; i++) ok(gpusync_timeline_signal(timeline, i));
}

static void make_queues(void)
{
    for (size_t i = 0; i < n; i++) queues[i] = queue_of(device, 4);
}

/* How each ticket of the queue ended, or of one queue each; and all else has. */
static void must_have_ended(gpusync_queue *const *each, gpusync_result result)
{
    for (size_t i = 0; i < n; i++) {
        gpusync_queue *of = each ? each[i] : queue;
        finish_queue(of);
        must(!tickets[i] || gpusync_poll(of, tickets[i], NULL) == result, "how a ticket ended");
        must(gpusync_in_flight(of) == 0, "all has ended");
    }
}

static void on_value(void *user, gpusync_result result, const gpusync_error *error)
{
    over += result == GPUSYNC_OK;
}

static void row_callbacks(int falling)
{
    COUNT;
    for (size_t i = 1; i <= n; i++)
        ok(gpusync_on_done(gpusync_at_value(timeline, falling ? n + 1 - i : i), on_value, NULL));
    signal_each();
    ok(gpusync_device_run_callbacks(device, SIZE_MAX, NULL));
    counted();
    must(over == n, "every callback was called");
}

static void row_waits(int how)
{
    static task tasks[MOST];
    for (size_t i = 0; i < n; i++) {
        tasks[i].value = i + 1;
        tasks[i].woken = false;
        must(fiber_make(&tasks[i].context, 65536, wait_for_value, &tasks[i]), "a fiber");
    }
    COUNT;
    for (size_t i = 0; i < n; i++) enter(&tasks[i]);
    must(over == 0, "every wait sleeps");
    signal_each();
    for (size_t i = 0; i < n && tasks[i].woken; i++) enter(&tasks[i]);
    counted();
    must(over == n, "every wait is over");
}

static void row_queues(int how)
{
    make_queues();
    COUNT;
    for (size_t i = 0; i < n; i++) tickets[i] = submit(queues[i], timeline, i + 1, NULL, 0);
    signal_each();
    for (size_t i = 0; i < n; i++) finish_queue(queues[i]);
    counted();
    must_have_ended(queues, GPUSYNC_OK);
}

/* Queue i waits for 1 of one timeline, and signals 1 of the next. */
static void row_chain(int how)
{
    gpusync_timeline *from = timeline, *to;
    make_queues();
    for (size_t i = 0; i < n; i++, from = to) {
        ok(gpusync_timeline_create(device, NULL, &to));
        tickets[i] = submit(queues[i], from, 1, to, 0);
    }
    COUNT;
    ok(gpusync_timeline_fail(timeline, NULL));
    counted();
    must_have_ended(queues, GPUSYNC_ERROR_EXECUTION);
}

static void row_commits(int how)
{
    for (size_t i = 0; i < n; i++) buffers[i] = open_buffer(queue);
    COUNT;
    for (size_t i = 0; i < n; i++) ok(gpusync_commit(queue, buffers[i], &tickets[i]));
    counted();
    must_have_ended(NULL, GPUSYNC_OK);
}

/* Every second one is UNORDERED. */
static void hold_each(void)
{
    for (size_t i = 0; i < n; i++)
        tickets[i] = submit(queue, timeline, i + 1, NULL, i % 2 ? GPUSYNC_SUBMIT_UNORDERED : 0);
}

static void row_held(int how)
{
    COUNT;
    hold_each();
    signal_each();
    finish_queue(queue);
    counted();
    must_have_ended(NULL, GPUSYNC_OK);
}

static void row_cancel(int how)
{
    hold_each();
    COUNT;
    ok(gpusync_queue_cancel_held(queue, GPUSYNC_EVERYTHING));
    counted();
    must_have_ended(NULL, GPUSYNC_ERROR_CANCELLED);
}

/* The first half is sent, the second half held. */
static void row_abandon(int how)
{
    void *metal_queue = metal_retain(gpusync_queue_metal(queue));
    for (size_t i = 0; i < n; i++) tickets[i] = submit(queue, timeline, i < n / 2 ? 0 : i, NULL, 0);
    must(softmetal_outstanding(metal_queue) >= n, "the command buffers of all");
    COUNT;
    ok(gpusync_queue_abandon(queue));
    counted();
    must(softmetal_outstanding(metal_queue) == n / 2, "no command buffer of held work is left");
}

static void row_poll(int held)
{
    gpusync_ticket last;
    gpusync_result result;
    for (size_t i = 0; i < n; i++) tickets[i] = submit(queue, timeline, held, NULL, GPUSYNC_SUBMIT_UNORDERED);
    ok(gpusync_commit(queue, open_buffer(queue), &last));
    COUNT;
    result = gpusync_poll(queue, last, NULL);
    counted();
    must(result == GPUSYNC_NOT_READY, "the work runs");
}

static void row_report(int how)
{
    char text[64];
    for (size_t i = 0; i < n; i++) tickets[i] = submit(queue, timeline, how, NULL, 0);
    COUNT;
    size_t length = gpusync_device_report(device, text, sizeof text);
    counted();
    must(length > 20 * n, "a line for each ticket");
}

static const struct {
    const char *name;
    void (*run)(int how);
    int how;
} rows[] = {
    {"callbacks", row_callbacks, 0}, {"callbacks_falling", row_callbacks, 1}, {"waits", row_waits, 0},
    {"queues", row_queues, 0},       {"chain", row_chain, 0},                 {"commits", row_commits, 0},
    {"held", row_held, 0},           {"cancel", row_cancel, 0},               {"abandon", row_abandon, 0},
    {"poll", row_poll, 0},           {"poll_held", row_poll, 1},              {"report", row_report, 0},
};
#define ROWS (sizeof rows / sizeof rows[0])

/* Each size has a device of its own, new; what it leaves is not destroyed. */
int main(int argc, char **argv)
{
    static const gpusync_spin none = {0, 0, 0};
    static const gpusync_hooks hooks = {NULL, park, unpark, NULL};
    gpusync_device_desc desc = {.hooks = &hooks, .spin = &none, .callback_mode = GPUSYNC_CALLBACKS_MANUAL};
    size_t row = 0;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    while (row < ROWS && strcmp(rows[row].name, argv[1])) row++;
    for (int i = 2; i < argc; i++) {
        n = strtoul(argv[i], NULL, 10);
        must(row < ROWS && n > 0 && n <= MOST, "usage: growth ROW N..., each N up to 1000");
        desc.metal_device = softmetal_new_device();
        ok(gpusync_device_create(&desc, &device));
        queue = queue_of(device, 4 * n + 8);
        ok(gpusync_timeline_create(device, NULL, &timeline));
        over = 0;
        rows[row].run(rows[row].how);
    }
    _exit(0);
}
