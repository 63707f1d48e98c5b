/* test_lock_interleavings.c - races that are stopped where the library takes or lets go of a lock

   Code that runs at that place stands for the other thread. Each race is replayed at every such place of a call, by
   number, until there is no further one. The numbers in the names are those of the list of interleavings that
   test_interleavings.c begins. */
#define GPUSYNC_IMPLEMENTATION
#include "probe.h"
#include "stage.h"

/* -- 16: a submission's second signal is refused while the host raises the timeline of its first ---------------- */

static unsigned unparks, unparks_under_locks;

static void watching_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    unparks++;
    if (probe_locks_held()) unparks_under_locks++;
    probe_default_hooks().unpark(NULL, waiter);
}

static void signal_ten(void *timeline) { assert_ok(gpusync_timeline_signal((gpusync_timeline *)timeline, 10)); }

static gpusync_result waited;

static void *wait_for_seven(void *timeline)
{
    waited = gpusync_timeline_wait((gpusync_timeline *)timeline, 7, SECONDS(5), NULL);
    return NULL;
}

/* The host signals 10, above the promised 5, where the submission takes the lock over the second timeline for the
   place-th time: the value stays below the promise until that is taken back. Returns whether there was such a time. */
static bool is_raised_at(int place)
{
    gpusync_hooks hooks = probe_default_hooks();
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_submission submission;
    gpusync_timeline *first, *second;
    gpusync_point signals[2];
    gpusync_ticket ticket;
    pthread_t waiter;
    bool raised;
    rig r;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&submission, 0, sizeof submission);
    hooks.unpark = watching_unpark;
    device_desc.hooks = &hooks;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    assert_ok(gpusync_timeline_create(r.device, NULL, &first));
    assert_ok(gpusync_timeline_create(r.device, NULL, &second));
    assert_ok(gpusync_timeline_signal(second, 10));
    waiter = start(wait_for_seven, first);
    await_sleepers(r.device, 1);
    unparks = unparks_under_locks = 0;
    signals[0] = at(first, 5);
    signals[1] = at(second, 3); /* does not rise: the call fails, after the promise of the first */
    submission.signals = signals;
    submission.signal_count = 2;
    probe_at_timeline_lock(second, place, signal_ten, first);
    assert_result(gpusync_submit(r.queue, &submission, &ticket), GPUSYNC_ERROR_NOT_RISING);
    raised = probe_has_acted();
    if (!raised) signal_ten(first);
    join(waiter);
    assert_ok(waited);
    assert_true(unparks > 0);
    assert_int_equal(unparks_under_locks, 0);
    assert_ok(gpusync_timeline_destroy(first));
    assert_ok(gpusync_timeline_destroy(second));
    rig_close(&r);
    return raised;
}

static void test_16_a_refused_submission_wakes_waiters_without_a_lock(void **state)
{
    int place = 1;
    (void)state;
    while (is_raised_at(place)) place++;
    assert_true(place > 1);
}

/* -- 17: a timeline is destroyed while held work registers with its event ----------------------------------------- */

typedef struct doomed {
    rig r;
    gpusync_timeline *timeline;
    void *event;
    uint64_t base;
    pthread_t destroyer;
    unsigned destroys, arrived;
} doomed;

static void *destroy_timeline(void *argument)
{
    doomed *d = (doomed *)argument;
    assert_ok(gpusync_timeline_destroy(d->timeline));
    return NULL;
}

static void begin_to_destroy(doomed *d)
{
    d->destroys = 1;
    d->destroyer = start(destroy_timeline, d);
}

static void destroy_it_now(void *argument)
{
    begin_to_destroy((doomed *)argument);
    join(((doomed *)argument)->destroyer);
}

static void arrives(void *argument) { __atomic_store_n(&((doomed *)argument)->arrived, 1, __ATOMIC_SEQ_CST); }

/* ... as far as the timeline's lock, which the commit may have. */
static void destroy_it_up_to_the_lock(void *argument)
{
    doomed *d = (doomed *)argument;
    probe_at_timeline_lock(d->timeline, 1, arrives, d);
    begin_to_destroy(d);
    while (!__atomic_load_n(&d->arrived, __ATOMIC_SEQ_CST)) sched_yield();
}

/* A commit is held for a value that nobody is to signal, and registers with the timeline's event. The timeline goes when
   the commit takes its lock for the place-th time, before it has it, or, `inside`, when it takes any lock. Returns whether
   there was such a time. */
