/* test_held.c - work that has a ticket and that Metal does not have yet

   What holds work and what lets it go (S3, S6), the order of values with each of its cells (T3, R4), the ends of held
   work (R8, R9), UNORDERED work (R1), tickets as points (R7), buffers that cannot be held (R5). Almost all of it on the
   manual clock, where the test knows what Metal has. */
#include "kit.h"

#define UNORDERED GPUSYNC_SUBMIT_UNORDERED
#define ON_GPU GPUSYNC_SUBMIT_ON_GPU

/* Submits one buffer with at most one wait and one signal: a NULL is none. */
static gpusync_ticket send_one(gpusync_queue *queue, const gpusync_point *wait, void *buffer,
                               const gpusync_point *signal, uint32_t flags)
{
    gpusync_submission submission = {.wait_points = wait, .wait_count = wait != NULL, .command_buffers = &buffer,
                                     .command_buffer_count = 1, .signal_points = signal, .signal_count = signal != NULL,
                                     .flags = flags};
    return submit_at(queue, &submission, __FILE__, __LINE__);
}

/* -- S6: what holds work ------------------------------------------------------------------------------------------ */

typedef enum way_to_come {
    BY_THE_HOST,
    BY_SENT_WORK,
    BY_HOST_SYNC_WORK,
    BY_HELD_WORK,
    BY_AN_OPEN_BUFFER,
    WAYS
} way_to_come;

/* How the value 1 of t[0] comes: in three steps, after each of which the test asks what Metal has. */
static void *begin_to_signal(stage *s, way_to_come way)
{
    gpusync_point one = at(s->t[0], 1);
    gpusync_point go = at(s->t[1], 1);
    void *buffer = NULL;
    if (way == BY_SENT_WORK) send_one(s->q[1], NULL, new_buffer(s->q[1]), &one, 0);
    if (way == BY_HOST_SYNC_WORK) send_one(s->q[1], NULL, new_buffer(s->q[1]), &one, 0);
    if (way == BY_HELD_WORK) send_one(s->q[1], &go, new_buffer(s->q[1]), &one, 0);
    if (way == BY_AN_OPEN_BUFFER) buffer = signalling(s->q[1], one);
    return buffer;
}

static void go_on_to_signal(stage *s, way_to_come way, void *open)
{
    if (way == BY_HELD_WORK) signal_value(s->t[1], 1);
    if (way == BY_AN_OPEN_BUFFER) commit(s->q[1], open);
}

on_all_kinds_with(test_S6_work_is_held_until_its_value_is_reached_or_metal_has_the_signal, .queues = 2)
{
    static const uint32_t kinds[] = {ON_GPU, ON_GPU | UNORDERED, 0, UNORDERED};
    for (unsigned way = 0; way < WAYS; way++) {
        for (unsigned kind = 0; kind < LENGTH(kinds); kind++) {
            bool gpu_waits = kinds[kind] & ON_GPU;
            s->t[0] = new_timeline(s->device);
            s->t[1] = new_timeline(s->device);
            gpusync_point one = at(s->t[0], 1);
            void *buffer = new_buffer(s->q[0]);
            void *open = begin_to_signal(s, (way_to_come)way);
            gpusync_ticket ticket = send_one(s->q[0], &one, buffer, NULL, kinds[kind]);
            assert_int_equal(is_sent(buffer), way == BY_SENT_WORK && gpu_waits);
            go_on_to_signal(s, (way_to_come)way, open);
            assert_int_equal(is_sent(buffer), way != BY_THE_HOST && way != BY_HOST_SYNC_WORK && gpu_waits);
            assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
            if (way == BY_THE_HOST) signal_value(s->t[0], 1);
            while (finish_next(s->q[1])) {}
            assert_int_equal(value_of(s->t[0]), 1);
            assert_true(is_sent(buffer));
            assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
            finish_all(s);
            assert_ok(gpusync_poll(s->q[0], ticket, NULL));
            assert_ok(gpusync_timeline_destroy(s->t[0]));
            assert_ok(gpusync_timeline_destroy(s->t[1]));
            s->t[0] = s->t[1] = NULL;
        }
    }
}

on_both_kinds_with(test_S6_every_wait_counts_the_encoded_ones_and_those_of_the_submission, .timelines = 4)
{
    unsigned order[3];
    for (unsigned i = 0; i < 6; i++) {
        void *buffers[2] = {waiting(s->q[0], at(s->t[0], i + 1)), waiting(s->q[0], at(s->t[1], i + 1))};
        gpusync_ticket ticket =
            SUBMIT(s->q[0], WAITS(at(s->t[2], i + 1)), BUFFERS(buffers[0], buffers[1]), SIGNALS(at(s->t[3], i + 1)), .flags = GPUSYNC_SUBMIT_ON_GPU);
        order[0] = i % 3;
        order[1] = (i + 1 + i / 3) % 3;
        order[2] = 3 - order[0] - order[1];
        for (unsigned k = 0; k < 3; k++) {
            assert_false(is_sent(buffers[0]));
            assert_false(is_sent(buffers[1]));
            signal_value(s->t[order[k]], i + 1);
        }
        assert_true(is_sent(buffers[0]));
        assert_true(is_sent(buffers[1]));
        finish_all(s);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        assert_int_equal(value_of(s->t[3]), i + 1);
    }
}

on_all_kinds_with(test_S6_nothing_is_encoded_for_what_has_come, .queues = 2, .timelines = 1)
{
    uint64_t waits = softmetal_message_count("encodeWaitForEvent:value:");
    gpusync_ticket ended = commit_new(s->q[1]);
    void *buffer = new_buffer(s->q[0]);
    finish_all(s);
    signal_value(s->t[0], 4);
    encode_wait(s->q[0], buffer, at(s->t[0], 4));
    encode_wait(s->q[0], buffer, ticket_at(s->q[1], ended));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 3), ticket_at(s->q[1], ended)), BUFFERS(buffer), .flags = GPUSYNC_SUBMIT_ON_GPU);
    assert_true(is_sent(buffer));
    assert_int_equal(softmetal_message_count("encodeWaitForEvent:value:"), waits);
    assert_int_equal(softmetal_outstanding(s->metal[0]), 1); /* and there is no buffer of gpusync's in front */
}

on_all_kinds_with(test_S6_work_goes_to_the_gpu_where_other_code_signals_and_host_sync_work_does_not, .queues = 2,
                  .timelines = 1, .timeline.signalled_by_others = true)
{
    uint64_t base = 0;
    void *event = gpusync_timeline_metal(s->t[0], &base);
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[1])};
    gpusync_ticket first = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(buffers[0]), .flags = GPUSYNC_SUBMIT_ON_GPU);
    gpusync_ticket second = SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(buffers[1]));
    assert_true(is_sent(buffers[0]));
    assert_false(is_sent(buffers[1]));
    assert_false(finish_next(s->q[0]));
    metal_event_signal(event, base + 1);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_true(is_sent(buffers[1])); /* the listener lets it go, without a call of the program's */
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], first, NULL));
    assert_ok(gpusync_poll(s->q[1], second, NULL));
}

/* -- S3: held behind held ----------------------------------------------------------------------------------------- */

on_both_kinds_with(test_S3_ordered_work_lines_up_behind_held_work_and_runs_in_the_order_of_tickets, .timelines = 1)
{
    void *buffers[6];
    gpusync_ticket tickets[6];
    note notes[6] = {0};
    for (unsigned i = 0; i < 6; i++) {
        buffers[i] = marked(s, 0, i);
        if (i == 0) encode_wait(s->q[0], buffers[i], at(s->t[0], 1));
        if (i == 3) encode_wait(s->q[0], buffers[i], at(s->t[0], 2));
        tickets[i] = i == 2 ? SUBMIT(s->q[0], BUFFERS(buffers[i])) : commit(s->q[0], buffers[i]);
        assert_int_equal(tickets[i], i + 1);
        on_done(ticket_at(s->q[0], tickets[i]), &notes[i]);
    }
    for (unsigned i = 0; i < 6; i++) assert_false(is_sent(buffers[i]));
    signal_value(s->t[0], 1);
    for (unsigned i = 0; i < 6; i++) assert_int_equal(is_sent(buffers[i]), i < 3);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], tickets[2], NULL));
    for (unsigned i = 3; i < 6; i++) assert_result(gpusync_poll(s->q[0], tickets[i], NULL), GPUSYNC_NOT_READY);
    signal_value(s->t[0], 2);
    finish_all(s);
    assert_marks(0, 1, 2, 3, 4, 5);
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_in_order(notes, 6);
}

