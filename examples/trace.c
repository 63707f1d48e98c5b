// cc -std=c99 trace.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o trace
//
// ./trace FILE writes what three queues did, and when, as trace events: open the file in ui.perfetto.dev or in
// chrome://tracing. Without a FILE it goes to stdout.
//
//     threads  what the host did: calls (instants) and waits (slices)
//     held     submissions that stayed on the host, from their commit on until the device got them
//     GPU      a track for each queue: when the GPU ran what

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"

enum { UPLOAD, COMPUTE, READBACK, STAGES };
enum { FRAMES = 8, DEPTH = 2, SIZE = 1 << 16, RECORDS = 4096 };

static const char *const names[STAGES] = {"upload", "compute", "readback"};
static const uint64_t durations[STAGES] = {2 * MS, 4 * MS, MS};
static gpusync_device *device;
static gpusync_queue *queues[STAGES];
static gpusync_timeline *done[STAGES]; /* value n: the stage is done with frame n */
static void *memory[STAGES + 1][DEPTH]; /* stage n copies from n to n + 1; frame n uses those at n % DEPTH */
static unsigned frames_told;

/* -- what is traced: noted where it happens, on any thread; written when all is over ---------------------------- */

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
    snprintf(records[n].label, sizeof records[n].label, "%s", event->label);
}

/* -- as JSON: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU --------------------------- */

enum { HOST = 1, GPU, HELD }; /* "processes", which have "threads": of the latter two the queues */

static FILE *out;
static unsigned written, gpu_slices;
static uint64_t zero_ns; /* where the trace begins */

static void begin_event(const char *phase, int process, unsigned track, const char *name)
{
    fprintf(out, "%s\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%u,\"name\":\"%s\"", written++ ? "," : "", phase, process,
            track, name); /* the names are ours: nothing to escape */
}

static void name_track(int process, const char *process_name, unsigned track, const char *name)
{
    begin_event("M", process, track, "process_name");
    fprintf(out, ",\"args\":{\"name\":\"%s\"}}", process_name);
    begin_event("M", process, track, "thread_name");
    fprintf(out, ",\"args\":{\"name\":\"%s\"}}", name);
}

static double us_of(uint64_t ns) { return (double)(int64_t)(ns - zero_ns) / 1e3; }

static unsigned queue_number(const gpusync_queue *queue)
{
    unsigned n = 0;
    while (n < STAGES && queues[n] != queue) n++;
    return n;
}

/* "upload 7": ticket or value 7 of what has this label. */
static const char *name_of_record(const record *r)
{
    static char name[40];
    snprintf(name, sizeof name, "%s %" PRIu64, r->label, r->event.timeline ? r->event.value : r->event.ticket);
    return name;
}

/* At one time: a call, one end of a wait. */
static void write_instant(const record *r, const char *phase, int process, unsigned track, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s %s", what, name_of_record(r));
    begin_event(phase, process, track, name);
    fprintf(out, ",\"ts\":%.3f,\"s\":\"t\",\"args\":{\"result\":\"%s\"}}", us_of(r->event.time_ns),
            name_of(r->event.result));
}

static void write_call(const record *r, const char *what) { write_instant(r, "i", HOST, r->thread, what); }

static void write_slice(const record *r, int process, double from_us, double to_us)
{
    begin_event("X", process, queue_number(r->event.queue), name_of_record(r));
    fprintf(out, ",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"result\":\"%s\"}}", from_us, to_us - from_us,
            name_of(r->event.result));
}

/* From here to where it was committed; nothing if it never was. */
static void write_hold(const record *r)
{
    for (const record *end = records; end < records + record_count; end++)
        if (end->event.kind == GPUSYNC_TRACE_ISSUE && end->event.queue == r->event.queue &&
            end->event.ticket == r->event.ticket)
            write_slice(r, HELD, us_of(r->event.time_ns), us_of(end->event.time_ns));
}

static void write_record(const record *r)
{
    const gpusync_trace_event *e = &r->event;
    double zero_us = (double)zero_ns / 1e3;
    switch (e->kind) {
    case GPUSYNC_TRACE_COMMIT: write_call(r, "commit"); break;
    case GPUSYNC_TRACE_SUBMIT: write_call(r, "submit"); break;
    case GPUSYNC_TRACE_HOLD: write_hold(r); break;
    case GPUSYNC_TRACE_ISSUE: write_call(r, "issue"); break;
    case GPUSYNC_TRACE_COMPLETED:
        if (e->gpu_end_s <= 0) break; /* Metal did not tell */
        write_slice(r, GPU, e->gpu_start_s * 1e6 - zero_us, e->gpu_end_s * 1e6 - zero_us);
        gpu_slices++;
        break;
    case GPUSYNC_TRACE_WAIT_BEGIN: write_instant(r, "B", HOST, r->thread, "wait for"); break;
    case GPUSYNC_TRACE_WAIT_END: write_instant(r, "E", HOST, r->thread, "wait for"); break;
    case GPUSYNC_TRACE_SIGNAL: write_call(r, "signal"); break;
    case GPUSYNC_TRACE_CALLBACK: write_call(r, "callback"); break;
    }
}

