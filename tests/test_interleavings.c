/* test_interleavings.c - races of waits, handlers and queues, replayed one step at a time

   Each test forces one order of events that a lucky machine never shows: on softmetal's manual clock, by code that runs
   at a message (softmetal_set_message_hook), in a hook of gpusync, or at a place in the middle of a call (probe.h). Each names the rule of the header that it goes red without.

   A number in a name is that of the interleaving, 1 to 24; test_interleavings_of_submissions.c has 12 to 17, and 24.

   It also runs on queues of Metal 4. */
#include "../examples/fiber.h"
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "probe.h"
#include "stage.h"

static void finish_buffer(void *buffer)
{
    softmetal_finish(buffer);
}

/* Finishes a buffer on the device's side at the n-th message with this name to it, or to its feedback. */
typedef struct trap {
    void *buffer;
    const char *selector;
    softmetal_phase phase;
    unsigned countdown;
    void (*act)(void *buffer);
} trap;

static void trap_hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    trap *t = (trap *)user;
    if (phase != t->phase) return;
    if (strcmp(t->selector, "commit") == 0 ? !commits(object, selector, t->buffer)
                                           : !is_asked_by_handlers(object, t->buffer) || strcmp(selector, t->selector) != 0)
        return;
    if (t->countdown == 0 || --t->countdown != 0) return;
    t->act(t->buffer);
}

/* -- 1 ------------------------------------------------------------------------------------------ */

/* Rule: a slot stays with its ticket until its handler ran, and the handler looks at no other buffer. */
static void test_interleaving_01_late_handler_does_not_end_a_later_ticket(void **state)
{
    void *first, *later[8];
    gpusync_ticket t1;
    unsigned i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    rig_open(&r, SOFTMETAL_MANUAL);
    t1 = commit_empty(&r, &first);
    softmetal_complete(first);
    assert_ok(gpusync_poll(r.queue, t1)); /* seen by its status; the handler is still to come */
    for (i = 0; i < 8; i++) commit_empty(&r, &later[i]);
    softmetal_run_handler(first, 0);
    softmetal_release_block(first, 0);
    for (i = 0; i < 8; i++) assert_result(gpusync_poll(r.queue, t1 + 1 + i), GPUSYNC_NOT_READY);
    assert_int_equal(stats_of(r.queue).completions, 1);
    for (i = 0; i < 8; i++) softmetal_finish(later[i]);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    assert_int_equal(stats_of(r.queue).waits_status, 0); /* every handler did its work: no wait had to look */
    rig_close(&r);
}

/* -- 2 ------------------------------------------------------------------------------------------ */

/* Rule: a thread that sends `status` holds the slot, so the handler does not release the buffer under its feet. */
static void test_interleaving_02_handler_drops_the_buffer_while_a_poller_sends_status(void **state)
{
    trap t = {NULL, "status", SOFTMETAL_BEFORE, 1, finish_buffer};
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no call reads a status");
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &t.buffer);
    softmetal_set_message_hook(trap_hook, &t);
    assert_ok(gpusync_poll(r.queue, ticket)); /* softmetal aborts at a message to a freed object */
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(t.countdown, 0);
    assert_int_equal(softmetal_live("command_buffer"), 0); /* and the poller released it, as the last */
    rig_close(&r);
}

/* -- 3 ------------------------------------------------------------------------------------------ */

/* Rule: the first thread that sees the end claims it. */
static void test_interleaving_03_poller_and_handler_both_see_the_error(void **state)
{
    trap t = {NULL, "status", SOFTMETAL_AFTER, 1, finish_buffer};
    gpusync_ticket ticket;
    gpusync_error error;
    uint64_t cursor = 0;
    rig r;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &t.buffer);
    softmetal_fail(t.buffer, NULL, 3, "page fault");
    softmetal_complete(t.buffer);
    softmetal_set_message_hook(trap_hook, &t); /* the poller has read Error, then the handler runs */
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_EXECUTION);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(t.countdown, 0);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
    assert_int_equal(stats_of(r.queue).failures, 1);
    assert_int_equal(stats_of(r.queue).completions, 1);
    rig_close(&r);
}

/* -- 4 ------------------------------------------------------------------------------------------ */

/* A handler that is caught in the log hook, past the point where it made the queue idle. */
typedef struct slow_log {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool entered, released, destroyer_yields, destroyed, left;
} slow_log;

static void slow_log_set(slow_log *log, bool *flag)
{
    pthread_mutex_lock(&log->lock);
    *flag = true;
    pthread_cond_broadcast(&log->changed);
    pthread_mutex_unlock(&log->lock);
}

static void slow_log_await(slow_log *log, const bool *flag, const bool *or_flag)
{
    pthread_mutex_lock(&log->lock);
    while (!*flag && !*or_flag) pthread_cond_wait(&log->changed, &log->lock);
    pthread_mutex_unlock(&log->lock);
}

static void slow_log_hook(void *user, gpusync_log_level level, const char *text)
{
    slow_log *log = (slow_log *)user;
    (void)level;
    (void)text;
    slow_log_set(log, &log->entered);
    slow_log_await(log, &log->released, &log->released);
    log->left = true;
}

static void slow_log_yield(void *user)
{
    slow_log *log = (slow_log *)user;
    slow_log_set(log, &log->destroyer_yields);
    sched_yield();
}

typedef struct destroy_job {
    gpusync_queue *queue;
    slow_log *log;
    bool now, log_had_left;
} destroy_job;

static void *destroy_body(void *argument)
{
    destroy_job *job = (destroy_job *)argument;
    assert_ok(job->now ? gpusync_queue_destroy_now(job->queue) : gpusync_queue_destroy(job->queue));
    job->log_had_left = job->log->left;
    slow_log_set(job->log, &job->log->destroyed);
    return NULL;
}

/* Rule: destroy waits for a handler that is running, though the queue is idle by then. */
static void check_destroy_waits_for_running_handler(bool now)
{
    slow_log log = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false, false, false, false};
    gpusync_hooks hooks = {slow_log_yield, NULL, NULL, &log};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    destroy_job job;
    pthread_t thread;
    void *buffer;
    rig r;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    device_desc.log = slow_log_hook;
    device_desc.log_user = &log;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    commit_empty(&r, &buffer);
    softmetal_fail(buffer, NULL, 1, NULL);
    softmetal_complete(buffer);
    softmetal_begin_handler(buffer, 0);
    slow_log_await(&log, &log.entered, &log.entered);
    assert_true(gpusync_is_idle(r.queue)); /* that far it came */
    job.queue = r.queue;
    job.log = &log;
    job.now = now;
    thread = start(destroy_body, &job);
    slow_log_await(&log, &log.destroyer_yields, &log.destroyed);
    assert_false(log.destroyed);
    slow_log_set(&log, &log.released);
    join(thread);
    assert_true(job.log_had_left);
    softmetal_join_handler(buffer, 0);
    softmetal_release_block(buffer, 0);
    r.queue = NULL;
    rig_close(&r);
}

static void test_interleaving_04_destroy_waits_for_the_handler_that_made_the_queue_idle(void **state)
{
    (void)state;
    check_destroy_waits_for_running_handler(false);
    check_destroy_waits_for_running_handler(true);
}

/* -- 5 ------------------------------------------------------------------------------------------ */

/* Rule: destroy cuts the tie of handlers that did not come; the orphan touches its slot and nothing else. (What it would
   touch is overwritten, and gone for ASan.) */
static void test_interleaving_05_handler_comes_after_destroy_now(void **state)
{
    void *unfinished, *completed;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &completed);
    commit_empty(&r, &unfinished);
    softmetal_complete(completed);
    assert_ok(gpusync_queue_destroy_now(r.queue));
    r.queue = NULL;
    softmetal_finish(completed);
    softmetal_finish(unfinished);
    rig_close(&r);
    /* the slots serve again */
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &completed);
    softmetal_finish(completed);
    assert_true(gpusync_is_idle(r.queue));
    rig_close(&r);
}

/* -- 6 ------------------------------------------------------------------------------------------ */

/* Rule: a thread that marks a ticket moves the prefix over every mark that follows. */
static void test_interleaving_06_prefix_goes_on_over_tickets_that_ended_early(void **state)
{
    void *buffers[6];
    unsigned i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 6; i++) commit_empty(&r, &buffers[i]);
    for (i = 5; i >= 4; i--) softmetal_finish(buffers[i]);
    for (i = 0; i < 3; i++) softmetal_finish(buffers[i]);
    assert_true(gpusync_is_done(r.queue, 3));
    assert_false(gpusync_is_done(r.queue, 5)); /* ended, but 4 has not: the inline answer is late, never early */
    assert_ok(gpusync_poll(r.queue, 5));
    assert_result(gpusync_poll(r.queue, 4), GPUSYNC_NOT_READY);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_TIMEOUT);
    softmetal_finish(buffers[3]);
    assert_true(gpusync_is_done(r.queue, 6));
    assert_true(gpusync_is_idle(r.queue));
    rig_close(&r);
}

/* -- 7 ------------------------------------------------------------------------------------------ */

#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#if defined(__has_feature)
#if !__has_feature(thread_sanitizer) && !__has_feature(address_sanitizer)
#define CAN_SINGLE_STEP 1
#endif
#else
#define CAN_SINGLE_STEP 1
#endif
#endif

#ifdef CAN_SINGLE_STEP

/* One call, one machine instruction at a time: before instruction number `at` the other side acts. */
static struct {
    rig *r;
    void *buffer;
    int at, steps;
} stepper;