on_both_kinds_with(test_S3_a_wait_before_its_signal_on_one_queue_needs_unordered_or_is_cancelled, .timelines = 2)
{
    gpusync_ticket first = commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    gpusync_ticket second = commit(s->q[0], signalling(s->q[0], at(s->t[0], 1)));
    gpusync_point two = at(s->t[1], 1);
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], first, NULL), GPUSYNC_NOT_READY);
    assert_ok(gpusync_queue_cancel_held(s->q[0]));
    assert_result(gpusync_poll(s->q[0], first, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_poll(s->q[0], second, NULL), GPUSYNC_ERROR_CANCELLED);
    first = commit(s->q[0], waiting(s->q[0], two));
    second = send_one(s->q[0], NULL, new_buffer(s->q[0]), &two, UNORDERED);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], first, NULL));
    assert_ok(gpusync_poll(s->q[0], second, NULL));
}

/* -- R1: UNORDERED ------------------------------------------------------------------------------------------------ */

on_both_kinds_with(test_R1_held_unordered_work_holds_up_nothing_of_its_queue, .timelines = 2)
{
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    gpusync_point go = at(s->t[0], 1);
    gpusync_point told = at(s->t[1], 1);
    gpusync_ticket held = send_one(s->q[0], &go, buffers[0], NULL, UNORDERED);
    gpusync_ticket plain = send_one(s->q[0], NULL, buffers[1], &told, 0);
    note note_held = {0}, note_plain = {0};
    on_done(ticket_at(s->q[0], held), &note_held);
    on_done(ticket_at(s->q[0], plain), &note_plain);
    assert_false(is_sent(buffers[0]));
    assert_true(is_sent(buffers[1]));
    finish_all(s);
    assert_int_equal(value_of(s->t[1]), 1);
    assert_ok(gpusync_poll(s->q[0], plain, NULL));
    assert_ok(gpusync_wait(s->q[0], plain, 0, NULL));
    assert_noted(&note_plain, GPUSYNC_OK);
    assert_int_equal(calls_of(&note_held), 0);
    /* The answer of is_done is late here, and what covers all work says that there is some. */
    assert_false(gpusync_is_done(s->q[0], plain));
    assert_int_equal(gpusync_in_flight(s->q[0]), 2);
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_TIMEOUT);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_noted(&note_held, GPUSYNC_OK);
    assert_true(gpusync_is_done(s->q[0], plain));
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL));
}

on_both_kinds_with(test_R1_unordered_work_passes_held_work_and_is_told_alone, .timelines = 1)
{
    void *buffers[3] = {waiting(s->q[0], at(s->t[0], 1)), new_buffer(s->q[0]), new_buffer(s->q[0])};
    gpusync_ticket held = commit(s->q[0], buffers[0]);
    gpusync_ticket passes = SUBMIT(s->q[0], BUFFERS(buffers[1]), .flags = UNORDERED);
    gpusync_ticket plain = commit(s->q[0], buffers[2]);
    note n = {0};
    on_done(ticket_at(s->q[0], passes), &n);
    assert_false(is_sent(buffers[0]));
    assert_true(is_sent(buffers[1]));
    assert_false(is_sent(buffers[2]));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], passes, NULL));
    assert_ok(gpusync_wait(s->q[0], passes, 0, NULL));
    assert_noted(&n, GPUSYNC_OK);
    assert_false(gpusync_is_done(s->q[0], passes)); /* it covers the held one, too */
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_NOT_READY);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], plain, NULL));
    assert_true(gpusync_is_done(s->q[0], plain));
}

/* -- S7, T3: the order of values ---------------------------------------------------------------------------------- */

static const uint32_t kinds_of_work[] = {ON_GPU, ON_GPU | UNORDERED, 0, UNORDERED};

typedef struct cell {
    unsigned lower_queue; /* the higher signal is of q[0] */
    uint32_t lower;       /* flags of the work that signals 3 */
    uint32_t higher;      /* ... 5 */
    bool ping_pong;       /* the latter waits for 3 */
} cell;

static bool next_cell(cell *c, unsigned *i)
{
    if (*i == 64) return false;
    c->lower_queue = *i & 1;
    c->ping_pong = *i & 2;
    c->lower = kinds_of_work[*i >> 2 & 3];
    c->higher = kinds_of_work[*i >> 4 & 3];
    ++*i;
    return true;
}

static void tell_cell(const cell *c, const char *state)
{
    print_message("the lower signal: %s, of %s queue, flags %u; the higher: flags %u%s\n", state,
                  c->lower_queue ? "another" : "the same", c->lower, c->higher, c->ping_pong ? ", waits for it" : "");
}

static void new_timelines(stage *s)
{
    s->t[0] = new_timeline(s->device);
    s->t[1] = new_timeline(s->device);
    forget_marks();
}

static void drop_timelines(stage *s)
{
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    assert_ok(gpusync_timeline_destroy(s->t[1]));
    s->t[0] = s->t[1] = NULL;
}

/* What T3 says of a lower signal that is sent and not reached. A value that the host is to signal, and a wait of the
   host, are not the GPU's to wait for. */
static bool is_held_by_a_sent_signal(const cell *c)
{
    if (c->ping_pong) return !(c->lower & ON_GPU) || !(c->higher & ON_GPU);
    return c->lower_queue != 0 || c->lower != 0 || c->higher != 0;
}

/* Both have run, in this order. */
static void assert_both(stage *s, const cell *c, gpusync_ticket lower, gpusync_ticket higher)
{
    assert_ok(gpusync_poll(s->q[c->lower_queue], lower, NULL));
    assert_ok(gpusync_poll(s->q[0], higher, NULL));
    assert_int_equal(value_of(s->t[0]), 5);
    assert_marks(3, 5);
}

on_stage_with(test_T3_a_signal_above_one_that_is_sent, .queues = 2)
{
    unsigned i = 0;
    cell c;
    while (next_cell(&c, &i)) {
        void *low = marked(s, c.lower_queue, 3);
        void *high = marked(s, 0, 5);
        bool held = is_held_by_a_sent_signal(&c);
        new_timelines(s);
        gpusync_point three = at(s->t[0], 3);
        gpusync_point five = at(s->t[0], 5);
        metal_retain(low);
        metal_retain(high);
        gpusync_ticket lower = send_one(s->q[c.lower_queue], NULL, low, &three, c.lower);
        assert_true(is_sent(low));
        gpusync_ticket higher = send_one(s->q[0], c.ping_pong ? &three : NULL, high, &five, c.higher);
        if (is_sent(high) == held) tell_cell(&c, "sent");
        assert_int_equal(is_sent(high), !held);
        assert_result(gpusync_timeline_wait(s->t[0], 3, 0, NULL), GPUSYNC_TIMEOUT);
        finish_all(s);
        assert_both(s, &c, lower, higher);
        drop_timelines(s);
        metal_release(low);
        metal_release(high);
    }
}

on_all_kinds_with(test_T3_a_signal_above_one_that_is_held, .queues = 2)
{
    unsigned i = 0;
    cell c;
    while (next_cell(&c, &i)) {
        void *low = marked(s, c.lower_queue, 3);
        void *high = marked(s, 0, 5);
        bool behind = c.lower_queue == 0 && !(c.lower & UNORDERED) && !(c.higher & UNORDERED);
        bool overtakes = !behind && !c.ping_pong;
        new_timelines(s);
        gpusync_point three = at(s->t[0], 3);
        gpusync_point five = at(s->t[0], 5);
        gpusync_point go = at(s->t[1], 1);
        metal_retain(high);
        gpusync_ticket lower = send_one(s->q[c.lower_queue], &go, low, &three, c.lower);
        assert_false(is_sent(low));
        gpusync_ticket higher = send_one(s->q[0], c.ping_pong ? &three : NULL, high, &five, c.higher);
        if (is_sent(high) != overtakes) tell_cell(&c, "held");
        assert_int_equal(is_sent(high), overtakes);
        if (overtakes) {
            assert_result(gpusync_poll(s->q[c.lower_queue], lower, NULL), GPUSYNC_ERROR_NOT_RISING);
            signal_value(s->t[1], 1);
            finish_all(s);
            assert_ok(gpusync_poll(s->q[0], higher, NULL));
            assert_int_equal(value_of(s->t[0]), 5); /* the timeline goes on */
            assert_marks(5);
        } else {
            signal_value(s->t[1], 1);
            finish_all(s);
            assert_both(s, &c, lower, higher);
        }
        drop_timelines(s);
        metal_release(high);
    }
}

/* One queue goes ahead with 3 and 4; what waits for 4 waits for all below it as well. */
on_all_kinds_with(test_T3_a_wait_for_a_higher_value_is_ping_pong_too, .queues = 3, .timelines = 1)
{
    void *waits_for_four = waiting(s->q[1], at(s->t[0], 4));
    void *waits_for_three = waiting(s->q[2], at(s->t[0], 3));
    encode_signal(s->q[1], waits_for_four, at(s->t[0], 6));
    encode_signal(s->q[2], waits_for_three, at(s->t[0], 8));
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 3)));
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 4)));
    commit(s->q[1], waits_for_four);
    assert_true(is_sent(waits_for_four));
    commit(s->q[2], waits_for_three); /* 4 and 6 are sent, not reached, and above what it waits for */
    assert_false(is_sent(waits_for_three));
    finish_next(s->q[0]);
    assert_false(is_sent(waits_for_three));
    finish_next(s->q[0]);
    assert_false(is_sent(waits_for_three));
    finish_next(s->q[1]);
    assert_true(is_sent(waits_for_three));
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 8);
}

