/* GPUSYNC_STATIC: every function of this copy is private to this file. So a program, and another library in it, may
   have copies of any version. Copies never share a gpusync_queue, or one Metal queue. */
#define GPUSYNC_STATIC
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include "renderer.h"
#include <stdio.h>

#define OK(name, arguments) (call = #name, (result = name arguments) == GPUSYNC_OK)

int renderer_draw(unsigned limit_ms, char *text, size_t size)
{
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    gpusync_error error = {0};
    gpusync_wait_options options = {0};
    void *buffer; /* an id<MTLCommandBuffer> */
    const char *call;
    gpusync_result result;

    options.error = &error;
    if (OK(gpusync_device_create, (NULL, &device)) && OK(gpusync_queue_create, (device, NULL, &queue)) &&
        OK(gpusync_command_buffer_create, (queue, NULL, GPUSYNC_FOREVER, &buffer)) &&
        OK(gpusync_commit, (queue, buffer, &ticket)) &&
        OK(gpusync_wait, (queue, ticket, limit_ms * UINT64_C(1000000), &options)))
        snprintf(text, size, "ticket %d: done", (int)ticket);
    else
        snprintf(text, size, "%s: %s\n%s", call, gpusync_result_string(result), error.message);
    if (result == GPUSYNC_TIMEOUT)
        gpusync_queue_abandon(queue); /* the GPU hangs: destroy would wait for it */
    else
        gpusync_queue_destroy(queue);
    gpusync_device_destroy(device);
    return result != GPUSYNC_OK;
}
