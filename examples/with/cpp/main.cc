#define GPUSYNC_IMPLEMENTATION
#include "gpusync.hpp"
#include <iostream>

int main()
try {
    gpu::device device;
    gpu::queue queue(device);
    gpu::command_buffer buffer(queue);
    /* ... encode work into buffer.get() here, an id<MTLCommandBuffer> ... */
    gpusync_ticket ticket = buffer.commit();
    queue.wait(ticket, std::chrono::seconds(1));
    std::cout << "ticket " << ticket << ": done\n";
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
