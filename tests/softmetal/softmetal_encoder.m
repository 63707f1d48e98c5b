/* softmetal_encoder.m - blit and compute encoders, memory buffers */
#import "softmetal_internal.h"
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------- memory -- */

/* Those whose address the program knows: Metal 4 binds memory by its address. */
static pthread_mutex_t addresses_lock = PTHREAD_MUTEX_INITIALIZER;
static SoftMetalBuffer *addressed_buffers;

static void note_address(SoftMetalBuffer *memory)
{
    pthread_mutex_lock(&addresses_lock);
    if (!memory->addressed) {
        memory->addressed = true;
        memory->next_addressed = addressed_buffers;
        addressed_buffers = memory;
    }
    pthread_mutex_unlock(&addresses_lock);
}

static void forget_address(SoftMetalBuffer *memory)
{
    if (!memory->addressed) return;
    pthread_mutex_lock(&addresses_lock);
    SoftMetalBuffer **link = &addressed_buffers;
    while (*link != memory) link = &(*link)->next_addressed;
    *link = memory->next_addressed;
    pthread_mutex_unlock(&addresses_lock);
}

SoftMetalBuffer *sm_buffer_at_address(uint64_t address)
{
    pthread_mutex_lock(&addresses_lock);
    SoftMetalBuffer *memory = addressed_buffers;
    while (memory && address - (uint64_t)(uintptr_t)memory->bytes >= memory->length) memory = memory->next_addressed;
    pthread_mutex_unlock(&addresses_lock);
    return memory;
}

@implementation SoftMetalBuffer
+ (sm_kind)softmetalKind { return SM_BUFFER; }
- (id)device { return device; }
- (unsigned long)length { return length; }
- (void *)contents
{
    const unsigned long storage_mask = 0xf0, storage_private = 32;
    return (options & storage_mask) == storage_private ? NULL : bytes;
}
- (uint64_t)gpuAddress
{
    note_address(self);
    return (uint64_t)(uintptr_t)bytes;
}
SM_HAS_LABEL
- (void)dealloc
{
    forget_address(self);
    free(bytes);
    [label release];
    [device release];
    [super dealloc];
}
@end

/* ------------------------------------------------------------------------ any encoder -- */

void sm_check_open(SoftMetalEncoder *encoder, const char *what)
{
    if (encoder->buffer) sm_check_encodable(encoder->buffer, what);
    SM_REQUIRE(!encoder->ended, ENCODE_AFTER_END, "%s", what);
}

static void require_memory(SoftMetalEncoder *encoder, id memory, const char *what)
{
    sm_check_argument(memory, [SoftMetalBuffer class], what);
    SM_REQUIRE(((SoftMetalBuffer *)memory)->device == encoder->device, OTHER_DEVICE, "%s", what);
}

static void require_inside(SoftMetalBuffer *memory, size_t offset, size_t length, const char *what)
{
    bool inside = length > 0 && length <= memory->length && offset <= memory->length - length;
    SM_REQUIRE(inside, BLIT_RANGE, "%s: %zu bytes at %zu of %zu", what, length, offset, memory->length);
}

