/* test_example_ios_background.c - examples/ios_background.c: nothing is committed in the background, and nothing is lost

   The example is compiled in here, with its implementation. Its main is run, which plays an app's way to the background
   and back. The tests also call what an app's delegate calls. */
#include "example_run.h"
#include <errno.h>

static unsigned impatient; /* so many waits for everything look once */
static bool in_background; /* from the end of enter_background to the beginning of enter_foreground, as main calls them */
static unsigned committed_there;

static void note_commit(unsigned n, void *buffer)
{
    (void)n;
    (void)buffer;
    if (in_background) committed_there++;
}

static gpusync_result watched_queue_wait(gpusync_queue *queue, uint64_t timeout_ns)
{
    bool now = impatient > 0;
    if (now) impatient--;
    in_background = false;
    return gpusync_queue_wait(queue, now ? 0 : timeout_ns);
}

/* main calls this in the background. What the signal lets go has been committed when it returns, or is dispatched. */
static gpusync_result watched_signal(gpusync_timeline *timeline, uint64_t value)
{
    gpusync_result result;
    in_background = true;
    result = gpusync_timeline_signal(timeline, value);
    assert_true(softmetal_dispatched(SECONDS(20)));
    return result;
}

#define gpusync_queue_wait watched_queue_wait
#define gpusync_timeline_signal watched_signal
#define main example_main
#include "../examples/ios_background.c"
#undef main
#undef gpusync_timeline_signal
#undef gpusync_queue_wait
#include "example_end.h"

static int set_up(void **state)
{
    impatient = committed_there = 0;
    in_background = false;
    set_up_world(state);
    world.at_commit = note_commit;
    return 0;
}

/* -- its main ---------------------------------------------------------------------------------------------------- */

static void test_a_way_to_the_background_and_back(void **state)
{
    (void)state;
    assert_int_equal(example_main(), 0);
    assert_said("to the background: all has ended\n"
                "export: kept\n"
                "to the foreground\n"
                "thumbnail: done, tries: 1\n"
                "filter: done, tries: 1\n"
                "caption: done, tries: 2\n"
                "export: done, tries: 1\n");
    assert_has(&complained, "caption: ");
    assert_int_equal(committed_there, 0);
    assert_int_equal(world.commits, 4); /* the held one never came to Metal before the background */
}

static void test_a_gpu_that_hangs_ends_the_program(void **state)
{
    (void)state;
    world.hangs[2] = true;
    impatient = 2;
    assert_int_equal(example_main(), 1);
    assert_said("to the background: the GPU still works\n"
                "export: kept\n"
                "to the foreground\n"
                "thumbnail: in flight, tries: 1\n"
                "filter: in flight, tries: 1\n"
                "caption: in flight, tries: 1\n"
                "export: to do, tries: 0\n");
    assert_has(&complained, "enter_foreground(w, AFTER_RETURN): the time limit passed first; the work goes on\n");
    assert_int_equal(world.commits, 2);
}

static void test_without_a_device_it_is_skipped(void **state)
{
    (void)state;
    softmetal_fail_creation(1, true);
    assert_int_equal(example_main(), 77);
    assert_string_equal(complained.text, "skipped: Metal has no device\n");
}

/* -- its core ---------------------------------------------------------------------------------------------------- */

static worker one;

/* With nothing to do but these two jobs, which may be one. */
static void open_for(unsigned first, unsigned second)
{
    static const worker nothing;
    gpusync_device *device;
    one = nothing;
    assert_ok(gpusync_device_create(NULL, &device));
    assert_true(open_worker(&one, device));
    for (unsigned i = 0; i < JOBS; i++)
        if (i != first && i != second) one.jobs[i].state = DONE;
}

/* Until each job has its end. */
static void come_back(void)
{
    for (unsigned i = 0; i <= TRIES; i++) assert_ok(enter_foreground(&one, SECONDS(20)));
}

static void assert_job(unsigned number, job_state state, unsigned tries)
{
    if (state == DONE) {
        const unsigned char *memory = metal_contents(one.jobs[number].memory);
        assert_int_equal(memory[0], number + 1);
        assert_int_equal(memory[SIZE - 1], number + 1);
    }
    assert_int_equal(one.jobs[number].state, state);
    assert_int_equal(one.jobs[number].tries, tries);
}

static void test_work_in_flight_is_waited_for_and_no_longer_than_the_limit(void **state)
{
    (void)state;
    open_for(0, 1);
    world.hangs[1] = true;
    assert_ok(submit(&one, 0));
    impatient = 1;
    assert_false(enter_background(&one, SECONDS(20)));
    assert_ok(submit(&one, 1));
    assert_job(0, IN_FLIGHT, 1);
    assert_job(1, TO_DO, 0);
    impatient = 1;
    assert_result(enter_foreground(&one, SECONDS(20)), GPUSYNC_TIMEOUT); /* the wait's clock may have run on */
    assert_job(0, IN_FLIGHT, 1);
    assert_int_equal(world.commits, 1);
    let_go_on(1);
    come_back();
    assert_job(0, DONE, 1);
    assert_job(1, DONE, 1);
    assert_string_equal(complained.text, "");
    assert_true(close_worker(&one));
}

