/* test_job_systems.c - waits in programs that have a thread to lose: job systems and event loops

   The well-known deadlock: a callback has to run on one certain thread (Julia's thread 0, a UI thread, the one that has
   the event loop), and that thread waits for GPU work that goes on only when the callback has run. Blocking waits hang
   for good, which a watchdog outside of the process proves; with hooks the wait makes room for the callback. And an
   event loop over poll(2) and a pipe, which never waits at all.

   The implementation is compiled in this program, as ../examples/counted.h counts the threads that it blocks.

   It also runs on queues of Metal 4. */
#include "../examples/fiber.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define GPUSYNC_IMPLEMENTATION
#include "../examples/counted.h"
#include "stage.h"

/* For what also runs in a child process or on another thread, which cmocka's asserts are not for. */
#define must(condition) must_at((condition), #condition, __LINE__)
static void must_at(bool good, const char *what, int line)
{
    if (good) return;
    fprintf(stderr, "test_job_systems.c:%d: %s\n", line, what);
    abort();
}

/* -- the program that deadlocks --------------------------------------------------------------------------------------
   `first` is work whose callback does the I/O (here: a byte through a pipe) that tells the GPU, by a signal on `read`,
   that the data for `second` have come. The callback is MANUAL: it runs where gpusync_dispatch is called, and that is
   the one thread that may do the I/O. Which is the thread that waits for `second`. */

typedef struct program {
    gpusync_device *device;
    gpusync_queue *queue, *other;
    gpusync_timeline *read;
    gpusync_ticket second;
    pthread_t io_thread; /* the only one that may do the I/O */
    int pipe[2];
    bool rescued;        /* another thread did it all the same */
} program;

static void do_the_io(void *user, gpusync_result result, const gpusync_error *error)
{
    program *p = (program *)user;
    char byte = 'x';
    (void)error;
    must(result == GPUSYNC_OK);
    must(write(p->pipe[1], &byte, 1) == 1 && read(p->pipe[0], &byte, 1) == 1);
    must(p->rescued || pthread_equal(pthread_self(), p->io_thread));
    must(gpusync_timeline_signal(p->read, 1) == GPUSYNC_OK);
}

static void open_program(program *p, const gpusync_hooks *hooks, gpusync_notify_fn notify, void *notify_user)
{
    gpusync_device_desc desc;
    gpusync_queue_desc queue_desc;
    gpusync_timeline_desc timeline_desc;
    gpusync_submission submission;
    gpusync_point wait;
    gpusync_ticket first;
    softmetal_timing timing;
    void *buffer;
    softmetal_reset();
    softmetal_get_timing(&timing);
    timing.watchdog_ns = SECONDS(3600); /* Metal's own would end the deadlock, with an error, after some seconds */
    softmetal_set_timing(&timing);
    memset(p, 0, sizeof *p);
    memset(&desc, 0, sizeof desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&timeline_desc, 0, sizeof timeline_desc);
    timeline_desc.signalled_by_others = true; /* the device waits for it, whatever signals it */
    queue_desc.metal4 = metal4_run();
    desc.hooks = hooks;
    desc.spin = &no_spin;
    desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    desc.notify = notify;
    desc.notify_user = notify_user;
    p->io_thread = pthread_self();
    must(pipe(p->pipe) == 0);
    must(gpusync_device_create(&desc, &p->device) == GPUSYNC_OK);
    must(gpusync_queue_create(p->device, &queue_desc, &p->queue) == GPUSYNC_OK);
    must(gpusync_queue_create(p->device, &queue_desc, &p->other) == GPUSYNC_OK);
    must(gpusync_timeline_create(p->device, &timeline_desc, &p->read) == GPUSYNC_OK);

    must(either_buffer(p->queue, NULL, &buffer) == GPUSYNC_OK);
    softmetal_set_duration(buffer, MS(5));
    must(either_commit(p->queue, buffer, &first) == GPUSYNC_OK);
    must(gpusync_on_done(gpusync_at_ticket(p->queue, first), do_the_io, p) == GPUSYNC_OK);

    memset(&wait, 0, sizeof wait);
    wait.timeline = p->read;
    wait.value = 1;
    must(either_buffer(p->other, NULL, &buffer) == GPUSYNC_OK);
    if (metal4_run()) { /* the queue waits */
        memset(&submission, 0, sizeof submission);
        submission.waits = &wait;
        submission.wait_count = 1;
        submission.command_buffers = &buffer;
        submission.command_buffer_count = 1;
        must(either_submit(p->other, &submission, &p->second) == GPUSYNC_OK);
        return;
    }
    must(gpusync_encode_wait(p->other, buffer, wait) == GPUSYNC_OK);
    must(gpusync_commit(p->other, buffer, &p->second) == GPUSYNC_OK);
}

