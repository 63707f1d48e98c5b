// cc -std=c99 quickstart.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o quickstart
//
// A frame that works, a command buffer that the system kills, and a wait that cannot end: what each call of gpusync
// answers. The software device of Linux kills the command buffer; a Mac's GPU runs it.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 1 << 20, FILLS = 16 };
static const uint64_t limit = 5000000000, short_limit = 100000000; /* nanoseconds */

static gpusync_device *device;
static gpusync_queue *queue, *transfers;
static gpusync_timeline *frames; /* the GPU raises it */
static void *memory;             /* an MTLBuffer that CPU and GPU share */
static unsigned char byte;       /* the newest work writes it */
static int surprises;            /* answers that were not the expected ones */

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(1);
}
#define CHECK(call) check(#call, call)

static const char *name_of(gpusync_result result) /* gpusync_result_string gives a sentence */
{
#define NAME(name, number, text) result == GPUSYNC_##name ? #name :
    return GPUSYNC_RESULTS(NAME) "?";
}

static void tell(const char *call, gpusync_result result, gpusync_result expected, const char *meaning)
{
    if (result != expected) surprises++;
    printf("  %-34s %-17s %s\n", call, name_of(result), result == expected ? meaning : "was not expected");
}

static void *create(gpusync_queue *q, const char *label)
{
    gpusync_command_buffer_desc desc = {.label = label}; /* shows in failures and reports */
    void *buffer;
    CHECK(gpusync_command_buffer_create(q, &desc, limit, &buffer));
    return buffer;
}

static void encode(void *buffer)
{
    void *blit, *pool = metal_pool_push(); /* for what Metal autoreleases */
    blit = metal_blit_begin(buffer);
    if (!blit) check("blitCommandEncoder", GPUSYNC_ERROR_METAL_NIL);
    byte++;
    for (int i = 0; i < FILLS; i++) metal_fill(blit, memory, 0, SIZE, byte); /* takes a while */
    metal_end(blit);
    metal_pool_pop(pool);
}

static gpusync_ticket commit(const char *label, uint64_t value) /* value: what its end signals, or 0 */
{
    gpusync_ticket ticket;
    void *buffer = create(queue, label);
    encode(buffer);
    if (value) CHECK(gpusync_encode_signal(queue, buffer, gpusync_at_value(frames, value)));
    CHECK(gpusync_commit(queue, buffer, &ticket)); /* instead of [buffer commit] */
    return ticket;
}

static void on_done(void *user, gpusync_result result, const gpusync_error *error)
{
    *(gpusync_result *)user = error ? error->result : result;
}

static void frame(void)
{
    gpusync_result told = GPUSYNC_NOT_READY;
    gpusync_times times = {0, 0};
    gpusync_ticket ticket = commit("frame", 1);
    gpusync_point points[2] = {gpusync_at_value(frames, 99), gpusync_at_ticket(queue, ticket)};
    size_t which = 2;
    gpusync_result result;
    puts("A frame that works:");
    CHECK(gpusync_on_done(points[1], on_done, &told));
    tell("gpusync_wait", gpusync_wait(queue, ticket, limit, NULL), GPUSYNC_OK, "the GPU is finished with it");
    tell("gpusync_is_done", gpusync_is_done(queue, ticket) ? GPUSYNC_OK : GPUSYNC_NOT_READY, GPUSYNC_OK, "one load");
    result = gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, limit, NULL, &which);
    tell("gpusync_wait_many, any of two", result, GPUSYNC_OK, which == 1 ? "the second" : "the first");
    tell("gpusync_timeline_wait", gpusync_timeline_wait(frames, 1, limit, NULL), GPUSYNC_OK, "the GPU has signalled 1");
    tell("gpusync_wait, everything", gpusync_wait(queue, GPUSYNC_EVERYTHING, limit, NULL), GPUSYNC_OK, "of the queue");
    tell("gpusync_device_wait", gpusync_device_wait(device, limit, NULL), GPUSYNC_OK, "of all queues");
    CHECK(gpusync_device_run_callbacks(device, SIZE_MAX, NULL));
    tell("gpusync_on_done", told, GPUSYNC_OK, "its callback has run on this thread");
    tell("gpusync_poll", gpusync_poll(queue, ticket, &times), GPUSYNC_OK, "and when the GPU ran, where the device tells it");
    if (((unsigned char *)metal_contents(memory))[SIZE - 1] != byte) surprises++;
    printf("  GPU time: %.1f ms\n", 1e3 * (times.gpu_end_s - times.gpu_start_s)); /* 0 where the device tells none */
}

