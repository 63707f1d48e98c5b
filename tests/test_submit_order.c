/* test_submit_order.c - what of a submission goes to the device, in which order, and at what price

   Proved: bytes in real buffers tell that work sees what it waited for, whatever overlaps; waits for what is reached
   cost nothing, and no shape makes more command buffers than it needs; a value counts when every signal below it is
   kept, so that what signals more goes after what other queues have on the device, as the table of "Order" in gpusync.h
   says.

   This also runs on queues of Metal 4, where waits and signals need no command buffers. */
#include "probe.h"
#include "stage.h"

static const char *wait_message(void) { return metal4_run() ? "waitForEvent:value:" : "encodeWaitForEvent:value:"; }

/* == what it costs ============================================================================================= */

static void test_waits_for_what_is_reached_cost_nothing(void **state)
{
    gpusync_ticket ended, ticket;
    uint64_t made, waits;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    assert_ok(gpusync_timeline_signal(s.a, 5));
    ended = commit_on(&s, 1);
    finish(&s, 1);
    buffer = open_on(&s, 0);
    made = made_so_far();
    waits = softmetal_message_count(wait_message());
    ticket = SUBMIT(s.q[0], BUFFERS(buffer),
                    WAITS(at(s.a, 5), at(s.a, 3), at(s.b, 0), after(s.q[1], ended), after(s.q[0], GPUSYNC_NO_TICKET)));
    assert_count("commandBuffer", made, 0);
    assert_count(wait_message(), waits, 0);
    assert_int_equal(status_of(buffer), COMMITTED);
    assert_int_equal(stats_of(s.q[0]).held, 0);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

static void test_of_several_waits_only_those_not_reached_are_encoded(void **state)
{
    gpusync_ticket ticket;
    uint64_t made, waits;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    assert_ok(gpusync_timeline_signal(s.a, 5));
    (void)SUBMIT(s.q[1], NO_WORK(s.q[1]), SIGNALS(at(s.b, 1)));
    buffer = open_on(&s, 0);
    made = made_so_far();
    waits = softmetal_message_count(wait_message());
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 5), at(s.b, 1), at(s.a, 1)));
    assert_count("commandBuffer", made, metal4_run() ? 0 : 1);
    assert_count(wait_message(), waits, 1);
    finish(&s, 1);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    close_stage(&s);
}

/* What was reached while the submission was held needs no wait either: the command buffer for it is not committed. */
static void test_a_wait_that_is_reached_while_held_is_not_encoded(void **state)
{
    gpusync_ticket ticket;
    uint64_t waits, commits;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    buffer = open_on(&s, 0);
    waits = softmetal_message_count(wait_message());
    commits = softmetal_message_count("commit");
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 1)));
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_count(wait_message(), waits, 0);
    assert_count("commit", commits, metal4_run() ? 0 : 1);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    close_stage(&s);
}

/* Every shape of a submission: what it makes, when it ends, and that its signal comes. */
static void test_every_shape_ends_and_makes_no_more_command_buffers_than_it_needs(void **state)
{
    static const struct shape {
        bool waits, works, signals;
        uint32_t flags;
        unsigned made;
    } shapes[] = {
        {false, false, false, 0, 0},
        {true, false, false, 0, 1},
        {false, false, true, 0, 1},
        {true, false, true, 0, 1},
        {false, true, false, 0, 0},
        {true, true, false, 0, 1},
        {false, true, true, 0, 1},
        {true, true, true, 0, 2},
        {false, true, true, SIGNALS_INSIDE, 0},
        {true, true, true, SIGNALS_INSIDE, 1},
        {true, true, false, SIGNALS_INSIDE, 1},
        {false, false, true, SIGNALS_INSIDE, 1},
        {true, false, true, SIGNALS_INSIDE, 1},
        {false, false, false, GPUSYNC_STRICT, 0},
        {true, false, false, GPUSYNC_STRICT, 0},
        {false, false, true, GPUSYNC_STRICT, 0},
        {true, false, true, GPUSYNC_STRICT, 0},
        {true, true, false, GPUSYNC_STRICT, 0},
        {false, true, true, GPUSYNC_STRICT, 0},
        {true, true, true, GPUSYNC_STRICT, 0},
        {true, true, true, GPUSYNC_STRICT | SIGNALS_INSIDE, 0},
        {true, true, true, GPUSYNC_UNORDERED, 2},
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *shape = &shapes[i];
        bool at_once = !shape->works && (shape->flags & GPUSYNC_STRICT ? !shape->waits : shape->made == 0);
        gpusync_submission submission;
        gpusync_point wait, signal;
        gpusync_ticket ticket = 0, other;
        void *buffers[2] = {NULL, NULL};
        outcome told;
        uint64_t made;
        stage s;
        if (metal4_run() && !shape->works) continue;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        memset(&submission, 0, sizeof submission);
        memset(&told, 0, sizeof told);
        other = SUBMIT(s.q[1], NO_WORK(s.q[1]), SIGNALS(at(s.b, 7)));
        wait = at(s.b, 7);
        signal = at(s.a, 3);
        submission.waits = &wait;
        submission.wait_count = shape->waits;
        submission.signals = &signal;
        submission.signal_count = shape->signals;
        submission.command_buffers = buffers;
        submission.command_buffer_count = shape->works ? 2 : 0;
        submission.flags = shape->flags;
        submission.on_complete = remember;
        submission.user = &told;
        if (shape->works) buffers[0] = open_on(&s, 0), buffers[1] = open_on(&s, 0);
        made = made_so_far();
        assert_ok(submit_as_told(s.q[0], &submission, &ticket));
        assert_count("commandBuffer", made, metal4_run() ? 0 : shape->made);
        assert_int_equal(ticket, 1);
        assert_result(gpusync_wait(s.q[0], ticket, 0), at_once ? GPUSYNC_OK : GPUSYNC_TIMEOUT);
        assert_int_equal(calls_of(&told), at_once);
        if (shape->waits) assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
        finish(&s, 1);
        finish(&s, 0);
        assert_ok(gpusync_wait(s.q[0], ticket, 0));
        assert_ok(gpusync_wait(s.q[1], other, 0));
        assert_int_equal(value_of(s.a), shape->signals ? 3 : 0);
        assert_int_equal(raw_of(s.a), shape->signals ? 3 : 0);
        assert_int_equal(calls_of(&told), 1);
        assert_int_equal(told.result, GPUSYNC_OK);
        assert_false(told.has_error);
        assert_true(gpusync_is_idle(s.q[0]));
        assert_int_equal(stats_of(s.q[0]).commits, 1);
        assert_int_equal(stats_of(s.q[0]).completions, 1);
        assert_int_equal(stats_of(s.q[0]).failures, 0);
        assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
        close_stage(&s);
    }
}

static void test_a_submission_of_nothing_waits_for_nothing(void **state)
{
    gpusync_ticket before, ticket;
    stage s;
    (void)state;
    NOT_ON_METAL4("a submission has command buffers");
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    before = commit_on(&s, 0);
    ticket = SUBMIT(s.q[0], .flags = 0);
    assert_int_equal(ticket, before + 1);
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_result(gpusync_poll(s.q[0], before), GPUSYNC_NOT_READY);
    assert_false(gpusync_is_done(s.q[0], ticket)); /* the row of tickets has a gap */
    finish(&s, 0);
    assert_true(gpusync_is_done(s.q[0], ticket));
    close_stage(&s);
}

static void test_several_command_buffers_run_in_their_order_and_end_as_one(void **state)
{
    gpusync_ticket ticket;
    void *memory, *buffers[20];
    size_t i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    memory = memory_of(&s, 24);
    bytes_of(memory)[0] = 7;
    for (i = 0; i < 20; i++) {
        buffers[i] = open_on(&s, 0);
        copy(buffers[i], memory, i, memory, i + 1);
    }
    ticket = SUBMIT(s.q[0], .command_buffers = buffers, .command_buffer_count = 20, SIGNALS(at(s.a, 1)));
    for (i = 0; i < 20 && !metal4_run(); i++) { /* there they are one run */
        softmetal_finish(buffers[i]);
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
        assert_int_equal(value_of(s.a), 0);
    }
    finish(&s, 0); /* the signal's */
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_int_equal(value_of(s.a), 1);
    assert_int_equal(bytes_of(memory)[20], 7);
    metal_release(memory);
    close_stage(&s);
}

static void test_command_buffers_may_come_from_anywhere(void **state)
{
    gpusync_ticket ticket;
    void *ours, *theirs, *memory;
    unsigned long owners;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    memory = memory_of(&s, 4);
    bytes_of(memory)[0] = 7;
    ours = open_on(&s, 0);
    theirs = their_buffer(s.q[0]);
    copy(theirs, memory, 0, memory, 1);
    copy(ours, memory, 1, memory, 2);
    owners = softmetal_retain_count(theirs);
    ticket = SUBMIT(s.q[0], BUFFERS(theirs, ours), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE);
    assert_true(softmetal_retain_count(theirs) > owners);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(bytes_of(memory)[2], 7);
    assert_int_equal(softmetal_retain_count(theirs), owners);
    metal_release(theirs);
    metal_release(memory);
    close_stage(&s);
}

static void test_many_waits_and_signals_of_one_submission(void **state)
{
    enum { MANY = 30 };
    gpusync_timeline *timelines[MANY];
    gpusync_point points[MANY], signals[MANY];
    gpusync_ticket ticket;
    size_t i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < MANY; i++) {
        timelines[i] = timeline_named(s.device, NULL);
        points[i] = at(timelines[i], 1);
        signals[i] = at(timelines[i], 2);
    }
    ticket = SUBMIT(s.q[0], .waits = points, .wait_count = MANY, .signals = signals, .signal_count = MANY,
                    BUFFERS(open_on(&s, 0)));
    for (i = 0; i < MANY; i++) {
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
        if (!metal4_run()) assert_int_equal(softmetal_outstanding(s.metal[0]), 3);
        assert_ok(gpusync_timeline_signal(timelines[i], 1));
    }
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_ok(gpusync_wait_many(signals, MANY, GPUSYNC_WAIT_ALL, 0, NULL, NULL));
    for (i = 0; i < MANY; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    close_stage(&s);
}

/* Without a wait, and more than there is room for in most submissions. */
static void test_many_signals_and_no_wait(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    ticket = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)),
                    SIGNALS(at(s.a, 1), at(s.b, 1), at(s.c, 1), at(s.d, 1), at(s.a, 2), at(s.b, 7)));
    assert_int_equal(value_of(s.a), 0);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(value_of(s.a), 2);
    assert_int_equal(value_of(s.b), 7);
    assert_int_equal(value_of(s.c), 1);
    assert_int_equal(value_of(s.d), 1);
    close_stage(&s);
}

