/* Device and queue as values: moved, not copied, and destroyed at the end of their scope. */
#include "gpusync.h"
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

namespace gpu {
inline void check(const char *call, gpusync_result result, const std::string &why = {})
{
    if (result) throw std::runtime_error(std::string(call) + ": " + gpusync_result_string(result) + why);
}
struct destroy { /* in a callback neither is destroyed, see gpusync_queue_destroy */
    void operator()(gpusync_queue *queue) const { gpusync_queue_destroy(queue); } /* waits for what is in flight */
    void operator()(gpusync_device *device) const { gpusync_device_destroy(device); }
};
using device = std::unique_ptr<gpusync_device, destroy>;
using queue = std::unique_ptr<gpusync_queue, destroy>; /* declare it behind its device: it goes first */

inline device make_device(const gpusync_device_desc *desc = nullptr)
{
    gpusync_device *made = nullptr;
    check("gpusync_device_create", gpusync_device_create(desc, &made));
    return device(made);
}
inline queue make_queue(const device &on, const gpusync_queue_desc *desc = nullptr)
{
    gpusync_queue *made = nullptr;
    check("gpusync_queue_create", gpusync_queue_create(on.get(), desc, &made));
    return queue(made);
}
inline void wait(const queue &of, gpusync_ticket ticket, std::chrono::nanoseconds limit)
{
    gpusync_error error = {};
    gpusync_wait_options options = {};
    options.error = &error;
    gpusync_result result = gpusync_wait_ex(of.get(), ticket, static_cast<uint64_t>(limit.count()), &options);
    check("gpusync_wait_ex", result, result < 0 ? std::string(": ") + error.message : "");
}
} // namespace gpu
