/* test_callbacks.c - callbacks and releases: once, in order, where the device says, and what a callback may do

   Where the place of a callback may matter a test runs in three places: on gpusync's dispatch queue, on one of the
   program's, and by hand. */
#include "kit.h"

#define by_hand {.callback_mode = GPUSYNC_CALLBACKS_MANUAL}

void *dispatch_queue_create(const char *label, void *attribute);
void dispatch_async_f(void *queue, void *context, void (*function)(void *));
void dispatch_release(void *object);

/* -- the places --------------------------------------------------------------------------------------------------- */

typedef enum place { OWN_QUEUE, PROGRAMS_QUEUE, BY_HAND, PLACES } place;

typedef struct scene {
    stage s;
    place in;
    void *serial; /* the program's dispatch queue */
} scene;

static void open_scene(scene *c, place in, stage_desc desc)
{
    memset(c, 0, sizeof *c);
    c->in = in;
    c->serial = in == PROGRAMS_QUEUE ? dispatch_queue_create("the program's", NULL) : NULL;
    desc.device.callback_queue = c->serial;
    desc.device.callback_mode = in == BY_HAND ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED;
    stage_open(&c->s, &desc);
    if (c->serial)
        c->s.live--; /* stage_close finds the dispatch queue gone */
}

static void close_scene(scene *c)
{
    if (c->serial)
        dispatch_release(c->serial);
    stage_close(&c->s);
}

static void in_each_place(void (*body)(scene *c), stage_desc desc)
{
    for (int in = OWN_QUEUE; in < PLACES; in++) {
        scene c;
        open_scene(&c, (place)in, desc);
        body(&c);
        close_scene(&c);
    }
}

/* -- once, and in order ------------------------------------------------------------------------------------------- */

/* notes: in the order in which they are expected. */
static void register_in_disorder(gpusync_queue *queue, note notes[7])
{
    void *buffers[3] = {new_buffer(queue), new_buffer(queue), new_buffer(queue)};
    commit(queue, buffers[0]);
    SUBMIT(queue, BUFFERS(buffers[1]), .on_complete = remember, .user = &notes[2]);
    commit(queue, buffers[2]);
    on_done(ticket_at(queue, 3), &notes[5]);
    on_done(ticket_at(queue, 2), &notes[3]);
    on_done(ticket_at(queue, 1), &notes[0]);
    on_done(ticket_at(queue, 3), &notes[6]);
    on_done(ticket_at(queue, 1), &notes[1]);
    on_done(ticket_at(queue, 2), &notes[4]);
}

static void callbacks_of_tickets(scene *c)
{
    note notes[7] = {0};
    register_in_disorder(c->s.q[0], notes);
    for (size_t i = 0; i < LENGTH(notes); i++)
        assert_int_equal(calls_of(&notes[i]), 0);
    settle(&c->s);
    settle(&c->s);
    assert_in_order(notes, LENGTH(notes));
    for (size_t i = 0; i < LENGTH(notes); i++)
        assert_noted(&notes[i], GPUSYNC_OK);
}

/* Tickets rise; of one ticket on_complete comes first, the others as they were registered. */
without_stage_on_both_kinds(test_R25_callbacks_of_tickets_come_once_and_in_order)
{
    in_each_place(callbacks_of_tickets, (stage_desc){0});
}

static void callbacks_of_values(scene *c)
{
    gpusync_timeline *t = c->s.t[0];
    note notes[4] = {0}, unreached = {0};
    on_done(at(t, 9), &unreached);
    on_done(at(t, 3), &notes[3]);
    on_done(at(t, 1), &notes[0]);
    on_done(at(t, 2), &notes[2]);
    on_done(at(t, 1), &notes[1]);
    signal_value(t, 8);
    settle(&c->s);
    assert_in_order(notes, LENGTH(notes));
    for (size_t i = 0; i < LENGTH(notes); i++)
        assert_noted(&notes[i], GPUSYNC_OK);
    assert_int_equal(calls_of(&unreached), 0);
    signal_value(t, 9);
    settle(&c->s);
    assert_noted(&unreached, GPUSYNC_OK);
}

without_stage(test_R25_callbacks_of_values_come_once_and_in_order)
{
    in_each_place(callbacks_of_values, (stage_desc){.timelines = 1});
}

/* No worker of libdispatch begins before all are due. */
static void callbacks_of_several(scene *c)
{
    stage *s = &c->s;
    void *buffers[4] = {new_buffer(s->q[1]), new_buffer(s->q[0]), new_buffer(s->q[1]), new_buffer(s->q[0])};
    note notes[6] = {0};
    assert_true(softmetal_dispatched(SECONDS(60)));
    softmetal_set_dispatch_threads(0);
    encode_signal(s->q[1], buffers[2], at(s->t[1], 1));
    for (int i = 0; i < 4; i++)
        commit(s->q[i % 2 == 0], buffers[i]);
    on_done(ticket_at(s->q[0], 2), &notes[5]);
    on_done(ticket_at(s->q[0], 1), &notes[2]);
    on_done(at(s->t[1], 1), &notes[3]);
    on_done(at(s->t[0], 1), &notes[1]);
    on_done(ticket_at(s->q[1], 1), &notes[0]);
    softmetal_finish(buffers[0]);
    signal_value(s->t[0], 1);
    softmetal_finish(buffers[1]);
    softmetal_finish(buffers[2]);
    on_done(ticket_at(s->q[1], 1), &notes[4]); /* has ended: due at once */
    softmetal_finish(buffers[3]);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    settle(s);
    assert_in_order(notes, LENGTH(notes));
}

without_stage_on_both_kinds(test_R25_callbacks_of_several_objects_come_in_the_order_in_which_they_became_due)
{
    in_each_place(callbacks_of_several, (stage_desc){.queues = 2, .timelines = 2});
}

static void meet_the_other(void *user, gpusync_result result, const gpusync_error *error)
{
    must(result == GPUSYNC_OK, "the callback's result");
    gate_wait((gate *)user);
}

/* One at a time is a rule of each device: each of the two callbacks waits for the other. */
on_stage(test_R25_callbacks_of_two_devices_run_at_once)
{
    gpusync_device *other = NULL;
    gate g;
    gate_init(&g, 2);
    assert_ok(gpusync_device_create(NULL, &other));
    gpusync_queue *queue = queue_from(other, NULL);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 0), meet_the_other, &g));
    assert_ok(gpusync_on_done(ticket_at(queue, 0), meet_the_other, &g));
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_ok(gpusync_queue_destroy(queue));
    assert_ok(gpusync_device_destroy(other));
    gate_destroy(&g);
}

/* The second handler comes first: the callback of its ticket waits for its turn. */
on_both_kinds_with(test_S3_callbacks_of_ordered_work_wait_for_their_turn, .device = by_hand)
{
    void *buffers[2] = {new_buffer(s->q[0]), new_buffer(s->q[0])};
    note notes[2] = {0};
    on_done(ticket_at(s->q[0], commit(s->q[0], buffers[0])), &notes[0]);
    on_done(ticket_at(s->q[0], commit(s->q[0], buffers[1])), &notes[1]);
    softmetal_finish(buffers[1]);
    assert_int_equal(run_callbacks(s), 0);
    softmetal_finish(buffers[0]);
    assert_int_equal(run_callbacks(s), 2);
    assert_in_order(notes, 2);
}

on_both_kinds_with(test_R30_the_callback_of_unordered_work_waits_for_nothing_else, .device = by_hand)
{
    void *buffers[3] = {new_buffer(s->q[0]), new_buffer(s->q[0]), new_buffer(s->q[0])};
    note notes[3] = {0};
    SUBMIT(s->q[0], BUFFERS(buffers[1]), .flags = GPUSYNC_SUBMIT_UNORDERED, .on_complete = remember, .user = &notes[1]);
    on_done(ticket_at(s->q[0], commit(s->q[0], buffers[2])), &notes[2]);
    SUBMIT(s->q[0], BUFFERS(buffers[0]), .flags = GPUSYNC_SUBMIT_UNORDERED, .on_complete = remember, .user = &notes[0]);
    for (unsigned i = 0; i < 3; i++) {
        softmetal_finish(buffers[i]);
        assert_int_equal(run_callbacks(s), 1);
        assert_noted(&notes[i], GPUSYNC_OK);
    }
    assert_in_order(notes, 3);
}

