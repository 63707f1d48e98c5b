/* test_report.c - why nothing moves, in words: S9

   The first part builds hangs, one a test, as programs have them, and reads the report as the one who debugs them does:
   the line of the object to look at is there, with its reason, and no other line accuses anything. All lines of work,
   waits and callbacks are compared, as a set; of the lines of the device, queues, timelines and warm-ups what the hang
   is about. GPUSYNC_TEXTS=1 prints each text. The second part is about the text itself. */
#define GPUSYNC_IMPLEMENTATION
#include "still.h"

#define SIZE 65536u

static char text[SIZE];

static const char *read_report(gpusync_device *device)
{
    size_t length = gpusync_device_report(device, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_true(length > 0 && text[length - 1] == '\n');
    return text;
}

/* -- the reader ---------------------------------------------------------------------------------------------------- */

#define MOST_LINES 256u

static char copy_of[SIZE];
static char *line[MOST_LINES];
static unsigned line_count;

/* Cuts the text into lines. */
static void split(const char *whole)
{
    char *at = copy_of;
    snprintf(copy_of, sizeof copy_of, "%s", whole);
    for (line_count = 0; *at; line_count++) {
        assert_true(line_count < MOST_LINES - 1);
        line[line_count] = at;
        at += strcspn(at, "\n");
        assert_int_equal(*at, '\n'); /* each line ends */
        *at++ = '\0';
    }
    line[line_count] = NULL;
}

static bool begins(const char *at, const char *with)
{
    return strncmp(at, with, strlen(with)) == 0;
}

/* Of work, a wait, a callback or a call for an item that runs. Others are of objects. */
static bool is_detail(const char *at)
{
    return begins(at, "    ") || begins(at, "  a ");
}

/* What a line of an object says when something is wrong with it. */
static bool accuses(const char *at)
{
    static const char *const words[] = {"event shows", "has failed", "being destroyed",
                                        "sticks",      ", lost",     "no room"};
    for (size_t i = 0; i < LENGTH(words); i++)
        if (strstr(at, words[i]))
            return true;
    return false;
}

/* Whether the line is as the facts say, which stand in it in their order, with a * for the words between them. */
static bool fits(const char *at, const char *facts)
{
    const char *star = strchr(facts, '*');
    size_t length = star ? (size_t)(star - facts) : strlen(facts);
    if (strncmp(at, facts, length) != 0)
        return false;
    if (!star)
        return at[length] == '\0';
    for (at += length; *at; at++)
        if (fits(at, star + 1))
            return true;
    return fits(at, star + 1);
}

/* The one of these that the line fits: whole, or in a part of it. NULL: none. */
static const char *find(const char *at, const char *const *these, bool whole)
{
    for (; *these; these++)
        if (whole ? fits(at, *these) : strstr(at, *these) != NULL)
            return *these;
    return NULL;
}

#define LINES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NONE ((const char *const[]){NULL})

/* details: lines that fit these, and no others, in any order. objects: each is part of the line of some object, and no
   other object's line accuses it. */
static void assert_text(const char *name, const char *const *details, const char *const *objects, const char *file,
                        int at)
{
    bool good = true;
    unsigned found = 0, expected = 0;
    const char *const *o;
    if (getenv("GPUSYNC_TEXTS"))
        printf("-- %s\n%s\n", name, text);
    split(text);
    for (unsigned i = 0; i < line_count; i++) {
        if (is_detail(line[i]) ? !find(line[i], details, true) : accuses(line[i]) && !find(line[i], objects, false)) {
            print_error("not expected: %s\n", line[i]);
            good = false;
        }
        found += is_detail(line[i]);
    }
    for (o = details; *o; o++, expected++) {
        bool there = false;
        for (unsigned i = 0; i < line_count; i++)
            there |= fits(line[i], *o);
        if (!there && (good = false, true))
            print_error("missing: %s\n", *o);
    }
    for (o = objects; *o; o++)
        if (!strstr(text, *o) && (good = false, true))
            print_error("missing in an object's line: %s\n", *o);
    if (good && found == expected)
        return;
    print_error("the report is\n%s", text);
    _fail(file, at);
}

#define SENT "with Metal (committed) for 5.0 ms"
#define WAITS_FOR "; waits on the host for value "
#define HELD_FOR "held for 5.0 ms" WAITS_FOR
#define OF_FIRST " of queue 'first' is to signal"
#define NOTHING ", which no committed work is to signal"
#define NO_HANDLER "; gpusync's handler has not returned, or not begun"

/* Everything has stood still for five milliseconds. */
#define assert_hang(s, name, details, objects) \
    (pass(MS(5)), read_report((s)->device), assert_text(name, details, objects, __FILE__, __LINE__))

/* -- what the hangs have in common --------------------------------------------------------------------------------- */

/* Ends all that hangs: held work; waits for values, work that Metal has. Waits with a job end then. */
static void end_hang(stage *s)
{
    for (unsigned i = 0; i < STAGE_MOST; i++) {
        if (s->q[i])
            assert_ok(gpusync_queue_cancel_held(s->q[i], GPUSYNC_EVERYTHING));
        if (s->t[i])
            gpusync_timeline_fail(s->t[i], NULL);
    }
    finish_all(s);
}

static int tear_down(void **state)
{
    end_hang(stage_of(state));
    return stage_tear_down(state);
}

#define HANG(test) HANG_WITH(test, .queues = 2, .timelines = 2, .device = {.hooks = &patient_hooks})
#define HANG_WITH(test, ...) \
    KIT_TEST(test, {#test, test, stage_set_up, tear_down, (void *)&(stage_desc){__VA_ARGS__}})

/* A timeline of an event that the test's "other code" has. Takes the place of t[1]. */
static void *import_event(stage *s)
{
    void *event = metal_shared_event_new(s->metal_device);
    const gpusync_timeline_desc desc = {.shared_event = event, .label = "imported"};
    assert_ok(gpusync_timeline_destroy(s->t[1]));
    assert_ok(gpusync_timeline_create(s->device, &desc, &s->t[1]));
    return event;
}

/* Takes the place of q[1]. */
static void replace_by(stage *s, bool metal4, const gpusync_queue_desc *desc)
{
    assert_ok(gpusync_queue_destroy(s->q[1]));
    metal_release(s->metal[1]);
    s->q[1] = queue_of_kind(metal4, s->device, desc);
    s->metal[1] = metal_retain(gpusync_queue_metal(s->q[1]));
}

static void replace_queue(stage *s, const gpusync_queue_desc *desc)
{
    replace_by(s, false, desc);
}

/* A callback that is stuck: it comes to the gate as it begins, and again to return. */
static gate door;

static void stay(void *user, gpusync_result result, const gpusync_error *error)
{
    gate_wait(&door);
    gate_wait(&door);
}

/* -- hangs --------------------------------------------------------------------------------------------------------- */

/* The classic one: the renderer encodes the fence, and forgets to commit; the compute queue waits for it. The line of
   the open buffer has the value. */
HANG(test_S9_a_fence_that_was_not_submitted)
{
    encode_signal(s->q[0], named_buffer(s->q[0], "fence"), at(s->t[0], 3));
    SUBMIT(s->q[1], WAITS(at(s->t[0], 3)), BUFFERS(named_buffer(s->q[1], "waits")));
    assert_hang(
        s, "a fence that was not submitted",
        LINES("    open command buffer 1 'fence': not committed for 5.0 ms; is to signal value 3 of timeline 'a'",
              "    ticket 1 'waits': " HELD_FOR "3 of timeline 'a'" NOTHING),
        NONE);
}

/* A frame stands behind another one that is held: the frame itself waits for nothing. */
HANG(test_S9_held_work_behind_held_work)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "culprit")));
    pass(MS(2));
    commit(s->q[0], named_buffer(s->q[0], "innocent"));
    commit(s->q[0], named_buffer(s->q[0], "another"));
    assert_hang(
        s, "held work behind held work",
        LINES("    ticket 1 'culprit': held for 7.0 ms" WAITS_FOR "1 of timeline 'a'" NOTHING,
              "    ticket 2 'innocent': held for 5.0 ms; behind ticket 1",
              "    ticket 3 'another': held for 5.0 ms; behind ticket 1"),
        NONE);
}

/* Physics waits for the renderer's value, the renderer for the physics' ticket. A reader follows the ring. */
HANG(test_S9_two_queues_that_wait_for_each_other)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "physics")));
    SUBMIT(s->q[1], WAITS(ticket_at(s->q[0], 1)), BUFFERS(named_buffer(s->q[1], "render")), SIGNALS(at(s->t[0], 1)));
    assert_hang(s, "two queues that wait for each other",
                LINES("    ticket 1 'physics': " HELD_FOR "1 of timeline 'a', which ticket 1 of queue 'second' is to "
                      "signal",
                      "    ticket 1 'render': held for 5.0 ms; waits on the host for ticket 1 of queue 'first'; is to "
                      "signal value 1 of timeline 'a'"),
                NONE);
}

/* One thread submits the wait first and the signal second, to one queue; another one both at once, in one work. */
HANG(test_S9_a_signal_behind_its_own_wait)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "waits")));
    SUBMIT(s->q[0], BUFFERS(named_buffer(s->q[0], "signals")), SIGNALS(at(s->t[0], 1)));
    SUBMIT(s->q[1], WAITS(at(s->t[1], 5)), BUFFERS(named_buffer(s->q[1], "both")), SIGNALS(at(s->t[1], 7)));
    assert_hang(s, "a signal behind its own wait",
                LINES("    ticket 1 'waits': " HELD_FOR "1 of timeline 'a', which ticket 2" OF_FIRST,
                      "    ticket 2 'signals': held for 5.0 ms; behind ticket 1; is to signal value 1 of timeline 'a'",
                      "    ticket 1 'both': " HELD_FOR "5 of timeline 'b'" NOTHING "; is to signal value 7*'b'"),
                NONE);
}

