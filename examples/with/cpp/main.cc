#define GPUSYNC_IMPLEMENTATION
#include "gpusync.hpp"
#include <cstdio>

static bool failed(const char *call, gpusync_result result)
{
    if (result)
        std::fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result != GPUSYNC_OK;
}

int main()
{
    using namespace std::chrono_literals;
    gpu::device device; // first made, last destroyed
    gpu::queue queue;
    gpu::command_buffer buffer;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    gpusync_error why = {};
    gpusync_wait_options options = {};
    options.error = &why;

    if (failed("gpusync_device_create", gpu::create(device)) ||
        failed("gpusync_queue_create", gpu::create(queue, device)) ||
        failed("gpusync_command_buffer_create", gpu::create(buffer, queue, 1s)))
        return 1;
    /* ... encode work into buffer.get() here ... */
    if (failed("gpusync_commit", gpu::commit(buffer, ticket)))
        return 1;
    gpusync_result result = gpusync_wait(queue.get(), ticket, 1000000000, &options);
    if (result == GPUSYNC_TIMEOUT)
        gpusync_queue_abandon(queue.release()); // the GPU hangs: the destructor would wait for it
    if (failed("gpusync_wait", result)) {
        std::fprintf(stderr, "%s\n", why.message);
        return 1;
    }
    std::printf("ticket %lld: done\n", static_cast<long long>(ticket));
}
