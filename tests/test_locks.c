/* test_locks.c - what the tests know of the library's locks is seen to be watched

   Each rule of locks.h is broken on purpose: the library does what it always does, and the thread seems to hold one lock
   more. Then the program has to end with a line that tells of it, and without the lock, or where the table allows it, it
   has to go on. So an act that is not seen any more, as the library has another way to it, is a test that is red. */
#include "probe.h"
#include "stage.h"
#include <signal.h>
#include <sys/wait.h>

void *dispatch_queue_create(const char *label, void *attribute);
void dispatch_release(void *queue);

/* Hangs until a thread parks for it: the wait yields, parks and is unparked, however slow the processor is. */
static void *failing;

static void hook_yield(void *user) { (void)user; }

static void hook_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    if (failing) softmetal_unhang(failing);
    failing = NULL;
    thread_park(waiter, deadline_ns);
}

static void hook_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

/* Metal's thread may call these after the wait has returned. */
static int log_lines, notifications;

static void hook_log(void *user, gpusync_log_level level, const char *text)
{
    (void)user, (void)level, (void)text;
    COUNT(&log_lines);
}

static void hook_trace(void *user, const gpusync_trace_event *event) { (void)user, (void)event; }

static void hook_notify(void *user)
{
    (void)user;
    COUNT(&notifications);
}

/* The process has an alarm. */
static bool failure_is_told(void)
{
    while (!GET(&log_lines) || !GET(&notifications)) sched_yield();
    return true;
}

static void called_back(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)result, (void)error;
}

static void job(void *user) { (void)user; }

/* LIBRARY makes calls of the library with a rule to be broken, and takes the rule back: the test's own acts break none. A call
   that has another thread do something stands in one LIBRARY with the call that waits for that thread. */
static const char *wanted;
static int kind_held;

#define LIBRARY(call, expected)                           \
    do {                                                  \
        probe_pretend(wanted, kind_held);                 \
        must((call) == (expected), #call);                \
        probe_pretend(NULL, kind_held);                   \
    } while (0)

/* Each of the acts, and a lock of each kind. */
static void do_everything(void)
{
    static const gpusync_spin yields = {0, 4, 0, false};
    gpusync_hooks hooks = {hook_yield, hook_park, hook_unpark, NULL};
    gpusync_warmup_job one = {job, NULL};
    gpusync_pipeline_desc pipeline = {"kernel void add() {}", NULL, "add"};
    gpusync_wait_options options;
    gpusync_warmup_desc warmup_desc;
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_timeline_desc timeline_desc;
    gpusync_device *second;
    gpusync_queue *other;
    gpusync_timeline *timeline;
    gpusync_warmup *warmup;
    gpusync_ticket ticket;
    gpusync_point point;
    void *object, *buffer, *queue;
    rig r;
    memset(&options, 0, sizeof options);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&warmup_desc, 0, sizeof warmup_desc);
    memset(&timeline_desc, 0, sizeof timeline_desc);
    timeline_desc.signalled_by_others = true;
    device_desc.hooks = &hooks;
    device_desc.log = hook_log;
    device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    device_desc.notify = hook_notify;
    rig_open_with(&r, SOFTMETAL_REAL, device_desc, queue_desc);
    LIBRARY(gpusync_set_trace(r.device, hook_trace, NULL), GPUSYNC_OK);
    object = metal_buffer_new(r.metal_device, 16);
    LIBRARY(gpusync_command_buffer(r.queue, NULL, &buffer), GPUSYNC_OK);
    LIBRARY(gpusync_command_buffer_discard(r.queue, buffer), GPUSYNC_OK);
    options.spin = &yields;
    softmetal_fail_next(1, 2);
    failing = open_buffer(&r);
    softmetal_hang(failing);
    ticket = commit_to(r.queue, failing);
    point = gpusync_at_ticket(r.queue, ticket);
    LIBRARY(gpusync_release_after(point, object) == GPUSYNC_OK && gpusync_on_done(point, called_back, NULL) == GPUSYNC_OK &&
                gpusync_wait_ex(r.queue, ticket, SECONDS(20), &options) == GPUSYNC_ERROR_EXECUTION && failure_is_told(),
            true);
    LIBRARY(gpusync_dispatch(r.device, SIZE_MAX, NULL), GPUSYNC_OK);
    metal_release(object);
    LIBRARY(gpusync_timeline_create(r.device, &timeline_desc, &timeline), GPUSYNC_OK);
    LIBRARY(gpusync_timeline_wait(timeline, 1, MS(1), NULL), GPUSYNC_TIMEOUT);
    LIBRARY(gpusync_timeline_destroy(timeline), GPUSYNC_OK);
    warmup_desc.jobs = &one;
    warmup_desc.job_count = 1;
    warmup_desc.pipelines = &pipeline;
    warmup_desc.pipeline_count = 1;
    LIBRARY(gpusync_warmup_start(r.device, &warmup_desc, &warmup) == GPUSYNC_OK &&
                gpusync_warmup_wait(warmup, SECONDS(20)) == GPUSYNC_OK,
            true);
    LIBRARY(gpusync_warmup_destroy(warmup), GPUSYNC_OK);
    /* Callbacks on a dispatch queue of the program's, and memory of the C library's: also for what the device asks dispatch
       queues with, as that of the first device is still in use. */
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.callback_queue = queue = dispatch_queue_create("callbacks", NULL);
    LIBRARY(gpusync_device_create(&device_desc, &second), GPUSYNC_OK);
    LIBRARY(gpusync_queue_create(second, NULL, &other), GPUSYNC_OK);
    LIBRARY(gpusync_commit(other, buffer_of(other), &ticket), GPUSYNC_OK);
    LIBRARY(gpusync_on_done(gpusync_at_ticket(other, ticket), called_back, NULL) == GPUSYNC_OK &&
                gpusync_queue_wait(other, SECONDS(20)) == GPUSYNC_OK,
            true);
    LIBRARY(gpusync_queue_destroy(other), GPUSYNC_OK);
    LIBRARY(gpusync_device_destroy(second), GPUSYNC_OK);
    dispatch_release(queue);
    rig_close(&r);
}

