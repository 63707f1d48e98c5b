/* test_retention.c - what a submission names is kept until it is over and then let go, once, however it ends; a call
   that fails takes nothing; and what gpusync makes for itself it uses again

   STRESS  "full": a million submissions without an allocation, and longer rounds of threads
   SEED    of all that is random; printed, default from the clock

   It also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

#define MANY 5 /* more than fit into a job */
#define ITS_BUFFERS 3

static uint64_t seed;

static bool in_full(void)
{
    const char *stress = getenv("STRESS");
    return stress && strcmp(stress, "full") == 0;
}

/* Events that are in use. */
static long events_out(gpusync_device *device)
{
    long live = softmetal_live("shared_event");
    return live - events_kept(device);
}

/* -- a submission that names a lot --------------------------------------------------------------------- */

/* Metal 4: work that gpusync_queue_destroy_now leaves in flight keeps its queue and its events for good. */
typedef struct left_over {
    bool ours, theirs; /* of the submission; of the producer */
    void *queues[2], *in[MANY], *out[MANY];
} left_over;

typedef struct cargo {
    rig r;
    left_over left;
    gpusync_queue *other;
    void *metal_other;
    gpusync_timeline *in[MANY], *out[MANY]; /* the last of each is imported */
    void *imported[2];
    void *producer; /* the command buffer behind most of the waits, borrowed */
    gpusync_ticket theirs[2]; /* of the other queue */
    gpusync_point waits[MANY], head[2], signals[MANY];
    void *buffers[ITS_BUFFERS]; /* +1: of gpusync; of Metal; of gpusync, with waits at its head. Or three of Metal 4 */
    unsigned calls;
    gpusync_result told;
    gpusync_ticket ticket;
} cargo;

static void on_complete(void *user, gpusync_result result, const gpusync_error *error)
{
    cargo *s = (cargo *)user;
    assert_true((result == GPUSYNC_OK) == (error == NULL));
    PUT(&s->told, result);
    __atomic_fetch_add(&s->calls, 1, __ATOMIC_SEQ_CST);
}

/* Two tickets in flight on the other queue; the second signals the value 1 of the timelines that are waited for. */
static void produce(cargo *s)
{
    gpusync_submission submission;
    gpusync_point pending[MANY];
    void *buffer;
    int i;
    assert_ok(either_buffer(s->other, NULL, &buffer));
    assert_ok(either_commit(s->other, buffer, &s->theirs[0]));
    assert_ok(either_buffer(s->other, NULL, &s->producer));
    for (i = 0; i < MANY; i++) pending[i] = at(s->in[i], 1);
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = &s->producer;
    submission.command_buffer_count = 1;
    submission.signals = pending;
    submission.signal_count = MANY;
    submission.flags = SIGNALS_INSIDE;
    assert_ok(submit_as_told(s->other, &submission, &s->theirs[1]));
    for (i = 0; i < MANY; i++) s->waits[i] = at(s->in[i], 1);
    s->head[0] = s->waits[0];
    s->head[1] = s->waits[3];
}

static void make_buffers(cargo *s)
{
    int i;
    if (metal4_run()) {
        for (i = 0; i < ITS_BUFFERS; i++) s->buffers[i] = metal_retain(open_buffer(&s->r));
        return;
    }
    s->buffers[0] = metal_retain(open_buffer(&s->r));
    s->buffers[1] = metal_queue_command_buffer(s->r.metal_queue);
    assert_ok(make_behind(s->r.queue, NULL, s->head, 2, &s->buffers[2]));
    metal_retain(s->buffers[2]);
}

/* No command buffer keeps its events: those live by gpusync alone until the device has ended with them. The quirk is about
   what is encoded behind it. */
static void cargo_open(cargo *s)
{
    const softmetal_quirks quirks = {.events_not_kept = true};
    int i;
    memset(s, 0, sizeof *s);
    rig_open(&s->r, SOFTMETAL_MANUAL);
    softmetal_set_quirks(&quirks);
    s->other = queue_new(s->r.device);
    s->metal_other = gpusync_queue_metal(s->other);
    for (i = 0; i < MANY - 1; i++) s->in[i] = timeline_new(s->r.device);
    s->in[MANY - 1] = timeline_over(s->r.device, &s->imported[0]);
    for (i = 0; i < MANY - 1; i++) s->out[i] = timeline_new(s->r.device);
    s->out[MANY - 1] = timeline_over(s->r.device, &s->imported[1]);
    for (i = 0; i < MANY; i++) s->signals[i] = at(s->out[i], 7);
    produce(s);
    make_buffers(s);
}

static gpusync_submission describe(cargo *s)
{
    gpusync_submission submission;
    memset(&submission, 0, sizeof submission);
    submission.waits = s->waits;
    submission.wait_count = MANY;
    submission.command_buffers = s->buffers;
    submission.command_buffer_count = ITS_BUFFERS;
    submission.signals = s->signals;
    submission.signal_count = MANY;
    submission.on_complete = on_complete;
    submission.user = s;
    return submission;
}

static gpusync_result submit(cargo *s)
{
    gpusync_submission submission = describe(s);
    return either_submit(s->r.queue, &submission, &s->ticket);
}

/* The program gives away what it has: from here on all lives by gpusync alone. */
static void give_up_buffers(cargo *s)
{
    int i;
    for (i = 0; i < ITS_BUFFERS; i++) metal_release(s->buffers[i]);
    for (i = 0; i < 2; i++) metal_release(s->imported[i]);
}

/* Those of Metal 4 are the stage's alone. */
static void assert_let_go_of_buffers(const cargo *s)
{
    int i;
    assert_int_equal(softmetal_live("command_buffer"), 0);
    for (i = 0; i < ITS_BUFFERS && metal4_run(); i++) assert_int_equal(owners_of(s->buffers[i]), 1);
}

static void drop_timeline(gpusync_timeline **timeline)
{
    assert_ok(gpusync_timeline_destroy(*timeline));
    *timeline = NULL;
}

static void destroy_timelines(cargo *s)
{
    int i;
    for (i = 0; i < MANY; i++) drop_timeline(&s->in[i]);
    for (i = 0; i < MANY; i++) drop_timeline(&s->out[i]);
}

/* What ends may have gpusync make a command buffer, so that there is a handler to call back from. */
static void finish_both(cargo *s)
{
    int i;
    for (i = 0; i < 2; i++) {
        softmetal_finish_queue(s->metal_other);
        softmetal_finish_queue(s->r.metal_queue);
    }
}

/* With Metal 4. From here on the events are not used again. */
static void note_what_may_stay(cargo *s)
{
    int i;
    if (!metal4_run()) return;
    s->left.queues[0] = s->r.metal_queue;
    s->left.queues[1] = s->metal_other;
    for (i = 0; i < MANY; i++) s->left.in[i] = gpusync_timeline_metal(s->in[i], NULL);
    for (i = 0; i < MANY; i++) s->left.out[i] = gpusync_timeline_metal(s->out[i], NULL);
}

