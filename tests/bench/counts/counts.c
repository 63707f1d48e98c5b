/* counts.c - what gpusync's calls cost, counted instead of timed

   Three ways to run it (counts.sh does all):
     counts events      counts messages, allocations, wake-ups and command buffers by itself
     counts memory      counts the bytes that the device holds at the peak of a burst, and some seconds later
     counts callgrind   under valgrind --tool=callgrind: one dump of instructions and system calls for each scenario

   The manual clock, so that nothing else runs and every run counts the same. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
#define SUBMITTED 30u /* by each of two queues: no more than a device keeps the memory of */

static gpusync_device *device;
static void *metal_device;
static gpusync_timeline *timeline; /* stands at REACHED */
#define REACHED 5u

static void must(bool condition, const char *what)
{
    if (condition) return;
    printf("counts: failed: %s\n", what);
    exit(1);
}
#define ok(call) must((call) == GPUSYNC_OK, #call)

/* -- counters ----------------------------------------------------------------------------------------- */

static unsigned long allocations, parks, unparks;
static size_t held_bytes; /* of the device's allocator; other threads change it, too */

static void *count_allocate(void *user, size_t size, size_t alignment)
{
    void *memory = NULL;
    (void)user;
    allocations++;
    __atomic_fetch_add(&held_bytes, size, __ATOMIC_SEQ_CST);
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

static void count_release(void *user, void *memory, size_t size)
{
    (void)user;
    __atomic_fetch_sub(&held_bytes, size, __ATOMIC_SEQ_CST);
    free(memory);
}

/* Hooks over one semaphore-like pair: a thread at a time sleeps here. */
static pthread_mutex_t bed = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t rise; /* goes by the clock of gpusync_now_ns */
static bool permit, asleep;
static void (*in_park)(void); /* what a wait of this very thread sleeps for; NULL: others see to it */
static bool stretching;       /* this unpark ends a stretch that is counted */

static void count_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    struct timespec deadline;
    (void)user;
    (void)waiter;
    if (in_park) {
        in_park();
        return;
    }
    deadline.tv_sec = (time_t)(deadline_ns / 1000000000u);
    deadline.tv_nsec = (long)(deadline_ns % 1000000000u);
    pthread_mutex_lock(&bed);
    parks++;
    asleep = true;
    pthread_cond_broadcast(&rise);
    while (!permit) {
        if (deadline_ns == GPUSYNC_FOREVER)
            pthread_cond_wait(&rise, &bed);
        else if (pthread_cond_timedwait(&rise, &bed, &deadline)) /* as of a destroy, which looks again */
            break;
    }
    permit = asleep = false;
    pthread_mutex_unlock(&bed);
}

static void count_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    (void)waiter;
    if (stretching) CALLGRIND_DUMP_STATS_AT("to_unpark");
    pthread_mutex_lock(&bed);
    unparks++;
    permit = true;
    pthread_cond_broadcast(&rise);
    pthread_mutex_unlock(&bed);
}

