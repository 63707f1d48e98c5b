/* test_example_two_devices.c - examples/two_devices.c: a failure crosses the bridge, and both sides end in time

   The example is compiled in here, with its implementation, and its main is run: on one MTLDevice, and on two. */
#include "example_run.h"

/* The work of an item, from 1 on. A commit may be held for a moment, so it goes by the order of its queue. */
enum { PER_BATCH = 8, MOST = 4 * PER_BATCH };
#define PRODUCE(batch, item) (((batch) - 1) * PER_BATCH + ((item) - 1) * 2 + 1)
#define CONSUME(batch, item) (PRODUCE(batch, item) + 1)

static bool two;                        /* MTLDevices */
static bool by_steps;                   /* with the manual clock: each batch is stepped when the program waits for it */
static bool out_of_time;                /* the program's waits reach their limit */
static unsigned reasons[MOST + 1];      /* why the work fails; 0: it does not */
static unsigned hung;                   /* this work hangs; 0: none */
static unsigned works[2];               /* of either side so far */
static void *made[MOST + 2];            /* with by_steps: retained until they are stepped */
static unsigned stepped;                /* all up to here have ended */
static softmetal_due fourth, third_end; /* while the callback has not run: of PRODUCE(1, 4), and of CONSUME(1, 3) */

extern void *MTLCopyAllDevices(void);

static void *list_of_devices(void)
{
    void *pool, *list, *device;
    if (!two) return MTLCopyAllDevices();
    pool = metal_pool_push();
    list = metal_get(metal_get(metal__class("NSMutableArray"), "alloc"), "init");
    for (int i = 0; i < 2; i++) {
        device = i ? softmetal_new_device() : metal_device_new();
        METAL__AS(void, void *)(list, metal__sel("addObject:"), device);
        metal_release(device);
    }
    metal_pool_pop(pool);
    return list;
}

static void decide(unsigned n, void *buffer)
{
    char label[64];
    unsigned work, consumes;
    void *pool = metal_pool_push();
    metal_string_copy(metal_get(buffer, "label"), label, sizeof label);
    metal_pool_pop(pool);
    consumes = strcmp(label, "consume") == 0;
    work = 2 * __atomic_fetch_add(&works[consumes], 1, __ATOMIC_SEQ_CST) + 1 + consumes;
    must(work <= MOST, "more work than the test has room for");
    if (reasons[work]) softmetal_fail_as(buffer, reasons[work], NULL);
    if (work == hung) hang(n, buffer);
    if (by_steps) made[work] = metal_retain(buffer);
}

static bool can_end(void *buffer)
{
    softmetal_due due = softmetal_what_is_due(buffer);
    return due == SOFTMETAL_COMPLETE_DUE || due == SOFTMETAL_FAULT_DUE;
}

/* What one side has, in its order, until one has to wait. */
static void step(bool consumes)
{
    for (unsigned n = stepped + 1 + consumes; n <= MOST; n += 2) {
        if (!made[n]) continue;
        if (!can_end(made[n])) return;
        softmetal_finish(made[n]);
        metal_release(made[n]);
        made[n] = NULL;
    }
}

/* The signals come as far as they can, then the waits see them. Callbacks run only then: so a failure is told late. */
static void step_batch(void)
{
    softmetal_set_dispatch_threads(0);
    step(false);
    if (made[PRODUCE(1, 4)]) fourth = softmetal_what_is_due(made[PRODUCE(1, 4)]);
    step(true);
    if (made[CONSUME(1, 3)]) third_end = softmetal_what_is_due(made[CONSUME(1, 3)]);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    assert_true(softmetal_dispatched(SECONDS(20)));
    step(false);
    step(true);
    stepped += PER_BATCH;
}

static gpusync_result watched_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns)
{
    if (by_steps && stepped < 2 * works[0]) step_batch();
    return gpusync_wait(queue, ticket, out_of_time ? 0 : timeout_ns);
}

#define MTLCopyAllDevices list_of_devices
#define gpusync_wait watched_wait
#define main example_main
#include "../examples/two_devices.c"
#undef main
#undef gpusync_wait
#undef MTLCopyAllDevices
#include "example_end.h"

