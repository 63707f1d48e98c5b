// cc -std=c99 metal4.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o metal4
//
// Frames in flight on a queue of Metal 4: one command buffer for all frames, and three allocators. The command buffer is
// begun again while the GPU works on earlier frames, for what was recorded lies in an allocator. The ticket of the frame
// that used an allocator last tells when it may be reset. At the end this queue waits for an older one.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { DEPTH = 3, FRAMES = 90, SIZE = 1 << 14, HISTORY = DEPTH * SIZE, RESULT = HISTORY + FRAMES * SIZE };
static const uint64_t limit = 10000000000; /* nanoseconds */

typedef struct slot { /* of a frame in flight */
    void *allocator;
    gpusync_ticket ticket; /* of the frame that uses it */
} slot;

static gpusync_device *device;
static gpusync_queue *queue, *older;
static gpusync_timeline *steps;
static void *command_buffer; /* an MTL4CommandBuffer, of all frames */
static void *memory;         /* an MTLBuffer: DEPTH slots that the CPU writes, all frames from HISTORY on, RESULT */
static slot slots[DEPTH];
static int begun_early;

/* Waits until the GPU is finished with the slot. Metal 4 retains nothing and orders nothing: hence the barrier. */
static void *begin(slot *s)
{
    void *encoder;
    gpusync_result result = gpusync_wait(queue, s->ticket, limit, NULL);
    if (!gpusync_is_done(queue, s->ticket)) /* a frame that failed is done, too */
        MUST(result);
    begun_early += gpusync_in_flight(queue) > 0;
    metal4_allocator_reset(s->allocator);
    metal4_begin(command_buffer, s->allocator);
    encoder = MUST_GET(metal_compute_begin(command_buffer));
    metal4_barrier(encoder);
    return encoder;
}

static void draw(int frame)
{
    size_t at = (size_t)(frame % DEPTH) * SIZE;
    slot *s = &slots[frame % DEPTH];
    void *encoder = begin(s);
    memset((char *)metal_contents(memory) + at, frame + 1, SIZE);
    metal_copy(encoder, memory, at, memory, (size_t)(HISTORY + frame * SIZE), SIZE);
    metal_end(encoder);
    metal4_end(command_buffer);
    MUST(gpusync_commit(queue, command_buffer, &s->ticket)); /* gpusync_release_after: for objects of one frame */
}

/* The older queue fills, and signals; the queue of Metal 4 waits for that on the GPU, and copies. */
static void both_kinds(void)
{
    gpusync_point filled = gpusync_at_value(steps, 1);
    gpusync_submission copy = {
        .wait_points = &filled, .wait_count = 1, .command_buffers = &command_buffer, .command_buffer_count = 1,
        .flags = GPUSYNC_SUBMIT_ON_GPU}; /* operations of the queue */
    void *buffer, *encoder;
    MUST(gpusync_command_buffer_create(older, NULL, limit, &buffer));
    for (unsigned char byte = 130; byte <= 137; byte++) /* takes a while */
        metal_must_fill(buffer, memory, 0, RESULT, byte);
    MUST(gpusync_encode_signal(older, buffer, filled));
    MUST(gpusync_commit(older, buffer, NULL));
    encoder = begin(&slots[1]);
    metal_copy(encoder, memory, 0, memory, RESULT, SIZE);
    metal_end(encoder);
    metal4_end(command_buffer);
    MUST(gpusync_submit(queue, &copy, &slots[1].ticket));
    MUST(gpusync_wait(queue, slots[1].ticket, limit, NULL));
}

int main(void)
{
    gpusync_queue_desc desc = {.label = "frames"};
    gpusync_result result;
    void *metal, *resident;
    int wrong = 0;
    MUST(gpusync_device_create(NULL, &device));
    metal = gpusync_device_metal(device);
    result = gpusync_metal4_queue_create(device, &desc, &queue);
    if (result == GPUSYNC_ERROR_UNSUPPORTED)
        return fprintf(stderr, "no Metal 4 (macOS 26, iOS 26)\n"), 77;
    MUST(result);
    MUST(gpusync_queue_create(device, NULL, &older));
    MUST(gpusync_timeline_create(device, NULL, &steps));
    command_buffer = MUST_GET(metal4_buffer_new(metal));
    memory = MUST_GET(metal_buffer_new(metal, RESULT + SIZE));
    for (int i = 0; i < DEPTH; i++)
        slots[i].allocator = MUST_GET(metal4_allocator_new(metal));
    resident = metal_residency_new(metal, &memory, 1);
    metal4_queue_use(gpusync_queue_metal(queue), resident);

    for (int frame = 0; frame < FRAMES; frame++)
        draw(frame);
    MUST(gpusync_wait(queue, GPUSYNC_EVERYTHING, limit, NULL));
    for (int i = 0; i < FRAMES * SIZE; i++)
        wrong += ((unsigned char *)metal_contents(memory))[HISTORY + i] != i / SIZE + 1;
    both_kinds();
    wrong += ((unsigned char *)metal_contents(memory))[RESULT + SIZE - 1] != 137;

    MUST(gpusync_queue_destroy(queue));
    MUST(gpusync_queue_destroy(older));
    MUST(gpusync_timeline_destroy(steps));
    MUST(gpusync_device_destroy(device));
    for (int i = 0; i < DEPTH; i++)
        metal_release(slots[i].allocator);
    printf("frames: %d drawn, %d wrong bytes; begun %d times while the GPU worked\n", FRAMES, wrong, begun_early);
    metal_release(memory);
    metal_release(command_buffer);
    metal_release(resident);
    return wrong != 0;
}
