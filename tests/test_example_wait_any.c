/* test_example_wait_any.c - examples/wait_any.c: each fence is told of when it ends, by one wait that sleeps

   The example is compiled in here, with its implementation, and its main is run. Its jobs hang, and end in the order
   that the test wants: each when the program sleeps. */
#include "example_run.h"

static gpusync_device *its_device; /* of the program */
static unsigned order[4];        /* which commit ends at which wait; 0: the test ends none */
static unsigned waits;           /* calls of gpusync_wait_many so far */
static unsigned out_of_time;     /* the wait that reaches its limit; 0: none */
static bool burns;               /* end_next uses the processor while the program waits */
static uint64_t used_in_wait_ns; /* processor time of the program's thread */

#define BURN MS(30)

static uint64_t thread_time(void)
{
    struct timespec at;
    must(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at) == 0, "clock_gettime");
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

/* Lets a job end when the program sleeps. With `burns` not before this thread has used the processor for BURN: a
   program that spins uses as much meanwhile. */
static void *end_next(void *fences)
{
    uint64_t began;
    await_sleepers(its_device, *(const unsigned *)fences);
    began = thread_time();
    while (burns && thread_time() - began < BURN) continue;
    let_go_on(order[waits - 1]);
    return NULL;
}

static gpusync_result watched_wait(const gpusync_point *points, size_t count, gpusync_wait_for how, uint64_t timeout_ns,
                                   const gpusync_wait_options *options, size_t *which)
{
    gpusync_result result;
    pthread_t thread;
    unsigned fences = (unsigned)count;
    uint64_t began;
    assert_int_equal(how, GPUSYNC_WAIT_ANY);
    assert_true(timeout_ns > 0 && timeout_ns <= SECONDS(10));
    if (++waits == out_of_time) return gpusync_wait_many(points, count, how, 0, options, which);
    if (!order[waits - 1]) return gpusync_wait_many(points, count, how, timeout_ns, options, which);
    thread = start(end_next, &fences);
    began = thread_time();
    result = gpusync_wait_many(points, count, how, timeout_ns, options, which);
    used_in_wait_ns += thread_time() - began;
    join(thread);
    return result;
}

static gpusync_result watched_device(const gpusync_device_desc *desc, gpusync_device **out)
{
    gpusync_result result = gpusync_device_create(desc, out);
    its_device = *out;
    return result;
}

#define gpusync_wait_many watched_wait
#define gpusync_device_create watched_device
#define start start_job
#define main example_main
#include "../examples/wait_any.c"
#undef main
#undef start
#undef gpusync_wait_many
#undef gpusync_device_create
#include "example_end.h"

/* The jobs are commits 1 to 3: large, medium, small. */
static int run(unsigned first, unsigned second, unsigned third)
{
    order[0] = first, order[1] = second, order[2] = third;
    if (first) world.hangs[first] = true;
    if (second) world.hangs[second] = true;
    if (third) world.hangs[third] = true;
    return example_main();
}

static int set_up(void **state)
{
    waits = out_of_time = 0;
    burns = false;
    used_in_wait_ns = 0;
    return set_up_world(state);
}

static void assert_said_first(const char *lines)
{
    assert_has(&said, lines);
    assert_ptr_equal(strstr(said.text, lines), said.text);
    assert_int_equal(strncmp(said.text + strlen(lines), "waited ", strlen("waited ")), 0);
}

/* -- the tests --------------------------------------------------------------------------------------------------- */

static void test_each_is_told_of_when_it_ends(void **state)
{
    static const unsigned orders[6][3] = {{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}};
    static const char *const names[] = {"", "large", "medium", "small"};
    for (size_t i = 0; i < LENGTH(orders); i++) {
        char lines[128];
        const unsigned *o = orders[i];
        set_up(state);
        assert_int_equal(run(o[0], o[1], o[2]), 0);
        snprintf(lines, sizeof lines, "%s: done\n%s: done\n%s: done\n", names[o[0]], names[o[1]], names[o[2]]);
        assert_said_first(lines);
        assert_int_equal(waits, 3); /* it asks once for each */
        assert_string_equal(complained.text, "");
        tear_down_world(state);
    }
}

static void test_a_wait_takes_no_processor_time(void **state)
{
    (void)state;
    burns = true;
    assert_int_equal(run(3, 2, 1), 0);
    assert_true(used_in_wait_ns < 3 * BURN / 4);
}

static void test_a_fence_whose_work_failed_has_ended(void **state)
{
    (void)state;
    world.reasons[2] = SOFTMETAL_PAGE_FAULT;
    assert_int_equal(run(3, 2, 1), 1);
    assert_said_first("small: done\nmedium: failed\nlarge: done\n");
    assert_has(&complained, "medium: Caused GPU");
}

static void test_fences_that_have_ended_are_told_of_at_once(void **state)
{
    (void)state;
    assert_int_equal(run(0, 0, 3), 0);
    assert_true(has(&said, "medium: done\n") && has(&said, "large: done\n"));
    assert_has(&said, "small: done\nwaited ");
    assert_int_equal(waits, 3);
}

static void test_at_the_limit_the_report_names_what_is_left(void **state)
{
    (void)state;
    out_of_time = 3;
    assert_int_equal(run(3, 1, 2), 1);
    assert_said_first("small: done\nlarge: done\n");
    assert_has(&complained, "'medium'");
    assert_has(&complained, "gpusync_wait_many: the time limit passed first; the work goes on\n");
}

static void test_without_a_device_it_is_skipped(void **state)
{
    (void)state;
    softmetal_fail_creation(1, true);
    assert_int_equal(run(0, 0, 0), 77);
    assert_string_equal(complained.text, "skipped: Metal has no device\n");
}

#define story(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_is_told_of_when_it_ends),
        story(test_a_wait_takes_no_processor_time),
        story(test_a_fence_whose_work_failed_has_ended),
        story(test_fences_that_have_ended_are_told_of_at_once),
        story(test_at_the_limit_the_report_names_what_is_left),
        story(test_without_a_device_it_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
