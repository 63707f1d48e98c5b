/* test_example_fence.c - examples/fence.c: a fence may be waited for, reset and destroyed before its work is submitted

   The example is compiled in here, with its implementation. Its main is run. The tests use its fence, too. */
#include "example_run.h"

static gpusync_device *its_device; /* of the program */
static bool thread_sleeps_first;   /* the first work is made when a wait sleeps */
static bool refused;               /* the first commit fails */

static gpusync_result watched_device(const gpusync_device_desc *desc, gpusync_device **out)
{
    gpusync_result result = gpusync_device_create(desc, out);
    its_device = *out;
    return result;
}

static gpusync_result watched_buffer(gpusync_queue *queue, const gpusync_command_buffer_desc *desc, void **buffer)
{
    if (thread_sleeps_first) await_sleepers(its_device, 1);
    thread_sleeps_first = false;
    return gpusync_command_buffer(queue, desc, buffer);
}

static gpusync_result watched_commit(gpusync_queue *queue, void *buffer, gpusync_ticket *ticket)
{
    bool now = refused;
    refused = false;
    return now ? GPUSYNC_ERROR_OUT_OF_MEMORY : gpusync_commit(queue, buffer, ticket);
}

#define gpusync_device_create watched_device
#define gpusync_command_buffer watched_buffer
#define gpusync_commit watched_commit
#define main example_main
#include "../examples/fence.c"
#undef main
#undef gpusync_device_create
#undef gpusync_command_buffer
#undef gpusync_commit
#include "example_end.h"

static int set_up(void **state)
{
    thread_sleeps_first = true;
    refused = false;
    return set_up_world(state);
}

/* -- its main ---------------------------------------------------------------------------------------------------- */

static void test_a_thread_waits_before_the_work_is_submitted(void **state)
{
    (void)state;
    assert_int_equal(example_main(), 0);
    assert_said("made: not yet, or no more of them\n"
                "the thread: done\n"
                "reset: the time limit passed first; the work goes on\n"
                "again: done\n");
    assert_string_equal(complained.text, "");
}

static void test_a_failure_reaches_the_fence_and_a_reset_makes_it_new(void **state)
{
    (void)state;
    world.reasons[1] = SOFTMETAL_PAGE_FAULT;
    assert_int_equal(example_main(), 1);
    assert_said("made: not yet, or no more of them\n"
                "the thread: the work ended with an error; gpusync_next_error tells which: "
                "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)\n"
                "reset: the time limit passed first; the work goes on\n"
                "again: done\n");
    assert_has(&complained, "fence_wait((fence *)user, LIMIT, &error): the work ended with an error");
}

static void test_without_a_device_it_is_skipped(void **state)
{
    (void)state;
    softmetal_fail_creation(1, true);
    assert_int_equal(example_main(), 77);
    assert_string_equal(complained.text, "skipped: Metal has no device\n");
}

/* -- its fence --------------------------------------------------------------------------------------------------- */

static gpusync_queue *its_queue;
static fence *its_fence;

static void open_fence(void)
{
    thread_sleeps_first = false;
    assert_ok(gpusync_device_create(NULL, &its_device));
    assert_ok(gpusync_queue_create(its_device, NULL, &its_queue));
    assert_ok(fence_create(its_device, &its_fence));
}

static void close_fence(void)
{
    assert_ok(fence_destroy(its_fence));
    assert_ok(gpusync_queue_destroy(its_queue));
    assert_ok(gpusync_device_destroy(its_device));
}

typedef struct waiter {
    gpusync_result result;
    pthread_t thread;
} waiter;

static void *wait_for_fence(void *argument)
{
    ((waiter *)argument)->result = fence_wait(its_fence, GPUSYNC_FOREVER, NULL);
    return NULL;
}

static void start_waiters(waiter *waiters, unsigned count)
{
    for (unsigned i = 0; i < count; i++) waiters[i].thread = start(wait_for_fence, &waiters[i]);
    await_sleepers(its_device, count);
}

static void assert_waiters(waiter *waiters, unsigned count, gpusync_result result)
{
    for (unsigned i = 0; i < count; i++) {
        join(waiters[i].thread);
        assert_result(waiters[i].result, result);
    }
}

