/* test_example_pacing.c - examples/pacing.c: pictures keep their distance, and the program knows which were not shown

   The example is compiled in here, with its implementation, and its main is run, in each of its ways. softmetal's
   display works out when a drawable is shown; the test may say that it is dropped, or that no handler runs. */
#include "example_run.h"
#include <errno.h>

enum { ALL = 24 }; /* as in the example */

static double moments[ALL + 1]; /* of each picture, as softmetal has them */
static unsigned pictures;
static unsigned dropped_from, dropped_to, silent; /* these are dropped; of this one no handler runs */
static unsigned asked, nil_from, nil_to;          /* calls of nextDrawable, and those that return nil */
static unsigned refused;                          /* this commit of the example fails */
static bool out_of_time;
static uint64_t begun, late; /* nanoseconds: the start, as the example has read it; how long ago that is */
static long left_open; /* command buffers that were neither committed nor discarded, when the loop was over */

static double decide_picture(void *user, void *drawable, double seconds)
{
    (void)user;
    (void)drawable;
    must(pictures < ALL, "more pictures than frames");
    moments[pictures++] = seconds;
    if (pictures == silent) return -1;
    return pictures >= dropped_from && pictures <= dropped_to ? 0 : seconds;
}

static void at_drawable(void *user, softmetal_phase phase, void *object, const char *selector)
{
    at_message(user, phase, object, selector);
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, "nextDrawable") != 0) return;
    asked++;
    if (asked >= nil_from && asked <= nil_to) softmetal_fail_creation(1, false);
}

/* What is to come has come, so the time is up. */
static int watched_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    (void)condition;
    (void)until;
    pthread_mutex_unlock(mutex);
    assert_true(softmetal_settle(SECONDS(20)));
    pthread_mutex_lock(mutex);
    return ETIMEDOUT;
}

static gpusync_result watched_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns)
{
    return gpusync_wait(queue, ticket, out_of_time ? 0 : timeout_ns);
}

static gpusync_result watched_commit(gpusync_queue *queue, void *buffer, gpusync_ticket *ticket)
{
    if (!refused || --refused > 0) return gpusync_commit(queue, buffer, ticket);
    *ticket = GPUSYNC_NO_TICKET;
    return GPUSYNC_ERROR_OUT_OF_MEMORY;
}

/* The example reads it once, for the targets of its pictures. */
static uint64_t watched_now_ns(void) { return begun = gpusync_now_ns() - late; }

static gpusync_result watched_queue_wait(gpusync_queue *queue, uint64_t timeout_ns)
{
    if (!out_of_time) {
        assert_true(softmetal_settle(SECONDS(20)));
        left_open = softmetal_live("command_buffer");
    }
    return gpusync_queue_wait(queue, timeout_ns);
}

#define gpusync_now_ns watched_now_ns
#define gpusync_queue_wait watched_queue_wait
#define pthread_cond_timedwait watched_timedwait
#define gpusync_wait watched_wait
#define gpusync_commit watched_commit
#define main example_main
#include "../examples/pacing.c"
#undef main
#undef gpusync_commit
#undef gpusync_wait
#undef pthread_cond_timedwait
#undef gpusync_queue_wait
#undef gpusync_now_ns
#include "example_end.h"

static int set_up(void **state)
{
    pictures = dropped_from = dropped_to = silent = asked = nil_from = nil_to = refused = 0;
    out_of_time = false;
    begun = late = 0;
    left_open = 0;
    memset(frames, 0, sizeof frames);
    count = told = 0;
    set_up_world(state);
    softmetal_set_message_hook(at_drawable, NULL);
    softmetal_set_screen(decide_picture, NULL);
    return 0;
}

static int tear_down(void **state)
{
    tear_down_world(state);
    assert_int_equal(left_open, 0);
    assert_int_equal(softmetal_live("drawable"), 0);
    assert_int_equal(softmetal_live("texture"), 0);
    assert_int_equal(softmetal_live("layer"), 0);
    return 0;
}

static int run_paced_by(const char *way)
{
    char program[] = "pacing", argument[16];
    char *arguments[] = {program, argument, NULL};
    snprintf(argument, sizeof argument, "%s", way);
    return example_main(2, arguments);
}

static int run_without_arguments(void)
{
    char program[] = "pacing";
    char *arguments[] = {program, NULL};
    return example_main(1, arguments);
}

/* In milliseconds, as the example has printed it. */
static double shortest(void)
{
    double least = -1;
    const char *line = strstr(said.text, "from picture to picture: ");
    assert_non_null(line);
    assert_int_equal(sscanf(line, "from picture to picture: %lf", &least), 1);
    return least;
}

/* -- the tests --------------------------------------------------------------------------------------------------- */

