// cc -std=c99 event_loop.c $(pkg-config --cflags --libs libuv) -framework Metal -framework CoreGraphics
//    -framework Foundation -lobjc -o event_loop
//
// A program that lives in an event loop, libuv's here, and must never block it. Callbacks are MANUAL: when one is due,
// on whatever thread, gpusync calls `notify`, which wakes the loop, and the loop runs them where everything else runs:
//
//     Metal's thread:  handler -> notify -> uv_async_send
//     the loop:                                 '-> async -> gpusync_dispatch -> step_done -> launch the next step
//
// A loop without such a call waits for a descriptor: with/notify/gpusync_fd.h makes one.
//
// Three chains of steps go on like that, one of them fails, and a timer of 1 ms goes on ticking meanwhile.

#include <uv.h>

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "counted.h" /* gpusync.h, with a count of the threads that it blocks */
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"

enum { CHAINS = 3, STEPS = 20, SIZE = 4096, FAILING_CHAIN = 1, FAILING_STEP = 10 };

typedef struct chain {
    const char *name;
    unsigned step; /* in flight, or last done */
    void *memory;  /* step n fills it with n */
} chain;

static uv_loop_t loop;
static uv_async_t async;
static uv_timer_t timer;
static gpusync_device *device;
static gpusync_queue *queue;
static chain chains[CHAINS] = {{.name = "red"}, {.name = "green"}, {.name = "blue"}};
static unsigned chains_left = CHAINS, steps_done, steps_failed, ticks;
static uv_thread_t loop_thread;

static bool on_the_loop(void)
{
    uv_thread_t here = uv_thread_self();
    return uv_thread_equal(&here, &loop_thread) != 0;
}

/* -- the work --------------------------------------------------------------------------------------------------- */

static void step_done(void *user, gpusync_result result, const gpusync_error *error);

/* Nothing here waits, as it runs on the loop: not even for room in the queue, of which there is enough. */
static void launch(chain *c)
{
    static const uint64_t at_once = 0;
    char label[32];
    gpusync_command_buffer_desc desc = {.label = label, .timeout_ns = &at_once};
    gpusync_ticket ticket;
    void *command_buffer;
    snprintf(label, sizeof label, "%s %u", c->name, ++c->step);
    check(!gpusync_command_buffer(queue, &desc, &command_buffer), "gpusync_command_buffer");
    softmetal_set_duration(command_buffer, 2 * MS);
    if (c == &chains[FAILING_CHAIN] && c->step == FAILING_STEP)
        softmetal_fail(command_buffer, NULL, 3, "page fault on purpose");
    void *blit = metal_blit_begin(command_buffer);
    metal_fill(blit, c->memory, 0, SIZE, (unsigned char)c->step);
    metal_end(blit);
    check(!gpusync_commit(queue, command_buffer, &ticket), "gpusync_commit");
    check(!gpusync_on_done(gpusync_at_ticket(queue, ticket), step_done, c), "gpusync_on_done");
}

static void step_done(void *user, gpusync_result result, const gpusync_error *error)
{
    chain *c = (chain *)user;
    check(on_the_loop(), "callbacks run on the loop's thread");
    if (result == GPUSYNC_OK) {
        const unsigned char *bytes = (const unsigned char *)metal_contents(c->memory);
        check(bytes[0] == c->step && bytes[SIZE - 1] == c->step, "what the GPU wrote is there");
        steps_done++;
    } else {
        printf("%s: %s: %s\n", error->label, gpusync_failure_string(error->failure), error->message);
        steps_failed++;
    }
    if (result == GPUSYNC_OK && c->step < STEPS) launch(c);
    else if (--chains_left == 0) uv_stop(&loop);
}

/* -- the loop --------------------------------------------------------------------------------------------------- */

/* On any thread, and of all libuv's functions uv_async_send alone may be called there. Several make one wake-up, and
   so one dispatch runs all that is due. */
static void notify(void *user)
{
    (void)user;
    uv_async_send(&async);
}

static void dispatch(uv_async_t *handle)
{
    (void)handle;
    void *pool = metal_pool_push(); /* for what Metal autoreleases in a turn of the loop */
    check(!gpusync_dispatch(device, SIZE_MAX, NULL), "gpusync_dispatch");
    metal_pool_pop(pool);
}

static void tick(uv_timer_t *handle)
{
    (void)handle;
    if (!gpusync_is_idle(queue)) ticks++;
}

int main(void)
{
    gpusync_device_desc desc = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL, .notify = notify};
    check(!uv_loop_init(&loop) && !uv_async_init(&loop, &async, dispatch), "a loop"); /* before anything can notify */
    check(!uv_timer_init(&loop, &timer) && !uv_timer_start(&timer, tick, 1, 1), "a timer");
    loop_thread = uv_thread_self();
    check_device(gpusync_device_create(&desc, &device));
    check(!gpusync_queue_create(device, NULL, &queue), "gpusync_queue_create");
    for (int i = 0; i < CHAINS; i++) {
        chains[i].memory = metal_buffer_new(gpusync_device_metal(device), SIZE);
        check(chains[i].memory != NULL, "memory");
        launch(&chains[i]);
    }

    uv_run(&loop, UV_RUN_DEFAULT); /* until all chains have come to their end */

    gpusync_stats stats;
    check(!gpusync_get_stats(queue, &stats), "gpusync_get_stats");
    printf("steps: %u done, %u failed\n", steps_done, steps_failed);
    printf("the timer of 1 ms ticked %u times while the GPU worked\n", ticks);
    printf("threads ever blocked in gpusync, the loop's or another: %u\n", threads_blocked);
    check(steps_failed == !real_device, "the step that was made to fail, and no other");
    check(steps_done == CHAINS * STEPS - (real_device ? 0 : STEPS - FAILING_STEP + 1), "every other step is done");
    check(ticks > 0 || real_device, "the timer ticked while the GPU worked");
    check(threads_blocked == 0 && stats.waits_sleep + stats.waits_unmet == 0, "nothing of gpusync's blocked the loop");

    check(!gpusync_queue_destroy(queue) && !gpusync_device_destroy(device), "destroy"); /* no callback comes any more */
    uv_close((uv_handle_t *)&async, NULL);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    check(!uv_loop_close(&loop), "the loop ends");
    for (int i = 0; i < CHAINS; i++) metal_release(chains[i].memory);
    printf("event_loop: all %d checks passed\n", checks);
    return 0;
}
