/* test_sticky.c - queues with sticky_failure: tickets that end in order, a failure that fails all later work, and
   gpusync_queue_clear_failure

   Proved: a ticket ends when its work and all earlier tickets have ended, whatever the order of handlers and looks. The
   failure of the lowest ticket is that of every later one, for each call that tells how work ended, and for the timelines
   that this work was to signal. Work that is refused meanwhile is as it was. Clear ends this for later tickets and for
   nothing else. Destroy, the loss of the device and a lack of memory leave nothing waiting. A model agrees on random
   programs.

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

/* A commit that has ended, if its turn has come. */
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

/* Every call that tells how a ticket ended. */
static void assert_info(gpusync_queue *queue, gpusync_ticket ticket, gpusync_result result)
{
    gpusync_ticket_info info;
    assert_true(gpusync_is_done(queue, ticket));
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

/* Its record may be gone. */
static void assert_never_well(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_result result = gpusync_poll(queue, ticket);
    assert_true(result == GPUSYNC_ERROR_EXECUTION || result == GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_info(queue, ticket, result);
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

/* -- tickets end in order ---------------------------------------------------------------------------------------- */

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
        bool finished[ITEMS + 1] = {false};
        uint64_t before = stats_of(s.q[0]).completions;
        unsigned ended = 0;
        for (i = 0; i < ITEMS; i++) make_item(&s, &items[i], submitted && i % 2, 0);
        for (i = 0; i < ITEMS; i++) {
            unsigned n;
            finish_item(&items[order[i]]);
            finished[order[i]] = true;
            while (finished[ended]) ended++;
            for (n = 0; n < ended; n++) assert_well(s.q[0], items[n].ticket);
            for (n = ended; n < ITEMS; n++) assert_open(s.q[0], items[n].ticket);
            assert_int_equal(stats_of(s.q[0]).completions - before, ended);
            assert_int_equal(gpusync_in_flight(s.q[0]), ITEMS - ended);
        }
        assert_true(gpusync_is_idle(s.q[0]));
    }
    assert_int_equal(k, 24);
    close_stage(&s);
}

static void test_commits_end_in_order_whatever_the_order_of_their_handlers(void **state)
{
    (void)state;
    check_order(false);
}

static void test_submissions_end_in_order_among_commits(void **state)
{
    (void)state;
    check_order(true);
}

static void test_callbacks_come_at_the_turn_of_their_tickets(void **state)
{
    outcome told[ITEMS];
    item items[ITEMS];
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(told, 0, sizeof told);
    for (i = 0; i < ITEMS; i++) {
        make_item(&s, &items[i], i == 2, 0);
        on_done(s.q[0], items[i].ticket, &told[i]);
    }
    for (i = ITEMS - 1; i > 0; i--) finish_item(&items[i]);
    for (i = 0; i < ITEMS; i++) assert_int_equal(calls_of(&told[i]), 0);
    finish_item(&items[0]);
    assert_in_order(told, ITEMS);
    for (i = 0; i < ITEMS; i++) assert_ended(&told[i], GPUSYNC_OK);
    close_stage(&s);
}

static void test_a_value_is_reached_at_the_turn_of_the_submission_that_signals_it(void **state)
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
    assert_int_equal(value_of(s.a), 0);
    assert_open(s.q[0], ticket);
    softmetal_finish(first);
    assert_int_equal(value_of(s.a), 1);
    assert_well(s.q[0], ticket);
    close_stage(&s);
}

static void test_a_sleeping_wait_ends_at_the_turn_of_its_ticket(void **state)
{
    gpusync_device_desc device_desc;
    wait_job job;
    void *first, *second;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.spin = &no_spin;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, sticky_desc());
    commit_empty_to(s.q[0], &first);
    ticket = commit_empty_to(s.q[0], &second);
    wait_job_start(&job, s.q[0], ticket, SECONDS(20));
    await_sleepers(s.device, 1);
    softmetal_finish(second);
    assert_int_equal(sleepers_of(s.device), 1);
    softmetal_finish(first);
    assert_ok(wait_job_join(&job));
    close_stage(&s);
}

static void test_a_blocking_wait_ends_at_the_turn_of_its_ticket(void **state)
{
    static const gpusync_wait_options blocking = {.blocking = true};
    gpusync_ticket ticket;
    void *first, *second;
    stage s;
    (void)state;
    NOT_ON_METAL4("no waitUntilCompleted");
    open_sticky(&s, SOFTMETAL_REAL, 1);
    first = buffer_of(s.q[0]);
    softmetal_hold_handlers(first);
    metal_retain(first);
    commit_to(s.q[0], first);
    ticket = commit_empty_to(s.q[0], &second);
    must_return_within(60);
    assert_ok(gpusync_wait_ex(s.q[0], ticket, GPUSYNC_FOREVER, &blocking));
    has_returned();
    assert_true(gpusync_is_done(s.q[0], ticket - 1));
    softmetal_deliver(first);
    metal_release(first);
    close_stage(&s);
}

static void test_a_wait_for_handlers_ends_at_the_turn_of_its_ticket(void **state)
{
    static const gpusync_wait_options handlers = {.handlers = true};
    gpusync_ticket ticket;
    void *first, *second;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_empty_to(s.q[0], &first);
    ticket = commit_empty_to(s.q[0], &second);
    softmetal_finish(second);
    assert_result(gpusync_wait_ex(s.q[0], ticket, 0, &handlers), GPUSYNC_TIMEOUT);
    softmetal_finish(first);
    assert_ok(gpusync_wait_ex(s.q[0], ticket, 0, &handlers));
    close_stage(&s);
}

static void test_room_comes_with_the_handler_and_does_not_await_the_turn(void **state)
{
    void *first, *second;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_empty_to(s.q[0], &first);
    ticket = commit_empty_to(s.q[0], &second);
    assert_int_equal(rooms_taken(s.q[0]), 2);
    softmetal_finish(second);
    assert_open(s.q[0], ticket);
    assert_int_equal(rooms_taken(s.q[0]), 1);
    softmetal_finish(first);
    close_stage(&s);
}

static void test_an_object_is_released_at_the_turn_of_its_ticket(void **state)
{
    void *first, *second, *memory;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memory = memory_of(&s, 16);
    commit_empty_to(s.q[0], &first);
    ticket = commit_empty_to(s.q[0], &second);
    assert_ok(gpusync_release_after(after(s.q[0], ticket), memory));
    softmetal_finish(second);
    assert_int_equal(owners_of(memory), 2);
    softmetal_finish(first);
    assert_int_equal(owners_of(memory), 1);
    metal_release(memory);
    close_stage(&s);
}

/* So many that the ring of tickets grows more than once while nothing has its turn. */
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
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, queue_desc);
    for (i = 0; i < CROWD; i++) {
        gpusync_ticket ticket;
        buffers[i] = i == 300 ? open_failing(s.q[0], 5) : buffer_of(s.q[0]);
        ticket = submitted ? SUBMIT(s.q[0], BUFFERS(buffers[i])) : commit_to(s.q[0], buffers[i]);
        if (!i) first = ticket;
        on_done(s.q[0], ticket, &told[i]);
    }
    for (i = CROWD - 1; i > 0; i--) softmetal_finish(buffers[i]);
    assert_int_equal(stats_of(s.q[0]).completions, first - 1);
    softmetal_finish(buffers[0]);
    assert_int_equal(stats_of(s.q[0]).completions, first - 1 + CROWD);
    assert_int_equal(stats_of(s.q[0]).failures, CROWD - 300);
    for (i = 0; i < CROWD; i++) {
        if (i < 300) assert_ended(&told[i], GPUSYNC_OK);
        else assert_told(&told[i], first + i, 5);
        assert_result(gpusync_poll(s.q[0], first + i), i < 300 ? GPUSYNC_OK : GPUSYNC_ERROR_EXECUTION);
    }
    assert_in_order(told, CROWD);
    close_stage(&s);
}

static void test_700_commits_end_at_once_when_the_first_has_ended(void **state)
{
    (void)state;
    check_crowd(false);
}

static void test_700_submissions_end_at_once_when_the_first_has_ended(void **state)
{
    (void)state;
    check_crowd(true);
}

/* -- in order, for the trace ------------------------------------------------------------------------------------- */

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

