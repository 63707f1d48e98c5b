/* test_failures.c - command buffers that fail: what is recorded, what is told and how often, what the log hook may do,
   and what the loss of a device ends

   It also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

#define COMMAND_BUFFER_DOMAIN (metal4_run() ? "MTL4CommandQueueErrorDomain" : "MTLCommandBufferErrorDomain")

/* The codes by which a device is lost, and another one; Metal 4 has codes of its own. */
static long code_of_removal(void) { return metal4_run() ? 4 : 11; }
static long code_of_revocation(void) { return metal4_run() ? 5 : 4; }
static long code_of_timeout(void) { return metal4_run() ? 1 : 2; }

static void rig_open_logging(rig *r, softmetal_clock clock, uint32_t error_log_count, gpusync_log_fn log, void *user)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.log = log;
    device_desc.log_user = user;
    queue_desc.error_log_count = error_log_count;
    queue_desc.label = "render";
    rig_open_with(r, clock, device_desc, queue_desc);
}

/* A committed buffer that will fail. */
static gpusync_ticket commit_failing(rig *r, void **buffer, const char *domain, long code, const char *text)
{
    gpusync_ticket ticket;
    *buffer = open_buffer(r);
    softmetal_fail(*buffer, domain, code, text);
    assert_ok(either_commit(r->queue, *buffer, &ticket));
    return ticket;
}

/* ... and has failed. */
static gpusync_ticket fail_one(rig *r, long code)
{
    void *buffer;
    gpusync_ticket ticket = commit_failing(r, &buffer, NULL, code, NULL);
    softmetal_finish(buffer);
    return ticket;
}

static gpusync_ticket succeed_one(rig *r)
{
    void *buffer;
    gpusync_ticket ticket = commit_empty(r, &buffer);
    softmetal_finish(buffer);
    return ticket;
}

/* -- the record ------------------------------------------------------------------------------------- */

static void test_a_record_tells_what_failed_where_and_why(void **state)
{
    gpusync_command_buffer_desc desc;
    gpusync_wait_options options;
    gpusync_error error, from_wait;
    uint64_t cursor = 0;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, NULL, NULL);
    succeed_one(&r);
    memset(&desc, 0, sizeof desc);
    desc.label = "shadow pass";
    assert_ok(either_buffer(r.queue, &desc, &buffer));
    softmetal_fail(buffer, NULL, 3, "the shader read what it should not");
    assert_ok(either_commit(r.queue, buffer, &ticket));
    softmetal_finish(buffer);
    memset(&error, 0xEE, sizeof error);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_result(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.failure, metal4_run() ? GPUSYNC_FAILURE_OUT_OF_MEMORY : GPUSYNC_FAILURE_PAGE_FAULT);
    assert_int_equal(error.ticket, ticket);
    assert_int_equal(error.code, 3);
    assert_int_equal(error.dropped, 0);
    assert_string_equal(error.domain, COMMAND_BUFFER_DOMAIN);
    assert_string_equal(error.message, "the shader read what it should not");
    assert_string_equal(error.label, "shadow pass");
    assert_string_equal(error.queue_label, "render");
    memset(&options, 0, sizeof options);
    options.error = &from_wait;
    memset(&from_wait, 0xEE, sizeof from_wait);
    assert_result(gpusync_wait_ex(r.queue, ticket, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_memory_equal(&error, &from_wait, sizeof error);
    memset(&from_wait, 0xEE, sizeof from_wait);
    assert_result(gpusync_wait_ex(r.queue, GPUSYNC_EVERYTHING, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_memory_equal(&error, &from_wait, sizeof error);
    assert_int_equal(stats_of(r.queue).failures, 1);
    rig_close(&r);
}

static void test_a_failure_found_by_reading_the_status_is_recorded_once(void **state)
{
    gpusync_error error;
    uint64_t cursor = 0;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no status to read");
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, NULL, NULL);
    ticket = commit_failing(&r, &buffer, NULL, 2, NULL);
    softmetal_complete(buffer);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_EXECUTION);
    softmetal_finish(buffer); /* and now the handler */
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
    assert_int_equal(stats_of(r.queue).failures, 1);
    assert_int_equal(stats_of(r.queue).completions, 1);
    rig_close(&r);
}

/* `unit` again and again after `head`, as the text that fails; what is kept must be whole units, as many as fit. */
static void expect_cut(const char *head, const char *unit)
{
    char text[1024], kept[1024];
    gpusync_command_buffer_desc desc;
    gpusync_error error;
    uint64_t cursor = 0;
    size_t step = strlen(unit), length = strlen(head);
    void *buffer;
    rig r;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, NULL, NULL);
    memcpy(text, head, length + 1);
    while (length + step < 600) {
        memcpy(text + length, unit, step + 1);
        length += step;
    }
    memset(&desc, 0, sizeof desc);
    desc.label = text;
    assert_ok(either_buffer(r.queue, &desc, &buffer));
    softmetal_fail(buffer, text, 1, text);
    assert_ok(either_commit(r.queue, buffer, NULL));
    softmetal_finish(buffer);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    memcpy(kept, text, sizeof kept);
    kept[strlen(head) + (255 - strlen(head)) / step * step] = '\0';
    assert_string_equal(error.message, kept);
    kept[strlen(head) + (63 - strlen(head)) / step * step] = '\0';
    assert_string_equal(error.domain, kept);
    assert_string_equal(error.label, kept);
    rig_close(&r);
}

static void test_long_texts_are_cut_at_the_start_of_a_character(void **state)
{
    (void)state;
    expect_cut("", "a");
    expect_cut("", "\xC3\xA4");
    expect_cut("x", "\xC3\xA4");
    expect_cut("", "\xE2\x82\xAC");
    expect_cut("x", "\xE2\x82\xAC");
    expect_cut("xy", "\xE2\x82\xAC");
    expect_cut("", "\xF0\x9F\x98\x80");
    expect_cut("x", "\xF0\x9F\x98\x80");
    expect_cut("xy", "\xF0\x9F\x98\x80");
    expect_cut("xyz", "\xF0\x9F\x98\x80");
}

/* A text of as many bytes as there are, so that its terminator is what does not fit. */
static void test_a_text_that_is_one_byte_too_long_loses_its_last_character(void **state)
{
    static const char *const units[] = {"a", "\xC3\xA4"};
    gpusync_queue_desc desc;
    gpusync_queue *queue;
    size_t i, k;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, NULL, NULL);
    for (i = 0; i < 2; i++) {
        char name[65] = "", text[257] = "", quoted[80], report[4096];
        gpusync_command_buffer_desc buffer_desc;
        gpusync_error error;
        uint64_t cursor = 0;
        void *buffer;
        for (k = 0; k < 64; k += strlen(units[i])) strcat(name, units[i]);
        for (k = 0; k < 256; k += strlen(units[i])) strcat(text, units[i]);
        memset(&desc, 0, sizeof desc);
        memset(&buffer_desc, 0, sizeof buffer_desc);
        desc.label = buffer_desc.label = name;
        queue = queue_of_kind(QUEUE_OF_GPUSYNC, r.device, &desc);
        assert_ok(either_buffer(queue, &buffer_desc, &buffer));
        softmetal_fail(buffer, name, 1, text);
        assert_ok(either_commit(queue, buffer, NULL));
        softmetal_finish(buffer);
        assert_ok(gpusync_next_error(queue, &cursor, &error));
        name[64 - strlen(units[i])] = '\0';
        text[256 - strlen(units[i])] = '\0';
        assert_string_equal(error.domain, name);
        assert_string_equal(error.message, text);
        assert_string_equal(error.label, name);
        assert_string_equal(error.queue_label, name);
        snprintf(quoted, sizeof quoted, "'%s'", name);
        assert_true(gpusync_report(r.device, report, sizeof report) < sizeof report);
        assert_non_null(strstr(report, quoted));
        assert_ok(gpusync_queue_destroy(queue));
    }
    rig_close(&r);
}

/* What a failure says when the label of its submission, which is never Metal's, is this; label may be NULL. */
static void expect_label(const char *label, const char *kept)
{
    gpusync_submission submission;
    gpusync_timeline *timeline;
    gpusync_point wait;
    gpusync_error error;
    uint64_t cursor = 0;
    void *buffer;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
    memset(&wait, 0, sizeof wait);
    wait.timeline = timeline;
    wait.value = 1;
    memset(&submission, 0, sizeof submission);
    submission.waits = &wait;
    submission.wait_count = 1;
    submission.label = label;
    submission.flags = GPUSYNC_STRICT; /* no command buffer that would get the label */
    if (metal4_run()) {
        buffer = open_buffer(&r);
        submission.command_buffers = &buffer;
        submission.command_buffer_count = 1;
    }
    assert_ok(either_submit(r.queue, &submission, NULL));
    assert_ok(gpusync_cancel_held(r.queue));
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_string_equal(error.label, kept);
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

static void test_a_text_that_just_fits_is_kept_whole(void **state)
{
    char text[80], kept[64];
    int i;
    (void)state;
    memset(text, 'a', sizeof text);
    text[63] = '\0';
    expect_label(text, text);
    expect_label(NULL, "");
    memcpy(text + 59, "\xF0\x9F\x98\x80", 5); /* ends where the text does */
    expect_label(text, text);
    memset(text, 0x80, sizeof text - 1); /* no character begins at all: as many of U+FFFD as fit */
    text[sizeof text - 1] = '\0';
    for (i = 0; i < 21; i++) memcpy(kept + 3 * i, "\xEF\xBF\xBD", 4);
    expect_label(text, kept);
}

/* -- texts that are no UTF-8 ------------------------------------------------------------------------------ */

/* By RFC 3629, which numbers the characters: each has its shortest form, and no number is half of a pair of UTF-16 or above
   U+10FFFF. */
static bool is_utf8(const char *text)
{
    static const unsigned long least[] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        unsigned more = *at >= 0xF0 ? 3 : *at >= 0xE0 ? 2 : *at >= 0xC0 ? 1 : 0, i;
        unsigned long number = more ? *at & (0x3Fu >> more) : *at;
        if (*at >= 0xF8 || (*at >= 0x80 && *at < 0xC0)) return false;
        for (i = 1; i <= more; i++) {
            if ((at[i] & 0xC0) != 0x80) return false;
            number = number << 6 | (at[i] & 0x3F);
        }
        if (number < least[more] || number > 0x10FFFF || (number >= 0xD800 && number <= 0xDFFF)) return false;
        at += more + 1;
    }
    return true;
}

#define R "\xEF\xBF\xBD" /* U+FFFD */

static const struct {
    const char *given, *told;
} texts[] = {
    {"caf\xE9", "caf" R},                               /* Latin-1 */
    {"\x80-\xBF", R "-" R},                             /* only the rest of a character */
    {"\xC3(", R "("},                                   /* only its start */
    {"\xE2\x82", R R},
    {"\xE2\x82.", R R "."},
    {"\xF0\x9F\x98 ", R R R " "},
    {"\xE2\xC3\xA4", R "\xC3\xA4"},                    /* the next one is whole */
    {"\xC0\xAF", R R},                                  /* forms that are too long */
    {"\xC1\xBF", R R},
    {"\xE0\x9F\xBF", R R R},
    {"\xF0\x8F\xBF\xBF", R R R R},
    {"\xED\xA0\x80", R R R},                            /* halves of pairs of UTF-16 */
    {"\xED\xBF\xBF", R R R},
    {"\xF4\x90\x80\x80", R R R R},                      /* above U+10FFFF */
    {"\xF5\x80\x80\x80", R R R R},
    {"\xF8\x88\x80\x80\x80", R R R R R},
    {"\xFE\xFF", R R},
    {"\xC2\x80 \xDF\xBF", "\xC2\x80 \xDF\xBF"},       /* from here on: what is UTF-8 */
    {"\xE0\xA0\x80 \xED\x9F\xBF", "\xE0\xA0\x80 \xED\x9F\xBF"},
    {"\xEE\x80\x80 " R " \xEF\xBF\xBF", "\xEE\x80\x80 " R " \xEF\xBF\xBF"},
    {"\xF0\x90\x80\x80 \xF4\x8F\xBF\xBF", "\xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"},
};

static void test_bytes_of_a_label_that_are_no_utf_8_are_shown_as_replacements(void **state)
{
    gpusync_queue_desc desc = {0};
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(texts); i++) {
        char quoted[80], *report;
        gpusync_timeline *timeline;
        gpusync_queue *queue;
        gpusync_error error;
        uint64_t cursor = 0;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        desc.label = texts[i].given;
        queue = queue_of_kind(QUEUE_OF_GPUSYNC, r.device, &desc);
        timeline = timeline_named(r.device, texts[i].given);
        (void)SUBMIT(queue, NO_WORK(queue), WAITS(at(timeline, 1)), .label = texts[i].given, .flags = GPUSYNC_STRICT);
        report = report_of(r.device);
        assert_true(is_utf8(report));
        snprintf(quoted, sizeof quoted, "queue 2 '%s'", texts[i].told);
        assert_non_null(strstr(report, quoted));
        snprintf(quoted, sizeof quoted, "ticket 1 '%s'", texts[i].told);
        assert_non_null(strstr(report, quoted));
        snprintf(quoted, sizeof quoted, "timeline 1 '%s'", texts[i].told);
        assert_non_null(strstr(report, quoted));
        free(report);
        assert_ok(gpusync_cancel_held(queue));
        assert_ok(gpusync_next_error(queue, &cursor, &error));
        assert_string_equal(error.queue_label, texts[i].told);
        assert_string_equal(error.label, texts[i].told);
        assert_ok(gpusync_queue_destroy(queue));
        assert_ok(gpusync_timeline_destroy(timeline));
        rig_close(&r);
    }
}

/* Of a label that is no UTF-8 Metal makes no string. A command buffer of gpusync gets one that is; one that the program makes,
   as on Metal 4, may have none. */