/* In front of the buffers of a submission, in one of them, or behind them. */
typedef enum place { IN_FRONT, IN_THE_FIRST, IN_THE_SECOND, BEHIND } place;

/* It waits for 4 and signals 5, at these places. */
typedef struct ping_pong {
    place wait, signal;
    bool committed; /* the first buffer, alone */
} ping_pong;

/* A wait that stands behind the signal comes too late: the GPU would signal 5 before 4 is reached. */
on_stage_with(test_T3_ping_pong_has_its_wait_in_front_of_its_signal, .queues = 3)
{
    static const ping_pong rows[] = {
        {.wait = IN_FRONT, .signal = IN_THE_FIRST},
        {.wait = IN_FRONT, .signal = IN_THE_SECOND},
        {.wait = IN_FRONT, .signal = BEHIND},
        {.wait = IN_THE_FIRST, .signal = IN_THE_FIRST},
        {.wait = IN_THE_FIRST, .signal = IN_THE_FIRST, .committed = true},
        {.wait = IN_THE_FIRST, .signal = IN_THE_SECOND},
        {.wait = IN_THE_FIRST, .signal = BEHIND},
        {.wait = IN_THE_SECOND, .signal = IN_THE_SECOND},
        {.wait = IN_THE_SECOND, .signal = BEHIND},
        {.wait = IN_THE_SECOND, .signal = IN_THE_FIRST},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const ping_pong *p = &rows[i];
        bool held = p->signal < p->wait;
        gpusync_ticket higher;
        void *buffers[2] = {new_buffer(s->q[2]), NULL};
        void *low = marked(s, 0, 4);
        new_timelines(s);
        gpusync_point four = at(s->t[0], 4);
        gpusync_point five = at(s->t[0], 5);
        if (!p->committed) buffers[1] = new_buffer(s->q[2]);
        gpusync_ticket lower = send_one(s->q[0], NULL, low, &four, 0);
        void *waits = waiting(s->q[1], four);
        mark(s, waits, 40); /* a 5 that came too early would let it go */
        gpusync_ticket consumer = commit(s->q[1], waits);
        assert_true(is_sent(waits));
        if (p->wait == IN_THE_FIRST) encode_wait(s->q[2], buffers[0], four);
        if (p->wait == IN_THE_SECOND) encode_wait(s->q[2], buffers[1], four);
        if (p->signal == IN_THE_FIRST) encode_signal(s->q[2], buffers[0], five);
        if (p->signal == IN_THE_SECOND) encode_signal(s->q[2], buffers[1], five);
        gpusync_submission submission = {.wait_points = &four, .wait_count = p->wait == IN_FRONT, .command_buffers = buffers,
                                         .command_buffer_count = 2, .signal_points = &five,
                                         .signal_count = p->signal == BEHIND};
        if (p->committed) higher = commit(s->q[2], buffers[0]);
        else higher = submit_at(s->q[2], &submission, __FILE__, __LINE__);
        if (is_sent(buffers[0]) == held)
            fail_msg("wait %d, signal %d%s", p->wait, p->signal, p->committed ? ", committed" : "");
        while (finish_next(s->q[2])) {} /* whatever can go before 4 is reached */
        assert_result(gpusync_poll(s->q[1], consumer, NULL), GPUSYNC_NOT_READY);
        finish_all(s);
        assert_ok(gpusync_poll(s->q[0], lower, NULL));
        assert_ok(gpusync_poll(s->q[1], consumer, NULL));
        assert_ok(gpusync_poll(s->q[2], higher, NULL));
        assert_int_equal(value_of(s->t[0]), 5);
        assert_marks(4, 40);
        drop_timelines(s);
    }
}

/* Another thread encodes a lower signal just as the work is about to go. */
static void open_a_lower_signal(void *user, softmetal_phase phase, void *object, const char *selector)
{
    stage *s = (stage *)user;
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, "setSignaledValue:") != 0) return;
    softmetal_set_message_hook(NULL, NULL);
    signalling(s->q[2], at(s->t[1], 3));
}

/* The host's signal lets both go, the one with the lower value first. That one is held once more by its other timeline:
   the other one does not wait for it any longer. */
on_stage_with(test_T3_work_that_was_about_to_go_and_is_held_again_holds_up_none, .queues = 3, .timelines = 3)
{
    void *low = waiting(s->q[0], at(s->t[2], 1)), *high = waiting(s->q[1], at(s->t[2], 1));
    encode_signal(s->q[0], low, at(s->t[0], 5));
    encode_signal(s->q[0], low, at(s->t[1], 5));
    encode_signal(s->q[1], high, at(s->t[0], 7));
    commit(s->q[0], low);
    commit(s->q[1], high);
    softmetal_set_message_hook(open_a_lower_signal, s);
    signal_value(s->t[2], 1);
    assert_true(is_sent(high));
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_NOT_RISING); /* overtaken */
    finish_all(s);
    assert_ok(gpusync_poll(s->q[1], 1, NULL));
}

/* -- T3, K1: the lowest of those that could go -------------------------------------------------------------------- */

typedef enum trigger { BY_THE_END_BELOW, BY_A_VALUE, BY_A_TICKET, BY_A_DISCARD, TRIGGERS } trigger;

/* Holds work of q[first + 1 ...] with the signals 2 and 3, and lets both go by one event of q[first]. */
static void lowest_first(stage *s, const unsigned *order, bool higher_is_accepted_first, trigger by, uint32_t flags)
{
    gpusync_point values[4];
    gpusync_ticket tickets[4] = {0};
    void *buffers[4] = {NULL};
    void *open = NULL;
    unsigned i;
    new_timelines(s);
    gpusync_point go = at(s->t[1], 1);
    for (i = 1; i < 4; i++) {
        values[i] = at(s->t[0], i);
        buffers[i] = marked(s, order[i - 1], i);
    }
    if (by == BY_A_DISCARD) {
        open = buffers[1];
        encode_signal(s->q[order[0]], open, values[1]);
    } else if (by == BY_THE_END_BELOW) {
        tickets[1] = send_one(s->q[order[0]], NULL, buffers[1], &values[1], flags);
    } else {
        tickets[1] = commit(s->q[order[0]], buffers[1]);
    }
    if (by == BY_A_TICKET) go = ticket_at(s->q[order[0]], tickets[1]);
    for (unsigned n = 0; n < 2; n++) {
        i = higher_is_accepted_first ? 3 - n : 2 + n;
        tickets[i] = send_one(s->q[order[i - 1]], by == BY_A_VALUE || by == BY_A_TICKET ? &go : NULL, buffers[i],
                              &values[i], flags);
        assert_false(is_sent(buffers[i]));
    }
    if (by == BY_A_DISCARD) assert_ok(gpusync_command_buffer_discard(s->q[order[0]], open));
    if (by == BY_A_VALUE) signal_value(s->t[1], 1);
    while (by != BY_A_VALUE && finish_next(s->q[order[0]])) {}
    assert_true(is_sent(buffers[2]));
    assert_false(is_sent(buffers[3]));
    finish_all(s);
    for (i = 2; i < 4; i++) assert_ok(gpusync_poll(s->q[order[i - 1]], tickets[i], NULL));
    assert_int_equal(value_of(s->t[0]), 3);
    drop_timelines(s);
}

on_stage_with(test_T3_of_held_signals_that_could_go_the_lowest_goes_first_whatever_queue_comes_first, .queues = 3)
{
    static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (unsigned by = 0; by < TRIGGERS; by++)
        for (unsigned kind = 0; kind < LENGTH(kinds_of_work); kind++)
            for (unsigned i = 0; i < 12; i++) lowest_first(s, orders[i / 2], i % 2, (trigger)by, kinds_of_work[kind]);
}

/* Works 0, 1 and 2, on a queue each, which signal by[i][0] of one timeline and by[i][1] of the next one; one value of the
   host lets all go. order: in which they are accepted. */
