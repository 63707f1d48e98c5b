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
    w.buffer = new_buffer(s->q[0]);
    encode_signal(s->q[0], w.buffer, at(s->t[0], 1));
    w.ticket = commit(s->q[0], w.buffer);
    return w;
}

/* The same, held until a point has come. */
static work held_work(stage *s, gpusync_point point)
{
    work w;
    w.buffer = new_buffer(s->q[0]);
    encode_wait(s->q[0], w.buffer, point);
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

/* Runs a test's body once for each way, on a stage of its own. */
static const stage_desc one_of_each = {.queues = 2, .timelines = 1};
static void each_way(void (*body)(stage *s, way by))
{
    way by;
    for (by = BY_TICKET; by < WAYS; by++) {
        stage_desc desc = one_of_each;
        void *state = &desc;
        print_message("  %s\n", way_names[by]);
        assert_int_equal(world_set_up(&state), 0);
        body((stage *)state, by);
        assert_int_equal(world_tear_down(&state), 0);
    }
}

static gpusync_result wait_now(gpusync_queue *queue, gpusync_ticket ticket)
{
    return gpusync_wait(queue, ticket, 0, NULL);
}

/* -- tickets ------------------------------------------------------------------------------------------------------- */

static void test_S1_tickets_count_from_1_and_what_is_below_is_done(void **state)
{
    static const gpusync_ticket none[] = {0, -1, -2, INT64_MIN};
    stage *s = stage_of(state);
    gpusync_ticket ticket;
    size_t i;
    for (i = 0; i < LENGTH(none); i++) {
        assert_true(gpusync_is_done(s->q[0], none[i]));
        assert_ok(gpusync_poll(s->q[0], none[i], NULL));
        assert_ok(wait_now(s->q[0], none[i]));
    }
    for (ticket = 1; ticket <= 5; ticket++) assert_true(commit_new(s->q[0]) == ticket);
    assert_true(commit_new(s->q[1]) == 1);
    for (i = 0; i < LENGTH(none); i++) assert_ok(wait_now(s->q[0], none[i]));
}

/* A ring of three needs no `if` for its first turns. */
static void test_T13_a_ticket_less_two_needs_no_if(void **state)
{
    stage *s = stage_of(state);
    gpusync_ticket ticket;
    for (ticket = 1; ticket <= 5; ticket++) {
        assert_true(commit_new(s->q[0]) == ticket);
        if (ticket > 2) assert_true(finish_next(s->q[0]));
        assert_ok(gpusync_wait(s->q[0], ticket - 2, 0, NULL));
    }
}

static void test_S2_a_poll_reads_metals_status_before_the_handler_has_run(void **state)
{
    stage *s = stage_of(state);
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], buffer);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    softmetal_schedule(buffer);
    softmetal_execute(buffer);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_true(gpusync_is_done(s->q[0], ticket));
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
}

static void test_S2_done_asks_metal_nothing_and_turns_true_at_a_look(void **state)
{
    stage *s = stage_of(state);
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], buffer);
    uint64_t messages;
    softmetal_complete(buffer);
    messages = softmetal_messages();
    assert_false(gpusync_is_done(s->q[0], ticket));
    assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(gpusync_in_flight(s->q[0]), 1);
    assert_int_equal(softmetal_messages() - messages, 0);
    assert_ok(wait_now(s->q[0], ticket));
    assert_true(gpusync_is_done(s->q[0], ticket));
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
}

