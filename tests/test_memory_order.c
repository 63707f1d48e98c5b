/* test_memory_order.c - reads and writes that the library has to put in order, for ThreadSanitizer

   Threads learn of each other by relaxed atomics alone, which order nothing, or by the call that is to order them: so
   what the library leaves unordered is seen in every run. Without ThreadSanitizer these tests ask for little. */
#include "stage.h"

static unsigned relaxed(const unsigned *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }

static void set_relaxed(unsigned *flag, unsigned value) { __atomic_store_n(flag, value, __ATOMIC_RELAXED); }

static void await_relaxed(const unsigned *flag, unsigned value)
{
    while (relaxed(flag) < value) sched_yield();
}

/* -- a warm-up that begins, and the report ----------------------------------------------------------------- */

static struct {
    rig r;
    unsigned reports, over;
} reporting;

static void *report_all_the_time(void *unused)
{
    static char text[65536];
    (void)unused;
    while (!relaxed(&reporting.over)) {
        assert_true(gpusync_report(reporting.r.device, text, sizeof text) < sizeof text);
        set_relaxed(&reporting.reports, relaxed(&reporting.reports) + 1);
    }
    return NULL;
}

static void test_the_report_reads_a_warm_up_that_is_disabled(void **state)
{
    gpusync_warmup_desc desc;
    gpusync_warmup *warmup;
    pthread_t reporter;
    size_t done, total;
    (void)state;
    memset(&reporting, 0, sizeof reporting);
    memset(&desc, 0, sizeof desc);
    desc.disabled = true;
    rig_open(&reporting.r, SOFTMETAL_MANUAL);
    reporter = start(report_all_the_time, NULL);
    assert_ok(gpusync_warmup_start(reporting.r.device, &desc, &warmup));
    await_relaxed(&reporting.reports, relaxed(&reporting.reports) + 2); /* one of them has begun by now, and ended */
    assert_ok(gpusync_warmup_poll(warmup, &done, &total));
    assert_int_equal(total, 0);
    assert_ok(gpusync_warmup_destroy(warmup));
    set_relaxed(&reporting.over, 1);
    join(reporter);
    rig_close(&reporting.r);
}

/* -- a signal that is encoded, and the report -------------------------------------------------------------- */

static void test_the_report_reads_the_open_buffer_that_is_to_signal_a_value(void **state)
{
    void *open, *waiting;
    pthread_t reporter;
    gpusync_point wait;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    memset(&reporting, 0, sizeof reporting);
    reporting.r.device = s.device;
    assert_ok(gpusync_command_buffer(s.q[1], NULL, &open));
    wait = at(s.a, 1);
    assert_ok(make_behind(s.q[0], NULL, &wait, 1, &waiting));
    (void)commit_to(s.q[0], waiting); /* held: the report asks what is to signal the value */
    reporter = start(report_all_the_time, NULL);
    await_relaxed(&reporting.reports, 1);
    assert_ok(gpusync_encode_signal(s.q[1], open, wait));
    await_relaxed(&reporting.reports, relaxed(&reporting.reports) + 2); /* one of them begins behind the signal */
    set_relaxed(&reporting.over, 1);
    join(reporter);
    assert_ok(gpusync_command_buffer_discard(s.q[1], open));
    assert_ok(gpusync_cancel_held(s.q[0]));
    close_idle_stage(&s);
}

/* -- a commit, and a wait for room that asks whether anything can make some ----------------------------------- */

static struct {
    rig r;
    unsigned parked, over;
} crowded;

static void park_until_it_is_over(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    (void)waiter;
    (void)deadline_ns;
    set_relaxed(&crowded.parked, 1);
    await_relaxed(&crowded.over, 1);
}

static void unpark_nothing(void *user, gpusync_waiter *waiter)
{
    (void)user;
    (void)waiter;
}

static void *make_another(void *unused)
{
    void *buffer;
    assert_ok(gpusync_command_buffer(crowded.r.queue, NULL, &buffer));
    assert_ok(gpusync_command_buffer_discard(crowded.r.queue, buffer));
    return unused;
}