static void give_back_what_stays(const left_over *left)
{
    int i;
    if (left->ours) drop_queue_that_stays(left->queues[0]);
    if (left->theirs) drop_queue_that_stays(left->queues[1]);
    for (i = 0; i < MANY && left->ours; i++) drop_what_stays(left->in[i]);
    for (i = 0; i < MANY && left->theirs; i++) drop_what_stays(left->in[i]);
    for (i = 0; i < MANY && left->ours; i++) drop_what_stays(left->out[i]);
}

/* Everything is back where it came from, before the device goes and takes its pools with it. */
static void cargo_close(cargo *s)
{
    must_return_within(20); /* else some submission is never over */
    destroy_timelines(s);
    if (s->r.queue) assert_ok(gpusync_queue_destroy(s->r.queue));
    if (s->other) assert_ok(gpusync_queue_destroy(s->other));
    has_returned();
    s->r.queue = NULL;
    give_back_what_stays(&s->left);
    assert_true(softmetal_settle(SECONDS(10)));
    assert_let_go_of_buffers(s);
    assert_int_equal(softmetal_live("block"), 0);
    if (!metal4_run()) assert_int_equal(softmetal_live("error"), 0); /* those runs stay until rig_close */
    if (!gpusync_device_is_lost(s->r.device)) assert_int_equal(events_out(s->r.device), 0);
    rig_close(&s->r);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("buffer"), 0);
    assert_int_equal(softmetal_live("device"), 0);
}

/* -- however it ends ----------------------------------------------------------------------------------- */

static void ends_well(cargo *s)
{
    finish_both(s);
}

static void fails(cargo *s)
{
    softmetal_fail(s->buffers[metal4_run() ? 0 : 1], NULL, 8, "on purpose"); /* the first stands for the run */
    finish_both(s);
}

/* A failure is not written to an event of others, for which the GPU waits on: they end that wait. */
static void what_it_waits_for_fails(cargo *s)
{
    void *event = metal_retain(s->imported[0]);
    softmetal_fail(s->producer, NULL, 8, "on purpose");
    softmetal_finish_queue(s->metal_other);
    metal_event_signal(event, 1);
    metal_release(event);
    finish_both(s);
}

static void device_is_lost(cargo *s)
{
    softmetal_remove_device(s->r.metal_device); /* which signals nothing any more */
    finish_both(s);
    if (metal4_run()) probe_give_up_lost(s->r.device); /* until then its signals may come */
}

/* What the GPU has not ended is given up, and ends after that: until then the GPU may use the events. The producers end
   in time where the work of the first queue is to be given up alone. */
static void lose_by_other_work(cargo *s)
{
    gpusync_queue *third = queue_new(s->r.device);
    void *killed = buffer_of(third);
    softmetal_fail(killed, NULL, metal4_run() ? 5 : 4, NULL); /* access revoked: a device that was removed uses nothing */
    (void)commit_to(third, killed);
    softmetal_finish(killed);
    assert_true(gpusync_device_is_lost(s->r.device));
    assert_ok(gpusync_queue_destroy(third));
}

static void is_given_up(cargo *s)
{
    lose_by_other_work(s);
    assert_int_equal(CALLED(s->calls), 0);
    probe_give_up_lost(s->r.device);
    assert_int_equal(CALLED(s->calls), 1);
    assert_result(s->told, GPUSYNC_ERROR_DEVICE_LOST);
    finish_both(s);
}

static void is_given_up_by_itself(cargo *s)
{
    softmetal_finish_queue(s->metal_other);
    is_given_up(s);
}

static void lose_all_handlers(void *metal_queue)
{
    void *buffer;
    unsigned k;
    for (k = 0; (buffer = softmetal_buffer_at(metal_queue, k)) != NULL; k++)
        if (status_of(buffer) >= 2) softmetal_lose_handlers(buffer);
}

/* Destroy finds by itself how it ended. */
static void is_destroyed_without_handlers(cargo *s)
{
    lose_all_handlers(s->r.metal_queue);
    finish_both(s);
    assert_int_equal(CALLED(s->calls), 0);
    assert_ok(gpusync_queue_destroy(s->r.queue));
    s->r.queue = NULL;
}

/* What it waits for goes first. */
static void is_destroyed_in_flight(cargo *s)
{
    softmetal_finish_queue(s->metal_other);
    assert_ok(gpusync_queue_destroy_now(s->r.queue));
    s->r.queue = NULL;
    s->left.ours = true;
    finish_both(s);
}

/* What it waits for comes after: the device still needs the events. */
static void is_destroyed_while_it_waits(cargo *s)
{
    assert_ok(gpusync_queue_destroy_now(s->r.queue));
    s->r.queue = NULL;
    s->left.ours = true;
    assert_int_equal(events_kept(s->r.device), 0); /* no other work may have them */
    finish_both(s);
}

static void queue_of_its_waits_is_destroyed(cargo *s)
{
    assert_ok(gpusync_queue_destroy_now(s->other));
    s->other = NULL;
    s->left.theirs = true;
    finish_both(s);
}

/* The Metal queues outlive their gpusync_queues here, to be stepped. */
static void end_in_flight(void (*ending)(cargo *s), gpusync_result expected)
{
    cargo s;
    void *queues[2];
    long live;
    cargo_open(&s);
    note_what_may_stay(&s);
    queues[0] = metal_retain(s.r.metal_queue);
    queues[1] = metal_retain(s.metal_other);
    assert_ok(submit(&s));
    give_up_buffers(&s);
    destroy_timelines(&s);
    live = softmetal_live("command_buffer");
    if (!metal4_run()) assert_int_equal(live, 2 + ITS_BUFFERS + 2); /* the producers, the three, ours around them */
    assert_int_equal(softmetal_live("shared_event"), MANY + MANY); /* one for a timeline, and none for anything else */
    assert_int_equal(CALLED(s.calls), 0);
    ending(&s);
    assert_true(softmetal_settle(SECONDS(10)));
    if (s.r.queue) {
        assert_int_equal(CALLED(s.calls), 1);
        assert_let_go_of_buffers(&s); /* not only when the queue goes */
    }
    metal_release(queues[0]);
    metal_release(queues[1]);
    cargo_close(&s);
    assert_int_equal(CALLED(s.calls), 1);
    assert_result(s.told, expected);
}

static void test_what_ends_well_is_let_go(void **state)
{
    (void)state;
    end_in_flight(ends_well, GPUSYNC_OK);
}

static void test_what_fails_is_let_go(void **state)
{
    (void)state;
    end_in_flight(fails, GPUSYNC_ERROR_EXECUTION);
    end_in_flight(what_it_waits_for_fails, GPUSYNC_ERROR_EXECUTION);
}