/* A thread waits for handlers, too, and Metal does not call one: the ticket has ended, only its handler is missing.
   Metal changes no status of later work while a handler of the program runs. */
HANG(test_S9_a_handler_that_has_not_come)
{
    job j = {.options = {.handlers = true}};
    void *buffer = named_buffer(s->q[0], "lost");
    gpusync_ticket ticket = commit(s->q[0], buffer);
    commit(s->q[0], named_buffer(s->q[0], "behind"));
    assert_null(strstr(read_report(s->device), "may wait for the handlers"));
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    job_wait(&j, s->q[0], ticket, SECONDS(60));
    await_parked(1);
    assert_hang(s, "a handler that has not come",
                LINES("    ticket 1 'lost': ended for 5.0 ms" NO_HANDLER "* still run",
                      "    ticket 2 'behind': * for 5.0 ms; its status may wait for the handlers of ticket 1",
                      "    a wait for*handlers*ticket 1 of queue 'first'; begun 5.0 ms ago, with 59995.0 ms left"),
                LINES("1 of 2 tickets are done"));
    end_hang(s);
    assert_ok(job_end(&j));
}

/* ... as it is with UNORDERED work, whose number is no ticket. */
HANG(test_S9_R30_work_behind_the_handler_of_unordered_work)
{
    void *buffer = named_buffer(s->q[0], "lost");
    SUBMIT(s->q[0], BUFFERS(buffer), .flags = GPUSYNC_SUBMIT_UNORDERED);
    commit(s->q[0], named_buffer(s->q[0], "behind"));
    softmetal_complete(buffer);
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_NOT_READY);
    assert_hang(s, "work behind the handler of UNORDERED work",
                LINES("    UNORDERED work 1 'lost': ended for 5.0 ms" NO_HANDLER "*",
                      "    ticket 1 'behind': * for 5.0 ms; its status may wait for the handlers of UNORDERED work 1"),
                NONE);
}

/* The handler is lost, and nobody has looked since: Metal says Completed, gpusync does not know yet. */
HANG(test_S9_an_end_that_nobody_has_seen)
{
    void *buffer = named_buffer(s->q[0], "ended");
    commit(s->q[0], buffer);
    softmetal_complete(buffer);
    commit(s->q[1], named_buffer(s->q[1], "runs"));
    softmetal_schedule(softmetal_last_buffer(s->metal[1]));
    assert_hang(s, "an end that nobody has seen",
                LINES("    ticket 1 'ended': with Metal (over) for 5.0 ms" NO_HANDLER "*",
                      "    ticket 1 'runs': with Metal (scheduled) for 5.0 ms"),
                NONE);
}

/* A callback writes a file for 5 ms; three others are due. */
HANG(test_S9_a_slow_callback)
{
    note notes[3] = {{0}};
    gate_init(&door, 2);
    commit_new(s->q[0]);
    finish_next(s->q[0]);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], commit_new(s->q[0])), stay, NULL));
    finish_next(s->q[0]);
    gate_wait(&door);
    for (unsigned i = 0; i < 3; i++)
        on_done(ticket_at(s->q[1], commit_new(s->q[1])), &notes[i]);
    while (finish_next(s->q[1])) {}
    assert_hang(s, "a slow callback", LINES("  a callback*of ticket 2 of queue 'first' has been running for 5.0 ms"),
                LINES("device: 3 callbacks are due, to be run on the dispatch queue\n",
                      "'first': 2 of 2 tickets are done, callbacks, releases or items not over: 1\n",
                      "'second': 3 of 3 tickets are done, callbacks, releases or items not over: 3\n"));
    gate_wait(&door);
    assert_in_order(notes, 3);
    end_hang(s);
    gate_destroy(&door);
}

/* Buffers leak: a thread waits for room, and two open ones have it. On gpusync's Metal queue and the program's. */
HANG(test_S9_a_queue_without_room)
{
    for (unsigned imported = 0; imported < 2; imported++) {
        job j = {0}, next = {0};
        gpusync_queue_desc desc = {.label = "small", .max_command_buffer_count = 2};
        desc.metal_queue = imported ? metal_queue_new(s->metal_device, 3) : NULL;
        replace_queue(s, &desc);
        metal_release(desc.metal_queue);
        void *first = named_buffer(s->q[1], "leaked");
        pass(MS(3));
        void *second = named_buffer(s->q[1], NULL);
        job_buffer(&j, s->q[1], SECONDS(60));
        await_parked(1);
        job_buffer(&next, s->q[1], GPUSYNC_FOREVER);
        await_parked(2);
        assert_hang(s, imported ? "the program's queue without room" : "a queue without room",
                    LINES("    open command buffer 1 'leaked': not committed for 8.0 ms",
                          "    open command buffer 2: not committed for 5.0 ms",
                          "    a wait for room on queue 'small'; begun 5.0 ms ago, with 59995.0 ms left",
                          "    a wait for room on queue 'small'; begun 5.0 ms ago, without a limit"),
                    LINES("queue 'small': 0 of 0 tickets are done, no room: its limit of 2 is reached"));
        assert_ok(gpusync_command_buffer_discard(s->q[1], first));
        assert_ok(job_end(&j));
        assert_ok(gpusync_command_buffer_discard(s->q[1], second));
        assert_ok(job_end(&next));
        assert_ok(gpusync_command_buffer_discard(s->q[1], j.buffer));
        assert_ok(gpusync_command_buffer_discard(s->q[1], next.buffer));
    }
}

/* The video decoder, which is other code, never signals frame 7: work on the GPU and a thread wait for it. */
HANG(test_S9_a_value_of_other_code)
{
    void *event = import_event(s);
    job j = {0};
    SUBMIT(s->q[0], WAITS(at(s->t[1], 7)), BUFFERS(named_buffer(s->q[0], "shows")), .flags = GPUSYNC_SUBMIT_ON_GPU);
    SUBMIT(s->q[1], WAITS(at(s->t[1], 8)), BUFFERS(named_buffer(s->q[1], "host")));
    job_value(&j, s->t[1], 7, GPUSYNC_FOREVER);
    await_parked(1);
    assert_hang(s, "a value of other code",
                LINES("    ticket 1 'shows': " SENT "; waits for value 7 of timeline 'imported', which other code is "
                      "to signal",
                      "    ticket 1 'host': " HELD_FOR "8 of timeline 'imported', which other code is to signal",
                      "    a wait for value 7 of timeline 'imported', which other code is to signal; begun 5.0 ms ago, "
                      "without a limit"),
                LINES("timeline 'imported': value 0"));
    metal_event_signal(event, 8);
    finish_all(s);
    end_parks();
    assert_ok(job_end(&j));
    finish_all(s);
    metal_release(event);
}

/* The decoder has signalled 7, and Metal told nobody. The event's own number gives it away. */
HANG(test_S9_a_listener_that_does_not_hear)
{
    void *event = import_event(s);
    set_quirks(.deaf_to_everything = true);
    SUBMIT(s->q[1], WAITS(at(s->t[1], 7)), BUFFERS(named_buffer(s->q[1], "host")));
    metal_event_signal(event, 7);
    assert_hang(s, "a listener that does not hear",
                LINES("    ticket 1 'host': " HELD_FOR "7 of timeline 'imported', which other code is to signal"),
                LINES("timeline 'imported': value 0, its event shows 7, but Metal has not told gpusync so"));
    set_quirks(.deaf_to_everything = false);
    assert_int_equal(value_of(s->t[1]), 7);
    finish_all(s);
    metal_release(event);
}

/* The decoder signals a timeline that was made without signalled_by_others: gpusync asks Metal for no value of it. */
HANG(test_S9_other_code_signals_an_own_timeline)
{
    uint64_t base;
    SUBMIT(s->q[1], WAITS(at(s->t[1], 7)), BUFFERS(named_buffer(s->q[1], "waits")));
    void *event = gpusync_timeline_metal(s->t[1], &base);
    metal_event_signal(event, 7 + base);
    assert_hang(s, "a signal of other code on an own timeline",
                LINES("    ticket 1 'waits': " HELD_FOR "7 of timeline 'b'" NOTHING),
                LINES("timeline 'b': value 0, its event shows 7, signalled without gpusync: see signalled_by_others"));
    signal_value(s->t[1], 8);
    finish_all(s);
}

/* ... while a signal of sent work holds up what the event shows, Metal has told all. */
HANG(test_S9_a_value_of_other_code_above_an_own_signal)
{
    void *event = import_event(s), *buffer = named_buffer(s->q[0], "runs");
    encode_signal(s->q[0], buffer, at(s->t[1], 20));
    commit(s->q[0], buffer);
    metal_event_signal(event, 30);
    assert_hang(s, "a value of other code above an own signal",
                LINES("    ticket 1 'runs': " SENT "; is to signal value 20 of timeline 'imported'"),
                LINES("timeline 'imported': value 0, its event shows 30, which counts when the work that signals value "
                      "20 has ended"));
    finish_all(s);
    metal_release(event);
}

/* [buffer commit] in place of gpusync_commit: its signal counts for nobody. */
HANG(test_S9_a_buffer_that_the_program_committed_itself)
{
    void *buffer = named_buffer(s->q[0], "mine");
    encode_signal(s->q[0], buffer, at(s->t[0], 1));
    metal_commit(buffer);
    SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[1], "waits")));
    assert_hang(
        s, "a buffer that the program committed itself",
        LINES("    open command buffer 1 'mine': *committed*not by gpusync_commit*5.0 ms*is to signal value 1 of "
              "timeline 'a'",
              "    ticket 1 'waits': " HELD_FOR "1 of timeline 'a'" NOTHING),
        NONE);
}

