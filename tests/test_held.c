/* test_held.c - submissions that are held: their order, their limits, and everything that lets them go or ends them */
#define GPUSYNC_IMPLEMENTATION
#include "stage.h"

/* -- queues, timelines, submissions ----------------------------------------------------------------------- */

/* So that every failure of a long chain stays on record. */
static void open_held_stage(stage *s, softmetal_clock clock, unsigned queues, uint32_t max_buffers)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = max_buffers;
    queue_desc.error_log_count = 1024;
    open_stage_on(s, clock, QUEUE_OF_GPUSYNC, queues, device_desc, queue_desc);
}

/* A submission that waits for a value which nobody has promised, with one command buffer. */
static gpusync_ticket hold_on(gpusync_queue *queue, gpusync_timeline *timeline, uint64_t number, outcome *e)
{
    return SUBMIT(queue, WAITS(at(timeline, number)), BUFFERS(buffer_of(queue)), .on_complete = e ? remember : NULL,
                  .user = e);
}

/* As the report says. */
static unsigned held_on(gpusync_device *device, gpusync_queue *queue)
{
    char label[32], name[40], *text = report_of(device), *line, *rest;
    bool of_the_queue = false;
    unsigned count = 0;
    void *pool = metal_pool_push();
    metal_string_copy(metal_get(gpusync_queue_metal(queue), "label"), label, sizeof label);
    metal_pool_pop(pool);
    snprintf(name, sizeof name, "'%s'", label);
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "  queue ", 8) == 0) of_the_queue = strstr(line, name) != NULL;
        else if (of_the_queue && strstr(line, ": held for ")) count++;
    }
    free(text);
    return count;
}

/* -- the order of a queue --------------------------------------------------------------------------------- */

/* The command buffers of `commit` messages, in their order. */
typedef struct commit_log {
    void *buffers[64];
    unsigned count;
} commit_log;

static void log_commits(void *user, softmetal_phase phase, void *object, const char *selector)
{
    commit_log *log = (commit_log *)user;
    if (phase != SOFTMETAL_AFTER || strcmp(selector, "commit") != 0) return;
    assert_true(log->count < 64);
    log->buffers[log->count++] = object;
}

/* Those of them that the test knows, in their order. */
static void assert_commits(const commit_log *log, void *const *buffers, unsigned count)
{
    unsigned i, k, at = 0;
    for (i = 0; i < log->count; i++)
        for (k = 0; k < count; k++)
            if (log->buffers[i] == buffers[k]) assert_int_equal(k, at++);
    assert_int_equal(at, count);
}

static void test_what_comes_behind_a_held_submission_is_committed_after_it_in_the_order_of_tickets(void **state)
{
    commit_log log = {{NULL}, 0};
    gpusync_ticket tickets[6];
    void *buffers[6];
    unsigned i;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 1, 0);
    for (i = 0; i < 6; i++) buffers[i] = buffer_of(s.q[0]);
    softmetal_set_message_hook(log_commits, &log);
    tickets[0] = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffers[0]));
    tickets[1] = commit_to(s.q[0], buffers[1]);
    tickets[2] = SUBMIT(s.q[0], BUFFERS(buffers[2]));
    tickets[3] = SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), BUFFERS(buffers[3]));
    tickets[4] = SUBMIT(s.q[0], BUFFERS(buffers[4]), SIGNALS(at(s.t[2], 1)));
    tickets[5] = commit_to(s.q[0], buffers[5]);
    for (i = 0; i < 6; i++) assert_int_equal(tickets[i], i + 1);
    assert_int_equal(held_on(s.device, s.q[0]), 6);
    assert_int_equal(stats_of(s.q[0]).held, 6);
    assert_ok(gpusync_timeline_signal(s.t[1], 1)); /* the fourth could go, but for those in front */
    assert_int_equal(log.count, 0);
    for (i = 0; i < 6; i++) assert_int_equal(metal_status(buffers[i]), 0);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_commits(&log, buffers, 6);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    for (i = 0; i < 6; i++) assert_ok(gpusync_wait(s.q[0], tickets[i], 0));
    assert_int_equal(value_of(s.t[2]), 1);
    close_idle_stage(&s);
}

static void test_only_what_is_behind_the_second_wait_stays_when_the_first_is_over(void **state)
{
    commit_log log = {{NULL}, 0};
    void *buffers[4];
    unsigned i;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 1, 0);
    for (i = 0; i < 4; i++) buffers[i] = buffer_of(s.q[0]);
    softmetal_set_message_hook(log_commits, &log);
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffers[0]));
    commit_to(s.q[0], buffers[1]);
    SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), BUFFERS(buffers[2]));
    commit_to(s.q[0], buffers[3]);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_commits(&log, buffers, 2);
    assert_int_equal(held_on(s.device, s.q[0]), 2);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_true(gpusync_is_done(s.q[0], 2));
    assert_false(gpusync_is_done(s.q[0], 3));
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_commits(&log, buffers, 4);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_true(gpusync_is_idle(s.q[0]));
    close_idle_stage(&s);
}

/* Each hands one byte on to the next cell: in any other order the last cell does not get it. */
static void test_held_work_does_its_work_in_the_order_of_the_queue(void **state)
{
    enum { CELLS = 20 };
    unsigned char *bytes;
    void *memory, *blit;
    unsigned i;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
    memory = metal_buffer_new(s.rig.metal_device, CELLS + 1);
    bytes = (unsigned char *)metal_contents(memory);
    memset(bytes, 0, CELLS + 1);
    bytes[0] = 42;
    for (i = 0; i < CELLS; i++) {
        void *buffer = buffer_of(s.q[0]);
        blit = metal_blit_begin(buffer);
        metal_copy(blit, memory, i, memory, i + 1, 1);
        metal_end(blit);
        if (i % 3 == 0)
            SUBMIT(s.q[0], WAITS(at(s.t[i % 2], 1)), BUFFERS(buffer));
        else commit_to(s.q[0], buffer);
    }
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_int_equal(bytes[1], 0);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER));
    for (i = 0; i <= CELLS; i++) assert_int_equal(bytes[i], 42);
    metal_release(memory);
    close_idle_stage(&s);
}

static void test_an_unordered_submission_passes_what_is_held(void **state)
{
    gpusync_ticket held, passing;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    passing = SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_wait(s.q[0], passing, GPUSYNC_FOREVER));
    assert_false(gpusync_is_done(s.q[0], passing)); /* which speaks of all in front as well */
    assert_result(gpusync_poll(s.q[0], held), GPUSYNC_NOT_READY);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER));
    assert_true(gpusync_is_done(s.q[0], passing));
    close_idle_stage(&s);
}

static void test_an_unordered_submission_that_is_held_lets_others_pass(void **state)
{
    gpusync_ticket held, second, plain, behind;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
    held = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_UNORDERED);
    plain = commit_to(s.q[0], buffer_of(s.q[0]));
    assert_ok(gpusync_wait(s.q[0], plain, GPUSYNC_FOREVER));
    /* one that is held for another value, and is not flagged, keeps those behind it, but not the flagged one */
    second = hold_on(s.q[0], s.t[1], 1, NULL);
    behind = commit_to(s.q[0], buffer_of(s.q[0]));
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait(s.q[0], held, GPUSYNC_FOREVER));
    assert_result(gpusync_poll(s.q[0], second), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s.q[0], behind), GPUSYNC_NOT_READY);
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_ok(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

/* The same among those that are held: what the first waits for comes last. */
static void test_among_held_submissions_the_flag_works_both_ways(void **state)
{
    unsigned flagged;
    (void)state;
    for (flagged = 0; flagged < 2; flagged++) {
        gpusync_ticket first, second;
        stage s;
        open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
        first = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), .flags = flagged == 0 ? GPUSYNC_UNORDERED : 0);
        second = SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), .flags = flagged == 1 ? GPUSYNC_UNORDERED : 0);
        assert_int_equal(held_on(s.device, s.q[0]), 2);
        assert_ok(gpusync_timeline_signal(s.t[1], 1));
        assert_int_equal(held_on(s.device, s.q[0]), 1);
        assert_ok(gpusync_wait(s.q[0], second, GPUSYNC_FOREVER));
        assert_result(gpusync_poll(s.q[0], first), GPUSYNC_NOT_READY);
        assert_ok(gpusync_timeline_signal(s.t[0], 1));
        assert_ok(gpusync_wait(s.q[0], first, GPUSYNC_FOREVER));
        close_idle_stage(&s);
    }
}

