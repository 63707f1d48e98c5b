/* test_wait.c - polls and waits: what they tell, when they end, what they cost; lost handlers, and deaf listeners */
#define GPUSYNC_IMPLEMENTATION
#include "world.h"

/* -- one piece of work, and every way to wait for it --------------------------------------------------------------- */

/* Ticket 1 of the first queue, which signals 1 of timeline "a". */
typedef struct work {
    void *buffer;
    gpusync_ticket ticket;
} work;

static work signalling_work(stage *s)
{
    work w;
    w.buffer = signalling(s->q[0], at(s->t[0], 1));
    w.ticket = commit(s->q[0], w.buffer);
    return w;
}

/* The same, held until a point has come. */
static work held_work(stage *s, gpusync_point point)
{
    work w;
    w.buffer = waiting(s->q[0], point);
    encode_signal(s->q[0], w.buffer, at(s->t[0], 1));
    w.ticket = commit(s->q[0], w.buffer);
    assert_false(is_sent(w.buffer));
    return w;
}

typedef enum way { BY_TICKET, BY_EVERYTHING, BY_VALUE, BY_MANY, BY_ANY, BY_DEVICE, WAYS } way;
static const char *const way_names[] = {"a ticket", "everything", "a value", "many", "any", "the device"};

static gpusync_result wait_by(stage *s, way by, uint64_t timeout_ns, const gpusync_wait_options *options)
{
    const gpusync_point points[] = {ticket_at(s->q[0], 1), at(s->t[0], 1)};
    switch (by) {
    case BY_TICKET: return gpusync_wait(s->q[0], 1, timeout_ns, options);
    case BY_EVERYTHING: return gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, timeout_ns, options);
    case BY_VALUE: return gpusync_timeline_wait(s->t[0], 1, timeout_ns, options);
    case BY_MANY: return gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, timeout_ns, options, NULL);
    case BY_ANY: return gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, timeout_ns, options, NULL);
    default: return gpusync_device_wait(s->device, timeout_ns, options);
    }
}

typedef struct each {
    void (*test)(stage *s, way by);
} each;

/* Runs a test once for each way, on a stage of its own. */
static void each_way(void **state)
{
    const each *e = (const each *)*state;
    for (way by = BY_TICKET; by < WAYS; by++) {
        stage_desc desc = {.queues = 2, .timelines = 1};
        void *own = &desc;
        print_message("  %s\n", way_names[by]);
        assert_int_equal(world_set_up(&own), 0);
        e->test((stage *)own, by);
        assert_int_equal(world_tear_down(&own), 0);
    }
}

#define on_each_way(test) EACH_WAY(test, {#test, each_way, NULL, NULL, (void *)&(each){test}})
#define on_each_way_of_both_kinds(test)                                   \
    EACH_WAY(test, {#test, each_way, NULL, NULL, (void *)&(each){test}}, \
             ALL_ON_METAL4(test, each_way, (void *)&(each){test}))
#define EACH_WAY(test, ...)               \
    static void test(stage *s, way by);   \
    KIT_ADD(test, __VA_ARGS__)            \
    static void test(stage *s, way by)

static gpusync_result wait_now(gpusync_queue *queue, gpusync_ticket ticket)
{
    return gpusync_wait(queue, ticket, 0, NULL);
}

/* -- UNORDERED work (R30) ------------------------------------------------------------------------------------------ */

typedef struct trio {
    void *before, *loose, *behind; /* a ticket, UNORDERED, a ticket */
} trio;

static trio commit_trio(stage *s)
{
    trio t;
    t.before = new_buffer(s->q[0]);
    t.loose = new_buffer(s->q[0]);
    t.behind = new_buffer(s->q[0]);
    commit(s->q[0], t.before);
    SUBMIT(s->q[0], BUFFERS(t.loose), .flags = GPUSYNC_SUBMIT_UNORDERED);
    commit(s->q[0], t.behind);
    return t;
}

static void assert_everything(gpusync_queue *queue, uint64_t in_flight)
{
    assert_int_equal(gpusync_in_flight(queue), in_flight);
    assert_int_equal(gpusync_is_done(queue, GPUSYNC_EVERYTHING), !in_flight);
    assert_result(gpusync_poll(queue, GPUSYNC_EVERYTHING, NULL), in_flight ? GPUSYNC_NOT_READY : GPUSYNC_OK);
    assert_result(wait_now(queue, GPUSYNC_EVERYTHING), in_flight ? GPUSYNC_TIMEOUT : GPUSYNC_OK);
}

on_both_worlds(test_R30_everything_covers_unordered_work_and_a_ticket_does_not)
{
    trio t = commit_trio(s);
    assert_everything(s->q[0], 3);
    softmetal_finish(t.loose);
    assert_everything(s->q[0], 2);
    assert_false(gpusync_is_done(s->q[0], 1));
    softmetal_finish(t.before);
    softmetal_finish(t.behind);
    assert_everything(s->q[0], 0);
    t = commit_trio(s);
    softmetal_finish(t.before);
    softmetal_finish(t.behind);
    assert_true(gpusync_is_done(s->q[0], 4));
    assert_ok(gpusync_poll(s->q[0], 4, NULL));
    assert_ok(wait_now(s->q[0], 4));
    assert_result(gpusync_poll(s->q[0], 5, NULL), GPUSYNC_ERROR_INVALID_TICKET);
    assert_everything(s->q[0], 1);
    assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_TIMEOUT);
    void *newer = new_buffer(s->q[0]); /* ends first: in flight is never too few */
    SUBMIT(s->q[0], BUFFERS(newer), .flags = GPUSYNC_SUBMIT_UNORDERED);
    softmetal_finish(newer);
    assert_in_range(gpusync_in_flight(s->q[0]), 1, 2);
    assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_result(wait_now(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
    softmetal_finish(t.loose);
    assert_everything(s->q[0], 0);
}

/* ... whichever it is: an UNORDERED one, or a ticket. */
on_both_worlds(test_R30_a_wait_for_everything_is_woken_by_the_last_that_ends)
{
    for (unsigned loose_last = 0; loose_last < 2; loose_last++) {
        trio t = commit_trio(s);
        world_begin();
        plan(MS(1), finish_now, loose_last ? t.before : t.loose);
        plan(MS(2), finish_now, loose_last ? t.behind : t.before);
        plan(MS(3), finish_now, loose_last ? t.loose : t.behind);
        assert_ok(loose_last ? gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL)
                             : gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL));
        assert_about(world_passed(), MS(3));
    }
}

typedef enum loose_end { FAILS, IS_CANCELLED, IS_OVERTAKEN, INHERITS } loose_end;

