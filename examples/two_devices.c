// cc -std=c99 two_devices.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o two_devices
//
// Two gpusync devices in one program: of two GPUs, or of one GPU, where two libraries of a process have one each. They
// do not know each other's tickets and timelines. So both import a shared event, and the event alone tells of a signal.
// If the work that signals fails, nothing raises the event, and the other side would wait until the GPU's watchdog ends
// it: a callback writes the failure to the event, as UINT64_MAX.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>

enum { BATCHES = 3, ITEMS = 4, SIZE = 1 << 16 };
#define LIMIT UINT64_C(10000000000) /* nanoseconds */

extern void *MTLCopyAllDevices(void); /* macOS, iOS 18 */

typedef struct side {
    void *metal; /* an id<MTLDevice> */
    gpusync_device *device;
    gpusync_queue *queue;
    void *memory;    /* an id<MTLBuffer> */
    uint64_t cursor; /* of its failures */
} side;

static gpusync_result failed(const char *call, gpusync_result result)
{
    if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result;
}
#define FAILED(call) failed(#call, call)

static gpusync_result open_side(side *s, const char *label)
{
    gpusync_device_desc device_desc = {0};
    gpusync_queue_desc desc = {0};
    gpusync_result result;
    device_desc.metal_device = s->metal;
    desc.label = label;
    result = gpusync_device_create(&device_desc, &s->device);
    if (result == GPUSYNC_ERROR_NO_DEVICE) return result;
    if (failed("gpusync_device_create", result)) return result;
    result = FAILED(gpusync_queue_create(s->device, &desc, &s->queue));
    if (result != GPUSYNC_OK) return result;
    s->memory = metal_buffer_new(gpusync_device_metal(s->device), SIZE);
    return s->memory ? GPUSYNC_OK : failed("newBufferWithLength", GPUSYNC_ERROR_METAL_NIL);
}

/* Work of this side between a wait and a signal; signal NULL: none. */
static gpusync_result commit(side *s, const char *label, gpusync_point wait, const gpusync_point *signal,
                             gpusync_ticket *ticket)
{
    static const uint64_t limit = LIMIT;
    gpusync_command_buffer_desc desc = {0};
    gpusync_result result;
    void *buffer, *blit;
    desc.label = label;
    desc.timeout_ns = &limit;
    result = FAILED(gpusync_command_buffer(s->queue, &desc, &buffer));
    if (result != GPUSYNC_OK) return result;
    result = FAILED(gpusync_encode_wait(s->queue, buffer, wait));
    blit = metal_blit_begin(buffer); /* a real program computes here, and copies between the GPUs */
    metal_fill(blit, s->memory, 0, SIZE, 1);
    metal_end(blit);
    if (result == GPUSYNC_OK && signal) result = FAILED(gpusync_encode_signal(s->queue, buffer, *signal));
    if (result == GPUSYNC_OK) result = FAILED(gpusync_commit(s->queue, buffer, ticket));
    if (result != GPUSYNC_OK) gpusync_command_buffer_discard(s->queue, buffer);
    return result;
}

static void tell_other_side(void *event, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    if (result != GPUSYNC_OK) metal_event_signal(event, UINT64_MAX);
}

/* For each ticket that signals. The event lives until the callback, registered before, has run. */
static gpusync_result watch(side *from, gpusync_ticket ticket, void *event)
{
    gpusync_point end = gpusync_at_ticket(from->queue, ticket);
    gpusync_result result = FAILED(gpusync_on_done(end, tell_other_side, event));
    if (result == GPUSYNC_OK) result = FAILED(gpusync_release_after(end, event));
    else tell_other_side(event, gpusync_wait(from->queue, ticket, LIMIT), NULL); /* not registered: wait instead */
    return result;
}

static void print_failures(side *s, const char *name)
{
    gpusync_error error;
    while (gpusync_next_error(s->queue, &s->cursor, &error) == GPUSYNC_OK)
        fprintf(stderr, "%s, ticket %d: %s\n", name, (int)error.ticket, error.message);
}

/* Each batch has an event of its own, because one at UINT64_MAX stays there. Work that signals waits for the value
   before its own: else the signal of later work would cover that of work that failed. Returns GPUSYNC_OK when both
   sides are at rest, and the next batch may begin. */
