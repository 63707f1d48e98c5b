/* test_failures.c - how work ends that does not succeed: classes, records, what is told to whom, failures that stick,
   times, the log */
#include "kit.h"

static void *failing_buffer(gpusync_queue *queue, unsigned reason)
{
    void *buffer = new_buffer(queue);
    softmetal_fail_as(buffer, reason, NULL);
    return buffer;
}

/* Work that has failed. */
static gpusync_ticket fail_one(stage *s, gpusync_queue *queue)
{
    gpusync_ticket ticket = commit_failing(queue, SOFTMETAL_PAGE_FAULT);
    finish_all(s);
    return ticket;
}

static gpusync_ticket succeed_one(stage *s, gpusync_queue *queue)
{
    gpusync_ticket ticket = commit_new(queue);
    finish_all(s);
    return ticket;
}

static gpusync_result wait_for(gpusync_queue *queue, gpusync_ticket ticket, gpusync_error *error)
{
    gpusync_wait_options options = {.error = error};
    return gpusync_wait(queue, ticket, 0, &options);
}

static gpusync_result wait_for_all(gpusync_queue *queue)
{
    return wait_for(queue, GPUSYNC_EVERYTHING, NULL);
}

/* The record of a ticket, which is there once. */
static gpusync_error record_of(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_error found, error;
    uint64_t cursor = 0;
    unsigned count = 0;
    memset(&found, 0, sizeof found);
    while (gpusync_queue_next_error(queue, &cursor, &error) == GPUSYNC_OK) {
        if (error.ticket != ticket) continue;
        found = error;
        count++;
    }
    if (count != 1) fail_msg("ticket %lld is %u times on record", (long long)ticket, count);
    return found;
}

/* Two errors tell the same, but for records that were dropped before. */
static void assert_same_error(const gpusync_error *a, const gpusync_error *b)
{
    assert_int_equal(a->result, b->result);
    assert_int_equal(a->failure, b->failure);
    assert_int_equal(a->ticket, b->ticket);
    assert_int_equal(a->origin, b->origin);
    assert_int_equal(a->code, b->code);
    assert_int_equal(a->inherited, b->inherited);
    assert_int_equal(a->ran, b->ran);
    assert_int_equal(a->transient, b->transient);
    assert_string_equal(a->domain, b->domain);
    assert_string_equal(a->message, b->message);
    assert_string_equal(a->label, b->label);
    assert_string_equal(a->queue_label, b->queue_label);
}

/* -- classes ------------------------------------------------------------------------------------------------------ */

static void in_the_text_and_below(softmetal_quirks *quirks) { (void)quirks; }
static void in_the_text_alone(softmetal_quirks *quirks) { quirks->ioaccel_errors = true; }
static void of_older_systems(softmetal_quirks *quirks) { quirks->ioaf_errors = true; }
static void in_no_number(softmetal_quirks *quirks) { quirks->bare_errors = true; }

/* Opens a stage where Metal tells its errors in this way. */
static void *buffer_where(stage *s, void (*tells)(softmetal_quirks *quirks))
{
    stage_desc desc = {0};
    softmetal_quirks quirks;
    stage_open(s, &desc);
    softmetal_get_quirks(&quirks);
    tells(&quirks);
    softmetal_set_quirks(&quirks);
    return new_buffer(s->q[0]);
}

/* One command buffer fails; its class, and whether it helps to encode it again, are as the row says. */
static void check_class(stage *s, void *buffer, gpusync_failure failure, bool transient, bool lost, const char *row)
{
    gpusync_ticket ticket = commit(s->q[0], buffer);
    finish_all(s);
    gpusync_error error = record_of(s->q[0], ticket);
    if (error.failure != failure || error.transient != transient || gpusync_device_is_lost(s->device) != lost)
        fail_msg("%s: %s %lld \"%s\": %s, %stransient, the device %s lost", row, error.domain, (long long)error.code,
                 error.message, gpusync_failure_string(error.failure), error.transient ? "" : "not ",
                 gpusync_device_is_lost(s->device) ? "is" : "is not");
    assert_result(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
}

/* The driver's number decides, for Metal has fewer codes. */
without_stage_on_both_kinds(test_R14_the_drivers_number_gives_the_class)
{
    static const struct {
        unsigned reason;
        gpusync_failure failure;
        bool transient, lost;
    } rows[] = {
        {SOFTMETAL_TIMEOUT, GPUSYNC_FAILURE_GPU_TIMEOUT, false, false},
        {SOFTMETAL_HANG, GPUSYNC_FAILURE_GPU_TIMEOUT, false, false},
        {SOFTMETAL_IMPACTING_INTERACTIVITY, GPUSYNC_FAILURE_GPU_TIMEOUT, false, false},
        {SOFTMETAL_SUBMISSIONS_IGNORED, GPUSYNC_FAILURE_ACCESS_REVOKED, false, true},
        {SOFTMETAL_INNOCENT_VICTIM, GPUSYNC_FAILURE_INNOCENT_VICTIM, true, false},
        {SOFTMETAL_BACKGROUND, GPUSYNC_FAILURE_NOT_PERMITTED, true, false},
        {SOFTMETAL_OUT_OF_MEMORY, GPUSYNC_FAILURE_OUT_OF_MEMORY, true, false},
        {SOFTMETAL_INVALID_RESOURCE, GPUSYNC_FAILURE_INVALID_RESOURCE, false, false},
        {SOFTMETAL_PAGE_FAULT, GPUSYNC_FAILURE_PAGE_FAULT, false, false},
        {SOFTMETAL_FIRST_INTERNAL, GPUSYNC_FAILURE_OTHER, false, false},
        {SOFTMETAL_INTERNAL, GPUSYNC_FAILURE_OTHER, false, false},
        {0xE00002BD, GPUSYNC_FAILURE_OTHER, false, false},
    };
    static const struct {
        void (*where)(softmetal_quirks *quirks);
        const char *text, *name;
    } forms[] = {
        {in_the_text_and_below, NULL, "in the text and in the error below"},
        {in_the_text_and_below, "on purpose", "in the error below alone"},
        {in_the_text_alone, NULL, "in the text alone"},
        {of_older_systems, NULL, "in the text alone, decimal"},
    };
    for (size_t k = 0; k < LENGTH(forms); k++)
        for (size_t i = 0; i < LENGTH(rows); i++) {
            char name[96];
            stage s;
            void *buffer = buffer_where(&s, forms[k].where);
            softmetal_fail_as(buffer, rows[i].reason, forms[k].text);
            snprintf(name, sizeof name, "number %#x, %s", rows[i].reason, forms[k].name);
            check_class(&s, buffer, rows[i].failure, rows[i].transient, rows[i].lost, name);
            stage_close(&s);
        }
}

#define VICTIM "Discarded (victim of GPU error/recovery)"
#define IGNORED "kIOGPUCommandBufferCallbackErrorSubmissionsIgnored"

/* Without a number that is known Metal's code does, and an error of another domain is OTHER. */
without_stage(test_R14_without_a_number_the_code_gives_the_class)
{
    static const struct {
        const char *domain; /* NULL: Metal's */
        long code;
        const char *text;
        gpusync_failure failure;
        bool transient, lost;
    } rows[] = {
        {NULL, 1, NULL, GPUSYNC_FAILURE_OTHER, false, false},
        {NULL, 2, NULL, GPUSYNC_FAILURE_GPU_TIMEOUT, false, false},
        {NULL, 3, NULL, GPUSYNC_FAILURE_PAGE_FAULT, false, false},
        {NULL, 4, NULL, GPUSYNC_FAILURE_ACCESS_REVOKED, false, true},
        {NULL, 7, NULL, GPUSYNC_FAILURE_NOT_PERMITTED, true, false},
        {NULL, 8, NULL, GPUSYNC_FAILURE_OUT_OF_MEMORY, true, false},
        {NULL, 9, NULL, GPUSYNC_FAILURE_INVALID_RESOURCE, false, false},
        {NULL, 11, NULL, GPUSYNC_FAILURE_DEVICE_REMOVED, false, true},
        {NULL, 12, NULL, GPUSYNC_FAILURE_OTHER, false, false},
        {NULL, -4, NULL, GPUSYNC_FAILURE_OTHER, false, false},
        {NULL, 4294967296 + 11, NULL, GPUSYNC_FAILURE_OTHER, false, false},
        {"GPUErrorDomain", 4, NULL, GPUSYNC_FAILURE_OTHER, false, false},
        {"MTLCommandBufferErrorDomain2", 8, NULL, GPUSYNC_FAILURE_OTHER, false, false},
        {NULL, 1, "Internal Error (0000000e:Internal Error)", GPUSYNC_FAILURE_GPU_TIMEOUT, false, false},
        {NULL, 1, "Internal Error (0000000d:Internal Error)", GPUSYNC_FAILURE_OTHER, false, false},
        {NULL, 8, "Internal Error (0000000d:Internal Error)", GPUSYNC_FAILURE_OUT_OF_MEMORY, true, false},
        {NULL, 1, "Internal Error of (a copy of) a shader (0000000e:Internal Error)", GPUSYNC_FAILURE_GPU_TIMEOUT,
         false, false}, /* the number stands behind the second parenthesis, or a later one */
        {NULL, 12, "A picture (4:3) is the cause", GPUSYNC_FAILURE_OTHER, false, false}, /* no number: eight digits */
        {NULL, 12, "Slice (00000003 of 16) is the cause", GPUSYNC_FAILURE_OTHER, false, false}, /* ... and a colon */
        {NULL, 4, VICTIM, GPUSYNC_FAILURE_INNOCENT_VICTIM, true, false},
        {"NSPOSIXErrorDomain", 4, "Ignored (00000004:" IGNORED ")", GPUSYNC_FAILURE_OTHER, false, false},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        char name[32];
        stage s;
        void *buffer = buffer_where(&s, in_no_number);
        softmetal_fail(buffer, rows[i].domain, rows[i].code, rows[i].text);
        snprintf(name, sizeof name, "row %u", (unsigned)i);
        check_class(&s, buffer, rows[i].failure, rows[i].transient, rows[i].lost, name);
        stage_close(&s);
    }
}

/* -- texts -------------------------------------------------------------------------------------------------------- */

static void assert_all_differ(const char *const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        assert_true(texts[i] && texts[i][0]);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(texts[i], texts[k]);
    }
}

without_stage(test_T12_each_result_and_class_has_a_text_of_its_own)
{
#define TEXT(name, value, text) gpusync_result_string(GPUSYNC_##name),
    const char *const results[] = {GPUSYNC_RESULTS(TEXT) gpusync_result_string((gpusync_result)999)};
#undef TEXT
    const char *classes[GPUSYNC_FAILURE_OTHER + 2];
    int failure;
    for (failure = GPUSYNC_FAILURE_NONE; failure <= GPUSYNC_FAILURE_OTHER; failure++)
        classes[failure] = gpusync_failure_string((gpusync_failure)failure);
    classes[failure] = gpusync_failure_string((gpusync_failure)999);
    assert_all_differ(results, LENGTH(results));
    assert_all_differ(classes, LENGTH(classes));
}

/* -- one result for each ticket ----------------------------------------------------------------------------------- */

/* How a ticket of the first queue ends with each result. What it returns has ended, or ends with finish_all. */
static gpusync_ticket end_with_execution(stage *s)
{
    return commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
}

static gpusync_ticket end_with_cancelled(stage *s)
{
    gpusync_ticket ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    return ticket;
}