static void test_what_a_lost_device_had_is_let_go(void **state)
{
    (void)state;
    end_in_flight(device_is_lost, GPUSYNC_ERROR_EXECUTION);
    end_in_flight(is_given_up, GPUSYNC_ERROR_DEVICE_LOST);
    end_in_flight(is_given_up_by_itself, GPUSYNC_ERROR_DEVICE_LOST);
}

static void test_what_a_destroyed_queue_had_in_flight_is_let_go(void **state)
{
    (void)state;
    if (!metal4_run()) end_in_flight(is_destroyed_without_handlers, GPUSYNC_OK);
    end_in_flight(is_destroyed_in_flight, GPUSYNC_ERROR_DESTROYED);
    end_in_flight(queue_of_its_waits_is_destroyed, GPUSYNC_ERROR_DESTROYED);
}

/* -- held ---------------------------------------------------------------------------------------------- */

static void goes_on(cargo *s)
{
    softmetal_finish_queue(s->metal_other);
    assert_ok(gpusync_timeline_signal(s->in[0], 2));
    softmetal_finish_queue(s->r.metal_queue);
}

static void is_cancelled(cargo *s)
{
    assert_ok(gpusync_cancel_held(s->r.queue));
}

static void timeline_fails(cargo *s)
{
    assert_ok(gpusync_timeline_fail(s->in[0], NULL));
}

static void timeline_goes(cargo *s)
{
    drop_timeline(&s->in[0]);
}

static void queue_goes(cargo *s)
{
    assert_ok(gpusync_queue_destroy(s->r.queue));
    s->r.queue = NULL;
}

static void queue_goes_now(cargo *s)
{
    assert_ok(gpusync_queue_destroy_now(s->r.queue));
    s->r.queue = NULL;
}

/* It waits for a value that no work is to signal. */
static void end_held(void (*ending)(cargo *s), gpusync_result expected, uint32_t flags)
{
    gpusync_submission submission;
    cargo s;
    int i;
    cargo_open(&s);
    note_what_may_stay(&s);
    s.waits[0].value = 2;
    for (i = 0; i < 2; i++) s.waits[MANY - 2 + i] = after(s.other, s.theirs[i]); /* and for tickets in flight */
    submission = describe(&s);
    submission.flags = flags;
    assert_ok(submit_as_told(s.r.queue, &submission, &s.ticket));
    assert_int_equal(status_of(s.buffers[0]), 0);
    give_up_buffers(&s);
    for (i = 1; i < MANY; i++) drop_timeline(&s.in[i]);
    for (i = 0; i < MANY; i++) drop_timeline(&s.out[i]);
    assert_int_equal(CALLED(s.calls), 0);
    ending(&s);
    assert_int_equal(CALLED(s.calls), 1); /* soon */
    assert_result(s.told, expected);
    softmetal_finish_queue(s.metal_other); /* what was in flight has nothing to do with it any more */
    assert_true(softmetal_settle(SECONDS(10)));
    assert_let_go_of_buffers(&s);
    cargo_close(&s);
    assert_int_equal(CALLED(s.calls), 1);
}

static void test_what_was_held_is_let_go(void **state)
{
    static const uint32_t flags[] = {0, SIGNALS_INSIDE, GPUSYNC_STRICT, GPUSYNC_UNORDERED};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (flags[i] != GPUSYNC_STRICT) end_held(goes_on, GPUSYNC_OK, flags[i]);
        end_held(is_cancelled, GPUSYNC_ERROR_CANCELLED, flags[i]);
        end_held(timeline_fails, GPUSYNC_ERROR_EXECUTION, flags[i]);
        end_held(timeline_goes, GPUSYNC_ERROR_DESTROYED, flags[i]);
        end_held(queue_goes, GPUSYNC_ERROR_CANCELLED, flags[i]);
        end_held(queue_goes_now, GPUSYNC_ERROR_DESTROYED, flags[i]);
        end_held(device_is_lost, GPUSYNC_ERROR_EXECUTION, flags[i]);
    }
}

/* -- calls that fail half-way -------------------------------------------------------------------------- */

/* All that a call which fails must leave as it was. */
typedef struct snapshot {
    long buffers, events;
    unsigned long owners[ITS_BUFFERS], status[ITS_BUFFERS], objects;
    unsigned rooms;
    uint64_t committed;
    bool idle;
} snapshot;

static snapshot take_snapshot(cargo *s, void *object)
{
    snapshot shot;
    int i;
    memset(&shot, 0, sizeof shot);
    shot.buffers = softmetal_live("command_buffer");
    shot.events = events_out(s->r.device);
    for (i = 0; i < ITS_BUFFERS; i++) shot.owners[i] = softmetal_retain_count(s->buffers[i]);
    for (i = 0; i < ITS_BUFFERS; i++) shot.status[i] = status_of(s->buffers[i]);
    shot.objects = object ? softmetal_retain_count(object) : 0;
    shot.rooms = rooms_taken(s->r.queue);
    shot.committed = stats_of(s->r.queue).commits;
    shot.idle = gpusync_is_idle(s->r.queue);
    return shot;
}

static void assert_unchanged(cargo *s, void *object, const snapshot *before)
{
    snapshot now = take_snapshot(s, object);
    assert_int_equal(now.buffers, before->buffers);
    assert_int_equal(now.events, before->events);
    assert_memory_equal(&now, before, sizeof now);
}

enum { CREATIONS, ALLOCATIONS, C_LIBRARY, FAULTS };

static void set_fault(cargo *s, int fault, unsigned k, bool for_good)
{
    softmetal_fail_creation(fault == CREATIONS ? k : 0, for_good);
    s->r.memory.fail_after = for_good;
    s->r.memory.fail_at = fault == ALLOCATIONS ? (long)k : 0;
    probe_memory.fail_after = for_good;
    probe_memory.fail_at = fault == C_LIBRARY ? (long)k : 0;
}

/* The call under test: OK, or an error and nothing done. */
typedef gpusync_result (*action)(cargo *s, void *object);

static gpusync_result do_submit(cargo *s, void *object)
{
    gpusync_result result = submit(s);
    (void)object;
    assert_int_equal(s->ticket != 0, result == GPUSYNC_OK);
    return result;
}

static gpusync_result do_make_buffer(cargo *s, void *object)
{
    gpusync_command_buffer_desc desc;
    gpusync_result result;
    void *buffer = s;
    memset(&desc, 0, sizeof desc);
    (void)object;
    desc.label = "with waits";
    result = make_behind(s->r.queue, &desc, s->waits, MANY, &buffer);
    assert_int_equal(buffer != NULL, result == GPUSYNC_OK);
    return result; /* destroy gives it up */
}

