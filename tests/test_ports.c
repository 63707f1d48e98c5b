/* test_ports.c - what Godot, PyTorch, Metal.jl and a loop of libuv's synchronise, written with gpusync: tests/ports

   Each port is driven through its own calls, on the real clock of softmetal's. */
#include "kit.h"

#include "ports/godot.c"
#include "ports/libuv.c"
#include "ports/metaljl.c"
#include "ports/pytorch.c"

#define ROUNDS 40u
#define THREADS 4u
#define LONG SECONDS(60)
#define BYTES ((size_t)4096)

enum fate { GOOD, KILLED, HANGS };

typedef struct port {
    void (*open)(void);
    void (*run)(enum fate fate);  /* work that fills target */
    gpusync_result (*wait)(void); /* for all work, up to the limit */
    bool (*close)(void);          /* in whatever state the work is; false: the GPU goes on with it */
    void (*thread)(void);         /* work of a thread, beside that of others */
} port;

/* Of each test. */
static uint64_t limit;
static gpusync_device *device; /* NULL: the port has its own */
static void *target, *hung;    /* an MTLBuffer, a command buffer */
static unsigned threads_left;

/* What shares no memory overlaps: no event of an earlier command buffer holds it back. */
static void begin(const port *p, uint64_t limit_ns)
{
    void *metal = metal_device_new();
    softmetal_reset();
    softmetal_set_chaos(&(softmetal_chaos){.overlap_per_mille = 1000});
    limit = limit_ns;
    device = NULL;
    target = metal_buffer_new(metal, BYTES);
    metal_release(metal);
    p->open();
}

static void unhang(void)
{
    if (hung)
        softmetal_unhang(hung);
    metal_release(hung);
    hung = NULL;
}

/* Nothing is left of what begin saw, not even in Metal. */
static void end(const port *p, bool finished)
{
    assert_int_equal(p->close(), finished);
    assert_ok(gpusync_device_destroy(device));
    unhang();
    metal_release(target);
    assert_true(softmetal_settle(LONG));
    assert_int_equal(softmetal_live("queue"), 0);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    assert_int_equal(softmetal_live("buffer"), 0);
    assert_int_equal(kit_now().blocks, 0);
}

static void encode(void *buffer, void *array, enum fate fate)
{
    metal_must_fill(buffer, array, 0, BYTES, 7);
    softmetal_set_duration(buffer, MS(1));
    if (fate == KILLED)
        softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    if (fate != HANGS)
        return;
    softmetal_hang(buffer);
    hung = metal_retain(buffer);
}

static void *buffer_of(gpusync_queue *queue, const gpusync_command_buffer_desc *desc, void *array, enum fate fate)
{
    void *buffer = NULL;
    must(!gpusync_command_buffer_create(queue, desc, LONG, &buffer), "a command buffer");
    encode(buffer, array, fate);
    return buffer;
}

/* -- Godot: each frame waits for the one before ------------------------------------------------------------------- */

static gpusync_queue *draw;
static godot_semaphore *drawn;
static godot_fence fence; /* of the last frame */
static void *layer;       /* NULL: frames present nothing */

static void godot_open(void)
{
    assert_ok(gpusync_device_create(NULL, &device));
    assert_ok(gpusync_queue_create(device, NULL, &draw));
    assert_non_null(drawn = godot_semaphore_create(device));
}

static void godot_execute(gpusync_queue *q, godot_semaphore *from, void *buffer, godot_semaphore *to, godot_fence *f)
{
    const godot_execution e = {&from, 1, &buffer, 1, &to, 1, f, &(void *){godot_swap_chain_acquire(layer)}, 1};
    must(!godot_command_queue_execute(q, &e), "an execution");
}

static void godot_run(enum fate fate)
{
    godot_execute(draw, drawn, buffer_of(draw, NULL, target, fate), drawn, &fence);
}

