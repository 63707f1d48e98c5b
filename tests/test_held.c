/* test_held.c - work that is committed, and that Metal does not have yet

   What holds work and what lets it go (S3, S6), the order of values with each of its cells (R33), the ends of held work
   (R8, R9), UNORDERED work (R30), tickets as points (R7), timelines that go (R19), buffers that are enqueued (R34).
   Almost all of it on the manual clock, where the test knows what Metal has. */
#include "kit.h"

#define UNORDERED GPUSYNC_SUBMIT_UNORDERED
#define ON_GPU GPUSYNC_SUBMIT_ON_GPU

/* How work with one buffer waits and signals. The GPU makes the signals of the first three. */
enum { ENCODED, BY_THE_GPU, UNORDERED_BY_THE_GPU, STRICT, UNORDERED_STRICT, KINDS };

static const char *const names[] = {"encoded", "ON_GPU", "ON_GPU, UNORDERED", "strict", "strict, UNORDERED"};
static const uint32_t flags_of[] = {ON_GPU, ON_GPU, ON_GPU | UNORDERED, 0, UNORDERED};

static bool is_made_by_the_gpu(unsigned kind)
{
    return kind < STRICT;
}

/* Commits one buffer with at most one wait and one signal: a NULL is none. 0: it is UNORDERED. */
static gpusync_ticket send_as(unsigned kind, gpusync_queue *queue, const gpusync_point *wait, void *buffer,
                              const gpusync_point *signal)
{
    gpusync_submission submission = {.wait_points = wait, .wait_count = wait != NULL, .command_buffers = &buffer,
                                     .command_buffer_count = 1, .signal_points = signal, .signal_count = signal != NULL,
                                     .flags = flags_of[kind]};
    if (kind != ENCODED) return submit_at(queue, &submission, __FILE__, __LINE__);
    if (wait) encode_wait(queue, buffer, *wait);
    if (signal) encode_signal(queue, buffer, *signal);
    return commit(queue, buffer);
}

/* What work that has ended left: its ticket's result, or, UNORDERED, the newest record. */
static void assert_end(gpusync_queue *queue, gpusync_ticket ticket, gpusync_result result)
{
    if (ticket) {
        assert_result(gpusync_poll(queue, ticket, NULL), result);
    } else if (result == GPUSYNC_OK) {
        assert_true(gpusync_is_done(queue, GPUSYNC_EVERYTHING));
    } else {
        gpusync_error error = failure_at(queue, failures_of(queue) - 1);
        assert_int_equal(error.result, result);
        assert_int_equal(error.ticket, 0);
    }
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

static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* -- S6: what holds work ------------------------------------------------------------------------------------------ */

typedef enum way_to_come {
    BY_THE_HOST,
    BY_SENT_WORK,
    BY_STRICT_WORK,
    BY_HELD_WORK,
    BY_AN_OPEN_BUFFER,
    WAYS
} way_to_come;

/* How the value 1 of t[0] comes: in three steps, after each of which the test asks what Metal has. */
static void *begin_to_signal(stage *s, way_to_come way)
{
    gpusync_point one = at(s->t[0], 1);
    gpusync_point go = at(s->t[1], 1);
    if (way == BY_AN_OPEN_BUFFER) return signalling(s->q[1], one);
    if (way == BY_SENT_WORK || way == BY_STRICT_WORK)
        send_as(way == BY_STRICT_WORK ? STRICT : BY_THE_GPU, s->q[1], NULL, new_buffer(s->q[1]), &one);
    if (way == BY_HELD_WORK) send_as(BY_THE_GPU, s->q[1], &go, new_buffer(s->q[1]), &one);
    return NULL;
}

static void go_on_to_signal(stage *s, way_to_come way, void *open)
{
    if (way == BY_HELD_WORK) signal_value(s->t[1], 1);
    if (way == BY_AN_OPEN_BUFFER) commit(s->q[1], open);
}

on_all_kinds_with(test_S6_work_is_held_until_its_value_is_reached_or_metal_has_the_signal, .queues = 2)
{
    for (unsigned way = 0; way < WAYS; way++) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            bool gpu_waits = is_made_by_the_gpu(kind);
            new_timelines(s);
            gpusync_point one = at(s->t[0], 1);
            void *buffer = new_buffer(s->q[0]);
            void *open = begin_to_signal(s, (way_to_come)way);
            send_as(kind, s->q[0], &one, buffer, NULL);
            assert_int_equal(is_sent(buffer), way == BY_SENT_WORK && gpu_waits);
            go_on_to_signal(s, (way_to_come)way, open);
            assert_int_equal(is_sent(buffer), way != BY_THE_HOST && way != BY_STRICT_WORK && gpu_waits);
            if (way == BY_THE_HOST) signal_value(s->t[0], 1);
            while (finish_next(s->q[1])) {}
            assert_int_equal(value_of(s->t[0]), 1);
            assert_true(is_sent(buffer));
            assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
            finish_all(s);
            assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
            drop_timelines(s);
        }
    }
}

on_both_kinds_with(test_S6_every_wait_counts, .timelines = 3)
{
    for (unsigned i = 0; i < 6 * KINDS; i++) {
        const unsigned *order = orders[i / KINDS], kind = i % KINDS;
        const gpusync_point points[3] = {at(s->t[0], i + 1), at(s->t[1], i + 1), at(s->t[2], i + 1)};
        void *buffer = new_buffer(s->q[0]);
        for (unsigned k = 0; k < 3 && kind == ENCODED; k++) encode_wait(s->q[0], buffer, points[k]);
        if (kind == ENCODED) commit(s->q[0], buffer);
        else SUBMIT(s->q[0], .wait_points = points, .wait_count = 3, BUFFERS(buffer), .flags = flags_of[kind]);
        for (unsigned k = 0; k < 3; k++) {
            assert_false(is_sent(buffer));
            signal_value(s->t[order[k]], i + 1);
        }
        assert_true(is_sent(buffer));
        finish_all(s);
        assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    }
}

on_all_kinds_with(test_S6_nothing_is_encoded_for_what_has_come, .queues = 2, .timelines = 1)
{
    uint64_t waits = softmetal_message_count("encodeWaitForEvent:value:");
    gpusync_ticket ended = commit_new(s->q[1]);
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    finish_all(s);
    signal_value(s->t[0], 4);
    encode_wait(s->q[0], buffers[0], at(s->t[0], 4));
    encode_wait(s->q[0], buffers[0], ticket_at(s->q[1], ended));
    commit(s->q[0], buffers[0]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 3), ticket_at(s->q[1], ended)), BUFFERS(buffers[1]), SIGNALS(at(s->t[0], 5)),
           .flags = ON_GPU);
    for (unsigned i = 0; i < 2; i++) assert_true(is_sent(buffers[i]));
    assert_int_equal(softmetal_message_count("encodeWaitForEvent:value:"), waits);
    assert_int_equal(softmetal_outstanding(s->metal[0]), 2); /* and there is no buffer of gpusync's in front */
}

on_all_kinds_with(test_S6_work_goes_to_the_gpu_where_other_code_signals_and_strict_work_does_not, .queues = 2,
                  .timelines = 1, .timeline.signalled_by_others = true)
{
    uint64_t base = 0;
    void *event = gpusync_timeline_metal(s->t[0], &base);
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[1])};
    gpusync_ticket first = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(buffers[0]), .flags = ON_GPU);
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
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    assert_result(gpusync_poll(s->q[0], first, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_poll(s->q[0], second, NULL), GPUSYNC_ERROR_CANCELLED);
    first = commit(s->q[0], waiting(s->q[0], two));
    send_as(UNORDERED_STRICT, s->q[0], NULL, new_buffer(s->q[0]), &two);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], first, NULL));
}

