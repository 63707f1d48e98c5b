/* growth.c - how the cost of gpusync's calls grows with the number of things at hand

   growth list          the rows: name, and what is counted
   growth ROW N         one row at one size, under valgrind --tool=callgrind --instr-atstart=no: a dump of the
                        instructions of what is measured. Of a row that counts wakes: without valgrind; prints them

   A row makes its world, acts (this is measured), and checks that the act did what it should. It calls public functions
   of gpusync alone. Counts are the same on every run: waits are fibers of one thread, softmetal's clock is the manual
   one, and gpusync's own clock all but stands still. */
#include "../../../examples/fiber.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <valgrind/callgrind.h>

#include "../../../examples/metal.h"
#include "gpusync.h" /* of the repository, or another one */
#include "../../softmetal/softmetal.h"

static void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "growth: failed: %s\n", what);
    _exit(1);
}

static void must_be(gpusync_result got, gpusync_result expected, const char *call)
{
    if (got == expected) return;
    fprintf(stderr, "growth: failed: %s: %s\n", call, gpusync_result_string(got));
    _exit(1);
}
#define ok(call) must_be((call), GPUSYNC_OK, #call)

static void *array_of(size_t count, size_t size)
{
    void *array = calloc(count + 1, size);
    must(array != NULL, "memory");
    return array;
}

/* -- calls whose shape may change: each is called from here alone --------------------------------------- */

static gpusync_result ticket_callback(gpusync_queue *queue, gpusync_ticket ticket, gpusync_done_fn fn, void *user)
{
    return gpusync_on_done(gpusync_at_ticket(queue, ticket), fn, user);
}

static gpusync_result value_callback(gpusync_timeline *timeline, uint64_t value, gpusync_done_fn fn, void *user)
{
    return gpusync_on_done(gpusync_at_value(timeline, value), fn, user);
}

static gpusync_result import_event(gpusync_device *device, void *event, gpusync_timeline **out)
{
    gpusync_timeline_desc desc = {0};
    desc.shared_event = event;
    return gpusync_timeline_create(device, &desc, out);
}

static gpusync_result wait_for_all(const gpusync_point *points, size_t count)
{
    return gpusync_wait_many(points, count, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL);
}

/* -- time ------------------------------------------------------------------------------------------------ */

static bool real_time;
static uint64_t unreal_now = 1000000000u;

int growth_clock(clockid_t clock, struct timespec *now);

/* gpusync's clock. A nanosecond a look, so that no two times are the same; sleeping makes it pass. */
int growth_clock(clockid_t clock, struct timespec *now)
{
    uint64_t ns;
    if (real_time) return clock_gettime(clock, now);
    ns = __atomic_add_fetch(&unreal_now, 1, __ATOMIC_SEQ_CST);
    now->tv_sec = (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}

/* -- tasks: waits as fibers of the main thread ----------------------------------------------------------- */

#define STACK_SIZE (64 * 1024)
#define TIME_LIMIT_NS 10000000000u /* of waits in vain */

typedef struct task {
    fiber_context context;
    void (*body)(struct task *);
    size_t index;
    gpusync_waiter *waiter; /* parked on it */
    uint64_t deadline;
    struct task *next; /* ready */
} task;

static pthread_mutex_t task_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unparked;
static fiber_context main_context;
static task *tasks, *running, *first_ready, *last_ready;
static size_t task_count, living;
static unsigned long park_returns;
static char permit; /* its address in scheduler_data: an unpark that came first */

/* With the lock. */
static void push_ready(task *t)
{
    t->waiter = NULL;
    t->next = NULL;
    if (first_ready) last_ready->next = t;
    else first_ready = t;
    last_ready = t;
}

/* Destroy's waits, on a thread: they come back now and then, as they may. */
static void park_thread(gpusync_waiter *waiter, uint64_t deadline_ns)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&task_lock);
    while (waiter->scheduler_data[0] != &permit && !pthread_cond_timedwait(&unparked, &task_lock, &at)) {
    }
    if (waiter->scheduler_data[0] == &permit) waiter->scheduler_data[0] = NULL;
    else if (!real_time && deadline_ns != GPUSYNC_FOREVER) __atomic_store_n(&unreal_now, deadline_ns, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&task_lock);
}

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    task *t = running;
    bool free_to_go;
    (void)user;
    if (!t) {
        park_thread(waiter, deadline_ns);
        return;
    }
    pthread_mutex_lock(&task_lock);
    free_to_go = waiter->scheduler_data[0] == &permit;
    waiter->scheduler_data[0] = free_to_go ? NULL : t;
    if (!free_to_go) {
        t->waiter = waiter;
        t->deadline = deadline_ns;
    }
    pthread_mutex_unlock(&task_lock);
    if (!free_to_go) fiber_switch(&t->context, &main_context);
    park_returns++;
}

static void unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    pthread_mutex_lock(&task_lock);
    if (waiter->scheduler_data[0] && waiter->scheduler_data[0] != &permit) {
        push_ready((task *)waiter->scheduler_data[0]);
        waiter->scheduler_data[0] = NULL;
    } else {
        waiter->scheduler_data[0] = &permit;
    }
    pthread_cond_broadcast(&unparked);
    pthread_mutex_unlock(&task_lock);
}

static void task_main(void *argument)
{
    task *t = (task *)argument;
    t->body(t);
    living--;
    fiber_switch(&t->context, &main_context);
}

static void enter(task *t)
{
    running = t;
    fiber_switch(&main_context, &t->context);
    running = NULL;
}

