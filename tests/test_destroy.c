/* test_destroy.c - how queues, timelines and devices end: destroy, abandon, destroy_later

   Time stands still (still.h): a destroy that another thread makes sleeps until the test has the GPU end something.
   Each stage asserts, as it closes, that nothing is left: no memory, and none of Metal's objects. */
#define GPUSYNC_IMPLEMENTATION
#include "still.h"

#define threads                 \
    {                           \
        .hooks = &patient_hooks \
    }
#define threads_by_hand                                                    \
    {                                                                      \
        .hooks = &patient_hooks, .callback_mode = GPUSYNC_CALLBACKS_MANUAL \
    }
#define alone                                                              \
    {                                                                      \
        .hooks = &passing_hooks, .callback_mode = GPUSYNC_CALLBACKS_MANUAL \
    }

static gpusync_result destroy_queue(void *queue)
{
    return gpusync_queue_destroy((gpusync_queue *)queue);
}
static gpusync_result abandon_queue(void *queue)
{
    return gpusync_queue_abandon((gpusync_queue *)queue);
}
static gpusync_result let_queue_go(void *queue)
{
    return gpusync_queue_destroy_later((gpusync_queue *)queue, NULL, NULL);
}
static gpusync_result (*const ends[])(void *) = {destroy_queue, abandon_queue, let_queue_go};
static gpusync_result destroy_device(void *device)
{
    return gpusync_device_destroy((gpusync_device *)device);
}

static gpusync_queue *taken(stage *s, int i)
{
    gpusync_queue *queue = s->q[i];
    s->q[i] = NULL;
    return queue;
}

static gpusync_timeline *taken_timeline(stage *s, int i)
{
    gpusync_timeline *timeline = s->t[i];
    s->t[i] = NULL;
    return timeline;
}

static gpusync_device *taken_device(stage *s)
{
    gpusync_device *device = s->device;
    s->device = NULL;
    return device;
}

static void note_gone(void *user)
{
    COUNT((unsigned *)user);
}

without_stage(test_T6_nothing_is_destroyed_at_once)
{
    note n = {0};
    assert_ok(gpusync_queue_destroy(NULL));
    assert_ok(gpusync_queue_abandon(NULL));
    assert_ok(gpusync_queue_destroy_later(NULL, remember_destroyed, &n));
    assert_ok(gpusync_timeline_destroy(NULL));
    assert_ok(gpusync_timeline_destroy_later(NULL, remember_destroyed, &n));
    assert_ok(gpusync_device_destroy(NULL));
    assert_ok(gpusync_device_destroy_later(NULL, remember_destroyed, &n));
    assert_int_equal(n.calls, 0);
}

/* -- gpusync_queue_destroy ---------------------------------------------------------------------------------------- */

/* Ticket 1 is Metal's, ticket 2 is held, ticket 3 is held behind it. */
on_both_kinds_with(test_R20_destroy_waits_for_what_metal_has_and_cancels_the_rest, .timelines = 2, .device = threads)
{
    void *buffers[3] = {new_buffer(s->q[0]), new_buffer(s->q[0]), new_buffer(s->q[0])};
    note notes[3] = {0};
    job j = {0};
    for (uint32_t i = 0; i < 3; i++)
        mark(s, buffers[i], i + 1);
    commit(s->q[0], buffers[0]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(buffers[1]), SIGNALS(at(s->t[1], 1)));
    commit(s->q[0], buffers[2]);
    for (int i = 0; i < 3; i++)
        on_done(ticket_at(s->q[0], i + 1), &notes[i]);
    job_call(&j, destroy_queue, taken(s, 0));
    await_parked(1);
    assert_false(job_is_over(&j));
    signal_value(s->t[0], 1); /* too late: it was cancelled as the queue closed */
    assert_true(finish_next_of(s->metal[0]));
    assert_ok(job_end(&j));
    assert_noted(&notes[0], GPUSYNC_OK);
    assert_noted(&notes[1], GPUSYNC_ERROR_CANCELLED);
    assert_noted(&notes[2], GPUSYNC_ERROR_CANCELLED);
    assert_in_order(notes, 3);
    assert_int_equal(notes[1].error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_false(notes[1].error.ran);
    assert_failed(s->t[1], GPUSYNC_ERROR_CANCELLED);
    assert_false(finish_next_of(s->metal[0]));
    assert_marks(1);
}

/* UNORDERED work is in front of nothing, ordered work behind a marker ends behind it: destroy waits for both. */
on_stage_with(test_R30_destroy_waits_for_unordered_work_and_for_markers, .queues = 2, .device = threads)
{
    for (int marker = 0; marker < 2; marker++) {
        void *loose = new_buffer(s->q[marker]), *plain = new_buffer(s->q[marker]);
        note n = {0};
        job j = {0};
        if (marker) {
            assert_ok(gpusync_command_buffer_discard(s->q[marker], loose));
            assert_ok(gpusync_commit_marker(s->q[marker], NULL, NULL));
            on_done(ticket_at(s->q[marker], 1), &n);
        } else {
            SUBMIT(s->q[marker], BUFFERS(loose), .flags = GPUSYNC_SUBMIT_UNORDERED, .on_complete = remember,
                   .user = &n);
        }
        gpusync_ticket ticket = commit(s->q[marker], plain);
        softmetal_finish(plain);
        assert_result(gpusync_poll(s->q[marker], ticket, NULL), marker ? GPUSYNC_NOT_READY : GPUSYNC_OK);
        job_call(&j, destroy_queue, taken(s, marker));
        await_parked(1);
        assert_false(job_is_over(&j));
        assert_true(finish_next_of(s->metal[marker]));
        assert_ok(job_end(&j));
        assert_noted(&n, GPUSYNC_OK);
    }
}

/* The handler of UNORDERED work comes late, and work before it runs still: the end of the queue waits for that. */
on_stage_with(test_R20_R30_a_later_destroy_waits_for_unordered_work_in_front_of_a_late_handler, .device = alone)
{
    void *buffers[2];
    note gone = {0};
    for (unsigned i = 0; i < 2; i++) {
        buffers[i] = new_buffer(s->q[0]);
        SUBMIT(s->q[0], BUFFERS(buffers[i]), .flags = GPUSYNC_SUBMIT_UNORDERED);
    }
    softmetal_complete(buffers[1]);
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_NOT_READY);
    assert_ok(gpusync_queue_destroy_later(taken(s, 0), remember_destroyed, &gone));
    softmetal_finish(buffers[1]);
    run_callbacks(s);
    assert_int_equal(GET(&gone.calls), 0);
    softmetal_finish(buffers[0]);
    run_callbacks(s);
    assert_int_equal(GET(&gone.calls), 1);
}

/* The handler is late, or lost: the status tells. */
on_stage_with(test_R20_destroy_looks, .queues = 2, .device = alone)
{
    void *late = metal_retain(new_buffer(s->q[0]));
    void *lost = new_buffer(s->q[1]);
    commit(s->q[0], late);
    softmetal_lose_handlers(lost);
    commit(s->q[1], lost);
    softmetal_complete(late);
    softmetal_finish(lost);
    assert_ok(gpusync_queue_destroy(taken(s, 0)));
    assert_ok(gpusync_queue_destroy(taken(s, 1)));
    assert_int_equal(passing.parks, 0);
    softmetal_finish(late); /* its handler finds what it needs */
    metal_release(late);
}

static void finish_at_the_third(void *argument, unsigned park)
{
    if (park == 3)
        finish_next_of(argument);
}

/* Metal loses the handler of work that ends while the destroy sleeps: a slice later it looks. */
on_stage_with(test_T7_a_destroy_that_sleeps_looks, .device = alone)
{
    void *buffer = new_buffer(s->q[0]);
    softmetal_lose_handlers(buffer);
    commit(s->q[0], buffer);
    while_parked(finish_at_the_third, s->metal[0]);
    assert_ok(gpusync_queue_destroy(taken(s, 0)));
    assert_int_equal(passing.parks, 3);
    assert_int_equal(kit_now().log_lines, 0); /* F8: a destroy has no limit that could pass */
}