static void test_the_label_of_a_buffer_is_utf_8(void **state)
{
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(texts); i++) {
        gpusync_command_buffer_desc desc = {.label = texts[i].given};
        gpusync_error error;
        uint64_t cursor = 0;
        void *buffer;
        char *report;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        assert_ok(either_buffer(r.queue, &desc, &buffer));
        softmetal_fail(buffer, NULL, 1, NULL);
        (void)commit_to(r.queue, buffer);
        report = report_of(r.device);
        assert_true(is_utf8(report));
        free(report);
        softmetal_finish(buffer);
        assert_ok(gpusync_next_error(r.queue, &cursor, &error));
        if (is_utf8(texts[i].given) || !metal4_run()) assert_string_equal(error.label, texts[i].told);
        assert_true(is_utf8(error.label));
        rig_close(&r);
    }
}

/* What a wait tells of a timeline that the program has failed so. */
static gpusync_error told_of(const gpusync_error *reason)
{
    gpusync_timeline *timeline;
    gpusync_error told;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    timeline = timeline_named(r.device, "t");
    assert_ok(gpusync_timeline_fail(timeline, reason));
    told = error_at(timeline, 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
    return told;
}

static void test_a_reason_of_the_program_is_told_as_utf_8(void **state)
{
    gpusync_error reason, told;
    size_t i;
    (void)state;
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_EXECUTION;
    for (i = 0; i < LENGTH(texts); i++) {
        strcpy(reason.domain, texts[i].given);
        strcpy(reason.message, texts[i].given);
        strcpy(reason.label, texts[i].given);
        strcpy(reason.queue_label, texts[i].given);
        told = told_of(&reason);
        assert_string_equal(told.domain, texts[i].told);
        assert_string_equal(told.message, texts[i].told);
        assert_string_equal(told.label, texts[i].told);
        assert_string_equal(told.queue_label, texts[i].told);
    }
}

static void fill_with(char *text, size_t size, const char *unit, size_t from)
{
    size_t i;
    for (i = 0; i < size; i++) text[i] = unit[(i + from) % strlen(unit)];
}

static void assert_whole_characters(const char *told, const char *unit, size_t size)
{
    assert_true(is_utf8(told));
    assert_true(strlen(told) < size && strlen(told) + strlen(unit) >= size); /* no more than one is lost */
}

/* The texts fill their places and have no end, wherever a character begins. */
static void test_a_reason_without_an_end_is_cut_between_two_characters(void **state)
{
    static const char *const units[] = {"a", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    gpusync_error reason, told;
    size_t i, from;
    (void)state;
    for (i = 0; i < LENGTH(units); i++) {
        memset(&reason, 0, sizeof reason);
        reason.result = GPUSYNC_ERROR_EXECUTION;
        fill_with(reason.domain, sizeof reason.domain, units[i], 0);
        fill_with(reason.message, sizeof reason.message, units[i], 0);
        fill_with(reason.label, sizeof reason.label, units[i], 0);
        fill_with(reason.queue_label, sizeof reason.queue_label, units[i], 0);
        for (from = 0; from < strlen(units[i]); from++) {
            if (from) { /* after so many letters */
                memmove(reason.message + from, reason.message, sizeof reason.message - from);
                memset(reason.message, 'x', from);
            }
            told = told_of(&reason);
            assert_whole_characters(told.domain, units[i], sizeof told.domain);
            assert_whole_characters(told.message, units[i], sizeof told.message);
            assert_whole_characters(told.label, units[i], sizeof told.label);
            assert_whole_characters(told.queue_label, units[i], sizeof told.queue_label);
        }
    }
    memset(reason.message, 0x80, sizeof reason.message); /* each byte takes the place of three */
    told = told_of(&reason);
    assert_true(is_utf8(told.message));
    assert_int_equal(strlen(told.message), sizeof told.message - 1);
}

/* A report of every size is a beginning of the whole report, but for what is broken off of its last character. */
static void test_a_report_of_every_size_is_utf_8(void **state)
{
    static const char *const units[] = {"\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xE9"};
    gpusync_queue_desc desc = {0};
    size_t i, size, length;
    (void)state;
    for (i = 0; i < LENGTH(units); i++) {
        char label[64] = "", cut[4096], whole[4096];
        gpusync_timeline *timeline;
        gpusync_queue *queue;
        gpusync_error reason;
        rig r;
        while (strlen(label) + 4 < sizeof label) strcat(label, units[i]);
        desc.label = label;
        rig_open(&r, SOFTMETAL_MANUAL);
        queue = queue_of_kind(QUEUE_OF_GPUSYNC, r.device, &desc);
        timeline = timeline_named(r.device, label);
        memset(&reason, 0, sizeof reason);
        fill_with(reason.message, sizeof reason.message, units[i], 0);
        assert_ok(gpusync_timeline_fail(timeline, &reason));
        length = gpusync_report(r.device, whole, sizeof whole);
        assert_true(length < sizeof whole);
        for (size = 1; size <= length + 1; size++) {
            memset(cut, 'x', sizeof cut);
            assert_int_equal(gpusync_report(r.device, cut, size), length);
            assert_true(is_utf8(cut));
            assert_true(strlen(cut) < size && strlen(cut) + 4 >= size);
            assert_memory_equal(cut, whole, strlen(cut));
            assert_int_equal(cut[size], 'x');
            if (size > 600) continue;
            assert_true(gpusync_queue_report(queue, cut, size) > 0);
            assert_true(is_utf8(cut));
        }
        assert_ok(gpusync_queue_destroy(queue));
        assert_ok(gpusync_timeline_destroy(timeline));
        rig_close(&r);
    }
}

typedef struct last_line {
    char text[2000];
    size_t longest;
    unsigned count;
} last_line;

static void keep_line(void *user, gpusync_log_level level, const char *text)
{
    last_line *line = (last_line *)user;
    (void)level;
    must(is_utf8(text), "a line of the log is no UTF-8");
    must(strlen(text) < sizeof line->text, "a line of the log is too long");
    strcpy(line->text, text);
    if (strlen(text) > line->longest) line->longest = strlen(text);
    line->count++;
}

/* Every text of a line is as long as it may be, and of characters of each length; so is the line. */
static void test_a_line_of_the_log_is_utf_8_however_long_its_texts_are(void **state)
{
    static const char *const units[] = {"a", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xE9"};
    gpusync_device_desc device_desc = {0};
    gpusync_queue_desc queue_desc = {0};
    size_t i, from;
    (void)state;
    for (i = 0; i < LENGTH(units); i++) {
        for (from = 0; from < 4; from++) {
            char name[200], text[600];
            gpusync_timeline *timeline;
            gpusync_error reason;
            last_line line;
            void *buffer;
            rig r;
            memset(&line, 0, sizeof line);
            memset(name, 'x', sizeof name);
            memset(text, 'x', sizeof text);
            fill_with(name + from, sizeof name - 5, units[i], 0);
            fill_with(text + from, sizeof text - 5, units[i], 0);
            name[from + (sizeof name - 5) / strlen(units[i]) * strlen(units[i])] = '\0';
            text[from + (sizeof text - 5) / strlen(units[i]) * strlen(units[i])] = '\0';
            device_desc.log = keep_line;
            device_desc.log_user = &line;
            queue_desc.label = name;
            rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
            timeline = timeline_named(r.device, name);
            (void)SUBMIT(r.queue, NO_WORK(r.queue), WAITS(at(timeline, 1)), .label = name, .flags = GPUSYNC_STRICT);
            memset(&reason, 0, sizeof reason);
            reason.result = GPUSYNC_ERROR_EXECUTION;
            memcpy(reason.domain, text, sizeof reason.domain);
            memcpy(reason.message, text, sizeof reason.message);
            memcpy(reason.label, name, sizeof reason.label);
            memcpy(reason.queue_label, name, sizeof reason.queue_label);
            assert_ok(gpusync_timeline_fail(timeline, &reason));
            assert_int_equal(line.count, 1);
            assert_in_range(line.longest, 450, 766); /* of 767 */
            buffer = buffer_of(r.queue);
            assert_result(gpusync_wait(r.queue, commit_to(r.queue, buffer), 1), GPUSYNC_TIMEOUT);
            assert_int_equal(line.count, 2);
            finish_queue(r.queue);
            assert_ok(gpusync_timeline_destroy(timeline));
            rig_close(&r);
        }
    }
}

/* In place of -[command buffer error]. */
void *class_getInstanceMethod(void *cls, void *selector);
void (*method_setImplementation(void *method, void (*implementation)(void)))(void);
void *object_getClass(void *object);
static void *no_error(void *self, void *selector)
{
    (void)self, (void)selector;
    return NULL;
}

/* Metal promises the status first. Where it comes later all the same, a handler goes by the error. */
static void test_a_failure_whose_handler_comes_before_the_status_is_a_failure(void **state)
{
    gpusync_error error;
    uint64_t cursor = 0;
    gpusync_ticket failed, well;
    void *buffer;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, NULL, NULL);
    failed = commit_failing(&r, &buffer, NULL, 3, NULL);
    softmetal_status_after_handlers(buffer);
    softmetal_finish(buffer);
    well = commit_empty(&r, &buffer);
    softmetal_status_after_handlers(buffer);
    softmetal_finish(buffer);
    assert_result(gpusync_wait(r.queue, failed, SECONDS(20)), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_wait(r.queue, well, SECONDS(20)));
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_int_equal(error.ticket, failed);
    assert_int_equal(error.code, 3);
    assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
    rig_close(&r);
}

/* A buffer in state Error whose error is nil: a driver's bug, and no reason to crash. */
static void fail_without_error(rig *r, uint64_t *cursor)
{
    void (*own_error)(void);
    gpusync_error error;
    gpusync_ticket ticket;
    void *buffer, *method;
    ticket = commit_failing(r, &buffer, NULL, 1, "not to be seen");
    method = class_getInstanceMethod(object_getClass(buffer), metal__sel("error"));
    assert_non_null(method);
    own_error = method_setImplementation(method, (void (*)(void))no_error);
    softmetal_finish(buffer);
    (void)method_setImplementation(method, own_error);
    memset(&error, 0xEE, sizeof error);
    assert_ok(gpusync_next_error(r->queue, cursor, &error));
    assert_result(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_OTHER);
    assert_int_equal(error.ticket, ticket);
    assert_int_equal(error.code, 0);
    assert_string_equal(error.domain, "");
    assert_string_equal(error.message, "");
    assert_result(gpusync_poll(r->queue, ticket), GPUSYNC_ERROR_EXECUTION);
}

static void test_without_label_or_error_the_texts_are_empty(void **state)
{
    gpusync_error error;
    uint64_t cursor = 0;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    fail_one(&r, 1);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_string_equal(error.label, "");
    assert_string_equal(error.queue_label, "");
    assert_true(error.message[0]);
    if (!metal4_run()) fail_without_error(&r, &cursor); /* Metal 4 has no other sign of a failure */
    rig_close(&r);
}

/* In place of -[error userInfo]. */
static long infos;
static void *no_info(void *self, void *selector)
{
    (void)self, (void)selector;
    infos++;
    return NULL;
}
/* The error below it is the error itself. */
static void *endless_info(void *self, void *selector)
{
    void *key = metal_string_new("NSUnderlyingError"), *info;
    (void)selector;
    infos++;
    info = METAL__AS(void *, void *, void *)(metal__class("NSDictionary"), metal__sel("dictionaryWithObject:forKey:"), self,
                                             key);
    metal_release(key);
    return info;
}

/* Metal nests two or three. One that has no end is not read to its end, and one without a userInfo has none below it. */
static void test_errors_are_read_a_few_deep_and_also_without_a_user_info(void **state)
{
    static const struct {
        void *(*info)(void *self, void *selector);
        long asked;
    } rows[] = {{no_info, 1}, {endless_info, 4}};
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(rows); i++) {
        void *method = class_getInstanceMethod(metal__class("SoftMetalError"), metal__sel("userInfo")), *buffer;
        void (*own_info)(void);
        gpusync_error error;
        uint64_t cursor = 0;
        gpusync_ticket ticket;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        ticket = commit_failing(&r, &buffer, "TestDomain", 77, "of this text");
        assert_non_null(method);
        infos = 0;
        own_info = method_setImplementation(method, (void (*)(void))rows[i].info);
        softmetal_finish(buffer);
        (void)method_setImplementation(method, own_info);
        assert_int_equal(infos, rows[i].asked);
        assert_ok(gpusync_next_error(r.queue, &cursor, &error));
        assert_int_equal(error.ticket, ticket);
        assert_int_equal(error.code, 77);
        assert_string_equal(error.domain, "TestDomain");
        assert_string_equal(error.message, "of this text");
        rig_close(&r);
    }
}

/* -- classes ---------------------------------------------------------------------------------------- */

/* One failure on a device of its own: does it have this class, and is the device lost with it, or not? */
static bool has_class(rig *r, void *buffer, gpusync_failure failure, bool lost, const char *row)
{
    gpusync_error error;
    gpusync_ticket ticket;
    uint64_t cursor = 0;
    bool right;
    assert_ok(either_commit(r->queue, buffer, &ticket));
    softmetal_finish(buffer);
    assert_result(gpusync_wait(r->queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_next_error(r->queue, &cursor, &error));
    right = error.failure == failure && gpusync_device_is_lost(r->device) == lost &&
            gpusync_queue_wait(r->queue, 0) == (lost ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_ERROR_EXECUTION);
    if (!right)
        print_message("%s: %s %lld \"%s\" is \"%s\", and the device is%s lost\n", row, error.domain,
                      (long long)error.code, error.message, gpusync_failure_string(error.failure),
                      gpusync_device_is_lost(r->device) ? "" : " not");
    rig_close(r);
    return right;
}

/* The number decides: Metal has fewer codes, and those of its two domains differ. */
static const struct {
    unsigned number;
    gpusync_failure failure;
} classes_of_numbers[] = {
    {SOFTMETAL_TIMEOUT, GPUSYNC_FAILURE_TIMEOUT},
    {SOFTMETAL_HANG, GPUSYNC_FAILURE_TIMEOUT},
    {SOFTMETAL_IMPACTING_INTERACTIVITY, GPUSYNC_FAILURE_TIMEOUT},
    {SOFTMETAL_SUBMISSIONS_IGNORED, GPUSYNC_FAILURE_ACCESS_REVOKED},
    {SOFTMETAL_INNOCENT_VICTIM, GPUSYNC_FAILURE_INNOCENT_VICTIM},
    {SOFTMETAL_BACKGROUND, GPUSYNC_FAILURE_NOT_PERMITTED},
    {SOFTMETAL_OUT_OF_MEMORY, GPUSYNC_FAILURE_OUT_OF_MEMORY},
    {SOFTMETAL_INVALID_RESOURCE, GPUSYNC_FAILURE_INVALID_RESOURCE},
    {SOFTMETAL_PAGE_FAULT, GPUSYNC_FAILURE_PAGE_FAULT},
    {SOFTMETAL_FIRST_INTERNAL, GPUSYNC_FAILURE_OTHER},
    {SOFTMETAL_INTERNAL, GPUSYNC_FAILURE_OTHER},
    {0xE00002BD, GPUSYNC_FAILURE_OTHER},
};

static void expect_classes_of_numbers(softmetal_quirks quirks, const char *text, const char *form)
{
    size_t i;
    unsigned wrong = 0;
    for (i = 0; i < LENGTH(classes_of_numbers); i++) {
        unsigned number = classes_of_numbers[i].number;
        char row[80];
        void *buffer;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        softmetal_set_quirks(&quirks);
        softmetal_fail_as(buffer = open_buffer(&r), number, text);
        snprintf(row, sizeof row, "number %#x, %s", number, form);
        wrong += !has_class(&r, buffer, classes_of_numbers[i].failure, number == SOFTMETAL_SUBMISSIONS_IGNORED, row);
    }
    assert_int_equal(wrong, 0);
}

static void test_the_drivers_number_decides_the_class(void **state)
{
    softmetal_quirks quirks;
    (void)state;
    memset(&quirks, 0, sizeof quirks);
    expect_classes_of_numbers(quirks, NULL, "below and in the text");
}

static void test_the_drivers_number_decides_though_it_is_not_in_the_text(void **state)
{
    softmetal_quirks quirks;
    (void)state;
    memset(&quirks, 0, sizeof quirks);
    expect_classes_of_numbers(quirks, "on purpose", "below alone");
}

static void test_the_drivers_number_decides_though_it_is_in_the_text_alone(void **state)
{
    softmetal_quirks quirks;
    (void)state;
    memset(&quirks, 0, sizeof quirks);
    quirks.ioaccel_errors = true;
    expect_classes_of_numbers(quirks, NULL, "in the text alone");
}

static void test_the_drivers_number_decides_in_the_form_of_older_systems(void **state)
{
    softmetal_quirks quirks;
    (void)state;
    memset(&quirks, 0, sizeof quirks);
    quirks.ioaf_errors = true;
    expect_classes_of_numbers(quirks, NULL, "in the text alone, decimal");
}

typedef struct class_of_failure {
    const char *domain;
    long code;
    const char *text;
    gpusync_failure failure;
    bool lost;
} class_of_failure;

/* Nothing but what the row says. */
static void expect_classes(const class_of_failure *classes, size_t count)
{
    softmetal_quirks quirks;
    size_t i;
    unsigned wrong = 0;
    memset(&quirks, 0, sizeof quirks);
    quirks.bare_errors = true;
    for (i = 0; i < count; i++) {
        char row[80];
        void *buffer;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        softmetal_set_quirks(&quirks);
        softmetal_fail(buffer = open_buffer(&r), classes[i].domain, classes[i].code, classes[i].text);
        snprintf(row, sizeof row, "row %u", (unsigned)i);
        wrong += !has_class(&r, buffer, classes[i].failure, classes[i].lost, row);
    }
    assert_int_equal(wrong, 0);
}

#define VICTIM "Discarded (victim of GPU error/recovery)"

/* Texts of other systems, and of numbers that are not in softmetal's table. Where they tell nothing the code does. */
static void test_texts_of_other_systems_have_their_classes(void **state)
{
    const char *foreign = "NSPOSIXErrorDomain";
    long other = metal4_run() ? 6 : 1, timeout = code_of_timeout(), revoked = code_of_revocation();
    const class_of_failure rows[] = {
        {NULL, other, "Internal Error (0000000e:Internal Error)", GPUSYNC_FAILURE_TIMEOUT, false}, /* before macOS 26 */
        {NULL, other, "Hang (of a later system) (00000003:Hang)", GPUSYNC_FAILURE_TIMEOUT, false}, /* not seen yet */
        {NULL, other, "Internal Error (00000001:Internal Error)", GPUSYNC_FAILURE_OTHER, false}, /* no text was seen with these */
        {NULL, other, "Internal Error (00000007:Internal Error)", GPUSYNC_FAILURE_OTHER, false},
        {NULL, other, "Internal Error (0000000a:Internal Error)", GPUSYNC_FAILURE_OTHER, false},
        {NULL, other, "Internal Error (0000000c:Internal Error)", GPUSYNC_FAILURE_OTHER, false},
        {NULL, other, "Internal Error (0000000d:Internal Error)", GPUSYNC_FAILURE_OTHER, false},
        {NULL, other, "Internal Error (0000000f:Internal Error)", GPUSYNC_FAILURE_OTHER, false},
        {NULL, other, "Error (00000008) of a later one (00000003:Hang)", GPUSYNC_FAILURE_TIMEOUT, false}, /* not the first */
        {NULL, other, "Internal Error (IOAF code 2067)", GPUSYNC_FAILURE_OTHER, false},
        {NULL, other, "Internal Error (IOAF code -536870211)", GPUSYNC_FAILURE_OTHER, false},
        {NULL, 12, "Stack Overflow (00000011:kIOGPUCommandBufferCallbackErrorStackOverflow)", GPUSYNC_FAILURE_OTHER,
         false},
        {NULL, 12, "A picture (4:3) is the cause", GPUSYNC_FAILURE_OTHER, false}, /* no number: it has eight digits */
        {NULL, other, VICTIM, GPUSYNC_FAILURE_INNOCENT_VICTIM, false},
        {NULL, revoked, VICTIM, GPUSYNC_FAILURE_INNOCENT_VICTIM, false},
        {NULL, timeout, "Caused GPU Hang Error (kIOGPUCommandBufferCallbackErrorHang)", GPUSYNC_FAILURE_TIMEOUT, false},
        {NULL, code_of_removal(), "Device Removed (00000077:Device Removed)", GPUSYNC_FAILURE_DEVICE_REMOVED, true},
        {foreign, 1, VICTIM " (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)", GPUSYNC_FAILURE_OTHER, false},
        {foreign, 4, "Ignored (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)", GPUSYNC_FAILURE_OTHER,
         false},
    };
    (void)state;
    expect_classes(rows, LENGTH(rows));
}

static const class_of_failure classes[] = {
    {NULL, 1, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 2, NULL, GPUSYNC_FAILURE_TIMEOUT, false},
    {NULL, 3, NULL, GPUSYNC_FAILURE_PAGE_FAULT, false},
    {NULL, 4, NULL, GPUSYNC_FAILURE_ACCESS_REVOKED, true},
    {NULL, 5, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 6, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 7, NULL, GPUSYNC_FAILURE_NOT_PERMITTED, false},
    {NULL, 8, NULL, GPUSYNC_FAILURE_OUT_OF_MEMORY, false},
    {NULL, 9, NULL, GPUSYNC_FAILURE_INVALID_RESOURCE, false},
    {NULL, 10, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 11, NULL, GPUSYNC_FAILURE_DEVICE_REMOVED, true},
    {NULL, 12, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, -4, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 4294967296 + 11, NULL, GPUSYNC_FAILURE_OTHER, false},
    {"GPUErrorDomain", 4, NULL, GPUSYNC_FAILURE_OTHER, false},
    {"GPUErrorDomain", 11, NULL, GPUSYNC_FAILURE_OTHER, false},
    {"MTLCommandBufferErrorDomain2", 8, NULL, GPUSYNC_FAILURE_OTHER, false},
};

/* 1 to 6 are those of MTL4CommandQueue.h. */
static const class_of_failure classes_of_metal4[] = {
    {NULL, 0, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 1, NULL, GPUSYNC_FAILURE_TIMEOUT, false},
    {NULL, 2, NULL, GPUSYNC_FAILURE_NOT_PERMITTED, false},
    {NULL, 3, NULL, GPUSYNC_FAILURE_OUT_OF_MEMORY, false},
    {NULL, 4, NULL, GPUSYNC_FAILURE_DEVICE_REMOVED, true},
    {NULL, 5, NULL, GPUSYNC_FAILURE_ACCESS_REVOKED, true},
    {NULL, 6, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 7, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 8, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 9, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 11, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 12, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, -4, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 4294967296 + 4, NULL, GPUSYNC_FAILURE_OTHER, false},
    {NULL, 4294967296 + 11, NULL, GPUSYNC_FAILURE_OTHER, false},
    {"MTL4CommandQueueErrorDomain2", 3, NULL, GPUSYNC_FAILURE_OTHER, false},
};

static void test_without_a_number_every_code_has_its_class(void **state)
{
    (void)state;
    if (metal4_run()) expect_classes(classes_of_metal4, LENGTH(classes_of_metal4));
    else expect_classes(classes, LENGTH(classes));
}

/* -- readers and the bound -------------------------------------------------------------------------- */

static void test_what_may_succeed_later_is_transient(void **state)
{
    static const struct {
        gpusync_failure failure;
        bool transient;
    } all[] = {{GPUSYNC_FAILURE_NONE, false},           {GPUSYNC_FAILURE_OUT_OF_MEMORY, true},
               {GPUSYNC_FAILURE_TIMEOUT, false},        {GPUSYNC_FAILURE_PAGE_FAULT, false},
               {GPUSYNC_FAILURE_INVALID_RESOURCE, false}, {GPUSYNC_FAILURE_NOT_PERMITTED, true},
               {GPUSYNC_FAILURE_INNOCENT_VICTIM, true}, {GPUSYNC_FAILURE_ACCESS_REVOKED, false},
               {GPUSYNC_FAILURE_DEVICE_REMOVED, false}, {GPUSYNC_FAILURE_CANCELLED, false},
               {GPUSYNC_FAILURE_OTHER, false}};
    static const int unknown[] = {GPUSYNC_FAILURE_OTHER + 1, 1000, INT32_MAX, -1, INT32_MIN};
    size_t i;
    (void)state;
    assert_int_equal(LENGTH(all), GPUSYNC_FAILURE_OTHER + 1);
    for (i = 0; i < LENGTH(all); i++) {
        assert_int_equal(all[i].failure, i);
        assert_int_equal(gpusync_failure_is_transient(all[i].failure), all[i].transient);
    }
    for (i = 0; i < LENGTH(unknown); i++) assert_false(gpusync_failure_is_transient((gpusync_failure)unknown[i]));
}

static void test_every_reader_sees_every_failure_once(void **state)
{
    gpusync_error error;
    uint64_t early = 0, late = 0;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    assert_result(gpusync_next_error(r.queue, &early, &error), GPUSYNC_NOT_READY);
    for (i = 1; i <= 6; i++) {
        if (i % 2) fail_one(&r, 1);
        else succeed_one(&r);
        if (i % 2 == 0) continue;
        assert_ok(gpusync_next_error(r.queue, &early, &error));
        assert_int_equal(error.ticket, i);
        assert_result(gpusync_next_error(r.queue, &early, &error), GPUSYNC_NOT_READY);
    }
    for (i = 1; i <= 6; i += 2) {
        assert_ok(gpusync_next_error(r.queue, &late, &error));
        assert_int_equal(error.ticket, i);
        assert_int_equal(error.dropped, 0);
    }
    assert_result(gpusync_next_error(r.queue, &late, &error), GPUSYNC_NOT_READY);
    rig_close(&r);
}

static void test_a_full_log_drops_the_oldest_and_counts_them_for_each_reader(void **state)
{
    gpusync_error error;
    uint64_t from_start = 0, from_two = 0;
    int i;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 4, NULL, NULL);
    for (i = 0; i < 10; i++) {
        fail_one(&r, 1);
        if (i < 2) assert_ok(gpusync_next_error(r.queue, &from_two, &error));
    }
    assert_ok(gpusync_next_error(r.queue, &from_start, &error));
    assert_int_equal(error.dropped, 6);
    assert_int_equal(error.ticket, 7);
    assert_ok(gpusync_next_error(r.queue, &from_two, &error));
    assert_int_equal(error.dropped, 4);
    assert_int_equal(error.ticket, 7);
    for (i = 8; i <= 10; i++) {
        assert_ok(gpusync_next_error(r.queue, &from_start, &error));
        assert_int_equal(error.dropped, 0);
        assert_int_equal(error.ticket, i);
    }
    assert_result(gpusync_next_error(r.queue, &from_start, &error), GPUSYNC_NOT_READY);
    assert_int_equal(stats_of(r.queue).failures_dropped, 6);
    assert_int_equal(stats_of(r.queue).failures, 10);
    rig_close(&r);
}

static void expect_next_error(gpusync_queue *queue, uint64_t *cursor, gpusync_ticket ticket, uint64_t dropped)
{
    gpusync_error error;
    assert_ok(gpusync_next_error(queue, cursor, &error));
    assert_int_equal(error.ticket, ticket);
    assert_int_equal(error.dropped, dropped);
}

/* The error is left alone. */
static void expect_no_more_errors(gpusync_queue *queue, uint64_t *cursor)
{
    gpusync_error error, untouched;
    memset(&error, 0x77, sizeof error);
    memset(&untouched, 0x77, sizeof untouched);
    assert_result(gpusync_next_error(queue, cursor, &error), GPUSYNC_NOT_READY);
    assert_memory_equal(&error, &untouched, sizeof error);
}

/* Each reader has a cursor of its own, and a place of its own from which on it reads. */
static void test_a_reader_from_now_on_skips_what_is_on_record(void **state)
{
    uint64_t all = 0, none = GPUSYNC_FROM_NOW, early = GPUSYNC_FROM_NOW, late = GPUSYNC_FROM_NOW;
    gpusync_ticket tickets[4];
    int i;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, NULL, NULL);
    expect_no_more_errors(r.queue, &none); /* before the first failure */
    assert_true(none != GPUSYNC_FROM_NOW);
    for (i = 0; i < 2; i++) tickets[i] = fail_one(&r, 1);
    expect_no_more_errors(r.queue, &early);
    assert_true(early != GPUSYNC_FROM_NOW);
    expect_no_more_errors(r.queue, &early);
    succeed_one(&r);
    expect_no_more_errors(r.queue, &early);
    tickets[2] = fail_one(&r, 1);
    expect_no_more_errors(r.queue, &late);
    tickets[3] = fail_one(&r, 1);
    for (i = 0; i < 4; i++) {
        expect_next_error(r.queue, &all, tickets[i], 0);
        expect_next_error(r.queue, &none, tickets[i], 0);
        if (i >= 2) expect_next_error(r.queue, &early, tickets[i], 0);
        if (i >= 3) expect_next_error(r.queue, &late, tickets[i], 0);
    }
    expect_no_more_errors(r.queue, &all);
    expect_no_more_errors(r.queue, &none);
    expect_no_more_errors(r.queue, &early);
    expect_no_more_errors(r.queue, &late);
    all = GPUSYNC_FROM_NOW; /* a reader may skip again */
    tickets[0] = fail_one(&r, 1);
    expect_no_more_errors(r.queue, &all);
    tickets[1] = fail_one(&r, 1);
    expect_next_error(r.queue, &all, tickets[1], 0);
    rig_close(&r);
}