/* The same of a buffer that gpusync holds: Metal would refuse its second commit. */
HANG(test_S9_a_held_buffer_that_other_code_committed)
{
    void *buffer = named_buffer(s->q[0], "twice");
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(buffer));
    metal_commit(buffer);
    assert_hang(s, "a held buffer that other code committed",
                LINES("    ticket 1 'twice': held, though other code has committed it, for 5.0 ms" WAITS_FOR "1 of "
                      "timeline 'a'" NOTHING),
                NONE);
}

/* Enqueued behind its signal: its commit is refused, and it has a place in Metal's queue all the same. The work behind
   it passed its value; the work before it has ended, and another buffer has the memory. (ASan) */
HANG(test_S9_an_enqueued_buffer)
{
    void *first = named_buffer(s->q[0], "first"), *refused = named_buffer(s->q[0], "refused");
    void *behind = named_buffer(s->q[0], "behind");
    encode_signal(s->q[0], first, at(s->t[0], 1));
    encode_signal(s->q[0], refused, at(s->t[0], 2));
    encode_signal(s->q[0], behind, at(s->t[0], 3));
    commit(s->q[0], first);
    metal_enqueue(refused);
    assert_result(gpusync_commit(s->q[0], refused, NULL), GPUSYNC_ERROR_ENQUEUED);
    commit(s->q[0], behind);
    softmetal_finish(first);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    encode_signal(s->q[0], named_buffer(s->q[0], "again"), at(s->t[1], 1));
    assert_hang(s, "an enqueued buffer",
                LINES("    open command buffer 2 'refused': enqueued, which holds up what was committed behind it, for "
                      "5.0 ms; can no longer signal value 2 of timeline 'a'",
                      "    open command buffer 4 'again': not committed for 5.0 ms; is to signal value 1 of timeline "
                      "'b'",
                      "    ticket 2 'behind': " SENT "; is to signal value 3 of timeline 'a'"),
                NONE);
    metal_commit(refused);
}

/* The loader failed its timeline with a reason, and the program overlooked it: the reason is what to read, on this line
   though it ends with a newline. What the event shows then is the mark of the failure, and no value. */
HANG(test_S9_a_timeline_that_has_failed)
{
    gpusync_error why;
    memset(&why, 0, sizeof why);
    snprintf(why.message, sizeof why.message, "the file is gone\n");
    signal_value(s->t[0], 2);
    assert_ok(gpusync_timeline_fail(s->t[0], &why));
    assert_hang(s, "a timeline that has failed", NONE,
                LINES("  timeline 'a': value 2, has failed: the file is gone"));
    assert_int_equal(line_count, 5); /* the device, two queues, two timelines */
    assert_null(strstr(text, "its event shows"));
}

/* Shutdown: the main thread destroys the queue and waits for a callback, which waits for the main thread. */
HANG(test_S9_a_destroy_that_waits_for_a_callback)
{
    job j = {0};
    gate_init(&door, 2);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], commit_new(s->q[0])), stay, NULL));
    finish_next(s->q[0]);
    gate_wait(&door);
    job_destroy(&j, s->q[0]);
    s->q[0] = NULL;
    await_parked(1);
    assert_hang(s, "a destroy that waits for a callback",
                LINES("  a callback*of ticket 1 of queue 'first' has been running for 5.0 ms",
                      "    a wait for*callbacks of queue 'first'; begun 5.0 ms ago, without a limit"),
                LINES("queue 'first', being destroyed: 1 of 1 tickets are done"));
    gate_wait(&door);
    assert_ok(job_end(&j));
    gate_destroy(&door);
}

/* Shutdown again: the GPU hangs, and a destroy waits for it. */
HANG(test_S9_a_destroy_that_waits_for_the_GPU)
{
    job j = {0};
    commit(s->q[0], named_buffer(s->q[0], "hangs"));
    job_destroy(&j, s->q[0]);
    s->q[0] = NULL;
    await_parked(1);
    assert_hang(s, "a destroy that waits for the GPU",
                LINES("    ticket 1 'hangs': " SENT,
                      "    a wait for everything up to ticket 1 of queue 'first'; begun 5.0 ms ago, without a limit"),
                LINES("queue 'first', being destroyed: 0 of 1 tickets are done"));
    end_hang(s);
    assert_ok(job_end(&j));
}

/* Threads wait for several points, for a queue's everything, and for the device: each stands where what it waits for
   stands. ALL sleeps for its first open point. */
HANG(test_S9_waits_for_several_points)
{
    job any = {0}, all = {0}, everything = {0}, device = {0};
    gpusync_point points[3];
    commit(s->q[0], named_buffer(s->q[0], "one"));
    commit(s->q[1], named_buffer(s->q[1], "two"));
    points[0] = ticket_at(s->q[0], 1);
    points[1] = at(s->t[0], 5);
    points[2] = ticket_at(s->q[1], 1);
    job_many(&any, points, 3, GPUSYNC_WAIT_ANY, SECONDS(1));
    await_parked(1);
    job_many(&all, points, 3, GPUSYNC_WAIT_ALL, SECONDS(2));
    await_parked(2);
    job_wait(&everything, s->q[0], GPUSYNC_EVERYTHING, SECONDS(3));
    await_parked(3);
    job_device(&device, s->device, SECONDS(4));
    await_parked(4);
    assert_hang(
        s, "waits for several points",
        LINES("    ticket 1 'one': " SENT, "    ticket 1 'two': " SENT,
              "    a wait for ticket 1 of queue 'first'; one of 3 points; begun 5.0 ms ago, with 995.0 ms left",
              "    a wait for value 5 of timeline 'a'" NOTHING "; one of 3 points; begun 5.0 ms ago, with 995.0 ms "
              "left",
              "    a wait for ticket 1 of queue 'second'; one of 3 points; begun 5.0 ms ago, with 995.0 ms left",
              "    a wait for ticket 1 of queue 'first'; one of 3 points; begun 5.0 ms ago, with 1995.0 ms left",
              "    a wait for everything up to ticket 1 of queue 'first'; begun 5.0 ms ago, with 2995.0 ms left",
              "    a wait for everything up to ticket 1 of queue 'first'; one of 2 points; begun 5.0 ms ago, with "
              "3995.0 ms left"),
        NONE);
    signal_value(s->t[0], 5);
    assert_ok(job_end(&any));
    assert_int_equal(any.which, 1);
    finish_all(s);
    assert_ok(job_end(&all));
    assert_ok(job_end(&everything));
    assert_ok(job_end(&device));
}

/* Strict work waits until the value is reached; ON_GPU the GPU waits, and Metal has the work. */
HANG(test_S9_work_for_which_the_host_or_the_GPU_waits)
{
    SUBMIT(s->q[0], BUFFERS(named_buffer(s->q[0], "runs")), SIGNALS(at(s->t[0], 1)), .flags = GPUSYNC_SUBMIT_ON_GPU);
    SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[1], "waits")), .flags = GPUSYNC_SUBMIT_ON_GPU);
    SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[1], "host")));
    assert_hang(s, "work for which the host or the GPU waits",
                LINES("    ticket 1 'runs': " SENT "; is to signal value 1 of timeline 'a'",
                      "    ticket 1 'waits': " SENT "; waits for value 1 of timeline 'a', which ticket 1" OF_FIRST,
                      "    ticket 2 'host': " HELD_FOR "1 of timeline 'a', which ticket 1" OF_FIRST),
                NONE);
}

/* The order of values: 1 runs. The GPU signals 2 behind it; 3 is of another queue, and held; and so is 4, behind 3. */
HANG_WITH(test_S9_the_order_of_values, .queues = 3, .timelines = 1, .device = {.hooks = &patient_hooks})
{
    static const char *const labels[] = {"one", "two", "three", "four"};
    for (unsigned i = 0; i < 4; i++) {
        gpusync_queue *queue = s->q[i ? i - 1 : 0];
        SUBMIT(queue, BUFFERS(named_buffer(queue, labels[i])), SIGNALS(at(s->t[0], i + 1)),
               .flags = GPUSYNC_SUBMIT_ON_GPU);
    }
    assert_hang(s, "the order of values",
                LINES("    ticket 1 'one': " SENT "; is to signal value 1 of timeline 'a'",
                      "    ticket 2 'two': " SENT "; is to signal value 2 of timeline 'a' behind value 1, which ticket "
                      "1" OF_FIRST,
                      "    ticket 1 'three': held for 5.0 ms; is to signal value 3 of timeline 'a' behind value 2, "
                      "which ticket 2" OF_FIRST,
                      "    ticket 1 'four': held for 5.0 ms; is to signal value 4 of timeline 'a' behind value 3, "
                      "which ticket 1 of queue 'second' is to signal"),
                NONE);
}

/* UNORDERED work has numbers of its own. It is held alone, and nothing stands behind it. */
HANG(test_S9_R30_unordered_work)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "streams")),
           .flags = GPUSYNC_SUBMIT_UNORDERED);
    commit(s->q[0], named_buffer(s->q[0], "next"));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 2)), BUFFERS(named_buffer(s->q[0], "ordered")));
    SUBMIT(s->q[0], WAITS(at(s->t[1], 1)), SIGNALS(at(s->t[0], 1)), .label = "source",
           .flags = GPUSYNC_SUBMIT_UNORDERED);
    assert_hang(s, "unordered work",
                LINES("    UNORDERED work 1 'streams': " HELD_FOR "1 of timeline 'a', which UNORDERED work 2" OF_FIRST,
                      "    UNORDERED work 2 'source': " HELD_FOR "1 of timeline 'b'" NOTHING "; is to signal value 1 "
                      "of timeline 'a'",
                      "    ticket 1 'next': " SENT,
                      "    ticket 2 'ordered': " HELD_FOR "2 of timeline 'a'" NOTHING),
                LINES("queue 'first': 0 of 2 tickets are done, 0 of 2 UNORDERED\n"));
}

