// cc -std=c99 frames.c -framework Metal -framework QuartzCore -framework CoreGraphics -framework Foundation -lobjc
//
// A frame loop with drawables. Before each frame the loop waits for the ticket two back, so at most two frames are in
// flight while the CPU writes a third, and no memory is written while the GPU reads it. A frame that fails has ended,
// too. A frame without memory or without a drawable is left out. The layer is in no window, so nothing is to be seen.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>

enum { FRAMES = 60, SLOTS = 3, PATIENCE = 5, WIDTH = 64, HEIGHT = 32, SIZE = 4 * WIDTH * HEIGHT };
#define LIMIT UINT64_C(1000000000) /* nanoseconds, for one wait */

typedef struct loop {
    gpusync_device *device;
    gpusync_queue *queue;
    void *layer;           /* a CAMetalLayer */
    void *slots[SLOTS];    /* id<MTLBuffer>: what the CPU writes for a frame */
    void *scene;           /* an id<MTLBuffer> of the GPU alone */
    gpusync_ticket ticket; /* of the last frame */
    uint64_t cursor;       /* of the failures */
    unsigned failures, no_drawable, no_memory, in_a_row; /* in_a_row: times without memory */
} loop;

static gpusync_result failed(const char *call, gpusync_result result)
{
    if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result;
}
#define FAILED(call) failed(#call, call)

/* A failed frame is no reason to stop: the next one replaces it. The log has each failure once. */
static void read_failures(loop *l)
{
    gpusync_error error;
    while (gpusync_next_error(l->queue, &l->cursor, &error) == GPUSYNC_OK) {
        l->failures++;
        fprintf(stderr, "ticket %llu, %s: %s\n", (unsigned long long)error.ticket, error.label, error.message);
    }
}

/* Waits until at most two frames are in flight. Tickets are numbers, so the loop keeps the last one alone. The `if` is
   for the second frame: 1 - 2 would be GPUSYNC_EVERYTHING. */
static gpusync_result wait_two_back(loop *l)
{
    gpusync_result result = GPUSYNC_OK;
    if (l->ticket > 2) result = gpusync_wait(l->queue, l->ticket - 2, LIMIT);
    if (result == GPUSYNC_ERROR_EXECUTION || result == GPUSYNC_ERROR_RESULT_UNKNOWN) result = GPUSYNC_OK; /* ended */
    l->in_a_row = result == GPUSYNC_TIMEOUT ? l->in_a_row + 1 : 0;
    return result;
}

static void copy_to_scene(loop *l, void *buffer, void *slot)
{
    void *blit = metal_blit_begin(buffer);
    metal_copy(blit, slot, 0, l->scene, 0, SIZE);
    metal_end(blit);
}

static void copy_to_screen(loop *l, void *buffer, void *drawable)
{
    void *blit = metal_blit_begin(buffer);
    metal_copy_to_drawable(blit, l->scene, WIDTH, HEIGHT, drawable);
    metal_end(blit);
}

/* OK: the frame was committed or left out, and the loop goes on. */
static gpusync_result draw(loop *l, unsigned frame)
{
    static const uint64_t limit = LIMIT;
    void *slot = l->slots[(l->ticket + 1) % SLOTS]; /* of the ticket to come; ticket - 2 had it last */
    gpusync_command_buffer_desc desc = {0};
    gpusync_result result = wait_two_back(l);
    gpusync_ticket ticket;
    char label[32];
    void *buffer, *drawable;
    if (result == GPUSYNC_TIMEOUT && l->in_a_row < PATIENCE) {
        l->no_memory++; /* the GPU still reads the slot */
        return GPUSYNC_OK;
    }
    if (result != GPUSYNC_OK) return failed("gpusync_wait", result);
    for (unsigned i = 0; i < WIDTH * HEIGHT; i++) ((uint32_t *)metal_contents(slot))[i] = frame;

    snprintf(label, sizeof label, "frame %u", frame);
    desc.label = label;
    desc.timeout_ns = &limit; /* for room in the queue */
    result = FAILED(gpusync_command_buffer(l->queue, &desc, &buffer));
    if (result != GPUSYNC_OK) return result;
    copy_to_scene(l, buffer, slot); /* all that needs no drawable comes first */

    drawable = metal_next_drawable(l->layer); /* may wait a second for the display */
    if (!drawable) {
        l->no_drawable++;
        return FAILED(gpusync_command_buffer_discard(l->queue, buffer)); /* no ticket: the next frame has this slot */
    }
    copy_to_screen(l, buffer, drawable);
    metal_present(buffer, drawable); /* before the commit */
    result = FAILED(gpusync_commit(l->queue, buffer, &ticket));
    if (result != GPUSYNC_OK) gpusync_command_buffer_discard(l->queue, buffer);
    else l->ticket = ticket;
    return result;
}

static gpusync_result run(loop *l)
{
    gpusync_result result = GPUSYNC_OK;
    for (unsigned frame = 1; result == GPUSYNC_OK && frame <= FRAMES; frame++) {
        void *pool = metal_pool_push(); /* a drawable in a pool that lives longer is one that a later frame lacks */
        result = draw(l, frame);
        metal_pool_pop(pool);
        read_failures(l);
        if (!l->ticket && l->no_drawable == PATIENCE) break; /* there is no display */
    }
    return result;
}

static bool make_memory(loop *l)
{
    void *metal = gpusync_device_metal(l->device);
    bool good = (l->scene = metal_buffer_new(metal, SIZE)) != NULL;
    for (unsigned i = 0; i < SLOTS; i++) good &= (l->slots[i] = metal_buffer_new(metal, SIZE)) != NULL;
    l->layer = metal_layer_new(metal, WIDTH, HEIGHT);
    return (good && l->layer) || !failed("no memory, or no CAMetalLayer", GPUSYNC_ERROR_METAL_NIL);
}

/* Tells whether the work has ended. If not, the GPU hangs: Metal keeps the memory that it uses. */
static bool finish(loop *l)
{
    gpusync_result result = gpusync_queue_wait(l->queue, l->in_a_row ? 0 : LIMIT);
    read_failures(l);
    if (result != GPUSYNC_TIMEOUT) return !FAILED(gpusync_queue_destroy(l->queue));
    gpusync_queue_destroy_now(l->queue);
    return failed("gpusync_queue_wait", result) == GPUSYNC_OK;
}

int main(void)
{
    static const loop nothing;
    loop l = nothing;
    gpusync_result result = gpusync_device_create(NULL, &l.device);
    bool good;
    if (result == GPUSYNC_ERROR_NO_DEVICE) {
        fprintf(stderr, "skipped: %s\n", gpusync_result_string(result));
        return 77;
    }
    if (failed("gpusync_device_create", result)) return 1;
    good = !FAILED(gpusync_queue_create(l.device, NULL, &l.queue)) && make_memory(&l) && run(&l) == GPUSYNC_OK;
    if (!finish(&l)) good = false;
    if (FAILED(gpusync_device_destroy(l.device))) good = false;
    metal_release(l.layer);
    metal_release(l.scene);
    for (unsigned i = 0; i < SLOTS; i++) metal_release(l.slots[i]);
    printf("frames: %llu committed, %u without a drawable, %u without memory\n", (unsigned long long)l.ticket,
           l.no_drawable, l.no_memory);
    printf("failures: %u\n", l.failures);
    if (good && l.ticket == GPUSYNC_NO_TICKET) { /* no display, or an app in the background */
        fprintf(stderr, "skipped: the layer has no drawable\n");
        return 77;
    }
    return !good || l.failures > 0;
}
