/* test_warmup.c - what is made in advance: R41

   The program makes an item behind a door: a thread that comes to it is noted, and passes when the test lets it. So the
   test knows what is made, what is being made, and what has not begun. What is made is an object that tells of its end.

   Contents
     >>door       the door, and calls on threads of their own
     >>make       what is made, where, in which order, how often; what a call of fn may do
     >>share      many threads, one item
     >>fail       what cannot be made, and what is told of it
     >>ask        arguments, no memory, no dispatch queue
     >>destroy    a warm-up that goes in the middle, the device's end
     >>beside     callbacks, hooks, work on queues, other warm-ups, a lost device */
#include "kit.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

/* ------------------------------------------------------------------------------------------------------- >>door -- */

#define EVERYONE UINT_MAX
enum { FOUR = 4, DOOR_MOST = 64 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned come, through; /* how many have come to it, and how many may go on */
    unsigned free_from;     /* from this one on, counted from 0, no thread stops */
    pthread_t who[DOOR_MOST];
    size_t item[DOOR_MOST];
    unsigned quality[DOOR_MOST]; /* of service, of the dispatch queue on whose thread it is; 0: none */
} door = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void come_to_door(size_t item)
{
    pthread_mutex_lock(&door.lock);
    unsigned n = door.come++;
    if (n < DOOR_MOST) {
        door.who[n] = pthread_self();
        door.item[n] = item;
        door.quality[n] = softmetal_dispatch_qos(NULL);
    }
    pthread_cond_broadcast(&door.changed);
    while (door.through <= n && n < door.free_from) pthread_cond_wait(&door.changed, &door.lock);
    pthread_mutex_unlock(&door.lock);
}

/* The first `through` that come go on at once. */
static void set_door(unsigned through)
{
    pthread_mutex_lock(&door.lock);
    door.come = 0;
    door.through = through;
    door.free_from = EVERYONE;
    pthread_mutex_unlock(&door.lock);
}

/* Those that come from now on do not stop; or do again. */
static void let_others_through(bool free)
{
    pthread_mutex_lock(&door.lock);
    door.free_from = free ? door.come : EVERYONE;
    pthread_mutex_unlock(&door.lock);
}

static void let_through(unsigned through)
{
    pthread_mutex_lock(&door.lock);
    door.through = through;
    pthread_cond_broadcast(&door.changed);
    pthread_mutex_unlock(&door.lock);
}

static void await_come(unsigned n)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 60;
    pthread_mutex_lock(&door.lock);
    while (door.come < n)
        must(pthread_cond_timedwait(&door.changed, &door.lock, &limit) != ETIMEDOUT, "too few come to the door");
    pthread_mutex_unlock(&door.lock);
}

static unsigned have_come(void)
{
    pthread_mutex_lock(&door.lock);
    unsigned n = door.come;
    pthread_mutex_unlock(&door.lock);
    return n;
}

static unsigned gone_count; /* objects */

static int set_up(void **state)
{
    set_door(EVERYONE);
    gone_count = 0;
    return stage_set_up(state);
}

static int tear_down(void **state)
{
    let_through(EVERYONE);
    return stage_tear_down(state);
}

#define with_door(test) with_door_and(test, .no_queue = true)
#define with_door_and(test, ...) KIT_TEST(test, DOOR(test, __VA_ARGS__))
#define DOOR(test, ...) {#test, test, set_up, tear_down, (void *)&(stage_desc){__VA_ARGS__}}

static void count_gone(void *user)
{
    COUNT(&gone_count);
}

/* How an item ends that is not an object made well. */
typedef struct plan {
    gpusync_result result; /* OK: there is no object */
    gpusync_error error;
} plan;

/* plans: one for each item; NULL: all are made well. */
static gpusync_result make(void *plans, size_t i, void **made, gpusync_error *error)
{
    const plan *p = (const plan *)plans;
    come_to_door(i);
    if (p) *error = p[i].error;
    else *made = softmetal_new_witness(count_gone, NULL);
    return p ? p[i].result : GPUSYNC_OK;
}

static gpusync_warmup *start_desc(stage *s, const gpusync_warmup_desc *desc)
{
    gpusync_warmup *warmup = NULL;
    assert_ok(gpusync_warmup_start(s->device, desc, &warmup));
    assert_non_null(warmup);
    return warmup;
}

static gpusync_warmup *start_with(stage *s, plan *plans, size_t count, bool disabled)
{
    return start_desc(s, &(gpusync_warmup_desc){make, plans, count, disabled});
}

static gpusync_warmup *start_four(stage *s)
{
    return start_with(s, NULL, FOUR, false);
}

static gpusync_warmup *start_disabled(stage *s)
{
    return start_with(s, NULL, FOUR, true);
}

/* Waits for all of them, which are made well. */
static void await_all(gpusync_warmup *warmup, size_t count)
{
    size_t done = 99, total = 99;
    assert_ok(gpusync_warmup_wait(warmup, SECONDS(60), &done, &total));
    assert_int_equal(done, count);
    assert_int_equal(total, count);
}

static void *get(gpusync_warmup *warmup, size_t i)
{
    void *made = NULL;
    assert_ok(gpusync_warmup_get(warmup, i, GPUSYNC_FOREVER, &made, NULL));
    assert_non_null(made);
    return made;
}