/* Work that Metal has ended, and work that never ran, which waits for no value any more: both stand behind ticket 1. */
HANG(test_S9_work_that_ended_out_of_turn)
{
    commit(s->q[0], named_buffer(s->q[0], "slow"));
    void *second = named_buffer(s->q[0], "quick");
    commit(s->q[0], second);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "cancelled")));
    pass(MS(3));
    softmetal_finish(second);
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    assert_hang(s, "work that ended out of turn",
                LINES("    ticket 1 'slow': with Metal (committed) for 8.0 ms",
                      "    ticket 2 'quick': over for 5.0 ms; behind ticket 1",
                      "    ticket 3 'cancelled': over for*; behind ticket 1"),
                NONE);
}

/* MPSGraph's buffer runs; a marker stands behind it, and a thread waits for the marker. */
HANG(test_S9_a_marker)
{
    void *graph = foreign_buffer(s->q[0]);
    gpusync_ticket ticket = 0;
    job j = {0};
    metal_set_label(graph, "graph");
    metal_commit(graph);
    assert_ok(gpusync_commit_marker(s->q[0], graph, &ticket));
    job_wait(&j, s->q[0], ticket, SECONDS(1));
    await_parked(1);
    assert_hang(s, "a marker",
                LINES("    ticket 1 'graph', a marker: " SENT,
                      "    a wait for ticket 1 of queue 'first'; begun 5.0 ms ago, with 995.0 ms left"),
                NONE);
    end_hang(s);
    assert_ok(job_end(&j));
    metal_release(graph);
}

/* R30: a marker is over, and ends in its turn, behind held work. */
HANG(test_S9_a_marker_behind_held_work)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "held")));
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    pass(MS(3));
    finish_all(s);
    assert_hang(s, "a marker behind held work",
                LINES("    ticket 1 'held': held for 8.0 ms" WAITS_FOR "1 of timeline 'a'" NOTHING,
                      "    ticket 2, a marker: over for 5.0 ms; behind ticket 1"),
                NONE);
}

/* The driver has thrown the program out: the first line says so. Work of the other queue has not ended. */
HANG(test_S9_a_lost_device)
{
    commit(s->q[1], named_buffer(s->q[1], "never ends"));
    commit_failing(s->q[0], SOFTMETAL_SUBMISSIONS_IGNORED);
    finish_next(s->q[0]);
    assert_true(gpusync_device_is_lost(s->device));
    assert_hang(s, "a lost device", LINES("    ticket 1 'never ends': " SENT),
                LINES(", lost for 5.0 ms: access revoked"));
}

/* Metal still has abandoned work. No handler holds it up, and its age counts from when it was sent. */
HANG(test_S9_abandoned_work)
{
    commit(s->q[1], named_buffer(s->q[1], "hangs"));
    SUBMIT(s->q[1], BUFFERS(named_buffer(s->q[1], "hangs, too")), .flags = GPUSYNC_SUBMIT_UNORDERED);
    pass(MS(5));
    assert_ok(gpusync_queue_abandon(s->q[1]));
    s->q[1] = NULL;
    assert_non_null(strstr(read_report(s->device), "    ticket 1 'hangs': given up, with Metal for 5.0 ms\n"));
    assert_non_null(strstr(text, "    UNORDERED work 1 'hangs, too': given up, with Metal for 5.0 ms\n"));
}

/* A failure sticks, and every commit is refused: the queue's line says so. */
HANG(test_S9_a_failure_that_sticks)
{
    const gpusync_queue_desc desc = {.label = "sticky", .sticky_failure = true};
    replace_queue(s, &desc);
    void *buffer = named_buffer(s->q[1], "refused");
    commit_failing(s->q[1], SOFTMETAL_PAGE_FAULT);
    finish_next(s->q[1]);
    assert_result(gpusync_commit(s->q[1], buffer, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_hang(s, "a failure that sticks", LINES("    open command buffer 1 'refused': not committed for 5.0 ms"),
                LINES("queue 'sticky': 1 of 1 tickets are done, refuses new work, as the failure of ticket 1 sticks"));
}

/* Metal 4: of a recording no status is known, but that Metal has it; what it waits for stands there as ever. */
HANG(test_S9_work_of_Metal_4)
{
    const gpusync_queue_desc desc = {.label = "four"};
    replace_by(s, true, &desc);
    SUBMIT(s->q[1], BUFFERS(new_buffer(s->q[1]), new_buffer(s->q[1])), SIGNALS(at(s->t[0], 1)), .label = "runs",
           .flags = GPUSYNC_SUBMIT_ON_GPU);
    SUBMIT(s->q[1], WAITS(at(s->t[1], 1)), BUFFERS(named_buffer(s->q[1], "waits")), .label = "unused",
           .flags = GPUSYNC_SUBMIT_ON_GPU);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "older")), .flags = GPUSYNC_SUBMIT_ON_GPU);
    assert_hang(
        s, "work of Metal 4",
        LINES("    ticket 1 'runs': " SENT "; is to signal value 1 of timeline 'a'",
              "    ticket 2 'waits': held for 5.0 ms; waits for value 1 of timeline 'b'" NOTHING,
              "    ticket 1 'older': " SENT "; waits for value 1 of timeline 'a', which ticket 1 of queue 'four' is to "
              "signal"),
        LINES("queue 'four': 0 of 2 tickets are done\n")); /* and no room: there is no limit */
    unsigned objects = 0;
    for (unsigned i = 1; i < line_count; i++)
        objects += !is_detail(line[i]);
    assert_int_equal(objects, 4); /* no timeline of gpusync's own, which nobody made */
}

static gpusync_result wait_for_items(void *warmup)
{
    return gpusync_warmup_wait((gpusync_warmup *)warmup, SECONDS(60), NULL, NULL);
}

/* stays: a gate, or NULL. */
static gpusync_result make(void *stays, size_t i, void **made, gpusync_error *error)
{
    for (int k = 0; stays && k < 2; k++)
        gate_wait(stays);
    return GPUSYNC_OK;
}

