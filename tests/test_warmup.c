/* test_warmup.c - pipelines that are compiled in advance

   Metal compiles where a message tells it to. A door stands before this message: a thread that comes to it is noted,
   and passes when the test lets it. So the test knows what is done, what is being done, and what has not begun.

   Contents
     >>door       the door, and calls on threads of their own
     >>compile    what is compiled, where, in which order, how often
     >>share      many threads, one compilation
     >>fail       what does not compile, and what is told of it
     >>ask        arguments, no memory, no objects
     >>destroy    a warm-up that goes in the middle, the device's end
     >>beside     callbacks, hooks, work on queues, other warm-ups, a lost device */
#include "kit.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

/* ------------------------------------------------------------------------------------------------------- >>door -- */

#define LIBRARY "newLibraryWithSource:options:error:"
#define FUNCTION "newFunctionWithName:"
#define PIPELINE "newComputePipelineStateWithFunction:error:"
#define EVERYONE UINT_MAX
#define DOOR_MOST 64u

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const char *selector;
    unsigned come, through; /* how many have come to it, and how many may go on */
    unsigned free_from;     /* from this one on, counted from 0, nobody stops */
    pthread_t who[DOOR_MOST];
    void *object[DOOR_MOST]; /* that got the message */
    unsigned quality[DOOR_MOST]; /* of service, of the dispatch queue on whose thread it was sent; 0: none */
} door = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void come_to_door(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, door.selector) != 0) return;
    pthread_mutex_lock(&door.lock);
    unsigned n = door.come++;
    if (n < DOOR_MOST) {
        door.who[n] = pthread_self();
        door.object[n] = object;
        door.quality[n] = softmetal_dispatch_qos(NULL);
    }
    pthread_cond_broadcast(&door.changed);
    while (door.through <= n && n < door.free_from) pthread_cond_wait(&door.changed, &door.lock);
    pthread_mutex_unlock(&door.lock);
}

/* The first `through` that come go on at once. */
static void set_door(const char *selector, unsigned through)
{
    softmetal_set_message_hook(NULL, NULL);
    pthread_mutex_lock(&door.lock);
    door.selector = selector;
    door.come = 0;
    door.through = through;
    door.free_from = EVERYONE;
    pthread_mutex_unlock(&door.lock);
    softmetal_set_message_hook(come_to_door, NULL);
}

