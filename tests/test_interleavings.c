/* test_interleavings.c - races replayed one step at a time

   Each test forces one order of events that a lucky machine never shows: on softmetal's manual clock, by code that runs
   at a message (softmetal_set_message_hook), in a hook of gpusync, or at a lock (below). Each names the rule of the
   header that it goes red without. Fibers that change threads are in test_fibers.c. */
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

#define GPUSYNC_IMPLEMENTATION
#include "at_lock.h"

static void finish_buffer(void *buffer)
{
    softmetal_finish(buffer);
}

/* Finishes a buffer on the device's side at the n-th message with this name to it. */
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
    if (phase != t->phase || object != t->buffer || strcmp(selector, t->selector) != 0) return;
    if (t->countdown == 0 || --t->countdown != 0) return;
    t->act(t->buffer);
}

/* -- 1 ------------------------------------------------------------------------------------------ */

/* Rule: a slot stays with its ticket until its handler ran, and the handler looks at nobody else's buffer. */
static void test_01_late_handler_does_not_end_a_later_ticket(void **state)
{
    void *first, *later[8];
    gpusync_ticket t1;
    unsigned i;
    rig r;
    (void)state;
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
    assert_int_equal(stats_of(r.queue).waits_inline, 1); /* every handler did its work: nobody had to look */
    rig_close(&r);
}

/* -- 2 ------------------------------------------------------------------------------------------ */