/* The level does not start: its shaders are not made, for libdispatch has no thread to give. */
HANG(test_S9_a_warm_up_that_goes_on)
{
    const gpusync_warmup_desc desc = {make, NULL, 2, false};
    gpusync_warmup *warmup = NULL;
    job j = {0};
    softmetal_set_dispatch_threads(0);
    assert_ok(gpusync_warmup_start(s->device, &desc, &warmup));
    job_call(&j, wait_for_items, warmup);
    await_parked(1);
    assert_hang(s, "a warm-up that goes on",
                LINES("    a wait for item count 2 of warm-up 5; begun 5.0 ms ago, with 59995.0 ms left"),
                LINES("  warm-up 5: 0 of 2 items are made\n"));
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    assert_ok(job_end(&j));
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* ... and one that makes nothing in advance. */
HANG(test_S9_a_warm_up_that_is_disabled)
{
    const gpusync_warmup_desc desc = {make, NULL, 2, true};
    gpusync_warmup *warmup = NULL;
    void *made = NULL;
    assert_ok(gpusync_warmup_start(s->device, &desc, &warmup));
    assert_ok(gpusync_warmup_get(warmup, 1, GPUSYNC_FOREVER, &made, NULL));
    assert_non_null(strstr(read_report(s->device), ": 1 of 2 items are made\n"));
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* The same level: the program has been about the first shader for 5 ms. */
HANG(test_S9_an_item_that_is_being_made)
{
    const gpusync_warmup_desc desc = {make, &door, 1, false};
    gpusync_warmup *warmup = NULL;
    job j = {0};
    gate_init(&door, 2);
    assert_ok(gpusync_warmup_start(s->device, &desc, &warmup));
    gate_wait(&door);
    job_call(&j, wait_for_items, warmup);
    await_parked(1);
    assert_hang(s, "an item that is being made",
                LINES("  a call for an item of warm-up 5 has been running for 5.0 ms",
                      "    a wait for item count 1 of warm-up 5; begun 5.0 ms ago, with 59995.0 ms left"),
                LINES("  warm-up 5: 0 of 1 items are made, callbacks, releases or items not over: 1\n"));
    gate_wait(&door);
    assert_ok(job_end(&j));
    assert_ok(gpusync_warmup_destroy(warmup));
    gate_destroy(&door);
}

/* A submission of several buffers, with a label of its own and several waits: what is left of them is on one line. */
HANG(test_S9_a_submission_of_much)
{
    signal_value(s->t[1], 4);
    commit(s->q[0], named_buffer(s->q[0], "runs"));
    SUBMIT(s->q[1], WAITS(ticket_at(s->q[0], 1), at(s->t[1], 4), at(s->t[1], 5), at(s->t[1], 8)),
           BUFFERS(new_buffer(s->q[1]), new_buffer(s->q[1])), SIGNALS(at(s->t[0], 6)), .label = "submitted");
    signal_value(s->t[1], 5); /* one wait less */
    assert_hang(s, "a submission of much",
                LINES("    ticket 1 'runs': " SENT,
                      "    ticket 1 'submitted': held for 5.0 ms; waits on the host for ticket 1 of queue 'first'"
                      WAITS_FOR "8 of timeline 'b'" NOTHING "; is to signal value 6 of timeline 'a'"),
                LINES("timeline 'b': value 5"));
}

/* A wait for a value that another ticket brings, and objects without labels: numbers name them. */
HANG(test_S9_objects_without_labels)
{
    gpusync_timeline *timeline = new_timeline(s->device); /* the fifth object, behind those of the stage */
    gpusync_queue *queue = queue_from(s->device, NULL);
    SUBMIT(queue, WAITS(at(timeline, 1)), BUFFERS(new_buffer(queue)));
    assert_hang(s, "objects without labels",
                LINES("    ticket 1: " HELD_FOR "1 of timeline 5" NOTHING),
                LINES("  queue 6: 0 of 1 tickets are done", "  timeline 5: value 0"));
    assert_ok(gpusync_queue_destroy(queue));
    assert_ok(gpusync_timeline_destroy(timeline));
}

/* A value passes an open buffer that is to signal a lower one: its commit will be refused, and what waits for it gets
   the value otherwise, or never. Sent by other work, reached, or failed. */
HANG(test_S9_an_open_buffer_that_comes_too_late)
{
    encode_signal(s->q[0], named_buffer(s->q[0], "fails"), at(s->t[1], 2));
    encode_signal(s->q[0], named_buffer(s->q[0], "is below"), at(s->t[0], 2));
    encode_signal(s->q[0], named_buffer(s->q[0], "in time"), at(s->t[0], 4));
    SUBMIT(s->q[0], BUFFERS(named_buffer(s->q[0], "runs")), SIGNALS(at(s->t[0], 3)), .flags = GPUSYNC_SUBMIT_ON_GPU);
    assert_ok(gpusync_timeline_fail(s->t[1], NULL));
    assert_hang(s, "an open buffer that comes too late",
                LINES("    open command buffer 1 'fails': not committed*can no longer signal*value 2 of timeline 'b'",
                      "    open command buffer 2 'is below': not committed*can no longer signal*value 2 of timeline "
                      "'a'",
                      "    open command buffer 3 'in time': not committed*; is to signal value 4 of timeline 'a'",
                      "    ticket 1 'runs': with Metal (committed)*; is to signal value 3 of timeline 'a'"),
                LINES("timeline 'b': value 0, has failed"));
    finish_all(s);
    assert_non_null(strstr(read_report(s->device), "'is below': not committed for 5.0 ms; can no longer signal"));
}

/* Held work was to signal a timeline that has failed: that is no reason, and no source. */
HANG(test_S9_held_work_does_not_signal_a_timeline_that_has_failed)
{
    SUBMIT(s->q[1], WAITS(at(s->t[1], 1)), BUFFERS(named_buffer(s->q[1], "held")), SIGNALS(at(s->t[0], 99)));
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
    assert_hang(s, "held work that was to signal a timeline that has failed",
                LINES("    ticket 1 'held': " HELD_FOR "1 of timeline 'b'" NOTHING),
                LINES("timeline 'a': value 0, has failed"));
}

/* Work has failed, but its timeline is order_only, and rises when the lower value has come: it is done, and the value
   for which the next frame waits is still its to signal. A reader who follows the wait finds the ticket. */
HANG(test_S9_a_value_that_stands_behind_a_lower_one)
{
    static const gpusync_timeline_desc desc = {.order_only = true, .label = "order"};
    assert_ok(gpusync_timeline_destroy(s->t[1]));
    assert_ok(gpusync_timeline_create(s->device, &desc, &s->t[1]));
    SUBMIT(s->q[0], BUFFERS(named_buffer(s->q[0], "slow")), SIGNALS(at(s->t[1], 1)));
    SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[1], "never ran")), SIGNALS(at(s->t[1], 2)));
    assert_ok(gpusync_queue_cancel_held(s->q[1], GPUSYNC_EVERYTHING));
    SUBMIT(s->q[1], WAITS(at(s->t[1], 2)), BUFFERS(named_buffer(s->q[1], "frame")));
    assert_hang(
        s, "a value that stands behind a lower one",
        LINES("    ticket 1 'slow': " SENT "; is to signal value 1 of timeline 'order'",
              "    ticket 1 'never ran': ended for 5.0 ms; is to signal value 2 of timeline 'order' behind value 1, "
              "which ticket 1" OF_FIRST,
              "    ticket 2 'frame': held*; waits on the host for value 2 of timeline 'order', which ticket 1 of queue "
              "'second' is to signal"),
        LINES("queue 'second': 1 of 2 tickets are done"));
}

/* As another thread would do while a commit is inside Metal. */
static void let_go_inside(void *user, softmetal_phase phase, void *object, const char *selector)
{
    stage *s = (stage *)user;
    (void)object;
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, "commit") != 0) return;
    softmetal_set_message_hook(NULL, NULL);
    signal_value(s->t[0], 1);
    read_report(s->device);
}

HANG(test_S9_ready_work_behind_a_commit_that_does_not_return)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "ready")),
           .flags = GPUSYNC_SUBMIT_UNORDERED);
    softmetal_set_message_hook(let_go_inside, s);
    commit(s->q[0], new_buffer(s->q[0]));
    assert_text("ready work",
                LINES("    UNORDERED work 1 'ready': held*; may go: the call or handler that sends it has not returned",
                      "    ticket 1: with Metal (committed) for 0.0 ms"),
                NONE, __FILE__, __LINE__);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
}

/* The main loop has stopped: nothing calls gpusync_device_run_callbacks. */
on_stage_with(test_S9_callbacks_that_nothing_runs, .queues = 2, .timelines = 2,
              .device = {.hooks = &patient_hooks, .callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    note n = {0};
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &n);
    finish_next(s->q[0]);
    assert_hang(s, "callbacks that nothing runs", NONE,
                LINES("1 callbacks are due, to be run by gpusync_device_run_callbacks",
                      "callbacks, releases or items not over: 1"));
    assert_int_equal(run_callbacks(s), 1);
}

static void stay_destroyed(void *user)
{
    stay(user, GPUSYNC_OK, NULL);
}

/* `destroyed` of a queue does not return. No ticket is named: it is of none. */
HANG(test_S9_a_destroyed_that_does_not_return)
{
    gate_init(&door, 2);
    assert_ok(gpusync_queue_destroy_later(s->q[1], stay_destroyed, NULL));
    s->q[1] = NULL;
    gate_wait(&door);
    assert_hang(s, "a `destroyed` that does not return",
                LINES("  a callback or `destroyed` of queue 'second' has been running for 5.0 ms"),
                LINES("queue 'second', being destroyed"));
    gate_wait(&door);
    end_hang(s);
    gate_destroy(&door);
}

static void stay_in_the_log(void *user, gpusync_log_level level, const char *line_of_log)
{
    stay(user, GPUSYNC_OK, NULL);
}

static gpusync_result finish_the_first(void *stage_)
{
    return finish_next(((stage *)stage_)->q[0]) ? GPUSYNC_OK : GPUSYNC_TIMEOUT;
}

/* The program's log does not return: it holds up Metal's thread. */
HANG_WITH(test_S9_a_log_that_does_not_return, .device = {.hooks = &patient_hooks, .log = stay_in_the_log})
{
    job j = {0};
    gate_init(&door, 2);
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    job_call(&j, finish_the_first, s);
    gate_wait(&door);
    assert_hang(s, "a log that does not return",
                LINES("  a call of `destroyed` or of the log has been running for 5.0 ms"), NONE);
    gate_wait(&door);
    assert_ok(job_end(&j));
    gate_destroy(&door);
}

/* Objects stand in the order in which the program made them; open buffers by their numbers, which a refused commit does
   not change. */