/* == real work: bytes that show the order ====================================================================== */

/* Ways to order work: with a command buffer in front and one behind; with waits and signals inside the work itself; on
   the host. The first needs a device that keeps command buffers in their order, where no tracked resource does. */
typedef enum { PLAIN, HEADS, STRICT, FORMS } form_of_order;

/* Metal 4 has no waits and signals inside. */
static form_of_order form_after(form_of_order form)
{
    return metal4_run() && form == PLAIN ? STRICT : (form_of_order)(form + 1);
}

/* One step of a computation: a fill, or where there is a source, a copy. */
typedef struct hop {
    gpusync_queue *queue;
    const gpusync_point *waits, *signals;
    size_t wait_count, signal_count;
    void *from, *to;
    size_t from_at, to_at;
    unsigned char byte;
} hop;

#define HOP(form, ...) make_hop(form, &(hop){__VA_ARGS__}, NULL)
static gpusync_ticket make_hop(form_of_order form, const hop *h, void **work)
{
    gpusync_submission submission;
    gpusync_ticket ticket = 0;
    void *buffer = NULL;
    memset(&submission, 0, sizeof submission);
    if (form != HEADS) {
        submission.waits = h->waits;
        submission.wait_count = h->wait_count;
    }
    assert_ok(make_behind(h->queue, NULL, h->waits, form == HEADS ? h->wait_count : 0, &buffer));
    if (h->from) copy(buffer, h->from, h->from_at, h->to, h->to_at);
    else fill(buffer, h->to, h->to_at, h->byte);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.signals = h->signals;
    submission.signal_count = h->signal_count;
    submission.flags = form == HEADS ? SIGNALS_INSIDE : form == STRICT ? GPUSYNC_STRICT : 0;
    if (work) *work = metal_retain(buffer);
    assert_ok(submit_as_told(h->queue, &submission, &ticket));
    return ticket;
}

/* Command buffers that share nothing overlap, unless the form relies on their order. */
static void open_real_stage(stage *s, queue_kind kind, form_of_order form, unsigned queues)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    softmetal_chaos chaos;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&chaos, 0, sizeof chaos);
    chaos.overlap_per_mille = form == PLAIN ? 0 : 1000;
    open_stage_on(s, SOFTMETAL_REAL, kind, queues, device_desc, queue_desc);
    softmetal_set_chaos(&chaos);
}

static void test_host_and_device_hand_a_byte_on_by_turns(void **state)
{
    form_of_order form;
    (void)state;
    for (form = PLAIN; form < FORMS; form = form_after(form)) {
        unsigned char *bytes;
        uint64_t round;
        void *memory;
        stage s;
        open_real_stage(&s, QUEUE_OF_GPUSYNC, form, 2);
        memory = memory_of(&s, 4);
        bytes = bytes_of(memory);
        for (round = 0; round < 100 / SLOW; round++) {
            uint64_t turn = 4 * round;
            unsigned char byte = (unsigned char)(round + 1);
            gpusync_ticket last;
            /* the whole round is submitted before it begins */
            (void)HOP(form, s.q[0], WAITS(at(s.a, turn + 1)), SIGNALS(at(s.b, turn + 1)), .from = memory, .to = memory,
                      .to_at = 1);
            last = HOP(form, s.q[1], WAITS(at(s.a, turn + 2)), SIGNALS(at(s.b, turn + 2)), .from = memory, .from_at = 2,
                       .to = memory, .to_at = 3);
            bytes[0] = byte;
            assert_ok(gpusync_timeline_signal(s.a, turn + 1));
            assert_ok(gpusync_timeline_wait(s.b, turn + 1, SECONDS(20), NULL));
            assert_int_equal(bytes[1], byte);
            bytes[2] = (unsigned char)(bytes[1] + 1);
            assert_ok(gpusync_timeline_signal(s.a, turn + 2));
            assert_ok(gpusync_wait(s.q[1], last, SECONDS(20)));
            assert_int_equal(bytes[3], (unsigned char)(byte + 1));
            assert_int_equal(value_of(s.b), turn + 2);
        }
        metal_release(memory);
        close_stage(&s);
    }
}

/* One makes it, two work on it side by side, one joins what they made. */
static void check_diamond(queue_kind kind, form_of_order form)
{
    unsigned char *bytes;
    uint64_t round;
    void *memory;
    stage s;
    open_real_stage(&s, kind, form, 4);
    memory = memory_of(&s, 8);
    bytes = bytes_of(memory);
    for (round = 0; round < 100 / SLOW; round++) {
        uint64_t turn = 4 * round;
        unsigned char byte = (unsigned char)(round + 1);
        gpusync_ticket left, right, both;
        (void)HOP(form, s.q[0], SIGNALS(at(s.a, turn + 1)), .to = memory, .byte = byte);
        left = HOP(form, s.q[1], WAITS(at(s.a, turn + 1)), SIGNALS(at(s.b, turn + 1)), .from = memory, .to = memory,
                   .to_at = 1);
        right = HOP(form, s.q[2], WAITS(at(s.a, turn + 1)), .from = memory, .to = memory, .to_at = 2);
        (void)HOP(form, s.q[3], WAITS(at(s.b, turn + 1), after(s.q[2], right)), .from = memory, .from_at = 1,
                  .to = memory, .to_at = 3);
        both = HOP(form, s.q[3], WAITS(after(s.q[2], right), after(s.q[1], left)), .from = memory, .from_at = 2,
                   .to = memory, .to_at = 4);
        assert_ok(gpusync_wait(s.q[3], both, SECONDS(20)));
        assert_ok(gpusync_queue_wait(s.q[3], SECONDS(20)));
        assert_int_equal(bytes[3], byte);
        assert_int_equal(bytes[4], byte);
        assert_ok(gpusync_device_wait(s.device, SECONDS(20), NULL)); /* the next round writes what this one reads */
    }
    metal_release(memory);
    close_stage(&s);
}

static void test_a_diamond_over_four_queues(void **state)
{
    form_of_order form;
    queue_kind kind;
    (void)state;
    for (kind = QUEUE_OF_GPUSYNC; kind < QUEUE_KINDS; kind++)
        for (form = PLAIN; form < FORMS; form = form_after(form))
            if (kind != QUEUE_OF_METAL4 || form != HEADS) check_diamond(kind, form); /* there is no head there */
}

static void test_one_producer_and_a_consumer_on_each_queue(void **state)
{
    form_of_order form;
    (void)state;
    for (form = PLAIN; form < FORMS; form = form_after(form)) {
        gpusync_point ends[STAGE_QUEUES];
        uint64_t round;
        void *memory;
        stage s;
        open_real_stage(&s, QUEUE_OF_GPUSYNC, form, STAGE_QUEUES);
        memory = memory_of(&s, STAGE_QUEUES + 1);
        for (round = 0; round < 100 / SLOW; round++) {
            unsigned char byte = (unsigned char)(round + 1);
            unsigned i;
            size_t which;
            for (i = 0; i < STAGE_QUEUES; i++) /* the consumers come first */
                ends[i] = after(s.q[i], HOP(form, s.q[i], WAITS(at(s.a, round + 1)), .from = memory, .to = memory,
                                            .to_at = i + 1u));
            (void)SUBMIT(s.q[1], NO_WORK(s.q[1]), .flags = GPUSYNC_UNORDERED, SIGNALS(at(s.b, round + 1)));
            bytes_of(memory)[0] = byte;
            assert_ok(gpusync_timeline_signal(s.a, round + 1));
            assert_ok(gpusync_wait_many(ends, STAGE_QUEUES, GPUSYNC_WAIT_ALL, SECONDS(20), NULL, &which));
            for (i = 0; i < STAGE_QUEUES; i++) assert_int_equal(bytes_of(memory)[i + 1], byte);
        }
        metal_release(memory);
        close_stage(&s);
    }
}

/* A byte goes through every queue, and is looked at on the host after each hop. */
static void test_what_a_producer_made_is_there_at_every_hop(void **state)
{
    enum { HOPS = 12 };
    form_of_order form;
    (void)state;
    for (form = PLAIN; form < FORMS; form = form_after(form)) {
        uint64_t round, i;
        void *memory;
        stage s;
        open_real_stage(&s, QUEUE_OF_GPUSYNC, form, STAGE_QUEUES);
        memory = memory_of(&s, HOPS + 1);
        for (round = 0; round < 20 / SLOW + 1; round++) {
            uint64_t base = round * (HOPS + 1);
            unsigned char byte = (unsigned char)(round + 1);
            (void)HOP(form, s.q[0], WAITS(at(s.b, round + 1)), SIGNALS(at(s.a, base + 1)), .to = memory, .byte = byte);
            for (i = 1; i <= HOPS; i++)
                (void)HOP(form, s.q[i % STAGE_QUEUES], WAITS(at(s.a, base + i)), SIGNALS(at(s.a, base + i + 1)),
                          .from = memory, .from_at = i - 1, .to = memory, .to_at = i);
            assert_ok(gpusync_timeline_signal(s.b, round + 1));
            for (i = 0; i <= HOPS; i++) {
                assert_ok(gpusync_timeline_wait(s.a, base + i + 1, SECONDS(20), NULL));
                assert_int_equal(bytes_of(memory)[i], byte);
            }
        }
        metal_release(memory);
        close_stage(&s);
    }
}

/* Each side signals its own timeline and waits for the other's. */
static void test_two_timelines_cross(void **state)
{
    form_of_order form;
    (void)state;
    for (form = PLAIN; form < FORMS; form = form_after(form)) {
        uint64_t turn, rounds = 100 / SLOW;
        void *memory;
        stage s;
        open_real_stage(&s, QUEUE_OF_GPUSYNC, form, 2);
        memory = memory_of(&s, 4);
        for (turn = 1; turn <= rounds; turn++) {
            unsigned char byte = (unsigned char)turn;
            gpusync_ticket left, right;
            (void)HOP(form, s.q[0], SIGNALS(at(s.a, 2 * turn - 1)), .to = memory, .to_at = 0, .byte = byte);
            left = HOP(form, s.q[0], WAITS(at(s.b, 2 * turn - 1)), SIGNALS(at(s.a, 2 * turn)), .from = memory,
                       .from_at = 1, .to = memory, .to_at = 2);
            (void)HOP(form, s.q[1], SIGNALS(at(s.b, 2 * turn - 1)), .to = memory, .to_at = 1,
                      .byte = (unsigned char)~byte);
            right = HOP(form, s.q[1], WAITS(at(s.a, 2 * turn - 1)), SIGNALS(at(s.b, 2 * turn)), .from = memory,
                        .from_at = 0, .to = memory, .to_at = 3);
            assert_ok(gpusync_wait(s.q[0], left, SECONDS(20)));
            assert_ok(gpusync_wait(s.q[1], right, SECONDS(20)));
            assert_int_equal(bytes_of(memory)[2], (unsigned char)~byte);
            assert_int_equal(bytes_of(memory)[3], byte);
            assert_int_equal(value_of(s.a), 2 * turn);
            assert_int_equal(value_of(s.b), 2 * turn);
        }
        metal_release(memory);
        close_stage(&s);
    }
}

