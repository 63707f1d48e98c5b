/* test_fibers.c - waits on fibers: the hooks of a scheduler

   A cooperative scheduler (ucontext) has the hooks yield, park and unpark. A thousand tasks wait on one thread, and
   nothing of gpusync's blocks that thread; a task that parked on one thread goes on on another; an unpark that comes
   before the park is not lost; no lock and no pool of gpusync's is held while a hook runs.

   The implementation is compiled in this program: whatever it sleeps on is counted here. */
#define GPUSYNC_IMPLEMENTATION
#include "fiber.h"
#include <pthread.h>
#include <time.h>
#include "kit_memory.h"

/* All that gpusync may sleep on is counted here, and does not sleep. */
static long blocked_inside;
static int count_sleep(const struct timespec *when)
{
    __atomic_fetch_add(&blocked_inside, 1, __ATOMIC_SEQ_CST);
    return 0;
}
#define pthread_cond_wait(cond, mutex) count_sleep(NULL)
#define pthread_cond_timedwait(cond, mutex, when) count_sleep(when)
#define pthread_cond_timedwait_relative_np(cond, mutex, when) count_sleep(when)
#include "gpusync.h"
#undef pthread_cond_wait
#undef pthread_cond_timedwait
#undef pthread_cond_timedwait_relative_np
#include "kit.h"

/* -- the scheduler ------------------------------------------------------------------------------------------------- */

#define STACK_SIZE (64 * 1024)
#define MOST_WORKERS 4

typedef struct fiber fiber;
typedef struct worker worker;
typedef struct scheduler scheduler;

typedef enum left_as { YIELDED, PARKED, ENDED } left_as;

struct fiber {
    scheduler *home;
    void (*body)(fiber *);
    fiber_context context;
    worker *on; /* runs on it, or ran last */
    left_as left;
    gpusync_waiter *waiter; /* while it is parked */
    uint64_t deadline;
    fiber *next; /* of the ready ones */
    /* for the tests */
    unsigned index;
    void *buffer;
    gpusync_ticket ticket;
    gpusync_result result;
    unsigned parks, yields, resumes, moves, park_moves;
};

struct worker {
    scheduler *home;
    unsigned index;
    fiber_context context;
    fiber *first, *last, *running;
};

struct scheduler {
    stage stage;
    gpusync_hooks hooks;
    pthread_mutex_t lock;
    fiber *fibers;
    unsigned count, living, worker_count;
    worker workers[MOST_WORKERS];
    bool moves;                      /* a fiber goes on on the next worker */
    void (*idle)(scheduler *);       /* called where the worker would block; it must make progress */
    void (*before_switch)(fiber *);  /* in the park hook, */
    void (*before_publish)(fiber *); /* ... when the context is saved and no thread knows it, */
    void (*after_publish)(fiber *);  /* ... when an unpark can find the fiber */
    void *user;
    unsigned long permits, idles;
    unsigned suspended, most_suspended;
    void *memory; /* 16 bytes for each fiber */
};

static void *const permit = (void *)&blocked_inside; /* an address that is no fiber */

static __thread worker *this_worker;

static fiber *running(void)
{
    return this_worker ? this_worker->running : NULL;
}

/* With the lock. */
static void put_ready(fiber *f)
{
    scheduler *s = f->home;
    worker *w = s->moves ? &s->workers[(f->on->index + 1) % s->worker_count] : f->on;
    f->next = NULL;
    if (w->first) w->last->next = f;
    else w->first = f;
    w->last = f;
}

static void push_ready(fiber *f)
{
    scheduler *s = f->home;
    pthread_mutex_lock(&s->lock);
    put_ready(f);
    pthread_mutex_unlock(&s->lock);
}

/* From the worker to the fiber and, when the fiber leaves, back again. Returns how it left: the fiber itself is some
   other worker's as soon as it is pushed or published. */
static left_as enter_fiber(worker *w, fiber *f)
{
    f->on = w;
    w->running = f;
    fiber_switch(&w->context, &f->context);
    w->running = NULL;
    return f->left;
}

static void leave_fiber(fiber *f, left_as as)
{
    worker *w = f->on;
    f->left = as;
    fiber_switch(&f->context, &w->context);
    f->resumes++;
    if (f->on != w) f->moves++;
}

static void fiber_body(void *argument)
{
    fiber *f = (fiber *)argument;
    f->resumes++;
    f->body(f);
    leave_fiber(f, ENDED);
}

