/* fuzz.h - what both kinds of inputs share: the bytes, the clock, the GPU's steps, calls that make no sense

   Included once, in fuzz.c. Nothing here sleeps and nothing depends on real time: gpusync's clock is a number that
   moves a little with each look at it, and the park hook moves the GPU on, or the clock where the GPU has nothing to
   do. So an input does the same each time. */
#ifndef FUZZ_H
#define FUZZ_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "../clock.h"
#define GPUSYNC_IMPLEMENTATION
#include "../probe.h"
#undef clock_gettime

/* Every public function gets a macro of its name, which counts the call: made from gpusync.h by calls.sh. */
static uint64_t fuzz_reached[128];
static const char *volatile fuzz_doing = "nothing"; /* for the watchdog: the call in progress */
static bool fuzz_tells;                             /* every call, by its name */
static void fuzz_call(int number, const char *name)
{
    fuzz_doing = name;
    if (fuzz_tells) fprintf(stderr, "%s\n", name);
    __atomic_fetch_add(&fuzz_reached[number], 1, __ATOMIC_RELAXED);
}
#include "fuzz_calls.h"

#include "../submit_graphs.h"

/* -- saying what is wrong ----------------------------------------------------------------------------- */

/* submit_graphs.h has `expect` for its programs. */
#define must(condition, ...)                                           \
    do                                                                 \
        if (!(condition)) must_not(__LINE__, #condition, __VA_ARGS__); \
    while (0)
__attribute__((format(printf, 3, 4), noreturn)) static void must_not(int at, const char *condition, const char *format,
                                                                     ...)
{
    va_list arguments;
    fprintf(stderr, "fuzz: line %d: not so: %s: ", at, condition);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    abort();
}

/* What a call has answered, and what it may: a list that ends with END. */
#define END 99
static bool is_one_of(gpusync_result got, const int *allowed)
{
    for (; *allowed != END; allowed++)
        if ((int)got == *allowed) return true;
    return false;
}
#define answer(got, ...) answer_at((got), (const int[]){__VA_ARGS__, END}, #got, __LINE__)
static gpusync_result answer_at(gpusync_result got, const int *allowed, const char *call, int line)
{
    if (fuzz_tells) fprintf(stderr, "    %d\n", got);
    if (!is_one_of(got, allowed)) must_not(line, call, "answers %d (%s)", got, gpusync_result_string(got));
    return got;
}
#define INVALID GPUSYNC_ERROR_INVALID_ARGUMENT

/* -- the bytes ---------------------------------------------------------------------------------------- */

static struct {
    const uint8_t *at, *end;
    uint64_t filler; /* what comes when the bytes are used up: drawn from the first of them */
} input;

static bool input_is_over(void)
{
    return input.at >= input.end;
}

static unsigned byte(void)
{
    if (!input_is_over()) return *input.at++;
    input.filler ^= input.filler << 13;
    input.filler ^= input.filler >> 7;
    input.filler ^= input.filler << 17;
    return (unsigned)(input.filler >> 32) & 255;
}

static unsigned below_of(unsigned limit)
{
    return byte() % limit;
}
static bool one_in(unsigned n)
{
    return byte() % n == 1;
}

/* For submit_graphs.h, which draws below 1000 and less. */
static uint64_t draw_from_bytes(void)
{
    return byte() * 257u;
}

/* -- the GPU ------------------------------------------------------------------------------------------ */

#define METAL_QUEUES 8
static struct {
    void *queues[METAL_QUEUES]; /* +1 */
    int count;
    bool in_order; /* nothing passes what is before it on its queue, though it might */
    unsigned idle; /* parks in a row in which nothing moved */
    unsigned yields;
    void *warming; /* the queue of a warm-up: nothing moves but this one */
    unsigned naps; /* of the main thread, while that goes on */
    pthread_t main;
    void (*unstick)(unsigned idle); /* in a park, when nothing has moved for long */
} gpu;

static void gpu_add(void *queue)
{
    gpu.queues[gpu.count++] = metal_retain(queue);
}

static void gpu_forget(void)
{
    while (gpu.count > 0) metal_release(gpu.queues[--gpu.count]);
}

/* The n-th of those that can be moved on, or the last; NULL: none. */
static void *find_due(void *queue, unsigned n)
{
    void *first = softmetal_first_in_line(queue), *found = NULL, *buffer;
    unsigned k;
    for (k = 0; (buffer = softmetal_buffer_at(queue, k)) != NULL; k++) {
        softmetal_due due = softmetal_what_is_due(buffer);
        if (due != SOFTMETAL_HANDLERS_DUE && (due != SOFTMETAL_COMPLETE_DUE || (gpu.in_order && buffer != first)))
            continue;
        found = buffer;
        if (n-- == 0) break;
    }
    return found;
}

/* What listeners and dispatched functions have to do is done. The function of a warm-up has to wait for the GPU. */
static void come_to_rest_now(void)
{
    if (gpu.warming) return;
    must(softmetal_settle_listeners(SECONDS(20)), "a listener does not end");
}

/* One step of one command buffer. False: there is nothing to do on any queue. */
static bool gpu_step(unsigned which, unsigned nth, bool fully)
{
    int i;
    for (i = 0; i < gpu.count; i++) {
        void *queue = gpu.queues[(which + (unsigned)i) % (unsigned)gpu.count], *buffer;
        if (gpu.warming && queue != gpu.warming) continue;
        buffer = find_due(queue, nth);
        if (!buffer) continue;
        if (!fully && softmetal_what_is_due(buffer) == SOFTMETAL_COMPLETE_DUE)
            softmetal_complete(buffer);
        else
            softmetal_finish(buffer);
        come_to_rest_now();
        return true;
    }
    return false;
}

static bool gpu_step_any(void)
{
    unsigned which = byte(), how = byte();
    return gpu_step(which, how >> 1 & 3, how & 1);
}

static void gpu_finish(void)
{
    while (gpu_step(0, 0, true)) continue;
}

/* A function of a warm-up is at work: it sleeps, and asks for its command buffer. How often this comes round is luck, and
   takes no bytes. */
static void gpu_warm(void)
{
    struct timespec nap = {0, 20000};
    if (gpu_step(0, 0, true)) return;
    nanosleep(&nap, NULL);
    if (++gpu.naps % 256 == 0 && gpu.unstick) gpu.unstick(gpu.naps / 256 * 64);
    PUT(&clock_now, clock_now + MS(1));
}

/* -- hooks -------------------------------------------------------------------------------------------- */

/* Some look again and again, and never sleep. */
static void hook_yield(void *user)
{
    (void)user;
    if (pthread_equal(pthread_self(), gpu.main) && ++gpu.yields % 32 == 0) (void)gpu_step(0, 0, true);
}

/* Every wait that sleeps comes by here. On the main thread the GPU moves on; when it cannot, time does. */
static void hook_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter;
    if (!pthread_equal(pthread_self(), gpu.main)) { /* a warm-up's: the main thread moves on */
        struct timespec nap = {0, 20000};
        nanosleep(&nap, NULL);
        return;
    }
    if (gpu.warming) {
        gpu_warm();
        return;
    }
    come_to_rest_now();
    if (gpu_step_any()) {
        gpu.idle = 0;
        return;
    }
    gpu.idle++;
    if (gpu.unstick && gpu.idle % 64 == 0) gpu.unstick(gpu.idle);
    must(gpu.idle < 4096, "a wait does not end: %s", fuzz_doing);
    if (deadline_ns != GPUSYNC_FOREVER && deadline_ns > clock_now)
        clock_now = deadline_ns;
    else
        clock_now += MS(1);
}

