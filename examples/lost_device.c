// cc -std=c99 lost_device.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o lost_device
//
// A device is lost while the GPU still works: what may the program free? A wait goes on until Metal has reported the
// end of the work, and a second after the loss it returns ERROR_DEVICE_LOST for work that has not ended. What the GPU
// may still write is kept: gpusync_is_done alone decides about memory.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#ifndef __APPLE__
#include "softmetal.h" /* the software device of Linux: it is lost on demand. A Mac's device stays */
#endif
#include <stdio.h>
#include <stdlib.h>

enum { BUSY, WAITING, FAILING, QUEUES };
enum { BLOCKS = 4, SIZE = 4096 };
static const uint64_t limit = 10000000000, ms = 1000000; /* nanoseconds */

typedef struct block {
    const char *name;
    int queue;             /* WAITING: the work is held */
    uint64_t takes_ns;     /* on the software device; UINT64_MAX: it hangs */
    gpusync_ticket ticket; /* of the work that uses the memory */
    void *memory;          /* an MTLBuffer */
} block;

static gpusync_device *device;
static gpusync_queue *queues[QUEUES];
static gpusync_timeline *never; /* nothing signals it */

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define CHECK(call) check(#call, call)

static void start(block *b)
{
    /* Metal keeps the memory of this command buffer no longer than the program does. */
    gpusync_command_buffer_desc desc = {.label = b->name, .unretained_references = true};
    gpusync_queue *queue = queues[b->queue];
    void *buffer, *blit;
    CHECK(gpusync_command_buffer_create(queue, &desc, limit, &buffer));
    b->memory = metal_buffer_new(gpusync_device_metal(device), SIZE);
    if (b->queue == WAITING) CHECK(gpusync_encode_wait(queue, buffer, gpusync_at_value(never, 1)));
    blit = metal_blit_begin(buffer);
    if (!b->memory || !blit) check("memory and an encoder", GPUSYNC_ERROR_METAL_NIL);
    metal_fill(blit, b->memory, 0, SIZE, 1);
    metal_end(blit);
#ifndef __APPLE__
    if (b->takes_ns == UINT64_MAX) softmetal_hang(buffer);
    else softmetal_set_duration(buffer, b->takes_ns);
#endif
    CHECK(gpusync_commit(queue, buffer, &b->ticket));
}

static void lose_the_device(void)
{
#ifndef __APPLE__
    gpusync_ticket ticket;
    void *buffer;
    CHECK(gpusync_command_buffer_create(queues[FAILING], NULL, limit, &buffer));
    softmetal_fail_as(buffer, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    CHECK(gpusync_commit(queues[FAILING], buffer, &ticket));
    if (gpusync_wait(queues[FAILING], ticket, limit, NULL) != GPUSYNC_ERROR_EXECUTION) exit(1);
#else
    CHECK(gpusync_queue_cancel_held(queues[WAITING]));
#endif
}

int main(void)
{
    block blocks[BLOCKS] = {{.name = "short work", .queue = BUSY, .takes_ns = 1 * ms},
                            {.name = "longer work", .queue = BUSY, .takes_ns = 300 * ms},
                            {.name = "work that hangs", .queue = BUSY, .takes_ns = UINT64_MAX},
                            {.name = "held work", .queue = WAITING}};
    int freed = 0;
    bool lost;
    CHECK(gpusync_device_create(NULL, &device));
    for (int i = 0; i < QUEUES; i++) CHECK(gpusync_queue_create(device, NULL, &queues[i]));
    CHECK(gpusync_timeline_create(device, NULL, &never));
    for (int i = 0; i < BLOCKS; i++) start(&blocks[i]);
    lose_the_device();
    lost = gpusync_device_is_lost(device);
    printf("the device is %s\n", lost ? "lost" : "still there");

    for (block *b = blocks; b < blocks + BLOCKS; b++) {
        gpusync_result result = gpusync_wait(queues[b->queue], b->ticket, limit, NULL);
        bool done = gpusync_is_done(queues[b->queue], b->ticket);
        printf("  %s: %s: %s\n", b->name, gpusync_result_string(result), done ? "freed" : "kept");
        if (!done) continue;
        metal_release(b->memory);
        freed++;
    }

    /* Destroy waits no longer than that second. What it leaves to the GPU is the program's to keep. */
    for (int i = 0; i < QUEUES; i++) {
        gpusync_result result = gpusync_queue_destroy(queues[i]);
        if (i != BUSY || !lost || result != GPUSYNC_ERROR_DEVICE_LOST) check("gpusync_queue_destroy", result);
    }
    CHECK(gpusync_timeline_destroy(never));
    CHECK(gpusync_device_destroy(device));
    printf("memory: %d of %d blocks freed\n", freed, BLOCKS);
    return freed != (lost ? 3 : BLOCKS);
}
