/* test_signposts.c - examples/signposts.h: each interval begins once and ends once

   A teller notes each begin and each end. First the trace comes from a device: work that ends well, fails, is held, is given
   up, and waits of every kind. Then the events are made up: they come in every order in which several threads may tell
   them.

   It also runs on queues of Metal 4. */
#include "stage.h"
#include "../examples/signposts.h"

enum { MOST = 4096 };

typedef struct noted {
    signposts_interval interval; /* as it ended */
    unsigned begins, ends;
    uint64_t begun_ns, ended_ns;
} noted;

typedef struct notes {
    signposts posts;
    noted all[MOST]; /* by serial number */
} notes;

static notes n; /* of the test that runs */

static void note(signposts *s, bool begins, signposts_interval *interval, uint64_t time_ns)
{
    noted *at;
    if (s != &n.posts || !interval->serial || interval->serial >= MOST) abort();
    at = &n.all[interval->serial];
    at->interval = *interval;
    if (begins) at->begins++, at->begun_ns = time_ns;
    else at->ends++, at->ended_ns = time_ns;
}

static void open_notes(void)
{
    memset(&n, 0, sizeof n);
    signposts_init(&n.posts, note, NULL);
}

/* Each that was told has begun and ended, once and in this order; there are so many of each kind. */
static void close_notes(unsigned tickets, unsigned held, unsigned waits)
{
    unsigned counts[SIGNPOSTS_KINDS] = {0}, i;
    assert_int_equal(n.posts.count, 0);
    assert_int_equal(n.posts.lost, 0);
    for (i = 1; i <= n.posts.begun; i++) {
        assert_int_equal(n.all[i].begins, 1);
        assert_int_equal(n.all[i].ends, 1);
        assert_true(n.all[i].begun_ns <= n.all[i].ended_ns);
        counts[n.all[i].interval.kind]++;
    }
    assert_int_equal(n.posts.begun, n.posts.ended);
    assert_int_equal(counts[SIGNPOSTS_TICKET], tickets);
    assert_int_equal(counts[SIGNPOSTS_HELD], held);
    assert_int_equal(counts[SIGNPOSTS_WAIT], waits);
    signposts_destroy(&n.posts);
    assert_int_equal(n.posts.begun, n.posts.ended);
}

/* The one interval of this kind and number. */
static const noted *the(signposts_kind kind, uint64_t number)
{
    const noted *found = NULL;
    unsigned i;
    for (i = 1; i <= n.posts.begun; i++) {
        if (n.all[i].interval.kind != kind || n.all[i].interval.number != number) continue;
        assert_null(found);
        found = &n.all[i];
    }
    assert_non_null(found);
    return found;
}

static void assert_running(signposts_kind kind, uint64_t number)
{
    assert_int_equal(the(kind, number)->begins, 1);
    assert_int_equal(the(kind, number)->ends, 0);
}

static void assert_over(signposts_kind kind, uint64_t number, gpusync_result result)
{
    assert_int_equal(the(kind, number)->ends, 1);
    assert_result(the(kind, number)->interval.result, result);
}

/* A wait may end when the status says so, and destroy does not wait for a handler that has not begun: it alone tells. */
static void await_handlers(rig *r)
{
    gpusync_wait_options options;
    memset(&options, 0, sizeof options);
    options.handlers = true;
    assert_ok(gpusync_wait_ex(r->queue, GPUSYNC_EVERYTHING, SECONDS(20), &options));
}

/* -- from a device ------------------------------------------------------------------------------------------------- */

static void open_traced(rig *r, softmetal_clock clock)
{
    rig_open_hooked(r, clock, NULL, 0);
    open_notes();
    assert_ok(gpusync_set_trace(r->device, signposts_trace, &n.posts));
}

