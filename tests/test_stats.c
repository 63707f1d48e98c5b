/* test_stats.c - gpusync_device_get_stats: what is counted, and where (S9, S10)

   A table has a situation a row, and the exact counts of the queue, and of the device beside its queues. Time stands
   still but for what the rows do: 100 ns a yield, and what `meanwhile` passes in a park. The GPU has the same clock. */
#define GPUSYNC_IMPLEMENTATION
#include "still.h"

/* -- time ---------------------------------------------------------------------------------------------------------- */

static bool gpu_knows;

static double gpu_seconds(void)
{
    return GET(&gpu_knows) ? (double)GET(&still_now) / 1e9 : 0;
}

/* What comes at the n-th yield, and in the first park: one thread plays all. */
static struct {
    stage *s;
    unsigned yields, at_yield;
    uint64_t late_ns; /* from the GPU's end to the return of park */
    void (*in_yield)(stage *s), (*in_park)(stage *s);
} plan;

static void yield_by_plan(void *user)
{
    pass(100);
    if (++plan.yields == plan.at_yield && plan.in_yield)
        plan.in_yield(plan.s);
}

static void park_by_plan(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    void (*now)(stage *) = plan.in_park;
    plan.in_park = NULL;
    if (now) {
        now(plan.s);
        pass(plan.late_ns);
    }
    park_and_pass(user, waiter, deadline_ns);
}

static const gpusync_hooks planned_hooks = {.yield = yield_by_plan, .park = park_by_plan, .unpark = unpark_passing};

static void finish_first(stage *s)
{
    assert_true(finish_next(s->q[0]));
}

static void finish_second(stage *s)
{
    assert_true(finish_next(s->q[1]));
}

static void signal_a(stage *s)
{
    signal_value(s->t[0], 1);
}

static void destroy_it(stage *s)
{
    assert_ok(gpusync_queue_destroy_later(s->q[0], NULL, NULL));
}

/* -- the counts ---------------------------------------------------------------------------------------------------- */

static gpusync_stats stats_of(gpusync_device *device, gpusync_queue *queue)
{
    gpusync_stats stats;
    memset(&stats, 0x5A, sizeof stats);
    assert_ok(gpusync_device_get_stats(device, queue, &stats));
    return stats;
}

#define FIELDS 14u
_Static_assert(sizeof(gpusync_stats) == FIELDS * sizeof(uint64_t), "a field has come: it needs rows");

static const char *const field_names[FIELDS] = {
    "commits",    "completions", "failures",    "failures_dropped", "held",    "waits_inline", "waits_status",
    "waits_spin", "waits_sleep", "waits_unmet", "spins_in_vain",    "spin_ns", "wakes",        "wake_ns"};

static const uint64_t *fields(const gpusync_stats *stats)
{
    return (const uint64_t *)(const void *)stats;
}

static gpusync_stats difference(gpusync_stats a, const gpusync_stats *b)
{
    for (unsigned i = 0; i < FIELDS; i++)
        ((uint64_t *)(void *)&a)[i] -= fields(b)[i];
    return a;
}

/* The GPU's times are seconds in a double: of a wake a nanosecond may be lost. */
static bool same_stats(const char *row, const char *whose, const gpusync_stats *got, const gpusync_stats *expected)
{
    bool good = true;
    for (unsigned i = 0; i < FIELDS; i++) {
        uint64_t g = fields(got)[i], e = fields(expected)[i], slack = i == FIELDS - 1 ? e / 1000 : 0;
        if (g + slack >= e && g <= e + slack)
            continue;
        print_error("%s: %s of %s is %" PRIu64 ", expected %" PRIu64 "\n", row, field_names[i], whose, g, e);
        good = false;
    }
    return good;
}

/* -- situations ---------------------------------------------------------------------------------------------------- */

static void commits(stage *s)
{
    for (unsigned i = 0; i < 3; i++)
        commit_new(s->q[0]);
    finish_next(s->q[0]);
    finish_next(s->q[0]);
}

/* Metal has two buffers and a marker; gpusync has two tickets. */
static void a_submission_and_a_marker(stage *s)
{
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0]), new_buffer(s->q[0])), SIGNALS(at(s->t[0], 1)));
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    finish_all(s);
}

