/* test_metal4.c - queues of Metal 4: R29, and what differs there

   Proved: what is made, and what is refused; several command buffers under one ticket; waits and signals as operations
   of the queue; points between both kinds of queue; failures, waits that Metal gave up, feedback that never comes; how
   long the events, the queue and the command buffers stay; creations that fail. What is alike on both kinds is proved
   in the other programs, whose tests on_both_kinds runs twice. */
#include "kit.h"

#define UNORDERED GPUSYNC_SUBMIT_UNORDERED
#define ON_GPU GPUSYNC_SUBMIT_ON_GPU

extern void *dispatch_queue_create(const char *label, void *attributes);
extern void dispatch_release(void *object);

/* One more queue of the stage. */
static gpusync_queue *add_queue(stage *s, unsigned i, bool metal4, const gpusync_queue_desc *desc)
{
    s->q[i] = queue_of_kind(metal4, s->device, desc);
    s->metal[i] = metal_retain(gpusync_queue_metal(s->q[i]));
    return s->q[i];
}

/* Quirks in tables stand as offsetof(softmetal_quirks, name). */
#define QUIRK(name) offsetof(softmetal_quirks, name)
static void set_quirk(size_t which, bool on)
{
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    memcpy((char *)&quirks + which, &on, sizeof on);
    softmetal_set_quirks(&quirks);
}

static gpusync_timeline *of_others(stage *s)
{
    static const gpusync_timeline_desc others = {.signalled_by_others = true};
    return timeline_from(s->device, &others);
}

/* Other code signals. */
static void raise_event(gpusync_timeline *timeline, uint64_t value)
{
    other_code_signals(timeline, value);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
}

#define DROP(...) drop(KIT_LIST(gpusync_timeline *const, __VA_ARGS__), KIT_COUNT(gpusync_timeline *, __VA_ARGS__))
static void drop(gpusync_timeline *const *timelines, size_t count)
{
    for (size_t i = 0; i < count; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
}

static void destroy_queue(stage *s, unsigned i)
{
    assert_ok(gpusync_queue_destroy(s->q[i]));
    s->q[i] = NULL;
}

static void drop_timeline(stage *s, unsigned i)
{
    assert_ok(gpusync_timeline_destroy(s->t[i]));
    s->t[i] = NULL;
}

/* What a queue of Metal's is sent, as letters: a commit, a signal, a wait. */
static struct {
    void *queue;
    unsigned count;
    char letters[64];
} sent;

static void note_sent(void *user, softmetal_phase phase, void *object, const char *selector)
{
    bool counts = strncmp(selector, "commit", 6) == 0 || strncmp(selector, "signalEvent", 11) == 0 ||
                  strncmp(selector, "waitForEvent", 12) == 0;
    if (phase != SOFTMETAL_BEFORE || !counts || object != __atomic_load_n(&sent.queue, __ATOMIC_ACQUIRE)) return;
    must(sent.count + 1 < sizeof sent.letters, "too many messages");
    sent.letters[sent.count++] = selector[0];
}

static void watch(void *metal_queue)
{
    __atomic_store_n(&sent.queue, NULL, __ATOMIC_RELEASE); /* a listener's thread may still send messages */
    sent.count = 0;
    memset(sent.letters, 0, sizeof sent.letters);
    __atomic_store_n(&sent.queue, metal_queue, __ATOMIC_RELEASE);
    softmetal_set_message_hook(note_sent, NULL);
}

/* -- how one is made ----------------------------------------------------------------------------------------------- */

/* An engine asks for Metal 4 and falls back where a call says UNSUPPORTED: whatever the reason is, nothing is left. */
without_stage(test_R29_where_there_is_no_metal_4_no_queue_is_made)
{
    static const struct {
        const char *hidden;
        bool no_family;
    } rows[] = {{NULL, true}, {"newMTL4CommandQueue", false}, {"supportsFamily:", false}};
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        static const stage_desc none = {.no_queue = true};
        static const gpusync_queue_desc labelled = {.label = "a label"};
        gpusync_queue *queue = (gpusync_queue *)state;
        stage s;
        stage_open(&s, &none);
        long blocks = kit_now().blocks;
        long live = softmetal_live(NULL);
        set_quirk(QUIRK(no_metal4_family), rows[i].no_family);
        if (rows[i].hidden) softmetal_hide_selector(rows[i].hidden);
        assert_result(gpusync_metal4_queue_create(s.device, &labelled, &queue), GPUSYNC_ERROR_UNSUPPORTED);
        assert_null(queue);
        assert_int_equal(kit_now().blocks, blocks);
        assert_int_equal(softmetal_live(NULL), live);
        stage_close(&s);
    }
}

/* A plug-in gets the queue of its host, and passes it on. */
on_stage_with(test_R29_a_given_queue_is_taken_by_the_call_of_its_kind, .no_queue = true)
{
    void *second = softmetal_new_device();
    void *twin = softmetal_new_twin(s->metal_device);
    struct {
        void *queue;
        gpusync_result result, older; /* gpusync_metal4_queue_create's, and gpusync_queue_create's */
    } rows[] = {
        {metal4_queue_new(s->metal_device), GPUSYNC_OK, GPUSYNC_ERROR_UNSUPPORTED},
        {metal4_queue_new(twin), GPUSYNC_OK, GPUSYNC_ERROR_UNSUPPORTED},
        {metal4_queue_new(second), GPUSYNC_ERROR_INVALID_ARGUMENT, GPUSYNC_ERROR_UNSUPPORTED},
        {metal_queue_new(s->metal_device, 8), GPUSYNC_ERROR_UNSUPPORTED, GPUSYNC_OK},
        {metal_queue_new(second, 8), GPUSYNC_ERROR_UNSUPPORTED, GPUSYNC_ERROR_INVALID_ARGUMENT},
        {metal_retain(s->metal_device), GPUSYNC_ERROR_UNSUPPORTED, GPUSYNC_ERROR_UNSUPPORTED},
    };
    for (unsigned i = 0; i < 2 * LENGTH(rows); i++) {
        void *given = rows[i / 2].queue;
        gpusync_queue_desc desc = {.metal_queue = given};
        unsigned long count = softmetal_retain_count(given);
        gpusync_queue *queue = (gpusync_queue *)s;
        set_quirk(QUIRK(no_metal4_family), true); /* it is there, whatever the device says */
        if (i % 2) assert_result(gpusync_queue_create(s->device, &desc, &queue), rows[i / 2].older);
        else assert_result(gpusync_metal4_queue_create(s->device, &desc, &queue), rows[i / 2].result);
        assert_int_equal(queue != NULL, (i % 2 ? rows[i / 2].older : rows[i / 2].result) == GPUSYNC_OK);
        assert_int_equal(softmetal_retain_count(given), count + (queue != NULL));
        if (queue) {
            assert_ptr_equal(gpusync_queue_metal(queue), given);
            gpusync_ticket ticket = commit_new(queue);
            assert_true(finish_next_of(given));
            assert_ok(gpusync_poll(queue, ticket, NULL));
        }
        assert_ok(gpusync_queue_destroy(queue));
        /* The kit's run of a queue of Metal 4 has one. */
        assert_int_equal(softmetal_retain_count(given), count + (queue && i % 2 == 0));
        if (i % 2) metal_release(given);
    }
    metal_release(twin);
    metal_release(second);
}

/* Somebody reads a crash log: it has the queue's name, from wherever that came. */
on_stage_with(test_R29_labels_of_made_and_given_queues, .no_queue = true)
{
    static const struct {
        const char *given, *label, *hidden, *metal, *told;
    } rows[] = {
        {NULL, "frames", NULL, "frames", "frames"},
        {NULL, NULL, NULL, "", ""},
        {NULL, "frames", "MTL4CommandQueueDescriptor", "", "frames"},
        {"theirs", NULL, NULL, "theirs", "theirs"},
        {"theirs", "ours", NULL, "theirs", "ours"},
    };
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        gpusync_queue_desc desc = {.label = rows[i].label};
        char text[64] = "";
        if (rows[i].given) {
            static const gpusync_queue_desc theirs = {.label = "theirs"};
            /* A descriptor alone gives a label: gpusync makes one. */
            gpusync_queue *maker = queue_of_kind(true, s->device, &theirs);
            desc.metal_queue = metal_retain(gpusync_queue_metal(maker));
            assert_ok(gpusync_queue_destroy(maker));
        }
        softmetal_hide_class(rows[i].hidden);
        gpusync_queue *queue = queue_of_kind(true, s->device, &desc);
        softmetal_hide_class(NULL);
        metal_string_copy(metal_get(gpusync_queue_metal(queue), "label"), text, sizeof text);
        assert_string_equal(text, rows[i].metal);
        commit_failing(queue, SOFTMETAL_PAGE_FAULT);
        assert_true(finish_next(queue));
        assert_string_equal(failure_at(queue, 0).queue_label, rows[i].told);
        assert_ok(gpusync_queue_destroy(queue));
        metal_release(desc.metal_queue);
    }
}

/* Memory is short: Metal has no queue, no listener of the queue's own event, or no such event. Without a listener looks
   do. */
