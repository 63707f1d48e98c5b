/* test_log.c - what the log function is told besides failures: waits that timed out, and completed handlers that have not
   come; what it may do then; and the report of one queue

   One thread, the manual clock, and a clock of the library's that moves by 100 ns with each look at it. A sleep in the park
   hook moves it to the deadline: so a wait that times out takes no time. It also runs on queues of Metal 4. */
#include <pthread.h>
#include <stdint.h>

#include "clock.h"
#include "probe.h"
#include "stage.h"

/* -- a program that keeps a log ------------------------------------------------------------------------------------- */

enum { MOST_LINES = 256 };

typedef struct line {
    gpusync_log_level level;
    pthread_t thread;
    char text[800];
} line;

typedef struct program {
    rig r;
    gpusync_hooks hooks;
    pthread_mutex_t lock;
    line lines[MOST_LINES];
    unsigned count;                    /* of lines */
    unsigned depth, deepest;           /* calls of the log function inside each other */
    unsigned parks, last_park;         /* in the last one of destroy the work ends */
    void (*in_park)(struct program *, uint64_t deadline_ns); /* in place of a sleep; NULL: time passes */
    void (*in_log)(struct program *);  /* called behind each line; NULL: nothing is */
    void *buffer;                      /* what these two work with, and what they are told */
    char *report;                      /* which the log function asked for, to be freed; or NULL */
    void *taken;                       /* what another call has made at the n-th point; or NULL */
    int n;
    gpusync_ticket ticket;
    gpusync_result answers[16];
} program;

/* The test reads what sweeps have written on other threads. */
static void write_line(void *user, gpusync_log_level level, const char *text)
{
    program *p = (program *)user;
    must(probe_holds_no_lock(), "the log function is called with a lock held");
    must(strpbrk(text, "\n\r\t\x7F") == NULL, "a line of the log is more than a line");
    must(strlen(text) < sizeof p->lines[0].text, "a line of the log is too long for this test");
    pthread_mutex_lock(&p->lock);
    must(p->count < MOST_LINES, "too many lines");
    p->lines[p->count].level = level;
    p->lines[p->count].thread = pthread_self();
    strcpy(p->lines[p->count++].text, text);
    if (++p->depth > p->deepest) p->deepest = p->depth;
    pthread_mutex_unlock(&p->lock);
    if (p->in_log) p->in_log(p);
    pthread_mutex_lock(&p->lock);
    p->depth--;
    pthread_mutex_unlock(&p->lock);
}

static void sleep_for_the_clock(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    program *p = (program *)user;
    COUNT(&p->parks);
    if (p->in_park) p->in_park(p, deadline_ns);
    else if (deadline_ns == GPUSYNC_FOREVER) thread_park(waiter, deadline_ns);
    else PUT(&clock_now, deadline_ns);
}