/* ... and a wait for everything, when the ticket has ended. */
on_both_worlds(test_R30_a_callback_and_the_record_tell_every_result_of_unordered_work_at_once)
{
    static const struct {
        loose_end end;
        gpusync_result result;
    } rows[] = {
        {FAILS, GPUSYNC_ERROR_EXECUTION},
        {IS_CANCELLED, GPUSYNC_ERROR_CANCELLED},
        {IS_OVERTAKEN, GPUSYNC_ERROR_NOT_RISING},
        {INHERITS, GPUSYNC_ERROR_COMPILE},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        gpusync_timeline *gate_of = new_timeline(s->device), *out = new_timeline(s->device);
        void *buffer = new_buffer(s->q[0]);
        gpusync_error error;
        note end = {0};
        commit_new(s->q[0]); /* does not end */
        softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        SUBMIT(s->q[0], WAITS(at(gate_of, 1)), BUFFERS(buffer), SIGNALS(at(out, 1)), .label = "loose",
               .on_complete = remember, .user = &end, .flags = GPUSYNC_SUBMIT_UNORDERED);
        assert_false(is_sent(buffer));
        switch (rows[i].end) {
        case FAILS:
            signal_value(gate_of, 1);
            softmetal_finish(buffer);
            break;
        case IS_CANCELLED: assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING)); break;
        case IS_OVERTAKEN:
            signal_value(out, 1);
            signal_value(gate_of, 1);
            break;
        case INHERITS: fail_timeline(gate_of, GPUSYNC_ERROR_COMPILE); break;
        }
        assert_noted(&end, rows[i].result);
        error = failure_at(s->q[0], (unsigned)i);
        assert_result(error.result, rows[i].result);
        assert_int_equal(error.ticket, GPUSYNC_NO_TICKET);
        if (rows[i].end != INHERITS) assert_string_equal(error.label, "loose");
        assert_int_equal(error.ran, rows[i].end == FAILS);
        assert_false(error.in_use);
        assert_memory_equal(&end.error, &error, sizeof error);
        assert_result(wait_now(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
        finish_all(s);
        assert_result(wait_now(s->q[0], GPUSYNC_EVERYTHING), rows[i].result);
        assert_ok(gpusync_poll(s->q[0], (gpusync_ticket)i + 1, NULL));
        assert_ok(gpusync_timeline_destroy(gate_of));
        assert_ok(gpusync_timeline_destroy(out));
    }
}

/* -- limits -------------------------------------------------------------------------------------------------------- */

on_each_way(test_S5_without_time_a_wait_looks_once_and_sleeps_never)
{
    work w = signalling_work(s);
    assert_result(wait_by(s, by, 0, NULL), GPUSYNC_TIMEOUT); /* with the look that is due once in 50 ms */
    uint64_t statuses = softmetal_message_count("status");
    assert_result(wait_by(s, by, 0, NULL), GPUSYNC_TIMEOUT);
    if (by == BY_TICKET || by == BY_EVERYTHING || by == BY_DEVICE)
        assert_int_equal(softmetal_message_count("status") - statuses, 1);
    assert_int_equal(world.parks + world.yields, 0);
    softmetal_complete(w.buffer); /* a look finds that, no handler tells it */
    assert_ok(wait_by(s, by, 0, NULL));
    assert_int_equal(world.parks + world.yields, 0);
    assert_int_equal(kit_now().log_lines, 0); /* a wait without time asks */
}

on_each_way_of_both_kinds(test_S5_a_wait_keeps_its_limit_and_can_be_repeated)
{
    static const uint64_t limits[] = {1, US(3), MS(10), MS(50), SECONDS(3)};
    gpusync_wait_options options = {0};
    work w = signalling_work(s);
    long blocks = kit_now().blocks;
    for (size_t i = 0; i < LENGTH(limits); i++) {
        world_begin();
        assert_result(wait_by(s, by, limits[i], &options), GPUSYNC_TIMEOUT);
        assert_about(world_passed(), limits[i]);
        unsigned long parks = world.parks < WORLD_PARKS ? world.parks : WORLD_PARKS;
        while (parks-- > 0) assert_true(world.deadline[parks] <= world.begun + limits[i] + WORLD_SLACK);
    }
    assert_true(log_has(GPUSYNC_LOG_WARNING, "first") || log_has(GPUSYNC_LOG_WARNING, "a"));
    assert_int_equal(kit_now().blocks, blocks);
    world_begin();
    softmetal_finish(w.buffer);
    assert_int_equal(world.unparks, 0); /* they have left nothing behind */
    assert_ok(wait_by(s, by, 0, NULL));
}

/* A program that waits in slices, to see Ctrl-C: the first wait, and one a second later, and one two seconds later. The
   lines of another object come beside them. */
on_each_way_of_both_kinds(test_R44_waits_that_end_at_their_limits_are_logged_once_a_second)
{
    signalling_work(s);
    commit_new(s->q[1]);
    for (unsigned i = 0; i < 25; i++) {
        assert_result(wait_by(s, by, MS(100), NULL), GPUSYNC_TIMEOUT);
        assert_int_equal(kit_now().log_lines, 1 + i / 10);
    }
    assert_result(gpusync_wait(s->q[1], 1, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_result(wait_by(s, by == BY_VALUE ? BY_TICKET : BY_VALUE, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().log_lines, 5);
    assert_true(log_has(GPUSYNC_LOG_WARNING, "first") && log_has(GPUSYNC_LOG_WARNING, "second"));
    assert_true(log_has(GPUSYNC_LOG_WARNING, "'a'"));
    assert_result(gpusync_wait(s->q[1], 1, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().log_lines, 5);
}

on_each_way_of_both_kinds(test_S5_F10_huge_limits_do_not_overflow)
{
    static const uint64_t limits[] = {UINT64_MAX - 1, UINT64_MAX / 2, (uint64_t)INT64_MAX + 1};
    work w = signalling_work(s);
    plan(MS(3), finish_now, w.buffer);
    assert_ok(wait_by(s, by, limits[(unsigned)by % LENGTH(limits)], NULL));
    assert_about(world_passed(), MS(3));
}

/* No handler wakes the wait: it looks at its limit. */
on_each_way(test_S5_what_has_ended_by_the_deadline_has_ended)
{
    work w = signalling_work(s);
    plan(MS(5), complete_now, w.buffer);
    assert_ok(wait_by(s, by, MS(5), NULL));
    assert_about(world_passed(), MS(5));
    assert_int_equal(world.parks, 1);
    assert_int_equal(kit_now().log_lines, 0);
}

static void others_signal_5(void *timeline)
{
    other_code_signals((gpusync_timeline *)timeline, 5);
}

on_world_with(test_S5_a_value_of_others_counts_that_has_come_by_the_deadline, .timelines = 1,
              .timeline = {.signalled_by_others = true})
{
    set_quirks(.deaf_to_everything = true);
    plan(MS(2), others_signal_5, s->t[0]);
    assert_ok(gpusync_timeline_wait(s->t[0], 5, MS(2), NULL));
    assert_about(world_passed(), MS(2));
    assert_int_equal(world.parks, 1);
}

on_both_worlds(test_S5_a_park_that_returns_early_costs_nothing_but_another)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], buffer);
    world.restless = true;
    assert_result(gpusync_wait(s->q[0], ticket, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_about(world_passed(), MS(1));
    assert_true(world.parks > 100);
    world_begin();
    plan(US(300), finish_now, buffer);
    assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), US(300));
    world.restless = false;
}

/* A handler that runs between the check and the park leaves a permit. */
on_both_worlds(test_S5_an_end_before_the_park_is_not_slept_through)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], buffer);
    plan(0, finish_now, buffer); /* at the next look at the status, or in park: the first moment that there is */
    assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), 0);
}

