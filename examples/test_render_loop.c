// eval "$(make -s softmetal)"; eval cc test_render_loop.c $CPPFLAGS $LDLIBS -o test_render_loop
//
// How to test a program without a GPU. The first half is a render loop, three frames deep, that knows nothing of
// softmetal. The second half is its test: frames that go well, one that fails, one that hangs, a device that is removed.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { DEPTH = 3 };
static const uint64_t limit = 1000000000; /* nanoseconds: no frame of this program takes a second */

typedef struct renderer {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket newest, settled; /* the last frame that was committed, and the last whose end is known */
    int good;                       /* settled ones that went well */
    char report[2048];              /* of a loop that stopped: what is in flight */
} renderer;

static gpusync_result settle(renderer *r, gpusync_ticket up_to) /* a frame that failed is dropped: no reason to stop */
{
    while (r->settled < up_to) {
        gpusync_result result = gpusync_wait(r->queue, r->settled + 1, limit, NULL);
        if (!gpusync_is_done(r->queue, r->settled + 1)) { /* the GPU may still use the memory of the frame */
            gpusync_device_report(r->device, r->report, sizeof r->report);
            return result;
        }
        r->settled++;
        r->good += result == GPUSYNC_OK;
    }
    return gpusync_device_is_lost(r->device) ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK;
}

static gpusync_result draw(renderer *r)
{
    void *buffer;
    gpusync_result result = settle(r, r->newest + 1 - DEPTH);
    if (result == GPUSYNC_OK)
        result = gpusync_command_buffer_create(r->queue, NULL, limit, &buffer);
    if (result != GPUSYNC_OK)
        return result;
    metal_end(metal_blit_begin(buffer)); /* ... encode the frame ... */
    result = gpusync_commit(r->queue, buffer, &r->newest);
    if (result != GPUSYNC_OK)
        gpusync_command_buffer_discard(r->queue, buffer);
    return result;
}

static gpusync_result run(renderer *r, int frames) /* and waits for the last ones */
{
    gpusync_result result = GPUSYNC_OK;
    while (result == GPUSYNC_OK && frames--)
        result = draw(r);
    return result == GPUSYNC_OK ? settle(r, r->newest) : result;
}

/* -- its test ----------------------------------------------------------------------------------------------------- */

#undef NDEBUG
#include "softmetal.h"
#include <assert.h>

enum { UNLUCKY = 8 }; /* the frame that something happens to */
enum { NOTHING, FAILS, HANGS, LOSES_ITS_DEVICE };
static int what, commits;
static void *unlucky; /* its command buffer */

static void at_message(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, "commit") || ++commits != UNLUCKY)
        return;
    if (what == FAILS)
        softmetal_fail_as(object, SOFTMETAL_PAGE_FAULT, NULL);
    if (what == HANGS)
        softmetal_hang(object);
    unlucky = object;
    if (what == LOSES_ITS_DEVICE)
        softmetal_remove_device(metal_get(object, "device"));
}

static void begin(renderer *r, int next)
{
    softmetal_reset(); /* no fault is left from the test before */
    softmetal_set_message_hook(at_message, NULL);
    what = next;
    commits = 0;
    *r = (renderer){0};
    MUST(gpusync_device_create(NULL, &r->device));
    MUST(gpusync_queue_create(r->device, NULL, &r->queue));
}

static void end(renderer *r)
{
    MUST(gpusync_queue_destroy(r->queue));
    MUST(gpusync_device_destroy(r->device));
    assert(softmetal_settle(5 * limit) && !softmetal_live("command_buffer") && !softmetal_live("queue"));
}

int main(void)
{
    static renderer r;
    begin(&r, NOTHING);
    assert(run(&r, 30) == GPUSYNC_OK && r.good == 30);
    end(&r);
    begin(&r, FAILS);
    assert(run(&r, 30) == GPUSYNC_OK && r.good == 29 && r.settled == 30);
    end(&r);
    begin(&r, HANGS);
    assert(run(&r, 30) == GPUSYNC_TIMEOUT && r.newest == UNLUCKY + DEPTH - 1); /* the loop does not freeze */
    assert(strstr(r.report, "ticket 8"));                                      /* the report names the frame */
    softmetal_unhang(unlucky);
    assert(run(&r, 20) == GPUSYNC_OK && r.good == 30); /* a timeout has lost nothing */
    end(&r);
    begin(&r, LOSES_ITS_DEVICE);
    assert(run(&r, 30) == GPUSYNC_ERROR_DEVICE_LOST && r.newest < 30);
    end(&r);
    return puts("test_render_loop: 4 tests passed") < 0;
}
