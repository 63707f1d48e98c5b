/* test_example_quickstart.c - examples/quickstart.c: each row is true, and the bytes are there when a wait ends

   The example is compiled in here, with its implementation, and its main is run. Its work hangs until the wait for it
   sleeps, spins, or is blocked in Metal. So there is one way for each wait to end, and the table is known. */
#include "example_run.h"
#include <setjmp.h>

/* Its commits, in their order, and where each copies its byte to. */
enum { BEHIND_GATE = 1, DEFAULTS, SLEEP, SPIN_100_US, SPIN_LONG, HANDLERS, BLOCKING, SEVERAL, LAST = 15 };
enum { PLACES = 8, PLACE = 1 << 20, FILLS_OF_A_COMMIT = 64 };

static gpusync_device *its_device; /* of the program */
static const unsigned char *its_bytes;
static unsigned made;   /* commits so far: one behind the gate comes to Metal later */
static unsigned stuck;  /* this one hangs for good; 0: none */
static unsigned fills;  /* that it has encoded: one of 64 is enough here */
static unsigned errors; /* that it has read from the log */
static jmp_buf at_exit;

/* Work n writes the byte n, unless it fails. */
static void assert_bytes(unsigned commits)
{
    for (unsigned place = 0; place < PLACES; place++) {
        const unsigned char *bytes = its_bytes + (size_t)place * PLACE;
        unsigned n = commits;
        while (n > 0 && (n % PLACES != place || world.reasons[n])) n--;
        if (bytes[0] != n) fail_msg("place %u has %u, not %u", place, bytes[0], n);
        assert_int_equal(memcmp(bytes, bytes + 1, PLACE - 1), 0); /* each byte is as the one before it */
    }
}

/* -- how its waits end ------------------------------------------------------------------------------------------- */

static void *end_a_sleep(void *n)
{
    while (!GET(&world.buffers[*(const unsigned *)n])) sched_yield();
    await_sleepers(its_device, 1);
    let_go_on(*(const unsigned *)n);
    return NULL;
}

static void end_a_spin(void *user)
{
    (void)user;
    if (GET(&world.buffers[SPIN_LONG])) let_go_on(SPIN_LONG);
}

static void at_any_message(void *user, softmetal_phase phase, void *object, const char *selector)
{
    at_message(user, phase, object, selector);
    if (phase == SOFTMETAL_BEFORE && !strcmp(selector, "waitUntilCompleted") && GET(&world.buffers[BLOCKING]))
        let_go_on(BLOCKING);
}

static unsigned slept_for; /* the commit that ends when the wait sleeps; 0: none */
static pthread_t ender;

static uint64_t before_wait(uint64_t timeout_ns)
{
    /* A GPU that hangs does not hang the program, except in Metal's wait, which has no limit. */
    assert_true(made == BLOCKING ? timeout_ns == GPUSYNC_FOREVER : timeout_ns <= SECONDS(5));
    if (stuck == made) return 0;
    slept_for = timeout_ns > MS(1) && world.hangs[made] && made != SPIN_LONG && made != BLOCKING ? made : 0;
    if (slept_for) ender = start(end_a_sleep, &slept_for);
    return timeout_ns;
}

static gpusync_result after_wait(gpusync_result result)
{
    if (slept_for) join(ender), world.hangs[slept_for] = false;
    if (result != GPUSYNC_TIMEOUT) assert_bytes(made);
    return result;
}

static gpusync_result watched_wait_ex(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns,
                                      const gpusync_wait_options *options)
{
    gpusync_result result;
    timeout_ns = before_wait(timeout_ns);
    result = after_wait(gpusync_wait_ex(queue, ticket, timeout_ns, options));
    assert_int_equal(gpusync_wait(queue, ticket, 0), result); /* and each later wait returns the same */
    return result;
}

static gpusync_result watched_wait_many(const gpusync_point *points, size_t count, gpusync_wait_for how,
                                        uint64_t timeout_ns, const gpusync_wait_options *options, size_t *which)
{
    timeout_ns = before_wait(timeout_ns);
    return after_wait(gpusync_wait_many(points, count, how, timeout_ns, options, which));
}

static gpusync_result watched_queue_wait(gpusync_queue *queue, uint64_t timeout_ns)
{
    timeout_ns = before_wait(timeout_ns);
    return after_wait(gpusync_queue_wait(queue, timeout_ns));
}