static void let_three_go(stage *s, const uint64_t by[3][2], const unsigned order[3], gpusync_ticket tickets[3])
{
    for (unsigned n = 0; n < 4; n++)
        s->t[n] = new_timeline(s->device);
    for (unsigned n = 0; n < 3; n++) {
        unsigned i = order[n], next = (i + 1) % 3;
        gpusync_point signals[2] = {at(s->t[i], by[i][0]), at(s->t[next], by[i][1])};
        tickets[i] = SUBMIT(s->q[i], WAITS(at(s->t[3], 1)), BUFFERS(new_buffer(s->q[i])), .signal_points = signals,
                            .signal_count = by[i][1] ? 2 : 1, .flags = GPUSYNC_SUBMIT_ON_GPU);
    }
    signal_value(s->t[3], 1);
    finish_all(s);
    for (unsigned n = 0; n < 4; n++) {
        assert_ok(gpusync_timeline_destroy(s->t[n]));
        s->t[n] = NULL;
    }
}

static const unsigned orders_of_three[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* Each has the lower value of a timeline on which the next one has the higher: none is the lowest everywhere. So one
   has to go first, and overtakes another one; but none waits for ever, and no call goes round in circles. */
on_all_kinds_with(test_T3_lowest_values_in_a_circle, .queues = 3)
{
    static const uint64_t circles[2][3][2] = {{{1, 2}, {1, 2}, {1, 2}}, {{2, 1}, {2, 1}, {2, 1}}};
    for (unsigned k = 0; k < 12; k++) {
        gpusync_ticket tickets[3];
        unsigned good = 0;
        let_three_go(s, circles[k % 2], orders_of_three[k / 2], tickets);
        for (unsigned i = 0; i < 3; i++) {
            gpusync_result result = gpusync_poll(s->q[i], tickets[i], NULL);
            assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_NOT_RISING);
            good += result == GPUSYNC_OK;
        }
        assert_int_equal(good, 2);
    }
}

/* On one queue the front of the queue decides, and not the value. */
on_both_kinds_with(test_T3_on_one_queue_the_ticket_in_front_goes_first, .timelines = 2)
{
    void *buffers[2] = {waiting(s->q[0], at(s->t[1], 1)), waiting(s->q[0], at(s->t[1], 1))};
    encode_signal(s->q[0], buffers[0], at(s->t[0], 5));
    encode_signal(s->q[0], buffers[1], at(s->t[0], 3));
    gpusync_ticket first = commit(s->q[0], buffers[0]);
    gpusync_ticket second = commit(s->q[0], buffers[1]);
    signal_value(s->t[1], 1);
    assert_true(is_sent(buffers[0]));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], first, NULL));
    assert_result(gpusync_poll(s->q[0], second, NULL), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(value_of(s->t[0]), 5);
}

/* -- R4: a lower signal in an open buffer ------------------------------------------------------------------------- */

typedef enum open_end {
    COMMITTED,
    COMMITTED_AND_HELD,
    DISCARDED,
    QUEUE_DESTROYED,
    QUEUE_ABANDONED,
    OPEN_ENDS
} open_end;

/* The ticket of the open buffer, if it gets one. */
static gpusync_ticket end_open_buffer(stage *s, open_end end, void *open)
{
    if (end == COMMITTED || end == COMMITTED_AND_HELD) return commit(s->q[1], open);
    if (end == DISCARDED) assert_ok(gpusync_command_buffer_discard(s->q[1], open));
    if (end == QUEUE_DESTROYED) assert_ok(gpusync_queue_destroy(s->q[1]));
    if (end == QUEUE_ABANDONED) assert_ok(gpusync_queue_abandon(s->q[1]));
    if (end == QUEUE_DESTROYED || end == QUEUE_ABANDONED) s->q[1] = NULL;
    return 0;
}

static void renew_queue(stage *s, unsigned i)
{
    assert_ok(gpusync_queue_create(s->device, NULL, &s->q[i]));
    metal_release(s->metal[i]);
    s->metal[i] = metal_retain(gpusync_queue_metal(s->q[i]));
}

on_stage_with(test_R4_a_lower_signal_in_an_open_buffer_of_another_queue_holds_work_until_its_end, .queues = 2)
{
    for (unsigned end = 0; end < OPEN_ENDS; end++) {
        for (unsigned kind = 0; kind < LENGTH(kinds_of_work); kind++) {
            void *buffer = new_buffer(s->q[0]), *open = new_buffer(s->q[1]);
            new_timelines(s);
            if (end == COMMITTED_AND_HELD) encode_wait(s->q[1], open, at(s->t[1], 1));
            encode_signal(s->q[1], open, at(s->t[0], 3));
            gpusync_point five = at(s->t[0], 5);
            gpusync_ticket higher = send_one(s->q[0], NULL, buffer, &five, kinds_of_work[kind]);
            assert_false(is_sent(buffer));
            gpusync_ticket lower = end_open_buffer(s, (open_end)end, open);
            assert_int_equal(is_sent(buffer), end != COMMITTED); /* sent and not reached, it holds the work on */
            if (end == COMMITTED) assert_true(finish_next(s->q[1]));
            assert_true(is_sent(buffer));
            if (end == COMMITTED) assert_ok(gpusync_poll(s->q[1], lower, NULL));
            if (end == COMMITTED_AND_HELD)
                assert_result(gpusync_poll(s->q[1], lower, NULL), GPUSYNC_ERROR_NOT_RISING);
            finish_all(s);
            assert_ok(gpusync_poll(s->q[0], higher, NULL));
            assert_int_equal(value_of(s->t[0]), 5);
            drop_timelines(s);
            if (!s->q[1]) renew_queue(s, 1);
        }
    }
}

typedef enum too_late { ON_ONE_QUEUE_WITH_IT, EQUAL, REACHED_BY_THE_HOST, TOO_LATES } too_late;

/* On one queue the higher value goes, an equal one is not lower (K8), and what the host has reached cannot be signalled
   any more. */
on_stage_with(test_R4_an_open_signal_that_comes_too_late_holds_nothing_and_is_refused, .queues = 2)
{
    for (unsigned why = 0; why < TOO_LATES; why++) {
        for (unsigned kind = 0; kind < LENGTH(kinds_of_work); kind++) {
            unsigned queue = why == ON_ONE_QUEUE_WITH_IT ? 0 : 1;
            void *buffer = new_buffer(s->q[0]);
            new_timelines(s);
            void *open = signalling(s->q[queue], at(s->t[0], why == EQUAL ? 5 : 3));
            gpusync_point five = at(s->t[0], 5);
            gpusync_ticket ticket = send_one(s->q[0], NULL, buffer, &five, kinds_of_work[kind]);
            assert_int_equal(is_sent(buffer), why != REACHED_BY_THE_HOST);
            if (why == REACHED_BY_THE_HOST) signal_value(s->t[0], 4);
            assert_true(is_sent(buffer));
            assert_result(gpusync_commit(s->q[queue], open, NULL), GPUSYNC_ERROR_NOT_RISING);
            assert_ok(gpusync_command_buffer_discard(s->q[queue], open));
            finish_all(s);
            assert_ok(gpusync_poll(s->q[0], ticket, NULL));
            assert_int_equal(value_of(s->t[0]), 5);
            drop_timelines(s);
        }
    }
}

/* Only the lower one of an open buffer counts; a refused commit leaves the buffer open. */
on_stage_with(test_R4_a_refused_commit_leaves_the_signal_open, .queues = 2, .timelines = 2)
{
    void *open = waiting(s->q[1], at(s->t[1], 1)), *held = signalling(s->q[0], at(s->t[0], 8));
    encode_signal(s->q[1], open, at(s->t[0], 5));
    commit(s->q[0], held);
    metal_enqueue(open); /* it cannot be held */
    assert_result(gpusync_commit(s->q[1], open, NULL), GPUSYNC_ERROR_ENQUEUED);
    assert_false(is_sent(held));
    signal_value(s->t[1], 1);
    commit(s->q[1], open);
    assert_false(is_sent(held));
    assert_true(finish_next(s->q[1]));
    assert_true(is_sent(held));
}

/* -- R9: overtaken ------------------------------------------------------------------------------------------------ */