/* -- R30: UNORDERED ----------------------------------------------------------------------------------------------- */

on_both_kinds_with(test_R30_held_unordered_work_holds_up_nothing_of_its_queue, .timelines = 2)
{
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    note held = {0}, done = {0};
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(buffers[0]), .on_complete = remember, .user = &held,
           .flags = UNORDERED);
    gpusync_ticket plain = SUBMIT(s->q[0], BUFFERS(buffers[1]), SIGNALS(at(s->t[1], 1)));
    assert_int_equal(plain, 1);
    on_done(ticket_at(s->q[0], plain), &done);
    assert_false(is_sent(buffers[0]));
    assert_true(is_sent(buffers[1]));
    finish_all(s);
    assert_int_equal(value_of(s->t[1]), 1);
    assert_ok(gpusync_poll(s->q[0], plain, NULL));
    assert_true(gpusync_is_done(s->q[0], plain));
    assert_noted(&done, GPUSYNC_OK);
    assert_int_equal(calls_of(&held), 0);
    /* What covers all work says that there is some. */
    assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(gpusync_in_flight(s->q[0]), 1);
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_TIMEOUT);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_noted(&held, GPUSYNC_OK);
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL));
}

/* It may wait for a ticket of its queue, and bring what ordered work behind that waits for. */
on_both_kinds_with(test_R30_unordered_work_passes_held_work_and_ends_alone, .timelines = 2)
{
    void *buffers[4];
    note notes[2] = {0};
    for (unsigned i = 0; i < 4; i++) buffers[i] = marked(s, 0, i);
    encode_wait(s->q[0], buffers[0], at(s->t[0], 1));
    encode_wait(s->q[0], buffers[1], at(s->t[1], 1));
    gpusync_ticket held = commit(s->q[0], buffers[0]);
    gpusync_ticket behind = commit(s->q[0], buffers[1]);
    SUBMIT(s->q[0], BUFFERS(buffers[2]), .on_complete = remember, .user = &notes[0], .flags = UNORDERED);
    SUBMIT(s->q[0], WAITS(ticket_at(s->q[0], held)), BUFFERS(buffers[3]), SIGNALS(at(s->t[1], 1)),
           .on_complete = remember, .user = &notes[1], .flags = UNORDERED);
    for (unsigned i = 0; i < 4; i++) assert_int_equal(is_sent(buffers[i]), i == 2);
    finish_all(s);
    assert_noted(&notes[0], GPUSYNC_OK);
    assert_int_equal(gpusync_in_flight(s->q[0]), 3);
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_NOT_READY);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_marks(2, 0, 3, 1);
    assert_noted(&notes[1], GPUSYNC_OK);
    assert_ok(gpusync_poll(s->q[0], behind, NULL));
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
}

/* -- R33: the order of values -------------------------------------------------------------------------------------- */

/* What one command buffer is told, as it is told: a wait, a signal, the commit. Any thread may tell it. */
static char said[8];
static unsigned words;

static void note_message(void *buffer, softmetal_phase phase, void *object, const char *selector)
{
    const char *const known[] = {"encodeWaitForEvent:value:", "encodeSignalEvent:value:", "commit"};
    for (unsigned i = 0; i < LENGTH(known); i++)
        if (phase == SOFTMETAL_BEFORE && object == buffer && !strcmp(selector, known[i]))
            PUT(&said[COUNT(&words)], "WSC"[i]);
}

static void note_messages(void *buffer)
{
    for (unsigned i = 0; i < LENGTH(said); i++) PUT(&said[i], '\0');
    PUT(&words, 0);
    softmetal_set_message_hook(note_message, buffer);
}

enum { SENT, HELD, CANCELLED, LOWER_STATES };
enum { OWN, ORDER_ONLY, SIGNALLED_BY_OTHERS, IMPORTED, IMPORTED_ORDER_ONLY, EVENT_KINDS };

/* Work of either queue is to signal 3, then work of q[0] 5. */
typedef struct cell {
    unsigned state, event; /* of the lower signal, of the timeline */
    unsigned lower, higher;
    bool other_queue, waits; /* ... of the lower signal; the higher one's work waits for 3 */
} cell;

static void assert_in_cell(const cell *c, bool right, const char *what)
{
    static const char *const states[] = {"sent", "held", "cancelled"};
    static const char *const events[] = {"own", "order_only", "signalled by others", "imported",
                                         "imported, order_only"};
    if (right) return;
    fail_msg("%s; the lower signal: %s, %s, of %s queue; the event: %s; the higher: %s%s", what, names[c->lower],
             states[c->state], c->other_queue ? "another" : "the same", events[c->event], names[c->higher],
             c->waits ? ", waits for it" : "");
}
#define IN_CELL(right) assert_in_cell(c, right, #right)

/* Whether the higher signal goes while the lower one is sent and not reached. */
static bool goes_beside(const cell *c, bool metal4)
{
    bool gpu_lower = is_made_by_the_gpu(c->lower), gpu_higher = is_made_by_the_gpu(c->higher);
    bool others = c->event == SIGNALLED_BY_OTHERS || c->event >= IMPORTED;
    if (c->waits) return gpu_higher && (gpu_lower || others);
    if (c->other_queue || flags_of[c->lower] & UNORDERED || flags_of[c->higher] & UNORDERED) return false;
    return !gpu_higher || (gpu_lower && (metal4 || c->event != IMPORTED));
}

/* What the higher one's command buffer is told. ends: it never runs. */
static void assert_told(const cell *c, bool beside, bool ends)
{
    char expected[8] = "";
    bool gpu = is_made_by_the_gpu(c->higher), failed = c->state == CANCELLED && c->event != ORDER_ONLY;
    if (c->event == IMPORTED_ORDER_ONLY) failed = false;
    if (c->waits && c->higher == ENCODED) strcat(expected, "W");
    if (!c->waits && gpu && beside) strcat(expected, "W"); /* for the lower value */
    if (!ends) strcat(expected, gpu && !failed ? "SC" : "C"); /* nothing is signalled to what has failed */
    bool in_front = c->waits && c->higher != ENCODED; /* a wait ON_GPU, perhaps here as well */
    IN_CELL(!strcmp(in_front && said[0] == 'W' ? said + 1 : said, expected));
}

