/* test_submit.c - submissions: waits, command buffers and signals under one ticket

   Proved: the order that the GPU keeps, by the bytes that it wrote; the host's waits and signals, where ON_GPU is not
   said, and their turn (R36, R2); encoded points, which are no submission's (R35); several buffers, or none, under one
   ticket; calls that refuse; on_complete; failures that pass along links (S8). How work is held is in test_held.c, room
   in test_commit.c, records in test_failures.c. */
#include "kit.h"

#define UNORDERED GPUSYNC_SUBMIT_UNORDERED
#define ON_GPU GPUSYNC_SUBMIT_ON_GPU

static const uint32_t kinds[] = {ON_GPU, ON_GPU | UNORDERED, 0, UNORDERED};

static void *failing(gpusync_queue *queue)
{
    void *buffer = new_buffer(queue);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    return buffer;
}

/* -- order, by what the GPU wrote --------------------------------------------------------------------------------- */

/* finish_all steps the first queue first: what comes last is on it, so that nothing is in order by chance. */
on_all_kinds_with(test_S6_waits_come_before_the_buffers_and_signals_behind_them, .queues = 3, .timelines = 2)
{
    for (unsigned i = 0; i < LENGTH(kinds); i++) {
        void *consumer = marked(s, 0, 5);
        void *buffers[3] = {marked(s, 1, 2), marked(s, 1, 3), marked(s, 1, 4)};
        forget_marks();
        SUBMIT(s->q[0], WAITS(at(s->t[1], i + 1)), BUFFERS(consumer), .flags = kinds[i]);
        SUBMIT(s->q[1], WAITS(at(s->t[0], i + 1)), BUFFERS(buffers[0], buffers[1], buffers[2]),
               SIGNALS(at(s->t[1], i + 1)), .flags = kinds[i]);
        assert_false(finish_next(s->q[0]));
        assert_false(finish_next(s->q[1]));
        SUBMIT(s->q[2], BUFFERS(marked(s, 2, 1)), SIGNALS(at(s->t[0], i + 1)), .flags = kinds[i]);
        finish_all(s);
        assert_marks(1, 2, 3, 4, 5);
        for (unsigned k = 0; k < 3; k++) assert_ok(gpusync_poll(s->q[k], GPUSYNC_EVERYTHING, NULL));
        assert_int_equal(value_of(s->t[1]), i + 1);
    }
}

enum { CELLS = 48 };

/* The GPU copies a byte from cell to cell, each on another queue than the one before. */
static void copy_cell(void *buffer, void *cells, size_t i)
{
    void *blit = metal_blit_begin(buffer);
    if (i == 0) metal_fill(blit, cells, 0, 1, 0x77);
    else metal_copy(blit, cells, i - 1, cells, i, 1);
    metal_end(blit);
}

/* The last step is accepted first. UNORDERED, for on one queue a wait cannot stand in front of its signal. */
on_stage_with(test_S6_bytes_pass_along_a_chain_that_was_accepted_backwards, .queues = STAGE_MOST, .real = true)
{
    for (unsigned kind = 0; kind < 2; kind++) {
        gpusync_timeline *timeline = new_timeline(s->device);
        void *cells = metal_buffer_new(s->metal_device, CELLS);
        unsigned char *bytes = metal_contents(cells);
        memset(bytes, 0, CELLS);
        for (unsigned i = CELLS; i-- > 0;) {
            gpusync_queue *queue = s->q[i % STAGE_MOST];
            void *buffer = kind ? foreign_buffer(queue) : new_buffer(queue);
            copy_cell(buffer, cells, i);
            SUBMIT(queue, WAITS(at(timeline, i)), BUFFERS(buffer), SIGNALS(at(timeline, i + 1)),
                   .flags = UNORDERED | (kind ? 0 : ON_GPU));
            if (kind) metal_release(buffer);
        }
        assert_ok(gpusync_timeline_wait(timeline, CELLS, SECONDS(60), NULL));
        for (unsigned i = 0; i < CELLS; i++) assert_int_equal(bytes[i], 0x77);
        assert_ok(gpusync_device_wait(s->device, SECONDS(60), NULL));
        assert_ok(gpusync_timeline_destroy(timeline));
        metal_release(cells);
    }
}

/* Each step has a link of another kind to the one before it. */
on_stage_with(test_S6_bytes_pass_along_links_of_every_kind, .queues = 3, .timelines = 1, .real = true)
{
    void *cells = metal_buffer_new(s->metal_device, CELLS);
    unsigned char *bytes = metal_contents(cells);
    gpusync_ticket ticket = 0;
    gpusync_queue *before = s->q[0];
    memset(bytes, 0, CELLS);
    for (unsigned i = 0; i < CELLS; i++) {
        gpusync_queue *queue = s->q[i % 3];
        void *buffer = new_buffer(queue);
        uint32_t flags = kinds[i / 4 % LENGTH(kinds)];
        gpusync_point point = i & 1 && ticket ? ticket_at(before, ticket) : at(s->t[0], i);
        if (i & 2) encode_wait(queue, buffer, point);
        copy_cell(buffer, cells, i);
        if (i & 2) encode_signal(queue, buffer, at(s->t[0], i + 1));
        if (i & 2) ticket = commit(queue, buffer);
        else ticket = SUBMIT(queue, WAITS(point), BUFFERS(buffer), SIGNALS(at(s->t[0], i + 1)), .flags = flags);
        before = queue;
    }
    assert_ok(gpusync_timeline_wait(s->t[0], CELLS, SECONDS(60), NULL));
    for (unsigned i = 0; i < CELLS; i++) assert_int_equal(bytes[i], 0x77);
    settle(s);
    metal_release(cells);
}

