/* test_trace_json.c - what examples/trace.c writes, as a program that draws traces reads it

   The example itself is compiled in here, with its implementation, and run once; a JSON parser (jansson) reads its
   file. Checked: the trace event format, every track and what is on it, and that the times tell the story that the pipeline has. */
#define GPUSYNC_IMPLEMENTATION
#define main example_main
#include "../gpusync.h"
#include "locks_end.h"
#include "../examples/trace.c"
#undef main

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "from.h"

#if defined(__has_include)
#if __has_include(<jansson.h>)
#define WITH_JANSSON 1
#endif
#endif

#ifdef WITH_JANSSON
#include <jansson.h>
#include <unistd.h>

static json_t *document, *events;

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    assert_non_null(text);
    return text;
}

static long number_of(const json_t *event, const char *key)
{
    assert_true(json_is_integer(json_object_get(event, key)));
    return (long)json_integer_value(json_object_get(event, key));
}

static double time_of(const json_t *event, const char *key)
{
    assert_true(json_is_number(json_object_get(event, key)));
    return json_number_value(json_object_get(event, key));
}

/* The n-th event of this name and phase, on this process (0: any); NULL: there is none. */
static const json_t *find(const char *phase, int process, const char *event_name, unsigned n)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
        if (!strcmp(text_of(event, "ph"), phase) && !strcmp(text_of(event, "name"), event_name) &&
            (!process || number_of(event, "pid") == process) && n-- == 0)
            return event;
    return NULL;
}

static unsigned count(const char *phase, int process)
{
    unsigned n = 0;
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
        n += !strcmp(text_of(event, "ph"), phase) && number_of(event, "pid") == process;
    return n;
}

static const json_t *of_frame(const char *phase, int process, const char *what, unsigned frame)
{
    char wanted[64];
    const json_t *event;
    snprintf(wanted, sizeof wanted, "%s %u", what, frame);
    event = find(phase, process, wanted, 0);
    if (!event) fail_msg("no event \"%s\" of phase %s", wanted, phase);
    return event;
}

static int run_the_example(void **state)
{
    char path[] = "/tmp/gpusync_trace_XXXXXX", program_name[] = "trace", *arguments[] = {program_name, path, NULL};
    int file = mkstemp(path), status;
    json_error_t error;
    (void)state;
    if (file < 0) return -1;
    close(file);
    status = example_main(2, arguments);
    document = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    unlink(path);
    if (!document) print_error("line %d: %s\n", error.line, error.text);
    events = json_object_get(document, "traceEvents");
    return status || !document;
}

static int forget_it(void **state)
{
    (void)state;
    json_decref(document);
    return 0;
}

/* Every event has what the format asks of its phase. */
static void test_format(void **state)
{
    size_t i;
    json_t *event;
    (void)state;
    assert_true(json_is_array(events));
    assert_true(json_array_size(events) > 100);
    json_array_foreach(events, i, event)
    {
        const char *phase = text_of(event, "ph");
        assert_int_equal(strlen(phase), 1);
        assert_non_null(strchr("MXBEi", phase[0]));
        assert_true(number_of(event, "pid") > 0 && number_of(event, "tid") >= 0);
        assert_true(text_of(event, "name")[0] != '\0');
        if (phase[0] == 'M') continue;
        assert_true(time_of(event, "ts") >= 0 && time_of(event, "ts") < 60e6);
        if (phase[0] == 'X') assert_true(time_of(event, "dur") >= 0);
        assert_string_equal(text_of(json_object_get(event, "args"), "result"), "OK");
    }
}

/* Each track that is used has a name, and so has its process. */
static void test_every_track_has_a_name(void **state)
{
    size_t i, k;
    json_t *event, *other;
    (void)state;
    json_array_foreach(events, i, event)
    {
        unsigned named = 0;
        json_array_foreach(events, k, other)
            if (!strcmp(text_of(other, "ph"), "M") && number_of(other, "pid") == number_of(event, "pid") &&
                number_of(other, "tid") == number_of(event, "tid"))
                named += text_of(json_object_get(other, "args"), "name")[0] != '\0';
        assert_int_equal(named, 2); /* process_name and thread_name */
    }
}

