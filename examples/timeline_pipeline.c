// cc -std=c99 timeline_pipeline.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o pipeline
//
// Three queues in a row: one uploads, one computes, one reads back, three frames at a time. Each has a timeline that
// says which frames it is done with, and waits for that of the queue before it: on the device, while the CPU goes on.
//
//     CPU -> staging --upload--> input --compute--> output --readback--> result -> CPU
//
// At the end one upload fails, and everything that was to follow it is told so.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"

enum { UPLOAD, COMPUTE, READBACK, STAGES };
enum { DEPTH = 3, FRAMES = 60, WORDS = 4096, SIZE = WORDS * 4 };

static const char *const names[STAGES] = {"upload", "compute", "readback"};
static gpusync_device *device;
static gpusync_queue *queues[STAGES];
static gpusync_timeline *done[STAGES];                          /* value n: the stage is done with frame n, from 1 on */
static void *input[DEPTH], *output[DEPTH], *result_of[DEPTH];   /* frame n uses those at n % DEPTH */
static void *pipeline;
static unsigned most_under_way;
static int ended_well, ended_badly; /* counted by the callback, on a dispatch queue */

/* -- the kernel: x -> 3 x + 1. A software device cannot compile it, and calls the C function ---------------------- */

static const char source[] = "#include <metal_stdlib>\n"
                             "using namespace metal;\n"
                             "kernel void step(device const uint *x [[buffer(0)]], device uint *y [[buffer(1)]],\n"
                             "                 uint i [[thread_position_in_grid]]) { y[i] = 3 * x[i] + 1; }\n";

typedef struct softmetal_kernel_args { /* as softmetal.h has it */
    void *buffers[31];
    size_t lengths[31];
    unsigned long grid[3];
} softmetal_kernel_args;
typedef void (*softmetal_kernel)(void *user, const softmetal_kernel_args *args);

static void step_in_c(void *user, const softmetal_kernel_args *args)
{
    const uint32_t *x = (const uint32_t *)args->buffers[0];
    uint32_t *y = (uint32_t *)args->buffers[1];
    (void)user;
    for (unsigned long i = 0; i < args->grid[0]; i++) y[i] = 3 * x[i] + 1;
}

void softmetal_set_kernel(const char *name, softmetal_kernel function, void *user, uint64_t duration_ns);
#ifdef __ELF__ /* as in example.h */
#pragma weak softmetal_set_kernel
#define softmetal_set_kernel(...) IF_SOFTMETAL(softmetal_set_kernel, __VA_ARGS__)
#else
__attribute__((weak)) void softmetal_set_kernel(const char *name, softmetal_kernel function, void *user, uint64_t ns)
{
    (void)name, (void)function, (void)user, (void)ns;
}
#endif

/* -- one stage of one frame --------------------------------------------------------------------------------------- */

static void ended(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)error;
    __atomic_fetch_add(result == GPUSYNC_OK ? &ended_well : &ended_badly, 1, __ATOMIC_RELAXED);
}

/* The wait is at the head of the command buffer, so that nothing in it runs before the frame has come. */
static void *begin(int stage, unsigned frame)
{
    char label[32];
    gpusync_command_buffer_desc desc = {.label = label};
    void *command_buffer;
    snprintf(label, sizeof label, "%s %u", names[stage], frame);
    check(!gpusync_command_buffer(queues[stage], &desc, &command_buffer), "gpusync_command_buffer");
    if (stage != UPLOAD)
        check(!gpusync_encode_wait(queues[stage], command_buffer, gpusync_at_value(done[stage - 1], frame)),
              "gpusync_encode_wait");
    softmetal_set_duration(command_buffer, MS);
    return command_buffer;
}