on_stage_with(test_S7_a_signal_comes_with_the_last_command_buffer, .timelines = 1)
{
    void *first = new_buffer(s->q[0]), *last = new_buffer(s->q[0]);
    SUBMIT(s->q[0], BUFFERS(first, last), SIGNALS(at(s->t[0], 1)), .flags = ON_GPU);
    softmetal_finish(first);
    assert_true(shown(s->t[0]) == 0);
    softmetal_finish(last);
    assert_true(shown(s->t[0]) == 1);
    assert_int_equal(value_of(s->t[0]), 1);
}

/* Metal may run what shares no memory side by side: a signal in a command buffer of its own would not wait. */
on_stage_with(test_S7_a_signal_comes_behind_its_command_buffer_where_metal_overlaps, .timelines = 1, .real = true)
{
    void *hangs = new_buffer(s->q[0]);
    metal_retain(hangs);
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000});
    softmetal_hang(hangs);
    gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(hangs), SIGNALS(at(s->t[0], 1)), .flags = ON_GPU);
    commit(s->q[0], new_buffer(s->q[0]));
    metal_wait_until_completed(softmetal_last_buffer(s->metal[0]));
    assert_int_equal(shown(s->t[0]), 0);
    softmetal_unhang(hangs);
    metal_release(hangs);
    assert_ok(gpusync_wait(s->q[0], ticket, SECONDS(20), NULL));
    assert_int_equal(shown(s->t[0]), 1);
}

/* -- links -------------------------------------------------------------------------------------------------------- */

/* Wait for n - 1 and signal n, in one submission, on two queues in turn. Backwards, too. */
on_all_kinds_with(test_R33_a_submission_may_wait_for_and_signal_one_timeline, .queues = 2)
{
    enum { TURNS = 8 };
    for (unsigned i = 0; i < LENGTH(kinds); i++)
        for (unsigned backwards = 0; backwards < 2; backwards++) {
            gpusync_timeline *timeline = new_timeline(s->device);
            uint32_t flags = kinds[i] | (backwards ? UNORDERED : 0);
            forget_marks();
            for (unsigned k = 0; k < TURNS; k++) {
                unsigned turn = backwards ? TURNS - 1 - k : k;
                SUBMIT(s->q[turn & 1], WAITS(at(timeline, turn)), BUFFERS(marked(s, turn & 1, turn)),
                       SIGNALS(at(timeline, turn + 1)), .flags = flags);
            }
            finish_all(s);
            for (unsigned k = 0; k < 2; k++) assert_ok(gpusync_poll(s->q[k], GPUSYNC_EVERYTHING, NULL));
            assert_int_equal(value_of(timeline), TURNS);
            assert_marks(0, 1, 2, 3, 4, 5, 6, 7);
            assert_ok(gpusync_timeline_destroy(timeline));
        }
}

on_all_kinds_with(test_R7_points_of_no_work_hold_nothing, .queues = 2, .timelines = 1)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(buffer),
                                   WAITS(ticket_at(s->q[0], 0), ticket_at(s->q[1], -7), at(s->t[0], 0),
                                         ticket_at(s->q[1], INT64_MIN)), .flags = ON_GPU);
    assert_true(is_sent(buffer));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
}

/* ownership: the arrays and the label are read during the call alone. */
on_stage_with(test_ownership_what_a_submission_points_to_is_copied, .timelines = 2)
{
    gpusync_point points[2] = {at(s->t[0], 1), at(s->t[1], 1)};
    void *buffers[2] = {marked(s, 0, 1), failing(s->q[0])};
    char label[] = "upload";
    gpusync_ticket ticket;
    gpusync_submission submission = {.wait_points = &points[0], .wait_count = 1, .command_buffers = buffers,
                                     .command_buffer_count = 2, .signal_points = &points[1], .signal_count = 1,
                                     .label = label};
    assert_ok(gpusync_submit(s->q[0], &submission, &ticket));
    memset(points, 0x5A, sizeof points);
    memset(buffers, 0x5A, sizeof buffers);
    memset(label, 'x', sizeof label - 1);
    memset(&submission, 0x5A, sizeof submission);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_marks(1);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_string_equal(failure_at(s->q[0], 0).label, "upload");
    assert_failed(s->t[1], GPUSYNC_ERROR_EXECUTION);
}

/* -- R36, R2: the host waits and signals -------------------------------------------------------------------------- */

/* Nothing is encoded, and nothing of gpusync's own is made. */
on_stage_with(test_R36_the_host_waits_and_signals, .queues = 2, .timelines = 1)
{
    for (unsigned unordered = 0; unordered < 2; unordered++) {
        uint64_t value = 2 * unordered + 2;
        void *foreign[2] = {foreign_buffer(s->q[0]), foreign_buffer(s->q[0])}, *consumer = new_buffer(s->q[1]);
        uint64_t signals = softmetal_message_count("encodeSignalEvent:value:");
        uint64_t waits = softmetal_message_count("encodeWaitForEvent:value:");
        SUBMIT(s->q[0], WAITS(at(s->t[0], value - 1)), BUFFERS(foreign[0], foreign[1]), SIGNALS(at(s->t[0], value)),
               .flags = unordered ? UNORDERED : 0);
        assert_false(is_sent(foreign[0]));
        signal_value(s->t[0], value - 1);
        assert_true(is_sent(foreign[0]));
        assert_int_equal(softmetal_message_count("encodeSignalEvent:value:"), signals);
        assert_int_equal(softmetal_message_count("encodeWaitForEvent:value:"), waits);
        assert_int_equal(softmetal_outstanding(s->metal[0]), 2);
        gpusync_ticket ticket = SUBMIT(s->q[1], WAITS(at(s->t[0], value)), BUFFERS(consumer), .flags = ON_GPU);
        softmetal_finish(foreign[0]);
        assert_int_equal(shown(s->t[0]), value - 1);
        assert_false(is_sent(consumer)); /* no wait of the GPU goes before the host has signalled */
        softmetal_finish(foreign[1]);
        assert_int_equal(shown(s->t[0]), value);
        assert_true(is_sent(consumer));
        finish_all(s);
        assert_ok(gpusync_poll(s->q[1], ticket, NULL));
        for (unsigned i = 0; i < 2; i++) metal_release(foreign[i]);
    }
}

