/* metal.h - the little of Metal that the examples and tests need, in plain C (C99, C++11)

   Every call is objc_msgSend cast to the exact type of the method: arguments travel in other registers when the type is
   wrong. Metal objects are `void *`, NSUInteger is unsigned long.

   Ownership. Functions named metal_..._new or metal4_..._new, metal_blit_begin, metal_compute_begin and
   metal_queue_command_buffer return an object that is yours (+1), or NULL where Metal had none: give it back with
   metal_release (encoders: with metal_end). Nothing else hands over ownership.
   Pools. Helpers marked [pool] make an autorelease pool of their own. The others get no autoreleased object from Metal;
   what Metal autoreleases inside is the matter of the thread's own pool. */
#ifndef METAL_H
#define METAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define METAL__FN static inline __attribute__((unused))

/* The runtime's functions under names of our own, so that Apple's headers may be included too. Mach-O puts an
   underscore before C names, ELF nothing. */
#define METAL__TEXT2(x) #x
#define METAL__TEXT(x) METAL__TEXT2(x)
#define METAL__ASM(name) __asm__(METAL__TEXT(__USER_LABEL_PREFIX__) name)

#ifdef __cplusplus
extern "C" {
#endif
extern void metal__msg_send(void) METAL__ASM("objc_msgSend");
extern void *metal__sel(const char *name) METAL__ASM("sel_registerName");
extern void *metal__class(const char *name) METAL__ASM("objc_getClass");
extern void *metal__retain(void *object) METAL__ASM("objc_retain");
extern void metal__release(void *object) METAL__ASM("objc_release");
extern void *metal__pool_push(void) METAL__ASM("objc_autoreleasePoolPush");
extern void metal__pool_pop(void *pool) METAL__ASM("objc_autoreleasePoolPop");
extern void *metal__default_device(void) METAL__ASM("MTLCreateSystemDefaultDevice");
#ifdef __cplusplus
}
#endif

/* A variable, because GCC replaces the call of a function through another type with a trap. */
static void (*metal__send)(void) __attribute__((unused)) = metal__msg_send;

/* objc_msgSend as a function of this result and, after object and selector, these arguments. */
#define METAL__AS(result, ...) ((result(*)(void *, void *, __VA_ARGS__))metal__send)
#define METAL__AS0(result) ((result(*)(void *, void *))metal__send)

/* -- memory ---------------------------------------------------------------------------------- */

/* One more owner; returns the object. NULL is fine. */
METAL__FN void *metal_retain(void *object) { return metal__retain(object); }
/* One owner less. NULL is fine. */
METAL__FN void metal_release(void *object) { metal__release(object); }
/* Autoreleased objects live until the pop: on the same thread, innermost first. */
METAL__FN void *metal_pool_push(void) { return metal__pool_push(); }
METAL__FN void metal_pool_pop(void *pool) { metal__pool_pop(pool); }

/* -- messages by shape, also for selectors that have no helper below -------------------------- */

/* An object: borrowed or +1, as the selector's name says. Wants a pool where it is borrowed. */
METAL__FN void *metal_get(void *object, const char *selector)
{
    return METAL__AS0(void *)(object, metal__sel(selector));
}
/* Nothing. */
METAL__FN void metal_do(void *object, const char *selector) { METAL__AS0(void)(object, metal__sel(selector)); }
/* An NSUInteger. */
METAL__FN unsigned long metal_number(void *object, const char *selector)
{
    return METAL__AS0(unsigned long)(object, metal__sel(selector));
}
METAL__FN void metal_set(void *object, const char *selector, void *value)
{
    METAL__AS(void, void *)(object, metal__sel(selector), value);
}
METAL__FN void metal__at(void *object, const char *selector, void *event, uint64_t value)
{
    METAL__AS(void, void *, uint64_t)(object, metal__sel(selector), event, value);
}
/* A borrowed object, kept (+1). [pool] */
METAL__FN void *metal_get_retained(void *object, const char *selector)
{
    void *pool = metal_pool_push(), *result = metal_retain(metal_get(object, selector));
    metal_pool_pop(pool);
    return result;
}
/* [device newXWithDescriptor:descriptor error:...], which releases the descriptor; +1. [pool] */
METAL__FN void *metal__new_from(void *device, const char *selector, void *descriptor)
{
    void *pool = metal_pool_push(), *error = NULL;
    void *object = METAL__AS(void *, void *, void **)(device, metal__sel(selector), descriptor, &error);
    metal_release(descriptor);
    metal_pool_pop(pool);
    return object;
}

/* -- text ------------------------------------------------------------------------------------ */

