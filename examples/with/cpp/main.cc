#define GPUSYNC_IMPLEMENTATION
#include "gpusync.hpp"
#include <iostream>

int main()
try {
    gpu::device device = gpu::make_device();
    gpu::queue queue = gpu::make_queue(device);
    void *buffer; /* an id<MTLCommandBuffer> */
    gpusync_ticket ticket;

    gpu::check("gpusync_command_buffer", gpusync_command_buffer(queue.get(), nullptr, &buffer));
    /* ... encode work into the buffer here ... */
    gpu::check("gpusync_commit", gpusync_commit(queue.get(), buffer, &ticket));
    gpu::wait(queue, ticket, std::chrono::seconds(1));
    std::cout << "ticket " << ticket << ": done\n";
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