/* Metal completes what shares nothing in any order. The value stands for the work before it, too; that of UNORDERED
   work for its own alone. */
on_stage_with(test_R36_a_strict_value_comes_in_the_turn_of_its_work, .queues = 3)
{
    for (unsigned i = 0; i < 6; i++) {
        const bool unordered = i & 1;
        const unsigned given = i / 2; /* command buffers */
        void *before = marked(s, 0, 1), *buffers[2] = {marked(s, 0, 2), marked(s, 0, 3)};
        void *consumers[2] = {marked(s, 1, 4), marked(s, 2, 5)};
        s->t[0] = new_timeline(s->device);
        forget_marks();
        commit(s->q[0], before);
        encode_wait(s->q[1], consumers[0], at(s->t[0], 1));
        SUBMIT(s->q[0], .command_buffers = buffers, .command_buffer_count = given, SIGNALS(at(s->t[0], 1)),
               .flags = unordered ? UNORDERED : 0);
        commit(s->q[1], consumers[0]);
        SUBMIT(s->q[2], WAITS(at(s->t[0], 1)), BUFFERS(consumers[1]));
        for (unsigned k = given; k-- > 0;) {
            assert_int_equal(value_of(s->t[0]), 0);
            softmetal_finish(buffers[k]);
        }
        for (unsigned k = 0; k < 2; k++) assert_int_equal(is_sent(consumers[k]), unordered);
        assert_int_equal(shown(s->t[0]), unordered);
        softmetal_finish(before);
        for (unsigned k = 0; k < 2; k++) assert_true(is_sent(consumers[k]));
        assert_int_equal(shown(s->t[0]), 1);
        finish_all(s);
        assert_int_equal(marks(), given + 3);
        assert_int_equal(mark_at(given), 1);
        for (unsigned k = given; k < 2; k++) assert_ok(gpusync_command_buffer_discard(s->q[0], buffers[k]));
        assert_ok(gpusync_timeline_destroy(s->t[0]));
    }
    s->t[0] = NULL;
}

/* Its event shows the value, and the turn of the work that has signalled it is to come. */
on_stage_with(test_R36_strict_work_waits_for_the_value_and_not_for_its_event, .queues = 2, .timelines = 1)
{
    void *before = new_buffer(s->q[0]), *producer = signalling(s->q[0], at(s->t[0], 1)), *strict = new_buffer(s->q[1]);
    commit(s->q[0], before);
    commit(s->q[0], producer);
    gpusync_ticket ticket = SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(strict));
    softmetal_finish(producer);
    assert_int_equal(shown(s->t[0]), 1);
    assert_false(is_sent(strict));
    softmetal_finish(before);
    assert_true(is_sent(strict));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[1], ticket, NULL));
}

/* The bytes are there when the consumer runs, wherever the producer's value comes from, and though Metal overlaps what
   shares no tracked memory. (ggml-org/llama.cpp#19402: the event was in a command buffer of its own.) */
typedef enum source {
    IN_ITS_OWN_BUFFER,
    BEFORE_A_HIGHER_VALUE, /* ... of the next buffer */
    BY_ITS_TICKET,
    BY_A_SUBMISSION_WITHOUT_BUFFERS,
    BY_AN_EMPTY_BUFFER_BEHIND_IT,
    WITH_AN_EMPTY_BUFFER_BEHIND_IT,
    SOURCES
} source;

static unsigned char cell;
static unsigned early;

static void produce(void *user, const softmetal_kernel_args *arguments)
{
    PUT(&cell, 1);
}

static void consume(void *user, const softmetal_kernel_args *arguments)
{
    if (!GET(&cell)) COUNT(&early);
}

static void run(void *buffer, void *pipeline)
{
    const metal_size one = {1, 1, 1};
    void *compute = metal_compute_begin(buffer);
    metal_set_pipeline(compute, pipeline);
    metal_dispatch(compute, one, one);
    metal_end(compute);
}

static gpusync_point point_of_producer(stage *s, source from, void *buffer, gpusync_point value)
{
    gpusync_queue *queue = s->q[0];
    if (from <= BEFORE_A_HIGHER_VALUE) encode_signal(queue, buffer, value);
    if (from == WITH_AN_EMPTY_BUFFER_BEHIND_IT) {
        SUBMIT(queue, BUFFERS(buffer, new_buffer(queue)), SIGNALS(value));
        return value;
    }
    gpusync_ticket ticket = commit(queue, buffer);
    if (from == BEFORE_A_HIGHER_VALUE) commit(queue, signalling(queue, at(value.timeline, value.value + 1)));
    if (from == BY_A_SUBMISSION_WITHOUT_BUFFERS) SUBMIT(queue, SIGNALS(value), .flags = ON_GPU);
    if (from == BY_AN_EMPTY_BUFFER_BEHIND_IT) SUBMIT(queue, BUFFERS(new_buffer(queue)), SIGNALS(value));
    return from == BY_ITS_TICKET ? ticket_at(queue, ticket) : value;
}

