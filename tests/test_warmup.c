/* test_warmup.c - gpusync_warmup_*: pipelines, the device and the program's jobs, made ready before they are needed

   The implementation is compiled in this program: it may make no thread, and where it gives the processor away is counted
   here. */
#include <pthread.h>
#include <time.h>

static long naps; /* times that the library has given the processor away by itself, and by no hook of the program */

static int counted_nanosleep(const struct timespec *time, struct timespec *rest)
{
    __atomic_fetch_add(&naps, 1, __ATOMIC_SEQ_CST);
    return nanosleep(time, rest);
}

static int counted_yield(void)
{
    __atomic_fetch_add(&naps, 1, __ATOMIC_SEQ_CST);
    return (sched_yield)();
}

#define GPUSYNC_IMPLEMENTATION
#define pthread_create gpusync_makes_no_thread /* there is no such function */
#define nanosleep counted_nanosleep
#undef sched_yield /* of locks.h */
#define sched_yield counted_yield
#include "../gpusync.h"
#undef pthread_create
#undef nanosleep
#undef sched_yield
#include "probe.h"
#include "stage.h"

#define LIBRARY "newLibraryWithSource:options:error:"
#define FUNCTION "newFunctionWithName:"
#define PIPELINE "newComputePipelineStateWithFunction:error:"
#define LIBRARY_LATER "newLibraryWithSource:options:completionHandler:"
#define PIPELINE_LATER "newComputePipelineStateWithFunction:completionHandler:"

static const char both[] = "kernel void add() {} kernel void scale() {}";
static const char other[] = "kernel void copy() {}";

/* -- hooks of the program: they count, and tell which threads are asleep ---------------------------- */

typedef struct inn {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    long calls;  /* of any of the hooks */
    long asleep; /* in park */
    long parks, yields, unparks;
    pthread_t host; /* no hook but unpark may be called on another thread, if watch_strangers */
    bool watch_strangers, stranger_came;
    pthread_t guest; /* park does not return on this thread, if keep_guest */
    bool keep_guest;
    bool deaf;    /* park knows no deadline: only an unpark ends it, */
    long gave_up; /* ... or five seconds */
} inn;

static void inn_visit(inn *in)
{
    in->calls++;
    if (in->watch_strangers && !pthread_equal(in->host, pthread_self())) in->stranger_came = true;
    pthread_cond_broadcast(&in->changed);
}

static void inn_yield(void *user)
{
    inn *in = (inn *)user;
    pthread_mutex_lock(&in->lock);
    in->yields++;
    inn_visit(in);
    pthread_mutex_unlock(&in->lock);
    sched_yield();
}

static void inn_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    inn *in = (inn *)user;
    uint64_t now;
    pthread_mutex_lock(&in->lock);
    in->parks++;
    in->asleep++;
    inn_visit(in);
    if (in->deaf) deadline_ns = gpusync_now_ns() + SECONDS(5);
    while (!waiter->scheduler_data[0] && (now = gpusync_now_ns()) < deadline_ns) {
        struct timespec at;
        uint64_t left = deadline_ns - now > SECONDS(1) ? SECONDS(1) : deadline_ns - now;
        clock_gettime(CLOCK_REALTIME, &at);
        left += (uint64_t)at.tv_nsec;
        at.tv_sec += (time_t)(left / SECONDS(1));
        at.tv_nsec = (long)(left % SECONDS(1));
        pthread_cond_timedwait(&in->changed, &in->lock, &at);
    }
    if (in->deaf && !waiter->scheduler_data[0]) in->gave_up++;
    waiter->scheduler_data[0] = NULL;
    while (in->keep_guest && pthread_equal(in->guest, pthread_self())) pthread_cond_wait(&in->changed, &in->lock);
    in->asleep--;
    pthread_mutex_unlock(&in->lock);
}

static void inn_unpark(void *user, gpusync_waiter *waiter)
{
    inn *in = (inn *)user;
    pthread_mutex_lock(&in->lock);
    in->calls++; /* on any thread */
    in->unparks++;
    waiter->scheduler_data[0] = waiter;
    pthread_cond_broadcast(&in->changed);
    pthread_mutex_unlock(&in->lock);
}

static void inn_await(inn *in, const long *number, long at_least)
{
    pthread_mutex_lock(&in->lock);
    while (*number < at_least) pthread_cond_wait(&in->changed, &in->lock);
    pthread_mutex_unlock(&in->lock);
}

/* From here on only this thread calls gpusync. */
static void inn_watch(inn *in)
{
    pthread_mutex_lock(&in->lock);
    in->host = pthread_self();
    in->watch_strangers = true;
    pthread_mutex_unlock(&in->lock);
}

static long inn_read(inn *in, const long *number)
{
    long value;
    pthread_mutex_lock(&in->lock);
    value = *number;
    pthread_mutex_unlock(&in->lock);
    return value;
}

/* -- a door that Metal, or a job, stands before until the test opens it ------------------------------ */

typedef struct door {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    int before_it;
    pthread_t last; /* the thread that came last */
} door;

static void door_init(door *d)
{
    memset(d, 0, sizeof *d);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
}

static void door_destroy(door *d)
{
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
}

static void door_pass(void *user)
{
    door *d = (door *)user;
    pthread_mutex_lock(&d->lock);
    d->before_it++;
    d->last = pthread_self();
    pthread_cond_broadcast(&d->changed);
    while (!d->open) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

static void door_await_many(door *d, int threads)
{
    pthread_mutex_lock(&d->lock);
    while (d->before_it < threads) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

static void door_await(door *d)
{
    door_await_many(d, 1);
}

static int door_count(door *d)
{
    int count;
    pthread_mutex_lock(&d->lock);
    count = d->before_it;
    pthread_mutex_unlock(&d->lock);
    return count;
}

static void door_open(door *d)
{
    pthread_mutex_lock(&d->lock);
    d->open = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* -- the place where it all happens ------------------------------------------------------------------ */

typedef struct place {
    rig r;
    inn inn;
    door door;            /* closed, before the message that stop_at names */
    const char *stop_at;
    bool pass;            /* ... but for the thread of the test */
    pthread_t tester;
    uint64_t dispatches;  /* before anything was warmed up */
    gpusync_warmup *warmup;
} place;

static void place_open_with(place *p, gpusync_device_desc desc)
{
    static const gpusync_queue_desc queue_desc;
    gpusync_hooks hooks;
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->inn.lock, NULL);
    pthread_cond_init(&p->inn.changed, NULL);
    door_init(&p->door);
    hooks.yield = inn_yield;
    hooks.park = inn_park;
    hooks.unpark = inn_unpark;
    hooks.user = &p->inn;
    desc.hooks = &hooks;
    rig_open_with(&p->r, SOFTMETAL_REAL, desc, queue_desc);
    p->tester = pthread_self();
    p->dispatches = softmetal_dispatches();
}

static void place_open(place *p)
{
    gpusync_device_desc desc;
    memset(&desc, 0, sizeof desc);
    place_open_with(p, desc);
}

static void assert_nothing_left(void)
{
    assert_int_equal(softmetal_live("library"), 0);
    assert_int_equal(softmetal_live("function"), 0);
    assert_int_equal(softmetal_live("pipeline"), 0);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
}

static void place_close(place *p)
{
    long calls;
    assert_ok(gpusync_warmup_destroy(p->warmup));
    p->warmup = NULL;
    calls = inn_read(&p->inn, &p->inn.calls);
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(inn_read(&p->inn, &p->inn.calls), calls); /* destroy has left no thread behind */
    softmetal_set_message_hook(NULL, NULL);
    rig_close(&p->r);
    assert_nothing_left();
    door_destroy(&p->door);
    pthread_cond_destroy(&p->inn.changed);
    pthread_mutex_destroy(&p->inn.lock);
}

static void stop_at_door(void *user, softmetal_phase phase, void *object, const char *selector)
{
    place *p = (place *)user;
    (void)object;
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, p->stop_at) != 0) return;
    if (p->pass && pthread_equal(p->tester, pthread_self())) return;
    door_pass(&p->door);
}

/* From here on a thread that sends this message waits until the door is open. */
static void close_door(place *p, const char *selector)
{
    p->stop_at = selector;
    softmetal_set_message_hook(stop_at_door, p);
}

/* Each pipeline is a function on a dispatch queue, and the device with the jobs is one. Metal compiles on the thread that
   asks it, and calls no handler. */
static void assert_dispatched(place *p, unsigned functions)
{
    assert_int_equal(softmetal_dispatches() - p->dispatches, functions);
    assert_int_equal(softmetal_message_count(LIBRARY_LATER), 0);
    assert_int_equal(softmetal_message_count(PIPELINE_LATER), 0);
}

static gpusync_pipeline_desc from_source(const char *source, const char *function)
{
    gpusync_pipeline_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.source = source;
    desc.function = function;
    return desc;
}

static gpusync_pipeline_desc from_library(void *library, const char *function)
{
    gpusync_pipeline_desc desc = from_source(NULL, function);
    desc.library = library;
    return desc;
}

static gpusync_warmup_desc listing(const gpusync_pipeline_desc *pipelines, size_t count)
{
    gpusync_warmup_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.pipelines = pipelines;
    desc.pipeline_count = count;
    return desc;
}

/* +1 */
static void *library_new(void *device, const char *source)
{
    void *text = metal_string_new(source), *error = NULL, *pool = metal_pool_push();
    void *library = METAL__AS(void *, void *, void *, void **)(device, metal__sel(LIBRARY), text, NULL, &error);
    metal_pool_pop(pool);
    metal_release(text);
    assert_non_null(library);
    return library;
}

static void assert_progress(gpusync_warmup *w, gpusync_result expected, size_t done, size_t total)
{
    size_t is_done = 99, of = 99;
    assert_result(gpusync_warmup_poll(w, &is_done, &of), expected);
    assert_int_equal(is_done, done);
    assert_int_equal(of, total);
}

static void *pipeline_of(gpusync_warmup *w, size_t i)
{
    void *pipeline = NULL;
    assert_ok(gpusync_warmup_pipeline(w, i, SECONDS(20), &pipeline, NULL));
    assert_non_null(pipeline);
    return pipeline;
}

/* -- the whole of it, as a program writes it --------------------------------------------------------- */

static void add_one(void *user, const softmetal_kernel_args *args)
{
    (void)user;
    ++*(unsigned char *)args->buffers[0];
}

static void load_tables(void *user)
{
    *(bool *)user = true;
}

static void test_a_program(void **state)
{
    gpusync_pipeline_desc pipelines[] = {{both, NULL, "add"}, {both, NULL, "scale"}};
    bool tables = false;
    gpusync_warmup_job jobs[] = {{load_tables, &tables}};
    gpusync_warmup_desc desc = {0};
    gpusync_warmup *warmup;
    gpusync_ticket ticket;
    void *add, *buffer, *encoder, *memory;
    metal_size one = {1, 1, 1};
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    softmetal_set_kernel("add", add_one, NULL, 0);

    desc.pipelines = pipelines;
    desc.pipeline_count = 2;
    desc.jobs = jobs;
    desc.job_count = 1;
    assert_ok(gpusync_warmup_start(r.device, &desc, &warmup)); /* and the program goes on with its own start */

    assert_ok(gpusync_warmup_pipeline(warmup, 0, SECONDS(10), &add, NULL)); /* when it is needed */
    memory = metal_buffer_new(r.metal_device, 1);
    *(unsigned char *)metal_contents(memory) = 41;
    assert_ok(gpusync_command_buffer(r.queue, NULL, &buffer));
    encoder = metal_compute_begin(buffer);
    metal_set_pipeline(encoder, add);
    metal_set_buffer(encoder, memory, 0, 0);
    metal_dispatch(encoder, one, one);
    metal_end(encoder);
    assert_ok(gpusync_commit(r.queue, buffer, &ticket));
    assert_ok(gpusync_wait(r.queue, ticket, SECONDS(10)));
    assert_int_equal(*(unsigned char *)metal_contents(memory), 42);

    assert_ok(gpusync_warmup_wait(warmup, SECONDS(10)));
    assert_true(tables);
    assert_int_equal(softmetal_compiles(), 2);
    assert_ok(gpusync_warmup_destroy(warmup));
    metal_release(memory);
    rig_close(&r);
    assert_nothing_left();
}

