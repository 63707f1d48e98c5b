/* test_spin.c - how long a wait spins before it sleeps: budgets of the program's, and what it decides by itself

   In the time of world.h. What is seen of a wait: when it parked first, how often it yielded. */
#define GPUSYNC_IMPLEMENTATION
#include "world.h"

/* From the begin of the wait to its first park, or to its end. */
static uint64_t spun(void)
{
    return world.parks ? world.began[0] - world.begun : world_passed();
}

static void *commit_one(stage *s, gpusync_ticket *ticket)
{
    void *buffer = new_buffer(s->q[0]);
    *ticket = commit(s->q[0], buffer);
    return buffer;
}

/* Work that ends so long after the wait for it has begun. s: it spun to the end; V: it spun, then slept; P: it slept at
   once. */
static char turn(stage *s, uint64_t took_ns)
{
    gpusync_ticket ticket;
    void *buffer = commit_one(s, &ticket);
    world_begin();
    plan(took_ns, finish_now, buffer);
    assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL));
    if (!world.parks) return 's';
    return spun() > US(2) ? 'V' : 'P';
}

/* -- budgets ------------------------------------------------------------------------------------------------------- */

on_world(test_T8_a_budget_of_zero_sleeps_at_once)
{
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(turn(s, i % 2 ? US(5) : MS(3)), 'P');
        assert_int_equal(world.parks, 1);
        assert_int_equal(world.yields, 0);
    }
}

/* Work that does not end: the whole budget, and not more, then a park. */
on_world(test_T8_the_budget_is_spent_before_the_first_park)
{
    static const struct {
        gpusync_spin spin;
        unsigned long yields;
        uint64_t ns; /* 0: as long as it takes */
    } rows[] = {
        {{0, 7, 0}, 7, 0},
        {{100, 0, 0}, 0, 0},
        {{50, 30, 0}, 30, 0},
        {{0, 0, US(300)}, 0, US(300)},
        {{UINT32_MAX, 0, US(100)}, 0, US(100)},
        {{UINT32_MAX, UINT32_MAX, US(100)}, 0, US(100)},
        {{10, 10, MS(1)}, 10, 0},
        {{0, 200, US(500)}, 200, 0},
        {{0, 7, UINT64_MAX}, 7, 0},
    };
    gpusync_ticket ticket;
    void *buffer = commit_one(s, &ticket);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const gpusync_wait_options options = {.spin = &rows[i].spin};
        world_begin();
        assert_result(gpusync_wait(s->q[0], ticket, MS(2), &options), GPUSYNC_TIMEOUT);
        assert_int_equal(world.yields, rows[i].yields);
        assert_int_equal(world.parks, 1);
        if (rows[i].ns) assert_about(spun(), rows[i].ns);
        else assert_true(spun() < US(300));
    }
    softmetal_finish(buffer);
}

on_world(test_T8_yields_end_with_the_time)
{
    static const gpusync_spin spin = {0, UINT32_MAX, US(100)};
    const gpusync_wait_options options = {.spin = &spin};
    gpusync_ticket ticket;
    void *buffer = commit_one(s, &ticket);
    assert_result(gpusync_wait(s->q[0], ticket, MS(2), &options), GPUSYNC_TIMEOUT);
    assert_about(spun(), US(100));
    assert_true(world.yields > 10);
    softmetal_finish(buffer);
}

on_world(test_T8_more_pauses_take_longer)
{
    gpusync_ticket ticket;
    void *buffer = commit_one(s, &ticket);
    uint64_t last = 0;
    for (uint32_t n = 100; n <= 800; n *= 2) {
        const gpusync_spin spin = {n, 0, 0};
        const gpusync_wait_options options = {.spin = &spin};
        world_begin();
        assert_result(gpusync_wait(s->q[0], ticket, MS(2), &options), GPUSYNC_TIMEOUT);
        assert_true(spun() > last);
        last = spun();
    }
    softmetal_finish(buffer);
}

on_world(test_T8_an_end_while_it_spins_parks_no_thread)
{
    static const gpusync_spin rows[] = {{0, 1000000, 0}, {1000000, 0, 0}, {0, 0, MS(10)}};
    for (size_t i = 0; i < LENGTH(rows); i++) {
        for (unsigned by_handler = 0; by_handler < 2; by_handler++) {
            const gpusync_wait_options options = {.spin = &rows[i]};
            gpusync_ticket ticket;
            void *buffer = commit_one(s, &ticket);
            world_begin();
            plan(US(50), by_handler ? finish_now : complete_now, buffer);
            assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, &options));
            assert_about(world_passed(), US(50)); /* it looks often */
            assert_int_equal(world.parks, 0);
            if (!by_handler) softmetal_finish(buffer);
        }
    }
}

static gpusync_queue *asked_of;
static bool was_done;

