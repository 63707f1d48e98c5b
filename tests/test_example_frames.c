/* test_example_frames.c - examples/frames.c: two frames in flight, and what goes wrong costs the frame alone

   The example is compiled in here, with its implementation, and its main is run. The test reads each picture when
   softmetal's display shows it. */
#include "example_run.h"

enum { ALL = 60, W = 64, H = 32 }; /* as in the example */

typedef struct region { unsigned long x, y, z, width, height, depth; } region; /* MTLRegion */

static unsigned pictures[ALL + 1], shown; /* the number of the frame in each picture, as they were shown */
static bool torn;                         /* a picture has pixels of two frames */
static void *committed[ALL + 2];          /* retained until the end */
static unsigned most_in_flight;
static unsigned asked, nil_from, nil_to;  /* calls of nextDrawable; those from nil_from to nil_to return nil */
static unsigned hung;                     /* this commit hangs */
static unsigned timeouts, patience;       /* of waits for it, which do not wait; after so many it goes on */
static unsigned refused;                  /* this commit of the example fails */
static long left_open;                    /* command buffers that were neither committed nor discarded */
static bool told_in_time;                 /* at commit 12 the example had told of ticket 7 */

static double read_picture(void *user, void *drawable, double seconds)
{
    static uint32_t pixels[W * H];
    const region all = {0, 0, 0, W, H, 1};
    (void)user;
    must(shown < ALL, "more pictures than frames");
    METAL__AS(void, void *, unsigned long, region, unsigned long)(
        metal_get(drawable, "texture"), metal__sel("getBytes:bytesPerRow:fromRegion:mipmapLevel:"), pixels, 4ul * W, all,
        0ul);
    for (unsigned i = 1; i < W * H; i++) torn |= pixels[i] != pixels[0];
    pictures[shown++] = pixels[0];
    return seconds;
}

static void at_drawable(void *user, softmetal_phase phase, void *object, const char *selector)
{
    at_message(user, phase, object, selector);
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, "nextDrawable") != 0) return;
    asked++;
    if (asked >= nil_from && asked <= nil_to) softmetal_fail_creation(1, false);
}

static void count_in_flight(unsigned n, void *buffer)
{
    unsigned in_flight = 0;
    softmetal_set_duration(buffer, 2000000);
    for (unsigned i = 1; i < n; i++) in_flight += metal_status(committed[i]) < 4;
    if (most_in_flight < in_flight) most_in_flight = in_flight;
    committed[n] = metal_retain(buffer);
    if (n == hung) hang(n, buffer);
    if (n == 12) told_in_time = has(&complained, "ticket 7, ");
}

/* The limit of the example is no limit for a busy machine. */
static gpusync_result watched_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns)
{
    gpusync_result result = gpusync_wait(queue, ticket, hung && ticket == hung ? 0 : 60 * timeout_ns);
    if (result == GPUSYNC_TIMEOUT && ++timeouts == patience) {
        let_go_on(hung);
        hung = 0;
    }
    return result;
}

static gpusync_result watched_commit(gpusync_queue *queue, void *buffer, gpusync_ticket *ticket)
{
    if (!refused || --refused > 0) return gpusync_commit(queue, buffer, ticket);
    *ticket = GPUSYNC_NO_TICKET;
    return GPUSYNC_ERROR_OUT_OF_MEMORY;
}

/* When the loop is over. The committed ones are the test's, too. */
static gpusync_result watched_queue_wait(gpusync_queue *queue, uint64_t timeout_ns)
{
    left_open = softmetal_live("command_buffer") - (long)world.commits;
    return gpusync_queue_wait(queue, timeout_ns);
}

#define gpusync_queue_wait watched_queue_wait
#define gpusync_wait watched_wait
#define gpusync_commit watched_commit
#define main example_main
#include "../examples/frames.c"
#undef main
#undef gpusync_commit
#undef gpusync_wait
#undef gpusync_queue_wait
#include "example_end.h"

static int set_up(void **state)
{
    shown = most_in_flight = asked = nil_from = nil_to = hung = timeouts = patience = refused = 0;
    left_open = 0;
    torn = told_in_time = false;
    memset(pictures, 0, sizeof pictures);
    set_up_world(state);
    softmetal_set_message_hook(at_drawable, NULL);
    softmetal_set_screen(read_picture, NULL);
    world.at_commit = count_in_flight;
    return 0;
}

static int tear_down(void **state)
{
    for (unsigned n = 1; n <= world.commits; n++)
        if (GET(&world.buffers[n])) let_go_on(n);
    assert_true(softmetal_settle(SECONDS(20)));
    for (unsigned n = 1; n <= world.commits; n++) metal_release(committed[n]);
    assert_false(torn);
    assert_int_equal(left_open, 0);
    assert_true(most_in_flight <= 2);
    tear_down_world(state);
    assert_int_equal(softmetal_live("drawable"), 0);
    assert_int_equal(softmetal_live("texture"), 0);
    assert_int_equal(softmetal_live("layer"), 0);
    return 0;
}