static void close_program(program *p)
{
    must(gpusync_queue_destroy(p->queue) == GPUSYNC_OK);
    must(gpusync_queue_destroy(p->other) == GPUSYNC_OK);
    must(gpusync_timeline_destroy(p->read) == GPUSYNC_OK);
    must(gpusync_device_destroy(p->device) == GPUSYNC_OK);
    must(softmetal_settle(SECONDS(10)));
    drop_recordings();
    close(p->pipe[0]);
    close(p->pipe[1]);
}

/* -- in a child process, watched -------------------------------------------------------------------------------- */

enum { WATCHDOG_MS = 1000, SOON_MS = 30000 };

typedef struct child {
    pid_t pid;
    int says, hears; /* the parent's ends */
} child;

/* In the child: dispatches when the parent says so, on a thread that is not for it. */
typedef struct rescuer {
    program *program;
    int hears;
} rescuer;

static void *rescue(void *argument)
{
    rescuer *r = (rescuer *)argument;
    size_t ran = 0;
    char byte;
    if (read(r->hears, &byte, 1) != 1) return NULL; /* not needed */
    r->program->rescued = true;
    must(gpusync_dispatch(r->program->device, SIZE_MAX, &ran) == GPUSYNC_OK);
    must(ran == 1);
    return NULL;
}

/* Waits in Metal, or as usual. Says 'w' before the wait and 'd' after it. */
static void waiting_child(int says, int hears, bool blocking)
{
    gpusync_wait_options options;
    program p;
    rescuer r;
    pthread_t thread;
    open_program(&p, NULL, NULL, NULL);
    r.program = &p;
    r.hears = hears;
    thread = start(rescue, &r);
    memset(&options, 0, sizeof options);
    options.blocking = blocking;
    must(write(says, "w", 1) == 1);
    must(gpusync_wait_ex(p.other, p.second, GPUSYNC_FOREVER, &options) == GPUSYNC_OK);
    must(write(says, "d", 1) == 1);
    join(thread);
    close_program(&p);
    _exit(0);
}

/* Before this process has a thread of softmetal's: those do not come along through a fork. */
static child start_child(bool blocking)
{
    int says[2], hears[2];
    child c;
    assert_int_equal(pipe(says), 0);
    assert_int_equal(pipe(hears), 0);
    c.pid = fork();
    assert_true(c.pid >= 0);
    if (c.pid == 0) {
        close(says[0]);
        close(hears[1]);
        waiting_child(says[1], hears[0], blocking);
    }
    close(says[1]);
    close(hears[0]);
    c.says = says[0];
    c.hears = hears[1];
    return c;
}

/* What the child says next within this time; 0: nothing. */
static char child_says(const child *c, int ms)
{
    struct pollfd at = {c->says, POLLIN, 0};
    char byte = 0;
    if (poll(&at, 1, ms) == 1 && read(c->says, &byte, 1) != 1) byte = 0;
    return byte;
}

