// cc -std=c99 trace.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o trace
//
// ./trace FILE writes what two queues did, and when: open the file in ui.perfetto.dev or chrome://tracing. The host has
// its waits and signals. Each queue has a track of what was committed until Metal got it, so of what was held, and one
// of its GPU times. Use such a file to see why a frame is late.

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
static struct {
    gpusync_trace_event event;
    int queue;
} records[MOST];
static unsigned record_count;

static void note(void *user, const gpusync_trace_event *event) /* on any thread. Calls nothing of gpusync */
{
    unsigned n;
    (void)user;
    if (event->kind > GPUSYNC_TRACE_WAIT || (n = __atomic_fetch_add(&record_count, 1, __ATOMIC_RELAXED)) >= MOST)
        return;
    records[n].event = *event; /* without the label, which is valid during this call alone */
    records[n].queue = event->queue == queues[DRAW] ? DRAW : UPLOAD;
}

static const gpusync_trace trace = {note, NULL}; /* lives as long as the device */

static const struct {
    const char *phase, *what;
    int process;
} kinds[] = {
    [GPUSYNC_TRACE_COMMIT] = {"b", "", HELD},        [GPUSYNC_TRACE_SENT] = {"e", "", HELD},
    [GPUSYNC_TRACE_ENDED] = {"X", "", GPU},          [GPUSYNC_TRACE_SIGNAL] = {"i", "signal ", HOST},
    [GPUSYNC_TRACE_WAIT] = {"X", "wait for ", HOST},
};

/* The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU */
static void write_event(FILE *out, const gpusync_trace_event *e, int queue, double begin_us, double end_us)
{
    int process = kinds[e->kind].process;
    const char *name = e->queue ? labels[queue] : e->timeline ? "uploaded" : "everything";
    fprintf(out, ",\n{\"ph\":\"%s\",\"cat\":\"gpusync\",\"pid\":%d,\"tid\":%d,\"id\":\"%d.%" PRId64 "\",",
            kinds[e->kind].phase, process, process == HOST ? 1 : queue + 1, queue, e->ticket);
    fprintf(out, "\"name\":\"%s%s %" PRIu64 "\",", kinds[e->kind].what, name,
            e->timeline ? e->value : (uint64_t)e->ticket);
    fprintf(out, "\"ts\":%.3f,\"dur\":%.3f}", begin_us, end_us - begin_us);
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
    gpusync_times times[QUEUES][FRAMES + 1];            /* of each ticket */
    unsigned counts[sizeof kinds / sizeof *kinds] = {0}, timed = 0;
    double zero_us = (double)gpusync_now_ns() / 1e3;
    if (!out)
        return perror(argv[1]), 1;
    MUST(gpusync_device_create(NULL, &device));
    MUST(gpusync_device_set_trace(device, &trace));
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
    for (int i = 0; i < QUEUES; i++) { /* an event has no times where a wait saw the end before the handler ran */
        for (gpusync_ticket ticket = 1; ticket <= FRAMES; ticket++)
            MUST(gpusync_poll(queues[i], ticket, &times[i][ticket]));
        MUST(gpusync_queue_destroy(queues[i]));
    }
    MUST(gpusync_timeline_destroy(uploaded));
    MUST(gpusync_device_destroy(device)); /* behind it no event comes */
    metal_release(memory);

    for (int i = HOST; i <= GPU; i++)
        fprintf(out, "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}",
                i == HOST ? "[" : ",", i, processes[i]);
    for (unsigned i = 0; i < record_count && i < MOST; i++) {
        const gpusync_trace_event *e = &records[i].event;
        double end_us = (double)e->time_ns / 1e3, begin_us = e->begin_ns ? (double)e->begin_ns / 1e3 : end_us;
        if (e->kind == GPUSYNC_TRACE_ENDED) {
            begin_us = times[records[i].queue][e->ticket].gpu_start_s * 1e6;
            end_us = times[records[i].queue][e->ticket].gpu_end_s * 1e6;
            timed += end_us > 0;
        }
        if (end_us > 0)
            write_event(out, e, records[i].queue, begin_us - zero_us, end_us - zero_us);
        counts[e->kind]++;
    }
    fputs("\n]\n", out);
    if (fclose(out))
        return perror("fclose"), 1;
    fprintf(stderr, "trace: %u events, of %u tickets; Metal got %u, of %u the GPU's times are known\n", record_count,
            counts[GPUSYNC_TRACE_COMMIT], counts[GPUSYNC_TRACE_SENT], timed);
    return record_count > MOST || counts[GPUSYNC_TRACE_ENDED] != FRAMES * QUEUES;
}
