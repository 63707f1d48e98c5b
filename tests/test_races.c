/* test_races.c - reads and writes that nothing orders, for ThreadSanitizer

   The threads learn of each other by relaxed atomics alone, which order nothing: so what the library leaves unordered is
   seen in every run. Without ThreadSanitizer these tests ask for little. */
#define GPUSYNC_IMPLEMENTATION
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

/* -- a commit, and a wait for room that asks whether anything can make some ----------------------------------- */

static struct {
    rig r;
    unsigned parked, over;
} throttling;

static void park_until_it_is_over(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    (void)waiter;
    (void)deadline_ns;
    set_relaxed(&throttling.parked, 1);
    await_relaxed(&throttling.over, 1);
}

static void unpark_nobody(void *user, gpusync_waiter *waiter)
{
    (void)user;
    (void)waiter;
}

static void *throttle(void *unused)
{
    (void)unused;
    assert_ok(gpusync_throttle(throttling.r.queue, 2, GPUSYNC_FOREVER));
    return NULL;
}

static void test_an_open_buffer_is_tracked_after_somebody_has_looked_at_it(void **state)
{
    gpusync_hooks hooks = {NULL, park_until_it_is_over, unpark_nobody, NULL};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_ticket first, second;
    pthread_t waiter;
    void *open;
    (void)state;
    memset(&throttling, 0, sizeof throttling);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    rig_open_with(&throttling.r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    assert_ok(gpusync_track(throttling.r.queue, open_buffer(&throttling.r), &first));
    open = open_buffer(&throttling.r);
    waiter = start(throttle, NULL);
    await_relaxed(&throttling.parked, 1);
    assert_ok(gpusync_track(throttling.r.queue, open, &second));
    assert_ok(gpusync_untrack(throttling.r.queue, first));
    assert_ok(gpusync_untrack(throttling.r.queue, second));
    set_relaxed(&throttling.over, 1);
    join(waiter);
    rig_close(&throttling.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_report_reads_a_warm_up_that_is_disabled),
        cmocka_unit_test(test_an_open_buffer_is_tracked_after_somebody_has_looked_at_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
