// cc -std=c99 quickstart.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o quickstart
//
// Every way of asking and waiting, on real work: the GPU fills and copies memory, this program looks at
// the bytes. Each row of the table is one call: its answer, what ended the wait, how long the call took.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"

enum { SIZE = 64 * 1024, PARTS = 8, HEAVY = 64 * 1024 * 1024 };

static gpusync_device *device;
static gpusync_queue *queue;
static void *from, *to, *heavy; /* memory that CPU and GPU share */
static unsigned char value;     /* the byte that the newest work writes */

/* -- the table --------------------------------------------------------------------------------- */

static gpusync_stats before;
static uint64_t started;

static void start(void)
{
    gpusync_device_get_stats(device, &before);
    started = gpusync_now_ns();
}

/* still: how a call ends that no counter of gpusync_stats shows. */
static void row(const char *what, const char *answer, bool expected, const char *still)
{
    double us = (double)(gpusync_now_ns() - started) / 1e3;
    gpusync_stats now;
    gpusync_device_get_stats(device, &now);
    const char *how = now.waits_unmet != before.waits_unmet ? "unmet"
        : now.waits_sleep != before.waits_sleep             ? "sleep"
        : now.waits_spin != before.waits_spin               ? "spin"
        : now.waits_status != before.waits_status           ? "status" : still;
    printf("  %-42s %-16s %-7s %10.1f us\n", what, answer, how, us);
    check(expected, what);
}

static void asked(const char *what, bool want, bool got) { row(what, got ? "yes" : "no", got == want, "-"); }
static void ended(const char *what, gpusync_result want, gpusync_result got, const char *still)
{
    row(what, name_of(got), got == want, still);
}

#define WAIT(what, expected, call) (start(), ended(what, expected, call, "inline"))
#define POLL(what, expected, call) (start(), ended(what, expected, call, "-"))
#define ASK(what, expected, call) (start(), asked(what, expected, call))

/* -- work: fill one buffer with a byte, copy it to the other ------------------------------------- */

static void encode(void *command_buffer, size_t offset, size_t size)
{
    void *pool = metal_pool_push(); /* for what Metal autoreleases while it encodes */
    value++;
    softmetal_set_duration(command_buffer, 2 * MS);
    void *blit = metal_blit_begin(command_buffer);
    check(blit != NULL, "Metal makes an encoder");
    for (int i = 0; real_device && i < 4; i++) metal_fill(blit, heavy, 0, HEAVY, value); /* takes a while */
    metal_fill(blit, from, offset, size, value);
    metal_copy(blit, from, offset, to, offset, size);
    metal_end(blit);
    metal_pool_pop(pool);
}

/* gate: a shared event that the work waits for before it starts, or NULL */
static void *new_work(const char *label, void *gate, size_t offset, size_t size)
{
    gpusync_command_buffer_desc desc = {.label = label};
    void *command_buffer;
    check(!gpusync_command_buffer(queue, &desc, &command_buffer), "gpusync_command_buffer");
    if (gate) metal_encode_wait(command_buffer, gate, 1);
    encode(command_buffer, offset, size);
    return command_buffer;
}

static gpusync_ticket commit(void *command_buffer)
{
    gpusync_ticket ticket;
    check(!gpusync_commit(queue, command_buffer, &ticket), "gpusync_commit");
    return ticket; /* the buffer is gpusync's from here on: a program that goes on using it retains it before */
}

static void check_bytes(size_t offset, size_t size, unsigned char expected)
{
    const unsigned char *bytes = (const unsigned char *)metal_contents(to);
    size_t end = offset + size;
    while (offset < end && bytes[offset] == expected) offset++;
    if (offset < end) printf("byte %zu is %u, not %u\n", offset, bytes[offset], expected);
    check(offset == end, "the bytes that the GPU wrote");
}

/* -- the chapters ------------------------------------------------------------------------------ */

static void never_used(void)
{
    printf("a queue that was never used\n");
    ASK("gpusync_is_idle", true, gpusync_is_idle(queue));
    ASK("gpusync_is_done(GPUSYNC_NO_TICKET)", true, gpusync_is_done(queue, GPUSYNC_NO_TICKET));
    WAIT("gpusync_queue_wait", GPUSYNC_OK, gpusync_queue_wait(queue, GPUSYNC_FOREVER));
    WAIT("gpusync_device_wait", GPUSYNC_OK, gpusync_device_wait(device, GPUSYNC_FOREVER, NULL));
}