/* Metal is stopped between the library and its pipelines: what is done and what is not is known exactly. */
static void test_progress_is_told(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "scale"), from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    void *out = &desc;
    size_t done = 0;
    place p;
    (void)state;
    place_open(&p);
    close_door(&p, PIPELINE);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    door_await(&p.door);
    while (done < 1) assert_result(gpusync_warmup_poll(p.warmup, &done, NULL), GPUSYNC_NOT_READY);
    assert_progress(p.warmup, GPUSYNC_NOT_READY, 1, 3); /* the device, of that and two different pipelines */
    assert_result(gpusync_warmup_pipeline(p.warmup, 0, 0, &out, NULL), GPUSYNC_TIMEOUT);
    assert_null(out);
    assert_result(gpusync_warmup_pipeline(p.warmup, 2, MS(2), &out, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_warmup_wait(p.warmup, MS(2)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_warmup_wait(p.warmup, 0), GPUSYNC_TIMEOUT);
    assert_int_equal(softmetal_compiles(), 0);
    door_open(&p.door);
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_progress(p.warmup, GPUSYNC_OK, 3, 3);
    assert_int_equal(softmetal_compiles(), 2);
    assert_ok(gpusync_warmup_wait(p.warmup, 0));
    assert_ok(gpusync_warmup_poll(p.warmup, NULL, NULL));
    assert_dispatched(&p, 3);
    place_close(&p);
}

/* "All" and its number come together. */
static void test_progress_is_consistent(void **state)
{
    int round;
    (void)state;
    for (round = 0; round < 20; round++) {
        gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "scale"),
                                        from_source(other, "copy")};
        gpusync_warmup_desc desc = listing(list, LENGTH(list));
        gpusync_result result = GPUSYNC_NOT_READY;
        size_t done, before = 0, total;
        place p;
        place_open(&p);
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        while (result == GPUSYNC_NOT_READY) {
            result = gpusync_warmup_poll(p.warmup, &done, &total);
            assert_int_equal(total, 4);
            assert_true(done >= before);
            before = done;
            assert_int_equal(result == GPUSYNC_OK, done == total);
        }
        assert_ok(result);
        place_close(&p);
    }
}

static void test_no_list_is_the_device_alone(void **state)
{
    place p;
    (void)state;
    place_open(&p);
    assert_ok(gpusync_warmup_start(p.r.device, NULL, &p.warmup));
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_progress(p.warmup, GPUSYNC_OK, 1, 1);
    assert_int_equal(softmetal_compiles(), 0);
    assert_int_equal(softmetal_message_count("newSharedEvent"), 2); /* its own, and the one that it leaves */
    assert_dispatched(&p, 1);
    place_close(&p);
}

/* What was made is used: the event of the first timeline is there already, also while the warm-up lives. */
static void test_the_event_is_kept(void **state)
{
    int goes_first;
    (void)state;
    for (goes_first = 0; goes_first < 2; goes_first++) {
        gpusync_timeline *timeline;
        uint64_t value = 9;
        place p;
        place_open(&p);
        assert_ok(gpusync_warmup_start(p.r.device, NULL, &p.warmup));
        assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
        if (goes_first) {
            assert_ok(gpusync_warmup_destroy(p.warmup));
            p.warmup = NULL;
        }
        assert_ok(gpusync_timeline_create(p.r.device, NULL, &timeline));
        assert_ok(gpusync_timeline_query(timeline, &value));
        assert_int_equal(value, 0);
        assert_ok(gpusync_timeline_signal(timeline, 3));
        assert_int_equal(softmetal_message_count("newSharedEvent"), 2);
        assert_ok(gpusync_timeline_destroy(timeline));
        place_close(&p);
    }
}

/* -- jobs -------------------------------------------------------------------------------------------- */

typedef struct diary {
    int written;
    int lines[8];
    pthread_t on[8];
} diary;

typedef struct entry {
    diary *diary;
    int line;
} entry;

static void write_line(void *user)
{
    entry *e = (entry *)user;
    e->diary->on[e->diary->written] = pthread_self();
    e->diary->lines[e->diary->written++] = e->line;
}

static void start_with_diary(place *p, diary *d, bool blocking)
{
    static entry entries[5];
    gpusync_warmup_job jobs[5];
    gpusync_warmup_desc desc = listing(NULL, 0);
    int i;
    memset(d, 0, sizeof *d);
    for (i = 0; i < 5; i++) {
        entries[i].diary = d;
        entries[i].line = i;
        jobs[i].run = write_line;
        jobs[i].user = &entries[i];
    }
    desc.jobs = jobs;
    desc.job_count = 5;
    desc.blocking = blocking;
    assert_ok(gpusync_warmup_start(p->r.device, &desc, &p->warmup));
    memset(jobs, 0xEE, sizeof jobs); /* were copied */
}

static void assert_diary(const diary *d)
{
    int i;
    assert_int_equal(d->written, 5);
    for (i = 0; i < 5; i++) {
        assert_int_equal(d->lines[i], i);
        assert_true(pthread_equal(d->on[i], d->on[0]));
    }
    assert_false(pthread_equal(d->on[0], pthread_self()));
}

static void test_jobs_in_order_on_one_thread(void **state)
{
    diary d;
    place p;
    (void)state;
    place_open(&p);
    start_with_diary(&p, &d, false);
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_progress(p.warmup, GPUSYNC_OK, 6, 6);
    assert_diary(&d);
    place_close(&p);
}

static void test_jobs_of_a_blocking_one_are_over_when_it_returns(void **state)
{
    diary d;
    place p;
    (void)state;
    place_open(&p);
    start_with_diary(&p, &d, true);
    assert_diary(&d);
    assert_progress(p.warmup, GPUSYNC_OK, 6, 6);
    assert_dispatched(&p, 1);
    place_close(&p);
}

/* Jobs are the program's: they use gpusync as any thread does. */
static void use_gpusync(void *user)
{
    place *p = (place *)user;
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    void *buffer;
    assert_ok(gpusync_command_buffer(p->r.queue, NULL, &buffer));
    assert_ok(gpusync_commit(p->r.queue, buffer, &ticket));
    assert_ok(gpusync_wait(p->r.queue, ticket, SECONDS(20)));
    assert_ok(gpusync_timeline_create(p->r.device, NULL, &timeline));
    assert_ok(gpusync_timeline_signal(timeline, 1));
    assert_ok(gpusync_timeline_wait(timeline, 1, SECONDS(20), NULL));
    assert_ok(gpusync_timeline_destroy(timeline));
}

static void test_jobs_use_gpusync(void **state)
{
    int blocking;
    (void)state;
    for (blocking = 0; blocking < 2; blocking++) {
        gpusync_warmup_job jobs[3];
        gpusync_warmup_desc desc = listing(NULL, 0);
        place p;
        int i;
        place_open(&p);
        for (i = 0; i < 3; i++) {
            jobs[i].run = use_gpusync;
            jobs[i].user = &p;
        }
        desc.jobs = jobs;
        desc.job_count = 3;
        desc.blocking = blocking;
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
        assert_int_equal(stats_of(p.r.queue).commits, 3);
        place_close(&p);
    }
}

/* The time limit is that of the whole wait, though something is done all the time. */
static void nap(void *user)
{
    struct timespec ms = {0, 1000000};
    (void)user;
    nanosleep(&ms, NULL);
}

static void test_a_time_limit_is_not_renewed(void **state)
{
    static gpusync_warmup_job jobs[3000];
    gpusync_warmup_desc desc = listing(NULL, 0);
    place p;
    size_t i;
    (void)state;
    place_open(&p);
    for (i = 0; i < LENGTH(jobs); i++) jobs[i].run = nap;
    desc.jobs = jobs;
    desc.job_count = LENGTH(jobs);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_result(gpusync_warmup_wait(p.warmup, MS(30)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_warmup_poll(p.warmup, NULL, NULL), GPUSYNC_NOT_READY);
    place_close(&p); /* the other jobs are left out */
}

/* A job that waits for the warm-up, or destroys it, would wait for itself. */
typedef struct snake {
    place *p;
    gpusync_result wait, destroy, poll;
} snake;

static void bite_own_tail(void *user)
{
    snake *s = (snake *)user;
    s->poll = gpusync_warmup_poll(s->p->warmup, NULL, NULL);
    s->wait = gpusync_warmup_wait(s->p->warmup, SECONDS(2));
    s->destroy = gpusync_warmup_destroy(s->p->warmup);
}

static void bite(bool blocking)
{
    snake s;
    gpusync_warmup_job job;
    gpusync_warmup_desc desc = listing(NULL, 0);
    place p;
    place_open(&p);
    memset(&s, 0, sizeof s);
    s.p = &p;
    job.run = bite_own_tail;
    job.user = &s;
    desc.jobs = &job;
    desc.job_count = 1;
    desc.blocking = blocking;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup)); /* p.warmup is written before the job begins */
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_result(s.poll, GPUSYNC_NOT_READY);
    assert_result(s.wait, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_result(s.destroy, GPUSYNC_ERROR_WOULD_DEADLOCK);
    place_close(&p);
}

static void test_a_job_cannot_wait_for_itself(void **state)
{
    (void)state;
    bite(false);
}

static void test_a_job_of_a_blocking_one_cannot_either(void **state)
{
    (void)state;
    bite(true);
}

/* The most natural job: to run what was compiled, once. It waits for Metal, not for itself. */
typedef struct trial {
    place *p;
    gpusync_result result;
    void *pipeline;
    long sleepers; /* the job, and the waiter for all, if there is one */
    long over;     /* under the inn's lock */
} trial;

static void try_pipeline(void *user)
{
    trial *t = (trial *)user;
    inn *in = &t->p->inn;
    t->result = gpusync_warmup_pipeline(t->p->warmup, 0, SECONDS(20), &t->pipeline, NULL);
    pthread_mutex_lock(&in->lock);
    t->over = 1;
    pthread_cond_broadcast(&in->changed);
    pthread_mutex_unlock(&in->lock);
}

static void *open_once_the_job_sleeps(void *user)
{
    trial *t = (trial *)user;
    inn *in = &t->p->inn;
    door_await(&t->p->door);
    pthread_mutex_lock(&in->lock);
    while (in->asleep < t->sleepers && !t->over) pthread_cond_wait(&in->changed, &in->lock);
    pthread_mutex_unlock(&in->lock);
    door_open(&t->p->door);
    return NULL;
}

static void a_job_gets_pipelines(bool blocking)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    gpusync_warmup_job job;
    pthread_t opener;
    trial t;
    place p;
    place_open(&p);
    memset(&t, 0, sizeof t);
    t.p = &p;
    t.sleepers = 1 + blocking;
    job.run = try_pipeline;
    job.user = &t;
    desc.jobs = &job;
    desc.job_count = 1;
    desc.blocking = blocking;
    close_door(&p, PIPELINE);
    opener = start(open_once_the_job_sleeps, &t); /* the job asks while Metal is before the door */
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    join(opener);
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_ok(t.result);
    assert_ptr_equal(t.pipeline, pipeline_of(p.warmup, 0));
    place_close(&p);
}

static void test_a_job_gets_pipelines(void **state)
{
    (void)state;
    a_job_gets_pipelines(false);
    a_job_gets_pipelines(true);
}

/* -- blocking, disabled ------------------------------------------------------------------------------- */

static void test_blocking(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "scale"), from_source(other, "copy")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    void *out;
    place p;
    size_t i;
    (void)state;
    place_open(&p);
    softmetal_set_compile_time(MS(30), MS(3));
    desc.blocking = true;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_progress(p.warmup, GPUSYNC_OK, 4, 4);
    for (i = 0; i < LENGTH(list); i++) assert_ok(gpusync_warmup_pipeline(p.warmup, i, 0, &out, NULL));
    assert_ok(gpusync_warmup_wait(p.warmup, 0));
    assert_int_equal(softmetal_compiles(), 3);
    assert_dispatched(&p, 4);
    place_close(&p);
}