static gpusync_result watched_device_wait(gpusync_device *device, uint64_t timeout_ns,
                                          const gpusync_wait_options *options)
{
    timeout_ns = before_wait(timeout_ns);
    return after_wait(gpusync_device_wait(device, timeout_ns, options));
}

/* -- what else it calls ------------------------------------------------------------------------------------------ */

static gpusync_result watched_device(const gpusync_device_desc *none, gpusync_device **out)
{
    static const gpusync_hooks hooks = {.yield = end_a_spin};
    gpusync_device_desc desc = {.hooks = &hooks};
    gpusync_result result = gpusync_device_create(&desc, out);
    assert_null(none);
    its_device = *out;
    return result;
}

/* A queue that was never used has nothing to wait for. */
static gpusync_result watched_queue(gpusync_device *device, const gpusync_queue_desc *desc, gpusync_queue **out)
{
    gpusync_result result = gpusync_queue_create(device, desc, out);
    gpusync_stats stats;
    if (result) return result;
    assert_true(gpusync_is_idle(*out));
    assert_true(gpusync_is_done(*out, GPUSYNC_NO_TICKET));
    assert_ok(gpusync_queue_wait(*out, GPUSYNC_FOREVER));
    assert_ok(gpusync_device_wait(device, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_device_get_stats(device, &stats));
    assert_int_equal(stats.waits_status + stats.waits_spin + stats.waits_sleep + stats.waits_unmet, 0);
    return GPUSYNC_OK;
}

static gpusync_result watched_commit(gpusync_queue *queue, void *buffer, gpusync_ticket *ticket)
{
    gpusync_result result;
    made++;
    result = gpusync_commit(queue, buffer, ticket);
    if (!result) assert_int_equal(*ticket, made);
    return result;
}

/* The work behind the gate has not run. */
static gpusync_result watched_signal(gpusync_timeline *timeline, uint64_t value)
{
    assert_bytes(0);
    return gpusync_timeline_signal(timeline, value);
}

static gpusync_result watched_error(gpusync_queue *queue, uint64_t *cursor, gpusync_error *error)
{
    gpusync_result result = gpusync_next_error(queue, cursor, error);
    if (result) return result;
    errors++;
    assert_int_equal(world.reasons[error->ticket], SOFTMETAL_OUT_OF_MEMORY);
    assert_int_equal(error->failure, GPUSYNC_FAILURE_OUT_OF_MEMORY);
    assert_string_equal(error->queue_label, "quickstart");
    return GPUSYNC_OK;
}

/* Every commit has ended before the queue goes. */
static gpusync_result watched_queue_end(gpusync_queue *queue)
{
    gpusync_stats stats = stats_of(queue);
    assert_int_equal(stats.commits, LAST);
    assert_int_equal(stats.completions, LAST);
    assert_int_equal(stats.failures, errors);
    return gpusync_queue_destroy(queue);
}

static void *watched_memory(void *device, size_t size)
{
    void *buffer = metal_buffer_new(device, size);
    if (buffer) its_bytes = (const unsigned char *)metal_contents(buffer); /* of the second */
    return buffer;
}

static void watched_fill(void *blit, void *buffer, size_t offset, size_t size, unsigned char value)
{
    if (++fills % FILLS_OF_A_COMMIT == 0) metal_fill(blit, buffer, offset, size, value);
}

static _Noreturn void leave(int status)
{
    assert_int_equal(status, 1);
    longjmp(at_exit, status);
}

#define gpusync_device_create watched_device
#define gpusync_queue_create watched_queue
#define gpusync_queue_destroy watched_queue_end
#define gpusync_commit watched_commit
#define gpusync_timeline_signal watched_signal
#define gpusync_next_error watched_error
#define gpusync_wait_ex watched_wait_ex
#define gpusync_wait_many watched_wait_many
#define gpusync_queue_wait watched_queue_wait
#define gpusync_device_wait watched_device_wait
#define metal_buffer_new watched_memory
#define metal_fill watched_fill
#define exit leave
#define gate its_gate
#define main example_main
#include "../examples/quickstart.c"
#undef gpusync_device_create
#undef gpusync_queue_create
#undef gpusync_queue_destroy
#undef gpusync_commit
#undef gpusync_timeline_signal
#undef gpusync_next_error
#undef gpusync_wait_ex
#undef gpusync_wait_many
#undef gpusync_queue_wait
#undef gpusync_device_wait
#undef metal_buffer_new
#undef metal_fill
#undef exit
#undef gate
#undef main
#include "example_end.h"

/* -- its runs ---------------------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    set_up_world(state);
    softmetal_set_message_hook(at_any_message, NULL);
    made = stuck = fills = errors = slept_for = 0;
    byte = 0;
    device = NULL, queue = NULL, its_gate = NULL, from = NULL, to = NULL;
    return 0;
}

/* Where the program leaves by exit, the test gives back what the end of a process would. */
static int run(void)
{
    void *pool = metal_pool_push();
    volatile int status = 1;
    if (setjmp(at_exit) == 0) {
        status = example_main();
    } else {
        gpusync_queue_destroy_now(queue);
        gpusync_timeline_destroy(its_gate);
        gpusync_device_destroy(device);
        metal_release(from);
        metal_release(to);
    }
    metal_pool_pop(pool);
    return status;
}

static void hang_all_but_several(void)
{
    for (unsigned n = BEHIND_GATE; n < SEVERAL; n++) world.hangs[n] = true;
    world.hangs[LAST] = true; /* and with it the end of all */
}

/* The table without its times and without the report. */
static const char *table_of(const char *text)
{
    static char table[sizeof said.text];
    static const char first[] = "---- gpusync_report ----\n", last[] = "------------------------\n";
    size_t used = 0;
    table[0] = 0;
    while (*text) {
        char *out = table + used;
        size_t left = sizeof table - used;
        const char *next = strchr(text, '\n') + 1, *call = strstr(text, " us  ");
        if (!strncmp(text, first, strlen(first))) next = strstr(text, last) + strlen(last);
        else if (call && call < next)
            used += (size_t)snprintf(out, left, "%.25s%.*s", text, (int)(next - call) - 3, call + 3);
        else used += (size_t)snprintf(out, left, "%.*s", (int)(next - text), text);
        text = next;
    }
    return table;
}

static void assert_table(const char *expected)
{
    const char *table = table_of(said.text);
    size_t same = 0;
    while (table[same] && table[same] == expected[same]) same++;
    if (table[same] || expected[same]) fail_msg("here it is another: %s\n%s", table + same, complained.text);
}

#define HEAD "  answer           end         time     call\n"
#define IN_FLIGHT                                                                                \
    "work in flight\n"                                                                           \
    "  no               -       gpusync_is_idle(queue)\n"                                        \
    "  no               -       gpusync_is_done(queue, ticket)\n"                                \
    "  yes              -       gpusync_in_flight(queue) == 1\n"                                 \
    "  NOT_READY        -       gpusync_poll(queue, ticket)\n"                                   \
    "  TIMEOUT          unmet   gpusync_wait(queue, ticket, 0)\n"                                \
    "  TIMEOUT          unmet   gpusync_wait(queue, ticket, one_ms)\n"                           \
    "  TIMEOUT          unmet   gpusync_queue_wait(queue, one_ms)\n"                             \
    "  TIMEOUT          unmet   gpusync_device_wait(device, one_ms, NULL)\n"                     \
    "  TIMEOUT          unmet   gpusync_timeline_wait(gate, 1, one_ms, NULL)\n"                  \
    "  TIMEOUT          unmet   gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, one_ms, NULL, NULL)\n" \
    "  OK               sleep   gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, limit, NULL, NULL)\n"
#define EACH_WAY(sleep)                                                                        \
    "each way to wait, new work for each\n"                                                      \
    "  OK               sleep   gpusync_wait_ex(queue, ticket, limit, &defaults)\n" sleep       \
    "  OK               sleep   gpusync_wait_ex(queue, ticket, limit, &spin_100_us)\n"            \
    "  OK               spin    gpusync_wait_ex(queue, ticket, limit, &spin_long)\n"                  \
    "  OK               sleep   gpusync_wait_ex(queue, ticket, limit, &handlers)\n"              \
    "  OK               sleep   gpusync_wait_ex(queue, ticket, GPUSYNC_FOREVER, &blocking)\n"    \
    "8 command buffers at once\n"
#define SLEEP_ENDS "  OK               sleep   gpusync_wait_ex(queue, ticket, limit, &sleep_at_once)\n"
#define SLEEP_FAILS "  ERROR_EXECUTION  sleep   gpusync_wait_ex(queue, ticket, limit, &sleep_at_once)\n"
#define AT_REST                                                                                  \
    "  OK               -       gpusync_queue_wait(queue, limit)\n"                              \
    "  OK               -       gpusync_device_wait(device, limit, NULL)\n"                      \
    "  yes              -       gpusync_is_idle(queue)\n"

/* -- the tests --------------------------------------------------------------------------------------------------- */

static void test_each_row_says_what_ended_its_wait(void **state)
{
    (void)state;
    hang_all_but_several();
    assert_int_equal(run(), 0);
    assert_table(HEAD IN_FLIGHT EACH_WAY(SLEEP_ENDS)
                 "  OK               sleep   gpusync_queue_wait(queue, limit)\n"
                 "  OK               -       gpusync_poll(queue, ticket)\n" AT_REST);
    assert_string_equal(complained.text, "");
    assert_int_equal(made, LAST);
}

static void test_the_report_names_the_work_behind_the_gate(void **state)
{
    static const char *const lines[] = {"queue 1 'quickstart': committed 1, completed 0, failed 0",
                                        "ticket 1 'behind the gate': held", "waits for value 1 of timeline 1"};
    char *report, *end;
    (void)state;
    assert_int_equal(run(), 0);
    report = strstr(said.text, "---- gpusync_report ----\n"), end = strstr(said.text, "\n------------------------\n");
    assert_true(report && end);
    *end = 0;
    assert_null(strstr(report, ", idle"));
    for (size_t i = 0; i < LENGTH(lines); i++) {
        char *line = strstr(report, lines[i]);
        if (!line) fail_msg("the report has no: %s\n%s", lines[i], report);
        report = line;
    }
}

/* A failure shows in its own row, in the next wait for everything, once, and at the end. The work did not run. */
static void test_failures_show_in_their_rows_and_at_the_end(void **state)
{
    (void)state;
    hang_all_but_several();
    world.reasons[SLEEP] = world.reasons[LAST] = SOFTMETAL_OUT_OF_MEMORY;
    assert_int_equal(run(), 1);
    assert_table(HEAD IN_FLIGHT EACH_WAY(SLEEP_FAILS)
                 "  ERROR_EXECUTION  sleep   gpusync_queue_wait(queue, limit)\n"
                 "  ERROR_EXECUTION  -       gpusync_poll(queue, ticket)\n" AT_REST
                 "each way: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n"
                 "one of several: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n");
    assert_string_equal(complained.text, "");
    assert_int_equal(errors, 2);
}

static void test_a_gpu_that_hangs_ends_the_program(void **state)
{
    (void)state;
    stuck = LAST;
    world.hangs[LAST] = true;
    assert_int_equal(run(), 1);
    assert_has(&said, "gpusync_queue_wait(queue, limit)\n  NOT_READY ");
    assert_string_equal(complained.text,
                        "gpusync_queue_wait(queue, limit): the time limit passed first; the work goes on\n");
}

/* Whatever Metal does not make: the program names the call, or works without it. */
static void test_what_metal_does_not_make_is_named(void **state)
{
    unsigned n = 0, creations, named = 0;
    int status;
    do {
        set_up(state);
        softmetal_fail_creation(++n, false);
        status = run();
        creations = softmetal_creations();
        assert_in_range(status, 0, 1);
        assert_int_equal(*complained.text != 0, status);
        named += (unsigned)status;
        tear_down_world(state);
    } while (creations >= n);
    assert_true(named > 2 * LAST);
}

static void test_without_a_device_it_is_skipped(void **state)
{
    (void)state;
    softmetal_fail_creation(1, true);
    assert_int_equal(run(), 77);
    assert_string_equal(said.text, "");
    assert_string_equal(complained.text, "skipped: Metal has no device\n");
}

#define story(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(test_each_row_says_what_ended_its_wait),
        story(test_the_report_names_the_work_behind_the_gate),
        story(test_failures_show_in_their_rows_and_at_the_end),
        story(test_a_gpu_that_hangs_ends_the_program),
        cmocka_unit_test(test_what_metal_does_not_make_is_named),
        story(test_without_a_device_it_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
