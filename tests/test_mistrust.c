/* test_mistrust.c - what readers who trusted nothing have found, one test for each, so that it stays mended */
#define GPUSYNC_IMPLEMENTATION
#include "probe.h"
#include "stage.h"

static void open_rig(rig *r, softmetal_clock clock, const gpusync_hooks *hooks, gpusync_queue_desc queue_desc)
{
    static const gpusync_spin none = {0, 0, 0};
    gpusync_device_desc device_desc;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.hooks = hooks;
    device_desc.spin = &none;
    rig_open_with(r, clock, device_desc, queue_desc);
}

static gpusync_queue_desc queue_of(uint32_t limit, uint32_t log_count)
{
    gpusync_queue_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.max_command_buffer_count = limit;
    desc.error_log_count = log_count;
    return desc;
}

/* -- an untracked buffer that is committed after all, while somebody looks at it ------------------------ */

static struct {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffer;
} broken_vow;

static void break_vow(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_BEFORE || object != broken_vow.buffer || strcmp(selector, "status") != 0) return;
    broken_vow.buffer = NULL;
    assert_ok(gpusync_untrack(broken_vow.queue, broken_vow.ticket));
    metal_commit(object);
    softmetal_finish(object);
}

static void test_the_handler_of_an_untracked_buffer_drops_nobody_elses_hold(void **state)
{
    void *buffer;
    rig r;
    (void)state;
    if (!softmetal_sees_messages()) skip();
    open_rig(&r, SOFTMETAL_MANUAL, NULL, queue_of(0, 0));
    buffer = metal_queue_command_buffer(r.metal_queue);
    assert_ok(gpusync_track(r.queue, buffer, &broken_vow.ticket));
    broken_vow.queue = r.queue;
    broken_vow.buffer = buffer;
    softmetal_set_message_hook(break_vow, NULL);
    assert_result(gpusync_poll(r.queue, broken_vow.ticket), GPUSYNC_ERROR_CANCELLED);
    softmetal_set_message_hook(NULL, NULL);
    metal_release(buffer);
    commit_empty(&r, &buffer); /* the slot serves again, and for this one only */
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    rig_close(&r);
}

/* -- a park hook that never sleeps --------------------------------------------------------------------- */

static void *to_complete;

static void park_not_at_all(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    void *buffer = __atomic_exchange_n(&to_complete, NULL, __ATOMIC_SEQ_CST);
    (void)user;
    (void)waiter;
    (void)deadline_ns;
    if (buffer) softmetal_complete(buffer); /* and no handler */
    else if (softmetal_timers()) softmetal_fire_timer();
    sched_yield();
}

static void unpark_nobody(void *user, gpusync_waiter *waiter)
{
    (void)user;
    (void)waiter;
}

static void test_a_park_that_returns_early_does_not_put_off_the_look_at_the_status(void **state)
{
    gpusync_hooks hooks = {NULL, park_not_at_all, unpark_nobody, NULL};
    gpusync_ticket ticket;
    uint64_t begin;
    void *buffer;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &hooks, queue_of(0, 0));
    ticket = commit_empty(&r, &buffer);
    begin = gpusync_now_ns();
    to_complete = buffer;
    assert_ok(gpusync_wait(r.queue, ticket, SECONDS(30)));
    assert_true(gpusync_now_ns() - begin < SECONDS(10)); /* some 50 ms, on a quiet machine */
    softmetal_finish(buffer);
    rig_close(&r);
}

/* -- ends that never stop, and hints for many --------------------------------------------------------------- */

static rig *disturbed;

/* Other work of the queue ends. */
static void end_something_else(rig *r)
{
    void *foreign = metal_queue_command_buffer(r->metal_queue);
    gpusync_ticket ticket;
    metal_commit(foreign);
    assert_ok(gpusync_track_committed(r->queue, foreign, &ticket));
    softmetal_finish(foreign);
    assert_true(softmetal_dispatched(SECONDS(20)));
    metal_release(foreign);
}