__attribute__((noinline)) static uint64_t is_idle_call(const gpusync_queue *queue)
{
    return gpusync_is_idle(queue);
}

__attribute__((noinline)) static uint64_t in_flight_call(const gpusync_queue *queue)
{
    return gpusync_in_flight(queue);
}

static void on_step(int signal_number, siginfo_t *info, void *context)
{
    ucontext_t *machine = (ucontext_t *)context;
    (void)signal_number;
    (void)info;
    if (stepper.steps++ != stepper.at) return;
    machine->uc_mcontext.gregs[REG_EFL] &= ~0x100; /* enough steps */
    void *next;
    commit_empty(stepper.r, &next); /* first the new ticket, then the end of the old one: never idle */
    softmetal_finish(stepper.buffer);
    stepper.buffer = next;
}

static uint64_t ask_stepped(uint64_t (*ask)(const gpusync_queue *), rig *r, void **buffer, int at)
{
    struct sigaction action, old;
    uint64_t answer;
    stepper.r = r;
    stepper.buffer = *buffer;
    stepper.at = at;
    stepper.steps = 0;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_step;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &action, &old);
    __asm__ __volatile__("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
    answer = ask(r->queue);
    __asm__ __volatile__("pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
    sigaction(SIGTRAP, &old, NULL);
    *buffer = stepper.buffer;
    return answer;
}

/* Rule: is_idle loads `completed` first, then `committed`. The queue below always has one buffer in flight, so there is no
   instruction at which the other side could act that makes "idle" a right answer. */
static void test_interleaving_07_is_idle_against_commit_and_completion_in_between(void **state)
{
    void *buffer;
    int at, acted = 0;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &buffer);
    for (at = 0; at < 40; at++) {
        assert_false(ask_stepped(is_idle_call, &r, &buffer, at));
        if (stepper.steps > at) acted++;
    }
    assert_true(acted >= 4); /* at least the call, two loads and the return were cut open */
    softmetal_finish(buffer);
    assert_true(gpusync_is_idle(r.queue));
    rig_close(&r);
}

/* The same rule for the number. One is in flight all the time, and two for a moment: none is too few, and three were never. */
static void test_interleaving_07_in_flight_against_commit_and_completion_in_between(void **state)
{
    void *buffer;
    int at, acted = 0, twos = 0;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &buffer);
    for (at = 0; at < 40; at++) {
        uint64_t number = ask_stepped(in_flight_call, &r, &buffer, at);
        assert_in_range(number, 1, 2);
        if (number == 2) twos++;
        if (stepper.steps > at) acted++;
    }
    assert_true(acted >= 4);
    assert_true(twos > 0); /* the other side has acted between the two loads */
    softmetal_finish(buffer);
    assert_int_equal(gpusync_in_flight(r.queue), 0);
    rig_close(&r);
}

#else

static void test_interleaving_07_is_idle_against_commit_and_completion_in_between(void **state)
{
    (void)state;
    print_message("skip: machine instructions are stepped through on x86-64 Linux alone, and without sanitizers\n");
    skip();
}

static void test_interleaving_07_in_flight_against_commit_and_completion_in_between(void **state)
{
    test_interleaving_07_is_idle_against_commit_and_completion_in_between(state);
}

#endif

/* -- 8 ------------------------------------------------------------------------------------------ */

typedef struct early_unpark {
    void *buffer;
    uint64_t left_early;
    gpusync_hooks own; /* the library's */
} early_unpark;

static void early_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    early_unpark *early = (early_unpark *)user;
    if (early->buffer) softmetal_finish(early->buffer); /* its handler calls unpark */
    early->buffer = NULL;
    early->own.park(NULL, waiter, deadline_ns);
    if (gpusync_now_ns() < deadline_ns) early->left_early++;
}

static void early_unpark_it(void *user, gpusync_waiter *waiter) { ((early_unpark *)user)->own.unpark(NULL, waiter); }

/* Rule (of the default hooks, and what custom ones must do): an unpark that comes first leaves a permit. */
static void test_interleaving_08_unpark_before_park(void **state)
{
    early_unpark early = {NULL, 0, probe_default_hooks()};
    gpusync_hooks hooks = {NULL, early_park, early_unpark_it, &early};
    gpusync_spin none = {0, 0, 0, false};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_ticket ticket;
    void *buffer;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    device_desc.spin = &none;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    ticket = commit_empty(&r, &buffer);
    early.buffer = buffer;
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    assert_int_equal(early.left_early, 1); /* woken, not by the end of the slice */
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    /* and the permit is used up: the next sleep is not cut short by it */
    ticket = commit_empty(&r, &buffer);
    assert_result(gpusync_wait(r.queue, ticket, MS(5)), GPUSYNC_TIMEOUT);
    assert_int_equal(early.left_early, 1);
    softmetal_finish(buffer);
    rig_close(&r);
}

/* -- 9 ------------------------------------------------------------------------------------------ */

/* A fiber that waits: it leaves its thread in the park hook. */
static struct {
    fiber_context fiber, threads[2];
    fiber_context *on; /* one of the threads: where the fiber goes when it leaves */
    gpusync_queue *queue;
    gpusync_ticket ticket;
    gpusync_result result;
    pthread_t before, after;
    int parked, unparked, ended;
} traveller;

/* Not inlined: compilers take pthread_self for a constant of the function that they are in. */
__attribute__((noinline)) static pthread_t this_thread(void)
{
    __asm__ volatile("");
    return pthread_self();
}

static void travel(void *argument)
{
    (void)argument;
    traveller.before = this_thread();
    traveller.result = gpusync_wait(traveller.queue, traveller.ticket, GPUSYNC_FOREVER);
    traveller.after = this_thread();
    traveller.ended++;
    fiber_switch(&traveller.fiber, traveller.on);
}

static void leave_the_thread(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter, (void)deadline_ns;
    traveller.parked++;
    fiber_switch(&traveller.fiber, traveller.on);
}

static void note_the_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user, (void)waiter;
    COUNT(&traveller.unparked);
}

/* Runs the fiber until it leaves. */
static void *go_on_here(void *thread)
{
    traveller.on = (fiber_context *)thread;
    fiber_of_thread(traveller.on);
    fiber_switch(traveller.on, &traveller.fiber);
    return NULL;
}

/* Rule: no lock, pool or thread-local value is held while a hook runs, so that a fiber may go on on another thread. */
static void test_interleaving_09_a_fiber_goes_on_on_another_thread(void **state)
{
    gpusync_hooks hooks = {NULL, leave_the_thread, note_the_unpark, NULL};
    void *buffer;
    rig r;
    (void)state;
    memset(&traveller, 0, sizeof traveller);
    rig_open_hooked(&r, SOFTMETAL_MANUAL, &hooks, 0);
    traveller.queue = r.queue;
    traveller.ticket = commit_empty(&r, &buffer);
    assert_true(fiber_make(&traveller.fiber, 256 * 1024, travel, NULL));
    go_on_here(&traveller.threads[0]);
    assert_int_equal(traveller.parked, 1);
    assert_int_equal(traveller.ended, 0);
    assert_int_equal(GET(&traveller.unparked), 0);
    softmetal_finish(buffer);
    assert_int_equal(GET(&traveller.unparked), 1);
    join(start(go_on_here, &traveller.threads[1]));
    assert_int_equal(traveller.parked, 1);
    assert_int_equal(traveller.ended, 1);
    assert_ok(traveller.result);
    assert_true(pthread_equal(traveller.before, pthread_self()));
    assert_false(pthread_equal(traveller.before, traveller.after));
    fiber_free(&traveller.fiber);
    rig_close(&r);
}

/* -- 10 ----------------------------------------------------------------------------------------- */

/* Rule: the end is claimed once, so a handler that comes after a wait has seen the status changes no count. */
static void test_interleaving_10_handler_after_the_wait_has_returned(void **state)
{
    void *buffer;
    gpusync_ticket ticket;
    gpusync_stats stats;
    rig r;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    softmetal_complete(buffer);
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    assert_int_equal(stats_of(r.queue).waits_status, 1);
    assert_true(gpusync_is_idle(r.queue));
    assert_int_equal(softmetal_live("command_buffer"), 1); /* its handler is still to come */
    softmetal_run_handler(buffer, 0);
    softmetal_release_block(buffer, 0);
    stats = stats_of(r.queue);
    assert_int_equal(stats.completions, 1);
    assert_int_equal(stats.failures, 0);
    assert_int_equal(rooms_taken(r.queue), 0);
    rig_close(&r);
}

/* -- 11 ----------------------------------------------------------------------------------------- */

typedef struct counted_park {
    unsigned parks, unparks;
    void *late; /* to finish where it has come to a sleep */
} counted_park;

static void counting_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    counted_park *count = (counted_park *)user;
    if (count->parks++ == 0 && count->late && !probe_has_acted()) softmetal_finish(count->late);
    thread_park(waiter, deadline_ns);
}

static void counting_unpark(void *user, gpusync_waiter *waiter)
{
    __atomic_fetch_add(&((counted_park *)user)->unparks, 1, __ATOMIC_SEQ_CST);
    thread_unpark(waiter);
}

static void open_counting(rig *r, counted_park *count)
{
    gpusync_hooks hooks = {NULL, counting_park, counting_unpark, NULL};
    gpusync_spin none = {0, 0, 0, false};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(count, 0, sizeof *count);
    hooks.user = count;
    device_desc.hooks = &hooks;
    device_desc.spin = &none;
    rig_open_with(r, SOFTMETAL_MANUAL, device_desc, queue_desc);
}

