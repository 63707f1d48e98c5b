/* common.h - what both fuzzers share: the bytes, counted calls, judging answers, callbacks, calls that make no sense

   Included once, by fuzz.h and by threads.c, which say what the clock is and where calls come from. */
#ifndef FUZZ_COMMON_H
#define FUZZ_COMMON_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

#define GPUSYNC_IMPLEMENTATION
#include "../probe.h"
#undef clock_gettime
#undef pthread_cond_timedwait

/* Every public function gets a macro of its name, which counts the call: made from gpusync.h by calls.sh. */
static uint64_t fuzz_reached[128];
#define FUZZ_THREADS 8
static const char *fuzz_doing[FUZZ_THREADS] = {"nothing"}; /* for the watchdog: the calls in progress */
static _Thread_local int fuzz_me;                          /* 0: no thread in particular */
static bool fuzz_tells;                                    /* every call, by its name */
static void fuzz_call(int number, const char *name)
{
    __atomic_store_n(&fuzz_doing[fuzz_me], name, __ATOMIC_RELAXED);
    if (fuzz_tells) fprintf(stderr, "%*s%s\n", 30 * fuzz_me, "", name);
    __atomic_fetch_add(&fuzz_reached[number], 1, __ATOMIC_RELAXED);
}
#include "fuzz_calls.h"

/* What inputs may meet besides: kinds of queues, options, ways to go. Each is counted where it is there, or has its effect.
   The program says in MEETS_HERE what it alone meets. */
#define MEETS(X)                                                                                                    \
    X(queue_of_metal4) X(queue_given) X(queue_small) X(queue_spin) X(queue_spins_not)                                \
    X(sticky_queue) X(sticky_queue_of_metal4) X(refused_as_a_failure_sticks) X(failure_cleared)                      \
    X(sticky_queue_tracks) X(sticky_queue_unordered) X(timeline_of_others)                                           \
    X(callbacks_by_hand) X(callbacks_queued) X(callback_queue_given) X(callback_on_that_queue)                       \
    X(device_spins) X(device_spins_not) X(device_spins_by_itself) X(log_asks_for_report)                             \
    X(unretained_references) X(descriptor) X(unretained_by_descriptor) X(error_options) X(log_state)                 \
    X(descriptor_refused) X(commit_options_keep_handlers)                                                            \
    X(submission_strict) X(submission_unordered) X(submission_barrier) X(submission_of_metal4) X(commit4_of_several) \
    X(wait_spins) X(wait_until_near) X(wait_for_value_spins) X(wait_for_handlers) X(wait_for_any) X(wait_for_all)    \
    X(wait_on_lost_device) X(wait_for_handlers_on_lost_device) X(wait_ended_by_giving_up) X(work_given_up)           \
    X(wait_blocks_in_vain) X(wait_paces) X(foreign_buffer_told_by_one_behind) X(foreign_buffer_refused)              \
    X(errors_from_now) X(failure_transient) X(failure_for_good) X(queue_filled)                                      \
    X(queue_goes_later) X(timeline_goes_later) X(device_goes_later) X(goes_untold) X(goes_with_work)                 \
    X(told_that_it_went) X(let_go_by_a_callback)
#define MET(name) met_##name,
enum { MEETS(MET) MEETS_HERE(MET) MEETS_COUNT };
#undef MET
#define MET(name) #name,
static const char *const fuzz_meets[] = {MEETS(MET) MEETS_HERE(MET)};
#undef MET
static uint64_t fuzz_met[MEETS_COUNT];
#define meet(name) ((void)__atomic_fetch_add(&fuzz_met[met_##name], 1, __ATOMIC_RELAXED))
#define meet_if(condition, name) ((condition) ? meet(name) : (void)0)

#include "../stage.h"

/* -- saying what is wrong ----------------------------------------------------------------------------- */

