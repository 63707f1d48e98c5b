/* softmetal_encoder.m - blit and compute encoders, memory buffers */
#import "softmetal_internal.h"
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------- memory -- */

@implementation SoftMetalBuffer
+ (sm_kind)softmetalKind
{
    return SM_BUFFER;
}
- (id)device
{
    return device;
}
- (unsigned long)length
{
    return length;
}
- (void *)contents
{
    const unsigned long storage_mask = 0xf0, storage_private = 32;
    return (options & storage_mask) == storage_private ? NULL : bytes;
}
- (uint64_t)gpuAddress
{
    return (uint64_t)(uintptr_t)bytes;
}
- (unsigned long)resourceOptions
{
    return options;
}
- (unsigned long)storageMode
{
    return options >> 4 & 15;
}
- (NSString *)label
{
    return sm_handed_out(label);
}
- (void)setLabel:(NSString *)text
{
    NSString *copy = [text copy];
    [label release];
    label = copy;
}
- (void)didModifyRange:(sm_range)range
{
    SM_REQUIRE(range.length <= length && range.location <= length - range.length, BLIT_RANGE, "didModifyRange:");
}
- (void)dealloc
{
    SM_REQUIRE(__atomic_load_n(&uses, __ATOMIC_ACQUIRE) == 0, DESTROYED_IN_USE, "buffer %p", (void *)self);
    free(bytes);
    [label release];
    [device release];
    [super dealloc];
}
@end

/* ------------------------------------------------------------------------ any encoder -- */

static void require_open(SoftMetalEncoder *encoder, const char *what)
{
    sm_check_encodable(encoder->buffer, what);
    SM_REQUIRE(!encoder->ended, ENCODE_AFTER_END, "%s", what);
}

static void require_memory(SoftMetalEncoder *encoder, id memory, const char *what)
{
    sm_check_argument(memory, [SoftMetalBuffer class], what);
    SM_REQUIRE(((SoftMetalBuffer *)memory)->device == encoder->buffer->engine->device, OTHER_DEVICE, "%s", what);
}

static void require_inside(SoftMetalBuffer *memory, size_t offset, size_t length, const char *what)
{
    bool inside = length > 0 && length <= memory->length && offset <= memory->length - length;
    SM_REQUIRE(inside, BLIT_RANGE, "%s: %zu bytes at %zu of %zu", what, length, offset, memory->length);
}

@implementation SoftMetalEncoder
+ (sm_kind)softmetalKind
{
    return SM_ENCODER;
}
- (id)initWithBuffer:(SoftMetalCommandBuffer *)owner
{
    if ((self = [super init])) buffer = [owner retain];
    return self;
}
- (id)device
{
    return buffer->queue->device;
}
- (NSString *)label
{
    return sm_handed_out(label);
}
- (void)setLabel:(NSString *)text
{
    NSString *copy = [text copy];
    [label release];
    label = copy;
}
- (void)pushDebugGroup:(NSString *)name
{
    SM_REQUIRE(name, NIL_ARGUMENT, "pushDebugGroup:");
}
- (void)popDebugGroup
{
}
- (void)insertDebugSignpost:(NSString *)name
{
    SM_REQUIRE(name, NIL_ARGUMENT, "insertDebugSignpost:");
}
- (void)endEncoding
{
    SM_REQUIRE(!ended, DOUBLE_END, "%p", (void *)self);
    ended = true;
    buffer->encoder = nil;
}
- (void)dealloc
{
    SM_REQUIRE(ended, ENCODER_NOT_ENDED, "%p", (void *)self);
    [label release];
    [buffer release];
    [super dealloc];
}
@end

/* ------------------------------------------------------------------------------- blit -- */

@implementation SoftMetalBlitEncoder

- (void)fillBuffer:(id)memory range:(sm_range)range value:(unsigned char)value
{
    static const char what[] = "fillBuffer:range:value:";
    require_open(self, what);
    require_memory(self, memory, what);
    require_inside(memory, range.location, range.length, what);
    sm_refer(buffer, memory);
    sm_command *command = sm_record(buffer, SM_FILL);
    command->object = memory;
    command->offset = range.location;
    command->length = range.length;
    command->value = value;
}

- (void)copyFromBuffer:(id)source
          sourceOffset:(unsigned long)from
              toBuffer:(id)target
     destinationOffset:(unsigned long)to
                  size:(unsigned long)size
{
    static const char what[] = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:";
    require_open(self, what);
    require_memory(self, source, what);
    require_memory(self, target, what);
    require_inside(source, from, size, what);
    require_inside(target, to, size, what);
    sm_refer(buffer, source);
    sm_refer(buffer, target);
    sm_command *command = sm_record(buffer, SM_COPY);
    command->object = source;
    command->offset = from;
    command->destination = target;
    command->destination_offset = to;
    command->length = size;
}