/* ... and the signal at its end. If the signal waited for is not on its way yet, this is held until it is. */
static gpusync_ticket submit(int stage, unsigned frame, void *command_buffer)
{
    gpusync_ticket ticket;
    check(!gpusync_encode_signal(queues[stage], command_buffer, gpusync_at_value(done[stage], frame)),
          "gpusync_encode_signal");
    check(!gpusync_commit(queues[stage], command_buffer, &ticket), "gpusync_commit");
    check(!gpusync_on_done(gpusync_at_ticket(queues[stage], ticket), ended, NULL), "gpusync_on_done");
    return ticket;
}

static uint32_t word(unsigned frame, unsigned i) { return frame * 0x01000193u ^ i; }

static gpusync_ticket upload(unsigned frame, bool fails)
{
    void *command_buffer = begin(UPLOAD, frame), *staging = metal_buffer_new(gpusync_device_metal(device), SIZE);
    check(staging != NULL, "memory");
    uint32_t *words = (uint32_t *)metal_contents(staging);
    for (unsigned i = 0; i < WORDS; i++) words[i] = word(frame, i);
    void *blit = metal_blit_begin(command_buffer);
    metal_copy(blit, staging, 0, input[frame % DEPTH], 0, SIZE);
    metal_end(blit);
    if (fails) softmetal_fail(command_buffer, NULL, 8, "out of memory on purpose");
    gpusync_ticket ticket = submit(UPLOAD, frame, command_buffer);
    check(!gpusync_release_after(gpusync_at_ticket(queues[UPLOAD], ticket), staging),
          "gpusync_release_after"); /* needed until then */
    metal_release(staging);
    return ticket;
}

static gpusync_ticket compute(unsigned frame)
{
    void *command_buffer = begin(COMPUTE, frame), *encoder = metal_compute_begin(command_buffer);
    metal_set_pipeline(encoder, pipeline);
    metal_set_buffer(encoder, input[frame % DEPTH], 0, 0);
    metal_set_buffer(encoder, output[frame % DEPTH], 0, 1);
    metal_dispatch(encoder, (metal_size){WORDS / 64, 1, 1}, (metal_size){64, 1, 1});
    metal_end(encoder);
    return submit(COMPUTE, frame, command_buffer);
}

static gpusync_ticket read_back(unsigned frame)
{
    void *command_buffer = begin(READBACK, frame), *blit = metal_blit_begin(command_buffer);
    metal_copy(blit, output[frame % DEPTH], 0, result_of[frame % DEPTH], 0, SIZE);
    metal_end(blit);
    return submit(READBACK, frame, command_buffer);
}

/* -- all of them -------------------------------------------------------------------------------------------------- */

static void check_frame(unsigned frame)
{
    const uint32_t *words = (const uint32_t *)metal_contents(result_of[frame % DEPTH]);
    unsigned i = 0;
    while (i < WORDS && words[i] == 3 * word(frame, i) + 1) i++;
    check(i == WORDS, "the words that came back");
}

static void run_frame(unsigned frame)
{
    if (frame > DEPTH) { /* the only wait on the CPU: the frame that had this memory has gone all the way */
        check(!gpusync_timeline_wait(done[READBACK], frame - DEPTH, 10000 * MS, NULL), "gpusync_timeline_wait");
        check_frame(frame - DEPTH);
    }
    (void)upload(frame, false);
    (void)compute(frame);
    (void)read_back(frame);
    uint64_t over;
    check(!gpusync_timeline_query(done[READBACK], &over), "gpusync_timeline_query");
    if (most_under_way < frame - over) most_under_way = (unsigned)(frame - over);
}

