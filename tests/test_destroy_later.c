/* test_destroy_later.c - gpusync_queue_destroy_later, gpusync_timeline_destroy_later, gpusync_device_destroy_later

   Proved: the last owner may let go in every function of the program; the three calls never block, need no memory, and
   come in any order; `destroyed` is called once, where callbacks run, behind all callbacks of its object; a GPU that
   hangs keeps its object and what was let go behind it, and holds up nothing else. Every scene watches its device: when
   `destroyed` of the device is called, all memory is back, and from there on no function of the program is called. What
   was dispatched comes at every point of the calls that may meet it, so do sweeps, and threads race.

   The implementation is compiled in this program, which sees how the thread sleeps that takes the steps: no hook of the
   program tells of that.

   It also runs on queues of Metal 4. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* The library's own sleeps. The scenes have hooks, so that no wait of the program's is among them: only the thread that
   lets objects go sleeps so, and the one that lets a device go. */
static struct {
    long begun, stopped; /* stopped: threads that do not come out, because: */
    bool held;
    bool hurried;    /* a sleep takes no time */
    uint64_t ns[64]; /* how long the first ones were to be */
} sleeps;

static uint64_t time_to(const struct timespec *at)
{
    uint64_t ns = (uint64_t)at->tv_sec * 1000000000u + (uint64_t)at->tv_nsec;
#ifndef __APPLE__ /* where the time is from now on */
    struct timespec now;
    uint64_t now_ns;
    clock_gettime(CLOCK_MONOTONIC, &now);
    now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    ns = ns > now_ns ? ns - now_ns : 0;
#endif
    return ns;
}

/* ThreadSanitizer is to see no order here. */
static int seen_sleep(pthread_cond_t *wake, pthread_mutex_t *mutex, const struct timespec *at)
{
    long n = __atomic_fetch_add(&sleeps.begun, 1, __ATOMIC_RELAXED);
    int result = ETIMEDOUT;
    if (n < 64) __atomic_store_n(&sleeps.ns[n], time_to(at), __ATOMIC_RELAXED);
    if (!__atomic_load_n(&sleeps.hurried, __ATOMIC_RELAXED))
#ifdef __APPLE__
        result = pthread_cond_timedwait_relative_np(wake, mutex, at);
#else
        result = pthread_cond_timedwait(wake, mutex, at);
#endif
    if (!__atomic_load_n(&sleeps.held, __ATOMIC_RELAXED)) return result;
    __atomic_fetch_add(&sleeps.stopped, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&sleeps.held, __ATOMIC_RELAXED)) (sched_yield)();
    __atomic_fetch_sub(&sleeps.stopped, 1, __ATOMIC_RELAXED);
    return result;
}

#define GPUSYNC_IMPLEMENTATION
#define pthread_cond_timedwait seen_sleep
#define pthread_cond_timedwait_relative_np seen_sleep
#include "../gpusync.h"
#undef pthread_cond_timedwait
#undef pthread_cond_timedwait_relative_np
#include "probe.h"
#include "stage.h"

void *dispatch_queue_create(const char *label, void *attribute);
void *dispatch_queue_attr_make_with_qos_class(void *attribute, unsigned qos_class, int relative_priority);
void dispatch_async_f(void *queue, void *context, void (*function)(void *));
void dispatch_release(void *object);

static const gpusync_spin endless = {0, UINT32_MAX, 0, false};

/* == a device whose functions of the program are watched ======================================================== */

enum { ALLOCATE, RELEASE, YIELD, PARK, UNPARK, UNPARKED, LOG, NOTIFY, TRACE, FUNCTIONS }; /* UNPARKED: the end of unpark */

/* What is read too late is still as it was; what is written too late is noticed. */
enum { AS_IT_WAS = 1, SPOILED };

typedef struct scene {
    softmetal_clock clock;
    gpusync_callback_mode mode;
    memory_log memory;
    gpusync_allocator allocator;
    gpusync_hooks hooks;
    gpusync_device *device;
    void *callback_queue;           /* the program's, or NULL */
    int keeps;                      /* released memory is freed at the end: */
    void *kept[256];
    unsigned kept_count;
    long calls[FUNCTIONS], too_late; /* too_late: when the device was gone */
    void (*act[FUNCTIONS])(void *); /* what the next call of this function does besides, once */
    void *argument[FUNCTIONS];
    bool let_go, over;              /* over: the device has told that it is gone */
    bool keeps_timers;              /* none of them fires before the end */
    outcome gone;
    long live_when_gone;            /* blocks of memory */
} scene;

static void visit(scene *s, int function)
{
    void (*act)(void *);
    if (GET(&s->over)) COUNT(&s->too_late);
    COUNT(&s->calls[function]);
    act = __atomic_exchange_n(&s->act[function], NULL, __ATOMIC_SEQ_CST);
    if (act) act(s->argument[function]);
}

static void on(scene *s, int function, void (*act)(void *), void *argument)
{
    s->argument[function] = argument;
    PUT(&s->act[function], act);
}

static void *scene_allocate(void *user, size_t size, size_t alignment)
{
    scene *s = (scene *)user;
    visit(s, ALLOCATE);
    return memory_allocate(&s->memory, size, alignment);
}

static void scene_release(void *user, void *memory, size_t size)
{
    scene *s = (scene *)user;
    visit(s, RELEASE);
    if (!s->keeps) {
        memory_release(&s->memory, memory, size);
        return;
    }
    if (s->keeps == SPOILED) memset(memory, 0xDD, size);
    must(s->kept_count < LENGTH(s->kept), "too much memory to keep");
    s->kept[s->kept_count++] = memory;
    __atomic_fetch_sub(&s->memory.live, 1, __ATOMIC_SEQ_CST);
}

static void scene_yield(void *user)
{
    visit((scene *)user, YIELD);
    sched_yield();
}

static void scene_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    visit((scene *)user, PARK);
    thread_park(waiter, deadline_ns);
}

static void scene_unpark(void *user, gpusync_waiter *waiter)
{
    visit((scene *)user, UNPARK);
    thread_unpark(waiter);
    visit((scene *)user, UNPARKED);
}

static void scene_log(void *user, gpusync_log_level level, const char *text)
{
    (void)level;
    (void)text;
    visit((scene *)user, LOG);
}

static void scene_notify(void *user) { visit((scene *)user, NOTIFY); }

static void scene_trace(void *user, const gpusync_trace_event *event)
{
    (void)event;
    visit((scene *)user, TRACE);
}

/* Beside others. has_hooks: else threads sleep as the library has it. */
static void add_scene_with(scene *s, softmetal_clock clock, gpusync_callback_mode mode, void *callback_queue,
                           bool has_hooks)
{
    gpusync_device_desc desc;
    memset(s, 0, sizeof *s);
    memset(&desc, 0, sizeof desc);
    s->clock = clock;
    s->mode = mode;
    s->callback_queue = callback_queue;
    s->allocator.allocate = scene_allocate;
    s->allocator.release = scene_release;
    s->hooks.yield = scene_yield;
    s->hooks.park = scene_park;
    s->hooks.unpark = scene_unpark;
    s->allocator.user = s->hooks.user = s;
    desc.allocator = &s->allocator;
    desc.hooks = has_hooks ? &s->hooks : NULL;
    desc.spin = &no_spin;
    desc.log = scene_log;
    desc.callback_mode = mode;
    desc.callback_queue = callback_queue;
    desc.notify = scene_notify;
    desc.log_user = desc.notify_user = s;
    assert_ok(gpusync_device_create(&desc, &s->device));
}

static void add_scene(scene *s, softmetal_clock clock, gpusync_callback_mode mode, void *callback_queue)
{
    add_scene_with(s, clock, mode, callback_queue, true);
}

static void open_scene_by(scene *s, softmetal_clock clock, gpusync_callback_mode mode, void *callback_queue)
{
    softmetal_reset();
    softmetal_set_clock(clock);
    add_scene(s, clock, mode, callback_queue);
}

static void open_scene(scene *s, softmetal_clock clock)
{
    open_scene_by(s, clock, GPUSYNC_CALLBACKS_QUEUED, NULL);
}

/* `destroyed` of a queue or timeline, with an outcome. */
static void told(void *user) { remember(user, GPUSYNC_OK, NULL); }

static void told_of_device(void *user)
{
    scene *s = (scene *)user;
    s->live_when_gone = GET(&s->memory.live);
    PUT(&s->over, true);
    told(&s->gone);
}

static void let_go_of_device(scene *s)
{
    PUT(&s->let_go, true);
    must(gpusync_device_destroy_later(s->device, told_of_device, s) == GPUSYNC_OK, "the device was let go before");
}

static long sleeps_begun(void) { return __atomic_load_n(&sleeps.begun, __ATOMIC_RELAXED); }

/* Returns when all that was dispatched has run; or when it cannot, because what a thread of the library waits for does
   not come: that has gone to sleep twice since, and so has looked in between. */
static void come_to_rest(void)
{
    long before = sleeps_begun();
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    while (!softmetal_dispatched(0) && sleeps_begun() < before + 2) {
        must(gpusync_now_ns() < limit, "what was dispatched does not end");
        sched_yield();
    }
}

/* No dispatched function begins, so that no object goes. */
static void hold_all(void) { softmetal_set_dispatch_threads(0); }

static void hold_nothing(void)
{
    __atomic_store_n(&sleeps.held, false, __ATOMIC_RELAXED);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
}

/* A thread that takes steps waits for something: it stays there. */
static void hold_in_sleep(void)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    __atomic_store_n(&sleeps.held, true, __ATOMIC_RELAXED);
    while (!__atomic_load_n(&sleeps.stopped, __ATOMIC_RELAXED)) {
        must(gpusync_now_ns() < limit, "no thread sleeps");
        sched_yield();
    }
}

/* One sweep, if a timer is there, and the callbacks that are due. It does not wait for what goes. */
static void pump(scene *s)
{
    if (s->clock == SOFTMETAL_MANUAL && !s->keeps_timers && softmetal_timers()) softmetal_fire_timer();
    if (s->mode == GPUSYNC_CALLBACKS_MANUAL && !calls_so_far(&s->gone))
        assert_ok(gpusync_dispatch(s->device, SIZE_MAX, NULL));
}

/* Not with calls_of: another object may not be able to go. */
static void await_told(scene *s, const outcome *o, long count)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(60);
    while (calls_so_far(o) < count) {
        assert_true(gpusync_now_ns() < limit);
        pump(s);
        sched_yield();
    }
    assert_int_equal(calls_so_far(o), count);
}

static void await_gone(scene *s, const outcome *o) { await_told(s, o, 1); }

/* On the manual clock: however many sweeps come, and however often the thread that lets it go looks. */
static void assert_stays(scene *s, const outcome *o)
{
    int i;
    for (i = 0; i < 12; i++) pump(s);
    come_to_rest();
    pump(s);
    assert_int_equal(calls_so_far(o), 0);
}

/* A sweep, and as many as follow, on a thread of the test's or of Metal's; and all steps that can be taken. */
static void sweep_a_lot(void *unused)
{
    int i;
    (void)unused;
    for (i = 0; i < 8 && softmetal_timers(); i++) softmetal_fire_timer();
    come_to_rest();
}

/* The same, and from here on nothing is held any more. */
static void let_all_come(void *unused)
{
    hold_nothing();
    sweep_a_lot(unused);
}

/* memory_allocate has the size in front. */
static void assert_not_written(const scene *s, void *memory)
{
    const unsigned char *bytes = (const unsigned char *)memory;
    size_t size, i;
    memcpy(&size, bytes - 128, sizeof size);
    for (i = 0; s->keeps == SPOILED && i < size; i++) assert_int_equal(bytes[i], 0xDD);
    free((char *)memory - 128);
}

/* Its device is gone, and has been told of. */
static void end_scene(scene *s)
{
    if (!GET(&s->let_go)) let_go_of_device(s);
    await_gone(s, &s->gone);
    if (s->callback_queue) dispatch_release(s->callback_queue);
    while (s->kept_count) assert_not_written(s, s->kept[--s->kept_count]);
    assert_int_equal(s->live_when_gone, 0);
    assert_int_equal(GET(&s->too_late), 0);
}

static void close_scene(scene *s)
{
    end_scene(s);
    assert_true(softmetal_settle(SECONDS(20)));
    softmetal_reset(); /* timers that were left come, and find nothing */
    assert_int_equal(calls_so_far(&s->gone), 1);
    assert_int_equal(GET(&s->too_late), 0);
    assert_all_given_back(&s->memory);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("listener"), 0);
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
}

/* == what its owner lets go ====================================================================================== */

typedef struct party {
    scene *scene;
    gpusync_queue *queue;       /* or NULL */
    gpusync_timeline *timeline; /* or NULL */
    bool with_device;
    unsigned order; /* of `orders` */
    void *metal;    /* the Metal queue: kept until the queue is gone */
    outcome queue_gone, timeline_gone;
    long parted;
} party;

static const char *const orders[] = {"qtd", "qdt", "tqd", "tdq", "dqt", "dtq"};
enum { TIMELINE_FIRST = 2 }; /* it goes before a queue that cannot */

static void open_party(party *p, scene *s)
{
    memset(p, 0, sizeof *p);
    p->scene = s;
    p->queue = queue_new(s->device);
    p->metal = metal_retain(gpusync_queue_metal(p->queue));
    p->timeline = timeline_new(s->device);
    p->with_device = true;
}

static void let_go_of(party *p, char what)
{
    if (what == 'q' && p->queue)
        must(gpusync_queue_destroy_later(p->queue, told, &p->queue_gone) == GPUSYNC_OK, "the queue was let go before");
    if (what == 't' && p->timeline)
        must(gpusync_timeline_destroy_later(p->timeline, told, &p->timeline_gone) == GPUSYNC_OK,
             "the timeline was let go before");
    if (what == 'd' && p->with_device) let_go_of_device(p->scene);
}

static void part(void *user)
{
    party *p = (party *)user;
    const char *what;
    for (what = orders[p->order]; *what; what++) let_go_of(p, *what);
    COUNT(&p->parted);
}

/* In a handler of the queue, or in a call that asks about work which has ended. */
static void part_and_sweep(void *user)
{
    party *p = (party *)user;
    part(p);
    sweep_a_lot(NULL);
    must(calls_so_far(&p->queue_gone) == 0, "the queue went while this thread was in it");
    must(calls_so_far(&p->scene->gone) == 0, "the device went while this thread was in it");
}

static void part_on_done(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)result;
    (void)error;
    part(user);
}

static void finish_party(party *p)
{
    if (p->scene->clock == SOFTMETAL_MANUAL && p->metal) softmetal_finish_queue(p->metal);
}

/* In a wait for work that is in flight. From here on only the thread that waits keeps what it is in. */
static void part_in_a_wait(void *user)
{
    party *p = (party *)user;
    part(p);
    finish_party(p);
    sweep_a_lot(NULL);
    must(calls_so_far(&p->queue_gone) == 0 || calls_so_far(&p->timeline_gone) == 0,
         "queue and timeline went while this thread was in one of them");
    must(calls_so_far(&p->scene->gone) == 0, "the device went while this thread was in it");
}

static void assert_over(gpusync_result result)
{
    assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
}

static void await_party(party *p)
{
    if (p->queue) await_gone(p->scene, &p->queue_gone);
    metal_release(p->metal);
    p->metal = NULL;
    if (p->timeline) await_gone(p->scene, &p->timeline_gone);
}

/* It has parted, and goes. */
static void close_party(party *p)
{
    assert_int_equal(GET(&p->parted), 1);
    finish_party(p);
    await_party(p);
    close_scene(p->scene);
    assert_int_equal(calls_so_far(&p->queue_gone), p->queue != NULL);
    assert_int_equal(calls_so_far(&p->timeline_gone), p->timeline != NULL);
}

/* == what the calls promise ====================================================================================== */

static void test_an_object_goes_once_and_not_in_the_call(void **state)
{
    int mode, i;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        party p;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
        open_party(&p, &s);
        hold_all();
        part(&p);
        assert_int_equal(calls_so_far(&p.queue_gone) + calls_so_far(&p.timeline_gone) + calls_so_far(&s.gone), 0);
        hold_nothing();
        await_party(&p);
        await_gone(&s, &s.gone);
        for (i = 0; i < 3; i++) pump(&s);
        assert_int_equal(calls_of(&p.queue_gone), 1);
        assert_int_equal(calls_of(&p.timeline_gone), 1);
        close_party(&p);
    }
}

