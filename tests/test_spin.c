/* test_spin.c - how long a wait looks again and again before it sleeps, where the program has not set it

   One thread, the manual clock, and a clock of the library's that moves by 100 ns with each look at it. A test plans
   when the GPU ends with a command buffer. That comes true when the clock has got there: at the wait's next look at a
   status or a value, in the yield hook, or in the park hook, where time passes at once. So what a wait decides is the same
   on every run. The library's times of work come from the same clock.

   It also runs on queues of Metal 4. A wait for their work sends no message, so there is always a yield hook. */
#include <math.h>
#include <stdint.h>

#include "clock.h"
#include "probe.h"
#include "stage.h"

#define US(n) ((uint64_t)(n) * 1000u)
#define BLIND US(20)
#define TAKEN 16 /* tickets whose times a queue remembers; the longest of them does not count */
#define SLACK US(5) /* what the looks at the clock add to a time */

/* -- a GPU that keeps to a plan ---------------------------------------------------------------------------------- */

#define MAX_PLANNED 32u

typedef struct planned {
    uint64_t end_ns, late_ns; /* the second is in the first: so long before it the GPU has ended */
    void *buffer;     /* to be finished then; else */
    void *queue;      /* all of this Metal queue; else */
    gpusync_timeline *timeline; /* signalled by the host with */
    uint64_t value;
} planned;

typedef struct world {
    rig r;
    gpusync_timeline *t;
    gpusync_queue *other; /* for blind_work */
    gpusync_timeline *others;
    gpusync_hooks hooks;
    pthread_t thread; /* the test's */
    planned plan[MAX_PLANNED];
    unsigned count, next;
    bool waiting, busy;         /* a wait is running; the plan comes true */
    bool no_times, odd;         /* what the GPU tells of its times */
    double odd_s;               /* odd: always this; else added, for another clock */
    long looks, parks, yields;
    uint64_t spun_ns;           /* of the last turn */
    uint64_t expected_ns;       /* of the last wait that was traced */
    uint64_t gpu_ns;            /* the GPU's clock */
} world;

static world *the_world;

static double gpu_seconds(void)
{
    if (the_world->no_times) return 0;
    return the_world->odd ? the_world->odd_s : (double)GET(&the_world->gpu_ns) / 1e9 + the_world->odd_s;
}

/* What is due by now comes true. */
static void go_on(world *w)
{
    if (w->busy) return;
    w->busy = true;
    while (w->next < w->count && w->plan[w->next].end_ns <= GET(&clock_now)) {
        planned *p = &w->plan[w->next++];
        PUT(&w->gpu_ns, p->end_ns - p->late_ns);
        if (p->buffer) softmetal_finish(p->buffer);
        else if (p->queue) softmetal_finish_queue(p->queue);
        else must(gpusync_timeline_signal(p->timeline, p->value) == GPUSYNC_OK, "a signal by the host");
    }
    w->busy = false;
}

static void look_hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    world *w = (world *)user;
    (void)object;
    if (phase != SOFTMETAL_AFTER || !w->waiting || w->busy || !pthread_equal(pthread_self(), w->thread)) return;
    if (strcmp(selector, "status") != 0 && strcmp(selector, "signaledValue") != 0) return;
    w->looks++;
    go_on(w);
}

static void world_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    world *w = (world *)user;
    uint64_t end = w->next < w->count ? w->plan[w->next].end_ns : GPUSYNC_FOREVER;
    (void)waiter;
    w->parks++;
    if (end > deadline_ns) end = deadline_ns;
    must(end != GPUSYNC_FOREVER, "a sleep that nothing ends");
    if (end > GET(&clock_now)) PUT(&clock_now, end);
    go_on(w);
}

static void world_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    (void)waiter;
}

static void world_yield(void *user)
{
    world *w = (world *)user;
    w->yields++;
    if (w->waiting) go_on(w);
}

static void world_trace(void *user, const gpusync_trace_event *event)
{
    world *w = (world *)user;
    if (event->kind == GPUSYNC_TRACE_WAIT_BEGIN) w->expected_ns = event->expected_ns;
}

static void world_open_on(world *w, queue_kind kind, uint32_t limit, const gpusync_spin *of_device,
                          const gpusync_spin *of_queue, bool yields)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(w, 0, sizeof *w);
    the_world = w;
    w->thread = pthread_self();
    PUT(&clock_now, SECONDS(1000));
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    w->hooks.yield = yields || metal4_run() ? world_yield : NULL;
    w->hooks.park = world_park;
    w->hooks.unpark = world_unpark;
    w->hooks.user = w;
    device_desc.hooks = &w->hooks;
    device_desc.spin = of_device;
    queue_desc.spin = of_queue;
    queue_desc.max_command_buffer_count = limit;
    rig_open_on(&w->r, SOFTMETAL_MANUAL, kind, device_desc, queue_desc);
    w->t = timeline_new(w->r.device);
    softmetal_set_gpu_clock(gpu_seconds);
    softmetal_set_message_hook(look_hook, w);
}

static void world_open(world *w, const gpusync_spin *of_device, const gpusync_spin *of_queue, bool yields)
{
    world_open_on(w, QUEUE_OF_GPUSYNC, 0, of_device, of_queue, yields);
}

static void world_close(world *w)
{
    assert_int_equal(w->next, w->count);
    softmetal_set_message_hook(NULL, NULL);
    softmetal_finish_queue(w->r.metal_queue);
    assert_ok(gpusync_queue_destroy(w->other));
    assert_ok(gpusync_timeline_destroy(w->t));
    assert_ok(gpusync_timeline_destroy(w->others));
    rig_close(&w->r);
}

static planned *will(world *w, uint64_t in_ns)
{
    planned *p;
    if (w->next == w->count) w->next = w->count = 0;
    assert_true(w->count < MAX_PLANNED);
    p = &w->plan[w->count++];
    memset(p, 0, sizeof *p);
    p->end_ns = GET(&clock_now) + in_ns;
    return p;
}

/* A commit that the GPU is to end with in so many ns from now. */
static gpusync_ticket commit_for(world *w, uint64_t in_ns)
{
    void *buffer;
    gpusync_ticket ticket = commit_empty(&w->r, &buffer);
    will(w, in_ns)->buffer = buffer;
    return ticket;
}

static gpusync_ticket submit_for(world *w, const gpusync_submission *submission, uint64_t in_ns)
{
    gpusync_ticket ticket = submit_well(w->r.queue, submission);
    will(w, in_ns)->queue = w->r.metal_queue;
    return ticket;
}

static gpusync_stats all_stats(world *w)
{
    gpusync_stats stats;
    assert_ok(gpusync_device_get_stats(w->r.device, &stats));
    return stats;
}

/* What a wait did: it spun to the end, spun in Vain and slept, or Parked at once; timed out (T: after a spin). */
static char how(world *w, const gpusync_stats *before)
{
    gpusync_stats now = all_stats(w);
    bool vain = now.spins_in_vain != before->spins_in_vain;
    w->spun_ns = now.spin_ns - before->spin_ns;
    if (now.waits_unmet != before->waits_unmet) return vain ? 'T' : 't';
    if (now.waits_spin != before->waits_spin) return vain ? '?' : 's';
    if (now.waits_sleep != before->waits_sleep) return vain ? 'V' : 'P';
    return '-';
}

static char wait_to(world *w, gpusync_point point, uint64_t timeout_ns, const gpusync_spin *spin)
{
    gpusync_stats before = all_stats(w);
    gpusync_wait_options options;
    gpusync_result result;
    memset(&options, 0, sizeof options);
    options.spin = spin;
    w->looks = w->parks = w->yields = 0;
    w->waiting = true;
    if (point.timeline) result = gpusync_timeline_wait(point.timeline, point.value, timeout_ns, &options);
    else result = gpusync_wait_ex(point.queue, point.ticket, timeout_ns, &options);
    w->waiting = false;
    if (result != GPUSYNC_TIMEOUT) assert_ok(result);
    return how(w, &before);
}