static void test_S4_a_ticket_keeps_its_one_result(void **state)
{
    stage *s = stage_of(state);
    gpusync_ticket bad = commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    gpusync_ticket good = commit_new(s->q[0]);
    unsigned i;
    finish_all(s);
    for (i = 0; i < 3; i++) {
        assert_result(gpusync_poll(s->q[0], bad, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_result(wait_now(s->q[0], bad), GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_poll(s->q[0], good, NULL)); /* earlier tickets are not among what OK means */
        assert_ok(wait_now(s->q[0], good));
    }
    assert_int_equal(failures_of(s->q[0]), 1);
}

/* Whoever tells first: the record is there as the call returns. */
static void failure_is_on_record(stage *s, way by)
{
    work w = {new_buffer(s->q[0]), 0};
    gpusync_error error = {0};
    const gpusync_wait_options options = {.error = &error};
    encode_signal(s->q[0], w.buffer, at(s->t[0], 1));
    softmetal_fail_as(w.buffer, SOFTMETAL_PAGE_FAULT, NULL);
    w.ticket = commit(s->q[0], w.buffer);
    plan(MS(3), complete_now, w.buffer); /* without its handler */
    assert_result(wait_by(s, by, MS(20), &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failures_of(s->q[0]), 1);
    assert_int_equal(failure_at(s->q[0], 0).ticket, w.ticket);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
}

static void test_S4_a_failure_is_on_record_before_a_wait_returns_it(void **state)
{
    (void)state;
    each_way(failure_is_on_record);
}

static void test_T1_a_ticket_waits_for_the_ordered_work_before_it(void **state)
{
    stage *s = stage_of(state);
    void *buffers[3];
    unsigned i;
    for (i = 0; i < 3; i++) {
        buffers[i] = new_buffer(s->q[0]);
        assert_true(commit(s->q[0], buffers[i]) == i + 1);
    }
    softmetal_finish(buffers[2]);
    softmetal_finish(buffers[1]);
    for (i = 1; i <= 3; i++) {
        assert_result(gpusync_poll(s->q[0], i, NULL), GPUSYNC_NOT_READY);
        assert_result(wait_now(s->q[0], i), GPUSYNC_TIMEOUT);
        assert_false(gpusync_is_done(s->q[0], i));
    }
    softmetal_finish(buffers[0]);
    for (i = 1; i <= 3; i++) assert_ok(gpusync_poll(s->q[0], i, NULL));
}

/* -- UNORDERED work (R1) ------------------------------------------------------------------------------------------- */

typedef struct trio {
    void *before, *loose, *behind; /* ordered, UNORDERED, ordered: tickets 1, 2, 3 */
} trio;

static trio commit_trio(stage *s)
{
    trio t;
    t.before = new_buffer(s->q[0]);
    t.loose = new_buffer(s->q[0]);
    t.behind = new_buffer(s->q[0]);
    assert_true(commit(s->q[0], t.before) == 1);
    assert_true(SUBMIT(s->q[0], BUFFERS(t.loose), .flags = GPUSYNC_SUBMIT_UNORDERED) == 2);
    assert_true(commit(s->q[0], t.behind) == 3);
    return t;
}

static void test_R1_unordered_work_ends_without_the_work_before_it(void **state)
{
    stage *s = stage_of(state);
    trio t = commit_trio(s);
    note notes[3] = {0};
    unsigned i;
    for (i = 0; i < 3; i++) on_done(ticket_at(s->q[0], i + 1), &notes[i]);
    softmetal_finish(t.loose);
    assert_ok(gpusync_poll(s->q[0], 2, NULL));
    assert_ok(wait_now(s->q[0], 2));
    assert_noted(&notes[1], GPUSYNC_OK);
    assert_false(gpusync_is_done(s->q[0], 2)); /* late: ticket 1 has not ended */
    assert_int_equal(gpusync_in_flight(s->q[0]), 3);
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s->q[0], 3, NULL), GPUSYNC_NOT_READY);
    softmetal_finish(t.before);
    assert_true(gpusync_is_done(s->q[0], 2));
    assert_result(gpusync_poll(s->q[0], 3, NULL), GPUSYNC_NOT_READY);
    settle(s);
    assert_noted(&notes[0], GPUSYNC_OK);
    assert_noted(&notes[2], GPUSYNC_OK);
}

static void test_R1_ordered_work_ends_without_the_unordered_work_before_it(void **state)
{
    stage *s = stage_of(state);
    trio t = commit_trio(s);
    note notes[3] = {0};
    unsigned i;
    for (i = 0; i < 3; i++) on_done(ticket_at(s->q[0], i + 1), &notes[i]);
    softmetal_finish(t.before);
    softmetal_finish(t.behind);
    assert_ok(gpusync_poll(s->q[0], 3, NULL));
    assert_ok(wait_now(s->q[0], 3));
    assert_noted(&notes[2], GPUSYNC_OK);
    assert_int_equal(calls_of(&notes[1]), 0);
    assert_result(gpusync_poll(s->q[0], 2, NULL), GPUSYNC_NOT_READY);
    assert_true(gpusync_is_done(s->q[0], 1));
    assert_false(gpusync_is_done(s->q[0], 3));
    softmetal_finish(t.loose);
    assert_true(gpusync_is_done(s->q[0], 3));
    settle(s);
    assert_noted(&notes[1], GPUSYNC_OK);
}

static void test_R1_everything_covers_unordered_work(void **state)
{
    stage *s = stage_of(state);
    trio t = commit_trio(s);
    softmetal_finish(t.before);
    softmetal_finish(t.behind);
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_NOT_READY);
    assert_result(wait_now(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_TIMEOUT);
    assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(gpusync_in_flight(s->q[0]), 2);
    softmetal_finish(t.loose);
    assert_ok(wait_now(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
}

/* Each sleeper is woken by the end of its own work, however the others stand. */
static void test_R1_sleepers_wake_for_unordered_work_by_itself(void **state)
{
    stage *s = stage_of(state);
    trio t = commit_trio(s);
    plan(MS(2), finish_now, t.loose);
    assert_ok(gpusync_wait(s->q[0], 2, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), MS(2));
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_NOT_READY);
    softmetal_finish(t.before);
    softmetal_finish(t.behind);
    t = (trio){new_buffer(s->q[0]), new_buffer(s->q[0]), new_buffer(s->q[0])};
    commit(s->q[0], t.before);
    SUBMIT(s->q[0], BUFFERS(t.loose), .flags = GPUSYNC_SUBMIT_UNORDERED);
    commit(s->q[0], t.behind);
    world_begin();
    plan(MS(2), finish_now, t.behind);
    plan(MS(3), finish_now, t.before);
    assert_ok(gpusync_wait(s->q[0], 6, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), MS(3));
    assert_result(gpusync_poll(s->q[0], 5, NULL), GPUSYNC_NOT_READY);
}

typedef enum loose_end { FAILS, IS_CANCELLED, IS_OVERTAKEN, INHERITS, IS_UNKNOWN } loose_end;

/* A ticket of the second queue whose failure has left the log. */
static gpusync_point forgotten(stage *s)
{
    unsigned i;
    for (i = 0; i < 5; i++) commit_failing(s->q[1], SOFTMETAL_PAGE_FAULT);
    while (finish_next(s->q[1])) {}
    assert_result(gpusync_poll(s->q[1], 1, NULL), GPUSYNC_ERROR_RESULT_UNKNOWN);
    return ticket_at(s->q[1], 1);
}

/* A result of its own tells that the GPU is finished with it, whatever earlier work does. */
static void test_R1_a_poll_tells_every_result_of_unordered_work_at_once(void **state)
{
    static const struct {
        loose_end end;
        gpusync_result result;
    } rows[] = {
        {FAILS, GPUSYNC_ERROR_EXECUTION},
        {IS_CANCELLED, GPUSYNC_ERROR_CANCELLED},
        {IS_OVERTAKEN, GPUSYNC_ERROR_NOT_RISING},
        {INHERITS, GPUSYNC_ERROR_COMPILE},
        {IS_UNKNOWN, GPUSYNC_ERROR_RESULT_UNKNOWN},
    };
    stage *s = stage_of(state);
    gpusync_point old = forgotten(s);
    size_t i;
    commit_new(s->q[0]); /* does not end */
    for (i = 0; i < LENGTH(rows); i++) {
        gpusync_timeline *gate_of = new_timeline(s->device), *out = new_timeline(s->device);
        const gpusync_error reason = {.result = GPUSYNC_ERROR_COMPILE};
        void *buffer = new_buffer(s->q[0]);
        gpusync_ticket ticket;
        softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        ticket = SUBMIT(s->q[0], WAITS(at(gate_of, 1), rows[i].end == IS_UNKNOWN ? old : ticket_at(s->q[1], 0)),
                        BUFFERS(buffer), SIGNALS(at(out, 1)),
                        .flags = GPUSYNC_SUBMIT_UNORDERED | GPUSYNC_SUBMIT_HOST_SYNC);
        if (rows[i].end != IS_UNKNOWN) assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
        assert_false(is_sent(buffer));
        switch (rows[i].end) {
        case FAILS:
            signal_value(gate_of, 1);
            softmetal_finish(buffer);
            break;
        case IS_CANCELLED: assert_ok(gpusync_queue_cancel_held(s->q[0])); break;
        case IS_OVERTAKEN:
            signal_value(out, 1);
            signal_value(gate_of, 1);
            break;
        case INHERITS: assert_ok(gpusync_timeline_fail(gate_of, &reason)); break;
        case IS_UNKNOWN: break;
        }
        assert_result(gpusync_poll(s->q[0], ticket, NULL), rows[i].result);
        assert_result(wait_now(s->q[0], ticket), rows[i].result);
        assert_false(gpusync_is_done(s->q[0], ticket));
        assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_NOT_READY);
        assert_ok(gpusync_timeline_destroy(gate_of));
        assert_ok(gpusync_timeline_destroy(out));
    }
}

/* -- limits -------------------------------------------------------------------------------------------------------- */

static void no_time_looks_once(stage *s, way by)
{
    work w = signalling_work(s);
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

static void test_S5_without_time_a_wait_looks_once_and_sleeps_never(void **state)
{
    (void)state;
    each_way(no_time_looks_once);
}

static void keeps_its_limit(stage *s, way by)
{
    static const uint64_t limits[] = {1, US(3), MS(10), MS(50), SECONDS(3)};
    gpusync_wait_options options = {0};
    work w = signalling_work(s);
    long blocks = kit_now().blocks;
    size_t i;
    for (i = 0; i < LENGTH(limits); i++) {
        unsigned long parks;
        world_begin();
        assert_result(wait_by(s, by, limits[i], &options), GPUSYNC_TIMEOUT);
        assert_about(world_passed(), limits[i]);
        parks = world.parks < WORLD_PARKS ? world.parks : WORLD_PARKS;
        while (parks-- > 0) assert_true(world.deadline[parks] <= world.begun + limits[i] + WORLD_SLACK);
    }
    assert_true(log_has(GPUSYNC_LOG_WARNING, "first") || log_has(GPUSYNC_LOG_WARNING, "a"));
    assert_int_equal(kit_now().blocks, blocks);
    world_begin();
    softmetal_finish(w.buffer);
    assert_int_equal(world.unparks, 0); /* they have left nothing behind */
    assert_ok(wait_by(s, by, 0, NULL));
}

static void test_S5_a_wait_keeps_its_limit_and_can_be_repeated(void **state)
{
    (void)state;
    each_way(keeps_its_limit);
}

static uint64_t huge; /* the limit of this turn */

static void huge_limit(stage *s, way by)
{
    work w = signalling_work(s);
    plan(MS(3), finish_now, w.buffer);
    assert_ok(wait_by(s, by, huge, NULL));
    assert_about(world_passed(), MS(3));
}

static void test_S5_F10_huge_limits_do_not_overflow(void **state)
{
    static const uint64_t limits[] = {GPUSYNC_FOREVER, UINT64_MAX - 1, UINT64_MAX / 2, (uint64_t)INT64_MAX + 1};
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(limits); i++) {
        huge = limits[i];
        each_way(huge_limit);
    }
}

/* No handler wakes the wait: it looks at its limit. */
static void ended_by_the_deadline(stage *s, way by)
{
    work w = signalling_work(s);
    plan(MS(5), complete_now, w.buffer);
    assert_ok(wait_by(s, by, MS(5), NULL));
    assert_about(world_passed(), MS(5));
    assert_int_equal(world.parks, 1);
    assert_int_equal(kit_now().log_lines, 0);
}

static void test_S5_what_has_ended_by_the_deadline_has_ended(void **state)
{
    (void)state;
    each_way(ended_by_the_deadline);
}

/* From here on no listener hears of a value. */
static void deafen(void)
{
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    quirks.deaf_to_everything = true;
    softmetal_set_quirks(&quirks);
}

static void signal_as_others(gpusync_timeline *timeline, uint64_t value)
{
    uint64_t base = 0;
    void *event = gpusync_timeline_metal(timeline, &base);
    metal_event_signal(event, value + base);
}

static void others_signal_5(void *timeline)
{
    signal_as_others((gpusync_timeline *)timeline, 5);
}

static void test_S5_a_value_of_others_counts_that_has_come_by_the_deadline(void **state)
{
    stage *s = stage_of(state);
    deafen();
    plan(MS(2), others_signal_5, s->t[0]);
    assert_ok(gpusync_timeline_wait(s->t[0], 5, MS(2), NULL));
    assert_about(world_passed(), MS(2));
    assert_int_equal(world.parks, 1);
}

static void test_S5_a_park_that_returns_early_costs_nothing_but_another(void **state)
{
    stage *s = stage_of(state);
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
static void test_S5_an_end_before_the_park_is_not_slept_through(void **state)
{
    stage *s = stage_of(state);
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], buffer);
    plan(0, finish_now, buffer); /* at the next look at the status, or in park: the first moment that there is */
    assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), 0);
}

/* -- room ---------------------------------------------------------------------------------------------------------- */

/* F4: also where handlers are slow. Metal has ended the work, and a look gives its place back. */
static void test_F4_R10_a_wait_for_room_keeps_its_limit(void **state)
{
    static const uint64_t limits[] = {1, US(3), MS(10), MS(50), SECONDS(3)};
    stage *s = stage_of(state);
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    void *made;
    size_t i;
    for (i = 0; i < 2; i++) commit(s->q[0], buffers[i]);
    for (i = 0; i < LENGTH(limits); i++) {
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

static struct {
    stage *s;
    void *buffer;
} latecomer;

static void commit_latecomer(void *unused)
{
    (void)unused;
    commit(latecomer.s->q[1], latecomer.buffer);
}

/* All that fills the queue is open, so that only the program can make room: for ever, but for the second. */
static void test_R10_the_second_begins_again_when_metal_has_had_work(void **state)
{
    stage *s = stage_of(state);
    void *made = s;
    latecomer.s = s;
    latecomer.buffer = new_buffer(s->q[1]);
    (void)new_buffer(s->q[0]);
    world_begin();
    plan(MS(500), commit_latecomer, NULL);
    plan(MS(900), finish_now, latecomer.buffer);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &made), GPUSYNC_ERROR_QUEUE_FULL);
    assert_in_range(world_passed(), MS(1900), MS(2300) + WORLD_SLACK); /* a slice at most behind the second */
    assert_null(made);
}