/* Does a process that breaks the rule end with a line that has these words? NULL: it ends well. A process of its own, and
   forked before this one has a thread of softmetal's: those do not come along. */
static void assert_told(const char *act, int kind, const char *words)
{
    char text[1000];
    size_t length = 0;
    ssize_t more;
    int says[2], status;
    pid_t child;
    assert_int_equal(pipe(says), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        alarm(60);
        dup2(says[1], STDERR_FILENO);
        wanted = act;
        kind_held = kind;
        do_everything();
        _exit(0);
    }
    close(says[1]);
    while (length < sizeof text - 1 && (more = read(says[0], text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)more;
    close(says[0]);
    text[length] = '\0';
    assert_int_equal(waitpid(child, &status, 0), child);
    if (words ? WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, words) && strstr(text, act)
              : WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    print_error("%s under %s: status %d, and it says: %s\n", act ? act : "nothing", act ? locks_rules[kind].name : "no lock",
                status, text);
    fail();
}

/* Processes are dear under ThreadSanitizer. */
enum { KINDS_APART = SLOW > 1 ? 3 : 1 };

static void test_an_act_under_a_lock_that_does_not_allow_it_ends_the_program(void **state)
{
    size_t i;
    int kind;
    (void)state;
    for (i = 0; i < LOCKS_ACTS; i++)
        for (kind = 0; kind < LOCKS_KINDS; kind += KINDS_APART)
            if (locks_are_seen(locks_acts[i].act))
                assert_told(locks_acts[i].name, kind,
                            locks_rules[kind].may & locks_acts[i].act ? NULL : "is not allowed under a lock");
}

static void test_a_lock_that_is_taken_against_the_order_ends_the_program(void **state)
{
    int taken, held;
    (void)state;
    for (taken = 0; taken < LOCKS_KINDS; taken++)
        for (held = 0; held < LOCKS_KINDS; held += KINDS_APART)
            assert_told(locks_rules[taken].name, held,
                        held < taken && !(held == LOCKS_QUEUE && taken == LOCKS_WAITS) /* these two stand beside each other */
                            ? NULL
                            : "is taken against the order");
}

static void test_a_lock_that_another_thread_holds_cannot_be_unlocked(void **state)
{
    (void)state;
    assert_told("unlock", 0, "is unlocked by a thread that does not hold it");
}

static void test_too_many_locks_in_one_hold_of_a_queues_end_the_program(void **state)
{
    (void)state;
    assert_told("many", 0, "is one of too many in one hold");
}

static void test_what_breaks_no_rule_ends_well(void **state)
{
    (void)state;
    assert_told(NULL, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_breaks_no_rule_ends_well),
        cmocka_unit_test(test_an_act_under_a_lock_that_does_not_allow_it_ends_the_program),
        cmocka_unit_test(test_a_lock_that_is_taken_against_the_order_ends_the_program),
        cmocka_unit_test(test_a_lock_that_another_thread_holds_cannot_be_unlocked),
        cmocka_unit_test(test_too_many_locks_in_one_hold_of_a_queues_end_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
