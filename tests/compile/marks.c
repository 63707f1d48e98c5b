/* What the marks of the declarations make a compiler say. tests/compile.sh compiles this with each CASE: 0 is
   right, every other one has one mistake, of which the compiler has to tell. It is never run. */
#include "gpusync.h"

int use(gpusync_device *device, gpusync_queue *queue, gpusync_timeline *timeline, void *buffer);

int use(gpusync_device *device, gpusync_queue *queue, gpusync_timeline *timeline, void *buffer)
{
    gpusync_point point = gpusync_at_value(timeline, 1);
    gpusync_submission submission = {NULL, 0, NULL, 0, NULL, 0, NULL, NULL, NULL, 0};
    gpusync_error error;
    gpusync_result result = GPUSYNC_OK;
    uint64_t cursor = 0;
    (void)device;
    (void)cursor;
    (void)error;
    (void)point;
#if CASE == 0
    /* All that may be NULL, and results that need not be looked at. */
    if (gpusync_device_create(NULL, &device) || gpusync_queue_create(device, NULL, &queue))
        return 1;
    if (gpusync_metal4_queue_create(device, NULL, &queue))
        return 1;
    if (gpusync_command_buffer_create(queue, NULL, 0, &buffer) || gpusync_commit(queue, buffer, NULL))
        return 1;
    if (gpusync_poll(queue, 1, NULL) || gpusync_wait(queue, 1, 0, NULL) || gpusync_device_wait(device, 0, NULL))
        return 1;
    if (gpusync_wait_many(NULL, 0, GPUSYNC_WAIT_ALL, 0, NULL, NULL) || gpusync_timeline_create(device, NULL, &timeline))
        return 1;
    if (gpusync_timeline_wait(timeline, 1, 0, NULL) || gpusync_submit(queue, &submission, NULL))
        return 1;
    if (gpusync_commit_marker(queue, NULL, NULL) || gpusync_is_done(NULL, 1) || gpusync_in_flight(NULL))
        return 1;
    gpusync_device_run_callbacks(device, 1, NULL);
    gpusync_command_buffer_discard(queue, buffer);
    gpusync_queue_cancel_held(queue, GPUSYNC_EVERYTHING);
    if (gpusync_queue_clear_failure(queue, GPUSYNC_EVERYTHING))
        return 1;
    gpusync_timeline_fail(timeline, NULL);
    gpusync_queue_abandon(NULL);
    gpusync_queue_destroy_later(NULL, NULL, NULL);
    gpusync_timeline_destroy_later(NULL, NULL, NULL);
    gpusync_device_destroy_later(NULL, NULL, NULL);
    gpusync_timeline_destroy(NULL);
    gpusync_queue_destroy(NULL);
    gpusync_device_destroy(NULL);
    if (gpusync_device_metal(NULL) || gpusync_queue_metal(NULL) || gpusync_timeline_metal(NULL, NULL))
        return 1;
/* NULL where an object is required */
#elif CASE == 1
    result = gpusync_device_create(NULL, NULL);
#elif CASE == 2
    result = gpusync_queue_create(NULL, NULL, &queue);
#elif CASE == 3
    result = gpusync_commit(NULL, buffer, NULL);
#elif CASE == 4
    result = gpusync_commit(queue, NULL, NULL);
#elif CASE == 5
    result = gpusync_command_buffer_create(queue, NULL, 0, NULL);
#elif CASE == 6
    result = gpusync_submit(queue, NULL, NULL);
#elif CASE == 7
    result = gpusync_queue_next_error(queue, NULL, &error);
#elif CASE == 8
    result = gpusync_queue_next_error(queue, &cursor, NULL);
#elif CASE == 9
    result = gpusync_timeline_query(timeline, NULL, NULL);
#elif CASE == 10
    result = gpusync_on_done(point, NULL, NULL);
#elif CASE == 11
    result = gpusync_release_after(queue, 1, NULL);
#elif CASE == 12
    result = gpusync_encode_wait(queue, NULL, point);
#elif CASE == 13
    result = gpusync_metal4_queue_create(device, NULL, NULL);
#elif CASE == 14
    result = gpusync_cancel_on_done(point, NULL, NULL);
#elif CASE == 15
    result = gpusync_device_on_lost(device, NULL, NULL);
/* a result that has to be looked at */
#elif CASE == 20
    gpusync_commit(queue, buffer, NULL);
#elif CASE == 21
    gpusync_wait(queue, 1, 0, NULL);
#elif CASE == 22
    gpusync_submit(queue, &submission, NULL);
#elif CASE == 23
    gpusync_timeline_signal(timeline, 1);
#elif CASE == 24
    gpusync_metal4_queue_create(device, NULL, &queue);
#else
#error "no such case"
#endif
    return result == GPUSYNC_OK;
}