/* The context is saved: from here on any thread may resume the fiber. A permit that is there already does so. */
static void publish(scheduler *s, fiber *f)
{
    void **word = &f->waiter->scheduler_data[0];
    void *empty = NULL;
    if (s->before_publish) s->before_publish(f);
    if (__atomic_compare_exchange_n(word, &empty, (void *)f, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        if (s->after_publish) s->after_publish(f);
        return;
    }
    PUT(word, NULL);
    COUNT(&s->permits);
    push_ready(f);
}

/* Resumes the fibers whose deadline has passed. With the lock: a fiber leaves its park under it, so the waiter is
   there. */
static void expire(scheduler *s)
{
    uint64_t now = gpusync_now_ns();
    for (unsigned i = 0; i < s->count; i++) {
        fiber *f = &s->fibers[i];
        void *seen = f;
        if (f->waiter && f->deadline <= now &&
            __atomic_compare_exchange_n(&f->waiter->scheduler_data[0], &seen, NULL, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            put_ready(f);
    }
}

/* The next fiber to run; NULL when all have ended. The one place where a worker sleeps. */
static fiber *next_ready(worker *w)
{
    scheduler *s = w->home;
    pthread_mutex_lock(&s->lock);
    while (!w->first && s->living) {
        expire(s);
        if (w->first) break;
        s->idles++;
        pthread_mutex_unlock(&s->lock);
        if (s->idle) s->idle(s);
        else usleep(100);
        pthread_mutex_lock(&s->lock);
    }
    fiber *f = w->first;
    if (f) w->first = f->next;
    pthread_mutex_unlock(&s->lock);
    return f;
}

static void *work(void *argument)
{
    worker *w = (worker *)argument;
    scheduler *s = w->home;
    void *pool = metal_pool_push();
    fiber *f;
    this_worker = w;
    while ((f = next_ready(w)) != NULL) {
        left_as as = enter_fiber(w, f);
        if (as == YIELDED) push_ready(f);
        if (as == PARKED) publish(s, f);
        if (as != ENDED) continue;
        pthread_mutex_lock(&s->lock);
        s->living--;
            pthread_mutex_unlock(&s->lock);
    }
    this_worker = NULL;
    metal_pool_pop(pool);
    return NULL;
}

/* -- its hooks ----------------------------------------------------------------------------------------------------- */

static void fiber_yield(void *user)
{
    fiber *f = running();
    if (!f) {
        sched_yield();
        return;
    }
    f->yields++;
    leave_fiber(f, YIELDED);
}

/* Outside of the fibers: when an object is destroyed at the end of a test. */
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
    must(deadline_ns != GPUSYNC_FOREVER, "a park without a deadline");
    if (!f) {
        park_thread(waiter, deadline_ns);
        return;
    }
    COUNT(&f->parks);
    pthread_mutex_lock(&s->lock);
    f->deadline = deadline_ns;
    f->waiter = waiter;
    pthread_mutex_unlock(&s->lock);
    if (s->before_switch) s->before_switch(f);
    pthread_mutex_lock(&s->lock);
    if (++s->suspended > s->most_suspended) s->most_suspended = s->suspended;
    pthread_mutex_unlock(&s->lock);
    const worker *on = f->on;
    leave_fiber(f, PARKED);
    f->park_moves += f->on != on;
    pthread_mutex_lock(&s->lock);
    s->suspended--;
    f->waiter = NULL; /* it may be gone from here on: see expire */
    pthread_mutex_unlock(&s->lock);
}

static void fiber_unpark(void *user, gpusync_waiter *waiter)
{
    void **word = &waiter->scheduler_data[0];
    void *seen = GET(word);
    while (seen != permit) {
        void *next = seen ? NULL : permit;
        if (!__atomic_compare_exchange_n(word, &seen, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
        if (seen) push_ready((fiber *)seen);
        return;
    }
}

/* -- a stage whose waits are fibers -------------------------------------------------------------------------------- */

static void fibers_open_as(scheduler *s, stage_desc desc)
{
    memset(s, 0, sizeof *s);
    s->hooks = (gpusync_hooks){fiber_yield, fiber_park, fiber_unpark, s};
    desc.device.hooks = &s->hooks;
    pthread_mutex_init(&s->lock, NULL);
    PUT(&blocked_inside, 0);
    stage_open(&s->stage, &desc);
}

static void fibers_open(scheduler *s, bool real, const gpusync_spin *spin, uint32_t limit)
{
    stage_desc desc = {.real = real, .timelines = 1};
    desc.device.spin = spin;
    desc.queue.max_command_buffer_count = limit;
    fibers_open_as(s, desc);
}

static void fibers_close(scheduler *s)
{
    for (unsigned i = 0; i < s->count; i++) fiber_free(&s->fibers[i].context);
    free(s->fibers);
    s->count = 0;
    metal_release(s->memory);
    stage_close(&s->stage);
    assert_int_equal(GET(&blocked_inside), 0);
    pthread_mutex_destroy(&s->lock);
}

static void fibers_make(scheduler *s, unsigned count, void (*body)(fiber *))
{
    s->count = s->living = count;
    s->fibers = (fiber *)calloc(count, sizeof *s->fibers);
    assert_non_null(s->fibers);
    if (!s->worker_count) s->worker_count = 1;
    for (unsigned i = 0; i < s->worker_count; i++) {
        s->workers[i].home = s;
        s->workers[i].index = i;
    }
    for (unsigned i = 0; i < count; i++) {
        fiber *f = &s->fibers[i];
        f->home = s;
        f->index = i;
        f->body = body;
        f->result = GPUSYNC_NOT_READY;
        f->on = &s->workers[i % s->worker_count];
        assert_true(fiber_make(&f->context, STACK_SIZE, fiber_body, f));
    }
    s->memory = metal_buffer_new(s->stage.metal_device, 16 * count);
    for (unsigned i = 0; i < count; i++) push_ready(&s->fibers[i]);
}

/* The calling thread is the first worker. */
static void fibers_run(scheduler *s)
{
    pthread_t threads[MOST_WORKERS];
    for (unsigned i = 1; i < s->worker_count; i++) threads[i] = start(work, &s->workers[i]);
    work(&s->workers[0]);
    for (unsigned i = 1; i < s->worker_count; i++) join(threads[i]);
    assert_int_equal(s->living, 0);
}

static void assert_all_ended(const scheduler *s, gpusync_result result)
{
    for (unsigned i = 0; i < s->count; i++) assert_result(s->fibers[i].result, result);
}

/* -- what the fibers do -------------------------------------------------------------------------------------------- */

static unsigned char byte_of(const fiber *f)
{
    return (unsigned char)(f->index % 255 + 1);
}

/* A command buffer that fills the fiber's 16 bytes. */
static void *make_work(fiber *f)
{
    scheduler *s = f->home;
    void *buffer = NULL, *blit;
    f->result = gpusync_command_buffer_create(s->stage.q[0], NULL, GPUSYNC_FOREVER, &buffer);
    if (f->result != GPUSYNC_OK) return NULL;
    blit = metal_blit_begin(buffer);
    metal_fill(blit, s->memory, 16 * f->index, 16, byte_of(f));
    metal_end(blit);
    return buffer;
}

static bool work_is_done(const fiber *f)
{
    const unsigned char *bytes = (const unsigned char *)metal_contents(f->home->memory) + 16 * f->index;
    for (unsigned i = 0; i < 16; i++)
        if (bytes[i] != byte_of(f)) return false;
    return true;
}

static void body_commit(fiber *f)
{
    f->buffer = make_work(f);
    if (f->buffer) f->result = gpusync_commit(f->home->stage.q[0], f->buffer, &f->ticket);
}

static void body_commit_and_wait(fiber *f)
{
    body_commit(f);
    if (f->result == GPUSYNC_OK) f->result = gpusync_wait(f->home->stage.q[0], f->ticket, GPUSYNC_FOREVER, NULL);
    if (f->result == GPUSYNC_OK) must(work_is_done(f), "a wait returned before the GPU had written");
}

/* -- a thousand tasks on one thread -------------------------------------------------------------------------------- */

#define TASKS (SLOW > 1 ? 250u : 1000u)

/* The GPU ends with the next command buffer when no fiber can go on. At first every fiber waits, and this thread is
   free. */
static void idle_finishes_next(scheduler *s)
{
    if (s->idles == 1)
        must(s->suspended == TASKS && gpusync_in_flight(s->stage.q[0]) == TASKS, "a wait blocks its thread");
    finish_next(s->stage.q[0]);
}

/* Where there is no room, tasks wait for it inside gpusync_command_buffer_create: there the GPU runs by itself. With
   yields in the spin they take turns, and park after exactly the budget. */
without_stage(test_R23_a_thousand_tasks_wait_on_one_thread)
{
    static const struct {
        gpusync_spin spin;
        uint32_t limit;
    } rows[] = {{{0, 0, 0}, TASKS}, {{1, 4, 0}, TASKS}, {{0, 0, 0}, 64}, {{32, 224, 0}, 64}};
    static scheduler s;
    for (size_t row = 0; row < LENGTH(rows); row++) {
        bool real = rows[row].limit < TASKS;
        fibers_open(&s, real, &rows[row].spin, rows[row].limit);
        s.idle = real ? NULL : idle_finishes_next;
        fibers_make(&s, TASKS, body_commit_and_wait);
        fibers_run(&s);
        assert_all_ended(&s, GPUSYNC_OK);
        for (unsigned i = 0; i < TASKS && !real; i++) {
            assert_true(s.fibers[i].parks >= 1);
            assert_int_equal(s.fibers[i].yields, rows[row].spin.yield_iterations);
        }
        assert_true(real || s.most_suspended == TASKS);
        assert_int_equal(softmetal_message_count("waitUntilCompleted"), 0);
        fibers_close(&s);
    }
}

/* Waits of every kind for one end. The first half also waits for a value, which the last of the others signals. */
#define CROWD 200u
#define SLEEP_ON 100u

static void body_in_a_crowd(fiber *f)
{
    const fiber *first = &f->home->fibers[0];
    gpusync_queue *q = f->home->stage.q[0];
    gpusync_timeline *t = f->home->stage.t[0];
    if (f == first) {
        body_commit(f);
        if (f->result != GPUSYNC_OK) return;
    }
    if (f->index < SLEEP_ON) {
        const gpusync_point both[] = {ticket_at(q, GPUSYNC_EVERYTHING), at(t, 1)};
        f->result = gpusync_wait_many(both, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL);
    } else if (f->index % 3 == 0) {
        f->result = gpusync_wait(q, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL);
    } else if (f->index % 3 == 1) {
        f->result = gpusync_device_wait(f->home->stage.device, GPUSYNC_FOREVER, NULL);
    } else {
        f->result = gpusync_wait(q, first->ticket, GPUSYNC_FOREVER, NULL);
    }
    if (f->index == CROWD - 1 && f->result == GPUSYNC_OK) f->result = gpusync_timeline_signal(t, 1);
}

/* Not a second time: the end was told to all. */
static void idle_finishes_the_only_one(scheduler *s)
{
    must(s->suspended == CROWD, "not every sleeper was woken");
    softmetal_finish(s->fibers[0].buffer);
}

without_stage(test_R23_one_end_wakes_a_crowd)
{
    static scheduler s;
    unsigned i;
    fibers_open(&s, false, &no_spin, 4);
    s.idle = idle_finishes_the_only_one;
    fibers_make(&s, CROWD, body_in_a_crowd);
    fibers_run(&s);
    assert_all_ended(&s, GPUSYNC_OK);
    for (i = SLEEP_ON; i < CROWD; i++) assert_true(s.fibers[i].parks >= 1); /* on a slow machine it looks in between */
    assert_int_equal(s.idles, 1);
    fibers_close(&s);
}

/* -- fibers that move between threads ------------------------------------------------------------------------------ */

#define TRAVELLERS 60u
#define TRIPS 6u

/* Waits with short limits too, so that deadlines and unparks race for the fiber. */
static void body_travel(fiber *f)
{
    for (unsigned i = 0; i < TRIPS; i++) {
        body_commit(f);
        if (f->result != GPUSYNC_OK) return;
        do f->result = gpusync_wait(f->home->stage.q[0], f->ticket, i % 2 ? GPUSYNC_FOREVER : 200000, NULL);
        while (f->result == GPUSYNC_TIMEOUT);
        if (f->result != GPUSYNC_OK) return;
        must(work_is_done(f), "a wait returned before the GPU had written");
    }
}

static void travel(unsigned workers, const gpusync_spin *spin)
{
    static scheduler s;
    softmetal_timing timing;
    unsigned long moves = 0;
    fibers_open(&s, true, spin, 32);
    softmetal_get_timing(&timing);
    timing.execute.max_ns = 100000;
    timing.notify.max_ns = 50000;
    softmetal_set_timing(&timing);
    s.worker_count = workers;
    s.moves = true;
    fibers_make(&s, TRAVELLERS, body_travel);
    fibers_run(&s);
    assert_all_ended(&s, GPUSYNC_OK);
    for (unsigned i = 0; i < TRAVELLERS; i++) {
        /* by construction every return, from park and from yield, is on another thread */
        assert_int_equal(s.fibers[i].moves, s.fibers[i].resumes - 1);
        moves += s.fibers[i].moves;
    }
    assert_true(moves > 0);
    fibers_close(&s);
}

without_stage(test_R23_a_park_and_a_yield_may_return_on_another_thread)
{
    static const gpusync_spin some = {2, 5, 0};
    for (unsigned workers = 2; workers <= 3; workers++) {
        travel(workers, &no_spin);
        travel(workers, &some);
    }
}

/* One fiber, two threads: it parks on the first, and the handler hands it to the second. */
static void finish_the_buffer(fiber *f)
{
    softmetal_finish(f->buffer);
}

static void finish_once(fiber *f)
{
    if (GET(&f->parks) == 1) finish_the_buffer(f);
}

without_stage(test_R23_one_park_is_one_move)
{
    static scheduler s;
    fibers_open(&s, false, &no_spin, 4);
    s.worker_count = 2;
    s.moves = true;
    s.after_publish = finish_once;
    fibers_make(&s, 1, body_commit_and_wait);
    fibers_run(&s);
    assert_result(s.fibers[0].result, GPUSYNC_OK);
    assert_int_equal(s.fibers[0].park_moves, s.fibers[0].parks);
    /* It may have to yield, or to park once more, until the thread that woke it has left unpark. */
    assert_int_equal(s.fibers[0].moves, s.fibers[0].parks + s.fibers[0].yields);
    assert_true(s.fibers[0].parks >= 1);
    fibers_close(&s);
}

/* -- permits ------------------------------------------------------------------------------------------------------- */

static void idle_is_a_lost_wakeup(scheduler *s)
{
    must(false, "the fiber sleeps although it was unparked");
}

/* The handler runs, and unparks, at one moment of the park. */
without_stage(test_R23_an_unpark_at_any_moment_of_a_park_is_not_lost)
{
    static scheduler s;
    for (unsigned moment = 0; moment < 3; moment++) {
        fibers_open(&s, false, &no_spin, 4);
        if (moment == 0) s.before_switch = finish_the_buffer;
        if (moment == 1) s.before_publish = finish_the_buffer;
        if (moment == 2) s.after_publish = finish_the_buffer;
        s.idle = idle_is_a_lost_wakeup;
        fibers_make(&s, 1, body_commit_and_wait);
        fibers_run(&s);
        assert_result(s.fibers[0].result, GPUSYNC_OK);
        assert_int_equal(s.fibers[0].parks, 1);
        assert_int_equal(s.permits, moment < 2 ? 1 : 0);
        fibers_close(&s);
    }
}

/* Unparks of nobody's: the park returns early, and the wait goes on. Two of them are one permit. */
static void unpark_too_early(fiber *f)
{
    if (f->parks != 1) return;
    fiber_unpark(f->home, f->waiter);
    fiber_unpark(f->home, f->waiter);
}

static void idle_finishes_first(scheduler *s)
{
    softmetal_finish(s->fibers[0].buffer);
}

without_stage(test_R23_a_park_may_return_early)
{
    static scheduler s;
    fibers_open(&s, false, &no_spin, 4);
    s.before_switch = unpark_too_early;
    s.idle = idle_finishes_first;
    fibers_make(&s, 1, body_commit_and_wait);
    fibers_run(&s);
    assert_result(s.fibers[0].result, GPUSYNC_OK);
    assert_int_equal(s.fibers[0].parks, 2);
    assert_int_equal(s.permits, 1);
    fibers_close(&s);
}

/* Deadlines are the scheduler's: fibers whose work does not end come back by themselves. */
static void body_time_out(fiber *f)
{
    body_commit(f);
    if (f->result == GPUSYNC_OK)
        f->result = gpusync_wait(f->home->stage.q[0], f->ticket, MS(60 * (f->index % 3)), NULL);
}

without_stage(test_R23_limits_are_kept_on_fibers)
{
    static const gpusync_spin some = {1, 2, 0};
    static scheduler s;
    fibers_open(&s, false, &some, 64);
    fibers_make(&s, 30, body_time_out);
    fibers_run(&s);
    assert_all_ended(&s, GPUSYNC_TIMEOUT);
    for (unsigned i = 0; i < 30; i += 3) assert_int_equal(s.fibers[i].parks, 0);
    fibers_close(&s);
}

/* -- destroy ------------------------------------------------------------------------------------------------------- */

#define ROOM 40u
#define MEMBERS 61u /* 40 wait for their tickets, 20 for room, the last one destroys */

static void body_be_destroyed(fiber *f)
{
    scheduler *s = f->home;
    if (f->index < MEMBERS - 1) {
        body_commit_and_wait(f);
        return;
    }
    must(s->suspended == MEMBERS - 1, "a fiber does not wait");
    f->result = s->user ? gpusync_queue_abandon(s->stage.q[0]) : gpusync_queue_destroy(s->stage.q[0]);
    s->stage.q[0] = NULL;
}

/* Only the fiber that destroys is left: let the work end. */
static void idle_ends_the_work(scheduler *s)
{
    must(s->living == 1, "a wait goes on though its queue is being destroyed");
    while (finish_next_of(s->stage.metal[0])) {}
}

without_stage(test_R23_a_destroy_on_a_fiber_ends_the_waits_of_other_fibers)
{
    static scheduler s;
    for (unsigned abandons = 0; abandons < 2; abandons++) {
        fibers_open(&s, false, &no_spin, ROOM);
        s.idle = idle_ends_the_work;
        s.user = abandons ? &s : NULL;
        fibers_make(&s, MEMBERS, body_be_destroyed);
        fibers_run(&s);
        for (unsigned i = 0; i < MEMBERS - 1; i++) assert_result(s.fibers[i].result, GPUSYNC_ERROR_DESTROYED);
        assert_result(s.fibers[MEMBERS - 1].result, GPUSYNC_OK);
        fibers_close(&s);
    }
}

/* -- one thread that both waits and runs the callbacks ------------------------------------------------------------- */

/* The first work's callback signals the value that holds the second work. A wait that keeps its thread for itself would
   never end: the callbacks are that thread's to run. */
static void signal_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    must(result == GPUSYNC_OK && !error, "the first work failed");
    must(gpusync_timeline_signal((gpusync_timeline *)user, 1) == GPUSYNC_OK, "a signal in a callback");
}

static void body_wait_for_a_callback(fiber *f)
{
    stage *s = &f->home->stage;
    assert_ok(gpusync_on_done(ticket_at(s->q[0], commit_new(s->q[0])), signal_in_callback, s->t[0]));
    f->ticket = SUBMIT(s->q[1], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[1])));
    f->result = gpusync_wait(s->q[1], f->ticket, GPUSYNC_FOREVER, NULL);
}

static void idle_runs_callbacks(scheduler *s)
{
    size_t ran = 0;
    must(finish_next(s->stage.q[0]) || finish_next(s->stage.q[1]), "nothing can end");
    must(gpusync_device_run_callbacks(s->stage.device, SIZE_MAX, &ran) == GPUSYNC_OK, "the callbacks");
    *(size_t *)s->user += ran;
}

without_stage(test_R23_a_wait_on_a_fiber_leaves_its_thread_to_the_callbacks)
{
    static scheduler s;
    size_t ran = 0;
    fibers_open_as(&s, (stage_desc){.queues = 2,
                                    .timelines = 1,
                                    .device = {.spin = &no_spin, .callback_mode = GPUSYNC_CALLBACKS_MANUAL}});
    s.idle = idle_runs_callbacks;
    s.user = &ran;
    fibers_make(&s, 1, body_wait_for_a_callback);
    fibers_run(&s);
    assert_result(s.fibers[0].result, GPUSYNC_OK);
    assert_int_equal(ran, 1);
    fibers_close(&s);
}

/* -- nothing is held while a hook runs (R23) ----------------------------------------------------------------------- */

/* Hooks that use gpusync, then do what the kit's do. */
static struct {
    stage *s;
    gpusync_queue *q;
    gpusync_timeline *t;
    bool on;
    unsigned parks, unparks, yields, pools;
    void *depth; /* what a push of a pool answers outside of gpusync, on the thread that waits */
    void *ends_in_park;
} nosy;

static __thread bool nosy_inside;

/* A push answers the depth of the thread's pools: softmetal's does. */
static void *pool_depth(void)
{
    void *pool = metal_pool_push();
    metal_pool_pop(pool);
    return pool;
}

/* Every lock of gpusync's: with one of them held this does not come back. On objects that the test does not destroy. */
static void use_everything(void)
{
    uint64_t cursor = 0, value;
    gpusync_error error;
    gpusync_ticket ticket;
    void *buffer = NULL;
    if (!GET(&nosy.on) || nosy_inside) return;
    nosy_inside = true;
    void *pool = metal_pool_push();
    must(gpusync_command_buffer_create(nosy.q, NULL, 0, &buffer) == GPUSYNC_OK, "a buffer in a hook");
    must(gpusync_command_buffer_discard(nosy.q, buffer) == GPUSYNC_OK, "a discard in a hook");
    must(TRY_SUBMIT(nosy.q, &ticket, .label = "empty") == GPUSYNC_OK, "a submission in a hook");
    must(gpusync_poll(nosy.q, ticket, NULL) >= 0, "a poll in a hook");
    must(gpusync_wait(nosy.q, ticket, 0, NULL) >= 0, "a wait without time in a hook");
    must(gpusync_queue_next_error(nosy.q, &cursor, &error) == GPUSYNC_NOT_READY, "next_error in a hook");
    must(gpusync_timeline_query(nosy.t, &value, NULL) == GPUSYNC_OK, "a query in a hook");
    must(gpusync_timeline_signal(nosy.t, value + 1) == GPUSYNC_OK || GET(&nosy.unparks) > 0, "a signal in a hook");
    metal_pool_pop(pool);
    nosy_inside = false;
}

static void nosy_yield(void *user)
{
    COUNT(&nosy.yields);
    if (nosy.depth && pool_depth() != nosy.depth) COUNT(&nosy.pools);
    use_everything();
    kit_yield(user);
}

static void nosy_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    must(deadline_ns != GPUSYNC_FOREVER, "a park without a deadline");
    COUNT(&nosy.parks);
    if (nosy.depth && pool_depth() != nosy.depth) COUNT(&nosy.pools);
    use_everything();
    if (nosy.ends_in_park) {
        void *buffer = nosy.ends_in_park;
        nosy.ends_in_park = NULL;
        softmetal_finish(buffer); /* the handler, and the unpark hook, run inside this call */
    }
    kit_park(user, waiter, deadline_ns);
}