/* All frames were shown in order, but for those from one to another. */
static void assert_pictures_without(unsigned from, unsigned to)
{
    unsigned frame = 0;
    assert_true(softmetal_settle(SECONDS(20)));
    for (unsigned i = 0; i < shown; i++) {
        frame++;
        if (frame == from) frame = to + 1;
        assert_int_equal(pictures[i], frame);
    }
    assert_int_equal(frame, ALL);
}

/* -- the tests --------------------------------------------------------------------------------------------------- */

static void test_all_frames_are_shown(void **state)
{
    (void)state;
    assert_int_equal(example_main(), 0);
    assert_said("frames: 60 committed, 0 without a drawable, 0 without memory\n"
                "failures: 0\n");
    assert_string_equal(complained.text, "");
    assert_pictures_without(0, 0);
}

/* It is presented all the same, without a picture. */
static void test_a_frame_that_fails_does_not_stop_the_loop(void **state)
{
    (void)state;
    world.reasons[7] = SOFTMETAL_PAGE_FAULT;
    assert_int_equal(example_main(), 1);
    assert_said("frames: 60 committed, 0 without a drawable, 0 without memory\n"
                "failures: 1\n");
    assert_has(&complained, "ticket 7, frame 7: Caused GPU Address Fault Error");
    assert_true(told_in_time);
    assert_int_equal(pictures[6], 0);
    pictures[6] = 7;
    assert_pictures_without(0, 0);
}

/* The ticket two back hangs when frame 7 begins: three frames are left out, and the memory is not touched. */
static void test_a_wait_that_times_out_leaves_frames_out(void **state)
{
    (void)state;
    hung = 4;
    patience = 3;
    assert_int_equal(example_main(), 0);
    assert_int_equal(timeouts, 3);
    assert_said("frames: 57 committed, 0 without a drawable, 3 without memory\n"
                "failures: 0\n");
    assert_int_equal(most_in_flight, 2);
    assert_pictures_without(7, 9);
}

static void test_a_gpu_that_hangs_ends_the_program(void **state)
{
    (void)state;
    hung = 4;
    assert_int_equal(example_main(), 1);
    assert_said("frames: 6 committed, 0 without a drawable, 4 without memory\n"
                "failures: 0\n");
    assert_has(&complained, "gpusync_wait: the time limit passed first; the work goes on\n");
    assert_has(&complained, "gpusync_queue_wait: the time limit passed first; the work goes on\n");
    assert_int_equal(world.commits, 6);
}

static void test_frames_without_a_drawable_are_left_out(void **state)
{
    (void)state;
    nil_from = 10;
    nil_to = 12;
    assert_int_equal(example_main(), 0);
    assert_said("frames: 57 committed, 3 without a drawable, 0 without memory\n"
                "failures: 0\n");
    assert_pictures_without(10, 12);
}

static void test_without_a_display_it_is_skipped(void **state)
{
    (void)state;
    nil_from = 1;
    nil_to = ALL;
    assert_int_equal(example_main(), 77);
    assert_string_equal(complained.text, "skipped: the layer has no drawable\n");
    assert_int_equal(asked, 5);
    assert_int_equal(world.commits, 0);
}

static void test_without_quartzcore_it_says_so(void **state)
{
    (void)state;
    softmetal_hide_class("CAMetalLayer");
    assert_int_equal(example_main(), 1);
    assert_has(&complained, "no memory, or no CAMetalLayer: ");
}

static void test_a_refused_commit_ends_the_loop(void **state)
{
    (void)state;
    refused = 7;
    assert_int_equal(example_main(), 1);
    assert_said("frames: 6 committed, 0 without a drawable, 0 without memory\n"
                "failures: 0\n");
    assert_has(&complained, "gpusync_commit(l->queue, buffer, &ticket): ");
}

static void test_a_lost_device_ends_the_loop(void **state)
{
    (void)state;
    world.reasons[9] = SOFTMETAL_SUBMISSIONS_IGNORED;
    assert_int_equal(example_main(), 1);
    assert_has(&complained, "ticket 9, frame 9: Ignored (for causing prior/excessive GPU errors)");
    assert_true(world.commits >= 9 && world.commits <= 11);
}

static void test_without_a_device_it_is_skipped(void **state)
{
    (void)state;
    softmetal_fail_creation(1, true);
    assert_int_equal(example_main(), 77);
    assert_string_equal(complained.text, "skipped: Metal has no device\n");
}

#define story(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(test_all_frames_are_shown),
        story(test_a_frame_that_fails_does_not_stop_the_loop),
        story(test_a_wait_that_times_out_leaves_frames_out),
        story(test_a_gpu_that_hangs_ends_the_program),
        story(test_frames_without_a_drawable_are_left_out),
        story(test_without_a_display_it_is_skipped),
        story(test_without_quartzcore_it_says_so),
        story(test_a_refused_commit_ends_the_loop),
        story(test_a_lost_device_ends_the_loop),
        story(test_without_a_device_it_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
