// cc -std=c99 pacing.c -framework Metal -framework QuartzCore -framework CoreGraphics -framework Foundation -lobjc
//
// Frames at 30 a second on a display of 60 or 120, and when they were shown. The wait for the ticket two back keeps the
// CPU from running ahead of the GPU. A ticket's end is not the moment of the picture: Metal presents when the work is
// done, at a refresh of the display, and tells the moment to a presented handler. `pacing duration`, `time` or `soon`.
//
// What Metal promises (developer.apple.com/documentation):
//   metal/mtldrawable/present(afterminimumduration:)  after the drawable before was on screen for so long
//   metal/mtldrawable/present(at:)                    at a time of the host's clock; later if the work ends later
//   metal/mtldrawable/presentedtime                   0 of a drawable that was not presented, or was dropped
//   quartzcore/cadisplaylink/targettimestamp          when the next frame is displayed: `target` of present
//   quartzcore/cametaldisplaylink/update              has the drawable, and the deadline for its presentation
// A program with a display link calls draw from its callback. A CAMetalDisplayLink does the pacing itself: the program
// takes update.drawable in place of nextDrawable, and presents as soon as possible.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum { FRAMES = 24, WIDTH = 64, HEIGHT = 32, PATIENCE = 5 };
#define PERIOD (1.0 / 30)           /* seconds */
#define LIMIT UINT64_C(10000000000) /* nanoseconds */

typedef enum pace { FOR_DURATION, AT_TIME, AS_SOON } pace;

typedef struct frame {
    gpusync_ticket ticket;
    unsigned long drawable; /* its drawableID */
    bool told;              /* the presented handler has run */
    double shown;           /* seconds of the host's clock; 0: dropped */
} frame;

static frame frames[FRAMES]; /* those that were committed; a handler may come when main has left its loop */
static unsigned count, told;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the frames */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static gpusync_result failed(const char *call, gpusync_result result)
{
    if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result;
}
#define FAILED(call) failed(#call, call)

/* -- when a drawable was shown ------------------------------------------------------------------------------------- */

typedef struct block { /* laid out as ^(id<MTLDrawable> drawable) { ... }, which C99 does not have */
    void *isa;
    int flags, reserved;
    void (*invoke)(struct block *self, void *drawable);
    const struct block_descriptor { unsigned long reserved, size; } *descriptor;
} block;

/* On a thread of Metal's. Kept short: other handlers may wait behind it (KhronosGroup/MoltenVK#2543). */
static void presented(block *self, void *drawable)
{
    unsigned long number = metal_number(drawable, "drawableID");
    double shown = METAL__AS0(double)(drawable, metal__sel("presentedTime"));
    (void)self;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++) {
        if (frames[i].told || frames[i].drawable != number) continue;
        frames[i].told = true;
        frames[i].shown = shown;
        told++;
        break;
    }
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

extern void *_NSConcreteGlobalBlock[32];
static const struct block_descriptor presented_descriptor = {0, sizeof(block)};
static block on_presented = {_NSConcreteGlobalBlock, 1 << 28, 0, presented, &presented_descriptor};

/* Some systems never run the handlers, so this does not wait for ever. */
static void wait_for_the_display(void)
{
    struct timespec until = {0, 0};
    int result = 0;
    until.tv_sec = time(NULL) + 2;
    pthread_mutex_lock(&lock);
    while (told < count && result == 0) result = pthread_cond_timedwait(&changed, &lock, &until);
    pthread_mutex_unlock(&lock);
}

/* -- a frame ------------------------------------------------------------------------------------------------------- */

static void present(void *buffer, void *drawable, pace how, double target)
{
    METAL__AS(void, void *)(drawable, metal__sel("addPresentedHandler:"), &on_presented); /* before it is presented */
    if (how == AS_SOON) metal_present(buffer, drawable);
    else
        METAL__AS(void, void *, double)(
            buffer, metal__sel(how == AT_TIME ? "presentDrawable:atTime:" : "presentDrawable:afterMinimumDuration:"),
            drawable, how == AT_TIME ? target : PERIOD);
}

