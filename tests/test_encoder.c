/* test_encoder.c - R15: which encoder of a command buffer failed

   A queue asks Metal for it where the program wants that, and gpusync_error.encoder has the label. softmetal tells it
   as Apple's headers have it, and in five ways more that a program should survive. */
#include "kit.h"

#define WITH_DESCRIPTOR "commandBufferWithDescriptor:"
#define asking .queue.encoder_status = true
#define COMPLETED SOFTMETAL_ENCODER_COMPLETED
#define AFFECTED SOFTMETAL_ENCODER_AFFECTED
#define PENDING SOFTMETAL_ENCODER_PENDING
#define FAULTED SOFTMETAL_ENCODER_FAULTED

/* An empty encoder. label NULL: none is set. */
static void encode_pass(void *buffer, const char *label)
{
    void *encoder = metal_compute_begin(buffer);
    assert_non_null(encoder);
    if (label) metal_set_label(encoder, label);
    metal_end(encoder);
}

/* "shadows", "lights" and "bloom": the second one faults. */
static void encode_three(void *buffer)
{
    static const long states[] = {COMPLETED, FAULTED, PENDING};
    encode_pass(buffer, "shadows");
    encode_pass(buffer, "lights");
    encode_pass(buffer, "bloom");
    softmetal_set_encoder_states(buffer, states, LENGTH(states));
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
}

static void *three_passes(gpusync_queue *queue)
{
    void *buffer = new_buffer(queue);
    encode_three(buffer);
    return buffer;
}