static bool goes_at(int place, bool inside)
{
    gpusync_point wait;
    gpusync_ticket ticket;
    void *buffer;
    doomed d;
    memset(&d, 0, sizeof d);
    rig_open(&d.r, SOFTMETAL_MANUAL);
    assert_ok(gpusync_timeline_create(d.r.device, NULL, &d.timeline));
    d.event = metal_retain(gpusync_timeline_metal(d.timeline, &d.base));
    assert_ok(gpusync_timeline_expect(d.timeline, 5));
    wait = at(d.timeline, 7);
    assert_ok(make_behind(d.r.queue, NULL, &wait, 1, &buffer));
    if (inside) probe_at_any_lock(place, destroy_it_up_to_the_lock, &d);
    else probe_at_timeline_lock(d.timeline, place, destroy_it_now, &d);
    assert_ok(gpusync_commit(d.r.queue, buffer, &ticket));
    (void)probe_has_acted();
    if (!d.destroys) assert_ok(gpusync_timeline_destroy(d.timeline));
    else if (inside) join(d.destroyer);
    metal_event_signal(d.event, d.base + 7); /* a registration that was left behind would call what was the timeline */
    assert_true(softmetal_settle(SECONDS(5)));
    assert_result(gpusync_wait(d.r.queue, ticket, SECONDS(5)), GPUSYNC_ERROR_DESTROYED);
    metal_release(d.event);
    rig_close(&d.r);
    return d.destroys;
}

static void test_17_a_timeline_goes_before_held_work_registers_with_its_event(void **state)
{
    int place = 1;
    (void)state;
    while (goes_at(place, false)) place++;
    assert_true(place > 3); /* it is listed, looked for, registered */
}

static void test_17_a_timeline_goes_while_held_work_registers_with_its_event(void **state)
{
    int place = 1;
    (void)state;
    while (goes_at(place, true)) place++;
    assert_true(place > 5);
}

/* -- 22: room is there, is taken, is given back while a waiter registers --------------------------------------- */

static struct {
    rig r;
    void *first, *second;
    int taken_at;
    unsigned parks, unparks, told;
} room;

static void *take_the_room(void *unused)
{
    static const uint64_t at_once = 0;
    gpusync_command_buffer_desc desc;
    (void)unused;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &at_once;
    if (gpusync_command_buffer(room.r.queue, &desc, &room.second) != GPUSYNC_OK) room.second = NULL;
    return NULL;
}

static void others_take_it(void *unused) { join(start(take_the_room, unused)); }

static void room_comes(void)
{
    void *first = room.first;
    room.first = NULL;
    softmetal_finish(first);
}

static void room_comes_and_goes(void *unused)
{
    if (!room.first) return; /* this is its handler, on the way because the waiter sleeps already */
    room_comes();
    probe_at_unlock(room.taken_at, others_take_it, unused);
}

static void park_for_room(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    (void)waiter;
    (void)deadline_ns;
    if (room.second) { /* while it sleeps, the room comes back: whoever is listed is told */
        void *second = room.second;
        room.second = NULL;
        room.unparks = 0;
        room.parks++;
        assert_ok(gpusync_command_buffer_discard(room.r.queue, second));
        room.told += room.unparks;
    } else if (room.first) {
        room_comes();
    }
}

static void unpark_for_room(void *user, gpusync_waiter *waiter)
{
    (void)user;
    (void)waiter;
    room.unparks++;
}

/* Room comes where the waiter takes its n-th lock, and others take it when it lets go of its m-th after that. */
static void wait_for_room_at(int n, int m)
{
    gpusync_hooks hooks = {NULL, park_for_room, unpark_for_room, NULL};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    void *third;
    memset(&room, 0, sizeof room);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    device_desc.wait_mode = GPUSYNC_WAIT_HANDLER;
    queue_desc.max_command_buffer_count = 1;
    rig_open_with(&room.r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    (void)commit_empty(&room.r, &room.first);
    room.taken_at = m;
    probe_at_lock(n, room_comes_and_goes, NULL);
    assert_ok(gpusync_command_buffer(room.r.queue, NULL, &third));
    (void)probe_has_acted();
    assert_int_equal(room.told, room.parks);
    assert_ok(gpusync_command_buffer_discard(room.r.queue, third));
    if (room.second) assert_ok(gpusync_command_buffer_discard(room.r.queue, room.second));
    if (room.first) softmetal_finish(room.first);
    rig_close(&room.r);
}

static void test_22_who_waits_for_room_is_told_though_it_was_there_a_moment_ago(void **state)
{
    unsigned slept = 0;
    int n, m;
    (void)state;
    for (n = 1; n < 8; n++)
        for (m = 1; m < 6; m++) {
            wait_for_room_at(n, m);
            slept += room.parks;
        }
    assert_true(slept > 0); /* it did sleep for what others had taken */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_16_a_refused_submission_wakes_waiters_without_a_lock),
        cmocka_unit_test(test_17_a_timeline_goes_before_held_work_registers_with_its_event),
        cmocka_unit_test(test_17_a_timeline_goes_while_held_work_registers_with_its_event),
        cmocka_unit_test(test_22_who_waits_for_room_is_told_though_it_was_there_a_moment_ago),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
