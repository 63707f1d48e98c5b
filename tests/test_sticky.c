/* test_sticky.c - queues with sticky_failure: what sticks, what takes the error, and gpusync_queue_clear_failure

   Proved: tickets end in any order, as on other queues. Once a failure was found, new work is refused and is as it was,
   held work ends with the error, and each ticket above the lowest that failed takes it when it ends well, with what it was
   to signal, and with a record of its own; what fails by itself keeps its own error. Every wait for everything tells it.
   A clear ends this for all that was committed before it: what fails later does not stick, what was behind the failure
   still takes the error. Destroy, the loss of the device and a lack of memory leave nothing waiting. A model agrees on
   random programs.

   This also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

/* -- set-up ------------------------------------------------------------------------------------------------------ */

static gpusync_queue_desc sticky_desc(void)
{
    gpusync_queue_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.sticky_failure = true;
    return desc;
}

static void add_queue(stage *s, unsigned i, const char *label, bool sticky)
{
    gpusync_queue_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.label = label;
    desc.sticky_failure = sticky;
    s->q[i] = queue_of_kind(QUEUE_OF_GPUSYNC, s->device, &desc);
    s->metal[i] = gpusync_queue_metal(s->q[i]);
}

/* The first queue has sticky_failure, and what queue_desc says. A second one, which the test may ask for, has nothing. */
static void open_sticky_with(stage *s, softmetal_clock clock, unsigned queues, gpusync_device_desc device_desc,
                             gpusync_queue_desc queue_desc)
{
    queue_desc.sticky_failure = true;
    open_stage_on(s, clock, QUEUE_OF_GPUSYNC, 1, device_desc, queue_desc);
    if (queues > 1) add_queue(s, 1, "second", false);
}

static void open_sticky(stage *s, softmetal_clock clock, unsigned queues)
{
    gpusync_device_desc device_desc;
    memset(&device_desc, 0, sizeof device_desc);
    open_sticky_with(s, clock, queues, device_desc, sticky_desc());
}

/* A command buffer that will fail, with this code. */
static void *open_failing(gpusync_queue *queue, long code)
{
    void *buffer = OPEN(queue, .label = "the culprit");
    softmetal_fail(buffer, "TestDomain", code, "it broke");
    return buffer;
}

static gpusync_ticket commit_failing(stage *s, unsigned i, long code, void **buffer)
{
    *buffer = open_failing(s->q[i], code);
    return commit_to(s->q[i], *buffer);
}

/* A commit that has failed. */
static gpusync_ticket fail_on(stage *s, unsigned i, long code)
{
    void *buffer;
    gpusync_ticket ticket = commit_failing(s, i, code, &buffer);
    softmetal_finish(buffer);
    return ticket;
}

/* A commit that has ended. */
static gpusync_ticket finish_on(stage *s, unsigned i)
{
    void *buffer;
    gpusync_ticket ticket = commit_empty_to(s->q[i], &buffer);
    softmetal_finish(buffer);
    return ticket;
}

/* The error that commits of open_failing make, or what failed because of one. */
static void assert_culprit(const gpusync_error *error, long code)
{
    assert_result(error->result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error->failure, GPUSYNC_FAILURE_OTHER);
    assert_int_equal(error->code, code);
    assert_string_equal(error->domain, "TestDomain");
    assert_string_equal(error->message, "it broke");
    assert_string_equal(error->label, "the culprit");
}

/* Every call that tells how a ticket ended. (gpusync_is_done also waits for the earlier ones.) */
static void assert_info(gpusync_queue *queue, gpusync_ticket ticket, gpusync_result result)
{
    gpusync_ticket_info info;
    assert_result(gpusync_poll(queue, ticket), result);
    assert_result(gpusync_wait(queue, ticket, 0), result);
    assert_ok(gpusync_get_info(queue, ticket, &info));
    assert_result(info.result, result);
}

static void assert_well(gpusync_queue *queue, gpusync_ticket ticket) { assert_info(queue, ticket, GPUSYNC_OK); }

static void assert_failed(gpusync_queue *queue, gpusync_ticket ticket, long code)
{
    gpusync_error error = error_of(queue, ticket);
    assert_culprit(&error, code);
    assert_int_equal(error.ticket, ticket);
    assert_info(queue, ticket, GPUSYNC_ERROR_EXECUTION);
}

static void assert_open(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_ticket_info info;
    assert_false(gpusync_is_done(queue, ticket));
    assert_result(gpusync_poll(queue, ticket), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(queue, ticket, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_get_info(queue, ticket, &info), GPUSYNC_NOT_READY);
}

static void assert_told(outcome *o, gpusync_ticket ticket, long code)
{
    assert_ended(o, GPUSYNC_ERROR_EXECUTION);
    assert_culprit(&o->error, code);
    assert_int_equal(o->error.ticket, ticket);
}

static void assert_timeline_failed(gpusync_timeline *timeline, long code)
{
    gpusync_error error = error_at(timeline, 1);
    assert_culprit(&error, code);
}

/* Commits that Metal has been given. */
static uint64_t commits_so_far(void)
{
    return softmetal_message_count("commit") + softmetal_message_count("commit:count:") +
           softmetal_message_count("commit:count:options:");
}

static void clear(stage *s) { assert_ok(gpusync_queue_clear_failure(s->q[0])); }

/* How many records the queue has of this ticket. Fills *error with the last. */
static unsigned records_of(gpusync_queue *queue, gpusync_ticket ticket, gpusync_error *error)
{
    gpusync_error read;
    uint64_t cursor = 0;
    unsigned count = 0;
    while (gpusync_next_error(queue, &cursor, &read) == GPUSYNC_OK) {
        if (read.ticket != ticket) continue;
        *error = read;
        count++;
    }
    return count;
}

/* The ticket has failed with this code, and has one record, which says so. */
static void assert_recorded(gpusync_queue *queue, gpusync_ticket ticket, long code)
{
    gpusync_error error;
    assert_failed(queue, ticket, code);
    assert_int_equal(records_of(queue, ticket, &error), 1);
    assert_culprit(&error, code);
}

/* The queue takes no work, and gives no command buffer. `open` is one that was made before, and stays open. */
static void assert_refuses(stage *s, void *open)
{
    void *buffer = &buffer;
    gpusync_ticket ticket = 99;
    if (!metal4_run()) {
        assert_result(gpusync_command_buffer(s->q[0], NULL, &buffer), GPUSYNC_ERROR_EXECUTION);
        assert_null(buffer);
    }
    assert_result(either_commit(s->q[0], open, &ticket), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    REFUSED(GPUSYNC_ERROR_EXECUTION, s->q[0], BUFFERS(open));
}

/* The k-th of the orders of count things; false: there are no more. */
static bool order_of(unsigned k, unsigned count, unsigned *order)
{
    unsigned left[8], i, n;
    for (i = 0; i < count; i++) left[i] = i;
    for (i = 0; i < count; i++) {
        unsigned at = k % (count - i);
        k /= count - i;
        order[i] = left[at];
        for (n = at; n + 1 < count - i; n++) left[n] = left[n + 1];
    }
    return k == 0;
}

/* -- tickets end in any order ------------------------------------------------------------------------------------- */

/* Some of the work: commits, and submissions of two command buffers. Finish all of it. */
enum { ITEMS = 4 };
typedef struct item {
    gpusync_ticket ticket;
    void *buffers[2];
    unsigned count;
} item;

static void make_item(stage *s, item *it, bool submitted, long code)
{
    it->buffers[0] = code ? open_failing(s->q[0], code) : buffer_of(s->q[0]);
    it->buffers[1] = submitted && !is_metal4(s->q[0]) ? buffer_of(s->q[0]) : NULL;
    it->count = it->buffers[1] ? 2 : 1;
    if (submitted)
        it->ticket = SUBMIT(s->q[0], .command_buffers = it->buffers, .command_buffer_count = it->count);
    else it->ticket = commit_to(s->q[0], it->buffers[0]);
}

static void finish_item(const item *it)
{
    unsigned i;
    for (i = it->count; i--;) softmetal_finish(it->buffers[i]);
}

static void check_order(bool submitted)
{
    unsigned order[ITEMS], k, i;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (k = 0; order_of(k, ITEMS, order); k++) {
        item items[ITEMS];
        outcome told[ITEMS];
        bool finished[ITEMS + 1] = {false};
        gpusync_ticket before = stats_of(s.q[0]).commits;
        unsigned done = 0, n;
        memset(told, 0, sizeof told);
        for (i = 0; i < ITEMS; i++) {
            make_item(&s, &items[i], submitted && i % 2, 0);
            on_done(s.q[0], items[i].ticket, &told[i]);
        }
        for (i = 0; i < ITEMS; i++) {
            finish_item(&items[order[i]]);
            finished[order[i]] = true;
            await_call(&told[order[i]]);
            while (finished[done]) done++;
            for (n = 0; n < ITEMS; n++) {
                assert_int_equal(calls_so_far(&told[n]), finished[n]);
                if (finished[n]) assert_well(s.q[0], items[n].ticket);
                else assert_open(s.q[0], items[n].ticket);
                assert_int_equal(gpusync_is_done(s.q[0], items[n].ticket), n < done);
            }
            assert_int_equal(rooms_taken(s.q[0]), softmetal_outstanding(s.metal[0]));
        }
        assert_true(gpusync_is_idle(s.q[0]));
        assert_int_equal(stats_of(s.q[0]).completions, before + ITEMS);
    }
    assert_int_equal(k, 24);
    close_stage(&s);
}

static void test_commits_end_in_any_order(void **state)
{
    (void)state;
    check_order(false);
}

static void test_submissions_and_commits_end_in_any_order(void **state)
{
    (void)state;
    check_order(true);
}

static void test_a_value_is_reached_while_earlier_work_goes_on(void **state)
{
    void *first, *second;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_empty_to(s.q[0], &first);
    second = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(second), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE);
    softmetal_finish(second);
    assert_int_equal(value_of(s.a), 1);
    assert_well(s.q[0], ticket);
    softmetal_finish(first);
    close_stage(&s);
}

static void test_polls_find_ends_in_any_order(void **state)
{
    unsigned order[3], k, i;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (k = 0; order_of(k, 3, order); k++) {
        gpusync_ticket tickets[3];
        void *buffers[3];
        for (i = 0; i < 3; i++) tickets[i] = commit_empty_to(s.q[0], &buffers[i]);
        for (i = 0; i < 3; i++) {
            softmetal_complete(buffers[order[i]]);
            assert_ok(gpusync_poll(s.q[0], tickets[order[i]]));
        }
        for (i = 0; i < 3; i++) softmetal_finish(buffers[i]); /* and now the handlers */
    }
    assert_int_equal(stats_of(s.q[0]).completions, 18);
    close_stage(&s);
}

static struct {
    gpusync_ticket tickets[32];
    gpusync_result results[32];
    unsigned count;
} traced;

static void note_ends(void *user, const gpusync_trace_event *event)
{
    unsigned at;
    (void)user;
    if (event->kind != GPUSYNC_TRACE_COMPLETED) return;
    at = COUNT(&traced.count);
    must(at < LENGTH(traced.tickets), "too many ends");
    traced.tickets[at] = event->ticket;
    traced.results[at] = event->result;
}

static void test_the_trace_tells_each_end_once_with_the_result_of_the_ticket(void **state)
{
    static const unsigned order[ITEMS] = {3, 1, 0, 2};
    item items[ITEMS];
    unsigned i;
    stage s;
    (void)state;
    memset(&traced, 0, sizeof traced);
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    assert_ok(gpusync_set_trace(s.device, note_ends, NULL));
    for (i = 0; i < ITEMS; i++) make_item(&s, &items[i], i == 2, i == 1 ? 7 : 0);
    for (i = 0; i < ITEMS; i++) {
        finish_item(&items[order[i]]);
        assert_int_equal(traced.count, i + 1);
        assert_int_equal(traced.tickets[i], items[order[i]].ticket);
        assert_result(traced.results[i], i == 1 || i == 3 ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    }
    assert_ok(gpusync_set_trace(s.device, NULL, NULL));
    close_stage(&s);
}

/* -- a tracked buffer, and GPUSYNC_UNORDERED ----------------------------------------------------------------------- */

static void test_gpusync_track_is_allowed(void **state)
{
    gpusync_ticket well, fails, takes;
    void *buffers[3], *open;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("no track calls");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 3; i++) buffers[i] = metal_queue_command_buffer(s.metal[0]);
    open = buffer_of(s.q[0]);
    assert_ok(gpusync_track(s.q[0], buffers[0], &well));
    assert_ok(gpusync_track(s.q[0], buffers[1], &fails));
    assert_ok(gpusync_track(s.q[0], buffers[2], &takes));
    metal_set_label(buffers[1], "the culprit");
    softmetal_fail(buffers[1], "TestDomain", 5, "it broke");
    for (i = 0; i < 3; i++) metal_commit(buffers[i]);
    for (i = 0; i < 3; i++) softmetal_finish(buffers[i]);
    assert_well(s.q[0], well);
    assert_recorded(s.q[0], fails, 5);
    assert_recorded(s.q[0], takes, 5);
    assert_refuses(&s, open);
    assert_ok(gpusync_command_buffer_discard(s.q[0], open));
    for (i = 0; i < 3; i++) metal_release(buffers[i]);
    close_stage(&s);
}

/* The program commits it in any case: there is nothing to refuse. Its ticket takes the error. */
static void test_gpusync_track_is_allowed_while_a_failure_sticks(void **state)
{
    gpusync_ticket takes, given_up;
    void *buffer, *other;
    stage s;
    (void)state;
    NOT_ON_METAL4("no track calls");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_on(&s, 0, 6);
    buffer = metal_queue_command_buffer(s.metal[0]);
    other = metal_queue_command_buffer(s.metal[0]);
    assert_ok(gpusync_track(s.q[0], buffer, &takes));
    assert_ok(gpusync_track(s.q[0], other, &given_up));
    assert_ok(gpusync_untrack(s.q[0], given_up));
    metal_commit(buffer);
    softmetal_finish(buffer);
    assert_recorded(s.q[0], takes, 6);
    assert_info(s.q[0], given_up, GPUSYNC_ERROR_CANCELLED);
    metal_release(buffer);
    metal_release(other);
    close_stage(&s);
}

static void test_unordered_work_does_not_line_up(void **state)
{
    gpusync_ticket held, ticket;
    void *buffer;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    held = hold_on(s.q[0], s.d, 1, NULL);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), .flags = GPUSYNC_UNORDERED);
    softmetal_finish(buffer);
    assert_well(s.q[0], ticket);
    assert_open(s.q[0], held);
    assert_ok(gpusync_timeline_signal(s.d, 1));
    finish(&s, 0);
    assert_well(s.q[0], held);
    close_stage(&s);
}

/* -- later work -------------------------------------------------------------------------------------------------- */

static void test_a_failure_fails_work_behind_it_that_ends_well_later(void **state)
{
    outcome told[ITEMS];
    item items[ITEMS];
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(told, 0, sizeof told);
    for (i = 0; i < ITEMS; i++) {
        make_item(&s, &items[i], i == 2, i == 1 ? 9 : 0);
        on_done(s.q[0], items[i].ticket, &told[i]);
    }
    finish_item(&items[1]);
    assert_failed(s.q[0], items[1].ticket, 9);
    for (i = 2; i < ITEMS; i++) assert_open(s.q[0], items[i].ticket);
    for (i = ITEMS - 1; i > 1; i--) finish_item(&items[i]);
    finish_item(&items[0]); /* below it */
    assert_well(s.q[0], items[0].ticket);
    assert_ended(&told[0], GPUSYNC_OK);
    for (i = 1; i < ITEMS; i++) {
        assert_recorded(s.q[0], items[i].ticket, 9);
        assert_told(&told[i], items[i].ticket, 9);
    }
    assert_int_equal(stats_of(s.q[0]).failures, 3);
    close_stage(&s);
}

static void test_work_behind_a_failure_that_ended_well_before_it_was_found_stays_well(void **state)
{
    outcome told[ITEMS];
    item items[ITEMS];
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(told, 0, sizeof told);
    for (i = 0; i < ITEMS; i++) {
        make_item(&s, &items[i], i == 2, i == 1 ? 9 : 0);
        on_done(s.q[0], items[i].ticket, &told[i]);
    }
    finish_item(&items[2]);
    assert_ended(&told[2], GPUSYNC_OK);
    finish_item(&items[1]);
    finish_item(&items[3]);
    assert_well(s.q[0], items[2].ticket);
    assert_recorded(s.q[0], items[1].ticket, 9);
    assert_recorded(s.q[0], items[3].ticket, 9);
    finish_item(&items[0]);
    assert_int_equal(stats_of(s.q[0]).failures, 2);
    close_stage(&s);
}