static gpusync_result do_release_after(cargo *s, void *object)
{
    return gpusync_release_after(gpusync_at_ticket(s->other, s->theirs[0]), object);
}

/* The k-th step of the call fails. False: it has no such step. */
static bool fail_step(action act, int fault, unsigned k, bool for_good)
{
    cargo s;
    snapshot before;
    gpusync_result result;
    void *object;
    cargo_open(&s);
    object = metal_buffer_new(s.r.metal_device, 1);
    if (fault == C_LIBRARY) probe_forget_spare_memory(s.r.queue); /* what is left would hide that more is needed */
    before = take_snapshot(&s, object);
    set_fault(&s, fault, k, for_good);
    result = act(&s, object);
    set_fault(&s, fault, 0, false);
    if (result != GPUSYNC_OK) {
        assert_result(result, fault == CREATIONS ? GPUSYNC_ERROR_METAL_NIL : GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_unchanged(&s, object, &before);
        assert_ok(act(&s, object)); /* once more */
    }
    give_up_buffers(&s);
    finish_both(&s);
    assert_int_equal(CALLED(s.calls), act == do_submit ? 1 : 0);
    metal_release(object);
    assert_int_equal(softmetal_live("buffer"), 0);
    cargo_close(&s);
    return result != GPUSYNC_OK;
}

static unsigned fail_every_step(action act, int fault)
{
    unsigned k = 1;
    while (fail_step(act, fault, k, false)) k++;
    while (k-- > 1) assert_true(fail_step(act, fault, k, true));
    for (k = 1; fail_step(act, fault, k, false);) k++;
    return k - 1;
}

static void test_a_submission_that_fails_at_any_step_leaves_all_as_it_was(void **state)
{
    (void)state;
    /* the options; or command buffers of ours, for the waits and for the signals */
    assert_int_equal(fail_every_step(do_submit, CREATIONS), metal4_run() ? 1 : 2);
    assert_int_equal(fail_every_step(do_submit, ALLOCATIONS), 1 + MANY + MANY); /* itself; each wait, and each signal */
    assert_true(fail_every_step(do_submit, C_LIBRARY) > 0);
}

static void test_a_command_buffer_with_waits_that_fails_at_any_step_leaves_all_as_it_was(void **state)
{
    (void)state;
    NOT_ON_METAL4("no encode_wait");
    assert_int_equal(fail_every_step(do_make_buffer, CREATIONS), 1);
    assert_int_equal(fail_every_step(do_make_buffer, ALLOCATIONS), 1 + MANY); /* the same; no signals */
    assert_true(fail_every_step(do_make_buffer, C_LIBRARY) > 0);
}

static void test_a_release_that_cannot_be_put_off_retains_nothing(void **state)
{
    (void)state;
    assert_int_equal(fail_every_step(do_release_after, ALLOCATIONS), 1); /* the callback */
}

/* What is wrong is found last, after all else has been taken. */
static void spoil_signal(cargo *s, gpusync_submission *submission)
{
    (void)submission;
    s->signals[MANY - 1].value = 0;
}

static void spoil_wait(cargo *s, gpusync_submission *submission)
{
    (void)submission;
    s->waits[MANY - 1] = after(s->other, 99);
}

static void spoil_order(cargo *s, gpusync_submission *submission)
{
    (void)submission;
    s->signals[MANY - 1].timeline = s->in[1]; /* where that value is pending */
    s->signals[MANY - 1].value = 1;
}

static void spoil_by_failure(cargo *s, gpusync_submission *submission)
{
    (void)submission;
    assert_ok(gpusync_timeline_fail(s->out[MANY - 1], NULL));
}

static void spoil_buffer(cargo *s, gpusync_submission *submission)
{
    static void *buffers[ITS_BUFFERS];
    memcpy(buffers, s->buffers, sizeof buffers);
    buffers[ITS_BUFFERS - 1] = s->producer; /* of the other queue */
    submission->command_buffers = buffers;
}

/* It would have to be held, and cannot. */
static void spoil_by_enqueue(cargo *s, gpusync_submission *submission)
{
    (void)submission;
    metal_enqueue(s->buffers[1]);
    s->waits[0].value = 2;
}

/* A call that was refused counts for nothing in what may be held: seven eighths of the queue. */
static void assert_all_may_be_held(cargo *s)
{
    gpusync_submission submission;
    gpusync_result result;
    gpusync_point wait = at(s->in[0], 99);
    unsigned held = 0;
    void *buffer;
    memset(&submission, 0, sizeof submission);
    submission.waits = &wait;
    submission.wait_count = 1;
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.flags = GPUSYNC_STRICT; /* no command buffer but this one */
    do {
        buffer = open_buffer(&s->r);
        result = either_submit(s->r.queue, &submission, NULL);
        held += result == GPUSYNC_OK;
    } while (result == GPUSYNC_OK);
    assert_result(result, GPUSYNC_ERROR_QUEUE_FULL);
    assert_int_equal(held, 64 - 64 / 8);
    assert_ok(either_discard(s->r.queue, buffer));
    assert_ok(gpusync_cancel_held(s->r.queue));
}

static void refuse(void (*spoil)(cargo *s, gpusync_submission *submission), gpusync_result expected)
{
    gpusync_submission submission;
    gpusync_point waits[MANY], signals[MANY];
    snapshot before;
    cargo s;
    cargo_open(&s);
    memcpy(waits, s.waits, sizeof waits);
    memcpy(signals, s.signals, sizeof signals);
    submission = describe(&s);
    spoil(&s, &submission);
    before = take_snapshot(&s, NULL);
    assert_result(either_submit(s.r.queue, &submission, &s.ticket), expected);
    assert_int_equal(s.ticket, GPUSYNC_NO_TICKET);
    assert_unchanged(&s, NULL, &before);
    assert_int_equal(CALLED(s.calls), 0);
    memcpy(s.waits, waits, sizeof waits);
    memcpy(s.signals, signals, sizeof signals);
    if (spoil == spoil_by_failure) s.signals[MANY - 1] = at(s.in[MANY - 1], 9);
    assert_ok(submit(&s)); /* now that it is right */
    give_up_buffers(&s);
    finish_both(&s);
    assert_int_equal(CALLED(s.calls), 1);
    assert_ok(s.told);
    if (!metal4_run()) assert_all_may_be_held(&s); /* it has no limit */
    cargo_close(&s);
}

static void test_a_submission_that_is_refused_at_its_last_item_leaves_all_as_it_was(void **state)
{
    (void)state;
    refuse(spoil_signal, GPUSYNC_ERROR_NOT_RISING);
    refuse(spoil_wait, GPUSYNC_ERROR_INVALID_TICKET);
    refuse(spoil_order, GPUSYNC_ERROR_NOT_RISING);
    refuse(spoil_by_failure, GPUSYNC_ERROR_EXECUTION);
    if (metal4_run()) return; /* its buffers are of no queue, and are not enqueued */
    refuse(spoil_buffer, GPUSYNC_ERROR_WRONG_QUEUE);
    refuse(spoil_by_enqueue, GPUSYNC_ERROR_ENQUEUED);
}

/* -- gpusync_release_after ----------------------------------------------------------------------------- */

static void *object_after(cargo *s, gpusync_queue *queue, gpusync_ticket ticket)
{
    void *object = metal_buffer_new(s->r.metal_device, 1);
    assert_ok(gpusync_release_after(gpusync_at_ticket(queue, ticket), object));
    return object;
}

static void assert_let_go(void *object)
{
    assert_int_equal(owners_of(object), 1);
    metal_release(object);
}

/* Of plain commits, held ones, submissions; well, badly, never. */
static void release_after(void (*ending)(cargo *s))
{
    cargo s;
    void *objects[4], *queues[2];
    size_t i;
    cargo_open(&s);
    note_what_may_stay(&s);
    queues[0] = metal_retain(s.r.metal_queue);
    queues[1] = metal_retain(s.metal_other);
    assert_ok(submit(&s));
    objects[0] = object_after(&s, s.r.queue, s.ticket);
    objects[1] = object_after(&s, s.r.queue, s.ticket);
    objects[2] = object_after(&s, s.other, s.theirs[0]);
    objects[3] = object_after(&s, s.r.queue, commit_empty(&s.r, NULL));
    for (i = 0; i < 4; i++) assert_int_equal(softmetal_retain_count(objects[i]), 2);
    give_up_buffers(&s);
    ending(&s);
    assert_true(softmetal_settle(SECONDS(10)));
    metal_release(queues[0]);
    metal_release(queues[1]);
    if (s.r.queue && s.other)
        for (i = 0; i < 4; i++) assert_int_equal(softmetal_retain_count(objects[i]), 1);
    destroy_timelines(&s);
    if (s.r.queue) queue_goes(&s);
    if (s.other) assert_ok(gpusync_queue_destroy(s.other));
    s.other = NULL;
    for (i = 0; i < 4; i++) assert_let_go(objects[i]);
    cargo_close(&s);
}

static void test_an_object_is_released_after_its_ticket_once(void **state)
{
    (void)state;
    release_after(ends_well);
    release_after(fails);
    release_after(what_it_waits_for_fails);
    release_after(device_is_lost);
    if (!metal4_run()) release_after(is_destroyed_without_handlers);
    release_after(is_destroyed_in_flight);
    release_after(queue_of_its_waits_is_destroyed);
}

/* The GPU may still use it, also when the work ends after all: it goes with its queue. */
static void test_an_object_of_given_up_work_stays_until_its_queue_goes(void **state)
{
    cargo s;
    void *objects[4], *queues[2];
    size_t i;
    (void)state;
    cargo_open(&s);
    note_what_may_stay(&s);
    queues[0] = metal_retain(s.r.metal_queue);
    queues[1] = metal_retain(s.metal_other);
    assert_ok(submit(&s));
    objects[0] = object_after(&s, s.r.queue, s.ticket);
    objects[1] = object_after(&s, s.r.queue, commit_empty(&s.r, NULL));
    objects[2] = object_after(&s, s.other, s.theirs[0]);
    give_up_buffers(&s);
    is_given_up(&s);
    objects[3] = object_after(&s, s.r.queue, s.ticket); /* it never ends */
    assert_true(softmetal_settle(SECONDS(10)));
    metal_release(queues[0]);
    metal_release(queues[1]);
    for (i = 0; i < 4; i++) assert_int_equal(owners_of(objects[i]), 2);
    queue_goes(&s);
    for (i = 0; i < 4; i++) assert_int_equal(owners_of(objects[i]), i == 2 ? 2 : 1);
    assert_ok(gpusync_queue_destroy(s.other));
    s.other = NULL;
    for (i = 0; i < 4; i++) assert_let_go(objects[i]);
    cargo_close(&s);
}

/* ... or with its timeline. */
static void test_an_object_of_a_given_up_value_stays_until_its_timeline_goes(void **state)
{
    enum { MOST = 100 }; /* more than one hold of a lock tells */
    cargo s;
    void *objects[2], *many;
    size_t i;
    (void)state;
    cargo_open(&s);
    note_what_may_stay(&s);
    assert_ok(submit(&s));
    for (i = 0; i < 2; i++) objects[i] = metal_buffer_new(s.r.metal_device, 1);
    assert_ok(gpusync_release_after(s.signals[0], objects[0])); /* of work that is given up */
    assert_ok(gpusync_release_after(at(s.in[1], 9), objects[1])); /* that no work signals */
    many = metal_buffer_new(s.r.metal_device, 1);
    for (i = 0; i < MOST; i++) assert_ok(gpusync_release_after(at(s.in[2], 9), many));
    give_up_buffers(&s);
    is_given_up(&s);
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(owners_of(objects[0]), 2);
    assert_int_equal(owners_of(objects[1]), 2);
    assert_int_equal(owners_of(many), 1 + MOST);
    destroy_timelines(&s);
    assert_let_go(objects[0]);
    assert_let_go(objects[1]);
    assert_let_go(many);
    cargo_close(&s);
}

static void test_an_object_of_an_ended_or_held_ticket_is_released(void **state)
{
    cargo s;
    void *held, *ended;
    (void)state;
    cargo_open(&s);
    s.waits[0].value = 2;
    assert_ok(submit(&s));
    held = object_after(&s, s.r.queue, s.ticket);
    finish_both(&s);
    ended = object_after(&s, s.other, s.theirs[0]);
    assert_let_go(ended); /* at once */
    assert_let_go(object_after(&s, s.other, GPUSYNC_NO_TICKET));
    assert_int_equal(softmetal_retain_count(held), 2);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.r.queue, 99), held), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.r.queue, GPUSYNC_EVERYTHING), held),
                  GPUSYNC_ERROR_INVALID_TICKET);
    assert_int_equal(softmetal_retain_count(held), 2);
    assert_ok(gpusync_cancel_held(s.r.queue));
    give_up_buffers(&s);
    finish_both(&s); /* a handler comes by to see to it */
    assert_true(softmetal_settle(SECONDS(10)));
    assert_let_go(held);
    cargo_close(&s);
}