static void nosy_unpark(void *user, gpusync_waiter *waiter)
{
    COUNT(&nosy.unparks);
    use_everything();
    kit_unpark(user, waiter);
}

static const gpusync_hooks nosy_hooks = {nosy_yield, nosy_park, nosy_unpark, NULL};

static void nosy_begin(stage *s)
{
    memset(&nosy, 0, sizeof nosy);
    nosy.s = s;
    assert_ok(gpusync_queue_create(s->device, NULL, &nosy.q));
    nosy.t = new_timeline(s->device);
    PUT(&nosy.on, true);
}

static void nosy_end(void)
{
    PUT(&nosy.on, false);
    assert_ok(gpusync_queue_destroy(nosy.q));
    assert_ok(gpusync_timeline_destroy(nosy.t));
}

on_stage_with(test_R23_hooks_may_use_gpusync_and_hold_no_pool_of_its, .device = {.hooks = &nosy_hooks})
{
    static const gpusync_spin three = {2, 3, 0};
    const gpusync_wait_options options = {.spin = &three};
    nosy_begin(s);
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], buffer);
    nosy.depth = pool_depth();
    nosy.ends_in_park = buffer;
    assert_ok(gpusync_wait(s->q[0], ticket, GPUSYNC_FOREVER, &options));
    assert_int_equal(nosy.yields, 3);
    assert_int_equal(nosy.parks, 1);
    assert_int_equal(nosy.unparks, 1);
    assert_int_equal(nosy.pools, 0);
    nosy.depth = NULL;
    nosy_end();
}