static void test_a_wait_before_its_signal_on_one_queue_needs_the_flag(void **state)
{
    gpusync_ticket waiting, signalling;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
    waiting = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_UNORDERED);
    signalling = SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), SIGNALS(at(s.t[0], 1)));
    assert_ok(gpusync_wait(s.q[0], waiting, GPUSYNC_FOREVER));
    assert_ok(gpusync_wait(s.q[0], signalling, GPUSYNC_FOREVER));
    /* without it the signal lines up behind the wait for it; the flag on the signal's side serves as well */
    waiting = hold_on(s.q[0], s.t[0], 3, NULL);
    signalling = SUBMIT(s.q[0], SIGNALS(at(s.t[0], 2)));
    assert_result(gpusync_wait(s.q[0], signalling, MS(1)), GPUSYNC_TIMEOUT);
    assert_int_equal(held_on(s.device, s.q[0]), 2);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 3)), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_wait(s.q[0], signalling, GPUSYNC_FOREVER));
    assert_ok(gpusync_wait(s.q[0], waiting, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

/* Nobody could end it: the value is reached when the submission has ended well. */
static void test_a_submission_cannot_wait_for_its_own_signal(void **state)
{
    gpusync_point wait;
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[0], 5)));
    assert_result(TRY_SUBMIT(s.q[1], &ticket, WAITS(at(s.t[0], 2)), SIGNALS(at(s.t[0], 2))), GPUSYNC_ERROR_NOT_RISING);
    wait = at(s.t[0], 3);
    assert_ok(make_behind(s.q[1], NULL, &wait, 1, &buffer));
    assert_result(TRY_SUBMIT(s.q[1], &ticket, BUFFERS(buffer), SIGNALS(at(s.t[0], 2))), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    ticket = SUBMIT(s.q[1], BUFFERS(buffer), SIGNALS(at(s.t[0], 6)));
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_ok(gpusync_wait(s.q[1], ticket, GPUSYNC_FOREVER));
    assert_int_equal(value_of(s.t[0]), 6);
    close_idle_stage(&s);
}

/* gpusync_track knows nothing of lines: its owner commits when it likes. */
static void test_tracked_work_does_not_line_up(void **state)
{
    gpusync_ticket held, tracked;
    void *buffer;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    buffer = metal_queue_command_buffer(gpusync_queue_metal(s.q[0]));
    assert_ok(gpusync_track(s.q[0], buffer, &tracked));
    metal_commit(buffer);
    assert_ok(gpusync_wait(s.q[0], tracked, GPUSYNC_FOREVER));
    metal_release(buffer);
    assert_result(gpusync_wait(s.q[0], held, 0), GPUSYNC_TIMEOUT);
    /* and one that is taken back while something is held */
    buffer = metal_queue_command_buffer(gpusync_queue_metal(s.q[0]));
    assert_ok(gpusync_track(s.q[0], buffer, &tracked));
    assert_ok(gpusync_untrack(s.q[0], tracked));
    metal_release(buffer);
    assert_result(gpusync_untrack(s.q[0], held), GPUSYNC_ERROR_INVALID_TICKET);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait(s.q[0], held, GPUSYNC_FOREVER));
    assert_result(gpusync_wait(s.q[0], tracked, 0), GPUSYNC_ERROR_CANCELLED);
    close_idle_stage(&s);
}

/* -- chains ----------------------------------------------------------------------------------------------- */

/* Run on a thread with a stack on which a call for each link of a chain would have no room. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SMALL_STACK 262144u
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SMALL_STACK 262144u
#endif
#endif
#ifndef SMALL_STACK
#define SMALL_STACK 65536u
#endif

static void on_small_stack(void *(*body)(void *), void *argument)
{
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, SMALL_STACK), 0);
    assert_int_equal(pthread_create(&thread, &attributes, body, argument), 0);
    join(thread);
    pthread_attr_destroy(&attributes);
}

static void *signal_one(void *timeline)
{
    assert_ok(gpusync_timeline_signal((gpusync_timeline *)timeline, 1));
    return NULL;
}

static void *fail_with_code_77(void *timeline)
{
    gpusync_error reason;
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_EXECUTION;
    reason.code = 77;
    strcpy(reason.domain, "test");
    strcpy(reason.message, "the first link broke");
    assert_ok(gpusync_timeline_fail((gpusync_timeline *)timeline, &reason));
    return NULL;
}

static void *cancel_line_of(void *queue)
{
    assert_ok(gpusync_cancel_held((gpusync_queue *)queue));
    return NULL;
}

#define LINKS 700

static outcome link_endings[LINKS];
static gpusync_ticket link_tickets[LINKS];
static gpusync_timeline *link_timelines[LINKS + 1];

/* Link i waits for timeline i and signals timeline i + 1, on the queues in turn; by tickets, for link i - 1. */
static void make_chain(stage *s, unsigned queues, bool by_tickets)
{
    unsigned i;
    memset(link_endings, 0, sizeof link_endings);
    assert_ok(gpusync_timeline_create(s->device, NULL, &link_timelines[0]));
    for (i = 0; i < LINKS; i++) {
        gpusync_queue *queue = s->q[i % queues];
        gpusync_point wait = at(link_timelines[i], 1), signal;
        gpusync_submission link = {.waits = &wait, .wait_count = 1, TELL(&link_endings[i])};
        if (by_tickets && i > 0) wait = after(s->q[(i - 1) % queues], link_tickets[i - 1]);
        if (!by_tickets) {
            assert_ok(gpusync_timeline_create(s->device, NULL, &link_timelines[i + 1]));
            signal = at(link_timelines[i + 1], 1);
            link.signals = &signal;
            link.signal_count = 1;
        }
        assert_ok(gpusync_submit(queue, &link, &link_tickets[i]));
    }
    assert_int_equal(held_on(s->device, s->q[0]), (LINKS + queues - 1) / queues);
}

static void drop_chain(void)
{
    unsigned i;
    for (i = 0; i <= LINKS; i++) {
        assert_ok(gpusync_timeline_destroy(link_timelines[i]));
        link_timelines[i] = NULL;
    }
}

static void check_long_chain(unsigned queues, bool by_tickets, void *(*end)(void *), gpusync_result expected)
{
    unsigned i;
    stage s;
    open_held_stage(&s, SOFTMETAL_REAL, queues, 1024);
    make_chain(&s, queues, by_tickets);
    on_small_stack(end, end == cancel_line_of ? (void *)s.q[0] : (void *)link_timelines[0]);
    for (i = 0; i < LINKS; i++) {
        gpusync_error error = {0};
        gpusync_wait_options options = {.error = &error};
        assert_result(gpusync_wait_ex(s.q[i % queues], link_tickets[i], GPUSYNC_FOREVER, &options), expected);
        assert_ended(&link_endings[i], expected);
        if (end != fail_with_code_77) continue;
        assert_int_equal(error.code, 77);
        assert_string_equal(error.domain, "test");
        assert_string_equal(error.message, "the first link broke");
        assert_int_equal(error.ticket, link_tickets[i]);
    }
    for (i = 0; i < queues; i++) assert_true(gpusync_is_idle(s.q[i]));
    drop_chain();
    close_idle_stage(&s);
}

static void test_a_long_chain_over_queues_goes_at_the_first_signal(void **state)
{
    (void)state;
    check_long_chain(3, false, signal_one, GPUSYNC_OK);
}

static void test_a_long_chain_on_one_queue_goes_at_the_first_signal(void **state)
{
    (void)state;
    check_long_chain(1, false, signal_one, GPUSYNC_OK);
}

static void test_a_long_chain_of_tickets_goes_at_the_first_signal(void **state)
{
    (void)state;
    check_long_chain(3, true, signal_one, GPUSYNC_OK);
}

static void test_a_long_chain_fails_with_the_error_of_its_first_link(void **state)
{
    (void)state;
    check_long_chain(3, false, fail_with_code_77, GPUSYNC_ERROR_EXECUTION);
    check_long_chain(2, true, fail_with_code_77, GPUSYNC_ERROR_EXECUTION);
}

/* The links of the other queues are not cancelled themselves: what they wait for fails. */
static void test_a_long_chain_ends_where_the_first_of_its_queues_is_cancelled(void **state)
{
    (void)state;
    check_long_chain(3, false, cancel_line_of, GPUSYNC_ERROR_CANCELLED);
}

