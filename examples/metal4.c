// cc -std=c99 metal4.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o metal4
//
// Frames in flight on a queue of Metal 4: one command buffer for all of them, and three allocators. The command buffer
// is begun again while the GPU works on earlier frames, because what was recorded lies in the allocators. The ticket of
// the frame that used an allocator last tells when it may be reset. Metal 4 keeps nothing alive: gpusync releases what
// belongs to a frame when the frame is done. At the end this queue and one of the older kind wait for each other.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"

enum { DEPTH = 3, FRAMES = 90, WORDS = 4096, SLOT = WORDS * 4, NOTE = 64 * 4, FAILING_FRAME = 40 };

/* What one frame in flight needs for itself. The CPU may touch it when the ticket is done. */
typedef struct place {
    void *allocator;       /* what was recorded lies in it */
    void *pixels;          /* what the CPU writes and the GPU reads */
    gpusync_ticket in_use; /* by this frame; 0 at first: by none, done */
    unsigned frame;
} place;

static gpusync_device *device;
static gpusync_queue *queue;
static void *metal, *metal_queue; /* their MTLDevice and MTL4CommandQueue */
static void *command_buffer;      /* of every frame */
static place places[DEPTH];
static void *screen;              /* shows the newest frame */
static void *history;             /* the GPU copies every frame here, and its note behind it: evidence for the end */
static bool dropped[FRAMES];      /* frames that the GPU did not finish */
static unsigned times_waited, times_early, failures, most_in_flight;

static uint32_t pixel(unsigned frame, unsigned i) { return frame * 0x01000193u ^ i; }

/* After this the place belongs to the CPU. The frame may also have failed: it is over then, too. */
static void settle(place *it)
{
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    times_waited += gpusync_poll(queue, it->in_use) == GPUSYNC_NOT_READY;
    gpusync_result result = gpusync_wait_ex(queue, it->in_use, 10000 * MS, &options);
    if (result == GPUSYNC_ERROR_EXECUTION) {
        printf("frame %u, ticket %" PRIu64 " failed: \"%s\": %s\n", it->frame, error.ticket, error.message,
               gpusync_failure_string(error.failure));
        dropped[it->frame] = true;
        failures++;
    } else {
        check(result == GPUSYNC_OK, name_of(result)); /* TIMEOUT: gpusync_report tells what is going on */
    }
    it->in_use = GPUSYNC_NO_TICKET; /* its result is known */
}

/* One command buffer is enough, because one frame at a time is recorded. The place has been settled. */
static void *begin(place *it)
{
    metal4_allocator_reset(it->allocator);
    times_early += !gpusync_is_idle(queue);
    softmetal_prepare_run(command_buffer, metal_queue);
    softmetal_set_duration(command_buffer, MS);
    metal4_begin(command_buffer, it->allocator);
    void *encoder = metal_compute_begin(command_buffer);
    check(encoder != NULL, "Metal makes an encoder");
    metal4_barrier(encoder); /* frames may overlap, and each writes the screen: Metal 4 does not look at that */
    return encoder;
}

static void end(void *encoder)
{
    metal_end(encoder);
    metal4_end(command_buffer);
}

static void draw(unsigned frame)
{
    place *it = &places[frame % DEPTH];
    settle(it);

    void *note = metal_buffer_new(metal, NOTE); /* for this frame alone */
    check(note != NULL, "memory");
    uint32_t *words = (uint32_t *)metal_contents(it->pixels), *more = (uint32_t *)metal_contents(note);
    for (unsigned i = 0; i < WORDS; i++) words[i] = pixel(frame, i);
    for (unsigned i = 0; i < NOTE / 4; i++) more[i] = pixel(frame, WORDS + i);

    void *resident = metal_residency_new(metal, &note, 1), *encoder = begin(it);
    if (frame == FAILING_FRAME) softmetal_fail(command_buffer, NULL, 3, "out of memory, on purpose");
    metal4_use(command_buffer, resident);
    metal_copy(encoder, it->pixels, 0, screen, 0, SLOT);
    metal_copy(encoder, it->pixels, 0, history, (size_t)frame * (SLOT + NOTE), SLOT);
    metal_copy(encoder, note, 0, history, (size_t)frame * (SLOT + NOTE) + SLOT, NOTE);
    end(encoder);
    check(!gpusync_commit4(queue, &command_buffer, 1, &it->in_use), "gpusync_commit4");
    it->frame = frame;

    /* gpusync alone keeps the note until the GPU has read it. */
    gpusync_point done = gpusync_at_ticket(queue, it->in_use);
    check(!gpusync_release_after(done, note), "gpusync_release_after");
    check(!resident || !gpusync_release_after(done, resident), "gpusync_release_after");
    metal_release(note);
    metal_release(resident);

    unsigned in_flight = 0;
    for (unsigned i = 0; i < DEPTH; i++) in_flight += !gpusync_is_done(queue, places[i].in_use);
    if (most_in_flight < in_flight) most_in_flight = in_flight;
}

/* Pixels that were written too early, or an allocator that was reset too early, show as pixels of another frame. */
static void verify(void)
{
    const uint32_t *drawn = (const uint32_t *)metal_contents(history);
    const uint32_t *shown = (const uint32_t *)metal_contents(screen);
    unsigned good = 0, i = 0;
    for (unsigned frame = 0; frame < FRAMES; frame++, drawn += WORDS + NOTE / 4) {
        for (i = 0; i < WORDS + NOTE / 4 && drawn[i] == pixel(frame, i);) i++;
        good += i == WORDS + NOTE / 4;
        check(i == WORDS + NOTE / 4 || dropped[frame], "what the GPU copied is what the CPU wrote");
    }
    for (i = 0; i < WORDS && shown[i] == pixel(FRAMES - 1, i);) i++;
    check(i == WORDS, "the last frame is on the screen");
    printf("frames: %d drawn, %u as they should be, %u dropped\n", FRAMES, good, failures);
    check(failures == !real_device && good + failures >= FRAMES, "every frame was drawn or reported");
    printf("in flight: %u at most; the CPU waited %u times; begun again %u times while the GPU worked\n",
           most_in_flight, times_waited, times_early);
    check(most_in_flight <= DEPTH, "never more than three in flight");
}

