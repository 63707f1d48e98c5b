// cc -std=c99 event_loop.c $(pkg-config --cflags --libs libuv) -framework Metal
//     -framework CoreGraphics -framework Foundation -lobjc -o event_loop
//
// A program that lives in an event loop, libuv's here, and must never block it. Callbacks are MANUAL: when one is due,
// on whatever thread, gpusync calls notify, which wakes the loop, and the loop runs the callbacks:
//
//     Metal's thread:  handler -> notify -> uv_async_send
//     the loop:                                 '-> run_callbacks -> step_done -> launch the next step
//
// Three chains of steps go on like that, one of them is cancelled, and a timer goes on ticking meanwhile. A loop
// without such a call waits for a descriptor: with/notify/gpusync_fd.h makes one.

#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { CHAINS = 3, STEPS = 20, SIZE = 1 << 20, FILLS = 16, CANCELLED = 1, CANCELLED_STEP = 10 };

typedef struct chain {
    const char *name;
    gpusync_queue *queue; /* of its own: held work of a chain holds up no other chain */
    unsigned char step; /* in flight, or last done */
    void *memory;       /* step n fills it with n */
} chain;

static uv_loop_t loop;
static uv_async_t async;
static uv_timer_t timer;
static gpusync_device *device;
static gpusync_timeline *never; /* nothing signals it */
static chain chains[CHAINS] = {{.name = "red"}, {.name = "green"}, {.name = "blue"}};
static unsigned chains_left = CHAINS, done, cancelled, wrong, ticks;

static void check(const char *call, gpusync_result result)
{
    if (result == GPUSYNC_OK) return;
    fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    exit(result == GPUSYNC_ERROR_NO_DEVICE ? 77 : 1); /* 77: skipped */
}
#define CHECK(call) check(#call, call)

static void step_done(void *user, gpusync_result result, const gpusync_error *error);

/* Runs on the loop, so it waits for nothing: not for room in the queue either (the limit is 0). */
static void launch(chain *c)
{
    gpusync_command_buffer_desc desc = {.label = c->name};
    gpusync_ticket ticket;
    void *buffer, *blit;
    CHECK(gpusync_command_buffer_create(c->queue, &desc, 0, &buffer));
    c->step++;
    if (c == &chains[CANCELLED] && c->step == CANCELLED_STEP)
        CHECK(gpusync_encode_wait(c->queue, buffer, gpusync_at_value(never, 1)));
    blit = metal_blit_begin(buffer);
    if (!blit) check("blitCommandEncoder", GPUSYNC_ERROR_METAL_NIL);
    for (int i = 0; i < FILLS; i++) metal_fill(blit, c->memory, 0, SIZE, c->step); /* takes a while */
    metal_end(blit);
    CHECK(gpusync_commit(c->queue, buffer, &ticket));
    CHECK(gpusync_on_done(gpusync_at_ticket(c->queue, ticket), step_done, c));
}

static void step_done(void *user, gpusync_result result, const gpusync_error *error)
{
    chain *c = (chain *)user;
    if (result == GPUSYNC_OK) {
        wrong += ((unsigned char *)metal_contents(c->memory))[SIZE - 1] != c->step;
        done++;
        if (c->step < STEPS) {
            launch(c);
            return;
        }
    } else {
        printf("%s, step %d: %s\n", error->label, c->step, error->message);
        cancelled++;
    }
    if (--chains_left == 0) uv_stop(&loop);
}

/* On any thread: of all libuv's functions uv_async_send alone may be called there. Several calls make one wake-up, so
   one turn of the loop runs all that is due. */
static void notify(void *user)
{
    (void)user;
    uv_async_send(&async);
}

static void run_callbacks(uv_async_t *handle)
{
    void *pool = metal_pool_push(); /* for what Metal autoreleases in a turn of the loop */
    (void)handle;
    CHECK(gpusync_device_run_callbacks(device, SIZE_MAX, NULL));
    metal_pool_pop(pool);
}

static void tick(uv_timer_t *handle)
{
    (void)handle;
    ticks++;
    if (chains[CANCELLED].step == CANCELLED_STEP) CHECK(gpusync_queue_cancel_held(chains[CANCELLED].queue));
}

int main(void)
{
    gpusync_device_desc desc = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL, .notify = notify};
    if (uv_loop_init(&loop) || uv_async_init(&loop, &async, run_callbacks)) return 1; /* before anything can notify */
    if (uv_timer_init(&loop, &timer) || uv_timer_start(&timer, tick, 1, 1)) return 1;
    CHECK(gpusync_device_create(&desc, &device));
    CHECK(gpusync_timeline_create(device, NULL, &never));
    for (chain *c = chains; c < chains + CHAINS; c++) {
        CHECK(gpusync_queue_create(device, NULL, &c->queue));
        c->memory = metal_buffer_new(gpusync_device_metal(device), SIZE);
        if (!c->memory) check("newBufferWithLength:options:", GPUSYNC_ERROR_METAL_NIL);
        launch(c);
    }

    uv_run(&loop, UV_RUN_DEFAULT); /* until all chains have come to their end */

    for (chain *c = chains; c < chains + CHAINS; c++) CHECK(gpusync_queue_destroy(c->queue)), metal_release(c->memory);
    CHECK(gpusync_timeline_destroy(never));
    CHECK(gpusync_device_destroy(device)); /* nothing notifies any more */
    uv_close((uv_handle_t *)&async, NULL);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    printf("steps: %u done, %u wrong, %u cancelled; the timer ticked %u times\n", done, wrong, cancelled, ticks);
    return wrong || cancelled != 1 || done != (CHAINS - 1) * STEPS + CANCELLED_STEP - 1;
}
