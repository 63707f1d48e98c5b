/* vulkan_metal.m - Metal's classes over Vulkan: a device on which work takes time by itself

   A program sends Metal's messages. What it encodes is done by a Vulkan device: Mesa's lavapipe, on threads of the CPU.

   Vulkan's, so code of other authors: memory and its visibility, fills, copies and kernels (SPIR-V of kernels.comp),
   how long they take, the order of work that waits for other work, the times that the device writes, and the moment at
   which a thread learns that work has ended. Softmetal's, shared and not copied: the runtime, blocks, dispatch queues,
   the recording of encoders with its rules, the host's side of a shared event with its listeners, the texts of errors.
   Invented here: that a command buffer fails (vulkan_fail). Nothing here says how Apple's Metal sets a status, fails,
   or calls a handler.

   A queue
     Its committed buffers go to Vulkan in Metal's order, part by part: a part ends where the buffer waits for an event,
     and behind what it signals. Each part raises the timeline semaphore of its queue by one. So a place of that
     semaphore stands for the end of a part. One thread for each queue waits for the next place (vkWaitSemaphores),
     notes the times and the status, and gives the handlers to the queue's serial dispatch queue. There they run, in the
     order of commits; then the references go, the place in the queue is free, and waitUntilCompleted returns.

   An event
     Its value is the host's: any number, in any order, UINT64_MAX as well. Vulkan's timeline semaphores forbid a value
     that is not above those that are reached or pending. So the event itself has no semaphore: a signal is a value and
     the place that reaches it, and a wait is for the place of a signal that covers it. As long as there is no such
     signal, and the host has not raised the event, the part is kept back here, with all behind it in its queue. So what
     Vulkan has waits only for what it had before: several queues of Metal may share one of Vulkan.

   Locks: `lock` of the device is over its queues, their parts, pools and VkQueues, and over the events' signals. No
   message that runs the program's code is sent under it. An event's own lock, for its value, is softmetal's, and taken
   alone. */
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

@class VulkanCommandBuffer, VulkanEvent;

@interface VulkanDevice : SoftMetalDevice {
@public
    pthread_mutex_t lock;
    VkPhysicalDevice gpu;
    VkDevice device;
    VkQueue line;
    VkPipelineLayout layout;
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
    VkCommandPool pool;
    VkSemaphore semaphore;
    uint64_t place;                       /* of the newest part */
    vulkan_part *first, *last;            /* with Vulkan, by place */
    VulkanCommandBuffer *head, *tail;     /* committed, and not wholly with Vulkan */
    id handlers;                          /* a serial dispatch queue */
    unsigned limit, used;                 /* command buffers that have not ended */
    bool dying;
    pthread_cond_t changed; /* any of it */
} vulkan_engine;

static void pump(VulkanDevice *device);

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
    bool handlers_done;
    uint64_t start_ticks;
    sm_blocks blocks; /* handlers; until the commit the program's, then those of the queue's dispatch queue */
}
@end

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

/* ------------------------------------------------------------------------------------------------- events -- */

static bool is_reached(const vulkan_signal *signal)
{
    uint64_t now;
    VK_DO(vkGetSemaphoreCounterValue(signal->engine->device->device, signal->engine->semaphore, &now));
    return now >= signal->place;
}

static void event_add(VulkanEvent *event, vulkan_engine *engine, uint64_t place, uint64_t value)
{
    event->signals = realloc(event->signals, (event->signal_count + 1) * sizeof *event->signals);
    SM_REQUIRE(event->signals, INTERNAL, "out of memory");
    event->signals[event->signal_count++] = (vulkan_signal){engine, place, value};
}

/* One that is reached comes first: Vulkan makes what was written before it visible to the part that waits. One that is
   pending is nothing to wait for where the host has raised the event already. */
static const vulkan_signal *event_signal(VulkanEvent *event, uint64_t value)
{
    const vulkan_signal *pending = NULL;
    for (unsigned i = 0; i < event->signal_count; i++) {
        const vulkan_signal *signal = &event->signals[i];
        if (signal->value < value) continue;
        if (is_reached(signal)) return signal;
        if (!pending || signal->value < pending->value) pending = signal;
    }
    return sm_event_value(event) < value ? pending : NULL;
}

