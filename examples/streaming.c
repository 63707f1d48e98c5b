// cc -std=c99 streaming.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o streaming
//
// A frame loop that streams both ways, and blocks for neither. Assets go to the GPU on a queue of their own: the frame
// that needs one waits for it on the GPU. Results come back through a ring of buffers: each frame the CPU reads those
// whose work has ended, and a frame that finds no free buffer does without. With waitUntilCompleted for each of them
// the CPU and the GPU would work in turns.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>

enum { FRAMES = 24, ASSETS = 6, PER_ASSET = FRAMES / ASSETS, AHEAD = 3, RING = 2, STAGING = 1, SIZE = 1 << 16 };
#define LIMIT UINT64_C(10000000000) /* nanoseconds */

typedef struct slot { /* memory that the CPU shares with the GPU */
    void *memory;          /* an id<MTLBuffer> */
    gpusync_ticket ticket; /* of the work that uses it; GPUSYNC_NO_TICKET: none */
    unsigned asset;        /* that this work reads */
} slot;

typedef struct asset {
    void *memory;   /* an id<MTLBuffer>: a texture, in a real program */
    bool requested;
    uint64_t value; /* of the timeline, when the asset is there; 0: it is */
} asset;

typedef struct streamer {
    gpusync_device *device;
    gpusync_queue *frames, *uploads;
    gpusync_timeline *uploaded;
    uint64_t value; /* the last that an upload signals */
    uint64_t frame_cursor, upload_cursor; /* of the failures */
    slot ring[RING], staging[STAGING];
    asset assets[ASSETS];
    unsigned read, left_out, lost, wrong, own; /* frames; uploads with staging memory of their own */
} streamer;

static gpusync_result failed(const char *call, gpusync_result result)
{
    if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result;
}
#define FAILED(call) failed(#call, call)

static void print_failures(gpusync_queue *queue, uint64_t *cursor)
{
    gpusync_error error;
    while (gpusync_next_error(queue, cursor, &error) == GPUSYNC_OK)
        fprintf(stderr, "%s: %s\n", error.label, error.message);
}

/* Only these results say that the GPU has finished with the memory of the work. */
static bool is_over(gpusync_result result)
{
    return result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION || result == GPUSYNC_ERROR_CANCELLED ||
           result == GPUSYNC_ERROR_RESULT_UNKNOWN;
}

/* Reads what has arrived. Does not wait. */
static void read_results(streamer *s)
{
    for (unsigned i = 0; i < RING; i++) {
        slot *r = &s->ring[i];
        gpusync_result result = gpusync_poll(s->frames, r->ticket);
        if (r->ticket == GPUSYNC_NO_TICKET || !is_over(result)) continue;
        r->ticket = GPUSYNC_NO_TICKET;
        if (result != GPUSYNC_OK) s->lost++;
        else if (*(unsigned char *)metal_contents(r->memory) == r->asset + 1) s->read++;
        else s->wrong++;
    }
}

/* A buffer of the queue, labelled "asset 3"; NULL after an error. */
static void *buffer_of(gpusync_queue *queue, const char *what, unsigned number)
{
    static const uint64_t limit = LIMIT;
    gpusync_command_buffer_desc desc = {0};
    char label[32];
    void *buffer;
    snprintf(label, sizeof label, "%s %u", what, number);
    desc.label = label;
    desc.timeout_ns = &limit;          /* for room in the queue */
    desc.unretained_references = true; /* faster; but then the program keeps what the work uses */
    return FAILED(gpusync_command_buffer(queue, &desc, &buffer)) ? NULL : buffer;
}

static void copy(void *buffer, void *from, void *to, size_t size)
{
    void *blit = metal_blit_begin(buffer);
    metal_copy(blit, from, 0, to, 0, size);
    metal_end(blit);
}

static gpusync_result upload(streamer *s, unsigned i)
{
    asset *a = &s->assets[i];
    slot own = {NULL, GPUSYNC_NO_TICKET, 0}, *staging = NULL;
    gpusync_result result;
    void *buffer;
    for (unsigned k = 0; k < STAGING; k++)
        if (is_over(gpusync_poll(s->uploads, s->staging[k].ticket))) staging = &s->staging[k];
    if (!staging) { /* all staging memory is in use: the frame does not wait for it */
        own.memory = metal_buffer_new(gpusync_device_metal(s->device), SIZE);
        if (!own.memory) return failed("newBufferWithLength", GPUSYNC_ERROR_METAL_NIL);
        staging = &own;
        s->own++;
    }
    memset(metal_contents(staging->memory), (int)i + 1, SIZE); /* a real program reads a file */
    buffer = buffer_of(s->uploads, "asset", i + 1);
    if (!buffer) result = GPUSYNC_ERROR_METAL_NIL;
    else {
        copy(buffer, staging->memory, a->memory, SIZE);
        result = FAILED(gpusync_encode_signal(s->uploads, buffer, gpusync_at_value(s->uploaded, s->value + 1)));
        if (result == GPUSYNC_OK) result = FAILED(gpusync_commit(s->uploads, buffer, &staging->ticket));
        if (result != GPUSYNC_OK) gpusync_command_buffer_discard(s->uploads, buffer);
    }
    if (result == GPUSYNC_OK) a->requested = true, a->value = ++s->value;
    if (own.memory && result == GPUSYNC_OK && /* dropped now, and gone when the GPU has read it */
        FAILED(gpusync_release_after(gpusync_at_ticket(s->uploads, own.ticket), own.memory)))
        return GPUSYNC_ERROR_OUT_OF_MEMORY; /* never released: the GPU may be reading it */
    metal_release(own.memory);
    return result;
}