/* An NSString; +1. */
METAL__FN void *metal_string_new(const char *utf8)
{
    void *string = metal_get(metal__class("NSString"), "alloc");
    return METAL__AS(void *, const char *)(string, metal__sel("initWithUTF8String:"), utf8);
}
/* An NSString's text, cut to size - 1 bytes; "" for NULL. [pool] */
METAL__FN void metal_string_copy(void *string, char *out, size_t size)
{
    void *pool = metal_pool_push();
    const char *text = METAL__AS0(const char *)(string, metal__sel("UTF8String"));
    size_t length = text ? strlen(text) : 0;
    if (size) {
        if (length >= size) length = size - 1;
        if (length) memcpy(out, text, length);
        out[length] = 0;
    }
    metal_pool_pop(pool);
}
/* An NSError's localizedDescription; "" for NULL. [pool] */
METAL__FN void metal_error_copy(void *error, char *out, size_t size)
{
    void *pool = metal_pool_push();
    metal_string_copy(metal_get(error, "localizedDescription"), out, size);
    metal_pool_pop(pool);
}
/* The label of a queue, command buffer, buffer, encoder or event: copied by Metal. [pool] */
METAL__FN void metal_set_label(void *object, const char *utf8)
{
    void *pool = metal_pool_push(), *string = metal_string_new(utf8);
    metal_set(object, "setLabel:", string);
    metal_release(string);
    metal_pool_pop(pool);
}

/* -- device, queue, command buffer ------------------------------------------------------------ */

/* The system's default device; +1. */
METAL__FN void *metal_device_new(void) { return metal__default_device(); }
/* A command queue with room for max uncompleted command buffers; +1. */
METAL__FN void *metal_queue_new(void *device, unsigned long max)
{
    return METAL__AS(void *, unsigned long)(device, metal__sel("newCommandQueueWithMaxCommandBufferCount:"), max);
}
/* [queue commandBuffer], +1: a buffer that gpusync did not make. Blocks while the queue is full. [pool] */
METAL__FN void *metal_queue_command_buffer(void *queue) { return metal_get_retained(queue, "commandBuffer"); }
METAL__FN void metal_enqueue(void *command_buffer) { metal_do(command_buffer, "enqueue"); }
METAL__FN void metal_commit(void *command_buffer) { metal_do(command_buffer, "commit"); }
/* block: an Objective-C block, or a struct that is laid out as one. */
METAL__FN void metal_add_completed_handler(void *command_buffer, void *block)
{
    metal_set(command_buffer, "addCompletedHandler:", block);
}
METAL__FN void metal_wait_until_completed(void *command_buffer) { metal_do(command_buffer, "waitUntilCompleted"); }
/* 0 not enqueued, 1 enqueued, 2 committed, 3 scheduled, 4 completed, 5 error: finished is >= 4. */
METAL__FN unsigned long metal_status(void *command_buffer) { return metal_number(command_buffer, "status"); }

/* -- buffers and blits ------------------------------------------------------------------------ */

/* Memory that CPU and GPU share; +1. */
METAL__FN void *metal_buffer_new(void *device, size_t length)
{
    return METAL__AS(void *, unsigned long, unsigned long)(
        device, metal__sel("newBufferWithLength:options:"), (unsigned long)length, 0ul);
}
/* The CPU's address of it, valid as long as the buffer. */
METAL__FN void *metal_contents(void *buffer) { return metal_get(buffer, "contents"); }

/* Open an encoder for fills and copies; +1, close it with metal_end. One at a time. [pool] */
METAL__FN void *metal_blit_begin(void *command_buffer)
{
    return metal_get_retained(command_buffer, "blitCommandEncoder");
}
/* endEncoding and release, for encoders of either kind; NULL is fine. */
METAL__FN void metal_end(void *encoder)
{
    metal_do(encoder, "endEncoding");
    metal_release(encoder);
}
typedef struct metal_range { unsigned long location, length; } metal_range;   /* NSRange */
typedef struct metal_size { unsigned long width, height, depth; } metal_size; /* MTLSize */
/* Set length bytes of the buffer to value, when the GPU gets there. */
METAL__FN void metal_fill(void *blit, void *buffer, size_t offset, size_t length, unsigned char value)
{
    const metal_range range = {(unsigned long)offset, (unsigned long)length};
    METAL__AS(void, void *, metal_range, unsigned char)(
        blit, metal__sel("fillBuffer:range:value:"), buffer, range, value);
}
/* Copy size bytes from one buffer to another. */
METAL__FN void metal_copy(void *blit, void *from, size_t from_offset, void *to, size_t to_offset, size_t size)
{
    METAL__AS(void, void *, unsigned long, void *, unsigned long, unsigned long)(
        blit, metal__sel("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"), from,
        (unsigned long)from_offset, to, (unsigned long)to_offset, (unsigned long)size);
}