static char wait_for(world *w, gpusync_ticket ticket)
{
    return wait_to(w, after(w->r.queue, ticket), GPUSYNC_FOREVER, NULL);
}

/* Work of this length, and a wait for it at once. */
static char turn(world *w, uint64_t took_ns) { return wait_for(w, commit_for(w, took_ns)); }

static void teach(world *w, uint64_t took_ns, unsigned turns)
{
    while (turns--) (void)turn(w, took_ns);
}

#define assert_about(ns, expected) assert_about_at((ns), (expected), __FILE__, __LINE__)
static void assert_about_at(uint64_t ns, uint64_t expected, const char *file, int line)
{
    if (ns + SLACK >= expected && ns <= expected + 2 * SLACK) return;
    print_error("%llu ns, expected about %llu\n", (unsigned long long)ns, (unsigned long long)expected);
    _fail(file, line);
}

/* -- one after the other ------------------------------------------------------------------------------------------ */

static void test_the_first_wait_of_a_queue_spins_for_20_us(void **state)
{
    world w;
    (void)state;
    world_open(&w, NULL, NULL, false);
    assert_int_equal(turn(&w, US(10)), 's');
    world_close(&w);
    world_open(&w, NULL, NULL, false);
    assert_int_equal(turn(&w, US(1000)), 'V');
    assert_about(w.spun_ns, BLIND);
    assert_int_equal(w.parks, 1);
    world_close(&w);
}

static void test_from_the_second_on_it_spins_to_the_end_of_short_work(void **state)
{
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    assert_int_equal(turn(&w, US(150)), 'V');
    for (i = 2; i <= 100; i++) {
        assert_int_equal(turn(&w, US(150)), 's');
        assert_about(w.spun_ns, US(150));
        assert_int_equal(w.parks, 0);
        if (i % 10 == 0) PUT(&clock_now, GET(&clock_now) + MS(5)); /* a queue that was idle for a while */
    }
    world_close(&w);
}

static void test_it_looks_five_times_a_microsecond_at_most(void **state)
{
    world w;
    (void)state;
    NOT_ON_METAL4("a look sends no message");
    world_open(&w, NULL, NULL, false);
    teach(&w, US(100), 2);
    assert_int_equal(turn(&w, US(100)), 's');
    assert_true((uint64_t)w.looks <= w.spun_ns / 200 + 1); /* 1: before the spin */
    assert_true((uint64_t)w.looks >= w.spun_ns / 1000);
    world_close(&w);
}

static void test_what_ends_later_than_250_us_from_now_is_not_spun_for(void **state)
{
    world w;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(240), TAKEN);
    assert_int_equal(turn(&w, US(240)), 's');
    teach(&w, US(260), TAKEN);
    assert_int_equal(turn(&w, US(260)), 'P');
    assert_int_equal(w.spun_ns, 0);
    world_close(&w);
}

/* ... though it would cost little more, where nearly all is short. */
static void test_no_spin_goes_for_the_seldom_end_that_is_later(void **state)
{
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 0; i < 8 * (int)TAKEN; i++) {
        char how = turn(&w, US(i % (int)TAKEN ? 5 : 280));
        if (i < 4 * (int)TAKEN) continue;
        assert_int_equal(how, i % (int)TAKEN ? 's' : 'V');
        assert_true(w.spun_ns < US(100));
    }
    world_close(&w);
}

/* Half of it takes 40 us, half of it 2 ms: a spin goes for the short half, and no longer. */
static void test_of_short_and_long_work_the_short_is_spun_for(void **state)
{
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 0; i < 2 * (int)TAKEN; i++) (void)turn(&w, US(i % 2 ? 40 : 2000));
    for (i = 0; i < 100; i++) {
        assert_int_equal(turn(&w, US(2000)), 'V');
        assert_about(w.spun_ns, US(40 + 50));
        assert_int_equal(turn(&w, US(40)), 's');
        assert_about(w.spun_ns, US(40));
    }
    world_close(&w);
}

/* One in eight takes 40 us: that is too seldom. */
static void test_what_is_seldom_short_is_not_spun_for(void **state)
{
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 0; i < 2 * (int)TAKEN; i++) (void)turn(&w, US(i % 8 ? 2000 : 40));
    for (i = 0; i < 100; i++) assert_int_equal(turn(&w, US(i % 8 ? 2000 : 40)), 'P');
    world_close(&w);
}

/* 60, 60, 230: a spin for all of them costs less than one for the short ones and a sleep for the third. */
static void test_where_the_long_work_is_near_enough_all_is_spun_for(void **state)
{
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 0; i < 2 * (int)TAKEN; i++) (void)turn(&w, US(i % 3 ? 60 : 230));
    for (i = 0; i < 99; i++) assert_int_equal(turn(&w, US(i % 3 ? 60 : 230)), 's');
    world_close(&w);
}

static void test_the_wait_knows_how_long_the_work_runs_already(void **state)
{
    world w;
    gpusync_ticket ticket;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(1000), TAKEN);
    ticket = commit_for(&w, US(1000));
    PUT(&clock_now, GET(&clock_now) + US(700));
    assert_int_equal(wait_to(&w, after(w.r.queue, ticket), US(10), NULL), 't');
    PUT(&clock_now, GET(&clock_now) + US(100));
    assert_int_equal(wait_for(&w, ticket), 's');
    assert_about(w.spun_ns, US(190));
    world_close(&w);
}

static void test_what_is_overdue_is_not_spun_for(void **state)
{
    world w;
    gpusync_ticket ticket;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(100), TAKEN);
    ticket = commit_for(&w, US(5000));
    PUT(&clock_now, GET(&clock_now) + US(1000));
    assert_int_equal(wait_for(&w, ticket), 'P');
    world_close(&w);
}

static void test_a_queue_that_changes_from_10_us_to_10_ms_and_back(void **state)
{
    world w;
    gpusync_stats before, now;
    int i, spun = 0;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 0; i < 20; i++) assert_int_equal(turn(&w, US(10)), 's');
    before = all_stats(&w);
    for (i = 0; i < 100; i++) spun += turn(&w, MS(10)) == 'V'; /* most of those that it remembers are short */
    assert_in_range(spun, 1, TAKEN);
    now = all_stats(&w);
    assert_true(now.spin_ns - before.spin_ns <= TAKEN * (US(10) + US(50) + SLACK)); /* of a second */
    for (i = 0; i < (int)TAKEN; i++) (void)turn(&w, US(10));
    for (i = 0; i < 20; i++) assert_int_equal(turn(&w, US(10)), 's');
    world_close(&w);
}

static void test_one_long_ticket_among_short_ones_changes_nothing(void **state)
{
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(50), TAKEN);
    for (i = 0; i < 3; i++) {
        assert_int_equal(turn(&w, MS(100)), 'V');
        for (int k = 1; k < TAKEN; k++) assert_int_equal(turn(&w, US(50)), 's');
    }
    world_close(&w);
}

/* -- several in flight --------------------------------------------------------------------------------------------- */

static void test_of_several_in_flight_the_sum_counts(void **state)
{
    world w;
    gpusync_ticket ticket = 0;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(20), TAKEN);
    for (i = 1; i <= 10; i++) ticket = commit_for(&w, US(20) * (uint64_t)i);
    assert_int_equal(wait_for(&w, ticket), 's');
    assert_about(w.spun_ns, US(200));
    for (i = 1; i <= 20; i++) ticket = commit_for(&w, US(20) * (uint64_t)i);
    assert_int_equal(wait_for(&w, ticket), 'P'); /* 400 us */
    for (i = 1; i <= 20; i++) ticket = commit_for(&w, US(20) * (uint64_t)i);
    assert_int_equal(wait_for(&w, ticket - 15), 's'); /* 100 us */
    assert_int_equal(wait_for(&w, ticket - 8), 's');  /* 140 more */
    assert_int_equal(wait_to(&w, after(w.r.queue, GPUSYNC_EVERYTHING), GPUSYNC_FOREVER, NULL), 's');
    world_close(&w);
}