static void assert_progress(gpusync_warmup *warmup, size_t expected, size_t of)
{
    size_t done = 99, total = 99;
    assert_result(gpusync_warmup_wait(warmup, 0, &done, &total), expected < of ? GPUSYNC_TIMEOUT : GPUSYNC_OK);
    assert_int_equal(done, expected);
    assert_int_equal(total, of);
}

/* A question on a thread of its own. */
typedef struct ask {
    gpusync_warmup *warmup;
    size_t i; /* all: ALL_OF_THEM */
    uint64_t limit;
    void *made;
    size_t done, total;
    gpusync_error error;
    job j;
} ask;

#define ALL_OF_THEM SIZE_MAX

static gpusync_result ask_for_it(void *argument)
{
    ask *a = (ask *)argument;
    if (a->i == ALL_OF_THEM) return gpusync_warmup_wait(a->warmup, a->limit, &a->done, &a->total);
    return gpusync_warmup_get(a->warmup, a->i, a->limit, &a->made, &a->error);
}

static void ask_for(ask *a, gpusync_warmup *warmup, size_t i, uint64_t limit)
{
    memset(a, 0, sizeof *a);
    a->warmup = warmup;
    a->i = i;
    a->limit = limit;
    job_call(&a->j, ask_for_it, a);
}

static gpusync_result destroy_it(void *argument)
{
    return gpusync_warmup_destroy((gpusync_warmup *)argument);
}

/* Returns when no other thread is in it any more. */
static void destroy(gpusync_warmup *warmup)
{
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_true(softmetal_dispatched(SECONDS(60)));
}

/* ------------------------------------------------------------------------------------------------------- >>make -- */

/* The game lists first what it draws first. A scheduler gives the threads that make what the program's main thread
   waits for the processors that they need. They are no fibers: hooks are not called there. */
with_door(test_R41_items_are_made_in_their_order_on_a_queue_of_quality_user_initiated)
{
    const unsigned user_initiated = 0x19; /* <sys/qos.h> */
    uint64_t before = softmetal_dispatches();
    gpusync_warmup *warmup = start_four(s);
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_progress(warmup, FOUR, FOUR);
    assert_int_equal(have_come(), FOUR);
    for (unsigned i = 0; i < FOUR; i++) {
        assert_int_equal(door.item[i], i);
        assert_int_equal(door.quality[i], user_initiated);
        assert_true(pthread_equal(door.who[i], door.who[0]));
        assert_false(pthread_equal(door.who[i], pthread_self()));
    }
    assert_int_equal(softmetal_dispatches() - before, 1);
    assert_true(kit_now().parks == 0 && kit_now().yields == 0);
    destroy(warmup);
}

