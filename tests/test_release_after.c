/* test_release_after.c - gpusync_release_after: an object is released once, after its ticket's end, and inside no call

   Proved for tickets of every kind, with late and lost handlers, with a queue that is destroyed and a device that is
   lost; and that nothing is retained where the call refuses.

   It also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

static void test_an_object_is_released_once_when_its_ticket_has_ended(void **state)
{
    int kind;
    unsigned fails;
    (void)state;
    for (kind = 0; kind < TICKET_KINDS; kind++)
        for (fails = 0; fails < 2; fails++) {
            gpusync_ticket ticket;
            void *object;
            stage s;
            if (metal4_run() && kind != PLAIN_COMMIT && kind != SUBMISSION) continue;
            open_stage(&s, SOFTMETAL_MANUAL, 1);
            object = memory_of(&s, 1);
            ticket = ticket_of(&s, 0, kind, fails);
            assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
            assert_int_equal(owners_of(object), 2);
            assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object)); /* the same again */
            assert_int_equal(owners_of(object), 3);
            finish(&s, 0);
            assert_int_equal(owners_of(object), 1);
            assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object)); /* at once */
            assert_int_equal(owners_of(object), 1);
            metal_release(object);
            assert_int_equal(softmetal_live("buffer"), 0);
            close_stage(&s);
        }
}

static void test_an_object_is_not_released_inside_a_wait(void **state)
{
    gpusync_ticket ticket;
    void *object, *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    object = memory_of(&s, 1);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer));
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
    softmetal_set_dispatch_threads(0);
    show_end(buffer);
    assert_ok(gpusync_wait(s.q[0], ticket, 0));
    assert_int_equal(softmetal_retain_count(object), 2);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    finish(&s, 0);
    assert_int_equal(owners_of(object), 1);
    metal_release(object);
    close_stage(&s);
}

/* A ticket may end without any command buffer of Metal's. */
static void test_an_object_is_released_soon_though_no_handler_is_to_come(void **state)
{
    unsigned tracked;
    (void)state;
    for (tracked = 0; tracked < (metal4_run() ? 1 : 2); tracked++) {
        void *object, *buffer;
        gpusync_ticket ticket;
        stage s;
        open_stage(&s, SOFTMETAL_MANUAL, 1);
        object = memory_of(&s, 1);
        buffer = metal4_run() ? kept_buffer_of(s.q[0]) : metal_queue_command_buffer(s.metal[0]);
        if (tracked) assert_ok(gpusync_track(s.q[0], buffer, &ticket));
        else ticket = SUBMIT(s.q[0], BUFFERS(buffer), WAITS(at(s.a, 1)));
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
        assert_int_equal(owners_of(object), 2);
        if (tracked) assert_ok(gpusync_untrack(s.q[0], ticket));
        else assert_ok(gpusync_cancel_held(s.q[0]));
        finish(&s, 0);
        assert_int_equal(owners_of(object), 1);
        metal_release(object);
        metal_release(buffer);
        close_stage(&s);
    }
}

static void test_an_object_waits_for_its_own_ticket_only(void **state)
{
    enum { MANY = 100 };
    gpusync_ticket tickets[3];
    void *objects[3], *buffers[3];
    unsigned i, k;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 3; i++) {
        objects[i] = memory_of(&s, 1);
        buffers[i] = open_on(&s, 0);
        tickets[i] = i == 1 ? commit_to(s.q[0], buffers[i]) : SUBMIT(s.q[0], BUFFERS(buffers[i]));
        for (k = 0; k < MANY; k++) assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], tickets[i]), objects[i]));
    }
    softmetal_finish(buffers[1]);
    assert_int_equal(owners_of(objects[0]), 1 + MANY);
    assert_int_equal(owners_of(objects[1]), 1);
    softmetal_finish(buffers[0]);
    assert_int_equal(owners_of(objects[0]), 1);
    assert_int_equal(owners_of(objects[2]), 1 + MANY);
    finish(&s, 0);
    for (i = 0; i < 3; i++) {
        assert_int_equal(owners_of(objects[i]), 1);
        metal_release(objects[i]);
    }
    close_stage(&s);
}