/* -- room ---------------------------------------------------------------------------------------------------------- */

/* F4: also where handlers are slow. Metal has ended the work, and a look gives its place back. */
on_world_with(test_F4_R10_a_wait_for_room_keeps_its_limit, .queue = {.max_command_buffer_count = 2})
{
    static const uint64_t limits[] = {1, US(3), MS(10), MS(50), SECONDS(3)};
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    void *made;
    for (size_t i = 0; i < 2; i++) commit(s->q[0], buffers[i]);
    for (size_t i = 0; i < LENGTH(limits); i++) {
        made = s;
        world_begin();
        assert_result(gpusync_command_buffer_create(s->q[0], NULL, limits[i], &made), GPUSYNC_TIMEOUT);
        assert_about(world_passed(), limits[i]);
        assert_null(made);
    }
    world_begin();
    complete_now(buffers[0]);
    assert_ok(gpusync_command_buffer_create(s->q[0], NULL, MS(10), &made));
    assert_about(world_passed(), 0);
    assert_ok(gpusync_command_buffer_discard(s->q[0], made));
    commit_new(s->q[0]);
    world_begin();
    plan(MS(10), complete_now, buffers[1]);
    assert_ok(gpusync_command_buffer_create(s->q[0], NULL, MS(10), &made));
    assert_about(world_passed(), MS(10));
    assert_ok(gpusync_command_buffer_discard(s->q[0], made));
}

/* All that fills the queue is open, so that only the program can make room, whatever another queue does meanwhile. */
on_world_with(test_R37_a_wait_for_room_that_only_the_program_can_make_ends_after_a_second, .queues = 2,
              .queue = {.max_command_buffer_count = 1})
{
    void *other = new_buffer(s->q[1]), *made = s;
    (void)new_buffer(s->q[0]);
    commit(s->q[1], other);
    plan(MS(900), finish_now, other);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &made), GPUSYNC_ERROR_QUEUE_FULL);
    assert_in_range(world_passed(), MS(950), MS(1400) + WORLD_SLACK); /* a slice at most behind the second */
    assert_null(made);
}

/* -- what never waits ---------------------------------------------------------------------------------------------- */

/* An open buffer is no work yet. */
on_world_with(test_F16_an_open_buffer_holds_up_no_wait, .timelines = 1)
{
    (void)signalling(s->q[0], at(s->t[0], 1));
    commit_new(s->q[0]);
    finish_all(s);
    assert_ok(wait_now(s->q[0], GPUSYNC_EVERYTHING));
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(world.parks + world.yields, 0);
}

on_world_with(test_S5_calls_without_a_limit_call_no_hook_that_waits, .queues = 2, .timelines = 1,
              .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    void *open = new_buffer(s->q[0]), *held = new_buffer(s->q[1]);
    void *witness = softmetal_new_device();
    gpusync_error error;
    gpusync_times times;
    note n = {0}, ends = {0};
    uint64_t cursor = 0, value;
    size_t count;
    gpusync_ticket ticket = commit_new(s->q[0]);
    encode_wait(s->q[1], held, ticket_at(s->q[0], ticket));
    encode_signal(s->q[1], held, at(s->t[0], 1));
    commit(s->q[1], held);
    assert_result(gpusync_poll(s->q[0], ticket, &times), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s->q[1], 1, NULL), GPUSYNC_NOT_READY);
    assert_ok(gpusync_timeline_query(s->t[0], &value, NULL));
    assert_result(gpusync_queue_next_error(s->q[0], &cursor, &error), GPUSYNC_NOT_READY);
    on_done(ticket_at(s->q[1], 1), &n);
    assert_ok(gpusync_release_after(s->q[1], 1, witness));
    metal_release(witness);
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), .flags = GPUSYNC_SUBMIT_UNORDERED);
    assert_ok(gpusync_device_run_callbacks(s->device, 1, &count));
    assert_ok(gpusync_queue_cancel_held(s->q[1], GPUSYNC_EVERYTHING));
    assert_ok(gpusync_command_buffer_discard(s->q[0], open));
    assert_result(gpusync_timeline_signal(s->t[0], 2), GPUSYNC_ERROR_CANCELLED);
    assert_ok(gpusync_queue_destroy_later(s->q[1], remember_destroyed, &ends));
    s->q[1] = NULL;
    assert_false(gpusync_device_is_lost(s->device));
    assert_int_equal(world.parks + world.yields, 0);
    settle(s);
    assert_noted(&ends, GPUSYNC_OK);
}

static gpusync_error unfilled(void)
{
    gpusync_error error;
    memset(&error, 0x7B, sizeof error);
    return error;
}

static void assert_refused(gpusync_result got, gpusync_result expected, gpusync_error *error)
{
    assert_result(got, expected);
    assert_int_equal(error->result, expected);
    assert_string_not_equal(error->message, "");
    *error = unfilled();
}

