// cc -std=c99 two_devices.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o two_devices
//
// Two gpusync devices in one program: of two GPUs, or of one GPU, where two libraries of a process have one each. They
// do not know each other's tickets and timelines. So a timeline of the one imports the event of a timeline of the
// other: values cross it on the GPU, and a failure does, too.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>

enum { ITEMS = 4, FAILING = 3, SIZE = 1 << 16 };
static const uint64_t limit = 10000000000; /* nanoseconds */

extern void *MTLCopyAllDevices(void); /* macOS, iOS 18 */

typedef struct side {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    void *memory; /* an MTLBuffer */
} side;

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define CHECK(call) check(#call, call)

static side open_side(void *metal, const char *label, const gpusync_timeline_desc *timeline_desc)
{
    gpusync_device_desc device_desc = {.metal_device = metal};
    gpusync_queue_desc queue_desc = {.label = label};
    side s;
    CHECK(gpusync_device_create(&device_desc, &s.device));
    CHECK(gpusync_queue_create(s.device, &queue_desc, &s.queue));
    CHECK(gpusync_timeline_create(s.device, timeline_desc, &s.timeline));
    s.memory = metal_buffer_new(gpusync_device_metal(s.device), SIZE);
    if (!s.memory) check("newBufferWithLength:options:", GPUSYNC_ERROR_METAL_NIL);
    return s;
}

static void close_side(side *s)
{
    CHECK(gpusync_queue_destroy(s->queue));
    CHECK(gpusync_timeline_destroy(s->timeline));
    CHECK(gpusync_device_destroy(s->device));
    metal_release(s->memory);
}

/* Fills the memory, between a wait and a signal. */
static gpusync_ticket commit(side *s, const gpusync_point *wait, const gpusync_point *signal, unsigned char byte)
{
    gpusync_ticket ticket;
    void *buffer, *blit;
    CHECK(gpusync_command_buffer_create(s->queue, NULL, limit, &buffer));
    if (wait) CHECK(gpusync_encode_wait(s->queue, buffer, *wait));
    blit = metal_blit_begin(buffer); /* a real program computes here, and copies between the GPUs */
    if (!blit) check("blitCommandEncoder", GPUSYNC_ERROR_METAL_NIL);
    metal_fill(blit, s->memory, 0, SIZE, byte);
    metal_end(blit);
    if (signal) CHECK(gpusync_encode_signal(s->queue, buffer, *signal));
    CHECK(gpusync_commit(s->queue, buffer, &ticket));
    return ticket;
}

int main(void)
{
    void *pool = metal_pool_push(), *all = MTLCopyAllDevices();
    bool none = !all || metal_number(all, "count") == 0; /* then gpusync finds none either */
    void *first = none ? NULL : metal_get(all, "firstObject"), *last = none ? NULL : metal_get(all, "lastObject");
    gpusync_timeline_desc desc = {0};
    gpusync_timeline *gate;
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    side from = open_side(first, "from", NULL), to;
    uint64_t base; /* of the event, which gpusync may have used before */
    int wrong = 0;
    desc.shared_event = gpusync_timeline_metal(from.timeline, &base);
    to = open_side(last, "to", &desc);
    CHECK(gpusync_timeline_create(from.device, NULL, &gate));
    printf("two devices of %s\n", first == last ? "one MTLDevice" : "two MTLDevices");

    for (unsigned i = 1; i <= ITEMS; i++) {
        gpusync_point begin = gpusync_at_value(gate, 1), made = gpusync_at_value(from.timeline, i);
        gpusync_point arrived = gpusync_at_value(to.timeline, i + base);
        gpusync_ticket ticket = commit(&from, i == FAILING ? &begin : NULL, &made, (unsigned char)i);
        gpusync_result result;
        /* The other device cannot know what this one holds. Its work goes to the GPU at once, and waits there: so it is
           committed when what it waits for is sure to be on its way. */
        if (i == FAILING) CHECK(gpusync_queue_cancel_held(from.queue)); /* fails from.timeline, and marks the event */
        ticket = commit(&to, &arrived, NULL, (unsigned char)i);
        result = gpusync_wait(to.queue, ticket, limit, &options);
        printf("item %u: %s\n", i, result ? error.message : gpusync_result_string(result));
        if (result != GPUSYNC_OK) break; /* a failed timeline stays failed: the next batch needs new ones */
        wrong += *(unsigned char *)metal_contents(from.memory) != i || *(unsigned char *)metal_contents(to.memory) != i;
    }
    wrong += gpusync_wait(to.queue, GPUSYNC_EVERYTHING, limit, NULL) != GPUSYNC_ERROR_EXECUTION;
    wrong += gpusync_wait(from.queue, GPUSYNC_EVERYTHING, limit, NULL) != GPUSYNC_ERROR_CANCELLED;

    close_side(&to);
    CHECK(gpusync_timeline_destroy(gate));
    close_side(&from);
    metal_release(all);
    metal_pool_pop(pool);
    return wrong;
}