/* A pipeline: each begins when the one before ends, so it took the time from there, not from its commit. */
static void test_a_ticket_takes_the_time_from_the_end_of_the_one_before(void **state)
{
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 1; i <= 20; i++) (void)commit_for(&w, US(100) * (uint64_t)i);
    PUT(&clock_now, GET(&clock_now) + US(2000));
    go_on(&w);
    assert_int_equal(turn(&w, US(100)), 's');
    assert_true(reports(w.r.device, "a ticket takes 100."));
    world_close(&w);
}

/* A commit of a command buffer that the program has made: it waits for no room. */
static void commit_theirs_for(world *w, uint64_t in_ns)
{
    gpusync_ticket ticket;
    void *buffer = metal_queue_command_buffer(w->r.metal_queue);
    assert_ok(gpusync_commit(w->r.queue, buffer, &ticket));
    will(w, in_ns)->buffer = buffer;
    metal_release(buffer);
}

static void await_room(world *w)
{
    void *buffer;
    w->waiting = true;
    assert_ok(gpusync_command_buffer(w->r.queue, NULL, &buffer));
    w->waiting = false;
    assert_ok(gpusync_command_buffer_discard(w->r.queue, buffer));
}

static void test_room_is_spun_for_as_its_tickets_are(void **state)
{
    world w;
    gpusync_stats before;
    int i;
    (void)state;
    NOT_ON_METAL4("no call waits for room");
    world_open_on(&w, QUEUE_OF_THE_PROGRAM, 2, NULL, NULL, true); /* a look for room sends no message */
    teach(&w, US(100), TAKEN);
    for (i = 1; i <= 3; i++) commit_theirs_for(&w, US(100) * (uint64_t)i);
    before = all_stats(&w);
    await_room(&w); /* two have to end: 200 us */
    assert_int_equal(w.parks, 0);
    for (i = 2; i <= 5; i++) commit_theirs_for(&w, US(100) * (uint64_t)i);
    await_room(&w); /* four: 400 us */
    assert_int_not_equal(w.parks, 0);
    (void)how(&w, &before);
    assert_about(w.spun_ns, US(200));
    (void)wait_for(&w, GPUSYNC_EVERYTHING);
    world_close(&w);
}

/* -- misses ---------------------------------------------------------------------------------------------------------- */

/* Work that teaches nothing: the program commits it. With Metal 4 it waits for work of another queue. */
static gpusync_ticket blind_work(world *w, uint64_t took_ns)
{
    gpusync_ticket ticket;
    void *buffer;
    if (metal4_run()) {
        gpusync_point value;
        if (!w->other) {
            w->other = queue_new(w->r.device);
            w->others = timeline_new(w->r.device);
        }
        value = at(w->others, value_of(w->others) + 1);
        buffer = buffer_of(w->other);
        (void)SUBMIT(w->other, BUFFERS(buffer), SIGNALS(value));
        buffer = buffer_of(w->r.queue);
        ticket = SUBMIT(w->r.queue, WAITS(value), BUFFERS(buffer)); /* waits on the device */
        will(w, took_ns)->queue = gpusync_queue_metal(w->other);
        will(w, took_ns)->buffer = buffer;
        return ticket;
    }
    ticket = track_a_buffer(&w->r, &buffer);
    metal_commit(buffer);
    will(w, took_ns)->buffer = buffer;
    metal_release(buffer);
    return ticket;
}

/* ... so each wait is as blind as the first. */
static char blind_turn(world *w, uint64_t took_ns) { return wait_for(w, blind_work(w, took_ns)); }

static void check_left_out(world *w, const int *left_out, size_t count)
{
    size_t i;
    int k;
    for (i = 0; i < count; i++) {
        assert_int_equal(blind_turn(w, MS(1)), 'V');
        for (k = 0; k < left_out[i]; k++) assert_int_equal(blind_turn(w, MS(1)), 'P');
    }
}

static void test_spins_in_vain_have_4_then_8_at_most_1024_left_out(void **state)
{
    static const int left_out[] = {0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024};
    world w;
    (void)state;
    world_open(&w, NULL, NULL, false);
    check_left_out(&w, left_out, LENGTH(left_out));
    assert_int_equal(blind_turn(&w, US(10)), 's'); /* one that is met: the next in vain has 4 left out again */
    check_left_out(&w, left_out + 1, 2);
    world_close(&w);
}

/* 4 of 16 are enough. */
static void test_spins_of_which_some_meet_the_end_go_on(void **state)
{
    static const int left_out[] = {0, 0, 0, 4, 8};
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 0; i < 4; i++) assert_int_equal(blind_turn(&w, US(10)), 's');
    for (i = 0; i < 200; i++) {
        char how = blind_turn(&w, i % 4 == 3 ? US(10) : MS(1));
        assert_int_equal(how, i % 4 == 3 ? 's' : 'V');
    }
    for (i = 0; i < 3; i++) assert_int_equal(blind_turn(&w, MS(1)), 'V'); /* ... and 3 of 16 are not */
    check_left_out(&w, left_out + 3, 2);
    world_close(&w);
}

/* Work that takes a little longer than it is spun for, whenever that is. */
static void test_an_adversary_costs_little(void **state)
{
    gpusync_stats stats;
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 0; i < 1000; i++) (void)blind_turn(&w, MS(1));
    stats = all_stats(&w);
    assert_in_range(stats.spins_in_vain, 2, 11);
    assert_true(stats.spin_ns <= 1000 * US(2)); /* a wake-up costs its thread twice that */
    world_close(&w);
}

/* A wait that has no time to spin does not use up what is left out. */
static void test_only_what_would_have_been_a_spin_is_left_out(void **state)
{
    world w;
    int i, parked = 0;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 0; i < 2; i++) assert_int_equal(blind_turn(&w, MS(1)), 'V'); /* 4 are left out */
    teach(&w, MS(10), 20); /* the first of these is blind, and left out */
    for (i = 0; i < 2 * (int)TAKEN; i++) parked += turn(&w, US(20)) == 'P';
    for (i = 1; i <= (int)TAKEN && (uint64_t)i * US(20) + (TAKEN - (uint64_t)i) * US(20 + 50 + 250) >= TAKEN * US(250); i++) {}
    assert_int_equal(parked, i + 3); /* so many have to be short; and the 3 */
    world_close(&w);
}

static void test_a_deadline_inside_the_spin_is_kept(void **state)
{
    world w;
    gpusync_ticket ticket;
    uint64_t began;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(150), TAKEN);
    ticket = commit_for(&w, US(190));
    began = GET(&clock_now);
    assert_int_equal(wait_to(&w, after(w.r.queue, ticket), US(170), NULL), 'T');
    assert_about(GET(&clock_now) - began, US(170));
    assert_int_equal(w.parks, 0);
    assert_int_equal(wait_for(&w, ticket), 's');
    /* where it is expected to come before the end nothing is gained by spinning */
    for (i = 0; i < 5; i++) {
        ticket = commit_for(&w, US(150));
        began = GET(&clock_now);
        assert_int_equal(wait_to(&w, after(w.r.queue, ticket), US(50), NULL), 't');
        assert_about(GET(&clock_now) - began, US(50));
        assert_int_equal(w.spun_ns, 0);
        assert_int_equal(wait_for(&w, ticket), 's');
    }
    world_close(&w);
}

/* Polling by short waits: each is blind, and in vain. */
static void test_spins_that_the_deadline_cuts_short_are_in_vain_like_others(void **state)
{
    world w;
    gpusync_ticket ticket;
    int i, spun = 0;
    (void)state;
    world_open(&w, NULL, NULL, false);
    ticket = commit_for(&w, MS(100));
    for (i = 0; i < 200; i++) spun += wait_to(&w, after(w.r.queue, ticket), US(15), NULL) == 'T';
    assert_int_equal(spun, 7); /* with 0, 4, 8, 16, 32, 64 and 128 left out behind them */
    assert_int_equal(wait_for(&w, ticket), 'P');
    world_close(&w);
}