/* What the renderer needs now does not stand in line behind what it may need later. */
with_door(test_R41_one_that_is_needed_first_is_made_in_the_call_while_another_is_made)
{
    ask late;
    set_door(0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    assert_progress(warmup, 0, FOUR);
    ask_for(&late, warmup, 2, 1);
    await_come(2);
    assert_int_equal(door.item[1], 2);
    assert_false(pthread_equal(door.who[0], door.who[1]));
    let_through(2);
    assert_ok(job_end(&late.j)); /* its limit of a nanosecond is none of fn */
    let_through(EVERYONE);
    await_all(warmup, FOUR);
    assert_ptr_equal(late.made, get(warmup, 2));
    assert_int_equal(have_come(), FOUR);
    destroy(warmup);
}

/* A loading screen draws a bar, each frame, and never sleeps for it. */
with_door(test_a_wait_without_time_reads_the_progress)
{
    set_door(0);
    gpusync_warmup *warmup = start_four(s);
    for (unsigned i = 0; i < 4; i++) {
        await_come(i + 1);
        assert_progress(warmup, i, 4);
        assert_result(gpusync_warmup_wait(warmup, 0, NULL, NULL), GPUSYNC_TIMEOUT);
        for (unsigned k = 0; k < 4; k++) {
            void *made = &made;
            gpusync_error error = {.code = 77};
            assert_result(gpusync_warmup_get(warmup, k, 0, &made, &error), k < i ? GPUSYNC_OK : GPUSYNC_TIMEOUT);
            assert_int_equal(made != NULL, k < i);
            assert_int_equal(error.code, 77); /* no failure, no error */
        }
        let_through(i + 1);
    }
    await_all(warmup, 4);
    assert_progress(warmup, 4, 4);
    assert_int_equal(kit_now().log_lines, 0); /* nothing was waited for */
    destroy(warmup);
}

/* A developer switches the warm-up off, to measure without it. What is never asked for is never made. */
with_door(test_a_disabled_warm_up_makes_what_is_asked_for_alone)
{
    uint64_t before = softmetal_dispatches();
    gpusync_warmup *warmup = start_disabled(s);
    void *made = NULL;
    assert_result(gpusync_warmup_get(warmup, 3, 0, &made, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(have_come(), 0);
    get(warmup, 3);
    get(warmup, 1);
    get(warmup, 3);
    assert_int_equal(have_come(), 2);
    assert_true(pthread_equal(door.who[0], pthread_self()));
    assert_progress(warmup, 0, 0);
    assert_ok(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL));
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_ok(gpusync_warmup_destroy(start_disabled(s))); /* never asked */
    assert_int_equal(have_come(), 2);
    assert_int_equal(softmetal_dispatches(), before);
}

/* The renderer keeps one object when the level, and its warm-up, go. A JIT has no object to give. */
with_door(test_R41_what_was_made_is_borrowed_and_goes_with_the_warm_up)
{
    plan nothing = {GPUSYNC_OK, {0}};
    gpusync_warmup *warmup = start_four(s);
    void *kept = metal_retain(get(warmup, 2));
    await_all(warmup, FOUR);
    assert_int_equal(gone_count, 0);
    destroy(warmup);
    assert_int_equal(gone_count, FOUR - 1);
    metal_release(kept);
    warmup = start_with(s, &nothing, 1, false);
    assert_ok(gpusync_warmup_get(warmup, 0, GPUSYNC_FOREVER, &kept, NULL));
    assert_null(kept);
    destroy(warmup);
    warmup = start_disabled(s);
    get(warmup, 1);
    destroy(warmup);
    assert_int_equal(gone_count, FOUR + 1);
}

extern void *objc_autorelease(void *object);

/* A first kernel: its work is in flight when it is made. */
static gpusync_result make_a_kernel(void *user, size_t i, void **made, gpusync_error *error)
{
    static const gpusync_error zero;
    const stage *s = (const stage *)user;
    char text[4000];
    void *buffer = NULL;
    gpusync_ticket ticket = 0;
    must(!*made && !memcmp(error, &zero, sizeof zero), "all is zero");
    objc_autorelease(softmetal_new_witness(count_gone, NULL));
    must(gpusync_device_report(s->device, text, sizeof text) < sizeof text, "no lock is held");
    must(!gpusync_command_buffer_create(s->q[0], NULL, 0, &buffer), "a command buffer is made");
    must(!gpusync_commit(s->q[0], buffer, &ticket) && ticket == (gpusync_ticket)i + 1, "it is committed");
    must(gpusync_poll(s->q[0], ticket, NULL) == GPUSYNC_NOT_READY, "it is in flight");
    must(gpusync_wait(s->q[0], ticket, 0, NULL) == GPUSYNC_TIMEOUT, "fn may wait for work");
    return GPUSYNC_OK;
}

with_door_and(test_R41_fn_runs_with_a_pool_and_no_lock, .queues = 1)
{
    gpusync_warmup *warmup = start_desc(s, &(gpusync_warmup_desc){make_a_kernel, s, 1, false});
    void *made = s;
    await_all(warmup, 1);
    assert_int_equal(GET(&gone_count), 1); /* the pool is gone */
    destroy(warmup);
    finish_all(s);
    warmup = start_desc(s, &(gpusync_warmup_desc){make_a_kernel, s, 2, true});
    assert_ok(gpusync_warmup_get(warmup, 1, 1, &made, NULL));
    assert_null(made);
    assert_int_equal(gone_count, 2); /* the test's own pool is not */
    destroy(warmup);
}

static struct {
    gpusync_warmup *running, *over, *own, *fresh;
    gpusync_device *device;
    unsigned calls;
} inside;

#define REFUSED(call) must((call) == GPUSYNC_ERROR_WOULD_DEADLOCK, #call)

/* In fn, or in a callback: what is there can be had, and nothing is run. */
static void ask_inside(void)
{
    size_t done = 9, total = 9;
    void *made = &made;
    must(gpusync_warmup_get(inside.over, 0, GPUSYNC_FOREVER, &made, NULL) == GPUSYNC_OK && made, "it is there");
    must(gpusync_warmup_wait(inside.over, GPUSYNC_FOREVER, NULL, NULL) == GPUSYNC_OK, "all are made");
    REFUSED(gpusync_warmup_get(inside.running, 0, GPUSYNC_FOREVER, &made, NULL));
    must(!made, "nothing is there");
    REFUSED(gpusync_warmup_get(inside.running, 3, 1, &made, NULL));
    REFUSED(gpusync_warmup_get(inside.running, 3, 0, &made, NULL));
    REFUSED(gpusync_warmup_wait(inside.running, GPUSYNC_FOREVER, &done, &total));
    must(done == 0 && total == FOUR, "the progress");
    REFUSED(gpusync_warmup_destroy(inside.running));
    REFUSED(gpusync_warmup_destroy(inside.over));
    must(gpusync_warmup_destroy(NULL) == GPUSYNC_OK, "destroy of none");
    COUNT(&inside.calls);
}

static void start_inside(stage *s)
{
    memset(&inside, 0, sizeof inside);
    inside.device = s->device;
    inside.over = start_with(s, NULL, 1, false);
    await_all(inside.over, 1);
    set_door(0);
    inside.running = start_four(s);
    await_come(1);
    let_others_through(true);
}

static void end_inside(void)
{
    assert_int_equal(GET(&inside.calls), 1);
    assert_int_equal(have_come(), 1);
    let_through(EVERYONE);
    await_all(inside.running, FOUR);
    destroy(inside.running);
    destroy(inside.over);
}

static gpusync_result make_from_others(void *user, size_t i, void **made, gpusync_error *error)
{
    void *own = NULL;
    ask_inside();
    REFUSED(gpusync_warmup_get(inside.own, i, GPUSYNC_FOREVER, &own, NULL));
    REFUSED(gpusync_warmup_destroy(inside.own));
    return GPUSYNC_OK;
}

with_door(test_R41_a_call_of_fn_neither_waits_for_a_warm_up_nor_destroys_one)
{
    void *made;
    start_inside(s);
    inside.own = start_desc(s, &(gpusync_warmup_desc){make_from_others, NULL, 1, true});
    assert_ok(gpusync_warmup_get(inside.own, 0, 1, &made, NULL));
    assert_ok(gpusync_warmup_destroy(inside.own));
    end_inside();
}

static void use_warm_ups_in_a_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    const gpusync_warmup_desc desc = {make, NULL, 1, true};
    void *made;
    must(gpusync_warmup_start(inside.device, &desc, &inside.fresh) == GPUSYNC_OK, "start");
    REFUSED(gpusync_warmup_get(inside.fresh, 0, 1, &made, NULL));
    ask_inside();
}

/* A callback of a frame asks for a shader. It gets what is there, and never waits; nor are other callbacks held up. */
with_door_and(test_R41_a_callback_makes_nothing, .queues = 1)
{
    start_inside(s);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], commit_new(s->q[0])), use_warm_ups_in_a_callback, NULL));
    finish_all(s);
    while (GET(&inside.calls) == 0) sched_yield();
    end_inside();
    get(inside.fresh, 0);
    destroy(inside.fresh);
}