/* A plain counter that two queues raise by turns: a queue that comes out of turn sees the wrong one. */
typedef struct rally {
    uint64_t count, faults;
} rally;

static void ping(void *user, const softmetal_kernel_args *args)
{
    rally *r = (rally *)user;
    (void)args;
    if (r->count++ % 2 != 0) r->faults++;
}

static void pong(void *user, const softmetal_kernel_args *args)
{
    rally *r = (rally *)user;
    (void)args;
    if (r->count++ % 2 != 1) r->faults++;
}

static gpusync_ticket hit(gpusync_queue *queue, void *pipeline, gpusync_point wait, gpusync_point signal)
{
    static const metal_size one = {1, 1, 1};
    void *buffer = metal4_run() ? buffer_of(queue) : OPEN(queue, WAITS(wait)), *compute = metal_compute_begin(buffer);
    metal_set_pipeline(compute, pipeline);
    metal_dispatch(compute, one, one);
    metal_end(compute);
    return SUBMIT(queue, .waits = &wait, .wait_count = metal4_run(), BUFFERS(buffer), SIGNALS(signal),
                  .flags = SIGNALS_INSIDE);
}

static void test_two_queues_take_turns_ten_thousand_times(void **state)
{
    const char *stress = getenv("STRESS"), *source = "kernel void ping() {} kernel void pong() {}";
    uint64_t turn, turns = 10000 / SLOW * (stress && strcmp(stress, "full") == 0 ? 10 : 1);
    softmetal_chaos chaos;
    rally score = {0, 0};
    void *pipelines[2];
    stage s;
    (void)state;
    memset(&chaos, 0, sizeof chaos);
    chaos.overlap_per_mille = 500;
    chaos.late_handler_per_mille = 1;
    open_stage(&s, SOFTMETAL_REAL, 2);
    softmetal_set_chaos(&chaos);
    softmetal_set_kernel("ping", ping, &score, 0);
    softmetal_set_kernel("pong", pong, &score, 0);
    pipelines[0] = metal_pipeline_new(s.rig.metal_device, source, "ping", NULL, 0);
    pipelines[1] = metal_pipeline_new(s.rig.metal_device, source, "pong", NULL, 0);
    for (turn = 1; turn <= turns; turn++) {
        (void)hit(s.q[0], pipelines[0], at(s.b, turn - 1), at(s.a, turn));
        (void)hit(s.q[1], pipelines[1], at(s.a, turn), at(s.b, turn));
    }
    assert_ok(gpusync_timeline_wait(s.b, turns, SECONDS(60), NULL));
    assert_int_equal(score.count, 2 * turns);
    assert_int_equal(score.faults, 0);
    assert_int_equal(value_of(s.a), turns);
    metal_release(pipelines[0]);
    metal_release(pipelines[1]);
    close_stage(&s);
}

/* -- command buffers of one queue that overlap ----------------------------------------------------------------- */

/* What a consumer reads while its producer is still at work, where nothing but the submissions orders the two. */
static unsigned char consume_early(form_of_order form, bool one_queue)
{
    unsigned char byte;
    gpusync_ticket made, used;
    void *from, *to, *producer, *consumer;
    softmetal_chaos chaos;
    stage s;
    memset(&chaos, 0, sizeof chaos);
    chaos.overlap_per_mille = 1000;
    open_stage(&s, SOFTMETAL_REAL, 2);
    softmetal_set_chaos(&chaos);
    from = untracked_memory(&s, 1);
    to = untracked_memory(&s, 1);
    {
        gpusync_submission submission = {.flags = form == HEADS    ? SIGNALS_INSIDE
                                                  : form == STRICT ? GPUSYNC_STRICT
                                                                   : 0,
                                         SIGNALS(at(s.a, 1))};
        producer = metal_retain(open_on(&s, 0));
        submission.command_buffers = &producer;
        submission.command_buffer_count = 1;
        fill(producer, from, 0, 7);
        softmetal_hang(producer);
        assert_ok(submit_as_told(s.q[0], &submission, &made));
    }
    used = make_hop(form, &(hop){s.q[one_queue ? 0 : 1], WAITS(at(s.a, 1)), .from = from, .to = to}, &consumer);
    if (form == PLAIN && !metal4_run()) metal_wait_until_completed(consumer); /* though the producer hangs */
    if (form == STRICT) assert_int_equal(status_of(consumer), NOT_ENQUEUED);
    assert_result(gpusync_poll(s.q[one_queue ? 0 : 1], used), GPUSYNC_NOT_READY); /* in any form */
    assert_int_equal(value_of(s.a), 0);
    softmetal_unhang(producer);
    assert_ok(gpusync_wait(s.q[0], made, SECONDS(20)));
    assert_ok(gpusync_wait(s.q[one_queue ? 0 : 1], used, SECONDS(20)));
    byte = bytes_of(to)[0];
    metal_release(producer);
    metal_release(consumer);
    assert_ok(gpusync_device_wait(s.device, SECONDS(20), NULL));
    assert_true(softmetal_settle(SECONDS(20)));
    metal_release(from);
    metal_release(to);
    close_stage(&s);
    return byte;
}

static void test_waits_in_front_and_signals_behind_gate_work_that_overlaps_on_metal_4_alone(void **state)
{
    (void)state;
    assert_int_equal(consume_early(PLAIN, true), metal4_run() ? 7 : 0); /* why the two forms below exist */
    assert_int_equal(consume_early(PLAIN, false), metal4_run() ? 7 : 0);
}

static void test_waits_at_the_head_and_open_signals_gate_work_that_overlaps(void **state)
{
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head, and no signals");
    assert_int_equal(consume_early(HEADS, true), 7);
    assert_int_equal(consume_early(HEADS, false), 7);
}

static void test_strict_submissions_gate_work_that_overlaps(void **state)
{
    (void)state;
    assert_int_equal(consume_early(STRICT, true), 7);
    assert_int_equal(consume_early(STRICT, false), 7);
}

/* == pending signals of one timeline, and work that goes after other work ================================================= */

static void test_a_wait_whose_signal_is_on_the_device_is_listed_when_the_work_is_over(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    ticket = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)));
    assert_false(probe_is_listed(s.a));
    finish(&s, 0);
    finish(&s, 1);
    assert_false(probe_is_listed(s.a));
    assert_ok(gpusync_poll(s.q[1], ticket));
    close_stage(&s);
}

/* below: the pending signal that is held comes after the one that is not. */
static void check_signals_in_and_out_of_order(bool below)
{
    gpusync_ticket ticket, last;
    void *buffer;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    buffer = metal_retain(open_on(&s, 2));
    if (below) (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 1)));
    if (!below) (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    ticket = SUBMIT(s.q[2], BUFFERS(buffer), WAITS(at(s.a, 1)));
    assert_int_equal(status_of(buffer), NOT_ENQUEUED);
    assert_ok(gpusync_timeline_signal(s.b, 1));
    assert_int_equal(status_of(buffer), NOT_ENQUEUED); /* the device may signal 2 first */
    last = SUBMIT(s.q[3], BUFFERS(open_on(&s, 3)), WAITS(at(s.a, 2)));
    finish(&s, 0);
    assert_int_equal(status_of(buffer), COMMITTED);
    finish(&s, 1);
    finish(&s, 2);
    finish(&s, 3);
    assert_ok(gpusync_poll(s.q[2], ticket));
    assert_ok(gpusync_poll(s.q[3], last));
    metal_release(buffer);
    close_stage(&s);
}

static void test_a_pending_signal_that_is_held_holds_its_waiters_whatever_is_pending_above(void **state)
{
    (void)state;
    check_signals_in_and_out_of_order(false);
    check_signals_in_and_out_of_order(true);
}

/* The event has passed the value already, on behalf of a later one, or soon will: the device would not wait. */
static void test_work_is_held_for_a_value_that_the_event_passes_too_early(void **state)
{
    gpusync_ticket tickets[2];
    void *buffers[2];
    stage s;
    unsigned i;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    for (i = 0; i < 2; i++) {
        if (i == 1) finish(&s, 1);
        buffers[i] = metal_retain(open_on(&s, 2 + i));
        tickets[i] = SUBMIT(s.q[2 + i], BUFFERS(buffers[i]), WAITS(at(s.a, 1)));
        assert_int_equal(status_of(buffers[i]), NOT_ENQUEUED);
    }
    finish(&s, 0);
    for (i = 0; i < 2; i++) {
        assert_int_equal(status_of(buffers[i]), COMMITTED);
        finish(&s, 2 + i);
        assert_ok(gpusync_poll(s.q[2 + i], tickets[i]));
        metal_release(buffers[i]);
    }
    close_stage(&s);
}

/* The device might signal the larger value first, and let go a wait there for the smaller: so that work goes after. */
static void check_larger_goes_after(bool encoded, bool killed, bool gone)
{
    gpusync_ticket ticket = 0;
    char report[2000];
    void *larger, *smaller;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    smaller = metal_retain(open_on(&s, 1));
    larger = metal_retain(open_on(&s, 0));
    if (killed) softmetal_fail(smaller, NULL, 3, NULL);
    (void)SUBMIT(s.q[1], BUFFERS(smaller), SIGNALS(at(s.a, 1)));
    if (encoded) assert_ok(gpusync_encode_signal(s.q[0], larger, at(s.a, 2)));
    if (encoded) assert_ok(either_commit(s.q[0], larger, &ticket));
    else ticket = SUBMIT(s.q[0], BUFFERS(larger), SIGNALS(at(s.a, 2)));
    assert_int_equal(status_of(larger), NOT_ENQUEUED);
    (void)gpusync_report(s.device, report, sizeof report);
    assert_non_null(strstr(report, "waits for value 1 of"));
    metal_retain(s.metal[1]);
    if (gone) {
        assert_ok(gpusync_queue_destroy_now(s.q[1]));
        s.q[1] = NULL;
    }
    softmetal_finish_queue(s.metal[1]);
    assert_int_equal(status_of(larger), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0)); /* it does not need the smaller one */
    assert_result(gpusync_timeline_wait(s.a, 2, 0, NULL),
                  gone ? GPUSYNC_ERROR_DESTROYED : killed ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    if (gone) {
        drop_queue_that_stays(s.metal[1]);
        drop_what_stays(gpusync_timeline_metal(s.a, NULL));
    }
    metal_release(smaller);
    metal_release(larger);
    metal_release(s.metal[1]);
    close_stage(&s);
}