- (void)synchronizeResource:(id)memory
{
    require_open(self, "synchronizeResource:");
    require_memory(self, memory, "synchronizeResource:");
    sm_refer(buffer, memory);
}

@end

/* ---------------------------------------------------------------------------- compute -- */

@implementation SoftMetalComputeEncoder

- (void)setComputePipelineState:(id)state
{
    static const char what[] = "setComputePipelineState:";
    require_open(self, what);
    sm_check_argument(state, [SoftMetalPipeline class], what);
    SM_REQUIRE(((SoftMetalPipeline *)state)->device == buffer->engine->device, OTHER_DEVICE, "%s", what);
    sm_refer(buffer, state);
    pipeline = state;
}

- (void)clearBindingAt:(unsigned long)index what:(const char *)what
{
    require_open(self, what);
    SM_REQUIRE(index < SM_BINDINGS, BAD_BINDING, "%s: index %lu", what, index);
    free(bindings[index].bytes);
    bindings[index] = (sm_binding){.buffer = nil};
}

- (void)setBuffer:(id)memory offset:(unsigned long)offset atIndex:(unsigned long)index
{
    static const char what[] = "setBuffer:offset:atIndex:";
    [self clearBindingAt:index what:what];
    if (!memory) return;
    require_memory(self, memory, what);
    size_t length = ((SoftMetalBuffer *)memory)->length;
    SM_REQUIRE(offset < length, BAD_BINDING, "%s: offset %lu of %zu", what, offset, length);
    sm_refer(buffer, memory);
    bindings[index] = (sm_binding){.buffer = memory, .offset = offset, .length = length - offset};
}

- (void)setBytes:(const void *)bytes length:(unsigned long)length atIndex:(unsigned long)index
{
    static const char what[] = "setBytes:length:atIndex:";
    [self clearBindingAt:index what:what];
    SM_REQUIRE(bytes && length > 0 && length <= 4096, BAD_BINDING, "%s: %lu bytes", what, length);
    void *copy = malloc(length);
    SM_REQUIRE(copy, INTERNAL, "out of memory");
    memcpy(copy, bytes, length);
    bindings[index] = (sm_binding){.bytes = copy, .length = length};
}

/* A command keeps its own copy: bindings may change before the next dispatch. */
static sm_binding *copy_bindings(const sm_binding *bindings)
{
    sm_binding *copies = calloc(SM_BINDINGS, sizeof *copies);
    SM_REQUIRE(copies, INTERNAL, "out of memory");
    for (unsigned i = 0; i < SM_BINDINGS; i++) {
        copies[i] = bindings[i];
        if (!bindings[i].bytes) continue;
        copies[i].bytes = malloc(bindings[i].length);
        SM_REQUIRE(copies[i].bytes, INTERNAL, "out of memory");
        memcpy(copies[i].bytes, bindings[i].bytes, bindings[i].length);
    }
    return copies;
}

static void record_dispatch(SoftMetalComputeEncoder *encoder, sm_size threads, const char *what)
{
    require_open(encoder, what);
    SM_REQUIRE(encoder->pipeline, NO_PIPELINE, "%s", what);
    sm_command *command = sm_record(encoder->buffer, SM_DISPATCH);
    command->object = encoder->pipeline;
    command->bindings = copy_bindings(encoder->bindings);
    command->grid[0] = threads.width;
    command->grid[1] = threads.height;
    command->grid[2] = threads.depth;
}

- (void)dispatchThreadgroups:(sm_size)groups threadsPerThreadgroup:(sm_size)each
{
    sm_size threads = {groups.width * each.width, groups.height * each.height, groups.depth * each.depth};
    record_dispatch(self, threads, "dispatchThreadgroups:threadsPerThreadgroup:");
}

- (void)dispatchThreads:(sm_size)threads threadsPerThreadgroup:(sm_size)each
{
    (void)each;
    record_dispatch(self, threads, "dispatchThreads:threadsPerThreadgroup:");
}

- (void)memoryBarrierWithScope:(unsigned long)scope
{
    (void)scope;
    require_open(self, "memoryBarrierWithScope:");
}

- (void)dealloc
{
    for (unsigned i = 0; i < SM_BINDINGS; i++) free(bindings[i].bytes);
    [super dealloc];
}

@end
