/* metaljl.c - what Metal.jl synchronises: queues of tasks, waits that yield to the scheduler, exceptions, finalizers

   Julia calls these functions. A wait parks the Julia task, and its thread runs other tasks. Finalizers may run on
   any thread, also inside a wait, in any order: that of an array is metal_release, that of a task's queue is
   gpusync_queue_destroy_later. Neither yields nor blocks. */
#include "gpusync.h"
#include "metal.h"

#include <stdio.h>
#include <stdlib.h>

/* Julia's side. task_wait returns at a wake, also an earlier one, or when gpusync_now_ns is deadline_ns. Julia catches
   there what the task throws meanwhile, and throws it after the ccall. Any thread calls task_wake: it runs no Julia
   code, only uv_async_send. */
typedef struct mtl_scheduler {
    void *(*current_task)(void);
    void (*task_wait)(void *task, uint64_t deadline_ns);
    void (*task_wake)(void *task);
} mtl_scheduler;

typedef struct mtl_exception {
    gpusync_result result;
    char reason[384];
} mtl_exception;

typedef struct mtl_device {
    gpusync_device *device;
    mtl_scheduler scheduler;
    uint64_t limit_ns; /* of a wait */
} mtl_device;

/* What a launch keeps alive: command buffers with unretained references do not. */
typedef struct mtl_roots {
    gpusync_queue *queue;
    gpusync_ticket ticket;
    size_t count;
    void *objects[];
} mtl_roots;

/* True is "thrown". */
static bool mtl_throw(mtl_exception *e, gpusync_result result, const gpusync_error *error)
{
    e->result = result;
    if (error && *error->message)
        snprintf(e->reason, sizeof e->reason, "%s%s%s", error->label, *error->label ? ": " : "", error->message);
    else
        snprintf(e->reason, sizeof e->reason, "%s", gpusync_result_string(result));
    return true;
}

/* The hooks: a waiter has the task that parks, and the permit of an unpark that came first. */
static void mtl_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    const mtl_scheduler *scheduler = &((mtl_device *)user)->scheduler;
    void *task = scheduler->current_task();
    __atomic_store_n(&waiter->scheduler_data[0], task, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&waiter->scheduler_data[1], __ATOMIC_SEQ_CST))
        scheduler->task_wait(task, deadline_ns);
    __atomic_store_n(&waiter->scheduler_data[1], NULL, __ATOMIC_SEQ_CST);
}

static void mtl_unpark(void *user, gpusync_waiter *waiter)
{
    void *task;
    __atomic_store_n(&waiter->scheduler_data[1], (void *)waiter, __ATOMIC_SEQ_CST);
    task = __atomic_load_n(&waiter->scheduler_data[0], __ATOMIC_SEQ_CST);
    if (task)
        ((mtl_device *)user)->scheduler.task_wake(task);
}

/* The device lives as long as the process. Its waits do not spin, for other tasks are ready. */
bool mtl_device_open(mtl_device *d, const mtl_scheduler *scheduler, uint64_t limit_ns, mtl_exception *e)
{
    static const gpusync_spin at_once = {0};
    const gpusync_hooks hooks = {.park = mtl_park, .unpark = mtl_unpark, .user = d};
    const gpusync_device_desc desc = {.hooks = &hooks, .spin = &at_once};
    gpusync_result result;
    *d = (mtl_device){.scheduler = *scheduler, .limit_ns = limit_ns};
    result = gpusync_device_create(&desc, &d->device);
    return result != GPUSYNC_OK && mtl_throw(e, result, NULL);
}

static void mtl_roots_drop(mtl_roots *roots)
{
    for (size_t i = 0; i < roots->count; i++)
        metal_release(roots->objects[i]);
    free(roots);
}

/* Work of a lost device may have been given up: the GPU may still use the roots, which stay for ever. */
static void mtl_launch_ended(void *user, gpusync_result result, const gpusync_error *error)
{
    mtl_roots *roots = (mtl_roots *)user;
    (void)result;
    (void)error;
    if (gpusync_is_done(roots->queue, roots->ticket))
        mtl_roots_drop(roots);
}

/* Takes the buffer, whatever it returns. The arguments stay until the GPU is finished, even if they are finalized. */
bool mtl_launch(gpusync_queue *queue, void *buffer, void *const *arguments, size_t count, mtl_exception *e)
{
    mtl_roots *roots = (mtl_roots *)malloc(sizeof *roots + count * sizeof *arguments);
    const gpusync_submission submission = {
        .command_buffers = &buffer, .command_buffer_count = 1, .on_complete = mtl_launch_ended, .user = roots};
    gpusync_result result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (roots) {
        *roots = (mtl_roots){.queue = queue, .count = count};
        for (size_t i = 0; i < count; i++)
            roots->objects[i] = metal_retain(arguments[i]);
        result = gpusync_submit(queue, &submission, &roots->ticket);
        if (result != GPUSYNC_OK)
            mtl_roots_drop(roots);
    }
    if (result == GPUSYNC_OK)
        return false;
    gpusync_command_buffer_discard(queue, buffer);
    return mtl_throw(e, result, NULL);
}

/* Throws the first failure that no call has thrown yet: of the queue's work, or, with NULL, of all queues' work. */
bool mtl_synchronize(mtl_device *d, gpusync_queue *queue, mtl_exception *e)
{
    gpusync_error error = {0};
    const gpusync_wait_options options = {.error = &error};
    gpusync_result result = queue ? gpusync_wait(queue, GPUSYNC_EVERYTHING, d->limit_ns, &options)
                                  : gpusync_device_wait(d->device, d->limit_ns, &options);
    return result != GPUSYNC_OK && mtl_throw(e, result, &error);
}