static task *pop_ready(void)
{
    task *t;
    pthread_mutex_lock(&task_lock);
    t = first_ready;
    if (t) first_ready = t->next;
    pthread_mutex_unlock(&task_lock);
    return t;
}

/* Until every task is parked or over. */
static void run_ready(void)
{
    task *t;
    while ((t = pop_ready()) != NULL) enter(t);
}

/* Their stacks are made before anything is measured. */
static void make_tasks(size_t count, void (*body)(task *))
{
    size_t i;
    tasks = (task *)array_of(count, sizeof *tasks);
    task_count = count;
    for (i = 0; i < count; i++) {
        tasks[i].body = body;
        must(fiber_make(&tasks[i].context, STACK_SIZE, task_main, &tasks[i]), "a fiber");
    }
}

/* Until it parks. */
static void start_task(size_t k, size_t index)
{
    tasks[k].index = index;
    living++;
    enter(&tasks[k]);
}

static void all_tasks_over(void)
{
    run_ready();
    must(living == 0, "every wait is over");
    while (task_count) fiber_free(&tasks[--task_count].context);
}

/* The earliest deadline of those that sleep; those that have passed are ready. With the lock. */
static uint64_t expire(void)
{
    uint64_t now = gpusync_now_ns(), earliest = GPUSYNC_FOREVER;
    size_t i;
    for (i = 0; i < task_count; i++) {
        task *t = &tasks[i];
        if (!t->waiter) continue;
        if (t->deadline <= now) {
            t->waiter->scheduler_data[0] = NULL;
            push_ready(t);
        } else if (t->deadline < earliest) {
            earliest = t->deadline;
        }
    }
    return earliest;
}

/* On the real clock, until they are all over. */
static void run_by_the_clock(void)
{
    while (living) {
        uint64_t earliest;
        struct timespec at;
        run_ready();
        pthread_mutex_lock(&task_lock);
        earliest = expire();
        at.tv_sec = (time_t)(earliest / 1000000000u);
        at.tv_nsec = (long)(earliest % 1000000000u);
        while (living && !first_ready && pthread_cond_timedwait(&unparked, &task_lock, &at) != ETIMEDOUT) {
        }
        pthread_mutex_unlock(&task_lock);
    }
}

/* -- the world of a row ---------------------------------------------------------------------------------- */

typedef enum order { RISING, FALLING, SHUFFLED } order;

typedef struct row {
    const char *name;
    void (*make)(void);
    void (*act)(void);   /* measured */
    void (*check)(void); /* that the act did what the row says */
    order order;         /* ... in which the targets are registered */
} row;

static const row *current;
static size_t n;
static size_t *place; /* the row's order: each of 0..n-1 once */
static gpusync_device *device;
static gpusync_queue *queue, *other, **queues;
static gpusync_timeline *timeline, *second, **timelines;
static void **buffers;
static gpusync_ticket *tickets;
static gpusync_point *points, *signals;
static size_t called, called_badly; /* callbacks */

/* Every command buffer that the program or gpusync committed, in that order, retained. */
static void **committed;
static size_t committed_count, committed_room, ended_count;

static void see_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_AFTER || strcmp(selector, "commit")) return;
    pthread_mutex_lock(&task_lock);
    must(committed_count < committed_room, "not so many commits");
    committed[committed_count++] = metal_retain(object);
    pthread_mutex_unlock(&task_lock);
}

static void end_one(void)
{
    must(ended_count < committed_count, "there is something to end");
    softmetal_finish(committed[ended_count]);
    metal_release(committed[ended_count++]);
}

/* What is committed meanwhile as well. */
static void end_all(void)
{
    while (ended_count < committed_count) end_one();
}

static void make_places(void)
{
    uint64_t seed = 88172645463325252u;
    size_t i;
    place = (size_t *)array_of(n, sizeof *place);
    for (i = 0; i < n; i++) place[i] = current->order == FALLING ? n - 1 - i : i;
    if (current->order != SHUFFLED) return;
    for (i = n; i > 1; i--) {
        size_t k, swapped = place[i - 1];
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        k = (size_t)(seed % i);
        place[i - 1] = place[k];
        place[k] = swapped;
    }
}

static gpusync_queue *open_queue_with_log(size_t most_buffers, size_t failures)
{
    gpusync_queue *opened;
    gpusync_queue_desc desc = {0};
    desc.max_command_buffer_count = (uint32_t)most_buffers;
    desc.error_log_count = (uint32_t)failures;
    ok(gpusync_queue_create(device, &desc, &opened));
    return opened;
}

static gpusync_queue *open_queue(size_t most_buffers)
{
    return open_queue_with_log(most_buffers, 0);
}

#define FLIGHT 1000 /* of one_end_among_... */

/* Room for command buffers of gpusync's own too, and an eighth that is kept free of what is held. */
static size_t large(void)
{
    return 8 * n + 200 + FLIGHT;
}

static gpusync_queue *open_large_queue(void)
{
    return open_queue(large());
}

static gpusync_timeline *open_timeline(void)
{
    gpusync_timeline *opened;
    ok(gpusync_timeline_create(device, NULL, &opened));
    return opened;
}

