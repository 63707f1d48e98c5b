/* libuv.c - work of the GPU in a loop of libuv's: the loop is told when work ends, and no thread blocks

   All calls are for the loop's thread. Work of uv_queue_work may make command buffers and encode them. */
#include "gpusync.h"

#include <stdlib.h>
#include <uv.h>

typedef struct gpu_loop {
    gpusync_device *device;
    gpusync_queue *queue;
    uv_async_t async; /* callbacks are due */
    uv_timer_t look;  /* runs while work is in flight, for a handler that Metal loses, and keeps the loop alive */
    uv_timer_t limit; /* of the close */
    void (*closed)(struct gpu_loop *g, bool finished); /* NULL: no close goes on */
    unsigned in_flight;
    unsigned handles; /* that are not closed */
    bool finished;    /* nothing calls notify or log any more */
    bool sends;       /* async is open; under the lock, for any thread */
    uv_mutex_t lock;
} gpu_loop;

typedef struct gpu_work {
    gpu_loop *loop;
    gpusync_done_fn fn;
    void *user;
} gpu_work;

static void gpu_notify(void *user)
{
    gpu_loop *g = (gpu_loop *)user;
    uv_mutex_lock(&g->lock);
    if (g->sends)
        uv_async_send(&g->async);
    uv_mutex_unlock(&g->lock);
}

/* The one warning of a program without waits comes in its gpusync_device_destroy: Metal still has blocks of gpusync. */
static void gpu_log(void *user, gpusync_log_level level, const char *text)
{
    (void)text;
    if (level == GPUSYNC_LOG_WARNING)
        ((gpu_loop *)user)->finished = false;
}

static void gpu_handle_closed(uv_handle_t *handle)
{
    gpu_loop *g = (gpu_loop *)handle->data;
    if (--g->handles)
        return;
    if (g->finished)
        uv_mutex_destroy(&g->lock);
    g->closed(g, g->finished);
}

/* Never in a callback of gpusync's: that may not destroy. */
static void gpu_finish(gpu_loop *g)
{
    g->finished = g->in_flight == 0 && gpusync_queue_destroy(g->queue) == GPUSYNC_OK;
    if (g->in_flight)
        gpusync_queue_abandon(g->queue); /* tells what is in flight */
    gpusync_device_destroy(g->device);
    uv_mutex_lock(&g->lock);
    g->sends = false;
    uv_mutex_unlock(&g->lock);
    uv_close((uv_handle_t *)&g->async, gpu_handle_closed);
    uv_close((uv_handle_t *)&g->look, gpu_handle_closed);
    uv_close((uv_handle_t *)&g->limit, gpu_handle_closed);
}

static void gpu_turn(gpu_loop *g)
{
    gpusync_device_run_callbacks(g->device, 100, NULL);
    if (g->closed && g->in_flight == 0)
        gpu_finish(g);
}

static void gpu_on_async(uv_async_t *async)
{
    gpu_turn((gpu_loop *)async->data);
}

static void gpu_on_look(uv_timer_t *timer)
{
    gpu_turn((gpu_loop *)timer->data);
}

static void gpu_on_limit(uv_timer_t *timer)
{
    gpu_finish((gpu_loop *)timer->data);
}

/* The loop ends by itself when no work is in flight, and no close goes on. */
gpusync_result gpu_loop_open(gpu_loop *g, uv_loop_t *loop)
{
    const gpusync_device_desc desc = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL,
                                      .notify = gpu_notify,
                                      .notify_user = g,
                                      .log = gpu_log,
                                      .log_user = g};
    gpusync_result result;
    *g = (gpu_loop){.handles = 3, .sends = true};
    if (uv_mutex_init(&g->lock))
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    result = gpusync_device_create(&desc, &g->device);
    if (result == GPUSYNC_OK)
        result = gpusync_queue_create(g->device, NULL, &g->queue);
    if (result == GPUSYNC_OK && uv_async_init(loop, &g->async, gpu_on_async))
        result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (result != GPUSYNC_OK) {
        gpusync_queue_destroy(g->queue);
        gpusync_device_destroy(g->device);
        uv_mutex_destroy(&g->lock);
        return result;
    }
    uv_timer_init(loop, &g->look); /* never fails, nor does the next one */
    uv_timer_init(loop, &g->limit);
    g->async.data = g->look.data = g->limit.data = g;
    uv_unref((uv_handle_t *)&g->async);
    return GPUSYNC_OK;
}

static void gpu_work_ended(void *user, gpusync_result result, const gpusync_error *error)
{
    gpu_work work = *(gpu_work *)user;
    free(user);
    if (--work.loop->in_flight == 0)
        uv_timer_stop(&work.loop->look);
    work.fn(work.user, result, error);
}

/* Takes a buffer of g->queue, whatever it returns. With GPUSYNC_OK fn is called once at the end. It may commit, and
   close the loop. */
gpusync_result gpu_commit(gpu_loop *g, void *buffer, gpusync_done_fn fn, void *user)
{
    gpu_work *work = (gpu_work *)malloc(sizeof *work);
    const gpusync_submission submission = {
        .command_buffers = &buffer, .command_buffer_count = 1, .on_complete = gpu_work_ended, .user = work};
    gpusync_result result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (work) {
        *work = (gpu_work){.loop = g, .fn = fn, .user = user};
        result = gpusync_submit(g->queue, &submission, NULL);
    }
    if (result != GPUSYNC_OK) {
        gpusync_command_buffer_discard(g->queue, buffer);
        free(work);
    } else if (g->in_flight++ == 0) { /* the callback is for this thread: it has not run yet */
        uv_timer_start(&g->look, gpu_on_look, 400, 400);
    }
    return result;
}

/* Commit nothing any more. closed is called when the loop needs g no more. Not finished: the GPU still worked at the
   limit, or Metal may still call: g, and what the work uses, must stay for ever. */
void gpu_loop_close(gpu_loop *g, uint64_t limit_ms, void (*closed)(gpu_loop *g, bool finished))
{
    g->closed = closed;
    gpusync_queue_cancel_held(g->queue, GPUSYNC_EVERYTHING);
    uv_timer_start(&g->limit, gpu_on_limit, limit_ms, 0);
    uv_async_send(&g->async);
}