/* -- what never waits ---------------------------------------------------------------------------------------------- */

/* An open buffer is no work yet. */
static void test_F16_an_open_buffer_holds_up_no_wait(void **state)
{
    stage *s = stage_of(state);
    void *open = new_buffer(s->q[0]);
    encode_signal(s->q[0], open, at(s->t[0], 1));
    commit_new(s->q[0]);
    finish_all(s);
    assert_ok(wait_now(s->q[0], GPUSYNC_EVERYTHING));
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(world.parks + world.yields, 0);
}

static void test_S5_calls_without_a_limit_call_no_hook_that_waits(void **state)
{
    stage *s = stage_of(state);
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
    assert_ok(gpusync_timeline_query(s->t[0], &value));
    assert_result(gpusync_queue_next_error(s->q[0], &cursor, &error), GPUSYNC_NOT_READY);
    on_done(ticket_at(s->q[1], 1), &n);
    assert_ok(gpusync_release_after(s->q[1], 1, witness));
    metal_release(witness);
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), .flags = GPUSYNC_SUBMIT_UNORDERED | GPUSYNC_SUBMIT_HOST_SYNC);
    assert_ok(gpusync_device_run_callbacks(s->device, 1, &count));
    assert_ok(gpusync_queue_cancel_held(s->q[1]));
    assert_ok(gpusync_command_buffer_discard(s->q[0], open));
    assert_result(gpusync_timeline_signal(s->t[0], 2), GPUSYNC_ERROR_CANCELLED);
    assert_ok(gpusync_queue_destroy_later(s->q[1], remember_destroyed, &ends));
    s->q[1] = NULL;
    assert_false(gpusync_device_is_lost(s->device));
    assert_int_equal(world.parks + world.yields, 0);
    settle(s);
    assert_noted(&ends, GPUSYNC_OK);
}