static void test_what_signals_more_goes_after_what_other_queues_have_on_the_device(void **state)
{
    unsigned i;
    (void)state;
    for (i = 0; i < (metal4_run() ? 1u : 2u); i++) {
        check_larger_goes_after(i, false, false);
        check_larger_goes_after(i, true, false);
    }
}

static void test_what_signals_more_goes_after_what_a_destroyed_queue_has_on_the_device(void **state)
{
    (void)state;
    check_larger_goes_after(false, false, true);
    if (!metal4_run()) check_larger_goes_after(true, false, true);
}

static void test_work_that_goes_after_other_work_is_cancelled_and_let_go_by_a_failure(void **state)
{
    gpusync_ticket ticket;
    void *larger;
    stage s;
    int fails;
    (void)state;
    for (fails = 0; fails < 2; fails++) {
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        larger = metal_retain(open_on(&s, 1));
        (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
        ticket = SUBMIT(s.q[1], BUFFERS(larger), SIGNALS(at(s.a, 2)));
        assert_result(gpusync_poll(s.q[1], ticket), GPUSYNC_NOT_READY);
        if (fails) assert_ok(gpusync_timeline_fail(s.a, NULL));
        else assert_ok(gpusync_cancel_held(s.q[1]));
        assert_int_equal(status_of(larger), fails ? COMMITTED : NOT_ENQUEUED);
        if (fails) finish(&s, 1);
        assert_result(gpusync_wait(s.q[1], ticket, 0), fails ? GPUSYNC_OK : GPUSYNC_ERROR_CANCELLED);
        finish(&s, 0);
        metal_release(larger);
        close_stage(&s);
    }
}

/* It goes after that work, and not after what is below the value: that may be behind it in its own queue. */
static void test_work_goes_after_other_work_and_not_after_what_that_value_waits_for(void **state)
{
    void *lowest, *larger;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head, and no signals");
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    lowest = open_on(&s, 0);
    larger = metal_retain(open_on(&s, 0));
    assert_ok(gpusync_encode_signal(s.q[0], lowest, at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    (void)SUBMIT(s.q[0], BUFFERS(larger), SIGNALS(at(s.a, 3)));
    assert_int_equal(status_of(larger), NOT_ENQUEUED);
    finish(&s, 1);
    assert_int_equal(status_of(larger), COMMITTED);
    assert_ok(either_commit(s.q[0], lowest, NULL));
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 3);
    metal_release(larger);
    close_stage(&s);
}

/* What was refused because it would have to go after other work is not on its way: no work goes after it. */
static void test_no_work_goes_after_work_that_was_refused(void **state)
{
    void *refused, *larger;
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head, and no signals");
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    refused = open_on(&s, 1);
    larger = metal_retain(open_on(&s, 2));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    assert_ok(gpusync_encode_signal(s.q[1], refused, at(s.b, 1)));
    assert_ok(gpusync_encode_signal(s.q[1], refused, at(s.a, 2)));
    metal_enqueue(refused);
    assert_result(either_commit(s.q[1], refused, NULL), GPUSYNC_ERROR_ENQUEUED);
    (void)SUBMIT(s.q[2], BUFFERS(larger), SIGNALS(at(s.b, 2)));
    assert_int_equal(status_of(larger), COMMITTED);
    finish(&s, 0);
    assert_ok(either_commit(s.q[1], refused, NULL));
    finish(&s, 1);
    finish(&s, 2);
    assert_int_equal(value_of(s.b), 2);
    metal_release(larger);
    close_stage(&s);
}

/* The device has it wait for the smaller value: it goes at once. */
static void test_what_waits_for_the_smaller_value_need_not_go_after_it(void **state)
{
    void *behind, *beside;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    behind = metal_retain(open_on(&s, 1));
    beside = metal_retain(open_on(&s, 2));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(behind), WAITS(at(s.a, 1)), SIGNALS(at(s.a, 2)));
    assert_int_equal(status_of(behind), COMMITTED);
    (void)SUBMIT(s.q[2], BUFFERS(beside), WAITS(at(s.a, 2)), SIGNALS(at(s.a, 3)));
    assert_int_equal(status_of(beside), COMMITTED);
    finish(&s, 0);
    finish(&s, 1);
    finish(&s, 2);
    assert_int_equal(value_of(s.a), 3);
    metal_release(behind);
    metal_release(beside);
    close_stage(&s);
}

/* Between two signals on their way: it goes after the lower one, not after the higher one. */
static void test_work_goes_after_the_highest_of_the_lower_signals(void **state)
{
    void *between;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    between = metal_retain(open_on(&s, 2));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)), SIGNALS(at(s.a, 3)));
    (void)SUBMIT(s.q[2], BUFFERS(between), SIGNALS(at(s.a, 2)));
    assert_int_equal(status_of(between), NOT_ENQUEUED);
    finish(&s, 0);
    assert_int_equal(status_of(between), COMMITTED);
    finish(&s, 1);
    finish(&s, 2);
    assert_int_equal(value_of(s.a), 3);
    metal_release(between);
    close_stage(&s);
}

/* Of its waits before its first signal the highest counts, in whatever order they come. */
static void test_of_several_waits_before_the_first_signal_the_highest_counts(void **state)
{
    void *behind;
    stage s;
    unsigned first;
    (void)state;
    for (first = 1; first <= 2; first++) {
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        behind = metal_retain(open_on(&s, 1));
        (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1), at(s.a, 2)));
        (void)SUBMIT(s.q[1], BUFFERS(behind), WAITS(at(s.a, first), at(s.a, 3 - first)), SIGNALS(at(s.a, 3)));
        assert_int_equal(status_of(behind), COMMITTED);
        assert_int_equal(stats_of(s.q[1]).held, 0);
        finish(&s, 0);
        finish(&s, 1);
        assert_int_equal(value_of(s.a), 3);
        metal_release(behind);
        close_stage(&s);
    }
}

/* Between the two signals the queue has one of its own on the device: it hides nothing. */
static void test_a_signal_of_its_own_queue_hides_no_lower_one_of_another(void **state)
{
    void *larger;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    larger = metal_retain(open_on(&s, 1));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 2)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(larger), SIGNALS(at(s.a, 3)));
    assert_int_equal(status_of(larger), NOT_ENQUEUED);
    finish(&s, 1);
    assert_int_equal(status_of(larger), NOT_ENQUEUED);
    finish(&s, 0);
    assert_int_equal(status_of(larger), COMMITTED);
    finish(&s, 1);
    assert_int_equal(value_of(s.a), 3);
    metal_release(larger);
    close_stage(&s);
}

/* The device has the queue's lower signal before, in the order of the commits. Another queue signals more. */
static void test_work_does_not_stay_behind_the_lower_signals_of_its_own_queue(void **state)
{
    void *larger;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    larger = metal_retain(open_on(&s, 1));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 9)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(larger), SIGNALS(at(s.a, 2)));
    assert_int_equal(status_of(larger), COMMITTED);
    assert_int_equal(stats_of(s.q[1]).held, 0);
    finish(&s, 1);
    assert_int_equal(value_of(s.a), 2);
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 9);
    metal_release(larger);
    close_stage(&s);
}

/* Does the host make the signal of such a submission? Not one that is encoded in the command buffer. */
static bool is_of_the_host(uint32_t flags)
{
    return flags & GPUSYNC_STRICT && (metal4_run() || !(flags & SIGNALS_INSIDE));
}

/* The host makes a signal of STRICT work when that has ended, and the device one of other work of the queue, in no order: the two
   overlap. before: signals of the same queue below both, of which all but the first are the host's. */
static void check_strict_and_other_work_of_a_queue(uint32_t lower_flags, uint32_t higher_flags, unsigned before)
{
    bool hosts = is_of_the_host(lower_flags), both = hosts && is_of_the_host(higher_flags);
    bool lower_held = before > 1 && !hosts;
    bool held = (hosts || before > 1) && !both; /* itself, or in the line behind what is */
    void *lower, *higher, *waiting;
    gpusync_ticket tickets[3];
    uint64_t i;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    lower = metal_retain(open_on(&s, 0));
    higher = metal_retain(open_on(&s, 0));
    waiting = metal_retain(open_on(&s, 1));
    for (i = 1; i <= before; i++)
        (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, i)), .flags = i > 1 ? GPUSYNC_STRICT : 0);
    tickets[0] = SUBMIT(s.q[0], BUFFERS(lower), SIGNALS(at(s.a, 5)), .flags = lower_flags);
    tickets[1] = SUBMIT(s.q[0], BUFFERS(higher), SIGNALS(at(s.a, 6)), .flags = higher_flags);
    tickets[2] = SUBMIT(s.q[1], WAITS(at(s.a, 5)), BUFFERS(waiting));
    assert_int_equal(status_of(lower), lower_held ? NOT_ENQUEUED : COMMITTED);
    assert_int_equal(status_of(higher), held ? NOT_ENQUEUED : COMMITTED);
    if (both) softmetal_finish(higher);  /* the two overlap */
    assert_in_range(raw_of(s.a), 0, 4); /* nothing has let the waiting work go */
    finish(&s, 0);
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[0], tickets[0], 0));
    assert_ok(gpusync_wait(s.q[0], tickets[1], 0));
    assert_ok(gpusync_wait(s.q[1], tickets[2], 0));
    assert_int_equal(value_of(s.a), 6);
    metal_release(lower);
    metal_release(higher);
    metal_release(waiting);
    close_stage(&s);
}

