/* test_handlers.c - gpusync_wait_options.handlers: a wait that goes on until the completed handlers have run

   On the manual clock a command buffer ends (softmetal_complete) well before its handlers run. */
#include "probe.h"
#include "stage.h"

static const gpusync_wait_options with_handlers = {.handlers = true};

static gpusync_result handled(gpusync_queue *queue, gpusync_ticket ticket)
{
    return gpusync_wait_ex(queue, ticket, 0, &with_handlers);
}

static void wait_handled(wait_job *job, gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns)
{
    memset(job, 0, sizeof *job);
    job->queue = queue;
    job->ticket = ticket;
    job->timeout_ns = timeout_ns;
    job->options = &with_handlers;
    job->thread = start(wait_job_body, job);
}

static void run_handler(void *buffer)
{
    softmetal_run_handler(buffer, softmetal_handler_count(buffer) - 1);
    softmetal_finish(buffer);
}

static void commit_three(rig *r, void *buffers[3], gpusync_ticket tickets[3])
{
    int i;
    for (i = 0; i < 3; i++) tickets[i] = commit_empty(r, &buffers[i]);
    for (i = 0; i < 3; i++) softmetal_complete(buffers[i]);
    for (i = 0; i < 3; i++) assert_ok(gpusync_poll(r->queue, tickets[i]));
}

/* Until a wait sleeps for the handler of ticket 1. */
static void await_the_handler_wait(gpusync_device *device)
{
    bool there = false;
    while (!there) {
        char *report = report_of(device);
        there = strstr(report, "a wait for the handler of ticket 1") != NULL;
        free(report);
        sched_yield();
    }
}

/* -- one ticket ----------------------------------------------------------------------------------------------------- */

static void test_work_that_has_ended_still_owes_its_handler(void **state)
{
    gpusync_ticket ticket;
    wait_job job;
    void *buffer;
    char *report;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    assert_result(handled(r.queue, ticket), GPUSYNC_TIMEOUT);
    softmetal_complete(buffer);
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER)); /* the GPU is finished, */
    assert_result(handled(r.queue, ticket), GPUSYNC_TIMEOUT);  /* ... its handlers have not run */
    assert_result(handled(r.queue, GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
    wait_handled(&job, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    report = report_of(r.device);
    assert_non_null(strstr(report, "a wait for the handler of ticket 1"));
    free(report);
    run_handler(buffer);
    assert_ok(wait_job_join(&job));
    assert_ok(handled(r.queue, ticket));
    assert_ok(handled(r.queue, GPUSYNC_EVERYTHING));
    assert_ok(handled(r.queue, GPUSYNC_NO_TICKET));
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    rig_close(&r);
}

/* The end wakes the sleeper, which then sleeps on for the handler. */
static void test_a_sleeper_before_the_end_sleeps_on_for_the_handler(void **state)
{
    gpusync_ticket ticket;
    wait_job job, other;
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    wait_handled(&job, r.queue, ticket, GPUSYNC_FOREVER);
    wait_job_start(&other, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(r.queue, ticket));
    assert_ok(wait_job_join(&other));
    await_the_handler_wait(r.device);
    run_handler(buffer);
    assert_ok(wait_job_join(&job));
    rig_close(&r);
}

/* ... though the sweeper has taken it for lost, and given back its room. */
static void test_a_handler_that_was_taken_for_lost_is_waited_for(void **state)
{
    gpusync_ticket ticket;
    wait_job job;
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    softmetal_let_timers_run(true);
    ticket = commit_empty(&r, &buffer);
    softmetal_complete(buffer);
    wait_handled(&job, r.queue, ticket, GPUSYNC_FOREVER);
    while (rooms_taken(r.queue)) sched_yield();
    must_return_within(20);
    await_the_handler_wait(r.device); /* it was woken with the waiters for the room, and sleeps on */
    has_returned();
    run_handler(buffer);
    assert_ok(wait_job_join(&job));
    rig_close(&r);
}

static long unparks;

static void count_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    COUNT(&unparks);
    thread_unpark(waiter);
}

static void just_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    thread_park(waiter, deadline_ns);
}

/* The waits are more than the library tells of an end in one go. A look that finds the end tells none of them: they wait
   for the handler. */