/* All of them have run, and their handlers come and gone; none is told of before the first, whose handler is late. */
static void *poll_first_link(void *queue)
{
    assert_ok(gpusync_poll((gpusync_queue *)queue, link_tickets[0]));
    return NULL;
}

static void test_a_long_chain_that_has_run_is_told_of_when_its_first_link_is(void **state)
{
    static void *buffers[LINKS];
    gpusync_submission submission;
    gpusync_point wait, signal;
    unsigned i;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 2, 1024);
    memset(&submission, 0, sizeof submission);
    submission.command_buffer_count = 1;
    submission.signals = &signal;
    submission.signal_count = 1;
    submission.flags = SIGNALS_INSIDE;
    for (i = 0; i <= LINKS; i++) assert_ok(gpusync_timeline_create(s.device, NULL, &link_timelines[i]));
    for (i = 0; i < LINKS; i++) {
        wait = at(link_timelines[i], 1);
        signal = at(link_timelines[i + 1], 1);
        assert_ok(make_behind(s.q[i % 2], NULL, &wait, i > 0, &buffers[i]));
        submission.command_buffers = &buffers[i];
        assert_ok(submit_as_told(s.q[i % 2], &submission, &link_tickets[i]));
    }
    softmetal_complete(buffers[0]);
    for (i = 1; i < LINKS; i++) softmetal_finish(buffers[i]);
    assert_int_equal(stats_of(s.q[0]).completions + stats_of(s.q[1]).completions, 0);
    on_small_stack(poll_first_link, s.q[0]);
    assert_int_equal(stats_of(s.q[0]).completions + stats_of(s.q[1]).completions, LINKS);
    assert_true(gpusync_is_idle(s.q[0]) && gpusync_is_idle(s.q[1]));
    softmetal_finish(buffers[0]);
    drop_chain();
    close_idle_stage(&s);
}

/* A callback that submits what ends at once, whose callback does the same: one after the other, none inside another. */
typedef struct cascade {
    gpusync_queue *queue;
    gpusync_timeline *failed;
    unsigned calls, depth, deepest;
} cascade;

static void cascade_on(void *user, gpusync_result result, const gpusync_error *error);

static void cascade_submit(cascade *c)
{
    gpusync_point wait = at(c->failed, 1);
    gpusync_submission s;
    memset(&s, 0, sizeof s);
    s.waits = &wait;
    s.wait_count = 1;
    s.on_complete = cascade_on;
    s.user = c;
    assert_ok(gpusync_submit(c->queue, &s, NULL));
}

static void cascade_on(void *user, gpusync_result result, const gpusync_error *error)
{
    cascade *c = (cascade *)user;
    assert_result(result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error->code, 77);
    if (++c->depth > c->deepest) c->deepest = c->depth;
    if (__atomic_add_fetch(&c->calls, 1, __ATOMIC_SEQ_CST) < 1000) cascade_submit(c);
    c->depth--;
}

static void *cascade_body(void *argument)
{
    cascade_submit((cascade *)argument);
    return NULL;
}

static void test_callbacks_that_lead_to_callbacks_run_one_after_the_other(void **state)
{
    cascade c;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
    memset(&c, 0, sizeof c);
    c.queue = s.q[0];
    c.failed = s.t[0];
    fail_with_code_77(s.t[0]);
    on_small_stack(cascade_body, &c);
    while (__atomic_load_n(&c.calls, __ATOMIC_SEQ_CST) < 1000) sched_yield();
    close_idle_stage(&s);
    assert_int_equal(c.calls, 1000);
    assert_int_equal(c.deepest, 1);
}

/* -- asking and waiting ----------------------------------------------------------------------------------- */

static void test_what_is_held_is_not_done(void **state)
{
    gpusync_wait_options blocking = {.mode = GPUSYNC_WAIT_BLOCKING};
    gpusync_ticket_info info;
    gpusync_ticket held, plain;
    gpusync_point points[2];
    size_t which;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    plain = commit_to(s.q[0], buffer_of(s.q[0]));
    assert_false(gpusync_is_idle(s.q[0]));
    assert_false(gpusync_is_done(s.q[0], held));
    assert_false(gpusync_is_done(s.q[0], plain));
    assert_result(gpusync_poll(s.q[0], held), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s.q[0], plain), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(s.q[0], GPUSYNC_EVERYTHING), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(s.q[0], held, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(s.q[0], plain, MS(2)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_queue_wait(s.q[0], MS(1)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(s.device, MS(1)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_get_info(s.q[0], held, &info), GPUSYNC_NOT_READY);
    points[0] = after(s.q[0], held);
    points[1] = after(s.q[0], plain);
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, MS(1), NULL, &which), GPUSYNC_TIMEOUT);
    /* with a limit this never sends waitUntilCompleted: softmetal ends the program at one to an uncommitted buffer */
    assert_result(gpusync_wait_ex(s.q[0], held, MS(1), &blocking), GPUSYNC_TIMEOUT);
    assert_int_equal(stats_of(s.q[0]).completions, 0);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which));
    assert_ok(gpusync_get_info(s.q[0], held, &info));
    assert_result(info.result, GPUSYNC_OK);
    assert_int_equal(stats_of(s.q[0]).completions, 2);
    close_idle_stage(&s);
}

static void *blocking_wait_body(void *argument)
{
    wait_job *job = (wait_job *)argument;
    gpusync_wait_options blocking = {.mode = GPUSYNC_WAIT_BLOCKING};
    job->result = gpusync_wait_ex(job->queue, job->ticket, GPUSYNC_FOREVER, &blocking);
    return NULL;
}

static void *device_wait_body(void *device)
{
    assert_ok(gpusync_device_wait((gpusync_device *)device, GPUSYNC_FOREVER));
    return NULL;
}

static void test_waits_that_began_while_it_was_held_end_when_it_has(void **state)
{
    wait_job one, all, blocking;
    pthread_t device_wait;
    gpusync_ticket held;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    wait_job_start(&one, s.q[0], held, GPUSYNC_FOREVER);
    wait_job_start(&all, s.q[0], GPUSYNC_EVERYTHING, SECONDS(100));
    memset(&blocking, 0, sizeof blocking);
    blocking.queue = s.q[0];
    blocking.ticket = held;
    blocking.thread = start(blocking_wait_body, &blocking);
    device_wait = start(device_wait_body, s.device);
    await_sleepers(s.device, 4);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(wait_job_join(&one));
    assert_ok(wait_job_join(&all));
    assert_ok(wait_job_join(&blocking));
    join(device_wait);
    close_idle_stage(&s);
}

static struct {
    gpusync_queue *queue;
    gpusync_ticket held;
    gpusync_result wait, queue_wait;
    unsigned calls;
} in_callback;

static void wait_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)result;
    (void)error;
    in_callback.wait = gpusync_wait(in_callback.queue, in_callback.held, GPUSYNC_FOREVER);
    in_callback.queue_wait = gpusync_queue_wait(in_callback.queue, MS(1));
    in_callback.calls++;
}

