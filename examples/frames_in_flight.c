// cc -std=c99 frames_in_flight.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o frames
//
// A render loop with three frames in flight: while the GPU works on one frame, the CPU writes the next two. Each frame
// has a slot in a ring of three buffers. The CPU may write a slot again only when the GPU has read what was in it, and
// the ticket of the frame that used it last tells how that went. The same wait keeps the CPU from running farther ahead.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"

enum { DEPTH = 3, FRAMES = 90, WORDS = 4096, SLOT = WORDS * 4, FAILING_FRAME = 40 };

static gpusync_device *device;
static gpusync_queue *queue;
static void *ring[DEPTH];             /* what the CPU writes and the GPU reads */
static gpusync_ticket in_use[DEPTH];  /* the frame that reads the slot; 0 at first: no frame, done */
static unsigned frame_of[DEPTH];
static void *screen;                  /* shows the newest frame */
static void *history;                 /* the GPU copies every frame here: evidence for the end */
static bool dropped[FRAMES];          /* frames that the GPU did not finish */
static unsigned times_waited, failures, most_in_flight;
static uint64_t errors_seen;          /* cursor of this reader of the failure log */

static uint32_t pixel(unsigned frame, unsigned i) { return frame * 0x01000193u ^ i; }

/* A failed frame is no reason to stop: the screen keeps the old picture for 1/60 s. Which failures are worth a
   retry, and which are bugs, is what error.failure is for. */
static void frame_failed(unsigned frame)
{
    gpusync_error error;
    dropped[frame] = true;
    while (!gpusync_next_error(queue, &errors_seen, &error)) {
        failures++;
        printf("frame %u failed: \"%s\" in \"%s\": %s\n", frame, error.message, error.label,
               gpusync_failure_string(error.failure));
    }
    check(!gpusync_device_is_lost(device), "the device is still there");
}

/* A frame that takes a second means that something is broken: say what, do not freeze. */
static void explain(gpusync_result result)
{
    char text[2048];
    if (result != GPUSYNC_TIMEOUT) return;
    gpusync_report(device, text, sizeof text);
    printf("%s\n", text);
}

/* After this the slot belongs to the CPU, and the GPU is less than three frames behind. */
static void settle_slot(unsigned slot)
{
    gpusync_result result = gpusync_wait(queue, in_use[slot], 0); /* not needed: it counts how often the CPU waits */
    if (result == GPUSYNC_TIMEOUT) {
        times_waited++;
        result = gpusync_wait(queue, in_use[slot], 10000 * MS);
    }
    explain(result);
    if (result == GPUSYNC_ERROR_EXECUTION) frame_failed(frame_of[slot]);
    else check(result == GPUSYNC_OK, name_of(result));
    in_use[slot] = GPUSYNC_NO_TICKET; /* its result is known */
}

static void draw(unsigned frame)
{
    unsigned slot = frame % DEPTH, in_flight = 0;
    settle_slot(slot);

    uint32_t *pixels = (uint32_t *)metal_contents(ring[slot]);
    for (unsigned i = 0; i < WORDS; i++) pixels[i] = pixel(frame, i);

    char label[32];
    snprintf(label, sizeof label, "frame %u", frame);
    gpusync_command_buffer_desc desc = {.label = label};
    void *command_buffer;
    check(!gpusync_command_buffer(queue, &desc, &command_buffer), "gpusync_command_buffer");
    softmetal_set_duration(command_buffer, MS);
    if (frame == FAILING_FRAME) softmetal_fail(command_buffer, NULL, 2, "took too long, on purpose");
    void *blit = metal_blit_begin(command_buffer);
    check(blit != NULL, "Metal makes an encoder");
    metal_copy(blit, ring[slot], 0, screen, 0, SLOT);
    metal_copy(blit, ring[slot], 0, history, (size_t)frame * SLOT, SLOT);
    metal_end(blit);
    check(!gpusync_commit(queue, command_buffer, &in_use[slot]), "gpusync_commit");
    frame_of[slot] = frame;

    for (unsigned i = 0; i < DEPTH; i++) in_flight += !gpusync_is_done(queue, in_use[i]);
    if (most_in_flight < in_flight) most_in_flight = in_flight;
}

/* A slot that was written too early shows as pixels of a later frame. */
static void verify(void)
{
    const uint32_t *drawn = (const uint32_t *)metal_contents(history);
    const uint32_t *shown = (const uint32_t *)metal_contents(screen);
    unsigned good = 0, i = 0;
    for (unsigned frame = 0; frame < FRAMES; frame++) {
        for (i = 0; i < WORDS && drawn[frame * WORDS + i] == pixel(frame, i);) i++;
        if (i < WORDS && !dropped[frame]) {
            printf("frame %u, word %u: %08" PRIx32 ", not %08" PRIx32 "\n", frame, i, drawn[frame * WORDS + i],
                   pixel(frame, i));
            check(false, "no slot is written while the GPU needs it");
        }
        good += i == WORDS;
    }
    for (i = 0; i < WORDS && shown[i] == pixel(FRAMES - 1, i);) i++;
    check(i == WORDS, "the last frame is on the screen");
    printf("frames: %d drawn, %u as they should be, %u dropped\n", FRAMES, good, failures);
    check(failures == !real_device && good + failures >= FRAMES, "every frame was drawn or reported");
}

int main(void)
{
    gpusync_queue_desc desc = {.label = "frames"};
    check_device(gpusync_device_create(NULL, &device));
    check(!gpusync_queue_create(device, &desc, &queue), "gpusync_queue_create");
    void *metal = gpusync_device_metal(device);
    screen = metal_buffer_new(metal, SLOT);
    history = metal_buffer_new(metal, (size_t)FRAMES * SLOT);
    check(screen && history, "memory");
    for (unsigned i = 0; i < DEPTH; i++) check((ring[i] = metal_buffer_new(metal, SLOT)) != NULL, "memory");

    for (unsigned frame = 0; frame < FRAMES; frame++) {
        void *pool = metal_pool_push(); /* for what Metal autoreleases in a frame */
        draw(frame);
        metal_pool_pop(pool);
    }
    for (unsigned i = 0; i < DEPTH; i++) settle_slot((FRAMES + i) % DEPTH); /* the last three */

    verify();
    printf("in flight: %u at most, %d allowed; the CPU waited %u times\n", most_in_flight, DEPTH, times_waited);
    check(most_in_flight <= DEPTH, "never more than three in flight");

    check(!gpusync_queue_destroy(queue) && !gpusync_device_destroy(device), "destroy");
    for (unsigned i = 0; i < DEPTH; i++) metal_release(ring[i]);
    metal_release(screen);
    metal_release(history);
    printf("frames_in_flight: all %d checks passed\n", checks);
    return 0;
}
