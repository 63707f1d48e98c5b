/* test_faults.c - one program with everything in it, in which each allocation, each object of Metal is missing once

   The program of `play` makes a device, queues and timelines, encodes, commits, submits, holds, fails, waits, has
   callbacks, and destroys all of it, on the manual clock. It runs again and again: the n-th allocation, or the n-th
   object of Metal, is not there, or none is from the n-th on, until n is more than there are. In one more run there is
   neither memory nor any object while what was accepted ends, and while all is destroyed.

   A call that refuses returns an error of its list and has changed nothing (S5, R16): no ticket is given or written, no
   object is made, and the same call succeeds once there is memory again. The calls that list no such error never
   refuse. In the end every ticket and timeline has the result of the run in which nothing was missing, every callback
   has run, and nothing is left. A failure is on record also where there was no memory for its text (R16). */
#include "kit.h"

typedef enum missing { NOTHING_IS, MEMORY_IS, OBJECTS_ARE, ALL_IS_AT_TIMES } missing;

static missing what;
static unsigned refused; /* calls */

/* Was it the fault that we made? From now on nothing is missing. */
static bool is_refusal(gpusync_result result, bool device)
{
    bool good =
        result == GPUSYNC_ERROR_OUT_OF_MEMORY ||
        (what == OBJECTS_ARE && (result == GPUSYNC_ERROR_METAL_NIL || (device && result == GPUSYNC_ERROR_NO_DEVICE)));
    if (!good || what == NOTHING_IS)
        return false;
    if (what == MEMORY_IS)
        assert_true(kit_now().refusals > 0);
    memory_fail(0, false);
    softmetal_fail_creation(0, false);
    refused++;
    return true;
}

/* From here on the program makes nothing, and what it gave is to end: there is no memory, and no object of Metal, if
   that is the run for it. What was accepted needs none (R16), nor does an end of an object (R22). */
static void drought(bool begins)
{
    if (what != ALL_IS_AT_TIMES)
        return;
    memory_fail(begins ? 1 : 0, begins);
    softmetal_fail_creation(begins ? 1 : 0, begins);
}