static void test_a_callback_cannot_wait_for_what_is_held(void **state)
{
    gpusync_submission submission;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    memset(&in_callback, 0, sizeof in_callback);
    in_callback.queue = s.q[0];
    in_callback.held = hold_on(s.q[0], s.t[0], 1, NULL);
    memset(&submission, 0, sizeof submission);
    submission.on_complete = wait_in_callback; /* no waits, nothing to do: over within the call */
    assert_ok(gpusync_submit(s.q[1], &submission, NULL));
    assert_int_equal(CALLED(in_callback.calls), 1);
    assert_result(in_callback.wait, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_result(in_callback.queue_wait, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    close_idle_stage(&s);
}

/* -- limits ----------------------------------------------------------------------------------------------- */

/* A queue of `size` can hold this many command buffers. */
static unsigned most_held(unsigned size) { return size - (size / 8 ? size / 8 : 1); }

static void test_an_eighth_of_the_queue_is_kept_free_of_what_is_held(void **state)
{
    static const unsigned sizes[] = {1, 2, 3, 8, 9, 16, 33};
    gpusync_ticket ticket;
    gpusync_stats before;
    unsigned i, k;
    void *buffer;
    stage s;
    (void)state;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        open_held_stage(&s, SOFTMETAL_REAL, 1, sizes[i]);
        for (k = 0; k < most_held(sizes[i]); k++) { /* STRICT: no command buffers but this one */
            if (k % 2) commit_to(s.q[0], buffer_of(s.q[0]));
            else SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_STRICT);
        }
        before = stats_of(s.q[0]);
        buffer = buffer_of(s.q[0]); /* there is room for it, and it may go to the device, but not be held */
        assert_result(TRY_SUBMIT(s.q[0], &ticket, WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 5)), BUFFERS(buffer),
                                 .flags = GPUSYNC_STRICT), GPUSYNC_ERROR_QUEUE_FULL);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        if (k > 0) assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_QUEUE_FULL);
        assert_int_equal(stats_of(s.q[0]).commits, before.commits);
        assert_int_equal(stats_of(s.q[0]).held, before.held);
        assert_int_equal(held_on(s.device, s.q[0]), k);
        assert_ok(gpusync_timeline_signal(s.t[1], 4)); /* nobody has promised anything */
        assert_int_equal(value_of(s.t[1]), 4);
        assert_ok(gpusync_timeline_signal(s.t[0], 1));
        /* once the line is gone, the same again does it */
        SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 5)), BUFFERS(buffer), .flags = GPUSYNC_STRICT);
        assert_ok(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER));
        assert_int_equal(value_of(s.t[1]), 5);
        close_idle_stage(&s);
    }
}

static void test_an_unordered_submission_is_subject_to_the_limit_only_where_it_is_held(void **state)
{
    void *buffer;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 2);
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_STRICT);
    buffer = buffer_of(s.q[0]);
    assert_result(gpusync_commit(s.q[0], buffer, NULL), GPUSYNC_ERROR_QUEUE_FULL);
    SUBMIT(s.q[0], BUFFERS(buffer), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_wait(s.q[0], 2, GPUSYNC_FOREVER));
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    close_idle_stage(&s);
}

static void test_where_no_room_can_come_a_submission_says_so_at_once(void **state)
{
    gpusync_ticket ticket;
    void *open;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 4);
    while (held_on(s.device, s.q[0]) < 3)
        SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), .flags = GPUSYNC_STRICT);
    open = buffer_of(s.q[0]);
    /* needs a command buffer of gpusync's own; all four are held or not committed, so a wait would have no end */
    assert_result(TRY_SUBMIT(s.q[0], &ticket, WAITS(at(s.t[1], 1))), GPUSYNC_ERROR_QUEUE_FULL);
    assert_result(TRY_SUBMIT(s.q[0], &ticket, SIGNALS(at(s.t[1], 1)), .flags = GPUSYNC_UNORDERED),
                  GPUSYNC_ERROR_QUEUE_FULL);
    assert_int_equal(softmetal_outstanding(gpusync_queue_metal(s.q[0])), 4);
    assert_ok(gpusync_command_buffer_discard(s.q[0], open));
    SUBMIT(s.q[0], SIGNALS(at(s.t[1], 1)), .flags = GPUSYNC_UNORDERED);
    assert_ok(gpusync_timeline_wait(s.t[1], 1, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    close_idle_stage(&s);
}

typedef struct submit_job {
    gpusync_queue *queue;
    gpusync_submission submission;
    gpusync_ticket ticket;
    gpusync_result result;
} submit_job;

static void *submit_body(void *argument)
{
    submit_job *job = (submit_job *)argument;
    job->result = gpusync_submit(job->queue, &job->submission, &job->ticket);
    return NULL;
}

static void test_a_submission_waits_for_room_as_long_as_it_may(void **state)
{
    uint64_t limit = MS(5), begun;
    gpusync_ticket ticket;
    submit_job job;
    pthread_t thread;
    void *slow[2];
    unsigned i;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 2);
    for (i = 0; i < 2; i++) {
        slow[i] = metal_retain(buffer_of(s.q[0]));
        softmetal_hang(slow[i]);
        commit_to(s.q[0], slow[i]);
    }
    begun = gpusync_now_ns();
    job.queue = s.q[0];
    job.submission = (gpusync_submission){SIGNALS(at(s.t[0], 1)), .timeout_ns = &limit};
    assert_result(gpusync_submit(job.queue, &job.submission, &ticket), GPUSYNC_TIMEOUT);
    assert_true(gpusync_now_ns() - begun >= limit);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_int_equal(stats_of(s.q[0]).commits, 2);
    job.submission.timeout_ns = NULL;
    thread = start(submit_body, &job);
    await_sleepers(s.device, 1);
    for (i = 0; i < 2; i++) {
        softmetal_unhang(slow[i]);
        metal_release(slow[i]);
    }
    join(thread);
    assert_ok(job.result);
    assert_int_equal(job.ticket, 3);
    assert_ok(gpusync_timeline_wait(s.t[0], 1, GPUSYNC_FOREVER, NULL));
    close_idle_stage(&s);
}