/* What waits for the value itself goes with the higher one. */
on_all_kinds_with(test_R9_an_overtaken_signal_fails_its_work_and_the_work_s_other_timelines, .queues = 3,
                  .timelines = 3)
{
    void *buffer = waiting(s->q[0], at(s->t[2], 1)), *consumer = waiting(s->q[2], at(s->t[0], 10));
    uint64_t value = 99;
    encode_signal(s->q[0], buffer, at(s->t[0], 10));
    encode_signal(s->q[0], buffer, at(s->t[1], 1));
    gpusync_ticket overtaken = commit(s->q[0], buffer);
    gpusync_ticket ticket = SUBMIT(s->q[2], BUFFERS(consumer), .flags = UNORDERED);
    gpusync_ticket follower = commit(s->q[2], waiting(s->q[2], at(s->t[1], 1)));
    assert_false(is_sent(consumer));
    commit(s->q[1], signalling(s->q[1], at(s->t[0], 20)));
    assert_true(is_sent(consumer));
    assert_result(gpusync_poll(s->q[0], overtaken, NULL), GPUSYNC_ERROR_NOT_RISING);
    gpusync_error error = failure_at(s->q[0], 0);
    assert_int_equal(error.result, GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(error.ticket, overtaken);
    assert_false(error.inherited);
    assert_false(error.ran);
    assert_result(gpusync_timeline_query(s->t[1], &value, NULL), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(value, 0);
    assert_result(gpusync_poll(s->q[2], follower, NULL), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(failure_at(s->q[2], 0).origin, overtaken);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[2], ticket, NULL));
    assert_int_equal(value_of(s->t[0]), 20);
    assert_ok(gpusync_timeline_wait(s->t[0], 10, 0, NULL)); /* a higher value is reached */
}

typedef enum overtaker { ENCODED_FIRST, ENCODED_SECOND, THE_HOST, OVERTAKERS } overtaker;

/* Of work, whichever of both was encoded first, and of the host. */
on_all_kinds_with(test_R9_an_equal_value_overtakes_as_well, .queues = 2)
{
    for (unsigned by = 0; by < OVERTAKERS; by++) {
        void *sent = by == THE_HOST ? NULL : new_buffer(s->q[1]);
        new_timelines(s);
        void *held = waiting(s->q[0], at(s->t[1], 1));
        if (by == ENCODED_FIRST) encode_signal(s->q[1], sent, at(s->t[0], 5));
        encode_signal(s->q[0], held, at(s->t[0], 5));
        if (by == ENCODED_SECOND) encode_signal(s->q[1], sent, at(s->t[0], 5));
        gpusync_ticket ticket = commit(s->q[0], held);
        if (by == THE_HOST) signal_value(s->t[0], 5);
        else commit(s->q[1], sent);
        assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_NOT_RISING);
        signal_value(s->t[1], 1);
        finish_all(s);
        assert_int_equal(value_of(s->t[0]), 5);
        drop_timelines(s);
    }
}

/* -- R8: how held work ends --------------------------------------------------------------------------------------- */

typedef enum held_end { CANCELLED, WAIT_FAILED, OVERTAKEN, HELD_ENDS } held_end;

static const gpusync_result held_results[] = {GPUSYNC_ERROR_CANCELLED, GPUSYNC_ERROR_OUT_OF_MEMORY,
                                              GPUSYNC_ERROR_NOT_RISING};

static void end_held(stage *s, held_end end)
{
    if (end == CANCELLED) assert_ok(gpusync_queue_cancel_held(s->q[0]));
    if (end == WAIT_FAILED) fail_timeline(s->t[1], GPUSYNC_ERROR_OUT_OF_MEMORY);
    if (end == OVERTAKEN) commit(s->q[1], signalling(s->q[1], at(s->t[2], 2)));
}

/* The work waits for t[1], for t[3], which never comes, and for a ticket that never ends; it signals t[0] and t[2]. */
on_all_kinds_with(test_R8_work_that_never_ran_waits_for_nothing_any_more, .queues = 3)
{
    for (unsigned round = 0; round < 2 * HELD_ENDS; round++) {
        bool unordered = round & 1;
        void *runs = new_buffer(s->q[0]), *held = new_buffer(s->q[0]);
        gpusync_ticket ticket;
        uint64_t value;
        for (unsigned i = 0; i < 4; i++) s->t[i] = new_timeline(s->device);
        gpusync_ticket first = commit(s->q[0], runs);
        gpusync_ticket never = commit(s->q[2], waiting(s->q[2], at(s->t[3], 1)));
        ticket = SUBMIT(s->q[0], WAITS(at(s->t[1], 1), at(s->t[3], 1), ticket_at(s->q[2], never)), BUFFERS(held),
                        SIGNALS(at(s->t[0], 1), at(s->t[2], 1)), .flags = unordered ? UNORDERED : 0);
        end_held(s, (held_end)(round / 2));
        /* Ordered, it ends in its turn; its timelines fail then. */
        assert_result(gpusync_poll(s->q[0], ticket, NULL),
                      unordered ? held_results[round / 2] : GPUSYNC_NOT_READY);
        assert_result(gpusync_timeline_query(s->t[0], &value, NULL), unordered ? held_results[round / 2] : GPUSYNC_OK);
        assert_result(gpusync_poll(s->q[0], first, NULL), GPUSYNC_NOT_READY);
        assert_true(finish_next(s->q[0]));
        assert_ok(gpusync_poll(s->q[0], first, NULL));
        assert_result(gpusync_poll(s->q[0], ticket, NULL), held_results[round / 2]);
        assert_result(gpusync_wait(s->q[0], ticket, 0, NULL), held_results[round / 2]);
        assert_failed(s->t[0], held_results[round / 2]);
        assert_true(gpusync_is_done(s->q[0], ticket));
        finish_all(s);
        if (round / 2 == OVERTAKEN) assert_int_equal(value_of(s->t[2]), 2);
        else assert_failed(s->t[2], held_results[round / 2]);
        assert_ok(gpusync_queue_cancel_held(s->q[2]));
        for (unsigned i = 0; i < 4; i++) assert_ok(gpusync_timeline_destroy(s->t[i]));
        memset(s->t, 0, sizeof s->t);
    }
}

/* Until its turn comes the signals of cancelled work count as held ones: they hold nothing, and may be overtaken. */
on_all_kinds_with(test_R8_cancelled_work_that_is_overtaken_before_its_turn_does_not_fail_that_timeline, .queues = 2,
                  .timelines = 3)
{
    void *held = waiting(s->q[0], at(s->t[1], 1)), *higher = signalling(s->q[1], at(s->t[0], 6));
    commit_new(s->q[0]);
    encode_signal(s->q[0], held, at(s->t[0], 5));
    encode_signal(s->q[0], held, at(s->t[2], 1));
    gpusync_ticket ticket = commit(s->q[0], held);
    assert_ok(gpusync_queue_cancel_held(s->q[0]));
    commit(s->q[1], higher);
    assert_true(is_sent(higher));
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_CANCELLED); /* and no NOT_RISING */
    assert_int_equal(value_of(s->t[0]), 6);
    assert_failed(s->t[2], GPUSYNC_ERROR_CANCELLED);
}

/* K2: what the watchdog has killed does not wait for its value any more. */
on_both_kinds_with(test_R8_work_that_the_watchdog_killed_ends_though_its_value_never_comes, .timelines = 2,
                   .timeline.signalled_by_others = true)
{
    void *buffer = waiting(s->q[0], at(s->t[0], 7));
    encode_signal(s->q[0], buffer, at(s->t[1], 1));
    gpusync_ticket killed = commit(s->q[0], buffer);
    gpusync_ticket behind = commit_new(s->q[0]);
    assert_true(is_sent(buffer));
    metal_retain(buffer);
    softmetal_time_out(buffer);
    softmetal_finish(buffer);
    metal_release(buffer);
    assert_result(gpusync_poll(s->q[0], killed, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failure_at(s->q[0], 0).failure, GPUSYNC_FAILURE_GPU_TIMEOUT);
    assert_true(failure_at(s->q[0], 0).ran);
    assert_false(failure_at(s->q[0], 0).inherited);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], behind, NULL));
    assert_failed(s->t[1], GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_destroy(s->q[0]));
    s->q[0] = NULL;
}

/* -- cancel ------------------------------------------------------------------------------------------------------- */

on_all_kinds_with(test_R8_cancel_ends_all_held_work_and_nothing_else, .queues = 3, .timelines = 1)
{
    void *open = new_buffer(s->q[0]);
    gpusync_ticket sent = commit_new(s->q[0]);
    gpusync_ticket held = commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    gpusync_ticket behind = commit_new(s->q[0]);
    gpusync_ticket alone = SUBMIT(s->q[0], WAITS(at(s->t[0], 2)), .flags = UNORDERED);
    gpusync_ticket other = commit(s->q[1], waiting(s->q[1], at(s->t[0], 1)));
    gpusync_ticket waits_for_ticket = commit(s->q[2], waiting(s->q[2], ticket_at(s->q[0], behind)));
    note notes[2] = {0};
    on_done(ticket_at(s->q[0], held), &notes[0]);
    on_done(ticket_at(s->q[0], behind), &notes[1]);
    assert_ok(gpusync_queue_cancel_held(s->q[0]));
    assert_result(gpusync_poll(s->q[0], alone, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_poll(s->q[0], sent, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s->q[1], other, NULL), GPUSYNC_NOT_READY);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], sent, NULL));
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_poll(s->q[0], behind, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_noted(&notes[0], GPUSYNC_ERROR_CANCELLED);
    assert_in_order(notes, 2);
    assert_result(gpusync_poll(s->q[2], waits_for_ticket, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(failures_of(s->q[0]), 3);
    gpusync_error error = failure_at(s->q[0], 1);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_int_equal(error.ticket, held);
    assert_false(error.ran);
    error = failure_at(s->q[2], 0);
    assert_true(error.inherited);
    assert_int_equal(error.origin, behind);
    assert_string_equal(error.queue_label, "first");
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[1], other, NULL));
    sent = commit(s->q[0], open);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], sent, NULL)); /* the queue goes on */
    assert_ok(gpusync_queue_cancel_held(s->q[0])); /* nothing is held */
    assert_result(gpusync_queue_cancel_held(NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
}

on_both_kinds_with(test_R8_a_failure_from_before_the_cancel_stays, .timelines = 1)
{
    commit_new(s->q[0]);
    gpusync_ticket held = commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    fail_timeline(s->t[0], GPUSYNC_ERROR_COMPILE);
    assert_ok(gpusync_queue_cancel_held(s->q[0]));
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_ERROR_COMPILE);
    assert_int_equal(failures_of(s->q[0]), 1);
}