static void wake(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

/* Waits do not spin. */
static void open_program(program *p, gpusync_queue_desc queue_desc)
{
    gpusync_device_desc device_desc;
    memset(p, 0, sizeof *p);
    memset(&device_desc, 0, sizeof device_desc);
    pthread_mutex_init(&p->lock, NULL);
    p->hooks.park = sleep_for_the_clock;
    p->hooks.unpark = wake;
    p->hooks.user = p;
    device_desc.hooks = &p->hooks;
    device_desc.spin = &no_spin;
    device_desc.log = write_line;
    device_desc.log_user = p;
    if (!queue_desc.label) queue_desc.label = "render";
    PUT(&clock_now, SECONDS(1000));
    rig_open_with(&p->r, SOFTMETAL_MANUAL, device_desc, queue_desc);
}

static void open_plain(program *p) { open_program(p, queue_desc_of(0, 0)); }

static void close_program(program *p)
{
    p->in_park = NULL;
    p->in_log = NULL;
    if (p->r.queue) finish_queue(p->r.queue);
    rig_close(&p->r);
    pthread_mutex_destroy(&p->lock);
}

static unsigned lines_of(program *p)
{
    unsigned count;
    pthread_mutex_lock(&p->lock);
    count = p->count;
    pthread_mutex_unlock(&p->lock);
    return count;
}

static void forget(program *p)
{
    pthread_mutex_lock(&p->lock);
    p->count = 0;
    pthread_mutex_unlock(&p->lock);
}

static void check_lines(program *p, unsigned count, const char *file, int at)
{
    unsigned i, got = lines_of(p);
    if (got == count) return;
    print_error("%u lines, expected %u\n", got, count);
    for (i = 0; i < got; i++) print_error("  %d %s\n", p->lines[i].level, p->lines[i].text);
    _fail(file, at);
}
#define assert_lines(p, count) check_lines(p, count, __FILE__, __LINE__)

/* Line i is a warning and has both. */
static void check_warning(program *p, unsigned i, const char *whose, const char *what, const char *file, int at)
{
    const line *l = &p->lines[i];
    check_lines(p, i < lines_of(p) ? lines_of(p) : i + 1, file, at);
    if (l->level == GPUSYNC_LOG_WARNING && strstr(l->text, whose) && strstr(l->text, what)) return;
    print_error("line %u: level %d, '%s'; expected a warning with '%s' and '%s'\n", i, l->level, l->text, whose, what);
    _fail(file, at);
}
#define assert_warning(p, i, whose, what) check_warning(p, i, whose, what, __FILE__, __LINE__)

/* The log has been told of something, and of errors alone. */
static void assert_only_errors(program *p)
{
    unsigned i, count = lines_of(p);
    assert_true(count > 0);
    for (i = 0; i < count; i++) assert_int_equal(p->lines[i].level, GPUSYNC_LOG_ERROR);
}

/* One line since the last of these: that a wait for this timed out. */
#define assert_timed_out(p, whose, what)                     \
    do {                                                     \
        assert_lines(p, 1);                                  \
        assert_warning(p, 0, whose, what);                   \
        assert_warning(p, 0, "a wait for ", " timed out");   \
        assert_true(pthread_equal((p)->lines[0].thread, pthread_self())); \
        forget(p);                                           \
    } while (0)

static gpusync_result make_room(gpusync_queue *queue, uint64_t timeout_ns)
{
    gpusync_command_buffer_desc desc;
    void *buffer = NULL;
    gpusync_result result;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &timeout_ns;
    result = gpusync_command_buffer(queue, &desc, &buffer);
    if (result == GPUSYNC_OK) assert_ok(gpusync_command_buffer_discard(queue, buffer));
    return result;
}

/* -- waits that time out -------------------------------------------------------------------------------------------- */

static void test_the_levels_are_ordered_by_severity(void **state)
{
    (void)state;
    assert_int_equal(GPUSYNC_LOG_WARNING, 1);
    assert_int_equal(GPUSYNC_LOG_ERROR, 2);
}

static void test_a_failure_is_an_error_and_a_timeout_a_warning(void **state)
{
    void *buffer;
    program p;
    (void)state;
    open_plain(&p);
    commit_empty(&p.r, &buffer);
    softmetal_fail(buffer, "TestDomain", 42, "it broke");
    softmetal_finish(buffer);
    commit_empty(&p.r, NULL);
    assert_result(gpusync_wait(p.r.queue, 2, MS(5)), GPUSYNC_TIMEOUT);
    assert_lines(&p, 2);
    assert_int_equal(p.lines[0].level, GPUSYNC_LOG_ERROR);
    assert_non_null(strstr(p.lines[0].text, "it broke"));
    assert_int_equal(p.lines[1].level, GPUSYNC_LOG_WARNING);
    close_program(&p);
}

static void test_a_wait_for_a_ticket_that_times_out_writes_one_warning(void **state)
{
    gpusync_wait_options options;
    gpusync_error error;
    program p;
    (void)state;
    open_plain(&p);
    memset(&options, 0, sizeof options);
    commit_empty(&p.r, NULL);
    commit_empty(&p.r, NULL);
    assert_result(gpusync_wait(p.r.queue, 2, MS(5)), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "ticket 2 ");
    assert_result(gpusync_wait(p.r.queue, 1, 1), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "ticket 1 ");
    assert_result(gpusync_wait_ex(p.r.queue, 2, MS(5), NULL), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "ticket 2 ");
    options.error = &error;
    options.handlers = true;
    assert_result(gpusync_wait_ex(p.r.queue, 2, MS(5), &options), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "ticket 2 ");
    assert_result(gpusync_wait_ex(p.r.queue, 2, MS(5), &options), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "ticket 2 ");
    close_program(&p);
}

static void test_a_wait_for_everything_that_times_out_writes_one_warning(void **state)
{
    gpusync_wait_options options;
    program p;
    (void)state;
    open_plain(&p);
    memset(&options, 0, sizeof options);
    commit_empty(&p.r, NULL);
    commit_empty(&p.r, NULL);
    assert_result(gpusync_wait(p.r.queue, GPUSYNC_EVERYTHING, MS(5)), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "everything up to ticket 2 ");
    assert_result(gpusync_wait_ex(p.r.queue, GPUSYNC_EVERYTHING, MS(5), &options), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "everything up to ticket 2 ");
    assert_result(gpusync_queue_wait(p.r.queue, MS(5)), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "everything up to ticket 2 ");
    assert_result(gpusync_device_wait(p.r.device, MS(5), NULL), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "everything up to ticket 2 ");
    assert_result(gpusync_device_wait(p.r.device, MS(5), &options), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "everything up to ticket 2 ");
    close_program(&p);
}

/* The wait goes from queue to queue: the others are idle, or have had their time. */
static void test_a_wait_for_a_device_warns_of_a_queue_that_has_not_ended(void **state)
{
    gpusync_queue *queues[3];
    gpusync_queue_desc desc = queue_desc_of(0, 0);
    unsigned i;
    program p;
    (void)state;
    open_plain(&p);
    for (i = 0; i < 3; i++) {
        desc.label = i == 0 ? "upload" : i == 1 ? "compute" : "readback";
        queues[i] = queue_of_kind(QUEUE_OF_GPUSYNC, p.r.device, &desc);
    }
    (void)commit_empty_to(queues[1], NULL);
    assert_result(gpusync_device_wait(p.r.device, MS(5), NULL), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'compute'", "everything up to ticket 1 ");
    for (i = 0; i < 3; i++) {
        finish_queue(queues[i]);
        assert_ok(gpusync_queue_destroy(queues[i]));
    }
    close_program(&p);
}

static void test_a_wait_for_a_value_that_times_out_writes_one_warning(void **state)
{
    gpusync_wait_options options;
    gpusync_timeline *timeline;
    program p;
    (void)state;
    open_plain(&p);
    memset(&options, 0, sizeof options);
    timeline = timeline_named(p.r.device, "frames");
    assert_ok(gpusync_timeline_signal(timeline, 2));
    assert_result(gpusync_timeline_wait(timeline, 3, MS(5), NULL), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "timeline 'frames'", "value 3 ");
    assert_result(gpusync_timeline_wait(timeline, 4, MS(5), &options), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "timeline 'frames'", "value 4 ");
    assert_ok(gpusync_timeline_destroy(timeline));
    close_program(&p);
}

/* The first point that has not ended stands for the others, a point that stands there twice counts twice. */
static void test_a_wait_for_many_that_times_out_writes_one_warning(void **state)
{
    gpusync_point points[6];
    gpusync_timeline *timeline;
    void *first, *second;
    size_t which;
    program p;
    (void)state;
    open_plain(&p);
    timeline = timeline_named(p.r.device, "frames");
    commit_empty(&p.r, &first);
    commit_empty(&p.r, &second);
    softmetal_finish(first);
    assert_ok(gpusync_timeline_signal(timeline, 1));
    points[0] = at(timeline, 1); /* is reached */
    points[1] = after(p.r.queue, 2);
    points[2] = after(p.r.queue, 1); /* has ended */
    points[3] = at(timeline, 2);
    points[4] = after(p.r.queue, 2);
    points[5] = after(p.r.queue, GPUSYNC_EVERYTHING);
    assert_result(gpusync_wait_many(points, 6, GPUSYNC_WAIT_ALL, MS(5), NULL, &which), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "a wait for points timed out: 4 of 6 have not ended, ", "the first is ticket 2 of queue 'render'");
    assert_result(gpusync_wait_many(points + 3, 2, GPUSYNC_WAIT_ANY, MS(5), NULL, &which), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "a wait for points timed out: 2 of 2 have not ended, ", "the first is value 2 of timeline 'frames'");
    assert_result(gpusync_wait_many(points, 4, GPUSYNC_WAIT_ALL_OR_FAILURE, MS(5), NULL, &which), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "a wait for points timed out: 2 of 4 have not ended, ", "the first is ticket 2 of queue 'render'");
    assert_result(gpusync_wait_many(points + 5, 1, GPUSYNC_WAIT_ANY, MS(5), NULL, &which), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, " timed out: ", "the first is everything up to ticket 2 of queue 'render'");
    softmetal_finish(second);
    assert_result(gpusync_wait_many(points, 4, GPUSYNC_WAIT_ALL, MS(5), NULL, &which), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "a wait for points timed out: 1 of 4 have not ended, ", "the first is value 2 of timeline 'frames'");
    assert_ok(gpusync_timeline_destroy(timeline));
    close_program(&p);
}

/* What the waiting thread does in its sleep: the work of the first queue ends, and another thread destroys that queue. The
   sleep returns at once until the queue is gone, and then at the deadline. */
static struct {
    gpusync_queue *queue;
    pthread_t destroyer, waiter;
    bool begun, gone;
} first_goes;

static void *destroy_the_first(void *unused)
{
    must(gpusync_queue_destroy(first_goes.queue) == GPUSYNC_OK, "destroy");
    PUT(&first_goes.gone, true);
    return unused;
}

static void let_the_first_go(program *p, uint64_t deadline_ns)
{
    (void)p;
    if (!pthread_equal(pthread_self(), first_goes.waiter)) {
        sched_yield();
    } else if (!first_goes.begun) {
        first_goes.begun = true;
        finish_queue(first_goes.queue);
        first_goes.destroyer = start(destroy_the_first, NULL);
    } else if (GET(&first_goes.gone)) {
        PUT(&clock_now, deadline_ns);
    } else {
        sched_yield();
    }
}

/* A queue of which nothing is waited for any more may go: the line names one that is there, whichever came first. */
static void test_a_wait_that_times_out_reads_nothing_of_a_queue_that_has_gone(void **state)
{
    gpusync_queue_desc desc = queue_desc_of(0, 0);
    int how;
    (void)state;
    desc.label = "first";
    for (how = 0; how < 2; how++) {
        gpusync_point points[2];
        gpusync_result result;
        gpusync_queue *last;
        size_t which = 99;
        program p;
        open_program(&p, desc);
        memset(&first_goes, 0, sizeof first_goes);
        desc.label = "last";
        last = queue_of_kind(QUEUE_OF_GPUSYNC, p.r.device, &desc);
        desc.label = "first";
        first_goes.queue = p.r.queue;
        first_goes.waiter = pthread_self();
        points[0] = after(p.r.queue, commit_empty(&p.r, NULL));
        points[1] = after(last, commit_empty_to(last, NULL));
        p.in_park = let_the_first_go;
        must_return_within(60);
        result = how ? gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, MS(5), NULL, &which)
                     : gpusync_device_wait(p.r.device, MS(5), NULL);
        join(first_goes.destroyer);
        has_returned();
        p.r.queue = last;
        assert_result(result, GPUSYNC_TIMEOUT);
        if (how) assert_int_equal(which, 2);
        assert_timed_out(&p, "1 of 2 have not ended, ", "ticket 1 of queue 'last'");
        close_program(&p);
    }
}

/* The log function takes 1 ms for a line: it writes to a file. */
static void take_a_while(program *p)
{
    (void)p;
    PUT(&clock_now, GET(&clock_now) + MS(1));
}

/* What a wait adds to its limit is a look at each point, and the time for one line. */
static void test_a_wait_for_a_thousand_points_writes_one_warning_and_keeps_its_limit(void **state)
{
    enum { TICKETS = 900, VALUES = 100 };
    static gpusync_point points[TICKETS + VALUES];
    static void *buffers[TICKETS];
    gpusync_timeline *timeline;
    size_t which;
    unsigned i;
    int how;
    program p;
    (void)state;
    open_program(&p, queue_desc_of(1024, 0));
    p.in_log = take_a_while;
    timeline = timeline_named(p.r.device, "frames");
    for (i = 0; i < TICKETS; i++) points[i] = after(p.r.queue, commit_empty(&p.r, &buffers[i]));
    for (i = 0; i < VALUES; i++) points[TICKETS + i] = at(timeline, i + 1);
    for (how = 0; how < 3; how++) {
        uint64_t begun = gpusync_now_ns(), took;
        assert_result(gpusync_wait_many(points, LENGTH(points), (gpusync_wait_for)how, MS(5), NULL, &which),
                      GPUSYNC_TIMEOUT);
        took = gpusync_now_ns() - begun;
        assert_in_range(took, MS(6), MS(7));
        assert_timed_out(&p, "a wait for points timed out: 1000 of 1000 have not ended, ",
                         "the first is ticket 1 of queue 'render'");
    }
    for (i = 0; i < TICKETS; i++) softmetal_finish(buffers[i]);
    assert_result(gpusync_wait_many(points, LENGTH(points), GPUSYNC_WAIT_ALL, MS(5), NULL, &which), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "a wait for points timed out: 100 of 1000 have not ended, ",
                     "the first is value 1 of timeline 'frames'");
    assert_ok(gpusync_timeline_destroy(timeline));
    close_program(&p);
}

/* The first one stands for the others, of which some have had no time left. More than 16 are a list from the allocator. */
static void test_a_wait_for_a_device_with_several_stuck_queues_writes_one_warning(void **state)
{
    static const gpusync_wait_options handlers = {.handlers = true};
    gpusync_queue_desc desc = queue_desc_of(0, 0);
    gpusync_queue *queues[20];
    unsigned i;
    program p;
    (void)state;
    open_plain(&p);
    p.in_log = take_a_while;
    desc.label = "stuck";
    for (i = 0; i < LENGTH(queues); i++) {
        queues[i] = queue_of_kind(QUEUE_OF_GPUSYNC, p.r.device, &desc);
        (void)commit_empty_to(queues[i], NULL);
    }
    for (i = 0; i < 3; i++) {
        uint64_t begun = gpusync_now_ns(), took;
        assert_result(gpusync_device_wait(p.r.device, MS(5), i ? &handlers : NULL), GPUSYNC_TIMEOUT);
        took = gpusync_now_ns() - begun;
        assert_in_range(took, MS(6), MS(7));
        assert_timed_out(&p, i < 2 ? "queue 'stuck'" : "queue 'render'", "everything up to ticket 1 ");
        if (i == 1) commit_empty(&p.r, NULL); /* the first queue of the device */
    }
    for (i = 0; i < LENGTH(queues); i++) {
        finish_queue(queues[i]);
        assert_ok(gpusync_queue_destroy(queues[i]));
    }
    close_program(&p);
}

static void test_a_command_buffer_without_room_writes_one_warning(void **state)
{
    program p;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers");
    open_program(&p, queue_desc_of(2, 0));
    commit_empty(&p.r, NULL);
    (void)open_buffer(&p.r);
    assert_result(make_room(p.r.queue, MS(5)), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "room for a command buffer");
    assert_ok(gpusync_command_buffer_discard(p.r.queue, softmetal_last_buffer(p.r.metal_queue)));
    assert_ok(make_room(p.r.queue, MS(5)));
    assert_lines(&p, 0);
    close_program(&p);
}

static void test_a_submission_without_room_writes_one_warning(void **state)
{
    static const uint64_t soon = MS(5), none = 0;
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    void *buffer;
    program p;
    (void)state;
    NOT_ON_METAL4("a submission needs no room for command buffers of its own");
    open_program(&p, queue_desc_of(2, 0));
    timeline = timeline_new(p.r.device);
    commit_empty(&p.r, NULL);
    buffer = open_buffer(&p.r);
    assert_result(TRY_SUBMIT(p.r.queue, &ticket, BUFFERS(buffer), SIGNALS(at(timeline, 1)), .timeout_ns = &none),
                  GPUSYNC_TIMEOUT);
    assert_lines(&p, 0);
    assert_result(TRY_SUBMIT(p.r.queue, &ticket, BUFFERS(buffer), SIGNALS(at(timeline, 1)), .timeout_ns = &soon),
                  GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "room for a command buffer");
    assert_ok(gpusync_command_buffer_discard(p.r.queue, buffer));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_program(&p);
}

static void do_nothing(void *user) { (void)user; }

static void test_a_wait_for_a_warm_up_that_times_out_writes_a_warning(void **state)
{
    const gpusync_warmup_job job = {do_nothing, NULL};
    gpusync_warmup_desc desc;
    gpusync_warmup *warmup;
    program p;
    (void)state;
    open_plain(&p);
    memset(&desc, 0, sizeof desc);
    desc.jobs = &job;
    desc.job_count = 1;
    softmetal_set_clock(SOFTMETAL_REAL); /* for the queue that the warm-up makes */
    softmetal_set_dispatch_threads(0);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &warmup));
    assert_result(gpusync_warmup_wait(warmup, 0), GPUSYNC_TIMEOUT);
    assert_lines(&p, 0);
    assert_result(gpusync_warmup_wait(warmup, MS(5)), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "warm-up", "value ");
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    while (gpusync_warmup_poll(warmup, NULL, NULL) == GPUSYNC_NOT_READY) sched_yield();
    assert_ok(gpusync_warmup_wait(warmup, MS(5)));
    assert_lines(&p, 0);
    assert_ok(gpusync_warmup_destroy(warmup));
    close_program(&p);
}