/* Of the newest failure of the queue, once all is over. */
static const char *encoder_of(stage *s, gpusync_queue *queue)
{
    static gpusync_error error;
    finish_all(s);
    unsigned count = failures_of(queue);
    assert_true(count > 0);
    error = failure_at(queue, count - 1);
    assert_int_equal(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_non_null(memchr(error.encoder, 0, sizeof error.encoder));
    return error.encoder;
}

static bool retains_references(void *buffer)
{
    return METAL__AS0(signed char)(buffer, metal__sel("retainedReferences")) != 0;
}

static void *new_descriptor(unsigned long options)
{
    void *descriptor = metal_get(metal_get(metal__class("MTLCommandBufferDescriptor"), "alloc"), "init");
    METAL__AS(void, unsigned long)(descriptor, metal__sel("setErrorOptions:"), options);
    return descriptor;
}

/* The +1 object of the program's own message to its queue. */
static void *with_descriptor(stage *s, void *descriptor)
{
    return metal_retain(METAL__AS(void *, void *)(s->metal[0], metal__sel(WITH_DESCRIPTOR), descriptor));
}

static uint64_t questions(void)
{
    return softmetal_message_count(WITH_DESCRIPTOR) + softmetal_message_count("setErrorOptions:");
}

/* A developer wants to know which pass of a frame faults, whatever way the frame's buffer is made. It costs time: a
   queue that was not told to does not ask, and sends not a message more. Each queue for itself, also one that is
   given. */
on_stage(test_R15_each_way_of_making_a_buffer_asks_metal_where_the_queue_wants_it)
{
    static const gpusync_command_buffer_desc ways[] = {
        {NULL, false, NULL}, {"frame", false, NULL}, {NULL, true, NULL}, {"frame", true, NULL}};
    const gpusync_queue_desc desc = {.metal_queue = s->metal[0], .encoder_status = true};
    gpusync_queue *queues[2] = {s->q[0], NULL};
    assert_ok(gpusync_queue_create(s->device, &desc, &queues[1]));
    for (unsigned i = 0; i < 2 * (LENGTH(ways) + 1); i++) {
        unsigned asks = i % 2;
        const gpusync_command_buffer_desc *way = i / 2 < LENGTH(ways) ? &ways[i / 2] : NULL;
        uint64_t before = questions();
        void *buffer = NULL;
        char label[16];
        assert_ok(gpusync_command_buffer_create(queues[asks], way, 0, &buffer));
        metal_string_copy(metal_get(buffer, "label"), label, sizeof label); /* for Metal's own tools, too */
        assert_string_equal(label, way && way->label ? way->label : "");
        assert_int_equal(questions() - before, 2 * asks);
        assert_int_equal(metal_number(buffer, "errorOptions"), asks);
        assert_int_equal(retains_references(buffer), !way || !way->unretained_references);
        assert_int_equal(softmetal_live("descriptor"), 0); /* gpusync keeps none */
        encode_three(buffer);
        commit(queues[asks], buffer);
        assert_string_equal(encoder_of(s, queues[asks]), asks ? "lights" : "");
        assert_int_equal(log_has(GPUSYNC_LOG_ERROR, ", encoder 'lights': "), i > 0);
        assert_string_equal(failure_at(queues[asks], i / 2).label, label);
    }
    assert_ok(gpusync_queue_destroy(queues[1]));
}

/* The program's descriptor says all that Metal can do for a buffer. gpusync passes it on, and changes nothing of it. */
on_stage_with(test_R15_a_descriptor_of_the_programs_is_passed_as_it_is, asking)
{
    for (unsigned i = 0; i < 4; i++) {
        gpusync_queue *queue = s->q[0];
        bool wants = i & 1, retained = i & 2;
        void *buffer = NULL;
        void *descriptor = new_descriptor(wants);
        gpusync_command_buffer_desc desc = {"frame", false, descriptor};
        METAL__AS(void, signed char)(descriptor, metal__sel("setRetainedReferences:"), retained);
        uint64_t before = softmetal_message_count("setErrorOptions:");
        before += softmetal_message_count("setRetainedReferences:");
        assert_ok(gpusync_command_buffer_create(queue, &desc, 0, &buffer));
        before -= softmetal_message_count("setErrorOptions:");
        assert_int_equal(before, softmetal_message_count("setRetainedReferences:"));
        assert_int_equal(metal_number(descriptor, "errorOptions"), wants);
        assert_int_equal(metal_number(buffer, "errorOptions"), wants);
        assert_int_equal(retains_references(buffer), retained);
        assert_int_equal(softmetal_retain_count(descriptor), 1);
        encode_three(buffer);
        commit(queue, buffer);
        assert_string_equal(encoder_of(s, queue), wants ? "lights" : "");
        metal_release(descriptor);
    }
}

also_on_stage_with(test_R15_a_descriptor_of_the_programs_is_passed_as_it_is, 0)

/* An engine makes its buffers itself. Those that asked tell; the option of the queue does not change the others. */
on_stage_with(test_R15_buffers_of_the_programs_own_bring_it_too, asking)
{
    enum { COMMITTED, SUBMITTED, MARKED, WAYS };
    for (unsigned asks = 0; asks < 2; asks++) {
        for (unsigned way = 0; way < WAYS; way++) {
            void *descriptor = new_descriptor(asks), *buffer = with_descriptor(s, descriptor);
            gpusync_ticket ticket;
            encode_three(buffer);
            if (way == COMMITTED) {
                assert_ok(gpusync_commit(s->q[0], buffer, &ticket));
            } else if (way == SUBMITTED) {
                SUBMIT(s->q[0], BUFFERS(buffer));
            } else {
                metal_commit(buffer);
                assert_ok(gpusync_commit_marker(s->q[0], buffer, &ticket));
            }
            assert_string_equal(encoder_of(s, s->q[0]), asks ? "lights" : "");
            metal_release(buffer);
            metal_release(descriptor);
        }
        void *plain = foreign_buffer(s->q[0]);
        encode_three(plain);
        commit(s->q[0], plain);
        assert_string_equal(encoder_of(s, s->q[0]), "");
        metal_release(plain);
    }
}

/* A fault of one pass takes others with it: the developer is told of the one that did it. */
on_stage_with(test_R15_which_encoder_is_named, asking)
{
    static const struct {
        const char *what;
        long states[4];
        unsigned count;
        const char *encoder;
        unsigned bare; /* the encoder without a label, from 1 */
    } rows[] = {
        {"the faulted one", {COMPLETED, FAULTED, PENDING}, 3, "b", 0},
        {"the first one", {FAULTED, PENDING, PENDING}, 3, "a", 0},
        {"the last one", {COMPLETED, COMPLETED, COMPLETED, FAULTED}, 4, "d", 0},
        {"faulted comes before affected", {AFFECTED, AFFECTED, FAULTED, AFFECTED}, 4, "c", 0},
        {"the label of another would lead astray", {AFFECTED, FAULTED, AFFECTED}, 3, "", 2},
        {"the first of several that faulted", {AFFECTED, FAULTED, FAULTED}, 3, "b", 0},
        {"the first of several that are affected", {COMPLETED, AFFECTED, AFFECTED}, 3, "b", 0},
        {"none: all are through", {COMPLETED, COMPLETED}, 2, "", 0},
        {"none: all are to come", {PENDING, PENDING, PENDING, PENDING}, 4, "", 0},
        {"none: nothing is known", {SOFTMETAL_ENCODER_UNKNOWN, SOFTMETAL_ENCODER_UNKNOWN}, 2, "", 0},
        {"numbers that Metal does not have, and one that it has", {5, AFFECTED, 99, -1}, 4, "b", 0},
        {"... whose last byte is one that it has", {0x104, 0x102, 0x10004}, 3, "", 0},
        {"the largest numbers", {0x7FFFFFFFFFFFFFFF, FAULTED, -0x7FFFFFFFFFFFFFFF}, 3, "b", 0},
        {"without encoders", {0}, 0, "", 0},
    };
    static const char *const names[] = {"a", "b", "c", "d"};
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        void *buffer = new_buffer(s->q[0]);
        print_message("%s\n", rows[i].what);
        for (unsigned k = 0; k < rows[i].count; k++) encode_pass(buffer, k + 1 == rows[i].bare ? NULL : names[k]);
        if (rows[i].count) softmetal_set_encoder_states(buffer, rows[i].states, rows[i].count);
        softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        commit(s->q[0], buffer);
        assert_string_equal(encoder_of(s, s->q[0]), rows[i].encoder);
    }
}

