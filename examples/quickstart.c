// cc -std=c99 quickstart.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o quickstart
//
// Every way to ask and to wait, a failure, and a limit that passes. Each line is one call, its answer and its time.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#ifndef __APPLE__
#include "softmetal.h" /* the software device of Linux: work fails there on demand */
#endif
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 1 << 20, FILLS = 64 };
static const uint64_t one_ms = 1000000, limit = 5000000000; /* nanoseconds; only a GPU that hangs reaches the limit */

static gpusync_device *device;
static gpusync_queue *queue;
static gpusync_timeline *frames; /* raised by the GPU, and by this thread */
static void *memory;             /* an MTLBuffer that CPU and GPU share */
static unsigned char byte;       /* the newest work writes it */
static uint64_t began_ns;
static int surprises; /* answers that were not the expected ones */

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

static void row(const char *call, const char *answer)
{
    printf("  %-16s %9.1f us  %s\n", answer, (double)(gpusync_now_ns() - began_ns) / 1e3, call);
}
/* LOOK: any answer will do. The other two know theirs. */
#define LOOK(call) (began_ns = gpusync_now_ns(), row(#call, name_of(call)))
#define ASK(call) (began_ns = gpusync_now_ns(), row(#call, (call) ? "yes" : (surprises++, "NO")))
#define WAIT(expected, call) (began_ns = gpusync_now_ns(), row(#call, wanted(GPUSYNC_##expected, call)))

static const char *wanted(gpusync_result expected, gpusync_result result)
{
    if (result != expected) surprises++;
    return name_of(result);
}

/* A command buffer with work in it, not committed. */
static void *encode(const char *label)
{
    gpusync_command_buffer_desc desc = {.label = label}; /* shows in failures */
    void *buffer, *blit, *pool = metal_pool_push();      /* for what Metal autoreleases */
    CHECK(gpusync_command_buffer_create(queue, &desc, limit, &buffer));
    blit = metal_blit_begin(buffer);
    if (!blit) check("blitCommandEncoder", GPUSYNC_ERROR_METAL_NIL);
    byte++;
    for (int i = 0; i < FILLS; i++) metal_fill(blit, memory, 0, SIZE, byte); /* takes a while */
    metal_end(blit);
    metal_pool_pop(pool);
    return buffer;
}

static gpusync_ticket commit(const char *label)
{
    gpusync_ticket ticket;
    CHECK(gpusync_commit(queue, encode(label), &ticket)); /* instead of [buffer commit] */
    return ticket;
}

static void each_way(void)
{
    gpusync_ticket ticket = commit("each way");
    gpusync_times times = {0, 0};
    LOOK(gpusync_poll(queue, ticket, NULL)); /* it may run, or have ended */
    ASK(gpusync_in_flight(queue) <= 1);
    WAIT(OK, gpusync_wait(queue, ticket, limit, NULL));
    WAIT(OK, gpusync_poll(queue, ticket, &times)); /* the times are zero until the handler has run */
    ASK(gpusync_is_done(queue, ticket));
    ASK(*(unsigned char *)metal_contents(memory) == byte); /* is_done said that this memory is the CPU's again */
    commit("everything");
    WAIT(OK, gpusync_wait(queue, GPUSYNC_EVERYTHING, limit, NULL));
    commit("all queues");
    WAIT(OK, gpusync_device_wait(device, limit, NULL));
}

static void values(void)
{
    void *buffer = encode("signals 1");
    gpusync_ticket ticket;
    gpusync_point points[2];
    size_t which = 2;
    CHECK(gpusync_encode_signal(queue, buffer, gpusync_at_value(frames, 1)));
    CHECK(gpusync_commit(queue, buffer, NULL));
    WAIT(OK, gpusync_timeline_wait(frames, 1, limit, NULL));
    buffer = encode("waits for 2"); /* is held: Metal gets it when the value is there, or is to come from the GPU */
    CHECK(gpusync_encode_wait(queue, buffer, gpusync_at_value(frames, 2)));
    CHECK(gpusync_commit(queue, buffer, &ticket));
    WAIT(TIMEOUT, gpusync_wait(queue, ticket, one_ms, NULL)); /* a limit that passes: nothing is lost */
    CHECK(gpusync_timeline_signal(frames, 2));
    points[0] = gpusync_at_value(frames, 3); /* that no work signals */
    points[1] = gpusync_at_ticket(queue, ticket);
    WAIT(OK, gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, limit, NULL, &which));
    ASK(which == 1);
}

static void on_done(void *user, gpusync_result result, const gpusync_error *error)
{
    printf("  %-16s               callback of \"%s\"%s%s\n", name_of(result), (const char *)user, error ? ": " : "",
           error ? error->message : "");
}

static void callbacks(void)
{
    size_t count;
    gpusync_ticket ticket = commit("callback");
    CHECK(gpusync_on_done(gpusync_at_ticket(queue, ticket), on_done, "callback"));
    WAIT(OK, gpusync_wait(queue, ticket, limit, NULL));
    WAIT(OK, gpusync_device_run_callbacks(device, SIZE_MAX, &count));
    ASK(count == 1);
}

static void failure(void)
{
#ifndef __APPLE__
    gpusync_error error = {0};
    gpusync_wait_options options = {.error = &error};
    gpusync_ticket ticket;
    uint64_t cursor = 0; /* this reader's place in the record of failures */
    softmetal_fail_next_as(1, SOFTMETAL_PAGE_FAULT);
    ticket = commit("fails");
    WAIT(ERROR_EXECUTION, gpusync_wait(queue, ticket, limit, &options));
    while (gpusync_queue_next_error(queue, &cursor, &error) == GPUSYNC_OK)
        printf("  on record: ticket %d \"%s\": %s: %s\n", (int)error.ticket, error.label,
               gpusync_failure_string(error.failure), error.message);
    ASK(gpusync_is_done(queue, ticket)); /* failed work is done, too */
#endif
}

int main(void)
{
    gpusync_device_desc desc = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL};
    gpusync_queue_desc queue_desc = {.label = "quickstart"};
    gpusync_result result = gpusync_device_create(&desc, &device);
    if (result == GPUSYNC_ERROR_NO_DEVICE) return fprintf(stderr, "skipped: %s\n", gpusync_result_string(result)), 77;
    check("gpusync_device_create", result);
    CHECK(gpusync_queue_create(device, &queue_desc, &queue));
    CHECK(gpusync_timeline_create(device, NULL, &frames));
    memory = metal_buffer_new(gpusync_device_metal(device), SIZE);
    if (!memory) check("newBufferWithLength:options:", GPUSYNC_ERROR_METAL_NIL);
    each_way();
    values();
    callbacks();
    failure();
    CHECK(gpusync_queue_destroy(queue));
    CHECK(gpusync_timeline_destroy(frames));
    CHECK(gpusync_device_destroy(device));
    metal_release(memory);
    return surprises != 0;
}