static void test_work_stays_behind_the_lower_signal_of_strict_work_of_its_own_queue(void **state)
{
    static const uint32_t forms[] = {0, SIGNALS_INSIDE, GPUSYNC_STRICT, GPUSYNC_STRICT | SIGNALS_INSIDE};
    unsigned i, lower, higher;
    (void)state;
    for (lower = 0; lower < LENGTH(forms); lower++)
        for (higher = 0; higher < LENGTH(forms); higher++)
            for (i = 0; i < 3; i++) check_strict_and_other_work_of_a_queue(forms[lower], forms[higher], i);
}

/* What one timeline keeps on the host is not on its way on another. */
static void test_work_that_goes_after_other_work_keeps_no_other_work_from_going(void **state)
{
    void *larger, *consumer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 4);
    larger = metal_retain(open_on(&s, 1));
    consumer = metal_retain(open_on(&s, 3));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(larger), SIGNALS(at(s.b, 5), at(s.a, 2)));
    assert_int_equal(status_of(larger), NOT_ENQUEUED);
    (void)SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)), SIGNALS(at(s.b, 3)));
    (void)SUBMIT(s.q[3], BUFFERS(consumer), WAITS(at(s.b, 3)));
    assert_int_equal(status_of(consumer), COMMITTED);
    finish(&s, 0);
    assert_int_equal(status_of(larger), NOT_ENQUEUED); /* 3 is below 5 */
    finish(&s, 2);
    assert_int_equal(status_of(larger), COMMITTED);
    finish(&s, 1);
    finish(&s, 3);
    assert_int_equal(value_of(s.b), 5);
    metal_release(larger);
    metal_release(consumer);
    close_stage(&s);
}

/* On the device already, it would find the event at or above the value. */
static bool would_not_wait(void *buffer, gpusync_timeline *timeline, uint64_t value)
{
    uint64_t base;
    void *event = gpusync_timeline_metal(timeline, &base);
    return status_of(buffer) != NOT_ENQUEUED && metal_event_value(event) >= value + base;
}

/* ... also when the pending signal below goes to the device after that. */
static void test_a_pending_signal_that_goes_to_the_device_behind_a_later_one_is_waited_for(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 10))); /* held */
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 20)));
    finish(&s, 1); /* if that went to the device, its event has passed 10 */
    buffer = metal_retain(open_on(&s, 2));
    ticket = SUBMIT(s.q[2], BUFFERS(buffer), WAITS(at(s.a, 10)));
    assert_false(would_not_wait(buffer, s.a, 10));
    assert_ok(gpusync_timeline_signal(s.b, 1)); /* on its way now, but it has not ended */
    assert_false(would_not_wait(buffer, s.a, 10));
    assert_result(gpusync_poll(s.q[2], ticket), GPUSYNC_NOT_READY);
    finish(&s, 0);
    assert_true(status_of(buffer) >= COMMITTED);
    finish(&s, 1);
    finish(&s, 2);
    assert_ok(gpusync_poll(s.q[2], ticket));
    assert_int_equal(value_of(s.a), 20);
    metal_release(buffer);
    close_stage(&s);
}

/* The same of the second of two that one queue sends behind the later one. */
static void test_two_pending_signals_go_to_the_device_behind_a_later_one_and_the_second_is_waited_for(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 10))); /* held */
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 20)));                    /* behind it */
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 30)));
    buffer = metal_retain(open_on(&s, 2));
    ticket = SUBMIT(s.q[2], BUFFERS(buffer), WAITS(at(s.a, 20)));
    assert_ok(gpusync_timeline_signal(s.b, 1)); /* both go, and have not ended */
    finish(&s, 1);                              /* the event has passed 20 */
    assert_false(would_not_wait(buffer, s.a, 20));
    assert_result(gpusync_poll(s.q[2], ticket), GPUSYNC_NOT_READY);
    softmetal_finish_queue(s.metal[0]);
    assert_true(status_of(buffer) >= COMMITTED);
    finish(&s, 2);
    assert_ok(gpusync_poll(s.q[2], ticket));
    assert_int_equal(value_of(s.a), 30);
    metal_release(buffer);
    close_stage(&s);
}

/* The device does all that it can, queue by queue. */
static void finish_what_is_due(stage *s, unsigned queues)
{
    bool more = true;
    unsigned i;
    while (more)
        for (more = false, i = 0; i < queues; i++) {
            void *buffer = softmetal_first_in_line(s->metal[i]);
            if (!buffer || softmetal_what_is_due(buffer) != SOFTMETAL_COMPLETE_DUE) continue;
            softmetal_finish(buffer);
            more = true;
        }
}

/* 1 lets two queues go: one signals 2, the other 3. The three come in some order, and neither of the two has to wait for
   the other: 3 may be on the device before 2 is pending. */
static void check_two_queues_that_one_lets_go(const int *order)
{
    gpusync_ticket tickets[3];
    int i;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    for (i = 0; i < 3; i++) {
        int k = order[i];
        void *buffer = open_on(&s, (unsigned)k);
        tickets[k] = k == 0 ? SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)))
                            : SUBMIT(s.q[k], WAITS(at(s.a, 1)), BUFFERS(buffer), SIGNALS(at(s.a, k == 1 ? 2 : 3)));
    }
    finish_what_is_due(&s, 3);
    for (i = 0; i < 3; i++) assert_ok(gpusync_wait(s.q[i], tickets[i], 0));
    assert_int_equal(value_of(s.a), 3);
    close_stage(&s);
}

static void end_lower_signal(void *queue) { finish_queue((gpusync_queue *)queue); }
static void fail_the_order(void *timeline) { (void)fail_with_code_77(timeline); }

/* Work would have to stay behind the lower signal of another queue. Just before it asks that signal ends, also where a pending
   one below it keeps the value back: the work goes at once. Or the timeline fails: the work is refused, and nothing of it is
   left. */
static void test_work_does_not_stay_behind_a_signal_that_has_just_ended(void **state)
{
    enum { ENDS, ENDS_AND_IS_KEPT_BACK, FAILS, WAYS };
    int way;
    (void)state;
    for (way = 0; way < WAYS; way++) {
        gpusync_result result;
        gpusync_ticket ticket;
        void *higher;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 3);
        higher = kept_buffer_of(s.q[1]);
        if (way == ENDS_AND_IS_KEPT_BACK)
            (void)SUBMIT(s.q[2], NO_WORK(s.q[2]), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 1)));
        (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.a, 2)));
        if (way == FAILS) probe_at(PROBE_ENTERS, NULL, 1, fail_the_order, s.a);
        else probe_at(PROBE_ENTERS, NULL, 1, end_lower_signal, s.q[0]);
        result = TRY_SUBMIT(s.q[1], &ticket, BUFFERS(higher), SIGNALS(at(s.a, 3)));
        assert_true(probe_has_acted());
        assert_result(result, way == FAILS ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        if (way == FAILS) ticket = SUBMIT(s.q[1], BUFFERS(higher));
        assert_int_equal(status_of(higher), COMMITTED);
        finish(&s, 0);
        finish(&s, 1);
        if (way == ENDS_AND_IS_KEPT_BACK) {
            assert_int_equal(value_of(s.a), 0);
            assert_ok(gpusync_timeline_signal(s.b, 1));
            finish(&s, 2);
        }
        assert_ok(gpusync_wait(s.q[1], ticket, 0)); /* the failure of what it was behind is not its own */
        if (way == FAILS) assert_int_equal(error_at(s.a, 3).code, 77);
        else assert_int_equal(value_of(s.a), 3);
        metal_release(higher);
        close_stage(&s);
    }
}

static struct {
    stage *stage;
    void *lower, *higher;
} meanwhile;

static void *submit_the_higher(void *ticket)
{
    gpusync_point two = at(meanwhile.stage->a, 2);
    *(gpusync_ticket *)ticket = submit_between(meanwhile.stage->q[1], NULL, meanwhile.higher, &two);
    return NULL;
}

static void submit_at_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase != SOFTMETAL_AFTER || !meanwhile.lower || !commits(object, selector, meanwhile.lower)) return;
    meanwhile.lower = NULL;
    join(start(submit_the_higher, user));
}

/* The lower signal is told to be on the device after the higher one's work lists itself behind it: that alone lets the
   higher one not go. */
static void test_work_stays_behind_a_signal_that_is_just_going_to_the_device(void **state)
{
    gpusync_ticket ticket = 0;
    void *lower, *higher;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    meanwhile.stage = &s;
    meanwhile.lower = lower = buffer_of(s.q[0]);
    meanwhile.higher = higher = kept_buffer_of(s.q[1]);
    softmetal_set_message_hook(submit_at_commit, &ticket);
    (void)SUBMIT(s.q[0], BUFFERS(lower), SIGNALS(at(s.a, 1), at(s.b, 1))); /* the last of two is on the device at once */
    softmetal_set_message_hook(NULL, NULL);
    assert_null(meanwhile.lower);
    assert_int_equal(ticket, 1);
    assert_int_equal(status_of(higher), NOT_ENQUEUED);
    finish(&s, 0);
    assert_int_equal(value_of(s.a), 1);
    assert_int_equal(status_of(higher), COMMITTED);
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[1], ticket, 0));
    assert_int_equal(value_of(s.a), 2);
    metal_release(higher);
    close_stage(&s);
}

static void test_two_queues_that_one_lets_go_signal_in_whatever_order_they_come(void **state)
{
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(orders); i++) check_two_queues_that_one_lets_go(orders[i]);
}

/* The first of its pending signals stays behind that of another queue. So does the second, which no other work has. */
static void test_a_submission_that_stays_lets_none_of_its_values_go(void **state)
{
    void *ahead, *behind, *last;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    (void)SUBMIT(s.q[1], BUFFERS(ahead = kept_buffer_of(s.q[1])), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[0], BUFFERS(behind = kept_buffer_of(s.q[0])), SIGNALS(at(s.a, 2), at(s.b, 1)));
    assert_int_equal(status_of(behind), 0);
    ticket = SUBMIT(s.q[2], BUFFERS(last = kept_buffer_of(s.q[2])), WAITS(at(s.b, 1)));
    assert_int_equal(status_of(last), 0);
    assert_int_equal(held_on(s.device, s.q[2]), 1);
    finish(&s, 1);
    assert_int_equal(held_on(s.device, s.q[2]), 0);
    finish(&s, 0);
    finish(&s, 2);
    assert_ok(gpusync_wait(s.q[2], ticket, 0));
    metal_release(ahead);
    metal_release(behind);
    metal_release(last);
    close_stage(&s);
}

/* -- the table of "Order" in gpusync.h, cell by cell ------------------------------------------------------------- */