static gpusync_result godot_wait(void)
{
    static const gpusync_result results[] = {GPUSYNC_OK, GPUSYNC_ERROR_EXECUTION, GPUSYNC_TIMEOUT};
    return results[godot_fence_wait(&fence, limit)];
}

static bool godot_close(void)
{
    drawn->value++; /* nothing signals that: the frame is held, and cancelled */
    godot_run(GOOD);
    const godot_error error = godot_command_queue_free(draw, limit);
    godot_semaphore_free(drawn);
    return error == GODOT_OK;
}

/* Frames wait for uploads on another queue, which wait for the frame before. */
static void godot_thread(void)
{
    gpusync_queue *queues[2];
    godot_semaphore *uploaded = godot_semaphore_create(device), *shown = godot_semaphore_create(device);
    godot_fence upload = {0}, frame = {0};
    void *array = metal_buffer_new(gpusync_device_metal(device), BYTES);
    must(!gpusync_queue_create(device, NULL, &queues[0]) && !gpusync_queue_create(device, NULL, &queues[1]), "queues");
    for (unsigned i = 0; i < ROUNDS; i++) {
        godot_execute(queues[0], shown, buffer_of(queues[0], NULL, array, i == 10 ? KILLED : GOOD), uploaded, &upload);
        godot_execute(queues[1], uploaded, buffer_of(queues[1], NULL, array, GOOD), shown, &frame);
        must(i % 4 || (!godot_fence_wait(&frame, LONG) && gpusync_is_done(queues[0], upload.ticket)), "a frame");
    }
    godot_semaphore_free(uploaded);
    godot_semaphore_free(shown);
    must(!godot_command_queue_free(queues[1], LONG) && !godot_command_queue_free(queues[0], LONG), "an end");
    metal_release(array);
}

static const port godot_port = {godot_open, godot_run, godot_wait, godot_close, godot_thread};

/* -- PyTorch ------------------------------------------------------------------------------------------------------ */

static mps_stream stream, other;
static mps_exception raised;

static void mps_open(void)
{
    assert_ok(gpusync_device_create(NULL, &device));
    assert_true(mps_stream_create(&stream, device, "stream", limit));
    assert_true(mps_stream_create(&other, device, "other", limit));
}

static void mps_fill(void *buffer, void *user)
{
    encode(buffer, target, *(enum fate *)user);
}

static void mps_nothing(void *buffer, void *user) {}

static void mps_run(enum fate fate)
{
    assert_false(mps_stream_dispatch(&stream, mps_fill, &fate, MPS_COMMIT, &raised));
}

static gpusync_result mps_finish(void)
{
    return mps_stream_dispatch(&stream, NULL, NULL, MPS_COMMIT_AND_WAIT, &raised) ? raised.result : GPUSYNC_OK;
}

static bool mps_close(void)
{
    assert_true(mps_stream_destroy(&other));
    return mps_stream_destroy(&stream);
}

static void mps_thread(void)
{
    mps_exception e;
    for (unsigned i = 0; i < ROUNDS; i++) {
        mps_event *event = mps_event_acquire();
        mps_stream *s = i % 2 ? &stream : &other, *waiting = i % 2 ? &other : &stream;
        must(!mps_stream_dispatch(s, mps_nothing, NULL, (mps_sync)(i % 3), &e), e.message);
        must(!mps_event_record(event, s, &e), e.message);
        must(!mps_event_wait(event, waiting, &e), e.message);
        must(!mps_event_synchronize(event, &e), e.message);
        mps_event_release(event);
    }
}

static const port pytorch_port = {mps_open, mps_run, mps_finish, mps_close, mps_thread};

/* -- Metal.jl: a task is a thread; the one that has julia_thread runs --------------------------------------------- */

static pthread_mutex_t julia_thread = PTHREAD_MUTEX_INITIALIZER;
static __thread gpusync_waiter julia_task;
static mtl_device mtl;
static gpusync_queue *mtl_queue;
static mtl_exception thrown;

