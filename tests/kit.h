/* kit.h - what the tests share: assertions, memory that fails on demand, threads that sleep, a stage to play on

   Public calls of gpusync and softmetal's panel are all that it uses. kit.c has the bodies; each program is linked with
   it.
   A program is done with set-up by

       on_stage(test_a_ticket_ends)
       {
           gpusync_ticket ticket = commit(s->q[0], new_buffer(s->q[0]));
           assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
           finish_next(s->q[0]);
           assert_ok(gpusync_poll(s->q[0], ticket, NULL));
       }

   on_stage is the head of a function with a `stage *s`, and puts it among the program's tests: from.h runs them.

   A program that has the implementation in it defines GPUSYNC_IMPLEMENTATION before it includes this. One that takes
   turns includes kit_memory.h, turns.h and kit.h, in this order. */
#ifndef KIT_H
#define KIT_H

#include "from.h"
#include "slow.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kit_memory.h"
#include "gpusync.h"

#include "metal.h"
#include "softmetal.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define SECONDS(n) ((uint64_t)(n) * 1000000000u)
#define MS(n) ((uint64_t)(n) * 1000000u)

/* Between threads. */
#define GET(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define PUT(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)
#define COUNT(p) __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST)

/* -- assertions --------------------------------------------------------------------------------------------------- */

#define assert_result(call, expected) assert_result_at((call), (expected), #call, __FILE__, __LINE__)
#define assert_ok(call) assert_result(call, GPUSYNC_OK)
void assert_result_at(gpusync_result got, gpusync_result expected, const char *call, const char *file, int line);

/* Ends the program. For threads other than the test's own, where an assertion of cmocka's cannot jump. */
void must(bool good, const char *what);

/* -- memory: GPUSYNC_MALLOC and GPUSYNC_FREE -----------------------------------------------------------------------

   New memory is full of 0xA5, freed memory of 0xDD; what was written behind a block's end ends the program, and so does
   what is freed twice. */

/* The n-th call from now gets NULL (1: the next), with `later` every one after it, too. 0: none does. */
void memory_fail(long n, bool later);
void memory_calls(void (*function)(void)); /* in GPUSYNC_MALLOC, from now on; NULL: nothing */

/* -- threads ------------------------------------------------------------------------------------------------------ */

pthread_t start(void *(*body)(void *), void *argument);
void join(pthread_t thread);

/* Holds each thread until `size` of them have come, again and again. (macOS has no barrier in pthreads.) */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t open;
    unsigned size, arrived, rounds, inside;
} gate;
void gate_init(gate *g, unsigned size);
void gate_wait(gate *g);
void gate_destroy(gate *g);

typedef enum job_kind { JOB_WAIT, JOB_VALUE, JOB_MANY, JOB_DEVICE, JOB_BUFFER, JOB_CALL } job_kind;

/* A call on a thread of its own. Begin with `job j = {0};`, or with `job j = {.options = {.handlers = true}};`.
   What a test may look at: result, error, which, buffer, after job_end; job_is_over at any time. */
typedef struct job {
    gpusync_wait_options options; /* .error NULL: `error` below */
    gpusync_result result;
    gpusync_error error; /* zero where the call filled none */
    size_t which;        /* of job_many */
    void *buffer;        /* of job_buffer */
    bool over;
    pthread_t thread;
    job_kind kind;
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    uint64_t value, timeout_ns;
    const gpusync_point *points;
    size_t count;
    gpusync_wait_for how;
    gpusync_result (*call)(void *argument);
    void *argument;
} job;
void job_wait(job *j, gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns);
void job_value(job *j, gpusync_timeline *timeline, uint64_t value, uint64_t timeout_ns);
void job_many(job *j, const gpusync_point *points, size_t count, gpusync_wait_for how, uint64_t timeout_ns);
void job_device(job *j, gpusync_device *device, uint64_t timeout_ns);
void job_buffer(job *j, gpusync_queue *queue, uint64_t timeout_ns); /* gpusync_command_buffer_create */
void job_call(job *j, gpusync_result (*call)(void *argument), void *argument);
void job_destroy(job *j, gpusync_queue *queue); /* gpusync_queue_destroy */
bool job_is_over(const job *j);
gpusync_result job_end(job *j); /* waits until the call has returned */