static void try_cell(stage *s, const cell *c)
{
    void *event = c->event >= IMPORTED ? metal_shared_event_new(s->metal_device) : NULL;
    const gpusync_timeline_desc desc = {.shared_event = event, .signalled_by_others = c->event == SIGNALLED_BY_OTHERS,
                                        .order_only = c->event == ORDER_ONLY || c->event == IMPORTED_ORDER_ONLY};
    gpusync_queue *queue = s->q[c->other_queue];
    new_timelines(s);
    gpusync_timeline *timeline = timeline_from(s->device, &desc);
    const gpusync_point three = at(timeline, 3), five = at(timeline, 5), go = at(s->t[1], 1);
    void *low = metal_retain(marked(s, c->other_queue, 3)), *high = metal_retain(marked(s, 0, 5));
    bool cancelled = c->state == CANCELLED, fails = cancelled && !desc.order_only;
    bool beside = c->state != CANCELLED && goes_beside(c, is_metal4(s->q[0]));
    if (cancelled) commit_new(queue); /* its turn comes behind this */
    gpusync_ticket lower = send_as(c->lower, queue, c->state == SENT ? NULL : &go, low, &three);
    IN_CELL(is_sent(low) == (c->state == SENT));
    if (cancelled) assert_ok(gpusync_queue_cancel_held(queue, GPUSYNC_EVERYTHING));
    note_messages(high);
    gpusync_ticket higher = send_as(c->higher, s->q[0], c->waits ? &three : NULL, high, &five);
    IN_CELL(is_sent(high) == (c->state == SENT && beside));
    if (c->state == HELD) {
        signal_value(s->t[1], 1);
        IN_CELL(is_sent(low));
        IN_CELL(is_sent(high) == beside);
    }
    if (beside && is_made_by_the_gpu(c->higher) && !(c->waits && c->higher != ENCODED) && !is_metal4(s->q[0]))
        IN_CELL(softmetal_what_is_due(high) != SOFTMETAL_COMPLETE_DUE); /* before the lower one has come */
    finish_all(s);
    assert_true(softmetal_settle_listeners(SECONDS(60))); /* which may send it */
    finish_all(s);
    softmetal_set_message_hook(NULL, NULL);
    assert_end(queue, lower, cancelled ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_OK);
    assert_end(s->q[0], higher, fails && c->waits ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_OK);
    if (fails) assert_failed(timeline, GPUSYNC_ERROR_CANCELLED);
    else IN_CELL(value_of(timeline) == 5);
    if (!cancelled) assert_marks(3, 5);
    if (!is_metal4(s->q[0])) assert_told(c, beside, fails && c->waits);
    assert_ok(gpusync_timeline_destroy(timeline));
    drop_timelines(s);
    metal_release(event);
    metal_release(low);
    metal_release(high);
}

without_stage_on_both_kinds(test_R33_which_higher_signal_goes_when)
{
    enum { CELLS = KINDS * KINDS * 4 };
    for (unsigned i = 0; i < LOWER_STATES * EVENT_KINDS * CELLS * 2; i++) {
        static stage s;
        const cell c = {i / CELLS % LOWER_STATES, i / CELLS / 2 / LOWER_STATES, i % KINDS, i / KINDS % KINDS,
                        i / KINDS / KINDS & 1, i / KINDS / KINDS & 2};
        if (i % CELLS == 0) stage_open(&s, &(stage_desc){.queues = 2, .mixed = i / CELLS / LOWER_STATES & 1});
        bool has_ended = c.state == CANCELLED && flags_of[c.lower] & UNORDERED;
        if (!has_ended) try_cell(&s, &c);
        if (i % CELLS == CELLS - 1) stage_close(&s);
    }
}

/* The lowest of those that could go goes first, held or not. */

typedef enum trigger { BY_THE_END_BELOW, BY_A_VALUE, BY_A_TICKET, TRIGGERS } trigger;

/* Holds work of order[1] and order[2] with the signals 2 and 3, and lets both go by one event of order[0]. */
static void lowest_first(stage *s, const unsigned *order, bool higher_is_committed_first, trigger by, unsigned kind)
{
    gpusync_point values[4];
    gpusync_ticket tickets[4] = {0};
    void *buffers[4] = {NULL};
    gpusync_queue *below = s->q[order[0]];
    unsigned i;
    new_timelines(s);
    gpusync_point go = at(s->t[1], 1);
    for (i = 1; i < 4; i++) {
        values[i] = at(s->t[0], i);
        buffers[i] = marked(s, order[i - 1], i);
    }
    if (by == BY_THE_END_BELOW) send_as(kind, below, NULL, buffers[1], &values[1]);
    else tickets[1] = commit(below, buffers[1]);
    if (by == BY_A_TICKET) go = ticket_at(below, tickets[1]);
    for (unsigned n = 0; n < 2; n++) {
        i = higher_is_committed_first ? 3 - n : 2 + n;
        tickets[i] = send_as(kind, s->q[order[i - 1]], by == BY_THE_END_BELOW ? NULL : &go, buffers[i], &values[i]);
        assert_false(is_sent(buffers[i]));
    }
    if (by == BY_A_VALUE) signal_value(s->t[1], 1);
    while (by != BY_A_VALUE && finish_next(below)) {}
    assert_true(is_sent(buffers[2]));
    assert_false(is_sent(buffers[3]));
    finish_all(s);
    for (i = 2; i < 4; i++) assert_end(s->q[order[i - 1]], tickets[i], GPUSYNC_OK);
    assert_int_equal(value_of(s->t[0]), 3);
    drop_timelines(s);
}

on_stage_with(test_R33_of_held_signals_that_could_go_the_lowest_goes_first_whatever_queue_comes_first, .queues = 3)
{
    for (unsigned by = 0; by < TRIGGERS; by++)
        for (unsigned kind = 0; kind < KINDS; kind++)
            for (unsigned i = 0; i < 12; i++) lowest_first(s, orders[i / 2], i % 2, (trigger)by, kind);
}

/* One queue goes ahead with 3 and 4; what waits for 4 waits for all below it as well. */
on_all_kinds_with(test_R33_work_may_wait_for_more_than_the_next_lower_value, .queues = 3, .timelines = 1)
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

/* ON_GPU the wait is in a command buffer in front, past which Metal may run the work: its signal comes behind the lower
   one all the same, for which a third one waits. */
on_stage_with(test_R33_a_signal_comes_behind_the_lower_one_that_its_work_waits_for, .queues = 3)
{
    for (unsigned other_queue = 0; other_queue < 2; other_queue++) {
        new_timelines(s);
        void *low = marked(s, other_queue, 3), *high = marked(s, 0, 5), *third = waiting(s->q[2], at(s->t[0], 3));
        mark(s, third, 30);
        encode_signal(s->q[other_queue], low, at(s->t[0], 3));
        commit(s->q[other_queue], low);
        commit(s->q[2], third);
        SUBMIT(s->q[0], WAITS(at(s->t[0], 3)), BUFFERS(high), SIGNALS(at(s->t[0], 5)), .flags = ON_GPU);
        assert_true(is_sent(high));
        if (softmetal_what_is_due(high) == SOFTMETAL_COMPLETE_DUE) softmetal_finish(high);
        while (finish_next(s->q[2])) {}
        for (unsigned i = 0; i < marks(); i++) assert_int_not_equal(mark_at(i), 30);
        finish_all(s);
        assert_int_equal(value_of(s->t[0]), 5);
        drop_timelines(s);
    }
}

/* Another thread commits a lower signal just as the work is about to go. */
static void *lower_signal;

static void commit_the_lower_signal(void *user, softmetal_phase phase, void *object, const char *selector)
{
    stage *s = (stage *)user;
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, "setSignaledValue:") != 0) return;
    softmetal_set_message_hook(NULL, NULL);
    commit(s->q[1], lower_signal);
}

on_stage_with(test_R33_work_that_was_about_to_go_is_held_again, .queues = 2)
{
    for (unsigned held = 0; held < 2; held++) {
        new_timelines(s);
        void *buffer = waiting(s->q[0], at(s->t[1], 1));
        encode_signal(s->q[0], buffer, at(s->t[0], 5));
        gpusync_ticket ticket = commit(s->q[0], buffer);
        lower_signal = held ? waiting(s->q[1], at(s->t[1], 2)) : new_buffer(s->q[1]);
        encode_signal(s->q[1], lower_signal, at(s->t[0], 3));
        softmetal_set_message_hook(commit_the_lower_signal, s);
        signal_value(s->t[1], 1);
        assert_false(is_sent(buffer));
        if (held) signal_value(s->t[1], 2);
        finish_all(s);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        assert_ok(gpusync_poll(s->q[1], GPUSYNC_EVERYTHING, NULL));
        assert_int_equal(value_of(s->t[0]), 5);
        drop_timelines(s);
    }
}