/* -- layers and drawables: with -framework QuartzCore ----------------------------------------- */

typedef struct metal_extent { double width, height; } metal_extent; /* CGSize */
/* A CAMetalLayer of 8-bit BGRA, whose textures a blit may write; +1. NULL without QuartzCore. */
METAL__FN void *metal_layer_new(void *device, unsigned long width, unsigned long height)
{
    void *layer = metal_get(metal_get(metal__class("CAMetalLayer"), "alloc"), "init");
    const metal_extent size = {(double)width, (double)height};
    metal_set(layer, "setDevice:", device);
    METAL__AS(void, unsigned long)(layer, metal__sel("setPixelFormat:"), 80ul); /* MTLPixelFormatBGRA8Unorm */
    METAL__AS(void, signed char)(layer, metal__sel("setFramebufferOnly:"), (signed char)0);
    METAL__AS(void, metal_extent)(layer, metal__sel("setDrawableSize:"), size);
    return layer;
}
/* A drawable, borrowed: it is back when the caller's pool is gone and it was shown. May wait a second, and be NULL. */
METAL__FN void *metal_next_drawable(void *layer) { return metal_get(layer, "nextDrawable"); }
/* Copy a picture from a buffer, without gaps between its rows, into the drawable. */
METAL__FN void metal_copy_to_drawable(void *blit, void *buffer, unsigned long width, unsigned long height,
                                      void *drawable)
{
    const metal_size size = {width, height, 1}, origin = {0, 0, 0}; /* an MTLOrigin is laid out as an MTLSize */
    METAL__AS(void, void *, unsigned long, unsigned long, unsigned long, metal_size, void *, unsigned long,
              unsigned long, metal_size)(
        blit,
        metal__sel("copyFromBuffer:sourceOffset:sourceBytesPerRow:sourceBytesPerImage:sourceSize:toTexture:"
                   "destinationSlice:destinationLevel:destinationOrigin:"),
        buffer, 0ul, 4 * width, 4 * width * height, size, metal_get(drawable, "texture"), 0ul, 0ul, origin);
}
/* Shows the drawable when Metal has scheduled the command buffer. Before the commit. */
METAL__FN void metal_present(void *command_buffer, void *drawable)
{
    metal_set(command_buffer, "presentDrawable:", drawable);
}

/* -- compute ---------------------------------------------------------------------------------- */

/* The pipeline of one kernel of a Metal source text; +1. On NULL message (may be NULL) says why. [pool] */
METAL__FN void *metal_pipeline_new(void *device, const char *source, const char *kernel, char *message, size_t size)
{
    void *pool = metal_pool_push(), *error = NULL, *pipeline = NULL, *function = NULL;
    void *text = metal_string_new(source), *name = metal_string_new(kernel);
    void *library = METAL__AS(void *, void *, void *, void **)(
        device, metal__sel("newLibraryWithSource:options:error:"), text, NULL, &error);
    if (library) function = METAL__AS(void *, void *)(library, metal__sel("newFunctionWithName:"), name);
    if (function)
        pipeline = METAL__AS(void *, void *, void **)(
            device, metal__sel("newComputePipelineStateWithFunction:error:"), function, &error);
    if (message) metal_error_copy(pipeline ? NULL : error, message, size);
    metal_release(function);
    metal_release(library);
    metal_release(name);
    metal_release(text);
    metal_pool_pop(pool);
    return pipeline;
}
/* Open an encoder for kernels; +1, close it with metal_end. [pool] */
METAL__FN void *metal_compute_begin(void *command_buffer)
{
    return metal_get_retained(command_buffer, "computeCommandEncoder");
}
METAL__FN void metal_set_pipeline(void *compute, void *pipeline)
{
    metal_set(compute, "setComputePipelineState:", pipeline);
}
METAL__FN void metal_set_buffer(void *compute, void *buffer, size_t offset, unsigned long index)
{
    METAL__AS(void, void *, unsigned long, unsigned long)(
        compute, metal__sel("setBuffer:offset:atIndex:"), buffer, (unsigned long)offset, index);
}
/* A few bytes, copied now, that the kernel finds as a buffer. */
METAL__FN void metal_set_bytes(void *compute, const void *bytes, size_t length, unsigned long index)
{
    METAL__AS(void, const void *, unsigned long, unsigned long)(
        compute, metal__sel("setBytes:length:atIndex:"), bytes, (unsigned long)length, index);
}
/* Run the kernel in groups of threads. */
METAL__FN void metal_dispatch(void *compute, metal_size groups, metal_size threads)
{
    METAL__AS(void, metal_size, metal_size)(
        compute, metal__sel("dispatchThreadgroups:threadsPerThreadgroup:"), groups, threads);
}

