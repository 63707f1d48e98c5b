/* Objective-C callers, with ARC and without: Metal objects go in and out by plain __bridge casts. */
#include "gpusync.h"
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
id objc_begin(gpusync_queue *queue);
gpusync_result objc_commit(gpusync_queue *queue, id buffer);
id objc_queue(const gpusync_queue *queue);
gpusync_result objc_device(id device, gpusync_device **out);
#ifdef __cplusplus
}
#endif

id objc_begin(gpusync_queue *queue)
{
    void *buffer;
    if (gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer))
        return (id)0;
    return (__bridge id)buffer;
}

gpusync_result objc_commit(gpusync_queue *queue, id buffer)
{
    gpusync_ticket ticket;
    gpusync_result result = gpusync_commit(queue, (__bridge void *)buffer, &ticket);
    if (result)
        return result;
    if (gpusync_is_done(queue, ticket) || gpusync_in_flight(queue) == 0)
        return GPUSYNC_OK;
    return gpusync_wait(queue, ticket, 1000000000, NULL);
}

id objc_queue(const gpusync_queue *queue)
{
    return (__bridge id)gpusync_queue_metal(queue);
}

gpusync_result objc_device(id device, gpusync_device **out)
{
    gpusync_device_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.metal_device = (__bridge void *)device;
    return gpusync_device_create(&desc, out);
}