static void test_done_at_the_deadline_is_done(void **state)
{
    world w;
    gpusync_ticket ticket;
    (void)state;
    NOT_ON_METAL4("a look sends no message");
    world_open(&w, NULL, NULL, false);
    teach(&w, US(100), TAKEN);
    ticket = commit_for(&w, US(110));
    w.waiting = true;
    assert_result(gpusync_wait(w.r.queue, ticket, US(102)), GPUSYNC_TIMEOUT);
    PUT(&clock_now, w.plan[w.next].end_ns);
    assert_ok(gpusync_wait(w.r.queue, ticket, 1));
    w.waiting = false;
    world_close(&w);
}

/* -- a status that shows late */

/* Each status shows so long after the GPU's end. */
static char late_turn(world *w, uint64_t took_ns, uint64_t late_ns)
{
    gpusync_ticket ticket = commit_for(w, took_ns + late_ns);
    w->plan[w->count - 1].late_ns = late_ns;
    return wait_for(w, ticket);
}

static void test_the_wait_learns_how_late_an_end_shows(void **state)
{
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    for (i = 0; i < TAKEN; i++) (void)late_turn(&w, US(60), US(90));
    for (i = 0; i < 20; i++) assert_int_equal(late_turn(&w, US(60), US(90)), 's');
    assert_about(w.spun_ns, US(150));
    world_close(&w);
}

/* -- hooks, and what overrides the history ------------------------------------------------------------------------- */

static void test_a_yield_hook_runs_between_the_looks_and_the_time_is_kept(void **state)
{
    world w;
    (void)state;
    world_open(&w, NULL, NULL, true);
    teach(&w, US(100), TAKEN);
    assert_int_equal(turn(&w, US(100)), 's');
    assert_about(w.spun_ns, US(100));
    assert_true(w.yields >= 100);
    assert_true(w.yields >= w.looks - 1);
    assert_true((uint64_t)w.looks <= w.spun_ns / 200 + 1);
    assert_int_equal(turn(&w, US(1000)), 'V');
    assert_about(w.spun_ns, US(150));
    world_close(&w);
}

static void test_the_default_never_calls_sched_yield(void **state)
{
    static const gpusync_spin yields = {2, 5, 0, false};
    world w;
    uint64_t before;
    int i;
    (void)state;
    NOT_ON_METAL4("there is a yield hook");
    world_open(&w, NULL, NULL, false);
    before = probe_yields();
    for (i = 0; i < 30; i++) (void)turn(&w, US(100));
    for (i = 0; i < 30; i++) (void)turn(&w, MS(1));
    for (i = 0; i < 30; i++) (void)blind_turn(&w, MS(1));
    assert_int_equal(probe_yields(), before);
    assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, MS(1))), GPUSYNC_FOREVER, &yields), 'V');
    assert_int_equal(probe_yields(), before + yields.yield_iterations); /* where a program asks for yields */
    world_close(&w);
}

/* -- sleeping until the end is near */

static void test_until_near_sleeps_until_50_us_before_the_end_and_spins_then(void **state)
{
    static const gpusync_spin near = {0, UINT32_MAX, 200000, true};
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, true); /* with Metal 4 a look sends no message */
    teach(&w, MS(1), TAKEN);
    for (i = 0; i < 20; i++) {
        assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, MS(1))), GPUSYNC_FOREVER, &near), 's');
        assert_about(w.spun_ns, US(50));
        assert_int_equal(w.parks, 1);
    }
    world_close(&w);
}

static void test_until_near_ends_with_work_that_ends_sooner(void **state)
{
    static const gpusync_spin near = {0, UINT32_MAX, 200000, true};
    world w;
    (void)state;
    world_open(&w, NULL, NULL, true);
    teach(&w, MS(1), TAKEN);
    assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, US(500))), GPUSYNC_FOREVER, &near), 'P');
    assert_int_equal(w.parks, 1);
    assert_int_equal(w.spun_ns, 0);
    /* work that takes longer: a sleep, a spin in vain, a sleep */
    assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, MS(3))), GPUSYNC_FOREVER, &near), 'V');
    assert_int_equal(w.parks, 2);
    world_close(&w);
}

static void test_until_near_only_spins_where_the_end_is_near_or_unknown(void **state)
{
    static const gpusync_spin near = {0, UINT32_MAX, 200000, true};
    world w;
    (void)state;
    world_open(&w, NULL, NULL, true);
    assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, US(150))), GPUSYNC_FOREVER, &near), 's'); /* unknown */
    assert_int_equal(w.parks, 0);
    teach(&w, US(90), TAKEN);
    assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, US(90))), GPUSYNC_FOREVER, &near), 's');
    assert_int_equal(w.parks, 0);
    world_close(&w);
}

static void test_until_near_keeps_the_deadline(void **state)
{
    static const gpusync_spin near = {0, UINT32_MAX, 200000, true};
    gpusync_ticket ticket;
    uint64_t began;
    world w;
    (void)state;
    world_open(&w, NULL, NULL, true);
    teach(&w, MS(1), TAKEN);
    ticket = commit_for(&w, MS(1));
    began = GET(&clock_now);
    assert_int_equal(wait_to(&w, after(w.r.queue, ticket), US(150), &near), 'T');
    assert_about(GET(&clock_now) - began, US(150));
    assert_int_equal(wait_for(&w, ticket), 'P');
    world_close(&w);
}

static void test_a_spin_of_the_call_the_queue_or_the_device_overrides_it(void **state)
{
    static const gpusync_spin counts = {3, 5, 0, false}, time = {0, 0, 400000, false}, nothing = {0, 0, 0, false};
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, true);
    teach(&w, US(100), TAKEN);
    for (i = 0; i < 5; i++) {
        assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, US(100))), GPUSYNC_FOREVER, &counts), 'V');
        assert_int_equal(w.yields, counts.yield_iterations);
        if (!metal4_run()) assert_true(w.looks >= 1 + 3 + 5);
    }
    assert_int_equal(turn(&w, US(100)), 's'); /* spins that the program has asked for are no misses */
    assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, US(350))), GPUSYNC_FOREVER, &time), 's');
    assert_about(w.spun_ns, US(350));
    assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, US(450))), GPUSYNC_FOREVER, &time), 'V');
    assert_about(w.spun_ns, US(400));
    assert_int_equal(wait_to(&w, after(w.r.queue, commit_for(&w, US(100))), GPUSYNC_FOREVER, &nothing), 'P');
    assert_int_equal(w.spun_ns, 0);
    world_close(&w);

    world_open(&w, NULL, &nothing, true);
    for (i = 0; i < 5; i++) assert_int_equal(turn(&w, US(10)), 'P');
    world_close(&w);
    world_open(&w, &nothing, NULL, true);
    for (i = 0; i < 5; i++) assert_int_equal(turn(&w, US(10)), 'P');
    will(&w, US(10))->timeline = w.t;
    w.plan[w.count - 1].value = 1;
    assert_int_equal(wait_to(&w, at(w.t, 1), GPUSYNC_FOREVER, NULL), 'P');
    world_close(&w);
    world_open(&w, &nothing, &time, true);
    for (i = 0; i < 5; i++) assert_int_equal(turn(&w, US(350)), 's');
    world_close(&w);
}

/* -- values, and many points ------------------------------------------------------------------------------------------ */

