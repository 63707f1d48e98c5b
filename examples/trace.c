// cc -std=c99 trace.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o trace
//
// ./trace FILE writes what three queues did, and when, as trace events: open the file in ui.perfetto.dev or in
// chrome://tracing. Without a FILE it goes to stdout.
//
//     threads  what the host did: calls (instants) and waits (slices)
//     held     work that stayed on the host, from its commit on until Metal got it
//     GPU      a track for each queue: when the GPU ran what

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { UPLOAD, COMPUTE, READBACK, STAGES };
enum { FRAMES = 8, DEPTH = 2, SIZE = 1 << 20, RECORDS = 4096 };
static const uint64_t limit = 10000000000; /* nanoseconds */

static const char *const names[STAGES] = {"upload", "compute", "readback"};
static gpusync_device *device;
static gpusync_queue *queues[STAGES];
static gpusync_timeline *done[STAGES];  /* value n: the stage is done with frame n */
static void *memory[STAGES + 1][DEPTH]; /* stage n copies from n to n + 1; frame n uses those at n % DEPTH */

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define CHECK(call) check(#call, call)

/* -- what is traced: noted where it happens, on any thread; written when all is over ------------------------------ */

typedef struct record {
    gpusync_trace_event event;
    char label[24]; /* what the event points to is gone later */
    unsigned thread;
} record;

static record records[RECORDS];
static unsigned record_count, thread_count;
static __thread unsigned this_thread; /* from 1 on */

static void note(void *user, const gpusync_trace_event *event)
{
    unsigned n = __atomic_fetch_add(&record_count, 1, __ATOMIC_RELAXED);
    (void)user;
    if (n >= RECORDS) return;
    if (!this_thread) this_thread = __atomic_add_fetch(&thread_count, 1, __ATOMIC_RELAXED);
    records[n].event = *event;
    records[n].thread = this_thread;
    snprintf(records[n].label, sizeof records[n].label, "%s", *event->label ? event->label : "several");
}

/* -- as JSON: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ----------------------------- */

enum { THREADS = 1, GPU, HELD }; /* "processes", which have "threads": of the latter two the queues */

static const struct {
    const char *phase, *what;
    int process;
} kinds[] = {
    [GPUSYNC_TRACE_COMMIT] = {"i", "commit ", THREADS},       [GPUSYNC_TRACE_SUBMIT] = {"i", "submit ", THREADS},
    [GPUSYNC_TRACE_HOLD] = {"b", "held ", HELD},              [GPUSYNC_TRACE_ISSUE] = {"e", "held ", HELD},
    [GPUSYNC_TRACE_COMPLETED] = {"X", "", GPU},               [GPUSYNC_TRACE_SIGNAL] = {"i", "signal ", THREADS},
    [GPUSYNC_TRACE_WAIT_BEGIN] = {"B", "wait for ", THREADS}, [GPUSYNC_TRACE_WAIT_END] = {"E", "wait for ", THREADS},
    [GPUSYNC_TRACE_CALLBACK] = {"i", "callback ", THREADS},
};

static unsigned queue_number(const gpusync_queue *queue)
{
    unsigned n = 0;
    while (n < STAGES && queues[n] != queue) n++;
    return n;
}

/* The names are the program's: nothing to escape. */
static void write_record(FILE *out, const record *r, uint64_t zero_ns)
{
    const gpusync_trace_event *e = &r->event;
    int process = kinds[e->kind].process;
    unsigned queue = queue_number(e->queue);
    bool ran = e->gpu_end_s > 0; /* else Metal did not tell when */
    double zero_us = (double)zero_ns / 1e3, us = (double)e->time_ns / 1e3 - zero_us;
    if (e->kind == GPUSYNC_TRACE_COMPLETED && !ran) return;
    fprintf(out, ",\n{\"ph\":\"%s\",\"cat\":\"gpusync\",\"pid\":%d,\"tid\":%u,\"name\":\"%s%s %" PRIu64 "\"",
            kinds[e->kind].phase, process, process == THREADS ? r->thread : queue, kinds[e->kind].what, r->label,
            e->timeline ? e->value : (uint64_t)e->ticket);
    fprintf(out, ",\"ts\":%.3f", ran ? e->gpu_start_s * 1e6 - zero_us : us);
    if (ran) fprintf(out, ",\"dur\":%.3f", (e->gpu_end_s - e->gpu_start_s) * 1e6);
    if (process == HELD) fprintf(out, ",\"id\":\"%u.%" PRIu64 "\"", queue, (uint64_t)e->ticket);
    fprintf(out, ",\"s\":\"t\",\"args\":{\"result\":\"%s\"}}", gpusync_result_string(e->result));
}

static void name_track(FILE *out, int process, unsigned track, const char *what, const char *name)
{
    fprintf(out, "%s\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"name\":\"%s\",\"args\":{\"name\":\"%s\"}}",
            process == THREADS ? "" : ",", process, track, what, name);
}

static void write_trace(FILE *out, uint64_t zero_ns)
{
    fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    name_track(out, THREADS, 0, "process_name", "threads");
    name_track(out, GPU, 0, "process_name", "GPU");
    name_track(out, HELD, 0, "process_name", "held");
    for (unsigned i = 0; i < STAGES; i++) name_track(out, GPU, i, "thread_name", names[i]);
    for (unsigned i = 0; i < record_count; i++) write_record(out, &records[i], zero_ns);
    fprintf(out, "\n]}\n");
}

/* -- what there is to see: three queues in a row ------------------------------------------------------------------ */

static void commit(int stage, unsigned frame)
{
    gpusync_command_buffer_desc desc = {.label = names[stage]};
    gpusync_queue *queue = queues[stage];
    void *buffer, *blit;
    CHECK(gpusync_command_buffer_create(queue, &desc, limit, &buffer));
    if (stage != UPLOAD) CHECK(gpusync_encode_wait(queue, buffer, gpusync_at_value(done[stage - 1], frame)));
    blit = metal_blit_begin(buffer);
    if (!blit) check("blitCommandEncoder", GPUSYNC_ERROR_METAL_NIL);
    if (stage == UPLOAD) metal_fill(blit, memory[UPLOAD][frame % DEPTH], 0, SIZE, (unsigned char)frame);
    metal_copy(blit, memory[stage][frame % DEPTH], 0, memory[stage + 1][frame % DEPTH], 0, SIZE);
    metal_end(blit);
    CHECK(gpusync_encode_signal(queue, buffer, gpusync_at_value(done[stage], frame)));
    CHECK(gpusync_commit(queue, buffer, NULL));
}

int main(int argc, char **argv)
{
    FILE *out = argc > 1 ? fopen(argv[1], "w") : stdout;
    gpusync_wait_options handlers = {.handlers = true}; /* a wait may end before a handler tells the times */
    unsigned counts[sizeof kinds / sizeof *kinds] = {0}, timed = 0, wrong = 0;
    uint64_t zero_ns = gpusync_now_ns(); /* where the trace begins */
    if (!out) return perror(argv[1]), 1;
    CHECK(gpusync_device_create(NULL, &device));
    CHECK(gpusync_device_set_trace(device, note, NULL)); /* before there is any work */
    for (int i = 0; i < STAGES; i++) {
        gpusync_queue_desc queue_desc = {.label = names[i]};
        gpusync_timeline_desc desc = {.label = names[i]};
        CHECK(gpusync_queue_create(device, &queue_desc, &queues[i]));
        CHECK(gpusync_timeline_create(device, &desc, &done[i]));
    }
    for (int i = 0; i < (STAGES + 1) * DEPTH; i++) {
        memory[i / DEPTH][i % DEPTH] = metal_buffer_new(gpusync_device_metal(device), SIZE);
        if (!memory[i / DEPTH][i % DEPTH]) check("newBufferWithLength:options:", GPUSYNC_ERROR_METAL_NIL);
    }

    for (unsigned frame = 1; frame <= FRAMES; frame++) {
        if (frame > DEPTH) CHECK(gpusync_timeline_wait(done[READBACK], frame - DEPTH, limit, NULL));
        /* Each fourth frame is committed the wrong way round: held until there is an upload to wait for. */
        for (int i = 0; i < STAGES; i++) commit(frame % 4 ? i : STAGES - 1 - i, frame);
    }
    CHECK(gpusync_device_wait(device, limit, &handlers));
    CHECK(gpusync_device_set_trace(device, NULL, NULL)); /* a handler may have been about to tell of an end */
    if (record_count > RECORDS) return 1;
    for (record *r = records; r < records + record_count; r++) {
        gpusync_times times;
        counts[r->event.kind]++;
        if (r->event.kind != GPUSYNC_TRACE_COMPLETED) continue;
        /* The event has no times where a wait found the end before the handler ran. Now all handlers have. */
        CHECK(gpusync_poll(queues[queue_number(r->event.queue)], r->event.ticket, &times));
        r->event.gpu_start_s = times.gpu_start_s;
        r->event.gpu_end_s = times.gpu_end_s;
        timed += times.gpu_end_s > 0;
    }
    for (unsigned i = 0; i < DEPTH; i++)
        wrong += ((unsigned char *)metal_contents(memory[STAGES][(FRAMES - i) % DEPTH]))[SIZE - 1] != FRAMES - i;

    for (int i = 0; i < STAGES; i++) CHECK(gpusync_queue_destroy(queues[i]));
    for (int i = 0; i < STAGES; i++) CHECK(gpusync_timeline_destroy(done[i]));
    CHECK(gpusync_device_destroy(device));
    for (int i = 0; i < (STAGES + 1) * DEPTH; i++) metal_release(memory[i / DEPTH][i % DEPTH]);
    write_trace(out, zero_ns);
    if (fclose(out)) return perror("fclose"), 1;
    fprintf(stderr, "trace: %u events, of %u tickets; %u were held, of %u the GPU's times are known\n", record_count,
            counts[GPUSYNC_TRACE_COMMIT], counts[GPUSYNC_TRACE_HOLD], timed);
    return wrong || counts[GPUSYNC_TRACE_COMPLETED] != FRAMES * STAGES ||
           counts[GPUSYNC_TRACE_HOLD] != counts[GPUSYNC_TRACE_ISSUE] ||
           counts[GPUSYNC_TRACE_WAIT_BEGIN] != counts[GPUSYNC_TRACE_WAIT_END];
}
