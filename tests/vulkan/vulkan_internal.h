/* vulkan_internal.h - Metal's classes over Vulkan: a device on which work takes time by itself. For tests and benches

   A program sends Metal's messages. What it encodes is done by a Vulkan device: lavapipe on the CPU's threads, or a GPU.

   What is Vulkan's, so code that others wrote: memory and its visibility, fills, copies and kernels (SPIR-V of
   kernels.comp), how long they take, the order of work that waits for other work, the times that the device writes, and
   the moment at which a thread learns that work has ended.

   What is softmetal's, shared and not copied: the runtime, reference counts and what is told of a freed object, blocks,
   dispatch queues, the recording of encoders with its rules, the host's side of a shared event with its listeners, the
   texts of errors, descriptors.

   What is invented here: that a command buffer fails (vulkan_fail), labels, the classes' names. Nothing here says how
   Apple's Metal sets a status, fails, or calls a handler.

   A queue
     Its committed buffers go to Vulkan in Metal's order, part by part: a part ends where the buffer waits for an event, and
     behind what it signals. Each part raises the timeline semaphore of its queue by one. So a place of that semaphore
     stands for the end of a part. One thread for each queue waits for the next place (vkWaitSemaphores), notes the times
     and the status, and gives the handlers to the queue's serial dispatch queue. There they run, in the order of commits;
     then the references go, the place in the queue is free, and waitUntilCompleted returns.

   An event
     Its value is the host's: any number, in any order, UINT64_MAX as well. Vulkan's timeline semaphores forbid a value that
     is not above those that are reached or pending, and one too far above. So the event itself has no semaphore: a signal
     is a value and the place that reaches it. A wait is for the place of a signal that covers it. As long as there is no
     such signal, and the host has not raised the event, the part is kept back here, with all behind it in its queue. So what
     Vulkan has got waits for nothing but what it has got before: several queues of Metal may share one of Vulkan.

   Locks: `lock` of the device is over its queues, their parts, pools and VkQueues, and over the events' signals. No message
   that runs the program's code is sent under it. An event's own lock, for its value, is softmetal's, and taken alone. */
#ifndef VULKAN_INTERNAL_H
#define VULKAN_INTERNAL_H

#include "../softmetal/softmetal_internal.h"
#include "vulkan.h"

#include <vulkan/vulkan.h>

#define VK_DO(call)                                                            \
    do {                                                                       \
        VkResult vk_result = (call);                                           \
        SM_REQUIRE(vk_result == VK_SUCCESS, INTERNAL, "%s: %d", #call, vk_result); \
    } while (0)

@class VulkanCommandBuffer, VulkanEvent;

/* -- the device: vulkan_device.m */

#define MOST_LINES 16u /* VkQueues that are used */

@interface VulkanDevice : SoftMetalDevice {
@public
    pthread_mutex_t lock;
    VkPhysicalDevice gpu;
    VkPhysicalDeviceProperties properties;
    char driver[VK_MAX_DRIVER_NAME_SIZE + VK_MAX_DRIVER_INFO_SIZE];
    VkDevice device;
    VkQueue lines[MOST_LINES];
    unsigned line_count, next_line;
    uint32_t family, memory_type;
    VkPipelineLayout layout;
    uint64_t calibrated_ns;          /* the host's time at which ... */
    uint64_t calibrated_ticks;       /* ... the device's clock stood here */
    struct vulkan_engine *engines;
}
@end

@interface VulkanBuffer : SoftMetalBuffer {
@public
    VkBuffer buffer;
    VkDeviceMemory memory;
    VkDeviceAddress address;
}
@end

@interface VulkanPipeline : SoftMetalPipeline {
@public
    VkPipeline pipeline;
}
@end

/* What a kernel finds; the block of kernels.comp. */
#define KERNEL_BUFFERS 4
#define KERNEL_BYTES 16
typedef struct kernel_arguments {
    VkDeviceAddress buffers[KERNEL_BUFFERS];
    unsigned char bytes[KERNEL_BYTES]; /* of setBytes:length:atIndex:, whatever its index */
    uint32_t threads;
} kernel_arguments;

double vulkan_seconds(VulkanDevice *device, uint64_t ticks); /* by the clock of sm_now; with the lock */

/* -- queues: vulkan_queue.m */

/* What goes to Vulkan at once. */
typedef struct vulkan_part {
    struct vulkan_part *next;
    VulkanCommandBuffer *buffer; /* which Metal's own reference keeps */
    VkCommandBuffer commands;
    VkQueryPool times; /* where it begins, where it ends */
    uint64_t place;
    unsigned begin, end; /* of the buffer's commands */
    bool last;
} vulkan_part;

/* What a queue and its thread share. It goes with the device: other queues' work may wait for its semaphore. */
typedef struct vulkan_engine {
    struct vulkan_engine *next; /* of the device */
    VulkanDevice *device;
    VkQueue line;
    VkCommandPool pool;
    VkSemaphore semaphore;
    uint64_t place;                       /* of the newest part */
    vulkan_part *first, *last;            /* with Vulkan, by place */
    VulkanCommandBuffer *head, *tail;     /* in line: enqueued, or committed and not wholly with Vulkan */
    id handlers;                          /* a serial dispatch queue */
    unsigned limit, used;                 /* command buffers that have not ended */
    bool dying;
    pthread_cond_t changed; /* any of it */
} vulkan_engine;

id vulkan_new_queue(VulkanDevice *device, unsigned long limit); /* +1 */
void vulkan_pump(VulkanDevice *device); /* with the lock: what may go to Vulkan goes */
void vulkan_free_engines(VulkanDevice *device);
/* At the end, for 10 s at most: a thread that is still in Vulkan would meet what the driver's destructors leave. */
void vulkan_come_to_rest(void);

@interface VulkanQueue : SoftMetalObject {
@public
    VulkanDevice *device; /* +1 */
    vulkan_engine *engine;
    NSString *label;
}
@end

@interface VulkanCommandBuffer : SoftMetalObject {
@public
    VulkanQueue *queue; /* +1 */
    VulkanCommandBuffer *next; /* in line */
    sm_recording recorded;
    SoftMetalEncoder *encoder; /* the active one, not retained */
    NSString *label;
    sm_fault fault;
    unsigned long status; /* atomic */
    id error;             /* +1; error and times: before the status is terminal */
    double gpu_start, gpu_end;

    /* Guarded by the device's lock. */
    unsigned done; /* commands that are with Vulkan */
    bool in_line, committed, handlers_done;
    uint64_t start_ticks;
    sm_blocks blocks; /* handlers; until the commit the program's, then those of the queue's dispatch queue */
}
@end

/* -- events: vulkan_event.m */

typedef struct vulkan_signal {
    vulkan_engine *engine;
    uint64_t place, value;
} vulkan_signal;

@interface VulkanEvent : SoftMetalSharedEvent {
@public
    VulkanDevice *owner; /* +1 */
    vulkan_signal *signals; /* pending, and the highest that is reached; guarded by the owner's lock */
    unsigned signal_count;
}
@end

/* With the lock. */
void vulkan_event_add(VulkanEvent *event, vulkan_engine *engine, uint64_t place, uint64_t value);
/* With the lock: what a wait for the value is for in Vulkan, which has it, or had it. NULL: nothing. */
const vulkan_signal *vulkan_event_signal(VulkanEvent *event, uint64_t value);
void vulkan_event_look(VulkanEvent *event); /* without the lock: the host's value follows the device's */

#endif