/* By hand nothing runs in on_done; on a dispatch queue it runs on another thread. */
static void callbacks_of_what_has_ended(scene *c)
{
    stage *s = &c->s;
    const gpusync_ticket failed = commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    finish_all(s);
    signal_value(s->t[0], 3);
    fail_timeline(s->t[0], GPUSYNC_ERROR_COMPILE);
    const struct {
        gpusync_point point;
        gpusync_result expected;
    } rows[] = {
        {ticket_at(s->q[0], GPUSYNC_NO_TICKET), GPUSYNC_OK},
        {ticket_at(s->q[0], -5), GPUSYNC_OK},
        {ticket_at(s->q[0], failed), GPUSYNC_ERROR_EXECUTION},
        {at(s->t[0], 0), GPUSYNC_OK},
        {at(s->t[0], 3), GPUSYNC_OK},
        {at(s->t[0], 4), GPUSYNC_ERROR_COMPILE},
    };
    note notes[LENGTH(rows)];
    memset(notes, 0, sizeof notes);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        on_done(rows[i].point, &notes[i]);
        if (c->in == BY_HAND)
            assert_int_equal(GET(&notes[i].calls), 0);
    }
    settle(s);
    assert_in_order(notes, LENGTH(rows));
    for (size_t i = 0; i < LENGTH(rows); i++) {
        assert_noted(&notes[i], rows[i].expected);
        assert_int_equal(!pthread_equal(notes[i].thread, pthread_self()), c->in != BY_HAND);
    }
}

without_stage_on_both_kinds(test_R25_what_has_ended_calls_back_all_the_same)
{
    in_each_place(callbacks_of_what_has_ended, (stage_desc){.timelines = 1});
}

/* -- where -------------------------------------------------------------------------------------------------------- */

typedef struct busy {
    gate open;
    bool left;
} busy;

static void keep_busy(void *context)
{
    busy *b = (busy *)context;
    gate_wait(&b->open);
    PUT(&b->left, true);
}

static void comes_after_the_busy_one(void *user, gpusync_result result, const gpusync_error *error)
{
    busy *b = (busy *)user;
    must(result == GPUSYNC_OK, "the callback's result");
    must(GET(&b->left), "the callback does not run on the program's serial queue");
    gate_wait(&b->open);
}

without_stage_on_both_kinds(test_R25_callbacks_run_on_the_programs_dispatch_queue)
{
    scene c;
    busy b = {.left = false};
    open_scene(&c, PROGRAMS_QUEUE, (stage_desc){0});
    gate_init(&b.open, 2);
    dispatch_async_f(c.serial, &b, keep_busy);
    assert_ok(gpusync_on_done(ticket_at(c.s.q[0], commit_new(c.s.q[0])), comes_after_the_busy_one, &b));
    finish_all(&c.s);
    gate_wait(&b.open);
    gate_wait(&b.open);
    settle(&c.s);
    gate_destroy(&b.open);
    close_scene(&c);
}

static void note_class(void *user, gpusync_result result, const gpusync_error *error)
{
    PUT((unsigned *)user, softmetal_dispatch_qos(NULL));
}

on_stage(test_R25_gpusyncs_dispatch_queue_is_user_initiated)
{
    unsigned class = 0;
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 0), note_class, &class));
    settle(s);
    assert_int_equal(GET(&class), 0x19); /* QOS_CLASS_USER_INITIATED */
}

/* The device keeps it, whatever the program does with its own reference. */
without_stage_on_both_kinds(test_ownership_the_programs_dispatch_queue_is_retained)
{
    scene c;
    note n = {0};
    open_scene(&c, PROGRAMS_QUEUE, (stage_desc){0});
    dispatch_release(c.serial);
    c.serial = NULL;
    on_done(ticket_at(c.s.q[0], commit_new(c.s.q[0])), &n);
    settle(&c.s);
    assert_noted(&n, GPUSYNC_OK);
    close_scene(&c);
}

typedef struct leaver {
    gpusync_queue *queue;
    gpusync_result result;
    note *n;
    bool had_run; /* as the destroy returned */
} leaver;

static void destroy_here(void *context)
{
    leaver *l = (leaver *)context;
    l->result = gpusync_queue_destroy(l->queue);
    l->had_run = GET(&l->n->calls) == 1;
}

/* The program destroys a queue on the very dispatch queue where its callback is to run, behind what runs there now. */
without_stage_on_both_kinds(test_R25_a_destroy_on_the_dispatch_queue_of_the_callbacks_runs_them)
{
    scene c;
    note n = {0};
    open_scene(&c, PROGRAMS_QUEUE, (stage_desc){0});
    leaver l = {.queue = c.s.q[0], .n = &n, .result = GPUSYNC_TIMEOUT};
    softmetal_set_dispatch_threads(0);
    on_done(ticket_at(c.s.q[0], commit_new(c.s.q[0])), &n);
    dispatch_async_f(c.serial, &l, destroy_here);
    finish_all(&c.s);
    c.s.q[0] = NULL;
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_ok(l.result);
    assert_true(l.had_run);
    assert_noted(&n, GPUSYNC_OK);
    close_scene(&c);
}

/* No worker of libdispatch begins anything: what runs then ran in a call of this thread. */
on_both_kinds_with(test_S10_no_wait_poll_or_signal_runs_a_callback, .timelines = 1)
{
    note notes[3] = {0};
    assert_true(softmetal_dispatched(SECONDS(60)));
    softmetal_set_dispatch_threads(0);
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &notes[0]);
    on_done(at(s->t[0], 1), &notes[1]);
    finish_all(s);
    assert_ok(gpusync_wait(s->q[0], 1, 0, NULL));
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    signal_value(s->t[0], 1);
    assert_ok(gpusync_timeline_wait(s->t[0], 1, 0, NULL));
    on_done(at(s->t[0], 1), &notes[2]);
    commit_new(s->q[0]);
    assert_int_equal(GET(&notes[0].calls) + GET(&notes[1].calls) + GET(&notes[2].calls), 0);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    settle(s);
    assert_in_order(notes, LENGTH(notes));
}

/* -- what a callback is told -------------------------------------------------------------------------------------- */

typedef struct heard {
    gpusync_queue *queue;
    gpusync_result polled;
    gpusync_times times;
    gpusync_error on_record;
    gpusync_result recorded;
    bool done;
    note told;
} heard;

static void ask_inside(void *user, gpusync_result result, const gpusync_error *error)
{
    heard *h = (heard *)user;
    uint64_t cursor = 0;
    h->polled = gpusync_poll(h->queue, 1, &h->times);
    h->recorded = gpusync_queue_next_error(h->queue, &cursor, &h->on_record);
    h->done = gpusync_is_done(h->queue, 1);
    remember(&h->told, result, error);
}

on_both_kinds(test_S4_a_failure_is_on_record_before_its_callback)
{
    heard h = {.queue = s->q[0]};
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), ask_inside, &h));
    settle(s);
    assert_noted(&h.told, GPUSYNC_ERROR_EXECUTION);
    assert_result(h.polled, GPUSYNC_ERROR_EXECUTION);
    assert_ok(h.recorded);
    assert_int_equal(h.on_record.ticket, 1);
    assert_int_equal(h.on_record.failure, GPUSYNC_FAILURE_PAGE_FAULT);
    assert_int_equal(h.told.error.ticket, 1);
    assert_int_equal(h.told.error.failure, GPUSYNC_FAILURE_PAGE_FAULT);
    assert_string_equal(h.told.error.queue_label, "first");
    assert_true(h.done);
}

static double tick(void)
{
    static int now;
    return COUNT(&now) + 1;
}

static void assert_times_of_metal(const gpusync_times *times, void *buffer)
{
    const double start_s = METAL__AS0(double)(buffer, metal__sel("GPUStartTime"));
    const double end_s = METAL__AS0(double)(buffer, metal__sel("GPUEndTime"));
    assert_true(start_s > 0 && start_s < end_s);
    assert_true(times->gpu_start_s == start_s && times->gpu_end_s == end_s);
}