with_door(test_a_list_without_items_is_over_at_once)
{
    gpusync_warmup *warmup = start_desc(s, &(gpusync_warmup_desc){NULL, NULL, 0, false});
    assert_progress(warmup, 0, 0);
    await_all(warmup, 0);
    destroy(warmup);
}

/* ------------------------------------------------------------------------------------------------------ >>share -- */

#define CROWD 8u

static struct {
    gate begin;
    gpusync_warmup *warmup;
    void *made[CROWD][FOUR];
} crowd;

/* Each thread in another order, and with no time, hardly any, or all the time that it takes. */
static void *ask_in_a_crowd(void *argument)
{
    unsigned who = *(unsigned *)argument;
    gate_wait(&crowd.begin);
    for (unsigned n = 0; n < 3 * FOUR; n++) {
        unsigned i = (n * (who % 2 ? 1 : 3) + who) % FOUR;
        uint64_t limit = n % 3 == 2 ? GPUSYNC_FOREVER : n % 3;
        void *made = NULL;
        size_t done = 0, total = 0;
        gpusync_result result = gpusync_warmup_get(crowd.warmup, i, limit, &made, NULL);
        must(result == (made ? GPUSYNC_OK : GPUSYNC_TIMEOUT) && (made || n % 3 < 2), "an object is there with OK");
        result = gpusync_warmup_wait(crowd.warmup, 0, &done, &total);
        must(result == (done < total ? GPUSYNC_TIMEOUT : GPUSYNC_OK), "the progress");
    }
    for (unsigned i = 0; i < FOUR; i++)
        must(!gpusync_warmup_get(crowd.warmup, i, GPUSYNC_FOREVER, &crowd.made[who][i], NULL), "an object");
    must(!gpusync_warmup_wait(crowd.warmup, GPUSYNC_FOREVER, NULL, NULL), "all of them");
    return NULL;
}

/* Eight workers of a job system come to the shaders of a level together. */
with_door(test_a_crowd_asks_and_each_item_is_made_once)
{
    static unsigned numbers[CROWD];
    for (unsigned round = 0; round < (SLOW > 1 ? 4 : 20); round++) {
        pthread_t threads[CROWD];
        set_door(EVERYONE);
        gate_init(&crowd.begin, CROWD);
        crowd.warmup = start_with(s, NULL, FOUR, round % 2);
        for (unsigned i = 0; i < CROWD; i++) {
            numbers[i] = i;
            threads[i] = start(ask_in_a_crowd, &numbers[i]);
        }
        for (unsigned i = 0; i < CROWD; i++) join(threads[i]);
        for (unsigned i = 0; i < CROWD * FOUR; i++)
            assert_ptr_equal(crowd.made[i / 4][i % 4], crowd.made[0][i % 4]);
        assert_int_equal(have_come(), FOUR);
        assert_ok(gpusync_warmup_destroy(crowd.warmup));
        gate_destroy(&crowd.begin);
    }
}

/* Two threads draw with the same shader while it is made: neither makes it again. One has no time to lose. */
with_door(test_a_thread_waits_for_an_item_and_its_limit_passes_or_not)
{
    static const uint64_t limits[] = {1, MS(2), GPUSYNC_FOREVER, GPUSYNC_FOREVER - 1};
    for (unsigned i = 0; i < 2 * LENGTH(limits); i++) {
        size_t what = i % 2 ? ALL_OF_THEM : 0;
        uint64_t limit = limits[i / 2];
        bool in_time = limit > MS(2);
        unsigned lines = kit_now().log_lines;
        ask a;
        set_door(0);
        gpusync_warmup *warmup = start_with(s, NULL, 1, false);
        await_come(1);
        ask_for(&a, warmup, what, limit);
        if (in_time) {
            await_parked(1);
            let_through(EVERYONE);
        }
        assert_result(job_end(&a.j), in_time ? GPUSYNC_OK : GPUSYNC_TIMEOUT);
        let_through(EVERYONE);
        if (limit > 1) assert_int_equal(kit_now().log_lines, lines + !in_time);
        assert_int_equal(a.done, in_time && what);
        assert_int_equal(a.error.result, GPUSYNC_OK);
        assert_ptr_equal(a.made, in_time && !what ? get(warmup, 0) : NULL);
        destroy(warmup);
        assert_int_equal(have_come(), 1);
    }
    assert_true(log_has(GPUSYNC_LOG_WARNING, ": a wait for item count "));
}

/* The renderer waits for one item: that others are made meanwhile is no news, and that others are not made yet is no
   reason to wait. What wakes a wait is a wake-up alone. */