static void test_an_enqueued_command_buffer_cannot_be_held(void **state)
{
    gpusync_ticket held, ticket;
    void *buffer;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
    buffer = buffer_of(s.q[0]);
    metal_enqueue(buffer);
    assert_result(TRY_SUBMIT(s.q[0], &ticket, WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 5)), BUFFERS(buffer)),
                  GPUSYNC_ERROR_ENQUEUED);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_true(gpusync_is_idle(s.q[0]));
    /* where it need not be held it goes, and the signal is nobody's promise */
    SUBMIT(s.q[0], SIGNALS(at(s.t[1], 5)), BUFFERS(buffer));
    assert_ok(gpusync_timeline_wait(s.t[1], 5, GPUSYNC_FOREVER, NULL));
    /* nor can it line up behind another one */
    buffer = metal_queue_command_buffer(gpusync_queue_metal(s.q[0]));
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    metal_enqueue(buffer);
    assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ENQUEUED);
    SUBMIT(s.q[0], BUFFERS(buffer), .flags = GPUSYNC_UNORDERED);
    metal_release(buffer);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait(s.q[0], held, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

static void test_a_command_buffer_that_is_held_is_refused_everywhere(void **state)
{
    gpusync_ticket ticket, held;
    unsigned strange;
    void *buffer;
    stage s;
    (void)state;
    for (strange = 0; strange < 2; strange++) {
        open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
        buffer = strange ? metal_queue_command_buffer(gpusync_queue_metal(s.q[0])) : buffer_of(s.q[0]);
        metal_retain(buffer);
        held = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(buffer));
        assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
        assert_result(gpusync_track(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
        assert_result(gpusync_track_committed(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
        assert_result(TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffer), .flags = GPUSYNC_UNORDERED),
                      GPUSYNC_ERROR_ALREADY_TRACKED);
        assert_result(gpusync_command_buffer_discard(s.q[0], buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
        assert_int_equal(stats_of(s.q[0]).commits, 1);
        assert_ok(gpusync_timeline_signal(s.t[0], 1));
        assert_ok(gpusync_wait(s.q[0], held, GPUSYNC_FOREVER));
        assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED);
        metal_release(buffer);
        if (strange) metal_release(buffer);
        close_idle_stage(&s);
    }
}

/* -- cancelling ------------------------------------------------------------------------------------------- */

static void test_cancel_ends_what_is_held_and_all_that_waits_for_it(void **state)
{
    outcome first = {0}, behind = {0}, other = {0}, third = {0}, unordered = {0};
    gpusync_wait_options options = {0};
    gpusync_ticket tickets[3], on_other, on_third;
    gpusync_error error;
    uint64_t reached;
    unsigned i;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 3, 0);
    tickets[0] = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    tickets[1] = commit_to(s.q[0], buffer_of(s.q[0]));
    tickets[2] = SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), TELL(&behind));
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), .flags = GPUSYNC_UNORDERED, TELL(&unordered));
    on_other = SUBMIT(s.q[1], WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[2], 1)), BUFFERS(buffer_of(s.q[1])), TELL(&other));
    on_third = SUBMIT(s.q[2], WAITS(at(s.t[2], 1)), SIGNALS(at(s.t[3], 1)), BUFFERS(buffer_of(s.q[2])), TELL(&third));
    assert_ok(gpusync_cancel_held(s.q[0]));
    /* all of it is over by now: what was never on the device needs no thread of Metal's */
    assert_int_equal(calls_of(&first) + calls_of(&behind) + calls_of(&unordered), 3);
    assert_int_equal(calls_of(&other) + calls_of(&third), 2);
    assert_false(pthread_equal(first.thread, pthread_self()));
    assert_int_equal(softmetal_live("command_buffer"), 0);
    assert_ended(&first, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&behind, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&unordered, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&other, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&third, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(third.error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_int_equal(third.error.ticket, on_third);
    assert_string_equal(third.error.message, first.error.message);
    options.error = &error;
    for (i = 0; i < 3; i++) {
        assert_result(gpusync_wait_ex(s.q[0], tickets[i], GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
        assert_int_equal(error.ticket, tickets[i]);
        assert_true(error.message[0]);
    }
    assert_result(gpusync_poll(s.q[1], on_other), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_timeline_query(s.t[3], &reached), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(reached, 0);
    assert_int_equal(value_of(s.t[0]), 0); /* what they waited for has nothing to do with it */
    assert_int_equal(stats_of(s.q[0]).completions, 4);
    assert_int_equal(stats_of(s.q[0]).failures, 0); /* nothing ran */
    assert_int_equal(rooms_taken(s.q[0]), 0);
    assert_true(gpusync_is_idle(s.q[0]));
    /* and life goes on */
    commit_to(s.q[0], buffer_of(s.q[0]));
    hold_on(s.q[0], s.t[0], 1, NULL);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_ok(gpusync_wait(s.q[0], 5, GPUSYNC_FOREVER));
    assert_ok(gpusync_wait(s.q[0], 6, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

static void test_cancel_leaves_alone_what_is_on_the_device(void **state)
{
    gpusync_ticket flying, held;
    void *buffer;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 1, 0);
    assert_ok(gpusync_cancel_held(s.q[0]));
    buffer = buffer_of(s.q[0]);
    flying = commit_to(s.q[0], buffer);
    assert_ok(gpusync_cancel_held(s.q[0]));
    held = hold_on(s.q[0], s.t[0], 1, NULL);
    assert_ok(gpusync_cancel_held(s.q[0]));
    assert_result(gpusync_wait(s.q[0], held, 0), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_poll(s.q[0], flying), GPUSYNC_NOT_READY);
    softmetal_finish(buffer);
    assert_ok(gpusync_poll(s.q[0], flying));
    close_idle_stage(&s);
}

/* In a callback too; those of the cancelled then wait for their turn on a thread of Metal's. */
static struct {
    gpusync_queue *queue;
    outcome *held;
    long calls_inside;
} cancelling;

static void cancel_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)result;
    (void)error;
    assert_ok(gpusync_cancel_held(cancelling.queue));
    cancelling.calls_inside = calls_of(cancelling.held);
}

static void test_cancel_inside_a_callback_nests_no_callbacks(void **state)
{
    gpusync_submission submission;
    outcome held = {0};
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    hold_on(s.q[0], s.t[0], 1, &held);
    cancelling.queue = s.q[0];
    cancelling.held = &held;
    memset(&submission, 0, sizeof submission);
    submission.on_complete = cancel_in_callback;
    assert_ok(gpusync_submit(s.q[1], &submission, NULL));
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(cancelling.calls_inside, 0);
    assert_ended(&held, GPUSYNC_ERROR_CANCELLED);
    close_idle_stage(&s);
}

static void test_objects_to_be_released_after_a_held_ticket_are(void **state)
{
    gpusync_ticket held;
    void *object;
    unsigned round;
    stage s;
    (void)state;
    for (round = 0; round < 3; round++) {
        open_held_stage(&s, SOFTMETAL_REAL, 1, 0);
        object = metal_buffer_new(s.rig.metal_device, 16);
        held = hold_on(s.q[0], s.t[0], 1, NULL);
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], held), object));
        metal_release(object);
        assert_int_equal(softmetal_live("buffer"), 1);
        if (round == 0) assert_ok(gpusync_cancel_held(s.q[0]));
        if (round == 1) assert_ok(gpusync_timeline_signal(s.t[0], 1));
        while (round < 2 && softmetal_live("buffer")) sched_yield();
        close_idle_stage(&s);
        assert_int_equal(softmetal_live("buffer"), 0);
    }
}

/* -- what it waits for fails ------------------------------------------------------------------------------ */