on_both_worlds_with(test_S4_S5_a_wait_that_refuses_fills_the_error_and_has_changed_nothing, .timelines = 1)
{
    gpusync_ticket ticket = commit_new(s->q[0]);
    const gpusync_point beyond = ticket_at(s->q[0], ticket + 1);
    gpusync_error error = unfilled();
    const gpusync_wait_options options = {.error = &error};
    uint64_t messages = softmetal_messages();
    long blocks = kit_now().blocks;
    assert_refused(gpusync_wait(s->q[0], ticket + 1, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_INVALID_TICKET, &error);
    assert_refused(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING - 1, GPUSYNC_FOREVER, &options),
                   GPUSYNC_ERROR_INVALID_TICKET, &error);
    assert_refused(gpusync_wait_many(&beyond, 1, GPUSYNC_WAIT_ALL, 0, &options, NULL), GPUSYNC_ERROR_INVALID_TICKET,
                   &error);
    assert_refused(gpusync_timeline_wait(s->t[0], GPUSYNC_MAX_VALUE + 1, GPUSYNC_FOREVER, &options),
                   GPUSYNC_ERROR_NOT_RISING, &error);
    assert_refused(gpusync_wait(NULL, 1, 0, &options), GPUSYNC_ERROR_INVALID_ARGUMENT, &error);
    assert_refused(gpusync_timeline_wait(NULL, 0, 0, &options), GPUSYNC_ERROR_INVALID_ARGUMENT, &error);
    assert_refused(gpusync_device_wait(NULL, 0, &options), GPUSYNC_ERROR_INVALID_ARGUMENT, &error);
    assert_refused(gpusync_wait_many(NULL, 1, GPUSYNC_WAIT_ALL, 0, &options, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT,
                   &error);
    assert_result(gpusync_wait(NULL, 0, 0, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_poll(s->q[0], ticket + 1, NULL), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_poll(NULL, 0, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(softmetal_messages(), messages);
    assert_int_equal(kit_now().blocks, blocks);
    assert_int_equal(kit_now().log_lines, 0);
    assert_int_equal(world.parks + world.yields, 0);
    assert_true(commit_new(s->q[0]) == ticket + 1);
}

/* -- costs --------------------------------------------------------------------------------------------------------- */

on_each_way_of_both_kinds(test_S2_waits_for_what_is_done_send_no_message)
{
    signalling_work(s);
    finish_all(s);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    uint64_t messages = softmetal_messages();
    long allocations = kit_now().allocations;
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    assert_int_equal(softmetal_messages(), messages);
    assert_int_equal(kit_now().allocations, allocations);
    assert_int_equal(world.parks + world.yields, 0);
}

on_each_way_of_both_kinds(test_S5_a_wait_that_sleeps_parks_once_and_is_woken_once)
{
    work w = signalling_work(s);
    uint64_t statuses = softmetal_message_count("status");
    long allocations = kit_now().allocations;
    plan(MS(20), finish_now, w.buffer);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), MS(20));
    assert_int_equal(world.parks, 1);
    assert_int_equal(world.unparks, 1);
    assert_int_equal(world.yields, 0);
    assert_true(softmetal_message_count("status") - statuses <= 3); /* not one for each turn of a loop */
    assert_int_equal(kit_now().allocations, allocations);
}

/* Everyone who waits for one ticket is woken by its end; a later ticket's sleeper sleeps on. */
on_both_kinds_with(test_S5_an_end_wakes_all_that_wait_for_it_and_no_other, .device.hooks = &without_slices)
{
    enum { SLEEPERS = 24 };
    job jobs[SLEEPERS] = {0}, later = {0};
    void *first = new_buffer(s->q[0]), *second = new_buffer(s->q[0]);
    commit(s->q[0], first);
    commit(s->q[0], second);
    for (unsigned i = 0; i < SLEEPERS; i++) job_wait(&jobs[i], s->q[0], 1, GPUSYNC_FOREVER);
    job_wait(&later, s->q[0], 2, GPUSYNC_FOREVER);
    await_parked(SLEEPERS + 1);
    softmetal_finish(first);
    for (unsigned i = 0; i < SLEEPERS; i++) assert_ok(job_end(&jobs[i]));
    assert_int_equal(kit_now().unparks, SLEEPERS);
    assert_false(job_is_over(&later));
    softmetal_finish(second);
    assert_ok(job_end(&later));
    assert_int_equal(kit_now().unparks, SLEEPERS + 1);
}

on_both_kinds_with(test_S5_the_sleep_of_gpusync_itself_wakes_every_thread, .threads = true)
{
    enum { SLEEPERS = 8, ROUNDS = 50 };
    job jobs[SLEEPERS] = {0};
    for (unsigned round = 0; round < ROUNDS; round++) {
        gpusync_ticket ticket = commit_new(s->q[0]);
        for (unsigned i = 0; i < SLEEPERS; i++) job_wait(&jobs[i], s->q[0], ticket, SECONDS(60));
        assert_true(finish_next(s->q[0]));
        for (unsigned i = 0; i < SLEEPERS; i++) assert_ok(job_end(&jobs[i]));
    }
}

/* No slice ends this sleep: the clock is far ahead of the machine's, by which the sleep has its end. Other code signals
   the timeline, too, so a message to Metal tells that the thread is listed: from then on a signal has to end its wait,
   whether the thread sleeps already or is about to. */
on_stage_with(test_S5_the_sleep_of_gpusync_itself_ends_by_the_wake_up_alone, .threads = true, .timelines = 1,
              .timeline = {.signalled_by_others = true})
{
    PUT(&world.now, gpusync_now_ns() + SECONDS(1000000));
    PUT(&world.on, true);
    for (uint64_t value = 1; value <= 20; value++) {
        job j = {0};
        uint64_t asked = softmetal_message_count("notifyListener:atValue:block:");
        job_value(&j, s->t[0], value, GPUSYNC_FOREVER);
        while (softmetal_message_count("notifyListener:atValue:block:") == asked) sched_yield();
        if (value & 1) usleep(1000); /* mostly it sleeps then; the result must not depend on that */
        signal_value(s->t[0], value);
        assert_ok(job_end(&j));
    }
    PUT(&world.on, false);
}

/* A wake-up ends one sleep. Where the wait then goes on it sleeps again, and does not look at the clock over and over:
   the world's clock counts the looks. */
on_stage_with(test_S5_the_sleep_of_gpusync_itself_sleeps_again_behind_a_wake_up, .threads = true, .timelines = 2,
              .timeline = {.signalled_by_others = true})
{
    const gpusync_point points[2] = {at(s->t[0], 1), at(s->t[1], 1)};
    job j = {0};
    uint64_t now;
    PUT(&world.now, gpusync_now_ns() + SECONDS(1000000));
    PUT(&world.on, true);
    job_many(&j, points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    while (softmetal_message_count("notifyListener:atValue:block:") < 1) sched_yield();
    signal_value(s->t[0], 1);
    while (softmetal_message_count("notifyListener:atValue:block:") < 2) sched_yield(); /* it waits for the other one */
    now = world_now();
    usleep(20000); /* a thread that does not sleep reads the clock thousands of times meanwhile */
    assert_true(world_now() - now < US(10));
    signal_value(s->t[1], 1);
    assert_ok(job_end(&j));
    PUT(&world.on, false);
}

/* -- options.error ------------------------------------------------------------------------------------------------- */

on_each_way_of_both_kinds(test_S4_without_an_error_options_error_is_left_alone)
{
    gpusync_error error = unfilled(), expected = unfilled();
    const gpusync_wait_options options = {.error = &error};
    work w = signalling_work(s);
    assert_result(wait_by(s, by, 0, &options), GPUSYNC_TIMEOUT);
    assert_result(wait_by(s, by, MS(60), &options), GPUSYNC_TIMEOUT);
    plan(MS(1), finish_now, w.buffer);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, &options));
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, &options));
    assert_memory_equal(&error, &expected, sizeof expected);
}

/* ... and the failure is on record as the wait returns. On a plain queue a look alone finds it. */
on_each_way_of_both_kinds(test_S4_a_wait_fills_options_error_with_the_failure)
{
    gpusync_error error = unfilled();
    const gpusync_wait_options options = {.error = &error};
    void *buffer = named_buffer(s->q[0], "blur");
    encode_signal(s->q[0], buffer, at(s->t[0], 1));
    softmetal_fail_as(buffer, SOFTMETAL_OUT_OF_MEMORY, NULL);
    commit(s->q[0], buffer);
    plan(MS(3), is_metal4(s->q[0]) ? finish_now : complete_now, buffer);
    assert_result(wait_by(s, by, MS(20), &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failures_of(s->q[0]), 1);
    assert_int_equal(failure_at(s->q[0], 0).ticket, 1);
    assert_int_equal(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_OUT_OF_MEMORY);
    assert_string_equal(error.label, "blur");
    assert_string_equal(error.queue_label, "first");
    if (by == BY_TICKET || by == BY_EVERYTHING || by == BY_DEVICE) assert_int_equal(error.ticket, 1);
    assert_result(wait_now(s->q[0], 1), GPUSYNC_ERROR_EXECUTION); /* a ticket keeps its result */
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_EXECUTION);
}