/* F14: a look finds the end before the handler. The times are zero until the handler brings them, and not lost. */
on_stage_with(test_R26_times_that_a_callback_lacks_come_with_the_handler, .device = by_hand)
{
    heard h = {.queue = s->q[0]};
    gpusync_times times;
    void *buffer = metal_retain(new_buffer(s->q[0]));
    softmetal_set_gpu_clock(tick);
    commit(s->q[0], buffer);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), ask_inside, &h));
    softmetal_complete(buffer);
    assert_int_equal(run_callbacks(s), 1);
    assert_ok(h.polled);
    assert_true(h.times.gpu_start_s == 0 && h.times.gpu_end_s == 0);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 1, &times));
    assert_times_of_metal(&times, buffer);
    softmetal_set_gpu_clock(NULL);
    metal_release(buffer);
}

on_stage_with(test_R26_a_callback_behind_the_handler_has_the_times, .device = by_hand)
{
    heard h = {.queue = s->q[0]};
    void *buffer = metal_retain(new_buffer(s->q[0]));
    softmetal_set_gpu_clock(tick);
    commit(s->q[0], buffer);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 1), ask_inside, &h));
    finish_all(s);
    assert_int_equal(run_callbacks(s), 1);
    assert_times_of_metal(&h.times, buffer);
    softmetal_set_gpu_clock(NULL);
    metal_release(buffer);
}

static void autorelease(void *user, gpusync_result result, const gpusync_error *error)
{
    metal_get(user, "autorelease");
}

static void note_gone(void *user)
{
    COUNT((unsigned *)user);
}

/* By hand, so that the pool of this thread would keep the object. */
on_stage_with(test_S10_a_callback_has_an_autorelease_pool, .device = by_hand)
{
    unsigned gone = 0;
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 0), autorelease, softmetal_new_witness(note_gone, &gone)));
    assert_int_equal(run_callbacks(s), 1);
    assert_int_equal(GET(&gone), 1);
}

/* -- refused ------------------------------------------------------------------------------------------------------ */

on_both_kinds_with(test_R7_R42_a_callback_is_refused_for_no_point_and_so_is_its_withdrawal, .timelines = 1)
{
    const struct {
        gpusync_point point;
        gpusync_result expected;
    } rows[] = {
        {ticket_at(s->q[0], 2), GPUSYNC_ERROR_INVALID_TICKET},
        {ticket_at(s->q[0], GPUSYNC_EVERYTHING), GPUSYNC_ERROR_INVALID_TICKET},
        {ticket_at(NULL, 1), GPUSYNC_ERROR_INVALID_ARGUMENT},
        {at(s->t[0], GPUSYNC_MAX_VALUE + 1), GPUSYNC_ERROR_NOT_RISING},
    };
    note n = {0};
    commit_new(s->q[0]);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        assert_result(gpusync_on_done(rows[i].point, remember, &n), rows[i].expected);
        assert_result(gpusync_cancel_on_done(rows[i].point, remember, &n), rows[i].expected);
    }
    assert_result(gpusync_on_done(ticket_at(s->q[0], 1), NULL, &n), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_cancel_on_done(ticket_at(s->q[0], 1), NULL, &n), GPUSYNC_ERROR_INVALID_ARGUMENT);
    commit_new(s->q[0]);
    settle(s);
    assert_int_equal(calls_of(&n), 0);
}

on_both_kinds(test_T15_a_refused_release_retains_nothing)
{
    unsigned gone = 0;
    void *object = softmetal_new_witness(note_gone, &gone);
    commit_new(s->q[0]);
    assert_result(gpusync_release_after(s->q[0], 2, object), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_release_after(s->q[0], GPUSYNC_EVERYTHING, object), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_release_after(NULL, 1, object), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_release_after(s->q[0], 1, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    memory_fail(1, true);
    assert_result(gpusync_release_after(s->q[0], 1, object), GPUSYNC_ERROR_OUT_OF_MEMORY);
    memory_fail(0, false);
    metal_release(object);
    assert_int_equal(GET(&gone), 1);
}

/* Whichever allocation fails: no ticket, no callback. The loop ends with the submission that is accepted. */
on_stage(test_R16_without_memory_nothing_is_registered)
{
    gpusync_ticket ticket = 77;
    gpusync_result result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    note n = {0}, refused = {0};
    memory_fail(1, true);
    assert_result(gpusync_on_done(ticket_at(s->q[0], 0), remember, &refused), GPUSYNC_ERROR_OUT_OF_MEMORY);
    for (long i = 1; result != GPUSYNC_OK; i++) {
        assert_int_equal(ticket, 77);
        assert_int_equal(gpusync_in_flight(s->q[0]), 0);
        memory_fail(i, true);
        result = TRY_SUBMIT(s->q[0], &ticket, .on_complete = remember, .user = &n);
        assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_OUT_OF_MEMORY);
    }
    memory_fail(0, false);
    assert_true(kit_now().refusals >= 2);
    assert_int_equal(ticket, 1);
    settle(s);
    assert_noted(&n, GPUSYNC_OK);
    assert_int_equal(calls_of(&refused), 0);
}

/* -- by hand ------------------------------------------------------------------------------------------------------ */

static void expect_run(stage *s, size_t max, size_t expected)
{
    size_t count = 99;
    assert_ok(gpusync_device_run_callbacks(s->device, max, &count));
    assert_int_equal(count, expected);
}

on_both_kinds_with(test_R25_run_callbacks_runs_the_oldest_and_tells_of_the_rest, .device = by_hand)
{
    note notes[5] = {0};
    for (size_t i = 0; i < LENGTH(notes); i++)
        on_done(ticket_at(s->q[0], commit_new(s->q[0])), &notes[i]);
    assert_int_equal(kit_now().notifies, 0);
    expect_run(s, SIZE_MAX, 0);
    finish_all(s);
    unsigned long told = kit_now().notifies;
    assert_true(told > 0);
    expect_run(s, 0, 0);
    assert_int_equal(kit_now().notifies, told); /* it has run none */
    expect_run(s, 2, 2);
    assert_int_equal(kit_now().notifies, told + 1);
    assert_int_equal(notes[0].calls + notes[1].calls, 2);
    expect_run(s, 3, 3);
    assert_int_equal(kit_now().notifies, told + 1); /* none is left */
    assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, NULL));
    assert_in_order(notes, LENGTH(notes));
    assert_result(gpusync_device_run_callbacks(NULL, 1, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
}

on_stage(test_R25_run_callbacks_has_nothing_to_do_where_they_are_queued)
{
    note n = {0};
    assert_true(softmetal_dispatched(SECONDS(60)));
    softmetal_set_dispatch_threads(0);
    on_done(ticket_at(s->q[0], 0), &n);
    expect_run(s, SIZE_MAX, 0);
    assert_int_equal(GET(&n.calls), 0);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    assert_noted(&n, GPUSYNC_OK);
}

static struct {
    stage *s;
    unsigned calls;
    gpusync_ticket committed;
    note later;
} notified;

/* In a handler of Metal's: whatever neither waits nor destroys. */
static void act_in_notify(void *user)
{
    stage *s = notified.s;
    void *buffer = NULL;
    kit_notify(user);
    if (!s || COUNT(&notified.calls) != 0)
        return;
    must(!gpusync_poll(s->q[0], 1, NULL), "a poll in notify");
    must(!gpusync_timeline_signal(s->t[0], 1), "a signal in notify");
    must(!gpusync_on_done(at(s->t[0], 2), remember, &notified.later), "on_done in notify");
    must(!gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), "a command buffer in notify");
    must(!gpusync_commit(s->q[0], buffer, &notified.committed), "a commit in notify");
}

on_stage_with(test_S10_notify_may_poll_signal_and_commit, .timelines = 1,
              .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL, .notify = act_in_notify})
{
    note n = {0};
    memset(&notified, 0, sizeof notified);
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &n);
    notified.s = s;
    assert_true(finish_next(s->q[0]));
    notified.s = NULL;
    assert_true(notified.calls > 0);
    assert_int_equal(notified.committed, 2);
    assert_int_equal(value_of(s->t[0]), 1);
    finish_all(s);
    run_callbacks(s);
    assert_noted(&n, GPUSYNC_OK);
    assert_ok(gpusync_poll(s->q[0], 2, NULL));
}

