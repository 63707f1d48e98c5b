// cc -std=c99 lost_device.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o lost_device
//
// A device is lost while the GPU still works: what may the program free? A wait goes on until Metal has reported the end
// of the command buffers, and a second after the loss gpusync gives up what has not ended: waits for that return
// ERROR_DEVICE_LOST, and its memory is kept, because the GPU may still write it.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"

enum { BLOCKS = 4, SIZE = 4096 };

typedef struct block {
    const char *name;
    void *memory; /* an id<MTLBuffer> that the work of the ticket uses */
    gpusync_ticket ticket;
} block;

static gpusync_device *device;
static gpusync_queue *queue, *other;
static gpusync_timeline *never; /* nothing signals it */

static void *buffer_of(gpusync_queue *q)
{
    /* Metal keeps the memory of a command buffer with unretained references no longer than the program does. */
    gpusync_command_buffer_desc desc = {.unretained_references = true};
    void *buffer;
    check(!gpusync_command_buffer(q, &desc, &buffer), "gpusync_command_buffer");
    return buffer;
}

static block start(const char *name, uint64_t duration_ns, bool held)
{
    block b = {name, metal_buffer_new(gpusync_device_metal(device), SIZE), GPUSYNC_NO_TICKET};
    void *buffer = buffer_of(queue);
    check(b.memory != NULL, "memory");
    if (held) check(!gpusync_encode_wait(queue, buffer, gpusync_at_value(never, 1)), "gpusync_encode_wait");
    softmetal_set_duration(buffer, duration_ns);
    /* ... encode work that uses b.memory ... */
    check(!gpusync_commit(queue, buffer, &b.ticket), "gpusync_commit");
    return b;
}

/* On a real device nothing fails on purpose, and the device stays. */
static void lose_the_device(void)
{
    void *buffer = buffer_of(other);
    gpusync_ticket ticket;
    softmetal_fail(buffer, NULL, 4, "ignored, because of earlier errors, on purpose");
    check(!gpusync_commit(other, buffer, &ticket), "gpusync_commit");
    check(gpusync_wait(other, ticket, 10000 * MS) != GPUSYNC_TIMEOUT, "gpusync_wait");
}

/* Returns whether the memory of the work may be freed. */
static bool is_finished(const block *b, uint64_t timeout_ns)
{
    gpusync_result result = gpusync_wait(queue, b->ticket, timeout_ns);
    gpusync_ticket_info info;
    bool finished = gpusync_get_info(queue, b->ticket, &info) == GPUSYNC_OK; /* of work that was given up it is not */
    printf("  %s: %s: %s\n", b->name, name_of(result), finished ? "freed" : "kept");
    return finished;
}

int main(void)
{
    block blocks[BLOCKS];
    unsigned freed = 0;
    check_device(gpusync_device_create(NULL, &device));
    check(!gpusync_queue_create(device, NULL, &queue) && !gpusync_queue_create(device, NULL, &other), "queues");
    check(!gpusync_timeline_create(device, NULL, &never), "gpusync_timeline_create");

    blocks[0] = start("short work", MS, false);
    blocks[1] = start("longer work", 300 * MS, false);
    blocks[2] = start("work that hangs", 20000 * MS, false);
    blocks[3] = start("work that was held", MS, true);
    lose_the_device();
    printf("the device is %s\n", gpusync_device_is_lost(device) ? "lost" : "still there");
    if (!gpusync_device_is_lost(device)) check(!gpusync_cancel_held(queue), "gpusync_cancel_held");

    for (unsigned i = 0; i < BLOCKS; i++) {
        if (!is_finished(&blocks[i], 10000 * MS)) continue;
        metal_release(blocks[i].memory);
        freed++;
    }
    printf("memory: %u of %d blocks freed\n", freed, BLOCKS);
    check(freed == (gpusync_device_is_lost(device) ? 3u : 4u), "only the memory of work that hangs is kept");

    /* Destroy waits no longer than that second. What it leaves to the GPU is the program's to keep. */
    check(!gpusync_timeline_destroy(never), "gpusync_timeline_destroy");
    check(!gpusync_queue_destroy(queue) && !gpusync_queue_destroy(other), "gpusync_queue_destroy");
    check(!gpusync_device_destroy(device), "gpusync_device_destroy");
    printf("lost_device: all %d checks passed\n", checks);
    return 0;
}