/* submit_graphs.h has `expect` for its programs. */
#define must(condition, ...)                                                          \
    do                                                                                \
        if (!(condition)) must_not(__FILE_NAME__, __LINE__, #condition, __VA_ARGS__); \
    while (0)
__attribute__((format(printf, 4, 5), noreturn)) static void must_not(const char *file, int at, const char *condition,
                                                                     const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "fuzz: %s:%d: not so: %s: ", file, at, condition);
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
#define answer(got, ...) answer_at((got), (const int[]){__VA_ARGS__, END}, #got, __FILE_NAME__, __LINE__)
static gpusync_result answer_at(gpusync_result got, const int *allowed, const char *call, const char *file, int line)
{
    if (fuzz_tells) fprintf(stderr, "%*s    %d\n", 30 * fuzz_me, "", got);
    if (!is_one_of(got, allowed)) must_not(file, line, call, "answers %d (%s)", got, gpusync_result_string(got));
    return got;
}
#define INVALID GPUSYNC_ERROR_INVALID_ARGUMENT
/* Also of a call that is wrong otherwise: one of other threads has had an allocation fail, and this one met it. */
#define SHORT (fuzz_me ? GPUSYNC_ERROR_OUT_OF_MEMORY : INVALID)

/* -- the bytes ---------------------------------------------------------------------------------------- */

static _Thread_local struct {
    const uint8_t *at, *end;
    uint64_t filler; /* what comes when the bytes are used up: drawn from the first of them */
} input;

static bool input_is_over(void) { return input.at >= input.end; }

static unsigned byte(void)
{
    if (!input_is_over()) return *input.at++;
    input.filler ^= input.filler << 13;
    input.filler ^= input.filler >> 7;
    input.filler ^= input.filler << 17;
    return (unsigned)(input.filler >> 32) & 255;
}

static unsigned below_of(unsigned limit) { return byte() % limit; }
static bool one_in(unsigned n) { return byte() % n == 1; }

/* -- options ------------------------------------------------------------------------------------------- */

/* NULL: what comes next in the order of wait, queue, device, and gpusync itself. */
static const gpusync_spin *some_spin(void)
{
    static const gpusync_spin spins[] = {{0, 0, 0, false},
                                         {16, 0, 0, false},
                                         {0, 40, 0, false},
                                         {4, 8, SPIN_NS, false},
                                         {0, 0, SPIN_NS / 2, false},
                                         {0, 0, SPIN_NS, true},
                                         {8, 0, SPIN_NS, true}};
    unsigned n = below_of(12);
    return n < LENGTH(spins) ? &spins[n] : NULL;
}

/* A dispatch queue of the program's, +1: known by a class of service that gpusync's own has not. */
#define CLASS_OF_CALLBACKS 0x09u /* background */
extern void *dispatch_queue_create(const char *label, void *attribute);
extern void *dispatch_queue_attr_make_with_qos_class(void *attribute, unsigned qos_class, int relative_priority);
extern void dispatch_release(void *object);
static void *callback_queue_new(void)
{
    return dispatch_queue_create("the program's", dispatch_queue_attr_make_with_qos_class(NULL, CLASS_OF_CALLBACKS, 0));
}

/* In a callback of a device with such a queue. */
static void must_be_on_callback_queue(void)
{
    must(softmetal_dispatch_qos(NULL) == CLASS_OF_CALLBACKS, "a callback on another queue than the program's");
    meet(callback_on_that_queue);
}

/* What a command buffer is asked to be: by the desc, or by a descriptor. */
typedef struct buffer_options {
    bool unretained, reports_encoders, logs;
    void *descriptor; /* +1, or NULL */
} buffer_options;

static void *descriptor_new(void)
{
    return metal_get(metal_get(metal__class("MTLCommandBufferDescriptor"), "alloc"), "init");
}

/* What only a descriptor can ask for takes one; now and then it asks for nothing else. */
static void some_descriptor(buffer_options *options, gpusync_command_buffer_desc *desc, void *metal_device)
{
    unsigned how = byte();
    options->reports_encoders = !(how & 3);
    options->logs = !(how & 28);
    if (!options->reports_encoders && !options->logs && how < 224) return;
    desc->descriptor = options->descriptor = descriptor_new();
    if (options->reports_encoders)
        METAL__AS(void, unsigned long)(options->descriptor, metal__sel("setErrorOptions:"), 1ul);
    if (options->logs) {
        void *log = metal_shared_event_new(metal_device); /* it stands for an MTLLogState */
        METAL__AS(void, void *)(options->descriptor, metal__sel("setLogState:"), log);
        metal_release(log);
    }
}

static void ask_for_unretained(buffer_options *options, gpusync_command_buffer_desc *desc)
{
    options->unretained = true;
    if (options->descriptor)
        METAL__AS(void, signed char)(options->descriptor, metal__sel("setRetainedReferences:"), 0);
    else desc->unretained_references = true;
}

/* The buffer, or NULL, was made; the descriptor is let go. */
static void check_buffer_options(const buffer_options *options, void *buffer)
{
    if (buffer) {
        unsigned long wanted = options->reports_encoders ? 1 : 0,
                      has = METAL__AS0(unsigned long)(buffer, metal__sel("errorOptions"));
        bool retained = METAL__AS0(signed char)(buffer, metal__sel("retainedReferences"));
        must(has == wanted, "the error options are %lu and not %lu", has, wanted);
        must(retained != options->unretained, "references are %sretained", retained ? "" : "not ");
        meet_if(options->descriptor, descriptor);
        meet_if(options->unretained && !options->descriptor, unretained_references);
        meet_if(options->unretained && options->descriptor, unretained_by_descriptor);
        meet_if(options->reports_encoders, error_options);
        meet_if(options->logs, log_state);
    }
    metal_release(options->descriptor);
}

/* All its room has come back: so many command buffers can be made, and no more. */
static void fill_queue(gpusync_queue *queue, unsigned room, uint64_t time)
{
    gpusync_command_buffer_desc desc;
    const uint64_t none = 0;
    void *buffers[256], *more = NULL;
    unsigned i;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &time;
    must(room <= LENGTH(buffers), "a queue of %u command buffers", room);
    for (i = 0; i < room; i++) answer(gpusync_command_buffer(queue, &desc, &buffers[i]), GPUSYNC_OK);
    desc.timeout_ns = &none;
    answer(gpusync_command_buffer(queue, &desc, &more), GPUSYNC_TIMEOUT);
    while (i-- > 0) answer(gpusync_command_buffer_discard(queue, buffers[i]), GPUSYNC_OK);
    meet(queue_filled);
}

/* -- failures ------------------------------------------------------------------------------------------ */

/* Those that the same work may get over. */
static bool may_pass(gpusync_failure failure)
{
    bool passes = failure == GPUSYNC_FAILURE_OUT_OF_MEMORY || failure == GPUSYNC_FAILURE_NOT_PERMITTED ||
                  failure == GPUSYNC_FAILURE_INNOCENT_VICTIM;
    meet_if(passes, failure_transient);
    meet_if(!passes, failure_for_good);
    return passes;
}

/* The cursor of a reader that begins behind what is on record. */
static uint64_t begin_to_read(gpusync_queue *queue)
{
    uint64_t cursor = GPUSYNC_FROM_NOW;
    gpusync_error error;
    answer(gpusync_next_error(queue, &cursor, &error), GPUSYNC_NOT_READY);
    must(cursor != GPUSYNC_FROM_NOW, "a reader that does not begin");
    return cursor;
}

/* So many failures has a reader not seen, those that were pushed out included. */
static uint64_t count_failures(gpusync_queue *queue, uint64_t *cursor)
{
    uint64_t count = 0;
    gpusync_error error;
    while (gpusync_next_error(queue, cursor, &error) == GPUSYNC_OK) count += 1 + error.dropped;
    return count;
}

/* -- what calls may answer ---------------------------------------------------------------------------- */

/* How work may end, for any call that asks. */
#define ENDS \
    GPUSYNC_OK, GPUSYNC_ERROR_EXECUTION, GPUSYNC_ERROR_CANCELLED, GPUSYNC_ERROR_RESULT_UNKNOWN, GPUSYNC_ERROR_DESTROYED

#define MISFITS GPUSYNC_ERROR_INVALID_TICKET, GPUSYNC_ERROR_NOT_RISING, INVALID

#define NO_ROOM GPUSYNC_TIMEOUT, NOT_HELD

/* It would have to be held. */
#define NOT_HELD GPUSYNC_ERROR_QUEUE_FULL, GPUSYNC_ERROR_ENQUEUED

#define WARMS GPUSYNC_OK, GPUSYNC_ERROR_COMPILE, GPUSYNC_TIMEOUT, GPUSYNC_ERROR_METAL_NIL, GPUSYNC_ERROR_QUEUE_FULL

/* -- callbacks and witnesses -------------------------------------------------------------------------- */

#ifndef TALLIES
#define TALLIES 64
#endif
typedef struct tally {
    unsigned calls;
    gpusync_result result;
    bool expected; /* it was registered, and so it is called once */
    bool exact;    /* ... with this result */
    bool releases; /* it stands for an object to be released */
    gpusync_result must_be;
    uint64_t where; /* the object that it was registered with */
    gpusync_ticket ticket;   /* of that queue; 0: of none, or it is not known */
    gpusync_failure failure; /* that it was told of */
} tally;

static tally tallies[TALLIES];
static int tally_count;

static tally *tally_new(void)
{
    int n = __atomic_load_n(&tally_count, __ATOMIC_RELAXED) < TALLIES
                ? __atomic_fetch_add(&tally_count, 1, __ATOMIC_RELAXED)
                : TALLIES;
    return n < TALLIES ? &tallies[n] : NULL;
}

static void on_tally(void *user, gpusync_result result, const gpusync_error *error)
{
    tally *t = (tally *)user;
    must((result == GPUSYNC_OK) == (error == NULL), "a callback with %d and %s error", result, error ? "an" : "no");
    must(result <= 0 && (!error || error->result == result), "a callback with %d", result);
    t->result = result;
    t->failure = error ? error->failure : GPUSYNC_FAILURE_NONE;
    __atomic_fetch_add(&t->calls, 1, __ATOMIC_SEQ_CST);
}

static void on_gone(void *user) { __atomic_fetch_add(&((tally *)user)->calls, 1, __ATOMIC_SEQ_CST); }

static void check_tallies(void)
{
    int i;
    for (i = 0; i < tally_count && i < TALLIES; i++) {
        const tally *t = &tallies[i];
        must(t->calls == (t->expected ? 1u : 0u), "callback %d came %u times", i, t->calls);
        must(!t->expected || !t->exact || t->result == t->must_be, "callback %d was told %d", i, t->result);
        must(!t->expected || !t->exact || t->must_be != GPUSYNC_ERROR_DESTROYED || t->failure == GPUSYNC_FAILURE_CANCELLED,
             "callback %d was told of a failure of class %d", i, (int)t->failure);
    }
    memset(tallies, 0, sizeof tallies);
    tally_count = 0;
}

/* -- calls that make no sense ------------------------------------------------------------------------- */

static void never_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)waiter, (void)deadline_ns;
    must(false, "hooks that were refused are called");
}

