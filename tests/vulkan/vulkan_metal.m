/* vulkan_metal.m - Metal's classes over Vulkan: a device on which work takes time by itself

   A program sends Metal's messages. What it encodes is done by a Vulkan device: Mesa's lavapipe, on threads of the CPU.

   Vulkan's, so code of other authors: memory and its visibility, fills, copies and kernels (SPIR-V of kernels.comp),
   how long they take, the order of work that waits for other work, the times that the device writes, and the moment at
   which a thread learns that work has ended. Softmetal's, shared and not copied: the runtime, blocks, dispatch queues,
   the recording of encoders with its rules, the host's side of a shared event with its listeners, the texts of errors.
   Invented here: that a command buffer fails (vulkan_fail). Nothing here says how Apple's Metal sets a status, fails,
   or calls a handler.

   A queue is a thread. It takes the committed buffers in their order, and gives each to Vulkan part by part: a part
   ends where the buffer waits for an event, and behind what it signals. It waits for the end of a part before it takes
   the next one, raises the events, notes times and status, and gives the handlers to the queue's serial dispatch queue.
   There they run, in the order of commits; then the references go, the place in the queue is free, and
   waitUntilCompleted returns. So queues run beside each other, and only events order what they do: lavapipe alone,
   which has one VkQueue, would do all in the order of commits, and no wait that gpusync forgets would be seen.

   An event's value is softmetal's: the host's side and the threads of queues raise it, and a part that waits is kept
   back here. Vulkan knows nothing of it.

   `lock` of the device is over its queues and the VkQueue. No message that runs the program's code is sent under it. */
#include "../softmetal/softmetal_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

#include "step.h"
#include "work.h"

#define VK_DO(call)                                                            \
    do {                                                                       \
        VkResult vk_result = (call);                                           \
        SM_REQUIRE(vk_result == VK_SUCCESS, INTERNAL, "%s: %d", #call, vk_result); \
    } while (0)

@class VulkanCommandBuffer;

@interface VulkanDevice : SoftMetalDevice {
@public
    pthread_mutex_t lock;
    VkPhysicalDevice gpu;
    VkDevice device;
    VkQueue line;
    VkPipelineLayout layout;
    pthread_cond_t changed; /* anything under the lock, or an event */
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

/* What a queue and its thread share; the thread frees it. */
typedef struct vulkan_engine {
    VulkanDevice *device; /* +1 */
    VkCommandPool pool;
    VkCommandBuffer commands; /* of the part that runs, like the rest of Vulkan's */
    VkQueryPool times;
    VkFence fence;
    VulkanCommandBuffer *head, *tail; /* committed, and not over */
    id handlers;                      /* a serial dispatch queue */
    unsigned limit, used;             /* command buffers whose handlers have not run */
    bool dying;
} vulkan_engine;

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
    bool handlers_done;
    sm_blocks blocks; /* handlers; until the commit the program's, then those of the queue's dispatch queue */
}
@end

@interface VulkanEvent : SoftMetalSharedEvent {
@public
    VulkanDevice *owner; /* +1 */
}
@end

static void tell_all(VulkanDevice *device)
{
    pthread_mutex_lock(&device->lock);
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
}

@implementation VulkanEvent
- (void)setSignaledValue:(uint64_t)wanted
{
    [super setSignaledValue:wanted];
    tell_all(owner);
}
- (void)dealloc
{
    [owner release];
    [super dealloc];
}
@end

/* Committed buffers whose handlers have not run, threads whose queue has gone. */
static long busy;

static void count_busy(long change)
{
    __atomic_fetch_add(&busy, change, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------------------------- what Vulkan is told to do -- */

/* All that was written before is seen by all that comes after, the host included. */
static void put_barrier(VkCommandBuffer commands)
{
    VkMemoryBarrier all = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_READ_BIT,
    };
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                         VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &all, 0, NULL, 0, NULL);
}

static VulkanBuffer *vulkan_memory(id memory)
{
    sm_check_argument(memory, [VulkanBuffer class], "memory");
    return memory;
}

static void put_fill(VkCommandBuffer commands, const sm_command *fill)
{
    SM_REQUIRE(fill->offset % 4 == 0 && fill->length % 4 == 0, BLIT_RANGE, "a fill of whole words, as on macOS");
    vkCmdFillBuffer(commands, vulkan_memory(fill->object)->buffer, fill->offset, fill->length,
                    (uint32_t)fill->value * UINT32_C(0x01010101));
}

static void put_copy(VkCommandBuffer commands, const sm_command *copy)
{
    VulkanBuffer *from = vulkan_memory(copy->object), *to = vulkan_memory(copy->destination);
    VkBufferCopy region = {copy->offset, copy->destination_offset, copy->length};
    vkCmdCopyBuffer(commands, from->buffer, to->buffer, 1, &region);
}

static void put_dispatch(VulkanDevice *device, VkCommandBuffer commands, const sm_command *dispatch)
{
    kernel_arguments arguments = {.threads = (uint32_t)(dispatch->grid[0] * dispatch->grid[1] * dispatch->grid[2])};
    for (unsigned i = 0; i < SM_BINDINGS; i++) {
        const sm_binding *binding = &dispatch->bindings[i];
        bool fits = !binding->buffer ? binding->length <= KERNEL_BYTES : i < KERNEL_BUFFERS && binding->offset % 4 == 0;
        SM_REQUIRE(fits, BAD_BINDING, "kernels.comp has no place for what is bound to %u", i);
        if (binding->buffer)
            arguments.buffers[i] = vulkan_memory(binding->buffer)->address + binding->offset;
        else if (binding->bytes)
            memcpy(arguments.bytes, binding->bytes, binding->length);
    }
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, ((VulkanPipeline *)dispatch->object)->pipeline);
    vkCmdPushConstants(commands, device->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof arguments, &arguments);
    vkCmdDispatch(commands, (arguments.threads + 31) / 32, 1, 1);
}

