/* killed.c - what happens when the system kills a command buffer: by hand, and with gpusync. tests/picture.py draws it

   A producer on queue 1 signals a value, for which a consumer on queue 2 and a thread wait. softmetal kills the producer.
   Each line of the output is an event in JSON: row, event, label, ms since the commit of the producer, result. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include "metal.h"
#include "softmetal.h"

enum { HAND_LIMIT_MS = 100, RECORDS = 64 };
static const uint64_t work_ns = 20000000, limit_ns = 5000000000;
static uint64_t zero_ns;

static void expect(const char *what, bool as_expected)
{
    if (as_expected)
        return;
    fprintf(stderr, "killed.c: not as expected: %s\n", what);
    exit(1);
}
#define EXPECT(condition) expect(#condition, condition)

static void tell(const char *row, const char *event, const char *label, double ns, const char *result)
{
    printf("{\"row\": \"%s\", \"event\": \"%s\", \"label\": \"%s\", \"ms\": %.3f, \"result\": \"%s\"}\n", row, event,
           label, (ns - (double)zero_ns) / 1e6, result);
}

static void tell_now(const char *event, const char *label, const char *result)
{
    tell("By hand", event, label, (double)gpusync_now_ns(), result);
}

static void tell_gpu(const char *row, const char *label, double start_s, double end_s)
{
    tell(row, "gpu start", label, start_s * 1e9, "");
    tell(row, "gpu end", label, end_s * 1e9, "");
}

/* -- by hand ------------------------------------------------------------------------------------------------------ */

static void *wait_for_event(void *event)
{
    signed char reached;
    tell_now("wait begin", "event", "");
    reached = METAL__AS(signed char, uint64_t, uint64_t)(event, metal__sel("waitUntilSignaledValue:timeoutMS:"), 1,
                                                         HAND_LIMIT_MS);
    tell_now("wait end", "event", reached ? "reached" : "not reached");
    return NULL;
}

static void by_hand(void *device)
{
    void *queue1 = metal_queue_new(device, 64);
    void *queue2 = metal_queue_new(device, 64);
    void *event = metal_shared_event_new(device);
    void *producer = metal_queue_command_buffer(queue1);
    void *consumer = metal_queue_command_buffer(queue2);
    pthread_t thread;
    EXPECT(event && producer && consumer);
    metal_set_label(producer, "producer");
    softmetal_set_duration(producer, work_ns);
    metal_encode_signal(producer, event, 1);
    metal_encode_wait(consumer, event, 1);

    zero_ns = gpusync_now_ns();
    metal_commit(producer);
    tell_now("commit", "consumer", "");
    metal_commit(consumer);
    EXPECT(pthread_create(&thread, NULL, wait_for_event, event) == 0);
    tell_now("wait begin", "producer", "");
    metal_wait_until_completed(producer);
    tell_now("wait end", "producer", "");
    tell_gpu("By hand", "producer", metal_gpu_start(producer), metal_gpu_end(producer));
    EXPECT(metal_status(producer) == 5); /* the error is there for a program that asks */
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(metal_event_value(event) == 0);
    EXPECT(metal_status(consumer) < 4);

    metal_event_signal(event, 1); /* else the consumer waits until Metal's own limit */
    metal_wait_until_completed(consumer);
    metal_release(consumer);
    metal_release(producer);
    metal_release(event);
    metal_release(queue2);
    metal_release(queue1);
}

/* -- with gpusync ------------------------------------------------------------------------------------------------- */

static struct {
    gpusync_trace_event event;
    char label[24];
} records[RECORDS];
static unsigned record_count;

static void note(void *user, const gpusync_trace_event *event)
{
    unsigned n = __atomic_fetch_add(&record_count, 1, __ATOMIC_RELAXED);
    (void)user;
    if (n >= RECORDS)
        return;
    records[n].event = *event;
    snprintf(records[n].label, sizeof records[n].label, "%s", event->label);
}

static const gpusync_trace trace = {note, NULL};