static gpusync_ticket end_with_not_rising(stage *s)
{
    gpusync_ticket ticket =
        SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[1], 5)));
    signal_value(s->t[1], 6); /* overtakes it */
    return ticket;
}

static gpusync_ticket end_with_destroyed(stage *s)
{
    gpusync_ticket ticket = SUBMIT(s->q[0], WAITS(at(s->t[2], 1)), BUFFERS(new_buffer(s->q[0])));
    assert_ok(gpusync_timeline_destroy(s->t[2]));
    s->t[2] = NULL;
    return ticket;
}

static gpusync_ticket end_with_the_programs_result(stage *s)
{
    gpusync_ticket ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    fail_timeline(s->t[0], GPUSYNC_ERROR_COMPILE);
    return ticket;
}

static gpusync_ticket end_with_that_of_another_queue(stage *s)
{
    gpusync_ticket first = commit_failing(s->q[1], SOFTMETAL_OUT_OF_MEMORY);
    return SUBMIT(s->q[0], WAITS(ticket_at(s->q[1], first)), BUFFERS(new_buffer(s->q[0])));
}

/* The GPU waits for it, and runs the work whatever its input contains. */
static gpusync_ticket end_with_that_of_sent_work(stage *s)
{
    SUBMIT(s->q[1], BUFFERS(failing_buffer(s->q[1], SOFTMETAL_PAGE_FAULT)), SIGNALS(at(s->t[0], 1)),
           .flags = GPUSYNC_SUBMIT_ON_GPU);
    return SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .flags = GPUSYNC_SUBMIT_ON_GPU);
}

static gpusync_ticket end_with_an_unknown_result(stage *s)
{
    for (int i = 0; i < 10; i++) {
        fail_one(s, s->q[1]); /* on record are four */
        (void)!gpusync_queue_clear_failure(s->q[1], GPUSYNC_EVERYTHING);
    }
    return SUBMIT(s->q[0], WAITS(ticket_at(s->q[1], 1)), BUFFERS(new_buffer(s->q[0])));
}

static const struct ending {
    gpusync_ticket (*end)(stage *s);
    gpusync_result result;
    enum { OWN, INHERITED, EITHER } whose; /* EITHER: nothing is promised */
    gpusync_ticket origin;
    bool ran;
} endings[] = {
    {end_with_execution, GPUSYNC_ERROR_EXECUTION, OWN, 1, true},
    {end_with_cancelled, GPUSYNC_ERROR_CANCELLED, OWN, 1, false},
    {end_with_not_rising, GPUSYNC_ERROR_NOT_RISING, OWN, 1, false},
    {end_with_destroyed, GPUSYNC_ERROR_DESTROYED, EITHER, 1, false},
    {end_with_the_programs_result, GPUSYNC_ERROR_COMPILE, INHERITED, 0, false},
    {end_with_that_of_another_queue, GPUSYNC_ERROR_EXECUTION, INHERITED, 1, false},
    {end_with_that_of_sent_work, GPUSYNC_ERROR_EXECUTION, INHERITED, 1, true},
    {end_with_an_unknown_result, GPUSYNC_ERROR_RESULT_UNKNOWN, INHERITED, 1, false},
};

static void check_record(const gpusync_error *record, const struct ending *e)
{
    if (record->ran != e->ran || (e->whose != EITHER && record->inherited != (e->whose == INHERITED)) ||
        (e->whose != EITHER && record->origin != e->origin))
        fail_msg("%s: %sinherited, %s, origin %lld", gpusync_result_string(record->result),
                 record->inherited ? "" : "not ", record->ran ? "ran" : "never ran", (long long)record->origin);
    assert_string_equal(record->label, "");
}

/* Poll, wait, callback and record say the same, again and again. On a sticky queue each but CANCELLED sticks. */
without_stage_on_both_kinds(test_S4_R14_R32_each_result_is_on_record_and_told_alike)
{
    for (size_t i = 0; i < 2 * LENGTH(endings); i++) {
        const struct ending *e = &endings[i / 2];
        const bool sticky = i % 2, sticks = sticky && e->result != GPUSYNC_ERROR_CANCELLED;
        stage_desc desc = {.queues = 2, .timelines = 3, .queue = {.error_log_count = 4}};
        gpusync_error error;
        note early = {0}, late = {0};
        stage s;
        desc.queue.sticky_failure = sticky;
        desc.queue.max_command_buffer_count = 4;
        stage_open(&s, &desc);
        gpusync_ticket ticket = e->end(&s);
        on_done(ticket_at(s.q[0], ticket), &early);
        finish_all(&s);
        gpusync_error record = record_of(s.q[0], ticket);
        check_record(&record, e);
        for (int again = 0; again < 2; again++) {
            assert_result(gpusync_poll(s.q[0], ticket, NULL), e->result);
            assert_result(wait_for(s.q[0], ticket, &error), e->result);
            assert_same_error(&error, &record);
        }
        on_done(ticket_at(s.q[0], ticket), &late);
        settle(&s);
        assert_noted(&early, e->result);
        assert_noted(&late, e->result);
        assert_same_error(&early.error, &record);
        assert_same_error(&late.error, &record);
        assert_int_equal(failures_of(s.q[0]), 1);
        assert_result(wait_for_all(s.q[0]), e->result);
        assert_result(wait_for_all(s.q[0]), sticks ? e->result : GPUSYNC_OK);
        if (sticky) assert_result(gpusync_queue_failure(s.q[0], &error), sticks ? GPUSYNC_OK : GPUSYNC_NOT_READY);
        if (sticks) assert_same_error(&error, &record);
        stage_close(&s);
    }
}

static gpusync_result record_behind_a_wait(void *argument)
{
    gpusync_queue *queue = (gpusync_queue *)argument;
    gpusync_result result = gpusync_wait(queue, 1, GPUSYNC_FOREVER, NULL);
    gpusync_error error;
    uint64_t cursor = 0;
    must(result == GPUSYNC_ERROR_EXECUTION, "a wait does not return the failure");
    return gpusync_queue_next_error(queue, &cursor, &error);
}

on_both_kinds(test_S4_a_failure_is_on_record_before_a_wait_returns_it)
{
    job sleeper = {0};
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    job_call(&sleeper, record_behind_a_wait, s->q[0]);
    await_parked(1);
    finish_all(s);
    assert_ok(job_end(&sleeper));
}

/* Metal drops the block of the buffer that failed, and does not call it: the other one's handler does not stand for
   both. */
on_stage(test_S4_R24_a_submission_fails_though_the_handler_of_what_failed_in_it_is_lost)
{
    for (unsigned i = 0; i < 4; i++) {
        const unsigned bad = i / 2, first = i % 2;
        void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
        gpusync_error error;
        softmetal_fail_as(buffers[bad], SOFTMETAL_PAGE_FAULT, NULL);
        softmetal_lose_handlers(buffers[bad]);
        gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(buffers[0], buffers[1]));
        softmetal_finish(buffers[first]);
        softmetal_finish(buffers[1 - first]);
        assert_result(wait_for(s->q[0], ticket, &error), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
        assert_int_equal(record_of(s->q[0], ticket).failure, GPUSYNC_FAILURE_PAGE_FAULT);
    }
}

/* What no command buffer tells has a class all the same: NONE would say that nothing failed. */
on_stage_with(test_R14_a_failure_of_gpusyncs_own_is_of_the_class_OTHER, .timelines = 1, .queue = {.error_log_count = 1})
{
    gpusync_timeline_desc desc = {.signalled_by_others = true};
    gpusync_error error;
    note n = {0};
    assert_result(wait_for(s->q[0], 1, &error), GPUSYNC_ERROR_INVALID_TICKET);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_OTHER);
    gpusync_wait_options options = {.error = &error};
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_OTHER);
    gpusync_timeline *timeline = timeline_from(s->device, &desc);
    metal_event_signal(gpusync_timeline_metal(timeline, NULL), UINT64_MAX);
    assert_result(gpusync_timeline_wait(timeline, 1, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_OTHER);
    assert_ok(gpusync_timeline_destroy(timeline));
    timeline = new_timeline(s->device);
    on_done(at(timeline, 1), &n);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_noted(&n, GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(n.error.failure, GPUSYNC_FAILURE_OTHER);
    fail_one(s, s->q[0]);
    fail_one(s, s->q[0]);
    assert_result(wait_for(s->q[0], 1, &error), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_OTHER);
}

/* -- fields of a record ------------------------------------------------------------------------------------------- */

/* F8: and so does the line of the log, with the class. */
on_stage(test_R14_F8_a_record_and_a_line_tell_what_failed_where_and_why)
{
    static const char *const parts[] = {"first", "ticket 2", "shadow pass", "the shader read what it should not",
                                        "MTLCommandBufferErrorDomain 3"};
    void *buffer = named_buffer(s->q[0], "shadow pass");
    succeed_one(s, s->q[0]);
    softmetal_fail(buffer, NULL, 3, "the shader read what it should not");
    gpusync_ticket ticket = commit(s->q[0], buffer);
    finish_all(s);
    gpusync_error error = failure_at(s->q[0], 0);
    assert_result(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
    assert_int_equal(error.ticket, ticket);
    assert_int_equal(error.origin, ticket);
    assert_int_equal(error.code, 3);
    assert_int_equal(error.dropped, 0);
    assert_false(error.inherited);
    assert_true(error.ran);
    assert_false(error.transient);
    assert_string_equal(error.domain, "MTLCommandBufferErrorDomain");
    assert_string_equal(error.message, "the shader read what it should not");
    assert_string_equal(error.label, "shadow pass");
    assert_string_equal(error.queue_label, "first");
    assert_result(wait_for_all(s->q[0]), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(kit_now().log_lines, 1);
    for (size_t i = 0; i < LENGTH(parts); i++) assert_true(log_has(GPUSYNC_LOG_ERROR, parts[i]));
    assert_true(log_has(GPUSYNC_LOG_ERROR, gpusync_failure_string(GPUSYNC_FAILURE_PAGE_FAULT)));
}

on_both_kinds(test_R14_the_label_of_a_submission_stands_in_for_that_of_its_buffer)
{
    gpusync_ticket plain = SUBMIT(s->q[0], BUFFERS(failing_buffer(s->q[0], SOFTMETAL_PAGE_FAULT)), .label = "upload");
    void *named = named_buffer(s->q[0], "copy");
    softmetal_fail_as(named, SOFTMETAL_PAGE_FAULT, NULL);
    gpusync_ticket both = SUBMIT(s->q[0], BUFFERS(named), .label = "upload");
    finish_all(s);
    assert_string_equal(record_of(s->q[0], plain).label, "upload");
    assert_string_equal(record_of(s->q[0], both).label, "copy");
}

/* Three queues in a row: the third names the first ticket of the first queue. */
on_all_kinds_with(test_R14_origin_is_the_first_failure_on_the_queue_that_is_named, .queues = 3, .timelines = 1)
{
    void *buffer = named_buffer(s->q[0], "culprit");
    succeed_one(s, s->q[0]);
    succeed_one(s, s->q[2]);
    softmetal_fail_as(buffer, SOFTMETAL_OUT_OF_MEMORY, "too large");
    gpusync_ticket origin = commit(s->q[0], buffer);
    gpusync_ticket second = SUBMIT(s->q[1], WAITS(ticket_at(s->q[0], origin)), BUFFERS(named_buffer(s->q[1], "victim")),
                                   SIGNALS(at(s->t[0], 1)));
    gpusync_ticket third = SUBMIT(s->q[2], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[2])));
    finish_all(s);
    gpusync_error first = record_of(s->q[0], origin);
    assert_int_equal(record_of(s->q[1], second).origin, origin);
    gpusync_error error = record_of(s->q[2], third);
    assert_int_equal(error.ticket, third);
    assert_int_equal(error.origin, origin);
    assert_true(error.inherited);
    assert_false(error.ran);
    assert_string_equal(error.queue_label, "first");
    assert_string_equal(error.label, "culprit");
    assert_string_equal(error.message, "too large");
    assert_string_equal(error.domain, first.domain);
    assert_int_equal(error.code, first.code);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_OUT_OF_MEMORY);
    assert_result(error.result, GPUSYNC_ERROR_EXECUTION);
}

