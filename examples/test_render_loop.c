// make softmetal says what to compile and link with: cc test_render_loop.c ...
//
// How to test a program without a GPU. The first half is a small render loop, three frames deep, that knows nothing of
// softmetal. The second half is its test: frames that go well, one that fails, one that hangs, a device that goes.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>

/* -- the program under test --------------------------------------------------------------------------------------- */

enum { DEPTH = 3 };
static const uint64_t limit = 1000000000; /* no frame of this program takes a second */

typedef struct renderer {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket newest, settled; /* the last frame that was committed, and the last whose end is known */
    int good, dropped;              /* how the settled ones went */
    char why[256];                  /* the newest failure */
    char report[2048];              /* of a loop that stopped: what is in flight */
    void (*encode)(void *command_buffer, gpusync_ticket frame); /* what there is to draw */
} renderer;

/* Waits for the frames up to this one. One that failed is dropped: no reason to stop. */
static gpusync_result settle(renderer *r, gpusync_ticket up_to)
{
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    while (r->settled < up_to) {
        gpusync_result result = gpusync_wait(r->queue, r->settled + 1, limit, &options);
        if (!gpusync_is_done(r->queue, r->settled + 1)) { /* the GPU hangs: it may still use the frame's memory */
            gpusync_device_report(r->device, r->report, sizeof r->report);
            return result;
        }
        r->settled++;
        if (result == GPUSYNC_OK) r->good++;
        else r->dropped++, snprintf(r->why, sizeof r->why, "%s", error.message);
    }
    return gpusync_device_is_lost(r->device) ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK;
}

static gpusync_result draw(renderer *r)
{
    void *command_buffer;
    gpusync_result result = settle(r, r->newest + 1 - DEPTH);
    if (result == GPUSYNC_OK) result = gpusync_command_buffer_create(r->queue, NULL, limit, &command_buffer);
    if (result != GPUSYNC_OK) return result;
    r->encode(command_buffer, r->newest + 1);
    result = gpusync_commit(r->queue, command_buffer, &r->newest);
    if (result != GPUSYNC_OK) gpusync_command_buffer_discard(r->queue, command_buffer);
    return result;
}

/* Draws up to so many frames, and waits for the last ones. */
static gpusync_result run(renderer *r, int frames)
{
    gpusync_result result = GPUSYNC_OK;
    while (result == GPUSYNC_OK && frames--) result = draw(r);
    return result == GPUSYNC_OK ? settle(r, r->newest) : result;
}

/* -- its test ----------------------------------------------------------------------------------------------------- */

#include "softmetal.h"

enum { UNLUCKY = 8 }; /* the frame that something happens to */
static int checks;
static renderer loop;
static void *hung; /* a command buffer */

static void check_at(int line, bool good, const char *what)
{
    checks++;
    if (good) return;
    printf("test_render_loop.c:%d: WRONG: %s\n", line, what);
    exit(1);
}
#define CHECK(condition) check_at(__LINE__, condition, #condition)

static void draw_well(void *command_buffer, gpusync_ticket frame)
{
    (void)frame;
    softmetal_set_duration(command_buffer, 1000000);
    metal_end(metal_blit_begin(command_buffer));
}

static void draw_one_that_fails(void *command_buffer, gpusync_ticket frame)
{
    draw_well(command_buffer, frame);
    if (frame == UNLUCKY) softmetal_fail_as(command_buffer, SOFTMETAL_PAGE_FAULT, "a page fault, on purpose");
}

static void draw_one_that_hangs(void *command_buffer, gpusync_ticket frame)
{
    draw_well(command_buffer, frame);
    if (frame != UNLUCKY) return;
    softmetal_hang(command_buffer);
    hung = metal_retain(command_buffer); /* to let it go later */
}

static void draw_until_the_device_goes(void *command_buffer, gpusync_ticket frame)
{
    draw_well(command_buffer, frame);
    if (frame == UNLUCKY) softmetal_remove_device(gpusync_device_metal(loop.device));
}

static void begin(void (*encode)(void *, gpusync_ticket))
{
    softmetal_reset(); /* no fault is left from the test before */
    memset(&loop, 0, sizeof loop);
    loop.encode = encode;
    CHECK(gpusync_device_create(NULL, &loop.device) == GPUSYNC_OK);
    CHECK(gpusync_queue_create(loop.device, NULL, &loop.queue) == GPUSYNC_OK);
}

static void end(void)
{
    CHECK(gpusync_queue_destroy(loop.queue) == GPUSYNC_OK);
    CHECK(gpusync_device_destroy(loop.device) == GPUSYNC_OK);
    CHECK(softmetal_settle(5 * limit));
    CHECK(softmetal_live("command_buffer") == 0); /* nothing that belongs to Metal is left */
    CHECK(softmetal_live("queue") == 0);
}

int main(void)
{
    uint64_t began;

    begin(draw_well);
    CHECK(run(&loop, 30) == GPUSYNC_OK);
    CHECK(loop.good == 30 && loop.dropped == 0);
    end();

    begin(draw_one_that_fails);
    CHECK(run(&loop, 30) == GPUSYNC_OK);
    CHECK(loop.good == 29 && loop.dropped == 1);
    CHECK(!strcmp(loop.why, "a page fault, on purpose"));
    end();

    begin(draw_one_that_hangs);
    began = gpusync_now_ns();
    CHECK(run(&loop, 30) == GPUSYNC_TIMEOUT); /* it does not freeze */
    CHECK(gpusync_now_ns() - began < 10 * limit);
    CHECK(loop.newest == UNLUCKY + DEPTH - 1);      /* three frames in flight, and no more */
    CHECK(strstr(loop.report, "ticket 8") != NULL); /* the report names the frame */
    softmetal_unhang(hung);
    metal_release(hung);
    CHECK(run(&loop, 20) == GPUSYNC_OK); /* a timeout has lost nothing */
    CHECK(loop.good == 30 && loop.dropped == 0);
    end();

    begin(draw_until_the_device_goes);
    CHECK(run(&loop, 30) == GPUSYNC_ERROR_DEVICE_LOST);
    CHECK(loop.newest < 30 && loop.good < UNLUCKY); /* the loop has stopped */
    CHECK(draw(&loop) == GPUSYNC_ERROR_DEVICE_LOST);
    end();

    printf("test_render_loop: all %d checks passed\n", checks);
    return 0;
}