/* As softmetal tells it by itself. */
on_stage_with(test_R15_every_way_to_fail_tells_what_metal_tells, asking)
{
    void *buffer = new_buffer(s->q[0]);
    encode_pass(buffer, "one");
    encode_pass(buffer, "two");
    softmetal_fail_as(buffer, SOFTMETAL_HANG, NULL);
    commit(s->q[0], buffer);
    assert_string_equal(encoder_of(s, s->q[0]), "one");

    buffer = three_passes(s->q[0]); /* an error of another domain has no encoders */
    softmetal_fail(buffer, "AnotherDomain", 3, "another text");
    commit(s->q[0], buffer);
    assert_string_equal(encoder_of(s, s->q[0]), "");
    assert_string_equal(failure_at(s->q[0], 1).domain, "AnotherDomain");

    buffer = new_buffer(s->q[0]);
    encode_pass(buffer, "one");
    void *event = metal_shared_event_new(s->metal_device);
    metal_encode_wait(buffer, event, 1);
    encode_pass(buffer, "two");
    commit(s->q[0], buffer);
    softmetal_time_out(buffer);
    assert_string_equal(encoder_of(s, s->q[0]), ""); /* the wait, no encoder */

    buffer = new_buffer(s->q[0]); /* the first of two that failed */
    encode_pass(buffer, "first");
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    void *second = three_passes(s->q[0]);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0]), buffer, second));
    assert_string_equal(encoder_of(s, s->q[0]), "first");

    buffer = new_buffer(s->q[0]);
    encode_pass(buffer, "removed");
    commit(s->q[0], buffer);
    softmetal_remove_device(s->metal_device);
    assert_string_equal(encoder_of(s, s->q[0]), "removed"); /* affected */
    metal_release(event);
}

static void set_latin1_label(void *encoder, const char *text)
{
    void *pool = metal_pool_push();
    void *string = METAL__AS(void *, const char *, unsigned long)(metal__class("NSString"),
                                                                  metal__sel("stringWithCString:encoding:"), text, 5ul);
    METAL__AS(void, void *)(encoder, metal__sel("setLabel:"), string);
    metal_pool_pop(pool);
}

/* Labels are made by tools, from names of files and materials. */
on_stage_with(test_R15_labels_of_encoders_are_told_as_utf8_that_fits, asking)
{
    char text[200];
    static const struct {
        const char *what, *part; /* repeated up to `length` bytes */
        unsigned length, told;
        bool latin1;
    } rows[] = {
        {"empty", "", 0, 0, false},
        {"it just fits", "x", 63, 63, false},
        {"a byte too long", "x", 64, 63, false},
        {"two bytes a character", "\xC3\xA9", 198, 62, false},
        {"not UTF-8", "\xE9", 20, 40, true},
        {"not UTF-8, too long", "\xE9", 100, 62, true},
    };
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        void *buffer = new_buffer(s->q[0]), *encoder = metal_compute_begin(buffer);
        print_message("%s\n", rows[i].what);
        for (unsigned k = 0; k < rows[i].length; k++) text[k] = rows[i].part[k % strlen(rows[i].part)];
        text[rows[i].length] = '\0';
        if (rows[i].latin1) set_latin1_label(encoder, text);
        else metal_set_label(encoder, text);
        metal_end(encoder);
        softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        commit(s->q[0], buffer);
        const char *told = encoder_of(s, s->q[0]);
        assert_int_equal(strlen(told), rows[i].told);
        for (unsigned k = 0; k < rows[i].told; k++)
            assert_int_equal(told[k], rows[i].latin1 ? "\xC3\xA9"[k % 2] : text[k]);
    }
}