/* Of the signals that are reached, the highest stays. */
static void event_look(VulkanEvent *event)
{
    uint64_t value = 0;
    unsigned kept = 0;
    pthread_mutex_lock(&event->owner->lock);
    for (unsigned i = 0; i < event->signal_count; i++)
        if (event->signals[i].value > value && is_reached(&event->signals[i])) value = event->signals[i].value;
    for (unsigned i = 0; i < event->signal_count; i++)
        if (event->signals[i].value >= value || !is_reached(&event->signals[i]))
            event->signals[kept++] = event->signals[i];
    event->signal_count = kept;
    pthread_mutex_unlock(&event->owner->lock);
    if (value > sm_event_value(event)) sm_event_raise(event, value);
}

@implementation VulkanEvent

- (uint64_t)signaledValue
{
    event_look(self);
    return [super signaledValue];
}

- (void)setSignaledValue:(uint64_t)wanted
{
    [super setSignaledValue:wanted];
    pthread_mutex_lock(&owner->lock);
    pump(owner);
    pthread_mutex_unlock(&owner->lock);
}

- (void)dealloc
{
    free(signals);
    [owner release];
    [super dealloc];
}

@end

/* Parts that have not ended, buffers whose handlers have not run, threads whose queue has gone. */
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

/* --------------------------------------------------------------------------------------------------- parts -- */

static vulkan_part *new_part(vulkan_engine *engine, VulkanCommandBuffer *buffer)
{
    VkDevice device = engine->device->device;
    VkCommandBufferAllocateInfo one = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = engine->pool, .commandBufferCount = 1,
    };
    VkQueryPoolCreateInfo two = {
        .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = 2,
    };
    vulkan_part *part = calloc(1, sizeof *part);
    SM_REQUIRE(part, INTERNAL, "out of memory");
    VK_DO(vkAllocateCommandBuffers(device, &one, &part->commands));
    VK_DO(vkCreateQueryPool(device, &two, NULL, &part->times));
    part->buffer = buffer;
    part->place = ++engine->place;
    part->begin = buffer->done;
    return part;
}

/* Whether all events that the next part waits for are covered. */
static bool may_go(const VulkanCommandBuffer *buffer)
{
    for (unsigned i = buffer->done; i < buffer->recorded.command_count; i++) {
        const sm_command *command = &buffer->recorded.commands[i];
        if (command->kind != SM_WAIT) break;
        if (!event_signal(command->object, command->value) && sm_event_value(command->object) < command->value)
            return false;
    }
    return true;
}

/* Waits, commands, signals: of the part that begins where the last one ended. A place that is signalled is the end of a
   part: what comes behind it is not waited for. */
static void record(vulkan_part *part)
{
    VulkanCommandBuffer *buffer = part->buffer;
    VkCommandBufferBeginInfo once = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    };
    const sm_command *commands = buffer->recorded.commands;
    unsigned i = part->begin, count = buffer->recorded.command_count;
    VK_DO(vkBeginCommandBuffer(part->commands, &once));
    vkCmdResetQueryPool(part->commands, part->times, 0, 2);
    put_barrier(part->commands); /* so the first time is that at which what came before has ended */
    vkCmdWriteTimestamp(part->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, part->times, 0);
    while (i < count && commands[i].kind == SM_WAIT) i++;
    for (; i < count && commands[i].kind != SM_WAIT && commands[i].kind != SM_SIGNAL; i++) {
        if (buffer->fault.set) continue;
        put_barrier(part->commands);
        if (commands[i].kind == SM_FILL) put_fill(part->commands, &commands[i]);
        if (commands[i].kind == SM_COPY) put_copy(part->commands, &commands[i]);
        if (commands[i].kind == SM_DISPATCH) put_dispatch(buffer->queue->device, part->commands, &commands[i]);
    }
    while (i < count && commands[i].kind == SM_SIGNAL) i++;
    put_barrier(part->commands);
    vkCmdWriteTimestamp(part->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, part->times, 1);
    VK_DO(vkEndCommandBuffer(part->commands));
    buffer->done = part->end = i;
    part->last = i == count;
}