static void test_a_wait_for_a_handler_sleeps_on_when_a_look_finds_the_end(void **state)
{
    enum { CROWD = 80 };
    gpusync_hooks hooks = {NULL, just_park, count_unpark, NULL};
    wait_job jobs[CROWD];
    gpusync_ticket ticket;
    void *buffer;
    int i;
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    PUT(&unparks, 0);
    ticket = commit_empty(&r, &buffer);
    for (i = 0; i < CROWD; i++) wait_handled(&jobs[i], r.queue, i % 2 ? ticket : GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, CROWD);
    softmetal_complete(buffer);
    must_return_within(20);
    assert_ok(gpusync_poll(r.queue, ticket));
    has_returned();
    assert_int_equal(GET(&unparks), 0);
    await_sleepers(r.device, CROWD);
    run_handler(buffer);
    for (i = 0; i < CROWD; i++) assert_ok(wait_job_join(&jobs[i]));
    assert_int_equal(GET(&unparks), CROWD);
    rig_close(&r);
}

/* More than the library wakes in one go. */
static void test_all_waits_for_one_handler_are_woken_however_many_there_are(void **state)
{
    enum { CROWD = 40 };
    gpusync_hooks hooks = {NULL, just_park, count_unpark, NULL};
    wait_job jobs[CROWD];
    gpusync_ticket ticket;
    void *buffer;
    int i;
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    ticket = commit_empty(&r, &buffer);
    softmetal_complete(buffer);
    for (i = 0; i < CROWD; i++) wait_handled(&jobs[i], r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, CROWD);
    assert_ok(gpusync_poll(r.queue, ticket)); /* it is the handler that all of them wait for */
    PUT(&unparks, 0);
    run_handler(buffer);
    assert_int_equal(GET(&unparks), CROWD);
    for (i = 0; i < CROWD; i++) assert_ok(wait_job_join(&jobs[i]));
    rig_close(&r);
}

/* The end comes at each point of the wait; at the latest when it sleeps. Then another thread waits for it to sleep for the
   handler, which it runs. */
typedef struct ending {
    rig r;
    void *buffer;
    gpusync_ticket ticket;
    pthread_t thread;
    bool ended, asleep;
} ending;
static ending the_end;

static void *run_the_handler(void *argument)
{
    (void)argument;
    await_the_handler_wait(the_end.r.device);
    run_handler(the_end.buffer);
    return NULL;
}

static void end_it(void *argument)
{
    (void)argument;
    the_end.ended = true;
    softmetal_complete(the_end.buffer);
    assert_ok(gpusync_poll(the_end.r.queue, the_end.ticket));
    the_end.thread = start(run_the_handler, NULL);
}

static void park_at_the_end(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    if (!the_end.ended) {
        (void)probe_has_acted();
        the_end.asleep = true;
        end_it(NULL);
    }
    probe_default_hooks().park(user, waiter, deadline_ns);
}

static void test_the_end_may_come_at_any_place_of_the_wait(void **state)
{
    gpusync_hooks hooks = probe_default_hooks();
    int place = 0;
    (void)state;
    hooks.park = park_at_the_end;
    do {
        place++;
        memset(&the_end, 0, sizeof the_end);
        rig_open_hooked(&the_end.r, SOFTMETAL_MANUAL, &hooks, 0);
        the_end.ticket = commit_empty(&the_end.r, &the_end.buffer);
        probe_at_each(place, end_it, NULL);
        assert_ok(gpusync_wait_ex(the_end.r.queue, the_end.ticket, GPUSYNC_FOREVER, &with_handlers));
        join(the_end.thread);
        rig_close(&the_end.r);
    } while (!the_end.asleep);
    assert_true(place > 1);
}

