// cc -std=c99 wait_any.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o wait_any
//
// A wait for whichever of several fences ends first, as SDL_WaitForGPUFences makes it, and with a time limit. Metal has
// no such wait, so SDL polls in a loop (libsdl-org/SDL#15947). gpusync_wait_many sleeps until a fence has ended. The
// program prints how long it waited, and how much processor time that took.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <time.h>

enum { JOBS = 3, SIZE = 1 << 20 };
#define LIMIT UINT64_C(10000000000) /* nanoseconds, for all fences together */

typedef struct job {
    const char *name;
    unsigned fills;       /* how much work it is */
    gpusync_queue *queue; /* of its own, so the jobs end in any order */
    void *memory;         /* an id<MTLBuffer> */
    gpusync_point fence;
} job;

static gpusync_result failed(const char *call, gpusync_result result)
{
    if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result;
}
#define FAILED(call) failed(#call, call)

static gpusync_result start(gpusync_device *device, job *j)
{
    gpusync_queue_desc queue_desc = {0};
    gpusync_command_buffer_desc desc = {0};
    gpusync_ticket ticket;
    gpusync_result result;
    void *buffer, *blit;
    queue_desc.label = desc.label = j->name;
    result = FAILED(gpusync_queue_create(device, &queue_desc, &j->queue));
    if (result != GPUSYNC_OK) return result;
    j->memory = metal_buffer_new(gpusync_device_metal(device), SIZE);
    if (!j->memory) return failed("newBufferWithLength", GPUSYNC_ERROR_METAL_NIL);
    result = FAILED(gpusync_command_buffer(j->queue, &desc, &buffer));
    if (result != GPUSYNC_OK) return result;
    blit = metal_blit_begin(buffer);
    for (unsigned i = 0; i < j->fills; i++) metal_fill(blit, j->memory, 0, SIZE, (unsigned char)i);
    metal_end(blit);
    result = FAILED(gpusync_commit(j->queue, buffer, &ticket));
    if (result != GPUSYNC_OK) gpusync_command_buffer_discard(j->queue, buffer);
    else j->fence = gpusync_at_ticket(j->queue, ticket); /* nothing to make, nothing to release */
    return result;
}

static void print_times(uint64_t began, clock_t cpu_began)
{
    double wall = (double)(gpusync_now_ns() - began) / 1e6;
    double cpu = (double)(clock() - cpu_began) * 1e3 / CLOCKS_PER_SEC;
    printf("waited %.2f ms, processor time %.2f ms\n", wall, cpu);
}

/* Waits until every job has ended, and tells of each as soon as it has. */
static gpusync_result wait_for_each(gpusync_device *device, const job *jobs)
{
    gpusync_point fences[JOBS];
    const job *of[JOBS]; /* fences[i] is the fence of *of[i] */
    gpusync_result result, worst = GPUSYNC_OK;
    gpusync_error error;
    gpusync_wait_options options = {0};
    uint64_t deadline = gpusync_now_ns() + LIMIT;
    size_t left, which;
    options.error = &error;
    for (left = 0; left < JOBS; left++) of[left] = &jobs[left], fences[left] = jobs[left].fence;
    while (left > 0) {
        uint64_t now = gpusync_now_ns(), time = now < deadline ? deadline - now : 0;
        result = gpusync_wait_many(fences, left, GPUSYNC_WAIT_ANY, time, &options, &which);
        if (which == left) { /* none has ended: the limit passed, or the call failed */
            char text[4096];
            if (gpusync_report(device, text, sizeof text)) fprintf(stderr, "%s", text);
            return failed("gpusync_wait_many", result);
        }
        if (result == GPUSYNC_OK) printf("%s: done\n", of[which]->name);
        else { /* this fence has ended, too */
            printf("%s: failed\n", of[which]->name);
            fprintf(stderr, "%s: %s\n", of[which]->name, error.message);
            worst = result;
        }
        left--;
        fences[which] = fences[left]; /* the last takes its place */
        of[which] = of[left];
    }
    return worst;
}

int main(void)
{
    job jobs[JOBS] = {{.name = "large", .fills = 48}, {.name = "medium", .fills = 16}, {.name = "small", .fills = 2}};
    gpusync_device *device;
    gpusync_result result = gpusync_device_create(NULL, &device);
    void *pool;
    bool good = true;
    if (result == GPUSYNC_ERROR_NO_DEVICE) {
        fprintf(stderr, "skipped: %s\n", gpusync_result_string(result));
        return 77;
    }
    if (failed("gpusync_device_create", result)) return 1;
    pool = metal_pool_push(); /* for what Metal autoreleases */
    for (int i = 0; good && i < JOBS; i++) good = !start(device, &jobs[i]);
    metal_pool_pop(pool);
    if (good) {
        uint64_t began = gpusync_now_ns();
        clock_t cpu_began = clock();
        result = wait_for_each(device, jobs);
        good = result == GPUSYNC_OK;
        print_times(began, cpu_began);
    }
    for (int i = 0; i < JOBS; i++) {
        /* Destroy waits for the GPU. One that hangs goes on using the memory, which Metal keeps alive. */
        if (result == GPUSYNC_TIMEOUT) gpusync_queue_destroy_now(jobs[i].queue);
        else if (FAILED(gpusync_queue_destroy(jobs[i].queue))) good = false;
        metal_release(jobs[i].memory);
    }
    if (FAILED(gpusync_device_destroy(device))) good = false;
    return !good;
}