static void *julia_current_task(void)
{
    return &julia_task;
}

static void julia_wait(void *task, uint64_t deadline_ns)
{
    pthread_mutex_unlock(&julia_thread);
    kit_park(NULL, task, deadline_ns);
    pthread_mutex_lock(&julia_thread);
}

static void julia_wake(void *task)
{
    kit_unpark(NULL, task);
}

static void mtl_open(void)
{
    static const mtl_scheduler julia = {julia_current_task, julia_wait, julia_wake};
    pthread_mutex_lock(&julia_thread);
    assert_false(mtl_device_open(&mtl, &julia, limit, &thrown));
    assert_ok(gpusync_queue_create(mtl.device, NULL, &mtl_queue));
}

static bool mtl_fill(gpusync_queue *queue, void *array, enum fate fate, mtl_exception *e)
{
    const gpusync_command_buffer_desc desc = {.label = "kernel", .unretained_references = true};
    return mtl_launch(queue, buffer_of(queue, &desc, array, fate), &array, 1, e);
}

static void mtl_run(enum fate fate)
{
    assert_false(mtl_fill(mtl_queue, target, fate, &thrown));
}

static gpusync_result mtl_wait(void)
{
    if (!mtl_synchronize(&mtl, NULL, &thrown))
        return GPUSYNC_OK;
    assert_true(thrown.result == GPUSYNC_TIMEOUT || strstr(thrown.reason, "kernel: "));
    return thrown.result;
}

/* The finalizers run first, that of the array, too: nothing that is in use goes before the GPU is finished. */
static bool mtl_close(void)
{
    const bool finished = !hung;
    note gone = {0};
    metal_release(target);
    target = NULL;
    gpusync_queue_destroy_later(mtl_queue, NULL, NULL);
    assert_ok(gpusync_device_destroy_later(mtl.device, remember_destroyed, &gone));
    assert_true(finished || softmetal_live("buffer") == 1);
    unhang();
    assert_true(softmetal_settle(LONG));
    assert_noted(&gone, GPUSYNC_OK);
    pthread_mutex_unlock(&julia_thread);
    return finished;
}

static void mtl_thread(void)
{
    gpusync_queue *queue = NULL;
    mtl_exception e;
    pthread_mutex_lock(&julia_thread);
    must(!gpusync_queue_create(mtl.device, NULL, &queue), "a queue");
    for (unsigned i = 0; i < ROUNDS; i++) {
        void *array = metal_buffer_new(gpusync_device_metal(mtl.device), BYTES);
        must(!mtl_fill(queue, array, GOOD, &e), e.reason);
        must(i % 3 || !mtl_synchronize(&mtl, queue, &e), e.reason);
        metal_release(array);
    }
    gpusync_queue_destroy_later(queue, NULL, NULL); /* in mid-flight */
    pthread_mutex_unlock(&julia_thread);
}

static const port metaljl_port = {mtl_open, mtl_run, mtl_wait, mtl_close, mtl_thread};

/* -- libuv -------------------------------------------------------------------------------------------------------- */

static uv_loop_t loop;
static gpu_loop gpu;
static gpusync_result failure; /* that was told last */
static bool finished;          /* of the close */

static void loop_closed(gpu_loop *g, bool g_finished)
{
    finished = g_finished;
}

static void loop_told(void *user, gpusync_result result, const gpusync_error *error)
{
    failure = result ? result : failure;
}

static void loop_open(void)
{
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_ok(gpu_loop_open(&gpu, &loop));
}

static void loop_run(enum fate fate)
{
    assert_ok(gpu_commit(&gpu, buffer_of(gpu.queue, NULL, target, fate), loop_told, NULL));
}

static bool loop_close(void)
{
    if (gpu.closed)
        return finished;
    gpu_loop_close(&gpu, limit / MS(1), loop_closed);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    return finished;
}