static void test_refused_work_is_committed_again(void **state)
{
    (void)state;
    open_for(0, 1);
    world.reasons[1] = world.reasons[2] = SOFTMETAL_BACKGROUND;
    assert_ok(submit(&one, 0));
    assert_ok(submit(&one, 1));
    assert_true(enter_background(&one, SECONDS(20)));
    assert_int_equal(world.commits, 2);
    come_back();
    assert_has(&complained, "thumbnail: Insufficient Permission (to submit GPU work from background)");
    assert_has(&complained, "filter: Insufficient Permission (to submit GPU work from background)");
    assert_job(0, DONE, 2);
    assert_job(1, DONE, 2);
    assert_true(close_worker(&one));
}

static void test_a_job_is_tried_three_times_at_most(void **state)
{
    (void)state;
    open_for(0, 0);
    for (unsigned n = 1; n <= 9; n++) world.reasons[n] = SOFTMETAL_OUT_OF_MEMORY;
    assert_ok(submit(&one, 0));
    assert_true(enter_background(&one, SECONDS(20)));
    come_back();
    assert_job(0, FAILED_FOR_GOOD, 3);
    assert_int_equal(world.commits, 3);
    assert_true(close_worker(&one));
}

static void test_a_fault_of_the_work_is_not_tried_again(void **state)
{
    (void)state;
    open_for(0, 1);
    world.reasons[2] = SOFTMETAL_PAGE_FAULT;
    assert_ok(submit(&one, 0));
    assert_ok(submit(&one, 1));
    assert_true(enter_background(&one, SECONDS(20)));
    come_back();
    assert_has(&complained, "filter: Caused GPU Address Fault Error");
    assert_job(0, DONE, 1);
    assert_job(1, FAILED_FOR_GOOD, 1);
    assert_true(close_worker(&one));
}

/* Else the value would let it go to Metal in the background. */
static void test_held_work_is_taken_back(void **state)
{
    (void)state;
    open_for(2, 2);
    assert_ok(submit(&one, 2));
    assert_true(enter_background(&one, SECONDS(20)));
    assert_ok(gpusync_timeline_signal(one.inputs, 1));
    assert_true(softmetal_settle(SECONDS(20)));
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(world.commits, 0);
    come_back();
    assert_job(2, DONE, 2);
    assert_true(close_worker(&one));
}

static void *leave_for_the_background(void *argument)
{
    *(bool *)argument = enter_background(&one, SECONDS(20));
    return NULL;
}

static bool left;
static pthread_t leaving;

static void leave_at_commit(unsigned n, void *buffer)
{
    (void)buffer;
    assert_int_equal(pthread_mutex_trylock(&one.lock), EBUSY);
    if (n == 1) leaving = start(leave_for_the_background, &left);
}

/* A commit that has begun is over before enter_background looks, which waits for it. */
static void test_a_commit_on_another_thread_does_not_slip_past(void **state)
{
    (void)state;
    open_for(0, 1);
    world.at_commit = leave_at_commit;
    left = false;
    assert_ok(submit(&one, 0));
    join(leaving);
    assert_true(left);
    assert_true(gpusync_is_done(one.queue, one.jobs[0].ticket));
    assert_ok(submit(&one, 1));
    assert_job(1, TO_DO, 0);
    world.at_commit = NULL;
    come_back();
    assert_job(0, DONE, 1);
    assert_job(1, DONE, 1);
    assert_true(close_worker(&one));
}

static void test_a_lost_device_is_told_and_nothing_is_committed(void **state)
{
    unsigned before;
    (void)state;
    open_for(0, 1);
    world.reasons[1] = SOFTMETAL_SUBMISSIONS_IGNORED;
    assert_ok(submit(&one, 0));
    assert_true(enter_background(&one, SECONDS(20)));
    before = world.commits;
    assert_result(enter_foreground(&one, SECONDS(20)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(world.commits, before);
    assert_job(0, FAILED_FOR_GOOD, 1);
    assert_job(1, TO_DO, 0);
    assert_true(close_worker(&one));
}

static void lose_the_device(void)
{
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffer;
    assert_ok(gpusync_queue_create(one.device, NULL, &queue));
    assert_ok(gpusync_command_buffer(queue, NULL, &buffer));
    softmetal_fail_as(buffer, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    assert_ok(gpusync_commit(queue, buffer, &ticket));
    assert_result(gpusync_wait(queue, ticket, SECONDS(20)), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_destroy(queue));
}

/* The GPU never says how the job ended. The wait goes on until the second look, and the limit of an app is enough. */
static void test_work_of_a_lost_device_is_given_up_within_the_limit(void **state)
{
    (void)state;
    open_for(0, 0);
    world.hangs[1] = true;
    assert_ok(submit(&one, 0));
    impatient = 1;
    assert_false(enter_background(&one, SECONDS(20)));
    lose_the_device();
    assert_result(enter_foreground(&one, AFTER_RETURN), GPUSYNC_ERROR_DEVICE_LOST);
    assert_job(0, FAILED_FOR_GOOD, 1);
    assert_true(close_worker(&one));
}

#define story(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(test_a_way_to_the_background_and_back),
        story(test_a_gpu_that_hangs_ends_the_program),
        story(test_without_a_device_it_is_skipped),
        story(test_work_in_flight_is_waited_for_and_no_longer_than_the_limit),
        story(test_refused_work_is_committed_again),
        story(test_a_job_is_tried_three_times_at_most),
        story(test_a_fault_of_the_work_is_not_tried_again),
        story(test_held_work_is_taken_back),
        story(test_a_commit_on_another_thread_does_not_slip_past),
        story(test_a_lost_device_is_told_and_nothing_is_committed),
        story(test_work_of_a_lost_device_is_given_up_within_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
