// cc -std=c99 event_loop.c $(pkg-config --cflags --libs libuv) -framework Metal -framework CoreGraphics
//     -framework Foundation -lobjc -o event_loop
//
// A program in an event loop, here libuv's, which nothing may block. gpusync calls notify when callbacks are due, on any
// thread; notify wakes the loop, and the loop runs the callbacks. Three chains of steps go on like that: the callback of
// a step launches the next one. A timer cancels one chain, as a task is cancelled: it withdraws the callback, so that the
// chain may go at once, and ends the work that is held.

#include <uv.h>

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

enum { CHAINS = 3, STEPS = 20, SIZE = 1 << 20, FILLS = 16, CANCELLED = 1, CANCELLED_STEP = 10 };

typedef struct chain {
    const char *name;
    gpusync_queue *queue;  /* of its own: held work of a chain holds up no other chain */
    unsigned char step;    /* in flight, or last done */
    gpusync_ticket ticket; /* of this step */
    void *memory;          /* an MTLBuffer that step n fills with n */
} chain;

static uv_loop_t loop;
static uv_async_t async;
static uv_timer_t timer;
static gpusync_device *device;
static gpusync_timeline *never; /* nothing signals it */
static chain chains[CHAINS] = {{.name = "red"}, {.name = "green"}, {.name = "blue"}};
static unsigned chains_left = CHAINS, done, wrong, cancelled, ticks;

static void step_done(void *user, gpusync_result result, const gpusync_error *error);

/* Runs on the loop, and waits for nothing: the limit for room in the queue is 0. */
static void launch(chain *c)
{
    gpusync_command_buffer_desc desc = {.label = c->name};
    void *buffer;
    MUST(gpusync_command_buffer_create(c->queue, &desc, 0, &buffer));
    c->step++;
    if (c == &chains[CANCELLED] && c->step == CANCELLED_STEP)
        MUST(gpusync_encode_wait(c->queue, buffer, gpusync_at_value(never, 1)));
    for (int i = 0; i < FILLS; i++)
        metal_must_fill(buffer, c->memory, 0, SIZE, c->step);
    MUST(gpusync_commit(c->queue, buffer, &c->ticket));
    MUST(gpusync_on_done(gpusync_at_ticket(c->queue, c->ticket), step_done, c));
}

static void chain_ends(void)
{
    if (--chains_left == 0)
        uv_stop(&loop);
}

static void step_done(void *user, gpusync_result result, const gpusync_error *error)
{
    chain *c = (chain *)user;
    if (result == GPUSYNC_OK) {
        wrong += ((unsigned char *)metal_contents(c->memory))[SIZE - 1] != c->step;
        done++;
    } else {
        printf("%s, step %d: %s\n", error->label, c->step, error->message);
        wrong++;
    }
    if (result == GPUSYNC_OK && c->step < STEPS)
        launch(c);
    else
        chain_ends();
}

/* Callbacks run on this thread alone: one that cannot be withdrawn has run. */
static void cancel(chain *c)
{
    if (gpusync_cancel_on_done(gpusync_at_ticket(c->queue, c->ticket), step_done, c) != GPUSYNC_OK)
        return;
    cancelled += gpusync_queue_cancel_held(c->queue, c->ticket) == GPUSYNC_OK; /* else the GPU has it, and goes on */
    printf("%s: cancelled in step %d\n", c->name, c->step);
    chain_ends();
}

/* On any thread: uv_async_send is the only function of libuv that may be called there. */
static void notify(void *user)
{
    uv_async_send((uv_async_t *)user);
}

static void run_callbacks(uv_async_t *handle)
{
    (void)handle;
    MUST(gpusync_device_run_callbacks(device, SIZE_MAX, NULL));
}

static void tick(uv_timer_t *handle)
{
    (void)handle;
    ticks++;
    if (chains[CANCELLED].step == CANCELLED_STEP)
        cancel(&chains[CANCELLED]);
}

int main(void)
{
    gpusync_device_desc desc = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL, .notify = notify, .notify_user = &async};
    if (uv_loop_init(&loop) || uv_async_init(&loop, &async, run_callbacks) || uv_timer_init(&loop, &timer) ||
        uv_timer_start(&timer, tick, 1, 1))
        return fprintf(stderr, "libuv has no loop, wake-up or timer\n"), 1;
    MUST(gpusync_device_create(&desc, &device));
    MUST(gpusync_timeline_create(device, NULL, &never));
    for (chain *c = chains; c < chains + CHAINS; c++) {
        MUST(gpusync_queue_create(device, NULL, &c->queue));
        c->memory = MUST_GET(metal_buffer_new(gpusync_device_metal(device), SIZE));
        launch(c);
    }

    uv_run(&loop, UV_RUN_DEFAULT); /* until each chain has come to its end */

    for (chain *c = chains; c < chains + CHAINS; c++) {
        MUST(gpusync_queue_destroy(c->queue));
        metal_release(c->memory);
    }
    MUST(gpusync_timeline_destroy(never));
    MUST(gpusync_device_destroy(device)); /* nothing calls notify any more */
    uv_close((uv_handle_t *)&async, NULL);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    printf("steps: %u done, %u wrong, %u cancelled; the timer ticked %u times\n", done, wrong, cancelled, ticks);
    return wrong || cancelled != 1 || done != (CHAINS - 1) * STEPS + CANCELLED_STEP - 1;
}