static void test_ended_well(void **state)
{
    rig r;
    void *buffer;
    gpusync_ticket ticket;
    (void)state;
    open_traced(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    assert_running(SIGNPOSTS_TICKET, ticket);
    softmetal_finish(buffer);
    assert_over(SIGNPOSTS_TICKET, ticket, GPUSYNC_OK);
    assert_true(the(SIGNPOSTS_TICKET, ticket)->interval.gpu_s > 0);
    rig_close(&r);
    close_notes(1, 0, 0);
}

static void test_failed(void **state)
{
    rig r;
    void *buffer;
    gpusync_ticket ticket;
    (void)state;
    open_traced(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    softmetal_fail(buffer, NULL, 3, "page fault");
    softmetal_finish(buffer);
    assert_over(SIGNPOSTS_TICKET, ticket, GPUSYNC_ERROR_EXECUTION);
    rig_close(&r);
    close_notes(1, 0, 0);
}

/* A submission, and behind it a commit, which lines up. */
static void hold_two(rig *r, gpusync_timeline **waits, gpusync_ticket tickets[2])
{
    gpusync_submission work;
    gpusync_point wait;
    void *made = open_buffer(r), *behind;
    *waits = timeline_named(r->device, "waits");
    wait = at(*waits, 1);
    memset(&work, 0, sizeof work);
    work.waits = &wait;
    work.wait_count = 1;
    work.command_buffers = &made;
    work.command_buffer_count = 1;
    work.label = "the work";
    assert_ok(submit_as_told(r->queue, &work, &tickets[0]));
    tickets[1] = commit_empty(r, &behind);
    assert_running(SIGNPOSTS_TICKET, tickets[0]);
    assert_running(SIGNPOSTS_TICKET, tickets[1]);
    assert_running(SIGNPOSTS_HELD, tickets[0]);
    assert_running(SIGNPOSTS_HELD, tickets[1]);
    assert_string_equal(the(SIGNPOSTS_HELD, tickets[0])->interval.label, "the work");
}

static void test_held(void **state)
{
    rig r;
    gpusync_timeline *waits;
    gpusync_ticket tickets[2];
    unsigned i;
    (void)state;
    open_traced(&r, SOFTMETAL_MANUAL);
    hold_two(&r, &waits, tickets);
    assert_ok(gpusync_timeline_signal(waits, 1));
    for (i = 0; i < 2; i++) {
        assert_over(SIGNPOSTS_HELD, tickets[i], GPUSYNC_OK);
        assert_running(SIGNPOSTS_TICKET, tickets[i]); /* on the device now */
    }
    softmetal_finish_queue(r.metal_queue);
    for (i = 0; i < 2; i++) assert_over(SIGNPOSTS_TICKET, tickets[i], GPUSYNC_OK);
    assert_ok(gpusync_timeline_destroy(waits));
    rig_close(&r);
    close_notes(2, 2, 0);
}

/* It never runs: both of its intervals end together. */
static void test_held_and_cancelled(void **state)
{
    rig r;
    gpusync_timeline *waits;
    gpusync_ticket tickets[2];
    unsigned i;
    (void)state;
    open_traced(&r, SOFTMETAL_MANUAL);
    hold_two(&r, &waits, tickets);
    assert_ok(gpusync_cancel_held(r.queue));
    for (i = 0; i < 2; i++) {
        assert_over(SIGNPOSTS_HELD, tickets[i], GPUSYNC_ERROR_CANCELLED);
        assert_over(SIGNPOSTS_TICKET, tickets[i], GPUSYNC_ERROR_CANCELLED);
        assert_true(the(SIGNPOSTS_TICKET, tickets[i])->interval.gpu_s == 0);
    }
    assert_ok(gpusync_timeline_destroy(waits));
    rig_close(&r);
    close_notes(2, 2, 0);
}

static void test_held_for_what_fails(void **state)
{
    rig r;
    gpusync_timeline *waits;
    gpusync_ticket tickets[2];
    gpusync_error reason;
    (void)state;
    open_traced(&r, SOFTMETAL_MANUAL);
    hold_two(&r, &waits, tickets);
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_EXECUTION;
    assert_ok(gpusync_timeline_fail(waits, &reason));
    assert_over(SIGNPOSTS_HELD, tickets[0], GPUSYNC_ERROR_EXECUTION);
    assert_over(SIGNPOSTS_TICKET, tickets[0], GPUSYNC_ERROR_EXECUTION);
    assert_over(SIGNPOSTS_HELD, tickets[1], GPUSYNC_OK); /* nothing stands before it any more */
    softmetal_finish_queue(r.metal_queue);
    assert_over(SIGNPOSTS_TICKET, tickets[1], GPUSYNC_OK);
    assert_ok(gpusync_timeline_destroy(waits));
    rig_close(&r);
    close_notes(2, 2, 0);
}

static void test_work_of_others(void **state)
{
    rig r;
    void *buffer;
    gpusync_ticket ticket;
    (void)state;
    NOT_ON_METAL4("no track");
    open_traced(&r, SOFTMETAL_MANUAL);
    ticket = track_a_buffer(&r, &buffer);
    assert_running(SIGNPOSTS_TICKET, ticket);
    metal_commit(buffer);
    softmetal_finish(buffer);
    assert_over(SIGNPOSTS_TICKET, ticket, GPUSYNC_OK);
    metal_release(buffer);

    ticket = track_a_buffer(&r, &buffer); /* its owner thinks better of it */
    assert_ok(gpusync_untrack(r.queue, ticket));
    assert_over(SIGNPOSTS_TICKET, ticket, GPUSYNC_ERROR_CANCELLED);
    metal_release(buffer);
    rig_close(&r);
    close_notes(2, 0, 0);
}

static void test_waits(void **state)
{
    rig r;
    wait_job jobs[2];
    void *buffer;
    gpusync_ticket ticket;
    gpusync_timeline *timeline;
    gpusync_point points[2];
    (void)state;
    open_traced(&r, SOFTMETAL_MANUAL);
    timeline = timeline_named(r.device, "values");
    ticket = commit_empty(&r, &buffer);
    assert_result(gpusync_wait(r.queue, ticket, 0), GPUSYNC_TIMEOUT);
    assert_over(SIGNPOSTS_WAIT, ticket, GPUSYNC_TIMEOUT);
    wait_job_start(&jobs[0], r.queue, ticket, GPUSYNC_FOREVER); /* two for the same */
    wait_job_start(&jobs[1], r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    assert_int_equal(n.posts.begun - n.posts.ended, 3);
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&jobs[0]));
    assert_ok(wait_job_join(&jobs[1]));
    points[0] = at(timeline, 1), points[1] = after(r.queue, ticket);
    assert_result(gpusync_timeline_wait(timeline, 1, 0, NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, 0, NULL, NULL));
    assert_ok(gpusync_queue_wait(r.queue, GPUSYNC_FOREVER));
    assert_ok(gpusync_device_wait(r.device, GPUSYNC_FOREVER, NULL));
    assert_result(gpusync_wait(r.queue, ticket + 1, 0), GPUSYNC_ERROR_INVALID_TICKET); /* no wait */
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
    close_notes(1, 0, 7);
}

/* No event tells how its work ends. A queue that is made later may have the same address, and has tickets from 1 on. */
static void test_a_queue_goes_at_once(void **state)
{
    rig r;
    void *buffer;
    gpusync_ticket ticket;
    (void)state;
    open_traced(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    metal_retain(buffer);
    assert_ok(gpusync_queue_destroy_now(r.queue));
    assert_true(softmetal_dispatched(SECONDS(20)));
    softmetal_finish(buffer);
    metal_release(buffer);
    assert_over(SIGNPOSTS_TICKET, ticket, GPUSYNC_ERROR_DESTROYED);
    r.queue = NULL;
    rig_close(&r);
    assert_int_equal(signposts_end_open(&n.posts), 0);
    close_notes(1, 0, 0);
}

enum { THREADS = 4, ROUNDS = 50 };

static void *commit_and_wait(void *argument)
{
    rig *r = (rig *)argument;
    unsigned i;
    for (i = 0; i < ROUNDS; i++) {
        void *buffer;
        gpusync_ticket ticket;
        must(either_buffer(r->queue, NULL, &buffer) == GPUSYNC_OK, "a command buffer");
        must(either_commit(r->queue, buffer, &ticket) == GPUSYNC_OK, "a commit");
        must(gpusync_wait(r->queue, ticket, GPUSYNC_FOREVER) == GPUSYNC_OK, "a wait");
    }
    return NULL;
}

/* On the real clock work may end before its commit is told. */
static void test_many_threads(void **state)
{
    pthread_t threads[THREADS];
    rig r;
    unsigned i;
    (void)state;
    open_traced(&r, SOFTMETAL_REAL);
    for (i = 0; i < THREADS; i++) threads[i] = start(commit_and_wait, &r);
    for (i = 0; i < THREADS; i++) join(threads[i]);
    await_handlers(&r);
    rig_close(&r);
    close_notes(THREADS * ROUNDS, 0, THREADS * ROUNDS + 1);
}

/* -- made up ------------------------------------------------------------------------------------------------------- */

static char somewhere[2]; /* queues, as far as a pointer tells */

static void tell(gpusync_trace_kind kind, unsigned queue, gpusync_ticket ticket, gpusync_result result)
{
    gpusync_trace_event event;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.time_ns = gpusync_now_ns();
    event.queue = (const gpusync_queue *)(const void *)&somewhere[queue];
    event.ticket = ticket;
    event.result = result;
    event.label = "made up";
    signposts_trace(&n.posts, &event);
}

/* C: commit or submission, H: hold, I: issue, E: its end. C is before H, as one thread tells both; I is before E. */
static void test_every_order(void **state)
{
    static const char *const orders[] = {"CE",  "EC",   "CIE",  "ICE",  "IEC",  "CHE",  "CEH",
                                         "ECH", "CHIE", "CIHE", "CIEH", "ICHE", "ICEH", "IECH"};
    size_t i, k;
    (void)state;
    for (i = 0; i < LENGTH(orders); i++) {
        bool held = strchr(orders[i], 'H') != NULL;
        open_notes();
        tell(GPUSYNC_TRACE_COMMIT, 1, 7, GPUSYNC_OK); /* another queue's ticket of the same number */
        for (k = 0; orders[i][k]; k++) {
            switch (orders[i][k]) {
            case 'C': tell(k % 2 ? GPUSYNC_TRACE_COMMIT : GPUSYNC_TRACE_SUBMIT, 0, 7, GPUSYNC_OK); break;
            case 'H': tell(GPUSYNC_TRACE_HOLD, 0, 7, GPUSYNC_OK); break;
            case 'I': tell(GPUSYNC_TRACE_ISSUE, 0, 7, GPUSYNC_OK); break;
            default: tell(GPUSYNC_TRACE_COMPLETED, 0, 7, GPUSYNC_ERROR_EXECUTION); break;
            }
            tell(GPUSYNC_TRACE_CALLBACK, 0, 7, GPUSYNC_OK); /* as if nothing was */
        }
        assert_int_equal(n.posts.begun - n.posts.ended, 1); /* that of the other queue */
        tell(GPUSYNC_TRACE_COMPLETED, 1, 7, GPUSYNC_OK);
        for (k = 1; k <= n.posts.begun; k++) {
            const signposts_interval *told = &n.all[k].interval;
            bool ended_well = told->about == &somewhere[1] ||
                              (told->kind == SIGNPOSTS_HELD &&
                               strcmp(orders[i], "CHE") != 0); /* else it was issued, or over before */
            assert_result(told->result, ended_well ? GPUSYNC_OK : GPUSYNC_ERROR_EXECUTION);
        }
        close_notes(2, held, 0);
    }
}

/* The same address and number again, while the first was never told to have ended. */
static void test_a_number_again(void **state)
{
    (void)state;
    open_notes();
    tell(GPUSYNC_TRACE_COMMIT, 0, 1, GPUSYNC_OK);
    tell(GPUSYNC_TRACE_COMMIT, 0, 1, GPUSYNC_OK);
    assert_int_equal(n.posts.ended, 1);
    assert_result(n.all[1].interval.result, GPUSYNC_ERROR_DESTROYED);
    tell(GPUSYNC_TRACE_COMPLETED, 0, 1, GPUSYNC_OK);
    assert_result(n.all[2].interval.result, GPUSYNC_OK);
    close_notes(2, 0, 0);
}

static void *end_a_wait(void *argument)
{
    tell(GPUSYNC_TRACE_WAIT_END, 0, 3, *(gpusync_result *)argument);
    return NULL;
}

static void *wait_here(void *argument)
{
    tell(GPUSYNC_TRACE_WAIT_BEGIN, 0, 3, GPUSYNC_OK);
    return end_a_wait(argument);
}

/* A thread ends its own wait, though another is for the same. A fiber may end its wait on a thread that began none. */
static void test_waits_of_threads_and_fibers(void **state)
{
    gpusync_result timeout = GPUSYNC_TIMEOUT, ok = GPUSYNC_OK;
    (void)state;
    open_notes();
    tell(GPUSYNC_TRACE_WAIT_BEGIN, 0, 3, GPUSYNC_OK);
    join(start(wait_here, &timeout));
    assert_int_equal(n.all[1].ends, 0);
    assert_result(n.all[2].interval.result, GPUSYNC_TIMEOUT);
    join(start(end_a_wait, &ok));
    assert_int_equal(n.all[1].ends, 1);
    tell(GPUSYNC_TRACE_WAIT_END, 0, 3, GPUSYNC_OK); /* the trace was set after its begin */
    assert_int_equal(n.posts.lost, 1);
    n.posts.lost = 0;
    close_notes(0, 0, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ended_well),
        cmocka_unit_test(test_failed),
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_held_and_cancelled),
        cmocka_unit_test(test_held_for_what_fails),
        cmocka_unit_test(test_work_of_others),
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_a_queue_goes_at_once),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_every_order),
        cmocka_unit_test(test_a_number_again),
        cmocka_unit_test(test_waits_of_threads_and_fibers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
