/* test_callbacks.c - callbacks: how often, when, where, in which order and with what they are called

   gpusync_on_done, on_complete of submissions, and gpusync_dispatch. On the manual clock, so that the end of the work,
   its handler and a look meanwhile are separate steps; with threads and the real clock where only numbers count.
   What a callback may do is in test_callbacks_inside.c.

   It also runs on queues of Metal 4. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "probe.h"
#include "stage.h"

/* == when and where ============================================================================================ */

static void test_the_handler_calls_back_once_in_order_of_registration(void **state)
{
    outcome o[5] = {0};
    void *buffer;
    gpusync_ticket ticket;
    size_t i;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    ticket = commit_to(s.q[0], buffer = buffer_of(s.q[0]));
    for (i = 0; i < LENGTH(o); i++) on_done(s.q[0], ticket, &o[i]);
    softmetal_complete(buffer);
    assert_int_equal(calls_of(&o[0]), 0);
    softmetal_run_handler(buffer, 0);
    assert_in_order(o, LENGTH(o));
    for (i = 0; i < LENGTH(o); i++) {
        assert_result(o[i].result, GPUSYNC_OK);
        assert_false(o[i].has_error);
        assert_false(ran_here(&o[i]));
        assert_false(o[i].nested);
    }
    settle(&s);
    assert_int_equal(notified.count, 0); /* that is for callbacks by hand */
    close_idle_stage(&s);
    assert_in_order(o, LENGTH(o));
}

/* What can see an end before its handler. */
static void by_poll(stage *s, gpusync_ticket ticket) { assert_ok(gpusync_poll(s->q[0], ticket)); }

static void by_wait(stage *s, gpusync_ticket ticket) { assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER)); }

static void by_queue_wait(stage *s, gpusync_ticket ticket)
{
    (void)ticket;
    assert_ok(gpusync_queue_wait(s->q[0], SECONDS(20)));
}

static void by_device_wait(stage *s, gpusync_ticket ticket)
{
    (void)ticket;
    assert_ok(gpusync_device_wait(s->device, SECONDS(20), NULL));
}

static void by_wait_many(stage *s, gpusync_ticket ticket)
{
    gpusync_point point = {s->q[0], ticket, NULL, 0};
    assert_ok(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ANY, SECONDS(20), NULL, NULL));
}

static void test_no_wait_or_poll_runs_a_callback(void **state)
{
    static void (*const looks[])(stage *, gpusync_ticket) = {by_poll, by_wait, by_queue_wait, by_device_wait,
                                                              by_wait_many};
    size_t i;
    (void)state;
    NOT_ON_METAL4("no status to read");
    for (i = 0; i < LENGTH(looks); i++) {
        outcome o = {0}, whole = {0};
        gpusync_submission submission;
        gpusync_ticket ticket;
        void *buffer;
        stage s;
        open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
        memset(&submission, 0, sizeof submission);
        buffer = buffer_of(s.q[0]);
        submission.command_buffers = &buffer;
        submission.command_buffer_count = 1;
        submission.on_complete = remember;
        submission.user = &whole;
        ticket = submit_well(s.q[0], &submission);
        on_done(s.q[0], ticket, &o);
        softmetal_set_dispatch_threads(0);
        softmetal_complete(buffer);
        looks[i](&s, ticket);
        assert_true(gpusync_is_done(s.q[0], ticket)); /* it has published the end */
        commit_to(s.q[0], buffer_of(s.q[0]));
        softmetal_run_handler(buffer, 0);
        assert_int_equal(calls_so_far(&o) + calls_so_far(&whole), 0);
        softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
        assert_int_equal(calls_of(&o), 1);
        assert_int_equal(calls_of(&whole), 1);
        assert_true(whole.order < o.order);
        assert_false(ran_here(&o) || ran_here(&whole));
        settle(&s);
        close_idle_stage(&s);
    }
}

static void *wait_for_device(void *argument)
{
    must(gpusync_device_wait((gpusync_device *)argument, SECONDS(40), NULL) == GPUSYNC_OK, "device_wait");
    return NULL;
}

/* Metal never calls the handler that was to run the callback. A wait that sleeps, for whatever it be, has it run. */
static void lose_the_handler_of_a_callback(const char *missing_class)
{
    outcome o = {0};
    void *lost, *stuck;
    pthread_t sleeper;
    stage s;
    open_callback_stage(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED);
    softmetal_hide_class(missing_class);
    lost = buffer_of(s.q[0]);
    softmetal_lose_handlers(lost);
    on_done(s.q[0], commit_to(s.q[0], lost), &o);
    stuck = metal_retain(buffer_of(s.q[1])); /* so that no other handler comes meanwhile */
    softmetal_hang(stuck);
    commit_to(s.q[1], stuck);
    sleeper = start(wait_for_device, s.device);
    await_calls(&o, 1);
    assert_result(o.result, GPUSYNC_OK);
    assert_false(pthread_equal(o.thread, sleeper)); /* not in the wait itself */
    softmetal_unhang(stuck);
    join(sleeper);
    metal_release(stuck);
    close_idle_stage(&s);
    assert_int_equal(calls_of(&o), 1);
}

static void test_a_callback_whose_handler_is_lost_comes_while_a_wait_sleeps(void **state)
{
    (void)state;
    NOT_ON_METAL4("no status shows what a lost handler would tell");
    lose_the_handler_of_a_callback(NULL);
}

static void test_without_listeners_a_callback_whose_handler_is_lost_comes_too(void **state)
{
    (void)state;
    NOT_ON_METAL4("no status shows what a lost handler would tell");
    lose_the_handler_of_a_callback("MTLSharedEventListener");
}

static void test_what_has_ended_already_calls_back_soon_and_not_in_the_call(void **state)
{
    outcome o[4] = {0};
    gpusync_ticket ticket, failed;
    void *buffer;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    ticket = commit_to(s.q[0], buffer_of(s.q[0]));
    buffer = buffer_of(s.q[0]);
    softmetal_fail(buffer, NULL, 3, "on purpose");
    failed = commit_to(s.q[0], buffer);
    settle(&s);
    on_done(s.q[0], ticket, &o[0]);
    on_done(s.q[0], GPUSYNC_NO_TICKET, &o[1]);
    on_done(s.q[0], failed, &o[2]);
    on_value(s.t[0], 0, &o[3]);
    assert_in_order(o, 4);
    assert_false(ran_here(&o[0]) || ran_here(&o[1]) || ran_here(&o[2]) || ran_here(&o[3]));
    assert_result(o[0].result, GPUSYNC_OK);
    assert_result(o[1].result, GPUSYNC_OK);
    assert_result(o[3].result, GPUSYNC_OK);
    assert_result(o[2].result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(o[2].error.ticket, failed);
    assert_int_equal(o[2].error.failure, metal4_run() ? GPUSYNC_FAILURE_OUT_OF_MEMORY : GPUSYNC_FAILURE_PAGE_FAULT);
    assert_string_equal(o[2].error.message, "on purpose");
    close_idle_stage(&s);
    assert_in_order(o, 4);
}

static void test_a_result_that_is_no_longer_on_record_is_said_to_be_unknown(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    outcome o = {0};
    rig r;
    int i;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.error_log_count = 1;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    for (i = 0; i < 3; i++) {
        void *buffer = open_buffer(&r);
        softmetal_fail(buffer, NULL, 3, "on purpose");
        commit_to(r.queue, buffer);
        softmetal_finish(buffer);
    }
    on_done(r.queue, 1, &o);
    assert_int_equal(calls_of(&o), 1);
    assert_result(o.result, GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_true(o.has_error);
    assert_result(o.error.result, GPUSYNC_ERROR_RESULT_UNKNOWN);
    rig_close(&r);
}

/* -- every way in which a ticket can come and end -------------------------------------------------------------- */

typedef struct life {
    const char *name;
    gpusync_ticket (*begin)(stage *s, void **buffer);
    void (*end)(stage *s, void *buffer, gpusync_ticket ticket);
    gpusync_result result;
    enum { QUEUED, EITHER } where; /* on the dispatch queue, or also in destroy */
    bool not_on_metal4;
} life;

static gpusync_ticket begin_commit(stage *s, void **buffer)
{
    return commit_to(s->q[1], *buffer = buffer_of(s->q[1]));
}

static gpusync_ticket begin_failing(stage *s, void **buffer)
{
    *buffer = buffer_of(s->q[1]);
    softmetal_fail(*buffer, NULL, 3, "on purpose");
    return commit_to(s->q[1], *buffer);
}

static gpusync_ticket begin_track(stage *s, void **buffer)
{
    gpusync_ticket ticket;
    assert_ok(gpusync_track(s->q[1], *buffer = buffer_of(s->q[1]), &ticket));
    return ticket;
}

static gpusync_ticket begin_foreign(stage *s, void **buffer)
{
    gpusync_ticket ticket;
    *buffer = metal_queue_command_buffer(gpusync_queue_metal(s->q[1]));
    assert_ok(gpusync_track(s->q[1], *buffer, &ticket));
    metal_commit(*buffer);
    metal_release(*buffer);
    return ticket;
}

static gpusync_ticket begin_submission(stage *s, void **buffer)
{
    return submit_between(s->q[1], NULL, *buffer = buffer_of(s->q[1]), NULL);
}

static gpusync_ticket begin_three(stage *s, void **buffer)
{
    void *buffers[3];
    gpusync_submission submission;
    gpusync_point signal = at(s->t[0], 9);
    memset(&submission, 0, sizeof submission);
    buffers[0] = buffer_of(s->q[1]);
    buffers[1] = buffer_of(s->q[1]);
    buffers[2] = buffer_of(s->q[1]);
    submission.command_buffers = buffers;
    submission.command_buffer_count = 3;
    submission.signals = &signal;
    submission.signal_count = 1;
    *buffer = NULL;
    return submit_well(s->q[1], &submission);
}

static gpusync_ticket begin_failing_submission(stage *s, void **buffer)
{
    *buffer = buffer_of(s->q[1]);
    softmetal_fail(*buffer, NULL, 3, "on purpose");
    return submit_between(s->q[1], NULL, *buffer, NULL);
}

static gpusync_ticket begin_held(stage *s, void **buffer)
{
    *buffer = NULL;
    return submit_held(s, s->q[1]);
}

static gpusync_ticket begin_held_commit(stage *s, void **buffer)
{
    submit_held(s, s->q[1]);
    return begin_commit(s, buffer);
}

static gpusync_ticket begin_barrier(stage *s, void **buffer)
{
    gpusync_point wait = at(s->t[0], 1);
    *buffer = NULL;
    return submit_between(s->q[1], &wait, NULL, NULL);
}

static void end_finish(stage *s, void *buffer, gpusync_ticket ticket)
{
    (void)buffer, (void)ticket;
    finish_stage(s);
}

static void end_owner_commits(stage *s, void *buffer, gpusync_ticket ticket)
{
    (void)ticket;
    metal_commit(buffer);
    finish_stage(s);
}

static void end_untrack(stage *s, void *buffer, gpusync_ticket ticket)
{
    (void)buffer;
    assert_ok(gpusync_untrack(s->q[1], ticket));
    finish_stage(s);
}

static void end_signal(stage *s, void *buffer, gpusync_ticket ticket)
{
    (void)buffer, (void)ticket;
    assert_ok(gpusync_timeline_signal(s->t[0], 1));
}

static void end_signal_finish(stage *s, void *buffer, gpusync_ticket ticket)
{
    end_signal(s, buffer, ticket);
    finish_stage(s);
}

static void end_fail(stage *s, void *buffer, gpusync_ticket ticket)
{
    (void)buffer, (void)ticket;
    assert_ok(gpusync_timeline_fail(s->t[0], NULL));
}

static void end_cancel(stage *s, void *buffer, gpusync_ticket ticket)
{
    (void)buffer, (void)ticket;
    assert_ok(gpusync_cancel_held(s->q[1]));
}

static void end_destroy_timeline(stage *s, void *buffer, gpusync_ticket ticket)
{
    (void)buffer, (void)ticket;
    take_down_timeline(s, 0);
}

static void end_destroy(stage *s, void *buffer, gpusync_ticket ticket)
{
    (void)buffer, (void)ticket;
    take_down_queue(s, 1, false);
}

static void end_destroy_now(stage *s, void *buffer, gpusync_ticket ticket)
{
    (void)buffer, (void)ticket;
    orphan_queue(s, 1);
}

static void end_signaller_destroyed_now(stage *s, void *buffer, gpusync_ticket ticket)
{
    void *metal = s->metal[1];
    end_destroy_now(s, buffer, ticket);
    drop_what_stays(gpusync_timeline_metal(s->t[0], NULL));
    drop_queue_that_stays(metal);
}

static void end_published_then_destroyed(stage *s, void *buffer, gpusync_ticket ticket)
{
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(s->q[1], ticket)); /* the callback is due from here on; its handler never comes */
    end_destroy_now(s, buffer, ticket);
}

static const life lives[] = {
    {"commit", begin_commit, end_finish, GPUSYNC_OK, QUEUED, false},
    {"failing commit", begin_failing, end_finish, GPUSYNC_ERROR_EXECUTION, QUEUED, false},
    {"tracked", begin_track, end_owner_commits, GPUSYNC_OK, QUEUED, true},
    {"untracked", begin_track, end_untrack, GPUSYNC_ERROR_CANCELLED, QUEUED, true},
    {"tracked, destroyed", begin_track, end_destroy, GPUSYNC_ERROR_CANCELLED, EITHER, true},
    {"tracked, destroyed now", begin_track, end_destroy_now, GPUSYNC_ERROR_DESTROYED, EITHER, true},
    {"foreign", begin_foreign, end_finish, GPUSYNC_OK, QUEUED, true},
    {"foreign, destroyed now", begin_foreign, end_destroy_now, GPUSYNC_ERROR_DESTROYED, EITHER, true},
    {"submission", begin_submission, end_finish, GPUSYNC_OK, QUEUED, false},
    {"three buffers", begin_three, end_finish, GPUSYNC_OK, QUEUED, false},
    {"failing submission", begin_failing_submission, end_finish, GPUSYNC_ERROR_EXECUTION, QUEUED, false},
    {"held, then issued", begin_held, end_signal_finish, GPUSYNC_OK, QUEUED, false},
    {"held commit", begin_held_commit, end_signal_finish, GPUSYNC_OK, QUEUED, false},
    {"held, failed", begin_held, end_fail, GPUSYNC_ERROR_EXECUTION, QUEUED, false},
    {"held, cancelled", begin_held, end_cancel, GPUSYNC_ERROR_CANCELLED, QUEUED, false},
    {"held commit, cancelled", begin_held_commit, end_cancel, GPUSYNC_ERROR_CANCELLED, QUEUED, false},
    {"held, abandoned", begin_held, end_destroy_timeline, GPUSYNC_ERROR_DESTROYED, QUEUED, false},
    {"held, destroyed", begin_held, end_destroy, GPUSYNC_ERROR_CANCELLED, EITHER, false},
    {"held, destroyed now", begin_held, end_destroy_now, GPUSYNC_ERROR_DESTROYED, EITHER, false},
    {"held commit, destroyed", begin_held_commit, end_destroy, GPUSYNC_ERROR_CANCELLED, EITHER, false},
    {"held commit, destroyed now", begin_held_commit, end_destroy_now, GPUSYNC_ERROR_DESTROYED, EITHER, false},
    {"barrier", begin_barrier, end_signal, GPUSYNC_OK, QUEUED, true},
    {"barrier, failed", begin_barrier, end_fail, GPUSYNC_ERROR_EXECUTION, QUEUED, true},
    {"barrier, cancelled", begin_barrier, end_cancel, GPUSYNC_ERROR_CANCELLED, QUEUED, true},
    {"barrier, destroyed now", begin_barrier, end_destroy_now, GPUSYNC_ERROR_DESTROYED, EITHER, true},
    {"commit, destroyed now", begin_commit, end_destroy_now, GPUSYNC_ERROR_DESTROYED, EITHER, false},
    {"three buffers, destroyed now", begin_three, end_signaller_destroyed_now, GPUSYNC_ERROR_DESTROYED, EITHER, false},
    {"handler never came", begin_commit, end_published_then_destroyed, GPUSYNC_OK, EITHER, true},
    {"handler never came, failed", begin_failing_submission, end_destroy_now, GPUSYNC_ERROR_DESTROYED, EITHER, false},
};

static void live(const life *l, gpusync_callback_mode mode)
{
    outcome o[3] = {0};
    gpusync_ticket ticket;
    void *buffer;
    size_t i, n = 0, held = 3;
    stage s;
    open_callback_stage(&s, SOFTMETAL_MANUAL, mode);
    ticket = l->begin(&s, &buffer);
    for (i = 0; i < held; i++) on_done(s.q[1], ticket, &o[i]);
    l->end(&s, buffer, ticket);
    if (mode == GPUSYNC_CALLBACKS_MANUAL && s.q[1] && s.t[0]) { /* destroy runs what is left */
        assert_int_equal(calls_of(&o[0]) + calls_of(&o[1]) + calls_of(&o[2]), 0);
        if (!notified.count) fail_msg("%s: notify was not called when it was due", l->name);
    }
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, &n));
    for (i = 0; i < held; i++) {
        if (calls_of(&o[i]) != 1) fail_msg("%s: %ld calls", l->name, calls_of(&o[i]));
        if (o[i].result != l->result) fail_msg("%s: %s", l->name, gpusync_result_string(o[i].result));
        if (o[i].has_error != (l->result != GPUSYNC_OK)) fail_msg("%s: an error, or none", l->name);
        if (o[i].has_error) assert_result(o[i].error.result, l->result);
        if (mode == GPUSYNC_CALLBACKS_MANUAL ? !ran_here(&o[i]) : ran_here(&o[i]) && l->where == QUEUED)
            fail_msg("%s: on the wrong thread", l->name);
    }
    assert_in_order(o, held);
    settle(&s);
    close_idle_stage(&s);
    assert_in_order(o, held); /* and never again */
}

