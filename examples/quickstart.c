// cc -std=c99 quickstart.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o quickstart
//
// Every way to ask and to wait. The GPU fills memory and copies it. Each row of the table is one call: its answer, what
// ended the wait, and how long the call took.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 1 << 20, FILLS = 64, SLOTS = 8 };
static const uint64_t one_ms = 1000000, limit = 5000000000; /* nanoseconds; only a GPU that hangs reaches the limit */

static gpusync_device *device;
static gpusync_queue *queue;
static gpusync_timeline *gate; /* the first work waits for its value 1, which this thread signals */
static void *from, *to;        /* memory that CPU and GPU share */
static unsigned char byte;     /* the newest work writes it */

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(1);
}
#define CHECK(call) check(#call, call)

/* -- the table ---------------------------------------------------------------------------------------------------- */

static gpusync_stats before; /* as the row's call began */
static uint64_t began_ns;

static void begin(void)
{
    gpusync_device_get_stats(device, &before);
    began_ns = gpusync_now_ns();
}

static void row(const char *call, const char *answer)
{
    double us = (double)(gpusync_now_ns() - began_ns) / 1e3;
    const char *how = "-"; /* no wait, or one whose end was there before */
    gpusync_stats now;
    gpusync_device_get_stats(device, &now);
    if (now.waits_status != before.waits_status) how = "status"; /* the wait read Metal's status */
    if (now.waits_spin != before.waits_spin) how = "spin";
    if (now.waits_sleep != before.waits_sleep) how = "sleep";
    if (now.waits_unmet != before.waits_unmet) how = "unmet"; /* the limit passed */
    printf("  %-15s  %-6s %9.1f us  %s\n", answer, how, us, call);
}

static const char *name_of(gpusync_result result) /* gpusync_result_string gives a sentence */
{
#define NAME(name, number, text) result == GPUSYNC_##name ? #name :
    return GPUSYNC_RESULTS(NAME) "?";
}

#define ASK(call) (begin(), row(#call, (call) ? "yes" : "no"))
#define WAIT(call) (begin(), row(#call, name_of(call)))

/* -- the work, and the waits for it ------------------------------------------------------------------------------- */

static gpusync_ticket commit(const char *label, bool behind_gate)
{
    gpusync_command_buffer_desc desc = {.label = label}; /* shows in reports and failures */
    gpusync_ticket ticket;
    void *buffer, *blit, *pool = metal_pool_push(); /* for what Metal autoreleases */
    CHECK(gpusync_command_buffer(queue, &desc, &buffer));
    if (behind_gate) CHECK(gpusync_encode_wait(queue, buffer, gpusync_at_value(gate, 1)));
    blit = metal_blit_begin(buffer);
    if (!blit) check("blitCommandEncoder", GPUSYNC_ERROR_METAL_NIL);
    byte++;
    for (int i = 0; i < FILLS; i++) metal_fill(blit, from, 0, SIZE, byte); /* takes a while */
    metal_copy(blit, from, 0, to, (size_t)(byte % SLOTS) * SIZE, SIZE);
    metal_end(blit);
    CHECK(gpusync_commit(queue, buffer, &ticket)); /* instead of [buffer commit] */
    metal_pool_pop(pool);
    return ticket;
}

static void in_flight(void)
{
    gpusync_ticket ticket = commit("behind the gate", true);
    gpusync_point points[] = {gpusync_at_value(gate, 1), gpusync_at_ticket(queue, ticket)};
    char text[2048];
    ASK(gpusync_is_idle(queue));
    ASK(gpusync_is_done(queue, ticket));
    ASK(gpusync_in_flight(queue) == 1);
    WAIT(gpusync_poll(queue, ticket));
    WAIT(gpusync_wait(queue, ticket, 0));
    WAIT(gpusync_wait(queue, ticket, one_ms));
    WAIT(gpusync_queue_wait(queue, one_ms));
    WAIT(gpusync_device_wait(device, one_ms, NULL));
    WAIT(gpusync_timeline_wait(gate, 1, one_ms, NULL));
    WAIT(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, one_ms, NULL, NULL));
    gpusync_report(device, text, sizeof text); /* what to print when a program hangs */
    printf("---- gpusync_report ----\n%s------------------------\n", text);
    CHECK(gpusync_timeline_signal(gate, 1)); /* opens the gate */
    WAIT(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, limit, NULL, NULL));
}

static void each_way(void)
{
    static const gpusync_spin none = {0}, brief = {32, 1000000, 100000, false}, ample = {32, 100000000, 0, false};
    static const gpusync_wait_options defaults = {0}; /* the wait decides how long it spins before it sleeps */
    static const gpusync_wait_options sleep_at_once = {.spin = &none};
    static const gpusync_wait_options spin_100_us = {.spin = &brief}, spin_long = {.spin = &ample};
    static const gpusync_wait_options handlers = {.handlers = true}; /* until the completed handlers have run, too */
    static const gpusync_wait_options blocking = {.blocking = true}; /* in Metal's waitUntilCompleted: no limit */
    gpusync_ticket ticket;
#define WAY(options) (ticket = commit("each way", false), WAIT(gpusync_wait_ex(queue, ticket, limit, options)))
    WAY(&defaults);
    WAY(&sleep_at_once);
    WAY(&spin_100_us);
    WAY(&spin_long);
    WAY(&handlers);
    ticket = commit("each way", false);
    WAIT(gpusync_wait_ex(queue, ticket, GPUSYNC_FOREVER, &blocking));
}

int main(void)
{
    gpusync_queue_desc desc = {.label = "quickstart"};
    gpusync_result result = gpusync_device_create(NULL, &device);
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    gpusync_error error;
    uint64_t cursor = 0; /* this reader's place in the log of failures */
    if (result == GPUSYNC_ERROR_NO_DEVICE) return fprintf(stderr, "skipped: %s\n", gpusync_result_string(result)), 77;
    check("gpusync_device_create", result);
    CHECK(gpusync_queue_create(device, &desc, &queue));
    CHECK(gpusync_timeline_create(device, NULL, &gate));
    from = metal_buffer_new(gpusync_device_metal(device), SIZE);
    to = metal_buffer_new(gpusync_device_metal(device), SLOTS * SIZE);
    if (!from || !to) check("newBufferWithLength", GPUSYNC_ERROR_METAL_NIL);
    printf("  %-15s  %-6s %9s     %s\n", "answer", "end", "time", "call");
    printf("work in flight\n");
    in_flight();
    printf("each way to wait, new work for each\n");
    each_way();
    printf("%d command buffers at once\n", SLOTS);
    for (int i = 0; i < SLOTS; i++) ticket = commit("one of several", false);
    WAIT(gpusync_queue_wait(queue, limit));
    WAIT(gpusync_poll(queue, ticket)); /* the last of them */
    WAIT(gpusync_queue_wait(queue, limit));
    WAIT(gpusync_device_wait(device, limit, NULL));
    ASK(gpusync_is_idle(queue));
    while (!gpusync_next_error(queue, &cursor, &error)) printf("%s: %s\n", error.label, error.message);
    CHECK(gpusync_queue_wait(queue, limit)); /* destroy would wait for a GPU that hangs */
    gpusync_queue_destroy(queue);
    gpusync_timeline_destroy(gate);
    gpusync_device_destroy(device);
    metal_release(from);
    metal_release(to);
    return cursor != 0;
}
