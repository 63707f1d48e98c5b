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

static const struct row {
    const char *name;
    unsigned gpu_us, count; /* of one operation; operations of a round */
} rows[] = {{"20 us", 20, 20}, {"200 us", 200, 8}, {"2 ms", 2000, 3}};

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

/* -- a queue, and what goes with it -------------------------------------------------------------------------------- */

typedef struct lane {
    const struct row *row;
    way way;
    void *metal_queue;
    void *last; /* the newest command buffer, +1 */
    uint64_t sent;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t completed;
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

/* Makes one command buffer and commits it. */
static void send(lane *l)
{
    static const struct handler_descriptor descriptor = {0, sizeof(handler), "v16@?0@8"};
    handler block = {bench_stack_block, 1 << 30, 0, count_one, &descriptor, l};
    void *buffer = l->queue ? metal_retain(open_buffer(l->queue)) : metal_queue_command_buffer(l->metal_queue);
    metal_release(l->last);
    l->last = buffer;
    softmetal_set_duration(buffer, l->row->gpu_us * 1000u);
    l->sent++;
    if (l->queue) {
        ok(gpusync_commit(l->queue, buffer, &l->ticket));
        return;
    }
    if (l->way == BY_HAND) metal_add_completed_handler(buffer, &block);
    metal_commit(buffer);
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
    if (by == GPUSYNC || by == PARKED) ok(gpusync_queue_create(device, &desc, &l->queue));
}

/* Everything has ended, as each way tells it. */
static void close_lane(lane *l)
{
    check(metal_status(l->last) == 4, "work did not end well");
    if (l->queue) {
        gpusync_stats stats;
        ok(gpusync_device_get_stats(device, l->queue, &stats));
        check(gpusync_is_done(l->queue, l->ticket), "a ticket is not done when all is over");
        check(stats.completions == l->sent && stats.failures == 0, "not every ticket has ended well");
        ok(gpusync_queue_destroy(l->queue));
    }
    if (l->way == BY_HAND) check(l->completed == l->sent, "not every handler has run");
    metal_release(l->last);
    metal_release(l->metal_queue);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
}

/* What one operation took. */
static double sample(const struct row *row, way by)
{
    double paused = 0, from = 0, took;
    lane l;
    open_lane(&l, row, by);
    for (unsigned i = 0; i < AHEAD + row->count; i++) {
        if (i == AHEAD) {
            from = wall_us();
            paused = 0;
        }
        send(&l);
        if (by == DEVICE) {
            double at = wall_us();
            check(softmetal_settle(10000000000u), "the device has not come to rest");
            paused += wall_us() - at;
        } else {
            wait_for_it(&l);
        }
    }
    took = wall_us() - from - paused;
    check(softmetal_settle(10000000000u), "the device has not come to rest");
    close_lane(&l);
    return took / row->count;
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
        for (unsigned k = 0; k < WAYS; k++) {
            way by = (way)((k + round) % WAYS);
            us[by][round] = sample(row, by);
        }
    printf("%-23s", row->name);
    for (unsigned k = 0; k < WAYS; k++) {
        const double *own = us[k];
        char text[64];
        qsort(us[k], rounds, sizeof us[k][0], compare);
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
    printf("us for a commit and a wait, median (quartiles) of %u rounds\n%-23s", rounds, "");
    for (unsigned k = 0; k < WAYS; k++) printf(" | %-22s", way_names[k]);
    printf("\n");
    for (unsigned k = 0; k < count; k++) passed += run(&rows[k], rounds);
    ok(gpusync_device_destroy(device));
    metal_pool_pop(pool);
    printf("%u passed, %u failed\n", passed, count - passed);
    return passed != count;
}