HANG(test_S9_the_oldest_comes_first)
{
    static const char *const in_order[] = {"queue 'first'", "buffer 1 'one'", "buffer 2 'two'", "queue 'second'",
                                           "timeline 'a'",  "timeline 'b'",   "queue 'third'"};
    const gpusync_queue_desc desc = {.label = "third"};
    gpusync_queue *third = queue_from(s->device, &desc);
    assert_ok(gpusync_queue_destroy(third)); /* the last one goes */
    assert_ok(gpusync_queue_create(s->device, &desc, &third));
    void *one = named_buffer(s->q[0], "one");
    encode_signal(s->q[0], one, at(s->t[0], 1));
    named_buffer(s->q[0], "two");
    signal_value(s->t[0], 1);
    assert_result(gpusync_commit(s->q[0], one, NULL), GPUSYNC_ERROR_NOT_RISING);
    assert_result(TRY_SUBMIT(s->q[0], NULL, BUFFERS(one)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    const char *here = read_report(s->device);
    for (size_t i = 0; i < LENGTH(in_order); i++) {
        here = strstr(here, in_order[i]);
        assert_non_null(here);
    }
    assert_ok(gpusync_queue_destroy(third));
}

/* -- lines that would mislead -------------------------------------------------------------------------------------- */

/* A submission of two buffers, of which the first is over: the second runs. The line has the state of the first one,
   "over", and the reader suspects a lost handler. The same of a marker behind a buffer that is over. */
HANG(test_S9_the_state_is_that_of_the_buffer_that_is_not_over)
{
    void *first = named_buffer(s->q[0], "first"), *graph = foreign_buffer(s->q[1]);
    SUBMIT(s->q[0], BUFFERS(first, named_buffer(s->q[0], "second")));
    softmetal_finish(first);
    metal_commit(graph);
    assert_ok(gpusync_commit_marker(s->q[1], graph, NULL));
    softmetal_finish(graph);
    read_report(s->device);
    assert_null(strstr(text, "(over)"));
    metal_release(graph);
}

/* A Metal whose `status` autoreleases the buffer: each report leaves a reference of each buffer in the caller's pool,
   though the report has one of its own for the label. */
HANG(test_S9_a_status_is_asked_for_in_a_pool)
{
    void *buffer = named_buffer(s->q[0], "runs");
    commit(s->q[0], buffer);
    unsigned long held = softmetal_retain_count(buffer);
    set_quirks(.status_autoreleases = true);
    read_report(s->device);
    set_quirks(.status_autoreleases = false);
    assert_int_equal(softmetal_retain_count(buffer), held);
}

/* -- the program goes on meanwhile --------------------------------------------------------------------------------- */

/* What a message of the report lets happen: once, before the n-th message of a kind. */
static struct {
    const char *selector;
    unsigned left;
    void (*then)(void);
    stage *s;
    void *buffer;
} between;

static void on_message(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase != SOFTMETAL_AFTER && between.left && strcmp(selector, between.selector) == 0 && --between.left == 0)
        between.then();
}

static void do_between(const char *selector, unsigned nth, void (*then)(void))
{
    between.selector = selector;
    between.left = nth;
    between.then = then;
    softmetal_set_message_hook(on_message, NULL);
}

static void commit_it(void)
{
    commit(between.s->q[0], between.buffer);
}

/* The submission goes, and the memory of its buffers with it. */
static void submit_it(void)
{
    SUBMIT(between.s->q[0], BUFFERS(between.buffer, new_buffer(between.s->q[0])));
    finish_all(between.s);
}

static void discard_it(void)
{
    assert_ok(gpusync_command_buffer_discard(between.s->q[0], between.buffer));
}

static void signal_it(void)
{
    signal_value(between.s->t[0], 1);
}

/* Held work is sent while the report asks for its label: Metal's state of before is no state of sent work. */
HANG(test_S9_work_that_is_sent_meanwhile)
{
    between.s = s;
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "b")));
    do_between("label", 1, signal_it);
    read_report(s->device);
    softmetal_set_message_hook(NULL, NULL);
    assert_non_null(strstr(text, "    ticket 1 'b': with Metal (committed) for 0.0 ms\n"));
}

/* A render thread commits, discards or submits a buffer while the report asks for its label: the other open buffers,
   among which is the one to look at, have their lines all the same. (ASan) */
HANG(test_S9_an_open_buffer_that_goes_meanwhile_takes_no_line_away)
{
    static void (*const ends[])(void) = {commit_it, discard_it, submit_it};
    for (size_t i = 0; i < LENGTH(ends); i++) {
        between.s = s;
        between.buffer = named_buffer(s->q[0], "goes");
        void *other = named_buffer(s->q[0], "stays");
        do_between("label", 1, ends[i]);
        read_report(s->device);
        softmetal_set_message_hook(NULL, NULL);
        assert_int_equal(between.left, 0);
        assert_null(strstr(text, "'goes': not committed"));
        assert_non_null(strstr(text, " 'stays': not committed"));
        assert_ok(gpusync_command_buffer_discard(s->q[0], other));
        end_hang(s);
    }
}

/* Each line was true when it was written: a buffer that was discarded before is not open then, and one that has a
   ticket by then is not "not enqueued". */
HANG(test_S9_a_line_is_true_when_it_is_written)
{
    between.s = s;
    between.buffer = named_buffer(s->q[0], "discarded");
    do_between("label", 1, discard_it);
    read_report(s->device);
    assert_null(strstr(text, "'discarded'")); /* "ticket 0 'discarded': has ended, and its handler has not come" */
    between.buffer = named_buffer(s->q[0], "committed");
    do_between("label", 1, commit_it);
    read_report(s->device);
    assert_null(strstr(text, "'committed': not committed"));
    softmetal_set_message_hook(NULL, NULL);
}

static void end_all_between(void)
{
    stage *s = between.s;
    assert_ok(gpusync_queue_abandon(s->q[1]));
    assert_ok(gpusync_timeline_destroy(s->t[1]));
    s->q[1] = NULL;
    s->t[1] = NULL;
}

/* Another thread destroys a queue and a timeline, while the report is at them: at each of its messages. (ASan) */
without_stage(test_S9_objects_go_while_the_report_is_at_them)
{
    static const char *const selectors[] = {"label", "status", "signaledValue"};
    for (size_t i = 0; i < LENGTH(selectors); i++)
        for (unsigned nth = 1; nth <= 3; nth++) {
            const stage_desc desc = {.queues = 2, .timelines = 2, .device = {.hooks = &patient_hooks}};
            stage s;
            stage_open(&s, &desc);
            between.s = &s;
            for (unsigned q = 0; q < 2; q++) {
                encode_signal(s.q[q], named_buffer(s.q[q], "open"), at(s.t[q], 9));
                commit(s.q[q], named_buffer(s.q[q], "sent"));
                SUBMIT(s.q[q], WAITS(at(s.t[1], 1)), BUFFERS(named_buffer(s.q[q], "held")));
            }
            do_between(selectors[i], nth, end_all_between);
            read_report(s.device);
            softmetal_set_message_hook(NULL, NULL);
            assert_true(between.left == 0 || nth > 2);
            assert_non_null(strstr(text, "ticket 1 'sent'"));
            end_hang(&s);
            stage_close(&s);
        }
}

/* Four threads commit, wait, signal and destroy, and two more read reports: ASan and TSan look on. Every text is whole,
   whatever happens: it ends with a newline, and each line begins as lines do. */
static struct {
    stage *s;
    bool over;
} busy;

static void *work_hard(void *argument)
{
    unsigned me = (unsigned)(uintptr_t)argument;
    for (unsigned i = 0; i < 120; i++) {
        gpusync_queue *queue = NULL;
        gpusync_timeline *timeline = NULL;
        const gpusync_queue_desc desc = {.label = "brief"};
        void *buffer = NULL;
        gpusync_ticket ticket = 0;
        must(gpusync_queue_create(busy.s->device, &desc, &queue) == GPUSYNC_OK, "queue");
        must(gpusync_timeline_create(busy.s->device, NULL, &timeline) == GPUSYNC_OK, "timeline");
        gpusync_point one = gpusync_at_value(timeline, 1);
        must(gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer) == GPUSYNC_OK, "buffer");
        must(gpusync_encode_wait(queue, buffer, one) == GPUSYNC_OK, "wait");
        must(gpusync_commit(queue, buffer, &ticket) == GPUSYNC_OK, "commit");
        must(gpusync_command_buffer_create(busy.s->q[me], NULL, GPUSYNC_FOREVER, &buffer) == GPUSYNC_OK, "buffer");
        must(gpusync_commit(busy.s->q[me], buffer, NULL) == GPUSYNC_OK, "commit");
        if (i % 3 == 0)
            must(gpusync_timeline_fail(timeline, NULL) == GPUSYNC_OK, "fail");
        else
            must(gpusync_timeline_signal(timeline, 1) == GPUSYNC_OK, "signal");
        (void)!gpusync_wait(queue, ticket, GPUSYNC_FOREVER, NULL);
        must(gpusync_timeline_destroy(timeline) == GPUSYNC_OK, "destroy");
        if (i % 2)
            must(gpusync_queue_destroy_later(queue, NULL, NULL) == GPUSYNC_OK, "destroy later");
        else
            must(gpusync_queue_destroy(queue) == GPUSYNC_OK, "destroy");
    }
    return NULL;
}

static void *read_hard(void *argument)
{
    static const char *const beginnings[] = {"gpusync ", "  queue ", "  timeline ", "  a callback ", "    "};
    char *mine = (char *)malloc(SIZE);
    must(mine != NULL, "no memory");
    while (!GET(&busy.over)) {
        size_t length = gpusync_device_report(busy.s->device, mine, SIZE);
        must(length == strlen(mine) && mine[length - 1] == '\n', "the text is whole");
        for (const char *at = mine; *at; at = strchr(at, '\n') + 1) {
            bool known = false;
            for (size_t i = 0; i < LENGTH(beginnings); i++)
                known |= begins(at, beginnings[i]);
            must(known, "a line begins as lines do");
        }
    }
    free(mine);
    return NULL;
}

on_stage_with(test_S9_reports_while_threads_work, .queues = 4, .real = true, .device = {.hooks = &patient_hooks})
{
    pthread_t workers[4], readers[2];
    busy.s = s;
    PUT(&busy.over, false);
    for (uintptr_t i = 0; i < 4; i++)
        workers[i] = start(work_hard, (void *)i);
    for (unsigned i = 0; i < 2; i++)
        readers[i] = start(read_hard, NULL);
    for (unsigned i = 0; i < 4; i++)
        join(workers[i]);
    PUT(&busy.over, true);
    for (unsigned i = 0; i < 2; i++)
        join(readers[i]);
}

/* -- the text ------------------------------------------------------------------------------------------------------ */

/* One of each line: for all that is about the text itself. */
static void build_much(stage *s, const char *label)
{
    void *foreign = foreign_buffer(s->q[0]);
    encode_signal(s->q[0], named_buffer(s->q[0], label), at(s->t[0], 3));
    encode_signal(s->q[0], foreign, at(s->t[0], 4));
    metal_release(foreign);
    SUBMIT(s->q[1], WAITS(at(s->t[0], 3), at(s->t[0], 9)), BUFFERS(named_buffer(s->q[1], label)));
    commit(s->q[1], named_buffer(s->q[1], "behind"));
    commit(s->q[0], named_buffer(s->q[0], "runs"));
}

/* A crash handler has a buffer of some size: whatever it is, nothing is written past it, it holds a beginning of the
   text that ends with a whole character, and the length is that of the whole text. */