static void test_a_handler_that_never_comes_is_a_timeout(void **state)
{
    gpusync_ticket ticket;
    wait_job job;
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    softmetal_let_timers_run(true);
    ticket = commit_empty(&r, &buffer);
    softmetal_lose_handlers(buffer);
    softmetal_finish(buffer);
    wait_handled(&job, r.queue, ticket, MS(200)); /* the sweeper comes meanwhile, and changes nothing */
    assert_result(wait_job_join(&job), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_wait(r.queue, ticket, 0));
    assert_result(handled(r.queue, GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
    wait_handled(&job, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    assert_ok(gpusync_queue_destroy(r.queue));
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DESTROYED);
    r.queue = NULL;
    rig_close(&r);
}

/* A handler that has not come is given up with the work of a lost device. The failure that lost it is told; work that
   ended well does not say so: its handlers may still run. The other waits know of no handler. */
static void test_a_failure_is_told_though_the_device_is_lost_with_it(void **state)
{
    static const gpusync_wait_for ways[] = {GPUSYNC_WAIT_ANY, GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ALL_OR_FAILURE};
    gpusync_wait_options options = with_handlers;
    gpusync_ticket well, badly;
    gpusync_point points[2];
    gpusync_error error;
    void *first, *second;
    size_t i, which;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    options.error = &error;
    well = commit_empty(&r, &first);
    badly = commit_empty(&r, &second);
    softmetal_fail(second, NULL, 11, NULL);
    softmetal_complete(first);
    softmetal_complete(second);
    assert_result(gpusync_wait_ex(r.queue, badly, 0, &options), GPUSYNC_TIMEOUT);
    assert_true(gpusync_device_is_lost(r.device));
    assert_result(gpusync_wait(r.queue, badly, GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
    assert_result(handled(r.queue, well), GPUSYNC_TIMEOUT);
    assert_result(handled(r.queue, GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
    probe_give_up_lost(r.device);
    assert_result(gpusync_wait_ex(r.queue, badly, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.code, 11);
    assert_result(gpusync_wait_ex(r.queue, well, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(error.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ok(gpusync_wait(r.queue, well, GPUSYNC_FOREVER));
    points[0] = gpusync_at_ticket(r.queue, badly);
    points[1] = gpusync_at_ticket(r.queue, well);
    for (i = 0; i < 3; i++) {
        memset(&error, 0, sizeof error);
        assert_result(gpusync_wait_many(points, 2, ways[i], GPUSYNC_FOREVER, &options, &which),
                      GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(which, 0);
        assert_int_equal(error.code, 11);
        assert_result(gpusync_wait_many(points + 1, 1, ways[i], GPUSYNC_FOREVER, &options, &which),
                      GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(error.result, GPUSYNC_ERROR_DEVICE_LOST);
    }
    softmetal_finish(first);
    softmetal_finish(second);
    assert_ok(gpusync_wait(r.queue, well, GPUSYNC_FOREVER));
    rig_close(&r);
}

/* ... until then a wait on a lost device gets the handler that comes. */
static void test_on_a_lost_device_a_handler_is_waited_for(void **state)
{
    gpusync_ticket well, badly;
    wait_job jobs[3];
    void *first, *second;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    well = commit_empty(&r, &first);
    badly = commit_empty(&r, &second);
    softmetal_complete(first);
    wait_handled(&jobs[0], r.queue, well, GPUSYNC_FOREVER);
    wait_handled(&jobs[1], r.queue, badly, GPUSYNC_FOREVER);
    wait_handled(&jobs[2], r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 3);
    softmetal_fail(second, NULL, 11, NULL);
    softmetal_finish(second);
    assert_true(gpusync_device_is_lost(r.device));
    assert_result(wait_job_join(&jobs[1]), GPUSYNC_ERROR_EXECUTION);
    await_sleepers(r.device, 2);
    assert_result(handled(r.queue, well), GPUSYNC_TIMEOUT);
    softmetal_finish(first);
    assert_ok(wait_job_join(&jobs[0]));
    assert_result(wait_job_join(&jobs[2]), GPUSYNC_ERROR_DEVICE_LOST);
    assert_ok(handled(r.queue, well));
    rig_close(&r);
}

static void test_giving_up_ends_the_wait_for_a_handler(void **state)
{
    gpusync_ticket tickets[3];
    wait_job jobs[4];
    void *buffers[3], *fatal;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 3; i++) tickets[i] = commit_empty(&r, &buffers[i]);
    commit_empty(&r, &fatal);
    softmetal_fail(buffers[1], "TestDomain", 42, "it broke");
    softmetal_complete(buffers[0]); /* well, */
    softmetal_complete(buffers[1]); /* badly, and the third one has not ended */
    for (i = 0; i < 3; i++) wait_handled(&jobs[i], r.queue, tickets[i], GPUSYNC_FOREVER);
    wait_handled(&jobs[3], r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 4);
    softmetal_fail(fatal, NULL, 11, NULL);
    softmetal_finish(fatal);
    await_sleepers(r.device, 4);
    probe_give_up_lost(r.device);
    assert_result(wait_job_join(&jobs[0]), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(wait_job_join(&jobs[1]), GPUSYNC_ERROR_EXECUTION);
    assert_result(wait_job_join(&jobs[2]), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(wait_job_join(&jobs[3]), GPUSYNC_ERROR_DEVICE_LOST);
    for (i = 0; i < 3; i++) softmetal_finish(buffers[i]);
    rig_close(&r);
}

/* The entry of the ticket serves a later one by then: the slot is found without it. */
static void test_a_handler_that_is_late_by_a_whole_ring_is_waited_for(void **state)
{
    gpusync_ticket ticket;
    wait_job job;
    void *buffer, *other;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    softmetal_complete(buffer);
    for (i = 0; i < 1000; i++) {
        assert_ok(gpusync_wait(r.queue, commit_empty(&r, &other) - 1, 0));
        softmetal_finish(other);
    }
    assert_result(handled(r.queue, ticket), GPUSYNC_TIMEOUT);
    assert_result(handled(r.queue, GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
    for (i = 2; i <= 1001; i++) assert_ok(handled(r.queue, (gpusync_ticket)i));
    wait_handled(&job, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    run_handler(buffer);
    assert_ok(wait_job_join(&job));
    assert_ok(handled(r.queue, ticket));
    rig_close(&r);
}

/* ... though a later ticket, which has its place, is in flight; and then the handler leaves that place to the later one. */
static void test_a_handler_that_is_late_by_a_whole_ring_leaves_the_later_ticket_alone(void **state)
{
    gpusync_ticket ticket, later = 0;
    void *buffer, *other;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(r.queue, ticket));
    for (i = 0; i < 256; i++) { /* as many as a queue has places for without more memory */
        later = commit_empty(&r, &other);
        if (i < 255) softmetal_finish(other);
    }
    assert_int_equal(later - ticket, 256);
    assert_result(handled(r.queue, ticket), GPUSYNC_TIMEOUT);
    run_handler(buffer);
    assert_ok(handled(r.queue, ticket));
    assert_result(gpusync_poll(r.queue, later), GPUSYNC_NOT_READY);
    softmetal_complete(other);
    assert_ok(gpusync_poll(r.queue, later)); /* it is still found by its ticket */
    assert_result(handled(r.queue, later), GPUSYNC_TIMEOUT);
    run_handler(other);
    assert_ok(handled(r.queue, later));
    rig_close(&r);
}

static void test_a_failure_is_told_when_the_handler_has_run(void **state)
{
    gpusync_wait_options options = with_handlers;
    gpusync_error error;
    gpusync_ticket ticket;
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    options.error = &error;
    ticket = commit_empty(&r, &buffer);
    softmetal_fail(buffer, NULL, 9, "no such thing");
    softmetal_complete(buffer);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_wait_ex(r.queue, ticket, 0, &options), GPUSYNC_TIMEOUT);
    run_handler(buffer);
    assert_result(gpusync_wait_ex(r.queue, ticket, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.code, 9);
    rig_close(&r);
}

/* -- what has no handler, or another one --------------------------------------------------------------------------- */

static void test_work_that_was_never_committed_owes_nothing(void **state)
{
    gpusync_ticket ticket, held;
    gpusync_timeline *timeline;
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    buffer = metal_queue_command_buffer(r.metal_queue);
    assert_ok(gpusync_track(r.queue, buffer, &ticket));
    assert_ok(gpusync_untrack(r.queue, ticket));
    assert_result(handled(r.queue, ticket), GPUSYNC_ERROR_CANCELLED);
    timeline = timeline_new(r.device);
    held = SUBMIT(r.queue, WAITS(gpusync_at_value(timeline, 1)), BUFFERS(open_buffer(&r)));
    assert_result(handled(r.queue, held), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_cancel_held(r.queue));
    assert_result(handled(r.queue, held), GPUSYNC_ERROR_CANCELLED);
    assert_ok(handled(r.queue, GPUSYNC_EVERYTHING));
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(buffer);
    rig_close(&r);
}

typedef struct untracked {
    rig *r;
    gpusync_ticket ticket;
    gpusync_result result;
    pthread_t thread;
    int over;
} untracked;

static void *wait_for_the_untracked(void *argument)
{
    untracked *u = (untracked *)argument;
    u->result = gpusync_wait_ex(u->r->queue, u->ticket, GPUSYNC_FOREVER, &with_handlers);
    __atomic_store_n(&u->over, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Returns when it sleeps, or needs not to. */
static void begin_to_wait(void *argument)
{
    untracked *u = (untracked *)argument;
    u->thread = start(wait_for_the_untracked, u);
    while (!sleepers_of(u->r->device) && !__atomic_load_n(&u->over, __ATOMIC_SEQ_CST)) sched_yield();
}

/* Another thread begins to wait while the ticket is cancelled, at each point of the call. Until the slot is the handler's
   own, that handler is still to come. From then on no wait is for it. */
static void test_a_wait_for_the_handler_of_what_is_being_untracked_is_let_go(void **state)
{
    bool acted = true;
    int place;
    (void)state;
    for (place = 1; acted; place++) {
        untracked u;
        void *buffer;
        rig r;
        memset(&u, 0, sizeof u);
        rig_open(&r, SOFTMETAL_MANUAL);
        u.r = &r;
        buffer = metal_queue_command_buffer(r.metal_queue);
        assert_ok(gpusync_track(r.queue, buffer, &u.ticket));
        probe_at_each(place, begin_to_wait, &u);
        assert_ok(gpusync_untrack(r.queue, u.ticket));
        acted = probe_has_acted();
        if (acted) {
            join(u.thread);
            assert_result(u.result, GPUSYNC_ERROR_CANCELLED);
        }
        metal_release(buffer);
        rig_close(&r);
        if (place == 1) assert_true(acted);
    }
}

/* The ticket is given up: the thread that slept for it is woken, and in between another one begins to wait for the
   handler. There is none to wait for any more: the ticket has ended, and its slot was left, in one step. */
static struct {
    wait_job job;
    gpusync_result result;
    bool begins; /* at the next unpark */
} between;

static void begin_before_the_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    if (__atomic_exchange_n(&between.begins, false, __ATOMIC_SEQ_CST)) {
        wait_handled(&between.job, between.job.queue, between.job.ticket, SECONDS(20));
        between.result = wait_job_join(&between.job); /* without the wake-up that this stands before */
    }
    thread_unpark(waiter);
}

static void test_no_wait_begins_for_the_handler_of_what_is_given_up_just_then(void **state)
{
    gpusync_hooks hooks = {NULL, just_park, begin_before_the_unpark, NULL};
    gpusync_ticket ticket;
    wait_job first;
    void *buffer;
    rig r;
    (void)state;
    memset(&between, 0, sizeof between);
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    buffer = metal_queue_command_buffer(r.metal_queue);
    assert_ok(gpusync_track(r.queue, buffer, &ticket));
    between.job.queue = r.queue;
    between.job.ticket = ticket;
    wait_job_start(&first, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    PUT(&between.begins, true);
    assert_ok(gpusync_untrack(r.queue, ticket));
    assert_false(GET(&between.begins));
    assert_result(wait_job_join(&first), GPUSYNC_ERROR_CANCELLED);
    assert_result(between.result, GPUSYNC_ERROR_CANCELLED);
    metal_release(buffer);
    rig_close(&r);
}

/* Callbacks run in gpusync_dispatch. */
static void rig_open_dispatching(rig *r)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    rig_open_with(r, SOFTMETAL_MANUAL, device_desc, queue_desc);
}

static void set_flag(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    __atomic_store_n((int *)user, (int)result + 1000, __ATOMIC_SEQ_CST);
}

typedef struct asker {
    rig *r;
    gpusync_ticket ticket;
    gpusync_result result;
} asker;

static void ask(void *user, gpusync_result result, const gpusync_error *error)
{
    asker *a = (asker *)user;
    (void)result, (void)error;
    a->result = gpusync_wait_ex(a->r->queue, a->ticket, GPUSYNC_FOREVER, &with_handlers);
}

static void test_a_callback_does_not_wait_for_a_handler(void **state)
{
    void *buffer;
    asker a;
    rig r;
    (void)state;
    rig_open_dispatching(&r);
    a.r = &r;
    a.ticket = commit_empty(&r, &buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, a.ticket), ask, &a));
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(r.queue, a.ticket));
    assert_ok(gpusync_dispatch(r.device, 10, NULL));
    assert_result(a.result, GPUSYNC_ERROR_WOULD_DEADLOCK);
    run_handler(buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, a.ticket), ask, &a));
    assert_ok(gpusync_dispatch(r.device, 10, NULL));
    assert_ok(a.result);
    rig_close(&r);
}

/* Callbacks are not Metal's handlers: no thread runs them here, and the wait does not mind. */
static void test_handlers_are_not_callbacks(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    int called_with = 0;
    rig r;
    (void)state;
    rig_open_dispatching(&r);
    ticket = commit_empty(&r, &buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), set_flag, &called_with));
    softmetal_finish(buffer);
    assert_ok(handled(r.queue, ticket));
    assert_int_equal(called_with, 0);
    assert_ok(gpusync_dispatch(r.device, 10, NULL));
    assert_int_equal(called_with, 1000 + GPUSYNC_OK);
    rig_close(&r);
}

/* -- more than one -------------------------------------------------------------------------------------------------- */

static void test_everything_waits_for_every_handler(void **state)
{
    static const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}};
    size_t i;
    int k;
    (void)state;
    for (i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        gpusync_ticket tickets[3];
        void *buffers[3];
        wait_job job;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        commit_three(&r, buffers, tickets);
        wait_handled(&job, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
        await_sleepers(r.device, 1);
        for (k = 0; k < 3; k++) {
            assert_result(handled(r.queue, GPUSYNC_EVERYTHING), GPUSYNC_TIMEOUT);
            assert_result(handled(r.queue, tickets[orders[i][k]]), GPUSYNC_TIMEOUT);
            run_handler(buffers[orders[i][k]]);
            assert_ok(handled(r.queue, tickets[orders[i][k]]));
        }
        assert_ok(wait_job_join(&job));
        assert_ok(handled(r.queue, GPUSYNC_EVERYTHING));
        rig_close(&r);
    }
}

/* What is committed after the call is not waited for. */
static void test_everything_does_not_wait_for_later_handlers(void **state)
{
    void *first, *later;
    wait_job job;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &first);
    wait_handled(&job, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    commit_empty(&r, &later);
    softmetal_finish(first);
    assert_ok(wait_job_join(&job));
    softmetal_complete(later);
    softmetal_finish(later);
    rig_close(&r);
}

static void check_handlers_of_a_submission(bool in_order)
{
    void *buffers[3];
    gpusync_submission s;
    gpusync_ticket ticket;
    wait_job job;
    int i;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 3; i++) buffers[i] = kept_buffer_of(r.queue);
    memset(&s, 0, sizeof s);
    s.command_buffers = buffers;
    s.command_buffer_count = 3;
    assert_ok(gpusync_submit(r.queue, &s, &ticket));
    for (i = 0; i < 3; i++) softmetal_complete(buffers[i]);
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    wait_handled(&job, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    for (i = 0; i < 3; i++) {
        void *buffer = buffers[in_order ? i : 2 - i];
        assert_result(handled(r.queue, ticket), GPUSYNC_TIMEOUT);
        run_handler(buffer);
        metal_release(buffer);
    }
    assert_ok(wait_job_join(&job));
    assert_ok(handled(r.queue, ticket));
    rig_close(&r);
}

static void test_a_submission_waits_for_the_handlers_of_all_its_buffers(void **state)
{
    (void)state;
    check_handlers_of_a_submission(false);
    check_handlers_of_a_submission(true);
}

typedef struct waker {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    gpusync_result answer; /* at the unpark: the submission has ended, and the thread that ends it is not through */
} waker;

static void park_until_told(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    thread_park(waiter, deadline_ns);
}

static void ask_and_unpark(void *user, gpusync_waiter *waiter)
{
    waker *a = (waker *)user;
    a->answer = handled(a->queue, a->ticket);
    thread_unpark(waiter);
}

/* The queue leads to a submission until that has ended, and not until its memory goes: a wait for handlers that begins in
   between would wait for one that the submission itself does not have. */
static void test_a_submission_that_has_just_ended_owes_nothing(void **state)
{
    waker a = {NULL, 0, GPUSYNC_NOT_READY};
    gpusync_hooks hooks = {NULL, park_until_told, ask_and_unpark, &a};
    void *buffers[2];
    gpusync_submission s;
    wait_job job;
    int i;
    rig r;
    (void)state;
    rig_open_hooked(&r, SOFTMETAL_MANUAL, &hooks, 0);
    for (i = 0; i < 2; i++) buffers[i] = buffer_of(r.queue);
    memset(&s, 0, sizeof s);
    s.command_buffers = buffers;
    s.command_buffer_count = 2;
    a.queue = r.queue;
    assert_ok(gpusync_submit(r.queue, &s, &a.ticket));
    memset(&job, 0, sizeof job);
    job.queue = r.queue;
    job.ticket = a.ticket;
    job.timeout_ns = GPUSYNC_FOREVER;
    job.thread = start(wait_job_body, &job);
    await_sleepers(r.device, 1);
    for (i = 0; i < 2; i++) softmetal_finish(buffers[i]);
    assert_ok(wait_job_join(&job));
    assert_ok(a.answer);
    rig_close(&r);
}

static void test_a_device_wait_takes_options(void **state)
{
    gpusync_wait_options options = with_handlers;
    gpusync_error error;
    gpusync_queue *other;
    void *first, *second;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    other = queue_new(r.device);
    options.error = &error;
    commit_empty(&r, &first);
    second = kept_buffer_of(other);
    commit_to(other, second);
    softmetal_fail(second, NULL, 3, NULL);
    softmetal_complete(first);
    softmetal_complete(second);
    assert_result(gpusync_device_wait(r.device, 0, &options), GPUSYNC_TIMEOUT);
    run_handler(second);
    assert_result(gpusync_device_wait(r.device, 0, &options), GPUSYNC_TIMEOUT);
    run_handler(first);
    assert_result(gpusync_device_wait(r.device, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.code, 3);
    assert_ok(gpusync_device_wait(r.device, 0, &options)); /* it is told once */
    assert_ok(gpusync_device_wait(r.device, 0, NULL));
    options.blocking = true; /* is for gpusync_wait_ex, and has no effect here */
    assert_ok(gpusync_device_wait(r.device, GPUSYNC_FOREVER, &options));
    memset(&error, 0, sizeof error);
    assert_result(gpusync_device_wait(NULL, 0, &options), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(error.result, GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_device_wait(NULL, 0, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    metal_release(second);
    assert_ok(gpusync_queue_destroy(other));
    rig_close(&r);
}

static gpusync_result many(rig *r, const gpusync_ticket tickets[3], gpusync_wait_for how, size_t *which)
{
    gpusync_point points[3];
    int i;
    for (i = 0; i < 3; i++) points[i] = gpusync_at_ticket(r->queue, tickets[i]);
    return gpusync_wait_many(points, 3, how, 0, &with_handlers, which);
}

static void test_points_have_ended_when_their_handlers_have_run(void **state)
{
    gpusync_ticket tickets[3];
    void *buffers[3];
    size_t which;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_three(&r, buffers, tickets);
    assert_result(many(&r, tickets, GPUSYNC_WAIT_ANY, &which), GPUSYNC_TIMEOUT);
    assert_int_equal(which, 3);
    run_handler(buffers[1]);
    assert_ok(many(&r, tickets, GPUSYNC_WAIT_ANY, &which));
    assert_int_equal(which, 1);
    assert_result(many(&r, tickets, GPUSYNC_WAIT_ALL, &which), GPUSYNC_TIMEOUT);
    run_handler(buffers[0]);
    run_handler(buffers[2]);
    assert_ok(many(&r, tickets, GPUSYNC_WAIT_ALL, &which));
    assert_ok(many(&r, tickets, GPUSYNC_WAIT_ALL_OR_FAILURE, &which));
    rig_close(&r);
}

typedef struct three_job {
    gpusync_point points[3];
    gpusync_wait_for how;
    gpusync_result result;
    size_t which;
} three_job;

static void *wait_for_many(void *argument)
{
    three_job *job = (three_job *)argument;
    job->result = gpusync_wait_many(job->points, 3, job->how, GPUSYNC_FOREVER, &with_handlers, &job->which);
    return NULL;
}

/* Two tickets and a value: asleep for the first end, then for the handler of what ended. */
static void test_a_sleeper_for_many_points_sleeps_on_for_handlers(void **state)
{
    static const gpusync_wait_for ways[] = {GPUSYNC_WAIT_ANY, GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ALL_OR_FAILURE};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        gpusync_timeline *timeline;
        gpusync_ticket tickets[2];
        void *buffers[2];
        pthread_t thread;
        three_job job;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        timeline = timeline_new(r.device);
        tickets[0] = commit_empty(&r, &buffers[0]);
        tickets[1] = commit_empty(&r, &buffers[1]);
        softmetal_fail(buffers[0], NULL, 3, NULL);
        job.points[0] = gpusync_at_value(timeline, 1);
        job.points[1] = gpusync_at_ticket(r.queue, tickets[0]);
        job.points[2] = gpusync_at_ticket(r.queue, tickets[1]);
        job.how = ways[i];
        thread = start(wait_for_many, &job);
        await_sleepers(r.device, 3);
        softmetal_complete(buffers[0]);
        assert_result(gpusync_poll(r.queue, tickets[0]), GPUSYNC_ERROR_EXECUTION);
        if (ways[i] == GPUSYNC_WAIT_ALL) { /* nothing wakes it yet */
            softmetal_complete(buffers[1]);
            assert_ok(gpusync_poll(r.queue, tickets[1]));
            assert_ok(gpusync_timeline_signal(timeline, 1));
        }
        await_the_handler_wait(r.device);
        run_handler(buffers[0]);
        if (ways[i] == GPUSYNC_WAIT_ALL) {
            assert_result(handled(r.queue, tickets[1]), GPUSYNC_TIMEOUT);
            run_handler(buffers[1]);
        }
        join(thread);
        assert_result(job.result, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(job.which, 1);
        if (ways[i] != GPUSYNC_WAIT_ALL) softmetal_finish(buffers[1]);
        assert_ok(gpusync_timeline_destroy(timeline));
        rig_close(&r);
    }
}

static void test_a_value_has_no_handler(void **state)
{
    gpusync_timeline *timeline;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    timeline = timeline_new(r.device);
    assert_ok(gpusync_timeline_signal(timeline, 3));
    assert_ok(gpusync_timeline_wait(timeline, 3, 0, &with_handlers));
    assert_result(gpusync_timeline_wait(timeline, 4, 0, &with_handlers), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

/* -- the real clock ------------------------------------------------------------------------------------------------- */

/* A handler of the program's, as the block that it hands to Metal: what is set by it is seen after the wait. */
typedef struct flag_block {
    void *isa;
    int32_t flags, reserved;
    void (*invoke)(struct flag_block *self, void *buffer);
    const void *descriptor;
    int ran;
} flag_block;

extern void *_NSConcreteGlobalBlock[32];
static const struct {
    unsigned long reserved, size;
    const char *signature;
} flag_descriptor = {0, sizeof(flag_block), "v16@?0@8"};

static void set_ran(flag_block *self, void *buffer)
{
    (void)buffer;
    __atomic_store_n(&self->ran, 1, __ATOMIC_RELAXED);
}

#define THREADS 4
#define ROUNDS 300

typedef struct stress {
    rig r;
    flag_block blocks[THREADS][ROUNDS];
    int number;
} stress;

static void *commit_and_wait(void *argument)
{
    stress *s = (stress *)argument;
    int thread = __atomic_fetch_add(&s->number, 1, __ATOMIC_SEQ_CST), i;
    for (i = 0; i < ROUNDS; i++) {
        flag_block *block = &s->blocks[thread][i];
        gpusync_ticket ticket;
        void *buffer;
        block->isa = _NSConcreteGlobalBlock;
        block->flags = 1 << 28 | 1 << 30;
        block->invoke = set_ran;
        block->descriptor = &flag_descriptor;
        assert_ok(gpusync_command_buffer(s->r.queue, NULL, &buffer));
        metal_add_completed_handler(buffer, block);
        assert_ok(gpusync_commit(s->r.queue, buffer, &ticket));
        assert_ok(gpusync_wait_ex(s->r.queue, i % 3 ? ticket : GPUSYNC_EVERYTHING, SECONDS(60), &with_handlers));
        assert_int_equal(__atomic_load_n(&block->ran, __ATOMIC_RELAXED), 1);
    }
    return NULL;
}

static void test_what_handlers_set_is_seen_after_the_wait(void **state)
{
    static const softmetal_chaos chaos = {0, 200, 0};
    softmetal_quirks quirks;
    pthread_t threads[THREADS];
    static stress s;
    int i;
    (void)state;
    rig_open(&s.r, SOFTMETAL_REAL);
    softmetal_get_quirks(&quirks);
    quirks.status_early = true;
    softmetal_set_quirks(&quirks);
    softmetal_set_chaos(&chaos);
    for (i = 0; i < THREADS; i++) threads[i] = start(commit_and_wait, &s);
    for (i = 0; i < THREADS; i++) join(threads[i]);
    rig_close(&s.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_that_has_ended_still_owes_its_handler),
        cmocka_unit_test(test_a_sleeper_before_the_end_sleeps_on_for_the_handler),
        cmocka_unit_test(test_a_handler_that_was_taken_for_lost_is_waited_for),
        cmocka_unit_test(test_all_waits_for_one_handler_are_woken_however_many_there_are),
        cmocka_unit_test(test_a_wait_for_a_handler_sleeps_on_when_a_look_finds_the_end),
        cmocka_unit_test(test_the_end_may_come_at_any_place_of_the_wait),
        cmocka_unit_test(test_a_handler_that_never_comes_is_a_timeout),
        cmocka_unit_test(test_a_failure_is_told_though_the_device_is_lost_with_it),
        cmocka_unit_test(test_on_a_lost_device_a_handler_is_waited_for),
        cmocka_unit_test(test_giving_up_ends_the_wait_for_a_handler),
        cmocka_unit_test(test_a_handler_that_is_late_by_a_whole_ring_is_waited_for),
        cmocka_unit_test(test_a_handler_that_is_late_by_a_whole_ring_leaves_the_later_ticket_alone),
        cmocka_unit_test(test_a_failure_is_told_when_the_handler_has_run),
        cmocka_unit_test(test_work_that_was_never_committed_owes_nothing),
        cmocka_unit_test(test_a_wait_for_the_handler_of_what_is_being_untracked_is_let_go),
        cmocka_unit_test(test_no_wait_begins_for_the_handler_of_what_is_given_up_just_then),
        cmocka_unit_test(test_a_callback_does_not_wait_for_a_handler),
        cmocka_unit_test(test_handlers_are_not_callbacks),
        cmocka_unit_test(test_everything_waits_for_every_handler),
        cmocka_unit_test(test_everything_does_not_wait_for_later_handlers),
        cmocka_unit_test(test_a_submission_waits_for_the_handlers_of_all_its_buffers),
        cmocka_unit_test(test_a_submission_that_has_just_ended_owes_nothing),
        cmocka_unit_test(test_a_device_wait_takes_options),
        cmocka_unit_test(test_points_have_ended_when_their_handlers_have_run),
        cmocka_unit_test(test_a_sleeper_for_many_points_sleeps_on_for_handlers),
        cmocka_unit_test(test_a_value_has_no_handler),
        cmocka_unit_test(test_what_handlers_set_is_seen_after_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