static void test_a_poll_that_finds_the_failure_first_fails_work_behind_it(void **state)
{
    gpusync_ticket failed, tickets[2];
    void *first, *second, *third;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    failed = commit_failing(&s, 0, 3, &first);
    tickets[0] = commit_empty_to(s.q[0], &second);
    tickets[1] = commit_empty_to(s.q[0], &third);
    softmetal_complete(first);
    softmetal_complete(second);
    softmetal_complete(third);
    assert_ok(gpusync_poll(s.q[0], tickets[0])); /* the failure is not known yet */
    assert_result(gpusync_poll(s.q[0], failed), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(s.q[0], tickets[1]), GPUSYNC_ERROR_EXECUTION);
    softmetal_finish(first);
    softmetal_finish(second);
    softmetal_finish(third);
    assert_recorded(s.q[0], failed, 3);
    assert_well(s.q[0], tickets[0]);
    assert_recorded(s.q[0], tickets[1], 3);
    close_stage(&s);
}

/* No thread sleeps, and no handler comes. */
static void test_a_failure_that_the_sweep_finds_sticks(void **state)
{
    gpusync_ticket failed;
    void *buffer, *open;
    outcome told;
    stage s;
    (void)state;
    NOT_ON_METAL4("without feedback a ticket never ends");
    open_sticky(&s, SOFTMETAL_REAL, 1);
    memset(&told, 0, sizeof told);
    open = buffer_of(s.q[0]);
    buffer = open_failing(s.q[0], 3);
    softmetal_lose_handlers(buffer);
    failed = commit_to(s.q[0], buffer);
    on_done(s.q[0], failed, &told);
    await_call(&told);
    assert_told(&told, failed, 3);
    assert_refuses(&s, open);
    assert_ok(gpusync_command_buffer_discard(s.q[0], open));
    close_stage(&s);
}

/* More than the log has room for, and so many that the ring of tickets grows. */
#define CROWD 700u

static void check_crowd(bool submitted)
{
    static void *buffers[CROWD];
    static outcome told[CROWD];
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc = sticky_desc();
    gpusync_ticket first = 0;
    unsigned i;
    stage s;
    memset(&device_desc, 0, sizeof device_desc);
    memset(told, 0, sizeof told);
    queue_desc.max_command_buffer_count = CROWD + 8;
    queue_desc.error_log_count = CROWD / 2;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, queue_desc);
    for (i = 0; i < CROWD; i++) {
        gpusync_ticket ticket;
        buffers[i] = i == 200 ? open_failing(s.q[0], 5) : buffer_of(s.q[0]);
        ticket = submitted ? SUBMIT(s.q[0], BUFFERS(buffers[i])) : commit_to(s.q[0], buffers[i]);
        if (!i) first = ticket;
        on_done(s.q[0], ticket, &told[i]);
    }
    softmetal_finish(buffers[200]);
    for (i = CROWD - 1; i > 200; i--) softmetal_finish(buffers[i]);
    for (i = 0; i < 200; i++) softmetal_finish(buffers[i]);
    assert_int_equal(stats_of(s.q[0]).completions, first - 1 + CROWD);
    assert_int_equal(stats_of(s.q[0]).failures, CROWD - 200);
    assert_int_equal(stats_of(s.q[0]).failures_dropped, CROWD - 200 - CROWD / 2);
    for (i = 0; i < CROWD; i++) {
        if (i < 200) assert_ended(&told[i], GPUSYNC_OK);
        else assert_told(&told[i], first + i, 5);
        if (i < 200) assert_well(s.q[0], first + i);
        else if (i == 200 || i <= 200 + CROWD / 2) assert_failed(s.q[0], first + i, 5); /* the first is kept, too */
        else assert_info(s.q[0], first + i, GPUSYNC_ERROR_RESULT_UNKNOWN);
    }
    close_stage(&s);
}

static void test_500_commits_behind_a_failure_take_its_error(void **state)
{
    (void)state;
    check_crowd(false);
}

static void test_500_submissions_behind_a_failure_take_its_error(void **state)
{
    (void)state;
    check_crowd(true);
}

static void test_work_that_the_device_has_runs_to_its_end_though_its_ticket_fails(void **state)
{
    void *first, *second, *memory;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memory = memory_of(&s, 1);
    commit_failing(&s, 0, 4, &first);
    second = open_on(&s, 0);
    fill(second, memory, 0, 77);
    ticket = commit_to(s.q[0], second);
    softmetal_finish(first);
    assert_open(s.q[0], ticket);
    softmetal_finish(second);
    assert_failed(s.q[0], ticket, 4);
    assert_int_equal(bytes_of(memory)[0], 77);
    metal_release(memory);
    close_stage(&s);
}

/* As MLX does: one command buffer has the kernels, a later one of the queue the signal. Returns how a waiter for the
   value is told. */
static gpusync_result play_mlx(bool sticky)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc = sticky_desc();
    gpusync_result result;
    value_job job;
    void *kernels, *signal;
    stage s;
    memset(&device_desc, 0, sizeof device_desc);
    queue_desc.sticky_failure = sticky;
    device_desc.spin = &no_spin;
    open_stage_on(&s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, 1, device_desc, queue_desc);
    commit_failing(&s, 0, 6, &kernels);
    signal = open_on(&s, 0);
    SUBMIT(s.q[0], BUFFERS(signal), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE);
    value_job_start(&job, s.a, 1, SECONDS(20));
    await_sleepers(s.device, 1);
    softmetal_finish(kernels);
    softmetal_finish(signal);
    result = value_job_join(&job);
    if (sticky) assert_culprit(&job.error, 6);
    close_stage(&s);
    return result;
}

static void test_a_waiter_for_a_signal_behind_failed_work_gets_the_failure(void **state)
{
    (void)state;
    assert_result(play_mlx(true), GPUSYNC_ERROR_EXECUTION);
}

static void test_without_the_option_a_signal_behind_failed_work_hides_the_failure(void **state)
{
    (void)state;
    assert_ok(play_mlx(false));
}

static void test_work_of_another_queue_behind_such_a_signal_gets_the_failure(void **state)
{
    void *kernels, *signal, *work;
    gpusync_ticket ticket;
    gpusync_error error;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    commit_failing(&s, 0, 6, &kernels);
    signal = open_on(&s, 0);
    SUBMIT(s.q[0], BUFFERS(signal), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE);
    work = open_on(&s, 1);
    ticket = SUBMIT(s.q[1], WAITS(at(s.a, 1)), BUFFERS(work));
    finish(&s, 0);
    finish(&s, 1);
    assert_failed(s.q[1], ticket, 6);
    error = error_of(s.q[1], ticket);
    assert_string_equal(error.queue_label, "first");
    assert_well(s.q[1], finish_on(&s, 1)); /* the second queue has not the option */
    close_stage(&s);
}

static void test_work_of_another_queue_that_waits_for_a_later_ticket_gets_the_failure(void **state)
{
    void *first, *second, *work;
    gpusync_ticket later, ticket;
    uint64_t commits;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    commit_failing(&s, 0, 6, &first);
    later = commit_empty_to(s.q[0], &second);
    work = open_on(&s, 1);
    ticket = SUBMIT(s.q[1], WAITS(after(s.q[0], later)), BUFFERS(work), SIGNALS(at(s.a, 1)));
    commits = commits_so_far();
    finish(&s, 0);
    assert_failed(s.q[1], ticket, 6);
    assert_timeline_failed(s.a, 6);
    assert_int_equal(commits_so_far(), commits); /* it waited for the ticket on the host, and never runs */
    close_stage(&s);
}

/* Of ITEMS pieces of work two fail, and end in any order: both keep their own error, and what ends well takes that of the
   lower one, if both are known. */
static void check_lowest(bool submitted)
{
    unsigned order[ITEMS], k, i, low, high;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (low = 0; low < ITEMS; low++)
        for (high = low + 1; high < ITEMS; high++)
            for (k = 0; order_of(k, ITEMS, order); k++) {
                item items[ITEMS];
                unsigned sticks = ITEMS;
                for (i = 0; i < ITEMS; i++)
                    make_item(&s, &items[i], submitted && (i + low) % 2, i == low || i == high ? 10 + (long)i : 0);
                for (i = 0; i < ITEMS; i++) {
                    unsigned n = order[i];
                    finish_item(&items[n]);
                    if (n == low || n == high) assert_recorded(s.q[0], items[n].ticket, 10 + (long)n);
                    else if (n > sticks) assert_recorded(s.q[0], items[n].ticket, 10 + (long)sticks);
                    else assert_well(s.q[0], items[n].ticket);
                    if ((n == low || n == high) && n < sticks) sticks = n;
                }
                clear(&s);
            }
    close_stage(&s);
}

static void test_of_failed_commits_the_one_with_the_lowest_ticket_sticks(void **state)
{
    (void)state;
    check_lowest(false);
}

static void test_of_failed_commits_and_submissions_the_lowest_ticket_sticks(void **state)
{
    (void)state;
    check_lowest(true);
}

static void test_a_part_of_a_submission_that_fails_fails_the_signal_and_all_later_work(void **state)
{
    void *parts[3], *last;
    gpusync_ticket ticket, later;
    outcome told;
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    if (metal4_run()) parts[0] = open_failing(s.q[0], 8); /* one run: it fails as a whole */
    else parts[0] = buffer_of(s.q[0]);
    for (i = 1; i < 3; i++)
        parts[i] = i == 1 && !metal4_run() ? open_failing(s.q[0], 8) : OPEN(s.q[0], .label = "the culprit");
    ticket = SUBMIT(s.q[0], .command_buffers = parts, .command_buffer_count = 3, SIGNALS(at(s.a, 1), at(s.b, 1)),
                    TELL(&told));
    last = open_on(&s, 0);
    later = SUBMIT(s.q[0], BUFFERS(last), SIGNALS(at(s.c, 1)), .flags = SIGNALS_INSIDE);
    finish(&s, 0);
    assert_failed(s.q[0], ticket, 8);
    assert_told(&told, ticket, 8);
    assert_failed(s.q[0], later, 8);
    assert_timeline_failed(s.a, 8);
    assert_timeline_failed(s.b, 8);
    assert_timeline_failed(s.c, 8);
    assert_int_equal(value_of(s.d), 0);
    close_stage(&s);
}

/* What it waits for fails while the failure of earlier work sticks: it has a reason of its own. */
static void test_work_that_a_wait_fails_keeps_that_error(void **state)
{
    gpusync_ticket ticket, later;
    void *first, *work;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    SUBMIT(s.q[1], BUFFERS(open_failing(s.q[1], 31)), SIGNALS(at(s.a, 1)));
    commit_failing(&s, 0, 30, &first);
    work = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(work), SIGNALS(at(s.b, 1)));
    later = commit_on(&s, 0);
    softmetal_finish(first);
    finish(&s, 1);
    finish(&s, 0);
    assert_recorded(s.q[0], ticket, 31);
    assert_timeline_failed(s.b, 31);
    assert_recorded(s.q[0], later, 30);
    close_stage(&s);
}

static void test_strict_submissions_take_the_error(void **state)
{
    gpusync_ticket ticket;
    void *first, *second;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_failing(&s, 0, 5, &first);
    second = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(second), SIGNALS(at(s.a, 1)), .flags = GPUSYNC_STRICT);
    softmetal_finish(first);
    assert_open(s.q[0], ticket);
    softmetal_finish(second);
    assert_failed(s.q[0], ticket, 5);
    assert_timeline_failed(s.a, 5);
    close_stage(&s);
}

/* A barrier has no command buffer: what it waits for ends it. */
static void test_a_submission_without_work_takes_the_error(void **state)
{
    gpusync_ticket ticket;
    void *first, *elsewhere;
    outcome told;
    stage s;
    (void)state;
    NOT_ON_METAL4("there each submission has work");
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    memset(&told, 0, sizeof told);
    elsewhere = open_on(&s, 1);
    SUBMIT(s.q[1], BUFFERS(elsewhere), SIGNALS(at(s.a, 1)));
    commit_failing(&s, 0, 5, &first);
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)), TELL(&told));
    softmetal_finish(first);
    finish(&s, 1);
    finish(&s, 0);
    assert_told(&told, ticket, 5);
    assert_recorded(s.q[0], ticket, 5);
    assert_timeline_failed(s.b, 5);
    close_stage(&s);
}

/* -- held work --------------------------------------------------------------------------------------------------- */

static void test_held_work_ends_with_the_error_and_is_never_committed(void **state)
{
    enum { ALONE, BEHIND, SIGNALLING, LOOSE, FOR_A_TICKET, HELD };
    outcome told[HELD];
    gpusync_ticket tickets[HELD], busy;
    void *first, *buffers[HELD], *running;
    uint64_t commits;
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    memset(told, 0, sizeof told);
    busy = commit_empty_to(s.q[1], &running);
    commit_failing(&s, 0, 2, &first);
    for (i = 0; i < HELD; i++) buffers[i] = kept_buffer_of(s.q[0]);
    tickets[ALONE] = SUBMIT(s.q[0], WAITS(at(s.d, 1)), BUFFERS(buffers[ALONE]), SIGNALS(at(s.a, 1)), TELL(&told[ALONE]));
    tickets[BEHIND] = commit_to(s.q[0], buffers[BEHIND]);
    on_done(s.q[0], tickets[BEHIND], &told[BEHIND]);
    tickets[SIGNALLING] = SUBMIT(s.q[0], BUFFERS(buffers[SIGNALLING]), SIGNALS(at(s.b, 1)), TELL(&told[SIGNALLING]));
    tickets[LOOSE] = SUBMIT(s.q[0], WAITS(at(s.d, 2)), BUFFERS(buffers[LOOSE]), SIGNALS(at(s.c, 1)), TELL(&told[LOOSE]),
                            .flags = GPUSYNC_UNORDERED);
    tickets[FOR_A_TICKET] = SUBMIT(s.q[0], WAITS(after(s.q[1], busy)), BUFFERS(buffers[FOR_A_TICKET]),
                                   TELL(&told[FOR_A_TICKET]), .flags = GPUSYNC_UNORDERED);
    assert_int_equal(held_on(s.device, s.q[0]), HELD);
    commits = commits_so_far();
    softmetal_finish(first);
    for (i = 0; i < HELD; i++) {
        assert_recorded(s.q[0], tickets[i], 2);
        assert_told(&told[i], tickets[i], 2);
    }
    assert_timeline_failed(s.a, 2);
    assert_timeline_failed(s.b, 2);
    assert_timeline_failed(s.c, 2);
    softmetal_finish(running);
    assert_ok(gpusync_timeline_signal(s.d, 2)); /* what it waited for comes too late */
    assert_int_equal(commits_so_far(), commits);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    for (i = 0; i < HELD; i++) metal_release(buffers[i]);
    close_stage(&s);
}