static void do_nothing(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user, (void)result, (void)error;
}

static void never_destroyed(void *user)
{
    (void)user;
    must(false, "what is nothing is told of as destroyed");
}

/* As many as there are places for, and the rest is left alone. */
static void check_struct_sizes(void)
{
#define SIZE_OF(name) sizeof(name),
    static const size_t sizes[] = {GPUSYNC_STRUCTS(SIZE_OF)};
#undef SIZE_OF
    size_t told[LENGTH(sizes) + 1], count = below_of((unsigned)LENGTH(told) + 1), i;
    for (i = 0; i < LENGTH(told); i++) told[i] = 7;
    must(gpusync_struct_sizes(told, count) == LENGTH(sizes), "a number of structs");
    for (i = 0; i < LENGTH(told); i++)
        must(told[i] == (i < count && i < LENGTH(sizes) ? sizes[i] : 7), "struct %zu has %zu bytes", i, told[i]);
    must(gpusync_struct_sizes(NULL, count) == LENGTH(sizes), "a number of structs");
}

/* Whatever the state of things, each has one answer, and changes nothing. The objects may be NULL. sticky: where a
   failure sticks the queue refuses all work. */
static void talk_nonsense_to(gpusync_device *device, gpusync_queue *queue, gpusync_timeline *timeline, bool sticky)
{
    const uint64_t high = GPUSYNC_MAX_VALUE + 1 + byte();
    const gpusync_ticket unknown = (gpusync_ticket)1000000 + byte();
    const uint64_t none = 0;
    gpusync_command_buffer_desc buffer_desc;
    gpusync_submission submission;
    gpusync_queue_desc queue_desc;
    gpusync_device_desc device_desc;
    gpusync_timeline_desc timeline_desc;
    gpusync_hooks half = {NULL, never_park, NULL, NULL};
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
        must(gpusync_struct_sizes(NULL, 1) > 0, "no structs");
        break;
    case 1:
        device_desc.hooks = &half;
        answer(gpusync_device_create(&device_desc, &made_device), INVALID);
        must(!made_device, "a device");
        break;
    case 2:
        answer(gpusync_device_destroy(NULL), GPUSYNC_OK);
        answer(gpusync_device_destroy_later(NULL, never_destroyed, NULL), GPUSYNC_OK);
        break;
    case 3: /* others may be in its calls */
        if (fuzz_me == 0) answer(gpusync_device_destroy(device), device ? GPUSYNC_ERROR_IN_USE : GPUSYNC_OK);
        break;
    case 4:
        answer(gpusync_queue_create(NULL, &queue_desc, &made_queue), INVALID);
        must(!made_queue, "a queue");
        break;
    case 5: answer(gpusync_queue_create(device, NULL, NULL), INVALID); break;
    case 6:
        answer(gpusync_queue_destroy(NULL), GPUSYNC_OK);
        answer(gpusync_queue_destroy_later(NULL, never_destroyed, NULL), GPUSYNC_OK);
        answer(gpusync_queue_clear_failure(NULL), INVALID);
        break;
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
    case 16: /* both would say whether references are retained */
        buffer_desc.descriptor = descriptor_new();
        buffer_desc.unretained_references = true;
        answer(gpusync_command_buffer(queue, &buffer_desc, &buffer),
               queue && is_metal4(queue) ? GPUSYNC_ERROR_UNSUPPORTED : INVALID, queue ? GPUSYNC_ERROR_DEVICE_LOST : INVALID,
               queue && sticky ? GPUSYNC_ERROR_EXECUTION : INVALID);
        must(!buffer, "a command buffer");
        meet_if(queue, descriptor_refused);
        metal_release(buffer_desc.descriptor);
        break;
    case 17: /* no descriptor */
        buffer_desc.descriptor = queue ? gpusync_queue_metal(queue) : &half;
        answer(gpusync_command_buffer(queue, &buffer_desc, &buffer),
               queue && is_metal4(queue) ? GPUSYNC_ERROR_UNSUPPORTED : INVALID, queue ? GPUSYNC_ERROR_DEVICE_LOST : INVALID,
               queue && sticky ? GPUSYNC_ERROR_EXECUTION : INVALID);
        must(!buffer, "a command buffer");
        break;
    case 18: answer(gpusync_untrack(queue, unknown), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID); break;
    case 19: answer(gpusync_untrack(queue, GPUSYNC_NO_TICKET), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID); break;
    case 20:
        cursor = GPUSYNC_FROM_NOW;
        answer(gpusync_next_error(NULL, &cursor, &error), INVALID);
        must(cursor == GPUSYNC_FROM_NOW, "a reader of nothing begins");
        if (queue) (void)begin_to_read(queue);
        break;
    case 21: answer(gpusync_poll(queue, unknown), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID); break;
    case 22: answer(gpusync_poll(NULL, GPUSYNC_EVERYTHING), INVALID); break;
    case 23:
        answer(gpusync_wait(queue, unknown, GPUSYNC_FOREVER), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID);
        break;
    case 24: answer(gpusync_wait_ex(NULL, 1, GPUSYNC_FOREVER, NULL), INVALID); break;
    case 25: answer(gpusync_queue_wait(NULL, GPUSYNC_FOREVER), INVALID); break;
    case 26: answer(gpusync_device_wait(NULL, GPUSYNC_FOREVER, NULL), INVALID); break;
    case 27:
        must(!gpusync_is_idle(NULL) && !gpusync_is_done(NULL, 0) && !gpusync_is_done(queue, unknown), "is done");
        must(gpusync_in_flight(NULL) == 0, "in flight");
        break;
    case 28: answer(gpusync_wait_many(NULL, 0, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which), GPUSYNC_OK); break;
    case 29: answer(gpusync_wait_many(NULL, 0, GPUSYNC_WAIT_ANY, none, NULL, &which), INVALID); break;
    case 30: answer(gpusync_wait_many(NULL, 2, GPUSYNC_WAIT_ALL, none, NULL, &which), INVALID); break;
    case 31: answer(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, none, NULL, NULL), INVALID); break;
    case 32:
        points[0].queue = queue;
        points[0].ticket = unknown;
        answer(gpusync_wait_many(points, 1, GPUSYNC_WAIT_ALL, none, NULL, NULL),
               queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID, SHORT);
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
    case 37:
        answer(gpusync_timeline_destroy(NULL), GPUSYNC_OK);
        answer(gpusync_timeline_destroy_later(NULL, never_destroyed, NULL), GPUSYNC_OK);
        break;
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
               timeline ? GPUSYNC_ERROR_DEVICE_LOST : INVALID, fuzz_me ? GPUSYNC_ERROR_EXECUTION : INVALID,
               fuzz_me ? GPUSYNC_ERROR_CANCELLED : INVALID); /* it fails meanwhile */
        break;
    case 43: answer(gpusync_timeline_query(NULL, &value), INVALID); break;
    case 44: answer(gpusync_timeline_fail(NULL, NULL), INVALID); break;
    case 45: answer(gpusync_timeline_wait(NULL, 1, none, NULL), INVALID); break;
    case 46: answer(gpusync_submit(queue, NULL, &ticket), INVALID); break;
    case 47:
        submission.command_buffers = &nil;
        submission.command_buffer_count = 1;
        answer(gpusync_submit(queue, &submission, &ticket), INVALID, queue ? GPUSYNC_ERROR_DEVICE_LOST : INVALID,
               SHORT);
        break;
    case 48:
        submission.signals = points;
        submission.signal_count = 1;
        points[0].queue = queue; /* a ticket cannot be signalled */
        answer(gpusync_submit(queue, &submission, NULL),
               queue && is_metal4(queue) ? GPUSYNC_ERROR_UNSUPPORTED : INVALID,
               queue ? GPUSYNC_ERROR_DEVICE_LOST : INVALID, queue && sticky ? GPUSYNC_ERROR_EXECUTION : INVALID, SHORT);
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
               queue ? GPUSYNC_ERROR_DEVICE_LOST : INVALID, queue && sticky ? GPUSYNC_ERROR_EXECUTION : INVALID, SHORT);
        break;
    case 50:
        answer(gpusync_cancel_held(NULL), INVALID);
        answer(gpusync_release_after(gpusync_at_ticket(queue, 1), NULL), INVALID);
        answer(gpusync_release_after(gpusync_at_ticket(queue, unknown),
                                     device ? gpusync_device_metal(device) : (void *)&nil),
               queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID, SHORT);
        break;
    case 51:
        answer(gpusync_on_done(gpusync_at_ticket(queue, 1), NULL, NULL), INVALID);
        answer(gpusync_on_done(gpusync_at_ticket(queue, unknown), do_nothing, NULL),
               queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID, SHORT);
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
        must(!gpusync_failure_is_transient((gpusync_failure)(GPUSYNC_FAILURE_OTHER + (int)byte())) &&
                 !gpusync_failure_is_transient(GPUSYNC_FAILURE_NONE),
             "a class that may pass");
        break;
    default:
        answer(gpusync_get_info(queue, unknown, &info), queue ? GPUSYNC_ERROR_INVALID_TICKET : INVALID);
        answer(gpusync_get_info(queue, 1, NULL), INVALID);
        answer(gpusync_get_stats(NULL, &stats), INVALID);
        answer(gpusync_get_stats(queue, NULL), INVALID);
        answer(gpusync_device_get_stats(NULL, &stats), INVALID);
        answer(gpusync_device_get_stats(device, NULL), INVALID);
        answer(gpusync_set_trace(NULL, NULL, NULL), INVALID);
        must(gpusync_report(NULL, NULL, 0) == 0 && gpusync_queue_report(NULL, NULL, 0) == 0, "a report on nothing");
        break;
    }
}