/* The device still waits for the values when the queue is gone, and then has nothing to tell. */
static void test_what_waits_for_values_goes_on_without_its_queue(void **state)
{
    (void)state;
    end_in_flight(is_destroyed_while_it_waits, GPUSYNC_ERROR_DESTROYED);
    release_after(is_destroyed_while_it_waits);
}

/* -- what is used again -------------------------------------------------------------------------------- */

/* Handlers and listeners have run, and with them what they had to call back and to give back. */
static void let_them_end(void)
{
    assert_true(softmetal_settle(SECONDS(10)));
}

static void test_events_are_used_again(void **state)
{
    rig r;
    gpusync_queue *other;
    unsigned i, kept = metal4_run() ? 1 : 0; /* that of the last that ended: nothing has looked since */
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    other = queue_new(r.device);
    for (i = 0; i < 2000; i++) {
        gpusync_submission submission;
        gpusync_timeline *timeline;
        gpusync_point waits[2], signal;
        gpusync_ticket ticket;
        void *buffer = open_buffer(&r), *waiting;
        softmetal_hang(buffer);
        metal_retain(buffer);
        assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
        assert_ok(either_commit(r.queue, buffer, &ticket));
        waits[0] = waits[1] = after(r.queue, ticket);
        signal = at(timeline, 1);
        memset(&submission, 0, sizeof submission);
        submission.waits = waits;
        submission.wait_count = 2;
        submission.signals = &signal;
        submission.signal_count = 1;
        if (metal4_run()) {
            waiting = buffer_of(other);
            submission.command_buffers = &waiting;
            submission.command_buffer_count = 1;
        }
        assert_ok(either_submit(other, &submission, &ticket));
        softmetal_unhang(buffer);
        metal_release(buffer);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_ok(gpusync_wait(other, ticket, SECONDS(20)));
        let_them_end();
        assert_in_range(softmetal_live("shared_event"), 1, 1 + kept); /* the timeline's: none stands for a ticket */
    }
    assert_int_equal(softmetal_message_count("newSharedEvent"), softmetal_live("shared_event"));
    assert_in_range(events_out(r.device), 0, kept);
    assert_ok(gpusync_queue_destroy(other));
    assert_true(softmetal_settle(SECONDS(10))); /* what its last signals need goes a moment later */
    assert_int_equal(events_out(r.device), 0);
    rig_close(&r);
}