static void park_and_be_disturbed(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    park_not_at_all(user, waiter, deadline_ns);
    end_something_else(disturbed);
}

static void test_other_ends_do_not_put_off_the_look_at_the_status(void **state)
{
    gpusync_hooks hooks = {NULL, park_and_be_disturbed, unpark_nobody, NULL};
    gpusync_ticket ticket;
    uint64_t begin;
    void *buffer;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &hooks, queue_of(0, 0));
    disturbed = &r;
    ticket = commit_empty(&r, &buffer);
    begin = gpusync_now_ns();
    to_complete = buffer; /* at the first park, and no handler comes */
    assert_ok(gpusync_wait(r.queue, ticket, SECONDS(30)));
    assert_true(gpusync_now_ns() - begin < SECONDS(10));
    softmetal_finish(buffer);
    rig_close(&r);
}

#define SLEEPERS 40
static gpusync_waiter *woken[4 * SLEEPERS];
static unsigned woken_count;
static gpusync_device *hinted;
static bool hints_are_over;

static void park_by_default(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    (void)deadline_ns;
    thread_park(waiter, GPUSYNC_FOREVER); /* only an unpark ends it */
}

static void unpark_and_note(void *user, gpusync_waiter *waiter)
{
    unsigned n = __atomic_fetch_add(&woken_count, 1, __ATOMIC_SEQ_CST);
    unsigned listed = sleepers_of(hinted);
    (void)user;
    if (n < 4 * SLEEPERS) woken[n] = waiter;
    thread_unpark(waiter);
    /* let it list itself again, before the hint goes on to the next */
    while (!__atomic_load_n(&hints_are_over, __ATOMIC_SEQ_CST) && sleepers_of(hinted) == listed) sched_yield();
}

static void *wait_for_one(void *timeline)
{
    assert_ok(gpusync_timeline_wait((gpusync_timeline *)timeline, 1, GPUSYNC_FOREVER, NULL));
    return NULL;
}

/* Who sleeps for a value has not asked the event's listener; from gpusync_timeline_expect on it has to. */
static void test_a_hint_reaches_every_one_of_many_sleepers(void **state)
{
    gpusync_hooks hooks = {NULL, park_by_default, unpark_and_note, NULL};
    pthread_t sleepers[SLEEPERS];
    gpusync_timeline *timeline;
    unsigned i, k, distinct = 0, noted;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &hooks, queue_of(0, 0));
    assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
    hinted = r.device;
    hints_are_over = false;
    for (i = 0; i < SLEEPERS; i++) sleepers[i] = start(wait_for_one, timeline);
    await_sleepers(r.device, SLEEPERS);
    woken_count = 0;
    assert_ok(gpusync_timeline_expect(timeline, 1));
    noted = __atomic_load_n(&woken_count, __ATOMIC_SEQ_CST);
    for (i = 0; i < noted; i++) {
        for (k = 0; k < i && woken[k] != woken[i];) k++;
        if (k == i) distinct++;
    }
    assert_int_equal(distinct, SLEEPERS);
    await_sleepers(r.device, SLEEPERS);
    __atomic_store_n(&hints_are_over, true, __ATOMIC_SEQ_CST);
    assert_ok(gpusync_timeline_signal(timeline, 1));
    for (i = 0; i < SLEEPERS; i++) join(sleepers[i]);
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

/* -- a wait for the device and a queue that goes ------------------------------------------------------- */

static void *device_wait_body(void *argument)
{
    rig *r = (rig *)argument;
    assert_ok(gpusync_device_wait(r->device, GPUSYNC_FOREVER));
    return NULL;
}

static void test_a_wait_for_the_device_keeps_no_other_queue_from_being_destroyed(void **state)
{
    gpusync_queue *other;
    pthread_t thread;
    void *buffer;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL, queue_of(0, 0));
    other = queue_new(r.device);
    commit_empty(&r, &buffer);
    thread = start(device_wait_body, &r);
    await_sleepers(r.device, 1);
    assert_ok(gpusync_queue_destroy(other)); /* hangs when the waiter is inside of it */
    softmetal_finish(buffer);
    join(thread);
    rig_close(&r);
}

