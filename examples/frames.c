// cc -std=c99 frames.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o frames
// A loop with three frames in flight: the CPU writes one frame while the GPU reads the two before it. Each slot of
// memory keeps the ticket of its last frame, and the CPU waits for that ticket before it writes the slot again.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { FRAMES = 60, SLOTS = 3, SIZE = 1 << 16, SCREEN = SLOTS * SIZE };

int main(void)
{
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket tickets[SLOTS] = {GPUSYNC_NO_TICKET}; /* no work, which is done */
    void *memory, *buffer;                               /* memory: the slots, then SCREEN, 4 bytes of each frame */
    int good = 0;
    MUST(gpusync_device_create(NULL, &device));
    MUST(gpusync_queue_create(device, NULL, &queue));
    memory = MUST_GET(metal_buffer_new(gpusync_device_metal(device), SCREEN + 4 * FRAMES));
    for (int frame = 0; frame < FRAMES; frame++) {
        gpusync_ticket *last = &tickets[frame % SLOTS];
        size_t slot = (size_t)(frame % SLOTS) * SIZE;
        gpusync_result result = gpusync_wait(queue, *last, 1000000000, NULL); /* a frame that failed is done, too */
        if (!gpusync_is_done(queue, *last))
            MUST(result); /* the GPU hangs, or is lost: it may still read the slot */
        memset((char *)metal_contents(memory) + slot, frame + 1, SIZE);
        MUST(gpusync_command_buffer_create(queue, NULL, 1000000000, &buffer)); /* may wait for room in the queue */
        metal_must_copy(buffer, memory, slot + SIZE - 4, memory, (size_t)(SCREEN + 4 * frame), 4);
        MUST(gpusync_commit(queue, buffer, last)); /* after [buffer presentDrawable:drawable] */
    }
    MUST_END(gpusync_wait(queue, GPUSYNC_EVERYTHING, 1000000000, NULL));
    MUST(gpusync_queue_destroy(queue));
    MUST(gpusync_device_destroy(device));
    for (int frame = 0; frame < FRAMES; frame++)
        good += ((unsigned char *)metal_contents(memory))[SCREEN + 4 * frame] == frame + 1;
    metal_release(memory);
    return printf("frames: %d of %d as written\n", good, FRAMES) < 0 || good != FRAMES;
}
