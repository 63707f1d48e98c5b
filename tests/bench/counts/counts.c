/* counts.c - what gpusync's calls cost, counted instead of timed

   Two ways to run it (counts.sh does both):
     counts events      counts messages, allocations, wake-ups and command buffers by itself
     counts callgrind   under valgrind --tool=callgrind: one dump of instructions and system calls for each scenario

   The manual clock, so that nothing else runs and every run counts the same. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../examples/metal.h"
#include "../../../gpusync.h"
#include "../../softmetal/softmetal.h"

#if defined(__has_include)
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#endif
#endif
#ifndef CALLGRIND_ZERO_STATS
#define CALLGRIND_ZERO_STATS ((void)0)
#define CALLGRIND_DUMP_STATS_AT(name) ((void)0)
#endif

#define REPEAT 50u

static gpusync_device *device;
static void *metal_device;

static void must(bool condition, const char *what)
{
    if (condition) return;
    printf("counts: failed: %s\n", what);
    exit(1);
}
#define ok(call) must((call) == GPUSYNC_OK, #call)

/* -- counters ----------------------------------------------------------------------------------------- */

static unsigned long allocations, parks, unparks;

static void *count_allocate(void *user, size_t size, size_t alignment)
{
    void *memory = NULL;
    (void)user;
    allocations++;
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

static void count_release(void *user, void *memory, size_t size)
{
    (void)user;
    (void)size;
    free(memory);
}

/* Hooks over one semaphore-like pair: a thread at a time sleeps here. */
static pthread_mutex_t bed = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t rise = PTHREAD_COND_INITIALIZER;
static bool permit, asleep;

static void count_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    (void)waiter;
    (void)deadline_ns;
    pthread_mutex_lock(&bed);
    parks++;
    asleep = true;
    pthread_cond_broadcast(&rise);
    while (!permit) pthread_cond_wait(&rise, &bed);
    permit = asleep = false;
    pthread_mutex_unlock(&bed);
}

static void count_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    (void)waiter;
    pthread_mutex_lock(&bed);
    unparks++;
    permit = true;
    pthread_cond_broadcast(&rise);
    pthread_mutex_unlock(&bed);
}

static void open_device(void)
{
    gpusync_device_desc desc = {0};
    gpusync_hooks hooks = {0};
    gpusync_allocator allocator = {count_allocate, count_release, NULL};
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    hooks.park = count_park;
    hooks.unpark = count_unpark;
    metal_device = metal_device_new();
    desc.metal_device = metal_device;
    desc.hooks = &hooks;
    desc.allocator = &allocator;
    ok(gpusync_device_create(&desc, &device));
}

static void close_device(void)
{
    ok(gpusync_device_destroy(device));
    metal_release(metal_device);
}

static gpusync_queue *open_queue(void)
{
    gpusync_queue *queue;
    gpusync_queue_desc desc = {0};
    desc.max_command_buffer_count = 4 * REPEAT;
    ok(gpusync_queue_create(device, &desc, &queue));
    return queue;
}

static void *open_buffer(gpusync_queue *queue)
{
    void *buffer;
    ok(gpusync_command_buffer(queue, NULL, &buffer));
    return buffer;
}

static void finish(gpusync_queue *queue)
{
    softmetal_finish_queue(gpusync_queue_metal(queue));
}

/* A queue that has worked and is drained: n tickets. */
static gpusync_queue *drained_queue(unsigned n)
{
    gpusync_queue *queue = open_queue();
    while (n-- > 0) ok(gpusync_commit(queue, open_buffer(queue), NULL));
    finish(queue);
    return queue;
}

/* -- scenarios: what callgrind collects are the calls named in counts.sh ------------------------------ */

/* The inline forms as a caller has them; not inlined, so that there is something to count. */
__attribute__((noinline)) bool count_inline_is_idle(const gpusync_queue *queue);
bool count_inline_is_idle(const gpusync_queue *queue)
{
    return gpusync_is_idle(queue);
}
__attribute__((noinline)) bool count_inline_is_done(const gpusync_queue *queue, gpusync_ticket ticket);
bool count_inline_is_done(const gpusync_queue *queue, gpusync_ticket ticket)
{
    return gpusync_is_done(queue, ticket);
}

static void ask_wait(gpusync_queue *queue, gpusync_ticket ticket)
{
    ok(gpusync_wait(queue, ticket, GPUSYNC_FOREVER));
}
static void ask_queue_wait(gpusync_queue *queue, gpusync_ticket ticket)
{
    (void)ticket;
    ok(gpusync_queue_wait(queue, GPUSYNC_FOREVER));
}
static void ask_is_idle(gpusync_queue *queue, gpusync_ticket ticket)
{
    (void)ticket;
    must(count_inline_is_idle(queue), "idle");
}
static void ask_is_done(gpusync_queue *queue, gpusync_ticket ticket)
{
    must(count_inline_is_done(queue, ticket), "done");
}
static void do_commit(gpusync_queue *queue, gpusync_ticket ticket)
{
    (void)ticket;
    ok(gpusync_commit(queue, open_buffer(queue), NULL));
}
static void do_commit_foreign(gpusync_queue *queue, gpusync_ticket ticket)
{
    void *buffer = metal_queue_command_buffer(gpusync_queue_metal(queue));
    (void)ticket;
    ok(gpusync_commit(queue, buffer, NULL));
    metal_release(buffer);
}

