/* A program with a copy of the header beside it. Each call that fails is named, with its reason. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include <stdio.h>

static int failed(const char *call, gpusync_result result)
{
    if (result) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result != GPUSYNC_OK;
}
#define FAILED(call) failed(#call, call)

int main(void)
{
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    gpusync_error error;
    uint64_t cursor = 0;
    void *buffer; /* an id<MTLCommandBuffer> */
    int bad = FAILED(gpusync_device_create(NULL, &device)) || FAILED(gpusync_queue_create(device, NULL, &queue)) ||
              FAILED(gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer)) ||
              /* ... encode work into the buffer here ... */
              FAILED(gpusync_commit(queue, buffer, &ticket)) || FAILED(gpusync_wait(queue, ticket, 1000000000, NULL));

    while (queue && gpusync_queue_next_error(queue, &cursor, &error) == GPUSYNC_OK)
        fprintf(stderr, "ticket %d: %s\n", (int)error.ticket, error.message);
    if (gpusync_is_done(queue, ticket)) bad |= FAILED(gpusync_queue_destroy(queue));
    else bad |= FAILED(gpusync_queue_abandon(queue)); /* the GPU hangs: destroy would wait for it */
    bad |= FAILED(gpusync_device_destroy(device));
    if (!bad) printf("ticket %d: done\n", (int)ticket);
    return bad;
}