/* -- shared events ---------------------------------------------------------------------------- */

/* A 64-bit number that both sides can raise and wait for, 0 at first; +1, NULL happens (sandboxes). */
METAL__FN void *metal_shared_event_new(void *device) { return metal_get(device, "newSharedEvent"); }
METAL__FN uint64_t metal_event_value(void *event) { return METAL__AS0(uint64_t)(event, metal__sel("signaledValue")); }
/* Raise it from the CPU; a smaller value changes nothing. */
METAL__FN void metal_event_signal(void *event, uint64_t value)
{
    METAL__AS(void, uint64_t)(event, metal__sel("setSignaledValue:"), value);
}
/* What is encoded after this starts when the event has reached value. No encoder may be open. */
METAL__FN void metal_encode_wait(void *command_buffer, void *event, uint64_t value)
{
    metal__at(command_buffer, "encodeWaitForEvent:value:", event, value);
}
/* The GPU raises the event when what was encoded so far is finished. No encoder may be open. */
METAL__FN void metal_encode_signal(void *command_buffer, void *event, uint64_t value)
{
    metal__at(command_buffer, "encodeSignalEvent:value:", event, value);
}

/* -- Metal 4 ---------------------------------------------------------------------------------- */

/* Fills, copies and kernels go through metal_compute_begin(buffer), as metal_fill, metal_copy, metal_set_pipeline and
   metal_dispatch send the same messages. Nothing that is committed is kept alive by Metal, nothing is made resident
   for it, and nothing is put in order: what one encoder does may overlap, and so may encoders of one queue. */

/* A Metal 4 queue; +1. NULL where there is no Metal 4. */
METAL__FN void *metal4_queue_new(void *device) { return metal_get(device, "newMTL4CommandQueue"); }
/* ... whose feedback comes on a serial dispatch queue, which is not retained. [pool] */
METAL__FN void *metal4_queue_new_on(void *device, void *dispatch_queue)
{
    void *descriptor = metal_get(metal__class("MTL4CommandQueueDescriptor"), "new");
    metal_set(descriptor, "setFeedbackQueue:", dispatch_queue);
    return metal__new_from(device, "newMTL4CommandQueueWithDescriptor:error:", descriptor);
}
/* A command buffer, and what it records into; +1. */
METAL__FN void *metal4_buffer_new(void *device) { return metal_get(device, "newCommandBuffer"); }
METAL__FN void *metal4_allocator_new(void *device) { return metal_get(device, "newCommandAllocator"); }
METAL__FN void metal4_allocator_reset(void *allocator) { metal_do(allocator, "reset"); }
/* What is encoded goes in between. */
METAL__FN void metal4_begin(void *buffer, void *allocator)
{
    metal_set(buffer, "beginCommandBufferWithAllocator:", allocator);
}
METAL__FN void metal4_end(void *buffer) { metal_do(buffer, "endCommandBuffer"); }
/* What this encoder does from here on starts when the copies and kernels are finished that the queue got earlier. */
METAL__FN void metal4_barrier(void *compute)
{
    const unsigned long dispatch_and_blit = 1ul << 27 | 1ul << 28, device = 1; /* MTLStages, MTL4VisibilityOptions */
    METAL__AS(void, unsigned long, unsigned long, unsigned long)(
        compute, metal__sel("barrierAfterQueueStages:beforeStages:visibilityOptions:"), dispatch_and_blit,
        dispatch_and_blit, device);
}

/* A residency set of these buffers; +1. What the work of a Metal 4 queue uses has to be in one that the queue or the
   command buffer has. NULL, which is fine below, where there are none: the software device. [pool] */
METAL__FN void *metal_residency_new(void *device, void *const *buffers, unsigned long count)
{
    void *descriptor = metal_get(metal__class("MTLResidencySetDescriptor"), "new");
    void *set = descriptor ? metal__new_from(device, "newResidencySetWithDescriptor:error:", descriptor) : NULL;
    for (unsigned long i = 0; i < count; i++) metal_set(set, "addAllocation:", buffers[i]);
    metal_do(set, "commit");
    return set;
}
/* For all work of the queue; for what is in the command buffer. */
METAL__FN void metal4_queue_use(void *queue, void *set) { if (set) metal_set(queue, "addResidencySet:", set); }
METAL__FN void metal4_use(void *buffer, void *set) { if (set) metal_set(buffer, "useResidencySet:", set); }