/* OK says that all is over; how it went is told by the waits. */
static void test_blocking_with_an_error(void **state)
{
    gpusync_pipeline_desc list[] = {from_source("#error", "bad"), from_source(other, "copy")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    place p;
    (void)state;
    place_open(&p);
    desc.blocking = true;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_progress(p.warmup, GPUSYNC_OK, 3, 3);
    assert_result(gpusync_warmup_wait(p.warmup, 0), GPUSYNC_ERROR_COMPILE);
    assert_non_null(pipeline_of(p.warmup, 1));
    place_close(&p);
}

static void see_it_linger(void *user)
{
    place *p = (place *)user;
    inn_await(&p->inn, &p->inn.yields, 5);
}

/* There is none to sleep with: it yields until all is done, and does not come back before. */
static void test_blocking_without_memory_to_sleep(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    gpusync_device_desc device_desc;
    gpusync_warmup_job job;
    place p;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.spin = &no_spin; /* so a thread that yields lingers */
    place_open_with(&p, device_desc);
    job.run = see_it_linger;
    job.user = &p;
    desc.jobs = &job;
    desc.job_count = 1;
    desc.blocking = true;
    p.r.memory.fail_after = true;
    __atomic_store_n(&p.r.memory.fail_at, 3, __ATOMIC_SEQ_CST); /* there is enough for the warm-up and its timeline */
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_progress(p.warmup, GPUSYNC_OK, 3, 3);
    assert_int_equal(inn_read(&p.inn, &p.inn.parks), 0);
    __atomic_store_n(&p.r.memory.fail_at, 0, __ATOMIC_SEQ_CST);
    assert_result(gpusync_warmup_wait(p.warmup, 0), GPUSYNC_ERROR_OUT_OF_MEMORY); /* the device's part needed some */
    assert_non_null(pipeline_of(p.warmup, 0));
    place_close(&p);
}

static void never(void *user)
{
    (void)user;
    fail_msg("a job of a disabled warm-up");
}

static void test_disabled(void **state)
{
    int blocking; /* is the same */
    (void)state;
    for (blocking = 0; blocking < 2; blocking++) {
        gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "scale"),
                                        from_source("#error", "bad"), from_source(both, "add")};
        gpusync_warmup_desc desc = listing(list, LENGTH(list));
        gpusync_warmup_job job = {never, NULL};
        gpusync_error error;
        void *add, *out = &add;
        place p;
        place_open(&p);
        desc.jobs = &job;
        desc.job_count = 1;
        desc.disabled = true;
        desc.blocking = blocking;
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        assert_progress(p.warmup, GPUSYNC_OK, 0, 0);
        assert_ok(gpusync_warmup_wait(p.warmup, 0));
        assert_int_equal(softmetal_message_count(LIBRARY), 0);
        assert_int_equal(softmetal_message_count("newSharedEvent"), 1); /* its own */
        assert_int_equal(softmetal_message_count("commit"), 0);
        add = pipeline_of(p.warmup, 0);
        assert_ptr_equal(pipeline_of(p.warmup, 0), add);
        assert_ptr_equal(pipeline_of(p.warmup, 3), add);
        assert_int_equal(softmetal_message_count(LIBRARY), 1);
        assert_result(gpusync_warmup_pipeline(p.warmup, 2, SECONDS(20), &out, &error), GPUSYNC_ERROR_COMPILE);
        assert_null(out);
        assert_string_equal(error.label, "bad");
        assert_true(pipeline_of(p.warmup, 1) != add);
        assert_int_equal(softmetal_compiles(), 2);
        assert_progress(p.warmup, GPUSYNC_OK, 0, 0);
        assert_ok(gpusync_warmup_wait(p.warmup, 0));
        assert_dispatched(&p, 3); /* each pipeline once */
        place_close(&p);
    }
}

/* Only what is asked for: the rest of the list may never be needed. */
static void test_disabled_compiles_nothing_else(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "scale"), from_source(other, "copy")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    place p;
    (void)state;
    place_open(&p);
    desc.disabled = true;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_non_null(pipeline_of(p.warmup, 0));
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(softmetal_compiles(), 1);
    place_close(&p);
}

static void test_disabled_and_never_asked(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    place p;
    (void)state;
    place_open(&p);
    desc.disabled = true;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    place_close(&p);
    assert_int_equal(softmetal_compiles(), 0);
}

/* A time limit is about the wait; the compilation goes on, and the next call that asks joins it. */
static void test_disabled_with_a_time_limit(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    void *out;
    place p;
    (void)state;
    place_open(&p);
    desc.disabled = true;
    close_door(&p, PIPELINE);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_result(gpusync_warmup_pipeline(p.warmup, 0, 0, &out, NULL), GPUSYNC_TIMEOUT);
    door_await(&p.door); /* another thread compiles */
    assert_false(pthread_equal(p.door.last, pthread_self()));
    assert_result(gpusync_warmup_pipeline(p.warmup, 0, MS(2), &out, NULL), GPUSYNC_TIMEOUT);
    door_open(&p.door);
    assert_non_null(pipeline_of(p.warmup, 0));
    assert_int_equal(softmetal_message_count(LIBRARY), 1);
    assert_int_equal(softmetal_compiles(), 1);
    place_close(&p);
}

/* -- the list ---------------------------------------------------------------------------------------- */

static void test_listed_twice_is_compiled_once(void **state)
{
    char copy[sizeof both], name[] = "add";
    gpusync_pipeline_desc list[5] = {{NULL, NULL, NULL}};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    place p;
    (void)state;
    memcpy(copy, both, sizeof both);
    list[0] = from_source(both, "add");
    list[1] = from_source(both, "scale");
    list[2] = from_source(copy, "add"); /* the text counts, not where it is */
    list[3] = from_source(both, name);
    list[4] = from_source("kernel void add() {}", "add"); /* another text: another function */
    place_open(&p);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    memset(list, 0xEE, sizeof list);
    memset(copy, 'x', sizeof copy - 1); /* what was passed is the program's again */
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_progress(p.warmup, GPUSYNC_OK, 4, 4);
    assert_ptr_equal(pipeline_of(p.warmup, 2), pipeline_of(p.warmup, 0));
    assert_ptr_equal(pipeline_of(p.warmup, 3), pipeline_of(p.warmup, 0));
    assert_true(pipeline_of(p.warmup, 1) != pipeline_of(p.warmup, 0));
    assert_true(pipeline_of(p.warmup, 4) != pipeline_of(p.warmup, 0));
    assert_int_equal(softmetal_message_count(LIBRARY), 2);
    assert_int_equal(softmetal_compiles(), 3);
    place_close(&p);
}

static void test_libraries_as_objects(void **state)
{
    void *one, *two;
    gpusync_pipeline_desc list[4] = {{NULL, NULL, NULL}};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    place p;
    (void)state;
    place_open(&p);
    one = library_new(p.r.metal_device, both);
    two = library_new(p.r.metal_device, both);
    list[0] = from_library(one, "add");
    list[1] = from_library(two, "add");
    list[2] = from_library(one, "add");
    list[3] = from_source(both, "add");
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    metal_release(one); /* retained by the warm-up */
    metal_release(two);
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_ptr_equal(pipeline_of(p.warmup, 2), pipeline_of(p.warmup, 0));
    assert_true(pipeline_of(p.warmup, 1) != pipeline_of(p.warmup, 0));
    assert_true(pipeline_of(p.warmup, 3) != pipeline_of(p.warmup, 0));
    assert_int_equal(softmetal_compiles(), 3);
    place_close(&p);
}

static void test_a_pipeline_outlives_the_warmup_when_retained(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    void *pipeline;
    place p;
    (void)state;
    place_open(&p);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    pipeline = metal_retain(pipeline_of(p.warmup, 0));
    assert_ok(gpusync_warmup_destroy(p.warmup));
    p.warmup = NULL;
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(softmetal_live("pipeline"), 1);
    assert_int_equal(metal_number(pipeline, "threadExecutionWidth"), 32);
    metal_release(pipeline);
    place_close(&p);
}

/* -- its dispatch queues ----------------------------------------------------------------------------- */

/* Three pipelines at once, and the device with the jobs beside them, whatever the number of processors. */
static void test_three_pipelines_compile_at_once_and_no_more(void **state)
{
    static const char *const sources[] = {"kernel void a() {}", "kernel void b() {}", "kernel void c() {}",
                                          "kernel void d() {}", "kernel void e() {}", "kernel void f() {}",
                                          "kernel void g() {}"};
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g"}, *const stages[] = {LIBRARY, PIPELINE};
    gpusync_pipeline_desc list[LENGTH(names)] = {{NULL, NULL, NULL}};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    gpusync_warmup_job job;
    size_t i, n;
    place p;
    (void)state;
    for (i = 0; i < LENGTH(list); i++) list[i] = from_source(sources[i], names[i]);
    for (n = 0; n < LENGTH(stages); n++) {
        place_open(&p);
        job.run = door_pass;
        job.user = &p.door;
        desc.jobs = &job;
        desc.job_count = 1;
        close_door(&p, stages[n]);
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        door_await_many(&p.door, 4);
        assert_false(softmetal_dispatched(MS(20))); /* there are threads to spare */
        assert_int_equal(door_count(&p.door), 4);
        assert_progress(p.warmup, GPUSYNC_NOT_READY, 1, LENGTH(list) + 2);
        assert_int_equal(softmetal_message_count(LIBRARY), 3);
        door_open(&p.door);
        assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
        assert_int_equal(softmetal_message_count(LIBRARY), LENGTH(list));
        assert_int_equal(softmetal_message_count(PIPELINE), LENGTH(list));
        assert_dispatched(&p, LENGTH(list) + 1);
        place_close(&p);
    }
}

/* In a disabled one, too. */
static void test_three_pipelines_of_a_disabled_one_compile_at_once_and_no_more(void **state)
{
    static const char source[] = "kernel void a() {} kernel void b() {} kernel void c() {} kernel void d() {} "
                                 "kernel void e() {}";
    gpusync_pipeline_desc list[5] = {{NULL, NULL, NULL}};
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    void *out;
    size_t i;
    place p;
    (void)state;
    for (i = 0; i < LENGTH(list); i++) list[i] = from_source(source, names[i]);
    place_open(&p);
    desc.disabled = true;
    close_door(&p, PIPELINE);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    for (i = 0; i < LENGTH(list); i++)
        assert_result(gpusync_warmup_pipeline(p.warmup, i, 0, &out, NULL), GPUSYNC_TIMEOUT);
    door_await_many(&p.door, 3);
    assert_false(softmetal_dispatched(MS(20)));
    assert_int_equal(door_count(&p.door), 3);
    door_open(&p.door);
    for (i = 0; i < LENGTH(list); i++) assert_non_null(pipeline_of(p.warmup, i));
    assert_int_equal(softmetal_message_count(LIBRARY), 1);
    assert_dispatched(&p, LENGTH(list));
    place_close(&p);
}

typedef struct ranks {
    unsigned jobs, compilers, others; /* functions of the class "user initiated", and those of another */
} ranks;

static void rank_of_a_job(void *user)
{
    ranks *r = (ranks *)user;
    __atomic_fetch_add(softmetal_dispatch_qos(NULL) == 0x19 ? &r->jobs : &r->others, 1, __ATOMIC_SEQ_CST);
}

static void rank_of_a_compiler(void *user, softmetal_phase phase, void *object, const char *selector)
{
    ranks *r = (ranks *)user;
    (void)object;
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, PIPELINE) != 0) return;
    __atomic_fetch_add(softmetal_dispatch_qos(NULL) == 0x19 ? &r->compilers : &r->others, 1, __ATOMIC_SEQ_CST);
}

/* A thread of the program waits for them. */
static void test_its_functions_are_user_initiated(void **state)
{
    int disabled;
    (void)state;
    for (disabled = 0; disabled < 2; disabled++) {
        gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "scale"),
                                        from_source(other, "copy")};
        gpusync_warmup_desc desc = listing(list, LENGTH(list));
        ranks r = {0, 0, 0};
        gpusync_warmup_job job = {rank_of_a_job, &r};
        place p;
        size_t i;
        place_open(&p);
        desc.jobs = &job;
        desc.job_count = 1;
        desc.disabled = disabled;
        softmetal_set_message_hook(rank_of_a_compiler, &r);
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        for (i = 0; i < LENGTH(list); i++) assert_non_null(pipeline_of(p.warmup, i));
        assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
        assert_int_equal(r.jobs, disabled ? 0 : 1);
        assert_int_equal(r.compilers, 3);
        assert_int_equal(r.others, 0);
        place_close(&p);
    }
}

typedef struct collector {
    trial t;
    void *pipelines[7];
    gpusync_result results[7];
} collector;

static void collect_all(void *user)
{
    collector *c = (collector *)user;
    size_t i;
    for (i = LENGTH(c->results); i-- > 0;)
        c->results[i] = gpusync_warmup_pipeline(c->t.p->warmup, i, SECONDS(10), &c->pipelines[i], NULL);
    try_pipeline(&c->t);
}

/* Three dispatch queues are busy with pipelines, and one runs the jobs: so a job may wait for each of them, in any order. */
static void test_a_job_gets_every_pipeline(void **state)
{
    gpusync_pipeline_desc list[] = {from_source("kernel void a() {}", "a"), from_source("kernel void b() {}", "b"),
                                    from_source("kernel void c() {}", "c"), from_source("kernel void d() {}", "d"),
                                    from_source("kernel void e() {}", "e"), from_source("kernel void f() {}", "f"),
                                    from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    gpusync_warmup_job job;
    pthread_t opener;
    collector c;
    place p;
    size_t i;
    (void)state;
    place_open(&p);
    memset(&c, 0, sizeof c);
    c.t.p = &p;
    c.t.sleepers = 1;
    job.run = collect_all;
    job.user = &c;
    desc.jobs = &job;
    desc.job_count = 1;
    close_door(&p, LIBRARY);
    opener = start(open_once_the_job_sleeps, &c.t);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    join(opener);
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(60)));
    for (i = 0; i < LENGTH(list); i++) {
        assert_ok(c.results[i]);
        assert_ptr_equal(c.pipelines[i], pipeline_of(p.warmup, i));
    }
    place_close(&p);
}

/* -- what does not compile --------------------------------------------------------------------------- */