typedef struct chain {
    stage *s;
    unsigned calls, depth, most;
    unsigned left; /* how many more to register */
} chain;

static void register_the_next(void *user, gpusync_result result, const gpusync_error *error)
{
    chain *l = (chain *)user;
    must(result == GPUSYNC_OK, "the callback's result");
    l->depth++;
    l->most = l->depth > l->most ? l->depth : l->most;
    l->calls++;
    if (l->left > 0) {
        l->left--;
        must(gpusync_on_done(ticket_at(l->s->q[0], 0), register_the_next, l) == GPUSYNC_OK, "on_done in a callback");
    }
    l->depth--;
}

on_stage_with(test_R25_what_becomes_due_in_run_callbacks_does_not_run_in_it, .device = by_hand)
{
    chain l = {.s = s, .left = 2};
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 0), register_the_next, &l));
    for (unsigned i = 1; i <= 3; i++) {
        unsigned long told = kit_now().notifies;
        expect_run(s, SIZE_MAX, 1);
        assert_int_equal(l.calls, i);
        assert_int_equal(kit_now().notifies > told, i < 3);
    }
    expect_run(s, SIZE_MAX, 0);
}

static void long_chain(scene *c)
{
    chain l = {.s = &c->s, .left = 500};
    assert_ok(gpusync_on_done(ticket_at(c->s.q[0], 0), register_the_next, &l));
    settle(&c->s);
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(l.calls, 501);
    assert_int_equal(l.most, 1);
}

without_stage(test_R25_callbacks_that_register_callbacks_do_not_nest)
{
    in_each_place(long_chain, (stage_desc){0});
}

/* Metal loses the handler: run_callbacks reads the status. */
on_stage_with(test_R24_run_callbacks_looks, .queues = 2, .device = by_hand)
{
    void *buffer = new_buffer(s->q[1]);
    note n = {0};
    softmetal_lose_handlers(buffer);
    on_done(ticket_at(s->q[1], commit(s->q[1], buffer)), &n);
    softmetal_finish(buffer);
    assert_int_equal(kit_now().notifies, 0);
    expect_run(s, SIZE_MAX, 1);
    assert_noted(&n, GPUSYNC_OK);
}

/* A second has passed. Returns how many timers there were. */
static unsigned after_a_second(void)
{
    unsigned fired = softmetal_fire_timers();
    assert_true(softmetal_dispatched(SECONDS(60)));
    return fired;
}

enum { ON_DONE, ON_COMPLETE, LATER, WAYS };

/* Commits a command buffer whose handler Metal loses. The note is owed. */
static void *owe(stage *s, unsigned way, note *n)
{
    gpusync_queue *queue = s->q[way == LATER];
    void *buffer = new_buffer(queue);
    softmetal_lose_handlers(buffer);
    if (way == ON_COMPLETE)
        SUBMIT(queue, BUFFERS(buffer), .flags = GPUSYNC_SUBMIT_UNORDERED, .on_complete = remember, .user = n);
    else
        commit(queue, buffer);
    if (way == ON_DONE)
        on_done(ticket_at(queue, 1), n);
    if (way == LATER) {
        assert_ok(gpusync_queue_destroy_later(queue, remember_destroyed, n));
        s->q[1] = NULL;
    }
    return buffer;
}

static void find_the_end(scene *c, void *buffer, note *n)
{
    assert_int_equal(after_a_second(), c->in != BY_HAND); /* nothing has ended: the next one is armed */
    softmetal_finish(buffer);
    assert_int_equal(GET(&n->calls), 0);
    if (c->in == BY_HAND)
        run_callbacks(&c->s);
    else
        assert_int_equal(after_a_second(), 1);
    assert_noted(n, GPUSYNC_OK);
}

static void owe_no_more(void)
{
    assert_true(after_a_second() <= 1);
    assert_int_equal(after_a_second(), 0);
}

static void lose_all_handlers(scene *c)
{
    void *buffers[WAYS];
    note notes[WAYS] = {0};
    for (unsigned way = 0; way < WAYS; way++)
        buffers[way] = owe(&c->s, way, &notes[way]);
    for (unsigned way = 0; way < WAYS; way++)
        find_the_end(c, buffers[way], &notes[way]);
    owe_no_more();
}

/* Each has the dispatch queue look by itself, and anew. */
static void lose_one_handler_after_another(scene *c)
{
    for (unsigned way = 0; way < WAYS; way++) {
        note n = {0};
        find_the_end(c, owe(&c->s, way, &n), &n);
        owe_no_more();
    }
}

/* Metal loses the handlers, and the program makes no call that looks: the dispatch queue does, once a second, while
   callbacks or the end of a later destroy are owed. */
without_stage(test_R24_the_dispatch_queue_looks_while_callbacks_are_owed)
{
    in_each_place(lose_all_handlers, (stage_desc){.queues = 2});
    in_each_place(lose_one_handler_after_another, (stage_desc){.queues = 2});
}

/* -- one at a time ------------------------------------------------------------------------------------------------ */

typedef struct held_up {
    gate g; /* of the callback and the test: it has begun; it may end */
    bool over;
} held_up;

static void be_held_up(void *user, gpusync_result result, const gpusync_error *error)
{
    held_up *h = (held_up *)user;
    gate_wait(&h->g);
    gate_wait(&h->g);
    PUT(&h->over, true);
}

static gpusync_result run_some(void *argument)
{
    return gpusync_device_run_callbacks((gpusync_device *)argument, SIZE_MAX, NULL);
}

/* A callback of the point runs, on a thread of j's by hand, and does not end before let_end. */
static void begin_held_up(scene *c, held_up *h, job *j, gpusync_point point)
{
    gate_init(&h->g, 2);
    h->over = false;
    assert_ok(gpusync_on_done(point, be_held_up, h));
    if (c->in == BY_HAND)
        job_call(j, run_some, c->s.device);
    gate_wait(&h->g);
}

static void let_end(scene *c, held_up *h, job *j)
{
    gate_wait(&h->g);
    if (c->in == BY_HAND)
        assert_ok(job_end(j));
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_true(GET(&h->over));
    gate_destroy(&h->g);
}

without_stage(test_R25_run_callbacks_returns_at_once_beside_a_callback)
{
    scene c;
    held_up h;
    job j = {0};
    note n = {0};
    open_scene(&c, BY_HAND, (stage_desc){0});
    begin_held_up(&c, &h, &j, ticket_at(c.s.q[0], 0));
    on_done(ticket_at(c.s.q[0], 0), &n);
    expect_run(&c.s, SIZE_MAX, 0);
    assert_int_equal(GET(&n.calls), 0);
    let_end(&c, &h, &j);
    settle(&c.s);
    assert_noted(&n, GPUSYNC_OK);
    close_scene(&c);
}

static void destroy_queue(stage *s, int i)
{
    gpusync_queue *queue = s->q[i];
    s->q[i] = NULL;
    assert_ok(gpusync_queue_destroy(queue));
}

static gpusync_result end_queue(void *queue) { return gpusync_queue_destroy((gpusync_queue *)queue); }

/* A destroy runs the callbacks of its own object beside those of others. */
on_stage_with(test_R25_a_callback_in_a_destroy_holds_up_no_callback_of_another_object, .queues = 2, .device = by_hand)
{
    held_up h = {0};
    job j = {0};
    note n = {0};
    gate_init(&h.g, 2);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 0), be_held_up, &h));
    job_call(&j, end_queue, s->q[0]);
    s->q[0] = NULL;
    gate_wait(&h.g);
    on_done(ticket_at(s->q[1], 0), &n);
    expect_run(s, SIZE_MAX, 1);
    assert_noted(&n, GPUSYNC_OK);
    assert_false(GET(&h.over));
    gate_wait(&h.g);
    assert_ok(job_end(&j));
    gate_destroy(&h.g);
}

#define MANY 400u

static struct {
    unsigned inside, seen[MANY];
    unsigned count;
} crowd;

static void enter_alone(void *user, gpusync_result result, const gpusync_error *error)
{
    must(COUNT(&crowd.inside) == 0, "two callbacks of a device overlap");
    PUT(&crowd.seen[crowd.count++], (unsigned)(uintptr_t)user);
    __atomic_fetch_sub(&crowd.inside, 1, __ATOMIC_SEQ_CST);
}