on_stage_with(test_R29_without_an_object_of_metals_no_queue_is_made, .no_queue = true,
              .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    static const gpusync_result results[] = {GPUSYNC_ERROR_METAL_NIL, GPUSYNC_OK, GPUSYNC_ERROR_METAL_NIL, GPUSYNC_OK};
    for (unsigned i = 0; i < LENGTH(results); i++) {
        static const gpusync_queue_desc labelled = {.label = "a label"};
        gpusync_queue *queue = (gpusync_queue *)s;
        gpusync_timeline *timeline = new_timeline(s->device);
        long blocks = kit_now().blocks, live = softmetal_live(NULL);
        softmetal_fail_creation(i + 1, false);
        assert_result(gpusync_metal4_queue_create(s->device, &labelled, &queue), results[i]);
        softmetal_fail_creation(0, false);
        assert_int_equal(queue != NULL, results[i] == GPUSYNC_OK);
        if (queue) {
            void *buffer = new_buffer(queue);
            SUBMIT(queue, BUFFERS(buffer), SIGNALS(at(timeline, 1)), .flags = ON_GPU);
            set_quirk(QUIRK(signals_late), true);
            assert_true(finish_next(queue));
            set_quirk(QUIRK(signals_late), false);
            assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, NULL));
            assert_true(softmetal_settle_listeners(SECONDS(60)));
            assert_int_equal(softmetal_retain_count(buffer), 1);
        } else {
            assert_int_equal(kit_now().blocks, blocks);
            assert_int_equal(softmetal_live(NULL), live);
        }
        assert_ok(gpusync_queue_destroy(queue));
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

/* A queue's own event is no object of the program's: when the queue is gone, the device may go. */
on_stage_with(test_R29_the_queues_own_timeline_keeps_no_device_in_use, .metal4 = true)
{
    assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
    destroy_queue(s, 0);
    assert_ok(gpusync_device_destroy(s->device));
    s->device = NULL;
}

/* -- what is not supported ----------------------------------------------------------------------------------------- */

/* A renderer that is ported by halves mixes both kinds up. "recorded" and "legacy" are command buffers of the one kind,
   and of the other. */
on_stage_with(test_R29_what_is_not_supported_has_changed_nothing, .metal4 = true, .timelines = 1)
{
    static const gpusync_command_buffer_desc named = {.label = "name", .unretained_references = true};
    gpusync_queue *four = s->q[0], *plain = add_queue(s, 1, false, NULL);
    void *recorded = new_buffer(four), *legacy = new_buffer(plain);
    gpusync_point one = at(s->t[0], 1), two = at(s->t[0], 2);
    gpusync_ticket ticket = 7, tickets[2];
    /* The memory of these serves the next. */
    assert_result(TRY_SUBMIT(four, &ticket, BUFFERS(legacy)), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(TRY_SUBMIT(plain, &ticket, BUFFERS(recorded)), GPUSYNC_ERROR_UNSUPPORTED);
    for (unsigned known = 0; known < 2; known++) { /* the queues have seen a command buffer of theirs */
        long blocks = kit_now().blocks, live = softmetal_live(NULL);
        unsigned long counts[2] = {softmetal_retain_count(recorded), softmetal_retain_count(legacy)};
        void *made[2] = {&ticket, &ticket};
        const gpusync_result results[] = {
            gpusync_command_buffer_create(four, NULL, GPUSYNC_FOREVER, &made[0]),
            gpusync_command_buffer_create(four, &named, 0, &made[1]),
            gpusync_encode_wait(four, recorded, one),
            gpusync_encode_signal(four, recorded, one),
            gpusync_encode_wait(four, legacy, one),
            gpusync_encode_signal(four, legacy, one),
            gpusync_encode_wait(plain, recorded, one),
            gpusync_encode_signal(plain, recorded, one),
            gpusync_commit_marker(four, NULL, &ticket),
            gpusync_commit_marker(four, recorded, &ticket),
            gpusync_commit_marker(four, legacy, &ticket),
            gpusync_commit_marker(plain, recorded, &ticket),
            gpusync_commit(four, legacy, &ticket),
            gpusync_commit(plain, recorded, &ticket),
            TRY_SUBMIT(four, &ticket, BUFFERS(legacy)),
            TRY_SUBMIT(plain, &ticket, BUFFERS(recorded)),
            TRY_SUBMIT(four, &ticket, WAITS(one), BUFFERS(recorded, legacy), SIGNALS(two), .flags = ON_GPU),
            TRY_SUBMIT(four, NULL, BUFFERS(legacy, recorded), .flags = UNORDERED),
            TRY_SUBMIT(plain, &ticket, BUFFERS(legacy, recorded), SIGNALS(two), .flags = ON_GPU),
        };
        for (unsigned i = 0; i < LENGTH(results); i++) {
            if (results[i] != GPUSYNC_ERROR_UNSUPPORTED) print_error("call %u of the list\n", i);
            assert_result(results[i], GPUSYNC_ERROR_UNSUPPORTED);
        }
        assert_true(!made[0] && !made[1]);
        assert_int_equal(ticket, 7);
        assert_int_equal(kit_now().blocks, blocks);
        assert_int_equal(softmetal_live(NULL), live);
        assert_int_equal(softmetal_retain_count(recorded), counts[0]);
        assert_int_equal(softmetal_retain_count(legacy), counts[1]);
        assert_result(gpusync_command_buffer_discard(four, recorded), GPUSYNC_ERROR_UNKNOWN_BUFFER);
        assert_result(gpusync_command_buffer_discard(four, legacy), GPUSYNC_ERROR_UNKNOWN_BUFFER);
        commit_new(four);
        commit_new(plain);
        finish_all(s);
    }
    tickets[0] = SUBMIT(four, BUFFERS(recorded), SIGNALS(one), .flags = ON_GPU);
    tickets[1] = commit(plain, legacy);
    finish_all(s);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(tickets[i], 3);
        assert_ok(gpusync_poll(s->q[i], tickets[i], NULL));
    }
}

/* -- what it commits ----------------------------------------------------------------------------------------------- */

/* llama.cpp polls in a loop: what the GPU is through with has not ended before the feedback: there is no status. */
on_stage_with(test_R29_the_feedback_alone_tells_of_the_end, .metal4 = true)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], buffer);
    job j = {0};
    note n = {0};
    on_done(ticket_at(s->q[0], ticket), &n);
    softmetal_complete(buffer);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(s->q[0], ticket, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_TIMEOUT);
    assert_false(gpusync_is_done(s->q[0], ticket));
    assert_int_equal(calls_of(&n), 0);
    job_wait(&j, s->q[0], ticket, GPUSYNC_FOREVER);
    await_parked(1);
    softmetal_finish(buffer);
    assert_ok(job_end(&j));
    assert_true(gpusync_is_done(s->q[0], ticket));
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_noted(&n, GPUSYNC_OK);
}

/* MLX ends one graph with several command buffers: one commit, one ticket, and the order of the array. */
on_stage_with(test_R29_several_buffers_have_one_commit_and_one_ticket, .metal4 = true)
{
    static const unsigned counts[] = {1, 2, 3, 5, 40}; /* a few need no memory of their own, many do */
    for (unsigned i = 0; i < LENGTH(counts); i++) {
        void *buffers[40];
        gpusync_submission submission = {.command_buffers = buffers, .command_buffer_count = counts[i]};
        forget_marks();
        for (unsigned k = 0; k < counts[i]; k++) mark(s, buffers[k] = new_buffer(s->q[0]), k);
        watch(s->metal[0]);
        gpusync_ticket ticket = submit_at(s->q[0], &submission, __FILE__, __LINE__);
        assert_string_equal(sent.letters, "c");
        assert_int_equal(ticket, i + 1);
        assert_int_equal(gpusync_in_flight(s->q[0]), 1);
        assert_true(finish_next(s->q[0]));
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        assert_int_equal(marks(), counts[i]);
        for (unsigned k = 0; k < counts[i]; k++) assert_int_equal(mark_at(k), k);
    }
}

/* A render graph hands a buffer in twice, or one that is held. */
on_stage_with(test_R29_a_buffer_is_taken_once, .metal4 = true, .timelines = 1)
{
    void *held[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    void *unordered = new_buffer(s->q[0]), *other = new_buffer(s->q[0]);
    gpusync_ticket first, ticket = 7;
    note n = {0};
    void *const none[2] = {other, NULL};
    gpusync_submission with_null = {.command_buffers = none, .command_buffer_count = 2};
    first = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(held[0], held[1]));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(unordered), .on_complete = remember, .user = &n, .flags = UNORDERED);
    for (unsigned i = 0; i < 3; i++) {
        void *buffer = i < 2 ? held[i] : unordered;
        assert_result(gpusync_commit(s->q[0], buffer, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED);
        assert_result(TRY_SUBMIT(s->q[0], &ticket, BUFFERS(buffer)), GPUSYNC_ERROR_ALREADY_COMMITTED);
        assert_result(TRY_SUBMIT(s->q[0], &ticket, BUFFERS(other, buffer)), GPUSYNC_ERROR_ALREADY_COMMITTED);
    }
    assert_result(TRY_SUBMIT(s->q[0], &ticket, BUFFERS(other, other)), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_submit(s->q[0], &with_null, &ticket), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(ticket, 7);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], first, NULL));
    assert_noted(&n, GPUSYNC_OK);
    assert_int_equal(commit(s->q[0], other), 2);
}