/* Rule: who sends `status` holds the slot, so the handler does not release the buffer under its feet. */
static void test_02_handler_drops_the_buffer_while_a_poller_sends_status(void **state)
{
    trap t = {NULL, "status", SOFTMETAL_BEFORE, 1, finish_buffer};
    gpusync_ticket ticket;
    rig r;
    (void)state;
    if (!softmetal_sees_messages()) skip();
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

/* Rule: who sees the end first claims it. */
static void test_03_poller_and_handler_both_see_the_error(void **state)
{
    trap t = {NULL, "status", SOFTMETAL_AFTER, 1, finish_buffer};
    gpusync_ticket ticket;
    gpusync_error error;
    uint64_t cursor = 0;
    rig r;
    (void)state;
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

static void test_04_destroy_waits_for_the_handler_that_made_the_queue_idle(void **state)
{
    (void)state;
    check_destroy_waits_for_running_handler(false);
    check_destroy_waits_for_running_handler(true);
}

/* -- 5 ------------------------------------------------------------------------------------------ */

/* Rule: destroy cuts the tie of handlers that did not come; the orphan touches its slot and nothing else. (What it would
   touch is overwritten, and gone for ASan.) */
static void test_05_handler_comes_after_destroy_now(void **state)
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

/* Rule: who marks a ticket moves the prefix over every mark that follows. */
static void test_06_prefix_goes_on_over_tickets_that_ended_early(void **state)
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

/* gpusync_is_idle, one machine instruction at a time: before instruction number `at` the other side acts. */
static struct {
    rig *r;
    void *buffer;
    int at, steps;
} stepper;

__attribute__((noinline)) static bool is_idle_call(const gpusync_queue *queue)
{
    return gpusync_is_idle(queue);
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

static bool is_idle_stepped(rig *r, void **buffer, int at)
{
    struct sigaction action, old;
    bool idle;
    stepper.r = r;
    stepper.buffer = *buffer;
    stepper.at = at;
    stepper.steps = 0;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_step;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &action, &old);
    __asm__ __volatile__("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
    idle = is_idle_call(r->queue);
    __asm__ __volatile__("pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
    sigaction(SIGTRAP, &old, NULL);
    *buffer = stepper.buffer;
    return idle;
}

/* Rule: is_idle loads `completed` first, then `committed`. The queue below always has one buffer in flight, so there is no
   instruction at which the other side could act that makes "idle" a right answer. */
static void test_07_is_idle_against_commit_and_completion_in_between(void **state)
{
    void *buffer;
    int at, acted = 0;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &buffer);
    for (at = 0; at < 40; at++) {
        assert_false(is_idle_stepped(&r, &buffer, at));
        if (stepper.steps > at) acted++;
    }
    assert_true(acted >= 4); /* at least the call, two loads and the return were cut open */
    softmetal_finish(buffer);
    assert_true(gpusync_is_idle(r.queue));
    rig_close(&r);
}

#endif

/* -- 8 ------------------------------------------------------------------------------------------ */

typedef struct early_unpark {
    void *buffer;
    uint64_t left_early;
} early_unpark;

static void early_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    early_unpark *early = (early_unpark *)user;
    if (early->buffer) softmetal_finish(early->buffer); /* its handler calls unpark */
    early->buffer = NULL;
    gpusync__default_park(NULL, waiter, deadline_ns);
    if (gpusync_now_ns() < deadline_ns) early->left_early++;
}

/* Rule (of the default hooks, and what custom ones must do): an unpark that comes first leaves a permit. */
static void test_08_unpark_before_park(void **state)
{
    early_unpark early = {NULL, 0};
    gpusync_hooks hooks = {NULL, early_park, gpusync__default_unpark, &early};
    gpusync_spin none = {0, 0, 0};
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
    assert_int_equal(stats_of(r.queue).spurious_wakes, 0);
    /* and the permit is used up: the next sleep is not cut short by it */
    ticket = commit_empty(&r, &buffer);
    assert_result(gpusync_wait(r.queue, ticket, MS(5)), GPUSYNC_TIMEOUT);
    assert_int_equal(early.left_early, 1);
    softmetal_finish(buffer);
    rig_close(&r);
}

/* -- 10 ----------------------------------------------------------------------------------------- */

/* Rule: the end is claimed once, so a handler that comes after a wait has seen the status changes no count. */
static void test_10_handler_after_the_wait_has_returned(void **state)
{
    void *buffer;
    gpusync_ticket ticket;
    gpusync_stats stats;
    rig r;
    (void)state;
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
    assert_int_equal(r.queue->outstanding, 0);
    rig_close(&r);
}

/* -- 11 ----------------------------------------------------------------------------------------- */

typedef struct counted_park {
    unsigned parks, unparks;
} counted_park;

static void counting_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    ((counted_park *)user)->parks++;
    gpusync__default_park(NULL, waiter, deadline_ns);
}

static void counting_unpark(void *user, gpusync_waiter *waiter)
{
    __atomic_fetch_add(&((counted_park *)user)->unparks, 1, __ATOMIC_SEQ_CST);
    gpusync__default_unpark(NULL, waiter);
}

static void open_counting(rig *r, counted_park *count)
{
    gpusync_hooks hooks = {NULL, counting_park, counting_unpark, NULL};
    gpusync_spin none = {0, 0, 0};
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

/* Rule: a waiter looks again after it has registered. The handler ran when nobody was registered, so nobody will wake it. */
static void test_11_handler_runs_before_the_waiter_registers(void **state)
{
    counted_park count;
    gpusync_ticket ticket;
    void *buffer;
    rig r;
    (void)state;
    open_counting(&r, &count);
    ticket = commit_empty(&r, &buffer);
    at_lock.act = finish_buffer;
    at_lock.argument = buffer;
    at_lock.countdown = 1;
    at_lock.lock = &r.device->waiter_lock; /* taken after the last look, before registering */
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    assert_null(at_lock.lock);
    assert_int_equal(count.parks, 0);
    assert_int_equal(count.unparks, 0);
    rig_close(&r);
}

static void park_once_and_finish(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    early_unpark *early = (early_unpark *)user;
    void *buffer = early->buffer;
    early->buffer = NULL;
    if (buffer) softmetal_begin_handler(buffer, 0); /* on the device's thread, while this one goes to sleep */
    gpusync__default_park(NULL, waiter, deadline_ns);
    if (buffer) {
        softmetal_join_handler(buffer, 0);
        softmetal_release_block(buffer, 0);
    }
    if (gpusync_now_ns() < deadline_ns) early->left_early++;
}

/* Rule: the handler looks for waiters after it has marked. This one registered before: it must be woken. */
static void test_11_waiter_registers_before_the_handler_looks(void **state)
{
    early_unpark early = {NULL, 0};
    gpusync_hooks hooks = {NULL, park_once_and_finish, gpusync__default_unpark, NULL};
    gpusync_spin none = {0, 0, 0};
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
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(early.left_early, 1);
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    rig_close(&r);
}

/* -- more --------------------------------------------------------------------------------------- */

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
    assert_result(gpusync_wait(r.queue, ticket, MS(1)), GPUSYNC_TIMEOUT);
    assert_int_equal(count.parks, 1);
    softmetal_finish(buffer);
    assert_int_equal(count.unparks, 0);
    assert_ok(gpusync_wait(r.queue, ticket, 0));
    rig_close(&r);
}

static void finish_at_unlink(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    rig *r = (rig *)user;
    gpusync__default_park(NULL, waiter, deadline_ns);
    at_lock.countdown = 1;
    at_lock.lock = &r->queue->board.lock; /* next taken to look for a hint or to unlink */
}

static void unpark_nobody(void *user, gpusync_waiter *waiter)
{
    (void)user;
    gpusync__default_unpark(NULL, waiter);
}

/* Rule: when the work is done at the deadline, done wins, also where the handler comes between the deadline and the end of
   the wait. */
static void test_done_at_the_deadline_wins(void **state)
{
    gpusync_hooks hooks = {NULL, finish_at_unlink, unpark_nobody, NULL};
    gpusync_spin none = {0, 0, 0};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    hooks.user = &r;
    device_desc.hooks = &hooks;
    device_desc.spin = &none;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    ticket = commit_empty(&r, &at_lock.argument);
    at_lock.act = finish_buffer;
    assert_ok(gpusync_wait(r.queue, ticket, MS(1)));
    assert_null(at_lock.lock);
    rig_close(&r);
}

/* Rule: only a mark ends a wait. A wait that reads Error while the handler has claimed the end, but has not recorded it yet,
   must not report success. */
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

static void test_no_success_between_claim_and_record(void **state)
{
    trap t = {NULL, "error", SOFTMETAL_BEFORE, 1, peek_poll};
    rig r;
    (void)state;
    if (!softmetal_sees_messages()) skip();
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
    assert_result(peek.result, GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(r.queue, peek.ticket), GPUSYNC_ERROR_EXECUTION);
    rig_close(&r);
}

static void peek_at_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    peek.result = gpusync_poll(peek.queue, peek.ticket);
    gpusync__default_unpark(NULL, waiter);
}

