/* A frame loop for gpusync 0.3: examples/from-0.3.sh changes a part, and tells the rest. by_hand.diff does that. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include <stdio.h>
#include <string.h>

#if GPUSYNC_VERSION_MINOR != 3
#error "this program is for gpusync 0.3"
#endif
#define ASLEEP ((gpusync_wait_options){NULL, GPUSYNC_WAIT_HANDLER, NULL, false, false})
enum { DEPTH = 2, FRAMES = 30, MS = 1000000 };

static gpusync_device *device;
static gpusync_queue *queue;
static gpusync_report_fn report_of_queue = gpusync_queue_report;
static unsigned scheduled, timeouts;

static void show(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    if (level == GPUSYNC_LOG_WARNING && strstr(text, "a wait for ticket")) timeouts++;
    fprintf(stderr, "%s\n", text);
}

static void trace(void *user, const gpusync_trace_event *event)
{
    (void)user;
    if (event->kind == GPUSYNC_TRACE_SCHEDULED) scheduled++;
}

static const char *reason(gpusync_result result)
{
    switch (result) {
    case GPUSYNC_ERROR_ALREADY_COMMITTED: return "committed twice";
    case GPUSYNC_ERROR_NOT_COMMITTED: return "not committed";
    default: return gpusync_result_string(result);
    }
}

/* Other code draws the overlay on the same Metal queue, and commits that itself. */
static gpusync_result watch(void *overlay, bool committed, gpusync_ticket *ticket)
{
    return committed ? gpusync_track_committed(queue, overlay, ticket) : gpusync_track(queue, overlay, ticket);
}

static gpusync_result draw(gpusync_ticket *ticket)
{
    gpusync_command_buffer_desc desc = {.label = "frame", .error_options = 1};
    gpusync_result result = gpusync_throttle(queue, DEPTH, 1000 * (uint64_t)MS);
    void *buffer;

    if (result == GPUSYNC_OK) result = gpusync_command_buffer(queue, &desc, &buffer);
    return result == GPUSYNC_OK ? gpusync_commit(queue, buffer, ticket) : result;
}

int main(int argc, char **argv)
{
    gpusync_device_desc device_desc = {.log = show, .log_report = report_of_queue, .wait_mode = GPUSYNC_WAIT_DEFAULT};
    gpusync_queue_desc desc = {
        .label = "frames",
        .max_in_flight = DEPTH,
        .sticky_failure = true,
#ifdef ASLEEP
        .wait_mode = GPUSYNC_WAIT_HANDLER,
#endif
    };
    gpusync_timeline_desc overlay_desc = {.label = "overlay"}; /* other code signals it */
    gpusync_timeline *overlay;
    gpusync_wait_mode mode = argc > 1 ? GPUSYNC_WAIT_BLOCKING : GPUSYNC_WAIT_SPIN_THEN_HANDLER;
    gpusync_wait_options options = {0};
    gpusync_ticket ticket = 0;
    gpusync_stats stats;
    gpusync_result result;
    uint64_t late = 0;
    int i;

    if (gpusync_device_create(&device_desc, &device) || gpusync_queue_create(device, &desc, &queue)) return 1;
    if (gpusync_set_trace(device, trace, NULL) || !argv[0]) return 2;
    overlay_desc.fail_writes_event = true;
    if (gpusync_timeline_create(device, &overlay_desc, &overlay) || gpusync_timeline_expect(overlay, 1)) return 7;
    for (i = 0; i < FRAMES; i++)
        if ((result = draw(&ticket)) != GPUSYNC_OK) printf("frame %d: %s\n", i, reason(result));
    if (watch(NULL, true, NULL) != GPUSYNC_ERROR_INVALID_ARGUMENT) return 3;
    options.mode = mode;
    if (gpusync_wait_ex(queue, ticket, GPUSYNC_FOREVER, &options) || gpusync_wait_ex(queue, ticket, 0, &ASLEEP)) return 4;
    if (gpusync_get_stats(queue, &stats) || gpusync_device_wait(device, GPUSYNC_FOREVER)) return 5;
    for (i = 0; i < GPUSYNC_LATENCIES; i++) late += stats.wake_latencies[i];
    printf("%d frames, %d late, %d saved, %d timeouts\n", FRAMES, late > stats.waits_sleep, (int)stats.buffers_saved,
           timeouts);
    if (gpusync_timeline_destroy(overlay)) return 8;
    if (argc > 1) gpusync_queue_destroy_now(queue);
    else if (gpusync_queue_destroy(queue)) return 6;
    return gpusync_device_destroy(device);
}
