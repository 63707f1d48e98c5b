// cc -std=c99 background.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o background
// iOS refuses the GPU to an app in the background: work ends as NOT_PERMITTED. An app that goes there cancels its held
// work, and waits for all queues with one deadline. In the foreground it encodes again what was refused or cancelled.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

static void encode(gpusync_queue *queue, gpusync_point needs, const char *why)
{
    void *buffer;
    MUST(gpusync_command_buffer_create(queue, NULL, 1000000000, &buffer)); /* ... encode the work ... */
    MUST(gpusync_encode_wait(queue, buffer, needs));
    MUST(gpusync_commit(queue, buffer, NULL));
    printf("encoded: %s\n", why);
}

int main(void)
{
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *file; /* value 1: a file is read */
    gpusync_error error;
    MUST(gpusync_device_create(NULL, &device));
    MUST(gpusync_queue_create(device, NULL, &queue));
    MUST(gpusync_timeline_create(device, NULL, &file));
    metal_refuse_next(1);
    encode(queue, gpusync_at_value(file, 0), "in flight");
    encode(queue, gpusync_at_value(file, 1), "held");
    /* Of each queue: a signal would send held work in the background. */
    MUST(gpusync_queue_cancel_held(queue, GPUSYNC_EVERYTHING));
    MUST_END(gpusync_device_wait(device, 2000000000, NULL));
    MUST(gpusync_timeline_signal(file, 1)); /* from here on the app is in the foreground */
    for (uint64_t cursor = 0; gpusync_queue_next_error(queue, &cursor, &error) == GPUSYNC_OK;)
        if (error.failure == GPUSYNC_FAILURE_NOT_PERMITTED || error.failure == GPUSYNC_FAILURE_CANCELLED)
            encode(queue, gpusync_at_value(file, 1), gpusync_failure_string(error.failure));
    MUST(gpusync_wait(queue, GPUSYNC_EVERYTHING, 1000000000, NULL));
    MUST(gpusync_queue_destroy(queue));
    MUST(gpusync_timeline_destroy(file));
    return gpusync_device_destroy(device) != GPUSYNC_OK;
}