static void submit(vulkan_engine *engine, const vulkan_part *part)
{
    const sm_command *commands = part->buffer->recorded.commands;
    unsigned most = part->end - part->begin + 1;
    VkSemaphore semaphores[most];
    VkPipelineStageFlags stages[most];
    uint64_t places[most];
    uint32_t count = 0;
    for (unsigned i = part->begin; i < part->end && commands[i].kind == SM_WAIT; i++) {
        const vulkan_signal *signal = event_signal(commands[i].object, commands[i].value);
        if (!signal) continue;
        semaphores[count] = signal->engine->semaphore;
        places[count] = signal->place;
        stages[count++] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    }
    VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, .waitSemaphoreValueCount = count,
        .pWaitSemaphoreValues = places, .signalSemaphoreValueCount = 1, .pSignalSemaphoreValues = &part->place,
    };
    VkSubmitInfo work = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &values, .waitSemaphoreCount = count,
        .pWaitSemaphores = semaphores, .pWaitDstStageMask = stages, .commandBufferCount = 1,
        .pCommandBuffers = &part->commands, .signalSemaphoreCount = 1, .pSignalSemaphores = &engine->semaphore,
    };
    VK_DO(vkQueueSubmit(engine->device->line, 1, &work, VK_NULL_HANDLE));
}

static void set_status(VulkanCommandBuffer *buffer, unsigned long status)
{
    __atomic_store_n(&buffer->status, status, __ATOMIC_RELEASE);
}

/* Gives the next part of the queue to Vulkan, if it may go. */
static bool advance(vulkan_engine *engine)
{
    VulkanCommandBuffer *buffer = engine->head;
    if (!buffer || !may_go(buffer)) return false;
    vulkan_part *part = new_part(engine, buffer);
    record(part);
    count_busy(1);
    submit(engine, part);
    const sm_command *commands = buffer->recorded.commands;
    for (unsigned i = part->begin; i < part->end && !buffer->fault.set; i++) /* now: they do not cover its own waits */
        if (commands[i].kind == SM_SIGNAL) event_add(commands[i].object, engine, part->place, commands[i].value);
    if (engine->last)
        engine->last->next = part;
    else
        engine->first = part;
    engine->last = part;
    pthread_cond_broadcast(&engine->changed);
    if (!part->last) return true;
    engine->head = buffer->next;
    set_status(buffer, SM_SCHEDULED);
    return true;
}

/* A part that goes may be what another queue waits for. */
static void pump(VulkanDevice *device)
{
    bool gone;
    do {
        gone = false;
        for (vulkan_engine *engine = device->engines; engine; engine = engine->next)
            while (advance(engine)) gone = true;
    } while (gone);
}

/* ---------------------------------------------------------------------------------------- what has ended -- */

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
    vulkan_engine *engine = buffer->queue->engine;
    VulkanDevice *device = engine->device;
    call_handlers(buffer);
    sm_recording_clear(&buffer->recorded);
    pthread_mutex_lock(&device->lock);
    buffer->handlers_done = true;
    engine->used--;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&device->lock);
    [buffer release]; /* Metal's own reference */
    count_busy(-1);
}

/* With the lock: the buffer has ended. Its handlers come behind those of earlier ones. */
static void publish(vulkan_engine *engine, VulkanCommandBuffer *buffer, uint64_t end_ticks)
{
    buffer->gpu_start = (double)buffer->start_ticks / 1e9;
    buffer->gpu_end = (double)end_ticks / 1e9;
    if (buffer->fault.set) buffer->error = sm_new_failure(&buffer->fault, false);
    set_status(buffer, buffer->fault.set ? SM_ERRONEOUS : SM_COMPLETED);
    count_busy(1);
    sm_dispatch(engine->handlers, buffer, run_handlers, "the handlers");
}

/* With the lock. */
static void end_part(vulkan_engine *engine, vulkan_part *part)
{
    VkDevice device = engine->device->device;
    uint64_t ticks[2];
    VK_DO(vkGetQueryPoolResults(device, part->times, 0, 2, sizeof ticks, ticks, sizeof *ticks, VK_QUERY_RESULT_64_BIT));
    if (part->begin == 0) part->buffer->start_ticks = ticks[0];
    engine->first = part->next;
    if (!engine->first) engine->last = NULL;
    if (part->last) publish(engine, part->buffer, ticks[1]);
    vkFreeCommandBuffers(device, engine->pool, 1, &part->commands);
    vkDestroyQueryPool(device, part->times, NULL);
    free(part);
    count_busy(-1);
}