/* Apple's sample has one command buffer, which it begins again in each frame: gpusync keeps it until the feedback. */
on_stage_with(test_R29_a_command_buffer_is_retained_until_the_feedback, .metal4 = true, .timelines = 1)
{
    for (unsigned way = 0; way < 3; way++) { /* a commit; a submission; one with signals */
        long before = softmetal_live("command_buffer4");
        void *allocator = metal4_allocator_new(s->metal_device);
        void *buffer = metal4_buffer_new(s->metal_device);
        metal4_begin(buffer, allocator);
        metal4_end(buffer);
        if (way == 0) commit(s->q[0], buffer);
        if (way == 1) SUBMIT(s->q[0], BUFFERS(buffer));
        if (way == 2) SUBMIT(s->q[0], BUFFERS(buffer), SIGNALS(at(s->t[0], 1)), .flags = ON_GPU);
        metal_release(buffer);
        assert_int_equal(softmetal_live("command_buffer4"), before + 1);
        assert_true(finish_next(s->q[0]));
        assert_true(softmetal_settle_listeners(SECONDS(60)));
        assert_int_equal(softmetal_live("command_buffer4"), before);
        assert_int_equal(softmetal_live("commit_options"), 0);
        metal4_allocator_reset(allocator);
        metal_release(allocator);
    }
}

/* A queue whose options kept their handlers would tell of an end twice: each commit has options of its own. */
on_stage_with(test_R29_each_commit_has_options_of_its_own, .metal4 = true)
{
    gpusync_ticket tickets[3];
    note notes[3] = {0};
    set_quirk(QUIRK(options_keep_handlers), true);
    for (unsigned i = 0; i < 3; i++) {
        tickets[i] = commit_new(s->q[0]);
        on_done(ticket_at(s->q[0], tickets[i]), &notes[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_true(finish_next(s->q[0]));
        assert_int_equal(gpusync_in_flight(s->q[0]), 2 - i);
        assert_noted(&notes[i], GPUSYNC_OK);
    }
}

/* Room counts tickets, and UNORDERED work, whatever is in them: an upload thread with a limit of three. */
on_stage_with(test_R29_room_counts_tickets, .metal4 = true, .timelines = 1, .queue = {.max_command_buffer_count = 3})
{
    gpusync_queue_desc given = {.metal_queue = metal4_queue_new(s->metal_device), .max_command_buffer_count = 3};
    add_queue(s, 1, true, &given);
    for (unsigned i = 0; i < 2; i++) {
        gpusync_queue *q = s->q[i];
        void *refused = new_buffer(q);
        gpusync_ticket ticket = 7;
        commit_new(q);
        SUBMIT(q, BUFFERS(new_buffer(q), new_buffer(q)), SIGNALS(at(s->t[0], 10 * i + 1)), .flags = ON_GPU);
        SUBMIT(q, WAITS(at(s->t[0], 10 * i + 9))); /* nothing for Metal */
        assert_result(gpusync_commit(q, refused, &ticket), GPUSYNC_ERROR_QUEUE_FULL);
        assert_result(TRY_SUBMIT(q, NULL, BUFFERS(refused), .flags = UNORDERED), GPUSYNC_ERROR_QUEUE_FULL);
        assert_result(TRY_SUBMIT(q, &ticket, WAITS(at(s->t[0], 1))), GPUSYNC_ERROR_QUEUE_FULL);
        assert_int_equal(ticket, 7);
        assert_true(finish_next(q));
        assert_int_equal(commit(q, refused), 4);
        assert_result(gpusync_commit(q, new_buffer(q), &ticket), GPUSYNC_ERROR_QUEUE_FULL);
        finish_all(s);
        signal_value(s->t[0], 10 * i + 9);
        finish_all(s);
        assert_int_equal(gpusync_in_flight(q), 0);
        assert_int_equal(commit_new(q), 5);
    }
    metal_release(given.metal_queue);
}

/* A tool records hundreds of small jobs before it waits once. */
on_stage_with(test_R29_there_is_no_limit_by_default, .metal4 = true, .timelines = 1)
{
    enum { JOBS = 300 };
    for (unsigned i = 0; i < JOBS; i++)
        if (i % 2) commit_new(s->q[0]);
        else SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .flags = ON_GPU);
    assert_int_equal(gpusync_in_flight(s->q[0]), JOBS);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
}

/* A player has its feedback come on a dispatch queue of its own. */
on_stage_with(test_R29_feedback_may_come_on_the_programs_own_queue, .no_queue = true, .timelines = 1, .real = true)
{
    void *dispatch = dispatch_queue_create("feedback", NULL);
    gpusync_queue_desc desc = {.metal_queue = metal4_queue_new_on(s->metal_device, dispatch)};
    gpusync_queue *queue = add_queue(s, 1, true, &desc);
    note n = {0};
    gpusync_ticket ticket = SUBMIT(queue, BUFFERS(new_buffer(queue)), SIGNALS(at(s->t[0], 1)), .flags = ON_GPU);
    on_done(ticket_at(queue, ticket), &n);
    assert_ok(gpusync_timeline_wait(s->t[0], 1, SECONDS(60), NULL));
    assert_ok(gpusync_wait(queue, ticket, SECONDS(60), NULL));
    settle(s);
    assert_noted(&n, GPUSYNC_OK);
    destroy_queue(s, 1);
    assert_true(softmetal_settle(SECONDS(60)));
    metal_release(desc.metal_queue);
    dispatch_release(dispatch);
}

/* -- waits and signals, operations of the queue -------------------------------------------------------------------- */

/* A profiler sees what the queue gets ON_GPU: waits, the commit, the signals, and one more where there are signals. Of
   strict work it gets the commit alone, when each value is reached. The values from 1 on are those of other code: Metal
   may wait for them. */
on_stage_with(test_R29_R36_waits_and_signals_on_the_gpu_are_operations_of_the_queue, .metal4 = true)
{
    static const struct {
        unsigned waits, buffers, signals;
        uint32_t flags;
        const char *at_once, *at_last;
    } rows[] = {
        {0, 1, 0, ON_GPU, "c", "c"},
        {0, 1, 1, ON_GPU, "css", "css"},
        {1, 1, 0, ON_GPU, "wc", "wc"},
        {2, 3, 2, ON_GPU, "wwcsss", "wwcsss"},
        {2, 3, 2, ON_GPU | UNORDERED, "wwcsss", "wwcsss"},
        {2, 3, 2, 0, "", "c"},
        {0, 1, 2, 0, "c", "c"},
        {2, 1, 0, UNORDERED, "", "c"},
        {1, 0, 0, ON_GPU, "", ""},
        {2, 0, 2, ON_GPU, "", ""},
        {0, 0, 2, UNORDERED, "", ""},
        {0, 0, 0, 0, "", ""},
    };
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        gpusync_timeline *waited[2] = {of_others(s), of_others(s)};
        gpusync_timeline *signalled[2] = {new_timeline(s->device), new_timeline(s->device)};
        gpusync_point waits[2] = {at(waited[0], 1), at(waited[1], 2)};
        gpusync_point signals[2] = {at(signalled[0], 3), at(signalled[1], 4)};
        void *buffers[3] = {new_buffer(s->q[0]), new_buffer(s->q[0]), new_buffer(s->q[0])};
        bool ends = !rows[i].waits && !rows[i].buffers;
        note n = {0};
        gpusync_submission submission = {waits, rows[i].waits, buffers, rows[i].buffers, signals, rows[i].signals,
                                         remember, &n, NULL, rows[i].flags};
        forget_marks();
        for (unsigned k = 0; k < 3; k++) mark(s, buffers[k], k);
        watch(s->metal[0]);
        submit_at(s->q[0], &submission, __FILE__, __LINE__);
        assert_string_equal(sent.letters, rows[i].at_once);
        assert_int_equal(calls_of(&n), ends);
        if (rows[i].waits) assert_false(finish_next(s->q[0]));
        for (unsigned k = 0; k < rows[i].waits; k++) raise_event(waited[k], k + 1);
        assert_string_equal(sent.letters, rows[i].at_last);
        assert_int_equal(finish_next(s->q[0]), rows[i].buffers != 0);
        assert_noted(&n, GPUSYNC_OK);
        assert_int_equal(marks(), rows[i].buffers);
        for (unsigned k = 0; k < rows[i].signals; k++) assert_int_equal(value_of(signalled[k]), k + 3);
        assert_string_equal(sent.letters, rows[i].at_last);
        DROP(waited[0], waited[1], signalled[0], signalled[1]);
    }
}

/* A profiler sees what each frame of a queue signals, the frames in flight: on Metal 4 no signal waits for a lower one of
   its queue, whose operations are in order. Where one of them is not made there, the higher one is held. */
on_stage_with(test_R33_signals_of_one_queue_go_without_a_wait_in_between, .metal4 = true)
{
    static const struct {
        uint32_t lower, higher;
        bool imported, waits; /* waits: the lower one for its timeline, too, so that the host signals */
        const char *letters;
    } rows[] = {
        {ON_GPU, ON_GPU, false, false, "csscss"},
        {ON_GPU, ON_GPU, true, false, "csscss"},
        {ON_GPU, 0, false, false, "cssc"},
        {0, 0, false, false, "cc"},
        {0, ON_GPU, false, false, "c"},
        {ON_GPU, ON_GPU, true, true, "wc"},
        {ON_GPU | UNORDERED, ON_GPU, false, false, "css"},
        {ON_GPU, ON_GPU | UNORDERED, false, false, "css"},
    };
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        void *event = rows[i].imported ? metal_shared_event_new(s->metal_device) : NULL;
        gpusync_timeline *timeline = timeline_from(s->device, &(gpusync_timeline_desc){.shared_event = event});
        void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
        gpusync_point wait = at(timeline, 1), signal = at(timeline, 2);
        gpusync_submission lower = {&wait, rows[i].waits, &buffers[0], 1, &signal, 1, NULL, NULL, NULL, rows[i].lower};
        forget_marks();
        for (unsigned k = 0; k < 2; k++) mark(s, buffers[k], k);
        watch(s->metal[0]);
        submit_at(s->q[0], &lower, __FILE__, __LINE__);
        SUBMIT(s->q[0], BUFFERS(buffers[1]), SIGNALS(at(timeline, 3)), .flags = rows[i].higher);
        assert_string_equal(sent.letters, rows[i].letters);
        if (rows[i].waits) raise_event(timeline, 1);
        finish_all(s);
        assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
        assert_marks(0, 1);
        assert_int_equal(value_of(timeline), 3);
        DROP(timeline);
        metal_release(event);
    }
}