static void test_errors_name_the_function(void **state)
{
    gpusync_pipeline_desc list[] = {from_source("#error", "bad"), from_source(both, "add"),
                                    from_source(both, "missing"), from_source("#error", "worse"),
                                    from_source(both, "scale")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    static const char *const names[] = {"bad", NULL, "missing", "worse", NULL};
    gpusync_error error;
    void *out;
    place p;
    size_t i;
    (void)state;
    place_open(&p);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_result(gpusync_warmup_wait(p.warmup, SECONDS(20)), GPUSYNC_ERROR_COMPILE);
    assert_progress(p.warmup, GPUSYNC_OK, 6, 6);
    for (i = 0; i < LENGTH(list); i++) {
        memset(&error, 0, sizeof error);
        out = &out;
        if (!names[i]) {
            assert_non_null(pipeline_of(p.warmup, i));
            continue;
        }
        assert_result(gpusync_warmup_pipeline(p.warmup, i, 0, &out, &error), GPUSYNC_ERROR_COMPILE);
        assert_null(out);
        assert_result(error.result, GPUSYNC_ERROR_COMPILE);
        assert_string_equal(error.label, names[i]);
        assert_true(error.message[0] != 0);
        assert_int_equal(error.ticket, 0);
        if (i == 2) { /* no NSError for that one */
            assert_string_equal(error.message, "the library has no function of this name");
            continue;
        }
        assert_string_equal(error.message, "program_source: error: #error");
        assert_string_equal(error.domain, "MTLLibraryErrorDomain");
        assert_int_equal(error.code, 3);
    }
    assert_result(gpusync_warmup_pipeline(p.warmup, 0, 0, &out, NULL), GPUSYNC_ERROR_COMPILE);
    assert_result(gpusync_warmup_wait(p.warmup, 0), GPUSYNC_ERROR_COMPILE); /* it stays so */
    assert_int_equal(softmetal_message_count(LIBRARY), 2); /* the bad one once for both its functions */
    assert_int_equal(softmetal_compiles(), 2);
    place_close(&p);
}

/* The libraries are there; one of the functions is not. */
static void test_a_wait_for_all_tells_of_a_pipeline_that_failed(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "missing")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    place p;
    (void)state;
    place_open(&p);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_result(gpusync_warmup_wait(p.warmup, SECONDS(20)), GPUSYNC_ERROR_COMPILE);
    place_close(&p);
}

/* It commits to the queue by itself; a disabled one would later. */
static void test_a_queue_of_metal4_warms_nothing_up(void **state)
{
    const gpusync_queue_desc four = {.metal4 = true};
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    gpusync_queue *queue = NULL;
    place p;
    (void)state;
    place_open(&p);
    assert_ok(gpusync_queue_create(p.r.device, &four, &queue));
    desc.queue = queue;
    for (desc.disabled = false;; desc.disabled = true) {
        assert_result(gpusync_warmup_start(p.r.device, &desc, &p.warmup), GPUSYNC_ERROR_UNSUPPORTED);
        assert_null(p.warmup);
        if (desc.disabled) break;
    }
    assert_ok(gpusync_queue_destroy(queue));
    place_close(&p);
}

/* Metal's compiler fails at each of its steps. What Metal says is told; where it says nothing gpusync names the step. */
static void test_errors_name_the_step(void **state)
{
    static const char *const messages[] = {"Metal made no library of the source",
                                           "the library has no function of this name",
                                           "Compiler encountered an internal error"},
                            *const domains[] = {"", "", "SoftCompilerErrorDomain"};
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(messages); i++) {
        gpusync_pipeline_desc list[] = {from_source(both, "add")};
        gpusync_warmup_desc desc = listing(list, 1);
        gpusync_error error;
        void *out = &out;
        place p;
        place_open(&p);
        memset(&error, 0, sizeof error);
        desc.disabled = true;
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        softmetal_fail_creation((unsigned)i + 1, false);
        assert_result(gpusync_warmup_pipeline(p.warmup, 0, SECONDS(20), &out, &error), GPUSYNC_ERROR_COMPILE);
        assert_null(out);
        assert_string_equal(error.message, messages[i]);
        assert_string_equal(error.domain, domains[i]);
        assert_string_equal(error.label, "add");
        place_close(&p);
    }
}

/* The device does not warm up, the rest does. */
static void test_a_device_that_does_not_warm_up(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    bool tables = false;
    gpusync_warmup_job job = {load_tables, &tables};
    place p;
    (void)state;
    place_open(&p);
    desc.jobs = &job;
    desc.job_count = 1;
    softmetal_fail_next(1, 1);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_result(gpusync_warmup_wait(p.warmup, SECONDS(20)), GPUSYNC_ERROR_EXECUTION);
    assert_progress(p.warmup, GPUSYNC_OK, 3, 3);
    assert_non_null(pipeline_of(p.warmup, 0));
    assert_true(tables);
    place_close(&p);
}

/* Sandboxes have no shared events to give: then there is no warm-up, ... */
static void test_no_event_to_be_had(void **state)
{
    int disabled;
    (void)state;
    for (disabled = 0; disabled < 2; disabled++) {
        gpusync_pipeline_desc list[] = {from_source(both, "add")};
        gpusync_warmup_desc desc = listing(list, 1);
        gpusync_warmup_job job = {never, NULL};
        long live;
        place p;
        place_open(&p);
        live = p.r.memory.live;
        desc.queue = p.r.queue;
        desc.jobs = &job;
        desc.job_count = 1;
        desc.disabled = disabled;
        p.warmup = (gpusync_warmup *)&p;
        softmetal_fail_creation(1, false); /* what is made first */
        assert_result(gpusync_warmup_start(p.r.device, &desc, &p.warmup), GPUSYNC_ERROR_METAL_NIL);
        assert_null(p.warmup);
        assert_int_equal(p.r.memory.live, live);
        assert_int_equal(softmetal_message_count(LIBRARY), 0);
        assert_int_equal(stats_of(p.r.queue).commits, 0);
        assert_dispatched(&p, 0);
        place_close(&p);
    }
}

/* ... or only one: the command buffer is sent all the same. */
static void test_no_event_to_be_left(void **state)
{
    gpusync_warmup_desc desc = listing(NULL, 0);
    place p;
    (void)state;
    place_open(&p);
    desc.queue = p.r.queue;
    softmetal_fail_creation(2, false);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_result(gpusync_warmup_wait(p.warmup, SECONDS(20)), GPUSYNC_ERROR_METAL_NIL);
    assert_int_equal(softmetal_message_count("newSharedEvent"), 2);
    assert_int_equal(stats_of(p.r.queue).commits, 1);
    place_close(&p);
}

/* -- everything fails in turn ------------------------------------------------------------------------- */

static gpusync_result fill_and_start(place *p, void *library, bool own_queue, diary *d, entry *e)
{
    gpusync_pipeline_desc list[4] = {{NULL, NULL, NULL}};
    gpusync_warmup_desc desc = listing(list, library ? 4 : 3);
    gpusync_warmup_job job;
    list[0] = from_source(both, "add");
    list[1] = from_source(both, "scale");
    list[2] = from_source(other, "copy");
    list[3] = from_library(library, "copy");
    memset(d, 0, sizeof *d);
    e->diary = d;
    e->line = 7;
    job.run = write_line;
    job.user = e;
    desc.jobs = &job;
    desc.job_count = 1;
    desc.queue = own_queue ? NULL : p->r.queue;
    return gpusync_warmup_start(p->r.device, &desc, &p->warmup);
}

/* One round: returns whether something failed. */
static bool try_warmup(place *p, void *library, bool memory, bool own_queue)
{
    diary d;
    entry e;
    gpusync_result result = fill_and_start(p, library, own_queue, &d, &e);
    size_t i, count = library ? 4 : 3;
    bool failed = false;
    if (result != GPUSYNC_OK) { /* of creations the first one alone: its event */
        assert_result(result, memory ? GPUSYNC_ERROR_OUT_OF_MEMORY : GPUSYNC_ERROR_METAL_NIL);
        assert_null(p->warmup);
        return true;
    }
    result = GPUSYNC_TIMEOUT;
    while (result == GPUSYNC_TIMEOUT || result == GPUSYNC_ERROR_OUT_OF_MEMORY) {
        result = gpusync_warmup_wait(p->warmup, SECONDS(20));
        if (gpusync_warmup_poll(p->warmup, NULL, NULL) == GPUSYNC_OK) break;
    }
    if (result != GPUSYNC_OK && result != GPUSYNC_ERROR_COMPILE && result != GPUSYNC_ERROR_METAL_NIL)
        assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY);
    failed = result != GPUSYNC_OK;
    assert_progress(p->warmup, GPUSYNC_OK, count + 2, count + 2);
    assert_int_equal(d.written, 1);
    for (i = 0; i < count; i++) {
        gpusync_error error;
        void *out;
        memset(&error, 0, sizeof error);
        result = gpusync_warmup_pipeline(p->warmup, i, 0, &out, &error);
        assert_int_equal(result == GPUSYNC_OK, out != NULL);
        if (result == GPUSYNC_OK) continue;
        assert_result(result, GPUSYNC_ERROR_COMPILE);
        assert_true(error.message[0] != 0);
        assert_string_equal(error.label, i == 0 ? "add" : i == 1 ? "scale" : "copy");
        failed = true;
    }
    assert_ok(gpusync_warmup_destroy(p->warmup));
    p->warmup = NULL;
    return failed;
}

static void fail_each(bool memory, bool persistent, bool own_queue)
{
    unsigned step = 0;
    bool failed = true;
    while (failed) {
        place p;
        void *library;
        long live;
        place_open(&p);
        library = library_new(p.r.metal_device, other);
        live = p.r.memory.live;
        step++;
        p.r.memory.fail_after = persistent;
        if (memory) __atomic_store_n(&p.r.memory.fail_at, step, __ATOMIC_SEQ_CST);
        else softmetal_fail_creation(step, persistent);
        failed = try_warmup(&p, library, memory, own_queue);
        /* memory that was not asked for, or that a wait got on without, is no failure */
        if (memory) failed = failed || __atomic_load_n(&p.r.memory.fail_at, __ATOMIC_SEQ_CST) <= (persistent ? 1 : 0);
        else failed = softmetal_creations() >= step;
        softmetal_fail_creation(0, false);
        __atomic_store_n(&p.r.memory.fail_at, 0, __ATOMIC_SEQ_CST);
        if (!failed) assert_true(p.r.memory.live >= live);
        metal_release(library);
        place_close(&p);
        assert_true(step < 200);
    }
    /* memory: the warm-up, its timeline, a queue of its own and that one's ring; and more where a wait sleeps */
    assert_true(step > (memory ? (own_queue ? 4 : 2) : 8));
}

static void test_memory_fails_at_every_step(void **state)
{
    unsigned ways;
    (void)state;
    for (ways = 0; ways < 4; ways++) fail_each(true, ways & 1, ways & 2);
}

static void test_creations_fail_at_every_step(void **state)
{
    unsigned ways;
    (void)state;
    for (ways = 0; ways < 4; ways++) fail_each(false, ways & 1, ways & 2);
}

/* -- many ask ---------------------------------------------------------------------------------------- */

#define CROWD 8

typedef struct asker {
    place *p;
    gate *gate;
    size_t first;
    void *got[3];
    gpusync_result all;
    pthread_t thread;
} asker;

static void *ask(void *argument)
{
    asker *a = (asker *)argument;
    size_t k;
    gate_wait(a->gate);
    for (k = 0; k < 3; k++) {
        size_t i = (a->first + k) % 3;
        if (gpusync_warmup_pipeline(a->p->warmup, i, SECONDS(60), &a->got[i], NULL) != GPUSYNC_OK) a->got[i] = NULL;
        gpusync_warmup_poll(a->p->warmup, NULL, NULL);
    }
    a->all = gpusync_warmup_wait(a->p->warmup, SECONDS(60));
    return NULL;
}

static void crowd(bool disabled)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "scale"), from_source(other, "copy")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    asker askers[CROWD];
    gate g;
    place p;
    size_t i, k;
    place_open(&p);
    softmetal_set_compile_time(MS(4), MS(1));
    desc.disabled = disabled;
    gate_init(&g, CROWD);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    memset(askers, 0, sizeof askers);
    for (i = 0; i < CROWD; i++) {
        askers[i].p = &p;
        askers[i].gate = &g;
        askers[i].first = i / 2; /* pairs for the same, others for another */
        askers[i].thread = start(ask, &askers[i]);
    }
    for (i = 0; i < CROWD; i++) join(askers[i].thread);
    for (i = 0; i < CROWD; i++) {
        assert_ok(askers[i].all);
        for (k = 0; k < 3; k++) {
            assert_non_null(askers[i].got[k]);
            assert_ptr_equal(askers[i].got[k], askers[0].got[k]);
        }
    }
    assert_int_equal(softmetal_compiles(), 3);
    assert_int_equal(softmetal_message_count(LIBRARY), 2);
    gate_destroy(&g);
    place_close(&p);
}