static void talk_nonsense(gpusync_device *device, gpusync_queue *queue, gpusync_timeline *timeline, bool sticky)
{
    unsigned nulls = byte();
    talk_nonsense_to(nulls % 8 == 1 ? NULL : device, nulls % 8 == 2 ? NULL : queue, nulls % 8 == 3 ? NULL : timeline,
                     sticky);
}

/* -- how inputs change ---------------------------------------------------------------------------------- */

/* libFuzzer seldom comes to the few bytes that decide on everything behind them, and makes long inputs slowly from short
   ones. So some changes are our own: an input that is new all over, or what the program does to the beginning and
   to pieces of its own. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

static uint64_t drawn; /* for the changes alone */

static uint64_t draw_below(uint64_t limit)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (drawn >> 33) % limit;
}

static void draw_bytes(uint8_t *to, size_t count)
{
    while (count-- > 0) *to++ = (uint8_t)draw_below(256);
}

/* Makes room in front of what is at `at`. False: there is none. */
static bool open_gap(uint8_t *data, size_t *size, size_t most, size_t at, size_t count)
{
    if (*size + count > most) return false;
    memmove(data + at + count, data + at, *size - at);
    *size += count;
    return true;
}

static size_t draw_input(uint8_t *data, size_t least, size_t most)
{
    size_t size = least + draw_below(most - least + 1);
    draw_bytes(data, size);
    return size;
}

