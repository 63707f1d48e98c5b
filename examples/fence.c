// cc -std=c99 fence.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o fence
//
// A fence for another API over Metal: VkFence, or what onSubmittedWorkDone of WebGPU needs. A thread may wait for it
// before its work is submitted, and it is reset and used again. A ticket exists only from the commit on, so this fence
// is a value of a timeline, after each reset the next one. The timeline is order_only: the fence is signalled also when
// the work fails, and the ticket tells how the work ended.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* -- the fence: one thread at a time resets, submits and destroys it, as in Vulkan; any number wait ---------------- */

typedef struct fence {
    gpusync_timeline *timeline;
    uint64_t value; /* of this use: the fence is signalled when the timeline has reached it */
    gpusync_queue *queue;
    gpusync_ticket ticket; /* of the work of this use */
} fence;

static gpusync_result fence_create(gpusync_device *device, fence *f) /* vkCreateFence */
{
    gpusync_timeline_desc desc = {.label = "fence", .order_only = true};
    f->value = 1;
    return gpusync_timeline_create(device, &desc, &f->timeline);
}

static gpusync_result fence_wait(fence *f, uint64_t timeout_ns) /* vkWaitForFences; with 0 also vkGetFenceStatus */
{
    return gpusync_timeline_wait(f->timeline, f->value, timeout_ns, NULL);
}

/* vkQueueSubmit with a fence. After an error the buffer is gone, and the fence may be submitted with another one. */
static gpusync_result fence_submit(fence *f, gpusync_queue *queue, void *buffer)
{
    gpusync_result result = gpusync_encode_signal(queue, buffer, gpusync_at_value(f->timeline, f->value));
    if (result == GPUSYNC_OK) result = gpusync_commit(queue, buffer, &f->ticket);
    if (result == GPUSYNC_OK) f->queue = queue;
    else gpusync_command_buffer_discard(queue, buffer);
    return result;
}

static gpusync_result fence_result(fence *f, uint64_t timeout_ns) /* of a fence that is signalled: how the work ended */
{
    return gpusync_wait(f->queue, f->ticket, timeout_ns, NULL);
}

static gpusync_result fence_reset(fence *f) /* vkResetFences, of a signalled fence that no thread waits for */
{
    gpusync_result result = fence_wait(f, 0);
    if (result == GPUSYNC_OK) f->value++;
    return result;
}

/* -- a program that uses it --------------------------------------------------------------------------------------- */

static const uint64_t limit = 10000000000; /* nanoseconds */

static void expect(const char *what, gpusync_result wanted, gpusync_result result)
{
    printf("%s: %s\n", what, gpusync_result_string(result));
    if (result != wanted) exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define EXPECT(result, call) expect(#call, GPUSYNC_##result, call)

static void *wait_on_thread(void *user)
{
    EXPECT(OK, fence_wait((fence *)user, limit));
    return NULL;
}

int main(void)
{
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *gate;
    pthread_t thread;
    fence f;
    void *buffer;
    EXPECT(OK, gpusync_device_create(NULL, &device));
    EXPECT(OK, gpusync_queue_create(device, NULL, &queue));
    EXPECT(OK, gpusync_timeline_create(device, NULL, &gate)); /* for work that must not begin */
    EXPECT(OK, fence_create(device, &f));

    if (pthread_create(&thread, NULL, wait_on_thread, &f)) return 1; /* there is no work yet */
    EXPECT(TIMEOUT, fence_wait(&f, 0));
    EXPECT(OK, gpusync_command_buffer_create(queue, NULL, limit, &buffer)); /* ... encode work ... */
    EXPECT(OK, fence_submit(&f, queue, buffer));
    pthread_join(thread, NULL);
    EXPECT(OK, fence_result(&f, limit));

    EXPECT(OK, fence_reset(&f));
    EXPECT(TIMEOUT, fence_wait(&f, 0));
    EXPECT(OK, gpusync_command_buffer_create(queue, NULL, limit, &buffer));
    EXPECT(OK, gpusync_encode_wait(queue, buffer, gpusync_at_value(gate, 1)));
    EXPECT(OK, fence_submit(&f, queue, buffer));
    EXPECT(TIMEOUT, fence_reset(&f)); /* in use */
    EXPECT(OK, gpusync_queue_cancel_held(queue));
    EXPECT(OK, fence_wait(&f, limit)); /* signalled, though ... */
    EXPECT(ERROR_CANCELLED, fence_result(&f, limit));

    EXPECT(OK, gpusync_timeline_destroy(f.timeline)); /* vkDestroyFence */
    EXPECT(OK, gpusync_timeline_destroy(gate));
    EXPECT(OK, gpusync_queue_destroy(queue));
    EXPECT(OK, gpusync_device_destroy(device));
    return 0;
}