/* Metal does not promise what is under its key: a list may be missing, empty, or of other objects (athei/mtld3d#571).
   The failure is told all the same. */
on_stage_with(test_R15_what_is_missing_or_malformed_is_skipped, asking)
{
    static const struct {
        const char *what;
        softmetal_quirks quirks;
        const char *hidden, *encoder;
    } rows[] = {
        {"nothing is spoilt", {.late_times = true}, NULL, "lights"},
        {"no key", {.no_encoder_info = true}, NULL, ""},
        {"an NSNull for the list", {.null_encoder_info = true}, NULL, ""},
        {"an empty list", {.empty_encoder_info = true}, NULL, ""},
        {"objects of another class", {.alien_encoder_info = true}, NULL, ""},
        {"objects without a label", {.bare_encoder_info = true}, NULL, ""},
        {"no error below", {.bare_errors = true}, NULL, "lights"},
        {"an NSNull below", {.alien_error_below = true}, NULL, "lights"},
        {"as of other drivers", {.ioaccel_errors = true}, NULL, "lights"},
        {"as of older systems", {.ioaf_errors = true}, NULL, "lights"},
        {"objects without a state", {.late_times = true}, "errorState", ""}, /* the last: it stays hidden */
    };
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        print_message("%s\n", rows[i].what);
        softmetal_set_quirks(&rows[i].quirks);
        if (rows[i].hidden) softmetal_hide_selector(rows[i].hidden);
        void *buffer = named_buffer(s->q[0], "frame");
        encode_three(buffer);
        commit(s->q[0], buffer);
        assert_string_equal(encoder_of(s, s->q[0]), rows[i].encoder);
        gpusync_error error = failure_at(s->q[0], i);
        assert_int_equal(error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
        assert_int_equal(error.code, 3);
        assert_string_equal(error.label, "frame");
        assert_string_equal(error.domain, "MTLCommandBufferErrorDomain");
    }
}

/* A layer of a tool stands before the queue, and lacks the message; macOS 10.15 has not the class either. The queue
   works there, and knows no encoder. */
on_stage_with(test_R15_a_queue_that_takes_no_descriptor_is_not_asked, asking)
{
    void *buffer = NULL;
    const gpusync_command_buffer_desc unretained = {NULL, true, NULL};
    softmetal_hide_selector(WITH_DESCRIPTOR);
    commit(s->q[0], three_passes(s->q[0]));
    assert_string_equal(encoder_of(s, s->q[0]), "");
    softmetal_hide_class("MTLCommandBufferDescriptor");
    assert_ok(gpusync_command_buffer_create(s->q[0], &unretained, 0, &buffer));
    assert_false(retains_references(buffer));
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
}

/* Metal has no command buffer to give: its descriptor goes, too. */
on_stage_with(test_R15_no_buffer_leaves_no_descriptor, asking)
{
    void *buffer = &buffer;
    softmetal_fail_creation(1, false);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), GPUSYNC_ERROR_METAL_NIL);
    softmetal_fail_creation(0, false);
    assert_null(buffer);
    assert_int_equal(softmetal_live("descriptor"), 0);
}

/* The developer's handler, wherever it hears of the failure, and of what came of it, names the pass: what waits for it,
   and what it takes with it as it sticks. */
on_stage_with(test_R15_every_report_of_a_failure_has_its_encoder, .queues = 2, .timelines = 2,
              .queue = {.encoder_status = true, .sticky_failure = true})
{
    void *buffer = three_passes(s->q[0]);
    note notes[3] = {0};
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    gpusync_ticket failed = SUBMIT(s->q[0], BUFFERS(buffer), SIGNALS(at(s->t[0], 1)));
    gpusync_ticket inherits =
        SUBMIT(s->q[1], WAITS(ticket_at(s->q[0], failed)), BUFFERS(new_buffer(s->q[1])), SIGNALS(at(s->t[1], 1)));
    commit_new(s->q[0]); /* sent behind it */
    on_done(ticket_at(s->q[0], failed), &notes[0]);
    on_done(at(s->t[0], 1), &notes[1]);
    on_done(ticket_at(s->q[1], inherits), &notes[2]);
    finish_all(s);
    run_callbacks(s);
    for (unsigned i = 0; i < 3; i++) {
        assert_noted(&notes[i], GPUSYNC_ERROR_EXECUTION);
        assert_string_equal(notes[i].error.encoder, "lights");
    }
    for (unsigned i = 0; i < 5; i++) {
        const gpusync_point points[] = {at(s->t[1], 1), ticket_at(s->q[0], failed)};
        gpusync_result result;
        memset(&error, 0xAA, sizeof error);
        if (i == 0) result = gpusync_wait(s->q[0], failed, 0, &options);
        else if (i == 1) result = gpusync_wait(s->q[1], inherits, 0, &options);
        else if (i == 2) result = gpusync_timeline_wait(s->t[0], 1, 0, &options);
        else if (i == 3) result = gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, 0, &options, NULL);
        else result = gpusync_device_wait(s->device, 0, &options);
        assert_result(result, GPUSYNC_ERROR_EXECUTION);
        assert_string_equal(error.encoder, "lights");
    }
    for (unsigned i = 0; i < 3; i++) {
        error = failure_at(s->q[i / 2], i % 2);
        assert_int_equal(error.inherited, i > 0);
        assert_string_equal(error.encoder, "lights");
    }
}