/* Callbacks run in gpusync_dispatch. */
static void open_world(void)
{
    static const gpusync_spin none = {0, 0, 0, false};
    gpusync_device_desc desc = {0};
    gpusync_hooks hooks = {0};
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&unparked, &attributes);
    fiber_of_thread(&main_context);
    softmetal_reset();
    softmetal_set_clock(real_time ? SOFTMETAL_REAL : SOFTMETAL_MANUAL);
    hooks.park = park;
    hooks.unpark = unpark;
    desc.hooks = &hooks;
    desc.spin = &none;
    desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    ok(gpusync_device_create(&desc, &device));
    queues = (gpusync_queue **)array_of(n, sizeof *queues);
    timelines = (gpusync_timeline **)array_of(n, sizeof *timelines);
    buffers = (void **)array_of(n, sizeof *buffers);
    tickets = (gpusync_ticket *)array_of(n, sizeof *tickets);
    points = (gpusync_point *)array_of(n, sizeof *points);
    signals = (gpusync_point *)array_of(n, sizeof *signals);
    committed_room = large();
    committed = (void **)array_of(committed_room, sizeof *committed);
    softmetal_set_message_hook(see_commit, NULL);
    make_places();
    queue = open_large_queue();
    timeline = open_timeline();
}

static gpusync_point value_point(gpusync_timeline *of, uint64_t value)
{
    gpusync_point point = {0};
    point.timeline = of;
    point.value = value;
    return point;
}

static gpusync_point ticket_point(gpusync_queue *of, gpusync_ticket ticket)
{
    gpusync_point point = {0};
    point.queue = of;
    point.ticket = ticket;
    return point;
}

/* A command buffer that waits; with a signal no command buffer, only the two. */
static gpusync_ticket submit(gpusync_queue *to, const gpusync_point *wait, const gpusync_point *signal, uint32_t flags)
{
    gpusync_submission submission = {0};
    gpusync_ticket ticket;
    void *work;
    if (!signal) {
        ok(gpusync_command_buffer(to, NULL, &work));
        submission.command_buffers = &work;
        submission.command_buffer_count = 1;
    }
    submission.waits = wait;
    submission.wait_count = 1;
    submission.signals = signal;
    submission.signal_count = signal ? 1 : 0;
    submission.flags = flags;
    ok(gpusync_submit(to, &submission, &ticket));
    return ticket;
}

/* One command buffer between waits and signals. */
static gpusync_ticket submit_between(gpusync_queue *to, const gpusync_point *before, size_t before_count, void *work,
                                     const gpusync_point *after, size_t after_count)
{
    gpusync_submission submission = {0};
    gpusync_ticket ticket;
    submission.waits = before;
    submission.wait_count = before_count;
    submission.command_buffers = &work;
    submission.command_buffer_count = 1;
    submission.signals = after;
    submission.signal_count = after_count;
    ok(gpusync_submit(to, &submission, &ticket));
    return ticket;
}

/* A command buffer whose end signals this value of `timeline`. */
static gpusync_ticket submit_signal(gpusync_queue *to, void *work, uint64_t value)
{
    gpusync_point signal = value_point(timeline, value);
    return submit_between(to, NULL, 0, work, &signal, 1);
}

static void encode_signal(gpusync_queue *to, void *work, uint64_t value)
{
    ok(gpusync_encode_signal(to, work, value_point(timeline, value)));
}

static void *open_buffer(gpusync_queue *of)
{
    void *buffer;
    ok(gpusync_command_buffer(of, NULL, &buffer));
    return buffer;
}

/* Command buffers that gpusync did not make. */
static void make_buffers_elsewhere(void)
{
    size_t i;
    for (i = 0; i < n; i++) buffers[i] = metal_queue_command_buffer(gpusync_queue_metal(queue));
}

static void done(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)error;
    __atomic_add_fetch(&called, 1, __ATOMIC_SEQ_CST);
    if (result) __atomic_add_fetch(&called_badly, 1, __ATOMIC_SEQ_CST);
}

static void dispatch_all(void)
{
    ok(gpusync_dispatch(device, SIZE_MAX, NULL));
}

/* -- acts ------------------------------------------------------------------------------------------------- */

static void act_open(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_command_buffer(queue, NULL, &buffers[i]));
}

static void act_discard(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_command_buffer_discard(queue, buffers[place[i]]));
}

static void act_commit(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_commit(queue, buffers[place[i]], &tickets[i]));
}

static void act_track(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_track(queue, buffers[i], &tickets[i]));
}

static void act_poll(void)
{
    size_t i;
    for (i = 0; i < n; i++) must_be(gpusync_poll(queue, tickets[i]), GPUSYNC_NOT_READY, "poll");
}

static void act_end_one(void)
{
    end_one();
    run_ready();
    dispatch_all();
}

static void act_end_all(void)
{
    end_all();
    run_ready();
    dispatch_all();
}

static void act_on_done(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(ticket_callback(queue, tickets[place[i]], done, NULL));
    act_end_all();
}

static void act_on_done_of_one(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(ticket_callback(queue, tickets[0], done, NULL));
    act_end_all();
}

static void act_start_tasks(void)
{
    size_t i;
    for (i = 0; i < task_count; i++) start_task(i, place[i]);
}

static void act_tasks_until_end(void)
{
    act_start_tasks();
    act_end_all();
}

static void act_signal_one(void)
{
    ok(gpusync_timeline_signal(timeline, 1));
    run_ready();
    dispatch_all();
}

static void act_signal_each(void)
{
    size_t i;
    for (i = 1; i <= n; i++) ok(gpusync_timeline_signal(timeline, i));
    run_ready();
    dispatch_all();
}

static void act_tasks_until_signals(void)
{
    act_start_tasks();
    act_signal_each();
}

static void signal_timelines(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_timeline_signal(timelines[i], 1));
}

static void act_signal_timelines(void)
{
    act_start_tasks();
    signal_timelines();
    run_ready();
}