static void what_is_refused(stage *s)
{
    void *buffer = new_buffer(s->q[0]);
    commit(s->q[0], buffer);
    assert_result(gpusync_commit(s->q[0], buffer, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    assert_result(gpusync_commit(s->q[1], new_buffer(s->q[0]), NULL), GPUSYNC_ERROR_WRONG_QUEUE);
    assert_result(gpusync_wait(s->q[0], 2, 0, NULL), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_timeline_wait(s->t[0], UINT64_MAX, 0, NULL), GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_wait(NULL, 1, 0, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
}

/* Each failure of the table's queues beyond the third pushes one out. */
static void failures(stage *s)
{
    for (unsigned i = 0; i < 4; i++)
        commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    commit_new(s->q[0]);
    finish_all(s);
}

static void held_and_sent(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    commit_new(s->q[0]); /* behind it */
    signal_value(s->t[0], 1);
    commit_new(s->q[0]);
    finish_all(s);
}

/* A ticket that is cancelled, or fails with what it waits for, held, counts as one that failed. One whose wait has
   failed before ends at its commit, and never was held. */
static void held_and_failed(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
}

static void a_lost_device(stage *s)
{
    commit_failing(s->q[0], SOFTMETAL_SUBMISSIONS_IGNORED);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    finish_next(s->q[0]);
    assert_true(gpusync_device_is_lost(s->device));
}

/* UNORDERED work is counted beside the tickets: one is held, one has failed; of the tickets one has ended. */
static void unordered_work(stage *s)
{
    void *fails = new_buffer(s->q[0]);
    softmetal_fail_as(fails, SOFTMETAL_PAGE_FAULT, NULL);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .flags = GPUSYNC_SUBMIT_UNORDERED);
    SUBMIT(s->q[0], BUFFERS(fails), .flags = GPUSYNC_SUBMIT_UNORDERED);
    commit_new(s->q[0]);
    finish_next(s->q[0]);
    finish_next(s->q[0]);
    commit_new(s->q[0]);
}

/* Loads answer: no memory is written. */
static void waits_for_what_is_done(stage *s)
{
    gpusync_ticket ticket = commit_new(s->q[0]);
    finish_all(s);
    signal_value(s->t[0], 1);
    assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_timeline_wait(s->t[0], 1, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_poll(s->q[0], ticket, NULL)); /* no wait */
}

static void waits_for_a_failure(stage *s)
{
    gpusync_ticket ticket = commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    finish_all(s);
    assert_result(gpusync_wait(s->q[0], ticket, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
}

/* Metal says Completed, and the handler has not come. */
static void waits_that_look(stage *s)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], buffer);
    softmetal_complete(buffer);
    assert_ok(gpusync_wait(s->q[0], ticket, 0, NULL));
}

static void waits_unmet(stage *s)
{
    gpusync_point point = ticket_at(s->q[0], commit_new(s->q[0]));
    assert_result(gpusync_wait(s->q[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(s->q[0], 1, MS(3), NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, MS(3), NULL), GPUSYNC_TIMEOUT);
    /* One point is a wait for its queue. */
    assert_result(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ANY, 0, NULL, NULL), GPUSYNC_TIMEOUT);
}

static const gpusync_wait_options ten_yields = {.spin = &(const gpusync_spin){0, 10, 0}};

/* 50 ns before the thread looks again. */
static void finish_before(stage *s)
{
    finish_first(s);
    pass(50);
}

/* Seen at the fourth yield: no wake. */
static void a_spin(stage *s)
{
    commit_new(s->q[0]);
    plan.at_yield = 4;
    plan.in_yield = finish_before;
    assert_ok(gpusync_wait(s->q[0], 1, SECONDS(1), &ten_yields));
}

static void a_spin_in_vain(stage *s)
{
    commit_new(s->q[0]);
    plan.in_park = finish_first;
    assert_ok(gpusync_wait(s->q[0], 1, SECONDS(1), &ten_yields));
}

static void a_spin_to_the_limit(stage *s)
{
    commit_new(s->q[0]);
    assert_result(gpusync_wait(s->q[0], 1, 500, &ten_yields), GPUSYNC_TIMEOUT);
}

/* The thread runs again so long after the GPU's end. */
static void sleep_for(stage *s, gpusync_ticket ticket, uint64_t late_ns)
{
    plan.in_park = finish_first;
    plan.late_ns = late_ns;
    assert_ok(gpusync_wait(s->q[0], ticket, SECONDS(1), NULL));
}

static void two_sleeps(stage *s)
{
    sleep_for(s, commit_new(s->q[0]), 7000);
    sleep_for(s, commit_new(s->q[0]), 30000);
}

static void a_sleep_of_which_the_end_is_not_known(stage *s)
{
    PUT(&gpu_knows, false);
    sleep_for(s, commit_new(s->q[0]), 7000);
    PUT(&gpu_knows, true);
}

/* Before the sleeper is back 256 newer tickets have ended, of which one has the place of its times. */
static void finish_many(stage *s)
{
    finish_next(s->q[0]);
    for (unsigned i = 0; i < 256; i++) {
        commit_new(s->q[0]);
        finish_next(s->q[0]);
    }
}

static void a_sleep_of_which_the_times_are_gone(stage *s)
{
    commit_new(s->q[0]);
    plan.in_park = finish_many;
    plan.late_ns = 7000;
    assert_ok(gpusync_wait(s->q[0], 1, SECONDS(1), NULL));
}

static void a_sleep_for_work_that_never_ran(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    plan.in_park = destroy_it;
    assert_result(gpusync_wait(s->q[0], 1, SECONDS(1), NULL), GPUSYNC_ERROR_CANCELLED);
    run_callbacks(s); /* the end of the queue */
    s->q[0] = NULL;
}

static void waits_for_values(stage *s)
{
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    plan.in_park = signal_a;
    assert_ok(gpusync_timeline_wait(s->t[0], 1, SECONDS(1), NULL));
    plan.at_yield = plan.yields + 2;
    assert_result(gpusync_timeline_wait(s->t[0], 2, MS(1), &ten_yields), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
    assert_result(gpusync_timeline_wait(s->t[0], 2, SECONDS(1), NULL), GPUSYNC_ERROR_EXECUTION);
}

static void waits_for_several_points(stage *s)
{
    const gpusync_point points[2] = {ticket_at(s->q[0], commit_new(s->q[0])), at(s->t[0], 1)};
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, 0, NULL, NULL), GPUSYNC_TIMEOUT);
    plan.in_park = signal_a;
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, SECONDS(1), NULL, NULL));
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, 0, NULL, NULL)); /* at once */
    plan.in_park = finish_first;
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, SECONDS(1), NULL, NULL)); /* no wake of one ticket */
    assert_ok(gpusync_wait_many(points, 0, GPUSYNC_WAIT_ALL, 0, NULL, NULL));          /* no wait */
}