/* The work cannot start before this thread opens the gate, so every answer is certain. (Keep such gates short:
   Metal kills work that waits for seconds.) */
static void in_flight(void)
{
    void *gate = metal_shared_event_new(gpusync_device_metal(device));
    check(gate != NULL, "Metal makes a shared event");
    gpusync_ticket ticket = commit(new_work("behind the gate", gate, 0, SIZE));

    printf("work in flight\n");
    ASK("gpusync_is_idle", false, gpusync_is_idle(queue));
    ASK("gpusync_is_done", false, gpusync_is_done(queue, ticket));
    POLL("gpusync_poll", GPUSYNC_NOT_READY, gpusync_poll(queue, ticket));
    WAIT("gpusync_wait, limit 0", GPUSYNC_TIMEOUT, gpusync_wait(queue, ticket, 0));
    WAIT("gpusync_wait, limit 1 ms", GPUSYNC_TIMEOUT, gpusync_wait(queue, ticket, MS));
    WAIT("gpusync_queue_wait, limit 1 ms", GPUSYNC_TIMEOUT, gpusync_queue_wait(queue, MS));
    WAIT("gpusync_device_wait, limit 1 ms", GPUSYNC_TIMEOUT, gpusync_device_wait(device, MS, NULL));

    char text[2048]; /* what to print when a program hangs */
    check(gpusync_report(device, text, sizeof text) > 0, "gpusync_report");
    printf("---- gpusync_report ----\n%s------------------------\n", text);
    check(strstr(text, "behind the gate") != NULL, "the report names the work in flight");

    metal_event_signal(gate, 1);
    WAIT("gpusync_wait, limit 10 s", GPUSYNC_OK, gpusync_wait(queue, ticket, 10000 * MS));
    check_bytes(0, SIZE, value);
    metal_release(gate);
}

static void every_way(void)
{
    static const gpusync_spin none = {0, 0, 0, false}, brief = {32, 1000000, MS / 10, false}, ample = {32, 100000000, 0, false};
    static const struct {
        const char *what;
        gpusync_wait_options options;
    } ways[] = {
        {"gpusync_wait_ex, the wait decides", {.spin = NULL}},
        {"gpusync_wait_ex, spin budget: none", {.spin = &none}}, /* sleeps at once */
        {"gpusync_wait_ex, spin budget: 0.1 ms", {.spin = &brief}},
        {"gpusync_wait_ex, spin budget: ample", {.spin = &ample}},
        {"gpusync_wait_ex, handlers", {.handlers = true}}, /* also until the program's completed handlers have run */
        {"gpusync_wait_ex, blocking", {.blocking = true}}, /* in Metal's waitUntilCompleted */
    };
    printf("each way to wait, new work for each\n");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        gpusync_ticket ticket = commit(new_work("ways", NULL, 0, SIZE));
        WAIT(ways[i].what, GPUSYNC_OK, gpusync_wait_ex(queue, ticket, GPUSYNC_FOREVER, &ways[i].options));
        check_bytes(0, SIZE, value);
    }
}

static void several(void)
{
    unsigned char first = (unsigned char)(value + 1);
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    for (size_t i = 0; i < PARTS; i++) ticket = commit(new_work("part", NULL, i * SIZE / PARTS, SIZE / PARTS));
    printf("%d command buffers at once\n", PARTS);
    WAIT("gpusync_queue_wait", GPUSYNC_OK, gpusync_queue_wait(queue, GPUSYNC_FOREVER));
    for (size_t i = 0; i < PARTS; i++) check_bytes(i * SIZE / PARTS, SIZE / PARTS, (unsigned char)(first + i));
    POLL("gpusync_poll, the last of them", GPUSYNC_OK, gpusync_poll(queue, ticket));
    WAIT("gpusync_queue_wait, nothing left", GPUSYNC_OK, gpusync_queue_wait(queue, GPUSYNC_FOREVER));
    WAIT("gpusync_device_wait, nothing left", GPUSYNC_OK, gpusync_device_wait(device, GPUSYNC_FOREVER, NULL));
}

