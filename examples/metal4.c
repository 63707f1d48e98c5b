// cc -std=c99 metal4.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o metal4
//
// Frames in flight on a queue of Metal 4: one command buffer for all frames, and three allocators. The command buffer
// is begun again while the GPU works on earlier frames, because what was recorded lies in the allocators; the ticket of
// the frame that used an allocator last tells when it may be reset. Metal 4 keeps nothing alive: gpusync releases what
// belongs to a frame when the frame is done. At the end this queue and one of the older kind wait for each other.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 3, FRAMES = 90, SIZE = 1 << 14, ALL = FRAMES * 2 * SIZE };
static const uint64_t limit = 10000000000; /* nanoseconds */

/* What one frame in flight needs for itself. The CPU may touch it when the ticket is done. */
typedef struct place {
    void *allocator, *pixels; /* pixels: an MTLBuffer that the CPU writes and the GPU reads */
    gpusync_ticket ticket;    /* of the frame that uses it; 0 at first: no work, done */
} place;

static gpusync_device *device;
static gpusync_queue *queue, *older;
static gpusync_timeline *steps;
static void *metal;                    /* the MTLDevice */
static void *command_buffer;           /* an MTL4CommandBuffer, of every frame */
static void *history, *second, *third; /* MTLBuffers; the GPU copies every frame to the history */
static place places[DEPTH];
static int begun_early;

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define CHECK(call) check(#call, call)

static void *made(void *object)
{
    if (!object) check("an object of Metal's", GPUSYNC_ERROR_METAL_NIL);
    return object;
}

/* The CPU's turn with this place: waits until its frame is done. */
static void *begin(place *p)
{
    void *encoder;
    gpusync_result result = gpusync_wait(queue, p->ticket, limit, NULL);
    if (!gpusync_is_done(queue, p->ticket)) check("gpusync_wait", result); /* a frame that failed is done, too */
    begun_early += gpusync_in_flight(queue) > 0;
    metal4_allocator_reset(p->allocator);
    metal4_begin(command_buffer, p->allocator);
    encoder = made(metal_compute_begin(command_buffer));
    metal4_barrier(encoder); /* frames may overlap, and Metal 4 does not look at what they use */
    return encoder;
}

static void end(void *encoder)
{
    metal_end(encoder);
    metal4_end(command_buffer);
}

static void draw(int frame)
{
    place *p = &places[frame % DEPTH];
    void *encoder = begin(p), *note = made(metal_buffer_new(metal, SIZE)); /* the note is for this frame alone */
    void *resident = metal_residency_new(metal, &note, 1);
    memset(metal_contents(p->pixels), frame + 1, SIZE);
    memset(metal_contents(note), frame + 101, SIZE);
    metal4_use(command_buffer, resident);
    metal_copy(encoder, p->pixels, 0, history, (size_t)frame * 2 * SIZE, SIZE);
    metal_copy(encoder, note, 0, history, (size_t)(frame * 2 + 1) * SIZE, SIZE);
    end(encoder);
    CHECK(gpusync_commit(queue, command_buffer, &p->ticket));
    CHECK(gpusync_release_after(queue, p->ticket, note)); /* gpusync alone keeps both from here on */
    if (resident) CHECK(gpusync_release_after(queue, p->ticket, resident));
    metal_release(note);
    metal_release(resident);
}

/* Bytes that were written too early, or an allocator that was reset too early, show as those of another frame. */
static int count_wrong(void)
{
    const unsigned char *bytes = (const unsigned char *)metal_contents(history);
    int wrong = 0;
    for (int i = 0; i < ALL; i++) wrong += bytes[i] != i / SIZE / 2 + (i / SIZE % 2 ? 101 : 1);
    return wrong;
}

/* The older queue fills, that of Metal 4 copies, the older one copies on. Each waits for the other on the device. */
static void both_kinds(void)
{
    gpusync_point filled = gpusync_at_value(steps, 1), copied = gpusync_at_value(steps, 2);
    gpusync_submission copy = {.waits = &filled, .wait_count = 1, .signals = &copied, .signal_count = 1,
                               .command_buffers = &command_buffer, .command_buffer_count = 1};
    gpusync_ticket ticket;
    void *buffer, *encoder;
    CHECK(gpusync_command_buffer_create(older, NULL, limit, &buffer));
    encoder = made(metal_blit_begin(buffer));
    for (int i = 0; i < 8; i++) metal_fill(encoder, history, 0, ALL, (unsigned char)(37 + i)); /* takes a while */
    metal_end(encoder);
    CHECK(gpusync_encode_signal(older, buffer, filled));
    CHECK(gpusync_commit(older, buffer, NULL));

    metal_copy(encoder = begin(&places[0]), history, ALL - SIZE, second, 0, SIZE);
    end(encoder);
    CHECK(gpusync_submit(queue, &copy, &places[0].ticket)); /* in Metal 4 waits and signals are the queue's */

    CHECK(gpusync_command_buffer_create(older, NULL, limit, &buffer));
    CHECK(gpusync_encode_wait(older, buffer, copied));
    metal_copy(encoder = made(metal_blit_begin(buffer)), second, 0, third, 0, SIZE);
    metal_end(encoder);
    CHECK(gpusync_commit(older, buffer, &ticket));
    CHECK(gpusync_wait(older, ticket, limit, NULL));
}

int main(void)
{
    gpusync_queue_desc desc = {.label = "frames", .metal4 = true};
    gpusync_result result;
    void *all[3 + DEPTH], *resident;
    int wrong, arrived = 0;
    CHECK(gpusync_device_create(NULL, &device));
    result = gpusync_queue_create(device, &desc, &queue);
    if (result == GPUSYNC_ERROR_UNSUPPORTED) return fprintf(stderr, "no Metal 4 (macOS 26, iOS 26)\n"), 77;
    check("gpusync_queue_create", result);
    CHECK(gpusync_queue_create(device, NULL, &older));
    CHECK(gpusync_timeline_create(device, NULL, &steps));
    metal = gpusync_device_metal(device);
    command_buffer = made(metal4_buffer_new(metal));
    all[0] = history = made(metal_buffer_new(metal, ALL));
    all[1] = second = made(metal_buffer_new(metal, SIZE));
    all[2] = third = made(metal_buffer_new(metal, SIZE));
    for (int i = 0; i < DEPTH; i++) {
        places[i].allocator = made(metal4_allocator_new(metal));
        all[3 + i] = places[i].pixels = made(metal_buffer_new(metal, SIZE));
    }
    resident = metal_residency_new(metal, all, 3 + DEPTH);
    metal4_queue_use(gpusync_queue_metal(queue), resident);

    for (int frame = 0; frame < FRAMES; frame++) {
        void *pool = metal_pool_push(); /* for what Metal autoreleases in a frame */
        draw(frame);
        metal_pool_pop(pool);
    }
    CHECK(gpusync_wait(queue, GPUSYNC_EVERYTHING, limit, NULL));
    wrong = count_wrong();
    both_kinds();
    for (int i = 0; i < SIZE; i++) arrived += ((unsigned char *)metal_contents(third))[i] == 44;

    CHECK(gpusync_queue_destroy(queue)); /* waits for the feedback of the last copy */
    CHECK(gpusync_queue_destroy(older));
    CHECK(gpusync_timeline_destroy(steps));
    CHECK(gpusync_device_destroy(device));
    for (int i = 0; i < DEPTH; i++) metal_release(places[i].allocator);
    for (int i = 0; i < 3 + DEPTH; i++) metal_release(all[i]);
    metal_release(command_buffer);
    metal_release(resident);
    printf("frames: %d drawn, %d bytes wrong; begun %d times while the GPU worked\n", FRAMES, wrong, begun_early);
    printf("%d of %d bytes went from the older kind of queue to Metal 4 and back\n", arrived, SIZE);
    return wrong || arrived != SIZE;
}