/* The call, once more if it is refused. */
#define TRY(call)                                                         \
    do {                                                                  \
        gpusync_result result_ = (call);                                  \
        if (is_refusal(result_, false))                                   \
            result_ = (call);                                             \
        assert_result_at(result_, GPUSYNC_OK, #call, __FILE__, __LINE__); \
    } while (0)

/* ... of a call that makes an object: NULL after a refusal. */
#define MAKE(call, out)                                                   \
    do {                                                                  \
        gpusync_result result_;                                           \
        (out) = (void *)&refused;                                         \
        result_ = (call);                                                 \
        if (is_refusal(result_, true)) {                                  \
            assert_null(out);                                             \
            result_ = (call);                                             \
        }                                                                 \
        assert_result_at(result_, GPUSYNC_OK, #call, __FILE__, __LINE__); \
    } while (0)

/* ... of a call that gives a ticket: S5, T14. */
#define ENTER(call, queue, ticket)                                        \
    do {                                                                  \
        uint64_t in_flight_ = gpusync_in_flight(queue);                   \
        gpusync_result result_;                                           \
        (ticket) = -7;                                                    \
        result_ = (call);                                                 \
        if (is_refusal(result_, false)) {                                 \
            assert_int_equal(ticket, -7);                                 \
            assert_int_equal(gpusync_in_flight(queue), in_flight_);       \
            result_ = (call);                                             \
        }                                                                 \
        assert_result_at(result_, GPUSYNC_OK, #call, __FILE__, __LINE__); \
        assert_true((ticket) > 0);                                        \
    } while (0)

static unsigned gone;

static void count_gone(void *user)
{
    (void)user;
    gone++;
}

static gpusync_queue *make_queue(gpusync_device *device, const char *label, bool sticky)
{
    gpusync_queue_desc desc = {.label = label, .sticky_failure = sticky, .max_command_buffer_count = 40};
    gpusync_queue *queue = NULL;
    MAKE(gpusync_queue_create(device, &desc, &queue), queue);
    return queue;
}

static gpusync_timeline *make_timeline(gpusync_device *device, bool others, bool order_only)
{
    gpusync_timeline_desc desc = {.label = "t", .signalled_by_others = others, .order_only = order_only};
    gpusync_timeline *timeline = NULL;
    MAKE(gpusync_timeline_create(device, &desc, &timeline), timeline);
    return timeline;
}

static void *make_buffer(gpusync_queue *queue)
{
    gpusync_command_buffer_desc desc = {.label = "buffer"};
    void *buffer = NULL;
    MAKE(gpusync_command_buffer_create(queue, &desc, 0, &buffer), buffer);
    return buffer;
}

/* The program's own call, which may get nil, too. */
static void *foreign_one(gpusync_queue *queue)
{
    void *buffer = metal_queue_command_buffer(gpusync_queue_metal(queue));
    if (buffer)
        return buffer;
    assert_true(is_refusal(GPUSYNC_ERROR_METAL_NIL, false));
    return foreign_buffer(queue);
}

static void finish_both(gpusync_queue *a, gpusync_queue *b)
{
    while (finish_next(a) || finish_next(b)) {}
}

static void play(stage *s)
{
    enum { MANY = 6, POINTS = 20 };
    gpusync_device_desc device_desc = {
        .hooks = &kit_hooks, .spin = &no_spin, .log = kit_log, .callback_mode = GPUSYNC_CALLBACKS_MANUAL};
    gpusync_device *device = NULL;
    gpusync_queue *a, *b;
    gpusync_timeline *t, *u, *o;
    void *buffer, *buffers[MANY], *witness;
    gpusync_point waits[MANY], signals[3], points[POINTS];
    gpusync_ticket held, many, host, bad, marker, last, inherits, cancelled;
    note of_many = {0}, of_ticket = {0}, of_value = {0}, of_bad = {0}, of_queue = {0}, of_timeline = {0};
    gpusync_submission submission;
    gpusync_error error;
    uint64_t cursor = 0, value = 0;
    size_t which = 0, count = 0;
    unsigned i;
    (void)s;

    /* Objects. */
    MAKE(gpusync_device_create(&device_desc, &device), device);
    a = make_queue(device, "a", false);
    b = make_queue(device, "b", false);
    t = make_timeline(device, false, false);
    u = make_timeline(device, true, false);
    o = make_timeline(device, false, true);

    /* Encoded points: held for t:1, which the host signals. */
    buffer = make_buffer(a);
    TRY(gpusync_encode_wait(a, buffer, at(t, 1)));
    TRY(gpusync_encode_signal(a, buffer, at(t, 2)));
    TRY(gpusync_encode_signal(a, buffer, at(o, 1)));
    ENTER(gpusync_commit(a, buffer, &held), a, held);

    /* A buffer made elsewhere is open from its first point on. */
    buffer = foreign_one(b);
    TRY(gpusync_encode_wait(b, buffer, ticket_at(a, held)));
    assert_ok(gpusync_command_buffer_discard(b, buffer));
    metal_release(buffer);

    /* More buffers and points than find room in the work itself. */
    memset(&submission, 0, sizeof submission);
    for (i = 0; i < MANY; i++)
        buffers[i] = make_buffer(b);
    for (i = 0; i < MANY; i++)
        waits[i] = i % 2 ? at(t, 2) : ticket_at(a, held);
    signals[0] = at(t, 3);
    signals[1] = at(o, 2);
    submission.waits = waits;
    submission.wait_count = MANY;
    submission.command_buffers = buffers;
    submission.command_buffer_count = MANY;
    submission.signals = signals;
    submission.signal_count = 2;
    submission.on_complete = remember;
    submission.user = &of_many;
    submission.label = "many";
    ENTER(gpusync_submit(b, &submission, &many), b, many);
    TRY(gpusync_on_done(ticket_at(b, many), remember, &of_ticket));
    TRY(gpusync_on_done(at(t, 3), remember, &of_value));
    gone = 0;
    witness = softmetal_new_witness(count_gone, NULL);
    TRY(gpusync_release_after(b, many, witness));
    metal_release(witness);

    /* HOST_SYNC, without a buffer, for a value of other code. */
    memset(&submission, 0, sizeof submission);
    waits[0] = at(u, 1);
    submission.waits = waits;
    submission.wait_count = 1;
    submission.flags = GPUSYNC_SUBMIT_HOST_SYNC | GPUSYNC_SUBMIT_UNORDERED;
    ENTER(gpusync_submit(a, &submission, &host), a, host);

    ENTER(gpusync_commit_marker(b, NULL, &marker), b, marker);

    /* Everything goes. */
    drought(true);
    signal_value(t, 1);
    finish_both(a, b);
    metal_event_signal(gpusync_timeline_metal(u, NULL), 1);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    assert_ok(gpusync_device_run_callbacks(device, SIZE_MAX, &count));
    assert_ok(gpusync_poll(a, held, NULL));
    assert_ok(gpusync_poll(b, many, NULL));
    assert_ok(gpusync_poll(a, host, NULL));
    assert_ok(gpusync_poll(b, marker, NULL));
    assert_int_equal(value_of(t), 3);
    assert_int_equal(value_of(o), 2);
    drought(false);
    for (i = 0; i < POINTS; i++)
        points[i] = i % 2 ? at(t, 1 + i % 3) : ticket_at(b, many);
    TRY(gpusync_wait_many(points, POINTS, GPUSYNC_WAIT_ALL, 0, NULL, &which));
    assert_int_equal(which, POINTS);
    assert_int_equal(gone, 1);
    assert_noted(&of_many, GPUSYNC_OK);
    assert_noted(&of_ticket, GPUSYNC_OK);
    assert_noted(&of_value, GPUSYNC_OK);

    /* A failure, what waits for it, what is cancelled. */
    buffer = make_buffer(a);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    TRY(gpusync_encode_signal(a, buffer, at(t, 4)));
    ENTER(gpusync_commit(a, buffer, &bad), a, bad);
    TRY(gpusync_on_done(ticket_at(a, bad), remember, &of_bad));
    buffer = make_buffer(b);
    TRY(gpusync_encode_wait(b, buffer, at(t, 4)));
    ENTER(gpusync_commit(b, buffer, &inherits), b, inherits);
    buffer = make_buffer(b);
    TRY(gpusync_encode_wait(b, buffer, at(o, 9)));
    TRY(gpusync_encode_signal(b, buffer, at(o, 10)));
    ENTER(gpusync_commit(b, buffer, &cancelled), b, cancelled);
    drought(true);
    assert_ok(gpusync_queue_cancel_held(b));
    finish_both(a, b);
    assert_ok(gpusync_device_run_callbacks(device, SIZE_MAX, &count));
    assert_result(gpusync_poll(a, bad, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(b, inherits, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(b, cancelled, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_noted(&of_bad, GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_timeline_query(t, &value), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(value, 3);
    assert_int_equal(value_of(o), 10);
    assert_ok(gpusync_queue_next_error(a, &cursor, &error));
    assert_int_equal(error.ticket, bad);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
    assert_true(error.ran);
    assert_int_equal(failures_of(b), 2);
    assert_result(gpusync_wait(a, GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    drought(false);

    /* The end: no call of these needs memory. */
    ENTER(gpusync_commit(a, make_buffer(a), &last), a, last);
    buffer = make_buffer(b); /* stays open */
    TRY(gpusync_encode_signal(b, buffer, at(o, 20)));
    drought(true);
    assert_ok(gpusync_queue_destroy_later(a, remember_destroyed, &of_queue));
    assert_ok(gpusync_timeline_destroy_later(t, remember_destroyed, &of_timeline));
    finish_both(a, b);
    assert_ok(gpusync_device_run_callbacks(device, SIZE_MAX, &count));
    assert_noted(&of_queue, GPUSYNC_OK);
    assert_noted(&of_timeline, GPUSYNC_OK);
    assert_ok(gpusync_queue_destroy(b));
    assert_ok(gpusync_timeline_destroy(u));
    assert_ok(gpusync_timeline_destroy(o));
    assert_ok(gpusync_device_destroy(device));
    drought(false);
}

/* The program of play, with the n-th missing. False: it was not so many. */
static bool play_without(missing kind, unsigned n, bool later)
{
    stage_desc desc = {.no_queue = true};
    stage s;
    bool was_missing;
    stage_open(&s, &desc);
    what = kind;
    if (kind == MEMORY_IS)
        memory_fail((long)n, later);
    if (kind == OBJECTS_ARE)
        softmetal_fail_creation(n, later);
    play(&s);
    was_missing = kind == MEMORY_IS ? kit_now().refusals > 0 : refused > 0 || softmetal_creations() >= n;
    memory_fail(0, false);
    softmetal_fail_creation(0, false);
    stage_close(&s);
    return was_missing;
}

static void play_without_each(missing kind, bool later)
{
    unsigned n;
    refused = 0;
    for (n = 1;; n++) {
        refused = 0;
        if (!play_without(kind, n, later))
            break;
    }
    print_message("%u of them\n", n - 1);
    assert_true(n > 15); /* there are devices, queues, timelines, work, callbacks */
}

static void test_S1_to_S8_a_program_with_all_there(void **state)
{
    (void)state;
    play_without(NOTHING_IS, 0, false);
    assert_int_equal(refused, 0);
}

static void test_S5_R16_each_block_of_memory_is_missing_once(void **state)
{
    (void)state;
    play_without_each(MEMORY_IS, false);
}

static void test_S5_R16_all_memory_is_missing_from_some_block_on(void **state)
{
    (void)state;
    play_without_each(MEMORY_IS, true);
}

static void test_S5_each_object_of_Metal_is_missing_once(void **state)
{
    (void)state;
    play_without_each(OBJECTS_ARE, false);
}

static void test_S5_all_objects_of_Metal_are_missing_from_some_on(void **state)
{
    (void)state;
    play_without_each(OBJECTS_ARE, true);
}

static void test_R16_R22_what_is_accepted_ends_without_memory(void **state)
{
    (void)state;
    play_without(ALL_IS_AT_TIMES, 0, false);
    assert_int_equal(refused, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_S1_to_S8_a_program_with_all_there),
        cmocka_unit_test(test_S5_R16_each_block_of_memory_is_missing_once),
        cmocka_unit_test(test_S5_R16_all_memory_is_missing_from_some_block_on),
        cmocka_unit_test(test_S5_each_object_of_Metal_is_missing_once),
        cmocka_unit_test(test_R16_R22_what_is_accepted_ends_without_memory),
        cmocka_unit_test(test_S5_all_objects_of_Metal_are_missing_from_some_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
