/* bench.c - gpusync beside what one writes by hand, by the wall clock: see bench.sh */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.h"

#define ROUNDS_MOST 1000u
#define AHEAD 4u /* operations before those that are measured */
#define ROOM 256u

typedef enum way { DEVICE, GPUSYNC, BY_HAND, UNTIL, PARKED, WAYS } way;
static const char *const way_names[WAYS] = {"device", "gpusync", "by hand", "waitUntilCompleted", "gpusync, no spin"};

typedef enum kind { POLL, ENDED, WAIT, SUBMIT } kind;
static const struct row {
    const char *name;
    kind kind;
    unsigned gpu_us, count, threads; /* of one operation; operations of a thread in a round */
    unsigned ways;                   /* those that come first in way_names: the others have nothing of their own */
} rows[] = {
    {"commit, poll", POLL, 0, 200, 1, UNTIL},
    {"commit, wait: has ended", ENDED, 0, 50, 1, WAYS},
    {"commit, wait: 20 us", WAIT, 20, 20, 1, WAYS},
    {"commit, wait: 200 us", WAIT, 200, 8, 1, WAYS},
    {"commit, wait: 2 ms", WAIT, 2000, 3, 1, WAYS},
    {"submit: wait, signal", SUBMIT, 0, 50, 1, UNTIL},
    {"2 threads, wait: 20 us", WAIT, 20, 20, 2, WAYS},
};

static gpusync_device *device;
static const char *wrong; /* of this row: the first wrong result */

static void check(bool right, const char *what)
{
    if (!right && !__atomic_load_n(&wrong, __ATOMIC_SEQ_CST)) __atomic_store_n(&wrong, what, __ATOMIC_SEQ_CST);
}

static double wall_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* -- a thread's own: a queue, and what goes with it ---------------------------------------------------------------- */

typedef struct lane {
    const struct row *row;
    way way;
    void *metal_queue, *event;
    void *last; /* the newest command buffer, +1 */
    uint64_t sent;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t completed;
    double us; /* what the operations took */
    pthread_t thread;
} lane;

/* A block as a compiler makes it, with one captured pointer: this file is plain C. */
typedef struct handler {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct handler *self, void *buffer);
    const struct handler_descriptor {
        uintptr_t reserved, size;
        const char *signature;
    } *descriptor;
    lane *lane;
} handler;
extern void *bench_stack_block[32] METAL__ASM("_NSConcreteStackBlock");