/* The last stages are submitted first: no work is to signal yet what they wait for. Then the upload fails. */
static void fail_frame(unsigned frame)
{
    gpusync_ticket tickets[STAGES] = {0};
    char text[2048];
    tickets[READBACK] = read_back(frame);
    tickets[COMPUTE] = compute(frame);
    gpusync_report(device, text, sizeof text);
    printf("---- gpusync_report: what is held, and for what ----\n%s----\n", text);
    if (real_device) { /* work cannot be made to fail there: say that the frame will never come */
        gpusync_error reason = {.result = GPUSYNC_ERROR_EXECUTION, .label = "upload 61", .message = "no such file"};
        check(!gpusync_timeline_fail(done[UPLOAD], &reason), "gpusync_timeline_fail");
    } else {
        tickets[UPLOAD] = upload(frame, true);
    }
    for (int stage = real_device ? COMPUTE : UPLOAD; stage < STAGES; stage++) {
        gpusync_error error;
        gpusync_wait_options options = {.error = &error};
        gpusync_result result = gpusync_wait_ex(queues[stage], tickets[stage], 10000 * MS, &options);
        printf("%s: %s, because of \"%s\": %s\n", names[stage], name_of(result), error.label, error.message);
        check(result == GPUSYNC_ERROR_EXECUTION, "the failure reaches every stage");
        check(!strcmp(error.label, "upload 61"), "and every stage knows where it began");
    }
    check_frame(frame - DEPTH); /* nothing was computed from what was not there */
    check(gpusync_timeline_wait(done[READBACK], frame, 0, NULL) == GPUSYNC_ERROR_EXECUTION, "a timeline stays failed");
}

int main(void)
{
    check_device(gpusync_device_create(NULL, &device));
    for (int stage = 0; stage < STAGES; stage++) {
        gpusync_queue_desc queue_desc = {.label = names[stage]};
        gpusync_timeline_desc desc = {.label = names[stage]};
        check(!gpusync_queue_create(device, &queue_desc, &queues[stage]), "gpusync_queue_create");
        check(!gpusync_timeline_create(device, &desc, &done[stage]), "gpusync_timeline_create");
    }
    void *metal = gpusync_device_metal(device);
    char message[256];
    softmetal_set_kernel("step", step_in_c, NULL, 0);
    pipeline = metal_pipeline_new(metal, source, "step", message, sizeof message);
    if (!pipeline) printf("%s\n", message);
    check(pipeline != NULL, "a pipeline");
    for (int i = 0; i < DEPTH; i++) {
        input[i] = metal_buffer_new(metal, SIZE), output[i] = metal_buffer_new(metal, SIZE);
        result_of[i] = metal_buffer_new(metal, SIZE);
        check(input[i] && output[i] && result_of[i], "memory");
    }

    for (unsigned frame = 1; frame <= FRAMES; frame++) {
        void *pool = metal_pool_push(); /* for what Metal autoreleases in a frame */
        run_frame(frame);
        metal_pool_pop(pool);
    }
    gpusync_wait_options handlers = {.handlers = true}; /* the report is to show none of these frames */
    check(!gpusync_device_wait(device, 10000 * MS, &handlers), "gpusync_device_wait");
    for (unsigned frame = FRAMES - DEPTH + 1; frame <= FRAMES; frame++) check_frame(frame);
    printf("frames: %d went all the way, %u at a time at most\n", FRAMES, most_under_way);
    check(most_under_way <= DEPTH, "never more than three under way");
    fail_frame(FRAMES + 1);

    for (int stage = 0; stage < STAGES; stage++) {
        check(!gpusync_queue_destroy(queues[stage]), "gpusync_queue_destroy"); /* after the last callback */
        check(!gpusync_timeline_destroy(done[stage]), "gpusync_timeline_destroy");
    }
    check(!gpusync_device_destroy(device), "gpusync_device_destroy");
    printf("submissions: %d ended well, %d badly\n", ended_well, ended_badly);
    check(ended_well == STAGES * FRAMES && ended_badly == (real_device ? 2 : 3), "each was told of once");
    for (int i = 0; i < DEPTH; i++) metal_release(input[i]), metal_release(output[i]), metal_release(result_of[i]);
    metal_release(pipeline);
    printf("timeline_pipeline: all %d checks passed\n", checks);
    return 0;
}
