/* Frames of sokol_gfx, each with a ticket, and no wait without a limit. With WITH_SOKOL_GFX it includes sokol_gfx.h. */
#define GPUSYNC_IMPLEMENTATION
#include "frames.h"
#ifdef WITH_SOKOL_GFX
#include "metal.h"
#include "sokol_gfx.h"
#else
#include "stand_in.h"
#endif
#include <stdio.h>

static int failed(const char *call, gpusync_result result)
{
    if (result)
        fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result != GPUSYNC_OK;
}
#define FAILED(call) failed(#call, call)

static int draw(frames *f, gpusync_ticket *ticket)
{
    const sg_pass pass = {.compute = true};
    if (FAILED(frames_begin(f, 1000000000)))
        return 1;
    sg_begin_pass(&pass);
    /* ... sg_apply_pipeline, sg_dispatch; or a swapchain's pass, and sg_draw ... */
    sg_end_pass();
    sg_commit();
    return FAILED(frames_end(f, NULL, ticket));
}

int main(void)
{
    void *metal_device = metal_device_new(); /* sokol_app.h: sglue_environment() */
    const sg_desc desc = {.environment.metal.device = metal_device};
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    gpusync_result closed;
    frames f;
    int bad;

    if (!metal_device) {
        fprintf(stderr, "MTLCreateSystemDefaultDevice: %s\n", gpusync_result_string(GPUSYNC_ERROR_NO_DEVICE));
        return 1;
    }
    sg_setup(&desc);
    bad = FAILED(frames_open(&f, sg_mtl_device(), sg_mtl_command_queue()));
    for (int i = 0; i < 4 && !bad; i++)
        bad = draw(&f, &ticket);
    closed = frames_close(&f, 1000000000);
    bad |= failed("frames_close", closed);
    if (closed != GPUSYNC_TIMEOUT)
        sg_shutdown();
    metal_release(metal_device);
    if (!bad)
        printf("ticket %d: done\n", (int)ticket);
    return bad;
}