typedef struct scenario {
    const char *name;
    void (*act)(gpusync_queue *, gpusync_ticket);
    bool used;
    gpusync_ticket ticket;
} scenario;

static const scenario scenarios[] = {
    {"wait_never_used", ask_wait, false, GPUSYNC_NO_TICKET},
    {"wait_idle", ask_wait, true, 5},
    {"queue_wait_never_used", ask_queue_wait, false, 0},
    {"queue_wait_idle", ask_queue_wait, true, 0},
    {"is_idle", ask_is_idle, true, 0},
    {"is_done", ask_is_done, true, 5},
    {"commit", do_commit, true, 0},
    {"commit_foreign", do_commit_foreign, true, 0},
};

static void run_scenario(const scenario *s, bool events)
{
    gpusync_queue *queue = s->used ? drained_queue(REPEAT) : open_queue();
    uint64_t messages, counts;
    unsigned long allocated;
    unsigned i;
    s->act(queue, s->ticket); /* the first time binds symbols and caches */
    finish(queue);
    allocated = allocations;
    messages = softmetal_thread_messages();
    counts = softmetal_retain_count_calls();
    CALLGRIND_ZERO_STATS;
    for (i = 0; i < REPEAT; i++) s->act(queue, s->ticket);
    CALLGRIND_DUMP_STATS_AT(s->name);
    messages = softmetal_thread_messages() - messages;
    counts = softmetal_retain_count_calls() - counts;
    if (events)
        printf("%s %g %g %g\n", s->name, (double)messages / REPEAT, (double)counts / REPEAT,
               (double)(allocations - allocated) / REPEAT);
    finish(queue);
    ok(gpusync_queue_destroy(queue));
}

/* -- messages of a whole life: commit, completion, wait ----------------------------------------------- */

static void count_commits(void)
{
    static const char *const selectors[] = {"addCompletedHandler:", "commit", "commandQueue", "status"};
    unsigned foreign, i;
    for (foreign = 0; foreign < 2; foreign++) {
        gpusync_queue *queue = drained_queue(1);
        void *buffers[REPEAT];
        uint64_t before[4], sent, retains;
        for (i = 0; i < REPEAT; i++)
            buffers[i] = foreign ? metal_queue_command_buffer(gpusync_queue_metal(queue)) : open_buffer(queue);
        for (i = 0; i < 4; i++) before[i] = softmetal_message_count(selectors[i]);
        retains = softmetal_retain_count_calls();
        sent = softmetal_thread_messages();
        for (i = 0; i < REPEAT; i++) ok(gpusync_commit(queue, buffers[i], NULL));
        printf("commit_messages%s %g", foreign ? "_foreign" : "", (double)(softmetal_thread_messages() - sent) / REPEAT);
        printf(" %g", (double)(softmetal_retain_count_calls() - retains) / REPEAT);
        for (i = 0; i < 4; i++) printf(" %g", (double)(softmetal_message_count(selectors[i]) - before[i]) / REPEAT);
        printf("\n");
        finish(queue);
        for (i = 0; foreign && i < REPEAT; i++) metal_release(buffers[i]);
        ok(gpusync_queue_destroy(queue));
    }
}

/* -- waits that sleep --------------------------------------------------------------------------------- */

typedef struct sleeper {
    gpusync_queue *queue;
    gpusync_ticket ticket;
} sleeper;

static void *sleep_in(void *argument)
{
    const gpusync_spin none = {0, 0, 0};
    sleeper *s = (sleeper *)argument;
    gpusync_wait_options options = {0};
    options.spin = &none;
    ok(gpusync_wait_ex(s->queue, s->ticket, GPUSYNC_FOREVER, &options));
    return NULL;
}

static void await_sleeper(void)
{
    pthread_mutex_lock(&bed);
    while (!asleep) pthread_cond_wait(&rise, &bed);
    pthread_mutex_unlock(&bed);
}

static void count_sleeps(void)
{
    sleeper s;
    uint64_t buffers;
    unsigned i;
    s.queue = drained_queue(1);
    parks = unparks = 0;
    buffers = softmetal_message_count("commandBuffer");
    for (i = 0; i < REPEAT; i++) {
        pthread_t thread;
        ok(gpusync_commit(s.queue, open_buffer(s.queue), &s.ticket));
        must(pthread_create(&thread, NULL, sleep_in, &s) == 0, "pthread_create");
        await_sleeper();
        finish(s.queue);
        pthread_join(thread, NULL);
    }
    buffers = softmetal_message_count("commandBuffer") - buffers - REPEAT; /* less those that were asked for */
    printf("sleep %g %g %g\n", (double)parks / REPEAT, (double)unparks / REPEAT, (double)buffers / REPEAT);
    ok(gpusync_queue_destroy(s.queue));
}

int main(int argc, char **argv)
{
    bool events = argc > 1 && strcmp(argv[1], "events") == 0;
    size_t i;
    open_device();
    for (i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) run_scenario(&scenarios[i], events);
    if (events) {
        count_commits();
        count_sleeps();
    }
    close_device();
    return 0;
}
