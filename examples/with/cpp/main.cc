#define GPUSYNC_IMPLEMENTATION
#include "gpusync.hpp"
#include <iostream>

int main()
try {
    gpu::device device;
    gpu::queue queue(device);
    gpu::command_buffer buffer(queue);
    /* ... encode work into buffer.get() here ... */
    gpusync_ticket ticket = buffer.commit();
    try {
        queue.wait(ticket, std::chrono::seconds(1));
    } catch (const gpu::error &error) {
        if (error.result == GPUSYNC_TIMEOUT) queue.abandon();
        throw;
    }
    std::cout << "ticket " << ticket << ": done\n";
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