/* It is found between two turns of the spin; nothing unparks a thread that does not sleep. */
on_both_kinds(test_R20_a_wait_that_spins_ends_with_its_queue)
{
    static const gpusync_spin for_ever = {.yield_iterations = UINT32_MAX};
    gpusync_queue *queue = s->q[0];
    job j = {.options = {.spin = &for_ever}};
    note n = {0};
    commit_new(queue);
    job_wait(&j, queue, 1, GPUSYNC_FOREVER);
    while (kit_now().yields < 100) sched_yield();
    s->q[0] = NULL;
    assert_ok(gpusync_queue_destroy_later(queue, remember_destroyed, &n));
    assert_result(job_end(&j), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(kit_now().parks, 0);
    assert_int_equal(calls_of(&n), 0);
    settle(s);
    assert_noted(&n, GPUSYNC_OK);
}

/* -- everything (R31) ---------------------------------------------------------------------------------------------- */

/* The last work ends just as a wait for everything begins, and another thread is told of all failures first. The two
   overlap: the first one begins with its call, and not where it has looked and is about to sleep. */
static gpusync_queue *queue_of_another_thread;

static void end_and_ask_for_everything(void *buffer)
{
    softmetal_finish(buffer);
    must(gpusync_wait(queue_of_another_thread, GPUSYNC_EVERYTHING, 0, NULL) == GPUSYNC_ERROR_EXECUTION, "told there");
}

on_world(test_R31_a_wait_for_everything_begins_with_its_call)
{
    void *buffer = new_buffer(s->q[0]);
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    finish_all(s);
    commit(s->q[0], buffer);
    queue_of_another_thread = s->q[0];
    plan(0, end_and_ask_for_everything, buffer); /* at the first look */
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(world.parks, 0);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL));
}

/* -- the device ---------------------------------------------------------------------------------------------------- */

on_all_worlds_with(test_S5_F5_a_wait_for_the_device_has_one_limit_for_all_queues, .queues = 3)
{
    void *buffers[3];
    for (unsigned i = 0; i < 3; i++) {
        buffers[i] = new_buffer(s->q[i]);
        commit(s->q[i], buffers[i]);
    }
    plan(MS(4), finish_now, buffers[0]);
    plan(MS(8), finish_now, buffers[2]);
    assert_result(gpusync_device_wait(s->device, MS(10), NULL), GPUSYNC_TIMEOUT);
    assert_about(world_passed(), MS(10));
    world_begin();
    plan(MS(2), finish_now, buffers[1]);
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), MS(2));
}

on_all_kinds_with(test_R20_a_wait_for_the_device_skips_queues_that_are_being_destroyed, .queues = 3)
{
    job before = {0}, during = {0}, last = {0}, destroy = {0};
    note n = {0};
    for (unsigned i = 0; i < 3; i++) commit_new(s->q[i]);
    job_device(&before, s->device, GPUSYNC_FOREVER);
    await_parked(1);
    job_destroy(&destroy, s->q[1]);
    assert_ok(gpusync_queue_destroy_later(s->q[2], remember_destroyed, &n));
    s->q[2] = NULL;
    await_parked(2); /* of the device, and of the destroy */
    job_device(&during, s->device, GPUSYNC_FOREVER);
    await_parked(3);
    finish_next(s->q[0]);
    assert_ok(job_end(&before)); /* the work of the other two has not ended */
    assert_ok(job_end(&during));
    assert_int_equal(calls_of(&n), 0);
    assert_false(job_is_over(&destroy));
    while (finish_next_of(s->metal[1])) {}
    assert_ok(job_end(&destroy));
    s->q[1] = NULL;
    commit_new(s->q[0]);
    job_device(&last, s->device, GPUSYNC_FOREVER);
    await_parked(1);
    job_destroy(&destroy, s->q[0]);
    assert_ok(job_end(&last)); /* no queue is left */
    while (finish_next_of(s->metal[0])) {}
    assert_ok(job_end(&destroy));
    s->q[0] = NULL;
    settle(s);
    assert_noted(&n, GPUSYNC_OK);
}

on_world_with(test_S5_a_wait_for_the_device_covers_any_number_of_queues, .no_queue = true)
{
    enum { CROWD = 20 };
    gpusync_queue *queues[CROWD];
    gpusync_error error = {0};
    const gpusync_wait_options options = {.error = &error};
    gpusync_result result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    long n;
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL)); /* none */
    for (unsigned i = 0; i < CROWD; i++) assert_ok(gpusync_queue_create(s->device, NULL, &queues[i]));
    commit_failing(queues[CROWD - 1], SOFTMETAL_PAGE_FAULT);
    assert_true(finish_next(queues[CROWD - 1]));
    long blocks = kit_now().blocks;
    for (n = 1; result == GPUSYNC_ERROR_OUT_OF_MEMORY; n++) {
        memory_fail(n, false);
        result = gpusync_device_wait(s->device, 0, &options);
        memory_fail(0, false);
        assert_int_equal(kit_now().blocks, blocks);
        assert_int_equal(error.result, result);
    }
    assert_result(result, GPUSYNC_ERROR_EXECUTION); /* no refused wait has told of it */
    assert_true(n > 2);
    for (unsigned i = 0; i < CROWD; i++) commit_new(queues[i]);
    for (unsigned i = 0; i < CROWD; i++) { /* whichever is missing: the wait is not over */
        assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_TIMEOUT);
        assert_true(finish_next(queues[(i * 7 + 3) % CROWD]));
    }
    assert_ok(gpusync_device_wait(s->device, 0, NULL));
    for (unsigned i = 0; i < CROWD; i++) assert_ok(gpusync_queue_destroy(queues[i]));
}

/* -- handlers (R28) ------------------------------------------------------------------------------------------------ */

/* A completed handler of the program's, as the block that it hands to Metal. */
typedef struct flag_block {
    void *isa;
    int32_t flags, reserved;
    void (*invoke)(struct flag_block *self, void *buffer);
    const void *descriptor;
    int ran;
} flag_block;

extern void *_NSConcreteGlobalBlock[32];
static const struct {
    unsigned long reserved, size;
    const char *signature;
} flag_descriptor = {0, sizeof(flag_block), "v16@?0@8"};

static void set_ran(flag_block *self, void *buffer)
{
    __atomic_store_n(&self->ran, 1, __ATOMIC_RELAXED);
}