on_stage_with(test_R36_what_a_value_stands_for_has_been_done_where_metal_overlaps, .queues = 2, .timelines = 1,
              .real = true)
{
    void *const produces = metal_pipeline_new(s->metal_device, "kernel void produce()", "produce", NULL, 0);
    void *const consumes = metal_pipeline_new(s->metal_device, "kernel void consume()", "consume", NULL, 0);
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000, .complete_out_of_order_per_mille = 1000});
    softmetal_set_kernel("produce", produce, NULL, 2000000);
    softmetal_set_kernel("consume", consume, NULL, 1000);
    early = 0;
    for (unsigned i = 0; i < 4 * SOURCES; i++) {
        PUT(&cell, 0);
        void *producer = new_buffer(s->q[0]), *consumer = new_buffer(s->q[1]);
        run(producer, produces);
        const gpusync_point point = point_of_producer(s, (source)(i / 4), producer, at(s->t[0], 2 * i + 1));
        if (i & 1) encode_wait(s->q[1], consumer, point);
        run(consumer, consumes);
        if (i & 1) commit(s->q[1], consumer);
        else SUBMIT(s->q[1], WAITS(point), BUFFERS(consumer));
        assert_ok(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, SECONDS(60), NULL, NULL));
        assert_int_equal(GET(&cell), 1);
        settle(s);
        if (GET(&early)) fail_msg("source %u, round %u: the consumer ran first", i / 4, i % 4);
    }
    metal_release(produces);
    metal_release(consumes);
}

/* Work for which the host signals 5, then a plain commit that signals 6 on the same queue: what waits for 5 may not go
   with the 6 before the 5. */
on_all_kinds_with(test_R2_a_plain_signal_behind_one_of_the_host_waits_for_it, .queues = 2, .timelines = 1)
{
    void *plain = marked(s, 0, 2);
    void *consumer = marked(s, 1, 3);
    gpusync_ticket tickets[2];
    encode_signal(s->q[0], plain, at(s->t[0], 6));
    encode_wait(s->q[1], consumer, at(s->t[0], 5));
    SUBMIT(s->q[0], BUFFERS(marked(s, 0, 1)), SIGNALS(at(s->t[0], 5)));
    tickets[0] = commit(s->q[0], plain);
    tickets[1] = commit(s->q[1], consumer);
    assert_false(is_sent(plain));
    assert_false(is_sent(consumer));
    finish_next(s->q[0]);
    assert_true(is_sent(plain));
    assert_true(is_sent(consumer));
    finish_next(s->q[1]);
    finish_all(s);
    assert_marks(1, 3, 2);
    assert_ok(gpusync_poll(s->q[0], tickets[0], NULL));
    assert_ok(gpusync_poll(s->q[1], tickets[1], NULL));
}

/* K20: where a ticket is OK its value is reached, though a lower one came later than the buffer could have run. */
on_all_kinds_with(test_R2_the_value_of_strict_work_is_reached_with_its_ticket, .queues = 2, .timelines = 1)
{
    void *lower = signalling(s->q[1], at(s->t[0], 1)), *buffer = new_buffer(s->q[0]);
    commit(s->q[1], lower);
    gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(buffer), SIGNALS(at(s->t[0], 2)));
    assert_false(is_sent(buffer));
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    finish_next(s->q[1]);
    assert_true(is_sent(buffer));
    finish_next(s->q[0]);
    assert_ok(gpusync_wait(s->q[0], ticket, 0, NULL));
    assert_ok(gpusync_timeline_wait(s->t[0], 2, 0, NULL));
    assert_int_equal(shown(s->t[0]), 2);
}

/* -- several buffers, or none ------------------------------------------------------------------------------------- */

on_stage(test_S4_a_submission_ends_with_the_last_of_its_buffers)
{
    static const unsigned orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t i = 0; i < 2 * LENGTH(orders); i++)
        for (unsigned fails = 0; fails < 4; fails++) { /* 3: none */
            gpusync_timeline *timeline = new_timeline(s->device);
            void *buffers[3] = {new_buffer(s->q[0]), new_buffer(s->q[0]), new_buffer(s->q[0])};
            if (fails < 3) softmetal_fail_as(buffers[fails], SOFTMETAL_PAGE_FAULT, NULL);
            if (fails == 2) softmetal_fail_after_signals(buffers[2], 1); /* ON_GPU the event shows 1 all the same */
            gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(buffers[0], buffers[1], buffers[2]),
                                           SIGNALS(at(timeline, 1)), .flags = i & 1 ? ON_GPU : 0);
            for (unsigned k = 0; k < 3; k++) {
                assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
                assert_false(gpusync_is_done(s->q[0], ticket));
                assert_int_equal(value_of(timeline), 0);
                softmetal_finish(buffers[orders[i / 2][k]]);
            }
            assert_true(gpusync_is_done(s->q[0], ticket));
            assert_result(gpusync_poll(s->q[0], ticket, NULL), fails < 3 ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
            if (fails < 3) assert_failed(timeline, GPUSYNC_ERROR_EXECUTION);
            else assert_int_equal(value_of(timeline), 1);
            assert_ok(gpusync_timeline_destroy(timeline));
        }
}

on_all_kinds_with(test_S4_a_submission_without_buffers_ends_with_its_waits, .queues = 2, .timelines = 2)
{
    assert_ok(gpusync_poll(s->q[0], SUBMIT(s->q[0], .label = "nothing"), NULL)); /* ended already */
    for (unsigned i = 0; i < LENGTH(kinds); i++) {
        void *runs = new_buffer(s->q[1]);
        gpusync_ticket other = commit(s->q[1], runs);
        note ended = {0};
        SUBMIT(s->q[0], WAITS(at(s->t[0], i + 1), ticket_at(s->q[1], other)), SIGNALS(at(s->t[1], i + 1)),
               .on_complete = remember, .user = &ended, .flags = kinds[i]);
        softmetal_finish(runs);
        finish_all(s);
        assert_int_equal(calls_of(&ended), 0);
        assert_int_equal(value_of(s->t[1]), i);
        signal_value(s->t[0], i + 1);
        assert_noted(&ended, GPUSYNC_OK);
        assert_int_equal(value_of(s->t[1]), i + 1);
    }
}