/* -- waits that write nothing ---------------------------------------------------------------------------------------- */

static void test_a_look_with_a_timeout_of_0_writes_nothing(void **state)
{
    gpusync_wait_options options;
    gpusync_timeline *timeline;
    gpusync_point points[2];
    size_t which;
    program p;
    (void)state;
    open_program(&p, queue_desc_of(1, 0));
    memset(&options, 0, sizeof options);
    options.handlers = true;
    timeline = timeline_new(p.r.device);
    commit_empty(&p.r, NULL);
    points[0] = after(p.r.queue, 1);
    points[1] = at(timeline, 1);
    assert_result(gpusync_wait(p.r.queue, 1, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait_ex(p.r.queue, 1, 0, &options), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(p.r.queue, GPUSYNC_EVERYTHING, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_queue_wait(p.r.queue, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(p.r.device, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(p.r.device, 0, &options), GPUSYNC_TIMEOUT);
    assert_result(gpusync_timeline_wait(timeline, 1, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, 0, NULL, &which), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, 0, NULL, &which), GPUSYNC_TIMEOUT);
    if (!metal4_run()) assert_result(make_room(p.r.queue, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_poll(p.r.queue, 1), GPUSYNC_NOT_READY);
    assert_lines(&p, 0);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_program(&p);
}

/* The work is done when the deadline has passed: that counts before the timeout. */
static void finish_at_the_deadline(program *p, uint64_t deadline_ns)
{
    if (deadline_ns != GPUSYNC_FOREVER) PUT(&clock_now, deadline_ns + 1);
    if (p->buffer) softmetal_finish(p->buffer);
    p->buffer = NULL;
}

static void test_a_wait_that_ends_writes_nothing(void **state)
{
    gpusync_timeline *timeline;
    gpusync_point points[2];
    size_t which;
    int i;
    program p;
    (void)state;
    open_program(&p, queue_desc_of(1, 0));
    timeline = timeline_new(p.r.device);
    p.in_park = finish_at_the_deadline;
    for (i = 0; i < (metal4_run() ? 4 : 5); i++) { /* Metal 4 has no wait for room */
        gpusync_ticket ticket;
        gpusync_result result;
        void *buffer = open_buffer(&p.r);
        ticket = i < 4 ? SUBMIT(p.r.queue, BUFFERS(buffer)) : commit_to(p.r.queue, buffer);
        p.buffer = buffer;
        points[0] = after(p.r.queue, ticket);
        points[1] = at(timeline, 0);
        if (i == 0) result = gpusync_wait(p.r.queue, ticket, MS(5));
        else if (i == 1) result = gpusync_queue_wait(p.r.queue, MS(5));
        else if (i == 2) result = gpusync_device_wait(p.r.device, MS(5), NULL);
        else if (i == 3) result = gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, MS(5), NULL, &which);
        else result = make_room(p.r.queue, MS(5));
        assert_ok(result);
        assert_null(p.buffer); /* it has slept */
    }
    assert_ok(gpusync_timeline_wait(timeline, 0, MS(5), NULL));
    assert_lines(&p, 0);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_program(&p);
}

static void test_a_wait_for_work_that_fails_writes_the_failure_alone(void **state)
{
    program p;
    (void)state;
    open_plain(&p);
    p.in_park = finish_at_the_deadline;
    commit_empty(&p.r, &p.buffer);
    softmetal_fail(p.buffer, "TestDomain", 42, "it broke");
    assert_result(gpusync_wait(p.r.queue, 1, MS(5)), GPUSYNC_ERROR_EXECUTION);
    assert_lines(&p, 1);
    assert_int_equal(p.lines[0].level, GPUSYNC_LOG_ERROR);
    close_program(&p);
}

static void wait_in_a_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    program *p = (program *)user;
    (void)result, (void)error;
    p->answers[0] = gpusync_wait(p->r.queue, 2, MS(5));
    p->answers[1] = gpusync_queue_wait(p->r.queue, MS(5));
    p->answers[2] = gpusync_device_wait(p->r.device, MS(5), NULL);
    p->answers[3] = metal4_run() ? GPUSYNC_ERROR_WOULD_DEADLOCK : make_room(p->r.queue, MS(5));
}

static void test_a_wait_that_is_refused_writes_nothing(void **state)
{
    gpusync_point points[2];
    void *buffer;
    int i;
    program p;
    (void)state;
    open_program(&p, queue_desc_of(2, 0));
    commit_empty(&p.r, &buffer);
    commit_empty(&p.r, NULL);
    softmetal_finish(buffer);
    commit_empty(&p.r, NULL); /* there is no room */
    assert_ok(gpusync_on_done(after(p.r.queue, 1), wait_in_a_callback, &p));
    assert_true(softmetal_dispatched(SECONDS(20)));
    for (i = 0; i < 4; i++) assert_result(p.answers[i], GPUSYNC_ERROR_WOULD_DEADLOCK);
    points[0] = after(p.r.queue, 4);
    points[1] = after(p.r.queue, 2);
    assert_result(gpusync_wait(p.r.queue, 4, MS(5)), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, MS(5), NULL, NULL), GPUSYNC_ERROR_INVALID_TICKET);
    assert_lines(&p, 0);
    close_program(&p);
}

static void lose_the_device(program *p, uint64_t deadline_ns)
{
    PUT(&clock_now, deadline_ns);
    fail_with_the_device(p->buffer);
    softmetal_finish(p->buffer);
    probe_give_up_lost(p->r.device);
}

/* What is given up is no failure either, and of the loss there is one line. */
static void test_a_wait_that_the_loss_of_the_device_ends_writes_no_warning(void **state)
{
    program p;
    (void)state;
    open_plain(&p);
    commit_empty(&p.r, &p.buffer);
    commit_empty(&p.r, NULL);
    p.in_park = lose_the_device;
    assert_result(gpusync_wait(p.r.queue, 2, MS(5)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_only_errors(&p);
    assert_lines(&p, 2);
    assert_int_equal(!strstr(p.lines[0].text, "device lost") + !strstr(p.lines[1].text, "device lost"), 1);
    forget(&p);
    finish_queue(p.r.queue); /* late */
    assert_lines(&p, 0);
    close_program(&p);
}

/* Destroy waits in slices, each with a limit: it has none itself. */
static void finish_in_the_last_park(program *p, uint64_t deadline_ns)
{
    if (deadline_ns != GPUSYNC_FOREVER) PUT(&clock_now, deadline_ns);
    if (p->parks == p->last_park) finish_queue(p->r.queue);
}

static void test_destroy_writes_nothing_however_long_it_waits(void **state)
{
    program p;
    (void)state;
    open_plain(&p);
    commit_empty(&p.r, NULL);
    p.last_park = 20;
    p.in_park = finish_in_the_last_park;
    assert_ok(gpusync_queue_destroy(p.r.queue));
    p.r.queue = NULL;
    assert_true(p.parks >= p.last_park);
    assert_lines(&p, 0);
    close_program(&p);
}

static void test_without_a_log_function_a_wait_times_out_all_the_same(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_hooks hooks;
    gpusync_point point;
    program p; /* for the hooks */
    rig r;
    (void)state;
    memset(&p, 0, sizeof p);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&hooks, 0, sizeof hooks);
    hooks.park = sleep_for_the_clock;
    hooks.unpark = wake;
    hooks.user = &p;
    device_desc.hooks = &hooks;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc_of(0, 0));
    commit_empty(&r, NULL);
    point = after(r.queue, 1);
    assert_result(gpusync_wait(r.queue, 1, MS(5)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, MS(5), NULL, NULL), GPUSYNC_TIMEOUT);
    finish_queue(r.queue);
    rig_close(&r);
}

/* -- the text ---------------------------------------------------------------------------------------------------------- */

/* A number in front of ms or us becomes #: time goes on from one report to the next. */
static void without_times(char *text)
{
    char *from = text, *to = text;
    while (*from) {
        size_t digits = 0;
        while (from[digits] == '.' || (from[digits] >= '0' && from[digits] <= '9')) digits++;
        if (digits && (strncmp(from + digits, " ms", 3) == 0 || strncmp(from + digits, " us", 3) == 0)) {
            *to++ = '#';
            from += digits;
        } else if (digits) {
            memmove(to, from, digits);
            to += digits;
            from += digits;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
}

static char *queue_report_of(gpusync_queue *queue)
{
    size_t size = gpusync_queue_report(queue, NULL, 0) + 1000;
    char *text = (char *)malloc(size);
    assert_non_null(text);
    assert_true(gpusync_queue_report(queue, text, size) < size);
    without_times(text);
    return text;
}

/* Work in flight, a submission, and held work that waits for a value and a ticket. */
static void fill_queue(gpusync_queue *queue, gpusync_timeline *timeline)
{
    (void)commit_to(queue, OPEN(queue, .label = "shadows"));
    (void)SUBMIT(queue, BUFFERS(OPEN(queue, .label = "blur")), SIGNALS(at(timeline, 1)), .label = "post");
    (void)SUBMIT(queue, WAITS(at(timeline, 2)), BUFFERS(OPEN(queue, .label = "tone")), .label = "late");
}

static void empty_queue(gpusync_queue *queue)
{
    finish_queue(queue);
    assert_ok(gpusync_cancel_held(queue));
    finish_queue(queue);
}

/* A program that wants to know more asks in its log function. */
static void report_in_the_log(program *p)
{
    must(!p->report, "a second line");
    p->report = queue_report_of(p->r.queue);
}

static void test_the_log_function_may_ask_for_the_report_of_the_queue(void **state)
{
    gpusync_timeline *timeline;
    char *report;
    int how;
    program p;
    (void)state;
    open_plain(&p);
    timeline = timeline_new(p.r.device);
    fill_queue(p.r.queue, timeline);
    report = queue_report_of(p.r.queue);
    assert_non_null(strstr(report, "'shadows'"));
    assert_non_null(strstr(report, "'late'"));
    p.in_log = report_in_the_log;
    for (how = 0; how < 3; how++) {
        gpusync_result result;
        if (how == 0) result = gpusync_wait(p.r.queue, 2, MS(5));
        else if (how == 1) result = gpusync_queue_wait(p.r.queue, MS(5));
        else result = gpusync_device_wait(p.r.device, MS(5), NULL);
        assert_result(result, GPUSYNC_TIMEOUT);
        assert_timed_out(&p, "queue 'render'", how == 0 ? "ticket 2 " : "everything up to ticket 3 ");
        assert_string_equal(p.report, report);
        free(p.report);
        p.report = NULL;
    }
    free(report);
    empty_queue(p.r.queue);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_program(&p);
}

static void test_control_characters_of_labels_are_blanks_in_the_log(void **state)
{
    gpusync_queue_desc desc = queue_desc_of(0, 0);
    gpusync_timeline *timeline;
    void *buffer;
    program p;
    (void)state;
    desc.label = "one\ntwo\tthree\x7F";
    open_program(&p, desc);
    timeline = timeline_named(p.r.device, "four\r\nfive");
    buffer = OPEN(p.r.queue, .label = "six\nseven\x01");
    softmetal_fail(buffer, "TestDomain", 42, "eight\tnine");
    (void)commit_to(p.r.queue, buffer);
    assert_result(gpusync_wait(p.r.queue, 1, MS(5)), GPUSYNC_TIMEOUT); /* write_line looks at every character */
    assert_timed_out(&p, "queue 'one two three '", "a wait for ticket 1 timed out");
    finish_queue(p.r.queue);
    assert_lines(&p, 1);
    assert_non_null(strstr(p.lines[0].text, "'six seven '"));
    assert_non_null(strstr(p.lines[0].text, "eight nine"));
    forget(&p);
    assert_result(gpusync_timeline_wait(timeline, 1, MS(5), NULL), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "timeline 'four  five'", "value 1 ");
    assert_ok(gpusync_timeline_destroy(timeline));
    close_program(&p);
}

/* -- what the log function may do ------------------------------------------------------------------------------------ */

static void ask_in_the_log(program *p)
{
    gpusync_queue *q = p->r.queue;
    gpusync_result *a = p->answers;
    gpusync_point points[2];
    uint64_t cursor = 0;
    gpusync_error error;
    char text[200];
    void *buffer = NULL;
    points[0] = after(q, 1);
    points[1] = after(q, p->ticket);
    a[0] = gpusync_poll(q, 1);
    a[1] = gpusync_poll(q, p->ticket);
    a[2] = gpusync_wait(q, 1, GPUSYNC_FOREVER); /* has ended */
    a[3] = gpusync_wait(q, p->ticket, GPUSYNC_FOREVER);
    a[4] = gpusync_wait(q, p->ticket, MS(5));
    a[5] = gpusync_wait(q, p->ticket, 0);
    a[6] = gpusync_queue_wait(q, MS(5));
    a[7] = gpusync_device_wait(p->r.device, MS(5), NULL);
    a[8] = gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, MS(5), NULL, NULL);
    a[9] = gpusync_wait_ex(q, GPUSYNC_EVERYTHING, MS(5), NULL);
    a[10] = gpusync_queue_destroy(q);
    a[11] = gpusync_next_error(q, &cursor, &error);
    must(gpusync_queue_report(q, text, sizeof text) > 0, "the report of the queue");
    must(gpusync_report(p->r.device, text, sizeof text) > 0, "the report");
    must(gpusync_in_flight(q) >= 1 && !gpusync_is_idle(q), "in flight");
    a[12] = either_buffer(q, NULL, &buffer);
    a[13] = buffer ? either_commit(q, buffer, NULL) : a[12];
    p->in_log = NULL; /* once */
}

static void give_room_and_ask_in_the_log(program *p)
{
    must(gpusync_command_buffer_discard(p->r.queue, p->taken) == GPUSYNC_OK, "discard");
    ask_in_the_log(p);
}

static const gpusync_result answers_in_the_log[] = {
    GPUSYNC_OK, GPUSYNC_NOT_READY, GPUSYNC_OK, GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK,
    GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK,
    GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_NOT_READY,
    GPUSYNC_OK, GPUSYNC_OK};

static void check_answers(const program *p)
{
    size_t i;
    for (i = 0; i < LENGTH(answers_in_the_log); i++) {
        if (p->answers[i] != answers_in_the_log[i]) print_error("answer %zu\n", i);
        assert_result(p->answers[i], answers_in_the_log[i]);
    }
}

/* Told of a timeout the function polls, commits, and asks; its waits return at once, and are no timeouts to be told of. */
static void test_in_a_warning_waits_that_would_have_to_wait_return_at_once(void **state)
{
    void *first;
    int how;
    program p;
    (void)state;
    for (how = 0; how < (metal4_run() ? 3 : 4); how++) { /* Metal 4 has no wait for room */
        gpusync_result result;
        gpusync_point point;
        open_program(&p, queue_desc_of(2, 0));
        commit_empty(&p.r, &first);
        softmetal_finish(first);
        p.ticket = commit_empty(&p.r, NULL);
        point = after(p.r.queue, p.ticket);
        if (how == 3) p.taken = open_buffer(&p.r);
        p.in_log = how == 3 ? give_room_and_ask_in_the_log : ask_in_the_log;
        if (how == 0) result = gpusync_wait(p.r.queue, p.ticket, MS(5));
        else if (how == 1) result = gpusync_device_wait(p.r.device, MS(5), NULL);
        else if (how == 2) result = gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ANY, MS(5), NULL, NULL);
        else result = make_room(p.r.queue, MS(5));
        assert_result(result, GPUSYNC_TIMEOUT);
        assert_lines(&p, 1);
        assert_int_equal(p.deepest, 1);
        check_answers(&p);
        assert_int_equal(gpusync_in_flight(p.r.queue), 2);
        assert_result(gpusync_wait(p.r.queue, p.ticket, 0), GPUSYNC_TIMEOUT); /* outside it is an ordinary wait again */
        close_program(&p);
    }
}

/* What ends while the function runs has ended too late: the wait returns what it has told of. */
static void finish_in_the_log(program *p) { finish_queue(p->r.queue); }

static void test_work_that_ends_in_the_log_function_does_not_change_the_result(void **state)
{
    program p;
    (void)state;
    open_plain(&p);
    commit_empty(&p.r, NULL);
    p.in_log = finish_in_the_log;
    assert_result(gpusync_wait(p.r.queue, 1, MS(5)), GPUSYNC_TIMEOUT);
    assert_lines(&p, 1);
    assert_ok(gpusync_wait(p.r.queue, 1, 0));
    close_program(&p);
}

/* -- lost handlers --------------------------------------------------------------------------------------------------- */

/* A call has been refused room in a queue with so many places in use: that is why sweeps come. Metal has more room, so that
   a place which is given back can be taken. */
static void open_full(program *p, uint32_t places, void **buffers)
{
    gpusync_queue_desc desc = queue_desc_of(places, 0);
    uint32_t i;
    open_plain(p);
    assert_ok(gpusync_queue_destroy(p->r.queue));
    desc.metal_queue = metal_queue_new(p->r.metal_device, 2 * places + 4);
    metal_set_label(desc.metal_queue, "render");
    p->r.queue = queue_of_kind(QUEUE_OF_THE_PROGRAM, p->r.device, &desc);
    p->r.metal_queue = desc.metal_queue;
    metal_release(desc.metal_queue);
    for (i = 0; i < places; i++) commit_empty(&p->r, &buffers[i]);
    assert_result(make_room(p->r.queue, 0), GPUSYNC_TIMEOUT);
    assert_int_equal(softmetal_timers(), 1);
}

static void sweep_after(uint64_t ns)
{
    PUT(&clock_now, GET(&clock_now) + ns);
    assert_true(softmetal_timers() > 0);
    softmetal_fire_timer();
}

static void test_a_handler_that_does_not_come_writes_one_warning(void **state)
{
    void *buffer;
    program p;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is lost");
    open_full(&p, 1, &buffer);
    softmetal_complete(buffer);
    sweep_after(0); /* sees the end */
    assert_lines(&p, 0);
    sweep_after(MS(51));
    assert_lines(&p, 1);
    assert_warning(&p, 0, "queue 'render', ticket 1", "has not called the completed handler for 51 ms after the end");
    assert_result(make_room(p.r.queue, 0), GPUSYNC_OK); /* its room is back */
    commit_empty(&p.r, NULL);
    assert_result(make_room(p.r.queue, 0), GPUSYNC_TIMEOUT);
    sweep_after(MS(500));
    sweep_after(MS(500));
    assert_lines(&p, 1);
    softmetal_finish(buffer); /* it comes after all */
    assert_lines(&p, 1);
    close_program(&p);
}

static void test_a_handler_that_is_late_by_50_ms_or_less_writes_nothing(void **state)
{
    void *buffer;
    program p;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is late");
    open_full(&p, 1, &buffer);
    sweep_after(MS(400)); /* it runs, as long as it likes */
    sweep_after(MS(400));
    softmetal_complete(buffer);
    sweep_after(MS(400)); /* sees the end */
    sweep_after(MS(20));
    sweep_after(MS(29));
    assert_lines(&p, 0);
    softmetal_finish(buffer);
    PUT(&clock_now, GET(&clock_now) + MS(500));
    while (softmetal_timers()) softmetal_fire_timer();
    assert_lines(&p, 0);
    close_program(&p);
}

enum { ENDED_BY_A_WAIT, ENDED_BY_A_POLL, ENDED_BY_A_CALLBACK, ENDED_BY_A_SWEEP, ENDED_BY };

static void end_in_the_park(program *p, uint64_t deadline_ns)
{
    softmetal_complete(p->buffer);
    PUT(&clock_now, deadline_ns);
}

static void count_end(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    must(result == GPUSYNC_OK, "how it ended");
    COUNT((long *)user);
}

/* The end of a ticket whose handler does not come is found, and nothing waits any more. */
static void find_the_end(program *p, int by)
{
    wait_job job;
    long calls = 0;
    assert_int_equal(commit_empty(&p->r, &p->buffer), 1);
    memset(&job, 0, sizeof job);
    job.queue = p->r.queue;
    job.ticket = 1;
    job.timeout_ns = GPUSYNC_FOREVER;
    if (by == ENDED_BY_A_WAIT) {
        p->in_park = end_in_the_park;
        assert_ok(gpusync_wait(p->r.queue, 1, MS(5)));
        p->in_park = NULL;
    } else if (by == ENDED_BY_A_SWEEP) {
        job.thread = start(wait_job_body, &job);
        await_sleepers(p->r.device, 1);
        while (!softmetal_timers()) sched_yield(); /* it arms a sweep when it is listed */
        softmetal_complete(p->buffer);
        sweep_after(0);
        assert_ok(wait_job_join(&job));
    } else {
        assert_ok(gpusync_on_done(after(p->r.queue, 1), count_end, &calls));
        softmetal_complete(p->buffer);
        if (by == ENDED_BY_A_POLL) assert_ok(gpusync_poll(p->r.queue, 1));
        else sweep_after(0);
        assert_int_equal(CALLED(calls), 1);
    }
    assert_true(softmetal_timers() > 0);
    assert_int_equal(sleepers_of(p->r.device), 0);
    assert_lines(p, 0);
}

static void test_a_lost_handler_is_told_once_whatever_found_the_end(void **state)
{
    program p;
    int by;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is lost");
    for (by = 0; by < ENDED_BY; by++) {
        open_plain(&p);
        find_the_end(&p, by);
        if (by == ENDED_BY_A_WAIT || by == ENDED_BY_A_POLL) sweep_after(0); /* the first that sees it */
        sweep_after(MS(51));
        assert_lines(&p, 1);
        assert_warning(&p, 0, "queue 'render', ticket 1", "has not called the completed handler for 51 ms after the end");
        PUT(&clock_now, GET(&clock_now) + MS(500));
        while (softmetal_timers()) softmetal_fire_timer(); /* there is an end to them */
        softmetal_finish(p.buffer); /* it comes after all */
        assert_lines(&p, 1);
        close_program(&p);
    }
}

static void test_a_handler_that_is_merely_late_is_not_told_whatever_found_the_end(void **state)
{
    program p;
    int by;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is late");
    for (by = 0; by < ENDED_BY; by++) {
        open_plain(&p);
        find_the_end(&p, by);
        if (by == ENDED_BY_A_WAIT || by == ENDED_BY_A_POLL) sweep_after(0);
        sweep_after(MS(49));
        assert_lines(&p, 0);
        softmetal_finish(p.buffer);
        PUT(&clock_now, GET(&clock_now) + MS(500));
        while (softmetal_timers()) softmetal_fire_timer();
        assert_lines(&p, 0);
        close_program(&p);
    }
}

/* Given-up work is on record, and the log is not told: the program has asked for it. */
static void test_work_that_was_given_up_writes_nothing(void **state)
{
    gpusync_timeline *timeline, *next;
    gpusync_queue *other;
    gpusync_ticket tracked;
    gpusync_error error;
    uint64_t cursor = 0;
    void *buffer;
    program p;
    (void)state;
    open_plain(&p);
    other = queue_new(p.r.device);
    timeline = timeline_new(p.r.device);
    next = timeline_new(p.r.device);
    (void)SUBMIT(p.r.queue, NO_WORK(p.r.queue), WAITS(at(timeline, 1)), SIGNALS(at(next, 1)));
    (void)SUBMIT(other, NO_WORK(other), WAITS(at(next, 1))); /* gets the error of that */
    assert_ok(gpusync_cancel_held(p.r.queue));
    assert_ok(gpusync_next_error(p.r.queue, &cursor, &error));
    assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
    cursor = 0;
    assert_ok(gpusync_next_error(other, &cursor, &error));
    assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
    if (!metal4_run()) {
        buffer = metal_queue_command_buffer(p.r.metal_queue);
        assert_ok(gpusync_track(p.r.queue, buffer, &tracked));
        assert_ok(gpusync_untrack(p.r.queue, tracked));
        metal_release(buffer);
    }
    assert_ok(gpusync_queue_destroy(other));
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_timeline_destroy(next));
    assert_lines(&p, 0);
    close_program(&p);
}