static void waits_for_the_device(stage *s)
{
    assert_ok(gpusync_device_wait(s->device, 0, NULL));
    commit_new(s->q[0]);
    assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_TIMEOUT);
    plan.in_park = finish_first;
    assert_ok(gpusync_device_wait(s->device, SECONDS(1), NULL));
}

static void make_room(stage *s)
{
    assert_ok(gpusync_command_buffer_discard(s->q[0], softmetal_buffer_at(s->metal[0], 0)));
}

/* The queues of the table have room for five. */
static void waits_for_room(stage *s)
{
    void *buffer = NULL;
    for (unsigned i = 0; i < 5; i++)
        new_buffer(s->q[0]);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), GPUSYNC_TIMEOUT);
    plan.in_park = make_room;
    assert_ok(gpusync_command_buffer_create(s->q[0], NULL, SECONDS(1), &buffer));
}

static void wait_inside(void *user, gpusync_result result, const gpusync_error *error)
{
    stage *s = (stage *)user;
    assert_result(gpusync_wait(s->q[0], 2, SECONDS(1), NULL), GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(gpusync_wait(s->q[0], 1, SECONDS(1), NULL));
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_ERROR_WOULD_DEADLOCK);
}

static void waits_in_a_callback(stage *s)
{
    assert_ok(gpusync_on_done(ticket_at(s->q[0], commit_new(s->q[0])), wait_inside, s));
    commit_new(s->q[0]);
    finish_next(s->q[0]);
    assert_int_equal(run_callbacks(s), 1);
}

static void destroyed_queues(stage *s)
{
    waits_unmet(s);
    finish_all(s);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    commit_failing(s->q[1], SOFTMETAL_PAGE_FAULT);
    plan.in_park = finish_second; /* the wait of a destroy is not the program's */
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(gpusync_queue_destroy(s->q[i]));
        s->q[i] = NULL;
    }
}