/* -- which calls unpark: all that end something, on the thread that calls them (C15) */

typedef enum waker {
    A_HANDLER,
    A_POLL,
    A_WAIT,
    A_SIGNAL,
    A_FAIL,
    A_CANCEL,
    A_DISCARD,
    A_DESTROY_LATER,
    AN_ABANDON,
    A_TIMELINE_DESTROY,
    A_TIMELINE_DESTROY_LATER,
    RUN_CALLBACKS,
    WAKERS
} waker;
static const char *const waker_names[] = {"a handler",     "a poll",        "a wait",        "a signal",
                                          "a fail",        "cancel_held",   "a discard",     "destroy_later",
                                          "an abandon",    "timeline_destroy", "timeline_destroy_later",
                                          "run_callbacks"};

static gpusync_result wake_by(waker by, stage *s, void *buffer)
{
    switch (by) {
    case A_HANDLER: softmetal_finish(buffer); return GPUSYNC_OK;
    case A_POLL: softmetal_complete(buffer); return gpusync_poll(s->q[0], 1, NULL);
    case A_WAIT: softmetal_complete(buffer); return gpusync_wait(s->q[0], 1, 0, NULL);
    case A_SIGNAL: return gpusync_timeline_signal(s->t[0], 1);
    case A_FAIL: return gpusync_timeline_fail(s->t[0], NULL);
    case A_CANCEL: return gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING);
    case A_DISCARD: return gpusync_command_buffer_discard(s->q[0], buffer);
    case A_DESTROY_LATER: return gpusync_queue_destroy_later(s->q[0], NULL, NULL);
    case AN_ABANDON: return gpusync_queue_abandon(s->q[0]);
    case A_TIMELINE_DESTROY: return gpusync_timeline_destroy(s->t[0]);
    case A_TIMELINE_DESTROY_LATER: return gpusync_timeline_destroy_later(s->t[0], NULL, NULL);
    default: softmetal_complete(buffer); return gpusync_device_run_callbacks(s->device, 0, NULL);
    }
}