on_stage_with(test_R14_cancelled_work_has_its_labels_and_no_domain, .timelines = 1)
{
    gpusync_ticket ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(named_buffer(s->q[0], "late")));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    gpusync_error error = record_of(s->q[0], ticket);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_string_equal(error.domain, "");
    assert_true(error.message[0]);
    assert_string_equal(error.label, "late");
    assert_string_equal(error.queue_label, "first");
}

/* As where a reset takes along what stands behind the culprit. A poll finds all where the handlers are lost. */
on_stage(test_R14_of_several_buffers_that_failed_the_first_is_told)
{
    static const char *const labels[4] = {"fine", "culprit", "victim", "victim, too"};
    for (unsigned lost = 0; lost < 2; lost++) {
        gpusync_timeline *timeline = new_timeline(s->device);
        gpusync_ticket ticket;
        void *buffers[4];
        for (unsigned i = 0; i < 4; i++) {
            buffers[i] = named_buffer(s->q[0], labels[i]);
            if (i) softmetal_fail_as(buffers[i], i == 1 ? SOFTMETAL_PAGE_FAULT : SOFTMETAL_INNOCENT_VICTIM, NULL);
            if (lost) softmetal_lose_handlers(buffers[i]);
        }
        ticket = SUBMIT(s->q[0], BUFFERS(buffers[0], buffers[1], buffers[2], buffers[3]), SIGNALS(at(timeline, 1)));
        finish_all(s);
        assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_string_equal(record_of(s->q[0], ticket).label, "culprit");
        assert_int_equal(record_of(s->q[0], ticket).failure, GPUSYNC_FAILURE_PAGE_FAULT);
        assert_failed(timeline, GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

static bool is_utf8(const char *text, size_t size)
{
    const unsigned char *c = (const unsigned char *)text;
    if (strnlen(text, size) == size) return false;
    while (*c) {
        unsigned more = *c < 0x80 ? 0 : *c >= 0xF0 ? 3 : *c >= 0xE0 ? 2 : *c >= 0xC2 ? 1 : 4;
        if (more == 4) return false;
        for (c++; more; more--, c++)
            if ((*c & 0xC0) != 0x80) return false;
    }
    return true;
}

/* A log function that keeps its first lines. */
static struct {
    stage *s;
    unsigned count, not_utf8, with_newlines;
    char text[8][512];
    gpusync_log_level level[8];
    gpusync_ticket goes_on_behind, committed; /* 0: does not */
} lines;

/* What a callback or a log function may do: whatever neither waits nor destroys. */
static void go_on_behind(stage *s, gpusync_ticket failed)
{
    gpusync_error error;
    uint64_t cursor = 0;
    void *buffer = NULL;
    must(gpusync_poll(s->q[0], failed, NULL) == GPUSYNC_ERROR_EXECUTION, "a poll inside");
    must(!gpusync_queue_next_error(s->q[0], &cursor, &error), "next_error inside");
    must(!gpusync_queue_clear_failure(s->q[0], GPUSYNC_EVERYTHING), "a clear inside");
    must(!gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), "a command buffer inside");
    must(!gpusync_commit(s->q[0], buffer, &lines.committed), "a commit inside");
}

static void go_on_in_a_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    must(result == GPUSYNC_ERROR_EXECUTION, "the callback of failed work gets another result");
    go_on_behind((stage *)user, error->ticket);
}

static void keep_line(void *user, gpusync_log_level level, const char *text)
{
    if (!is_utf8(text, 2048)) lines.not_utf8++;
    if (strpbrk(text, "\n\r")) lines.with_newlines++;
    if (lines.count < LENGTH(lines.text)) {
        lines.level[lines.count] = level;
        snprintf(lines.text[lines.count], sizeof lines.text[0], "%s", text);
    }
    lines.count++;
    if (lines.goes_on_behind) go_on_behind(lines.s, lines.goes_on_behind);
}

static void repeat(char *text, size_t size, const char *head, const char *character)
{
    snprintf(text, size, "%s", head);
    while (strlen(text) + strlen(character) < size) strcat(text, character);
}

/* The text, or as much of it as fits in whole characters. */
static void assert_cut(const char *cut, size_t size, const char *text, const char *character)
{
    size_t length = strlen(cut);
    assert_true(is_utf8(cut, size));
    assert_memory_equal(cut, text, length);
    assert_true(strlen(text) < size ? length == strlen(text) : length + strlen(character) >= size);
}

/* Of Metal's, and of the program's, which are no NSString. A label has room for 63 bytes. */
on_stage(test_T12_texts_are_cut_between_characters)
{
    static const char *const characters[] = {"a", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    static const char *const heads[] = {"", "x", "xy", "xyz"};
    static const size_t sizes[] = {63, 64, 65, 66, 600};
    for (size_t i = 0; i < LENGTH(characters) * LENGTH(heads) * LENGTH(sizes); i++) {
        const char *character = characters[i % LENGTH(characters)];
        char text[600];
        gpusync_queue_desc desc = {.label = text};
        repeat(text, sizes[i / LENGTH(characters) / LENGTH(heads)], heads[i / LENGTH(characters) % LENGTH(heads)],
               character);
        gpusync_queue *queue = queue_from(s->device, &desc);
        void *buffer = named_buffer(queue, text);
        softmetal_fail(buffer, text, 1, text);
        commit(queue, buffer);
        SUBMIT(queue, BUFFERS(failing_buffer(queue, SOFTMETAL_PAGE_FAULT)), .label = text);
        while (finish_next(queue)) {}
        gpusync_error error = failure_at(queue, 0);
        assert_cut(error.message, sizeof error.message, text, character);
        assert_cut(error.label, sizeof error.label, text, character);
        assert_cut(error.domain, sizeof error.domain, text, character);
        assert_cut(error.queue_label, sizeof error.queue_label, text, character);
        error = failure_at(queue, 1);
        assert_cut(error.label, sizeof error.label, text, character);
        assert_ok(gpusync_queue_destroy(queue));
    }
}

/* Latin-1, and what breaks off in the middle of a character. What it becomes is open; it is UTF-8, and not empty. */
on_stage_with(test_T12_labels_that_are_no_utf8_are_told_as_utf8, .device = {.log = keep_line})
{
    static const char *const texts[] = {"caf\xE9", "\xFF\xFE", "x\xE2\x82", "\xC0\x80y"};
    memset(&lines, 0, sizeof lines);
    for (size_t i = 0; i < LENGTH(texts); i++) {
        gpusync_queue_desc desc = {.label = texts[i]};
        gpusync_timeline_desc timeline_desc = {.label = texts[i]};
        gpusync_ticket tickets[2];
        gpusync_queue *queue = queue_from(s->device, &desc);
        gpusync_timeline *timeline = timeline_from(s->device, &timeline_desc);
        void *buffer = named_buffer(queue, texts[i]);
        softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        tickets[0] = commit(queue, buffer);
        tickets[1] = SUBMIT(queue, BUFFERS(failing_buffer(queue, SOFTMETAL_PAGE_FAULT)), .label = texts[i]);
        assert_result(gpusync_timeline_wait(timeline, 1, 1, NULL), GPUSYNC_TIMEOUT);
        assert_result(gpusync_wait(queue, 1, 1, NULL), GPUSYNC_TIMEOUT);
        while (finish_next(queue)) {}
        for (unsigned k = 0; k < 2; k++) {
            gpusync_error error = record_of(queue, tickets[k]);
            assert_true(is_utf8(error.label, sizeof error.label) && error.label[0]);
            assert_true(is_utf8(error.queue_label, sizeof error.queue_label) && error.queue_label[0]);
        }
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_ok(gpusync_queue_destroy(queue));
    }
    assert_int_equal(lines.count, 4 * LENGTH(texts));
    assert_int_equal(lines.not_utf8, 0);
}

/* What the program gives is a copy of a struct of its own, and its texts may be anything. */
on_stage(test_R13_T12_a_reason_of_the_program_is_told_as_utf8)
{
    static const char *const tails[] = {"a", "\xE9", "\xE2\x82"};
    for (size_t i = 0; i < LENGTH(tails); i++) {
        gpusync_timeline *timeline = new_timeline(s->device);
        gpusync_error reason = {.result = GPUSYNC_ERROR_COMPILE};
        gpusync_error error;
        gpusync_wait_options options = {.error = &error};
        memset(reason.message, 'm', sizeof reason.message); /* without an end */
        memset(reason.domain, 'd', sizeof reason.domain);
        memcpy(reason.message + sizeof reason.message - strlen(tails[i]), tails[i], strlen(tails[i]));
        assert_ok(gpusync_timeline_fail(timeline, &reason));
        assert_result(gpusync_timeline_wait(timeline, 1, 0, &options), GPUSYNC_ERROR_COMPILE);
        assert_true(is_utf8(error.message, sizeof error.message));
        assert_true(is_utf8(error.domain, sizeof error.domain));
        assert_memory_equal(error.message, "mmm", 3);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
}

/* -- records, cursors --------------------------------------------------------------------------------------------- */

static void expect_next(gpusync_queue *queue, uint64_t *cursor, gpusync_ticket ticket, uint64_t dropped)
{
    gpusync_error error;
    assert_ok(gpusync_queue_next_error(queue, cursor, &error));
    assert_int_equal(error.ticket, ticket);
    assert_int_equal(error.dropped, dropped);
}

static void expect_no_more(gpusync_queue *queue, uint64_t *cursor)
{
    gpusync_error error, untouched;
    uint64_t before = *cursor;
    memset(&error, 0x77, sizeof error);
    memset(&untouched, 0x77, sizeof untouched);
    assert_result(gpusync_queue_next_error(queue, cursor, &error), GPUSYNC_NOT_READY);
    assert_memory_equal(&error, &untouched, sizeof error);
    if (before == GPUSYNC_FROM_NOW) assert_true(*cursor != GPUSYNC_FROM_NOW);
    else assert_true(*cursor == before);
}

on_both_kinds(test_R16_a_cursor_passes_every_failure_once)
{
    uint64_t early = 0, late = 0;
    expect_no_more(s->q[0], &early);
    for (int i = 1; i <= 3; i++) {
        gpusync_ticket ticket = fail_one(s, s->q[0]);
        succeed_one(s, s->q[0]);
        expect_next(s->q[0], &early, ticket, 0);
        expect_no_more(s->q[0], &early);
    }
    for (int i = 1; i <= 5; i += 2) expect_next(s->q[0], &late, i, 0);
    expect_no_more(s->q[0], &late);
    assert_result(gpusync_queue_next_error(NULL, &late, &(gpusync_error){0}), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_queue_next_error(s->q[0], NULL, &(gpusync_error){0}), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_queue_next_error(s->q[0], &late, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
}

/* Work with tickets is settled in their order, UNORDERED work, which has none, when it ends; cancelled work is on
   record, too. */
on_both_kinds_with(test_R16_R30_records_stand_in_the_order_in_which_they_were_settled, .timelines = 1)
{
    uint64_t cursor = 0;
    void *first = failing_buffer(s->q[0], SOFTMETAL_PAGE_FAULT);
    void *second = failing_buffer(s->q[0], SOFTMETAL_PAGE_FAULT);
    void *alone = failing_buffer(s->q[0], SOFTMETAL_PAGE_FAULT);
    commit(s->q[0], first);
    commit(s->q[0], second);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)));
    SUBMIT(s->q[0], BUFFERS(alone), .label = "loose", .flags = GPUSYNC_SUBMIT_UNORDERED);
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    softmetal_finish(second);
    softmetal_finish(alone);
    softmetal_finish(first);
    assert_string_equal(failure_at(s->q[0], 0).label, "loose");
    for (gpusync_ticket ticket = 0; ticket <= 3; ticket++) expect_next(s->q[0], &cursor, ticket, 0);
    expect_no_more(s->q[0], &cursor);
}

on_both_kinds_with(test_R16_a_full_log_drops_the_oldest_and_tells_each_cursor_how_many, .queue = {.error_log_count = 4})
{
    uint64_t from_start = 0, from_two = 0;
    for (int i = 1; i <= 10; i++) {
        fail_one(s, s->q[0]);
        if (i <= 2) expect_next(s->q[0], &from_two, i, 0);
    }
    expect_next(s->q[0], &from_start, 7, 6);
    expect_next(s->q[0], &from_two, 7, 4);
    for (int i = 8; i <= 10; i++) {
        expect_next(s->q[0], &from_start, i, 0);
        expect_next(s->q[0], &from_two, i, 0);
    }
    expect_no_more(s->q[0], &from_start);
}

on_both_kinds(test_R16_64_failures_are_kept_by_default)
{
    uint64_t cursor = 0;
    for (int i = 0; i < 70; i++) fail_one(s, s->q[0]);
    assert_int_equal(failures_of(s->q[0]), 64);
    expect_next(s->q[0], &cursor, 7, 6);
}

on_both_kinds_with(test_R16_from_now_skips_what_is_on_record, .queue = {.error_log_count = 4})
{
    uint64_t none = GPUSYNC_FROM_NOW, early = GPUSYNC_FROM_NOW, late = GPUSYNC_FROM_NOW;
    gpusync_ticket tickets[9];
    expect_no_more(s->q[0], &none); /* before the first failure */
    for (int i = 0; i < 2; i++) tickets[i] = fail_one(s, s->q[0]);
    expect_no_more(s->q[0], &early);
    expect_no_more(s->q[0], &early);
    succeed_one(s, s->q[0]);
    tickets[2] = fail_one(s, s->q[0]);
    expect_no_more(s->q[0], &late);
    tickets[3] = fail_one(s, s->q[0]);
    for (int i = 0; i < 4; i++) {
        expect_next(s->q[0], &none, tickets[i], 0);
        if (i >= 2) expect_next(s->q[0], &early, tickets[i], 0);
        if (i >= 3) expect_next(s->q[0], &late, tickets[i], 0);
    }
    expect_no_more(s->q[0], &late);
    none = GPUSYNC_FROM_NOW; /* a cursor may skip again */
    for (int i = 4; i < 6; i++) tickets[i] = fail_one(s, s->q[0]);
    expect_no_more(s->q[0], &none);
    for (int i = 0; i < 6; i++) tickets[i] = fail_one(s, s->q[0]);
    expect_next(s->q[0], &none, tickets[2], 2); /* four are kept: two since the cursor were dropped */
    expect_next(s->q[0], &late, tickets[2], 4);
}

/* A failure that is not on record any more is unknown, never a success; and a success stays one. */
on_both_kinds_with(test_R16_a_dropped_failure_is_unknown_and_never_well, .queue = {.error_log_count = 4})
{
    gpusync_error error;
    note n = {0};
    for (int i = 0; i < 10; i++) {
        fail_one(s, s->q[0]);
        succeed_one(s, s->q[0]);
    }
    for (gpusync_ticket ticket = 1; ticket <= 20; ticket++) {
        gpusync_result failed = ticket < 13 ? GPUSYNC_ERROR_RESULT_UNKNOWN : GPUSYNC_ERROR_EXECUTION;
        gpusync_result expected = ticket % 2 ? failed : GPUSYNC_OK;
        assert_result(gpusync_poll(s->q[0], ticket, NULL), expected);
        assert_result(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, NULL), expected);
    }
    assert_result(wait_for(s->q[0], 1, &error), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_result(error.result, GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_int_equal(error.ticket, 1);
    assert_string_equal(error.queue_label, "first");
    on_done(ticket_at(s->q[0], 1), &n);
    settle(s);
    assert_noted(&n, GPUSYNC_ERROR_RESULT_UNKNOWN);
}

/* ... also an old one, of which nothing is noted any more: what failed behind it was not dropped. */
on_both_kinds_with(test_R16_an_old_ticket_that_ended_well_stays_well, .queue = {.error_log_count = 4})
{
    fail_one(s, s->q[0]);
    for (int i = 0; i < 300; i++) succeed_one(s, s->q[0]);
    for (int i = 0; i < 4; i++) fail_one(s, s->q[0]); /* the first is dropped */
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_ok(gpusync_poll(s->q[0], 2, NULL));
    assert_ok(gpusync_wait(s->q[0], 40, GPUSYNC_FOREVER, NULL));
}

/* -- what a wait for everything tells ----------------------------------------------------------------------------- */

/* Commits what the letters say, and has it end: F fails, C is cancelled, O ends well, U is UNORDERED and fails. */
static void commit_all(stage *s, gpusync_queue *queue, const char *letters)
{
    for (; *letters; letters++) {
        if (*letters == 'F') commit_failing(queue, SOFTMETAL_PAGE_FAULT);
        if (*letters == 'O') commit_new(queue);
        if (*letters == 'U')
            SUBMIT(queue, BUFFERS(failing_buffer(queue, SOFTMETAL_PAGE_FAULT)), .flags = GPUSYNC_SUBMIT_UNORDERED);
        if (*letters == 'C') {
            SUBMIT(queue, WAITS(at(s->t[0], 1)));
            assert_ok(gpusync_queue_cancel_held(queue, GPUSYNC_EVERYTHING));
        }
        finish_all(s);
    }
}

typedef enum asks { POLL, TICKET, WAIT, DEVICE, ALL, ANY, ALL_OR_FAILURE } asks;

static gpusync_result ask(stage *s, asks by, gpusync_error *error, size_t *which)
{
    static const gpusync_wait_for how[] = {[ALL] = GPUSYNC_WAIT_ALL, [ANY] = GPUSYNC_WAIT_ANY,
                                           [ALL_OR_FAILURE] = GPUSYNC_WAIT_ALL_OR_FAILURE};
    const gpusync_point points[] = {ticket_at(s->q[0], GPUSYNC_EVERYTHING), ticket_at(s->q[1], GPUSYNC_EVERYTHING)};
    const gpusync_wait_options options = {.error = error};
    switch (by) {
    case POLL: return gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL);
    case TICKET: return gpusync_wait(s->q[0], 1, 0, &options);
    case WAIT: return gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, &options);
    case DEVICE: return gpusync_device_wait(s->device, 0, &options);
    default: return gpusync_wait_many(points, 2, how[by], 0, &options, which);
    }
}

/* What is told is the failures of the queue of the one that is returned, and of no other. */
on_all_kinds_with(test_R31_each_wait_tells_the_failures_of_one_queue, .queues = 2, .timelines = 1)
{
    static const struct {
        asks by;
        const char *work[2]; /* of each queue; -: goes on */
        gpusync_result result;
        int of; /* the queue whose failures are told then; -1: none; 2: either's */
    } rows[] = {
        {POLL, {"F", "F"}, GPUSYNC_ERROR_EXECUTION, -1},
        {TICKET, {"F", ""}, GPUSYNC_ERROR_EXECUTION, -1},
        {WAIT, {"FF", "F"}, GPUSYNC_ERROR_EXECUTION, 0},
        {WAIT, {"OCO", ""}, GPUSYNC_ERROR_CANCELLED, 0},
        {WAIT, {"OU", "U"}, GPUSYNC_ERROR_EXECUTION, 0},
        {WAIT, {"F-", "F"}, GPUSYNC_TIMEOUT, -1},
        {WAIT, {"O", "F"}, GPUSYNC_OK, -1},
        {DEVICE, {"F", "FF"}, GPUSYNC_ERROR_EXECUTION, 2},
        {DEVICE, {"O", "FF"}, GPUSYNC_ERROR_EXECUTION, 1},
        {DEVICE, {"U", "O"}, GPUSYNC_ERROR_EXECUTION, 0},
        {DEVICE, {"F", "F-"}, GPUSYNC_TIMEOUT, -1},
        {ALL, {"F", "FF"}, GPUSYNC_ERROR_EXECUTION, 0},
        {ALL, {"O", "F"}, GPUSYNC_ERROR_EXECUTION, 1},
        {ALL, {"F", "-"}, GPUSYNC_TIMEOUT, -1},
        {ANY, {"F", "F"}, GPUSYNC_ERROR_EXECUTION, 0},
        {ANY, {"F-", "FF"}, GPUSYNC_ERROR_EXECUTION, 1},
        {ANY, {"O", "F"}, GPUSYNC_OK, -1},
        {ANY, {"F-", "F-"}, GPUSYNC_TIMEOUT, -1},
        {ALL_OR_FAILURE, {"F", "F"}, GPUSYNC_ERROR_EXECUTION, 0},
        {ALL_OR_FAILURE, {"F-", "F"}, GPUSYNC_ERROR_EXECUTION, 1},
        {ALL_OR_FAILURE, {"O-", "U"}, GPUSYNC_ERROR_EXECUTION, 1},
        {ALL_OR_FAILURE, {"F-", "O"}, GPUSYNC_TIMEOUT, -1},
    };
    for (size_t row = 0; row < LENGTH(rows); row++) {
        size_t which = 9;
        int of = rows[row].of;
        gpusync_error error;
        print_message("  row %u\n", (unsigned)row);
        for (unsigned i = 0; i < 2; i++) commit_all(s, s->q[i], rows[row].work[i]);
        for (unsigned i = 0; i < 2; i++)
            if (strchr(rows[row].work[i], '-')) commit_new(s->q[i]);
        assert_result(ask(s, rows[row].by, &error, &which), rows[row].result);
        if (of == 2) of = strcmp(error.queue_label, "first") != 0;
        if (of >= 0) assert_string_equal(error.queue_label, of ? "second" : "first");
        if (of >= 0 && rows[row].by >= ALL) assert_int_equal(which, of);
        finish_all(s);
        for (int i = 0; i < 2; i++) {
            bool failed = strpbrk(rows[row].work[i], "FCU");
            gpusync_result left = gpusync_poll(s->q[i], GPUSYNC_EVERYTHING, NULL);
            assert_int_equal(left != GPUSYNC_OK, failed && of != i);
            assert_result(wait_for_all(s->q[i]), left);
            assert_ok(wait_for_all(s->q[i]));
        }
    }
}

/* A scheduler that resumes late: what has been woken goes on when the test says so. */
static bool resumes_late;

static void park_and_resume_late(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    kit_park(user, waiter, deadline_ns);
    while (GET(&resumes_late)) sched_yield();
}

static const gpusync_hooks late_hooks = {.yield = kit_yield, .park = park_and_resume_late, .unpark = kit_unpark};

/* The failure that a wait for everything has returned is "ticket:dropped", and "-" if it is none. */
static void note_told(char *told, size_t size, const job *wait)
{
    size_t length = strlen(told);
    if (wait->result == GPUSYNC_OK) snprintf(told + length, size - length, "- ");
    else snprintf(told + length, size - length, "%d:%d ", (int)wait->error.ticket, (int)wait->error.dropped);
}

/* Steps: F, C, O, U as above; w: a wait for everything that is over at once; B: work, which has a ticket, too, and ends
   with the next step, and such a wait, which returns at R. */
static void play_told(unsigned kept, const char *steps, const char *expected)
{
    stage_desc desc = {.timelines = 1, .device.hooks = &late_hooks, .queue.error_log_count = kept};
    job jobs[2] = {0}, now = {0};
    char told[64] = "";
    unsigned begun = 0;
    stage s;
    stage_open(&s, &desc);
    for (const char *step = steps; *step; step++) {
        if (strchr("FCOU", *step)) commit_all(&s, s.q[0], (const char[]){*step, 0});
        else if (*step != 'B') finish_all(&s);
        if (*step == 'w') {
            now.result = wait_for(s.q[0], GPUSYNC_EVERYTHING, &now.error);
            note_told(told, sizeof told, &now);
        }
        if (*step == 'B') {
            PUT(&resumes_late, true);
            commit_new(s.q[0]);
            job_wait(&jobs[begun++], s.q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
            await_parks(begun);
        }
        if (*step == 'R') PUT(&resumes_late, false);
        for (unsigned i = 0; *step == 'R' && i < begun; i++) {
            (void)job_end(&jobs[i]);
            note_told(told, sizeof told, &jobs[i]);
        }
    }
    if (strcmp(told, expected) != 0) fail_msg("%s, %u kept: %s, expected %s", steps, kept, told, expected);
    stage_close(&s);
}

without_stage_on_both_kinds(test_R31_which_failure_each_wait_returns)
{
    static const struct {
        unsigned kept; /* on record */
        const char *steps, *told;
    } rows[] = {
        {9, "FFww", "1:0 - "},      /* one wait tells all */
        {9, "FwFww", "1:0 2:0 - "}, /* but what comes later */
        {9, "OCFww", "2:0 - "},
        {9, "UFww", "0:0 - "},
        {9, "FBBRw", "1:0 1:0 - "},     /* waits that overlap */
        {9, "FBwRw", "1:0 1:0 - "},     /* ... though one of them has told it */
        {9, "FBwFRw", "1:0 1:0 3:0 "},  /* ... and another failure has come */
        {9, "BFRw", "- 2:0 "},          /* later work is left to a later wait */
        {9, "FBFRww", "1:0 3:0 - "},    /* ... also behind a failure that is told */
        {9, "BURw", "0:0 - "},          /* UNORDERED work counts at once */
        {9, "FBUR", "1:0 "},
        {1, "FFww", "2:1 - "},      /* the oldest that is left */
        {2, "FFFFww", "3:2 - "},
        {1, "FCww", "2:1 - "},      /* cancelled and UNORDERED work push, too */
        {1, "FUww", "0:1 - "},
        {1, "UFww", "1:1 - "},
        {1, "FwFww", "1:0 2:0 - "}, /* what was told may go */
        {1, "FwFFww", "1:0 3:1 - "},
        {1, "FBFRw", "3:1 - "},     /* all that the wait covers has gone: the one for it is told */
        {1, "FBwFRw", "1:0 3:1 - "},
        {1, "FBBFRw", "4:1 4:1 - "},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) play_told(rows[i].kept, rows[i].steps, rows[i].told);
}

/* A wait that is late has UNORDERED work's failure on record behind that of a ticket which it does not cover. It counts
   as told up to the newest of the tickets that it covers: the next wait returns what that one left. */
without_stage_on_both_kinds(test_R31_a_failure_of_unordered_work_tells_none_of_later_tickets)
{
    play_told(9, "FBFURw", "1:0 3:0 ");
    play_told(9, "BFURw", "0:0 2:0 ");
}

/* -- a failure that sticks ---------------------------------------------------------------------------------------- */

#define STICKY .queue = {.sticky_failure = true}

static void clear(gpusync_queue *queue)
{
    assert_ok(gpusync_queue_clear_failure(queue, GPUSYNC_EVERYTHING));
}

/* The ticket whose failure sticks; 0: none does. The question looks; a call that is refused says the same. */
static gpusync_ticket sticks(gpusync_queue *queue)
{
    gpusync_error error, record;
    void *buffer = NULL;
    gpusync_result asked = gpusync_queue_failure(queue, &error);
    gpusync_result result = gpusync_command_buffer_create(queue, NULL, 0, &buffer);
    if (result == GPUSYNC_OK) assert_ok(gpusync_command_buffer_discard(queue, buffer));
    if (is_metal4(queue)) result = TRY_SUBMIT(queue, NULL, .flags = GPUSYNC_SUBMIT_UNORDERED);
    assert_result(result, asked == GPUSYNC_OK ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    if (asked != GPUSYNC_OK) return 0;
    record = record_of(queue, error.ticket);
    assert_same_error(&error, &record);
    return error.ticket;
}

on_stage_with(test_R32_new_work_is_refused_until_the_clear, .queues = 2, STICKY)
{
    gpusync_ticket ticket = 77;
    void *open = new_buffer(s->q[0]), *foreign = foreign_buffer(s->q[0]), *out = s;
    note n = {0};
    fail_one(s, s->q[0]);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &out), GPUSYNC_ERROR_EXECUTION);
    assert_null(out);
    assert_result(gpusync_commit(s->q[0], open, &ticket), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_commit(s->q[0], foreign, &ticket), GPUSYNC_ERROR_EXECUTION);
    assert_result(TRY_SUBMIT(s->q[0], &ticket, BUFFERS(open), .on_complete = remember, .user = &n),
                  GPUSYNC_ERROR_EXECUTION);
    assert_result(TRY_SUBMIT(s->q[0], NULL, BUFFERS(open), .flags = GPUSYNC_SUBMIT_UNORDERED),
                  GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(ticket, 77);
    assert_int_equal(softmetal_retain_count(foreign), 1);
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
    assert_int_equal(failures_of(s->q[0]), 1);
    clear(s->q[0]);
    assert_int_equal(commit(s->q[0], open), 2);
    assert_int_equal(commit(s->q[0], foreign), 3);
    metal_release(foreign);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 3, NULL));
    assert_int_equal(calls_of(&n), 0);
    commit_new(s->q[1]); /* another queue has nothing to do with it */
}