static gpusync_result run_batch(side *from, side *to, unsigned *good)
{
    gpusync_ticket produced, consumed[ITEMS];
    gpusync_timeline_desc desc = {0};
    gpusync_timeline *signals = NULL, *waits = NULL;
    gpusync_result result;
    unsigned items = 0;
    bool late = false;
    *good = 0;
    desc.shared_event = metal_shared_event_new(gpusync_device_metal(from->device));
    if (!desc.shared_event) return failed("newSharedEvent", GPUSYNC_ERROR_METAL_NIL);
    result = FAILED(gpusync_timeline_create(from->device, &desc, &signals));
    if (result == GPUSYNC_OK) result = FAILED(gpusync_timeline_create(to->device, &desc, &waits));
    while (result == GPUSYNC_OK && items < ITEMS) { /* after a failure the timeline takes no more signals */
        gpusync_point signal = gpusync_at_value(signals, items + 1);
        result = commit(from, "produce", gpusync_at_value(signals, items), &signal, &produced); /* before what waits */
        if (result == GPUSYNC_OK) result = watch(from, produced, desc.shared_event);
        if (result == GPUSYNC_OK)
            result = commit(to, "consume", gpusync_at_value(waits, items + 1), NULL, &consumed[items]);
        if (result == GPUSYNC_OK) items++;
    }
    for (unsigned i = 0; i < items && !late; i++) {
        gpusync_result ended = gpusync_wait(to->queue, consumed[i], LIMIT);
        if (ended == GPUSYNC_OK) ++*good;
        late = ended == GPUSYNC_TIMEOUT;
    }
    if (!late) late = gpusync_queue_wait(from->queue, LIMIT) == GPUSYNC_TIMEOUT;
    print_failures(from, "produce");
    print_failures(to, "consume");
    metal_release(desc.shared_event);
    result = FAILED(gpusync_timeline_destroy(signals)); /* work in flight keeps the event */
    if (FAILED(gpusync_timeline_destroy(waits))) result = GPUSYNC_ERROR_DESTROYED;
    return late ? failed("gpusync_wait", GPUSYNC_TIMEOUT) : result;
}

static bool close_side(side *s, bool hangs)
{
    bool good = !hangs;
    /* A GPU that hangs goes on using the memory, which Metal keeps alive. */
    if (hangs) gpusync_queue_destroy_now(s->queue);
    else if (FAILED(gpusync_queue_destroy(s->queue))) good = false;
    if (s->device && FAILED(gpusync_device_destroy(s->device))) good = false;
    metal_release(s->memory);
    metal_release(s->metal);
    return good;
}

/* Two where there are several, else one for both. */
static void find_devices(side *from, side *to)
{
    void *pool = metal_pool_push(), *list = MTLCopyAllDevices();
    unsigned long count = list ? metal_number(list, "count") : 0;
    if (count > 0) from->metal = metal_retain(metal_get(list, "firstObject"));
    if (count > 0) to->metal = metal_retain(metal_get(list, "lastObject"));
    metal_release(list);
    metal_pool_pop(pool);
}

int main(void)
{
    side from = {0}, to = {0};
    gpusync_result result;
    bool good;
    find_devices(&from, &to);
    result = open_side(&from, "from");
    if (result == GPUSYNC_ERROR_NO_DEVICE) {
        fprintf(stderr, "skipped: %s\n", gpusync_result_string(result));
        return 77;
    }
    if (result == GPUSYNC_OK) result = open_side(&to, "to");
    good = result == GPUSYNC_OK;
    if (good) printf("two devices of %s\n", from.metal == to.metal ? "one MTLDevice" : "two MTLDevices");
    for (unsigned batch = 1; result == GPUSYNC_OK && batch <= BATCHES; batch++) {
        unsigned items;
        result = run_batch(&from, &to, &items);
        if (result == GPUSYNC_OK) printf("batch %u: %u of %d items\n", batch, items, ITEMS);
        if (result != GPUSYNC_OK || items != ITEMS) good = false;
    }
    if (!close_side(&from, result == GPUSYNC_TIMEOUT)) good = false;
    if (!close_side(&to, result == GPUSYNC_TIMEOUT)) good = false;
    return !good;
}