static void test_each_picture_stays_for_its_time(void **state)
{
    (void)state;
    assert_int_equal(run_without_arguments(), 0);
    assert_has(&said, "frames: 24 committed, 24 shown, 0 dropped, 0 not told of\n");
    assert_has(&said, "from the GPU's end to the picture: ");
    assert_true(shortest() >= 33.3);
    for (unsigned i = 1; i < ALL; i++) assert_true(moments[i] - moments[i - 1] >= 1.0 / 30 - 1e-6);
    assert_string_equal(complained.text, "");
}

/* Each picture has a moment of its own, 1/30 s behind that of the picture before, and comes no earlier. The first ones come
   later: the example begins 200 ms late, as on a busy machine. */
static void test_each_picture_comes_at_its_time(void **state)
{
    (void)state;
    late = MS(200);
    assert_int_equal(run_paced_by("time"), 0);
    assert_has(&said, "frames: 24 committed, 24 shown, 0 dropped, 0 not told of\n");
    assert_int_equal(softmetal_message_count("presentDrawable:atTime:"), ALL);
    for (unsigned i = 0; i < ALL; i++) assert_true(moments[i] >= (double)begun / 1e9 + (i + 1) / 30.0 - 1e-6);
    assert_has(&said, "from picture to picture: ");
}

static void test_pictures_come_as_soon_as_they_can(void **state)
{
    (void)state;
    assert_int_equal(run_paced_by("soon"), 0);
    assert_has(&said, "frames: 24 committed, 24 shown, 0 dropped, 0 not told of\n");
    assert_int_equal(softmetal_message_count("presentDrawable:"), ALL);
    assert_true(shortest() < 33.3);
}

static void test_dropped_pictures_are_counted(void **state)
{
    (void)state;
    dropped_from = 5;
    dropped_to = 7;
    assert_int_equal(run_paced_by("duration"), 0);
    assert_has(&said, "frames: 24 committed, 21 shown, 3 dropped, 0 not told of\n");
    assert_true(shortest() > 0); /* the 0 of a dropped one is no moment */
}

static void test_it_does_not_wait_for_a_handler_that_never_comes(void **state)
{
    (void)state;
    silent = 9;
    assert_int_equal(run_paced_by("duration"), 0);
    assert_has(&said, "frames: 24 committed, 23 shown, 0 dropped, 1 not told of\n");
}

static void test_frames_without_a_drawable_are_left_out(void **state)
{
    (void)state;
    nil_from = 3;
    nil_to = 4;
    assert_int_equal(run_paced_by("duration"), 0);
    assert_has(&said, "frames: 22 committed, 22 shown, 0 dropped, 0 not told of\n");
    assert_int_equal(world.commits, 22);
}

static void test_a_frame_that_fails_is_told(void **state)
{
    (void)state;
    world.reasons[6] = SOFTMETAL_PAGE_FAULT;
    assert_int_equal(run_paced_by("duration"), 1);
    assert_has(&said, "frames: 24 committed, 24 shown, 0 dropped, 0 not told of\n");
    assert_string_equal(complained.text,
                        "gpusync_queue_wait: the work ended with an error; gpusync_next_error tells which\n");
}

static void test_a_gpu_that_hangs_ends_the_program(void **state)
{
    (void)state;
    world.hangs[2] = true;
    out_of_time = true;
    assert_int_equal(run_paced_by("duration"), 1);
    assert_has(&complained, "gpusync_wait: the time limit passed first; the work goes on\n");
    assert_true(world.commits <= 4);
}

static void test_a_refused_commit_presents_nothing(void **state)
{
    (void)state;
    refused = 4;
    assert_int_equal(run_paced_by("duration"), 1);
    assert_has(&said, "frames: 3 committed, 3 shown, 0 dropped, 0 not told of\n");
    assert_int_equal(pictures, 3);
}

static void test_without_a_display_it_is_skipped(void **state)
{
    (void)state;
    nil_from = 1;
    nil_to = ALL;
    assert_int_equal(run_without_arguments(), 77);
    assert_string_equal(complained.text, "skipped: the layer has no drawable\n");
    assert_int_equal(asked, 5);
    assert_int_equal(world.commits, 0);
}

static void test_without_a_device_it_is_skipped(void **state)
{
    (void)state;
    softmetal_fail_creation(1, true);
    assert_int_equal(run_without_arguments(), 77);
    assert_string_equal(complained.text, "skipped: Metal has no device\n");
}

#define story(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(test_each_picture_stays_for_its_time),
        story(test_each_picture_comes_at_its_time),
        story(test_pictures_come_as_soon_as_they_can),
        story(test_dropped_pictures_are_counted),
        story(test_it_does_not_wait_for_a_handler_that_never_comes),
        story(test_frames_without_a_drawable_are_left_out),
        story(test_a_frame_that_fails_is_told),
        story(test_a_gpu_that_hangs_ends_the_program),
        story(test_a_refused_commit_presents_nothing),
        story(test_without_a_display_it_is_skipped),
        story(test_without_a_device_it_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