/* A streaming system waits for what is there already, and for tickets: the GPU is not asked. */
on_stage_with(test_R29_the_gpu_waits_for_no_ticket_and_for_nothing_that_has_come, .metal4 = true, .timelines = 1)
{
    gpusync_queue *plain = add_queue(s, 1, false, NULL);
    gpusync_ticket ended = commit_new(plain), running, ticket;
    finish_all(s);
    signal_value(s->t[0], 5);
    running = commit_new(plain);
    watch(s->metal[0]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 5), ticket_at(plain, ended)), BUFFERS(new_buffer(s->q[0])), .flags = ON_GPU);
    assert_string_equal(sent.letters, "c");
    ticket = SUBMIT(s->q[0], WAITS(ticket_at(plain, running)), BUFFERS(new_buffer(s->q[0])), .flags = ON_GPU);
    assert_string_equal(sent.letters, "c");
    assert_true(finish_next(plain));
    assert_string_equal(sent.letters, "cc");
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
}

/* A decoder waits on the queue on which frames are drawn: its wait delays them all, UNORDERED ones, too. */
on_stage_with(test_R29_a_wait_delays_all_later_work_of_the_queue, .metal4 = true, .timelines = 1,
              .timeline = {.signalled_by_others = true})
{
    for (unsigned i = 0; i < 4; i++) {
        uint32_t flags[2] = {ON_GPU | (i & 1 ? UNORDERED : 0), i & 2 ? UNORDERED : 0};
        void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
        SUBMIT(s->q[0], WAITS(at(s->t[0], i + 1)), BUFFERS(buffers[0]), .flags = flags[0]);
        SUBMIT(s->q[0], BUFFERS(buffers[1]), .flags = flags[1]);
        assert_true(is_sent(buffers[0]));
        assert_true(is_sent(buffers[1]));
        assert_false(finish_next(s->q[0]));
        raise_event(s->t[0], i + 1);
        for (unsigned k = 0; k < 2; k++) assert_true(finish_next(s->q[0]));
        assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    }
}

/* The feedback may be there before the thread that commits has sent the signals. */
static void *feedback_of;

static void finish_in_the_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    void *buffer = feedback_of;
    if (phase != SOFTMETAL_AFTER || strcmp(selector, "commit:count:options:") != 0 || !buffer) return;
    feedback_of = NULL;
    softmetal_finish(buffer);
}

on_stage_with(test_R29_a_feedback_may_come_inside_the_commit, .metal4 = true)
{
    for (unsigned i = 0; i < 4; i++) {
        void *buffer = new_buffer(s->q[0]);
        gpusync_timeline *go = new_timeline(s->device), *timeline = new_timeline(s->device);
        gpusync_point wait = at(go, 1), signal = at(timeline, 1);
        gpusync_submission submission = {.wait_points = &wait, .command_buffers = &buffer, .command_buffer_count = 1,
                                         .signal_points = &signal, .signal_count = i & 1, .flags = ON_GPU};
        submission.wait_count = i >> 1; /* sent in the call, or as the host signals */
        feedback_of = buffer;
        softmetal_set_message_hook(finish_in_the_commit, NULL);
        gpusync_ticket ticket = submit_at(s->q[0], &submission, __FILE__, __LINE__);
        signal_value(go, 1);
        softmetal_set_message_hook(NULL, NULL);
        assert_null(feedback_of);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        assert_int_equal(value_of(timeline), i & 1);
        DROP(go, timeline);
        assert_true(softmetal_settle_listeners(SECONDS(60)));
        assert_int_equal(softmetal_retain_count(buffer), 1);
    }
}

/* -- both kinds of queue ------------------------------------------------------------------------------------------- */

/* Two simulations, one on each kind of queue, take turns on one timeline; sent forwards, or accepted backwards. */
on_stage_with(test_R29_both_kinds_of_queue_take_turns, .mixed = true, .queues = 2)
{
    enum { TURNS = 12 };
    static const uint32_t kinds[] = {ON_GPU, ON_GPU | UNORDERED, 0, UNORDERED};
    for (unsigned i = 0; i < LENGTH(kinds); i++)
        for (unsigned backwards = 0; backwards < 2; backwards++) {
            gpusync_timeline *timeline = new_timeline(s->device);
            forget_marks();
            for (unsigned k = 0; k < TURNS; k++) {
                unsigned turn = backwards ? TURNS - 1 - k : k;
                void *buffer = new_buffer(s->q[turn & 1]);
                mark(s, buffer, turn);
                SUBMIT(s->q[turn & 1], WAITS(at(timeline, turn)), BUFFERS(buffer), SIGNALS(at(timeline, turn + 1)),
                       .flags = kinds[i] | (backwards ? UNORDERED : 0));
            }
            finish_all(s);
            for (unsigned k = 0; k < 2; k++) assert_true(gpusync_is_done(s->q[k], GPUSYNC_EVERYTHING));
            assert_int_equal(value_of(timeline), TURNS);
            assert_int_equal(marks(), TURNS);
            for (unsigned k = 0; k < TURNS; k++) assert_int_equal(mark_at(k), k);
            assert_ok(gpusync_timeline_destroy(timeline));
        }
}

/* Four threads, each with its own chain across both kinds, on the real clock. (Points and failures between both kinds:
   the other programs, on_all_kinds.) */
enum { ROUNDS = 40 };

typedef struct chain {
    stage *s;
    gpusync_timeline *timeline;
    unsigned first;
} chain;

static void *run_chain(void *argument)
{
    static const uint32_t kinds[] = {ON_GPU, ON_GPU | UNORDERED, 0, UNORDERED};
    chain *c = (chain *)argument;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        gpusync_queue *queue = c->s->q[(i + c->first) % 2];
        gpusync_point wait = at(c->timeline, i), signal = at(c->timeline, i + 1);
        void *buffer = new_buffer(queue);
        gpusync_submission submission = {.wait_points = &wait, .wait_count = 1, .command_buffers = &buffer,
                                         .command_buffer_count = 1, .signal_points = &signal, .signal_count = 1,
                                         .flags = kinds[i % LENGTH(kinds)]};
        must(gpusync_submit(queue, &submission, NULL) == GPUSYNC_OK, "a submission is accepted");
        if (i % 8 == 7)
            must(gpusync_timeline_wait(c->timeline, i, SECONDS(60), NULL) == GPUSYNC_OK, "a value comes");
        if (i % 8 == 3) must(gpusync_wait(queue, GPUSYNC_EVERYTHING, SECONDS(60), NULL) == GPUSYNC_OK, "all of it ends");
    }
    return NULL;
}