static void test_held_work_is_never_issued_when_its_timeline_fails(void **state)
{
    outcome first = {0}, second = {0};
    commit_log log = {{NULL}, 0};
    gpusync_ticket behind;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    hold_on(s.q[1], s.t[1], 1, &second);
    softmetal_set_message_hook(log_commits, &log);
    fail_with_code_77(s.t[0]);
    assert_int_equal(log.count, 0);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    assert_ended(&first, GPUSYNC_ERROR_EXECUTION);
    assert_ended(&second, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(second.error.code, 77);
    assert_string_equal(second.error.domain, "test");
    assert_string_equal(second.error.message, "the first link broke");
    assert_int_equal(second.error.ticket, 1);
    /* submitted after the failure: over within the call, and not committed */
    memset(&first, 0, sizeof first);
    SUBMIT(s.q[0], WAITS(at(s.t[1], 7)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    assert_int_equal(calls_of(&first), 1);
    assert_int_equal(first.error.code, 77);
    assert_int_equal(log.count, 0);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    softmetal_set_message_hook(NULL, NULL);
    behind = commit_to(s.q[0], buffer_of(s.q[0]));
    assert_ok(gpusync_wait(s.q[0], behind, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

/* The work that was to signal a smaller value of the timeline is killed: what waits for larger ones has no hope. */
static void test_held_work_gets_the_error_of_the_producer_that_was_killed(void **state)
{
    static const uint32_t flags[] = {0, GPUSYNC_STRICT, GPUSYNC_UNORDERED};
    outcome producer, held, behind_it;
    void *killed;
    unsigned i;
    stage s;
    (void)state;
    for (i = 0; i < 3; i++) {
        memset(&producer, 0, sizeof producer);
        memset(&held, 0, sizeof held);
        memset(&behind_it, 0, sizeof behind_it);
        open_held_stage(&s, SOFTMETAL_REAL, 3, 0);
        killed = buffer_of(s.q[0]);
        metal_set_label(killed, "victim");
        softmetal_fail(killed, NULL, 3, "page fault in a test");
        softmetal_hang(killed);
        metal_retain(killed);
        SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(killed), TELL(&producer));
        SUBMIT(s.q[1], WAITS(at(s.t[0], flags[i] & GPUSYNC_STRICT ? 1 : 2)), SIGNALS(at(s.t[1], 1)),
               BUFFERS(buffer_of(s.q[1])), .flags = flags[i], TELL(&held));
        SUBMIT(s.q[2], WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[2], 1)), BUFFERS(buffer_of(s.q[2])), TELL(&behind_it));
        assert_int_equal(held_on(s.device, s.q[1]), 1);
        assert_int_equal(held_on(s.device, s.q[2]), 1);
        softmetal_unhang(killed);
        metal_release(killed);
        assert_result(gpusync_timeline_wait(s.t[2], 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_ended(&producer, GPUSYNC_ERROR_EXECUTION);
        assert_ended(&held, GPUSYNC_ERROR_EXECUTION);
        assert_ended(&behind_it, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(behind_it.error.code, 3);
        assert_int_equal(behind_it.error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
        assert_string_equal(behind_it.error.domain, producer.error.domain);
        assert_string_equal(behind_it.error.message, "page fault in a test");
        assert_string_equal(behind_it.error.label, "victim");
        assert_int_equal(held_on(s.device, s.q[1]) + held_on(s.device, s.q[2]), 0);
        close_idle_stage(&s);
    }
}

/* Two waits fail, in either order, and the work itself in between: what counts is the order in the submission. */
static void test_of_several_failures_the_one_of_the_first_wait_is_told(void **state)
{
    static const long codes[] = {3, 9};
    unsigned first, i;
    (void)state;
    for (first = 0; first < 2; first++) {
        outcome consumer = {0};
        void *killed[2];
        stage s;
        open_held_stage(&s, SOFTMETAL_MANUAL, 3, 0);
        for (i = 0; i < 2; i++) {
            killed[i] = buffer_of(s.q[i]);
            softmetal_fail(killed[i], NULL, codes[i], NULL);
            SUBMIT(s.q[i], SIGNALS(at(s.t[i], 1)), BUFFERS(killed[i]), .flags = SIGNALS_INSIDE);
        }
        SUBMIT(s.q[2], WAITS(at(s.t[0], 1), at(s.t[1], 1)), TELL(&consumer));
        softmetal_fail(softmetal_last_buffer(gpusync_queue_metal(s.q[2])), NULL, 2, NULL);
        softmetal_finish(killed[first]);
        softmetal_finish_queue(gpusync_queue_metal(s.q[2]));
        assert_int_equal(calls_of(&consumer), 0);
        softmetal_finish(killed[!first]);
        assert_ended(&consumer, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(consumer.error.code, codes[0]);
        close_idle_stage(&s);
    }
}

/* The failure of the second producer is what the value after it says; what the first has reached stands. */
static void test_held_work_behind_a_value_that_was_reached_goes_before_the_failure(void **state)
{
    gpusync_ticket good, bad;
    void *killed;
    uint64_t reached;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    good = hold_on(s.q[1], s.t[0], 1, NULL);
    bad = hold_on(s.q[1], s.t[0], 3, NULL);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)));
    assert_ok(gpusync_wait(s.q[1], good, GPUSYNC_FOREVER));
    killed = buffer_of(s.q[0]);
    softmetal_fail(killed, NULL, 3, NULL);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 2)), BUFFERS(killed));
    assert_result(gpusync_wait(s.q[1], bad, GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_timeline_query(s.t[0], &reached), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(reached, 1);
    assert_ok(gpusync_wait(s.q[1], good, 0));
    close_idle_stage(&s);
}

/* -- what lets it go -------------------------------------------------------------------------------------- */

static void test_an_expected_value_lets_held_work_go_to_the_device(void **state)
{
    gpusync_ticket in_reach, beyond;
    uint64_t base;
    void *event;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 2, 0);
    in_reach = hold_on(s.q[0], s.t[0], 3, NULL);
    beyond = hold_on(s.q[1], s.t[0], 6, NULL);
    assert_ok(gpusync_timeline_expect(s.t[0], 5));
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_int_equal(held_on(s.device, s.q[1]), 1);
    event = gpusync_timeline_metal(s.t[0], &base);
    metal_event_signal(event, base + 5);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_ok(gpusync_wait(s.q[0], in_reach, 0));
    assert_int_equal(value_of(s.t[0]), 5);
    assert_result(gpusync_wait(s.q[1], beyond, 0), GPUSYNC_TIMEOUT);
    metal_event_signal(event, base + 6); /* nobody has said that it would come, but it did */
    assert_int_equal(value_of(s.t[0]), 6);
    assert_true(softmetal_settle_listeners(SECONDS(20))); /* who may have seen it first, and has the work issued */
    softmetal_finish_queue(gpusync_queue_metal(s.q[1]));
    assert_ok(gpusync_wait(s.q[1], beyond, 0));
    close_idle_stage(&s);
}

static void test_work_for_a_timeline_that_others_signal_is_not_held(void **state)
{
    gpusync_timeline *imported;
    outcome strict = {0};
    gpusync_ticket ticket;
    void *event;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    event = metal_shared_event_new(s.rig.metal_device);
    assert_ok(timeline_import(s.device, event, NULL, &imported));
    ticket = hold_on(s.q[0], imported, 1, NULL);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_ok(gpusync_timeline_destroy(imported));
    assert_ok(timeline_import(s.device, event, NULL, &imported));
    SUBMIT(s.q[1], WAITS(at(imported, 1)), BUFFERS(buffer_of(s.q[1])), .flags = GPUSYNC_STRICT,
           TELL(&strict)); /* waits on the host */
    assert_int_equal(held_on(s.device, s.q[1]), 1);
    metal_event_signal(event, 1);
    assert_ended(&strict, GPUSYNC_OK); /* told by the event's listener: nobody asks for anything here */
    assert_ok(gpusync_wait(s.q[0], ticket, GPUSYNC_FOREVER));
    assert_ok(gpusync_timeline_destroy(imported));
    metal_release(event);
    close_idle_stage(&s);
}

static void test_a_signal_on_its_way_lets_held_work_go_to_the_device(void **state)
{
    gpusync_ticket consumer, by_ticket;
    void *work_of_producer;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 3, 0);
    consumer = hold_on(s.q[1], s.t[0], 2, NULL);
    work_of_producer = buffer_of(s.q[0]);
    SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[0], 2)), BUFFERS(work_of_producer));
    by_ticket = SUBMIT(s.q[2], WAITS(after(s.q[0], 1)), BUFFERS(buffer_of(s.q[2])));
    assert_int_equal(held_on(s.device, s.q[1]), 1); /* promised, but by something that is held itself */
    assert_int_equal(held_on(s.device, s.q[2]), 1);
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_int_equal(held_on(s.device, s.q[1]), 0);
    assert_int_equal(held_on(s.device, s.q[2]), 0);
    assert_result(gpusync_poll(s.q[1], consumer), GPUSYNC_NOT_READY);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    softmetal_finish_queue(gpusync_queue_metal(s.q[1]));
    softmetal_finish_queue(gpusync_queue_metal(s.q[2]));
    assert_ok(gpusync_wait(s.q[1], consumer, 0));
    assert_ok(gpusync_wait(s.q[2], by_ticket, 0));
    close_idle_stage(&s);
}

/* -- timelines that go ------------------------------------------------------------------------------------ */

static void destroy_timeline(stage *s, unsigned i)
{
    assert_ok(gpusync_timeline_destroy(s->t[i]));
    s->t[i] = NULL;
}

static void test_held_work_ends_with_the_timeline_of_a_value_that_nobody_promised(void **state)
{
    outcome first = {0}, second = {0};
    gpusync_ticket other;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    other = commit_to(s.q[0], buffer_of(s.q[0]));
    hold_on(s.q[1], s.t[1], 1, &second);
    destroy_timeline(&s, 0);
    assert_int_equal(calls_of(&first), 1);
    assert_ended(&first, GPUSYNC_ERROR_DESTROYED);
    assert_ended(&second, GPUSYNC_ERROR_DESTROYED);
    assert_ok(gpusync_wait(s.q[0], other, GPUSYNC_FOREVER));
    close_idle_stage(&s);
}

static void test_held_work_outlives_the_timeline_of_a_value_that_is_promised(void **state)
{
    outcome consumer = {0}, producer = {0};
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    SUBMIT(s.q[0], WAITS(at(s.t[1], 1)), SIGNALS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&producer));
    hold_on(s.q[1], s.t[0], 1, &consumer);
    destroy_timeline(&s, 0);
    assert_int_equal(calls_of(&consumer) + calls_of(&producer), 0);
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_ok(gpusync_device_wait(s.device, GPUSYNC_FOREVER));
    assert_ended(&producer, GPUSYNC_OK);
    assert_ended(&consumer, GPUSYNC_OK);
    close_idle_stage(&s);
}

static void test_work_in_flight_goes_on_with_the_event_of_a_timeline_that_went(void **state)
{
    static const bool killed[] = {false, true};
    outcome consumer, producer;
    void *buffer;
    unsigned i;
    stage s;
    (void)state;
    for (i = 0; i < 2; i++) {
        gpusync_result expected = killed[i] ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
        memset(&consumer, 0, sizeof consumer);
        memset(&producer, 0, sizeof producer);
        open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
        buffer = buffer_of(s.q[0]);
        metal_retain(buffer);
        softmetal_hang(buffer);
        if (killed[i]) softmetal_fail(buffer, NULL, 3, NULL);
        SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(buffer), TELL(&producer));
        hold_on(s.q[1], s.t[0], 1, &consumer);
        assert_int_equal(held_on(s.device, s.q[1]), 0);
        destroy_timeline(&s, 0);
        softmetal_unhang(buffer);
        metal_release(buffer);
        assert_ended(&producer, expected);
        assert_ended(&consumer, expected);
        close_idle_stage(&s);
    }
}

/* The larger value is signalled, only a smaller one, promised by work in flight, keeps it from being reached: whoever
   waits for it has not lost anything with the timeline. */