static void test_a_crowd_asks(void **state)
{
    const char *stress = getenv("STRESS");
    int i, rounds = stress && strcmp(stress, "full") == 0 ? 100 : 5;
    (void)state;
    for (i = 0; i < rounds; i++) crowd(false);
}

static void test_a_crowd_asks_a_disabled_one(void **state)
{
    const char *stress = getenv("STRESS");
    int i, rounds = stress && strcmp(stress, "full") == 0 ? 100 : 5;
    (void)state;
    for (i = 0; i < rounds; i++) crowd(true);
}

/* However many ask, one makes a function of it, and one of the functions compiles the library that they share. */
static void askers_of_one_pipeline(bool disabled)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "add"), from_source(both, "scale")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    asker askers[CROWD];
    gate g;
    place p;
    size_t i;
    place_open(&p);
    desc.disabled = disabled;
    gate_init(&g, CROWD);
    close_door(&p, LIBRARY);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    memset(askers, 0, sizeof askers);
    for (i = 0; i < CROWD; i++) {
        askers[i].p = &p;
        askers[i].gate = &g;
        askers[i].first = i % 3;
        askers[i].thread = start(ask, &askers[i]);
    }
    inn_await(&p.inn, &p.inn.asleep, CROWD);
    door_await(&p.door);
    assert_dispatched(&p, disabled ? 2 : 3);
    door_open(&p.door);
    for (i = 0; i < CROWD; i++) join(askers[i].thread);
    for (i = 0; i < CROWD; i++) {
        assert_ok(askers[i].all);
        assert_non_null(askers[i].got[0]);
        assert_ptr_equal(askers[i].got[0], askers[i].got[1]);
        assert_ptr_equal(askers[i].got[0], askers[0].got[0]);
        assert_ptr_equal(askers[i].got[2], askers[0].got[2]);
    }
    assert_int_equal(softmetal_message_count(LIBRARY), 1);
    assert_int_equal(softmetal_message_count(PIPELINE), 2);
    assert_dispatched(&p, disabled ? 2 : 3);
    gate_destroy(&g);
    place_close(&p);
}

static void test_one_of_many_askers_begins_a_pipeline(void **state)
{
    (void)state;
    askers_of_one_pipeline(false);
    askers_of_one_pipeline(true);
}

/* A thread that asks while it is compiled joins: asleep, in the program's own hooks, until Metal is through. */
static void test_askers_join_the_compilation_in_flight(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source(both, "scale"), from_source(other, "copy")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    asker askers[CROWD];
    gate g;
    place p;
    size_t i;
    (void)state;
    place_open(&p);
    gate_init(&g, CROWD);
    close_door(&p, PIPELINE);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    door_await(&p.door);
    assert_false(pthread_equal(p.door.last, pthread_self()));
    memset(askers, 0, sizeof askers);
    for (i = 0; i < CROWD; i++) {
        askers[i].p = &p;
        askers[i].gate = &g;
        askers[i].first = i % 3;
        askers[i].thread = start(ask, &askers[i]);
    }
    inn_await(&p.inn, &p.inn.asleep, CROWD);
    assert_int_equal(softmetal_compiles(), 0);
    door_open(&p.door);
    for (i = 0; i < CROWD; i++) join(askers[i].thread);
    for (i = 0; i < CROWD; i++) assert_ok(askers[i].all);
    assert_true(inn_read(&p.inn, &p.inn.unparks) > 0); /* they were woken, and did not just look now and then */
    assert_int_equal(softmetal_compiles(), 3);
    gate_destroy(&g);
    place_close(&p);
}

/* Just that one: another's library is still being compiled. */
static void test_a_pipeline_does_not_wait_for_others(void **state)
{
    gpusync_pipeline_desc list[2] = {{NULL, NULL, NULL}};
    gpusync_warmup_desc desc = listing(list, 2);
    void *library;
    place p;
    (void)state;
    place_open(&p);
    library = library_new(p.r.metal_device, other);
    list[0] = from_source(both, "add");
    list[1] = from_library(library, "copy");
    close_door(&p, LIBRARY);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    door_await(&p.door);
    assert_non_null(pipeline_of(p.warmup, 1));
    assert_int_equal(softmetal_compiles(), 1);
    door_open(&p.door);
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    metal_release(library);
    place_close(&p);
}

static void *open_once_a_waiter_sleeps(void *user)
{
    place *p = (place *)user;
    inn_await(&p->inn, &p->inn.parks, 1);
    door_open(&p->door);
    return NULL;
}

/* Threads that wait call park and yield. The threads where the warm-up works never do: a fiber scheduler does not know
   them, nor Metal's. */
static void test_hooks_are_for_the_programs_threads(void **state)
{
    int own_queue;
    (void)state;
    for (own_queue = 0; own_queue < 2; own_queue++) {
        gpusync_pipeline_desc list[] = {from_source(both, "add")};
        gpusync_warmup_desc desc = listing(list, 1);
        softmetal_timing timing;
        pthread_t opener;
        place p;
        place_open(&p);
        softmetal_get_timing(&timing);
        timing.schedule.min_ns = timing.schedule.max_ns = MS(20); /* the empty command buffer takes its time */
        softmetal_set_timing(&timing);
        close_door(&p, PIPELINE); /* and the shader until the wait is asleep */
        inn_watch(&p.inn);
        if (!own_queue) desc.queue = p.r.queue;
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        opener = start(open_once_a_waiter_sleeps, &p);
        assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20))); /* which is not over before it has parked */
        join(opener);
        assert_false(p.inn.stranger_came);
        place_close(&p);
    }
}

/* ... also where the warm-up has to wait for another thread: a sweep is in the timeline that the warm-up destroys. The
   warm-up is stopped at its at-th point. Then a sweep comes, which is stopped at its in-th, until the warm-up goes on: it
   is done, it sleeps by itself, or it calls a hook. */
static struct {
    int in;
    pthread_t program, timer;
    uint32_t warmup_stopped, warmup_slept, sweep_stopped, swept, done, strangers;
    uint32_t handles, passed; /* a handler may run, which the warm-up needs; one may have come to the sweep's point */
} crossing;

static void note_strangers(void *user)
{
    (void)user;
    if (!pthread_equal(pthread_self(), crossing.program)) PUT(&crossing.strangers, 1);
    (sched_yield)();
}

static void park_of_strangers(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    note_strangers(user);
    thread_park(waiter, deadline_ns);
}