/* The older queue fills, that of Metal 4 copies, the older one copies on. Each waits for the other on the device. */
static void both_kinds(void)
{
    gpusync_queue_desc desc = {.label = "older kind"};
    gpusync_queue *older;
    gpusync_timeline *steps;
    gpusync_ticket ticket;
    void *bytes[3], *first, *last, *blit;
    check(!gpusync_queue_create(device, &desc, &older), "gpusync_queue_create");
    check(!gpusync_timeline_create(device, NULL, &steps), "gpusync_timeline_create");
    for (int i = 0; i < 3; i++) check((bytes[i] = metal_buffer_new(metal, SLOT)) != NULL, "memory");
    void *resident = metal_residency_new(metal, bytes, 2);
    gpusync_point filled = gpusync_at_value(steps, 1), copied = gpusync_at_value(steps, 2);

    check(!gpusync_command_buffer(older, NULL, &first), "gpusync_command_buffer");
    softmetal_set_duration(first, 3 * MS);
    check((blit = metal_blit_begin(first)) != NULL, "Metal makes an encoder");
    metal_fill(blit, bytes[0], 0, SLOT, 44);
    metal_end(blit);
    check(!gpusync_encode_signal(older, first, filled), "gpusync_encode_signal");
    check(!gpusync_commit(older, first, NULL), "gpusync_commit");

    /* In Metal 4 waits and signals are not encoded: the queue has them, in front of the work and behind it. */
    void *encoder = begin(&places[0]);
    metal4_use(command_buffer, resident);
    metal_copy(encoder, bytes[0], 0, bytes[1], 0, SLOT);
    end(encoder);
    gpusync_submission copy = {.waits = &filled, .wait_count = 1, .signals = &copied, .signal_count = 1};
    copy.command_buffers = &command_buffer, copy.command_buffer_count = 1;
    check(!gpusync_submit(queue, &copy, &places[0].in_use), "gpusync_submit");

    check(!gpusync_command_buffer(older, NULL, &last), "gpusync_command_buffer");
    check(!gpusync_encode_wait(older, last, copied), "gpusync_encode_wait");
    check((blit = metal_blit_begin(last)) != NULL, "Metal makes an encoder");
    metal_copy(blit, bytes[1], 0, bytes[2], 0, SLOT);
    metal_end(blit);
    check(!gpusync_commit(older, last, &ticket), "gpusync_commit");

    gpusync_result result = gpusync_wait(older, ticket, 10000 * MS);
    check(result == GPUSYNC_OK, name_of(result));
    const unsigned char *arrived = (const unsigned char *)metal_contents(bytes[2]);
    unsigned i = 0;
    while (i < SLOT && arrived[i] == 44) i++;
    check(i == SLOT, "the bytes went through both kinds of queue");
    printf("%u bytes went from the older kind of queue to Metal 4 and back\n", i);
    settle(&places[0]); /* its copy is done; its feedback need not have come, and the memory goes now */
    check(!gpusync_queue_destroy(older) && !gpusync_timeline_destroy(steps), "destroy");
    for (i = 0; i < 3; i++) metal_release(bytes[i]);
    metal_release(resident);
}

int main(void)
{
    gpusync_queue_desc desc = {.label = "frames", .metal4 = true};
    check_device(gpusync_device_create(NULL, &device));
    gpusync_result result = gpusync_queue_create(device, &desc, &queue);
    if (result == GPUSYNC_ERROR_UNSUPPORTED) {
        check(!gpusync_device_destroy(device), "gpusync_device_destroy");
        skip("this machine has no Metal 4, which came with macOS 26 and iOS 26");
    }
    check(!result, name_of(result));
    metal = gpusync_device_metal(device), metal_queue = gpusync_queue_metal(queue);
    void *all[2 + DEPTH];
    check((command_buffer = metal4_buffer_new(metal)) != NULL, "a command buffer");
    check((all[0] = screen = metal_buffer_new(metal, SLOT)) != NULL, "memory");
    check((all[1] = history = metal_buffer_new(metal, (size_t)FRAMES * (SLOT + NOTE))) != NULL, "memory");
    for (unsigned i = 0; i < DEPTH; i++) {
        check((places[i].allocator = metal4_allocator_new(metal)) != NULL, "an allocator");
        check((all[2 + i] = places[i].pixels = metal_buffer_new(metal, SLOT)) != NULL, "memory");
    }
    void *resident = metal_residency_new(metal, all, 2 + DEPTH);
    metal4_queue_use(metal_queue, resident);

    for (unsigned frame = 0; frame < FRAMES; frame++) {
        void *pool = metal_pool_push(); /* for what Metal autoreleases in a frame */
        draw(frame);
        metal_pool_pop(pool);
    }
    for (unsigned i = 0; i < DEPTH; i++) settle(&places[(FRAMES + i) % DEPTH]); /* the last three */
    verify();
    both_kinds();

    check(!gpusync_queue_destroy(queue) && !gpusync_device_destroy(device), "destroy");
    for (unsigned i = 0; i < DEPTH; i++) metal_release(places[i].allocator);
    for (unsigned i = 0; i < 2 + DEPTH; i++) metal_release(all[i]);
    metal_release(command_buffer);
    metal_release(resident);
    printf("metal4: all %d checks passed\n", checks);
    return 0;
}