/* R32: no timeline fails, whatever sticks, and other work may signal the value. */
without_stage(test_R20_each_end_of_a_queue_discards_its_open_buffers)
{
    for (size_t i = 0; i < LENGTH(ends); i++) {
        stage s;
        stage_open(&s,
                   &(stage_desc){.queues = 2, .timelines = 1, .device = threads, .queue = {.sticky_failure = true}});
        const long buffers = softmetal_live("command_buffer");
        (void)signalling(s.q[0], at(s.t[0], 1));
        commit_failing(s.q[0], SOFTMETAL_PAGE_FAULT);
        finish_all(&s);
        assert_ok(ends[i](taken(&s, 0)));
        assert_int_equal(softmetal_live("command_buffer"), buffers);
        commit(s.q[1], signalling(s.q[1], at(s.t[0], 1)));
        finish_all(&s);
        assert_int_equal(value_of(s.t[0]), 1);
        stage_close(&s);
    }
}

/* -- waits that sleep --------------------------------------------------------------------------------------------- */

enum { IN_TICKET, IN_EVERYTHING, IN_ANY, IN_ALL_OR_FAILURE, IN_ROOM, SLEEPERS }; /* no Metal 4: IN_ROOM */

/* Ticket 1 of q[0] fills it; the waits are for it and for a value that does not come. */
static void begin_sleepers(stage *s, job jobs[SLEEPERS], const gpusync_point points[2])
{
    memset(jobs, 0, SLEEPERS * sizeof jobs[0]);
    job_wait(&jobs[IN_TICKET], s->q[0], 1, GPUSYNC_FOREVER);
    job_wait(&jobs[IN_EVERYTHING], s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    if (!is_metal4(s->q[0]))
        job_buffer(&jobs[IN_ROOM], s->q[0], GPUSYNC_FOREVER);
    job_many(&jobs[IN_ANY], points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER);
    job_many(&jobs[IN_ALL_OR_FAILURE], points, 2, GPUSYNC_WAIT_ALL_OR_FAILURE, GPUSYNC_FOREVER);
}

static void destroy_under_sleepers(stage *s, gpusync_result (*end)(void *))
{
    const gpusync_point points[2] = {at(s->t[0], 1), ticket_at(s->q[0], 1)};
    job jobs[SLEEPERS], all = {0};
    job device = {0}, ending = {0};
    int sleepers = is_metal4(s->q[0]) ? IN_ROOM : SLEEPERS;
    commit_new(s->q[0]);
    commit_new(s->q[1]);
    begin_sleepers(s, jobs, points);
    job_many(&all, points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    job_device(&device, s->device, GPUSYNC_FOREVER);
    await_parked((unsigned)sleepers + 2);
    job_call(&ending, end, taken(s, 0));
    for (int i = 0; i < sleepers; i++)
        assert_result(job_end(&jobs[i]), GPUSYNC_ERROR_DESTROYED);
    assert_null(jobs[IN_ROOM].buffer);
    assert_int_equal(jobs[IN_ANY].which, 1);
    assert_int_equal(jobs[IN_ALL_OR_FAILURE].which, 1);
    assert_int_equal(jobs[IN_TICKET].error.result, GPUSYNC_ERROR_DESTROYED);
    assert_false(job_is_over(&all) || job_is_over(&device));
    signal_value(s->t[0], 1);
    assert_result(job_end(&all), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(all.which, 1);
    finish_next(s->q[1]);
    assert_ok(job_end(&device));
    finish_all(s);
    assert_ok(job_end(&ending));
}

#define ENDS_WAITS(test, end)                                                                                         \
    on_all_kinds_with(test, .queues = 2, .timelines = 1, .device = threads, .queue = {.max_command_buffer_count = 1}) \
    {                                                                                                                 \
        destroy_under_sleepers(s, end);                                                                               \
    }
ENDS_WAITS(test_R20_destroy_ends_waits_that_sleep, destroy_queue)
ENDS_WAITS(test_R20_abandon_ends_waits_that_sleep, abandon_queue)
ENDS_WAITS(test_R20_destroy_later_ends_waits_that_sleep, let_queue_go)

/* F13, K3: all work was held, and is cancelled as the queue closes. */
static void cancel_under_everything(stage *s, gpusync_result (*end)(void *))
{
    job waiting = {0};
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)));
    job_wait(&waiting, s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_parked(1);
    assert_ok(end(taken(s, 0)));
    job_end(&waiting);
    assert_true(waiting.result == GPUSYNC_ERROR_DESTROYED || waiting.result == GPUSYNC_ERROR_CANCELLED);
}

without_stage_on_both_kinds(test_F13_no_wait_for_everything_is_ok_where_held_work_was_cancelled)
{
    for (size_t i = 0; i < LENGTH(ends); i++) {
        stage s;
        stage_open(&s, &(stage_desc){.timelines = 1, .device = threads});
        cancel_under_everything(&s, ends[i]);
        stage_close(&s);
    }
}

/* -- what its own callbacks may do with an object that is being destroyed ---------------------------------------- */

/* q[0] and t[0] are closed, q[1] and t[1] are not. Ticket 1 of q[0] has ended, and 1 of t[0] is reached. */
typedef struct closed {
    stage *s;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    void *other; /* an open buffer of q[1] */
    note *due;   /* of the callbacks behind these */
    unsigned calls;
} closed;

static void must_be(gpusync_result got, gpusync_result expected, const char *what)
{
    if (got != expected)
        fprintf(stderr, "%s: %s\n", what, gpusync_result_string(got));
    must(got == expected, "a call on what is being destroyed");
}
#define must_say(expected, call) must_be((call), GPUSYNC_##expected, #call)

static void ask_closed_queue(void *user, gpusync_result result, const gpusync_error *error)
{
    closed *c = (closed *)user;
    gpusync_queue *q = c->queue;
    gpusync_error failure;
    gpusync_ticket ticket = 77;
    uint64_t cursor = 0;
    void *buffer = c;
    void *foreign = foreign_buffer(q);
    must(result == GPUSYNC_OK, "the callback's result");
    /* questions are answered */
    must_say(OK, gpusync_poll(q, 1, NULL));
    must_say(OK, gpusync_wait(q, 1, GPUSYNC_FOREVER, NULL));
    must_say(OK, gpusync_poll(q, GPUSYNC_EVERYTHING, NULL));
    must_say(ERROR_INVALID_TICKET, gpusync_poll(q, 2, NULL));
    must_say(NOT_READY, gpusync_queue_next_error(q, &cursor, &failure));
    must(gpusync_is_done(q, 1) && gpusync_in_flight(q) == 0 && gpusync_queue_metal(q), "a question");
    /* what would change it is refused */
    must_say(ERROR_DESTROYED, gpusync_command_buffer_create(q, NULL, GPUSYNC_FOREVER, &buffer));
    must_say(ERROR_DESTROYED, gpusync_commit(q, foreign, &ticket));
    must_say(ERROR_DESTROYED, TRY_SUBMIT(q, &ticket, BUFFERS(foreign)));
    must_say(ERROR_DESTROYED, TRY_SUBMIT(q, NULL, .flags = GPUSYNC_SUBMIT_UNORDERED));
    must_say(ERROR_DESTROYED, gpusync_commit_marker(q, NULL, &ticket));
    must_say(ERROR_DESTROYED, gpusync_encode_wait(q, foreign, at(c->s->t[1], 1)));
    must_say(ERROR_DESTROYED, gpusync_encode_signal(q, foreign, at(c->s->t[1], 1)));
    must_say(ERROR_DESTROYED, gpusync_on_done(ticket_at(q, 1), remember, NULL));
    must_say(ERROR_DESTROYED, gpusync_cancel_on_done(ticket_at(q, 1), remember, c->due));
    must_say(ERROR_DESTROYED, gpusync_release_after(q, 1, foreign));
    must_say(ERROR_DESTROYED, gpusync_queue_cancel_held(q, GPUSYNC_EVERYTHING));
    must_say(ERROR_DESTROYED, gpusync_queue_cancel_held(q, 1));
    must_say(ERROR_DESTROYED, gpusync_queue_clear_failure(q, GPUSYNC_EVERYTHING));
    must_say(ERROR_DESTROYED, gpusync_queue_destroy_later(q, remember_destroyed, NULL));
    must(buffer == NULL && ticket == 77, "a refused call has written something");
    metal_release(foreign);
    c->calls++;
}

static void ask_closed_timeline(void *user, gpusync_result result, const gpusync_error *error)
{
    closed *c = (closed *)user;
    gpusync_timeline *t = c->timeline;
    gpusync_ticket ticket = 77;
    uint64_t value = 0;
    must(result == GPUSYNC_OK, "the callback's result");
    must_say(OK, gpusync_timeline_query(t, &value, NULL));
    must(value == 1 && gpusync_timeline_metal(t, NULL), "a question");
    must_say(OK, gpusync_timeline_wait(t, 1, GPUSYNC_FOREVER, NULL));
    must_say(ERROR_DESTROYED, gpusync_timeline_signal(t, 2));
    must_say(ERROR_DESTROYED, gpusync_timeline_fail(t, NULL));
    must_say(ERROR_DESTROYED, gpusync_on_done(at(t, 1), remember, NULL));
    must_say(ERROR_DESTROYED, gpusync_cancel_on_done(at(t, 1), remember, c->due));
    must_say(ERROR_DESTROYED, gpusync_encode_wait(c->s->q[1], c->other, at(t, 2)));
    must_say(ERROR_DESTROYED, gpusync_encode_signal(c->s->q[1], c->other, at(t, 2)));
    must_say(ERROR_DESTROYED, TRY_SUBMIT(c->s->q[1], &ticket, WAITS(at(t, 2))));
    must_say(ERROR_DESTROYED, TRY_SUBMIT(c->s->q[1], &ticket, SIGNALS(at(t, 2))));
    must_say(ERROR_DESTROYED, gpusync_timeline_destroy_later(t, remember_destroyed, NULL));
    must(ticket == 77, "a refused call has written the ticket");
    c->calls++;
}

/* By hand, so that nothing but the end of the object runs the callbacks. */
without_stage(test_R20_its_callbacks_may_ask_a_closed_object_and_not_change_it)
{
    for (int later = 0; later < 2; later++) {
        stage s;
        stage_open(&s, &(stage_desc){
                           .queues = 2, .timelines = 2, .device = threads_by_hand, .queue = {.sticky_failure = true}});
        note gone[2] = {0}, due = {0};
        closed c = {.s = &s, .queue = s.q[0], .timeline = s.t[0], .other = new_buffer(s.q[1]), .due = &due};
        signal_value(s.t[0], 1);
        assert_ok(gpusync_on_done(ticket_at(s.q[0], commit_new(s.q[0])), ask_closed_queue, &c));
        assert_ok(gpusync_on_done(at(s.t[0], 1), ask_closed_timeline, &c));
        on_done(ticket_at(s.q[0], 1), &due);
        on_done(at(s.t[0], 1), &due);
        finish_all(&s);
        if (later) {
            assert_ok(gpusync_queue_destroy_later(taken(&s, 0), remember_destroyed, &gone[0]));
            assert_ok(gpusync_timeline_destroy_later(taken_timeline(&s, 0), remember_destroyed, &gone[1]));
            settle(&s);
            assert_noted(&gone[0], GPUSYNC_OK);
            assert_noted(&gone[1], GPUSYNC_OK);
        } else {
            assert_ok(gpusync_queue_destroy(taken(&s, 0)));
            assert_ok(gpusync_timeline_destroy(taken_timeline(&s, 0)));
        }
        assert_int_equal(c.calls, 2);
        assert_int_equal(due.calls, 2);
        stage_close(&s);
    }
}

/* A callback has made a buffer, and encodes into it, as another thread destroys the queue. */
static void encode_into_a_closed_queue(void *user, gpusync_result result, const gpusync_error *error)
{
    closed *c = (closed *)user;
    gpusync_ticket ticket = 77;
    void *buffer, *other;
    must_say(OK, gpusync_command_buffer_create(c->queue, NULL, 0, &buffer));
    PUT(&c->calls, 1u);
    while ((result = gpusync_command_buffer_create(c->queue, NULL, 0, &other)) == GPUSYNC_OK)
        must_say(OK, gpusync_command_buffer_discard(c->queue, other));
    must_be(result, GPUSYNC_ERROR_DESTROYED, "create");
    mark(c->s, buffer, 1);
    must_say(ERROR_DESTROYED, gpusync_encode_signal(c->queue, buffer, at(c->s->t[0], 1)));
    must_say(ERROR_DESTROYED, gpusync_commit(c->queue, buffer, &ticket));
    must(ticket == 77, "a refused call has written the ticket");
}

without_stage(test_R20_a_callback_may_use_the_buffer_that_it_has_made_beside_a_destroy)
{
    for (size_t i = 0; i < LENGTH(ends); i++) {
        stage s;
        job end = {0};
        stage_open(&s, &(stage_desc){.timelines = 1, .device = threads});
        closed c = {.s = &s, .queue = taken(&s, 0)};
        mark(&s, new_buffer(c.queue), 0); /* makes the pipeline */
        assert_ok(gpusync_on_done(ticket_at(c.queue, 0), encode_into_a_closed_queue, &c));
        while (!GET(&c.calls))
            sched_yield();
        job_call(&end, ends[i], c.queue);
        assert_ok(job_end(&end));
        stage_close(&s);
    }
}

/* The queue is closed before the callback begins, and keeps the buffer until it has run. */
static void use_the_open_buffer(void *user, gpusync_result result, const gpusync_error *error)
{
    closed *c = (closed *)user;
    mark(c->s, c->other, 1);
    must_say(OK, gpusync_command_buffer_discard(c->queue, c->other));
    must_say(ERROR_UNKNOWN_BUFFER, gpusync_command_buffer_discard(c->queue, c->other));
    c->calls++;
}

without_stage(test_R20_callbacks_behind_a_destroy_may_use_open_buffers)
{
    for (size_t i = 0; i < LENGTH(ends); i++) {
        stage s;
        stage_open(&s, &(stage_desc){.device = threads_by_hand});
        closed c = {.s = &s, .queue = s.q[0], .other = new_buffer(s.q[0])};
        mark(&s, c.other, 0);
        assert_ok(gpusync_on_done(ticket_at(s.q[0], commit_new(s.q[0])), use_the_open_buffer, &c));
        finish_all(&s);
        assert_ok(ends[i](taken(&s, 0)));
        settle(&s);
        assert_int_equal(c.calls, 1);
        stage_close(&s);
    }
}

/* -- gpusync_queue_abandon ---------------------------------------------------------------------------------------- */

typedef struct witness {
    gpusync_queue *queue;
    bool done[4]; /* of tickets 0 to 3, in the callback */
    note n;
} witness;

static void witness_end(void *user, gpusync_result result, const gpusync_error *error)
{
    witness *w = (witness *)user;
    for (int i = 0; i < 4; i++)
        w->done[i] = gpusync_is_done(w->queue, i);
    remember(&w->n, result, error);
}

static void keep_for(gpusync_queue *queue, gpusync_ticket ticket, unsigned *gone, void **object)
{
    *object = softmetal_new_witness(note_gone, gone);
    assert_ok(gpusync_release_after(queue, ticket, *object));
    metal_release(*object);
}

/* Ticket 1 is done, ticket 2 is Metal's and signals t[0] and t[1], ticket 3 is held and signals t[2]. */
static void begin_abandoned(stage *s, witness w[3])
{
    commit_new(s->q[0]);
    finish_all(s);
    void *buffer = new_buffer(s->q[0]);
    mark(s, buffer, 2);
    encode_signal(s->q[0], buffer, at(s->t[0], 1));
    encode_signal(s->q[0], buffer, at(s->t[1], 1));
    commit(s->q[0], buffer);
    SUBMIT(s->q[0], WAITS(at(s->t[3], 1)), SIGNALS(at(s->t[2], 1)));
    for (int i = 0; i < 3; i++) {
        w[i].queue = s->q[0];
        assert_ok(gpusync_on_done(ticket_at(s->q[0], i + 1), witness_end, &w[i]));
    }
}

static void expect_abandoned(const witness w[3])
{
    static const gpusync_result expected[3] = {GPUSYNC_OK, GPUSYNC_ERROR_DESTROYED, GPUSYNC_ERROR_CANCELLED};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(w[i].n.calls, 1);
        assert_result(w[i].n.result, expected[i]);
        assert_true(w[i].done[0] && w[i].done[1]);
        assert_false(w[i].done[2] || w[i].done[3]);
        assert_true(pthread_equal(w[i].n.thread, pthread_self()));
        assert_true(i == 0 || w[i - 1].n.order < w[i].n.order);
    }
    assert_true(w[1].n.error.ran && w[1].n.error.in_use);
    assert_false(w[1].n.error.inherited);
    assert_int_equal(w[1].n.error.failure, GPUSYNC_FAILURE_CANCELLED); /* R14: no fault of the work's */
    assert_false(w[2].n.error.ran || w[2].n.error.in_use);
}