/* Given up: one ticket that Metal had, one that was held. */
static void an_abandoned_queue(stage *s)
{
    commit_new(s->q[0]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    assert_ok(gpusync_queue_abandon(s->q[0]));
    s->q[0] = NULL;
    finish_all(s);
}

static const struct {
    const char *name;
    void (*play)(stage *s);
    gpusync_stats queue, device; /* of the first queue; of the device beside its queues that are left */
} rows[] = {
    {"commits", commits, {.commits = 3, .completions = 2}, {0}},
    {"a submission and a marker", a_submission_and_a_marker, {.commits = 2, .completions = 2}, {0}},
    {"what is refused", what_is_refused, {.commits = 1}, {0}},
    {"failures", failures, {.commits = 5, .completions = 5, .failures = 4, .failures_dropped = 1}, {0}},
    {"held and sent", held_and_sent, {.commits = 3, .completions = 3, .held = 2}, {0}},
    {"held and failed", held_and_failed, {.commits = 3, .completions = 3, .failures = 3, .held = 2}, {0}},
    {"a lost device", a_lost_device, {.commits = 2, .completions = 2, .failures = 2, .held = 1}, {0}},
    {"unordered work", unordered_work, {.commits = 4, .completions = 2, .failures = 1, .held = 1}, {0}},
    {"waits for what is done", waits_for_what_is_done, {.commits = 1, .completions = 1}, {0}},
    {"waits for a failure", waits_for_a_failure,
     {.commits = 1, .completions = 1, .failures = 1, .waits_inline = 3}, {0}},
    {"waits that look", waits_that_look, {.commits = 1, .completions = 1, .waits_status = 1}, {0}},
    {"waits unmet", waits_unmet, {.commits = 1, .waits_unmet = 4}, {0}},
    {"a spin", a_spin, {.commits = 1, .completions = 1, .waits_spin = 1, .spin_ns = 450}, {0}},
    {"a spin in vain", a_spin_in_vain,
     {.commits = 1, .completions = 1, .waits_sleep = 1, .spins_in_vain = 1, .spin_ns = 1000, .wakes = 0}, {0}},
    {"a spin to the limit", a_spin_to_the_limit,
     {.commits = 1, .waits_unmet = 1, .spins_in_vain = 1, .spin_ns = 500}, {0}},
    {"two sleeps", two_sleeps, {.commits = 2, .completions = 2, .waits_sleep = 2, .wakes = 2, .wake_ns = 37000}, {0}},
    {"a sleep of which the end is not known", a_sleep_of_which_the_end_is_not_known,
     {.commits = 1, .completions = 1, .waits_sleep = 1}, {0}},
    {"a sleep of which the times are gone", a_sleep_of_which_the_times_are_gone,
     {.commits = 257, .completions = 257, .waits_sleep = 1}, {0}},
    {"a sleep for work that never ran", a_sleep_for_work_that_never_ran, {0},
     {.commits = 1, .completions = 1, .failures = 1, .held = 1, .waits_sleep = 1}},
    {"waits for values", waits_for_values, {0},
     {.waits_unmet = 2, .waits_sleep = 1, .waits_inline = 1, .spins_in_vain = 1, .spin_ns = 1000}},
    {"waits for several points", waits_for_several_points, {.commits = 1, .completions = 1},
     {.waits_unmet = 1, .waits_sleep = 2, .waits_inline = 1}},
    {"waits for the device", waits_for_the_device, {.commits = 1, .completions = 1},
     {.waits_inline = 1, .waits_unmet = 1, .waits_sleep = 1}},
    {"waits for room", waits_for_room, {0}, {.waits_unmet = 1, .waits_sleep = 1}},
    {"waits in a callback", waits_in_a_callback, {.commits = 2, .completions = 1, .waits_unmet = 1},
     {.waits_unmet = 1}},
    {"destroyed queues", destroyed_queues, {0},
     {.commits = 3, .completions = 3, .failures = 2, .held = 1, .waits_unmet = 4}},
    {"an abandoned queue", an_abandoned_queue, {0}, {.commits = 2, .completions = 2, .failures = 2, .held = 1}},
};

/* A profiler reads these numbers: each situation has its own, exactly, where the header says, and nowhere else. */
without_stage(test_S9_counts_of_each_situation)
{
    bool good = true;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const stage_desc desc = {
            .queues = 2,
            .timelines = 2,
            .device = {.hooks = &planned_hooks, .callback_mode = GPUSYNC_CALLBACKS_MANUAL},
            .queue = {.error_log_count = 3, .max_command_buffer_count = 5},
        };
        stage s;
        gpusync_stats first = {0}, second = {0}, rest;
        stage_open(&s, &desc);
        PUT(&gpu_knows, true);
        softmetal_set_gpu_clock(gpu_seconds);
        memset(&plan, 0, sizeof plan);
        plan.s = &s;
        rows[i].play(&s);
        if (s.q[0])
            first = stats_of(s.device, s.q[0]);
        if (s.q[1])
            second = stats_of(s.device, s.q[1]);
        rest = difference(stats_of(s.device, NULL), &first);
        good &= same_stats(rows[i].name, "the queue", &first, &rows[i].queue);
        good &= same_stats(rows[i].name, "the other queue", &second, &(const gpusync_stats){0});
        good &= same_stats(rows[i].name, "the device", &rest, &rows[i].device);
        stage_close(&s);
        softmetal_set_gpu_clock(NULL);
    }
    assert_true(good);
}