/* ---------------------------------------------------------------------------------------------- the thread -- */

/* With the lock: records the part that begins there, and submits it. Returns where it ends. */
static unsigned submit(vulkan_engine *engine, const VulkanCommandBuffer *buffer, unsigned i)
{
    VkCommandBufferBeginInfo once = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    };
    VkCommandBuffer to = engine->commands;
    VkSubmitInfo work = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &to};
    const sm_command *commands = buffer->recorded.commands;
    unsigned count = buffer->recorded.command_count;
    VK_DO(vkBeginCommandBuffer(to, &once));
    vkCmdResetQueryPool(to, engine->times, 0, 2);
    put_barrier(to);
    vkCmdWriteTimestamp(to, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, engine->times, 0);
    while (i < count && commands[i].kind == SM_WAIT) i++;
    for (; i < count && commands[i].kind != SM_WAIT && commands[i].kind != SM_SIGNAL; i++) {
        if (buffer->fault.set) continue;
        put_barrier(to);
        if (commands[i].kind == SM_FILL) put_fill(to, &commands[i]);
        if (commands[i].kind == SM_COPY) put_copy(to, &commands[i]);
        if (commands[i].kind == SM_DISPATCH) put_dispatch(engine->device, to, &commands[i]);
    }
    while (i < count && commands[i].kind == SM_SIGNAL) i++;
    put_barrier(to);
    vkCmdWriteTimestamp(to, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, engine->times, 1);
    VK_DO(vkEndCommandBuffer(to));
    VK_DO(vkQueueSubmit(engine->device->line, 1, &work, engine->fence));
    return i;
}

/* Without the lock: until the part has ended; raises its events. */
static void finish(vulkan_engine *engine, VulkanCommandBuffer *buffer, unsigned begin, unsigned end)
{
    VkDevice device = engine->device->device;
    const sm_command *commands = buffer->recorded.commands;
    uint64_t ticks[2]; /* nanoseconds of CLOCK_MONOTONIC */
    VK_DO(vkWaitForFences(device, 1, &engine->fence, VK_TRUE, UINT64_MAX));
    VK_DO(vkResetFences(device, 1, &engine->fence));
    VK_DO(vkGetQueryPoolResults(device, engine->times, 0, 2, sizeof ticks, ticks, sizeof *ticks,
                                VK_QUERY_RESULT_64_BIT));
    if (begin == 0) buffer->gpu_start = (double)ticks[0] / 1e9;
    buffer->gpu_end = (double)ticks[1] / 1e9;
    for (unsigned i = begin; i < end && !buffer->fault.set; i++)
        if (commands[i].kind == SM_SIGNAL && commands[i].value > sm_event_value(commands[i].object))
            sm_event_raise(commands[i].object, commands[i].value);
    tell_all(engine->device);
}