static void add_handler(void *buffer, flag_block *block)
{
    memset(block, 0, sizeof *block);
    block->isa = _NSConcreteGlobalBlock;
    block->flags = 1 << 28 | 1 << 30;
    block->invoke = set_ran;
    block->descriptor = &flag_descriptor;
    metal_add_completed_handler(buffer, block);
}

static const gpusync_wait_options with_handlers = {.handlers = true};

static gpusync_result handled(gpusync_queue *queue, gpusync_ticket ticket)
{
    return gpusync_wait(queue, ticket, 0, &with_handlers);
}

/* The ways that wait for a ticket of the first queue. */
static gpusync_result wait_for_ticket(stage *s, way by, gpusync_ticket ticket, uint64_t timeout_ns, bool handlers)
{
    const gpusync_wait_options options = {.handlers = handlers};
    const gpusync_point point = ticket_at(s->q[0], ticket);
    switch (by) {
    case BY_TICKET: return gpusync_wait(s->q[0], ticket, timeout_ns, &options);
    case BY_MANY: return gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, timeout_ns, &options, NULL);
    case BY_ANY: return gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ANY, timeout_ns, &options, NULL);
    default: return wait_by(s, by, timeout_ns, &options);
    }
}

/* The last handler that a wait counts wakes it: its own, or one of earlier work, where its own work has had its handler
   or has none. */
on_each_way(test_R28_F15_with_handlers_a_wait_goes_on_until_they_have_run)
{
    enum { OWN, EARLIER, NONE_OF_ITS_OWN, CASES };
    for (unsigned which = OWN; which < CASES; which++) {
        void *last = new_buffer(s->q[0]), *own = which == EARLIER ? new_buffer(s->q[0]) : NULL;
        flag_block flag;
        if (by == BY_VALUE) continue; /* a value has no handler */
        add_handler(last, &flag);
        gpusync_ticket ticket = commit(s->q[0], last);
        if (which == EARLIER) ticket = commit(s->q[0], own);
        if (which == NONE_OF_ITS_OWN) ticket = SUBMIT(s->q[0], .label = "empty");
        softmetal_complete(last);
        if (own) softmetal_finish(own);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        assert_ok(wait_for_ticket(s, by, ticket, GPUSYNC_FOREVER, false));
        assert_result(wait_for_ticket(s, by, ticket, 0, true), GPUSYNC_TIMEOUT);
        world_begin();
        plan(MS(3), finish_now, last);
        assert_ok(wait_for_ticket(s, by, ticket, GPUSYNC_FOREVER, true));
        assert_int_equal(flag.ran, 1);
        assert_about(world_passed(), MS(3));
        assert_int_equal(world.parks, 1);
    }
}

/* The end comes first, and wakes no wait that wants the handlers, or wakes it for nothing. */
on_world(test_R28_a_wait_for_handlers_sleeps_through_the_end)
{
    void *buffer = new_buffer(s->q[0]);
    flag_block flag;
    add_handler(buffer, &flag);
    commit(s->q[0], buffer);
    plan(MS(2), complete_now, buffer);
    plan(MS(70), finish_now, buffer); /* behind a look */
    assert_ok(gpusync_wait(s->q[0], 1, GPUSYNC_FOREVER, &with_handlers));
    assert_about(world_passed(), MS(70));
    assert_int_equal(flag.ran, 1);
}

on_world(test_R28_R30_the_handlers_of_tickets_before_it_count_and_no_others)
{
    trio t = commit_trio(s);
    softmetal_complete(t.before);
    softmetal_complete(t.loose);
    softmetal_complete(t.behind);
    assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
    softmetal_finish(t.behind);
    assert_result(handled(s->q[0], 2), GPUSYNC_TIMEOUT); /* ticket 1's has not run */
    softmetal_finish(t.before);
    assert_ok(handled(s->q[0], 2)); /* UNORDERED work is none of its */
    assert_result(handled(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(s->device, 0, &with_handlers), GPUSYNC_TIMEOUT);
    softmetal_finish(t.loose);
    assert_ok(handled(s->q[0], GPUSYNC_EVERYTHING));
    assert_ok(handled(s->q[0], GPUSYNC_NO_TICKET));
}

on_both_kinds(test_R28_later_handlers_are_not_waited_for)
{
    void *first = new_buffer(s->q[0]), *second = new_buffer(s->q[0]);
    job ticket = {.options = {.handlers = true}}, all = {.options = {.handlers = true}};
    commit(s->q[0], first);
    softmetal_complete(first);
    job_wait(&ticket, s->q[0], 1, GPUSYNC_FOREVER);
    job_wait(&all, s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_parked(2);
    commit(s->q[0], second);
    softmetal_finish(first);
    assert_ok(job_end(&ticket));
    assert_ok(job_end(&all));
    assert_result(handled(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
}

on_world(test_R28_a_submission_has_the_handlers_of_all_its_buffers)
{
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    flag_block flags[2];
    for (unsigned i = 0; i < 2; i++) add_handler(buffers[i], &flags[i]);
    gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(buffers[0], buffers[1]));
    for (unsigned i = 0; i < 2; i++) softmetal_complete(buffers[i]);
    assert_ok(wait_now(s->q[0], ticket));
    assert_result(handled(s->q[0], ticket), GPUSYNC_TIMEOUT);
    softmetal_finish(buffers[1]);
    assert_result(handled(s->q[0], ticket), GPUSYNC_TIMEOUT);
    softmetal_finish(buffers[0]);
    assert_ok(handled(s->q[0], ticket));
    assert_int_equal(flags[0].ran + flags[1].ran, 2);
}

on_world(test_R28_a_failure_is_told_when_the_handler_has_run)
{
    void *buffer = new_buffer(s->q[0]);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[0], buffer);
    softmetal_complete(buffer);
    assert_result(wait_now(s->q[0], 1), GPUSYNC_ERROR_EXECUTION);
    assert_result(handled(s->q[0], 1), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_result(handled(s->q[0], 1), GPUSYNC_ERROR_EXECUTION);
}

on_world_with(test_R28_work_that_never_ran_has_no_handlers, .timelines = 1)
{
    void *buffer = new_buffer(s->q[0]);
    flag_block flag;
    add_handler(buffer, &flag);
    encode_wait(s->q[0], buffer, at(s->t[0], 1));
    commit(s->q[0], buffer);
    assert_result(handled(s->q[0], 1), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    assert_result(handled(s->q[0], 1), GPUSYNC_ERROR_CANCELLED);
    assert_true(SUBMIT(s->q[0], .label = "empty") == 2);
    settle(s);
    assert_ok(handled(s->q[0], 2));
}

on_world_with(test_R28_a_value_has_no_handlers, .timelines = 1)
{
    work w = signalling_work(s);
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, &with_handlers), GPUSYNC_TIMEOUT);
    softmetal_complete(w.buffer);
    assert_ok(gpusync_timeline_wait(s->t[0], 1, 0, &with_handlers));
    assert_result(handled(s->q[0], 1), GPUSYNC_TIMEOUT);
}

/* What a handler wrote is seen after the wait, also where Metal runs handlers out of order. */
typedef struct handler_writer {
    stage *s;
    flag_block blocks[100];
} handler_writer;

static void *write_in_handlers(void *argument)
{
    handler_writer *w = (handler_writer *)argument;
    void *pool = metal_pool_push();
    for (size_t i = 0; i < LENGTH(w->blocks); i++) {
        gpusync_queue *queue = w->s->q[0];
        gpusync_ticket ticket;
        void *buffer;
        must(gpusync_command_buffer_create(queue, NULL, SECONDS(60), &buffer) == GPUSYNC_OK, "a buffer");
        add_handler(buffer, &w->blocks[i]);
        must(gpusync_commit(queue, buffer, &ticket) == GPUSYNC_OK, "a commit");
        if (i % 3 == 0) ticket = GPUSYNC_EVERYTHING;
        must(gpusync_wait(queue, ticket, SECONDS(60), &with_handlers) == GPUSYNC_OK, "a wait for handlers");
        must(__atomic_load_n(&w->blocks[i].ran, __ATOMIC_RELAXED) == 1, "the handler has not run");
    }
    metal_pool_pop(pool);
    return NULL;
}

on_stage_with(test_R28_what_handlers_wrote_is_seen_after_the_wait, .real = true, .threads = true, .spins = true)
{
    static const softmetal_chaos chaos = {.complete_out_of_order_per_mille = 200};
    static handler_writer writers[3];
    pthread_t threads[LENGTH(writers)];
    set_quirks(.status_early = true);
    softmetal_set_chaos(&chaos);
    for (size_t i = 0; i < LENGTH(writers); i++) {
        memset(&writers[i], 0, sizeof writers[i]);
        writers[i].s = s;
        threads[i] = start(write_in_handlers, &writers[i]);
    }
    for (size_t i = 0; i < LENGTH(writers); i++) join(threads[i]);
    settle(s);
}

/* -- lost handlers and deaf listeners (R24, T7) -------------------------------------------------------------------- */

on_both_worlds(test_T7_a_sleeping_wait_looks_after_50_ms_and_then_more_seldom)
{
    static const unsigned looks_ms[] = {50, 150, 350, 750, 1150, 1550, 1900};
    commit_new(s->q[0]);
    assert_result(gpusync_wait(s->q[0], 1, MS(1900), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(world.parks, LENGTH(looks_ms));
    for (size_t i = 0; i < LENGTH(looks_ms); i++)
        assert_int_equal((world.deadline[i] - world.begun + US(500)) / MS(1), looks_ms[i]);
}

/* Metal loses the handler of the work itself. */
on_each_way(test_T7_a_lost_handler_costs_one_slice)
{
    work w = signalling_work(s);
    plan(MS(10), lose_handlers_now, w.buffer);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), MS(50));
}

on_each_way(test_T7_parks_that_return_early_put_off_no_look)
{
    work w = signalling_work(s);
    world.restless = true;
    plan(MS(10), lose_handlers_now, w.buffer);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), MS(50));
    world.restless = false;
}