@implementation SoftMetalEncoder
+ (sm_kind)softmetalKind { return SM_ENCODER; }
- (id)initWithBuffer:(SoftMetalCommandBuffer *)owner
{
    if (!(self = [super init])) return nil;
    buffer = [owner retain];
    device = owner->queue->device;
    recording = &owner->recorded;
    active = &owner->encoder;
    return self;
}
- (id)device { return device; }
SM_HAS_LABEL
- (void)endEncoding
{
    SM_REQUIRE(!ended, DOUBLE_END, "%p", (void *)self);
    ended = true;
    *active = nil;
    if (!pass) return;
    sm_pass *own = &buffer->passes[pass - 1];
    own->label = [label retain];
    own->ends = buffer->recorded.command_count;
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

void sm_encode_fill(SoftMetalEncoder *encoder, id memory, sm_range range, unsigned char value, const char *what)
{
    sm_check_open(encoder, what);
    require_memory(encoder, memory, what);
    require_inside(memory, range.location, range.length, what);
    sm_refer(encoder->recording, memory);
    sm_command *command = sm_record(encoder->recording, SM_FILL);
    command->object = memory;
    command->offset = range.location;
    command->length = range.length;
    command->value = value;
}

void sm_encode_copy(SoftMetalEncoder *encoder, id source, unsigned long from, id target, unsigned long to,
                    unsigned long size, const char *what)
{
    sm_check_open(encoder, what);
    require_memory(encoder, source, what);
    require_memory(encoder, target, what);
    require_inside(source, from, size, what);
    require_inside(target, to, size, what);
    sm_refer(encoder->recording, source);
    sm_refer(encoder->recording, target);
    sm_command *command = sm_record(encoder->recording, SM_COPY);
    command->object = source;
    command->offset = from;
    command->destination = target;
    command->destination_offset = to;
    command->length = size;
}

@implementation SoftMetalBlitEncoder

+ (const char *)metalName { return "MTLBlitCommandEncoder"; }

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

- (void)copyFromBuffer:(id)source
          sourceOffset:(unsigned long)from
     sourceBytesPerRow:(unsigned long)pitch
   sourceBytesPerImage:(unsigned long)image
            sourceSize:(sm_size)size
             toTexture:(id)target
      destinationSlice:(unsigned long)slice
      destinationLevel:(unsigned long)level
     destinationOrigin:(sm_origin)to
{
    static const char what[] = "copyFromBuffer:...toTexture:...";
    SM_REQUIRE(slice == 0 && level == 0 && (image == 0 || image >= pitch * size.height), BLIT_RANGE, "%s", what);
    sm_encode_copy_to_texture(self, source, from, pitch, size, target, to, what);
}

@end

/* ---------------------------------------------------------------------------- compute -- */

void sm_check_pipeline(SoftMetalEncoder *encoder, id state, const char *what)
{
    sm_check_open(encoder, what);
    sm_check_argument(state, [SoftMetalPipeline class], what);
    SM_REQUIRE(((SoftMetalPipeline *)state)->device == encoder->device, OTHER_DEVICE, "%s", what);
}

void sm_encode_dispatch(SoftMetalEncoder *encoder, SoftMetalPipeline *pipeline, sm_binding *bindings, sm_size threads,
                        const char *what)
{
    sm_check_open(encoder, what);
    SM_REQUIRE(pipeline, NO_PIPELINE, "%s", what);
    sm_command *command = sm_record(encoder->recording, SM_DISPATCH);
    command->object = pipeline;
    command->bindings = bindings;
    command->grid[0] = threads.width;
    command->grid[1] = threads.height;
    command->grid[2] = threads.depth;
}

@implementation SoftMetalComputeEncoder

+ (const char *)metalName { return "MTLComputeCommandEncoder"; }

- (void)setComputePipelineState:(id)state
{
    static const char what[] = "setComputePipelineState:";
    sm_check_pipeline(self, state, what);
    sm_refer(recording, state);
    pipeline = state;
}

- (void)clearBindingAt:(unsigned long)index what:(const char *)what
{
    sm_check_open(self, what);
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
    sm_refer(recording, memory);
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
    sm_encode_dispatch(encoder, encoder->pipeline, copy_bindings(encoder->bindings), threads, what);
}

- (void)dispatchThreadgroups:(sm_size)groups threadsPerThreadgroup:(sm_size)each
{
    sm_size threads = {groups.width * each.width, groups.height * each.height, groups.depth * each.depth};
    record_dispatch(self, threads, "dispatchThreadgroups:threadsPerThreadgroup:");
}

- (void)dealloc
{
    for (unsigned i = 0; i < SM_BINDINGS; i++) free(bindings[i].bytes);
    [super dealloc];
}

@end