static void act_time_out(void)
{
    act_start_tasks();
    __atomic_add_fetch(&unreal_now, TIME_LIMIT_NS, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&task_lock);
    (void)expire();
    pthread_mutex_unlock(&task_lock);
    run_ready();
}

static void act_value_callbacks(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(value_callback(timeline, place[i] + 1, done, NULL));
    act_signal_each();
}

/* Others raise the event; softmetal's listener thread tells gpusync. */
static void raise_events(void)
{
    void *event = gpusync_timeline_metal(timeline, NULL);
    size_t i;
    for (i = 1; i <= n; i++) {
        metal_event_signal(event, i);
        must(softmetal_settle(60000000000u), "listeners were told");
    }
    run_ready();
    dispatch_all();
}

static void act_tasks_until_events(void)
{
    act_start_tasks();
    raise_events();
}

/* Each task takes the only place in turn. */
static void act_room(void)
{
    size_t i;
    act_start_tasks();
    for (i = 0; i < n; i++) {
        end_one();
        run_ready();
    }
}

static void act_hold(void)
{
    size_t i;
    for (i = 0; i < n; i++) {
        gpusync_point wait = value_point(timeline, place[i] + 1);
        tickets[i] = submit(queue, &wait, NULL, GPUSYNC_UNORDERED);
    }
}

static void act_submit_many(void)
{
    gpusync_submission submission = {0};
    submission.command_buffers = buffers;
    submission.command_buffer_count = n;
    ok(gpusync_submit(queue, &submission, &tickets[0]));
}

/* Above the n signals that are pending, on another queue than theirs. */
static void act_submit_above(void)
{
    size_t i;
    for (i = 0; i < n; i++) tickets[i] = submit_signal(other, open_buffer(other), n + i + 1);
}

/* Their signals are taken back. */
static void act_discard_above(void)
{
    size_t i;
    for (i = 0; i < n; i++) {
        void *work = open_buffer(queue);
        encode_signal(queue, work, n + i + 1);
        ok(gpusync_command_buffer_discard(queue, work));
    }
}

static gpusync_queue *by_turns(size_t i)
{
    return i % 2 ? other : queue;
}

static void act_encode_and_commit(void)
{
    size_t i;
    for (i = 0; i < n; i++) {
        void *work = open_buffer(by_turns(i));
        encode_signal(by_turns(i), work, place[i] + 1);
        ok(gpusync_commit(by_turns(i), work, &tickets[i]));
    }
    act_end_all();
}

/* One command buffer between n waits and n signals: held until the last timeline is where it waits for it. */
static void act_submit_timelines(void)
{
    tickets[0] = submit_between(queue, points, n, buffers[0], signals, n);
    signal_timelines();
    act_end_all();
}

static void act_encode_waits(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_encode_wait(queue, buffers[0], points[i]));
    ok(gpusync_commit(queue, buffers[0], &tickets[0]));
    signal_timelines();
    act_end_all();
}

static void act_encode_signals(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_encode_signal(queue, buffers[0], signals[i]));
    ok(gpusync_commit(queue, buffers[0], &tickets[0]));
    act_end_all();
}

static void act_submit_each_signal(void)
{
    size_t i;
    for (i = 0; i < n; i++) tickets[i] = submit_signal(queue, open_buffer(queue), i + 1);
    act_end_all();
}

static void act_commit4(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_commit4(queue, &buffers[i], 1, &tickets[i]));
}

static void act_wait_for_failures(void)
{
    size_t i;
    for (i = 0; i < n; i++) must_be(gpusync_wait(queue, tickets[i], 1), GPUSYNC_ERROR_EXECUTION, "a failure");
}

/* Each waits for a ticket of another queue, which the host passes on at its end. */
static void act_wait_for_tickets(void)
{
    size_t i;
    for (i = 0; i < n; i++) {
        gpusync_point wait = ticket_point(queue, place[i] + 1);
        tickets[i] = submit(other, &wait, NULL, GPUSYNC_UNORDERED);
    }
    act_end_all();
}

static void act_fail(void)
{
    ok(gpusync_timeline_fail(timeline, NULL));
    run_ready();
    dispatch_all();
}

/* On a stack of 64 KB: nothing recurses along a chain. */
static void *run_act(void *act)
{
    (*(void (**)(void))act)();
    return NULL;
}

static void on_small_stack(void (*act)(void))
{
    pthread_attr_t attributes;
    pthread_t thread;
    must(!pthread_attr_init(&attributes) && !pthread_attr_setstacksize(&attributes, 64 * 1024), "a small stack");
    must(!pthread_create(&thread, &attributes, run_act, &act), "a thread");
    must(!pthread_join(thread, NULL) && !pthread_attr_destroy(&attributes), "its end");
}

static void act_signal_one_on_a_small_stack(void) { on_small_stack(act_signal_one); }
static void act_fail_on_a_small_stack(void) { on_small_stack(act_fail); }

static void act_create_queues(void)
{
    size_t i;
    for (i = 0; i < n; i++) queues[i] = open_queue(2);
}

static void act_destroy_queues(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_queue_destroy(queues[place[i]]));
}

static void act_create_timelines(void)
{
    size_t i;
    for (i = 0; i < n; i++) timelines[i] = open_timeline();
}

static void act_destroy_timelines(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_timeline_destroy(timelines[place[i]]));
}

/* -- what tasks do ---------------------------------------------------------------------------------------- */

static void wait_for_ticket(task *t)
{
    ok(gpusync_wait(queue, tickets[t->index], GPUSYNC_FOREVER));
}