on_all_kinds_with(test_R33_600_values_that_several_queues_commit_in_rising_order_come, .queues = 3, .timelines = 2,
                  .queue.max_command_buffer_count = 1000)
{
    const gpusync_point go = at(s->t[1], 1);
    for (uint64_t i = 1; i <= 600; i++) {
        gpusync_queue *queue = s->q[i * i % 7 % 3];
        const gpusync_point value = at(s->t[0], i);
        send_as((unsigned)(i % 11 % KINDS), queue, i > 100 && i % 13 == 0 ? &go : NULL, new_buffer(queue), &value);
        if (i % 3 == 0) finish_next(s->q[i / 3 % 3]);
    }
    finish_all(s);
    signal_value(s->t[1], 1);
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 600);
    assert_ok(gpusync_device_wait(s->device, 0, NULL));
    for (unsigned i = 0; i < 3; i++) assert_int_equal(failures_of(s->q[i]), 0);
}

/* Each has the lower value of one timeline, and the host lets both go. */
on_all_kinds_with(test_R33_a_circle_over_two_timelines_hangs_is_in_the_report_and_is_cancelled, .queues = 2,
                  .timelines = 3, .timeline.order_only = true)
{
    static char text[4000];
    for (unsigned i = 0; i < 2; i++)
        SUBMIT(s->q[i], WAITS(at(s->t[2], 1)), BUFFERS(new_buffer(s->q[i])),
               SIGNALS(at(s->t[0], 1 + i), at(s->t[1], 2 - i)), .flags = ON_GPU);
    signal_value(s->t[2], 1);
    finish_all(s);
    for (unsigned i = 0; i < 2; i++) assert_result(gpusync_poll(s->q[i], 1, NULL), GPUSYNC_NOT_READY);
    assert_true(gpusync_device_report(s->device, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "2 of timeline 'b' behind value 1, which ticket 1 of queue 'second' is to signal"));
    assert_non_null(strstr(text, "2 of timeline 'a' behind value 1, which ticket 1 of queue 'first' is to signal"));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_ok(gpusync_poll(s->q[1], 1, NULL));
    for (unsigned i = 0; i < 2; i++) assert_int_equal(value_of(s->t[i]), 2);
}

/* Neither a lower signal that is held nor one that is sent holds a signal up any more. No wait is encoded that nothing
   would end: an imported event is not written. */
on_stage_with(test_R33_a_failed_timeline_has_no_order, .queues = 2, .timelines = 1)
{
    for (unsigned imported = 0; imported < 2; imported++) {
        void *event = imported ? metal_shared_event_new(s->metal_device) : NULL;
        const gpusync_timeline_desc desc = {.shared_event = event};
        gpusync_timeline *timeline = timeline_from(s->device, &desc);
        void *behind_sent = metal_retain(signalling(s->q[0], at(timeline, 2)));
        void *behind_held = metal_retain(signalling(s->q[0], at(timeline, 4)));
        void *held = waiting(s->q[1], at(s->t[0], imported + 1));
        encode_signal(s->q[1], held, at(timeline, 3));
        note_messages(behind_sent);
        commit(s->q[0], signalling(s->q[0], at(timeline, 1)));
        commit(s->q[0], behind_sent);
        commit(s->q[1], held);
        commit(s->q[0], behind_held);
        assert_int_equal(is_sent(behind_sent), !imported);
        assert_false(is_sent(behind_held));
        assert_ok(gpusync_timeline_fail(timeline, NULL));
        assert_true(is_sent(behind_held));
        assert_string_equal(said, imported ? "C" : "WSC"); /* what Metal does not have yet signals nothing */
        softmetal_set_message_hook(NULL, NULL);
        signal_value(s->t[0], imported + 1);
        finish_all(s);
        assert_ok(gpusync_device_wait(s->device, 0, NULL));
        assert_ok(gpusync_timeline_destroy(timeline));
        metal_release(behind_sent);
        metal_release(behind_held);
        metal_release(event);
    }
}

enum { BY_ITS_HANDLER, BY_A_POLL, BY_A_TIMER, NOTICES }; /* it is lost, but for the first one */

/* The first of five is killed. Where the host ends a wait of the GPU whatever happens, the four behind it are with Metal,
   and wait there until the host knows of it; else they are held. */
on_stage(test_R33_work_behind_killed_work_waits_for_no_value_that_nothing_brings)
{
    enum { LAST = 5 };
    for (unsigned i = 0; i < 3 * NOTICES; i++) {
        const unsigned kind = i % 3, notice = i / 3; /* own, imported, imported and order_only */
        void *event = kind ? metal_shared_event_new(s->metal_device) : NULL;
        const gpusync_timeline_desc desc = {.shared_event = event, .order_only = kind == 2};
        gpusync_timeline *timeline = timeline_from(s->device, &desc);
        void *buffers[LAST + 1];
        gpusync_ticket tickets[LAST + 1];
        note last = {0};
        for (uint64_t k = 1; k <= LAST; k++) {
            buffers[k] = metal_retain(signalling(s->q[0], at(timeline, k)));
            if (k == 1) softmetal_fail_as(buffers[k], SOFTMETAL_HANG, NULL);
            tickets[k] = commit(s->q[0], buffers[k]);
            assert_int_equal(is_sent(buffers[k]), k == 1 || kind != 1);
        }
        on_done(ticket_at(s->q[0], tickets[LAST]), &last);
        if (notice != BY_ITS_HANDLER) softmetal_lose_handlers(buffers[1]);
        softmetal_finish(buffers[1]);
        assert_int_equal(finish_next(s->q[0]), notice == BY_ITS_HANDLER);
        if (notice == BY_A_POLL) assert_result(gpusync_poll(s->q[0], tickets[1], NULL), GPUSYNC_ERROR_EXECUTION);
        if (notice == BY_A_TIMER) assert_true(softmetal_fire_timers() > 0); /* the callback is owed */
        assert_true(softmetal_dispatched(SECONDS(60)));
        finish_all(s);
        assert_noted(&last, GPUSYNC_OK);
        assert_result(gpusync_poll(s->q[0], tickets[1], NULL), GPUSYNC_ERROR_EXECUTION);
        for (unsigned k = 2; k <= LAST; k++) assert_ok(gpusync_poll(s->q[0], tickets[k], NULL));
        if (kind == 2) assert_int_equal(value_of(timeline), LAST);
        else assert_failed(timeline, GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_timeline_destroy(timeline));
        for (unsigned k = 1; k <= LAST; k++) metal_release(buffers[k]);
        metal_release(event);
    }
}

/* -- R33: signals that are refused --------------------------------------------------------------------------------- */

/* How a value of t[0] stands as q[0] is to signal 5. */
enum { IS_REACHED, IS_SENT, IS_HELD, IS_HELD_UNORDERED, IS_CANCELLED, IS_OPEN };

typedef struct rival {
    unsigned stands;
    uint64_t value;
    unsigned queue;
    enum { RISES, REFUSED, REFUSED_IF_ORDERED } verdict; /* of the signal of 5 */
} rival;