static void test_the_trace_tells_each_end_once_in_order_with_the_result_of_the_ticket(void **state)
{
    item items[ITEMS];
    unsigned i;
    stage s;
    (void)state;
    memset(&traced, 0, sizeof traced);
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    assert_ok(gpusync_set_trace(s.device, note_ends, NULL));
    for (i = 0; i < ITEMS; i++) make_item(&s, &items[i], i == 2, i == 1 ? 7 : 0);
    for (i = ITEMS - 1; i > 0; i--) finish_item(&items[i]);
    assert_int_equal(traced.count, 0);
    finish_item(&items[0]);
    assert_int_equal(traced.count, ITEMS);
    for (i = 0; i < ITEMS; i++) {
        assert_int_equal(traced.tickets[i], items[i].ticket);
        assert_result(traced.results[i], i ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    }
    assert_ok(gpusync_set_trace(s.device, NULL, NULL));
    close_stage(&s);
}

/* While one thread is about to end a submission that has its turn, another comes by with the end of later work. */
static void *later_work;

static void *finish_later_work(void *argument)
{
    softmetal_finish(later_work);
    return argument;
}

static void note_ends_while_others_come_by(void *user, const gpusync_trace_event *event)
{
    note_ends(user, event);
    if (event->kind == GPUSYNC_TRACE_COMPLETED && event->ticket == 2) join(start(finish_later_work, NULL));
}

static void test_a_submission_that_has_its_turn_is_ended_by_one_thread(void **state)
{
    void *first, *second;
    unsigned i;
    stage s;
    (void)state;
    memset(&traced, 0, sizeof traced);
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    assert_ok(gpusync_set_trace(s.device, note_ends_while_others_come_by, NULL));
    commit_empty_to(s.q[0], &first);
    second = open_on(&s, 0);
    SUBMIT(s.q[0], BUFFERS(second));
    commit_empty_to(s.q[0], &later_work);
    softmetal_finish(second);
    softmetal_finish(first);
    assert_int_equal(traced.count, 3);
    for (i = 0; i < 3; i++) assert_int_equal(traced.tickets[i], i + 1);
    assert_ok(gpusync_set_trace(s.device, NULL, NULL));
    for (i = 1; i <= 3; i++) assert_well(s.q[0], i);
    close_stage(&s);
}

/* The times that were noted at the early end are those that the ticket has later. */
static void test_a_ticket_that_ended_early_keeps_its_times(void **state)
{
    void *first, *second;
    gpusync_ticket early, late;
    gpusync_ticket_info of_early, of_late;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    late = commit_empty_to(s.q[0], &first);
    early = commit_empty_to(s.q[0], &second);
    softmetal_finish(second);
    softmetal_finish(first);
    assert_ok(gpusync_get_info(s.q[0], late, &of_late));
    assert_ok(gpusync_get_info(s.q[0], early, &of_early));
    assert_true(of_early.gpu_end_s > 0);
    assert_true(of_early.gpu_end_s <= of_late.gpu_start_s);
    close_stage(&s);
}

/* -- in order, by looks ------------------------------------------------------------------------------------------ */

static void test_a_poll_ends_in_order_what_no_handler_has_told(void **state)
{
    gpusync_ticket tickets[3];
    void *buffers[3];
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 3; i++) tickets[i] = commit_empty_to(s.q[0], &buffers[i]);
    softmetal_complete(buffers[2]);
    assert_result(gpusync_poll(s.q[0], tickets[2]), GPUSYNC_NOT_READY);
    softmetal_complete(buffers[1]);
    assert_result(gpusync_poll(s.q[0], tickets[2]), GPUSYNC_NOT_READY);
    softmetal_complete(buffers[0]);
    assert_ok(gpusync_poll(s.q[0], tickets[2]));
    for (i = 0; i < 3; i++) assert_well(s.q[0], tickets[i]);
    for (i = 0; i < 3; i++) softmetal_finish(buffers[i]); /* and now the handlers */
    assert_int_equal(stats_of(s.q[0]).completions, 3);
    close_stage(&s);
}

static void test_a_poll_of_early_work_finds_the_failure_before_it_that_no_handler_has_told(void **state)
{
    gpusync_ticket tickets[3];
    void *buffers[3];
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    tickets[0] = commit_empty_to(s.q[0], &buffers[0]);
    tickets[1] = commit_failing(&s, 0, 3, &buffers[1]);
    tickets[2] = commit_empty_to(s.q[0], &buffers[2]);
    softmetal_finish(buffers[2]);
    softmetal_complete(buffers[0]);
    softmetal_complete(buffers[1]);
    assert_result(gpusync_poll(s.q[0], tickets[2]), GPUSYNC_ERROR_EXECUTION);
    assert_well(s.q[0], tickets[0]);
    assert_failed(s.q[0], tickets[1], 3);
    assert_failed(s.q[0], tickets[2], 3);
    softmetal_finish(buffers[1]);
    softmetal_finish(buffers[0]);
    assert_int_equal(stats_of(s.q[0]).failures, 2);
    close_stage(&s);
}

static void test_a_wait_for_everything_finds_ends_that_no_handler_has_told(void **state)
{
    void *buffers[3];
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 3; i++) commit_empty_to(s.q[0], &buffers[i]);
    for (i = 3; i--;) {
        assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_TIMEOUT);
        softmetal_complete(buffers[i]);
    }
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    close_stage(&s);
}

/* A submission ends by the look at its command buffers, and then the commit behind it has its turn. */
static void test_a_poll_of_a_commit_ends_a_submission_before_it(void **state)
{
    gpusync_ticket submission, commit;
    void *first, *second, *third;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    first = buffer_of(s.q[0]);
    second = buffer_of(s.q[0]);
    submission = SUBMIT(s.q[0], BUFFERS(first, second));
    commit = commit_empty_to(s.q[0], &third);
    softmetal_complete(third);
    softmetal_complete(second);
    assert_result(gpusync_poll(s.q[0], commit), GPUSYNC_NOT_READY);
    softmetal_complete(first);
    assert_ok(gpusync_poll(s.q[0], commit));
    assert_well(s.q[0], submission);
    close_stage(&s);
}

static void test_the_handler_of_early_work_may_come_after_its_turn(void **state)
{
    gpusync_ticket tickets[2];
    void *buffers[2];
    outcome told;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    for (i = 0; i < 2; i++) tickets[i] = commit_empty_to(s.q[0], &buffers[i]);
    on_done(s.q[0], tickets[1], &told);
    softmetal_complete(buffers[1]);
    assert_result(gpusync_poll(s.q[0], tickets[1]), GPUSYNC_NOT_READY); /* the early end is noted now */
    softmetal_finish(buffers[0]);
    assert_well(s.q[0], tickets[1]);
    softmetal_finish(buffers[1]);
    assert_ended(&told, GPUSYNC_OK);
    assert_int_equal(stats_of(s.q[0]).completions, 2);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    close_stage(&s);
}

static void test_a_lost_handler_delays_later_tickets_and_hangs_none(void **state)
{
    gpusync_device_desc device_desc;
    outcome told;
    void *first, *second;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    NOT_ON_METAL4("without feedback a ticket never ends");
    memset(&device_desc, 0, sizeof device_desc);
    memset(&told, 0, sizeof told);
    device_desc.spin = &no_spin;
    open_sticky_with(&s, SOFTMETAL_REAL, 1, device_desc, sticky_desc());
    first = open_failing(s.q[0], 3);
    softmetal_lose_handlers(first);
    softmetal_set_duration(first, MS(2));
    commit_to(s.q[0], first);
    ticket = commit_empty_to(s.q[0], &second);
    on_done(s.q[0], ticket, &told);
    assert_result(gpusync_wait(s.q[0], ticket, SECONDS(20)), GPUSYNC_ERROR_EXECUTION);
    assert_told(&told, ticket, 3);
    assert_ok(gpusync_queue_clear_failure(s.q[0]));
    close_stage(&s);
}

static void test_the_sweep_ends_in_order_what_lost_handlers_have_not_told(void **state)
{
    static const unsigned lost = 3;
    outcome told;
    gpusync_ticket ticket = 0;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("without feedback a ticket never ends");
    open_sticky(&s, SOFTMETAL_REAL, 1);
    memset(&told, 0, sizeof told);
    for (i = 0; i < lost; i++) {
        void *buffer = buffer_of(s.q[0]);
        softmetal_lose_handlers(buffer);
        ticket = commit_to(s.q[0], buffer);
    }
    on_done(s.q[0], ticket, &told); /* no thread sleeps, and no handler comes: the sweep alone can tell */
    await_call(&told);
    assert_ended(&told, GPUSYNC_OK);
    assert_true(gpusync_is_idle(s.q[0]));
    close_stage(&s);
}

/* -- in order, while a thread is held up ------------------------------------------------------------------------- */

static struct {
    gate entered, leave;
    unsigned lines;
} held_up;

/* A hook that stays inside at its first call until the test lets it go on. */
static void stay_inside(void)
{
    if (COUNT(&held_up.lines)) return;
    gate_wait(&held_up.entered);
    gate_wait(&held_up.leave);
}

static void stay_in_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    stay_inside();
    thread_unpark(waiter);
}

static void park_a_thread(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    thread_park(waiter, deadline_ns);
}

static void stay_in_log(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
    stay_inside();
}

static void *finish_it(void *buffer)
{
    softmetal_finish(buffer);
    return NULL;
}

static void prepare_to_hold_up(void)
{
    memset(&held_up, 0, sizeof held_up);
    gate_init(&held_up.entered, 2);
    gate_init(&held_up.leave, 2);
}

static void drop_gates(void)
{
    gate_destroy(&held_up.entered);
    gate_destroy(&held_up.leave);
}

/* The handler of the first ticket has ended it, and is about to wake its waiter. The second one's comes. */
static void test_a_handler_that_is_held_up_holds_no_later_ticket_up(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_hooks hooks;
    gpusync_ticket tickets[2];
    void *buffers[2];
    wait_job job;
    pthread_t finisher;
    unsigned i;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&hooks, 0, sizeof hooks);
    hooks.park = park_a_thread;
    hooks.unpark = stay_in_unpark;
    device_desc.hooks = &hooks;
    device_desc.spin = &no_spin;
    prepare_to_hold_up();
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, sticky_desc());
    for (i = 0; i < 2; i++) tickets[i] = commit_empty_to(s.q[0], &buffers[i]);
    wait_job_start(&job, s.q[0], tickets[0], SECONDS(60));
    await_sleepers(s.device, 1);
    finisher = start(finish_it, buffers[0]);
    gate_wait(&held_up.entered);
    softmetal_finish(buffers[1]);
    assert_well(s.q[0], tickets[1]);
    gate_wait(&held_up.leave);
    join(finisher);
    assert_ok(wait_job_join(&job));
    drop_gates();
    close_stage(&s);
}

/* The finder of the failure is in the log hook, as one that waits for a mutex of the program. A thread that has the mutex
   waits for later work, which has ended. */
