/* test_turns.c - races that the library must survive, each searched: see races.h

   Contents
     >>end       commit, handler, look; wakers of a sleeper; limits; callbacks that are withdrawn, and of the loss
     >>held      held work: signals that let it go, cancelling, the order of values
     >>room      places of a queue
     >>others    values of other code
     >>destroy   queues, timelines and the device, while something of them goes on */
#define GPUSYNC_IMPLEMENTATION
#include "races.h"

static void *buffers[QUEUES];
static gpusync_ticket tickets[QUEUES];
static outcome outcomes[QUEUES];
static bool flags[QUEUES];
static int numbers[QUEUES] = {0, 1, 2};

static void forget(void)
{
    memset(buffers, 0, sizeof buffers);
    memset(tickets, 0, sizeof tickets);
    memset(outcomes, 0, sizeof outcomes);
    memset(flags, 0, sizeof flags);
}

static void begin(int queues, int timelines)
{
    forget();
    open_stage(queues, timelines);
}

static bool has_ticket(void *ticket)
{
    return *(gpusync_ticket *)ticket > 0;
}

static void close_plainly(void *unused)
{
    close_stage();
}

/* -------------------------------------------------------------------------------------------------------- >>end -- */

/* Two tickets, the second of which fails. The handler, the polls and a look of the wait may each end them. */
static void commit_two(void *unused)
{
    for (int i = 0; i < 2; i++)
        tickets[i] = submit_buffer(stage.q[0], buffers[i], NULL, NULL, &outcomes[i], 0);
    turns_expect(wait_for_ever(stage.q[0], tickets[1]), GPUSYNC_ERROR_EXECUTION);
    turns_expect(records_of(stage.q[0]), 1);
    turns_expect(gpusync_poll(stage.q[0], tickets[0], NULL), GPUSYNC_OK);
}

static const gpusync_result of_two[2] = {GPUSYNC_OK, GPUSYNC_ERROR_EXECUTION};

static bool poll_one(int i)
{
    gpusync_result result = gpusync_poll(stage.q[0], i + 1, NULL);
    if (result == GPUSYNC_NOT_READY || result == GPUSYNC_ERROR_INVALID_TICKET)
        return false;
    turns_expect(result, of_two[i]);
    turns_expect(records_of(stage.q[0]) >= (unsigned)i, 1); /* on record before the poll tells of it */
    return true;
}

static void poll_two(void *unused)
{
    turns_until(has_ticket, &tickets[0]);
    for (int round = 0; round < 2; round++)
        for (int i = 1; i >= 0; i--)
            if (poll_one(i)) {
                see(0);
                turns_check(poll_one(i)); /* once ended, it stays ended */
            }
}

static void set_up_end(void *unused)
{
    begin(1, 0);
    for (int i = 0; i < 2; i++)
        buffers[i] = make_buffer(stage.q[0]);
    softmetal_fail(buffers[1], NULL, 3, NULL);
    turns_add("commits", commit_two, NULL);
    turns_add("polls", poll_two, NULL);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_end(void *unused)
{
    for (int i = 0; i < 2; i++) {
        turns_expect(outcomes[i].calls, 1);
        turns_expect(outcomes[i].result, of_two[i]);
    }
    turns_expect(stage.lines, 1);
    turns_expect(records_of(stage.q[0]), 1);
    close_stage();
}

without_stage(test_S4_a_ticket_that_three_may_end_ends_once)
{
    race("end", set_up_end, tear_down_end, NULL, 1, 200, 1);
}

/* A handler wakes a plain wait before it reads the GPU times; a wait for handlers comes behind both of them. */
static void wait_plainly(void *unused)
{
    turns_expect(wait_for_ever(stage.q[0], 1), GPUSYNC_OK);
    see(0);
}

static gpusync_times times; /* as the wait for handlers found them */

static void wait_for_times(void *unused)
{
    turns_expect(gpusync_wait(stage.q[0], 1, GPUSYNC_FOREVER, &(gpusync_wait_options){.handlers = true}), GPUSYNC_OK);
    turns_expect(gpusync_poll(stage.q[0], 1, &times), GPUSYNC_OK);
    turns_check(times.gpu_start_s > 0);
    see(1);
}

static void set_up_times(void *count)
{
    begin(1, 0);
    gpusync_submission s = {.command_buffers = buffers, .command_buffer_count = (size_t) * (int *)count};
    for (size_t i = 0; i < s.command_buffer_count; i++)
        buffers[i] = make_buffer(stage.q[0]);
    turns_expect(gpusync_submit(stage.q[0], &s, NULL), GPUSYNC_OK);
    turns_add("waits", wait_plainly, NULL);
    turns_add("asks for times", wait_for_times, NULL);
    turns_gpus(1);
}

static void tear_down_times(void *unused)
{
    gpusync_times last;
    turns_expect(gpusync_poll(stage.q[0], 1, &last), GPUSYNC_OK);
    turns_check(last.gpu_start_s == times.gpu_start_s && last.gpu_end_s == times.gpu_end_s);
    close_stage();
}

without_stage(test_R26_behind_a_wait_for_handlers_a_poll_has_the_times)
{
    race("times", set_up_times, tear_down_times, &numbers[1], 1, 300, 3);
    race("times of two", set_up_times, tear_down_times, &numbers[2], 1, 300, 3);
}

static void signal_one(void *number)
{
    turns_expect(gpusync_timeline_signal(stage.t[*(int *)number], 1), GPUSYNC_OK);
}

/* A sleeper whose entries two wakers take at a time. It waits again at once: in the same frame a waker that comes late
   would meet another sleeper. */
static void sleep_for_both(void *unused)
{
    for (uint64_t value = 1; value <= 2; value++) {
        const gpusync_point both[2] = {gpusync_at_value(stage.t[0], value), gpusync_at_value(stage.t[1], value)};
        size_t which = 9;
        turns_expect(gpusync_wait_many(both, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, NULL, &which), GPUSYNC_OK);
        turns_check(which < 2);
        see((unsigned)which);
        turns_expect(gpusync_wait_many(both, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which), GPUSYNC_OK);
        turns_check(which == 2);
    }
}

static void signal_twice(void *number)
{
    gpusync_timeline *t = stage.t[*(int *)number];
    turns_expect(gpusync_timeline_signal(t, 1), GPUSYNC_OK);
    turns_expect(gpusync_timeline_signal(t, 2), GPUSYNC_OK);
}

static void set_up_wakers(void *unused)
{
    begin(0, 2);
    turns_add("sleeps", sleep_for_both, NULL);
    turns_add("one", signal_twice, &numbers[0]);
    turns_add("other", signal_twice, &numbers[1]);
}

/* A park may end early for no reason: then the sleeper is awake while a waker is about to unpark it, and another one. */
static void sleep_beside(void *unused)
{
    turns_expect(gpusync_timeline_wait(stage.t[0], 1, GPUSYNC_FOREVER, NULL), GPUSYNC_OK);
}

static void sleep_for_all(void *unused)
{
    const gpusync_point both[2] = {gpusync_at_value(stage.t[0], 1), gpusync_at_value(stage.t[1], 1)};
    turns_expect(gpusync_wait_many(both, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL), GPUSYNC_OK);
}

static void set_up_early(void *unused)
{
    begin(0, 2);
    turns_add("sleeps beside", sleep_beside, NULL);
    turns_add("sleeps", sleep_for_all, NULL);
    turns_add("one", signal_one, &numbers[0]);
    turns_add("other", signal_one, &numbers[1]);
    stage.early_parks = 1;
}

without_stage(test_R23_a_sleeper_with_two_wakers_is_woken)
{
    race("wakers", set_up_wakers, close_plainly, NULL, 1, 1000, 3);
    race("wakers and early parks", set_up_early, close_plainly, NULL, 1, 1000, 0);
}

/* What has ended by the deadline has ended: ended_ns is taken when the end is a fact. */
enum { LIMIT = 700 }; /* ns */
static uint64_t ended_ns;

/* By itself time moves only with the looks at the clock. */
static void let_time_pass(void *unused)
{
    for (int i = 0; i < 2; i++) {
        turns_point("time passes");
        turns.now += LIMIT / 2;
    }
}

static void check_limited(gpusync_result result, uint64_t begun)
{
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_TIMEOUT);
    turns_check(result == GPUSYNC_OK || ended_ns == 0 || ended_ns >= begun + LIMIT);
    see(result == GPUSYNC_OK);
}

static void wait_for_ticket_with_limit(void *unused)
{
    uint64_t begun = gpusync_now_ns();
    check_limited(gpusync_wait(stage.q[0], tickets[0], LIMIT, NULL), begun);
    turns_expect(wait_for_ever(stage.q[0], tickets[0]), GPUSYNC_OK);
}

