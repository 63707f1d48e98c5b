/* test_wait_many.c - one wait for many points: tickets and values of timelines, all of them or any

   It also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"
#include <sys/mman.h>
#include <time.h>

/* -- hooks that count ------------------------------------------------------------------------------------ */

typedef struct sleep_log {
    gpusync_hooks hooks;
    long parks, unparks, yields;
    bool stubborn;        /* a park with a deadline far away ends with an unpark only: no look now and then can help */
    void *complete_at_limit; /* this buffer becomes complete when a park has reached its deadline */
} sleep_log;

static void log_yield(void *user)
{
    __atomic_fetch_add(&((sleep_log *)user)->yields, 1, __ATOMIC_SEQ_CST);
    sched_yield();
}

static void log_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    const struct timespec nap = {0, 50000};
    sleep_log *log = (sleep_log *)user;
    if (log->stubborn && deadline_ns > gpusync_now_ns() + MS(20)) deadline_ns = GPUSYNC_FOREVER;
    __atomic_fetch_add(&log->parks, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_exchange_n(&waiter->scheduler_data[0], NULL, __ATOMIC_SEQ_CST)) {
        if (gpusync_now_ns() >= deadline_ns) {
            void *buffer = __atomic_exchange_n(&log->complete_at_limit, NULL, __ATOMIC_SEQ_CST);
            if (buffer) show_end(buffer);
            return;
        }
        nanosleep(&nap, NULL);
    }
}

static void log_unpark(void *user, gpusync_waiter *waiter)
{
    sleep_log *log = (sleep_log *)user;
    __atomic_fetch_add(&log->unparks, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&waiter->scheduler_data[0], (void *)waiter, __ATOMIC_SEQ_CST);
}

static long counted(const long *count) { return __atomic_load_n(count, __ATOMIC_SEQ_CST); }

static const gpusync_spin endless = {0, UINT32_MAX, 0, false};

/* log may be NULL: threads. */
static void open_rig_spinning(rig *r, softmetal_clock clock, sleep_log *log, const gpusync_spin *spin, uint32_t limit)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    if (log) {
        memset(log, 0, sizeof *log);
        log->hooks.yield = log_yield;
        log->hooks.park = log_park;
        log->hooks.unpark = log_unpark;
        log->hooks.user = log;
        device_desc.hooks = &log->hooks;
    }
    device_desc.spin = spin;
    queue_desc.max_command_buffer_count = limit;
    rig_open_with(r, clock, device_desc, queue_desc);
}

/* Waits sleep at once. */
static void open_rig(rig *r, softmetal_clock clock, sleep_log *log) { open_rig_spinning(r, clock, log, &no_spin, 0); }

static void close_rig(rig *r)
{
    rig_close(r);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("listener"), 0);
}

static gpusync_stats device_stats(rig *r)
{
    gpusync_stats stats;
    assert_ok(gpusync_device_get_stats(r->device, &stats));
    return stats;
}

static bool a_wait_sleeps(rig *r)
{
    char text[8192];
    gpusync_report(r->device, text, sizeof text);
    return strstr(text, "a wait for ") != NULL;
}

#define expect_many(points, count, how, timeout_ns, result, expected_which)                                     \
    expect_many_at(points, count, how, timeout_ns, result, expected_which, __FILE__, __LINE__)
static void expect_many_at(const gpusync_point *points, size_t count, gpusync_wait_for how, uint64_t timeout_ns,
                           gpusync_result result, size_t expected_which, const char *file, int line)
{
    size_t which = 12345;
    assert_result_at(gpusync_wait_many(points, count, how, timeout_ns, NULL, &which), result, "gpusync_wait_many", file,
                     line);
    if (which == expected_which) return;
    print_error("which is %zu, expected %zu\n", which, expected_which);
    _fail(file, line);
}

/* -- what is refused, and nothing ------------------------------------------------------------------------ */

static void test_all_of_none_is_reached_and_any_of_none_makes_no_sense(void **state)
{
    gpusync_point point;
    (void)state;
    memset(&point, 0, sizeof point);
    expect_many(NULL, 0, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_OK, 0);
    expect_many(&point, 0, GPUSYNC_WAIT_ALL, 0, GPUSYNC_OK, 0);
    expect_many(NULL, 0, GPUSYNC_WAIT_ALL_OR_FAILURE, 0, GPUSYNC_OK, 0);
    expect_many(NULL, 0, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, GPUSYNC_ERROR_INVALID_ARGUMENT, 0);
    expect_many(&point, 0, GPUSYNC_WAIT_ANY, 0, GPUSYNC_ERROR_INVALID_ARGUMENT, 0);
    assert_ok(gpusync_wait_many(NULL, 0, GPUSYNC_WAIT_ALL, 0, NULL, NULL));
}

static void test_points_that_are_none_are_refused_and_leave_the_others_alone(void **state)
{
    gpusync_wait_options options;
    gpusync_point points[3];
    gpusync_timeline *timeline;
    gpusync_error error;
    rig r, other;
    int how;
    (void)state;
    memset(&options, 0, sizeof options);
    options.error = &error;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 1);
    for (how = 0; how < 3; how++) {
        gpusync_wait_for kind = (gpusync_wait_for)how;
        points[0] = gpusync_at_value(timeline, 1);
        points[1] = gpusync_at_ticket(r.queue, 0);
        points[2] = gpusync_at_ticket(NULL, 0); /* neither */
        expect_many(points, 3, kind, 0, GPUSYNC_ERROR_INVALID_ARGUMENT, 3);
        points[2] = gpusync_at_ticket(r.queue, 1); /* never issued */
        expect_many(points, 3, kind, 0, GPUSYNC_ERROR_INVALID_TICKET, 2);
        points[2] = gpusync_at_ticket(r.queue, ((gpusync_ticket)1 << 62));
        expect_many(points, 3, kind, 0, GPUSYNC_ERROR_INVALID_TICKET, 2);
        points[2] = gpusync_at_value(timeline, GPUSYNC_MAX_VALUE + 1);
        expect_many(points, 3, kind, 0, GPUSYNC_ERROR_NOT_RISING, 2);
        memset(&error, 0xEE, sizeof error);
        assert_result(gpusync_wait_many(points, 3, kind, 0, &options, NULL), GPUSYNC_ERROR_NOT_RISING);
        assert_result(error.result, GPUSYNC_ERROR_NOT_RISING);
        assert_int_equal(error.ticket, GPUSYNC_NO_TICKET);
    }
    expect_many(NULL, 2, GPUSYNC_WAIT_ALL, 0, GPUSYNC_ERROR_INVALID_ARGUMENT, 2);
    expect_many(points, 2, (gpusync_wait_for)3, 0, GPUSYNC_ERROR_INVALID_ARGUMENT, 2);
    must_return_within(20); /* else something is still inside of it, or of the queue */
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_queue_destroy(r.queue));
    has_returned();
    r.queue = queue_new(r.device);
    memset(&other, 0, sizeof other);
    assert_ok(gpusync_device_create(NULL, &other.device));
    other.queue = queue_new(other.device);
    points[0] = gpusync_at_ticket(r.queue, 0);
    points[1] = gpusync_at_ticket(other.queue, 0);
    expect_many(points, 2, GPUSYNC_WAIT_ALL, 0, GPUSYNC_ERROR_INVALID_ARGUMENT, 2);
    expect_many(points, 2, GPUSYNC_WAIT_ANY, 0, GPUSYNC_ERROR_INVALID_ARGUMENT, 2);
    assert_ok(gpusync_queue_destroy(other.queue));
    assert_ok(gpusync_device_destroy(other.device));
    close_rig(&r);
}

/* No program has an array of so many points: so none of them is looked at, wherever they are said to be. */
static void test_more_points_than_memory_has_room_for_are_refused(void **state)
{
    static const size_t counts[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX / sizeof(gpusync_point) + 1};
    const gpusync_point *nowhere = (const gpusync_point *)(uintptr_t)64; /* where nothing can be read */
    size_t i, which;
    int how;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (how = GPUSYNC_WAIT_ALL; how <= GPUSYNC_WAIT_ALL_OR_FAILURE; how++)
        for (i = 0; i < LENGTH(counts); i++) {
            which = 77;
            assert_result(gpusync_wait_many(nowhere, counts[i], (gpusync_wait_for)how, 0, NULL, &which),
                          GPUSYNC_ERROR_INVALID_ARGUMENT);
            assert_true(which == counts[i]);
        }
    close_rig(&r);
}

/* -- which ones ------------------------------------------------------------------------------------------ */

static void test_tickets_and_values_can_be_mixed(void **state)
{
    gpusync_timeline *made, *imported;
    gpusync_point points[5];
    void *event, *buffer, *second;
    gpusync_queue *queue;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    queue = queue_new(r.device);
    made = timeline_at(r.device, 0);
    imported = timeline_over(r.device, &event);
    points[0] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffer));
    second = kept_buffer_of(queue);
    points[1] = gpusync_at_ticket(queue, commit_to(queue, second));
    points[2] = gpusync_at_value(made, 3);
    points[3] = gpusync_at_value(imported, 4);
    points[4] = gpusync_at_value(made, 1);
    expect_many(points, 5, GPUSYNC_WAIT_ALL, 0, GPUSYNC_TIMEOUT, 5);
    expect_many(points, 5, GPUSYNC_WAIT_ANY, 0, GPUSYNC_TIMEOUT, 5);
    assert_ok(gpusync_timeline_signal(made, 1));
    expect_many(points, 5, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, GPUSYNC_OK, 4);
    metal_event_signal(event, 9);
    expect_many(points, 4, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, GPUSYNC_OK, 3); /* seen by looking */
    expect_many(points, 5, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, GPUSYNC_OK, 3); /* the first that is known to have ended */
    show_end(second);
    expect_many(points, 2, GPUSYNC_WAIT_ANY, 0, GPUSYNC_OK, 1);
    expect_many(points, 5, GPUSYNC_WAIT_ANY, 0, GPUSYNC_OK, 1);
    expect_many(points, 5, GPUSYNC_WAIT_ALL, MS(1), GPUSYNC_TIMEOUT, 5);
    assert_ok(gpusync_timeline_signal(made, 5));
    expect_many(points, 5, GPUSYNC_WAIT_ALL, MS(1), GPUSYNC_TIMEOUT, 5);
    softmetal_finish(buffer);
    expect_many(points, 5, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_OK, 5);
    expect_many(points, 5, GPUSYNC_WAIT_ANY, 0, GPUSYNC_OK, 0);
    assert_ok(gpusync_wait_many(points, 5, GPUSYNC_WAIT_ALL, 0, NULL, NULL));
    softmetal_finish(second);
    metal_release(second);
    assert_ok(gpusync_queue_destroy(queue));
    assert_ok(gpusync_timeline_destroy(made));
    assert_ok(gpusync_timeline_destroy(imported));
    metal_release(event);
    close_rig(&r);
}