/* -- threads that sleep: the hooks of a stage ------------------------------------------------------------------------

   A thread counts as parked from when it sleeps in park until it is unparked, or its park ends at its deadline. A wait
   of gpusync's parks again every now and then, to look. */

extern const gpusync_hooks kit_hooks; /* of these three */
void kit_yield(void *user);
void kit_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns);
void kit_unpark(void *user, gpusync_waiter *waiter);
extern const gpusync_hooks without_slices; /* the same, where nothing but an unpark ends the sleep of a wait */
void await_parked(unsigned n);     /* until n threads or more are parked: nothing is left to chance */
void await_parks(unsigned long n); /* until park was called so often since the stage was opened */
void end_parks(void);              /* every park that sleeps returns early, as hooks may */

/* Sleeps at once: the spin of a stage. */
extern const gpusync_spin no_spin;

/* -- what gpusync calls: the log, callbacks ----------------------------------------------------------------------- */

void kit_log(void *user, gpusync_log_level level, const char *text); /* a stage's; keeps the first 64 lines */
bool log_has(gpusync_log_level level, const char *part); /* is there a line of this level with this text in it? */

void kit_notify(void *user); /* a stage's, with GPUSYNC_CALLBACKS_MANUAL */

/* What a callback was told. */
typedef struct note {
    unsigned calls;
    unsigned order; /* among all callbacks of the stage: 1, 2, ... */
    gpusync_result result;
    bool has_error;
    gpusync_error error;
    pthread_t thread;
} note;
void remember(void *user, gpusync_result result, const gpusync_error *error); /* a gpusync_done_fn; user: a note */
void remember_destroyed(void *user); /* a gpusync_destroyed_fn; user: a note */
/* Both assert that the call is accepted. */
void on_done(gpusync_point point, note *n);
/* Once what is due has run, on its dispatch queue. With GPUSYNC_CALLBACKS_MANUAL run_callbacks comes first. */
unsigned calls_of(note *n);
void assert_noted_at(note *n, gpusync_result result, const char *file, int line); /* called once, with this */
#define assert_noted(note, result) assert_noted_at(note, result, __FILE__, __LINE__)
void assert_in_order(note *notes, size_t count); /* each called once, one after the other */

/* What was counted since the stage was opened. */
typedef struct kit_counts {
    long blocks, bytes;         /* memory that gpusync has now */
    long allocations, refusals; /* calls of GPUSYNC_MALLOC, and those of them that got NULL */
    unsigned parked;            /* threads that sleep in park now */
    unsigned long parks, unparks, yields;
    uint64_t park_deadline; /* of the park that began last */
    unsigned log_lines;
    unsigned long notifies;
} kit_counts;
kit_counts kit_now(void);

/* -- the stage ---------------------------------------------------------------------------------------------------- */

#define STAGE_MOST 4u

/* All zero: the manual clock, one queue, no timeline; waits sleep at once, in kit_hooks; kit_log; callbacks QUEUED. */
typedef struct stage_desc {
    bool real;          /* the real clock */
    bool threads;       /* gpusync's own sleep, in place of kit_hooks */
    bool spins;         /* waits decide how long they spin; or as device.spin says */
    unsigned queues;    /* 0: 1. At most STAGE_MOST */
    unsigned timelines; /* at most STAGE_MOST */
    bool no_queue;
    bool metal4; /* each queue is one of Metal 4 */
    bool mixed;  /* the first queue is one of Metal 4, the second is not, and so on */
    gpusync_device_desc device; /* what is not NULL stays: hooks, spin, log, notify */
    gpusync_queue_desc queue;   /* of each queue; the label is "first", "second", ... */
    gpusync_timeline_desc timeline; /* of each timeline; the label is "a", "b", ... */
} stage_desc;

typedef struct stage {
    gpusync_device *device; /* NULL, as below: the test has destroyed it */
    gpusync_queue *q[STAGE_MOST];
    gpusync_timeline *t[STAGE_MOST];
    void *metal_device;       /* retained by the stage, and so are the queues: they outlive what is destroyed */
    void *metal[STAGE_MOST];
    bool real;
    long live; /* objects of softmetal's before the device was made */
    void *pool;
} stage;