/* A second device: counts are its own, and a queue of another one is refused. What is refused writes nothing. */
on_stage(test_S9_refused)
{
    void *metal = softmetal_new_device();
    const gpusync_device_desc desc = {.metal_device = metal, .hooks = &planned_hooks};
    gpusync_device *other = NULL;
    gpusync_stats stats = {.commits = 77};
    const gpusync_stats before = stats;
    assert_ok(gpusync_device_create(&desc, &other));
    commit_new(s->q[0]);
    assert_result(gpusync_device_get_stats(NULL, s->q[0], &stats), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_device_get_stats(NULL, NULL, &stats), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_device_get_stats(s->device, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_device_get_stats(other, s->q[0], &stats), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_memory_equal(&stats, &before, sizeof stats);
    assert_int_equal(stats_of(other, NULL).commits, 0);
    assert_ok(gpusync_device_destroy(other));
    metal_release(metal);
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 100 };

static struct {
    stage *s;
    bool over;
} busy;

/* Each round: a queue of its own with one ticket that is held, and fails; a ticket of a shared queue; three waits that
   are not met: of each queue, and for a value. */
static void *count_up(void *argument)
{
    unsigned me = (unsigned)(uintptr_t)argument;
    gpusync_device *device = busy.s->device;
    gpusync_queue *shared = busy.s->q[me % 2];
    for (unsigned i = 0; i < ROUNDS; i++) {
        gpusync_queue *own = NULL;
        gpusync_ticket held = 0, sent = 0;
        must(gpusync_queue_create(device, NULL, &own) == GPUSYNC_OK, "queue");
        must(TRY_SUBMIT(own, &held, WAITS(at(busy.s->t[0], 1000))) == GPUSYNC_OK, "submit");
        must(gpusync_wait(own, held, 0, NULL) == GPUSYNC_TIMEOUT, "a wait that is not met");
        must(gpusync_timeline_wait(busy.s->t[0], 1000, 0, NULL) == GPUSYNC_TIMEOUT, "a wait that is not met");
        must(gpusync_queue_destroy(own) == GPUSYNC_OK, "destroy");
        must(TRY_SUBMIT(shared, &sent, WAITS(at(busy.s->t[1], 1))) == GPUSYNC_OK, "submit");
        must(gpusync_wait(shared, sent, 0, NULL) == GPUSYNC_TIMEOUT, "a wait that is not met");
    }
    return NULL;
}

/* No count of the sum ever falls, also as queues go. */
static void *watch(void *argument)
{
    gpusync_stats last = {0}, now;
    while (!GET(&busy.over)) {
        must(gpusync_device_get_stats(busy.s->device, NULL, &now) == GPUSYNC_OK, "stats");
        for (unsigned i = 0; i < FIELDS; i++)
            must(fields(&now)[i] >= fields(&last)[i], field_names[i]);
        must(now.commits >= now.completions && now.completions >= now.failures, "no ticket ends before it is");
        last = now;
    }
    return NULL;
}

on_stage_with(test_S9_sums_of_threads_are_exact, .queues = 2, .timelines = 2, .real = true,
              .queue = {.max_command_buffer_count = 1000}, .device = {.hooks = &patient_hooks})
{
    const gpusync_stats expected = {
        .commits = 2 * THREADS * ROUNDS,
        .completions = 2 * THREADS * ROUNDS,
        .failures = THREADS * ROUNDS,
        .held = 2 * THREADS * ROUNDS,
        .waits_unmet = 3 * THREADS * ROUNDS,
    };
    pthread_t threads[THREADS], watchers[3];
    busy.s = s;
    PUT(&busy.over, false);
    for (unsigned i = 0; i < LENGTH(watchers); i++)
        watchers[i] = start(watch, NULL);
    for (uintptr_t i = 0; i < THREADS; i++)
        threads[i] = start(count_up, (void *)i);
    for (unsigned i = 0; i < THREADS; i++)
        join(threads[i]);
    signal_value(s->t[1], 1);
    settle(s);
    PUT(&busy.over, true);
    for (unsigned i = 0; i < LENGTH(watchers); i++)
        join(watchers[i]);
    gpusync_stats sum = stats_of(s->device, NULL);
    assert_true(same_stats("threads", "the device", &sum, &expected));
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(stats_of(s->device, s->q[i]).commits, THREADS / 2 * ROUNDS);
}