/* Encoding is no new work: a thread that has begun a frame ends it, and learns of the failure at the commit. */
on_stage_with(test_R32_buffers_are_encoded_into_until_the_clear, .timelines = 1, STICKY)
{
    void *open = new_buffer(s->q[0]), *foreign = foreign_buffer(s->q[0]);
    fail_one(s, s->q[0]);
    encode_wait(s->q[0], open, at(s->t[0], 1));
    encode_signal(s->q[0], open, at(s->t[0], 2));
    encode_signal(s->q[0], foreign, at(s->t[0], 3));
    assert_result(gpusync_commit(s->q[0], open, NULL), GPUSYNC_ERROR_EXECUTION);
    clear(s->q[0]);
    commit(s->q[0], open);
    gpusync_ticket ticket = commit(s->q[0], foreign);
    metal_release(foreign);
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_int_equal(value_of(s->t[0]), 3);
}

/* -- ... in every order of commits, failures, ends and clears */

/* Pieces of work: each signals a timeline of its own, but for markers. */
typedef struct piece {
    gpusync_timeline *out;
    void *buffer, *behind; /* behind: a marker's */
    note end;
} piece;

/* Commits the n-th piece, from 1 on. o: ends well; f: fails; h: is held; i: waits for work of the second queue, which
   fails; k: for such work that is cancelled; u, v, w: as o, f, h, and UNORDERED; m: a marker; n: one that fails. */
