/* test_example_streaming.c - examples/streaming.c: neither an upload nor a readback makes the loop wait

   The example is compiled in here, with its implementation, and its main is run. Frames and uploads hang until the loop
   waits for a frame, as it does when it has run ahead as far as it may. */
#include "example_run.h"

/* What becomes of a command buffer, by its label: "frame 5", "asset 2". */
typedef struct fate {
    const char *label;
    unsigned reason;       /* why it fails; 0: it does not */
    unsigned times;        /* the first so many */
    unsigned hangs_until;  /* this wait of the program; 0: it does not hang */
} fate;

static fate fates[8];
static unsigned hung_until[MOST_COMMITS + 1]; /* commit n */
static unsigned waits, first_wait;            /* of the loop; commits of frames before the first one */
static unsigned frames;                       /* that the program has committed so far */
static unsigned uploads;                      /* likewise */
static unsigned independent;                  /* the last frame that waits for nothing that hangs */
static bool uploads_first;                    /* those that it has made end before its first frame */
static const fate none;

static void label_of(void *buffer, char *label, size_t size)
{
    void *pool = metal_pool_push();
    metal_string_copy(metal_get(buffer, "label"), label, size);
    metal_pool_pop(pool);
}

static void decide(unsigned n, void *buffer)
{
    char label[64];
    label_of(buffer, label, sizeof label);
    for (size_t i = 0; i < LENGTH(fates); i++) {
        fate *f = &fates[i];
        if (!f->label || strcmp(f->label, label) || !f->times) continue;
        f->times--;
        if (f->reason) softmetal_fail_as(buffer, f->reason, NULL);
        hung_until[n] = f->hangs_until;
        if (f->hangs_until) hang(n, buffer);
    }
}

/* Frames may be held for a moment, and come to Metal later. */
static gpusync_result watched_commit(gpusync_queue *queue, void *buffer, gpusync_ticket *ticket)
{
    char label[64];
    label_of(buffer, label, sizeof label);
    if (uploads_first && strcmp(label, "frame 1") == 0) assert_true(softmetal_settle(SECONDS(20)));
    if (strncmp(label, "frame", strlen("frame")) == 0) frames++;
    else uploads++;
    return gpusync_commit(queue, buffer, ticket);
}

/* The loop's wait for a frame. What hangs until now goes on first. After the wait all has ended that can. */
static gpusync_result watched_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns)
{
    gpusync_result result;
    bool hanging = false;
    if (++waits == 1) first_wait = frames;
    for (unsigned n = 1; n <= world.commits; n++) {
        if (!GET(&world.buffers[n])) continue;
        if (hung_until[n] <= waits) let_go_on(n);
        else hanging = true;
    }
    result = gpusync_wait(queue, ticket, timeout_ns);
    if (!hanging) assert_true(softmetal_settle(SECONDS(20)));
    else assert_ok(gpusync_wait(queue, frames < independent ? frames : independent, SECONDS(20)));
    return result;
}

#define gpusync_wait watched_wait
#define gpusync_commit watched_commit
#define main example_main
#include "../examples/streaming.c"
#undef main
#undef gpusync_wait
#undef gpusync_commit
#include "example_end.h"

static int run_with(const fate *list, size_t count)
{
    for (size_t i = 0; i < count; i++) fates[i] = list[i];
    world.at_commit = decide;
    return example_main();
}

/* Frames 3 and 4 may find the ring full in any run. */
static void assert_lost(unsigned lost)
{
    static const char line[] = "results: %u read, %u left out, %u lost, %u wrong";
    unsigned read, left_out, was_lost, wrong;
    assert_int_equal(sscanf(said.text, line, &read, &left_out, &was_lost, &wrong), 4);
    assert_int_equal(read + left_out, FRAMES - lost);
    assert_int_equal(was_lost, lost);
    assert_int_equal(wrong, 0);
}

static int set_up(void **state)
{
    memset(fates, 0, sizeof fates);
    memset(hung_until, 0, sizeof hung_until);
    uploads_first = false;
    waits = first_wait = frames = uploads = independent = 0;
    return set_up_world(state);
}

/* -- the tests --------------------------------------------------------------------------------------------------- */