static void test_the_same_point_may_be_given_often(void **state)
{
    gpusync_point points[14];
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    many_job all, any;
    sleep_log log;
    void *buffer;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_at(r.device, 0);
    ticket = commit_empty(&r, &buffer);
    for (i = 0; i < 14; i++) points[i] = i % 2 ? gpusync_at_value(timeline, 2) : gpusync_at_ticket(r.queue, ticket);
    many_job_start(&all, points, 14, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    many_job_start(&any, points, 14, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
    await_sleepers(r.device, 28);
    assert_ok(gpusync_timeline_signal(timeline, 2));
    assert_ok(many_job_join(&any));
    assert_int_equal(any.which, 1);
    softmetal_finish(buffer);
    assert_ok(many_job_join(&all));
    assert_int_equal(all.which, 14);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_a_ticket_zero_is_always_reached(void **state)
{
    gpusync_point points[2];
    gpusync_timeline *timeline;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 0);
    points[0] = gpusync_at_value(timeline, 1);
    points[1] = gpusync_at_ticket(r.queue, GPUSYNC_NO_TICKET);
    expect_many(points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, GPUSYNC_OK, 1);
    expect_many(points, 2, GPUSYNC_WAIT_ALL, 0, GPUSYNC_TIMEOUT, 2);
    expect_many(points + 1, 1, GPUSYNC_WAIT_ALL, 0, GPUSYNC_OK, 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_a_point_for_everything_is_what_was_committed_when_the_wait_began(void **state)
{
    gpusync_point points[2];
    gpusync_timeline *timeline;
    void *first, *second, *third;
    many_job job;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 1);
    points[0] = gpusync_at_ticket(r.queue, GPUSYNC_EVERYTHING);
    points[1] = gpusync_at_value(timeline, 1);
    expect_many(points, 2, GPUSYNC_WAIT_ALL, 0, GPUSYNC_OK, 2); /* nothing is everything */
    commit_empty(&r, &first);
    commit_empty(&r, &second);
    expect_many(points, 2, GPUSYNC_WAIT_ALL, 0, GPUSYNC_TIMEOUT, 2);
    many_job_start(&job, points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    commit_empty(&r, &third);
    softmetal_fail(third, NULL, 2, NULL); /* not its business */
    softmetal_finish(first);
    softmetal_finish(second);
    assert_ok(many_job_join(&job));
    softmetal_finish(third);
    expect_many(points, 2, GPUSYNC_WAIT_ALL, 0, GPUSYNC_ERROR_EXECUTION, 0); /* told ... */
    expect_many(points, 2, GPUSYNC_WAIT_ALL, 0, GPUSYNC_OK, 2);              /* ... once */
    assert_ok(gpusync_queue_wait(r.queue, 0));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_points_that_are_all_reached_cost_no_message_and_up_to_16_no_memory(void **state)
{
    gpusync_timeline_desc desc = {.initial_value = 9, .signalled_by_others = true};
    gpusync_point points[16];
    gpusync_timeline *timeline;
    uint64_t messages;
    void *buffer;
    long calls;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    assert_ok(gpusync_timeline_create(r.device, &desc, &timeline));
    commit_empty(&r, &buffer);
    softmetal_finish(buffer);
    for (i = 0; i < 16; i++) points[i] = i % 2 ? gpusync_at_value(timeline, 9) : gpusync_at_ticket(r.queue, 1);
    messages = softmetal_thread_messages();
    calls = r.memory.calls;
    expect_many(points, 16, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_OK, 16);
    expect_many(points, 16, GPUSYNC_WAIT_ANY, 0, GPUSYNC_OK, 0);
    assert_int_equal(softmetal_thread_messages(), messages);
    assert_int_equal(r.memory.calls, calls);
    assert_int_equal(device_stats(&r).waits_inline, 1); /* a wait for all of them is not counted */
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_a_look_at_many_asks_for_those_alone_that_are_not_known_to_be_reached(void **state)
{
    gpusync_timeline_desc desc = {.initial_value = 9, .signalled_by_others = true};
    gpusync_point points[16];
    gpusync_timeline *timeline;
    uint64_t messages;
    void *buffer;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    assert_ok(gpusync_timeline_create(r.device, &desc, &timeline));
    points[0] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffer));
    for (i = 1; i < 16; i++) points[i] = gpusync_at_value(timeline, 9);
    messages = softmetal_thread_messages();
    expect_many(points, 16, GPUSYNC_WAIT_ALL, 0, GPUSYNC_TIMEOUT, 16);
    assert_int_equal(softmetal_thread_messages(), messages + (metal4_run() ? 0 : 1));
    softmetal_finish(buffer);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

/* -- failures -------------------------------------------------------------------------------------------- */

static void test_a_failure_wins_over_a_timeout(void **state)
{
    gpusync_timeline *pending, *failed;
    gpusync_point points[4];
    gpusync_error reason;
    void *bad, *never;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    pending = timeline_at(r.device, 0);
    failed = timeline_at(r.device, 0);
    points[0] = gpusync_at_value(pending, 1);
    points[1] = gpusync_at_ticket(r.queue, commit_empty(&r, &bad));
    points[2] = gpusync_at_value(failed, 1);
    points[3] = gpusync_at_ticket(r.queue, commit_empty(&r, &never));
    expect_many(points, 4, GPUSYNC_WAIT_ALL, MS(1), GPUSYNC_TIMEOUT, 4);
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_CANCELLED;
    assert_ok(gpusync_timeline_fail(failed, &reason));
    expect_many(points, 4, GPUSYNC_WAIT_ALL, MS(1), GPUSYNC_ERROR_CANCELLED, 2);
    expect_many(points, 4, GPUSYNC_WAIT_ALL, 0, GPUSYNC_ERROR_CANCELLED, 2);
    expect_many(points, 4, GPUSYNC_WAIT_ANY, 0, GPUSYNC_ERROR_CANCELLED, 2);
    softmetal_fail(bad, NULL, 3, NULL);
    softmetal_finish(bad);
    expect_many(points, 4, GPUSYNC_WAIT_ALL, 0, GPUSYNC_ERROR_EXECUTION, 1); /* the first by place */
    expect_many(points, 4, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, GPUSYNC_ERROR_EXECUTION, 1);
    assert_ok(gpusync_timeline_signal(pending, 1));
    expect_many(points, 4, GPUSYNC_WAIT_ANY, 0, GPUSYNC_OK, 0);
    softmetal_finish(never);
    expect_many(points, 4, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_ERROR_EXECUTION, 1);
    assert_false(a_wait_sleeps(&r));
    assert_ok(gpusync_timeline_destroy(pending));
    assert_ok(gpusync_timeline_destroy(failed));
    close_rig(&r);
}

/* It is told once: by the wait that returns it, also at its limit. A wait that returns TIMEOUT leaves it to the next. */
static void test_at_the_limit_a_failure_among_everything_is_told_and_not_lost(void **state)
{
    gpusync_point points[2];
    gpusync_queue *fails;
    void *bad, *never;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    fails = queue_new(r.device);
    (void)commit_empty_to(fails, &bad);
    softmetal_fail(bad, NULL, 3, "killed");
    commit_empty(&r, &never);
    points[0] = gpusync_at_ticket(r.queue, GPUSYNC_EVERYTHING);
    points[1] = gpusync_at_ticket(fails, GPUSYNC_EVERYTHING);
    expect_many(points, 2, GPUSYNC_WAIT_ALL, MS(1), GPUSYNC_TIMEOUT, 2);
    softmetal_finish(bad);
    expect_many(points, 1, GPUSYNC_WAIT_ANY, MS(1), GPUSYNC_TIMEOUT, 1);
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_TIMEOUT); /* leaves it to the next */
    expect_many(points, 2, GPUSYNC_WAIT_ALL, MS(1), GPUSYNC_ERROR_EXECUTION, 1);
    assert_ok(gpusync_queue_wait(fails, 0));
    expect_many(points, 2, GPUSYNC_WAIT_ALL, MS(1), GPUSYNC_TIMEOUT, 2);
    softmetal_finish(never);
    expect_many(points, 2, GPUSYNC_WAIT_ALL, 0, GPUSYNC_OK, 2);
    assert_ok(gpusync_queue_destroy(fails));
    close_rig(&r);
}

/* A wait for ALL has told of the failures of every point, one for ANY of those of the point that it names. */
static void test_a_wait_for_many_tells_the_failures_of_everything_that_it_names(void **state)
{
    static const gpusync_wait_for hows[] = {GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_WAIT_ANY};
    gpusync_point points[2];
    gpusync_queue *second;
    void *bad;
    bool any;
    size_t i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    second = queue_new(r.device);
    points[0] = gpusync_at_ticket(r.queue, GPUSYNC_EVERYTHING);
    points[1] = gpusync_at_ticket(second, GPUSYNC_EVERYTHING);
    for (i = 0; i < LENGTH(hows); i++) {
        commit_empty(&r, &bad);
        softmetal_fail(bad, NULL, 3, "killed");
        softmetal_finish(bad);
        (void)commit_empty_to(second, &bad);
        softmetal_fail(bad, NULL, 3, "killed");
        softmetal_finish(bad);
        any = hows[i] == GPUSYNC_WAIT_ANY;
        expect_many(points, 2, hows[i], 0, GPUSYNC_ERROR_EXECUTION, 0);
        assert_ok(gpusync_queue_wait(r.queue, 0));
        assert_result(gpusync_queue_wait(second, 0), any ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        expect_many(points, 2, hows[i], 0, GPUSYNC_OK, any ? 0 : 2);
    }
    assert_ok(gpusync_queue_destroy(second));
    close_rig(&r);
}

static void test_waiting_for_all_goes_on_after_a_failure_until_the_rest_has_ended(void **state)
{
    gpusync_timeline *timelines[2];
    gpusync_point points[2];
    many_job all, any;
    sleep_log log;
    rig r;
    int i;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    for (i = 0; i < 2; i++) {
        timelines[i] = timeline_at(r.device, 0);
        points[i] = gpusync_at_value(timelines[i], 1);
    }
    many_job_start(&all, points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    many_job_start(&any, points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
    await_sleepers(r.device, 4);
    assert_ok(gpusync_timeline_fail(timelines[1], NULL));
    assert_result(many_job_join(&any), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(any.which, 1);
    assert_int_equal(counted(&log.unparks), 1); /* the one that waits for all sleeps on */
    assert_ok(gpusync_timeline_signal(timelines[0], 1));
    assert_result(many_job_join(&all), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(all.which, 1);
    assert_int_equal(counted(&log.unparks), 2);
    for (i = 0; i < 2; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    close_rig(&r);
}

static void test_destroying_one_of_many_ends_the_wait_at_once(void **state)
{
    int how, spins, victim;
    (void)state;
    for (how = 0; how < 2; how++)
        for (spins = 0; spins < 2; spins++)
            for (victim = 0; victim < 2; victim++) {
                gpusync_timeline *timelines[2];
                gpusync_point points[3];
                gpusync_queue *queue;
                sleep_log log;
                void *buffer;
                many_job job;
                rig r;
                open_rig_spinning(&r, SOFTMETAL_MANUAL, &log, spins ? &endless : &no_spin, 0);
                log.stubborn = true;
                queue = queue_new(r.device);
                timelines[0] = timeline_at(r.device, 0);
                timelines[1] = timeline_at(r.device, 0);
                buffer = kept_buffer_of(queue);
                points[0] = gpusync_at_value(timelines[0], 1);
                points[1] = gpusync_at_value(timelines[1], 1);
                points[2] = gpusync_at_ticket(queue, commit_to(queue, buffer));
                many_job_start(&job, points, 3, (gpusync_wait_for)how, GPUSYNC_FOREVER);
                if (spins) {
                    while (counted(&log.yields) < 10) sched_yield();
                } else {
                    await_sleepers(r.device, 3);
                }
                if (victim == 0) assert_ok(gpusync_timeline_destroy(timelines[1]));
                else assert_ok(gpusync_queue_destroy_now(queue));
                assert_result(many_job_join(&job), GPUSYNC_ERROR_DESTROYED);
                assert_int_equal(job.which, 1 + victim);
                softmetal_finish(buffer);
                metal_release(buffer);
                if (victim == 0) assert_ok(gpusync_queue_destroy(queue));
                else assert_ok(gpusync_timeline_destroy(timelines[1]));
                assert_ok(gpusync_timeline_destroy(timelines[0]));
                close_rig(&r);
            }
}

static int rest_is_reached;

static void *wait_and_see(void *argument)
{
    many_job *job = (many_job *)argument;
    many_job_body(job);
    if (job->result == GPUSYNC_OK && !__atomic_load_n(&rest_is_reached, __ATOMIC_SEQ_CST)) job->result = GPUSYNC_NOT_READY;
    return NULL;
}

static void test_destroying_one_that_is_reached_neither_hangs_nor_ends_the_wait_as_if_all_were(void **state)
{
    int first, victim, late;
    (void)state;
    for (first = 0; first < 2; first++)
        for (victim = 0; victim < 2; victim++)
            for (late = 0; late < 2; late++) { /* reached while the wait sleeps, or before */
                gpusync_timeline *reached, *pending;
                gpusync_point points[2];
                gpusync_queue *queue;
                many_job job;
                void *buffer;
                rig r;
                open_rig(&r, SOFTMETAL_MANUAL, NULL);
                queue = queue_new(r.device);
                reached = timeline_at(r.device, 0);
                pending = timeline_at(r.device, 0);
                buffer = kept_buffer_of(queue);
                assert_int_equal(commit_to(queue, buffer), 1);
                points[first] = victim ? gpusync_at_ticket(queue, 1) : gpusync_at_value(reached, 1);
                points[1 - first] = gpusync_at_value(pending, 1);
                rest_is_reached = 0;
                memset(&job, 0, sizeof job);
                job.points = points;
                job.count = 2;
                job.timeout_ns = GPUSYNC_FOREVER;
                if (late) {
                    job.thread = start(wait_and_see, &job);
                    await_sleepers(r.device, 2);
                }
                assert_ok(gpusync_timeline_signal(reached, 1));
                softmetal_finish(buffer);
                metal_release(buffer);
                if (!late) {
                    job.thread = start(wait_and_see, &job);
                    await_sleepers(r.device, 1);
                }
                if (victim) assert_ok(gpusync_queue_destroy(queue)); /* hangs when the wait stays inside */
                else assert_ok(gpusync_timeline_destroy(reached));
                __atomic_store_n(&rest_is_reached, 1, __ATOMIC_SEQ_CST);
                assert_ok(gpusync_timeline_signal(pending, 1));
                join(job.thread);
                if (job.result == GPUSYNC_ERROR_DESTROYED) assert_int_equal(job.which, first);
                else assert_ok(job.result);
                if (victim) assert_ok(gpusync_timeline_destroy(reached));
                else assert_ok(gpusync_queue_destroy(queue));
                assert_ok(gpusync_timeline_destroy(pending));
                close_rig(&r);
            }
}

/* The thread that destroys yields: once before it asks the waiter to leave, and then here until the waiter has done so,
   and sleeps again. */
static struct {
    pthread_t destroyer;
    unsigned yields;
    long parks;
    bool too_late;
} leaving;

static void wait_for_the_waiter(void *user)
{
    uint64_t end = gpusync_now_ns() + SECONDS(10);
    (void)user;
    sched_yield();
    if (!pthread_equal(pthread_self(), leaving.destroyer) || ++leaving.yields != 2) return;
    while (GET(&leaving.parks) == 0 && gpusync_now_ns() < end) sched_yield();
    leaving.too_late = gpusync_now_ns() >= end;
}

static void count_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    COUNT(&leaving.parks);
    thread_park(waiter, deadline_ns);
}

static void plain_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

/* The waiter is not woken by the first ticket, for it waits for both. It leaves that queue as soon as the queue goes. */
static void test_a_queue_whose_work_has_ended_goes_while_a_wait_for_many_sleeps_on(void **state)
{
    gpusync_hooks hooks = {wait_for_the_waiter, count_park, plain_unpark, NULL};
    gpusync_point points[2];
    gpusync_queue *other;
    many_job job;
    void *first, *second;
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    other = queue_new(r.device);
    points[0] = gpusync_at_ticket(other, commit_empty_to(other, &first));
    points[1] = gpusync_at_ticket(r.queue, commit_empty(&r, &second));
    many_job_start(&job, points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    softmetal_finish(first);
    leaving.destroyer = pthread_self();
    leaving.yields = 0;
    PUT(&leaving.parks, 0);
    leaving.too_late = false;
    assert_ok(gpusync_queue_destroy(other));
    assert_false(leaving.too_late);
    await_sleepers(r.device, 1);
    softmetal_finish(second);
    assert_ok(many_job_join(&job));
    assert_int_equal(job.which, 2);
    close_rig(&r);
}

static void lose_device(rig *r)
{
    void *fatal;
    commit_empty(r, &fatal);
    fail_with_the_device(fatal);
    softmetal_finish(fatal);
    assert_true(gpusync_device_is_lost(r->device));
}

/* At the loss itself nothing ends: all of it may still come. */
static void test_what_a_lost_device_gives_up_ends_a_wait_for_many(void **state)
{
    enum { TIMELINES = 20 };
    gpusync_timeline *timelines[TIMELINES];
    gpusync_point points[TIMELINES + 1];
    many_job all, any;
    sleep_log log;
    void *buffer;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    for (i = 0; i < TIMELINES; i++) {
        timelines[i] = timeline_at(r.device, 0);
        points[i] = gpusync_at_value(timelines[i], 1);
    }
    points[TIMELINES] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffer));
    many_job_start(&all, points, TIMELINES + 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    many_job_start(&any, points, TIMELINES + 1, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2 * (TIMELINES + 1));
    lose_device(&r);
    assert_int_equal(counted(&log.unparks), 0);
    expect_many(points, TIMELINES + 1, GPUSYNC_WAIT_ALL, 0, GPUSYNC_TIMEOUT, TIMELINES + 1);
    expect_many(points, TIMELINES + 1, GPUSYNC_WAIT_ANY, MS(1), GPUSYNC_TIMEOUT, TIMELINES + 1);
    probe_give_up_lost(r.device);
    assert_result(many_job_join(&all), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(many_job_join(&any), GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(all.which == 0 || all.which == TIMELINES); /* the ticket is given up before the timelines fail, */
    assert_true(any.which == 0 || any.which == TIMELINES); /* ... and the waiter may have seen neither yet */
    softmetal_finish(buffer);
    expect_many(points, TIMELINES + 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_ERROR_DEVICE_LOST, 0);
    expect_many(points + TIMELINES, 1, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, GPUSYNC_ERROR_DEVICE_LOST, 0);
    for (i = 0; i < TIMELINES; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    close_rig(&r);
}

/* Until then it is as on any device: a wait for all is for the last, and a wait for any for the first. */
static void test_on_a_lost_device_a_wait_for_many_gets_what_still_ends(void **state)
{
    gpusync_timeline *timeline, *never;
    gpusync_point all_points[3], any_points[3];
    many_job all, any;
    sleep_log log;
    void *first, *second, *third;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_at(r.device, 0);
    never = timeline_at(r.device, 0);
    all_points[0] = gpusync_at_ticket(r.queue, commit_empty(&r, &first));
    all_points[1] = gpusync_at_value(timeline, 1);
    all_points[2] = any_points[2] = gpusync_at_ticket(r.queue, commit_empty(&r, &second));
    any_points[0] = gpusync_at_value(never, 1);
    any_points[1] = gpusync_at_ticket(r.queue, commit_empty(&r, &third));
    many_job_start(&all, all_points, 3, GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_FOREVER);
    many_job_start(&any, any_points, 3, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
    await_sleepers(r.device, 6);
    softmetal_finish(first);
    lose_device(&r);
    assert_ok(gpusync_timeline_signal(timeline, 1));
    expect_many(all_points, 3, GPUSYNC_WAIT_ALL, 0, GPUSYNC_TIMEOUT, 3);
    expect_many(any_points, 3, GPUSYNC_WAIT_ANY, 0, GPUSYNC_TIMEOUT, 3);
    softmetal_finish(second);
    assert_ok(many_job_join(&all));
    assert_int_equal(all.which, 3);
    assert_ok(many_job_join(&any));
    assert_int_equal(any.which, 2);
    probe_give_up_lost(r.device);
    expect_many(any_points, 3, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_ERROR_DEVICE_LOST, 0);
    expect_many(any_points + 1, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_ERROR_DEVICE_LOST, 0);
    expect_many(any_points + 2, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_OK, 1);
    softmetal_finish(third);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_timeline_destroy(never));
    close_rig(&r);
}

/* Such a point is never reached, so that a wait for all is over with the first, of whichever queue. */
static void test_a_point_that_was_given_up_ends_a_wait_for_all(void **state)
{
    gpusync_queue *others[2];
    gpusync_point points[3];
    many_job job;
    sleep_log log;
    void *buffers[2], *ended;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    points[0] = gpusync_at_ticket(r.queue, commit_empty(&r, &ended));
    softmetal_finish(ended);
    for (i = 0; i < 2; i++) {
        others[i] = queue_new(r.device);
        points[1 + i] = gpusync_at_ticket(others[i], commit_empty_to(others[i], &buffers[i]));
    }
    many_job_start(&job, points, 3, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    lose_device(&r);
    probe_give_up_lost(r.device);
    assert_result(many_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
    assert_in_range(job.which, 1, 2); /* that was given up first */
    expect_many(points, 3, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_ERROR_DEVICE_LOST, 1);
    expect_many(points, 3, GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_FOREVER, GPUSYNC_ERROR_DEVICE_LOST, 1);
    expect_many(points, 3, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, GPUSYNC_OK, 0);
    for (i = 0; i < 2; i++) {
        softmetal_finish(buffers[i]);
        assert_ok(gpusync_queue_destroy(others[i]));
    }
    close_rig(&r);
}

static struct {
    rig *rig;
    gpusync_queue *other, *third;
    void *buffer;
    many_job job;
    bool acted;
} amid_a_commit;

static void *lose_and_give_up(void *unused)
{
    void *fatal;
    (void)unused;
    (void)commit_empty_to(amid_a_commit.third, &fatal);
    fail_with_the_device(fatal);
    softmetal_finish(fatal);
    must(gpusync_device_is_lost(amid_a_commit.rig->device), "the device is not lost");
    probe_give_up_amid_a_commit(amid_a_commit.rig->device);
    must(gpusync_poll(amid_a_commit.other, 1) == GPUSYNC_ERROR_DEVICE_LOST, "the first point was not given up");
    must(gpusync_poll(amid_a_commit.rig->queue, 1) == GPUSYNC_NOT_READY, "the second was given up amid a commit");
    return NULL;
}

static void give_up_amid_a_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_AFTER || GET(&amid_a_commit.acted) || !commits(object, selector, amid_a_commit.buffer)) return;
    PUT(&amid_a_commit.acted, true);
    join(start(lose_and_give_up, NULL));
    (void)many_job_join(&amid_a_commit.job); /* before the commit goes on */
}

/* The commit of another thread keeps the second queue from being given up. */
static void test_a_ticket_that_is_given_up_ends_a_wait_for_all_or_a_failure_at_once(void **state)
{
    gpusync_point points[2];
    sleep_log log;
    void *buffers[2], *metal[2];
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    memset(&amid_a_commit, 0, sizeof amid_a_commit);
    amid_a_commit.rig = &r;
    amid_a_commit.other = queue_new(r.device);
    amid_a_commit.third = queue_new(r.device);
    points[0] = gpusync_at_ticket(amid_a_commit.other, commit_empty_to(amid_a_commit.other, &buffers[0]));
    points[1] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffers[1]));
    metal[0] = gpusync_queue_metal(amid_a_commit.other);
    metal[1] = r.metal_queue;
    many_job_start(&amid_a_commit.job, points, 2, GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    amid_a_commit.buffer = buffer_of(r.queue);
    must_return_within(20);
    softmetal_set_message_hook(give_up_amid_a_commit, NULL);
    (void)commit_to(r.queue, amid_a_commit.buffer);
    softmetal_set_message_hook(NULL, NULL);
    has_returned();
    assert_true(amid_a_commit.acted);
    assert_result(amid_a_commit.job.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(amid_a_commit.job.which, 0);
    probe_give_up_lost(r.device);
    assert_result(gpusync_poll(r.queue, 1), GPUSYNC_ERROR_DEVICE_LOST);
    for (i = 0; i < 2; i++) softmetal_finish_queue(metal[i]);
    assert_ok(gpusync_queue_destroy(amid_a_commit.other));
    assert_ok(gpusync_queue_destroy(amid_a_commit.third));
    close_rig(&r);
}

/* Work that ended before the loss is no longer asked for: the device is. Its error is one of gpusync's own. */
static void test_the_loss_of_a_device_fills_the_error_of_every_wait_for_everything(void **state)
{
    gpusync_wait_options options;
    gpusync_point point;
    gpusync_error error;
    void *buffer, *fatal;
    size_t which;
    int how;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &buffer);
    softmetal_finish(buffer);
    commit_empty(&r, &fatal);
    fail_with_the_device(fatal);
    softmetal_finish(fatal);
    memset(&options, 0, sizeof options);
    options.error = &error;
    point = gpusync_at_ticket(r.queue, GPUSYNC_EVERYTHING);
    for (how = 0; how < 3; how++) {
        gpusync_result result;
        memset(&error, 0x5A, sizeof error);
        if (how == 0) result = gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, 0, &options, &which);
        else if (how == 1) result = gpusync_wait_ex(r.queue, GPUSYNC_EVERYTHING, 0, &options);
        else result = gpusync_device_wait(r.device, 0, &options);
        assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(error.result, GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(error.ticket, 0);
        assert_non_null(memchr(error.message, '\0', sizeof error.message));
        assert_int_not_equal(error.message[0], '\0');
    }
    rig_close(&r);
}

/* -- sleeping -------------------------------------------------------------------------------------------- */

static void test_a_wait_for_all_is_woken_once_by_the_last(void **state)
{
    enum { POINTS = 30 };
    gpusync_timeline *timelines[3];
    gpusync_point points[POINTS];
    void *buffers[POINTS];
    many_job job;
    sleep_log log;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    for (i = 0; i < 3; i++) timelines[i] = timeline_at(r.device, 0);
    for (i = 0; i < POINTS; i++) {
        if (i % 2) points[i] = gpusync_at_value(timelines[i % 3], (uint64_t)i);
        else points[i] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffers[i]));
    }
    many_job_start(&job, points, POINTS, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    await_sleepers(r.device, POINTS);
    for (i = 0; i < POINTS; i += 2) softmetal_finish(buffers[i]);
    for (i = 1; i < POINTS; i += 2) {
        assert_int_equal(counted(&log.unparks), 0);
        assert_ok(gpusync_timeline_signal(timelines[i % 3], (uint64_t)i));
    }
    assert_int_equal(counted(&log.unparks), 1);
    assert_ok(many_job_join(&job));
    assert_int_equal(job.which, POINTS);
    assert_true(log.parks <= 1);
    assert_int_equal(device_stats(&r).waits_sleep, 1);
    for (i = 0; i < 3; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    close_rig(&r);
}

static void test_a_wait_for_any_is_woken_by_the_first(void **state)
{
    enum { POINTS = 20 };
    gpusync_timeline *timelines[POINTS];
    gpusync_point points[POINTS + 1];
    many_job job;
    sleep_log log;
    void *buffer;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    for (i = 0; i < POINTS; i++) {
        timelines[i] = timeline_at(r.device, 0);
        points[i] = gpusync_at_value(timelines[i], 2);
    }
    points[POINTS] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffer));
    for (i = POINTS - 1; i >= 0; i--) {
        many_job_start(&job, points, POINTS + 1, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
        await_sleepers(r.device, POINTS + 1);
        log.unparks = 0;
        assert_ok(gpusync_timeline_signal(timelines[i], 1));
        assert_int_equal(counted(&log.unparks), 0);
        assert_ok(gpusync_timeline_signal(timelines[i], 2));
        assert_int_equal(counted(&log.unparks), 1);
        assert_ok(many_job_join(&job));
        assert_int_equal(job.which, i);
        points[i] = gpusync_at_value(timelines[i], 1000);
    }
    many_job_start(&job, points, POINTS + 1, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
    await_sleepers(r.device, POINTS + 1);
    softmetal_finish(buffer);
    assert_ok(many_job_join(&job));
    assert_int_equal(job.which, POINTS);
    assert_false(a_wait_sleeps(&r));
    for (i = 0; i < POINTS; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    close_rig(&r);
}

static void test_a_timeout_leaves_no_watch_behind(void **state)
{
    static const uint64_t limits[] = {0, 1, MS(1)};
    gpusync_timeline *made, *imported;
    gpusync_point points[20];
    sleep_log log;
    void *event, *buffer;
    size_t i, count;
    int how;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    made = timeline_at(r.device, 0);
    imported = timeline_over(r.device, &event);
    points[0] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffer));
    points[1] = gpusync_at_ticket(r.queue, GPUSYNC_EVERYTHING);
    for (i = 2; i < 20; i++) points[i] = gpusync_at_value(i % 2 ? made : imported, i);
    for (count = 10; count <= 20; count += 10)
        for (how = 0; how < 2; how++)
            for (i = 0; i < 3; i++) {
                uint64_t begun = gpusync_now_ns(), unmet = device_stats(&r).waits_unmet;
                expect_many(points, count, (gpusync_wait_for)how, limits[i], GPUSYNC_TIMEOUT, count);
                assert_true(gpusync_now_ns() - begun >= limits[i]);
                assert_int_equal(device_stats(&r).waits_unmet, unmet + 1);
                assert_false(a_wait_sleeps(&r));
            }
    log.unparks = 0;
    assert_ok(gpusync_timeline_signal(made, 100));
    metal_event_signal(event, 100);
    softmetal_finish(buffer);
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(counted(&log.unparks), 0);
    assert_ok(gpusync_timeline_destroy(made));
    assert_ok(gpusync_timeline_destroy(imported));
    metal_release(event);
    close_rig(&r);
}

static void test_what_ends_at_the_deadline_has_ended(void **state)
{
    gpusync_timeline *timeline;
    gpusync_point points[2];
    gpusync_result result;
    sleep_log log;
    void *buffer, *later;
    size_t which = 99;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    timeline = timeline_at(r.device, 1);
    points[0] = gpusync_at_value(timeline, 1);
    points[1] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffer));
    log.complete_at_limit = buffer;
    do result = gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, MS(5), NULL, NULL);
    while (log.complete_at_limit); /* it did not even come to park: again */
    assert_ok(result);
    points[1] = gpusync_at_ticket(r.queue, commit_empty(&r, &later));
    points[0] = gpusync_at_value(timeline, 2);
    log.complete_at_limit = later;
    do result = gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, MS(5), NULL, &which);
    while (log.complete_at_limit);
    assert_ok(result);
    assert_int_equal(which, 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    softmetal_finish(buffer);
    softmetal_finish(later);
    close_rig(&r);
}

static void test_many_waits_that_share_points_are_all_woken(void **state)
{
    enum { WAITERS = 24, POINTS = 6 };
    gpusync_timeline *timelines[POINTS];
    gpusync_point points[POINTS];
    many_job jobs[WAITERS];
    sleep_log log;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    for (i = 0; i < POINTS; i++) {
        timelines[i] = timeline_at(r.device, 0);
        points[i] = gpusync_at_value(timelines[i], 1);
    }
    for (i = 0; i < WAITERS; i++) many_job_start(&jobs[i], points, POINTS, (gpusync_wait_for)(i % 2), GPUSYNC_FOREVER);
    await_sleepers(r.device, WAITERS * POINTS);
    assert_ok(gpusync_timeline_signal(timelines[3], 1));
    for (i = 1; i < WAITERS; i += 2) {
        assert_ok(many_job_join(&jobs[i]));
        assert_int_equal(jobs[i].which, 3);
    }
    assert_int_equal(counted(&log.unparks), WAITERS / 2);
    for (i = 0; i < POINTS; i++)
        if (i != 3) assert_ok(gpusync_timeline_signal(timelines[i], 1));
    for (i = 0; i < WAITERS; i += 2) assert_ok(many_job_join(&jobs[i]));
    assert_int_equal(counted(&log.unparks), WAITERS);
    for (i = 0; i < POINTS; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    close_rig(&r);
}

static void test_signals_of_others_wake_waits_for_many(void **state)
{
    gpusync_timeline *timelines[3];
    gpusync_point points[3];
    void *events[3];
    many_job all, any;
    sleep_log log;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    for (i = 0; i < 3; i++) {
        timelines[i] = timeline_over(r.device, &events[i]);
        points[i] = gpusync_at_value(timelines[i], 5);
    }
    many_job_start(&all, points, 3, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    many_job_start(&any, points, 3, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
    await_sleepers(r.device, 6);
    metal_event_signal(events[1], 6);
    assert_ok(many_job_join(&any));
    assert_int_equal(any.which, 1);
    metal_event_signal(events[0], 5);
    metal_event_signal(events[2], 5);
    assert_ok(many_job_join(&all));
    for (i = 0; i < 3; i++) {
        assert_ok(gpusync_timeline_destroy(timelines[i]));
        metal_release(events[i]);
    }
    close_rig(&r);
}

static void test_real_work_on_several_queues_is_waited_for(void **state)
{
    enum { QUEUES = 4, ROUNDS = 20 };
    gpusync_queue *queues[QUEUES];
    gpusync_point points[QUEUES];
    int round, i;
    rig r;
    (void)state;
    open_rig_spinning(&r, SOFTMETAL_REAL, NULL, NULL, 0);
    for (i = 0; i < QUEUES; i++) queues[i] = queue_new(r.device);
    for (round = 0; round < ROUNDS; round++) {
        size_t which;
        for (i = 0; i < QUEUES; i++) {
            void *buffer = buffer_of(queues[i]);
            softmetal_set_duration(buffer, (uint64_t)(1 + (i + round) % QUEUES) * 200000);
            points[i] = gpusync_at_ticket(queues[i], commit_to(queues[i], buffer));
        }
        assert_ok(gpusync_wait_many(points, QUEUES, GPUSYNC_WAIT_ANY, SECONDS(10), NULL, &which));
        assert_in_range(which, 0, QUEUES - 1);
        assert_ok(gpusync_wait(queues[which], points[which].ticket, 0));
        assert_ok(gpusync_wait_many(points, QUEUES, GPUSYNC_WAIT_ALL, SECONDS(10), NULL, &which));
        for (i = 0; i < QUEUES; i++) assert_ok(gpusync_wait(queues[i], points[i].ticket, 0));
    }
    for (i = 0; i < QUEUES; i++) assert_ok(gpusync_queue_destroy(queues[i]));
    close_rig(&r);
}

static struct {
    gpusync_point points[2];
    gpusync_result all, any, polled;
} in_log;

static void wait_in_log(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
    in_log.all = gpusync_wait_many(in_log.points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL);
    in_log.any = gpusync_wait_many(in_log.points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, NULL, NULL);
    in_log.polled = gpusync_wait_many(in_log.points, 1, GPUSYNC_WAIT_ANY, 0, NULL, NULL);
}

static void test_inside_the_log_hook_it_says_that_it_would_have_to_wait(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_timeline *timeline;
    void *buffer;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.log = wait_in_log;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    timeline = timeline_at(r.device, 1);
    in_log.points[0] = gpusync_at_value(timeline, 2);
    in_log.points[1] = gpusync_at_value(timeline, 1);
    commit_empty(&r, &buffer);
    softmetal_fail(buffer, NULL, 1, NULL);
    softmetal_finish(buffer);
    assert_result(in_log.all, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(in_log.any);
    assert_result(in_log.polled, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

/* -- many ------------------------------------------------------------------------------------------------ */

static void test_more_than_16_points_take_memory_and_give_it_back(void **state)
{
    gpusync_point points[17];
    gpusync_timeline *timeline;
    long live, calls;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 1);
    for (i = 0; i < 17; i++) points[i] = gpusync_at_value(timeline, 1);
    live = r.memory.live;
    calls = r.memory.calls;
    expect_many(points, 17, GPUSYNC_WAIT_ALL, 0, GPUSYNC_OK, 17);
    assert_int_equal(r.memory.calls, calls); /* of what is done a look tells */
    points[16] = gpusync_at_value(timeline, 2);
    expect_many(points, 17, GPUSYNC_WAIT_ALL, 0, GPUSYNC_TIMEOUT, 17);
    assert_int_equal(r.memory.live, live);
    assert_int_equal(r.memory.calls, calls + 1);
    r.memory.fail_at = 1;
    expect_many(points, 17, GPUSYNC_WAIT_ALL, 0, GPUSYNC_ERROR_OUT_OF_MEMORY, 17);
    r.memory.fail_at = 2; /* the one to sleep with */
    expect_many(points, 17, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_ERROR_OUT_OF_MEMORY, 17);
    r.memory.fail_at = 1;
    expect_many(points, 16, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_OK, 16);
    expect_many(points + 1, 16, GPUSYNC_WAIT_ALL, 0, GPUSYNC_TIMEOUT, 16); /* nor does this take any */
    r.memory.fail_at = 0;
    assert_int_equal(r.memory.live, live);
    must_return_within(20); /* else something is still inside of it */
    assert_ok(gpusync_timeline_destroy(timeline));
    has_returned();
    close_rig(&r);
}

#define MOST 4096

/* Messages that one look at so many points costs: values, and tickets of a queue that has room for them. Tickets of
   Metal 4 cost none. */
static void test_the_messages_for_4096_points_are_4096_times_those_for_one(void **state)
{
    static const size_t counts[] = {1, 16, 64, 1024, MOST};
    gpusync_point *points = (gpusync_point *)calloc(MOST, sizeof *points);
    void **buffers = (void **)calloc(MOST, sizeof *buffers), *event;
    gpusync_timeline *timeline;
    size_t i;
    rig r;
    (void)state;
    open_rig_spinning(&r, SOFTMETAL_MANUAL, NULL, NULL, MOST + 8);
    timeline = timeline_over(r.device, &event);
    for (i = 0; i < MOST; i++) points[i] = i % 2 ? gpusync_at_value(timeline, i) : gpusync_at_ticket(r.queue, commit_empty(&r, &buffers[i]));
    for (i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint64_t before = softmetal_thread_messages(), spent;
        expect_many(points, counts[i], GPUSYNC_WAIT_ALL, 0, GPUSYNC_TIMEOUT, counts[i]);
        spent = softmetal_thread_messages() - before;
        assert_int_equal(spent, metal4_run() ? counts[i] / 2 : counts[i]);
        before = softmetal_thread_messages();
        expect_many(points, counts[i], GPUSYNC_WAIT_ANY, 0, GPUSYNC_TIMEOUT, counts[i]);
        assert_int_equal(softmetal_thread_messages() - before, spent);
    }
    for (i = 0; i < MOST; i += 2) softmetal_finish(buffers[i]);
    metal_event_signal(event, MOST);
    {
        uint64_t before = softmetal_thread_messages();
        expect_many(points, MOST, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, GPUSYNC_OK, MOST);
        assert_in_range(softmetal_thread_messages() - before, 1, MOST);
    }
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
    free(points);
    free(buffers);
}

static uint64_t thread_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The least that so many points cost, each. */
static uint64_t cost_per_point(const gpusync_point *points, size_t count, gpusync_wait_for how)
{
    uint64_t least = UINT64_MAX;
    int i;
    for (i = 0; i < 7; i++) {
        uint64_t begun = thread_time(), spent;
        expect_many(points, count, how, 1, GPUSYNC_TIMEOUT, count); /* looks, lists itself, sleeps, takes it all back */
        spent = thread_time() - begun;
        if (spent < least) least = spent;
    }
    return least / count + 1;
}

static void test_the_time_for_many_points_grows_with_their_number_and_not_faster(void **state)
{
    enum { FEW = 256, LOT = 16384 };
    gpusync_point *points = (gpusync_point *)calloc(LOT, sizeof *points);
    gpusync_timeline *timelines[4];
    size_t i;
    int how;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (i = 0; i < 4; i++) timelines[i] = timeline_at(r.device, 0);
    for (i = 0; i < LOT; i++) points[i] = gpusync_at_value(timelines[i % 4], i + 1);
    for (how = 0; how < 2; how++) {
        uint64_t few = cost_per_point(points, FEW, (gpusync_wait_for)how);
        uint64_t lot = cost_per_point(points, LOT, (gpusync_wait_for)how);
        assert_true(lot < 12 * few); /* squares would make it 64 times */
    }
    for (i = 0; i < 4; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    close_rig(&r);
    free(points);
}

/* -- compared with a model ------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

#define MODEL_TIMELINES 5
#define MODEL_TICKETS 12
enum { PENDING, DONE, BAD };

typedef struct model {
    gpusync_timeline *timelines[MODEL_TIMELINES];
    uint64_t values[MODEL_TIMELINES];
    gpusync_result failures[MODEL_TIMELINES];
    void *buffers[MODEL_TICKETS]; /* of tickets 1, 2, ... */
    int states[MODEL_TICKETS];
    uint64_t seed;
} model;

/* NOT_READY: goes on. */
static gpusync_result model_says(const model *m, const gpusync_point *point)
{
    int i;
    if (point->timeline) {
        for (i = 0; m->timelines[i] != point->timeline;) i++;
        if (m->failures[i]) return m->failures[i];
        return m->values[i] >= point->value ? GPUSYNC_OK : GPUSYNC_NOT_READY;
    }
    if (point->ticket == 0 || m->states[point->ticket - 1] == DONE) return GPUSYNC_OK;
    return m->states[point->ticket - 1] == BAD ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_NOT_READY;
}

static gpusync_result model_waits(const model *m, const gpusync_point *points, size_t count, gpusync_wait_for how,
                                  size_t *which)
{
    bool waiting = false;
    size_t i;
    *which = count;
    for (i = 0; i < count; i++) {
        gpusync_result one = model_says(m, &points[i]);
        if (one == GPUSYNC_NOT_READY) waiting = true;
        if (one == GPUSYNC_NOT_READY || (how == GPUSYNC_WAIT_ALL && one == GPUSYNC_OK)) continue;
        *which = i;
        return one;
    }
    return waiting ? GPUSYNC_TIMEOUT : GPUSYNC_OK;
}

static void model_step(model *m)
{
    size_t i = next_random(&m->seed) % MODEL_TIMELINES;
    uint64_t value = next_random(&m->seed) % 20;
    gpusync_error reason;
    switch (next_random(&m->seed) % 8) {
    case 0:
        memset(&reason, 0, sizeof reason);
        reason.result = next_random(&m->seed) % 2 ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_ERROR_EXECUTION;
        if (next_random(&m->seed) % 4) break; /* seldom */
        assert_result(gpusync_timeline_fail(m->timelines[i], &reason), m->failures[i]);
        if (!m->failures[i]) m->failures[i] = reason.result;
        break;
    case 1:
    case 2:
        i = next_random(&m->seed) % MODEL_TICKETS;
        if (m->states[i] != PENDING) break;
        if (next_random(&m->seed) % 4 == 0) softmetal_fail(m->buffers[i], NULL, 3, NULL);
        show_end(m->buffers[i]);
        m->states[i] = status_of(m->buffers[i]) == 5 ? BAD : DONE;
        break;
    default:
        if (m->failures[i]) {
            assert_result(gpusync_timeline_signal(m->timelines[i], value), m->failures[i]);
        } else if (value > m->values[i]) {
            assert_ok(gpusync_timeline_signal(m->timelines[i], value));
            m->values[i] = value;
        } else {
            assert_result(gpusync_timeline_signal(m->timelines[i], value), GPUSYNC_ERROR_NOT_RISING);
        }
    }
}

static void model_ask(model *m, rig *r)
{
    gpusync_point points[40];
    size_t count = 1 + next_random(&m->seed) % 40, expected, i;
    gpusync_wait_for how = (gpusync_wait_for)(next_random(&m->seed) % 2);
    uint64_t timeout_ns = next_random(&m->seed) % 3; /* sleeps, now and then */
    gpusync_result result;
    if (next_random(&m->seed) % 2) count = 1 + count % 4;
    for (i = 0; i < count; i++) {
        if (next_random(&m->seed) % 3 == 0)
            points[i] = gpusync_at_ticket(r->queue, next_random(&m->seed) % (MODEL_TICKETS + 1));
        else
            points[i] = gpusync_at_value(m->timelines[next_random(&m->seed) % MODEL_TIMELINES], next_random(&m->seed) % 20);
    }
    result = model_waits(m, points, count, how, &expected);
    if (result != GPUSYNC_TIMEOUT && next_random(&m->seed) % 2) timeout_ns = GPUSYNC_FOREVER;
    if (result != GPUSYNC_TIMEOUT && how == GPUSYNC_WAIT_ALL)
        for (i = 0; i < count; i++)
            if (model_says(m, &points[i]) == GPUSYNC_NOT_READY) timeout_ns = 0; /* a failure waits for the others */
    if (how == GPUSYNC_WAIT_ANY && result != GPUSYNC_TIMEOUT) {
        /* what has ended, but is not known yet, may be passed over: look at it first */
        for (i = 0; i < count; i++)
            if (points[i].queue) (void)!gpusync_poll(points[i].queue, points[i].ticket);
    }
    expect_many(points, count, how, timeout_ns, result, expected);
}

static void test_every_answer_is_that_of_a_simple_model(void **state)
{
    uint64_t seed;
    (void)state;
    for (seed = 0; seed < 150; seed++) {
        model m;
        int i;
        rig r;
        open_rig(&r, SOFTMETAL_MANUAL, NULL);
        memset(&m, 0, sizeof m);
        m.seed = seed;
        for (i = 0; i < MODEL_TIMELINES; i++) m.timelines[i] = timeline_at(r.device, 0);
        for (i = 0; i < MODEL_TICKETS; i++) commit_empty(&r, &m.buffers[i]);
        for (i = 0; i < 60; i++) {
            model_step(&m);
            model_ask(&m, &r);
        }
        softmetal_finish_queue(r.metal_queue);
        for (i = 0; i < MODEL_TIMELINES; i++) assert_ok(gpusync_timeline_destroy(m.timelines[i]));
        close_rig(&r);
    }
}

/* -- many threads ---------------------------------------------------------------------------------------- */

#define CROWD_TIMELINES 4
#define CROWD_END 1000000

typedef struct crowd {
    gpusync_timeline *timelines[CROWD_TIMELINES];
    uint64_t begun[CROWD_TIMELINES];   /* the largest value that a thread has begun to signal */
    uint64_t reached[CROWD_TIMELINES]; /* the largest that is known to be reached */
    void *event; /* of the last timeline */
    int through; /* so many have done their part */
} crowd;

typedef struct member {
    crowd *c;
    uint64_t seed;
} member;

static void raise_to(uint64_t *mark, uint64_t value)
{
    uint64_t present = __atomic_load_n(mark, __ATOMIC_SEQ_CST);
    while (present < value &&
           !__atomic_compare_exchange_n(mark, &present, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

static void crowd_signal(member *me)
{
    size_t i = next_random(&me->seed) % CROWD_TIMELINES;
    uint64_t value = __atomic_load_n(&me->c->reached[i], __ATOMIC_SEQ_CST) + next_random(&me->seed) % 3;
    gpusync_result result;
    raise_to(&me->c->begun[i], value);
    if (i == CROWD_TIMELINES - 1 && next_random(&me->seed) % 2) {
        metal_event_signal(me->c->event, value);
    } else {
        result = gpusync_timeline_signal(me->c->timelines[i], value);
        assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_NOT_RISING);
    }
    raise_to(&me->c->reached[i], value);
}

static void crowd_wait(member *me)
{
    size_t count = 1 + next_random(&me->seed) % 20, which = 99, i, known = 0, at[20];
    gpusync_wait_for how = (gpusync_wait_for)(next_random(&me->seed) % 2);
    gpusync_point points[20];
    gpusync_result result;
    for (i = 0; i < count; i++) {
        uint64_t reached;
        at[i] = next_random(&me->seed) % CROWD_TIMELINES;
        reached = __atomic_load_n(&me->c->reached[at[i]], __ATOMIC_SEQ_CST);
        points[i] = gpusync_at_value(me->c->timelines[at[i]], reached + next_random(&me->seed) % 3);
        if (points[i].value <= reached) known++;
    }
    result = gpusync_wait_many(points, count, how, next_random(&me->seed) % 100000, NULL, &which);
    if (result == GPUSYNC_TIMEOUT) {
        assert_int_equal(which, count);
        assert_true(how == GPUSYNC_WAIT_ALL ? known < count : known == 0);
        return;
    }
    assert_ok(result);
    for (i = 0; i < count; i++) {
        bool sure = __atomic_load_n(&me->c->begun[at[i]], __ATOMIC_SEQ_CST) >= points[i].value;
        if (how == GPUSYNC_WAIT_ALL || i == which) assert_true(sure);
    }
    assert_true(how == GPUSYNC_WAIT_ALL ? which == count : which < count);
}

static void *member_body(void *argument)
{
    member *me = (member *)argument;
    gpusync_point points[CROWD_TIMELINES];
    size_t i, which;
    for (i = 0; i < 250; i++) {
        if (next_random(&me->seed) % 2) crowd_signal(me);
        else crowd_wait(me);
    }
    for (i = 0; i < CROWD_TIMELINES; i++) points[i] = gpusync_at_value(me->c->timelines[i], CROWD_END);
    __atomic_fetch_add(&me->c->through, 1, __ATOMIC_SEQ_CST);
    assert_ok(gpusync_wait_many(points, CROWD_TIMELINES, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which));
    assert_int_equal(which, CROWD_TIMELINES);
    return NULL;
}

static void test_eight_threads_with_random_signals_and_waits_agree_with_what_was_signalled(void **state)
{
    enum { THREADS = 8 };
    uint64_t round;
    (void)state;
    for (round = 0; round < 4; round++) {
        member members[THREADS];
        pthread_t threads[THREADS];
        sleep_log log;
        crowd c;
        size_t i;
        rig r;
        open_rig(&r, SOFTMETAL_MANUAL, &log);
        log.stubborn = true; /* a lost wake-up would hang */
        memset(&c, 0, sizeof c);
        for (i = 0; i < CROWD_TIMELINES - 1; i++) c.timelines[i] = timeline_at(r.device, 0);
        c.timelines[i] = timeline_over(r.device, &c.event);
        for (i = 0; i < THREADS; i++) {
            members[i].c = &c;
            members[i].seed = round * THREADS + i;
            threads[i] = start(member_body, &members[i]);
        }
        while (__atomic_load_n(&c.through, __ATOMIC_SEQ_CST) < THREADS) sched_yield();
        await_sleepers(r.device, THREADS * CROWD_TIMELINES);
        for (i = 0; i < CROWD_TIMELINES - 1; i++) assert_ok(gpusync_timeline_signal(c.timelines[i], CROWD_END));
        metal_event_signal(c.event, CROWD_END);
        for (i = 0; i < THREADS; i++) join(threads[i]);
        for (i = 0; i < CROWD_TIMELINES; i++) assert_ok(gpusync_timeline_destroy(c.timelines[i]));
        metal_release(c.event);
        close_rig(&r);
    }
}

/* -- every step fails in turn ---------------------------------------------------------------------------- */

static void wait_with_faults(rig *r, gpusync_timeline *const *timelines)
{
    gpusync_point points[20];
    gpusync_result result;
    size_t i, count, which;
    for (i = 0; i < 20; i++) points[i] = gpusync_at_value(timelines[i % 2], 1 + i % 3);
    for (count = 4; count <= 20; count += 16) {
        result = gpusync_wait_many(points, count, GPUSYNC_WAIT_ALL, 1, NULL, &which);
        assert_true(result == GPUSYNC_TIMEOUT || result == GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_int_equal(which, count);
        result = gpusync_wait_many(points, count, GPUSYNC_WAIT_ANY, 1, NULL, &which);
        assert_true(result == GPUSYNC_TIMEOUT || result == GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_false(a_wait_sleeps(r));
    }
    assert_ok(gpusync_timeline_signal(timelines[0], 3));
    assert_ok(gpusync_timeline_signal(timelines[1], 3));
    assert_ok(gpusync_wait_many(points, 16, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
    result = gpusync_wait_many(points, 20, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL);
    assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_OUT_OF_MEMORY);
}

static void test_whatever_memory_is_missing_nothing_is_lost(void **state)
{
    int after, step;
    (void)state;
    for (after = 0; after < 2; after++)
        for (step = 1; step < 10; step++) {
            gpusync_timeline *timelines[2];
            void *event;
            rig r;
            open_rig(&r, SOFTMETAL_MANUAL, NULL);
            timelines[0] = timeline_at(r.device, 0);
            timelines[1] = timeline_over(r.device, &event);
            r.memory.fail_after = after;
            r.memory.fail_at = step;
            wait_with_faults(&r, timelines);
            r.memory.fail_at = 0;
            must_return_within(20); /* else something is still inside of them */
            assert_ok(gpusync_timeline_destroy(timelines[0]));
            assert_ok(gpusync_timeline_destroy(timelines[1]));
            assert_ok(gpusync_queue_destroy(r.queue));
            has_returned();
            r.queue = NULL;
            metal_release(event);
            close_rig(&r);
        }
}

/* -- all, or a failure ----------------------------------------------------------------------------- */

/* A failure ends it: one that is there, or one that comes while it sleeps; what ends well does not wake it. */
static void test_a_failure_ends_a_wait_for_all_or_a_failure(void **state)
{
    int late, by_ticket;
    (void)state;
    for (late = 0; late < 2; late++)
        for (by_ticket = 0; by_ticket < 2; by_ticket++) {
            gpusync_timeline *good, *bad, *never;
            gpusync_point points[3];
            gpusync_error reason;
            sleep_log log;
            many_job job;
            void *buffer;
            rig r;
            open_rig(&r, SOFTMETAL_MANUAL, &log);
            good = timeline_at(r.device, 0);
            bad = timeline_at(r.device, 0);
            never = timeline_at(r.device, 0);
            commit_empty(&r, &buffer);
            softmetal_fail(buffer, NULL, 3, "killed");
            points[0] = gpusync_at_value(never, 1);
            points[1] = by_ticket ? gpusync_at_ticket(r.queue, 1) : gpusync_at_value(bad, 1);
            points[2] = gpusync_at_value(good, 1);
            memset(&job, 0, sizeof job);
            job.points = points;
            job.count = 3;
            job.how = GPUSYNC_WAIT_ALL_OR_FAILURE;
            job.timeout_ns = GPUSYNC_FOREVER;
            if (late) {
                job.thread = start(wait_and_see, &job);
                await_sleepers(r.device, 3);
            }
            assert_ok(gpusync_timeline_signal(good, 1));
            if (late) assert_int_equal(log.unparks, 0);
            memset(&reason, 0, sizeof reason);
            reason.result = GPUSYNC_ERROR_EXECUTION;
            softmetal_finish(buffer);
            assert_ok(gpusync_timeline_fail(bad, &reason));
            if (!late) job.thread = start(wait_and_see, &job);
            join(job.thread);
            assert_result(job.result, GPUSYNC_ERROR_EXECUTION);
            assert_int_equal(job.which, 1);
            expect_many(points, 1, GPUSYNC_WAIT_ALL_OR_FAILURE, 0, GPUSYNC_TIMEOUT, 1);
            expect_many(points + 2, 1, GPUSYNC_WAIT_ALL_OR_FAILURE, 0, GPUSYNC_OK, 1);
            expect_many(points, 2, GPUSYNC_WAIT_ALL_OR_FAILURE, 0, GPUSYNC_ERROR_EXECUTION, 1);
            assert_ok(gpusync_timeline_destroy(good));
            assert_ok(gpusync_timeline_destroy(bad));
            assert_ok(gpusync_timeline_destroy(never));
            close_rig(&r);
        }
}

/* Work of the queue has failed before, or none has. What ends well now keeps the sleeper asleep either way; and so does
   everything, of a queue on which nothing has failed. */
static void test_what_ends_well_keeps_a_wait_for_all_or_a_failure_asleep(void **state)
{
    int way;
    (void)state;
    for (way = 0; way < 3; way++) {
        bool before = way == 1, everything = way == 2;
        gpusync_timeline *timeline;
        gpusync_point points[2];
        sleep_log log;
        many_job job;
        void *buffer;
        rig r;
        open_rig(&r, SOFTMETAL_MANUAL, &log);
        timeline = timeline_at(r.device, 0);
        if (before) {
            commit_empty(&r, &buffer);
            softmetal_fail(buffer, NULL, 3, "killed");
            softmetal_finish(buffer);
        }
        points[0] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffer));
        if (everything) points[0].ticket = GPUSYNC_EVERYTHING;
        points[1] = gpusync_at_value(timeline, 1);
        many_job_start(&job, points, 2, GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_FOREVER);
        await_sleepers(r.device, 2);
        softmetal_finish(buffer);
        assert_int_equal(log.unparks, 0);
        assert_ok(gpusync_timeline_signal(timeline, 1));
        assert_ok(many_job_join(&job));
        assert_int_equal(job.which, 2);
        assert_int_equal(log.unparks, 1);
        assert_ok(gpusync_timeline_destroy(timeline));
        close_rig(&r);
    }
}

/* The second of three points has ended before the thread sleeps. The third still wakes it: when its work fails, though that
   of the first goes on; and when its queue goes, which would wait for ever for a wait that it has not told. */
static void test_what_stands_behind_a_point_that_has_ended_wakes_the_sleeper(void **state)
{
    int goes;
    (void)state;
    for (goes = 0; goes < 2; goes++) {
        gpusync_queue *other;
        gpusync_point points[3];
        void *buffers[3], *metal;
        sleep_log log;
        many_job job;
        bool woken;
        rig r;
        open_rig(&r, SOFTMETAL_MANUAL, &log);
        other = queue_new(r.device);
        metal = metal_retain(gpusync_queue_metal(other));
        points[0] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffers[0]));
        points[1] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffers[1]));
        points[2] = gpusync_at_ticket(other, commit_empty_to(other, &buffers[2]));
        softmetal_finish(buffers[1]);
        many_job_start(&job, points, 3, goes ? GPUSYNC_WAIT_ALL : GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_FOREVER);
        while (counted(&log.parks) == 0) sched_yield(); /* all are listed that will be */
        if (goes) {
            must_return_within(20);
            assert_ok(gpusync_queue_destroy_now(other));
            has_returned();
        } else {
            softmetal_fail(buffers[2], NULL, 3, "killed");
        }
        softmetal_finish_queue(metal);
        woken = counted(&log.unparks) > 0;
        if (!woken) softmetal_finish(buffers[0]);
        assert_result(many_job_join(&job), goes ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_ERROR_EXECUTION);
        assert_true(woken); /* and not by the first, which still goes on */
        assert_int_equal(job.which, 2);
        softmetal_finish(buffers[0]);
        if (!goes) assert_ok(gpusync_queue_destroy(other));
        metal_release(metal);
        close_rig(&r);
    }
}

/* -- options ----------------------------------------------------------------------------------------- */

/* The error is that of the point that `which` names, whatever failed after it, or before. */
static void test_the_error_is_that_of_the_point_that_is_named(void **state)
{
    static const gpusync_wait_for hows[] = {GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ANY, GPUSYNC_WAIT_ALL_OR_FAILURE};
    size_t k;
    int turned;
    (void)state;
    for (k = 0; k < 3; k++)
        for (turned = 0; turned < 2; turned++) {
            gpusync_wait_options options;
            gpusync_point points[2];
            gpusync_error error;
            void *buffers[2];
            size_t which;
            rig r;
            int i;
            open_rig(&r, SOFTMETAL_MANUAL, NULL);
            for (i = 0; i < 2; i++) {
                points[turned ? 1 - i : i] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffers[i]));
                softmetal_fail(buffers[i], NULL, 3 + i, "killed");
            }
            for (i = 0; i < 2; i++) softmetal_finish(buffers[i]);
            memset(&options, 0, sizeof options);
            options.error = &error;
            assert_result(gpusync_wait_many(points, 2, hows[k], 0, &options, &which), GPUSYNC_ERROR_EXECUTION);
            assert_int_equal(which, 0);
            assert_int_equal(error.ticket, points[0].ticket);
            assert_int_equal(error.code, turned ? 4 : 3);
            close_rig(&r);
        }
}

static void test_the_spin_is_that_of_the_options(void **state)
{
    static const gpusync_spin yields = {0, 7, 0, false};
    gpusync_wait_options options;
    gpusync_timeline *timeline;
    gpusync_point points[20];
    sleep_log log;
    size_t i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    timeline = timeline_at(r.device, 0);
    for (i = 0; i < 20; i++) points[i] = gpusync_at_value(timeline, 1);
    memset(&options, 0, sizeof options);
    options.spin = &yields;
    assert_result(gpusync_wait_many(points, 20, GPUSYNC_WAIT_ALL, 1, NULL, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(log.yields, 0);
    assert_result(gpusync_wait_many(points, 20, GPUSYNC_WAIT_ALL, SECONDS(1) / 2, &options, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(log.yields, 7);
    options.blocking = true; /* no effect */
    assert_result(gpusync_wait_many(points, 20, GPUSYNC_WAIT_ALL, SECONDS(1) / 2, &options, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait_many(points, 1, GPUSYNC_WAIT_ALL, SECONDS(1) / 2, &options, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(log.yields, 21);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

/* The device's spin is for a few points. Zeros in the options mean: sleep at once. */
static void test_a_wait_for_many_sleeps_at_once_beyond_16_points_or_where_the_options_say_so(void **state)
{
    static const gpusync_spin yields = {0, 7, 0, false};
    static const gpusync_wait_options sleepy = {.spin = &no_spin};
    gpusync_timeline *timeline;
    gpusync_point points[17];
    sleep_log log;
    size_t i;
    rig r;
    (void)state;
    open_rig_spinning(&r, SOFTMETAL_MANUAL, &log, &yields, 0);
    timeline = timeline_at(r.device, 0);
    for (i = 0; i < 17; i++) points[i] = gpusync_at_value(timeline, 1);
    assert_result(gpusync_wait_many(points, 17, GPUSYNC_WAIT_ALL, SECONDS(1) / 2, NULL, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(log.yields, 0);
    assert_result(gpusync_wait_many(points, 16, GPUSYNC_WAIT_ALL, SECONDS(1) / 2, NULL, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(log.yields, 7);
    assert_result(gpusync_wait_many(points, 16, GPUSYNC_WAIT_ALL, SECONDS(1) / 2, &sleepy, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(log.yields, 7);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void *wait_blocking(void *argument)
{
    many_job *job = (many_job *)argument;
    static const gpusync_wait_options options = {.blocking = true};
    job->result = gpusync_wait_many(job->points, job->count, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, &options, &job->which);
    return NULL;
}

/* Inside Metal it could not be told of the second point. */
static void test_a_wait_for_many_never_waits_inside_metal(void **state)
{
    gpusync_timeline *timeline;
    gpusync_point points[2];
    many_job job;
    void *buffer;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 0);
    points[0] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffer));
    points[1] = gpusync_at_value(timeline, 1);
    memset(&job, 0, sizeof job);
    job.points = points;
    job.count = 2;
    must_return_within(20);
    job.thread = start(wait_blocking, &job);
    await_sleepers(r.device, 2);
    assert_ok(gpusync_timeline_signal(timeline, 1));
    assert_ok(many_job_join(&job));
    has_returned();
    assert_int_equal(job.which, 1);
    assert_int_equal(softmetal_message_count("waitUntilCompleted"), 0);
    softmetal_finish(buffer);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

/* Everything has ended, the last of it well: an earlier failure ends the wait all the same. */
static void test_a_failure_among_everything_ends_a_wait_for_all_or_a_failure(void **state)
{
    gpusync_timeline *never;
    gpusync_point points[2];
    void *buffers[2];
    many_job job;
    rig r;
    int i;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    never = timeline_at(r.device, 0);
    for (i = 0; i < 2; i++) commit_empty(&r, &buffers[i]);
    softmetal_fail(buffers[0], NULL, 3, "killed");
    points[0] = gpusync_at_ticket(r.queue, GPUSYNC_EVERYTHING);
    points[1] = gpusync_at_value(never, 1);
    memset(&job, 0, sizeof job);
    job.points = points;
    job.count = 2;
    job.how = GPUSYNC_WAIT_ALL_OR_FAILURE;
    job.timeout_ns = GPUSYNC_FOREVER;
    job.thread = start(wait_and_see, &job);
    await_sleepers(r.device, 2);
    for (i = 0; i < 2; i++) softmetal_finish(buffers[i]);
    join(job.thread);
    assert_result(job.result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(job.which, 0);
    assert_ok(gpusync_timeline_destroy(never));
    close_rig(&r);
}

typedef struct told_job {
    gpusync_point points[2];
    gpusync_error error;
    gpusync_result result;
    size_t which;
} told_job;

static void *wait_and_be_told(void *argument)
{
    told_job *job = (told_job *)argument;
    gpusync_wait_options options;
    memset(&options, 0, sizeof options);
    options.error = &job->error;
    job->result = gpusync_wait_many(job->points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, &options, &job->which);
    return NULL;
}

/* The second has failed when the first goes: what is named is the first, and so is its error. */
static void test_the_error_of_a_point_that_went_is_not_that_of_another(void **state)
{
    gpusync_timeline *timeline;
    pthread_t thread;
    told_job job;
    void *buffer;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 0);
    memset(&job, 0, sizeof job);
    job.points[0] = gpusync_at_value(timeline, 1);
    job.points[1] = gpusync_at_ticket(r.queue, commit_empty(&r, &buffer));
    softmetal_fail(buffer, NULL, 3, "killed");
    softmetal_finish(buffer);
    thread = start(wait_and_be_told, &job);
    await_sleepers(r.device, 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    join(thread);
    assert_result(job.result, GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(job.which, 0);
    assert_int_equal(job.error.result, GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(job.error.ticket, 0);
    close_rig(&r);
}

/* -- all, and a timeline that fails while it spins --------------------------------------------------- */

static void *fail_at_the_gate(void *argument)
{
    void **timeline_and_gate = (void **)argument;
    gate_wait((gate *)timeline_and_gate[1]);
    assert_ok(gpusync_timeline_fail((gpusync_timeline *)timeline_and_gate[0], NULL));
    return NULL;
}

static void test_a_wait_for_all_sees_a_failure_in_the_middle_of_its_spin(void **state)
{
    gpusync_point points[3];
    gate together;
    rig r;
    unsigned round;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    memset(points, 0, sizeof points);
    gate_init(&together, 2);
    for (round = 0; round < 300; round++) {
        gpusync_timeline *timeline;
        void *argument[2];
        pthread_t thread;
        size_t which;
        assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
        points[0].queue = r.queue; /* reached, around one that is not */
        points[0].ticket = GPUSYNC_NO_TICKET;
        points[1].timeline = timeline;
        points[1].value = 1;
        points[2] = points[0];
        argument[0] = timeline;
        argument[1] = &together;
        thread = start(fail_at_the_gate, argument);
        gate_wait(&together);
        assert_result(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ALL, SECONDS(20), NULL, &which),
                      GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(which, 1);
        join(thread);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
    gate_destroy(&together);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_of_none_is_reached_and_any_of_none_makes_no_sense),
        cmocka_unit_test(test_points_that_are_none_are_refused_and_leave_the_others_alone),
        cmocka_unit_test(test_more_points_than_memory_has_room_for_are_refused),
        cmocka_unit_test(test_tickets_and_values_can_be_mixed),
        cmocka_unit_test(test_the_same_point_may_be_given_often),
        cmocka_unit_test(test_a_ticket_zero_is_always_reached),
        cmocka_unit_test(test_a_point_for_everything_is_what_was_committed_when_the_wait_began),
        cmocka_unit_test(test_points_that_are_all_reached_cost_no_message_and_up_to_16_no_memory),
        cmocka_unit_test(test_a_look_at_many_asks_for_those_alone_that_are_not_known_to_be_reached),
        cmocka_unit_test(test_a_failure_wins_over_a_timeout),
        cmocka_unit_test(test_at_the_limit_a_failure_among_everything_is_told_and_not_lost),
        cmocka_unit_test(test_a_wait_for_many_tells_the_failures_of_everything_that_it_names),
        cmocka_unit_test(test_waiting_for_all_goes_on_after_a_failure_until_the_rest_has_ended),
        cmocka_unit_test(test_destroying_one_of_many_ends_the_wait_at_once),
        cmocka_unit_test(test_destroying_one_that_is_reached_neither_hangs_nor_ends_the_wait_as_if_all_were),
        cmocka_unit_test(test_a_queue_whose_work_has_ended_goes_while_a_wait_for_many_sleeps_on),
        cmocka_unit_test(test_what_a_lost_device_gives_up_ends_a_wait_for_many),
        cmocka_unit_test(test_on_a_lost_device_a_wait_for_many_gets_what_still_ends),
        cmocka_unit_test(test_a_point_that_was_given_up_ends_a_wait_for_all),
        cmocka_unit_test(test_a_ticket_that_is_given_up_ends_a_wait_for_all_or_a_failure_at_once),
        cmocka_unit_test(test_the_loss_of_a_device_fills_the_error_of_every_wait_for_everything),
        cmocka_unit_test(test_a_wait_for_all_is_woken_once_by_the_last),
        cmocka_unit_test(test_a_wait_for_any_is_woken_by_the_first),
        cmocka_unit_test(test_a_timeout_leaves_no_watch_behind),
        cmocka_unit_test(test_what_ends_at_the_deadline_has_ended),
        cmocka_unit_test(test_many_waits_that_share_points_are_all_woken),
        cmocka_unit_test(test_signals_of_others_wake_waits_for_many),
        cmocka_unit_test(test_real_work_on_several_queues_is_waited_for),
        cmocka_unit_test(test_inside_the_log_hook_it_says_that_it_would_have_to_wait),
        cmocka_unit_test(test_more_than_16_points_take_memory_and_give_it_back),
        cmocka_unit_test(test_the_messages_for_4096_points_are_4096_times_those_for_one),
        cmocka_unit_test(test_the_time_for_many_points_grows_with_their_number_and_not_faster),
        cmocka_unit_test(test_every_answer_is_that_of_a_simple_model),
        cmocka_unit_test(test_eight_threads_with_random_signals_and_waits_agree_with_what_was_signalled),
        cmocka_unit_test(test_whatever_memory_is_missing_nothing_is_lost),
        cmocka_unit_test(test_a_failure_ends_a_wait_for_all_or_a_failure),
        cmocka_unit_test(test_what_ends_well_keeps_a_wait_for_all_or_a_failure_asleep),
        cmocka_unit_test(test_what_stands_behind_a_point_that_has_ended_wakes_the_sleeper),
        cmocka_unit_test(test_the_error_is_that_of_the_point_that_is_named),
        cmocka_unit_test(test_the_spin_is_that_of_the_options),
        cmocka_unit_test(test_a_wait_for_many_sleeps_at_once_beyond_16_points_or_where_the_options_say_so),
        cmocka_unit_test(test_a_wait_for_many_never_waits_inside_metal),
        cmocka_unit_test(test_a_failure_among_everything_ends_a_wait_for_all_or_a_failure),
        cmocka_unit_test(test_the_error_of_a_point_that_went_is_not_that_of_another),
        cmocka_unit_test(test_a_wait_for_all_sees_a_failure_in_the_middle_of_its_spin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