/* -- what holds up the work is elsewhere on the device */

typedef struct elsewhere {
    stage *s;
    void *buffer;            /* of the second queue, whose handler is lost; or */
    void *event;             /* of other code, whose listener is deaf */
    gpusync_timeline *other; /* of that event */
    gpusync_queue *closing;
    note destroyed;
} elsewhere;

typedef enum place { ON_A_QUEUE, ON_A_QUEUE_OF_DESTROY_LATER, AT_AN_EVENT, PLACES } place;
static const char *const place_names[] = {"on a queue", "on a queue that is destroyed later", "at an event"};

/* Ticket 1 of the first queue is held by it. */
static work held_elsewhere(stage *s, place where, elsewhere *e)
{
    work w = {0};
    memset(e, 0, sizeof *e);
    e->s = s;
    if (where == AT_AN_EVENT) {
        set_quirks(.deaf_to_everything = true);
        e->event = metal_shared_event_new(s->metal_device);
        assert_non_null(e->event);
        gpusync_timeline_desc desc = {.shared_event = e->event};
        assert_ok(gpusync_timeline_create(s->device, &desc, &e->other));
        w.buffer = new_buffer(s->q[0]); /* where the host waits: the GPU would go on by itself */
        w.ticket = SUBMIT(s->q[0], WAITS(at(e->other, 7)), BUFFERS(w.buffer), SIGNALS(at(s->t[0], 1)));
        assert_false(is_sent(w.buffer));
        return w;
    }
    e->buffer = new_buffer(s->q[1]);
    w = held_work(s, ticket_at(s->q[1], commit(s->q[1], e->buffer)));
    if (where == ON_A_QUEUE_OF_DESTROY_LATER) {
        assert_ok(gpusync_queue_destroy_later(s->q[1], remember_destroyed, &e->destroyed));
        s->q[1] = NULL;
    }
    return w;
}

/* The point comes, and nothing tells gpusync. */
static void comes_untold(void *what)
{
    elsewhere *e = (elsewhere *)what;
    if (e->event) metal_event_signal(e->event, 7);
    else lose_handlers_now(e->buffer);
}

static void finish_the_stage(void *what)
{
    finish_all((stage *)what);
}

static void end_elsewhere(elsewhere *e, place where)
{
    set_quirks(.deaf_to_everything = false);
    settle(e->s);
    if (where == ON_A_QUEUE_OF_DESTROY_LATER) assert_noted(&e->destroyed, GPUSYNC_OK);
    if (e->other) assert_ok(gpusync_timeline_destroy(e->other));
    metal_release(e->event);
}

static void wait_with_trouble_elsewhere(stage *s, way by, place where)
{
    elsewhere e;
    work w = held_elsewhere(s, where, &e);
    world_begin();
    plan(MS(10), comes_untold, &e);
    plan(MS(60), finish_the_stage, s); /* what the look at 50 ms has sent */
    assert_ok(wait_by(s, by, SECONDS(5), NULL));
    assert_about(world_passed(), MS(60));
    assert_ok(gpusync_poll(s->q[0], w.ticket, NULL));
    end_elsewhere(&e, where);
}

on_each_way(test_R24_a_wait_finds_the_lost_handler_of_another_queue)
{
    wait_with_trouble_elsewhere(s, by, ON_A_QUEUE);
}

on_each_way(test_R24_a_wait_finds_the_lost_handler_of_a_queue_that_is_destroyed_later)
{
    wait_with_trouble_elsewhere(s, by, ON_A_QUEUE_OF_DESTROY_LATER);
}

on_each_way_of_both_kinds(test_R24_a_wait_finds_the_value_that_a_deaf_listener_has_missed)
{
    wait_with_trouble_elsewhere(s, by, AT_AN_EVENT);
}