static void commit_piece(stage *s, piece *p, char what, uint32_t n, uint32_t flags)
{
    gpusync_submission work = {.on_complete = remember, .user = &p->end, .flags = flags};
    const bool fails = what == 'f' || what == 'v';
    if (what == 'm' || what == 'n') {
        gpusync_ticket ticket;
        p->behind = foreign_buffer(s->q[0]);
        if (what == 'n') softmetal_fail_as(p->behind, SOFTMETAL_PAGE_FAULT, NULL);
        metal_commit(p->behind);
        assert_ok(gpusync_commit_marker(s->q[0], p->behind, &ticket));
        on_done(ticket_at(s->q[0], ticket), &p->end);
        return;
    }
    gpusync_point wait = at(s->t[0], 1);
    p->buffer = fails ? failing_buffer(s->q[0], SOFTMETAL_PAGE_FAULT) : new_buffer(s->q[0]);
    p->out = new_timeline(s->device);
    if (!fails) mark(s, p->buffer, n);
    if (what == 'i') wait = ticket_at(s->q[1], commit_failing(s->q[1], SOFTMETAL_OUT_OF_MEMORY));
    if (what == 'k') wait = ticket_at(s->q[1], SUBMIT(s->q[1], WAITS(at(s->t[1], 1))));
    work.wait_points = &wait;
    work.wait_count = strchr("hikw", what) != NULL;
    work.command_buffers = &p->buffer;
    work.command_buffer_count = 1;
    work.signal_points = &(gpusync_point){.timeline = p->out, .value = 1};
    work.signal_count = 1;
    work.flags |= strchr("uvw", what) ? GPUSYNC_SUBMIT_UNORDERED : 0;
    assert_ok(submit_to(s->q[0], &work, NULL));
}

/* The end is O: well; F: with a failure of its own; C: cancelled; I: with that of the second queue; 1, 2, ...: with
   that of this piece. */
static bool ended_so(piece *pieces, unsigned i, char end)
{
    const gpusync_error *error = &pieces[i].end.error;
    if (calls_of(&pieces[i].end) != 1) return false;
    if (pieces[i].out) {
        uint64_t value;
        gpusync_result out = gpusync_timeline_query(pieces[i].out, &value, NULL);
        if (out != pieces[i].end.result || (out == GPUSYNC_OK && value != 1)) return false;
    }
    if (end == 'O') return pieces[i].end.result == GPUSYNC_OK;
    if (pieces[i].end.result >= GPUSYNC_OK || error->result != pieces[i].end.result) return false;
    if (end == 'F') return error->failure == GPUSYNC_FAILURE_PAGE_FAULT && !error->inherited;
    if (end == 'C') return error->result == GPUSYNC_ERROR_CANCELLED && !error->inherited;
    if (end == 'I') return error->inherited && strcmp(error->queue_label, "second") == 0;
    const gpusync_error *first = &pieces[end - '1'].end.error;
    return error->inherited && error->result == first->result && error->failure == first->failure &&
           error->code == first->code && error->origin == first->origin && !strcmp(error->message, first->message) &&
           !strcmp(error->queue_label, first->queue_label);
}

/* A wait for everything, and a poll before it, tell the failure of ticket n; 0: none. */
static void expect_untold(gpusync_queue *queue, int n)
{
    gpusync_error error = {.ticket = 0};
    gpusync_result polled = gpusync_poll(queue, GPUSYNC_EVERYTHING, NULL);
    assert_result(wait_for(queue, GPUSYNC_EVERYTHING, &error), polled);
    assert_int_equal(error.ticket, n);
    assert_int_equal(polled == GPUSYNC_OK, n == 0);
}

