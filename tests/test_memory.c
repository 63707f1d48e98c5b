/* test_memory.c - what gpusync allocates for each of a kind, and what it keeps after a burst of them

   It prints the bytes. Their limits are for 64-bit machines. A burst is of 10,000, or of BURST, 1,000 to 100,000. */
#include "kit.h"

#define MOST 100000u

static unsigned burst = 10000;
static void *made[MOST];
static note called;

/* -- kinds: `make` makes number i of a burst, from 1 on, and `end` ends it ----------------------------------------- */

static void make_buffer(stage *s, unsigned i)
{
    made[i - 1] = new_buffer(s->q[0]);
}

static void discard(stage *s, unsigned i)
{
    assert_ok(gpusync_command_buffer_discard(s->q[0], made[i - 1]));
}

static void make_sent(stage *s, unsigned i)
{
    make_buffer(s, i);
    commit(s->q[0], made[i - 1]);
}

static void finish_one(stage *s, unsigned i)
{
    softmetal_finish(made[i - 1]);
}

static void make_ended(stage *s, unsigned i)
{
    make_sent(s, i);
    finish_one(s, i);
}

static void make_failed(stage *s, unsigned i)
{
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    finish_next(s->q[0]);
}

static void make_held(stage *s, unsigned i)
{
    make_buffer(s, i);
    encode_wait(s->q[0], made[i - 1], at(s->t[0], i));
    commit(s->q[0], made[i - 1]);
}

static void make_callback(stage *s, unsigned i)
{
    on_done(at(s->t[0], i), &called);
}

static void signal_one(stage *s, unsigned i)
{
    signal_value(s->t[0], i);
}

static void release_one(stage *s, unsigned i)
{
    signal_value(s->t[0], i);
    softmetal_finish(made[i - 1]);
}

static void make_queue(stage *s, unsigned i)
{
    const gpusync_queue_desc desc = {.error_log_count = 1};
    assert_ok(gpusync_queue_create(s->device, &desc, (gpusync_queue **)&made[i - 1]));
}

static void make_default_queue(stage *s, unsigned i)
{
    assert_ok(gpusync_queue_create(s->device, NULL, (gpusync_queue **)&made[i - 1]));
}

static void destroy_queue(stage *s, unsigned i)
{
    assert_ok(gpusync_queue_destroy((gpusync_queue *)made[i - 1]));
}

static void make_timeline(stage *s, unsigned i)
{
    made[i - 1] = new_timeline(s->device);
}

static void destroy_timeline(stage *s, unsigned i)
{
    assert_ok(gpusync_timeline_destroy((gpusync_timeline *)made[i - 1]));
}

static const struct kind {
    const char *name;
    void (*make)(stage *s, unsigned i), (*end)(stage *s, unsigned i);
    unsigned part; /* of the burst */
    long most;     /* bytes for each */
} kinds[] = {
    {"ticket, ended", make_ended, NULL, 1, 0},
    {"ticket, failed", make_failed, NULL, 1, 0},
    {"ticket, in flight", make_sent, finish_one, 1, 720},
    {"ticket, held", make_held, release_one, 1, 720},
    {"open command buffer", make_buffer, discard, 1, 720},
    {"callback", make_callback, signal_one, 1, 700},
    {"timeline", make_timeline, destroy_timeline, 1, 1750},
    {"queue, a log of one", make_queue, destroy_queue, 1, 12000},
    {"queue", make_default_queue, destroy_queue, 100, 52000},
};

/* Beside a tenth of the peak there may stay one piece of work, for the next ticket. */
without_stage(test_a_burst_leaves_a_tenth_of_its_memory_at_most)
{
    for (const struct kind *k = kinds; k < kinds + LENGTH(kinds); k++) {
        stage s;
        stage_open(&s, &(stage_desc){.timelines = 1, .queue.max_command_buffer_count = burst,
                                     .device.callback_mode = GPUSYNC_CALLBACKS_MANUAL});
        const unsigned count = burst / k->part;
        const long before = kit_now().bytes, live = softmetal_live(NULL);
        for (unsigned i = 1; i <= count; i++) k->make(&s, i);
        const long peak = kit_now().bytes - before, objects = softmetal_live(NULL) - live;
        for (unsigned i = 1; k->end && i <= count; i++) k->end(&s, i);
        run_callbacks(&s);
        const long left = kit_now().bytes - before, objects_left = softmetal_live(NULL) - live;
        print_message("%-19s %5ld bytes each; of %u, %ld bytes, stay %ld; of %ld objects %ld\n", k->name,
                      peak / (long)count, count, peak, left, objects, objects_left);
        stage_close(&s);
        assert_true(peak / (long)count <= k->most);
        assert_true(left <= peak / 10 + 720);
        assert_true(objects_left <= objects / 10);
    }
}

/* -- waits that sleep: each is over when it has parked ------------------------------------------------------------- */

static stage *asleep;
static char *awake; /* an address in the frame of the caller */
static long bytes, in_park, deepest;

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    char here = 0;
    in_park = kit_now().bytes - bytes;
    deepest = awake - &here > deepest ? awake - &here : deepest;
    signal_value(asleep->t[0], value_of(asleep->t[0]) + 1);
}

static void unpark(void *user, gpusync_waiter *waiter)
{
}

static const gpusync_hooks hooks = {NULL, park, unpark, NULL};

on_stage_with(test_a_wait_that_sleeps_has_no_memory_but_its_stack, .timelines = 1, .device.hooks = &hooks)
{
    char here = 0;
    asleep = s;
    awake = &here;
    bytes = kit_now().bytes;
    for (unsigned i = 1; i <= burst; i++) {
        assert_ok(gpusync_timeline_wait(asleep->t[0], i, GPUSYNC_FOREVER, NULL));
        assert_int_equal(in_park, 0);
    }
    print_message("wait that sleeps        0 bytes; %ld of the stack\n", deepest);
    assert_int_equal(kit_now().bytes, bytes);
}

/* More points than the frame has room for take memory for as long as the call lasts. */
on_stage_with(test_a_wait_for_many_points_gives_its_memory_back, .timelines = 1, .device.hooks = &hooks)
{
    enum { POINTS = 1000 };
    gpusync_point points[POINTS];
    asleep = s;
    bytes = kit_now().bytes;
    for (uint64_t i = 1; i <= burst / 10; i++) {
        for (unsigned k = 0; k < POINTS; k++) points[k] = at(asleep->t[0], i);
        assert_ok(gpusync_wait_many(points, POINTS, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
    }
    print_message("wait for %u points %7ld bytes\n", POINTS, in_park);
    assert_true(in_park > 0 && in_park <= 128 * POINTS);
    assert_int_equal(kit_now().bytes, bytes);
}

int main(void)
{
    if (getenv("BURST")) burst = (unsigned)strtoul(getenv("BURST"), NULL, 10);
    must(burst >= 1000 && burst <= MOST, "BURST is from 1000 to 100000");
    return run_all_tests();
}