static void hook_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user, (void)waiter;
}

static const gpusync_hooks fuzz_hooks = {hook_yield, hook_park, hook_unpark, NULL};

/* -- callbacks and witnesses -------------------------------------------------------------------------- */

#define TALLIES 64
typedef struct tally {
    unsigned calls;
    gpusync_result result;
    bool expected; /* it was registered, and so it is called once */
    bool exact;    /* ... with this result */
    gpusync_result must_be;
} tally;

static tally tallies[TALLIES];
static int tally_count;

static tally *tally_new(void)
{
    if (tally_count == TALLIES) return NULL;
    memset(&tallies[tally_count], 0, sizeof tallies[0]);
    return &tallies[tally_count++];
}

static void on_tally(void *user, gpusync_result result, const gpusync_error *error)
{
    tally *t = (tally *)user;
    must((result == GPUSYNC_OK) == (error == NULL), "a callback with %d and %s error", result, error ? "an" : "no");
    must(result <= 0 && (!error || error->result == result), "a callback with %d", result);
    t->result = result;
    __atomic_fetch_add(&t->calls, 1, __ATOMIC_SEQ_CST);
}

static void on_gone(void *user)
{
    __atomic_fetch_add(&((tally *)user)->calls, 1, __ATOMIC_SEQ_CST);
}