on_both_kinds_with(test_R21_abandon_ends_all_and_waits_for_nothing, .timelines = 4, .device = alone)
{
    const gpusync_timeline_desc order_only = {.order_only = true};
    witness w[3] = {0};
    unsigned gone = 0;
    void *objects[2];
    const uint64_t began = GET(&still_now);
    assert_ok(gpusync_timeline_destroy(taken_timeline(s, 1)));
    assert_ok(gpusync_timeline_create(s->device, &order_only, &s->t[1]));
    begin_abandoned(s, w);
    keep_for(s->q[0], 2, &gone, &objects[0]);
    keep_for(s->q[0], 3, &gone, &objects[1]);
    while_parked(NULL, NULL);
    assert_ok(gpusync_queue_abandon(taken(s, 0)));
    assert_int_equal(passing.parks, 0);
    assert_int_equal(GET(&still_now), began);
    expect_abandoned(w);
    assert_failed(s->t[0], GPUSYNC_ERROR_DESTROYED);
    assert_failed(s->t[1], GPUSYNC_ERROR_DESTROYED);
    assert_failed(s->t[2], GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(marks(), 0);
    finish_all(s); /* the GPU goes on with what it has */
    settle(s);
    assert_marks(2);
    expect_abandoned(w);
    assert_int_equal(GET(&gone), 0);
    metal_release(objects[0]);
    metal_release(objects[1]);
    assert_int_equal(GET(&gone), 2);
}

/* Work of another queue waits for it on the GPU, and work that is held for its ticket. */
on_all_kinds_with(test_R21_abandon_lets_no_other_queue_hang, .queues = 2, .timelines = 1, .device = alone)
{
    void *signals = signalling(s->q[0], at(s->t[0], 1)), *waits = new_buffer(s->q[1]);
    commit(s->q[0], signals);
    encode_wait(s->q[1], waits, at(s->t[0], 1));
    commit(s->q[1], waits);
    SUBMIT(s->q[1], WAITS(ticket_at(s->q[0], 1)));
    assert_true(is_sent(waits));
    assert_false(finish_next(s->q[1]));
    assert_ok(gpusync_queue_abandon(taken(s, 0)));
    assert_true(finish_next(s->q[1]));
    assert_result(gpusync_poll(s->q[1], 1, NULL), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_poll(s->q[1], 2, NULL), GPUSYNC_ERROR_DESTROYED);
    assert_true(failure_at(s->q[1], 0).inherited);
    assert_string_equal(failure_at(s->q[1], 0).queue_label, "first");
}

/* UNORDERED work tells of its end in each end of its queue. What was given up while Metal had it is in use. */
typedef struct end_row {
    gpusync_result (*end)(void *);
    bool lost;
    gpusync_result returns, sent, held;
    bool in_use;
} end_row;

static void end_unordered(const end_row *row)
{
    stage s;
    note sent = {0}, held = {0};
    stage_open(&s, &(stage_desc){.queues = 2, .timelines = 3, .device = alone});
    SUBMIT(s.q[0], BUFFERS(new_buffer(s.q[0])), SIGNALS(at(s.t[0], 1)), .flags = GPUSYNC_SUBMIT_UNORDERED,
           .on_complete = remember, .user = &sent);
    SUBMIT(s.q[0], WAITS(at(s.t[2], 1)), BUFFERS(new_buffer(s.q[0])), SIGNALS(at(s.t[1], 1)),
           .flags = GPUSYNC_SUBMIT_UNORDERED, .on_complete = remember, .user = &held);
    if (row->lost)
        commit_failing(s.q[1], SOFTMETAL_SUBMISSIONS_IGNORED);
    while (finish_next(s.q[1])) {}
    while_parked(row->lost ? NULL : finish_at_the_third, s.metal[0]);
    assert_result(row->end(taken(&s, 0)), row->returns);
    settle(&s);
    assert_noted(&sent, row->sent);
    assert_noted(&held, row->held);
    assert_int_equal(sent.error.in_use, row->in_use);
    assert_false(held.error.in_use || held.error.ran);
    if (row->sent == GPUSYNC_OK)
        assert_int_equal(value_of(s.t[0]), 1);
    else
        assert_failed(s.t[0], row->sent);
    assert_failed(s.t[1], row->held);
    stage_close(&s);
}

without_stage_on_both_kinds(test_R30_unordered_work_tells_of_its_end_in_each_end_of_its_queue)
{
    static const end_row rows[] = {
        {destroy_queue, false, GPUSYNC_OK, GPUSYNC_OK, GPUSYNC_ERROR_CANCELLED, false},
        {let_queue_go, false, GPUSYNC_OK, GPUSYNC_OK, GPUSYNC_ERROR_CANCELLED, false},
        {abandon_queue, false, GPUSYNC_OK, GPUSYNC_ERROR_DESTROYED, GPUSYNC_ERROR_CANCELLED, true},
        {abandon_queue, true, GPUSYNC_OK, GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_DEVICE_LOST, true},
        {destroy_queue, true, GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_DEVICE_LOST, true},
    };
    for (size_t i = 0; i < LENGTH(rows); i++)
        end_unordered(&rows[i]);
}

/* Nothing was left: is_done tells the truth to the last. */
on_both_kinds_with(test_R21_abandon_of_held_work_alone, .timelines = 1, .device = alone)
{
    witness w = {.queue = s->q[0]};
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)));
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), witness_end, &w));
    assert_ok(gpusync_queue_abandon(taken(s, 0)));
    assert_noted(&w.n, GPUSYNC_ERROR_CANCELLED);
    assert_true(w.done[1]);
}

