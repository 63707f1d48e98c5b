/* A program for gpusync 0.2, which examples/from-0.2.sh makes one for 0.3. It runs with softmetal. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include <stdio.h>

/* A library of another language has this symbol: gpusync_device_create_0_2. */
extern gpusync_result open_device(const gpusync_device_desc *desc, gpusync_device **out)
    __asm__("gpusync_device_create_0_2");

static gpusync_log_level threshold = GPUSYNC_LOG_ERROR; /* not GPUSYNC_LOG_INFO */
static unsigned lines, errors;

static void count_lines(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    if (level > GPUSYNC_LOG_INFO) lines++;
    if (level != GPUSYNC_LOG_INFO && GPUSYNC_LOG_INFO <= threshold && GPUSYNC_LOG_INFO < level) lines++;
    if (level >= threshold && level >= GPUSYNC_LOG_INFO) errors++;
    fprintf(stderr, "%s\n", text);
}

static gpusync_result wait_with(gpusync_queue *queue, const gpusync_wait_options *options)
{
    return gpusync_wait_ex(queue, GPUSYNC_EVERYTHING, 1000000000, options);
}

int main(void)
{
    static const gpusync_spin none = {0, 0, 0}, brief = {/* pauses, */ 32, 64, (uint64_t)(1e5 + 0.5)}, *chosen = &brief;
    gpusync_spin budgets[] = {{1, 2, 3}, [2] = {4, 5, 6}};
    gpusync_device_desc device_desc = {NULL, NULL, NULL, &none, GPUSYNC_WAIT_DEFAULT, count_lines, NULL,
                                       GPUSYNC_CALLBACKS_QUEUED, NULL, // gpusync makes a queue
                                       NULL, NULL};
    struct gpusync_queue_desc desc = {NULL, "a, {b} and \"c\"", 16, 0, 8, &none, GPUSYNC_WAIT_HANDLER, false};
    gpusync_queue_desc zero = {0}, named = {.label = "named"};
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    gpusync_error error = {0};
    gpusync_ticket ticket;
    void *buffer;

    if (open_device(&device_desc, &device)) return 1;
    if (gpusync_queue_create(device, &desc, &queue)) return 2;
    if (gpusync_command_buffer(queue, NULL, &buffer) || gpusync_commit(queue, buffer, &ticket)) return 3;
    if (wait_with(queue, &(gpusync_wait_options){chosen, GPUSYNC_WAIT_DEFAULT, &error, true})) return 4;
    if (wait_with(queue, &(gpusync_wait_options){&(gpusync_spin){1, 2, 3}, GPUSYNC_WAIT_HANDLER, NULL, true})) return 5;
    if (gpusync_timeline_create(device, NULL, &timeline)) return 6;
    if (gpusync_timeline_wait(timeline, 1, 1000000, NULL) != GPUSYNC_TIMEOUT) return 7; /* 0.3 warns of it */
    if (gpusync_timeline_destroy(timeline) || gpusync_queue_destroy(queue) || gpusync_device_destroy(device)) return 8;
    if (brief.yield_iterations != 64 || budgets[2].max_spin_ns != 6 || zero.label || !named.label) return 9;
    printf("%s: done, %u lines, %u errors\n", desc.label, lines, errors);
    return 0;
}
