// Bridge with plain __bridge casts, in both directions. Never use __bridge_transfer: gpusync keeps its own references.
#import <Metal/Metal.h>

#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include <cstdio>

static bool failed(const char *call, gpusync_result result)
{
    if (result) std::fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result != GPUSYNC_OK;
}
#define FAILED(call) failed(#call, call)

static bool draw(gpusync_queue *queue)
{
    void *raw;
    gpusync_ticket ticket;
    if (FAILED(gpusync_command_buffer(queue, nullptr, &raw))) return true;
    id<MTLCommandBuffer> buffer = (__bridge id<MTLCommandBuffer>)raw;
    id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
    // ... encode work here ...
    [blit endEncoding];
    if (FAILED(gpusync_commit(queue, raw, &ticket))) return true; // instead of [buffer commit]
    return FAILED(gpusync_wait(queue, ticket, 1000000000));
}

int main()
{
    id<MTLDevice> metalDevice = MTLCreateSystemDefaultDevice();
    gpusync_device_desc desc = {};
    gpusync_device *device = nullptr;
    gpusync_queue *queue = nullptr;
    desc.metal_device = (__bridge void *)metalDevice; // retained; nil: Metal's default device
    bool bad = FAILED(gpusync_device_create(&desc, &device)) || FAILED(gpusync_queue_create(device, nullptr, &queue));
    if (!bad) @autoreleasepool { bad = draw(queue); }
    bad |= FAILED(gpusync_queue_destroy(queue)) || FAILED(gpusync_device_destroy(device));
    return bad;
}