static void check_log_hook(bool submitted)
{
    gpusync_device_desc device_desc;
    gpusync_ticket ticket;
    void *first, *second;
    pthread_t finisher;
    gpusync_result result;
    stage s;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.log = stay_in_log;
    prepare_to_hold_up();
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, sticky_desc());
    first = open_failing(s.q[0], 3);
    if (submitted) SUBMIT(s.q[0], BUFFERS(first));
    else commit_to(s.q[0], first);
    ticket = commit_empty_to(s.q[0], &second);
    softmetal_finish(second);
    finisher = start(finish_it, first);
    gate_wait(&held_up.entered);
    result = gpusync_wait(s.q[0], ticket, MS(300));
    gate_wait(&held_up.leave);
    join(finisher);
    assert_failed(s.q[0], ticket, 3);
    drop_gates();
    close_stage(&s);
    assert_result(result, GPUSYNC_ERROR_EXECUTION);
}

static void test_no_ticket_waits_for_a_thread_that_is_in_the_log_hook(void **state)
{
    (void)state;
    check_log_hook(false);
}

static void test_no_ticket_waits_for_a_thread_that_tells_the_log_hook_of_a_submission(void **state)
{
    (void)state;
    check_log_hook(true);
}

/* -- later work -------------------------------------------------------------------------------------------------- */

static void test_work_behind_a_failure_fails_with_its_error(void **state)
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
    for (i = 0; i < ITEMS; i++) finish_item(&items[i]);
    assert_well(s.q[0], items[0].ticket);
    assert_ended(&told[0], GPUSYNC_OK);
    for (i = 1; i < ITEMS; i++) {
        assert_failed(s.q[0], items[i].ticket, 9);
        assert_told(&told[i], items[i].ticket, 9);
    }
    assert_int_equal(stats_of(s.q[0]).failures, 3);
    close_stage(&s);
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
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    commit_failing(&s, 0, 6, &first);
    later = commit_empty_to(s.q[0], &second);
    work = open_on(&s, 1);
    ticket = SUBMIT(s.q[1], WAITS(after(s.q[0], later)), BUFFERS(work));
    finish(&s, 0);
    finish(&s, 1);
    assert_failed(s.q[1], ticket, 6);
    close_stage(&s);
}

/* Of ITEMS pieces of work two fail, and end in any order: the error is that of the one with the lower ticket. */
static void check_lowest(bool submitted)
{
    unsigned order[ITEMS], k, i, n, low, high;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (low = 0; low < ITEMS; low++)
        for (high = low + 1; high < ITEMS; high++)
            for (k = 0; order_of(k, ITEMS, order); k++) {
                item items[ITEMS];
                for (i = 0; i < ITEMS; i++)
                    make_item(&s, &items[i], submitted && (i + low) % 2, i == low || i == high ? 10 + (long)i : 0);
                for (i = 0; i < ITEMS; i++) finish_item(&items[order[i]]);
                for (n = 0; n < ITEMS; n++) {
                    if (n < low) assert_well(s.q[0], items[n].ticket);
                    else assert_failed(s.q[0], items[n].ticket, 10 + (long)low);
                }
                clear(&s);
            }
    close_stage(&s);
}

static void test_of_failed_commits_the_one_with_the_lowest_ticket_tells_why(void **state)
{
    (void)state;
    check_lowest(false);
}

static void test_of_failed_commits_and_submissions_the_lowest_ticket_tells_why(void **state)
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

/* -- held work --------------------------------------------------------------------------------------------------- */

static void test_held_work_behind_a_failure_is_never_committed(void **state)
{
    outcome told[3];
    gpusync_ticket tickets[3];
    void *first, *waits, *plain, *signals;
    uint64_t commits;
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(told, 0, sizeof told);
    commit_failing(&s, 0, 2, &first);
    waits = kept_buffer_of(s.q[0]);
    plain = kept_buffer_of(s.q[0]);
    signals = kept_buffer_of(s.q[0]);
    tickets[0] = SUBMIT(s.q[0], WAITS(at(s.d, 1)), BUFFERS(waits), SIGNALS(at(s.a, 1)), TELL(&told[0]));
    tickets[1] = commit_to(s.q[0], plain); /* held behind it */
    on_done(s.q[0], tickets[1], &told[1]);
    tickets[2] = SUBMIT(s.q[0], BUFFERS(signals), SIGNALS(at(s.b, 1)), TELL(&told[2]));
    assert_int_equal(held_on(s.device, s.q[0]), 3);
    commits = commits_so_far();
    softmetal_finish(first);
    for (i = 0; i < 3; i++) {
        assert_failed(s.q[0], tickets[i], 2);
        assert_told(&told[i], tickets[i], 2);
    }
    assert_in_order(told, 3);
    assert_timeline_failed(s.a, 2);
    assert_timeline_failed(s.b, 2);
    assert_ok(gpusync_timeline_signal(s.d, 1)); /* what it waited for comes too late */
    assert_int_equal(commits_so_far(), commits);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    metal_release(waits);
    metal_release(plain);
    metal_release(signals);
    close_stage(&s);
}

/* Work is on the device between the failure and the held work. */
static void test_held_work_that_is_given_up_ends_at_its_turn(void **state)
{
    gpusync_ticket between, held;
    void *first, *second;
    uint64_t commits;
    outcome told;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    commit_failing(&s, 0, 2, &first);
    between = commit_empty_to(s.q[0], &second);
    held = hold_on(s.q[0], s.d, 1, &told);
    commits = commits_so_far();
    softmetal_finish(first);
    assert_open(s.q[0], between);
    assert_open(s.q[0], held);
    assert_int_equal(calls_of(&told), 0);
    assert_ok(gpusync_timeline_signal(s.d, 1)); /* it is given up, and does not go any more */
    assert_int_equal(commits_so_far(), commits);
    softmetal_finish(second);
    assert_told(&told, held, 2);
    assert_failed(s.q[0], between, 2);
    assert_int_equal(commits_so_far(), commits);
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

static void test_held_work_that_ends_before_its_turn_awaits_it(void **state)
{
    gpusync_ticket held;
    void *first;
    outcome told;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    commit_empty_to(s.q[0], &first);
    held = hold_on(s.q[0], s.a, 1, &told);
    fail_with_code_77(s.a);
    assert_open(s.q[0], held);
    assert_int_equal(calls_of(&told), 0);
    softmetal_finish(first);
    assert_ended(&told, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(told.error.code, 77);
    assert_info(s.q[0], held, GPUSYNC_ERROR_EXECUTION);
    close_stage(&s);
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

/* Work that is given up stops what stands behind it in the line, and nothing before it. */
static void test_held_work_before_held_work_that_fails_is_issued(void **state)
{
    gpusync_ticket before, failed, behind;
    void *buffer;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    buffer = open_on(&s, 0);
    before = SUBMIT(s.q[0], WAITS(at(s.b, 1)), BUFFERS(buffer));
    failed = hold_on(s.q[0], s.a, 1, NULL);
    behind = commit_on(&s, 0);
    fail_with_code_77(s.a);
    assert_open(s.q[0], failed);
    assert_ok(gpusync_timeline_signal(s.b, 1));
    softmetal_finish(buffer);
    assert_well(s.q[0], before);
    assert_int_equal(error_of(s.q[0], failed).code, 77);
    assert_int_equal(error_of(s.q[0], behind).code, 77);
    close_stage(&s);
}

/* The last submission waits for a value that no other work is to signal, so it fails when the timeline is destroyed. Its
   signal cannot await its turn: the first submission is held for that signal, and the second for the first. */
static void test_a_signal_of_held_work_that_fails_does_not_await_the_turn(void **state)
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
    close_stage(&s);
}

/* -- which errors stick ------------------------------------------------------------------------------------------ */

/* The queue refuses work, and what was in flight behind the ticket has failed with this result and code. */
static void assert_stuck(stage *s, gpusync_ticket later, gpusync_result result, long code)
{
    gpusync_error error = error_of(s->q[0], later);
    void *buffer = buffer_of(s->q[0]);
    gpusync_ticket ticket;
    assert_int_equal(error.code, code);
    assert_info(s->q[0], later, result);
    assert_result(either_commit(s->q[0], buffer, &ticket), GPUSYNC_ERROR_EXECUTION);
    assert_ok(either_discard(s->q[0], buffer));
}

static void test_the_failure_of_a_ticket_of_another_queue_sticks_to_work_that_waited_for_it(void **state)
{
    void *elsewhere, *work;
    gpusync_ticket awaited, ticket, later;
    gpusync_error error;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    awaited = commit_failing(&s, 1, 12, &elsewhere);
    work = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], WAITS(after(s.q[1], awaited)), BUFFERS(work));
    later = commit_on(&s, 0);
    finish(&s, 1);
    finish(&s, 0);
    assert_failed(s.q[0], ticket, 12);
    assert_failed(s.q[0], later, 12);
    error = error_of(s.q[0], later);
    assert_string_equal(error.queue_label, "second");
    assert_stuck(&s, later, GPUSYNC_ERROR_EXECUTION, 12);
    clear(&s);
    assert_well(s.q[0], finish_on(&s, 0));
    close_stage(&s);
}

static void test_the_failure_of_a_timeline_sticks_to_work_that_waited_for_it(void **state)
{
    gpusync_ticket later;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    hold_on(s.q[0], s.a, 1, NULL);
    later = commit_on(&s, 0);
    fail_with_code_77(s.a);
    finish(&s, 0);
    assert_stuck(&s, later, GPUSYNC_ERROR_EXECUTION, 77);
    close_stage(&s);
}

static void test_a_timeline_that_had_failed_before_the_submission_sticks_too(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_with_code_77(s.a);
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), NO_WORK(s.q[0]));
    assert_stuck(&s, ticket, GPUSYNC_ERROR_EXECUTION, 77);
    close_stage(&s);
}

/* Given up on its own queue, it would not stick. */
static void test_what_another_queue_gave_up_sticks_to_work_that_waited_for_it(void **state)
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
    assert_stuck(&s, later, GPUSYNC_ERROR_CANCELLED, 0);
    close_stage(&s);
}