static void test_an_open_buffer_is_tracked_after_a_look_at_it(void **state)
{
    gpusync_hooks hooks = {NULL, park_until_it_is_over, unpark_nothing, NULL};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_ticket first, second;
    pthread_t waiter;
    void *open;
    (void)state;
    memset(&crowded, 0, sizeof crowded);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    queue_desc.max_command_buffer_count = 2;
    rig_open_with(&crowded.r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    assert_ok(gpusync_track(crowded.r.queue, open_buffer(&crowded.r), &first));
    open = open_buffer(&crowded.r);
    waiter = start(make_another, NULL);
    await_relaxed(&crowded.parked, 1);
    assert_ok(gpusync_track(crowded.r.queue, open, &second));
    assert_ok(gpusync_untrack(crowded.r.queue, first));
    assert_ok(gpusync_untrack(crowded.r.queue, second));
    set_relaxed(&crowded.over, 1);
    join(waiter);
    rig_close(&crowded.r);
}

/* -- is_idle, and what was done before the end was found --------------------------------------------- */

static struct {
    gpusync_queue *queue;
    gpusync_ticket ticket;
} to_poll;
static int data;

static void *find_the_end(void *argument)
{
    data = 42;
    while (gpusync_poll(to_poll.queue, to_poll.ticket) == GPUSYNC_NOT_READY) sched_yield();
    return argument;
}

static void test_is_idle_orders_what_was_done_before_tracked_work_was_found_to_have_ended(void **state)
{
    pthread_t thread;
    void *buffer;
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, NULL, queue_desc_of(1, 0));
    softmetal_set_dispatch_threads(0); /* only the poll finds the end */
    to_poll.queue = r.queue;
    to_poll.ticket = track_a_buffer(&r, &buffer);
    metal_commit(buffer);
    softmetal_complete(buffer); /* the handler is still to come */
    thread = start(find_the_end, NULL);
    while (!gpusync_is_idle(r.queue)) sched_yield();
    assert_int_equal(data, 42);
    join(thread);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    softmetal_finish(buffer);
    metal_release(buffer);
    rig_close(&r);
}

/* -- a wait for handlers that looks while one comes --------------------------------------------------------- */

static struct {
    wait_job job;
    unsigned parks;
} waiting;

/* Returns early, and orders nothing: the waiter looks again and again. */
static void park_briefly(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter, (void)deadline_ns;
    set_relaxed(&waiting.parks, relaxed(&waiting.parks) + 1);
    sched_yield();
}


static void test_a_wait_for_handlers_looks_while_the_handler_comes(void **state)
{
    const gpusync_hooks hooks = {NULL, park_briefly, unpark_nothing, NULL};
    gpusync_wait_options options;
    void *buffer;
    unsigned before;
    rig r;
    (void)state;
    memset(&waiting, 0, sizeof waiting);
    memset(&options, 0, sizeof options);
    options.handlers = true;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(1, 0));
    buffer = open_buffer(&r);
    waiting.job.queue = r.queue;
    assert_ok(gpusync_commit(r.queue, buffer, &waiting.job.ticket));
    waiting.job.timeout_ns = GPUSYNC_FOREVER;
    waiting.job.options = &options;
    softmetal_complete(buffer);
    waiting.job.thread = start(wait_job_body, &waiting.job);
    for (before = relaxed(&waiting.parks); relaxed(&waiting.parks) < before + 3;) sched_yield(); /* for the handler alone */
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&waiting.job));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_report_reads_a_warm_up_that_is_disabled),
        cmocka_unit_test(test_the_report_reads_the_open_buffer_that_is_to_signal_a_value),
        cmocka_unit_test(test_an_open_buffer_is_tracked_after_a_look_at_it),
        cmocka_unit_test(test_is_idle_orders_what_was_done_before_tracked_work_was_found_to_have_ended),
        cmocka_unit_test(test_a_wait_for_handlers_looks_while_the_handler_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
