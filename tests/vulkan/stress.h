/* stress.h - what the tests of stress.c share: a device, memory whose content the CPU knows, and jobs to wait for

   A job is one command buffer of random fills, copies and kernels. The CPU computes the same in memory of its own, and
   compares every byte. */
#ifndef STRESS_H
#define STRESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "../from.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../gpusync.h"
#include "../../examples/metal.h"
#include "vulkan.h"

enum { MOST_QUEUES = 8, JOBS = 3, OPS = 3, GROUP = 64, GROUPS = 32, WORDS = GROUP * GROUPS };
enum { FILL, COPY, STEP, WORK }; /* what an operation does; those from STEP on are kernels */
/* How a thread waits for a job. Those before CALLS are one call, which may have a time limit. */
enum { PLAIN, BLOCKED, ASLEEP, SPUN, SPUN_ON, NEAR, HANDLED, QUEUE, DEVICE, VALUE, MANY, CALLS,
       RETRIED = CALLS, POLLED, DONE, CALLBACK, SUBMISSION, WAYS };
static uint64_t seed; /* of all that is random */

/* cmocka's asserts are for its own thread alone. */
#define same(got, wanted) same_at(__FILE__, __LINE__, #got, (long long)(got), (long long)(wanted))
#define check(condition) same(!!(condition), 1)
#define well(call) same(call, GPUSYNC_OK)
static void same_at(const char *file, int line, const char *text, long long got, long long wanted)
{
    if (got == wanted) return;
    fprintf(stderr, "%s:%d: %s: %lld, not %lld (SEED=%llu)\n", file, line, text, got, wanted, (unsigned long long)seed);
    abort();
}

static unsigned below(uint64_t *random, unsigned limit)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (unsigned)((*random >> 20) % limit);
}

/* -- the device of a test, and the failures that its queues have to record ----------------------------------------- */

static const char source[] =
    "#include <metal_stdlib>\n"
    "using namespace metal;\n"
    "kernel void step(device const uint *x [[buffer(0)]], device uint *y [[buffer(1)]],\n"
    "                 uint i [[thread_position_in_grid]]) { y[i] = 3 * x[i] + 1; }\n"
    "kernel void work(device uint *data [[buffer(0)]], constant uint &rounds [[buffer(1)]],\n"
    "                 uint i [[thread_position_in_grid]]) {\n"
    "    uint x = data[i];\n"
    "    for (uint k = 0; k < rounds; k++) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; }\n"
    "    data[i] = x; }\n";
static const unsigned char codes[] = {1, 2, 3, 7, 8, 9}; /* not 4 and 11, which mean that the device is lost */
static const gpusync_failure classes[] = {
    [1] = GPUSYNC_FAILURE_OTHER,         [2] = GPUSYNC_FAILURE_TIMEOUT,       [3] = GPUSYNC_FAILURE_PAGE_FAULT,
    [7] = GPUSYNC_FAILURE_NOT_PERMITTED, [8] = GPUSYNC_FAILURE_OUT_OF_MEMORY, [9] = GPUSYNC_FAILURE_INVALID_RESOURCE};

static struct {
    gpusync_device *device;
    void *metal, *step, *work;
    gpusync_queue *queues[MOST_QUEUES];
    unsigned char *failed[MOST_QUEUES]; /* by ticket: the code */
    unsigned count, failures;
    uint64_t held; /* commits that were held, of all queues */
} on;

static void open_device(unsigned queues, uint32_t room, unsigned tickets)
{
    gpusync_queue_desc desc = {.max_command_buffer_count = room, .error_log_count = tickets};
    memset(&on, 0, sizeof on);
    well(gpusync_device_create(NULL, &on.device));
    on.metal = gpusync_device_metal(on.device);
    on.step = metal_pipeline_new(on.metal, source, "step", NULL, 0);
    on.work = metal_pipeline_new(on.metal, source, "work", NULL, 0);
    for (; on.count < queues; on.count++) {
        well(gpusync_queue_create(on.device, &desc, &on.queues[on.count]));
        on.failed[on.count] = (unsigned char *)calloc(tickets + 1, 1);
    }
}

static void close_rest(void)
{
    metal_release(on.step);
    metal_release(on.work);
    for (unsigned i = 0; i < on.count; i++) free(on.failed[i]);
}