static void hesitate(void)
{
    for (int i = 0; i < 4; i++) /* else few seeds end the wait by its limit */
        turns_point("hesitates");
}

static void end_first(void *unused)
{
    hesitate();
    softmetal_complete(buffers[0]);
    ended_ns = gpusync_now_ns();
    turns_point("completed");
    softmetal_finish(buffers[0]);
}

static void set_up_ticket_limit(void *unused)
{
    begin(1, 0);
    ended_ns = 0;
    buffers[0] = make_buffer(stage.q[0]);
    tickets[0] = commit_buffer(stage.q[0], buffers[0]);
    turns_add("waits", wait_for_ticket_with_limit, NULL);
    turns_add("gpu", end_first, NULL);
    turns_add("time", let_time_pass, NULL);
}

static void wait_for_value_with_limit(void *unused)
{
    uint64_t begun = gpusync_now_ns();
    check_limited(gpusync_timeline_wait(stage.t[0], 1, LIMIT, NULL), begun);
    turns_expect(gpusync_timeline_wait(stage.t[0], 1, GPUSYNC_FOREVER, NULL), GPUSYNC_OK);
}

static void signal_and_note(void *unused)
{
    hesitate();
    turns_expect(gpusync_timeline_signal(stage.t[0], 1), GPUSYNC_OK);
    ended_ns = gpusync_now_ns();
}

static void set_up_value_limit(void *unused)
{
    begin(0, 1);
    ended_ns = 0;
    turns_add("waits", wait_for_value_with_limit, NULL);
    turns_add("signals", signal_and_note, NULL);
    turns_add("time", let_time_pass, NULL);
}

without_stage(test_S4_what_has_ended_by_the_deadline_has_ended)
{
    race("limit of a ticket", set_up_ticket_limit, close_plainly, NULL, 1, 200, 3);
    race("limit of a value", set_up_value_limit, close_plainly, NULL, 1, 200, 3);
}

/* -- callbacks: one that is withdrawn, and the loss */

static outcome *withdrawn; /* the user of the first callback: freed by the one side that may */

static void free_outcome(void *user, gpusync_result result, const gpusync_error *error)
{
    note_outcome(&outcomes[0], result, error);
    free(user);
}

static void withdraw_the_equal(void *unused)
{
    gpusync_result result = gpusync_cancel_on_done(gpusync_at_ticket(stage.q[0], 1), note_outcome, &outcomes[1]);
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_NOT_READY);
    outcomes[1].ticket += result == GPUSYNC_OK; /* how many were withdrawn */
}

static void withdraw_the_first(void *unused)
{
    gpusync_result result = gpusync_cancel_on_done(gpusync_at_ticket(stage.q[0], 1), free_outcome, withdrawn);
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_NOT_READY);
    flags[0] = result == GPUSYNC_OK;
    if (flags[0])
        free(withdrawn);
    see(flags[0]);
    withdraw_the_equal(NULL);
}

static void set_up_withdrawals(void *unused)
{
    begin(1, 0);
    withdrawn = (outcome *)malloc(sizeof *withdrawn);
    commit_buffer(stage.q[0], make_buffer(stage.q[0]));
    const gpusync_point point = gpusync_at_ticket(stage.q[0], 1);
    turns_expect(gpusync_on_done(point, note_outcome, &outcomes[1]), GPUSYNC_OK);
    turns_expect(gpusync_on_done(point, free_outcome, withdrawn), GPUSYNC_OK);
    turns_expect(gpusync_on_done(point, note_outcome, &outcomes[1]), GPUSYNC_OK);
    turns_add("withdraws", withdraw_the_first, NULL);
    turns_add("withdraws, too", withdraw_the_equal, NULL);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_withdrawals(void *unused)
{
    turns_expect(outcomes[0].calls, !flags[0]);
    turns_expect(outcomes[1].calls + outcomes[1].ticket, 2);
    close_stage();
}

without_stage(test_R42_a_callback_is_called_or_was_withdrawn)
{
    race("withdrawals", set_up_withdrawals, tear_down_withdrawals, NULL, 1, 500, 3);
}

static void note_loss(void *user, const gpusync_error *error)
{
    note_outcome(user, error->result, error);
}

static void register_for_loss(void *number)
{
    outcome *o = &outcomes[*(int *)number];
    gpusync_result result = gpusync_device_on_lost(stage.device, note_loss, o);
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_IN_USE);
    o->ticket = result == GPUSYNC_OK;
    if (o->ticket)
        see(gpusync_device_is_lost(stage.device));
}

static void look_for_loss(void *unused)
{
    gpusync_result result = gpusync_poll(stage.q[0], 1, NULL);
    turns_check(result == GPUSYNC_NOT_READY || result == GPUSYNC_ERROR_EXECUTION);
}

static void set_up_loss(void *unused)
{
    begin(1, 0);
    buffers[0] = make_buffer(stage.q[0]);
    softmetal_fail_as(buffers[0], SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    commit_buffer(stage.q[0], buffers[0]);
    turns_add("registers", register_for_loss, &numbers[0]);
    turns_add("registers, too", register_for_loss, &numbers[1]);
    turns_add("looks", look_for_loss, NULL);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_loss(void *unused)
{
    turns_expect(outcomes[0].ticket + outcomes[1].ticket, 1);
    for (int i = 0; i < 2; i++) {
        turns_expect(outcomes[i].calls, outcomes[i].ticket);
        turns_expect(outcomes[i].result, outcomes[i].ticket ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK);
    }
    close_stage();
}

without_stage(test_R43_one_function_is_called_for_the_loss)
{
    race("loss", set_up_loss, tear_down_loss, NULL, 1, 500, 3);
}

/* ------------------------------------------------------------------------------------------------------- >>held -- */

/* Each on a queue of its own, or, UNORDERED, on one. */
static void hold(int i, bool together)
{
    const gpusync_point wait = gpusync_at_value(stage.t[i], 1);
    gpusync_queue *q = stage.q[together ? 0 : i];
    tickets[i] = submit_buffer(q, make_buffer(q), &wait, NULL, NULL, together ? GPUSYNC_SUBMIT_UNORDERED : 0);
}

static void commit_behind(void *unused)
{
    tickets[2] = commit_buffer(stage.q[0], buffers[0]);
}

static void set_up_missed(void *together)
{
    begin(2, 2);
    buffers[0] = make_buffer(stage.q[0]);
    for (int i = 0; i < 2; i++)
        hold(i, together);
    turns_add("signals 0", signal_one, &numbers[0]);
    turns_add("signals 1", signal_one, &numbers[1]);
    turns_add("commits", commit_behind, NULL);
}

/* No wait looks: what Metal does not have by now is forgotten. */
static void tear_down_missed(void *together)
{
    turns_expect(softmetal_outstanding(stage.metal[0]), together ? 3 : 2);
    for (int i = 0; i < 2; i++)
        softmetal_finish_queue(stage.metal[i]);
    for (int i = 0; i < 2; i++) {
        turns_check(gpusync_is_done(stage.q[i], GPUSYNC_EVERYTHING));
        turns_expect(gpusync_poll(stage.q[i], tickets[i], NULL), GPUSYNC_OK);
    }
    close_stage();
}

/* The commit sends what another thread has found ready, and ends it: it wakes the sleeper, too. */
static void wait_for_nothing_held(void *unused)
{
    turns_expect(wait_for_ever(stage.q[0], tickets[0]), GPUSYNC_OK);
}

static void submit_nothing(void)
{
    const gpusync_point wait = gpusync_at_value(stage.t[0], 1), signal = gpusync_at_value(stage.t[1], 1);
    const gpusync_submission nothing = {
        .wait_points = &wait, .wait_count = 1, .signal_points = &signal, .signal_count = 1, .flags = 0};
    turns_expect(gpusync_submit(stage.q[0], &nothing, &tickets[0]), GPUSYNC_OK);
}

static void set_up_missed_end(void *unused)
{
    begin(1, 2);
    buffers[0] = make_buffer(stage.q[0]);
    submit_nothing();
    turns_add("sleeps", wait_for_nothing_held, NULL);
    turns_add("signals", signal_one, &numbers[0]);
    turns_add("commits", commit_behind, NULL);
}

static void tear_down_missed_end(void *unused)
{
    softmetal_finish_queue(stage.metal[0]);
    close_stage();
}

without_stage(test_S6_nothing_held_is_forgotten)
{
    race("missed", set_up_missed, tear_down_missed, NULL, 1, 200, 0);
    race("missed together", set_up_missed, tear_down_missed, numbers, 1, 200, 0);
    race("missed end", set_up_missed_end, tear_down_missed_end, NULL, 1, 200, 0);
}

/* Two threads signal one timeline from the host: one writes the event for both, and what is last on it is the highest. */
static void signal_lower(void *unused)
{
    gpusync_result result = gpusync_timeline_signal(stage.t[0], 1);
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_NOT_RISING);
    see(result == GPUSYNC_OK);
}

static void signal_higher(void *unused)
{
    turns_expect(gpusync_timeline_signal(stage.t[0], 2), GPUSYNC_OK);
}

static void set_up_event(void *unused)
{
    begin(0, 1);
    turns_add("signals 1", signal_lower, NULL);
    turns_add("signals 2", signal_higher, NULL);
}

static void tear_down_event(void *unused)
{
    uint64_t base = 0;
    void *metal_event = gpusync_timeline_metal(stage.t[0], &base);
    turns_expect(metal_event_value(metal_event), 2 + base);
    close_stage();
}

without_stage(test_S7_the_event_gets_the_highest_value)
{
    race("event", set_up_event, tear_down_event, NULL, 1, 200, 3);
}

/* Two threads commit to one queue: the order of tickets is the order in Metal. */
static void *of_ticket[5];

static void commit_in_order(void *number)
{
    bool submits = *(int *)number == 0;
    void *buffer = make_buffer(stage.q[0]);
    of_ticket[commit_buffer(stage.q[0], buffer)] = buffer;
    buffer = make_buffer(stage.q[0]);
    of_ticket[submits ? submit_buffer(stage.q[0], buffer, NULL, NULL, NULL, 0) : commit_buffer(stage.q[0], buffer)] =
        buffer;
}

static void set_up_order(void *unused)
{
    begin(1, 0);
    memset(of_ticket, 0, sizeof of_ticket);
    turns_add("one", commit_in_order, &numbers[0]);
    turns_add("two", commit_in_order, &numbers[1]);
}

static void tear_down_order(void *unused)
{
    for (int ticket = 1; ticket <= 4; ticket++) {
        turns_check(softmetal_first_in_line(stage.metal[0]) == of_ticket[ticket]);
        softmetal_finish(of_ticket[ticket]);
        turns_expect(gpusync_in_flight(stage.q[0]), 4 - ticket);
    }
    close_stage();
}

without_stage(test_S3_the_order_of_tickets_is_the_order_in_Metal)
{
    race("order", set_up_order, tear_down_order, NULL, 1, 200, 0);
}

/* Two threads commit rising values of one timeline to two queues, numbered at the commit, in each way to signal. Nothing
   comes in between, or a third thread cancels, or the host signals. */
enum { VALUES = 4, OF_HOST = 2, ENCODED = 1 /* no flag of a submission */ };

typedef struct rising {
    uint32_t ways[2][2];
    void (*beside)(void *unused);
    bool order_only;
} rising;

static struct {
    void *buffer; /* retained */
    uint32_t way;
    bool refused;
    gpusync_queue *queue;
    gpusync_ticket ticket; /* 0: UNORDERED, or refused */
    outcome o;
} of_value[VALUES + 1];
static const rising *plan;
static uint64_t numbered;
static bool numbering;

static void cancel_everywhere(void *unused)
{
    for (int i = 0; i < 2; i++)
        turns_expect(gpusync_queue_cancel_held(stage.q[i], GPUSYNC_EVERYTHING), GPUSYNC_OK);
}

static void signal_by_host(void *unused)
{
    gpusync_result result = gpusync_timeline_signal(stage.t[0], OF_HOST);
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_NOT_RISING);
}