static void test_every_ticket_calls_back_once_however_it_ends(void **state)
{
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(lives); i++)
        if (!metal4_run() || !lives[i].not_on_metal4) live(&lives[i], GPUSYNC_CALLBACKS_QUEUED);
}

static void test_every_ticket_calls_back_once_by_hand(void **state)
{
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(lives); i++)
        if (!metal4_run() || !lives[i].not_on_metal4) live(&lives[i], GPUSYNC_CALLBACKS_MANUAL);
}

static void test_a_submission_over_within_the_call_calls_back_outside_of_it(void **state)
{
    gpusync_point wait;
    gpusync_submission submission;
    outcome ok = {0}, bad = {0};
    stage s;
    (void)state;
    NOT_ON_METAL4("submissions have command buffers");
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    wait = at(s.t[0], 1);
    memset(&submission, 0, sizeof submission);
    submission.on_complete = remember;
    submission.user = &ok;
    submit_well(s.q[0], &submission);
    assert_int_equal(calls_of(&ok), 1);
    assert_false(ran_here(&ok));
    assert_result(ok.result, GPUSYNC_OK);
    assert_ok(gpusync_timeline_fail(s.t[0], NULL));
    submission.waits = &wait;
    submission.wait_count = 1;
    submission.user = &bad;
    submit_well(s.q[0], &submission);
    assert_int_equal(calls_of(&bad), 1);
    assert_false(ran_here(&bad));
    assert_result(bad.result, GPUSYNC_ERROR_EXECUTION);
    close_idle_stage(&s);
}

/* == order ====================================================================================================== */

/* The end was seen by a poll, and what is due waits for the handler: a later registration must not pass it. */
static void test_a_late_registration_does_not_pass_those_before_it(void **state)
{
    outcome o[3] = {0};
    gpusync_submission submission;
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    memset(&submission, 0, sizeof submission);
    buffer = buffer_of(s.q[0]);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.on_complete = remember;
    submission.user = &o[0];
    ticket = submit_well(s.q[0], &submission);
    on_done(s.q[0], ticket, &o[1]);
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(s.q[0], ticket));
    on_done(s.q[0], ticket, &o[2]);
    softmetal_run_handler(buffer, 0);
    settle(&s);
    assert_in_order(o, 3);
    close_idle_stage(&s);
}

typedef struct late {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    outcome *o;
    pthread_t thread;
    int returned;
    bool ended; /* the ticket, when the registration came */
} late;

static void *register_body(void *argument)
{
    late *l = (late *)argument;
    must(gpusync_on_done(gpusync_at_ticket(l->queue, l->ticket), remember, l->o) == GPUSYNC_OK, "on_done");
    PUT(&l->returned, 1);
    return NULL;
}

/* Another thread registers now; or it cannot, because this one is in the middle of a step, and gets some time to find that
   out. */
static void register_elsewhere(void *argument)
{
    late *l = (late *)argument;
    int patience;
    l->ended = gpusync_is_done(l->queue, l->ticket);
    l->thread = start(register_body, l);
    for (patience = 0; patience < 2000 && !GET(&l->returned); patience++) sched_yield();
}

/* Another thread registers at the n-th point of the handler: before the ticket has ended, between that and when those that
   wait for it are told, and after. False: there are no so many. *ended: the ticket had ended. many: there are more
   callbacks than are taken off the list in one hold of the queue's lock. */
static bool register_at(gpusync_callback_mode mode, bool amid, bool many, int n, bool *ended)
{
    static outcome o[150];
    size_t last = many ? LENGTH(o) - 1 : 2, i;
    gpusync_submission submission;
    void *buffer;
    bool came;
    late l;
    stage s;
    memset(o, 0, sizeof o);
    open_callback_stage(&s, SOFTMETAL_MANUAL, mode);
    memset(&submission, 0, sizeof submission);
    buffer = buffer_of(s.q[0]);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.on_complete = remember;
    submission.user = &o[0];
    memset(&l, 0, sizeof l);
    l.queue = s.q[0];
    l.ticket = submit_well(s.q[0], &submission);
    l.o = &o[last];
    for (i = 1; i < last; i++) on_done(s.q[0], l.ticket, &o[i]);
    softmetal_complete(buffer);
    if (amid) probe_amid_each(n, register_elsewhere, &l);
    else probe_at_each(n, register_elsewhere, &l);
    softmetal_run_handler(buffer, 0);
    assert_true(softmetal_dispatched(SECONDS(20))); /* callbacks come to points, too */
    came = probe_has_acted();
    if (came) join(l.thread);
    else on_done(s.q[0], l.ticket, &o[last]);
    *ended = l.ended;
    settle(&s);
    await_calls(&o[last], 1);
    assert_in_order(o, last + 1);
    close_idle_stage(&s);
    return came;
}

static void test_a_registration_while_the_end_is_told_keeps_its_place(void **state)
{
    int way, n;
    (void)state;
    for (way = 0; way < 4; way++) {
        gpusync_callback_mode mode = way % 2 ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED;
        unsigned before = 0, after = 0;
        bool ended;
        for (n = 1; register_at(mode, way / 2 > 0, false, n, &ended); n++) {
            if (ended) after++;
            else before++;
        }
        assert_true(before > 0 && after > 0);
    }
}

/* More callbacks than one hold takes: between two holds the ticket has ended, and some are still listed. */
static void test_a_registration_between_two_holds_comes_behind_those_that_are_left(void **state)
{
    unsigned after = 0;
    bool ended;
    int n;
    (void)state;
    for (n = 1; register_at(GPUSYNC_CALLBACKS_MANUAL, false, true, n, &ended); n++) after += ended;
    assert_true(after > 2);
}

/* A thread that gives room back to many, while another one that ends a ticket is stopped. */
typedef struct giver {
    stage *stage;
    audience audience;
    gpusync_ticket ticket;
    void *spare;              /* open: its room is given back; or, where the ticket fails, */
    void *failed;             /* the command buffer of the ticket, whose handler gives back its room */
    size_t before, meanwhile; /* how many callbacks were due when it came, and became due by it */
    bool ended, given;        /* the ticket, when it came; the room */
} giver;

static void give_spare_room(void *argument)
{
    giver *g = (giver *)argument;
    if (g->failed) softmetal_run_handler(g->failed, 0);
    else must(gpusync_command_buffer_discard(g->stage->q[0], g->spare) == GPUSYNC_OK, "discard");
    g->given = true;
}

/* The held submission gives its room back, and the spare room comes while many are still to be told of that. */
static void give_room_to_many(void *argument)
{
    giver *g = (giver *)argument;
    g->ended = gpusync_is_done(g->stage->q[0], g->ticket);
    must(gpusync_dispatch(g->stage->device, SIZE_MAX, &g->before) == GPUSYNC_OK, "dispatch");
    g->audience.argument = g;
    PUT(&g->audience.between, give_spare_room);
    must(gpusync_cancel_held(g->stage->q[0]) == GPUSYNC_OK, "cancel");
    must(g->given, "no waiter was woken");
    must(gpusync_dispatch(g->stage->device, SIZE_MAX, &g->meanwhile) == GPUSYNC_OK, "dispatch");
}

/* Room is given back at the n-th point of the poll that ends the ticket. fails: the ticket has failed, and its handler is
   what gives back room. False: there are no so many points. *left: the ticket had ended, and some of its callbacks were
   still listed. */
static bool give_room_at(int n, bool fails, bool *left)
{
    static outcome o[150];
    void *buffer, *needs_it;
    bool came, issued;
    giver g = {0};
    size_t i;
    stage s;
    memset(o, 0, sizeof o);
    open_stage_for(&g.audience, &s, 2, 3);
    g.stage = &s;
    g.ticket = commit_to(s.q[0], buffer = buffer_of(s.q[0]));
    if (fails) softmetal_fail(g.failed = buffer, "TestDomain", 42, "it broke");
    (void)commit_empty_to(s.q[0], NULL); /* in flight, so the end of what is held behind it says nothing of the first */
    g.spare = buffer_of(s.q[0]);
    keep_out(&g.audience, &s);
    for (i = 0; i < LENGTH(o); i++) on_done(s.q[0], g.ticket, &o[i]);
    needs_it = metal_retain(buffer_of(s.q[1]));
    SUBMIT(s.q[1], WAITS(after(s.q[0], g.ticket)), BUFFERS(needs_it), .flags = GPUSYNC_STRICT);
    assert_int_equal(held_on(s.device, s.q[1]), 1);
    softmetal_complete(buffer);
    probe_at_each(n, give_room_to_many, &g);
    assert_result(gpusync_poll(s.q[0], g.ticket), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    came = probe_has_acted();
    issued = status_of(needs_it) >= COMMITTED;
    if (!came) give_room_to_many(&g);
    settle(&s);
    if (fails) assert_ok(gpusync_command_buffer_discard(s.q[0], g.spare));
    send_home(&g.audience);
    assert_int_equal(issued, !fails);
    *left = came && g.ended && g.before < LENGTH(o);
    if (*left) assert_int_equal(g.meanwhile, 0);
    assert_in_order(o, LENGTH(o));
    for (i = 0; i < LENGTH(o); i++) assert_result(o[i].result, fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    metal_release(needs_it);
    settle(&s);
    close_idle_stage(&s);
    return came;
}

/* The giver takes no callback off, nor what is held for the ticket: the poll tells those, in its second hold. */
static void test_room_that_is_given_back_between_two_holds_tells_nothing_of_the_ticket(void **state)
{
    unsigned between = 0;
    bool left;
    int n;
    (void)state;
    NOT_ON_METAL4("room for many does not come at once");
    for (n = 1; give_room_at(n, false, &left); n++) between += left;
    assert_true(between > 0);
}

/* A poll has found the failure, and tells it. Nor does the handler take anything off, which has found nothing: it would
   have to know how the ticket ended. */
static void test_a_handler_between_two_holds_tells_nothing_of_its_ticket(void **state)
{
    unsigned between = 0;
    bool left;
    int n;
    (void)state;
    NOT_ON_METAL4("no status tells of the end before the handler");
    for (n = 1; give_room_at(n, true, &left); n++) between += left;
    assert_true(between > 0);
}

static void run_its_handler(void *buffer) { softmetal_run_handler(buffer, 0); }

/* The first handler of two gives room back, and needs a second hold for the many that wait for room. The submission has
   not ended by then, and will fail. */
static void test_a_part_that_ends_tells_nothing_of_its_submission(void **state)
{
    void *first, *second;
    gpusync_ticket ticket;
    outcome o = {0};
    audience a;
    size_t early;
    stage s;
    (void)state;
    NOT_ON_METAL4("a submission has one part");
    open_stage_for(&a, &s, 1, 2);
    first = buffer_of(s.q[0]);
    second = buffer_of(s.q[0]);
    softmetal_fail(second, "TestDomain", 42, "it broke");
    ticket = SUBMIT(s.q[0], BUFFERS(first, second));
    on_done(s.q[0], ticket, &o);
    keep_out(&a, &s);
    softmetal_complete(first);
    a.argument = first;
    PUT(&a.between, run_its_handler); /* while many are still to be told */
    assert_ok(gpusync_cancel_held(s.q[0]));
    assert_null(GET(&a.between));
    assert_false(gpusync_is_done(s.q[0], ticket));
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, &early));
    settle(&s);
    send_home(&a);
    close_idle_stage(&s);
    assert_int_equal(early, 0);
    assert_ended(&o, GPUSYNC_ERROR_EXECUTION);
}

/* The handler of other work that fails, which another thread runs. */
typedef struct trouble {
    gpusync_device *device;
    void *buffer;
    pthread_t thread;
} trouble;

static void *run_other_handler(void *argument)
{
    softmetal_run_handler(((trouble *)argument)->buffer, 0);
    return NULL;
}

static void fail_elsewhere(void *argument)
{
    trouble *t = (trouble *)argument;
    t->thread = start(run_other_handler, t);
    join(t->thread);
}

/* ... and the second passes, in which a lost device may report what it has. */
static void *give_up_elsewhere(void *argument)
{
    (void)run_other_handler(argument);
    probe_give_up_lost(((trouble *)argument)->device);
    return NULL;
}

static void lose_and_give_up(void *argument)
{
    trouble *t = (trouble *)argument;
    t->thread = start(give_up_elsewhere, t);
    join(t->thread);
}

/* The loss comes before the end, or behind it: that changes nothing. Nor does it where the work is given up: its status
   has been read by then. Where there is none (Metal 4) all callbacks are told the same. */
static void lose_between_two_holds(void (*lose)(void *), int *given_up, int *points)
{
    static outcome o[150];
    bool came = true;
    for (*points = *given_up = 0; came; ++*points) {
        gpusync_ticket ticket;
        trouble t = {0};
        void *buffer;
        size_t i;
        stage s;
        memset(o, 0, sizeof o);
        open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL);
        ticket = commit_to(s.q[0], buffer = buffer_of(s.q[0]));
        t.device = s.device;
        t.buffer = buffer_of(s.q[1]);
        fail_with_the_device(t.buffer);
        (void)commit_to(s.q[1], t.buffer);
        for (i = 0; i < LENGTH(o); i++) on_done(s.q[0], ticket, &o[i]);
        softmetal_complete(buffer);
        softmetal_complete(t.buffer);
        probe_at_each(*points + 1, lose, &t);
        softmetal_run_handler(buffer, 0);
        came = probe_has_acted();
        if (!came) lose(&t);
        settle(&s);
        assert_in_order(o, LENGTH(o));
        for (i = 0; i < LENGTH(o); i++) assert_result(o[i].result, o[0].result);
        assert_result(gpusync_poll(s.q[0], ticket), o[0].result);
        if (o[0].result != GPUSYNC_OK) {
            assert_result(o[0].result, GPUSYNC_ERROR_DEVICE_LOST);
            ++*given_up;
        }
        close_idle_stage(&s);
    }
}

static void test_a_loss_between_two_holds_changes_no_end(void **state)
{
    int given_up, points;
    (void)state;
    lose_between_two_holds(fail_elsewhere, &given_up, &points);
    assert_int_equal(given_up, 0);
    assert_true(points > 3);
}