static void *run_until_all_ran(void *device)
{
    bool more = true;
    while (more) {
        size_t count = 0;
        must(gpusync_device_run_callbacks((gpusync_device *)device, 3, &count) == GPUSYNC_OK, "run_callbacks");
        if (count == 0)
            sched_yield();
        more = !GET(&crowd.seen[MANY - 1]);
    }
    return NULL;
}

on_stage_with(test_R25_threads_that_run_callbacks_take_turns, .timelines = 1, .device = by_hand)
{
    pthread_t threads[3];
    memset(&crowd, 0, sizeof crowd);
    for (uintptr_t i = 1; i <= MANY; i++)
        assert_ok(gpusync_on_done(at(s->t[0], i), enter_alone, (void *)i));
    signal_value(s->t[0], MANY);
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(run_until_all_ran, s->device);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    assert_int_equal(crowd.count, MANY);
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(crowd.seen[i], i + 1);
}

/* -- objects that are released ------------------------------------------------------------------------------------ */

typedef struct order {
    unsigned next, came[3];
} order;

static void first_comes(void *user, gpusync_result result, const gpusync_error *error)
{
    ((order *)user)->came[0] = ++((order *)user)->next;
}

static void object_goes(void *user)
{
    ((order *)user)->came[1] = ++((order *)user)->next;
}

static void last_comes(void *user, gpusync_result result, const gpusync_error *error)
{
    ((order *)user)->came[2] = ++((order *)user)->next;
}

static void release_in_order(scene *c)
{
    stage *s = &c->s;
    order o = {0};
    void *object = softmetal_new_witness(object_goes, &o);
    gpusync_ticket ticket = commit_new(s->q[0]);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], ticket), first_comes, &o));
    assert_ok(gpusync_release_after(s->q[0], ticket, object));
    assert_ok(gpusync_on_done(ticket_at(s->q[0], ticket), last_comes, &o));
    metal_release(object);
    commit_new(s->q[0]);
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(o.next, 0);
    assert_true(finish_next(s->q[0]));
    if (c->in == BY_HAND)
        expect_run(s, SIZE_MAX, 3);
    assert_true(softmetal_dispatched(SECONDS(60)));
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(o.came[i], i + 1);
}

/* Between the callbacks of its ticket; later work does not matter. */
without_stage_on_both_kinds(test_T15_an_object_is_released_where_a_callback_would_run)
{
    in_each_place(release_in_order, (stage_desc){0});
}

on_both_kinds_with(test_T15_an_object_is_released_however_its_ticket_ends, .timelines = 1)
{
    unsigned gone = 0;
    const gpusync_ticket tickets[] = {
        GPUSYNC_NO_TICKET,
        commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT),
        SUBMIT(s->q[0], WAITS(at(s->t[0], 1))), /* cancelled */
    };
    for (size_t i = 0; i < LENGTH(tickets); i++) {
        void *object = softmetal_new_witness(note_gone, &gone);
        assert_ok(gpusync_release_after(s->q[0], tickets[i], object));
        metal_release(object);
    }
    settle(s);
    assert_int_equal(GET(&gone), 2);
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    settle(s);
    assert_int_equal(GET(&gone), 3);
}

typedef struct farewell {
    gpusync_queue *queue;
    gpusync_result committed, destroyed;
    unsigned gone;
} farewell;

static void call_from_dealloc(void *user)
{
    farewell *f = (farewell *)user;
    f->committed = gpusync_commit_marker(f->queue, NULL, NULL);
    f->destroyed = gpusync_queue_destroy(f->queue);
    COUNT(&f->gone);
}

static void release_what_calls(scene *c)
{
    farewell f = {.queue = c->s.q[0]};
    void *object = softmetal_new_witness(call_from_dealloc, &f);
    assert_ok(gpusync_release_after(c->s.q[0], commit_new(c->s.q[0]), object));
    metal_release(object);
    settle(&c->s);
    assert_int_equal(GET(&f.gone), 1);
    assert_ok(f.committed);
    assert_result(f.destroyed, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(gpusync_poll(c->s.q[0], 2, NULL));
}

/* The dealloc of an object is code of the program's, and runs as a callback does. */
without_stage(test_T15_an_object_that_is_released_may_call_what_a_callback_may)
{
    in_each_place(release_what_calls, (stage_desc){0});
}

/* -- withdrawn ---------------------------------------------------------------------------------------------------- */

static unsigned came;

/* Its user may be freed. */
static void come_uncalled_for(void *user, gpusync_result result, const gpusync_error *error)
{
    COUNT(&came);
    ++*(char *)user;
}

/* Listed or due, and not begun: no worker of libdispatch begins anything meanwhile. `user` is freed at once. */
static void withdraw_what_has_not_begun(scene *c)
{
    stage *s = &c->s;
    softmetal_set_dispatch_threads(0);
    const gpusync_ticket failed = commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    signal_value(s->t[0], 3);
    fail_timeline(s->t[1], GPUSYNC_ERROR_COMPILE);
    finish_all(s);
    const gpusync_ticket runs = commit_new(s->q[0]);
    const gpusync_point points[] = {
        ticket_at(s->q[0], runs),   at(s->t[0], 4), ticket_at(s->q[0], 0),
        ticket_at(s->q[0], failed), at(s->t[0], 3), at(s->t[1], 1),
    };
    note others[LENGTH(points)];
    memset(others, 0, sizeof others);
    came = 0;
    for (size_t i = 0; i < LENGTH(points); i++) {
        void *user = calloc(1, 1);
        assert_ok(gpusync_on_done(points[i], come_uncalled_for, user));
        on_done(points[i], &others[i]);
        assert_ok(gpusync_cancel_on_done(points[i], come_uncalled_for, user));
        assert_result(gpusync_cancel_on_done(points[i], come_uncalled_for, user), GPUSYNC_NOT_READY);
        free(user);
    }
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    signal_value(s->t[0], 4);
    settle(s);
    for (size_t i = 0; i < LENGTH(points); i++)
        assert_int_equal(calls_of(&others[i]), 1);
    assert_int_equal(GET(&came), 0);
}

without_stage_on_both_kinds(test_R42_a_callback_that_is_withdrawn_is_not_called)
{
    in_each_place(withdraw_what_has_not_begun, (stage_desc){.timelines = 2});
}

/* Listed: it became due meanwhile. Nothing of it stays: the device does not tell of it, and owes it to nobody. */
on_stage_with(test_R42_one_that_became_due_is_withdrawn, .timelines = 1, .device = by_hand)
{
    char text[4096];
    note n = {0};
    on_done(ticket_at(s->q[0], commit_new(s->q[0])), &n);
    on_done(at(s->t[0], 1), &n);
    finish_all(s);
    signal_value(s->t[0], 1);
    assert_ok(gpusync_cancel_on_done(ticket_at(s->q[0], 1), remember, &n));
    assert_ok(gpusync_cancel_on_done(at(s->t[0], 1), remember, &n));
    assert_true(gpusync_device_report(s->device, text, sizeof text) < sizeof text);
    assert_null(strstr(text, "callback"));
    expect_run(s, SIZE_MAX, 0);
    assert_int_equal(n.calls, 0);
}

/* The newest: the other one has its place in front of what was registered between the two. */
on_both_kinds_with(test_R42_of_two_equal_ones_the_newest_goes, .timelines = 1, .device = by_hand)
{
    const gpusync_ticket ended = commit_new(s->q[0]);
    finish_all(s);
    const gpusync_point points[] = {ticket_at(s->q[0], ended), ticket_at(s->q[0], commit_new(s->q[0])), at(s->t[0], 0),
                                    at(s->t[0], 1)};
    note notes[LENGTH(points)][2];
    memset(notes, 0, sizeof notes);
    for (size_t i = 0; i < LENGTH(points); i++) {
        for (int j = 0; j < 3; j++)
            on_done(points[i], &notes[i][j % 2]);
        assert_ok(gpusync_cancel_on_done(points[i], remember, &notes[i][0]));
    }
    finish_all(s);
    signal_value(s->t[0], 1);
    expect_run(s, SIZE_MAX, 2 * LENGTH(points));
    for (size_t i = 0; i < LENGTH(points); i++) {
        assert_in_order(notes[i], 2);
        assert_result(gpusync_cancel_on_done(points[i], remember, &notes[i][0]), GPUSYNC_NOT_READY);
    }
}

static void hear_nothing(void *user, gpusync_result result, const gpusync_error *error)
{
    must(false, "a callback that was never registered");
}

static void withdraw_others(scene *c)
{
    stage *s = &c->s;
    note n = {0}, completed = {0}, unknown = {0};
    unsigned gone = 0;
    void *object = softmetal_new_witness(note_gone, &gone);
    for (int i = 0; i < 2; i++)
        commit_new(s->q[i]);
    const gpusync_ticket ticket =
        SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0])), .on_complete = remember, .user = &completed);
    on_done(ticket_at(s->q[0], 1), &n);
    on_done(at(s->t[0], 2), &n);
    assert_ok(gpusync_release_after(s->q[0], 1, object));
    const struct {
        gpusync_point point;
        gpusync_done_fn fn;
        void *user;
    } rows[] = {
        {ticket_at(s->q[0], 1), remember, &unknown},
        {ticket_at(s->q[0], 1), remember, NULL},
        {ticket_at(s->q[0], 1), hear_nothing, &n},
        {ticket_at(s->q[0], ticket), remember, &n},
        {ticket_at(s->q[0], 0), remember, &n},
        {ticket_at(s->q[1], 1), remember, &n},
        {at(s->t[0], 1), remember, &n},
        {at(s->t[0], 3), remember, &n},
        {at(s->t[1], 2), remember, &n},
        {at(s->t[0], 2), hear_nothing, &n},
        {ticket_at(s->q[0], ticket), remember, &completed},
        {ticket_at(s->q[0], 1), remember, object},
    };
    for (int due = 0; due < 2; due++) {
        softmetal_set_dispatch_threads(0);
        if (due) {
            finish_all(s);
            signal_value(s->t[0], 2);
        }
        for (size_t i = 0; i < LENGTH(rows); i++)
            assert_result(gpusync_cancel_on_done(rows[i].point, rows[i].fn, rows[i].user), GPUSYNC_NOT_READY);
        softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    }
    metal_release(object);
    settle(s);
    assert_int_equal(calls_of(&n), 2);
    assert_int_equal(calls_of(&completed), 1);
    assert_int_equal(GET(&gone), 1);
    assert_result(gpusync_cancel_on_done(ticket_at(s->q[0], 1), remember, &n), GPUSYNC_NOT_READY); /* it has run */
}

