/* stress.c - eight threads at once, on a device whose work takes time and ends when it likes

   Threads fill, copy and compute on four queues, and wait in every way that gpusync has. Chains of work go from queue
   to queue, submitted in order and in any other. Command buffers fail at random. Queues and timelines are destroyed
   while work is in flight. Proved: each wait tells how the work ended. What the GPU wrote is what the CPU computes,
   every byte of it. Failed work, and held work that is given up, has written nothing. Each callback comes once, and
   each failure is on record once. No object is left.

   STRESS  factor for the length, default 1; 0.2 is a fifth
   SEED    of all that is random; printed, default from the clock */
#include "from.h" /* cmocka */

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpusync.h"
#include "metal.h"

/* Before its commit: the command buffer ends with this code of MTLCommandBufferErrorDomain. It waits for its events,
   and does none of its commands and signals. */
extern void vulkan_fail(void *command_buffer, long code, const char *text);
/* Objects of the device that live. What Vulkan still works on has up to 10 s to end. */
extern long vulkan_live(void);

enum { THREADS = 8, QUEUES = 4, JOBS = 3, OPS = 3, GROUP = 64, GROUPS = 32, WORDS = GROUP * GROUPS };
enum { LINKS = 32, GATE = 8, FLIGHT = 9, WAITERS = 6 };
enum { FILL, COPY, STEP, WORK }; /* what an operation does; those from STEP on are kernels */
/* How a thread waits for a job. Those before CALLS are one call, which may have a time limit. */
enum { PLAIN, ASLEEP, SPUN, SPUN_ON, HANDLED, QUEUE, DEVICE, VALUE, MANY, CALLS,
       RETRIED = CALLS, POLLED, DONE, CALLBACK, SUBMISSION, WAYS };
enum { BY_VALUE, BY_HOST, BY_TICKET }; /* how a job waits for another one */
enum { IN_ORDER, BY_QUEUE, SHUFFLED };      /* how a chain is submitted */
static double factor = 1;
static uint64_t seed;

/* cmocka's asserts are for its own thread alone. */
#define same(got, wanted) same_at(__LINE__, #got, (long long)(got), (long long)(wanted))
#define check(condition) same(!!(condition), 1)
#define well(call) same(call, GPUSYNC_OK)
/* Between threads. */
#define GET(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define PUT(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)
#define COUNT(p) __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST)
static void same_at(int line, const char *text, long long got, long long wanted)
{
    if (got == wanted) return;
    fprintf(stderr, "stress.c:%d: %s: %lld, not %lld (SEED=%llu)\n", line, text, got, wanted, (unsigned long long)seed);
    abort();
}

static unsigned below(uint64_t *random, unsigned limit)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (unsigned)((*random >> 20) % limit);
}

static unsigned length(unsigned rounds)
{
    double scaled = rounds * factor;
    return scaled < 1 ? 1 : (unsigned)scaled;
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
    [1] = GPUSYNC_FAILURE_OTHER,         [2] = GPUSYNC_FAILURE_GPU_TIMEOUT,   [3] = GPUSYNC_FAILURE_PAGE_FAULT,
    [7] = GPUSYNC_FAILURE_NOT_PERMITTED, [8] = GPUSYNC_FAILURE_OUT_OF_MEMORY, [9] = GPUSYNC_FAILURE_INVALID_RESOURCE};

static struct {
    gpusync_device *device;
    void *metal, *step, *work;
    gpusync_queue *queues[QUEUES];
    unsigned char *failed[QUEUES]; /* by ticket: the code */
    unsigned loose[QUEUES];        /* failures of UNORDERED work, which has no ticket */
    unsigned count, failures;
    uint64_t held; /* commits that were held, of all queues */
} on;

static _Thread_local bool *begun_here; /* of a thread in a wait: the wait has called yield, or is over */

static void note_begin(void *user)
{
    (void)user;
    if (begun_here) PUT(begun_here, true);
    sched_yield();
}

/* spin: of each wait that brings none. */
static void open_device(unsigned queues, uint32_t room, unsigned tickets, const gpusync_spin *spin)
{
    static const gpusync_hooks hooks = {.yield = note_begin};
    gpusync_queue_desc desc = {.max_command_buffer_count = room, .error_log_count = tickets};
    memset(&on, 0, sizeof on);
    well(gpusync_device_create(&(gpusync_device_desc){.hooks = &hooks, .spin = spin}, &on.device));
    on.metal = gpusync_device_metal(on.device);
    on.step = metal_pipeline_new(on.metal, source, "step", NULL, 0);
    on.work = metal_pipeline_new(on.metal, source, "work", NULL, 0);
    for (; on.count < queues; on.count++) {
        well(gpusync_queue_create(on.device, &desc, &on.queues[on.count]));
        on.failed[on.count] = (unsigned char *)calloc(tickets + 1, 1);
    }
}