/* Ways to signal: by the description of a submission, also of a strict one; by what is encoded into a command buffer that
   is committed, or submitted. Metal 4 has the first two. */
typedef enum { BY_SUBMIT, BY_STRICT, BY_COMMIT, BY_SUBMITTED_BUFFER, WAYS_TO_SIGNAL } way_to_signal;

static way_to_signal ways_there_are(void) { return metal4_run() ? BY_COMMIT : WAYS_TO_SIGNAL; }

/* The buffer is still the caller's after an error. */
static gpusync_result signal_by(way_to_signal way, gpusync_queue *queue, void *buffer, gpusync_point signal,
                                gpusync_ticket *ticket)
{
    if (way == BY_COMMIT || way == BY_SUBMITTED_BUFFER) {
        gpusync_result result = gpusync_encode_signal(queue, buffer, signal);
        if (result != GPUSYNC_OK) return result;
    }
    if (way == BY_COMMIT) return either_commit(queue, buffer, ticket);
    if (way == BY_SUBMITTED_BUFFER) return TRY_SUBMIT(queue, ticket, BUFFERS(buffer));
    return TRY_SUBMIT(queue, ticket, BUFFERS(buffer), SIGNALS(signal), .flags = way == BY_STRICT ? GPUSYNC_STRICT : 0);
}

/* On queues: 0 has the signal of b, 1 that of a, 2 what else it takes; timelines: `a` is the one of both signals, b and d
   hold work. */
typedef struct order_step {
    stage s;
    void *open; /* a command buffer with a signal, or NULL */
    bool strict; /* a is signalled so */
} order_step;

enum { VALUE_OF_A = 10 };

static void a_is_committed(order_step *t)
{
    (void)SUBMIT(t->s.q[1], BUFFERS(open_on(&t->s, 1)), SIGNALS(at(t->s.a, VALUE_OF_A)),
                 .flags = t->strict ? GPUSYNC_STRICT : 0);
}

static void a_is_open(order_step *t)
{
    t->open = buffer_of(t->s.q[1]);
    assert_ok(gpusync_encode_signal(t->s.q[1], t->open, at(t->s.a, VALUE_OF_A)));
}

static void a_is_held(order_step *t)
{
    (void)SUBMIT(t->s.q[1], BUFFERS(open_on(&t->s, 1)), WAITS(at(t->s.b, 1)), SIGNALS(at(t->s.a, VALUE_OF_A)),
                 .flags = t->strict ? GPUSYNC_STRICT : 0);
}

static void a_is_signalled_and_not_reached(order_step *t)
{
    (void)SUBMIT(t->s.q[2], BUFFERS(open_on(&t->s, 2)), WAITS(at(t->s.b, 1)), SIGNALS(at(t->s.a, 1)));
    a_is_committed(t);
    finish(&t->s, 1);
    assert_int_equal(value_of(t->s.a), 0);
}

static void a_is_reached(order_step *t)
{
    a_is_committed(t);
    finish(&t->s, 1);
    assert_int_equal(value_of(t->s.a), VALUE_OF_A);
}

static void a_is_discarded(order_step *t)
{
    a_is_open(t);
    assert_ok(gpusync_command_buffer_discard(t->s.q[1], t->open));
    t->open = NULL;
}

static void a_has_failed(order_step *t)
{
    gpusync_error reason;
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_CANCELLED;
    a_is_open(t);
    assert_ok(gpusync_timeline_fail(t->s.a, &reason));
}

static const struct order_row {
    const char *name;
    void (*play)(order_step *t);
    bool encodes; /* needs a queue whose command buffers take signals */
} order_rows[] = {
    {"open", a_is_open, true},
    {"held", a_is_held, false},
    {"committed", a_is_committed, false},
    {"signalled, not reached", a_is_signalled_and_not_reached, false},
    {"reached", a_is_reached, false},
    {"discarded", a_is_discarded, true},
    {"failed", a_has_failed, true},
};

static const struct order_column {
    const char *name;
    uint64_t value;
} order_columns[] = {{"b is higher", VALUE_OF_A + 2}, {"b is the same", VALUE_OF_A}, {"b is lower", VALUE_OF_A - 2}};

/* Everything ends, and every value is reached that was accepted. */
static void end_all_in_order(order_step *t, bool fails, gpusync_ticket ticket, uint64_t last)
{
    unsigned i, round;
    if (t->open) (void)commit_to(t->s.q[1], t->open);
    assert_ok(gpusync_timeline_signal(t->s.b, 1));
    for (round = 0; round < 2; round++)
        for (i = 3; i--;) finish(&t->s, i);
    for (i = 0; i < 3; i++) assert_true(gpusync_is_idle(t->s.q[i]));
    if (ticket) assert_ok(gpusync_poll(t->s.q[0], ticket));
    if (!fails) assert_int_equal(value_of(t->s.a), last);
}

static void check_order(const struct order_row *row, const struct order_column *column, const char *expected,
                        way_to_signal way, bool strict)
{
    bool goes = strcmp(expected, "goes") == 0, held = strcmp(expected, "held") == 0;
    bool fails = strcmp(expected, "failed") == 0;
    gpusync_ticket ticket = 0;
    gpusync_result result;
    order_step t;
    void *buffer;
    memset(&t, 0, sizeof t);
    t.strict = strict;
    open_stage(&t.s, SOFTMETAL_MANUAL, 3);
    if (row->encodes && metal4_run()) {
        close_queue(&t.s, 1);
        t.s.q[1] = queue_of_kind(QUEUE_OF_THE_PROGRAM, t.s.device, NULL);
        t.s.metal[1] = gpusync_queue_metal(t.s.q[1]);
    }
    row->play(&t);
    buffer = kept_buffer_of(t.s.q[0]);
    result = signal_by(way, t.s.q[0], buffer, at(t.s.a, column->value), &ticket);
    if (result == GPUSYNC_OK && (goes || held)) {
        assert_int_equal(status_of(buffer), goes ? COMMITTED : NOT_ENQUEUED);
        assert_int_equal(stats_of(t.s.q[0]).held, held);
        if (held) finish(&t.s, 1);
        if (held) assert_int_equal(status_of(buffer), COMMITTED);
    } else if (goes || held || result != (fails ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_ERROR_NOT_RISING)) {
        fail_msg("%s, %s, way %d: gpusync.h says '%s', and the call returned '%s'", row->name, column->name, way, expected,
                 gpusync_result_string(result));
    } else {
        assert_ok(either_discard(t.s.q[0], buffer));
    }
    end_all_in_order(&t, fails, ticket,
                     strcmp(row->name, "discarded") != 0 && column->value < VALUE_OF_A ? VALUE_OF_A : column->value);
    metal_release(buffer);
    close_stage(&t.s);
}

static void test_the_order_of_the_signals_of_two_queues_is_that_of_the_table(void **state)
{
    unsigned i, k, strict;
    way_to_signal way;
    table t;
    (void)state;
    read_table("the signal of a is", order_columns[0].name, &t);
    assert_int_equal(t.row_count, LENGTH(order_rows));
    assert_int_equal(t.columns, LENGTH(order_columns));
    for (i = 0; i < t.row_count; i++) {
        assert_string_equal(t.rows[i], order_rows[i].name);
        for (k = 0; k < t.columns; k++) {
            assert_string_equal(t.names[k], order_columns[k].name);
            for (way = 0; way < ways_there_are(); way++)
                for (strict = 0; strict < 2; strict++)
                    check_order(&order_rows[i], &order_columns[k], t.cells[i][k], way, strict);
        }
    }
}

/* Signals 12, and another queue has 10 on the device. It need not stay behind that if it waits for 10, or more, before its
   first signal of the timeline: in its description, in the command buffer of that signal, or in one before it. */
static void test_work_that_waits_for_the_lower_value_before_its_first_signal_need_not_stay_behind_it(void **state)
{
    enum { NO_WAIT, LESS, IN_DESCRIPTION, MORE, BEFORE_ANOTHER_SIGNAL, SAME_BUFFER, EARLIER_BUFFER, LATER_BUFFER,
           LATER_BUFFER_AND_DESCRIBED_SIGNAL, OTHER_TIMELINE, WAYS };
    static const bool goes[WAYS] = {false, false, true, true, true, true, true, false, true, false};
    int way;
    (void)state;
    for (way = 0; way < (metal4_run() ? SAME_BUFFER : WAYS); way++) {
        void *buffers[2];
        gpusync_ticket ticket = 0;
        stage s;
        unsigned i;
        open_stage(&s, SOFTMETAL_MANUAL, 3);
        (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 9), at(s.c, 10)));
        (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 10)));
        (void)SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)), WAITS(at(s.a, 10)), SIGNALS(at(s.a, 11)));
        for (i = 0; i < 2; i++) buffers[i] = kept_buffer_of(s.q[0]);
        if (way == SAME_BUFFER) assert_ok(gpusync_encode_wait(s.q[0], buffers[1], at(s.a, 11)));
        if (way == EARLIER_BUFFER) assert_ok(gpusync_encode_wait(s.q[0], buffers[0], at(s.a, 11)));
        if (way == LATER_BUFFER || way == LATER_BUFFER_AND_DESCRIBED_SIGNAL)
            assert_ok(gpusync_encode_wait(s.q[0], buffers[1], at(s.a, 11)));
        if (way == LATER_BUFFER) assert_ok(gpusync_encode_signal(s.q[0], buffers[0], at(s.a, 12)));
        if (way == SAME_BUFFER || way == EARLIER_BUFFER)
            assert_ok(gpusync_encode_signal(s.q[0], buffers[1], at(s.a, 12)));
        if (way == LATER_BUFFER) assert_ok(TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffers[0], buffers[1])));
        else if (way == SAME_BUFFER || way == EARLIER_BUFFER)
            assert_ok(TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffers[0], buffers[1])));
        else if (way == NO_WAIT || way == LATER_BUFFER_AND_DESCRIBED_SIGNAL)
            ticket = SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1]), SIGNALS(at(s.a, 12)));
        else if (way == OTHER_TIMELINE)
            ticket = SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1]), WAITS(at(s.c, 10)), SIGNALS(at(s.a, 12)));
        else if (way == BEFORE_ANOTHER_SIGNAL)
            ticket = SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1]), WAITS(at(s.a, 11)),
                            SIGNALS(at(s.b, 1), at(s.a, 12), at(s.a, 13)));
        else
            ticket = SUBMIT(s.q[0], BUFFERS(buffers[0], buffers[1]), WAITS(at(s.a, way == LESS ? 10 : 11)),
                            SIGNALS(at(s.a, 12)));
        assert_int_equal(status_of(buffers[0]), goes[way] ? COMMITTED : NOT_ENQUEUED);
        assert_int_equal(stats_of(s.q[0]).held, !goes[way]);
        finish(&s, 1);
        if (!goes[way]) assert_int_equal(status_of(buffers[0]), NOT_ENQUEUED); /* 11 is still to come */
        finish(&s, 2);
        assert_int_equal(status_of(buffers[0]), COMMITTED);
        finish(&s, 0);
        assert_ok(gpusync_poll(s.q[0], ticket));
        assert_int_equal(value_of(s.a), way == BEFORE_ANOTHER_SIGNAL ? 13 : 12);
        for (i = 0; i < 2; i++) metal_release(buffers[i]);
        close_stage(&s);
    }
}