/* A point, function or user that differs, an on_complete, an object to release: none is what the call names. */
without_stage_on_both_kinds(test_R42_only_the_callback_that_is_named_is_withdrawn)
{
    in_each_place(withdraw_others, (stage_desc){.queues = 2, .timelines = 2});
}

typedef struct regret {
    gpusync_point point;
    gpusync_result own, other;
    note *n;
} regret;

static void regret_both(void *user, gpusync_result result, const gpusync_error *error)
{
    regret *r = (regret *)user;
    r->own = gpusync_cancel_on_done(r->point, regret_both, r);
    r->other = gpusync_cancel_on_done(r->point, remember, r->n);
}

/* Another thread asks while it runs, then it asks itself; the one behind it has not begun. */
static void withdraw_what_runs(scene *c)
{
    const gpusync_point points[] = {ticket_at(c->s.q[0], 0), at(c->s.t[0], 0)};
    for (size_t i = 0; i < LENGTH(points); i++) {
        held_up h;
        job j = {0};
        note n = {0};
        regret r = {.point = points[i], .n = &n};
        begin_held_up(c, &h, &j, points[i]);
        assert_result(gpusync_cancel_on_done(points[i], be_held_up, &h), GPUSYNC_NOT_READY);
        let_end(c, &h, &j);
        softmetal_set_dispatch_threads(0);
        assert_ok(gpusync_on_done(points[i], regret_both, &r));
        on_done(points[i], &n);
        softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
        settle(&c->s);
        assert_result(r.own, GPUSYNC_NOT_READY);
        assert_ok(r.other);
        assert_int_equal(calls_of(&n), 0);
    }
}

without_stage(test_R42_one_that_has_begun_is_not_withdrawn)
{
    in_each_place(withdraw_what_runs, (stage_desc){.timelines = 1});
}

/* Callbacks that are withdrawn neither run in the end of their object, nor hold it up. */
static void end_behind_withdrawals(scene *c)
{
    stage *s = &c->s;
    note withdrawn = {0}, gone[2] = {0};
    softmetal_set_dispatch_threads(0);
    for (int i = 0; i < 2; i++) {
        const gpusync_point points[] = {ticket_at(s->q[i], 0), ticket_at(s->q[i], commit_new(s->q[i])), at(s->t[i], 0),
                                        at(s->t[i], 1)};
        for (size_t j = 0; j < LENGTH(points); j++)
            on_done(points[j], &withdrawn);
        for (size_t j = 0; j < LENGTH(points); j++)
            assert_ok(gpusync_cancel_on_done(points[j], remember, &withdrawn));
    }
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    finish_all(s);
    destroy_queue(s, 0);
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    assert_ok(gpusync_queue_destroy_later(s->q[1], remember_destroyed, &gone[0]));
    assert_ok(gpusync_timeline_destroy_later(s->t[1], remember_destroyed, &gone[1]));
    s->q[1] = NULL;
    s->t[0] = s->t[1] = NULL;
    settle(s);
    assert_in_order(gone, 2);
    assert_int_equal(calls_of(&withdrawn), 0);
    assert_true(after_a_second() <= 1); /* nothing is owed: nothing looks any more */
    assert_int_equal(after_a_second(), 0);
}

without_stage_on_both_kinds(test_R42_a_destroy_neither_calls_nor_awaits_what_was_withdrawn)
{
    in_each_place(end_behind_withdrawals, (stage_desc){.queues = 2, .timelines = 2});
}

static void exchange(void *user, gpusync_result result, const gpusync_error *error)
{
    regret *r = (regret *)user;
    regret_both(user, result, error);
    must(gpusync_on_done(r->point, remember, r->n) == GPUSYNC_OK, "on_done in a callback");
}

/* ... though another one, which was due, has been withdrawn. */
on_stage_with(test_R42_R25_what_becomes_due_in_run_callbacks_still_does_not_run_in_it, .device = by_hand)
{
    note n = {0};
    regret r = {.point = ticket_at(s->q[0], 0), .n = &n};
    assert_ok(gpusync_on_done(r.point, exchange, &r));
    on_done(r.point, &n);
    expect_run(s, SIZE_MAX, 1);
    assert_int_equal(n.calls, 0);
    expect_run(s, SIZE_MAX, 1);
    assert_noted(&n, GPUSYNC_OK);
}

static void count_and_free(void *user, gpusync_result result, const gpusync_error *error)
{
    ++**(unsigned **)user;
    free(user);
}

/* Beside the threads that run callbacks. Each frees what is its own by then. */
static void withdraw_beside_the_runs(scene *c)
{
    enum { ROUNDS = 300 };
    unsigned calls = 0, withdrawn = 0;
    for (int i = 0; i < ROUNDS; i++) {
        unsigned **user = (unsigned **)malloc(sizeof *user);
        const gpusync_point point = ticket_at(c->s.q[0], 0);
        *user = &calls;
        assert_ok(gpusync_on_done(point, count_and_free, user));
        for (int yields = i % 8; yields > 0; yields--)
            sched_yield();
        gpusync_result result = gpusync_cancel_on_done(point, count_and_free, user);
        if (result == GPUSYNC_OK) {
            free(user);
            withdrawn++;
        }
        must(result == GPUSYNC_OK || result == GPUSYNC_NOT_READY, "a withdrawal");
    }
    settle(&c->s);
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(calls + withdrawn, ROUNDS);
}

without_stage(test_R42_the_user_of_a_withdrawn_callback_may_be_freed_at_once)
{
    in_each_place(withdraw_beside_the_runs, (stage_desc){0});
}

/* -- what a callback may do --------------------------------------------------------------------------------------- */

enum { ROOM = 4 };