/* -- S10: what goes with a command buffer ------------------------------------------------------------------------- */

/* A completed handler of the program's, with something captured whose end calls gpusync. */
typedef struct farewell_block {
    void *isa;
    int32_t flags, reserved;
    void (*invoke)(struct farewell_block *self, void *buffer);
    const void *descriptor;
    stage *s;
} farewell_block;

extern void *_NSConcreteStackBlock[32];
static unsigned farewells;
static gpusync_result farewell_result;

static void handle_nothing(farewell_block *self, void *buffer)
{
}

static void keep_nothing(void *to, const void *from)
{
}

static void say_farewell(const void *block)
{
    stage *s = ((const farewell_block *)block)->s;
    farewell_result = gpusync_commit_marker(s->q[0], NULL, NULL);
    must(gpusync_timeline_signal(s->t[3], ++farewells) == GPUSYNC_OK, "a signal as a command buffer goes");
}

static const struct {
    unsigned long reserved, size;
    void (*copy)(void *to, const void *from);
    void (*dispose)(const void *block);
    const char *signature;
} farewell_descriptor = {0, sizeof(farewell_block), keep_nothing, say_farewell, "v16@?0@8"};

typedef enum buffer_end { ENDS, DROPPED, OF_CANCELLED_WORK, OF_FAILED_WORK, OF_OVERTAKEN_WORK, BUFFER_ENDS } buffer_end;

/* A14: the last reference is gpusync's, and goes where no lock is held. */
on_stage_with(test_A14_S10_what_goes_with_a_command_buffer_may_call_gpusync, .queues = 2)
{
    farewells = 0;
    s->t[3] = new_timeline(s->device);
    for (unsigned end = 0; end < BUFFER_ENDS; end++) {
        farewell_block block = {_NSConcreteStackBlock, 1 << 25 | 1 << 30, 0, handle_nothing, &farewell_descriptor, s};
        void *buffer = new_buffer(s->q[0]);
        for (unsigned i = 0; i < 3; i++) s->t[i] = new_timeline(s->device);
        metal_add_completed_handler(buffer, &block);
        farewell_result = GPUSYNC_NOT_READY;
        if (end == ENDS) {
            commit(s->q[0], buffer);
            softmetal_finish(buffer);
        } else if (end == DROPPED) {
            assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
        } else {
            SUBMIT(s->q[0], WAITS(at(s->t[1], 1)), BUFFERS(buffer), SIGNALS(at(s->t[2], 1)), .flags = GPUSYNC_SUBMIT_ON_GPU);
            end_held(s, end == OF_CANCELLED_WORK ? CANCELLED : end == OF_FAILED_WORK ? WAIT_FAILED : OVERTAKEN);
        }
        assert_int_equal(farewells, end + 1);
        assert_ok(farewell_result);
        finish_all(s);
        assert_int_equal(value_of(s->t[3]), end + 1);
        for (unsigned i = 0; i < 3; i++) assert_ok(gpusync_timeline_destroy(s->t[i]));
    }
    s->t[0] = s->t[1] = s->t[2] = NULL;
}

/* -- R7: tickets as points ---------------------------------------------------------------------------------------- */

on_all_kinds_with(test_R7_work_that_waits_for_a_ticket_is_held_until_that_has_ended, .queues = 2)
{
    for (unsigned kind = 0; kind < LENGTH(kinds_of_work); kind++) {
        for (unsigned from = 0; from < 2; from++) {
            for (unsigned encoded = 0; encoded < 2; encoded++) {
                gpusync_ticket awaited = commit_new(s->q[from]);
                gpusync_point point = ticket_at(s->q[from], awaited);
                void *buffer = new_buffer(s->q[0]);
                if (encoded) encode_wait(s->q[0], buffer, point);
                gpusync_ticket ticket = send_one(s->q[0], encoded ? NULL : &point, buffer, NULL, kinds_of_work[kind]);
                assert_false(is_sent(buffer));
                assert_true(finish_next(s->q[from]));
                assert_true(is_sent(buffer));
                finish_all(s);
                assert_ok(gpusync_poll(s->q[0], ticket, NULL));
                point = ticket_at(s->q[from], awaited); /* which has ended */
                buffer = new_buffer(s->q[0]);
                send_one(s->q[0], &point, buffer, NULL, kinds_of_work[kind]);
                assert_true(is_sent(buffer));
                finish_all(s);
            }
        }
    }
}

/* As a wait of the host does (T1): the ticket itself may have ended on the GPU. That of UNORDERED work ends alone. */
on_all_kinds_with(test_R7_T1_work_that_waits_for_a_ticket_waits_for_the_ordered_work_before_it, .queues = 3)
{
    for (unsigned unordered = 0; unordered < 2; unordered++) {
        void *before = new_buffer(s->q[1]), *awaited = new_buffer(s->q[1]);
        void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[2])};
        commit(s->q[1], before);
        gpusync_point point = ticket_at(s->q[1], SUBMIT(s->q[1], BUFFERS(awaited), .flags = unordered ? UNORDERED : 0));
        send_one(s->q[0], &point, buffers[0], NULL, 0);
        softmetal_finish(awaited);
        send_one(s->q[2], &point, buffers[1], NULL, 0); /* later */
        for (unsigned i = 0; i < 2; i++) assert_int_equal(is_sent(buffers[i]), unordered);
        softmetal_finish(before);
        for (unsigned i = 0; i < 2; i++) assert_true(is_sent(buffers[i]));
        finish_all(s);
    }
}

/* In either direction on one queue: the wait counts though both flags let the one pass the other. */
on_both_kinds_with(test_R7_ordered_and_unordered_work_of_one_queue_wait_for_each_other_s_tickets, .timelines = 1)
{
    void *buffers[4];
    gpusync_ticket tickets[4];
    for (unsigned i = 0; i < 4; i++) buffers[i] = marked(s, 0, i);
    tickets[0] = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(buffers[0]), .flags = UNORDERED);
    tickets[1] = SUBMIT(s->q[0], WAITS(ticket_at(s->q[0], tickets[0])), BUFFERS(buffers[1]), .flags = GPUSYNC_SUBMIT_ON_GPU);
    tickets[2] = SUBMIT(s->q[0], WAITS(ticket_at(s->q[0], tickets[1])), BUFFERS(buffers[2]), .flags = UNORDERED);
    tickets[3] = SUBMIT(s->q[0], BUFFERS(buffers[3]));
    for (unsigned i = 0; i < 4; i++) assert_false(is_sent(buffers[i]));
    signal_value(s->t[0], 1);
    assert_true(is_sent(buffers[0]));
    assert_false(is_sent(buffers[1]));
    while (gpusync_poll(s->q[0], tickets[0], NULL) == GPUSYNC_NOT_READY) {
        assert_false(is_sent(buffers[1]));
        assert_true(finish_next(s->q[0]));
    }
    assert_true(is_sent(buffers[1]));
    assert_true(is_sent(buffers[3]));
    assert_false(is_sent(buffers[2]));
    finish_all(s);
    for (unsigned i = 0; i < 4; i++) assert_ok(gpusync_poll(s->q[0], tickets[i], NULL));
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
}

/* The ticket was well as the work was sent: what comes later changes nothing, though no record is left. */
on_all_kinds_with(test_R7_work_that_was_sent_keeps_the_result_of_its_wait, .queues = 2, .timelines = 1)
{
    gpusync_ticket good = commit_new(s->q[1]), ticket;
    void *buffer = waiting(s->q[0], ticket_at(s->q[1], good));
    encode_signal(s->q[0], buffer, at(s->t[0], 1));
    ticket = commit(s->q[0], buffer);
    finish_next(s->q[1]);
    assert_true(is_sent(buffer));
    for (unsigned i = 0; i < 400; i++) {
        commit_failing(s->q[1], SOFTMETAL_PAGE_FAULT);
        finish_next(s->q[1]);
    }
    assert_result(gpusync_poll(s->q[1], good, NULL), GPUSYNC_ERROR_RESULT_UNKNOWN);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_int_equal(value_of(s->t[0]), 1);
}