static void wake(stage *s, waker by)
{
    void *buffer = new_buffer(s->q[0]);
    bool destroyed = by >= A_DESTROY_LATER && by <= A_TIMELINE_DESTROY_LATER;
    job j = {0};
    nosy_begin(s);
    if (by == A_SIGNAL || by == A_FAIL || by == A_TIMELINE_DESTROY || by == A_TIMELINE_DESTROY_LATER) {
        job_value(&j, s->t[0], 1, GPUSYNC_FOREVER);
    } else if (by == A_DISCARD) {
        job_buffer(&j, s->q[0], GPUSYNC_FOREVER);
    } else {
        if (by == A_CANCEL) encode_wait(s->q[0], buffer, at(s->t[0], 1));
        job_wait(&j, s->q[0], commit(s->q[0], buffer), GPUSYNC_FOREVER);
    }
    await_parked(1);
    assert_ok(wake_by(by, s, buffer));
    gpusync_result result = job_end(&j);
    assert_true(nosy.unparks >= 1);
    if (by == A_DESTROY_LATER || by == AN_ABANDON) s->q[0] = NULL;
    if (by == A_TIMELINE_DESTROY || by == A_TIMELINE_DESTROY_LATER) s->t[0] = NULL;
    if (destroyed) assert_result(result, GPUSYNC_ERROR_DESTROYED);
    else if (by == A_CANCEL) assert_result(result, GPUSYNC_ERROR_CANCELLED);
    else if (by == A_FAIL) assert_result(result, GPUSYNC_ERROR_EXECUTION);
    else assert_ok(result);
    if (by == A_DISCARD) assert_ok(gpusync_command_buffer_discard(s->q[0], j.buffer));
    else if (s->q[0] && gpusync_in_flight(s->q[0]) == 0 && (by == A_SIGNAL || by == A_FAIL))
        assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    finish_all(s);
    nosy_end();
}