/* ... also what was held before the work that fails. That ticket is the lowest that failed from then on. */
static void test_held_work_below_the_failure_ends_with_its_error(void **state)
{
    gpusync_ticket held, between, failed;
    void *second, *third, *open;
    gpusync_wait_options options;
    gpusync_error error;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    open = buffer_of(s.q[0]);
    held = SUBMIT(s.q[0], WAITS(at(s.d, 1)), NO_WORK(s.q[0]), .flags = GPUSYNC_UNORDERED);
    between = commit_empty_to(s.q[0], &second);
    failed = commit_failing(&s, 0, 3, &third);
    softmetal_finish(third);
    assert_recorded(s.q[0], held, 3);
    assert_recorded(s.q[0], failed, 3);
    softmetal_finish(second);
    assert_recorded(s.q[0], between, 3);
    memset(&options, 0, sizeof options);
    options.error = &error;
    assert_result(gpusync_wait_ex(s.q[0], GPUSYNC_EVERYTHING, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.ticket, held);
    assert_refuses(&s, open);
    assert_ok(either_discard(s.q[0], open));
    close_stage(&s);
}

static void test_held_work_that_a_submission_fails_is_never_committed(void **state)
{
    gpusync_ticket held;
    void *first;
    uint64_t commits;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    first = open_failing(s.q[0], 2);
    SUBMIT(s.q[0], BUFFERS(first));
    held = hold_on(s.q[0], s.d, 1, NULL);
    commits = commits_so_far();
    softmetal_finish(first);
    assert_failed(s.q[0], held, 2);
    assert_int_equal(commits_so_far(), commits);
    close_stage(&s);
}

static void finish_culprit(void *buffer) { softmetal_finish(buffer); }

/* The failure is found while work comes in that has to be held. The work is refused, or ends with the error: it is not left
   in the line, where no thread comes by. */
static void test_a_failure_that_is_found_before_work_is_in_the_line_is_seen_there(void **state)
{
    bool acted = true;
    unsigned taken = 0;
    int n;
    (void)state;
    for (n = 1; acted; n++) {
        gpusync_ticket ticket = 0;
        gpusync_result result;
        void *buffer, *culprit;
        stage s;
        open_sticky(&s, SOFTMETAL_MANUAL, 1);
        (void)commit_failing(&s, 0, 77, &culprit);
        buffer = open_on(&s, 0);
        must_return_within(20);
        probe_at_each(n, finish_culprit, culprit);
        result = TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffer), WAITS(at(s.a, 1)));
        acted = probe_has_acted();
        has_returned();
        if (!acted) softmetal_finish(culprit);
        if (result == GPUSYNC_OK) {
            taken++;
            assert_failed(s.q[0], ticket, 77); /* ended, though no value came */
        } else {
            assert_result(result, GPUSYNC_ERROR_EXECUTION);
            assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
        }
        close_stage(&s);
    }
    assert_true(taken > 1); /* the last, and one while which the failure was found */
}

/* The failure is that of a wait, of work that is held itself. */
static void test_held_work_behind_held_work_that_fails_is_never_committed(void **state)
{
    gpusync_ticket plain, submission;
    uint64_t commits;
    bool committed;
    outcome told;
    void *buffer;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    hold_on(s.q[0], s.a, 1, NULL);
    plain = commit_on(&s, 0);
    buffer = open_on(&s, 0);
    submission = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 1)), TELL(&told));
    commits = commits_so_far();
    fail_with_code_77(s.a);
    committed = commits_so_far() != commits;
    finish(&s, 0);
    assert_int_equal(error_of(s.q[0], plain).code, 77);
    assert_int_equal(error_of(s.q[0], submission).code, 77);
    assert_int_equal(error_at(s.b, 1).code, 77);
    assert_ended(&told, GPUSYNC_ERROR_EXECUTION);
    close_stage(&s);
    assert_false(committed);
}

/* The failure is that of a wait, of work that is held itself. The rest of the line ends with it, behind and before. */
static void test_held_work_that_fails_ends_all_that_is_held(void **state)
{
    gpusync_ticket before, failed, plain, submission;
    uint64_t commits;
    outcome told;
    void *buffer;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    before = hold_on(s.q[0], s.c, 1, NULL);
    failed = hold_on(s.q[0], s.a, 1, NULL);
    plain = commit_on(&s, 0);
    buffer = open_on(&s, 0);
    submission = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 1)), TELL(&told));
    commits = commits_so_far();
    fail_with_code_77(s.a);
    assert_int_equal(commits_so_far(), commits);
    assert_int_equal(error_of(s.q[0], before).code, 77);
    assert_int_equal(error_of(s.q[0], failed).code, 77);
    assert_int_equal(error_of(s.q[0], plain).code, 77);
    assert_int_equal(error_of(s.q[0], submission).code, 77);
    assert_int_equal(error_at(s.b, 1).code, 77);
    assert_ended(&told, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    close_stage(&s);
}

/* A failure of work without a label: work that takes the error, held or on the GPU, does not lend it its own. label: of the
   queue. */
static void check_the_labels_of_a_failure_without(const char *label)
{
    gpusync_ticket heirs[3], failed;
    gpusync_error error;
    void *failing;
    unsigned i;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    add_queue(&s, 1, label, true);
    failing = buffer_of(s.q[1]);
    softmetal_fail(failing, "TestDomain", 5, "it broke");
    failed = commit_to(s.q[1], failing);
    heirs[0] = SUBMIT(s.q[1], SIGNALS(at(s.a, 1)), NO_WORK(s.q[1]), .label = "later work");
    heirs[1] = SUBMIT(s.q[1], WAITS(at(s.d, 1)), NO_WORK(s.q[1]), .label = "held work");
    heirs[2] = SUBMIT(s.q[1], WAITS(after(s.q[1], failed)), NO_WORK(s.q[1]), .label = "work behind its ticket");
    finish(&s, 1);
    for (i = 0; i < LENGTH(heirs); i++) {
        error = error_of(s.q[1], heirs[i]);
        assert_int_equal(error.code, 5);
        assert_int_equal(error.ticket, heirs[i]);
        assert_string_equal(error.label, "");
        assert_string_equal(error.queue_label, label ? label : "");
    }
    close_stage(&s);
}

static void test_work_that_takes_the_error_takes_the_labels_that_it_has(void **state)
{
    (void)state;
    check_the_labels_of_a_failure_without("first");
    check_the_labels_of_a_failure_without(NULL);
}

/* Held work fails that was committed before the clear, which covers it: what came behind it after the clear goes on. */
static void test_held_work_from_before_the_clear_that_fails_ends_nothing_behind_it(void **state)
{
    gpusync_ticket failed, behind;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    failed = hold_on(s.q[0], s.a, 1, NULL);
    clear(&s);
    behind = commit_on(&s, 0);
    assert_int_equal(held_on(s.device, s.q[0]), 2);
    fail_with_code_77(s.a);
    finish(&s, 0);
    assert_int_equal(error_of(s.q[0], failed).code, 77);
    assert_well(s.q[0], behind);
    close_stage(&s);
}

static struct {
    gpusync_queue *queue;
    gpusync_result result;
    void *buffer;
} caller;

static void *call_for_room(void *argument)
{
    caller.result = gpusync_command_buffer(caller.queue, NULL, &caller.buffer);
    return argument;
}

/* Held work and an open buffer take all the room. A call waits for some of it when the second in the line fails: all of it
   ends, and the call goes on. */
static void test_a_call_for_room_does_not_hang_when_held_work_fails(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc desc = sticky_desc();
    void *open, *none = &none;
    pthread_t thread;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("no call for room");
    memset(&device_desc, 0, sizeof device_desc);
    memset(&caller, 0, sizeof caller);
    device_desc.spin = &no_spin;
    desc.max_command_buffer_count = 4;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, desc);
    open = buffer_of(s.q[0]);
    for (i = 0; i < 3; i++) { /* one waits, one waits for something else, one is behind them */
        const gpusync_point wait = at(i ? s.b : s.a, 1);
        commit_to(s.q[0], OPEN(s.q[0], .waits = &wait, .wait_count = i < 2));
    }
    assert_int_equal(rooms_taken(s.q[0]), 4);
    caller.queue = s.q[0];
    must_return_within(60);
    thread = start(call_for_room, NULL);
    await_sleepers(s.device, 1);
    fail_with_code_77(s.b);
    join(thread);
    assert_result(gpusync_command_buffer(s.q[0], NULL, &none), GPUSYNC_ERROR_EXECUTION); /* at once */
    has_returned();
    assert_null(none);
    assert_true(caller.result == GPUSYNC_OK || caller.result == GPUSYNC_ERROR_EXECUTION);
    if (caller.buffer) assert_ok(gpusync_command_buffer_discard(s.q[0], caller.buffer));
    assert_ok(gpusync_command_buffer_discard(s.q[0], open));
    assert_int_equal(rooms_taken(s.q[0]), 0);
    close_stage(&s);
}

/* The last submission waits for a value that no other work is to signal, so it fails when the timeline is destroyed. The
   first one is held for its signal, and the second for the first. */
static void test_held_work_that_waits_for_a_signal_behind_it_ends_with_the_timeline(void **state)
{
    gpusync_ticket first, second, last;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    first = SUBMIT(s.q[1], WAITS(at(s.a, 1)), NO_WORK(s.q[1]));
    second = SUBMIT(s.q[0], WAITS(after(s.q[1], first)), NO_WORK(s.q[0]));
    last = SUBMIT(s.q[0], WAITS(at(s.a, 1)), SIGNALS(at(s.a, 2)), NO_WORK(s.q[0]));
    take_down_timeline(&s, 0);
    assert_info(s.q[1], first, GPUSYNC_ERROR_DESTROYED);
    assert_info(s.q[0], second, GPUSYNC_ERROR_DESTROYED);
    assert_info(s.q[0], last, GPUSYNC_ERROR_DESTROYED);
    assert_well(s.q[0], finish_on(&s, 0)); /* that does not stick */
    close_stage(&s);
}

/* -- which errors stick ------------------------------------------------------------------------------------------ */

/* The queue refuses work, and the ticket has failed with this result and code. */
static void assert_stuck(stage *s, void *open, gpusync_ticket later, gpusync_result result, long code)
{
    gpusync_error error = error_of(s->q[0], later);
    assert_int_equal(error.code, code);
    assert_info(s->q[0], later, result);
    assert_refuses(s, open);
    assert_ok(either_discard(s->q[0], open));
}

static void test_the_failure_of_a_ticket_of_another_queue_sticks_to_work_that_waited_for_it(void **state)
{
    void *elsewhere, *work, *open;
    gpusync_ticket awaited, ticket, later;
    gpusync_error error;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    open = buffer_of(s.q[0]);
    awaited = commit_failing(&s, 1, 12, &elsewhere);
    work = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], WAITS(after(s.q[1], awaited)), BUFFERS(work));
    later = commit_on(&s, 0);
    finish(&s, 1);
    finish(&s, 0);
    assert_recorded(s.q[0], ticket, 12);
    assert_recorded(s.q[0], later, 12);
    error = error_of(s.q[0], later);
    assert_string_equal(error.queue_label, "second");
    assert_stuck(&s, open, later, GPUSYNC_ERROR_EXECUTION, 12);
    clear(&s);
    assert_well(s.q[0], finish_on(&s, 0));
    close_stage(&s);
}

static void test_the_failure_of_a_timeline_sticks_to_work_that_waited_for_it(void **state)
{
    gpusync_ticket later;
    void *open;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    open = buffer_of(s.q[0]);
    hold_on(s.q[0], s.a, 1, NULL);
    later = commit_on(&s, 0);
    fail_with_code_77(s.a);
    finish(&s, 0);
    assert_stuck(&s, open, later, GPUSYNC_ERROR_EXECUTION, 77);
    close_stage(&s);
}

static void test_a_timeline_that_had_failed_before_the_submission_sticks_too(void **state)
{
    gpusync_ticket ticket;
    void *open;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    open = buffer_of(s.q[0]);
    fail_with_code_77(s.a);
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), NO_WORK(s.q[0]));
    assert_stuck(&s, open, ticket, GPUSYNC_ERROR_EXECUTION, 77);
    close_stage(&s);
}

/* The second queue keeps one record. */
static void test_an_unknown_result_of_another_queue_sticks_to_work_that_waited_for_it(void **state)
{
    gpusync_queue_desc desc = queue_desc_of(0, 1);
    gpusync_ticket awaited, ticket;
    void *open;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    open = buffer_of(s.q[0]);
    s.q[1] = queue_of_kind(QUEUE_OF_GPUSYNC, s.device, &desc);
    s.metal[1] = gpusync_queue_metal(s.q[1]);
    awaited = fail_on(&s, 1, 1);
    fail_on(&s, 1, 2);
    assert_result(gpusync_poll(s.q[1], awaited), GPUSYNC_ERROR_RESULT_UNKNOWN);
    ticket = SUBMIT(s.q[0], WAITS(after(s.q[1], awaited)), NO_WORK(s.q[0]));
    assert_stuck(&s, open, ticket, GPUSYNC_ERROR_RESULT_UNKNOWN, 0);
    close_stage(&s);
}

/* Given up, here or elsewhere, or destroyed: the queue goes on, and so does the rest of its line. */
static void test_what_another_queue_gave_up_does_not_stick(void **state)
{
    gpusync_ticket awaited, ticket, later;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    awaited = hold_on(s.q[1], s.a, 1, NULL);
    ticket = SUBMIT(s.q[0], WAITS(after(s.q[1], awaited)), NO_WORK(s.q[0]));
    later = commit_on(&s, 0);
    assert_ok(gpusync_cancel_held(s.q[1]));
    finish(&s, 0);
    assert_info(s.q[0], ticket, GPUSYNC_ERROR_CANCELLED);
    assert_well(s.q[0], later);
    assert_well(s.q[0], finish_on(&s, 0));
    close_stage(&s);
}

static void test_a_timeline_that_is_destroyed_does_not_stick(void **state)
{
    gpusync_ticket held, later;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    held = hold_on(s.q[0], s.a, 1, NULL);
    later = commit_on(&s, 0);
    take_down_timeline(&s, 0);
    finish(&s, 0);
    assert_info(s.q[0], held, GPUSYNC_ERROR_DESTROYED);
    assert_well(s.q[0], later);
    assert_well(s.q[0], finish_on(&s, 0));
    close_stage(&s);
}

static void test_work_that_the_queue_gave_up_does_not_stick(void **state)
{
    gpusync_ticket held[2], next;
    outcome told;
    void *buffer;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    held[0] = hold_on(s.q[0], s.a, 1, &told);
    held[1] = commit_on(&s, 0);
    assert_ok(gpusync_cancel_held(s.q[0]));
    assert_info(s.q[0], held[0], GPUSYNC_ERROR_CANCELLED);
    assert_info(s.q[0], held[1], GPUSYNC_ERROR_CANCELLED);
    assert_ended(&told, GPUSYNC_ERROR_CANCELLED);
    next = commit_empty_to(s.q[0], &buffer);
    softmetal_finish(buffer);
    assert_well(s.q[0], next);
    assert_int_equal(stats_of(s.q[0]).failures, 0);
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    close_stage(&s);
}