/* What a kernel finds as its buffers: room for `count` of them; +1. [pool] */
METAL__FN void *metal4_table_new(void *device, unsigned long count)
{
    void *descriptor = metal_get(metal__class("MTL4ArgumentTableDescriptor"), "new");
    METAL__AS(void, unsigned long)(descriptor, metal__sel("setMaxBufferBindCount:"), count);
    return metal__new_from(device, "newArgumentTableWithDescriptor:error:", descriptor);
}
METAL__FN uint64_t metal4_address(void *buffer) { return METAL__AS0(uint64_t)(buffer, metal__sel("gpuAddress")); }
METAL__FN void metal4_table_set(void *table, uint64_t address, unsigned long index)
{
    METAL__AS(void, uint64_t, unsigned long)(table, metal__sel("setAddress:atIndex:"), address, index);
}
METAL__FN void metal4_set_table(void *compute, void *table) { metal_set(compute, "setArgumentTable:", table); }

/* Options of a commit; +1. A commit takes their handlers out. */
METAL__FN void *metal4_options_new(void) { return metal_get(metal__class("MTL4CommitOptions"), "new"); }
METAL__FN void metal4_add_feedback_handler(void *options, void *block)
{
    metal_set(options, "addFeedbackHandler:", block);
}
/* options NULL: none. */
METAL__FN void metal4_commit(void *queue, void *const *buffers, unsigned long count, void *options)
{
    if (options)
        METAL__AS(void, void *const *, unsigned long, void *)(
            queue, metal__sel("commit:count:options:"), buffers, count, options);
    else
        METAL__AS(void, void *const *, unsigned long)(queue, metal__sel("commit:count:"), buffers, count);
}
/* The queue raises the event when all earlier work of it is finished; its later work starts when the event has reached
   the value. */
METAL__FN void metal4_signal(void *queue, void *event, uint64_t value)
{
    metal__at(queue, "signalEvent:value:", event, value);
}
METAL__FN void metal4_wait(void *queue, void *event, uint64_t value)
{
    metal__at(queue, "waitForEvent:value:", event, value);
}
/* Seconds, of a feedback or a finished command buffer. */
METAL__FN double metal_gpu_start(void *object) { return METAL__AS0(double)(object, metal__sel("GPUStartTime")); }
METAL__FN double metal_gpu_end(void *object) { return METAL__AS0(double)(object, metal__sel("GPUEndTime")); }

/* -- for programs of one file, which include gpusync.h first ------------------------------------ */

#ifdef GPUSYNC_H
#include <stdio.h>
#include <stdlib.h>

/* An error ends the program, with a message that names the call. Exit status 77: there is no device. */
METAL__FN void metal__must(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1);
}
METAL__FN gpusync_result metal__must_end(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_TIMEOUT) metal__must(call, result);
    return result;
}
METAL__FN void *metal__must_get(const char *call, void *object)
{
    if (!object) metal__must(call, GPUSYNC_ERROR_METAL_NIL);
    return object;
}
#define MUST(call) metal__must(#call, call)         /* a result, which has to be OK */
#define MUST_END(wait) metal__must_end(#wait, wait) /* a result, of work that may fail within the limit */
#define MUST_GET(call) metal__must_get(#call, call) /* an object, which has to be there */

/* A fill, or a copy, in an encoder of its own. [pool] */
METAL__FN void metal_must_fill(void *command_buffer, void *buffer, size_t offset, size_t length, unsigned char value)
{
    void *pool = metal_pool_push(), *blit = MUST_GET(metal_blit_begin(command_buffer));
    metal_fill(blit, buffer, offset, length, value);
    metal_end(blit);
    metal_pool_pop(pool);
}
METAL__FN void metal_must_copy(void *command_buffer, void *from, size_t from_offset, void *to, size_t to_offset,
                               size_t size)
{
    void *pool = metal_pool_push(), *blit = MUST_GET(metal_blit_begin(command_buffer));
    metal_copy(blit, from, from_offset, to, to_offset, size);
    metal_end(blit);
    metal_pool_pop(pool);
}

/* Metal refuses the next `count` command buffers, as iOS does in the background. Only the software device of Linux does
   this on demand: elsewhere nothing is refused. */
#ifdef __APPLE__
#define metal_refuse_next(count) ((void)(count))
#else
#ifdef __cplusplus
extern "C"
#endif
void softmetal_fail_next_as(unsigned count, unsigned reason);
#define metal_refuse_next(count) softmetal_fail_next_as(count, 6)
#endif
#endif

#endif