on_stage_with(test_R29_threads_send_chains_across_both_kinds, .mixed = true, .queues = 2, .timelines = STAGE_MOST,
              .real = true, .threads = true)
{
    chain chains[STAGE_MOST];
    pthread_t threads[STAGE_MOST];
    for (unsigned i = 0; i < STAGE_MOST; i++) {
        chains[i] = (chain){s, s->t[i], i};
        threads[i] = start(run_chain, &chains[i]);
    }
    for (unsigned i = 0; i < STAGE_MOST; i++) join(threads[i]);
    assert_ok(gpusync_device_wait(s->device, SECONDS(60), NULL));
    for (unsigned i = 0; i < STAGE_MOST; i++) assert_int_equal(value_of(s->t[i]), ROUNDS);
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

/* A crash reporter sorts by class: without a number of the driver's the code of Metal 4's own list decides. */
without_stage(test_R29_the_code_of_metal_4_gives_the_class)
{
    static const struct {
        const char *domain;
        long code;
        gpusync_failure failure;
        bool transient, lost;
    } rows[] = {
        {NULL, 1, GPUSYNC_FAILURE_GPU_TIMEOUT, false, false},
        {NULL, 2, GPUSYNC_FAILURE_NOT_PERMITTED, true, false},
        {NULL, 3, GPUSYNC_FAILURE_OUT_OF_MEMORY, true, false},
        {NULL, 4, GPUSYNC_FAILURE_DEVICE_REMOVED, false, true},
        {NULL, 5, GPUSYNC_FAILURE_ACCESS_REVOKED, false, true},
        {NULL, 6, GPUSYNC_FAILURE_OTHER, false, false},
        {NULL, 8, GPUSYNC_FAILURE_OTHER, false, false},
        {NULL, -4, GPUSYNC_FAILURE_OTHER, false, false},
        {NULL, 4294967296 + 4, GPUSYNC_FAILURE_OTHER, false, false},
        {"MTL4CommandQueueErrorDomain", 5, GPUSYNC_FAILURE_ACCESS_REVOKED, false, true},
        {"MTLCommandBufferErrorDomain", 8, GPUSYNC_FAILURE_OUT_OF_MEMORY, true, false},
        {"MTLCommandBufferErrorDomain", 1, GPUSYNC_FAILURE_OTHER, false, false},
        {"MTL4CommandQueueErrorDomain2", 3, GPUSYNC_FAILURE_OTHER, false, false},
    };
    for (unsigned i = 0; i < LENGTH(rows); i++)
        for (unsigned bare = 0; bare < 2; bare++) {
            static const stage_desc desc = {.metal4 = true};
            const char *domain = rows[i].domain ? rows[i].domain : "MTL4CommandQueueErrorDomain";
            stage s;
            stage_open(&s, &desc);
            set_quirk(QUIRK(bare_errors), true); /* no number of the driver's */
            set_quirk(QUIRK(bare_feedback_errors), bare);
            void *buffer = named_buffer(s.q[0], "the culprit");
            softmetal_fail(buffer, rows[i].domain, rows[i].code, "a text");
            gpusync_ticket ticket = SUBMIT(s.q[0], BUFFERS(buffer, new_buffer(s.q[0])), .label = "not this one");
            assert_true(finish_next(s.q[0]));
            assert_result(gpusync_poll(s.q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
            gpusync_error error = failure_at(s.q[0], 0);
            assert_int_equal(error.failure, rows[i].failure);
            assert_int_equal(error.transient, rows[i].transient);
            assert_int_equal(error.code, rows[i].code);
            assert_string_equal(error.domain, domain);
            assert_string_equal(error.message, "a text");
            assert_string_equal(error.label, "the culprit");
            assert_string_equal(error.queue_label, "first");
            assert_true(error.ran);
            assert_false(error.inherited);
            assert_int_equal(gpusync_device_is_lost(s.device), rows[i].lost);
            assert_true(log_has(GPUSYNC_LOG_ERROR, "the culprit"));
            stage_close(&s);
        }
}

/* The driver's number stands two errors deep, the text and the code one deep: the outer one of Metal 4 says nothing. */
on_stage_with(test_R29_the_error_inside_the_wrapper_is_told, .metal4 = true)
{
    static const struct {
        unsigned reason;
        long code;
        gpusync_failure failure;
    } rows[] = {
        {SOFTMETAL_PAGE_FAULT, 6, GPUSYNC_FAILURE_PAGE_FAULT},
        {SOFTMETAL_IMPACTING_INTERACTIVITY, 6, GPUSYNC_FAILURE_GPU_TIMEOUT},
        {SOFTMETAL_OUT_OF_MEMORY, 3, GPUSYNC_FAILURE_OUT_OF_MEMORY},
        {SOFTMETAL_INTERNAL, 6, GPUSYNC_FAILURE_OTHER},
    };
    static const char *const texts[] = {NULL, "no number in this text"};
    unsigned i, k, n = 0;
    for (i = 0; i < LENGTH(rows); i++)
        for (k = 0; k < 4; k++) {
            void *buffer = new_buffer(s->q[0]);
            set_quirk(QUIRK(bare_feedback_errors), k & 1);
            softmetal_fail_as(buffer, rows[i].reason, texts[k >> 1]);
            gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(buffer), .label = "a submission");
            assert_true(finish_next(s->q[0]));
            assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
            gpusync_error error = failure_at(s->q[0], n++);
            assert_int_equal(error.failure, rows[i].failure);
            assert_int_equal(error.code, rows[i].code);
            assert_string_equal(error.domain, "MTL4CommandQueueErrorDomain");
            if (texts[k >> 1]) assert_string_equal(error.message, texts[k >> 1]);
            else assert_non_null(strchr(error.message, '('));
            assert_string_equal(error.label, "a submission"); /* the buffer has none */
        }
}

/* A server keeps one failure on record. UNORDERED work has no ticket that its record could stand for. */
on_both_kinds_with(test_R30_a_record_of_unordered_work_that_is_pushed_out_hides_no_ticket, .queue = {.error_log_count = 1})
{
    gpusync_ticket ticket = commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    for (unsigned i = 0; i < 2; i++) {
        void *buffer = new_buffer(s->q[0]);
        softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        SUBMIT(s->q[0], BUFFERS(buffer), .flags = UNORDERED);
    }
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_RESULT_UNKNOWN);
}

/* Somebody pulls the plug of an external GPU. */
on_stage_with(test_R29_a_removed_device_is_lost, .metal4 = true, .timelines = 2)
{
    gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 1)), .flags = ON_GPU);
    gpusync_ticket held = SUBMIT(s->q[0], WAITS(at(s->t[1], 1)), BUFFERS(new_buffer(s->q[0])), .flags = ON_GPU);
    void *buffer = new_buffer(s->q[0]), *own = softmetal_last_signalled(s->metal[0]);
    softmetal_remove_device(s->metal_device);
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failure_at(s->q[0], 0).failure, GPUSYNC_FAILURE_DEVICE_REMOVED);
    assert_int_equal(failure_at(s->q[0], 0).code, 4);
    assert_true(gpusync_device_is_lost(s->device));
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_commit(s->q[0], buffer, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_failed(s->t[0], GPUSYNC_ERROR_EXECUTION);
    metal_event_signal(own, 1); /* a removed device makes no signal: so that the test leaves nothing */
    assert_true(softmetal_settle_listeners(SECONDS(60)));
}

/* A watchdog ends a wait that takes too long, and Metal 4 runs the work all the same: it read what was not there. */
typedef enum cut { STAYS, COMES, FAILS_ITSELF, SECOND_OF_TWO, CUTS } cut;

on_stage_with(test_R29_a_wait_that_metal_gave_up_fails_the_work, .metal4 = true)
{
    static const struct {
        cut how;
        gpusync_result result;
        gpusync_failure failure;
    } rows[] = {
        {STAYS, GPUSYNC_ERROR_EXECUTION, GPUSYNC_FAILURE_GPU_TIMEOUT},
        {COMES, GPUSYNC_OK, GPUSYNC_FAILURE_NONE}, /* a value that is reached meanwhile hides it: the front says so */
        {FAILS_ITSELF, GPUSYNC_ERROR_EXECUTION, GPUSYNC_FAILURE_PAGE_FAULT}, /* what Metal tells comes first */
        {SECOND_OF_TWO, GPUSYNC_ERROR_EXECUTION, GPUSYNC_FAILURE_GPU_TIMEOUT},
    };
    static const gpusync_timeline_desc order = {.order_only = true};
    unsigned i, several, n = 0;
    for (i = 0; i < LENGTH(rows); i++)
        for (several = 0; several < 2; several++) {
            gpusync_timeline *waited[2] = {of_others(s), of_others(s)};
            gpusync_timeline *signalled = new_timeline(s->device), *rises = NULL;
            void *buffers[2] = {named_buffer(s->q[0], "the reader"), named_buffer(s->q[0], "another")};
            gpusync_point waits[2] = {at(waited[1], 1), at(waited[0], 1)};
            gpusync_point signals[2] = {at(signalled, 1), {0}};
            gpusync_submission submission = {waits, 2, buffers, 1 + several, signals, 2, NULL, NULL, "a label", ON_GPU};
            assert_ok(gpusync_timeline_create(s->device, &order, &rises));
            signals[1] = at(rises, 1);
            forget_marks();
            mark(s, buffers[0], 1);
            if (rows[i].how == FAILS_ITSELF) softmetal_fail_as(buffers[0], SOFTMETAL_PAGE_FAULT, NULL);
            gpusync_ticket ticket = submit_at(s->q[0], &submission, __FILE__, __LINE__);
            raise_event(waited[1], 1);
            softmetal_time_out(buffers[0]);
            if (rows[i].how == COMES) raise_event(waited[0], 1);
            assert_true(finish_next(s->q[0]));
            assert_result(gpusync_poll(s->q[0], ticket, NULL), rows[i].result);
            if (rows[i].result != GPUSYNC_OK) {
                gpusync_error error = failure_at(s->q[0], n++);
                assert_int_equal(error.failure, rows[i].failure);
                assert_true(error.ran);
                assert_false(error.inherited);
                assert_string_equal(error.label, "the reader");
                assert_string_equal(error.queue_label, "first");
                assert_int_equal(error.domain[0] != '\0', rows[i].how == FAILS_ITSELF);
                if (rows[i].how != FAILS_ITSELF) assert_non_null(strstr(error.message, "gave up a wait"));
                assert_failed(signalled, GPUSYNC_ERROR_EXECUTION);
            } else {
                assert_int_equal(value_of(signalled), 1);
            }
            if (rows[i].how != FAILS_ITSELF) assert_marks(1); /* it ran */
            finish_all(s);
            assert_int_equal(value_of(rises), 1);
            assert_int_equal(failures_of(s->q[0]), n);
            DROP(waited[0], waited[1], signalled, rises);
        }
}

/* A value of a timeline that begins above 0 on its event: the wait is for the sum of both. */
on_stage_with(test_R29_a_wait_that_was_given_up_is_judged_by_the_events_value, .metal4 = true, .timelines = 1)
{
    gpusync_queue *plain = add_queue(s, 1, false, NULL);
    void *reader = new_buffer(s->q[0]), *writer = new_buffer(plain);
    uint64_t base = 0;
    signal_value(s->t[0], 5);
    drop_timeline(s, 0); /* its event goes to the next one */
    s->t[0] = new_timeline(s->device);
    gpusync_timeline_metal(s->t[0], &base);
    assert_int_equal(base, 5);
    encode_signal(plain, writer, at(s->t[0], 1));
    commit(plain, writer);
    gpusync_ticket ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(reader), .flags = ON_GPU);
    softmetal_time_out(reader);
    assert_true(finish_next(s->q[0]));
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failure_at(s->q[0], 0).failure, GPUSYNC_FAILURE_GPU_TIMEOUT);
    assert_true(finish_next(plain));
    assert_int_equal(value_of(s->t[0]), 1);
    ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .flags = ON_GPU);
    assert_true(finish_next(s->q[0]));
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
}