static void test_giving_up_between_two_holds_tells_all_the_same(void **state)
{
    int given_up, points;
    (void)state;
    lose_between_two_holds(lose_and_give_up, &given_up, &points);
    if (metal4_run()) assert_true(given_up > 0 && given_up < points - 2);
    else assert_int_equal(given_up, 0);
}

/* Later work of the queue fails before all callbacks are told of a failure, and its record takes the place of the first
   one's, for the log has place for one: all callbacks are told the same error. */
static void test_a_failure_between_two_holds_changes_no_error(void **state)
{
    static outcome o[150];
    unsigned amid = 0;
    bool came = true;
    int n;
    (void)state;
    for (n = 1; came; n++) {
        gpusync_device_desc device_desc;
        gpusync_queue_desc queue_desc;
        gpusync_ticket ticket;
        trouble t = {0};
        void *buffer;
        size_t i;
        stage s;
        memset(o, 0, sizeof o);
        memset(&device_desc, 0, sizeof device_desc);
        memset(&queue_desc, 0, sizeof queue_desc);
        device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
        queue_desc.error_log_count = 1;
        open_stage_on(&s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, 1, device_desc, queue_desc);
        softmetal_fail(buffer = buffer_of(s.q[0]), NULL, 3, "the first");
        ticket = commit_to(s.q[0], buffer);
        softmetal_fail(t.buffer = buffer_of(s.q[0]), NULL, 3, "the second");
        (void)commit_to(s.q[0], t.buffer);
        for (i = 0; i < LENGTH(o); i++) on_done(s.q[0], ticket, &o[i]);
        softmetal_complete(buffer);
        softmetal_complete(t.buffer);
        probe_at_each(n, fail_elsewhere, &t);
        softmetal_run_handler(buffer, 0);
        came = probe_has_acted();
        if (!came) fail_elsewhere(&t);
        settle(&s);
        assert_in_order(o, LENGTH(o));
        for (i = 0; i < LENGTH(o); i++) {
            assert_result(o[i].result, GPUSYNC_ERROR_EXECUTION);
            assert_int_equal(o[i].error.ticket, ticket);
            assert_string_equal(o[i].error.message, "the first");
        }
        amid += came;
        close_idle_stage(&s);
    }
    assert_true(amid > 3);
}

/* A thread that destroys the queue, while another one that ends a ticket of it is stopped. */
typedef struct destroyer {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    pthread_t thread;
    unsigned yields; /* so often it has waited for the other one */
    size_t before;   /* how many callbacks were due when it came */
    bool came, returned;
} destroyer;

static void note_a_yield(void *user)
{
    COUNT(&((destroyer *)user)->yields);
    sched_yield();
}

static void *destroy_it_now(void *argument)
{
    destroyer *d = (destroyer *)argument;
    must(gpusync_queue_destroy_now(d->queue) == GPUSYNC_OK, "destroy");
    PUT(&d->returned, true);
    return NULL;
}

static void destroy_elsewhere(void *argument)
{
    destroyer *d = (destroyer *)argument;
    d->came = true;
    d->thread = start(destroy_it_now, d);
    while (!GET(&d->yields) && !GET(&d->returned)) sched_yield();
}

static void destroy_behind_the_end(void *argument)
{
    destroyer *d = (destroyer *)argument;
    if (!gpusync_is_done(d->queue, d->ticket)) return;
    must(gpusync_dispatch(d->device, SIZE_MAX, &d->before) == GPUSYNC_OK, "dispatch");
    destroy_elsewhere(d);
}

static void open_stage_to_destroy(stage *s, const gpusync_hooks *hooks)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = hooks;
    device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    open_stage_on(s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, 2, device_desc, queue_desc);
}

/* The ticket has ended well, and the queue goes while callbacks are still listed: none of them is told of that. The
   handler of another queue ends the ticket, for destroy waits for those of its own. */
static void test_a_queue_that_goes_between_two_holds_changes_no_end(void **state)
{
    static outcome o[150];
    unsigned between = 0;
    bool came = true;
    int n;
    (void)state;
    for (n = 1; came; n++) {
        destroyer d = {0};
        gpusync_hooks hooks = {.yield = note_a_yield, .user = &d};
        void *buffer;
        size_t i;
        stage s;
        memset(o, 0, sizeof o);
        open_stage_to_destroy(&s, &hooks);
        buffer = metal_retain(buffer_of(s.q[1]));
        SUBMIT(s.q[1], BUFFERS(buffer), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE);
        d.device = s.device;
        d.queue = s.q[0];
        d.ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(buffer_of(s.q[0])));
        for (i = 0; i < LENGTH(o); i++) on_done(s.q[0], d.ticket, &o[i]);
        softmetal_complete(buffer);
        finish(&s, 0);
        assert_false(gpusync_is_done(s.q[0], d.ticket)); /* it ends with what it waited for */
        probe_at_each(n, destroy_behind_the_end, &d);
        softmetal_run_handler(buffer, 0);
        came = probe_has_acted();
        between += d.came && d.before < LENGTH(o);
        if (!d.came) destroy_elsewhere(&d);
        join(d.thread);
        s.q[0] = NULL;
        settle(&s);
        assert_in_order(o, LENGTH(o));
        for (i = 0; i < LENGTH(o); i++) assert_result(o[i].result, GPUSYNC_OK);
        metal_release(buffer);
        close_idle_stage(&s);
    }
    assert_true(between > 0);
}

static void stay(outcome *o)
{
    gate_wait(o->gate); /* it is here */
    gate_wait(o->gate); /* it may go */
}

/* Handlers of two queues run at once: the second must not go on with the callbacks of the first one's ticket, nor
   release what the callback in progress uses. */
static void test_callbacks_of_one_ticket_do_not_overlap(void **state)
{
    outcome o[2] = {0};
    void *mine, *theirs, *object;
    gpusync_ticket ticket;
    unsigned long owners;
    gate g;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    gate_init(&g, 2);
    object = metal_buffer_new(s.rig.metal_device, 16);
    o[0].then = stay;
    o[0].gate = &g;
    ticket = commit_to(s.q[0], mine = buffer_of(s.q[0]));
    commit_to(s.q[1], theirs = buffer_of(s.q[1]));
    on_done(s.q[0], ticket, &o[0]);
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
    on_done(s.q[0], ticket, &o[1]);
    owners = softmetal_retain_count(object);
    softmetal_complete(mine);
    softmetal_complete(theirs);
    softmetal_begin_handler(mine, 0);
    gate_wait(&g);
    softmetal_run_handler(theirs, 0);
    assert_int_equal(calls_so_far(&o[1]), 0);
    assert_int_equal(softmetal_retain_count(object), owners);
    gate_wait(&g);
    softmetal_join_handler(mine, 0);
    settle(&s);
    assert_in_order(o, 2);
    assert_int_equal(softmetal_retain_count(object), owners - 1);
    metal_release(object);
    gate_destroy(&g);
    close_idle_stage(&s);
}

static void *register_at_once(void *argument)
{
    outcome *o = (outcome *)argument;
    must(gpusync_on_done(gpusync_at_ticket(o->queue, GPUSYNC_NO_TICKET), remember, o) == GPUSYNC_OK, "on_done");
    return NULL;
}

/* The handler finds a callback of its queue running in a call of the program: that call sees to the rest. */
static void test_what_had_to_wait_for_its_turn_is_run(void **state)
{
    outcome busy = {0}, o[2] = {0};
    gpusync_ticket ticket;
    pthread_t thread;
    void *buffer;
    gate g;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    gate_init(&g, 2);
    busy.then = stay;
    busy.gate = &g;
    busy.queue = s.q[0];
    ticket = commit_to(s.q[0], buffer = buffer_of(s.q[0]));
    on_done(s.q[0], ticket, &o[0]);
    on_done(s.q[0], ticket, &o[1]);
    thread = start(register_at_once, &busy);
    gate_wait(&g);
    softmetal_finish(buffer);
    gate_wait(&g);
    join(thread);
    await_calls(&o[1], 1);
    assert_in_order(o, 2);
    gate_destroy(&g);
    close_idle_stage(&s);
}

static void *dispatch_body(void *argument)
{
    size_t count;
    must(gpusync_dispatch((gpusync_device *)argument, SIZE_MAX, &count) == GPUSYNC_OK, "dispatch");
    return NULL;
}

static void test_callbacks_of_one_ticket_do_not_overlap_in_dispatch(void **state)
{
    outcome o[2] = {0}, free_to_go = {0};
    gpusync_ticket ticket;
    pthread_t thread;
    size_t count;
    gate g;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL);
    gate_init(&g, 2);
    o[0].then = stay;
    o[0].gate = &g;
    ticket = commit_to(s.q[0], buffer_of(s.q[0]));
    on_done(s.q[0], ticket, &o[0]);
    on_done(s.q[0], ticket, &o[1]);
    on_value(s.t[0], 1, &free_to_go);
    softmetal_finish_queue(s.metal[0]);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    thread = start(dispatch_body, s.device);
    gate_wait(&g);
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, &count));
    assert_int_equal(calls_of(&o[1]), 0);
    gate_wait(&g);
    join(thread);
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, &count));
    assert_in_order(o, 2);
    assert_int_equal(calls_of(&free_to_go), 1);
    gate_destroy(&g);
    close_idle_stage(&s);
}

static void *destroy_meanwhile(void *queue)
{
    must(gpusync_queue_destroy((gpusync_queue *)queue) == GPUSYNC_OK, "destroy");
    return NULL;
}

/* Destroy calls back by itself. A dispatch meanwhile runs nothing, and notify is called again behind the destroy. */
static void test_a_dispatch_while_a_destroy_calls_back_is_told_again(void **state)
{
    outcome busy = {0}, other = {0};
    pthread_t thread;
    size_t count;
    long told;
    gate g;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL);
    gate_init(&g, 2);
    busy.then = stay;
    busy.gate = &g;
    on_done(s.q[0], commit_to(s.q[0], buffer_of(s.q[0])), &busy);
    finish_queue(s.q[0]);
    thread = start(destroy_meanwhile, s.q[0]);
    gate_wait(&g);
    on_value(s.t[0], 0, &other);
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, &count));
    assert_int_equal(count, 0);
    told = GET(&notified.count);
    gate_wait(&g);
    join(thread);
    s.q[0] = NULL;
    assert_true(GET(&notified.count) > told);
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, &count));
    assert_int_equal(count, 1);
    assert_int_equal(calls_of(&other), 1);
    gate_destroy(&g);
    close_idle_stage(&s);
}

/* The dispatch queue finds that another thread calls back, and leaves what is due: it is not asked again and again until
   that one is over. */
static void test_the_dispatch_queue_is_not_kept_busy_while_a_destroy_calls_back(void **state)
{
    outcome busy = {0}, other = {0};
    uint64_t before, meanwhile;
    pthread_t thread;
    bool rests;
    gate g;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    gate_init(&g, 2);
    busy.then = stay;
    busy.gate = &g;
    softmetal_set_dispatch_threads(0);
    on_done(s.q[0], commit_to(s.q[0], buffer_of(s.q[0])), &busy);
    finish_queue(s.q[0]);
    thread = start(destroy_meanwhile, s.q[0]);
    gate_wait(&g);
    s.q[0] = NULL;
    on_value(s.t[0], 0, &other);
    before = softmetal_dispatches();
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    rests = softmetal_dispatched(SECONDS(5));
    meanwhile = softmetal_dispatches() - before;
    gate_wait(&g);
    join(thread);
    assert_true(rests);
    assert_int_equal(meanwhile, 0);
    await_calls(&other, 1); /* asked for by the one that is over */
    gate_destroy(&g);
    close_idle_stage(&s);
}

/* Releases and callbacks of a ticket share one order. */
static void look_at_object(outcome *o) { o->answered = (unsigned)softmetal_live("buffer"); }

static void test_an_object_is_released_between_the_callbacks_around_it(void **state)
{
    outcome before = {0}, after = {0};
    gpusync_ticket ticket;
    void *object;
    size_t count;
    int manual;
    stage s;
    (void)state;
    for (manual = 0; manual < 2; manual++) {
        open_callback_stage(&s, SOFTMETAL_MANUAL, manual ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED);
        memset(&before, 0, sizeof before);
        memset(&after, 0, sizeof after);
        before.then = after.then = look_at_object;
        ticket = commit_to(s.q[0], buffer_of(s.q[0]));
        object = metal_buffer_new(s.rig.metal_device, 16);
        on_done(s.q[0], ticket, &before);
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
        on_done(s.q[0], ticket, &after);
        metal_release(object);
        softmetal_finish_queue(s.metal[0]);
        if (manual) {
            assert_int_equal(softmetal_live("buffer"), 1);
            assert_ok(gpusync_dispatch(s.device, 1, &count));
            assert_int_equal(softmetal_live("buffer"), 1);
            assert_ok(gpusync_dispatch(s.device, 1, &count)); /* the release counts as one */
            assert_int_equal(count, 1);
            assert_int_equal(softmetal_live("buffer"), 0);
            assert_int_equal(calls_of(&after), 0);
            assert_ok(gpusync_dispatch(s.device, 5, &count));
            assert_int_equal(count, 1);
        }
        assert_int_equal(calls_of(&before), 1);
        assert_int_equal(calls_of(&after), 1);
        assert_int_equal(before.answered, 1);
        assert_int_equal(after.answered, 0);
        close_idle_stage(&s);
    }
}

/* == callbacks of submissions ====================================================================================== */

static void test_a_callback_comes_once_on_a_dispatch_queue_with_the_result(void **state)
{
    unsigned fails;
    (void)state;
    for (fails = 0; fails < 2; fails++) {
        gpusync_ticket ticket;
        outcome told;
        stage s;
        memset(&told, 0, sizeof told);
        open_stage(&s, SOFTMETAL_MANUAL, 1);
        if (fails) {
            void *buffer = OPEN(s.q[0], .label = "the culprit");
            softmetal_fail(buffer, "TestDomain", 42, "it broke");
            ticket = SUBMIT(s.q[0], BUFFERS(buffer), TELL(&told));
        } else {
            ticket = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)), TELL(&told));
        }
        assert_int_equal(calls_of(&told), 0);
        finish(&s, 0);
        assert_int_equal(calls_of(&told), 1);
        assert_false(ran_here(&told));
        assert_int_equal(told.result, fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_int_equal(told.has_error, fails);
        if (fails) assert_original(&told.error, "first", ticket);
        close_stage(&s);
        assert_int_equal(calls_of(&told), 1);
    }
}

static void test_no_callback_comes_inside_a_wait(void **state)
{
    gpusync_ticket ticket;
    outcome told, barrier;
    gpusync_point point;
    void *buffer;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    memset(&told, 0, sizeof told);
    memset(&barrier, 0, sizeof barrier);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE, TELL(&told));
    point = after(s.q[1], SUBMIT(s.q[1], WAITS(after(s.q[0], ticket)), .flags = GPUSYNC_STRICT, TELL(&barrier)));
    softmetal_set_dispatch_threads(0);
    softmetal_complete(buffer); /* its handler is still to come: every wait finds the end by itself */
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_ok(gpusync_timeline_wait(s.a, 1, 0, NULL));
    assert_ok(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, 0, NULL, NULL));
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    assert_ok(gpusync_device_wait(s.device, 0, NULL));
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_true(gpusync_is_idle(s.q[0]));
    assert_int_equal(calls_so_far(&told), 0);
    assert_int_equal(calls_so_far(&barrier), 0);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    finish(&s, 0);
    finish(&s, 1);
    assert_int_equal(calls_of(&told), 1);
    assert_int_equal(calls_of(&barrier), 1);
    assert_false(ran_here(&told));
    assert_false(ran_here(&barrier));
    close_stage(&s);
}