static void test_a_reader_from_now_on_is_told_of_what_was_dropped_since(void **state)
{
    uint64_t all = 0, early = GPUSYNC_FROM_NOW, late = GPUSYNC_FROM_NOW;
    gpusync_ticket last = 0;
    int i;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 4, NULL, NULL);
    for (i = 0; i < 6; i++) (void)fail_one(&r, 1);
    expect_no_more_errors(r.queue, &early);
    (void)fail_one(&r, 1);
    expect_no_more_errors(r.queue, &late);
    for (i = 0; i < 6; i++) last = fail_one(&r, 1);
    expect_next_error(r.queue, &all, last - 3, 9);
    expect_next_error(r.queue, &early, last - 3, 3);
    expect_next_error(r.queue, &late, last - 3, 2);
    expect_next_error(r.queue, &late, last - 2, 0);
    rig_close(&r);
}

static void test_a_ticket_whose_record_may_be_gone_is_unknown_and_never_well(void **state)
{
    gpusync_ticket_info info;
    gpusync_ticket ticket;
    void *buffer;
    int i;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 4, NULL, NULL);
    for (i = 1; i <= 10; i++) {
        fail_one(&r, 1);   /* odd tickets */
        succeed_one(&r);   /* even ones */
    }
    for (ticket = 1; ticket <= 11; ticket++) { /* 11 is the last that was dropped; success is known without a record */
        gpusync_result expected = ticket % 2 ? GPUSYNC_ERROR_RESULT_UNKNOWN : GPUSYNC_OK;
        assert_result(gpusync_poll(r.queue, ticket), expected);
        assert_result(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER), expected);
        assert_ok(gpusync_get_info(r.queue, ticket, &info));
        assert_result(info.result, expected);
    }
    for (; ticket <= 20; ticket++)
        assert_result(gpusync_wait(r.queue, ticket, 0), ticket % 2 ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    for (i = 0; i < 256; i++) succeed_one(&r); /* the entries of those tickets are gone now */
    for (ticket = 1; ticket <= 11; ticket++)
        assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_RESULT_UNKNOWN);
    for (; ticket <= 20; ticket++)
        assert_result(gpusync_wait(r.queue, ticket, 0), ticket % 2 ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    assert_ok(gpusync_poll(r.queue, GPUSYNC_NO_TICKET)); /* no work never fails */
    assert_ok(gpusync_wait(r.queue, GPUSYNC_NO_TICKET, 0));
    ticket = commit_empty(&r, &buffer);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_NOT_READY);
    softmetal_finish(buffer);
    rig_close(&r);
}