static int set_up(void **state)
{
    two = by_steps = out_of_time = false;
    stepped = hung = works[0] = works[1] = 0;
    memset(reasons, 0, sizeof reasons);
    fourth = third_end = SOFTMETAL_NOTHING_DUE;
    memset(made, 0, sizeof made);
    set_up_world(state);
    world.at_commit = decide;
    return 0;
}

/* What the program says of batch 1 to 3. */
static void assert_items(const char *devices, unsigned first, unsigned second, unsigned third)
{
    char lines[256];
    snprintf(lines, sizeof lines,
             "two devices of %s\n"
             "batch 1: %u of 4 items\n"
             "batch 2: %u of 4 items\n"
             "batch 3: %u of 4 items\n",
             devices, first, second, third);
    assert_said(lines);
}

/* -- the tests --------------------------------------------------------------------------------------------------- */

static void test_two_devices_of_one_metal_device(void **state)
{
    (void)state;
    assert_int_equal(example_main(), 0);
    assert_items("one MTLDevice", 4, 4, 4);
    assert_string_equal(complained.text, "");
    assert_int_equal(world.commits, 3 * PER_BATCH);
}

static void test_two_metal_devices(void **state)
{
    (void)state;
    two = true;
    assert_int_equal(example_main(), 0);
    assert_items("two MTLDevices", 4, 4, 4);
}

/* Item 3 fails, and its callback runs late, when item 4 has come as far as it can. The signal of item 4 does not cover
   that of item 3. */
static void test_a_failure_crosses_the_bridge(void **state)
{
    (void)state;
    by_steps = true;
    reasons[PRODUCE(1, 3)] = SOFTMETAL_PAGE_FAULT;
    softmetal_set_clock(SOFTMETAL_MANUAL);
    assert_int_equal(example_main(), 1);
    assert_int_equal(fourth, SOFTMETAL_WAIT_DUE);
    assert_int_equal(third_end, SOFTMETAL_WAIT_DUE);
    assert_items("one MTLDevice", 2, 4, 4);
    assert_has(&complained, "produce, ticket 3: Caused GPU Address Fault Error");
    assert_has(&complained, "produce, ticket 4: ");
    assert_has(&complained, "consume, ticket 3: ");
    assert_has(&complained, "consume, ticket 4: ");
}

/* Nothing is arranged but the failure: both sides end, and the next batch goes well. */
static void test_both_sides_end_in_time(void **state)
{
    for (unsigned item = 1; item <= ITEMS; item++) {
        unsigned good;
        set_up(state);
        reasons[PRODUCE(2, item)] = SOFTMETAL_INNOCENT_VICTIM;
        two = item % 2 == 0;
        assert_int_equal(example_main(), 1);
        assert_has(&said, "batch 1: 4 of 4 items\nbatch 2: ");
        assert_has(&said, "batch 3: 4 of 4 items\n");
        assert_int_equal(sscanf(strstr(said.text, "batch 2: "), "batch 2: %u", &good), 1);
        assert_true(good < item);
        tear_down_world(state);
    }
}

static void test_a_consumer_that_fails_costs_its_item(void **state)
{
    (void)state;
    reasons[CONSUME(1, 2)] = SOFTMETAL_PAGE_FAULT;
    assert_int_equal(example_main(), 1);
    assert_items("one MTLDevice", 3, 4, 4);
    assert_has(&complained, "consume, ticket 2: Caused GPU Address Fault Error");
}

static void test_a_gpu_that_hangs_ends_the_program(void **state)
{
    (void)state;
    hung = PRODUCE(1, 2);
    out_of_time = true;
    assert_int_equal(example_main(), 1);
    assert_said("two devices of one MTLDevice\n");
    assert_has(&complained, "gpusync_wait: the time limit passed first; the work goes on\n");
}

static void test_without_a_device_it_is_skipped(void **state)
{
    (void)state;
    softmetal_fail_creation(1, true);
    assert_int_equal(example_main(), 77);
    assert_string_equal(complained.text, "skipped: Metal has no device\n");
}

#define story(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(test_two_devices_of_one_metal_device),
        story(test_two_metal_devices),
        story(test_a_failure_crosses_the_bridge),
        cmocka_unit_test(test_both_sides_end_in_time),
        story(test_a_consumer_that_fails_costs_its_item),
        story(test_a_gpu_that_hangs_ends_the_program),
        story(test_without_a_device_it_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