static void set_status(VulkanCommandBuffer *buffer, unsigned long status)
{
    __atomic_store_n(&buffer->status, status, __ATOMIC_RELEASE);
}

static void call_handlers(VulkanCommandBuffer *buffer)
{
    for (unsigned i = 0; i < buffer->blocks.count; i++) {
        NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
        sm_block_check(&buffer->blocks.items[i]);
        ((void (^)(id))buffer->blocks.items[i].block)(buffer);
        sm_block_drop(&buffer->blocks.items[i]);
        [pool release];
    }
    buffer->blocks.count = 0;
}

/* Handlers, references, room, waitUntilCompleted: in this order. */
static void run_handlers(void *context)
{
    VulkanCommandBuffer *buffer = context;
    VulkanDevice *device = buffer->queue->device;
    call_handlers(buffer);
    sm_recording_clear(&buffer->recorded);
    pthread_mutex_lock(&device->lock);
    buffer->handlers_done = true;
    buffer->queue->engine->used--;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
    [buffer release]; /* Metal's own reference */
    count_busy(-1);
}

/* With the lock. */
static bool is_held_up(const VulkanCommandBuffer *buffer, unsigned i)
{
    for (; i < buffer->recorded.command_count && buffer->recorded.commands[i].kind == SM_WAIT; i++)
        if (sm_event_value(buffer->recorded.commands[i].object) < buffer->recorded.commands[i].value) return true;
    return false;
}

/* With the lock, which it gives back while a part runs. */
static void run_buffer(vulkan_engine *engine, VulkanCommandBuffer *buffer)
{
    VulkanDevice *device = engine->device;
    unsigned end = 0;
    do {
        unsigned begin = end;
        while (is_held_up(buffer, begin)) pthread_cond_wait(&device->changed, &device->lock);
        set_status(buffer, SM_SCHEDULED);
        end = submit(engine, buffer, begin);
        pthread_mutex_unlock(&device->lock);
        finish(engine, buffer, begin, end);
        pthread_mutex_lock(&device->lock);
    } while (end < buffer->recorded.command_count);
    engine->head = buffer->next;
    if (buffer->fault.set) buffer->error = sm_new_failure(&buffer->fault, false);
    set_status(buffer, buffer->fault.set ? SM_ERRONEOUS : SM_COMPLETED);
    sm_dispatch(engine->handlers, buffer, run_handlers, "the handlers");
}

static void *run_queue(void *argument)
{
    vulkan_engine *engine = argument;
    VulkanDevice *device = engine->device;
    pthread_mutex_lock(&device->lock);
    while (engine->head || !engine->dying) {
        if (engine->head)
            run_buffer(engine, engine->head);
        else
            pthread_cond_wait(&device->changed, &device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    sm_dispatch_release(engine->handlers);
    vkDestroyCommandPool(device->device, engine->pool, NULL);
    vkDestroyQueryPool(device->device, engine->times, NULL);
    vkDestroyFence(device->device, engine->fence, NULL);
    free(engine);
    [device release];
    count_busy(-1);
    return NULL;
}

static vulkan_engine *new_engine(VulkanDevice *device, unsigned limit)
{
    VkCommandPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
    };
    VkCommandBufferAllocateInfo one = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandBufferCount = 1,
    };
    VkQueryPoolCreateInfo two = {
        .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = 2,
    };
    VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    vulkan_engine *engine = calloc(1, sizeof *engine);
    SM_REQUIRE(engine, INTERNAL, "out of memory");
    engine->device = [device retain];
    engine->limit = limit;
    engine->handlers = sm_dispatch_queue_new(NULL);
    VK_DO(vkCreateCommandPool(device->device, &pool, NULL, &engine->pool));
    one.commandPool = engine->pool;
    VK_DO(vkAllocateCommandBuffers(device->device, &one, &engine->commands));
    VK_DO(vkCreateQueryPool(device->device, &two, NULL, &engine->times));
    VK_DO(vkCreateFence(device->device, &fence, NULL, &engine->fence));
    sm_thread_start(run_queue, engine);
    return engine;
}

