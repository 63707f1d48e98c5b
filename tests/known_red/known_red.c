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
   Numbers go on with those of test_interleavings.c and test_submit_interleavings.c. */
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
#include "../scene.h"
#undef clock_gettime
#undef clock_gettime_nsec_np

#define GET(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define PUT(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)
#define COUNT(p) __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST)

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

/* == what goes while it is needed ================================================================================ */

/* -- events that the device is not through with ------------------------------------------------------------------- */

typedef struct outlived {
    rig r;
    gpusync_queue *other;
    void *metal, *metal_other; /* +1 */
} outlived;

static void outlived_open(outlived *o)
{
    rig_open(&o->r, SOFTMETAL_MANUAL);
    o->other = queue_new(&o->r);
    o->metal = metal_retain(o->r.metal_queue);
    o->metal_other = metal_retain(gpusync_queue_metal(o->other));
}

/* A command buffer that keeps nothing alive by itself, with this wait at its head, if any; +1. */
static void *unretained_buffer(gpusync_queue *queue, const gpusync_point *wait)
{
    gpusync_command_buffer_desc desc;
    void *buffer;
    memset(&desc, 0, sizeof desc);
    desc.unretained_references = true;
    assert_ok(make_behind(queue, &desc, wait, wait != NULL, &buffer));
    return metal_retain(buffer);
}

static void all_goes_now(outlived *o, gpusync_timeline *timeline)
{
    assert_ok(gpusync_queue_destroy_now(o->r.queue));
    assert_ok(gpusync_queue_destroy_now(o->other));
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_device_destroy(o->r.device));
}

/* Some owner besides the test. */
static void assert_kept(void *event) { assert_true(softmetal_retain_count(event) > 1); }

static void outlived_close(outlived *o, void *buffer, void *event)
{
    softmetal_finish_queue(o->metal_other);
    softmetal_finish_queue(o->metal);
    metal_release(buffer);
    metal_release(event);
    metal_release(o->metal);
    metal_release(o->metal_other);
}

static void test_an_event_stays_for_work_that_waits_for_its_value(void **state)
{
    gpusync_timeline *timeline;
    gpusync_point wait;
    void *signalling, *waiting, *event;
    outlived o;
    (void)state;
    outlived_open(&o);
    timeline = timeline_new(&o.r);
    event = metal_retain(gpusync_timeline_metal(timeline, NULL));
    wait = gpusync_at_value(timeline, 1);
    signalling = buffer_of(o.other);
    (void)SUBMIT(o.other, .buffer = signalling, .signal = wait, .flags = SIGNALS_INSIDE);
    waiting = unretained_buffer(o.r.queue, &wait);
    (void)commit_to(o.r.queue, waiting);
    assert_int_equal(metal_status(waiting), 2);
    all_goes_now(&o, timeline);
    softmetal_finish(signalling); /* which had kept the event */
    metal_release(signalling);
    EXPECTED_RED("an event goes while the device still waits for it", assert_kept(event));
    outlived_close(&o, waiting, event);
}

static void test_an_event_stays_for_work_that_signals_it(void **state)
{
    gpusync_timeline *timeline;
    void *signalling, *event;
    outlived o;
    (void)state;
    outlived_open(&o);
    timeline = timeline_new(&o.r);
    event = metal_retain(gpusync_timeline_metal(timeline, NULL));
    signalling = unretained_buffer(o.r.queue, NULL);
    (void)SUBMIT(o.r.queue, .buffer = signalling, .signal = gpusync_at_value(timeline, 1), .flags = SIGNALS_INSIDE);
    all_goes_now(&o, timeline);
    EXPECTED_RED("an event goes before the device has signalled it", assert_kept(event));
    outlived_close(&o, signalling, event);
}

static void keep_the_event(void *user, softmetal_phase phase, void *object, const char *selector)
{
    void **event = (void **)user;
    if (phase == SOFTMETAL_AFTER && !*event && strcmp(selector, "signaledValue") == 0) *event = metal_retain(object);
}

static void test_an_event_stays_for_work_that_waits_for_a_ticket(void **state)
{
    gpusync_timeline *timeline;
    gpusync_point wait;
    void *before, *waiting, *event = NULL;
    outlived o;
    (void)state;
    outlived_open(&o);
    assert_ok(gpusync_timeline_destroy(timeline_new(&o.r))); /* leaves its event: it will stand for the ticket */
    before = buffer_of(o.other);
    wait = gpusync_at_ticket(o.other, commit_to(o.other, before));
    softmetal_set_message_hook(keep_the_event, &event);
    waiting = unretained_buffer(o.r.queue, &wait);
    softmetal_set_message_hook(NULL, NULL);
    assert_non_null(event);
    (void)commit_to(o.r.queue, waiting);
    assert_int_equal(metal_status(waiting), 2);
    timeline = timeline_new(&o.r);
    all_goes_now(&o, timeline);
    EXPECTED_RED("an event goes while the device still waits for the ticket that it stands for", assert_kept(event));
    metal_release(before);
    outlived_close(&o, waiting, event);
}

/* == one of them ================================================================================================== */

static const struct CMUnitTest all[] = {
    cmocka_unit_test(test_an_event_stays_for_work_that_waits_for_its_value),
    cmocka_unit_test(test_an_event_stays_for_work_that_signals_it),
    cmocka_unit_test(test_an_event_stays_for_work_that_waits_for_a_ticket),
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
    for (i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (argc < 2) puts(all[i].name);
        else if (strcmp(all[i].name, argv[1]) == 0) result = run_one(&all[i]);
    }
    fflush(NULL);
    _exit(argc < 2 ? GREEN : result); /* whatever a red test has left is left */
}