/* It ends at once, and keeps its result when earlier work fails. */
static void test_work_that_was_given_up_keeps_its_result(void **state)
{
    gpusync_ticket failed, held, next;
    gpusync_error error;
    void *first, *second;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    failed = commit_failing(&s, 0, 2, &first);
    held = hold_on(s.q[0], s.a, 1, NULL);
    assert_ok(gpusync_cancel_held(s.q[0]));
    assert_info(s.q[0], held, GPUSYNC_ERROR_CANCELLED);
    next = commit_empty_to(s.q[0], &second);
    softmetal_finish(first);
    softmetal_finish(second);
    assert_recorded(s.q[0], failed, 2);
    assert_info(s.q[0], held, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(records_of(s.q[0], held, &error), 1);
    assert_recorded(s.q[0], next, 2);
    assert_int_equal(stats_of(s.q[0]).failures, 2);
    close_stage(&s);
}

/* -- new work is refused ----------------------------------------------------------------------------------------- */

static void test_a_refused_commit_changes_nothing_and_succeeds_after_the_clear(void **state)
{
    gpusync_ticket ticket = 99;
    gpusync_stats before, now;
    uint64_t commits;
    void *buffer;
    unsigned taken;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    buffer = kept_buffer_of(s.q[0]);
    fail_on(&s, 0, 1);
    before = stats_of(s.q[0]);
    commits = commits_so_far();
    taken = rooms_taken(s.q[0]);
    assert_result(either_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    now = stats_of(s.q[0]);
    assert_int_equal(now.commits, before.commits);
    assert_int_equal(now.failures, 1);
    assert_int_equal(commits_so_far(), commits);
    assert_int_equal(rooms_taken(s.q[0]), taken);
    assert_true(gpusync_is_idle(s.q[0]));
    clear(&s);
    ticket = commit_to(s.q[0], buffer);
    assert_int_equal(ticket, before.commits + 1);
    softmetal_finish(buffer);
    assert_well(s.q[0], ticket);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    metal_release(buffer);
    close_stage(&s);
}

static void test_a_refused_commit_takes_no_pointer_for_a_ticket(void **state)
{
    void *buffer;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    buffer = buffer_of(s.q[0]);
    fail_on(&s, 0, 1);
    assert_result(either_commit(s.q[0], buffer, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(either_submit(s.q[0], &(gpusync_submission){BUFFERS(buffer)}, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(either_discard(s.q[0], buffer));
    close_stage(&s);
}

static void test_a_refused_buffer_of_the_programs_own_is_not_kept(void **state)
{
    gpusync_ticket ticket;
    unsigned long owners;
    void *buffer;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_on(&s, 0, 1);
    buffer = their_buffer(s.q[0]);
    owners = owners_of(buffer);
    assert_result(either_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_EXECUTION);
    REFUSED(GPUSYNC_ERROR_EXECUTION, s.q[0], BUFFERS(buffer));
    assert_int_equal(owners_of(buffer), owners);
    if (!metal4_run()) assert_int_equal(rooms_taken(s.q[0]), 0);
    clear(&s);
    ticket = commit_to(s.q[0], buffer);
    softmetal_finish(buffer);
    assert_well(s.q[0], ticket);
    metal_release(buffer);
    close_stage(&s);
}

static void test_a_refused_submission_changes_nothing_and_succeeds_after_the_clear(void **state)
{
    gpusync_ticket ticket;
    uint64_t commits;
    outcome told;
    void *buffer;
    unsigned taken;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    buffer = kept_buffer_of(s.q[0]);
    fail_on(&s, 0, 1);
    commits = commits_so_far();
    taken = rooms_taken(s.q[0]);
    REFUSED(GPUSYNC_ERROR_EXECUTION, s.q[0], WAITS(at(s.a, 1)), BUFFERS(buffer), SIGNALS(at(s.b, 1)), TELL(&told));
    assert_int_equal(calls_of(&told), 0);
    assert_int_equal(commits_so_far(), commits);
    assert_int_equal(rooms_taken(s.q[0]), taken);
    assert_int_equal(stats_of(s.q[0]).held, 0);
    assert_int_equal(value_of(s.b), 0);
    assert_ok(gpusync_timeline_signal(s.b, 1)); /* nothing is to signal it */
    assert_int_equal(value_of(s.b), 1);
    clear(&s);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 2)), TELL(&told));
    finish(&s, 0);
    assert_well(s.q[0], ticket);
    assert_ended(&told, GPUSYNC_OK);
    assert_int_equal(value_of(s.b), 2);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    metal_release(buffer);
    close_stage(&s);
}

static void test_a_refused_commit_of_several_buffers_changes_nothing(void **state)
{
    gpusync_queue_desc desc = sticky_desc();
    gpusync_ticket ticket = 99;
    void *buffers[2];
    uint64_t commits;
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    s.q[1] = queue_of_kind(QUEUE_OF_METAL4, s.device, &desc); /* in both runs: gpusync_commit4 is for this kind */
    s.metal[1] = gpusync_queue_metal(s.q[1]);
    fail_on(&s, 1, 1);
    for (i = 0; i < 2; i++) {
        buffers[i] = buffer_of(s.q[1]);
        end_recording(buffers[i]);
    }
    commits = commits_so_far();
    assert_result(gpusync_commit4(s.q[1], buffers, 2, &ticket), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_int_equal(commits_so_far(), commits);
    assert_ok(gpusync_queue_clear_failure(s.q[1]));
    assert_ok(gpusync_commit4(s.q[1], buffers, 2, &ticket));
    finish(&s, 1);
    assert_well(s.q[1], ticket);
    close_stage(&s);
}

static void test_no_command_buffer_is_made_while_a_failure_sticks(void **state)
{
    gpusync_ticket ticket;
    void *open, *buffer = &buffer;
    uint64_t made;
    stage s;
    (void)state;
    NOT_ON_METAL4("the program makes them");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    open = buffer_of(s.q[0]);
    fail_on(&s, 0, 1);
    made = made_so_far();
    assert_result(gpusync_command_buffer(s.q[0], NULL, &buffer), GPUSYNC_ERROR_EXECUTION);
    assert_null(buffer);
    assert_int_equal(made_so_far(), made);
    assert_int_equal(rooms_taken(s.q[0]), 1);
    assert_ok(gpusync_encode_wait(s.q[0], open, at(s.a, 1))); /* an open one may be encoded into */
    assert_ok(gpusync_encode_signal(s.q[0], open, at(s.b, 1)));
    clear(&s);
    assert_ok(gpusync_commit(s.q[0], open, &ticket));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    softmetal_finish(open);
    assert_well(s.q[0], ticket);
    assert_int_equal(value_of(s.b), 1);
    assert_well(s.q[0], finish_on(&s, 0));
    close_stage(&s);
}

/* An open buffer that is to signal a value, and was refused in this way as a failure sticks. */
static void *refuse_signaller(stage *s, bool submitted, bool theirs)
{
    void *buffer = theirs ? their_buffer(s->q[0]) : buffer_of(s->q[0]);
    gpusync_ticket ticket;
    assert_ok(gpusync_encode_signal(s->q[0], buffer, at(s->a, 1)));
    fail_on(s, 0, 21);
    if (submitted) REFUSED(GPUSYNC_ERROR_EXECUTION, s->q[0], BUFFERS(buffer), SIGNALS(at(s->b, 1)));
    else assert_result(gpusync_commit(s->q[0], buffer, &ticket), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(value_of(s->a), 0); /* its signal is pending */
    assert_result(gpusync_timeline_signal(s->a, 1), GPUSYNC_ERROR_NOT_RISING);
    return buffer;
}

static void check_discard(bool submitted, bool theirs, bool cleared)
{
    value_job job;
    void *buffer;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    buffer = refuse_signaller(&s, submitted, theirs);
    value_job_start_spinning(&job, s.a, 1, SECONDS(20), &no_spin);
    await_sleepers(s.device, 1);
    if (cleared) clear(&s);
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
    assert_result(value_job_join(&job), GPUSYNC_ERROR_EXECUTION);
    assert_culprit(&job.error, 21);
    assert_timeline_failed(s.a, 21);
    assert_int_equal(value_of(s.b), 0);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    if (theirs) metal_release(buffer);
    close_stage(&s);
}

static void test_a_refused_buffer_that_is_discarded_fails_what_it_was_to_signal(void **state)
{
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    check_discard(false, false, false);
    check_discard(false, true, false);
}

static void test_a_buffer_of_a_refused_submission_that_is_discarded_fails_what_it_was_to_signal(void **state)
{
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    check_discard(true, false, false);
    check_discard(true, true, false);
}

static void test_a_refused_buffer_that_is_discarded_after_the_clear_fails_what_it_was_to_signal(void **state)
{
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    check_discard(false, false, true);
    check_discard(true, false, true);
}

static void check_commit_after_clear(bool submitted)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    buffer = refuse_signaller(&s, submitted, false);
    clear(&s);
    ticket = submitted ? SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.b, 1))) : commit_to(s.q[0], buffer);
    finish(&s, 0);
    assert_well(s.q[0], ticket);
    assert_int_equal(value_of(s.a), 1);
    assert_int_equal(value_of(s.b), submitted);
    /* The next one of the same slot was not refused: its signal is taken back, and does not fail. */
    buffer = buffer_of(s.q[0]);
    assert_ok(gpusync_encode_signal(s.q[0], buffer, at(s.a, 2)));
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
    assert_ok(gpusync_timeline_signal(s.a, 2));
    close_stage(&s);
}

static void test_a_refused_signal_is_made_by_a_commit_after_the_clear(void **state)
{
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    check_commit_after_clear(false);
    check_commit_after_clear(true);
}

static void test_a_buffer_that_was_not_refused_is_discarded_without_a_failure(void **state)
{
    void *before, *behind;
    stage s;
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    before = buffer_of(s.q[0]);
    behind = buffer_of(s.q[0]);
    assert_ok(gpusync_encode_signal(s.q[0], before, at(s.a, 1)));
    fail_on(&s, 0, 21);
    assert_ok(gpusync_encode_signal(s.q[0], behind, at(s.b, 1)));
    assert_ok(gpusync_command_buffer_discard(s.q[0], before));
    assert_ok(gpusync_command_buffer_discard(s.q[0], behind));
    assert_int_equal(value_of(s.a), 0);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_ok(gpusync_timeline_signal(s.b, 1));
    close_stage(&s);
}

static void test_a_refused_buffer_without_signals_is_discarded_quietly(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("nothing is discarded");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    buffer = buffer_of(s.q[0]);
    fail_on(&s, 0, 21);
    assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
    assert_int_equal(stats_of(s.q[0]).failures, 1);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    close_stage(&s);
}

/* Work that is held for the signal of a refused buffer stays held, until the buffer is committed or discarded. */
static void test_work_that_waits_for_a_refused_signal_stays_held(void **state)
{
    gpusync_ticket waits;
    void *buffer;
    bool discarded;
    stage s;
    int i;
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    for (i = 0; i < 2; i++) {
        discarded = i;
        open_sticky(&s, SOFTMETAL_MANUAL, 2);
        waits = SUBMIT(s.q[1], WAITS(at(s.a, 1)), NO_WORK(s.q[1]));
        buffer = refuse_signaller(&s, false, false);
        assert_open(s.q[1], waits);
        clear(&s);
        if (discarded) {
            assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
            assert_failed(s.q[1], waits, 21);
        } else {
            commit_to(s.q[0], buffer);
            finish(&s, 0);
            finish(&s, 1);
            assert_well(s.q[1], waits);
        }
        close_stage(&s);
    }
}

static void test_wrong_calls_are_told_so_also_while_a_failure_sticks(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    buffer = buffer_of(s.q[0]);
    fail_on(&s, 0, 1);
    assert_result(gpusync_commit(s.q[0], NULL, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_commit4(s.q[0], NULL, 1, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_submit(s.q[0], &(gpusync_submission){.command_buffer_count = 1}, &ticket),
                  GPUSYNC_ERROR_INVALID_ARGUMENT);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), .flags = 1u << 20);
    assert_ok(either_discard(s.q[0], buffer));
    close_stage(&s);
}

static void test_the_warm_up_of_a_queue_where_a_failure_sticks_says_so(void **state)
{
    gpusync_warmup_desc desc;
    gpusync_warmup *warmup;
    stage s;
    (void)state;
    NOT_ON_METAL4("no queue of a warm-up");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_on(&s, 0, 1);
    memset(&desc, 0, sizeof desc);
    desc.queue = s.q[0];
    assert_ok(gpusync_warmup_start(s.device, &desc, &warmup));
    assert_result(gpusync_warmup_wait(warmup, SECONDS(20)), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_int_equal(rooms_taken(s.q[0]), 0);
    close_stage(&s);
}

/* -- clear ------------------------------------------------------------------------------------------------------- */

static void test_clear_on_a_queue_without_the_option_is_an_invalid_argument(void **state)
{
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    assert_result(gpusync_queue_clear_failure(s.q[1]), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_queue_clear_failure(NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    close_stage(&s);
}

/* Work from before the clear fails after it: on record, returned for its ticket, and it does not stick. */
static void check_failure_from_before_the_clear(bool submitted, bool stuck)
{
    gpusync_ticket first = 0, old[3], next;
    void *buffers[3], *failing = NULL, *new;
    uint64_t failures;
    unsigned i;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    if (stuck) first = commit_failing(&s, 0, 3, &failing);
    for (i = 0; i < 3; i++) {
        buffers[i] = i == 1 ? open_failing(s.q[0], 8) : buffer_of(s.q[0]);
        old[i] = submitted ? SUBMIT(s.q[0], BUFFERS(buffers[i])) : commit_to(s.q[0], buffers[i]);
    }
    if (stuck) softmetal_finish(failing);
    failures = stats_of(s.q[0]).failures;
    assert_int_equal(failures, stuck);
    clear(&s);
    next = commit_empty_to(s.q[0], &new);
    softmetal_finish(buffers[1]);
    assert_recorded(s.q[0], old[1], 8);
    assert_int_equal(stats_of(s.q[0]).failures, failures + 1);
    softmetal_finish(new);
    assert_well(s.q[0], next);
    assert_well(s.q[0], finish_on(&s, 0)); /* the queue takes work */
    softmetal_finish(buffers[0]);
    softmetal_finish(buffers[2]);
    for (i = 0; i < 3; i += 2) { /* behind what was cleared, if anything was: never behind what came later */
        if (stuck) assert_recorded(s.q[0], old[i], 3);
        else assert_well(s.q[0], old[i]);
    }
    if (stuck) assert_recorded(s.q[0], first, 3);
    assert_well(s.q[0], finish_on(&s, 0));
    (void)!gpusync_queue_wait(s.q[0], 0);
    assert_ok(gpusync_queue_wait(s.q[0], 0)); /* told once */
    close_stage(&s);
}

static void test_work_from_before_the_clear_that_fails_later_does_not_stick(void **state)
{
    (void)state;
    check_failure_from_before_the_clear(false, true);
    check_failure_from_before_the_clear(true, true);
}

static void test_a_clear_without_a_failure_covers_what_was_committed(void **state)
{
    (void)state;
    check_failure_from_before_the_clear(false, false);
    check_failure_from_before_the_clear(true, false);
}

static void test_after_a_clear_work_in_flight_fails_and_new_work_does_not(void **state)
{
    gpusync_ticket old[2], new[2];
    outcome told[2];
    void *first, *buffers[2], *next;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(told, 0, sizeof told);
    commit_failing(&s, 0, 3, &first);
    old[0] = commit_empty_to(s.q[0], &buffers[0]);
    buffers[1] = open_on(&s, 0);
    old[1] = SUBMIT(s.q[0], BUFFERS(buffers[1]), SIGNALS(at(s.a, 1)), TELL(&told[0]), .flags = SIGNALS_INSIDE);
    softmetal_finish(first);
    clear(&s);
    new[0] = commit_empty_to(s.q[0], &next);
    softmetal_finish(next);
    assert_well(s.q[0], new[0]);
    next = open_on(&s, 0);
    new[1] = SUBMIT(s.q[0], BUFFERS(next), SIGNALS(at(s.b, 1)), TELL(&told[1]), .flags = SIGNALS_INSIDE);
    finish(&s, 0);
    assert_failed(s.q[0], old[0], 3);
    assert_failed(s.q[0], old[1], 3);
    assert_told(&told[0], old[1], 3);
    assert_timeline_failed(s.a, 3);
    assert_well(s.q[0], new[0]);
    assert_well(s.q[0], new[1]);
    assert_ended(&told[1], GPUSYNC_OK);
    assert_int_equal(value_of(s.b), 1);
    close_stage(&s);
}

/* ... in every order in which old work, and new work that fails and that ends well, may end. */
static void check_behind(bool submitted)
{
    unsigned order[ITEMS], k, i;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (k = 0; order_of(k, ITEMS, order); k++) {
        enum { OLD, OLD_TOO, NEW_FAILS, NEW };
        gpusync_ticket first;
        bool failed = false;
        item items[ITEMS];
        void *failing;
        first = commit_failing(&s, 0, 40, &failing);
        make_item(&s, &items[OLD], submitted, 0);
        make_item(&s, &items[OLD_TOO], false, 0);
        softmetal_finish(failing);
        clear(&s);
        make_item(&s, &items[NEW_FAILS], submitted, 41);
        make_item(&s, &items[NEW], false, 0);
        for (i = 0; i < ITEMS; i++) {
            finish_item(&items[order[i]]);
            switch (order[i]) {
            case NEW_FAILS:
                failed = true;
                assert_recorded(s.q[0], items[NEW_FAILS].ticket, 41);
                break;
            case NEW:
                if (failed) assert_recorded(s.q[0], items[NEW].ticket, 41);
                else assert_well(s.q[0], items[NEW].ticket);
                break;
            default: assert_recorded(s.q[0], items[order[i]].ticket, 40);
            }
        }
        assert_recorded(s.q[0], first, 40);
        clear(&s);
    }
    close_stage(&s);
}

static void test_work_behind_a_cleared_failure_takes_its_error_also_while_another_sticks(void **state)
{
    (void)state;
    check_behind(false);
    check_behind(true);
}

/* The log has room for one record. The error of the cleared failure is known until another sticks. */
static void check_record_that_is_gone(bool another)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc desc = sticky_desc();
    gpusync_ticket first, old, cancelled, next;
    void *failing, *buffer, *other;
    gpusync_error error;
    outcome told;
    stage s;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&told, 0, sizeof told);
    desc.error_log_count = 1;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, desc);
    first = commit_failing(&s, 0, 14, &failing);
    buffer = open_on(&s, 0);
    old = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)), TELL(&told));
    softmetal_finish(failing);
    clear(&s);
    if (another) {
        next = commit_failing(&s, 0, 15, &other);
        softmetal_finish(other);
        assert_failed(s.q[0], next, 15);
    } else { /* given-up work pushes the record out */
        cancelled = hold_on(s.q[0], s.d, 1, NULL);
        assert_ok(gpusync_cancel_held(s.q[0]));
        assert_info(s.q[0], cancelled, GPUSYNC_ERROR_CANCELLED);
    }
    assert_int_equal(stats_of(s.q[0]).failures_dropped, 1);
    assert_info(s.q[0], first, another ? GPUSYNC_ERROR_RESULT_UNKNOWN : GPUSYNC_ERROR_EXECUTION);
    finish(&s, 0);
    assert_ended(&told, GPUSYNC_ERROR_EXECUTION);
    error = error_of(s.q[0], old);
    assert_result(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.code, another ? 0 : 14);
    assert_int_equal(told.error.code, error.code);
    assert_result(error_at(s.a, 1).result, GPUSYNC_ERROR_EXECUTION);
    clear(&s);
    assert_well(s.q[0], finish_on(&s, 0));
    close_stage(&s);
}