/* The work signals what it waits for: its own signal must not pass for the value that did not come. */
on_stage_with(test_R29_a_signal_of_the_work_does_not_hide_that_its_wait_was_given_up, .metal4 = true, .timelines = 2)
{
    gpusync_queue *plain = add_queue(s, 1, false, NULL);
    void *reader = new_buffer(s->q[0]), *writer = new_buffer(plain);
    gpusync_ticket ticket;
    encode_signal(plain, writer, at(s->t[0], 1));
    commit(plain, writer);
    watch(s->metal[0]);
    ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(reader), SIGNALS(at(s->t[0], 2), at(s->t[1], 1)),
                    .flags = ON_GPU);
    softmetal_set_message_hook(NULL, NULL);
    assert_string_equal(sent.letters, "wcss"); /* the host signals t[0]; behind t[1] comes the queue's own event */
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    softmetal_time_out(reader);
    assert_true(finish_next(s->q[0]));
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(failure_at(s->q[0], 0).failure, GPUSYNC_FAILURE_GPU_TIMEOUT);
    assert_true(finish_next(plain));
    assert_failed(s->t[0], GPUSYNC_ERROR_EXECUTION);
}

/* -- times, and feedback that is lost ------------------------------------------------------------------------------ */

static double gpu_seconds = 0;

static double tick(void)
{
    gpu_seconds += 1;
    return gpu_seconds;
}

/* A frame pacer asks how long the GPU took: the feedback tells, once for all command buffers of the commit. */
on_stage_with(test_R29_the_feedback_has_the_times, .metal4 = true, .timelines = 2)
{
    softmetal_set_gpu_clock(tick);
    for (unsigned fails = 0; fails < 2; fails++) {
        void *buffer = new_buffer(s->q[0]);
        gpusync_times times = {7, 7};
        if (fails) softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(buffer, new_buffer(s->q[0])), SIGNALS(at(s->t[fails], 1)));
        assert_result(gpusync_poll(s->q[0], ticket, &times), GPUSYNC_NOT_READY);
        assert_true(times.gpu_start_s == 0 && times.gpu_end_s == 0);
        assert_true(finish_next(s->q[0]));
        assert_result(gpusync_poll(s->q[0], ticket, &times), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_true(times.gpu_start_s > 0 && times.gpu_end_s > times.gpu_start_s);
        assert_true(times.gpu_start_s == metal_gpu_start(softmetal_run_of(buffer)));
        assert_true(times.gpu_end_s == metal_gpu_end(softmetal_run_of(buffer)));
    }
    softmetal_set_gpu_clock(NULL);
}

/* Metal drops the block of a feedback that it never gave. No look helps: nothing but the feedback tells of the end. */
on_stage_with(test_R29_without_its_feedback_a_ticket_never_ends, .metal4 = true, .timelines = 2)
{
    void *lost = new_buffer(s->q[0]);
    gpusync_ticket tickets[2];
    note notes[3] = {0};
    size_t count;
    softmetal_lose_handlers(lost);
    tickets[0] = SUBMIT(s->q[0], BUFFERS(lost), SIGNALS(at(s->t[0], 1)), .flags = ON_GPU);
    tickets[1] = commit_new(s->q[0]);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[1], 1)), .on_complete = remember, .user = &notes[2],
           .flags = UNORDERED);
    for (unsigned i = 0; i < 2; i++) on_done(ticket_at(s->q[0], tickets[i]), &notes[i]);
    finish_all(s);
    assert_result(gpusync_wait(s->q[0], tickets[0], MS(120), NULL), GPUSYNC_TIMEOUT); /* it has looked, too */
    assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, &count));
    assert_result(gpusync_poll(s->q[0], tickets[0], NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s->q[0], tickets[1], NULL), GPUSYNC_NOT_READY); /* ordered: in its turn */
    assert_noted(&notes[2], GPUSYNC_OK);
    assert_false(gpusync_is_done(s->q[0], tickets[0]));
    assert_int_equal(gpusync_in_flight(s->q[0]), 2);
    assert_int_equal(value_of(s->t[0]), 0); /* though the GPU has signalled it */
    assert_ok(gpusync_queue_abandon(s->q[0]));
    s->q[0] = NULL;
    assert_noted(&notes[0], GPUSYNC_ERROR_DESTROYED);
    assert_noted(&notes[1], GPUSYNC_ERROR_DESTROYED); /* its turn has not come */
    assert_failed(s->t[0], GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(value_of(s->t[1]), 1);
}

/* ... on a lost device the destroy gives such work up after a second. */
on_stage_with(test_R29_a_lost_device_lets_go_what_has_no_feedback, .metal4 = true)
{
    void *lost = new_buffer(s->q[0]);
    note n = {0};
    gpusync_ticket ticket = commit(s->q[0], lost);
    softmetal_lose_handlers(lost);
    on_done(ticket_at(s->q[0], ticket), &n);
    commit_failing(s->q[0], SOFTMETAL_SUBMISSIONS_IGNORED);
    finish_all(s);
    assert_true(gpusync_device_is_lost(s->device));
    assert_result(gpusync_queue_destroy(s->q[0]), GPUSYNC_ERROR_DEVICE_LOST);
    s->q[0] = NULL;
    assert_noted(&n, GPUSYNC_ERROR_DEVICE_LOST);
}

/* -- lifetimes: what the queue has not made yet -------------------------------------------------------------------- */

typedef enum ending { IS_DESTROYED, IS_ABANDONED, GOES_LATER, ENDINGS } ending;

static void end_queue(stage *s, unsigned i, ending how)
{
    gpusync_queue *queue = s->q[i];
    s->q[i] = NULL;
    if (how == IS_DESTROYED) assert_ok(gpusync_queue_destroy(queue));
    if (how == IS_ABANDONED) assert_ok(gpusync_queue_abandon(queue));
    if (how == GOES_LATER) assert_ok(gpusync_queue_destroy_later(queue, NULL, NULL));
    run_callbacks(s);
}

/* A level is unloaded with its queue and its timelines, and the queue has signals to make still: Metal keeps nothing
   for them. The host, another queue or a failure may have passed the values meanwhile. */
typedef enum meanwhile { NOTHING, HOST_PASSES, HOST_FAILS, WORK_FAILS, MEANWHILES } meanwhile;

static void leave_signals(stage *s, size_t quirk, ending how, meanwhile what, bool timelines_first)
{
    void *buffer = new_buffer(s->q[0]), *metal = s->metal[0];
    if (what == WORK_FAILS) softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    SUBMIT(s->q[0], BUFFERS(buffer), SIGNALS(at(s->t[0], 1), at(s->t[1], 5), at(s->t[1], 6), at(s->t[2], 2)),
           .flags = ON_GPU);
    set_quirk(quirk, true);
    assert_true(finish_next(s->q[0]));
    for (unsigned i = 0; i < 3; i++) {
        if (what == HOST_PASSES) signal_value(s->t[i], 9);
        if (what == HOST_FAILS) assert_ok(gpusync_timeline_fail(s->t[i], NULL));
        if (what == NOTHING) assert_int_equal(value_of(s->t[i]), i == 0 ? 1 : i == 1 ? 6 : 2);
        if (what == WORK_FAILS) assert_failed(s->t[i], GPUSYNC_ERROR_EXECUTION);
    }
    for (unsigned i = 0; i < 3 && timelines_first; i++) drop_timeline(s, i);
    end_queue(s, 0, how);
    for (unsigned i = 0; i < 3 && !timelines_first; i++) drop_timeline(s, i);
    assert_int_equal(softmetal_live("queue_operation"), 5);
    assert_int_equal(softmetal_live("shared_event"), 4); /* the queue's own, too */
    assert_true(softmetal_retain_count(metal) > 1);
    set_quirk(quirk, false);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_int_equal(softmetal_live("queue_operation"), 0);
    assert_int_equal(softmetal_retain_count(buffer), 1);
    assert_int_equal(softmetal_retain_count(metal), 2); /* the stage, and the run of the kit's buffer */
}

without_stage(test_R29_what_signals_use_stays_until_the_queue_has_made_them)
{
    static const size_t quirks[] = {QUIRK(signals_late), QUIRK(signals_held)};
    for (unsigned quirk = 0; quirk < LENGTH(quirks); quirk++)
        for (unsigned how = 0; how < ENDINGS; how++)
            for (unsigned what = 0; what < MEANWHILES; what++)
                for (unsigned timelines_first = 0; timelines_first < 2; timelines_first++) {
                    static const stage_desc desc = {.metal4 = true, .timelines = 3};
                    stage s;
                    stage_open(&s, &desc);
                    leave_signals(&s, quirks[quirk], (ending)how, (meanwhile)what, timelines_first);
                    stage_close(&s);
                }
}

/* A signal that comes late takes no failure back. */
on_stage_with(test_R29_a_late_signal_takes_no_failure_of_the_host_back, .metal4 = true, .timelines = 1)
{
    void *event = gpusync_timeline_metal(s->t[0], NULL);
    set_quirk(QUIRK(signals_held), true);
    set_quirk(QUIRK(falling_events), true);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 1)), .flags = ON_GPU);
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 1);
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
    assert_true(metal_event_value(event) == UINT64_MAX);
    set_quirk(QUIRK(signals_held), false);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_true(metal_event_value(event) == UINT64_MAX);
}