/* Each failure is on record once, and nothing else is. */
static void close_device(void)
{
    for (unsigned i = 0; i < on.count; i++) {
        gpusync_stats stats;
        gpusync_error error;
        uint64_t cursor = 0, failures = 0;
        for (; gpusync_next_error(on.queues[i], &cursor, &error) == GPUSYNC_OK; failures++) {
            same(error.code, on.failed[i][error.ticket]);
            same(error.failure, classes[error.code]);
            check(error.result == GPUSYNC_ERROR_EXECUTION && !strcmp(error.message, "on purpose"));
            on.failed[i][error.ticket] = 0;
        }
        well(gpusync_get_stats(on.queues[i], &stats));
        same(stats.failures, failures);
        for (uint64_t ticket = 1; ticket <= stats.commits; ticket++) same(on.failed[i][ticket], 0);
        on.held += stats.held;
        on.failures += (unsigned)failures;
        well(gpusync_queue_destroy(on.queues[i]));
    }
    close_rest();
    well(gpusync_device_destroy(on.device));
}

static int no_object_is_left(void **state)
{
    (void)state;
    assert_int_equal(vulkan_live(), 0);
    return 0;
}

/* -- what the GPU is to do, and what the CPU finds then ------------------------------------------------------------ */

typedef struct cells {
    void *gpu[2];
    uint32_t cpu[2][WORDS];
} cells;

typedef struct op {
    unsigned kind, from, at, to, groups;
    uint32_t value; /* the rounds of WORK, the byte of FILL */
} op;

static gpusync_timeline *new_timeline(bool signalled_by_others)
{
    gpusync_timeline_desc desc = {.signalled_by_others = signalled_by_others};
    gpusync_timeline *timeline;
    well(gpusync_timeline_create(on.device, &desc, &timeline));
    return timeline;
}

static void make_cells(cells *c)
{
    for (unsigned k = 0; k < 2; k++) {
        for (unsigned i = 0; i < WORDS; i++) c->cpu[k][i] = (2 * i + k + 1) * 0x9E3779B9u;
        c->gpu[k] = metal_buffer_new(on.metal, sizeof c->cpu[k]);
        memcpy(metal_contents(c->gpu[k]), c->cpu[k], sizeof c->cpu[k]);
    }
}

static void release_cells(cells *c)
{
    metal_release(c->gpu[0]);
    metal_release(c->gpu[1]);
}

static bool cells_agree(const cells *c)
{
    return !memcmp(metal_contents(c->gpu[0]), c->cpu[0], sizeof c->cpu[0]) &&
           !memcmp(metal_contents(c->gpu[1]), c->cpu[1], sizeof c->cpu[1]);
}

static void draw_ops(op *ops, uint64_t *random, unsigned rounds)
{
    for (op *o = ops; o < ops + OPS; o++) {
        *o = (op){.kind = below(random, 4), .from = below(random, 2), .groups = 1 + below(random, GROUPS)};
        o->at = below(random, GROUPS - o->groups + 1) * GROUP;
        o->to = below(random, GROUPS - o->groups + 1) * GROUP;
        o->value = 1 + below(random, o->kind == WORK ? rounds : 255);
    }
}

static void compute(cells *c, const op *ops)
{
    for (const op *o = ops; o < ops + OPS; o++) {
        uint32_t *x = c->cpu[o->from] + o->at, *y = c->cpu[!o->from] + o->to;
        if (o->kind == FILL) memset(x, (int)o->value, o->groups * GROUP * sizeof *x);
        if (o->kind == COPY) memcpy(y, x, o->groups * GROUP * sizeof *x);
        for (unsigned i = 0; o->kind >= STEP && i < o->groups * GROUP; i++) {
            uint32_t word = x[i];
            if (o->kind == STEP) y[i] = 3 * word + 1;
            for (uint32_t left = o->kind == WORK ? o->value : 0; left; left--) {
                word ^= word << 13;
                word ^= word >> 17;
                word ^= word << 5;
            }
            x[i] = word;
        }
    }
}

static void encode(void *buffer, const cells *c, const op *ops)
{
    for (const op *o = ops; o < ops + OPS; o++) {
        void *x = c->gpu[o->from], *y = c->gpu[!o->from];
        void *encoder = o->kind < STEP ? metal_blit_begin(buffer) : metal_compute_begin(buffer);
        if (o->kind == FILL) metal_fill(encoder, x, o->at * 4, o->groups * GROUP * 4, (unsigned char)o->value);
        if (o->kind == COPY) metal_copy(encoder, x, o->at * 4, y, o->to * 4, o->groups * GROUP * 4);
        if (o->kind >= STEP) {
            metal_set_pipeline(encoder, o->kind == STEP ? on.step : on.work);
            metal_set_buffer(encoder, x, o->at * 4, 0);
            if (o->kind == STEP) metal_set_buffer(encoder, y, o->to * 4, 1);
            else metal_set_bytes(encoder, &o->value, sizeof o->value, 1);
            metal_dispatch(encoder, (metal_size){o->groups, 1, 1}, (metal_size){GROUP, 1, 1});
        }
        metal_end(encoder);
    }
}

