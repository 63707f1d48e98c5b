// cc -std=c99 trace.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o trace
//
// ./trace FILE writes what two queues did, and when: open the file in ui.perfetto.dev or chrome://tracing. The host's
// track has calls and waits. A track has what was held on the host until Metal got it, and each queue has a track of its
// GPU times. Use such a file to see why a frame is late.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <inttypes.h>

enum { UPLOAD, DRAW, QUEUES, FRAMES = 8, SIZE = 1 << 20, MOST = 1024 };
enum { HOST = 1, HELD, GPU };              /* what trace events call processes */
static const uint64_t limit = 10000000000; /* nanoseconds */

static const char *const processes[] = {"", "host", "held", "GPU"};
static const char *const labels[QUEUES] = {"upload", "draw"};
static gpusync_device *device;
static gpusync_queue *queues[QUEUES];
static gpusync_timeline *uploaded; /* value n: the upload of frame n has ended */
static void *memory;               /* an MTLBuffer */
static gpusync_trace_event events[MOST];
static unsigned event_count;

static void note(void *user, const gpusync_trace_event *event) /* on any thread. Calls nothing of gpusync */
{
    unsigned n;
    (void)user;
    if (event->kind <= GPUSYNC_TRACE_CALLBACK && (n = __atomic_fetch_add(&event_count, 1, __ATOMIC_RELAXED)) < MOST)
        events[n] = *event; /* without the label, which is valid during this call alone */
}

static const struct {
    const char *phase, *what;
    int process;
} kinds[] = {
    [GPUSYNC_TRACE_COMMIT] = {"i", "commit ", HOST},     [GPUSYNC_TRACE_SUBMIT] = {"i", "submit ", HOST},
    [GPUSYNC_TRACE_HOLD] = {"b", "held ", HELD},         [GPUSYNC_TRACE_ISSUE] = {"e", "held ", HELD},
    [GPUSYNC_TRACE_COMPLETED] = {"X", "", GPU},          [GPUSYNC_TRACE_WAIT_BEGIN] = {"B", "wait for ", HOST},
    [GPUSYNC_TRACE_WAIT_END] = {"E", "wait for ", HOST}, [GPUSYNC_TRACE_SIGNAL] = {"i", "signal ", HOST},
    [GPUSYNC_TRACE_CALLBACK] = {"i", "callback ", HOST},
};

/* The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU */
static void write_event(FILE *out, const gpusync_trace_event *e, double zero_us)
{
    int process = kinds[e->kind].process, queue = e->queue == queues[DRAW] ? DRAW : UPLOAD;
    double us = process == GPU ? e->gpu_start_s * 1e6 : (double)e->time_ns / 1e3;
    const char *name = e->queue ? labels[queue] : "uploaded";
    fprintf(out, ",\n{\"ph\":\"%s\",\"cat\":\"gpusync\",\"pid\":%d,\"tid\":%d,\"id\":\"%d.%" PRId64 "\",",
            kinds[e->kind].phase, process, process == HOST ? 1 : queue + 1, queue, e->ticket);
    fprintf(out, "\"name\":\"%s%s %" PRIu64 "\",", kinds[e->kind].what, name,
            e->timeline ? e->value : (uint64_t)e->ticket);
    fprintf(out, "\"ts\":%.3f,\"dur\":%.3f}", us - zero_us, (e->gpu_end_s - e->gpu_start_s) * 1e6);
}

static void commit(int queue, unsigned frame)
{
    gpusync_point point = gpusync_at_value(uploaded, frame);
    void *buffer;
    MUST(gpusync_command_buffer_create(queues[queue], NULL, limit, &buffer));
    if (queue == DRAW)
        MUST(gpusync_encode_wait(queues[queue], buffer, point));
    metal_must_fill(buffer, memory, (size_t)queue * SIZE, SIZE, (unsigned char)frame);
    if (queue == UPLOAD)
        MUST(gpusync_encode_signal(queues[queue], buffer, point));
    MUST(gpusync_commit(queues[queue], buffer, NULL));
}

int main(int argc, char **argv)
{
    FILE *out = argc > 1 ? fopen(argv[1], "w") : stdout;
    gpusync_wait_options handlers = {.handlers = true}; /* handlers tell the GPU's times */
    unsigned counts[sizeof kinds / sizeof *kinds] = {0}, timed = 0;
    double zero_us = (double)gpusync_now_ns() / 1e3;
    if (!out)
        return perror(argv[1]), 1;
    MUST(gpusync_device_create(NULL, &device));
    MUST(gpusync_device_set_trace(device, note, NULL)); /* before there is any work */
    MUST(gpusync_timeline_create(device, NULL, &uploaded));
    memory = MUST_GET(metal_buffer_new(gpusync_device_metal(device), QUEUES * SIZE));
    for (int i = 0; i < QUEUES; i++)
        MUST(gpusync_queue_create(device, NULL, &queues[i]));
    for (unsigned frame = 1; frame <= FRAMES; frame++) { /* the draw of each fourth frame is early, and so held */
        commit(frame % 4 ? UPLOAD : DRAW, frame);
        commit(frame % 4 ? DRAW : UPLOAD, frame);
        MUST(gpusync_wait(queues[DRAW], (gpusync_ticket)frame - 2, limit, NULL));
    }
    MUST(gpusync_device_wait(device, limit, &handlers));
    MUST(gpusync_device_set_trace(device, NULL, NULL)); /* waits for a handler that is about to tell of an end */
    for (int i = HOST; i <= GPU; i++)
        fprintf(out, "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}",
                i == HOST ? "[" : ",", i, processes[i]);
    for (gpusync_trace_event *e = events; e < events + event_count && e < events + MOST; e++) {
        gpusync_times times = {0, 0};
        counts[e->kind]++;
        if (e->kind == GPUSYNC_TRACE_COMPLETED) { /* has no times where a wait saw the end before the handler ran */
            MUST(gpusync_poll(e->queue == queues[DRAW] ? queues[DRAW] : queues[UPLOAD], e->ticket, &times));
            e->gpu_start_s = times.gpu_start_s;
            e->gpu_end_s = times.gpu_end_s;
            timed += times.gpu_end_s > 0;
        }
        if (e->kind != GPUSYNC_TRACE_COMPLETED || times.gpu_end_s > 0)
            write_event(out, e, zero_us);
    }
    fputs("\n]\n", out);
    MUST(gpusync_queue_destroy(queues[UPLOAD]));
    MUST(gpusync_queue_destroy(queues[DRAW]));
    MUST(gpusync_timeline_destroy(uploaded));
    MUST(gpusync_device_destroy(device));
    metal_release(memory);
    if (fclose(out))
        return perror("fclose"), 1;
    fprintf(stderr, "trace: %u events, of %u tickets; %u were held, of %u the GPU's times are known\n", event_count,
            counts[GPUSYNC_TRACE_COMMIT], counts[GPUSYNC_TRACE_HOLD], timed);
    return event_count > MOST || counts[GPUSYNC_TRACE_COMPLETED] != FRAMES * QUEUES ||
           counts[GPUSYNC_TRACE_HOLD] != counts[GPUSYNC_TRACE_ISSUE];
}
