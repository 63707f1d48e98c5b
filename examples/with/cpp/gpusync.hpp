/* Owners of gpusync's objects for C++17: move-only, without exceptions. Each function returns a gpusync_result. */
#pragma once
#include "gpusync.h"
#include <chrono>
#include <memory>

namespace gpu
{
/* A destructor waits for the GPU. In a callback no call may wait: there the object is destroyed later. */
struct destroy {
    void operator()(gpusync_device *device) const noexcept
    {
        if (gpusync_device_destroy(device) != GPUSYNC_OK)
            gpusync_device_destroy_later(device, nullptr, nullptr);
    }
    void operator()(gpusync_queue *queue) const noexcept
    {
        if (gpusync_queue_destroy(queue) == GPUSYNC_ERROR_WOULD_DEADLOCK)
            gpusync_queue_destroy_later(queue, nullptr, nullptr);
    }
};
struct discard {
    gpusync_queue *queue = nullptr;
    void operator()(void *buffer) const noexcept
    {
        gpusync_command_buffer_discard(queue, buffer);
    }
};

using device = std::unique_ptr<gpusync_device, destroy>;
using queue = std::unique_ptr<gpusync_queue, destroy>; // its device must outlive it
using command_buffer = std::unique_ptr<void, discard>; // an id<MTLCommandBuffer>; its queue must outlive it

[[nodiscard]] inline gpusync_result create(device &out, const gpusync_device_desc *desc = nullptr)
{
    gpusync_device *made = nullptr;
    gpusync_result result = gpusync_device_create(desc, &made);
    return out.reset(made), result;
}
[[nodiscard]] inline gpusync_result create(queue &out, const device &of, const gpusync_queue_desc *desc = nullptr)
{
    gpusync_queue *made = nullptr;
    gpusync_result result = gpusync_queue_create(of.get(), desc, &made);
    return out.reset(made), result;
}
[[nodiscard]] inline gpusync_result create(command_buffer &out, const queue &of, std::chrono::nanoseconds limit)
{
    void *made = nullptr;
    uint64_t ns = limit.count() > 0 ? static_cast<uint64_t>(limit.count()) : 0;
    gpusync_result result = gpusync_command_buffer_create(of.get(), nullptr, ns, &made);
    return out = command_buffer(made, discard{of.get()}), result;
}
[[nodiscard]] inline gpusync_result commit(command_buffer &buffer, gpusync_ticket &ticket)
{
    gpusync_result result = gpusync_commit(buffer.get_deleter().queue, buffer.get(), &ticket);
    if (result == GPUSYNC_OK)
        (void)buffer.release(); // gpusync keeps it until its work has ended
    return result;
}
} // namespace gpu
