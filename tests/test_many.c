/* test_many.c - gpusync_wait_many: ALL, ANY, ALL_OR_FAILURE, and which point decides */
#define GPUSYNC_IMPLEMENTATION
#include "world.h"

static gpusync_result many(const gpusync_point *points, size_t count, gpusync_wait_for how, size_t *which)
{
    return gpusync_wait_many(points, count, how, 0, NULL, which);
}

#define ALL GPUSYNC_WAIT_ALL
#define ANY GPUSYNC_WAIT_ANY
#define ALL_OR_FAILURE GPUSYNC_WAIT_ALL_OR_FAILURE
static const gpusync_wait_for ways[] = {ALL, ANY, ALL_OR_FAILURE};

/* -- what it tells: a table over how three points stand ------------------------------------------------------------ */

/* O: succeeded, F: failed, -: not ended. */
static gpusync_point point_that(stage *s, char stands)
{
    if (stands == '-') return ticket_at(s->q[1], commit_new(s->q[1]));
    gpusync_ticket ticket = stands == 'O' ? commit_new(s->q[0]) : commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    while (finish_next(s->q[0])) {}
    return ticket_at(s->q[0], ticket);
}

on_all_worlds_with(test_S4_which_point_decides, .queues = 2)
{
    static const struct {
        const char *stand;
        struct {
            gpusync_result result;
            size_t which;
        } expected[3]; /* of each of the ways */
    } rows[] = {
        {"OOO", {{GPUSYNC_OK, 3}, {GPUSYNC_OK, 0}, {GPUSYNC_OK, 3}}},
        {"---", {{GPUSYNC_TIMEOUT, 3}, {GPUSYNC_TIMEOUT, 3}, {GPUSYNC_TIMEOUT, 3}}},
        {"OO-", {{GPUSYNC_TIMEOUT, 3}, {GPUSYNC_OK, 0}, {GPUSYNC_TIMEOUT, 3}}},
        {"--O", {{GPUSYNC_TIMEOUT, 3}, {GPUSYNC_OK, 2}, {GPUSYNC_TIMEOUT, 3}}},
        {"-OO", {{GPUSYNC_TIMEOUT, 3}, {GPUSYNC_OK, 1}, {GPUSYNC_TIMEOUT, 3}}},
        {"FOO", {{GPUSYNC_ERROR_EXECUTION, 0}, {GPUSYNC_ERROR_EXECUTION, 0}, {GPUSYNC_ERROR_EXECUTION, 0}}},
        {"OFF", {{GPUSYNC_ERROR_EXECUTION, 1}, {GPUSYNC_OK, 0}, {GPUSYNC_ERROR_EXECUTION, 1}}},
        {"-F-", {{GPUSYNC_TIMEOUT, 1}, {GPUSYNC_ERROR_EXECUTION, 1}, {GPUSYNC_ERROR_EXECUTION, 1}}},
        {"--F", {{GPUSYNC_TIMEOUT, 2}, {GPUSYNC_ERROR_EXECUTION, 2}, {GPUSYNC_ERROR_EXECUTION, 2}}},
        {"O-F", {{GPUSYNC_TIMEOUT, 2}, {GPUSYNC_OK, 0}, {GPUSYNC_ERROR_EXECUTION, 2}}},
        {"F-F", {{GPUSYNC_TIMEOUT, 0}, {GPUSYNC_ERROR_EXECUTION, 0}, {GPUSYNC_ERROR_EXECUTION, 0}}},
    };
    for (size_t row = 0; row < LENGTH(rows); row++) {
        gpusync_point points[3];
        size_t which;
        print_message("  %s\n", rows[row].stand);
        for (size_t i = 0; i < 3; i++) points[i] = point_that(s, rows[row].stand[i]);
        for (size_t i = 0; i < LENGTH(ways); i++) {
            which = 99;
            assert_result(many(points, 3, ways[i], &which), rows[row].expected[i].result);
            assert_int_equal(which, rows[row].expected[i].which);
        }
    }
}