/* Rule: a waiter looks again after it has registered. The handler ran when none was registered, so it wakes none. */
static void test_interleaving_11_handler_runs_before_the_waiter_registers(void **state)
{
    bool slept = false;
    int n;
    (void)state;
    for (n = 0; !slept; n++) { /* where it is about to register; then at each point, until it comes to its sleep first */
        counted_park count;
        gpusync_ticket ticket;
        void *buffer;
        rig r;
        open_counting(&r, &count);
        ticket = commit_empty(&r, &buffer);
        count.late = buffer;
        if (n) probe_at_each(n, finish_buffer, buffer);
        else probe_at(PROBE_WAITER_LISTS, NULL, 1, finish_buffer, buffer);
        assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
        slept = count.parks > 0;
        if (slept) assert_true(count.unparks > 0);
        if (!n) assert_int_equal(count.parks + count.unparks, 0);
        rig_close(&r);
    }
    assert_true(n > 2);
}

static void park_once_and_finish(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    early_unpark *early = (early_unpark *)user;
    void *buffer = early->buffer;
    early->buffer = NULL;
    if (buffer) softmetal_begin_handler(buffer, 0); /* on the device's thread, while this one goes to sleep */
    early->own.park(NULL, waiter, deadline_ns);
    if (buffer) {
        softmetal_join_handler(buffer, 0);
        softmetal_release_block(buffer, 0);
    }
    if (gpusync_now_ns() < deadline_ns) early->left_early++;
}

/* Rule: the handler looks for waiters after it has marked. This one registered before: it must be woken. */
static void test_interleaving_11_waiter_registers_before_the_handler_looks(void **state)
{
    early_unpark early = {NULL, 0, probe_default_hooks()};
    gpusync_hooks hooks = {NULL, park_once_and_finish, early_unpark_it, NULL};
    gpusync_spin none = {0, 0, 0, false};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    trap t = {NULL, "status", SOFTMETAL_AFTER, 1, softmetal_complete};
    gpusync_ticket ticket;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    hooks.user = &early;
    device_desc.hooks = &hooks;
    device_desc.spin = &none;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    ticket = commit_empty(&r, &t.buffer);
    early.buffer = t.buffer;
    softmetal_set_message_hook(trap_hook, &t); /* completes just after the waiter has read "scheduled" */
    if (metal4_run()) softmetal_complete(t.buffer); /* which no thread can read there */
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(early.left_early, 1);
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    rig_close(&r);
}

/* -- 18 ----------------------------------------------------------------------------------------- */

/* Interleaving 18: a callback that takes its time on one queue, work of another queue that waits for a later ticket
   of it, and work behind that. The callback returns when that work is over. */
static struct {
    void *buffer;
    bool over;
} dawdling;

static void dawdle(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)result, (void)error;
    while (status_of(dawdling.buffer) < 4) sched_yield();
    PUT(&dawdling.over, true);
}

static void test_interleaving_18_a_callback_that_takes_its_time_delays_no_ticket(void **state)
{
    gpusync_point wait = {NULL, 0, NULL, 0};
    gpusync_ticket ticket, waiting, behind;
    softmetal_timing timing;
    gpusync_queue *other;
    void *first, *last;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    softmetal_get_timing(&timing);
    timing.watchdog_ns = SECONDS(1);
    softmetal_set_timing(&timing);
    other = queue_new(r.device);
    first = buffer_behind(r.queue, NULL);
    softmetal_hang(first);
    ticket = commit_to(r.queue, first);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), dawdle, NULL));
    ticket = commit_empty(&r, NULL);
    wait.queue = r.queue;
    wait.ticket = ticket;
    dawdling.buffer = buffer_behind(other, metal4_run() ? NULL : &wait);
    if (metal4_run()) waiting = SUBMIT(other, WAITS(wait), BUFFERS(dawdling.buffer));
    else waiting = commit_to(other, dawdling.buffer);
    last = buffer_behind(other, NULL);
    behind = commit_to(other, last);
    assert_int_equal(held_on(r.device, other), 2); /* until the ticket has ended */
    softmetal_unhang(first);
    while (!GET(&dawdling.over)) sched_yield();
    assert_ok(gpusync_wait(other, waiting, SECONDS(2)));
    assert_ok(gpusync_wait(other, behind, SECONDS(2)));
    metal_release(first);
    metal_release(last);
    metal_release(dawdling.buffer);
    assert_ok(gpusync_queue_destroy(other));
    rig_close(&r);
}

/* -- 19 ----------------------------------------------------------------------------------------- */

/* Two waits, one after the other. The first unpark stops until the test lets it go; the permit comes after that. The first
   park returns when that unpark has stopped, and so the first wait is over by then. */
static struct {
    gpusync_queue *queues[2];
    gpusync_timeline *timelines[2];
    gpusync_waiter *first, *second; /* of the two waits */
    gpusync_result results[2];
    bool stops, stopped, goes;
    unsigned parks;
} overdue;

static void late_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    COUNT(&overdue.parks);
    if (overdue.first) {
        overdue.second = waiter;
        thread_park(waiter, deadline_ns);
        return;
    }
    overdue.first = waiter;
    while (!GET(&overdue.stopped)) sched_yield();
}

static void late_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    if (__atomic_exchange_n(&overdue.stops, false, __ATOMIC_SEQ_CST)) {
        PUT(&overdue.stopped, true);
        while (!GET(&overdue.goes)) sched_yield();
    }
    thread_unpark(waiter);
}

static void *signal_one(void *timeline)
{
    assert_ok(gpusync_timeline_signal((gpusync_timeline *)timeline, 1));
    return NULL;
}

static void *wait_twice(void *unused)
{
    int i;
    for (i = 0; i < 2; i++)
        overdue.results[i] = gpusync_timeline_wait(overdue.timelines[i], 1, GPUSYNC_FOREVER, NULL);
    return unused;
}

/* Rule: a waiter is type-stable, and an unpark that comes late is one too many, no more. Another thread has taken the
   waiter off its list; the park ends before its unpark, and the wait finds the value; the waiter sleeps for the next wait;
   then the unpark comes, and the waiter sleeps on. */
static void test_interleaving_19_an_unpark_comes_when_its_wait_is_over_and_the_waiter_is_used_again(void **state)
{
    gpusync_hooks hooks = {NULL, late_park, late_unpark, NULL};
    pthread_t waiter, teller;
    int i;
    rig r;
    (void)state;
    memset(&overdue, 0, sizeof overdue);
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    for (i = 0; i < 2; i++) assert_ok(gpusync_timeline_create(r.device, NULL, &overdue.timelines[i]));
    overdue.stops = true;
    must_return_within(60);
    waiter = start(wait_twice, NULL);
    await_sleepers(r.device, 1);
    teller = start(signal_one, overdue.timelines[0]);
    while (GET(&overdue.parks) < 2) sched_yield(); /* in the second wait */
    PUT(&overdue.goes, true);
    join(teller);
    while (GET(&overdue.parks) < 3) sched_yield();
    assert_ok(gpusync_timeline_signal(overdue.timelines[1], 1));
    join(waiter);
    has_returned();
    for (i = 0; i < 2; i++) {
        assert_ok(overdue.results[i]);
        assert_ok(gpusync_timeline_destroy(overdue.timelines[i]));
    }
    assert_ptr_equal(overdue.first, overdue.second); /* the same one, or this shows nothing */
    assert_int_equal(overdue.parks, 3);
    rig_close(&r);
}

static void await_sleeper_of(gpusync_queue *queue)
{
    char text[4000];
    do sched_yield();
    while (!gpusync_queue_report(queue, text, sizeof text) || !strstr(text, "a wait for "));
}

static void *wait_on_both(void *unused)
{
    int i;
    for (i = 0; i < 2; i++) overdue.results[i] = gpusync_wait(overdue.queues[i], 1, GPUSYNC_FOREVER);
    return unused;
}

/* Rule: the thread that takes an entry off unparks its waiter, whatever another thread has still to do with that waiter. One
   that is about to unpark it is held up; the waiter sleeps in its next wait, on another queue, whose handler wakes it. */
static void test_interleaving_19_an_unpark_that_is_held_up_keeps_no_other_wake_up_back(void **state)
{
    gpusync_hooks hooks = {NULL, late_park, late_unpark, NULL};
    void *buffers[2];
    pthread_t waiter;
    int i;
    rig r;
    (void)state;
    memset(&overdue, 0, sizeof overdue);
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    overdue.queues[0] = r.queue;
    overdue.queues[1] = queue_new(r.device);
    overdue.stops = true;
    for (i = 0; i < 2; i++) {
        (void)commit_empty_to(overdue.queues[i], &buffers[i]);
        metal_retain(buffers[i]);
    }
    must_return_within(60);
    waiter = start(wait_on_both, NULL);
    await_sleepers(r.device, 1);
    softmetal_complete(buffers[0]);
    softmetal_begin_handler(buffers[0], 0);
    while (!GET(&overdue.stopped)) sched_yield();
    await_sleeper_of(overdue.queues[1]);
    softmetal_finish(buffers[1]);
    join(waiter);
    has_returned();
    PUT(&overdue.goes, true);
    softmetal_join_handler(buffers[0], 0);
    softmetal_release_block(buffers[0], 0);
    assert_ok(overdue.results[0]);
    assert_ok(overdue.results[1]);
    assert_ptr_equal(overdue.first, overdue.second); /* the same one, or this shows nothing */
    for (i = 0; i < 2; i++) metal_release(buffers[i]);
    assert_ok(gpusync_queue_destroy(overdue.queues[1]));
    rig_close(&r);
}

/* -- 20, and the end of good work ------------------------------------------------------------------ */