static void count_one(handler *self, void *buffer)
{
    lane *l = self->lane;
    pthread_mutex_lock(&l->lock);
    check(metal_status(buffer) == 4, "a handler came with another status than Completed");
    l->completed++;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* Makes one command buffer and commits it. SUBMIT: it waits for the value of the one before, and signals the next. */
static void send(lane *l)
{
    static const struct handler_descriptor descriptor = {0, sizeof(handler), "v16@?0@8"};
    handler block = {bench_stack_block, 1 << 30, 0, count_one, &descriptor, l};
    bool gpusync = l->queue != NULL, submits = l->row->kind == SUBMIT;
    void *buffer = gpusync ? metal_retain(open_buffer(l->queue)) : metal_queue_command_buffer(l->metal_queue);
    metal_release(l->last);
    l->last = buffer;
    softmetal_set_duration(buffer, l->row->gpu_us * 1000u);
    l->sent++;
    if (gpusync && submits) {
        gpusync_point wait = gpusync_at_value(l->timeline, l->sent - 1);
        gpusync_point signal = gpusync_at_value(l->timeline, l->sent);
        gpusync_submission submission = {
            .waits = &wait, .wait_count = 1, .command_buffers = &buffer, .command_buffer_count = 1,
            .signals = &signal, .signal_count = 1,
        };
        ok(gpusync_submit(l->queue, &submission, &l->ticket));
        return;
    }
    if (gpusync) {
        ok(gpusync_commit(l->queue, buffer, &l->ticket));
        return;
    }
    if (submits) {
        metal_encode_wait(buffer, l->event, l->sent - 1);
        metal_encode_signal(buffer, l->event, l->sent);
    }
    if (l->way == BY_HAND) metal_add_completed_handler(buffer, &block);
    metal_commit(buffer);
}

/* Asks whether the newest one has ended, and does not wait. */
static void poll_it(lane *l)
{
    bool over = false;
    if (l->queue) {
        gpusync_result result = gpusync_poll(l->queue, l->ticket, NULL);
        check(result == GPUSYNC_OK || result == GPUSYNC_NOT_READY, gpusync_result_string(result));
        over = result == GPUSYNC_OK;
    } else if (l->way == BY_HAND) {
        pthread_mutex_lock(&l->lock);
        over = l->completed == l->sent;
        pthread_mutex_unlock(&l->lock);
    }
    if (over) check(metal_status(l->last) == 4, "a poll told of an end before the work had ended well");
}

static void wait_for_it(lane *l)
{
    if (l->queue) {
        check(gpusync_wait(l->queue, l->ticket, GPUSYNC_FOREVER, NULL) == GPUSYNC_OK, "a wait failed");
    } else if (l->way == UNTIL) {
        metal_wait_until_completed(l->last);
    } else {
        pthread_mutex_lock(&l->lock);
        while (l->completed < l->sent) pthread_cond_wait(&l->changed, &l->lock);
        pthread_mutex_unlock(&l->lock);
    }
    check(metal_status(l->last) == 4, "a wait returned before the work had ended well");
}

static void *operate(void *of)
{
    lane *l = (lane *)of;
    double paused = 0, from = 0;
    for (unsigned i = 0; i < AHEAD + l->row->count; i++) {
        if (i == AHEAD) {
            from = wall_us();
            paused = 0;
        }
        send(l);
        if (l->row->kind == ENDED || (l->row->kind == WAIT && l->way == DEVICE)) {
            double at = wall_us();
            check(softmetal_settle(10000000000u), "the device has not come to rest");
            paused += wall_us() - at;
        }
        if (l->row->kind == POLL) poll_it(l);
        else if (l->row->kind != SUBMIT && l->way != DEVICE) wait_for_it(l);
    }
    l->us = wall_us() - from - paused;
    return NULL;
}

static void open_lane(lane *l, const struct row *row, way by)
{
    static const gpusync_spin none = {0, 0, 0};
    gpusync_queue_desc desc = {.max_command_buffer_count = ROOM, .spin = by == PARKED ? &none : NULL};
    memset(l, 0, sizeof *l);
    l->row = row;
    l->way = by;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->metal_queue = desc.metal_queue = metal_queue_new(gpusync_device_metal(device), ROOM);
    if (row->kind == SUBMIT) l->event = metal_shared_event_new(gpusync_device_metal(device));
    if (by != GPUSYNC && by != PARKED) return;
    ok(gpusync_queue_create(device, &desc, &l->queue));
    ok(gpusync_timeline_create(device, NULL, &l->timeline));
}

/* Everything has ended, as each way tells it. */
static void close_lane(lane *l)
{
    bool submits = l->row->kind == SUBMIT;
    check(metal_status(l->last) == 4, "work did not end well");
    if (l->queue) {
        gpusync_stats stats;
        uint64_t value;
        ok(gpusync_device_get_stats(device, l->queue, &stats));
        ok(gpusync_timeline_query(l->timeline, &value));
        check(gpusync_is_done(l->queue, l->ticket), "a ticket is not done when all is over");
        check(stats.completions == l->sent && stats.failures == 0, "not every ticket has ended well");
        check(value == (submits ? l->sent : 0), "a timeline has another value");
        ok(gpusync_queue_destroy(l->queue));
        ok(gpusync_timeline_destroy(l->timeline));
    }
    if (l->way == BY_HAND) check(l->completed == l->sent, "not every handler has run");
    if (l->event && !l->queue) check(metal_event_value(l->event) == l->sent, "an event has another value");
    metal_release(l->last);
    metal_release(l->event);
    metal_release(l->metal_queue);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
}

/* What one operation took. */
static double sample(const struct row *row, way by)
{
    lane lanes[2];
    double us = 0;
    for (unsigned k = 0; k < row->threads; k++) open_lane(&lanes[k], row, by);
    for (unsigned k = 1; k < row->threads; k++)
        must(pthread_create(&lanes[k].thread, NULL, operate, &lanes[k]) == 0, "a thread");
    operate(&lanes[0]);
    for (unsigned k = 1; k < row->threads; k++) pthread_join(lanes[k].thread, NULL);
    check(softmetal_settle(10000000000u), "the device has not come to rest");
    for (unsigned k = 0; k < row->threads; k++) {
        us += lanes[k].us / row->count / row->threads;
        close_lane(&lanes[k]);
    }
    return us;
}

/* -- the table ----------------------------------------------------------------------------------------------------- */

static double us[WAYS][ROUNDS_MOST];

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool run(const struct row *row, unsigned rounds)
{
    wrong = NULL;
    for (unsigned round = 0; round < rounds; round++)
        for (unsigned k = 0; k < row->ways; k++) {
            way by = (way)((k + round) % row->ways);
            us[by][round] = sample(row, by);
        }
    printf("%-23s", row->name);
    for (unsigned k = 0; k < WAYS; k++) {
        const double *own = us[k];
        char text[64] = "     -";
        qsort(us[k], rounds, sizeof us[k][0], compare);
        if (k < row->ways)
            snprintf(text, sizeof text, "%6.1f (%.1f-%.1f)", own[rounds / 2], own[rounds / 4], own[rounds * 3 / 4]);
        printf(" | %-22s", text);
    }
    printf("  %s%s\n", wrong ? "FAILED: " : "ok", wrong ? wrong : "");
    fflush(stdout);
    return !wrong;
}

int main(int argc, char **argv)
{
    const unsigned count = sizeof rows / sizeof rows[0], rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 31;
    unsigned passed = 0;
    void *pool = metal_pool_push();
    must(rounds > 0 && rounds <= ROUNDS_MOST, "ROUNDS is from 1 to 1000");
    softmetal_reset();
    ok(gpusync_device_create(NULL, &device));
    printf("us for one operation, median (quartiles) of %u rounds\n%-23s", rounds, "");
    for (unsigned k = 0; k < WAYS; k++) printf(" | %-22s", way_names[k]);
    printf("\n");
    for (unsigned k = 0; k < count; k++) passed += run(&rows[k], rounds);
    ok(gpusync_device_destroy(device));
    metal_pool_pop(pool);
    printf("%u passed, %u failed\n", passed, count - passed);
    return passed != count;
}