static void test_a_timeline_that_is_destroyed_sticks_to_work_that_was_held_for_it(void **state)
{
    gpusync_ticket later;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    hold_on(s.q[0], s.a, 1, NULL);
    later = commit_on(&s, 0);
    take_down_timeline(&s, 0);
    finish(&s, 0);
    assert_stuck(&s, later, GPUSYNC_ERROR_DESTROYED, 0);
    close_stage(&s);
}

/* The second queue keeps one record. */
static void test_an_unknown_result_of_another_queue_sticks_to_work_that_waited_for_it(void **state)
{
    gpusync_queue_desc desc = queue_desc_of(0, 1);
    gpusync_ticket awaited, ticket, later;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    s.q[1] = queue_of_kind(QUEUE_OF_GPUSYNC, s.device, &desc);
    s.metal[1] = gpusync_queue_metal(s.q[1]);
    awaited = fail_on(&s, 1, 1);
    fail_on(&s, 1, 2);
    assert_result(gpusync_poll(s.q[1], awaited), GPUSYNC_ERROR_RESULT_UNKNOWN);
    ticket = SUBMIT(s.q[0], WAITS(after(s.q[1], awaited)), NO_WORK(s.q[0]));
    finish(&s, 0);
    assert_info(s.q[0], ticket, GPUSYNC_ERROR_RESULT_UNKNOWN);
    later = ticket;
    assert_stuck(&s, later, GPUSYNC_ERROR_RESULT_UNKNOWN, 0);
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

static void test_work_that_is_given_up_behind_work_in_flight_ends_at_its_turn(void **state)
{
    gpusync_ticket held, next;
    void *first, *second;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_empty_to(s.q[0], &first);
    held = hold_on(s.q[0], s.a, 1, NULL);
    assert_ok(gpusync_cancel_held(s.q[0]));
    next = commit_empty_to(s.q[0], &second);
    softmetal_finish(second);
    assert_open(s.q[0], held);
    assert_open(s.q[0], next);
    softmetal_finish(first);
    assert_info(s.q[0], held, GPUSYNC_ERROR_CANCELLED);
    assert_well(s.q[0], next);
    close_stage(&s);
}

static void test_work_that_was_given_up_gets_the_failure_before_it(void **state)
{
    gpusync_ticket held;
    void *first;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_failing(&s, 0, 2, &first);
    held = hold_on(s.q[0], s.a, 1, NULL);
    assert_ok(gpusync_cancel_held(s.q[0]));
    softmetal_finish(first);
    assert_failed(s.q[0], held, 2);
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

static void test_command_buffers_are_made_and_encoded_while_a_failure_sticks(void **state)
{
    gpusync_ticket ticket;
    void *buffer = NULL;
    stage s;
    (void)state;
    NOT_ON_METAL4("the program makes them");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_on(&s, 0, 1);
    assert_ok(gpusync_command_buffer(s.q[0], NULL, &buffer));
    assert_ok(gpusync_encode_wait(s.q[0], buffer, at(s.a, 1)));
    assert_ok(gpusync_encode_signal(s.q[0], buffer, at(s.b, 1)));
    clear(&s);
    assert_ok(gpusync_commit(s.q[0], buffer, &ticket));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    softmetal_finish(buffer);
    assert_well(s.q[0], ticket);
    assert_int_equal(value_of(s.b), 1);
    close_stage(&s);
}

/* An open buffer that is to signal a value, and was refused in this way. */
static void *refuse_signaller(stage *s, bool submitted, bool theirs)
{
    void *buffer = theirs ? their_buffer(s->q[0]) : buffer_of(s->q[0]);
    gpusync_ticket ticket;
    assert_ok(gpusync_encode_signal(s->q[0], buffer, at(s->a, 1)));
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
    fail_on(&s, 0, 21);
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

static void test_a_refused_signal_is_made_by_a_commit_after_the_clear(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_on(&s, 0, 21);
    buffer = refuse_signaller(&s, false, false);
    clear(&s);
    ticket = commit_to(s.q[0], buffer);
    softmetal_finish(buffer);
    assert_well(s.q[0], ticket);
    assert_int_equal(value_of(s.a), 1);
    /* The next one of the same slot was not refused: what it promised is taken back, and does not fail. */
    buffer = buffer_of(s.q[0]);
    assert_ok(gpusync_encode_signal(s.q[0], buffer, at(s.a, 2)));
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
    assert_ok(gpusync_timeline_signal(s.a, 2));
    close_stage(&s);
}

static void test_a_buffer_that_was_not_refused_is_discarded_without_a_failure(void **state)
{
    void *before, *behind;
    stage s;
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    before = buffer_of(s.q[0]);
    assert_ok(gpusync_encode_signal(s.q[0], before, at(s.a, 1)));
    fail_on(&s, 0, 21);
    behind = buffer_of(s.q[0]);
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
    fail_on(&s, 0, 21);
    buffer = buffer_of(s.q[0]);
    assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
    assert_int_equal(stats_of(s.q[0]).failures, 1);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    close_stage(&s);
}

static void test_wrong_calls_are_told_so_also_while_a_failure_sticks(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_on(&s, 0, 1);
    buffer = buffer_of(s.q[0]);
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

static void test_gpusync_track_is_refused(void **state)
{
    gpusync_ticket ticket = 99;
    void *buffer;
    int i;
    stage s;
    (void)state;
    NOT_ON_METAL4("no track calls");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    buffer = metal_queue_command_buffer(s.metal[0]);
    for (i = 0; i < 2; i++) {
        assert_result(gpusync_track(s.q[0], buffer, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        if (!i) fail_on(&s, 0, 1);
    }
    assert_int_equal(rooms_taken(s.q[0]), 0);
    metal_release(buffer);
    close_stage(&s);
}

static void test_unordered_submissions_are_refused(void **state)
{
    void *buffer;
    gpusync_ticket ticket;
    outcome told;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(&told, 0, sizeof told);
    buffer = buffer_of(s.q[0]);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)), TELL(&told),
            .flags = GPUSYNC_UNORDERED);
    REFUSED(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], BUFFERS(buffer), .flags = GPUSYNC_UNORDERED | GPUSYNC_STRICT);
    assert_int_equal(calls_of(&told), 0);
    ticket = commit_to(s.q[0], buffer);
    softmetal_finish(buffer);
    assert_well(s.q[0], ticket);
    close_stage(&s);
}

static void test_strict_submissions_await_their_turn_and_fail(void **state)
{
    gpusync_ticket ticket;
    void *first, *second;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_failing(&s, 0, 5, &first);
    second = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(second), SIGNALS(at(s.a, 1)), .flags = GPUSYNC_STRICT);
    softmetal_finish(second);
    assert_open(s.q[0], ticket);
    assert_int_equal(value_of(s.a), 0);
    softmetal_finish(first);
    assert_failed(s.q[0], ticket, 5);
    assert_timeline_failed(s.a, 5);
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

static void test_clear_without_a_failure_does_nothing(void **state)
{
    gpusync_ticket tickets[2];
    void *buffers[2];
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    clear(&s);
    tickets[0] = commit_failing(&s, 0, 3, &buffers[0]);
    tickets[1] = commit_empty_to(s.q[0], &buffers[1]);
    clear(&s); /* it fails later */
    finish(&s, 0);
    assert_failed(s.q[0], tickets[0], 3);
    assert_failed(s.q[0], tickets[1], 3);
    clear(&s);
    clear(&s);
    assert_well(s.q[0], finish_on(&s, 0));
    close_stage(&s);
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
    assert_open(s.q[0], new[0]);
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

static void test_old_work_that_fails_after_the_clear_has_the_error_that_was_cleared(void **state)
{
    gpusync_ticket old, new;
    void *first, *second, *third;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_failing(&s, 0, 3, &first);
    old = commit_failing(&s, 0, 4, &second);
    softmetal_finish(first);
    clear(&s);
    new = commit_empty_to(s.q[0], &third);
    softmetal_finish(third);
    softmetal_finish(second);
    assert_failed(s.q[0], old, 3);
    assert_well(s.q[0], new);
    assert_well(s.q[0], finish_on(&s, 0)); /* the queue takes work */
    close_stage(&s);
}

/* Work of before the clear has failed by itself, and awaits its turn, when work of after the clear fails. */
static void check_failure_behind_old_failures(bool submitted)
{
    gpusync_ticket tickets[5];
    gpusync_result result;
    void *buffers[5];
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    buffers[0] = open_failing(s.q[0], 3);
    tickets[0] = submitted ? SUBMIT(s.q[0], BUFFERS(buffers[0])) : commit_to(s.q[0], buffers[0]);
    tickets[1] = commit_empty_to(s.q[0], &buffers[1]);
    tickets[2] = commit_failing(&s, 0, 4, &buffers[2]);
    if (submitted) softmetal_finish(buffers[2]); /* before the failure that will stick has its turn */
    softmetal_finish(buffers[0]);
    if (!submitted) softmetal_finish(buffers[2]);
    clear(&s);
    tickets[3] = commit_failing(&s, 0, 5, &buffers[3]);
    metal_retain(buffers[3]);
    tickets[4] = commit_empty_to(s.q[0], &buffers[4]);
    softmetal_finish(buffers[3]);
    softmetal_finish(buffers[4]);
    softmetal_finish(buffers[1]);
    assert_failed(s.q[0], tickets[1], 3);
    assert_failed(s.q[0], tickets[2], 3);
    assert_int_equal(status_of(buffers[3]), COMPLETED + 1); /* Metal says: Error */
    result = gpusync_poll(s.q[0], tickets[3]);
    if (result == GPUSYNC_ERROR_EXECUTION) {
        assert_failed(s.q[0], tickets[3], 5);
        assert_failed(s.q[0], tickets[4], 5);
        assert_int_equal(stats_of(s.q[0]).failures, 5);
    }
    metal_release(buffers[3]);
    close_stage(&s);
    assert_result(result, GPUSYNC_ERROR_EXECUTION);
}

static void test_a_failure_after_the_clear_is_not_lost_behind_old_work_that_failed(void **state)
{
    (void)state;
    check_failure_behind_old_failures(false);
}

static void test_a_failure_after_the_clear_is_not_lost_behind_old_work_that_failed_first_of_all(void **state)
{
    (void)state;
    check_failure_behind_old_failures(true);
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

/* Ticket 3 fails before its turn, and needs no error of its own. That of ticket 4, behind the clear, is kept. */
static void test_work_that_fails_early_behind_a_clear_has_not_gone_well(void **state)
{
    gpusync_ticket tickets[5];
    void *buffers[5];
    stage s;
    int i;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (i = 1; i <= 3; i++) {
        buffers[i] = i == 2 ? buffer_of(s.q[0]) : open_failing(s.q[0], i);
        tickets[i] = commit_to(s.q[0], buffers[i]);
    }
    softmetal_finish(buffers[1]);
    softmetal_finish(buffers[3]);
    clear(&s);
    tickets[4] = commit_failing(&s, 0, 4, &buffers[4]);
    softmetal_finish(buffers[4]);
    softmetal_finish(buffers[2]);
    for (i = 1; i <= 3; i++) assert_failed(s.q[0], tickets[i], 1);
    assert_failed(s.q[0], tickets[4], 4);
    close_stage(&s);
}

static void test_two_failures_with_a_clear_in_between_have_tickets_of_their_own(void **state)
{
    unsigned i;
    ranges r;
    (void)state;
    open_ranges(&r, sticky_desc());
    for (i = 0; i < 3; i++) {
        assert_failed(r.stage.q[0], r.first[i], 30);
        assert_failed(r.stage.q[0], r.second[i], 31);
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
        assert_failed(r.stage.q[0], r.second[i], 31);
        assert_told(&r.told[i], r.first[i], 30);
    }
    assert_well(r.stage.q[0], r.well);
    assert_int_equal(stats_of(r.stage.q[0]).failures_dropped, 1);
    assert_result(gpusync_queue_wait(r.stage.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    close_stage(&r.stage);
}

/* The record of the failure leaves the log, and the failure is the last one that stuck all the same. */
static void test_given_up_work_that_pushes_the_record_out_makes_no_failed_ticket_well(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc desc = sticky_desc();
    gpusync_ticket failed[3], cancelled;
    void *buffers[3];
    unsigned i;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    desc.error_log_count = 1;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, desc);
    for (i = 0; i < 3; i++) {
        buffers[i] = i ? buffer_of(s.q[0]) : open_failing(s.q[0], 14);
        failed[i] = commit_to(s.q[0], buffers[i]);
    }
    softmetal_finish(buffers[0]);
    clear(&s);
    cancelled = hold_on(s.q[0], s.a, 1, NULL);
    assert_ok(gpusync_cancel_held(s.q[0]));
    for (i = 1; i < 3; i++) softmetal_finish(buffers[i]);
    assert_info(s.q[0], cancelled, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(stats_of(s.q[0]).failures_dropped, 1);
    assert_never_well(s.q[0], failed[0]);
    for (i = 1; i < 3; i++) assert_failed(s.q[0], failed[i], 14);
    assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    assert_well(s.q[0], finish_on(&s, 0));
    fail_on(&s, 0, 15);
    for (i = 0; i < 3; i++) assert_never_well(s.q[0], failed[i]);
    close_stage(&s);
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

static void test_a_failure_and_all_that_it_fails_have_one_record_and_one_line(void **state)
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
    assert_ok(gpusync_next_error(s.q[0], &cursor, &error));
    assert_culprit(&error, 16);
    assert_int_equal(error.ticket, first);
    assert_result(gpusync_next_error(s.q[0], &cursor, &error), GPUSYNC_NOT_READY);
    assert_int_equal(logged.lines, 1);
    assert_non_null(strstr(logged.last, "it broke"));
    assert_int_equal(stats_of(s.q[0]).failures, 6);
    assert_int_equal(stats_of(s.q[0]).failures_dropped, 0);
    assert_int_equal(stats_of(s.q[0]).completions, 7);
    clear(&s);
    fail_on(&s, 0, 17);
    assert_ok(gpusync_next_error(s.q[0], &cursor, &error));
    assert_culprit(&error, 17);
    assert_int_equal(logged.lines, 2);
    assert_int_equal(stats_of(s.q[0]).failures, 7);
    close_stage(&s);
}

static void test_a_failure_is_recorded_and_logged_at_its_turn(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_error error;
    uint64_t cursor = 0;
    void *first, *second;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&logged, 0, sizeof logged);
    device_desc.log = note_line;
    open_sticky_with(&s, SOFTMETAL_MANUAL, 1, device_desc, sticky_desc());
    commit_empty_to(s.q[0], &first);
    commit_failing(&s, 0, 16, &second);
    softmetal_finish(second);
    assert_result(gpusync_next_error(s.q[0], &cursor, &error), GPUSYNC_NOT_READY);
    assert_int_equal(stats_of(s.q[0]).failures, 0);
    assert_int_equal(logged.lines, 0);
    commit_on(&s, 0); /* nothing is refused yet */
    softmetal_finish(first);
    assert_ok(gpusync_next_error(s.q[0], &cursor, &error));
    assert_culprit(&error, 16);
    assert_int_equal(logged.lines, 1);
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
    gpusync_result refused, cleared, committed;
    gpusync_ticket ticket;
} in_log;

static void clear_in_log(void *user, gpusync_log_level level, const char *text)
{
    gpusync_ticket ticket;
    void *buffer = NULL;
    (void)user;
    (void)level;
    (void)text;
    if (in_log.ticket) return;
    must(either_buffer(in_log.queue, NULL, &buffer) == GPUSYNC_OK, "no command buffer");
    in_log.refused = either_commit(in_log.queue, buffer, &ticket);
    in_log.cleared = gpusync_queue_clear_failure(in_log.queue);
    in_log.committed = either_commit(in_log.queue, buffer, &in_log.ticket);
}

/* Tickets that have ended early are about to get their turn. */
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
    commit_failing(&s, 0, 3, &first);
    later = commit_empty_to(s.q[0], &second);
    softmetal_finish(second);
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

static void test_work_that_is_held_while_the_failure_is_cleared_fails_at_once(void **state)
{
    gpusync_timeline *imported;
    gpusync_ticket awaited, ticket;
    void *event, *first, *work;
    bool ended;
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
    ended = gpusync_is_done(s.q[0], ticket);
    finish(&s, 1);
    assert_ok(gpusync_timeline_signal(imported, 1));
    finish(&s, 0);
    assert_failed(s.q[0], ticket, 3);
    assert_ok(gpusync_timeline_destroy(imported));
    metal_release(event);
    close_stage(&s);
    assert_true(ended);
}

/* -- destroy, and the loss of the device ------------------------------------------------------------------------- */

static void test_destroy_waits_for_the_turn_of_all_and_tells_each(void **state)
{
    outcome told[5];
    gpusync_ticket tickets[5];
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_REAL, 1);
    memset(told, 0, sizeof told);
    for (i = 0; i < 4; i++) {
        void *buffer = i == 2 ? open_failing(s.q[0], 3) : buffer_of(s.q[0]);
        if (!i) softmetal_set_duration(buffer, MS(20));
        tickets[i] = i == 1 ? SUBMIT(s.q[0], BUFFERS(buffer)) : commit_to(s.q[0], buffer);
    }
    tickets[4] = hold_on(s.q[0], s.d, 1, NULL);
    for (i = 0; i < 5; i++) on_done(s.q[0], tickets[i], &told[i]);
    must_return_within(60);
    take_down_queue(&s, 0, false);
    has_returned();
    assert_in_order(told, 5);
    for (i = 0; i < 5; i++) {
        if (i < 2) assert_ended(&told[i], GPUSYNC_OK);
        else assert_told(&told[i], tickets[i], 3);
    }
    close_stage(&s);
}

static void test_destroy_after_a_failure_gives_up_refused_and_open_buffers(void **state)
{
    gpusync_error error;
    stage s;
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    fail_on(&s, 0, 21);
    refuse_signaller(&s, false, false);
    take_down_queue(&s, 0, false);
    error = error_at(s.a, 1);
    assert_result(error.result, GPUSYNC_ERROR_CANCELLED);
    close_stage(&s);
}

static void let_go_of_queue(void *queue)
{
    must(gpusync_queue_destroy_later((gpusync_queue *)queue, NULL, NULL) == GPUSYNC_OK, "it was let go before");
}

/* Its work in flight keeps it, and a refused submission is in the middle of its command buffers. The calls that come later
   are told, and what the command buffers were to signal is given up, whether or not they were still marked as refused. */
static void test_a_queue_that_goes_says_destroyed_and_gives_up_all_that_is_refused(void **state)
{
    gpusync_timeline *timelines[2];
    void *failing, *busy, *buffers[2], *metal;
    unsigned i;
    stage s;
    (void)state;
    NOT_ON_METAL4("no encoded signals");
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    commit_failing(&s, 0, 21, &failing);
    commit_empty_to(s.q[0], &busy);
    softmetal_finish(failing);
    timelines[0] = s.a;
    timelines[1] = s.b;
    for (i = 0; i < 2; i++) {
        buffers[i] = buffer_of(s.q[0]);
        assert_ok(gpusync_encode_signal(s.q[0], buffers[i], at(timelines[i], 1)));
    }
    metal = metal_retain(s.metal[0]);
    probe_at_each(1, let_go_of_queue, s.q[0]);
    REFUSED(GPUSYNC_ERROR_EXECUTION, s.q[0], .command_buffers = buffers, .command_buffer_count = 2);
    assert_true(probe_has_acted());
    assert_result(gpusync_queue_clear_failure(s.q[0]), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_commit(s.q[0], buffers[1], NULL), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(value_of(s.a) + value_of(s.b), 0);
    s.q[0] = NULL;
    softmetal_finish_queue(metal);
    metal_release(metal);
    while (softmetal_live("queue")) {
        assert_true(softmetal_timers() > 0);
        softmetal_fire_timer();
        assert_true(softmetal_dispatched(SECONDS(20)));
    }
    for (i = 0; i < 2; i++) {
        gpusync_error error = error_at(timelines[i], 1);
        assert_result(error.result, GPUSYNC_ERROR_CANCELLED);
    }
    close_stage(&s);
}

/* A GPU that hangs has the first command buffer. Behind it stand work that has ended, well and badly, work in flight,
   and held work. */
static void test_destroy_now_ends_what_awaits_the_turn_of_a_hung_command_buffer(void **state)
{
    enum { HUNG, ENDED_COMMIT, ENDED_SUBMISSION, FAILED_COMMIT, FAILED_SUBMISSION, IN_FLIGHT, HELD, KINDS };
    gpusync_ticket tickets[KINDS];
    void *buffers[KINDS];
    outcome told[KINDS], complete[KINDS];
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    memset(told, 0, sizeof told);
    memset(complete, 0, sizeof complete);
    for (i = 0; i < KINDS; i++) {
        bool fails = i == FAILED_COMMIT || i == FAILED_SUBMISSION;
        bool plain = i == HUNG || i == ENDED_COMMIT || i == FAILED_COMMIT;
        gpusync_point wait = at(s.d, 1);
        buffers[i] = fails ? open_failing(s.q[0], 50 + (long)i) : buffer_of(s.q[0]);
        tickets[i] = plain ? commit_to(s.q[0], buffers[i])
                           : SUBMIT(s.q[0], BUFFERS(buffers[i]), TELL(&complete[i]), .waits = &wait,
                                    .wait_count = i == HELD);
        on_done(s.q[0], tickets[i], &told[i]);
        if (i != HUNG && i != IN_FLIGHT && i != HELD) softmetal_finish(buffers[i]);
    }
    must_return_within(60);
    orphan_queue(&s, 0);
    has_returned();
    for (i = 0; i < KINDS; i++) {
        assert_int_equal(calls_of(&told[i]), 1);
        assert_int_equal(calls_of(&complete[i]), i == ENDED_SUBMISSION || i >= FAILED_SUBMISSION);
        if (complete[i].calls) assert_result(complete[i].result, told[i].result);
    }
    assert_result(told[HUNG].result, GPUSYNC_ERROR_DESTROYED);
    assert_result(told[FAILED_SUBMISSION].result, GPUSYNC_ERROR_EXECUTION); /* ended work keeps its result */
    for (i = IN_FLIGHT; i <= HELD; i++) /* given up; the failed submission before them may count */
        assert_true(told[i].result == GPUSYNC_ERROR_DESTROYED || told[i].result == GPUSYNC_ERROR_EXECUTION);
    assert_true(told[ENDED_COMMIT].result == GPUSYNC_OK || told[ENDED_COMMIT].result == GPUSYNC_ERROR_DESTROYED);
    assert_true(told[FAILED_COMMIT].result < 0);
    close_stage(&s);
}

static void test_destroy_now_tells_work_of_other_queues_that_awaits_early_work(void **state)
{
    gpusync_ticket early, ticket;
    void *hung, *buffer;
    outcome told;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 2);
    memset(&told, 0, sizeof told);
    commit_empty_to(s.q[0], &hung);
    early = commit_empty_to(s.q[0], &buffer);
    softmetal_finish(buffer);
    buffer = open_on(&s, 1);
    ticket = SUBMIT(s.q[1], WAITS(after(s.q[0], early)), BUFFERS(buffer), TELL(&told));
    assert_result(gpusync_poll(s.q[1], ticket), GPUSYNC_NOT_READY);
    must_return_within(60);
    orphan_queue(&s, 0);
    has_returned();
    finish(&s, 1);
    await_call(&told);
    assert_true(gpusync_is_done(s.q[1], ticket));
    close_stage(&s);
}

static void test_destroy_later_ends_when_all_have_had_their_turn(void **state)
{
    outcome told[2];
    void *first, *second;
    void *metal;
    unsigned i;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    softmetal_let_timers_run(true);
    memset(told, 0, sizeof told);
    on_done(s.q[0], commit_failing(&s, 0, 3, &first), &told[0]);
    on_done(s.q[0], commit_empty_to(s.q[0], &second), &told[1]);
    softmetal_finish(second);
    metal = metal_retain(s.metal[0]);
    assert_ok(gpusync_queue_destroy_later(s.q[0], NULL, NULL));
    s.q[0] = NULL;
    softmetal_finish_queue(metal);
    metal_release(metal);
    for (i = 0; i < 2; i++) {
        await_call(&told[i]);
        assert_result(told[i].result, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(told[i].error.code, 3);
    }
    while (gpusync_device_destroy(s.device) == GPUSYNC_ERROR_IN_USE) {
        for (i = 0; i < STAGE_TIMELINES; i++)
            if (s.t[i]) take_down_timeline(&s, i);
        sched_yield();
    }
    assert_int_equal(s.rig.memory.live, 0);
    drop_recordings();
}

static void test_the_loss_of_the_device_ends_waits_for_tickets_that_await_their_turn(void **state)
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
    wait_job_start(&job, s.q[0], tickets[ENDED_COMMIT], SECONDS(60));
    await_sleepers(s.device, 1);
    softmetal_finish(buffers[LOSES]);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
    for (i = 0; i < LOSES; i++) {
        await_call(&told[i]);
        assert_result(told[i].result, GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(gpusync_wait(s.q[0], tickets[i], 0), GPUSYNC_ERROR_DEVICE_LOST);
    }
    assert_ok(gpusync_queue_clear_failure(s.q[0]));
    must_return_within(60);
    orphan_queue(&s, 0);
    has_returned();
    close_stage(&s);
}

static void test_on_a_lost_device_tickets_still_end_in_order(void **state)
{
    gpusync_wait_options options;
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
    memset(&options, 0, sizeof options);
    options.through_loss = true;
    softmetal_finish(buffers[1]);
    assert_false(gpusync_is_done(s.q[0], tickets[1]));
    softmetal_finish(buffers[0]);
    assert_result(gpusync_wait_ex(s.q[0], tickets[0], 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait_ex(s.q[0], tickets[1], 0, &options), GPUSYNC_ERROR_EXECUTION);
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
    assert_int_equal(k, 4); /* the queue, the ring, and what sticky_failure needs */
    s.q[1] = queue;
    s.metal[1] = gpusync_queue_metal(queue);
    fail_on(&s, 1, 3);
    assert_ok(gpusync_queue_clear_failure(queue));
    assert_well(queue, finish_on(&s, 1));
    close_stage(&s);
}

/* The allocator fails, from its k-th call on or there alone, while the first failure and what follows end. */
static void check_without_memory(long k, bool after_it, bool submitted)
{
    gpusync_ticket tickets[4], next;
    void *buffers[4];
    uint64_t cursor = 0;
    gpusync_error error;
    unsigned i;
    stage s;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 4; i++) {
        buffers[i] = i ? buffer_of(s.q[0]) : open_failing(s.q[0], 3);
        tickets[i] = i == 3               ? SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(buffers[i]), SIGNALS(at(s.b, 1)))
                     : submitted || i == 2 ? SUBMIT(s.q[0], BUFFERS(buffers[i]))
                                           : commit_to(s.q[0], buffers[i]);
    }
    s.rig.memory.fail_at = k;
    s.rig.memory.fail_after = after_it;
    for (i = 3; i--;) softmetal_finish(buffers[i]);
    for (i = 0; i < 4; i++) assert_failed(s.q[0], tickets[i], 3);
    assert_timeline_failed(s.b, 3);
    assert_ok(gpusync_next_error(s.q[0], &cursor, &error));
    assert_culprit(&error, 3);
    assert_result(gpusync_next_error(s.q[0], &cursor, &error), GPUSYNC_NOT_READY);
    assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(stats_of(s.q[0]).failures, 4);
    clear(&s);
    for (i = 0; i < 4; i++) assert_failed(s.q[0], tickets[i], 3);
    s.rig.memory.fail_at = 0;
    s.rig.memory.fail_after = false;
    next = finish_on(&s, 0);
    assert_well(s.q[0], next);
    next = fail_on(&s, 0, 4);
    assert_failed(s.q[0], next, 4);
    for (i = 0; i < 4; i++) assert_failed(s.q[0], tickets[i], 3); /* there was memory for both */
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

static void test_without_memory_for_the_log_two_failures_never_end_well(void **state)
{
    gpusync_ticket first[2], second[2];
    void *buffers[2];
    unsigned i, k;
    stage s;
    (void)state;
    open_sticky(&s, SOFTMETAL_MANUAL, 1);
    for (k = 0; k < 2; k++) {
        gpusync_ticket *tickets = k ? second : first;
        tickets[0] = commit_failing(&s, 0, 60 + (long)k, &buffers[0]);
        tickets[1] = commit_empty_to(s.q[0], &buffers[1]);
        s.rig.memory.fail_at = 1;
        s.rig.memory.fail_after = true;
        finish(&s, 0);
        clear(&s);
        s.rig.memory.fail_at = 0;
        s.rig.memory.fail_after = false;
    }
    for (i = 0; i < 2; i++) {
        assert_info(s.q[0], first[i], GPUSYNC_ERROR_RESULT_UNKNOWN);
        assert_failed(s.q[0], second[i], 61);
    }
    assert_result(gpusync_queue_wait(s.q[0], 0), GPUSYNC_ERROR_EXECUTION);
    close_stage(&s);
}

/* -- random programs, and a model of them ------------------------------------------------------------------------ */

#define MOST_TICKETS 24u

enum { WELL = 0, GIVEN_UP = -1 }; /* how a ticket ended; above: the code of its failure */

typedef struct model_ticket {
    bool fails, held;
    bool freed;             /* what it waits for has come: it is held, if at all, by work before it */
    bool over;             /* its work: its turn may not have come */
    bool dropped, given_up; /* it was held, and never goes; by gpusync_cancel_held */
    long code;
} model_ticket;

typedef struct model {
    model_ticket t[MOST_TICKETS];
    unsigned count, ended, failures;
    unsigned first, last; /* tickets behind the first, up to the last, fail with this code */
    long code;
    bool stuck;
} model;

static void drop_held(model *m, bool given_up)
{
    unsigned i;
    for (i = 0; i < m->count; i++) {
        if (!m->t[i].held) continue;
        m->t[i].held = false;
        m->t[i].over = m->t[i].dropped = true;
        m->t[i].given_up = given_up;
    }
}

/* Held work goes in its order, but not while dropped work before it has its turn to come, which may fail it. */
static void let_go(model *m)
{
    unsigned i;
    for (i = m->ended; i < m->count && !m->t[i].dropped; i++) {
        if (!m->t[i].held) continue;
        if (!m->t[i].freed) return;
        m->t[i].held = false;
    }
}

/* The whole of the rule. Tickets have numbers from 1 on. */
static void take_turns(model *m)
{
    while (m->ended < m->count && m->t[m->ended].over) {
        model_ticket *t = &m->t[m->ended++];
        if (m->stuck || (m->ended > m->first && m->ended <= m->last)) {
            t->code = m->code;
        } else if (t->given_up) {
            t->code = GIVEN_UP;
        } else if (t->fails) {
            t->code = m->code = 100 + (long)m->ended;
            m->first = m->ended;
            m->stuck = true;
        }
        if (t->code > 0) m->failures++;
        if (m->stuck) drop_held(m, false);
    }
    let_go(m);
}

static void clear_model(model *m)
{
    if (m->stuck) m->last = m->count;
    m->stuck = false;
}

static bool any_held(const model *m)
{
    unsigned i;
    for (i = 0; i < m->count && !m->t[i].held; i++) {}
    return i < m->count;
}

/* What is played beside the model. */
typedef struct piece {
    void *buffers[2];          /* NULL: finished */
    bool shown[2];             /* the status tells of the end, and the handler is still to come */
    gpusync_timeline *signals; /* its value 1; NULL: nothing */
    outcome told;              /* of the ticket */
} piece;

typedef struct play {
    model model;
    piece pieces[MOST_TICKETS];
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *go; /* what held work waits for */
    uint64_t value;       /* of it */
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

/* A command buffer for the next ticket; the one that makes it fail, if it is to. */
static void *open_piece(play *p, const gpusync_point *wait, bool fails)
{
    void *buffer = OPEN(p->queue, .label = "the culprit", .waits = wait, .wait_count = wait != NULL);
    if (fails) softmetal_fail(buffer, "TestDomain", 101 + (long)p->model.count, "it broke");
    return buffer;
}

/* A refused one is discarded. */
static void check_refused(play *p, piece *made, unsigned count)
{
    bool promised = !metal4_run(); /* by an encoded signal */
    uint64_t value;
    unsigned i;
    for (i = 0; i < count; i++) assert_ok(either_discard(p->queue, made->buffers[i]));
    if (!made->signals) return;
    must_be(p, (gpusync_timeline_query(made->signals, &value) != GPUSYNC_OK) == promised, "what a refused one promised");
    assert_ok(gpusync_timeline_destroy(made->signals));
}

/* A commit, or a submission of one or two command buffers, perhaps with a wait for `go` and with a signal. */
static void play_work(play *p)
{
    model *m = &p->model;
    piece *made = &p->pieces[m->count];
    model_ticket *t = &m->t[m->count];
    bool submitted = draw(p, 2), waits = submitted && draw(p, 3) == 0, signals = submitted && draw(p, 2);
    unsigned i, count = submitted && !metal4_run() ? 1 + draw(p, 2) : 1, bad = draw(p, count);
    gpusync_point wait = at(p->go, p->value + 1), signal;
    gpusync_submission submission;
    gpusync_ticket ticket;
    gpusync_result result;

    memset(made, 0, sizeof *made);
    memset(t, 0, sizeof *t);
    memset(&submission, 0, sizeof submission);
    t->fails = draw(p, 5) == 0;
    for (i = 0; i < count; i++)
        made->buffers[i] = open_piece(p, waits && !i && !metal4_run() ? &wait : NULL, t->fails && i == bad);
    if (signals) {
        made->signals = timeline_new(p->device);
        signal = at(made->signals, 1);
        submission.signals = &signal;
    }
    submission.signal_count = signals;
    submission.waits = &wait;
    submission.wait_count = waits && metal4_run();
    submission.command_buffers = made->buffers;
    submission.command_buffer_count = count;
    submission.flags = SIGNALS_INSIDE;
    if (submitted) result = submit_as_told(p->queue, &submission, &ticket);
    else result = either_commit(p->queue, made->buffers[0], &ticket);
    must_be(p, result == (m->stuck ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK), "work is refused, or is not");
    if (m->stuck) {
        check_refused(p, made, count);
        return;
    }
    t->held = waits || any_held(m);
    t->freed = !waits;
    must_be(p, ticket == ++m->count, "another number");
    on_done(p->queue, ticket, &made->told);
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
    t->over = (!on->buffers[0] || on->shown[0]) && (!on->buffers[1] || on->shown[1]);
}

static gpusync_result result_of(const model_ticket *t)
{
    return t->code == GIVEN_UP ? GPUSYNC_ERROR_CANCELLED : t->code ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
}

static void play_go(play *p)
{
    unsigned i;
    assert_ok(gpusync_timeline_signal(p->go, ++p->value));
    for (i = 0; i < p->model.count; i++) p->model.t[i].freed = true;
    let_go(&p->model);
}

/* Polls every ticket, the last or the first one first, and then compares all that can be asked. */
static void check_play(play *p)
{
    model *m = &p->model;
    bool down = draw(p, 2);
    gpusync_stats stats;
    unsigned i;
    take_turns(m);
    for (i = 0; i < m->count; i++) {
        unsigned n = down ? m->count - 1 - i : i;
        long code = m->t[n].code;
        gpusync_result got = gpusync_poll(p->queue, n + 1);
        must_be(p, got == (n < m->ended ? result_of(&m->t[n]) : GPUSYNC_NOT_READY), "another result");
        if (code > 0) must_be(p, error_of(p->queue, n + 1).code == code, "another error");
    }
    stats = stats_of(p->queue);
    must_be(p, stats.commits == m->count && stats.completions == m->ended, "another count of ends");
    must_be(p, stats.failures == m->failures, "another count of failures");
    for (i = 0; i < m->count; i++) {
        gpusync_timeline *timeline = p->pieces[i].signals;
        bool failed = m->t[i].dropped || m->t[i].code != WELL; /* dropped work fails its timelines before its turn */
        uint64_t value = 9;
        if (!timeline) continue;
        must_be(p, (gpusync_timeline_query(timeline, &value) != GPUSYNC_OK) == failed, "another timeline");
        must_be(p, value == (i < m->ended && m->t[i].code == WELL), "another value");
    }
}

/* Each ticket's callback has been told once, in their order, as the model says. */
static void check_told(const play *p)
{
    unsigned i;
    assert_true(softmetal_dispatched(SECONDS(20)));
    for (i = 0; i < p->model.count; i++) {
        const outcome *told = &p->pieces[i].told;
        const model_ticket *t = &p->model.t[i];
        must_be(p, calls_so_far(told) == 1 && told->result == result_of(t), "a callback is told otherwise");
        must_be(p, !i || told[0].order > p->pieces[i - 1].told.order, "callbacks in another order");
        must_be(p, t->code <= 0 || (told->error.code == t->code && told->error.ticket == i + 1), "a callback's error");
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
    for (step = 0; step < 40; step++) {
        unsigned what = draw(&p, 16);
        bool room = p.model.count < MOST_TICKETS;
        if (what < 7 && room) play_work(&p);
        else if (what < 13 && p.model.count) play_end(&p);
        else if (what == 13) play_go(&p);
        else if (what == 14 && draw(&p, 2)) {
            assert_ok(gpusync_cancel_held(p.queue));
            drop_held(&p.model, true);
        } else if (what == 15) {
            assert_ok(gpusync_queue_clear_failure(p.queue));
            clear_model(&p.model);
        }
        check_play(&p);
        if (step % 16 == 15) free(report_of(device)); /* in every state */
    }
    play_go(&p);
    while (p.model.ended < p.model.count)
        for (i = 0; i < 2 * p.model.count; i++, check_play(&p)) play_end(&p);
    for (i = 0; i < p.model.count; i++)
        for (k = 0; k < 2; k++) {
            piece *on = &p.pieces[i];
            if (!on->buffers[k] || p.model.t[i].dropped) continue;
            softmetal_finish(on->buffers[k]);
        }
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
        must(either_buffer(r->queue, &desc, &buffer) == GPUSYNC_OK, "no command buffer");
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
        cmocka_unit_test(test_commits_end_in_order_whatever_the_order_of_their_handlers),
        cmocka_unit_test(test_submissions_end_in_order_among_commits),
        cmocka_unit_test(test_callbacks_come_at_the_turn_of_their_tickets),
        cmocka_unit_test(test_a_value_is_reached_at_the_turn_of_the_submission_that_signals_it),
        cmocka_unit_test(test_a_sleeping_wait_ends_at_the_turn_of_its_ticket),
        cmocka_unit_test(test_a_blocking_wait_ends_at_the_turn_of_its_ticket),
        cmocka_unit_test(test_a_wait_for_handlers_ends_at_the_turn_of_its_ticket),
        cmocka_unit_test(test_room_comes_with_the_handler_and_does_not_await_the_turn),
        cmocka_unit_test(test_an_object_is_released_at_the_turn_of_its_ticket),
        cmocka_unit_test(test_700_commits_end_at_once_when_the_first_has_ended),
        cmocka_unit_test(test_700_submissions_end_at_once_when_the_first_has_ended),
        cmocka_unit_test(test_the_trace_tells_each_end_once_in_order_with_the_result_of_the_ticket),
        cmocka_unit_test(test_a_submission_that_has_its_turn_is_ended_by_one_thread),
        cmocka_unit_test(test_a_ticket_that_ended_early_keeps_its_times),
        cmocka_unit_test(test_a_poll_ends_in_order_what_no_handler_has_told),
        cmocka_unit_test(test_a_poll_of_early_work_finds_the_failure_before_it_that_no_handler_has_told),
        cmocka_unit_test(test_a_wait_for_everything_finds_ends_that_no_handler_has_told),
        cmocka_unit_test(test_a_poll_of_a_commit_ends_a_submission_before_it),
        cmocka_unit_test(test_the_handler_of_early_work_may_come_after_its_turn),
        cmocka_unit_test(test_a_lost_handler_delays_later_tickets_and_hangs_none),
        cmocka_unit_test(test_the_sweep_ends_in_order_what_lost_handlers_have_not_told),
        cmocka_unit_test(test_a_handler_that_is_held_up_holds_no_later_ticket_up),
        cmocka_unit_test(test_no_ticket_waits_for_a_thread_that_is_in_the_log_hook),
        cmocka_unit_test(test_no_ticket_waits_for_a_thread_that_tells_the_log_hook_of_a_submission),
        cmocka_unit_test(test_work_behind_a_failure_fails_with_its_error),
        cmocka_unit_test(test_work_that_the_device_has_runs_to_its_end_though_its_ticket_fails),
        cmocka_unit_test(test_a_waiter_for_a_signal_behind_failed_work_gets_the_failure),
        cmocka_unit_test(test_without_the_option_a_signal_behind_failed_work_hides_the_failure),
        cmocka_unit_test(test_work_of_another_queue_behind_such_a_signal_gets_the_failure),
        cmocka_unit_test(test_work_of_another_queue_that_waits_for_a_later_ticket_gets_the_failure),
        cmocka_unit_test(test_of_failed_commits_the_one_with_the_lowest_ticket_tells_why),
        cmocka_unit_test(test_of_failed_commits_and_submissions_the_lowest_ticket_tells_why),
        cmocka_unit_test(test_a_part_of_a_submission_that_fails_fails_the_signal_and_all_later_work),
        cmocka_unit_test(test_held_work_behind_a_failure_is_never_committed),
        cmocka_unit_test(test_held_work_that_is_given_up_ends_at_its_turn),
        cmocka_unit_test(test_held_work_that_a_submission_fails_is_never_committed),
        cmocka_unit_test(test_held_work_that_ends_before_its_turn_awaits_it),
        cmocka_unit_test(test_held_work_behind_held_work_that_fails_is_never_committed),
        cmocka_unit_test(test_held_work_before_held_work_that_fails_is_issued),
        cmocka_unit_test(test_a_signal_of_held_work_that_fails_does_not_await_the_turn),
        cmocka_unit_test(test_the_failure_of_a_ticket_of_another_queue_sticks_to_work_that_waited_for_it),
        cmocka_unit_test(test_the_failure_of_a_timeline_sticks_to_work_that_waited_for_it),
        cmocka_unit_test(test_a_timeline_that_had_failed_before_the_submission_sticks_too),
        cmocka_unit_test(test_what_another_queue_gave_up_sticks_to_work_that_waited_for_it),
        cmocka_unit_test(test_a_timeline_that_is_destroyed_sticks_to_work_that_was_held_for_it),
        cmocka_unit_test(test_an_unknown_result_of_another_queue_sticks_to_work_that_waited_for_it),
        cmocka_unit_test(test_work_that_the_queue_gave_up_does_not_stick),
        cmocka_unit_test(test_work_that_is_given_up_behind_work_in_flight_ends_at_its_turn),
        cmocka_unit_test(test_work_that_was_given_up_gets_the_failure_before_it),
        cmocka_unit_test(test_a_refused_commit_changes_nothing_and_succeeds_after_the_clear),
        cmocka_unit_test(test_a_refused_commit_takes_no_pointer_for_a_ticket),
        cmocka_unit_test(test_a_refused_buffer_of_the_programs_own_is_not_kept),
        cmocka_unit_test(test_a_refused_submission_changes_nothing_and_succeeds_after_the_clear),
        cmocka_unit_test(test_a_refused_commit_of_several_buffers_changes_nothing),
        cmocka_unit_test(test_command_buffers_are_made_and_encoded_while_a_failure_sticks),
        cmocka_unit_test(test_a_refused_buffer_that_is_discarded_fails_what_it_was_to_signal),
        cmocka_unit_test(test_a_buffer_of_a_refused_submission_that_is_discarded_fails_what_it_was_to_signal),
        cmocka_unit_test(test_a_refused_buffer_that_is_discarded_after_the_clear_fails_what_it_was_to_signal),
        cmocka_unit_test(test_a_refused_signal_is_made_by_a_commit_after_the_clear),
        cmocka_unit_test(test_a_buffer_that_was_not_refused_is_discarded_without_a_failure),
        cmocka_unit_test(test_a_refused_buffer_without_signals_is_discarded_quietly),
        cmocka_unit_test(test_wrong_calls_are_told_so_also_while_a_failure_sticks),
        cmocka_unit_test(test_the_warm_up_of_a_queue_where_a_failure_sticks_says_so),
        cmocka_unit_test(test_gpusync_track_is_refused),
        cmocka_unit_test(test_unordered_submissions_are_refused),
        cmocka_unit_test(test_strict_submissions_await_their_turn_and_fail),
        cmocka_unit_test(test_clear_on_a_queue_without_the_option_is_an_invalid_argument),
        cmocka_unit_test(test_clear_without_a_failure_does_nothing),
        cmocka_unit_test(test_after_a_clear_work_in_flight_fails_and_new_work_does_not),
        cmocka_unit_test(test_timelines_that_failed_stay_failed_after_a_clear),
        cmocka_unit_test(test_old_work_that_fails_after_the_clear_has_the_error_that_was_cleared),
        cmocka_unit_test(test_a_failure_after_the_clear_is_not_lost_behind_old_work_that_failed),
        cmocka_unit_test(test_a_failure_after_the_clear_is_not_lost_behind_old_work_that_failed_first_of_all),
        cmocka_unit_test(test_work_that_fails_early_behind_a_clear_has_not_gone_well),
        cmocka_unit_test(test_two_failures_with_a_clear_in_between_have_tickets_of_their_own),
        cmocka_unit_test(test_callbacks_that_are_registered_later_are_told_the_error_of_their_range),
        cmocka_unit_test(test_work_of_other_queues_gets_the_error_of_the_range_that_it_waits_for),
        cmocka_unit_test(test_a_wait_for_several_points_gets_the_error_of_the_range),
        cmocka_unit_test(test_a_log_without_room_for_both_failures_never_says_that_old_failed_work_went_well),
        cmocka_unit_test(test_given_up_work_that_pushes_the_record_out_makes_no_failed_ticket_well),
        cmocka_unit_test(test_an_old_ticket_of_the_range_is_told_when_the_ring_has_gone_on),
        cmocka_unit_test(test_a_failure_and_all_that_it_fails_have_one_record_and_one_line),
        cmocka_unit_test(test_a_failure_is_recorded_and_logged_at_its_turn),
        cmocka_unit_test(test_every_wait_for_everything_returns_the_error_until_the_clear),
        cmocka_unit_test(test_a_failure_that_no_wait_told_before_the_clear_is_told_once_after_it),
        cmocka_unit_test(test_old_work_that_ends_after_the_clear_is_told_once_by_waits_for_everything),
        cmocka_unit_test(test_a_callback_may_clear_the_failure_and_commit),
        cmocka_unit_test(test_the_log_function_may_clear_the_failure_and_commit),
        cmocka_unit_test(test_work_that_is_held_while_the_failure_is_cleared_fails_at_once),
        cmocka_unit_test(test_destroy_waits_for_the_turn_of_all_and_tells_each),
        cmocka_unit_test(test_destroy_after_a_failure_gives_up_refused_and_open_buffers),
        cmocka_unit_test(test_a_queue_that_goes_says_destroyed_and_gives_up_all_that_is_refused),
        cmocka_unit_test(test_destroy_now_ends_what_awaits_the_turn_of_a_hung_command_buffer),
        cmocka_unit_test(test_destroy_now_tells_work_of_other_queues_that_awaits_early_work),
        cmocka_unit_test(test_destroy_later_ends_when_all_have_had_their_turn),
        cmocka_unit_test(test_the_loss_of_the_device_ends_waits_for_tickets_that_await_their_turn),
        cmocka_unit_test(test_on_a_lost_device_tickets_still_end_in_order),
        cmocka_unit_test(test_without_memory_no_queue_is_made_and_nothing_is_left),
        cmocka_unit_test(test_without_memory_for_the_log_the_failure_sticks_all_the_same),
        cmocka_unit_test(test_without_memory_for_the_log_two_failures_never_end_well),
        cmocka_unit_test(test_threads_that_commit_fail_wait_and_clear_agree_on_every_ticket),
        cmocka_unit_test(test_random_programs_end_as_a_model_says),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