/* The abandon looks once more: the handler has not come. */
on_stage_with(test_R21_work_that_is_over_at_the_abandon_has_ended, .device = alone)
{
    void *buffer = new_buffer(s->q[0]);
    note n = {0};
    on_done(ticket_at(s->q[0], commit(s->q[0], buffer)), &n);
    softmetal_complete(buffer);
    assert_ok(gpusync_queue_abandon(taken(s, 0)));
    assert_noted(&n, GPUSYNC_OK);
}

/* Ticket 2 has failed on the GPU, ticket 3 with what it waited for, and neither has had its turn. */
on_both_kinds_with(test_R8_abandon_changes_no_failure_that_was_there_before, .timelines = 1, .device = alone)
{
    void *buffer = new_buffer(s->q[0]);
    note notes[3] = {0};
    softmetal_fail_as(buffer, SOFTMETAL_INNOCENT_VICTIM, NULL);
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &notes[0]);
    on_done(ticket_at(s->q[0], commit(s->q[0], buffer)), &notes[1]);
    on_done(ticket_at(s->q[0], SUBMIT(s->q[0], WAITS(at(s->t[0], 1)))), &notes[2]);
    softmetal_finish(buffer);
    fail_timeline(s->t[0], GPUSYNC_ERROR_COMPILE);
    assert_ok(gpusync_queue_abandon(taken(s, 0)));
    assert_noted(&notes[0], GPUSYNC_ERROR_DESTROYED);
    assert_noted(&notes[1], GPUSYNC_ERROR_EXECUTION);
    assert_true(notes[1].error.transient);
    assert_noted(&notes[2], GPUSYNC_ERROR_COMPILE);
}

/* -- destroy_later ------------------------------------------------------------------------------------------------ */

/* Everything that a queue can have: Metal's, held, and open work; callbacks, and an object to release. */
static void fill_queue(stage *s, note *sent, note *held, unsigned *gone)
{
    void *object;
    (void)signalling(s->q[0], at(s->t[1], 9));
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), sent);
    on_done(ticket_at(s->q[0], SUBMIT(s->q[0], WAITS(at(s->t[0], 1)))), held);
    keep_for(s->q[0], 2, gone, &object);
}

