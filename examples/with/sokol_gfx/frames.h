/* Limits for the frames of sokol_gfx, which commits its own command buffers. A marker behind each frame gives that
   frame a ticket. The ticket ends when all work that the Metal queue got before the marker has ended. The ticket shows
   whether the frame succeeded only with `behind`. One thread calls these functions: the thread that calls sg_commit. */
#ifndef FRAMES_H
#define FRAMES_H

#include "gpusync.h"

enum { FRAMES_IN_FLIGHT = 2 }; /* SG_NUM_INFLIGHT_FRAMES */

typedef struct frames {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket tickets[FRAMES_IN_FLIGHT];
    unsigned next; /* the slot of the next frame, and of the oldest one */
} frames;

/* After sg_setup, with sg_mtl_device() and sg_mtl_command_queue(). After an error frames_close is allowed. */
static inline gpusync_result frames_open(frames *f, const void *metal_device, const void *metal_queue)
{
    static const frames none = {0};
    gpusync_device_desc device = {0};
    gpusync_queue_desc queue = {0};
    gpusync_result result;
    *f = none;
    device.metal_device = (void *)metal_device;
    queue.metal_queue = (void *)metal_queue;
    queue.max_command_buffer_count = 64 - 1 - (FRAMES_IN_FLIGHT + 1); /* the rest is for sokol_gfx */
    if (!metal_device || !metal_queue)
        return GPUSYNC_ERROR_INVALID_ARGUMENT; /* another backend than Metal */
    result = gpusync_device_create(&device, &f->device);
    return result ? result : gpusync_queue_create(f->device, &queue, &f->queue);
}

/* Before the first sg_begin_pass of a frame, which waits for the same frame. Never call sg_begin_pass after
   GPUSYNC_TIMEOUT: it waits without a limit. Draw nothing, and call this again in the next turn. */
static inline gpusync_result frames_begin(const frames *f, uint64_t timeout_ns)
{
    return gpusync_wait(f->queue, f->tickets[f->next], timeout_ns, NULL);
}

/* After sg_commit: the ticket of the frame. behind: NULL, or the frame's command buffer, retained before sg_commit.
   After an error the frame has no ticket. */
static inline gpusync_result frames_end(frames *f, void *behind, gpusync_ticket *ticket)
{
    gpusync_result result = gpusync_commit_marker(f->queue, behind, ticket);
    if (result != GPUSYNC_OK)
        return result;
    f->tickets[f->next] = *ticket;
    f->next = (f->next + 1) % FRAMES_IN_FLIGHT;
    return GPUSYNC_OK;
}

/* Before sg_shutdown, which waits without a limit, for frames of sokol_gfx alone, and then releases what other work of
   the queue may use. After GPUSYNC_TIMEOUT do not call sg_shutdown. Returns also a failure that frames_begin or another
   wait for a ticket has returned. */
static inline gpusync_result frames_close(frames *f, uint64_t timeout_ns)
{
    gpusync_result result = f->queue ? gpusync_wait(f->queue, GPUSYNC_EVERYTHING, timeout_ns, NULL) : GPUSYNC_OK;
    if (result == GPUSYNC_TIMEOUT)
        gpusync_queue_abandon(f->queue);
    else
        gpusync_queue_destroy(f->queue);
    gpusync_device_destroy(f->device);
    return result;
}

/* Optional, in place of sg_commit and frames_end: the ticket fails if the frame fails. For the file with SOKOL_IMPL,
   behind sokol_gfx.h. Danger: cmd_buffer is an internal name (commit 7cee0ba), which any version may change. */
#if defined(FRAMES_BEHIND) && defined(SOKOL_GFX_IMPL_INCLUDED) && defined(SOKOL_METAL)
static inline gpusync_result frames_commit(frames *f, gpusync_ticket *ticket)
{
    __attribute__((objc_precise_lifetime)) id buffer = _sg.mtl.cmd_buffer; /* nil: the frame had no pass */
    sg_commit();
    return frames_end(f, (__bridge void *)buffer, ticket);
}
#endif

#endif