without_stage(test_R23_whatever_unparks_holds_no_lock)
{
    for (waker by = A_HANDLER; by < WAKERS; by++) {
        stage_desc desc = {.timelines = 1, .queue = {.max_command_buffer_count = 1}, .device = {.hooks = &nosy_hooks}};
        stage s;
        print_message("  %s\n", waker_names[by]);
        stage_open(&s, &desc);
        wake(&s, by);
        stage_close(&s);
    }
}

/* -- unpark takes the scheduler's lock, under which another thread polls */

/* Recursive: gpusync_poll may call unpark itself (C15). */
static pthread_mutex_t run_queue;
static bool unpark_waits;

static void locking_unpark(void *user, gpusync_waiter *waiter)
{
    PUT(&unpark_waits, true);
    pthread_mutex_lock(&run_queue);
    kit_unpark(user, waiter);
    pthread_mutex_unlock(&run_queue);
}

static void locking_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    must(deadline_ns != GPUSYNC_FOREVER, "a park without a deadline");
    kit_park(user, waiter, deadline_ns);
}

static const gpusync_hooks locking_hooks = {kit_yield, locking_park, locking_unpark, NULL};

static void *finish_buffer(void *buffer)
{
    softmetal_finish(buffer);
    return NULL;
}

on_stage_with(test_R23_unpark_may_take_a_lock_under_which_another_thread_polls, .queues = 2, .timelines = 1,
              .device = {.hooks = &locking_hooks})
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_error error;
    uint64_t cursor = 0, value;
    job j = {0};
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&run_queue, &attributes);
    pthread_mutexattr_destroy(&attributes);
    commit(s->q[0], buffer);
    gpusync_ticket later = commit_new(s->q[0]);
    job_wait(&j, s->q[0], 1, GPUSYNC_FOREVER);
    await_parked(1);
    PUT(&unpark_waits, false);
    pthread_mutex_lock(&run_queue);
    pthread_t finisher = start(finish_buffer, buffer);
    while (!GET(&unpark_waits)) sched_yield();
    assert_ok(gpusync_poll(s->q[0], 1, NULL)); /* the handler has settled it, and is in unpark */
    assert_result(gpusync_poll(s->q[0], later, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(s->q[0], later, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_queue_next_error(s->q[0], &cursor, &error), GPUSYNC_NOT_READY);
    assert_ok(gpusync_timeline_query(s->t[0], &value, NULL));
    signal_value(s->t[0], 1);
    commit_new(s->q[0]);
    commit_new(s->q[1]);
    assert_true(finish_next(s->q[1]));
    pthread_mutex_unlock(&run_queue);
    join(finisher);
    assert_ok(job_end(&j));
    pthread_mutex_destroy(&run_queue);
}

/* -- the waiter (C14) ---------------------------------------------------------------------------------------------- */

/* Each park of a wait finds what the one before has left; the first one of each wait finds nothing. */
static struct {
    gpusync_waiter *waiter;
    unsigned of_wait;           /* parks, since the wait began */
    void *buffer;               /* ends in the third park of a wait, */
    gpusync_timeline *timeline; /* ... or this gets the next value */
    uint64_t value;
    bool on;
} diary;

static void diary_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    must(deadline_ns != GPUSYNC_FOREVER, "a park without a deadline");
    if (!diary.on) {
        sched_yield();
        return;
    }
    if (diary.of_wait == 0) {
        must(!waiter->scheduler_data[0] && !waiter->scheduler_data[1], "scheduler_data is not NULL at first");
        diary.waiter = waiter;
    } else {
        must(diary.waiter == waiter, "a wait has two waiters");
        must(waiter->scheduler_data[0] == &diary, "scheduler_data was touched");
        must(waiter->scheduler_data[1] == (void *)((char *)&diary + diary.of_wait), "scheduler_data was touched, too");
    }
    diary.of_wait++;
    waiter->scheduler_data[0] = &diary;
    waiter->scheduler_data[1] = (char *)&diary + diary.of_wait;
    if (diary.of_wait != 3) return;
    if (diary.buffer) softmetal_finish(diary.buffer);
    if (diary.timeline) must(gpusync_timeline_signal(diary.timeline, ++diary.value) == GPUSYNC_OK, "a signal in park");
}