/* Ordered, it ends behind the work before it; UNORDERED, at once. */
on_both_kinds_with(test_S3_a_submission_without_buffers_ends_in_its_turn, .timelines = 1)
{
    for (unsigned i = 0; i < LENGTH(kinds); i++) {
        const bool unordered = kinds[i] & UNORDERED;
        gpusync_ticket before = commit_new(s->q[0]);
        note ended = {0};
        SUBMIT(s->q[0], SIGNALS(at(s->t[0], i + 1)), .on_complete = remember, .user = &ended, .flags = kinds[i]);
        assert_int_equal(calls_of(&ended), unordered);
        assert_int_equal(shown(s->t[0]), unordered ? i + 1 : i);
        assert_int_equal(gpusync_in_flight(s->q[0]), unordered ? 1 : 2);
        finish_all(s);
        assert_ok(gpusync_poll(s->q[0], before, NULL));
        assert_noted(&ended, GPUSYNC_OK);
        assert_int_equal(shown(s->t[0]), i + 1);
        assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    }
}

/* -- calls that refuse -------------------------------------------------------------------------------------------- */

#define OLDER ((gpusync_ticket)77)

/* What no refused call changes. */
typedef struct scene {
    stage *s;
    gpusync_ticket ticket; /* what a program keeps there from before */
    void *open;            /* the buffer that the calls get */
    note n;
    unsigned long retains;
    uint64_t in_flight, value;
    long blocks, live;
} scene;

static void count_scene(scene *c)
{
    c->retains = softmetal_retain_count(c->open);
    c->in_flight = gpusync_in_flight(c->s->q[0]);
    c->value = value_of(c->s->t[0]);
    c->blocks = kit_now().blocks;
    c->live = softmetal_live(NULL);
}

static void refused_at(scene *c, gpusync_result got, gpusync_result expected, const char *call, int line)
{
    scene now = *c;
    assert_result_at(got, expected, call, __FILE__, line);
    count_scene(&now);
    if (c->ticket == OLDER && now.retains == c->retains && now.in_flight == c->in_flight && now.value == c->value &&
        now.blocks == c->blocks && now.live == c->live)
        return;
    print_error("%s, line %d: changed something (blocks %ld, objects %ld)\n", call, line, now.blocks - c->blocks,
                now.live - c->live);
    _fail(__FILE__, line);
}
#define refused(call, expected) refused_at(&c, (call), GPUSYNC_##expected, #call, __LINE__)
#define with_open(...) TRY_SUBMIT(q, &c.ticket, BUFFERS(c.open), .on_complete = remember, .user = &c.n, __VA_ARGS__)

/* Beside those of test_commit.c and test_held.c. t[0] stands at 5, and Metal has a signal of 8. `encoded` waits for 6,
   and signals 12. */