static bool may_number(void *unused)
{
    return !numbering;
}

static gpusync_result commit_value(uint64_t value, gpusync_queue *q, void *buffer, uint32_t way)
{
    const gpusync_point signal = gpusync_at_value(stage.t[0], value);
    gpusync_submission s = {NULL, 0, &buffer, 1, &signal, 1, note_outcome, &of_value[value].o, NULL, way};
    of_value[value].buffer = metal_retain(buffer);
    of_value[value].queue = q;
    of_value[value].way = way;
    if (way != ENCODED)
        return gpusync_submit(q, &s, way & GPUSYNC_SUBMIT_UNORDERED ? NULL : &of_value[value].ticket);
    gpusync_result result = gpusync_encode_signal(q, buffer, signal);
    return result == GPUSYNC_OK ? gpusync_commit(q, buffer, &of_value[value].ticket) : result;
}

static void commit_rising(void *number)
{
    int i = *(int *)number;
    for (int round = 0; round < 2; round++) {
        void *buffer = make_buffer(stage.q[i]);
        turns_until(may_number, NULL);
        numbering = true;
        uint64_t value = ++numbered;
        gpusync_result result = commit_value(value, stage.q[i], buffer, plan->ways[i][round]);
        of_value[value].refused = result != GPUSYNC_OK;
        numbering = false;
        if (result == GPUSYNC_OK)
            continue;
        turns_check(result == GPUSYNC_ERROR_NOT_RISING && plan->beside == signal_by_host && value <= OF_HOST);
        turns_expect(gpusync_command_buffer_discard(stage.q[i], buffer), GPUSYNC_OK);
    }
}

/* Metal is through with the work of each value up to this one, unless something came in between, and Metal never got
   it. */
static void check_up_to(uint64_t value)
{
    for (uint64_t v = 1; v <= value; v++) {
        unsigned long status = of_value[v].buffer ? metal_status(of_value[v].buffer) : 0;
        turns_check(status >= 4 || (status == 0 && plan->beside));
    }
}

static void sleep_for_values(void *unused)
{
    for (uint64_t value = 1; value <= VALUES; value++) {
        turns_expect(gpusync_timeline_wait(stage.t[0], value, GPUSYNC_FOREVER, NULL), GPUSYNC_OK);
        check_up_to(value);
    }
}

/* What the GPU, and other code, see: the event shows no value before the work of lower ones is over. */
static void watch_event(void *unused)
{
    void *metal_event = gpusync_timeline_metal(stage.t[0], NULL);
    for (uint64_t shown = 0; shown < VALUES;) {
        shown = metal_event_value(metal_event);
        check_up_to(shown ? shown - 1 : 0);
        turns_yield(NULL);
    }
}

static void set_up_rising(void *user)
{
    plan = (const rising *)user;
    begin(2, 0);
    memset(of_value, 0, sizeof of_value);
    numbered = 0;
    numbering = false;
    const gpusync_timeline_desc desc = {.order_only = plan->order_only};
    turns_expect(gpusync_timeline_create(stage.device, &desc, &stage.t[0]), GPUSYNC_OK);
    turns_add("one", commit_rising, &numbers[0]);
    turns_add("two", commit_rising, &numbers[1]);
    turns_add("sleeps", sleep_for_values, NULL);
    if (plan->beside)
        turns_add("beside", plan->beside, NULL);
    else
        turns_add("watches", watch_event, NULL);
    turns_gpus(2);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_rising(void *unused)
{
    const gpusync_result unrun = plan->beside == signal_by_host ? GPUSYNC_ERROR_NOT_RISING : GPUSYNC_ERROR_CANCELLED;
    uint64_t value = 0;
    bool all = true;
    for (int v = 1; v <= VALUES; v++) {
        const gpusync_ticket ticket = of_value[v].ticket;
        bool ran = is_committed(of_value[v].buffer), called = of_value[v].way != ENCODED && !of_value[v].refused;
        gpusync_result result = called ? of_value[v].o.result : gpusync_poll(of_value[v].queue, ticket, NULL);
        turns_expect(of_value[v].o.calls, called);
        turns_expect(result, ran || of_value[v].refused ? GPUSYNC_OK : unrun);
        all = all && ran;
        metal_release(of_value[v].buffer);
    }
    turns_check(all || plan->beside);
    see(all);
    turns_expect(gpusync_timeline_query(stage.t[0], &value, NULL), GPUSYNC_OK);
    turns_expect(value, VALUES);
    close_stage();
}

without_stage(test_R33_rising_values_of_several_queues_go_in_their_order)
{
    static rising plans[] = {
        {{{ENCODED, 0}, {GPUSYNC_SUBMIT_ON_GPU, ENCODED}}, NULL, false},
        {{{GPUSYNC_SUBMIT_UNORDERED, ENCODED}, {GPUSYNC_SUBMIT_UNORDERED | GPUSYNC_SUBMIT_ON_GPU, 0}}, NULL, false},
        {{{ENCODED, 0}, {GPUSYNC_SUBMIT_UNORDERED, ENCODED}}, cancel_everywhere, true},
        {{{ENCODED, GPUSYNC_SUBMIT_UNORDERED}, {0, ENCODED}}, signal_by_host, false},
    };
    static const char *const names[] = {"rising values", "rising UNORDERED values", "rising values and cancel",
                                        "rising values and the host"};
    for (int i = 0; i < 4; i++)
        race(names[i], set_up_rising, tear_down_rising, &plans[i], 0, 300, plans[i].beside ? 3 : 2);
}

/* A held ticket is cancelled while a signal lets it go: the one or the other, and the work behind it goes. */
static void cancel_one(void *unused)
{
    gpusync_result result = gpusync_queue_cancel_held(stage.q[0], tickets[0]);
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_NOT_READY);
    flags[0] = result == GPUSYNC_OK;
    see(flags[0]);
    turns_expect(gpusync_queue_cancel_held(stage.q[0], tickets[0]), GPUSYNC_NOT_READY);
}