static void test_work_behind_a_cleared_failure_takes_its_error_when_the_record_has_left_the_log(void **state)
{
    (void)state;
    check_record_that_is_gone(false);
    check_record_that_is_gone(true);
}

/* What was held when the failure came is over; what is held at the clear was not behind one. */
static void test_work_that_is_held_over_a_clear_goes_on(void **state)
{
    gpusync_ticket held, behind;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_on(&s, 0, 3);
    clear(&s);
    held = hold_on(s.q[0], s.d, 1, NULL);
    behind = commit_on(&s, 0);
    clear(&s);
    assert_ok(gpusync_timeline_signal(s.d, 1));
    finish(&s, 0);
    assert_well(s.q[0], held);
    assert_well(s.q[0], behind);
    close_stage(&s);
}

/* It was committed before the clear: its own failure does not stick, but that of later work ends it as all that is held. */
static void test_work_that_is_held_over_a_clear_ends_with_a_later_failure(void **state)
{
    gpusync_ticket held, failed;
    void *open;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    held = SUBMIT(s.q[0], WAITS(at(s.d, 1)), NO_WORK(s.q[0]), .flags = GPUSYNC_UNORDERED);
    open = buffer_of(s.q[0]);
    clear(&s);
    failed = fail_on(&s, 0, 4);
    assert_recorded(s.q[0], failed, 4);
    assert_recorded(s.q[0], held, 4);
    assert_refuses(&s, open);
    assert_ok(either_discard(s.q[0], open));
    close_stage(&s);
}

static void test_timelines_that_failed_stay_failed_after_a_clear(void **state)
{
    gpusync_ticket ticket;
    void *first;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    first = open_failing(s.q[0], 3);
    SUBMIT(s.q[0], BUFFERS(first), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE);
    finish(&s, 0);
    clear(&s);
    assert_timeline_failed(s.a, 3);
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), NO_WORK(s.q[0])); /* and so fails what waits for it */
    finish(&s, 0);
    assert_failed(s.q[0], ticket, 3);
    close_stage(&s);
}

/* Two ranges of tickets that failed, with a clear and good work in between. */
typedef struct ranges {
    stage stage;
    gpusync_ticket first[3], well, second[3];
    outcome told[6]; /* at the ends */
} ranges;

static void open_ranges(ranges *r, gpusync_queue_desc queue_desc)
{
    gpusync_device_desc device_desc;
    void *buffers[3];
    unsigned i, k;
    memset(r, 0, sizeof *r);
    memset(&device_desc, 0, sizeof device_desc);
    open_sticky_with(&r->stage, SOFTMETAL_MANUAL, 2, device_desc, queue_desc);
    for (k = 0; k < 2; k++) {
        gpusync_ticket *tickets = k ? r->second : r->first;
        for (i = 0; i < 3; i++) {
            buffers[i] = i ? buffer_of(r->stage.q[0]) : open_failing(r->stage.q[0], 30 + (long)k);
            tickets[i] = commit_to(r->stage.q[0], buffers[i]);
            on_done(r->stage.q[0], tickets[i], &r->told[3 * k + i]);
        }
        softmetal_finish(buffers[0]);
        clear(&r->stage);
        if (!k) {
            void *good;
            r->well = commit_empty_to(r->stage.q[0], &good);
            softmetal_finish(good);
        }
        for (i = 1; i < 3; i++) softmetal_finish(buffers[i]);
    }
}

static void test_two_failures_with_a_clear_in_between_have_tickets_of_their_own(void **state)
{
    unsigned i;
    ranges r;
    (void)state;
    open_ranges(&r, sticky_desc());
    for (i = 0; i < 3; i++) {
        assert_recorded(r.stage.q[0], r.first[i], 30);
        assert_recorded(r.stage.q[0], r.second[i], 31);
        assert_told(&r.told[i], r.first[i], 30);
        assert_told(&r.told[3 + i], r.second[i], 31);
    }
    assert_well(r.stage.q[0], r.well);
    assert_well(r.stage.q[0], finish_on(&r.stage, 0));
    close_stage(&r.stage);
}

static void test_callbacks_that_are_registered_later_are_told_the_error_of_their_range(void **state)
{
    outcome told[6];
    unsigned i;
    ranges r;
    (void)state;
    open_ranges(&r, sticky_desc());
    memset(told, 0, sizeof told);
    for (i = 0; i < 3; i++) {
        on_done(r.stage.q[0], r.first[i], &told[i]);
        on_done(r.stage.q[0], r.second[i], &told[3 + i]);
    }
    for (i = 0; i < 3; i++) {
        assert_told(&told[i], r.first[i], 30);
        assert_told(&told[3 + i], r.second[i], 31);
    }
    close_stage(&r.stage);
}

static void test_work_of_other_queues_gets_the_error_of_the_range_that_it_waits_for(void **state)
{
    gpusync_ticket tickets[7];
    unsigned i;
    ranges r;
    (void)state;
    open_ranges(&r, sticky_desc());
    for (i = 0; i < 3; i++) {
        tickets[i] = SUBMIT(r.stage.q[1], WAITS(after(r.stage.q[0], r.first[i])), NO_WORK(r.stage.q[1]));
        tickets[3 + i] = SUBMIT(r.stage.q[1], WAITS(after(r.stage.q[0], r.second[i])), NO_WORK(r.stage.q[1]));
    }
    tickets[6] = SUBMIT(r.stage.q[1], WAITS(after(r.stage.q[0], r.well)), NO_WORK(r.stage.q[1]));
    finish(&r.stage, 1);
    for (i = 0; i < 3; i++) {
        assert_failed(r.stage.q[1], tickets[i], 30);
        assert_failed(r.stage.q[1], tickets[3 + i], 31);
    }
    assert_well(r.stage.q[1], tickets[6]);
    close_stage(&r.stage);
}

static void test_a_wait_for_several_points_gets_the_error_of_the_range(void **state)
{
    gpusync_wait_options options;
    gpusync_point points[3];
    gpusync_error error;
    size_t which = 99;
    ranges r;
    (void)state;
    open_ranges(&r, sticky_desc());
    memset(&options, 0, sizeof options);
    options.error = &error;
    points[0] = after(r.stage.q[0], r.well);
    points[1] = after(r.stage.q[0], r.second[2]);
    points[2] = after(r.stage.q[0], r.first[1]);
    assert_result(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ALL, 0, &options, &which), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(which, 1);
    assert_culprit(&error, 31);
    assert_int_equal(error.ticket, r.second[2]);
    close_stage(&r.stage);
}

static void test_a_log_without_room_for_both_failures_never_says_that_old_failed_work_went_well(void **state)
{
    gpusync_queue_desc desc = sticky_desc();
    unsigned i;
    ranges r;
    (void)state;
    desc.error_log_count = 1;
    open_ranges(&r, desc);
    for (i = 0; i < 3; i++) {
        assert_info(r.stage.q[0], r.first[i], GPUSYNC_ERROR_RESULT_UNKNOWN);
        assert_told(&r.told[i], r.first[i], 30);
        assert_told(&r.told[3 + i], r.second[i], 31);
        if (i == 1) assert_info(r.stage.q[0], r.second[i], GPUSYNC_ERROR_RESULT_UNKNOWN);
        else assert_failed(r.stage.q[0], r.second[i], 31); /* the one that stuck last, and the last record */
    }
    assert_well(r.stage.q[0], r.well);
    assert_int_equal(stats_of(r.stage.q[0]).failures_dropped, 5);
    assert_result(gpusync_queue_wait(r.stage.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    close_stage(&r.stage);
}

static void test_an_old_ticket_of_the_range_is_told_when_the_ring_has_gone_on(void **state)
{
    unsigned i;
    ranges r;
    (void)state;
    open_ranges(&r, sticky_desc());
    for (i = 0; i < 600; i++) finish_on(&r.stage, 0);
    for (i = 0; i < 3; i++) {
        assert_result(gpusync_poll(r.stage.q[0], r.first[i]), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(error_of(r.stage.q[0], r.first[i]).code, 30);
        assert_int_equal(error_of(r.stage.q[0], r.second[i]).code, 31);
    }
    assert_ok(gpusync_poll(r.stage.q[0], r.well));
    close_stage(&r.stage);
}

/* -- how failures are reported ----------------------------------------------------------------------------------- */

static struct {
    long lines;
    char last[512];
} logged;

static void note_line(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    if (level != GPUSYNC_LOG_ERROR) return;
    logged.lines++;
    snprintf(logged.last, sizeof logged.last, "%s", text);
}

static void test_a_failure_and_all_that_takes_it_have_a_record_and_a_line_each(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_ticket first;
    gpusync_error error;
    uint64_t cursor = 0;
    void *buffer;
    unsigned i;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&logged, 0, sizeof logged);
    device_desc.log = note_line;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, sticky_desc());
    finish_on(&s, 0);
    first = commit_failing(&s, 0, 16, &buffer);
    for (i = 0; i < 4; i++) commit_on(&s, 0);
    hold_on(s.q[0], s.a, 1, NULL);
    finish(&s, 0);
    for (i = 0; i < 6; i++) {
        assert_ok(gpusync_next_error(s.q[0], &cursor, &error));
        assert_culprit(&error, 16);
        assert_int_equal(error.ticket, i == 0 ? first : i == 1 ? first + 5 : first + i - 1); /* held work ends first */
    }
    assert_result(gpusync_next_error(s.q[0], &cursor, &error), GPUSYNC_NOT_READY);
    assert_int_equal(logged.lines, 6);
    assert_non_null(strstr(logged.last, "it broke"));
    assert_int_equal(stats_of(s.q[0]).failures, 6);
    assert_int_equal(stats_of(s.q[0]).failures_dropped, 0);
    assert_int_equal(stats_of(s.q[0]).completions, 7);
    clear(&s);
    fail_on(&s, 0, 17);
    assert_ok(gpusync_next_error(s.q[0], &cursor, &error));
    assert_culprit(&error, 17);
    assert_int_equal(logged.lines, 7);
    assert_int_equal(stats_of(s.q[0]).failures, 7);
    close_stage(&s);
}

/* Of one queue, which each of them clears when it has dealt with what it has read: neither takes a failure from the
   other, whichever comes first. */
static void test_two_owners_with_cursors_of_their_own_each_learn_of_every_failure(void **state)
{
    uint64_t cursors[2] = {0, GPUSYNC_FROM_NOW};
    gpusync_error error;
    unsigned round, owner;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    assert_result(gpusync_next_error(s.q[0], &cursors[1], &error), GPUSYNC_NOT_READY);
    for (round = 0; round < 4; round++) {
        gpusync_ticket failed, takes;
        void *failing, *buffer;
        failed = commit_failing(&s, 0, 50 + (long)round, &failing);
        takes = commit_empty_to(s.q[0], &buffer);
        softmetal_finish(failing);
        for (owner = 0; owner < 2; owner++) {
            unsigned who = (owner + round) % 2;
            if (owner) softmetal_finish(buffer); /* between them, and behind a clear */
            assert_ok(gpusync_next_error(s.q[0], &cursors[who], &error));
            assert_culprit(&error, 50 + (long)round);
            assert_int_equal(error.ticket, failed);
            clear(&s);
        }
        for (owner = 0; owner < 2; owner++) {
            assert_ok(gpusync_next_error(s.q[0], &cursors[owner], &error));
            assert_culprit(&error, 50 + (long)round);
            assert_int_equal(error.ticket, takes);
            assert_result(gpusync_next_error(s.q[0], &cursors[owner], &error), GPUSYNC_NOT_READY);
        }
    }
    close_stage(&s);
}

/* ... and the error that it fills is that of the failure, whose ticket it names. */
static void assert_everything_failed(stage *s, gpusync_ticket first, long code)
{
    const gpusync_point everything = gpusync_at_ticket(s->q[0], GPUSYNC_EVERYTHING);
    gpusync_wait_options options;
    gpusync_error error;
    size_t which;
    memset(&options, 0, sizeof options);
    options.error = &error;
    assert_result(gpusync_queue_wait(s->q[0], 0), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait_many(&everything, 1, GPUSYNC_WAIT_ALL, 0, NULL, &which), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait_ex(s->q[0], GPUSYNC_EVERYTHING, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_culprit(&error, code);
    assert_int_equal(error.ticket, first);
}

static void test_every_wait_for_everything_returns_the_error_until_the_clear(void **state)
{
    gpusync_ticket first;
    int i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    first = fail_on(&s, 0, 18);
    for (i = 0; i < 3; i++) assert_everything_failed(&s, first, 18);
    clear(&s);
    assert_ok(gpusync_queue_wait(s.q[0], 0)); /* earlier ones have told */
    finish_on(&s, 0);
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    close_stage(&s);
}

/* The limit of the wait is a ticket below the failure: that wait does not include it. */
static void test_a_wait_for_everything_tells_no_failure_of_work_that_came_later(void **state)
{
    gpusync_device_desc device_desc;
    wait_job job;
    void *first, *failing;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.spin = &no_spin;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, sticky_desc());
    commit_empty_to(s.q[0], &first);
    wait_job_start(&job, s.q[0], GPUSYNC_EVERYTHING, SECONDS(20));
    await_sleepers(s.device, 1);
    commit_failing(&s, 0, 18, &failing);
    softmetal_finish(failing);
    softmetal_finish(first);
    assert_ok(wait_job_join(&job));
    assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    close_stage(&s);
}

static void test_a_failure_that_no_wait_told_before_the_clear_is_told_once_after_it(void **state)
{
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_on(&s, 0, 18);
    clear(&s);
    finish_on(&s, 0);
    assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    assert_ok(gpusync_device_wait(s.device, 0, NULL));
    close_stage(&s);
}

static void test_old_work_that_ends_after_the_clear_is_told_once_by_waits_for_everything(void **state)
{
    void *first, *second;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_failing(&s, 0, 18, &first);
    softmetal_finish(first);
    assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    clear(&s);
    commit_failing(&s, 0, 19, &first);
    commit_empty_to(s.q[0], &second);
    softmetal_finish(first);
    clear(&s);
    assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_TIMEOUT);
    softmetal_finish(second);
    assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    close_stage(&s);
}

/* -- in callbacks and hooks -------------------------------------------------------------------------------------- */

static void clear_and_commit(outcome *o)
{
    void *buffer = NULL;
    gpusync_ticket ticket = 0;
    answer(o, gpusync_queue_clear_failure(o->queue));
    answer(o, either_buffer(o->queue, NULL, &buffer));
    answer(o, either_commit(o->queue, buffer, &ticket));
    o->ticket = ticket;
}

static void test_a_callback_may_clear_the_failure_and_commit(void **state)
{
    gpusync_ticket later;
    outcome told;
    void *first, *second;
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    told.queue = s.q[0];
    told.then = clear_and_commit;
    on_done(s.q[0], commit_failing(&s, 0, 3, &first), &told);
    later = commit_empty_to(s.q[0], &second);
    softmetal_finish(first);
    await_call(&told);
    assert_int_equal(told.answered, 3);
    for (i = 0; i < 3; i++) assert_ok(told.answers[i]);
    finish(&s, 0);
    assert_failed(s.q[0], later, 3);
    assert_well(s.q[0], told.ticket);
    close_stage(&s);
}

static struct {
    gpusync_queue *queue;
    void *buffer; /* open */
    gpusync_result refused, cleared, committed;
    gpusync_ticket ticket;
} in_log;

static void clear_in_log(void *user, gpusync_log_level level, const char *text)
{
    gpusync_ticket ticket;
    (void)user;
    (void)level;
    (void)text;
    if (in_log.ticket) return;
    in_log.refused = either_commit(in_log.queue, in_log.buffer, &ticket);
    in_log.cleared = gpusync_queue_clear_failure(in_log.queue);
    in_log.committed = either_commit(in_log.queue, in_log.buffer, &in_log.ticket);
}

static void test_the_log_function_may_clear_the_failure_and_commit(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_ticket later;
    void *first, *second;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&in_log, 0, sizeof in_log);
    device_desc.log = clear_in_log;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, sticky_desc());
    in_log.queue = s.q[0];
    in_log.buffer = buffer_of(s.q[0]);
    commit_failing(&s, 0, 3, &first);
    later = commit_empty_to(s.q[0], &second);
    softmetal_finish(first);
    assert_result(in_log.refused, GPUSYNC_ERROR_EXECUTION);
    assert_ok(in_log.cleared);
    assert_ok(in_log.committed);
    finish(&s, 0);
    assert_failed(s.q[0], later, 3);
    assert_well(s.q[0], in_log.ticket);
    close_stage(&s);
}