/* OK: the frame was committed, or left out for lack of a drawable. */
static gpusync_result draw(gpusync_queue *queue, void *layer, void *picture, pace how, double target)
{
    gpusync_ticket last = count ? frames[count - 1].ticket : GPUSYNC_NO_TICKET;
    gpusync_result result = GPUSYNC_OK;
    void *buffer, *drawable, *blit;
    if (last > 2) result = gpusync_wait(queue, last - 2, LIMIT);
    if (result == GPUSYNC_ERROR_EXECUTION) result = GPUSYNC_OK; /* a failed frame has ended; main tells of it */
    if (result != GPUSYNC_OK) return failed("gpusync_wait", result);
    result = FAILED(gpusync_command_buffer(queue, NULL, &buffer));
    if (result != GPUSYNC_OK) return result;
    drawable = metal_next_drawable(layer); /* waits while all drawables wait for the display */
    if (!drawable) return gpusync_command_buffer_discard(queue, buffer);
    blit = metal_blit_begin(buffer);
    metal_copy_to_drawable(blit, picture, WIDTH, HEIGHT, drawable);
    metal_end(blit);
    pthread_mutex_lock(&lock);
    frames[count].drawable = metal_number(drawable, "drawableID"); /* the handler may come before the commit returns */
    count++;
    pthread_mutex_unlock(&lock);
    present(buffer, drawable, how, target);
    result = FAILED(gpusync_commit(queue, buffer, &frames[count - 1].ticket));
    if (result == GPUSYNC_OK) return result;
    pthread_mutex_lock(&lock);
    count--; /* nothing is presented, so no handler comes */
    pthread_mutex_unlock(&lock);
    gpusync_command_buffer_discard(queue, buffer);
    return result;
}

static gpusync_result run(gpusync_queue *queue, void *layer, void *picture, pace how)
{
    gpusync_result result = GPUSYNC_OK;
    double start = (double)gpusync_now_ns() / 1e9; /* the clock of Metal's times */
    for (unsigned i = 1; result == GPUSYNC_OK && i <= FRAMES; i++) {
        void *pool = metal_pool_push();
        result = draw(queue, layer, picture, how, start + i * PERIOD);
        metal_pool_pop(pool);
        if (!count && i == PATIENCE) break; /* there is no display */
    }
    return result;
}

/* -- the report ---------------------------------------------------------------------------------------------------- */

static void report(gpusync_queue *queue)
{
    unsigned shown = 0, dropped = 0, timed = 0;
    double before = 0, least = 1e9, most = 0, latency = 0, gap;
    gpusync_ticket_info info;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++) {
        const frame *f = &frames[i];
        if (f->told && f->shown <= 0) dropped++;
        if (!f->told || f->shown <= 0) continue;
        gap = f->shown - before;
        if (shown++) least = gap < least ? gap : least, most = gap > most ? gap : most;
        before = f->shown;
        if (gpusync_get_info(queue, f->ticket, &info) != GPUSYNC_OK || info.gpu_end_s <= 0) continue;
        latency += f->shown - info.gpu_end_s;
        timed++;
    }
    printf("frames: %u committed, %u shown, %u dropped, %u not told of\n", count, shown, dropped, count - told);
    pthread_mutex_unlock(&lock);
    if (shown > 1) printf("from picture to picture: %.1f to %.1f ms\n", least * 1e3, most * 1e3);
    if (timed) printf("from the GPU's end to the picture: %.1f ms on average\n", latency * 1e3 / timed);
}

int main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : "duration";
    pace how = !strcmp(wanted, "duration") ? FOR_DURATION : !strcmp(wanted, "time") ? AT_TIME : AS_SOON;
    gpusync_device *device;
    gpusync_queue *queue = NULL;
    void *picture, *layer;
    gpusync_result result = gpusync_device_create(NULL, &device);
    bool good;
    if (result == GPUSYNC_ERROR_NO_DEVICE) {
        fprintf(stderr, "skipped: %s\n", gpusync_result_string(result));
        return 77;
    }
    if (failed("gpusync_device_create", result)) return 1;
    picture = metal_buffer_new(gpusync_device_metal(device), 4 * WIDTH * HEIGHT);
    layer = metal_layer_new(gpusync_device_metal(device), WIDTH, HEIGHT);
    good = !FAILED(picture && layer ? gpusync_queue_create(device, NULL, &queue) : GPUSYNC_ERROR_METAL_NIL) &&
           run(queue, layer, picture, how) == GPUSYNC_OK;
    result = gpusync_queue_wait(queue, good ? LIMIT : 0);
    if (failed("gpusync_queue_wait", result)) good = false; /* also the first failure of a frame */
    if (result != GPUSYNC_TIMEOUT) wait_for_the_display();
    report(queue);
    if (result == GPUSYNC_TIMEOUT) gpusync_queue_destroy_now(queue);
    else if (FAILED(gpusync_queue_destroy(queue))) good = false;
    if (FAILED(gpusync_device_destroy(device))) good = false;
    metal_release(layer);
    metal_release(picture);
    if (good && !count) {
        fprintf(stderr, "skipped: the layer has no drawable\n");
        return 77;
    }
    return !good;
}
