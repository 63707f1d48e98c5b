/* test_submit_order.c - what of a submission goes to the device, in which order, and at what price

   Proved: bytes in real buffers tell that work sees what it waited for, whatever overlaps; waits for what is reached
   cost nothing, and no shape makes more command buffers than it needs; a value counts when every signal below it is
   kept, so that what signals more goes after what other queues have on the device.

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

/* Three threads issue at once. The first one's signal stays after all; that of the second has set out below it, and comes
   before the third one's, which is lower still: the GPU must not wait for that. */
static void test_a_signal_that_stays_does_not_hide_one_that_set_out_below_it(void **state)
{
    static const uint64_t values[] = {10, 7, 6};
    void *buffers[3];
    stage s;
    (void)state;
    NOT_ON_METAL4("a command buffer has no waits at its head, and no signals");
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    for (unsigned i = 0; i < 3; i++) {
        buffers[i] = open_on(&s, i);
        assert_ok(gpusync_encode_signal(s.q[i], buffers[i], at(s.a, values[i])));
    }
    probe_set_out(s.a, 10);
    probe_set_out(s.a, 7);
    probe_stay(s.a, 10);
    probe_set_out(s.a, 6);
    assert_false(probe_comes(s.a, 6));
    for (unsigned i = 0; i < 3; i++) {
        probe_stay(s.a, values[i]);
        assert_ok(either_discard(s.q[i], buffers[i]));
    }
    close_stage(&s);
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

/* 1 lets two queues go: one signals 2, the other 3. The three come in some order, and neither of the two has to wait for
   the other: 3 may be on the device before 2 is pending. */
static void check_two_queues_that_one_lets_go(const int *order)
{
    gpusync_ticket tickets[3];
    bool more = true;
    int i;
    stage s;
    open_stage(&s, SOFTMETAL_MANUAL, 3);
    for (i = 0; i < 3; i++) {
        int k = order[i];
        void *buffer = open_on(&s, (unsigned)k);
        tickets[k] = k == 0 ? SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)))
                            : SUBMIT(s.q[k], WAITS(at(s.a, 1)), BUFFERS(buffer), SIGNALS(at(s.a, k == 1 ? 2 : 3)));
    }
    while (more)
        for (more = false, i = 0; i < 3; i++) {
            void *buffer = softmetal_first_in_line(s.metal[i]);
            if (!buffer || softmetal_what_is_due(buffer) != SOFTMETAL_COMPLETE_DUE) continue;
            softmetal_finish(buffer);
            more = true;
        }
    for (i = 0; i < 3; i++) assert_ok(gpusync_wait(s.q[i], tickets[i], 0));
    assert_int_equal(value_of(s.a), 3);
    close_stage(&s);
}

static void end_lower_signal(void *queue) { finish_queue((gpusync_queue *)queue); }
static void fail_the_order(void *timeline) { (void)fail_with_code_77(timeline); }

/* Work lists itself behind the lower signal of another queue. Meanwhile that signal ends, also where a pending one below
   it keeps the value back; or the timeline fails. The work goes at once. */
static void test_work_does_not_stay_behind_a_signal_that_is_over_when_it_lists_itself(void **state)
{
    enum { ENDS, ENDS_AND_IS_KEPT_BACK, FAILS, WAYS };
    int way;
    (void)state;
    for (way = 0; way < WAYS; way++) {
        void *higher;
        gpusync_ticket ticket;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 3);
        higher = kept_buffer_of(s.q[1]);
        if (way == ENDS_AND_IS_KEPT_BACK)
            (void)SUBMIT(s.q[2], NO_WORK(s.q[2]), WAITS(at(s.b, 1)), SIGNALS(at(s.a, 1)));
        (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), SIGNALS(at(s.a, 2)));
        if (way == FAILS) probe_at(PROBE_DEPENDENCY_LISTS, s.a, 1, fail_the_order, s.a);
        else probe_at(PROBE_DEPENDENCY_LISTS, s.a, 1, end_lower_signal, s.q[0]);
        ticket = SUBMIT(s.q[1], BUFFERS(higher), SIGNALS(at(s.a, 3)));
        assert_true(probe_has_acted());
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
        cmocka_unit_test(test_a_signal_that_stays_does_not_hide_one_that_set_out_below_it),
        cmocka_unit_test(test_work_that_goes_after_other_work_keeps_no_other_work_from_going),
        cmocka_unit_test(test_a_pending_signal_that_goes_to_the_device_behind_a_later_one_is_waited_for),
        cmocka_unit_test(test_work_does_not_stay_behind_a_signal_that_is_over_when_it_lists_itself),
        cmocka_unit_test(test_work_stays_behind_a_signal_that_is_just_going_to_the_device),
        cmocka_unit_test(test_two_queues_that_one_lets_go_signal_in_whatever_order_they_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
