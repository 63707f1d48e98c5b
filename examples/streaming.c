// cc -std=c99 streaming.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o streaming
//
// A frame loop that streams both ways. Assets go to the GPU on a queue of their own, and the frame that needs one waits
// for it on the GPU. Results come back through a ring of buffers: a frame that finds no free one does without. An upload
// that fails is made again. The loop waits for one thing alone: that it runs no more than three frames ahead.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { FRAMES = 24, ASSETS = 6, PER_ASSET = FRAMES / ASSETS, AHEAD = 3, RING = 2, SIZE = 1 << 22, CANCELLED = 3 };
static const uint64_t limit = 10000000000; /* nanoseconds */

typedef struct asset {
    void *memory;          /* an MTLBuffer; in a real program often a texture */
    gpusync_ticket ticket; /* of the upload; GPUSYNC_NO_TICKET: none yet */
    uint64_t value;        /* of `uploaded`, when the upload has ended */
} asset;

typedef struct readback {
    void *memory;          /* an MTLBuffer */
    gpusync_ticket ticket; /* of the frame that writes it; GPUSYNC_NO_TICKET: it is free */
    int asset;             /* that the frame shows */
} readback;

static gpusync_device *device;
static gpusync_queue *frames, *uploads;
static gpusync_timeline *uploaded, *never; /* nothing signals `never` */
static uint64_t last_value;                /* of `uploaded`, that an upload signals */
static asset assets[ASSETS];
static readback ring[RING];
static int arrived, left_out, wrong, again;

static void upload(int i)
{
    asset *a = &assets[i];
    bool fails = i == CANCELLED && a->ticket == GPUSYNC_NO_TICKET;
    void *buffer, *staging = MUST_GET(metal_buffer_new(gpusync_device_metal(device), SIZE));
    again += a->ticket != GPUSYNC_NO_TICKET;
    memset(metal_contents(staging), i + 1, SIZE); /* a real program reads a file */
    MUST(gpusync_command_buffer_create(uploads, NULL, limit, &buffer));
    if (fails)
        MUST(gpusync_encode_wait(uploads, buffer, gpusync_at_value(never, 1)));
    metal_must_copy(buffer, staging, 0, a->memory, 0, SIZE);
    a->value = ++last_value;
    MUST(gpusync_encode_signal(uploads, buffer, gpusync_at_value(uploaded, a->value)));
    MUST(gpusync_commit(uploads, buffer, &a->ticket));
    metal_release(staging); /* the command buffer retains it */
    if (fails)
        MUST(gpusync_queue_cancel_held(uploads, a->ticket));
}

static void read_results(void) /* does not wait */
{
    for (readback *r = ring; r < ring + RING; r++) {
        if (r->ticket == GPUSYNC_NO_TICKET || !gpusync_is_done(frames, r->ticket))
            continue;
        wrong += gpusync_poll(frames, r->ticket, NULL) != GPUSYNC_OK ||
                 *(unsigned char *)metal_contents(r->memory) != r->asset + 1;
        r->ticket = GPUSYNC_NO_TICKET;
        arrived++;
    }
}

static gpusync_ticket draw(int i) /* with this asset */
{
    gpusync_ticket ticket;
    void *buffer;
    readback *r = ring;
    while (r < ring + RING && r->ticket != GPUSYNC_NO_TICKET)
        r++;
    MUST(gpusync_command_buffer_create(frames, NULL, limit, &buffer));
    MUST(gpusync_encode_wait(frames, buffer, gpusync_at_value(uploaded, assets[i].value)));
    if (r < ring + RING) /* a real frame draws with the asset */
        metal_must_copy(buffer, assets[i].memory, SIZE - 4, r->memory, 0, 4);
    MUST(gpusync_commit(frames, buffer, &ticket));
    if (r < ring + RING)
        *r = (readback){r->memory, ticket, i};
    else
        left_out++;
    return ticket;
}

int main(void)
{
    /* A value rises however its upload ends, so an upload that fails spoils no other one. Its ticket tells. */
    gpusync_timeline_desc desc = {.label = "uploaded", .order_only = true};
    MUST(gpusync_device_create(NULL, &device));
    MUST(gpusync_queue_create(device, NULL, &frames));
    MUST(gpusync_queue_create(device, NULL, &uploads));
    MUST(gpusync_timeline_create(device, &desc, &uploaded));
    MUST(gpusync_timeline_create(device, NULL, &never));
    for (int i = 0; i < ASSETS; i++)
        assets[i].memory = MUST_GET(metal_buffer_new(gpusync_device_metal(device), SIZE));
    for (int i = 0; i < RING; i++)
        ring[i].memory = MUST_GET(metal_buffer_new(gpusync_device_metal(device), 4));

    for (int frame = 0; frame < FRAMES; frame++) {
        int now = frame / PER_ASSET;
        read_results();
        for (int i = now; i <= now + 1 && i < ASSETS; i++) /* of this frame, and of the frames to come */
            if (assets[i].ticket == GPUSYNC_NO_TICKET || gpusync_poll(uploads, assets[i].ticket, NULL) < GPUSYNC_OK)
                upload(i);
        MUST_END(gpusync_wait(frames, draw(now) - AHEAD, limit, NULL));
    }
    MUST(gpusync_wait(frames, GPUSYNC_EVERYTHING, limit, NULL));
    read_results();
    MUST(gpusync_queue_destroy(frames));
    MUST(gpusync_queue_destroy(uploads));
    MUST(gpusync_timeline_destroy(uploaded));
    MUST(gpusync_timeline_destroy(never));
    MUST(gpusync_device_destroy(device));
    for (int i = 0; i < ASSETS; i++)
        metal_release(assets[i].memory);
    for (int i = 0; i < RING; i++)
        metal_release(ring[i].memory);
    printf("results: %d arrived, %d left out, %d wrong; %d upload made again\n", arrived, left_out, wrong, again);
    return wrong || again != 1 || arrived + left_out != FRAMES;
}