static void test_destroying_the_queue_releases_what_is_left(void **state)
{
    gpusync_ticket held;
    void *objects[2], *buffer;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    objects[0] = memory_of(&s, 1);
    objects[1] = memory_of(&s, 1);
    held = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 1)));
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], held), objects[0]));
    close_queue(&s, 0);
    assert_int_equal(owners_of(objects[0]), 1);
    buffer = metal_retain(open_on(&s, 1));
    metal_retain(s.metal[1]);
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[1], commit_to(s.q[1], buffer)), objects[1]));
    assert_ok(gpusync_queue_destroy_now(s.q[1])); /* with the work in flight */
    s.q[1] = NULL;
    assert_int_equal(owners_of(objects[1]), 1);
    finish(&s, 1);
    assert_int_equal(owners_of(objects[1]), 1);
    metal_release(buffer);
    metal_release(s.metal[1]);
    metal_release(objects[0]);
    metal_release(objects[1]);
    close_stage(&s);
}

/* Work of another queue fails in a way that takes the device away. */
static void lose_the_device(stage *s, unsigned i)
{
    void *culprit = open_on(s, i);
    fail_with_the_device(culprit);
    (void)commit_to(s->q[i], culprit);
    finish(s, i);
    assert_true(gpusync_device_is_lost(s->device));
}

static bool is_there(int kind) { return !metal4_run() || kind == PLAIN_COMMIT || kind == SUBMISSION; }

/* gpusync cannot know any more when the GPU is through with it. */
static void test_on_a_lost_device_an_object_is_kept_until_its_queue_is_destroyed(void **state)
{
    int run;
    (void)state;
    for (run = 0; run < 2 * TICKET_KINDS; run++) {
        int kind = run % TICKET_KINDS;
        gpusync_ticket ticket;
        void *objects[3];
        unsigned i;
        stage s;
        if (!is_there(kind)) continue;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        for (i = 0; i < LENGTH(objects); i++) objects[i] = memory_of(&s, 1);
        ticket = ticket_of(&s, 0, kind, false);
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), objects[0])); /* before, */
        lose_the_device(&s, 1);
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), objects[1])); /* ... after the loss, */
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
        probe_give_up_lost(s.device);
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_ERROR_DEVICE_LOST);
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), objects[2])); /* ... and behind the end */
        for (i = 0; i < LENGTH(objects); i++) assert_int_equal(owners_of(objects[i]), 2);
        finish(&s, 0); /* too late: nobody is told */
        for (i = 0; i < LENGTH(objects); i++) assert_int_equal(owners_of(objects[i]), 2);
        if (run < TICKET_KINDS) close_queue(&s, 0);
        else take_down_queue(&s, 0, true);
        for (i = 0; i < LENGTH(objects); i++) {
            assert_int_equal(owners_of(objects[i]), 1);
            metal_release(objects[i]);
        }
        close_stage(&s);
    }
}

/* Also where nothing that was there before keeps it back. */
static void test_an_object_for_what_was_given_up_before_is_kept_until_its_queue_is_destroyed(void **state)
{
    int kind;
    (void)state;
    for (kind = 0; kind < TICKET_KINDS; kind++) {
        gpusync_ticket ticket;
        void *object;
        stage s;
        if (!is_there(kind)) continue;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        object = memory_of(&s, 1);
        ticket = ticket_of(&s, 0, kind, false);
        lose_the_device(&s, 1);
        probe_give_up_lost(s.device);
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_ERROR_DEVICE_LOST);
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object));
        assert_int_equal(owners_of(object), 2);
        finish(&s, 0);
        assert_int_equal(owners_of(object), 2);
        close_queue(&s, 0);
        assert_int_equal(owners_of(object), 1);
        metal_release(object);
        close_stage(&s);
    }
}

