/* softmetal_encoder4.m - Metal 4: command buffers, allocators, compute encoders, argument tables

   A recording is in its command buffer from begin to commit; the run takes it then. So a buffer may be recorded
   again, with another allocator, while its earlier runs are in flight. An allocator holds no commands here: it
   knows the buffer that records into it, the runs that need it (`uses`), and how often it was reset. */
#import "softmetal_internal.h"
#include <stdlib.h>

/* -------------------------------------------------------------------- command buffers -- */

static void begin(SoftMetalCommandBuffer4 *buffer, id into, const char *what)
{
    sm_check_argument(into, [SoftMetalAllocator class], what);
    SoftMetalAllocator *allocator = into;
    SM_REQUIRE(allocator->device == buffer->device, OTHER_DEVICE, "%s", what);
    SM_REQUIRE(buffer->state != SM_STATE4_RECORDING, BEGIN_WHILE_RECORDING, "%p", (void *)buffer);
    SM_REQUIRE(!allocator->recorder, ALLOCATOR_TAKEN, "%p records into %p", (void *)allocator->recorder, into);
    sm_recording_clear(&buffer->recorded); /* one that was never committed */
    allocator->recorder = buffer;
    buffer->allocator = allocator;
    buffer->generation = allocator->generation;
    buffer->state = SM_STATE4_RECORDING;
    sm_refer(&buffer->recorded, allocator);
    sm_refer(&buffer->recorded, buffer);
}

static id make_encoder(SoftMetalCommandBuffer4 *buffer)
{
    static const char what[] = "computeCommandEncoder";
    SM_REQUIRE(buffer->state == SM_STATE4_RECORDING, ENCODER_OUTSIDE, "%p", (void *)buffer);
    SM_REQUIRE(!buffer->encoder, SECOND_ENCODER, "%s", what);
    SM_REQUIRE(sm_has_pool(), NO_POOL, "%s", what);
    if (sm_creation_fails()) return nil;
    SoftMetalComputeEncoder4 *encoder = [[SoftMetalComputeEncoder4 alloc] init];
    encoder->owner = buffer;
    encoder->device = buffer->device;
    encoder->recording = &buffer->recorded;
    encoder->active = &buffer->encoder;
    buffer->encoder = encoder;
    return [encoder autorelease];
}

@implementation SoftMetalCommandBuffer4

+ (sm_kind)softmetalKind { return SM_COMMAND_BUFFER4; }
- (id)device { return device; }
SM_HAS_LABEL

- (void)beginCommandBufferWithAllocator:(id)wanted { begin(self, wanted, "beginCommandBufferWithAllocator:"); }

- (void)endCommandBuffer
{
    SM_REQUIRE(state == SM_STATE4_RECORDING, END_WITHOUT_BEGIN, "%p", (void *)self);
    SM_REQUIRE(!encoder, END_WITH_ENCODER, "%p", (void *)self);
    allocator->recorder = nil;
    state = SM_STATE4_ENDED;
}

- (id)computeCommandEncoder { return make_encoder(self); }

- (void)useResidencySet:(id)set { SM_REQUIRE(set, NIL_ARGUMENT, "useResidencySet:"); }

- (void)dealloc
{
    SM_REQUIRE(!encoder, ENCODER_NOT_ENDED, "%p", (void *)self);
    if (state == SM_STATE4_RECORDING) allocator->recorder = nil;
    sm_recording_clear(&recorded);
    [run release];
    [label release];
    [device release];
    [super dealloc];
}

@end

/* ------------------------------------------------------------------------- allocators -- */

@implementation SoftMetalAllocator

+ (sm_kind)softmetalKind { return SM_ALLOCATOR; }
- (id)device { return device; }

- (void)reset
{
    SM_REQUIRE(!recorder, RESET_WHILE_RECORDING, "%p", (void *)self);
    SM_REQUIRE(__atomic_load_n(&uses, __ATOMIC_ACQUIRE) == 0, RESET_IN_USE, "%p", (void *)self);
    generation++;
}

- (void)dealloc
{
    SM_REQUIRE(!recorder, DESTROYED_IN_USE, "allocator %p: a buffer records into it", (void *)self);
    [device release];
    [super dealloc];
}

@end

/* -------------------------------------------------------------------- argument tables -- */

@implementation SoftMetalArgumentTable

+ (sm_kind)softmetalKind { return SM_ARGUMENT_TABLE; }
- (id)device { return device; }
- (NSString *)label { return sm_handed_out(label); }
- (void)setAddress:(uint64_t)address atIndex:(unsigned long)index
{
    SM_REQUIRE(index < count, BAD_BINDING, "setAddress:atIndex: %lu of %lu", index, count);
    addresses[index] = address;
}
- (void)dealloc
{
    [label release];
    [device release];
    [super dealloc];
}

@end

