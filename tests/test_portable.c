/* test_portable.c - the calls on whatever Metal device there is: softmetal, Metal over Vulkan, a Mac's

   Public calls of gpusync, examples/metal.h, and the bytes that the GPU wrote. Without a device tests skip. */
#include "from.h" /* cmocka */

#include <pthread.h>
#include <sched.h>
#include "gpusync.h"
#include "metal.h"
#define LIMIT ((uint64_t)30 * 1000000000u)
#define BYTES ((size_t)4 << 20)
#define assert_result(call, result) assert_string_equal(gpusync_result_string(call), gpusync_result_string(result))
#define assert_ok(call) assert_result(call, GPUSYNC_OK)
#define NEEDS(object) ((void)state, (object) ? (void)0 : skip())

static gpusync_device *device;
static gpusync_queue *queue, *other;
static gpusync_timeline *timeline;
static void *source, *target; /* MTLBuffers */
static int called;

static int set_up(void **state)
{
    called = 0;
    if (gpusync_device_create(NULL, &device) == GPUSYNC_ERROR_NO_DEVICE)
        return 0;
    source = metal_buffer_new(gpusync_device_metal(device), BYTES);
    target = metal_buffer_new(gpusync_device_metal(device), BYTES);
    gpusync_result result = gpusync_timeline_create(device, NULL, &timeline);
    return !source || !target || (result && result != GPUSYNC_ERROR_METAL_NIL) ||
           gpusync_queue_create(device, NULL, &queue) || gpusync_queue_create(device, NULL, &other);
}

static int tear_down(void **state)
{
    metal_release(source);
    metal_release(target);
    return gpusync_queue_destroy(queue) || gpusync_queue_destroy(other) || gpusync_timeline_destroy(timeline) ||
           gpusync_device_destroy(device);
}

static void *new_buffer(gpusync_queue *of)
{
    void *buffer = NULL;
    assert_ok(gpusync_command_buffer_create(of, NULL, LIMIT, &buffer));
    return buffer;
}

/* Fills the source, unless the value is 0, and copies it to the target. */
static void *encode(void *buffer, unsigned value, bool copies)
{
    void *blit = metal_blit_begin(buffer);
    if (value)
        metal_fill(blit, source, 0, BYTES, (unsigned char)value);
    if (copies)
        metal_copy(blit, source, 0, target, 0, BYTES);
    metal_end(blit);
    return buffer;
}

static void check_bytes(unsigned value)
{
    const unsigned char *bytes = (const unsigned char *)metal_contents(target);
    assert_true(bytes[0] == value && bytes[BYTES / 2] == value && bytes[BYTES - 1] == value);
}

static gpusync_ticket commit(void *buffer, gpusync_queue *to)
{
    gpusync_ticket ticket = 0;
    assert_ok(gpusync_commit(to, buffer, &ticket));
    return ticket;
}

#define AT(value) gpusync_at_value(timeline, value)

static gpusync_ticket submit(gpusync_queue *to, void *buffer, uint64_t wait, uint64_t signal, uint32_t flags)
{
    const gpusync_point waits[1] = {AT(wait)}, signals[1] = {AT(signal)};
    const gpusync_submission submission = {waits, wait != 0, &buffer, 1, signals, signal != 0, NULL, NULL, NULL, flags};
    gpusync_ticket ticket = 0;
    assert_ok(gpusync_submit(to, &submission, flags & GPUSYNC_SUBMIT_UNORDERED ? NULL : &ticket));
    return ticket;
}

/* A thread with memory of its own: what the GPU wrote is there when a wait has returned. */
static void *wait_often(void *options)
{
    void *memory = metal_buffer_new(gpusync_device_metal(device), 4096), *buffer;
    const volatile unsigned char *bytes = (const volatile unsigned char *)metal_contents(memory);
    gpusync_ticket ticket;
    unsigned good = 0;
    for (unsigned i = 0; i < 50 && !gpusync_command_buffer_create(queue, NULL, LIMIT, &buffer); i++) {
        void *blit = metal_blit_begin(buffer);
        metal_fill(blit, memory, 0, 4096, (unsigned char)(i + 1));
        metal_end(blit);
        if (gpusync_commit(queue, buffer, &ticket) || gpusync_wait(queue, ticket, LIMIT, options))
            break;
        good += bytes[0] == i + 1 && bytes[4095] == i + 1 && gpusync_is_done(queue, ticket);
    }
    metal_release(memory);
    return good == 50 ? options : NULL;
}

