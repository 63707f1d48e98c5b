/* growth.c - one row of growth.sh: growth ROW N..., under valgrind --tool=callgrind --instr-atstart=no; a dump for each N

   What a row makes is not counted, what it acts is; then it checks that the act did what the row says. Waits are fibers
   of one thread and softmetal's clock is the manual one, so the counts are the same on every run. */
#include "fiber.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <valgrind/callgrind.h>

#include <gpusync.h>
#include "metal.h"
#include "softmetal.h"

static void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "growth: failed: %s\n", what);
    _exit(1);
}
#define ok(call) must((call) == GPUSYNC_OK, #call)

static size_t n, called, over; /* callbacks, waits */
static gpusync_device *device;
static gpusync_queue *queue, **queues;
static gpusync_timeline *timeline, **timelines;
static void **buffers;
static gpusync_ticket last, *tickets;

static void *array_of(size_t size)
{
    void *array = calloc(n + 1, size);
    must(array != NULL, "memory");
    return array;
}

static gpusync_queue *queue_of(size_t buffers_most)
{
    gpusync_queue *made;
    gpusync_queue_desc desc = {0};
    desc.max_command_buffer_count = (uint32_t)buffers_most;
    desc.error_log_count = (uint32_t)buffers_most; /* a failure that is dropped could not be checked */
    ok(gpusync_queue_create(device, &desc, &made));
    return made;
}

static void *open_buffer(gpusync_queue *of)
{
    void *buffer;
    ok(gpusync_command_buffer_create(of, NULL, 0, &buffer));
    return buffer;
}

/* One command buffer between a wait and a signal; 0: without. */
static gpusync_ticket submit(gpusync_queue *to, gpusync_timeline *from, uint64_t wait, gpusync_timeline *at,
                             uint64_t signal, uint32_t flags)
{
    gpusync_point before = gpusync_at_value(from, wait), after = gpusync_at_value(at, signal);
    gpusync_submission submission = {0};
    gpusync_ticket ticket;
    void *buffer = open_buffer(to);
    submission.waits = &before;
    submission.wait_count = wait != 0;
    submission.signals = &after;
    submission.signal_count = signal != 0;
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.flags = flags;
    ok(gpusync_submit(to, &submission, &ticket));
    return ticket;
}

static void finish_queue(gpusync_queue *of)
{
    softmetal_finish_queue(gpusync_queue_metal(of));
}

/* -- fibers: waits that sleep, all on this thread. The hooks keep no lock: a handler that unparks runs while this thread
   stands in softmetal_finish. ------------------------------------------------------------------------------------ */

typedef struct task {
    fiber_context context;
    size_t index;
    bool parked, woken;
    struct task *next;
} task;

static fiber_context main_context;
static task *tasks, *running, *first_ready, **last_ready = &first_ready;

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    task *t = running;
    (void)user;
    (void)deadline_ns;
    if (!t) return; /* a destroy: it comes back */
    waiter->scheduler_data[0] = t;
    t->parked = true;
    if (!t->woken) fiber_switch(&t->context, &main_context);
    t->parked = t->woken = false;
}

static void unpark(void *user, gpusync_waiter *waiter)
{
    task *t = (task *)waiter->scheduler_data[0];
    (void)user;
    if (!t) return;
    t->woken = true;
    t->next = NULL;
    *last_ready = t;
    last_ready = &t->next;
}

static void enter(task *t)
{
    running = t;
    fiber_switch(&main_context, &t->context);
    running = NULL;
}

static void run_ready(void)
{
    while (first_ready) {
        task *t = first_ready;
        first_ready = t->next;
        if (!first_ready) last_ready = &first_ready;
        enter(t);
    }
}

static void wait_for_value(void *of)
{
    task *t = (task *)of;
    ok(gpusync_timeline_wait(timeline, t->index + 1, GPUSYNC_FOREVER, NULL));
    over++;
    fiber_switch(&t->context, &main_context);
}

/* -- what rows make ------------------------------------------------------------------------------------------------ */

static void make_nothing(void)
{
}

static void make_tasks(void)
{
    size_t i;
    fiber_of_thread(&main_context);
    tasks = (task *)array_of(sizeof *tasks);
    for (i = 0; i < n; i++) {
        tasks[i].index = i;
        must(fiber_make(&tasks[i].context, 65536, wait_for_value, &tasks[i]), "a fiber");
    }
}

static void make_queues(void)
{
    size_t i;
    queues = (gpusync_queue **)array_of(sizeof *queues);
    for (i = 0; i < n; i++) queues[i] = queue_of(4);
}

/* Queue i waits for 1 of timeline i, and signals 1 of timeline i + 1. */
static void make_chain(void)
{
    size_t i;
    make_queues();
    timelines = (gpusync_timeline **)array_of(sizeof *timelines);
    for (i = 0; i <= n; i++) ok(gpusync_timeline_create(device, NULL, &timelines[i]));
    for (i = 0; i < n; i++) tickets[i] = submit(queues[i], timelines[i], 1, timelines[i + 1], 1, 0);
}

static void make_open(void)
{
    size_t i;
    for (i = 0; i < n; i++) buffers[i] = open_buffer(queue);
}

static void make_held(void)
{
    size_t i;
    for (i = 0; i < n; i++) tickets[i] = submit(queue, timeline, i + 1, NULL, 0, i % 2 ? GPUSYNC_SUBMIT_UNORDERED : 0);
}

/* The first half is sent, the second half held. */
static void make_halves(void)
{
    size_t i;
    for (i = 0; i < n; i++) tickets[i] = submit(queue, timeline, i < n / 2 ? 0 : i, NULL, 0, 0);
}