/* Steps. Work: see commit_piece. Ends: e, the next one; E, all; d1, piece 1; c1, likewise, by Metal's status alone; g,
   what is held may go; x, it is cancelled; X1, piece 1 is. Asked: p1, a poll; !1, the failure of ticket 1 sticks; !0, none does; W1
   and W0, see expect_untold. Clears: C; K1, of ticket 1; N1, likewise, but that of a later one sticks; I1, there is
   none. */
static void play_sticks(const char *steps, const char *ends, const char *runs, uint32_t flags)
{
    stage_desc desc = {.queues = 2, .timelines = 2, STICKY};
    piece pieces[8] = {0};
    char ran[16] = "";
    unsigned count = 0;
    stage s;
    stage_open(&s, &desc);
    if (is_metal4(s.q[0]) && strpbrk(steps, "mnc")) steps = runs = ""; /* it has no markers, and no status */
    forget_marks();
    for (const char *step = steps; *step; step++) {
        int n = step[1] - '0';
        if (strchr("ofhikuvwmn", *step)) {
            commit_piece(&s, &pieces[count], *step, count + 1, flags);
            count++;
        }
        if (*step == 'e') finish_next(s.q[0]);
        if (*step == 'E') assert_ok(gpusync_queue_cancel_held(s.q[1], GPUSYNC_EVERYTHING));
        if (*step == 'E') finish_all(&s);
        if (*step == 'c') softmetal_complete(pieces[n - 1].buffer);
        if (*step == 'd') softmetal_finish(pieces[n - 1].buffer);
        if (*step == 'p') (void)!gpusync_poll(s.q[0], n, NULL);
        if (*step == 'g') signal_value(s.t[0], 1);
        if (*step == 'x') assert_ok(gpusync_queue_cancel_held(s.q[0], GPUSYNC_EVERYTHING));
        if (*step == 'X') assert_ok(gpusync_queue_cancel_held(s.q[0], n));
        if (*step == '!' && sticks(s.q[0]) != n) fail_msg("%s: at %s", steps, step);
        if (*step == 'W') expect_untold(s.q[0], n);
        if (*step == 'C') clear(s.q[0]);
        if (*step == 'K') assert_ok(gpusync_queue_clear_failure(s.q[0], n));
        if (*step == 'N') assert_result(gpusync_queue_clear_failure(s.q[0], n), GPUSYNC_NOT_READY);
        if (*step == 'I') assert_result(gpusync_queue_clear_failure(s.q[0], n), GPUSYNC_ERROR_INVALID_TICKET);
    }
    settle(&s);
    for (unsigned i = 0; i < count; i++)
        if (!ended_so(pieces, i, ends[i])) fail_msg("%s: piece %u ended with %d", steps, i + 1, pieces[i].end.result);
    for (unsigned i = 0; i < marks(); i++) ran[i] = (char)('0' + mark_at(i));
    if (strcmp(ran, runs) != 0) fail_msg("%s: %s ran, expected %s", steps, ran, runs);
    for (unsigned i = 0; i < count; i++) {
        assert_ok(gpusync_timeline_destroy(pieces[i].out));
        metal_release(pieces[i].behind);
    }
    stage_close(&s);
}

without_stage_on_both_kinds(test_R32_what_sticks_and_what_takes_it)
{
    static const struct {
        const char *steps, *ends, *runs; /* of each piece; those that the GPU ran to a good end */
    } rows[] = {
        {"oofE!3", "OOF", "12"}, /* work before it succeeds */
        {"foE!1", "F1", "2"},    /* sent work behind it takes the failure, though it runs */
        {"ffoE!1", "FF1", "3"},  /* a second one keeps its own, and does not replace the first */
        {"ofd2!0od1!2E!2", "OF2", "13"}, /* it sticks from its turn on */
        {"foe!1CE!0", "F1", "2"},        /* heirs, too, may end after the clear, */
        {"fooeCoE!0", "F11O", "234"},
        {"feCoE!0", "FO", "2"},
        {"foeCCE!0", "F1", "2"}, /* ... of which a second one takes nothing back */
        {"ffeCE!0", "FF", ""},   /* what was committed before the clear sticks no more, */
        {"feCfE!2", "FF", ""},   /* ... what was committed behind it does */
        {"foeCfoE!3", "F1F3", "24"},
        {"foeCfeeCoE!0", "F1FO", "24"},
        {"fC!0oE!1", "F1", "2"}, /* a clear before the end changes nothing */
        {"ofoK0K1K3I4E!2N0N1I4!2K2!0", "OF2", "13"}, /* a clear names the failed ticket, or a later one */
        {"ofoE!2K3!0", "OF2", "13"},
        {"ffEW1W1!1CW0!0", "FF", ""}, /* each wait for everything tells it until the clear */
        {"fECW1W0!0", "F", ""},       /* ... which tells nothing */
        {"fhhE!1", "F11", ""},        /* held work never runs */
        {"fhoeCgE!0", "F11", ""},
        {"hfE!0gE!2", "OF", "1"},
        {"hoxE!0", "CC", ""}, /* cancelled work does not stick, */
        {"fhxE!1", "FC", ""},
        {"hhoX1E!0gE!0", "COO", "23"}, /* work behind one that is cancelled goes on, */
        {"hhoX2E!0gE!0", "OCO", "13"},
        {"fhoX2E!1", "FC1", "3"}, /* ... and takes what sticks */
        {"fhhX2eCoE!0", "FC1O", "4"},
        {"koE!0", "IO", "2"}, /* ... nor what waits for it */
        {"ioE!1", "I1", ""},  /* an inherited failure sticks */
        {"fieCE!0", "F1", ""},
        {"vohE!0gE!0", "FOO", "23"}, /* UNORDERED work neither has its failure stick, nor takes one, */
        {"fuvE!1", "FOF", "2"},
        {"fwE!1gE!1", "FO", "2"}, /* ... and goes when it may */
        {"fweCgE!0", "FO", "2"},
        {"noE!1", "F1", "2"}, /* a marker's failure sticks */
        {"nooeeCoE!0", "F11O", "234"},
        {"fmE!1emE!1", "FOO", ""}, /* a marker takes none, is accepted, and keeps its own */
        {"fneCE!0", "FF", ""},
        {"fe!1nE!1", "FF", ""},
        {"foc1c2p2E!1", "F1", "2"}, /* F17: calls look in either order */
        {"foc1c2p1E!1", "F1", "2"},
        {"fod2d1!1", "F1", "2"},
        {"fc1CE!0W1W0", "F", ""}, /* the clear and the question look first */
        {"fc1!1CE!0", "F", ""},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        play_sticks(rows[i].steps, rows[i].ends, rows[i].runs, 0);
        play_sticks(rows[i].steps, rows[i].ends, rows[i].runs, GPUSYNC_SUBMIT_ON_GPU);
    }
}

/* In a callback of a queue that is destroyed. */
static void ask_what_sticks(void *user, gpusync_result result, const gpusync_error *error)
{
    gpusync_error out;
    must(gpusync_queue_failure((gpusync_queue *)user, &out) == GPUSYNC_OK, "what sticks");
    must(gpusync_queue_clear_failure((gpusync_queue *)user, 0) == GPUSYNC_ERROR_DESTROYED, "a clear");
}

on_stage_with(test_R32_calls_that_refuse_change_nothing, .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL}, STICKY)
{
    gpusync_queue *plain = queue_from(s->device, NULL), *queue = s->q[0];
    gpusync_error error = {.code = 77};
    assert_result(gpusync_queue_failure(queue, &error), GPUSYNC_NOT_READY);
    assert_result(gpusync_queue_failure(plain, &error), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_queue_failure(NULL, &error), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_queue_failure(queue, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(error.code, 77);
    assert_result(gpusync_queue_clear_failure(plain, GPUSYNC_EVERYTHING), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_queue_clear_failure(NULL, GPUSYNC_EVERYTHING), GPUSYNC_ERROR_INVALID_ARGUMENT);
    fail_one(s, queue);
    assert_result(gpusync_queue_clear_failure(queue, GPUSYNC_EVERYTHING - 1), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_queue_clear_failure(queue, INT64_MIN), GPUSYNC_NOT_READY);
    assert_int_equal(sticks(queue), 1);
    assert_ok(gpusync_on_done(ticket_at(queue, 1), ask_what_sticks, queue));
    assert_ok(gpusync_queue_destroy(queue));
    s->q[0] = NULL;
    assert_ok(gpusync_queue_destroy(plain));
}

/* A full queue of heirs behind the failure leaves it on record. */
on_both_kinds(test_R32_the_record_of_a_sticky_queue_has_room_for_all_that_inherit)
{
    static const struct {
        bool sticky;
        uint32_t room, kept, work, records;
    } rows[] = {{true, 5, 1, 5, 5}, {true, 5, 7, 5, 5}, {true, 0, 2, 63, 63}, {false, 5, 1, 5, 1}};
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const bool metal4 = is_metal4(s->q[0]);
        gpusync_queue_desc desc = {.sticky_failure = rows[i].sticky, .max_command_buffer_count = rows[i].room,
                                   .error_log_count = rows[i].kept};
        gpusync_queue *queue = queue_of_kind(metal4, s->device, &desc);
        for (uint32_t k = 0; k < rows[i].work; k++)
            if (rows[i].sticky && k) commit_new(queue);
            else commit_failing(queue, SOFTMETAL_PAGE_FAULT);
        while (finish_next(queue)) {}
        bool as_given = !rows[i].room && metal4; /* has no limit */
        assert_int_equal(failures_of(queue), as_given ? rows[i].kept : rows[i].records);
        if (rows[i].sticky && !as_given) assert_int_equal(failure_at(queue, 0).ticket, 1);
        assert_ok(gpusync_queue_destroy(queue));
    }
}

/* No place comes with this failure: the work that inherits it has ended before, and others have its place. */
on_stage_with(test_R32_a_thread_that_waits_for_room_is_woken_by_the_failure_alone, .queues = 2, .timelines = 1,
              .queue = {.sticky_failure = true, .max_command_buffer_count = 2})
{
    void *culprit = signalling(s->q[1], at(s->t[0], 1)), *heir = new_buffer(s->q[0]);
    job waits = {0};
    softmetal_fail_after_signals(culprit, 1);
    commit(s->q[1], culprit);
    encode_wait(s->q[0], heir, at(s->t[0], 1));
    commit(s->q[0], heir);
    softmetal_schedule(culprit);
    softmetal_execute(culprit); /* the signal, which lets the heir's wait on the GPU pass */
    softmetal_finish(heir);
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_NOT_READY);
    (void)new_buffer(s->q[0]);
    (void)new_buffer(s->q[0]);
    job_buffer(&waits, s->q[0], GPUSYNC_FOREVER);
    await_parked(1);
    unsigned long unparks = kit_now().unparks;
    softmetal_finish(culprit);
    assert_int_equal(kit_now().unparks, unparks + 1);
    assert_result(job_end(&waits), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_EXECUTION);
}

/* Inside a marker's commit: the held work may go, but the order lock is taken; then the failure sticks, and is
   cleared. */
static struct {
    stage *s;
    void *fails;
    gpusync_result polled, cleared; /* no assertion may jump out of a commit */
} in_commit;

static void fail_and_clear_in_commit(void *unused, softmetal_phase phase, void *object, const char *selector)
{
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, "commit") != 0) return;
    softmetal_set_message_hook(NULL, NULL);
    signal_value(in_commit.s->t[0], 1);
    softmetal_finish(in_commit.fails);
    in_commit.polled = gpusync_poll(in_commit.s->q[0], 1, NULL);
    in_commit.cleared = gpusync_queue_clear_failure(in_commit.s->q[0], GPUSYNC_EVERYTHING);
}