on_both_kinds_with(test_R22_destroy_later_tells_when_nothing_is_left, .timelines = 2, .device = threads)
{
    note sent = {0}, held = {0}, destroyed = {0};
    unsigned gone = 0;
    fill_queue(s, &sent, &held, &gone);
    assert_ok(gpusync_queue_destroy_later(taken(s, 0), remember_destroyed, &destroyed));
    run_callbacks(s);
    assert_int_equal(calls_of(&destroyed), 0);
    assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
    settle(s);
    assert_noted(&sent, GPUSYNC_OK);
    assert_noted(&held, GPUSYNC_ERROR_CANCELLED);
    assert_noted(&destroyed, GPUSYNC_OK);
    assert_true(sent.order < held.order && held.order < destroyed.order);
    assert_int_equal(GET(&gone), 1);
    for (int i = 0; i < 2; i++)
        assert_ok(gpusync_timeline_destroy(taken_timeline(s, i)));
    assert_ok(gpusync_device_destroy(taken_device(s)));
    assert_int_equal(kit_now().blocks, 0);
}

/* No memory at all from the calls to the end. */
on_both_kinds_with(test_R22_destroy_later_needs_no_memory, .timelines = 2, .device = threads)
{
    note sent = {0}, held = {0}, destroyed[4] = {0}, value = {0};
    unsigned gone = 0;
    fill_queue(s, &sent, &held, &gone);
    on_done(at(s->t[1], 1), &value);
    memory_fail(1, true);
    assert_ok(gpusync_device_destroy_later(taken_device(s), remember_destroyed, &destroyed[3]));
    assert_ok(gpusync_queue_destroy_later(taken(s, 0), remember_destroyed, &destroyed[2]));
    assert_ok(gpusync_timeline_destroy_later(taken_timeline(s, 0), remember_destroyed, &destroyed[0]));
    assert_ok(gpusync_timeline_destroy_later(taken_timeline(s, 1), remember_destroyed, &destroyed[1]));
    finish_all(s);
    assert_noted(&sent, GPUSYNC_OK);
    assert_noted(&held, GPUSYNC_ERROR_CANCELLED);
    assert_noted(&value, GPUSYNC_ERROR_DESTROYED);
    for (size_t i = 0; i < LENGTH(destroyed); i++)
        assert_noted(&destroyed[i], GPUSYNC_OK);
    assert_int_equal(destroyed[3].order, 7); /* the last of all */
    assert_int_equal(GET(&gone), 1);
}

/* A hang keeps its queue and the device, and nothing else. */
on_all_kinds_with(test_R22_a_queue_whose_gpu_hangs_stays_until_its_work_ends, .queues = 2, .device = threads_by_hand)
{
    note destroyed[2] = {0};
    commit_new(s->q[0]);
    assert_ok(gpusync_queue_destroy_later(taken(s, 0), remember_destroyed, &destroyed[0]));
    assert_ok(gpusync_queue_destroy_later(taken(s, 1), remember_destroyed, &destroyed[1]));
    run_callbacks(s);
    assert_noted(&destroyed[1], GPUSYNC_OK);
    assert_int_equal(calls_of(&destroyed[0]), 0);
    pass(SECONDS(3600));
    run_callbacks(s);
    assert_int_equal(calls_of(&destroyed[0]), 0);
    finish_all(s);
    run_callbacks(s);
    assert_noted(&destroyed[0], GPUSYNC_OK);
}

/* F12, K5: the first waits on the GPU for the second, whose handler Metal loses. A look at the device finds both. */
on_stage_with(test_F12_queues_that_go_later_are_looked_at, .queues = 2, .timelines = 1, .device = threads_by_hand)
{
    void *first = new_buffer(s->q[0]), *second = new_buffer(s->q[1]);
    note destroyed[2] = {0};
    softmetal_lose_handlers(second);
    encode_signal(s->q[1], second, at(s->t[0], 1));
    commit(s->q[1], second);
    encode_wait(s->q[0], first, at(s->t[0], 1));
    commit(s->q[0], first);
    for (int i = 0; i < 2; i++)
        assert_ok(gpusync_queue_destroy_later(taken(s, i), remember_destroyed, &destroyed[i]));
    finish_all(s);
    run_callbacks(s);
    run_callbacks(s);
    assert_noted(&destroyed[0], GPUSYNC_OK);
    assert_noted(&destroyed[1], GPUSYNC_OK);
}

/* R24: so does a wait that sleeps, for work of another queue that does not end. */
on_stage_with(test_K5_a_wait_that_sleeps_looks_at_queues_that_go_later, .queues = 2,
              .device = {.hooks = &passing_hooks})
{
    void *lost = new_buffer(s->q[0]);
    note destroyed = {0};
    commit_new(s->q[1]);
    softmetal_lose_handlers(lost);
    commit(s->q[0], lost);
    assert_ok(gpusync_queue_destroy_later(taken(s, 0), remember_destroyed, &destroyed));
    finish_next_of(s->metal[0]);
    assert_int_equal(calls_of(&destroyed), 0);
    assert_result(gpusync_wait(s->q[1], 1, MS(60), NULL), GPUSYNC_TIMEOUT);
    assert_noted(&destroyed, GPUSYNC_OK);
}

typedef struct end_inside {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    gpusync_result inside[4];
    note destroyed[3];
    gate g;
} end_inside;

static void let_all_go(void *user, gpusync_result result, const gpusync_error *error)
{
    end_inside *e = (end_inside *)user;
    e->inside[0] = gpusync_queue_destroy_later(e->queue, remember_destroyed, &e->destroyed[0]);
    e->inside[1] = gpusync_timeline_destroy_later(e->timeline, remember_destroyed, &e->destroyed[1]);
    e->inside[2] = gpusync_device_destroy_later(e->device, remember_destroyed, &e->destroyed[2]);
}

static void begin_end_inside(stage *s, end_inside *e)
{
    memset(e, 0, sizeof *e);
    e->queue = taken(s, 0);
    e->timeline = taken_timeline(s, 0);
    e->device = s->device;
    assert_ok(gpusync_on_done(ticket_at(e->queue, commit_new(e->queue)), let_all_go, e));
}

static void expect_all_gone(end_inside *e)
{
    for (int i = 0; i < 3; i++) {
        assert_ok(e->inside[i]);
        assert_noted(&e->destroyed[i], GPUSYNC_OK);
    }
    assert_true(e->destroyed[0].order < e->destroyed[2].order && e->destroyed[1].order < e->destroyed[2].order);
    assert_int_equal(kit_now().blocks, 0);
}

/* A40. On the dispatch queue: IN_ON_COMPLETE below. */
on_both_kinds_with(test_R22_a_callback_may_let_everything_go_by_hand, .timelines = 1, .device = threads_by_hand)
{
    end_inside e;
    begin_end_inside(s, &e);
    finish_all(s);
    while (!GET(&e.destroyed[2].calls)) {
        unsigned long told = kit_now().notifies;
        assert_true(told > 0);
        assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, NULL));
    }
    (void)taken_device(s);
    expect_all_gone(&e);
}

/* -- let go in whatever gpusync calls */

typedef enum called {
    IN_ON_COMPLETE,
    IN_A_DEALLOC,
    IN_DESTROYED_OF_ANOTHER,
    IN_LOG,
    IN_UNPARK,
    IN_NOTIFY,
    CALLEDS
} called;
static const char *const called_names[] = {"on_complete",
                                           "the dealloc of an object that is released",
                                           "destroyed of another object",
                                           "log, in a handler",
                                           "unpark, in a handler",
                                           "notify, in a handler"};

static struct {
    called in;
    bool over;
    end_inside e;
} last_owner;

static void let_all_go_once(called in)
{
    if (in == last_owner.in && !__atomic_exchange_n(&last_owner.over, true, __ATOMIC_SEQ_CST))
        let_all_go(&last_owner.e, GPUSYNC_OK, NULL);
}

static void let_go_in_on_complete(void *user, gpusync_result result, const gpusync_error *error)
{
    let_all_go_once(IN_ON_COMPLETE);
}

