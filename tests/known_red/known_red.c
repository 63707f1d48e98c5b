/* known_red.c - defects that are known and not mended yet, one test each

   The rules
     A test says what would be right, through public calls and softmetal (probe.h where nothing else stops a thread at
     the place), in a situation that shows the defect every time: nothing rests on luck, nothing on a sleep.
     What is expected to fail stands in EXPECTED_RED, with the defect in a few words; around it, all else has to hold.
     So a test that is red for another reason, or crashes, is not taken for the known defect.
     A call that never returns is red as well: the program ends itself after LIMIT seconds.
     Each test has a process of its own: `known_red NAME` runs one, `known_red` lists them, tests/known_red.sh runs
     all of them at once, and fails when one of them is green.
     A test that is green is mended: move it to the suite, into the file of its chapter, with EXPECTED_RED taken off, in
     the commit that mends it. A defect that is found and cannot be mended at once gets its test here first.
   Numbers go on with those of test_interleavings.c and test_interleavings_of_submissions.c. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

/* Time passes when a test says so, besides its own pace. */
static uint64_t passed_ns;

#ifdef __APPLE__
static uint64_t hooked_clock(clockid_t id)
{
    return clock_gettime_nsec_np(id) + __atomic_load_n(&passed_ns, __ATOMIC_SEQ_CST);
}
#define clock_gettime_nsec_np hooked_clock
#else
static int hooked_clock(clockid_t id, struct timespec *now)
{
    int result = clock_gettime(id, now);
    uint64_t ns = (uint64_t)now->tv_nsec + __atomic_load_n(&passed_ns, __ATOMIC_SEQ_CST);
    now->tv_sec += (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return result;
}
#define clock_gettime hooked_clock
#endif

#define GPUSYNC_IMPLEMENTATION
#include "../probe.h"
#include "../stage.h"
#undef clock_gettime
#undef clock_gettime_nsec_np

/* -- what is expected ------------------------------------------------------------------------------------------- */

#define LIMIT 8u /* seconds */
enum { GREEN = 0, RED_ELSEWHERE = 1, NO_TEST = 2, RED = 10 }; /* how the program ends */

static const char *volatile expected; /* while that runs */

#define EXPECTED_RED(defect, statement)                                                                                \
    do {                                                                                                               \
        expected = (defect);                                                                                           \
        print_message("expected red: %s\n", defect);                                                                   \
        statement;                                                                                                     \
        expected = NULL;                                                                                               \
        print_message("green: %s\n", defect);                                                                          \
    } while (0)

static void say(const char *text) { (void)!write(STDOUT_FILENO, text, strlen(text)); }

static void end_by_the_limit(int number)
{
    const char *defect = expected;
    (void)number;
    say(defect ? "red as expected, a call does not return: " : "a call does not return");
    if (defect) say(defect);
    say("\n");
    _exit(defect ? RED : RED_ELSEWHERE);
}

/* == warnings in the log ========================================================================================== */

/* A park lasts until its deadline, which it passes by a nanosecond. What ends then counts before the timeout. */
static struct {
    rig r;
    gpusync_hooks hooks;
    unsigned warnings;     /* lines of the log */
    void (*at_deadline)(void); /* in the next park; NULL: nothing ends */
    void *buffer, *taken;
    int n;
} warned;

static void count_warning(void *user, gpusync_log_level level, const char *text)
{
    (void)user, (void)text;
    if (level == GPUSYNC_LOG_WARNING) COUNT(&warned.warnings);
}

static void park_to_the_deadline(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    void (*act)(void) = warned.at_deadline;
    uint64_t now = gpusync_now_ns();
    (void)user, (void)waiter;
    must(deadline_ns != GPUSYNC_FOREVER, "every wait here has a limit");
    if (deadline_ns >= now) passed_ns += deadline_ns - now + 1;
    warned.at_deadline = NULL;
    if (act) act();
}

static void wake_no_thread(void *user, gpusync_waiter *waiter) { (void)user, (void)waiter; }

static void open_warned(gpusync_report_fn report, gpusync_queue_desc queue_desc)
{
    gpusync_device_desc desc;
    memset(&warned, 0, sizeof warned);
    memset(&desc, 0, sizeof desc);
    warned.hooks.park = park_to_the_deadline;
    warned.hooks.unpark = wake_no_thread;
    desc.hooks = &warned.hooks;
    desc.spin = &no_spin;
    desc.log = count_warning;
    desc.log_report = report;
    rig_open_with(&warned.r, SOFTMETAL_MANUAL, desc, queue_desc);
}

static void finish_it(void) { softmetal_finish(warned.buffer); }

/* The wait goes on to the second queue when its time is over, and looks once. It had a limit, and timed out. */
static void test_a_wait_for_a_device_warns_where_one_queue_took_all_its_time(void **state)
{
    gpusync_queue *other;
    (void)state;
    open_warned(NULL, queue_desc_of(0, 0));
    other = queue_new(warned.r.device);
    commit_empty(&warned.r, &warned.buffer);
    (void)commit_empty_to(other, NULL);
    warned.at_deadline = finish_it;
    assert_result(gpusync_device_wait(warned.r.device, MS(5)), GPUSYNC_TIMEOUT);
    EXPECTED_RED("gpusync_device_wait times out on its second queue without a warning",
                 assert_int_equal(warned.warnings, 1));
    finish_queue(other);
    assert_ok(gpusync_queue_destroy(other));
    rig_close(&warned.r);
}

static void others_take_the_room(void *unused)
{
    const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    (void)unused;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &none;
    if (gpusync_command_buffer(warned.r.queue, &desc, &warned.taken) != GPUSYNC_OK) warned.taken = NULL;
}

static void room_comes_and_is_taken(void)
{
    probe_at_each(warned.n, others_take_the_room, NULL);
    assert_ok(gpusync_command_buffer_discard(warned.r.queue, warned.buffer));
}

/* Room comes at the deadline, and another thread takes it: the call asks once more, and its time is over. (A limit of 1 ms
   passes before the first wait, too, where the thread is not run for so long.) */
static void test_a_call_that_loses_its_room_at_the_deadline_warns(void **state)
{
    unsigned missing = 0, told = 0;
    bool acted = true;
    int n;
    (void)state;
    for (n = 1; acted; n++) {
        const uint64_t soon = MS(5);
        gpusync_command_buffer_desc desc;
        gpusync_queue_desc queue_desc = queue_desc_of(8, 0);
        gpusync_result result;
        void *buffer = NULL;
        queue_desc.max_in_flight = 1;
        open_warned(NULL, queue_desc);
        warned.n = n;
        warned.buffer = open_buffer(&warned.r);
        warned.at_deadline = room_comes_and_is_taken;
        memset(&desc, 0, sizeof desc);
        desc.timeout_ns = &soon;
        result = gpusync_command_buffer(warned.r.queue, &desc, &buffer);
        acted = probe_has_acted();
        if (result == GPUSYNC_OK) assert_int_equal(warned.warnings, 0);
        else if (warned.warnings) told++;
        else missing++;
        if (buffer) assert_ok(gpusync_command_buffer_discard(warned.r.queue, buffer));
        if (warned.taken) assert_ok(gpusync_command_buffer_discard(warned.r.queue, warned.taken));
        rig_close(&warned.r);
    }
    assert_true(told > 0);
    EXPECTED_RED("gpusync_command_buffer times out without a warning where others took its room at the deadline",
                 assert_int_equal(missing, 0));
}

/* 64 command buffers in flight with labels as long as they may be: 6,465 characters. */
static void test_the_lines_of_a_long_report_all_go_to_the_log(void **state)
{
    char label[64];
    int i;
    (void)state;
    open_warned(gpusync_queue_report, queue_desc_of(64, 0));
    memset(label, 'x', sizeof label - 1);
    label[sizeof label - 1] = '\0';
    for (i = 0; i < 64; i++) (void)commit_to(warned.r.queue, OPEN(warned.r.queue, .label = label));
    assert_result(gpusync_wait(warned.r.queue, 64, MS(5)), GPUSYNC_TIMEOUT);
    EXPECTED_RED("a report of more than 4,095 characters is cut in the log, in the middle of a line",
                 assert_int_equal(warned.warnings, 1 + 1 + 64)); /* the timeout, the queue, its tickets */
    finish_queue(warned.r.queue);
    rig_close(&warned.r);
}

/* gpusync_wait_many does, in the same situation. */
static void test_a_wait_through_a_loss_that_reaches_its_limit_warns(void **state)
{
    gpusync_wait_options options;
    (void)state;
    open_warned(NULL, queue_desc_of(0, 0));
    memset(&options, 0, sizeof options);
    options.through_loss = true;
    commit_empty(&warned.r, &warned.buffer);
    commit_empty(&warned.r, NULL);
    fail_with_the_device(warned.buffer);
    softmetal_finish(warned.buffer);
    assert_int_equal(warned.warnings, 0);
    assert_result(gpusync_wait_ex(warned.r.queue, 2, MS(5), &options), GPUSYNC_ERROR_DEVICE_LOST);
    EXPECTED_RED("gpusync_wait_ex reaches its limit on a lost device without a warning",
                 assert_int_equal(warned.warnings, 1));
    finish_queue(warned.r.queue);
    rig_close(&warned.r);
}

/* gpusync waits for such work one by one, on a thread of its own, which is at the first; no handler is to come. */
static void test_work_that_other_code_committed_has_no_handler_that_is_lost(void **state)
{
    gpusync_queue_desc queue_desc = queue_desc_of(8, 0);
    void *buffers[2];
    int i;
    (void)state;
    queue_desc.max_in_flight = 2;
    open_warned(NULL, queue_desc);
    for (i = 0; i < 2; i++) {
        buffers[i] = metal_queue_command_buffer(warned.r.metal_queue);
        metal_commit(buffers[i]);
        assert_ok(gpusync_track_committed(warned.r.queue, buffers[i], NULL));
    }
    assert_result(gpusync_throttle(warned.r.queue, 1, 0), GPUSYNC_TIMEOUT);
    softmetal_complete(buffers[1]);
    softmetal_fire_timer(); /* sees the end */
    passed_ns += MS(51);
    softmetal_fire_timer();
    EXPECTED_RED("the log is told of a lost handler of work that has none", assert_int_equal(warned.warnings, 0));
    finish_queue(warned.r.queue);
    for (i = 0; i < 2; i++) metal_release(buffers[i]);
    rig_close(&warned.r);
}

/* == a sweep while a thread sleeps ================================================================================== */

static struct {
    gpusync_timeline *timeline;
    unsigned parks, timers; /* timers: in the second park */
} hinted;

/* A hint takes the waiter off its list, and a sweep comes before the waiter is back on it: it finds no reason. */
static void park_and_be_hinted_at(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter, (void)deadline_ns;
    if (hinted.parks++ == 0) {
        must(gpusync_timeline_expect(hinted.timeline, 1) == GPUSYNC_OK, "others will signal it");
        must(softmetal_timers() == 1, "a sweep is on its way");
        softmetal_fire_timer();
        return;
    }
    hinted.timers = softmetal_timers();
    must(gpusync_timeline_signal(hinted.timeline, 1) == GPUSYNC_OK, "the value");
}

/* Without a sweep a listener that stays silent is a wait that never ends. */
static void test_a_thread_that_sleeps_on_after_a_hint_has_a_sweep(void **state)
{
    gpusync_hooks hooks = {NULL, park_and_be_hinted_at, wake_no_thread, NULL};
    rig r;
    (void)state;
    memset(&hinted, 0, sizeof hinted);
    rig_open_hooked(&r, SOFTMETAL_MANUAL, &hooks, 0);
    hinted.timeline = timeline_new(r.device);
    assert_ok(gpusync_timeline_wait(hinted.timeline, 1, GPUSYNC_FOREVER, NULL));
    assert_int_equal(hinted.parks, 2);
    EXPECTED_RED("a wait that lists itself again after a hint arms no sweep", assert_int_equal(hinted.timers, 1));
    assert_ok(gpusync_timeline_destroy(hinted.timeline));
    rig_close(&r);
}

/* == one of them ================================================================================================== */

static const struct CMUnitTest all[] = {
    cmocka_unit_test(test_a_wait_for_a_device_warns_where_one_queue_took_all_its_time),
    cmocka_unit_test(test_a_call_that_loses_its_room_at_the_deadline_warns),
    cmocka_unit_test(test_the_lines_of_a_long_report_all_go_to_the_log),
    cmocka_unit_test(test_a_wait_through_a_loss_that_reaches_its_limit_warns),
    cmocka_unit_test(test_work_that_other_code_committed_has_no_handler_that_is_lost),
    cmocka_unit_test(test_a_thread_that_sleeps_on_after_a_hint_has_a_sweep),
    {NULL, NULL, NULL, NULL, NULL}, /* ends the list */
};

static int run_one(const struct CMUnitTest *test)
{
    const struct CMUnitTest tests[] = {*test};
    int failed;
    signal(SIGALRM, end_by_the_limit);
    alarm(LIMIT);
    failed = cmocka_run_group_tests_name(test->name, tests, NULL, NULL);
    alarm(0);
    if (!failed) return GREEN;
    if (!expected) return RED_ELSEWHERE;
    print_message("red as expected: %s\n", expected);
    return RED;
}

int main(int argc, char **argv)
{
    int result = NO_TEST;
    size_t i;
    for (i = 0; all[i].name; i++) {
        if (argc < 2) puts(all[i].name);
        else if (strcmp(all[i].name, argv[1]) == 0) result = run_one(&all[i]);
    }
    fflush(NULL);
    _exit(argc < 2 ? GREEN : result); /* whatever a red test has left is left */
}