static void test_all_goes_well(void **state)
{
    (void)state;
    assert_int_equal(run_with(&none, 1), 0);
    assert_lost(0);
    assert_string_equal(complained.text, "");
    assert_int_equal(frames, FRAMES);
    assert_int_equal(uploads, ASSETS);
}

/* Frames 1 to 4 hang. Two have the ring; the others are committed without it, before any wait. */
static void test_a_full_ring_does_not_make_a_frame_wait(void **state)
{
    static const fate list[] = {{"frame 1", 0, 1, 1}, {"frame 2", 0, 1, 1}, {"frame 3", 0, 1, 1}, {"frame 4", 0, 1, 1}};
    (void)state;
    uploads_first = true;
    assert_int_equal(run_with(list, LENGTH(list)), 0);
    assert_has(&said, "results: 22 read, 2 left out, 0 lost, 0 wrong\n");
    assert_int_equal(first_wait, 4);
}

/* The upload of asset 2 ends only when frame 6, which reads it, has been committed, and frame 5 before that. */
static void test_a_frame_waits_on_the_gpu_for_its_asset(void **state)
{
    static const fate list[] = {{"asset 2", 0, 1, 3}};
    (void)state;
    independent = 4;
    assert_int_equal(run_with(list, LENGTH(list)), 0);
    assert_lost(0);
    assert_int_equal(frames, FRAMES);
}

/* The first upload hangs, and the staging memory with it. The second one has its own, which goes when it has ended. */
static void test_an_upload_does_not_wait_for_staging_memory(void **state)
{
    static const fate list[] = {{"asset 1", 0, 1, 1}, {"asset 2", 0, 1, 1}};
    (void)state;
    assert_int_equal(run_with(list, LENGTH(list)), 0);
    assert_lost(0);
    assert_has(&said, "assets: 6, 1 by staging memory of their own\n");
}

static void test_a_frame_that_fails_is_lost_alone(void **state)
{
    static const fate list[] = {{"frame 7", SOFTMETAL_PAGE_FAULT, 1, 0}};
    (void)state;
    assert_int_equal(run_with(list, LENGTH(list)), 1);
    assert_lost(1);
    assert_has(&complained, "frame 7: Caused GPU Address Fault Error");
    assert_int_equal(frames, FRAMES);
}

/* It is known before a frame needs the asset: no frame is lost. */
static void test_an_upload_that_fails_is_made_again(void **state)
{
    static const fate list[] = {{"asset 3", SOFTMETAL_INNOCENT_VICTIM, 1, 0}};
    (void)state;
    assert_int_equal(run_with(list, LENGTH(list)), 0);
    assert_lost(0);
    assert_has(&complained, "asset 3: ");
    assert_int_equal(uploads, ASSETS + 1);
}

/* Frames 9 and 10 have been committed when the upload fails: their results are lost, whatever they hold. The upload of
   asset 4 stands behind that of asset 3, and takes the failure of the timeline: both are made again. */
static void test_frames_that_wait_for_an_upload_that_fails_are_lost(void **state)
{
    static const fate list[] = {{"asset 3", SOFTMETAL_PAGE_FAULT, 1, 7}};
    (void)state;
    independent = 8;
    assert_int_equal(run_with(list, LENGTH(list)), 1);
    assert_lost(2);
    assert_has(&complained, "asset 3: ");
    assert_int_equal(uploads, ASSETS + 2);
}

static void test_without_a_device_it_is_skipped(void **state)
{
    (void)state;
    softmetal_fail_creation(1, true);
    assert_int_equal(run_with(&none, 1), 77);
    assert_string_equal(complained.text, "skipped: Metal has no device\n");
}

#define story(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(test_all_goes_well),
        story(test_a_full_ring_does_not_make_a_frame_wait),
        story(test_a_frame_waits_on_the_gpu_for_its_asset),
        story(test_an_upload_does_not_wait_for_staging_memory),
        story(test_a_frame_that_fails_is_lost_alone),
        story(test_an_upload_that_fails_is_made_again),
        story(test_frames_that_wait_for_an_upload_that_fails_are_lost),
        story(test_without_a_device_it_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