static void wait_for_the_first(task *t)
{
    (void)t;
    ok(gpusync_wait(queue, tickets[0], GPUSYNC_FOREVER));
}

static void wait_for_value(task *t)
{
    ok(gpusync_timeline_wait(timeline, t->index + 1, GPUSYNC_FOREVER, NULL));
}

static void wait_for_ticket_in_vain(task *t)
{
    must_be(gpusync_wait(queue, tickets[t->index], TIME_LIMIT_NS), GPUSYNC_TIMEOUT, "a wait in vain");
}

static void wait_for_value_in_vain(task *t)
{
    must_be(gpusync_timeline_wait(timeline, t->index + 1, TIME_LIMIT_NS, NULL), GPUSYNC_TIMEOUT, "a wait in vain");
}

static void wait_for_points(task *t)
{
    (void)t;
    ok(wait_for_all(points, n));
}

static void take_room(task *t)
{
    void *buffer;
    ok(gpusync_command_buffer(other, NULL, &buffer));
    ok(gpusync_commit(other, buffer, &tickets[t->index]));
}

/* -- worlds ----------------------------------------------------------------------------------------------- */

static void make_open(void)
{
    open_world();
    act_open();
}

static void make_elsewhere(void)
{
    open_world();
    make_buffers_elsewhere();
}

static void commit_open(void)
{
    size_t i;
    act_open();
    for (i = 0; i < n; i++) ok(gpusync_commit(queue, buffers[i], &tickets[i]));
}

static void make_flight(void)
{
    open_world();
    commit_open();
}

/* n in flight behind one that is tracked and never committed, n more made elsewhere. */
static void make_one_tracked(void)
{
    void *tracked;
    gpusync_ticket ticket;
    open_world();
    tracked = metal_queue_command_buffer(gpusync_queue_metal(queue));
    ok(gpusync_track(queue, tracked, &ticket));
    commit_open();
    make_buffers_elsewhere();
}

/* As many failures as the log has room for. */
static void make_flight_with_a_log(void)
{
    open_world();
    ok(gpusync_queue_destroy(queue));
    queue = open_queue_with_log(large(), n);
}

static void commit_doomed(void)
{
    size_t i, first = committed_count;
    commit_open();
    for (i = first; i < committed_count; i++) softmetal_fail(committed[i], NULL, 1, NULL);
}

static void make_failures(void)
{
    make_flight_with_a_log();
    commit_doomed();
    end_all();
}

static void make_doomed_callbacks(void)
{
    size_t i;
    make_flight_with_a_log();
    commit_doomed();
    for (i = 0; i < n; i++) ok(ticket_callback(queue, tickets[i], done, NULL));
}

static void make_waits(void)
{
    make_flight();
    make_tasks(n, wait_for_ticket);
}

static void make_waits_for_one(void)
{
    make_flight();
    make_tasks(n, wait_for_the_first);
}

/* The one that is to end, then n others, and as many more as there are in flight at the larger size: the same with
   waiters and without. */
static void commit_first(void)
{
    void *buffer;
    size_t i;
    open_world();
    ok(gpusync_command_buffer(queue, NULL, &buffer));
    ok(gpusync_commit(queue, buffer, NULL));
    commit_open();
    for (i = n; i < FLIGHT; i++) {
        ok(gpusync_command_buffer(queue, NULL, &buffer));
        ok(gpusync_commit(queue, buffer, NULL));
    }
}

static void make_waits_for_others(void)
{
    commit_first();
    make_tasks(n, wait_for_ticket);
    act_start_tasks();
}

static void make_callbacks_for_others(void)
{
    size_t i;
    commit_first();
    for (i = 0; i < n; i++) ok(ticket_callback(queue, tickets[i], done, NULL));
}

static void make_value_waits(void)
{
    open_world();
    make_tasks(n, wait_for_value);
}

static void wait_for_value_above(task *t)
{
    ok(gpusync_timeline_wait(timeline, t->index + 2, GPUSYNC_FOREVER, NULL));
}

static void make_value_waits_for_others(void)
{
    open_world();
    make_tasks(n, wait_for_value_above);
    act_start_tasks();
}

/* Each sleeps, for a value that no work is to signal yet. */
static void make_sleeping_value_waits(void)
{
    open_world();
    make_tasks(n, wait_for_value);
    act_start_tasks();
}

static void make_value_waits_with_a_limit(void)
{
    open_world();
    make_tasks(n, wait_for_value_in_vain);
}

static void make_many_timelines(void)
{
    size_t i;
    open_world();
    act_create_timelines();
    for (i = 0; i < n; i++) points[i] = value_point(timelines[place[i]], 1);
    make_tasks(1, wait_for_points);
}

static void import_timeline(void)
{
    open_world();
    ok(gpusync_timeline_destroy(timeline));
    ok(import_event(device, metal_shared_event_new(gpusync_device_metal(device)), &timeline));
}

static void make_imported_waits(void)
{
    import_timeline();
    make_tasks(n, wait_for_value);
}

static void make_room_waits(void)
{
    open_world();
    other = open_queue(1);
    make_tasks(n, take_room);
}

static void make_held_for_others(void)
{
    gpusync_point wait;
    size_t i;
    open_world();
    wait = value_point(timeline, 1);
    (void)submit(queue, &wait, NULL, GPUSYNC_UNORDERED);
    for (i = 0; i < n; i++) {
        wait = value_point(timeline, i + 2);
        tickets[i] = submit(queue, &wait, NULL, GPUSYNC_UNORDERED);
    }
}