/* -- the beginning ------------------------------------------------------------------------------------- */

static void tell_calls(void);

static void begin(void)
{
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* an assertion that does not hold ends the process */
    fuzz_tells = getenv("FUZZ_TELL") != NULL;
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* softmetal naps for 20 us, and not for 70: of all threads, made later */
    if (getenv("FUZZ_CALLS")) atexit(tell_calls);
}

/* -- the end ------------------------------------------------------------------------------------------ */

static const char *const kinds[] = {
    "device",  "queue",    "command_buffer", "encoder",  "buffer",         "event",           "shared_event",
    "library", "function", "pipeline",       "error",    "block",          "wrapper",         "dispatch_queue", "descriptor",
    "queue4",  "run",      "allocator",      "feedback", "commit_options", "command_buffer4", "queue_operation"};

/* -- what Metal 4 keeps for good ------------------------------------------------------------------------ */

/* Work with waits or signals went to a queue of Metal 4. If its signals have not come when the queue is destroyed, the queue
   stays for good, with the events of that work, and with the one that it was to signal last. A row for the queue, and one
   for each event. */
#define STAYERS 8192
static struct {
    void *queue, *event; /* +1; event: or NULL */
    bool stays; /* the queue does */
} stayers[STAYERS];
static int stayer_count;

