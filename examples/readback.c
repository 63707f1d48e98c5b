// cc -std=c99 readback.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o readback
// A compute tool: one piece of work, a wait with a limit, then the CPU reads the result. The three ends are told apart:
// success, a failure with its reason, and a limit that passes, after which the GPU still owns the memory.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { SIZE = 1 << 20 };

int main(void)
{
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    gpusync_result result;
    void *memory, *buffer;
    char report[4096];
    MUST(gpusync_device_create(NULL, &device));
    MUST(gpusync_queue_create(device, NULL, &queue));
    memory = MUST_GET(metal_buffer_new(gpusync_device_metal(device), SIZE));
    MUST(gpusync_command_buffer_create(queue, NULL, 1000000000, &buffer));
    metal_must_fill(buffer, memory, 0, SIZE, 42); /* or a kernel: metal_compute_begin, metal_dispatch, metal_end */
    MUST(gpusync_commit(queue, buffer, &ticket));
    result = gpusync_wait(queue, ticket, 5000000000, &options);
    if (result == GPUSYNC_OK) {
        printf("result: %d\n", ((unsigned char *)metal_contents(memory))[SIZE - 1]);
    } else if (gpusync_is_done(queue, ticket)) {
        fprintf(stderr, "%s: %s\n", gpusync_failure_string(error.failure), error.message);
    } else {
        gpusync_device_report(device, report, sizeof report);
        fputs(report, stderr);
        return 1; /* frees nothing: the GPU may still write the memory */
    }
    MUST(gpusync_queue_destroy(queue));
    metal_release(memory);
    return gpusync_device_destroy(device) != GPUSYNC_OK || result != GPUSYNC_OK;
}
