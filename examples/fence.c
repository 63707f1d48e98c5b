// cc -std=c99 fence.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o fence
//
// A fence for another API over Metal: VkFence, or what onSubmittedWorkDone of WebGPU needs. It is an object: a thread
// may wait for it before its work is submitted, and it is reset and used again. A ticket exists only from the commit
// on, so this fence is a value of a timeline: after each reset the next one. A failure of the work reaches it.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* -- the fence: one thread at a time resets, submits and destroys it, as in Vulkan; any number wait ---------------- */

typedef struct fence {
    gpusync_device *device;
    bool submitted;       /* in this use */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t left;  /* the last wait has left the timeline */
    gpusync_timeline *timeline;
    uint64_t value;       /* of this use: the fence is signalled when the timeline has reached it */
    unsigned waits;       /* in the timeline: it must not be destroyed meanwhile */
} fence;

static gpusync_result fence_create(gpusync_device *device, fence **out)
{
    fence *f = (fence *)calloc(1, sizeof *f);
    gpusync_result result = f ? gpusync_timeline_create(device, NULL, &f->timeline) : GPUSYNC_ERROR_OUT_OF_MEMORY;
    *out = NULL;
    if (result != GPUSYNC_OK) {
        free(f);
        return result;
    }
    f->device = device;
    f->value = 1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->left, NULL);
    *out = f;
    return GPUSYNC_OK;
}

/* vkGetFenceStatus. OK: signalled; GPUSYNC_NOT_READY; else how the work failed. */
static gpusync_result fence_status(fence *f)
{
    gpusync_result result;
    uint64_t reached = 0;
    pthread_mutex_lock(&f->lock);
    result = gpusync_timeline_query(f->timeline, &reached);
    if (result == GPUSYNC_OK && reached < f->value) result = GPUSYNC_NOT_READY;
    pthread_mutex_unlock(&f->lock);
    return result;
}

static gpusync_result fence_wait(fence *f, uint64_t timeout_ns, gpusync_error *error) /* vkWaitForFences */
{
    gpusync_wait_options options = {0};
    gpusync_timeline *timeline;
    gpusync_result result;
    uint64_t value;
    options.error = error;
    pthread_mutex_lock(&f->lock);
    timeline = f->timeline;
    value = f->value;
    f->waits++;
    pthread_mutex_unlock(&f->lock);
    result = gpusync_timeline_wait(timeline, value, timeout_ns, &options); /* without the lock */
    pthread_mutex_lock(&f->lock);
    if (--f->waits == 0) pthread_cond_broadcast(&f->left);
    pthread_mutex_unlock(&f->lock);
    return result;
}

/* With the lock. The timeline has failed, so waits in it return at once. Work that is to signal it keeps its event. */
static gpusync_result destroy_timeline(fence *f)
{
    while (f->waits > 0) pthread_cond_wait(&f->left, &f->lock);
    return gpusync_timeline_destroy(f->timeline);
}

/* vkResetFences. Waits for a fence that is not submitted go on waiting. */
static gpusync_result fence_reset(fence *f)
{
    gpusync_timeline *fresh = NULL;
    gpusync_result result = fence_status(f);
    if (result == GPUSYNC_NOT_READY) return f->submitted ? GPUSYNC_ERROR_IN_USE : GPUSYNC_OK;
    if (result != GPUSYNC_OK) { /* a timeline that has failed stays failed */
        result = gpusync_timeline_create(f->device, NULL, &fresh);
        if (result != GPUSYNC_OK) return result;
    }
    pthread_mutex_lock(&f->lock);
    if (fresh) result = destroy_timeline(f);
    f->value = fresh ? 1 : f->value + 1;
    f->timeline = fresh ? fresh : f->timeline;
    pthread_mutex_unlock(&f->lock);
    f->submitted = false;
    return result;
}