/* Only a wait finds the end, and no handler is to come: one is made to. */
static void test_a_callback_that_a_wait_found_due_comes_although_no_handler_does(void **state)
{
    gpusync_ticket ticket;
    outcome told;
    foreign_stage f;
    (void)state;
    NOT_ON_METAL4("submissions have command buffers");
    memset(&told, 0, sizeof told);
    open_foreign(&f, SOFTMETAL_REAL);
    ticket = SUBMIT(f.stage.q[0], WAITS(at(f.timeline, 1)), .flags = GPUSYNC_STRICT, TELL(&told));
    metal_event_signal(f.event, 1);
    assert_ok(gpusync_wait(f.stage.q[0], ticket, SECONDS(20)));
    await_call(&told);
    assert_false(ran_here(&told));
    assert_true(softmetal_settle(SECONDS(20)));
    close_foreign(&f);
    assert_int_equal(calls_of(&told), 1);
}

static void test_of_a_held_submission_the_callback_comes_when_a_call_has_ended_it(void **state)
{
    outcome told[4];
    stage s;
    (void)state;
    memset(told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    if (!metal4_run()) { /* it has no submissions without command buffers */
        (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), .flags = GPUSYNC_STRICT, TELL(&told[0]));
        assert_ok(gpusync_timeline_signal(s.a, 1));
        assert_int_equal(calls_of(&told[0]), 1);
        assert_false(ran_here(&told[0]));
        (void)SUBMIT(s.q[0], WAITS(at(s.a, 2)), .flags = GPUSYNC_STRICT, TELL(&told[1]));
        (void)SUBMIT(s.q[1], SIGNALS(at(s.a, 2)), .flags = GPUSYNC_STRICT);
        assert_int_equal(calls_of(&told[1]), 1);
        assert_false(ran_here(&told[1]));
    }
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 3)), TELL(&told[2]));
    close_queue(&s, 0);
    assert_int_equal(calls_so_far(&told[2]), 1); /* by now, wherever it was */
    assert_int_equal(told[2].result, GPUSYNC_ERROR_CANCELLED);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 3)), TELL(&told[3]));
    assert_ok(gpusync_timeline_destroy(s.a));
    s.a = NULL;
    assert_int_equal(calls_of(&told[3]), 1);
    assert_int_equal(told[3].result, GPUSYNC_ERROR_DESTROYED);
    close_stage(&s);
}

/* Its command buffers have ended, and only the fate of what it waited for was open: no handler of its own is due. */
static void test_a_callback_of_work_whose_handlers_have_run_comes_on_a_dispatch_queue(void **state)
{
    outcome told;
    void *producer;
    stage s;
    (void)state;
    NOT_ON_METAL4("no signal overtakes the work");
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    producer = open_on(&s, 0);
    (void)SUBMIT(s.q[0], BUFFERS(producer), SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), WAITS(at(s.a, 1)), TELL(&told));
    softmetal_finish(softmetal_last_buffer(s.metal[0])); /* the signal overtakes the work */
    finish(&s, 1);
    assert_int_equal(calls_of(&told), 0);
    assert_ok(gpusync_timeline_fail(s.a, NULL));
    while (calls_of(&told) == 0) sched_yield(); /* the dispatch queue's thread */
    assert_int_equal(calls_of(&told), 1);
    assert_false(ran_here(&told));
    assert_int_equal(told.result, GPUSYNC_ERROR_EXECUTION);
    finish(&s, 0);
    close_stage(&s);
}

static void test_destroying_a_queue_settles_every_callback(void **state)
{
    outcome told[3];
    unsigned i;
    stage s;
    (void)state;
    memset(told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_REAL, 2);
    for (i = 0; i < 2; i++) {
        void *buffer = open_on(&s, 0);
        softmetal_set_duration(buffer, MS(2));
        (void)SUBMIT(s.q[0], BUFFERS(buffer), TELL(&told[i]));
    }
    if (metal4_run()) (void)hold_on(s.q[0], s.a, 1, &told[2]);
    else (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), TELL(&told[2]));
    close_queue(&s, 0);
    for (i = 0; i < 3; i++) {
        assert_int_equal(calls_of(&told[i]), 1);
        assert_int_equal(told[i].result, i < 2 ? GPUSYNC_OK : GPUSYNC_ERROR_CANCELLED);
    }
    close_stage(&s);
}

static void test_destroying_a_queue_now_ends_what_is_in_flight_for_its_callbacks(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error;
    outcome told;
    void *buffer;
    stage s;
    (void)state;
    memset(&told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    buffer = metal_retain(open_on(&s, 0));
    (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE, TELL(&told));
    if (metal4_run()) ticket = SUBMIT(s.q[1], WAITS(at(s.a, 1)), BUFFERS(open_on(&s, 1)), SIGNALS(at(s.b, 1)));
    else ticket = SUBMIT(s.q[1], WAITS(at(s.a, 1)), SIGNALS(at(s.b, 1)));
    metal_retain(s.metal[0]);
    assert_ok(gpusync_queue_destroy_now(s.q[0]));
    s.q[0] = NULL;
    assert_int_equal(calls_of(&told), 1);
    assert_int_equal(told.result, GPUSYNC_ERROR_DESTROYED);
    finish(&s, 1);
    error = error_of(s.q[1], ticket);
    assert_int_equal(error.result, GPUSYNC_ERROR_DESTROYED);
    assert_string_equal(error.queue_label, "first");
    softmetal_finish(buffer);
    metal_release(buffer);
    drop_what_stays(gpusync_timeline_metal(s.a, NULL));
    drop_queue_that_stays(s.metal[0]);
    metal_release(s.metal[0]);
    assert_int_equal(calls_of(&told), 1);
    close_stage(&s);
}

/* == timelines ================================================================================================== */

static void test_a_host_signal_calls_back_outside_of_the_call(void **state)
{
    outcome o[4] = {0};
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    on_value(s.t[0], 3, &o[0]);
    on_value(s.t[0], 3, &o[1]);
    on_value(s.t[0], 7, &o[3]);
    on_value(s.t[0], 2, &o[2]);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    assert_int_equal(calls_of(&o[0]) + calls_of(&o[1]) + calls_of(&o[2]) + calls_of(&o[3]), 0);
    assert_ok(gpusync_timeline_signal(s.t[0], 5));
    assert_int_equal(calls_of(&o[2]), 1);
    assert_in_order(o, 2);
    assert_int_equal(calls_of(&o[3]), 0);
    assert_false(ran_here(&o[0]) || ran_here(&o[1]) || ran_here(&o[2]));
    assert_ok(gpusync_timeline_signal(s.t[0], GPUSYNC_MAX_VALUE));
    assert_int_equal(calls_of(&o[3]), 1);
    assert_result(o[3].result, GPUSYNC_OK);
    close_idle_stage(&s);
}

/* ... wherever its value stands among the others. */
static void test_those_of_one_value_are_called_in_the_order_of_their_registration(void **state)
{
    static const uint64_t values[] = {4, 9, 2, 4, 4, 7, 4, 2, 9, 4}, sorted[] = {2, 7, 0, 3, 4, 6, 9, 5, 1, 8};
    outcome o[LENGTH(values)] = {0}, last = {0};
    size_t i;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    on_value(s.t[0], 10, &last);
    for (i = 0; i < LENGTH(values); i++) on_value(s.t[0], values[i], &o[i]);
    assert_ok(gpusync_timeline_signal(s.t[0], 10));
    assert_int_equal(calls_of(&last), 1);
    for (i = 1; i < LENGTH(values); i++) assert_true(o[sorted[i - 1]].order < o[sorted[i]].order);
    assert_true(o[sorted[i - 1]].order < last.order);
    close_idle_stage(&s);
}

/* The value of a pending signal is reached when the submission has ended, not when the device has signalled. */
static void test_a_pending_value_calls_back_when_its_work_has_ended(void **state)
{
    outcome kept = {0}, broken = {0};
    gpusync_point signal;
    void *buffer;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    signal = at(s.t[0], 4);
    on_value(s.t[0], 3, &kept);
    on_value(s.t[0], 5, &broken);
    submit_between(s.q[0], NULL, buffer = buffer_of(s.q[0]), &signal);
    softmetal_complete(buffer);
    assert_int_equal(calls_of(&kept), 0);
    softmetal_set_dispatch_threads(0);
    if (!metal4_run()) {
        softmetal_complete(softmetal_last_buffer(s.metal[0])); /* which signals */
        assert_ok(gpusync_timeline_wait(s.t[0], 4, 0, NULL)); /* a wait sees it, and runs nothing */
    }
    assert_int_equal(calls_so_far(&kept), 0);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    settle(&s);
    assert_int_equal(calls_of(&kept), 1);
    assert_false(ran_here(&kept));
    signal.value = 5;
    buffer = buffer_of(s.q[0]);
    softmetal_fail(buffer, NULL, 3, "on purpose");
    submit_between(s.q[0], NULL, buffer, &signal);
    settle(&s);
    assert_int_equal(calls_of(&broken), 1);
    assert_false(ran_here(&broken));
    assert_result(broken.result, GPUSYNC_ERROR_EXECUTION);
    assert_string_equal(broken.error.message, "on purpose");
    assert_string_equal(broken.error.queue_label, "first");
    close_idle_stage(&s);
}

/* The event has passed the value, and a pending signal below keeps it back: who asks for it now is told with those that
   asked before. */
static void test_a_value_that_was_heard_and_is_kept_back_can_be_asked_for_again(void **state)
{
    outcome o[2] = {0};
    gpusync_timeline *abroad;
    void *theirs;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    abroad = timeline_over(s.device, &theirs);
    (void)SUBMIT(s.q[0], NO_WORK(s.q[0]), WAITS(at(s.a, 1)), SIGNALS(at(abroad, 4))); /* held */
    on_value(abroad, 5, &o[0]);
    metal_event_signal(theirs, 5);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    assert_int_equal(calls_of(&o[0]), 0);
    on_value(abroad, 5, &o[1]);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    assert_int_equal(calls_of(&o[1]), 0);
    assert_int_equal(value_of(abroad), 3);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    finish(&s, 0);
    assert_in_order(o, 2);
    assert_int_equal(value_of(abroad), 5);
    assert_ok(gpusync_timeline_destroy(abroad));
    metal_release(theirs);
    close_stage(&s);
}

static void test_a_value_that_others_signal_calls_back(void **state)
{
    outcome o[3] = {0};
    gpusync_timeline *abroad;
    void *theirs;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED);
    theirs = metal_shared_event_new(s.rig.metal_device);
    assert_ok(timeline_import(s.device, theirs, NULL, &abroad));
    on_value(abroad, 5, &o[0]);
    on_value(abroad, 5, &o[1]);
    metal_event_signal(theirs, 6);
    await_calls(&o[1], 1);
    assert_in_order(o, 2);
    assert_false(ran_here(&o[0]) || ran_here(&o[1]));
    on_value(abroad, 6, &o[2]); /* already there */
    assert_int_equal(calls_of(&o[2]), 1);
    assert_false(ran_here(&o[2]));
    assert_ok(gpusync_timeline_destroy(abroad));
    metal_release(theirs);
    close_idle_stage(&s);
}

/* The event is gpusync's own, and other code signals it too. */
typedef struct other_code {
    gpusync_timeline *timeline;
    void *metal_device;
    bool by_device;
} other_code;

static void signal_five_abroad(void *argument)
{
    other_code *a = (other_code *)argument;
    void *event, *queue, *buffer;
    uint64_t base;
    if (!a->by_device) {
        raise_behind_its_back(a->timeline, 5);
        return;
    }
    event = gpusync_timeline_metal(a->timeline, &base);
    queue = metal_queue_new(a->metal_device, 8); /* which gpusync has never heard of */
    buffer = metal_queue_command_buffer(queue);
    metal_encode_signal(buffer, event, base + 5);
    metal_commit(buffer);
    softmetal_finish(buffer);
    metal_release(buffer);
    metal_release(queue);
}

/* Other code signals the value the n-th time that the registration comes to the place, or after it all. False: after it. */
static bool signal_while_it_is_registered(probe_place place, int n, bool by_device)
{
    long registrations = probe_registrations();
    outcome o = {0};
    other_code a;
    bool came;
    stage s;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    share_timeline(&s, 0);
    a.timeline = s.a;
    a.metal_device = s.rig.metal_device;
    a.by_device = by_device;
    probe_at(place, s.a, n, signal_five_abroad, &a);
    on_value(s.a, 5, &o);
    came = probe_has_acted();
    assert_in_range(softmetal_message_count("notifyListener:atValue:block:"), came ? 0 : 1, 1);
    assert_int_equal(probe_registrations() - registrations, 1); /* of this one timeline */
    if (!came) {
        assert_int_equal(softmetal_live("block"), 1);
        assert_int_equal(calls_of(&o), 0);
        signal_five_abroad(&a);
    }
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    assert_int_equal(calls_of(&o), 1); /* no timer has fired */
    assert_ok(o.result);
    assert_in_range(softmetal_message_count("notifyListener:atValue:block:"), came ? 0 : 1, 1);
    assert_int_equal(softmetal_live("block"), 0);
    close_idle_stage(&s);
    assert_int_equal(probe_registrations(), registrations);
    return came;
}

static void test_a_callback_is_listened_for_though_others_signal_its_value_while_it_is_registered(void **state)
{
    int by_device, n;
    (void)state;
    for (by_device = 0; by_device < 2; by_device++) {
        assert_true(signal_while_it_is_registered(PROBE_CALLBACK_LISTS, 1, by_device > 0));
        for (n = 1; signal_while_it_is_registered(PROBE_TIMELINE, n, by_device > 0); n++) {
        }
        assert_true(n > 1);
    }
}

static void ask_too(void *argument)
{
    outcome *o = (outcome *)argument;
    must(gpusync_on_done(gpusync_at_value(o->timeline, 5), remember, o) == GPUSYNC_OK, "gpusync_on_done");
}

static void ask_for_the_next(void *argument)
{
    outcome *o = (outcome *)argument;
    must(gpusync_on_done(gpusync_at_value(o->timeline, 6), remember, o) == GPUSYNC_OK, "gpusync_on_done");
}

static void signal_the_next(void *argument)
{
    outcome *o = (outcome *)argument;
    raise_behind_its_back(o->timeline, 6);
}

/* ... and the listener is through with it. */
static void signal_the_first(void *argument)
{
    outcome *o = (outcome *)argument;
    raise_behind_its_back(o->timeline, 5);
    must(softmetal_settle_listeners(SECONDS(20)), "softmetal_settle_listeners");
}

/* 5 comes, the listener's block is called, and registers for 6, which a callback is for. Meanwhile 6 comes; or it is
   asked for; or it is while it is asked for that 5 comes. */
enum { NEXT_COMES, NEXT_IS_ASKED_FOR, FIRST_COMES, MEETINGS };

/* At the n-th point. False: after it. No timer fires. */
static bool meet_the_listener(int n, int meeting)
{
    static void (*const acts[MEETINGS])(void *) = {signal_the_next, ask_for_the_next, signal_the_first};
    outcome o[2] = {0};
    bool came, both;
    stage s;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    share_timeline(&s, 0);
    o[1].timeline = s.a;
    on_value(s.a, 5, &o[0]);
    if (meeting == NEXT_COMES) ask_for_the_next(&o[1]);
    probe_at_each(n, acts[meeting], &o[1]);
    if (meeting == FIRST_COMES) ask_for_the_next(&o[1]);
    else signal_the_first(&o[1]);
    came = probe_has_acted();
    both = came && meeting == NEXT_COMES;
    if (!came && meeting != NEXT_COMES) acts[meeting](&o[1]);
    assert_int_equal(calls_of(&o[0]), 1);
    assert_int_equal(calls_of(&o[1]), both);
    assert_int_equal(softmetal_live("block"), !both);
    if (!both) signal_the_next(&o[1]);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    assert_int_equal(calls_of(&o[1]), 1);
    assert_in_range(softmetal_message_count("notifyListener:atValue:block:"), both ? 1 : 2, 2);
    assert_int_equal(softmetal_live("block"), 0);
    close_idle_stage(&s);
    return came;
}