/* A poll, or a wait that does not wait, at the n-th message that the handler sends its buffer. */
static struct {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffer;
    unsigned countdown;
    bool waits;
    gpusync_result result;
} asked;

static void ask_in_the_handler(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user, (void)phase, (void)selector;
    if (object != asked.buffer || asked.countdown == 0 || --asked.countdown != 0) return;
    asked.result = asked.waits ? gpusync_wait(asked.queue, asked.ticket, 0) : gpusync_poll(asked.queue, asked.ticket);
}

/* False: the handler sends no so many. */
static bool check_ask_in_the_handler(unsigned n, bool waits)
{
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&asked, 0, sizeof asked);
    asked.queue = r.queue;
    asked.ticket = commit_empty(&r, &asked.buffer);
    asked.countdown = n;
    asked.waits = waits;
    softmetal_complete(asked.buffer);
    softmetal_set_message_hook(ask_in_the_handler, NULL);
    softmetal_run_handler(asked.buffer, 0); /* neither call may wait for the handler to go on */
    assert_ok(asked.result);
    softmetal_set_message_hook(NULL, NULL);
    softmetal_release_block(asked.buffer, 0);
    rig_close(&r);
    return asked.countdown == 0;
}

static void test_work_whose_status_is_completed_has_ended_for_every_look(void **state)
{
    unsigned n;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    for (n = 1; check_ask_in_the_handler(n, false); n++) {
    }
    assert_true(n > 1);
    for (n = 1; check_ask_in_the_handler(n, true); n++) {
    }
}

/* Interleaving 20: a poller is held up at its n-th message to the buffer, perhaps when it has claimed the end; the
   handler comes and goes; others ask. */
static struct {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffer;
    unsigned countdown;
    bool stopped, goes, done;
    gpusync_result result;
} held_up;

static __thread bool is_the_poller;

static void stop_the_poller(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user, (void)phase, (void)selector;
    if (!is_the_poller || object != held_up.buffer || held_up.countdown == 0 || --held_up.countdown != 0) return;
    PUT(&held_up.stopped, true);
    while (!GET(&held_up.goes)) sched_yield();
}

static void stop_at_a_point(void *unused)
{
    (void)unused;
    PUT(&held_up.stopped, true);
    while (!GET(&held_up.goes)) sched_yield();
}

static void *poll_once(void *argument)
{
    is_the_poller = true;
    held_up.result = gpusync_poll(held_up.queue, held_up.ticket);
    PUT(&held_up.done, true);
    return argument;
}

static void count_end(void *user, gpusync_result result, const gpusync_error *error)
{
    if (result == GPUSYNC_OK && !error) COUNT((unsigned *)user);
}

#define LAP 256 /* places in the ring */

/* Tickets that come after, until the place of the first one in the ring has gone on to another. */
static gpusync_ticket use_the_ring_up(rig *r, gpusync_ticket_info *info)
{
    gpusync_ticket ticket = 0;
    int i;
    for (i = 0; i < LAP; i++) {
        void *buffer;
        ticket = commit_empty(r, &buffer);
        softmetal_finish(buffer);
    }
    assert_ok(gpusync_get_info(r->queue, ticket, info));
    return ticket;
}

/* The thread that came late has written nothing into the place that has gone on to a later ticket. */
static void close_untouched(rig *r, gpusync_ticket later, const gpusync_ticket_info *before)
{
    gpusync_ticket_info after;
    assert_ok(gpusync_get_info(r->queue, later, &after));
    assert_int_equal(after.result, before->result);
    assert_memory_equal(&after.gpu_start_s, &before->gpu_start_s, sizeof after.gpu_start_s);
    assert_memory_equal(&after.gpu_end_s, &before->gpu_end_s, sizeof after.gpu_end_s);
    assert_true(gpusync_is_idle(r->queue));
    assert_int_equal(stats_of(r->queue).completions, LAP + 1);
    rig_close(r);
}

/* False: it sends no so many. */
static bool check_held_up(unsigned n)
{
    gpusync_ticket_info before;
    gpusync_ticket later;
    pthread_t thread;
    bool stopped;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&held_up, 0, sizeof held_up);
    held_up.queue = r.queue;
    held_up.ticket = commit_empty(&r, &held_up.buffer);
    held_up.countdown = n;
    softmetal_complete(held_up.buffer);
    softmetal_set_message_hook(stop_the_poller, NULL);
    thread = start(poll_once, NULL);
    while (!GET(&held_up.stopped) && !GET(&held_up.done)) sched_yield();
    stopped = GET(&held_up.stopped);
    softmetal_run_handler(held_up.buffer, 0);
    softmetal_release_block(held_up.buffer, 0);
    assert_true(gpusync_is_done(r.queue, held_up.ticket));
    assert_ok(gpusync_wait(r.queue, held_up.ticket, 0));
    later = use_the_ring_up(&r, &before);
    PUT(&held_up.goes, true);
    join(thread);
    softmetal_set_message_hook(NULL, NULL);
    assert_ok(held_up.result);
    close_untouched(&r, later, &before);
    return stopped;
}

static void test_interleaving_20_a_poller_that_is_held_up_holds_no_thread_up(void **state)
{
    unsigned n;
    (void)state;
    NOT_ON_METAL4("no call reads a status");
    for (n = 1; check_held_up(n); n++) {
    }
    assert_true(n > 1);
}

/* Untracked while another thread reads its status: the buffer stays for that reader, and no longer. */
static void test_an_untracked_buffer_stays_while_its_status_is_read(void **state)
{
    pthread_t thread;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("nothing can be tracked");
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&held_up, 0, sizeof held_up);
    buffer = held_up.buffer = metal_queue_command_buffer(r.metal_queue);
    held_up.queue = r.queue;
    held_up.countdown = 1;
    assert_ok(gpusync_track(r.queue, buffer, &held_up.ticket));
    softmetal_set_message_hook(stop_the_poller, NULL);
    thread = start(poll_once, NULL);
    while (!GET(&held_up.stopped)) sched_yield();
    assert_ok(gpusync_untrack(r.queue, held_up.ticket));
    assert_int_equal(softmetal_retain_count(buffer), 2);
    PUT(&held_up.goes, true);
    join(thread);
    softmetal_set_message_hook(NULL, NULL);
    assert_result(held_up.result, GPUSYNC_NOT_READY); /* as it was when the status was read */
    assert_result(gpusync_poll(r.queue, held_up.ticket), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(softmetal_retain_count(buffer), 1);
    metal_commit(buffer); /* after all */
    softmetal_finish(buffer);
    assert_int_equal(stats_of(r.queue).completions, 1);
    metal_release(buffer);
    rig_close(&r);
}

/* False: it sends no so many messages. */
static bool check_held_up_for_a_lap(unsigned n)
{
    gpusync_ticket_info info;
    gpusync_ticket running;
    pthread_t thread;
    void *buffer;
    bool stopped;
    int i;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&held_up, 0, sizeof held_up);
    held_up.queue = r.queue;
    held_up.ticket = commit_empty(&r, &held_up.buffer);
    held_up.countdown = n;
    softmetal_complete(held_up.buffer);
    softmetal_set_message_hook(stop_the_poller, NULL);
    thread = start(poll_once, NULL);
    while (!GET(&held_up.stopped) && !GET(&held_up.done)) sched_yield();
    stopped = GET(&held_up.stopped);
    softmetal_run_handler(held_up.buffer, 0);
    softmetal_release_block(held_up.buffer, 0);
    for (i = 1; i < LAP; i++) { /* each has the slot of the one before */
        (void)commit_empty(&r, &buffer);
        softmetal_finish(buffer);
    }
    running = commit_empty(&r, &buffer);
    PUT(&held_up.goes, true);
    join(thread);
    softmetal_set_message_hook(NULL, NULL);
    assert_ok(held_up.result);
    assert_int_equal(running, held_up.ticket + LAP);
    assert_result(gpusync_get_info(r.queue, running, &info), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(r.queue, running), GPUSYNC_NOT_READY);
    assert_int_equal(stats_of(r.queue).completions, LAP);
    softmetal_finish(buffer);
    assert_ok(gpusync_poll(r.queue, running));
    assert_int_equal(stats_of(r.queue).completions, LAP + 1);
    rig_close(&r);
    return stopped;
}

/* Rule: a look ends the ticket that it has found alone. A lap of the ring later the place and the slot are those of work
   that runs. */
static void test_a_poller_that_is_held_up_for_a_lap_of_the_ring_does_not_end_what_runs(void **state)
{
    unsigned n;
    (void)state;
    NOT_ON_METAL4("no call reads a status");
    for (n = 1; check_held_up_for_a_lap(n); n++) {
    }
    assert_true(n > 2);
}

/* Two commits come round the ring to the place of a ticket whose handler has not come: one is at its n-th point, and the
   other is made there. */
enum late_handler { BEFORE_THE_OTHER, BEHIND_THE_OTHER, BEHIND_BOTH, NEVER };
static struct {
    rig r;
    void *late, *other;
    gpusync_ticket ticket;
    enum late_handler comes;
} lap;

static void run_late_handler(enum late_handler when)
{
    if (lap.comes != when) return;
    softmetal_run_handler(lap.late, 0);
    softmetal_release_block(lap.late, 0);
}

static void come_round_first(void *unused)
{
    (void)unused;
    run_late_handler(BEFORE_THE_OTHER);
    lap.ticket = commit_to(lap.r.queue, lap.other);
    run_late_handler(BEHIND_THE_OTHER);
}