/* Requests the asset of this frame, and the next one. A failed upload has failed the timeline, and with it all later
   waits for it: so frames wait for no asset that is there, and a new timeline takes over. */
static gpusync_result request_assets(streamer *s, unsigned frame)
{
    uint64_t reached;
    gpusync_result result = GPUSYNC_OK, failure = gpusync_timeline_query(s->uploaded, &reached);
    for (unsigned i = 0; i < ASSETS; i++) {
        asset *a = &s->assets[i];
        if (a->value > reached && failure) a->requested = false; /* to be uploaded again */
        if (a->value <= reached || failure) a->value = 0;
    }
    if (failure) {
        print_failures(s->uploads, &s->upload_cursor);
        if (FAILED(gpusync_timeline_destroy(s->uploaded))) return GPUSYNC_ERROR_DESTROYED;
        result = FAILED(gpusync_timeline_create(s->device, NULL, &s->uploaded));
        s->value = 0;
    }
    for (unsigned i = frame / PER_ASSET; result == GPUSYNC_OK && i < ASSETS && i <= frame / PER_ASSET + 1; i++)
        if (!s->assets[i].requested) result = upload(s, i);
    return result;
}

static gpusync_result draw(streamer *s, unsigned frame, gpusync_ticket *ticket)
{
    unsigned i = frame / PER_ASSET;
    void *buffer = buffer_of(s->frames, "frame", frame + 1);
    gpusync_result result = GPUSYNC_OK;
    slot *r = NULL;
    if (!buffer) return GPUSYNC_ERROR_METAL_NIL;
    for (unsigned k = 0; k < RING; k++) /* a result that arrived since read_results is not read yet */
        if (s->ring[k].ticket == GPUSYNC_NO_TICKET) r = &s->ring[k];
    if (s->assets[i].value)
        result = FAILED(gpusync_encode_wait(s->frames, buffer, gpusync_at_value(s->uploaded, s->assets[i].value)));
    if (result == GPUSYNC_OK && r) copy(buffer, s->assets[i].memory, r->memory, 1); /* a real frame draws, too */
    if (result == GPUSYNC_OK) result = FAILED(gpusync_commit(s->frames, buffer, ticket));
    if (result != GPUSYNC_OK) gpusync_command_buffer_discard(s->frames, buffer);
    else if (r) r->ticket = *ticket, r->asset = i;
    else s->left_out++;
    return result;
}

static gpusync_result run(streamer *s)
{
    gpusync_result result = GPUSYNC_OK;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    for (unsigned frame = 0; result == GPUSYNC_OK && frame < FRAMES; frame++) {
        void *pool = metal_pool_push();
        read_results(s);
        result = request_assets(s, frame);
        if (result == GPUSYNC_OK) result = draw(s, frame, &ticket);
        metal_pool_pop(pool);
        /* The only wait of the loop: frames run no farther ahead. One that failed has ended, too. */
        if (result == GPUSYNC_OK && ticket > AHEAD) {
            gpusync_result ended = gpusync_wait(s->frames, ticket - AHEAD, LIMIT);
            if (!is_over(ended)) result = failed("gpusync_wait", ended);
        }
    }
    return result;
}

static bool make_memory(streamer *s)
{
    void *metal = gpusync_device_metal(s->device);
    bool good = true;
    for (unsigned i = 0; i < RING; i++) good &= (s->ring[i].memory = metal_buffer_new(metal, SIZE)) != NULL;
    for (unsigned i = 0; i < STAGING; i++) good &= (s->staging[i].memory = metal_buffer_new(metal, SIZE)) != NULL;
    for (unsigned i = 0; i < ASSETS; i++) good &= (s->assets[i].memory = metal_buffer_new(metal, SIZE)) != NULL;
    return good || !failed("newBufferWithLength", GPUSYNC_ERROR_METAL_NIL);
}

int main(void)
{
    static const streamer nothing;
    streamer s = nothing;
    gpusync_result result = gpusync_device_create(NULL, &s.device);
    bool good;
    if (result == GPUSYNC_ERROR_NO_DEVICE) {
        fprintf(stderr, "skipped: %s\n", gpusync_result_string(result));
        return 77;
    }
    if (failed("gpusync_device_create", result)) return 1;
    good = !FAILED(gpusync_queue_create(s.device, NULL, &s.frames)) &&
           !FAILED(gpusync_queue_create(s.device, NULL, &s.uploads)) &&
           !FAILED(gpusync_timeline_create(s.device, NULL, &s.uploaded)) && make_memory(&s) && run(&s) == GPUSYNC_OK;
    /* A GPU that hangs uses this memory for good, so the program leaves it alone, and ends. */
    result = gpusync_device_wait(s.device, LIMIT, NULL);
    if (!is_over(result)) return failed("gpusync_device_wait", result) != GPUSYNC_OK;
    read_results(&s);
    print_failures(s.uploads, &s.upload_cursor);
    print_failures(s.frames, &s.frame_cursor);
    printf("results: %u read, %u left out, %u lost, %u wrong\n", s.read, s.left_out, s.lost, s.wrong);
    printf("assets: %d, %u by staging memory of their own\n", ASSETS, s.own);
    if (FAILED(gpusync_queue_destroy(s.frames)) || FAILED(gpusync_queue_destroy(s.uploads)) ||
        FAILED(gpusync_timeline_destroy(s.uploaded)) || FAILED(gpusync_device_destroy(s.device)))
        good = false;
    for (unsigned i = 0; i < RING; i++) metal_release(s.ring[i].memory);
    for (unsigned i = 0; i < STAGING; i++) metal_release(s.staging[i].memory);
    for (unsigned i = 0; i < ASSETS; i++) metal_release(s.assets[i].memory);
    return !(good && s.read + s.left_out == FRAMES);
}