static void assert_off_record(const gpusync_error *error, gpusync_result result, gpusync_ticket ticket)
{
    assert_result(error->result, result);
    assert_int_equal(error->ticket, ticket);
    assert_int_equal(error->code, 0);
    assert_non_null(strstr(error->message, "no longer on record"));
}

static void test_the_error_of_a_ticket_whose_record_is_gone_says_so(void **state)
{
    gpusync_wait_options options;
    gpusync_point points[3];
    gpusync_ticket ticket;
    gpusync_error error;
    size_t which;
    int i;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 4, NULL, NULL);
    for (i = 0; i < 10; i++) {
        fail_one(&r, 1);   /* odd tickets */
        succeed_one(&r);   /* even ones */
    }
    memset(&options, 0, sizeof options);
    options.error = &error;
    for (ticket = 1; ticket <= 11; ticket += 2) {
        memset(&error, 0xEE, sizeof error);
        assert_result(gpusync_wait_ex(r.queue, ticket, 0, &options), GPUSYNC_ERROR_RESULT_UNKNOWN);
        assert_off_record(&error, GPUSYNC_ERROR_RESULT_UNKNOWN, ticket);
        points[0] = gpusync_at_ticket(r.queue, 2);
        points[1] = gpusync_at_ticket(r.queue, ticket);
        points[2] = gpusync_at_ticket(r.queue, 13); /* which is on record */
        for (i = 0; i < 3; i++) {
            static const gpusync_wait_for how[] = {GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_WAIT_ANY};
            bool any = how[i] == GPUSYNC_WAIT_ANY; /* of those from the ticket on */
            memset(&error, 0xEE, sizeof error);
            assert_result(gpusync_wait_many(points + any, (size_t)(3 - any), how[i], 0, &options, &which),
                          GPUSYNC_ERROR_RESULT_UNKNOWN);
            assert_int_equal(which, any ? 0 : 1);
            assert_off_record(&error, GPUSYNC_ERROR_RESULT_UNKNOWN, ticket);
        }
    }
    assert_result(gpusync_wait_ex(r.queue, 13, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_result(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.ticket, 13);
    assert_int_equal(error.code, 1);
    rig_close(&r);
}

static void test_the_error_of_everything_whose_records_are_gone_says_so(void **state)
{
    void *failing, *fine, *later[2], *never;
    gpusync_wait_options options;
    gpusync_ticket ticket;
    gpusync_error error;
    wait_job job;
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open_logging(&r, SOFTMETAL_MANUAL, 1, NULL, NULL);
    memset(&options, 0, sizeof options);
    options.error = &error;
    fail_one(&r, 1);
    never = metal_queue_command_buffer(r.metal_queue); /* given up, it pushes the record of the failure out */
    assert_ok(gpusync_track(r.queue, never, &ticket));
    assert_ok(gpusync_untrack(r.queue, ticket));
    metal_release(never);
    memset(&error, 0xEE, sizeof error);
    assert_result(gpusync_wait_ex(r.queue, GPUSYNC_EVERYTHING, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_off_record(&error, GPUSYNC_ERROR_EXECUTION, GPUSYNC_NO_TICKET);
    commit_failing(&r, &failing, NULL, 1, NULL);
    commit_empty(&r, &fine);
    memset(&error, 0xEE, sizeof error);
    memset(&job, 0, sizeof job);
    job.queue = r.queue;
    job.ticket = GPUSYNC_EVERYTHING;
    job.timeout_ns = SECONDS(20);
    job.options = &options;
    job.thread = start(wait_job_body, &job);
    await_sleepers(r.device, 1);
    for (i = 0; i < 2; i++) commit_failing(&r, &later[i], NULL, 1, NULL);
    softmetal_finish(failing);
    for (i = 0; i < 2; i++) softmetal_finish(later[i]);
    softmetal_finish(fine);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_off_record(&error, GPUSYNC_ERROR_RESULT_UNKNOWN, GPUSYNC_NO_TICKET);
    rig_close(&r);
}

static void test_no_ticket_is_always_well_also_after_a_failure(void **state)
{
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    fail_one(&r, 2);
    assert_ok(gpusync_wait(r.queue, GPUSYNC_NO_TICKET, 0));
    assert_ok(gpusync_wait_ex(r.queue, GPUSYNC_NO_TICKET, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_poll(r.queue, GPUSYNC_NO_TICKET));
    rig_close(&r);
}

static void test_the_failure_of_an_old_ticket_is_told_as_long_as_its_record_is_kept(void **state)
{
    gpusync_ticket failed;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    failed = fail_one(&r, 8);
    for (i = 0; i < 600; i++) succeed_one(&r);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    for (i = 0; i < 3; i++) assert_result(gpusync_wait(r.queue, failed, 0), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(r.queue, failed), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_wait(r.queue, failed + 1, 0));
    rig_close(&r);
}

/* -- queue-wide waits ------------------------------------------------------------------------------- */

static void test_a_queue_wait_tells_a_failure_once_also_one_from_before_it_began(void **state)
{
    void *buffer;
    wait_job job;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    fail_one(&r, 1);
    assert_result(gpusync_poll(r.queue, GPUSYNC_EVERYTHING), GPUSYNC_ERROR_EXECUTION); /* a poll covers nothing */
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    assert_ok(gpusync_poll(r.queue, GPUSYNC_EVERYTHING));
    fail_one(&r, 1);
    succeed_one(&r);
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_device_wait(r.device, 0, NULL));
    assert_ok(gpusync_queue_wait(r.queue, 0));
    commit_failing(&r, &buffer, NULL, 1, NULL);
    wait_job_start(&job, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    softmetal_finish(buffer);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    rig_close(&r);
}

static void test_all_queue_waits_that_were_going_on_are_told_of_a_failure(void **state)
{
    wait_job jobs[3];
    void *failing, *fine;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_failing(&r, &failing, NULL, 1, NULL);
    commit_empty(&r, &fine);
    for (i = 0; i < 3; i++) wait_job_start(&jobs[i], r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 3);
    softmetal_finish(failing);
    softmetal_finish(fine);
    for (i = 0; i < 3; i++) assert_result(wait_job_join(&jobs[i]), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    rig_close(&r);
}

static void test_a_queue_wait_that_timed_out_leaves_the_failure_to_the_next(void **state)
{
    void *stuck;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    fail_one(&r, 1);
    commit_empty(&r, &stuck);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_queue_wait(r.queue, MS(1)), GPUSYNC_TIMEOUT);
    softmetal_finish(stuck);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    rig_close(&r);
}

static void test_a_failure_of_later_work_is_left_to_a_later_queue_wait(void **state)
{
    wait_job job;
    void *first, *later;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &first);
    wait_job_start(&job, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    commit_failing(&r, &later, NULL, 1, NULL);
    softmetal_finish(later); /* fails before the wait ends */
    softmetal_finish(first);
    assert_ok(wait_job_join(&job));
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    rig_close(&r);
}

static void test_a_queue_wait_over_dropped_records_still_tells_that_something_failed(void **state)
{
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open_logging(&r, SOFTMETAL_MANUAL, 1, NULL, NULL);
    for (i = 0; i < 3; i++) fail_one(&r, 1);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    fail_one(&r, 1);
    {   /* a cancelled ticket pushes the record of the failure out */
        void *buffer = metal_queue_command_buffer(r.metal_queue);
        gpusync_ticket ticket;
        assert_ok(gpusync_track(r.queue, buffer, &ticket));
        assert_ok(gpusync_untrack(r.queue, ticket));
        metal_release(buffer);
    }
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    rig_close(&r);
}

static void test_a_queue_wait_tells_of_the_oldest_failure_on_record(void **state)
{
    gpusync_wait_options options;
    gpusync_error error;
    int i;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 3, NULL, NULL);
    memset(&options, 0, sizeof options);
    options.error = &error;
    for (i = 0; i < 5; i++) {
        succeed_one(&r);
        fail_one(&r, 1);
    }
    memset(&error, 0xEE, sizeof error);
    assert_result(gpusync_wait_ex(r.queue, GPUSYNC_EVERYTHING, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.ticket, 6); /* the records of tickets 2 and 4 are gone; 8 and 10 are on record, too */
    rig_close(&r);
}

/* Failures behind what a wait is for may push out the records that it needs. */
static void test_a_queue_wait_whose_records_later_failures_have_pushed_out_does_not_know(void **state)
{
    void *failing, *fine, *later[2];
    wait_job job;
    int i;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 1, NULL, NULL);
    commit_failing(&r, &failing, NULL, 1, NULL);
    commit_empty(&r, &fine);
    wait_job_start(&job, r.queue, GPUSYNC_EVERYTHING, SECONDS(20));
    await_sleepers(r.device, 1);
    for (i = 0; i < 2; i++) commit_failing(&r, &later[i], NULL, 1, NULL);
    softmetal_finish(failing);
    for (i = 0; i < 2; i++) softmetal_finish(later[i]);
    softmetal_finish(fine);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION); /* of those behind it */
    assert_ok(gpusync_queue_wait(r.queue, 0));
    rig_close(&r);
}

static void test_dropped_records_of_cancelled_tickets_say_nothing_about_others(void **state)
{
    gpusync_ticket ticket;
    void *buffer, *never;
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, NULL, queue_desc_of(0, 1));
    ticket = track_a_buffer(&r, &buffer);
    for (i = 0; i < 3; i++) {
        assert_ok(gpusync_untrack(r.queue, track_a_buffer(&r, &never)));
        metal_release(never);
    }
    metal_commit(buffer);
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(r.queue, ticket, 0));
    assert_ok(gpusync_queue_wait(r.queue, 0));
    metal_release(buffer);
    rig_close(&r);
}