static void test_no_object_is_ok_and_nothing_is_called(void **state)
{
    outcome o = {0};
    (void)state;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    assert_ok(gpusync_queue_destroy_later(NULL, told, &o));
    assert_ok(gpusync_timeline_destroy_later(NULL, told, &o));
    assert_ok(gpusync_device_destroy_later(NULL, told, &o));
    assert_int_equal(softmetal_timers_armed() + softmetal_dispatches(), 0);
    assert_int_equal(calls_of(&o), 0);
}

static void test_destroyed_may_be_left_out(void **state)
{
    int mode;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        gpusync_queue *queue;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
        queue = queue_new(s.device);
        (void)commit_empty_to(queue, NULL);
        finish_queue(queue);
        assert_ok(gpusync_queue_destroy_later(queue, NULL, &s));
        assert_ok(gpusync_timeline_destroy_later(timeline_new(s.device), NULL, &s));
        assert_ok(gpusync_device_destroy_later(s.device, NULL, &s));
        while (softmetal_live("dispatch_queue")) pump(&s); /* its device has them nearly to the end */
        assert_true(softmetal_settle(SECONDS(20)));
        PUT(&s.over, true);
        softmetal_reset();
        assert_int_equal(GET(&s.too_late), 0);
        assert_all_given_back(&s.memory);
        assert_int_equal(softmetal_live("dispatch_queue"), 0);
    }
}

static long told_without_user;
static void told_nothing(void *user)
{
    must(user == NULL, "a user that nobody gave");
    COUNT(&told_without_user);
}

static void test_destroyed_is_called_though_no_user_is_given(void **state)
{
    int mode;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
        PUT(&told_without_user, 0);
        assert_ok(gpusync_queue_destroy_later(queue_new(s.device), told_nothing, NULL));
        assert_ok(gpusync_timeline_destroy_later(timeline_new(s.device), told_nothing, NULL));
        close_scene(&s); /* the device goes behind both */
        assert_int_equal(GET(&told_without_user), 2);
    }
}

static void test_what_was_let_go_is_not_destroyed_again(void **state)
{
    outcome second = {0}, done = {0};
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    on_done(p.queue, commit_empty_to(p.queue, NULL), &done);
    hold_all(); /* they are still there */
    part(&p);
    assert_result(gpusync_queue_destroy_later(p.queue, told, &second), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_queue_destroy(p.queue), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_queue_destroy_now(p.queue), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_timeline_destroy_later(p.timeline, told, &second), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_timeline_destroy(p.timeline), GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_device_destroy_later(s.device, told, &second), GPUSYNC_ERROR_DESTROYED);
    hold_nothing();
    come_to_rest(); /* the queue waits for its work: the call that would not have was refused */
    assert_int_equal(calls_so_far(&done), 0);
    close_party(&p);
    assert_ended(&done, GPUSYNC_OK);
    assert_int_equal(calls_of(&second), 0);
}

static void *destroy_the_queue(void *queue)
{
    must(gpusync_queue_destroy((gpusync_queue *)queue) == GPUSYNC_OK, "destroy");
    return NULL;
}

static void test_what_another_thread_destroys_is_not_let_go(void **state)
{
    outcome second = {0};
    pthread_t destroyer;
    gpusync_queue *queue;
    void *metal;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    queue = queue_new(s.device);
    metal = metal_retain(gpusync_queue_metal(queue));
    (void)commit_empty_to(queue, NULL);
    destroyer = start(destroy_the_queue, queue);
    while (gpusync_poll(queue, 1) != GPUSYNC_ERROR_DESTROYED) sched_yield();
    assert_result(gpusync_queue_destroy_later(queue, told, &second), GPUSYNC_ERROR_DESTROYED);
    softmetal_finish_queue(metal);
    join(destroyer);
    metal_release(metal);
    close_scene(&s);
    assert_int_equal(calls_of(&second), 0);
}

/* == where the last owner lets go =============================================================================== */

static void test_the_last_owner_may_let_go_in_on_done(void **state)
{
    unsigned order;
    (void)state;
    for (order = 0; order < LENGTH(orders); order++) {
        party p;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        open_party(&p, &s);
        p.order = order;
        assert_ok(gpusync_on_done(after(p.queue, commit_empty_to(p.queue, NULL)), part_on_done, &p));
        softmetal_finish_queue(p.metal);
        assert_true(softmetal_dispatched(SECONDS(20)));
        close_party(&p);
    }
}

static void test_the_last_owner_may_let_go_in_on_done_by_hand(void **state)
{
    party p;
    scene s;
    (void)state;
    open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
    open_party(&p, &s);
    assert_ok(gpusync_on_done(after(p.queue, commit_empty_to(p.queue, NULL)), part_on_done, &p));
    softmetal_finish_queue(p.metal);
    assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
    close_party(&p);
}

static void test_the_last_owner_may_let_go_in_on_complete(void **state)
{
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    (void)SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), SIGNALS(at(p.timeline, 1)), .on_complete = part_on_done,
                 .user = &p);
    softmetal_finish_queue(p.metal);
    assert_true(softmetal_dispatched(SECONDS(20)));
    close_party(&p);
}

static void test_the_last_owner_may_let_go_in_the_dealloc_of_an_object_that_is_released(void **state)
{
    void *object;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    object = softmetal_new_witness(part, &p);
    assert_ok(gpusync_release_after(after(p.queue, commit_empty_to(p.queue, NULL)), object));
    metal_release(object);
    softmetal_finish_queue(p.metal);
    assert_true(softmetal_dispatched(SECONDS(20)));
    close_party(&p);
}

static void test_the_last_owner_may_let_go_in_the_log_function_in_a_handler(void **state)
{
    void *buffer;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    buffer = buffer_of(p.queue);
    softmetal_fail(buffer, NULL, 1, NULL);
    (void)commit_to(p.queue, buffer);
    on(&s, LOG, part_and_sweep, &p);
    softmetal_finish_queue(p.metal);
    close_party(&p);
}

static void test_the_last_owner_may_let_go_in_the_log_function_in_a_poll_of_its_queue(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    party p;
    scene s;
    (void)state;
    NOT_ON_METAL4("a poll finds no end");
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    buffer = kept_buffer_of(p.queue);
    softmetal_fail(buffer, NULL, 1, NULL);
    ticket = commit_to(p.queue, buffer);
    softmetal_complete(buffer);
    on(&s, LOG, part_and_sweep, &p);
    assert_result(gpusync_poll(p.queue, ticket), GPUSYNC_ERROR_EXECUTION);
    await_party(&p); /* the handler has not come */
    softmetal_finish(buffer);
    metal_release(buffer);
    close_party(&p);
}

static void test_the_last_owner_may_let_go_in_the_log_function_in_a_sweep(void **state)
{
    outcome o = {0};
    void *buffer;
    party p;
    scene s;
    (void)state;
    NOT_ON_METAL4("a sweep finds no end");
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    buffer = kept_buffer_of(p.queue);
    softmetal_fail(buffer, NULL, 1, NULL);
    on_done(p.queue, commit_to(p.queue, buffer), &o);
    softmetal_complete(buffer);
    on(&s, LOG, part, &p);
    softmetal_fire_timer();
    assert_ended(&o, GPUSYNC_ERROR_EXECUTION);
    await_party(&p);
    softmetal_finish(buffer);
    metal_release(buffer);
    close_party(&p);
}

enum { WAIT_FOR_A_TICKET, WAIT_FOR_EVERYTHING, WAIT_FOR_HANDLERS, WAIT_FOR_A_VALUE, WAIT_FOR_ANY, WAIT_FOR_ALL,
       WAIT_FOR_ROOM, WAITS_FOR_SOMETHING };

/* gpusync makes no command buffers of Metal 4. */
static int wait_kinds(void) { return metal4_run() ? WAIT_FOR_ROOM : WAITS_FOR_SOMETHING; }

/* Takes all the room that there is first. What it makes stays open. */
static gpusync_result wait_for_room(gpusync_queue *queue, uint64_t timeout_ns)
{
    static const uint64_t at_once = 0;
    gpusync_command_buffer_desc desc;
    void *buffer;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &at_once;
    while (gpusync_command_buffer(queue, &desc, &buffer) == GPUSYNC_OK) {}
    desc.timeout_ns = &timeout_ns;
    return gpusync_command_buffer(queue, &desc, &buffer);
}

/* A wait in the queue or in the timeline, where a ticket is in flight and no value was signalled. */
static gpusync_result wait_spinning(const party *p, int kind, gpusync_ticket ticket, uint64_t timeout_ns,
                                    const gpusync_spin *spin)
{
    gpusync_point points[2] = {after(p->queue, ticket), at(p->timeline, 1)};
    gpusync_wait_options options;
    memset(&options, 0, sizeof options);
    options.handlers = kind == WAIT_FOR_HANDLERS;
    options.spin = spin;
    if (kind == WAIT_FOR_EVERYTHING) ticket = GPUSYNC_EVERYTHING;
    if (kind == WAIT_FOR_ROOM) return wait_for_room(p->queue, timeout_ns);
    if (kind == WAIT_FOR_A_VALUE) return gpusync_timeline_wait(p->timeline, 1, timeout_ns, &options);
    if (kind == WAIT_FOR_ANY) return gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, timeout_ns, &options, NULL);
    if (kind == WAIT_FOR_ALL) return gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, timeout_ns, &options, NULL);
    return gpusync_wait_ex(p->queue, ticket, timeout_ns, &options);
}

static gpusync_result wait_somehow(const party *p, int kind, gpusync_ticket ticket, uint64_t timeout_ns)
{
    return wait_spinning(p, kind, ticket, timeout_ns, NULL);
}

static void test_the_last_owner_may_let_go_in_the_log_function_in_a_wait_that_timed_out(void **state)
{
    int kind;
    (void)state;
    for (kind = 0; kind < wait_kinds(); kind++) {
        gpusync_ticket ticket;
        party p;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        open_party(&p, &s);
        ticket = commit_empty_to(p.queue, NULL);
        on(&s, LOG, part_in_a_wait, &p);
        assert_result(wait_somehow(&p, kind, ticket, MS(1)), GPUSYNC_TIMEOUT);
        close_party(&p);
    }
}

static void part_then(outcome *o) { part(o->buffer); }

static void test_the_last_owner_may_let_go_in_destroyed_of_another_object(void **state)
{
    int mode, of_timeline;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++)
        for (of_timeline = 0; of_timeline < 2; of_timeline++) {
            party first, p;
            outcome *o = of_timeline ? &first.timeline_gone : &first.queue_gone;
            scene s;
            open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
            open_party(&first, &s);
            first.with_device = false;
            open_party(&p, &s);
            o->then = part_then;
            o->buffer = &p;
            part(&first);
            await_party(&first);
            close_party(&p);
        }
}

static void test_the_last_owner_may_let_go_in_a_job_of_a_warmup(void **state)
{
    gpusync_warmup_desc desc;
    gpusync_warmup_job job;
    gpusync_warmup *warmup;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_REAL);
    open_party(&p, &s);
    memset(&desc, 0, sizeof desc);
    job.run = part;
    job.user = &p;
    desc.jobs = &job;
    desc.job_count = 1;
    assert_ok(gpusync_warmup_start(s.device, &desc, &warmup));
    assert_ok(gpusync_warmup_wait(warmup, SECONDS(20)));
    await_party(&p);
    assert_int_equal(calls_of(&s.gone), 0);
    assert_ok(gpusync_warmup_destroy(warmup));
    close_party(&p);
}

static void test_the_last_owner_may_let_go_in_the_park_hook_of_a_wait_in_its_queue(void **state)
{
    int kind;
    (void)state;
    for (kind = 0; kind < wait_kinds(); kind++) {
        gpusync_ticket ticket;
        party p;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        open_party(&p, &s);
        ticket = commit_empty_to(p.queue, NULL);
        on(&s, PARK, part_in_a_wait, &p);
        assert_over(wait_somehow(&p, kind, ticket, GPUSYNC_FOREVER));
        close_party(&p);
    }
}

static void test_the_last_owner_may_let_go_in_the_yield_hook_of_a_wait_in_its_queue(void **state)
{
    gpusync_wait_options options;
    gpusync_ticket ticket;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    ticket = commit_empty_to(p.queue, NULL);
    memset(&options, 0, sizeof options);
    options.spin = &endless;
    on(&s, YIELD, part_in_a_wait, &p);
    assert_over(gpusync_wait_ex(p.queue, ticket, GPUSYNC_FOREVER, &options));
    close_party(&p);
}

static void test_the_last_owner_may_let_go_in_the_unpark_hook_in_a_handler(void **state)
{
    wait_job job;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    wait_job_start(&job, p.queue, commit_empty_to(p.queue, NULL), GPUSYNC_FOREVER);
    await_sleepers(s.device, 1);
    on(&s, UNPARK, part_and_sweep, &p);
    softmetal_finish_queue(p.metal);
    assert_ok(wait_job_join(&job));
    close_party(&p);
}

/* == in any order ================================================================================================= */

static void test_queue_timeline_and_device_go_in_any_order(void **state)
{
    unsigned order, in_flight, swept;
    (void)state;
    for (order = 0; order < LENGTH(orders); order++)
        for (in_flight = 0; in_flight < 2; in_flight++)
            for (swept = 0; swept < 2; swept++) {
                const char *what = orders[order];
                party p;
                scene s;
                open_scene(&s, SOFTMETAL_MANUAL);
                open_party(&p, &s);
                if (in_flight) (void)SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), SIGNALS(at(p.timeline, 1)));
                for (; *what; what++) {
                    let_go_of(&p, *what);
                    if (swept) sweep_a_lot(NULL);
                }
                if (in_flight) assert_int_equal(calls_so_far(&p.queue_gone), 0);
                p.parted = 1;
                close_party(&p);
            }
}

static void test_what_a_device_still_has_stays_usable_after_it_was_let_go(void **state)
{
    outcome done = {0}, reached = {0};
    gpusync_ticket ticket;
    party p, late;
    scene s;
    int i;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    open_party(&late, &s);
    p.with_device = late.with_device = false;
    let_go_of_device(&s);
    for (i = 0; i < 3; i++) {
        assert_stays(&s, &s.gone);
        ticket = SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), SIGNALS(at(p.timeline, (uint64_t)i + 1)));
        on_done(p.queue, ticket, &done);
        on_value(p.timeline, (uint64_t)i + 1, &reached);
        softmetal_finish_queue(p.metal);
        assert_ok(gpusync_wait(p.queue, ticket, 0));
        assert_int_equal(calls_of(&done), i + 1);
        assert_int_equal(calls_of(&reached), i + 1);
    }
    part(&p);
    await_party(&p);
    assert_stays(&s, &s.gone);
    assert_ok(gpusync_wait(late.queue, GPUSYNC_EVERYTHING, 0));
    part(&late);
    close_party(&late);
}

/* Nor for what it has let go. */
static void test_no_timer_waits_for_what_the_program_has_not_let_go(void **state)
{
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    p.with_device = false;
    let_go_of_device(&s);
    assert_stays(&s, &s.gone);
    (void)commit_empty_to(p.queue, NULL);
    part(&p);
    assert_stays(&s, &p.queue_gone);
    finish_party(&p);
    await_party(&p);
    await_gone(&s, &s.gone);
    assert_int_equal(softmetal_timers_armed(), 0);
    close_party(&p);
}

enum { LAST_IS_A_QUEUE, LAST_IS_A_QUEUE_NOW, LAST_IS_A_TIMELINE, LASTS };

static void test_the_plain_destroy_of_its_last_object_lets_a_device_go(void **state)
{
    int mode, last;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++)
        for (last = 0; last < LASTS; last++) {
            gpusync_queue *queue;
            gpusync_timeline *timeline;
            scene s;
            open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
            queue = queue_new(s.device);
            timeline = timeline_new(s.device);
            let_go_of_device(&s);
            assert_stays(&s, &s.gone);
            if (last == LAST_IS_A_TIMELINE) {
                assert_ok(gpusync_queue_destroy(queue));
                assert_stays(&s, &s.gone);
                assert_ok(gpusync_timeline_destroy(timeline));
            } else {
                assert_ok(gpusync_timeline_destroy(timeline));
                assert_stays(&s, &s.gone);
                assert_ok(last == LAST_IS_A_QUEUE ? gpusync_queue_destroy(queue) : gpusync_queue_destroy_now(queue));
            }
            close_scene(&s);
        }
}