/* Its wait does not end. Nothing is missing but a thread for the callback: given one, it does. */
static void assert_hangs(bool blocking)
{
    child c = start_child(blocking);
    int status;
    assert_int_equal(child_says(&c, SOON_MS), 'w');
    assert_int_equal(child_says(&c, WATCHDOG_MS), 0);
    assert_int_equal(write(c.hears, "r", 1), 1);
    assert_int_equal(child_says(&c, SOON_MS), 'd');
    assert_int_equal(waitpid(c.pid, &status, 0), c.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(c.says);
    close(c.hears);
}

static void test_blocking_wait_hangs(void **state)
{
    (void)state;
    NOT_ON_METAL4("no wait is blocking");
    assert_hangs(true);
}

/* Not Metal's wait is to blame, but that the thread is gone: our own does no better, without hooks. */
static void test_sleeping_wait_hangs(void **state)
{
    (void)state;
    assert_hangs(false);
}

/* The way out of a program without fibers: it never waits for long, and serves its callbacks in between. */
static void test_waits_with_a_limit_finish(void **state)
{
    program p;
    gpusync_result result;
    (void)state;
    PUT(&sleeps, 0);
    open_program(&p, NULL, NULL, NULL);
    while ((result = gpusync_wait(p.other, p.second, MS(1))) == GPUSYNC_TIMEOUT)
        if (GET(&sleeps) > 0) assert_ok(gpusync_dispatch(p.device, SIZE_MAX, NULL)); /* else the limit was over before */
    assert_ok(result);
    assert_true(GET(&sleeps) > 0); /* it blocked its thread, and that is seen: in the tests below it does not */
    close_program(&p);
}

/* -- with hooks: one thread, two fibers ------------------------------------------------------------------------- */

typedef struct loop {
    program program;
    fiber_context thread, waiting;
    gpusync_waiter *parked;
    unsigned parks, dispatches;
    bool unparked, due, over, hooked;
    gpusync_result result;
    pthread_mutex_t lock;
    pthread_cond_t something;
} loop;

static void loop_wake(loop *l, bool *what)
{
    pthread_mutex_lock(&l->lock);
    *what = true;
    pthread_cond_signal(&l->something);
    pthread_mutex_unlock(&l->lock);
}

static void loop_notify(void *user)
{
    loop *l = (loop *)user;
    loop_wake(l, &l->due);
}

static void loop_unpark(void *user, gpusync_waiter *waiter)
{
    loop *l = (loop *)user;
    (void)waiter;
    loop_wake(l, &l->unparked);
}

/* The thread has other things to do than to sleep here. */
static void loop_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    loop *l = (loop *)user;
    (void)deadline_ns;
    if (!l->hooked) return; /* not on the fiber: in a destroy */
    l->parked = waiter;
    l->parks++;
    fiber_switch(&l->waiting, &l->thread);
    l->parked = NULL;
}

static void loop_yield(void *user)
{
    (void)user;
    sched_yield();
}

/* The program's own code, which waits as if it had a thread to itself. */
static void wait_on_a_fiber(void *argument)
{
    loop *l = (loop *)argument;
    l->hooked = true;
    l->result = gpusync_wait(l->program.other, l->program.second, GPUSYNC_FOREVER);
    l->hooked = false;
    l->over = true;
    fiber_switch(&l->waiting, &l->thread);
}

/* One turn of the loop: sleeps until there is something, callbacks or the fiber. */
static void loop_turn(loop *l)
{
    bool due, unparked;
    pthread_mutex_lock(&l->lock);
    while (!l->due && !l->unparked) pthread_cond_wait(&l->something, &l->lock);
    due = l->due, unparked = l->unparked;
    l->due = l->unparked = false;
    pthread_mutex_unlock(&l->lock);
    if (due) {
        assert_ok(gpusync_dispatch(l->program.device, SIZE_MAX, NULL));
        l->dispatches++;
    }
    if (unparked) fiber_switch(&l->thread, &l->waiting);
}

static void test_hooks_finish(void **state)
{
    gpusync_hooks hooks = {loop_yield, loop_park, loop_unpark, NULL};
    loop l;
    (void)state;
    memset(&l, 0, sizeof l);
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.something, NULL);
    hooks.user = &l;
    PUT(&sleeps, 0);
    open_program(&l.program, &hooks, loop_notify, &l);
    fiber_of_thread(&l.thread);
    assert_true(fiber_make(&l.waiting, 256 * 1024, wait_on_a_fiber, &l));
    fiber_switch(&l.thread, &l.waiting);
    assert_false(l.over);    /* it has parked, */
    assert_non_null(l.parked); /* ... and this thread is free: to call back */
    while (!l.over) loop_turn(&l);
    assert_ok(l.result);
    assert_true(l.parks >= 1 && l.dispatches >= 1);
    assert_int_equal(GET(&sleeps), 0);
    assert_int_equal(softmetal_message_count("waitUntilCompleted"), 0);
    fiber_free(&l.waiting);
    close_program(&l.program);
    pthread_cond_destroy(&l.something);
    pthread_mutex_destroy(&l.lock);
}