@implementation MTL4ArgumentTableDescriptor
+ (sm_kind)softmetalKind { return SM_DESCRIPTOR; }
SM_HAS_LABEL
- (void)setMaxBufferBindCount:(unsigned long)wanted
{
    SM_REQUIRE(wanted <= SM_BINDINGS, BAD_BINDING, "setMaxBufferBindCount: %lu", wanted);
    count = wanted;
}
- (void)dealloc
{
    [label release];
    [super dealloc];
}
@end

/* ------------------------------------------------------------------------- the encoder -- */

/* What the table says now: it may be changed, or freed, before the run. */
static sm_binding *copy_bindings(SoftMetalComputeEncoder4 *encoder, const char *what)
{
    sm_binding *bindings = calloc(SM_BINDINGS, sizeof *bindings);
    SM_REQUIRE(bindings, INTERNAL, "out of memory");
    if (!encoder->table) return bindings;
    sm_check_argument(encoder->table, [SoftMetalArgumentTable class], what);
    for (unsigned i = 0; i < encoder->table->count; i++) {
        uint64_t address = encoder->table->addresses[i];
        if (address == 0) continue;
        SoftMetalBuffer *memory = sm_buffer_at_address(address);
        SM_REQUIRE(memory && memory->device == encoder->device, UNKNOWN_ADDRESS, "%s: index %u, %#llx", what, i,
                   (unsigned long long)address);
        size_t offset = address - (uint64_t)(uintptr_t)memory->bytes;
        bindings[i] = (sm_binding){.buffer = memory, .offset = offset, .length = memory->length - offset};
        sm_refer(encoder->recording, memory);
    }
    return bindings;
}

static void record_dispatch(SoftMetalComputeEncoder4 *encoder, sm_size threads, const char *what)
{
    sm_check_open(encoder, what);
    SM_REQUIRE(encoder->pipeline, NO_PIPELINE, "%s", what);
    sm_check_pipeline(encoder, encoder->pipeline, what);
    sm_encode_dispatch(encoder, encoder->pipeline, copy_bindings(encoder, what), threads, what);
}

@implementation SoftMetalComputeEncoder4

+ (const char *)metalName { return "MTL4ComputeCommandEncoder"; }

- (id)commandBuffer { return owner; }

- (void)fillBuffer:(id)memory range:(sm_range)range value:(unsigned char)value
{
    sm_encode_fill(self, memory, range, value, "fillBuffer:range:value:");
}

- (void)copyFromBuffer:(id)source
          sourceOffset:(unsigned long)from
              toBuffer:(id)target
     destinationOffset:(unsigned long)to
                  size:(unsigned long)size
{
    sm_encode_copy(self, source, from, target, to, size, "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:");
}

- (void)setComputePipelineState:(id)state
{
    sm_check_pipeline(self, state, "setComputePipelineState:");
    sm_refer(recording, state);
    pipeline = state;
}

- (void)setArgumentTable:(id)wanted
{
    static const char what[] = "setArgumentTable:";
    sm_check_open(self, what);
    if (wanted) sm_check_argument(wanted, [SoftMetalArgumentTable class], what);
    SM_REQUIRE(!wanted || ((SoftMetalArgumentTable *)wanted)->device == device, OTHER_DEVICE, "%s", what);
    table = wanted;
}

- (void)dispatchThreadgroups:(sm_size)groups threadsPerThreadgroup:(sm_size)each
{
    sm_size threads = {groups.width * each.width, groups.height * each.height, groups.depth * each.depth};
    record_dispatch(self, threads, "dispatchThreadgroups:threadsPerThreadgroup:");
}

/* Commands run in order here: a barrier has nothing to add. */
- (void)barrierAfterQueueStages:(unsigned long)after
                   beforeStages:(unsigned long)before
              visibilityOptions:(unsigned long)options
{
    (void)after, (void)before, (void)options;
    sm_check_open(self, "barrierAfterQueueStages:beforeStages:visibilityOptions:");
}

@end

/* -------------------------------------------------------------------------- the device -- */

@implementation SoftMetalDevice (Encoder4)

- (id)newCommandBuffer
{
    if (sm_creation_fails()) return nil;
    SoftMetalCommandBuffer4 *buffer = [[SoftMetalCommandBuffer4 alloc] init];
    buffer->device = [self retain];
    return buffer;
}

- (id)newCommandAllocator
{
    if (sm_creation_fails()) return nil;
    SoftMetalAllocator *allocator = [[SoftMetalAllocator alloc] init];
    allocator->device = [self retain];
    return allocator;
}

- (id)newArgumentTableWithDescriptor:(id)descriptor error:(id *)error
{
    if (error) *error = nil;
    sm_check_argument(descriptor, [MTL4ArgumentTableDescriptor class], "newArgumentTableWithDescriptor:error:");
    if (sm_creation_fails()) return nil;
    SoftMetalArgumentTable *table = [[SoftMetalArgumentTable alloc] init];
    table->device = [self retain];
    table->count = ((MTL4ArgumentTableDescriptor *)descriptor)->count;
    table->label = [((MTL4ArgumentTableDescriptor *)descriptor)->label copy];
    return table;
}

@end