/* --------------------------------------------------------------------------------------------- the queue -- */

static id new_queue(VulkanDevice *device, unsigned long limit)
{
    SM_REQUIRE(limit > 0, BAD_LENGTH, "newCommandQueueWithMaxCommandBufferCount: 0");
    VulkanQueue *queue = [[VulkanQueue alloc] init];
    queue->device = [device retain];
    queue->engine = new_engine(device, limit > UINT32_MAX ? UINT32_MAX : (unsigned)limit);
    return queue;
}

static id new_buffer(VulkanQueue *queue, bool retains)
{
    vulkan_engine *engine = queue->engine;
    SM_REQUIRE(sm_has_pool(), NO_POOL, "commandBuffer");
    pthread_mutex_lock(&engine->device->lock);
    while (engine->used >= engine->limit) pthread_cond_wait(&engine->device->changed, &engine->device->lock);
    engine->used++;
    pthread_mutex_unlock(&engine->device->lock);
    VulkanCommandBuffer *buffer = [[VulkanCommandBuffer alloc] init];
    buffer->queue = [queue retain];
    buffer->recorded.retains = retains;
    return [buffer autorelease];
}

@implementation VulkanQueue
+ (sm_kind)softmetalKind
{
    return SM_QUEUE;
}
- (id)device
{
    return device;
}
SM_HAS_LABEL
- (id)commandBuffer
{
    return new_buffer(self, true);
}
- (id)commandBufferWithUnretainedReferences
{
    return new_buffer(self, false);
}
- (id)commandBufferWithDescriptor:(id)descriptor
{
    sm_check_argument(descriptor, [MTLCommandBufferDescriptor class], "commandBufferWithDescriptor:");
    return new_buffer(self, ((MTLCommandBufferDescriptor *)descriptor)->retains);
}
/* Nothing of it is in line any more. */
- (void)dealloc
{
    pthread_mutex_lock(&device->lock);
    engine->dying = true;
    count_busy(1);
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
    [label release];
    [device release];
    [super dealloc];
}
@end

/* ------------------------------------------------------------------------------------- the command buffer -- */

static void check_encodable(const VulkanCommandBuffer *buffer, const char *what)
{
    SM_REQUIRE(buffer->status < SM_COMMITTED, ENCODE_AFTER_COMMIT, "%s", what);
    SM_REQUIRE(!buffer->encoder, SECOND_ENCODER, "%s", what);
}

/* Encoders know softmetal's command buffers. Without one they take what they need from here. */
static id new_encoder(VulkanCommandBuffer *buffer, Class cls, const char *what)
{
    check_encodable(buffer, what);
    SM_REQUIRE(sm_has_pool(), NO_POOL, "%s", what);
    SoftMetalEncoder *encoder = [[cls alloc] init];
    encoder->device = buffer->queue->device;
    encoder->recording = &buffer->recorded;
    encoder->active = &buffer->encoder;
    buffer->encoder = encoder;
    return [encoder autorelease];
}

static void encode_event(VulkanCommandBuffer *buffer, sm_command_kind kind, id event, uint64_t value, const char *what)
{
    check_encodable(buffer, what);
    sm_check_argument(event, [VulkanEvent class], what);
    SM_REQUIRE(((VulkanEvent *)event)->owner == buffer->queue->device, OTHER_DEVICE, "%s", what);
    sm_refer(&buffer->recorded, event);
    sm_command *command = sm_record(&buffer->recorded, kind);
    command->object = event;
    command->value = value;
}