static void unpark_on_any_thread(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

static void stop_the_sweep(void *unused)
{
    (void)unused;
    if (GET(&crossing.handles)) {
        PUT(&crossing.passed, 1);
        return;
    }
    PUT(&naps, 0);
    PUT(&crossing.sweep_stopped, 1);
    while (!GET(&naps) && !GET(&crossing.strangers) && !GET(&crossing.done)) (sched_yield)();
    if (GET(&naps)) PUT(&crossing.warmup_slept, 1);
}

static void *sweep_now(void *unused)
{
    softmetal_fire_timer();
    PUT(&crossing.swept, 1);
    return unused;
}

static void stop_the_warmup(void *unused)
{
    (void)unused;
    PUT(&crossing.warmup_stopped, 1);
    probe_at_each(crossing.in, stop_the_sweep, NULL);
    crossing.timer = start(sweep_now, NULL);
    while (!GET(&crossing.sweep_stopped) && !GET(&crossing.swept)) (sched_yield)();
    (void)probe_has_acted();
}

static void a_sweep_crosses(int at, int in)
{
    gpusync_hooks hooks = {note_strangers, park_of_strangers, unpark_on_any_thread, NULL};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_warmup_desc desc = listing(NULL, 0);
    gpusync_timeline *timeline;
    gpusync_queue *behind;
    gpusync_warmup *warmup;
    rig r;
    memset(&crossing, 0, sizeof crossing);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    crossing.in = in;
    crossing.program = pthread_self();
    device_desc.hooks = &hooks;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    behind = queue_new(r.device);
    timeline = timeline_new(r.device);
    (void)hold_on(behind, timeline, 1, NULL); /* a reason for sweeps */
    desc.queue = r.queue;
    softmetal_set_dispatch_threads(0);
    assert_ok(gpusync_warmup_start(r.device, &desc, &warmup));
    probe_at_each(at, stop_the_warmup, NULL);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    must_return_within(60);
    while (gpusync_warmup_poll(warmup, NULL, NULL) == GPUSYNC_NOT_READY) {
        void *buffer = softmetal_first_in_line(r.metal_queue);
        PUT(&crossing.handles, 1);
        if (buffer && softmetal_what_is_due(buffer) == SOFTMETAL_COMPLETE_DUE) softmetal_finish(buffer);
        PUT(&crossing.handles, 0);
        (sched_yield)();
    }
    PUT(&crossing.done, 1);
    assert_true(softmetal_dispatched(SECONDS(20)));
    (void)probe_has_acted();
    if (GET(&crossing.warmup_stopped)) join(crossing.timer);
    has_returned();
    assert_int_equal(crossing.strangers, 0);
    assert_ok(gpusync_warmup_wait(warmup, 0));
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_ok(gpusync_timeline_signal(timeline, 1));
    finish_queue(behind);
    assert_ok(gpusync_queue_destroy(behind));
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

static void test_a_warmup_waits_for_a_sweep_without_the_programs_hooks(void **state)
{
    unsigned slept = 0;
    int at = 0;
    (void)state;
    do {
        int in = 0;
        at++;
        do {
            a_sweep_crosses(at, ++in);
            slept += crossing.warmup_slept;
        } while (crossing.sweep_stopped || crossing.passed);
    } while (crossing.warmup_stopped);
    assert_true(slept > 0);
}

/* -- destroy at each stage ---------------------------------------------------------------------------- */

static void test_destroy_at_once(void **state)
{
    int round;
    (void)state;
    for (round = 0; round < 12; round++) {
        gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source("#error", "bad"),
                                        from_source(other, "copy")};
        gpusync_warmup_desc desc = listing(list, LENGTH(list));
        place p;
        place_open(&p);
        softmetal_set_compile_time(MS(round / 2), MS(1));
        if (round % 2) desc.queue = p.r.queue;
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        place_close(&p);
    }
    assert_ok(gpusync_warmup_destroy(NULL));
}

typedef struct destroyer {
    place *p;
    gpusync_result result;
    bool over;
    pthread_t thread;
} destroyer;

static void *destroy_body(void *argument)
{
    destroyer *d = (destroyer *)argument;
    d->result = gpusync_warmup_destroy(d->p->warmup);
    __atomic_store_n(&d->over, true, __ATOMIC_SEQ_CST);
    return NULL;
}

static void destroyer_start(destroyer *d, place *p)
{
    memset(d, 0, sizeof *d);
    d->p = p;
    d->thread = start(destroy_body, d);
}

static void destroyer_join(destroyer *d)
{
    join(d->thread);
    assert_ok(d->result);
    d->p->warmup = NULL;
}

typedef struct sleeper {
    place *p;
    bool all; /* or the first pipeline */
    gpusync_result result;
    pthread_t thread;
} sleeper;

static void *sleep_body(void *argument)
{
    sleeper *s = (sleeper *)argument;
    void *out;
    if (s->all) s->result = gpusync_warmup_wait(s->p->warmup, GPUSYNC_FOREVER);
    else s->result = gpusync_warmup_pipeline(s->p->warmup, 0, GPUSYNC_FOREVER, &out, NULL);
    return NULL;
}

static void sleeper_start(sleeper *s, place *p, bool all)
{
    s->p = p;
    s->all = all;
    s->thread = start(sleep_body, s);
}

/* A waiter that was told of it: from here on destroy is under way. */
static void await_destroy(sleeper *s)
{
    join(s->thread);
    assert_result(s->result, GPUSYNC_ERROR_DESTROYED);
}

/* Another thread is in the destroy of the warm-up, and has woken the sleeper there. It waits for what has begun. */
static void destroy_begins(place *p, destroyer *d)
{
    sleeper s;
    sleeper_start(&s, p, true);
    inn_await(&p->inn, &p->inn.asleep, 1);
    destroyer_start(d, p);
    await_destroy(&s);
    assert_false(__atomic_load_n(&d->over, __ATOMIC_SEQ_CST));
}

/* Metal is in the middle of three, which nothing can stop: destroy waits for them. The fourth, on the dispatch queue of
   the first, has not begun, and is left out. */
static void destroy_while_stopped_at(const char *selector)
{
    gpusync_pipeline_desc list[] = {from_source("kernel void a() {}", "a"), from_source("kernel void b() {}", "b"),
                                    from_source("kernel void c() {}", "c"), from_source("kernel void d() {}", "d")};
    gpusync_warmup_desc desc = listing(list, LENGTH(list));
    destroyer d;
    place p;
    place_open(&p);
    close_door(&p, selector);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    door_await_many(&p.door, 3);
    destroy_begins(&p, &d);
    door_open(&p.door);
    destroyer_join(&d);
    assert_int_equal(softmetal_message_count(LIBRARY), 3);
    assert_int_equal(softmetal_compiles(), 3);
    place_close(&p);
}

static void test_destroy_while_metal_compiles(void **state)
{
    (void)state;
    destroy_while_stopped_at(LIBRARY);
    destroy_while_stopped_at(FUNCTION);
    destroy_while_stopped_at(PIPELINE);
}

/* Neither can its own function, where it is inside Metal; no job begins after that. */
static void test_destroy_while_the_device_is_warmed_up(void **state)
{
    static const char *const stages[] = {"newSharedEvent", "commandBuffer", "commit"};
    size_t n;
    (void)state;
    for (n = 0; n < LENGTH(stages); n++) {
        gpusync_warmup_desc desc = listing(NULL, 0);
        gpusync_warmup_job job = {never, NULL};
        destroyer d;
        place p;
        place_open(&p);
        desc.jobs = &job;
        desc.job_count = 1;
        p.pass = true; /* start makes an event too */
        close_door(&p, stages[n]);
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        door_await(&p.door);
        assert_progress(p.warmup, GPUSYNC_NOT_READY, 0, 2);
        destroy_begins(&p, &d);
        door_open(&p.door);
        destroyer_join(&d);
        place_close(&p);
    }
}

/* Libdispatch has no thread to spare: nothing begins. Destroy waits for the functions, which leave the pipelines and the
   jobs out. */
static void test_destroy_before_its_functions_have_begun(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    gpusync_warmup_job job = {never, NULL};
    destroyer d;
    place p;
    (void)state;
    place_open(&p);
    desc.jobs = &job;
    desc.job_count = 1;
    softmetal_set_dispatch_threads(0);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_result(gpusync_warmup_poll(p.warmup, NULL, NULL), GPUSYNC_NOT_READY);
    destroy_begins(&p, &d);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    destroyer_join(&d);
    assert_int_equal(softmetal_message_count(LIBRARY), 0);
    assert_int_equal(softmetal_compiles(), 0);
    assert_dispatched(&p, 2);
    place_close(&p);
}

/* Waits are told at once, and are out of the warm-up before it goes. */
static void test_destroy_ends_waits(void **state)
{
    int disabled;
    (void)state;
    for (disabled = 0; disabled < 2; disabled++) {
        gpusync_pipeline_desc list[] = {from_source(both, "add")};
        gpusync_warmup_desc desc = listing(list, 1);
        sleeper sleepers[4];
        destroyer d;
        place p;
        int i;
        place_open(&p);
        close_door(&p, PIPELINE);
        desc.disabled = disabled;
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        for (i = 0; i < 4; i++) sleeper_start(&sleepers[i], &p, !disabled && i % 2);
        inn_await(&p.inn, &p.inn.asleep, 4);
        door_await(&p.door);
        destroyer_start(&d, &p);
        for (i = 0; i < 4; i++) await_destroy(&sleepers[i]); /* at once: Metal is still before the door */
        assert_true(inn_read(&p.inn, &p.inn.unparks) > 0);
        assert_false(__atomic_load_n(&d.over, __ATOMIC_SEQ_CST));
        door_open(&p.door);
        destroyer_join(&d);
        place_close(&p);
    }
}

/* A scheduler may let a fiber that was woken lie for long: destroy waits until it has left. */
static void test_destroy_waits_for_waiters(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    destroyer d;
    sleeper s;
    long yields;
    place p;
    (void)state;
    place_open(&p);
    close_door(&p, PIPELINE);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    sleeper_start(&s, &p, false);
    inn_await(&p.inn, &p.inn.asleep, 1);
    pthread_mutex_lock(&p.inn.lock);
    p.inn.guest = s.thread;
    p.inn.keep_guest = true;
    pthread_mutex_unlock(&p.inn.lock);
    door_await(&p.door);
    door_open(&p.door);
    while (gpusync_warmup_poll(p.warmup, NULL, NULL) != GPUSYNC_OK) sched_yield(); /* nothing else to wait for */
    assert_true(softmetal_settle(SECONDS(10)));
    yields = inn_read(&p.inn, &p.inn.yields);
    destroyer_start(&d, &p);
    while (inn_read(&p.inn, &p.inn.yields) < yields + 50 && !__atomic_load_n(&d.over, __ATOMIC_SEQ_CST)) sched_yield();
    assert_false(__atomic_load_n(&d.over, __ATOMIC_SEQ_CST));
    pthread_mutex_lock(&p.inn.lock);
    p.inn.keep_guest = false;
    pthread_cond_broadcast(&p.inn.changed);
    pthread_mutex_unlock(&p.inn.lock);
    join(s.thread);
    assert_true(s.result == GPUSYNC_OK || s.result == GPUSYNC_ERROR_DESTROYED);
    destroyer_join(&d);
    place_close(&p);
}

/* Destroy cuts the device's part short, where the queue has no room or its work does not end. A wait that comes to that
   end is told that the warm-up went, and nothing of the step at which it was left. */
static void test_a_wait_is_told_of_destroy_where_the_device_was_left_out(void **state)
{
    int full;
    (void)state;
    for (full = 0; full < 2; full++) {
        gpusync_warmup_desc desc = listing(NULL, 0);
        gpusync_queue_desc queue_desc;
        destroyer d;
        sleeper s;
        void *buffer;
        place p;
        memset(&queue_desc, 0, sizeof queue_desc);
        place_open(&p);
        queue_desc.max_command_buffer_count = full ? 1 : 2;
        desc.queue = queue_of_kind(QUEUE_OF_GPUSYNC, p.r.device, &queue_desc);
        assert_ok(gpusync_command_buffer(desc.queue, NULL, &buffer));
        metal_retain(buffer);
        softmetal_hang(buffer);
        if (!full) assert_ok(gpusync_commit(desc.queue, buffer, NULL));
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        sleeper_start(&s, &p, true);
        inn_await(&p.inn, &p.inn.asleep, 1);
        pthread_mutex_lock(&p.inn.lock);
        p.inn.guest = s.thread;
        p.inn.keep_guest = true;
        pthread_mutex_unlock(&p.inn.lock);
        destroyer_start(&d, &p);
        while (gpusync_warmup_poll(p.warmup, NULL, NULL) != GPUSYNC_OK) sched_yield();
        pthread_mutex_lock(&p.inn.lock);
        p.inn.keep_guest = false;
        pthread_cond_broadcast(&p.inn.changed);
        pthread_mutex_unlock(&p.inn.lock);
        await_destroy(&s);
        destroyer_join(&d);
        if (full) assert_ok(gpusync_command_buffer_discard(desc.queue, buffer));
        softmetal_unhang(buffer);
        metal_release(buffer);
        assert_ok(gpusync_queue_destroy(desc.queue));
        place_close(&p);
    }
}

/* The job that runs is waited for; the next never begins. */
static void test_destroy_during_a_job(void **state)
{
    gpusync_warmup_desc desc = listing(NULL, 0);
    gpusync_warmup_job jobs[2];
    destroyer d;
    place p;
    (void)state;
    place_open(&p);
    p.stop_at = "";
    jobs[0].run = door_pass;
    jobs[0].user = &p.door;
    jobs[1].run = never;
    jobs[1].user = NULL;
    desc.jobs = jobs;
    desc.job_count = 2;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    door_await(&p.door);
    destroy_begins(&p, &d); /* so the second job must not begin */
    door_open(&p.door);
    destroyer_join(&d);
    place_close(&p);
}

typedef struct asker_in_a_job {
    place *p;
    gpusync_result results[2];
    void *out;
} asker_in_a_job;

static void ask_behind_the_door(void *user)
{
    asker_in_a_job *a = (asker_in_a_job *)user;
    door_pass(&a->p->door);
    a->results[0] = gpusync_warmup_wait(a->p->warmup, GPUSYNC_FOREVER);
    a->results[1] = gpusync_warmup_pipeline(a->p->warmup, 0, GPUSYNC_FOREVER, &a->out, NULL);
}

/* The job that destroy waits for may still ask, and is told. */
static void test_a_job_that_asks_during_destroy_is_told(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    gpusync_warmup_job job;
    asker_in_a_job a;
    destroyer d;
    place p;
    (void)state;
    place_open(&p);
    a.p = &p;
    a.out = &a;
    job.run = ask_behind_the_door;
    job.user = &a;
    desc.jobs = &job;
    desc.job_count = 1;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    door_await(&p.door);
    destroy_begins(&p, &d);
    door_open(&p.door);
    destroyer_join(&d);
    assert_result(a.results[0], GPUSYNC_ERROR_DESTROYED);
    assert_result(a.results[1], GPUSYNC_ERROR_DESTROYED);
    assert_null(a.out);
    place_close(&p);
}

static void test_the_device_cannot_go_first(void **state)
{
    int disabled;
    (void)state;
    for (disabled = 0; disabled < 2; disabled++) {
        gpusync_warmup_desc desc = listing(NULL, 0);
        place p;
        place_open(&p);
        desc.disabled = disabled;
        desc.blocking = true;
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        assert_ok(gpusync_queue_destroy(p.r.queue));
        p.r.queue = NULL;
        assert_result(gpusync_device_destroy(p.r.device), GPUSYNC_ERROR_IN_USE);
        place_close(&p);
    }
}

/* -- in callbacks ------------------------------------------------------------------------------------- */

typedef struct inside {
    place *p;
    bool disabled;
    gpusync_result started, blocking, polled, waited, got, destroyed;
    gpusync_warmup *other;
    gate gate;
} inside;

/* On the dispatch queue's thread: the work goes on until fn is registered. */
static void call_back(place *p, gpusync_done_fn fn, inside *in)
{
    gpusync_ticket ticket;
    void *buffer = metal_retain(open_buffer(&p->r));
    in->p = p;
    gate_init(&in->gate, 2);
    softmetal_hang(buffer);
    assert_ok(gpusync_commit(p->r.queue, buffer, &ticket));
    assert_ok(gpusync_on_done(gpusync_at_ticket(p->r.queue, ticket), fn, in));
    softmetal_unhang(buffer);
    metal_release(buffer);
    gate_wait(&in->gate);
}

static void call_everything(void *user, gpusync_result result, const gpusync_error *error)
{
    inside *in = (inside *)user;
    gpusync_pipeline_desc list[] = {from_source(other, "copy")};
    gpusync_warmup_desc desc = listing(list, 1);
    void *out;
    (void)result;
    (void)error;
    in->polled = gpusync_warmup_poll(in->p->warmup, NULL, NULL);
    in->waited = gpusync_warmup_wait(in->p->warmup, SECONDS(20));
    in->got = gpusync_warmup_pipeline(in->p->warmup, 0, SECONDS(20), &out, NULL);
    in->destroyed = gpusync_warmup_destroy(in->p->warmup);
    in->started = gpusync_warmup_start(in->p->r.device, &desc, &in->other);
    gate_wait(&in->gate);
}

static void test_in_a_callback(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    inside in;
    place p;
    (void)state;
    memset(&in, 0, sizeof in);
    place_open(&p);
    close_door(&p, PIPELINE);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    door_await(&p.door);
    call_back(&p, call_everything, &in);
    assert_result(in.polled, GPUSYNC_NOT_READY);
    assert_result(in.waited, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_result(in.got, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_result(in.destroyed, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(in.started);
    door_open(&p.door);
    assert_ok(gpusync_warmup_wait(in.other, SECONDS(20)));
    assert_ok(gpusync_warmup_destroy(in.other));
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_ok(gpusync_queue_wait(p.r.queue, SECONDS(20)));
    gate_destroy(&in.gate);
    place_close(&p);
}

static void start_blocking(void *user, gpusync_result result, const gpusync_error *error)
{
    inside *in = (inside *)user;
    gpusync_pipeline_desc list[] = {from_source(other, "copy")};
    gpusync_warmup_desc desc = listing(list, 1);
    (void)result;
    (void)error;
    desc.blocking = true;
    desc.disabled = in->disabled;
    in->started = gpusync_warmup_start(in->p->r.device, &desc, &in->other);
    gate_wait(&in->gate);
}

/* It says that it cannot wait; what it began goes on, and nothing is the matter with it. */
static void test_blocking_in_a_callback(void **state)
{
    softmetal_timing timing;
    inside in;
    place p;
    (void)state;
    memset(&in, 0, sizeof in);
    place_open(&p);
    softmetal_get_timing(&timing);
    timing.execute.min_ns = timing.execute.max_ns = MS(20); /* the device is not warm at once either */
    softmetal_set_timing(&timing);
    close_door(&p, PIPELINE);
    call_back(&p, start_blocking, &in);
    door_open(&p.door);
    assert_result(in.started, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_non_null(in.other);
    assert_ok(gpusync_warmup_wait(in.other, SECONDS(20)));
    assert_non_null(pipeline_of(in.other, 0));
    assert_ok(gpusync_warmup_destroy(in.other));
    assert_ok(gpusync_queue_wait(p.r.queue, SECONDS(20)));
    gate_destroy(&in.gate);
    place_close(&p);
}

/* Where all is done already it need not wait. */
static void test_blocking_and_disabled_in_a_callback(void **state)
{
    inside in;
    place p;
    (void)state;
    memset(&in, 0, sizeof in);
    place_open(&p);
    in.disabled = true;
    call_back(&p, start_blocking, &in);
    assert_ok(in.started);
    assert_non_null(pipeline_of(in.other, 0));
    assert_ok(gpusync_warmup_destroy(in.other));
    gate_destroy(&in.gate);
    place_close(&p);
}

/* -- its queue ---------------------------------------------------------------------------------------- */

static void test_with_a_queue_of_the_programs(void **state)
{
    gpusync_warmup_desc desc = listing(NULL, 0);
    gpusync_stats stats;
    place p;
    (void)state;
    place_open(&p);
    desc.queue = p.r.queue;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_int_equal(stats_of(p.r.queue).commits, 1);
    assert_int_equal(softmetal_live("queue"), 1);
    assert_ok(gpusync_warmup_destroy(p.warmup));
    p.warmup = NULL;
    assert_int_equal(commit_empty(&p.r, NULL), 2);
    assert_ok(gpusync_queue_wait(p.r.queue, SECONDS(20)));
    assert_ok(gpusync_device_get_stats(p.r.device, &stats));
    assert_int_equal(stats.commits, 2);
    place_close(&p);
}

static void test_with_a_queue_of_its_own(void **state)
{
    place p;
    (void)state;
    place_open(&p);
    assert_ok(gpusync_warmup_start(p.r.device, NULL, &p.warmup));
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_int_equal(stats_of(p.r.queue).commits, 0);
    assert_int_equal(commit_empty(&p.r, NULL), 1);
    assert_ok(gpusync_device_wait(p.r.device, SECONDS(20), NULL));
    assert_ok(gpusync_warmup_destroy(p.warmup));
    p.warmup = NULL;
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(softmetal_live("queue"), 1);
    place_close(&p);
}

/* The queue is behind a submission that waits for a value no work is to signal: what is committed there is held. The
   warm-up waits for that; its destroy does not. */
static void on_a_held_queue(bool signal)
{
    gpusync_warmup_desc desc = listing(NULL, 0);
    gpusync_submission work;
    gpusync_point wait;
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    place p;
    place_open(&p);
    assert_ok(gpusync_timeline_create(p.r.device, NULL, &timeline));
    memset(&wait, 0, sizeof wait);
    memset(&work, 0, sizeof work);
    wait.timeline = timeline;
    wait.value = 1;
    work.waits = &wait;
    work.wait_count = 1;
    assert_ok(gpusync_submit(p.r.queue, &work, &ticket));
    desc.queue = p.r.queue;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    while (stats_of(p.r.queue).commits < 2) sched_yield(); /* the empty command buffer lines up */
    assert_result(gpusync_warmup_wait(p.warmup, MS(5)), GPUSYNC_TIMEOUT);
    if (signal) {
        assert_ok(gpusync_timeline_signal(timeline, 1));
        assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    } else {
        assert_ok(gpusync_warmup_destroy(p.warmup));
        p.warmup = NULL;
        assert_int_equal(gpusync_poll(p.r.queue, ticket + 1), GPUSYNC_NOT_READY);
        assert_ok(gpusync_timeline_signal(timeline, 1));
        assert_ok(gpusync_queue_wait(p.r.queue, SECONDS(20)));
    }
    assert_ok(gpusync_timeline_destroy(timeline));
    place_close(&p);
}

static void test_with_a_queue_that_is_held(void **state)
{
    (void)state;
    on_a_held_queue(true);
    on_a_held_queue(false);
}

/* No room in the queue for the empty command buffer, until the program commits; or never, and destroy does not mind. */
static void on_a_full_queue(bool commit)
{
    gpusync_queue_desc queue_desc;
    gpusync_queue *narrow;
    gpusync_warmup_desc desc = listing(NULL, 0);
    void *buffer;
    place p;
    memset(&queue_desc, 0, sizeof queue_desc);
    place_open(&p);
    queue_desc.max_command_buffer_count = 1;
    narrow = queue_of_kind(QUEUE_OF_GPUSYNC, p.r.device, &queue_desc);
    assert_ok(gpusync_command_buffer(narrow, NULL, &buffer));
    inn_watch(&p.inn);
    desc.queue = narrow;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    while (softmetal_message_count("newSharedEvent") < 2) sched_yield();
    assert_result(gpusync_warmup_wait(p.warmup, MS(5)), GPUSYNC_TIMEOUT);
    if (commit) {
        assert_ok(gpusync_commit(narrow, buffer, NULL));
        assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    }
    assert_false(p.inn.stranger_came);
    assert_ok(gpusync_warmup_destroy(p.warmup));
    p.warmup = NULL;
    if (!commit) assert_ok(gpusync_command_buffer_discard(narrow, buffer));
    assert_ok(gpusync_queue_destroy(narrow));
    place_close(&p);
}

static void test_with_a_queue_that_is_full(void **state)
{
    (void)state;
    on_a_full_queue(true);
    on_a_full_queue(false);
}

/* -- the rest ----------------------------------------------------------------------------------------- */

/* A wait ends before calls for new work fail. */
static void await_loss(place *p)
{
    void *buffer;
    while (gpusync_command_buffer(p->r.queue, NULL, &buffer) == GPUSYNC_OK) {
        assert_ok(gpusync_command_buffer_discard(p->r.queue, buffer));
        sched_yield();
    }
    assert_true(gpusync_device_is_lost(p->r.device));
}

/* What the warm-up sends to the device by itself has ended: so it does not find the loss. */
static void await_the_device_warm(place *p)
{
    size_t done = 0;
    while (done < 1) {
        assert_result(gpusync_warmup_poll(p->warmup, &done, NULL), GPUSYNC_NOT_READY);
        sched_yield();
    }
}

static void lose_device(place *p)
{
    softmetal_remove_device(p->r.metal_device);
    assert_result(gpusync_wait(p->r.queue, commit_empty(&p->r, NULL), SECONDS(20)), GPUSYNC_ERROR_EXECUTION);
    await_loss(p);
}

static void test_a_lost_device(void **state)
{
    gpusync_warmup *none = (gpusync_warmup *)&none;
    place p;
    (void)state;
    place_open(&p);
    lose_device(&p);
    assert_result(gpusync_warmup_start(p.r.device, NULL, &none), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(none);
    place_close(&p);
}

/* The device goes while the warm-up is at work. A sleeper is woken once gpusync gives up: Metal may never call back. If
   it does, all is done nevertheless. */
static void test_a_device_lost_meanwhile(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    sleeper sleepers[2];
    void *pipeline;
    place p;
    int i;
    (void)state;
    place_open(&p);
    close_door(&p, PIPELINE);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    door_await(&p.door);
    await_the_device_warm(&p);
    p.inn.deaf = true;
    for (i = 0; i < 2; i++) sleeper_start(&sleepers[i], &p, i);
    inn_await(&p.inn, &p.inn.asleep, 2);
    lose_device(&p);
    for (i = 0; i < 2; i++) {
        join(sleepers[i].thread);
        assert_result(sleepers[i].result, GPUSYNC_ERROR_DEVICE_LOST);
    }
    p.inn.deaf = false;
    assert_int_equal(inn_read(&p.inn, &p.inn.gave_up), 0); /* none had to look by itself */
    assert_result(gpusync_warmup_poll(p.warmup, NULL, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_warmup_wait(p.warmup, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    door_open(&p.door);
    while (gpusync_warmup_poll(p.warmup, NULL, NULL) != GPUSYNC_OK) sched_yield();
    assert_ok(gpusync_warmup_wait(p.warmup, GPUSYNC_FOREVER));
    assert_ok(gpusync_warmup_pipeline(p.warmup, 0, 0, &pipeline, NULL));
    assert_non_null(pipeline);
    place_close(&p);
}

/* A call that blocks is such a sleeper too. What it began is there all the same. */
static void *start_and_block(void *argument)
{
    sleeper *s = (sleeper *)argument;
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    desc.blocking = true;
    s->result = gpusync_warmup_start(s->p->r.device, &desc, &s->p->warmup);
    return NULL;
}

static void test_a_device_lost_to_a_blocking_one(void **state)
{
    sleeper s;
    place p;
    (void)state;
    place_open(&p);
    close_door(&p, PIPELINE);
    p.inn.deaf = true;
    s.p = &p;
    s.thread = start(start_and_block, &s);
    door_await(&p.door);
    inn_await(&p.inn, &p.inn.asleep, 1);
    await_the_device_warm(&p);
    inn_await(&p.inn, &p.inn.asleep, 1); /* it had to look again */
    lose_device(&p);
    join(s.thread);
    p.inn.deaf = false;
    assert_result(s.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(inn_read(&p.inn, &p.inn.gave_up), 0);
    assert_non_null(p.warmup);
    assert_result(gpusync_warmup_poll(p.warmup, NULL, NULL), GPUSYNC_NOT_READY);
    door_open(&p.door);
    place_close(&p);
}

/* ... or is lost to its own command buffer. */
static void test_a_device_that_the_warmup_finds_lost(void **state)
{
    static const char *const stages[] = {"newSharedEvent", "commandBuffer", "commit"};
    size_t n;
    (void)state;
    for (n = 0; n < LENGTH(stages); n++) {
        gpusync_warmup_desc desc = listing(NULL, 0);
        bool tables = false;
        gpusync_warmup_job job = {load_tables, &tables};
        gpusync_result result;
        place p;
        place_open(&p);
        desc.jobs = &job;
        desc.job_count = 1;
        p.pass = true; /* start makes an event too */
        close_door(&p, stages[n]);
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        door_await(&p.door);
        softmetal_remove_device(p.r.metal_device);
        door_open(&p.door);
        result = gpusync_warmup_wait(p.warmup, SECONDS(20));
        if (result != GPUSYNC_ERROR_EXECUTION) assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
        await_loss(&p);
        while (gpusync_warmup_poll(p.warmup, NULL, NULL) != GPUSYNC_OK) sched_yield();
        assert_true(tables);
        place_close(&p);
    }
}

/* ... whose end Metal never tells of: the warm-up is done when the work is given up. */
static void test_a_command_buffer_that_a_lost_device_never_ends(void **state)
{
    gpusync_warmup_desc desc = listing(NULL, 0);
    gpusync_ticket ticket;
    gpusync_queue *second;
    void *fatal, *metal;
    sleeper one;
    place p;
    (void)state;
    place_open(&p);
    softmetal_set_clock(SOFTMETAL_MANUAL); /* for the second queue, and for timers */
    second = queue_new(p.r.device);
    metal = metal_retain(gpusync_queue_metal(second));
    desc.queue = second;
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    while (gpusync_in_flight(second) == 0) sched_yield();
    sleeper_start(&one, &p, true);
    inn_await(&p.inn, &p.inn.asleep, 1);
    fatal = open_buffer(&p.r);
    fail_with_the_device(fatal);
    assert_ok(either_commit(p.r.queue, fatal, &ticket));
    assert_result(gpusync_wait(p.r.queue, ticket, SECONDS(20)), GPUSYNC_ERROR_EXECUTION);
    await_loss(&p);
    assert_result(gpusync_warmup_wait(p.warmup, 0), GPUSYNC_TIMEOUT);
    probe_give_up_lost(p.r.device);
    join(one.thread);
    assert_result(one.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_warmup_wait(p.warmup, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    while (gpusync_warmup_poll(p.warmup, NULL, NULL) != GPUSYNC_OK) sched_yield();
    assert_ok(gpusync_warmup_destroy(p.warmup));
    p.warmup = NULL;
    assert_ok(gpusync_queue_destroy(second));
    softmetal_finish_queue(metal);
    metal_release(metal);
    place_close(&p);
}

/* Lost between making the command buffer and committing it: it is given back. */
static void test_nothing_stays_open_on_a_lost_device(void **state)
{
    gpusync_warmup_desc desc = listing(NULL, 0);
    gpusync_queue *second;
    char text[4096];
    place p;
    (void)state;
    place_open(&p);
    second = queue_new(p.r.device);
    desc.queue = second;
    close_door(&p, "commandBuffer");
    p.pass = true; /* the test's own command buffer */
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    door_await(&p.door);
    lose_device(&p);
    door_open(&p.door);
    while (gpusync_warmup_poll(p.warmup, NULL, NULL) != GPUSYNC_OK) sched_yield();
    assert_result(gpusync_warmup_wait(p.warmup, 0), GPUSYNC_ERROR_DEVICE_LOST);
    assert_true(softmetal_settle(SECONDS(20))); /* a wait ends before the handler that gives the room back */
    assert_true(gpusync_report(p.r.device, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "buffers 0 of 63"));
    assert_null(strstr(text, "buffers 1 of 63"));
    assert_ok(gpusync_warmup_destroy(p.warmup));
    p.warmup = NULL;
    assert_ok(gpusync_queue_destroy(second));
    place_close(&p);
}

static void test_bad_input(void **state)
{
    gpusync_pipeline_desc list[1] = {{NULL, NULL, NULL}};
    gpusync_warmup_desc desc = listing(list, 1);
    gpusync_warmup_job job = {NULL, NULL};
    gpusync_warmup *w = (gpusync_warmup *)&w;
    gpusync_device *device;
    gpusync_queue *queue;
    size_t done = 7, total = 7;
    void *out = &out;
    place p;
    (void)state;
    place_open(&p);
    assert_result(gpusync_warmup_start(NULL, NULL, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(w);
    assert_result(gpusync_warmup_start(p.r.device, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    list[0] = from_source(both, NULL);
    assert_result(gpusync_warmup_start(p.r.device, &desc, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    list[0] = from_source(NULL, "add"); /* neither */
    assert_result(gpusync_warmup_start(p.r.device, &desc, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    list[0] = from_library(p.r.metal_device, "add");
    list[0].source = both; /* not both */
    assert_result(gpusync_warmup_start(p.r.device, &desc, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    desc = listing(NULL, 1);
    assert_result(gpusync_warmup_start(p.r.device, &desc, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    desc = listing(NULL, 0);
    desc.job_count = 1;
    assert_result(gpusync_warmup_start(p.r.device, &desc, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    desc.jobs = &job;
    assert_result(gpusync_warmup_start(p.r.device, &desc, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    job.run = never;
    desc.job_count = SIZE_MAX / sizeof job + 2; /* times the size of one: a small number */
    assert_result(gpusync_warmup_start(p.r.device, &desc, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    list[0] = from_source(both, "add");
    desc = listing(list, SIZE_MAX / 2 + 2);
    assert_result(gpusync_warmup_start(p.r.device, &desc, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    desc = listing(NULL, 0);
    assert_ok(gpusync_device_create(NULL, &device));
    queue = queue_new(device);
    desc.queue = queue; /* of another device */
    assert_result(gpusync_warmup_start(p.r.device, &desc, &w), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_ok(gpusync_queue_destroy(queue));
    assert_ok(gpusync_device_destroy(device));
    assert_int_equal(softmetal_message_count("newSharedEvent"), 0);
    assert_dispatched(&p, 0);

    assert_result(gpusync_warmup_poll(NULL, &done, &total), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(done + total, 0);
    assert_result(gpusync_warmup_wait(NULL, 0), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_warmup_pipeline(NULL, 0, 0, &out, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(out);
    list[0] = from_source(both, "add");
    desc = listing(list, 1);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    out = &out;
    assert_result(gpusync_warmup_pipeline(p.warmup, 1, 0, &out, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(out);
    assert_result(gpusync_warmup_pipeline(p.warmup, 0, 0, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    place_close(&p);
}

/* Names and texts that are no UTF-8 compile as little as those that are no shaders, and the error tells which of the two. */
static void test_no_utf8(void **state)
{
    int disabled;
    (void)state;
    for (disabled = 0; disabled < 2; disabled++) {
        gpusync_pipeline_desc list[] = {from_source("\xff\xfe\xc0", "add"), from_source(both, "\xff\xc0"),
                                        from_source(both, "add")};
        gpusync_warmup_desc desc = listing(list, LENGTH(list));
        gpusync_error error;
        void *out;
        place p;
        place_open(&p);
        desc.disabled = disabled;
        assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
        assert_result(gpusync_warmup_pipeline(p.warmup, 0, SECONDS(20), &out, &error), GPUSYNC_ERROR_COMPILE);
        assert_string_equal(error.message, "the source is no UTF-8");
        assert_result(gpusync_warmup_pipeline(p.warmup, 1, SECONDS(20), &out, &error), GPUSYNC_ERROR_COMPILE);
        assert_string_equal(error.message, "the library has no function of this name");
        assert_string_equal(error.label, "\xEF\xBF\xBD\xEF\xBF\xBD");
        assert_non_null(pipeline_of(p.warmup, 2));
        place_close(&p);
    }
}

/* A trace tells of it as of a timeline: of the waits, and how its value rises. */
typedef struct ends {
    pthread_mutex_t lock;
    int begun, ended, others;
    uint64_t value;
} ends;

static void count_events(void *user, const gpusync_trace_event *event)
{
    ends *e = (ends *)user;
    bool begins = event->kind == GPUSYNC_TRACE_WAIT_BEGIN, ends_well;
    ends_well = event->kind == GPUSYNC_TRACE_WAIT_END && event->result == GPUSYNC_OK;
    if (event->queue) return;
    pthread_mutex_lock(&e->lock);
    if (!event->timeline || !event->label || strcmp(event->label, "warm-up") != 0) e->others++;
    else if (begins) e->begun++;
    else if (ends_well) e->ended++;
    else if (event->kind != GPUSYNC_TRACE_SIGNAL) e->others++;
    else if (event->value > e->value) e->value = event->value;
    pthread_mutex_unlock(&e->lock);
}

static void test_traced(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    ends e = {PTHREAD_MUTEX_INITIALIZER, 0, 0, 0, 0};
    pthread_t opener;
    place p;
    (void)state;
    place_open(&p);
    assert_ok(gpusync_set_trace(p.r.device, count_events, &e));
    close_door(&p, PIPELINE);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    opener = start(open_once_a_waiter_sleeps, &p);
    assert_non_null(pipeline_of(p.warmup, 0)); /* which sleeps */
    join(opener);
    assert_ok(gpusync_warmup_wait(p.warmup, SECONDS(20)));
    assert_true(softmetal_settle(SECONDS(10))); /* a wait may end before it is told what ended it */
    assert_true(e.begun >= 1);
    assert_int_equal(e.ended, e.begun); /* each thing that is done ends one */
    assert_int_equal(e.value, 2);
    assert_int_equal(e.others, 0);
    place_close(&p);
}

/* Until the report has this line; and it names no warm-up but by its timeline. */
static void await_report(place *p, const char *line)
{
    char text[4096];
    do {
        assert_true(gpusync_report(p->r.device, text, sizeof text) < sizeof text);
    } while (!strstr(text, line));
    assert_null(strstr(text, "warm-up:"));
}

static void test_reported(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add")};
    gpusync_warmup_desc desc = listing(list, 1);
    char text[4096];
    sleeper s;
    place p;
    (void)state;
    place_open(&p);
    close_door(&p, PIPELINE);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    sleeper_start(&s, &p, true);
    await_report(&p, "  timeline 1 'warm-up': value 1\n    a wait for value 2, asleep");
    door_open(&p.door);
    join(s.thread);
    assert_ok(s.result);
    await_report(&p, "  timeline 1 'warm-up': value 2\n");
    assert_ok(gpusync_warmup_destroy(p.warmup));
    p.warmup = NULL;
    assert_true(gpusync_report(p.r.device, text, sizeof text) < sizeof text);
    assert_null(strstr(text, "warm-up"));
    place_close(&p);
}

/* Two at a time know nothing of each other. */
static void test_two_at_a_time(void **state)
{
    gpusync_pipeline_desc list[] = {from_source(both, "add"), from_source("#error", "bad")};
    gpusync_warmup_desc desc = listing(list, 2), good = listing(list, 1);
    gpusync_warmup *second;
    place p;
    (void)state;
    place_open(&p);
    assert_ok(gpusync_warmup_start(p.r.device, &desc, &p.warmup));
    assert_ok(gpusync_warmup_start(p.r.device, &good, &second));
    assert_ok(gpusync_warmup_wait(second, SECONDS(20)));
    assert_result(gpusync_warmup_wait(p.warmup, SECONDS(20)), GPUSYNC_ERROR_COMPILE);
    assert_true(pipeline_of(second, 0) != pipeline_of(p.warmup, 0));
    assert_ok(gpusync_warmup_destroy(second));
    assert_non_null(pipeline_of(p.warmup, 0));
    place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_program),
        cmocka_unit_test(test_progress_is_told),
        cmocka_unit_test(test_progress_is_consistent),
        cmocka_unit_test(test_no_list_is_the_device_alone),
        cmocka_unit_test(test_the_event_is_kept),
        cmocka_unit_test(test_jobs_in_order_on_one_thread),
        cmocka_unit_test(test_jobs_of_a_blocking_one_are_over_when_it_returns),
        cmocka_unit_test(test_jobs_use_gpusync),
        cmocka_unit_test(test_a_time_limit_is_not_renewed),
        cmocka_unit_test(test_a_job_cannot_wait_for_itself),
        cmocka_unit_test(test_a_job_of_a_blocking_one_cannot_either),
        cmocka_unit_test(test_a_job_gets_pipelines),
        cmocka_unit_test(test_blocking),
        cmocka_unit_test(test_blocking_with_an_error),
        cmocka_unit_test(test_blocking_without_memory_to_sleep),
        cmocka_unit_test(test_disabled),
        cmocka_unit_test(test_disabled_compiles_nothing_else),
        cmocka_unit_test(test_disabled_and_never_asked),
        cmocka_unit_test(test_disabled_with_a_time_limit),
        cmocka_unit_test(test_listed_twice_is_compiled_once),
        cmocka_unit_test(test_libraries_as_objects),
        cmocka_unit_test(test_a_pipeline_outlives_the_warmup_when_retained),
        cmocka_unit_test(test_three_pipelines_compile_at_once_and_no_more),
        cmocka_unit_test(test_three_pipelines_of_a_disabled_one_compile_at_once_and_no_more),
        cmocka_unit_test(test_its_functions_are_user_initiated),
        cmocka_unit_test(test_a_job_gets_every_pipeline),
        cmocka_unit_test(test_errors_name_the_function),
        cmocka_unit_test(test_errors_name_the_step),
        cmocka_unit_test(test_a_wait_for_all_tells_of_a_pipeline_that_failed),
        cmocka_unit_test(test_a_queue_of_metal4_warms_nothing_up),
        cmocka_unit_test(test_a_device_that_does_not_warm_up),
        cmocka_unit_test(test_no_event_to_be_had),
        cmocka_unit_test(test_no_event_to_be_left),
        cmocka_unit_test(test_memory_fails_at_every_step),
        cmocka_unit_test(test_creations_fail_at_every_step),
        cmocka_unit_test(test_a_crowd_asks),
        cmocka_unit_test(test_a_crowd_asks_a_disabled_one),
        cmocka_unit_test(test_one_of_many_askers_begins_a_pipeline),
        cmocka_unit_test(test_askers_join_the_compilation_in_flight),
        cmocka_unit_test(test_a_pipeline_does_not_wait_for_others),
        cmocka_unit_test(test_hooks_are_for_the_programs_threads),
        cmocka_unit_test(test_a_warmup_waits_for_a_sweep_without_the_programs_hooks),
        cmocka_unit_test(test_destroy_at_once),
        cmocka_unit_test(test_destroy_while_metal_compiles),
        cmocka_unit_test(test_destroy_while_the_device_is_warmed_up),
        cmocka_unit_test(test_destroy_before_its_functions_have_begun),
        cmocka_unit_test(test_destroy_ends_waits),
        cmocka_unit_test(test_destroy_waits_for_waiters),
        cmocka_unit_test(test_a_wait_is_told_of_destroy_where_the_device_was_left_out),
        cmocka_unit_test(test_destroy_during_a_job),
        cmocka_unit_test(test_a_job_that_asks_during_destroy_is_told),
        cmocka_unit_test(test_the_device_cannot_go_first),
        cmocka_unit_test(test_in_a_callback),
        cmocka_unit_test(test_blocking_in_a_callback),
        cmocka_unit_test(test_blocking_and_disabled_in_a_callback),
        cmocka_unit_test(test_with_a_queue_of_the_programs),
        cmocka_unit_test(test_with_a_queue_of_its_own),
        cmocka_unit_test(test_with_a_queue_that_is_held),
        cmocka_unit_test(test_with_a_queue_that_is_full),
        cmocka_unit_test(test_a_lost_device),
        cmocka_unit_test(test_a_device_lost_meanwhile),
        cmocka_unit_test(test_a_device_lost_to_a_blocking_one),
        cmocka_unit_test(test_a_device_that_the_warmup_finds_lost),
        cmocka_unit_test(test_a_command_buffer_that_a_lost_device_never_ends),
        cmocka_unit_test(test_nothing_stays_open_on_a_lost_device),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_no_utf8),
        cmocka_unit_test(test_traced),
        cmocka_unit_test(test_reported),
        cmocka_unit_test(test_two_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
