/* test_room.c - threads that wait for room on a queue: in which order, for how long, and when the wait is in vain

   Time stands still (still.h). What counts as room: test_commit. */
#define GPUSYNC_IMPLEMENTATION
#include "still.h"

#define ROOM 4u
#define FULL .queue = {.max_command_buffer_count = ROOM}
#define threads .device = {.hooks = &patient_hooks}
#define alone .device = {.hooks = &passing_hooks}

static gpusync_result make(gpusync_queue *queue, uint64_t timeout_ns, void **made)
{
    *made = made;
    gpusync_result result = gpusync_command_buffer_create(queue, NULL, timeout_ns, made);
    assert_int_equal(*made == NULL, result != GPUSYNC_OK);
    return result;
}

/* -- the order of arrival ----------------------------------------------------------------------------------------- */

enum { ENCODERS = 8 };

/* Each place wakes one thread, the one that came first; none that comes later gets in before it. Parks that return
   early change nothing. */
on_stage_with(test_R37_each_place_wakes_one_thread_in_the_order_of_arrival, threads, FULL)
{
    for (unsigned early = 0; early < 2; early++) {
        job jobs[ENCODERS] = {0};
        void *newcomer;
        for (unsigned i = 0; i < ROOM; i++)
            commit_new(s->q[0]);
        for (unsigned i = 0; i < ENCODERS; i++) {
            job_buffer(&jobs[i], s->q[0], GPUSYNC_FOREVER);
            await_parked(i + 1);
        }
        for (unsigned i = 0; i < ENCODERS; i++) {
            for (unsigned k = 0; k < 3 * early; k++) {
                unsigned long parks = kit_now().parks;
                end_parks();
                await_parks(parks + ENCODERS - i);
            }
            unsigned long unparks = kit_now().unparks;
            if (i < ROOM)
                assert_true(finish_next(s->q[0]));
            else
                assert_ok(gpusync_command_buffer_discard(s->q[0], jobs[i - ROOM].buffer));
            assert_result(make(s->q[0], 0, &newcomer), GPUSYNC_TIMEOUT); /* the place is the thread's, before it runs */
            assert_ok(job_end(&jobs[i]));
            assert_non_null(jobs[i].buffer);
            assert_int_equal(kit_now().unparks, unparks + 1);
            for (unsigned k = i + 1; k < ENCODERS; k++)
                assert_false(job_is_over(&jobs[k]));
        }
        for (unsigned i = ROOM; i < ENCODERS; i++)
            assert_ok(gpusync_command_buffer_discard(s->q[0], jobs[i].buffer));
    }
}

/* -- waits in vain ------------------------------------------------------------------------------------------------ */

/* What another thread does while the one that waits sleeps. */
static struct {
    stage *s;
    uint64_t began, at_ns; /* when it does so */
    void (*then)(stage *s);
} meanwhile;

static void at_its_time(void *unused, unsigned park)
{
    if (meanwhile.then && GET(&still_now) - meanwhile.began >= meanwhile.at_ns) {
        void (*then)(stage *) = meanwhile.then;
        meanwhile.then = NULL;
        then(meanwhile.s);
    }
}

static void begin(stage *s, uint64_t at_ns, void (*then)(stage *s))
{
    meanwhile.s = s;
    meanwhile.began = GET(&still_now);
    meanwhile.at_ns = at_ns;
    meanwhile.then = then;
    while_parked(at_its_time, NULL);
}

static uint64_t passed(void)
{
    return GET(&still_now) - meanwhile.began;
}

static void leave_alone(stage *s) {}
static void send_to_another(stage *s)
{
    commit_new(s->q[1]);
}
static void hold_on_another(stage *s)
{
    commit(s->q[1], waiting(s->q[1], at(s->t[0], 9)));
}

/* A window at 60 Hz, on another queue: it is never idle. */
static void show_frames(void *stage_, unsigned park)
{
    stage *s = (stage *)stage_;
    finish_next(s->q[1]);
    commit_new(s->q[1]);
}

/* All places are open buffers: only the program makes room, so FOREVER would be for ever, whatever other queues do
   (vello#1246). Calls behind the second end at once. A limit stays a limit. */