static void see_times(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase == SOFTMETAL_BEFORE && strcmp(selector, "GPUStartTime") == 0)
        was_done = gpusync_is_done(asked_of, GPUSYNC_EVERYTHING);
}

/* They may be slow to read: a handler wakes those that sleep before it reads them. */
on_world(test_a_sleeper_does_not_wait_for_GPU_times)
{
    gpusync_times times;
    gpusync_ticket ticket;
    void *buffer = commit_one(s, &ticket);
    const uint64_t asked = times_asked();
    world_begin();
    plan(MS(20), finish_now, buffer);
    assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL));
    assert_int_equal(world.unparks, 1);
    assert_true(world.times_asked == asked);
    assert_ok(gpusync_poll(s->q[0], ticket, &times));
    assert_true(times.gpu_end_s > 0);
    asked_of = s->q[0]; /* without a thread that waits they come first, as cheap as can be */
    was_done = true;
    softmetal_set_message_hook(see_times, NULL);
    softmetal_finish(commit_one(s, &ticket));
    softmetal_set_message_hook(NULL, NULL);
    assert_false(was_done);
}

on_world_with(test_a_spin_that_finds_the_end_has_asked_for_no_GPU_times, .spins = true)
{
    gpusync_ticket ticket;
    void *buffer = commit_one(s, &ticket);
    const uint64_t asked = times_asked();
    world_begin();
    plan(US(15), complete_now, buffer);
    assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), US(15));
    assert_true(gpusync_is_done(s->q[0], ticket));
    assert_true(times_asked() == asked);
    softmetal_finish(buffer);
    assert_true(times_asked() > asked);
}

on_world(test_S5_a_limit_inside_the_spin_is_kept)
{
    static const gpusync_spin rows[] = {{0, UINT32_MAX, 0}, {UINT32_MAX, 0, 0}, {0, 0, SECONDS(10)}};
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const gpusync_wait_options options = {.spin = &rows[i]};
        gpusync_ticket ticket;
        void *buffer = commit_one(s, &ticket);
        world_begin();
        assert_result(gpusync_wait(s->q[0], ticket, US(400), &options), GPUSYNC_TIMEOUT);
        assert_about(world_passed(), US(400));
        assert_int_equal(world.parks, 0);
        /* What has ended by then has ended. */
        world_begin();
        plan(US(400), complete_now, buffer);
        assert_ok(gpusync_wait(s->q[0], ticket, US(401), &options));
        assert_about(world_passed(), US(400));
        softmetal_finish(buffer);
    }
}

/* The limit may have passed when the spin is to begin, as where the thread had to stand back in between: nothing is
   left to spin for. */
on_world(test_S5_a_limit_that_has_passed_before_the_spin_is_kept)
{
    static const gpusync_spin spin = {0, 0, SECONDS(1)};
    const gpusync_wait_options options = {.spin = &spin};
    gpusync_ticket ticket;
    void *buffer = commit_one(s, &ticket);
    assert_result(gpusync_wait(s->q[0], ticket, 1, &options), GPUSYNC_TIMEOUT);
    assert_about(world_passed(), 1);
    softmetal_finish(buffer);
}

/* -- whose budget it is -------------------------------------------------------------------------------------------- */

static const gpusync_spin of_device = {0, 3, 0}, of_queue = {0, 5, 0}, of_call = {0, 7, 0};

on_world_with(test_T8_the_spin_of_the_call_the_queue_or_the_device_counts, .timelines = 1,
              .device = {.spin = &of_device}, .queue = {.spin = &of_queue})
{
    const gpusync_wait_options call = {.spin = &of_call}, empty = {0};
    gpusync_queue *plain;
    gpusync_point two[2];
    gpusync_queue_desc desc = {.label = "plain"};
    assert_ok(gpusync_queue_create(s->device, &desc, &plain));
    commit_new(plain);
    commit_new(s->q[0]);
    two[0] = ticket_at(s->q[0], 1);
    two[1] = at(s->t[0], 1);
#define YIELDS(wait, expected)                    \
    do {                                          \
        world_begin();                            \
        assert_result(wait, GPUSYNC_TIMEOUT);     \
        assert_int_equal(world.yields, expected); \
    } while (0)
    YIELDS(gpusync_wait(plain, 1, MS(1), NULL), 3);
    YIELDS(gpusync_wait(plain, 1, MS(1), &call), 7);
    YIELDS(gpusync_wait(s->q[0], 1, MS(1), NULL), 5);
    YIELDS(gpusync_wait(s->q[0], 1, MS(1), &empty), 5);
    YIELDS(gpusync_wait(s->q[0], 1, MS(1), &call), 7);
    YIELDS(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, MS(1), NULL), 5);
    YIELDS(gpusync_timeline_wait(s->t[0], 1, MS(1), NULL), 3);
    YIELDS(gpusync_timeline_wait(s->t[0], 1, MS(1), &call), 7);
    YIELDS(gpusync_wait_many(two, 2, GPUSYNC_WAIT_ALL, MS(1), NULL, NULL), 3);
    YIELDS(gpusync_wait_many(two, 2, GPUSYNC_WAIT_ANY, MS(1), &call, NULL), 7);
    YIELDS(gpusync_device_wait(s->device, MS(1), NULL), 3);
    YIELDS(gpusync_device_wait(s->device, MS(1), &call), 7);