static void test_a_plain_device_destroy_is_refused_beside_what_goes_and_done_after_it(void **state)
{
    int mode, last_is_a_timeline;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++)
        for (last_is_a_timeline = 0; last_is_a_timeline < 2; last_is_a_timeline++) {
            party p;
            scene s;
            open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
            open_party(&p, &s);
            p.with_device = false;
            p.order = TIMELINE_FIRST;
            if (last_is_a_timeline) {
                finish_party(&p);
                assert_ok(gpusync_queue_destroy(p.queue));
                p.queue = NULL;
            } else {
                (void)commit_empty_to(p.queue, NULL);
            }
            hold_all();
            part(&p);
            assert_result(gpusync_device_destroy(s.device), GPUSYNC_ERROR_IN_USE);
            if (!last_is_a_timeline) {
                hold_nothing();
                await_gone(&s, &p.timeline_gone);
                assert_result(gpusync_device_destroy(s.device), GPUSYNC_ERROR_IN_USE);
                come_to_rest(); /* the call that has told is over */
                hold_all();     /* also the callback that is the end of the queue */
            }
            finish_party(&p);
            if (mode == GPUSYNC_CALLBACKS_MANUAL) let_all_come(NULL); /* but that waits for a dispatch */
            assert_result(gpusync_device_destroy(s.device), GPUSYNC_ERROR_IN_USE);
            hold_nothing();
            await_party(&p);
            assert_ok(gpusync_device_destroy(s.device));
            assert_true(softmetal_settle(SECONDS(20)));
            softmetal_reset();
            assert_all_given_back(&s.memory);
            assert_int_equal(softmetal_live("dispatch_queue"), 0);
        }
}

/* == where `destroyed` runs ======================================================================================= */

static const unsigned user_initiated = 0x19, utility = 0x11; /* <sys/qos.h> */

static void note_class_of_service(outcome *o) { o->answered = softmetal_dispatch_qos(NULL); }

static void test_destroyed_runs_on_the_callback_queue(void **state)
{
    int own;
    (void)state;
    for (own = 0; own < 2; own++) {
        void *attribute = dispatch_queue_attr_make_with_qos_class(NULL, utility, 0);
        void *queue = own ? dispatch_queue_create("the program's", attribute) : NULL;
        party p;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED, queue);
        open_party(&p, &s);
        p.queue_gone.then = p.timeline_gone.then = s.gone.then = note_class_of_service;
        part(&p);
        close_party(&p);
        assert_int_equal(p.queue_gone.answered, own ? utility : user_initiated);
        assert_int_equal(p.timeline_gone.answered, own ? utility : user_initiated);
        assert_int_equal(s.gone.answered, own ? utility : user_initiated);
    }
}

static void test_by_hand_destroyed_runs_in_dispatch_and_is_announced(void **state)
{
    long announced;
    size_t n;
    party p;
    scene s;
    (void)state;
    open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
    open_party(&p, &s);
    p.with_device = false;
    part(&p);
    sweep_a_lot(NULL);
    assert_true(GET(&s.calls[NOTIFY]) > 0);
    assert_ok(gpusync_dispatch(s.device, 0, &n));
    assert_int_equal(n, 0);
    assert_int_equal(calls_so_far(&p.queue_gone) + calls_so_far(&p.timeline_gone), 0);
    assert_ok(gpusync_dispatch(s.device, 1, &n));
    assert_int_equal(n, 1);
    assert_int_equal(calls_so_far(&p.queue_gone) + calls_so_far(&p.timeline_gone), 1);
    assert_ok(gpusync_dispatch(s.device, 1, &n));
    assert_int_equal(n, 1);
    assert_true(ran_here(&p.queue_gone) && ran_here(&p.timeline_gone));
    announced = GET(&s.calls[NOTIFY]);
    let_go_of_device(&s);
    sweep_a_lot(NULL);
    assert_true(GET(&s.calls[NOTIFY]) > announced);
    assert_ok(gpusync_dispatch(s.device, 0, &n));
    assert_int_equal(calls_so_far(&s.gone), 0);
    assert_ok(gpusync_dispatch(s.device, 1, NULL));
    assert_int_equal(calls_so_far(&s.gone), 1);
    assert_true(ran_here(&s.gone));
    close_party(&p);
}

/* Nothing is announced. */
static void test_by_hand_a_device_goes_also_where_nothing_is_to_be_notified(void **state)
{
    gpusync_device_desc desc;
    outcome gone = {0}, second = {0};
    gpusync_device *device;
    (void)state;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    memset(&desc, 0, sizeof desc);
    desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    assert_ok(gpusync_device_create(&desc, &device));
    assert_ok(gpusync_device_destroy_later(device, told, &gone));
    sweep_a_lot(NULL);
    assert_result(gpusync_device_destroy_later(device, told, &second), GPUSYNC_ERROR_DESTROYED);
    assert_int_equal(calls_so_far(&gone), 0);
    assert_ok(gpusync_dispatch(device, SIZE_MAX, NULL));
    assert_int_equal(calls_so_far(&gone), 1);
    assert_int_equal(calls_so_far(&second), 0);
    assert_true(softmetal_settle(SECONDS(20)));
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
    softmetal_reset();
}

extern void *objc_autorelease(void *object);

static long autoreleased_gone;

static void count_autoreleased(void *unused)
{
    (void)unused;
    COUNT(&autoreleased_gone);
}

/* softmetal aborts where an object is autoreleased without a pool. */
static void do_as_a_callback(outcome *o)
{
    (void)objc_autorelease(softmetal_new_witness(count_autoreleased, NULL));
    answer(o, gpusync_wait(o->queue, o->ticket, SECONDS(20)));
    answer(o, gpusync_timeline_wait(o->timeline, 1, SECONDS(20), NULL));
    answer(o, gpusync_queue_destroy(o->queue));
    answer(o, gpusync_queue_destroy_now(o->queue));
    answer(o, gpusync_timeline_destroy(o->timeline));
    answer(o, gpusync_device_destroy((gpusync_device *)o->buffer));
    answer(o, gpusync_dispatch((gpusync_device *)o->buffer, SIZE_MAX, NULL));
}

/* The objects that it asks for are of another device. */
static void test_destroyed_runs_as_a_callback_does(void **state)
{
    int mode, i;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        outcome *all[3];
        party p, other;
        scene s, beside;
        unsigned k;
        open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
        add_scene(&beside, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
        open_party(&p, &s);
        open_party(&other, &beside);
        autoreleased_gone = 0;
        all[0] = &p.queue_gone;
        all[1] = &p.timeline_gone;
        all[2] = &s.gone;
        for (i = 0; i < 3; i++) {
            all[i]->then = do_as_a_callback;
            all[i]->queue = other.queue;
            all[i]->timeline = other.timeline;
            all[i]->buffer = beside.device;
            all[i]->ticket = i ? 1 : commit_empty_to(other.queue, NULL);
        }
        part(&p);
        await_party(&p);
        end_scene(&s);
        assert_true(softmetal_dispatched(SECONDS(20))); /* its pool goes behind it */
        assert_int_equal(GET(&autoreleased_gone), 3);
        for (i = 0; i < 3; i++) {
            assert_int_equal(all[i]->answered, 7);
            for (k = 0; k < 7; k++) assert_result(all[i]->answers[k], GPUSYNC_ERROR_WOULD_DEADLOCK);
        }
        part(&other);
        close_party(&other);
    }
}

static void test_destroyed_comes_behind_every_callback_of_its_object(void **state)
{
    int mode;
    size_t i;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        outcome of_queue[6], of_timeline[3];
        gpusync_timeline *other;
        gpusync_ticket first, last;
        void *object;
        party p;
        scene s;
        memset(of_queue, 0, sizeof of_queue);
        memset(of_timeline, 0, sizeof of_timeline);
        open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
        open_party(&p, &s);
        first = commit_empty_to(p.queue, NULL);
        softmetal_finish_queue(p.metal);
        on_done(p.queue, first, &of_queue[0]);
        last = SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), TELL(&of_queue[1]));
        on_done(p.queue, last, &of_queue[2]);
        object = softmetal_new_witness(told, &of_queue[3]);
        assert_ok(gpusync_release_after(after(p.queue, last), object));
        metal_release(object);
        other = timeline_new(s.device);
        (void)hold_on(p.queue, other, 1, &of_queue[4]);
        on_done(p.queue, last, &of_queue[5]);
        on_value(p.timeline, 0, &of_timeline[0]);
        on_value(p.timeline, 1, &of_timeline[1]);
        on_value(p.timeline, 9, &of_timeline[2]);
        assert_ok(gpusync_timeline_signal(p.timeline, 1));
        part(&p);
        sweep_a_lot(NULL);
        assert_int_equal(calls_so_far(&p.queue_gone), 0);
        assert_ok(gpusync_timeline_destroy(other));
        close_party(&p);
        for (i = 0; i < LENGTH(of_queue); i++) {
            assert_result(of_queue[i].result, i == 4 ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_OK);
            assert_int_equal(calls_so_far(&of_queue[i]), 1);
            assert_true(of_queue[i].order < p.queue_gone.order);
        }
        for (i = 0; i < LENGTH(of_timeline); i++) {
            assert_result(of_timeline[i].result, i == 2 ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_OK);
            assert_int_equal(calls_so_far(&of_timeline[i]), 1);
            assert_true(of_timeline[i].order < p.timeline_gone.order);
        }
        assert_true(s.gone.order > p.queue_gone.order && s.gone.order > p.timeline_gone.order);
    }
}

static void note_what_is_left(outcome *o)
{
    o->ticket = (gpusync_ticket)GET(&((scene *)o->buffer)->memory.live);
    o->answered = (unsigned)(softmetal_live("queue") + softmetal_live("queue4"));
}

static void test_of_an_object_nothing_is_left_when_destroyed_is_called(void **state)
{
    int of_timeline;
    (void)state;
    for (of_timeline = 0; of_timeline < 2; of_timeline++) {
        long before;
        party p;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        before = GET(&s.memory.live);
        memset(&p, 0, sizeof p);
        p.scene = &s;
        if (of_timeline) p.timeline = timeline_new(s.device);
        else p.queue = queue_new(s.device);
        p.queue_gone.then = p.timeline_gone.then = note_what_is_left;
        p.queue_gone.buffer = p.timeline_gone.buffer = &s;
        part(&p);
        await_party(&p);
        close_party(&p);
        assert_int_equal((of_timeline ? &p.timeline_gone : &p.queue_gone)->ticket, before);
        assert_int_equal((of_timeline ? &p.timeline_gone : &p.queue_gone)->answered, 0);
    }
}

/* == waits ======================================================================================================== */

typedef struct waiting {
    const party *party;
    int kind;
    gpusync_ticket ticket;
    const gpusync_spin *spin;
    gpusync_result result;
    pthread_t thread;
} waiting;

static void *wait_on_a_thread(void *argument)
{
    waiting *w = (waiting *)argument;
    w->result = wait_spinning(w->party, w->kind, w->ticket, GPUSYNC_FOREVER, w->spin);
    return NULL;
}

static void start_waiting(waiting *w, const party *p, int kind, gpusync_ticket ticket, const gpusync_spin *spin)
{
    memset(w, 0, sizeof *w);
    w->party = p;
    w->kind = kind;
    w->ticket = ticket;
    w->spin = spin;
    w->thread = start(wait_on_a_thread, w);
}

static void test_waits_that_sleep_in_an_object_end_and_the_object_goes(void **state)
{
    waiting waits[WAITS_FOR_SOMETHING];
    gpusync_ticket ticket;
    party p;
    scene s;
    int kind;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    ticket = commit_empty_to(p.queue, NULL);
    for (kind = 0; kind < wait_kinds(); kind++) start_waiting(&waits[kind], &p, kind, ticket, NULL);
    while (GET(&s.calls[PARK]) < wait_kinds()) sched_yield();
    part(&p);
    for (kind = 0; kind < wait_kinds(); kind++) join(waits[kind].thread);
    close_party(&p);
    for (kind = 0; kind < wait_kinds(); kind++) assert_result(waits[kind].result, GPUSYNC_ERROR_DESTROYED);
}

/* A call that waits for room, in a queue that open command buffers fill. */
typedef struct room_job {
    gpusync_queue *queue;
    gpusync_point signal;
    void *open, *made; /* open: submitted, with a command buffer of gpusync's behind it; NULL: one more is made */
    gpusync_result result;
} room_job;

static void *take_room(void *argument)
{
    room_job *job = (room_job *)argument;
    gpusync_submission desc;
    memset(&desc, 0, sizeof desc);
    desc.command_buffers = &job->open;
    desc.command_buffer_count = 1;
    desc.signals = &job->signal;
    desc.signal_count = 1;
    job->result =
        job->open ? gpusync_submit(job->queue, &desc, NULL) : gpusync_command_buffer(job->queue, NULL, &job->made);
    return NULL;
}

/* The call that lets the queue go discards those command buffers. So there is room; but the call that waits has to find
   that the queue goes. */
static void test_a_call_that_waits_for_room_gets_none_of_what_is_discarded(void **state)
{
    gpusync_queue_desc desc = queue_desc_of(2, 0);
    int submits;
    (void)state;
    NOT_ON_METAL4("gpusync makes no command buffers");
    for (submits = 0; submits < 2; submits++) {
        room_job job;
        pthread_t thread;
        void *open;
        party p;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        memset(&p, 0, sizeof p);
        memset(&job, 0, sizeof job);
        p.scene = &s;
        job.queue = p.queue = queue_of_kind(QUEUE_OF_GPUSYNC, s.device, &desc);
        p.timeline = timeline_new(s.device);
        p.with_device = true;
        job.signal = at(p.timeline, 1);
        open = buffer_of(p.queue);
        (void)buffer_of(p.queue);
        if (submits) job.open = open;
        thread = start(take_room, &job);
        await_sleepers(s.device, 1);
        hold_all();
        part(&p);
        join(thread);
        hold_nothing();
        close_party(&p);
        assert_null(job.made);
        assert_result(job.result, GPUSYNC_ERROR_DESTROYED);
    }
}

static void test_waits_that_spin_in_an_object_end_and_the_object_goes(void **state)
{
    int kind;
    (void)state;
    for (kind = 0; kind < wait_kinds(); kind++) {
        waiting w;
        party p;
        scene s;
        if (kind == WAIT_FOR_ROOM) continue; /* takes no spin */
        open_scene(&s, SOFTMETAL_MANUAL);
        open_party(&p, &s);
        start_waiting(&w, &p, kind, commit_empty_to(p.queue, NULL), &endless);
        while (!GET(&s.calls[YIELD])) sched_yield();
        part(&p);
        join(w.thread);
        assert_result(w.result, GPUSYNC_ERROR_DESTROYED);
        close_party(&p);
    }
}