with_door_and(test_each_that_waits_is_woken, .no_queue = true, .device.hooks = &without_slices)
{
    ask asks[4];
    set_door(0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    for (unsigned i = 0; i < 4; i++) ask_for(&asks[i], warmup, i % 2 ? ALL_OF_THEM : 0, GPUSYNC_FOREVER);
    await_parked(4);
    let_others_through(true);
    for (unsigned i = 1; i < 3; i++) {
        get(warmup, i); /* in this thread */
        await_parked(4);
        for (unsigned k = 0; k < 4; k++) assert_false(job_is_over(&asks[k].j));
        assert_progress(warmup, i, FOUR);
    }
    let_others_through(false);
    let_through(1);
    assert_ok(job_end(&asks[0].j));
    assert_ok(job_end(&asks[2].j));
    assert_ptr_equal(asks[0].made, asks[2].made);
    await_come(FOUR);
    await_parked(2);
    assert_progress(warmup, 3, FOUR);
    let_through(EVERYONE);
    assert_ok(job_end(&asks[1].j));
    assert_ok(job_end(&asks[3].j));
    assert_int_equal(asks[3].done, FOUR);
    destroy(warmup);
}

/* Others are made each millisecond while a thread waits for one, for a tenth of a second. */
with_door(test_the_limit_is_that_of_the_call_whatever_is_made_meanwhile)
{
    enum { MANY = 1000 };
    ask first, short_of_time;
    size_t i = 1;
    set_door(0);
    gpusync_warmup *warmup = start_with(s, NULL, MANY, true);
    ask_for(&first, warmup, 0, GPUSYNC_FOREVER);
    await_come(1);
    let_others_through(true);
    ask_for(&short_of_time, warmup, 0, MS(100));
    for (; !job_is_over(&short_of_time.j); i++) {
        uint64_t until = gpusync_now_ns() + MS(1);
        assert_true(i < MANY);
        get(warmup, i);
        while (gpusync_now_ns() < until) sched_yield();
    }
    assert_true(i > 1);
    assert_result(job_end(&short_of_time.j), GPUSYNC_TIMEOUT);
    let_through(EVERYONE);
    assert_ok(job_end(&first.j));
    destroy(warmup);
}

/* ------------------------------------------------------------------------------------------------------- >>fail -- */

/* A shader's author gets the reason at each place that asks. The others are made all the same, and what has failed is
   not tried again. */
with_door(test_R41_a_result_that_is_not_OK_is_kept_for_every_call)
{
    static const struct {
        gpusync_result result, expected;
    } rows[] = {{GPUSYNC_ERROR_COMPILE, GPUSYNC_ERROR_COMPILE},
                {GPUSYNC_ERROR_DEVICE_LOST, GPUSYNC_ERROR_DEVICE_LOST},
                {(gpusync_result)-77, (gpusync_result)-77},
                {GPUSYNC_TIMEOUT, GPUSYNC_ERROR_COMPILE},
                {GPUSYNC_NOT_READY, GPUSYNC_ERROR_COMPILE}};
    for (unsigned i = 0; i < 2 * LENGTH(rows); i++) {
        bool disabled = i % 2;
        gpusync_result expected = rows[i / 2].expected;
        plan plans[] = {{rows[i / 2].result, {.code = 7}}, {GPUSYNC_OK, {.code = 8}}};
        gpusync_error error[2];
        void *made;
        set_door(EVERYONE);
        gpusync_warmup *warmup = start_with(s, plans, 2, disabled);
        assert_result(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL), disabled ? GPUSYNC_OK : expected);
        for (int again = 0; again < 2; again++) {
            memset(&error[again], 0xAA, sizeof error[again]);
            made = &made;
            assert_result(gpusync_warmup_get(warmup, 0, GPUSYNC_FOREVER, &made, &error[again]), expected);
            assert_null(made);
            assert_result(gpusync_warmup_get(warmup, 0, 0, &made, NULL), expected);
        }
        assert_memory_equal(&error[0], &error[1], sizeof error[0]);
        assert_int_equal(error[0].result, expected);
        assert_int_equal(error[0].code, 7);
        assert_ok(gpusync_warmup_get(warmup, 1, GPUSYNC_FOREVER, &made, &error[1]));
        assert_int_equal(error[1].code, 7); /* no failure, no error */
        assert_int_equal(have_come(), 2);
        destroy(warmup);
    }
    assert_int_equal(kit_now().log_lines, 0);
}

