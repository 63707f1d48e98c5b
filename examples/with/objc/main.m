/* Objective-C, with ARC or without. Metal objects cross by plain __bridge casts: gpusync retains what it keeps. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include <Block.h>
#include <stdio.h>
#if __has_include(<Metal/Metal.h>)
#import <Metal/Metal.h>
#else /* Linux */
@protocol MTLCommandBuffer
- (id)blitCommandEncoder;
- (void)endEncoding;
@end
#endif
typedef void (^done_block)(gpusync_result result, const gpusync_error *error);

static bool failed(const char *call, gpusync_result result)
{
    return result && fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
}
#define FAILED(call) failed(#call, call)

static void call_block(void *block, gpusync_result result, const gpusync_error *error)
{
    ((__bridge done_block)block)(result, error);
    _Block_release(block);
}

/* Calls the block once, when the ticket has ended. After an error the block is not called. */
static gpusync_result on_done(gpusync_queue *queue, gpusync_ticket ticket, done_block block)
{
    void *copy = _Block_copy((__bridge const void *)block);
    if (!copy)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    gpusync_result result = gpusync_on_done(gpusync_at_ticket(queue, ticket), call_block, copy);
    if (result)
        _Block_release(copy);
    return result;
}

int main(void)
{
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    void *buffer = NULL;
    done_block ended = ^(gpusync_result result, const gpusync_error *error) {
      fprintf(result ? stderr : stdout, "%s\n", error ? error->message : "the block was called");
    };
    bool bad = FAILED(gpusync_device_create(NULL, &device)) || FAILED(gpusync_queue_create(device, NULL, &queue)) ||
               FAILED(gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer));
    @autoreleasepool {
        [[(__bridge id<MTLCommandBuffer>)buffer blitCommandEncoder] endEncoding]; /* ... encode work here ... */
    }
    bad = bad || FAILED(gpusync_commit(queue, buffer, &ticket)) || FAILED(on_done(queue, ticket, ended)) ||
          FAILED(gpusync_wait(queue, ticket, 1000000000, NULL));
    /* destroy returns when the block has run; of a GPU that hangs it would not return */
    bad |= FAILED((gpusync_is_done(queue, ticket) ? gpusync_queue_destroy : gpusync_queue_abandon)(queue));
    bad |= FAILED(gpusync_device_destroy(device));
    return bad || printf("ticket %lld: done\n", (long long)ticket) < 0;
}