static void diary_unpark(void *user, gpusync_waiter *waiter)
{
    if (!diary.on) return;
    must(waiter == diary.waiter, "an unpark of a waiter that does not sleep");
    must(waiter->scheduler_data[0] == &diary, "scheduler_data is gone in unpark");
}

static const gpusync_hooks diary_hooks = {NULL, diary_park, diary_unpark, NULL};

typedef enum diary_wait {
    FOR_A_TICKET,
    UNTIL_A_LIMIT,
    FOR_ANY,
    FOR_THE_DEVICE,
    FOR_A_VALUE,
    FOR_ROOM,
    IN_A_DESTROY,
    FOR_A_TICKET_AGAIN,
    DIARY_WAITS
} diary_wait;

static void write_diary(stage *s, diary_wait kind)
{
    const gpusync_wait_options options = {.spin = &no_spin};
    gpusync_queue *q = kind == IN_A_DESTROY ? s->q[1] : s->q[0];
    void *buffer = new_buffer(q), *another = NULL;
    gpusync_ticket ticket = commit(q, buffer);
    const gpusync_point points[] = {ticket_at(q, ticket), at(s->t[0], diary.value + 1)};
    diary.of_wait = 0;
    diary.buffer = kind == UNTIL_A_LIMIT || kind == FOR_A_VALUE ? NULL : buffer;
    diary.timeline = kind == FOR_A_VALUE ? s->t[0] : NULL;
    switch (kind) {
    case UNTIL_A_LIMIT: assert_result(gpusync_wait(q, ticket, 300000, &options), GPUSYNC_TIMEOUT); break;
    case FOR_ANY: assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, &options, NULL)); break;
    case FOR_THE_DEVICE: assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, &options)); break;
    case FOR_A_VALUE: assert_ok(gpusync_timeline_wait(s->t[0], points[1].value, GPUSYNC_FOREVER, &options)); break;
    case FOR_ROOM: assert_ok(gpusync_command_buffer_create(q, NULL, GPUSYNC_FOREVER, &another)); break;
    case IN_A_DESTROY:
        assert_ok(gpusync_queue_destroy(q));
        s->q[1] = NULL;
        break;
    default: assert_ok(gpusync_wait(q, ticket, GPUSYNC_FOREVER, &options)); break;
    }
    if (kind != UNTIL_A_LIMIT) assert_int_equal(diary.of_wait, 3);
    if (!diary.buffer) softmetal_finish(buffer);
    if (another) assert_ok(gpusync_command_buffer_discard(q, another));
}