/* q[0]: ticket 1 is done, ticket 2 is not. q[1]: whose callback it is. q[2] is full. t[0]: 5 is reached. */
static gpusync_result try_wait_done(stage *s) { return gpusync_wait(s->q[0], 1, GPUSYNC_FOREVER, NULL); }
static gpusync_result try_wait(stage *s) { return gpusync_wait(s->q[0], 2, GPUSYNC_FOREVER, NULL); }
static gpusync_result try_wait_once(stage *s) { return gpusync_wait(s->q[0], 2, 0, NULL); }
static gpusync_result try_wait_all(stage *s) { return gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, SECONDS(1), NULL); }
static gpusync_result try_device(stage *s) { return gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL); }
static gpusync_result try_value(stage *s) { return gpusync_timeline_wait(s->t[0], 6, GPUSYNC_FOREVER, NULL); }
static gpusync_result try_value_once(stage *s) { return gpusync_timeline_wait(s->t[0], 6, 0, NULL); }
static gpusync_result try_value_done(stage *s) { return gpusync_timeline_wait(s->t[0], 5, GPUSYNC_FOREVER, NULL); }
static gpusync_result try_poll(stage *s) { return gpusync_poll(s->q[0], 2, NULL); }
static gpusync_result try_signal(stage *s) { return gpusync_timeline_signal(s->t[0], 6); }
static gpusync_result try_fail(stage *s) { return gpusync_timeline_fail(s->t[0], NULL); }
static gpusync_result try_cancel(stage *s) { return gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING); }
static gpusync_result try_cancel_one(stage *s) { return gpusync_queue_cancel_held(s->q[0], 3); }
static gpusync_result try_cancel_sent(stage *s) { return gpusync_queue_cancel_held(s->q[0], 2); }
static gpusync_result try_marker(stage *s) { return gpusync_commit_marker(s->q[0], NULL, NULL); }
static gpusync_result try_destroy(stage *s) { return gpusync_queue_destroy(s->q[0]); }
static gpusync_result try_abandon(stage *s) { return gpusync_queue_abandon(s->q[0]); }
static gpusync_result try_end_timeline(stage *s) { return gpusync_timeline_destroy(s->t[0]); }
static gpusync_result try_end_device(stage *s) { return gpusync_device_destroy(s->device); }

static gpusync_result try_end_nothing(stage *s)
{
    if (gpusync_queue_destroy(NULL) || gpusync_queue_abandon(NULL) || gpusync_timeline_destroy(NULL))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    return gpusync_device_destroy(NULL);
}

static gpusync_result try_many(stage *s)
{
    const gpusync_point points[] = {ticket_at(s->q[0], 2), at(s->t[0], 6)};
    return gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, NULL, NULL);
}

static gpusync_result try_many_done(stage *s)
{
    const gpusync_point points[] = {ticket_at(s->q[0], 2), at(s->t[0], 5)};
    return gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, NULL, NULL);
}

static gpusync_result try_room_for(stage *s, uint64_t timeout_ns)
{
    void *buffer;
    return gpusync_command_buffer_create(s->q[2], NULL, timeout_ns, &buffer);
}

static gpusync_result try_room(stage *s) { return try_room_for(s, GPUSYNC_FOREVER); }
static gpusync_result try_room_briefly(stage *s) { return try_room_for(s, 1); }
static gpusync_result try_room_once(stage *s) { return try_room_for(s, 0); }

static gpusync_result try_commit(stage *s)
{
    void *buffer;
    gpusync_result result = gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &buffer);
    return result ? result : gpusync_commit(s->q[0], buffer, NULL);
}

static gpusync_result try_encode(stage *s)
{
    void *buffer;
    gpusync_result result = gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &buffer);
    if (!result)
        result = gpusync_encode_wait(s->q[0], buffer, at(s->t[0], 5));
    if (!result)
        result = gpusync_encode_signal(s->q[0], buffer, at(s->t[0], 7));
    return result ? result : gpusync_command_buffer_discard(s->q[0], buffer);
}

static gpusync_result try_submit(stage *s)
{
    return TRY_SUBMIT(s->q[0], NULL, WAITS(at(s->t[0], 5)), SIGNALS(at(s->t[0], 6)));
}

static gpusync_result try_unordered(stage *s)
{
    return TRY_SUBMIT(s->q[0], NULL, .flags = GPUSYNC_SUBMIT_UNORDERED);
}

static gpusync_result try_run(stage *s)
{
    size_t count = 99;
    gpusync_result result = gpusync_device_run_callbacks(s->device, 1, &count);
    must(count == 0, "run_callbacks that is refused runs nothing");
    return result;
}

static void nothing(void *user, gpusync_result result, const gpusync_error *error)
{
}

static gpusync_result try_on_done(stage *s) { return gpusync_on_done(ticket_at(s->q[0], 2), nothing, NULL); }

static gpusync_result try_withdraw(stage *s)
{
    gpusync_result result = try_on_done(s);
    return result ? result : gpusync_cancel_on_done(ticket_at(s->q[0], 2), nothing, NULL);
}

static gpusync_result try_release(stage *s)
{
    void *object = metal_buffer_new(s->metal_device, 16);
    gpusync_result result = gpusync_release_after(s->q[0], 2, object);
    metal_release(object);
    return result;
}

static gpusync_result try_make(stage *s)
{
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    gpusync_result result = gpusync_queue_create(s->device, NULL, &queue);
    if (!result)
        result = gpusync_timeline_create(s->device, NULL, &timeline);
    if (!result)
        result = gpusync_queue_destroy_later(queue, NULL, NULL);
    return result ? result : gpusync_timeline_destroy_later(timeline, NULL, NULL);
}

typedef struct act {
    const char *name;
    gpusync_result (*call)(stage *s);
    gpusync_result expected;
} act;

static const act acts[] = {
    {"wait for what is done", try_wait_done, GPUSYNC_OK},
    {"wait", try_wait, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"wait, timeout 0", try_wait_once, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"wait for everything", try_wait_all, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"wait for the device", try_device, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"wait for a value", try_value, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"wait for a value, timeout 0", try_value_once, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"wait for a value that is reached", try_value_done, GPUSYNC_OK},
    {"wait for many", try_many, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"wait for many, one of which has ended", try_many_done, GPUSYNC_OK},
    {"wait for room", try_room, GPUSYNC_ERROR_WOULD_DEADLOCK}, /* R37 */
    {"wait for room, timeout 1", try_room_briefly, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"wait for room, timeout 0", try_room_once, GPUSYNC_NOT_READY},
    {"poll", try_poll, GPUSYNC_NOT_READY},
    {"commit", try_commit, GPUSYNC_OK},
    {"encode and discard", try_encode, GPUSYNC_OK},
    {"submit", try_submit, GPUSYNC_OK},
    {"submit UNORDERED work", try_unordered, GPUSYNC_OK},
    {"commit a marker", try_marker, GPUSYNC_OK},
    {"signal", try_signal, GPUSYNC_OK},
    {"fail", try_fail, GPUSYNC_OK},
    {"cancel", try_cancel, GPUSYNC_OK},
    {"cancel one", try_cancel_one, GPUSYNC_OK},
    {"cancel what Metal has", try_cancel_sent, GPUSYNC_NOT_READY},
    {"register", try_on_done, GPUSYNC_OK},
    {"register and withdraw", try_withdraw, GPUSYNC_OK},
    {"release", try_release, GPUSYNC_OK},
    {"make and destroy later", try_make, GPUSYNC_OK},
    {"run callbacks", try_run, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"destroy a queue", try_destroy, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"abandon a queue", try_abandon, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"destroy a timeline", try_end_timeline, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"destroy the device", try_end_device, GPUSYNC_ERROR_WOULD_DEADLOCK},
    {"destroy nothing", try_end_nothing, GPUSYNC_OK},
};

typedef struct attempt {
    stage *s;
    const act *what;
    gpusync_result got;
    unsigned calls;
} attempt;

static void attempt_it(void *user, gpusync_result result, const gpusync_error *error)
{
    attempt *a = (attempt *)user;
    a->got = a->what->call(a->s);
    COUNT(&a->calls);
}

