// cc -std=c99 stream.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o stream
//
// A stream as CUDA and MLX have it: a queue on which a failure sticks. The kernels of a step and the signal that tells
// of them are in command buffers of their own. Without sticky_failure a kernel that fails is hidden by the later signal,
// and the reader of the value takes the result for good. With it the later work takes the failure, the reader is told,
// and the queue refuses new work. When the program has dealt with the failure, gpusync_queue_clear_failure lets the
// stream go on.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */

enum { STEPS = 8, FAILING_STEP = 3 };

typedef struct stream {
    gpusync_queue *queue;
    gpusync_timeline *done; /* value n: step n is done */
    bool failed;
} stream;

static gpusync_device *device;

static void open_stream(stream *s, bool sticky)
{
    gpusync_queue_desc desc = {.label = sticky ? "sticky" : "plain", .sticky_failure = sticky};
    check(!gpusync_queue_create(device, &desc, &s->queue), "gpusync_queue_create");
    check(!gpusync_timeline_create(device, NULL, &s->done), "gpusync_timeline_create");
    s->failed = false;
}

static void close_stream(stream *s)
{
    check(!gpusync_queue_destroy(s->queue), "gpusync_queue_destroy");
    check(!gpusync_timeline_destroy(s->done), "gpusync_timeline_destroy");
}

/* NULL: a failure sticks, and the queue gives no command buffer. */
static void *buffer_of(stream *s)
{
    void *buffer;
    gpusync_result result = gpusync_command_buffer(s->queue, NULL, &buffer);
    check(!result || result == GPUSYNC_ERROR_EXECUTION, "gpusync_command_buffer");
    return buffer;
}

/* A refused commit has changed nothing. The buffer is given back; what it was to signal fails by that. */
static gpusync_result commit(stream *s, void *buffer)
{
    gpusync_result result = gpusync_commit(s->queue, buffer, NULL);
    if (result != GPUSYNC_OK) gpusync_command_buffer_discard(s->queue, buffer);
    return result;
}

/* One step: two kernels, then the signal. Returns why the stream takes no more. */
static gpusync_result launch(stream *s, unsigned step)
{
    gpusync_result result = GPUSYNC_OK;
    for (int kernel = 0; kernel < 2 && result == GPUSYNC_OK; kernel++) {
        void *buffer = buffer_of(s);
        if (!buffer) return GPUSYNC_ERROR_EXECUTION;
        softmetal_set_duration(buffer, MS);
        if (step == FAILING_STEP && kernel == 0) softmetal_fail(buffer, NULL, 8, "out of memory on purpose");
        /* ... encode the kernel ... */
        result = commit(s, buffer);
    }
    if (result != GPUSYNC_OK) return result;
    void *last = buffer_of(s);
    if (!last) return GPUSYNC_ERROR_EXECUTION;
    check(!gpusync_encode_signal(s->queue, last, gpusync_at_value(s->done, step)), "gpusync_encode_signal");
    return commit(s, last);
}

/* Launches all steps, then reads the results, as a program does that keeps the GPU busy. Returns how many it took for
   good. */
static unsigned run(stream *s)
{
    unsigned launched = 0, good = 0;
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    while (launched < STEPS && launch(s, launched + 1) == GPUSYNC_OK) launched++;
    for (unsigned step = 1; step <= launched; step++) {
        gpusync_result result = gpusync_timeline_wait(s->done, step, 10000 * MS, &options);
        if (result == GPUSYNC_OK) {
            good++;
            continue;
        }
        printf("  step %u: %s: %s\n", step, name_of(result), error.message);
        s->failed = true;
        break;
    }
    check(gpusync_queue_wait(s->queue, 10000 * MS) != GPUSYNC_TIMEOUT, "the stream comes to rest");
    return good;
}

int main(void)
{
    stream plain, sticky;
    uint64_t cursor = 0;
    gpusync_error error;
    check_device(gpusync_device_create(NULL, &device));

    open_stream(&plain, false);
    printf("plain: %u steps of %d taken for good\n", run(&plain), STEPS);
    if (!gpusync_next_error(plain.queue, &cursor, &error))
        printf("  but a kernel of ticket %" PRIu64 " failed: %s\n", error.ticket, error.message);
    close_stream(&plain);

    open_stream(&sticky, true);
    void *early = buffer_of(&sticky); /* made before the failure, and committed after it */
    unsigned good = run(&sticky);
    printf("sticky: %u steps of %d taken for good\n", good, STEPS);
    check(real_device || good < FAILING_STEP, "no step from the failure on is taken for good");

    if (sticky.failed) { /* the timeline stays failed: the stream gets a new one, and goes on */
        check(!buffer_of(&sticky), "no new command buffer");
        check(gpusync_commit(sticky.queue, early, NULL) == GPUSYNC_ERROR_EXECUTION, "and none is committed");
        check(gpusync_queue_wait(sticky.queue, 0) == GPUSYNC_ERROR_EXECUTION, "every wait for everything tells");
        check(!gpusync_queue_clear_failure(sticky.queue), "gpusync_queue_clear_failure");
        check(!gpusync_timeline_destroy(sticky.done), "gpusync_timeline_destroy");
        check(!gpusync_timeline_create(device, NULL, &sticky.done), "gpusync_timeline_create");
    }
    check(!gpusync_commit(sticky.queue, early, NULL), "the same buffer is taken after the clear");
    check(!gpusync_queue_wait(sticky.queue, 10000 * MS), "the stream goes on");
    close_stream(&sticky);

    check(!gpusync_device_destroy(device), "gpusync_device_destroy");
    printf("stream: all %d checks passed\n", checks);
    return 0;
}