static void let_go_in_a_dealloc(void *user)
{
    (void)user, let_all_go_once(IN_A_DEALLOC);
}
static void let_go_in_destroyed(void *user)
{
    (void)user, let_all_go_once(IN_DESTROYED_OF_ANOTHER);
}
static void let_go_in_notify(void *user)
{
    kit_notify(user), let_all_go_once(IN_NOTIFY);
}

static void let_go_in_log(void *user, gpusync_log_level level, const char *text)
{
    kit_log(user, level, text);
    let_all_go_once(IN_LOG);
}

static void let_go_in_unpark(void *user, gpusync_waiter *waiter)
{
    let_all_go_once(IN_UNPARK);
    kit_unpark(user, waiter);
}

static const gpusync_hooks letting_hooks = {
    .yield = kit_yield,
    .park = park_patiently,
    .unpark = let_go_in_unpark,
};

/* The queue has one ticket, which fails; a thread sleeps for it. */
static void let_go_in(called in)
{
    end_inside *e = &last_owner.e;
    stage_desc desc = {.queues = 2,
                       .timelines = 1,
                       .device = {.hooks = &letting_hooks, .log = let_go_in_log, .notify = let_go_in_notify}};
    stage s;
    job j = {0};
    void *object = softmetal_new_witness(let_go_in_a_dealloc, NULL);
    desc.device.callback_mode = in == IN_NOTIFY ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED;
    print_message("  %s\n", called_names[in]);
    memset(&last_owner, 0, sizeof last_owner);
    last_owner.in = in;
    stage_open(&s, &desc);
    e->device = s.device;
    e->queue = taken(&s, 0);
    e->timeline = taken_timeline(&s, 0);
    void *buffer = new_buffer(e->queue);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    SUBMIT(e->queue, BUFFERS(buffer), .on_complete = let_go_in_on_complete);
    if (in == IN_A_DEALLOC)
        assert_ok(gpusync_release_after(e->queue, 1, object));
    metal_release(object);
    job_wait(&j, e->queue, 1, GPUSYNC_FOREVER);
    await_parked(1);
    if (in == IN_DESTROYED_OF_ANOTHER)
        assert_ok(gpusync_queue_destroy_later(taken(&s, 1), let_go_in_destroyed, NULL));
    else
        assert_ok(gpusync_queue_destroy(taken(&s, 1)));
    while (finish_next_of(s.metal[0])) {}
    job_end(&j); /* the queue may go before the work has ended */
    assert_true(j.result == GPUSYNC_ERROR_EXECUTION ||
                (in == IN_DESTROYED_OF_ANOTHER && j.result == GPUSYNC_ERROR_DESTROYED));
    s.device = NULL;
    while (in == IN_NOTIFY && !GET(&e->destroyed[2].calls))
        assert_ok(gpusync_device_run_callbacks(e->device, SIZE_MAX, NULL));
    assert_true(softmetal_dispatched(SECONDS(60)));
    expect_all_gone(e);
    stage_close(&s);
}

without_stage_on_both_kinds(test_R22_the_last_owner_may_let_go_in_what_gpusync_calls)
{
    for (int in = 0; in < CALLEDS; in++)
        let_go_in((called)in);
}

/* -- gpusync_device_destroy --------------------------------------------------------------------------------------- */

on_stage_with(test_R22_a_device_in_use_is_not_destroyed, .timelines = 1, .device = alone)
{
    assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
    assert_ok(gpusync_poll(s->q[0], 0, NULL));
    assert_ok(gpusync_queue_destroy(taken(s, 0)));
    assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
    assert_ok(gpusync_timeline_destroy(taken_timeline(s, 0)));
    assert_ok(gpusync_device_destroy(taken_device(s)));
    assert_int_equal(kit_now().blocks, 0);
}

static void destroy_the_device_inside(void *user)
{
    end_inside *e = (end_inside *)user;
    e->inside[3] = gpusync_device_destroy(e->device);
    gate_wait(&e->g);
    gate_wait(&e->g);
    remember_destroyed(&e->destroyed[0]);
}

static gpusync_result run_some(void *device)
{
    return gpusync_device_run_callbacks((gpusync_device *)device, SIZE_MAX, NULL);
}

/* The object is gone when its `destroyed` is called, and the device's destroy waits until that has returned. */
on_stage_with(test_R22_the_destroy_of_a_device_waits_for_destroyed, .device = threads_by_hand)
{
    end_inside e = {.device = s->device};
    job running = {0}, ending = {0};
    gate_init(&e.g, 2);
    assert_ok(gpusync_queue_destroy_later(taken(s, 0), destroy_the_device_inside, &e));
    job_call(&running, run_some, s->device);
    gate_wait(&e.g);
    assert_result(e.inside[3], GPUSYNC_ERROR_WOULD_DEADLOCK);
    job_call(&ending, destroy_device, taken_device(s));
    for (int i = 0; i < 3; i++) { /* the program's function may take its time */
        const unsigned long parks = kit_now().parks;
        pass(SECONDS(3600));
        while (!job_is_over(&ending) && kit_now().parks < parks + 2)
            sched_yield();
        assert_false(job_is_over(&ending));
    }
    gate_wait(&e.g);
    assert_ok(job_end(&running));
    assert_ok(job_end(&ending));
    gate_destroy(&e.g);
    assert_noted(&e.destroyed[0], GPUSYNC_OK);
    assert_int_equal(kit_now().blocks, 0);
}

/* -- what a call has ended goes before the call returns: the thread is still in Metal's commit, or writes the event */

static struct {
    stage *s;
    void *buffer;
    const char *selector; /* NULL: nothing is to go */
    gpusync_result (*goes)(void *stage);
    note gone; /* the device */
} inside;

static void go_inside(void *user, softmetal_phase phase, void *object, const char *selector)
{
    job going = {0};
    if (phase != SOFTMETAL_AFTER || !inside.selector || strcmp(selector, inside.selector) != 0)
        return;
    inside.selector = NULL;
    if (inside.buffer)
        softmetal_finish(inside.buffer);
    job_call(&going, inside.goes, inside.s);
    assert_ok(job_end(&going));
}

static gpusync_result wait_and_destroy_queue(void *argument)
{
    stage *s = (stage *)argument;
    assert_ok(gpusync_wait(s->q[0], 1, GPUSYNC_FOREVER, NULL));
    return gpusync_queue_destroy(taken(s, 0));
}

static gpusync_result wait_and_destroy_timeline(void *argument)
{
    stage *s = (stage *)argument;
    assert_ok(gpusync_timeline_wait(s->t[0], 1, GPUSYNC_FOREVER, NULL));
    return gpusync_timeline_destroy(taken_timeline(s, 0));
}

static void destroy_all_later(void *user, gpusync_result result, const gpusync_error *error)
{
    stage *s = (stage *)user;
    must(result == GPUSYNC_OK, "the work succeeds");
    must(gpusync_queue_destroy_later(taken(s, 0), NULL, NULL) == GPUSYNC_OK, "destroy later");
    must(gpusync_device_destroy_later(taken_device(s), remember_destroyed, &inside.gone) == GPUSYNC_OK,
         "destroy later");
}

/* Metal's threads and the callbacks do all. */
static gpusync_result wait_for_the_device(void *argument)
{
    while (!GET(&inside.gone.calls))
        sched_yield();
    return GPUSYNC_OK;
}

static void begin_inside(stage *s, const char *selector, gpusync_result (*goes)(void *stage))
{
    memset(&inside, 0, sizeof inside);
    inside.s = s;
    inside.selector = selector;
    inside.goes = goes;
    softmetal_set_message_hook(go_inside, NULL);
}

static void nothing_left_to_go(void)
{
    softmetal_set_message_hook(NULL, NULL);
    assert_null(inside.selector);
}

static const char *commit_of(stage *s)
{
    return is_metal4(s->q[0]) ? "commit:count:options:" : "commit";
}

on_both_kinds_with(test_R20_a_queue_goes_before_the_commit_that_it_waited_for_returns, .device = alone)
{
    void *buffer = new_buffer(s->q[0]);
    begin_inside(s, commit_of(s), wait_and_destroy_queue);
    inside.buffer = buffer;
    commit(s->q[0], buffer);
    nothing_left_to_go();
}

on_stage_with(test_R20_a_timeline_goes_before_the_signal_that_it_waited_for_returns, .timelines = 1, .device = alone)
{
    begin_inside(s, "setSignaledValue:", wait_and_destroy_timeline);
    signal_value(s->t[0], 1);
    nothing_left_to_go();
}