static void make_the_bed(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&rise, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static gpusync_timeline *open_timeline(void)
{
    gpusync_timeline *opened;
    ok(gpusync_timeline_create(device, NULL, &opened));
    return opened;
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
    timeline = open_timeline();
    ok(gpusync_timeline_signal(timeline, REACHED));
}

static void close_device(void)
{
    ok(gpusync_timeline_destroy(timeline));
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

/* A queue that has worked and is drained: so many tickets that failed, of which a wait has told, and n others. */
static gpusync_queue *drained_queue(unsigned failures, unsigned n)
{
    gpusync_queue *queue = open_queue();
    unsigned i;
    softmetal_fail_next(failures, 1);
    for (i = 0; i < failures + n; i++) ok(gpusync_commit(queue, open_buffer(queue), NULL));
    finish(queue);
    must(gpusync_queue_wait(queue, 0) == (failures ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK), "the failures");
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
__attribute__((noinline)) uint64_t count_inline_in_flight(const gpusync_queue *queue);
uint64_t count_inline_in_flight(const gpusync_queue *queue)
{
    return gpusync_in_flight(queue);
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
static void ask_in_flight(gpusync_queue *queue, gpusync_ticket ticket)
{
    (void)ticket;
    must(count_inline_in_flight(queue) == 0, "none in flight");
}
static void ask_value(gpusync_queue *queue, gpusync_ticket ticket)
{
    uint64_t value;
    (void)queue;
    (void)ticket;
    ok(gpusync_timeline_query(timeline, &value));
    must(value == REACHED, "the value");
}
static void ask_value_wait(gpusync_queue *queue, gpusync_ticket ticket)
{
    (void)queue;
    (void)ticket;
    ok(gpusync_timeline_wait(timeline, REACHED, GPUSYNC_FOREVER, NULL));
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
    gpusync_ticket ticket; /* after the failures */
    unsigned failures;
} scenario;

static const scenario scenarios[] = {
    {"wait_never_used", ask_wait, false, GPUSYNC_NO_TICKET},
    {"wait_idle", ask_wait, true, 5},
    {"queue_wait_never_used", ask_queue_wait, false, 0},
    {"queue_wait_idle", ask_queue_wait, true, 0},
    {"wait_1_failure", ask_wait, true, 5, 1},
    {"wait_64_failures", ask_wait, true, 5, 64},
    {"queue_wait_1_failure", ask_queue_wait, true, 0, 1},
    {"queue_wait_64_failures", ask_queue_wait, true, 0, 64},
    {"is_idle", ask_is_idle, true, 0},
    {"is_done", ask_is_done, true, 5},
    {"in_flight", ask_in_flight, true, 0},
    {"timeline_query", ask_value, true, 0},
    {"timeline_wait", ask_value_wait, true, 0},
    {"commit", do_commit, true, 0},
    {"commit_foreign", do_commit_foreign, true, 0},
};

static void run_scenario(const scenario *s, bool events)
{
    gpusync_queue *queue = s->used ? drained_queue(s->failures, REPEAT) : open_queue();
    gpusync_ticket ticket = s->ticket + s->failures;
    uint64_t messages, counts;
    unsigned long allocated;
    unsigned i;
    s->act(queue, ticket); /* the first time binds symbols and caches */
    finish(queue);
    allocated = allocations;
    messages = softmetal_thread_messages();
    counts = softmetal_retain_count_calls();
    CALLGRIND_ZERO_STATS;
    for (i = 0; i < REPEAT; i++) s->act(queue, ticket);
    CALLGRIND_DUMP_STATS_AT(s->name);
    messages = softmetal_thread_messages() - messages;
    counts = softmetal_retain_count_calls() - counts;
    if (events)
        printf("%s %g %g %g\n", s->name, (double)messages / REPEAT, (double)counts / REPEAT,
               (double)(allocations - allocated) / REPEAT);
    finish(queue);
    ok(gpusync_queue_destroy(queue));
}

/* -- polls of a ticket whose work runs --------------------------------------------------------------------- */

static void run_polls(bool events)
{
    gpusync_queue *queue = open_queue();
    gpusync_ticket ticket;
    uint64_t messages = 0, counts = 0;
    unsigned long allocated = 0;
    unsigned i;
    ok(gpusync_commit(queue, open_buffer(queue), &ticket));
    for (i = 0; i <= REPEAT; i++) {
        if (i == 1) { /* the first one binds symbols and caches */
            allocated = allocations;
            messages = softmetal_thread_messages();
            counts = softmetal_retain_count_calls();
            CALLGRIND_ZERO_STATS;
        }
        must(gpusync_poll(queue, ticket) == GPUSYNC_NOT_READY, "it runs");
    }
    CALLGRIND_DUMP_STATS_AT("poll");
    messages = softmetal_thread_messages() - messages;
    counts = softmetal_retain_count_calls() - counts;
    if (events)
        printf("poll %g %g %g\n", (double)messages / REPEAT, (double)counts / REPEAT,
               (double)(allocations - allocated) / REPEAT);
    finish(queue);
    ok(gpusync_queue_destroy(queue));
}

/* -- commits of Metal 4, of this many command buffers each ------------------------------------------------ */

#define MOST_TOGETHER 8u

static void run_commits4(unsigned together, bool events)
{
    gpusync_queue_desc desc = {0};
    gpusync_queue *queue;
    void *buffers[REPEAT + 1][MOST_TOGETHER], *allocator = metal4_allocator_new(metal_device);
    uint64_t messages = 0, counts = 0;
    unsigned long allocated = 0;
    char name[16];
    unsigned i, k;
    desc.metal4 = true;
    ok(gpusync_queue_create(device, &desc, &queue));
    for (i = 0; i <= REPEAT; i++)
        for (k = 0; k < together; k++) {
            buffers[i][k] = metal4_buffer_new(metal_device);
            metal4_begin(buffers[i][k], allocator);
            metal4_end(buffers[i][k]);
        }
    snprintf(name, sizeof name, "commit4_%u", together);
    for (i = 0; i <= REPEAT; i++) {
        if (i == 1) { /* the first one binds symbols and caches */
            allocated = allocations;
            messages = softmetal_thread_messages();
            counts = softmetal_retain_count_calls();
            CALLGRIND_ZERO_STATS;
        }
        ok(gpusync_commit4(queue, buffers[i], together, NULL));
    }
    CALLGRIND_DUMP_STATS_AT(name);
    messages = softmetal_thread_messages() - messages;
    counts = softmetal_retain_count_calls() - counts;
    if (events)
        printf("%s %g %g %g\n", name, (double)messages / REPEAT, (double)counts / REPEAT,
               (double)(allocations - allocated) / REPEAT);
    finish(queue);
    ok(gpusync_queue_destroy(queue));
    for (i = 0; i <= REPEAT; i++)
        for (k = 0; k < together; k++) metal_release(buffers[i][k]);
    metal_release(allocator);
}

/* -- submissions beside the same by hand --------------------------------------------------------------

   The work is one command buffer that waits for one value, to be signalled by a submission of another queue that the device
   has, and signals one. Where the work is encoded already the wait needs a command buffer in front, and where it is
   closed the signal needs one behind: by hand as with gpusync. */

typedef enum shape { IN_THE_WORK, IN_FRONT, AROUND, SHAPES } shape;
static const char *const shape_names[SHAPES] = {"head", "front", "around"};

typedef struct pair {
    gpusync_queue *producer, *consumer;
    gpusync_timeline *before, *after;
    void *before_event, *after_event; /* of the hand-written sequence */
    uint64_t value;
} pair;

static gpusync_point value_of(gpusync_timeline *of, uint64_t value)
{
    gpusync_point point = {0};
    point.timeline = of;
    point.value = value;
    return point;
}

/* What the device is to wait for: issued, not ended. */
static void produce(pair *p)
{
    gpusync_point signal = value_of(p->before, ++p->value);
    gpusync_submission submission = {0};
    submission.signals = &signal;
    submission.signal_count = 1;
    ok(gpusync_submit(p->producer, &submission, NULL));
}

/* With the wait at the head of the work, making it is part of the sequence. */
__attribute__((noinline)) void count_submit(pair *p, shape how, void *work);
void count_submit(pair *p, shape how, void *work)
{
    gpusync_point wait = value_of(p->before, p->value), signal = value_of(p->after, p->value);
    gpusync_submission submission = {0};
    if (how == IN_THE_WORK) {
        ok(gpusync_command_buffer(p->consumer, NULL, &work));
        ok(gpusync_encode_wait(p->consumer, work, wait));
        ok(gpusync_encode_signal(p->consumer, work, signal));
        ok(gpusync_commit(p->consumer, work, NULL));
        return;
    }
    if (how == IN_FRONT) ok(gpusync_encode_signal(p->consumer, work, signal));
    submission.waits = &wait;
    submission.wait_count = 1;
    submission.command_buffers = &work;
    submission.command_buffer_count = 1;
    submission.signals = &signal;
    submission.signal_count = how == AROUND;
    ok(gpusync_submit(p->consumer, &submission, NULL));
}

__attribute__((noinline)) void count_by_hand(pair *p, shape how, void *work);
void count_by_hand(pair *p, shape how, void *work)
{
    void *queue = gpusync_queue_metal(p->consumer), *front, *back;
    if (how == IN_THE_WORK) work = metal_queue_command_buffer(queue);
    front = how == IN_THE_WORK ? work : metal_queue_command_buffer(queue);
    back = how == AROUND ? metal_queue_command_buffer(queue) : work;
    metal_encode_wait(front, p->before_event, p->value);
    if (front != work) metal_commit(front);
    if (back != work) metal_commit(work);
    metal_encode_signal(back, p->after_event, p->value);
    metal_commit(back);
    if (front != work) metal_release(front);
    if (back != work) metal_release(back);
    if (how == IN_THE_WORK) metal_release(work);
}

/* Messages by selector, those of this thread alone: no other thread sends any. */
static struct tally {
    char name[40];
    unsigned long count;
} tally[32];
static unsigned tally_count;
static uint64_t tally_retains; /* and releases: no messages, but calls of the runtime */

static void see_message(void *user, softmetal_phase phase, void *object, const char *selector)
{
    unsigned i = 0;
    (void)user;
    (void)object;
    if (phase != SOFTMETAL_BEFORE) return;
    while (i < tally_count && strcmp(tally[i].name, selector)) i++;
    must(i < 32, "not so many selectors");
    if (i == tally_count) snprintf(tally[tally_count++].name, sizeof tally[0].name, "%s", selector);
    tally[i].count++;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tally *)a)->name, ((const struct tally *)b)->name);
}

static void act(pair *p, shape how, bool by_hand)
{
    void *work = how == IN_THE_WORK ? NULL : by_hand ? metal_queue_command_buffer(gpusync_queue_metal(p->consumer))
                                                     : open_buffer(p->consumer);
    softmetal_set_message_hook(see_message, NULL);
    tally_retains -= softmetal_retain_count_calls();
    if (by_hand) count_by_hand(p, how, work);
    else count_submit(p, how, work);
    tally_retains += softmetal_retain_count_calls();
    softmetal_set_message_hook(NULL, NULL);
    if (by_hand) metal_release(work);
}

/* So many in flight at a time, and then the end of them all. */
static void rounds(pair *p, shape how, bool by_hand)
{
    unsigned i;
    for (i = 0; i < SUBMITTED; i++) {
        if (by_hand) p->value++;
        else produce(p);
        act(p, how, by_hand);
    }
}

static void end_rounds(pair *p)
{
    metal_event_signal(p->before_event, p->value);
    finish(p->producer);
    finish(p->consumer);
}

static void run_submissions(shape how, bool by_hand, bool events)
{
    pair p = {0};
    char name[32];
    unsigned long allocated;
    unsigned i;
    snprintf(name, sizeof name, "%s_%s", by_hand ? "hand" : "submit", shape_names[how]);
    p.producer = open_queue();
    p.consumer = open_queue();
    p.before = open_timeline();
    p.after = open_timeline();
    p.before_event = metal_shared_event_new(metal_device);
    p.after_event = metal_shared_event_new(metal_device);
    rounds(&p, how, by_hand); /* the first time makes room */
    end_rounds(&p);
    tally_count = 0;
    tally_retains = 0;
    memset(tally, 0, sizeof tally);
    allocated = allocations;
    CALLGRIND_ZERO_STATS;
    rounds(&p, how, by_hand);
    CALLGRIND_DUMP_STATS_AT(name);
    allocated = allocations - allocated;
    if (events) {
        unsigned long all = 0;
        for (i = 0; i < tally_count; i++) all += tally[i].count;
        qsort(tally, tally_count, sizeof tally[0], by_name);
        printf("%s %g %g %g ", name, (double)all / SUBMITTED, (double)tally_retains / SUBMITTED,
               (double)allocated / SUBMITTED);
        for (i = 0; i < tally_count; i++)
            printf("%s%s=%g", i ? "," : "", tally[i].name, (double)tally[i].count / SUBMITTED);
        printf("\n");
    }
    end_rounds(&p);
    ok(gpusync_queue_destroy(p.producer));
    ok(gpusync_queue_destroy(p.consumer));
    ok(gpusync_timeline_destroy(p.before));
    ok(gpusync_timeline_destroy(p.after));
    metal_release(p.before_event);
    metal_release(p.after_event);
}

/* -- waits for many points ---------------------------------------------------------------------------- */

enum { MOST_POINTS = 4096, MANY_QUEUES = 8 };

static gpusync_timeline *awaited[MANY_QUEUES];
static uint64_t awaited_value; /* of each: those that are awaited are above it, by at most MOST_POINTS */

static void reach_all(void)
{
    unsigned i;
    awaited_value += MOST_POINTS;
    for (i = 0; i < MANY_QUEUES; i++) ok(gpusync_timeline_signal(awaited[i], awaited_value));
}

typedef enum many { ENDED, UNMET, ASLEEP, MANIES } many;
static const char *const many_names[MANIES] = {"ended", "unmet", "asleep"};

/* Tickets and values by turns; asleep: values alone, which this thread signals in its park hook. */
static void run_many(many how, size_t count, gpusync_queue *const queues[MANY_QUEUES])
{
    static gpusync_point points[MOST_POINTS];
    char name[32];
    size_t i, k;
    snprintf(name, sizeof name, "many_%s_%zu", many_names[how], count);
    in_park = reach_all;
    for (k = 0; k < 3; k++) {
        for (i = 0; i < count; i++) {
            memset(&points[i], 0, sizeof points[i]);
            if (how == ASLEEP || i % 2) {
                points[i].timeline = awaited[i % MANY_QUEUES];
                points[i].value = awaited_value + (how == ENDED ? 0 : 1 + i);
            } else {
                points[i].queue = queues[i % MANY_QUEUES];
                points[i].ticket = how == ENDED ? 1 : 2;
            }
        }
        if (k == 1) CALLGRIND_ZERO_STATS; /* the first time makes room */
        must(gpusync_wait_many(points, count, GPUSYNC_WAIT_ALL, how == ASLEEP ? GPUSYNC_FOREVER : 0, NULL, NULL) ==
                 (how == UNMET ? GPUSYNC_TIMEOUT : GPUSYNC_OK),
             name);
    }
    CALLGRIND_DUMP_STATS_AT(name);
    in_park = NULL;
}

static void run_manies(void)
{
    gpusync_queue *queues[MANY_QUEUES];
    unsigned i, how;
    for (i = 0; i < MANY_QUEUES; i++) {
        queues[i] = drained_queue(0, 1);
        ok(gpusync_commit(queues[i], open_buffer(queues[i]), NULL));
        awaited[i] = open_timeline();
    }
    for (how = 0; how < MANIES; how++) {
        run_many((many)how, MOST_POINTS / 4, queues);
        run_many((many)how, MOST_POINTS, queues);
    }
    for (i = 0; i < MANY_QUEUES; i++) {
        finish(queues[i]);
        ok(gpusync_queue_destroy(queues[i]));
        ok(gpusync_timeline_destroy(awaited[i]));
    }
}

/* -- handlers of good work, without a waiter ------------------------------------------------------------ */

static void run_handlers(void)
{
    gpusync_queue *queue = drained_queue(0, REPEAT);
    unsigned i;
    for (i = 0; i < REPEAT; i++) ok(gpusync_commit(queue, open_buffer(queue), NULL));
    CALLGRIND_ZERO_STATS;
    finish(queue);
    CALLGRIND_DUMP_STATS_AT("handler");
    must(gpusync_is_idle(queue), "all handlers have run");
    ok(gpusync_queue_destroy(queue));
}

/* -- all of gpusync's code for one command buffer: made, committed, ended by its handler, waited for asleep. The park
   hook of the wait has the work end, on this thread: so no count hangs on how threads meet. -------------------------- */

static gpusync_queue *parked_on;

static void finish_parked(void)
{
    finish(parked_on);
}

static void run_whole(void)
{
    const gpusync_spin none = {0, 0, 0, false};
    gpusync_wait_options options = {0};
    unsigned i;
    options.spin = &none;
    parked_on = drained_queue(0, REPEAT);
    in_park = finish_parked;
    for (i = 0; i < 2 * REPEAT; i++) {
        gpusync_ticket ticket;
        if (i == REPEAT) CALLGRIND_ZERO_STATS; /* the first ones arm the sweep, and make waiters */
        ok(gpusync_commit(parked_on, open_buffer(parked_on), &ticket));
        ok(gpusync_wait_ex(parked_on, ticket, GPUSYNC_FOREVER, &options));
    }
    CALLGRIND_DUMP_STATS_AT("whole");
    in_park = NULL;
    ok(gpusync_queue_destroy(parked_on));
}

/* -- the three stretches of a wait that sleeps: from the call to park, from the GPU's end to unpark, and from park's
   return to the wait's. One dump for each, of the last of a few waits. ----------------------------------------------- */

static void finish_in_stretches(void)
{
    if (stretching) CALLGRIND_DUMP_STATS_AT("to_park");
    CALLGRIND_ZERO_STATS;
    finish(parked_on);
    CALLGRIND_ZERO_STATS;
}

static void run_stretches(void)
{
    const gpusync_spin none = {0, 0, 0, false};
    gpusync_wait_options options = {0};
    unsigned i;
    options.spin = &none;
    parked_on = drained_queue(0, REPEAT);
    in_park = finish_in_stretches;
    for (i = 0; i < REPEAT; i++) {
        gpusync_ticket ticket;
        ok(gpusync_commit(parked_on, open_buffer(parked_on), &ticket));
        stretching = i == REPEAT - 1;
        CALLGRIND_ZERO_STATS;
        ok(gpusync_wait_ex(parked_on, ticket, GPUSYNC_FOREVER, &options));
        if (stretching) CALLGRIND_DUMP_STATS_AT("to_return");
    }
    stretching = false;
    in_park = NULL;
    ok(gpusync_queue_destroy(parked_on));
}

/* -- messages of a whole life: commit, completion, wait ----------------------------------------------- */

static void count_commits(void)
{
    static const char *const selectors[] = {"addCompletedHandler:", "commit", "commandQueue", "status"};
    unsigned foreign, i;
    for (foreign = 0; foreign < 2; foreign++) {
        gpusync_queue *queue = drained_queue(0, 1);
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
    const gpusync_spin none = {0, 0, 0, false};
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
    s.queue = drained_queue(0, 1);
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

/* -- the memory of a burst, without its slots, which are the process's --------------------------------- */

#define BURST 100000u

static void ignore(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)error;
    ok(result);
}

static void burst_of_callbacks(gpusync_queue *queue)
{
    gpusync_ticket ticket;
    unsigned i;
    ok(gpusync_commit(queue, open_buffer(queue), &ticket));
    for (i = 0; i < BURST; i++) ok(gpusync_on_done(gpusync_at_ticket(queue, ticket), ignore, NULL));
}

static void burst_of_held_submissions(gpusync_queue *queue)
{
    gpusync_point wait = gpusync_at_value(timeline, REACHED + 1);
    gpusync_submission submission = {0};
    unsigned i;
    submission.waits = &wait;
    submission.wait_count = 1;
    for (i = 0; i < BURST; i++) ok(gpusync_submit(queue, &submission, NULL));
}

/* The sweep gives memory back two to four seconds after it was last needed. On a slow machine it may be later. */
static void await_the_sweep(size_t most)
{
    const struct timespec moment = {0, 10000000};
    uint64_t limit = gpusync_now_ns() + UINT64_C(20000000000);
    while (__atomic_load_n(&held_bytes, __ATOMIC_SEQ_CST) > most && gpusync_now_ns() < limit) nanosleep(&moment, NULL);
}

static void run_burst(const char *name, void (*burst)(gpusync_queue *queue))
{
    gpusync_queue *queue;
    gpusync_queue_desc desc = {0};
    size_t peak;
    desc.max_command_buffer_count = 2 * BURST; /* not all of them may be held */
    ok(gpusync_queue_create(device, &desc, &queue));
    burst(queue);
    peak = __atomic_load_n(&held_bytes, __ATOMIC_SEQ_CST);
    ok(gpusync_timeline_signal(timeline, REACHED + 1));
    finish(queue);
    ok(gpusync_queue_wait(queue, GPUSYNC_FOREVER));
    await_the_sweep(peak / 10);
    printf("%s %zu %zu\n", name, peak, __atomic_load_n(&held_bytes, __ATOMIC_SEQ_CST));
    ok(gpusync_queue_destroy(queue));
}

static void run_bursts(void)
{
    softmetal_let_timers_run(true);
    run_burst("callbacks", burst_of_callbacks);
    ok(gpusync_timeline_destroy(timeline));
    timeline = open_timeline();
    run_burst("submissions", burst_of_held_submissions);
}

int main(int argc, char **argv)
{
    bool events = argc > 1 && strcmp(argv[1], "events") == 0;
    size_t i;
    make_the_bed();
    open_device();
    if (argc > 1 && strcmp(argv[1], "memory") == 0) {
        run_bursts();
        close_device();
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "whole") == 0) {
        run_whole();
        run_stretches();
        close_device();
        return 0;
    }
    for (i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) run_scenario(&scenarios[i], events);
    run_polls(events);
    run_commits4(1, events);
    run_commits4(MOST_TOGETHER, events);
    for (i = 0; i < SHAPES; i++) {
        run_submissions((shape)i, true, events);
        run_submissions((shape)i, false, events);
    }
    if (!events) run_manies();
    if (!events) run_handlers();
    if (events) {
        count_commits();
        count_sleeps();
    }
    close_device();
    return 0;
}
