// cc -std=c99 streaming.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o streaming
//
// A frame loop that streams both ways, and blocks for neither. Assets go to the GPU on a queue of their own, and the
// frame that needs one waits for it on the GPU. Results come back through a ring of buffers: each frame the CPU reads
// what has ended, and a frame that finds no free buffer does without. An upload that fails is made again.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>

enum { FRAMES = 24, ASSETS = 6, PER_ASSET = FRAMES / ASSETS, AHEAD = 3, RING = 2, SIZE = 1 << 22, CANCELLED = 3 };
static const uint64_t limit = 10000000000; /* nanoseconds */

typedef struct asset {
    void *memory;          /* an MTLBuffer; a texture, in a real program */
    gpusync_ticket ticket; /* of the upload; 0: none yet */
    uint64_t value;        /* of the timeline, when the upload has ended */
} asset;

typedef struct readback {
    void *memory;          /* an MTLBuffer */
    gpusync_ticket ticket; /* of the frame that writes it; 0: it is free */
    int asset;             /* that the frame shows */
} readback;

static gpusync_device *device;
static gpusync_queue *frames, *uploads;
static gpusync_timeline *uploaded, *never;
static uint64_t last_value; /* of `uploaded`, that an upload signals */
static asset assets[ASSETS];
static readback ring[RING];
static int arrived, left_out, wrong, again;

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define CHECK(call) check(#call, call)

static void *memory(void)
{
    void *buffer = metal_buffer_new(gpusync_device_metal(device), SIZE);
    if (!buffer) check("newBufferWithLength:options:", GPUSYNC_ERROR_METAL_NIL);
    return buffer;
}

static void *begin(gpusync_queue *queue)
{
    gpusync_command_buffer_desc desc = {.unretained_references = true}; /* faster: the program keeps what is used */
    void *buffer;
    CHECK(gpusync_command_buffer_create(queue, &desc, limit, &buffer));
    return buffer;
}

static void copy(void *buffer, void *from, size_t offset, void *to, size_t size)
{
    void *blit = metal_blit_begin(buffer);
    if (!blit) check("blitCommandEncoder", GPUSYNC_ERROR_METAL_NIL);
    metal_copy(blit, from, offset, to, 0, size);
    metal_end(blit);
}

static void upload(int i)
{
    asset *a = &assets[i];
    void *staging = memory(), *buffer = begin(uploads);
    if (a->ticket) again++;
    memset(metal_contents(staging), i + 1, SIZE); /* a real program reads a file */
    if (i == CANCELLED && !a->ticket) CHECK(gpusync_encode_wait(uploads, buffer, gpusync_at_value(never, 1)));
    copy(buffer, staging, 0, a->memory, SIZE);
    a->value = ++last_value;
    CHECK(gpusync_encode_signal(uploads, buffer, gpusync_at_value(uploaded, a->value)));
    CHECK(gpusync_commit(uploads, buffer, &a->ticket));
    CHECK(gpusync_release_after(uploads, a->ticket, staging)); /* goes when the GPU has read it */
    metal_release(staging);
    if (i == CANCELLED && !again) CHECK(gpusync_queue_cancel_held(uploads)); /* an upload that fails */
}

/* Does not wait. */
static void read_results(void)
{
    for (readback *r = ring; r < ring + RING; r++) {
        if (!r->ticket || !gpusync_is_done(frames, r->ticket)) continue;
        wrong += gpusync_poll(frames, r->ticket, NULL) != GPUSYNC_OK;
        wrong += *(unsigned char *)metal_contents(r->memory) != r->asset + 1;
        r->ticket = GPUSYNC_NO_TICKET;
        arrived++;
    }
}

static gpusync_ticket draw(int frame)
{
    int i = frame / PER_ASSET;
    gpusync_ticket ticket;
    void *buffer = begin(frames);
    readback *r = ring;
    while (r < ring + RING && r->ticket) r++;
    CHECK(gpusync_encode_wait(frames, buffer, gpusync_at_value(uploaded, assets[i].value))); /* nothing, if reached */
    if (r < ring + RING) copy(buffer, assets[i].memory, SIZE - 1, r->memory, 1); /* a frame draws */
    CHECK(gpusync_commit(frames, buffer, &ticket));
    if (r == ring + RING) left_out++;
    else r->ticket = ticket, r->asset = i;
    return ticket;
}

int main(void)
{
    /* A value rises however its upload ends, so one that fails spoils no other: its ticket tells. */
    gpusync_timeline_desc desc = {.label = "uploaded", .order_only = true};
    CHECK(gpusync_device_create(NULL, &device));
    CHECK(gpusync_queue_create(device, NULL, &frames));
    CHECK(gpusync_queue_create(device, NULL, &uploads));
    CHECK(gpusync_timeline_create(device, &desc, &uploaded));
    CHECK(gpusync_timeline_create(device, NULL, &never));
    for (int i = 0; i < ASSETS; i++) assets[i].memory = memory();
    for (int i = 0; i < RING; i++) ring[i].memory = memory();

    for (int frame = 0; frame < FRAMES; frame++) {
        void *pool = metal_pool_push();
        gpusync_ticket ticket;
        read_results();
        for (int i = frame / PER_ASSET; i <= frame / PER_ASSET + 1 && i < ASSETS; i++) { /* this one and the next */
            if (!assets[i].ticket || gpusync_poll(uploads, assets[i].ticket, NULL) < GPUSYNC_OK) upload(i);
        }
        ticket = draw(frame);
        metal_pool_pop(pool);
        /* The only wait of the loop: frames run no farther ahead. */
        if (gpusync_wait(frames, ticket - AHEAD, limit, NULL) == GPUSYNC_TIMEOUT) check("the GPU", GPUSYNC_TIMEOUT);
    }

    CHECK(gpusync_wait(frames, GPUSYNC_EVERYTHING, limit, NULL));
    read_results();
    CHECK(gpusync_queue_destroy(frames));
    CHECK(gpusync_queue_destroy(uploads));
    CHECK(gpusync_timeline_destroy(uploaded));
    CHECK(gpusync_timeline_destroy(never));
    CHECK(gpusync_device_destroy(device)); /* staging memory is released */
    for (int i = 0; i < ASSETS; i++) metal_release(assets[i].memory);
    for (int i = 0; i < RING; i++) metal_release(ring[i].memory);
    printf("results: %d arrived, %d left out, %d wrong; %d upload made again\n", arrived, left_out, wrong, again);
    return wrong || again != 1 || arrived + left_out != FRAMES;
}