/* A row for an event, which is there. */
static int note_event(void *event, bool stays)
{
    int n = __atomic_fetch_add(&stayer_count, 1, __ATOMIC_RELAXED);
    must(n < STAYERS, "too much may stay");
    stayers[n].queue = NULL;
    stayers[n].event = event ? metal_retain(event) : NULL;
    stayers[n].stays = stays;
    return n;
}

static void note_what_stays(gpusync_queue *queue, void *event)
{
    stayers[note_event(event, false)].queue = metal_retain(gpusync_queue_metal(queue));
}

/* The calling thread is in the queue and the timelines. taken: it has a ticket. */
static void note_what_may_stay(gpusync_queue *queue, const gpusync_submission *submission, bool taken)
{
    size_t i;
    if (submission->wait_count + submission->signal_count == 0) return;
    note_what_stays(queue, NULL);
    for (i = 0; taken && i < submission->wait_count; i++)
        if (submission->waits[i].timeline)
            note_what_stays(queue, probe_event_of(submission->waits[i].timeline, NULL));
    for (i = 0; taken && i < submission->signal_count; i++)
        note_what_stays(queue, probe_event_of(submission->signals[i].timeline, NULL));
}

/* Gives back `noted` references, and those that stay, of which there may be so many. True: some stay. */
static bool give_back_what_stays(void *object, const char *what, long noted, long least, long most)
{
    long owners = (long)softmetal_retain_count(object), i;
    must(owners - noted >= least && owners - noted <= most, "%s stays with %ld owners, not with %ld to %ld", what,
         owners - noted, least, most);
    for (i = 0; i < owners; i++) metal_release(object);
    return owners > noted;
}