on_both_kinds_with(test_R22_all_goes_in_the_callback_of_a_submission_that_has_not_returned, .device = threads)
{
    void *buffer = new_buffer(s->q[0]);
    begin_inside(s, commit_of(s), wait_for_the_device);
    inside.buffer = buffer;
    SUBMIT(s->q[0], BUFFERS(buffer), .on_complete = destroy_all_later, .user = s);
    nothing_left_to_go();
    assert_noted(&inside.gone, GPUSYNC_OK);
}

/* Its status has told the end, and Metal has not called its handler; or has, and still keeps its block. */
static void *end_with_a_block(stage *s, bool has_run)
{
    void *buffer = metal_retain(new_buffer(s->q[0]));
    commit(s->q[0], buffer);
    softmetal_complete(buffer);
    if (has_run)
        softmetal_run_handler(buffer, 0);
    assert_ok(gpusync_queue_destroy(taken(s, 0)));
    return buffer;
}

static void finish_buffer_at_the_third(void *argument, unsigned park)
{
    if (park == 3)
        softmetal_finish(argument);
}

static void play_metals_blocks(stage *s, bool has_run)
{
    void *buffer = end_with_a_block(s, has_run);
    const uint64_t began = GET(&still_now);
    while_parked(finish_buffer_at_the_third, buffer);
    assert_ok(gpusync_device_destroy(taken_device(s)));
    while_parked(NULL, NULL);
    assert_true(GET(&still_now) - began < SECONDS(1));
    assert_int_equal(softmetal_live("block"), 0);
    assert_int_equal(kit_now().blocks, 0);
    assert_int_equal(kit_now().log_lines, 0);
    metal_release(buffer);
}

on_stage_with(test_R22_the_destroy_of_a_device_waits_for_metals_blocks, .device = alone)
{
    play_metals_blocks(s, false);
}

on_both_kinds_with(test_R22_the_destroy_of_a_device_waits_for_the_block_of_a_handler_that_has_run, .device = alone)
{
    play_metals_blocks(s, true);
}

static void play_a_second_at_most(stage *s, bool has_run)
{
    void *buffer = end_with_a_block(s, has_run);
    const uint64_t began = GET(&still_now);
    assert_ok(gpusync_device_destroy(taken_device(s)));
    assert_in_range(GET(&still_now) - began, SECONDS(1), SECONDS(1) + MS(2));
    assert_true(log_has(GPUSYNC_LOG_WARNING, ""));
    softmetal_finish(buffer); /* late; the block finds what it needs, and the rest goes with it */
    assert_int_equal(kit_now().blocks, 0);
    assert_int_equal(kit_now().log_lines, 1);
    metal_release(buffer);
}

on_stage_with(test_R22_the_destroy_of_a_device_waits_for_a_second_at_most, .device = alone)
{
    play_a_second_at_most(s, false);
}

on_both_kinds_with(test_R22_the_destroy_of_a_device_waits_for_a_second_at_most_when_the_handler_has_run,
                   .device = alone)
{
    play_a_second_at_most(s, true);
}

/* The block that Metal keeps for a value of other code that never comes is not waited for. Its code is gpusync's: the
   log says that it has to stay. */
on_stage_with(test_R22_a_listener_that_is_left_is_told_of_and_not_waited_for, .no_queue = true, .timelines = 1,
              .device = alone, .timeline = {.signalled_by_others = true})
{
    void *event = metal_retain(gpusync_timeline_metal(s->t[0], NULL));
    const uint64_t began = GET(&still_now);
    note n = {0};
    on_done(at(s->t[0], 9), &n);
    assert_ok(gpusync_timeline_destroy(taken_timeline(s, 0)));
    assert_noted(&n, GPUSYNC_ERROR_DESTROYED);
    assert_true(softmetal_live("block") > 0);
    assert_ok(gpusync_device_destroy(taken_device(s)));
    assert_true(GET(&still_now) - began < SECONDS(1));
    assert_int_equal(kit_now().log_lines, 1);
    assert_true(log_has(GPUSYNC_LOG_WARNING, ""));
    metal_event_signal(event, UINT64_MAX); /* the block is called, and touches nothing that has gone */
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    metal_release(event);
}

/* -- gpusync_device_destroy_later --------------------------------------------------------------------------------- */

static void device_goes_later(stage *s, bool by_hand)
{
    note destroyed = {0}, done = {0};
    gpusync_device *device = s->device;
    assert_ok(gpusync_device_destroy_later(device, remember_destroyed, &destroyed));
    assert_result(gpusync_device_destroy_later(device, remember_destroyed, &done), GPUSYNC_ERROR_DESTROYED);
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &done); /* its objects stay usable */
    settle(s);
    assert_noted(&done, GPUSYNC_OK);
    assert_ok(gpusync_queue_destroy(taken(s, 0)));
    run_callbacks(s);
    assert_int_equal(calls_of(&destroyed), 0);
    unsigned long told = kit_now().notifies;
    assert_ok(gpusync_timeline_destroy_later(taken_timeline(s, 0), NULL, NULL));
    if (by_hand) {
        assert_int_equal(calls_of(&destroyed), 0);
        while (!GET(&destroyed.calls)) {
            assert_true(kit_now().notifies > told);
            told = kit_now().notifies;
            assert_ok(gpusync_device_run_callbacks(device, SIZE_MAX, NULL));
        }
    }
    s->device = NULL;
    assert_noted(&destroyed, GPUSYNC_OK);
    assert_int_equal(pthread_equal(destroyed.thread, pthread_self()) != 0, by_hand);
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(kit_now().blocks, 0);
}

on_both_kinds_with(test_R22_a_device_goes_later_with_its_last_object, .timelines = 1, .device = threads)
{
    device_goes_later(s, false);
}

on_both_kinds_with(test_R22_a_device_goes_later_by_hand, .timelines = 1, .device = threads_by_hand)
{
    device_goes_later(s, true);
}

on_stage_with(test_R22_a_device_without_objects_goes_later_at_once, .no_queue = true, .device = threads)
{
    note destroyed = {0};
    assert_ok(gpusync_device_destroy_later(taken_device(s), remember_destroyed, &destroyed));
    assert_noted(&destroyed, GPUSYNC_OK);
    assert_int_equal(kit_now().blocks, 0);
}

/* Without a `destroyed` the device goes all the same, in the run_callbacks that is asked for. */
on_stage_with(test_R22_a_device_goes_later_untold, .no_queue = true, .device = threads_by_hand)
{
    gpusync_device *device = taken_device(s);
    assert_ok(gpusync_device_destroy_later(device, NULL, NULL));
    assert_int_equal(kit_now().notifies, 1);
    assert_ok(gpusync_device_run_callbacks(device, SIZE_MAX, NULL));
    assert_int_equal(kit_now().blocks, 0);
}

/* The device goes with a plain destroy of its last object, too. */
on_stage_with(test_R22_a_device_goes_later_with_a_plain_destroy, .timelines = 1, .device = threads)
{
    note destroyed = {0};
    assert_ok(gpusync_device_destroy_later(taken_device(s), remember_destroyed, &destroyed));
    assert_ok(gpusync_timeline_destroy(taken_timeline(s, 0)));
    assert_int_equal(calls_of(&destroyed), 0);
    assert_ok(gpusync_queue_destroy(taken(s, 0)));
    assert_noted(&destroyed, GPUSYNC_OK);
    assert_int_equal(kit_now().blocks, 0);
}

/* -- timelines ---------------------------------------------------------------------------------------------------- */

static gpusync_result destroy_timeline(gpusync_timeline *timeline, note *n)
{
    gpusync_result result = gpusync_timeline_destroy(timeline);
    remember_destroyed(n);
    return result;
}

static gpusync_result let_timeline_go(gpusync_timeline *timeline, note *n)
{
    return gpusync_timeline_destroy_later(timeline, remember_destroyed, n);
}

