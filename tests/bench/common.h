/* common.h - what the programs of this folder share: checks, queues, command buffers */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <stdio.h>
#include <unistd.h>

#include <gpusync.h>
#include "metal.h"
#include "softmetal.h"

static void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "bench: failed: %s\n", what);
    _exit(1);
}
#define ok(call) must((call) == GPUSYNC_OK, #call)

/* With room for so many command buffers, and for as many failures on record. */
static gpusync_queue *queue_of(gpusync_device *device, size_t most)
{
    gpusync_queue *made;
    gpusync_queue_desc desc = {.max_command_buffer_count = (uint32_t)most, .error_log_count = (uint32_t)most};
    ok(gpusync_queue_create(device, &desc, &made));
    return made;
}

static void *open_buffer(gpusync_queue *of)
{
    void *buffer;
    ok(gpusync_command_buffer_create(of, NULL, 0, &buffer));
    return buffer;
}

static void finish_queue(gpusync_queue *of)
{
    softmetal_finish_queue(gpusync_queue_metal(of));
}
#endif