/* -- handlers that never come -------------------------------------------------------------------------- */

static void test_a_lost_handler_does_not_cost_its_room(void **state)
{
    const uint64_t limit_ns = SECONDS(30);
    gpusync_command_buffer_desc desc;
    gpusync_ticket ticket;
    int i;
    rig r;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &limit_ns;
    open_rig(&r, SOFTMETAL_REAL, NULL, queue_of(1, 0));
    for (i = 0; i < 3; i++) {
        void *buffer = NULL;
        assert_ok(gpusync_command_buffer(r.queue, &desc, &buffer));
        softmetal_lose_handlers(buffer);
        assert_ok(gpusync_commit(r.queue, buffer, &ticket));
        assert_ok(gpusync_wait(r.queue, ticket, SECONDS(30)));
    }
    rig_close(&r);
}

static void lose_handlers_at_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase == SOFTMETAL_BEFORE && strcmp(selector, "commit") == 0) softmetal_lose_handlers(object);
}

static void test_work_committed_elsewhere_gives_its_room_back(void **state)
{
    const uint64_t limit_ns = SECONDS(30);
    gpusync_command_buffer_desc desc;
    gpusync_ticket ticket;
    void *buffer, *buffers[2];
    int i;
    rig r;
    (void)state;
    if (!softmetal_sees_messages()) skip();
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &limit_ns;
    open_rig(&r, SOFTMETAL_REAL, NULL, queue_of(2, 0));
    softmetal_set_message_hook(lose_handlers_at_commit, NULL);
    for (i = 0; i < 3; i++) {
        buffer = metal_queue_command_buffer(r.metal_queue);
        softmetal_set_duration(buffer, MS(2));
        metal_commit(buffer);
        assert_ok(gpusync_track_committed(r.queue, buffer, &ticket));
        assert_ok(gpusync_wait(r.queue, ticket, SECONDS(30)));
        metal_release(buffer);
    }
    softmetal_set_message_hook(NULL, NULL);
    assert_ok(gpusync_command_buffer(r.queue, &desc, &buffers[0])); /* all the room that there is */
    assert_ok(gpusync_command_buffer(r.queue, &desc, &buffers[1]));
    for (i = 0; i < 2; i++) assert_ok(gpusync_command_buffer_discard(r.queue, buffers[i]));
    rig_close(&r);
}

/* -- results -------------------------------------------------------------------------------------------- */

static gpusync_ticket track_one(rig *r, void **buffer)
{
    gpusync_ticket ticket;
    *buffer = metal_queue_command_buffer(r->metal_queue);
    assert_ok(gpusync_track(r->queue, *buffer, &ticket));
    return ticket;
}

static void test_dropped_records_of_cancelled_tickets_say_nothing_about_others(void **state)
{
    gpusync_ticket ticket;
    void *buffer, *never;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL, queue_of(0, 1));
    ticket = track_one(&r, &buffer);
    for (i = 0; i < 3; i++) {
        assert_ok(gpusync_untrack(r.queue, track_one(&r, &never)));
        metal_release(never);
    }
    metal_commit(buffer);
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(r.queue, ticket, 0));
    assert_ok(gpusync_queue_wait(r.queue, 0));
    metal_release(buffer);
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
    gpusync_queue_desc queue_desc = queue_of(0, 0);
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

/* -- a log hook that asks, and a sentinel that knows ------------------------------------------------------ */

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
    gpusync_queue_desc queue_desc = queue_of(0, 0);
    void *buffers[40];
    int i;
    rig r;
    (void)state;
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