static void test_each_handler_that_does_not_come_writes_a_warning_of_its_own(void **state)
{
    void *buffers[3], *open[3];
    int round, opened = 0;
    program p;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is lost");
    open_full(&p, 3, buffers);
    softmetal_complete(buffers[0]);
    softmetal_complete(buffers[2]);
    sweep_after(0);
    sweep_after(MS(51));
    assert_lines(&p, 2);
    assert_warning(&p, 0, "queue 'render', ticket 1", "completed handler");
    assert_warning(&p, 1, "queue 'render', ticket 3", "completed handler");
    softmetal_complete(buffers[1]);
    for (round = 0; round < 4; round++) {
        while (opened < (lines_of(&p) < 3 ? 2 : 3)) open[opened++] = open_buffer(&p.r); /* takes the room that is back */
        assert_result(make_room(p.r.queue, 0), GPUSYNC_TIMEOUT);
        PUT(&clock_now, GET(&clock_now) + MS(500));
        while (softmetal_timers() > 1) softmetal_fire_timer();
        softmetal_fire_timer();
    }
    assert_lines(&p, 3);
    assert_warning(&p, 2, "queue 'render', ticket 2", "completed handler");
    assert_int_equal(opened, 3);
    while (opened) assert_ok(gpusync_command_buffer_discard(p.r.queue, open[--opened]));
    close_program(&p);
}