static void hold_chain(void)
{
    size_t i;
    for (i = 0; i < n; i++) {
        gpusync_point wait = value_point(timeline, i + 1), signal = value_point(timeline, i + 2);
        tickets[i] = submit(i % 2 ? other : queue, &wait, &signal, 0);
    }
}

static void make_chain(void)
{
    open_world();
    other = queue;
    hold_chain();
}

/* The pending signals of `second`, issued from the top down, and the work that waits for them. */
static void make_pending(void)
{
    size_t i;
    open_world();
    other = open_large_queue();
    second = open_timeline();
    for (i = 0; i < n; i++) {
        gpusync_point wait = value_point(timeline, n - i), signal = value_point(second, i + 1);
        (void)submit(queue, &wait, &signal, GPUSYNC_UNORDERED);
    }
    for (i = 0; i < n; i++) {
        gpusync_point wait = value_point(second, i + 1);
        tickets[i] = submit(other, &wait, NULL, GPUSYNC_UNORDERED);
    }
}

/* n that are held are to signal 1 to n. */
static void make_pending_in_held(void)
{
    size_t i;
    open_world();
    other = open_large_queue();
    second = open_timeline();
    for (i = 0; i < n; i++) {
        gpusync_point wait = value_point(second, 1), signal = value_point(timeline, i + 1);
        (void)submit_between(queue, &wait, 1, open_buffer(queue), &signal, 1);
    }
}

static void make_two_queues(void)
{
    open_world();
    other = open_large_queue();
}

/* n are to signal 1 to n, in flight. */
static void make_pending_in_flight(void)
{
    size_t i;
    open_world();
    for (i = 0; i < n; i++) tickets[i] = submit_signal(queue, open_buffer(queue), i + 1);
}

/* Each timeline is waited for, and signalled, by one command buffer. */
static void make_points_and_signals(void)
{
    size_t i;
    open_world();
    act_create_timelines();
    buffers[0] = open_buffer(queue);
    for (i = 0; i < n; i++) {
        points[i] = value_point(timelines[i], 1);
        signals[i] = value_point(timelines[i], 2);
    }
}

static void hold_one(void *work)
{
    gpusync_point wait = value_point(timeline, 1);
    (void)submit_between(queue, &wait, 1, work, NULL, 0);
}

static void *recorded4(void *allocator)
{
    void *buffer = metal4_buffer_new(gpusync_device_metal(device));
    metal4_begin(buffer, allocator);
    metal4_end(buffer);
    return buffer;
}

static void make_metal4_behind_held(void)
{
    gpusync_queue_desc desc = {0};
    void *allocator;
    size_t i;
    open_world();
    ok(gpusync_queue_destroy(queue));
    desc.metal4 = true;
    ok(gpusync_queue_create(device, &desc, &queue));
    allocator = metal4_allocator_new(gpusync_device_metal(device));
    for (i = 0; i < n; i++) buffers[i] = recorded4(allocator);
    hold_one(recorded4(allocator));
}

static void make_ticket_waits(void)
{
    make_flight();
    other = open_large_queue();
}

static void make_queues(void)
{
    open_world();
    act_create_queues();
}

/* The callbacks are due, and have not run. */
static void make_queues_with_callbacks(void)
{
    size_t i;
    make_queues();
    for (i = 0; i < n; i++) {
        ok(gpusync_commit(queues[i], open_buffer(queues[i]), &tickets[i]));
        ok(ticket_callback(queues[i], tickets[i], done, NULL));
        end_one();
    }
    must(called == 0, "no callback has run yet");
}

static void make_timelines(void)
{
    open_world();
    act_create_timelines();
}

/* -- checks ----------------------------------------------------------------------------------------------- */

static void tickets_are(gpusync_result result)
{
    size_t i;
    for (i = 0; i < n; i++) must_be(gpusync_poll(i % 2 && other ? other : queue, tickets[i]), result, "a ticket");
}

static void check_discarded(void)
{
    must(softmetal_outstanding(gpusync_queue_metal(queue)) == 0, "no command buffer is left");
}

static void check_done(void)
{
    end_all();
    tickets_are(GPUSYNC_OK);
}

/* Everything has ended well, and the timeline is where the last signal put it. */
static void check_risen_to(uint64_t expected)
{
    uint64_t value;
    end_all();
    run_ready();
    ok(gpusync_timeline_query(timeline, &value));
    must(value == expected, "every signal has been made");
}

static void check_tracked_end(void)
{
    size_t i;
    for (i = 0; i < n; i++) metal_commit(buffers[i]);
    check_done();
}

static void check_called(void)
{
    must(called == n && called_badly == 0, "every callback has run, and once");
    check_done();
}

static void check_waited(void)
{
    all_tasks_over();
    check_done();
}

static void check_over(void)
{
    all_tasks_over();
}

static void check_value_reached(void)
{
    uint64_t value;
    ok(gpusync_timeline_query(timeline, &value));
    must(value == n, "the value is reached");
    all_tasks_over();
}

static void check_value_called(void)
{
    must(called == n && called_badly == 0, "every callback has run, and once");
}

/* The first has ended, and none of the others; then they do. */
static void check_one_ended(void)
{
    must(gpusync_is_done(queue, 1), "the first has ended");
    must(living == n && called == 0, "no other waiter was told, and no callback has run");
    tickets_are(GPUSYNC_NOT_READY);
    act_end_all();
    all_tasks_over();
    tickets_are(GPUSYNC_OK);
}