static void test_S5_a_wait_that_refuses_has_changed_nothing(void **state)
{
    stage *s = stage_of(state);
    gpusync_ticket ticket = commit_new(s->q[0]);
    uint64_t messages = softmetal_messages();
    kit_counts before = kit_now(), after;
    assert_result(gpusync_poll(s->q[0], ticket + 1, NULL), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_wait(s->q[0], ticket + 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING - 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_timeline_wait(s->t[0], GPUSYNC_MAX_VALUE + 1, GPUSYNC_FOREVER, NULL),
                  GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_poll(NULL, 0, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_wait(NULL, 0, 0, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_timeline_wait(NULL, 0, 0, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_device_wait(NULL, 0, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    after = kit_now();
    assert_int_equal(softmetal_messages(), messages);
    assert_int_equal(after.blocks, before.blocks);
    assert_int_equal(after.log_lines, 0);
    assert_int_equal(world.parks + world.yields, 0);
    assert_true(commit_new(s->q[0]) == ticket + 1);
}

/* -- costs --------------------------------------------------------------------------------------------------------- */

static void nothing_for_what_is_done(stage *s, way by)
{
    uint64_t messages;
    long allocations;
    signalling_work(s);
    finish_all(s);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    messages = softmetal_messages();
    allocations = kit_now().allocations;
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    assert_int_equal(softmetal_messages(), messages);
    assert_int_equal(kit_now().allocations, allocations);
    assert_int_equal(world.parks + world.yields, 0);
}

static void test_S2_waits_for_what_is_done_send_no_message(void **state)
{
    (void)state;
    each_way(nothing_for_what_is_done);
}

static void sleeps_once(stage *s, way by)
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

static void test_S5_a_wait_that_sleeps_parks_once_and_is_woken_once(void **state)
{
    (void)state;
    each_way(sleeps_once);
}

/* A park that no slice ends: nobody looks, and the handler alone tells of the end. After a look, which sees the end before
   it, the handler wakes later sleepers, too: they may wait for handlers. */
static void park_without_slices(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    bool slice = deadline_ns > gpusync_now_ns() + MS(2);
    kit_hooks.park(user, waiter, slice ? UINT64_MAX / 4 : deadline_ns);
}

static void unpark_as_ever(void *user, gpusync_waiter *waiter)
{
    kit_hooks.unpark(user, waiter);
}

static void yield_as_ever(void *user)
{
    kit_hooks.yield(user);
}

static const gpusync_hooks without_slices = {
    .yield = yield_as_ever,
    .park = park_without_slices,
    .unpark = unpark_as_ever,
};

/* Everyone who waits for one ticket is woken by its end; a later ticket's sleeper sleeps on. */
static void test_S5_an_end_wakes_all_that_wait_for_it_and_no_other(void **state)
{
    enum { SLEEPERS = 24 };
    stage *s = stage_of(state);
    job jobs[SLEEPERS] = {0}, later = {0};
    void *first = new_buffer(s->q[0]), *second = new_buffer(s->q[0]);
    unsigned i;
    commit(s->q[0], first);
    commit(s->q[0], second);
    for (i = 0; i < SLEEPERS; i++) job_wait(&jobs[i], s->q[0], 1, GPUSYNC_FOREVER);
    job_wait(&later, s->q[0], 2, GPUSYNC_FOREVER);
    await_parked(SLEEPERS + 1);
    softmetal_finish(first);
    for (i = 0; i < SLEEPERS; i++) assert_ok(job_end(&jobs[i]));
    assert_int_equal(kit_now().unparks, SLEEPERS);
    assert_false(job_is_over(&later));
    softmetal_finish(second);
    assert_ok(job_end(&later));
    assert_int_equal(kit_now().unparks, SLEEPERS + 1);
}

static void test_S5_the_sleep_of_gpusync_itself_wakes_every_thread(void **state)
{
    enum { SLEEPERS = 8, ROUNDS = 50 };
    stage *s = stage_of(state);
    job jobs[SLEEPERS] = {0};
    unsigned round, i;
    for (round = 0; round < ROUNDS; round++) {
        gpusync_ticket ticket = commit_new(s->q[0]);
        for (i = 0; i < SLEEPERS; i++) job_wait(&jobs[i], s->q[0], ticket, SECONDS(60));
        assert_true(finish_next(s->q[0]));
        for (i = 0; i < SLEEPERS; i++) assert_ok(job_end(&jobs[i]));
    }
}

/* No slice ends this sleep: the clock is far ahead of the machine's, by which the sleep has its end. Other code signals
   the timeline, too, so a message to Metal tells that the thread is listed: from then on a signal has to end its wait,
   whether the thread sleeps already or is about to. */
static void test_S5_the_sleep_of_gpusync_itself_ends_by_the_wake_up_alone(void **state)
{
    stage *s = stage_of(state);
    uint64_t value;
    PUT(&world.now, gpusync_now_ns() + SECONDS(1000000));
    PUT(&world.on, true);
    for (value = 1; value <= 20; value++) {
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
static void test_S5_the_sleep_of_gpusync_itself_sleeps_again_behind_a_wake_up(void **state)
{
    stage *s = stage_of(state);
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

static gpusync_error unfilled(void)
{
    gpusync_error error;
    memset(&error, 0x7B, sizeof error);
    return error;
}

static void assert_unfilled(const gpusync_error *error)
{
    const gpusync_error expected = unfilled();
    assert_memory_equal(error, &expected, sizeof expected);
}

static void error_stays(stage *s, way by)
{
    gpusync_error error = unfilled();
    const gpusync_wait_options options = {.error = &error};
    work w = signalling_work(s);
    assert_result(wait_by(s, by, 0, &options), GPUSYNC_TIMEOUT);
    assert_result(wait_by(s, by, MS(60), &options), GPUSYNC_TIMEOUT);
    assert_unfilled(&error);
    plan(MS(1), finish_now, w.buffer);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, &options));
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, &options));
    assert_unfilled(&error);
}

static void test_S4_without_an_error_options_error_is_left_alone(void **state)
{
    (void)state;
    each_way(error_stays);
}

static void error_of_the_work(stage *s, way by)
{
    gpusync_error error = unfilled();
    const gpusync_wait_options options = {.error = &error};
    void *buffer = named_buffer(s->q[0], "blur");
    encode_signal(s->q[0], buffer, at(s->t[0], 1));
    softmetal_fail_as(buffer, SOFTMETAL_OUT_OF_MEMORY, NULL);
    commit(s->q[0], buffer);
    finish_all(s);
    assert_result(wait_by(s, by, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_OUT_OF_MEMORY);
    assert_string_equal(error.label, "blur");
    assert_string_equal(error.queue_label, "first");
    if (by != BY_VALUE && by != BY_MANY && by != BY_ANY) assert_int_equal(error.ticket, 1);
}

static void test_S4_a_wait_fills_options_error_with_the_failure(void **state)
{
    (void)state;
    each_way(error_of_the_work);
}

/* What describes the call alone is filled, too: "filled where the wait returns an error". */
static void test_S4_refusals_fill_options_error(void **state)
{
    stage *s = stage_of(state);
    const gpusync_point beyond = ticket_at(s->q[0], 9);
    gpusync_error error;
    const gpusync_wait_options options = {.error = &error};
    error = unfilled();
    assert_result(gpusync_wait(s->q[0], 9, 0, &options), GPUSYNC_ERROR_INVALID_TICKET);
    assert_int_equal(error.result, GPUSYNC_ERROR_INVALID_TICKET);
    assert_string_not_equal(error.message, "");
    error = unfilled();
    assert_result(gpusync_timeline_wait(s->t[0], UINT64_MAX, 0, &options), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(error.result, GPUSYNC_ERROR_NOT_RISING);
    error = unfilled();
    assert_result(gpusync_wait_many(&beyond, 1, GPUSYNC_WAIT_ALL, 0, &options, NULL), GPUSYNC_ERROR_INVALID_TICKET);
    assert_int_equal(error.result, GPUSYNC_ERROR_INVALID_TICKET);
}

static void test_S4_senseless_calls_fill_options_error(void **state)
{
    gpusync_error error;
    const gpusync_wait_options options = {.error = &error};
    (void)state;
    error = unfilled();
    assert_result(gpusync_wait(NULL, 1, 0, &options), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(error.result, GPUSYNC_ERROR_INVALID_ARGUMENT);
    error = unfilled();
    assert_result(gpusync_timeline_wait(NULL, 1, 0, &options), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(error.result, GPUSYNC_ERROR_INVALID_ARGUMENT);
    error = unfilled();
    assert_result(gpusync_device_wait(NULL, 0, &options), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(error.result, GPUSYNC_ERROR_INVALID_ARGUMENT);
    error = unfilled();
    assert_result(gpusync_wait_many(NULL, 1, GPUSYNC_WAIT_ALL, 0, &options, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(error.result, GPUSYNC_ERROR_INVALID_ARGUMENT);
}

static gpusync_result destroy_queue(void *queue)
{
    return gpusync_queue_destroy((gpusync_queue *)queue);
}

static gpusync_result destroy_timeline(void *timeline)
{
    return gpusync_timeline_destroy((gpusync_timeline *)timeline);
}

static void test_R20_a_destroy_ends_the_waits_of_other_threads(void **state)
{
    stage *s = stage_of(state);
    job ticket = {0}, everything = {0}, value = {0}, room = {0}, destroy = {0};
    while (gpusync_in_flight(s->q[0]) < 2) commit_new(s->q[0]); /* all the room that there is */
    job_wait(&ticket, s->q[0], 2, GPUSYNC_FOREVER);
    job_wait(&everything, s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    job_value(&value, s->t[0], 1, GPUSYNC_FOREVER);
    job_buffer(&room, s->q[0], GPUSYNC_FOREVER);
    await_parked(4);
    job_call(&destroy, destroy_queue, s->q[0]);
    assert_result(job_end(&ticket), GPUSYNC_ERROR_DESTROYED);
    assert_result(ticket.error.result, GPUSYNC_ERROR_DESTROYED);
    assert_result(job_end(&everything), GPUSYNC_ERROR_DESTROYED);
    assert_result(everything.error.result, GPUSYNC_ERROR_DESTROYED);
    assert_result(job_end(&room), GPUSYNC_ERROR_DESTROYED);
    assert_false(job_is_over(&destroy)); /* the GPU has not ended */
    while (finish_next_of(s->metal[0])) {}
    assert_ok(job_end(&destroy));
    s->q[0] = NULL;
    assert_false(job_is_over(&value));
    job_call(&destroy, destroy_timeline, s->t[0]);
    assert_result(job_end(&value), GPUSYNC_ERROR_DESTROYED);
    assert_result(value.error.result, GPUSYNC_ERROR_DESTROYED);
    assert_ok(job_end(&destroy));
    s->t[0] = NULL;
}

/* It is found between two turns of the spin; nothing unparks a thread that does not sleep. */
static void test_R20_a_wait_that_spins_ends_with_its_queue(void **state)
{
    static const gpusync_spin for_ever = {.yield_iterations = UINT32_MAX};
    stage *s = stage_of(state);
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

/* -- everything (R27) ---------------------------------------------------------------------------------------------- */

static void test_R27_everything_is_what_was_committed_at_the_call(void **state)
{
    stage *s = stage_of(state);
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    job all = {0}, device = {0};
    commit(s->q[0], buffers[0]);
    job_wait(&all, s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    job_device(&device, s->device, GPUSYNC_FOREVER);
    await_parked(2);
    softmetal_fail_as(buffers[1], SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[0], buffers[1]);
    softmetal_finish(buffers[0]);
    assert_ok(job_end(&all)); /* the later work has not ended */
    assert_ok(job_end(&device));
    softmetal_finish(buffers[1]);
    assert_result(wait_now(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_ERROR_EXECUTION);
}

static void test_R27_one_wait_for_everything_tells_of_all_failures_and_the_first_is_its_result(void **state)
{
    stage *s = stage_of(state);
    gpusync_error error = {0};
    const gpusync_wait_options options = {.error = &error};
    commit_new(s->q[0]);
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    commit_failing(s->q[0], SOFTMETAL_OUT_OF_MEMORY);
    commit_new(s->q[0]);
    assert_result(wait_now(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
    assert_true(finish_next(s->q[0]) && finish_next(s->q[0]));
    assert_result(wait_now(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT); /* a TIMEOUT tells nothing */
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_ERROR_EXECUTION); /* nor does a poll */
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.ticket, 2);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
    assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
    assert_ok(wait_now(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(failures_of(s->q[0]), 2); /* and next_error tells of each */
    assert_result(wait_now(s->q[0], 3), GPUSYNC_ERROR_EXECUTION);
}

static void test_R27_cancelled_work_counts_in_everything(void **state)
{
    stage *s = stage_of(state);
    void *buffer = new_buffer(s->q[0]);
    encode_wait(s->q[0], buffer, at(s->t[0], 1));
    commit(s->q[0], buffer);
    assert_ok(gpusync_queue_cancel_held(s->q[0]));
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_ok(wait_now(s->q[0], GPUSYNC_EVERYTHING));
}

static void test_R27_waits_for_everything_that_overlap_each_tell(void **state)
{
    stage *s = stage_of(state);
    job jobs[3] = {0};
    unsigned i;
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    job_wait(&jobs[0], s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    job_wait(&jobs[1], s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    job_device(&jobs[2], s->device, GPUSYNC_FOREVER);
    await_parked(3);
    finish_all(s);
    for (i = 0; i < 3; i++) {
        assert_result(job_end(&jobs[i]), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(jobs[i].error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
    }
    assert_ok(wait_now(s->q[0], GPUSYNC_EVERYTHING));
}

/* The last work ends just as a wait for everything begins, and another thread is told of all failures first. The two
   overlap: the first one begins with its call, and not where it has looked and is about to sleep. */
static gpusync_queue *queue_of_another_thread;

static void end_and_ask_for_everything(void *buffer)
{
    softmetal_finish(buffer);
    must(gpusync_wait(queue_of_another_thread, GPUSYNC_EVERYTHING, 0, NULL) == GPUSYNC_ERROR_EXECUTION, "told there");
}

static void test_R27_a_wait_for_everything_begins_with_its_call(void **state)
{
    stage *s = stage_of(state);
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

static void test_R27_while_a_failure_sticks_each_wait_and_poll_for_everything_tells_it(void **state)
{
    stage *s = stage_of(state);
    unsigned i;
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    finish_all(s);
    for (i = 0; i < 3; i++) {
        assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_result(wait_now(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_ERROR_EXECUTION);
        assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    }
    assert_ok(gpusync_queue_clear_failure(s->q[0]));
    assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
    assert_ok(gpusync_device_wait(s->device, 0, NULL));
}

/* -- the device ---------------------------------------------------------------------------------------------------- */

static void test_R27_a_wait_for_the_device_has_the_error_of_the_first_queue_and_tells_of_all(void **state)
{
    stage *s = stage_of(state);
    gpusync_error error = {0};
    const gpusync_wait_options options = {.error = &error};
    commit_new(s->q[0]);
    commit_failing(s->q[1], SOFTMETAL_PAGE_FAULT);
    commit_failing(s->q[2], SOFTMETAL_OUT_OF_MEMORY);
    assert_true(finish_next(s->q[1]) && finish_next(s->q[2]));
    assert_result(gpusync_device_wait(s->device, MS(1), &options), GPUSYNC_TIMEOUT); /* tells of nothing */
    finish_all(s);
    assert_result(gpusync_device_wait(s->device, MS(1), &options), GPUSYNC_ERROR_EXECUTION);
    assert_true(strcmp(error.queue_label, "second") == 0 || strcmp(error.queue_label, "third") == 0);
    assert_ok(gpusync_device_wait(s->device, 0, &options));
    assert_ok(wait_now(s->q[1], GPUSYNC_EVERYTHING));
    assert_ok(wait_now(s->q[2], GPUSYNC_EVERYTHING));
}

static void test_S5_F5_a_wait_for_the_device_has_one_limit_for_all_queues(void **state)
{
    stage *s = stage_of(state);
    void *buffers[3];
    unsigned i;
    for (i = 0; i < 3; i++) {
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

static void test_S5_a_wait_for_a_device_without_queues_is_over(void **state)
{
    stage *s = stage_of(state);
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL));
    assert_int_equal(world.parks, 0);
}

static void test_R20_a_wait_for_the_device_skips_queues_that_are_being_destroyed(void **state)
{
    stage *s = stage_of(state);
    job before = {0}, during = {0}, destroy = {0};
    note n = {0};
    unsigned i;
    for (i = 0; i < 3; i++) commit_new(s->q[i]);
    job_device(&before, s->device, GPUSYNC_FOREVER);
    await_parked(1);
    job_call(&destroy, destroy_queue, s->q[1]);
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
    assert_ok(gpusync_device_wait(s->device, 0, NULL));
    settle(s);
    assert_noted(&n, GPUSYNC_OK);
}

static void test_R20_a_wait_for_the_device_ends_when_all_its_queues_are_being_destroyed(void **state)
{
    stage *s = stage_of(state);
    job all = {0}, destroy = {0};
    commit_new(s->q[0]);
    job_device(&all, s->device, GPUSYNC_FOREVER);
    await_parked(1);
    job_call(&destroy, destroy_queue, s->q[0]);
    assert_ok(job_end(&all));
    while (finish_next_of(s->metal[0])) {}
    assert_ok(job_end(&destroy));
    s->q[0] = NULL;
}

enum { CROWD = 20 };

static void test_S5_a_wait_for_the_device_covers_more_than_16_queues(void **state)
{
    stage *s = stage_of(state);
    gpusync_queue *queues[CROWD];
    kit_counts before;
    unsigned i;
    for (i = 0; i < CROWD; i++) {
        gpusync_queue_desc desc = {0};
        char label[8];
        snprintf(label, sizeof label, "q%u", i);
        desc.label = label;
        assert_ok(gpusync_queue_create(s->device, &desc, &queues[i]));
        commit_new(queues[i]);
    }
    before = kit_now();
    assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_TIMEOUT);
    assert_true(kit_now().allocations > before.allocations);
    assert_int_equal(kit_now().blocks, before.blocks);
    for (i = 0; i < CROWD; i++) { /* whichever is missing: the wait is not over */
        assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_TIMEOUT);
        assert_true(finish_next(queues[(i * 7 + 3) % CROWD]));
    }
    assert_ok(gpusync_device_wait(s->device, 0, NULL));
    for (i = 0; i < CROWD; i++) assert_ok(gpusync_queue_destroy(queues[i]));
}

static void test_S5_without_memory_a_wait_for_more_than_16_queues_changes_nothing(void **state)
{
    stage *s = stage_of(state);
    gpusync_queue *queues[CROWD];
    gpusync_error error = {0};
    const gpusync_wait_options options = {.error = &error};
    long blocks, n;
    unsigned i;
    for (i = 0; i < CROWD; i++) assert_ok(gpusync_queue_create(s->device, NULL, &queues[i]));
    commit_failing(queues[CROWD - 1], SOFTMETAL_PAGE_FAULT);
    assert_true(finish_next(queues[CROWD - 1]));
    blocks = kit_now().blocks;
    for (n = 1;; n++) {
        gpusync_result result;
        memory_fail(n, false);
        result = gpusync_device_wait(s->device, 0, &options);
        memory_fail(0, false);
        assert_int_equal(kit_now().blocks, blocks);
        assert_int_equal(error.result, result);
        if (result != GPUSYNC_ERROR_OUT_OF_MEMORY) {
            assert_result(result, GPUSYNC_ERROR_EXECUTION); /* no refused wait has told of it */
            break;
        }
    }
    assert_true(n > 1);
    for (i = 0; i < CROWD; i++) assert_ok(gpusync_queue_destroy(queues[i]));
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
    (void)buffer;
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

static void handlers_are_waited_for(stage *s, way by)
{
    const gpusync_point point = ticket_at(s->q[0], 1);
    gpusync_wait_options options = {.handlers = true};
    void *buffer = new_buffer(s->q[0]);
    flag_block flag;
    if (by == BY_VALUE) return; /* a value has no handler */
    add_handler(buffer, &flag);
    commit(s->q[0], buffer);
    softmetal_complete(buffer);
    if (by == BY_MANY || by == BY_ANY) {
        gpusync_wait_for how = by == BY_ANY ? GPUSYNC_WAIT_ANY : GPUSYNC_WAIT_ALL;
        assert_ok(gpusync_wait_many(&point, 1, how, GPUSYNC_FOREVER, NULL, NULL));
        assert_result(gpusync_wait_many(&point, 1, how, 0, &options, NULL), GPUSYNC_TIMEOUT);
        plan(MS(3), finish_now, buffer);
        assert_ok(gpusync_wait_many(&point, 1, how, GPUSYNC_FOREVER, &options, NULL));
    } else {
        assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL)); /* the work has ended */
        assert_result(wait_by(s, by, 0, &options), GPUSYNC_TIMEOUT);
        plan(MS(3), finish_now, buffer);
        assert_ok(wait_by(s, by, GPUSYNC_FOREVER, &options));
    }
    assert_int_equal(flag.ran, 1);
    assert_about(world_passed(), MS(3));
    assert_int_equal(world.parks, 1);
}

static void test_R28_F15_with_handlers_a_wait_goes_on_until_they_have_run(void **state)
{
    (void)state;
    each_way(handlers_are_waited_for);
}

/* The end comes first, and wakes no wait that wants the handlers, or wakes it for nothing. */
static void test_R28_a_wait_for_handlers_sleeps_through_the_end(void **state)
{
    stage *s = stage_of(state);
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

static void test_R28_the_handlers_of_ordered_work_before_it_count_and_no_others(void **state)
{
    stage *s = stage_of(state);
    trio t = commit_trio(s);
    softmetal_complete(t.before);
    softmetal_complete(t.loose);
    softmetal_complete(t.behind);
    assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
    softmetal_finish(t.behind);
    assert_result(handled(s->q[0], 3), GPUSYNC_TIMEOUT); /* ticket 1's has not run */
    softmetal_finish(t.before);
    assert_ok(handled(s->q[0], 3)); /* ticket 2 is UNORDERED */
    assert_result(handled(s->q[0], 2), GPUSYNC_TIMEOUT);
    assert_result(handled(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(s->device, 0, &with_handlers), GPUSYNC_TIMEOUT);
    softmetal_finish(t.loose);
    assert_ok(handled(s->q[0], 2));
    assert_ok(handled(s->q[0], GPUSYNC_EVERYTHING));
    assert_ok(handled(s->q[0], GPUSYNC_NO_TICKET));
}

/* The last handler that a wait counts wakes it, also if it is one of an earlier ticket: its own has none, or had it
   before. */
static void earlier_handler_is_the_last(stage *s, way by)
{
    gpusync_wait_options options = {.handlers = true};
    unsigned has_one;
    for (has_one = 0; has_one < 2; has_one++) {
        void *before = new_buffer(s->q[0]);
        void *own = has_one ? new_buffer(s->q[0]) : NULL;
        gpusync_ticket ticket;
        gpusync_point point;
        gpusync_result result;
        flag_block flag;
        if (by == BY_VALUE) continue; /* a value has no handler */
        add_handler(before, &flag);
        commit(s->q[0], before);
        ticket = has_one ? commit(s->q[0], own) : SUBMIT(s->q[0], .label = "empty");
        point = ticket_at(s->q[0], ticket);
        softmetal_complete(before);
        if (has_one) softmetal_finish(own);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        world_begin();
        plan(MS(3), finish_now, before);
        if (by == BY_TICKET) result = gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, &options);
        else if (by == BY_MANY || by == BY_ANY)
            result = gpusync_wait_many(&point, 1, by == BY_ANY ? GPUSYNC_WAIT_ANY : GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER,
                                       &options, NULL);
        else result = wait_by(s, by, GPUSYNC_FOREVER, &options);
        assert_ok(result);
        assert_int_equal(flag.ran, 1);
        assert_about(world_passed(), MS(3));
        assert_int_equal(world.parks, 1);
    }
}

static void test_R28_the_last_handler_wakes_a_wait_though_it_is_one_of_earlier_work(void **state)
{
    (void)state;
    each_way(earlier_handler_is_the_last);
}

static void test_R28_later_handlers_are_not_waited_for(void **state)
{
    stage *s = stage_of(state);
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

static void test_R28_a_submission_has_the_handlers_of_all_its_buffers(void **state)
{
    stage *s = stage_of(state);
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    flag_block flags[2];
    gpusync_ticket ticket;
    unsigned i;
    for (i = 0; i < 2; i++) add_handler(buffers[i], &flags[i]);
    ticket = SUBMIT(s->q[0], BUFFERS(buffers[0], buffers[1]));
    for (i = 0; i < 2; i++) softmetal_complete(buffers[i]);
    assert_ok(wait_now(s->q[0], ticket));
    assert_result(handled(s->q[0], ticket), GPUSYNC_TIMEOUT);
    softmetal_finish(buffers[1]);
    assert_result(handled(s->q[0], ticket), GPUSYNC_TIMEOUT);
    softmetal_finish(buffers[0]);
    assert_ok(handled(s->q[0], ticket));
    assert_int_equal(flags[0].ran + flags[1].ran, 2);
}

static void test_R28_a_failure_is_told_when_the_handler_has_run(void **state)
{
    stage *s = stage_of(state);
    void *buffer = new_buffer(s->q[0]);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[0], buffer);
    softmetal_complete(buffer);
    assert_result(wait_now(s->q[0], 1), GPUSYNC_ERROR_EXECUTION);
    assert_result(handled(s->q[0], 1), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_result(handled(s->q[0], 1), GPUSYNC_ERROR_EXECUTION);
}

static void test_R28_work_that_never_ran_has_no_handlers(void **state)
{
    stage *s = stage_of(state);
    void *buffer = new_buffer(s->q[0]);
    flag_block flag;
    add_handler(buffer, &flag);
    encode_wait(s->q[0], buffer, at(s->t[0], 1));
    commit(s->q[0], buffer);
    assert_result(handled(s->q[0], 1), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_queue_cancel_held(s->q[0]));
    assert_result(handled(s->q[0], 1), GPUSYNC_ERROR_CANCELLED);
    assert_true(SUBMIT(s->q[0], .label = "empty") == 2);
    settle(s);
    assert_ok(handled(s->q[0], 2));
}

static void test_R28_a_value_has_no_handlers(void **state)
{
    stage *s = stage_of(state);
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
    size_t i;
    for (i = 0; i < LENGTH(w->blocks); i++) {
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

static void test_R28_what_handlers_wrote_is_seen_after_the_wait(void **state)
{
    static const softmetal_chaos chaos = {0, 200, 0};
    static handler_writer writers[3];
    pthread_t threads[LENGTH(writers)];
    softmetal_quirks quirks;
    size_t i;
    softmetal_get_quirks(&quirks);
    quirks.status_early = true;
    softmetal_set_quirks(&quirks);
    softmetal_set_chaos(&chaos);
    for (i = 0; i < LENGTH(writers); i++) {
        memset(&writers[i], 0, sizeof writers[i]);
        writers[i].s = stage_of(state);
        threads[i] = start(write_in_handlers, &writers[i]);
    }
    for (i = 0; i < LENGTH(writers); i++) join(threads[i]);
    settle(stage_of(state));
}

/* -- lost handlers and deaf listeners (R24, T7) -------------------------------------------------------------------- */

static void test_T7_a_sleeping_wait_looks_after_50_ms_and_then_more_seldom(void **state)
{
    static const unsigned looks_ms[] = {50, 150, 350, 750, 1150, 1550, 1900};
    stage *s = stage_of(state);
    size_t i;
    commit_new(s->q[0]);
    assert_result(gpusync_wait(s->q[0], 1, MS(1900), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(world.parks, LENGTH(looks_ms));
    for (i = 0; i < LENGTH(looks_ms); i++)
        assert_int_equal((world.deadline[i] - world.begun + US(500)) / MS(1), looks_ms[i]);
}

/* Metal loses the handler of the work itself. */
static void own_handler_is_lost(stage *s, way by)
{
    work w = signalling_work(s);
    plan(MS(10), lose_handlers_now, w.buffer);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), MS(50));
}

static void test_T7_a_lost_handler_costs_one_slice(void **state)
{
    (void)state;
    each_way(own_handler_is_lost);
}

static void own_handler_is_lost_and_parks_return_early(stage *s, way by)
{
    work w = signalling_work(s);
    world.restless = true;
    plan(MS(10), lose_handlers_now, w.buffer);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), MS(50));
    world.restless = false;
}

static void test_T7_parks_that_return_early_put_off_no_look(void **state)
{
    (void)state;
    each_way(own_handler_is_lost_and_parks_return_early);
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
        gpusync_timeline_desc desc = {0};
        deafen();
        e->event = metal_shared_event_new(s->metal_device);
        assert_non_null(e->event);
        desc.shared_event = e->event;
        assert_ok(gpusync_timeline_create(s->device, &desc, &e->other));
        w.buffer = new_buffer(s->q[0]); /* where the host waits: the GPU would go on by itself */
        w.ticket = SUBMIT(s->q[0], WAITS(at(e->other, 7)), BUFFERS(w.buffer), SIGNALS(at(s->t[0], 1)),
                          .flags = GPUSYNC_SUBMIT_HOST_SYNC);
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
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    quirks.deaf_to_everything = false;
    softmetal_set_quirks(&quirks);
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

static void trouble_on_a_queue(stage *s, way by)
{
    wait_with_trouble_elsewhere(s, by, ON_A_QUEUE);
}

static void trouble_on_a_queue_of_destroy_later(stage *s, way by)
{
    wait_with_trouble_elsewhere(s, by, ON_A_QUEUE_OF_DESTROY_LATER);
}

static void trouble_at_an_event(stage *s, way by)
{
    wait_with_trouble_elsewhere(s, by, AT_AN_EVENT);
}

static void test_R24_a_wait_finds_the_lost_handler_of_another_queue(void **state)
{
    (void)state;
    each_way(trouble_on_a_queue);
}

static void test_R24_a_wait_finds_the_lost_handler_of_a_queue_that_is_destroyed_later(void **state)
{
    (void)state;
    each_way(trouble_on_a_queue_of_destroy_later);
}

static void test_R24_a_wait_finds_the_value_that_a_deaf_listener_has_missed(void **state)
{
    (void)state;
    each_way(trouble_at_an_event);
}

/* On a stage of its own for each place. */
static void each_place(stage_desc desc, void (*body)(stage *s, place where))
{
    place where;
    for (where = ON_A_QUEUE; where < PLACES; where++) {
        stage_desc one = desc;
        void *state = &one;
        print_message("  %s\n", place_names[where]);
        assert_int_equal(world_set_up(&state), 0);
        body((stage *)state, where);
        assert_int_equal(world_tear_down(&state), 0);
    }
}

static void room_behind_trouble(stage *s, place where)
{
    elsewhere e;
    void *buffer = NULL;
    held_elsewhere(s, where, &e); /* the queue is full */
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), GPUSYNC_TIMEOUT);
    world_begin();
    plan(MS(10), comes_untold, &e);
    plan(MS(60), finish_the_stage, s);
    assert_ok(gpusync_command_buffer_create(s->q[0], NULL, SECONDS(5), &buffer));
    assert_about(world_passed(), MS(60));
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    end_elsewhere(&e, where);
}

static void test_R24_a_wait_for_room_finds_trouble_elsewhere(void **state)
{
    (void)state;
    each_place((stage_desc){.queues = 2, .timelines = 1, .queue = {.max_command_buffer_count = 1}},
               room_behind_trouble);
}

static void test_T7_a_wait_for_room_finds_the_lost_handler_of_its_queue(void **state)
{
    stage *s = stage_of(state);
    void *buffer = new_buffer(s->q[0]);
    commit(s->q[0], buffer);
    plan(MS(10), lose_handlers_now, buffer);
    assert_ok(gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &buffer));
    assert_about(world_passed(), MS(50));
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
}

static void test_T7_destroy_finds_the_lost_handler(void **state)
{
    stage *s = stage_of(state);
    void *buffer = new_buffer(s->q[0]);
    commit(s->q[0], buffer);
    plan(MS(10), lose_handlers_now, buffer);
    assert_ok(gpusync_queue_destroy(s->q[0]));
    s->q[0] = NULL;
    assert_about(world_passed(), MS(50));
}

/* Once in a millisecond; returns when the poll tells the end, at most after two seconds. */
static uint64_t poll_until_over(stage *s, gpusync_ticket ticket)
{
    uint64_t begun = world_now();
    while (gpusync_poll(s->q[0], ticket, NULL) == GPUSYNC_NOT_READY && world_now() - begun < SECONDS(2)) {
        PUT(&world.now, world_now() + MS(1));
        world_go_on();
        finish_all(s); /* what was sent */
    }
    return world_now() - begun;
}

static void polls_behind_trouble(stage *s, place where)
{
    elsewhere e;
    work w = held_elsewhere(s, where, &e);
    comes_untold(&e);
    assert_true(poll_until_over(s, w.ticket) <= MS(402)); /* a slice at most */
    assert_ok(gpusync_poll(s->q[0], w.ticket, NULL));
    end_elsewhere(&e, where);
}

static void test_R24_polls_find_trouble_elsewhere(void **state)
{
    (void)state;
    each_place(one_of_each, polls_behind_trouble);
}

/* A loop that polls sends Metal few messages: a poll looks at the rest of the device once in 50 ms, however often it is
   asked. */
static void test_R24_polls_look_at_the_whole_device_once_in_50_ms(void **state)
{
    stage *s = stage_of(state);
    gpusync_ticket held = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)));
    uint64_t looks;
    unsigned i, slice;
    commit_new(s->q[1]);
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_NOT_READY);
    looks = softmetal_message_count("status");
    for (slice = 0; slice < 3; slice++) {
        for (i = 0; i < 100; i++) assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_NOT_READY);
        assert_int_equal(softmetal_message_count("status"), looks + slice);
        PUT(&world.now, world_now() + MS(50));
    }
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], held, NULL));
}

static void test_T7_a_poll_finds_the_lost_handler_of_its_ticket_at_once(void **state)
{
    stage *s = stage_of(state);
    work w = signalling_work(s);
    lose_handlers_now(w.buffer);
    assert_ok(gpusync_poll(s->q[0], w.ticket, NULL));
    assert_int_equal(value_of(s->t[0]), 1);
}

/* ... and so does a wait for the value that it signals, whatever the number of its ticket. */
static void test_T7_a_wait_for_a_value_finds_the_lost_handler_of_its_sender_at_once(void **state)
{
    stage *s = stage_of(state);
    unsigned i;
    work w;
    for (i = 0; i < 3; i++) commit_new(s->q[0]);
    finish_all(s);
    w = signalling_work(s);
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    lose_handlers_now(w.buffer);
    assert_ok(gpusync_timeline_wait(s->t[0], 1, 0, NULL));
}

/* By hand in each turn of a loop, and nothing else: one look sends the work, the next ones tell of its end. */
static void callbacks_behind_trouble(stage *s, place where)
{
    elsewhere e;
    work w = held_elsewhere(s, where, &e);
    note n = {0};
    unsigned turn;
    on_done(ticket_at(s->q[0], w.ticket), &n);
    comes_untold(&e);
    for (turn = 0; turn < 4 && !calls_of(&n); turn++) {
        size_t count;
        assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, &count));
        finish_all(s);
    }
    assert_noted(&n, GPUSYNC_OK);
    end_elsewhere(&e, where);
}

static void test_R24_run_callbacks_finds_trouble_elsewhere(void **state)
{
    (void)state;
    each_place((stage_desc){.queues = 2, .timelines = 1, .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL}},
               callbacks_behind_trouble);
}

static void test_R24_a_callback_of_a_lost_handler_runs_where_another_thread_waits(void **state)
{
    stage *s = stage_of(state);
    void *buffer = new_buffer(s->q[1]);
    note n = {0};
    on_done(ticket_at(s->q[1], commit(s->q[1], buffer)), &n);
    commit_new(s->q[0]);
    lose_handlers_now(buffer);
    assert_int_equal(calls_of(&n), 0);
    assert_result(gpusync_wait(s->q[0], 1, MS(60), NULL), GPUSYNC_TIMEOUT); /* looks at 50 ms */
    assert_noted(&n, GPUSYNC_OK);
}

static void test_R24_a_callback_of_a_deaf_listener_runs_where_another_thread_waits(void **state)
{
    stage *s = stage_of(state);
    note n = {0};
    deafen();
    on_done(at(s->t[0], 5), &n);
    commit_new(s->q[0]);
    signal_as_others(s->t[0], 5);
    assert_int_equal(calls_of(&n), 0);
    assert_result(gpusync_wait(s->q[0], 1, MS(60), NULL), GPUSYNC_TIMEOUT);
    assert_noted(&n, GPUSYNC_OK);
}

/* -- in a callback ------------------------------------------------------------------------------------------------- */

typedef struct inside {
    stage *s;
    unsigned calls;
} inside;

static void must_be(gpusync_result got, gpusync_result expected, const char *what)
{
    if (got != expected) fprintf(stderr, "%s: %s\n", what, gpusync_result_string(got));
    must(got == expected, "in a callback");
}

/* Ticket 1 has ended, ticket 2 has not; the queue has no room; 1 is reached, 2 is not. */
static void wait_inside(void *user, gpusync_result result, const gpusync_error *error)
{
    static const uint64_t limits[] = {0, MS(5), GPUSYNC_FOREVER};
    inside *in = (inside *)user;
    gpusync_queue *q = in->s->q[0];
    gpusync_timeline *t = in->s->t[0];
    gpusync_error e;
    const gpusync_wait_options options = {.error = &e};
    const gpusync_point over[] = {ticket_at(q, 1), at(t, 1)}, open[] = {ticket_at(q, 1), ticket_at(q, 2)};
    void *buffer;
    size_t i;
    (void)result;
    (void)error;
    for (i = 0; i < LENGTH(limits); i++) {
        memset(&e, 0, sizeof e);
        must_be(gpusync_wait(q, 2, limits[i], &options), GPUSYNC_ERROR_WOULD_DEADLOCK, "a ticket");
        must_be(e.result, GPUSYNC_ERROR_WOULD_DEADLOCK, "its error");
        must_be(gpusync_wait(q, GPUSYNC_EVERYTHING, limits[i], NULL), GPUSYNC_ERROR_WOULD_DEADLOCK, "everything");
        must_be(gpusync_device_wait(in->s->device, limits[i], NULL), GPUSYNC_ERROR_WOULD_DEADLOCK, "the device");
        must_be(gpusync_timeline_wait(t, 2, limits[i], NULL), GPUSYNC_ERROR_WOULD_DEADLOCK, "a value");
        must_be(gpusync_wait_many(open, 2, GPUSYNC_WAIT_ALL, limits[i], NULL, NULL), GPUSYNC_ERROR_WOULD_DEADLOCK,
                "many");
        must_be(gpusync_command_buffer_create(q, NULL, limits[i], &buffer), GPUSYNC_ERROR_WOULD_DEADLOCK, "room");
        must_be(gpusync_wait(q, 1, limits[i], NULL), GPUSYNC_OK, "a ticket that has ended");
        must_be(gpusync_timeline_wait(t, 1, limits[i], NULL), GPUSYNC_OK, "a value that is reached");
        must_be(gpusync_wait_many(over, 2, GPUSYNC_WAIT_ALL, limits[i], NULL, NULL), GPUSYNC_OK, "points");
        must_be(gpusync_wait_many(open, 2, GPUSYNC_WAIT_ANY, limits[i], NULL, NULL), GPUSYNC_OK, "any");
    }
    must_be(gpusync_poll(q, 2, NULL), GPUSYNC_NOT_READY, "a poll");
    must_be(gpusync_poll(q, 1, NULL), GPUSYNC_OK, "a poll of the end");
    in->calls++;
}

static void test_R20_a_wait_in_a_callback_that_cannot_return_at_once_would_deadlock(void **state)
{
    stage *s = stage_of(state);
    inside in = {s, 0};
    commit_new(s->q[0]);
    commit_new(s->q[0]);
    signal_value(s->t[0], 1);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), wait_inside, &in));
    finish_next(s->q[0]);
    commit_new(s->q[0]); /* no room */
    assert_int_equal(run_callbacks(s), 1);
    assert_int_equal(in.calls, 1);
    assert_int_equal(world.parks, 0);
}

/* Metal runs the handler after the callback that asks for it. */
static void wait_for_handlers_inside(void *user, gpusync_result result, const gpusync_error *error)
{
    inside *in = (inside *)user;
    (void)result;
    (void)error;
    must_be(gpusync_wait(in->s->q[0], 1, MS(5), NULL), GPUSYNC_OK, "the end");
    must_be(gpusync_wait(in->s->q[0], 1, MS(5), &with_handlers), GPUSYNC_ERROR_WOULD_DEADLOCK, "the handlers");
    in->calls++;
}

static void test_R28_a_wait_for_handlers_in_a_callback_would_deadlock(void **state)
{
    stage *s = stage_of(state);
    inside in = {s, 0};
    void *buffer = new_buffer(s->q[0]);
    commit(s->q[0], buffer);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), wait_for_handlers_inside, &in));
    softmetal_complete(buffer);
    assert_int_equal(run_callbacks(s), 1); /* by its look */
    assert_int_equal(in.calls, 1);
}

/* -- a lost device (T6) -------------------------------------------------------------------------------------------- */

static void lost_for_a_second(stage *s, way by)
{
    gpusync_error error = {0};
    const gpusync_wait_options options = {.error = &error};
    work w = signalling_work(s);
    commit_failing(s->q[1], SOFTMETAL_SUBMISSIONS_IGNORED);
    assert_true(finish_next(s->q[1]));
    assert_true(gpusync_device_is_lost(s->device));
    if (by == BY_DEVICE) assert_result(wait_now(s->q[1], GPUSYNC_EVERYTHING), GPUSYNC_ERROR_EXECUTION);
    assert_result(wait_by(s, by, 0, &options), GPUSYNC_TIMEOUT);
    assert_result(wait_by(s, by, MS(900), &options), GPUSYNC_TIMEOUT); /* the work goes on */
    assert_result(gpusync_poll(s->q[0], w.ticket, NULL), GPUSYNC_NOT_READY);
    assert_result(wait_by(s, by, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(world_passed() >= MS(999) && world_passed() <= MS(1410));
    assert_int_equal(error.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_poll(s->q[0], w.ticket, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_false(gpusync_is_done(s->q[0], w.ticket)); /* the truth */
    softmetal_finish(w.buffer);
    assert_true(gpusync_is_done(s->q[0], w.ticket));
    assert_ok(wait_by(s, by, 0, &options));
    assert_ok(gpusync_poll(s->q[0], w.ticket, NULL));
}

static void test_T6_a_second_after_the_loss_each_wait_ends(void **state)
{
    (void)state;
    each_way(lost_for_a_second);
}

static void lost_and_ends(stage *s, way by)
{
    work w = signalling_work(s);
    commit_failing(s->q[1], SOFTMETAL_SUBMISSIONS_IGNORED);
    assert_true(finish_next(s->q[1]));
    if (by == BY_DEVICE) assert_result(wait_now(s->q[1], GPUSYNC_EVERYTHING), GPUSYNC_ERROR_EXECUTION);
    plan(MS(500), finish_now, w.buffer);
    assert_ok(wait_by(s, by, GPUSYNC_FOREVER, NULL));
    assert_about(world_passed(), MS(500));
}

static void test_T6_work_of_a_lost_device_that_ends_in_time_is_told(void **state)
{
    (void)state;
    each_way(lost_and_ends);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        on_all_worlds_with(test_S1_tickets_count_from_1_and_what_is_below_is_done, .queues = 2),
        on_both_worlds(test_T13_a_ticket_less_two_needs_no_if),
        on_world(test_S2_a_poll_reads_metals_status_before_the_handler_has_run),
        on_world(test_S2_done_asks_metal_nothing_and_turns_true_at_a_look),
        on_both_worlds(test_S4_a_ticket_keeps_its_one_result),
        cmocka_unit_test(test_S4_a_failure_is_on_record_before_a_wait_returns_it),
        on_both_worlds(test_T1_a_ticket_waits_for_the_ordered_work_before_it),
        on_both_worlds(test_R1_unordered_work_ends_without_the_work_before_it),
        on_both_worlds(test_R1_ordered_work_ends_without_the_unordered_work_before_it),
        on_both_worlds(test_R1_everything_covers_unordered_work),
        on_both_worlds(test_R1_sleepers_wake_for_unordered_work_by_itself),
        on_all_worlds_with(test_R1_a_poll_tells_every_result_of_unordered_work_at_once, .queues = 2,
                           .queue = {.error_log_count = 4}),
        cmocka_unit_test(test_S5_without_time_a_wait_looks_once_and_sleeps_never),
        unit_test_on_both_kinds(test_S5_a_wait_keeps_its_limit_and_can_be_repeated),
        unit_test_on_both_kinds(test_S5_F10_huge_limits_do_not_overflow),
        cmocka_unit_test(test_S5_what_has_ended_by_the_deadline_has_ended),
        on_world_with(test_S5_a_value_of_others_counts_that_has_come_by_the_deadline, .timelines = 1,
                      .timeline = {.signalled_by_others = true}),
        on_both_worlds(test_S5_a_park_that_returns_early_costs_nothing_but_another),
        on_both_worlds(test_S5_an_end_before_the_park_is_not_slept_through),
        on_world_with(test_F4_R10_a_wait_for_room_keeps_its_limit, .queue = {.max_command_buffer_count = 2}),
        on_world_with(test_R10_the_second_begins_again_when_metal_has_had_work, .queues = 2,
                      .queue = {.max_command_buffer_count = 1}),
        on_world_with(test_F16_an_open_buffer_holds_up_no_wait, .timelines = 1),
        on_world_with(test_S5_calls_without_a_limit_call_no_hook_that_waits, .queues = 2, .timelines = 1,
                      .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL}),
        on_both_worlds_with(test_S5_a_wait_that_refuses_has_changed_nothing, .timelines = 1),
        unit_test_on_both_kinds(test_S2_waits_for_what_is_done_send_no_message),
        unit_test_on_both_kinds(test_S5_a_wait_that_sleeps_parks_once_and_is_woken_once),
        on_both_kinds_with(test_S5_an_end_wakes_all_that_wait_for_it_and_no_other, .device.hooks = &without_slices),
        on_both_kinds_with(test_S5_the_sleep_of_gpusync_itself_wakes_every_thread, .threads = true),
        on_stage_with(test_S5_the_sleep_of_gpusync_itself_ends_by_the_wake_up_alone, .threads = true, .timelines = 1,
                      .timeline = {.signalled_by_others = true}),
        on_stage_with(test_S5_the_sleep_of_gpusync_itself_sleeps_again_behind_a_wake_up, .threads = true,
                      .timelines = 2, .timeline = {.signalled_by_others = true}),
        unit_test_on_both_kinds(test_S4_without_an_error_options_error_is_left_alone),
        unit_test_on_both_kinds(test_S4_a_wait_fills_options_error_with_the_failure),
        on_world_with(test_S4_refusals_fill_options_error, .timelines = 1),
        cmocka_unit_test(test_S4_senseless_calls_fill_options_error),
        on_stage_with(test_R20_a_destroy_ends_the_waits_of_other_threads, .timelines = 1,
                      .queue = {.max_command_buffer_count = 2}),
        on_both_kinds(test_R20_a_wait_that_spins_ends_with_its_queue),
        on_both_kinds(test_R27_everything_is_what_was_committed_at_the_call),
        on_both_worlds(test_R27_one_wait_for_everything_tells_of_all_failures_and_the_first_is_its_result),
        on_both_worlds_with(test_R27_cancelled_work_counts_in_everything, .timelines = 1),
        on_both_kinds(test_R27_waits_for_everything_that_overlap_each_tell),
        on_world(test_R27_a_wait_for_everything_begins_with_its_call),
        on_both_worlds_with(test_R27_while_a_failure_sticks_each_wait_and_poll_for_everything_tells_it,
                            .queue = {.sticky_failure = true}),
        on_all_worlds_with(test_R27_a_wait_for_the_device_has_the_error_of_the_first_queue_and_tells_of_all,
                           .queues = 3),
        on_all_worlds_with(test_S5_F5_a_wait_for_the_device_has_one_limit_for_all_queues, .queues = 3),
        on_world_with(test_S5_a_wait_for_a_device_without_queues_is_over, .no_queue = true),
        on_all_kinds_with(test_R20_a_wait_for_the_device_skips_queues_that_are_being_destroyed, .queues = 3),
        on_both_kinds(test_R20_a_wait_for_the_device_ends_when_all_its_queues_are_being_destroyed),
        on_world_with(test_S5_a_wait_for_the_device_covers_more_than_16_queues, .no_queue = true),
        on_world_with(test_S5_without_memory_a_wait_for_more_than_16_queues_changes_nothing, .no_queue = true),
        cmocka_unit_test(test_R28_F15_with_handlers_a_wait_goes_on_until_they_have_run),
        on_world(test_R28_a_wait_for_handlers_sleeps_through_the_end),
        on_world(test_R28_the_handlers_of_ordered_work_before_it_count_and_no_others),
        cmocka_unit_test(test_R28_the_last_handler_wakes_a_wait_though_it_is_one_of_earlier_work),
        on_both_kinds(test_R28_later_handlers_are_not_waited_for),
        on_world(test_R28_a_submission_has_the_handlers_of_all_its_buffers),
        on_world(test_R28_a_failure_is_told_when_the_handler_has_run),
        on_world_with(test_R28_work_that_never_ran_has_no_handlers, .timelines = 1),
        on_world_with(test_R28_a_value_has_no_handlers, .timelines = 1),
        on_stage_with(test_R28_what_handlers_wrote_is_seen_after_the_wait, .real = true, .threads = true,
                      .spins = true),
        on_both_worlds(test_T7_a_sleeping_wait_looks_after_50_ms_and_then_more_seldom),
        cmocka_unit_test(test_T7_a_lost_handler_costs_one_slice),
        cmocka_unit_test(test_T7_parks_that_return_early_put_off_no_look),
        cmocka_unit_test(test_R24_a_wait_finds_the_lost_handler_of_another_queue),
        cmocka_unit_test(test_R24_a_wait_finds_the_lost_handler_of_a_queue_that_is_destroyed_later),
        unit_test_on_both_kinds(test_R24_a_wait_finds_the_value_that_a_deaf_listener_has_missed),
        cmocka_unit_test(test_R24_a_wait_for_room_finds_trouble_elsewhere),
        on_world_with(test_T7_a_wait_for_room_finds_the_lost_handler_of_its_queue,
                      .queue = {.max_command_buffer_count = 1}),
        on_world(test_T7_destroy_finds_the_lost_handler),
        cmocka_unit_test(test_R24_polls_find_trouble_elsewhere),
        on_world_with(test_T7_a_wait_for_a_value_finds_the_lost_handler_of_its_sender_at_once, .timelines = 1),
        on_world_with(test_R24_polls_look_at_the_whole_device_once_in_50_ms, .queues = 2, .timelines = 1),
        on_world_with(test_T7_a_poll_finds_the_lost_handler_of_its_ticket_at_once, .timelines = 1),
        cmocka_unit_test(test_R24_run_callbacks_finds_trouble_elsewhere),
        on_world_with(test_R24_a_callback_of_a_lost_handler_runs_where_another_thread_waits, .queues = 2),
        on_both_worlds_with(test_R24_a_callback_of_a_deaf_listener_runs_where_another_thread_waits, .timelines = 1,
                            .timeline = {.signalled_by_others = true}),
        on_world_with(test_R20_a_wait_in_a_callback_that_cannot_return_at_once_would_deadlock, .timelines = 1,
                      .queue = {.max_command_buffer_count = 2},
                      .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL}),
        on_world_with(test_R28_a_wait_for_handlers_in_a_callback_would_deadlock,
                      .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL}),
        unit_test_on_both_kinds(test_T6_a_second_after_the_loss_each_wait_ends),
        unit_test_on_both_kinds(test_T6_work_of_a_lost_device_that_ends_in_time_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