static void make_unordered(bool held)
{
    size_t i;
    for (i = 0; i < n; i++) tickets[i] = submit(queue, timeline, held, NULL, 0, GPUSYNC_SUBMIT_UNORDERED);
    ok(gpusync_commit(queue, open_buffer(queue), &last));
}

static void make_unordered_sent(void)
{
    make_unordered(false);
}

static void make_unordered_held(void)
{
    make_unordered(true);
}

/* -- what is counted, and checked ---------------------------------------------------------------------------------- */

static void signal_each(void)
{
    size_t i;
    for (i = 1; i <= n; i++) ok(gpusync_timeline_signal(timeline, i));
}

static void on_value(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)error;
    called += result == GPUSYNC_OK;
}

static void callbacks(bool rising)
{
    size_t i;
    for (i = 1; i <= n; i++) ok(gpusync_on_done(gpusync_at_value(timeline, rising ? i : n + 1 - i), on_value, NULL));
    signal_each();
    ok(gpusync_device_run_callbacks(device, SIZE_MAX, NULL));
}

static void act_callbacks(void)
{
    callbacks(true);
}

static void act_callbacks_falling(void)
{
    callbacks(false);
}

static void check_callbacks(void)
{
    must(called == n, "every callback was called");
}

static void act_waits(void)
{
    size_t i;
    for (i = 0; i < n; i++) enter(&tasks[i]);
    must(over == 0, "every wait sleeps");
    signal_each();
    run_ready();
}

static void check_waits(void)
{
    must(over == n, "every wait is over");
}

static void act_queues(void)
{
    size_t i;
    for (i = 0; i < n; i++) tickets[i] = submit(queues[i], timeline, i + 1, NULL, 0, 0);
    signal_each();
    for (i = 0; i < n; i++) finish_queue(queues[i]);
}

static void queues_ended(gpusync_result result)
{
    size_t i;
    for (i = 0; i < n; i++) must(gpusync_poll(queues[i], tickets[i], NULL) == result, "how a queue's work ended");
}

static void check_queues(void)
{
    queues_ended(GPUSYNC_OK);
}

static void act_chain(void)
{
    ok(gpusync_timeline_fail(timelines[0], NULL));
}

static void check_chain(void)
{
    queues_ended(GPUSYNC_ERROR_EXECUTION);
}

static void act_commits(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_commit(queue, buffers[i], &tickets[i]));
}

static void ended(gpusync_result result)
{
    size_t i;
    finish_queue(queue);
    for (i = 0; i < n; i++) must(gpusync_poll(queue, tickets[i], NULL) == result, "how a ticket ended");
}

static void check_done(void)
{
    ended(GPUSYNC_OK);
}

static void act_held(void)
{
    make_held();
    signal_each();
    finish_queue(queue);
}

static void act_cancel(void)
{
    ok(gpusync_queue_cancel_held(queue));
}

static void check_cancelled(void)
{
    ended(GPUSYNC_ERROR_CANCELLED);
}

static void act_abandon(void)
{
    ok(gpusync_queue_abandon(queue));
}

static void act_poll(void)
{
    must(gpusync_poll(queue, last, NULL) == GPUSYNC_NOT_READY, "the work runs");
}

static void act_wait(void)
{
    must(gpusync_wait(queue, last, 0, NULL) == GPUSYNC_TIMEOUT, "the work runs");
}

static const struct {
    const char *name;
    void (*make)(void), (*act)(void), (*check)(void);
} rows[] = {
    {"callbacks", make_nothing, act_callbacks, check_callbacks},
    {"callbacks_falling", make_nothing, act_callbacks_falling, check_callbacks},
    {"waits", make_tasks, act_waits, check_waits},
    {"queues", make_queues, act_queues, check_queues},
    {"chain", make_chain, act_chain, check_chain},
    {"commits", make_open, act_commits, check_done},
    {"held", make_nothing, act_held, check_done},
    {"cancel", make_held, act_cancel, check_cancelled},
    {"abandon", make_halves, act_abandon, make_nothing},
    {"poll", make_unordered_sent, act_poll, make_nothing},
    {"poll_held", make_unordered_held, act_poll, make_nothing},
    {"wait", make_unordered_sent, act_wait, make_nothing},
};

/* Each size has a device of its own, new; what it leaves is not destroyed. */
static void make_world(void)
{
    static const gpusync_spin none = {0, 0, 0};
    static const gpusync_hooks hooks = {NULL, park, unpark, NULL};
    gpusync_device_desc desc = {0};
    desc.metal_device = softmetal_new_device();
    desc.hooks = &hooks;
    desc.spin = &none;
    desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    ok(gpusync_device_create(&desc, &device));
    queue = queue_of(4 * n + 8);
    ok(gpusync_timeline_create(device, NULL, &timeline));
    buffers = (void **)array_of(sizeof *buffers);
    tickets = (gpusync_ticket *)array_of(sizeof *tickets);
    called = over = 0;
}

int main(int argc, char **argv)
{
    size_t row = 0;
    int i;
    must(argc > 2, "usage: growth ROW N...");
    while (row < sizeof rows / sizeof rows[0] && strcmp(rows[row].name, argv[1])) row++;
    must(row < sizeof rows / sizeof rows[0], "there is no such row");
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    for (i = 2; i < argc; i++) {
        n = strtoul(argv[i], NULL, 10);
        make_world();
        rows[row].make();
        CALLGRIND_START_INSTRUMENTATION;
        rows[row].act();
        CALLGRIND_STOP_INSTRUMENTATION;
        CALLGRIND_DUMP_STATS;
        rows[row].check();
    }
    _exit(0);
}