on_stage_with(test_R32_work_that_was_about_to_go_takes_a_failure_that_was_cleared, .timelines = 1, STICKY)
{
    void *fails = failing_buffer(s->q[0], SOFTMETAL_PAGE_FAULT), *held = new_buffer(s->q[0]);
    commit(s->q[0], fails);
    gpusync_ticket ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(held));
    metal_retain(held);
    in_commit.s = s;
    in_commit.fails = fails;
    softmetal_set_message_hook(fail_and_clear_in_commit, NULL);
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    assert_result(in_commit.polled, GPUSYNC_ERROR_EXECUTION);
    assert_result(in_commit.cleared, GPUSYNC_OK);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_false(is_sent(held));
    metal_release(held);
    finish_all(s);
}

/* What waits for a signal of refused work waits on, and other work may make the signal. */
without_stage(test_R32_a_discard_fails_no_timeline)
{
    enum { NOTHING_STICKS, STICKS, WAS_REFUSED, STICKS_NO_MORE, CASES };
    for (unsigned i = 0; i < 2 * CASES; i++) {
        unsigned when = i / 2;
        stage_desc desc = {.queues = 2, .timelines = 1, .timeline.order_only = i % 2, STICKY};
        stage s;
        stage_open(&s, &desc);
        void *buffer = signalling(s.q[0], at(s.t[0], 1));
        gpusync_ticket waits = SUBMIT(s.q[1], WAITS(at(s.t[0], 1)), BUFFERS(new_buffer(s.q[1])));
        if (when != NOTHING_STICKS) fail_one(&s, s.q[0]);
        if (when == WAS_REFUSED) assert_result(gpusync_commit(s.q[0], buffer, NULL), GPUSYNC_ERROR_EXECUTION);
        if (when == STICKS_NO_MORE) clear(s.q[0]);
        assert_ok(gpusync_command_buffer_discard(s.q[0], buffer));
        assert_int_equal(value_of(s.t[0]), 0);
        assert_result(gpusync_poll(s.q[1], waits, NULL), GPUSYNC_NOT_READY);
        SUBMIT(s.q[1], SIGNALS(at(s.t[0], 1)), .flags = GPUSYNC_SUBMIT_UNORDERED);
        finish_all(&s);
        assert_ok(gpusync_poll(s.q[1], waits, NULL));
        stage_close(&s);
    }
}

/* -- whose failure it is, and what the GPU may still use (R30, R39) ------------------------------------------------ */

/* One that failed; and of a queue that is given up: one that Metal had, one that was held, and an heir elsewhere. */
on_all_kinds_with(test_R30_in_use_is_of_work_that_was_given_up_while_metal_had_it, .queues = 2, .timelines = 2)
{
    static const gpusync_result results[] = {GPUSYNC_ERROR_EXECUTION, GPUSYNC_ERROR_DESTROYED, GPUSYNC_ERROR_CANCELLED,
                                             GPUSYNC_ERROR_DESTROYED};
    static note notes[LENGTH(results)];
    gpusync_queue *queue = s->q[0];
    memset(notes, 0, sizeof notes);
#define LOOSE(n) .on_complete = remember, .user = &notes[n], .flags = GPUSYNC_SUBMIT_UNORDERED
    SUBMIT(queue, BUFFERS(failing_buffer(queue, SOFTMETAL_PAGE_FAULT)), LOOSE(0));
    finish_all(s);
    SUBMIT(queue, BUFFERS(new_buffer(queue)), SIGNALS(at(s->t[0], 1)), LOOSE(1));
    SUBMIT(queue, WAITS(at(s->t[1], 1)), BUFFERS(new_buffer(queue)), LOOSE(2));
    SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[1])), LOOSE(3));
    s->q[0] = NULL;
    assert_ok(gpusync_queue_abandon(queue));
    for (unsigned i = 0; i < LENGTH(results); i++) {
        assert_noted(&notes[i], results[i]);
        assert_int_equal(notes[i].error.in_use, i == 1);
    }
}

/* `user` is never read: here it leads nowhere. */
#define FIRST_USER ((void *)(uintptr_t)1)
#define SECOND_USER ((void *)(uintptr_t)2)

on_both_kinds_with(test_R39_queue_user_is_that_of_the_queue_that_failed_first, .timelines = 2)
{
    const bool metal4 = is_metal4(s->q[0]);
    gpusync_queue_desc descs[] = {{.user = FIRST_USER}, {.user = SECOND_USER, .error_log_count = 2}};
    gpusync_queue *first = queue_of_kind(metal4, s->device, &descs[0]);
    gpusync_queue *second = queue_of_kind(metal4, s->device, &descs[1]);
    gpusync_error error;
    note notes[3] = {0};
    SUBMIT(first, BUFFERS(failing_buffer(first, SOFTMETAL_PAGE_FAULT)), SIGNALS(at(s->t[0], 1)),
           .on_complete = remember, .user = &notes[0], .flags = GPUSYNC_SUBMIT_UNORDERED);
    gpusync_ticket own = commit_failing(second, SOFTMETAL_PAGE_FAULT);
    gpusync_ticket heir = SUBMIT(second, WAITS(at(s->t[0], 1)), .on_complete = remember, .user = &notes[1]);
    on_done(at(s->t[0], 1), &notes[2]);
    while (finish_next(first)) {}
    while (finish_next(second)) {}
    assert_ok(gpusync_queue_destroy(first));
    for (unsigned i = 0; i < LENGTH(notes); i++) {
        assert_noted(&notes[i], GPUSYNC_ERROR_EXECUTION);
        assert_ptr_equal(notes[i].error.queue_user, FIRST_USER);
    }
    assert_ptr_equal(record_of(second, heir).queue_user, FIRST_USER);
    assert_ptr_equal(record_of(second, own).queue_user, SECOND_USER);
    assert_result(gpusync_timeline_query(s->t[0], &(uint64_t){0}, &error), GPUSYNC_ERROR_EXECUTION);
    assert_ptr_equal(error.queue_user, FIRST_USER);
    commit_failing(second, SOFTMETAL_PAGE_FAULT);
    while (finish_next(second)) {}
    assert_result(wait_for(second, own, &error), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_ptr_equal(error.queue_user, SECOND_USER);
    assert_result(wait_for(second, 99, &error), GPUSYNC_ERROR_INVALID_TICKET); /* no queue failed */
    assert_null(error.queue_user);
    fail_timeline(s->t[1], GPUSYNC_ERROR_COMPILE);
    assert_result(gpusync_timeline_query(s->t[1], &(uint64_t){0}, &error), GPUSYNC_ERROR_COMPILE);
    assert_null(error.queue_user);
    assert_ok(gpusync_queue_destroy(second));
}

on_stage_with(test_R39_a_query_says_why_the_timeline_has_failed, .timelines = 1)
{
    const gpusync_error reason = {.result = GPUSYNC_ERROR_COMPILE, .code = 5, .message = "no shader"};
    gpusync_error error = {.code = 77};
    uint64_t value;
    signal_value(s->t[0], 3);
    assert_ok(gpusync_timeline_query(s->t[0], &value, &error));
    assert_int_equal(error.code, 77);
    assert_ok(gpusync_timeline_fail(s->t[0], &reason));
    assert_result(gpusync_timeline_query(s->t[0], &value, NULL), GPUSYNC_ERROR_COMPILE);
    assert_result(gpusync_timeline_query(s->t[0], &value, &error), GPUSYNC_ERROR_COMPILE);
    assert_int_equal(value, 3);
    assert_result(error.result, GPUSYNC_ERROR_COMPILE);
    assert_int_equal(error.code, 5);
    assert_string_equal(error.message, "no shader");
}

/* -- times -------------------------------------------------------------------------------------------------------- */

static double clock_s;
static double gpu_clock(void) { return clock_s; }

static double start_of(void *buffer)
{
    return METAL__AS0(double)(buffer, metal__sel("GPUStartTime"));
}

static double end_of(void *buffer)
{
    return METAL__AS0(double)(buffer, metal__sel("GPUEndTime"));
}

static void assert_times(gpusync_queue *queue, gpusync_ticket ticket, double start_s, double end_s)
{
    gpusync_times times = {-1, -1};
    gpusync_result ignored = gpusync_poll(queue, ticket, &times);
    (void)ignored;
    if (times.gpu_start_s == start_s && times.gpu_end_s == end_s) return;
    fail_msg("ticket %lld ran from %g to %g, expected %g to %g", (long long)ticket, times.gpu_start_s, times.gpu_end_s,
             start_s, end_s);
}

/* T11: a look that came first loses none. */
on_stage(test_R26_T11_F14_times_are_zero_until_the_handler_has_run)
{
    softmetal_set_gpu_clock(gpu_clock);
    for (unsigned looks = 0; looks < 2; looks++) {
        void *buffer = foreign_buffer(s->q[0]);
        gpusync_ticket ticket = commit(s->q[0], buffer);
        assert_times(s->q[0], ticket, 0, 0);
        clock_s = 5 + looks;
        softmetal_schedule(buffer);
        softmetal_execute(buffer);
        clock_s = 7 + looks;
        softmetal_complete(buffer);
        if (looks) {
            assert_ok(gpusync_poll(s->q[0], ticket, NULL));
            assert_times(s->q[0], ticket, 0, 0);
        }
        softmetal_finish(buffer);
        assert_true(end_of(buffer) > 0);
        assert_times(s->q[0], ticket, start_of(buffer), end_of(buffer));
        metal_release(buffer);
    }
    softmetal_set_gpu_clock(NULL);
}

/* No time of one buffer is taken for the submission's: a look ends it, handlers come in any order, one is lost. */
on_stage(test_R26_times_of_some_of_the_buffers_are_not_told)
{
    enum { LOOK, LATE, LOST, LATE_AND_LOST, WAYS };
    softmetal_set_gpu_clock(gpu_clock);
    for (unsigned way = 0; way < WAYS; way++) {
        void *buffers[2] = {foreign_buffer(s->q[0]), foreign_buffer(s->q[0])};
        gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(buffers[0], buffers[1]));
        bool late = way == LATE || way == LATE_AND_LOST, lost = way >= LOST;
        if (lost) softmetal_lose_handlers(buffers[1]);
        clock_s = 20 + 10 * way;
        if (late) softmetal_complete(buffers[0]);
        else softmetal_finish(buffers[0]);
        clock_s += 5;
        if (way == LOOK) softmetal_complete(buffers[1]);
        else softmetal_finish(buffers[1]);
        assert_ok(gpusync_poll(s->q[0], ticket, NULL));
        assert_times(s->q[0], ticket, 0, 0);
        if (way == LOOK) softmetal_finish(buffers[1]);
        if (late) softmetal_finish(buffers[0]);
        if (!lost) assert_times(s->q[0], ticket, start_of(buffers[0]), end_of(buffers[1]));
        else assert_times(s->q[0], ticket, 0, 0);
        for (unsigned i = 0; i < 2; i++) metal_release(buffers[i]);
    }
    softmetal_set_gpu_clock(NULL);
}

/* Three buffers of one submission, which end at these times of the GPU's clock. A 0 is no time: nothing is known of the
   buffer. */
