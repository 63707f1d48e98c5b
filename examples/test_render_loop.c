// make softmetal says what to compile and link with: cc test_render_loop.c ...
//
// How to test a program without a GPU. The first half is a small render loop, three frames deep, that knows nothing of
// softmetal. The second half is its test: frames that go well, one that fails, one that hangs, a device that goes.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>

/* -- the program under test --------------------------------------------------------------------- */

enum { DEPTH = 3 };
#define LIMIT ((uint64_t)1000000000) /* no frame of this program takes a second */

typedef struct renderer {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket slots[DEPTH];   /* the frame that uses the slot, and with it the slot's memory */
    unsigned frame, good, dropped; /* the next frame; how those before it went */
    char why[256];                 /* the newest failure */
    char report[2048];             /* of a loop that stopped: what is in flight */
    void (*encode)(void *command_buffer, unsigned frame); /* what there is to draw */
} renderer;

static gpusync_result renderer_create(renderer *r, void (*encode)(void *command_buffer, unsigned frame))
{
    static const renderer nothing;
    gpusync_result result;
    *r = nothing;
    r->encode = encode;
    result = gpusync_device_create(NULL, &r->device);
    return result ? result : gpusync_queue_create(r->device, NULL, &r->queue);
}

/* How did the frame end that has the slot? One that failed is dropped: no reason to stop. */
static gpusync_result settle(renderer *r, unsigned slot)
{
    gpusync_error error;
    gpusync_wait_options options = {0};
    gpusync_result result;
    if (r->slots[slot] == GPUSYNC_NO_TICKET) return GPUSYNC_OK;
    options.error = &error;
    result = gpusync_wait_ex(r->queue, r->slots[slot], LIMIT, &options);
    if (result == GPUSYNC_TIMEOUT) { /* the GPU hangs: it may still use the slot, which stays as it is */
        gpusync_report(r->device, r->report, sizeof r->report);
        return result;
    }
    if (result != GPUSYNC_OK && result != GPUSYNC_ERROR_EXECUTION) return result; /* it may not have ended: as above */
    r->slots[slot] = GPUSYNC_NO_TICKET;
    if (result == GPUSYNC_OK) {
        r->good++;
        return result;
    }
    r->dropped++;
    snprintf(r->why, sizeof r->why, "%s", error.message);
    return gpusync_device_is_lost(r->device) ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK;
}

static gpusync_result draw(renderer *r)
{
    static const uint64_t limit = LIMIT;
    unsigned slot = r->frame % DEPTH;
    char label[32];
    gpusync_command_buffer_desc desc = {0};
    void *command_buffer;
    gpusync_result result = settle(r, slot);
    if (result) return result;
    snprintf(label, sizeof label, "frame %u", r->frame);
    desc.label = label;
    desc.timeout_ns = &limit;
    result = gpusync_command_buffer(r->queue, &desc, &command_buffer);
    if (result) return result;
    r->encode(command_buffer, r->frame);
    result = gpusync_commit(r->queue, command_buffer, &r->slots[slot]);
    if (result) gpusync_command_buffer_discard(r->queue, command_buffer);
    else r->frame++;
    return result;
}

/* Draws up to so many frames, and waits for the last ones. */
static gpusync_result run(renderer *r, unsigned frames)
{
    gpusync_result result = GPUSYNC_OK;
    while (!result && frames--) result = draw(r);
    for (unsigned i = 0; !result && i < DEPTH; i++) result = settle(r, (r->frame + i) % DEPTH);
    return result;
}

static void renderer_destroy(renderer *r)
{
    gpusync_queue_destroy(r->queue); /* waits for what is in flight */
    gpusync_device_destroy(r->device);
}

/* -- its test ----------------------------------------------------------------------------------- */

#include "softmetal.h"

static unsigned checks;
static renderer loop;
static unsigned unlucky; /* the frame that something happens to */
static void *hung;       /* its command buffer */