static void test_a_wait_for_many_lets_out_what_has_ended_and_sleeps_on(void **state)
{
    int for_work;
    (void)state;
    for (for_work = 0; for_work < 2; for_work++) { /* it sleeps on for work, or for a value */
        many_job job;
        gpusync_point points[3];
        party p, other;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        open_party(&p, &s);
        open_party(&other, &s);
        p.with_device = false;
        points[0] = after(p.queue, commit_empty_to(p.queue, NULL));
        points[1] = at(p.timeline, 1);
        points[2] = for_work ? after(other.queue, commit_empty_to(other.queue, NULL)) : at(other.timeline, 1);
        many_job_start(&job, points, 3, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
        await_sleepers(s.device, 3);
        softmetal_finish_queue(p.metal);
        assert_ok(gpusync_timeline_signal(p.timeline, 1));
        await_sleepers(s.device, 1);
        part(&p);
        await_party(&p);
        await_sleepers(s.device, 1); /* it may have woken in vain */
        finish_party(&other);
        assert_ok(gpusync_timeline_signal(other.timeline, 1));
        assert_ok(many_job_join(&job));
        part(&other);
        close_party(&other);
    }
}

static void test_a_wait_in_metal_keeps_its_queue_until_the_work_has_ended(void **state)
{
    static const gpusync_wait_options options = {.blocking = true};
    wait_job job;
    party p;
    scene s;
    (void)state;
    NOT_ON_METAL4("no waitUntilCompleted");
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    memset(&job, 0, sizeof job);
    job.queue = p.queue;
    job.ticket = commit_empty_to(p.queue, NULL);
    job.timeout_ns = GPUSYNC_FOREVER;
    job.options = &options;
    job.thread = start(wait_job_body, &job);
    while (!softmetal_message_count("waitUntilCompleted")) sched_yield();
    part(&p);
    assert_stays(&s, &p.queue_gone);
    softmetal_finish_queue(p.metal);
    assert_ok(wait_job_join(&job));
    close_party(&p);
}

typedef struct device_job {
    gpusync_device *device;
    gpusync_result result;
} device_job;

static void *wait_for_the_device(void *argument)
{
    device_job *job = (device_job *)argument;
    job->result = gpusync_device_wait(job->device, GPUSYNC_FOREVER, NULL);
    return NULL;
}

static void test_a_wait_for_a_device_leaves_out_what_was_let_go(void **state)
{
    device_job job;
    pthread_t thread;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    p.with_device = false;
    (void)commit_empty_to(p.queue, NULL);
    job.device = s.device;
    thread = start(wait_for_the_device, &job);
    await_sleepers(s.device, 1);
    part(&p);
    join(thread);
    assert_ok(job.result);
    assert_ok(gpusync_device_wait(s.device, GPUSYNC_FOREVER, NULL)); /* nor is it waited for from now on */
    close_party(&p);
}

/* == work ========================================================================================================= */

static void test_work_in_flight_ends_well_before_its_queue_goes(void **state)
{
    outcome o[2] = {0};
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    on_done(p.queue, commit_empty_to(p.queue, NULL), &o[0]);
    (void)SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), SIGNALS(at(p.timeline, 1)), TELL(&o[1]));
    p.order = TIMELINE_FIRST;
    part(&p);
    assert_stays(&s, &p.queue_gone);
    await_gone(&s, &p.timeline_gone); /* goes before what signals it */
    close_party(&p);
    assert_ended(&o[0], GPUSYNC_OK);
    assert_ended(&o[1], GPUSYNC_OK);
}

static void test_work_that_ends_on_the_real_clock_lets_its_queue_go(void **state)
{
    outcome o = {0};
    void *buffer;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_REAL);
    open_party(&p, &s);
    buffer = buffer_of(p.queue);
    softmetal_set_duration(buffer, MS(20));
    on_done(p.queue, commit_to(p.queue, buffer), &o);
    part(&p);
    close_party(&p);
    assert_ended(&o, GPUSYNC_OK);
}

static void test_held_work_is_given_up(void **state)
{
    outcome o[2] = {0}, failed = {0};
    gpusync_timeline *other;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    other = timeline_new(s.device);
    on_value(other, 2, &failed);
    (void)SUBMIT(p.queue, WAITS(at(other, 1)), BUFFERS(buffer_of(p.queue)), SIGNALS(at(other, 2)), TELL(&o[0]));
    on_done(p.queue, commit_empty_to(p.queue, NULL), &o[1]); /* behind it */
    part(&p);
    await_party(&p);
    assert_ended(&o[0], GPUSYNC_ERROR_CANCELLED);
    assert_ended(&o[1], GPUSYNC_ERROR_CANCELLED);
    assert_ended(&failed, GPUSYNC_ERROR_CANCELLED);
    assert_ok(gpusync_timeline_destroy(other));
    close_party(&p);
}

static void test_open_and_tracked_buffers_are_given_up(void **state)
{
    outcome tracked = {0}, failed = {0};
    gpusync_timeline *other;
    gpusync_ticket ticket;
    void *theirs;
    party p;
    scene s;
    (void)state;
    NOT_ON_METAL4("gpusync makes none, and tracks none");
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    other = timeline_new(s.device);
    on_value(other, 1, &failed);
    assert_ok(gpusync_encode_signal(p.queue, buffer_of(p.queue), at(other, 1)));
    (void)buffer_of(p.queue);
    theirs = metal_queue_command_buffer(p.metal);
    assert_ok(gpusync_track(p.queue, theirs, &ticket));
    on_done(p.queue, ticket, &tracked);
    part(&p);
    await_party(&p);
    assert_ended(&tracked, GPUSYNC_ERROR_CANCELLED);
    assert_ended(&failed, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(softmetal_live("command_buffer"), 1); /* the owner of which may still commit it */
    assert_ok(gpusync_timeline_destroy(other));
    await_gone(&s, &s.gone);
    metal_commit(theirs);
    softmetal_finish(theirs);
    metal_release(theirs);
    close_party(&p);
}

static void test_lost_handlers_do_not_keep_a_queue(void **state)
{
    outcome o = {0};
    void *buffer;
    party p;
    scene s;
    (void)state;
    NOT_ON_METAL4("nothing else tells of the end");
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    buffer = kept_buffer_of(p.queue);
    softmetal_lose_handlers(buffer);
    on_done(p.queue, commit_to(p.queue, buffer), &o);
    part(&p);
    assert_stays(&s, &p.queue_gone);
    softmetal_finish(buffer);
    metal_release(buffer);
    close_party(&p);
    assert_ended(&o, GPUSYNC_OK);
}

static void test_work_that_was_committed_elsewhere_is_waited_for(void **state)
{
    outcome o = {0};
    gpusync_ticket ticket;
    void *theirs;
    party p;
    scene s;
    (void)state;
    NOT_ON_METAL4("nothing is tracked");
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    theirs = metal_queue_command_buffer(p.metal);
    assert_ok(gpusync_track(p.queue, theirs, &ticket));
    metal_commit(theirs);
    on_done(p.queue, ticket, &o);
    part(&p);
    assert_stays(&s, &p.queue_gone);
    softmetal_finish(theirs);
    metal_release(theirs);
    close_party(&p);
    assert_ended(&o, GPUSYNC_OK);
}

static void test_work_of_another_queue_gets_what_it_waits_for_of_a_queue_that_goes(void **state)
{
    outcome o[2] = {0};
    gpusync_ticket ticket;
    party p, other;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    open_party(&other, &s);
    p.with_device = false;
    p.order = TIMELINE_FIRST;
    ticket = SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), SIGNALS(at(p.timeline, 1)));
    (void)SUBMIT(other.queue, WAITS(after(p.queue, ticket)), BUFFERS(buffer_of(other.queue)), TELL(&o[0]));
    (void)SUBMIT(other.queue, WAITS(at(p.timeline, 1)), BUFFERS(buffer_of(other.queue)), TELL(&o[1]));
    part(&p);
    assert_stays(&s, &p.queue_gone);
    softmetal_finish_queue(p.metal);
    await_party(&p);
    softmetal_finish_queue(other.metal);
    assert_ended(&o[0], GPUSYNC_OK);
    assert_ended(&o[1], GPUSYNC_OK);
    part(&other);
    close_party(&other);
}

static void test_a_failure_of_a_queue_that_goes_is_told(void **state)
{
    outcome o = {0};
    void *buffer;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    buffer = buffer_of(p.queue);
    softmetal_fail(buffer, "TestDomain", 42, "it broke");
    on_done(p.queue, commit_to(p.queue, buffer), &o);
    part(&p);
    assert_stays(&s, &p.queue_gone);
    assert_int_equal(GET(&s.calls[LOG]), 0);
    close_party(&p);
    assert_ended(&o, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(o.error.code, 42);
    assert_int_equal(GET(&s.calls[LOG]), 1);
}

static void test_a_failure_that_sticks_ends_all_work_of_a_queue_that_goes(void **state)
{
    gpusync_queue_desc desc;
    outcome o[4] = {0};
    void *buffer;
    size_t i;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    memset(&p, 0, sizeof p);
    memset(&desc, 0, sizeof desc);
    desc.sticky_failure = true;
    p.scene = &s;
    p.queue = queue_of_kind(QUEUE_OF_GPUSYNC, s.device, &desc);
    p.metal = metal_retain(gpusync_queue_metal(p.queue));
    p.timeline = timeline_new(s.device);
    p.with_device = true;
    on_done(p.queue, commit_empty_to(p.queue, NULL), &o[0]);
    buffer = buffer_of(p.queue);
    softmetal_fail(buffer, "TestDomain", 42, "it broke");
    on_done(p.queue, commit_to(p.queue, buffer), &o[1]);
    (void)SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), SIGNALS(at(p.timeline, 1)), TELL(&o[2]));
    on_done(p.queue, commit_empty_to(p.queue, NULL), &o[3]);
    part(&p);
    assert_stays(&s, &p.queue_gone);
    close_party(&p);
    assert_ended(&o[0], GPUSYNC_OK);
    for (i = 1; i < 4; i++) {
        assert_ended(&o[i], GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(o[i].error.ticket, i + 1);
        assert_int_equal(o[i].error.code, 42);
    }
}

static void hold_signals(bool held)
{
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    quirks.signals_held = held;
    softmetal_set_quirks(&quirks);
}

/* A signal has not come when the queue goes, which does not wait for it: the device needs both. */
static void test_of_metal4_queue_and_event_outlive_their_objects_if_a_signal_has_not_come(void **state)
{
    void *event, *metal;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    memset(&p, 0, sizeof p);
    p.scene = &s;
    p.queue = queue_of_kind(QUEUE_OF_METAL4, s.device, NULL);
    p.metal = metal_retain(gpusync_queue_metal(p.queue));
    metal = metal_retain(p.metal);
    p.timeline = timeline_over(s.device, &event);
    p.with_device = true;
    hold_signals(true);
    (void)SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), SIGNALS(at(p.timeline, 1)));
    softmetal_finish_queue(p.metal);
    metal_release(event); /* the last reference but gpusync's */
    part(&p);
    await_party(&p);
    await_gone(&s, &s.gone);
    assert_int_equal(softmetal_live("queue4"), 1);
    assert_int_equal(softmetal_live("shared_event"), 1 + 1); /* and the mark */
    hold_signals(false);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    drop_recordings(); /* the test's, which know their queue */
    assert_int_equal(softmetal_retain_count(metal), 2); /* the test, and gpusync, for good */
    assert_int_equal(softmetal_retain_count(event), 1);
    metal_release(softmetal_last_signalled(metal)); /* the mark */
    metal_release(event);
    metal_release(metal);
    metal_release(metal);
    close_party(&p);
}

/* == a GPU that hangs, and one that is lost ======================================================================= */

static void test_a_gpu_that_hangs_keeps_its_queue_and_device_and_no_object_in_use(void **state)
{
    outcome hanging = {0}, done = {0};
    party p, other;
    scene s;
    int i;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    open_party(&other, &s);
    on_done(p.queue, commit_empty_to(p.queue, NULL), &hanging);
    p.order = TIMELINE_FIRST;
    part(&p);
    await_gone(&s, &p.timeline_gone);
    for (i = 0; i < 3; i++) {
        assert_stays(&s, &p.queue_gone);
        on_done(other.queue, commit_empty_to(other.queue, NULL), &done);
        softmetal_finish_queue(other.metal);
        assert_ok(gpusync_queue_wait(other.queue, 0));
        await_told(&s, &done, i + 1);
    }
    metal_release(other.metal);
    assert_ok(gpusync_queue_destroy(other.queue));
    assert_ok(gpusync_timeline_destroy(other.timeline));
    assert_stays(&s, &s.gone);
    assert_int_equal(calls_so_far(&hanging), 0);
    softmetal_finish_queue(p.metal); /* it goes on after all */
    close_party(&p);
    assert_ended(&hanging, GPUSYNC_OK);
}

static void test_what_is_let_go_behind_a_queue_whose_gpu_hangs_goes_when_its_work_has_ended(void **state)
{
    int mode;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        outcome done = {0}, held = {0};
        party p, other;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
        open_party(&p, &s);
        open_party(&other, &s);
        p.with_device = false;
        (void)commit_empty_to(p.queue, NULL);
        on_done(other.queue, commit_empty_to(other.queue, NULL), &done);
        (void)hold_on(other.queue, other.timeline, 1, &held);
        part(&p);
        part(&other);
        await_told(&s, &held, 1); /* given up in the call */
        assert_result(held.result, GPUSYNC_ERROR_CANCELLED);
        softmetal_finish_queue(other.metal);
        await_told(&s, &done, 1);
        assert_stays(&s, &p.queue_gone);
        assert_stays(&s, &other.queue_gone);
        assert_int_equal(calls_so_far(&p.timeline_gone) + calls_so_far(&other.timeline_gone), 0);
        softmetal_finish_queue(p.metal);
        await_party(&p);
        close_party(&other);
        assert_true(p.queue_gone.order < p.timeline_gone.order); /* as they were let go */
        assert_true(p.timeline_gone.order < other.queue_gone.order);
        assert_true(other.queue_gone.order < other.timeline_gone.order);
    }
}

/* No sleep takes time here. */
static void test_the_thread_that_destroys_looks_after_a_millisecond_at_first_and_each_50_later(void **state)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    long i, begun;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    (void)commit_empty_to(p.queue, NULL);
    __atomic_store_n(&sleeps.begun, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&sleeps.hurried, true, __ATOMIC_RELAXED);
    part(&p);
    while ((begun = sleeps_begun()) < (long)LENGTH(sleeps.ns) + 1) {
        assert_true(gpusync_now_ns() < limit);
        sched_yield();
    }
    assert_int_equal(calls_so_far(&p.queue_gone), 0);
    finish_party(&p);
    __atomic_store_n(&sleeps.hurried, false, __ATOMIC_RELAXED);
    close_party(&p);
    for (i = 0; i < (long)LENGTH(sleeps.ns); i++) assert_in_range(sleeps.ns[i], 0, MS(i < 50 ? i + 1 : 50));
    for (i = 50; i < (long)LENGTH(sleeps.ns); i++) limit = sleeps.ns[i] > MS(25) ? 0 : limit;
    assert_int_equal(limit, 0); /* a slow machine makes some of them shorter */
}

/* It waits for each of: a call that is inside, work, a callback, and a signal of Metal 4. */
static void test_the_thread_that_destroys_calls_no_hook(void **state)
{
    static const gpusync_wait_options options = {.blocking = true};
    outcome done = {0};
    long yields, parks, begun;
    wait_job inside;
    waiting asleep_there;
    gpusync_ticket ticket;
    party p;
    scene s;
    (void)state;
    open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
    open_party(&p, &s);
    ticket = commit_empty_to(p.queue, NULL);
    on_done(p.queue, ticket, &done);
    start_waiting(&asleep_there, &p, WAIT_FOR_A_VALUE, ticket, NULL);
    await_sleepers(s.device, 1);
    memset(&inside, 0, sizeof inside);
    if (!metal4_run()) {
        inside.queue = p.queue;
        inside.ticket = ticket;
        inside.timeout_ns = GPUSYNC_FOREVER;
        inside.options = &options;
        inside.thread = start(wait_job_body, &inside);
        while (!softmetal_message_count("waitUntilCompleted")) sched_yield();
    }
    yields = GET(&s.calls[YIELD]);
    parks = GET(&s.calls[PARK]);
    begun = sleeps_begun();
    part(&p);
    join(asleep_there.thread);
    assert_result(asleep_there.result, GPUSYNC_ERROR_DESTROYED);
    come_to_rest();
    hold_signals(true);
    finish_party(&p);
    if (!metal4_run()) assert_ok(wait_job_join(&inside));
    come_to_rest(); /* its callback is due */
    assert_int_equal(calls_so_far(&done) + calls_so_far(&p.queue_gone), 0);
    await_told(&s, &done, 1);
    await_party(&p);
    hold_signals(false);
    await_gone(&s, &s.gone);
    assert_true(sleeps_begun() >= begun + 4);
    assert_int_equal(GET(&s.calls[YIELD]), yields);
    assert_int_equal(GET(&s.calls[PARK]), parks);
    assert_true(GET(&s.calls[UNPARK]) > 0);
    close_party(&p);
}