on_stage(test_R26_a_submission_has_its_first_start_and_last_end)
{
    static const double seconds[][3] = {{10, 11, 12}, {10, 11, 0}};
    softmetal_set_gpu_clock(gpu_clock);
    for (unsigned row = 0; row < 2; row++) {
        void *buffers[3] = {foreign_buffer(s->q[0]), foreign_buffer(s->q[0]), foreign_buffer(s->q[0])};
        gpusync_ticket ticket = SUBMIT(s->q[0], BUFFERS(buffers[0], buffers[1], buffers[2]));
        for (unsigned i = 0; i < 3; i++) {
            clock_s = seconds[row][i];
            softmetal_finish(buffers[i]);
        }
        double first = start_of(buffers[0]);
        double last = end_of(buffers[row ? 1 : 2]);
        assert_true(first > 0 && last > first);
        assert_times(s->q[0], ticket, first, last);
        for (unsigned i = 0; i < 3; i++) metal_release(buffers[i]);
    }
    softmetal_set_gpu_clock(NULL);
}

on_stage(test_R26_times_are_kept_for_256_tickets)
{
    void *buffer = foreign_buffer(s->q[0]);
    commit(s->q[0], buffer);
    finish_all(s);
    double start_s = start_of(buffer);
    double end_s = end_of(buffer);
    assert_true(start_s > 0);
    for (int i = 0; i < 255; i++) succeed_one(s, s->q[0]);
    assert_times(s->q[0], 1, start_s, end_s);
    succeed_one(s, s->q[0]);
    assert_times(s->q[0], 1, 0, 0);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    metal_release(buffer);
}

/* A look has ended it, and 256 newer tickets: what its handler brings is not taken for the times of the newest. */
on_stage_with(test_R26_a_handler_that_is_late_by_256_tickets_gives_its_times_to_no_other,
              .queue = {.max_command_buffer_count = 300})
{
    void *late = foreign_buffer(s->q[0]), *last = NULL;
    commit(s->q[0], late);
    softmetal_complete(late);
    for (int i = 0; i < 256; i++) {
        void *buffer = new_buffer(s->q[0]);
        commit(s->q[0], buffer);
        softmetal_complete(buffer);
        last = buffer;
    }
    assert_ok(gpusync_poll(s->q[0], 257, NULL));
    assert_true(start_of(late) > 0);
    softmetal_run_handler(late, softmetal_handler_count(late) - 1);
    assert_times(s->q[0], 257, 0, 0);
    metal_retain(last);
    finish_all(s);
    assert_times(s->q[0], 257, start_of(last), end_of(last));
    metal_release(last);
    metal_release(late);
}

/* A look has ended it: what its handler brings is not taken for the times of the ticket of the same number. */
on_stage(test_R26_UNORDERED_work_gives_its_times_to_no_ticket)
{
    void *buffer = foreign_buffer(s->q[0]), *loose = foreign_buffer(s->q[0]);
    commit(s->q[0], buffer);
    SUBMIT(s->q[0], BUFFERS(loose), .flags = GPUSYNC_SUBMIT_UNORDERED);
    softmetal_set_gpu_clock(gpu_clock);
    clock_s = 5;
    softmetal_finish(buffer);
    clock_s = 7;
    softmetal_complete(loose);
    assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
    softmetal_finish(loose);
    assert_true(end_of(loose) > end_of(buffer));
    assert_times(s->q[0], 1, start_of(buffer), end_of(buffer));
    softmetal_set_gpu_clock(NULL);
    metal_release(loose);
    metal_release(buffer);
}

on_both_kinds_with(test_R26_everything_and_work_that_never_ran_have_none, .timelines = 1)
{
    succeed_one(s, s->q[0]);
    assert_times(s->q[0], GPUSYNC_EVERYTHING, 0, 0);
    assert_times(s->q[0], 0, 0, 0);
    assert_times(s->q[0], 99, 0, 0);
    gpusync_ticket held = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    assert_times(s->q[0], held, 0, 0);
}

/* -- the log ------------------------------------------------------------------------------------------------------ */

/* Each has a queue of its own: a second wait for the same would be quiet. */
on_stage_with(test_F8_a_wait_that_ended_at_its_limit_names_the_queue_and_the_limit, .queues = 4, .timelines = 1,
              .queue = {.max_command_buffer_count = 2})
{
    void *last = NULL;
    for (unsigned i = 0; i < 4; i++)
        if (i != 1) commit_new(s->q[i]);
    assert_result(gpusync_wait(s->q[0], 1, MS(7), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().log_lines, 1);
    assert_true(log_has(GPUSYNC_LOG_WARNING, "first") && log_has(GPUSYNC_LOG_WARNING, "7"));
    assert_result(gpusync_timeline_wait(s->t[0], 3, MS(8), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().log_lines, 2);
    assert_true(log_has(GPUSYNC_LOG_WARNING, "'a'") && log_has(GPUSYNC_LOG_WARNING, "8"));
    assert_result(gpusync_wait(s->q[2], GPUSYNC_EVERYTHING, MS(6), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().log_lines, 3);
    assert_true(log_has(GPUSYNC_LOG_WARNING, "a wait for everything up to ticket 1 ended at its limit of 6"));
    softmetal_complete(softmetal_last_buffer(s->metal[3]));
    assert_ok(gpusync_wait(s->q[3], 1, MS(5), NULL));
    assert_result(gpusync_wait(s->q[3], 1, MS(5), &(gpusync_wait_options){.handlers = true}), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().log_lines, 4);
    assert_true(log_has(GPUSYNC_LOG_WARNING, "a wait for handlers up to ticket 1 ended"));
    while (gpusync_command_buffer_create(s->q[1], NULL, 0, &last) == GPUSYNC_OK) continue;
    assert_int_equal(kit_now().log_lines, 4); /* a limit of 0 is a look */
    assert_result(gpusync_command_buffer_create(s->q[1], NULL, MS(9), &last), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().log_lines, 5);
    assert_true(log_has(GPUSYNC_LOG_WARNING, "second") && log_has(GPUSYNC_LOG_WARNING, "9"));
}

/* One line for all of them; that of a device names a queue that is not idle. */
on_all_kinds_with(test_F8_a_wait_for_several_writes_one_line, .queues = 2, .timelines = 2)
{
    gpusync_point points[2] = {at(s->t[0], 0), at(s->t[1], 4)};
    succeed_one(s, s->q[0]);
    commit_new(s->q[1]);
    assert_result(gpusync_device_wait(s->device, MS(6), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().log_lines, 1);
    assert_true(log_has(GPUSYNC_LOG_WARNING, "second") && log_has(GPUSYNC_LOG_WARNING, "6"));
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, MS(7), NULL, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(kit_now().log_lines, 2);
    assert_true(log_has(GPUSYNC_LOG_WARNING, "7"));
}

/* Two queues without a label: each line names its queue, so that the lines differ. */
on_stage_with(test_F8_queues_without_labels_are_told_apart, .device = {.log = keep_line})
{
    gpusync_queue *queues[2];
    memset(&lines, 0, sizeof lines);
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(gpusync_queue_create(s->device, NULL, &queues[i]));
        commit_failing(queues[i], SOFTMETAL_PAGE_FAULT);
        assert_result(gpusync_wait(queues[i], 1, MS(5), NULL), GPUSYNC_TIMEOUT);
    }
    assert_int_equal(lines.count, 2);
    assert_non_null(strstr(lines.text[0], "queue"));
    assert_non_null(strstr(lines.text[0], "5"));
    assert_string_not_equal(lines.text[0], lines.text[1]);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(finish_next(queues[i]));
        assert_string_equal(failure_at(queues[i], 0).queue_label, ""); /* in a record no name is made up */
        assert_ok(gpusync_queue_destroy(queues[i]));
    }
}

without_stage(test_F8_without_a_log_function_it_is_silent)
{
    gpusync_device_desc device_desc = {.hooks = &kit_hooks, .spin = &no_spin};
    gpusync_device *device;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    assert_ok(gpusync_device_create(&device_desc, &device));
    gpusync_queue *queue = queue_from(device, NULL);
    commit_failing(queue, SOFTMETAL_PAGE_FAULT);
    assert_result(gpusync_wait(queue, 1, MS(2), NULL), GPUSYNC_TIMEOUT);
    assert_true(finish_next(queue));
    assert_result(gpusync_wait(queue, 1, MS(2), NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_destroy(queue));
    assert_ok(gpusync_device_destroy(device));
}

/* Nothing went wrong that the program did not ask for: looks, waits that end, work that was cancelled; F3: nothing says
   that a handler has not come. */
on_stage_with(test_F8_F3_where_nothing_is_wrong_nothing_is_written, .timelines = 1)
{
    void *buffer = new_buffer(s->q[0]);
    job waits = {0};
    commit(s->q[0], buffer);
    assert_result(gpusync_wait(s->q[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(s->q[0], 9, MS(1), NULL), GPUSYNC_ERROR_INVALID_TICKET);
    job_wait(&waits, s->q[0], GPUSYNC_EVERYTHING, SECONDS(60));
    await_parked(1);
    softmetal_complete(buffer); /* a look of the wait finds it */
    assert_ok(job_end(&waits));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    settle(s);
    assert_int_equal(failures_of(s->q[0]), 1); /* on record all the same */
    assert_int_equal(kit_now().log_lines, 0);
}

static unsigned lines_with(const char *part)
{
    unsigned found = 0;
    for (unsigned i = 0; i < lines.count && i < LENGTH(lines.text); i++) found += strstr(lines.text[i], part) != NULL;
    return found;
}

on_both_kinds_with(test_F2_the_loss_of_a_device_is_told_once_and_what_helps, .device = {.log = keep_line})
{
    memset(&lines, 0, sizeof lines);
    for (unsigned i = 0; i < 5; i++) commit_failing(s->q[0], SOFTMETAL_SUBMISSIONS_IGNORED);
    finish_all(s);
    assert_int_equal(lines_with("the device is lost"), 1);
    assert_int_equal(lines_with("process"), 1);
    assert_int_equal(lines_with("new device"), 0);
    assert_int_equal(lines_with("command buffer '"), 5);
    assert_int_equal(lines.count, 6);
}

on_both_kinds_with(test_F8_a_line_is_one_line_of_utf8, .device = {.log = keep_line})
{
    char text[600];
    memset(&lines, 0, sizeof lines);
    repeat(text, sizeof text, "x\ny\r", "\xE2\x82\xAC");
    void *buffer = named_buffer(s->q[0], text);
    softmetal_fail(buffer, text, 1, text);
    commit(s->q[0], buffer);
    assert_result(gpusync_wait(s->q[0], 1, MS(1), NULL), GPUSYNC_TIMEOUT);
    finish_all(s);
    assert_int_equal(lines.count, 2);
    assert_int_equal(lines.not_utf8, 0);
    assert_int_equal(lines.with_newlines, 0);
    assert_non_null(strstr(lines.text[1], "x y \xE2\x82\xAC\xE2\x82\xAC")); /* blanks for control characters alone */
    assert_int_equal(lines.level[0], GPUSYNC_LOG_WARNING);
    assert_int_equal(lines.level[1], GPUSYNC_LOG_ERROR);
}

on_stage_with(test_S10_R32_a_log_function_and_a_callback_may_clear_and_go_on, .device = {.log = keep_line}, STICKY)
{
    for (unsigned in_callback = 0; in_callback < 2; in_callback++) {
        gpusync_ticket failed = commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
        memset(&lines, 0, sizeof lines);
        lines.s = s;
        if (in_callback) assert_ok(gpusync_on_done(ticket_at(s->q[0], failed), go_on_in_a_callback, s));
        else lines.goes_on_behind = failed;
        settle(s);
        assert_int_equal(lines.count, 1);
        assert_int_equal(lines.committed, failed + 1);
        assert_ok(gpusync_poll(s->q[0], lines.committed, NULL));
    }
}