static void check_at(int line, bool good, const char *what)
{
    checks++;
    if (good) return;
    printf("test_render_loop.c:%d: WRONG: %s\n", line, what);
    exit(1);
}
#define CHECK(condition) check_at(__LINE__, condition, #condition)

/* What is drawn, each frame for a millisecond. A frame needs no memory here. */
static void draw_well(void *command_buffer, unsigned frame)
{
    void *pool = metal_pool_push();
    (void)frame;
    softmetal_set_duration(command_buffer, 1000000);
    metal_end(metal_blit_begin(command_buffer));
    metal_pool_pop(pool);
}

static void draw_one_that_fails(void *command_buffer, unsigned frame)
{
    draw_well(command_buffer, frame);
    if (frame == unlucky) softmetal_fail(command_buffer, NULL, 3, "a page fault, on purpose");
}

static void draw_one_that_hangs(void *command_buffer, unsigned frame)
{
    draw_well(command_buffer, frame);
    if (frame != unlucky) return;
    softmetal_hang(command_buffer);
    hung = metal_retain(command_buffer); /* to let it go later */
}

static void draw_until_the_device_goes(void *command_buffer, unsigned frame)
{
    draw_well(command_buffer, frame);
    if (frame == unlucky) softmetal_remove_device(gpusync_device_metal(loop.device));
}

static void begin(void (*encode)(void *, unsigned), unsigned which)
{
    softmetal_reset(); /* no fault is left from the test before */
    unlucky = which;
    CHECK(renderer_create(&loop, encode) == GPUSYNC_OK);
}

static void end(void)
{
    renderer_destroy(&loop);
    CHECK(softmetal_settle(5000000000));
    CHECK(softmetal_live("command_buffer") == 0); /* nothing that belongs to Metal is left */
    CHECK(softmetal_live("queue") == 0);
}

static void test_frames_that_go_well(void)
{
    begin(draw_well, 0);
    CHECK(run(&loop, 30) == GPUSYNC_OK);
    CHECK(loop.good == 30 && loop.dropped == 0);
    end();
}

static void test_a_frame_that_fails(void)
{
    begin(draw_one_that_fails, 7);
    CHECK(run(&loop, 30) == GPUSYNC_OK);
    CHECK(loop.good == 29 && loop.dropped == 1);
    CHECK(!strcmp(loop.why, "a page fault, on purpose"));
    end();
}

static void test_a_hang(void)
{
    uint64_t began;
    begin(draw_one_that_hangs, 7);
    began = gpusync_now_ns();
    CHECK(run(&loop, 30) == GPUSYNC_TIMEOUT); /* it does not freeze */
    CHECK(gpusync_now_ns() - began < 10 * LIMIT);
    CHECK(loop.frame == 10);                       /* three frames in flight, and no more */
    CHECK(strstr(loop.report, "frame 7") != NULL); /* the report names the frame */
    softmetal_unhang(hung);
    metal_release(hung);
    CHECK(run(&loop, 20) == GPUSYNC_OK); /* a timeout has lost nothing */
    CHECK(loop.good == 30 && loop.dropped == 0);
    end();
}

static void test_a_device_that_goes(void)
{
    begin(draw_until_the_device_goes, 7);
    CHECK(run(&loop, 30) == GPUSYNC_ERROR_DEVICE_LOST);
    /* A removed device loses its work a moment later: ask when the work is over. */
    CHECK(softmetal_settle(5000000000));
    CHECK(gpusync_device_is_lost(loop.device));
    CHECK(loop.good <= 7 && loop.frame < 30); /* and the loop has stopped */
    CHECK(draw(&loop) == GPUSYNC_ERROR_DEVICE_LOST);
    end();
}

int main(void)
{
    test_frames_that_go_well();
    test_a_frame_that_fails();
    test_a_hang();
    test_a_device_that_goes();
    printf("test_render_loop: all %u checks passed\n", checks);
    return 0;
}