static void test_work_committed_elsewhere_that_failed_tells_that_the_device_is_lost(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL, queue_of(0, 0));
    buffer = metal_queue_command_buffer(r.metal_queue);
    softmetal_fail(buffer, NULL, 4, NULL);
    metal_commit(buffer);
    assert_ok(gpusync_track_committed(r.queue, buffer, &ticket));
    softmetal_finish(buffer);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_true(gpusync_device_is_lost(r.device));
    assert_int_equal(stats_of(r.queue).failures, 1);
    assert_result(gpusync_wait(r.queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    metal_release(buffer);
    rig_close(&r);
}

/* -- memory --------------------------------------------------------------------------------------------- */

static void test_destroy_now_gives_back_the_slots_of_buffers_that_are_never_committed(void **state)
{
    long taken = 0;
    int i;
    (void)state;
    for (i = 0; i < 400; i++) {
        void *buffer;
        rig r;
        open_rig(&r, SOFTMETAL_MANUAL, NULL, queue_of(0, 0));
        track_one(&r, &buffer);
        assert_ok(gpusync_queue_destroy_now(r.queue));
        r.queue = NULL;
        metal_release(buffer);
        rig_close(&r);
        if (i == 10) taken = probe_memory.taken;
    }
    assert_int_equal(probe_memory.taken, taken);
}

/* -- memory order (seen by ThreadSanitizer) -------------------------------------------------------------- */

static struct {
    gpusync_queue *queue;
    gpusync_ticket ticket;
} to_poll;
static int data;

static void *find_the_end(void *argument)
{
    data = 42;
    while (gpusync_poll(to_poll.queue, to_poll.ticket) == GPUSYNC_NOT_READY) sched_yield();
    return argument;
}

static void test_is_idle_orders_what_was_done_before_tracked_work_was_found_to_have_ended(void **state)
{
    pthread_t thread;
    void *buffer;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL, queue_of(1, 0));
    softmetal_set_dispatch_threads(0); /* only the poll finds the end */
    buffer = metal_queue_command_buffer(r.metal_queue);
    metal_commit(buffer);
    to_poll.queue = r.queue;
    assert_ok(gpusync_track_committed(r.queue, buffer, &to_poll.ticket));
    softmetal_complete(buffer);
    thread = start(find_the_end, NULL);
    while (!gpusync_is_idle(r.queue)) sched_yield();
    assert_int_equal(data, 42);
    join(thread);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    softmetal_finish(buffer);
    metal_release(buffer);
    rig_close(&r);
}

/* -- spinning by time alone ------------------------------------------------------------------------------ */

static void test_a_spin_budget_may_be_a_time_alone(void **state)
{
    gpusync_wait_options options;
    gpusync_spin spin = {0, 0, 0};
    gpusync_ticket ticket;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_REAL, NULL, queue_of(0, 0));
    memset(&options, 0, sizeof options);
    spin.max_spin_ns = SECONDS(30);
    options.spin = &spin;
    ticket = commit_lasting(&r, MS(2));
    assert_ok(gpusync_wait_ex(r.queue, ticket, GPUSYNC_FOREVER, &options));
    assert_int_equal(stats_of(r.queue).waits_sleep, 0);
    ticket = commit_lasting(&r, MS(20));
    spin.max_spin_ns = MS(1);
    assert_ok(gpusync_wait_ex(r.queue, ticket, GPUSYNC_FOREVER, &options));
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    rig_close(&r);
}

/* -- a wait for all, and a timeline that fails while it spins -------------------------------------------- */

static void *fail_at_the_gate(void *argument)
{
    void **timeline_and_gate = (void **)argument;
    gate_wait((gate *)timeline_and_gate[1]);
    assert_ok(gpusync_timeline_fail((gpusync_timeline *)timeline_and_gate[0], NULL));
    return NULL;
}