static void check_one_called(void)
{
    must(gpusync_is_done(queue, 1) && called == 0, "the first has ended, and no callback has run");
    act_end_all();
    must(called == n, "every callback has run");
}

static void check_one_signalled(void)
{
    must(living == n, "no other waiter was told");
    ok(gpusync_timeline_signal(timeline, n + 2));
    all_tasks_over();
}

static void check_one_released(void)
{
    must(committed_count == 1, "one submission was released");
    end_all();
}

static void check_room(void)
{
    size_t i;
    all_tasks_over();
    end_all();
    for (i = 0; i < n; i++) ok(gpusync_poll(other, tickets[i]));
}

static void check_held(void)
{
    must(committed_count == 0, "they are held");
    tickets_are(GPUSYNC_NOT_READY);
}

static void check_other_done(void)
{
    size_t i;
    for (i = 0; i < n; i++) ok(gpusync_poll(other, tickets[i]));
}

static void check_no_rise(void)
{
    uint64_t value;
    end_all();
    ok(gpusync_timeline_query(timeline, &value));
    must(value == 0, "no signal is made before those below it");
}

static void check_all_risen(void)
{
    check_risen_to(n);
    tickets_are(GPUSYNC_OK);
}

static void check_timelines(uint64_t expected)
{
    uint64_t value;
    size_t i;
    ok(gpusync_poll(queue, tickets[0]));
    for (i = 0; i < n; i++) {
        ok(gpusync_timeline_query(timelines[i], &value));
        must(value == expected, "every timeline has risen");
    }
}

static void check_waited_for_timelines(void) { check_timelines(1); }
static void check_timelines_signalled(void) { check_timelines(2); }

static void check_woken(void)
{
    all_tasks_over();
    check_all_risen();
}

static void all_above_done(void)
{
    check_risen_to(2 * n);
    check_other_done();
}

/* They went ahead of those that are held. */
static void check_above_held(void)
{
    must(committed_count >= n, "what signals the higher values is committed");
    check_no_rise();
    ok(gpusync_timeline_signal(second, 1));
    all_above_done();
}

/* The lower signals are made, and the value above them is free again. */
static void check_discarded_above_flight(void)
{
    check_risen_to(n);
    tickets_are(GPUSYNC_OK);
    must(softmetal_outstanding(gpusync_queue_metal(queue)) == 0, "no command buffer is left");
    ok(gpusync_timeline_signal(timeline, n + 1));
}

static void check_held4(void)
{
    must(softmetal_live("run") == 0, "nothing was committed to Metal");
    tickets_are(GPUSYNC_NOT_READY);
    ok(gpusync_timeline_signal(timeline, 1));
    softmetal_finish_queue(gpusync_queue_metal(queue));
    tickets_are(GPUSYNC_OK);
}

static void check_many_submitted(void)
{
    end_all();
    ok(gpusync_poll(queue, tickets[0]));
    must(ended_count >= n, "every command buffer was committed");
}

static void check_chain_issued(void)
{
    must(committed_count >= n, "every submission was committed");
    check_done();
}

static void check_issued(void)
{
    must(committed_count >= n, "signals were committed"); /* what waits for them waits: larger ones may overtake them */
}

/* The log keeps the last failures alone. */
static void check_failed(void)
{
    size_t i;
    for (i = 0; i < n; i++) must(gpusync_poll(queue, tickets[i]) < 0, "the ticket has ended badly");
}

/* Each is in the log. */
static void check_every_failure(void)
{
    uint64_t cursor = 0;
    gpusync_error error;
    size_t i;
    for (i = 0; i < n; i++) {
        ok(gpusync_next_error(queue, &cursor, &error));
        must(error.ticket == tickets[i] && error.dropped == 0, "every failure is on record");
    }
    must_be(gpusync_next_error(queue, &cursor, &error), GPUSYNC_NOT_READY, "there are no more");
}

static void check_called_badly(void)
{
    must(called == n && called_badly == n, "every callback has run once, with the failure");
    check_every_failure();
}

static void check_given_up(void)
{
    must(committed_count == 0, "none was committed");
    check_failed();
}

/* The device can be destroyed when nothing of it is left. */
static void check_queue_gone(void)
{
    ok(gpusync_timeline_destroy(timeline));
    ok(gpusync_device_destroy(device));
}

static void check_nothing_left(void)
{
    ok(gpusync_queue_destroy(queue));
    check_queue_gone();
}

/* Destroy has run them. */
static void check_paid(void)
{
    must(called == n && called_badly == 0, "every callback has run, and once");
    check_nothing_left();
}

/* -- wakes ------------------------------------------------------------------------------------------------ */

static void sleep_idle(task *t)
{
    if (t->index % 2) wait_for_ticket_in_vain(t);
    else wait_for_value_in_vain(t);
}

/* The command buffers hang, and no thread signals. */
static void make_idle(void)
{
    size_t i;
    real_time = true;
    open_world();
    act_open();
    for (i = 0; i < n; i++) {
        softmetal_hang(buffers[i]);
        ok(gpusync_commit(queue, buffers[i], &tickets[i]));
    }
    make_tasks(n, sleep_idle);
}

static void act_sleep(void)
{
    act_start_tasks();
    run_by_the_clock();
}

/* -- rows ------------------------------------------------------------------------------------------------- */

/* n of what the name says, where the comment does not say otherwise; one row for each thing that a search through a
   list could make grow faster. _elsewhere: command buffers that gpusync did not make. one_...: one event among n that
   are not concerned. */