static void test_a_value_is_expected_when_the_work_that_signals_it_is(void **state)
{
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(120), TAKEN);
    for (i = 1; i <= 5; i++) {
        void *buffer = buffer_of(w.r.queue);
        SUBMIT(w.r.queue, BUFFERS(buffer), SIGNALS(at(w.t, (uint64_t)i)));
        will(&w, US(120))->queue = w.r.metal_queue;
        assert_int_equal(wait_to(&w, at(w.t, (uint64_t)i), GPUSYNC_FOREVER, NULL), 's');
        assert_about(w.spun_ns, US(120));
    }
    teach(&w, US(600), TAKEN);
    if (metal4_run()) SUBMIT(w.r.queue, BUFFERS(buffer_of(w.r.queue)), SIGNALS(at(w.t, 6)));
    else SUBMIT(w.r.queue, SIGNALS(at(w.t, 6)));
    will(&w, US(600))->queue = w.r.metal_queue;
    assert_int_equal(wait_to(&w, at(w.t, 6), GPUSYNC_FOREVER, NULL), 'P');
    world_close(&w);
}

static void test_a_value_that_no_work_is_to_signal_is_spun_for_as_the_unknown_is(void **state)
{
    world w;
    planned *p;
    (void)state;
    world_open(&w, NULL, NULL, true); /* a look at a value that the host is to signal sends no message */
    p = will(&w, US(15));
    p->timeline = w.t;
    p->value = 1;
    assert_int_equal(wait_to(&w, at(w.t, 1), GPUSYNC_FOREVER, NULL), 's');
    p = will(&w, MS(1));
    p->timeline = w.t;
    p->value = 2;
    assert_int_equal(wait_to(&w, at(w.t, 2), GPUSYNC_FOREVER, NULL), 'V');
    assert_about(w.spun_ns, BLIND);
    world_close(&w);
}

/* options may be NULL. */
static char wait_many_with(world *w, const gpusync_point *points, size_t count, gpusync_wait_for for_what,
                           const gpusync_wait_options *options)
{
    gpusync_stats before = all_stats(w);
    size_t which;
    w->looks = w->parks = 0;
    w->waiting = true;
    assert_ok(gpusync_wait_many(points, count, for_what, GPUSYNC_FOREVER, options, &which));
    w->waiting = false;
    return how(w, &before);
}

static char wait_many_to(world *w, const gpusync_point *points, size_t count, gpusync_wait_for for_what)
{
    return wait_many_with(w, points, count, for_what, NULL);
}

/* A wait for many spins at once, and as long as it was told to: in vain, for the end is far. */
static void test_until_near_is_for_one_point(void **state)
{
    static const gpusync_spin near = {0, UINT32_MAX, 200000, true};
    gpusync_wait_options options;
    gpusync_point points[2];
    world w;
    (void)state;
    world_open(&w, NULL, NULL, false);
    memset(&options, 0, sizeof options);
    options.spin = &near;
    teach(&w, MS(1), TAKEN);
    points[0] = after(w.r.queue, commit_for(&w, MS(1)));
    points[1] = after(w.r.queue, commit_for(&w, MS(1)));
    assert_int_equal(wait_many_with(&w, points, 2, GPUSYNC_WAIT_ALL, &options), 'V');
    assert_about(w.spun_ns, US(200));
    world_close(&w);
}

/* Both of two ends are near enough. Their order in the call does not matter. */
static void test_of_any_the_first_end_counts_whichever_point_it_is(void **state)
{
    world w;
    gpusync_point points[2];
    gpusync_ticket last;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(100), TAKEN);
    for (i = 0; i < 2; i++) {
        points[i] = after(w.r.queue, commit_for(&w, US(100)));
        points[1 - i] = after(w.r.queue, last = commit_for(&w, US(200)));
        assert_int_equal(wait_many_to(&w, points, 2, GPUSYNC_WAIT_ANY), 's');
        assert_about(w.spun_ns, US(100));
        assert_int_equal(wait_for(&w, last), 's');
        assert_about(w.spun_ns, US(100));
    }
    world_close(&w);
}

static void test_of_many_points_the_last_or_of_any_the_first_counts(void **state)
{
    world w;
    gpusync_point points[20];
    gpusync_ticket first, last;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(100), TAKEN);
    first = commit_for(&w, US(100));
    for (i = 2; i <= 4; i++) last = commit_for(&w, US(100) * (uint64_t)i);
    points[0] = after(w.r.queue, first);
    points[1] = after(w.r.queue, last);
    assert_int_equal(wait_many_to(&w, points, 2, GPUSYNC_WAIT_ANY), 's');
    assert_about(w.spun_ns, US(100));
    assert_int_equal(wait_many_to(&w, points, 2, GPUSYNC_WAIT_ALL), 'P'); /* 300 us to go */
    first = commit_for(&w, US(100));
    last = commit_for(&w, US(200));
    points[0] = after(w.r.queue, first);
    points[1] = after(w.r.queue, last);
    assert_int_equal(wait_many_to(&w, points, 2, GPUSYNC_WAIT_ALL), 's');
    assert_about(w.spun_ns, US(200));
    /* more than 16 are not spun for */
    first = commit_for(&w, US(100));
    for (i = 0; i < 17; i++) points[i] = after(w.r.queue, first);
    assert_int_equal(wait_many_to(&w, points, 17, GPUSYNC_WAIT_ALL), 'P');
    first = commit_for(&w, US(100));
    for (i = 0; i < 16; i++) points[i] = after(w.r.queue, first);
    assert_int_equal(wait_many_to(&w, points, 16, GPUSYNC_WAIT_ALL), 's');
    world_close(&w);
}

/* Nothing is known of it any more, and its queue may be gone. */
static void test_of_all_what_is_over_does_not_count(void **state)
{
    gpusync_point points[2];
    gpusync_ticket over;
    world w;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(100), TAKEN);
    for (i = 0; i < 2; i++) {
        points[i] = after(w.r.queue, over = commit_for(&w, US(100)));
        assert_int_equal(wait_for(&w, over), 's');
        points[1 - i] = after(w.r.queue, commit_for(&w, US(100)));
        assert_int_equal(wait_many_to(&w, points, 2, GPUSYNC_WAIT_ALL), 's');
        assert_about(w.spun_ns, US(100));
    }
    world_close(&w);
}

/* A ticket, or a value that says "stop", which no work is to signal. */
static void test_of_any_an_unexpected_value_does_not_count(void **state)
{
    world w;
    gpusync_point points[2];
    int i;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(100), TAKEN);
    points[1] = at(w.t, 1);
    for (i = 0; i < 20; i++) {
        points[0] = after(w.r.queue, commit_for(&w, US(100)));
        assert_int_equal(wait_many_to(&w, points, 2, GPUSYNC_WAIT_ANY), 's');
    }
    world_close(&w);
}

static void test_what_one_timeline_has_cost_in_vain_another_does_not_pay(void **state)
{
    world w;
    gpusync_timeline *other;
    int i;
    (void)state;
    world_open(&w, NULL, NULL, true);
    other = timeline_new(w.r.device);
    for (i = 1; i <= 10; i++) {
        planned *p = will(&w, MS(1));
        p->timeline = w.t;
        p->value = (uint64_t)i;
        (void)wait_to(&w, at(w.t, (uint64_t)i), GPUSYNC_FOREVER, NULL);
    }
    for (i = 1; i <= 10; i++) {
        planned *p = will(&w, US(10));
        p->timeline = other;
        p->value = (uint64_t)i;
        assert_int_equal(wait_to(&w, at(other, (uint64_t)i), GPUSYNC_FOREVER, NULL), 's');
    }
    assert_ok(gpusync_timeline_destroy(other));
    world_close(&w);
}

static void test_of_all_an_unexpected_value_makes_it_sleep(void **state)
{
    world w;
    gpusync_point points[2];
    planned *p;
    (void)state;
    world_open(&w, NULL, NULL, true);
    teach(&w, US(100), TAKEN);
    points[0] = after(w.r.queue, commit_for(&w, US(100)));
    points[1] = at(w.t, 1);
    p = will(&w, MS(1));
    p->timeline = w.t;
    p->value = 1;
    assert_int_equal(wait_many_to(&w, points, 2, GPUSYNC_WAIT_ALL), 'P');
    world_close(&w);
}

