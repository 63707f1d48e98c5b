/* A stand-in for the part of sokol_gfx.h that main.c calls. It treats Metal as sokol_gfx does (commit 7cee0ba of
   floooh/sokol): the first pass of a frame waits for the frame two before it, makes a command buffer and enqueues that;
   sg_commit commits the command buffer. */
#include "metal.h"

typedef struct sg_pass {
    bool compute;
} sg_pass;
typedef struct sg_desc {
    struct {
        struct {
            const void *device;
        } metal;
    } environment;
} sg_desc;

static void *sg_device, *sg_queue, *sg_buffers[2], *sg_encoder;
static unsigned sg_frame;
static bool sg_in_frame;

static inline const void *sg_mtl_device(void)
{
    return sg_device;
}
static inline const void *sg_mtl_command_queue(void)
{
    return sg_queue;
}

static inline void sg_setup(const sg_desc *desc)
{
    sg_device = metal_retain((void *)desc->environment.metal.device);
    sg_queue = metal_queue_new(sg_device, 64);
}

static inline void sg_finish(void **buffer)
{
    if (*buffer)
        metal_wait_until_completed(*buffer);
    metal_release(*buffer);
    *buffer = NULL;
}

static inline void sg_begin_pass(const sg_pass *pass)
{
    void **buffer = &sg_buffers[sg_frame % 2];
    (void)pass;
    if (!sg_in_frame) {
        sg_finish(buffer);
        *buffer = metal_queue_command_buffer(sg_queue);
        metal_enqueue(*buffer);
        sg_in_frame = true;
    }
    sg_encoder = metal_compute_begin(*buffer);
}

static inline void sg_end_pass(void)
{
    metal_end(sg_encoder);
}

static inline void sg_commit(void)
{
    if (sg_in_frame)
        metal_commit(sg_buffers[sg_frame % 2]);
    sg_in_frame = false;
    sg_frame++;
}

static inline void sg_shutdown(void)
{
    sg_finish(&sg_buffers[0]);
    sg_finish(&sg_buffers[1]);
    metal_release(sg_queue);
    metal_release(sg_device);
}