static void test_the_next_value_is_told_of_though_it_comes_or_is_asked_for_meanwhile(void **state)
{
    int meeting, n;
    (void)state;
    for (meeting = 0; meeting < MEETINGS; meeting++) {
        for (n = 1; meet_the_listener(n, meeting); n++) {
        }
        assert_true(n > 1);
    }
}

/* Two threads need the first listener of a device, at whatever point of the other's call: there is one. */
static void test_a_device_has_one_listener(void **state)
{
    int n;
    bool acted = true;
    (void)state;
    for (n = 1; acted; n++) {
        outcome o[2] = {0};
        gpusync_timeline *abroad;
        void *theirs;
        stage s;
        open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
        abroad = timeline_over(s.device, &theirs);
        o[1].timeline = abroad;
        probe_at_each(n, ask_too, &o[1]);
        on_value(abroad, 5, &o[0]);
        acted = probe_has_acted();
        assert_true(acted || n > 1);
        assert_int_equal(softmetal_live("listener"), 1);
        metal_event_signal(theirs, 5);
        assert_true(softmetal_settle_listeners(SECONDS(20)));
        assert_int_equal(calls_of(&o[0]), 1);
        assert_int_equal(calls_of(&o[1]), acted);
        assert_ok(gpusync_timeline_destroy(abroad));
        metal_release(theirs);
        close_stage(&s);
    }
}

/* No listener would tell of the value. */
static void test_without_listeners_a_registration_for_a_foreign_value_is_refused(void **state)
{
    const gpusync_timeline_desc shared = {.signalled_by_others = true};
    gpusync_timeline *abroad, *ours;
    outcome o = {0};
    void *event;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED);
    softmetal_hide_class("MTLSharedEventListener");
    event = metal_shared_event_new(s.rig.metal_device);
    assert_ok(timeline_import(s.device, event, NULL, &abroad));
    assert_result(gpusync_on_done(gpusync_at_value(abroad, 5), remember, &o), GPUSYNC_ERROR_UNSUPPORTED);
    assert_ok(gpusync_timeline_create(s.device, &shared, &ours));
    assert_result(gpusync_on_done(gpusync_at_value(ours, 5), remember, &o), GPUSYNC_ERROR_UNSUPPORTED);
    assert_ok(gpusync_timeline_destroy(ours));
    metal_event_signal(event, 5);
    assert_ok(gpusync_timeline_destroy(abroad));
    assert_int_equal(calls_of(&o), 0);
    metal_release(event);
    close_idle_stage(&s);
}

/* The listener is late, and a call reads the event first: the callback runs all the same, and not in that call. */
static void test_a_foreign_value_that_is_read_first_calls_back_without_the_listener(void **state)
{
    softmetal_timing timing;
    gpusync_timeline *abroad;
    outcome o = {0};
    uint64_t value;
    void *event;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED);
    softmetal_get_timing(&timing);
    timing.event_listener.min_ns = timing.event_listener.max_ns = MS(300);
    softmetal_set_timing(&timing);
    event = metal_shared_event_new(s.rig.metal_device);
    assert_ok(timeline_import(s.device, event, NULL, &abroad));
    metal_release(event);
    on_value(abroad, 5, &o);
    metal_event_signal(event, 5);
    assert_ok(gpusync_timeline_query(abroad, &value));
    assert_int_equal(value, 5);
    await_calls(&o, 1);
    assert_false(ran_here(&o));
    assert_ok(gpusync_timeline_destroy(abroad));
    close_idle_stage(&s);
    assert_int_equal(calls_of(&o), 1);
}

/* ... and a poll that finds, by the event, that a submission is over does not call back either. */
static void test_a_poll_that_ends_a_barrier_leaves_its_callback_to_a_dispatch_queue(void **state)
{
    softmetal_timing timing;
    gpusync_submission submission;
    gpusync_timeline *abroad;
    gpusync_ticket ticket;
    gpusync_point wait;
    uint64_t value;
    outcome whole = {0}, o = {0};
    void *event;
    stage s;
    (void)state;
    NOT_ON_METAL4("submissions have command buffers");
    open_callback_stage(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED);
    softmetal_get_timing(&timing);
    timing.event_listener.min_ns = timing.event_listener.max_ns = MS(300);
    softmetal_set_timing(&timing);
    event = metal_shared_event_new(s.rig.metal_device);
    assert_ok(timeline_import(s.device, event, NULL, &abroad));
    metal_release(event);
    memset(&submission, 0, sizeof submission);
    wait = at(abroad, 5);
    submission.waits = &wait;
    submission.wait_count = 1;
    submission.on_complete = remember;
    submission.user = &whole;
    submission.flags = GPUSYNC_STRICT; /* nothing goes to the device */
    ticket = submit_well(s.q[0], &submission);
    on_done(s.q[0], ticket, &o);
    metal_event_signal(event, 5);
    assert_ok(gpusync_timeline_query(abroad, &value)); /* looks at the event */
    assert_ok(gpusync_poll(s.q[0], ticket));
    await_calls(&o, 1);
    assert_int_equal(calls_of(&whole), 1);
    assert_true(whole.order < o.order);
    assert_false(ran_here(&whole) || ran_here(&o));
    assert_ok(gpusync_timeline_destroy(abroad));
    close_idle_stage(&s);
}

static void test_a_timeline_that_fails_or_goes_calls_back_with_that(void **state)
{
    gpusync_error reason;
    gpusync_point signal;
    gpusync_timeline *gone;
    outcome failed = {0}, late_one = {0}, below = {0}, destroyed[2] = {0}, pending = {0};
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_CANCELLED;
    reason.ticket = 77; /* of work that the program knows */
    strcpy(reason.message, "no longer wanted");
    assert_ok(gpusync_timeline_signal(s.t[0], 3));
    on_value(s.t[0], 4, &failed);
    assert_ok(gpusync_timeline_fail(s.t[0], &reason));
    assert_int_equal(calls_of(&failed), 1);
    assert_false(ran_here(&failed));
    assert_result(failed.result, GPUSYNC_ERROR_CANCELLED);
    assert_string_equal(failed.error.message, "no longer wanted");
    assert_int_equal(failed.error.ticket, 77);
    on_value(s.t[0], 9, &late_one);
    on_value(s.t[0], 3, &below); /* every question gets the first failure */
    assert_int_equal(calls_of(&late_one) + calls_of(&below), 2);
    assert_result(late_one.result, GPUSYNC_ERROR_CANCELLED);
    assert_result(below.result, GPUSYNC_ERROR_CANCELLED);

    assert_ok(gpusync_timeline_create(s.device, NULL, &gone));
    signal = at(gone, 2);
    submit_between(s.q[0], NULL, buffer_of(s.q[0]), &signal);
    on_value(gone, 7, &destroyed[0]);
    on_value(gone, 7, &destroyed[1]);
    on_value(gone, 2, &pending);
    assert_ok(gpusync_timeline_destroy(gone));
    assert_int_equal(calls_so_far(&pending), 1); /* by now, wherever it was */
    assert_int_equal(calls_so_far(&destroyed[1]), 1);
    assert_in_order(destroyed, 2);
    assert_result(destroyed[0].result, GPUSYNC_ERROR_DESTROYED);
    assert_result(destroyed[1].result, GPUSYNC_ERROR_DESTROYED);
    assert_result(pending.result, GPUSYNC_ERROR_DESTROYED);
    settle(&s);
    close_idle_stage(&s);
    assert_int_equal(calls_of(&pending), 1);
}

/* Destroy looks at the status when it has looked for callbacks. */
static void *report_and_finish(void *argument)
{
    stage *s = (stage *)argument;
    uint64_t looks;
    char text[2048] = "";
    while (!strstr(text, "is being destroyed")) must(gpusync_report(s->device, text, sizeof text) > 0, "gpusync_report");
    must(strstr(text, "is being destroyed, committed 2, completed 1\n") != NULL, text);
    looks = softmetal_message_count("status");
    while (softmetal_message_count("status") < looks + 2) sched_yield();
    finish(s, 0);
    return NULL;
}

/* A destroy that waits for its work runs no callback of another queue: nothing has called gpusync_dispatch. */
static void test_a_destroy_that_waits_runs_no_callback_of_another_queue(void **state)
{
    outcome other = {0}, own = {0};
    gpusync_ticket ticket;
    pthread_t thread;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to look at");
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL);
    ticket = commit_on(&s, 1);
    on_done(s.q[1], ticket, &other);
    finish(&s, 1);
    (void)commit_on(&s, 0);
    finish(&s, 0);
    ticket = commit_on(&s, 0);
    on_done(s.q[0], ticket, &own);
    thread = start(report_and_finish, &s);
    assert_ok(gpusync_queue_destroy(s.q[0]));
    s.q[0] = NULL;
    join(thread);
    assert_int_equal(calls_so_far(&own), 1);
    assert_int_equal(calls_so_far(&other), 0);
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
    assert_int_equal(calls_so_far(&other), 1);
    close_idle_stage(&s);
}

/* == by hand ===================================================================================================== */

static void test_by_hand_nothing_runs_until_dispatch(void **state)
{
    outcome o[6] = {0};
    gpusync_ticket ticket;
    size_t count = 99;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL);
    assert_ok(gpusync_dispatch(s.device, 10, &count));
    assert_int_equal(count, 0);
    ticket = commit_to(s.q[0], buffer_of(s.q[0]));
    on_done(s.q[0], ticket, &o[0]);
    on_done(s.q[0], ticket, &o[1]);
    assert_ok(gpusync_dispatch(s.device, 10, &count));
    assert_int_equal(count, 0);
    assert_int_equal(notified.count, 0);
    softmetal_finish_queue(s.metal[0]);
    assert_true(notified.count > 0);
    assert_false(pthread_equal(notified.thread, pthread_self()));
    on_done(s.q[0], ticket, &o[2]); /* over, but left to dispatch too */
    assert_true(pthread_equal(notified.thread, pthread_self()));
    on_value(s.t[0], 1, &o[3]);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    on_done(s.q[0], submit_held(&s, s.q[0]), &o[4]); /* reached: commits at once */
    softmetal_finish_queue(s.metal[0]);
    on_value(s.t[0], 2, &o[5]);
    assert_ok(gpusync_timeline_fail(s.t[0], NULL));
    assert_int_equal(calls_of(&o[0]) + calls_of(&o[2]) + calls_of(&o[3]) + calls_of(&o[4]) + calls_of(&o[5]), 0);
    assert_ok(gpusync_dispatch(s.device, 0, &count));
    assert_int_equal(count, 0);
    assert_ok(gpusync_dispatch(s.device, 2, &count));
    assert_int_equal(count, 2);
    assert_in_order(o, 2);
    assert_int_equal(calls_of(&o[2]), 0);
    assert_ok(gpusync_dispatch(s.device, 1, NULL));
    assert_in_order(o, 3);
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, &count));
    assert_int_equal(count, 3);
    assert_in_order(o, 6);
    assert_true(ran_here(&o[0]) && ran_here(&o[3]) && ran_here(&o[5]));
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, &count));
    assert_int_equal(count, 0);
    close_idle_stage(&s);
    assert_in_order(o, 6);
}

/* There is a call of notify after whatever was pushed last: a dispatch after each call misses nothing. */
static void test_every_callback_is_announced(void **state)
{
    outcome o[3] = {0};
    long before;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL);
    on_done(s.q[0], GPUSYNC_NO_TICKET, &o[0]);
    assert_true(notified.count >= 1);
    before = notified.count;
    on_done(s.q[0], GPUSYNC_NO_TICKET, &o[1]);
    assert_true(notified.count > before || calls_of(&o[0]) == 0); /* not dispatched since: one call may stand for both */
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
    before = notified.count;
    on_done(s.q[0], GPUSYNC_NO_TICKET, &o[2]);
    assert_true(notified.count > before); /* nothing was due: this one must be told */
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
    assert_in_order(o, 3);
    close_idle_stage(&s);
}

/* A program that runs one for each call of notify runs them all. */
static void test_a_dispatch_that_leaves_some_announces_them_again(void **state)
{
    outcome o[3] = {0};
    long heard = 0;
    size_t i;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL);
    for (i = 0; i < 3; i++) on_value(s.t[0], 1, &o[i]);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    while (GET(&notified.count) > heard) {
        heard = GET(&notified.count);
        assert_ok(gpusync_dispatch(s.device, 1, NULL));
    }
    assert_in_order(o, 3);
    close_idle_stage(&s);
}

static void test_without_a_notify_hook_dispatch_still_finds_what_is_due(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    outcome o = {0};
    size_t count;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    on_done(r.queue, commit_empty(&r, NULL), &o);
    softmetal_finish_queue(r.metal_queue);
    assert_ok(gpusync_dispatch(r.device, 1, &count));
    assert_int_equal(count, 1);
    assert_int_equal(calls_of(&o), 1);
    rig_close(&r);
}

static void test_dispatch_has_nothing_to_do_where_callbacks_are_queued(void **state)
{
    outcome o = {0};
    void *buffer;
    gpusync_ticket ticket;
    size_t count = 99;
    stage s;
    (void)state;
    NOT_ON_METAL4("no status to read");
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    ticket = commit_to(s.q[0], buffer = buffer_of(s.q[0]));
    on_done(s.q[0], ticket, &o);
    softmetal_set_dispatch_threads(0);
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(s.q[0], ticket)); /* due, on the dispatch queue */
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, &count));
    assert_int_equal(count, 0);
    assert_int_equal(calls_so_far(&o), 0);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    settle(&s);
    assert_int_equal(calls_of(&o), 1);
    close_idle_stage(&s);
}

/* A program that stops dispatching: what goes calls back, the rest stays due. */
static void test_destroy_runs_what_is_left_of_what_it_destroys(void **state)
{
    outcome first[3] = {0}, other[3] = {0}, values[2] = {0};
    gpusync_ticket ticket, theirs;
    stage s;
    int i;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL);
    ticket = commit_to(s.q[0], buffer_of(s.q[0]));
    theirs = commit_to(s.q[1], buffer_of(s.q[1]));
    for (i = 0; i < 2; i++) {
        on_done(s.q[1], theirs, &other[i]);
        on_done(s.q[0], ticket, &first[i]);
        on_value(s.t[0], 1, &values[i]);
    }
    settle(&s);
    assert_in_order(first, 2);
    assert_in_order(other, 2);
    memset(first, 0, sizeof first);
    memset(other, 0, sizeof other);
    for (i = 0; i < 2; i++) {
        on_done(s.q[1], theirs, &other[i]);
        on_done(s.q[0], ticket, &first[i]);
    }
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    on_done(s.q[1], submit_between(s.q[1], NULL, buffer_of(s.q[1]), NULL), &other[2]);
    on_done(s.q[0], commit_to(s.q[0], buffer_of(s.q[0])), &first[2]);
    end_destroy_now(&s, NULL, 0);
    assert_in_order(other, 3);
    assert_result(other[1].result, GPUSYNC_OK);
    assert_result(other[2].result, GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(calls_of(&first[0]) + calls_of(&first[1]) + calls_of(&values[0]) + calls_of(&values[1]), 0);
    end_destroy_timeline(&s, NULL, 0);
    assert_in_order(values, 2);
    assert_result(values[0].result, GPUSYNC_OK);
    assert_int_equal(calls_of(&first[0]), 0);
    softmetal_finish_queue(s.metal[0]);
    close_idle_stage(&s);
    assert_in_order(first, 3);
    assert_result(first[2].result, GPUSYNC_OK); /* destroy has waited for it */
}

static void signal_once(outcome *o) { answer(o, gpusync_timeline_signal(o->timeline, 1)); }

