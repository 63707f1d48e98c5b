/* Places of a program for gpusync 0.2 that examples/from-0.2.sh reports and leaves. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include <stdio.h>
#include <string.h>

#if GPUSYNC_VERSION_MINOR != 2
#error "this program is for gpusync 0.2"
#endif
#define BRIEF ((gpusync_spin){32, 64, 0})

static const gpusync_wait_options careful = {
    NULL,
#ifdef BLOCKING
    GPUSYNC_WAIT_BLOCKING,
#else
    GPUSYNC_WAIT_HANDLER,
#endif
    NULL, true};

static const char *name_of(gpusync_log_level level)
{
    switch (level) {
    case GPUSYNC_LOG_INFO: return "info";
    case GPUSYNC_LOG_WARNING: return "warning";
    case GPUSYNC_LOG_ERROR: return "error";
    }
    return "?";
}

static void show(void *user, gpusync_log_level level, const char *text)
{
    (void)user, (void)level;
    fprintf(stderr, "%s\n", text);
}

static void count(void *user, gpusync_log_level level, const char *text) /* every line is one. from-0.2: ok */
{
    (void)level, (void)text;
    ++*(unsigned *)user;
}

int main(void)
{
    unsigned lines = 0;
    gpusync_device_desc desc = {.log = show};
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_stats stats;
    gpusync_spin spin = BRIEF;
    char report[4096];

    show(NULL, GPUSYNC_LOG_INFO, name_of(GPUSYNC_LOG_ERROR));
    if (spin.yield_iterations == 0) desc.log = count;
    desc.log_user = &lines;
    if (gpusync_device_create(&desc, &device) || gpusync_queue_create(device, NULL, &queue)) return 1;
    if (gpusync_wait_ex(queue, GPUSYNC_EVERYTHING, 0, &careful)) return 1;
    gpusync_report(device, report, sizeof report);
    if (strstr(report, "promised by") || strstr(report, "nobody has promised it")) puts("it waits");
    if (!gpusync_get_stats(queue, &stats) && stats.waits_inline > 100) puts("it need not wait");
    return gpusync_queue_destroy(queue) || gpusync_device_destroy(device);
}