static void test_of_any_what_is_overdue_does_not_count(void **state)
{
    world w;
    gpusync_point points[2];
    planned *p;
    (void)state;
    world_open(&w, NULL, NULL, true);
    teach(&w, US(100), TAKEN);
    points[0] = after(w.r.queue, commit_empty(&w.r, NULL)); /* whose end is not planned */
    PUT(&clock_now, GET(&clock_now) + MS(1));
    points[1] = at(w.t, 1);
    p = will(&w, US(15));
    p->timeline = w.t;
    p->value = 1;
    assert_int_equal(wait_many_to(&w, points, 2, GPUSYNC_WAIT_ANY), 's');
    softmetal_finish_queue(w.r.metal_queue);
    world_close(&w);
}

/* -- what the history is made of --------------------------------------------------------------------------------------- */

static uint64_t expected_of(world *w, gpusync_point point)
{
    w->expected_ns = 0;
    (void)wait_to(w, point, 0, NULL);
    return w->expected_ns;
}

static void test_the_trace_and_the_report_show_what_is_expected(void **state)
{
    world w;
    gpusync_ticket ticket;
    (void)state;
    world_open(&w, NULL, NULL, false);
    assert_ok(gpusync_set_trace(w.r.device, world_trace, &w));
    ticket = commit_for(&w, US(100));
    assert_int_equal(expected_of(&w, after(w.r.queue, ticket)), 0); /* unknown */
    assert_false(reports(w.r.device, "a ticket takes"));
    (void)wait_for(&w, ticket);
    teach(&w, US(100), 3);
    teach(&w, US(200), 5); /* one of which does not count */
    assert_true(reports(w.r.device, "a ticket takes 15"));
    ticket = commit_for(&w, US(150));
    assert_about(expected_of(&w, after(w.r.queue, ticket)), US(150));
    PUT(&clock_now, GET(&clock_now) + US(100));
    assert_about(expected_of(&w, after(w.r.queue, ticket)), US(50));
    PUT(&clock_now, GET(&clock_now) + US(100));
    assert_int_equal(expected_of(&w, after(w.r.queue, ticket)), 0); /* past */
    go_on(&w);
    assert_ok(gpusync_set_trace(w.r.device, NULL, NULL));
    world_close(&w);
}

/* Ended after so long by the test's plan, without a wait. */
static void pass(world *w, uint64_t ns)
{
    PUT(&clock_now, GET(&clock_now) + ns);
    go_on(w);
}

/* What a queue expects of its next ticket: asked of one that is committed for that. */
static uint64_t lesson(world *w)
{
    gpusync_ticket ticket = commit_for(w, 0);
    uint64_t expected = expected_of(w, after(w->r.queue, ticket));
    go_on(w);
    return expected;
}

static void open_traced_world(world *w)
{
    world_open(w, NULL, NULL, false);
    assert_ok(gpusync_set_trace(w->r.device, world_trace, w));
}

static void close_traced_world(world *w)
{
    assert_ok(gpusync_set_trace(w->r.device, NULL, NULL));
    world_close(w);
}

/* The end of the one before was read from its status, and its handler has not come: that end is now. */
static void test_an_end_that_was_only_seen_counts_from_now(void **state)
{
    world w;
    void *first, *second;
    gpusync_ticket tickets[2];
    int i;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    open_traced_world(&w);
    for (i = 0; i < TAKEN; i++) {
        (void)commit_for(&w, US(100));
        pass(&w, US(100));
    }
    tickets[0] = commit_empty(&w.r, &first);
    tickets[1] = commit_empty(&w.r, &second);
    PUT(&clock_now, GET(&clock_now) + US(300)); /* longer than usual */
    PUT(&w.gpu_ns, GET(&clock_now));
    softmetal_complete(first);
    assert_ok(gpusync_poll(w.r.queue, tickets[0]));
    assert_about(expected_of(&w, after(w.r.queue, tickets[1])), US(100));
    softmetal_finish(first);
    softmetal_finish(second);
    close_traced_world(&w);
}

static void test_of_more_than_64_all_count(void **state)
{
    world w;
    gpusync_ticket ticket = 0;
    gpusync_queue *queue;
    gpusync_queue_desc desc;
    int i;
    (void)state;
    open_traced_world(&w);
    desc = queue_desc_of(200, 0);
    queue = queue_of_kind(QUEUE_OF_GPUSYNC, w.r.device, &desc);
    for (i = 0; i < TAKEN; i++) {
        (void)commit_empty_to(queue, NULL);
        will(&w, US(5))->queue = gpusync_queue_metal(queue);
        pass(&w, US(5));
    }
    for (i = 0; i < 150; i++) ticket = commit_empty_to(queue, NULL);
    assert_true(expected_of(&w, after(queue, ticket)) > US(600));
    finish_queue(queue);
    assert_ok(gpusync_queue_destroy(queue));
    close_traced_world(&w);
}

static void test_held_work_is_measured_from_its_issue(void **state)
{
    world w;
    gpusync_ticket ticket;
    gpusync_submission submission;
    void *buffer;
    (void)state;
    open_traced_world(&w);
    buffer = buffer_of(w.r.queue);
    memset(&submission, 0, sizeof submission);
    gpusync_point value = at(w.t, 1);
    submission.waits = &value;
    submission.wait_count = 1;
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    ticket = submit_well(w.r.queue, &submission);
    assert_int_equal(expected_of(&w, after(w.r.queue, ticket)), 0);
    pass(&w, MS(5));
    assert_ok(gpusync_timeline_signal(w.t, 1)); /* now it goes to the device, which has nothing to wait for */
    will(&w, US(80))->queue = w.r.metal_queue;
    pass(&w, US(80));
    assert_true(gpusync_is_done(w.r.queue, ticket));
    assert_about(lesson(&w), US(80));
    close_traced_world(&w);
}

static void test_a_wait_for_held_work_is_blind_until_the_issue(void **state)
{
    world w;
    gpusync_ticket ticket;
    void *buffer;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(100), TAKEN);
    buffer = buffer_of(w.r.queue);
    ticket = SUBMIT(w.r.queue, BUFFERS(buffer)); /* its memory, which the held one gets, has the time of an issue */
    will(&w, US(100))->queue = w.r.metal_queue;
    assert_int_equal(wait_for(&w, ticket), 's');
    (void)commit_for(&w, US(100)); /* what is ahead of it is known */
    buffer = buffer_of(w.r.queue);
    ticket = SUBMIT(w.r.queue, WAITS(at(w.t, 1)), BUFFERS(buffer));
    assert_int_equal(wait_to(&w, after(w.r.queue, ticket), MS(5), NULL), 'T');
    assert_about(w.spun_ns, BLIND);
    assert_ok(gpusync_timeline_signal(w.t, 1));
    will(&w, US(100))->queue = w.r.metal_queue;
    assert_int_equal(wait_for(&w, ticket), 's'); /* 5 ms after the submission, but 100 us after its issue */
    assert_about(w.spun_ns, US(100));
    world_close(&w);
}

/* The history is of other work than what is at the head. */
static void test_behind_work_that_teaches_nothing_a_wait_is_blind(void **state)
{
    world w;
    gpusync_queue *other;
    gpusync_ticket ticket;
    void *buffer;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(100), TAKEN);
    assert_int_equal(blind_turn(&w, MS(1)), 'V');
    assert_about(w.spun_ns, BLIND);
    assert_int_equal(turn(&w, US(100)), 's');
    other = queue_new(w.r.device);
    buffer = buffer_of(other);
    (void)SUBMIT(other, BUFFERS(buffer), SIGNALS(at(w.t, 1)));
    buffer = buffer_of(w.r.queue);
    ticket = SUBMIT(w.r.queue, WAITS(at(w.t, 1)), BUFFERS(buffer)); /* waits on the device */
    will(&w, MS(1))->queue = gpusync_queue_metal(other);
    will(&w, MS(1))->queue = w.r.metal_queue;
    assert_int_equal(wait_for(&w, ticket), 'V');
    assert_about(w.spun_ns, BLIND);
    assert_ok(gpusync_queue_destroy(other));
    world_close(&w);
}