static void sleep_behind(void *unused)
{
    turns_expect(wait_for_ever(stage.q[0], tickets[1]), GPUSYNC_OK);
}

static void set_up_cancel_one(void *unused)
{
    begin(1, 2);
    const gpusync_point wait = gpusync_at_value(stage.t[0], 1), signal = gpusync_at_value(stage.t[1], 1);
    for (int i = 0; i < 2; i++) {
        buffers[i] = metal_retain(make_buffer(stage.q[0]));
        tickets[i] = submit_buffer(stage.q[0], buffers[i], i ? NULL : &wait, i ? NULL : &signal, &outcomes[i], 0);
    }
    turns_add("signals", signal_one, &numbers[0]);
    turns_add("cancels", cancel_one, NULL);
    turns_add("sleeps", sleep_behind, NULL);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_cancel_one(void *unused)
{
    const gpusync_result result = flags[0] ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_OK;
    turns_expect(gpusync_poll(stage.q[0], tickets[0], NULL), result);
    turns_expect(gpusync_timeline_query(stage.t[1], &(uint64_t){0}, NULL), result);
    turns_expect(outcomes[0].result, result);
    turns_expect(is_committed(buffers[0]), !flags[0]);
    for (int i = 0; i < 2; i++) {
        turns_expect(outcomes[i].calls, 1);
        metal_release(buffers[i]);
    }
    close_stage();
}

without_stage(test_R8_a_ticket_is_cancelled_or_let_go)
{
    race("one cancelled and let go", set_up_cancel_one, tear_down_cancel_one, NULL, 1, 300, 3);
}

/* A failure sticks, and is cleared, while a thread commits behind it. What was committed before the clear ends with the
   failure, what comes behind it does not; what fails behind it sticks anew, and is not cleared with the first. */
static bool clears, cleared; /* the clear has begun, has returned */

static bool has_cleared(void *unused)
{
    return cleared;
}

static void commit_beside_clear(void *unused)
{
    for (int i = 1; i < 3; i++) {
        bool behind = cleared;
        gpusync_result result = gpusync_commit(stage.q[0], buffers[i], &tickets[i]);
        see(result == GPUSYNC_OK ? behind : 2);
        if (result != GPUSYNC_OK) {
            turns_check(result == GPUSYNC_ERROR_EXECUTION && !behind);
            turns_until(has_cleared, NULL);
            behind = true;
            tickets[i] = commit_buffer(stage.q[0], buffers[i]);
        }
        flags[i] = !clears; /* it was committed before the clear */
        flags[0] = behind;  /* ... the last one behind it */
        result = wait_for_ever(stage.q[0], tickets[i]);
        turns_check(!behind || result == (i == 2 ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK));
        turns_check(!flags[i] || result == GPUSYNC_ERROR_EXECUTION);
    }
}

static void clear_the_first(void *unused)
{
    gpusync_error stuck;
    turns_expect(wait_for_ever(stage.q[0], 1), GPUSYNC_ERROR_EXECUTION);
    turns_expect(gpusync_queue_failure(stage.q[0], &stuck), GPUSYNC_OK);
    turns_expect(stuck.ticket, 1);
    clears = true;
    turns_expect(gpusync_queue_clear_failure(stage.q[0], 1), GPUSYNC_OK);
    cleared = true;
    gpusync_result again = gpusync_queue_clear_failure(stage.q[0], 1);
    turns_check(again == GPUSYNC_OK || again == GPUSYNC_NOT_READY); /* nothing sticks, or what failed behind the clear */
}

static void set_up_clear(void *unused)
{
    const gpusync_queue_desc desc = {.sticky_failure = true};
    begin(0, 0);
    open_queue(0, &desc);
    clears = cleared = false;
    for (int i = 0; i < 3; i++)
        buffers[i] = make_buffer(stage.q[0]);
    softmetal_fail(buffers[0], NULL, 3, NULL);
    softmetal_fail(buffers[2], NULL, 8, NULL);
    tickets[0] = commit_buffer(stage.q[0], buffers[0]);
    turns_add("commits", commit_beside_clear, NULL);
    turns_add("clears", clear_the_first, NULL);
    turns_gpus(1);
}

/* The last one failed. It sticks if it came behind the clear, and says so itself. */
static void tear_down_clear(void *unused)
{
    gpusync_error stuck;
    gpusync_result result = gpusync_queue_failure(stage.q[0], &stuck);
    turns_check(flags[2] ? result == GPUSYNC_NOT_READY : result == GPUSYNC_OK || !flags[0]);
    if (result == GPUSYNC_OK) {
        turns_expect(stuck.ticket, tickets[2]);
        turns_expect(stuck.inherited, false);
        turns_expect(gpusync_queue_clear_failure(stage.q[0], tickets[2] - 1), GPUSYNC_NOT_READY);
        turns_expect(gpusync_queue_clear_failure(stage.q[0], tickets[2]), GPUSYNC_OK);
    }
    turns_expect(gpusync_queue_failure(stage.q[0], &stuck), GPUSYNC_NOT_READY);
    close_stage();
}

without_stage(test_R32_a_clear_parts_what_was_committed_before_it)
{
    race("clear and commit", set_up_clear, tear_down_clear, NULL, 1, 300, 7);
}

/* ------------------------------------------------------------------------------------------------------- >>room -- */

static int inside; /* threads that have the one place */

static void open_narrow(uint32_t places)
{
    const gpusync_queue_desc desc = {.max_command_buffer_count = places};
    begin(0, 1);
    open_queue(0, &desc);
    inside = 0;
}

/* The queue has all of its places, and no more. */
static void tear_down_room(void *places)
{
    void *buffer;
    int count = *(int *)places;
    for (int i = 0; i < count; i++)
        turns_expect(gpusync_command_buffer_create(stage.q[0], NULL, 0, &buffer), GPUSYNC_OK);
    turns_expect(gpusync_command_buffer_create(stage.q[0], NULL, 0, &buffer), GPUSYNC_TIMEOUT);
    close_stage();
}

/* One place, and a thread that had it gives it back by a discard. */
static void pass_through(void *unused)
{
    for (int round = 0; round < 2; round++) {
        void *buffer = make_buffer(stage.q[0]);
        turns_check(inside++ == 0);
        turns_point("has the place");
        inside--;
        turns_expect(gpusync_command_buffer_discard(stage.q[0], buffer), GPUSYNC_OK);
    }
}

static void set_up_discards(void *unused)
{
    open_narrow(1);
    turns_add("one", pass_through, NULL);
    turns_add("two", pass_through, NULL);
    turns_add("three", pass_through, NULL);
}

/* Two places, both taken: one comes back by an end, one by a discard, while three wait. A submission takes one without a
   wait, or is refused. */
static void take_and_commit(void *unused)
{
    commit_buffer(stage.q[0], make_buffer(stage.q[0]));
}

static void discard_first(void *unused)
{
    turns_expect(gpusync_command_buffer_discard(stage.q[0], buffers[0]), GPUSYNC_OK);
}

static void set_up_ends(void *unused)
{
    open_narrow(2);
    buffers[0] = make_buffer(stage.q[0]);
    commit_buffer(stage.q[0], make_buffer(stage.q[0]));
    turns_add("one", take_and_commit, NULL);
    turns_add("two", take_and_commit, NULL);
    turns_add("discards", discard_first, NULL);
    turns_gpus(1);
}

without_stage(test_R10_each_place_wakes_one)
{
    race("room and discards", set_up_discards, tear_down_room, &numbers[1], 1, 200, 0);
    race("room and ends", set_up_ends, tear_down_room, &numbers[2], 0, 1000, 0);
}

/* Three wait for the one place, each behind the one before it, and get it in this order, though a park of the first ends
   early. */
static const char *const in_line[3] = {"sleeps", "second", "third"};
static int served;

static bool stands_in_line(void *number)
{
    return turns_state_of(in_line[*(int *)number]) == TURNS_PARKED;
}

static void take_in_order(void *number)
{
    int i = *(int *)number;
    if (i > 0)
        turns_until(stands_in_line, &numbers[i - 1]);
    void *buffer = make_buffer(stage.q[0]);
    turns_expect(served++, i);
    turns_expect(gpusync_command_buffer_discard(stage.q[0], buffer), GPUSYNC_OK);
}

static void discard_behind_all(void *unused)
{
    turns_until(stands_in_line, &numbers[2]);
    turns_unpark(NULL, stage.waiter);
    turns_until(stands_in_line, &numbers[0]);
    discard_first(unused);
}

static void set_up_line(void *unused)
{
    open_narrow(1);
    served = 0;
    buffers[0] = make_buffer(stage.q[0]);
    for (int i = 0; i < 3; i++)
        turns_add(in_line[i], take_in_order, &numbers[i]);
    turns_add("discards", discard_behind_all, NULL);
}

without_stage(test_R37_room_is_served_in_the_order_of_the_waits)
{
    race("line for room", set_up_line, tear_down_room, &numbers[1], 1, 200, 0);
}

/* A limit passes as the place comes: it is had, or it is there for the next. With another thread in the line the place
   may be that one's. */
static void take_with_limit(void *alone)
{
    void *buffer;
    uint64_t start_ns = gpusync_now_ns();
    gpusync_result result = gpusync_command_buffer_create(stage.q[0], NULL, LIMIT, &buffer);
    if (!alone)
        ended_ns = 0;
    check_limited(result, start_ns);
    if (result == GPUSYNC_OK)
        turns_expect(gpusync_command_buffer_discard(stage.q[0], buffer), GPUSYNC_OK);
}

static void discard_and_note(void *unused)
{
    discard_first(unused);
    ended_ns = gpusync_now_ns();
}

static void set_up_limit_alone(void *unused)
{
    open_narrow(1);
    ended_ns = 0;
    buffers[0] = make_buffer(stage.q[0]);
    turns_add("limited", take_with_limit, &numbers[0]);
    turns_add("time", let_time_pass, NULL);
    turns_add("discards", discard_and_note, NULL);
}

static void set_up_limit_and_another(void *unused)
{
    set_up_limit_alone(unused);
    turns.task[0].argument = NULL; /* not alone */
    turns_add("waits", pass_through, NULL);
}

without_stage(test_R10_a_limit_loses_no_place)
{
    race("limit of room", set_up_limit_alone, tear_down_room, &numbers[1], 1, 200, 3);
    race("limit of room and another", set_up_limit_and_another, tear_down_room, &numbers[1], 1, 200, 3);
}

/* ----------------------------------------------------------------------------------------------------- >>others -- */

/* Metal's listeners are a helper: the thread of softmetal's that calls a block counts as the helper, and is let go by it
   alone. */
static void *event;
static uint64_t raised;

static void raise_event(uint64_t value)
{
    metal_event_signal(event, value);
    raised++;
}

static bool is_raised(void *task)
{
    return ((turns_task *)task)->seen != raised;
}

static void tell_listeners(void *unused)
{
    turns_task *task = turns_self();
    do {
        while (is_raised(task)) {
            task->seen = raised;
            softmetal_tell_listeners(event);
            if (!softmetal_settle_listeners(TURNS_LONG_ENOUGH))
                turns_fail("a listener does not end");
            turns_point("listeners were told");
        }
    } while (turns_idle(is_raised, task));
}

static void add_listeners(void)
{
    turns_task *task = turns_add_helper("listeners", tell_listeners, NULL, is_raised);
    task->condition_argument = task;
    task->seen = raised = 0;
}

static void open_imported(int queues)
{
    begin(queues, 0);
    softmetal_set_quirks(&(const softmetal_quirks){.deaf_to_everything = true}); /* but for softmetal_tell_listeners */
    event = metal_shared_event_new(gpusync_device_metal(stage.device));
    gpusync_timeline_desc desc = {.shared_event = event};
    turns_expect(gpusync_timeline_create(stage.device, &desc, &stage.t[0]), GPUSYNC_OK);
}

static void raise_twice(void *unused)
{
    raise_event(3);
    turns_point("3");
    raise_event(5);
}

static bool is_first_over(void *unused)
{
    return turns_state_of("waits for 3") == TURNS_OVER;
}

/* The one that waits for 3 must not need 5. */
static void raise_one_by_one(void *unused)
{
    raise_event(3);
    turns_until(is_first_over, NULL);
    raise_event(5);
}

/* Metal is asked for 3, or for 5, by what waits for it; then something comes that waits for the other one. */
typedef enum waiting { A_CALLBACK, A_SLEEPER, TWO_SLEEPERS, HELD_WORK, WAITINGS } waiting;
static waiting waitings[WAITINGS] = {A_CALLBACK, A_SLEEPER, TWO_SLEEPERS, HELD_WORK};
static uint64_t values[2] = {3, 5};

static bool is_called(void *o)
{
    return ((outcome *)o)->calls > 0;
}

static void list_callback(void *value)
{
    int i = *(uint64_t *)value == 5;
    turns_expect(gpusync_on_done(gpusync_at_value(stage.t[0], *(uint64_t *)value), note_outcome, &outcomes[i]),
                 GPUSYNC_OK);
    turns_until(is_called, &outcomes[i]);
    turns_expect(outcomes[i].result, GPUSYNC_OK);
}

static void sleep_until(void *value)
{
    turns_expect(gpusync_timeline_wait(stage.t[0], *(uint64_t *)value, GPUSYNC_FOREVER, NULL), GPUSYNC_OK);
}

static void submit_host_sync(void *value)
{
    const gpusync_point wait = gpusync_at_value(stage.t[0], *(uint64_t *)value);
    int i = *(uint64_t *)value == 5;
    void *buffer = make_buffer(stage.q[i]);
    tickets[i] = submit_buffer(stage.q[i], buffer, &wait, NULL, &outcomes[i], 0);
    turns_until(is_called, &outcomes[i]);
    turns_expect(outcomes[i].result, GPUSYNC_OK);
}

static void set_up_listener(void *kind)
{
    static void (*const bodies[WAITINGS])(void *) = {list_callback, sleep_until, sleep_until, submit_host_sync};
    void (*body)(void *) = bodies[*(waiting *)kind];
    open_imported(2);
    turns_add("waits for 3", body, &values[0]);
    turns_add("waits for 5", body, &values[1]);
    turns_add("raises", *(waiting *)kind == TWO_SLEEPERS ? raise_one_by_one : raise_twice, NULL);
    add_listeners();
    if (*(waiting *)kind == HELD_WORK)
        turns_gpus(2);
    if (*(waiting *)kind == HELD_WORK || *(waiting *)kind == A_CALLBACK)
        turns_callbacks_when_told(stage.device);
}

static void tear_down_listener(void *unused)
{
    softmetal_tell_listeners(event);
    softmetal_settle_listeners(TURNS_LONG_ENOUGH);
    turns_expect(gpusync_timeline_destroy(stage.t[0]), GPUSYNC_OK);
    stage.t[0] = NULL;
    metal_release(event);
    close_stage();
}

without_stage(test_R18_a_value_of_other_code_is_not_missed)
{
    static const char *const names[WAITINGS] = {"listener and callback", "listener and sleeper",
                                                "listener and two sleepers", "listener and held work"};
    for (int i = 0; i < WAITINGS; i++)
        race(names[i], set_up_listener, tear_down_listener, &waitings[i], i == HELD_WORK ? 0 : 1, 100, 0);
}

/* The event shows 5, but stays below the own signal of 2 until that work has settled. The thread that has read the event
   is about to go, and nothing else reads it for the callback: the end of the work has to. */
static void set_up_settling(void *unused)
{
    open_imported(1);
    buffers[0] = make_buffer(stage.q[0]);
    turns_expect(gpusync_encode_signal(stage.q[0], buffers[0], gpusync_at_value(stage.t[0], 2)), GPUSYNC_OK);
    commit_buffer(stage.q[0], buffers[0]);
    metal_event_signal(event, 5);
    turns_add("waits for 5", list_callback, &values[1]);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

without_stage(test_R18_a_value_that_is_not_believed_is_read_again)
{
    race("event and settling", set_up_settling, tear_down_listener, NULL, 1, 200, 0);
}

/* The call reserves room for the queues that there are, and a newer one comes in between. */
static void wait_for_the_device(void *unused)
{
    turns_expect(gpusync_device_wait(stage.device, GPUSYNC_FOREVER, NULL), GPUSYNC_OK);
    turns_check(gpusync_is_done(stage.q[0], 1));
    see(stage.q[1] != NULL);
}

static void make_a_queue(void *unused)
{
    open_queue(1, NULL);
}

static void set_up_newer(void *unused)
{
    begin(1, 0);
    commit_buffer(stage.q[0], make_buffer(stage.q[0]));
    turns_add("waits", wait_for_the_device, NULL);
    turns_add("makes a queue", make_a_queue, NULL);
    turns_gpus(1);
}

without_stage(test_R27_a_newer_queue_takes_no_place_of_an_older_one)
{
    race("device and newer queue", set_up_newer, close_plainly, NULL, 1, 200, 3);
}

/* ---------------------------------------------------------------------------------------------------- >>destroy -- */

/* Waits that are in progress. Where each atomic operation is a point, a call that has only been begun may not have read
   the object yet: it has to sleep. */
static const turns_task *begun[4];

static bool is_in_progress(const turns_task *task)
{
#ifdef WITH_ATOMICS
    return task && (task->state == TURNS_PARKED || task->state == TURNS_OVER);
#else
    return task != NULL;
#endif
}

static bool have_begun(void *count)
{
    int n = 0;
    for (int i = 0; i < 4; i++)
        n += is_in_progress(begun[i]);
    return n >= *(int *)count;
}

/* A wait for a ticket, and one for room. What ends first, the work or the queue, is told. */
static void wait_in_queue(void *unused)
{
    begun[0] = turns_self();
    gpusync_result result = wait_for_ever(stage.q[0], 1);
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
    see(result == GPUSYNC_OK);
}

static void wait_for_place(void *unused)
{
    void *buffer = NULL;
    begun[1] = turns_self();
    gpusync_result result = gpusync_command_buffer_create(stage.q[0], NULL, GPUSYNC_FOREVER, &buffer);
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
    turns_check((buffer != NULL) == (result == GPUSYNC_OK));
    see(result == GPUSYNC_OK ? 3 : 2);
}

static int two = 2;

/* The destroy may begin when the two are calls in progress. */
static void destroy_first(void *unused)
{
    turns_until(have_begun, &two);
    turns_expect(gpusync_queue_destroy(stage.q[0]), GPUSYNC_OK);
    stage.q[0] = NULL;
    turns_expect(metal_status(buffers[0]), 4); /* Completed */
}

static bool are_waits_over(void *unused)
{
    return turns_state_of("waits") == TURNS_OVER && turns_state_of("waits for room") == TURNS_OVER;
}

/* A GPU that ends its work only when no wait needs that. */
static void end_last(void *unused)
{
    turns_until(are_waits_over, NULL);
    softmetal_finish(buffers[0]);
}

static void set_up_sleeper(void *slow)
{
    open_narrow(1);
    memset(begun, 0, sizeof begun);
    buffers[0] = metal_retain(make_buffer(stage.q[0]));
    commit_buffer(stage.q[0], buffers[0]);
    turns_add("waits", wait_in_queue, NULL);
    turns_add("waits for room", wait_for_place, NULL);
    turns_add("destroys", destroy_first, NULL);
    if (slow)
        turns_add("gpu", end_last, NULL);
    else
        turns_gpus(1);
}

static void tear_down_sleeper(void *unused)
{
    metal_release(buffers[0]);
    close_stage();
}

without_stage(test_R20_a_destroy_ends_waits_in_progress)
{
    race("destroy and sleeper", set_up_sleeper, tear_down_sleeper, NULL, 1, 200, 15);
    race("destroy before the end", set_up_sleeper, tear_down_sleeper, numbers, 0, 300, 5);
}

/* ALL goes on for the value when the queue of its ticket is destroyed; ALL_OR_FAILURE ends. */
static void wait_for_all(void *unused)
{
    const gpusync_point both[2] = {gpusync_at_ticket(stage.q[0], 1), gpusync_at_value(stage.t[0], 1)};
    size_t which = 9;
    begun[0] = turns_self();
    gpusync_result result = gpusync_wait_many(both, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which);
    turns_check(flags[0]); /* the signal has begun */
    turns_check(result == GPUSYNC_OK ? which == 2 : result == GPUSYNC_ERROR_DESTROYED && which == 0);
    see(result == GPUSYNC_OK);
}

static void wait_for_failure(void *unused)
{
    const gpusync_point both[2] = {gpusync_at_ticket(stage.q[0], 1), gpusync_at_value(stage.t[0], 1)};
    size_t which = 9;
    begun[1] = turns_self();
    gpusync_result result = gpusync_wait_many(both, 2, GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_FOREVER, NULL, &which);
    turns_check(result == GPUSYNC_OK ? which == 2 && flags[0] : result == GPUSYNC_ERROR_DESTROYED && which == 0);
    see(result == GPUSYNC_OK ? 3 : 2);
}

static void signal_and_tell(void *unused)
{
    flags[0] = true;
    turns_expect(gpusync_timeline_signal(stage.t[0], 1), GPUSYNC_OK);
}

static void set_up_many(void *unused)
{
    begin(1, 1);
    memset(begun, 0, sizeof begun);
    buffers[0] = metal_retain(make_buffer(stage.q[0]));
    commit_buffer(stage.q[0], buffers[0]);
    turns_add("waits for all", wait_for_all, NULL);
    turns_add("waits for a failure", wait_for_failure, NULL);
    turns_add("signals", signal_and_tell, NULL);
    turns_add("destroys", destroy_first, NULL);
    turns_gpus(1);
}

without_stage(test_R20_a_destroyed_queue_is_a_failed_point)
{
    race("destroy and many", set_up_many, tear_down_sleeper, NULL, 0, 300, 15);
}

/* UNORDERED work ends in any order, beside tickets, while a thread waits for everything, and perhaps destroys the queue.
   The first is held, or cancelled by the destroy; the second fails. */
static void wait_for_everything(void *destroys)
{
    begun[0] = turns_self();
    gpusync_result result = wait_for_ever(stage.q[0], GPUSYNC_EVERYTHING);
    bool destroyed = result == GPUSYNC_ERROR_DESTROYED;
    turns_check(result == GPUSYNC_ERROR_EXECUTION || (destroys && (destroyed || result == GPUSYNC_ERROR_CANCELLED)));
    for (int i = 0; i < 3 && !destroyed; i++)
        turns_check(metal_status(buffers[i]) >= 4 || (i == 0 && destroys && !is_committed(buffers[i])));
    see(!destroyed);
}

static void destroy_with_unordered(void *unused)
{
    turns_until(have_begun, &numbers[1]);
    turns_expect(gpusync_queue_destroy(stage.q[0]), GPUSYNC_OK);
    stage.q[0] = NULL;
    for (int i = 0; i < 2; i++)
        turns_expect(outcomes[i].calls, 1);
}

static void set_up_unordered(void *destroys)
{
    begin(1, 1);
    memset(begun, 0, sizeof begun);
    const gpusync_point wait = gpusync_at_value(stage.t[0], 1);
    for (int i = 0; i < 3; i++)
        buffers[i] = metal_retain(make_buffer(stage.q[0]));
    softmetal_fail(buffers[1], NULL, 3, NULL);
    for (int i = 0; i < 2; i++)
        submit_buffer(stage.q[0], buffers[i], i ? NULL : &wait, NULL, &outcomes[i], GPUSYNC_SUBMIT_UNORDERED);
    commit_buffer(stage.q[0], buffers[2]);
    turns_add("waits", wait_for_everything, destroys);
    turns_add("signals", signal_one, &numbers[0]);
    if (destroys)
        turns_add("destroys", destroy_with_unordered, NULL);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_unordered(void *destroys)
{
    if (!destroys) {
        turns_check(gpusync_is_done(stage.q[0], GPUSYNC_EVERYTHING));
        turns_expect(records_of(stage.q[0]), 1);
        turns_expect(gpusync_wait(stage.q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_OK); /* it was told */
    }
    bool ran = is_committed(buffers[0]);
    turns_check(ran || destroys);
    turns_expect(outcomes[0].result, ran ? GPUSYNC_OK : GPUSYNC_ERROR_CANCELLED);
    turns_expect(outcomes[1].result, GPUSYNC_ERROR_EXECUTION);
    for (int i = 0; i < 3; i++)
        metal_release(buffers[i]);
    see(ran ? 2 : 3);
    close_stage();
}

without_stage(test_R30_a_wait_for_everything_and_a_destroy_cover_UNORDERED_work)
{
    race("UNORDERED and everything", set_up_unordered, tear_down_unordered, NULL, 1, 200, 6);
    race("UNORDERED and destroy", set_up_unordered, tear_down_unordered, numbers, 0, 200, 15);
}

/* UNORDERED work with signals ends before earlier such work does, while a thread commits more: the memory of each is used
   again, and is the work's alone until its handler has returned. */
static void submit_some(void *unused)
{
    for (uint64_t value = 1; value <= 4; value++) {
        const gpusync_point signal = gpusync_at_value(stage.t[1], value);
        submit_buffer(stage.q[0], make_buffer(stage.q[0]), NULL, &signal, &outcomes[1], GPUSYNC_SUBMIT_UNORDERED);
    }
}

static void set_up_reuse(void *unused)
{
    begin(1, 2);
    const gpusync_point wait = gpusync_at_value(stage.t[0], 1);
    submit_buffer(stage.q[0], make_buffer(stage.q[0]), &wait, NULL, &outcomes[0], GPUSYNC_SUBMIT_UNORDERED);
    turns_add("submits", submit_some, NULL);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_reuse(void *unused)
{
    turns_expect(outcomes[1].calls, 4);
    turns_expect(gpusync_timeline_wait(stage.t[1], 4, 0, NULL), GPUSYNC_OK);
    turns_expect(gpusync_queue_cancel_held(stage.q[0], GPUSYNC_EVERYTHING), GPUSYNC_OK);
    turns_check(gpusync_is_done(stage.q[0], GPUSYNC_EVERYTHING));
    close_stage();
}

without_stage(test_R30_UNORDERED_work_that_ends_early_goes_once)
{
    race("UNORDERED and reuse", set_up_reuse, tear_down_reuse, NULL, 1, 300, 0);
}

enum { QUEUE_GONE, TIMELINE_GONE, DEVICE_GONE, GONES };
static int gones[GONES];

/* The queue of a callback that runs is destroyed. As long as the callback finds its buffer open, it may encode. */
static void encode_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    note_outcome(user, result, error);
    result = gpusync_encode_signal(stage.q[0], buffers[1], gpusync_at_value(stage.t[0], 1));
    see(result == GPUSYNC_OK);
    if (result != GPUSYNC_OK) { /* the buffer may be gone: it is not asked */
        turns_expect(result, GPUSYNC_ERROR_DESTROYED);
        turns_expect(gpusync_commit(stage.q[0], buffers[1], NULL), GPUSYNC_ERROR_DESTROYED);
        return;
    }
    for (int i = 0; i < 3; i++) {
        turns_point("encodes");
        turns_expect(softmetal_live("buffer"), 1); /* what the open command buffer uses */
    }
}

static void destroy_or_later(void *later)
{
    if (later)
        turns_expect(gpusync_queue_destroy_later(stage.q[0], count_gone, &gones[QUEUE_GONE]), GPUSYNC_OK);
    else
        turns_expect(gpusync_queue_destroy(stage.q[0]), GPUSYNC_OK);
}

static void set_up_encoding(void *later)
{
    begin(1, 1);
    memset(gones, 0, sizeof gones);
    for (int i = 0; i < 2; i++)
        buffers[i] = make_buffer(stage.q[0]);
    void *memory = metal_buffer_new(gpusync_device_metal(stage.device), 16), *blit = metal_blit_begin(buffers[1]);
    metal_fill(blit, memory, 0, 16, 1);
    metal_end(blit);
    metal_release(memory);
    turns_expect(gpusync_on_done(gpusync_at_ticket(stage.q[0], commit_buffer(stage.q[0], buffers[0])),
                                 encode_in_callback, &outcomes[0]),
                 GPUSYNC_OK);
    turns_add("destroys", destroy_or_later, later);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_encoding(void *later)
{
    stage.q[0] = NULL;
    turns_expect(outcomes[0].calls, 1);
    turns_expect(softmetal_live("buffer"), 0);
    turns_expect(gones[QUEUE_GONE], later != NULL);
    close_stage();
}

without_stage(test_R20_a_destroy_leaves_open_buffers_to_a_callback_that_runs)
{
    race("destroy and encoding", set_up_encoding, tear_down_encoding, NULL, 1, 200, 3);
    race("later destroy and encoding", set_up_encoding, tear_down_encoding, numbers, 1, 200, 3);
}

/* Callbacks of the queue run in its destroy or in gpusync_device_run_callbacks, each once, and before the destroy has
   returned. */
static int freed;

static void note_freed(void *unused)
{
    check_called();
    freed++;
}

static void destroy_with_callbacks(void *unused)
{
    turns_expect(gpusync_queue_destroy(stage.q[0]), GPUSYNC_OK);
    stage.q[0] = NULL;
    for (int i = 0; i < 2; i++) {
        turns_expect(outcomes[i].calls, 1);
        turns_expect(outcomes[i].result, of_two[i]);
        turns_check(metal_status(buffers[i]) >= 4);
    }
    turns_expect(freed, 1);
}

/* No wait of the program's has told of the failure. */
static void ask_for_everything(void *unused, gpusync_result result, const gpusync_error *error)
{
    turns_expect(result, GPUSYNC_ERROR_EXECUTION);
    turns_expect(gpusync_poll(stage.q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_ERROR_EXECUTION);
}

static void set_up_handler(void *unused)
{
    begin(1, 0);
    freed = 0;
    for (int i = 0; i < 2; i++) {
        buffers[i] = metal_retain(make_buffer(stage.q[0]));
        if (i)
            softmetal_fail(buffers[i], NULL, 3, NULL);
        tickets[i] = submit_buffer(stage.q[0], buffers[i], NULL, NULL, &outcomes[i], 0);
    }
    void *witness = softmetal_new_witness(note_freed, NULL);
    turns_expect(gpusync_release_after(stage.q[0], tickets[1], witness), GPUSYNC_OK);
    metal_release(witness);
    turns_expect(gpusync_on_done(gpusync_at_ticket(stage.q[0], tickets[1]), ask_for_everything, NULL), GPUSYNC_OK);
    turns_add("destroys", destroy_with_callbacks, NULL);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_handler(void *unused)
{
    for (int i = 0; i < 2; i++)
        metal_release(buffers[i]);
    close_stage();
}

without_stage(test_R25_a_destroy_and_handlers_run_each_callback_once)
{
    race("destroy and handler", set_up_handler, tear_down_handler, NULL, 1, 200, 0);
}

/* A signal is about to send held work as its queue is abandoned: once abandon has returned, Metal gets nothing. */
static void abandon(void *unused)
{
    turns_expect(gpusync_queue_abandon(stage.q[0]), GPUSYNC_OK);
    stage.q[0] = NULL;
    flags[0] = is_committed(buffers[0]);
    turns_expect(outcomes[0].calls, 1);
    if (flags[0])
        turns_check(outcomes[0].result == GPUSYNC_OK || outcomes[0].result == GPUSYNC_ERROR_DESTROYED);
    else
        turns_expect(outcomes[0].result, GPUSYNC_ERROR_CANCELLED);
    see(!flags[0] ? 0 : outcomes[0].result == GPUSYNC_OK ? 1 : 2);
}

static void set_up_abandon(void *unused)
{
    begin(1, 1);
    const gpusync_point wait = gpusync_at_value(stage.t[0], 1);
    buffers[0] = metal_retain(make_buffer(stage.q[0]));
    submit_buffer(stage.q[0], buffers[0], &wait, NULL, &outcomes[0], 0);
    turns_add("signals", signal_one, &numbers[0]);
    turns_add("abandons", abandon, NULL);
    turns_gpus(1);
    turns_callbacks_when_told(stage.device);
}

static void tear_down_abandon(void *unused)
{
    turns_check(is_committed(buffers[0]) == flags[0]);
    metal_release(buffers[0]);
    close_stage();
}

without_stage(test_R21_nothing_is_committed_after_abandon)
{
    race("abandon and commit", set_up_abandon, tear_down_abandon, NULL, 1, 200, 7);
}

/* A queue, a timeline and the device are destroyed later, while the GPU ends the last work. The device goes in the
   gpusync_device_run_callbacks that tells so: none comes after it. */
static void note_device_gone(void *unused)
{
    count_gone(&gones[DEVICE_GONE]);
    turns_expect(gones[QUEUE_GONE], 1);
    turns_expect(gones[TIMELINE_GONE], 1);
    turns_expect(outcomes[0].calls, 1);
    turns_expect(outcomes[1].calls, 1);
}

static void note_queue_gone(void *unused)
{
    count_gone(&gones[QUEUE_GONE]);
    turns_expect(outcomes[0].calls, 1);
    turns_expect(outcomes[1].calls, 1);
    turns_check(metal_status(buffers[1]) >= 4);
}

static void destroy_queue_later(void *unused)
{
    turns_expect(gpusync_queue_destroy_later(stage.q[0], note_queue_gone, NULL), GPUSYNC_OK);
}

static void destroy_others_later(void *unused)
{
    turns_expect(gpusync_timeline_destroy_later(stage.t[0], count_gone, &gones[TIMELINE_GONE]), GPUSYNC_OK);
    turns_expect(gpusync_device_destroy_later(stage.device, note_device_gone, NULL), GPUSYNC_OK);
}

static bool is_told_here(void *task)
{
    return gones[DEVICE_GONE] == 0 && turns_is_told(task);
}

static void run_callbacks_to_the_end(void *unused)
{
    turns_task *task = turns_self();
    do {
        while (is_told_here(task)) {
            task->seen = turns.told;
            turns_expect(gpusync_device_run_callbacks(stage.device, SIZE_MAX, NULL), GPUSYNC_OK);
            turns.progress++;
        }
    } while (turns_idle(is_told_here, task));
}

static void set_up_later(void *unused)
{
    begin(1, 1);
    const gpusync_point last = gpusync_at_value(stage.t[0], 1);
    memset(gones, 0, sizeof gones);
    for (int i = 0; i < 2; i++) {
        buffers[i] = metal_retain(make_buffer(stage.q[0]));
        submit_buffer(stage.q[0], buffers[i], NULL, i ? &last : NULL, &outcomes[i], 0);
    }
    turns_add("queue", destroy_queue_later, NULL);
    turns_add("others", destroy_others_later, NULL);
    turns_gpus(1);
    turns_task *task = turns_add_helper("callbacks", run_callbacks_to_the_end, NULL, is_told_here);
    task->condition_argument = task;
    task->seen = 0;
}

static void tear_down_later(void *unused)
{
    turns_expect(gones[DEVICE_GONE], 1);
    stage.q[0] = NULL;
    stage.t[0] = NULL;
    stage.device = NULL;
    for (int i = 0; i < 2; i++) {
        turns_expect(outcomes[i].result, GPUSYNC_OK);
        metal_release(buffers[i]);
    }
    close_stage();
}

without_stage(test_R22_destroy_later_and_the_last_handler)
{
    race("destroy_later and the last handler", set_up_later, tear_down_later, NULL, 0, 300, 0);
}

/* The last queue of a device that is destroyed later goes in a callback, while the call that has destroyed the queue is
   still on its way out. */
static void count_gone_device(void *unused)
{
    count_gone(&gones[DEVICE_GONE]);
}

static void destroy_last_queue(void *unused)
{
    turns_expect(gpusync_queue_destroy_later(stage.q[0], count_gone, &gones[QUEUE_GONE]), GPUSYNC_OK);
}

static void run_until_the_device_is_gone(void *unused)
{
    while (gones[DEVICE_GONE] == 0) {
        turns_expect(gpusync_device_run_callbacks(stage.device, SIZE_MAX, NULL), GPUSYNC_OK);
        if (gones[DEVICE_GONE] == 0)
            turns_yield(NULL);
    }
}

static void set_up_last_queue(void *unused)
{
    begin(1, 0);
    memset(gones, 0, sizeof gones);
    turns_expect(gpusync_device_destroy_later(stage.device, count_gone_device, NULL), GPUSYNC_OK);
    turns_add("destroys", destroy_last_queue, NULL);
    turns_add("runs callbacks", run_until_the_device_is_gone, NULL);
}

static void tear_down_last_queue(void *unused)
{
    turns_expect(gones[QUEUE_GONE], 1);
    stage.q[0] = NULL;
    stage.device = NULL;
    close_stage();
}

without_stage(test_R22_the_last_queue_and_its_device_go_in_a_callback)
{
    race("destroy_later and the device's end", set_up_last_queue, tear_down_last_queue, NULL, 2, 200, 0);
}

/* The handler of failed work calls log, unpark and notify, while a thread that the wait has let go destroys all. */
static void destroy_all(void *unused)
{
    turns_expect(wait_for_ever(stage.q[0], 1), GPUSYNC_ERROR_EXECUTION);
    turns_expect(gpusync_queue_destroy(stage.q[0]), GPUSYNC_OK);
    stage.q[0] = NULL;
    turns_expect(outcomes[0].calls, 1);
    turns_expect(gpusync_device_destroy(stage.device), GPUSYNC_OK);
    stage.device = NULL;
    stage.gone = true;
    turns_expect(stage.blocks, 0);
}

static void set_up_gone(void *unused)
{
    begin(1, 0);
    buffers[0] = make_buffer(stage.q[0]);
    softmetal_fail(buffers[0], NULL, 3, NULL);
    submit_buffer(stage.q[0], buffers[0], NULL, NULL, &outcomes[0], 0);
    turns_add("destroys", destroy_all, NULL);
    turns_gpus(1);
}

static void tear_down_gone(void *unused)
{
    turns_expect(stage.lines, 1);
    close_stage();
}

/* The same of a queue that is destroyed later: it is gone when `destroyed` has returned. */
static void destroy_when_told(void *unused)
{
    turns_expect(wait_for_ever(stage.q[0], 1), GPUSYNC_OK);
    turns_expect(gpusync_queue_destroy_later(stage.q[0], count_gone, &gones[QUEUE_GONE]), GPUSYNC_OK);
    stage.q[0] = NULL;
    while (gones[QUEUE_GONE] == 0) {
        turns_expect(gpusync_device_run_callbacks(stage.device, SIZE_MAX, NULL), GPUSYNC_OK);
        if (gones[QUEUE_GONE] == 0)
            turns_yield(NULL);
    }
    turns_expect(gpusync_device_destroy(stage.device), GPUSYNC_OK);
    stage.device = NULL;
    stage.gone = true;
    turns_expect(stage.blocks, 0);
}

static void set_up_gone_later(void *unused)
{
    begin(1, 0);
    memset(gones, 0, sizeof gones);
    submit_buffer(stage.q[0], make_buffer(stage.q[0]), NULL, NULL, &outcomes[0], 0);
    turns_add("destroys", destroy_when_told, NULL);
    turns_gpus(1);
}

without_stage(test_S10_nothing_is_called_after_device_destroy)
{
    race("device_destroy and notify", set_up_gone, tear_down_gone, NULL, 1, 200, 0);
    race("device_destroy and destroy_later", set_up_gone_later, close_plainly, NULL, 1, 200, 0);
}

/* A timeline is destroyed between the work that signals it and the work that waits for it. Behind the commit of the
   signal work is not touched; before it held work ends, as it does where the open signal is discarded. Waits of the host
   end. */
static void end_producer(void *commits)
{
    if (!commits)
        discard_first(NULL);
    else
        tickets[0] = commit_buffer(stage.q[0], buffers[0]);
}

/* flags[0]: the timeline's destroy came behind the commit of the signal. */
static void commit_consumer(void *commits)
{
    tickets[1] = commit_buffer(stage.q[1], buffers[1]);
    gpusync_result result = wait_for_ever(stage.q[1], tickets[1]);
    turns_check(result == GPUSYNC_ERROR_DESTROYED ? !flags[0] : result == GPUSYNC_OK && commits);
    see(result == GPUSYNC_OK ? 2 : 3);
}

static void wait_for_the_value(void *unused)
{
    begun[0] = turns_self();
    gpusync_result result = gpusync_timeline_wait(stage.t[0], 1, GPUSYNC_FOREVER, NULL);
    turns_check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
    see(result == GPUSYNC_OK);
}

static void destroy_timeline(void *count)
{
    turns_until(have_begun, count);
    flags[0] = tickets[0] > 0;
    turns_expect(gpusync_timeline_destroy(stage.t[0]), GPUSYNC_OK);
    stage.t[0] = NULL;
    turns_expect(outcomes[0].calls, 1);
}

static void set_up_between(void *commits)
{
    begin(2, 1);
    memset(begun, 0, sizeof begun);
    const gpusync_point one = gpusync_at_value(stage.t[0], 1);
    for (int i = 0; i < 2; i++)
        buffers[i] = make_buffer(stage.q[i]);
    turns_expect(gpusync_encode_signal(stage.q[0], buffers[0], one), GPUSYNC_OK);
    turns_expect(gpusync_encode_wait(stage.q[1], buffers[1], one), GPUSYNC_OK);
    turns_expect(gpusync_on_done(one, note_outcome, &outcomes[0]), GPUSYNC_OK);
    turns_add("produces", end_producer, commits);
    turns_add("consumes", commit_consumer, commits);
    turns_add("waits", wait_for_the_value, NULL);
    turns_add("destroys", destroy_timeline, &numbers[1]);
    turns_gpus(2);
}

static void tear_down_between(void *commits)
{
    turns_expect(outcomes[0].calls, 1);
    turns_check(outcomes[0].result == GPUSYNC_ERROR_DESTROYED || (commits && outcomes[0].result == GPUSYNC_OK));
    close_stage();
}

without_stage(test_R19_a_timeline_destroyed_behind_the_commit_of_its_signal_carries_accepted_work)
{
    race("timeline destroy and commit", set_up_between, tear_down_between, numbers, 0, 300, 15);
    race("timeline destroy and discard", set_up_between, tear_down_between, NULL, 0, 100, 9);
}