@implementation VulkanCommandBuffer
+ (sm_kind)softmetalKind
{
    return SM_COMMAND_BUFFER;
}
SM_HAS_LABEL
- (id)commandQueue
{
    return queue;
}
- (unsigned long)status
{
    return __atomic_load_n(&status, __ATOMIC_ACQUIRE);
}
- (id)error
{
    return [self status] == SM_ERRONEOUS ? sm_handed_out(error) : nil;
}
- (double)GPUStartTime
{
    return [self status] < SM_COMPLETED ? 0 : gpu_start;
}
- (double)GPUEndTime
{
    return [self status] < SM_COMPLETED ? 0 : gpu_end;
}
- (id)blitCommandEncoder
{
    return new_encoder(self, [SoftMetalBlitEncoder class], "blitCommandEncoder");
}
- (id)computeCommandEncoder
{
    return new_encoder(self, [SoftMetalComputeEncoder class], "computeCommandEncoder");
}
- (void)encodeSignalEvent:(id)event value:(uint64_t)value
{
    encode_event(self, SM_SIGNAL, event, value, "encodeSignalEvent:value:");
}
- (void)encodeWaitForEvent:(id)event value:(uint64_t)value
{
    encode_event(self, SM_WAIT, event, value, "encodeWaitForEvent:value:");
}
- (void)addCompletedHandler:(id)block
{
    SM_REQUIRE([self status] < SM_COMMITTED, HANDLER_AFTER_COMMIT, "%p", (void *)self);
    SM_REQUIRE(block, NIL_ARGUMENT, "addCompletedHandler:");
    sm_blocks_add(&blocks, sm_block_take(block));
}
- (void)commit
{
    SM_REQUIRE(!encoder, COMMIT_WITH_ENCODER, "commit");
    SM_REQUIRE([self status] < SM_COMMITTED, DOUBLE_COMMIT, "%p", (void *)self);
    [self retain]; /* Metal's own, until its handlers have run */
    pthread_mutex_lock(&queue->device->lock);
    *(queue->engine->head ? &queue->engine->tail->next : &queue->engine->head) = self;
    queue->engine->tail = self;
    set_status(self, SM_COMMITTED);
    count_busy(1);
    pthread_cond_broadcast(&queue->device->changed);
    pthread_mutex_unlock(&queue->device->lock);
}
- (void)waitUntilCompleted
{
    SM_REQUIRE([self status] >= SM_COMMITTED, WAIT_BEFORE_COMMIT, "%p", (void *)self);
    pthread_mutex_lock(&queue->device->lock);
    while (!handlers_done) pthread_cond_wait(&queue->device->changed, &queue->device->lock);
    pthread_mutex_unlock(&queue->device->lock);
}
/* Not committed: its place is free again, and its handlers never run. */
- (void)dealloc
{
    for (unsigned i = 0; i < blocks.count; i++) sm_block_drop(&blocks.items[i]);
    free(blocks.items);
    sm_recording_clear(&recorded);
    if (status < SM_COMMITTED) {
        pthread_mutex_lock(&queue->device->lock);
        queue->engine->used--;
        pthread_cond_broadcast(&queue->device->changed);
        pthread_mutex_unlock(&queue->device->lock);
    }
    [fault.text release];
    [error release];
    [label release];
    [queue release];
    [super dealloc];
}
@end

void vulkan_fail(void *command_buffer, long code, const char *text)
{
    sm_check_argument((id)command_buffer, [VulkanCommandBuffer class], "vulkan_fail");
    VulkanCommandBuffer *buffer = command_buffer;
    [buffer->fault.text release];
    buffer->fault = (sm_fault){.set = true, .code = code, .text = text ? sm_new_string(text) : nil};
}

/* --------------------------------------------------------------------------------------------- the end -- */

long vulkan_live(void)
{
    for (unsigned ms = 0; softmetal_live(NULL) > 0 && ms < 10000; ms++) sm_sleep_precisely(SM_MILLISECOND);
    return softmetal_live(NULL);
}

static void come_to_rest(void)
{
    for (unsigned ms = 0; __atomic_load_n(&busy, __ATOMIC_ACQUIRE) > 0 && ms < 10000; ms++)
        sm_sleep_precisely(SM_MILLISECOND);
}

/* ---------------------------------------------------------------------------------------- finding a device -- */

/* One for the process, and never destroyed: a driver that is unloaded leaks what its own globals name. */
static VkInstance instance;

static void set_up(void)
{
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo wanted = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    softmetal_set_quirks(&(softmetal_quirks){.no_metal4_family = true});
    softmetal_hide_selector("newMTL4CommandQueue");
    if (vkCreateInstance(&wanted, NULL, &instance)) instance = NULL;
}