/* -- an event loop over poll(2) and a pipe ---------------------------------------------------------------------- */

enum { STEPS = 50 };

typedef struct poll_loop {
    rig rig;
    int pipe[2];
    pthread_t thread;
    unsigned launched, ended, ticks, told;
    bool manual;
} poll_loop;

/* On any thread, and it must not block: when the pipe is full, the loop has enough to wake up for. */
static void write_byte(void *user)
{
    poll_loop *l = (poll_loop *)user;
    ssize_t written = write(l->pipe[1], "x", 1);
    (void)written;
    __atomic_fetch_add(&l->told, 1, __ATOMIC_SEQ_CST);
}

static void step_ended(void *user, gpusync_result result, const gpusync_error *error);

static void launch(poll_loop *l)
{
    gpusync_ticket ticket = commit_lasting(&l->rig, MS(1) / 2);
    assert_ok(gpusync_on_done(gpusync_at_ticket(l->rig.queue, ticket), step_ended, l));
    l->launched++;
}

/* MANUAL: on the loop's thread, so it may go on there. AT_ONCE: on Metal's; all it may do is tell the loop. */
static void step_ended(void *user, gpusync_result result, const gpusync_error *error)
{
    poll_loop *l = (poll_loop *)user;
    (void)error;
    must(result == GPUSYNC_OK);
    if (!l->manual) {
        write_byte(l);
        return;
    }
    assert_true(pthread_equal(pthread_self(), l->thread));
    l->ended++;
    if (l->launched < STEPS) launch(l);
}

/* What poll woke up for. */
static void read_pipe(poll_loop *l)
{
    char bytes[64];
    ssize_t count = read(l->pipe[0], bytes, sizeof bytes);
    assert_true(count > 0);
    if (l->manual) {
        assert_ok(gpusync_dispatch(l->rig.device, SIZE_MAX, NULL));
        return;
    }
    for (; count > 0; count--) {
        l->ended++;
        if (l->launched < STEPS) launch(l);
    }
}

static void run_poll_loop(bool manual)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_stats stats;
    poll_loop l;
    unsigned i;
    memset(&l, 0, sizeof l);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    l.manual = manual;
    l.thread = pthread_self();
    assert_int_equal(pipe(l.pipe), 0);
    for (i = 0; i < 2; i++) assert_int_equal(fcntl(l.pipe[i], F_SETFL, O_NONBLOCK), 0);
    if (manual) {
        device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
        device_desc.notify = write_byte;
        device_desc.notify_user = &l;
    }
    PUT(&sleeps, 0);
    rig_open_with(&l.rig, SOFTMETAL_REAL, device_desc, queue_desc);
    for (i = 0; i < 3; i++) launch(&l);
    while (l.ended < STEPS) {
        struct pollfd at = {l.pipe[0], POLLIN, 0};
        int ready = poll(&at, 1, 1);
        if (ready == 1) read_pipe(&l);
        else if (!gpusync_is_idle(l.rig.queue)) l.ticks++; /* the loop turns while the GPU works */
    }
    assert_int_equal(l.launched, STEPS);
    /* once for each that became due, and once for each dispatch that left some */
    assert_in_range(GET(&l.told), 1, (manual ? 2 : 1) * STEPS);
    stats = stats_of(l.rig.queue);
    assert_int_equal(stats.waits_inline + stats.waits_status + stats.waits_spin, 0);
    assert_int_equal(stats.waits_sleep + stats.waits_unmet, 0);
    assert_int_equal(GET(&sleeps), 0); /* no turn of the loop was blocked in gpusync */
    assert_int_equal(softmetal_message_count("waitUntilCompleted"), 0);
    rig_close(&l.rig);
    close(l.pipe[0]);
    close(l.pipe[1]);
}

static void test_poll_loop_manual(void **state)
{
    (void)state;
    run_poll_loop(true);
}

static void test_poll_loop_at_once(void **state)
{
    (void)state;
    run_poll_loop(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocking_wait_hangs), /* these two fork: first */
        cmocka_unit_test(test_sleeping_wait_hangs),
        cmocka_unit_test(test_waits_with_a_limit_finish),
        cmocka_unit_test(test_hooks_finish),
        cmocka_unit_test(test_poll_loop_manual),
        cmocka_unit_test(test_poll_loop_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