static const rival rivals[] = {
    {IS_REACHED, 4, 0, RISES}, {IS_REACHED, 5, 0, REFUSED}, {IS_REACHED, 6, 0, REFUSED},
    {IS_SENT, 4, 1, RISES}, {IS_SENT, 5, 1, REFUSED}, {IS_SENT, 6, 1, REFUSED},
    {IS_SENT, 4, 0, RISES}, {IS_SENT, 5, 0, REFUSED}, {IS_SENT, 6, 0, REFUSED},
    {IS_HELD, 4, 1, RISES}, {IS_HELD, 5, 1, REFUSED}, {IS_HELD, 6, 1, RISES},
    {IS_HELD, 4, 0, RISES}, {IS_HELD, 5, 0, REFUSED}, {IS_HELD, 6, 0, REFUSED_IF_ORDERED},
    {IS_HELD_UNORDERED, 5, 0, REFUSED}, {IS_HELD_UNORDERED, 6, 0, RISES},
    {IS_CANCELLED, 5, 1, REFUSED}, {IS_CANCELLED, 6, 1, RISES},
    {IS_CANCELLED, 5, 0, REFUSED}, {IS_CANCELLED, 6, 0, REFUSED_IF_ORDERED},
    {IS_OPEN, 4, 0, RISES}, {IS_OPEN, 5, 1, RISES}, {IS_OPEN, 6, 0, RISES},
};

/* Has the value stand so. The open buffer, or NULL. */
static void *let_stand(stage *s, const rival *r)
{
    gpusync_queue *queue = s->q[r->queue];
    const gpusync_point value = at(s->t[0], r->value), go = at(s->t[1], 1);
    if (r->stands == IS_REACHED) signal_value(s->t[0], r->value);
    if (r->stands == IS_OPEN) return signalling(queue, value);
    if (r->stands == IS_CANCELLED) commit_new(queue); /* its turn comes behind this */
    if (r->stands == IS_SENT) send_as(BY_THE_GPU, queue, NULL, new_buffer(queue), &value);
    if (r->stands >= IS_HELD)
        send_as(r->stands == IS_HELD_UNORDERED ? UNORDERED_STRICT : STRICT, queue, &go, new_buffer(queue), &value);
    if (r->stands == IS_CANCELLED) assert_ok(gpusync_queue_cancel_held(queue, GPUSYNC_EVERYTHING));
    return NULL;
}

/* An encoded signal is refused as it is encoded, or, `late`, at the commit. */
static void try_rival(stage *s, const rival *r, unsigned kind, bool late)
{
    const bool unordered = flags_of[kind] & UNORDERED;
    const bool refused = r->verdict == REFUSED || (r->verdict == REFUSED_IF_ORDERED && !unordered);
    const gpusync_result expected = refused ? GPUSYNC_ERROR_NOT_RISING : GPUSYNC_OK;
    gpusync_ticket ticket = 77;
    new_timelines(s);
    void *buffer = metal_retain(new_buffer(s->q[0]));
    if (late) encode_signal(s->q[0], buffer, at(s->t[0], 5));
    void *open = let_stand(s, r);
    gpusync_result result;
    if (kind != ENCODED)
        result = TRY_SUBMIT(s->q[0], unordered ? NULL : &ticket, BUFFERS(buffer), SIGNALS(at(s->t[0], 5)),
                            .flags = flags_of[kind]);
    else if (late) result = gpusync_commit(s->q[0], buffer, &ticket);
    else result = gpusync_encode_signal(s->q[0], buffer, at(s->t[0], 5));
    if (kind == ENCODED && !late && result == GPUSYNC_OK) commit(s->q[0], buffer);
    if (result != expected)
        fail_msg("value %u stands as %u on queue %u, %s%s: %d", (unsigned)r->value, r->stands, r->queue, names[kind],
                 late ? ", late" : "", result);
    if (refused) assert_int_equal(ticket, 77);
    if (refused) assert_false(is_sent(buffer));
    if (refused && !is_metal4(s->q[0])) assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    if (open) assert_ok(gpusync_command_buffer_discard(s->q[r->queue], open));
    signal_value(s->t[1], 1);
    finish_all(s);
    if (r->stands != IS_CANCELLED && r->stands != IS_OPEN)
        assert_int_equal(value_of(s->t[0]), r->value > 5 || refused ? r->value : 5);
    drop_timelines(s);
    metal_release(buffer);
}

on_both_kinds_with(test_R33_a_signal_that_does_not_rise_is_refused, .queues = 2)
{
    const bool metal4 = is_metal4(s->q[0]);
    for (unsigned i = 0; i < LENGTH(rivals); i++) {
        if (metal4 && rivals[i].stands == IS_OPEN) continue;
        for (unsigned kind = metal4 ? BY_THE_GPU : ENCODED; kind < KINDS; kind++) try_rival(s, &rivals[i], kind, false);
        if (!metal4) try_rival(s, &rivals[i], ENCODED, true);
    }
}

enum { BY_A_DISCARD, BY_A_REFUSAL, BY_AN_ENQUEUE, KEPT_BACK };

/* The program commits the buffer itself, and discards it. */
on_stage_with(test_R33_R34_a_buffer_that_the_program_commits_makes_its_waits_and_no_signals, .queues = 2)
{
    for (unsigned by = 0; by < KEPT_BACK; by++) {
        new_timelines(s);
        void *buffer = metal_retain(waiting(s->q[0], at(s->t[1], 1)));
        note_messages(buffer);
        encode_signal(s->q[0], buffer, at(s->t[0], 5));
        if (by == BY_A_REFUSAL) signal_value(s->t[0], 5);
        if (by == BY_A_REFUSAL) assert_result(gpusync_commit(s->q[0], buffer, NULL), GPUSYNC_ERROR_NOT_RISING);
        if (by == BY_AN_ENQUEUE) metal_enqueue(buffer);
        for (unsigned i = 0; i < 2 && by == BY_AN_ENQUEUE; i++) /* for good */
            assert_result(gpusync_commit(s->q[0], buffer, NULL), GPUSYNC_ERROR_ENQUEUED);
        if (by != BY_AN_ENQUEUE) assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
        metal_commit(buffer);
        if (by == BY_AN_ENQUEUE) assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
        assert_string_equal(said, "C");
        softmetal_set_message_hook(NULL, NULL);
        assert_false(finish_next(s->q[0])); /* it waits */
        signal_value(s->t[1], 1);
        finish_all(s);
        assert_int_equal(metal_status(buffer), 4);
        assert_int_equal(value_of(s->t[0]), by == BY_A_REFUSAL ? 5 : 0);
        assert_int_equal(shown(s->t[0]), by == BY_A_REFUSAL ? 5 : 0);
        gpusync_ticket ticket = commit(s->q[1], signalling(s->q[1], at(s->t[0], by == BY_A_REFUSAL ? 6 : 5)));
        finish_all(s);
        assert_ok(gpusync_poll(s->q[1], ticket, NULL)); /* nothing of it is left on the timeline */
        drop_timelines(s);
        metal_release(buffer);
    }
}

