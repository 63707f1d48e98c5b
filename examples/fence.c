// cc -std=c99 fence.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o fence
// The fence of another API, such as VkFence: threads may wait for it before its work is submitted, and it is used again.
// It is a value of a timeline, after a reset the next one. With order_only work that fails signals it, too: the ticket
// tells how the work ended.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

/* vkQueueSubmit. After an error the command buffer is still open, and the fence is not used. */
static gpusync_result fence_submit(gpusync_queue *queue, void *buffer, gpusync_point fence, gpusync_ticket *ticket)
{
    gpusync_result result = gpusync_encode_signal(queue, buffer, fence);
    return result != GPUSYNC_OK ? result : gpusync_commit(queue, buffer, ticket);
}

int main(void)
{
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    gpusync_timeline_desc desc = {.label = "fence", .order_only = true};
    gpusync_point fence = {0};
    void *buffer;
    MUST(gpusync_device_create(NULL, &device));
    MUST(gpusync_queue_create(device, NULL, &queue));
    MUST(gpusync_timeline_create(device, &desc, &fence.timeline)); /* vkCreateFence */
    for (fence.value = 1; fence.value <= 3; fence.value++) {       /* vkResetFences: the fence is signalled */
        bool before = gpusync_timeline_wait(fence.timeline, fence.value, 0, NULL) == GPUSYNC_OK; /* vkGetFenceStatus */
        metal_refuse_next(fence.value == 2); /* where the device can do this, the second work fails */
        MUST(gpusync_command_buffer_create(queue, NULL, 1000000000, &buffer));
        MUST(fence_submit(queue, buffer, fence, &ticket));
        MUST(gpusync_timeline_wait(fence.timeline, fence.value, 1000000000, NULL)); /* vkWaitForFences */
        printf("use %d: %s, signalled; work: %s\n", (int)fence.value, before ? "signalled" : "unsignalled",
               gpusync_result_string(MUST_END(gpusync_wait(queue, ticket, 1000000000, NULL))));
    }
    MUST(gpusync_timeline_destroy(fence.timeline)); /* vkDestroyFence */
    MUST(gpusync_queue_destroy(queue));
    return gpusync_device_destroy(device) != GPUSYNC_OK;
}