#define on_stage(test) on_stage_with(test, 0)
#define on_stage_with(test, ...) KIT_TEST(test, ON_STAGE(test, __VA_ARGS__))
#define also_on_stage_with(test, ...) KIT_ADD(test##_also, ON_STAGE(test, __VA_ARGS__)) /* once more, behind the test */
#define stage_of(state) ((stage *)*(state))
int stage_set_up(void **state);
int stage_tear_down(void **state);

/* The test twice: as it stands, and, "_on_metal4", with queues of Metal 4 in its stage, or in every stage that it
   opens. What is said of work below holds there, too. */
#define on_both_kinds(test) on_both_kinds_with(test, 0)
#define on_both_kinds_with(test, ...) \
    KIT_TEST(test, ON_STAGE(test, __VA_ARGS__), ON_METAL4(test, stage_set_up, stage_tear_down, __VA_ARGS__))
#define without_stage_on_both_kinds(test) KIT_PLAIN_TEST(test, cmocka_unit_test(test), ALL_ON_METAL4(test, test, NULL))
/* ... and a third time, "_on_both", with queues of either kind in turn: for tests with several queues. */
#define on_all_kinds_with(test, ...) \
    KIT_TEST(test, ON_STAGE(test, __VA_ARGS__), ON_METAL4(test, stage_set_up, stage_tear_down, __VA_ARGS__), \
             ON_BOTH(test, stage_set_up, stage_tear_down, __VA_ARGS__))