/* Three queues, FRAMES slices each, in their order and none inside of another. */
static void test_gpu_tracks(void **state)
{
    int stage;
    unsigned frame;
    (void)state;
    assert_int_equal(count("X", GPU), STAGES * FRAMES);
    for (stage = 0; stage < STAGES; stage++) {
        double end = 0;
        for (frame = 1; frame <= FRAMES; frame++) {
            const json_t *slice = of_frame("X", GPU, names[stage], frame);
            assert_int_equal(number_of(slice, "tid"), stage);
            assert_true(time_of(slice, "ts") >= end - 0.01);
            end = time_of(slice, "ts") + time_of(slice, "dur");
            assert_true(time_of(slice, "dur") >= (double)durations[stage] / 1e3 * 0.99);
        }
    }
}

/* A frame: submitted, run, signalled; and no stage ends before the earlier ones and itself can have been through. */
static void test_frames_go_through_the_stages(void **state)
{
    unsigned frame;
    int stage;
    (void)state;
    for (frame = 1; frame <= FRAMES; frame++) {
        double reached = time_of(of_frame("X", GPU, names[UPLOAD], frame), "ts"), end = 0;
        for (stage = 0; stage < STAGES; stage++) {
            const json_t *slice = of_frame("X", GPU, names[stage], frame);
            double submitted;
            char call[32];
            end = time_of(slice, "ts") + time_of(slice, "dur");
            snprintf(call, sizeof call, "commit %s", names[stage]);
            submitted = time_of(of_frame("i", HOST, call, frame), "ts");
            assert_true(submitted <= end);
            snprintf(call, sizeof call, "signal %s", names[stage]);
            assert_true(time_of(of_frame("i", HOST, call, frame), "ts") >= end - 0.01);
            reached += (double)durations[stage] / 1e3 * 0.99;
            assert_true(end >= reached);
        }
        assert_true(time_of(of_frame("i", HOST, "callback readback", frame), "ts") >= end - 0.01);
    }
}

/* Frames 4 and 8 were submitted the wrong way round. */
static void test_held_tracks(void **state)
{
    unsigned frame;
    (void)state;
    assert_int_equal(count("X", HELD), 2 * (FRAMES / 4));
    for (frame = 4; frame <= FRAMES; frame += 4) {
        const json_t *outer = of_frame("X", HELD, "readback", frame), *inner = of_frame("X", HELD, "compute", frame);
        assert_int_equal(number_of(outer, "tid"), READBACK);
        assert_int_equal(number_of(inner, "tid"), COMPUTE);
        assert_true(time_of(outer, "ts") <= time_of(inner, "ts"));
        assert_true(time_of(inner, "ts") + time_of(inner, "dur") <=
                    time_of(outer, "ts") + time_of(outer, "dur") + 0.01);
    }
}

/* B and E come in pairs on their thread, waits for frames that had not come back. */
static void test_waits(void **state)
{
    unsigned frame, begun = 0;
    size_t i;
    json_t *event;
    (void)state;
    assert_int_equal(count("B", HOST), count("E", HOST));
    json_array_foreach(events, i, event)
    {
        const char *phase = text_of(event, "ph");
        begun += phase[0] == 'B';
        begun -= phase[0] == 'E';
        assert_true(begun <= 1); /* one thread waits, for one thing at a time */
        if (phase[0] == 'B' || phase[0] == 'E') assert_int_equal(number_of(event, "tid"), 1);
    }
    for (frame = 1; frame <= FRAMES - DEPTH; frame++)
        assert_true(time_of(of_frame("B", HOST, "wait for readback", frame), "ts") <=
                    time_of(of_frame("E", HOST, "wait for readback", frame), "ts"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_every_track_has_a_name),
        cmocka_unit_test(test_gpu_tracks),
        cmocka_unit_test(test_frames_go_through_the_stages),
        cmocka_unit_test(test_held_tracks),
        cmocka_unit_test(test_waits),
    };
    return cmocka_run_group_tests(tests, run_the_example, forget_it);
}

#else

static void test_json(void **state)
{
    (void)state;
    (void)example_main;
    print_message("skip: there is no jansson here to read the trace with\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_json)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