/* It stands for the whole buffer. Nothing may wait behind it. */
on_stage_with(test_R33_a_signal_is_encoded_at_the_commit_where_an_encoder_was_open, .timelines = 2)
{
    void *buffer = new_buffer(s->q[0]), *memory = metal_buffer_new(s->metal_device, 1);
    void *blit = metal_blit_begin(buffer);
    note_messages(buffer);
    encode_signal(s->q[0], buffer, at(s->t[0], 1));
    encode_signal(s->q[0], buffer, at(s->t[0], 3));
    assert_result(gpusync_encode_wait(s->q[0], buffer, at(s->t[1], 1)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    metal_fill(blit, memory, 0, 1, 0x77);
    metal_end(blit);
    assert_string_equal(said, "");
    gpusync_ticket ticket = commit(s->q[0], buffer);
    assert_string_equal(said, "SSC");
    softmetal_set_message_hook(NULL, NULL);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_int_equal(value_of(s->t[0]), 3);
    assert_int_equal(*(unsigned char *)metal_contents(memory), 0x77);
    metal_release(memory);
}

/* -- R34: buffers that are enqueued -------------------------------------------------------------------------------- */

on_stage_with(test_R34_an_enqueued_buffer_has_no_waits_and_signals_and_is_part_of_no_submission, .timelines = 1)
{
    void *buffer = new_buffer(s->q[0]), *other = new_buffer(s->q[0]);
    gpusync_ticket ticket = 77;
    metal_enqueue(buffer);
    assert_result(gpusync_encode_wait(s->q[0], buffer, at(s->t[0], 1)), GPUSYNC_ERROR_ENQUEUED);
    assert_result(gpusync_encode_signal(s->q[0], buffer, at(s->t[0], 1)), GPUSYNC_ERROR_ENQUEUED);
    for (unsigned kind = BY_THE_GPU; kind < KINDS; kind++)
        assert_result(TRY_SUBMIT(s->q[0], flags_of[kind] & UNORDERED ? NULL : &ticket, BUFFERS(other, buffer),
                                 .flags = flags_of[kind]), GPUSYNC_ERROR_ENQUEUED);
    assert_int_equal(ticket, 77);
    assert_int_equal(commit(s->q[0], buffer), 1);
    assert_int_equal(commit(s->q[0], other), 2);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 2, NULL));
}

/* UNORDERED work that is held, a marker, and work that has never run hold up no enqueued buffer. */
on_stage_with(test_R34_a_plain_enqueued_buffer_is_refused_while_ordered_work_is_held, .timelines = 1)
{
    void *buffers[2] = {new_buffer(s->q[0]), foreign_buffer(s->q[0])};
    gpusync_ticket ticket = 77;
    for (unsigned i = 0; i < 2; i++) metal_enqueue(buffers[i]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 2)), .flags = UNORDERED);
    commit(s->q[0], buffers[0]);
    assert_true(is_sent(buffers[0]));
    commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    for (unsigned i = 0; i < 2; i++)
        assert_result(gpusync_commit(s->q[0], buffers[1], &ticket), GPUSYNC_ERROR_ENQUEUED);
    assert_int_equal(ticket, 77);
    assert_false(is_sent(buffers[1]));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(commit(s->q[0], buffers[1]), 4);
    assert_true(is_sent(buffers[1]));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 4, NULL));
    metal_release(buffers[1]);
}

on_stage(test_R34_tickets_of_enqueued_buffers_come_in_the_order_of_their_commits)
{
    void *buffers[3];
    for (unsigned i = 0; i < 3; i++) metal_enqueue(buffers[i] = marked(s, 0, i));
    for (unsigned i = 0; i < 3; i++) assert_int_equal(commit(s->q[0], buffers[2 - i]), i + 1);
    assert_true(finish_next(s->q[0])); /* that of ticket 3 */
    assert_int_equal(gpusync_in_flight(s->q[0]), 3);
    assert_result(gpusync_poll(s->q[0], 3, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_NOT_READY);
    finish_all(s);
    assert_marks(0, 1, 2);
    assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
}

/* So is one behind it, and each buffer of a submission. */
on_stage_with(test_S5_a_held_buffer_is_committed_already, .timelines = 1)
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

/* -- R9: overtaken ------------------------------------------------------------------------------------------------ */

enum { BY_AN_EQUAL_VALUE, BY_A_HIGHER_ONE, BY_OTHER_CODE, OVERTAKERS };

/* What waits for the value itself goes on. */
on_all_kinds_with(test_R9_an_overtaken_signal_fails_its_work_and_the_work_s_other_timelines, .queues = 3)
{
    for (unsigned by = 0; by < OVERTAKERS; by++) {
        const gpusync_timeline_desc desc = {.signalled_by_others = by == BY_OTHER_CODE};
        const uint64_t higher = by == BY_AN_EQUAL_VALUE ? 10 : 20;
        gpusync_timeline *timeline = timeline_from(s->device, &desc);
        uint64_t value = 99;
        new_timelines(s);
        void *buffer = waiting(s->q[0], at(s->t[1], 1));
        encode_signal(s->q[0], buffer, at(timeline, 10));
        encode_signal(s->q[0], buffer, at(s->t[0], 1));
        gpusync_ticket overtaken = commit(s->q[0], buffer);
        gpusync_ticket consumer = commit(s->q[1], waiting(s->q[1], at(timeline, 10)));
        gpusync_ticket follower = commit(s->q[2], waiting(s->q[2], at(s->t[0], 1)));
        if (by == BY_OTHER_CODE) other_code_signals(timeline, higher);
        else signal_value(timeline, higher);
        assert_int_equal(value_of(timeline), higher);
        assert_result(gpusync_poll(s->q[0], overtaken, NULL), GPUSYNC_ERROR_NOT_RISING);
        gpusync_error error = failure_at(s->q[0], by);
        assert_int_equal(error.result, GPUSYNC_ERROR_NOT_RISING);
        assert_int_equal(error.ticket, overtaken);
        assert_false(error.inherited);
        assert_false(error.ran);
        assert_result(gpusync_timeline_query(s->t[0], &value, NULL), GPUSYNC_ERROR_NOT_RISING);
        assert_int_equal(value, 0);
        assert_result(gpusync_poll(s->q[2], follower, NULL), GPUSYNC_ERROR_NOT_RISING);
        assert_int_equal(failure_at(s->q[2], by).origin, overtaken);
        finish_all(s);
        assert_ok(gpusync_poll(s->q[1], consumer, NULL));
        assert_ok(gpusync_timeline_destroy(timeline));
        drop_timelines(s);
    }
}

/* -- R8: how held work ends --------------------------------------------------------------------------------------- */

typedef enum held_end { IS_CANCELLED_NOW, WAIT_FAILED, OVERTAKEN, HELD_ENDS } held_end;

static const gpusync_result held_results[] = {GPUSYNC_ERROR_CANCELLED, GPUSYNC_ERROR_OUT_OF_MEMORY,
                                              GPUSYNC_ERROR_NOT_RISING};

static void end_held(stage *s, held_end end)
{
    if (end == IS_CANCELLED_NOW) assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    if (end == WAIT_FAILED) fail_timeline(s->t[1], GPUSYNC_ERROR_OUT_OF_MEMORY);
    if (end == OVERTAKEN) signal_value(s->t[2], 2);
}

/* The work waits for t[1], for t[3], which never comes, and for a ticket that never ends; it signals t[0] and t[2]. */
on_all_kinds_with(test_R8_work_that_never_ran_waits_for_nothing_any_more, .queues = 2)
{
    for (unsigned round = 0; round < 2 * HELD_ENDS; round++) {
        const bool unordered = round & 1;
        const gpusync_result result = held_results[round / 2];
        note ended = {0};
        for (unsigned i = 0; i < 4; i++) s->t[i] = new_timeline(s->device);
        gpusync_ticket first = commit_new(s->q[0]);
        gpusync_ticket never = commit(s->q[1], waiting(s->q[1], at(s->t[3], 1)));
        gpusync_ticket ticket =
            SUBMIT(s->q[0], WAITS(at(s->t[1], 1), at(s->t[3], 1), ticket_at(s->q[1], never)),
                   BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 1), at(s->t[2], 1)), .on_complete = remember,
                   .user = &ended, .label = "held", .flags = unordered ? UNORDERED : 0);
        end_held(s, (held_end)(round / 2));
        /* With a ticket it ends in its turn; its timelines fail then. */
        assert_int_equal(calls_of(&ended), unordered);
        assert_failed(s->t[0], unordered ? result : GPUSYNC_OK);
        assert_result(gpusync_poll(s->q[0], first, NULL), GPUSYNC_NOT_READY);
        assert_true(finish_next(s->q[0]));
        assert_ok(gpusync_poll(s->q[0], first, NULL));
        assert_noted(&ended, result);
        assert_end(s->q[0], ticket, result);
        if (round / 2 != WAIT_FAILED) assert_string_equal(failure_at(s->q[0], round).label, "held");
        assert_failed(s->t[0], result);
        assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
        if (round / 2 == OVERTAKEN) assert_int_equal(value_of(s->t[2]), 2);
        else assert_failed(s->t[2], result);
        assert_ok(gpusync_queue_cancel_held(s->q[1], GPUSYNC_EVERYTHING));
        for (unsigned i = 0; i < 4; i++) assert_ok(gpusync_timeline_destroy(s->t[i]));
        memset(s->t, 0, sizeof s->t);
    }
}