static void check_signalled_value_counts_as_promised(bool by_host)
{
    outcome consumer = {0};
    void *slow;
    stage s;
    open_held_stage(&s, SOFTMETAL_MANUAL, 3, 0);
    slow = buffer_of(s.q[0]);
    if (!by_host) SUBMIT(s.q[1], SIGNALS(at(s.t[0], 10))); /* before the other, else it goes after that */
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 5)), BUFFERS(slow));
    if (by_host) assert_ok(gpusync_timeline_signal(s.t[0], 10));
    else softmetal_finish_queue(gpusync_queue_metal(s.q[1]));
    hold_on(s.q[2], s.t[0], 10, &consumer);
    destroy_timeline(&s, 0);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    softmetal_finish_queue(gpusync_queue_metal(s.q[2]));
    assert_ended(&consumer, GPUSYNC_OK);
    close_idle_stage(&s);
}

static void test_held_work_for_a_signalled_value_behind_a_promise_outlives_the_timeline(void **state)
{
    (void)state;
    check_signalled_value_counts_as_promised(true);
    check_signalled_value_counts_as_promised(false);
}

/* -- queues that go --------------------------------------------------------------------------------------- */

static void destroy_queue(stage *s, unsigned i, bool now)
{
    assert_ok(now ? gpusync_queue_destroy_now(s->q[i]) : gpusync_queue_destroy(s->q[i]));
    s->q[i] = NULL;
}

static void test_destroy_gives_up_what_is_held_and_who_waits_for_it(void **state)
{
    static const bool now[] = {false, true};
    outcome first, behind, other, by_ticket;
    unsigned i;
    stage s;
    (void)state;
    for (i = 0; i < 2; i++) {
        memset(&first, 0, sizeof first);
        memset(&behind, 0, sizeof behind);
        memset(&other, 0, sizeof other);
        memset(&by_ticket, 0, sizeof by_ticket);
        open_held_stage(&s, SOFTMETAL_REAL, 3, 0);
        SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
        commit_to(s.q[0], buffer_of(s.q[0]));
        SUBMIT(s.q[0], TELL(&behind));
        hold_on(s.q[1], s.t[1], 1, &other);
        SUBMIT(s.q[2], WAITS(after(s.q[0], 2)), BUFFERS(buffer_of(s.q[2])), TELL(&by_ticket));
        destroy_queue(&s, 0, now[i]);
        assert_int_equal(calls_of(&first) + calls_of(&behind), 2);
        assert_ended(&first, GPUSYNC_ERROR_CANCELLED);
        assert_ended(&behind, GPUSYNC_ERROR_CANCELLED);
        assert_ended(&other, GPUSYNC_ERROR_CANCELLED);
        assert_ended(&by_ticket, GPUSYNC_ERROR_CANCELLED);
        assert_result(gpusync_poll(s.q[1], 1), GPUSYNC_ERROR_CANCELLED);
        assert_result(gpusync_poll(s.q[2], 1), GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(softmetal_live("command_buffer"), 0);
        close_idle_stage(&s);
    }
}

/* What waits on other queues for work that destroy_now leaves to itself: by value, by ticket, by the ticket of a plain
   commit; in flight and held. */
static void test_destroy_now_ends_what_depends_on_work_in_flight(void **state)
{
    outcome producer = {0}, flying = {0}, held = {0}, by_ticket = {0}, by_plain = {0};
    void *slow, *plain;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 3, 0);
    slow = buffer_of(s.q[0]);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(slow), TELL(&producer), .flags = SIGNALS_INSIDE);
    plain = buffer_of(s.q[0]);
    commit_to(s.q[0], plain);
    hold_on(s.q[1], s.t[0], 1, &flying);
    assert_int_equal(held_on(s.device, s.q[1]), 0);
    SUBMIT(s.q[2], WAITS(at(s.t[0], 2)), BUFFERS(buffer_of(s.q[2])), TELL(&held), .flags = GPUSYNC_UNORDERED);
    SUBMIT(s.q[1], WAITS(after(s.q[0], 1)), TELL(&by_ticket));
    SUBMIT(s.q[1], WAITS(after(s.q[0], 2)), TELL(&by_plain));
    assert_int_equal(held_on(s.device, s.q[2]), 1);
    destroy_queue(&s, 0, true);
    assert_int_equal(calls_of(&producer), 1);
    assert_ended(&producer, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&held, GPUSYNC_ERROR_CANCELLED);
    softmetal_finish_queue(gpusync_queue_metal(s.q[1])); /* nothing on the device waits for ever */
    assert_ended(&flying, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&by_ticket, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&by_plain, GPUSYNC_ERROR_DESTROYED);
    softmetal_finish(slow);
    softmetal_finish(plain);
    close_idle_stage(&s);
}

/* The consumer's queue goes, and the producer is still in flight: it has nobody to tell any more. */
static void test_destroy_now_of_the_waiting_side_takes_its_waits_back(void **state)
{
    outcome flying = {0}, held = {0}, later = {0};
    void *orphans;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 3, 0);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(buffer_of(s.q[0])));
    SUBMIT(s.q[1], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[1])), TELL(&flying));
    hold_on(s.q[1], s.t[0], 2, &held);
    hold_on(s.q[2], s.t[1], 1, &later);
    orphans = metal_retain(gpusync_queue_metal(s.q[1]));
    destroy_queue(&s, 1, true);
    assert_ended(&flying, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&held, GPUSYNC_ERROR_CANCELLED);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_int_equal(value_of(s.t[0]), 1);
    softmetal_finish_queue(gpusync_queue_metal(s.q[2]));
    assert_ended(&later, GPUSYNC_ERROR_CANCELLED);
    softmetal_finish_queue(orphans);
    metal_release(orphans);
    close_idle_stage(&s);
}

/* Destroy waits for the work in flight, and so for what that waits for on other queues. */
static void *destroy_body(void *queue)
{
    assert_ok(gpusync_queue_destroy((gpusync_queue *)queue));
    return NULL;
}

static void test_destroy_waits_for_work_whose_waits_are_on_their_way(void **state)
{
    outcome consumer = {0}, held = {0};
    pthread_t thread;
    void *slow;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    slow = buffer_of(s.q[0]);
    metal_retain(slow);
    softmetal_hang(slow);
    SUBMIT(s.q[0], SIGNALS(at(s.t[0], 1)), BUFFERS(slow));
    hold_on(s.q[1], s.t[0], 1, &consumer);
    hold_on(s.q[1], s.t[0], 2, &held);
    thread = start(destroy_body, s.q[1]);
    assert_ended(&held, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(calls_of(&consumer), 0);
    softmetal_unhang(slow);
    metal_release(slow);
    join(thread);
    assert_int_equal(calls_of(&consumer), 1);
    assert_ended(&consumer, GPUSYNC_OK);
    s.q[1] = NULL;
    close_idle_stage(&s);
}

/* A callback of the queue that is destroyed may still do what it likes, with other queues. */
static struct {
    gpusync_queue *own, *other;
    gpusync_result on_own, on_other;
    outcome outcome;
} last_words;

static void submit_last_words(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)result;
    (void)error;
    last_words.on_own = TRY_SUBMIT(last_words.own, NULL, .flags = 0);
    last_words.on_other = TRY_SUBMIT(last_words.other, NULL, BUFFERS(buffer_of(last_words.other)),
                                     TELL(&last_words.outcome));
}

static void test_a_callback_in_destroy_may_submit_to_other_queues(void **state)
{
    gpusync_submission submission;
    gpusync_point wait;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 2, 0);
    memset(&last_words, 0, sizeof last_words);
    last_words.own = s.q[0];
    last_words.other = s.q[1];
    wait = at(s.t[0], 1);
    memset(&submission, 0, sizeof submission);
    submission.waits = &wait;
    submission.wait_count = 1;
    submission.on_complete = submit_last_words;
    assert_ok(gpusync_submit(s.q[0], &submission, NULL));
    destroy_queue(&s, 0, false);
    assert_result(last_words.on_own, GPUSYNC_ERROR_DESTROYED);
    assert_ok(last_words.on_other);
    assert_ended(&last_words.outcome, GPUSYNC_OK);
    close_idle_stage(&s);
}

/* -- a device that goes ----------------------------------------------------------------------------------- */