static void killed(void)
{
    gpusync_error error = {0};
    gpusync_wait_options options = {.error = &error};
    gpusync_ticket ticket;
    gpusync_result result;
    puts("\nA command buffer that the system kills. By hand, a wait for what it signals would never end:");
    setenv("SOFTMETAL_KILL", "killed", 1); /* asks the software device to kill what has this label */
    ticket = commit("killed", 2);
    result = gpusync_timeline_wait(frames, 2, limit, &options);
    unsetenv("SOFTMETAL_KILL");
    if (result == GPUSYNC_OK) {
        puts("  This GPU has run it: nothing is planted here. A failure is shown on Linux.");
        return;
    }
    tell("gpusync_timeline_wait", result, GPUSYNC_ERROR_EXECUTION, "the wait has ended, and tells why:");
    printf("  command buffer \"%s\" of queue \"%s\": %s\n  %s\n", error.label, error.queue_label,
           gpusync_failure_string(error.failure), error.message);
    if (error.ticket != ticket) surprises++;
    ticket = commit("the next frame", 0);
    tell("gpusync_wait, the next frame", gpusync_wait(queue, ticket, limit, NULL), GPUSYNC_OK, "the queue works on");
}

static void hang(void)
{
    gpusync_timeline *uploads; /* its own: a failed timeline stays failed */
    gpusync_timeline_desc desc = {.label = "uploads"};
    void *upload = create(transfers, "textures"), *buffer = create(queue, "frame 7");
    gpusync_ticket ticket;
    gpusync_result result;
    char report[4096];
    CHECK(gpusync_timeline_create(device, &desc, &uploads));
    encode(upload);
    CHECK(gpusync_encode_signal(transfers, upload, gpusync_at_value(uploads, 1)));
    CHECK(gpusync_encode_wait(queue, buffer, gpusync_at_value(uploads, 1))); /* what is encoded behind it waits */
    encode(buffer);
    CHECK(gpusync_commit(queue, buffer, &ticket)); /* but the upload is not committed */
    puts("\nA wait that cannot end: a frame needs textures that the program forgot to commit. The limit ends it:");
    result = gpusync_wait(queue, ticket, short_limit, NULL);
    tell("gpusync_wait", result, GPUSYNC_TIMEOUT, "100 ms have passed. The report:");
    gpusync_device_report(device, report, sizeof report);
    fputs(report, stdout);
    if (!strstr(report, "'textures': not committed")) surprises++;
    CHECK(gpusync_commit(transfers, upload, NULL));
    tell("gpusync_wait, after the commit", gpusync_wait(queue, ticket, limit, NULL), GPUSYNC_OK, "nothing was lost");
    CHECK(gpusync_timeline_destroy(uploads));
}

int main(void)
{
    gpusync_device_desc desc = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL};
    gpusync_queue_desc queue_desc = {.label = "frames"}, transfers_desc = {.label = "transfers"};
    gpusync_result result = gpusync_device_create(&desc, &device);
    if (result == GPUSYNC_ERROR_NO_DEVICE) return fprintf(stderr, "skipped: %s\n", gpusync_result_string(result)), 77;
    check("gpusync_device_create", result);
    CHECK(gpusync_queue_create(device, &queue_desc, &queue));
    CHECK(gpusync_queue_create(device, &transfers_desc, &transfers));
    CHECK(gpusync_timeline_create(device, NULL, &frames));
    memory = metal_buffer_new(gpusync_device_metal(device), SIZE);
    if (!memory) check("newBufferWithLength:options:", GPUSYNC_ERROR_METAL_NIL);
    frame();
    killed();
    hang();
    puts("\nnext: README.md (what to use for what you have)\n      examples/frames.c (a frame loop, to copy)\n"
         "      examples/README.md (the manual)");
    CHECK(gpusync_queue_destroy(transfers));
    CHECK(gpusync_queue_destroy(queue));
    CHECK(gpusync_timeline_destroy(frames));
    CHECK(gpusync_device_destroy(device));
    metal_release(memory);
    return surprises != 0;
}