/* What never ran, or was not Metal's failure, has no encoder; and a failure does not get that of the one before it. */
on_stage_with(test_R15_failures_of_gpusyncs_own_have_no_encoder, .timelines = 1, asking)
{
    commit(s->q[0], three_passes(s->q[0]));
    finish_all(s);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    finish_all(s);
    gpusync_error error = failure_at(s->q[0], 1);
    assert_int_equal(error.result, GPUSYNC_ERROR_CANCELLED);
    assert_string_equal(error.encoder, "");
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT); /* without encoders */
    assert_string_equal(encoder_of(s, s->q[0]), "");
    assert_string_equal(failure_at(s->q[0], 0).encoder, "lights");
}

/* There is no memory for Metal's text as the failure comes: the failure is told without it. */
on_stage_with(test_R15_without_memory_the_failure_is_told_without_its_encoder, asking)
{
    gpusync_ticket ticket = commit(s->q[0], three_passes(s->q[0]));
    memory_fail(1, true);
    finish_all(s);
    memory_fail(0, false);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_string_equal(encoder_of(s, s->q[0]), "");
}

/* A program fails a timeline with a text of its own, which it did not end, or that is no UTF-8. */
on_stage(test_R15_the_encoder_that_a_program_fails_a_timeline_with_is_made_to_end)
{
    static const struct {
        const char *what;
        unsigned char byte;
        unsigned count; /* of bytes, then a 0; 64: no 0 */
        unsigned told;
    } rows[] = {
        {"it just fits", 'x', 63, 63},
        {"it does not end", 'x', 64, 63},
        {"Latin-1 that does not end", 0xE9, 64, 62},
    };
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        gpusync_timeline *timeline = new_timeline(s->device);
        gpusync_error reason = {.result = GPUSYNC_ERROR_EXECUTION}, error;
        gpusync_wait_options options = {.error = &error};
        print_message("%s\n", rows[i].what);
        memset(reason.encoder, rows[i].byte, rows[i].count);
        assert_ok(gpusync_timeline_fail(timeline, &reason));
        assert_result(gpusync_timeline_wait(timeline, 1, 0, &options), GPUSYNC_ERROR_EXECUTION);
        assert_non_null(memchr(error.encoder, 0, sizeof error.encoder));
        assert_int_equal(strlen(error.encoder), rows[i].told);
        for (unsigned k = 0; k < rows[i].told; k++)
            assert_int_equal((unsigned char)error.encoder[k], rows[i].byte == 'x' ? 'x' : k % 2 ? 0xA9 : 0xC3);
        SUBMIT(s->q[0], WAITS(at(timeline, 1)), BUFFERS(new_buffer(s->q[0])));
        finish_all(s);
        assert_string_equal(failure_at(s->q[0], i).encoder, error.encoder); /* what waits for it inherits it */
        assert_true(failure_at(s->q[0], i).inherited);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

/* Metal 4 has no such question: the option changes nothing there. */
on_stage_with(test_R15_a_queue_of_metal4_tells_no_encoder, .metal4 = true, asking)
{
    void *buffer = metal4_buffer_new(s->metal_device), *allocator = metal4_allocator_new(s->metal_device), *encoder;
    metal4_begin(buffer, allocator);
    encoder = metal_compute_begin(buffer);
    metal_set_label(encoder, "lights");
    metal_end(encoder);
    metal4_end(buffer);
    softmetal_prepare_run(buffer, s->metal[0]);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[0], buffer);
    assert_string_equal(encoder_of(s, s->q[0]), "");
    assert_int_equal(softmetal_message_count(WITH_DESCRIPTOR), 0);
    assert_ok(gpusync_queue_destroy(s->q[0]));
    s->q[0] = NULL;
    metal_release(buffer);
    metal_release(allocator);
}