/* Work on the device waits for what the callback of work in front of it signals. */
static void test_destroy_runs_a_callback_that_the_work_it_waits_for_waits_for(void **state)
{
    outcome first = {0}, last = {0};
    gpusync_point wait;
    void *buffer;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_MANUAL);
    share_timeline(&s, 0); /* its wait goes to the device */
    first.then = signal_once;
    first.timeline = s.t[0];
    buffer = buffer_of(s.q[0]);
    softmetal_set_duration(buffer, MS(1));
    on_done(s.q[0], commit_to(s.q[0], buffer), &first);
    wait = at(s.t[0], 1);
    on_done(s.q[0], submit_between(s.q[0], &wait, buffer_of(s.q[0]), NULL), &last);
    assert_ok(gpusync_queue_destroy(s.q[0]));
    s.q[0] = NULL;
    assert_int_equal(calls_of(&first), 1);
    assert_ok(first.answers[0]);
    assert_int_equal(calls_of(&last), 1);
    assert_result(last.result, GPUSYNC_OK); /* no watchdog had to end it */
    close_idle_stage(&s);
}

/* Several threads share the work: each callback once, counts that add up. */
enum { SHARERS = 4 };

typedef struct sharer {
    gpusync_device *device;
    long *total;
    long goal;
    pthread_t thread;
} sharer;

static void *share(void *argument)
{
    sharer *self = (sharer *)argument;
    size_t count, max = 1;
    while (GET(self->total) < self->goal) {
        must(gpusync_dispatch(self->device, max, &count) == GPUSYNC_OK, "dispatch");
        must(count <= max, "no more than allowed");
        __atomic_fetch_add(self->total, (long)count, __ATOMIC_SEQ_CST);
        max = max % 7 + 1;
        if (!count) sched_yield();
    }
    return NULL;
}

static void test_threads_that_dispatch_share_the_work(void **state)
{
    enum { CALLS = 600 };
    static outcome o[CALLS];
    sharer sharers[SHARERS];
    long total = 0;
    stage s;
    int i;
    (void)state;
    memset(o, 0, sizeof o);
    open_callback_stage(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_MANUAL);
    for (i = 0; i < SHARERS; i++) {
        sharers[i].device = s.device;
        sharers[i].total = &total;
        sharers[i].goal = CALLS;
        sharers[i].thread = start(share, &sharers[i]);
    }
    for (i = 0; i < CALLS; i += 3) {
        gpusync_ticket ticket = commit_to(s.q[0], buffer_of(s.q[0]));
        on_done(s.q[0], ticket, &o[i]);
        on_value(s.t[0], (uint64_t)i + 1, &o[i + 1]);
        on_done(s.q[0], ticket, &o[i + 2]);
        assert_ok(gpusync_timeline_signal(s.t[0], (uint64_t)i + 1));
    }
    for (i = 0; i < SHARERS; i++) join(sharers[i].thread);
    assert_int_equal(total, CALLS);
    for (i = 0; i < CALLS; i++) assert_int_equal(calls_of(&o[i]), 1);
    for (i = 0; i < CALLS; i += 3) assert_true(o[i].order < o[i + 2].order);
    close_idle_stage(&s);
}

/* == failures =================================================================================================== */

static void test_every_call_refuses_what_makes_no_sense(void **state)
{
    outcome o = {0};
    gpusync_ticket ticket;
    size_t count = 99;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL);
    ticket = commit_to(s.q[0], buffer_of(s.q[0]));
    assert_result(gpusync_on_done(gpusync_at_ticket(NULL, ticket), remember, &o), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_on_done(gpusync_at_ticket(s.q[0], ticket), NULL, &o), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_on_done(gpusync_at_ticket(s.q[0], ticket + 1), remember, &o),
                  GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_on_done(gpusync_at_ticket(s.q[0], GPUSYNC_EVERYTHING), remember, &o),
                  GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_on_done(gpusync_at_ticket(s.q[0], (gpusync_ticket)1 << 63), remember, &o),
                  GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_on_done(gpusync_at_ticket(s.q[0], ((gpusync_ticket)1 << 63) + 1), remember, &o),
                  GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_on_done(gpusync_at_value(NULL, 1), remember, &o), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_on_done(gpusync_at_value(s.t[0], 1), NULL, &o), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_on_done(gpusync_at_value(s.t[0], GPUSYNC_MAX_VALUE + 1), remember, &o),
                  GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_dispatch(NULL, 1, &count), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(count, 0);
    settle(&s);
    close_idle_stage(&s);
    assert_int_equal(calls_of(&o), 0);
}

