/* GPUSYNC_STATIC: every function of this copy is private to this file. So a program, and another library in it, may
   have copies of any version. Copies never share a gpusync_queue, or one Metal queue. */
#define GPUSYNC_STATIC
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include "renderer.h"
#include <stdio.h>

int renderer_draw(unsigned limit_ms, char *text, size_t size)
{
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    gpusync_error error = {GPUSYNC_OK, GPUSYNC_FAILURE_NONE, 0, 0, 0, "", "", "", ""};
    uint64_t cursor = 0;
    void *buffer; /* an id<MTLCommandBuffer> */
    const char *call = "gpusync_device_create";
    gpusync_result result = gpusync_device_create(NULL, &device);

    if (!result) call = "gpusync_queue_create", result = gpusync_queue_create(device, NULL, &queue);
    if (!result) call = "gpusync_command_buffer", result = gpusync_command_buffer(queue, NULL, &buffer);
    if (!result) call = "gpusync_commit", result = gpusync_commit(queue, buffer, &ticket);
    if (!result) call = "gpusync_wait", result = gpusync_wait(queue, ticket, limit_ms * UINT64_C(1000000));
    if (result == GPUSYNC_ERROR_EXECUTION) (void)!gpusync_next_error(queue, &cursor, &error);
    if (result) snprintf(text, size, "%s: %s\n%s", call, gpusync_result_string(result), error.message);
    else snprintf(text, size, "ticket %d: done", (int)ticket);
    gpusync_queue_destroy(queue);
    gpusync_device_destroy(device);
    return result != GPUSYNC_OK;
}