/* It runs, whatever became of the ticket before it in its place; and a look finds it when it has ended. */
static void assert_its_own(void *buffer, gpusync_ticket ticket)
{
    gpusync_ticket_info info;
    unsigned calls = 0;
    assert_ok(gpusync_on_done(gpusync_at_ticket(lap.r.queue, ticket), count_end, &calls));
    assert_true(softmetal_dispatched(SECONDS(10)));
    assert_int_equal(GET(&calls), 0);
    assert_false(gpusync_is_done(lap.r.queue, ticket));
    assert_result(gpusync_poll(lap.r.queue, ticket), GPUSYNC_NOT_READY);
    softmetal_complete(buffer);
    assert_ok(gpusync_wait(lap.r.queue, ticket, 0));
    assert_ok(gpusync_get_info(lap.r.queue, ticket, &info));
    assert_ok(info.result);
    softmetal_run_handler(buffer, 0);
    softmetal_release_block(buffer, 0);
    assert_true(softmetal_dispatched(SECONDS(10)));
    assert_int_equal(GET(&calls), 1);
}

/* False: the commit has no so many points. */
static bool check_two_come_round(int n, enum late_handler comes)
{
    gpusync_ticket first, ticket;
    void *mine, *buffer;
    bool came;
    int i;
    memset(&lap, 0, sizeof lap);
    rig_open(&lap.r, SOFTMETAL_MANUAL);
    lap.comes = comes;
    lap.late = open_buffer(&lap.r);
    if (comes == NEVER) softmetal_lose_handlers(lap.late);
    first = commit_to(lap.r.queue, lap.late);
    softmetal_complete(lap.late);
    assert_ok(gpusync_poll(lap.r.queue, first));
    for (i = 1; i < LAP; i++) {
        (void)commit_empty(&lap.r, &buffer);
        softmetal_finish(buffer);
    }
    mine = open_buffer(&lap.r);
    lap.other = open_buffer(&lap.r);
    probe_at_each(n, come_round_first, NULL);
    assert_ok(gpusync_commit(lap.r.queue, mine, &ticket));
    came = probe_has_acted();
    if (!came) come_round_first(NULL);
    run_late_handler(BEHIND_BOTH);
    assert_int_equal(ticket + lap.ticket, 2 * (first + LAP) + 1);
    assert_its_own(ticket < lap.ticket ? mine : lap.other, first + LAP);
    assert_its_own(ticket < lap.ticket ? lap.other : mine, first + LAP + 1);
    assert_true(gpusync_is_idle(lap.r.queue));
    assert_int_equal(stats_of(lap.r.queue).completions, LAP + 2);
    assert_int_equal(rooms_taken(lap.r.queue), comes == NEVER);
    rig_close(&lap.r);
    return came;
}

/* Rule: a commit changes the place of its own ticket alone, which it gets in the hold in which it writes there. */
static void test_two_commits_come_round_the_ring_to_a_late_handler_at_once(void **state)
{
    enum late_handler comes;
    int n;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    for (comes = BEFORE_THE_OTHER; comes <= NEVER; comes++) {
        for (n = 1; check_two_come_round(n, comes); n++) {
        }
        assert_true(n > 1);
    }
}

static void *report_once(void *argument)
{
    char text[1000];
    is_the_poller = true;
    (void)gpusync_report((gpusync_device *)argument, text, sizeof text);
    PUT(&held_up.done, true);
    return argument;
}

/* Rule: the last look at an orphan releases its buffer. A report, which looks at it, is held up at its n-th point;
   meanwhile the buffer is untracked. False: it has no so many. */
static bool check_untracked_in_between(int n)
{
    pthread_t thread;
    void *buffer;
    bool stopped;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&held_up, 0, sizeof held_up);
    buffer = metal_queue_command_buffer(r.metal_queue);
    assert_ok(gpusync_track(r.queue, buffer, &held_up.ticket));
    probe_at_each(n, stop_at_a_point, NULL);
    thread = start(report_once, r.device);
    while (!GET(&held_up.stopped) && !GET(&held_up.done)) sched_yield();
    stopped = probe_has_acted();
    assert_ok(gpusync_untrack(r.queue, held_up.ticket));
    PUT(&held_up.goes, true);
    join(thread);
    assert_int_equal(softmetal_retain_count(buffer), 1); /* the test's own */
    metal_release(buffer);
    rig_close(&r);
    return stopped;
}

static void test_an_untracked_buffer_goes_though_its_last_reader_came_first(void **state)
{
    int n;
    (void)state;
    NOT_ON_METAL4("nothing can be tracked");
    for (n = 1; check_untracked_in_between(n); n++) {
    }
    assert_true(n > 1);
}

/* -- 21 ----------------------------------------------------------------------------------------- */

static void stop_the_handler(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user, (void)phase, (void)selector;
    if (is_the_poller || object != held_up.buffer || held_up.countdown == 0 || --held_up.countdown != 0) return;
    PUT(&held_up.stopped, true);
    while (!GET(&held_up.goes)) sched_yield();
}

/* False: the handler sends no so many messages. */
static bool check_late_handler(unsigned n)
{
    gpusync_ticket_info before;
    gpusync_ticket later;
    bool stopped;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&held_up, 0, sizeof held_up);
    held_up.queue = r.queue;
    held_up.ticket = commit_empty(&r, &held_up.buffer);
    held_up.countdown = n;
    softmetal_complete(held_up.buffer);
    softmetal_set_message_hook(stop_the_handler, NULL);
    is_the_poller = true; /* this thread */
    softmetal_begin_handler(held_up.buffer, 0);
    while (!GET(&held_up.stopped) && !gpusync_is_done(r.queue, held_up.ticket)) sched_yield();
    stopped = GET(&held_up.stopped);
    assert_ok(gpusync_poll(r.queue, held_up.ticket));
    later = use_the_ring_up(&r, &before);
    PUT(&held_up.goes, true);
    softmetal_join_handler(held_up.buffer, 0);
    softmetal_release_block(held_up.buffer, 0);
    is_the_poller = false;
    softmetal_set_message_hook(NULL, NULL);
    close_untouched(&r, later, &before);
    return stopped;
}

/* Rule: what a handler finds goes into its ticket's entry by compare and swap: that entry may be another's by then. */
static void test_interleaving_21_the_ring_goes_on_while_a_handler_is_about_to_mark(void **state)
{
    unsigned n;
    (void)state;
    NOT_ON_METAL4("only the handler ends a ticket");
    for (n = 1; check_late_handler(n); n++) {
    }
    assert_true(n > 2);
}

/* A handler is stopped where it is about to end its ticket, for which a callback is listed, or at its n-th point. */
static void *run_the_handler(void *argument)
{
    softmetal_run_handler(held_up.buffer, 0);
    PUT(&held_up.done, true);
    return argument;
}

/* n = 0: where it is about to end its ticket. False: there are no so many points. *told: its ticket had ended. */
static bool check_late_teller(int n, bool *told)
{
    gpusync_ticket_info before;
    gpusync_ticket later;
    unsigned calls = 0;
    pthread_t thread;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&held_up, 0, sizeof held_up);
    held_up.ticket = commit_empty(&r, &held_up.buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, held_up.ticket), count_end, &calls));
    softmetal_complete(held_up.buffer);
    softmetal_set_dispatch_threads(0);
    if (n) probe_at_each(n, stop_at_a_point, NULL);
    else probe_at(PROBE_END_IS_TOLD, NULL, 1, stop_at_a_point, NULL);
    thread = start(run_the_handler, NULL);
    while (!GET(&held_up.stopped) && !GET(&held_up.done)) sched_yield();
    (void)probe_has_acted(); /* no other thread is stopped from here on */
    *told = GET(&held_up.stopped) && gpusync_is_done(r.queue, held_up.ticket);
    later = use_the_ring_up(&r, &before);
    PUT(&held_up.goes, true);
    join(thread);
    softmetal_release_block(held_up.buffer, 0);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(GET(&calls), 1);
    close_untouched(&r, later, &before);
    return held_up.stopped;
}

/* Rule: wait lists know tickets, not entries: the entry is another ticket's when the handler tells of its own. */
static void test_interleaving_21_the_ring_goes_on_while_a_handler_is_about_to_tell(void **state)
{
    unsigned tellers = 0;
    bool told;
    int n;
    (void)state;
    assert_true(check_late_teller(0, &told));
    assert_false(told); /* it ends the ticket, and takes off what waits for that, in one step */
    for (n = 1; check_late_teller(n, &told); n++) tellers += told;
    assert_true(tellers > 0);
}

/* -- 22 ----------------------------------------------------------------------------------------- */

/* Interleaving 22: room is there, is taken, is given back while a waiter registers. A submission takes room for a command
   buffer of gpusync's own and then gets no memory for its ticket; in between another thread found the queue full and went to
   sleep. That one is told, for no other will tell it. */
enum { CROWD = 256 }; /* tickets that a queue has place for without more memory */
static struct {
    memory_log memory;
    gpusync_queue *queue;
    pthread_t sleeper;
    unsigned parked, unparked, came;
    bool goes; /* the sleeper may */
    bool back; /* it is: it found room */
    gpusync_result result;
} crowded;

static __thread bool has_no_memory;

static void *wait_for_room_in_the_crowd(void *argument)
{
    uint64_t limit = SECONDS(60);
    gpusync_command_buffer_desc desc;
    void *buffer = NULL;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &limit;
    crowded.result = gpusync_command_buffer(crowded.queue, &desc, &buffer);
    if (crowded.result == GPUSYNC_OK)
        crowded.result = gpusync_command_buffer_discard(crowded.queue, buffer);
    PUT(&crowded.back, true);
    return argument;
}