/* Rule: the failure is on record before the ticket is marked. */
static void test_failure_is_on_record_when_the_waiter_is_woken(void **state)
{
    early_unpark early = {NULL, 0};
    gpusync_hooks hooks = {NULL, early_park, peek_at_unpark, NULL};
    gpusync_spin none = {0, 0, 0};
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
    assert_ok(gpusync_commit(r.queue, t.buffer, &ticket));
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(t.countdown, 0);
    assert_true(at_commit.idle);
    assert_int_equal(ticket, 1);
    assert_true(gpusync_is_done(r.queue, ticket));
    assert_true(gpusync_is_idle(r.queue));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_01_late_handler_does_not_end_a_later_ticket),
        cmocka_unit_test(test_02_handler_drops_the_buffer_while_a_poller_sends_status),
        cmocka_unit_test(test_03_poller_and_handler_both_see_the_error),
        cmocka_unit_test(test_04_destroy_waits_for_the_handler_that_made_the_queue_idle),
        cmocka_unit_test(test_05_handler_comes_after_destroy_now),
        cmocka_unit_test(test_06_prefix_goes_on_over_tickets_that_ended_early),
#ifdef CAN_SINGLE_STEP
        cmocka_unit_test(test_07_is_idle_against_commit_and_completion_in_between),
#endif
        cmocka_unit_test(test_08_unpark_before_park),
        cmocka_unit_test(test_10_handler_after_the_wait_has_returned),
        cmocka_unit_test(test_11_handler_runs_before_the_waiter_registers),
        cmocka_unit_test(test_11_waiter_registers_before_the_handler_looks),
        cmocka_unit_test(test_timed_out_waiter_is_not_there_for_a_late_handler),
        cmocka_unit_test(test_done_at_the_deadline_wins),
        cmocka_unit_test(test_no_success_between_claim_and_record),
        cmocka_unit_test(test_failure_is_on_record_when_the_waiter_is_woken),
        cmocka_unit_test(test_completion_before_commit_returns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