/* Metal reports the end: the GPU is through with the object. */
static void test_on_a_lost_device_an_object_is_released_when_its_ticket_ends_in_time(void **state)
{
    int kind;
    unsigned fails;
    (void)state;
    for (kind = 0; kind < TICKET_KINDS; kind++)
        for (fails = 0; fails < 2; fails++) {
            gpusync_ticket ticket;
            void *objects[2];
            unsigned i;
            stage s;
            if (!is_there(kind)) continue;
            open_stage(&s, SOFTMETAL_MANUAL, 2);
            for (i = 0; i < 2; i++) objects[i] = memory_of(&s, 1);
            ticket = ticket_of(&s, 0, kind, fails);
            assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), objects[0]));
            lose_the_device(&s, 1);
            assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), objects[1]));
            for (i = 0; i < 2; i++) assert_int_equal(owners_of(objects[i]), 2);
            finish(&s, 0);
            for (i = 0; i < 2; i++) {
                assert_int_equal(owners_of(objects[i]), 1);
                metal_release(objects[i]);
            }
            close_stage(&s);
        }
}

/* It ends with the device, and the GPU has never had it. */
static void test_an_object_of_held_work_is_released_when_the_device_is_lost(void **state)
{
    gpusync_ticket held;
    void *object;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    object = memory_of(&s, 1);
    held = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), WAITS(at(s.a, 1)));
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], held), object));
    lose_the_device(&s, 1);
    assert_result(gpusync_poll(s.q[0], held), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(owners_of(object), 1);
    metal_release(object);
    close_stage(&s);
}

/* The timeline fails, and the work that was to signal it may go on. a: work in flight signals it; b: no work. */
static void test_on_a_lost_device_an_object_of_a_value_is_kept_until_its_timeline_is_destroyed(void **state)
{
    enum { WORK, HOST, AFTERWARDS, OBJECTS };
    void *objects[OBJECTS], *event, *metal;
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    for (i = 0; i < OBJECTS; i++) objects[i] = memory_of(&s, 1);
    event = metal_retain(probe_event_of(s.a, NULL));
    metal = metal_retain(s.metal[0]);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    assert_ok(gpusync_release_after(at(s.a, 1), objects[WORK]));
    assert_ok(gpusync_release_after(at(s.b, 1), objects[HOST]));
    lose_the_device(&s, 1);
    for (i = 0; i < AFTERWARDS; i++) assert_int_equal(owners_of(objects[i]), 2);
    probe_give_up_lost(s.device);
    assert_int_equal(reached(s.a, GPUSYNC_ERROR_DEVICE_LOST), 0);
    assert_int_equal(reached(s.b, GPUSYNC_ERROR_DEVICE_LOST), 0);
    assert_ok(gpusync_release_after(at(s.a, 1), objects[AFTERWARDS]));
    for (i = 0; i < OBJECTS; i++) assert_int_equal(owners_of(objects[i]), 2);
    finish(&s, 0);
    for (i = 0; i < OBJECTS; i++) assert_int_equal(owners_of(objects[i]), 2);
    take_down_timeline(&s, 0);
    take_down_timeline(&s, 1);
    for (i = 0; i < OBJECTS; i++) {
        assert_int_equal(owners_of(objects[i]), 1);
        metal_release(objects[i]);
    }
    metal_release(event);
    metal_release(metal);
    close_stage(&s);
}

/* It does not stand behind the objects that are kept until the destroy. Nor does one for a value that the loss failed. */
static void test_a_callback_for_what_was_given_up_does_not_wait_for_an_object_that_is_kept(void **state)
{
    int kind;
    (void)state;
    for (kind = 0; kind < TICKET_KINDS; kind++) {
        outcome of_ticket = {0}, of_value = {0};
        void *object;
        stage s;
        if (!is_there(kind)) continue;
        open_stage(&s, SOFTMETAL_MANUAL, 2);
        object = memory_of(&s, 1);
        of_ticket.ticket = ticket_of(&s, 0, kind, false);
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], of_ticket.ticket), object));
        assert_ok(gpusync_release_after(at(s.a, 5), object));
        lose_the_device(&s, 1);
        probe_give_up_lost(s.device);
        assert_int_equal(owners_of(object), 3);
        on_done(s.q[0], of_ticket.ticket, &of_ticket);
        on_value(s.a, 5, &of_value);
        assert_int_equal(calls_of(&of_ticket), 1);
        assert_ended(&of_ticket, GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(calls_of(&of_value), 1);
        assert_ended(&of_value, GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(owners_of(object), 3);
        finish(&s, 0);
        close_queue(&s, 0);
        take_down_timeline(&s, 0);
        assert_int_equal(owners_of(object), 1);
        metal_release(object);
        close_stage(&s);
    }
}