/* A wait with `handlers` is told of nothing, and goes on; the log tells why. */
static void test_a_wait_for_a_handler_that_does_not_come_has_a_warning_in_the_log(void **state)
{
    gpusync_wait_options options;
    wait_job job;
    void *buffer;
    program p;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is lost");
    open_plain(&p);
    memset(&options, 0, sizeof options);
    options.handlers = true;
    commit_empty(&p.r, &buffer);
    memset(&job, 0, sizeof job);
    job.queue = p.r.queue;
    job.ticket = 1;
    job.timeout_ns = GPUSYNC_FOREVER;
    job.options = &options;
    job.thread = start(wait_job_body, &job);
    await_sleepers(p.r.device, 1);
    while (!softmetal_timers()) sched_yield(); /* it arms a sweep when it is listed */
    softmetal_complete(buffer);
    sweep_after(0); /* wakes the waiter, which goes on to the handler */
    while (!reports(p.r.device, "a wait for the handler of ticket 1")) sched_yield();
    sweep_after(MS(51));
    assert_lines(&p, 1);
    assert_warning(&p, 0, "queue 'render', ticket 1", "completed handler");
    assert_false(pthread_equal(p.lines[0].thread, job.thread)); /* a sweep's */
    sweep_after(MS(500));
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&job));
    assert_lines(&p, 1);
    close_program(&p);
}