on_stage_with(test_R7_a_ticket_outlives_its_queue_in_an_open_buffer, .queues = 2, .timelines = 1)
{
    void *buffers[3] = {new_buffer(s->q[0]), new_buffer(s->q[0]), new_buffer(s->q[0])};
    gpusync_ticket good = commit_new(s->q[1]);
    gpusync_ticket held = commit(s->q[1], waiting(s->q[1], at(s->t[0], 1)));
    encode_wait(s->q[0], buffers[0], ticket_at(s->q[1], good));
    encode_wait(s->q[0], buffers[1], ticket_at(s->q[1], held));
    encode_wait(s->q[0], buffers[2], ticket_at(s->q[1], held));
    gpusync_ticket ticket = commit(s->q[0], buffers[2]);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    finish_all(s);
    assert_ok(gpusync_queue_destroy(s->q[1]));
    s->q[1] = NULL;
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_CANCELLED);
    ticket = commit(s->q[0], buffers[1]);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_CANCELLED);
    ticket = commit(s->q[0], buffers[0]);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
}

/* -- R5: buffers that cannot be held ------------------------------------------------------------------------------ */

/* Refused both ways, and as before. */
static void assert_enqueued(gpusync_queue *queue, void *buffer)
{
    gpusync_ticket ticket = 77;
    assert_result(gpusync_commit(queue, buffer, &ticket), GPUSYNC_ERROR_ENQUEUED);
    assert_result(TRY_SUBMIT(queue, &ticket, BUFFERS(buffer)), GPUSYNC_ERROR_ENQUEUED);
    assert_int_equal(ticket, 77); /* T14 */
    assert_false(is_sent(buffer));
}

typedef enum obstacle {
    A_WAIT,
    A_WAIT_BEHIND_ONE_THAT_FAILED,
    A_WAIT_BEFORE_ONE_THAT_FAILED,
    HELD_WORK,
    A_SENT_SIGNAL,
    AN_OPEN_SIGNAL,
    OBSTACLES
} obstacle;

/* If gpusync refused the buffer, its Metal queue would run nothing any more. */
on_stage_with(test_R5_an_enqueued_buffer_whose_timeline_has_failed_runs, .timelines = 1)
{
    void *first = signalling(s->q[0], at(s->t[0], 1)), *second = signalling(s->q[0], at(s->t[0], 2));
    metal_enqueue(first);
    metal_enqueue(second);
    softmetal_fail_as(first, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[0], first);
    finish_all(s);
    gpusync_ticket ticket = commit(s->q[0], second), behind = commit(s->q[0], new_buffer(s->q[0]));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_ok(gpusync_poll(s->q[0], behind, NULL));
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_true(shown(s->t[0]) == UINT64_MAX);
}

/* The program commits the buffer itself, and discards it. The GPU's signal must not reach a later timeline. */
on_stage_with(test_R5_a_refused_enqueued_buffer_is_committed_without_gpusync, .queues = 2, .timelines = 2)
{
    void *buffer = signalling(s->q[0], at(s->t[0], 5));
    gpusync_ticket held = commit(s->q[0], waiting(s->q[0], at(s->t[1], 1)));
    metal_enqueue(buffer);
    assert_result(gpusync_commit(s->q[0], buffer, NULL), GPUSYNC_ERROR_ENQUEUED);
    metal_commit(buffer);
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->t[0] = new_timeline(s->device);
    finish_all(s);
    assert_true(shown(s->t[0]) == 0);
    signal_value(s->t[1], 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], held, NULL));
}

on_stage_with(test_R5_an_enqueued_buffer_that_would_have_to_be_held_is_refused, .queues = 2)
{
    for (unsigned what = 0; what < OBSTACLES; what++) {
        bool behind = what == A_WAIT_BEHIND_ONE_THAT_FAILED;
        bool fails = behind || what == A_WAIT_BEFORE_ONE_THAT_FAILED;
        gpusync_timeline *failed = new_timeline(s->device);
        void *buffer = new_buffer(s->q[0]), *open = NULL;
        new_timelines(s);
        if (what == HELD_WORK) commit(s->q[0], waiting(s->q[0], at(s->t[1], 1)));
        if (what == A_SENT_SIGNAL) commit(s->q[1], signalling(s->q[1], at(s->t[0], 3)));
        if (what == AN_OPEN_SIGNAL) open = signalling(s->q[1], at(s->t[0], 3));
        if (behind) encode_wait(s->q[0], buffer, at(failed, 1));
        if (what == A_WAIT || fails) encode_wait(s->q[0], buffer, at(s->t[1], 1));
        if (fails && !behind) encode_wait(s->q[0], buffer, at(failed, 1));
        encode_signal(s->q[0], buffer, at(s->t[0], 5));
        metal_enqueue(buffer);
        assert_ok(gpusync_timeline_fail(failed, NULL));
        assert_enqueued(s->q[0], buffer);
        if (what <= HELD_WORK) signal_value(s->t[1], 1);
        if (open) assert_ok(gpusync_command_buffer_discard(s->q[1], open));
        while (finish_next(s->q[1])) {}
        gpusync_ticket ticket = commit(s->q[0], buffer);
        assert_true(is_sent(buffer));
        finish_all(s);
        assert_result(gpusync_poll(s->q[0], ticket, NULL), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        if (!fails) assert_int_equal(value_of(s->t[0]), 5);
        drop_timelines(s);
        assert_ok(gpusync_timeline_destroy(failed));
    }
}

/* It goes to Metal, for its place is taken, and the GPU would signal 5 where 3 is not reached. */
on_stage_with(test_R5_an_enqueued_buffer_whose_wait_has_failed_keeps_the_order_of_values, .queues = 3, .timelines = 2)
{
    void *buffer = new_buffer(s->q[0]);
    void *low = marked(s, 1, 3);
    encode_signal(s->q[1], low, at(s->t[0], 3));
    commit(s->q[1], low);
    void *waits = waiting(s->q[2], at(s->t[0], 3));
    mark(s, waits, 30);
    gpusync_ticket consumer = commit(s->q[2], waits);
    encode_wait(s->q[0], buffer, at(s->t[1], 1));
    encode_signal(s->q[0], buffer, at(s->t[0], 5));
    metal_enqueue(buffer);
    assert_ok(gpusync_timeline_fail(s->t[1], NULL));
    assert_enqueued(s->q[0], buffer);
    assert_true(finish_next(s->q[1]));
    gpusync_ticket ticket = commit(s->q[0], buffer);
    assert_true(is_sent(buffer));
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_poll(s->q[2], consumer, NULL));
    assert_failed(s->t[0], GPUSYNC_ERROR_EXECUTION); /* by the failed work, above 3 */
    assert_marks(3, 30);
}

/* A buffer that was enqueued stands in front of work with a lower ticket. The GPU would signal 5 before 4. */
on_stage_with(test_R5_T3_an_enqueued_buffer_with_a_higher_signal_than_one_behind_it_is_refused, .queues = 2,
              .timelines = 1)
{
    void *buffer = metal_retain(new_buffer(s->q[0]));
    void *behind = signalling(s->q[0], at(s->t[0], 4)), *waits = waiting(s->q[1], at(s->t[0], 4));
    metal_enqueue(buffer);
    commit(s->q[0], behind);
    commit(s->q[1], waits);
    encode_signal(s->q[0], buffer, at(s->t[0], 5));
    assert_enqueued(s->q[0], buffer);
    /* Nothing but the program can let its Metal queue go on. */
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    metal_commit(buffer);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    assert_result(gpusync_poll(s->q[1], 1, NULL), GPUSYNC_ERROR_EXECUTION);
    metal_release(buffer);
}

/* It was judged, and listed where that may change; refused, it is listed nowhere. Its program gives it up, and the next
   buffer gets its memory: the value must not find there what waits for it. */
on_stage_with(test_R5_a_refused_enqueued_buffer_is_listed_nowhere, .queues = 2, .timelines = 1)
{
    void *lower = signalling(s->q[0], at(s->t[0], 1));
    void *buffer = metal_retain(signalling(s->q[1], at(s->t[0], 2)));
    commit(s->q[0], lower);
    metal_enqueue(buffer);
    assert_result(gpusync_commit(s->q[1], buffer, NULL), GPUSYNC_ERROR_ENQUEUED);
    assert_ok(gpusync_command_buffer_discard(s->q[1], buffer));
    metal_commit(buffer); /* nothing but the program can let its Metal queue go on */
    metal_release(buffer);
    new_buffer(s->q[1]);
    assert_true(finish_next(s->q[0]));
    assert_int_equal(value_of(s->t[0]), 1);
}