static void *crowded_allocate(void *user, size_t size, size_t alignment)
{
    if (!has_no_memory) return memory_allocate(user, size, alignment);
    if (COUNT(&crowded.came) == 0) crowded.sleeper = start(wait_for_room_in_the_crowd, NULL);
    while (!GET(&crowded.parked) && !GET(&crowded.back)) sched_yield();
    return NULL;
}

static void park_in_the_crowd(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter, (void)deadline_ns;
    COUNT(&crowded.parked);
    while (!GET(&crowded.unparked) && !GET(&crowded.goes)) sched_yield();
}

static void unpark_in_the_crowd(void *user, gpusync_waiter *waiter)
{
    (void)user, (void)waiter;
    COUNT(&crowded.unparked);
}

static void test_interleaving_22_room_that_cannot_be_used_is_passed_on(void **state)
{
    gpusync_hooks hooks = {NULL, park_in_the_crowd, unpark_in_the_crowd, NULL};
    gpusync_allocator allocator = {crowded_allocate, memory_release, &crowded.memory};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    gpusync_result result;
    gpusync_device *device;
    int i;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    memset(&crowded, 0, sizeof crowded);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    device_desc.allocator = &allocator;
    device_desc.spin = &no_spin;
    queue_desc.max_command_buffer_count = CROWD + 1;
    assert_ok(gpusync_device_create(&device_desc, &device));
    crowded.queue = queue_of_kind(QUEUE_OF_GPUSYNC, device, &queue_desc);
    timeline = timeline_new(device);
    (void)SUBMIT(crowded.queue, SIGNALS(gpusync_at_value(timeline, 1))); /* its memory serves the next one */
    softmetal_finish_queue(gpusync_queue_metal(crowded.queue));
    for (i = 0; i < CROWD; i++) (void)commit_empty_to(crowded.queue, NULL);
    has_no_memory = true;
    result = TRY_SUBMIT(crowded.queue, &ticket, SIGNALS(gpusync_at_value(timeline, 2)));
    has_no_memory = false;
    assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_int_equal(crowded.came, 1);
    assert_int_equal(GET(&crowded.parked), 1); /* the submission had the last room */
    assert_int_equal(GET(&crowded.unparked), 1);
    PUT(&crowded.goes, true);
    join(crowded.sleeper);
    assert_ok(crowded.result);
    softmetal_finish_queue(gpusync_queue_metal(crowded.queue));
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_queue_destroy(crowded.queue));
    assert_ok(gpusync_device_destroy(device));
    assert_int_equal(crowded.memory.live, 0);
}

static struct {
    rig r;
    void *first, *second;
    int taken_at;
    bool came, taken; /* where it was to, and not because the waiter sleeps */
    unsigned parks, unparks, told;
} room;

static void *buffer_with_room(const uint64_t *timeout_ns)
{
    gpusync_command_buffer_desc desc;
    gpusync_result result;
    void *buffer;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = timeout_ns;
    result = gpusync_command_buffer(room.r.queue, &desc, &buffer);
    if (timeout_ns && result != GPUSYNC_OK) return NULL;
    assert_ok(result);
    return buffer;
}

static void give_room_of(void *buffer) { assert_ok(gpusync_command_buffer_discard(room.r.queue, buffer)); }

static void *take_the_room(void *unused)
{
    static const uint64_t at_once = 0;
    room.second = buffer_with_room(&at_once);
    return unused;
}

static void others_take_it(void *unused)
{
    room.taken = true;
    join(start(take_the_room, unused));
}

static void room_comes(void)
{
    void *first = room.first;
    room.first = NULL;
    softmetal_finish(first);
}

static void room_comes_and_goes(void *unused)
{
    if (!room.first) return; /* this is its handler, on the way because the waiter sleeps already */
    room_comes();
    room.came = true;
    probe_at_each(room.taken_at, others_take_it, unused);
}

static void park_for_room(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    (void)waiter;
    (void)deadline_ns;
    if (room.second) { /* while it sleeps, the room comes back: each listed waiter is told */
        void *second = room.second;
        room.second = NULL;
        room.unparks = 0;
        room.parks++;
        give_room_of(second);
        room.told += room.unparks;
    } else if (room.first) {
        room_comes();
    }
}

static void unpark_for_room(void *user, gpusync_waiter *waiter)
{
    (void)user;
    (void)waiter;
    room.unparks++;
}

/* Room comes at the n-th point of the waiter, and others take it at the m-th after that. */
static void wait_for_room_at(int n, int m)
{
    gpusync_hooks hooks = {NULL, park_for_room, unpark_for_room, NULL};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    void *third;
    memset(&room, 0, sizeof room);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    device_desc.spin = &no_spin;
    queue_desc.max_command_buffer_count = 1;
    rig_open_with(&room.r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    (void)commit_empty(&room.r, &room.first);
    room.taken_at = m;
    probe_at_each(n, room_comes_and_goes, NULL);
    third = buffer_with_room(NULL);
    (void)probe_has_acted();
    assert_int_equal(room.told, room.parks);
    give_room_of(third);
    if (room.second) give_room_of(room.second);
    if (room.first) softmetal_finish(room.first);
    rig_close(&room.r);
}

static void test_interleaving_22_a_waiter_for_room_is_told_though_it_was_there_a_moment_ago(void **state)
{
    unsigned slept = 0;
    int n, m;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    n = 0;
    do {
        n++, m = 0;
        do {
            wait_for_room_at(n, ++m);
            slept += room.parks;
        } while (room.taken);
    } while (room.came);
    assert_true(slept > 0); /* it did sleep for what others had taken */
}

/* -- 23 ----------------------------------------------------------------------------------------- */

static struct {
    gpusync_timeline *timeline;
    pthread_t signaller, destroyer;
    unsigned calls, yields;
    gpusync_result result;
    bool started, destroyed, called_after;
} going;

static void going_yield(void *user)
{
    (void)user;
    COUNT(&going.yields);
    sched_yield();
}

static void call_of_going(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)error;
    going.called_after = GET(&going.destroyed);
    going.result = result;
    COUNT(&going.calls);
}

static void *destroy_going(void *unused)
{
    assert_ok(gpusync_timeline_destroy(going.timeline));
    PUT(&going.destroyed, true);
    return unused;
}

/* In the middle of the signal: destroy has begun, and waits for it. */
static void let_it_go(void *unused)
{
    (void)unused;
    if (!pthread_equal(pthread_self(), going.signaller)) return; /* the dispatch queue's thread comes to points, too */
    going.started = true;
    going.destroyer = start(destroy_going, NULL);
    while (!GET(&going.destroyed) && GET(&going.yields) < 10) sched_yield();
}

/* alone: destroy alone can call. False: there are no so many points. */
static bool check_going(int n, bool alone)
{
    gpusync_hooks hooks = {going_yield, NULL, NULL, NULL};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    bool acted;
    rig r;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&going, 0, sizeof going);
    going.signaller = pthread_self();
    device_desc.hooks = &hooks;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    assert_ok(gpusync_timeline_create(r.device, NULL, &going.timeline));
    assert_ok(gpusync_on_done(gpusync_at_value(going.timeline, 1), call_of_going, NULL));
    softmetal_set_dispatch_threads(alone ? 0 : SOFTMETAL_DISPATCH_THREADS);
    probe_at_each(n, let_it_go, NULL);
    assert_ok(gpusync_timeline_signal(going.timeline, 1));
    acted = probe_has_acted();
    if (going.started) join(going.destroyer);
    else (void)destroy_going(NULL);
    assert_int_equal(going.calls, 1);
    assert_ok(going.result);
    assert_false(going.called_after);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(going.calls, 1);
    rig_close(&r);
    return acted;
}

/* Rule: a callback is in one place at a time, listed, due or running; a destroy runs what is due of its own. */
static void test_interleaving_23_a_timeline_goes_while_a_signal_takes_a_callback_off_its_list(void **state)
{
    int alone, n;
    (void)state;
    for (alone = 0; alone < 2; alone++) {
        unsigned waited = 0; /* destroy, for the signal */
        for (n = 1; check_going(n, alone); n++) waited += going.yields > 0;
        assert_true(waited > 0);
    }
}

/* -- no number: waits and their ends -------------------------------------------------------------- */

/* Rule: a wait takes its registration back before it returns. */
static void test_timed_out_waiter_is_not_there_for_a_late_handler(void **state)
{
    counted_park count;
    gpusync_ticket ticket;
    void *buffer;
    rig r;
    (void)state;
    open_counting(&r, &count);
    ticket = commit_empty(&r, &buffer);
    assert_result(gpusync_wait(r.queue, ticket, MS(400)), GPUSYNC_TIMEOUT); /* long enough to come as far as the park */
    assert_int_equal(count.parks, 1);
    softmetal_finish(buffer);
    assert_int_equal(count.unparks, 0);
    assert_ok(gpusync_wait(r.queue, ticket, 0));
    rig_close(&r);
}

typedef struct late_finish {
    void *buffer;
    int place; /* the point at which it is finished, counted from the park */
} late_finish;

static void finish_after_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    late_finish *late = (late_finish *)user;
    thread_park(waiter, deadline_ns);
    probe_at_each(late->place, finish_buffer, late->buffer);
}

static void plain_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

/* Rule: when the work is done at the deadline, done wins, also where the handler comes between the deadline and the end of
   the wait: at each point there. */