/* A queue is abandoned while the GPU has its work, or waits in front of it; then timelines and device go, too. */
without_stage(test_R29_what_is_abandoned_in_flight_is_kept)
{
    for (unsigned waits = 0; waits < 2; waits++)
        for (unsigned signals = 0; signals < 2; signals++)
            for (unsigned last = 0; last < 2; last++) { /* the timelines go last */
                static const stage_desc desc = {.metal4 = true, .timelines = 1};
                gpusync_submission submission = {.command_buffer_count = 2, .wait_count = waits,
                                                 .signal_count = signals, .flags = ON_GPU};
                void *buffers[2], *event;
                stage s;
                stage_open(&s, &desc);
                gpusync_timeline *others = of_others(&s);
                gpusync_point wait = at(others, 1);
                gpusync_point signal = at(s.t[0], 1);
                buffers[0] = new_buffer(s.q[0]);
                buffers[1] = new_buffer(s.q[0]);
                submission.wait_points = &wait;
                submission.signal_points = &signal;
                submission.command_buffers = buffers;
                submit_at(s.q[0], &submission, __FILE__, __LINE__);
                event = metal_retain(gpusync_timeline_metal(others, NULL));
                if (!last) assert_ok(gpusync_timeline_destroy(others));
                if (!last) drop_timeline(&s, 0);
                end_queue(&s, 0, IS_ABANDONED);
                if (last) assert_ok(gpusync_timeline_destroy(others));
                if (last) drop_timeline(&s, 0);
                assert_int_equal(softmetal_live("queue_operation"), waits + 2 * signals);
                assert_int_equal(softmetal_retain_count(buffers[1]), 2);
                assert_true(softmetal_retain_count(event) > 1u || !waits);
                metal_event_signal(event, 1);
                finish_all(&s);
                assert_true(softmetal_settle_listeners(SECONDS(60)));
                assert_int_equal(softmetal_retain_count(buffers[1]), 1);
                assert_int_equal(softmetal_live("queue_operation"), 0);
                metal_release(event);
                stage_close(&s);
            }
}

/* A program shuts down at once behind its last frame: the device's destroy waits until the signals have come, for a
   second at most, and says then that something is left. */
static gpusync_result destroy_device(void *device)
{
    return gpusync_device_destroy((gpusync_device *)device);
}

without_stage(test_R29_the_device_waits_for_late_signals_and_not_for_ever)
{
    for (unsigned come = 0; come < 2; come++) {
        static const stage_desc desc = {.metal4 = true, .timelines = 1};
        job j = {0};
        stage s;
        stage_open(&s, &desc);
        SUBMIT(s.q[0], BUFFERS(new_buffer(s.q[0])), SIGNALS(at(s.t[0], 1)), .flags = ON_GPU);
        set_quirk(QUIRK(signals_late), true);
        finish_all(&s);
        drop_timeline(&s, 0);
        destroy_queue(&s, 0);
        gpusync_device *device = s.device;
        s.device = NULL;
        job_call(&j, destroy_device, device);
        await_parked(1);
        if (!come) assert_ok(job_end(&j));
        set_quirk(QUIRK(signals_late), false);
        if (come) assert_ok(job_end(&j));
        assert_int_equal(log_has(GPUSYNC_LOG_WARNING, "Metal still has blocks"), !come);
        assert_true(softmetal_settle_listeners(SECONDS(60)));
        stage_close(&s);
    }
}

/* Metal may not make the signals behind failed work: what they use stays for the next signals of the queue, or for
   good; then the log says so. */
on_stage_with(test_R29_signals_that_die_with_a_failure_go_with_the_next_or_are_said_in_the_log, .metal4 = true,
              .timelines = 2)
{
    void *failing = new_buffer(s->q[0]), *next = new_buffer(s->q[0]), *last = new_buffer(s->q[0]), *own;
    set_quirk(QUIRK(signals_die_with_failure), true);
    softmetal_fail_as(failing, SOFTMETAL_PAGE_FAULT, NULL);
    gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(failing), SIGNALS(at(s->t[0], 1)), .flags = ON_GPU);
    finish_all(s);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_failed(s->t[0], GPUSYNC_ERROR_EXECUTION);
    drop_timeline(s, 0);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    assert_int_equal(softmetal_retain_count(failing), 2);
    commit_new(s->q[0]);
    finish_all(s);
    assert_int_equal(softmetal_retain_count(failing), 2); /* a commit without signals tells of none */
    SUBMIT(s->q[0], BUFFERS(next), SIGNALS(at(s->t[1], 1)), .flags = ON_GPU);
    finish_all(s);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_int_equal(value_of(s->t[1]), 1);
    assert_int_equal(softmetal_retain_count(failing), 1);
    assert_int_equal(softmetal_retain_count(next), 1);
    softmetal_fail_as(last, SOFTMETAL_PAGE_FAULT, NULL);
    SUBMIT(s->q[0], BUFFERS(last), SIGNALS(at(s->t[1], 2)), .flags = ON_GPU);
    finish_all(s);
    own = softmetal_last_signalled(s->metal[0]);
    destroy_queue(s, 0);
    drop_timeline(s, 1);
    assert_ok(gpusync_device_destroy(s->device));
    s->device = NULL;
    assert_true(log_has(GPUSYNC_LOG_WARNING, "Metal still has blocks"));
    assert_int_equal(softmetal_retain_count(last), 2);
    metal_event_signal(own, 4); /* so that the test leaves nothing */
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_int_equal(softmetal_retain_count(last), 1);
}

/* A queue that makes a later signal first, by a millisecond: the values are right all the same. (Its events have to
   outlive it: gpusync takes it that a queue makes its signals in their order.) */
on_stage_with(test_R29_values_are_right_though_signals_overtake_each_other, .mixed = true, .queues = 2, .timelines = 2,
              .real = true, .threads = true)
{
    set_quirk(QUIRK(overtaken_signals), true);
    for (uint64_t i = 0; i < 8; i++) {
        gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])),
                                       SIGNALS(at(s->t[0], i + 1), at(s->t[1], 2 * i + 1), at(s->t[1], 2 * i + 2)),
                                       .flags = ON_GPU);
        gpusync_ticket behind = SUBMIT(s->q[1], WAITS(at(s->t[1], 2 * i + 2), at(s->t[0], i + 1)),
                                       BUFFERS(new_buffer(s->q[1])), .flags = ON_GPU);
        assert_ok(gpusync_timeline_wait(s->t[1], 2 * i + 2, SECONDS(60), NULL));
        assert_ok(gpusync_wait(s->q[0], ticket, SECONDS(60), NULL));
        assert_ok(gpusync_wait(s->q[1], behind, SECONDS(60), NULL));
        assert_int_equal(value_of(s->t[0]), i + 1);
    }
    assert_true(softmetal_settle(SECONDS(60)));
}

/* Events may just store: the signal of 1 comes behind its feedback, when another queue has signalled 2 already, and the
   event falls to 1. Work of a third queue that comes to its wait for 2 only now must not wait for ever. */
on_stage_with(test_R29_a_late_signal_lowers_no_event, .mixed = true, .queues = 3)
{
    for (unsigned over = 0; over < 2; over++) { /* or the GPU has made that signal, and its work has not ended */
        gpusync_timeline *timeline = new_timeline(s->device);
        void *two = metal_retain(new_buffer(s->q[1]));
        set_quirk(QUIRK(falling_events), true);
        set_quirk(QUIRK(signals_late), true);
        SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(timeline, 1)), .flags = ON_GPU);
        assert_true(finish_next(s->q[0]));
        SUBMIT(s->q[1], BUFFERS(two), SIGNALS(at(timeline, 2)), .flags = ON_GPU);
        gpusync_ticket first = commit_new(s->q[2]);
        gpusync_ticket second = SUBMIT(s->q[2], WAITS(at(timeline, 2)), BUFFERS(new_buffer(s->q[2])), .flags = ON_GPU);
        if (over) {
            while (finish_next(s->q[1])) {}
        } else {
            softmetal_schedule(two);
            softmetal_execute(two);
        }
        metal_release(two);
        assert_int_equal(value_of(timeline), 1 + over);
        set_quirk(QUIRK(signals_late), false);
        assert_true(softmetal_settle_listeners(SECONDS(60)));
        finish_all(s);
        assert_ok(gpusync_poll(s->q[2], first, NULL));
        assert_ok(gpusync_poll(s->q[2], second, NULL)); /* NOT_READY: the event shows 1 */
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

/* ... nor may it take the value of a failure back, or what the host has signalled. */
on_stage_with(test_R29_a_late_signal_takes_no_failure_back, .mixed = true, .queues = 3)
{
    unsigned how;
    for (how = 0; how < 3; how++) { /* the host signals more; fails the timeline; and the work in between fails, too */
        gpusync_timeline *timeline = new_timeline(s->device), *other = new_timeline(s->device);
        void *between = new_buffer(s->q[1]);
        gpusync_ticket ticket;
        set_quirk(QUIRK(falling_events), true);
        set_quirk(QUIRK(signals_late), true);
        SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(other, 1), at(timeline, 1)), .flags = ON_GPU);
        assert_true(finish_next(s->q[0]));
        if (how == 2) softmetal_fail_as(between, SOFTMETAL_PAGE_FAULT, NULL);
        if (how) SUBMIT(s->q[1], BUFFERS(between), SIGNALS(at(timeline, 2)), .flags = ON_GPU);
        if (how) ticket = SUBMIT(s->q[2], WAITS(at(timeline, 2)), BUFFERS(new_buffer(s->q[2])), .flags = ON_GPU);
        else ticket = commit_new(s->q[2]);
        if (how) assert_ok(gpusync_timeline_fail(timeline, NULL));
        else signal_value(timeline, 2);
        set_quirk(QUIRK(signals_late), false);
        assert_true(softmetal_settle_listeners(SECONDS(60)));
        finish_all(s);
        assert_result(gpusync_poll(s->q[2], ticket, NULL), how ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_true(metal_event_value(gpusync_timeline_metal(timeline, NULL)) >= (how ? UINT64_MAX : 2));
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_ok(gpusync_timeline_destroy(other));
        set_quirk(QUIRK(falling_events), false);
    }
}