static void test_a_reset_before_the_submission_keeps_the_waits(void **state)
{
    waiter waiters[3];
    (void)state;
    open_fence();
    start_waiters(waiters, 3);
    assert_ok(fence_reset(its_fence));
    assert_result(fence_status(its_fence), GPUSYNC_NOT_READY);
    assert_ok(submit(its_fence, its_queue));
    assert_waiters(waiters, 3, GPUSYNC_OK);
    assert_ok(fence_status(its_fence));
    close_fence();
}

static void test_a_fence_in_flight_takes_neither_reset_nor_submission(void **state)
{
    (void)state;
    open_fence();
    world.hangs[1] = true;
    assert_ok(submit(its_fence, its_queue));
    assert_result(fence_reset(its_fence), GPUSYNC_ERROR_IN_USE);
    assert_result(submit(its_fence, its_queue), GPUSYNC_ERROR_IN_USE);
    assert_result(fence_wait(its_fence, 0, NULL), GPUSYNC_TIMEOUT);
    let_go_on(1);
    assert_ok(fence_wait(its_fence, GPUSYNC_FOREVER, NULL));
    assert_ok(fence_reset(its_fence));
    assert_result(fence_status(its_fence), GPUSYNC_NOT_READY);
    close_fence();
}

static void test_a_refused_commit_leaves_the_fence_as_it_was(void **state)
{
    waiter waiters[2];
    (void)state;
    open_fence();
    refused = true;
    start_waiters(waiters, 2);
    assert_result(submit(its_fence, its_queue), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_result(fence_status(its_fence), GPUSYNC_NOT_READY);
    assert_ok(submit(its_fence, its_queue));
    assert_waiters(waiters, 2, GPUSYNC_OK);
    close_fence();
}

static void test_many_uses_and_failures(void **state)
{
    gpusync_error error;
    (void)state;
    open_fence();
    for (unsigned use = 1; use <= 30; use++) {
        waiter waiters[2];
        world.reasons[use] = use % 3 ? 0 : SOFTMETAL_INNOCENT_VICTIM;
        start_waiters(waiters, 2);
        assert_ok(submit(its_fence, its_queue));
        assert_waiters(waiters, 2, use % 3 ? GPUSYNC_OK : GPUSYNC_ERROR_EXECUTION);
        assert_result(fence_status(its_fence), use % 3 ? GPUSYNC_OK : GPUSYNC_ERROR_EXECUTION);
        if (use % 3 == 0) {
            assert_result(fence_wait(its_fence, 0, &error), GPUSYNC_ERROR_EXECUTION);
            assert_int_equal(error.failure, GPUSYNC_FAILURE_INNOCENT_VICTIM);
        }
        assert_ok(fence_reset(its_fence));
    }
    close_fence();
}

static void test_destroy_ends_the_waits(void **state)
{
    waiter waiters[3];
    (void)state;
    open_fence();
    start_waiters(waiters, 3);
    close_fence();
    assert_waiters(waiters, 3, GPUSYNC_ERROR_CANCELLED);
}

static void test_destroy_with_work_in_flight(void **state)
{
    waiter waiters[2];
    (void)state;
    open_fence();
    world.hangs[1] = true;
    assert_ok(submit(its_fence, its_queue));
    start_waiters(waiters, 2);
    assert_ok(fence_destroy(its_fence));
    assert_waiters(waiters, 2, GPUSYNC_ERROR_CANCELLED);
    let_go_on(1);
    its_fence = NULL;
    close_fence();
}

#define story(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(test_a_thread_waits_before_the_work_is_submitted),
        story(test_a_failure_reaches_the_fence_and_a_reset_makes_it_new),
        story(test_without_a_device_it_is_skipped),
        story(test_a_reset_before_the_submission_keeps_the_waits),
        story(test_a_fence_in_flight_takes_neither_reset_nor_submission),
        story(test_a_refused_commit_leaves_the_fence_as_it_was),
        story(test_many_uses_and_failures),
        story(test_destroy_ends_the_waits),
        story(test_destroy_with_work_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