/* The loop ends by itself when it has told of all work, or is closed. The only limit is that of a close. */
static gpusync_result loop_wait(void)
{
    failure = GPUSYNC_OK;
    if (hung)
        return loop_close() ? GPUSYNC_OK : GPUSYNC_TIMEOUT;
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    return failure;
}

static const port libuv_port = {loop_open, loop_run, loop_wait, loop_close, NULL};

/* -- all ports ---------------------------------------------------------------------------------------------------- */

#define ON_PORT(test, name) {#test "_" #name, test, NULL, NULL, (void *)(uintptr_t)&name##_port}
#define on_each_port(test) \
    KIT_PLAIN_TEST(test, ON_PORT(test, godot), ON_PORT(test, pytorch), ON_PORT(test, metaljl), ON_PORT(test, libuv))

on_each_port(test_a_killed_command_buffer_is_told_once_and_the_rest_goes_in_mid_flight)
{
    const port *p = *state;
    begin(p, LONG);
    for (unsigned i = 0; i < 20; i++)
        p->run(GOOD);
    assert_ok(p->wait());
    assert_int_equal(((unsigned char *)metal_contents(target))[BYTES - 1], 7);
    p->run(KILLED);
    assert_result(p->wait(), GPUSYNC_ERROR_EXECUTION);
    p->run(GOOD);
    assert_ok(p->wait());
    for (unsigned i = 0; i < 8; i++)
        p->run(GOOD);
    end(p, true);
}

on_each_port(test_a_limit_ends_the_wait_for_a_hang)
{
    const port *p = *state;
    begin(p, MS(30));
    p->run(HANGS);
    p->run(GOOD);
    assert_result(p->wait(), GPUSYNC_TIMEOUT);
    end(p, false);
}

static void *run_thread(void *argument)
{
    ((const port *)argument)->thread();
    if (__atomic_sub_fetch(&threads_left, 1, __ATOMIC_SEQ_CST) == 0)
        unhang();
    return NULL;
}

/* Threads with queues of their own go on beside a hang, until the last one ends it. Metal.jl has one thread for all. */
KIT_PLAIN_TEST(test_threads_beside_a_wait, ON_PORT(test_threads_beside_a_wait, godot),
               ON_PORT(test_threads_beside_a_wait, pytorch), ON_PORT(test_threads_beside_a_wait, metaljl))
{
    const port *p = *state;
    pthread_t threads[THREADS];
    begin(p, LONG);
    threads_left = THREADS;
    p->run(p == &pytorch_port ? GOOD : HANGS);
    for (unsigned i = 0; i < THREADS; i++)
        threads[i] = start(run_thread, (void *)(uintptr_t)p);
    assert_ok(p->wait());
    for (unsigned i = 0; i < THREADS; i++)
        join(threads[i]);
    end(p, true);
}

without_stage(test_godot_a_frame_keeps_its_drawable_until_it_has_ended_or_is_dropped)
{
    begin(&godot_port, LONG);
    layer = metal_layer_new(gpusync_device_metal(device), 2, 2);
    for (unsigned i = 0; i < 3; i++)
        godot_run((enum fate)(HANGS - i)); /* the killed and the good one are held */
    assert_true(softmetal_live("drawable") == 3 && !godot_swap_chain_acquire(layer));
    unhang();
    assert_true(godot_wait() == GPUSYNC_OK && softmetal_settle(LONG));
    void *drawable = godot_swap_chain_acquire(layer), *buffer = buffer_of(draw, NULL, target, GOOD);
    const godot_execution refused = {NULL, GODOT_MOST + 1, &buffer, 1, NULL, 0, NULL, &drawable, 1};
    assert_true(godot_command_queue_execute(draw, &refused) == GODOT_FAILED && softmetal_live("drawable") == 0);
    end(&godot_port, true); /* cancels a frame, and its drawable, whose memory is a buffer */
    metal_release(layer);
    layer = NULL;
}

