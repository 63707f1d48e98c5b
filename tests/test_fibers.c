/* test_fibers.c - waits on fibers

   A cooperative scheduler (ucontext) supplies the yield, park and unpark hooks. Proved here: a thousand tasks wait
   on one thread and nothing of gpusync's ever blocks that thread; a task that parked on one thread goes on on
   another; an unpark that comes before the park is not lost, whichever side of the context switch it hits; no lock and
   no pool of gpusync's is held while a hook runs; destroying a queue lets the waiting fibers of the same
   thread go.

   The implementation is compiled in this program: whatever it sleeps on is counted here.

   It also runs on queues of Metal 4. */
#ifdef __APPLE__
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE
#endif
#include <pthread.h>
#include <ucontext.h>

/* Everything that the header may sleep on goes through here. The scheduler uses the real ones. */
static int watched_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
static int watched_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *at);
#define pthread_cond_wait watched_wait
#define pthread_cond_timedwait watched_timedwait
#define pthread_cond_timedwait_relative_np watched_timedwait
#define GPUSYNC_IMPLEMENTATION
#include "stage.h"
#undef pthread_cond_wait
#undef pthread_cond_timedwait
#undef pthread_cond_timedwait_relative_np

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#elif __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif

#ifdef WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef WITH_TSAN
#include <sanitizer/tsan_interface.h>
#endif

static long blocked_inside; /* how often the header put a thread to sleep */

static int watched_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    COUNT(&blocked_inside);
    return pthread_cond_wait(cond, mutex);
}

static int watched_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *at)
{
    COUNT(&blocked_inside);
#ifdef __APPLE__
    return pthread_cond_timedwait_relative_np(cond, mutex, at);
#else
    return pthread_cond_timedwait(cond, mutex, at);
#endif
}

/* -- the scheduler ------------------------------------------------------------------------------------ */

#define STACK_SIZE (64 * 1024)
#define MAX_WORKERS 4

typedef struct fiber fiber;
typedef struct worker worker;
typedef struct scheduler scheduler;

enum { YIELDED, PARKED, ENDED };

struct fiber {
    scheduler *home;
    void (*body)(fiber *);
    ucontext_t context;
    char *stack;
    worker *on;  /* runs on it, or ran last */
    int left_as; /* YIELDED, PARKED, ENDED */
    gpusync_waiter *waiter;
    uint64_t deadline;
    fiber *next; /* ready */
    void *fake_stack, *tsan;
    /* for the tests */
    rig *rig;
    unsigned index;
    void *buffer;
    gpusync_ticket ticket;
    gpusync_result result;
    unsigned parks, yields, resumes, moves;
    unsigned long others_between; /* turns of other fibers between the last park and its end */
};

struct worker {
    scheduler *home;
    unsigned index;
    ucontext_t context;
    fiber *first, *last, *running;
    void *fake_stack, *tsan;
    const void *stack;
    size_t stack_size;
};

struct scheduler {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    fiber *fibers;
    unsigned count, living, worker_count;
    worker workers[MAX_WORKERS];
    bool moves;                            /* a fiber goes on on the next worker */
    void (*idle)(scheduler *);             /* called where the worker would block; it must make progress */
    void (*before_switch)(fiber *);        /* in the park hook, */
    void (*before_publish)(fiber *);       /* ... when the context is saved and no thread knows it, */
    void (*after_publish)(fiber *);        /* ... when an unpark can find the fiber */
    void *user;
    unsigned long turns, permits;
    unsigned suspended, most_suspended;
    unsigned long idles, sleeps;
};

static void *const permit = (void *)&blocked_inside; /* an address that is no fiber */

static __thread worker *this_worker;

/* Not inlined: the address of a thread's variable must not be kept over a switch. */
__attribute__((noinline)) static worker *here(void)
{
    __asm__ volatile("");
    return this_worker;
}

static fiber *running(void)
{
    worker *w = here();
    return w ? w->running : NULL;
}

static void push_ready(fiber *f)
{
    scheduler *s = f->home;
    worker *w;
    pthread_mutex_lock(&s->lock);
    w = s->moves ? &s->workers[(f->on->index + 1) % s->worker_count] : f->on;
    f->next = NULL;
    if (w->first) w->last->next = f;
    else w->first = f;
    w->last = f;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

/* From the worker to the fiber and, when the fiber leaves, back again. Returns how it left: the fiber itself is some other
   worker's as soon as it is pushed or published. */
static int enter_fiber(worker *w, fiber *f)
{
    f->on = w;
    w->running = f;
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&w->fake_stack, f->stack, STACK_SIZE);
#endif
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(f->tsan, 0);
#endif
    swapcontext(&w->context, &f->context);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(w->fake_stack, NULL, NULL);
#endif
    w->running = NULL;
    return f->left_as;
}

static void arrived(fiber *f)
{
#ifdef WITH_ASAN
    worker *w = here();
    __sanitizer_finish_switch_fiber(f->fake_stack, &w->stack, &w->stack_size);
#endif
    f->resumes++;
    COUNT(&f->home->turns);
}