/* UNORDERED work goes to Metal before a ticket below it: its signals do not stand for those of that ticket. */
on_stage_with(test_R29_signals_of_work_that_passed_let_nothing_go, .metal4 = true, .timelines = 3)
{
    void *held = new_buffer(s->q[0]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(held), SIGNALS(at(s->t[1], 1)), .flags = ON_GPU);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[2], 1)), .flags = UNORDERED | ON_GPU);
    assert_true(finish_next(s->q[0]));
    assert_int_equal(value_of(s->t[2]), 1);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    set_quirk(QUIRK(signals_late), true);
    signal_value(s->t[0], 1);
    assert_true(finish_next(s->q[0]));
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL));
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_int_equal(softmetal_retain_count(held), 2); /* the queue has not signalled behind it */
    set_quirk(QUIRK(signals_late), false);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_int_equal(softmetal_retain_count(held), 1);
}

/* Several frames in flight signal several timelines: what each uses goes in the order of the queue's signals. */
on_stage_with(test_R29_what_many_signals_use_goes_in_their_order, .metal4 = true, .timelines = 4)
{
    enum { FRAMES = 6 };
    void *buffers[FRAMES];
    set_quirk(QUIRK(signals_late), true);
    for (unsigned i = 0; i < FRAMES; i++) {
        gpusync_point signals[2] = {at(s->t[i % 3], i + 1), at(s->t[3], i + 1)};
        gpusync_submission submission = {.command_buffers = &buffers[i], .command_buffer_count = 1,
                                         .signal_points = signals, .signal_count = i % 3, .flags = ON_GPU};
        buffers[i] = new_buffer(s->q[0]);
        submit_at(s->q[0], &submission, __FILE__, __LINE__);
    }
    finish_all(s);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL));
    assert_int_equal(value_of(s->t[3]), FRAMES);
    for (unsigned i = 0; i < FRAMES; i++) assert_int_equal(softmetal_retain_count(buffers[i]), i % 3 ? 2 : 1);
    metal_event_signal(softmetal_last_signalled(s->metal[0]), 1); /* as if the queue had come so far */
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    for (unsigned i = 0; i < FRAMES; i++) assert_int_equal(softmetal_retain_count(buffers[i]), i % 3 && i > 1 ? 2 : 1);
    set_quirk(QUIRK(signals_late), false);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    for (unsigned i = 0; i < FRAMES; i++) assert_int_equal(softmetal_retain_count(buffers[i]), 1);
}

/* Listeners are deaf on some systems: a look finds that the signals are made. */
static void look_by_callbacks(stage *s)
{
    assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, NULL));
}
static void look_by_a_wait(stage *s)
{
    assert_result(gpusync_timeline_wait(s->t[1], 1, MS(120), NULL), GPUSYNC_TIMEOUT);
}
static void look_by_a_poll(stage *s)
{
    gpusync_ticket held = SUBMIT(s->q[1], WAITS(at(s->t[1], 1)));
    assert_result(gpusync_poll(s->q[1], held, NULL), GPUSYNC_NOT_READY);
    signal_value(s->t[1], 1);
}
static void look_by_the_devices_destroy(stage *s)
{
    drop_timeline(s, 0);
    drop_timeline(s, 1);
    destroy_queue(s, 0);
    destroy_queue(s, 1);
    assert_ok(gpusync_device_destroy(s->device));
    s->device = NULL;
}

without_stage(test_R29_a_look_finds_that_the_signals_are_made)
{
    static void (*const rows[])(stage *) = {look_by_callbacks, look_by_a_wait, look_by_a_poll,
                                            look_by_the_devices_destroy};
    for (unsigned i = 0; i < LENGTH(rows); i++)
        for (unsigned gone = 0; gone < 2; gone++) { /* the queue, before the look */
            static const stage_desc desc = {.metal4 = true, .queues = 2, .timelines = 2,
                                            .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL}};
            stage s;
            stage_open(&s, &desc);
            void *buffer = new_buffer(s.q[0]);
            SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.t[0], 1)), .flags = ON_GPU);
            set_quirk(QUIRK(signals_late), true);
            finish_all(&s);
            set_quirk(QUIRK(deaf_to_everything), true);
            set_quirk(QUIRK(signals_late), false);
            assert_true(softmetal_settle_listeners(SECONDS(60)));
            assert_int_equal(softmetal_live("queue_operation"), 0);
            assert_int_equal(softmetal_retain_count(buffer), 2);
            if (gone) destroy_queue(&s, 0);
            rows[i](&s);
            assert_int_equal(softmetal_retain_count(buffer), 1);
            set_quirk(QUIRK(deaf_to_everything), false);
            stage_close(&s);
        }
}

/* -- what is refused for want of memory, or of an object ----------------------------------------------------------- */

/* A phone is out of memory in the middle of a frame, which is submitted again later. */
on_stage_with(test_R29_a_submission_that_lacks_something_has_changed_nothing, .metal4 = true)
{
    for (unsigned metal = 0; metal < 2; metal++)
        for (unsigned held = 0; held < 2; held++) {
            gpusync_timeline *waited = of_others(s), *go = new_timeline(s->device), *risen = new_timeline(s->device);
            void *buffers[8];
            gpusync_point waits[7], signals[7];
            gpusync_ticket ticket = -7, last = 0;
            gpusync_result result;
            note told = {0};
            long n = 0;
            gpusync_submission submission = {waits, 7, buffers, 8, signals, 7, remember, &told, "a frame", ON_GPU};
            for (unsigned i = 0; i < 8; i++) buffers[i] = new_buffer(s->q[0]);
            for (unsigned i = 0; i < 7; i++) waits[i] = at(i == 0 && held ? go : waited, i + 1);
            for (unsigned i = 0; i < 7; i++) signals[i] = at(risen, i + 1);
            last = commit_new(s->q[0]);
            finish_all(s);
            do {
                long blocks = kit_now().blocks, live = softmetal_live(NULL);
                if (metal) softmetal_fail_creation((unsigned)++n, false);
                else memory_fail(++n, false);
                result = gpusync_submit(s->q[0], &submission, &ticket);
                softmetal_fail_creation(0, false);
                memory_fail(0, false);
                if (result == GPUSYNC_OK) break;
                assert_result(result, metal ? GPUSYNC_ERROR_METAL_NIL : GPUSYNC_ERROR_OUT_OF_MEMORY);
                assert_int_equal(ticket, -7);
                assert_int_equal(gpusync_in_flight(s->q[0]), 0);
                if (metal) assert_int_equal(softmetal_live(NULL), live);
                if (metal) assert_true(kit_now().blocks <= blocks);
                assert_int_equal(softmetal_retain_count(buffers[7]), 1);
            } while (n < 40);
            assert_int_equal(ticket, last + 1);
            assert_true(n > 1);
            if (held) signal_value(go, 1);
            raise_event(waited, 7);
            finish_all(s);
            settle(s);
            assert_noted(&told, GPUSYNC_OK);
            assert_int_equal(value_of(risen), 7);
            DROP(waited, go, risen);
        }
}

/* Frames are many: a commit asks Metal for one object, its options, whatever is in it; without buffers for none. */
on_stage_with(test_R29_a_commit_makes_one_object_of_metals, .metal4 = true, .timelines = 4)
{
    static const struct {
        unsigned buffers, waits, signals;
        uint32_t flags;
        unsigned objects;
    } rows[] = {{1, 0, 0, ON_GPU, 1}, {1, 1, 0, ON_GPU, 1}, {3, 0, 2, ON_GPU, 1}, {3, 2, 2, ON_GPU, 1}, {2, 2, 2, 0, 1},
                {1, 2, 2, ON_GPU | UNORDERED, 1}, {0, 2, 2, ON_GPU, 0}, {0, 0, 0, 0, 0}};
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        void *buffers[3] = {new_buffer(s->q[0]), new_buffer(s->q[0]), new_buffer(s->q[0])};
        gpusync_point waits[2] = {at(s->t[0], 3 * i + 3), at(s->t[1], 3 * i + 3)};
        gpusync_point signals[2] = {at(s->t[2], i + 1), at(s->t[3], i + 1)};
        gpusync_submission submission = {waits, rows[i].waits, buffers, rows[i].buffers, signals, rows[i].signals,
                                         NULL, NULL, NULL, rows[i].flags};
        softmetal_fail_creation(0, false);
        submit_at(s->q[0], &submission, __FILE__, __LINE__);
        assert_int_equal(softmetal_creations(), rows[i].objects);
        signal_value(s->t[0], 3 * i + 3);
        signal_value(s->t[1], 3 * i + 3);
        finish_all(s);
        assert_int_equal(softmetal_creations(), rows[i].objects);
        assert_int_equal(gpusync_in_flight(s->q[0]), 0);
        assert_int_equal(softmetal_live("commit_options"), 0);
    }
}