static struct {
    gate entered, leave;
    unsigned lines;
} held_up;

/* A hook that stays inside at its first call until the test lets it go on. */
static void stay_in_log(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
    if (COUNT(&held_up.lines)) return;
    gate_wait(&held_up.entered);
    gate_wait(&held_up.leave);
}

static void *finish_it(void *buffer)
{
    softmetal_finish(buffer);
    return NULL;
}

/* The finder of the failure is in the log hook. Later work ends meanwhile, held work has ended, and new work is refused. */
static void check_log_hook(bool submitted)
{
    gpusync_device_desc device_desc;
    gpusync_ticket failed, takes, held;
    void *first, *second, *open;
    pthread_t finisher;
    stage s;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&held_up, 0, sizeof held_up);
    device_desc.log = stay_in_log;
    gate_init(&held_up.entered, 2);
    gate_init(&held_up.leave, 2);
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, sticky_desc());
    first = open_failing(s.q[0], 3);
    open = buffer_of(s.q[0]);
    failed = submitted ? SUBMIT(s.q[0], BUFFERS(first)) : commit_to(s.q[0], first);
    takes = commit_empty_to(s.q[0], &second);
    held = hold_on(s.q[0], s.a, 1, NULL);
    finisher = start(finish_it, first);
    gate_wait(&held_up.entered);
    softmetal_finish(second);
    assert_failed(s.q[0], failed, 3);
    assert_failed(s.q[0], takes, 3);
    assert_refuses(&s, open);
    assert_ok(either_discard(s.q[0], open));
    gate_wait(&held_up.leave);
    join(finisher);
    assert_failed(s.q[0], held, 3);
    gate_destroy(&held_up.entered);
    gate_destroy(&held_up.leave);
    close_stage(&s);
}

static void test_no_ticket_waits_for_a_thread_that_is_in_the_log_hook(void **state)
{
    (void)state;
    check_log_hook(false);
    check_log_hook(true);
}

static struct {
    gpusync_queue *queue;
    gpusync_ticket failed;
    void *awaited;
    bool found, cleared;
} meanwhile;

/* The submission has passed the check for a failure that sticks when one does: it asks how far the work is that it waits
   for. It has its ticket, and is about to be held, when the failure is cleared. */
static void fail_and_clear(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (!meanwhile.found && phase == SOFTMETAL_AFTER && object == meanwhile.awaited && !strcmp(selector, "status")) {
        meanwhile.found = true;
        must(gpusync_poll(meanwhile.queue, meanwhile.failed) == GPUSYNC_ERROR_EXECUTION, "it has not failed");
    } else if (meanwhile.found && !meanwhile.cleared && strncmp(selector, "notifyListener", 14) == 0) {
        meanwhile.cleared = true;
        must(gpusync_queue_clear_failure(meanwhile.queue) == GPUSYNC_OK, "not cleared");
    }
}

static void test_work_that_is_held_while_the_failure_is_cleared_takes_the_error(void **state)
{
    gpusync_timeline *imported;
    gpusync_ticket awaited, ticket;
    void *event, *first, *work;
    stage s;
    (void)state;
    NOT_ON_METAL4("no poll finds a failure");
    memset(&meanwhile, 0, sizeof meanwhile);
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    imported = timeline_over(s.device, &event);
    meanwhile.queue = s.q[0];
    meanwhile.failed = commit_failing(&s, 0, 3, &first);
    softmetal_complete(first);
    awaited = commit_empty_to(s.q[1], &meanwhile.awaited);
    work = open_on(&s, 0);
    softmetal_set_message_hook(fail_and_clear, NULL);
    ticket = SUBMIT(s.q[0], WAITS(after(s.q[1], awaited), at(imported, 1)), BUFFERS(work), .flags = GPUSYNC_STRICT);
    softmetal_set_message_hook(NULL, NULL);
    assert_true(meanwhile.found && meanwhile.cleared);
    finish(&s, 1);
    assert_ok(gpusync_timeline_signal(imported, 1));
    finish(&s, 0);
    assert_failed(s.q[0], ticket, 3);
    assert_well(s.q[0], finish_on(&s, 0));
    assert_ok(gpusync_timeline_destroy(imported));
    metal_release(event);
    close_stage(&s);
}

/* -- destroy, and the loss of the device ------------------------------------------------------------------------- */

static void test_destroy_waits_for_all_and_tells_each(void **state)
{
    enum { LONG, WELL, FAILS, HELD, KINDS };
    outcome told[KINDS];
    gpusync_ticket tickets[KINDS];
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_REAL, 1);
    memset(told, 0, sizeof told);
    for (i = 0; i < HELD; i++) {
        void *buffer = i == FAILS ? open_failing(s.q[0], 3) : buffer_of(s.q[0]);
        if (i == LONG) softmetal_set_duration(buffer, MS(20));
        tickets[i] = i == WELL ? SUBMIT(s.q[0], BUFFERS(buffer)) : commit_to(s.q[0], buffer);
    }
    tickets[HELD] = hold_on(s.q[0], s.d, 1, NULL);
    for (i = 0; i < KINDS; i++) on_done(s.q[0], tickets[i], &told[i]);
    must_return_within(60);
    take_down_queue(&s, 0, false);
    has_returned();
    assert_ended(&told[LONG], GPUSYNC_OK);
    assert_ended(&told[WELL], GPUSYNC_OK);
    assert_told(&told[FAILS], tickets[FAILS], 3);
    assert_int_equal(calls_of(&told[HELD]), 1);
    if (told[HELD].result != GPUSYNC_ERROR_CANCELLED) assert_told(&told[HELD], tickets[HELD], 3); /* it came first */
    close_stage(&s);
}

static void test_destroy_after_a_failure_gives_up_refused_and_open_buffers(void **state)
{
    gpusync_error error;
    stage s;
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    refuse_signaller(&s, false, false);
    take_down_queue(&s, 0, false);
    error = error_at(s.a, 1);
    assert_result(error.result, GPUSYNC_ERROR_CANCELLED);
    close_stage(&s);
}

/* Its work in flight keeps it. The calls that come later are told, and what refused and other command buffers were to
   signal is given up in the call, before anything that was dispatched has come. */
static void test_a_queue_that_goes_says_destroyed_and_gives_up_all_that_is_refused(void **state)
{
    gpusync_timeline *timelines[3];
    void *failing, *busy, *buffers[3], *metal;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_failing(&s, 0, 21, &failing);
    commit_empty_to(s.q[0], &busy);
    timelines[0] = s.a;
    timelines[1] = s.b;
    timelines[2] = s.c;
    for (i = 0; i < 3; i++) {
        buffers[i] = buffer_of(s.q[0]);
        assert_ok(gpusync_encode_signal(s.q[0], buffers[i], at(timelines[i], 1)));
    }
    softmetal_finish(failing);
    metal = metal_retain(s.metal[0]);
    REFUSED(GPUSYNC_ERROR_EXECUTION, s.q[0], .command_buffers = buffers, .command_buffer_count = 2);
    assert_int_equal(value_of(s.a) + value_of(s.b) + value_of(s.c), 0);
    softmetal_set_dispatch_threads(0);
    assert_ok(gpusync_queue_destroy_later(s.q[0], NULL, NULL));
    for (i = 0; i < 3; i++) {
        gpusync_error error = error_at(timelines[i], 1);
        assert_result(error.result, GPUSYNC_ERROR_CANCELLED);
    }
    assert_result(gpusync_queue_clear_failure(s.q[0]), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_commit(s.q[0], busy, NULL), GPUSYNC_ERROR_DESTROYED);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    s.q[0] = NULL;
    softmetal_finish_queue(metal);
    metal_release(metal);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(softmetal_live("queue"), 0);
    close_stage(&s);
}

/* A GPU that hangs has some of the work. All that had not ended is told DESTROYED, whatever failed before, or would have
   failed it. */
static void check_destroy_now(bool failed_before)
{
    enum { HUNG, ENDED_COMMIT, ENDED_SUBMISSION, FAILED, IN_FLIGHT, SUBMITTED, FAILS_LATER, HELD, KINDS };
    gpusync_ticket tickets[KINDS];
    void *buffers[KINDS];
    outcome told[KINDS], complete[KINDS], ticket_of_it;
    void *metal, *event;
    gpusync_ticket waits;
    unsigned i;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    memset(told, 0, sizeof told);
    memset(complete, 0, sizeof complete);
    memset(&ticket_of_it, 0, sizeof ticket_of_it);
    for (i = 0; i < KINDS; i++) {
        bool fails = (i == FAILED && failed_before) || i == FAILS_LATER;
        bool plain = i == HUNG || i == ENDED_COMMIT || i == IN_FLIGHT || i == FAILED;
        gpusync_point wait = at(s.d, 1), signal = at(s.c, 1);
        buffers[i] = fails ? open_failing(s.q[0], 50 + (long)i) : buffer_of(s.q[0]);
        tickets[i] = plain ? commit_to(s.q[0], buffers[i])
                           : SUBMIT(s.q[0], BUFFERS(buffers[i]), TELL(&complete[i]), .waits = &wait,
                                    .wait_count = i == HELD, .signals = &signal, .signal_count = i == SUBMITTED);
        on_done(s.q[0], tickets[i], &told[i]);
        if (i == ENDED_COMMIT || i == ENDED_SUBMISSION) softmetal_finish(buffers[i]);
    }
    waits = SUBMIT(s.q[1], WAITS(after(s.q[0], tickets[IN_FLIGHT])), NO_WORK(s.q[1]), TELL(&ticket_of_it));
    if (failed_before) softmetal_finish(buffers[FAILED]); /* and it ends what is held */
    metal = metal_retain(s.metal[0]);
    event = metal_retain(gpusync_timeline_metal(s.c, NULL));
    must_return_within(60);
    orphan_queue(&s, 0);
    has_returned();
    drop_queue_that_stays(metal); /* it has a signal in flight */
    drop_what_stays(event);
    metal_release(metal);
    metal_release(event);
    for (i = 0; i < KINDS; i++) {
        gpusync_result result = i == ENDED_COMMIT || i == ENDED_SUBMISSION ? GPUSYNC_OK
                                : failed_before && (i == FAILED || i == HELD) ? GPUSYNC_ERROR_EXECUTION
                                                                            : GPUSYNC_ERROR_DESTROYED;
        assert_ended(&told[i], result);
        if (result == GPUSYNC_ERROR_EXECUTION) assert_culprit(&told[i].error, 50 + FAILED);
        if (result) assert_int_equal(told[i].error.ticket, tickets[i]);
        if (result == GPUSYNC_ERROR_DESTROYED) assert_int_equal(told[i].error.failure, GPUSYNC_FAILURE_CANCELLED);
        if (complete[i].calls) assert_ended(&complete[i], result);
    }
    assert_result(error_at(s.c, 1).result, GPUSYNC_ERROR_DESTROYED);
    assert_ended(&ticket_of_it, GPUSYNC_ERROR_DESTROYED);
    assert_info(s.q[1], waits, GPUSYNC_ERROR_DESTROYED);
    close_stage(&s);
}

static void test_destroy_now_gives_destroyed_to_all_that_had_not_ended(void **state)
{
    (void)state;
    check_destroy_now(false);
}

static void test_destroy_now_gives_destroyed_whatever_failed_before(void **state)
{
    (void)state;
    check_destroy_now(true);
}

static void test_destroy_later_tells_each_and_lets_the_device_go(void **state)
{
    outcome told[3];
    void *first, *second, *third, *metal;
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    softmetal_let_timers_run(true);
    memset(told, 0, sizeof told);
    on_done(s.q[0], commit_failing(&s, 0, 3, &first), &told[0]);
    on_done(s.q[0], commit_empty_to(s.q[0], &second), &told[1]);
    on_done(s.q[0], commit_empty_to(s.q[0], &third), &told[2]);
    softmetal_finish(second);
    metal = metal_retain(s.metal[0]);
    assert_ok(gpusync_queue_destroy_later(s.q[0], NULL, NULL));
    s.q[0] = NULL;
    softmetal_finish_queue(metal);
    metal_release(metal);
    for (i = 0; i < 3; i++) await_call(&told[i]);
    assert_ok(told[1].result);
    for (i = 0; i < 3; i += 2) assert_culprit(&told[i].error, 3);
    while (gpusync_device_destroy(s.device) == GPUSYNC_ERROR_IN_USE) {
        for (i = 0; i < STAGE_TIMELINES; i++)
            if (s.t[i]) take_down_timeline(&s, i);
        sched_yield();
    }
    assert_int_equal(s.rig.memory.live, 0);
    drop_recordings();
}

/* What has ended well is well on a lost device, whatever goes on before it. */
static void test_the_loss_of_the_device_leaves_ended_work_its_result(void **state)
{
    enum { IN_FLIGHT, ENDED_COMMIT, ENDED_SUBMISSION, HELD, LOSES, KINDS };
    gpusync_device_desc device_desc;
    gpusync_ticket tickets[KINDS];
    void *buffers[KINDS];
    outcome told[KINDS];
    wait_job job;
    unsigned i;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.spin = &no_spin;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 2, device_desc, sticky_desc());
    memset(told, 0, sizeof told);
    for (i = 0; i < KINDS; i++) {
        gpusync_point wait = at(s.d, 1);
        unsigned q = i == LOSES; /* that work is on the other queue */
        buffers[i] = buffer_of(s.q[q]);
        if (i == LOSES) fail_with_the_device(buffers[i]);
        tickets[i] = i == ENDED_SUBMISSION || i == HELD
                         ? SUBMIT(s.q[q], BUFFERS(buffers[i]), .waits = &wait, .wait_count = i == HELD)
                         : commit_to(s.q[q], buffers[i]);
        if (i < LOSES) on_done(s.q[q], tickets[i], &told[i]);
    }
    softmetal_finish(buffers[ENDED_COMMIT]);
    softmetal_finish(buffers[ENDED_SUBMISSION]);
    wait_job_start(&job, s.q[0], tickets[IN_FLIGHT], SECONDS(60));
    await_sleepers(s.device, 1);
    softmetal_finish(buffers[LOSES]);
    await_call(&told[HELD]); /* at once; the GPU goes on with the other */
    assert_int_equal(calls_of(&told[IN_FLIGHT]), 0);
    assert_result(gpusync_poll(s.q[0], tickets[IN_FLIGHT]), GPUSYNC_NOT_READY);
    probe_give_up_lost(s.device);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
    for (i = 0; i < LOSES; i++) {
        gpusync_result result = i == IN_FLIGHT || i == HELD ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK;
        await_call(&told[i]);
        assert_result(told[i].result, result);
        assert_result(gpusync_wait(s.q[0], tickets[i], 0), result);
    }
    assert_ok(gpusync_queue_clear_failure(s.q[0]));
    must_return_within(60);
    orphan_queue(&s, 0);
    has_returned();
    for (i = 0; i < LOSES; i++) assert_int_equal(calls_of(&told[i]), 1);
    close_stage(&s);
}

static void test_on_a_lost_device_a_failure_still_fails_later_work(void **state)
{
    gpusync_ticket tickets[3];
    void *buffers[3], *fatal;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    tickets[0] = commit_failing(&s, 0, 3, &buffers[0]);
    tickets[1] = commit_empty_to(s.q[0], &buffers[1]);
    tickets[2] = SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.a, 1)));
    commit_empty_to(s.q[1], &fatal);
    fail_with_the_device(fatal);
    softmetal_finish(fatal);
    softmetal_finish(buffers[0]);
    softmetal_finish(buffers[1]);
    assert_result(gpusync_wait(s.q[0], tickets[0], 0), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait(s.q[0], tickets[1], 0), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(s.q[0], tickets[2]), GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(gpusync_is_idle(s.q[0]));
    close_stage(&s);
}