static void check_tallies(void)
{
    int i;
    for (i = 0; i < tally_count; i++) {
        const tally *t = &tallies[i];
        must(t->calls == (t->expected ? 1u : 0u), "callback %d came %u times", i, t->calls);
        must(!t->expected || !t->exact || t->result == t->must_be, "callback %d was told %d", i, t->result);
    }
    tally_count = 0;
}

/* -- calls that make no sense ------------------------------------------------------------------------- */

static void do_nothing(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)result, (void)error;
}

/* Whatever the state of things, each has one answer, and changes nothing. The objects may be NULL. */
static void talk_nonsense_to(gpusync_device *device, gpusync_queue *queue, gpusync_timeline *timeline)
{
    const uint64_t high = GPUSYNC_MAX_VALUE + 1 + byte();
    const gpusync_ticket unknown = (gpusync_ticket)1000000 + byte();
    const uint64_t none = 0;
    gpusync_command_buffer_desc buffer_desc;
    gpusync_submission submission;
    gpusync_queue_desc queue_desc;
    gpusync_device_desc device_desc;
    gpusync_timeline_desc timeline_desc;
    gpusync_hooks half = {NULL, hook_park, NULL, NULL};
    gpusync_point points[2];
    gpusync_ticket ticket = 7;
    gpusync_error error;
    gpusync_stats stats;
    gpusync_ticket_info info;
    gpusync_queue *made_queue = queue;
    gpusync_device *made_device = device;
    gpusync_timeline *made = timeline;
    gpusync_warmup *warmup = NULL;
    void *buffer = &half, *nil = NULL;
    uint64_t cursor = 0, value;
    size_t which, count;
    memset(&buffer_desc, 0, sizeof buffer_desc);
    memset(&submission, 0, sizeof submission);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&timeline_desc, 0, sizeof timeline_desc);
    memset(points, 0, sizeof points);
    buffer_desc.timeout_ns = &none;
    submission.timeout_ns = &none;
    switch (below_of(56)) {
    case 0:
        answer(gpusync_device_create(NULL, NULL), INVALID);
        cursor = gpusync_now_ns();
        must(cursor <= gpusync_now_ns(), "the clock goes back");
        must(gpusync_version() == GPUSYNC_VERSION, "another version is linked");
        break;
    case 1:
        device_desc.hooks = &half;
        answer(gpusync_device_create(&device_desc, &made_device), INVALID);
        must(!made_device, "a device");
        break;
    case 2: answer(gpusync_device_destroy(NULL), GPUSYNC_OK); break;
    case 3: answer(gpusync_device_destroy(device), device ? GPUSYNC_ERROR_IN_USE : GPUSYNC_OK); break;
    case 4:
        answer(gpusync_queue_create(NULL, &queue_desc, &made_queue), INVALID);
        must(!made_queue, "a queue");
        break;
    case 5: answer(gpusync_queue_create(device, NULL, NULL), INVALID); break;
    case 6: answer(gpusync_queue_destroy(NULL), GPUSYNC_OK); break;
    case 7: answer(gpusync_queue_destroy_now(NULL), GPUSYNC_OK); break;
    case 8: must(!gpusync_device_metal(NULL) && !gpusync_queue_metal(NULL), "an object for NULL"); break;
    case 9:
        answer(gpusync_command_buffer(NULL, NULL, &buffer), INVALID);
        must(!buffer, "a command buffer");
        break;
    case 10: answer(gpusync_command_buffer(queue, &buffer_desc, NULL), INVALID); break;
    case 11: answer(gpusync_command_buffer_discard(queue, NULL), INVALID); break;
    case 12: answer(gpusync_commit(NULL, NULL, &ticket), INVALID); break;
    case 13: answer(gpusync_commit(queue, NULL, NULL), INVALID); break;
    case 14: answer(gpusync_track(queue, NULL, &ticket), INVALID); break;
    case 15: answer(gpusync_track(NULL, NULL, NULL), INVALID); break;
    case 16: answer(gpusync_throttle(queue, 0, none), INVALID); break;
    case 17: answer(gpusync_throttle(NULL, 1, none), INVALID); break;
    case 18: answer(gpusync_untrack(queue, unknown), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID); break;
    case 19: answer(gpusync_untrack(queue, GPUSYNC_NO_TICKET), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID); break;
    case 20: answer(gpusync_track_committed(queue, NULL, &ticket), INVALID); break;
    case 21: answer(gpusync_poll(queue, unknown), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID); break;
    case 22: answer(gpusync_poll(NULL, GPUSYNC_EVERYTHING), INVALID); break;
    case 23:
        answer(gpusync_wait(queue, unknown, GPUSYNC_FOREVER), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID);
        break;
    case 24: answer(gpusync_wait_ex(NULL, 1, GPUSYNC_FOREVER, NULL), INVALID); break;
    case 25: answer(gpusync_queue_wait(NULL, GPUSYNC_FOREVER), INVALID); break;
    case 26: answer(gpusync_device_wait_ex(NULL, GPUSYNC_FOREVER, NULL), INVALID); break;
    case 27:
        must(!gpusync_is_idle(NULL) && !gpusync_is_done(NULL, 0) && !gpusync_is_done(queue, unknown), "is done");
        break;
    case 28: answer(gpusync_wait_many(NULL, 0, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which), GPUSYNC_OK); break;
    case 29: answer(gpusync_wait_many(NULL, 0, GPUSYNC_WAIT_ANY, none, NULL, &which), INVALID); break;
    case 30: answer(gpusync_wait_many(NULL, 2, GPUSYNC_WAIT_ALL, none, NULL, &which), INVALID); break;
    case 31: answer(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, none, NULL, NULL), INVALID); break;
    case 32:
        points[0].queue = queue;
        points[0].ticket = unknown;
        answer(gpusync_wait_many(points, 1, GPUSYNC_WAIT_ALL, none, NULL, NULL),
               queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID);
        break;
    case 33:
        answer(gpusync_timeline_create(NULL, NULL, &made), INVALID);
        must(!made, "a timeline");
        break;
    case 34:
        timeline_desc.initial_value = high;
        answer(gpusync_timeline_create(device, &timeline_desc, &made), device ? GPUSYNC_ERROR_NOT_RISING : INVALID,
               device ? GPUSYNC_ERROR_DEVICE_LOST : INVALID);
        must(!made, "a timeline");
        break;
    case 35: answer(timeline_import(NULL, device, NULL, &made), INVALID); break;
    case 36:
        made = timeline;
        answer(timeline_import(device, device ? gpusync_device_metal(device) : NULL, NULL, &made),
               device ? GPUSYNC_ERROR_UNSUPPORTED : INVALID, device ? GPUSYNC_ERROR_DEVICE_LOST : INVALID);
        must(!made, "a timeline");
        break;
    case 37: answer(gpusync_timeline_destroy(NULL), GPUSYNC_OK); break;
    case 38:
        value = 5;
        must(!gpusync_timeline_metal(NULL, &value), "an event for NULL");
        break;
    case 39: answer(gpusync_timeline_query(NULL, &value), INVALID); break;
    case 40: answer(gpusync_timeline_query(timeline, NULL), INVALID); break;
    case 41: answer(gpusync_timeline_signal(NULL, 1), INVALID); break;
    case 42:
        if (timeline && gpusync_timeline_query(timeline, &value) != GPUSYNC_OK) break; /* it tells its failure */
        answer(gpusync_timeline_signal(timeline, high), timeline ? GPUSYNC_ERROR_NOT_RISING : INVALID,
               timeline ? GPUSYNC_ERROR_DEVICE_LOST : INVALID);
        break;
    case 43: answer(gpusync_timeline_expect(NULL, 1), INVALID); break;
    case 44: answer(gpusync_timeline_fail(NULL, NULL), INVALID); break;
    case 45: answer(gpusync_timeline_wait(NULL, 1, none, NULL), INVALID); break;
    case 46: answer(gpusync_submit(queue, NULL, &ticket), INVALID); break;
    case 47:
        submission.command_buffers = &nil;
        submission.command_buffer_count = 1;
        answer(gpusync_submit(queue, &submission, &ticket), INVALID, queue ? GPUSYNC_ERROR_DEVICE_LOST : INVALID);
        break;
    case 48:
        submission.signals = points;
        submission.signal_count = 1;
        points[0].queue = queue; /* a ticket cannot be signalled */
        answer(gpusync_submit(queue, &submission, NULL), queue && is_metal4(queue) ? GPUSYNC_ERROR_UNSUPPORTED : INVALID,
               queue ? GPUSYNC_ERROR_DEVICE_LOST : INVALID);
        break;
    case 49:
        submission.waits = points;
        submission.wait_count = 1;
        points[0].queue = queue;
        points[0].ticket = queue ? unknown : 1;
        answer(gpusync_submit(queue, &submission, &ticket),
               !queue             ? INVALID
               : is_metal4(queue) ? GPUSYNC_ERROR_UNSUPPORTED
                                  : GPUSYNC_ERROR_INVALID_TICKET,
               queue ? GPUSYNC_ERROR_DEVICE_LOST : INVALID);
        break;
    case 50:
        answer(gpusync_cancel_held(NULL), INVALID);
        answer(gpusync_release_after(gpusync_at_ticket(queue, 1), NULL), INVALID);
        answer(gpusync_release_after(gpusync_at_ticket(queue, unknown),
                                     device ? gpusync_device_metal(device) : (void *)&nil),
               queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID);
        break;
    case 51:
        answer(gpusync_on_done(gpusync_at_ticket(queue, 1), NULL, NULL), INVALID);
        answer(gpusync_on_done(gpusync_at_ticket(queue, unknown), do_nothing, NULL),
               queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID);
        answer(gpusync_on_done(gpusync_at_value(timeline, 1), NULL, NULL), INVALID);
        break;
    case 52:
        answer(gpusync_dispatch(NULL, 1, &count), INVALID);
        answer(gpusync_warmup_start(NULL, NULL, &warmup), INVALID);
        answer(gpusync_warmup_start(device, NULL, NULL), INVALID);
        answer(gpusync_warmup_poll(NULL, &count, NULL), INVALID);
        answer(gpusync_warmup_wait(NULL, none), INVALID);
        answer(gpusync_warmup_pipeline(NULL, 0, none, &buffer, &error), INVALID);
        answer(gpusync_warmup_destroy(NULL), GPUSYNC_OK);
        break;
    case 53:
        answer(gpusync_next_error(queue, NULL, &error), INVALID);
        answer(gpusync_next_error(queue, &cursor, NULL), INVALID);
        answer(gpusync_next_error(NULL, &cursor, &error), INVALID);
        break;
    case 54:
        must(!gpusync_device_is_lost(NULL) && gpusync_result_string((gpusync_result)byte()) &&
                 gpusync_failure_string((gpusync_failure)byte()) && gpusync_result_string((gpusync_result)-byte()),
             "a text");
        break;
    default:
        answer(gpusync_get_info(queue, unknown, &info), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID);
        answer(gpusync_get_info(queue, 1, NULL), INVALID);
        answer(gpusync_get_stats(NULL, &stats), INVALID);
        answer(gpusync_get_stats(queue, NULL), INVALID);
        answer(gpusync_device_get_stats(NULL, &stats), INVALID);
        answer(gpusync_device_get_stats(device, NULL), INVALID);
        answer(gpusync_set_trace(NULL, NULL, NULL), INVALID);
        must(gpusync_report(NULL, NULL, 0) == 0, "a report on nothing");
        break;
    }
}

static void talk_nonsense(gpusync_device *device, gpusync_queue *queue, gpusync_timeline *timeline)
{
    unsigned nulls = byte();
    talk_nonsense_to(nulls % 8 == 1 ? NULL : device, nulls % 8 == 2 ? NULL : queue, nulls % 8 == 3 ? NULL : timeline);
}

#endif