/* -- jobs: command buffers, and how a thread waits for one --------------------------------------------------------- */

typedef struct told { /* what a callback was told */
    pthread_mutex_t lock;
    pthread_cond_t more;
    unsigned count;
    gpusync_result result;
    int64_t code;
} told;
static const told nothing_told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, GPUSYNC_OK, 0};

typedef struct handler { /* a completed handler of the program, laid out as an Objective-C block */
    void *isa;
    int32_t flags, reserved;
    void (*invoke)(struct handler *self, void *buffer);
    const void *descriptor;
    unsigned ran;
} handler;
extern void *global_block_class[32] METAL__ASM("_NSConcreteGlobalBlock");
static const struct {
    unsigned long reserved, size;
    const char *signature;
} handler_descriptor = {0, sizeof(handler), "v16@?0@8"};

typedef struct job {
    unsigned queue, way;
    gpusync_ticket ticket;
    cells *cells;
    op ops[OPS];
    gpusync_point waits[2], signal;
    size_t wait_count, signal_count;
    uint32_t flags;
    long code, expected;  /* with what the work fails; with what its ticket fails, inherited or not; 0: none */
    bool by_ticket, runs; /* runs: it may run though it inherits a failure, because the GPU had it already */
    void *buffer;         /* +1 */
    told told;
    handler handler;
} job;

static void tell(void *user, gpusync_result result, const gpusync_error *error)
{
    told *t = (told *)user;
    pthread_mutex_lock(&t->lock);
    t->result = result;
    t->code = error ? error->code : 0;
    __atomic_fetch_add(&t->count, 1, __ATOMIC_SEQ_CST);
    pthread_cond_broadcast(&t->more);
    pthread_mutex_unlock(&t->lock);
}

static void tell_gone(void *user)
{
    tell(user, GPUSYNC_OK, NULL);
}

static gpusync_result await_told(told *t)
{
    pthread_mutex_lock(&t->lock);
    while (!t->count) pthread_cond_wait(&t->more, &t->lock);
    same(t->count, 1);
    pthread_mutex_unlock(&t->lock);
    return t->result;
}

static void count_run(handler *self, void *buffer)
{
    (void)buffer;
    __atomic_fetch_add(&self->ran, 1, __ATOMIC_RELAXED);
}

/* Waits and signals are encoded, unless the job is STRICT: a submission's own may overlap its command buffer. */
static void commit_job(job *j)
{
    gpusync_queue *queue = on.queues[j->queue];
    bool strict = j->flags & GPUSYNC_STRICT;
    void *buffer;
    gpusync_submission s = {.command_buffers = &buffer, .command_buffer_count = 1, .waits = j->waits,
                            .signals = &j->signal, .flags = j->flags, .user = &j->told};
    gpusync_ticket ticket;
    well(gpusync_command_buffer(queue, NULL, &buffer));
    j->buffer = metal_retain(buffer);
    j->told.count = 0;
    j->handler = (handler){global_block_class, 1 << 28 | 1 << 30, 0, count_run, &handler_descriptor, 0};
    for (size_t i = 0; i < j->wait_count && !strict; i++) well(gpusync_encode_wait(queue, buffer, j->waits[i]));
    encode(buffer, j->cells, j->ops);
    if (j->code) vulkan_fail(buffer, j->code, "on purpose");
    /* A buffer that is held and never committed owes no handler, and runs it at a time of its own. */
    if (j->way == HANDLED && !j->wait_count) metal_add_completed_handler(buffer, &j->handler);
    if (j->signal_count && !strict) well(gpusync_encode_signal(queue, buffer, j->signal));
    s.wait_count = strict ? j->wait_count : 0;
    s.signal_count = strict ? j->signal_count : 0;
    if (j->way == SUBMISSION) s.on_complete = tell;
    if (j->flags || j->way == SUBMISSION) well(gpusync_submit(queue, &s, &ticket));
    else well(gpusync_commit(queue, buffer, &ticket));
    if (j->way == CALLBACK) well(gpusync_on_done(gpusync_at_ticket(queue, ticket), tell, &j->told));
    __atomic_store_n(&j->ticket, ticket, __ATOMIC_RELEASE);
}