static void test_every_way_to_wait(void **state)
{
    static const gpusync_spin spins[] = {{0, 0, 0}, {32, 224, 0}, {0, 0, 1000000}};
    gpusync_wait_options options[8];
    pthread_t threads[8];
    gpusync_stats stats;
    NEEDS(device);
    for (unsigned i = 0; i < 8; i++) {
        options[i] = (gpusync_wait_options){i % 4 < 3 ? &spins[i % 4] : NULL, NULL, i >= 4};
        assert_int_equal(pthread_create(&threads[i], NULL, wait_often, &options[i]), 0);
    }
    for (unsigned i = 0; i < 8; i++) {
        void *good = NULL;
        pthread_join(threads[i], &good);
        assert_ptr_equal(good, &options[i]);
    }
    assert_ok(gpusync_device_get_stats(device, queue, &stats));
    assert_true(stats.commits == 400 && stats.completions == 400 && stats.failures == 0);
}

static void test_order_and_times_also_of_other_code(void **state)
{
    const gpusync_wait_options handlers = {NULL, NULL, true};
    gpusync_times times, before = {0, 0};
    NEEDS(device);
    for (unsigned i = 1; i <= 40; i++)
        assert_int_equal(commit(encode(new_buffer(queue), i, true), queue), i);
    void *buffer = encode(metal_queue_command_buffer(gpusync_queue_metal(queue)), 41, true);
    assert_result(gpusync_commit_marker(queue, buffer, NULL), GPUSYNC_ERROR_NOT_COMMITTED);
    metal_commit(buffer);
    assert_ok(gpusync_commit_marker(queue, buffer, NULL));
    metal_release(buffer);
    assert_ok(gpusync_wait(queue, GPUSYNC_EVERYTHING, LIMIT, &handlers));
    check_bytes(41);
    for (unsigned i = 1; i <= 40; i++, before = times) {
        assert_ok(gpusync_poll(queue, i, &times));
        assert_true(times.gpu_end_s >= times.gpu_start_s && times.gpu_start_s >= before.gpu_start_s);
    }
}

/* The consumer is submitted first, and held. What overwrites its source comes last. */
static void test_two_queues(void **state)
{
    static const uint32_t flags[] = {GPUSYNC_SUBMIT_ON_GPU, 0, GPUSYNC_SUBMIT_UNORDERED};
    NEEDS(timeline);
    for (unsigned i = 0; i < 3; i++) {
        submit(other, encode(new_buffer(other), 0, true), 2 * i + 1, 2 * i + 2, flags[i]);
        assert_result(gpusync_poll(other, GPUSYNC_EVERYTHING, NULL), GPUSYNC_NOT_READY);
        submit(queue, encode(new_buffer(queue), i + 1, false), 2 * i, 2 * i + 1, flags[i]);
        submit(queue, encode(new_buffer(queue), 99, false), 2 * i + 2, 0, flags[i]);
        assert_ok(gpusync_device_wait(device, LIMIT, NULL));
        check_bytes(i + 1);
    }
}

