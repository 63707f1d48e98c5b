/* vulkan_queue.m - command queues and command buffers: what goes to Vulkan, and what comes back */
#import "vulkan_internal.h"
#include <stdlib.h>
#include <string.h>

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
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
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
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = engine->pool,
        .commandBufferCount = 1,
    };
    VkQueryPoolCreateInfo two = {
        .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
        .queryType = VK_QUERY_TYPE_TIMESTAMP,
        .queryCount = 2,
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
        if (!vulkan_event_signal(command->object, command->value) && sm_event_value(command->object) < command->value)
            return false;
    }
    return true;
}

/* Waits, commands, signals: of the part that begins where the last one ended. A place that is signalled is the end of a part:
   what comes behind it is not waited for. */
static void record(vulkan_part *part)
{
    VulkanCommandBuffer *buffer = part->buffer;
    VkCommandBufferBeginInfo once = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
        .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
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
        const vulkan_signal *signal = vulkan_event_signal(commands[i].object, commands[i].value);
        if (!signal) continue;
        semaphores[count] = signal->engine->semaphore;
        places[count] = signal->place;
        stages[count++] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    }
    VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = count,
        .pWaitSemaphoreValues = places,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &part->place,
    };
    VkSubmitInfo work = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
        .pNext = &values,
        .waitSemaphoreCount = count,
        .pWaitSemaphores = semaphores,
        .pWaitDstStageMask = stages,
        .commandBufferCount = 1,
        .pCommandBuffers = &part->commands,
        .signalSemaphoreCount = 1,
        .pSignalSemaphores = &engine->semaphore,
    };
    VK_DO(vkQueueSubmit(engine->line, 1, &work, VK_NULL_HANDLE));
}

static void set_status(VulkanCommandBuffer *buffer, unsigned long status)
{
    __atomic_store_n(&buffer->status, status, __ATOMIC_RELEASE);
}

/* Gives the next part of the queue to Vulkan, if it may go. */
static bool advance(vulkan_engine *engine)
{
    VulkanCommandBuffer *buffer = engine->head;
    if (!buffer || !buffer->committed || !may_go(buffer)) return false;
    vulkan_part *part = new_part(engine, buffer);
    record(part);
    count_busy(1);
    submit(engine, part);
    const sm_command *commands = buffer->recorded.commands;
    for (unsigned i = part->begin; i < part->end && !buffer->fault.set; i++) /* now, as they do not cover its own waits */
        if (commands[i].kind == SM_SIGNAL) vulkan_event_add(commands[i].object, engine, part->place, commands[i].value);
    if (engine->last)
        engine->last->next = part;
    else
        engine->first = part;
    engine->last = part;
    pthread_cond_broadcast(&engine->changed);
    if (!part->last) return true;
    engine->head = buffer->next;
    if (!engine->head) engine->tail = nil;
    set_status(buffer, SM_SCHEDULED);
    return true;
}

/* A part that goes may be what another queue waits for. */
void vulkan_pump(VulkanDevice *device)
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
    buffer->gpu_start = vulkan_seconds(engine->device, buffer->start_ticks);
    buffer->gpu_end = vulkan_seconds(engine->device, end_ticks);
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
        if (commands[i].kind == SM_SIGNAL) vulkan_event_look(commands[i].object);
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
            .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
            .semaphoreCount = 1,
            .pSemaphores = &engine->semaphore,
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
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
        .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
    };
    VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &timeline};
    VkCommandPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
        .queueFamilyIndex = device->family,
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
    engine->line = device->lines[device->next_line++ % device->line_count];
    engine->next = device->engines;
    device->engines = engine;
    pthread_mutex_unlock(&device->lock);
    sm_thread_start(wait_for_work, engine);
    return engine;
}

void vulkan_free_engines(VulkanDevice *device)
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

id vulkan_new_queue(VulkanDevice *device, unsigned long limit)
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

/* With the lock. */
static void join_line(VulkanCommandBuffer *buffer)
{
    vulkan_engine *engine = buffer->queue->engine;
    if (buffer->in_line) return;
    buffer->in_line = true;
    if (engine->tail)
        engine->tail->next = buffer;
    else
        engine->head = buffer;
    engine->tail = buffer;
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
- (void)enqueue
{
    pthread_mutex_lock(&queue->device->lock);
    join_line(self);
    if (status < SM_ENQUEUED) set_status(self, SM_ENQUEUED);
    pthread_mutex_unlock(&queue->device->lock);
}
- (void)commit
{
    SM_REQUIRE(!encoder, COMMIT_WITH_ENCODER, "commit");
    SM_REQUIRE([self status] < SM_COMMITTED, DOUBLE_COMMIT, "%p", (void *)self);
    [self retain]; /* Metal's own, until its handlers have run */
    pthread_mutex_lock(&queue->device->lock);
    join_line(self);
    set_status(self, SM_COMMITTED);
    committed = true;
    vulkan_pump(queue->device);
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
    SM_REQUIRE(!in_line || committed, ENQUEUED_NOT_COMMITTED, "%p", (void *)self);
    for (unsigned i = 0; i < blocks.count; i++) sm_block_drop(&blocks.items[i]);
    free(blocks.items);
    sm_recording_clear(&recorded);
    if (!committed) {
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

void vulkan_come_to_rest(void)
{
    for (unsigned ms = 0; __atomic_load_n(&busy, __ATOMIC_ACQUIRE) > 0 && ms < 10000; ms++)
        sm_sleep_precisely(SM_MILLISECOND);
}