static gpusync_result wait_once(const job *j, unsigned way, uint64_t timeout_ns)
{
    static const gpusync_spin spins[CALLS] = {
        [SPUN] = {32, 224, 0, false}, [SPUN_ON] = {0, UINT32_MAX, 0, false}, [NEAR] = {0, 0, 200000, true}};
    gpusync_queue *queue = on.queues[j->queue];
    const gpusync_ticket ticket = __atomic_load_n(&j->ticket, __ATOMIC_ACQUIRE);
    const gpusync_point points[] = {gpusync_at_ticket(queue, ticket), j->signal};
    gpusync_error error = {.code = -1}; /* until it is filled */
    gpusync_wait_options o = {.error = &error, .handlers = way == HANDLED, .blocking = way == BLOCKED};
    gpusync_result result;
    if (way >= ASLEEP && way <= NEAR) o.spin = &spins[way];
    switch (way) {
    case QUEUE: return gpusync_queue_wait(queue, timeout_ns);
    case DEVICE: return gpusync_device_wait(on.device, timeout_ns, NULL);
    case PLAIN: return gpusync_wait(queue, ticket, timeout_ns);
    case VALUE: result = gpusync_timeline_wait(j->signal.timeline, j->signal.value, timeout_ns, &o); break;
    case MANY: result = gpusync_wait_many(points, 1 + j->signal_count, GPUSYNC_WAIT_ALL, timeout_ns, &o, NULL); break;
    default: result = gpusync_wait_ex(queue, ticket, timeout_ns, &o); break;
    }
    if (result == GPUSYNC_ERROR_EXECUTION) same(error.code, j->expected);
    return result;
}

static gpusync_result wait_for(job *j, uint64_t *random)
{
    gpusync_queue *queue = on.queues[j->queue];
    uint64_t began, limit;
    gpusync_result result;
    switch (j->way) {
    case RETRIED:
        do {
            limit = below(random, 300000);
            began = gpusync_now_ns();
            result = wait_once(j, below(random, QUEUE), limit);
            check(result != GPUSYNC_TIMEOUT || gpusync_now_ns() - began >= limit);
        } while (result == GPUSYNC_TIMEOUT);
        return result;
    case POLLED:
        while ((result = gpusync_poll(queue, j->ticket)) == GPUSYNC_NOT_READY) sched_yield();
        return result;
    case DONE:
        while (!gpusync_is_done(queue, j->ticket)) sched_yield();
        return gpusync_wait(queue, j->ticket, 0); /* done is done: never TIMEOUT */
    case CALLBACK:
    case SUBMISSION:
        result = await_told(&j->told);
        same(j->told.code, j->expected);
        return result;
    default:
        result = wait_once(j, j->way, GPUSYNC_FOREVER);
        if (j->way != QUEUE && j->way != DEVICE) return result;
        check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION); /* of any job, and told once */
        return gpusync_wait(queue, j->ticket, 0);
    }
}

/* The job has ended: so said a wait, and now its bytes. */
static void settle(job *j, gpusync_result result)
{
    const gpusync_result expected = j->expected ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
    gpusync_ticket_info info;
    same(result, expected);
    if (!j->expected || (j->runs && !cells_agree(j->cells))) compute(j->cells, j->ops);
    check(cells_agree(j->cells));
    if (j->way == HANDLED && !j->wait_count) same(__atomic_load_n(&j->handler.ran, __ATOMIC_RELAXED), 1);
    same(gpusync_wait(on.queues[j->queue], j->ticket, GPUSYNC_FOREVER), expected); /* VALUE: a moment later */
    same(gpusync_poll(on.queues[j->queue], j->ticket), expected);
    result = gpusync_get_info(on.queues[j->queue], j->ticket, &info);
    if (result != GPUSYNC_ERROR_RESULT_UNKNOWN) check(!result && info.result == expected); /* unknown: too old */
    on.failed[j->queue][j->ticket] = (unsigned char)j->expected;
    metal_release(j->buffer);
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

typedef struct crowd { /* threads that have jobs */
    unsigned queues, room, rounds;
    bool failing, heirs; /* heirs: each job waits for the one before, which may fail */
} crowd;

typedef struct task {
    uint64_t random;
    unsigned index, rounds;
    const crowd *crowd;
    job jobs[JOBS];
    cells cells[JOBS];
    struct chain *chain;
    struct flight *flight;
    const job *awaited;
    bool begun;
    pthread_t thread;
} task;

static void start(task *t, void *(*body)(void *), unsigned index, uint64_t *random)
{
    t->index = index;
    t->random = (*random * 0x9E3779B97F4A7C15u + index * 0x2545F491u) | 1;
    (void)below(random, 2);
    same(pthread_create(&t->thread, NULL, body, t), 0);
}

#endif