/* A queue has room for one buffer, and is full with the held work. */
static void each_place(void (*body)(stage *s, place where, int limit), int limit)
{
    for (place where = ON_A_QUEUE; where < PLACES; where++) {
        stage_desc desc = {.queues = 2, .timelines = 1, .queue = {.max_command_buffer_count = 1}};
        void *state = &desc;
        print_message("  %s\n", place_names[where]);
        assert_int_equal(world_set_up(&state), 0);
        body((stage *)state, where, limit);
        assert_int_equal(world_tear_down(&state), 0);
    }
}

static void room_behind_trouble(stage *s, place where, int unused)
{
    elsewhere e;
    void *buffer = NULL;
    held_elsewhere(s, where, &e);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), GPUSYNC_TIMEOUT);
    world_begin();
    plan(MS(10), comes_untold, &e);
    plan(MS(60), finish_the_stage, s);
    assert_ok(gpusync_command_buffer_create(s->q[0], NULL, SECONDS(5), &buffer));
    assert_about(world_passed(), MS(60));
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    end_elsewhere(&e, where);
}

without_stage(test_R24_a_wait_for_room_finds_trouble_elsewhere)
{
    each_place(room_behind_trouble, 0);
}

on_world_with(test_T7_a_wait_for_room_finds_the_lost_handler_of_its_queue, .queue = {.max_command_buffer_count = 1})
{
    void *buffer = new_buffer(s->q[0]);
    commit(s->q[0], buffer);
    plan(MS(10), lose_handlers_now, buffer);
    assert_ok(gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &buffer));
    assert_about(world_passed(), MS(50));
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
}

enum { POLL = -1 };

/* Once in a millisecond, or with waits of `limit` ms; returns when one tells the end, at most after two seconds. */
static uint64_t ask_until_over(stage *s, gpusync_ticket ticket, int limit)
{
    uint64_t begun = world_now();
    gpusync_result result = GPUSYNC_NOT_READY;
    while (result > 0 && world_now() - begun < SECONDS(2)) {
        result = limit == POLL ? gpusync_poll(s->q[0], ticket, NULL) : gpusync_wait(s->q[0], ticket, MS(limit), NULL);
        if (limit <= 0) PUT(&world.now, world_now() + MS(1));
        world_go_on();
        finish_all(s); /* what was sent */
    }
    return world_now() - begun;
}

static void ask_behind_trouble(stage *s, place where, int limit)
{
    elsewhere e;
    work w = held_elsewhere(s, where, &e);
    comes_untold(&e);
    assert_true(ask_until_over(s, w.ticket, limit) <= MS(102)); /* 50 ms, and a call */
    assert_ok(gpusync_poll(s->q[0], w.ticket, NULL));
    end_elsewhere(&e, where);
}

without_stage(test_R24_polls_and_short_waits_find_trouble_elsewhere)
{
    static const int limits[] = {POLL, 0, 16, 49}; /* ms */
    for (size_t i = 0; i < LENGTH(limits); i++) each_place(ask_behind_trouble, limits[i]);
}

/* The GPU waits for what only the host can end: the first work has failed, and nothing has told of that. */
on_world_with(test_R24_a_poll_of_work_that_runs_finds_trouble_elsewhere, .queues = 2, .timelines = 1)
{
    void *first = signalling(s->q[1], at(s->t[0], 1)), *second = waiting(s->q[0], at(s->t[0], 1));
    softmetal_fail_as(first, SOFTMETAL_HANG, NULL);
    commit(s->q[1], first);
    gpusync_ticket ticket = commit(s->q[0], second);
    softmetal_complete(first);
    softmetal_schedule(second);
    for (unsigned i = 0; i <= 50 && softmetal_what_is_due(second) != SOFTMETAL_COMPLETE_DUE; i++) {
        assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
        PUT(&world.now, world_now() + MS(1));
    }
    assert_int_equal(softmetal_what_is_due(second), SOFTMETAL_COMPLETE_DUE);
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
}

/* A loop that polls sends Metal few messages: a poll looks at the rest of the device once in 50 ms, however often it is
   asked. */
on_world_with(test_R24_polls_look_at_the_whole_device_once_in_50_ms, .queues = 2, .timelines = 1)
{
    gpusync_ticket held = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)));
    commit_new(s->q[1]);
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_NOT_READY);
    uint64_t looks = softmetal_message_count("status");
    for (unsigned slice = 0; slice < 3; slice++) {
        for (unsigned i = 0; i < 100; i++) assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_NOT_READY);
        assert_int_equal(softmetal_message_count("status"), looks + slice);
        PUT(&world.now, world_now() + MS(50));
    }
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], held, NULL));
}

/* For the value a look at its sender finds it, whatever the number of the ticket. */
on_world_with(test_T7_a_poll_and_a_wait_for_a_value_find_a_lost_handler_at_once, .timelines = 1)
{
    for (unsigned i = 0; i < 3; i++) {
        void *buffer = new_buffer(s->q[0]);
        gpusync_ticket ticket = commit(s->q[0], buffer);
        lose_handlers_now(buffer);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    }
    work w = signalling_work(s);
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    lose_handlers_now(w.buffer);
    assert_ok(gpusync_timeline_wait(s->t[0], 1, 0, NULL));
}

on_world_with(test_R24_callbacks_that_nothing_tells_of_run_where_another_thread_waits, .queues = 2, .timelines = 1,
              .timeline = {.signalled_by_others = true})
{
    void *lost = new_buffer(s->q[1]);
    note handler = {0}, listener = {0};
    set_quirks(.deaf_to_everything = true);
    on_done(ticket_at(s->q[1], commit(s->q[1], lost)), &handler);
    on_done(at(s->t[0], 5), &listener);
    commit_new(s->q[0]);
    lose_handlers_now(lost);
    other_code_signals(s->t[0], 5);
    assert_int_equal(calls_of(&handler) + calls_of(&listener), 0);
    assert_result(gpusync_wait(s->q[0], 1, MS(60), NULL), GPUSYNC_TIMEOUT); /* looks at 50 ms */
    assert_noted(&handler, GPUSYNC_OK);
    assert_noted(&listener, GPUSYNC_OK);
}

/* -- in a callback ------------------------------------------------------------------------------------------------- */

/* The callback comes by a look: Metal runs the handler later. */
static void wait_for_handlers(void *queue, gpusync_result result, const gpusync_error *error)
{
    gpusync_error told = {0};
    const gpusync_wait_options options = {.handlers = true, .error = &told};
    must(result == GPUSYNC_OK, "the work");
    must(gpusync_wait((gpusync_queue *)queue, 1, MS(5), NULL) == GPUSYNC_OK, "a wait for the end");
    result = gpusync_wait((gpusync_queue *)queue, 1, MS(5), &options);
    must(result == GPUSYNC_ERROR_WOULD_DEADLOCK && told.result == result, "a wait for the handlers");
}

on_world_with(test_R28_a_wait_for_handlers_in_a_callback_would_deadlock,
              .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    void *buffer = new_buffer(s->q[0]);
    commit(s->q[0], buffer);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), wait_for_handlers, s->q[0]));
    softmetal_complete(buffer);
    assert_int_equal(run_callbacks(s), 1);
    assert_int_equal(world.parks, 0);
}