/* The queue has 5 on the device, and then 3. What another queue signals above 5 stays behind both, in whatever order they
   end; what it signals between them stays behind 3. */
static void test_work_stays_behind_a_lower_signal_that_the_device_gets_after_a_higher_one(void **state)
{
    unsigned between, lower_first;
    (void)state;
    for (between = 0; between < 2; between++)
        for (lower_first = 0; lower_first < (metal4_run() ? 1 : 2); lower_first++) { /* one queue: in order */
            void *higher, *lower, *last;
            gpusync_ticket ticket;
            stage s;
            open_stage(&s, SOFTMETAL_MANUAL, 3);
            (void)SUBMIT(s.q[1], BUFFERS(higher = kept_buffer_of(s.q[1])), SIGNALS(at(s.a, 5)), .flags = SIGNALS_INSIDE);
            (void)SUBMIT(s.q[2], BUFFERS(lower = kept_buffer_of(s.q[2])), SIGNALS(at(s.a, 3)), .flags = SIGNALS_INSIDE);
            assert_int_equal(status_of(lower), COMMITTED);
            ticket = SUBMIT(s.q[0], BUFFERS(last = kept_buffer_of(s.q[0])), SIGNALS(at(s.a, between ? 4 : 6)));
            assert_int_equal(status_of(last), NOT_ENQUEUED);
            softmetal_finish(lower_first ? lower : higher);
            if (between) assert_int_equal(status_of(last), lower_first ? COMMITTED : NOT_ENQUEUED);
            else assert_int_equal(status_of(last), NOT_ENQUEUED);
            softmetal_finish(lower_first ? higher : lower);
            finish(&s, 1);
            finish(&s, 2);
            assert_int_equal(status_of(last), COMMITTED);
            finish(&s, 0);
            assert_ok(gpusync_poll(s.q[0], ticket));
            assert_int_equal(value_of(s.a), between ? 5 : 6);
            metal_release(higher);
            metal_release(lower);
            metal_release(last);
            close_stage(&s);
        }
}

/* Two queues raise one timeline by turns: n waits for n - 1. All of it is on the device at once. */
static void test_ping_pong_on_one_timeline_holds_nothing(void **state)
{
    enum { TURNS = 100 };
    int encoded;
    (void)state;
    for (encoded = 0; encoded < (metal4_run() ? 1 : 2); encoded++) {
        gpusync_ticket tickets[2] = {0, 0};
        uint64_t turn;
        unsigned i;
        stage s;
        open_stage_with(&s, SOFTMETAL_MANUAL, 2, 3 * TURNS);
        for (turn = 1; turn <= TURNS; turn++) {
            gpusync_queue *queue = s.q[turn % 2];
            if (encoded) {
                void *buffer = OPEN(queue, WAITS(at(s.a, turn - 1)));
                assert_ok(gpusync_encode_signal(queue, buffer, at(s.a, turn)));
                tickets[turn % 2] = commit_to(queue, buffer);
            } else {
                tickets[turn % 2] =
                    SUBMIT(queue, BUFFERS(buffer_of(queue)), WAITS(at(s.a, turn - 1)), SIGNALS(at(s.a, turn)));
            }
            assert_int_equal(stats_of(queue).held, 0);
        }
        finish_what_is_due(&s, 2);
        for (i = 0; i < 2; i++) {
            assert_ok(gpusync_wait(s.q[i], tickets[i], 0));
            assert_int_equal(stats_of(s.q[i]).held, 0);
        }
        assert_int_equal(value_of(s.a), TURNS);
        close_stage(&s);
    }
}

/* One signals a3 and b5, the other a5 and b3: each is behind the other on one timeline. Both wait for one value, which the
   host signals, or work. */
static void test_two_submissions_that_are_each_behind_the_other_both_end(void **state)
{
    int by_work;
    (void)state;
    for (by_work = 0; by_work < 2; by_work++) {
        gpusync_ticket tickets[2];
        stage s;
        unsigned i;
        open_stage(&s, SOFTMETAL_MANUAL, 3);
        tickets[0] = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.c, 1)), SIGNALS(at(s.a, 3), at(s.b, 5)));
        tickets[1] = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.c, 1)), SIGNALS(at(s.a, 5), at(s.b, 3)));
        if (by_work) (void)SUBMIT(s.q[2], BUFFERS(open_on(&s, 2)), SIGNALS(at(s.c, 1)));
        else assert_ok(gpusync_timeline_signal(s.c, 1));
        finish(&s, 2);
        for (i = 0; i < 4; i++) finish(&s, i % 2);
        for (i = 0; i < 2; i++) assert_ok(gpusync_wait(s.q[i], tickets[i], 0));
        assert_int_equal(value_of(s.a), 5);
        assert_int_equal(value_of(s.b), 5);
        close_stage(&s);
    }
}

static struct {
    stage *stage;
    void *buffer;
    int arrived, done;
    bool begun;
    pthread_t thread;
} other_way;

static void *submit_the_other_way(void *unused)
{
    gpusync_point signals[2] = {at(other_way.stage->a, 5), at(other_way.stage->b, 3)};
    gpusync_submission submission;
    (void)unused;
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = &other_way.buffer;
    submission.command_buffer_count = 1;
    submission.signals = signals;
    submission.signal_count = 2;
    must(either_submit(other_way.stage->q[1], &submission, NULL) == GPUSYNC_OK, "the other submission");
    PUT(&other_way.done, 1);
    return NULL;
}

static void arrive(void *unused)
{
    (void)unused;
    PUT(&other_way.arrived, 1);
}

/* The other thread comes to where it enters, and gets the processor for a while. */
static void the_other_comes(void *unused)
{
    int turns;
    (void)unused;
    other_way.begun = true;
    probe_at(PROBE_ENTERS, NULL, 1, arrive, NULL);
    other_way.thread = start(submit_the_other_way, NULL);
    while (!GET(&other_way.arrived) && !GET(&other_way.done)) sched_yield();
    for (turns = 0; turns < 1000 && !GET(&other_way.done); turns++) sched_yield();
}

/* ... on two threads: just before one enters, the other comes. One goes to the device with both signals, and
   the other is held. */
static bool they_meet_at(int n)
{
    void *buffer;
    gpusync_ticket ticket;
    unsigned i;
    stage s;
    memset(&other_way, 0, sizeof other_way);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    for (i = 0; i < 2; i++) { /* each has been there before */
        (void)SUBMIT(s.q[i], BUFFERS(open_on(&s, i)), SIGNALS(at(s.c, i + 1)));
        finish(&s, i);
    }
    other_way.stage = &s;
    other_way.buffer = kept_buffer_of(s.q[1]);
    buffer = kept_buffer_of(s.q[0]);
    probe_at(PROBE_ENTERS, NULL, n, the_other_comes, NULL);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 3), at(s.b, 5)));
    (void)probe_has_acted();
    if (!other_way.begun) (void)submit_the_other_way(NULL);
    else join(other_way.thread);
    assert_int_equal(stats_of(s.q[0]).held + stats_of(s.q[1]).held, 1);
    assert_int_equal(status_of(buffer) + status_of(other_way.buffer), COMMITTED);
    for (i = 0; i < 4; i++) finish(&s, i % 2);
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_ok(gpusync_poll(s.q[1], 2));
    assert_int_equal(value_of(s.a), 5);
    assert_int_equal(value_of(s.b), 5);
    metal_release(buffer);
    metal_release(other_way.buffer);
    close_stage(&s);
    return other_way.begun;
}

static void test_two_threads_whose_signals_are_each_behind_the_others_do_not_pass_each_other(void **state)
{
    int n;
    (void)state;
    for (n = 1; they_meet_at(n); n++) {}
    assert_true(n > 1);
}

/* Of the signals below its own a submission stays behind one of another queue, also where its own queue has others between.
   late: that one was held, and comes to the device behind these; else one of these goes on at once, as it waits for it. */
static void check_a_signal_behind_its_own_and_another(bool late)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    if (late) (void)SUBMIT(s.q[1], WAITS(at(s.b, 1)), BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 5)));
    else (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 5)));
    if (late) (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 10)));
    else (void)SUBMIT(s.q[0], WAITS(at(s.a, 5)), BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 10)));
    if (late) (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 15)));
    if (late) assert_ok(gpusync_timeline_signal(s.b, 1));
    assert_int_equal(held_on(s.device, s.q[0]) + held_on(s.device, s.q[1]), 0);
    buffer = kept_buffer_of(s.q[0]);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 20)));
    assert_int_equal(held_on(s.device, s.q[0]), 1);
    finish(&s, 1);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_int_equal(status_of(buffer), COMMITTED);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(value_of(s.a), 20);
    metal_release(buffer);
    close_stage(&s);
}

static void test_a_signal_stays_behind_one_of_another_queue_below_its_own(void **state)
{
    (void)state;
    check_a_signal_behind_its_own_and_another(true);
    check_a_signal_behind_its_own_and_another(false);
}

/* The host makes the value of STRICT work, and passes a lower one of held work: else work on the device that waits for the
   higher one would wait for held work. The held work may come before or after. */