static const char *name_of(gpusync_result result)
{
#define NAME(name, number, text)  \
    if (result == GPUSYNC_##name) \
        return "GPUSYNC_" #name;
    GPUSYNC_RESULTS(NAME)
    return "?";
}

static void tell_trace(void)
{
    static const char *const names[] = {
        [GPUSYNC_TRACE_COMMIT] = "commit", [GPUSYNC_TRACE_ENDED] = "completed", [GPUSYNC_TRACE_WAIT] = "wait end"};
    EXPECT(record_count <= RECORDS);
    for (unsigned i = 0; i < record_count; i++) {
        const gpusync_trace_event *event = &records[i].event;
        if (event->begin_ns)
            tell("With gpusync", "wait begin", records[i].label, (double)event->begin_ns, "");
        if (names[event->kind])
            tell("With gpusync", names[event->kind], records[i].label, (double)event->time_ns, name_of(event->result));
    }
}

static void *make(gpusync_queue *queue, const char *label)
{
    gpusync_command_buffer_desc desc = {.label = label};
    void *buffer;
    EXPECT(gpusync_command_buffer_create(queue, &desc, limit_ns, &buffer) == GPUSYNC_OK);
    return buffer;
}

static void with_gpusync(void *metal_device)
{
    gpusync_device_desc desc = {.metal_device = metal_device};
    gpusync_timeline_desc timeline_desc = {.label = "timeline"};
    gpusync_error error = {0};
    gpusync_wait_options with_error = {.error = &error};
    gpusync_wait_options with_handlers = {.handlers = true}; /* gpusync knows the GPU's times then */
    gpusync_times times;
    gpusync_device *device;
    gpusync_queue *queue1, *queue2;
    gpusync_timeline *timeline;
    gpusync_ticket produced, consumed;
    void *producer, *consumer;
    EXPECT(gpusync_device_create(&desc, &device) == GPUSYNC_OK);
    EXPECT(gpusync_device_set_trace(device, &trace) == GPUSYNC_OK);
    EXPECT(gpusync_queue_create(device, NULL, &queue1) == GPUSYNC_OK);
    EXPECT(gpusync_queue_create(device, NULL, &queue2) == GPUSYNC_OK);
    EXPECT(gpusync_timeline_create(device, &timeline_desc, &timeline) == GPUSYNC_OK);
    producer = make(queue1, "producer");
    consumer = make(queue2, "consumer");
    softmetal_set_duration(producer, work_ns);
    EXPECT(gpusync_encode_signal(queue1, producer, gpusync_at_value(timeline, 1)) == GPUSYNC_OK);
    EXPECT(gpusync_encode_wait(queue2, consumer, gpusync_at_value(timeline, 1)) == GPUSYNC_OK);

    zero_ns = gpusync_now_ns();
    EXPECT(gpusync_commit(queue1, producer, &produced) == GPUSYNC_OK);
    EXPECT(gpusync_commit(queue2, consumer, &consumed) == GPUSYNC_OK);
    EXPECT(gpusync_timeline_wait(timeline, 1, limit_ns, &with_error) == GPUSYNC_ERROR_EXECUTION);
    EXPECT(gpusync_wait(queue2, consumed, limit_ns, NULL) == GPUSYNC_ERROR_EXECUTION);
    EXPECT(gpusync_wait(queue1, produced, limit_ns, &with_handlers) == GPUSYNC_ERROR_EXECUTION);
    EXPECT(gpusync_poll(queue1, produced, &times) == GPUSYNC_ERROR_EXECUTION);

    EXPECT(gpusync_queue_destroy(queue2) == GPUSYNC_OK);
    EXPECT(gpusync_queue_destroy(queue1) == GPUSYNC_OK);
    EXPECT(gpusync_timeline_destroy(timeline) == GPUSYNC_OK);
    EXPECT(gpusync_device_destroy(device) == GPUSYNC_OK);
    tell_trace();
    tell_gpu("With gpusync", "producer", times.gpu_start_s, times.gpu_end_s);
    tell("With gpusync", "reason", error.label, times.gpu_end_s * 1e9, gpusync_failure_string(error.failure));
}

int main(void)
{
    void *device;
    EXPECT(setenv("SOFTMETAL_KILL", "producer", 1) == 0);
    device = metal_device_new();
    EXPECT(device != NULL);
    by_hand(device);
    with_gpusync(device);
    metal_release(device);
    return 0;
}
