// cc -std=c99 signposts.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o signposts
//
// What queues and waits did, in Instruments: signposts.h makes intervals of a trace. Here are some to look at: work that
// ends well, work that is held until its signal is on the way, work that fails. They are printed as well, and counted.
// On a Mac: xctrace record --instrument os_signpost --launch -- ./signposts

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"
#include "signposts.h"

enum { UPLOADS, DRAWS, QUEUES };
enum { FRAMES = 3, SIZE = 1 << 16 };

static const char *const names[QUEUES] = {"upload", "draw"};
static gpusync_device *device;
static gpusync_queue *queues[QUEUES];
static gpusync_timeline *uploaded; /* value n: what frame n needs is there */
static void *memory[QUEUES];
static unsigned counts[SIGNPOSTS_KINDS]; /* of begins */

static void tell(signposts *s, bool begins, signposts_interval *interval, uint64_t time_ns)
{
    counts[interval->kind] += begins;
#ifdef SIGNPOSTS_OS
    signposts_os(s, begins, interval, time_ns);
#endif
    signposts_text(s, begins, interval, time_ns);
}

static gpusync_ticket submit(int queue, unsigned frame, bool fails)
{
    gpusync_command_buffer_desc desc = {.label = names[queue]};
    gpusync_ticket ticket;
    void *command_buffer;
    check(!gpusync_command_buffer(queues[queue], &desc, &command_buffer), "gpusync_command_buffer");
    if (queue == DRAWS)
        check(!gpusync_encode_wait(queues[queue], command_buffer, gpusync_at_value(uploaded, frame)),
              "gpusync_encode_wait");
    softmetal_set_duration(command_buffer, 2 * MS);
    if (fails) softmetal_fail(command_buffer, NULL, 8, "out of memory on purpose");
    void *blit = metal_blit_begin(command_buffer);
    metal_fill(blit, memory[queue], 0, SIZE, (unsigned char)frame);
    metal_end(blit);
    if (queue == UPLOADS)
        check(!gpusync_encode_signal(queues[queue], command_buffer, gpusync_at_value(uploaded, frame)),
              "gpusync_encode_signal");
    check(!gpusync_commit(queues[queue], command_buffer, &ticket), "gpusync_commit");
    return ticket;
}

/* The draw is committed first, and held until there is an upload to wait for. */
static void run_frame(unsigned frame, gpusync_result expected)
{
    void *pool = metal_pool_push(); /* for what Metal autoreleases in a frame */
    gpusync_ticket drawn = submit(DRAWS, frame, false);
    (void)submit(UPLOADS, frame, expected != GPUSYNC_OK);
    gpusync_result result = gpusync_wait(queues[DRAWS], drawn, 10000 * MS);
    check(result == expected, name_of(result));
    metal_pool_pop(pool);
}

int main(void)
{
    signposts posts;
    check_device(gpusync_device_create(NULL, &device));
    signposts_init(&posts, tell, stdout); /* signposts_tell instead of tell: os_signpost alone, where there is one */
    check(!gpusync_set_trace(device, signposts_trace, &posts), "gpusync_set_trace");
    for (int i = 0; i < QUEUES; i++) {
        gpusync_queue_desc desc = {.label = names[i]};
        check(!gpusync_queue_create(device, &desc, &queues[i]), "gpusync_queue_create");
        memory[i] = metal_buffer_new(gpusync_device_metal(device), SIZE);
        check(memory[i] != NULL, "memory");
    }
    check(!gpusync_timeline_create(device, NULL, &uploaded), "gpusync_timeline_create");

    for (unsigned frame = 1; frame <= FRAMES; frame++) run_frame(frame, GPUSYNC_OK);
    if (!real_device) run_frame(FRAMES + 1, GPUSYNC_ERROR_EXECUTION); /* there no work fails on purpose */

    gpusync_wait_options handlers = {.handlers = true}; /* a wait may end before its handler tells of the end */
    gpusync_result result = gpusync_device_wait(device, 10000 * MS, &handlers);
    check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION, name_of(result));
    for (int i = 0; i < QUEUES; i++) check(!gpusync_queue_destroy(queues[i]), "gpusync_queue_destroy");
    check(!gpusync_timeline_destroy(uploaded), "gpusync_timeline_destroy");
    check(!gpusync_device_destroy(device), "gpusync_device_destroy"); /* nothing is told after this */
    for (int i = 0; i < QUEUES; i++) metal_release(memory[i]);
    unsigned frames = real_device ? FRAMES : FRAMES + 1;
    printf("%u tickets, %u held, %u waits\n", counts[SIGNPOSTS_TICKET], counts[SIGNPOSTS_HELD], counts[SIGNPOSTS_WAIT]);
    check(posts.begun == posts.ended && !posts.count && !posts.lost, "what begins ends, once");
    check(counts[SIGNPOSTS_TICKET] == frames * QUEUES && counts[SIGNPOSTS_HELD] == frames, "each has its interval");
    check(counts[SIGNPOSTS_WAIT] == frames + 1, "each wait has its interval"); /* one for the device */
    signposts_destroy(&posts);
    printf("signposts: all %d checks passed\n", checks);
    return 0;
}