static void count_call(void *user, gpusync_result result, const gpusync_error *error)
{
    assert_true(result == GPUSYNC_OK && !error);
    __atomic_fetch_add((uint64_t *)user, 1, __ATOMIC_SEQ_CST);
}

/* One of two queues in turn, each waiting for the other by value, and for its last ticket. */
static gpusync_ticket submit_in_turn(gpusync_queue *const *queues, gpusync_timeline *timeline, uint64_t i,
                                     gpusync_ticket last, uint64_t *calls)
{
    gpusync_submission submission;
    gpusync_point waits[2], signal = at(timeline, i);
    gpusync_ticket ticket;
    void *buffer;
    assert_ok(either_buffer(queues[i % 2], NULL, &buffer));
    memset(&submission, 0, sizeof submission);
    waits[0] = at(timeline, i - 1);
    waits[1] = after(queues[(i + 1) % 2], last);
    submission.waits = waits;
    submission.wait_count = 2;
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.signals = &signal;
    submission.signal_count = 1;
    submission.flags = i % 3 == 0 ? SIGNALS_INSIDE : i % 7 == 0 ? GPUSYNC_STRICT : 0;
    submission.on_complete = count_call;
    submission.user = calls;
    assert_ok(submit_as_told(queues[i % 2], &submission, &ticket));
    return ticket;
}

/* The first wait that sleeps takes memory for waiters. */
static void sleep_once(rig *r)
{
    gpusync_wait_options options;
    memset(&options, 0, sizeof options);
    options.spin = &no_spin;
    assert_ok(gpusync_wait_ex(r->queue, commit_lasting(r, MS(5)), SECONDS(20), &options));
}

/* Eight at a time, after which everything is over. First four times as many, which all stand behind one that hangs, and
   from then on nothing is allocated. Twice as many would not do: a free submission that comes back while its queue takes one
   goes to the device, from where the other queue takes up to eight, besides those that it has in flight. */
static void test_submissions_in_the_steady_state_allocate_nothing(void **state)
{
    rig r;
    gpusync_queue *queues[2];
    gpusync_timeline *timeline;
    uint64_t i, count = in_full() ? 1000000 : 20000, first = 32, calls = 0;
    gpusync_ticket ticket;
    long allocations = 0;
    void *hung;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    queues[0] = r.queue;
    queues[1] = queue_new(r.device);
    assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
    sleep_once(&r);
    hung = metal_retain(open_buffer(&r));
    softmetal_hang(hung);
    assert_ok(either_commit(r.queue, hung, &ticket));
    for (i = 1; i <= count; i++) {
        void *object = i % 5 == 0 ? metal_buffer_new(r.metal_device, 1) : NULL;
        ticket = submit_in_turn(queues, timeline, i, ticket, &calls);
        if (object) assert_ok(gpusync_release_after(gpusync_at_ticket(queues[i % 2], ticket), object));
        metal_release(object);
        if (i < first || i % 8) continue;
        if (i == first) softmetal_unhang(hung);
        if (i == first) metal_release(hung);
        assert_ok(gpusync_wait(queues[i % 2], ticket, SECONDS(20)));
        let_them_end();
        assert_int_equal(softmetal_live("buffer"), 0);
        assert_int_equal(softmetal_live("shared_event"), 1); /* the timeline's */
        if (i == first) allocations = r.memory.calls;
        assert_int_equal(r.memory.calls, allocations);
    }
    assert_int_equal(calls, count);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_queue_destroy(queues[1]));
    rig_close(&r);
}

/* So many are held at once, and let go. Returns how often that took memory. */
static long hold_many(rig *r, gpusync_queue *queue, unsigned count)
{
    gpusync_timeline *timeline;
    gpusync_submission submission;
    gpusync_point wait;
    long calls;
    assert_ok(gpusync_timeline_create(r->device, NULL, &timeline));
    wait = at(timeline, 1);
    memset(&submission, 0, sizeof submission);
    submission.waits = &wait;
    submission.wait_count = 1;
    submission.flags = GPUSYNC_STRICT; /* no command buffers: as many as one likes */
    calls = r->memory.calls;
    while (count--) assert_ok(either_submit(queue, &submission, NULL));
    assert_ok(gpusync_timeline_signal(timeline, 1));
    calls = r->memory.calls - calls;
    assert_true(gpusync_is_idle(queue));
    assert_ok(gpusync_timeline_destroy(timeline));
    return calls;
}

/* 64 submissions and 256 links stay, for all queues of the device. */
static void test_what_a_burst_of_submissions_needed_goes_back_at_once(void **state)
{
    enum { MANY_HELD = 1000, KEPT = 64, LINKS = 256 };
    gpusync_queue *queues[4];
    long before, live;
    unsigned i;
    rig r;
    (void)state;
    NOT_ON_METAL4("submissions have command buffers");
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 4; i++) queues[i] = queue_new(r.device);
    (void)hold_many(&r, r.queue, 1);
    before = r.memory.live;
    assert_in_range(hold_many(&r, r.queue, MANY_HELD), 2 * (MANY_HELD - 1), 2 * MANY_HELD + 100);
    live = r.memory.live;
    assert_in_range(live - before, KEPT + LINKS - 2, KEPT + LINKS + 20); /* and the larger ring of the queue */
    for (i = 0; i < 4; i++) assert_int_equal(hold_many(&r, queues[i], KEPT), 0);
    assert_int_equal(r.memory.live, live);
    for (i = 0; i < 4; i++) assert_ok(gpusync_queue_destroy(queues[i]));
    rig_close(&r);
}