static void give_back_queue(int first)
{
    void *queue = stayers[first].queue;
    long noted = 0;
    bool stay;
    int i, count = stayer_count;
    for (i = first; i < count; i++) noted += stayers[i].queue == queue;
    if ((long)softmetal_retain_count(queue) > noted) note_event(softmetal_last_signalled(queue), true);
    stay = give_back_what_stays(queue, "a queue", noted, 0, 1);
    for (i = first; i < count; i++) {
        if (stayers[i].queue != queue) continue;
        stayers[i].queue = NULL;
        stayers[i].stays = stay;
    }
}

/* An event may be that of one timeline, and later of another. */
static void give_back_event(int first)
{
    void *event = stayers[first].event;
    long noted = 0, most = 0;
    int i;
    for (i = first; i < stayer_count; i++) {
        if (stayers[i].event != event) continue;
        noted++;
        most += stayers[i].stays;
        stayers[i].event = NULL;
    }
    (void)give_back_what_stays(event, "an event", noted, 0, most);
}

/* All is destroyed, the GPU is through, and the program has let go of everything else. */
static void give_back_all_that_stays(void)
{
    int i;
    must(softmetal_settle(SECONDS(20)), "handlers do not end");
    for (i = 0; i < stayer_count; i++)
        if (stayers[i].queue) give_back_queue(i);
    for (i = 0; i < stayer_count; i++)
        if (stayers[i].event) give_back_event(i);
    stayer_count = 0;
}

