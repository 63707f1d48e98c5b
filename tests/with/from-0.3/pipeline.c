/* A compute pipeline for gpusync 0.3, which examples/from-0.3.sh makes one for 0.4: upload, compute, readback, on three
   queues with a timeline each. It runs with softmetal. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include <stdio.h>

enum { UPLOAD, COMPUTE, READBACK, STAGES, STEPS = 12 };

/* A library of another language has this symbol: gpusync_device_create_0_3. */
extern gpusync_result open_device(const gpusync_device_desc *desc, gpusync_device **out)
    __asm__("gpusync_device_create_0_3");

static const char *const names[STAGES] = {"upload", "compute", "readback"};
static unsigned lines;

static void count_lines(void *user, gpusync_log_level level, const char *text)
{
    (void)user, (void)text;
    if (level >= GPUSYNC_LOG_WARNING) lines++;
}

/* The wait for the stage before is at the head of the command buffer. */
static gpusync_result run(gpusync_queue *queue, gpusync_timeline *before, gpusync_timeline *after, uint64_t step,
                          gpusync_ticket *ticket)
{
    static const uint64_t limit = 1000000000;
    const gpusync_command_buffer_desc desc = {&limit, "step", false, 0, NULL};
    gpusync_result result;
    void *buffer;

    result = gpusync_command_buffer(queue, before ? &desc : &(gpusync_command_buffer_desc){.error_options = 0}, &buffer);
    if (result != GPUSYNC_OK) return result;
    if (before) result = gpusync_encode_wait(queue, buffer, gpusync_at_value(before, step));
    if (result == GPUSYNC_OK) result = gpusync_encode_signal(queue, buffer, gpusync_at_value(after, step));
    if (result == GPUSYNC_OK) result = gpusync_commit(queue, buffer, ticket);
    if (result != GPUSYNC_OK) gpusync_command_buffer_discard(queue, buffer);
    return result;
}

int main(void)
{
    static const gpusync_spin none = {0, 0, 0, false};
    gpusync_device_desc device_desc = {NULL, NULL, NULL, &none, GPUSYNC_WAIT_DEFAULT, count_lines, NULL,
                                       GPUSYNC_CALLBACKS_QUEUED, NULL, // gpusync makes a queue
                                       NULL, NULL,
                                       NULL};
    struct gpusync_queue_desc queue_desc[STAGES] = {
        {NULL, names[UPLOAD], 64, 0, 8, &none, GPUSYNC_WAIT_DEFAULT, false, false},
        {NULL, names[COMPUTE], 64, 0, 8, NULL, GPUSYNC_WAIT_DEFAULT, false, false},
        [READBACK] = {.label = names[READBACK], .max_in_flight = 0, /* as many as Metal takes */ .spin = &none},
    };
    const gpusync_timeline_desc timeline_desc[STAGES] = {
        {0, names[UPLOAD], NULL, false},
        {.label = names[COMPUTE], .fail_writes_event = false},
        {.label = names[READBACK]},
    };
    gpusync_device *device;
    gpusync_queue *queues[STAGES];
    gpusync_timeline *done[STAGES];
    gpusync_ticket tickets[STAGES];
    gpusync_error error = {0};
    gpusync_wait_options blocking = {0};
    uint64_t step;
    int stage;

    if (open_device(&device_desc, &device)) return 1;
    for (stage = 0; stage < STAGES; stage++) {
        if (gpusync_queue_create(device, &queue_desc[stage], &queues[stage])) return 2;
        if (gpusync_timeline_create(device, &timeline_desc[stage], &done[stage])) return 3;
    }
    for (step = 1; step <= STEPS; step++)
        for (stage = 0; stage < STAGES; stage++)
            if (run(queues[stage], stage ? done[stage - 1] : NULL, done[stage], step, &tickets[stage])) return 4;
    if (gpusync_timeline_wait(done[READBACK], STEPS, 5000000000,
                              &(gpusync_wait_options){&none, GPUSYNC_WAIT_DEFAULT, &error, false, false})) return 5;
    if (gpusync_wait_ex(queues[READBACK], tickets[READBACK], GPUSYNC_FOREVER,
                        &(gpusync_wait_options){NULL, GPUSYNC_WAIT_BLOCKING, NULL, true, false})) return 6;
    blocking.mode = GPUSYNC_WAIT_BLOCKING;
    if (gpusync_wait_ex(queues[COMPUTE], tickets[COMPUTE], GPUSYNC_FOREVER, &blocking)) return 7;
    blocking = (gpusync_wait_options){.error = &error, .mode = GPUSYNC_WAIT_DEFAULT};
    if (gpusync_device_wait_ex(device, 5000000000, &blocking) || gpusync_device_wait(device, 0)) return 8;
    if (gpusync_device_wait(device, /* in the order of their making: (first, last) */
                            (uint64_t)1 + 2 * 3) != GPUSYNC_OK) return 9;
    for (stage = 0; stage < STAGES; stage++)
        if (gpusync_queue_destroy(queues[stage]) || gpusync_timeline_destroy(done[stage])) return 10;
    if (gpusync_device_destroy(device)) return 11;
    printf("%d steps, %u lines\n", STEPS, lines);
    return 0;
}