static void test_done_at_the_deadline_wins(void **state)
{
    late_finish late = {NULL, 1};
    gpusync_hooks hooks = {NULL, finish_after_park, plain_unpark, &late};
    gpusync_spin none = {0, 0, 0, false};
    int last = 0;
    (void)state;
    while (last == 0) {
        gpusync_device_desc device_desc;
        gpusync_queue_desc queue_desc;
        gpusync_ticket ticket;
        gpusync_result result;
        rig r;
        memset(&device_desc, 0, sizeof device_desc);
        memset(&queue_desc, 0, sizeof queue_desc);
        device_desc.hooks = &hooks;
        device_desc.spin = &none;
        rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
        ticket = commit_empty(&r, &late.buffer);
        result = gpusync_wait(r.queue, ticket, MS(100));
        if (!probe_has_acted()) last = late.place;
        assert_result(result, last ? GPUSYNC_TIMEOUT : GPUSYNC_OK);
        if (last) softmetal_finish(late.buffer);
        assert_true(gpusync_is_done(r.queue, ticket));
        rig_close(&r);
        late.place++;
    }
    assert_true(last > 1);
}

/* Rule: a failure goes on record in the step that ends its ticket. A poll that comes while the handler is reading the error
   must not report success: it puts the failure on record itself. With Metal 4 it finds nothing. */
static struct {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    gpusync_result result;
} peek;

static void peek_poll(void *buffer)
{
    (void)buffer;
    peek.result = gpusync_poll(peek.queue, peek.ticket);
}

static void test_no_success_before_the_record(void **state)
{
    trap t = {NULL, "error", SOFTMETAL_BEFORE, 1, peek_poll};
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    peek.ticket = commit_empty(&r, &t.buffer);
    peek.queue = r.queue;
    peek.result = GPUSYNC_OK;
    softmetal_fail(t.buffer, NULL, 1, NULL);
    softmetal_complete(t.buffer);
    softmetal_set_message_hook(trap_hook, &t); /* inside the handler, which is reading the error */
    softmetal_run_handler(t.buffer, 0);
    softmetal_set_message_hook(NULL, NULL);
    softmetal_release_block(t.buffer, 0);
    assert_result(peek.result, metal4_run() ? GPUSYNC_NOT_READY : GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(r.queue, peek.ticket), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(stats_of(r.queue).failures, 1);
    rig_close(&r);
}

static void peek_at_unpark(void *user, gpusync_waiter *waiter)
{
    peek.result = gpusync_poll(peek.queue, peek.ticket);
    early_unpark_it(user, waiter);
}

/* Rule: the failure is on record before the ticket is marked. */
static void test_failure_is_on_record_when_the_waiter_is_woken(void **state)
{
    early_unpark early = {NULL, 0, probe_default_hooks()};
    gpusync_hooks hooks = {NULL, early_park, peek_at_unpark, NULL};
    gpusync_spin none = {0, 0, 0, false};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    hooks.user = &early;
    device_desc.hooks = &hooks;
    device_desc.spin = &none;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    peek.ticket = commit_empty(&r, &early.buffer);
    peek.queue = r.queue;
    peek.result = GPUSYNC_NOT_READY;
    softmetal_fail(early.buffer, NULL, 1, NULL);
    assert_result(gpusync_wait(r.queue, peek.ticket, GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
    assert_result(peek.result, GPUSYNC_ERROR_EXECUTION);
    rig_close(&r);
}

static void look_at_unpark(void *user, gpusync_waiter *waiter)
{
    peek.result = gpusync_is_done(peek.queue, peek.ticket) ? GPUSYNC_OK : GPUSYNC_NOT_READY;
    early_unpark_it(user, waiter);
}

/* Rule: a waiter is told of an end that every thread can see. One that was told before would sleep again. */
static void test_a_ticket_has_ended_when_its_waiter_is_woken(void **state)
{
    early_unpark early = {NULL, 0, probe_default_hooks()};
    gpusync_hooks hooks = {NULL, early_park, look_at_unpark, NULL};
    rig r;
    (void)state;
    hooks.user = &early;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    peek.ticket = commit_empty(&r, &early.buffer);
    peek.queue = r.queue;
    peek.result = GPUSYNC_TIMEOUT;
    assert_ok(gpusync_wait(r.queue, peek.ticket, SECONDS(20)));
    assert_ok(peek.result);
    rig_close(&r);
}

/* Rule: the ticket is published before [commit], so that its completion never runs ahead of it. */
static struct {
    gpusync_queue *queue;
    bool idle;
} at_commit;

static void finish_inside_commit(void *buffer)
{
    softmetal_finish(buffer);
    at_commit.idle = gpusync_is_idle(at_commit.queue);
}

static void test_completion_before_commit_returns(void **state)
{
    trap t = {NULL, "commit", SOFTMETAL_AFTER, 1, finish_inside_commit};
    gpusync_ticket ticket = 0;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    t.buffer = open_buffer(&r);
    at_commit.queue = r.queue;
    at_commit.idle = false;
    softmetal_set_message_hook(trap_hook, &t);
    assert_ok(either_commit(r.queue, t.buffer, &ticket));
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(t.countdown, 0);
    assert_true(at_commit.idle);
    assert_int_equal(ticket, 1);
    assert_true(gpusync_is_done(r.queue, ticket));
    assert_true(gpusync_is_idle(r.queue));
    rig_close(&r);
}

static struct {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffer;
} broken_vow;

static void break_vow(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_BEFORE || object != broken_vow.buffer || strcmp(selector, "status") != 0) return;
    broken_vow.buffer = NULL;
    assert_ok(gpusync_untrack(broken_vow.queue, broken_vow.ticket));
    metal_commit(object);
    softmetal_finish(object);
}

static void test_the_handler_of_an_untracked_buffer_drops_no_other_hold(void **state)
{
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("nothing can be tracked");
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, NULL, queue_desc_of(0, 0));
    buffer = metal_queue_command_buffer(r.metal_queue);
    assert_ok(gpusync_track(r.queue, buffer, &broken_vow.ticket));
    broken_vow.queue = r.queue;
    broken_vow.buffer = buffer;
    softmetal_set_message_hook(break_vow, NULL);
    assert_result(gpusync_poll(r.queue, broken_vow.ticket), GPUSYNC_ERROR_CANCELLED);
    softmetal_set_message_hook(NULL, NULL);
    metal_release(buffer);
    commit_empty(&r, &buffer); /* the slot serves again, and for this one only */
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    rig_close(&r);
}

/* -- no number: what a handler is given ----------------------------------------------------------- */

/* Metal's validation, and tools that capture a frame, put objects of their own around Metal's, and may hand a handler
   such a one. The handler is still that of its commit, and asks the command buffer how that has ended: what the other
   object answers is not known. */
static void count_call(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    if (result == GPUSYNC_OK) COUNT((unsigned *)user);
}

struct questions {
    void *buffer;
    unsigned own, strangers; /* messages */
};

/* Only its own buffer answers a handler, or with Metal 4 the feedback. */
static void count_strangers(void *user, softmetal_phase phase, void *object, const char *selector)
{
    struct questions *q = (struct questions *)user;
    (void)selector;
    if (phase != SOFTMETAL_BEFORE || !answers(object, "GPUEndTime")) return;
    if (is_asked_by_handlers(object, q->buffer)) q->own++;
    else q->strangers++;
}

static void test_a_handler_that_gets_another_object_ends_its_ticket(void **state)
{
    int fails;
    (void)state;
    for (fails = 0; fails < 2; fails++) {
        const gpusync_result expected = fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
        struct questions asks = {NULL, 0, 0};
        softmetal_quirks quirks;
        gpusync_ticket ticket;
        unsigned calls = 0;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        softmetal_get_quirks(&quirks);
        quirks.wrapped_buffers = true;
        softmetal_set_quirks(&quirks);
        ticket = commit_empty(&r, &asks.buffer);
        if (fails) softmetal_fail(asks.buffer, NULL, 3, "killed");
        assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), count_call, &calls));
        softmetal_set_message_hook(count_strangers, &asks);
        softmetal_finish(asks.buffer);
        softmetal_set_message_hook(NULL, NULL);
        assert_int_equal(asks.strangers, 0);
        assert_true(asks.own > 0);
        assert_true(gpusync_is_done(r.queue, ticket));
        assert_result(gpusync_wait(r.queue, ticket, 0), expected);
        assert_true(softmetal_dispatched(SECONDS(10)));
        assert_int_equal(GET(&calls), !fails);
        assert_int_equal(rooms_taken(r.queue), 0);
        rig_close(&r);
    }
}

/* -- no number: a wait for many that takes off its last entry itself ------------------------------------------- */

enum { AT_ONCE = 16 }; /* waits that a handler takes off the list in one step */

static struct {
    stage s;
    void *buffer;
    wait_job crowd[AT_ONCE]; /* listed for the ticket, before the wait for many */
    gate marked, goes;       /* the buffer's handler has ended the ticket, and told the crowd; it may tell the rest */
    unsigned parks, unparks;
    bool last_came;
} alone;
static __thread bool is_alone;

static void return_at_once(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter, (void)deadline_ns;
    if (is_alone) COUNT(&alone.parks);
    else sched_yield();
}

static void stop_in_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user, (void)waiter;
    if (COUNT(&alone.unparks) != 0) return;
    gate_wait(&alone.marked);
    gate_wait(&alone.goes);
}

static void the_last_one_comes(void *unused)
{
    (void)unused;
    assert_ok(gpusync_timeline_signal(alone.s.a, 1)); /* one other entry is listed still */
    alone.last_came = true;
}