/* Without the lock: the part is this thread's, and the buffer keeps its events. */
static void tell_events(const vulkan_part *part)
{
    const sm_command *commands = part->buffer->recorded.commands;
    for (unsigned i = part->begin; i < part->end; i++)
        if (commands[i].kind == SM_SIGNAL) event_look(commands[i].object);
}

static void *wait_for_work(void *argument)
{
    vulkan_engine *engine = argument;
    VulkanDevice *device = engine->device;
    pthread_mutex_lock(&device->lock);
    while (engine->first || !engine->dying) {
        vulkan_part *part = engine->first;
        if (!part) {
            pthread_cond_wait(&engine->changed, &device->lock);
            continue;
        }
        VkSemaphoreWaitInfo end = {
            .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1, .pSemaphores = &engine->semaphore,
            .pValues = &part->place,
        };
        pthread_mutex_unlock(&device->lock);
        VK_DO(vkWaitSemaphores(device->device, &end, UINT64_MAX));
        tell_events(part);
        pthread_mutex_lock(&device->lock);
        end_part(engine, part);
    }
    pthread_mutex_unlock(&device->lock);
    [device release]; /* and the engine may go with it */
    count_busy(-1);
    return NULL;
}

/* --------------------------------------------------------------------------------------------- the engine -- */

static vulkan_engine *new_engine(VulkanDevice *device, unsigned limit)
{
    VkSemaphoreTypeCreateInfo timeline = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
    };
    VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &timeline};
    VkCommandPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
        .queueFamilyIndex = 0,
    };
    vulkan_engine *engine = calloc(1, sizeof *engine);
    SM_REQUIRE(engine, INTERNAL, "out of memory");
    engine->device = [device retain]; /* the thread's reference */
    engine->limit = limit;
    engine->handlers = sm_dispatch_queue_new(NULL);
    sm_cond_init(&engine->changed);
    VK_DO(vkCreateSemaphore(device->device, &semaphore, NULL, &engine->semaphore));
    VK_DO(vkCreateCommandPool(device->device, &pool, NULL, &engine->pool));
    pthread_mutex_lock(&device->lock);
    engine->next = device->engines;
    device->engines = engine;
    pthread_mutex_unlock(&device->lock);
    sm_thread_start(wait_for_work, engine);
    return engine;
}

static void free_engines(VulkanDevice *device)
{
    while (device->engines) {
        vulkan_engine *engine = device->engines;
        device->engines = engine->next;
        vkDestroyCommandPool(device->device, engine->pool, NULL);
        vkDestroySemaphore(device->device, engine->semaphore, NULL);
        pthread_cond_destroy(&engine->changed);
        free(engine);
    }
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
    while (engine->used >= engine->limit) pthread_cond_wait(&engine->changed, &engine->device->lock);
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
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&device->lock);
    sm_dispatch_release(engine->handlers);
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
    pump(queue->device);
    pthread_mutex_unlock(&queue->device->lock);
}
- (void)waitUntilCompleted
{
    SM_REQUIRE([self status] >= SM_COMMITTED, WAIT_BEFORE_COMMIT, "%p", (void *)self);
    pthread_mutex_lock(&queue->device->lock);
    while (!handlers_done) pthread_cond_wait(&queue->engine->changed, &queue->device->lock);
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
        pthread_cond_broadcast(&queue->engine->changed);
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
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .timelineSemaphore = VK_TRUE,
        .bufferDeviceAddress = VK_TRUE,
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
    (void)[VulkanBuffer class], (void)[VulkanPipeline class], (void)[VulkanEvent class];
    (void)[VulkanQueue class], (void)[VulkanCommandBuffer class];
    const char *wrong = find_lavapipe(self);
    if (!wrong && make_device(self)) wrong = "it lacks timeline semaphores or addresses of buffers";
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
        free_engines(self);
        vkDestroyPipelineLayout(device, layout, NULL);
        vkDestroyDevice(device, NULL);
    }
    pthread_mutex_destroy(&lock);
    [super dealloc];
}

@end