/* -- without memory ---------------------------------------------------------------------------------------------- */

static void test_without_memory_no_queue_is_made_and_nothing_is_left(void **state)
{
    gpusync_queue_desc desc = sticky_desc();
    gpusync_queue *queue = NULL;
    gpusync_result result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    long live, k;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    desc.metal4 = metal4_run();
    live = s.rig.memory.live;
    for (k = 1; result != GPUSYNC_OK; k++) {
        s.rig.memory.fail_at = k;
        result = gpusync_queue_create(s.device, &desc, &queue);
        s.rig.memory.fail_at = 0;
        if (result == GPUSYNC_OK) break;
        assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_null(queue);
        assert_int_equal(s.rig.memory.live, live);
    }
    assert_int_equal(k, 3); /* the queue and the ring */
    s.q[1] = queue;
    s.metal[1] = gpusync_queue_metal(queue);
    fail_on(&s, 1, 3);
    assert_ok(gpusync_queue_clear_failure(queue));
    assert_well(queue, finish_on(&s, 1));
    close_stage(&s);
}

/* The allocator fails, from its k-th call on or there alone, while the first failure and what follows end: the log has
   room for one record then. */
static void check_without_memory(long k, bool after_it, bool submitted)
{
    gpusync_ticket tickets[4], next;
    void *buffers[4], *open;
    uint64_t cursor = 0;
    gpusync_error error;
    unsigned i;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    open = buffer_of(s.q[0]);
    for (i = 0; i < 4; i++) {
        buffers[i] = i ? buffer_of(s.q[0]) : open_failing(s.q[0], 3);
        tickets[i] = i == 3               ? SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(buffers[i]), SIGNALS(at(s.b, 1)))
                     : submitted || i == 2 ? SUBMIT(s.q[0], BUFFERS(buffers[i]))
                                           : commit_to(s.q[0], buffers[i]);
    }
    s.rig.memory.fail_at = k;
    s.rig.memory.fail_after = after_it;
    for (i = 0; i < 3; i++) softmetal_finish(buffers[i]);
    assert_failed(s.q[0], tickets[0], 3); /* kept in any case */
    for (i = 1; i < 4; i++) {
        gpusync_result result = gpusync_poll(s.q[0], tickets[i]);
        assert_true(result == GPUSYNC_ERROR_EXECUTION || (k == 1 && result == GPUSYNC_ERROR_RESULT_UNKNOWN));
        assert_info(s.q[0], tickets[i], result);
    }
    assert_timeline_failed(s.b, 3);
    while (gpusync_next_error(s.q[0], &cursor, &error) == GPUSYNC_OK) assert_culprit(&error, 3);
    assert_int_equal(cursor, 4);
    for (i = 0; i < 2; i++) assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(stats_of(s.q[0]).failures, 4);
    assert_refuses(&s, open);
    clear(&s);
    assert_failed(s.q[0], tickets[0], 3);
    s.rig.memory.fail_at = 0;
    s.rig.memory.fail_after = false;
    next = commit_to(s.q[0], open);
    finish(&s, 0);
    assert_well(s.q[0], next);
    next = fail_on(&s, 0, 4);
    assert_failed(s.q[0], next, 4);
    close_stage(&s);
}

static void test_without_memory_for_the_log_the_failure_sticks_all_the_same(void **state)
{
    long k;
    (void)state;
    for (k = 1; k <= 3; k++) {
        check_without_memory(k, false, false);
        check_without_memory(k, true, false);
        check_without_memory(k, false, true);
        check_without_memory(k, true, true);
    }
}

/* -- random programs, and a model of them ------------------------------------------------------------------------ */

#define MOST_TICKETS 24u
#define DRAFTS 4u

enum { WELL = 0, GIVEN_UP = -1 }; /* how a ticket ended; above: the code of its failure */

typedef struct model_ticket {
    bool held, loose;
    bool dropped; /* it was held when it ended */
    bool freed;   /* what it waits for has come: it is held, if at all, by work before it */
    bool ended;
    long fails;   /* with this code, by itself */
    long behind;  /* the code of a cleared failure, which it takes */
    long code;
} model_ticket;

typedef struct model {
    model_ticket t[MOST_TICKETS];
    unsigned count, failures, failed[MOST_TICKETS]; /* tickets that failed or were given up, in that order */
    unsigned records;
    bool stuck;
    unsigned lowest, cleared; /* tickets, from 1 on */
    long code;                /* of the failure that sticks, or stuck last */
} model;

/* The whole of the rule: how a ticket that ends now does so. */
static void end_in_model(model *m, unsigned n, long code)
{
    model_ticket *t = &m->t[n - 1];
    if (code == WELL && t->behind) code = t->behind;
    else if (code == WELL && m->stuck && n > m->lowest) code = m->code;
    t->ended = true;
    t->dropped = t->held || code == GIVEN_UP;
    t->held = false;
    t->code = code;
    if (code == WELL) return;
    m->failed[m->records++] = n;
    if (code == GIVEN_UP) return;
    m->failures++;
    if (n <= m->cleared || (m->stuck && n > m->lowest)) return;
    m->stuck = true;
    m->lowest = n;
    m->code = code;
}

static void end_held(model *m, long code)
{
    unsigned i, loose;
    for (loose = 0; loose < 2; loose++) /* first the line, then what does not stand in it */
        for (i = 0; i < m->count; i++)
            if (m->t[i].held && m->t[i].loose == loose) end_in_model(m, i + 1, code);
}

static void clear_model(model *m)
{
    unsigned i;
    for (i = m->lowest; m->stuck && i < m->count; i++)
        if (!m->t[i].ended && !m->t[i].behind) m->t[i].behind = m->code;
    m->stuck = false;
    m->cleared = m->count;
}

static bool any_held(const model *m)
{
    unsigned i;
    for (i = 0; i < m->count && (!m->t[i].held || m->t[i].loose); i++) {}
    return i < m->count;
}

/* Held work goes in its order, what is unordered by itself. */
static void let_go(model *m)
{
    bool stopped = false;
    unsigned i;
    for (i = 0; i < m->count; i++) {
        model_ticket *t = &m->t[i];
        if (!t->held) continue;
        if (t->freed && (t->loose || !stopped)) t->held = false;
        else if (!t->loose) stopped = true;
    }
}

/* What is played beside the model. */
typedef enum piece_kind { COMMITS, SUBMITS, TRACKS } piece_kind;
typedef struct piece {
    piece_kind kind;
    void *buffers[2]; /* NULL: finished */
    unsigned count;
    bool shown[2];             /* the status tells of the end, and the handler is still to come */
    gpusync_timeline *signals; /* its value 1; NULL: nothing */
    uint64_t waits;            /* for this value of `go`; 0: for nothing */
    bool loose, refused;
    long fails;
    outcome told; /* of the ticket */
} piece;

typedef struct play {
    model model;
    piece pieces[MOST_TICKETS], drafts[DRAFTS];
    unsigned draft_count;
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *go; /* what held work waits for */
    uint64_t value;       /* of it */
    long codes;
    uint64_t seed, random;
} play;

static unsigned draw(play *p, unsigned below)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(p->random >> 33) % below;
}

static void must_be(const play *p, bool good, const char *what)
{
    if (good) return;
    print_error("seed %llu: %s\n", (unsigned long long)p->seed, what);
    fail();
}

/* An open command buffer. NULL: the queue gives none. */
static void *open_piece(play *p, const piece *d, bool fails)
{
    gpusync_command_buffer_desc desc;
    gpusync_result result;
    void *buffer = NULL;
    memset(&desc, 0, sizeof desc);
    desc.label = "the culprit";
    result = either_buffer(p->queue, &desc, &buffer);
    must_be(p, result == (p->model.stuck && !metal4_run() ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK), "a command buffer");
    if (buffer && fails) softmetal_fail(buffer, "TestDomain", d->fails, "it broke");
    return buffer;
}

/* Work that is not committed yet, perhaps with a wait for `go` and with a signal. */
static void play_draft(play *p)
{
    piece *d = &p->drafts[p->draft_count];
    unsigned i, bad;
    memset(d, 0, sizeof *d);
    d->kind = draw(p, 2) ? SUBMITS : COMMITS;
    d->count = d->kind == SUBMITS && !metal4_run() ? 1 + draw(p, 2) : 1;
    d->fails = draw(p, 5) == 0 ? 100 + ++p->codes : 0;
    bad = draw(p, d->count);
    for (i = 0; i < d->count; i++)
        if ((d->buffers[i] = open_piece(p, d, d->fails && i == bad)) == NULL) return;
    p->draft_count++;
    d->loose = d->kind == SUBMITS && draw(p, 4) == 0;
    if (metal4_run() ? d->kind == SUBMITS && draw(p, 3) == 0 : draw(p, 3) == 0) d->waits = p->value + 1;
    if (d->waits && !metal4_run()) assert_ok(gpusync_encode_wait(p->queue, d->buffers[0], at(p->go, d->waits)));
    if (d->kind == COMMITS && metal4_run()) return;
    if (draw(p, 2)) d->signals = timeline_new(p->device);
    if (d->signals && !metal4_run())
        assert_ok(gpusync_encode_signal(p->queue, d->buffers[d->count - 1], at(d->signals, 1)));
}

static void drop_draft(play *p, unsigned n)
{
    p->drafts[n] = p->drafts[--p->draft_count];
}

static void play_discard(play *p)
{
    unsigned n = draw(p, p->draft_count), i;
    piece *d = &p->drafts[n];
    uint64_t value;
    for (i = 0; i < d->count; i++) assert_ok(either_discard(p->queue, d->buffers[i]));
    if (d->signals) {
        bool failed = d->refused && !metal4_run();
        must_be(p, (gpusync_timeline_query(d->signals, &value) != GPUSYNC_OK) == failed, "a discarded signal");
        if (failed) must_be(p, error_at(d->signals, 1).code == p->model.code, "the error of a discarded signal");
        assert_ok(gpusync_timeline_destroy(d->signals));
    }
    drop_draft(p, n);
}

static void enter_model(play *p, const piece *from, gpusync_ticket ticket)
{
    model *m = &p->model;
    piece *made = &p->pieces[m->count];
    model_ticket *t = &m->t[m->count];
    *made = *from;
    memset(t, 0, sizeof *t);
    t->fails = made->fails;
    t->loose = made->loose;
    t->freed = made->waits <= p->value;
    if (made->kind != TRACKS) t->held = !t->freed || (!t->loose && any_held(m));
    must_be(p, ticket == ++m->count, "another number");
    on_done(p->queue, ticket, &made->told);
}

static void play_commit(play *p)
{
    unsigned n = draw(p, p->draft_count);
    piece *d = &p->drafts[n];
    gpusync_submission submission;
    gpusync_point wait = at(p->go, d->waits), signal = at(d->signals, 1);
    gpusync_ticket ticket;
    gpusync_result result;
    memset(&submission, 0, sizeof submission);
    submission.waits = &wait;
    submission.wait_count = metal4_run() && d->waits;
    submission.signals = &signal;
    submission.signal_count = metal4_run() && d->signals;
    submission.command_buffers = d->buffers;
    submission.command_buffer_count = d->count;
    submission.flags = d->loose ? GPUSYNC_UNORDERED : 0;
    if (d->kind == SUBMITS) result = either_submit(p->queue, &submission, &ticket);
    else result = either_commit(p->queue, d->buffers[0], &ticket);
    must_be(p, result == (p->model.stuck ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK), "work is refused, or is not");
    d->refused = d->refused || result != GPUSYNC_OK;
    if (result != GPUSYNC_OK) return;
    enter_model(p, d, ticket);
    drop_draft(p, n);
}

/* A failure that sticks does not refuse it. */
static void play_track(play *p)
{
    piece made;
    gpusync_ticket ticket;
    memset(&made, 0, sizeof made);
    made.kind = TRACKS;
    made.count = 1;
    made.fails = draw(p, 4) == 0 ? 100 + ++p->codes : 0;
    made.buffers[0] = metal_queue_command_buffer(gpusync_queue_metal(p->queue));
    metal_set_label(made.buffers[0], "the culprit");
    if (made.fails) softmetal_fail(made.buffers[0], "TestDomain", made.fails, "it broke");
    assert_ok(gpusync_track(p->queue, made.buffers[0], &ticket));
    enter_model(p, &made, ticket);
    if (draw(p, 4) == 0) {
        assert_ok(gpusync_untrack(p->queue, ticket));
        end_in_model(&p->model, (unsigned)ticket, GIVEN_UP);
        p->pieces[ticket - 1].buffers[0] = NULL;
    } else {
        metal_commit(made.buffers[0]);
    }
    metal_release(made.buffers[0]);
}

/* Some command buffer ends: its handler runs, or its status tells. */
static void play_end(play *p)
{
    model *m = &p->model;
    unsigned n = draw(p, m->count), k = draw(p, 2);
    piece *on = &p->pieces[n];
    model_ticket *t = &m->t[n];
    if (t->held || t->dropped || !on->buffers[k]) return;
    if (softmetal_what_is_due(on->buffers[k]) < SOFTMETAL_COMPLETE_DUE) return; /* behind one with the same event */
    if (!on->shown[k] && !metal4_run() && draw(p, 3) == 0) {
        softmetal_complete(on->buffers[k]);
        on->shown[k] = true;
    } else {
        softmetal_finish(on->buffers[k]);
        on->buffers[k] = NULL;
    }
    if (t->ended || (on->buffers[0] && !on->shown[0]) || (on->buffers[1] && !on->shown[1])) return;
    assert_true(gpusync_poll(p->queue, n + 1) != GPUSYNC_NOT_READY); /* finds it, if no handler has told */
    end_in_model(m, n + 1, t->fails);
    if (m->stuck) end_held(m, m->code);
}

static gpusync_result result_of(const model_ticket *t)
{
    return t->code == GIVEN_UP ? GPUSYNC_ERROR_CANCELLED : t->code ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
}

static void play_go(play *p)
{
    unsigned i;
    assert_ok(gpusync_timeline_signal(p->go, ++p->value));
    for (i = 0; i < p->model.count; i++) p->model.t[i].freed = p->pieces[i].waits <= p->value;
    let_go(&p->model);
}

/* Compares all that can be asked. */
static void check_play(play *p)
{
    model *m = &p->model;
    gpusync_result all;
    gpusync_stats stats;
    unsigned i, done = 0, ended = 0;
    uint64_t value = 9;
    for (i = 0; i < m->count; i++) {
        long code = m->t[i].code;
        gpusync_result got = gpusync_poll(p->queue, i + 1);
        must_be(p, got == (m->t[i].ended ? result_of(&m->t[i]) : GPUSYNC_NOT_READY), "another result");
        if (code > 0) must_be(p, error_of(p->queue, i + 1).code == code, "another error");
        if (done == i && m->t[i].ended) done++;
        ended += m->t[i].ended;
    }
    must_be(p, m->count == 0 || gpusync_is_done(p->queue, done), "is_done");
    must_be(p, !gpusync_is_done(p->queue, done + 1), "is_done too early");
    stats = stats_of(p->queue);
    must_be(p, stats.commits == m->count && stats.completions == ended, "another count of ends");
    must_be(p, stats.failures == m->failures, "another count of failures");
    all = gpusync_poll(p->queue, GPUSYNC_EVERYTHING);
    if (done < m->count) must_be(p, all == GPUSYNC_NOT_READY, "everything has not ended");
    else if (m->stuck) must_be(p, all == GPUSYNC_ERROR_EXECUTION, "everything is well, and a failure sticks");
    for (i = 0; i < m->count; i++) {
        gpusync_timeline *timeline = p->pieces[i].signals;
        if (!timeline) continue;
        must_be(p, (gpusync_timeline_query(timeline, &value) != GPUSYNC_OK) == (m->t[i].code != WELL), "another timeline");
        must_be(p, value == (m->t[i].ended && m->t[i].code == WELL), "another value");
    }
    for (i = 0; i < p->draft_count; i++) {
        if (!p->drafts[i].signals) continue;
        must_be(p, gpusync_timeline_query(p->drafts[i].signals, &value) == GPUSYNC_OK && value == 0, "an open signal");
    }
}