static void test_a_lost_handler_of_a_submission_is_told_with_its_ticket(void **state)
{
    void *buffer;
    program p;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is lost");
    open_program(&p, queue_desc_of(2, 0));
    commit_empty(&p.r, NULL);
    buffer = open_buffer(&p.r);
    assert_int_equal(SUBMIT(p.r.queue, BUFFERS(buffer), .label = "post"), 2);
    assert_result(make_room(p.r.queue, 0), GPUSYNC_TIMEOUT);
    softmetal_complete(buffer);
    sweep_after(0);
    sweep_after(MS(51));
    assert_lines(&p, 1);
    assert_warning(&p, 0, "queue 'render', ticket 2", "completed handler");
    close_program(&p);
}

static void test_in_the_warning_of_a_lost_handler_waits_return_at_once(void **state)
{
    void *buffers[2];
    program p;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is lost");
    open_full(&p, 2, buffers);
    softmetal_complete(buffers[0]);
    p.ticket = 2;
    p.in_log = ask_in_the_log;
    sweep_after(0);
    sweep_after(MS(51));
    assert_lines(&p, 1);
    assert_int_equal(p.deepest, 1);
    check_answers(&p); /* the room that is back took what the function has committed */
    close_program(&p);
}

static void test_a_feedback_that_does_not_come_writes_nothing(void **state)
{
    gpusync_queue_desc desc = queue_desc_of(1, 0);
    wait_job job;
    void *buffer;
    program p;
    (void)state;
    desc.metal4 = true;
    open_program(&p, desc);
    commit_empty(&p.r, &buffer);
    wait_job_start(&job, p.r.queue, 1, GPUSYNC_FOREVER);
    await_sleepers(p.r.device, 1);
    while (!softmetal_timers()) sched_yield(); /* it arms a sweep when it is listed */
    softmetal_complete(buffer);
    sweep_after(0);
    sweep_after(MS(51));
    sweep_after(MS(500));
    assert_lines(&p, 0); /* nothing shows the end */
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&job));
    close_program(&p);
}