static void test_a_wait_for_all_sees_a_failure_in_the_middle_of_its_spin(void **state)
{
    gpusync_point points[3];
    gate together;
    rig r;
    unsigned round;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    memset(points, 0, sizeof points);
    gate_init(&together, 2);
    for (round = 0; round < 300; round++) {
        gpusync_timeline *timeline;
        void *argument[2];
        pthread_t thread;
        size_t which;
        assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
        points[0].queue = r.queue; /* reached, around one that is not */
        points[0].ticket = GPUSYNC_NO_TICKET;
        points[1].timeline = timeline;
        points[1].value = 1;
        points[2] = points[0];
        argument[0] = timeline;
        argument[1] = &together;
        thread = start(fail_at_the_gate, argument);
        gate_wait(&together);
        assert_result(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ALL, SECONDS(20), NULL, &which),
                      GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(which, 1);
        join(thread);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
    gate_destroy(&together);
    rig_close(&r);
}

/* -- a reason whose texts have no end --------------------------------------------------------------------- */

static void test_a_reason_for_failure_is_cut_to_fit(void **state)
{
    gpusync_timeline *timeline;
    gpusync_wait_options options;
    gpusync_error reason, told;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
    memset(&reason, 'x', sizeof reason);
    reason.result = (gpusync_result)-9999; /* nor is this one of ours */
    reason.failure = GPUSYNC_FAILURE_OTHER;
    assert_ok(gpusync_timeline_fail(timeline, &reason));
    memset(&options, 0, sizeof options);
    options.error = &told;
    assert_result(gpusync_timeline_wait(timeline, 1, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(strlen(told.domain), sizeof told.domain - 1);
    assert_int_equal(strlen(told.message), sizeof told.message - 1);
    assert_int_equal(strlen(told.label), sizeof told.label - 1);
    assert_int_equal(strlen(told.queue_label), sizeof told.queue_label - 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

/* -- work that others gave up ------------------------------------------------------------------------------ */

static void test_a_queue_tells_of_work_that_was_lost_with_another_queue(void **state)
{
    gpusync_submission first, second;
    gpusync_point wait, signal;
    gpusync_timeline *timeline;
    gpusync_queue *other;
    gpusync_error error;
    uint64_t cursor = 0;
    rig r;
    (void)state;
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
    assert_ok(gpusync_queue_wait(other, 0)); /* whoever cancelled knows */
    assert_result(gpusync_wait(r.queue, 1, 0), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(stats_of(r.queue).failures, 1);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_int_equal(error.dropped, 0);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_queue_destroy(other));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_handler_of_an_untracked_buffer_drops_nobody_elses_hold),
        cmocka_unit_test(test_a_park_that_returns_early_does_not_put_off_the_look_at_the_status),
        cmocka_unit_test(test_other_ends_do_not_put_off_the_look_at_the_status),
        cmocka_unit_test(test_a_hint_reaches_every_one_of_many_sleepers),
        cmocka_unit_test(test_a_wait_for_the_device_keeps_no_other_queue_from_being_destroyed),
        cmocka_unit_test(test_a_lost_handler_does_not_cost_its_room),
        cmocka_unit_test(test_work_committed_elsewhere_gives_its_room_back),
        cmocka_unit_test(test_dropped_records_of_cancelled_tickets_say_nothing_about_others),
        cmocka_unit_test(test_a_log_line_is_one_line),
        cmocka_unit_test(test_a_log_hook_that_finds_more_failures_is_not_called_from_within_itself),
        cmocka_unit_test(test_work_committed_elsewhere_that_failed_tells_that_the_device_is_lost),
        cmocka_unit_test(test_destroy_now_gives_back_the_slots_of_buffers_that_are_never_committed),
        cmocka_unit_test(test_is_idle_orders_what_was_done_before_tracked_work_was_found_to_have_ended),
        cmocka_unit_test(test_a_spin_budget_may_be_a_time_alone),
        cmocka_unit_test(test_a_wait_for_all_sees_a_failure_in_the_middle_of_its_spin),
        cmocka_unit_test(test_a_reason_for_failure_is_cut_to_fit),
        cmocka_unit_test(test_a_queue_tells_of_work_that_was_lost_with_another_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