/* Those that come from now on do not stop. */
static void hold_no_more(void)
{
    pthread_mutex_lock(&door.lock);
    door.free_from = door.come;
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

static int tear_down(void **state)
{
    let_through(EVERYONE);
    return stage_tear_down(state);
}

#define with_door(test) with_door_and(test, .no_queue = true)
#define with_door_and(test, ...) KIT_TEST(test, DOOR(test, __VA_ARGS__))
#define also_with_door_and(test, ...) KIT_ADD(test##_also, DOOR(test, __VA_ARGS__))
#define DOOR(test, ...) {#test, test, stage_set_up, tear_down, (void *)&(stage_desc){__VA_ARGS__}}

static const char text[] = "kernel void a() {} kernel void b() {} kernel void c() {} kernel void d() {}";
static const gpusync_pipeline_desc four[] = {
    {text, NULL, "a"}, {text, NULL, "b"}, {text, NULL, "c"}, {text, NULL, "d"}};

static gpusync_warmup *start_with(stage *s, const gpusync_pipeline_desc *pipelines, size_t count, bool disabled)
{
    const gpusync_warmup_desc desc = {pipelines, count, disabled};
    gpusync_warmup *warmup = NULL;
    assert_ok(gpusync_warmup_start(s->device, &desc, &warmup));
    assert_non_null(warmup);
    return warmup;
}

static gpusync_warmup *start_four(stage *s)
{
    return start_with(s, four, LENGTH(four), false);
}

static gpusync_warmup *start_disabled(stage *s)
{
    return start_with(s, four, LENGTH(four), true);
}

/* Waits for all of them, which compile well. */
static void await_all(gpusync_warmup *warmup, size_t count)
{
    size_t done = 99, total = 99;
    assert_ok(gpusync_warmup_wait(warmup, SECONDS(60), &done, &total));
    assert_int_equal(done, count);
    assert_int_equal(total, count);
}

static void *pipeline_of(gpusync_warmup *warmup, size_t i)
{
    void *made = NULL;
    assert_ok(gpusync_warmup_pipeline(warmup, i, GPUSYNC_FOREVER, &made, NULL));
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
    return gpusync_warmup_pipeline(a->warmup, a->i, a->limit, &a->made, &a->error);
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

static void *new_library(stage *s, const char *source)
{
    void *string = metal_string_new(source), *error = NULL;
    void *library = METAL__AS(void *, void *, void *, void **)(s->metal_device, metal__sel(LIBRARY), string, NULL,
                                                               &error);
    metal_release(string);
    assert_non_null(library);
    return library;
}

/* ---------------------------------------------------------------------------------------------------- >>compile -- */

/* The game lists first what it draws first. A scheduler gives the threads that compile what the program's main thread
   waits for the processors that they need. */
with_door(test_pipelines_are_compiled_in_their_order_on_a_queue_of_quality_user_initiated)
{
    static const char *const names[] = {"d", "a", "c", "b"};
    const unsigned user_initiated = 0x19; /* <sys/qos.h> */
    gpusync_pipeline_desc pipelines[4];
    uint64_t before = softmetal_dispatches();
    for (unsigned i = 0; i < 4; i++) pipelines[i] = (gpusync_pipeline_desc){NULL, new_library(s, text), names[i]};
    set_door(FUNCTION, EVERYONE);
    gpusync_warmup *warmup = start_with(s, pipelines, 4, false);
    await_all(warmup, 4);
    assert_int_equal(have_come(), 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_ptr_equal(door.object[i], pipelines[i].library);
        assert_int_equal(door.quality[i], user_initiated);
        assert_true(pthread_equal(door.who[i], door.who[0]));
        assert_false(pthread_equal(door.who[i], pthread_self()));
    }
    assert_int_equal(softmetal_dispatches() - before, 1);
    assert_ok(gpusync_warmup_destroy(warmup));
    for (unsigned i = 0; i < 4; i++) metal_release(pipelines[i].library);
}

/* What the renderer needs now does not stand in line behind what it may need later. */
with_door(test_one_that_is_needed_first_is_compiled_in_the_call_while_another_compiles)
{
    ask late;
    set_door(PIPELINE, 0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    assert_progress(warmup, 0, 4);
    ask_for(&late, warmup, 2, 1);
    await_come(2);
    assert_false(pthread_equal(door.who[0], door.who[1]));
    let_through(2);
    assert_ok(job_end(&late.j)); /* its limit of a nanosecond is none of the compilation */
    let_through(EVERYONE);
    await_all(warmup, 4);
    void *second = pipeline_of(warmup, 2);
    assert_ptr_equal(late.made, second);
    assert_int_equal(softmetal_compiles(), 4);
    assert_int_equal(softmetal_message_count(PIPELINE), 4);
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* A loading screen draws a bar, each frame, and never sleeps for it. */
with_door(test_a_wait_without_time_reads_the_progress)
{
    set_door(LIBRARY, 0);
    gpusync_warmup *warmup = start_four(s);
    for (unsigned i = 0; i < 4; i++) {
        await_come(i + 1);
        assert_progress(warmup, i, 4);
        assert_result(gpusync_warmup_wait(warmup, 0, NULL, NULL), GPUSYNC_TIMEOUT);
        for (unsigned k = 0; k < 4; k++) {
            void *made = &made;
            gpusync_error error = {.code = 77};
            assert_result(gpusync_warmup_pipeline(warmup, k, 0, &made, &error), k < i ? GPUSYNC_OK : GPUSYNC_TIMEOUT);
            assert_int_equal(made != NULL, k < i);
            assert_int_equal(error.code, 77); /* no failure, no error */
        }
        let_through(i + 1);
    }
    await_all(warmup, 4);
    assert_progress(warmup, 4, 4);
    assert_int_equal(kit_now().log_lines, 0); /* nothing was waited for */
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* A developer switches the warm-up off, to measure without it. What is never asked for is never compiled. */
with_door(test_a_disabled_warm_up_compiles_what_is_asked_for_alone)
{
    uint64_t before = softmetal_dispatches();
    gpusync_warmup *warmup = start_disabled(s);
    void *made = NULL;
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(softmetal_dispatches(), before);
    assert_int_equal(softmetal_message_count(LIBRARY), 0);
    set_door(PIPELINE, EVERYONE);
    assert_result(gpusync_warmup_pipeline(warmup, 3, 0, &made, NULL), GPUSYNC_TIMEOUT);
    pipeline_of(warmup, 3);
    pipeline_of(warmup, 1);
    pipeline_of(warmup, 3);
    assert_int_equal(have_come(), 2);
    assert_true(pthread_equal(door.who[0], pthread_self()));
    assert_progress(warmup, 0, 0);
    assert_ok(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL));
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_int_equal(softmetal_compiles(), 2);
    assert_ok(gpusync_warmup_destroy(start_disabled(s))); /* never asked */
    assert_int_equal(softmetal_compiles(), 2);
}

/* The program builds its list on the stack, and frees its texts. */
with_door(test_what_is_listed_is_copied)
{
    char source[] = "kernel void copied() {}", name[] = "copied";
    gpusync_pipeline_desc pipelines[] = {{source, NULL, name}, {NULL, new_library(s, source), name}};
    gpusync_warmup *warmup = start_with(s, pipelines, 2, true);
    memset(source, 'x', sizeof source - 1);
    memset(name, 'x', sizeof name - 1);
    metal_release(pipelines[1].library);
    memset(pipelines, 0xEE, sizeof pipelines);
    pipeline_of(warmup, 0);
    pipeline_of(warmup, 1);
    assert_int_equal(softmetal_message_count(LIBRARY), 2); /* the test's own, and that of the text */
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_int_equal(softmetal_live("library"), 0); /* it was a disabled one: no other thread has it */
    assert_int_equal(softmetal_live("function"), 0);
    assert_int_equal(softmetal_live("pipeline"), 0);
}

/* Six variants of one text: the program makes its library once. */
with_door(test_a_library_is_not_compiled_again)
{
    void *library = new_library(s, text);
    const gpusync_pipeline_desc pipelines[] = {{NULL, library, "a"}, {NULL, library, "b"}, {NULL, library, "c"}};
    gpusync_warmup *warmup = start_with(s, pipelines, 3, false);
    await_all(warmup, 3);
    assert_int_equal(softmetal_message_count(LIBRARY), 1);
    assert_int_equal(softmetal_retain_count(library), 4);
    assert_int_equal(softmetal_live("function"), 0); /* a pipeline needs it no more */
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(softmetal_retain_count(library), 1);
    metal_release(library);
}

/* The renderer dispatches what it was given, and keeps one when the level, and its warm-up, go. */
with_door_and(test_a_pipeline_works_and_outlives_the_warm_up_when_retained, .queues = 1)
{
    const gpusync_pipeline_desc pipelines[] = {{"kernel void mark()", NULL, "mark"}};
    const metal_size one = {1, 1, 1};
    const uint32_t number = 7;
    gpusync_warmup *warmup = start_with(s, pipelines, 1, false);
    void *pipeline = metal_retain(pipeline_of(warmup, 0)), *buffer, *compute;
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_true(softmetal_dispatched(SECONDS(60))); /* the thread that compiled may leave it last */
    assert_int_equal(softmetal_retain_count(pipeline), 1);
    buffer = new_buffer(s->q[0]);
    compute = metal_compute_begin(buffer);
    metal_set_pipeline(compute, pipeline);
    metal_set_bytes(compute, &number, sizeof number, 0);
    metal_dispatch(compute, one, one);
    metal_end(compute);
    commit(s->q[0], buffer);
    finish_all(s);
    assert_marks(7);
    metal_release(pipeline);
}

with_door(test_a_list_without_pipelines_is_over_at_once)
{
    for (int disabled = 0; disabled < 2; disabled++) {
        gpusync_warmup *warmup = start_with(s, disabled ? four : NULL, 0, disabled);
        void *made = &made;
        assert_progress(warmup, 0, 0);
        await_all(warmup, 0);
        assert_result(gpusync_warmup_pipeline(warmup, 0, 0, &made, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_null(made);
        assert_ok(gpusync_warmup_destroy(warmup));
    }
}

/* ------------------------------------------------------------------------------------------------------ >>share -- */

#define CROWD 8u

static struct {
    gate begin;
    gpusync_warmup *warmup;
    void *made[CROWD][LENGTH(four)];
} crowd;

/* Each thread in another order: at first with no time to join a compilation, then with all the time that it takes. */
static void *ask_in_a_crowd(void *argument)
{
    unsigned who = *(unsigned *)argument;
    gate_wait(&crowd.begin);
    for (unsigned n = 0; n < 2 * LENGTH(four); n++) {
        unsigned i = (n * (who % 2 ? 1 : 3) + who) % LENGTH(four);
        void *made = NULL;
        size_t done = 0, total = 0;
        gpusync_result result = gpusync_warmup_pipeline(crowd.warmup, i, n % 2 ? GPUSYNC_FOREVER : 1, &made, NULL);
        must(result == (made ? GPUSYNC_OK : GPUSYNC_TIMEOUT) && (n % 2 == 0 || made), "a pipeline is there with OK");
        result = gpusync_warmup_wait(crowd.warmup, 0, &done, &total);
        must(result == (done < total ? GPUSYNC_TIMEOUT : GPUSYNC_OK), "the progress");
    }
    for (unsigned i = 0; i < LENGTH(four); i++)
        must(!gpusync_warmup_pipeline(crowd.warmup, i, GPUSYNC_FOREVER, &crowd.made[who][i], NULL), "a pipeline");
    must(!gpusync_warmup_wait(crowd.warmup, GPUSYNC_FOREVER, NULL, NULL), "all of them");
    return NULL;
}

/* Eight workers of a job system come to the shaders of a level together. */
with_door(test_a_crowd_asks_and_each_pipeline_is_compiled_once)
{
    static unsigned numbers[CROWD];
    for (unsigned round = 0; round < (SLOW > 1 ? 4 : 20); round++) {
        pthread_t threads[CROWD];
        uint64_t before = softmetal_compiles(), messages = softmetal_message_count(PIPELINE);
        gate_init(&crowd.begin, CROWD);
        crowd.warmup = start_with(s, four, LENGTH(four), round % 2);
        for (unsigned i = 0; i < CROWD; i++) {
            numbers[i] = i;
            threads[i] = start(ask_in_a_crowd, &numbers[i]);
        }
        for (unsigned i = 0; i < CROWD; i++) join(threads[i]);
        for (unsigned i = 0; i < CROWD * LENGTH(four); i++)
            assert_ptr_equal(crowd.made[i / 4][i % 4], crowd.made[0][i % 4]);
        assert_int_equal(softmetal_compiles() - before, LENGTH(four));
        assert_int_equal(softmetal_message_count(PIPELINE) - messages, LENGTH(four));
        assert_ok(gpusync_warmup_destroy(crowd.warmup));
        gate_destroy(&crowd.begin);
    }
}

/* For ThreadSanitizer: a frame asks for its shaders without time, and so without a lock, while the warm-up begins with
   them. */
on_stage(test_a_question_without_time_meets_a_compilation_that_begins)
{
    enum { MANY = 100 };
    gpusync_pipeline_desc pipelines[MANY];
    for (unsigned i = 0; i < MANY; i++) pipelines[i] = four[i % 4];
    for (unsigned round = 0; round < 20; round++) {
        gpusync_warmup *warmup = start_with(s, pipelines, MANY, false);
        for (unsigned i = 0; i < MANY; i++) {
            void *made = NULL;
            while (gpusync_warmup_pipeline(warmup, i, 0, &made, NULL) == GPUSYNC_TIMEOUT) {}
            assert_non_null(made);
        }
        assert_ok(gpusync_warmup_destroy(warmup));
    }
}

/* Two threads draw with the same shader while it is compiled: neither compiles it again. One has no time to lose. */
with_door(test_a_thread_joins_a_compilation_and_its_limit_passes_or_not)
{
    static const struct {
        size_t i;
        uint64_t limit;
        bool in_time;
    } rows[] = {
        {0, 1, false}, /* one of two is of a warm-up that is disabled */
        {0, MS(2), false},
        {0, GPUSYNC_FOREVER, true},
        {0, GPUSYNC_FOREVER - 1, true},
        {ALL_OF_THEM, 1, false},
        {ALL_OF_THEM, MS(2), false},
        {ALL_OF_THEM, GPUSYNC_FOREVER - 1, true},
        {ALL_OF_THEM, GPUSYNC_FOREVER, true},
    };
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        unsigned lines = kit_now().log_lines;
        bool all = rows[i].i == ALL_OF_THEM, disabled = i % 2 && !all;
        ask first, second;
        set_door(PIPELINE, 0);
        gpusync_warmup *warmup = start_with(s, four, 1, disabled);
        if (disabled) ask_for(&first, warmup, 0, GPUSYNC_FOREVER);
        await_come(1);
        ask_for(&second, warmup, rows[i].i, rows[i].limit);
        if (rows[i].in_time) {
            await_parked(1);
            let_through(EVERYONE);
            assert_ok(job_end(&second.j));
            assert_int_equal(kit_now().log_lines, lines);
        } else {
            assert_result(job_end(&second.j), GPUSYNC_TIMEOUT);
            assert_null(second.made);
            assert_int_equal(second.error.result, 0);
            if (rows[i].limit > 1) assert_int_equal(kit_now().log_lines, lines + 1);
            if (rows[i].limit > 1) assert_true(log_has(GPUSYNC_LOG_WARNING, "warm-up"));
            let_through(EVERYONE);
        }
        if (disabled) assert_ok(job_end(&first.j));
        if (all) assert_int_equal(second.done, rows[i].in_time);
        else if (rows[i].in_time) assert_ptr_equal(second.made, pipeline_of(warmup, 0));
        assert_int_equal(have_come(), 1);
        assert_ok(gpusync_warmup_destroy(warmup));
    }
}

/* The renderer waits for one pipeline: that others are compiled meanwhile is no news, and gives it no more time. */
with_door(test_a_wait_for_one_goes_on_while_others_are_compiled)
{
    ask first, short_of_time, all;
    set_door(LIBRARY, 0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    ask_for(&first, warmup, 0, GPUSYNC_FOREVER);
    ask_for(&all, warmup, ALL_OF_THEM, GPUSYNC_FOREVER);
    await_parked(2);
    hold_no_more();
    for (unsigned i = 1; i < 4; i++) {
        pipeline_of(warmup, i); /* in this thread */
        await_parked(2);        /* both: it slept on, or sleeps again */
        assert_false(job_is_over(&first.j));
        assert_false(job_is_over(&all.j));
        assert_progress(warmup, i, 4);
    }
    ask_for(&short_of_time, warmup, 0, MS(1));
    assert_result(job_end(&short_of_time.j), GPUSYNC_TIMEOUT);
    let_through(EVERYONE);
    assert_ok(job_end(&first.j));
    assert_ok(job_end(&all.j));
    assert_int_equal(all.done, 4);
    assert_ptr_equal(first.made, pipeline_of(warmup, 0));
    assert_int_equal(softmetal_compiles(), 4);
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* ... and that others are not compiled yet is no reason to wait. */
with_door(test_a_wait_for_one_ends_with_it)
{
    ask first, all;
    set_door(PIPELINE, 0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    ask_for(&first, warmup, 0, GPUSYNC_FOREVER);
    ask_for(&all, warmup, ALL_OF_THEM, GPUSYNC_FOREVER);
    await_parked(2);
    let_through(1);
    assert_ok(job_end(&first.j));
    await_come(2);
    await_parked(1);
    assert_false(job_is_over(&all.j));
    assert_progress(warmup, 1, 4);
    let_through(EVERYONE);
    assert_ok(job_end(&all.j));
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* A scheduler whose park returns when it is told to, and not at a deadline, unless that is a moment away, as where a
   thread outlasts another one. So what wakes a wait is a wake-up alone. */
static unsigned deaf_parks;

static void deaf_park(void *user, gpusync_waiter *waiter, uint64_t deadline)
{
    uint64_t now = gpusync_now_ns(), limit = now + SECONDS(60);
    bool brief = deadline < now + MS(5);
    if (!brief) COUNT(&deaf_parks);
    while (!GET(&waiter->scheduler_data[0]) && !(brief && gpusync_now_ns() >= deadline)) {
        must(gpusync_now_ns() < limit, "nobody wakes a thread that waits for a warm-up");
        sched_yield();
    }
    PUT(&waiter->scheduler_data[0], NULL);
}

static void leave_permit(void *user, gpusync_waiter *waiter)
{
    PUT(&waiter->scheduler_data[0], (void *)waiter);
}

static const gpusync_hooks deaf_hooks = {NULL, deaf_park, leave_permit, NULL};

with_door_and(test_each_that_waits_is_woken, .no_queue = true, .device.hooks = &deaf_hooks)
{
    ask asks[4];
    job gone = {0};
    PUT(&deaf_parks, 0);
    set_door(PIPELINE, 0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    for (unsigned i = 0; i < 4; i++) ask_for(&asks[i], warmup, i % 2 ? ALL_OF_THEM : 0, GPUSYNC_FOREVER);
    while (GET(&deaf_parks) < 4) sched_yield();
    let_through(1);
    assert_ok(job_end(&asks[0].j));
    assert_ok(job_end(&asks[2].j));
    await_come(2);
    PUT(&deaf_parks, 0);
    job_call(&gone, destroy_it, warmup);
    assert_result(job_end(&asks[1].j), GPUSYNC_ERROR_DESTROYED);
    assert_result(job_end(&asks[3].j), GPUSYNC_ERROR_DESTROYED);
    while (GET(&deaf_parks) < 1) sched_yield();
    let_through(EVERYONE);
    assert_ok(job_end(&gone));
}

/* Others are compiled each millisecond while a thread waits for one, for a tenth of a second at most. */
static struct {
    gpusync_warmup *warmup; /* NULL: nothing is compiled any more */
    size_t compiled; /* in park */
} busy;

static void compile_and_park(void *user, gpusync_waiter *waiter, uint64_t deadline)
{
    uint64_t until = gpusync_now_ns() + MS(1);
    void *made = NULL;
    if (busy.warmup) busy.compiled++;
    must(busy.compiled < 500, "the limit begins anew with each pipeline");
    if (busy.warmup)
        must(!gpusync_warmup_pipeline(busy.warmup, busy.compiled, 1, &made, NULL) && made, "it compiles here");
    while (gpusync_now_ns() < until) sched_yield();
    PUT(&waiter->scheduler_data[0], NULL);
}

static const gpusync_hooks busy_hooks = {NULL, compile_and_park, leave_permit, NULL};

with_door_and(test_the_limit_is_that_of_the_call_whatever_is_compiled_meanwhile, .no_queue = true,
              .device.hooks = &busy_hooks)
{
    enum { MANY = 500 };
    static gpusync_pipeline_desc pipelines[MANY];
    ask first;
    void *made = NULL;
    memset(&busy, 0, sizeof busy);
    for (unsigned i = 0; i < MANY; i++) pipelines[i] = four[i % 4];
    set_door(LIBRARY, 0);
    gpusync_warmup *warmup = start_with(s, pipelines, MANY, true);
    ask_for(&first, warmup, 0, GPUSYNC_FOREVER);
    await_come(1);
    hold_no_more();
    busy.warmup = warmup;
    assert_result(gpusync_warmup_pipeline(warmup, 0, MS(100), &made, NULL), GPUSYNC_TIMEOUT);
    busy.warmup = NULL;
    assert_true(busy.compiled > 0);
    let_through(EVERYONE);
    assert_ok(job_end(&first.j));
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* ------------------------------------------------------------------------------------------------------- >>fail -- */

static void assert_nothing_else(const gpusync_error *error)
{
    assert_int_equal(error->result, GPUSYNC_ERROR_COMPILE);
    assert_int_equal(error->failure, GPUSYNC_FAILURE_OTHER);
    assert_int_equal(error->ticket, 0);
    assert_int_equal(error->origin, 0);
    assert_int_equal(error->dropped, 0);
    assert_false(error->inherited);
    assert_false(error->ran);
    assert_false(error->transient);
    assert_string_equal(error->queue_label, "");
    assert_string_equal(error->encoder, "");
}

/* A shader's author gets Metal's text, and the name of the function, which is all that tells twenty shaders apart. The
   others are compiled all the same, and what has failed is not tried again. */
with_door(test_what_does_not_compile_tells_metals_text)
{
    static const struct {
        const char *what, *source;
        bool library;
        const char *function;
        unsigned creation; /* that gives nil, of those of the warm-up */
        const char *domain, *message;
        long code;
        unsigned compiles; /* that Metal was told of */
    } rows[] = {
        {"the text", "#error", false, "a", 0, "MTLLibraryErrorDomain", "program_source: error: #error", 3, 0},
        {"the name", text, false, "no_such", 0, "", "the library has no function of this name", 0, 0},
        {"an empty text", "", false, "a", 0, "", "the library has no function of this name", 0, 0},
        {"the function of a library", text, true, "a", 1, "", "the library has no function of this name", 0, 0},
        {"the pipeline", text, false, "a", 3, "SoftCompilerErrorDomain", "Compiler encountered an internal error", 2,
         1},
    };
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        void *library = rows[i].library ? new_library(s, rows[i].source) : NULL, *made;
        const char *source = library ? NULL : rows[i].source;
        const gpusync_pipeline_desc pipelines[] = {{source, library, rows[i].function}, {text, NULL, "b"}};
        gpusync_error error[2];
        print_message("%s\n", rows[i].what);
        for (int disabled = 0; disabled < 2; disabled++) {
            uint64_t before = softmetal_message_count(PIPELINE);
            softmetal_fail_creation(rows[i].creation, false);
            gpusync_warmup *warmup = start_with(s, pipelines, 2, disabled);
            gpusync_result all = gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL); /* one after the other */
            assert_result(all, disabled ? GPUSYNC_OK : GPUSYNC_ERROR_COMPILE);
            for (int again = 0; again < 2; again++) {
                memset(&error[again], 0xAA, sizeof error[again]);
                made = &made;
                assert_result(gpusync_warmup_pipeline(warmup, 0, GPUSYNC_FOREVER, &made, &error[again]),
                              GPUSYNC_ERROR_COMPILE);
                assert_null(made);
                assert_result(gpusync_warmup_pipeline(warmup, 0, 0, &made, NULL), GPUSYNC_ERROR_COMPILE);
            }
            assert_memory_equal(&error[0], &error[1], sizeof error[0]);
            assert_nothing_else(&error[0]);
            assert_string_equal(error[0].domain, rows[i].domain);
            assert_string_equal(error[0].message, rows[i].message);
            assert_int_equal(error[0].code, rows[i].code);
            assert_string_equal(error[0].label, rows[i].function);
            pipeline_of(warmup, 1);
            assert_int_equal(softmetal_message_count(PIPELINE) - before, rows[i].compiles + 1);
            assert_ok(gpusync_warmup_destroy(warmup));
        }
        metal_release(library);
    }
    softmetal_fail_creation(0, false);
    assert_int_equal(kit_now().log_lines, 0);
}

/* Metal gives neither a library nor an error: the name of the function is not to blame. */
on_stage(test_no_library_and_no_error_is_not_told_as_a_missing_function)
{
    gpusync_warmup *warmup = start_disabled(s);
    gpusync_error error;
    void *made = NULL;
    softmetal_fail_creation(1, false);
    assert_result(gpusync_warmup_pipeline(warmup, 0, 1, &made, &error), GPUSYNC_ERROR_COMPILE);
    assert_null(strstr(error.message, "no function"));
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* The first of the list fails while the others wait for their turn: the loading screen goes on to the end. */
with_door(test_a_failure_is_told_when_all_are_done)
{
    for (unsigned bad = 0; bad < 3; bad++) {
        gpusync_pipeline_desc pipelines[] = {{text, NULL, "a"}, {text, NULL, "b"}, {text, NULL, "c"}};
        ask all;
        pipelines[bad].function = "no_such";
        set_door(FUNCTION, 0);
        gpusync_warmup *warmup = start_with(s, pipelines, 3, false);
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
        assert_ok(gpusync_warmup_destroy(warmup));
    }
}

/* Names come from files of users. */
with_door(test_hostile_texts_are_told_as_utf8_that_ends)
{
    char wide[401];
    struct {
        const char *source, *function, *label;
    } rows[] = {
        {text, "caf\xE9", "caf\xC3\xA9"},
        {text, "%s%n\n", "%s%n\n"},
        {"/* \xF0\x9F */ #error", "bad", "bad"},
        {text, wide, NULL},
    };
    const gpusync_pipeline_desc good[] = {{"/* caf\xE9 */ kernel void good() {}", NULL, "good"}};
    gpusync_warmup *warmup = start_with(s, good, 1, false);
    pipeline_of(warmup, 0);
    assert_ok(gpusync_warmup_destroy(warmup));
    for (unsigned i = 0; i < sizeof wide - 1; i++) wide[i] = (char)(i % 2 ? 0xA9 : 0xC3);
    wide[sizeof wide - 1] = '\0';
    for (unsigned i = 0; i < LENGTH(rows); i++) {
        const gpusync_pipeline_desc pipelines[] = {{rows[i].source, NULL, rows[i].function}};
        gpusync_error error;
        void *made = NULL;
        warmup = start_with(s, pipelines, 1, i % 2);
        assert_result(gpusync_warmup_pipeline(warmup, 0, GPUSYNC_FOREVER, &made, &error), GPUSYNC_ERROR_COMPILE);
        assert_non_null(memchr(error.label, 0, sizeof error.label));
        assert_non_null(memchr(error.message, 0, sizeof error.message));
        if (rows[i].label) assert_string_equal(error.label, rows[i].label);
        else assert_memory_equal(error.label, wide, sizeof error.label - 2);
        if (!rows[i].label) assert_int_equal(strlen(error.label), sizeof error.label - 2);
        assert_ok(gpusync_warmup_destroy(warmup));
    }
}

/* -------------------------------------------------------------------------------------------------------- >>ask -- */

with_door(test_arguments_are_checked)
{
    void *library = new_library(s, text);
    const gpusync_pipeline_desc good = {text, NULL, "a"};
    const gpusync_pipeline_desc bad[] = {
        {NULL, NULL, "a"}, /* neither a text nor a library */
        {text, library, "a"},
        {text, NULL, NULL}, /* no function */
        {NULL, library, NULL},
        {NULL, s->metal_device, "a"}, /* no library */
    };
    kit_counts before = kit_now();
    gpusync_warmup *warmup;
    gpusync_warmup_desc descs[4 * LENGTH(bad) + 2] = {{NULL, 1, false}, {NULL, SIZE_MAX, false}};
    const gpusync_warmup_desc fine = {&good, 1, false};
    gpusync_pipeline_desc two[LENGTH(bad)][2];
    unsigned count = 2;
    void *made = &made;
    for (unsigned i = 0; i < LENGTH(bad); i++) {
        two[i][0] = good;
        two[i][1] = bad[i];
        descs[count++] = (gpusync_warmup_desc){two[i], 2, false};
        descs[count++] = (gpusync_warmup_desc){two[i], 2, true};
        descs[count++] = (gpusync_warmup_desc){&two[i][1], 1, true};
        descs[count++] = (gpusync_warmup_desc){&two[i][1], SIZE_MAX, false};
    }
    for (unsigned i = 0; i < count; i++) {
        warmup = (gpusync_warmup *)&before;
        assert_result(gpusync_warmup_start(s->device, &descs[i], &warmup), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_null(warmup);
    }
    for (unsigned i = 0; i < 2; i++) {
        warmup = (gpusync_warmup *)&before;
        assert_result(gpusync_warmup_start(i ? s->device : NULL, i ? NULL : &fine, &warmup),
                      GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_null(warmup);
    }
    assert_result(gpusync_warmup_start(s->device, &fine, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(kit_now().allocations, before.allocations);
    assert_result(gpusync_warmup_wait(NULL, 0, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_warmup_pipeline(NULL, 0, 0, &made, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(made);
    assert_ok(gpusync_warmup_destroy(NULL));
    metal_release(library);
}

with_door(test_a_number_that_is_not_of_the_list_is_refused)
{
    static const size_t numbers[] = {4, 5, SIZE_MAX, SIZE_MAX / 2 + 1};
    gpusync_warmup *warmup = start_disabled(s);
    for (unsigned i = 0; i < LENGTH(numbers); i++) {
        void *made = &made;
        gpusync_error error = {.code = 77};
        assert_result(gpusync_warmup_pipeline(warmup, numbers[i], GPUSYNC_FOREVER, &made, &error),
                      GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_null(made);
        assert_int_equal(error.code, 77);
    }
    assert_result(gpusync_warmup_pipeline(warmup, 0, GPUSYNC_FOREVER, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(softmetal_compiles(), 0);
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* A tool runs with little memory. Each allocation of the start fails in turn; behind the start there is none. */
with_door(test_no_memory_leaves_nothing)
{
    void *library = new_library(s, text);
    const gpusync_pipeline_desc pipelines[] = {{NULL, library, "a"}, {text, NULL, "none"}, {text, NULL, "b"}};
    for (int disabled = 0; disabled < 2; disabled++) {
        const gpusync_warmup_desc desc = {pipelines, 3, disabled != 0};
        long live = softmetal_live(NULL), blocks = kit_now().blocks, n = 1;
        gpusync_warmup *warmup = NULL;
        for (;; n++) {
            long refusals = kit_now().refusals;
            warmup = (gpusync_warmup *)&n;
            memory_fail(n, false);
            gpusync_result result = gpusync_warmup_start(s->device, &desc, &warmup);
            if (kit_now().refusals == refusals) {
                assert_ok(result);
                break;
            }
            assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY);
            assert_null(warmup);
            assert_int_equal(softmetal_live(NULL), live);
            assert_int_equal(kit_now().blocks, blocks);
            assert_int_equal(softmetal_retain_count(library), 1);
        }
        assert_true(n > 2);
        long refused = kit_now().refusals;
        memory_fail(1, true);
        pipeline_of(warmup, 2);
        pipeline_of(warmup, 0);
        assert_result(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL),
                      disabled ? GPUSYNC_OK : GPUSYNC_ERROR_COMPILE);
        assert_ok(gpusync_warmup_destroy(warmup));
        assert_true(softmetal_dispatched(SECONDS(60)));
        assert_int_equal(kit_now().refusals, refused);
        memory_fail(0, false);
        assert_int_equal(softmetal_live(NULL), live);
        assert_int_equal(kit_now().blocks, blocks);
    }
    metal_release(library);
}

/* Metal's compiler fails at each of its steps: the pipeline has an error then, and the others have none. */
with_door(test_no_object_leaves_nothing)
{
    enum { STEPS = 5 }; /* a library's function and pipeline; a text's library, function and pipeline */
    void *library = new_library(s, text);
    const gpusync_pipeline_desc pipelines[] = {{NULL, library, "a"}, {text, NULL, "b"}};
    for (unsigned n = 1; n <= STEPS + 1; n++) {
        for (int persistent = 0; persistent < 2; persistent++) {
            softmetal_fail_creation(n, persistent);
            gpusync_warmup *warmup = start_with(s, pipelines, 2, false);
            gpusync_result first, second, all = gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL);
            gpusync_error error = {.result = GPUSYNC_OK};
            void *made = NULL;
            bool first_fails = n <= 2, second_fails = n <= STEPS && (n > 2 || persistent);
            first = gpusync_warmup_pipeline(warmup, 0, 0, &made, NULL);
            assert_int_equal(made == NULL, first_fails);
            second = gpusync_warmup_pipeline(warmup, 1, 0, &made, &error);
            assert_int_equal(made == NULL, second_fails);
            assert_result(first, first_fails ? GPUSYNC_ERROR_COMPILE : GPUSYNC_OK);
            assert_result(second, second_fails ? GPUSYNC_ERROR_COMPILE : GPUSYNC_OK);
            assert_result(all, first_fails || second_fails ? GPUSYNC_ERROR_COMPILE : GPUSYNC_OK);
            if (second_fails) assert_nothing_else(&error);
            softmetal_fail_creation(0, false);
            assert_ok(gpusync_warmup_destroy(warmup));
            assert_true(softmetal_dispatched(SECONDS(60)));
            assert_int_equal(softmetal_live("library"), 1);
            assert_int_equal(softmetal_live("function"), 0);
            assert_int_equal(softmetal_live("pipeline"), 0);
            assert_int_equal(softmetal_retain_count(library), 1);
        }
    }
    metal_release(library);
}

/* ---------------------------------------------------------------------------------------------------- >>destroy -- */

/* The player leaves while the level loads: what Metal has begun cannot be stopped, the rest is never compiled, and who
   waits is told at once. */
with_door(test_destroy_waits_for_what_has_begun_and_skips_the_rest)
{
    static gpusync_pipeline_desc pipelines[6];
    ask here, one, all;
    job gone = {0};
    for (unsigned i = 0; i < 6; i++) pipelines[i] = four[i % 4];
    set_door(PIPELINE, 0);
    gpusync_warmup *warmup = start_with(s, pipelines, 6, false);
    await_come(1);
    ask_for(&here, warmup, 3, GPUSYNC_FOREVER); /* compiles in its call */
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
    await_parked(1); /* the other one is not compiled yet */
    assert_false(job_is_over(&gone));
    let_through(EVERYONE);
    assert_ok(job_end(&here.j));
    assert_ok(job_end(&gone));
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(have_come(), 2);
    assert_int_equal(softmetal_compiles(), 2);
    assert_int_equal(softmetal_live("pipeline"), 0);
}

/* Libdispatch has no thread to spare: nothing has begun, so that destroy waits for nothing. What libdispatch has still
   to call needs the warm-up's memory, and the device's destroy waits for it. */
with_door(test_destroy_before_it_has_begun_compiles_nothing)
{
    job gone = {0};
    kit_counts before = kit_now();
    softmetal_set_dispatch_threads(0);
    gpusync_warmup *warmup = start_four(s);
    assert_progress(warmup, 0, 4);
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_true(kit_now().blocks > before.blocks);
    job_call(&gone, (gpusync_result(*)(void *))gpusync_device_destroy, s->device);
    await_parks(before.parks + 1);
    assert_false(job_is_over(&gone));
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    assert_ok(job_end(&gone));
    s->device = NULL;
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(softmetal_message_count(LIBRARY), 0);
    assert_int_equal(kit_now().log_lines, 0);
}

/* The program forgets a warm-up: the device says so, whether the warm-up is done, runs, or is disabled. */
with_door(test_a_device_with_a_warm_up_is_in_use)
{
    gpusync_warmup *warmups[3];
    set_door(PIPELINE, 0);
    warmups[0] = start_with(s, NULL, 0, false);
    warmups[1] = start_four(s);
    warmups[2] = start_disabled(s);
    await_come(1);
    for (unsigned i = 0; i < 3; i++) {
        assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
        if (i == 1) let_through(EVERYONE);
        assert_ok(gpusync_warmup_destroy(warmups[i]));
    }
    assert_ok(gpusync_device_destroy(s->device));
    s->device = NULL;
}

/* ... and a device that goes later goes behind it. The warm-up works meanwhile. */
with_door(test_a_device_that_is_destroyed_later_goes_after_its_warm_up)
{
    note gone = {0};
    set_door(PIPELINE, 0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    assert_ok(gpusync_device_destroy_later(s->device, remember_destroyed, &gone));
    s->device = NULL;
    assert_int_equal(GET(&gone.calls), 0);
    let_through(EVERYONE);
    await_all(warmup, 4);
    assert_int_equal(calls_of(&gone), 0);
    assert_ok(gpusync_warmup_destroy(warmup));
    assert_noted(&gone, GPUSYNC_OK);
}

/* ----------------------------------------------------------------------------------------------------- >>beside -- */

static struct {
    gpusync_warmup *running, *over, *fresh;
    stage *s;
    unsigned calls;
} inside;

static void use_warm_ups_in_a_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    const gpusync_warmup_desc desc = {four, 1, false};
    size_t done = 9, total = 9;
    void *made = &made;
    must(gpusync_warmup_destroy(inside.running) == GPUSYNC_ERROR_WOULD_DEADLOCK, "destroy");
    must(gpusync_warmup_destroy(inside.over) == GPUSYNC_ERROR_WOULD_DEADLOCK, "destroy of one that is over");
    must(gpusync_warmup_destroy(NULL) == GPUSYNC_OK, "destroy of none");
    must(gpusync_warmup_wait(inside.running, GPUSYNC_FOREVER, &done, &total) == GPUSYNC_ERROR_WOULD_DEADLOCK, "wait");
    must(done == 0 && total == 4, "the progress");
    must(gpusync_warmup_wait(inside.running, 0, NULL, NULL) == GPUSYNC_ERROR_WOULD_DEADLOCK, "a look");
    must(gpusync_warmup_wait(inside.over, GPUSYNC_FOREVER, NULL, NULL) == GPUSYNC_OK, "all are done");
    must(gpusync_warmup_pipeline(inside.over, 0, GPUSYNC_FOREVER, &made, NULL) == GPUSYNC_OK && made, "it is there");
    must(gpusync_warmup_pipeline(inside.running, 0, GPUSYNC_FOREVER, &made, NULL) == GPUSYNC_ERROR_WOULD_DEADLOCK,
         "it is being compiled");
    must(made == NULL, "nothing is there");
    must(gpusync_warmup_pipeline(inside.running, 3, 0, &made, NULL) == GPUSYNC_ERROR_WOULD_DEADLOCK, "no time");
    must(gpusync_warmup_start(inside.s->device, &desc, &inside.fresh) == GPUSYNC_OK, "start");
    COUNT(&inside.calls);
}

/* A callback of a frame asks for a shader. It gets what is there, and never waits. */
with_door_and(test_a_callback_neither_waits_for_a_warm_up_nor_destroys_one, .queues = 1)
{
    memset(&inside, 0, sizeof inside);
    inside.s = s;
    inside.over = start_with(s, four, 1, false);
    await_all(inside.over, 1);
    set_door(LIBRARY, 0);
    inside.running = start_four(s);
    await_come(1);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], commit_new(s->q[0])), use_warm_ups_in_a_callback, NULL));
    finish_all(s);
    while (GET(&inside.calls) == 0) sched_yield();
    let_through(EVERYONE);
    await_all(inside.running, 4);
    await_all(inside.fresh, 1);
    assert_ok(gpusync_warmup_destroy(inside.running));
    assert_ok(gpusync_warmup_destroy(inside.over));
    assert_ok(gpusync_warmup_destroy(inside.fresh));
}

static void compile_in_a_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    void *made = NULL;
    must(gpusync_warmup_pipeline((gpusync_warmup *)user, 2, 1, &made, NULL) == GPUSYNC_OK && made, "it compiles here");
    must(gpusync_warmup_pipeline((gpusync_warmup *)user, 2, 0, &made, NULL) == GPUSYNC_OK && made, "it is there");
    COUNT(&inside.calls);
}

/* What nobody compiles yet is no wait: the callback compiles it. */
with_door_and(test_a_callback_compiles_what_has_not_begun, .queues = 1)
{
    gpusync_warmup *warmup = start_disabled(s);
    memset(&inside, 0, sizeof inside);
    assert_ok(gpusync_on_done(ticket_at(s->q[0], commit_new(s->q[0])), compile_in_a_callback, warmup));
    finish_all(s);
    run_callbacks(s);
    assert_int_equal(GET(&inside.calls), 1);
    assert_int_equal(softmetal_compiles(), 1);
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* Frames go on while a level's shaders are compiled: commits, waits, callbacks, looks at all of the device. */
with_door_and(test_a_warm_up_and_the_work_of_queues_do_not_meet, .queues = 2, .timelines = 1,
              .timeline.signalled_by_others = true)
{
    note done = {0}, reached = {0};
    job frame = {0};
    gpusync_ticket ticket;
    set_door(PIPELINE, 0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    ticket = SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[0], 2)), .flags = GPUSYNC_SUBMIT_ON_GPU);
    on_done(ticket_at(s->q[0], ticket), &done);
    on_done(at(s->t[0], 2), &reached);
    job_wait(&frame, s->q[0], ticket, GPUSYNC_FOREVER);
    await_parks(3); /* it looks at all of the device in between */
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_ok(job_end(&frame));
    while (!GET(&done.calls) || !GET(&reached.calls)) sched_yield(); /* on a dispatch queue of their own */
    assert_result(done.result, GPUSYNC_OK);
    assert_result(reached.result, GPUSYNC_OK);
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL));
    uint64_t status = softmetal_message_count("status");
    assert_progress(warmup, 0, 4);
    assert_int_equal(softmetal_message_count("status"), status); /* a question about a warm-up looks at no queue */
    let_through(EVERYONE);
    await_all(warmup, 4);
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* A program that only compiles has nothing to wait for. */
with_door(test_the_wait_for_the_device_does_not_wait_for_a_warm_up)
{
    gpusync_warmup *warmups[20]; /* more than a device_wait has room for at hand */
    set_door(PIPELINE, 0);
    for (unsigned i = 0; i < LENGTH(warmups); i++) warmups[i] = start_with(s, four, 4, i % 2);
    await_come(10);
    assert_ok(gpusync_device_wait(s->device, 0, NULL));
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, NULL)); /* looks everywhere */
    let_through(EVERYONE);
    for (unsigned i = 0; i < LENGTH(warmups); i++) assert_ok(gpusync_warmup_destroy(warmups[i]));
}

also_with_door_and(test_the_wait_for_the_device_does_not_wait_for_a_warm_up, .queues = 2, .timelines = 1,
                   .device.callback_mode = GPUSYNC_CALLBACKS_MANUAL)

static unsigned begun, ended, unmet;

static void trace_waits(void *user, const gpusync_trace_event *event)
{
    if (event->kind == GPUSYNC_TRACE_WAIT_BEGIN) COUNT(&begun);
    if (event->kind != GPUSYNC_TRACE_WAIT_END) return;
    COUNT(&ended);
    if (event->how == GPUSYNC_ENDED_UNMET) COUNT(&unmet);
    must((event->result == GPUSYNC_TIMEOUT) == (event->how == GPUSYNC_ENDED_UNMET), "how a wait ended");
    must(!event->queue && !event->timeline && !event->ticket && !event->value, "a warm-up is neither");
}

/* A program hangs in its loading screen. What it prints says so. */
with_door(test_report_counts_and_trace_tell_of_a_warm_up)
{
    char report[2000];
    gpusync_stats before, after;
    ask one, all;
    begun = ended = unmet = 0;
    assert_ok(gpusync_device_set_trace(s->device, trace_waits, NULL));
    assert_ok(gpusync_device_get_stats(s->device, NULL, &before));
    set_door(PIPELINE, 1);
    gpusync_warmup *warmup = start_four(s);
    await_come(2);
    ask_for(&one, warmup, 1, GPUSYNC_FOREVER);
    ask_for(&all, warmup, ALL_OF_THEM, SECONDS(50));
    await_parked(2);
    assert_true(gpusync_device_report(s->device, report, sizeof report) < sizeof report);
    assert_non_null(strstr(report, "warm-up"));
    assert_non_null(strstr(report, "1 of 4 pipelines are compiled"));
    assert_non_null(strstr(report, "without a limit"));
    assert_non_null(strstr(report, " ms left"));
    assert_null(strstr(report, "callback of")); /* a compilation is none, though it counts as one inside */
    assert_null(strstr(report, "callbacks to come"));
    assert_progress(warmup, 1, 4);
    let_through(EVERYONE);
    assert_ok(job_end(&one.j));
    assert_ok(job_end(&all.j));
    gpusync_device_report(s->device, report, sizeof report);
    assert_non_null(strstr(report, "4 of 4 pipelines are compiled"));
    assert_null(strstr(report, "limit"));
    assert_ok(gpusync_device_get_stats(s->device, NULL, &after));
    assert_int_equal(after.waits_unmet - before.waits_unmet, 1); /* the look at the progress */
    assert_true(after.waits_sleep - before.waits_sleep >= 2);
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_int_equal(GET(&unmet), 1);
    assert_int_equal(GET(&begun), GET(&ended));
    assert_ok(gpusync_device_set_trace(s->device, NULL, NULL));
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* A level streams in while another one still loads: neither holds the other up. */
with_door(test_two_warm_ups_compile_at_once)
{
    gpusync_warmup *warmups[2];
    set_door(PIPELINE, 0);
    for (unsigned i = 0; i < 2; i++) {
        warmups[i] = start_four(s);
        await_come(i + 1);
    }
    assert_false(pthread_equal(door.who[0], door.who[1]));
    let_through(2);
    await_come(4);
    assert_progress(warmups[0], 1, 4);
    assert_progress(warmups[1], 1, 4);
    assert_ptr_not_equal(pipeline_of(warmups[0], 0), pipeline_of(warmups[1], 0));
    let_through(EVERYONE);
    assert_ok(gpusync_warmup_destroy(warmups[0]));
    await_all(warmups[1], 4);
    assert_ok(gpusync_warmup_destroy(warmups[1]));
}

/* A thread that waits spins as long as the program allows, sleeps in the program's hooks, and asks Metal nothing. */
static struct {
    gpusync_warmup *warmup;
    void *pool;       /* the innermost of the thread */
    bool let;         /* the first park lets the door's thread go on */
    unsigned parks, yields;
} fiber;

static void turn_pool(void)
{
    metal_pool_pop(fiber.pool); /* ends the program where gpusync has one above it */
    fiber.pool = metal_pool_push();
}

static void fiber_yield(void *user)
{
    fiber.yields++;
    turn_pool();
    sched_yield();
}

/* The scheduler runs other fibers here, which use the same warm-up. */
static void fiber_park(void *user, gpusync_waiter *waiter, uint64_t deadline)
{
    size_t done = 0, total = 0;
    must(deadline != GPUSYNC_FOREVER, "a park has a deadline");
    fiber.parks++;
    turn_pool();
    must(gpusync_warmup_wait(fiber.warmup, 0, &done, &total) <= GPUSYNC_TIMEOUT && total == 4, "no lock is held");
    if (!fiber.let) let_through(EVERYONE);
    fiber.let = true;
    while (!GET(&waiter->scheduler_data[0]) && gpusync_now_ns() < deadline) sched_yield();
    PUT(&waiter->scheduler_data[0], NULL);
}

static const gpusync_hooks fiber_hooks = {fiber_yield, fiber_park, leave_permit, NULL};
static const gpusync_spin five_yields = {0, 5, 0};

with_door_and(test_a_fiber_that_waits_for_a_warm_up_parks, .no_queue = true, .device.hooks = &fiber_hooks,
              .device.spin = &five_yields)
{
    static const size_t what[] = {0, ALL_OF_THEM};
    for (unsigned i = 0; i < LENGTH(what); i++) {
        void *made = NULL;
        memset(&fiber, 0, sizeof fiber);
        set_door(PIPELINE, 0);
        fiber.warmup = start_four(s);
        await_come(1);
        fiber.pool = metal_pool_push();
        if (what[i] == ALL_OF_THEM) assert_ok(gpusync_warmup_wait(fiber.warmup, GPUSYNC_FOREVER, NULL, NULL));
        else assert_ok(gpusync_warmup_pipeline(fiber.warmup, what[i], GPUSYNC_FOREVER, &made, NULL));
        metal_pool_pop(fiber.pool);
        assert_true(fiber.parks > 0);
        assert_true(fiber.yields >= 5);
        fiber.pool = metal_pool_push();
        assert_ok(gpusync_warmup_destroy(fiber.warmup)); /* parks where the last ones compile still */
        metal_pool_pop(fiber.pool);
    }
}

/* The threads of libdispatch are no fibers: hooks are not called there, however it goes. */
with_door(test_the_thread_that_compiles_neither_yields_nor_parks)
{
    gpusync_warmup *warmup = start_four(s);
    assert_true(softmetal_dispatched(SECONDS(60)));
    assert_progress(warmup, 4, 4);
    assert_int_equal(kit_now().parks, 0);
    assert_int_equal(kit_now().yields, 0);
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* Without hooks it is the thread that sleeps. */
with_door_and(test_a_wait_without_hooks_is_woken, .no_queue = true, .threads = true, .spins = true)
{
    ask one, all;
    set_door(PIPELINE, 0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    ask_for(&one, warmup, 0, GPUSYNC_FOREVER);
    ask_for(&all, warmup, ALL_OF_THEM, GPUSYNC_FOREVER);
    let_through(EVERYONE);
    assert_ok(job_end(&one.j));
    assert_ok(job_end(&all.j));
    assert_int_equal(all.done, 4);
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* A program fills its queue, commits nothing, and waits for a place: it has compiled all the time, which makes none. */
with_door_and(test_a_warm_up_is_no_work_that_makes_room, .queue.max_command_buffer_count = 1)
{
    void *buffer = new_buffer(s->q[0]), *more = &more;
    set_door(PIPELINE, 0);
    gpusync_warmup *warmup = start_four(s);
    await_come(1);
    assert_result(gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &more), GPUSYNC_ERROR_QUEUE_FULL);
    assert_null(more);
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    let_through(EVERYONE);
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* The card is pulled out. Metal may compile for ever then; who waits is told after a second, what is done stays done,
   and no new warm-up begins. */
with_door_and(test_a_lost_device_warms_nothing_up, .queues = 1)
{
    const gpusync_warmup_desc desc = {four, 4, false};
    gpusync_warmup *warmup, *refused = (gpusync_warmup *)&desc;
    ask here;
    void *made = &made;
    size_t done = 9, total = 9;
    set_door(PIPELINE, 1);
    warmup = start_four(s);
    await_come(2);
    commit_failing(s->q[0], SOFTMETAL_SUBMISSIONS_IGNORED);
    finish_all(s);
    assert_true(gpusync_device_is_lost(s->device));
    long blocks = kit_now().blocks, live = softmetal_live(NULL);
    assert_result(gpusync_warmup_start(s->device, &desc, &refused), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(refused);
    assert_int_equal(kit_now().blocks, blocks);
    assert_int_equal(softmetal_live(NULL), live);
    assert_result(gpusync_warmup_pipeline(warmup, 1, GPUSYNC_FOREVER, &made, NULL), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(made);
    assert_result(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, &done, &total), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(done, 1);
    assert_int_equal(total, 4);
    pipeline_of(warmup, 0);
    ask_for(&here, warmup, 3, 1); /* Metal may compile on */
    await_come(3);
    let_through(EVERYONE);
    assert_ok(job_end(&here.j));
    assert_true(softmetal_dispatched(SECONDS(60))); /* no wait waits any more */
    await_all(warmup, 4);
    assert_ok(gpusync_warmup_destroy(warmup));
}