/* Command buffers of other code: a library that makes and commits its own on the same Metal queue. */
static void others_commit(void)
{
    printf("command buffers that other code commits\n");
    for (int late = 0; late < 2; late++) {
        void *command_buffer = metal_queue_command_buffer(gpusync_queue_metal(queue));
        gpusync_ticket ticket;
        check(command_buffer != NULL, "Metal makes a command buffer");
        encode(command_buffer, 0, SIZE);
        if (late) { /* we learn of it after its commit: an empty command buffer behind it ends when both have */
            gpusync_command_buffer_desc desc = {.label = "behind it"};
            void *empty;
            metal_commit(command_buffer);
            check(!gpusync_command_buffer(queue, &desc, &empty), "gpusync_command_buffer");
            ticket = commit(empty);
            WAIT("gpusync_wait for a buffer behind it", GPUSYNC_OK, gpusync_wait(queue, ticket, 10000 * MS));
        } else { /* the better way: before the commit, which stays with its owner */
            check(!gpusync_track(queue, command_buffer, &ticket), "gpusync_track");
            metal_commit(command_buffer);
            WAIT("gpusync_wait after gpusync_track", GPUSYNC_OK, gpusync_wait(queue, ticket, 10000 * MS));
        }
        metal_release(command_buffer);
        check_bytes(0, SIZE, value);
    }
}

static void failure(void)
{
    void *work = new_work("doomed", NULL, 0, SIZE);
    printf("work that fails\n");
    if (real_device) {
        printf("  a real device offers no way to fail work on purpose: skipped\n");
        check(!gpusync_command_buffer_discard(queue, work), "gpusync_command_buffer_discard");
        return;
    }
    softmetal_fail(work, NULL, 8, "out of memory on purpose");
    gpusync_ticket ticket = commit(work);
    WAIT("gpusync_wait", GPUSYNC_ERROR_EXECUTION, gpusync_wait(queue, ticket, GPUSYNC_FOREVER));
    WAIT("gpusync_wait, the same once more", GPUSYNC_ERROR_EXECUTION, gpusync_wait(queue, ticket, 0));
    WAIT("gpusync_queue_wait tells it", GPUSYNC_ERROR_EXECUTION, gpusync_queue_wait(queue, GPUSYNC_FOREVER));
    WAIT("gpusync_queue_wait tells it once", GPUSYNC_OK, gpusync_queue_wait(queue, GPUSYNC_FOREVER));
    check_bytes(0, SIZE, (unsigned char)(value - 1)); /* it did not run */

    gpusync_error error;
    uint64_t cursor = 0; /* this reader's place in the log */
    int found = 0;
    for (; !gpusync_next_error(queue, &cursor, &error); found++) {
        printf("  failure: ticket %" PRIu64 ", buffer \"%s\", queue \"%s\"\n", error.ticket, error.label,
               error.queue_label);
        printf("           %s %" PRId64 ", \"%s\": %s\n", error.domain, error.code, error.message,
               gpusync_failure_string(error.failure));
        check(error.ticket == ticket && error.failure == GPUSYNC_FAILURE_OUT_OF_MEMORY, "which failure it was");
        check(!strcmp(error.label, "doomed") && !strcmp(error.queue_label, "quickstart"), "labels");
    }
    check(found == 1, "one failure is on record");
}

int main(void)
{
    gpusync_queue_desc desc = {.label = "quickstart"};
    check_device(gpusync_device_create(NULL, &device));
    check(!gpusync_queue_create(device, &desc, &queue), "gpusync_queue_create");
    void *metal = gpusync_device_metal(device);
    from = metal_buffer_new(metal, SIZE);
    to = metal_buffer_new(metal, SIZE);
    heavy = metal_buffer_new(metal, HEAVY);
    check(from && to && heavy, "memory");

    never_used();
    in_flight();
    every_way();
    several();
    others_commit();
    failure();

    gpusync_stats s;
    check(!gpusync_device_get_stats(device, &s), "gpusync_device_get_stats");
    printf("commits %" PRIu64 ", completions %" PRIu64 ", failures %" PRIu64 "\n", s.commits,
           s.completions, s.failures);
    printf("waits: %" PRIu64 " status, %" PRIu64 " spin, %" PRIu64 " sleep, %" PRIu64 " unmet\n", s.waits_status,
           s.waits_spin, s.waits_sleep, s.waits_unmet);
    check(s.commits == s.completions && s.failures == !real_device, "every commit has ended");

    check(!gpusync_queue_destroy(queue) && !gpusync_device_destroy(device), "destroy");
    metal_release(from);
    metal_release(to);
    metal_release(heavy);
    printf("quickstart: all %d checks passed\n", checks);
    return 0;
}