/* Until its turn comes the signals of cancelled work count, but the host may overtake them. */
on_all_kinds_with(test_R8_cancelled_work_that_is_overtaken_before_its_turn_does_not_fail_that_timeline, .queues = 2,
                  .timelines = 3)
{
    void *held = waiting(s->q[0], at(s->t[1], 1)), *higher = signalling(s->q[1], at(s->t[0], 7));
    commit_new(s->q[0]);
    encode_signal(s->q[0], held, at(s->t[0], 5));
    encode_signal(s->q[0], held, at(s->t[2], 1));
    gpusync_ticket ticket = commit(s->q[0], held);
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    commit(s->q[1], higher);
    assert_false(is_sent(higher));
    signal_value(s->t[0], 6);
    assert_true(is_sent(higher));
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_CANCELLED); /* and no NOT_RISING */
    assert_int_equal(value_of(s->t[0]), 7);
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
    note alone = {0};
    SUBMIT(s->q[0], WAITS(at(s->t[0], 2)), .on_complete = remember, .user = &alone, .flags = UNORDERED);
    gpusync_ticket other = commit(s->q[1], waiting(s->q[1], at(s->t[0], 1)));
    gpusync_ticket waits_for_ticket = commit(s->q[2], waiting(s->q[2], ticket_at(s->q[0], behind)));
    note notes[2] = {0};
    on_done(ticket_at(s->q[0], held), &notes[0]);
    on_done(ticket_at(s->q[0], behind), &notes[1]);
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    assert_noted(&alone, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(alone.error.ticket, 0);
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
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING)); /* nothing is held */
    assert_result(gpusync_queue_cancel_held(NULL, GPUSYNC_EVERYTHING), GPUSYNC_ERROR_INVALID_ARGUMENT);
}

/* An engine drops one upload: the first, the middle one, or the last of three that are held. The work behind them waits
   for nothing. */