static void test_work_that_waits_on_the_device_teaches_nothing(void **state)
{
    world w;
    gpusync_submission submission;
    gpusync_queue *other;
    void *buffer, *metal_other;
    gpusync_point value;
    (void)state;
    open_traced_world(&w);
    value = at(w.t, 1);
    other = queue_new(w.r.device);
    metal_other = gpusync_queue_metal(other);
    buffer = buffer_of(other);
    (void)SUBMIT(other, BUFFERS(buffer), SIGNALS(value));
    buffer = buffer_of(w.r.queue);
    memset(&submission, 0, sizeof submission);
    submission.waits = &value;
    submission.wait_count = 1;
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    (void)submit_for(&w, &submission, MS(3));
    w.plan[w.count - 1].end_ns += 1;
    will(&w, MS(2))->queue = metal_other;
    w.plan[w.count] = w.plan[w.count - 2]; /* the other queue first */
    w.plan[w.count - 2] = w.plan[w.count - 1];
    w.plan[w.count - 1] = w.plan[w.count];
    pass(&w, MS(4));
    assert_true(gpusync_is_idle(w.r.queue));
    assert_int_equal(lesson(&w), 0); /* and that one has ended after 0 */
    assert_ok(gpusync_queue_destroy(other));
    close_traced_world(&w);
}

/* Work with a wait for the value of its timeline: encoded; with Metal 4 that of a submission. */
static gpusync_ticket commit_behind(world *w, uint64_t value)
{
    void *buffer = buffer_of(w->r.queue);
    if (metal4_run()) return SUBMIT(w->r.queue, WAITS(at(w->t, value)), BUFFERS(buffer));
    assert_ok(gpusync_encode_wait(w->r.queue, buffer, at(w->t, value)));
    return commit_to(w->r.queue, buffer);
}

/* Others signal its timeline, so that the device waits for a value, and not the host. */
static void open_world_of_others(world *w)
{
    gpusync_timeline_desc desc = {0};
    open_traced_world(w);
    desc.signalled_by_others = true;
    assert_ok(gpusync_timeline_destroy(w->t));
    assert_ok(gpusync_timeline_create(w->r.device, &desc, &w->t));
}

static void test_an_encoded_wait_teaches_nothing_either(void **state)
{
    world w;
    gpusync_ticket ticket;
    (void)state;
    open_world_of_others(&w);
    ticket = commit_behind(&w, 1);
    pass(&w, MS(2));
    assert_ok(gpusync_timeline_signal(w.t, 1));
    softmetal_finish_queue(w.r.metal_queue);
    assert_true(gpusync_is_done(w.r.queue, ticket));
    assert_int_equal(lesson(&w), 0);
    close_traced_world(&w);
}

/* The one gets the memory of the other. */
static void test_a_submission_teaches_though_the_one_before_it_waited_on_the_device(void **state)
{
    world w;
    gpusync_ticket ticket;
    (void)state;
    open_world_of_others(&w);
    ticket = SUBMIT(w.r.queue, WAITS(at(w.t, 1)), BUFFERS(buffer_of(w.r.queue)));
    pass(&w, MS(2));
    assert_ok(gpusync_timeline_signal(w.t, 1));
    softmetal_finish_queue(w.r.metal_queue);
    assert_true(gpusync_is_done(w.r.queue, ticket));
    ticket = SUBMIT(w.r.queue, BUFFERS(buffer_of(w.r.queue)));
    will(&w, US(80))->queue = w.r.metal_queue;
    pass(&w, US(80));
    assert_true(gpusync_is_done(w.r.queue, ticket));
    assert_about(lesson(&w), US(80));
    close_traced_world(&w);
}

static void test_a_wait_for_what_was_reached_before_is_no_wait(void **state)
{
    world w;
    (void)state;
    open_traced_world(&w);
    assert_ok(gpusync_timeline_signal(w.t, 1));
    (void)commit_behind(&w, 1);
    will(&w, US(60))->queue = w.r.metal_queue;
    pass(&w, US(60));
    assert_about(lesson(&w), US(60));
    close_traced_world(&w);
}