/* A value that the host signals in time is reached on a lost device, too. */
static void test_on_a_lost_device_an_object_of_a_value_is_released_when_the_host_signals_it(void **state)
{
    void *object;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    object = memory_of(&s, 1);
    assert_ok(gpusync_release_after(at(s.a, 1), object));
    lose_the_device(&s, 1);
    assert_int_equal(owners_of(object), 2);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_int_equal(owners_of(object), 1);
    metal_release(object);
    close_stage(&s);
}

static struct {
    stage *stage;
    void *buffer, *object;
    gpusync_ticket before;
    bool acted;
} amid_a_commit;

/* On a thread of its own. */
static void *lose_and_signal(void *argument)
{
    stage *s = (stage *)argument;
    void *culprit = open_on(s, 1);
    fail_with_the_device(culprit);
    (void)commit_to(s->q[1], culprit);
    softmetal_finish(culprit);
    must(gpusync_device_is_lost(s->device), "the device is not lost");
    probe_give_up_amid_a_commit(s->device);
    must(gpusync_poll(s->q[0], amid_a_commit.before) == GPUSYNC_NOT_READY, "the work was given up amid a commit");
    must(gpusync_timeline_signal(s->a, 5) == GPUSYNC_OK && value_of(s->a) == 5, "the value has not been reached");
    must(owners_of(amid_a_commit.object) == 1, "the object is kept though its value was reached");
    return NULL;
}

static void give_up_amid_a_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_AFTER || GET(&amid_a_commit.acted) || !commits(object, selector, amid_a_commit.buffer)) return;
    PUT(&amid_a_commit.acted, true);
    join(start(lose_and_signal, amid_a_commit.stage));
}

/* Both looks come amid a commit, which keeps its queue from being given up. The value comes before they do so again. */
static void test_an_object_of_a_value_that_is_reached_while_giving_up_has_to_come_again_is_released(void **state)
{
    outcome o = {0};
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    memset(&amid_a_commit, 0, sizeof amid_a_commit);
    amid_a_commit.stage = &s;
    amid_a_commit.object = memory_of(&s, 1);
    amid_a_commit.before = commit_on(&s, 0);
    assert_ok(gpusync_release_after(at(s.a, 5), amid_a_commit.object));
    on_value(s.a, 5, &o);
    assert_int_equal(owners_of(amid_a_commit.object), 2);
    amid_a_commit.buffer = open_on(&s, 0);
    must_return_within(20);
    softmetal_set_message_hook(give_up_amid_a_commit, NULL);
    (void)commit_to(s.q[0], amid_a_commit.buffer);
    softmetal_set_message_hook(NULL, NULL);
    has_returned();
    assert_true(amid_a_commit.acted);
    assert_ended(&o, GPUSYNC_OK);
    probe_give_up_lost(s.device);
    assert_result(gpusync_poll(s.q[0], amid_a_commit.before), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(owners_of(amid_a_commit.object), 1);
    metal_release(amid_a_commit.object);
    close_stage(&s);
}

static void test_nothing_is_retained_where_release_after_refuses(void **state)
{
    gpusync_ticket ticket;
    void *object;
    unsigned i;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 1);
    object = memory_of(&s, 1);
    ticket = commit_on(&s, 0);
    assert_result(gpusync_release_after(gpusync_at_ticket(NULL, ticket), object), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket + 1), object), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], GPUSYNC_EVERYTHING), object),
                  GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], ((gpusync_ticket)1 << 63) + 1), object),
                  GPUSYNC_ERROR_INVALID_TICKET);
    assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], GPUSYNC_NO_TICKET), object)); /* which has always ended */
    assert_int_equal(owners_of(object), 1);
    for (i = 0; i < 8; i++)
        assert_ok(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object)); /* these need no memory */
    s.rig.memory.fail_at = 1;
    s.rig.memory.fail_after = true;
    assert_result(gpusync_release_after(gpusync_at_ticket(s.q[0], ticket), object), GPUSYNC_ERROR_OUT_OF_MEMORY);
    s.rig.memory.fail_at = 0;
    assert_int_equal(owners_of(object), 1 + 8);
    finish(&s, 0);
    assert_int_equal(owners_of(object), 1);
    metal_release(object);
    close_stage(&s);
}