on_stage_with(test_R23_a_waiter_lives_for_one_wait_and_its_data_is_the_hooks_own, .queues = 2, .timelines = 1,
              .device = {.hooks = &diary_hooks}, .queue = {.max_command_buffer_count = 1})
{
    memset(&diary, 0, sizeof diary);
    diary.on = true;
    for (diary_wait kind = FOR_A_TICKET; kind < DIARY_WAITS; kind++) write_diary(s, kind);
    diary.on = false;
}

/* The waiter of a wait that has seen the end by itself lives until the unpark has returned. */
static gpusync_waiter *in_unpark;
static bool let_unpark_go;

static void slow_unpark(void *user, gpusync_waiter *waiter)
{
    PUT(&in_unpark, waiter);
    while (!GET(&let_unpark_go)) sched_yield();
    kit_unpark(user, waiter); /* writes to it */
}

static const gpusync_hooks slow_hooks = {kit_yield, locking_park, slow_unpark, NULL};

on_stage_with(test_R23_a_waiter_lives_until_unpark_has_returned, .device = {.hooks = &slow_hooks})
{
    void *buffer = new_buffer(s->q[0]);
    job j = {0};
    PUT(&in_unpark, NULL);
    PUT(&let_unpark_go, false);
    job_wait(&j, s->q[0], commit(s->q[0], buffer), GPUSYNC_FOREVER);
    await_parked(1);
    pthread_t finisher = start(finish_buffer, buffer);
    while (!GET(&in_unpark)) sched_yield();
    assert_ok(gpusync_poll(s->q[0], 1, NULL));
    unsigned long seen = kit_now().parks;
    end_parks(); /* it finds the end without the unpark */
    while (kit_now().parks < seen + 2) sched_yield(); /* it waits for that: yields first, then parks briefly */
    assert_false(job_is_over(&j));
    PUT(&let_unpark_go, true);
    join(finisher);
    assert_ok(job_end(&j));
}

without_stage(test_R23_park_and_unpark_come_together_or_not_at_all)
{
    static const struct {
        gpusync_hooks hooks;
        gpusync_result result;
    } rows[] = {
        {{NULL, NULL, NULL, NULL}, GPUSYNC_OK},
        {{kit_yield, NULL, NULL, NULL}, GPUSYNC_OK},
        {{NULL, locking_park, locking_unpark, NULL}, GPUSYNC_OK},
        {{NULL, locking_park, NULL, NULL}, GPUSYNC_ERROR_INVALID_ARGUMENT},
        {{kit_yield, NULL, locking_unpark, NULL}, GPUSYNC_ERROR_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        gpusync_device_desc desc = {0};
        gpusync_device *device = (gpusync_device *)&desc;
        desc.hooks = &rows[i].hooks;
        assert_result(gpusync_device_create(&desc, &device), rows[i].result);
        if (rows[i].result != GPUSYNC_OK) assert_null(device);
        assert_ok(gpusync_device_destroy(device));
    }
}