on_stage_with(test_S5_a_submission_that_is_refused_has_changed_nothing, .queues = 2, .timelines = 2)
{
    static const gpusync_point none;
    gpusync_queue *q = s->q[0];
    gpusync_timeline *t = s->t[0];
    scene c = {.s = s, .ticket = OLDER};
    void *device = softmetal_new_device();
    gpusync_device_desc desc = {.metal_device = device};
    gpusync_device *other = NULL;
    gpusync_timeline *other_timeline = NULL;
    void *many[40];
    assert_ok(gpusync_device_create(&desc, &other));
    gpusync_queue *other_queue = queue_from(other, NULL);
    other_timeline = new_timeline(other);
    signal_value(t, 5);
    commit(s->q[1], signalling(s->q[1], at(t, 8)));
    c.open = new_buffer(q);
    void *encoded = waiting(q, at(t, 6)), *behind = waiting(q, at(t, 12));
    encode_signal(q, encoded, at(t, 12));
    for (unsigned i = 0; i < LENGTH(many); i++) many[i] = i + 1 < LENGTH(many) ? new_buffer(q) : many[0];
    assert_ok(gpusync_command_buffer_discard(q, new_buffer(q))); /* gpusync keeps memory of one for the next */
    count_scene(&c);
    /* no points, or not of this device */
    refused(with_open(.wait_count = 1), ERROR_INVALID_ARGUMENT);
    refused(with_open(.signal_count = 1), ERROR_INVALID_ARGUMENT);
    refused(TRY_SUBMIT(q, &c.ticket, .command_buffer_count = 1), ERROR_INVALID_ARGUMENT);
    refused(with_open(WAITS(none)), ERROR_INVALID_ARGUMENT);
    refused(with_open(SIGNALS(none)), ERROR_INVALID_ARGUMENT);
    refused(with_open(WAITS(at(t, 1), at(other_timeline, 0))), ERROR_INVALID_ARGUMENT);
    refused(with_open(SIGNALS(at(t, 13), at(other_timeline, 1))), ERROR_INVALID_ARGUMENT);
    refused(with_open(WAITS(ticket_at(other_queue, 0))), ERROR_INVALID_ARGUMENT);
    refused(with_open(SIGNALS(at(t, 13), ticket_at(q, 0))), ERROR_INVALID_ARGUMENT);
    refused(with_open(.flags = 1), ERROR_INVALID_ARGUMENT);
    refused(with_open(.flags = 2), ERROR_INVALID_ARGUMENT);
    refused(with_open(.flags = ON_GPU | 16), ERROR_INVALID_ARGUMENT);
    refused(with_open(.flags = UNORDERED), ERROR_INVALID_ARGUMENT); /* R30: it has no ticket */
    refused(TRY_SUBMIT(q, &c.ticket, .command_buffers = many, .command_buffer_count = LENGTH(many)),
            ERROR_INVALID_ARGUMENT); /* the first once more at the end */
    refused(with_open(WAITS(ticket_at(s->q[1], 2))), ERROR_INVALID_TICKET);
    /* values */
    refused(with_open(WAITS(at(t, GPUSYNC_MAX_VALUE + 1))), ERROR_NOT_RISING);
    refused(with_open(WAITS(at(s->t[1], UINT64_MAX))), ERROR_NOT_RISING);
    refused(with_open(SIGNALS(at(s->t[1], GPUSYNC_MAX_VALUE + 1))), ERROR_NOT_RISING);
    refused(with_open(SIGNALS(at(s->t[1], 0))), ERROR_NOT_RISING);
    refused(with_open(SIGNALS(at(s->t[1], 1), at(s->t[1], 1))), ERROR_NOT_RISING);
    refused(with_open(SIGNALS(at(s->t[1], 1), at(t, 13), at(s->t[1], 3), at(s->t[1], 2))), ERROR_NOT_RISING);
    refused(TRY_SUBMIT(q, &c.ticket, SIGNALS(at(t, 5))), ERROR_NOT_RISING); /* reached */
    refused(TRY_SUBMIT(q, &c.ticket, SIGNALS(at(t, 8))), ERROR_NOT_RISING); /* sent */
    refused(TRY_SUBMIT(q, &c.ticket, SIGNALS(at(t, 7))), ERROR_NOT_RISING);
    /* work that waits for what it is to signal, or for more */
    refused(with_open(WAITS(at(s->t[1], 2)), SIGNALS(at(s->t[1], 2))), ERROR_NOT_RISING);
    refused(TRY_SUBMIT(q, NULL, WAITS(at(s->t[1], 3)), SIGNALS(at(s->t[1], 2)), .flags = UNORDERED), ERROR_NOT_RISING);
    /* encode */
    refused(gpusync_encode_wait(NULL, c.open, at(t, 9)), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_wait(q, NULL, at(t, 9)), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_signal(NULL, c.open, at(t, 13)), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_signal(q, NULL, at(t, 13)), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_wait(q, behind, none), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_signal(q, behind, none), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_wait(q, behind, at(other_timeline, 1)), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_wait(q, behind, ticket_at(other_queue, 0)), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_signal(q, behind, at(other_timeline, 1)), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_wait(q, behind, at(t, GPUSYNC_MAX_VALUE + 1)), ERROR_NOT_RISING);
    refused(gpusync_encode_wait(q, behind, ticket_at(q, GPUSYNC_EVERYTHING)), ERROR_INVALID_TICKET);
    refused(gpusync_encode_signal(q, behind, at(s->t[1], GPUSYNC_MAX_VALUE + 1)), ERROR_NOT_RISING);
    refused(gpusync_encode_signal(q, behind, at(s->t[1], 0)), ERROR_NOT_RISING);
    refused(gpusync_encode_signal(q, behind, at(t, 8)), ERROR_NOT_RISING);
    refused(gpusync_encode_signal(q, behind, at(t, 12)), ERROR_NOT_RISING); /* it waits for 12 */
    refused(gpusync_encode_signal(q, encoded, at(t, 12)), ERROR_NOT_RISING); /* it signals 12 */
    refused(gpusync_encode_signal(q, encoded, at(t, 11)), ERROR_NOT_RISING);
    refused(gpusync_encode_wait(q, encoded, at(t, 9)), ERROR_INVALID_ARGUMENT); /* behind a signal */
    assert_ok(gpusync_command_buffer_discard(q, behind));
    assert_int_equal(SUBMIT(q, BUFFERS(c.open)), 1);
    assert_int_equal(commit(q, encoded), 2);
    finish_all(s);
    assert_ok(gpusync_poll(q, 2, NULL));
    assert_int_equal(value_of(t), 12);
    run_callbacks(s);
    assert_int_equal(calls_of(&c.n), 0);
    assert_ok(gpusync_timeline_destroy(other_timeline));
    assert_ok(gpusync_queue_destroy(other_queue));
    assert_ok(gpusync_device_destroy(other));
    metal_release(device);
}