static void test_the_jobs_of_a_queue_that_goes_are_there_for_the_next(void **state)
{
    rig r;
    unsigned i;
    long kept = 0;
    (void)state;
    NOT_ON_METAL4("submissions have command buffers");
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 20; i++) {
        gpusync_queue *queue;
        gpusync_submission submission;
        memset(&submission, 0, sizeof submission);
        queue = queue_new(r.device);
        assert_ok(gpusync_submit(queue, &submission, NULL));
        assert_ok(gpusync_queue_destroy(queue));
        if (i == 0) kept = r.memory.live;
    }
    assert_int_equal(r.memory.live, kept);
    rig_close(&r);
}

/* -- many threads --------------------------------------------------------------------------------------- */

#define WORKERS 8
#define QUEUES 4
#define TIMELINES 4
#define ORDERS 24 /* submissions of a thread in a round */

/* cmocka's asserts are for its own thread alone. */
#define check(condition) \
    do \
        if (!(condition)) broken(__LINE__, #condition); \
    while (0)
__attribute__((noreturn)) static void broken(int line, const char *condition)
{
    fprintf(stderr, "%s:%d: not so: %s (SEED=%llu)\n", __FILE__, line, condition, (unsigned long long)seed);
    abort();
}

typedef struct order {
    int queue, timeline;
    gpusync_ticket ticket;
    gpusync_point signal;
    gpusync_result result, told;
    unsigned calls;
    bool refused;
} order;

typedef struct crowd {
    rig r;
    gpusync_queue *queues[QUEUES];
    gpusync_timeline *timelines[TIMELINES];
    pthread_mutex_t drawing, entering[QUEUES];
    uint64_t drawn[TIMELINES];
    order orders[WORKERS][ORDERS];
} crowd;

typedef struct worker {
    crowd *c;
    int index;
    uint64_t random;
    pthread_t thread;
} worker;

static uint64_t below(worker *w, uint64_t limit)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (w->random >> 11) % limit;
}

static void order_done(void *user, gpusync_result result, const gpusync_error *error)
{
    order *o = (order *)user;
    check((result == GPUSYNC_OK) == (error == NULL));
    PUT(&o->told, result);
    __atomic_fetch_add(&o->calls, 1, __ATOMIC_SEQ_CST);
}

/* The next value of a timeline, after the one before it, and others that a worker has drawn already: so no work waits
   in a circle, though the work that signals may come later. */
static size_t draw_points(worker *w, order *o, gpusync_point *waits)
{
    crowd *c = w->c;
    size_t i, count = 1 + (size_t)below(w, 3);
    pthread_mutex_lock(&c->drawing);
    waits[0] = at(c->timelines[o->timeline], c->drawn[o->timeline]++);
    o->signal = at(c->timelines[o->timeline], c->drawn[o->timeline]);
    for (i = 1; i < count; i++) {
        uint64_t k = below(w, TIMELINES);
        if ((int)k == o->timeline) waits[i] = waits[0];
        else waits[i] = at(c->timelines[k], c->drawn[k]);
    }
    pthread_mutex_unlock(&c->drawing);
    return count;
}

/* In the order of its draw, or UNORDERED. */
static void submit_order(worker *w, order *o)
{
    crowd *c = w->c;
    gpusync_submission submission;
    gpusync_point waits[3];
    gpusync_result result;
    void *buffers[2];
    int i, count = (int)below(w, 3);
    if (metal4_run() && count == 0) count = 1;
    memset(&submission, 0, sizeof submission);
    for (i = 0; i < count; i++) check(either_buffer(c->queues[o->queue], NULL, &buffers[i]) == GPUSYNC_OK);
    submission.flags = (uint32_t)below(w, 4) * GPUSYNC_STRICT | (below(w, 2) ? SIGNALS_INSIDE : 0);
    if (!(submission.flags & GPUSYNC_UNORDERED)) pthread_mutex_lock(&c->entering[o->queue]);
    submission.wait_count = draw_points(w, o, waits);
    submission.waits = waits;
    submission.command_buffers = buffers;
    submission.command_buffer_count = (size_t)count;
    submission.signals = &o->signal;
    submission.signal_count = 1;
    submission.on_complete = order_done;
    submission.user = o;
    result = submit_as_told(c->queues[o->queue], &submission, &o->ticket);
    if (!(submission.flags & GPUSYNC_UNORDERED)) pthread_mutex_unlock(&c->entering[o->queue]);
    if (result == GPUSYNC_OK) return;
    check(result == GPUSYNC_ERROR_EXECUTION); /* of the timeline, as it has failed */
    o->refused = true;
    for (i = 0; i < count; i++)
        check(either_discard(c->queues[o->queue], buffers[i]) == GPUSYNC_OK);
}

static bool is_answer(gpusync_result result)
{
    return result >= 0 || result == GPUSYNC_ERROR_EXECUTION;
}

static void *work(void *argument)
{
    worker *w = (worker *)argument;
    crowd *c = w->c;
    unsigned i;
    for (i = 0; i < ORDERS; i++) {
        order *o = &c->orders[w->index][i];
        uint64_t what = below(w, 8);
        o->queue = (int)below(w, QUEUES);
        o->timeline = (int)below(w, TIMELINES);
        submit_order(w, o);
        if (o->refused) continue;
        if (what == 0) check(is_answer(gpusync_wait(c->queues[o->queue], o->ticket, below(w, 100000))));
        if (what == 1) check(is_answer(gpusync_poll(c->queues[o->queue], o->ticket)));
        if (what == 2) check(gpusync_timeline_wait(o->signal.timeline, o->signal.value, SECONDS(60), NULL) <= 0);
    }
    for (i = 0; i < ORDERS; i++) {
        order *o = &c->orders[w->index][i];
        if (!o->refused) o->result = gpusync_wait(c->queues[o->queue], o->ticket, SECONDS(60));
        check(o->result <= 0);
    }
    return NULL;
}

