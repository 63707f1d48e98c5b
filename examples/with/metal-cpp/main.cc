// metal-cpp's pointers are the Metal objects: pass them as they are.
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include <Metal/Metal.hpp>

#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include <cstdio>

static bool failed(const char *call, gpusync_result result)
{
    if (result) std::fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result != GPUSYNC_OK;
}
#define FAILED(call) failed(#call, call)

int main()
{
    MTL::Device *metalDevice = MTL::CreateSystemDefaultDevice();
    MTL::CommandQueue *metalQueue = metalDevice ? metalDevice->newCommandQueue() : nullptr;
    NS::AutoreleasePool *pool = NS::AutoreleasePool::alloc()->init();
    MTL::CommandBuffer *buffer = metalQueue ? metalQueue->commandBuffer() : nullptr; // autoreleased
    gpusync_device_desc deviceDesc = {};
    gpusync_queue_desc queueDesc = {};
    gpusync_device *device = nullptr;
    gpusync_queue *queue = nullptr;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    deviceDesc.metal_device = metalDevice;
    queueDesc.metal_queue = metalQueue;
    // ... encode work into the buffer before the commit, which takes the place of buffer->commit() ...
    bool bad = FAILED(gpusync_device_create(&deviceDesc, &device)) ||
               FAILED(gpusync_queue_create(device, &queueDesc, &queue)) ||
               FAILED(gpusync_commit(queue, buffer, &ticket)) || FAILED(gpusync_wait(queue, ticket, 1000000000));
    pool->release();
    bad |= FAILED(gpusync_queue_destroy(queue)) || FAILED(gpusync_device_destroy(device));
    if (metalQueue) metalQueue->release();
    if (metalDevice) metalDevice->release();
    if (!bad) std::printf("ticket %d: done\n", int(ticket));
    return bad;
}