/* Before anything that was dispatched has come. */
static void test_the_call_itself_closes_wakes_and_gives_up(void **state)
{
    gpusync_timeline *other;
    gpusync_ticket tickets[2] = {0, 0};
    outcome o[2] = {0};
    void *theirs = NULL;
    waiting asleep_there;
    uint64_t value;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    other = timeline_new(s.device);
    tickets[0] = commit_empty_to(p.queue, NULL);
    (void)SUBMIT(p.queue, WAITS(at(p.timeline, 1)), BUFFERS(buffer_of(p.queue)), SIGNALS(at(other, 1)), TELL(&o[0]));
    if (!metal4_run()) {
        assert_ok(gpusync_encode_signal(p.queue, buffer_of(p.queue), at(other, 2)));
        (void)buffer_of(p.queue);
        theirs = metal_queue_command_buffer(p.metal);
        assert_ok(gpusync_track(p.queue, theirs, &tickets[1]));
        on_done(p.queue, tickets[1], &o[1]);
    }
    start_waiting(&asleep_there, &p, WAIT_FOR_A_TICKET, tickets[0], NULL);
    await_sleepers(s.device, 1);
    hold_all();
    let_go_of(&p, 'q');
    join(asleep_there.thread);
    assert_result(asleep_there.result, GPUSYNC_ERROR_DESTROYED);
    assert_result(gpusync_timeline_query(other, &value), GPUSYNC_ERROR_CANCELLED);
    if (!metal4_run()) assert_int_equal(softmetal_live("command_buffer"), 2); /* theirs, and the one in flight */
    assert_int_equal(calls_so_far(&o[0]) + calls_so_far(&o[1]) + calls_so_far(&p.queue_gone), 0);
    hold_nothing();
    await_told(&s, &o[0], 1);
    assert_result(o[0].result, GPUSYNC_ERROR_CANCELLED);
    if (!metal4_run()) await_told(&s, &o[1], 1);
    if (!metal4_run()) assert_result(o[1].result, GPUSYNC_ERROR_CANCELLED);
    assert_stays(&s, &p.queue_gone);
    metal_release(theirs);
    assert_ok(gpusync_timeline_destroy(other));
    let_go_of(&p, 't');
    let_go_of(&p, 'd');
    p.parted = 1;
    close_party(&p);
}

typedef struct loss_job {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    gpusync_result result;
} loss_job;

static void *wait_on_a_lost_device(void *argument)
{
    loss_job *job = (loss_job *)argument;
    job->result = gpusync_wait(job->queue, job->ticket, GPUSYNC_FOREVER);
    return NULL;
}

/* going: it is lost while the queue goes. releases, completes: what the queue owes when it goes. */
static void check_a_lost_device(bool going, bool releases, bool completes)
{
    outcome done = {0}, complete = {0}, released = {0};
    gpusync_queue *other;
    void *culprit, *metal, *object;
    pthread_t thread;
    loss_job job;
    party p;
    scene s;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    other = queue_new(s.device);
    job.queue = p.queue;
    job.ticket = commit_empty_to(p.queue, NULL);
    thread = start(wait_on_a_lost_device, &job);
    await_sleepers(s.device, 1);
    on_done(p.queue, job.ticket, &done);
    object = softmetal_new_witness(told, &released);
    if (releases) assert_ok(gpusync_release_after(after(p.queue, job.ticket), object));
    metal_release(object);
    if (completes) (void)SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), TELL(&complete));
    metal = metal_retain(p.metal);
    culprit = buffer_of(other);
    fail_with_the_device(culprit);
    (void)commit_to(other, culprit);
    if (going) {
        part(&p);
        assert_stays(&s, &p.queue_gone);
        assert_int_equal(calls_so_far(&released), !releases);
    }
    finish_queue(other);
    assert_true(gpusync_device_is_lost(s.device));
    if (!going) {
        assert_int_equal(calls_of(&released), !releases);
        part(&p);
    }
    join(thread);
    assert_int_equal(calls_so_far(&p.queue_gone), 0);
    probe_give_up_lost(s.device);
    await_party(&p);
    assert_result(job.result, GPUSYNC_ERROR_DESTROYED);
    assert_ended(&done, GPUSYNC_ERROR_DEVICE_LOST);
    if (completes) assert_ended(&complete, GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(released.order && released.order < p.queue_gone.order);
    assert_ok(gpusync_queue_destroy_later(other, NULL, NULL));
    await_gone(&s, &s.gone);
    softmetal_finish_queue(metal); /* its handlers find no queue */
    metal_release(metal);
    close_party(&p);
}

static void test_on_a_lost_device_a_queue_goes_when_its_work_is_given_up_and_leaves_that_to_itself(void **state)
{
    unsigned kind;
    (void)state;
    for (kind = 0; kind < 8; kind++) check_a_lost_device(kind & 1, kind & 2, kind & 4);
}

/* == many, and few threads ======================================================================================== */

static void test_thousands_go_at_once(void **state)
{
    enum { MOST = 1000 };
    const unsigned count = MOST / SLOW;
    static gpusync_queue *queues[MOST];
    static void *metals[MOST]; /* of the queues */
    static gpusync_timeline *timelines[MOST];
    static outcome gone[2 * MOST];
    unsigned i;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    memset(gone, 0, sizeof gone);
    for (i = 0; i < count; i++) {
        timelines[i] = timeline_new(s.device);
        queues[i] = queue_new(s.device);
        metals[i] = metal_retain(gpusync_queue_metal(queues[i]));
        if (i % 16 == 0) (void)SUBMIT(queues[i], BUFFERS(buffer_of(queues[i])), SIGNALS(at(timelines[i], 1)));
        if (i % 16 == 1) (void)hold_on(queues[i], timelines[0], 7, NULL);
    }
    let_go_of_device(&s);
    for (i = 0; i < count; i++) {
        if (i % 16 == 0 && i % 32) softmetal_finish_queue(metals[i]);
        assert_ok(gpusync_timeline_destroy_later(timelines[i], told, &gone[2 * i]));
        assert_ok(gpusync_queue_destroy_later(queues[i], told, &gone[2 * i + 1]));
        if (i % 100 == 99) pump(&s);
    }
    for (i = 0; i < count; i++) {
        await_gone(&s, &gone[2 * i]);
        if (i % 32 == 0) {
            assert_int_equal(calls_so_far(&gone[2 * i + 1]), 0);
            softmetal_finish_queue(metals[i]);
        }
        metal_release(metals[i]);
        await_gone(&s, &gone[2 * i + 1]);
    }
    close_scene(&s);
}

/* However many queues of its device cannot go. */
static void test_a_queue_that_cannot_go_keeps_one_dispatch_thread(void **state)
{
    outcome done = {0};
    gpusync_ticket ticket;
    party p, second, other;
    scene s, beside;
    int i;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    softmetal_set_dispatch_threads(2);
    add_scene(&beside, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED, NULL);
    open_party(&p, &s);
    open_party(&second, &s);
    open_party(&other, &beside);
    (void)commit_empty_to(p.queue, NULL);
    (void)commit_empty_to(second.queue, NULL);
    p.with_device = false;
    part(&p);
    part(&second);
    for (i = 0; i < 5; i++) {
        come_to_rest();
        ticket = commit_empty_to(other.queue, NULL);
        on_done(other.queue, ticket, &done);
        softmetal_finish_queue(other.metal);
        await_told(&beside, &done, i + 1);
    }
    part(&other);
    await_party(&other);
    end_scene(&beside);
    assert_int_equal(calls_so_far(&p.queue_gone) + calls_so_far(&second.queue_gone), 0);
    finish_party(&p);
    await_party(&p);
    close_party(&second);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
}

/* A function on a dispatch queue of the program's, which ends when the test says so. */
typedef struct stall {
    bool begun, over;
} stall;

static void stand(void *context)
{
    stall *st = (stall *)context;
    PUT(&st->begun, true);
    while (!GET(&st->over)) sched_yield();
}

/* A scene whose callbacks have to wait until then. */
static void open_stalled_scene(scene *s, stall *st)
{
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    add_scene(s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_QUEUED, dispatch_queue_create("the program's", NULL));
    st->begun = st->over = false;
    dispatch_async_f(s->callback_queue, st, stand);
    while (!GET(&st->begun)) sched_yield();
}

static void test_a_callback_queue_that_is_busy_delays_destroyed_and_nothing_else(void **state)
{
    gpusync_ticket ticket;
    stall st;
    party p, other;
    scene s;
    (void)state;
    open_stalled_scene(&s, &st);
    open_party(&p, &s);
    open_party(&other, &s);
    other.with_device = false;
    (void)commit_empty_to(p.queue, NULL);
    part(&p);
    softmetal_finish_queue(p.metal);
    ticket = commit_empty_to(other.queue, NULL);
    softmetal_finish_queue(other.metal);
    assert_ok(gpusync_wait(other.queue, ticket, 0));
    part(&other);
    assert_int_equal(calls_so_far(&p.queue_gone) + calls_so_far(&p.timeline_gone) + calls_so_far(&other.queue_gone), 0);
    PUT(&st.over, true);
    await_party(&p);
    await_party(&other);
    close_party(&p);
}

/* Destroy runs a callback itself for which the callback queue was asked. later: the device goes behind that call. */
static void test_a_call_that_is_still_queued_when_its_device_goes_finds_none(void **state)
{
    int later;
    (void)state;
    for (later = 0; later < 2; later++) {
        outcome o = {0};
        stall st;
        gpusync_queue *queue;
        scene s;
        open_stalled_scene(&s, &st);
        queue = queue_new(s.device);
        on_done(queue, GPUSYNC_NO_TICKET, &o);
        assert_ok(gpusync_queue_destroy(queue));
        assert_int_equal(calls_so_far(&o), 1);
        if (later) {
            let_go_of_device(&s);
            assert_int_equal(calls_so_far(&s.gone), 0);
            PUT(&st.over, true);
            close_scene(&s);
            continue;
        }
        assert_ok(gpusync_device_destroy(s.device));
        PUT(&s.over, true);
        PUT(&st.over, true);
        dispatch_release(s.callback_queue);
        assert_true(softmetal_settle(SECONDS(20)));
        softmetal_reset();
        assert_int_equal(GET(&s.too_late), 0);
        assert_all_given_back(&s.memory);
        assert_int_equal(softmetal_live("dispatch_queue"), 0);
    }
}

/* It makes the next device of the same kind. */
static void make_a_scene(outcome *o)
{
    scene *s = (scene *)o->buffer;
    add_scene(s, SOFTMETAL_MANUAL, (gpusync_callback_mode)o->ticket, NULL);
}

static void test_a_device_may_be_made_in_destroyed_of_another(void **state)
{
    int mode;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        party parties[2];
        scene s, made[2];
        int i;
        open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
        s.gone.then = make_a_scene;
        s.gone.buffer = &made[0];
        s.gone.ticket = (gpusync_ticket)mode;
        end_scene(&s);
        add_scene(&made[1], SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
        for (i = 0; i < 2; i++) open_party(&parties[i], &made[i]);
        for (i = 0; i < 2; i++) part(&parties[i]);
        await_party(&parties[0]);
        end_scene(&made[0]);
        close_party(&parties[1]);
    }
}

/* == nothing is called afterwards, and no memory is needed ======================================================== */