on_stage_with(test_R37_behind_open_buffers_alone_forever_ends_after_a_second, .queues = 2, .timelines = 1, alone, FULL)
{
    void (*const others[])(stage * s) = {leave_alone, send_to_another, hold_on_another, send_to_another};
    void *open[ROOM], *made;
    for (unsigned i = 0; i < LENGTH(others); i++) {
        others[i](s);
        for (unsigned k = 0; k < ROOM; k++)
            open[k] = new_buffer(s->q[0]);
        begin(s, 0, NULL);
        if (i == LENGTH(others) - 1)
            while_parked(show_frames, s);
        assert_result(make(s->q[0], GPUSYNC_FOREVER, &made), GPUSYNC_ERROR_QUEUE_FULL);
        assert_in_range(passed(), SECONDS(1), MS(1400)); /* a slice at most behind the second */
        begin(s, 0, NULL);
        assert_result(make(s->q[0], GPUSYNC_FOREVER, &made), GPUSYNC_ERROR_QUEUE_FULL);
        assert_int_equal(passed(), 0);
        assert_result(make(s->q[0], SECONDS(3), &made), GPUSYNC_TIMEOUT);
        assert_in_range(passed(), SECONDS(3), SECONDS(3) + MS(1));
        assert_ok(gpusync_command_buffer_discard(s->q[0], open[0])); /* no call has taken a place with it */
        assert_ok(make(s->q[0], GPUSYNC_FOREVER, &open[0]));
        for (unsigned k = 0; k < ROOM; k++)
            assert_ok(gpusync_command_buffer_discard(s->q[0], open[k]));
        finish_next(s->q[1]);
        assert_ok(gpusync_queue_cancel_held(s->q[1], GPUSYNC_EVERYTHING));
    }
}

static void hold(stage *s)
{
    commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
}
static void hold_barrier(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)));
}
static void send(stage *s)
{
    commit_new(s->q[0]);
}
static void send_marker(stage *s)
{
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
}

static void hold_unordered(stage *s)
{
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), .flags = GPUSYNC_SUBMIT_UNORDERED);
}

/* The host lets go what it is to let go, and the GPU ends what it has: one piece of work. */
static void let_one_end(stage *s)
{
    (void)!gpusync_timeline_signal(s->t[0], 1);
    assert_true(finish_next(s->q[0]) || gpusync_in_flight(s->q[0]) == 0);
}

/* Committed work makes room by itself, however long that takes: held work that a slow host lets go after two and a half
   seconds, and work that the GPU ends so late. One piece of work is enough, among open buffers. */
without_stage(test_R37_committed_work_makes_room_however_long_that_takes)
{
    void (*const works[])(stage * s) = {hold, hold_barrier, hold_unordered, send, send_marker};
    for (size_t i = 0; i < 2 * LENGTH(works); i++) {
        stage s;
        void *made;
        stage_open(&s, &(stage_desc){.timelines = 1, alone, FULL});
        for (unsigned k = 0; k < (i % 2 ? ROOM : 1); k++)
            works[i / 2](&s);
        while (gpusync_command_buffer_create(s.q[0], NULL, 0, &made) == GPUSYNC_OK) {}
        begin(&s, MS(2500), let_one_end);
        assert_ok(make(s.q[0], GPUSYNC_FOREVER, &made));
        assert_in_range(passed(), MS(2500), MS(2900));
        stage_close(&s);
    }
}

static gpusync_queue *full;
static job *late; /* a call that comes as a place has changed hands, and its new owner has not run */

static void unpark_behind_another(void *user, gpusync_waiter *waiter)
{
    job *comes = late;
    late = NULL;
    if (comes)
        job_buffer(comes, full, GPUSYNC_FOREVER);
    while (comes && !job_is_over(comes) && kit_now().parked < 2)
        sched_yield();
    kit_unpark(user, waiter);
}

static const gpusync_hooks late_hooks = {.yield = kit_yield, .park = park_patiently, .unpark = unpark_behind_another};

/* The other places have been open buffers for two seconds. */
on_stage_with(test_R37_a_discard_begins_the_second_anew, .device = {.hooks = &late_hooks}, FULL)
{
    void *open[ROOM];
    job first = {0}, second = {0};
    for (unsigned i = 0; i < ROOM; i++)
        open[i] = new_buffer(s->q[0]);
    full = s->q[0];
    job_buffer(&first, full, SECONDS(9));
    await_parked(1);
    pass(SECONDS(2));
    late = &second;
    assert_ok(gpusync_command_buffer_discard(full, open[0]));
    assert_ok(job_end(&first));
    assert_false(job_is_over(&second));
    await_parked(1);
    pass(SECONDS(1));
    end_parks();
    assert_result(job_end(&second), GPUSYNC_ERROR_QUEUE_FULL);
}