/* The texts come from files of users, and not all tell as much. */
with_door(test_R41_the_error_of_an_item_is_that_of_fn_with_texts_that_end)
{
    enum { NONE, ALL, LATIN, ENDLESS };
    static plan plans[] = {[NONE] = {GPUSYNC_ERROR_COMPILE, {0}},
                           [ALL] = {GPUSYNC_ERROR_OUT_OF_MEMORY,
                                    {.failure = GPUSYNC_FAILURE_OUT_OF_MEMORY, .code = -8, .domain = "D",
                                     .message = "M", .label = "L", .result = GPUSYNC_OK, .ticket = 1, .origin = 2,
                                     .dropped = 3, .inherited = true, .ran = true, .in_use = true}},
                           [LATIN] = {GPUSYNC_ERROR_COMPILE, {.message = "%s%n\n", .label = "caf\xE9"}},
                           [ENDLESS] = {GPUSYNC_ERROR_COMPILE, {0}}};
    gpusync_error *endless = &plans[ENDLESS].error, errors[LENGTH(plans)];
    void *made;
    memset(endless->domain, 'd', sizeof endless->domain);
    for (unsigned i = 0; i < sizeof endless->message; i++) endless->message[i] = (char)(i % 2 ? 0xA9 : 0xC3);
    memset(endless->label, 'l', sizeof endless->label);
    gpusync_warmup *warmup = start_with(s, plans, LENGTH(plans), false);
    assert_result(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL), GPUSYNC_ERROR_COMPILE);
    for (unsigned i = 0; i < LENGTH(plans); i++) {
        gpusync_error *e = &errors[i];
        assert_result(gpusync_warmup_get(warmup, i, 0, &made, e), plans[i].result);
        assert_int_equal(e->result, plans[i].result);
        assert_int_equal(e->failure, i == ALL ? GPUSYNC_FAILURE_OUT_OF_MEMORY : GPUSYNC_FAILURE_OTHER);
        assert_true(!e->ticket && !e->origin && !e->dropped && !e->inherited && !e->ran && !e->in_use);
        assert_true(!e->queue_label[0] && !e->encoder[0]);
    }
    assert_string_equal(errors[NONE].domain, "");
    assert_string_equal(errors[NONE].message, gpusync_result_string(GPUSYNC_ERROR_COMPILE));
    assert_string_equal(errors[NONE].label, "item 0");
    assert_int_equal(errors[ALL].code, -8);
    assert_string_equal(errors[ALL].domain, "D");
    assert_string_equal(errors[ALL].message, "M");
    assert_string_equal(errors[ALL].label, "L");
    assert_string_equal(errors[LATIN].message, "%s%n\n");
    assert_string_equal(errors[LATIN].label, "caf\xC3\xA9");
    assert_int_equal(strlen(errors[ENDLESS].domain), sizeof errors->domain - 1);
    assert_int_equal(strlen(errors[ENDLESS].message), sizeof errors->message - 2); /* ends with a whole character */
    assert_int_equal(strlen(errors[ENDLESS].label), sizeof errors->label - 1);
    destroy(warmup);
}

/* An item fails while the others wait for their turn: the loading screen goes on to the end. */
with_door(test_R41_the_failure_of_the_lowest_item_is_told_when_all_are_done)
{
    for (unsigned bad = 0; bad < 3; bad++) {
        plan plans[3] = {{GPUSYNC_OK, {0}}};
        ask all;
        plans[2].result = GPUSYNC_ERROR_OUT_OF_MEMORY;
        plans[bad].result = GPUSYNC_ERROR_COMPILE;
        set_door(0);
        gpusync_warmup *warmup = start_with(s, plans, 3, false);
        ask_for(&all, warmup, ALL_OF_THEM, GPUSYNC_FOREVER);
        for (unsigned i = 0; i < 3; i++) {
            await_come(i + 1);
            assert_progress(warmup, i, 3);
            assert_false(job_is_over(&all.j));
            let_through(i + 1);
        }
        assert_result(job_end(&all.j), GPUSYNC_ERROR_COMPILE);
        assert_int_equal(all.done, 3);
        assert_int_equal(all.total, 3);
        assert_result(gpusync_warmup_wait(warmup, 0, NULL, NULL), GPUSYNC_ERROR_COMPILE);
        destroy(warmup);
    }
}

/* -------------------------------------------------------------------------------------------------------- >>ask -- */