static void test_a_queue_tells_of_work_that_was_lost_with_another_queue(void **state)
{
    gpusync_submission first, second;
    gpusync_point wait, signal;
    gpusync_timeline *timeline;
    gpusync_queue *other;
    gpusync_wait_options options;
    gpusync_error error;
    uint64_t cursor = 0;
    rig r;
    (void)state;
    NOT_ON_METAL4("submissions have command buffers");
    rig_open(&r, SOFTMETAL_MANUAL);
    other = queue_new(r.device);
    assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
    memset(&first, 0, sizeof first);
    memset(&wait, 0, sizeof wait);
    wait.timeline = timeline;
    wait.value = 1;
    signal = wait;
    signal.value = 2;
    first.waits = &wait;
    first.signals = &signal;
    first.wait_count = first.signal_count = 1;
    second = first;
    second.waits = &signal;
    second.signal_count = 0;
    assert_ok(gpusync_submit(other, &first, NULL));
    assert_ok(gpusync_submit(r.queue, &second, NULL));
    assert_ok(gpusync_cancel_held(other));
    assert_ok(gpusync_queue_wait(other, 0)); /* the program cancelled it, and knows */
    memset(&options, 0, sizeof options);
    options.error = &error;
    assert_result(gpusync_wait_ex(r.queue, 1, 0, &options), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(error.dropped, 0);
    assert_int_equal(stats_of(r.queue).failures, 1);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_int_equal(error.dropped, 0);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_queue_destroy(other));
    rig_close(&r);
}

/* Whichever queue it is. The others end well when the wait looks: it leaves out those of which it knew before. */
static void test_a_wait_for_the_device_tells_the_failure_of_any_queue(void **state)
{
    unsigned failing;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    for (failing = 0; failing < 3; failing++) {
        gpusync_error error;
        gpusync_wait_options options = {.error = &error};
        void *buffer;
        unsigned i;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 3);
        for (i = 0; i < 3; i++) {
            buffer = open_on(&s, i);
            if (i == failing) softmetal_fail(buffer, NULL, 3, "on purpose");
            (void)commit_to(s.q[i], buffer);
            softmetal_complete(buffer);
        }
        assert_result(gpusync_device_wait(s.device, 0, &options), GPUSYNC_ERROR_EXECUTION);
        assert_non_null(strstr(error.message, "on purpose"));
        assert_ok(gpusync_device_wait(s.device, 0, NULL)); /* each is told once */
        for (i = 0; i < 3; i++) finish(&s, i);
        close_stage(&s);
    }
}

static void test_a_lost_device_says_so_though_it_has_no_queue_any_more(void **state)
{
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    assert_ok(gpusync_device_wait(r.device, 0, NULL));
    fail_with_the_device(buffer = open_buffer(&r));
    (void)commit_to(r.queue, buffer);
    finish_queue(r.queue);
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_ok(gpusync_queue_destroy(r.queue));
    r.queue = NULL;
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    rig_close(&r);
}

/* -- the log hook ----------------------------------------------------------------------------------- */

typedef struct log_book {
    rig *r;
    gpusync_ticket finished, failed, unfinished; /* to wait for inside */
    gpusync_result answers[12];
    void *open;          /* a buffer of the full queue */
    pthread_t thread;
    int lines, lost_lines;
    bool newline;
    gpusync_log_level level;
    char text[1024];
} log_book;

static void forget_log(log_book *book) { book->lines = book->lost_lines = 0; }

static void write_log(void *user, gpusync_log_level level, const char *text)
{
    log_book *book = (log_book *)user;
    if (strstr(text, "device lost")) {
        book->lost_lines++;
        return;
    }
    book->lines++;
    book->level = level;
    book->thread = pthread_self();
    book->newline = strchr(text, '\n') != NULL;
    snprintf(book->text, sizeof book->text, "%s", text);
}

static void test_the_log_hook_gets_one_line_for_each_failure_on_the_thread_that_found_it(void **state)
{
    log_book book;
    void *buffer;
    char kind[64];
    gpusync_ticket ticket;
    rig r;
    (void)state;
    memset(&book, 0, sizeof book);
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, write_log, &book);
    succeed_one(&r);
    assert_int_equal(book.lines, 0);
    buffer = open_buffer(&r);
    metal_set_label(buffer, "blur");
    softmetal_fail(buffer, NULL, code_of_timeout(), "took too long");
    assert_ok(either_commit(r.queue, buffer, NULL));
    softmetal_finish(buffer);
    assert_int_equal(book.lines, 1);
    assert_int_equal(book.level, GPUSYNC_LOG_ERROR);
    assert_false(book.newline);
    assert_false(pthread_equal(book.thread, pthread_self())); /* Metal's */
    assert_non_null(strstr(book.text, "'blur'"));
    assert_non_null(strstr(book.text, "'render'"));
    assert_non_null(strstr(book.text, "ticket 2"));
    assert_non_null(strstr(book.text, "timeout"));
    snprintf(kind, sizeof kind, "%s %ld", COMMAND_BUFFER_DOMAIN, code_of_timeout());
    assert_non_null(strstr(book.text, kind));
    assert_non_null(strstr(book.text, "took too long"));
    ticket = commit_failing(&r, &buffer, NULL, 3, NULL);
    softmetal_complete(buffer);
    if (!metal4_run()) {
        assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(book.lines, 2);
        assert_true(pthread_equal(book.thread, pthread_self())); /* the thread that looked first */
    }
    softmetal_finish(buffer);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(book.lines, 2);
    assert_int_equal(book.lost_lines, 0);
    rig_close(&r);
}

/* A record it has all the same; but nothing went wrong that the program did not ask for. */
static void test_what_was_cancelled_writes_no_line(void **state)
{
    gpusync_point never = {NULL, 0, NULL, 1};
    gpusync_submission submission;
    gpusync_ticket held, tracked;
    log_book book;
    void *buffer, *own = NULL;
    rig r;
    (void)state;
    memset(&book, 0, sizeof book);
    memset(&submission, 0, sizeof submission);
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, write_log, &book);
    assert_ok(gpusync_timeline_create(r.device, NULL, &never.timeline));
    buffer = open_buffer(&r);
    submission.waits = &never;
    submission.wait_count = 1;
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    assert_ok(either_submit(r.queue, &submission, &held));
    commit_empty(&r, NULL); /* held behind it */
    assert_ok(gpusync_cancel_held(r.queue));
    assert_result(gpusync_wait(r.queue, held, 0), GPUSYNC_ERROR_CANCELLED);
    if (!metal4_run()) {
        tracked = track_a_buffer(&r, &own);
        assert_ok(gpusync_untrack(r.queue, tracked));
        assert_result(gpusync_wait(r.queue, tracked, 0), GPUSYNC_ERROR_CANCELLED);
    }
    assert_int_equal(book.lines, 0);
    fail_one(&r, 3);
    assert_int_equal(book.lines, 1);
    metal_release(own);
    assert_ok(gpusync_timeline_destroy(never.timeline));
    rig_close(&r);
}

static void wait_inside_log(void *user, gpusync_log_level level, const char *text)
{
    log_book *book = (log_book *)user;
    gpusync_queue *q = book->r->queue;
    gpusync_result *a = book->answers;
    (void)level;
    (void)text;
    book->lines++;
    a[0] = gpusync_wait(q, book->finished, GPUSYNC_FOREVER);
    a[1] = gpusync_wait(q, book->failed, GPUSYNC_FOREVER);
    a[2] = gpusync_wait(q, book->unfinished, GPUSYNC_FOREVER);
    a[3] = gpusync_wait(q, book->unfinished, 0);
    a[4] = gpusync_queue_wait(q, GPUSYNC_FOREVER);
    a[5] = gpusync_device_wait(book->r->device, GPUSYNC_FOREVER, NULL);
    a[6] = gpusync_poll(q, book->unfinished);
    a[7] = gpusync_queue_destroy(q);
    a[8] = gpusync_queue_destroy_now(q);
    a[9] = gpusync_device_destroy(book->r->device);
    a[10] = either_buffer(q, NULL, &book->open);
}

static void test_inside_the_log_hook_waits_that_would_have_to_wait_return_at_once(void **state)
{
    static const gpusync_result expected[] = {
        GPUSYNC_OK, GPUSYNC_ERROR_EXECUTION, GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK,
        GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_NOT_READY, GPUSYNC_ERROR_WOULD_DEADLOCK,
        GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_WOULD_DEADLOCK};
    log_book book;
    void *failing, *stuck, *filler;
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    int round, rounds = metal4_run() ? 1 : 2;
    size_t i;
    rig r;
    (void)state;
    memset(&book, 0, sizeof book);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.log = wait_inside_log;
    device_desc.log_user = &book;
    queue_desc.max_command_buffer_count = 3;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    book.r = &r;
    for (round = 0; round < rounds; round++) { /* by the handler, then by this thread */
        void *blocker;
        book.finished = succeed_one(&r);
        book.failed = commit_failing(&r, &failing, NULL, 1, NULL);
        book.unfinished = commit_empty(&r, &stuck);
        filler = open_buffer(&r);
        blocker = failing;
        metal_retain(blocker);
        softmetal_complete(failing);
        if (round == 0) softmetal_run_handler(failing, 0);
        else assert_result(gpusync_poll(r.queue, book.failed), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(book.lines, round + 1);
        for (i = 0; i < sizeof expected / sizeof expected[0] - 1; i++) assert_result(book.answers[i], expected[i]);
        /* the failed buffer's place may be free by then; what counts is that no call waited */
        if (book.answers[10] == GPUSYNC_OK) assert_ok(either_discard(r.queue, book.open));
        else assert_result(book.answers[10], expected[10]);
        assert_ok(either_discard(r.queue, filler));
        softmetal_finish_queue(r.metal_queue);
        metal_release(blocker);
        assert_ok(gpusync_wait(r.queue, book.unfinished, 0));
    }
    assert_int_equal(stats_of(r.queue).failures, rounds);
    rig_close(&r);
}

static void commit_inside_log(void *user, gpusync_log_level level, const char *text)
{
    log_book *book = (log_book *)user;
    void *buffer = NULL;
    (void)level;
    (void)text;
    book->lines++;
    book->answers[0] = either_buffer(book->r->queue, NULL, &buffer);
    book->answers[1] = either_commit(book->r->queue, buffer, &book->unfinished);
}

static void test_inside_the_log_hook_work_can_be_committed(void **state)
{
    log_book book;
    rig r;
    (void)state;
    memset(&book, 0, sizeof book);
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, commit_inside_log, &book);
    book.r = &r;
    fail_one(&r, 1);
    assert_int_equal(book.lines, 1);
    assert_ok(book.answers[0]);
    assert_ok(book.answers[1]);
    assert_int_equal(book.unfinished, 2);
    softmetal_finish_queue(r.metal_queue);
    assert_ok(gpusync_wait(r.queue, 2, 0));
    rig_close(&r);
}

static void keep_text(void *user, gpusync_log_level level, const char *text)
{
    (void)level;
    snprintf((char *)user, 256, "%s", text);
}

static void test_a_log_line_is_one_line(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc = queue_desc_of(0, 0);
    char text[256] = "";
    void *buffer;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.log = keep_text;
    device_desc.log_user = text;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    commit_empty(&r, &buffer);
    softmetal_fail(buffer, NULL, 1, "one\ntwo\tthree\r\n");
    softmetal_finish(buffer);
    assert_non_null(strstr(text, "one two three"));
    assert_null(strpbrk(text, "\n\r\t"));
    rig_close(&r);
}

static struct {
    gpusync_queue *queue;
    unsigned depth, deepest, lines;
} asking;

static void ask_in_log(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
    asking.lines++;
    if (++asking.depth > asking.deepest) asking.deepest = asking.depth;
    assert_int_not_equal(gpusync_poll(asking.queue, GPUSYNC_EVERYTHING), GPUSYNC_ERROR_INVALID_ARGUMENT);
    asking.depth--;
}

static void test_a_log_hook_that_finds_more_failures_is_not_called_from_within_itself(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc = queue_desc_of(0, 0);
    void *buffers[40];
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no status to read");
    memset(&device_desc, 0, sizeof device_desc);
    memset(&asking, 0, sizeof asking);
    device_desc.log = ask_in_log;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    asking.queue = r.queue;
    for (i = 0; i < 40; i++) {
        commit_empty(&r, &buffers[i]);
        softmetal_fail(buffers[i], NULL, 1, NULL);
        softmetal_complete(buffers[i]);
    }
    assert_result(gpusync_poll(r.queue, 1), GPUSYNC_ERROR_EXECUTION); /* finds one, the hook finds the others */
    assert_true(gpusync_is_idle(r.queue));
    assert_int_equal(asking.lines, 40);
    assert_int_equal(asking.deepest, 1);
    for (i = 0; i < 40; i++) softmetal_finish(buffers[i]);
    rig_close(&r);
}

enum { HELD_QUEUES = 40 };

static struct {
    gpusync_queue *queues[HELD_QUEUES];
    gpusync_ticket tickets[HELD_QUEUES];
    unsigned depth, deepest, lines;
} asking_all;

static void ask_for_all_in_log(void *user, gpusync_log_level level, const char *text)
{
    int i;
    (void)user;
    (void)level;
    (void)text;
    asking_all.lines++;
    if (++asking_all.depth > asking_all.deepest) asking_all.deepest = asking_all.depth;
    for (i = 0; i < HELD_QUEUES; i++)
        assert_int_not_equal(gpusync_poll(asking_all.queues[i], asking_all.tickets[i]), GPUSYNC_OK);
    asking_all.depth--;
}