/* R35: a point that was there already counts, too, though nothing had to be encoded; one that was refused does not. */
on_stage_with(test_R35_a_buffer_with_encoded_points_is_part_of_no_submission, .timelines = 1)
{
    enum { A_WAIT, A_WAIT_THAT_IS_OVER, A_SIGNAL, A_REFUSED_SIGNAL, POINTS };
    signal_value(s->t[0], 5);
    for (unsigned what = 0; what < POINTS; what++) {
        void *encoded = what == A_SIGNAL ? foreign_buffer(s->q[0]) : new_buffer(s->q[0]), *plain = new_buffer(s->q[0]);
        gpusync_ticket ticket = OLDER;
        if (what <= A_WAIT_THAT_IS_OVER) encode_wait(s->q[0], encoded, at(s->t[0], what == A_WAIT ? 6 : 5));
        if (what == A_SIGNAL) encode_signal(s->q[0], encoded, at(s->t[0], 7));
        if (what == A_REFUSED_SIGNAL)
            assert_result(gpusync_encode_signal(s->q[0], encoded, at(s->t[0], 5)), GPUSYNC_ERROR_NOT_RISING);
        for (unsigned i = 0; i < LENGTH(kinds) && what != A_REFUSED_SIGNAL; i++)
            assert_result(TRY_SUBMIT(s->q[0], kinds[i] & UNORDERED ? NULL : &ticket, BUFFERS(plain, encoded),
                                     .flags = kinds[i]), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_int_equal(ticket, OLDER);
        assert_int_equal(gpusync_in_flight(s->q[0]), 0);
        if (what == A_REFUSED_SIGNAL) SUBMIT(s->q[0], BUFFERS(encoded));
        else commit(s->q[0], encoded); /* as it was */
        assert_int_equal(is_sent(encoded), what != A_WAIT);
        if (what == A_WAIT) signal_value(s->t[0], 6);
        SUBMIT(s->q[0], BUFFERS(plain));
        finish_all(s);
        assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
        if (what == A_SIGNAL) metal_release(encoded);
    }
}

/* gpusync's own buffers are made before the ticket is given, those of held work, too. */
on_all_kinds_with(test_S5_metal_has_no_buffer_for_the_waits_or_the_signals, .queues = 2, .timelines = 2)
{
    for (unsigned held = 0; held < 2; held++) {
        void *buffer = new_buffer(s->q[0]);
        gpusync_ticket before = commit_new(s->q[0]);
        gpusync_ticket ticket = OLDER;
        gpusync_result result;
        unsigned n = 0;
        note told = {0};
        if (!held) commit(s->q[1], signalling(s->q[1], at(s->t[0], held + 1)));
        do {
            softmetal_fail_creation(++n, true);
            result = TRY_SUBMIT(s->q[0], &ticket, WAITS(at(s->t[0], held + 1)), BUFFERS(buffer),
                                SIGNALS(at(s->t[1], held + 1)), .on_complete = remember, .user = &told,
                                .flags = ON_GPU);
            softmetal_fail_creation(0, false);
            if (result == GPUSYNC_OK) break;
            assert_result(result, GPUSYNC_ERROR_METAL_NIL);
            assert_int_equal(ticket, OLDER);
            assert_int_equal(gpusync_in_flight(s->q[0]), 1);
            assert_false(is_sent(buffer));
        } while (n < 10);
        assert_int_equal(ticket, before + 1);
        assert_true(n > 1);
        softmetal_fail_creation(1, true); /* what is accepted asks Metal for no more */
        if (held) signal_value(s->t[0], held + 1);
        finish_all(s);
        softmetal_fail_creation(0, false);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        assert_int_equal(value_of(s->t[1]), held + 1);
        run_callbacks(s);
        assert_noted(&told, GPUSYNC_OK);
    }
}

on_stage_with(test_S5_strict_work_needs_no_buffer_of_metals, .timelines = 2)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket;
    softmetal_fail_creation(1, true);
    ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(buffer), SIGNALS(at(s->t[1], 1)));
    signal_value(s->t[0], 1);
    finish_all(s);
    softmetal_fail_creation(0, false);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_int_equal(value_of(s->t[1]), 1);
}

/* -- R25: on_complete --------------------------------------------------------------------------------------------- */

typedef enum ending { SUCCEEDS, FAILS, INHERITS, IS_CANCELLED, IS_OVERTAKEN, ENDS_IN_THE_CALL, PASSES, ENDINGS } ending;

/* One submission that ends so, and what lets it end. `go` is not reached before. */
static gpusync_ticket begin_to_end(stage *s, ending how, gpusync_timeline *go, gpusync_timeline *rises, note *n)
{
    gpusync_queue *q = s->q[0];
    gpusync_submission submission = {.on_complete = remember, .user = n};
    gpusync_point wait = at(go, 1);
    gpusync_point signal = at(rises, 2);
    void *buffer = how == FAILS ? failing(q) : new_buffer(q);
    if (how == PASSES) SUBMIT(q, WAITS(at(go, 1)));
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.wait_points = &wait;
    submission.wait_count = how == INHERITS || how == IS_CANCELLED || how == IS_OVERTAKEN;
    submission.signal_points = &signal;
    submission.signal_count = how == IS_OVERTAKEN;
    submission.flags = how == PASSES ? UNORDERED : 0;
    if (how == ENDS_IN_THE_CALL) {
        submission.command_buffer_count = 0;
        assert_ok(gpusync_command_buffer_discard(q, buffer));
    }
    return submit_at(q, &submission, __FILE__, __LINE__);
}

on_stage(test_R25_on_complete_comes_first_however_the_work_ends)
{
    static const gpusync_result results[] = {GPUSYNC_OK,
                                             GPUSYNC_ERROR_EXECUTION,
                                             GPUSYNC_ERROR_COMPILE,
                                             GPUSYNC_ERROR_CANCELLED,
                                             GPUSYNC_ERROR_NOT_RISING,
                                             GPUSYNC_OK,
                                             GPUSYNC_OK};
    for (unsigned how = 0; how < ENDINGS; how++) {
        gpusync_timeline *go = new_timeline(s->device), *rises = new_timeline(s->device);
        note notes[4] = {0};
        gpusync_ticket ticket = begin_to_end(s, (ending)how, go, rises, &notes[0]);
        for (unsigned i = 1; i < 3 && ticket; i++) on_done(ticket_at(s->q[0], ticket), &notes[i]);
        if (how == INHERITS) fail_timeline(go, GPUSYNC_ERROR_COMPILE);
        if (how == IS_CANCELLED) assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
        if (how == IS_OVERTAKEN) signal_value(rises, 3);
        finish_all(s);
        assert_result(gpusync_poll(s->q[0], ticket, NULL), results[how]);
        if (ticket) on_done(ticket_at(s->q[0], ticket), &notes[3]);
        run_callbacks(s);
        if (ticket) assert_in_order(notes, LENGTH(notes)); /* UNORDERED work has no other */
        assert_noted(&notes[0], results[how]);
        assert_int_equal(notes[0].has_error, results[how] != GPUSYNC_OK);
        if (notes[0].has_error) assert_int_equal(notes[0].error.ticket, ticket);
        if (how == PASSES) signal_value(go, 1);
        finish_all(s);
        assert_ok(gpusync_timeline_destroy(go));
        assert_ok(gpusync_timeline_destroy(rises));
    }
}

/* -- S8: failure passes along links ------------------------------------------------------------------------------- */