static void write_trace(void)
{
    fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (unsigned i = 1; i <= thread_count; i++) {
        char name[32];
        snprintf(name, sizeof name, i == 1 ? "main" : "thread %u", i);
        name_track(HOST, "threads", i, name);
    }
    for (unsigned i = 0; i < STAGES; i++) name_track(GPU, "GPU", i, names[i]), name_track(HELD, "held", i, names[i]);
    for (unsigned i = 0; i < record_count; i++) write_record(&records[i]);
    fprintf(out, "\n]}\n");
}

/* -- what there is to see: three queues in a row, as in overlap.c -------------------------------------------------- */

static void ended(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)error;
    if (result == GPUSYNC_OK) __atomic_fetch_add(&frames_told, 1, __ATOMIC_RELAXED);
}

static void submit(int stage, unsigned frame)
{
    char label[32];
    gpusync_command_buffer_desc desc = {.label = label};
    gpusync_ticket ticket;
    void *command_buffer;
    snprintf(label, sizeof label, "%s %u", names[stage], frame);
    check(!gpusync_command_buffer(queues[stage], &desc, &command_buffer), "gpusync_command_buffer");
    if (stage != UPLOAD)
        check(!gpusync_encode_wait(queues[stage], command_buffer, gpusync_at_value(done[stage - 1], frame)),
              "gpusync_encode_wait");
    softmetal_set_duration(command_buffer, durations[stage]);
    void *blit = metal_blit_begin(command_buffer);
    metal_copy(blit, memory[stage][frame % DEPTH], 0, memory[stage + 1][frame % DEPTH], 0, SIZE);
    metal_end(blit);
    check(!gpusync_encode_signal(queues[stage], command_buffer, gpusync_at_value(done[stage], frame)),
          "gpusync_encode_signal");
    check(!gpusync_commit(queues[stage], command_buffer, &ticket), "gpusync_commit");
    if (stage == READBACK)
        check(!gpusync_on_done(gpusync_at_ticket(queues[stage], ticket), ended, NULL), "gpusync_on_done");
}

static void run(void)
{
    for (unsigned frame = 1; frame <= FRAMES; frame++) {
        void *pool = metal_pool_push(); /* for what Metal autoreleases in a frame */
        if (frame > DEPTH)
            check(!gpusync_timeline_wait(done[READBACK], frame - DEPTH, 10000 * MS, NULL), "gpusync_timeline_wait");
        if (frame % 4 == 0) { /* the wrong way round: held, until there is an upload to wait for */
            submit(READBACK, frame), submit(COMPUTE, frame), submit(UPLOAD, frame);
        } else {
            submit(UPLOAD, frame), submit(COMPUTE, frame), submit(READBACK, frame);
        }
        metal_pool_pop(pool);
    }
    gpusync_wait_options handlers = {.handlers = true}; /* a wait may end before a handler tells of the end */
    check(!gpusync_device_wait(device, 10000 * MS, &handlers), "gpusync_device_wait");
}

int main(int argc, char **argv)
{
    out = argc > 1 ? fopen(argv[1], "w") : stdout;
    check(out != NULL, "the file can be written");
    check_device(gpusync_device_create(NULL, &device));
    check(!gpusync_set_trace(device, note, NULL), "gpusync_set_trace"); /* from here on */
    zero_ns = gpusync_now_ns();
    this_thread = thread_count = 1;
    for (int i = 0; i < STAGES; i++) {
        gpusync_queue_desc queue_desc = {.label = names[i]};
        gpusync_timeline_desc desc = {.label = names[i]};
        check(!gpusync_queue_create(device, &queue_desc, &queues[i]), "gpusync_queue_create");
        check(!gpusync_timeline_create(device, &desc, &done[i]), "gpusync_timeline_create");
    }
    for (int i = 0; i < (STAGES + 1) * DEPTH; i++) {
        memory[i / DEPTH][i % DEPTH] = metal_buffer_new(gpusync_device_metal(device), SIZE);
        check(memory[i / DEPTH][i % DEPTH] != NULL, "memory");
    }
    run();
    for (int i = 0; i < STAGES; i++) check(!gpusync_queue_destroy(queues[i]), "gpusync_queue_destroy");
    for (int i = 0; i < STAGES; i++) check(!gpusync_timeline_destroy(done[i]), "gpusync_timeline_destroy");
    check(!gpusync_device_destroy(device), "gpusync_device_destroy"); /* nothing is told after this */
    for (int i = 0; i < (STAGES + 1) * DEPTH; i++) metal_release(memory[i / DEPTH][i % DEPTH]);
    check(frames_told == FRAMES, "every frame was called back");
    check(record_count <= RECORDS, "room for every event");
    write_trace();
    check(!(out == stdout ? fflush(out) : fclose(out)), "the file is written");
    fprintf(stderr, "trace: %u events of %u frames on %d queues, %u with times of the GPU; all %d checks passed\n",
            record_count, frames_told, STAGES, gpu_slices, checks);
    return 0;
}