/* One timeline fails what many queues hold. The hook asks for all of it, also for what is about to end. */
static void test_a_log_hook_that_polls_what_other_queues_hold_is_not_called_from_within_itself(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_timeline *timeline;
    int i;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&asking_all, 0, sizeof asking_all);
    device_desc.log = ask_for_all_in_log;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc_of(0, 0));
    timeline = timeline_new(r.device);
    for (i = 0; i < HELD_QUEUES; i++) {
        asking_all.queues[i] = queue_new(r.device);
        asking_all.tickets[i] = hold_on(asking_all.queues[i], timeline, 1, NULL);
    }
    assert_ok(gpusync_timeline_fail(timeline, NULL));
    assert_int_equal(asking_all.lines, HELD_QUEUES);
    assert_int_equal(asking_all.deepest, 1);
    for (i = 0; i < HELD_QUEUES; i++) assert_ok(gpusync_queue_destroy(asking_all.queues[i]));
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

static struct {
    gate entered, leave;
    unsigned lines;
} in_log;

/* The first line stays inside until the test lets it go on, as a hook does that waits for a mutex of the program. */
static void stay_in_log(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
    if (COUNT(&in_log.lines)) return;
    gate_wait(&in_log.entered);
    gate_wait(&in_log.leave);
}

/* A program may hold a mutex that its log hook takes, and call gpusync: whatever others have to tell meanwhile. */
static void test_no_thread_waits_for_one_that_is_in_the_log_hook(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_ticket held[3], failed[3], ended, late;
    pthread_t failer;
    unsigned i;
    void *buffer, *failing[3];
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&in_log, 0, sizeof in_log);
    gate_init(&in_log.entered, 2);
    gate_init(&in_log.leave, 2);
    device_desc.log = stay_in_log;
    open_stage_on(&s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, 4, device_desc, queue_desc);
    for (i = 0; i < 3; i++) {
        failed[i] = commit_empty_to(s.q[i], &failing[i]);
        softmetal_fail(failing[i], NULL, 1, NULL);
        held[i] = hold_on(s.q[i], s.a, 1, NULL);
    }
    ended = commit_empty_to(s.q[3], &buffer);
    softmetal_finish(buffer);
    failer = start(fail_with_code_77, s.a);
    gate_wait(&in_log.entered);
    must_return_within(20);
    assert_ok(gpusync_poll(s.q[3], ended));
    late = commit_empty_to(s.q[3], &buffer);
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(s.q[3], late, GPUSYNC_FOREVER));
    assert_ok(gpusync_timeline_signal(s.c, 1));
    for (i = 0; i < 3; i++) { /* more to tell, also of the queue that is being logged */
        softmetal_finish(failing[i]);
        assert_result(gpusync_wait(s.q[i], failed[i], GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
        assert_int_not_equal(gpusync_poll(s.q[i], held[i]), GPUSYNC_OK);
    }
    assert_true(reports(s.device, "queue 4 'fourth'"));
    has_returned();
    gate_wait(&in_log.leave);
    join(failer);
    for (i = 0; i < 3; i++) assert_result(gpusync_wait(s.q[i], held[i], 0), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(in_log.lines, 6);
    gate_destroy(&in_log.entered);
    gate_destroy(&in_log.leave);
    close_stage(&s);
}

/* -- a lost device ---------------------------------------------------------------------------------- */

static void expect_no_new_work(rig *r)
{
    void *own = metal4_run() ? metal_retain(open_buffer(r)) : metal_queue_command_buffer(r->metal_queue), *buffer = own;
    unsigned long owners = softmetal_retain_count(own);
    gpusync_queue_desc desc = queue_desc_of(0, 0);
    gpusync_timeline *timeline;
    gpusync_queue *queue;
    gpusync_ticket ticket = 77;
    desc.metal4 = metal4_run();
    assert_true(gpusync_device_is_lost(r->device));
    if (!metal4_run()) {
        assert_result(gpusync_command_buffer(r->queue, NULL, &buffer), GPUSYNC_ERROR_DEVICE_LOST);
        assert_null(buffer);
        assert_result(gpusync_track(r->queue, own, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    }
    assert_result(either_commit(r->queue, own, &ticket), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(ticket, 0);
    assert_result(TRY_SUBMIT(r->queue, &ticket, BUFFERS(own)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(ticket, 0);
    assert_result(gpusync_queue_create(r->device, &desc, &queue), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(queue);
    assert_result(gpusync_timeline_create(r->device, NULL, &timeline), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(timeline);
    assert_int_equal(softmetal_retain_count(own), owners);
    metal_release(own);
}

static void expect_lost(rig *r, gpusync_ticket well, gpusync_ticket failed, gpusync_ticket unfinished)
{
    expect_no_new_work(r);
    assert_result(gpusync_queue_wait(r->queue, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_queue_wait(r->queue, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_device_wait(r->device, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_ok(gpusync_wait(r->queue, well, 0));
    if (failed) assert_result(gpusync_wait(r->queue, failed, GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
    if (unfinished) assert_result(gpusync_wait(r->queue, unfinished, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    if (unfinished) assert_result(gpusync_poll(r->queue, unfinished), GPUSYNC_ERROR_DEVICE_LOST);
}

/* What is in flight may still end, and is given up in a second: until then all waits for it go on. */
static void expect_undecided(gpusync_queue *queue, gpusync_ticket ticket)
{
    assert_result(gpusync_poll(queue, ticket), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(queue, ticket, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(queue, ticket, MS(1)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_queue_wait(queue, MS(1)), GPUSYNC_TIMEOUT);
    assert_false(gpusync_is_done(queue, ticket));
}

static void lose_with_sleepers(long code)
{
    wait_job jobs[4];
    log_book book;
    gpusync_queue *queues[3];
    gpusync_ticket tickets[3], well, failed;
    void *failing, *stuck[3], *open;
    char text[8192];
    int i;
    rig r;
    memset(&book, 0, sizeof book);
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, write_log, &book);
    queues[0] = r.queue;
    well = succeed_one(&r);
    failed = commit_failing(&r, &failing, NULL, code, NULL);
    open = open_buffer(&r);
    for (i = 0; i < 3; i++) {
        if (i > 0) queues[i] = queue_new(r.device);
        r.queue = queues[i];
        tickets[i] = commit_empty(&r, &stuck[i]);
        wait_job_start(&jobs[i], queues[i], i == 1 ? GPUSYNC_EVERYTHING : tickets[i], GPUSYNC_FOREVER);
    }
    r.queue = queues[0];
    wait_job_start(&jobs[3], r.queue, failed, GPUSYNC_FOREVER);
    await_sleepers(r.device, 4);
    softmetal_finish(failing);
    assert_result(wait_job_join(&jobs[3]), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(book.lost_lines, 1);
    assert_int_equal(book.lines, 1);
    gpusync_report(r.device, text, sizeof text);
    assert_non_null(strstr(text, "device, lost"));
    assert_int_equal(sleepers_of(r.device), 3);
    forget_log(&book);
    for (i = 0; i < 3; i++) expect_undecided(queues[i], tickets[i]);
    assert_result(gpusync_device_wait(r.device, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(r.queue, failed, 0), GPUSYNC_ERROR_EXECUTION);
    expect_no_new_work(&r);
    probe_give_up_lost(r.device);
    for (i = 0; i < 3; i++) assert_result(wait_job_join(&jobs[i]), GPUSYNC_ERROR_DEVICE_LOST);
    forget_log(&book);
    expect_lost(&r, well, failed, tickets[0]);
    assert_int_equal(sleepers_of(r.device), 0);
    assert_ok(either_discard(r.queue, open)); /* what you have you can give back */
    softmetal_finish(stuck[0]);
    assert_result(gpusync_poll(r.queue, tickets[0]), GPUSYNC_ERROR_DEVICE_LOST); /* too late: that was told */
    softmetal_fail(stuck[2], NULL, code, NULL); /* another failure, and it is too late as well */
    softmetal_finish(stuck[2]);
    assert_result(gpusync_poll(queues[2], tickets[2]), GPUSYNC_ERROR_DEVICE_LOST);
    for (i = 1; i < 3; i++) {
        void *metal = metal_retain(gpusync_queue_metal(queues[i]));
        assert_ok(gpusync_queue_destroy(queues[i])); /* does not wait for what was given up */
        softmetal_finish_queue(metal);
        metal_release(metal);
    }
    assert_int_equal(book.lost_lines, 0); /* no line since the first */
    assert_int_equal(book.lines, 0);
    rig_close(&r);
}

static void test_access_revoked_ends_every_wait_of_the_device(void **state)
{
    (void)state;
    lose_with_sleepers(code_of_revocation());
}

static void test_device_removed_ends_every_wait_of_the_device(void **state)
{
    (void)state;
    lose_with_sleepers(code_of_removal());
}

/* Metal goes on to report: well for one, a failure for the other, before the second has passed. */
static void test_on_a_lost_device_work_that_ends_has_its_own_result(void **state)
{
    gpusync_wait_options options;
    gpusync_ticket_info info;
    gpusync_ticket tickets[2];
    gpusync_error error;
    wait_job jobs[2];
    void *failing, *buffers[2];
    uint64_t cursor = GPUSYNC_FROM_NOW;
    rig r;
    int i;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    (void)commit_failing(&r, &failing, NULL, code_of_removal(), NULL);
    tickets[0] = commit_empty(&r, &buffers[0]);
    tickets[1] = commit_failing(&r, &buffers[1], "TestDomain", 42, "it broke");
    for (i = 0; i < 2; i++) wait_job_start(&jobs[i], r.queue, tickets[i], GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    softmetal_finish(failing);
    assert_true(gpusync_device_is_lost(r.device));
    assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
    for (i = 0; i < 2; i++) {
        expect_undecided(r.queue, tickets[i]);
        softmetal_finish(buffers[i]);
        assert_result(wait_job_join(&jobs[i]), i ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_result(gpusync_poll(r.queue, tickets[i]), i ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_true(gpusync_is_done(r.queue, tickets[i]));
        assert_ok(gpusync_get_info(r.queue, tickets[i], &info));
        assert_result(info.result, i ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    }
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_int_equal(error.ticket, tickets[1]);
    assert_true(gpusync_is_idle(r.queue));
    assert_result(gpusync_queue_wait(r.queue, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST); /* from now on */
    probe_give_up_lost(r.device); /* nothing is left for that */
    memset(&options, 0, sizeof options);
    options.error = &error;
    assert_ok(gpusync_wait(r.queue, tickets[0], 0));
    assert_result(gpusync_wait_ex(r.queue, tickets[1], 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.code, 42);
    rig_close(&r);
}

/* Nothing that tells of ended work tells of this, and what Metal reports afterwards is not heard. */
static void test_given_up_work_has_not_ended_whatever_comes_later(void **state)
{
    enum { WELL, FAILS, HELD, WORKS };
    gpusync_ticket tickets[WORKS];
    gpusync_timeline *timeline;
    gpusync_ticket_info info;
    gpusync_stats before, stats;
    gpusync_error error;
    void *failing, *buffers[2];
    uint64_t cursor = GPUSYNC_FROM_NOW;
    int i, late;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    timeline = timeline_new(r.device);
    (void)commit_failing(&r, &failing, NULL, code_of_removal(), NULL);
    tickets[WELL] = commit_empty(&r, &buffers[WELL]);
    tickets[FAILS] = commit_failing(&r, &buffers[FAILS], "TestDomain", 42, "it broke");
    tickets[HELD] = hold_on(r.queue, timeline, 1, NULL);
    softmetal_finish(failing);
    assert_result(gpusync_poll(r.queue, tickets[HELD]), GPUSYNC_ERROR_DEVICE_LOST); /* at once */
    assert_ok(gpusync_get_info(r.queue, tickets[HELD], &info)); /* it never ran, and never will */
    assert_result(info.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_get_info(r.queue, tickets[WELL], &info), GPUSYNC_NOT_READY);
    assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
    before = stats_of(r.queue);
    for (late = 0; late < 2; late++) {
        if (late) for (i = 0; i < 2; i++) softmetal_finish(buffers[i]);
        else probe_give_up_lost(r.device);
        for (i = 0; i < 2; i++) {
            assert_result(gpusync_poll(r.queue, tickets[i]), GPUSYNC_ERROR_DEVICE_LOST);
            assert_result(gpusync_wait(r.queue, tickets[i], GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
            assert_result(gpusync_get_info(r.queue, tickets[i], &info), GPUSYNC_ERROR_DEVICE_LOST);
            assert_false(gpusync_is_done(r.queue, tickets[i]));
        }
        assert_result(gpusync_queue_wait(r.queue, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(gpusync_device_wait(r.device, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
        assert_false(gpusync_is_idle(r.queue));
        assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
        assert_ok(gpusync_get_info(r.queue, tickets[HELD], &info));
        stats = stats_of(r.queue);
        assert_int_equal(stats.failures, before.failures);
        assert_int_equal(stats.completions, before.completions);
    }
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

/* The program may wait for what its handlers do, too. They may still run: so the wait tells of the loss. */
static void test_a_wait_for_handlers_ends_when_the_work_is_given_up(void **state)
{
    gpusync_wait_options options;
    gpusync_ticket shown, stuck;
    void *failing, *buffers[2];
    wait_job jobs[2];
    rig r;
    int i;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&options, 0, sizeof options);
    options.handlers = true;
    options.spin = &no_spin;
    (void)commit_failing(&r, &failing, NULL, code_of_removal(), NULL);
    shown = commit_empty(&r, &buffers[0]);
    stuck = commit_empty(&r, &buffers[1]);
    for (i = 0; i < 2; i++) {
        memset(&jobs[i], 0, sizeof jobs[i]);
        jobs[i].queue = r.queue;
        jobs[i].ticket = i ? stuck : shown;
        jobs[i].timeout_ns = GPUSYNC_FOREVER;
        jobs[i].options = &options;
        jobs[i].thread = start(wait_job_body, &jobs[i]);
    }
    await_sleepers(r.device, 2);
    softmetal_finish(failing);
    if (!metal4_run()) softmetal_complete(buffers[0]); /* it has ended, and its handler does not come */
    assert_int_equal(sleepers_of(r.device), 2);
    probe_give_up_lost(r.device);
    for (i = 0; i < 2; i++) assert_result(wait_job_join(&jobs[i]), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_poll(r.queue, shown), metal4_run() ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK);
    for (i = 0; i < 2; i++) softmetal_finish(buffers[i]);
    rig_close(&r);
}

/* Park hooks that know no deadline: only an unpark ends them, or five seconds. */
static long gave_up;

static void deaf_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(5);
    (void)user;
    (void)deadline_ns;
    while (!__atomic_exchange_n(&waiter->scheduler_data[0], NULL, __ATOMIC_SEQ_CST)) {
        if (gpusync_now_ns() >= limit) {
            __atomic_fetch_add(&gave_up, 1, __ATOMIC_SEQ_CST);
            return;
        }
        sched_yield();
    }
}

static void deaf_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    __atomic_store_n(&waiter->scheduler_data[0], (void *)waiter, __ATOMIC_SEQ_CST);
}

#define SLEEPERS 40

static void test_giving_up_the_work_of_a_device_wakes_every_sleeper_of_every_queue(void **state)
{
    static const gpusync_hooks hooks = {NULL, deaf_park, deaf_unpark, NULL};
    wait_job jobs[SLEEPERS];
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_queue *queues[3];
    void *stuck[3], *failing;
    int i;
    rig r;
    (void)state;
    gave_up = 0;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    queues[0] = r.queue;
    commit_failing(&r, &failing, NULL, code_of_removal(), NULL);
    for (i = 0; i < 3; i++) {
        if (i > 0) queues[i] = queue_new(r.device);
        r.queue = queues[i];
        commit_empty(&r, &stuck[i]);
    }
    for (i = 0; i < SLEEPERS; i++) wait_job_start(&jobs[i], queues[i % 3], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, SLEEPERS);
    softmetal_finish(failing);
    assert_int_equal(sleepers_of(r.device), SLEEPERS); /* not by the loss itself */
    probe_give_up_lost(r.device);
    for (i = 0; i < SLEEPERS; i++) assert_result(wait_job_join(&jobs[i]), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(gave_up, 0);
    for (i = 0; i < 3; i++) softmetal_finish(stuck[i]);
    for (i = 1; i < 3; i++) assert_ok(gpusync_queue_destroy(queues[i]));
    r.queue = queues[0];
    rig_close(&r);
}

static void test_the_loss_of_a_device_leaves_others_alone_and_a_new_one_works(void **state)
{
    gpusync_device_desc desc;
    gpusync_device *other, *again;
    gpusync_queue *other_queue, *lost_queue;
    void *metal;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&desc, 0, sizeof desc);
    metal = softmetal_new_device();
    desc.metal_device = metal;
    assert_ok(gpusync_device_create(&desc, &other));
    other_queue = queue_new(other);
    fail_one(&r, 4);
    assert_true(gpusync_device_is_lost(r.device));
    assert_false(gpusync_device_is_lost(other));
    lost_queue = r.queue;
    r.queue = other_queue;
    succeed_one(&r);
    assert_ok(gpusync_queue_wait(other_queue, 0));
    assert_ok(gpusync_queue_destroy(other_queue));
    assert_ok(gpusync_device_destroy(other));
    metal_release(metal);
    desc.metal_device = r.metal_device;
    assert_ok(gpusync_device_create(&desc, &again));
    r.queue = queue_new(again);
    succeed_one(&r);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    assert_ok(gpusync_queue_destroy(r.queue));
    assert_ok(gpusync_device_destroy(again));
    r.queue = lost_queue;
    rig_close(&r);
}

static void test_a_removed_device_ends_waits_and_calls_on_the_real_clock(void **state)
{
    wait_job jobs[2];
    void *hanging;
    gpusync_ticket well, ticket;
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_REAL, 0, NULL, NULL);
    well = commit_empty(&r, NULL);
    assert_ok(gpusync_wait(r.queue, well, GPUSYNC_FOREVER));
    hanging = open_buffer(&r);
    softmetal_hang(hanging);
    assert_ok(either_commit(r.queue, hanging, &ticket));
    wait_job_start(&jobs[0], r.queue, ticket, GPUSYNC_FOREVER);
    wait_job_start(&jobs[1], r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    softmetal_remove_device(r.metal_device);
    /* the ticket's own failure, unless the loss was seen first */
    assert_true(wait_job_join(&jobs[0]) == GPUSYNC_ERROR_EXECUTION);
    assert_true(wait_job_join(&jobs[1]) < 0);
    assert_true(gpusync_device_is_lost(r.device));
    while (!reports(r.device, "idle, lost")) sched_yield(); /* a moment later the queue knows */
    expect_lost(&r, well, ticket, 0);
    rig_close(&r);
}

/* A thread that sees that the work failed with the device may ask at once whether it is lost. The log is told in
   between. */
static struct {
    gpusync_device *device;
    bool lost;
} at_the_line;

static void ask_at_the_line(void *user, gpusync_log_level level, const char *text)
{
    (void)user, (void)level;
    if (!strstr(text, "device lost")) at_the_line.lost = gpusync_device_is_lost(at_the_line.device);
}

static void test_a_loss_is_known_as_soon_as_the_failure_that_tells_of_it(void **state)
{
    rig r;
    (void)state;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 0, ask_at_the_line, NULL);
    at_the_line.device = r.device;
    at_the_line.lost = false;
    fail_one(&r, 4);
    assert_true(at_the_line.lost);
    rig_close(&r);
}

static void note_result(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    *(gpusync_result *)user = result;
}

/* The failure is not known yet, and destroy_now waits for no handler: the status tells. */
static void test_destroy_now_tells_how_work_ended_whose_handler_has_not_come(void **state)
{
    gpusync_result told = GPUSYNC_NOT_READY;
    gpusync_ticket ticket;
    gpusync_stats stats;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("no status to read");
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_failing(&r, &buffer, NULL, 1, NULL);
    metal_retain(buffer);
    softmetal_complete(buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), note_result, &told));
    assert_ok(gpusync_queue_destroy_now(r.queue));
    r.queue = NULL;
    assert_result(told, GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_device_get_stats(r.device, &stats));
    assert_int_equal(stats.failures, 1);
    softmetal_finish(buffer);
    metal_release(buffer);
    rig_close(&r);
}

static void note_error(void *user, gpusync_result result, const gpusync_error *error)
{
    assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
    *(gpusync_error *)user = *error;
}

static void test_an_error_of_a_lost_device_names_the_ticket(void **state)
{
    gpusync_wait_options options;
    gpusync_error error, told[2];
    gpusync_ticket ticket;
    void *failing, *stuck;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_failing(&r, &failing, NULL, 4, NULL);
    ticket = commit_empty(&r, &stuck);
    memset(told, 0, sizeof told);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), note_error, &told[0]));
    softmetal_finish(failing);
    probe_give_up_lost(r.device);
    memset(&options, 0, sizeof options);
    options.error = &error;
    memset(&error, 0, sizeof error);
    assert_result(gpusync_wait_ex(r.queue, ticket, 0, &options), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(error.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(error.ticket, ticket);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), note_error, &told[1]));
    assert_true(softmetal_dispatched(SECONDS(10)));
    assert_int_equal(told[0].ticket, ticket);
    assert_int_equal(told[1].ticket, ticket);
    softmetal_finish(stuck);
    rig_close(&r);
}

static void test_a_lost_device_frees_threads_that_wait_for_room(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_result result;
    uint64_t limit = GPUSYNC_FOREVER;
    gpusync_command_buffer_desc desc;
    gpusync_queue *full;
    void *buffer, *open;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers take room at the commit");
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = 1;
    queue_desc.spin = &no_spin;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    full = r.queue;
    open = open_buffer(&r);
    r.queue = queue_new(r.device);
    fail_one(&r, 11);
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &limit;
    result = gpusync_command_buffer(full, &desc, &buffer);
    assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_commit(full, open, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_ok(gpusync_command_buffer_discard(full, open));
    assert_ok(gpusync_queue_destroy(r.queue));
    r.queue = full;
    rig_close(&r);
}

/* Borrowed: alive until its handler has run. It will take the device with it. */
static void *commit_culprit(stage *s, unsigned i)
{
    void *culprit = open_on(s, i);
    fail_with_the_device(culprit);
    (void)commit_to(s->q[i], culprit);
    return culprit;
}

static void *destroy_body(void *queue)
{
    must(gpusync_queue_destroy((gpusync_queue *)queue) == GPUSYNC_OK, "destroy");
    return NULL;
}

/* It waits for work in flight, which may still end; and not for what was given up. What waits for that work hears of
   the device, and not of the queue. */
static void test_destroy_on_a_lost_device_waits_until_the_work_is_given_up(void **state)
{
    outcome whole = {0}, plain = {0};
    gpusync_ticket ticket;
    pthread_t thread;
    void *metal;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    metal = metal_retain(s.metal[0]);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), TELL(&whole));
    ticket = commit_on(&s, 0);
    assert_ok(gpusync_on_done(gpusync_at_ticket(s.q[0], ticket), remember, &plain));
    softmetal_finish(commit_culprit(&s, 1));
    thread = start(destroy_body, s.q[0]);
    while (gpusync_cancel_held(s.q[0]) != GPUSYNC_ERROR_DESTROYED) sched_yield();
    assert_int_equal(calls_of(&whole) + calls_of(&plain), 0);
    probe_give_up_lost(s.device);
    join(thread);
    s.q[0] = NULL;
    assert_ended(&plain, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ended(&whole, GPUSYNC_ERROR_DEVICE_LOST);
    softmetal_finish_queue(metal);
    metal_release(metal);
    close_stage(&s);
}

/* ... or until it has ended. */
static void test_destroy_on_a_lost_device_waits_for_work_that_ends_in_time(void **state)
{
    outcome told[2] = {{0}, {0}};
    pthread_t thread;
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), TELL(&told[0]));
    assert_ok(gpusync_on_done(gpusync_at_ticket(s.q[0], commit_on(&s, 0)), remember, &told[1]));
    softmetal_finish(commit_culprit(&s, 1));
    thread = start(destroy_body, s.q[0]);
    while (gpusync_cancel_held(s.q[0]) != GPUSYNC_ERROR_DESTROYED) sched_yield();
    assert_int_equal(calls_of(&told[0]) + calls_of(&told[1]), 0);
    softmetal_finish_queue(s.metal[0]);
    join(thread);
    s.q[0] = NULL;
    for (i = 0; i < 2; i++) assert_ended(&told[i], GPUSYNC_OK);
    close_stage(&s);
}

/* The device is lost, and its second passes, while a thread is in the middle of a commit. */
typedef struct loss_amid {
    gpusync_device *device;
    void *failing;
    pthread_t thread;
} loss_amid;

static void *lose_and_give_up(void *argument)
{
    loss_amid *a = (loss_amid *)argument;
    softmetal_finish(a->failing);
    probe_give_up_lost(a->device);
    return NULL;
}

static void begin_to_lose(void *argument)
{
    loss_amid *a = (loss_amid *)argument;
    a->thread = start(lose_and_give_up, a);
}

static void lose_amid_a_commit(bool submits)
{
    unsigned refused = 0;
    bool came = true;
    int n;
    must_return_within(60);
    for (n = 1; came; n++) {
        gpusync_ticket ticket = 0;
        gpusync_result result;
        loss_amid a;
        void *buffer;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        a.device = s.device;
        a.failing = commit_culprit(&s, 1);
        buffer = open_on(&s, 0);
        probe_amid_each(n, begin_to_lose, &a);
        result = submits ? TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffer)) : either_commit(s.q[0], buffer, &ticket);
        came = probe_has_acted();
        if (came) join(a.thread);
        else (void)lose_and_give_up(&a);
        probe_give_up_lost(s.device); /* once more, where a look met the commit, and left it alone */
        if (result == GPUSYNC_OK) {
            assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_ERROR_DEVICE_LOST);
        } else {
            assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
            assert_int_equal(ticket, 0);
            refused++;
        }
        assert_result(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
        if (result != GPUSYNC_OK) assert_ok(either_discard(s.q[0], buffer));
        close_stage(&s);
    }
    has_returned();
    assert_true(refused < (unsigned)n);
}

static void test_a_loss_amid_a_commit_refuses_the_work_or_gives_it_up(void **state)
{
    (void)state;
    lose_amid_a_commit(false);
}

static void test_a_loss_amid_a_submission_refuses_the_work_or_gives_it_up(void **state)
{
    (void)state;
    lose_amid_a_commit(true);
}

/* No call but sleeping waits and a destroy: the timers of the library itself let the second pass. */
static void test_a_lost_device_is_given_up_in_a_second_on_the_real_clock(void **state)
{
    gpusync_ticket ticket;
    pthread_t thread;
    uint64_t began;
    void *hanging[2], *metal;
    wait_job job;
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_REAL, 3);
    for (i = 0; i < 2; i++) {
        hanging[i] = metal_retain(open_on(&s, i));
        softmetal_hang(hanging[i]);
    }
    ticket = commit_to(s.q[0], hanging[0]);
    (void)commit_to(s.q[1], hanging[1]);
    metal = metal_retain(s.metal[1]);
    wait_job_start(&job, s.q[0], ticket, GPUSYNC_FOREVER);
    thread = start(destroy_body, s.q[1]);
    await_sleepers(s.device, 1);
    must_return_within(60);
    began = gpusync_now_ns();
    (void)commit_culprit(&s, 2);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(gpusync_now_ns() - began >= SECONDS(1));
    join(thread);
    s.q[1] = NULL;
    has_returned();
    assert_false(gpusync_is_done(s.q[0], ticket));
    for (i = 0; i < 2; i++) {
        softmetal_unhang(hanging[i]);
        await_status(hanging[i], COMPLETED);
        metal_release(hanging[i]);
    }
    metal_release(metal);
    close_stage(&s);
}

static void test_work_committed_elsewhere_that_failed_tells_that_the_device_is_lost(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, NULL, queue_desc_of(0, 0));
    buffer = metal_queue_command_buffer(r.metal_queue);
    softmetal_fail(buffer, NULL, 4, NULL);
    assert_ok(gpusync_track(r.queue, buffer, &ticket));
    metal_commit(buffer);
    softmetal_finish(buffer);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_true(gpusync_device_is_lost(r.device));
    assert_int_equal(stats_of(r.queue).failures, 1);
    assert_result(gpusync_wait(r.queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    metal_release(buffer);
    rig_close(&r);
}

/* -- what it takes ---------------------------------------------------------------------------------- */

static void test_a_device_takes_8_kb_and_a_queue_16_until_something_fails(void **state)
{
    gpusync_queue *queue;
    void *buffer;
    long before;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    before = r.memory.bytes;
    queue = queue_new(r.device);
    assert_in_range(r.memory.bytes - before, 1, 16384);
    assert_in_range(probe_device_bytes(), 1, 8192); /* from the C library */
    assert_ok(gpusync_queue_destroy(queue));
    commit_empty(&r, &buffer);
    softmetal_fail(buffer, NULL, 3, "killed");
    softmetal_finish(buffer);
    assert_true(r.memory.bytes > before); /* the log */
    rig_close(&r);
}

/* There is room for one failure without memory; the others are counted. */
static void test_without_memory_for_the_log_the_last_failure_is_kept_and_the_others_are_counted(void **state)
{
    gpusync_error error;
    uint64_t cursor = 0;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    r.memory.fail_at = 1;
    r.memory.fail_after = true;
    (void)fail_one(&r, 3);
    assert_result(gpusync_wait(r.queue, 1, 0), GPUSYNC_ERROR_EXECUTION);
    (void)fail_one(&r, 3);
    (void)fail_one(&r, 3);
    assert_result(gpusync_wait(r.queue, 1, 0), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_result(gpusync_wait(r.queue, 3, 0), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(stats_of(r.queue).failures, 3);
    assert_int_equal(stats_of(r.queue).failures_dropped, 2);
    r.memory.fail_at = 0;
    (void)fail_one(&r, 3); /* from here on there is a log */
    (void)fail_one(&r, 3);
    assert_int_equal(stats_of(r.queue).failures_dropped, 2);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_int_equal(error.ticket, 3);
    assert_int_equal(error.dropped, 2);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_int_equal(error.ticket, 4);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_int_equal(error.ticket, 5);
    assert_int_equal(error.dropped, 0);
    assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(r.queue, 2, 0), GPUSYNC_ERROR_RESULT_UNKNOWN);
    rig_close(&r);
}

/* The one record that there was without memory moves into the log, and is pushed out of it. Then nothing of it is left:
   its ticket has failed, and how is not known. */
static void test_a_record_from_before_the_log_goes_as_any_other(void **state)
{
    gpusync_wait_options options;
    gpusync_error error;
    rig r;
    (void)state;
    memset(&options, 0, sizeof options);
    options.error = &error;
    rig_open_logging(&r, SOFTMETAL_MANUAL, 2, NULL, NULL);
    r.memory.fail_at = 1;
    assert_int_equal(fail_one(&r, 3), 1);
    assert_int_equal(r.memory.fail_at, 0); /* it was the log that got no memory */
    (void)fail_one(&r, 3);
    assert_result(gpusync_wait(r.queue, 1, 0), GPUSYNC_ERROR_EXECUTION); /* the log keeps two */
    (void)fail_one(&r, 3);
    assert_int_equal(stats_of(r.queue).failures_dropped, 1);
    assert_result(gpusync_poll(r.queue, 1), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_result(gpusync_wait_ex(r.queue, 1, 0, &options), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_off_record(&error, GPUSYNC_ERROR_RESULT_UNKNOWN, 1);
    rig_close(&r);
}

/* The allocator asks, on another thread: a program's allocator may take a mutex, and a thread that has it may ask. */
static struct {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket other;
    memory_log memory;
    bool asks; /* in the next call */
    bool asked;
} at_the_record;

static void call_nothing(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)result, (void)error;
}

static void *ask_at_the_record(void *unused)
{
    gpusync_queue *queue = at_the_record.queue;
    gpusync_error error;
    uint64_t cursor = 0;
    must(gpusync_next_error(queue, &cursor, &error) == GPUSYNC_NOT_READY, "nothing is on record yet");
    must(gpusync_poll(queue, at_the_record.other) == GPUSYNC_NOT_READY, "it has not ended");
    must(gpusync_wait(queue, at_the_record.other, 0) == GPUSYNC_TIMEOUT, "it has not ended");
    must(gpusync_on_done(gpusync_at_ticket(queue, at_the_record.other), call_nothing, NULL) == GPUSYNC_OK, "a callback");
    free(report_of(at_the_record.device));
    return unused;
}

static void *allocate_and_ask(void *user, size_t size, size_t alignment)
{
    if (__atomic_exchange_n(&at_the_record.asks, false, __ATOMIC_SEQ_CST)) {
        join(start(ask_at_the_record, NULL));
        at_the_record.asked = true;
    }
    return memory_allocate(user, size, alignment);
}

static void test_a_question_does_not_wait_for_a_failure_that_takes_memory(void **state)
{
    gpusync_allocator allocator = {allocate_and_ask, memory_release, &at_the_record.memory};
    gpusync_device_desc desc;
    gpusync_ticket ticket;
    void *failing, *other;
    (void)state;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    memset(&at_the_record, 0, sizeof at_the_record);
    memset(&desc, 0, sizeof desc);
    desc.allocator = &allocator;
    assert_ok(gpusync_device_create(&desc, &at_the_record.device));
    at_the_record.queue = queue_new(at_the_record.device);
    ticket = commit_empty_to(at_the_record.queue, &failing);
    at_the_record.other = commit_empty_to(at_the_record.queue, &other);
    softmetal_fail(failing, NULL, 3, "killed");
    PUT(&at_the_record.asks, true);
    must_return_within(20);
    softmetal_finish(failing);
    has_returned();
    assert_true(at_the_record.asked);
    assert_result(gpusync_wait(at_the_record.queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    softmetal_finish(other);
    assert_ok(gpusync_queue_destroy(at_the_record.queue));
    assert_ok(gpusync_device_destroy(at_the_record.device));
    drop_recordings();
    assert_int_equal(at_the_record.memory.live, 0);
}

/* An argument is a pattern of the names of the tests to run: test_a_*. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record_tells_what_failed_where_and_why),
        cmocka_unit_test(test_a_failure_found_by_reading_the_status_is_recorded_once),
        cmocka_unit_test(test_long_texts_are_cut_at_the_start_of_a_character),
        cmocka_unit_test(test_a_text_that_is_one_byte_too_long_loses_its_last_character),
        cmocka_unit_test(test_a_text_that_just_fits_is_kept_whole),
        cmocka_unit_test(test_bytes_of_a_label_that_are_no_utf_8_are_shown_as_replacements),
        cmocka_unit_test(test_the_label_of_a_buffer_is_utf_8),
        cmocka_unit_test(test_a_reason_of_the_program_is_told_as_utf_8),
        cmocka_unit_test(test_a_reason_without_an_end_is_cut_between_two_characters),
        cmocka_unit_test(test_a_report_of_every_size_is_utf_8),
        cmocka_unit_test(test_a_line_of_the_log_is_utf_8_however_long_its_texts_are),
        cmocka_unit_test(test_a_failure_whose_handler_comes_before_the_status_is_a_failure),
        cmocka_unit_test(test_without_label_or_error_the_texts_are_empty),
        cmocka_unit_test(test_errors_are_read_a_few_deep_and_also_without_a_user_info),
        cmocka_unit_test(test_the_drivers_number_decides_the_class),
        cmocka_unit_test(test_the_drivers_number_decides_though_it_is_not_in_the_text),
        cmocka_unit_test(test_the_drivers_number_decides_though_it_is_in_the_text_alone),
        cmocka_unit_test(test_the_drivers_number_decides_in_the_form_of_older_systems),
        cmocka_unit_test(test_texts_of_other_systems_have_their_classes),
        cmocka_unit_test(test_without_a_number_every_code_has_its_class),
        cmocka_unit_test(test_what_may_succeed_later_is_transient),
        cmocka_unit_test(test_every_reader_sees_every_failure_once),
        cmocka_unit_test(test_a_reader_from_now_on_skips_what_is_on_record),
        cmocka_unit_test(test_a_reader_from_now_on_is_told_of_what_was_dropped_since),
        cmocka_unit_test(test_a_full_log_drops_the_oldest_and_counts_them_for_each_reader),
        cmocka_unit_test(test_a_ticket_whose_record_may_be_gone_is_unknown_and_never_well),
        cmocka_unit_test(test_the_error_of_a_ticket_whose_record_is_gone_says_so),
        cmocka_unit_test(test_the_error_of_everything_whose_records_are_gone_says_so),
        cmocka_unit_test(test_no_ticket_is_always_well_also_after_a_failure),
        cmocka_unit_test(test_the_failure_of_an_old_ticket_is_told_as_long_as_its_record_is_kept),
        cmocka_unit_test(test_a_queue_wait_tells_a_failure_once_also_one_from_before_it_began),
        cmocka_unit_test(test_all_queue_waits_that_were_going_on_are_told_of_a_failure),
        cmocka_unit_test(test_a_queue_wait_that_timed_out_leaves_the_failure_to_the_next),
        cmocka_unit_test(test_a_failure_of_later_work_is_left_to_a_later_queue_wait),
        cmocka_unit_test(test_a_queue_wait_over_dropped_records_still_tells_that_something_failed),
        cmocka_unit_test(test_a_queue_wait_tells_of_the_oldest_failure_on_record),
        cmocka_unit_test(test_a_queue_wait_whose_records_later_failures_have_pushed_out_does_not_know),
        cmocka_unit_test(test_the_log_hook_gets_one_line_for_each_failure_on_the_thread_that_found_it),
        cmocka_unit_test(test_what_was_cancelled_writes_no_line),
        cmocka_unit_test(test_inside_the_log_hook_waits_that_would_have_to_wait_return_at_once),
        cmocka_unit_test(test_inside_the_log_hook_work_can_be_committed),
        cmocka_unit_test(test_access_revoked_ends_every_wait_of_the_device),
        cmocka_unit_test(test_device_removed_ends_every_wait_of_the_device),
        cmocka_unit_test(test_on_a_lost_device_work_that_ends_has_its_own_result),
        cmocka_unit_test(test_given_up_work_has_not_ended_whatever_comes_later),
        cmocka_unit_test(test_a_wait_for_handlers_ends_when_the_work_is_given_up),
        cmocka_unit_test(test_giving_up_the_work_of_a_device_wakes_every_sleeper_of_every_queue),
        cmocka_unit_test(test_the_loss_of_a_device_leaves_others_alone_and_a_new_one_works),
        cmocka_unit_test(test_a_removed_device_ends_waits_and_calls_on_the_real_clock),
        cmocka_unit_test(test_a_loss_is_known_as_soon_as_the_failure_that_tells_of_it),
        cmocka_unit_test(test_an_error_of_a_lost_device_names_the_ticket),
        cmocka_unit_test(test_destroy_now_tells_how_work_ended_whose_handler_has_not_come),
        cmocka_unit_test(test_a_lost_device_frees_threads_that_wait_for_room),
        cmocka_unit_test(test_destroy_on_a_lost_device_waits_until_the_work_is_given_up),
        cmocka_unit_test(test_destroy_on_a_lost_device_waits_for_work_that_ends_in_time),
        cmocka_unit_test(test_a_loss_amid_a_commit_refuses_the_work_or_gives_it_up),
        cmocka_unit_test(test_a_loss_amid_a_submission_refuses_the_work_or_gives_it_up),
        cmocka_unit_test(test_a_lost_device_is_given_up_in_a_second_on_the_real_clock),
        cmocka_unit_test(test_a_device_takes_8_kb_and_a_queue_16_until_something_fails),
        cmocka_unit_test(test_without_memory_for_the_log_the_last_failure_is_kept_and_the_others_are_counted),
        cmocka_unit_test(test_a_record_from_before_the_log_goes_as_any_other),
        cmocka_unit_test(test_a_question_does_not_wait_for_a_failure_that_takes_memory),
        cmocka_unit_test(test_dropped_records_of_cancelled_tickets_say_nothing_about_others),
        cmocka_unit_test(test_a_queue_tells_of_work_that_was_lost_with_another_queue),
        cmocka_unit_test(test_a_wait_for_the_device_tells_the_failure_of_any_queue),
        cmocka_unit_test(test_a_lost_device_says_so_though_it_has_no_queue_any_more),
        cmocka_unit_test(test_a_log_line_is_one_line),
        cmocka_unit_test(test_a_log_hook_that_finds_more_failures_is_not_called_from_within_itself),
        cmocka_unit_test(test_a_log_hook_that_polls_what_other_queues_hold_is_not_called_from_within_itself),
        cmocka_unit_test(test_no_thread_waits_for_one_that_is_in_the_log_hook),
        cmocka_unit_test(test_work_committed_elsewhere_that_failed_tells_that_the_device_is_lost),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