static void release_rest(void)
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
        for (; gpusync_queue_next_error(on.queues[i], &cursor, &error) == GPUSYNC_OK; failures++) {
            if (error.ticket) same(error.code, on.failed[i][error.ticket]);
            else on.loose[i]--;
            same(error.failure, classes[error.code]);
            check(error.result == GPUSYNC_ERROR_EXECUTION && !strcmp(error.message, "on purpose"));
            on.failed[i][error.ticket] = 0;
        }
        well(gpusync_device_get_stats(on.device, on.queues[i], &stats));
        same(stats.failures, failures);
        same(on.loose[i], 0);
        same(gpusync_in_flight(on.queues[i]), 0);
        for (uint64_t ticket = 1; ticket <= stats.commits; ticket++) same(on.failed[i][ticket], 0);
        on.held += stats.held;
        on.failures += (unsigned)failures;
        well(gpusync_queue_destroy(on.queues[i]));
    }
    release_rest();
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

static gpusync_timeline *new_timeline(void)
{
    gpusync_timeline *timeline;
    well(gpusync_timeline_create(on.device, NULL, &timeline));
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
    unsigned count;
    gpusync_result result;
    int64_t code;
} told;

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
    bool strict, unordered; /* neither: points are encoded */
    long code, expected;  /* with what the work fails; with what its ticket fails, inherited or not; 0: none */
    bool by_ticket, runs; /* runs: it may run though it inherits a failure, because the GPU had it already */
    void *buffer;         /* +1 */
    told told;
    handler handler;
} job;

static void tell(void *user, gpusync_result result, const gpusync_error *error)
{
    told *t = (told *)user;
    t->result = result;
    t->code = error ? error->code : 0;
    COUNT(&t->count);
}

static void tell_gone(void *user)
{
    tell(user, GPUSYNC_OK, NULL);
}

static gpusync_result await_told(told *t)
{
    while (!GET(&t->count)) sched_yield();
    return t->result;
}

static void count_run(handler *self, void *buffer)
{
    (void)buffer;
    COUNT(&self->ran);
}

/* Waits and signals are encoded, or the host's: those of a submission ON_GPU may overlap its command buffer. */
static void commit_job(job *j)
{
    gpusync_queue *queue = on.queues[j->queue];
    bool encodes = !j->strict && !j->unordered && j->way != SUBMISSION;
    void *buffer;
    gpusync_submission s = {.command_buffers = &buffer, .command_buffer_count = 1, .wait_points = j->waits,
                            .wait_count = j->wait_count, .signal_points = &j->signal, .signal_count = j->signal_count,
                            .user = &j->told, .flags = j->unordered ? GPUSYNC_SUBMIT_UNORDERED : 0};
    gpusync_ticket ticket = 0;
    well(gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer));
    j->buffer = metal_retain(buffer);
    j->told.count = 0;
    j->handler = (handler){global_block_class, 1 << 28 | 1 << 30, 0, count_run, &handler_descriptor, 0};
    for (size_t i = 0; i < j->wait_count && encodes; i++) well(gpusync_encode_wait(queue, buffer, j->waits[i]));
    encode(buffer, j->cells, j->ops);
    if (j->code) vulkan_fail(buffer, j->code, "on purpose");
    /* A buffer that is held and never committed owes no handler, and runs it at a time of its own. */
    if (j->way == HANDLED && !j->wait_count) metal_add_completed_handler(buffer, &j->handler);
    if (j->signal_count && encodes) well(gpusync_encode_signal(queue, buffer, j->signal));
    if (j->unordered || j->way == SUBMISSION) s.on_complete = tell;
    if (encodes) well(gpusync_commit(queue, buffer, &ticket));
    else well(gpusync_submit(queue, &s, j->unordered ? NULL : &ticket));
    if (j->way == CALLBACK) well(gpusync_on_done(gpusync_at_ticket(queue, ticket), tell, &j->told));
    PUT(&j->ticket, ticket);
}