/* What these are made of: rows of cmocka's. */
#define ON_STAGE(test, ...) {#test, test, stage_set_up, stage_tear_down, (void *)&(stage_desc){__VA_ARGS__}}
#define ON_METAL4(test, set_up, tear_down, ...) \
    {#test "_on_metal4", test, set_up, tear_down, (void *)&(stage_desc){__VA_ARGS__, .metal4 = true}}
#define ON_BOTH(test, set_up, tear_down, ...) \
    {#test "_on_both", test, set_up, tear_down, (void *)&(stage_desc){__VA_ARGS__, .mixed = true}}
#define ALL_ON_METAL4(test, body, state) {#test "_on_metal4", body, stages_are_metal4, stages_are_legacy, state}
int stages_are_metal4(void **state); /* from here on, whatever the stage says */
int stages_are_legacy(void **state);

/* The same by hand. Close finishes what Metal has, destroys what is there, and asserts that nothing is left: no memory
   of gpusync's, no object of Metal's, no thread of start. */
void stage_open(stage *s, const stage_desc *desc);
void stage_close(stage *s);

/* -- work. All of these assert that it is accepted ----------------------------------------------------------------

   On a queue of Metal 4 new_buffer records an empty command buffer, which the kit owns, with its allocator, until the
   stage is closed; the panel takes it for its run. encode_wait and encode_signal, which are not there, remember the
   point: commit makes a submission ON_GPU of it. */

#define at(timeline, value) gpusync_at_value(timeline, value)
#define ticket_at(queue, ticket) gpusync_at_ticket(queue, ticket)

bool is_metal4(gpusync_queue *queue);
void *new_buffer(gpusync_queue *queue); /* an open one of gpusync's */
void *named_buffer(gpusync_queue *queue, const char *label);
void *foreign_buffer(gpusync_queue *queue); /* made by the Metal queue; +1: metal_release */
gpusync_ticket commit(gpusync_queue *queue, void *buffer);
gpusync_ticket commit_new(gpusync_queue *queue); /* an empty one */
gpusync_ticket commit_failing(gpusync_queue *queue, unsigned reason); /* ... that ends so: softmetal_reason */
void encode_wait(gpusync_queue *queue, void *buffer, gpusync_point point);
void encode_signal(gpusync_queue *queue, void *buffer, gpusync_point point);
gpusync_queue *queue_from(gpusync_device *device, const gpusync_queue_desc *desc);
gpusync_queue *queue_of_kind(bool metal4, gpusync_device *device, const gpusync_queue_desc *desc);
gpusync_timeline *timeline_from(gpusync_device *device, const gpusync_timeline_desc *desc);
gpusync_timeline *new_timeline(gpusync_device *device);
void other_code_signals(gpusync_timeline *timeline, uint64_t value); /* on its event, without gpusync */
/* Open buffers: of new_buffer, with one signal, and with one wait. */
void *signalling(gpusync_queue *queue, gpusync_point signal);
void *waiting(gpusync_queue *queue, gpusync_point wait);
void signal_value(gpusync_timeline *timeline, uint64_t value);
uint64_t value_of(gpusync_timeline *timeline); /* which has not failed */
/* What its event shows, as a value of the timeline. Makes the event known to other code. */
uint64_t shown(gpusync_timeline *timeline);
void fail_timeline(gpusync_timeline *timeline, gpusync_result result);
#define assert_failed(timeline, result) assert_result(gpusync_timeline_query(timeline, &(uint64_t){0}, NULL), result)

/* SUBMIT(queue, WAITS(at(t, 1), ticket_at(q, 2)), BUFFERS(buffer), SIGNALS(at(t, 2)), .flags = ...) -> its ticket, or, if
   it is UNORDERED, 0 */
#define KIT_LIST(type, ...) ((type[]){__VA_ARGS__})
#define KIT_COUNT(type, ...) (sizeof(KIT_LIST(type, __VA_ARGS__)) / sizeof(type))
#define WAITS(...) .wait_points = KIT_LIST(gpusync_point, __VA_ARGS__), .wait_count = KIT_COUNT(gpusync_point, __VA_ARGS__)
#define SIGNALS(...) \
    .signal_points = KIT_LIST(gpusync_point, __VA_ARGS__), .signal_count = KIT_COUNT(gpusync_point, __VA_ARGS__)
#define BUFFERS(...) \
    .command_buffers = KIT_LIST(void *const, __VA_ARGS__), .command_buffer_count = KIT_COUNT(void *const, __VA_ARGS__)
#define SUBMIT(queue, ...) submit_at(queue, &(gpusync_submission){__VA_ARGS__}, __FILE__, __LINE__)
/* ... where a result is asked for: assert_result(TRY_SUBMIT(queue, &ticket, ...), GPUSYNC_ERROR_...) */
#define TRY_SUBMIT(queue, ticket, ...) submit_to(queue, &(gpusync_submission){__VA_ARGS__}, ticket)
gpusync_result submit_to(gpusync_queue *queue, const gpusync_submission *submission, gpusync_ticket *ticket);
gpusync_ticket submit_at(gpusync_queue *queue, const gpusync_submission *submission, const char *file, int line);

/* Has Metal got it (else it is open, or held)? */
bool is_sent(void *buffer);

/* -- the GPU, on the manual clock --------------------------------------------------------------------------------- */

/* The next command buffer of the queue ends, its handlers run; one whose handlers alone are due comes first. False:
   nothing can end. */
bool finish_next(gpusync_queue *queue);
bool finish_next_of(void *metal_queue);
/* Everything that can end does, on every queue of the stage, also what that sends. */
void finish_all(stage *s);
/* Callbacks and releases that are due, by hand or on the dispatch queue; how many ran by hand. */
size_t run_callbacks(stage *s);
/* Both, until nothing more comes. Real clock: waits until all work has ended, and callbacks have run. */
void settle(stage *s);

/* What the GPU does, in its order: a kernel notes the number when it runs. The first mark makes the pipeline, so make
   one before softmetal_fail_creation. */
void mark(stage *s, void *buffer, uint32_t number);
void *marked(stage *s, unsigned queue, uint32_t number); /* a new buffer */
unsigned marks(void);          /* how many were noted */
uint32_t mark_at(unsigned i);  /* the i-th, from 0 */
void forget_marks(void);
#define assert_marks(...) \
    assert_marks_at(KIT_LIST(const uint32_t, __VA_ARGS__), KIT_COUNT(const uint32_t, __VA_ARGS__), __FILE__, __LINE__)
void assert_marks_at(const uint32_t *expected, unsigned count, const char *file, int line);

/* Those that are not named are false, as on a new stage. */
#define set_quirks(...) softmetal_set_quirks(&(const softmetal_quirks){__VA_ARGS__})

/* -- failures ----------------------------------------------------------------------------------------------------- */

unsigned failures_of(gpusync_queue *queue);                    /* on record */
gpusync_error failure_at(gpusync_queue *queue, unsigned i);    /* the i-th of them, from 0 */

#endif
