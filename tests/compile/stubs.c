/* Where there is no Metal every call says so. All of the public functions are called here: tests/public.py compares
   this file with the header. */
#include "gpusync.h"

#include <stdio.h>
#include <string.h>

static int failures;

static void expect(int condition, int line, const char *text)
{
    if (!condition) {
        fprintf(stderr, "stubs.c:%d: not so: %s\n", line, text);
        failures++;
    }
}
static void gone(void *user)
{
    ++*(int *)user;
}

#define EXPECT(condition) expect((condition) ? 1 : 0, __LINE__, #condition)
#define UNSUPPORTED(call) EXPECT((call) == GPUSYNC_ERROR_UNSUPPORTED)

int main(void)
{
    int thing = 0; /* stands for the objects that no program can have here */
    gpusync_device *device = (gpusync_device *)(void *)&thing;
    gpusync_queue *queue = (gpusync_queue *)(void *)&thing;
    gpusync_ticket ticket = 7;
    gpusync_timeline *timeline;
    gpusync_warmup *warmup = (gpusync_warmup *)(void *)&thing;
    gpusync_point point = {NULL, 0, NULL, 0};
    uint64_t value = 1;
    gpusync_ticket_info info;
    gpusync_stats stats;
    gpusync_error error;
    uint64_t cursor = 0;
    void *buffer = &thing;
    char text[64];
    size_t sizes[2] = {0, 0}, which = 9;
    int calls = 0;

    UNSUPPORTED(gpusync_device_create(NULL, &device));
    EXPECT(device == NULL);
    device = (gpusync_device *)(void *)&thing;
    UNSUPPORTED(gpusync_device_destroy(device));
    UNSUPPORTED(gpusync_queue_create(device, NULL, &queue));
    EXPECT(queue == NULL);
    queue = (gpusync_queue *)(void *)&thing;
    UNSUPPORTED(gpusync_queue_destroy(queue));
    UNSUPPORTED(gpusync_queue_destroy_now(queue));
    EXPECT(gpusync_queue_destroy(NULL) == GPUSYNC_OK && gpusync_queue_destroy_now(NULL) == GPUSYNC_OK);
    EXPECT(gpusync_device_destroy(NULL) == GPUSYNC_OK && gpusync_timeline_destroy(NULL) == GPUSYNC_OK);
    UNSUPPORTED(gpusync_device_destroy_later(device, gone, &calls));
    UNSUPPORTED(gpusync_queue_destroy_later(queue, gone, &calls));
    EXPECT(gpusync_device_destroy_later(NULL, gone, &calls) == GPUSYNC_OK);
    EXPECT(gpusync_queue_destroy_later(NULL, gone, &calls) == GPUSYNC_OK);
    UNSUPPORTED(gpusync_queue_clear_failure(queue));
    EXPECT(gpusync_device_metal(device) == NULL);
    EXPECT(gpusync_queue_metal(queue) == NULL);

    UNSUPPORTED(gpusync_command_buffer(queue, NULL, &buffer));
    EXPECT(buffer == NULL);
    buffer = &thing;
    UNSUPPORTED(gpusync_command_buffer_discard(queue, buffer));

    UNSUPPORTED(gpusync_commit(queue, buffer, &ticket));
    UNSUPPORTED(gpusync_commit4(queue, &buffer, 1, &ticket));
    UNSUPPORTED(gpusync_track(queue, buffer, &ticket));
    UNSUPPORTED(gpusync_untrack(queue, 1));
    UNSUPPORTED(gpusync_poll(queue, 1));
    EXPECT(!gpusync_is_idle(queue));
    EXPECT(!gpusync_is_done(queue, 1));
    EXPECT(!gpusync_is_done(queue, GPUSYNC_EVERYTHING));
    EXPECT(gpusync_in_flight(queue) == 0);

    UNSUPPORTED(gpusync_wait(queue, 1, GPUSYNC_FOREVER));
    UNSUPPORTED(gpusync_wait_ex(queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL));
    UNSUPPORTED(gpusync_queue_wait(queue, GPUSYNC_FOREVER));
    UNSUPPORTED(gpusync_device_wait(device, GPUSYNC_FOREVER, NULL));

    UNSUPPORTED(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
    UNSUPPORTED(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which));
    EXPECT(which == 0);
    UNSUPPORTED(gpusync_timeline_create(device, NULL, &timeline));
    EXPECT(timeline == NULL);
    timeline = (gpusync_timeline *)(void *)&thing;
    EXPECT(gpusync_timeline_metal(timeline, NULL) == NULL);
    value = 7;
    EXPECT(gpusync_timeline_metal(timeline, &value) == NULL && value == 0);
    UNSUPPORTED(gpusync_timeline_query(timeline, &value));
    UNSUPPORTED(gpusync_timeline_signal(timeline, 1));
    UNSUPPORTED(gpusync_timeline_wait(timeline, 1, GPUSYNC_FOREVER, NULL));
    UNSUPPORTED(gpusync_encode_wait(queue, &device, gpusync_at_value(NULL, 1)));
    UNSUPPORTED(gpusync_encode_signal(queue, &device, gpusync_at_value(NULL, 1)));
    UNSUPPORTED(gpusync_submit(queue, NULL, &ticket));
    UNSUPPORTED(gpusync_cancel_held(queue));
    UNSUPPORTED(gpusync_release_after(gpusync_at_ticket(queue, 1), NULL));
    UNSUPPORTED(gpusync_on_done(gpusync_at_ticket(queue, 1), NULL, NULL));
    UNSUPPORTED(gpusync_on_done(gpusync_at_value(timeline, 1), NULL, NULL));
    UNSUPPORTED(gpusync_dispatch(device, 1, NULL));
    sizes[0] = 7;
    UNSUPPORTED(gpusync_dispatch(device, 1, &sizes[0]));
    EXPECT(sizes[0] == 0);
    UNSUPPORTED(gpusync_set_trace(device, NULL, NULL));
    UNSUPPORTED(gpusync_warmup_start(device, NULL, &warmup));
    EXPECT(warmup == NULL);
    UNSUPPORTED(gpusync_warmup_poll(warmup, NULL, NULL));
    UNSUPPORTED(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER));
    UNSUPPORTED(gpusync_warmup_pipeline(warmup, 0, GPUSYNC_FOREVER, &buffer, NULL));
    EXPECT(buffer == NULL);
    buffer = &thing;
    EXPECT(gpusync_warmup_destroy(warmup) == GPUSYNC_OK); /* NULL, as all of these */
    UNSUPPORTED(gpusync_warmup_destroy((gpusync_warmup *)(void *)&thing));
    UNSUPPORTED(gpusync_timeline_fail(timeline, NULL));
    UNSUPPORTED(gpusync_timeline_destroy(timeline));
    UNSUPPORTED(gpusync_timeline_destroy_later(timeline, gone, &calls));
    EXPECT(gpusync_timeline_destroy_later(NULL, gone, &calls) == GPUSYNC_OK);
    EXPECT(calls == 0); /* after an error, and for NULL, no object goes */

    UNSUPPORTED(gpusync_next_error(queue, &cursor, &error));
    EXPECT(!gpusync_device_is_lost(device));
    memset(&info, 0x5A, sizeof info);
    UNSUPPORTED(gpusync_get_info(queue, 1, &info));
    EXPECT(info.result == GPUSYNC_OK && !(info.gpu_start_s > 0) && !(info.gpu_end_s > 0));
    UNSUPPORTED(gpusync_get_stats(queue, &stats));
    UNSUPPORTED(gpusync_device_get_stats(device, &stats));
    EXPECT(gpusync_report(device, NULL, 0) < sizeof text);
    (void)gpusync_report(device, text, sizeof text);
    EXPECT(memchr(text, 0, sizeof text) != NULL);
    text[0] = 'x';
    EXPECT(gpusync_queue_report(queue, text, sizeof text) == 0 && text[0] == 0);
    EXPECT(gpusync_queue_report(queue, NULL, sizeof text) == 0);
    text[0] = 'x';
    EXPECT(gpusync_queue_report(queue, text, 0) == 0 && text[0] == 'x');
    (void)gpusync_now_ns();
    EXPECT(gpusync_version() == GPUSYNC_VERSION);
    EXPECT(gpusync_struct_sizes(sizes, 1) > 1 && sizes[0] == sizeof(gpusync_error) && sizes[1] == 0);

    EXPECT(strcmp(gpusync_result_string(GPUSYNC_OK), gpusync_result_string(GPUSYNC_TIMEOUT)) != 0);
    EXPECT(gpusync_result_string((gpusync_result)-19) != NULL);
    EXPECT(gpusync_failure_string(GPUSYNC_FAILURE_OTHER) != NULL);
    EXPECT(gpusync_failure_is_transient(GPUSYNC_FAILURE_OUT_OF_MEMORY));
    EXPECT(!gpusync_failure_is_transient(GPUSYNC_FAILURE_OTHER));

    if (!failures) puts("every call is unsupported");
    return failures != 0;
}
