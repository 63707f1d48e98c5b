/* test_portable.c - the calls on whatever Metal device there is, with real work and no control over it */
/* portable: also runs on a real Metal device */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "from.h"

#include <pthread.h>
#include <string.h>

#include "../gpusync.h"
#include "../examples/metal.h"

#define LIMIT ((uint64_t)30 * 1000000000u)
#define BYTES ((size_t)4 << 20)

static struct {
    gpusync_device *device;
    gpusync_queue *queue;
    void *from, *to; /* id<MTLBuffer> */
} on;

static int set_up(void **state)
{
    void *metal;
    (void)state;
    memset(&on, 0, sizeof on);
    if (gpusync_device_create(NULL, &on.device) == GPUSYNC_ERROR_NO_DEVICE) return 0; /* the tests skip */
    metal = gpusync_device_metal(on.device);
    on.from = metal_buffer_new(metal, BYTES);
    on.to = metal_buffer_new(metal, BYTES);
    if (!on.from || !on.to) return -1;
    return gpusync_queue_create(on.device, NULL, &on.queue);
}

static int tear_down(void **state)
{
    (void)state;
    if (!on.device) return 0;
    metal_release(on.from);
    metal_release(on.to);
    if (gpusync_queue_destroy(on.queue)) return -1;
    return gpusync_device_destroy(on.device);
}

#define NEEDS_DEVICE() do { (void)state; if (!on.device) skip(); } while (0)

/* Fill one buffer, copy it to the other. */
static void encode(void *buffer, unsigned char value)
{
    void *blit = metal_blit_begin(buffer);
    assert_non_null(blit);
    metal_fill(blit, on.from, 0, BYTES, value);
    metal_copy(blit, on.from, 0, on.to, 0, BYTES);
    metal_end(blit);
}

static void check_bytes(unsigned char value)
{
    const unsigned char *bytes = (const unsigned char *)metal_contents(on.to);
    assert_int_equal(bytes[0], value);
    assert_int_equal(bytes[BYTES / 2], value);
    assert_int_equal(bytes[BYTES - 1], value);
}

static gpusync_ticket commit(unsigned char value)
{
    gpusync_ticket ticket = 0;
    void *buffer = NULL;
    assert_int_equal(gpusync_command_buffer(on.queue, NULL, &buffer), GPUSYNC_OK);
    encode(buffer, value);
    assert_int_equal(gpusync_commit(on.queue, buffer, &ticket), GPUSYNC_OK);
    return ticket;
}

static void test_the_version_is_that_of_the_header(void **state)
{
    (void)state;
    assert_int_equal(gpusync_version(), GPUSYNC_VERSION);
}

static void test_nothing_committed(void **state)
{
    NEEDS_DEVICE();
    assert_true(gpusync_is_idle(on.queue));
    assert_int_equal(gpusync_queue_wait(on.queue, 0), GPUSYNC_OK);
    assert_int_equal(gpusync_device_wait(on.device, 0, NULL), GPUSYNC_OK);
}

static void test_every_way_to_wait(void **state)
{
    static const gpusync_spin spins[] = {{0, 0, 0, false}, {32, 224, 0, false}, {0, 0, 1000000, false}};
    gpusync_wait_options options;
    unsigned char value = 1;
    unsigned blocking, spin;
    NEEDS_DEVICE();
    for (blocking = 0; blocking < 2; blocking++)
        for (spin = 0; spin < 3; spin++, value++) {
            gpusync_ticket ticket = commit(value);
            memset(&options, 0, sizeof options);
            options.blocking = blocking == 1;
            options.spin = &spins[spin];
            assert_int_equal(gpusync_wait_ex(on.queue, ticket, spin == 1 ? LIMIT : GPUSYNC_FOREVER, &options), GPUSYNC_OK);
            check_bytes(value);
            assert_int_equal(gpusync_poll(on.queue, ticket), GPUSYNC_OK);
        }
}

static void test_order_and_times(void **state)
{
    gpusync_ticket_info info;
    gpusync_ticket first = 0, last = 0;
    unsigned i;
    NEEDS_DEVICE();
    for (i = 0; i < 40; i++) {
        last = commit((unsigned char)i);
        if (i == 0) first = last;
        assert_int_equal(last, first + i);
    }
    assert_int_equal(gpusync_queue_wait(on.queue, LIMIT), GPUSYNC_OK);
    check_bytes(39);
    for (; first <= last; first++) {
        assert_int_equal(gpusync_get_info(on.queue, first, &info), GPUSYNC_OK);
        assert_int_equal(info.result, GPUSYNC_OK);
        assert_true(info.gpu_end_s >= info.gpu_start_s);
    }
}