static void *mps_graph(void *metal_queue, void *user)
{
    void *buffer = metal_queue_command_buffer(metal_queue);
    encode(buffer, target, user ? KILLED : GOOD);
    metal_commit(buffer);
    return buffer;
}

without_stage(test_pytorch_events_and_graphs_are_waited_for_and_raise_their_failures)
{
    mps_event event = {0};
    begin(&pytorch_port, LONG);
    for (enum fate fate = GOOD; fate <= KILLED; fate++) {
        mps_run(HANGS);
        mps_run(fate);
        assert_false(mps_event_record(&event, &stream, &raised)); /* a command buffer of its own, which succeeds */
        assert_false(mps_event_wait(&event, &other, &raised));
        assert_false(mps_stream_dispatch(&other, mps_nothing, NULL, MPS_COMMIT, &raised));
        assert_false(mps_event_query(&event));
        unhang();
        assert_int_equal(mps_stream_dispatch(&other, NULL, NULL, MPS_COMMIT_AND_WAIT, &raised), fate == KILLED);
        assert_true(mps_event_query(&event)); /* all that comes behind the wait has waited */
    }
    assert_non_null(strstr(raised.message, "PageFault"));
    raised.message[0] = 0;
    assert_true(mps_stream_dispatch(&stream, mps_nothing, NULL, MPS_COMMIT, &raised));
    assert_non_null(strstr(raised.message, "PageFault"));
    assert_false(mps_stream_run_graph(&other, mps_graph, NULL, &raised));
    assert_false(mps_stream_run_graph(&other, mps_graph, &stream, &raised));
    assert_true(mps_stream_dispatch(&other, NULL, NULL, MPS_COMMIT_AND_WAIT, &raised));
    end(&pytorch_port, true);
}

without_stage(test_pytorch_events_of_the_pool_tell_the_time_between_them)
{
    mps_event first = {0}, *last = mps_event_acquire();
    double ms = 0;
    begin(&pytorch_port, LONG);
    softmetal_set_timing(&(softmetal_timing){.handler = {MS(150), MS(150)}, .watchdog_ns = LONG}); /* notes times */
    mps_run(HANGS);
    assert_false(mps_event_record(last, &stream, &raised) || mps_event_record(&first, &other, &raised));
    assert_false(mps_event_synchronize(&first, &raised)); /* the command buffer of last has ended, too */
    unhang();
    assert_false(mps_event_elapsed_time(&first, last, &ms, &raised));
    assert_true(ms >= 150 && ms < 15000 && mps_event_elapsed_time(last, &first, &ms, &raised));
    mps_event_release(last);
    assert_true(mps_event_acquire() == last && mps_event_elapsed_time(&first, last, &ms, &raised));
    mps_event_release(last);
    end(&pytorch_port, true);
}

static void loop_encode(uv_work_t *work)
{
    work->data = buffer_of(gpu.queue, NULL, target, GOOD);
}

static void loop_commit(uv_work_t *work, int status)
{
    must(!status && !gpu_commit(&gpu, work->data, loop_told, NULL), "a commit");
}

without_stage(test_libuv_threads_encode_and_the_loop_is_told_also_where_metal_loses_a_handler)
{
    uv_work_t works[THREADS * ROUNDS];
    begin(&libuv_port, LONG);
    for (unsigned i = 0; i < LENGTH(works); i++)
        assert_int_equal(uv_queue_work(&loop, &works[i], loop_encode, loop_commit), 0);
    assert_ok(loop_wait());
    void *lost = buffer_of(gpu.queue, NULL, target, GOOD);
    softmetal_lose_handlers(lost);
    assert_ok(gpu_commit(&gpu, lost, loop_told, NULL));
    assert_ok(loop_wait());
    loop_run(GOOD);
    uv_timer_stop(&gpu.look); /* so notify alone wakes the loop */
    uv_ref((uv_handle_t *)&gpu.async);
    assert_int_equal(uv_run(&loop, UV_RUN_ONCE), 1);
    end(&libuv_port, true);
}