/* Metal has the failing work. Of those that wait for it, held ones never run; what the GPU itself waits for runs. */
on_stage_with(test_S8_what_waits_for_failed_work_fails_and_never_runs_if_it_is_held, .queues = 3)
{
    for (unsigned i = 0; i < 2 * (LENGTH(kinds) + 1); i++) {
        const bool by_ticket = i & 1, encoded = i / 2 == LENGTH(kinds);
        const uint32_t flags = encoded ? ON_GPU : kinds[i / 2];
        const bool held = by_ticket || !(flags & ON_GPU);
        gpusync_timeline *first = new_timeline(s->device), *second = new_timeline(s->device);
        void *buffer = marked(s, 1, 1), *last = marked(s, 2, 2);
        gpusync_ticket tickets[3];
        forget_marks();
        tickets[0] = SUBMIT(s->q[0], BUFFERS(failing(s->q[0])), SIGNALS(at(first, 1)), .flags = ON_GPU);
        gpusync_point point = by_ticket ? ticket_at(s->q[0], tickets[0]) : at(first, 1);
        if (encoded) {
            encode_wait(s->q[1], buffer, point);
            encode_signal(s->q[1], buffer, at(second, 1));
            tickets[1] = commit(s->q[1], buffer);
        } else {
            tickets[1] = SUBMIT(s->q[1], WAITS(point), BUFFERS(buffer), SIGNALS(at(second, 1)), .flags = flags);
        }
        assert_int_equal(is_sent(buffer), !held);
        tickets[2] = SUBMIT(s->q[2], WAITS(at(second, 1)), BUFFERS(last));
        finish_all(s);
        assert_failed(first, GPUSYNC_ERROR_EXECUTION);
        assert_failed(second, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(marks(), !held);
        for (unsigned k = 1; k < 3; k++) {
            gpusync_error error = failure_at(s->q[k], i);
            assert_int_equal(error.result, GPUSYNC_ERROR_EXECUTION);
            assert_int_equal(error.ticket, tickets[k]); /* UNORDERED: 0 */
            assert_true(error.inherited);
            assert_int_equal(error.ran, k == 1 && !held);
            assert_int_equal(error.origin, tickets[0]);
            assert_string_equal(error.queue_label, "first");
        }
        assert_ok(gpusync_timeline_destroy(first));
        assert_ok(gpusync_timeline_destroy(second));
    }
}

/* Encoded ones, too; the order_only one rises. */
on_stage(test_S8_failed_work_fails_all_timelines_that_it_was_to_signal)
{
    static const gpusync_timeline_desc order = {.order_only = true};
    for (unsigned i = 0; i <= LENGTH(kinds); i++) {
        gpusync_timeline *rises = timeline_from(s->device, &order), *fails[3];
        void *buffer = failing(s->q[0]);
        for (unsigned k = 0; k < 3; k++) fails[k] = new_timeline(s->device);
        signal_value(fails[2], 4);
        const gpusync_point signals[] = {at(fails[0], 1), at(fails[1], 1), at(rises, 3), at(fails[2], 5)};
        for (unsigned k = 0; k < 4 && i == LENGTH(kinds); k++) encode_signal(s->q[0], buffer, signals[k]);
        if (i == LENGTH(kinds)) commit(s->q[0], buffer);
        else SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0]), buffer), .signal_points = signals, .signal_count = 4,
                    .flags = kinds[i]);
        finish_all(s);
        assert_int_equal(failure_at(s->q[0], i).result, GPUSYNC_ERROR_EXECUTION);
        for (unsigned k = 0; k < 3; k++) assert_failed(fails[k], GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_timeline_wait(fails[2], 4, 0, NULL));
        assert_int_equal(value_of(rises), 3);
        assert_ok(gpusync_timeline_destroy(rises));
        for (unsigned k = 0; k < 3; k++) assert_ok(gpusync_timeline_destroy(fails[k]));
    }
}

/* One of its points fails, the other never comes. */
on_both_kinds_with(test_S4_work_that_waits_for_a_failed_point_does_not_wait_for_the_others, .timelines = 1)
{
    for (unsigned i = 0; i < LENGTH(kinds); i++) {
        gpusync_timeline *fails = new_timeline(s->device);
        void *buffer = marked(s, 0, 1);
        SUBMIT(s->q[0], WAITS(at(s->t[0], 1), at(fails, 1)), BUFFERS(buffer), .flags = kinds[i]);
        assert_ok(gpusync_timeline_fail(fails, NULL));
        assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
        assert_int_equal(failures_of(s->q[0]), i + 1);
        assert_int_equal(failure_at(s->q[0], i).result, GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_timeline_destroy(fails));
    }
    assert_int_equal(marks(), 0);
}

/* -- values of other code ----------------------------------------------------------------------------------------- */

/* The GPU has waited for a value of other code, and the listener has not heard: the ticket ends all the same. */
on_both_kinds_with(test_R24_the_ticket_of_work_that_waited_for_other_code_ends, .timelines = 1,
                   .timeline = {.signalled_by_others = true})
{
    gpusync_ticket ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .flags = ON_GPU);
    set_quirks(.deaf_to_everything = true);
    other_code_signals(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_wait(s->q[0], ticket, SECONDS(60), NULL));
    assert_true(gpusync_is_done(s->q[0], ticket));
}

/* From the fifth on, waits and signals take memory of their own: it goes at once where there is nothing to wait for, or
   with a refusal. */
on_stage_with(test_S5_waits_that_are_over_and_signals_that_are_refused_keep_no_memory, .timelines = 1)
{
    gpusync_ticket ticket;
    long blocks = 0;
    for (uint64_t i = 1; i <= 3; i++) {
        const gpusync_point open = at(s->t[0], i), over = at(s->t[0], i - 1);
        ticket = SUBMIT(s->q[0], WAITS(open, open, open, open, over, over));
        assert_result(TRY_SUBMIT(s->q[0], NULL, WAITS(open, open, open, open), SIGNALS(over)),
                      GPUSYNC_ERROR_NOT_RISING);
        signal_value(s->t[0], i);
        finish_all(s);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        if (i > 1) assert_int_equal(kit_now().blocks, blocks);
        blocks = kit_now().blocks;
    }
}
