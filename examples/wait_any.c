// cc -std=c99 wait_any.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o wait_any
// A wait for whichever of several fences ends first, as SDL_WaitForGPUFences makes it. Metal has no such wait, so SDL
// polls in a loop (libsdl-org/SDL#15947). gpusync_wait_many sleeps, and has a limit. A ticket of any queue is a fence.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { JOBS = 3, SIZE = 1 << 20 };

int main(void)
{
    const unsigned char fills[JOBS] = {2, 240, 60}; /* how much work a job is */
    gpusync_device *device;
    gpusync_queue *queues[JOBS];
    gpusync_point fences[JOBS];
    void *memory, *buffer;
    MUST(gpusync_device_create(NULL, &device));
    memory = MUST_GET(metal_buffer_new(gpusync_device_metal(device), JOBS * SIZE));
    for (int i = 0; i < JOBS; i++) {
        MUST(gpusync_queue_create(device, NULL, &queues[i]));
        MUST(gpusync_command_buffer_create(queues[i], NULL, 1000000000, &buffer));
        for (unsigned char byte = 1; byte <= fills[i]; byte++)
            metal_must_fill(buffer, memory, (size_t)i * SIZE, SIZE, byte);
        fences[i] = gpusync_at_ticket(queues[i], GPUSYNC_NO_TICKET);
        MUST(gpusync_commit(queues[i], buffer, &fences[i].ticket));
    }
    for (size_t left = JOBS, which, job = 0; left > 0; fences[which] = fences[--left], job = 0) {
        MUST(gpusync_wait_many(fences, left, GPUSYNC_WAIT_ANY, 5000000000, NULL, &which));
        while (queues[job] != fences[which].queue)
            job++;
        printf("job %d: byte %d\n", (int)job, ((unsigned char *)metal_contents(memory))[job * SIZE + SIZE - 1]);
    }
    for (int i = 0; i < JOBS; i++)
        MUST(gpusync_queue_destroy(queues[i]));
    metal_release(memory);
    return gpusync_device_destroy(device) != GPUSYNC_OK;
}