with_door(test_arguments_are_checked)
{
    static const size_t numbers[] = {FOUR, FOUR + 1, SIZE_MAX, SIZE_MAX / 2 + 1};
    const gpusync_warmup_desc fine = {make, NULL, 1, false}, no_fn = {NULL, NULL, 1, true};
    kit_counts before = kit_now();
    gpusync_warmup *warmup;
    gpusync_error error = {.code = 77};
    void *made = &made;
    for (unsigned i = 0; i < 3; i++) {
        warmup = (gpusync_warmup *)&before;
        assert_result(gpusync_warmup_start(i ? s->device : NULL, i == 1 ? NULL : i ? &no_fn : &fine, &warmup),
                      GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_null(warmup);
    }
    assert_result(gpusync_warmup_start(s->device, &fine, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(kit_now().allocations, before.allocations);
    assert_result(gpusync_warmup_wait(NULL, 0, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_warmup_get(NULL, 0, 0, &made, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(made);
    warmup = start_disabled(s);
    for (unsigned i = 0; i < LENGTH(numbers); i++) {
        made = &made;
        assert_result(gpusync_warmup_get(warmup, numbers[i], GPUSYNC_FOREVER, &made, &error),
                      GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_null(made);
    }
    assert_result(gpusync_warmup_get(warmup, 0, GPUSYNC_FOREVER, NULL, &error), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(error.code, 77);
    assert_int_equal(have_come(), 0);
    destroy(warmup);
}

/* A tool runs with little memory. Each allocation of the start fails in turn, and then the dispatch queue; behind the
   start there is none. */
with_door(test_no_memory_leaves_nothing)
{
    const gpusync_warmup_desc desc = {make, NULL, 3, false}, vast = {make, NULL, SIZE_MAX, false};
    long live = softmetal_live(NULL), blocks = kit_now().blocks;
    gpusync_warmup *warmup;
    for (long n = 0; n < 4; n++) {
        warmup = (gpusync_warmup *)&n;
        memory_fail(n, false); /* 0: memory is not what is missing */
        softmetal_fail_dispatch_queue(n == 3, false);
        assert_result(gpusync_warmup_start(s->device, n ? &desc : &vast, &warmup), GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_null(warmup);
        assert_int_equal(softmetal_live(NULL), live);
        assert_int_equal(kit_now().blocks, blocks);
    }
    assert_int_equal(kit_now().refusals, 2);
    memory_fail(0, false);
    warmup = start_desc(s, &desc);
    memory_fail(1, true);
    get(warmup, 2);
    await_all(warmup, 3);
    destroy(warmup);
    assert_int_equal(kit_now().refusals, 2);
    memory_fail(0, false);
    assert_int_equal(kit_now().blocks, blocks);
}

/* ---------------------------------------------------------------------------------------------------- >>destroy -- */

/* The player leaves while the level loads: what fn has begun cannot be stopped, the rest is never made, and the threads
   that wait are told at once. */
with_door(test_destroy_waits_for_what_has_begun_and_skips_the_rest)
{
    ask here, one, all;
    job gone = {0};
    set_door(0);
    gpusync_warmup *warmup = start_with(s, NULL, 6, false);
    await_come(1);
    ask_for(&here, warmup, 3, GPUSYNC_FOREVER); /* makes it in its call */
    await_come(2);
    ask_for(&one, warmup, 0, GPUSYNC_FOREVER);
    ask_for(&all, warmup, ALL_OF_THEM, GPUSYNC_FOREVER);
    await_parked(2);
    job_call(&gone, destroy_it, warmup);
    assert_result(job_end(&one.j), GPUSYNC_ERROR_DESTROYED);
    assert_null(one.made);
    assert_int_equal(one.error.result, 0);
    assert_result(job_end(&all.j), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(all.done, 0);
    assert_int_equal(all.total, 6);
    await_parked(1); /* destroy */
    assert_result(gpusync_warmup_destroy(warmup), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
    let_through(1);
    await_parked(1); /* the other one is not made yet */
    assert_false(job_is_over(&gone));
    let_through(EVERYONE);
    assert_ok(job_end(&here.j));
    assert_ok(job_end(&gone));
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(have_come(), 2);
    assert_int_equal(gone_count, 2);
}

/* Libdispatch has no thread to spare: nothing has begun, so that destroy waits for nothing. What libdispatch has still
   to call needs the warm-up's memory, and the device's destroy waits for it. */
with_door(test_destroy_before_it_has_begun_makes_nothing)
{
    job gone = {0};
    kit_counts before = kit_now();
    softmetal_set_dispatch_threads(0);
    gpusync_warmup *warmup = start_four(s);
    assert_progress(warmup, 0, FOUR);
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_true(kit_now().blocks > before.blocks);
    job_call(&gone, (gpusync_result(*)(void *))gpusync_device_destroy, s->device);
    await_parks(before.parks + 1);
    assert_false(job_is_over(&gone));
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    assert_ok(job_end(&gone));
    s->device = NULL;
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(have_come(), 0);
    assert_int_equal(kit_now().log_lines, 0);
}

/* The program forgets a warm-up: the device says so, whether the warm-up is done, runs, or is disabled. A device that
   goes later goes behind them, and they work meanwhile. */
with_door(test_a_device_goes_after_its_warm_ups)
{
    gpusync_warmup *warmups[3];
    note gone = {0};
    set_door(0);
    warmups[0] = start_with(s, NULL, 0, false);
    warmups[1] = start_disabled(s);
    warmups[2] = start_four(s);
    await_come(1);
    for (unsigned i = 0; i < 3; i++) {
        assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
        if (i < 2) assert_ok(gpusync_warmup_destroy(warmups[i]));
    }
    assert_ok(gpusync_device_destroy_later(s->device, remember_destroyed, &gone));
    s->device = NULL;
    let_through(EVERYONE);
    await_all(warmups[2], FOUR);
    assert_int_equal(calls_of(&gone), 0);
    assert_ok(gpusync_warmup_destroy(warmups[2]));
    assert_noted(&gone, GPUSYNC_OK);
}

/* ----------------------------------------------------------------------------------------------------- >>beside -- */

/* Frames go on while fn runs: commits, waits, callbacks, looks at all of the device. A program that only loads has
   nothing to wait for. */
with_door_and(test_warm_ups_and_the_work_of_queues_do_not_meet, .queues = 2, .timelines = 1,
              .timeline.signalled_by_others = true)
{
    gpusync_warmup *warmups[20]; /* more than a device_wait has room for at hand */
    note done = {0};
    job frame = {0};
    set_door(0);
    for (unsigned i = 0; i < LENGTH(warmups); i++) warmups[i] = start_with(s, NULL, FOUR, i % 2);
    await_come(LENGTH(warmups) / 2);
    gpusync_ticket ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])));
    on_done(ticket_at(s->q[0], ticket), &done);
    job_wait(&frame, s->q[0], ticket, GPUSYNC_FOREVER);
    await_parks(3); /* it looks at all of the device in between */
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(job_end(&frame));
    while (!GET(&done.calls)) sched_yield(); /* on a dispatch queue of its own */
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, NULL)); /* looks everywhere */
    uint64_t status = softmetal_message_count("status");
    assert_progress(warmups[0], 0, FOUR);
    assert_int_equal(softmetal_message_count("status"), status); /* a question about a warm-up looks at no queue */
    let_through(EVERYONE);
    for (unsigned i = 0; i < LENGTH(warmups); i++) assert_ok(gpusync_warmup_destroy(warmups[i]));
}

static unsigned ended, unmet;

static void trace_waits(void *user, const gpusync_trace_event *event)
{
    if (event->kind != GPUSYNC_TRACE_WAIT) return;
    COUNT(&ended);
    if (event->how == GPUSYNC_ENDED_UNMET) COUNT(&unmet);
    must((event->result == GPUSYNC_TIMEOUT) == (event->how == GPUSYNC_ENDED_UNMET), "how a wait ended");
    must(!event->queue && !event->timeline && !event->ticket && !event->value, "a warm-up is neither");
}

/* What the report says of a warm-up stands in test_report.c. */
with_door(test_counts_and_trace_tell_of_waits_for_a_warm_up)
{
    static const gpusync_trace trace = {trace_waits, NULL};
    gpusync_stats before, after;
    ask one, all;
    ended = unmet = 0;
    assert_ok(gpusync_device_set_trace(s->device, &trace));
    assert_ok(gpusync_device_get_stats(s->device, NULL, &before));
    set_door(0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    ask_for(&one, warmup, 0, GPUSYNC_FOREVER);
    ask_for(&all, warmup, ALL_OF_THEM, GPUSYNC_FOREVER);
    await_parked(2);
    assert_progress(warmup, 0, FOUR);
    let_through(EVERYONE);
    assert_ok(job_end(&one.j));
    assert_ok(job_end(&all.j));
    assert_ok(gpusync_device_get_stats(s->device, NULL, &after));
    assert_int_equal(after.waits_unmet - before.waits_unmet, 1); /* the look at the progress */
    assert_true(after.waits_sleep - before.waits_sleep >= 2);
    assert_int_equal(GET(&unmet), 1);
    assert_true(GET(&ended) >= 3);
    destroy(warmup);
    assert_ok(gpusync_device_set_trace(s->device, NULL));
}

/* A thread that waits spins as long as the program allows, and sleeps in the program's hooks. The scheduler runs other
   fibers there: no pool of gpusync's is in the way. */
static void *fiber_pool; /* the innermost of the thread */

static void turn_pool(void)
{
    metal_pool_pop(fiber_pool); /* ends the program where gpusync has one above it */
    fiber_pool = metal_pool_push();
}

static void fiber_yield(void *user)
{
    turn_pool();
    kit_yield(user);
}

static void fiber_park(void *user, gpusync_waiter *waiter, uint64_t deadline)
{
    turn_pool();
    let_through(EVERYONE);
    kit_park(user, waiter, deadline);
}

static const gpusync_hooks fiber_hooks = {fiber_yield, fiber_park, kit_unpark, NULL};
static const gpusync_spin five_yields = {0, 5, 0};

with_door_and(test_a_fiber_that_waits_for_a_warm_up_parks, .no_queue = true, .device.hooks = &fiber_hooks,
              .device.spin = &five_yields)
{
    for (unsigned i = 0; i < 2; i++) {
        kit_counts before = kit_now();
        void *made;
        set_door(0);
        gpusync_warmup *warmup = start_four(s);
        await_come(1);
        fiber_pool = metal_pool_push();
        if (i == 0) assert_ok(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL));
        else assert_ok(gpusync_warmup_get(warmup, 0, GPUSYNC_FOREVER, &made, NULL));
        assert_true(kit_now().parks > before.parks && kit_now().yields >= before.yields + 5);
        assert_ok(gpusync_warmup_destroy(warmup)); /* parks where the last ones are still being made */
        metal_pool_pop(fiber_pool);
    }
}

/* The card is pulled out. The threads that wait are told after a second. What fn has begun it ends, what has not begun
   never does; what is made stays, and no new warm-up begins. */
with_door_and(test_R41_a_lost_device_begins_no_item, .queues = 1)
{
    const gpusync_warmup_desc desc = {make, NULL, FOUR, false};
    gpusync_warmup *warmup, *refused = (gpusync_warmup *)&desc;
    ask running, all;
    void *made = &made;
    set_door(1);
    warmup = start_four(s);
    await_come(2);
    ask_for(&running, warmup, 1, GPUSYNC_FOREVER);
    ask_for(&all, warmup, ALL_OF_THEM, GPUSYNC_FOREVER);
    await_parked(2);
    commit_failing(s->q[0], SOFTMETAL_SUBMISSIONS_IGNORED);
    finish_all(s);
    assert_true(gpusync_device_is_lost(s->device));
    long blocks = kit_now().blocks, live = softmetal_live(NULL);
    assert_result(gpusync_warmup_start(s->device, &desc, &refused), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(refused);
    assert_int_equal(kit_now().blocks, blocks);
    assert_int_equal(softmetal_live(NULL), live);
    assert_result(gpusync_warmup_get(warmup, 3, GPUSYNC_FOREVER, &made, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(made);
    assert_result(job_end(&running.j), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(job_end(&all.j), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(all.done, 1);
    assert_int_equal(all.total, FOUR);
    let_through(EVERYONE);
    assert_true(softmetal_dispatched(SECONDS(60)));
    get(warmup, 0);
    get(warmup, 1);
    assert_result(gpusync_warmup_get(warmup, 2, 1, &made, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_warmup_wait(warmup, 0, NULL, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(have_come(), 2);
    destroy(warmup);
    assert_int_equal(gone_count, 2);
}