static void check_nothing_is_left(void)
{
    bool any = false;
    size_t i;
    must(softmetal_settle(SECONDS(20)), "handlers do not end");
    for (i = 0; i < LENGTH(kinds); i++) {
        long live = softmetal_live(kinds[i]);
        if (live) fprintf(stderr, "fuzz: %ld objects are left: %s\n", live, kinds[i]);
        any = any || live;
    }
    must(!any, "something is left");
}

#define FUNCTIONS (sizeof fuzz_names / sizeof fuzz_names[0])

static void tell_calls(void)
{
    bool all = getenv("FUZZ_CALLS")[0] == 'n'; /* numbers */
    size_t i, reached = 0, met = 0;
    for (i = 0; i < FUNCTIONS; i++) {
        reached += fuzz_reached[i] > 0;
        if (fuzz_reached[i] == 0) fprintf(stderr, "not reached: %s\n", fuzz_names[i]);
        else if (all) fprintf(stderr, "%10llu %s\n", (unsigned long long)fuzz_reached[i], fuzz_names[i]);
    }
    for (i = 0; i < MEETS_COUNT; i++) {
        met += fuzz_met[i] > 0;
        if (fuzz_met[i] == 0) fprintf(stderr, "not met: %s\n", fuzz_meets[i]);
        else if (all) fprintf(stderr, "%10llu %s\n", (unsigned long long)fuzz_met[i], fuzz_meets[i]);
    }
    fprintf(stderr, "calls: %zu of %zu functions reached, %zu of %zu kinds and options met\n", reached, FUNCTIONS, met,
            (size_t)MEETS_COUNT);
    if (reached < FUNCTIONS || met < MEETS_COUNT) _exit(1);
}

#endif