static void leave_fiber(fiber *f, int as)
{
    worker *w = f->on;
    f->left_as = as;
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(as == ENDED ? NULL : &f->fake_stack, w->stack, w->stack_size);
#endif
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(w->tsan, 0);
#endif
    swapcontext(&f->context, &w->context);
    arrived(f);
    if (f->on != w) f->moves++;
}

static void fiber_main(void)
{
    fiber *f = running();
    arrived(f);
    f->body(f);
    leave_fiber(f, ENDED);
}

/* The context is saved: from here on any thread may resume the fiber. A permit that is there already does so. */
static void publish(scheduler *s, fiber *f)
{
    void **word = &f->waiter->scheduler_data[0], *empty = NULL;
    if (s->before_publish) s->before_publish(f);
    if (__atomic_compare_exchange_n(word, &empty, (void *)f, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        if (s->after_publish) s->after_publish(f);
        return;
    }
    PUT(word, NULL);
    COUNT(&s->permits);
    push_ready(f);
}

/* Resume the fibers whose deadline has passed; the earliest deadline of the others. Without the lock. */
static uint64_t expire(scheduler *s)
{
    uint64_t now = gpusync_now_ns(), earliest = GPUSYNC_FOREVER;
    unsigned i;
    for (i = 0; i < s->count; i++) {
        fiber *f = &s->fibers[i];
        gpusync_waiter *waiter = GET(&f->waiter);
        uint64_t deadline = GET(&f->deadline);
        void *seen = f;
        if (!waiter) continue;
        if (deadline > now) {
            if (deadline < earliest) earliest = deadline;
        } else if (__atomic_compare_exchange_n(&waiter->scheduler_data[0], &seen, NULL, false, __ATOMIC_SEQ_CST,
                                               __ATOMIC_SEQ_CST)) {
            push_ready(f);
        }
    }
    return earliest;
}

/* The one place where a worker sleeps. With the lock. */
static void sleep_until(scheduler *s, uint64_t deadline)
{
    uint64_t now = gpusync_now_ns(), most = now + MS(5); /* a fiber that parks meanwhile may have an earlier one */
    struct timespec at;
    if (deadline > most) deadline = most;
    COUNT(&s->sleeps);
#ifdef __APPLE__
    deadline = deadline > now ? deadline - now : 0;
#endif
    at.tv_sec = (time_t)(deadline / 1000000000u);
    at.tv_nsec = (long)(deadline % 1000000000u);
#ifdef __APPLE__
    pthread_cond_timedwait_relative_np(&s->wake, &s->lock, &at);
#else
    pthread_cond_timedwait(&s->wake, &s->lock, &at);
#endif
}

/* The next fiber to run; NULL when all have ended. */
static fiber *next_ready(worker *w)
{
    scheduler *s = w->home;
    fiber *f;
    pthread_mutex_lock(&s->lock);
    while (!w->first && s->living) {
        uint64_t deadline;
        pthread_mutex_unlock(&s->lock);
        deadline = expire(s);
        pthread_mutex_lock(&s->lock);
        if (w->first || !s->living) break;
        s->idles++;
        if (s->idle) {
            pthread_mutex_unlock(&s->lock);
            s->idle(s);
            pthread_mutex_lock(&s->lock);
        } else {
            sleep_until(s, deadline);
        }
    }
    f = w->first;
    if (f) w->first = f->next;
    pthread_mutex_unlock(&s->lock);
    return f;
}

static void *work(void *argument)
{
    worker *w = (worker *)argument;
    scheduler *s = w->home;
    fiber *f;
    this_worker = w;
#ifdef WITH_TSAN
    w->tsan = __tsan_get_current_fiber();
#endif
    while ((f = next_ready(w)) != NULL) {
        int as = enter_fiber(w, f);
        if (as == YIELDED) push_ready(f);
        if (as == PARKED) publish(s, f);
        if (as != ENDED) continue;
        pthread_mutex_lock(&s->lock);
        s->living--;
        pthread_cond_broadcast(&s->wake);
        pthread_mutex_unlock(&s->lock);
    }
    this_worker = NULL;
    return NULL;
}

/* -- its hooks ---------------------------------------------------------------------------------------- */

static void fiber_yield(void *user)
{
    fiber *f = running();
    (void)user;
    if (!f) {
        sched_yield();
        return;
    }
    f->yields++;
    leave_fiber(f, YIELDED);
}

/* Outside of the fibers: when a queue is destroyed at the end of a test. */
static void park_thread(gpusync_waiter *waiter, uint64_t deadline_ns)
{
    void *seen = permit;
    while (GET(&waiter->scheduler_data[0]) != permit && gpusync_now_ns() < deadline_ns) sched_yield();
    __atomic_compare_exchange_n(&waiter->scheduler_data[0], &seen, NULL, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void fiber_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    scheduler *s = (scheduler *)user;
    fiber *f = running();
    unsigned long before;
    if (!f) {
        park_thread(waiter, deadline_ns);
        return;
    }
    f->parks++;
    if (s->before_switch) {
        PUT(&f->waiter, waiter);
        s->before_switch(f);
    }
    PUT(&f->deadline, deadline_ns);
    PUT(&f->waiter, waiter);
    pthread_mutex_lock(&s->lock);
    if (++s->suspended > s->most_suspended) s->most_suspended = s->suspended;
    pthread_mutex_unlock(&s->lock);
    before = GET(&s->turns);
    leave_fiber(f, PARKED);
    f->others_between = GET(&s->turns) - before - 1;
    pthread_mutex_lock(&s->lock);
    s->suspended--;
    pthread_mutex_unlock(&s->lock);
    PUT(&f->waiter, NULL);
}

static void fiber_unpark(void *user, gpusync_waiter *waiter)
{
    void **word = &waiter->scheduler_data[0], *seen = GET(word);
    (void)user;
    while (seen != permit) {
        void *next = seen ? NULL : permit;
        if (!__atomic_compare_exchange_n(word, &seen, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
        if (seen) push_ready((fiber *)seen);
        return;
    }
}

/* -- a rig whose waits are fibers --------------------------------------------------------------------- */

typedef struct fiber_rig {
    rig rig;
    scheduler scheduler;
    gpusync_hooks hooks;
    void *memory; /* 16 bytes for each fiber */
} fiber_rig;

static void fibers_open(fiber_rig *r, softmetal_clock clock, gpusync_spin spin, unsigned limit)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(r, 0, sizeof *r);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    r->hooks.yield = fiber_yield;
    r->hooks.park = fiber_park;
    r->hooks.unpark = fiber_unpark;
    r->hooks.user = &r->scheduler;
    device_desc.hooks = &r->hooks;
    device_desc.spin = &spin;
    queue_desc.max_command_buffer_count = limit;
    pthread_mutex_init(&r->scheduler.lock, NULL);
    init_condition(&r->scheduler.wake);
    PUT(&blocked_inside, 0);
    rig_open_with(&r->rig, clock, device_desc, queue_desc);
}

static void fibers_close(fiber_rig *r)
{
    metal_release(r->memory);
    rig_close(&r->rig);
    pthread_cond_destroy(&r->scheduler.wake);
    pthread_mutex_destroy(&r->scheduler.lock);
}

static void fibers_make(fiber_rig *r, unsigned count, void (*body)(fiber *))
{
    scheduler *s = &r->scheduler;
    unsigned i;
    s->count = s->living = count;
    s->fibers = (fiber *)calloc(count, sizeof *s->fibers);
    if (!s->worker_count) s->worker_count = 1;
    for (i = 0; i < s->worker_count; i++) {
        s->workers[i].home = s;
        s->workers[i].index = i;
    }
    for (i = 0; i < count; i++) {
        fiber *f = &s->fibers[i];
        f->home = s;
        f->rig = &r->rig;
        f->index = i;
        f->body = body;
        f->result = GPUSYNC_NOT_READY;
        f->stack = (char *)malloc(STACK_SIZE);
        f->on = &s->workers[i % s->worker_count];
#ifdef WITH_TSAN
        f->tsan = __tsan_create_fiber(0);
#endif
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = f->stack;
        f->context.uc_stack.ss_size = STACK_SIZE;
        f->context.uc_link = NULL;
        makecontext(&f->context, fiber_main, 0);
    }
    for (i = 0; i < count; i++) push_ready(&s->fibers[i]);
    if (!r->memory) r->memory = metal_buffer_new(r->rig.metal_device, 16 * count);
}

/* The calling thread is the first worker. */
static void fibers_run(fiber_rig *r)
{
    scheduler *s = &r->scheduler;
    pthread_t threads[MAX_WORKERS];
    unsigned i;
    for (i = 1; i < s->worker_count; i++) threads[i] = start(work, &s->workers[i]);
    work(&s->workers[0]);
    for (i = 1; i < s->worker_count; i++) join(threads[i]);
    assert_int_equal(s->living, 0);
}

static void fibers_free(fiber_rig *r)
{
    scheduler *s = &r->scheduler;
    unsigned i;
    for (i = 0; i < s->count; i++) {
#ifdef WITH_TSAN
        __tsan_destroy_fiber(s->fibers[i].tsan);
#endif
        free(s->fibers[i].stack);
    }
    free(s->fibers);
    s->fibers = NULL;
    s->count = 0;
}

/* -- what the fibers do ------------------------------------------------------------------------------- */

static unsigned char mark_of(const fiber *f)
{
    return (unsigned char)(f->index % 255 + 1);
}

static void *memory_behind(const fiber *f)
{
    return ((fiber_rig *)(void *)f->rig)->memory;
}

/* A command buffer that fills the fiber's 16 bytes. */
static void *make_work(fiber *f)
{
    void *buffer = NULL, *blit;
    f->result = either_buffer(f->rig->queue, NULL, &buffer);
    if (f->result != GPUSYNC_OK) return NULL;
    blit = encoder_of(buffer);
    metal_fill(blit, memory_behind(f), 16 * f->index, 16, mark_of(f));
    metal_end(blit);
    return buffer;
}

static bool work_is_done(const fiber *f)
{
    const unsigned char *bytes = (const unsigned char *)metal_contents(memory_behind(f)) + 16 * f->index;
    unsigned i;
    for (i = 0; i < 16; i++)
        if (bytes[i] != mark_of(f)) return false;
    return true;
}

static void body_commit(fiber *f)
{
    f->buffer = make_work(f);
    if (f->buffer) f->result = either_commit(f->rig->queue, f->buffer, &f->ticket);
}

static void body_commit_and_wait(fiber *f)
{
    body_commit(f);
    if (f->result == GPUSYNC_OK) f->result = gpusync_wait(f->rig->queue, f->ticket, GPUSYNC_FOREVER);
    if (f->result == GPUSYNC_OK && !work_is_done(f)) f->result = GPUSYNC_NOT_READY;
}

static void body_wait(fiber *f)
{
    f->result = gpusync_wait(f->rig->queue, f->ticket, GPUSYNC_FOREVER);
}

/* Nothing of gpusync's put a thread to sleep, not even Metal's own wait. */
static void assert_never_blocked(void)
{
    assert_int_equal(GET(&blocked_inside), 0);
    assert_int_equal(softmetal_message_count("waitUntilCompleted"), 0);
}

/* -- a thousand tasks on one thread ------------------------------------------------------------------- */

#define TASKS 1000u

/* The GPU of a manual clock, stepped by the scheduler when it has nothing else to do. */
static void idle_finishes_one(scheduler *s)
{
    unsigned *next = (unsigned *)s->user;
    if (*next == 0) { /* the first time that nothing can run: every fiber waits, and this thread is free */
        assert_int_equal(s->suspended, TASKS);
        assert_int_equal(stats_of(s->fibers[0].rig->queue).commits, TASKS);
    }
    if (*next == TASKS) return;
    softmetal_finish(s->fibers[(*next)++].buffer);
}

static void thousand_tasks_one_thread(void **state)
{
    static const gpusync_spin none = {0, 0, 0, false};
    fiber_rig r;
    unsigned next = 0, i;
    (void)state;
    fibers_open(&r, SOFTMETAL_MANUAL, none, TASKS);
    r.scheduler.idle = idle_finishes_one;
    r.scheduler.user = &next;
    fibers_make(&r, TASKS, body_commit_and_wait);
    fibers_run(&r);
    for (i = 0; i < TASKS; i++) {
        const fiber *f = &r.scheduler.fibers[i];
        assert_result(f->result, GPUSYNC_OK);
        assert_true(f->parks >= 1);
        assert_int_equal(f->yields, 0);
        /* all that came after it ran before it went on */
        if (f->parks == 1) assert_true(f->others_between >= TASKS - 1 - i);
    }
    assert_int_equal(r.scheduler.most_suspended, TASKS);
    assert_int_equal(stats_of(r.rig.queue).waits_sleep, TASKS);
    assert_int_equal(stats_of(r.rig.queue).waits_unmet, 0);
    assert_never_blocked();
    fibers_free(&r);
    fibers_close(&r);
}

/* More waits for the same end than one hold of the queue's lock takes off its lists (locks.h). The first hundred also wait
   for a value, so they are taken off and sleep on. The handler of the one command buffer wakes all others, and no timer
   does. The last of them signals the value. */
#define CROWD 200u
#define SLEEP_ON 100u
static gpusync_timeline *crowd_value;
static void body_wait_in_a_crowd(fiber *f)
{
    const fiber *first = &f->home->fibers[0];
    gpusync_queue *queue = f->rig->queue;
    if (f == first) {
        body_commit(f);
        if (f->result != GPUSYNC_OK) return;
    }
    if (f->index < SLEEP_ON) {
        const gpusync_point both[] = {gpusync_at_ticket(queue, GPUSYNC_EVERYTHING), gpusync_at_value(crowd_value, 1)};
        f->result = gpusync_wait_many(both, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL);
    } else if (f->index % 2) {
        f->result = gpusync_queue_wait(queue, GPUSYNC_FOREVER);
    } else {
        f->result = gpusync_wait(queue, first->ticket, GPUSYNC_FOREVER);
    }
    if (f->index == CROWD - 1 && f->result == GPUSYNC_OK) f->result = gpusync_timeline_signal(crowd_value, 1);
}

static void idle_finishes_the_only_one(scheduler *s)
{
    assert_int_equal(s->suspended, CROWD); /* not a second time: the end was told to all */
    softmetal_finish(s->fibers[0].buffer);
}

static void one_end_wakes_a_crowd(void **state)
{
    static const gpusync_spin none = {0, 0, 0, false};
    fiber_rig r;
    (void)state;
    fibers_open(&r, SOFTMETAL_MANUAL, none, 4);
    r.scheduler.idle = idle_finishes_the_only_one;
    assert_ok(gpusync_timeline_create(r.rig.device, NULL, &crowd_value));
    fibers_make(&r, CROWD, body_wait_in_a_crowd);
    fibers_run(&r);
    for (unsigned i = 0; i < CROWD; i++) {
        assert_result(r.scheduler.fibers[i].result, GPUSYNC_OK);
        assert_int_equal(r.scheduler.fibers[i].parks, 1);
    }
    assert_int_equal(r.scheduler.idles, 1);
    assert_never_blocked();
    assert_ok(gpusync_timeline_destroy(crowd_value));
    fibers_free(&r);
    fibers_close(&r);
}

/* With yields in the spin phase: they take turns, and park after exactly the budget. */
static void thousand_tasks_spin_first(void **state)
{
    static const gpusync_spin four = {1, 4, 0, false};
    fiber_rig r;
    unsigned next = 0, i;
    (void)state;
    fibers_open(&r, SOFTMETAL_MANUAL, four, TASKS);
    r.scheduler.idle = idle_finishes_one;
    r.scheduler.user = &next;
    fibers_make(&r, TASKS, body_commit_and_wait);
    fibers_run(&r);
    for (i = 0; i < TASKS; i++) {
        const fiber *f = &r.scheduler.fibers[i];
        assert_result(f->result, GPUSYNC_OK);
        assert_int_equal(f->yields, 4);
        assert_true(f->parks >= 1);
    }
    assert_int_equal(stats_of(r.rig.queue).waits_sleep, TASKS);
    assert_never_blocked();
    fibers_free(&r);
    fibers_close(&r);
}

/* The real clock, and a queue that has room for 64: the others park inside gpusync_command_buffer. The first buffer
   hangs until the scheduler's thread sleeps, in the one place where it may: then all the tasks are suspended. */
static void body_behind_a_hang(fiber *f)
{
    if (f->index != 0) {
        body_commit_and_wait(f);
        return;
    }
    f->buffer = make_work(f);
    if (!f->buffer) return;
    softmetal_hang(f->buffer);
    f->result = either_commit(f->rig->queue, f->buffer, &f->ticket);
    if (f->result == GPUSYNC_OK) f->result = gpusync_wait(f->rig->queue, f->ticket, GPUSYNC_FOREVER);
}

static void *unhang_when_asleep(void *argument)
{
    scheduler *s = (scheduler *)argument;
    while (GET(&s->sleeps) == 0) sched_yield();
    softmetal_unhang(s->fibers[0].buffer);
    return NULL;
}

static void thousand_tasks_without_room(void **state)
{
    static const gpusync_spin none = {0, 0, 0, false};
    fiber_rig r;
    pthread_t helper;
    unsigned i;
    (void)state;
    fibers_open(&r, SOFTMETAL_REAL, none, 64);
    fibers_make(&r, TASKS, body_behind_a_hang);
    helper = start(unhang_when_asleep, &r.scheduler);
    fibers_run(&r);
    join(helper);
    for (i = 0; i < TASKS; i++) assert_result(r.scheduler.fibers[i].result, GPUSYNC_OK);
    assert_int_equal(r.scheduler.most_suspended, TASKS);
    assert_int_equal(stats_of(r.rig.queue).completions, TASKS);
    assert_never_blocked();
    fibers_free(&r);
    fibers_close(&r);
}

static void thousand_tasks_default_budget(void **state)
{
    static const gpusync_spin usual = {32, 224, 0, false};
    fiber_rig r;
    unsigned long yields = 0;
    gpusync_stats stats;
    unsigned i;
    (void)state;
    fibers_open(&r, SOFTMETAL_REAL, usual, 64);
    fibers_make(&r, TASKS, body_commit_and_wait);
    fibers_run(&r);
    for (i = 0; i < TASKS; i++) {
        assert_result(r.scheduler.fibers[i].result, GPUSYNC_OK);
        yields += r.scheduler.fibers[i].yields;
    }
    stats = stats_of(r.rig.queue);
    assert_true(yields > 0);
    assert_true(stats.waits_inline + stats.waits_status + stats.waits_spin + stats.waits_sleep <= TASKS);
    assert_never_blocked();
    fibers_free(&r);
    fibers_close(&r);
}

/* -- fibers that move between threads ----------------------------------------------------------------- */

#define TRAVELLERS 60u
#define TRIPS 6u

/* Waits with short limits too, so that deadlines and unparks race for the fiber. */
static void body_travel(fiber *f)
{
    unsigned i;
    for (i = 0; i < TRIPS; i++) {
        body_commit(f);
        if (f->result != GPUSYNC_OK) return;
        do f->result = gpusync_wait(f->rig->queue, f->ticket, i % 2 ? GPUSYNC_FOREVER : 200000);
        while (f->result == GPUSYNC_TIMEOUT);
        if (f->result == GPUSYNC_OK && !work_is_done(f)) f->result = GPUSYNC_NOT_READY;
        if (f->result != GPUSYNC_OK) return;
    }
}

static void travel(unsigned workers, gpusync_spin spin)
{
    softmetal_timing timing;
    fiber_rig r;
    unsigned long moves = 0, resumes = 0;
    unsigned i;
    fibers_open(&r, SOFTMETAL_REAL, spin, 32);
    softmetal_get_timing(&timing);
    timing.execute.max_ns = 100000;
    timing.notify.max_ns = 50000;
    softmetal_set_timing(&timing);
    r.scheduler.worker_count = workers;
    r.scheduler.moves = true;
    fibers_make(&r, TRAVELLERS, body_travel);
    fibers_run(&r);
    for (i = 0; i < TRAVELLERS; i++) {
        const fiber *f = &r.scheduler.fibers[i];
        assert_result(f->result, GPUSYNC_OK);
        /* by construction every return, from park and from yield, is on another thread */
        assert_int_equal(f->moves, f->resumes - 1);
        moves += f->moves;
        resumes += f->parks;
    }
    assert_true(moves > 0);
    if (spin.yield_iterations == 0) assert_true(resumes > 0);
    assert_never_blocked();
    fibers_free(&r);
    fibers_close(&r);
}

static void parks_resume_on_another_thread(void **state)
{
    static const gpusync_spin none = {0, 0, 0, false};
    (void)state;
    travel(2, none);
    travel(3, none);
}

static void yields_resume_on_another_thread(void **state)
{
    static const gpusync_spin some = {2, 5, 0, false};
    (void)state;
    travel(2, some);
    travel(3, some);
}

/* One fiber, two threads, no chance involved: it parks on the first and the handler hands it to the second. */
/* Not inlined: compilers take pthread_self for a constant of the function that they are in. */
__attribute__((noinline)) static pthread_t this_thread(void)
{
    __asm__ volatile("");
    return pthread_self();
}

static void body_note_thread(fiber *f)
{
    pthread_t *threads = (pthread_t *)f->home->user;
    threads[0] = this_thread();
    body_commit_and_wait(f);
    threads[1] = this_thread();
}

static void finish_when_published(fiber *f)
{
    softmetal_finish(f->buffer);
}

static void one_park_one_move(void **state)
{
    static const gpusync_spin none = {0, 0, 0, false};
    fiber_rig r;
    pthread_t threads[2];
    (void)state;
    fibers_open(&r, SOFTMETAL_MANUAL, none, 4);
    r.scheduler.worker_count = 2;
    r.scheduler.moves = true;
    r.scheduler.user = threads;
    r.scheduler.after_publish = finish_when_published;
    fibers_make(&r, 1, body_note_thread);
    fibers_run(&r);
    assert_result(r.scheduler.fibers[0].result, GPUSYNC_OK);
    assert_int_equal(r.scheduler.fibers[0].parks, 1);
    assert_int_equal(r.scheduler.fibers[0].moves, 1);
    assert_false(pthread_equal(threads[0], threads[1]));
    assert_never_blocked();
    fibers_free(&r);
    fibers_close(&r);
}

/* -- permits ------------------------------------------------------------------------------------------ */

static void idle_is_a_lost_wakeup(scheduler *s)
{
    (void)s;
    fail_msg("the fiber sleeps although it was unparked");
}

static void finish_once(fiber *f)
{
    if (f->parks == 1) softmetal_finish(f->buffer);
}

/* The handler runs, and unparks, at the given point of the first park. */
static void unpark_at(void (**point)(fiber *), scheduler *s, fiber_rig *r, unsigned long permits)
{
    static const gpusync_spin none = {0, 0, 0, false};
    ptrdiff_t offset = (char *)point - (char *)s;
    fibers_open(r, SOFTMETAL_MANUAL, none, 4);
    *(void (**)(fiber *))(void *)((char *)&r->scheduler + offset) = finish_once;
    r->scheduler.idle = idle_is_a_lost_wakeup;
    fibers_make(r, 1, body_commit_and_wait);
    fibers_run(r);
    assert_result(r->scheduler.fibers[0].result, GPUSYNC_OK);
    assert_int_equal(r->scheduler.fibers[0].parks, 1);
    assert_int_equal(r->scheduler.permits, permits);
    assert_int_equal(r->scheduler.idles, 0);
    assert_never_blocked();
    fibers_free(r);
    fibers_close(r);
}

static void unpark_before_park_leaves_a_permit(void **state)
{
    fiber_rig r;
    (void)state;
    unpark_at(&r.scheduler.before_switch, &r.scheduler, &r, 1);
}

static void unpark_before_publish_leaves_a_permit(void **state)
{
    fiber_rig r;
    (void)state;
    unpark_at(&r.scheduler.before_publish, &r.scheduler, &r, 1);
}

static void unpark_after_publish_finds_the_fiber(void **state)
{
    fiber_rig r;
    (void)state;
    unpark_at(&r.scheduler.after_publish, &r.scheduler, &r, 0);
}

/* Unparks that come too late for their wait: the next park returns early, and the wait goes on. Two of them are one
   permit. */
static void unpark_too_late(fiber *f)
{
    if (f->parks != 1) return;
    fiber_unpark(f->home, f->waiter);
    fiber_unpark(f->home, f->waiter);
}

static void idle_finishes_first(scheduler *s)
{
    softmetal_finish(s->fibers[0].buffer);
}

static void late_unparks_wake_once_and_no_more(void **state)
{
    static const gpusync_spin none = {0, 0, 0, false};
    fiber_rig r;
    (void)state;
    fibers_open(&r, SOFTMETAL_MANUAL, none, 4);
    r.scheduler.before_switch = unpark_too_late;
    r.scheduler.idle = idle_finishes_first;
    fibers_make(&r, 1, body_commit_and_wait);
    fibers_run(&r);
    assert_result(r.scheduler.fibers[0].result, GPUSYNC_OK);
    assert_int_equal(r.scheduler.fibers[0].parks, 2);
    assert_int_equal(r.scheduler.permits, 1);
    fibers_free(&r);
    fibers_close(&r);
}

/* Deadlines are the scheduler's: fibers whose work does not end come back by themselves. */
static void body_time_out(fiber *f)
{
    body_commit(f);
    if (f->result == GPUSYNC_OK) f->result = gpusync_wait(f->rig->queue, f->ticket, MS(100 * (f->index % 3)));
}

static void waits_time_out_on_fibers(void **state)
{
    static const gpusync_spin some = {1, 2, 0, false};
    fiber_rig r;
    unsigned i, parked = 0;
    (void)state;
    fibers_open(&r, SOFTMETAL_MANUAL, some, 64);
    fibers_make(&r, 30, body_time_out);
    fibers_run(&r);
    for (i = 0; i < 30; i++) {
        assert_result(r.scheduler.fibers[i].result, GPUSYNC_TIMEOUT);
        if (i % 3 == 0) assert_int_equal(r.scheduler.fibers[i].parks, 0);
        parked += r.scheduler.fibers[i].parks > 0;
    }
    assert_true(parked > 0); /* all 20 do, where none comes too late */
    assert_never_blocked();
    softmetal_finish_queue(r.rig.metal_queue);
    assert_ok(gpusync_queue_wait(r.rig.queue, 0));
    assert_int_equal(stats_of(r.rig.queue).waits_unmet, 30);
    fibers_free(&r);
    fibers_close(&r);
}

/* -- nothing is held while a hook runs ---------------------------------------------------------------- */

typedef struct nosy {
    rig rig;
    gpusync_queue *other;
    void *buffer;            /* finished inside park */
    void *pool_depth;        /* what a push answers outside of gpusync */
    unsigned yields, parks, unparks, commits;
    unsigned pools_held;
    bool busy;
} nosy;

/* A push answers the depth of the thread's pools: softmetal's does. */
static void *pool_depth(void)
{
    void *pool = metal_pool_push();
    metal_pool_pop(pool);
    return pool;
}

static void commit_nosily(nosy *n, gpusync_queue *queue)
{
    gpusync_ticket ticket;
    void *buffer = NULL;
    if (n->commits >= 40) return;
    n->commits++;
    assert_ok(either_buffer(queue, NULL, &buffer));
    assert_ok(either_commit(queue, buffer, &ticket));
    assert_result(gpusync_wait(queue, ticket, 0), GPUSYNC_TIMEOUT);
    assert_result(gpusync_poll(queue, ticket), GPUSYNC_NOT_READY);
}

/* Use every lock of both queues and of the device: with one of them held this does not come back. */
static void use_everything(nosy *n)
{
    uint64_t cursor = 0;
    gpusync_error error;
    gpusync_stats stats;
    gpusync_ticket ticket;
    void *buffer;
    char text[2048];
    if (n->busy) return;
    n->busy = true;
    assert_result(gpusync_next_error(n->rig.queue, &cursor, &error), GPUSYNC_NOT_READY);
    assert_ok(gpusync_device_get_stats(n->rig.device, &stats));
    assert_true(gpusync_report(n->rig.device, text, sizeof text) > 0);
    assert_true(gpusync_queue_wait(n->rig.queue, 0) >= 0);
    assert_true(gpusync_queue_wait(n->other, 0) >= 0);
    assert_true(gpusync_device_wait(n->rig.device, 0, NULL) >= 0);
    commit_nosily(n, n->other);
    commit_nosily(n, n->rig.queue);
    if (!metal4_run()) {
        assert_ok(gpusync_command_buffer(n->other, NULL, &buffer));
        assert_ok(gpusync_command_buffer_discard(n->other, buffer));
        buffer = metal_queue_command_buffer(gpusync_queue_metal(n->other));
        assert_ok(gpusync_track(n->other, buffer, &ticket));
        assert_ok(gpusync_untrack(n->other, ticket));
        metal_release(buffer);
    }
    n->busy = false;
}

static void nosy_yield(void *user)
{
    nosy *n = (nosy *)user;
    n->yields++;
    if (pool_depth() != n->pool_depth) n->pools_held++;
    use_everything(n);
}

static void nosy_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    nosy *n = (nosy *)user;
    (void)waiter;
    (void)deadline_ns;
    n->parks++;
    if (pool_depth() != n->pool_depth) n->pools_held++;
    use_everything(n);
    softmetal_finish(n->buffer); /* the handler, and the unpark hook, run inside this call */
}

static void nosy_unpark(void *user, gpusync_waiter *waiter)
{
    nosy *n = (nosy *)user;
    (void)waiter;
    n->unparks++;
    use_everything(n);
}

static void hooks_may_use_gpusync(void **state)
{
    static const gpusync_spin three = {2, 3, 0, false};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_hooks hooks = {nosy_yield, nosy_park, nosy_unpark, NULL};
    gpusync_ticket ticket;
    nosy n;
    (void)state;
    memset(&n, 0, sizeof n);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    hooks.user = &n;
    device_desc.hooks = &hooks;
    device_desc.spin = &three;
    rig_open_with(&n.rig, SOFTMETAL_MANUAL, device_desc, queue_desc);
    n.other = queue_new(n.rig.device);
    ticket = commit_empty(&n.rig, &n.buffer);
    n.pool_depth = pool_depth();
    assert_ok(gpusync_wait(n.rig.queue, ticket, GPUSYNC_FOREVER));
    assert_int_equal(n.yields, 3);
    assert_int_equal(n.parks, 1);
    assert_int_equal(n.unparks, 1);
    assert_int_equal(n.pools_held, 0);
    softmetal_finish_queue(n.rig.metal_queue);
    softmetal_finish_queue(gpusync_queue_metal(n.other));
    assert_ok(gpusync_queue_destroy(n.other));
    rig_close(&n.rig);
}

/* -- destroy ------------------------------------------------------------------------------------------ */

#define ROOM 40u
#define MEMBERS 61u /* 40 wait for their tickets, 20 for room, the last one destroys */

static bool destroy_begun, destroy_at_once;

static void body_be_destroyed(fiber *f)
{
    if (f->index < MEMBERS - 1) {
        body_commit_and_wait(f);
        return;
    }
    assert_int_equal(f->home->suspended, MEMBERS - 1);
    PUT(&destroy_begun, true);
    f->result = destroy_at_once ? gpusync_queue_destroy_now(f->rig->queue) : gpusync_queue_destroy(f->rig->queue);
}

/* Only the destroying fiber is left waiting: let its work end. */
static void idle_ends_the_work(scheduler *s)
{
    assert_true(GET(&destroy_begun));
    assert_int_equal(s->living, 1);
    softmetal_finish_queue(s->user);
}

static void destroy_with_waiting_fibers(bool at_once)
{
    static const gpusync_spin none = {0, 0, 0, false};
    fiber_rig r;
    void *metal_queue;
    unsigned i;
    fibers_open(&r, SOFTMETAL_MANUAL, none, ROOM);
    metal_queue = metal_retain(r.rig.metal_queue);
    destroy_begun = false;
    destroy_at_once = at_once;
    r.scheduler.idle = idle_ends_the_work;
    r.scheduler.user = metal_queue;
    fibers_make(&r, MEMBERS, body_be_destroyed);
    fibers_run(&r);
    for (i = 0; i < MEMBERS - 1; i++) assert_result(r.scheduler.fibers[i].result, GPUSYNC_ERROR_DESTROYED);
    assert_result(r.scheduler.fibers[MEMBERS - 1].result, GPUSYNC_OK);
    assert_never_blocked();
    if (at_once) softmetal_finish_queue(metal_queue); /* handlers whose queue is gone */
    r.rig.queue = NULL;
    metal_release(metal_queue);
    fibers_free(&r);
    fibers_close(&r);
}

static void destroy_lets_fibers_go(void **state)
{
    (void)state;
    destroy_with_waiting_fibers(false);
}

static void destroy_now_lets_fibers_go(void **state)
{
    (void)state;
    destroy_with_waiting_fibers(true);
}

/* Several fibers wait for one ticket: more than one batch of wake-ups. */
static void body_share_a_ticket(fiber *f)
{
    if (f->index == 0) body_commit_and_wait(f);
    else {
        f->ticket = f->home->fibers[0].ticket;
        body_wait(f);
    }
}

static void many_fibers_wait_for_one_ticket(void **state)
{
    static const gpusync_spin none = {0, 0, 0, false};
    fiber_rig r;
    unsigned i;
    (void)state;
    fibers_open(&r, SOFTMETAL_MANUAL, none, 4);
    r.scheduler.idle = idle_finishes_first;
    fibers_make(&r, 100, body_share_a_ticket);
    fibers_run(&r);
    for (i = 0; i < 100; i++) assert_result(r.scheduler.fibers[i].result, GPUSYNC_OK);
    assert_int_equal(r.scheduler.most_suspended, 100);
    assert_true(r.scheduler.idles <= 1);
    fibers_free(&r);
    fibers_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thousand_tasks_one_thread),
        cmocka_unit_test(one_end_wakes_a_crowd),
        cmocka_unit_test(thousand_tasks_spin_first),
        cmocka_unit_test(thousand_tasks_without_room),
        cmocka_unit_test(thousand_tasks_default_budget),
        cmocka_unit_test(parks_resume_on_another_thread),
        cmocka_unit_test(yields_resume_on_another_thread),
        cmocka_unit_test(one_park_one_move),
        cmocka_unit_test(unpark_before_park_leaves_a_permit),
        cmocka_unit_test(unpark_before_publish_leaves_a_permit),
        cmocka_unit_test(unpark_after_publish_finds_the_fiber),
        cmocka_unit_test(late_unparks_wake_once_and_no_more),
        cmocka_unit_test(waits_time_out_on_fibers),
        cmocka_unit_test(many_fibers_wait_for_one_ticket),
        cmocka_unit_test(hooks_may_use_gpusync),
        cmocka_unit_test(destroy_lets_fibers_go),
        cmocka_unit_test(destroy_now_lets_fibers_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