static void test_a_mode_that_does_not_exist_is_refused(void **state)
{
    gpusync_device_desc desc;
    gpusync_device *device;
    (void)state;
    softmetal_reset();
    memset(&desc, 0, sizeof desc);
    desc.callback_mode = (gpusync_callback_mode)2;
    assert_result(gpusync_device_create(&desc, &device), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(device);
}

/* Every place where memory is taken: the call fails, fn is never called, and all goes on. */
static void test_without_memory_a_registration_is_refused_and_never_called(void **state)
{
    enum { MOST = 2000 };
    static outcome o[MOST];
    outcome refused = {0};
    gpusync_ticket ticket;
    void *object;
    int i, n;
    bool by_value = false;
    (void)state;
    for (;; by_value = true) {
        gpusync_result result = GPUSYNC_OK;
        stage s;
        memset(o, 0, sizeof o);
        open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
        ticket = commit_to(s.q[0], buffer_of(s.q[0]));
        object = metal_buffer_new(s.rig.metal_device, 16);
        s.rig.memory.fail_at = 1;
        s.rig.memory.fail_after = true;
        for (n = 0; n < MOST; n++) {
            outcome *next = &o[n];
            if (by_value)
                result = gpusync_on_done(gpusync_at_value(s.t[0], 1), remember, next);
            else
                result = gpusync_on_done(gpusync_at_ticket(s.q[0], ticket), remember, next);
            if (result) break;
        }
        assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_result(gpusync_on_done(gpusync_at_ticket(s.q[0], ticket), remember, &refused),
                      GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_result(gpusync_on_done(gpusync_at_ticket(s.q[0], GPUSYNC_NO_TICKET), remember, &refused),
                      GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_result(gpusync_on_done(gpusync_at_value(s.t[0], 0), remember, &refused), GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object), GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_int_equal(softmetal_retain_count(object), 1);
        s.rig.memory.fail_at = 0;
        s.rig.memory.fail_after = false;
        metal_release(object);
        on_done(s.q[0], ticket, &o[n]);
        softmetal_finish_queue(s.metal[0]);
        assert_ok(gpusync_timeline_signal(s.t[0], 1));
        for (i = 0; i <= n; i++) assert_int_equal(calls_of(&o[i]), 1);
        close_idle_stage(&s);
        assert_int_equal(calls_of(&refused), 0);
        if (by_value) break;
    }
}

static struct {
    gate entered, leave;
    bool stays; /* the next one */
} in_allocator;

static void *stay_in_allocator(void *user, size_t size, size_t alignment)
{
    void *memory;
    (void)user;
    if (__atomic_exchange_n(&in_allocator.stays, false, __ATOMIC_SEQ_CST)) {
        gate_wait(&in_allocator.entered);
        gate_wait(&in_allocator.leave);
    }
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

static void plain_release(void *user, void *memory, size_t size)
{
    (void)user;
    (void)size;
    free(memory);
}

enum { ENOUGH = 100 }; /* registrations, to need memory */

static void *register_often(void *o)
{
    int i;
    for (i = 0; i < ENOUGH; i++) on_value(((outcome *)o)->timeline, 1, (outcome *)o);
    return NULL;
}

/* The allocator of a program may take a mutex. A thread that has it may ask all the same: another thread, which registers
   and is in the allocator, keeps it from nothing. */
static void test_a_question_does_not_wait_for_a_registration_that_takes_memory(void **state)
{
    gpusync_allocator allocator = {stay_in_allocator, plain_release, NULL};
    gpusync_device_desc desc;
    gpusync_device *device;
    gpusync_timeline *timeline;
    gpusync_queue *queue;
    gpusync_ticket held;
    outcome o = {0};
    pthread_t thread;
    char *report;
    (void)state;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    memset(&desc, 0, sizeof desc);
    desc.allocator = &allocator;
    gate_init(&in_allocator.entered, 2);
    gate_init(&in_allocator.leave, 2);
    assert_ok(gpusync_device_create(&desc, &device));
    queue = queue_new(device);
    o.timeline = timeline = timeline_new(device);
    held = hold_on(queue, timeline, 1, NULL);
    PUT(&in_allocator.stays, true);
    thread = start(register_often, &o);
    gate_wait(&in_allocator.entered);
    must_return_within(20);
    assert_result(gpusync_poll(queue, held), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(queue, held, 0), GPUSYNC_TIMEOUT);
    assert_false(gpusync_is_done(queue, held));
    assert_int_equal(value_of(timeline), 0);
    assert_result(gpusync_timeline_wait(timeline, 1, 0, NULL), GPUSYNC_TIMEOUT);
    report = report_of(device);
    has_returned();
    assert_non_null(strstr(report, "held for "));
    free(report);
    gate_wait(&in_allocator.leave);
    join(thread);
    assert_ok(gpusync_timeline_signal(timeline, 1));
    finish_queue(queue);
    assert_ok(gpusync_wait(queue, held, 0));
    await_calls(&o, ENOUGH);
    assert_ok(gpusync_queue_destroy(queue));
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_device_destroy(device));
    drop_recordings();
    gate_destroy(&in_allocator.entered);
    gate_destroy(&in_allocator.leave);
}

/* Two callbacks of a ticket, which is returned, and one of a submission. */
static gpusync_ticket have_three_callbacks(stage *s, outcome *o)
{
    gpusync_submission submission;
    void *buffer = buffer_of(s->q[0]);
    gpusync_ticket ticket = commit_to(s->q[0], buffer_of(s->q[0]));
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.on_complete = remember;
    submission.user = o;
    on_done(s->q[0], ticket, o);
    on_done(s->q[0], ticket, o);
    submit_well(s->q[0], &submission);
    return ticket;
}

static void test_the_steady_state_takes_no_memory(void **state)
{
    outcome o = {0};
    void *object;
    long calls = 0;
    int i, manual;
    (void)state;
    for (manual = 0; manual < 2; manual++) {
        stage s;
        open_callback_stage(&s, SOFTMETAL_MANUAL, manual ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED);
        object = metal_buffer_new(s.rig.metal_device, 16);
        for (i = 0; i < 300; i++) {
            gpusync_ticket ticket = have_three_callbacks(&s, &o);
            if (i == 0) have_three_callbacks(&s, &o); /* later some of the round before may not be free yet */
            assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
            on_value(s.t[0], (uint64_t)i + 1, &o);
            assert_ok(gpusync_timeline_signal(s.t[0], (uint64_t)i + 1));
            on_done(s.q[0], ticket, &o);
            settle(&s);
            on_done(s.q[0], ticket, &o);
            assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
            await_calls(&o, manual * 1803 + (i + 1) * 6 + 3);
            if (i == 0) calls = s.rig.memory.calls;
        }
        assert_int_equal(s.rig.memory.calls, calls);
        assert_int_equal(softmetal_retain_count(object), 1);
        metal_release(object);
        close_idle_stage(&s);
    }
    assert_int_equal(calls_of(&o), 2 * (300 * 6 + 3));
}

static void burst_of_callbacks(stage *s, outcome *o, int count)
{
    gpusync_ticket ticket = commit_to(s->q[0], buffer_of(s->q[0]));
    long before = calls_of(o);
    int i;
    for (i = 0; i < count; i++) on_done(s->q[0], ticket, o);
    settle(s);
    assert_ok(gpusync_dispatch(s->device, SIZE_MAX, NULL));
    await_calls(o, before + count);
}

/* 256 are kept for the next calls. No clock and no sweep has a part in it. */
static void test_what_a_burst_needed_goes_back_at_once_and_256_stay(void **state)
{
    enum { KEPT = 256, BURST = 2000 };
    outcome o = {0};
    stage s;
    long before, live, calls;
    int manual;
    (void)state;
    for (manual = 0; manual < 2; manual++) {
        open_callback_stage(&s, SOFTMETAL_MANUAL, manual ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED);
        burst_of_callbacks(&s, &o, 1); /* with what else a first one needs */
        before = GET(&s.rig.memory.live);
        burst_of_callbacks(&s, &o, BURST);
        burst_of_callbacks(&s, &o, 1); /* the last of those before is free now */
        live = GET(&s.rig.memory.live);
        assert_int_equal(live - before, KEPT - 1);
        calls = GET(&s.rig.memory.calls);
        burst_of_callbacks(&s, &o, KEPT);
        assert_int_equal(GET(&s.rig.memory.calls), calls);
        assert_int_equal(GET(&s.rig.memory.live), live);
        close_idle_stage(&s);
    }
}

/* By hand too. Not what is in flight. */
static void run_what_is_due(stage *s)
{
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_ok(gpusync_dispatch(s->device, SIZE_MAX, NULL));
}

/* The device is removed with work in flight, held, and a value that no thread will signal. */
static void lose_with_callbacks(gpusync_callback_mode mode)
{
    static outcome many[150];
    outcome flying = {0}, held = {0}, over = {0}, after = {0}, value = {0}, stuck = {0}, whole = {0}, goes = {0};
    outcome signalled = {0}, late_one = {0}, late_value = {0}, last = {0};
    gpusync_ticket done, ticket, theirs, submitted;
    void *buffer, *going;
    size_t i;
    stage s;
    memset(many, 0, sizeof many);
    open_callback_stage(&s, SOFTMETAL_MANUAL, mode);
    done = commit_to(s.q[0], buffer_of(s.q[0]));
    settle(&s);
    buffer = buffer_of(s.q[0]);
    fail_with_the_device(buffer);
    ticket = commit_to(s.q[0], buffer);
    on_done(s.q[1], commit_to(s.q[1], going = buffer_of(s.q[1])), &goes);
    theirs = commit_to(s.q[1], buffer_of(s.q[1])); /* hangs: never stepped */
    submitted = SUBMIT(s.q[1], BUFFERS(buffer_of(s.q[1])), TELL(&whole));
    on_done(s.q[0], ticket, &flying);
    on_done(s.q[1], theirs, &stuck);
    on_done(s.q[1], submit_held(&s, s.q[1]), &held);
    on_value(s.t[0], 5, &value);
    on_value(s.t[1], 1, &signalled);
    for (i = 0; i < LENGTH(many); i++) on_done(s.q[1], i % 2 ? submitted : theirs, &many[i]);
    softmetal_finish(buffer);
    run_what_is_due(&s);
    assert_true(gpusync_device_is_lost(s.device));
    assert_ended(&flying, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(flying.error.failure, GPUSYNC_FAILURE_DEVICE_REMOVED);
    assert_ended(&held, GPUSYNC_ERROR_DEVICE_LOST); /* it will never run */
    on_done(s.q[0], ticket, &after); /* what is known can still be asked for */
    on_done(s.q[0], done, &over);
    run_what_is_due(&s);
    assert_ended(&after, GPUSYNC_ERROR_EXECUTION);
    assert_ended(&over, GPUSYNC_OK);
    softmetal_finish(going); /* what ends in time ended as Metal says */
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    run_what_is_due(&s);
    assert_ended(&goes, GPUSYNC_OK);
    assert_ended(&signalled, GPUSYNC_OK);
    assert_int_equal(calls_of(&stuck) + calls_of(&whole) + calls_of(&value), 0); /* these may still, */
    for (i = 0; i < LENGTH(many); i++) assert_int_equal(calls_of(&many[i]), 0);
    probe_give_up_lost(s.device); /* ... and here they may not any more: not when the queue goes */
    run_what_is_due(&s);
    assert_ended(&stuck, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ended(&whole, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ended(&value, GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(stuck.error.ticket, theirs);
    assert_int_equal(whole.error.ticket, submitted);
    for (i = 0; i < LENGTH(many); i++) {
        assert_ended(&many[i], GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(many[i].error.ticket, i % 2 ? submitted : theirs);
        if (i > 1) assert_true(many[i - 2].order < many[i].order);
    }
    on_done(s.q[1], theirs, &late_one);
    on_value(s.t[0], 6, &late_value);
    run_what_is_due(&s);
    assert_ended(&late_one, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ended(&late_value, GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(late_one.error.ticket, theirs);
    softmetal_finish_queue(s.metal[1]); /* the GPU was at it all the time; nobody hears of it */
    on_done(s.q[1], theirs, &last);
    run_what_is_due(&s);
    assert_ended(&last, GPUSYNC_ERROR_DEVICE_LOST);
    end_destroy_now(&s, NULL, 0);
    end_destroy_timeline(&s, NULL, 0);
    close_idle_stage(&s);
    assert_int_equal(calls_of(&stuck) + calls_of(&whole) + calls_of(&value) + calls_of(&goes), 4);
    for (i = 0; i < LENGTH(many); i++) assert_int_equal(calls_of(&many[i]), 1);
}

static void test_the_loss_of_the_device_calls_back(void **state)
{
    (void)state;
    lose_with_callbacks(GPUSYNC_CALLBACKS_QUEUED);
}

static void test_the_loss_of_the_device_calls_back_by_hand(void **state)
{
    (void)state;
    lose_with_callbacks(GPUSYNC_CALLBACKS_MANUAL);
}

/* == destroy, while all is going on ============================================================================= */

/* Handlers, dispatchers and callbacks that register are at work while a queue and a timeline go: what was registered
   calls back, once. */
enum { TURNS = 60, FLIGHT = 12 };

typedef struct tally {
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    uint64_t value;
    long accepted, called; /* of the queue */
    long hoped, told;      /* of the timeline */
} tally;

/* Now and then register once more: refused while the queue goes, and then never called. */
static void count_call(void *user, gpusync_result result, const gpusync_error *error)
{
    tally *t = (tally *)user;
    long called = COUNT(&t->called);
    must((result == GPUSYNC_OK) == (error == NULL), "an error, or none");
    if (called % 3 == 0 && gpusync_on_done(gpusync_at_ticket(t->queue, GPUSYNC_NO_TICKET), count_call, t) == GPUSYNC_OK)
        COUNT(&t->accepted);
}

static void count_value(void *user, gpusync_result result, const gpusync_error *error)
{
    tally *t = (tally *)user;
    long told = COUNT(&t->told);
    must((result == GPUSYNC_OK) == (error == NULL), "an error, or none");
    if (told % 3 == 0 && gpusync_on_done(gpusync_at_value(t->timeline, 1000), count_value, t) == GPUSYNC_OK)
        COUNT(&t->hoped);
}

static void *launch_flight(void *argument)
{
    tally *t = (tally *)argument;
    int i;
    for (i = 0; i < FLIGHT; i++) {
        gpusync_point signal = at(t->timeline, __atomic_add_fetch(&t->value, 1, __ATOMIC_SEQ_CST));
        gpusync_submission submission;
        gpusync_ticket ticket;
        void *buffer;
        memset(&submission, 0, sizeof submission);
        must(either_buffer(t->queue, NULL, &buffer) == GPUSYNC_OK, "command_buffer");
        softmetal_set_duration(buffer, (uint64_t)(i % 4) * 20000);
        if (i % 5 == 4) softmetal_fail(buffer, NULL, 3, NULL);
        submission.command_buffers = &buffer;
        submission.command_buffer_count = 1;
        submission.signals = &signal;
        submission.signal_count = 1;
        submission.on_complete = count_call;
        submission.user = t;
        /* where the timeline has failed, or is beyond the value: without it */
        if (i % 2 && either_submit(t->queue, &submission, &ticket) == GPUSYNC_OK) COUNT(&t->accepted);
        else must(either_commit(t->queue, buffer, &ticket) == GPUSYNC_OK, "commit");
        COUNT(&t->accepted);
        must(gpusync_on_done(gpusync_at_ticket(t->queue, ticket), count_call, t) == GPUSYNC_OK, "on_done");
        COUNT(&t->accepted);
        must(gpusync_on_done(gpusync_at_ticket(t->queue, ticket), count_call, t) == GPUSYNC_OK, "on_done");
        COUNT(&t->hoped);
        must(gpusync_on_done(gpusync_at_value(t->timeline, signal.value), count_value, t) == GPUSYNC_OK, "on_done");
        if (i % 4 == 0) must(gpusync_poll(t->queue, ticket) != GPUSYNC_ERROR_INVALID_TICKET, "poll");
    }
    return NULL;
}

typedef struct dispatcher {
    gpusync_device *device;
    int stop;
} dispatcher;

static void *keep_dispatching(void *argument)
{
    dispatcher *d = (dispatcher *)argument;
    while (!GET(&d->stop)) {
        must(gpusync_dispatch(d->device, 3, NULL) == GPUSYNC_OK, "dispatch");
        sched_yield();
    }
    return NULL;
}

/* Metal 4: what a queue needs for signals that had not come when it went stays for good. */
static void let_go_of_what_stays(void *metal, void *event)
{
    assert_true(softmetal_settle(SECONDS(20)));
    drop_recordings();
    if (softmetal_retain_count(metal) > 1) drop_queue_that_stays(metal);
    while (softmetal_retain_count(event) > 1) metal_release(event);
}

static void destroy_in_flight(gpusync_callback_mode mode)
{
    const char *stress = getenv("STRESS");
    int turn, turns = stress && strcmp(stress, "full") == 0 ? TURNS * 20 : TURNS;
    pthread_t dispatching = pthread_self();
    dispatcher d;
    stage s;
    open_callback_stage(&s, SOFTMETAL_REAL, mode);
    d.device = s.device;
    d.stop = 0;
    if (mode == GPUSYNC_CALLBACKS_MANUAL) dispatching = start(keep_dispatching, &d);
    for (turn = 0; turn < turns; turn++) {
        pthread_t threads[2];
        void *metal, *event;
        tally t;
        memset(&t, 0, sizeof t);
        t.queue = queue_new(s.device);
        assert_ok(gpusync_timeline_create(s.device, NULL, &t.timeline));
        metal = metal_retain(gpusync_queue_metal(t.queue));
        event = metal_retain(gpusync_timeline_metal(t.timeline, NULL));
        threads[0] = start(launch_flight, &t);
        threads[1] = start(launch_flight, &t);
        join(threads[0]);
        join(threads[1]);
        if (turn % 4 < 2) assert_ok(gpusync_timeline_destroy(t.timeline));
        assert_ok(turn % 2 ? gpusync_queue_destroy(t.queue) : gpusync_queue_destroy_now(t.queue));
        if (turn % 4 >= 2) assert_ok(gpusync_timeline_destroy(t.timeline));
        if (metal4_run()) let_go_of_what_stays(metal, event);
        metal_release(metal);
        metal_release(event);
        assert_int_equal(GET(&t.called), GET(&t.accepted));
        assert_int_equal(GET(&t.told), GET(&t.hoped));
    }
    PUT(&d.stop, 1);
    if (mode == GPUSYNC_CALLBACKS_MANUAL) join(dispatching);
    assert_true(softmetal_settle(SECONDS(20)));
    close_idle_stage(&s);
}

static void test_no_callback_is_lost_or_run_twice_when_its_queue_goes(void **state)
{
    (void)state;
    destroy_in_flight(GPUSYNC_CALLBACKS_QUEUED);
    destroy_in_flight(GPUSYNC_CALLBACKS_MANUAL);
}

static void *destroy_body(void *argument)
{
    stage *s = (stage *)argument;
    must(gpusync_queue_destroy_now(s->q[1]) == GPUSYNC_OK, "destroy");
    return NULL;
}

/* The handler is in the middle of a callback: destroy waits for it, and runs the rest after. */
static void test_destroy_lets_a_callback_finish(void **state)
{
    outcome o[3] = {0};
    gpusync_ticket ticket;
    pthread_t thread;
    void *buffer;
    gate g;
    stage s;
    int i;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    gate_init(&g, 2);
    o[0].then = stay;
    o[0].gate = &g;
    ticket = commit_to(s.q[1], buffer = buffer_of(s.q[1]));
    for (i = 0; i < 3; i++) on_done(s.q[1], ticket, &o[i]);
    softmetal_complete(buffer);
    metal_retain(buffer);
    softmetal_begin_handler(buffer, 0);
    gate_wait(&g);
    thread = start(destroy_body, &s);
    /* which the callback in progress keeps from being destroyed */
    while (gpusync_cancel_held(s.q[1]) != GPUSYNC_ERROR_DESTROYED) sched_yield();
    assert_int_equal(calls_so_far(&o[0]) + calls_so_far(&o[1]), 0);
    gate_wait(&g);
    join(thread);
    s.q[1] = NULL;
    assert_in_order(o, 3);
    softmetal_join_handler(buffer, 0);
    softmetal_release_block(buffer, 0);
    metal_release(buffer);
    gate_destroy(&g);
    close_idle_stage(&s);
}

static void *destroy_timeline_body(void *timeline)
{
    must(gpusync_timeline_destroy((gpusync_timeline *)timeline) == GPUSYNC_OK, "destroy");
    return NULL;
}

/* The destroy of a timeline waits for a callback that runs. Meanwhile every call says so, and changes nothing. */
static void test_calls_during_the_destroy_of_a_timeline_say_destroyed(void **state)
{
    outcome o[2] = {{0}, {0}};
    gpusync_point point;
    gpusync_ticket ticket;
    size_t which;
    pthread_t thread;
    void *buffer;
    gate g;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    buffer = buffer_of(s.q[0]);
    gate_init(&g, 2);
    o[0].then = stay;
    o[0].gate = &g;
    on_value(s.a, 1, &o[0]);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    gate_wait(&g);
    thread = start(destroy_timeline_body, s.a);
    while (gpusync_timeline_wait(s.a, 2, 0, NULL) != GPUSYNC_ERROR_DESTROYED) sched_yield();
    point = at(s.a, 2);
    assert_result(gpusync_timeline_signal(s.a, 2), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_timeline_fail(s.a, NULL), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_timeline_wait(s.a, 2, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which),
                  GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_on_done(point, remember, &o[1]), GPUSYNC_ERROR_DESTROYED);
    REFUSED(GPUSYNC_ERROR_DESTROYED, s.q[0], BUFFERS(buffer), WAITS(point));
    REFUSED(GPUSYNC_ERROR_DESTROYED, s.q[0], BUFFERS(buffer), WAITS(at(s.b, 1)), SIGNALS(at(s.c, 1), point));
    if (!metal4_run()) {
        assert_result(gpusync_encode_wait(s.q[0], buffer, point), GPUSYNC_ERROR_DESTROYED);
        assert_result(gpusync_encode_signal(s.q[0], buffer, point), GPUSYNC_ERROR_DESTROYED);
    }
    assert_int_equal(calls_so_far(&o[0]), 0);
    gate_wait(&g);
    join(thread);
    s.a = NULL;
    assert_int_equal(calls_of(&o[0]), 1);
    assert_int_equal(calls_of(&o[1]), 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.c, 1))); /* it waits for nothing, and 1 is free */
    finish_stage(&s);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    gate_destroy(&g);
    close_idle_stage(&s);
}

/* Threads register with tickets and values, old and new, of two queues, while work ends well and badly. */
typedef struct hammer {
    stage *s;
    unsigned id, rounds;
    long accepted, called;
    uint64_t *value;
    pthread_t thread;
} hammer;

static void count_hammer(void *user, gpusync_result result, const gpusync_error *error)
{
    hammer *h = (hammer *)user;
    must((result == GPUSYNC_OK) == (error == NULL), "an error, or none");
    COUNT(&h->called);
}

static void *hammer_body(void *argument)
{
    hammer *h = (hammer *)argument;
    unsigned i;
    for (i = 0; i < h->rounds; i++) {
        gpusync_queue *q = (i + h->id) % 2 ? h->s->q[0] : h->s->q[1];
        uint64_t value = __atomic_add_fetch(h->value, 1, __ATOMIC_SEQ_CST);
        gpusync_submission submission;
        gpusync_ticket ticket;
        void *buffer;
        memset(&submission, 0, sizeof submission);
        must(either_buffer(q, NULL, &buffer) == GPUSYNC_OK, "command_buffer");
        if (i % 5 == 0) softmetal_fail(buffer, NULL, 3, NULL);
        submission.command_buffers = &buffer;
        submission.command_buffer_count = 1;
        submission.on_complete = count_hammer;
        submission.user = h;
        if (i % 2) must(either_commit(q, buffer, &ticket) == GPUSYNC_OK, "commit");
        else must(either_submit(q, &submission, &ticket) == GPUSYNC_OK, "submit");
        h->accepted += i % 2 == 0;
        h->accepted += gpusync_on_done(gpusync_at_ticket(q, ticket), count_hammer, h) == GPUSYNC_OK;
        h->accepted += gpusync_on_done(gpusync_at_ticket(q, 1 + ticket / 2), count_hammer, h) == GPUSYNC_OK;
        h->accepted += gpusync_on_done(gpusync_at_value(h->s->t[0], value), count_hammer, h) == GPUSYNC_OK;
        if (i % 3 == 0) must(gpusync_wait(q, ticket, SECONDS(20)) != GPUSYNC_TIMEOUT, "wait");
        /* another thread may have been faster, with a larger value */
        must(gpusync_timeline_signal(h->s->t[0], value) <= 0, "signal");
    }
    return NULL;
}

static void test_many_threads_register_and_each_registration_is_called_once(void **state)
{
    const char *stress = getenv("STRESS");
    gpusync_callback_mode mode;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        hammer h[4];
        uint64_t value = 0;
        dispatcher d;
        pthread_t dispatching = pthread_self();
        unsigned i;
        stage s;
        memset(h, 0, sizeof h);
        open_callback_stage(&s, SOFTMETAL_REAL, mode);
        d.device = s.device;
        d.stop = 0;
        if (mode == GPUSYNC_CALLBACKS_MANUAL) dispatching = start(keep_dispatching, &d);
        for (i = 0; i < LENGTH(h); i++) {
            h[i].s = &s;
            h[i].id = i;
            h[i].value = &value;
            h[i].rounds = stress && strcmp(stress, "full") == 0 ? 5000 : 200;
            h[i].thread = start(hammer_body, &h[i]);
        }
        for (i = 0; i < LENGTH(h); i++) join(h[i].thread);
        PUT(&d.stop, 1);
        if (mode == GPUSYNC_CALLBACKS_MANUAL) join(dispatching);
        close_idle_stage(&s); /* runs what is still due */
        for (i = 0; i < LENGTH(h); i++) assert_int_equal(GET(&h[i].called), h[i].accepted);
    }
}

/* == an event loop with poll(2) and a pipe ====================================================================== */

enum { LOOP_JOBS = 40, LOOP_DEPTH = 4 };

/* The loop has a timer of 1 ms, and must never be blocked: the hooks count what its thread does in gpusync. */
typedef struct loop {
    gpusync_device *device;
    gpusync_queue *queue;
    int pipe[2];
    pthread_t thread;
    bool by_hand;
    void *jobs[LOOP_JOBS];     /* their command buffers */
    long blocked;              /* parks and yields of the loop's thread */
    long ticks, launched, jobs_done;
    long iterations, longest;  /* callbacks and registrations in one iteration */
} loop;

static void loop_yield(void *user)
{
    loop *l = (loop *)user;
    if (pthread_equal(pthread_self(), l->thread)) COUNT(&l->blocked);
    sched_yield();
}

static void loop_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)waiter, (void)deadline_ns;
    loop_yield(user);
}

static void loop_unpark(void *user, gpusync_waiter *waiter) { (void)user, (void)waiter; }

static void write_byte(loop *l)
{
    char byte = 1;
    ssize_t written = write(l->pipe[1], &byte, 1);
    (void)written; /* full: then the loop has reason enough to wake up */
}

static void loop_notify(void *user) { write_byte((loop *)user); }

static void loop_job_done(void *user, gpusync_result result, const gpusync_error *error);
static void loop_job_ended(void *user, gpusync_result result, const gpusync_error *error);

static void loop_launch(loop *l)
{
    gpusync_ticket ticket;
    void *buffer;
    if (l->launched == LOOP_JOBS) return;
    must(either_buffer(l->queue, NULL, &buffer) == GPUSYNC_OK, "command_buffer");
    l->jobs[l->launched] = buffer;
    must(either_commit(l->queue, buffer, &ticket) == GPUSYNC_OK, "commit");
    must(gpusync_on_done(gpusync_at_ticket(l->queue, ticket), l->by_hand ? loop_job_done : loop_job_ended, l) ==
             GPUSYNC_OK,
         "on_done");
    COUNT(&l->launched);
}

/* In the loop: by hand, gpusync_dispatch calls it. */
static void loop_job_done(void *user, gpusync_result result, const gpusync_error *error)
{
    loop *l = (loop *)user;
    (void)error;
    must(result == GPUSYNC_OK && pthread_equal(pthread_self(), l->thread), "in the loop");
    l->jobs_done++;
    loop_launch(l);
}

/* On the dispatch queue's thread: no more than a byte for the loop. */
static void loop_job_ended(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    must(result == GPUSYNC_OK, "ended well");
    write_byte((loop *)user);
}

/* The GPU, as a thread of the test: ends the next command buffer only after the timer has ticked twice since the last
   one, so a loop that stands still while work is in flight stands still for good. */
static void *loop_gpu(void *argument)
{
    loop *l = (loop *)argument;
    long job, seen = 0;
    for (job = 0; job < LOOP_JOBS; job++) {
        while (GET(&l->launched) <= job || GET(&l->ticks) < seen + 2) sched_yield();
        seen = GET(&l->ticks);
        softmetal_finish(l->jobs[job]);
    }
    return NULL;
}

static void run_loop(gpusync_callback_mode mode)
{
    gpusync_hooks hooks;
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_stats stats;
    uint64_t timer;
    pthread_t gpu;
    loop l;
    rig r;
    int i;
    memset(&l, 0, sizeof l);
    memset(&hooks, 0, sizeof hooks);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    hooks.yield = loop_yield;
    hooks.park = loop_park;
    hooks.unpark = loop_unpark;
    hooks.user = &l;
    device_desc.hooks = &hooks;
    device_desc.callback_mode = mode;
    device_desc.notify = loop_notify;
    device_desc.notify_user = &l;
    l.thread = pthread_self();
    l.by_hand = mode == GPUSYNC_CALLBACKS_MANUAL;
    assert_int_equal(pipe(l.pipe), 0);
    for (i = 0; i < 2; i++) assert_int_equal(fcntl(l.pipe[i], F_SETFL, O_NONBLOCK), 0);
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    l.device = r.device;
    l.queue = r.queue;
    for (i = 0; i < LOOP_DEPTH; i++) loop_launch(&l);
    gpu = start(loop_gpu, &l);
    timer = gpusync_now_ns() + MS(1);
    while (l.jobs_done < LOOP_JOBS) {
        struct pollfd fd = {l.pipe[0], POLLIN, 0};
        uint64_t now = gpusync_now_ns();
        long done_before = l.jobs_done;
        char bytes[64];
        ssize_t got = 0;
        if (poll(&fd, 1, now < timer ? 1 : 0) > 0) got = read(l.pipe[0], bytes, sizeof bytes);
        if (gpusync_now_ns() >= timer) {
            timer += MS(1);
            COUNT(&l.ticks);
        }
        if (l.by_hand && got > 0) assert_ok(gpusync_dispatch(l.device, LOOP_DEPTH, NULL));
        for (; !l.by_hand && got > 0; got--) { /* a byte for each job that has ended */
            l.jobs_done++;
            loop_launch(&l);
        }
        if (l.jobs_done - done_before > l.longest) l.longest = l.jobs_done - done_before;
        l.iterations++;
    }
    join(gpu);
    assert_int_equal(l.jobs_done, LOOP_JOBS);
    assert_true(l.ticks >= 2 * LOOP_JOBS);
    assert_true(l.iterations > l.ticks / 2);
    assert_true(l.longest <= LOOP_DEPTH);
    assert_int_equal(GET(&l.blocked), 0);
    stats = stats_of(r.queue);
    assert_int_equal(stats.waits_spin + stats.waits_sleep + stats.waits_unmet, 0);
    rig_close(&r);
    close(l.pipe[0]);
    close(l.pipe[1]);
}

static void test_a_poll_loop_dispatches_and_goes_on_ticking(void **state)
{
    (void)state;
    run_loop(GPUSYNC_CALLBACKS_MANUAL);
}

static void test_a_poll_loop_is_woken_by_a_byte_from_a_callback(void **state)
{
    (void)state;
    run_loop(GPUSYNC_CALLBACKS_QUEUED);
}

/* == whose thread it is ========================================================================================= */

void *dispatch_queue_create(const char *label, void *attribute);
void dispatch_async_f(void *queue, void *context, void (*function)(void *));
void dispatch_release(void *object);

static void test_what_is_cancelled_calls_back_in_the_order_of_the_queue(void **state)
{
    outcome o[6] = {0};
    size_t i;
    stage s;
    (void)state;
    open_callback_stage(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED);
    for (i = 0; i < LENGTH(o); i++) on_done(s.q[1], submit_held(&s, s.q[1]), &o[i]);
    assert_ok(gpusync_cancel_held(s.q[1]));
    assert_in_order(o, LENGTH(o));
    close_idle_stage(&s);
}

static int endless; /* 0: callbacks go on registering the next */

static void register_the_next(outcome *o)
{
    if (GET(&endless)) return;
    must(gpusync_on_done(gpusync_at_ticket(o->queue, GPUSYNC_NO_TICKET), remember, o) == GPUSYNC_OK, "on_done");
}

static void end_the_endless(void *context)
{
    (void)context;
    PUT(&endless, 1);
}

/* The queue is the program's: its own functions come in between. */
static void test_callbacks_that_register_the_next_leave_the_queue_to_others(void **state)
{
    void *queue = dispatch_queue_create("the program's", NULL);
    outcome o = {0};
    stage s;
    (void)state;
    endless = 0;
    open_stage_over(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED, queue);
    o.queue = s.q[0];
    o.then = register_the_next;
    on_done(s.q[0], GPUSYNC_NO_TICKET, &o);
    while (calls_so_far(&o) < 10) sched_yield();
    dispatch_async_f(queue, NULL, end_the_endless);
    while (!GET(&endless)) sched_yield();
    assert_true(softmetal_dispatched(SECONDS(20)));
    close_idle_stage(&s);
    dispatch_release(queue);
}

static void note_class_of_service(outcome *o) { o->answered = softmetal_dispatch_qos(NULL); }

/* Without one the queue would run at that of the thread that happened to dispatch first. */
static void test_callbacks_run_in_the_class_of_what_users_wait_for(void **state)
{
    const unsigned user_initiated = 0x19; /* <sys/qos.h> */
    void *queue;
    int own;
    (void)state;
    for (own = 0; own < 2; own++) { /* a queue of the program's is left as it is */
        outcome o = {0};
        stage s;
        queue = own ? dispatch_queue_create("the program's", NULL) : NULL;
        open_stage_over(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED, queue);
        o.then = note_class_of_service;
        on_done(s.q[0], GPUSYNC_NO_TICKET, &o);
        await_call(&o);
        assert_int_equal(o.answered, own ? 0 : user_initiated);
        close_idle_stage(&s);
        if (own) dispatch_release(queue);
    }
}

/* A command buffer of the first queue that the device holds until others signal the value 1. */
static void *commit_until_signalled(stage *s, gpusync_ticket *ticket)
{
    gpusync_point wait = at(s->t[0], 1);
    void *buffer = buffer_behind(s->q[0], &wait);
    *ticket = commit_to(s->q[0], buffer);
    assert_int_equal(status_of(buffer) >= 2, 1);
    return buffer;
}

static void signal_one(outcome *o) { must(gpusync_timeline_signal(o->timeline, 1) == GPUSYNC_OK, "signal"); }

static void destroy_here(void *context)
{
    stage *s = (stage *)context;
    must(gpusync_queue_wait(s->q[1], SECONDS(20)) == GPUSYNC_OK, "the other queue");
    must(gpusync_poll(s->q[0], 1) == GPUSYNC_OK, "the first ticket: its callback is due from here on");
    must(gpusync_queue_destroy(s->q[0]) == GPUSYNC_OK, "destroy");
    s->q[0] = NULL;
}

/* Destroy on the thread of the callback queue waits for work that one of its own callbacks lets go. */
static void test_destroy_on_the_callback_queue_runs_its_callbacks_while_it_waits(void **state)
{
    void *queue = dispatch_queue_create("the program's", NULL), *first, *waiting;
    gpusync_ticket ticket;
    outcome o = {0};
    stage s;
    (void)state;
    NOT_ON_METAL4("no encode_wait, no waitUntilCompleted");
    open_stage_over(&s, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED, queue);
    share_timeline(&s, 0);
    o.timeline = s.t[0];
    o.then = signal_one;
    first = metal_retain(buffer_of(s.q[0]));
    softmetal_set_duration(first, MS(1));
    on_done(s.q[0], commit_to(s.q[0], first), &o);
    waiting = commit_until_signalled(&s, &ticket);
    softmetal_set_dispatch_threads(0); /* the destroy is dispatched before the callback */
    dispatch_async_f(queue, &s, destroy_here);
    metal_wait_until_completed(first);
    metal_release(first);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(calls_so_far(&o), 1);
    assert_int_equal(metal_status(waiting), 4); /* not killed by the watchdog */
    metal_release(waiting);
    close_idle_stage(&s);
    dispatch_release(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_handler_calls_back_once_in_order_of_registration),
        cmocka_unit_test(test_no_wait_or_poll_runs_a_callback),
        cmocka_unit_test(test_a_callback_whose_handler_is_lost_comes_while_a_wait_sleeps),
        cmocka_unit_test(test_without_listeners_a_callback_whose_handler_is_lost_comes_too),
        cmocka_unit_test(test_what_has_ended_already_calls_back_soon_and_not_in_the_call),
        cmocka_unit_test(test_a_result_that_is_no_longer_on_record_is_said_to_be_unknown),
        cmocka_unit_test(test_every_ticket_calls_back_once_however_it_ends),
        cmocka_unit_test(test_every_ticket_calls_back_once_by_hand),
        cmocka_unit_test(test_a_submission_over_within_the_call_calls_back_outside_of_it),
        cmocka_unit_test(test_a_late_registration_does_not_pass_those_before_it),
        cmocka_unit_test(test_a_registration_while_the_end_is_told_keeps_its_place),
        cmocka_unit_test(test_a_registration_between_two_holds_comes_behind_those_that_are_left),
        cmocka_unit_test(test_room_that_is_given_back_between_two_holds_tells_nothing_of_the_ticket),
        cmocka_unit_test(test_a_handler_between_two_holds_tells_nothing_of_its_ticket),
        cmocka_unit_test(test_a_part_that_ends_tells_nothing_of_its_submission),
        cmocka_unit_test(test_a_loss_between_two_holds_changes_no_end),
        cmocka_unit_test(test_giving_up_between_two_holds_tells_all_the_same),
        cmocka_unit_test(test_a_failure_between_two_holds_changes_no_error),
        cmocka_unit_test(test_a_queue_that_goes_between_two_holds_changes_no_end),
        cmocka_unit_test(test_callbacks_of_one_ticket_do_not_overlap),
        cmocka_unit_test(test_what_had_to_wait_for_its_turn_is_run),
        cmocka_unit_test(test_callbacks_of_one_ticket_do_not_overlap_in_dispatch),
        cmocka_unit_test(test_a_dispatch_while_a_destroy_calls_back_is_told_again),
        cmocka_unit_test(test_the_dispatch_queue_is_not_kept_busy_while_a_destroy_calls_back),
        cmocka_unit_test(test_an_object_is_released_between_the_callbacks_around_it),
        cmocka_unit_test(test_a_callback_comes_once_on_a_dispatch_queue_with_the_result),
        cmocka_unit_test(test_no_callback_comes_inside_a_wait),
        cmocka_unit_test(test_a_callback_that_a_wait_found_due_comes_although_no_handler_does),
        cmocka_unit_test(test_of_a_held_submission_the_callback_comes_when_a_call_has_ended_it),
        cmocka_unit_test(test_a_callback_of_work_whose_handlers_have_run_comes_on_a_dispatch_queue),
        cmocka_unit_test(test_destroying_a_queue_settles_every_callback),
        cmocka_unit_test(test_destroying_a_queue_now_ends_what_is_in_flight_for_its_callbacks),
        cmocka_unit_test(test_a_host_signal_calls_back_outside_of_the_call),
        cmocka_unit_test(test_those_of_one_value_are_called_in_the_order_of_their_registration),
        cmocka_unit_test(test_a_pending_value_calls_back_when_its_work_has_ended),
        cmocka_unit_test(test_a_value_that_others_signal_calls_back),
        cmocka_unit_test(test_a_value_that_was_heard_and_is_kept_back_can_be_asked_for_again),
        cmocka_unit_test(test_a_callback_is_listened_for_though_others_signal_its_value_while_it_is_registered),
        cmocka_unit_test(test_the_next_value_is_told_of_though_it_comes_or_is_asked_for_meanwhile),
        cmocka_unit_test(test_without_listeners_a_registration_for_a_foreign_value_is_refused),
        cmocka_unit_test(test_a_device_has_one_listener),
        cmocka_unit_test(test_a_foreign_value_that_is_read_first_calls_back_without_the_listener),
        cmocka_unit_test(test_a_poll_that_ends_a_barrier_leaves_its_callback_to_a_dispatch_queue),
        cmocka_unit_test(test_a_timeline_that_fails_or_goes_calls_back_with_that),
        cmocka_unit_test(test_a_destroy_that_waits_runs_no_callback_of_another_queue),
        cmocka_unit_test(test_by_hand_nothing_runs_until_dispatch),
        cmocka_unit_test(test_every_callback_is_announced),
        cmocka_unit_test(test_a_dispatch_that_leaves_some_announces_them_again),
        cmocka_unit_test(test_without_a_notify_hook_dispatch_still_finds_what_is_due),
        cmocka_unit_test(test_dispatch_has_nothing_to_do_where_callbacks_are_queued),
        cmocka_unit_test(test_destroy_runs_what_is_left_of_what_it_destroys),
        cmocka_unit_test(test_destroy_runs_a_callback_that_the_work_it_waits_for_waits_for),
        cmocka_unit_test(test_threads_that_dispatch_share_the_work),
        cmocka_unit_test(test_every_call_refuses_what_makes_no_sense),
        cmocka_unit_test(test_a_mode_that_does_not_exist_is_refused),
        cmocka_unit_test(test_without_memory_a_registration_is_refused_and_never_called),
        cmocka_unit_test(test_a_question_does_not_wait_for_a_registration_that_takes_memory),
        cmocka_unit_test(test_the_steady_state_takes_no_memory),
        cmocka_unit_test(test_what_a_burst_needed_goes_back_at_once_and_256_stay),
        cmocka_unit_test(test_the_loss_of_the_device_calls_back),
        cmocka_unit_test(test_the_loss_of_the_device_calls_back_by_hand),
        cmocka_unit_test(test_no_callback_is_lost_or_run_twice_when_its_queue_goes),
        cmocka_unit_test(test_destroy_lets_a_callback_finish),
        cmocka_unit_test(test_calls_during_the_destroy_of_a_timeline_say_destroyed),
        cmocka_unit_test(test_many_threads_register_and_each_registration_is_called_once),
        cmocka_unit_test(test_a_poll_loop_dispatches_and_goes_on_ticking),
        cmocka_unit_test(test_a_poll_loop_is_woken_by_a_byte_from_a_callback),
        cmocka_unit_test(test_what_is_cancelled_calls_back_in_the_order_of_the_queue),
        cmocka_unit_test(test_callbacks_that_register_the_next_leave_the_queue_to_others),
        cmocka_unit_test(test_callbacks_run_in_the_class_of_what_users_wait_for),
        cmocka_unit_test(test_destroy_on_the_callback_queue_runs_its_callbacks_while_it_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