static gpusync_result wait_once(const job *j, unsigned way, uint64_t timeout_ns)
{
    static const gpusync_spin spins[CALLS] = {[SPUN] = {32, 224, 0}, [SPUN_ON] = {0, UINT32_MAX, 0}};
    gpusync_queue *queue = on.queues[j->queue];
    gpusync_ticket ticket = GET(&j->ticket);
    const gpusync_point points[] = {gpusync_at_ticket(queue, ticket), j->signal};
    gpusync_error error = {.code = -1}; /* until it is filled */
    gpusync_wait_options o = {.error = &error, .handlers = way == HANDLED};
    gpusync_result result;
    if (way >= ASLEEP && way <= SPUN_ON) o.spin = &spins[way];
    if (way == QUEUE) return gpusync_wait(queue, GPUSYNC_EVERYTHING, timeout_ns, NULL);
    if (way == DEVICE) return gpusync_device_wait(on.device, timeout_ns, NULL);
    if (way == VALUE) result = gpusync_timeline_wait(j->signal.timeline, j->signal.value, timeout_ns, &o);
    else if (way == MANY) result = gpusync_wait_many(points, 1 + j->signal_count, GPUSYNC_WAIT_ALL, timeout_ns, &o, NULL);
    else result = gpusync_wait(queue, ticket, timeout_ns, &o);
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
        while ((result = gpusync_poll(queue, j->ticket, NULL)) == GPUSYNC_NOT_READY) sched_yield();
        return result;
    case DONE:
        while (!gpusync_is_done(queue, j->ticket)) sched_yield();
        return gpusync_wait(queue, j->ticket, 0, NULL); /* done is done: never TIMEOUT */
    case CALLBACK:
    case SUBMISSION:
        result = await_told(&j->told);
        same(j->told.code, j->expected);
        return result;
    default:
        result = wait_once(j, j->way, GPUSYNC_FOREVER);
        if (j->way != QUEUE && j->way != DEVICE) return result;
        check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION); /* of any job, and told once */
        return j->unordered ? await_told(&j->told) : gpusync_wait(queue, j->ticket, 0, NULL);
    }
}

/* The job has ended: so said a wait, and now its bytes. */
static void settle(job *j, gpusync_result result)
{
    const gpusync_result expected = j->expected ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
    gpusync_times times;
    same(result, expected);
    if (!j->expected || (j->runs && !cells_agree(j->cells))) compute(j->cells, j->ops);
    check(cells_agree(j->cells));
    if (j->way == HANDLED && !j->wait_count) same(GET(&j->handler.ran), 1);
    metal_release(j->buffer);
    if (j->unordered) {
        same(await_told(&j->told), expected);
        on.loose[j->queue] += j->expected != 0;
        return;
    }
    same(gpusync_wait(on.queues[j->queue], j->ticket, GPUSYNC_FOREVER, NULL), expected); /* VALUE: a moment later */
    same(gpusync_poll(on.queues[j->queue], j->ticket, &times), expected);
    check(times.gpu_start_s <= times.gpu_end_s);
    on.failed[j->queue][j->ticket] = (unsigned char)j->expected;
}

/* -- threads with jobs of their own -------------------------------------------------------------------------------- */

typedef struct crowd {
    unsigned queues, room, rounds;
    bool failing, heirs; /* heirs: each job waits for the one before, which may fail */
} crowd;