static void test_after_destroyed_of_its_device_no_function_of_the_program_is_called(void **state)
{
    wait_job job;
    outcome released = {0};
    gpusync_queue *other;
    gpusync_ticket ticket;
    void *culprit, *metal, *object;
    party p;
    scene s;
    int mode;
    (void)state;
    for (mode = GPUSYNC_CALLBACKS_QUEUED; mode <= GPUSYNC_CALLBACKS_MANUAL; mode++) {
        open_scene_by(&s, SOFTMETAL_MANUAL, (gpusync_callback_mode)mode, NULL);
        assert_ok(gpusync_set_trace(s.device, scene_trace, &s));
        s.keeps_timers = true;
        open_party(&p, &s);
        other = queue_new(s.device);
        metal = metal_retain(p.metal);
        ticket = commit_empty_to(p.queue, NULL);
        wait_job_start(&job, p.queue, ticket, GPUSYNC_FOREVER);
        await_sleepers(s.device, 1);
        culprit = buffer_of(other);
        fail_with_the_device(culprit);
        (void)commit_to(other, culprit);
        finish_queue(other);
        probe_give_up_lost(s.device);
        assert_result(wait_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
        object = softmetal_new_witness(told, &released);
        assert_ok(gpusync_release_after(after(p.queue, ticket), object)); /* a timer is there from now on */
        metal_release(object);
        part(&p);
        assert_ok(gpusync_queue_destroy_later(other, NULL, NULL));
        await_party(&p);
        await_gone(&s, &s.gone);
        assert_true(GET(&s.calls[TRACE]) > 0 && GET(&s.calls[LOG]) > 0 && GET(&s.calls[UNPARK]) > 0);
        assert_true(GET(&s.calls[RELEASE]) > 0 && (mode == GPUSYNC_CALLBACKS_QUEUED || GET(&s.calls[NOTIFY]) > 0));
        assert_true(softmetal_timers() > 0); /* finds nothing, in close_party */
        softmetal_finish_queue(metal); /* nor do these handlers */
        metal_release(metal);
        close_party(&p);
    }
}

static void test_no_object_needs_memory_to_go(void **state)
{
    waiting waits[WAITS_FOR_SOMETHING];
    outcome o[3] = {0};
    gpusync_timeline *other;
    void *buffer;
    party p;
    scene s;
    int kind;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    other = timeline_new(s.device);
    buffer = buffer_of(p.queue);
    softmetal_fail(buffer, "TestDomain", 42, "it broke");
    on_done(p.queue, commit_to(p.queue, buffer), &o[0]);
    (void)SUBMIT(p.queue, BUFFERS(buffer_of(p.queue)), SIGNALS(at(p.timeline, 1)), TELL(&o[1]));
    (void)hold_on(p.queue, other, 1, &o[2]);
    for (kind = 0; kind < wait_kinds(); kind++) start_waiting(&waits[kind], &p, kind, 1, NULL);
    while (GET(&s.calls[PARK]) < wait_kinds()) sched_yield();
    s.memory.fail_after = true;
    PUT(&s.memory.fail_at, 1);
    part(&p);
    for (kind = 0; kind < wait_kinds(); kind++) join(waits[kind].thread);
    assert_stays(&s, &p.queue_gone);
    assert_ok(gpusync_timeline_destroy(other));
    close_party(&p);
    for (kind = 0; kind < wait_kinds(); kind++) assert_result(waits[kind].result, GPUSYNC_ERROR_DESTROYED);
    assert_ended(&o[0], GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(o[0].error.code, 42);
    assert_ended(&o[1], GPUSYNC_OK);
    assert_ended(&o[2], GPUSYNC_ERROR_CANCELLED);
}

static void test_the_counts_of_a_queue_that_goes_stay_in_those_of_its_device(void **state)
{
    outcome o = {0};
    gpusync_stats stats;
    uint64_t fewest = UINT64_MAX;
    party p;
    scene s;
    int i;
    (void)state;
    open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
    open_party(&p, &s);
    p.with_device = false;
    on_done(p.queue, commit_empty_to(p.queue, NULL), &o);
    part(&p);
    softmetal_finish_queue(p.metal);
    for (i = 0; !calls_so_far(&p.queue_gone); i++) {
        assert_ok(gpusync_device_get_stats(s.device, &stats));
        if (stats.commits < fewest) fewest = stats.commits;
        if (i < 2) sweep_a_lot(NULL); /* its callback is due, and has not run */
        else pump(&s);
    }
    await_party(&p);
    assert_ok(gpusync_device_get_stats(s.device, &stats));
    assert_int_equal(stats.commits, 1);
    close_party(&p);
    assert_int_equal(fewest, 1);
}

/* == between the steps ============================================================================================ */

/* Until the point nothing that was dispatched begins, so that the points are those of this thread alone. */
static void test_the_steps_may_be_taken_at_every_point_of_the_calls(void **state)
{
    unsigned order;
    (void)state;
    for (order = 0; order < LENGTH(orders); order++) {
        bool acted = true;
        int n;
        for (n = 1; acted; n++) {
            party p;
            scene s;
            open_scene(&s, SOFTMETAL_MANUAL);
            open_party(&p, &s);
            p.order = order;
            hold_all();
            probe_at_each(n, let_all_come, NULL);
            part(&p);
            acted = probe_has_acted();
            hold_nothing();
            close_party(&p);
        }
        assert_true(n > 2);
    }
}

static bool have_come; /* relaxed: it orders nothing */

static void *let_come_on_a_thread(void *unused)
{
    let_all_come(unused);
    __atomic_store_n(&have_come, true, __ATOMIC_RELAXED);
    return NULL;
}

static void let_come_unordered(void *thread)
{
    __atomic_store_n(&have_come, false, __ATOMIC_RELAXED);
    *(pthread_t *)thread = start(let_come_on_a_thread, NULL);
    while (!__atomic_load_n(&have_come, __ATOMIC_RELAXED)) sched_yield();
}

/* For ThreadSanitizer: what the steps read and what the call writes behind them. */
static void test_what_the_steps_read_may_be_written_by_a_call_at_that_moment(void **state)
{
    unsigned order;
    (void)state;
    for (order = 0; order < LENGTH(orders); order++) {
        bool acted = true;
        int n;
        for (n = 1; acted; n++) {
            pthread_t thread;
            party p;
            scene s;
            open_scene(&s, SOFTMETAL_MANUAL);
            open_party(&p, &s);
            p.order = order;
            hold_all();
            probe_at_each(n, let_come_unordered, &thread);
            part(&p);
            acted = probe_has_acted();
            if (!acted) hold_nothing();
            if (acted) join(thread);
            close_party(&p);
        }
        assert_true(n > 2);
    }
}

static void test_the_device_may_go_at_every_point_of_the_plain_destroy_of_the_last_object(void **state)
{
    int last;
    (void)state;
    for (last = 0; last < LASTS; last++) {
        bool acted = true;
        int n;
        for (n = 1; acted; n++) {
            gpusync_queue *queue;
            gpusync_timeline *timeline;
            scene s;
            open_scene(&s, SOFTMETAL_MANUAL);
            queue = queue_new(s.device);
            timeline = timeline_new(s.device);
            let_go_of_device(&s);
            assert_ok(last == LAST_IS_A_TIMELINE ? gpusync_queue_destroy(queue) : gpusync_timeline_destroy(timeline));
            hold_all();
            probe_at_each(n, let_all_come, NULL);
            if (last == LAST_IS_A_TIMELINE) assert_ok(gpusync_timeline_destroy(timeline));
            else if (last == LAST_IS_A_QUEUE) assert_ok(gpusync_queue_destroy(queue));
            else assert_ok(gpusync_queue_destroy_now(queue));
            acted = probe_has_acted();
            hold_nothing();
            close_scene(&s);
        }
        assert_true(n > 2);
    }
}

static void let_go_beside_a_destroy(void *user)
{
    scene *s = (scene *)user;
    let_go_of_device(s);
    let_all_come(NULL);
    must(calls_so_far(&s->gone) == 0, "the device went while this thread was in it");
}

static void test_a_device_may_be_let_go_at_every_point_of_the_plain_destroy_of_its_last_object(void **state)
{
    int last;
    (void)state;
    for (last = 0; last < LASTS; last++) {
        bool acted = true;
        int n;
        for (n = 1; acted; n++) {
            gpusync_queue *queue = NULL;
            gpusync_timeline *timeline = NULL;
            scene s;
            open_scene(&s, SOFTMETAL_MANUAL);
            if (last == LAST_IS_A_TIMELINE) timeline = timeline_new(s.device);
            else queue = queue_new(s.device);
            hold_all();
            probe_at_each(n, let_go_beside_a_destroy, &s);
            if (last == LAST_IS_A_TIMELINE) assert_ok(gpusync_timeline_destroy(timeline));
            else if (last == LAST_IS_A_QUEUE) assert_ok(gpusync_queue_destroy(queue));
            else assert_ok(gpusync_queue_destroy_now(queue));
            acted = probe_has_acted();
            hold_nothing();
            close_scene(&s);
        }
        assert_true(n > 2);
    }
}

typedef struct second_call {
    scene *scene;
    gpusync_result result;
} second_call;

static void let_go_of_device_too(void *user)
{
    second_call *second = (second_call *)user;
    second->result = gpusync_device_destroy_later(second->scene->device, told_of_device, second->scene);
}

/* The device is still there, for its queue. */
static void test_of_two_calls_at_once_for_a_device_one_alone_lets_it_go(void **state)
{
    bool acted = true;
    int n;
    (void)state;
    for (n = 1; acted; n++) {
        gpusync_queue *queue;
        gpusync_result first;
        second_call second;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        queue = queue_new(s.device);
        PUT(&s.let_go, true);
        second.scene = &s;
        second.result = GPUSYNC_ERROR_DESTROYED;
        probe_at_each(n, let_go_of_device_too, &second);
        first = gpusync_device_destroy_later(s.device, told_of_device, &s);
        acted = probe_has_acted();
        assert_result(second.result, first == GPUSYNC_OK ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_OK);
        if (first != GPUSYNC_OK) assert_result(first, GPUSYNC_ERROR_DESTROYED);
        assert_ok(gpusync_queue_destroy(queue));
        close_scene(&s);
    }
    assert_true(n > 2);
}

static void let_come_beside_a_handler(void *user)
{
    party *p = (party *)user;
    let_all_come(NULL);
    must(calls_so_far(&p->queue_gone) == 0, "the queue went while a handler was in it");
}

/* Interleaving 4 of the header. */
static void test_the_steps_may_be_taken_at_every_point_of_the_last_handler(void **state)
{
    bool acted = true;
    int n;
    (void)state;
    for (n = 1; acted; n++) {
        void *buffer;
        party p;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        open_party(&p, &s);
        buffer = kept_buffer_of(p.queue);
        (void)commit_to(p.queue, buffer);
        part(&p);
        hold_in_sleep();
        softmetal_complete(buffer);
        probe_at_each(n, let_come_beside_a_handler, &p);
        softmetal_run_handler(buffer, softmetal_handler_count(buffer) - 1);
        acted = probe_has_acted();
        hold_nothing();
        softmetal_finish(buffer);
        metal_release(buffer);
        close_party(&p);
    }
    assert_true(n > 2);
}

/* A thread that is inside while its objects are let go: the steps, and a sweep, come at a point of its way out. */
typedef struct way_out {
    party *party;
    int n;
    bool inside;
} way_out;

static void sweep_beside_a_wait(void *user)
{
    way_out *w = (way_out *)user;
    finish_party(w->party);
    let_all_come(NULL);
    must(!GET(&w->inside) || calls_so_far(&w->party->scene->gone) == 0, "the device went while a wait was in it");
}

static void part_and_sweep_on_the_way_out(void *user)
{
    way_out *w = (way_out *)user;
    hold_all();
    part(w->party);
    probe_at_each(w->n, sweep_beside_a_wait, w);
}

static void check_the_way_out_of_a_wait(int kind, int function, uint64_t timeout_ns)
{
    bool acted = true;
    way_out w;
    for (w.n = 1; acted; w.n++) {
        gpusync_result result;
        gpusync_ticket ticket;
        party p;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        open_party(&p, &s);
        w.party = &p;
        w.inside = true;
        ticket = commit_empty_to(p.queue, NULL);
        on(&s, function, part_and_sweep_on_the_way_out, &w);
        result = wait_somehow(&p, kind, ticket, timeout_ns);
        acted = probe_has_acted();
        w.inside = false;
        hold_nothing();
        if (function == LOG) assert_result(result, GPUSYNC_TIMEOUT);
        else assert_over(result);
        close_party(&p);
    }
    assert_true(function == LOG || w.n > 2);
}

static void test_a_sweep_may_come_at_every_point_at_which_a_wait_leaves(void **state)
{
    int kind;
    (void)state;
    for (kind = 0; kind < wait_kinds(); kind++) {
        check_the_way_out_of_a_wait(kind, PARK, GPUSYNC_FOREVER);
        check_the_way_out_of_a_wait(kind, LOG, MS(1));
    }
}

static void hold_all_and_part(void *user)
{
    hold_all();
    part(user);
}

/* The wait has left its queues, and gives memory back. */
static void test_a_wait_for_many_that_is_just_leaving_keeps_the_device(void **state)
{
    gpusync_point points[20];
    way_out w = {NULL, 0, true};
    size_t i;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    w.party = &p;
    for (i = 0; i < LENGTH(points); i++) points[i] = at(p.timeline, 1);
    on(&s, PARK, hold_all_and_part, &p);
    on(&s, RELEASE, sweep_beside_a_wait, &w);
    assert_result(gpusync_wait_many(points, LENGTH(points), GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL),
                  GPUSYNC_ERROR_DESTROYED);
    w.inside = false;
    assert_null(GET(&s.act[RELEASE])); /* it has come */
    close_party(&p);
}

/* The memory is kept: the wait finds it as it was, though the device may be gone. */
typedef struct device_way_out {
    party *party;
    int n;
    bool inside, gone_early;
} device_way_out;

static void sweep_beside_a_wait_for_the_device(void *user)
{
    device_way_out *w = (device_way_out *)user;
    finish_party(w->party);
    let_all_come(NULL);
    if (w->inside && calls_so_far(&w->party->scene->gone)) w->gone_early = true;
}

static void part_from_the_device_on_the_way_out(void *user)
{
    device_way_out *w = (device_way_out *)user;
    hold_all();
    part(w->party);
    probe_at_each(w->n, sweep_beside_a_wait_for_the_device, w);
}

static void test_a_wait_for_a_device_that_is_leaving_keeps_the_device(void **state)
{
    device_way_out w = {NULL, 0, false, false};
    int function;
    (void)state;
    for (function = PARK; function <= LOG; function += LOG - PARK) {
        bool acted = true;
        for (w.n = 1; acted; w.n++) {
            gpusync_result result;
            party p;
            scene s;
            open_scene(&s, SOFTMETAL_MANUAL);
            s.keeps = AS_IT_WAS;
            open_party(&p, &s);
            w.party = &p;
            w.inside = true;
            (void)commit_empty_to(p.queue, NULL);
            on(&s, function, part_from_the_device_on_the_way_out, &w);
            result = gpusync_device_wait(s.device, function == LOG ? MS(1) : GPUSYNC_FOREVER, NULL);
            w.inside = false;
            acted = probe_has_acted();
            hold_nothing();
            if (function == LOG) assert_result(result, GPUSYNC_TIMEOUT);
            else assert_ok(result);
            close_party(&p);
        }
        assert_true(w.n > 2);
    }
    assert_false(w.gone_early);
}

static void let_come_beside_a_warmup(void *user)
{
    let_all_come(NULL);
    must(calls_so_far(&((scene *)user)->gone) == 0, "the device went while a warm-up was destroyed");
}

/* A witness stands for a library: in a warm-up that is disabled nothing asks what it is. It goes near the end of the
   destroy. The memory is kept, as above. */
static void test_the_plain_destroy_of_the_last_warmup_lets_a_device_go_when_it_is_over(void **state)
{
    gpusync_pipeline_desc pipeline;
    gpusync_warmup_desc desc;
    gpusync_warmup *warmup;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    s.keeps = AS_IT_WAS;
    memset(&desc, 0, sizeof desc);
    memset(&pipeline, 0, sizeof pipeline);
    pipeline.library = softmetal_new_witness(let_come_beside_a_warmup, &s);
    pipeline.function = "add";
    desc.pipelines = &pipeline;
    desc.pipeline_count = 1;
    desc.disabled = true;
    assert_ok(gpusync_warmup_start(s.device, &desc, &warmup));
    metal_release(pipeline.library);
    let_go_of_device(&s);
    assert_stays(&s, &s.gone);
    assert_ok(gpusync_warmup_destroy(warmup));
    close_scene(&s);
}

/* A call, or a handler, that runs a function of the program, in which everything is let go. */
enum { OF_SIGNAL, OF_FAIL, OF_CANCEL, OF_DISCARD, OF_UNTRACK, OF_POLL, OF_HANDLER, OF_FAILING_POLL, OF_FAILING_HANDLER,
       OF_LOSING_HANDLER, WAYS_OUT };

typedef struct call_way_out {
    party *party;
    int n;
    waiting *sleeper; /* wakes by the call; or NULL */
    bool awake;
} call_way_out;

static void *sleep_until_the_call(void *argument)
{
    call_way_out *w = (call_way_out *)argument;
    (void)wait_on_a_thread(w->sleeper);
    PUT(&w->awake, true);
    return NULL;
}

static void part_and_sweep_behind_a_function(void *user)
{
    call_way_out *w = (call_way_out *)user;
    hold_all();
    part(w->party);
    while (w->sleeper && !GET(&w->awake)) sched_yield(); /* it leaves first */
    probe_at_each(w->n, let_all_come, NULL);
}

/* True: there was such a point. */
static bool check_the_way_out_of_a_call(int kind, int n)
{
    bool fails = kind >= OF_FAILING_POLL, of_timeline = kind == OF_SIGNAL || kind == OF_FAIL, acted;
    bool has_work = kind == OF_POLL || kind == OF_HANDLER || fails;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    void *buffer = NULL;
    call_way_out w;
    waiting sleeper;
    party p;
    scene s;
    open_scene(&s, SOFTMETAL_MANUAL);
    open_party(&p, &s);
    memset(&w, 0, sizeof w);
    memset(&sleeper, 0, sizeof sleeper);
    w.party = &p;
    w.n = n;
    if (kind == OF_CANCEL) ticket = hold_on(p.queue, p.timeline, 5, NULL);
    if (kind == OF_DISCARD) buffer = buffer_of(p.queue);
    if (kind == OF_UNTRACK) buffer = metal_queue_command_buffer(p.metal);
    if (kind == OF_UNTRACK) assert_ok(gpusync_track(p.queue, buffer, &ticket));
    if (has_work) buffer = kept_buffer_of(p.queue);
    if (fails) softmetal_fail(buffer, NULL, kind == OF_LOSING_HANDLER ? 11 : 1, NULL);
    if (has_work) ticket = commit_to(p.queue, buffer);
    if (!fails) {
        w.sleeper = &sleeper;
        sleeper.party = &p;
        sleeper.kind = of_timeline ? WAIT_FOR_A_VALUE : kind == OF_DISCARD ? WAIT_FOR_ROOM : WAIT_FOR_A_TICKET;
        sleeper.ticket = ticket;
        sleeper.thread = start(sleep_until_the_call, &w);
        await_sleepers(s.device, 1);
    }
    if (has_work) softmetal_complete(buffer);
    on(&s, fails ? LOG : UNPARKED, part_and_sweep_behind_a_function, &w);
    if (kind == OF_SIGNAL) assert_ok(gpusync_timeline_signal(p.timeline, 1));
    if (kind == OF_FAIL) assert_ok(gpusync_timeline_fail(p.timeline, NULL));
    if (kind == OF_CANCEL) assert_ok(gpusync_cancel_held(p.queue));
    if (kind == OF_DISCARD) assert_ok(gpusync_command_buffer_discard(p.queue, buffer));
    if (kind == OF_UNTRACK) assert_ok(gpusync_untrack(p.queue, ticket));
    if (kind == OF_POLL || kind == OF_FAILING_POLL) assert_true(gpusync_poll(p.queue, ticket) != GPUSYNC_NOT_READY);
    if (kind == OF_HANDLER || kind == OF_FAILING_HANDLER || kind == OF_LOSING_HANDLER)
        softmetal_run_handler(buffer, softmetal_handler_count(buffer) - 1);
    acted = probe_has_acted();
    hold_nothing();
    if (!fails) join(sleeper.thread);
    if (has_work) softmetal_finish(buffer);
    if (has_work || kind == OF_UNTRACK) metal_release(buffer);
    close_party(&p);
    return acted;
}

static void test_a_sweep_may_come_at_every_point_of_a_call_in_which_all_was_let_go(void **state)
{
    int kind, n;
    (void)state;
    for (kind = 0; kind < WAYS_OUT; kind++) {
        bool metal3 = kind == OF_DISCARD || kind == OF_UNTRACK || kind == OF_POLL || kind == OF_FAILING_POLL;
        if (metal3 && metal4_run()) continue;
        for (n = 1; check_the_way_out_of_a_call(kind, n); n++) {}
    }
}

typedef struct crowd {
    gpusync_queue *queue;
    outcome told[150], gone;
} crowd;

static void let_go_and_sweep(void *argument)
{
    crowd *c = (crowd *)argument;
    must(gpusync_queue_destroy_later(c->queue, told, &c->gone) == GPUSYNC_OK, "the queue was let go before");
    sweep_a_lot(NULL);
}

/* Held work ends on a thread that is not in its queue, and that takes several holds of the lock to tell of it: the queue
   goes behind that, and behind all that is told. */
static void test_a_queue_may_be_let_go_at_every_point_of_telling_many_of_its_end(void **state)
{
    static crowd c;
    bool over = false;
    int place, well = 0;
    (void)state;
    NOT_ON_METAL4("nothing is submitted without command buffers");
    for (place = 1; !over; place++) {
        gpusync_timeline *timeline;
        gpusync_ticket ticket;
        size_t i;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
        memset(&c, 0, sizeof c);
        c.queue = queue_new(s.device);
        timeline = timeline_new(s.device);
        ticket = SUBMIT(c.queue, WAITS(at(timeline, 1)));
        for (i = 0; i < LENGTH(c.told); i++) assert_ok(gpusync_on_done(after(c.queue, ticket), remember, &c.told[i]));
        probe_at_each(place, let_go_and_sweep, &c);
        assert_ok(gpusync_timeline_signal(timeline, 1));
        over = !probe_has_acted();
        if (over) let_go_and_sweep(&c);
        await_gone(&s, &c.gone);
        for (i = 0; i < LENGTH(c.told); i++) {
            assert_int_equal(calls_so_far(&c.told[i]), 1);
            assert_true(c.told[i].result == GPUSYNC_OK || c.told[i].result == GPUSYNC_ERROR_CANCELLED);
            assert_int_equal(c.told[i].result, c.told[0].result);
            assert_true(c.told[i].order < c.gone.order);
        }
        well += c.told[0].result == GPUSYNC_OK;
        assert_ok(gpusync_timeline_destroy(timeline));
        close_scene(&s);
    }
    assert_true(well > 2); /* let go behind the signal, too */
}

static void part_on_done_on_the_way_out(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)result;
    (void)error;
    part_and_sweep_on_the_way_out(user);
}

/* The dispatch may be the one that frees the device. */
static void test_a_sweep_may_come_at_every_point_of_a_dispatch_in_which_all_was_let_go(void **state)
{
    way_out w;
    bool acted = true;
    (void)state;
    w.inside = false;
    for (w.n = 1; acted; w.n++) {
        party p;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
        open_party(&p, &s);
        w.party = &p;
        assert_ok(gpusync_on_done(after(p.queue, commit_empty_to(p.queue, NULL)), part_on_done_on_the_way_out, &w));
        softmetal_finish_queue(p.metal);
        assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
        acted = probe_has_acted();
        hold_nothing();
        close_party(&p);
    }
    assert_true(w.n > 2);
}

/* The points are those of the thread that takes the steps, and of the callbacks. */
static void test_others_may_be_let_go_at_every_point_of_the_steps(void **state)
{
    unsigned order;
    (void)state;
    for (order = 0; order < LENGTH(orders); order++) {
        bool acted = true;
        int n;
        for (n = 1; acted; n++) {
            party p, other;
            scene s;
            open_scene(&s, SOFTMETAL_MANUAL);
            open_party(&p, &s);
            open_party(&other, &s);
            p.with_device = false;
            other.order = order;
            hold_all();
            part(&p);
            probe_at_each(n, part, &other);
            hold_nothing();
            await_party(&p);
            assert_true(softmetal_dispatched(SECONDS(20)));
            acted = probe_has_acted();
            if (!acted) part(&other);
            close_party(&other);
        }
        assert_true(n > 2);
    }
}

static void test_the_steps_may_be_taken_at_every_point_of_a_dispatch_by_hand(void **state)
{
    bool acted = true;
    int n;
    (void)state;
    for (n = 1; acted; n++) {
        party p;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
        open_party(&p, &s);
        hold_all();
        part(&p);
        probe_at_each(n, let_all_come, NULL);
        assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
        acted = probe_has_acted();
        hold_nothing();
        close_party(&p);
    }
    assert_true(n > 2);
}

static void *dispatch_all(void *device)
{
    must(gpusync_dispatch((gpusync_device *)device, SIZE_MAX, NULL) == GPUSYNC_OK, "dispatch");
    return NULL;
}

static void dispatch_on_another_thread(void *user)
{
    let_all_come(NULL);
    join(start(dispatch_all, ((scene *)user)->device));
}

/* Before the device was let go: from then on one thread dispatches. */
static void test_another_dispatch_may_come_at_every_point_of_a_dispatch(void **state)
{
    bool acted = true;
    int n;
    (void)state;
    for (n = 1; acted; n++) {
        outcome o[2] = {0};
        party p;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
        s.keeps = SPOILED;
        open_party(&p, &s);
        p.with_device = false;
        on_done(p.queue, commit_empty_to(p.queue, NULL), &o[0]);
        on_value(p.timeline, 0, &o[1]);
        softmetal_finish_queue(p.metal);
        part(&p);
        hold_in_sleep(); /* the queue owes a callback */
        probe_at_each(n, dispatch_on_another_thread, &s);
        assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
        acted = probe_has_acted();
        hold_nothing();
        close_party(&p);
        assert_ended(&o[0], GPUSYNC_OK);
        assert_ended(&o[1], GPUSYNC_OK);
        assert_true(o[0].order < p.queue_gone.order && o[1].order < p.timeline_gone.order);
    }
    assert_true(n > 2);
}

static void part_beside_a_call(void *user)
{
    part(user);
    sweep_a_lot(NULL);
}

/* A call on a timeline ends the work of a queue, or lets it go on, while the queue is let go. lost: the device was lost
   before; then destroy waits for nothing. */
static void check_letting_go_while_work_is_ended(bool fails, bool lost)
{
    bool acted = true;
    int n;
    for (n = 1; acted; n++) {
        outcome o[3] = {0};
        gpusync_timeline_desc timeline_desc = {0};
        gpusync_timeline *timeline;
        gpusync_queue *doomed;
        gpusync_ticket ticket;
        void *metal;
        party p, other;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
        s.keeps = SPOILED;
        open_party(&p, &s);
        open_party(&other, &s);
        p.with_device = false;
        metal = metal_retain(p.metal);
        timeline_desc.signalled_by_others = lost; /* or the work would be held, and given up */
        assert_ok(gpusync_timeline_create(s.device, &timeline_desc, &timeline));
        doomed = queue_new(s.device);
        ticket = SUBMIT(p.queue, WAITS(at(timeline, 1)), BUFFERS(buffer_of(p.queue)), SIGNALS(at(p.timeline, 1)),
                        TELL(&o[0]));
        on_done(p.queue, ticket, &o[1]);
        (void)SUBMIT(other.queue, WAITS(after(p.queue, ticket)), BUFFERS(buffer_of(other.queue)), TELL(&o[2]));
        if (lost) {
            void *culprit = buffer_of(doomed);
            fail_with_the_device(culprit);
            (void)commit_to(doomed, culprit);
            finish_queue(doomed);
            softmetal_time_out(softmetal_first_in_line(metal)); /* all that the ticket waits for now is the value */
            finish_party(&p);
        }
        probe_at_each(n, part_beside_a_call, &p);
        if (fails) assert_ok(gpusync_timeline_fail(timeline, NULL));
        else assert_ok(gpusync_timeline_signal(timeline, 1));
        acted = probe_has_acted();
        if (!acted) part(&p);
        finish_party(&p);
        await_party(&p);
        assert_int_equal(calls_of(&o[0]), 1);
        assert_int_equal(calls_of(&o[1]), 1);
        if (!lost) assert_result(o[0].result, o[1].result);
        softmetal_finish_queue(metal);
        metal_release(metal);
        finish_party(&other);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_ok(gpusync_queue_destroy(doomed));
        part(&other);
        close_party(&other);
        assert_int_equal(calls_of(&o[2]), 1);
    }
    assert_true(n > 2);
}

static void test_a_queue_may_be_let_go_at_every_point_of_a_call_that_ends_its_work(void **state)
{
    (void)state;
    check_letting_go_while_work_is_ended(false, false);
    check_letting_go_while_work_is_ended(true, false);
    check_letting_go_while_work_is_ended(true, true);
}

/* A thread, stopped at a point. */
static struct {
    bool stopped, goes_on, ended;
} stopped_thread;

static void stop_here(void *unused)
{
    (void)unused;
    PUT(&stopped_thread.stopped, true);
    while (!GET(&stopped_thread.goes_on)) sched_yield();
}

static void note_the_end(void *unused)
{
    (void)unused;
    PUT(&stopped_thread.ended, true);
}

/* The timer is of a wait that is over. The points are of the thread that takes the steps, and of the callbacks. */
static void test_a_sweep_may_come_at_every_point_at_which_objects_and_device_go(void **state)
{
    bool stopped = true;
    int n;
    (void)state;
    for (n = 1; stopped; n++) {
        party p;
        scene s;
        open_scene(&s, SOFTMETAL_MANUAL);
        s.keeps_timers = true;
        open_party(&p, &s);
        assert_result(gpusync_timeline_wait(p.timeline, 1, MS(1), NULL), GPUSYNC_TIMEOUT);
        assert_true(softmetal_timers() > 0);
        memset(&stopped_thread, 0, sizeof stopped_thread);
        hold_all();
        part(&p);
        probe_at_each(n, stop_here, NULL);
        hold_nothing();
        while (!GET(&stopped_thread.stopped) && !(calls_so_far(&s.gone) && softmetal_dispatched(0))) sched_yield();
        stopped = probe_has_acted();
        if (stopped) {
            softmetal_fire_timer();
            PUT(&stopped_thread.goes_on, true);
        }
        close_party(&p);
    }
    assert_true(n > 2);
}

static void *fire_one(void *unused)
{
    softmetal_fire_timer();
    note_the_end(NULL);
    return unused;
}

/* In another order: the sweep has begun. It goes over two queues and two timelines, and has a reason: a wait. */
static void test_objects_may_go_at_every_point_of_a_sweep(void **state)
{
    bool stopped = true;
    int n;
    (void)state;
    for (n = 1; stopped; n++) {
        pthread_t timer;
        value_job job;
        party p, other;
        scene s;
        uint64_t limit;
        long before;
        open_scene(&s, SOFTMETAL_MANUAL);
        s.keeps_timers = true;
        open_party(&p, &s);
        open_party(&other, &s);
        p.with_device = false;
        value_job_start(&job, other.timeline, 1, GPUSYNC_FOREVER);
        await_sleepers(s.device, 1);
        while (!softmetal_timers()) sched_yield();
        memset(&stopped_thread, 0, sizeof stopped_thread);
        probe_at_each(n, stop_here, NULL);
        timer = start(fire_one, NULL);
        while (!GET(&stopped_thread.stopped) && !GET(&stopped_thread.ended)) sched_yield();
        stopped = probe_has_acted();
        part(&p);
        before = sleeps_begun();
        limit = gpusync_now_ns() + SECONDS(20);
        while ((!calls_so_far(&p.queue_gone) || !calls_so_far(&p.timeline_gone)) && sleeps_begun() < before + 2) {
            assert_true(gpusync_now_ns() < limit);
            sched_yield();
        }
        PUT(&stopped_thread.goes_on, true);
        join(timer);
        await_party(&p);
        assert_ok(gpusync_timeline_signal(other.timeline, 1));
        assert_ok(value_job_join(&job));
        part(&other);
        close_party(&other);
    }
    assert_true(n > 2);
}

static void *destroy_the_device(void *device)
{
    must(gpusync_device_destroy((gpusync_device *)device) == GPUSYNC_OK, "the device is in use");
    PUT(&stopped_thread.ended, true);
    return NULL;
}

/* Destroy runs what the callback queue was asked for. So a call comes that finds nothing to do. */
static void test_a_call_of_the_callback_queue_that_is_about_to_leave_keeps_the_device(void **state)
{
    bool stopped = true;
    int n;
    (void)state;
    for (n = 1; stopped; n++) {
        outcome o = {0};
        pthread_t destroyer;
        gpusync_queue *queue;
        stall st;
        scene s;
        long yields;
        open_stalled_scene(&s, &st);
        queue = queue_new(s.device);
        on_done(queue, GPUSYNC_NO_TICKET, &o);
        assert_ok(gpusync_queue_destroy(queue));
        assert_true(ran_here(&o));
        memset(&stopped_thread, 0, sizeof stopped_thread);
        dispatch_async_f(s.callback_queue, NULL, note_the_end);
        probe_at_each(n, stop_here, NULL);
        PUT(&st.over, true);
        while (!GET(&stopped_thread.stopped) && !GET(&stopped_thread.ended)) sched_yield();
        stopped = probe_has_acted();
        PUT(&stopped_thread.ended, false);
        yields = GET(&s.calls[YIELD]);
        destroyer = start(destroy_the_device, s.device);
        while (stopped && GET(&s.calls[YIELD]) < yields + 2)
            must(!GET(&stopped_thread.ended), "the device went too early");
        PUT(&stopped_thread.goes_on, true);
        join(destroyer);
        PUT(&s.over, true);
        dispatch_release(s.callback_queue);
        assert_true(softmetal_settle(SECONDS(20)));
        softmetal_reset();
        assert_int_equal(GET(&s.too_late), 0);
        assert_all_given_back(&s.memory);
        assert_int_equal(softmetal_live("dispatch_queue"), 0);
    }
    assert_true(n > 2);
}

/* The thread of `destroy_queue` makes the queue's callback due before it leaves. Once that callback has run, no object keeps the
   device: that thread alone does. */
static void test_the_thread_on_which_a_queue_went_keeps_the_device_until_it_has_left(void **state)
{
    bool stopped = true, was_gone = false;
    int n;
    (void)state;
    for (n = 1; stopped; n++) {
        outcome gone = {0};
        pthread_t destroyer;
        bool is_gone;
        long yields;
        scene s;
        open_scene_by(&s, SOFTMETAL_MANUAL, GPUSYNC_CALLBACKS_MANUAL, NULL);
        hold_all();
        assert_ok(gpusync_queue_destroy_later(queue_new(s.device), told, &gone));
        memset(&stopped_thread, 0, sizeof stopped_thread);
        probe_at_each(n, stop_here, NULL);
        hold_nothing();
        while (!GET(&stopped_thread.stopped) && !softmetal_dispatched(0)) sched_yield();
        stopped = probe_has_acted();
        assert_ok(gpusync_dispatch(s.device, SIZE_MAX, NULL));
        is_gone = calls_so_far(&gone) > 0;
        was_gone = was_gone || (stopped && is_gone);
        if (!is_gone) {
            PUT(&stopped_thread.goes_on, true);
            await_told(&s, &gone, 1);
        }
        yields = GET(&s.calls[YIELD]);
        destroyer = start(destroy_the_device, s.device);
        while (stopped && is_gone && GET(&s.calls[YIELD]) < yields + 2)
            must(!GET(&stopped_thread.ended), "the device went too early");
        PUT(&stopped_thread.goes_on, true);
        join(destroyer);
        PUT(&s.over, true);
        assert_true(softmetal_settle(SECONDS(20)));
        softmetal_reset();
        assert_int_equal(GET(&s.too_late), 0);
        assert_all_given_back(&s.memory);
        assert_int_equal(softmetal_live("dispatch_queue"), 0);
    }
    assert_true(was_gone);
}

static void part_and_stop(void *user)
{
    call_way_out *w = (call_way_out *)user;
    part(w->party);
    while (!GET(&w->awake)) sched_yield();
    stop_here(NULL);
}

static void test_a_listener_that_runs_keeps_its_timeline(void **state)
{
    call_way_out w;
    waiting sleeper;
    void *event;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    memset(&p, 0, sizeof p);
    memset(&w, 0, sizeof w);
    memset(&sleeper, 0, sizeof sleeper);
    memset(&stopped_thread, 0, sizeof stopped_thread);
    p.scene = &s;
    p.timeline = timeline_over(s.device, &event);
    p.with_device = true;
    sleeper.party = w.party = &p;
    w.sleeper = &sleeper;
    sleeper.kind = WAIT_FOR_A_VALUE;
    sleeper.thread = start(sleep_until_the_call, &w);
    await_sleepers(s.device, 1);
    on(&s, UNPARKED, part_and_stop, &w);
    metal_event_signal(event, 1);
    while (!GET(&stopped_thread.stopped)) sched_yield();
    come_to_rest();
    assert_int_equal(calls_so_far(&p.timeline_gone), 0);
    PUT(&stopped_thread.goes_on, true);
    join(sleeper.thread);
    assert_ok(sleeper.result);
    metal_release(event);
    close_party(&p);
}

static void test_a_listener_that_comes_late_finds_no_timeline(void **state)
{
    outcome o = {0};
    void *event;
    party p;
    scene s;
    (void)state;
    open_scene(&s, SOFTMETAL_MANUAL);
    memset(&p, 0, sizeof p);
    p.scene = &s;
    p.timeline = timeline_over(s.device, &event);
    p.with_device = true;
    on_value(p.timeline, 1, &o);
    part(&p);
    await_party(&p);
    assert_ended(&o, GPUSYNC_ERROR_DESTROYED);
    await_gone(&s, &s.gone);
    metal_event_signal(event, 1);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    metal_release(event);
    close_party(&p);
}

/* == threads that race ============================================================================================ */

enum { RACERS = 4, SLOTS = 4, BOXES_OF_A_DEVICE = 4 };

/* A device that is let go with the last reference. */
typedef struct shared_device {
    scene scene;
    long refs;
    struct shared_device *next; /* of all, to be freed at the end */
} shared_device;

/* A queue and a timeline, likewise. */
typedef struct shared_box {
    shared_device *owner;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    uint64_t value;
    long refs, queue_told, timeline_told;
    unsigned order;
    bool plainly;
    struct shared_box *next;
} shared_box;

static struct {
    pthread_mutex_t lock; /* over the slots and the lists */
    shared_box *slots[SLOTS], *boxes;
    shared_device *devices;
    bool over;
    long in_callbacks, on_threads; /* last references that went there */
} race = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t draw(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random >> 11;
}

static void count_told(void *user) { COUNT((long *)user); }

static void drop_device(shared_device *d)
{
    if (__atomic_sub_fetch(&d->refs, 1, __ATOMIC_SEQ_CST) == 0) let_go_of_device(&d->scene);
}

static void drop_box(shared_box *b, bool in_callback)
{
    const char *what = orders[b->order];
    if (__atomic_sub_fetch(&b->refs, 1, __ATOMIC_SEQ_CST)) return;
    COUNT(in_callback ? &race.in_callbacks : &race.on_threads);
    for (; *what; what++) {
        if (*what == 'd') {
            drop_device(b->owner);
        } else if (b->plainly && !in_callback) {
            must((*what == 'q' ? gpusync_queue_destroy(b->queue) : gpusync_timeline_destroy(b->timeline)) == GPUSYNC_OK,
                 "plain destroy");
            COUNT(*what == 'q' ? &b->queue_told : &b->timeline_told);
        } else if (*what == 'q') {
            must(gpusync_queue_destroy_later(b->queue, count_told, &b->queue_told) == GPUSYNC_OK, "queue_destroy_later");
        } else {
            must(gpusync_timeline_destroy_later(b->timeline, count_told, &b->timeline_told) == GPUSYNC_OK,
                 "timeline_destroy_later");
        }
    }
}

static void drop_on_done(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)result;
    (void)error;
    drop_box((shared_box *)user, true);
}

