/* godot.c - what Godot's RenderingDeviceDriver for Metal synchronises: fences, semaphores, command queues, swap chains

   The calls have the names and the meaning of the driver's. As there, one thread at a time uses a fence, a semaphore or
   a queue; different ones are independent. gpusync_queue_create and gpusync_command_buffer_create need no facade. */
#include "gpusync.h"
#include "metal.h"

#include <stdlib.h>

#define GODOT_MOST 16u

typedef enum godot_error {
    GODOT_OK,
    GODOT_FAILED,         /* the driver's log has said why */
    GODOT_ERR_TIMEOUT,    /* the GPU may still use what the work uses */
    GODOT_ERR_UNAVAILABLE /* likewise, and the device is lost */
} godot_error;

typedef struct godot_fence {
    gpusync_queue *queue;  /* NULL: no execution has had the fence */
    gpusync_ticket ticket; /* of the last one that had it */
} godot_fence;

typedef struct godot_semaphore {
    gpusync_timeline *timeline;
    uint64_t value; /* of the last execution that was to signal it */
} godot_semaphore;

typedef struct godot_execution {
    godot_semaphore *const *waits;
    size_t wait_count;
    void *const *buffers; /* encoded; the call takes them, whatever it returns */
    size_t buffer_count;
    godot_semaphore *const *signals;
    size_t signal_count;
    godot_fence *fence;     /* NULL: none */
    void *const *drawables; /* to present with the last buffer; NULL: none was acquired. The call takes them, too */
    size_t drawable_count;
} godot_execution;

static godot_error godot_error_of(gpusync_result result)
{
    switch (result) {
    case GPUSYNC_OK: return GODOT_OK;
    case GPUSYNC_TIMEOUT: return GODOT_ERR_TIMEOUT;
    case GPUSYNC_ERROR_DEVICE_LOST: return GODOT_ERR_UNAVAILABLE;
    default: return GODOT_FAILED;
    }
}

/* The work of the fence has ended. GODOT_FAILED: badly, and the GPU is finished with that work, too. */
godot_error godot_fence_wait(const godot_fence *fence, uint64_t limit_ns)
{
    if (!fence->queue)
        return GODOT_OK;
    return godot_error_of(gpusync_wait(fence->queue, fence->ticket, limit_ns, NULL));
}

/* order_only: a frame whose work was killed delays no later frame, and fails none. NULL: there is none to have. */
godot_semaphore *godot_semaphore_create(gpusync_device *device)
{
    const gpusync_timeline_desc desc = {.order_only = true};
    godot_semaphore *semaphore = (godot_semaphore *)calloc(1, sizeof *semaphore);
    if (semaphore && gpusync_timeline_create(device, &desc, &semaphore->timeline) == GPUSYNC_OK)
        return semaphore;
    free(semaphore);
    return NULL;
}

/* At any time: work in flight keeps what it needs. */
void godot_semaphore_free(godot_semaphore *semaphore)
{
    gpusync_timeline_destroy(semaphore->timeline);
    free(semaphore);
}

/* GODOT_ERR_TIMEOUT: the GPU still works after the limit, and what its work uses must stay for ever. */
godot_error godot_command_queue_free(gpusync_queue *queue, uint64_t limit_ns)
{
    gpusync_queue_cancel_held(queue, GPUSYNC_EVERYTHING);
    if (gpusync_wait(queue, GPUSYNC_EVERYTHING, limit_ns, NULL) != GPUSYNC_TIMEOUT)
        return godot_error_of(gpusync_queue_destroy(queue));
    gpusync_queue_abandon(queue);
    return GODOT_ERR_TIMEOUT;
}

/* Retained. NULL, after a second: frames in flight, held ones too, have all drawables of the layer. Skip the frame. */
void *godot_swap_chain_acquire(void *layer)
{
    return metal_get_retained(layer, "nextDrawable");
}

/* As execute_and_present. Metal presents a frame that it schedules, even if that fails then, and no other. */
godot_error godot_command_queue_execute(gpusync_queue *queue, const godot_execution *e)
{
    gpusync_point waits[GODOT_MOST], signals[GODOT_MOST];
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    gpusync_result result = GPUSYNC_ERROR_INVALID_ARGUMENT;
    for (size_t i = 0; i < e->drawable_count; i++) {
        if (e->drawables[i] && e->buffer_count)
            metal_present(e->buffers[e->buffer_count - 1], e->drawables[i]);
        metal_release(e->drawables[i]);
    }
    if (e->wait_count <= GODOT_MOST && e->signal_count <= GODOT_MOST) {
        const gpusync_submission submission = {.wait_points = waits,
                                               .wait_count = e->wait_count,
                                               .command_buffers = e->buffers,
                                               .command_buffer_count = e->buffer_count,
                                               .signal_points = signals,
                                               .signal_count = e->signal_count};
        for (size_t i = 0; i < e->wait_count; i++)
            waits[i] = gpusync_at_value(e->waits[i]->timeline, e->waits[i]->value);
        for (size_t i = 0; i < e->signal_count; i++)
            signals[i] = gpusync_at_value(e->signals[i]->timeline, e->signals[i]->value + 1);
        result = gpusync_submit(queue, &submission, &ticket);
    }
    if (result != GPUSYNC_OK) {
        for (size_t i = 0; i < e->buffer_count; i++)
            gpusync_command_buffer_discard(queue, e->buffers[i]);
        return godot_error_of(result);
    }
    for (size_t i = 0; i < e->signal_count; i++)
        e->signals[i]->value++;
    if (e->fence)
        *e->fence = (godot_fence){.queue = queue, .ticket = ticket};
    return GODOT_OK;
}