static const row rows[] = {
    /* command buffers that are open or tracked */
    {"discard_rising", make_open, act_discard, check_discarded, RISING},
    {"commit_open_rising", make_open, act_commit, check_done, RISING},
    {"commit_open_falling", make_open, act_commit, check_done, FALLING}, /* the newest first */
    {"track", make_elsewhere, act_track, check_tracked_end, RISING},
    /* tickets in flight */
    {"commit_elsewhere_one_tracked", make_one_tracked, act_commit, check_done, RISING}, /* and n in flight */
    {"end", make_flight, act_end_all, check_done, RISING},
    {"poll", make_flight, act_poll, check_done, RISING}, /* of each */
    /* waits: begun, parked, ended */
    {"waits_rising", make_waits, act_tasks_until_end, check_waited, RISING}, /* each for a ticket of its own */
    {"waits_for_one_ticket", make_waits_for_one, act_tasks_until_end, check_waited, RISING},
    {"one_end_among_waits", make_waits_for_others, act_end_one, check_one_ended, RISING},
    {"value_waits_shuffled", make_value_waits, act_tasks_until_signals, check_over, SHUFFLED},
    {"value_waits_time_out_shuffled", make_value_waits_with_a_limit, act_time_out, check_over, SHUFFLED},
    {"imported_waits_shuffled", make_imported_waits, act_tasks_until_events, check_value_reached, SHUFFLED},
    {"one_signal_among_waits", make_value_waits_for_others, act_signal_one, check_one_signalled, RISING},
    {"wait_many_timelines", make_many_timelines, act_signal_timelines, check_over, RISING}, /* one, for n points */
    {"room", make_room_waits, act_room, check_room, RISING}, /* n wait for the only place of a queue, in turn */
    /* callbacks: registered, due, run */
    {"callbacks_rising", make_flight, act_on_done, check_called, RISING}, /* each of a ticket of its own */
    {"callbacks_of_one_ticket", make_flight, act_on_done_of_one, check_called, RISING},
    {"one_end_among_callbacks", make_callbacks_for_others, act_end_one, check_one_called, RISING},
    {"value_callbacks_shuffled", open_world, act_value_callbacks, check_value_called, SHUFFLED}, /* a signal for each */
    {"queues_callbacks_destroy", make_queues_with_callbacks, act_destroy_queues, check_paid, FALLING},
    /* failures: the log has room for n */
    {"fail_all_biglog_wait", make_failures, act_wait_for_failures, check_every_failure, RISING}, /* they are over */
    {"fail_all_biglog_callbacks", make_doomed_callbacks, act_end_all, check_called_badly, RISING},
    /* submissions */
    {"submit_many", make_open, act_submit_many, check_many_submitted, RISING}, /* one, of n command buffers */
    {"hold_shuffled", open_world, act_hold, check_held, SHUFFLED},
    {"one_signal_among_held", make_held_for_others, act_signal_one, check_one_released, RISING},
    /* each signals for the next */
    {"chain_release", make_chain, act_signal_one_on_a_small_stack, check_chain_issued, RISING},
    {"chain_fail", make_chain, act_fail_on_a_small_stack, check_given_up, RISING},
    {"signals_top_down", make_pending, act_signal_each, check_issued, RISING}, /* n issued, n are held for them */
    {"submit_after_tickets_rising", make_ticket_waits, act_wait_for_tickets, check_other_done, RISING},
    {"waiters_values_submissions", make_sleeping_value_waits, act_submit_each_signal, check_woken, RISING},
    {"held_metal4", make_metal4_behind_held, act_commit4, check_held4, RISING}, /* n commits behind one that is held */
    /* pending signals of one timeline */
    {"promised_above_held", make_pending_in_held, act_submit_above, check_above_held, RISING}, /* n, above n */
    {"promised_shuffled_two_queues", make_two_queues, act_encode_and_commit, check_all_risen, SHUFFLED},
    {"discard_above_flight", make_pending_in_flight, act_discard_above, check_discarded_above_flight, RISING},
    /* timelines */
    {"submit_timelines", make_points_and_signals, act_submit_timelines, check_timelines_signalled, RISING},
    {"encode_waits_timelines", make_points_and_signals, act_encode_waits, check_waited_for_timelines, RISING},
    {"encode_signals_timelines", make_points_and_signals, act_encode_signals, check_timelines_signalled, RISING},
    {"timeline_destroy_shuffled", make_timelines, act_destroy_timelines, check_nothing_left, SHUFFLED},
    /* how often n idle waits come back from the park hook within 10 s */
    {"wakes_idle", make_idle, act_sleep, NULL, RISING},
};

static bool counts_wakes(const row *r)
{
    return r->act == act_sleep;
}

int main(int argc, char **argv)
{
    size_t i;
    if (argc == 2 && !strcmp(argv[1], "list")) {
        for (i = 0; i < sizeof rows / sizeof rows[0]; i++)
            printf("%s %s\n", rows[i].name, counts_wakes(&rows[i]) ? "wakes" : "instructions");
        return 0;
    }
    must(argc == 3, "usage: growth list, or growth ROW N");
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!strcmp(argv[1], rows[i].name)) current = &rows[i];
    must(current != NULL, "there is such a row");
    n = (size_t)strtoul(argv[2], NULL, 10);
    current->make();
    CALLGRIND_START_INSTRUMENTATION;
    current->act();
    CALLGRIND_STOP_INSTRUMENTATION;
    CALLGRIND_DUMP_STATS_AT(current->name);
    if (current->check) current->check();
    if (counts_wakes(current)) printf("%lu\n", park_returns);
    fflush(stdout);
    _exit(0); /* what is left in flight is left */
}
