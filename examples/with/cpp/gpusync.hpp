/* Devices, queues and command buffers that destroy themselves, in C++11. A call that fails throws. */
#include "gpusync.h"
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

namespace gpu {

struct error : std::runtime_error {
    gpusync_result result;
    error(const char *call, gpusync_result why, const char *more)
        : std::runtime_error(std::string(call) + ": " + gpusync_result_string(why) + "\n" + more), result(why)
    {
    }
};

inline void check(const char *call, gpusync_result result, const char *more = "")
{
    if (result) throw error(call, result, more);
}

struct destroy {
    void operator()(gpusync_device *device) const { gpusync_device_destroy(device); }
    void operator()(gpusync_queue *queue) const { gpusync_queue_destroy(queue); } // waits for the GPU
};

struct device : std::unique_ptr<gpusync_device, destroy> {
    explicit device(const gpusync_device_desc *desc = nullptr)
    {
        gpusync_device *made;
        check("gpusync_device_create", gpusync_device_create(desc, &made));
        reset(made);
    }
};

struct queue : std::unique_ptr<gpusync_queue, destroy> { // its device must outlive it
    explicit queue(const device &owner, const gpusync_queue_desc *desc = nullptr)
    {
        gpusync_queue *made;
        check("gpusync_queue_create", gpusync_queue_create(owner.get(), desc, &made));
        reset(made);
    }
    void wait(gpusync_ticket ticket, std::chrono::nanoseconds limit) const
    {
        gpusync_error why = {};
        gpusync_wait_options options = {};
        options.error = &why;
        gpusync_result result = gpusync_wait(get(), ticket, static_cast<uint64_t>(limit.count()), &options);
        check("gpusync_wait", result, why.message);
    }
    void abandon() { gpusync_queue_abandon(release()); } // of a GPU that hangs
};

class command_buffer { // one that is not committed is discarded; its queue must outlive it
    gpusync_queue *queue_;
    void *buffer_;

public:
    explicit command_buffer(const queue &owner, const gpusync_command_buffer_desc *desc = nullptr) : queue_(owner.get())
    {
        check("gpusync_command_buffer_create", gpusync_command_buffer_create(queue_, desc, GPUSYNC_FOREVER, &buffer_));
    }
    command_buffer(const command_buffer &) = delete;
    ~command_buffer() { (void)(buffer_ && gpusync_command_buffer_discard(queue_, buffer_)); }
    void *get() const { return buffer_; } // an id<MTLCommandBuffer>
    gpusync_ticket commit()
    {
        gpusync_ticket ticket;
        check("gpusync_commit", gpusync_commit(queue_, buffer_, &ticket));
        buffer_ = nullptr;
        return ticket;
    }
};

} // namespace gpu