/* What is wrong with it; NULL: nothing. Of lavapipe's one family of queues, its one kind of memory and its clock the
   rest of this file knows what is checked here. */
static const char *find_lavapipe(VulkanDevice *self)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    VkMemoryPropertyFlags shared = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    VkPhysicalDevice all[16];
    VkPhysicalDeviceProperties properties;
    VkPhysicalDeviceMemoryProperties memory;
    VkQueueFamilyProperties family;
    uint32_t count = 16, one = 1;
    pthread_once(&once, set_up);
    if (!instance) return "there is no Vulkan";
    VkResult listed = vkEnumeratePhysicalDevices(instance, &count, all);
    if (listed && listed != VK_INCOMPLETE) return "Vulkan lists no devices";
    do {
        if (count == 0) return "Vulkan knows no device of the CPU's: Mesa's lavapipe is missing";
        self->gpu = all[--count];
        vkGetPhysicalDeviceProperties(self->gpu, &properties);
    } while (properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU);
    vkGetPhysicalDeviceMemoryProperties(self->gpu, &memory);
    vkGetPhysicalDeviceQueueFamilyProperties(self->gpu, &one, &family);
    if (properties.apiVersion < VK_API_VERSION_1_2) return "it is older than Vulkan 1.2";
    if (!(family.queueFlags & VK_QUEUE_COMPUTE_BIT)) return "its queues have no kernels";
    if (family.timestampValidBits < 64 || properties.limits.timestampPeriod != 1) return "its times are no nanoseconds";
    return (memory.memoryTypes[0].propertyFlags & shared) == shared ? NULL : "it has no memory that the host shares";
}

static VkResult make_device(VulkanDevice *self)
{
    static const float priority = 0;
    VkPhysicalDeviceVulkan12Features features = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .bufferDeviceAddress = VK_TRUE,
    };
    VkDeviceQueueCreateInfo line = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority,
    };
    VkDeviceCreateInfo wanted = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &features, .queueCreateInfoCount = 1,
        .pQueueCreateInfos = &line,
    };
    VkResult result = vkCreateDevice(self->gpu, &wanted, NULL, &self->device);
    if (!result) vkGetDeviceQueue(self->device, 0, 0, &self->line);
    return result;
}

/* -------------------------------------------------------------------------------------------------- memory -- */

static id new_memory(VulkanDevice *self, unsigned long length, unsigned long options)
{
    VkBufferCreateInfo wanted = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = length,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT,
    };
    VkMemoryAllocateFlagsInfo addressed = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT,
    };
    VkMemoryAllocateInfo of_memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &addressed};
    VkBufferDeviceAddressInfo of_buffer = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO};
    VkMemoryRequirements needs;
    void *bytes;
    SM_REQUIRE(length > 0, BAD_LENGTH, "a buffer of 0 bytes");
    VulkanBuffer *made = [[VulkanBuffer alloc] init];
    made->device = (SoftMetalDevice *)[self retain];
    made->length = length;
    made->options = options;
    VK_DO(vkCreateBuffer(self->device, &wanted, NULL, &made->buffer));
    vkGetBufferMemoryRequirements(self->device, made->buffer, &needs);
    of_memory.allocationSize = needs.size;
    if (vkAllocateMemory(self->device, &of_memory, NULL, &made->memory)) {
        [made release]; /* of a length that there is not */
        return nil;
    }
    VK_DO(vkBindBufferMemory(self->device, made->buffer, made->memory, 0));
    VK_DO(vkMapMemory(self->device, made->memory, 0, VK_WHOLE_SIZE, 0, &bytes));
    made->bytes = memset(bytes, 0, length);
    of_buffer.buffer = made->buffer;
    made->address = vkGetBufferDeviceAddress(self->device, &of_buffer);
    return made;
}

@implementation VulkanBuffer
- (void)dealloc
{
    vkDestroyBuffer(((VulkanDevice *)device)->device, buffer, NULL);
    vkFreeMemory(((VulkanDevice *)device)->device, memory, NULL);
    bytes = NULL; /* no softmetal's to free */
    [super dealloc];
}
@end

/* ------------------------------------------------------------------------------------------------- kernels -- */