static void test_failures_and_what_the_program_commits_teach_nothing(void **state)
{
    world w;
    void *buffer;
    gpusync_ticket ticket;
    (void)state;
    open_traced_world(&w);
    ticket = commit_empty(&w.r, &buffer);
    softmetal_fail(buffer, NULL, 1, NULL);
    PUT(&clock_now, GET(&clock_now) + MS(1));
    softmetal_finish(buffer);
    assert_result(gpusync_wait(w.r.queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    buffer = buffer_of(w.r.queue);
    softmetal_fail(buffer, NULL, 1, NULL);
    ticket = SUBMIT(w.r.queue, BUFFERS(buffer));
    will(&w, US(100))->queue = w.r.metal_queue;
    pass(&w, US(100));
    assert_result(gpusync_wait(w.r.queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    (void)blind_work(&w, US(100));
    pass(&w, US(100));
    assert_int_equal(lesson(&w), 0);
    close_traced_world(&w);
}

static void test_without_metals_times_the_handlers_clock_counts(void **state)
{
    world w;
    (void)state;
    open_traced_world(&w);
    w.no_times = true;
    (void)commit_for(&w, US(70));
    pass(&w, US(70));
    assert_about(lesson(&w), US(70));
    close_traced_world(&w);
}

static void test_times_of_another_clock_do_not_count(void **state)
{
    static const double off[] = {-900, -1, -0.0003, 0.5, 900};
    world w;
    size_t i;
    int k;
    (void)state;
    for (i = 0; i < LENGTH(off); i++) {
        open_traced_world(&w);
        w.odd_s = off[i];
        for (k = 0; k < 2 * TAKEN; k++) {
            (void)commit_for(&w, US(70));
            pass(&w, US(70));
            /* idle; that shows in the times of a clock that is ahead of ours */
            if (k % 2 && off[i] < 0) PUT(&clock_now, GET(&clock_now) + MS(2));
        }
        assert_about(lesson(&w), US(70));
        close_traced_world(&w);
    }
}

static void test_one_time_that_makes_no_sense_is_soon_forgotten(void **state)
{
    static const double odd[] = {1500, 1001, -1, 1e30, 1e-300, 0, NAN, INFINITY, -1e30};
    world w;
    size_t i;
    int k;
    (void)state;
    for (i = 0; i < LENGTH(odd); i++) {
        world_open(&w, NULL, NULL, false);
        teach(&w, US(70), TAKEN);
        w.odd = true;
        w.odd_s = odd[i]; /* the clock is at about 1000 s */
        (void)turn(&w, US(70));
        w.odd = false;
        w.odd_s = 0;
        for (k = 0; k < 40; k++) assert_int_equal(turn(&w, US(70)), 's');
        w.odd = i > 1; /* and for good, but for the two that are to come: then it is the handler's clock */
        w.odd_s = w.odd ? odd[i] : 0;
        for (k = 0; k < 40; k++) (void)turn(&w, US(70));
        assert_int_equal(turn(&w, US(70)), 's');
        assert_about(w.spun_ns, US(70));
        world_close(&w);
    }
}

/* The first is taken for a long ticket, which does not count. The second would be another one. */
static void test_a_second_end_to_come_is_refused(void **state)
{
    world w;
    (void)state;
    world_open(&w, NULL, NULL, false);
    teach(&w, US(70), TAKEN);
    w.odd = true;
    w.odd_s = 1500; /* the clock is at about 1000 s */
    (void)turn(&w, US(70));
    w.odd_s = 1400;
    (void)turn(&w, US(70));
    w.odd = false;
    w.odd_s = 0;
    assert_int_equal(turn(&w, US(70)), 's');
    world_close(&w);
}

static void test_what_never_ran_ends_no_time(void **state)
{
    world w;
    (void)state;
    open_traced_world(&w);
    (void)commit_for(&w, US(100));
    if (metal4_run()) (void)hold_on(w.r.queue, w.t, 1, NULL);
    else (void)SUBMIT(w.r.queue, WAITS(at(w.t, 1)));
    pass(&w, US(50));
    assert_ok(gpusync_cancel_held(w.r.queue));
    pass(&w, US(50));
    assert_about(lesson(&w), US(100));
    close_traced_world(&w);
}

static void test_behind_work_that_teaches_nothing_a_ticket_took_its_own_time(void **state)
{
    world w;
    (void)state;
    open_traced_world(&w);
    (void)blind_work(&w, MS(2));
    (void)commit_for(&w, MS(2) + US(50));
    pass(&w, MS(3));
    assert_about(lesson(&w), US(50));
    close_traced_world(&w);
}

/* A tracked buffer that is not committed is at the head; what ended behind it is not counted again. */
static void test_only_what_has_not_ended_is_expected(void **state)
{
    world w;
    void *first;
    gpusync_ticket ticket = 0;
    int i;
    (void)state;
    open_traced_world(&w);
    for (i = 0; i < TAKEN; i++) {
        (void)commit_for(&w, US(50));
        pass(&w, US(50));
    }
    (void)commit_empty(&w.r, &first); /* the status of which is late */
    for (i = 0; i < 10; i++) {
        ticket = commit_for(&w, US(50));
        pass(&w, US(50));
    }
    PUT(&clock_now, GET(&clock_now) - US(500));
    ticket = commit_for(&w, US(100));
    assert_true(expected_of(&w, after(w.r.queue, ticket)) <= US(100) + 2 * SLACK); /* two, not twelve */
    pass(&w, US(500));
    softmetal_finish(first);
    close_traced_world(&w);
}

/* The GPU ends with the second first; then the first took its time, and the second none. */
static void test_out_of_order_a_ticket_took_no_time(void **state)
{
    world w;
    void *first, *second;
    (void)state;
    open_traced_world(&w);
    (void)commit_empty(&w.r, &first);
    (void)commit_empty(&w.r, &second);
    PUT(&w.gpu_ns, GET(&clock_now) + US(100));
    softmetal_complete(first);
    PUT(&w.gpu_ns, GET(&clock_now) + US(40));
    softmetal_complete(second);
    PUT(&clock_now, GET(&clock_now) + US(100));
    softmetal_finish(first);
    PUT(&clock_now, GET(&clock_now) + MS(1)); /* when the handler comes is not what counts */
    softmetal_finish(second);
    assert_about(lesson(&w), US(50)); /* the mean */
    close_traced_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_wait_of_a_queue_spins_for_20_us),
        cmocka_unit_test(test_from_the_second_on_it_spins_to_the_end_of_short_work),
        cmocka_unit_test(test_it_looks_five_times_a_microsecond_at_most),
        cmocka_unit_test(test_what_ends_later_than_250_us_from_now_is_not_spun_for),
        cmocka_unit_test(test_no_spin_goes_for_the_seldom_end_that_is_later),
        cmocka_unit_test(test_of_short_and_long_work_the_short_is_spun_for),
        cmocka_unit_test(test_what_is_seldom_short_is_not_spun_for),
        cmocka_unit_test(test_where_the_long_work_is_near_enough_all_is_spun_for),
        cmocka_unit_test(test_the_wait_knows_how_long_the_work_runs_already),
        cmocka_unit_test(test_what_is_overdue_is_not_spun_for),
        cmocka_unit_test(test_a_queue_that_changes_from_10_us_to_10_ms_and_back),
        cmocka_unit_test(test_one_long_ticket_among_short_ones_changes_nothing),
        cmocka_unit_test(test_of_several_in_flight_the_sum_counts),
        cmocka_unit_test(test_a_ticket_takes_the_time_from_the_end_of_the_one_before),
        cmocka_unit_test(test_room_is_spun_for_as_its_tickets_are),
        cmocka_unit_test(test_spins_in_vain_have_4_then_8_at_most_1024_left_out),
        cmocka_unit_test(test_spins_of_which_some_meet_the_end_go_on),
        cmocka_unit_test(test_an_adversary_costs_little),
        cmocka_unit_test(test_only_what_would_have_been_a_spin_is_left_out),
        cmocka_unit_test(test_a_deadline_inside_the_spin_is_kept),
        cmocka_unit_test(test_spins_that_the_deadline_cuts_short_are_in_vain_like_others),
        cmocka_unit_test(test_done_at_the_deadline_is_done),
        cmocka_unit_test(test_the_wait_learns_how_late_an_end_shows),
        cmocka_unit_test(test_a_yield_hook_runs_between_the_looks_and_the_time_is_kept),
        cmocka_unit_test(test_the_default_never_calls_sched_yield),
        cmocka_unit_test(test_until_near_sleeps_until_50_us_before_the_end_and_spins_then),
        cmocka_unit_test(test_until_near_ends_with_work_that_ends_sooner),
        cmocka_unit_test(test_until_near_only_spins_where_the_end_is_near_or_unknown),
        cmocka_unit_test(test_until_near_keeps_the_deadline),
        cmocka_unit_test(test_a_spin_of_the_call_the_queue_or_the_device_overrides_it),
        cmocka_unit_test(test_a_value_is_expected_when_the_work_that_signals_it_is),
        cmocka_unit_test(test_a_value_that_no_work_is_to_signal_is_spun_for_as_the_unknown_is),
        cmocka_unit_test(test_until_near_is_for_one_point),
        cmocka_unit_test(test_of_any_the_first_end_counts_whichever_point_it_is),
        cmocka_unit_test(test_of_many_points_the_last_or_of_any_the_first_counts),
        cmocka_unit_test(test_of_any_what_is_overdue_does_not_count),
        cmocka_unit_test(test_of_all_an_unexpected_value_makes_it_sleep),
        cmocka_unit_test(test_an_end_that_was_only_seen_counts_from_now),
        cmocka_unit_test(test_of_more_than_64_all_count),
        cmocka_unit_test(test_of_all_what_is_over_does_not_count),
        cmocka_unit_test(test_of_any_an_unexpected_value_does_not_count),
        cmocka_unit_test(test_what_one_timeline_has_cost_in_vain_another_does_not_pay),
        cmocka_unit_test(test_the_trace_and_the_report_show_what_is_expected),
        cmocka_unit_test(test_held_work_is_measured_from_its_issue),
        cmocka_unit_test(test_a_wait_for_held_work_is_blind_until_the_issue),
        cmocka_unit_test(test_behind_work_that_teaches_nothing_a_wait_is_blind),
        cmocka_unit_test(test_work_that_waits_on_the_device_teaches_nothing),
        cmocka_unit_test(test_an_encoded_wait_teaches_nothing_either),
        cmocka_unit_test(test_a_submission_teaches_though_the_one_before_it_waited_on_the_device),
        cmocka_unit_test(test_a_wait_for_what_was_reached_before_is_no_wait),
        cmocka_unit_test(test_failures_and_what_the_program_commits_teach_nothing),
        cmocka_unit_test(test_without_metals_times_the_handlers_clock_counts),
        cmocka_unit_test(test_times_of_another_clock_do_not_count),
        cmocka_unit_test(test_one_time_that_makes_no_sense_is_soon_forgotten),
        cmocka_unit_test(test_a_second_end_to_come_is_refused),
        cmocka_unit_test(test_what_never_ran_ends_no_time),
        cmocka_unit_test(test_behind_work_that_teaches_nothing_a_ticket_took_its_own_time),
        cmocka_unit_test(test_only_what_has_not_ended_is_expected),
        cmocka_unit_test(test_out_of_order_a_ticket_took_no_time),
    };
    clock_is_real = false;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