/* The GPU would wait for what stands behind the buffer in its queue. */
on_stage_with(test_R5_S6_an_enqueued_buffer_that_waits_for_work_behind_it_is_refused, .timelines = 1)
{
    void *buffer = new_buffer(s->q[0]);
    metal_enqueue(buffer);
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 4)));
    encode_wait(s->q[0], buffer, at(s->t[0], 4));
    assert_enqueued(s->q[0], buffer);
    assert_ok(gpusync_timeline_fail(s->t[0], NULL)); /* nothing waits for the value any more */
    gpusync_ticket ticket = commit(s->q[0], buffer);
    assert_true(is_sent(buffer));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
}

/* The ticket that it waits for has failed: its place in Metal's queue is taken, so it goes, and fails as that did. */
on_stage_with(test_R5_R7_an_enqueued_buffer_whose_ticket_has_failed_goes_and_fails, .queues = 2)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit_failing(s->q[1], SOFTMETAL_PAGE_FAULT);
    encode_wait(s->q[0], buffer, ticket_at(s->q[1], ticket));
    metal_enqueue(buffer);
    assert_true(finish_next(s->q[1]));
    ticket = commit(s->q[0], buffer);
    assert_true(is_sent(buffer));
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_true(failure_at(s->q[0], 0).inherited);
    assert_true(failure_at(s->q[0], 0).ran);
}

/* So is one behind it, and each buffer of a submission. */
on_stage_with(test_R5_a_held_buffer_is_committed_already, .timelines = 1)
{
    void *foreign[2] = {foreign_buffer(s->q[0]), foreign_buffer(s->q[0])};
    void *buffers[4] = {waiting(s->q[0], at(s->t[0], 1)), foreign[0], new_buffer(s->q[0]), foreign[1]};
    commit(s->q[0], buffers[0]);
    commit(s->q[0], buffers[1]);
    SUBMIT(s->q[0], BUFFERS(buffers[2], buffers[3]));
    for (unsigned i = 0; i < 4; i++) {
        assert_false(is_sent(buffers[i]));
        assert_result(gpusync_commit(s->q[0], buffers[i], NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
        assert_result(TRY_SUBMIT(s->q[0], NULL, BUFFERS(buffers[i])), GPUSYNC_ERROR_ALREADY_COMMITTED);
        assert_result(gpusync_encode_wait(s->q[0], buffers[i], at(s->t[0], 2)), GPUSYNC_ERROR_ALREADY_COMMITTED);
        assert_result(gpusync_encode_signal(s->q[0], buffers[i], at(s->t[0], 2)), GPUSYNC_ERROR_ALREADY_COMMITTED);
        assert_result(gpusync_command_buffer_discard(s->q[0], buffers[i]), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    }
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL));
    for (unsigned i = 0; i < 2; i++) metal_release(foreign[i]);
}

/* -- R1: a ticket whose place among the last ones a newer one has taken ------------------------------------------- */

/* The GPU is through with it; it ends for the host when other code's value is believed. Then 256 newer ones end. */
on_all_kinds_with(test_R1_an_unordered_ticket_that_256_newer_ones_followed_has_not_ended, .queues = 2, .timelines = 1,
                  .timeline.signalled_by_others = true)
{
    gpusync_times times, before;
    uint64_t base = 0;
    gpusync_ticket ticket;
    commit(s->q[1], signalling(s->q[1], at(s->t[0], 5)));
    ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 7)), BUFFERS(new_buffer(s->q[0])), .flags = GPUSYNC_SUBMIT_UNORDERED | GPUSYNC_SUBMIT_ON_GPU);
    metal_event_signal(gpusync_timeline_metal(s->t[0], &base), 7);
    while (finish_next(s->q[0])) {}
    for (int i = 0; i < 260; i++) {
        assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
        commit_new(s->q[0]);
        finish_next(s->q[0]);
    }
    assert_ok(gpusync_poll(s->q[0], ticket + 256, NULL));
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(s->q[0], ticket, 0, NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_poll(s->q[0], ticket + 256, &before));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_ok(gpusync_poll(s->q[0], ticket + 256, &times)); /* the old one takes nothing from a newer one */
    assert_true(times.gpu_end_s > 0 && times.gpu_end_s == before.gpu_end_s);
}

on_all_kinds_with(test_R1_an_unordered_ticket_that_256_newer_ones_followed_has_ended, .timelines = 1,
                  .queue.max_command_buffer_count = 1000)
{
    gpusync_ticket held = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .flags = GPUSYNC_SUBMIT_ON_GPU);
    gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), .flags = GPUSYNC_SUBMIT_UNORDERED);
    finish_next(s->q[0]);
    for (int i = 0; i < 260; i++) {
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), .flags = GPUSYNC_SUBMIT_UNORDERED);
        finish_next(s->q[0]);
    }
    assert_ok(gpusync_wait(s->q[0], ticket, 0, NULL));
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_NOT_READY);
    assert_false(gpusync_is_done(s->q[0], held));
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], held, NULL));
}

/* -- long chains -------------------------------------------------------------------------------------------------- */

enum { CHAIN = 700 };

typedef enum chain_of { OF_VALUES, OF_TICKETS, ON_ONE_QUEUE, CHAINS } chain_of;
typedef enum chain_end { RUNS, FAILS, IS_CANCELLED, CHAIN_ENDS } chain_end;

/* 700 pieces of work, each of which waits for the one before it, the first one for t[1]. */
static void hold_chain(stage *s, chain_of kind, gpusync_ticket *tickets)
{
    for (uint64_t i = 0; i < CHAIN; i++) {
        unsigned queue = kind == ON_ONE_QUEUE ? 0 : (unsigned)(i % 2);
        gpusync_point wait = i == 0 ? at(s->t[1], 1) : at(s->t[0], i);
        gpusync_point signal = at(s->t[0], i + 1);
        if (i > 0 && kind == OF_TICKETS) wait = ticket_at(s->q[(i - 1) % 2], tickets[i - 1]);
        tickets[i] = send_one(s->q[queue], &wait, marked(s, queue, (uint32_t)i),
                              kind == OF_TICKETS ? NULL : &signal, 0);
    }
}

on_all_kinds_with(test_S6_a_chain_of_700_goes_and_fails_with_its_first_link, .real = true, .queues = 2,
                  .queue.max_command_buffer_count = 4 * CHAIN, .queue.error_log_count = 4 * CHAIN)
{
    static const gpusync_result results[] = {GPUSYNC_OK, GPUSYNC_ERROR_COMPILE, GPUSYNC_ERROR_CANCELLED};
    for (unsigned kind = 0; kind < CHAINS; kind++) {
        for (unsigned end = 0; end < CHAIN_ENDS; end++) {
            gpusync_ticket tickets[CHAIN];
            new_timelines(s);
            hold_chain(s, (chain_of)kind, tickets);
            assert_int_equal(gpusync_in_flight(s->q[0]) + gpusync_in_flight(s->q[1]), CHAIN);
            if (end == RUNS) signal_value(s->t[1], 1);
            if (end == FAILS) fail_timeline(s->t[1], GPUSYNC_ERROR_COMPILE);
            if (end == IS_CANCELLED) assert_ok(gpusync_queue_cancel_held(s->q[0]));
            assert_result(gpusync_device_wait(s->device, SECONDS(60), NULL), results[end]);
            settle(s);
            for (unsigned i = 0; i < CHAIN; i++) {
                gpusync_queue *queue = s->q[kind == ON_ONE_QUEUE ? 0 : i % 2];
                assert_result(gpusync_poll(queue, tickets[i], NULL), results[end]);
            }
            assert_int_equal(marks(), end == RUNS ? CHAIN : 0);
            for (unsigned i = 0; i < marks(); i++) assert_int_equal(mark_at(i), i);
            drop_timelines(s);
        }
    }
}

/* Nor does the GPU get a wait that never ends, however often the commit is tried. */
on_stage_with(test_R5_S6_an_enqueued_buffer_that_waits_for_a_destroyed_timeline_is_refused, .queues = 2, .timelines = 2)
{
    void *enqueued = foreign_buffer(s->q[0]);
    void *event = metal_retain(gpusync_timeline_metal(s->t[0], NULL));
    metal_enqueue(enqueued);
    encode_wait(s->q[0], enqueued, at(s->t[0], 9));
    encode_signal(s->q[0], enqueued, at(s->t[1], 5));
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->t[0] = NULL;
    SUBMIT(s->q[1], BUFFERS(new_buffer(s->q[1])), SIGNALS(at(s->t[1], 3)), .flags = GPUSYNC_SUBMIT_ON_GPU);
    assert_enqueued(s->q[0], enqueued);
    while (finish_next(s->q[1])) continue;
    assert_enqueued(s->q[0], enqueued);
    assert_ok(gpusync_command_buffer_discard(s->q[0], enqueued));
    metal_event_signal(event, 1000);
    metal_commit(enqueued); /* its place in Metal's queue is taken */
    finish_all(s);
    metal_release(event);
    metal_release(enqueued);
}
