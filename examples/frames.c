// cc -std=c99 frames.c -framework Metal -framework QuartzCore
//     -framework CoreGraphics -framework Foundation -lobjc -o frames
//
// A frame loop with drawables: the CPU writes a frame while the GPU works on the two before it. Tickets are numbers, so
// the loop keeps the newest one alone: the memory of a frame was that of the third ticket back. A frame that fails has
// ended, too, and a frame without a drawable is discarded. The layer is in no window, so nothing is to be seen.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>

enum { FRAMES = 60, SLOTS = 3, WIDTH = 64, HEIGHT = 32, SIZE = 4 * WIDTH * HEIGHT };
static const uint64_t limit = 1000000000; /* nanoseconds, for one wait */

static gpusync_device *device;
static gpusync_queue *queue;
static gpusync_ticket newest;       /* 0 at first: no work, done */
static void *layer;                 /* a CAMetalLayer */
static void *slots[SLOTS], *record; /* MTLBuffers; the GPU copies the last pixel of each frame to the record */
static unsigned not_drawn;

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define CHECK(call) check(#call, call)

static void *memory(size_t size)
{
    void *buffer = metal_buffer_new(gpusync_device_metal(device), size);
    if (!buffer) check("newBufferWithLength:options:", GPUSYNC_ERROR_METAL_NIL);
    return buffer;
}

static void draw(unsigned frame)
{
    gpusync_ticket before = newest + 1 - SLOTS; /* had this slot; below 1 there was none, which is done */
    void *slot = slots[(newest + 1) % SLOTS], *buffer, *drawable, *blit;
    uint32_t *pixels = (uint32_t *)metal_contents(slot);
    gpusync_result result = gpusync_wait(queue, before, limit, NULL);
    if (!gpusync_is_done(queue, before)) check("gpusync_wait", result); /* the GPU hangs, or the device is lost */
    for (unsigned i = 0; i < WIDTH * HEIGHT; i++) pixels[i] = frame;

    CHECK(gpusync_command_buffer_create(queue, NULL, limit, &buffer)); /* may wait for room in the queue */
    drawable = metal_next_drawable(layer);                             /* late, as it may wait for the display */
    if (!drawable) {
        not_drawn++;
        CHECK(gpusync_command_buffer_discard(queue, buffer)); /* takes no ticket: the next frame has this slot */
        return;
    }
    blit = metal_blit_begin(buffer);
    if (!blit) check("blitCommandEncoder", GPUSYNC_ERROR_METAL_NIL);
    metal_copy_to_drawable(blit, slot, WIDTH, HEIGHT, drawable);
    metal_copy(blit, slot, SIZE - 4, record, 4 * frame, 4);
    metal_end(blit);
    metal_present(buffer, drawable); /* before the commit */
    CHECK(gpusync_commit(queue, buffer, &newest));
}

int main(void)
{
    gpusync_error error;
    uint64_t cursor = 0;
    unsigned failures = 0, good = 0;
    CHECK(gpusync_device_create(NULL, &device));
    CHECK(gpusync_queue_create(device, NULL, &queue));
    layer = metal_layer_new(gpusync_device_metal(device), WIDTH, HEIGHT);
    if (!layer) check("CAMetalLayer", GPUSYNC_ERROR_METAL_NIL);
    for (int i = 0; i < SLOTS; i++) slots[i] = memory(SIZE);
    record = memory(4 * (FRAMES + 1));

    for (unsigned frame = 1; frame <= FRAMES; frame++) {
        void *pool = metal_pool_push(); /* a drawable in a pool that lives longer is one that a later frame lacks */
        draw(frame);
        metal_pool_pop(pool);
        if (!newest && not_drawn == 3) return fprintf(stderr, "the layer has no drawable\n"), 77; /* no display */
    }

    if (gpusync_wait(queue, GPUSYNC_EVERYTHING, limit, NULL) == GPUSYNC_TIMEOUT) check("the GPU", GPUSYNC_TIMEOUT);
    while (gpusync_queue_next_error(queue, &cursor, &error) == GPUSYNC_OK) {
        fprintf(stderr, "ticket %d: %s\n", (int)error.ticket, error.message);
        failures++; /* no reason to stop: the next frame replaces it */
    }
    CHECK(gpusync_queue_destroy(queue));
    CHECK(gpusync_device_destroy(device));
    for (unsigned frame = 1; frame <= FRAMES; frame++) good += ((uint32_t *)metal_contents(record))[frame] == frame;
    metal_release(layer);
    metal_release(record);
    for (int i = 0; i < SLOTS; i++) metal_release(slots[i]);
    printf("frames: %u as written, %u failed, %u without a drawable\n", good, failures, not_drawn);
    return good + failures + not_drawn != FRAMES;
}
