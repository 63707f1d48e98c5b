// cc -std=c99 wait_any.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o wait_any
//
// A wait for whichever of several fences ends first, as SDL_WaitForGPUFences makes it, with a time limit. Metal has no
// such wait, so SDL polls in a loop (libsdl-org/SDL#15947). gpusync_wait_many sleeps until a fence has ended.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { JOBS = 3, SIZE = 1 << 20 };
static const uint64_t limit = 10000000000; /* nanoseconds, for all fences together */

typedef struct job {
    const char *name;
    int fills;            /* how much work it is */
    gpusync_queue *queue; /* of its own, so the jobs end in any order */
    void *memory;         /* an MTLBuffer */
} job;

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define CHECK(call) check(#call, call)

static gpusync_point start(gpusync_device *device, job *j)
{
    gpusync_queue_desc desc = {.label = j->name};
    gpusync_ticket ticket;
    void *buffer, *blit;
    CHECK(gpusync_queue_create(device, &desc, &j->queue));
    CHECK(gpusync_command_buffer_create(j->queue, NULL, limit, &buffer));
    j->memory = metal_buffer_new(gpusync_device_metal(device), SIZE);
    blit = metal_blit_begin(buffer);
    if (!j->memory || !blit) check("memory and an encoder", GPUSYNC_ERROR_METAL_NIL);
    for (int i = 1; i <= j->fills; i++) metal_fill(blit, j->memory, 0, SIZE, (unsigned char)i);
    metal_end(blit);
    CHECK(gpusync_commit(j->queue, buffer, &ticket));
    return gpusync_at_ticket(j->queue, ticket); /* the fence: nothing to make, nothing to release */
}

int main(void)
{
    job jobs[JOBS] = {{.name = "small", .fills = 2}, {.name = "medium", .fills = 60}, {.name = "large", .fills = 240}};
    const job *of[JOBS]; /* fences[i] is the fence of *of[i] */
    gpusync_point fences[JOBS];
    gpusync_device *device;
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    uint64_t began, now;
    clock_t cpu_began;
    int wrong = 0;
    CHECK(gpusync_device_create(NULL, &device));
    for (int i = 0; i < JOBS; i++) of[i] = &jobs[i], fences[i] = start(device, &jobs[i]);

    began = now = gpusync_now_ns();
    cpu_began = clock();
    for (size_t left = JOBS, which; left > 0; now = gpusync_now_ns()) {
        uint64_t time_left = now - began < limit ? limit - (now - began) : 0;
        gpusync_result result = gpusync_wait_many(fences, left, GPUSYNC_WAIT_ANY, time_left, &options, &which);
        if (which == left) { /* none has ended: the limit passed */
            char text[4096];
            if (gpusync_device_report(device, text, sizeof text)) fprintf(stderr, "%s", text);
            check("gpusync_wait_many", result);
        }
        if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", of[which]->name, error.message); /* it has ended, too */
        else if (((unsigned char *)metal_contents(of[which]->memory))[SIZE - 1] != of[which]->fills) wrong++;
        else printf("%s: done\n", of[which]->name);
        wrong += result != GPUSYNC_OK;
        fences[which] = fences[--left]; /* the last takes its place */
        of[which] = of[left];
    }
    printf("waited %.2f ms, processor time %.2f ms\n", (double)(now - began) / 1e6,
           (double)(clock() - cpu_began) * 1e3 / CLOCKS_PER_SEC);

    for (int i = 0; i < JOBS; i++) CHECK(gpusync_queue_destroy(jobs[i].queue)), metal_release(jobs[i].memory);
    CHECK(gpusync_device_destroy(device));
    return wrong;
}