/* -- a warning too few, a warning too many ------------------------------------------------------------------------ */

/* The wait goes on to the second queue when its time is over, and looks once. It had a limit, and timed out. */
static void test_a_wait_for_a_device_warns_where_one_queue_took_all_its_time(void **state)
{
    gpusync_queue_desc desc = queue_desc_of(0, 0);
    gpusync_queue *other;
    program p;
    (void)state;
    open_plain(&p);
    desc.label = "another";
    other = queue_of_kind(QUEUE_OF_GPUSYNC, p.r.device, &desc);
    commit_empty(&p.r, &p.buffer);
    (void)commit_empty_to(other, NULL);
    p.in_park = finish_at_the_deadline;
    assert_result(gpusync_device_wait(p.r.device, MS(5), NULL), GPUSYNC_TIMEOUT);
    assert_null(p.buffer); /* the first queue was waited for, and its work has ended */
    assert_timed_out(&p, "queue 'another'", "everything up to ticket 1 ");
    finish_queue(other);
    assert_ok(gpusync_queue_destroy(other));
    close_program(&p);
}

static void take_the_room(void *user)
{
    const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    program *p = (program *)user;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &none;
    if (gpusync_command_buffer(p->r.queue, &desc, &p->taken) != GPUSYNC_OK) p->taken = NULL;
}

static void give_room_that_others_take(program *p, uint64_t deadline_ns)
{
    PUT(&clock_now, deadline_ns + 1);
    p->in_park = NULL;
    probe_at_each(p->n, take_the_room, p);
    assert_ok(gpusync_command_buffer_discard(p->r.queue, p->buffer));
}

/* Room comes at the deadline, and at the n-th point from there on another call takes it, if it is still free. Where the
   first call had been told of the room, it asks once more, and its time is over. */
static void test_a_call_that_loses_its_room_at_the_deadline_writes_one_warning(void **state)
{
    unsigned lost = 0;
    bool acted = true;
    int n;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers");
    for (n = 1; acted; n++) {
        gpusync_result result;
        program p;
        open_program(&p, queue_desc_of(1, 0));
        p.n = n;
        p.buffer = open_buffer(&p.r);
        p.in_park = give_room_that_others_take;
        result = make_room(p.r.queue, MS(5));
        acted = probe_has_acted();
        if (result == GPUSYNC_OK) {
            assert_lines(&p, 0);
        } else {
            assert_result(result, GPUSYNC_TIMEOUT);
            assert_timed_out(&p, "queue 'render'", "room for a command buffer");
            lost++;
        }
        if (p.taken) assert_ok(gpusync_command_buffer_discard(p.r.queue, p.taken));
        close_program(&p);
    }
    assert_true(lost > 0);
}

static gpusync_result wait_somehow(program *p, int how, uint64_t timeout_ns)
{
    gpusync_point point = after(p->r.queue, 2);
    if (how == 0) return gpusync_wait(p->r.queue, 2, timeout_ns);
    if (how == 1) return gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, timeout_ns, NULL, NULL);
    if (how == 2) return gpusync_queue_wait(p->r.queue, timeout_ns);
    return gpusync_device_wait(p->r.device, timeout_ns, NULL);
}

/* The device is lost, and the work may still end: the wait goes on until its time is over. When the work is given up,
   the same wait ends at once, and nothing timed out. */