static void test_buffers_of_others(void **state)
{
    void *metal_queue, *buffer, *empty;
    gpusync_ticket ticket;
    NEEDS_DEVICE();
    metal_queue = gpusync_queue_metal(on.queue);

    buffer = metal_queue_command_buffer(metal_queue); /* committed through gpusync */
    encode(buffer, 101);
    assert_int_equal(gpusync_commit(on.queue, buffer, &ticket), GPUSYNC_OK);
    assert_int_equal(gpusync_wait(on.queue, ticket, LIMIT), GPUSYNC_OK);
    check_bytes(101);
    assert_int_equal(gpusync_commit(on.queue, buffer, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    metal_release(buffer);

    buffer = metal_queue_command_buffer(metal_queue); /* by its owner, told before */
    encode(buffer, 102);
    assert_int_equal(gpusync_track(on.queue, buffer, &ticket), GPUSYNC_OK);
    assert_int_equal(gpusync_wait(on.queue, ticket, 1000000), GPUSYNC_TIMEOUT);
    metal_commit(buffer);
    assert_int_equal(gpusync_wait(on.queue, ticket, LIMIT), GPUSYNC_OK);
    check_bytes(102);
    metal_release(buffer);

    buffer = metal_queue_command_buffer(metal_queue); /* by its owner, not told: an empty one behind it tells its end */
    encode(buffer, 103);
    metal_commit(buffer);
    assert_int_equal(gpusync_command_buffer(on.queue, NULL, &empty), GPUSYNC_OK);
    assert_int_equal(gpusync_commit(on.queue, empty, &ticket), GPUSYNC_OK);
    assert_int_equal(gpusync_wait(on.queue, ticket, LIMIT), GPUSYNC_OK);
    check_bytes(103);
    metal_release(buffer);

    buffer = metal_queue_command_buffer(metal_queue); /* never */
    assert_int_equal(gpusync_track(on.queue, buffer, &ticket), GPUSYNC_OK);
    assert_int_equal(gpusync_untrack(on.queue, ticket), GPUSYNC_OK);
    assert_int_equal(gpusync_wait(on.queue, ticket, LIMIT), GPUSYNC_ERROR_CANCELLED);
    metal_release(buffer);
}

static void *commit_and_wait(void *argument)
{
    unsigned i;
    for (i = 0; i < 100; i++) {
        gpusync_ticket ticket;
        void *buffer;
        if (gpusync_command_buffer(on.queue, NULL, &buffer)) return NULL;
        if (gpusync_commit(on.queue, buffer, &ticket)) return NULL;
        if (gpusync_wait(on.queue, ticket, LIMIT)) return NULL;
    }
    return argument;
}

static void test_four_threads(void **state)
{
    pthread_t threads[4];
    gpusync_stats stats;
    void *done;
    unsigned i;
    NEEDS_DEVICE();
    for (i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, commit_and_wait, &on), 0);
    for (i = 0; i < 4; i++) {
        pthread_join(threads[i], &done);
        assert_ptr_equal(done, &on);
    }
    assert_int_equal(gpusync_queue_wait(on.queue, LIMIT), GPUSYNC_OK);
    assert_int_equal(gpusync_get_stats(on.queue, &stats), GPUSYNC_OK);
    assert_int_equal(stats.commits, stats.completions);
    assert_int_equal(stats.failures, 0);
}

static void test_a_full_queue(void **state)
{
    const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    gpusync_queue_desc queue_desc;
    gpusync_queue *small;
    void *a, *b, *c;
    NEEDS_DEVICE();
    memset(&desc, 0, sizeof desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = 2;
    queue_desc.label = "small";
    desc.timeout_ns = &none;
    assert_int_equal(gpusync_queue_create(on.device, &queue_desc, &small), GPUSYNC_OK);
    assert_int_equal(gpusync_command_buffer(small, &desc, &a), GPUSYNC_OK);
    assert_int_equal(gpusync_command_buffer(small, &desc, &b), GPUSYNC_OK);
    assert_int_equal(gpusync_command_buffer(small, &desc, &c), GPUSYNC_TIMEOUT);
    assert_int_equal(gpusync_command_buffer_discard(small, a), GPUSYNC_OK);
    assert_int_equal(gpusync_command_buffer(small, &desc, &c), GPUSYNC_OK);
    assert_int_equal(gpusync_commit(small, b, NULL), GPUSYNC_OK);
    assert_int_equal(gpusync_commit(small, c, NULL), GPUSYNC_OK);
    assert_int_equal(gpusync_queue_wait(small, LIMIT), GPUSYNC_OK);
    assert_int_equal(gpusync_queue_destroy(small), GPUSYNC_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_version_is_that_of_the_header),
        cmocka_unit_test_setup_teardown(test_nothing_committed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_way_to_wait, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_order_and_times, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_buffers_of_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_four_threads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_full_queue, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