/* vkQueueSubmit with a fence. After an error the buffer is gone, and the fence may be submitted with another one. */
static gpusync_result fence_submit(fence *f, gpusync_queue *queue, void *buffer)
{
    gpusync_result result = GPUSYNC_ERROR_IN_USE;
    if (!f->submitted) result = gpusync_encode_signal(queue, buffer, gpusync_at_value(f->timeline, f->value));
    if (result == GPUSYNC_OK) result = gpusync_commit(queue, buffer, NULL);
    if (result == GPUSYNC_OK) f->submitted = true;
    else gpusync_command_buffer_discard(queue, buffer);
    return result;
}

/* vkDestroyFence, but more lenient: waits end with GPUSYNC_ERROR_CANCELLED, and work may be in flight. */
static gpusync_result fence_destroy(fence *f)
{
    gpusync_error why = {0};
    gpusync_result result;
    if (!f) return GPUSYNC_OK;
    why.result = GPUSYNC_ERROR_CANCELLED;
    why.failure = GPUSYNC_FAILURE_CANCELLED;
    pthread_mutex_lock(&f->lock);
    gpusync_timeline_fail(f->timeline, &why); /* returns an earlier failure, which does as well */
    result = destroy_timeline(f);
    pthread_mutex_unlock(&f->lock);
    pthread_cond_destroy(&f->left);
    pthread_mutex_destroy(&f->lock);
    free(f);
    return result;
}

/* -- a program that uses it --------------------------------------------------------------------------------------- */

#define LIMIT UINT64_C(10000000000) /* nanoseconds */

static gpusync_result failed(const char *call, gpusync_result result)
{
    if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result;
}
#define FAILED(call) failed(#call, call)

static void *wait_on_thread(void *user)
{
    gpusync_error error = {0};
    gpusync_result result = FAILED(fence_wait((fence *)user, LIMIT, &error));
    printf("the thread: %s%s%s\n", gpusync_result_string(result), *error.message ? ": " : "", error.message);
    return NULL;
}

static gpusync_result submit(fence *f, gpusync_queue *queue)
{
    void *buffer;
    gpusync_result result = FAILED(gpusync_command_buffer(queue, NULL, &buffer));
    if (result != GPUSYNC_OK) return result;
    /* ... encode work ... */
    return FAILED(fence_submit(f, queue, buffer));
}

static gpusync_result use_twice(fence *f, gpusync_queue *queue)
{
    gpusync_result first, second;
    pthread_t thread;
    printf("made: %s\n", gpusync_result_string(fence_status(f)));
    if (pthread_create(&thread, NULL, wait_on_thread, f)) return failed("pthread_create", GPUSYNC_ERROR_OUT_OF_MEMORY);
    first = submit(f, queue); /* after an error the thread waits until its limit */
    pthread_join(thread, NULL);
    if (first == GPUSYNC_OK) first = fence_status(f);

    second = FAILED(fence_reset(f)); /* also of a fence whose work has failed */
    if (second == GPUSYNC_OK) printf("reset: %s\n", gpusync_result_string(fence_wait(f, 0, NULL)));
    if (second == GPUSYNC_OK) second = submit(f, queue);
    if (second == GPUSYNC_OK) second = FAILED(fence_wait(f, LIMIT, NULL));
    printf("again: %s\n", gpusync_result_string(second));
    return first == GPUSYNC_OK ? second : first;
}

int main(void)
{
    gpusync_device *device;
    gpusync_queue *queue = NULL;
    fence *f = NULL;
    gpusync_result result = gpusync_device_create(NULL, &device);
    bool good;
    if (result == GPUSYNC_ERROR_NO_DEVICE) {
        fprintf(stderr, "skipped: %s\n", gpusync_result_string(result));
        return 77;
    }
    if (failed("gpusync_device_create", result)) return 1;
    good = !FAILED(gpusync_queue_create(device, NULL, &queue)) && !FAILED(fence_create(device, &f)) &&
           use_twice(f, queue) == GPUSYNC_OK;
    if (FAILED(fence_destroy(f))) good = false;
    if (gpusync_queue_wait(queue, 0) == GPUSYNC_TIMEOUT) gpusync_queue_destroy_now(queue); /* the GPU hangs */
    else if (FAILED(gpusync_queue_destroy(queue))) good = false;
    if (FAILED(gpusync_device_destroy(device))) good = false;
    return !good;
}