static void test_a_wait_on_a_lost_device_that_reaches_its_limit_writes_one_warning(void **state)
{
    int how;
    program p;
    (void)state;
    open_plain(&p);
    commit_empty(&p.r, &p.buffer);
    commit_empty(&p.r, NULL);
    fail_with_the_device(p.buffer);
    softmetal_finish(p.buffer);
    assert_only_errors(&p);
    forget(&p);
    for (how = 0; how < 4; how++) {
        assert_result(wait_somehow(&p, how, MS(5)), GPUSYNC_TIMEOUT);
        assert_timed_out(&p, "queue 'render'", how < 2 ? "ticket 2 " : "everything up to ticket 2 ");
        assert_result(wait_somehow(&p, how, 0), GPUSYNC_TIMEOUT);
        assert_lines(&p, 0); /* a look has no limit */
    }
    probe_give_up_lost(p.r.device);
    for (how = 0; how < 4; how++) assert_result(wait_somehow(&p, how, MS(5)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_lines(&p, 0);
    close_program(&p);
}

/* ... also where more than one queue has work that may still end. */
static void test_a_wait_for_a_lost_device_that_reaches_its_limit_writes_one_warning(void **state)
{
    gpusync_queue_desc desc = queue_desc_of(0, 0);
    gpusync_queue *queues[3];
    unsigned i;
    program p;
    (void)state;
    open_plain(&p);
    desc.label = "another";
    commit_empty(&p.r, &p.buffer);
    commit_empty(&p.r, NULL);
    for (i = 0; i < LENGTH(queues); i++) {
        queues[i] = queue_of_kind(QUEUE_OF_GPUSYNC, p.r.device, &desc);
        (void)commit_empty_to(queues[i], NULL);
    }
    fail_with_the_device(p.buffer);
    softmetal_finish(p.buffer);
    assert_only_errors(&p);
    forget(&p);
    assert_result(gpusync_device_wait(p.r.device, MS(5), NULL), GPUSYNC_TIMEOUT);
    assert_timed_out(&p, "queue 'render'", "everything up to ticket 2 ");
    for (i = 0; i < LENGTH(queues); i++) {
        finish_queue(queues[i]);
        assert_ok(gpusync_queue_destroy(queues[i]));
    }
    close_program(&p);
}

/* -- the report of a queue ------------------------------------------------------------------------------------------ */

/* The lines of gpusync_report about the queue with this label. */
static char *part_of_report(gpusync_device *device, const char *label)
{
    char *text = report_of(device), *part = (char *)malloc(strlen(text) + 1), *one, *rest = NULL, name[80];
    bool inside = false;
    assert_non_null(part);
    part[0] = '\0';
    snprintf(name, sizeof name, " '%s': ", label);
    for (one = strtok_r(text, "\n", &rest); one; one = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(one, "    ", 4) != 0) inside = strncmp(one, "  queue ", 8) == 0 && strstr(one, name) != NULL;
        if (inside) strcat(strcat(part, one), "\n");
    }
    free(text);
    without_times(part);
    return part;
}

static void check_reports(program *p, gpusync_queue *queue, const char *label)
{
    char *whole = part_of_report(p->r.device, label), *own = queue_report_of(queue);
    assert_true(strlen(own) > 20);
    assert_string_equal(own, whole);
    free(whole);
    free(own);
}

static void test_the_report_of_a_queue_is_its_lines_of_the_report_of_the_device(void **state)
{
    gpusync_queue_desc desc = queue_desc_of(0, 0);
    gpusync_timeline *timeline;
    gpusync_queue *other;
    wait_job job;
    void *failing;
    program p;
    (void)state;
    open_plain(&p);
    timeline = timeline_named(p.r.device, "frames");
    desc.label = "another";
    other = queue_of_kind(QUEUE_OF_GPUSYNC, p.r.device, &desc);
    check_reports(&p, p.r.queue, "render"); /* never used */
    commit_empty(&p.r, &failing);
    softmetal_fail(failing, NULL, 1, NULL);
    finish_queue(p.r.queue);
    check_reports(&p, p.r.queue, "render"); /* idle, with a failure and a history */
    fill_queue(p.r.queue, timeline);
    (void)hold_on(other, timeline, 3, NULL);
    if (!metal4_run()) {
        void *own;
        (void)track_a_buffer(&p.r, &own);
        metal_release(own);
    }
    wait_job_start(&job, p.r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(p.r.device, 1);
    check_reports(&p, p.r.queue, "render");
    check_reports(&p, other, "another");
    if (!metal4_run()) assert_ok(gpusync_untrack(p.r.queue, 5));
    empty_queue(p.r.queue);
    empty_queue(other);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_destroy(other));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_program(&p);
}

static void test_the_report_of_a_queue_is_cut_as_by_snprintf(void **state)
{
    char whole[1024], part[1024];
    size_t length, size;
    program p;
    (void)state;
    open_plain(&p);
    length = gpusync_queue_report(p.r.queue, whole, sizeof whole);
    assert_int_equal(length, strlen(whole));
    assert_true(length > 20);
    assert_int_equal(gpusync_queue_report(p.r.queue, NULL, 0), length);
    assert_int_equal(gpusync_queue_report(p.r.queue, NULL, 100), length);
    for (size = 0; size <= length + 2; size++) {
        memset(part, '#', sizeof part);
        assert_int_equal(gpusync_queue_report(p.r.queue, part, size), length);
        assert_int_equal(part[size], '#');
        if (size == 0) continue;
        assert_int_equal(strlen(part), size - 1 < length ? size - 1 : length);
        assert_memory_equal(part, whole, strlen(part));
    }
    close_program(&p);
}

static void test_the_report_of_no_queue_is_empty(void **state)
{
    char text[8];
    (void)state;
    memset(text, '#', sizeof text);
    assert_int_equal(gpusync_queue_report(NULL, text, 0), 0);
    assert_int_equal(text[0], '#');
    assert_int_equal(gpusync_queue_report(NULL, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(gpusync_queue_report(NULL, NULL, sizeof text), 0);
}

static struct {
    gpusync_queue *queue;
    char text[64];
    size_t length;
    unsigned calls;
} closing;

static void report_in_destroy(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)result, (void)error;
    memset(closing.text, '#', sizeof closing.text);
    closing.length = gpusync_queue_report(closing.queue, closing.text, sizeof closing.text);
    closing.calls++;
}

static void test_the_report_of_a_queue_that_is_being_destroyed_is_empty(void **state)
{
    program p;
    (void)state;
    open_plain(&p);
    memset(&closing, 0, sizeof closing);
    closing.queue = p.r.queue;
    commit_empty(&p.r, NULL);
    assert_ok(gpusync_on_done(after(p.r.queue, 1), report_in_destroy, NULL));
    p.last_park = 1;
    p.in_park = finish_in_the_last_park;
    assert_ok(gpusync_queue_destroy(p.r.queue));
    p.r.queue = NULL;
    assert_int_equal(closing.calls, 1);
    assert_int_equal(closing.length, 0);
    assert_string_equal(closing.text, "");
    close_program(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_levels_are_ordered_by_severity),
        cmocka_unit_test(test_a_failure_is_an_error_and_a_timeout_a_warning),
        cmocka_unit_test(test_a_wait_for_a_ticket_that_times_out_writes_one_warning),
        cmocka_unit_test(test_a_wait_for_everything_that_times_out_writes_one_warning),
        cmocka_unit_test(test_a_wait_for_a_device_warns_of_a_queue_that_has_not_ended),
        cmocka_unit_test(test_a_wait_for_a_value_that_times_out_writes_one_warning),
        cmocka_unit_test(test_a_wait_for_many_that_times_out_writes_one_warning),
        cmocka_unit_test(test_a_wait_that_times_out_reads_nothing_of_a_queue_that_has_gone),
        cmocka_unit_test(test_a_wait_for_a_thousand_points_writes_one_warning_and_keeps_its_limit),
        cmocka_unit_test(test_a_wait_for_a_device_with_several_stuck_queues_writes_one_warning),
        cmocka_unit_test(test_a_command_buffer_without_room_writes_one_warning),
        cmocka_unit_test(test_a_submission_without_room_writes_one_warning),
        cmocka_unit_test(test_a_wait_for_a_warm_up_that_times_out_writes_a_warning),
        cmocka_unit_test(test_a_look_with_a_timeout_of_0_writes_nothing),
        cmocka_unit_test(test_a_wait_that_ends_writes_nothing),
        cmocka_unit_test(test_a_wait_for_work_that_fails_writes_the_failure_alone),
        cmocka_unit_test(test_a_wait_that_is_refused_writes_nothing),
        cmocka_unit_test(test_a_wait_that_the_loss_of_the_device_ends_writes_no_warning),
        cmocka_unit_test(test_destroy_writes_nothing_however_long_it_waits),
        cmocka_unit_test(test_without_a_log_function_a_wait_times_out_all_the_same),
        cmocka_unit_test(test_the_log_function_may_ask_for_the_report_of_the_queue),
        cmocka_unit_test(test_control_characters_of_labels_are_blanks_in_the_log),
        cmocka_unit_test(test_in_a_warning_waits_that_would_have_to_wait_return_at_once),
        cmocka_unit_test(test_work_that_ends_in_the_log_function_does_not_change_the_result),
        cmocka_unit_test(test_a_handler_that_does_not_come_writes_one_warning),
        cmocka_unit_test(test_a_handler_that_is_late_by_50_ms_or_less_writes_nothing),
        cmocka_unit_test(test_a_lost_handler_is_told_once_whatever_found_the_end),
        cmocka_unit_test(test_a_handler_that_is_merely_late_is_not_told_whatever_found_the_end),
        cmocka_unit_test(test_work_that_was_given_up_writes_nothing),
        cmocka_unit_test(test_each_handler_that_does_not_come_writes_a_warning_of_its_own),
        cmocka_unit_test(test_a_wait_for_a_handler_that_does_not_come_has_a_warning_in_the_log),
        cmocka_unit_test(test_a_lost_handler_of_a_submission_is_told_with_its_ticket),
        cmocka_unit_test(test_in_the_warning_of_a_lost_handler_waits_return_at_once),
        cmocka_unit_test(test_a_feedback_that_does_not_come_writes_nothing),
        cmocka_unit_test(test_a_wait_for_a_device_warns_where_one_queue_took_all_its_time),
        cmocka_unit_test(test_a_call_that_loses_its_room_at_the_deadline_writes_one_warning),
        cmocka_unit_test(test_a_wait_on_a_lost_device_that_reaches_its_limit_writes_one_warning),
        cmocka_unit_test(test_a_wait_for_a_lost_device_that_reaches_its_limit_writes_one_warning),
        cmocka_unit_test(test_the_report_of_a_queue_is_its_lines_of_the_report_of_the_device),
        cmocka_unit_test(test_the_report_of_a_queue_is_cut_as_by_snprintf),
        cmocka_unit_test(test_the_report_of_no_queue_is_empty),
        cmocka_unit_test(test_the_report_of_a_queue_that_is_being_destroyed_is_empty),
    };
    clock_is_real = false;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