static const struct kernel {
    const char *name;
    const uint32_t *code;
    size_t size;
} kernels[] = {
    {"step", vulkan_step, sizeof vulkan_step},
    {"work", vulkan_work, sizeof vulkan_work},
};

static void make_layout(VulkanDevice *self)
{
    VkPushConstantRange arguments = {VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(kernel_arguments)};
    VkPipelineLayoutCreateInfo wanted = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .pushConstantRangeCount = 1,
        .pPushConstantRanges = &arguments,
    };
    VK_DO(vkCreatePipelineLayout(self->device, &wanted, NULL, &self->layout));
}

static VkPipeline compile(VulkanDevice *self, const char *name)
{
    const struct kernel *kernel = kernels, *end = kernels + sizeof kernels / sizeof *kernels;
    while (kernel < end && strcmp(kernel->name, name) != 0) kernel++;
    SM_REQUIRE(kernel < end, INTERNAL, "kernels.comp has no kernel %s", name);
    VkShaderModuleCreateInfo code = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = kernel->size, .pCode = kernel->code,
    };
    VkShaderModule module;
    VkPipeline pipeline;
    VK_DO(vkCreateShaderModule(self->device, &code, NULL, &module));
    VkComputePipelineCreateInfo wanted = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main"}, .layout = self->layout,
    };
    VK_DO(vkCreateComputePipelines(self->device, VK_NULL_HANDLE, 1, &wanted, NULL, &pipeline));
    vkDestroyShaderModule(self->device, module, NULL);
    return pipeline;
}

@implementation VulkanPipeline
- (void)dealloc
{
    vkDestroyPipeline(((VulkanDevice *)device)->device, pipeline, NULL);
    [super dealloc];
}
@end

/* ---------------------------------------------------------------------------------------------- the device -- */

/* softmetal's MTLCreateSystemDefaultDevice makes one of these. */
Class sm_device_class(void)
{
    return [VulkanDevice class];
}

@implementation VulkanDevice

- (id)init
{
    if (!(self = [super init])) return nil;
    pthread_mutex_init(&lock, NULL);
    sm_cond_init(&changed);
    (void)[VulkanBuffer class], (void)[VulkanPipeline class], (void)[VulkanEvent class];
    (void)[VulkanQueue class], (void)[VulkanCommandBuffer class];
    const char *wrong = find_lavapipe(self);
    if (!wrong && make_device(self)) wrong = "it lacks addresses of buffers";
    if (wrong) {
        fprintf(stderr, "Metal over Vulkan has no device: %s\n", wrong);
        [self dealloc]; /* a release takes the lock under which the default device is made */
        return nil;
    }
    make_layout(self);
    atexit(come_to_rest); /* so it runs before what the driver and the layer have left for the end */
    return self;
}

- (NSString *)name
{
    return sm_handed_out([[sm_new_string("lavapipe") autorelease] self]);
}
- (id)newCommandQueueWithMaxCommandBufferCount:(unsigned long)count
{
    return new_queue(self, count);
}
- (id)newBufferWithLength:(unsigned long)length options:(unsigned long)options
{
    return new_memory(self, length, options);
}
- (id)newSharedEvent
{
    VulkanEvent *event = [[VulkanEvent alloc] init];
    event->owner = [self retain];
    return event;
}
- (id)newEvent /* it answers more than an MTLEvent does */
{
    return [self newSharedEvent];
}
- (id)newComputePipelineStateWithFunction:(id)function error:(id *)error
{
    sm_check_argument(function, [SoftMetalFunction class], "newComputePipelineStateWithFunction:error:");
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init]; /* for UTF8String */
    VulkanPipeline *made = [[VulkanPipeline alloc] init];
    made->device = (SoftMetalDevice *)[self retain];
    made->pipeline = compile(self, [((SoftMetalFunction *)function)->name UTF8String]);
    [pool release];
    if (error) *error = nil;
    return made;
}
- (void)dealloc
{
    if (device) {
        vkDestroyPipelineLayout(device, layout, NULL);
        vkDestroyDevice(device, NULL);
    }
    pthread_mutex_destroy(&lock);
    pthread_cond_destroy(&changed);
    [super dealloc];
}

@end