#undef YIELDS
    assert_true(finish_next(plain));
    assert_ok(gpusync_queue_destroy(plain));
}

/* -- what a wait decides by itself --------------------------------------------------------------------------------- */

#define BLIND US(20) /* where nothing is known */

on_world_with(test_T8_a_first_wait_spins_for_20_us, .timelines = 2, .spins = true)
{
    const gpusync_point two[] = {at(s->t[0], 1), at(s->t[1], 1)};
    assert_int_equal(turn(s, MS(5)), 'V');
    assert_about(spun(), BLIND);
    world_begin();
    assert_result(gpusync_timeline_wait(s->t[0], 1, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_about(spun(), BLIND);
    world_begin();
    assert_result(gpusync_wait_many(two, 2, GPUSYNC_WAIT_ANY, MS(1), NULL, NULL), GPUSYNC_TIMEOUT);
    assert_about(spun(), BLIND);
}

on_world_with(test_T8_a_wait_spins_to_the_end_of_short_work, .spins = true)
{
    static const uint64_t short_ns[] = {US(5), US(40), US(100), US(180)};
    for (size_t i = 0; i < LENGTH(short_ns); i++) {
        for (unsigned n = 0; n < 40; n++) turn(s, short_ns[i]); /* it learns */
        for (unsigned n = 0; n < 100; n++) {
            assert_int_equal(turn(s, short_ns[i]), 's');
            assert_about(world_passed(), short_ns[i]);
        }
    }
}

/* An end later than in 250 us is not spun for. */
on_world_with(test_T8_a_wait_does_not_spin_to_the_end_of_long_work, .spins = true)
{
    static const uint64_t long_ns[] = {US(400), MS(2), MS(10)};
    for (size_t i = 0; i < LENGTH(long_ns); i++) {
        for (unsigned n = 0; n < 40; n++) turn(s, long_ns[i]);
        for (unsigned n = 0; n < 100; n++) {
            assert_true(turn(s, long_ns[i]) != 's');
            assert_true(spun() <= BLIND + WORLD_SLACK);
        }
    }
}

/* After spins in vain they become fewer: from one to the next never sooner than before, and in the end seldom. */
on_world_with(test_T8_spins_in_vain_become_fewer, .spins = true)
{
    enum { WAITS = 4000 };
    unsigned i, last = 0, gap = 0, spins = 0, late = 0;
    for (i = 1; i <= WAITS; i++) {
        if (turn(s, MS(1)) != 'V') continue;
        if (spins) {
            assert_true(i - last >= gap);
            gap = i - last;
        }
        last = i;
        spins++;
        if (i > WAITS / 2) late++;
    }
    assert_true(spins >= 2); /* it tries, */
    assert_true(gap > 50);
    assert_true(late <= WAITS / 2 / 50); /* ... and seldom */
}

on_world_with(test_T8_a_queue_whose_work_becomes_short_again_is_spun_for_again, .spins = true)
{
    unsigned n;
    for (unsigned i = 0; i < 200; i++) turn(s, MS(10));
    for (n = 0; n < 10000 && turn(s, US(10)) != 's'; n++) {}
    assert_true(n < 10000);
    for (unsigned i = 0; i < 40; i++) turn(s, US(10));
    for (unsigned i = 0; i < 100; i++) assert_int_equal(turn(s, US(10)), 's');
}

on_world_with(test_T8_what_one_queue_has_cost_in_vain_another_does_not_pay, .queues = 2, .spins = true)
{
    for (unsigned i = 0; i < 500; i++) turn(s, MS(1));
    assert_int_equal(turn(s, MS(1)), 'P');
    void *buffer = new_buffer(s->q[1]);
    gpusync_ticket ticket = commit(s->q[1], buffer);
    world_begin();
    plan(US(15), finish_now, buffer);
    assert_ok(gpusync_wait(s->q[1], ticket, GPUSYNC_FOREVER, NULL));
    assert_int_equal(world.parks, 0);
}

on_world_with(test_S5_a_limit_inside_the_spin_that_it_chose_is_kept, .spins = true)
{
    gpusync_ticket ticket;
    void *buffer = commit_one(s, &ticket);
    world_begin();
    assert_result(gpusync_wait(s->q[0], ticket, US(10), NULL), GPUSYNC_TIMEOUT);
    assert_about(world_passed(), US(10));
    assert_int_equal(world.parks, 0);
    softmetal_finish(buffer);
}
