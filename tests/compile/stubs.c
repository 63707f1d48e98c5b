/* Where there is no Metal every call says so. All of the public functions are called here: tests/compile.sh
   compares this file with the header. */
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

static void done(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)result;
    (void)error;
    ++*(int *)user;
}

static void lost(void *user, const gpusync_error *error)
{
    (void)error;
    ++*(int *)user;
}

static void traced(void *user, const gpusync_trace_event *event)
{
    (void)event;
    ++*(int *)user;
}

#define EXPECT(condition) expect((condition) ? 1 : 0, __LINE__, #condition)
#define UNSUPPORTED(call) EXPECT((call) == GPUSYNC_ERROR_UNSUPPORTED)

int main(void)
{
    int thing = 0; /* stands for the objects that no program can have here */
    gpusync_device *device = (gpusync_device *)(void *)&thing;
    gpusync_queue *queue = (gpusync_queue *)(void *)&thing;
    gpusync_timeline *timeline = (gpusync_timeline *)(void *)&thing;
    gpusync_point point = gpusync_at_ticket(queue, 1);
    gpusync_warmup *warmup = (gpusync_warmup *)(void *)&thing;
    gpusync_warmup_desc warmup_desc;
    gpusync_stats stats;
    char text[4] = "old";
    gpusync_submission submission;
    gpusync_ticket ticket = 7;
    gpusync_times times;
    gpusync_error error;
    uint64_t cursor = 0;
    uint64_t value = 1;
    void *buffer = &thing;
    size_t which = 9;
    size_t count = 9;
    int calls = 0;
    gpusync_trace trace = {traced, &calls};

    memset(&submission, 0, sizeof submission);
    memset(&warmup_desc, 0, sizeof warmup_desc);
    memset(&error, 0x5A, sizeof error);
    EXPECT(point.queue == queue && point.ticket == 1 && point.timeline == NULL);
    point = gpusync_at_value(timeline, 3);
    EXPECT(point.timeline == timeline && point.value == 3 && point.queue == NULL);

    UNSUPPORTED(gpusync_device_create(NULL, &device));
    EXPECT(device == NULL);
    device = (gpusync_device *)(void *)&thing;
    UNSUPPORTED(gpusync_device_destroy(device));
    UNSUPPORTED(gpusync_device_destroy_later(device, gone, &calls));
    EXPECT(gpusync_device_metal(device) == NULL);
    EXPECT(!gpusync_device_is_lost(device));
    UNSUPPORTED(gpusync_device_wait(device, GPUSYNC_FOREVER, NULL));
    UNSUPPORTED(gpusync_device_run_callbacks(device, 1, NULL));
    UNSUPPORTED(gpusync_device_run_callbacks(device, 1, &count));
    EXPECT(count == 0);

    UNSUPPORTED(gpusync_queue_create(device, NULL, &queue));
    EXPECT(queue == NULL);
    queue = (gpusync_queue *)(void *)&thing;
    UNSUPPORTED(gpusync_metal4_queue_create(device, NULL, &queue));
    EXPECT(queue == NULL);
    queue = (gpusync_queue *)(void *)&thing;
    UNSUPPORTED(gpusync_queue_destroy(queue));
    UNSUPPORTED(gpusync_queue_abandon(queue));
    UNSUPPORTED(gpusync_queue_destroy_later(queue, gone, &calls));
    UNSUPPORTED(gpusync_queue_cancel_held(queue, GPUSYNC_EVERYTHING));
    UNSUPPORTED(gpusync_queue_failure(queue, &error));
    UNSUPPORTED(gpusync_queue_clear_failure(queue, GPUSYNC_EVERYTHING));
    UNSUPPORTED(gpusync_queue_next_error(queue, &cursor, &error));
    EXPECT(cursor == 0);
    EXPECT(gpusync_queue_metal(queue) == NULL);

    UNSUPPORTED(gpusync_command_buffer_create(queue, NULL, 0, &buffer));
    EXPECT(buffer == NULL);
    buffer = &thing;
    UNSUPPORTED(gpusync_command_buffer_discard(queue, buffer));
    UNSUPPORTED(gpusync_encode_wait(queue, buffer, point));
    UNSUPPORTED(gpusync_encode_signal(queue, buffer, point));
    UNSUPPORTED(gpusync_commit(queue, buffer, &ticket));
    UNSUPPORTED(gpusync_commit_marker(queue, NULL, &ticket));
    submission.on_complete = done;
    submission.user = &calls;
    UNSUPPORTED(gpusync_submit(queue, &submission, &ticket));
    EXPECT(ticket == 7);
    UNSUPPORTED(gpusync_poll(queue, 1, &times));
    UNSUPPORTED(gpusync_wait(queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL));
    UNSUPPORTED(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
    UNSUPPORTED(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which));
    EXPECT(which <= 1); /* set whatever the call returns */
    UNSUPPORTED(gpusync_on_done(point, done, &calls));
    UNSUPPORTED(gpusync_cancel_on_done(point, done, &calls));
    UNSUPPORTED(gpusync_device_on_lost(device, lost, &calls));
    UNSUPPORTED(gpusync_release_after(queue, 1, &thing));
    EXPECT(!gpusync_is_done(queue, 1));
    EXPECT(!gpusync_is_done(queue, GPUSYNC_EVERYTHING));
    EXPECT(gpusync_in_flight(queue) == 0);

    UNSUPPORTED(gpusync_timeline_create(device, NULL, &timeline));
    EXPECT(timeline == NULL);
    timeline = (gpusync_timeline *)(void *)&thing;
    EXPECT(gpusync_timeline_metal(timeline, NULL) == NULL);
    value = 7;
    EXPECT(gpusync_timeline_metal(timeline, &value) == NULL && value == 0);
    UNSUPPORTED(gpusync_timeline_query(timeline, &value, NULL));
    UNSUPPORTED(gpusync_timeline_signal(timeline, 1));
    UNSUPPORTED(gpusync_timeline_signal_from(timeline, 1, &thing, "addPresentedHandler:"));
    UNSUPPORTED(gpusync_timeline_wait(timeline, 1, GPUSYNC_FOREVER, NULL));
    UNSUPPORTED(gpusync_timeline_fail(timeline, NULL));
    UNSUPPORTED(gpusync_timeline_destroy(timeline));
    UNSUPPORTED(gpusync_timeline_destroy_later(timeline, gone, &calls));
    EXPECT(calls == 0); /* after an error no object goes, and no point ends */

    UNSUPPORTED(gpusync_warmup_start(device, &warmup_desc, &warmup));
    EXPECT(warmup == NULL);
    warmup = (gpusync_warmup *)(void *)&thing;
    UNSUPPORTED(gpusync_warmup_wait(warmup, GPUSYNC_FOREVER, NULL, NULL));
    buffer = &thing;
    UNSUPPORTED(gpusync_warmup_get(warmup, 0, GPUSYNC_FOREVER, &buffer, &error));
    EXPECT(buffer == NULL);
    UNSUPPORTED(gpusync_warmup_destroy(warmup));
    UNSUPPORTED(gpusync_device_get_stats(device, queue, &stats));
    UNSUPPORTED(gpusync_device_set_trace(device, &trace));
    EXPECT(gpusync_device_report(device, text, sizeof text) == 0 && text[0] == '\0');

    (void)gpusync_now_ns();
    EXPECT(gpusync_version() == GPUSYNC_VERSION);
    EXPECT(strcmp(gpusync_result_string(GPUSYNC_OK), gpusync_result_string(GPUSYNC_TIMEOUT)) != 0);
    EXPECT(gpusync_result_string((gpusync_result)-30) != NULL);
    EXPECT(gpusync_failure_string(GPUSYNC_FAILURE_OTHER) != NULL);
    EXPECT(gpusync_failure_string((gpusync_failure)15) != NULL);

    if (!failures)
        puts("every call is unsupported");
    return failures != 0;
}