static void test_a_value_of_the_host_passes_a_lower_one_that_is_held(void **state)
{
    int late;
    (void)state;
    for (late = 0; late < 2; late++) {
        gpusync_ticket held = 0, ticket;
        void *waiting;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 3);
        if (!late) held = SUBMIT(s.q[1], WAITS(at(s.b, 1)), BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 1)));
        (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 2)), .flags = GPUSYNC_STRICT);
        waiting = kept_buffer_of(s.q[2]);
        ticket = SUBMIT(s.q[2], WAITS(at(s.a, 2)), BUFFERS(waiting));
        if (late) held = SUBMIT(s.q[1], WAITS(at(s.b, 1)), BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 1)));
        assert_int_equal(status_of(waiting), COMMITTED);
        finish(&s, 0);
        assert_int_equal(raw_of(s.a), 2);
        finish(&s, 2);
        assert_int_equal(status_of(waiting), COMPLETED); /* the device waits for no held work */
        assert_int_equal(value_of(s.a), 0);
        assert_result(gpusync_poll(s.q[2], ticket), GPUSYNC_NOT_READY); /* nor is the value reached */
        assert_ok(gpusync_timeline_signal(s.b, 1));
        finish(&s, 1);
        assert_ok(gpusync_wait(s.q[1], held, 0));
        assert_ok(gpusync_wait(s.q[2], ticket, 0));
        assert_int_equal(value_of(s.a), 2);
        metal_release(waiting);
        close_stage(&s);
    }
}

/* It does not pass one that the device is about to signal, for which other work may wait there. */
static void test_a_value_of_the_host_stays_behind_a_lower_one_on_the_device(void **state)
{
    void *lower, *strict, *waiting;
    gpusync_ticket tickets[3];
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    lower = kept_buffer_of(s.q[0]);
    strict = kept_buffer_of(s.q[0]);
    waiting = kept_buffer_of(s.q[1]);
    tickets[0] = SUBMIT(s.q[0], BUFFERS(lower), SIGNALS(at(s.a, 1)));
    tickets[1] = SUBMIT(s.q[0], BUFFERS(strict), SIGNALS(at(s.a, 2)), .flags = GPUSYNC_STRICT);
    tickets[2] = SUBMIT(s.q[1], WAITS(at(s.a, 1)), BUFFERS(waiting));
    assert_int_equal(status_of(waiting), COMMITTED);
    softmetal_finish(strict); /* the two overlap */
    assert_ok(gpusync_wait(s.q[0], tickets[1], 0));
    assert_int_equal(raw_of(s.a), 0);
    assert_int_equal(value_of(s.a), 0);
    finish(&s, 0);
    assert_ok(gpusync_wait(s.q[0], tickets[0], 0));
    assert_int_equal(raw_of(s.a), 2);
    assert_int_equal(value_of(s.a), 2);
    finish(&s, 1);
    assert_ok(gpusync_wait(s.q[1], tickets[2], 0));
    metal_release(lower);
    metal_release(strict);
    metal_release(waiting);
    close_stage(&s);
}

/* It passes one that the device has signalled, whose work waits for a value that is hidden: the work that hides it stands on
   the device behind a wait for the host's value. The host's work may end before the other or after. */
static void test_a_value_of_the_host_passes_a_lower_one_that_the_device_has_signalled(void **state)
{
    int late;
    (void)state;
    for (late = 0; late < 2; late++) {
        gpusync_ticket tickets[5];
        void *strict;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        strict = kept_buffer_of(s.q[0]);
        tickets[0] = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 2)));
        tickets[1] = SUBMIT(s.q[0], WAITS(at(s.a, 2)), BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 3)));
        tickets[2] = SUBMIT(s.q[0], BUFFERS(strict), SIGNALS(at(s.a, 4)), .flags = GPUSYNC_STRICT);
        tickets[3] = SUBMIT(s.q[1], WAITS(at(s.a, 4)), BUFFERS(open_on(&s, 1)));
        tickets[4] = SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 1)));
        assert_int_equal(stats_of(s.q[1]).held, 0);
        if (late && !metal4_run()) { /* a Metal 4 queue that waits keeps back what comes later */
            softmetal_finish(strict);
            assert_int_equal(raw_of(s.a), 0);
        }
        finish(&s, 0);
        assert_int_equal(raw_of(s.a), 4);
        assert_int_equal(value_of(s.a), 0);
        finish(&s, 1);
        assert_int_equal(value_of(s.a), 4);
        assert_ok(gpusync_wait(s.q[0], tickets[0], 0));
        assert_ok(gpusync_wait(s.q[0], tickets[1], 0));
        assert_ok(gpusync_wait(s.q[0], tickets[2], 0));
        assert_ok(gpusync_wait(s.q[1], tickets[3], 0));
        assert_ok(gpusync_wait(s.q[1], tickets[4], 0));
        metal_release(strict);
        close_stage(&s);
    }
}

/* Two open command buffers of one queue, committed in the other order than encoded; between them one of another queue. */
static void test_open_buffers_are_committed_in_whatever_order(void **state)
{
    int with_another;
    (void)state;
    NOT_ON_METAL4("a command buffer has no signals");
    for (with_another = 0; with_another < 2; with_another++) {
        void *buffers[2], *another = NULL;
        gpusync_ticket tickets[2];
        int i;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        for (i = 0; i < 2; i++) {
            buffers[i] = kept_buffer_of(s.q[0]);
            assert_ok(gpusync_encode_signal(s.q[0], buffers[i], at(s.a, i ? 3 : 1)));
        }
        if (with_another) {
            another = kept_buffer_of(s.q[1]);
            assert_ok(gpusync_encode_signal(s.q[1], another, at(s.a, 2)));
        }
        tickets[1] = commit_to(s.q[0], buffers[1]);
        if (with_another) (void)commit_to(s.q[1], another);
        tickets[0] = commit_to(s.q[0], buffers[0]);
        for (i = 0; i < 2; i++) assert_int_equal(status_of(buffers[i]), COMMITTED);
        finish(&s, 0);
        finish(&s, 1);
        for (i = 0; i < 2; i++) assert_ok(gpusync_wait(s.q[0], tickets[i], 0));
        assert_int_equal(value_of(s.a), 3);
        for (i = 0; i < 2; i++) metal_release(buffers[i]);
        if (with_another) metal_release(another);
        close_stage(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_submission_that_stays_lets_none_of_its_values_go),
        cmocka_unit_test(test_waits_for_what_is_reached_cost_nothing),
        cmocka_unit_test(test_of_several_waits_only_those_not_reached_are_encoded),
        cmocka_unit_test(test_a_wait_that_is_reached_while_held_is_not_encoded),
        cmocka_unit_test(test_every_shape_ends_and_makes_no_more_command_buffers_than_it_needs),
        cmocka_unit_test(test_a_submission_of_nothing_waits_for_nothing),
        cmocka_unit_test(test_several_command_buffers_run_in_their_order_and_end_as_one),
        cmocka_unit_test(test_command_buffers_may_come_from_anywhere),
        cmocka_unit_test(test_many_waits_and_signals_of_one_submission),
        cmocka_unit_test(test_many_signals_and_no_wait),
        cmocka_unit_test(test_host_and_device_hand_a_byte_on_by_turns),
        cmocka_unit_test(test_a_diamond_over_four_queues),
        cmocka_unit_test(test_one_producer_and_a_consumer_on_each_queue),
        cmocka_unit_test(test_what_a_producer_made_is_there_at_every_hop),
        cmocka_unit_test(test_two_timelines_cross),
        cmocka_unit_test(test_two_queues_take_turns_ten_thousand_times),
        cmocka_unit_test(test_waits_in_front_and_signals_behind_gate_work_that_overlaps_on_metal_4_alone),
        cmocka_unit_test(test_waits_at_the_head_and_open_signals_gate_work_that_overlaps),
        cmocka_unit_test(test_strict_submissions_gate_work_that_overlaps),
        cmocka_unit_test(test_a_wait_whose_signal_is_on_the_device_is_listed_when_the_work_is_over),
        cmocka_unit_test(test_a_pending_signal_that_is_held_holds_its_waiters_whatever_is_pending_above),
        cmocka_unit_test(test_work_is_held_for_a_value_that_the_event_passes_too_early),
        cmocka_unit_test(test_what_signals_more_goes_after_what_other_queues_have_on_the_device),
        cmocka_unit_test(test_what_signals_more_goes_after_what_a_destroyed_queue_has_on_the_device),
        cmocka_unit_test(test_work_that_goes_after_other_work_is_cancelled_and_let_go_by_a_failure),
        cmocka_unit_test(test_work_goes_after_other_work_and_not_after_what_that_value_waits_for),
        cmocka_unit_test(test_no_work_goes_after_work_that_was_refused),
        cmocka_unit_test(test_what_waits_for_the_smaller_value_need_not_go_after_it),
        cmocka_unit_test(test_work_goes_after_the_highest_of_the_lower_signals),
        cmocka_unit_test(test_of_several_waits_before_the_first_signal_the_highest_counts),
        cmocka_unit_test(test_a_signal_of_its_own_queue_hides_no_lower_one_of_another),
        cmocka_unit_test(test_work_does_not_stay_behind_the_lower_signals_of_its_own_queue),
        cmocka_unit_test(test_work_stays_behind_the_lower_signal_of_strict_work_of_its_own_queue),
        cmocka_unit_test(test_work_that_goes_after_other_work_keeps_no_other_work_from_going),
        cmocka_unit_test(test_a_pending_signal_that_goes_to_the_device_behind_a_later_one_is_waited_for),
        cmocka_unit_test(test_two_pending_signals_go_to_the_device_behind_a_later_one_and_the_second_is_waited_for),
        cmocka_unit_test(test_work_does_not_stay_behind_a_signal_that_has_just_ended),
        cmocka_unit_test(test_work_stays_behind_a_signal_that_is_just_going_to_the_device),
        cmocka_unit_test(test_two_queues_that_one_lets_go_signal_in_whatever_order_they_come),
        cmocka_unit_test(test_the_order_of_the_signals_of_two_queues_is_that_of_the_table),
        cmocka_unit_test(test_work_that_waits_for_the_lower_value_before_its_first_signal_need_not_stay_behind_it),
        cmocka_unit_test(test_work_stays_behind_a_lower_signal_that_the_device_gets_after_a_higher_one),
        cmocka_unit_test(test_ping_pong_on_one_timeline_holds_nothing),
        cmocka_unit_test(test_two_submissions_that_are_each_behind_the_other_both_end),
        cmocka_unit_test(test_two_threads_whose_signals_are_each_behind_the_others_do_not_pass_each_other),
        cmocka_unit_test(test_a_signal_stays_behind_one_of_another_queue_below_its_own),
        cmocka_unit_test(test_a_value_of_the_host_passes_a_lower_one_that_is_held),
        cmocka_unit_test(test_a_value_of_the_host_stays_behind_a_lower_one_on_the_device),
        cmocka_unit_test(test_a_value_of_the_host_passes_a_lower_one_that_the_device_has_signalled),
        cmocka_unit_test(test_open_buffers_are_committed_in_whatever_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