/* Each ticket's callback has been told once, and each failure is on record once, as the model says. */
static void check_told(const play *p)
{
    gpusync_error error;
    uint64_t cursor = 0;
    unsigned i;
    assert_true(softmetal_dispatched(SECONDS(20)));
    for (i = 0; i < p->model.count; i++) {
        const outcome *told = &p->pieces[i].told;
        const model_ticket *t = &p->model.t[i];
        must_be(p, calls_so_far(told) == 1 && told->result == result_of(t), "a callback is told otherwise");
        must_be(p, t->code <= 0 || (told->error.code == t->code && told->error.ticket == i + 1), "a callback's error");
    }
    for (i = 0; gpusync_next_error(p->queue, &cursor, &error) == GPUSYNC_OK; i++) {
        must_be(p, i < p->model.records && error.ticket == p->model.failed[i], "another record");
        must_be(p, error.result == result_of(&p->model.t[error.ticket - 1]), "another result on record");
    }
    must_be(p, i == p->model.records, "too few records");
}

static void play_something(play *p)
{
    bool room = p->model.count < MOST_TICKETS;
    switch (draw(p, 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        if (p->draft_count < DRAFTS) play_draft(p);
        break;
    case 4:
    case 5:
    case 6:
        if (room && p->draft_count) play_commit(p);
        break;
    case 7:
        if (room && !metal4_run()) play_track(p);
        break;
    case 8:
        if (p->draft_count && draw(p, 2)) play_discard(p);
        break;
    case 9: play_go(p); break;
    case 10:
        if (draw(p, 2)) break;
        assert_ok(gpusync_cancel_held(p->queue));
        end_held(&p->model, GIVEN_UP);
        break;
    case 11:
        assert_ok(gpusync_queue_clear_failure(p->queue));
        clear_model(&p->model);
        break;
    default:
        if (p->model.count) play_end(p);
        break;
    }
}

/* Ends with everything finished. */
static void play_program(gpusync_device *device, uint64_t seed)
{
    static play p;
    gpusync_queue_desc desc = sticky_desc();
    unsigned step, i, k;
    memset(&p, 0, sizeof p);
    p.device = device;
    p.queue = queue_of_kind(QUEUE_OF_GPUSYNC, device, &desc);
    p.go = timeline_new(device);
    p.seed = p.random = seed;
    draw(&p, 2);
    for (step = 0; step < 60; step++) {
        play_something(&p);
        check_play(&p);
        if (step % 16 == 15) free(report_of(device)); /* in every state */
    }
    while (p.draft_count) play_discard(&p);
    play_go(&p);
    for (k = 0, i = 0; i < p.model.count; i++) k += p.model.t[i].ended;
    while (k < p.model.count) {
        play_end(&p);
        check_play(&p);
        for (k = 0, i = 0; i < p.model.count; i++) k += p.model.t[i].ended;
    }
    softmetal_finish_queue(gpusync_queue_metal(p.queue)); /* handlers that are still to come */
    check_told(&p);
    assert_ok(gpusync_queue_destroy(p.queue));
    for (i = 0; i < p.model.count; i++) assert_ok(gpusync_timeline_destroy(p.pieces[i].signals));
    assert_ok(gpusync_timeline_destroy(p.go));
    drop_recordings();
}

static void test_random_programs_end_as_a_model_says(void **state)
{
    const char *asked = getenv("STICKY_SEED");
    uint64_t seed, last = asked ? strtoull(asked, NULL, 10) : 2000 / SLOW;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (seed = asked ? last : 1; seed <= last; seed++) play_program(s.device, seed);
    close_stage(&s);
}

/* -- threads ----------------------------------------------------------------------------------------------------- */

#define THREADS 4u
#define EACH (400u / (SLOW > 1 ? 4 : 1))

typedef struct racer {
    gpusync_queue *queue;
    unsigned number, *running;
    gpusync_ticket tickets[EACH];
    void *buffers[EACH]; /* +1 */
    long refused;
} racer;

/* Commits; one in sixteen fails. Asks and waits for some of it meanwhile. */
static void *race(void *argument)
{
    racer *r = (racer *)argument;
    unsigned i;
    for (i = 0; i < EACH; i++) {
        gpusync_command_buffer_desc desc;
        gpusync_result result;
        void *buffer = NULL;
        memset(&desc, 0, sizeof desc);
        desc.label = "the culprit";
        while ((result = either_buffer(r->queue, &desc, &buffer)) == GPUSYNC_ERROR_EXECUTION) {
            COUNT(&r->refused);
            sched_yield();
        }
        must(result == GPUSYNC_OK, "no command buffer");
        r->buffers[i] = metal_retain(buffer);
        if ((i + r->number) % 16 == 0)
            softmetal_fail(buffer, "TestDomain", 1000 + (long)(r->number * EACH + i), "it broke");
        while ((result = either_commit(r->queue, buffer, &r->tickets[i])) == GPUSYNC_ERROR_EXECUTION) {
            COUNT(&r->refused);
            sched_yield();
        }
        must(result == GPUSYNC_OK, "not committed");
        if (i % 8 == 0) (void)!gpusync_poll(r->queue, r->tickets[i]);
        if (i % 16 == 1) must(gpusync_wait(r->queue, r->tickets[i], SECONDS(60)) != GPUSYNC_TIMEOUT, "a wait timed out");
    }
    __atomic_fetch_sub(r->running, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void test_threads_that_commit_fail_wait_and_clear_agree_on_every_ticket(void **state)
{
    static racer racers[THREADS];
    static void *by_ticket[THREADS * EACH + 1];
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc = sticky_desc();
    pthread_t threads[THREADS];
    unsigned running = THREADS, i, k;
    uint64_t failures = 0;
    gpusync_error error;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(racers, 0, sizeof racers);
    queue_desc.error_log_count = THREADS * EACH;
    open_sticky_with(&s, SOFTMETAL_REAL, 1, device_desc, queue_desc);
    for (i = 0; i < THREADS; i++) {
        racers[i].queue = s.q[0];
        racers[i].number = i;
        racers[i].running = &running;
        threads[i] = start(race, &racers[i]);
    }
    while (GET(&running)) {
        clear(&s);
        sched_yield();
    }
    for (i = 0; i < THREADS; i++) join(threads[i]);
    (void)!gpusync_queue_wait(s.q[0], SECONDS(60));
    assert_true(gpusync_is_idle(s.q[0]));
    for (i = 0; i < THREADS; i++)
        for (k = 0; k < EACH; k++) by_ticket[racers[i].tickets[k]] = racers[i].buffers[k];
    for (i = 1; i <= THREADS * EACH; i++) {
        gpusync_result result = gpusync_poll(s.q[0], i);
        assert_non_null(by_ticket[i]);
        if (status_of(by_ticket[i]) != COMPLETED) assert_result(result, GPUSYNC_ERROR_EXECUTION);
        if (result == GPUSYNC_OK) continue;
        assert_result(result, GPUSYNC_ERROR_EXECUTION);
        error = error_of(s.q[0], i);
        assert_in_range(error.code, 1000, 1000 + THREADS * EACH - 1);
        /* The failure is that of a command buffer with no later ticket. */
        k = (unsigned)(error.code - 1000);
        assert_in_range(racers[k / EACH].tickets[k % EACH], 1, i);
        failures++;
    }
    assert_int_equal(stats_of(s.q[0]).failures, failures);
    assert_int_equal(stats_of(s.q[0]).completions, THREADS * EACH);
    for (i = 1; i <= THREADS * EACH; i++) metal_release(by_ticket[i]);
    close_stage(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commits_end_in_any_order),
        cmocka_unit_test(test_submissions_and_commits_end_in_any_order),
        cmocka_unit_test(test_a_value_is_reached_while_earlier_work_goes_on),
        cmocka_unit_test(test_polls_find_ends_in_any_order),
        cmocka_unit_test(test_the_trace_tells_each_end_once_with_the_result_of_the_ticket),
        cmocka_unit_test(test_gpusync_track_is_allowed),
        cmocka_unit_test(test_gpusync_track_is_allowed_while_a_failure_sticks),
        cmocka_unit_test(test_unordered_work_does_not_line_up),
        cmocka_unit_test(test_a_failure_fails_work_behind_it_that_ends_well_later),
        cmocka_unit_test(test_work_behind_a_failure_that_ended_well_before_it_was_found_stays_well),
        cmocka_unit_test(test_a_poll_that_finds_the_failure_first_fails_work_behind_it),
        cmocka_unit_test(test_a_failure_that_the_sweep_finds_sticks),
        cmocka_unit_test(test_500_commits_behind_a_failure_take_its_error),
        cmocka_unit_test(test_500_submissions_behind_a_failure_take_its_error),
        cmocka_unit_test(test_work_that_the_device_has_runs_to_its_end_though_its_ticket_fails),
        cmocka_unit_test(test_a_waiter_for_a_signal_behind_failed_work_gets_the_failure),
        cmocka_unit_test(test_without_the_option_a_signal_behind_failed_work_hides_the_failure),
        cmocka_unit_test(test_work_of_another_queue_behind_such_a_signal_gets_the_failure),
        cmocka_unit_test(test_work_of_another_queue_that_waits_for_a_later_ticket_gets_the_failure),
        cmocka_unit_test(test_of_failed_commits_the_one_with_the_lowest_ticket_sticks),
        cmocka_unit_test(test_of_failed_commits_and_submissions_the_lowest_ticket_sticks),
        cmocka_unit_test(test_a_part_of_a_submission_that_fails_fails_the_signal_and_all_later_work),
        cmocka_unit_test(test_work_that_a_wait_fails_keeps_that_error),
        cmocka_unit_test(test_strict_submissions_take_the_error),
        cmocka_unit_test(test_a_submission_without_work_takes_the_error),
        cmocka_unit_test(test_held_work_ends_with_the_error_and_is_never_committed),
        cmocka_unit_test(test_held_work_below_the_failure_ends_with_its_error),
        cmocka_unit_test(test_held_work_that_a_submission_fails_is_never_committed),
        cmocka_unit_test(test_held_work_behind_held_work_that_fails_is_never_committed),
        cmocka_unit_test(test_a_failure_that_is_found_before_work_is_in_the_line_is_seen_there),
        cmocka_unit_test(test_held_work_that_fails_ends_all_that_is_held),
        cmocka_unit_test(test_work_that_takes_the_error_takes_the_labels_that_it_has),
        cmocka_unit_test(test_held_work_from_before_the_clear_that_fails_ends_nothing_behind_it),
        cmocka_unit_test(test_a_call_for_room_does_not_hang_when_held_work_fails),
        cmocka_unit_test(test_held_work_that_waits_for_a_signal_behind_it_ends_with_the_timeline),
        cmocka_unit_test(test_the_failure_of_a_ticket_of_another_queue_sticks_to_work_that_waited_for_it),
        cmocka_unit_test(test_the_failure_of_a_timeline_sticks_to_work_that_waited_for_it),
        cmocka_unit_test(test_a_timeline_that_had_failed_before_the_submission_sticks_too),
        cmocka_unit_test(test_an_unknown_result_of_another_queue_sticks_to_work_that_waited_for_it),
        cmocka_unit_test(test_what_another_queue_gave_up_does_not_stick),
        cmocka_unit_test(test_a_timeline_that_is_destroyed_does_not_stick),
        cmocka_unit_test(test_work_that_the_queue_gave_up_does_not_stick),
        cmocka_unit_test(test_work_that_was_given_up_keeps_its_result),
        cmocka_unit_test(test_a_refused_commit_changes_nothing_and_succeeds_after_the_clear),
        cmocka_unit_test(test_a_refused_commit_takes_no_pointer_for_a_ticket),
        cmocka_unit_test(test_a_refused_buffer_of_the_programs_own_is_not_kept),
        cmocka_unit_test(test_a_refused_submission_changes_nothing_and_succeeds_after_the_clear),
        cmocka_unit_test(test_a_refused_commit_of_several_buffers_changes_nothing),
        cmocka_unit_test(test_no_command_buffer_is_made_while_a_failure_sticks),
        cmocka_unit_test(test_a_refused_buffer_that_is_discarded_fails_what_it_was_to_signal),
        cmocka_unit_test(test_a_buffer_of_a_refused_submission_that_is_discarded_fails_what_it_was_to_signal),
        cmocka_unit_test(test_a_refused_buffer_that_is_discarded_after_the_clear_fails_what_it_was_to_signal),
        cmocka_unit_test(test_a_refused_signal_is_made_by_a_commit_after_the_clear),
        cmocka_unit_test(test_a_buffer_that_was_not_refused_is_discarded_without_a_failure),
        cmocka_unit_test(test_a_refused_buffer_without_signals_is_discarded_quietly),
        cmocka_unit_test(test_work_that_waits_for_a_refused_signal_stays_held),
        cmocka_unit_test(test_wrong_calls_are_told_so_also_while_a_failure_sticks),
        cmocka_unit_test(test_the_warm_up_of_a_queue_where_a_failure_sticks_says_so),
        cmocka_unit_test(test_clear_on_a_queue_without_the_option_is_an_invalid_argument),
        cmocka_unit_test(test_work_from_before_the_clear_that_fails_later_does_not_stick),
        cmocka_unit_test(test_a_clear_without_a_failure_covers_what_was_committed),
        cmocka_unit_test(test_after_a_clear_work_in_flight_fails_and_new_work_does_not),
        cmocka_unit_test(test_work_behind_a_cleared_failure_takes_its_error_also_while_another_sticks),
        cmocka_unit_test(test_work_behind_a_cleared_failure_takes_its_error_when_the_record_has_left_the_log),
        cmocka_unit_test(test_work_that_is_held_over_a_clear_goes_on),
        cmocka_unit_test(test_work_that_is_held_over_a_clear_ends_with_a_later_failure),
        cmocka_unit_test(test_timelines_that_failed_stay_failed_after_a_clear),
        cmocka_unit_test(test_two_failures_with_a_clear_in_between_have_tickets_of_their_own),
        cmocka_unit_test(test_callbacks_that_are_registered_later_are_told_the_error_of_their_range),
        cmocka_unit_test(test_work_of_other_queues_gets_the_error_of_the_range_that_it_waits_for),
        cmocka_unit_test(test_a_wait_for_several_points_gets_the_error_of_the_range),
        cmocka_unit_test(test_a_log_without_room_for_both_failures_never_says_that_old_failed_work_went_well),
        cmocka_unit_test(test_an_old_ticket_of_the_range_is_told_when_the_ring_has_gone_on),
        cmocka_unit_test(test_a_failure_and_all_that_takes_it_have_a_record_and_a_line_each),
        cmocka_unit_test(test_two_owners_with_cursors_of_their_own_each_learn_of_every_failure),
        cmocka_unit_test(test_every_wait_for_everything_returns_the_error_until_the_clear),
        cmocka_unit_test(test_a_wait_for_everything_tells_no_failure_of_work_that_came_later),
        cmocka_unit_test(test_a_failure_that_no_wait_told_before_the_clear_is_told_once_after_it),
        cmocka_unit_test(test_old_work_that_ends_after_the_clear_is_told_once_by_waits_for_everything),
        cmocka_unit_test(test_a_callback_may_clear_the_failure_and_commit),
        cmocka_unit_test(test_the_log_function_may_clear_the_failure_and_commit),
        cmocka_unit_test(test_no_ticket_waits_for_a_thread_that_is_in_the_log_hook),
        cmocka_unit_test(test_work_that_is_held_while_the_failure_is_cleared_takes_the_error),
        cmocka_unit_test(test_destroy_waits_for_all_and_tells_each),
        cmocka_unit_test(test_destroy_after_a_failure_gives_up_refused_and_open_buffers),
        cmocka_unit_test(test_a_queue_that_goes_says_destroyed_and_gives_up_all_that_is_refused),
        cmocka_unit_test(test_destroy_now_gives_destroyed_to_all_that_had_not_ended),
        cmocka_unit_test(test_destroy_now_gives_destroyed_whatever_failed_before),
        cmocka_unit_test(test_destroy_later_tells_each_and_lets_the_device_go),
        cmocka_unit_test(test_the_loss_of_the_device_leaves_ended_work_its_result),
        cmocka_unit_test(test_on_a_lost_device_a_failure_still_fails_later_work),
        cmocka_unit_test(test_without_memory_no_queue_is_made_and_nothing_is_left),
        cmocka_unit_test(test_without_memory_for_the_log_the_failure_sticks_all_the_same),
        cmocka_unit_test(test_random_programs_end_as_a_model_says),
        cmocka_unit_test(test_threads_that_commit_fail_wait_and_clear_agree_on_every_ticket),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