on_all_kinds_with(test_R8_cancel_ends_one_ticket_in_its_turn, .queues = 2)
{
    static const gpusync_timeline_desc order_only = {.order_only = true};
    for (unsigned cancelled = 0; cancelled < 3; cancelled++) {
        gpusync_timeline *go = new_timeline(s->device), *fails[3], *rises[3];
        gpusync_queue *q = s->q[0];
        void *buffers[3], *last = new_buffer(q);
        note notes[4] = {0}, alone = {0}, heir = {0};
        gpusync_ticket tickets[3], sent = commit_new(q);
        job sleeper = {0};
        for (unsigned i = 0; i < 3; i++) {
            fails[i] = new_timeline(s->device);
            rises[i] = timeline_from(s->device, &order_only);
            buffers[i] = metal_retain(new_buffer(q));
            tickets[i] = SUBMIT(q, WAITS(at(go, i + 1)), BUFFERS(buffers[i]), SIGNALS(at(fails[i], 1), at(rises[i], 1)),
                                .on_complete = remember, .user = &notes[i]);
        }
        gpusync_ticket behind = SUBMIT(q, BUFFERS(last), .on_complete = remember, .user = &notes[3]);
        SUBMIT(q, WAITS(at(go, 3)), .on_complete = remember, .user = &alone, .flags = UNORDERED);
        SUBMIT(s->q[1], WAITS(ticket_at(q, tickets[cancelled])), .on_complete = remember, .user = &heir);
        job_wait(&sleeper, q, tickets[cancelled], GPUSYNC_FOREVER);
        await_parked(1);
        assert_ok(gpusync_queue_cancel_held(q, tickets[cancelled]));
        assert_result(gpusync_queue_cancel_held(q, tickets[cancelled]), GPUSYNC_NOT_READY);
        assert_result(gpusync_queue_cancel_held(q, sent), GPUSYNC_NOT_READY);
        finish_next(q);
        assert_result(gpusync_queue_cancel_held(q, sent), GPUSYNC_NOT_READY);
        for (unsigned i = 0; i < 3; i++) {
            bool in_turn = cancelled <= i;
            assert_result(gpusync_poll(q, tickets[cancelled], NULL),
                          in_turn ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_NOT_READY);
            assert_failed(fails[cancelled], in_turn ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_OK);
            assert_int_equal(value_of(rises[cancelled]), in_turn);
            assert_false(job_is_over(&sleeper) && !in_turn);
            assert_int_equal(is_sent(last), i == 2 && cancelled == 2);
            if (i == cancelled) continue;
            assert_false(is_sent(buffers[i]));
            signal_value(go, i + 1);
            assert_true(is_sent(buffers[i]));
            finish_next(q);
        }
        assert_int_equal(calls_of(&alone), cancelled < 2);
        assert_true(is_sent(last));
        signal_value(go, 4);
        finish_all(s);
        for (unsigned i = 0; i < 3; i++) {
            gpusync_result result = i == cancelled ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_OK;
            assert_noted(&notes[i], result);
            assert_result(gpusync_poll(q, tickets[i], NULL), result);
            assert_failed(fails[i], result);
            assert_int_equal(value_of(rises[i]), 1);
            assert_int_equal(is_sent(buffers[i]), i != cancelled);
            assert_ok(gpusync_timeline_destroy(fails[i]));
            assert_ok(gpusync_timeline_destroy(rises[i]));
            metal_release(buffers[i]);
        }
        assert_in_order(notes, 4);
        assert_ok(gpusync_poll(q, behind, NULL));
        assert_noted(&alone, GPUSYNC_OK);
        assert_noted(&heir, GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(heir.error.origin, tickets[cancelled]);
        assert_result(job_end(&sleeper), GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(failures_of(q), cancelled + 1);
        assert_int_equal(failure_at(q, cancelled).ticket, tickets[cancelled]);
        assert_int_equal(failure_at(q, cancelled).failure, GPUSYNC_FAILURE_CANCELLED);
        assert_false(failure_at(q, cancelled).ran || failure_at(q, cancelled).inherited);
        assert_ok(gpusync_timeline_destroy(go));
    }
}

/* The way to cancel one UNORDERED work: it waits for a timeline of its own, too. */
on_both_kinds_with(test_R30_UNORDERED_work_is_cancelled_by_a_timeline_of_its_own, .timelines = 3)
{
    const gpusync_error reason = {.result = GPUSYNC_ERROR_CANCELLED, .failure = GPUSYNC_FAILURE_CANCELLED};
    void *buffers[2] = {metal_retain(new_buffer(s->q[0])), metal_retain(new_buffer(s->q[0]))};
    note notes[2] = {0};
    for (unsigned i = 0; i < 2; i++)
        SUBMIT(s->q[0], WAITS(at(s->t[2], 1), at(s->t[i], 1)), BUFFERS(buffers[i]), .on_complete = remember,
               .user = &notes[i], .label = "upload", .flags = UNORDERED);
    assert_ok(gpusync_timeline_fail(s->t[0], &reason));
    assert_noted(&notes[0], GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(notes[0].error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_string_equal(notes[0].error.label, "upload");
    assert_false(notes[0].error.ran);
    signal_value(s->t[1], 1);
    signal_value(s->t[2], 1);
    finish_all(s);
    assert_noted(&notes[1], GPUSYNC_OK);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(is_sent(buffers[i]), i);
        metal_release(buffers[i]);
    }
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
}

on_both_kinds_with(test_R8_a_failure_from_before_the_cancel_stays, .timelines = 1)
{
    commit_new(s->q[0]);
    gpusync_ticket held = commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    fail_timeline(s->t[0], GPUSYNC_ERROR_COMPILE);
    assert_result(gpusync_queue_cancel_held(s->q[0], held), GPUSYNC_NOT_READY);
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
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
            SUBMIT(s->q[0], WAITS(at(s->t[1], 1)), BUFFERS(buffer), SIGNALS(at(s->t[2], 1)), .flags = ON_GPU);
            end_held(s, end == OF_CANCELLED_WORK ? IS_CANCELLED_NOW : end == OF_FAILED_WORK ? WAIT_FAILED : OVERTAKEN);
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
    for (unsigned i = 0; i < 2 * KINDS; i++) {
        const unsigned from = i / KINDS, kind = i % KINDS;
        const gpusync_point point = ticket_at(s->q[from], commit_new(s->q[from]));
        for (unsigned has_ended = 0; has_ended < 2; has_ended++) {
            void *buffer = new_buffer(s->q[0]);
            gpusync_ticket ticket = send_as(kind, s->q[0], &point, buffer, NULL);
            assert_int_equal(is_sent(buffer), has_ended);
            while (!has_ended && finish_next(s->q[from]) && !is_sent(buffer)) {}
            assert_true(is_sent(buffer));
            finish_all(s);
            assert_end(s->q[0], ticket, GPUSYNC_OK);
        }
    }
}

/* As a wait of the host does (T1): the ticket's own work may have ended on the GPU. */
on_all_kinds_with(test_R7_T1_work_that_waits_for_a_ticket_waits_for_the_ordered_work_before_it, .queues = 3)
{
    void *before = new_buffer(s->q[1]), *awaited = new_buffer(s->q[1]);
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[2])};
    commit(s->q[1], before);
    gpusync_point point = ticket_at(s->q[1], commit(s->q[1], awaited));
    send_as(STRICT, s->q[0], &point, buffers[0], NULL);
    softmetal_finish(awaited);
    send_as(STRICT, s->q[2], &point, buffers[1], NULL); /* later */
    for (unsigned i = 0; i < 2; i++) assert_false(is_sent(buffers[i]));
    softmetal_finish(before);
    for (unsigned i = 0; i < 2; i++) assert_true(is_sent(buffers[i]));
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

/* -- R19: a timeline that goes ------------------------------------------------------------------------------------- */

/* Signals of committed work reach the work that waits for them, held, or open until the timeline has gone.
   Above them nothing comes, whatever open buffers are to signal. */
on_stage_with(test_R19_of_a_destroyed_timeline_the_signals_of_committed_work_come, .queues = 4)
{
    for (unsigned sent = 0; sent < 2; sent++)
        for (unsigned committed = 0; committed < 2; committed++) {
            new_timelines(s);
            const gpusync_point go = at(s->t[1], 1), three = at(s->t[0], 3);
            void *signals = signalling(s->q[3], at(s->t[0], 5)), *buffers[2];
            gpusync_ticket tickets[2];
            for (unsigned i = 0; i < 2; i++) buffers[i] = waiting(s->q[i], at(s->t[0], i ? 5 : 3));
            gpusync_ticket producer = send_as(ENCODED, s->q[2], sent ? NULL : &go, new_buffer(s->q[2]), &three);
            for (unsigned i = 0; i < 2 && committed; i++) tickets[i] = commit(s->q[i], buffers[i]);
            assert_ok(gpusync_timeline_destroy(s->t[0]));
            for (unsigned i = 0; i < 2 && !committed; i++) tickets[i] = commit(s->q[i], buffers[i]);
            assert_result(gpusync_poll(s->q[0], tickets[0], NULL), GPUSYNC_NOT_READY);
            assert_result(gpusync_poll(s->q[1], tickets[1], NULL), GPUSYNC_ERROR_DESTROYED);
            gpusync_ticket late = commit(s->q[3], signals); /* accepted: no work waits for it */
            signal_value(s->t[1], 1);
            finish_all(s);
            assert_ok(gpusync_poll(s->q[0], tickets[0], NULL));
            assert_ok(gpusync_poll(s->q[2], producer, NULL));
            assert_ok(gpusync_poll(s->q[3], late, NULL));
            assert_ok(gpusync_timeline_destroy(s->t[1]));
        }
    s->t[0] = s->t[1] = NULL;
}

/* It is theirs until the GPU is finished with it. */
on_stage_with(test_R19_the_event_outlives_buffers_that_retain_nothing, .timelines = 1)
{
    static const gpusync_command_buffer_desc unretained = {.unretained_references = true};
    for (unsigned i = 0; i < 2; i++) {
        void *buffer = NULL;
        assert_ok(gpusync_command_buffer_create(s->q[0], &unretained, 0, &buffer));
        encode_signal(s->q[0], buffer, at(s->t[0], i + 1));
        commit(s->q[0], buffer);
    }
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->t[0] = NULL;
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 2, NULL));
}

/* -- long chains -------------------------------------------------------------------------------------------------- */

enum { CHAIN = 700 };

typedef enum chain_of { OF_VALUES, OF_TICKETS, ON_ONE_QUEUE, CHAINS } chain_of;
typedef enum chain_end { RUNS, FAILS, IS_DROPPED, CHAIN_ENDS } chain_end;

/* 700 pieces of work, each of which waits for the one before it, the first one for t[1]. */
static void hold_chain(stage *s, chain_of kind, gpusync_ticket *tickets)
{
    for (uint64_t i = 0; i < CHAIN; i++) {
        unsigned queue = kind == ON_ONE_QUEUE ? 0 : (unsigned)(i % 2);
        gpusync_point wait = i == 0 ? at(s->t[1], 1) : at(s->t[0], i);
        gpusync_point signal = at(s->t[0], i + 1);
        if (i > 0 && kind == OF_TICKETS) wait = ticket_at(s->q[(i - 1) % 2], tickets[i - 1]);
        tickets[i] =
            send_as(STRICT, s->q[queue], &wait, marked(s, queue, (uint32_t)i), kind == OF_TICKETS ? NULL : &signal);
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
            if (end == IS_DROPPED) assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
            for (unsigned i = 0; i < 2; i++)
                assert_result(gpusync_wait(s->q[i], GPUSYNC_EVERYTHING, SECONDS(60), NULL),
                              kind == ON_ONE_QUEUE && i == 1 ? GPUSYNC_OK : results[end]);
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

/* What other code signals while our own signal is not reached is read before held work goes. */
on_stage_with(test_R18_held_work_that_other_code_has_overtaken_does_not_go, .queues = 2, .timelines = 1,
              .timeline = {.signalled_by_others = true})
{
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 5)));
    gpusync_ticket overtaken = SUBMIT(s->q[1], SIGNALS(at(s->t[0], 6)));
    metal_event_signal(gpusync_timeline_metal(s->t[0], NULL), 7);
    assert_int_equal(value_of(s->t[0]), 4);
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 7);
    assert_result(gpusync_poll(s->q[1], overtaken, NULL), GPUSYNC_ERROR_NOT_RISING);
}