HANG(test_S9_a_text_that_is_cut)
{
    static char whole[SIZE], part[SIZE];
    build_much(s, "Gr\303\266\303\237e \342\202\254 \360\237\230\200!");
    size_t length = gpusync_device_report(s->device, whole, sizeof whole);
    assert_int_equal(length, strlen(whole));
    assert_non_null(strstr(whole, "'Gr\303\266\303\237e \342\202\254 \360\237\230\200!'"));
    for (size_t size = 0; size <= length + 2; size++) {
        size_t most = size > length ? length : size ? size - 1 : 0, got = most;
        while (got < length && ((unsigned char)whole[got] & 0xC0) == 0x80) /* the character in front of it is whole */
            got--;
        memset(part, 0x5A, sizeof part);
        assert_int_equal(gpusync_device_report(s->device, part, size), length);
        for (size_t i = size; i < size + 64; i++)
            assert_int_equal(part[i], 0x5A);
        if (!size)
            continue;
        assert_int_equal(strlen(part), got);
        assert_memory_equal(part, whole, got);
    }
}

/* snprintf's habit: NULL asks for the length, whatever size says; without a device the text is empty. */
HANG(test_S9_NULL)
{
    build_much(s, "label");
    size_t length = strlen(read_report(s->device));
    assert_int_equal(gpusync_device_report(s->device, NULL, 0), length);
    assert_int_equal(gpusync_device_report(s->device, NULL, 9), length);
    assert_int_equal(gpusync_device_report(NULL, NULL, 0), 0);
    assert_int_equal(gpusync_device_report(NULL, NULL, 9), 0);
    snprintf(text, sizeof text, "left");
    assert_int_equal(gpusync_device_report(NULL, text, 0), 0);
    assert_string_equal(text, "left");
    assert_int_equal(gpusync_device_report(NULL, text, 3), 0);
    assert_string_equal(text, "");
}

/* Labels come from files and users. Whatever is in one, it is in its own place, and no line is added or torn. */
without_stage(test_S9_labels_of_all_kinds)
{
    static char wide[201], wide_utf8[202];
    static char cut[64], cut_utf8[64];
    const struct {
        const char *label, *shown;
    } rows[] = {
        {"two\nlines", "two lines"},
        {"\n", " "},
        {"ends\n", "ends "},
        {"\n  timeline 'a': value 0", "   timeline 'a': value 0"},
        {"tab\tand\rreturn\033[31m\177", "tab and return [31m "},
        {"it's 'quoted' \"twice\"", "it's 'quoted' \"twice\""},
        {"100%s %n %d", "100%s %n %d"},
        {"\\n", "\\n"},
        {"\302\205\342\200\250\342\200\251\302\233!", "          !"}, /* U+0085, U+2028, U+2029, U+009B */
        {"\302\240\342\200\223\342\200\252\342\201\250",
         "\302\240\342\200\223\342\200\252\342\201\250"}, /* no line ends */
        {"", ""},
        {wide, cut},
        {wide_utf8, cut_utf8},
        {"\377caf\351", NULL}, /* not UTF-8: shown as something */
    };
    memset(wide, 'w', sizeof wide - 1);
    memset(cut, 'w', sizeof cut - 1);
    for (unsigned i = 0; i < 100; i++)
        memcpy(&wide_utf8[2 * i], "\303\266", 2);
    for (unsigned i = 0; i < 31; i++)
        memcpy(&cut_utf8[2 * i], "\303\266", 2); /* 62 bytes: the 32nd has no place in 63 */
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const gpusync_queue_desc queue = {.label = rows[i].label};
        const gpusync_timeline_desc timeline = {.label = rows[i].label};
        const stage_desc desc = {.queues = 2, .timelines = 2, .device = {.hooks = &patient_hooks}};
        stage s;
        char expected[256];
        stage_open(&s, &desc);
        assert_ok(gpusync_timeline_destroy(s.t[1]));
        assert_ok(gpusync_timeline_create(s.device, &timeline, &s.t[1]));
        replace_queue(&s, &queue);
        build_much(&s, rows[i].label);
        SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), BUFFERS(new_buffer(s.q[0])), .label = rows[i].label);
        split(read_report(s.device));
        assert_int_equal(line_count, 1 + 2 + 2 + 2 + 4); /* device, timelines, queues, open buffers, tickets */
        assert_true(begins(line[0], "gpusync "));
        for (unsigned k = 1; k < line_count; k++)
            assert_true(begins(line[k], "  ") && line[k][2] && strlen(line[k]) < 700);
        for (const char *c = text; *c; c++)
            assert_true((unsigned char)*c >= ' ' || *c == '\n');
        if (rows[i].shown && rows[i].shown[0]) {
            const char *shown = rows[i].shown;
            snprintf(expected, sizeof expected, "  queue '%s': 0 of 2 tickets", shown);
            assert_non_null(strstr(text, expected));
            snprintf(expected, sizeof expected, "  timeline '%s': value 0", shown);
            assert_non_null(strstr(text, expected));
            snprintf(expected, sizeof expected, "waits on the host for value 1 of timeline '%s'" NOTHING, shown);
            assert_non_null(strstr(text, expected));
            snprintf(expected, sizeof expected, "'%s': held for 0.0 ms; waits on the host for value 3", shown);
            assert_non_null(strstr(text, expected));
            snprintf(expected, sizeof expected, "    open command buffer 1 '%s': not committed", shown);
            assert_non_null(strstr(text, expected));
            snprintf(expected, sizeof expected, "    ticket 1 '%s': held", shown);
            assert_non_null(strstr(text, expected));
        }
        assert_non_null(strstr(text, "    ticket 2 'behind': held for 0.0 ms; behind ticket 1\n"));
        assert_non_null(strstr(text, "    ticket 1 'runs': with Metal (committed) for 0.0 ms\n"));
        end_hang(&s);
        stage_close(&s);
    }
}

/* Ages are those of the present state, to a tenth of a millisecond. */
HANG(test_S9_ages)
{
    static const struct {
        uint64_t ns;
        const char *shown;
    } rows[] = {
        {0, " for 0.0 ms"},         {40000, " for 0.0 ms"},
        {60000, " for 0.1 ms"},     {MS(1), " for 1.0 ms"},
        {MS(999), " for 999.0 ms"}, {SECONDS(3600), " for 3600000.0 ms"},
        {1234567, " for 1.2 ms"},   {SECONDS(2592000), " for 2592000000.0 ms"},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        char expected[128];
        void *open = named_buffer(s->q[0], "open");
        pass(rows[i].ns);
        snprintf(expected, sizeof expected, "'open': not committed%s\n", rows[i].shown);
        assert_non_null(strstr(read_report(s->device), expected));
        assert_ok(gpusync_command_buffer_discard(s->q[0], open));
    }
}

/* Open, then held, then sent, then ended: each begins anew, and what changes nothing does not. */
HANG(test_S9_an_age_is_that_of_the_state)
{
    void *buffer = named_buffer(s->q[0], "b");
    pass(MS(1));
    encode_wait(s->q[0], buffer, at(s->t[0], 1)); /* still open */
    pass(MS(2));
    assert_non_null(strstr(read_report(s->device), "open command buffer 1 'b': not committed for 3.0 ms"));
    commit(s->q[0], buffer);
    assert_non_null(strstr(read_report(s->device), "ticket 1 'b': held for 0.0 ms"));
    pass(MS(4));
    assert_non_null(strstr(read_report(s->device), "ticket 1 'b': held for 4.0 ms"));
    signal_value(s->t[0], 1);
    assert_non_null(strstr(read_report(s->device), "ticket 1 'b': with Metal (committed) for 0.0 ms"));
    pass(MS(8));
    softmetal_schedule(buffer);
    assert_non_null(strstr(read_report(s->device), "ticket 1 'b': with Metal (scheduled) for 8.0 ms"));
    pass(MS(16));
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    pass(MS(32));
    assert_non_null(strstr(read_report(s->device), "ticket 1 'b': ended for 32.0 ms; gpusync's handler has not "
                                                   "returned"));
    softmetal_finish(buffer);
    assert_null(strstr(read_report(s->device), "ticket 1"));
}

/* A wait's age and what is left of its limit; none is left when the limit has passed and the thread has not run yet. */
HANG(test_S9_limits)
{
    static const struct {
        uint64_t limit, passed;
        const char *shown;
    } rows[] = {
        {MS(10), 0, " begun 0.0 ms ago, with 10.0 ms left\n"},
        {MS(10), MS(4), " begun 4.0 ms ago, with 6.0 ms left\n"},
        {MS(10), MS(10), " begun 10.0 ms ago, with 0.0 ms left\n"},
        {MS(10), MS(25), " begun 25.0 ms ago, with 0.0 ms left\n"},
        {SECONDS(3600), 60000, " begun 0.1 ms ago, with 3599999.9 ms left\n"},
        {GPUSYNC_FOREVER - 1, MS(1), " begun 1.0 ms ago, without a limit\n"}, /* it ends behind all clocks */
        {GPUSYNC_FOREVER, MS(1), " begun 1.0 ms ago, without a limit\n"},
    };
    commit_new(s->q[0]);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        job j = {0};
        gpusync_point points[2] = {ticket_at(s->q[0], 1), at(s->t[0], i + 1)};
        job_many(&j, points, 2, GPUSYNC_WAIT_ANY, rows[i].limit);
        await_parked(1);
        pass(rows[i].passed);
        assert_non_null(strstr(read_report(s->device), rows[i].shown));
        signal_value(s->t[0], i + 1);
        assert_ok(job_end(&j));
        assert_null(strstr(read_report(s->device), "a wait"));
    }
}