static void test_the_loss_of_the_device_ends_what_is_held(void **state)
{
    outcome first = {0}, behind = {0}, other = {0}, strict = {0}, flying = {0};
    wait_job on_first, on_all;
    gpusync_ticket ticket, held;
    void *buffer, *late;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_REAL, 3, 0);
    buffer = buffer_of(s.q[2]);
    metal_retain(buffer);
    softmetal_hang(buffer);
    SUBMIT(s.q[2], SIGNALS(at(s.t[2], 1)), BUFFERS(buffer), TELL(&flying));
    held = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), SIGNALS(at(s.t[1], 1)), BUFFERS(buffer_of(s.q[0])), TELL(&first));
    SUBMIT(s.q[0], BUFFERS(buffer_of(s.q[0])), TELL(&behind));
    hold_on(s.q[1], s.t[1], 1, &other);
    SUBMIT(s.q[1], WAITS(at(s.t[2], 1)), BUFFERS(buffer_of(s.q[1])), .flags = GPUSYNC_STRICT | GPUSYNC_UNORDERED,
           TELL(&strict));
    late = buffer_of(s.q[0]);
    wait_job_start(&on_first, s.q[0], held, GPUSYNC_FOREVER);
    wait_job_start(&on_all, s.q[1], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(s.device, 2);
    softmetal_remove_device(s.rig.metal_device);
    assert_true(wait_job_join(&on_first) < 0);
    assert_result(wait_job_join(&on_all), GPUSYNC_ERROR_DEVICE_LOST);
    await_call(&flying);
    await_call(&strict);
    await_call(&other);
    assert_ended(&first, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ended(&behind, GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(TRY_SUBMIT(s.q[0], &ticket, BUFFERS(late)), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(held_on(s.device, s.q[0]) + held_on(s.device, s.q[1]), 0);
    metal_release(buffer);
    close_idle_stage(&s);
}

/* -- released by a callback ------------------------------------------------------------------------------- */

static void signal_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    assert_ok(result);
    assert_null(error);
    assert_ok(gpusync_timeline_signal((gpusync_timeline *)user, 1));
}

/* A commit that is stopped inside Metal, with the order lock. */
typedef struct stopped_commit {
    void *buffer;
    gate entered, leave;
    gpusync_queue *queue;
} stopped_commit;

static void stop_in_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    stopped_commit *stop = (stopped_commit *)user;
    if (phase != SOFTMETAL_AFTER || object != stop->buffer || strcmp(selector, "commit") != 0) return;
    gate_wait(&stop->entered);
    gate_wait(&stop->leave);
}

static void *commit_body(void *argument)
{
    stopped_commit *stop = (stopped_commit *)argument;
    assert_ok(gpusync_commit(stop->queue, stop->buffer, NULL));
    return NULL;
}

/* The callback does not wait for the lock, and the work goes as soon as the lock is free. */
static void test_a_signal_in_a_callback_lets_work_go_while_another_thread_has_the_order_lock(void **state)
{
    gpusync_submission submission;
    stopped_commit stop;
    gpusync_ticket held;
    pthread_t thread;
    void *buffer, *waiting;
    stage s;
    (void)state;
    open_held_stage(&s, SOFTMETAL_MANUAL, 2, 0);
    waiting = metal_retain(buffer_of(s.q[0]));
    buffer = buffer_of(s.q[1]);
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.on_complete = signal_in_callback;
    submission.user = s.t[0];
    assert_ok(gpusync_submit(s.q[1], &submission, NULL));
    memset(&stop, 0, sizeof stop);
    gate_init(&stop.entered, 2);
    gate_init(&stop.leave, 2);
    stop.queue = s.q[0];
    stop.buffer = buffer_of(s.q[0]);
    held = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(waiting), .flags = GPUSYNC_UNORDERED);
    softmetal_set_message_hook(stop_in_commit, &stop);
    thread = start(commit_body, &stop);
    gate_wait(&stop.entered);
    softmetal_finish(buffer);
    assert_true(softmetal_dispatched(SECONDS(20))); /* the callback has come to its end */
    assert_int_equal(value_of(s.t[0]), 1);
    assert_int_equal(metal_status(waiting), 0); /* it could go, and cannot yet */
    gate_wait(&stop.leave);
    join(thread);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(metal_status(waiting), 2);
    metal_release(waiting);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_ok(gpusync_wait(s.q[0], held, 0));
    gate_destroy(&stop.entered);
    gate_destroy(&stop.leave);
    close_idle_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_comes_behind_a_held_submission_is_committed_after_it_in_the_order_of_tickets),
        cmocka_unit_test(test_only_what_is_behind_the_second_wait_stays_when_the_first_is_over),
        cmocka_unit_test(test_held_work_does_its_work_in_the_order_of_the_queue),
        cmocka_unit_test(test_an_unordered_submission_passes_what_is_held),
        cmocka_unit_test(test_an_unordered_submission_that_is_held_lets_others_pass),
        cmocka_unit_test(test_among_held_submissions_the_flag_works_both_ways),
        cmocka_unit_test(test_a_wait_before_its_signal_on_one_queue_needs_the_flag),
        cmocka_unit_test(test_a_submission_cannot_wait_for_its_own_signal),
        cmocka_unit_test(test_tracked_work_does_not_line_up),
        cmocka_unit_test(test_a_long_chain_over_queues_goes_at_the_first_signal),
        cmocka_unit_test(test_a_long_chain_on_one_queue_goes_at_the_first_signal),
        cmocka_unit_test(test_a_long_chain_of_tickets_goes_at_the_first_signal),
        cmocka_unit_test(test_a_long_chain_fails_with_the_error_of_its_first_link),
        cmocka_unit_test(test_a_long_chain_ends_where_the_first_of_its_queues_is_cancelled),
        cmocka_unit_test(test_a_long_chain_that_has_run_is_told_of_when_its_first_link_is),
        cmocka_unit_test(test_callbacks_that_lead_to_callbacks_run_one_after_the_other),
        cmocka_unit_test(test_what_is_held_is_not_done),
        cmocka_unit_test(test_waits_that_began_while_it_was_held_end_when_it_has),
        cmocka_unit_test(test_a_callback_cannot_wait_for_what_is_held),
        cmocka_unit_test(test_an_eighth_of_the_queue_is_kept_free_of_what_is_held),
        cmocka_unit_test(test_an_unordered_submission_is_subject_to_the_limit_only_where_it_is_held),
        cmocka_unit_test(test_where_no_room_can_come_a_submission_says_so_at_once),
        cmocka_unit_test(test_a_submission_waits_for_room_as_long_as_it_may),
        cmocka_unit_test(test_an_enqueued_command_buffer_cannot_be_held),
        cmocka_unit_test(test_a_command_buffer_that_is_held_is_refused_everywhere),
        cmocka_unit_test(test_cancel_ends_what_is_held_and_all_that_waits_for_it),
        cmocka_unit_test(test_cancel_leaves_alone_what_is_on_the_device),
        cmocka_unit_test(test_cancel_inside_a_callback_nests_no_callbacks),
        cmocka_unit_test(test_objects_to_be_released_after_a_held_ticket_are),
        cmocka_unit_test(test_held_work_is_never_issued_when_its_timeline_fails),
        cmocka_unit_test(test_held_work_gets_the_error_of_the_producer_that_was_killed),
        cmocka_unit_test(test_of_several_failures_the_one_of_the_first_wait_is_told),
        cmocka_unit_test(test_held_work_behind_a_value_that_was_reached_goes_before_the_failure),
        cmocka_unit_test(test_an_expected_value_lets_held_work_go_to_the_device),
        cmocka_unit_test(test_work_for_a_timeline_that_others_signal_is_not_held),
        cmocka_unit_test(test_a_signal_on_its_way_lets_held_work_go_to_the_device),
        cmocka_unit_test(test_held_work_ends_with_the_timeline_of_a_value_that_nobody_promised),
        cmocka_unit_test(test_held_work_outlives_the_timeline_of_a_value_that_is_promised),
        cmocka_unit_test(test_work_in_flight_goes_on_with_the_event_of_a_timeline_that_went),
        cmocka_unit_test(test_held_work_for_a_signalled_value_behind_a_promise_outlives_the_timeline),
        cmocka_unit_test(test_destroy_gives_up_what_is_held_and_who_waits_for_it),
        cmocka_unit_test(test_destroy_now_ends_what_depends_on_work_in_flight),
        cmocka_unit_test(test_destroy_now_of_the_waiting_side_takes_its_waits_back),
        cmocka_unit_test(test_destroy_waits_for_work_whose_waits_are_on_their_way),
        cmocka_unit_test(test_a_callback_in_destroy_may_submit_to_other_queues),
        cmocka_unit_test(test_the_loss_of_the_device_ends_what_is_held),
        cmocka_unit_test(test_a_signal_in_a_callback_lets_work_go_while_another_thread_has_the_order_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