static void drop_in_dealloc(void *user) { drop_box((shared_box *)user, true); }

static shared_device *new_device(bool has_hooks)
{
    shared_device *d = (shared_device *)calloc(1, sizeof *d);
    must(d != NULL, "no memory");
    add_scene_with(&d->scene, SOFTMETAL_REAL, GPUSYNC_CALLBACKS_QUEUED, NULL, has_hooks);
    d->refs = 1;
    pthread_mutex_lock(&race.lock);
    d->next = race.devices;
    race.devices = d;
    pthread_mutex_unlock(&race.lock);
    return d;
}

/* One reference is the caller's. */
static shared_box *new_box(shared_device *d, uint64_t *random)
{
    shared_box *b = (shared_box *)calloc(1, sizeof *b);
    must(b != NULL, "no memory");
    COUNT(&d->refs);
    b->owner = d;
    b->queue = queue_new(d->scene.device);
    b->timeline = timeline_new(d->scene.device);
    b->refs = 1;
    b->order = (unsigned)(draw(random) % LENGTH(orders));
    b->plainly = draw(random) % 4 == 0;
    pthread_mutex_lock(&race.lock);
    b->next = race.boxes;
    race.boxes = b;
    pthread_mutex_unlock(&race.lock);
    return b;
}

static void use_box(shared_box *b, uint64_t *random)
{
    gpusync_point point;
    gpusync_ticket ticket;
    gpusync_result result;
    void *buffer, *object;
    must(either_buffer(b->queue, NULL, &buffer) == GPUSYNC_OK, "command buffer");
    softmetal_set_duration(buffer, draw(random) % 100000);
    if (draw(random) % 16 == 0) softmetal_fail(buffer, NULL, 1, NULL);
    must(either_commit(b->queue, buffer, &ticket) == GPUSYNC_OK, "commit");
    COUNT(&b->refs);
    point = after(b->queue, ticket);
    if (draw(random) % 4 == 0) point = at(b->timeline, COUNT(&b->value) + 1);
    if (draw(random) % 2) {
        must(gpusync_on_done(point, drop_on_done, b) == GPUSYNC_OK, "on_done");
    } else {
        object = softmetal_new_witness(drop_in_dealloc, b);
        must(gpusync_release_after(point, object) == GPUSYNC_OK, "release_after");
        metal_release(object);
    }
    if (point.timeline) {
        result = gpusync_timeline_signal(b->timeline, point.value);
        must(result == GPUSYNC_OK || result == GPUSYNC_ERROR_NOT_RISING, "signal");
    }
    result = draw(random) % 4 == 0 ? gpusync_wait(b->queue, ticket, MS(2)) : gpusync_poll(b->queue, ticket);
    must(result == GPUSYNC_OK || result > 0 || result == GPUSYNC_ERROR_EXECUTION, "the work");
}