/* On the waiting thread: all but the last of its watches are listed. */
static void all_but_one_come(void *unused)
{
    (void)unused;
    assert_ok(gpusync_timeline_signal(alone.s.b, 1));
    assert_ok(gpusync_timeline_signal(alone.s.d, 1));
    softmetal_complete(alone.buffer);
    softmetal_begin_handler(alone.buffer, 0);
    gate_wait(&alone.marked);
    probe_at(PROBE_WAITER_LEAVES, alone.s.b, 1, the_last_one_comes, NULL); /* it has seen that b has come */
}

/* Rule: a wait for many parks only while one of its watches is listed. It looks at a, which has not come. Then a comes,
   whose signal wakes no waiter: another entry is listed. The wait sees that this one is met, and takes it off by
   itself; no thread is left that would wake it for a. */
static void test_a_wait_for_many_never_sleeps_with_nothing_listed(void **state)
{
    gpusync_hooks hooks = {NULL, return_at_once, stop_in_unpark, NULL};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_wait_options options;
    gpusync_point points[4];
    gpusync_ticket ticket;
    gpusync_result result;
    unsigned parks;
    int i;
    (void)state;
    memset(&alone, 0, sizeof alone);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&options, 0, sizeof options);
    device_desc.hooks = &hooks;
    open_stage_on(&alone.s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, 1, device_desc, queue_desc);
    gate_init(&alone.marked, 2);
    gate_init(&alone.goes, 2);
    alone.buffer = kept_buffer_of(alone.s.q[0]);
    ticket = commit_to(alone.s.q[0], alone.buffer);
    points[0] = at(alone.s.a, 1);
    points[1] = at(alone.s.b, 1);
    points[2] = after(alone.s.q[0], ticket);
    points[3] = at(alone.s.d, 1);
    options.spin = &no_spin;
    must_return_within(60);
    for (i = 0; i < AT_ONCE; i++) wait_job_start(&alone.crowd[i], alone.s.q[0], ticket, SECONDS(60));
    await_sleepers(alone.s.device, AT_ONCE);
    is_alone = true;
    probe_at(PROBE_WAITER_LISTS, alone.s.d, 1, all_but_one_come, NULL);
    result = gpusync_wait_many(points, 4, GPUSYNC_WAIT_ALL, SECONDS(20), &options, NULL);
    parks = alone.parks;
    gate_wait(&alone.goes);
    softmetal_join_handler(alone.buffer, 0);
    for (i = 0; i < AT_ONCE; i++) assert_ok(wait_job_join(&alone.crowd[i]));
    has_returned();
    assert_true(probe_has_acted());
    assert_true(alone.last_came);
    assert_ok(result);
    assert_int_equal(parks, 0);
    assert_int_equal(alone.unparks, AT_ONCE); /* the wait itself was not unparked: it would have slept to its deadline */
    softmetal_finish(alone.buffer);
    metal_release(alone.buffer);
    gate_destroy(&alone.marked);
    gate_destroy(&alone.goes);
    close_idle_stage(&alone.s);
}

/* -- no number: work that is given up while it ends ---------------------------------------------------------------- */

/* The program commits it after all; its handler is late. */
static void it_ends_and_is_polled(void *buffer)
{
    metal_commit(buffer);
    softmetal_complete(buffer);
    peek_poll(buffer);
}

/* ... or comes at once. */
static void it_ends_with_its_handler_and_is_polled(void *buffer)
{
    metal_commit(buffer);
    softmetal_finish(buffer);
    peek_poll(buffer);
}

/* place 0: when its status has been read; else at this point of gpusync_untrack. False: there are no so many. */
static bool check_given_up(int place, void (*act)(void *buffer))
{
    trap t = {NULL, "status", SOFTMETAL_AFTER, 1, act};
    bool acted, given_up;
    gpusync_result result, end;
    gpusync_error error;
    uint64_t cursor = 0;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    peek.queue = r.queue;
    peek.ticket = track_a_buffer(&r, &t.buffer);
    peek.result = GPUSYNC_NOT_READY;
    if (place == 0) softmetal_set_message_hook(trap_hook, &t);
    else probe_at_each(place, act, t.buffer);
    result = gpusync_untrack(r.queue, peek.ticket);
    softmetal_set_message_hook(NULL, NULL);
    acted = place == 0 ? t.countdown == 0 : probe_has_acted();
    given_up = result == GPUSYNC_OK;
    if (!given_up && result != GPUSYNC_ERROR_ALREADY_COMMITTED) assert_result(result, GPUSYNC_ERROR_INVALID_TICKET);
    if (place == 0) assert_result(peek.result, GPUSYNC_OK); /* it is seen to have ended before it was given up */
    end = gpusync_poll(r.queue, peek.ticket);
    assert_result(end, given_up ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_OK);
    if (peek.result != GPUSYNC_NOT_READY) assert_result(peek.result, end);
    assert_result(gpusync_next_error(r.queue, &cursor, &error), given_up ? GPUSYNC_OK : GPUSYNC_NOT_READY);
    if (given_up) assert_result(error.result, GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
    if (!acted) act(t.buffer);
    softmetal_finish(t.buffer);
    assert_result(gpusync_poll(r.queue, peek.ticket), end);
    assert_int_equal(rooms_taken(r.queue), 0);
    metal_release(t.buffer);
    rig_close(&r);
    return acted;
}

/* Rule: the thread that finds the end of work that can be given up claims it, also where it ended well. A ticket that a
   poll has called done is never given up, and one that was is never done. */
static void test_a_ticket_is_given_up_or_done_and_never_first_one_and_then_the_other(void **state)
{
    int place;
    (void)state;
    NOT_ON_METAL4("nothing can be tracked");
    assert_true(check_given_up(0, it_ends_and_is_polled));
    assert_true(check_given_up(0, it_ends_with_its_handler_and_is_polled));
    for (place = 1; check_given_up(place, it_ends_and_is_polled); place++) {
    }
    assert_true(place > 1);
    for (place = 1; check_given_up(place, it_ends_with_its_handler_and_is_polled); place++) {
    }
    assert_true(place > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interleaving_01_late_handler_does_not_end_a_later_ticket),
        cmocka_unit_test(test_interleaving_02_handler_drops_the_buffer_while_a_poller_sends_status),
        cmocka_unit_test(test_interleaving_03_poller_and_handler_both_see_the_error),
        cmocka_unit_test(test_interleaving_04_destroy_waits_for_the_handler_that_made_the_queue_idle),
        cmocka_unit_test(test_interleaving_05_handler_comes_after_destroy_now),
        cmocka_unit_test(test_interleaving_06_prefix_goes_on_over_tickets_that_ended_early),
        cmocka_unit_test(test_interleaving_07_is_idle_against_commit_and_completion_in_between),
        cmocka_unit_test(test_interleaving_07_in_flight_against_commit_and_completion_in_between),
        cmocka_unit_test(test_interleaving_08_unpark_before_park),
        cmocka_unit_test(test_interleaving_09_a_fiber_goes_on_on_another_thread),
        cmocka_unit_test(test_interleaving_10_handler_after_the_wait_has_returned),
        cmocka_unit_test(test_interleaving_11_handler_runs_before_the_waiter_registers),
        cmocka_unit_test(test_interleaving_11_waiter_registers_before_the_handler_looks),
        cmocka_unit_test(test_interleaving_18_a_callback_that_takes_its_time_delays_no_ticket),
        cmocka_unit_test(test_interleaving_19_an_unpark_comes_when_its_wait_is_over_and_the_waiter_is_used_again),
        cmocka_unit_test(test_interleaving_19_an_unpark_that_is_held_up_keeps_no_other_wake_up_back),
        cmocka_unit_test(test_interleaving_20_a_poller_that_is_held_up_holds_no_thread_up),
        cmocka_unit_test(test_interleaving_21_the_ring_goes_on_while_a_handler_is_about_to_mark),
        cmocka_unit_test(test_interleaving_21_the_ring_goes_on_while_a_handler_is_about_to_tell),
        cmocka_unit_test(test_interleaving_22_room_that_cannot_be_used_is_passed_on),
        cmocka_unit_test(test_interleaving_22_a_waiter_for_room_is_told_though_it_was_there_a_moment_ago),
        cmocka_unit_test(test_interleaving_23_a_timeline_goes_while_a_signal_takes_a_callback_off_its_list),
        cmocka_unit_test(test_timed_out_waiter_is_not_there_for_a_late_handler),
        cmocka_unit_test(test_done_at_the_deadline_wins),
        cmocka_unit_test(test_no_success_before_the_record),
        cmocka_unit_test(test_failure_is_on_record_when_the_waiter_is_woken),
        cmocka_unit_test(test_a_ticket_has_ended_when_its_waiter_is_woken),
        cmocka_unit_test(test_completion_before_commit_returns),
        cmocka_unit_test(test_a_handler_that_gets_another_object_ends_its_ticket),
        cmocka_unit_test(test_work_whose_status_is_completed_has_ended_for_every_look),
        cmocka_unit_test(test_a_poller_that_is_held_up_for_a_lap_of_the_ring_does_not_end_what_runs),
        cmocka_unit_test(test_two_commits_come_round_the_ring_to_a_late_handler_at_once),
        cmocka_unit_test(test_an_untracked_buffer_stays_while_its_status_is_read),
        cmocka_unit_test(test_an_untracked_buffer_goes_though_its_last_reader_came_first),
        cmocka_unit_test(test_the_handler_of_an_untracked_buffer_drops_no_other_hold),
        cmocka_unit_test(test_a_wait_for_many_never_sleeps_with_nothing_listed),
        cmocka_unit_test(test_a_ticket_is_given_up_or_done_and_never_first_one_and_then_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