/* The GPU has signalled a value, and its work has not ended for gpusync: the event shows it, by the timeline's own
   numbers, though the event was another timeline's before. */
HANG(test_S9_what_the_event_shows_is_a_value_of_the_timeline)
{
    gpusync_timeline *next = NULL;
    uint64_t base = 0;
    const gpusync_timeline_desc desc = {.label = "next", .initial_value = 2};
    signal_value(s->t[1], 70);
    assert_ok(gpusync_timeline_destroy(s->t[1]));
    s->t[1] = NULL;
    assert_ok(gpusync_timeline_create(s->device, &desc, &next));
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(next, 5)), .flags = GPUSYNC_SUBMIT_ON_GPU);
    assert_non_null(strstr(read_report(s->device), "  timeline 'next': value 2\n"));
    while (softmetal_first_in_line(s->metal[0]))
        softmetal_complete(softmetal_first_in_line(s->metal[0]));
    assert_non_null(strstr(read_report(s->device), "  timeline 'next': value 2, its event shows 5, "));
    finish_all(s);
    assert_non_null(strstr(read_report(s->device), "  timeline 'next': value 5\n"));
    gpusync_timeline_metal(next, &base);
    assert_true(base > 0); /* else the test shows nothing */
    assert_ok(gpusync_timeline_destroy(next));
}

/* A level editor has hundreds of everything: each has its line, once. */
HANG(test_S9_many_objects)
{
    enum { MANY = 60, TICKETS = 10 };
    gpusync_queue *queues[MANY];
    gpusync_timeline *timelines[MANY];
    char *whole = (char *)malloc(1u << 20);
    unsigned lines = 0;
    must(whole != NULL, "no memory");
    for (unsigned i = 0; i < MANY; i++) {
        char label[32];
        const gpusync_queue_desc queue = {.label = label};
        const gpusync_timeline_desc timeline = {.label = label};
        snprintf(label, sizeof label, "number %u", i);
        assert_ok(gpusync_timeline_create(s->device, &timeline, &timelines[i]));
        assert_ok(gpusync_queue_create(s->device, &queue, &queues[i]));
        named_buffer(queues[i], "open");
        named_buffer(queues[i], "open, too");
        for (unsigned k = 0; k < TICKETS; k++)
            SUBMIT(queues[i], WAITS(at(timelines[i], k + 1)), BUFFERS(new_buffer(queues[i])));
    }
    size_t length = gpusync_device_report(s->device, whole, 1u << 20);
    assert_int_equal(length, strlen(whole));
    for (const char *at_ = whole; *at_; at_ = strchr(at_, '\n') + 1)
        lines++;
    assert_int_equal(lines, 1 + 4 + MANY * (2 + 2 + TICKETS));
    for (unsigned i = 0; i < MANY; i++) {
        char part[128];
        snprintf(part, sizeof part, "\n  queue 'number %u': 0 of 10", i);
        const char *found = strstr(whole, part);
        assert_non_null(found);
        assert_null(strstr(found + 1, part));
        snprintf(part, sizeof part,
                 "    ticket 10: held for 0.0 ms; behind ticket 1; waits on the host for value 10 of timeline "
                 "'number %u'",
                 i);
        assert_non_null(strstr(whole, part));
        assert_ok(gpusync_queue_destroy(queues[i]));
        assert_ok(gpusync_timeline_destroy(timelines[i]));
    }
    free(whole);
}

/* -- what it does not do ------------------------------------------------------------------------------------------- */

/* Reports into `text`, on a thread that has no autorelease pool of its own. */
static gpusync_result report_without_a_pool(void *device)
{
    return gpusync_device_report((gpusync_device *)device, text, sizeof text) > 0 ? GPUSYNC_OK : GPUSYNC_TIMEOUT;
}

/* A crash report has no memory to spare, and is written again and again: nothing is allocated, kept or left in an
   autorelease pool. (A thread without a pool says so.) */
HANG(test_S9_a_report_leaves_nothing_behind)
{
    job j = {0};
    build_much(s, "label");
    void *runs = softmetal_buffer_at(s->metal[0], 0);
    void *open = softmetal_buffer_at(s->metal[0], 1);
    void *event = gpusync_timeline_metal(s->t[0], NULL);
    read_report(s->device);
    kit_counts before = kit_now();
    long live = softmetal_live(NULL);
    unsigned long held_runs = softmetal_retain_count(runs);
    unsigned long held_open = softmetal_retain_count(open);
    unsigned long held_event = softmetal_retain_count(event);
    memory_fail(1, true);
    for (unsigned i = 0; i < 10; i++)
        read_report(s->device);
    job_call(&j, report_without_a_pool, s->device);
    assert_ok(job_end(&j));
    memory_fail(0, false);
    assert_int_equal(kit_now().allocations, before.allocations);
    assert_int_equal(kit_now().blocks, before.blocks);
    assert_int_equal(softmetal_live(NULL), live);
    assert_int_equal(softmetal_retain_count(runs), held_runs);
    assert_int_equal(softmetal_retain_count(open), held_open);
    assert_int_equal(softmetal_retain_count(event), held_event);
}

static unsigned asked;

/* The thread that reports has no lock: this call, on the same thread, takes each. */
static void ask_back(void *user, softmetal_phase phase, void *object, const char *selector)
{
    stage *s = (stage *)user;
    gpusync_stats stats;
    if (phase != SOFTMETAL_BEFORE)
        return;
    asked++;
    must(strcmp(selector, "label") == 0 || strcmp(selector, "status") == 0 || strcmp(selector, "signaledValue") == 0 ||
             strcmp(selector, "UTF8String") == 0,
         selector);
    must(gpusync_device_get_stats(s->device, NULL, &stats) == GPUSYNC_OK, "stats");
    for (unsigned i = 0; i < 2; i++)
        must(gpusync_queue_cancel_held(s->q[i], GPUSYNC_EVERYTHING) == GPUSYNC_OK, "cancel_held");
}

HANG(test_S9_no_message_comes_under_a_lock)
{
    build_much(s, "label");
    asked = 0;
    softmetal_set_message_hook(ask_back, s);
    read_report(s->device);
    softmetal_set_message_hook(NULL, NULL);
    assert_true(asked >= 2 + 3 * 2); /* an event each, a status and a label each of what is open and runs */
}

/* -- where it may be called ---------------------------------------------------------------------------------------- */

static struct {
    gpusync_device *device;
    unsigned hooks, callbacks, logs, notifies;
} inside;

static void report_inside(unsigned *count)
{
    char mine[4096];
    gpusync_device *device = GET(&inside.device);
    if (!device)
        return;
    COUNT(count);
    must(gpusync_device_report(device, mine, sizeof mine) > 0, "a report inside");
    must(begins(mine, "gpusync "), "a report inside");
}

static void park_inside(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    report_inside(&inside.hooks);
    park_patiently(user, waiter, deadline_ns);
    report_inside(&inside.hooks);
}

static void unpark_inside(void *user, gpusync_waiter *waiter)
{
    report_inside(&inside.hooks);
    kit_unpark(user, waiter);
}

static void yield_inside(void *user)
{
    report_inside(&inside.hooks);
    kit_yield(user);
}

static const gpusync_hooks hooks_inside = {.yield = yield_inside, .park = park_inside, .unpark = unpark_inside};

static void log_inside(void *user, gpusync_log_level level, const char *line_of_log)
{
    report_inside(&inside.logs);
}

static void notify_inside(void *user)
{
    report_inside(&inside.notifies);
}

static void done_inside(void *user, gpusync_result result, const gpusync_error *error)
{
    report_inside(&inside.callbacks);
    must(strstr(read_report(inside.device), (const char *)user) != NULL, "the callback that runs is in the report");
}

/* The log prints a report at each failure, a callback at each end, a hook at each sleep. */
on_stage_with(test_S9_reports_inside_what_gpusync_calls, .timelines = 1,
              .device = {.hooks = &hooks_inside,
                         .log = log_inside,
                         .notify = notify_inside,
                         .callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    const gpusync_spin yields = {.yield_iterations = 3};
    job j = {.options = {.spin = &yields}};
    memset(&inside, 0, sizeof inside);
    PUT(&inside.device, s->device);
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    job_wait(&j, s->q[0], 1, SECONDS(1));
    await_parked(1);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), done_inside, (void *)" of ticket 1 of queue 'first' has been "
    "running for"));
    assert_ok(gpusync_on_done(at(s->t[0], 1), done_inside, (void *)" of value 1 of timeline 'a' has been running for"));
    finish_all(s);
    signal_value(s->t[0], 1);
    assert_result(job_end(&j), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(run_callbacks(s), 2);
    PUT(&inside.device, NULL);
    assert_true(inside.hooks >= 3 + 2 + 1); /* yields, a park, an unpark */
    assert_int_equal(inside.callbacks, 2);
    assert_true(inside.logs >= 1);
    assert_true(inside.notifies >= 1);
}

static void report_in_trace(void *user, const gpusync_trace_event *event)
{
    char mine[64];
    unsigned *count = (unsigned *)user;
    ++*count;
    must(gpusync_device_report(GET(&inside.device), mine, sizeof mine) > 0, "a report in a trace");
}

/* A trace is not to call gpusync: that it holds no lock is what the report shows here. */
HANG(test_S10_reports_inside_a_trace)
{
    unsigned count = 0;
    const gpusync_trace trace = {report_in_trace, &count};
    PUT(&inside.device, s->device);
    assert_ok(gpusync_device_set_trace(s->device, &trace));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    assert_int_equal(count, 4); /* commit, signal, sent, ended */
    assert_ok(gpusync_device_set_trace(s->device, NULL));
    PUT(&inside.device, NULL);
}