static void expect_attempt(const attempt *a)
{
    assert_true(softmetal_dispatched(SECONDS(60)));
    if (GET(&a->calls) != 1 || a->got != a->what->expected)
        fail_msg("%s: %u calls, %s", a->what->name, a->calls, gpusync_result_string(a->got));
}

static void prepare_acts(stage *s)
{
    commit_new(s->q[0]);
    finish_all(s);
    commit_new(s->q[0]);
    commit(s->q[0], waiting(s->q[0], at(s->t[0], 6)));
    for (int i = 0; i < ROOM; i++)
        commit_new(s->q[2]);
    signal_value(s->t[0], 5);
}

static void try_each_act(place in, bool in_destroy)
{
    for (size_t i = 0; i < LENGTH(acts); i++) {
        scene c;
        open_scene(&c, in, (stage_desc){.queues = 3, .timelines = 1, .queue = {.max_command_buffer_count = ROOM}});
        attempt a = {.s = &c.s, .what = &acts[i]};
        prepare_acts(&c.s);
        assert_ok(gpusync_on_done(ticket_at(c.s.q[1], 0), attempt_it, &a));
        if (in_destroy) {
            assert_ok(gpusync_queue_destroy(c.s.q[1]));
            c.s.q[1] = NULL;
        } else {
            run_callbacks(&c.s);
        }
        expect_attempt(&a);
        settle(&c.s);
        close_scene(&c);
    }
}

without_stage(test_R20_a_callback_may_do_all_but_wait_and_destroy)
{
    for (int in = OWN_QUEUE; in < PLACES; in++)
        try_each_act((place)in, false);
}

without_stage(test_R20_a_callback_in_a_destroy_may_do_the_same)
{
    try_each_act(BY_HAND, true);
}

/* -- a destroy, and callbacks ------------------------------------------------------------------------------------- */

/* Nothing but the destroys runs a callback: no worker of libdispatch begins, and run_callbacks is not called. */
static void destroys_run_their_own(scene *c)
{
    stage *s = &c->s;
    note others = {0}, own[4] = {0};
    assert_true(softmetal_dispatched(SECONDS(60)));
    softmetal_set_dispatch_threads(0);
    on_done(ticket_at(s->q[0], 0), &others);
    on_done(ticket_at(s->q[1], 0), &own[0]);
    on_done(ticket_at(s->q[1], commit_new(s->q[1])), &own[1]);
    on_done(at(s->t[0], 0), &own[2]);
    on_done(at(s->t[0], 1), &own[3]);
    finish_all(s);
    destroy_queue(s, 1);
    assert_int_equal(GET(&own[0].calls) + GET(&own[1].calls), 2);
    assert_int_equal(GET(&own[2].calls), 0);
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->t[0] = NULL;
    assert_int_equal(GET(&own[2].calls) + GET(&own[3].calls), 2);
    assert_int_equal(GET(&others.calls), 0);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    settle(s);
    assert_noted(&others, GPUSYNC_OK);
    assert_in_order(own, LENGTH(own));
    assert_result(own[3].result, GPUSYNC_ERROR_DESTROYED);
    for (size_t i = 0; i < LENGTH(own); i++)
        assert_true(pthread_equal(own[i].thread, pthread_self()));
}

without_stage_on_both_kinds(test_R25_a_destroy_runs_the_callbacks_of_its_object_alone)
{
    in_each_place(destroys_run_their_own, (stage_desc){.queues = 2, .timelines = 1});
}

static void destroy_beside(scene *c)
{
    held_up h;
    job j = {0};
    note n = {0};
    begin_held_up(c, &h, &j, ticket_at(c->s.q[0], 0));
    on_done(ticket_at(c->s.q[1], 0), &n);
    destroy_queue(&c->s, 1);
    assert_int_equal(GET(&n.calls), 1);
    assert_false(GET(&h.over));
    let_end(c, &h, &j);
}

without_stage(test_R25_a_destroy_runs_them_beside_a_callback_of_another_object)
{
    in_each_place(destroy_beside, (stage_desc){.queues = 2});
}

static gpusync_result give_up_queue(void *queue) { return gpusync_queue_abandon((gpusync_queue *)queue); }
static gpusync_result end_timeline(void *timeline)
{
    return gpusync_timeline_destroy((gpusync_timeline *)timeline);
}

/* The destroy sleeps meanwhile (A29), and a callback behind the one that runs comes after it. */
static void destroy_waits(scene *c, gpusync_point point, gpusync_result (*end)(void *), void *object)
{
    held_up h;
    job j = {0}, destroy = {0};
    note n = {0};
    begin_held_up(c, &h, &j, point);
    on_done(point, &n);
    job_call(&destroy, end, object);
    await_parked(1);
    assert_false(job_is_over(&destroy));
    assert_int_equal(GET(&n.calls), 0);
    gate_wait(&h.g);
    assert_ok(job_end(&destroy));
    assert_true(GET(&h.over));
    assert_int_equal(GET(&n.calls), 1);
    if (c->in == BY_HAND)
        assert_ok(job_end(&j));
    gate_destroy(&h.g);
}

static void destroys_wait(scene *c)
{
    destroy_waits(c, ticket_at(c->s.q[0], 0), end_queue, c->s.q[0]);
    c->s.q[0] = NULL;
    destroy_waits(c, ticket_at(c->s.q[1], 0), give_up_queue, c->s.q[1]);
    c->s.q[1] = NULL;
    destroy_waits(c, at(c->s.t[0], 0), end_timeline, c->s.t[0]);
    c->s.t[0] = NULL;
}

without_stage(test_R20_a_destroy_waits_for_a_callback_of_its_object_that_runs)
{
    in_each_place(destroys_wait, (stage_desc){.queues = 2, .timelines = 1});
}

static pthread_t held_up_on[2];

static void note_thread_of_first(void *user, gpusync_result result, const gpusync_error *error)
{
    held_up_on[0] = pthread_self();
    be_held_up(user, result, error);
}

static void note_thread_of_second(void *user, gpusync_result result, const gpusync_error *error)
{
    held_up_on[1] = pthread_self();
    be_held_up(user, result, error);
}

/* The thread that runs the first goes on with the second, as a rule before the destroy wakes: then it sleeps again. */
without_stage(test_R20_a_destroy_sleeps_again_while_another_thread_runs_the_next_callback)
{
    scene c;
    held_up first = {.over = false}, second = {.over = false};
    job j = {0}, destroy = {0};
    open_scene(&c, BY_HAND, (stage_desc){0});
    gate_init(&first.g, 2);
    gate_init(&second.g, 2);
    assert_ok(gpusync_on_done(ticket_at(c.s.q[0], 0), note_thread_of_first, &first));
    assert_ok(gpusync_on_done(ticket_at(c.s.q[0], 0), note_thread_of_second, &second));
    job_call(&j, run_some, c.s.device);
    gate_wait(&first.g);
    job_call(&destroy, end_queue, c.s.q[0]);
    c.s.q[0] = NULL;
    await_parked(1);
    gate_wait(&first.g);
    gate_wait(&second.g);
    if (pthread_equal(held_up_on[0], held_up_on[1])) await_parked(1);
    gate_wait(&second.g);
    assert_ok(job_end(&destroy));
    assert_ok(job_end(&j));
    assert_true(GET(&first.over) && GET(&second.over));
    gate_destroy(&first.g);
    gate_destroy(&second.g);
    close_scene(&c);
}

/* The destroy runs the first of its object's callbacks. The second comes after it, whatever asks for callbacks. */
on_stage_with(test_R25_callbacks_of_an_object_do_not_overlap_those_in_its_destroy, .device = by_hand)
{
    held_up h = {.over = false};
    job destroy = {0};
    note n = {0};
    size_t count = 99;
    gate_init(&h.g, 2);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], 0), be_held_up, &h));
    on_done(ticket_at(s->q[0], 0), &n);
    job_call(&destroy, end_queue, s->q[0]);
    s->q[0] = NULL;
    gate_wait(&h.g);
    assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, &count));
    assert_int_equal(count, 0);
    assert_int_equal(GET(&n.calls), 0);
    gate_wait(&h.g);
    assert_ok(job_end(&destroy));
    gate_destroy(&h.g);
    assert_int_equal(GET(&n.calls), 1);
}
