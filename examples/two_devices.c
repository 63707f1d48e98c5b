// cc -std=c99 two_devices.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o two_devices
//
// Two gpusync devices in one program: of two GPUs, or of one GPU that two libraries use, each with its own device. They
// do not know each other's tickets and timelines. So a timeline of the one imports the event of a timeline of the other:
// values cross on the GPU, and a failure does, too, without its reason.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { ITEMS = 4, FAILING = 3, SIZE = 1 << 16 };
static const uint64_t limit = 10000000000; /* nanoseconds */

#ifdef __cplusplus
extern "C"
#endif
    void *
    MTLCopyAllDevices(void); /* macOS, iOS 18 */

typedef struct side {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    void *memory; /* an MTLBuffer */
} side;

static side open_side(void *metal, const char *label, const gpusync_timeline_desc *timeline_desc)
{
    gpusync_device_desc device_desc = {.metal_device = metal};
    gpusync_queue_desc queue_desc = {.label = label};
    side s;
    MUST(gpusync_device_create(&device_desc, &s.device));
    MUST(gpusync_queue_create(s.device, &queue_desc, &s.queue));
    MUST(gpusync_timeline_create(s.device, timeline_desc, &s.timeline));
    s.memory = MUST_GET(metal_buffer_new(gpusync_device_metal(s.device), SIZE));
    return s;
}

static void close_side(side *s)
{
    MUST(gpusync_queue_destroy(s->queue));
    MUST(gpusync_timeline_destroy(s->timeline));
    MUST(gpusync_device_destroy(s->device));
    metal_release(s->memory);
}

/* Fills the memory, between a wait and a signal. A real program computes here, and copies between the GPUs. */
static gpusync_ticket commit(side *s, const gpusync_point *wait, const gpusync_point *signal, unsigned item)
{
    gpusync_ticket ticket;
    void *buffer;
    MUST(gpusync_command_buffer_create(s->queue, NULL, limit, &buffer));
    if (wait)
        MUST(gpusync_encode_wait(s->queue, buffer, *wait));
    metal_must_fill(buffer, s->memory, 0, SIZE, (unsigned char)item);
    if (signal)
        MUST(gpusync_encode_signal(s->queue, buffer, *signal));
    MUST(gpusync_commit(s->queue, buffer, &ticket));
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
    gpusync_result result = GPUSYNC_OK;
    uint64_t base; /* of the event, which gpusync may have used before */
    int wrong = 0;
    side from = open_side(first, "from", NULL), to;
    desc.shared_event = gpusync_timeline_metal(from.timeline, &base);
    to = open_side(last, "to", &desc);
    MUST(gpusync_timeline_create(from.device, NULL, &gate));
    printf("two devices of %s\n", first == last ? "one MTLDevice" : "two MTLDevices");

    for (unsigned item = 1; item <= ITEMS && result == GPUSYNC_OK; item++) {
        gpusync_point begin = gpusync_at_value(gate, 1), made = gpusync_at_value(from.timeline, item);
        gpusync_point arrived = gpusync_at_value(to.timeline, item + base);
        gpusync_ticket ticket;
        commit(&from, item == FAILING ? &begin : NULL, &made, item);
        /* Work of the other device goes to the GPU at once, and waits there: commit it when the signal is sure to come,
           or to fail. A failed timeline stays failed, and ends this loop: the next items need new timelines. */
        if (item == FAILING)
            MUST(gpusync_queue_cancel_held(from.queue, GPUSYNC_EVERYTHING));
        ticket = commit(&to, &arrived, NULL, item);
        result = MUST_END(gpusync_wait(to.queue, ticket, limit, &options));
        printf("item %u: %s\n", item, result ? error.message : gpusync_result_string(result));
        if (result == GPUSYNC_OK)
            wrong += *(unsigned char *)metal_contents(from.memory) != item;
    }
    wrong += gpusync_wait(to.queue, GPUSYNC_EVERYTHING, limit, NULL) != GPUSYNC_ERROR_EXECUTION;
    wrong += gpusync_wait(from.queue, GPUSYNC_EVERYTHING, limit, NULL) != GPUSYNC_ERROR_CANCELLED;

    close_side(&to);
    MUST(gpusync_timeline_destroy(gate));
    close_side(&from);
    metal_release(all);
    metal_pool_pop(pool);
    return wrong;
}