static void test_objects_to_be_released_after_a_held_ticket_are(void **state)
{
    gpusync_ticket held;
    void *object;
    unsigned round;
    stage s;
    (void)state;
    for (round = 0; round < 3; round++) {
        open_stage(&s, SOFTMETAL_REAL, 1);
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

static struct {
    gpusync_queue *queue;
    gpusync_result destroyed, waited;
    unsigned calls;
} last_wish;

static void goes_with_its_queue(void *unused)
{
    (void)unused;
    last_wish.destroyed = gpusync_queue_destroy(last_wish.queue);
    last_wish.waited = gpusync_wait(last_wish.queue, 2, SECONDS(10));
    __atomic_store_n(&last_wish.calls, 1, __ATOMIC_SEQ_CST);
}

/* A release runs the program's code as a callback does, and the same is forbidden in it. */
static void test_an_object_whose_dealloc_destroys_its_queue_is_told_of_the_deadlock(void **state)
{
    gpusync_ticket ticket;
    void *object, *first, *second;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&last_wish, 0, sizeof last_wish);
    last_wish.queue = r.queue;
    object = softmetal_new_witness(goes_with_its_queue, NULL);
    ticket = commit_empty(&r, &first);
    (void)commit_empty(&r, &second);
    assert_ok(gpusync_release_after(gpusync_at_ticket(r.queue, ticket), object));
    metal_release(object);
    softmetal_finish(first);
    while (!__atomic_load_n(&last_wish.calls, __ATOMIC_SEQ_CST)) sched_yield();
    assert_result(last_wish.destroyed, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_result(last_wish.waited, GPUSYNC_ERROR_WOULD_DEADLOCK);
    softmetal_finish(second);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_object_is_released_once_when_its_ticket_has_ended),
        cmocka_unit_test(test_an_object_is_not_released_inside_a_wait),
        cmocka_unit_test(test_an_object_is_released_soon_though_no_handler_is_to_come),
        cmocka_unit_test(test_an_object_waits_for_its_own_ticket_only),
        cmocka_unit_test(test_destroying_the_queue_releases_what_is_left),
        cmocka_unit_test(test_on_a_lost_device_an_object_is_kept_until_its_queue_is_destroyed),
        cmocka_unit_test(test_an_object_for_what_was_given_up_before_is_kept_until_its_queue_is_destroyed),
        cmocka_unit_test(test_on_a_lost_device_an_object_is_released_when_its_ticket_ends_in_time),
        cmocka_unit_test(test_an_object_of_held_work_is_released_when_the_device_is_lost),
        cmocka_unit_test(test_on_a_lost_device_an_object_of_a_value_is_kept_until_its_timeline_is_destroyed),
        cmocka_unit_test(test_a_callback_for_what_was_given_up_does_not_wait_for_an_object_that_is_kept),
        cmocka_unit_test(test_on_a_lost_device_an_object_of_a_value_is_released_when_the_host_signals_it),
        cmocka_unit_test(test_an_object_of_a_value_that_is_reached_while_giving_up_has_to_come_again_is_released),
        cmocka_unit_test(test_nothing_is_retained_where_release_after_refuses),
        cmocka_unit_test(test_objects_to_be_released_after_a_held_ticket_are),
        cmocka_unit_test(test_an_object_whose_dealloc_destroys_its_queue_is_told_of_the_deadlock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