/* Both ends; those of the host's waits and callbacks that are reached keep their result. */
static void end_timeline(gpusync_result (*end)(gpusync_timeline *, note *))
{
    stage s;
    stage_open(&s, &(stage_desc){.timelines = 1, .device = threads});
    const gpusync_point points[2] = {ticket_at(s.q[0], 0), at(s.t[0], 2)};
    note reached = {0}, missed = {0}, destroyed = {0};
    job value = {0}, many = {0};
    on_done(at(s.t[0], 1), &reached);
    on_done(at(s.t[0], 2), &missed);
    signal_value(s.t[0], 1);
    job_value(&value, s.t[0], 2, GPUSYNC_FOREVER);
    job_many(&many, points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    await_parked(2);
    assert_ok(end(taken_timeline(&s, 0), &destroyed));
    assert_result(job_end(&value), GPUSYNC_ERROR_DESTROYED);
    assert_result(job_end(&many), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(many.which, 1);
    assert_noted(&reached, GPUSYNC_OK);
    assert_noted(&missed, GPUSYNC_ERROR_DESTROYED);
    assert_noted(&destroyed, GPUSYNC_OK);
    assert_true(reached.order < missed.order && missed.order < destroyed.order);
    stage_close(&s);
}

without_stage(test_R19_the_end_of_a_timeline_ends_waits_and_callbacks_of_the_host)
{
    end_timeline(destroy_timeline);
    end_timeline(let_timeline_go);
}

/* C4: both are held as the timeline goes. */
on_all_kinds_with(test_R19_signals_of_accepted_work_still_reach_accepted_work, .queues = 2, .timelines = 2,
                  .device = threads)
{
    note destroyed = {0};
    SUBMIT(s->q[0], WAITS(at(s->t[1], 1)), SIGNALS(at(s->t[0], 1)));
    SUBMIT(s->q[1], WAITS(at(s->t[0], 1)));
    SUBMIT(s->q[1], WAITS(at(s->t[0], 2)));
    assert_ok(gpusync_timeline_destroy_later(taken_timeline(s, 0), remember_destroyed, &destroyed));
    settle(s);
    assert_result(gpusync_poll(s->q[1], 1, NULL), GPUSYNC_NOT_READY);
    signal_value(s->t[1], 1);
    settle(s);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    assert_ok(gpusync_poll(s->q[1], 1, NULL));
    assert_result(gpusync_poll(s->q[1], 2, NULL), GPUSYNC_ERROR_DESTROYED); /* above the highest signal */
    assert_noted(&destroyed, GPUSYNC_OK);
}

/* Nothing is to signal the value, and nothing else happens than the timeline's end. */
on_both_kinds_with(test_R19_held_work_that_nothing_is_to_let_go_ends_with_its_timeline, .timelines = 2,
                   .device = threads)
{
    note n = {0};
    on_done(ticket_at(s->q[0], SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), SIGNALS(at(s->t[1], 1)))), &n);
    assert_ok(gpusync_timeline_destroy(taken_timeline(s, 0)));
    assert_noted(&n, GPUSYNC_ERROR_DESTROYED);
    assert_false(n.error.ran);
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_timeline_wait(s->t[1], 1, 0, NULL), GPUSYNC_ERROR_DESTROYED);
}

/* It signals 6 behind its wait for 5: that never comes by itself. */
on_stage_with(test_R19_the_signal_of_the_work_itself_lets_nothing_hope, .queues = 2, .timelines = 2, .device = threads)
{
    void *encoded = waiting(s->q[0], at(s->t[0], 5));
    encode_signal(s->q[0], encoded, at(s->t[0], 6));
    commit(s->q[0], encoded);
    SUBMIT(s->q[1], WAITS(at(s->t[1], 5)), SIGNALS(at(s->t[1], 6)));
    for (int i = 0; i < 2; i++) {
        assert_ok(gpusync_timeline_destroy(taken_timeline(s, i)));
        assert_result(gpusync_poll(s->q[i], 1, NULL), GPUSYNC_ERROR_DESTROYED);
    }
}

/* Only open buffers are to signal the value: they do not count, and may still be committed. */
on_stage_with(test_R19_what_only_open_buffers_are_to_signal_lets_nothing_hope, .queues = 2, .timelines = 1,
              .device = threads)
{
    void *open = signalling(s->q[0], at(s->t[0], 1));
    note n = {0};
    SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), .flags = GPUSYNC_SUBMIT_UNORDERED, .on_complete = remember, .user = &n);
    commit(s->q[1], waiting(s->q[1], at(s->t[0], 1)));
    assert_ok(gpusync_timeline_destroy(taken_timeline(s, 0)));
    assert_noted(&n, GPUSYNC_ERROR_DESTROYED);
    assert_false(n.error.ran);
    assert_result(gpusync_poll(s->q[1], 1, NULL), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(commit(s->q[0], open), 1);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
}

/* Held signals of committed work count, and those of buffers that are committed behind the destroy. */
on_stage_with(test_R19_work_that_is_committed_later_is_judged_alike, .queues = 3, .timelines = 2, .device = threads)
{
    void *open = signalling(s->q[1], at(s->t[0], 2));
    void *waits[4];
    for (unsigned i = 0; i < 4; i++)
        waits[i] = waiting(s->q[2], at(s->t[0], i / 2 + 1)); /* for 1, 1, 2, 2 */
    SUBMIT(s->q[0], WAITS(at(s->t[1], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 1)));
    assert_ok(gpusync_timeline_destroy(taken_timeline(s, 0)));
    commit(s->q[2], waits[2]); /* no committed work is to signal 2 */
    commit(s->q[2], waits[0]);
    commit(s->q[1], open);
    commit(s->q[2], waits[3]);
    commit(s->q[2], waits[1]);
    finish_all(s);
    assert_result(gpusync_poll(s->q[2], 1, NULL), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_poll(s->q[2], 2, NULL), GPUSYNC_NOT_READY);
    signal_value(s->t[1], 1);
    finish_all(s);
    for (gpusync_ticket ticket = 2; ticket <= 4; ticket++)
        assert_ok(gpusync_poll(s->q[2], ticket, NULL));
}

/* The destroyed timeline's event is still raised by other code. */
on_both_kinds_with(test_R19_where_others_signal_held_work_goes_on, .timelines = 1, .device = threads,
                   .timeline = {.signalled_by_others = true})
{
    void *event = metal_retain(gpusync_timeline_metal(s->t[0], NULL));
    uint64_t base;
    assert_ptr_equal(gpusync_timeline_metal(s->t[0], &base), event);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)));
    assert_ok(gpusync_timeline_destroy(taken_timeline(s, 0)));
    assert_result(gpusync_poll(s->q[0], 1, NULL), GPUSYNC_NOT_READY);
    METAL__AS(void, uint64_t)(event, metal__sel("setSignaledValue:"), base + 1);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    metal_release(event);
}

/* -- other rules -------------------------------------------------------------------------------------------------- */

/* F17: Metal has ended both, and no handler tells. Whichever is asked first, the first failure passes to the second. */
without_stage(test_F17_the_order_of_polls_decides_nothing)
{
    for (int first = 1; first <= 2; first++) {
        stage s;
        stage_open(&s, &(stage_desc){.device = threads, .queue = {.sticky_failure = true}});
        void *buffers[2] = {new_buffer(s.q[0]), new_buffer(s.q[0])};
        softmetal_fail_as(buffers[0], SOFTMETAL_PAGE_FAULT, NULL);
        for (int i = 0; i < 2; i++) {
            softmetal_lose_handlers(buffers[i]);
            commit(s.q[0], buffers[i]);
        }
        finish_all(&s);
        assert_result(gpusync_poll(s.q[0], first, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_result(gpusync_poll(s.q[0], 3 - first, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(failures_of(s.q[0]), 2);
        assert_false(failure_at(s.q[0], 0).inherited);
        assert_true(failure_at(s.q[0], 1).inherited);
        stage_close(&s);
    }
}

/* The dispatch queue was to look in a second, and all is gone by then. (ASan) */
on_stage_with(test_F18_a_timer_that_comes_late_touches_nothing, .device = threads)
{
    note n = {0};
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &n);
    finish_all(s);
    assert_ok(gpusync_queue_destroy(taken(s, 0)));
    assert_ok(gpusync_device_destroy(taken_device(s)));
    assert_int_equal(kit_now().blocks, 0);
    assert_int_equal(softmetal_fire_timers(), 1);
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_noted(&n, GPUSYNC_OK);
}