without_stage(test_S4_all_of_none_is_over_and_any_of_none_makes_no_sense)
{
    size_t which;
    for (size_t k = 0; k < LENGTH(ways); k++) {
        which = 9;
        assert_result(gpusync_wait_many(NULL, 0, ways[k], GPUSYNC_FOREVER, NULL, &which),
                      ways[k] == ANY ? GPUSYNC_ERROR_INVALID_ARGUMENT : GPUSYNC_OK);
        assert_int_equal(which, 0);
    }
}

on_all_worlds_with(test_S5_points_that_are_none_are_refused_and_change_nothing, .queues = 2, .timelines = 1)
{
    gpusync_device *other_device;
    void *other_metal = softmetal_new_device();
    gpusync_point good = ticket_at(s->q[0], commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT));
    gpusync_device_desc desc = {.metal_device = other_metal};
    assert_ok(gpusync_device_create(&desc, &other_device));
    gpusync_timeline *elsewhere = new_timeline(other_device);
    finish_all(s);
    {
        const struct {
            gpusync_point point;
            gpusync_result result;
        } rows[] = {
            {ticket_at(NULL, 1), GPUSYNC_ERROR_INVALID_ARGUMENT},
            {{0}, GPUSYNC_ERROR_INVALID_ARGUMENT},
            {at(elsewhere, 1), GPUSYNC_ERROR_INVALID_ARGUMENT},
            {ticket_at(s->q[0], 2), GPUSYNC_ERROR_INVALID_TICKET},
            {ticket_at(s->q[1], 1), GPUSYNC_ERROR_INVALID_TICKET},
            {at(s->t[0], GPUSYNC_MAX_VALUE + 1), GPUSYNC_ERROR_NOT_RISING},
        };
        long blocks = kit_now().blocks;
        for (size_t i = 0; i < LENGTH(rows); i++) {
            for (size_t k = 0; k < LENGTH(ways); k++) {
                const gpusync_point points[] = {ticket_at(s->q[0], GPUSYNC_EVERYTHING), rows[i].point};
                size_t which = 99;
                assert_result(gpusync_wait_many(points, 2, ways[k], GPUSYNC_FOREVER, NULL, &which), rows[i].result);
                assert_int_equal(which, 2);
            }
        }
        assert_int_equal(kit_now().blocks, blocks);
    }
    assert_result(gpusync_wait_many(NULL, 1, ALL, 0, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_wait_many(&good, 1, (gpusync_wait_for)3, 0, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    /* No refused wait has told of the failure. */
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_timeline_destroy(elsewhere));
    assert_ok(gpusync_device_destroy(other_device));
    metal_release(other_metal);
}

on_world_with(test_S1_points_of_no_work_have_ended, .queues = 2, .timelines = 1)
{
    const gpusync_point points[] = {ticket_at(s->q[0], 0), ticket_at(s->q[1], -1), ticket_at(s->q[0], INT64_MIN),
                                    at(s->t[0], 0), ticket_at(s->q[1], GPUSYNC_EVERYTHING)};
    size_t which = 99;
    assert_ok(many(points, LENGTH(points), ALL, NULL));
    assert_ok(many(points, LENGTH(points), ANY, &which));
    assert_int_equal(which, 0);
}

/* options.error is that of the point which `which` names. */
on_all_worlds_with(test_S4_the_error_is_that_of_which, .queues = 2, .timelines = 1)
{
    const gpusync_error reason = {.result = GPUSYNC_ERROR_COMPILE, .message = "no shader"};
    const gpusync_point points[] = {ticket_at(s->q[0], commit_new(s->q[0])), at(s->t[0], 4),
                                    ticket_at(s->q[1], commit_failing(s->q[1], SOFTMETAL_PAGE_FAULT))};
    gpusync_error error;
    const gpusync_wait_options options = {.error = &error};
    size_t which;
    assert_ok(gpusync_timeline_fail(s->t[0], &reason));
    assert_true(finish_next(s->q[1]));
    for (size_t k = 0; k < LENGTH(ways); k++) {
        gpusync_result expected = ways[k] == ALL ? GPUSYNC_TIMEOUT : GPUSYNC_ERROR_COMPILE;
        memset(&error, 0, sizeof error);
        assert_result(gpusync_wait_many(points, 3, ways[k], 0, &options, &which), expected);
        assert_int_equal(which, 1);
        if (expected == GPUSYNC_TIMEOUT) continue;
        assert_int_equal(error.result, GPUSYNC_ERROR_COMPILE);
        assert_string_equal(error.message, "no shader");
    }
    finish_all(s);
    memset(&error, 0, sizeof error);
    assert_result(gpusync_wait_many(points, 3, ALL, 0, &options, &which), GPUSYNC_ERROR_COMPILE);
    assert_string_equal(error.message, "no shader");
    assert_result(gpusync_wait_many(points + 2, 1, ALL, 0, &options, &which), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
    assert_string_equal(error.queue_label, "second");
}

/* -- sleeping ------------------------------------------------------------------------------------------------------ */

typedef struct three {
    void *buffers[3];
    gpusync_point points[3];
} three;

/* A ticket of each queue, and a value: the host signals that. */
static three three_points(stage *s)
{
    three t;
    for (unsigned i = 0; i < 2; i++) {
        t.buffers[i] = new_buffer(s->q[i]);
        t.points[i] = ticket_at(s->q[i], commit(s->q[i], t.buffers[i]));
    }
    t.points[2] = at(s->t[0], 1);
    return t;
}

static void signal_1_now(void *timeline)
{
    must(gpusync_timeline_signal((gpusync_timeline *)timeline, 1) == GPUSYNC_OK, "a signal by the host");
}

on_all_worlds_with(test_S5_all_sleeps_until_the_last_and_any_until_the_first, .queues = 2, .timelines = 1)
{
    three t = three_points(s);
    size_t which = 99;
    plan(MS(2), finish_now, t.buffers[1]);
    plan(MS(4), signal_1_now, s->t[0]);
    plan(MS(6), finish_now, t.buffers[0]);
    assert_ok(gpusync_wait_many(t.points, 3, ANY, GPUSYNC_FOREVER, NULL, &which));
    assert_int_equal(which, 1);
    assert_about(world_passed(), MS(2));
    assert_int_equal(world.parks, 1);
    assert_ok(gpusync_wait_many(t.points, 3, ALL, GPUSYNC_FOREVER, NULL, &which));
    assert_int_equal(which, 3);
    assert_about(world_passed(), MS(6));
}

on_all_worlds_with(test_S5_a_wait_for_many_that_timed_out_leaves_nothing_behind, .queues = 2, .timelines = 1)
{
    three t = three_points(s);
    long blocks = kit_now().blocks;
    size_t k, which = 0;
    for (k = 0; k < LENGTH(ways); k++) {
        world_begin();
        assert_result(gpusync_wait_many(t.points, 3, ways[k], MS(70), NULL, &which), GPUSYNC_TIMEOUT);
        assert_int_equal(which, 3);
        assert_about(world_passed(), MS(70));
    }
    assert_int_equal(kit_now().blocks, blocks);
    world_begin();
    finish_all(s);
    signal_value(s->t[0], 1);
    assert_int_equal(world.unparks, 0);
    assert_ok(many(t.points, 3, ALL, NULL));
}

/* No handler tells of it: the look at the limit alone finds it. */
on_world_with(test_S5_of_many_what_has_ended_by_the_deadline_has_ended, .queues = 2, .timelines = 1)
{
    three t = three_points(s);
    const gpusync_point points[2] = {t.points[2], t.points[0]};
    size_t which = 99;
    plan(MS(3), complete_now, t.buffers[1]);
    assert_ok(gpusync_wait_many(t.points, 3, ANY, MS(3), NULL, &which));
    assert_int_equal(which, 1);
    assert_about(world_passed(), MS(3));
    softmetal_fail_as(t.buffers[0], SOFTMETAL_PAGE_FAULT, NULL);
    world_begin();
    plan(MS(3), complete_now, t.buffers[0]);
    assert_result(gpusync_wait_many(points, 2, ALL_OR_FAILURE, MS(3), NULL, &which), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(which, 1);
    assert_about(world_passed(), MS(3));
    t = three_points(s);
    world_begin();
    plan(MS(3), complete_now, t.buffers[0]);
    plan(MS(3), complete_now, t.buffers[1]);
    assert_ok(gpusync_wait_many(t.points, 2, ALL, MS(3), NULL, &which));
    assert_int_equal(which, 2);
    assert_about(world_passed(), MS(3));
}

on_world_with(test_R28_many_wait_for_the_handlers_of_each_ticket, .queues = 2, .timelines = 1)
{
    three t = three_points(s);
    const gpusync_wait_options handlers = {.handlers = true};
    size_t which;
    signal_value(s->t[0], 1);
    softmetal_complete(t.buffers[0]);
    softmetal_complete(t.buffers[1]);
    assert_ok(many(t.points, 3, ALL, NULL));
    assert_result(gpusync_wait_many(t.points, 3, ALL, 0, &handlers, NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_wait_many(t.points, 3, ANY, 0, &handlers, &which));
    assert_int_equal(which, 2); /* a value has none */
    softmetal_finish(t.buffers[0]);
    assert_result(gpusync_wait_many(t.points, 3, ALL, 0, &handlers, NULL), GPUSYNC_TIMEOUT);
    plan(MS(2), finish_now, t.buffers[1]);
    assert_ok(gpusync_wait_many(t.points, 3, ALL, GPUSYNC_FOREVER, &handlers, NULL));
    assert_int_equal(world.parks, 1);
}

/* -- destroyed points (R20) ---------------------------------------------------------------------------------------- */

static gpusync_result abandon_queue(void *queue)
{
    return gpusync_queue_abandon((gpusync_queue *)queue);
}

/* Which end of the second queue, or of the timeline. */
typedef enum goes { QUEUE_DESTROYED, QUEUE_LATER, QUEUE_ABANDONED, TIMELINE_DESTROYED, TIMELINE_LATER, ENDS } goes;
static const char *const goes_names[] = {"a queue", "a queue later", "a queue abandoned", "a timeline",
                                         "a timeline later"};

static void let_go(stage *s, goes how, job *destroy, note *n)
{
    switch (how) {
    case QUEUE_DESTROYED: job_destroy(destroy, s->q[1]); break;
    case QUEUE_LATER: assert_ok(gpusync_queue_destroy_later(s->q[1], remember_destroyed, n)); break;
    case QUEUE_ABANDONED: job_call(destroy, abandon_queue, s->q[1]); break;
    case TIMELINE_DESTROYED: assert_ok(gpusync_timeline_destroy(s->t[0])); break;
    default: assert_ok(gpusync_timeline_destroy_later(s->t[0], remember_destroyed, n)); break;
    }
    if (how < TIMELINE_DESTROYED) s->q[1] = NULL;
    else s->t[0] = NULL;
}

/* No look of a wait that sleeps comes in between: which point has ended by then would decide. */
static void each_end(void (*body)(stage *s, goes how))
{
    for (goes how = QUEUE_DESTROYED; how < ENDS; how++) {
        stage_desc desc = {.queues = 2, .timelines = 1, .device.hooks = &without_slices};
        void *state = &desc;
        print_message("  %s\n", goes_names[how]);
        assert_int_equal(stage_set_up(&state), 0);
        body((stage *)state, how);
        assert_int_equal(stage_tear_down(&state), 0);
    }
}

static void destroyed_while_they_sleep(stage *s, goes how)
{
    three t = three_points(s);
    size_t gone = how < TIMELINE_DESTROYED ? 1 : 2;
    const gpusync_point points[] = {t.points[0], t.points[gone]};
    job all = {0}, any = {0}, either = {0}, destroy = {0};
    note n = {0};
    job_many(&all, points, 2, ALL, GPUSYNC_FOREVER);
    job_many(&any, points, 2, ANY, GPUSYNC_FOREVER);
    job_many(&either, points, 2, ALL_OR_FAILURE, GPUSYNC_FOREVER);
    await_parked(3);
    let_go(s, how, &destroy, &n);
    assert_result(job_end(&any), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(any.which, 1);
    assert_result(any.error.result, GPUSYNC_ERROR_DESTROYED);
    assert_result(job_end(&either), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(either.which, 1);
    if (how == QUEUE_ABANDONED) assert_ok(job_end(&destroy)); /* what ends before it is given up has ended well */
    /* ALL goes on for the other one, also when the destroy is over, and nothing of the object is left. */
    while (finish_next_of(s->metal[1])) {}
    if (how == QUEUE_DESTROYED) assert_ok(job_end(&destroy));
    if (how == QUEUE_LATER || how == TIMELINE_LATER) assert_noted(&n, GPUSYNC_OK);
    await_parked(1);
    assert_false(job_is_over(&all));
    softmetal_finish(t.buffers[0]);
    if (how == QUEUE_DESTROYED || how == QUEUE_LATER) { /* the GPU has ended its work meanwhile, and well */
        assert_ok(job_end(&all));
        assert_int_equal(all.which, 2);
        return;
    }
    assert_result(job_end(&all), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(all.which, 1);
    assert_result(all.error.result, GPUSYNC_ERROR_DESTROYED);
}

without_stage_on_both_kinds(test_R20_a_point_whose_object_is_destroyed_has_failed)
{
    each_end(destroyed_while_they_sleep);
}

/* A sleeper that stands several times on what is destroyed is woken once, and taken off everywhere. */
on_stage_with(test_R20_a_sleeper_with_several_points_of_one_timeline_that_is_destroyed, .timelines = 2)
{
    const gpusync_point points[] = {at(s->t[0], 1), at(s->t[0], 1), at(s->t[1], 4), at(s->t[0], 2), at(s->t[0], 2)};
    job any = {0}, either = {0};
    note two = {0};
    on_done(at(s->t[0], 2), &two); /* among them */
    job_many(&any, points, LENGTH(points), ANY, GPUSYNC_FOREVER);
    await_parked(1);
    job_many(&either, points, LENGTH(points), ALL_OR_FAILURE, GPUSYNC_FOREVER);
    await_parked(2);
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->t[0] = NULL;
    assert_result(job_end(&any), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(any.which, 0);
    assert_result(job_end(&either), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(either.which, 0);
    assert_noted(&two, GPUSYNC_ERROR_DESTROYED);
}

/* A point that has ended before its object went keeps its result, and holds nothing up. */
static void reached_then_destroyed(stage *s, goes how)
{
    three t = three_points(s);
    job all = {0}, destroy = {0};
    note n = {0};
    job_many(&all, t.points, 3, ALL, GPUSYNC_FOREVER);
    await_parked(1);
    softmetal_finish(t.buffers[1]);
    signal_value(s->t[0], 1);
    let_go(s, how, &destroy, &n);
    if (how == QUEUE_DESTROYED || how == QUEUE_ABANDONED) assert_ok(job_end(&destroy));
    else if (how != TIMELINE_DESTROYED) assert_noted(&n, GPUSYNC_OK);
    assert_false(job_is_over(&all));
    softmetal_finish(t.buffers[0]);
    assert_ok(job_end(&all));
    assert_int_equal(all.which, 3);
}

without_stage_on_both_kinds(test_R20_a_point_that_ended_before_the_destroy_has_its_result)
{
    each_end(reached_then_destroyed);
}

/* -- costs --------------------------------------------------------------------------------------------------------- */

enum { FEW = 16, CROWD = 40 };

on_all_worlds_with(test_S5_up_to_16_points_take_no_memory_and_more_give_it_back, .queues = 2)
{
    gpusync_point points[CROWD];
    void *buffers[CROWD];
    for (unsigned i = 0; i < CROWD; i++) {
        buffers[i] = new_buffer(s->q[i % 2]);
        points[i] = ticket_at(s->q[i % 2], commit(s->q[i % 2], buffers[i]));
    }
    long allocations = kit_now().allocations;
    long blocks = kit_now().blocks;
    for (unsigned k = 0; k < LENGTH(ways); k++)
        assert_result(gpusync_wait_many(points, FEW, ways[k], MS(60), NULL, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().allocations, allocations);
    for (unsigned k = 0; k < LENGTH(ways); k++)
        assert_result(gpusync_wait_many(points, FEW + 1, ways[k], MS(60), NULL, NULL), GPUSYNC_TIMEOUT);
    assert_true(kit_now().allocations > allocations);
    assert_int_equal(kit_now().blocks, blocks);
    for (unsigned i = 0; i < CROWD; i++) { /* the last of them counts as the first does */
        assert_result(many(points, CROWD, ALL, NULL), GPUSYNC_TIMEOUT);
        softmetal_finish(buffers[i]);
    }
    assert_ok(many(points, CROWD, ALL, NULL));
}

on_both_worlds(test_S5_without_memory_a_wait_for_more_than_16_points_changes_nothing)
{
    gpusync_point points[CROWD];
    gpusync_error error = {0};
    const gpusync_wait_options options = {.error = &error};
    size_t which;
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    finish_all(s);
    for (size_t i = 0; i < CROWD; i++) points[i] = ticket_at(s->q[0], GPUSYNC_EVERYTHING);
    memory_fail(1, true);
    for (size_t i = FEW + 1; i <= CROWD; i++) {
        assert_result(gpusync_wait_many(points, i, ALL, 0, &options, &which), GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_int_equal(which, i);
        assert_int_equal(error.result, GPUSYNC_ERROR_OUT_OF_MEMORY);
    }
    assert_result(many(points, FEW, ALL, NULL), GPUSYNC_ERROR_EXECUTION); /* no refused wait has told of it */
}

on_all_worlds_with(test_S2_points_that_have_ended_cost_no_message, .queues = 2, .timelines = 1)
{
    three t = three_points(s);
    size_t k;
    finish_all(s);
    signal_value(s->t[0], 1);
    uint64_t messages = softmetal_messages();
    for (k = 0; k < LENGTH(ways); k++) assert_ok(gpusync_wait_many(t.points, 3, ways[k], GPUSYNC_FOREVER, NULL, NULL));
    assert_int_equal(softmetal_messages(), messages);
    assert_int_equal(world.parks, 0);
}

/* A look costs what its points need: a constant for each, not for each pair. */
on_all_worlds_with(test_S5_a_look_at_many_points_costs_so_many_messages, .queues = 4,
                   .queue = {.max_command_buffer_count = 300})
{
    enum { MOST = 1024 };
    static gpusync_point points[MOST];
    for (unsigned i = 0; i < MOST; i++) points[i] = ticket_at(s->q[i % 4], commit_new(s->q[i % 4]));
    uint64_t one = softmetal_messages();
    assert_result(many(points, 4, ALL, NULL), GPUSYNC_TIMEOUT);
    one = softmetal_messages() - one;
    uint64_t all = softmetal_messages();
    assert_result(many(points, MOST, ALL, NULL), GPUSYNC_TIMEOUT);
    all = softmetal_messages() - all;
    assert_true(all <= one * (MOST / 4));
}

/* -- a model ------------------------------------------------------------------------------------------------------- */

typedef struct model_point {
    gpusync_point point;
    enum { OPEN, WELL, BADLY } stands;
    gpusync_result result; /* where it has ended */
} model_point;

static uint32_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state % below;
}

typedef struct answer {
    gpusync_result result;
    size_t which;
    bool over;
} answer;

/* What the front says of gpusync_wait_many, and no more. */
static answer expected_of(const model_point *const *points, size_t count, gpusync_wait_for how)
{
    size_t i, open = 0, failed = count, ended = count;
    answer a = {GPUSYNC_TIMEOUT, count, false};
    for (i = count; i-- > 0;) {
        if (points[i]->stands == OPEN) open++;
        else ended = i;
        if (points[i]->stands == BADLY) failed = i;
    }
    a.which = how == ANY ? ended : failed;
    if (how == ANY) a.over = ended < count;
    if (how == ALL) a.over = !open;
    if (how == ALL_OR_FAILURE) a.over = !open || failed < count;
    if (a.over) a.result = a.which < count ? points[a.which]->result : GPUSYNC_OK;
    return a;
}

enum { TICKETS = 12, VALUES = 6, POINTS = TICKETS + VALUES };

typedef struct model {
    stage *s;
    model_point points[POINTS];
    void *buffers[TICKETS];
    bool fails[TICKETS];
    unsigned next[2];  /* of each queue: the ticket that ends next */
    uint64_t value[2]; /* of each timeline */
    bool failed[2];
} model;

/* Tickets 1 to 6 of two queues; values 1 to 3 of two timelines. */
static void model_open(model *m, stage *s)
{
    memset(m, 0, sizeof *m);
    m->s = s;
    for (unsigned i = 0; i < TICKETS; i++) {
        gpusync_queue *q = s->q[i / 6];
        m->buffers[i] = new_buffer(q);
        m->fails[i] = draw(3) == 0;
        if (m->fails[i]) softmetal_fail_as(m->buffers[i], SOFTMETAL_PAGE_FAULT, NULL);
        m->points[i].point = ticket_at(q, commit(q, m->buffers[i]));
    }
    for (unsigned i = 0; i < VALUES; i++) m->points[TICKETS + i].point = at(s->t[i / 3], i % 3 + 1);
}

static void model_ticket_ends(model *m, unsigned queue)
{
    unsigned n = queue * 6 + m->next[queue];
    if (m->next[queue] == 6) return;
    m->next[queue]++;
    m->points[n].stands = m->fails[n] ? BADLY : WELL;
    m->points[n].result = m->fails[n] ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
    softmetal_finish(m->buffers[n]);
}

static void model_timeline_moves(model *m, unsigned timeline)
{
    bool fails = draw(4) == 0;
    if (m->failed[timeline] || m->value[timeline] == 3) return;
    if (!fails) m->value[timeline] += 1 + draw((uint32_t)(3 - m->value[timeline]));
    m->failed[timeline] = fails;
    for (unsigned i = 0; i < 3; i++) {
        model_point *p = &m->points[TICKETS + timeline * 3 + i];
        if (p->stands != OPEN || (!fails && p->point.value > m->value[timeline])) continue;
        p->stands = fails ? BADLY : WELL;
        p->result = fails ? GPUSYNC_ERROR_COMPILE : GPUSYNC_OK;
    }
    if (fails) fail_timeline(m->s->t[timeline], GPUSYNC_ERROR_COMPILE);
    else signal_value(m->s->t[timeline], m->value[timeline]);
}

static void model_step(model *m)
{
    unsigned what = draw(4);
    if (what < 2) model_ticket_ends(m, what);
    else model_timeline_moves(m, what - 2);
}

static size_t draw_points(model *m, const model_point **chosen, gpusync_point *points)
{
    size_t count = 1 + draw(20), i;
    for (i = 0; i < count; i++) {
        chosen[i] = &m->points[draw(POINTS)];
        points[i] = chosen[i]->point;
    }
    return count;
}

without_stage_on_both_kinds(test_S4_every_answer_is_that_of_a_simple_model)
{
    for (unsigned round = 1; round <= 60; round++) {
        stage_desc desc = {.queues = 2, .timelines = 2};
        stage s;
        model m;
        random_state = round * 2654435761u;
        stage_open(&s, &desc);
        model_open(&m, &s);
        for (unsigned step = 0; step < 24; step++) {
            for (unsigned question = 0; question < 6; question++) {
                const model_point *chosen[20];
                gpusync_point points[20];
                size_t count = draw_points(&m, chosen, points), which = 99;
                gpusync_wait_for how = ways[question % 3];
                answer expected = expected_of(chosen, count, how);
                gpusync_result result = many(points, count, how, &which);
                if (result != expected.result || which != expected.which)
                    print_error("round %u, step %u, question %u\n", round, step, question);
                assert_result(result, expected.result);
                assert_int_equal(which, expected.which);
            }
            model_step(&m);
        }
        stage_close(&s);
    }
}

/* The same of waits that sleep: each is over with the step with which the model is, and not before. Nothing but that
   step's wake-up ends its sleep. */
without_stage_on_both_kinds(test_S4_every_sleeper_ends_with_the_step_of_a_simple_model)
{
    enum { SLEEPERS = 6 };
    for (unsigned round = 1; round <= 40; round++) {
        static const model_point *chosen[SLEEPERS][20];
        static gpusync_point points[SLEEPERS][20];
        stage_desc desc = {.queues = 2, .timelines = 2, .device.hooks = &without_slices};
        job jobs[SLEEPERS] = {0};
        bool ended[SLEEPERS] = {false};
        unsigned left = SLEEPERS, steps;
        stage s;
        model m;
        random_state = round * 2246822519u;
        stage_open(&s, &desc);
        model_open(&m, &s);
        for (unsigned i = 0; i < SLEEPERS; i++)
            job_many(&jobs[i], points[i], draw_points(&m, chosen[i], points[i]), ways[i % 3], GPUSYNC_FOREVER);
        await_parked(SLEEPERS);
        for (steps = 0; left && steps < 1000; steps++) {
            for (unsigned i = 0; i < SLEEPERS; i++) assert_true(ended[i] || !job_is_over(&jobs[i]));
            model_step(&m);
            for (unsigned i = 0; i < SLEEPERS; i++) {
                answer expected = expected_of(chosen[i], jobs[i].count, jobs[i].how);
                if (ended[i] || !expected.over) continue;
                ended[i] = true;
                left--;
                assert_result(job_end(&jobs[i]), expected.result);
                assert_int_equal(jobs[i].which, expected.which);
            }
        }
        /* What no step ends any more: values of a timeline that has failed are not open, so the host has them all. */
        for (unsigned i = 0; i < 2; i++)
            if (!m.failed[i] && m.value[i] < 3) signal_value(s.t[i], 3);
        for (unsigned i = 0; i < SLEEPERS; i++) assert_true(ended[i]);
        stage_close(&s);
    }
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

typedef struct signaller {
    stage *s;
    unsigned timeline;
} signaller;

enum { RISES = 400 };

static void *signal_often(void *argument)
{
    const signaller *w = (const signaller *)argument;
    for (uint64_t v = 1; v <= RISES; v++)
        must(gpusync_timeline_signal(w->s->t[w->timeline], v) == GPUSYNC_OK, "a signal by the host");
    return NULL;
}

static void *wait_often(void *argument)
{
    const signaller *w = (const signaller *)argument;
    for (uint64_t v = 1; v <= RISES; v += 1 + v % 7) {
        const gpusync_point points[] = {at(w->s->t[0], v), at(w->s->t[1], v), at(w->s->t[2], RISES)};
        uint64_t value = 0;
        size_t which = 9;
        must(gpusync_wait_many(points, 2, ANY, SECONDS(60), NULL, &which) == GPUSYNC_OK, "any");
        must(which < 2, "which");
        must(gpusync_timeline_query(w->s->t[which], &value, NULL) == GPUSYNC_OK && value >= v, "the value of which");
        must(gpusync_wait_many(points, 2, w->timeline ? ALL : ALL_OR_FAILURE, SECONDS(60), NULL, &which) == GPUSYNC_OK,
             "all");
        must(which == 2, "which, of all");
        must(gpusync_timeline_query(w->s->t[0], &value, NULL) == GPUSYNC_OK && value >= v, "the first value");
        must(gpusync_timeline_query(w->s->t[1], &value, NULL) == GPUSYNC_OK && value >= v, "the second value");
    }
    return NULL;
}

on_stage_with(test_S5_threads_that_signal_and_wait_agree, .timelines = 3, .real = true, .threads = true, .spins = true)
{
    signaller w[6];
    pthread_t threads[6];
    for (unsigned i = 0; i < 6; i++) {
        w[i] = (signaller){s, i % 2};
        threads[i] = start(i < 4 ? wait_often : signal_often, &w[i]);
    }
    for (unsigned i = 0; i < 6; i++) join(threads[i]);
}

static unsigned refused;

static void wait_in_a_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    size_t which = 9;
    gpusync_error told;
    const gpusync_wait_options options = {.error = &told};
    result = gpusync_wait_many((const gpusync_point *)user, 2, GPUSYNC_WAIT_ALL, 0, &options, &which);
    must(result == GPUSYNC_ERROR_WOULD_DEADLOCK && told.result == result, "it is refused");
    must(which == 2, "it names no point");
    COUNT(&refused);
}

/* One of its points has failed, which a wait that went on would name. */
on_stage_with(test_a_wait_that_is_refused_names_no_point, .timelines = 2,
              .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    gpusync_point points[] = {at(s->t[0], 1), at(s->t[1], 1)};
    PUT(&refused, 0);
    fail_timeline(s->t[0], GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 0), wait_in_a_callback, points));
    run_callbacks(s);
    assert_int_equal(GET(&refused), 1);
}