static void crowd_open(crowd *c, unsigned fail_per_mille)
{
    gpusync_queue_desc desc;
    softmetal_timing timing;
    softmetal_chaos chaos;
    int i;
    memset(c, 0, sizeof *c);
    rig_open(&c->r, SOFTMETAL_REAL);
    softmetal_set_seed(seed);
    softmetal_get_timing(&timing);
    timing.schedule.max_ns = 5000;
    timing.execute.max_ns = timing.notify.max_ns = 30000;
    timing.watchdog_ns = SECONDS(30);
    softmetal_set_timing(&timing);
    memset(&chaos, 0, sizeof chaos);
    chaos.fail_per_mille = fail_per_mille;
    chaos.late_handler_per_mille = 100;
    softmetal_set_chaos(&chaos);
    memset(&desc, 0, sizeof desc);
    desc.max_command_buffer_count = 2 * WORKERS * ORDERS * 4; /* nothing waits for room, whatever is held */
    desc.error_log_count = WORKERS * ORDERS;
    pthread_mutex_init(&c->drawing, NULL);
    for (i = 0; i < QUEUES; i++) {
        c->queues[i] = queue_of_kind(QUEUE_OF_GPUSYNC, c->r.device, &desc);
        pthread_mutex_init(&c->entering[i], NULL);
    }
    for (i = 0; i < TIMELINES; i++) assert_ok(gpusync_timeline_create(c->r.device, NULL, &c->timelines[i]));
}

/* A timeline that did not fail has all its values. */
static void assert_all_told(crowd *c)
{
    bool failed[TIMELINES] = {false};
    int i, k;
    for (i = 0; i < TIMELINES; i++) {
        uint64_t value;
        gpusync_result result = gpusync_timeline_query(c->timelines[i], &value);
        failed[i] = result != GPUSYNC_OK;
        if (!failed[i]) assert_int_equal(value, c->drawn[i]);
    }
    for (i = 0; i < WORKERS; i++) {
        for (k = 0; k < ORDERS; k++) {
            const order *o = &c->orders[i][k];
            assert_int_equal(GET(&o->calls), o->refused ? 0 : 1);
            assert_int_equal(o->told, o->result);
            if (o->refused || o->result) assert_true(failed[o->timeline]);
        }
    }
}

static void crowd_close(crowd *c)
{
    int i;
    let_them_end(); /* callbacks may come a moment later */
    assert_all_told(c);
    for (i = 0; i < TIMELINES; i++) assert_ok(gpusync_timeline_destroy(c->timelines[i]));
    for (i = 0; i < QUEUES; i++) assert_ok(gpusync_queue_destroy(c->queues[i]));
    for (i = 0; i < QUEUES; i++) pthread_mutex_destroy(&c->entering[i]);
    pthread_mutex_destroy(&c->drawing);
    assert_true(softmetal_settle(SECONDS(10)));
    assert_in_range(events_out(c->r.device), 0, 1); /* one may be the device's, for itself */
    for (i = 0; i < WORKERS * ORDERS; i++) assert_true(GET(&c->orders[i / ORDERS][i % ORDERS].calls) <= 1);
    rig_close(&c->r);
    assert_int_equal(softmetal_live("shared_event"), 0);
}

static void one_round(unsigned fail_per_mille)
{
    static crowd c;
    worker workers[WORKERS];
    int i;
    crowd_open(&c, fail_per_mille);
    for (i = 0; i < WORKERS; i++) {
        workers[i].c = &c;
        workers[i].index = i;
        workers[i].random = (seed * 0x9E3779B97F4A7C15u + (uint64_t)i) | 1;
        workers[i].thread = start(work, &workers[i]);
    }
    for (i = 0; i < WORKERS; i++) join(workers[i].thread);
    crowd_close(&c);
    seed++;
}

static void test_many_threads_are_called_back_once_for_each_submission(void **state)
{
    unsigned rounds = in_full() ? 1000 : 12;
    (void)state;
    while (rounds-- > 0) one_round(rounds % 3 == 0 ? 0 : rounds % 3 == 1 ? 5 : 50);
}

static void test_an_object_is_released_when_a_value_is_reached_or_its_timeline_goes(void **state)
{
    int goes;
    (void)state;
    for (goes = 0; goes < 2; goes++) {
        gpusync_timeline *timeline;
        void *object;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
        object = metal_shared_event_new(r.metal_device);
        assert_ok(gpusync_release_after(gpusync_at_value(timeline, 2), object));
        assert_int_equal(softmetal_retain_count(object), 2);
        assert_ok(gpusync_timeline_signal(timeline, 1));
        assert_true(softmetal_dispatched(SECONDS(20)));
        assert_int_equal(softmetal_retain_count(object), 2);
        if (!goes) assert_ok(gpusync_timeline_signal(timeline, 2));
        assert_true(softmetal_dispatched(SECONDS(20)));
        assert_int_equal(softmetal_retain_count(object), goes ? 2 : 1);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_int_equal(softmetal_retain_count(object), 1);
        assert_result(gpusync_release_after(gpusync_at_ticket(r.queue, 1), object), GPUSYNC_ERROR_INVALID_TICKET);
        assert_result(gpusync_release_after(gpusync_at_value(NULL, 1), object), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_int_equal(softmetal_retain_count(object), 1);
        metal_release(object);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_ends_well_is_let_go),
        cmocka_unit_test(test_what_fails_is_let_go),
        cmocka_unit_test(test_what_a_lost_device_had_is_let_go),
        cmocka_unit_test(test_what_a_destroyed_queue_had_in_flight_is_let_go),
        cmocka_unit_test(test_what_was_held_is_let_go),
        cmocka_unit_test(test_a_submission_that_fails_at_any_step_leaves_all_as_it_was),
        cmocka_unit_test(test_a_command_buffer_with_waits_that_fails_at_any_step_leaves_all_as_it_was),
        cmocka_unit_test(test_a_release_that_cannot_be_put_off_retains_nothing),
        cmocka_unit_test(test_a_submission_that_is_refused_at_its_last_item_leaves_all_as_it_was),
        cmocka_unit_test(test_an_object_is_released_after_its_ticket_once),
        cmocka_unit_test(test_an_object_of_given_up_work_stays_until_its_queue_goes),
        cmocka_unit_test(test_an_object_of_an_ended_or_held_ticket_is_released),
        cmocka_unit_test(test_events_are_used_again),
        cmocka_unit_test(test_submissions_in_the_steady_state_allocate_nothing),
        cmocka_unit_test(test_what_a_burst_of_submissions_needed_goes_back_at_once),
        cmocka_unit_test(test_the_jobs_of_a_queue_that_goes_are_there_for_the_next),
        cmocka_unit_test(test_many_threads_are_called_back_once_for_each_submission),
        cmocka_unit_test(test_what_waits_for_values_goes_on_without_its_queue),
        cmocka_unit_test(test_an_object_is_released_when_a_value_is_reached_or_its_timeline_goes),
        cmocka_unit_test(test_an_object_of_a_given_up_value_stays_until_its_timeline_goes),
    };
    seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : gpusync_now_ns() % 1000000007u;
    print_message("SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