static void test_values_and_a_failure(void **state)
{
    gpusync_error error;
    uint64_t value = 0, cursor = 0;
    NEEDS(timeline);
    gpusync_ticket ticket = submit(queue, encode(new_buffer(queue), 3, true), 5, 0, 0);
    assert_ok(gpusync_timeline_signal(timeline, 5));
    assert_result(gpusync_timeline_signal(timeline, 5), GPUSYNC_ERROR_NOT_RISING);
    assert_ok(gpusync_wait(queue, ticket, LIMIT, NULL));
    assert_result(gpusync_timeline_wait(timeline, 6, 1000000, NULL), GPUSYNC_TIMEOUT);
    ticket = submit(queue, encode(new_buffer(queue), 4, true), 6, 0, 0);
    assert_ok(gpusync_timeline_fail(timeline, NULL));
    assert_result(gpusync_wait(queue, ticket, LIMIT, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_next_error(queue, &cursor, &error));
    assert_true(error.ticket == ticket && error.inherited && !error.ran);
    assert_true(gpusync_timeline_query(timeline, &value, NULL) == GPUSYNC_ERROR_EXECUTION && value == 5);
    check_bytes(3);
}

static void note(void *user, gpusync_result result, const gpusync_error *error)
{
    __atomic_add_fetch(&called, result == GPUSYNC_OK ? 1 : 100, __ATOMIC_RELEASE);
}

static void test_callbacks(void **state)
{
    const uint64_t end = gpusync_now_ns() + LIMIT;
    NEEDS(timeline);
    gpusync_ticket ticket = submit(queue, encode(new_buffer(queue), 8, true), 0, 1, 0);
    assert_ok(gpusync_on_done(gpusync_at_ticket(queue, ticket), note, NULL));
    assert_ok(gpusync_on_done(AT(1), note, NULL));
    assert_ok(gpusync_on_done(AT(2), note, NULL));
    while (__atomic_load_n(&called, __ATOMIC_ACQUIRE) < 2 && gpusync_now_ns() < end)
        sched_yield();
    assert_int_equal(called, 2);
    check_bytes(8);
    assert_ok(gpusync_timeline_destroy(timeline)); /* the third gets ERROR_DESTROYED */
    timeline = NULL;
    assert_int_equal(called, 102);
}

static void test_wait_for_many_with_encoded_points(void **state)
{
    size_t which = 9;
    NEEDS(timeline);
    void *consumer = new_buffer(other), *producer = encode(new_buffer(queue), 55, false);
    assert_ok(gpusync_encode_wait(other, consumer, AT(7)));
    gpusync_ticket held = commit(encode(consumer, 0, true), other), first = commit(new_buffer(queue), queue);
    const gpusync_point points[] = {AT(7), gpusync_at_ticket(queue, first), gpusync_at_ticket(other, held)};
    assert_ok(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ANY, LIMIT, NULL, &which));
    assert_int_equal(which, 1);
    assert_result(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ALL, 1000000, NULL, NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_encode_signal(queue, producer, AT(7)));
    commit(producer, queue);
    assert_ok(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ALL, LIMIT, NULL, &which));
    assert_int_equal(which, 3);
    check_bytes(55);
}

/* The destroy waits for b, cancels c, and runs the callback. */
static void test_limits_and_destroy(void **state)
{
    gpusync_queue *small = NULL;
    NEEDS(timeline);
    assert_ok(gpusync_queue_create(device, &(gpusync_queue_desc){.max_command_buffer_count = 2}, &small));
    void *a = new_buffer(small), *b = new_buffer(small), *c = NULL;
    assert_result(gpusync_command_buffer_create(small, NULL, 1000000, &c), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_command_buffer_discard(small, a));
    c = new_buffer(small);
    commit(encode(b, 77, true), small);
    assert_ok(gpusync_encode_wait(small, c, AT(1)));
    gpusync_ticket ticket = commit(encode(c, 78, true), small);
    assert_ok(gpusync_on_done(gpusync_at_ticket(small, ticket), note, NULL));
    assert_result(gpusync_device_destroy(device), GPUSYNC_ERROR_IN_USE);
    assert_ok(gpusync_queue_destroy(small));
    assert_int_equal(called, 100);
    check_bytes(77);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_every_way_to_wait), TEST(test_order_and_times_also_of_other_code),
                                       TEST(test_two_queues),        TEST(test_values_and_a_failure),
                                       TEST(test_callbacks),         TEST(test_wait_for_many_with_encoded_points),
                                       TEST(test_limits_and_destroy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