static void *make_use_and_let_go(void *argument)
{
    uint64_t random = *(uint64_t *)argument;
    shared_device *d = new_device(true);
    unsigned made = 0;
    while (!GET(&race.over)) {
        size_t i = draw(&random) % SLOTS;
        shared_box *fresh = NULL, *old = NULL, *b;
        if (draw(&random) % 4 == 0) {
            if (++made % BOXES_OF_A_DEVICE == 0) {
                drop_device(d);
                d = new_device(draw(&random) % 2);
            }
            fresh = new_box(d, &random);
        }
        pthread_mutex_lock(&race.lock);
        if (fresh) {
            old = race.slots[i];
            race.slots[i] = fresh;
        }
        b = race.slots[i];
        if (b) COUNT(&b->refs);
        pthread_mutex_unlock(&race.lock);
        if (old) drop_box(old, false);
        if (!b) continue;
        use_box(b, &random);
        drop_box(b, false);
    }
    drop_device(d);
    return NULL;
}

static void test_threads_let_go_by_reference_counts(void **state)
{
    uint64_t seeds[RACERS], until, limit;
    pthread_t threads[RACERS];
    shared_device *d;
    shared_box *b;
    long boxes = 0;
    unsigned i;
    (void)state;
    softmetal_reset();
    memset(race.slots, 0, sizeof race.slots);
    race.boxes = NULL;
    race.devices = NULL;
    race.over = false;
    race.in_callbacks = race.on_threads = 0;
    until = gpusync_now_ns() + SECONDS(2);
    for (i = 0; i < RACERS; i++) {
        seeds[i] = until + 0x9E3779B97F4A7C15u * (i + 1);
        threads[i] = start(make_use_and_let_go, &seeds[i]);
    }
    while (gpusync_now_ns() < until) {
        struct timespec nap = {0, 10000000};
        nanosleep(&nap, NULL);
    }
    PUT(&race.over, true);
    for (i = 0; i < RACERS; i++) join(threads[i]);
    for (i = 0; i < SLOTS; i++)
        if (race.slots[i]) drop_box(race.slots[i], false);
    limit = gpusync_now_ns() + SECONDS(60);
    for (d = race.devices; d; d = d->next)
        while (!calls_so_far(&d->scene.gone)) {
            assert_true(gpusync_now_ns() < limit);
            sched_yield();
        }
    assert_true(softmetal_settle(SECONDS(20)));
    softmetal_reset();
    for (b = race.boxes; b; b = race.boxes) {
        race.boxes = b->next;
        assert_int_equal(b->refs, 0);
        assert_int_equal(b->queue_told, 1);
        assert_int_equal(b->timeline_told, 1);
        boxes++;
        free(b);
    }
    assert_int_equal(race.in_callbacks + race.on_threads, boxes);
    assert_true(race.in_callbacks > 0 && race.on_threads > 0);
    for (d = race.devices; d; d = race.devices) {
        race.devices = d->next;
        assert_int_equal(calls_so_far(&d->scene.gone), 1);
        assert_int_equal(d->scene.live_when_gone, 0);
        assert_int_equal(d->scene.too_late, 0);
        assert_all_given_back(&d->scene.memory);
        free(d);
    }
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_object_goes_once_and_not_in_the_call),
        cmocka_unit_test(test_the_call_itself_closes_wakes_and_gives_up), /* others wait a minute for that */
        cmocka_unit_test(test_no_object_is_ok_and_nothing_is_called),
        cmocka_unit_test(test_destroyed_may_be_left_out),
        cmocka_unit_test(test_destroyed_is_called_though_no_user_is_given),
        cmocka_unit_test(test_what_was_let_go_is_not_destroyed_again),
        cmocka_unit_test(test_what_another_thread_destroys_is_not_let_go),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_on_done),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_on_done_by_hand),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_on_complete),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_the_dealloc_of_an_object_that_is_released),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_the_log_function_in_a_handler),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_the_log_function_in_a_poll_of_its_queue),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_the_log_function_in_a_sweep),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_the_log_function_in_a_wait_that_timed_out),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_destroyed_of_another_object),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_a_job_of_a_warmup),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_the_park_hook_of_a_wait_in_its_queue),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_the_yield_hook_of_a_wait_in_its_queue),
        cmocka_unit_test(test_the_last_owner_may_let_go_in_the_unpark_hook_in_a_handler),
        cmocka_unit_test(test_queue_timeline_and_device_go_in_any_order),
        cmocka_unit_test(test_what_a_device_still_has_stays_usable_after_it_was_let_go),
        cmocka_unit_test(test_no_timer_waits_for_what_the_program_has_not_let_go),
        cmocka_unit_test(test_the_plain_destroy_of_its_last_object_lets_a_device_go),
        cmocka_unit_test(test_a_plain_device_destroy_is_refused_beside_what_goes_and_done_after_it),
        cmocka_unit_test(test_destroyed_runs_on_the_callback_queue),
        cmocka_unit_test(test_by_hand_destroyed_runs_in_dispatch_and_is_announced),
        cmocka_unit_test(test_by_hand_a_device_goes_also_where_nothing_is_to_be_notified),
        cmocka_unit_test(test_destroyed_runs_as_a_callback_does),
        cmocka_unit_test(test_destroyed_comes_behind_every_callback_of_its_object),
        cmocka_unit_test(test_of_an_object_nothing_is_left_when_destroyed_is_called),
        cmocka_unit_test(test_waits_that_sleep_in_an_object_end_and_the_object_goes),
        cmocka_unit_test(test_a_call_that_waits_for_room_gets_none_of_what_is_discarded),
        cmocka_unit_test(test_waits_that_spin_in_an_object_end_and_the_object_goes),
        cmocka_unit_test(test_a_wait_for_many_lets_out_what_has_ended_and_sleeps_on),
        cmocka_unit_test(test_a_wait_in_metal_keeps_its_queue_until_the_work_has_ended),
        cmocka_unit_test(test_a_wait_for_a_device_leaves_out_what_was_let_go),
        cmocka_unit_test(test_work_in_flight_ends_well_before_its_queue_goes),
        cmocka_unit_test(test_work_that_ends_on_the_real_clock_lets_its_queue_go),
        cmocka_unit_test(test_held_work_is_given_up),
        cmocka_unit_test(test_open_and_tracked_buffers_are_given_up),
        cmocka_unit_test(test_lost_handlers_do_not_keep_a_queue),
        cmocka_unit_test(test_work_that_was_committed_elsewhere_is_waited_for),
        cmocka_unit_test(test_work_of_another_queue_gets_what_it_waits_for_of_a_queue_that_goes),
        cmocka_unit_test(test_a_failure_of_a_queue_that_goes_is_told),
        cmocka_unit_test(test_a_failure_that_sticks_ends_all_work_of_a_queue_that_goes),
        cmocka_unit_test(test_of_metal4_queue_and_event_outlive_their_objects_if_a_signal_has_not_come),
        cmocka_unit_test(test_a_gpu_that_hangs_keeps_its_queue_and_device_and_no_object_in_use),
        cmocka_unit_test(test_what_is_let_go_behind_a_queue_whose_gpu_hangs_goes_when_its_work_has_ended),
        cmocka_unit_test(test_the_thread_that_destroys_looks_after_a_millisecond_at_first_and_each_50_later),
        cmocka_unit_test(test_the_thread_that_destroys_calls_no_hook),
        cmocka_unit_test(test_on_a_lost_device_a_queue_goes_when_its_work_is_given_up_and_leaves_that_to_itself),
        cmocka_unit_test(test_thousands_go_at_once),
        cmocka_unit_test(test_a_queue_that_cannot_go_keeps_one_dispatch_thread),
        cmocka_unit_test(test_a_callback_queue_that_is_busy_delays_destroyed_and_nothing_else),
        cmocka_unit_test(test_a_call_that_is_still_queued_when_its_device_goes_finds_none),
        cmocka_unit_test(test_a_device_may_be_made_in_destroyed_of_another),
        cmocka_unit_test(test_after_destroyed_of_its_device_no_function_of_the_program_is_called),
        cmocka_unit_test(test_no_object_needs_memory_to_go),
        cmocka_unit_test(test_the_counts_of_a_queue_that_goes_stay_in_those_of_its_device),
        cmocka_unit_test(test_the_steps_may_be_taken_at_every_point_of_the_calls),
        cmocka_unit_test(test_what_the_steps_read_may_be_written_by_a_call_at_that_moment),
        cmocka_unit_test(test_the_device_may_go_at_every_point_of_the_plain_destroy_of_the_last_object),
        cmocka_unit_test(test_a_device_may_be_let_go_at_every_point_of_the_plain_destroy_of_its_last_object),
        cmocka_unit_test(test_of_two_calls_at_once_for_a_device_one_alone_lets_it_go),
        cmocka_unit_test(test_the_steps_may_be_taken_at_every_point_of_the_last_handler),
        cmocka_unit_test(test_a_sweep_may_come_at_every_point_at_which_a_wait_leaves),
        cmocka_unit_test(test_a_wait_for_many_that_is_just_leaving_keeps_the_device),
        cmocka_unit_test(test_a_wait_for_a_device_that_is_leaving_keeps_the_device),
        cmocka_unit_test(test_the_plain_destroy_of_the_last_warmup_lets_a_device_go_when_it_is_over),
        cmocka_unit_test(test_a_sweep_may_come_at_every_point_of_a_call_in_which_all_was_let_go),
        cmocka_unit_test(test_a_queue_may_be_let_go_at_every_point_of_telling_many_of_its_end),
        cmocka_unit_test(test_a_sweep_may_come_at_every_point_of_a_dispatch_in_which_all_was_let_go),
        cmocka_unit_test(test_others_may_be_let_go_at_every_point_of_the_steps),
        cmocka_unit_test(test_the_steps_may_be_taken_at_every_point_of_a_dispatch_by_hand),
        cmocka_unit_test(test_another_dispatch_may_come_at_every_point_of_a_dispatch),
        cmocka_unit_test(test_a_queue_may_be_let_go_at_every_point_of_a_call_that_ends_its_work),
        cmocka_unit_test(test_a_sweep_may_come_at_every_point_at_which_objects_and_device_go),
        cmocka_unit_test(test_objects_may_go_at_every_point_of_a_sweep),
        cmocka_unit_test(test_a_call_of_the_callback_queue_that_is_about_to_leave_keeps_the_device),
        cmocka_unit_test(test_the_thread_on_which_a_queue_went_keeps_the_device_until_it_has_left),
        cmocka_unit_test(test_a_listener_that_runs_keeps_its_timeline),
        cmocka_unit_test(test_a_listener_that_comes_late_finds_no_timeline),
        cmocka_unit_test(test_threads_let_go_by_reference_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