typedef struct task {
    uint64_t random;
    unsigned index;
    const crowd *crowd;
    job jobs[JOBS];
    cells cells[JOBS];
    struct chain *chain;
    struct flight *flight;
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

static void join(task *tasks, unsigned count)
{
    for (unsigned i = 0; i < count; i++) same(pthread_join(tasks[i].thread, NULL), 0);
}

/* With reversed the jobs, UNORDERED, are committed in the opposite order, each before the one that it waits for. */
static void draw_job(task *t, unsigned k, bool reversed)
{
    job *j = &t->jobs[k];
    const job *before = t->crowd->heirs && k ? j - 1 : NULL;
    unsigned by = below(&t->random, reversed ? 2 : 3);
    long inherited = before ? before->expected : 0;
    if (!j->signal.timeline || j->expected) { /* the timeline has failed */
        well(gpusync_timeline_destroy(j->signal.timeline));
        j->signal = gpusync_at_value(new_timeline(), 0);
    }
    j->signal.value++;
    j->cells = &t->cells[k];
    j->queue = below(&t->random, on.count);
    j->way = below(&t->random, WAYS);
    if (reversed && (j->way < QUEUE || j->way > VALUE)) j->way = SUBMISSION; /* the others ask for a ticket */
    draw_ops(j->ops, &t->random, 24);
    j->signal_count = t->crowd->heirs || j->way == VALUE || j->way == MANY;
    j->code = t->crowd->failing && !inherited && below(&t->random, 16) == 0 ? codes[below(&t->random, 6)] : 0;
    j->expected = inherited ? inherited : j->code;
    j->runs = inherited && by == BY_VALUE && (before->code || before->runs);
    j->unordered = reversed;
    j->strict = before && by == BY_HOST;
    j->by_ticket = before && by == BY_TICKET;
    j->wait_count = before != NULL;
    if (before) j->waits[0] = before->signal;
}

static void wait_for_some(const task *t, gpusync_wait_for how)
{
    gpusync_point points[JOBS];
    size_t which;
    for (unsigned k = 0; k < JOBS; k++) {
        const job *j = &t->jobs[k];
        points[k] = j->unordered ? j->signal : gpusync_at_ticket(on.queues[j->queue], j->ticket);
    }
    gpusync_result result = gpusync_wait_many(points, JOBS, how, GPUSYNC_FOREVER, NULL, &which);
    same(result, which < JOBS && t->jobs[which].expected ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    for (unsigned k = 0; k < JOBS; k++)
        if (how == GPUSYNC_WAIT_ALL || k == which) /* these have ended */
            same(gpusync_wait_many(&points[k], 1, GPUSYNC_WAIT_ALL, 0, NULL, NULL),
                 t->jobs[k].expected ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
}

static void *do_jobs(void *argument)
{
    task *t = (task *)argument;
    for (unsigned left = length(t->crowd->rounds); left; left--) {
        bool reversed = t->crowd->heirs && below(&t->random, 2);
        unsigned many = below(&t->random, 8);
        for (unsigned k = 0; k < JOBS; k++) draw_job(t, k, reversed);
        for (unsigned k = 0; k < JOBS; k++) {
            job *j = &t->jobs[reversed ? JOBS - 1 - k : k];
            if (j->by_ticket) j->waits[0] = gpusync_at_ticket(on.queues[j[-1].queue], j[-1].ticket);
            commit_job(j);
        }
        if (many <= GPUSYNC_WAIT_ALL_OR_FAILURE) wait_for_some(t, (gpusync_wait_for)many);
        for (unsigned k = 0; k < JOBS; k++) settle(&t->jobs[k], wait_for(&t->jobs[k], &t->random));
    }
    return NULL;
}

static void test_threads_do_jobs(void **state)
{
    const crowd *c = (const crowd *)*state;
    task *tasks = (task *)calloc(THREADS, sizeof *tasks);
    uint64_t random = seed | 1;
    open_device(c->queues, c->room, THREADS * JOBS * length(c->rounds), NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        tasks[i].crowd = c;
        for (unsigned k = 0; k < JOBS; k++) make_cells(&tasks[i].cells[k]);
        start(&tasks[i], do_jobs, i, &random);
    }
    join(tasks, THREADS);
    for (unsigned i = 0; i < THREADS * JOBS; i++) {
        well(gpusync_timeline_destroy(tasks[i / JOBS].jobs[i % JOBS].signal.timeline));
        release_cells(&tasks[i / JOBS].cells[i % JOBS]);
    }
    close_device();
    same(c->failing, on.failures > 0);
    free(tasks);
}

/* -- chains from queue to queue ------------------------------------------------------------------------------------ */

typedef struct chain {
    cells cells;
    job links[LINKS]; /* link n waits for value n, and signals n + 1; some wait for the ticket of link n - 1 */
    unsigned order[LINKS];
    unsigned form;
    gpusync_timeline *values, *gates; /* the host raises gates */
} chain;

static void submit_link(chain *c, unsigned n, uint64_t *random)
{
    job *j = &c->links[n];
    gpusync_ticket before = n && c->form != IN_ORDER ? GET(&j[-1].ticket) : 0;
    bool by_ticket = before && below(random, 2);
    if (n) j->waits[j->wait_count++] = by_ticket ? gpusync_at_ticket(on.queues[j[-1].queue], before) : j[-1].signal;
    if (c->form != IN_ORDER && n % GATE == 0) j->waits[j->wait_count++] = gpusync_at_value(c->gates, n / GATE + 1);
    commit_job(j);
}

/* In order: one thread submits all. Else each has a quarter: one queue in its order, or any of the random order. */
static void *submit_links(void *argument)
{
    task *t = (task *)argument;
    chain *c = t->chain;
    for (unsigned i = t->index; i < LINKS; i += c->form == IN_ORDER ? 1 : QUEUES)
        submit_link(c, c->form == SHUFFLED ? c->order[i] : i, &t->random);
    return NULL;
}

static void *raise_gates(void *argument)
{
    task *t = (task *)argument;
    for (unsigned value = 1; value <= LINKS / GATE; value++) {
        for (unsigned yields = below(&t->random, 200); yields; yields--) sched_yield();
        well(gpusync_timeline_signal(t->chain->gates, value));
    }
    return NULL;
}

/* Begins before any work is to signal the value. */
static void *await_chain(void *argument)
{
    task *t = (task *)argument;
    well(wait_once(&t->chain->links[LINKS - 1], VALUE, GPUSYNC_FOREVER));
    check(cells_agree(&t->chain->cells));
    return NULL;
}

static void run_chain(chain *c, uint64_t *random)
{
    task *tasks = (task *)calloc(QUEUES + 2, sizeof *tasks);
    unsigned submitters = c->form == IN_ORDER ? 1 : QUEUES;
    make_cells(&c->cells);
    c->values = new_timeline();
    c->gates = new_timeline();
    for (unsigned n = 0; n < LINKS; n++) {
        job *j = &c->links[n];
        unsigned place = below(random, n + 1);
        c->order[n] = c->order[place];
        c->order[place] = n;
        j->queue = n % QUEUES;
        j->cells = &c->cells;
        j->signal = gpusync_at_value(c->values, n + 1);
        j->signal_count = 1;
        j->unordered = c->form == SHUFFLED;
        j->strict = c->form != IN_ORDER && below(random, 2);
        draw_ops(j->ops, random, 24);
        compute(&c->cells, j->ops);
    }
    for (unsigned i = 0; i < submitters + 2; i++) {
        tasks[i].chain = c;
        start(&tasks[i], i < submitters ? submit_links : i == submitters ? await_chain : raise_gates, i, random);
    }
    join(tasks, submitters + 2);
    for (unsigned n = 0; n < LINKS; n++) {
        well(wait_once(&c->links[n], c->links[n].unordered ? VALUE : below(random, CALLS), GPUSYNC_FOREVER));
        metal_release(c->links[n].buffer);
    }
    well(gpusync_timeline_destroy(c->values));
    well(gpusync_timeline_destroy(c->gates));
    release_cells(&c->cells);
    free(tasks);
}

static void test_chains(void **state)
{
    uint64_t random = seed | 1;
    open_device(QUEUES, 0, LINKS * length(40), NULL);
    for (unsigned left = length(40); left; left--) {
        chain *c = (chain *)calloc(1, sizeof *c);
        c->form = *(const unsigned *)*state;
        run_chain(c, &random);
        free(c);
    }
    close_device();
    same(*(const unsigned *)*state == IN_ORDER, on.held == 0);
}

/* -- objects are destroyed while work is in flight ----------------------------------------------------------------- */

typedef struct flight {
    job jobs[FLIGHT]; /* each signals its value; the last may be held, for a value that never comes */
    cells cells[FLIGHT];
    unsigned count;
    bool held, timelines_first;
    gpusync_timeline *values, *never;
    told gone; /* of the queue */
} flight;

static void *wait_in_flight(void *argument)
{
    task *t = (task *)argument;
    const flight *f = t->flight;
    const job *j = &f->jobs[below(&t->random, f->count)];
    unsigned way = below(&t->random, CALLS);
    begun_here = &t->begun;
    gpusync_result result = wait_once(j, way == ASLEEP ? PLAIN : way, GPUSYNC_FOREVER); /* ASLEEP yields to nobody */
    PUT(&t->begun, true);
    if (result == GPUSYNC_ERROR_CANCELLED) check(f->held);
    else if (result != GPUSYNC_OK) same(result, GPUSYNC_ERROR_DESTROYED);
    if (result == GPUSYNC_OK) check(!j->wait_count || way == QUEUE || way == DEVICE);
    if (result == GPUSYNC_OK && way != DEVICE) check(cells_agree(j->cells));
    return NULL;
}

static void destroy_timelines(const flight *f)
{
    well(gpusync_timeline_destroy(f->values));
    well(gpusync_timeline_destroy(f->never));
}

static void launch(flight *f, uint64_t *random)
{
    f->held = below(random, 2);
    f->timelines_first = below(random, 2);
    f->count = 1 + below(random, 8) + f->held;
    f->values = new_timeline();
    f->never = new_timeline();
    for (unsigned i = 0; i < f->count; i++) {
        job *j = &f->jobs[i];
        *j = (job){.way = CALLBACK, .cells = &f->cells[i], .signal_count = 1};
        j->signal = gpusync_at_value(f->values, i + 1);
        make_cells(j->cells);
        draw_ops(j->ops, random, 1 + below(random, 400));
        j->wait_count = f->held && i == f->count - 1;
        j->waits[0] = gpusync_at_value(f->never, 1);
        if (!j->wait_count) compute(j->cells, j->ops);
        commit_job(j);
    }
}

/* What was told of each job once its queue is gone. */
static void check_told(flight *f, bool abandoned)
{
    for (unsigned i = 0; i < f->count; i++) {
        job *j = &f->jobs[i];
        same(j->told.count, 1);
        gpusync_result result = await_told(&j->told);
        if (j->wait_count) same(result, f->timelines_first ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_ERROR_CANCELLED);
        else check(result == GPUSYNC_OK || (abandoned && result == GPUSYNC_ERROR_DESTROYED));
        if (!abandoned) check(cells_agree(j->cells));
    }
}

static void fly(flight *f, uint64_t *random)
{
    task *tasks = (task *)calloc(WAITERS, sizeof *tasks);
    unsigned how = below(random, 3);
    open_device(1, 0, FLIGHT, &(gpusync_spin){.yield_iterations = 1});
    launch(f, random);
    for (unsigned i = 0; i < WAITERS; i++) {
        tasks[i].flight = f;
        start(&tasks[i], wait_in_flight, i, random);
    }
    for (unsigned i = 0; i < WAITERS; i++) /* no wait begins in what is being destroyed */
        while (!GET(&tasks[i].begun)) sched_yield();
    if (f->timelines_first) destroy_timelines(f);
    if (how == 0) well(gpusync_queue_destroy(on.queues[0]));
    if (how == 1) well(gpusync_queue_abandon(on.queues[0]));
    if (how == 2) well(gpusync_queue_destroy_later(on.queues[0], tell_gone, &f->gone));
    if (how == 2) (void)await_told(&f->gone);
    check_told(f, how == 1);
    join(tasks, WAITERS);
    if (!f->timelines_first) destroy_timelines(f);
    release_rest();
    well(gpusync_device_destroy(on.device));
    for (unsigned i = 0; i < f->count; i++) { /* after an abandon the GPU may still be at work */
        job *j = &f->jobs[i];
        if (!j->wait_count) metal_wait_until_completed(j->buffer);
        check(cells_agree(j->cells));
        same(j->told.count, 1);
        metal_release(j->buffer);
        release_cells(j->cells);
    }
    same(f->gone.count, how == 2);
    free(tasks);
}

static void test_flights(void **state)
{
    uint64_t random = seed | 1;
    (void)state;
    for (unsigned left = length(80); left; left--) {
        flight *f = (flight *)calloc(1, sizeof *f);
        fly(f, &random);
        free(f);
    }
}

#define TEST(name, function, form) {name, function, NULL, no_object_is_left, form}
int main(void)
{
    static crowd one_queue = {1, 12, 300, false, false}, four_queues = {QUEUES, 0, 300, false, false};
    static crowd failing = {QUEUES, 0, 300, true, false}, heirs = {QUEUES, 0, 300, true, true};
    static unsigned in_order = IN_ORDER, by_queue = BY_QUEUE, shuffled = SHUFFLED;
    const struct CMUnitTest tests[] = {
        TEST("eight threads on one queue", test_threads_do_jobs, &one_queue),
        TEST("eight threads on four queues", test_threads_do_jobs, &four_queues),
        TEST("failures are of their tickets alone", test_threads_do_jobs, &failing),
        TEST("failures are inherited", test_threads_do_jobs, &heirs),
        TEST("a chain that is submitted in order is never held", test_chains, &in_order),
        TEST("a chain is submitted by a thread for each queue", test_chains, &by_queue),
        TEST("a chain is submitted in any order", test_chains, &shuffled),
        TEST("queues and timelines go while work is in flight", test_flights, NULL),
    };
    if (getenv("STRESS")) factor = strtod(getenv("STRESS"), NULL);
    check(factor > 0);
    seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : gpusync_now_ns() % 1000000007u;
    printf("SEED=%llu STRESS=%g\n", (unsigned long long)seed, factor);
    fflush(stdout);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
