/* test_stress.c - many threads at once, on the real clock

   Eight threads commit and wait on one queue and on eight: first in peace, then with random latencies, handlers out of
   order, overlapping buffers and failures, in every way of committing and waiting, while other threads poll, report, walk the
   failures, wait for queues and device, and make and destroy queues. Proved: every wait tells the outcome
   that Metal's status tells; every cursor sees every failure exactly once; what the GPU wrote is there; the counts
   add up; nothing is left over.

   On one of the queues failures stick, and the threads clear them now and then. There failed work is never said to be
   well, work that went well may have failed all the same, and each ticket that failed has a record of its own.
   Some of the queues that come and go are destroyed later, also by their own callbacks, and with their device.

   STRESS  factor for the length, default 1; "full": 20,000 iterations for each of the eight threads
   SEED    of all that is random; printed, default from the clock

   It also runs on queues of Metal 4. */
#include "stage.h"

#define WORKERS 8u
#define QUIET_ITERATIONS 200u
#define DEFAULT_ITERATIONS 2000u
#define ROUND_ITERATIONS 2000u /* long runs are cut into rounds, each with queues and cursors of its own */
#define BYTES 256u

static uint64_t seed;

/* cmocka's asserts are for its own thread alone. */
#define check(condition, ...) \
    do \
        if (!(condition)) broken(__LINE__, #condition, __VA_ARGS__); \
    while (0)
__attribute__((noreturn, format(printf, 3, 4))) static void broken(int line, const char *condition, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, line, condition);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (SEED=%llu)\n", (unsigned long long)seed);
    abort();
}

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 11;
}

static uint64_t below(uint64_t *state, uint64_t limit)
{
    return draw(state) % limit;
}

/* -- what really happened ----------------------------------------------------------------------------- */

enum { UNKNOWN, WELL, FAILED, CANCELLED };

/* A queue and the truth about its tickets. */
typedef struct ledger {
    gpusync_queue *queue;
    void *metal_queue;
    bool sticky;
    uint64_t refused, cleared;
    unsigned char *truth;
    unsigned char *seen[2]; /* by cursor */
    uint64_t cursor[2];
    uint64_t last, cancelled;
} ledger;

typedef struct arena {
    rig rig;
    ledger ledgers[WORKERS];
    unsigned queues, iterations;
    size_t room; /* tickets of one queue, at most */
    bool small_log, over;
    uint64_t unknown_results, cancelled_waits;
    uint64_t let_go, gone; /* objects that were destroyed later */
} arena;

typedef struct task {
    arena *arena;
    unsigned index;
    uint64_t random;
    void *memory; /* BYTES to fill, BYTES to copy to */
    pthread_t thread;
} task;

static unsigned char *entry_of(const arena *s, unsigned char *row, gpusync_ticket ticket)
{
    check(ticket > 0 && ticket < s->room, "ticket %llu", (unsigned long long)ticket);
    return &row[ticket];
}

static void issued(ledger *l, gpusync_ticket ticket)
{
    uint64_t seen = GET(&l->last);
    while (seen < ticket && !__atomic_compare_exchange_n(&l->last, &seen, ticket, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

static gpusync_result expected(unsigned char truth)
{
    return truth == FAILED ? GPUSYNC_ERROR_EXECUTION : truth == CANCELLED ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_OK;
}

/* A finished wait or poll said `result`; the log may have lost the record only where it is small. */
static void judge(arena *s, gpusync_ticket ticket, gpusync_result result, unsigned char truth)
{
    if (s->small_log && result == GPUSYNC_ERROR_RESULT_UNKNOWN) {
        __atomic_fetch_add(&s->unknown_results, 1, __ATOMIC_SEQ_CST);
        return;
    }
    check(result == expected(truth), "ticket %llx: %s, truth %u", (unsigned long long)ticket, gpusync_result_string(result),
          truth);
}

/* -- committing --------------------------------------------------------------------------------------- */

typedef struct job {
    ledger *ledger;
    void *buffer; /* +1 */
    gpusync_ticket ticket;
    bool writes, dropped;
    unsigned char value;
} job;

static void encode_bytes(task *t, job *j)
{
    void *blit = encoder_of(j->buffer);
    metal_fill(blit, t->memory, 0, BYTES, j->value);
    metal_copy(blit, t->memory, 0, t->memory, BYTES, BYTES);
    metal_end(blit);
}

static void check_bytes(const task *t, const job *j)
{
    const unsigned char *bytes = (const unsigned char *)metal_contents(t->memory);
    unsigned i;
    for (i = 0; i < 2 * BYTES; i++) check(bytes[i] == j->value, "byte %u is %u, not %u", i, bytes[i], j->value);
}

/* A failure that sticks is cleared by some thread, sooner or later. */
static void be_refused(task *t, ledger *l)
{
    COUNT(&l->refused);
    if (below(&t->random, 4) == 0) {
        check(gpusync_queue_clear_failure(l->queue) == GPUSYNC_OK, "clear");
        COUNT(&l->cleared);
    }
    sched_yield();
}

static void make_buffer(task *t, job *j, bool foreign)
{
    if (foreign) {
        j->buffer = metal_queue_command_buffer(j->ledger->metal_queue);
    } else {
        gpusync_result result;
        while ((result = either_buffer(j->ledger->queue, NULL, &j->buffer)) == GPUSYNC_ERROR_EXECUTION) {
            check(j->ledger->sticky && !j->buffer, "refused where no failure sticks");
            be_refused(t, j->ledger);
        }
        check(result == GPUSYNC_OK, "%s", gpusync_result_string(result));
        metal_retain(j->buffer);
    }
    j->writes = below(&t->random, 4) == 0;
    if (j->writes) encode_bytes(t, j);
}

static void commit_tracked(task *t, job *j)
{
    check(gpusync_track(j->ledger->queue, j->buffer, &j->ticket) == GPUSYNC_OK, "track");
    j->dropped = below(&t->random, 4) == 0;
    if (!j->dropped) {
        metal_commit(j->buffer);
        return;
    }
    check(gpusync_untrack(j->ledger->queue, j->ticket) == GPUSYNC_OK, "untrack");
    __atomic_fetch_add(&j->ledger->cancelled, 1, __ATOMIC_SEQ_CST);
}

/* Until it is not refused. */
static void commit_made(task *t, job *j)
{
    ledger *l = j->ledger;
    gpusync_result result;
    while ((result = either_commit(l->queue, j->buffer, &j->ticket)) == GPUSYNC_ERROR_EXECUTION) {
        check(l->sticky && j->ticket == GPUSYNC_NO_TICKET && status_of(j->buffer) == 0, "refused, and committed");
        be_refused(t, l);
    }
    check(result == GPUSYNC_OK, "%s", gpusync_result_string(result));
}

static void commit_somehow(task *t, job *j)
{
    switch (metal4_run() ? 2 + below(&t->random, 7) : below(&t->random, 9)) {
    case 0: /* made elsewhere */
        make_buffer(t, j, true);
        commit_made(t, j);
        break;
    case 1:
        make_buffer(t, j, true);
        commit_tracked(t, j);
        break;
    case 2: /* a buffer that is not used */
        make_buffer(t, j, false);
        check(either_discard(j->ledger->queue, j->buffer) == GPUSYNC_OK, "discard");
        metal_release(j->buffer);
        commit_somehow(t, j);
        return;
    default:
        make_buffer(t, j, false);
        commit_made(t, j);
    }
    issued(j->ledger, j->ticket);
}

/* -- waiting ------------------------------------------------------------------------------------------ */

static gpusync_result wait_impatiently(task *t, const job *j)
{
    gpusync_result result;
    do result = gpusync_wait(j->ledger->queue, j->ticket, below(&t->random, 300000));
    while (result == GPUSYNC_TIMEOUT);
    return result;
}

static gpusync_result wait_with_options(task *t, const job *j)
{
    gpusync_wait_options options;
    gpusync_spin spin;
    gpusync_error error;
    gpusync_result result;
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    memset(&spin, 0, sizeof spin);
    spin.until_near = below(&t->random, 4) == 0;
    spin.pause_iterations = (uint32_t)below(&t->random, 40);
    spin.yield_iterations = (uint32_t)below(&t->random, 100);
    spin.max_spin_ns = below(&t->random, 2) ? 0 : below(&t->random, 20000);
    switch (below(&t->random, metal4_run() ? 3 : 4)) {
    case 0: break; /* the wait decides */
    case 1: options.spin = &no_spin; break;
    case 2: options.spin = &spin; break;
    default: options.blocking = true; /* Metal 4 has none */
    }
    options.error = &error;
    result = gpusync_wait_ex(j->ledger->queue, j->ticket, GPUSYNC_FOREVER, &options);
    if (result == GPUSYNC_ERROR_EXECUTION)
        check(error.ticket == j->ticket && error.code == (metal4_run() ? 6 : 1) && error.failure == GPUSYNC_FAILURE_OTHER,
              "error of ticket %llx, code %lld", (unsigned long long)error.ticket, (long long)error.code);
    return result;
}

static gpusync_result wait_by_polling(const job *j)
{
    gpusync_result result;
    while ((result = gpusync_poll(j->ledger->queue, j->ticket)) == GPUSYNC_NOT_READY) sched_yield();
    return result;
}

static gpusync_result wait_inline(const job *j)
{
    while (!gpusync_is_done(j->ledger->queue, j->ticket)) sched_yield();
    return gpusync_wait(j->ledger->queue, j->ticket, 0); /* done is done: never TIMEOUT */
}

static bool of_many(gpusync_result result)
{
    return result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION || result == GPUSYNC_ERROR_RESULT_UNKNOWN;
}

/* A device has queues that are destroyed meanwhile. */
static gpusync_result wait_for_device(const arena *s, uint64_t timeout_ns)
{
    gpusync_result result = gpusync_device_wait(s->rig.device, timeout_ns, NULL);
    return result == GPUSYNC_ERROR_DESTROYED ? GPUSYNC_OK : result;
}

static gpusync_result wait_for_all(task *t, const job *j, bool device)
{
    gpusync_result result = device ? wait_for_device(t->arena, GPUSYNC_FOREVER)
                                   : gpusync_queue_wait(j->ledger->queue, GPUSYNC_FOREVER);
    check(of_many(result), "%s", gpusync_result_string(result));
    return gpusync_wait(j->ledger->queue, j->ticket, 0);
}

static gpusync_result wait_somehow(task *t, const job *j)
{
    switch (below(&t->random, 8)) {
    case 0: return wait_impatiently(t, j);
    case 1: return wait_by_polling(j);
    case 2: return wait_inline(j);
    case 3: return wait_for_all(t, j, false);
    case 4: return wait_for_all(t, j, true);
    case 5:
    case 6: return wait_with_options(t, j);
    default: return gpusync_wait(j->ledger->queue, j->ticket, GPUSYNC_FOREVER);
    }
}

/* The buffer's own status is the truth; but where failures stick, what went well may have failed as what was before it. */
static void settle_job(task *t, job *j, gpusync_result result)
{
    unsigned long status = status_of(j->buffer);
    unsigned char truth = j->dropped ? CANCELLED : status == 5 ? FAILED : WELL;
    check(j->dropped || status >= 4, "waited with %s, but status is %lu", gpusync_result_string(result), status);
    if (truth == WELL && j->writes) check_bytes(t, j);
    if (j->ledger->sticky && truth == WELL && result == GPUSYNC_ERROR_EXECUTION) truth = FAILED;
    judge(t->arena, j->ticket, result, truth);
    if (j->dropped) __atomic_fetch_add(&t->arena->cancelled_waits, 1, __ATOMIC_SEQ_CST);
    PUT(entry_of(t->arena, j->ledger->truth, j->ticket), truth);
    metal_release(j->buffer);
}

static void *wild_worker(void *argument)
{
    task *t = (task *)argument;
    unsigned i;
    for (i = 0; i < t->arena->iterations; i++) {
        job j;
        memset(&j, 0, sizeof j);
        j.ledger = &t->arena->ledgers[t->index % t->arena->queues];
        j.value = (unsigned char)(1 + i % 255);
        commit_somehow(t, &j);
        settle_job(t, &j, wait_somehow(t, &j));
    }
    return NULL;
}

static void *quiet_worker(void *argument)
{
    task *t = (task *)argument;
    unsigned i;
    for (i = 0; i < t->arena->iterations; i++) {
        job j;
        memset(&j, 0, sizeof j);
        j.ledger = &t->arena->ledgers[t->index % t->arena->queues];
        j.value = (unsigned char)(1 + i % 255);
        make_buffer(t, &j, false);
        check(either_commit(j.ledger->queue, j.buffer, &j.ticket) == GPUSYNC_OK, "commit");
        issued(j.ledger, j.ticket);
        settle_job(t, &j, gpusync_wait(j.ledger->queue, j.ticket, GPUSYNC_FOREVER));
    }
    return NULL;
}

/* -- meanwhile ---------------------------------------------------------------------------------------- */

/* Walk a cursor to its present end. */
static void walk(arena *s, ledger *l, unsigned reader)
{
    gpusync_error error;
    while (gpusync_next_error(l->queue, &l->cursor[reader], &error) == GPUSYNC_OK) {
        unsigned char *seen = entry_of(s, l->seen[reader], error.ticket);
        check(error.dropped == 0, "%llu records were dropped", (unsigned long long)error.dropped);
        check(*seen == UNKNOWN, "ticket %llx was reported twice", (unsigned long long)error.ticket);
        check(error.result == GPUSYNC_ERROR_EXECUTION || error.result == GPUSYNC_ERROR_CANCELLED, "result %d", error.result);
        *seen = error.result == GPUSYNC_ERROR_EXECUTION ? FAILED : CANCELLED;
    }
}

static void *reader(void *argument)
{
    task *t = (task *)argument;
    while (!GET(&t->arena->over)) {
        unsigned i;
        for (i = 0; i < t->arena->queues; i++) walk(t->arena, &t->arena->ledgers[i], t->index);
        sched_yield();
    }
    return NULL;
}

/* Any ticket, from a thread that has nothing to do with it. */
static void poll_any(task *t)
{
    arena *s = t->arena;
    ledger *l = &s->ledgers[below(&t->random, s->queues)];
    uint64_t last = GET(&l->last);
    gpusync_ticket ticket;
    gpusync_ticket_info info;
    unsigned char truth;
    gpusync_result result;
    if (last == 0) return;
    ticket = 1 + below(&t->random, last);
    truth = GET(entry_of(s, l->truth, ticket));
    result = gpusync_poll(l->queue, ticket);
    if (truth != UNKNOWN) judge(s, ticket, result, truth);
    else if (result != GPUSYNC_NOT_READY) check(of_many(result) || result == GPUSYNC_ERROR_CANCELLED, "%d", result);
    if (truth != UNKNOWN) check(gpusync_poll(l->queue, ticket) != GPUSYNC_NOT_READY, "again");
    result = gpusync_get_info(l->queue, ticket, &info);
    if (result == GPUSYNC_OK && truth != UNKNOWN) {
        judge(s, ticket, info.result, truth);
        check(info.gpu_end_s >= info.gpu_start_s, "GPU times %f %f", info.gpu_start_s, info.gpu_end_s);
    }
}

static void wait_for_any(task *t)
{
    arena *s = t->arena;
    ledger *l = &s->ledgers[below(&t->random, s->queues)];
    uint64_t last = GET(&l->last), timeout = below(&t->random, 2) ? GPUSYNC_FOREVER : below(&t->random, 200000);
    bool device = below(&t->random, 2) == 0;
    gpusync_result result = device ? wait_for_device(s, timeout) : gpusync_queue_wait(l->queue, timeout);
    check(of_many(result) || (result == GPUSYNC_TIMEOUT && timeout != GPUSYNC_FOREVER), "%s", gpusync_result_string(result));
    if (result != GPUSYNC_TIMEOUT && !device) check(gpusync_is_done(l->queue, last), "ticket %llu", (unsigned long long)last);
}

static void *busybody(void *argument)
{
    task *t = (task *)argument;
    char text[8192];
    gpusync_stats stats;
    while (!GET(&t->arena->over)) {
        unsigned what = (unsigned)below(&t->random, 16);
        if (what == 0) check(gpusync_report(t->arena->rig.device, text, sizeof text) > 0, "report");
        else if (what == 1) check(gpusync_device_get_stats(t->arena->rig.device, &stats) == GPUSYNC_OK, "stats");
        else if (what == 2) wait_for_any(t);
        else poll_any(t);
        sched_yield();
    }
    return NULL;
}

static void *waiter(void *argument)
{
    task *t = (task *)argument;
    while (!GET(&t->arena->over)) wait_for_any(t);
    return NULL;
}

static void note_gone(void *user) { COUNT((uint64_t *)user); }

/* The last owner of a queue. */
typedef struct owner {
    arena *arena;
    gpusync_queue *queue;
} owner;

static void let_go(void *user, gpusync_result result, const gpusync_error *error)
{
    owner *o = (owner *)user;
    check((result == GPUSYNC_OK) == !error, "%s", gpusync_result_string(result));
    check(gpusync_queue_destroy_later(o->queue, note_gone, &o->arena->gone) == GPUSYNC_OK, "destroy_later");
    free(o);
}

static void destroy_in_callback(task *t, gpusync_queue *queue, gpusync_ticket ticket)
{
    owner *o = (owner *)malloc(sizeof *o);
    check(o, "no memory");
    o->arena = t->arena;
    o->queue = queue;
    COUNT(&t->arena->let_go);
    check(gpusync_on_done(gpusync_at_ticket(queue, ticket), let_go, o) == GPUSYNC_OK, "on_done");
}

/* A device of its own, which goes before what it has. */
static void let_device_go(task *t)
{
    gpusync_device *device;
    gpusync_timeline *timeline;
    gpusync_queue_desc desc;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffer;
    memset(&desc, 0, sizeof desc);
    desc.metal4 = metal4_run();
    desc.sticky_failure = true;
    check(gpusync_device_create(NULL, &device) == GPUSYNC_OK, "device_create");
    check(gpusync_queue_create(device, &desc, &queue) == GPUSYNC_OK, "queue_create");
    check(gpusync_timeline_create(device, NULL, &timeline) == GPUSYNC_OK, "timeline_create");
    check(either_buffer(queue, NULL, &buffer) == GPUSYNC_OK, "command_buffer");
    check(either_commit(queue, buffer, &ticket) == GPUSYNC_OK, "commit");
    __atomic_fetch_add(&t->arena->let_go, 3, __ATOMIC_SEQ_CST);
    check(gpusync_device_destroy_later(device, note_gone, &t->arena->gone) == GPUSYNC_OK, "device_destroy_later");
    check(gpusync_timeline_destroy_later(timeline, note_gone, &t->arena->gone) == GPUSYNC_OK, "timeline_destroy_later");
    check(gpusync_queue_destroy_later(queue, note_gone, &t->arena->gone) == GPUSYNC_OK, "queue_destroy_later");
}

static void destroy_somehow(task *t, gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_result result;
    switch (below(&t->random, 4)) {
    case 0: result = gpusync_queue_destroy(queue); break;
    case 1: result = gpusync_queue_destroy_now(queue); break;
    case 2:
        COUNT(&t->arena->let_go);
        result = gpusync_queue_destroy_later(queue, note_gone, &t->arena->gone);
        break;
    default:
        destroy_in_callback(t, queue, ticket);
        result = GPUSYNC_OK;
        break;
    }
    check(result == GPUSYNC_OK, "destroy: %s", gpusync_result_string(result));
}

/* Queues come and go on the same device. Of Metal 4 not without end: the stage keeps their runs, and so their threads. */
static void *maker(void *argument)
{
    task *t = (task *)argument;
    gpusync_queue_desc desc;
    uint64_t left;
    memset(&desc, 0, sizeof desc);
    desc.metal4 = metal4_run();
    for (left = metal4_run() ? 100 : UINT64_MAX; left && !GET(&t->arena->over); left--) {
        gpusync_queue *queue = NULL;
        gpusync_ticket ticket = 0;
        gpusync_result result;
        uint64_t n = below(&t->random, 5);
        if (left % 16 == 0) let_device_go(t);
        check(gpusync_queue_create(t->arena->rig.device, &desc, &queue) == GPUSYNC_OK, "queue_create");
        while (n-- > 0) {
            void *buffer;
            check(either_buffer(queue, NULL, &buffer) == GPUSYNC_OK, "command_buffer");
            check(either_commit(queue, buffer, &ticket) == GPUSYNC_OK, "commit");
        }
        result = gpusync_wait(queue, ticket, below(&t->random, 2) ? 0 : GPUSYNC_FOREVER);
        check(of_many(result) || result == GPUSYNC_TIMEOUT, "%s", gpusync_result_string(result));
        destroy_somehow(t, queue, ticket);
    }
    return NULL;
}

/* What goes later does so by timers of half a second at most. */
static void await_gone(const arena *s)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    while (GET(&s->gone) < GET(&s->let_go)) {
        check(gpusync_now_ns() < limit, "%llu of %llu are gone", (unsigned long long)GET(&s->gone),
              (unsigned long long)GET(&s->let_go));
        sched_yield();
    }
    assert_true(softmetal_dispatched(SECONDS(20))); /* the device counts what is gone when that has been told */
    assert_int_equal(s->gone, s->let_go);
}

/* -- a round ------------------------------------------------------------------------------------------ */

/* sticky: on the last queue failures stick. */
static void arena_open(arena *s, unsigned queues, bool sticky, unsigned iterations, unsigned log)
{
    gpusync_queue_desc desc;
    unsigned i, k;
    memset(s, 0, sizeof *s);
    rig_open(&s->rig, SOFTMETAL_REAL);
    memset(&desc, 0, sizeof desc);
    s->queues = queues;
    s->iterations = iterations;
    s->room = (size_t)WORKERS * iterations + 1;
    desc.error_log_count = log ? log : (uint32_t)s->room;
    s->small_log = log != 0;
    for (i = 0; i < queues; i++) {
        ledger *l = &s->ledgers[i];
        l->sticky = desc.sticky_failure = sticky && i == queues - 1;
        l->queue = queue_of_kind(QUEUE_OF_GPUSYNC, s->rig.device, &desc);
        l->metal_queue = gpusync_queue_metal(l->queue);
        l->truth = (unsigned char *)calloc(s->room, 1);
        for (k = 0; k < 2; k++) l->seen[k] = (unsigned char *)calloc(s->room, 1);
    }
}

static void start_tasks(arena *s, task *tasks, unsigned count, void *(*body)(void *))
{
    unsigned i;
    for (i = 0; i < count; i++) {
        task *t = &tasks[i];
        t->arena = s;
        t->index = i;
        t->random = (seed * 0x9E3779B97F4A7C15u + (uint64_t)(t - tasks) + (uint64_t)(uintptr_t)body) | 1;
        t->memory = metal_buffer_new(s->rig.metal_device, 2 * BYTES);
        t->thread = start(body, t);
    }
}

static void join_tasks(task *tasks, unsigned count)
{
    unsigned i;
    for (i = 0; i < count; i++) {
        join(tasks[i].thread);
        metal_release(tasks[i].memory);
    }
}

/* Both cursors saw what was there to see, once. Returns the failures of the queue. */
static uint64_t compare_rows(arena *s, ledger *l)
{
    uint64_t failures = 0;
    unsigned k;
    uint64_t n;
    for (n = 1; n <= l->last; n++) {
        unsigned char truth = l->truth[n];
        check(truth != UNKNOWN, "no thread had ticket %llu", (unsigned long long)n);
        failures += truth == FAILED;
        for (k = 0; k < 2 && !s->small_log; k++) {
            check(l->seen[k][n] == (truth == WELL ? UNKNOWN : truth), "ticket %llu: cursor %u saw %u, truth %u",
                  (unsigned long long)n, k, l->seen[k][n], truth);
        }
    }
    return failures;
}

/* Enough work, a twentieth of which fails. */
static bool failures_expected(const arena *s) { return s->iterations >= 200 && s->let_go; }

static void ledger_close(arena *s, ledger *l)
{
    gpusync_stats stats = stats_of(l->queue);
    uint64_t failures, issued_count = l->last;
    unsigned k;
    assert_true(gpusync_is_idle(l->queue));
    assert_int_equal(gpusync_in_flight(l->queue), 0);
    if (l->sticky && failures_expected(s)) assert_true(l->refused && l->cleared);
    if (!s->small_log) {
        walk(s, l, 0);
        walk(s, l, 1);
    }
    failures = compare_rows(s, l);
    assert_int_equal(stats.commits, issued_count);
    assert_int_equal(stats.completions, issued_count);
    assert_int_equal(stats.failures, failures);
    if (!s->small_log) assert_int_equal(stats.failures_dropped, 0);
    assert_ok(gpusync_queue_destroy(l->queue));
    free(l->truth);
    for (k = 0; k < 2; k++) free(l->seen[k]);
}

static void arena_close(arena *s)
{
    unsigned i;
    long buffers;
    for (i = 0; i < s->queues; i++) ledger_close(s, &s->ledgers[i]);
    rig_close(&s->rig);
    buffers = softmetal_live("buffer");
    assert_int_equal(buffers, 0);
    assert_int_equal(softmetal_live("device"), 0);
}

static void be_nasty(unsigned fail_per_mille)
{
    softmetal_timing timing;
    softmetal_chaos chaos;
    softmetal_set_seed(seed);
    softmetal_get_timing(&timing);
    timing.schedule.max_ns = 5000;
    timing.execute.max_ns = 30000;
    timing.notify.max_ns = 30000;
    softmetal_set_timing(&timing);
    chaos.fail_per_mille = fail_per_mille;
    chaos.late_handler_per_mille = 50;
    chaos.overlap_per_mille = 200;
    softmetal_set_chaos(&chaos);
}

/* Without overlap the GPU begins in the order of the tickets. */
static void check_order(const ledger *l)
{
    gpusync_ticket ticket = l->last > 250 ? l->last - 250 : 1;
    double previous = 0;
    for (; ticket <= l->last; ticket++) {
        gpusync_ticket_info info;
        assert_ok(gpusync_get_info(l->queue, ticket, &info));
        assert_true(info.gpu_start_s >= previous);
        previous = info.gpu_start_s;
    }
}

static void quiet_round(unsigned queues)
{
    arena s;
    task workers[WORKERS];
    unsigned i;
    arena_open(&s, queues, queues > 1, QUIET_ITERATIONS, 0);
    start_tasks(&s, workers, WORKERS, quiet_worker);
    join_tasks(workers, WORKERS);
    assert_true(softmetal_settle(SECONDS(10))); /* the handlers bring the times */
    for (i = 0; i < queues; i++) check_order(&s.ledgers[i]);
    arena_close(&s);
}

static void wild_round(unsigned queues, bool sticky, unsigned iterations)
{
    arena s;
    task workers[WORKERS], readers[2], others[3];
    unsigned i;
    arena_open(&s, queues, sticky, iterations, 0);
    be_nasty(50);
    start_tasks(&s, readers, 2, reader);
    start_tasks(&s, &others[0], 1, busybody);
    start_tasks(&s, &others[1], 1, waiter);
    start_tasks(&s, &others[2], 1, maker);
    start_tasks(&s, workers, WORKERS, wild_worker);
    join_tasks(workers, WORKERS);
    for (i = 0; i < queues; i++) {
        gpusync_result result = gpusync_queue_wait(s.ledgers[i].queue, SECONDS(10));
        assert_true(of_many(result));
    }
    PUT(&s.over, true);
    join_tasks(readers, 2);
    join_tasks(others, 3);
    await_gone(&s);
    arena_close(&s);
}

/* -- the tests ---------------------------------------------------------------------------------------- */

static unsigned wild_iterations(void)
{
    const char *text = getenv("STRESS");
    unsigned long factor = text ? strtoul(text, NULL, 10) : 1;
    if (text && strcmp(text, "full") == 0) return 20000;
    return DEFAULT_ITERATIONS * (unsigned)(factor ? factor : 1);
}

static void wild(unsigned queues, bool sticky, unsigned iterations)
{
    unsigned left;
    for (left = iterations; left > ROUND_ITERATIONS; left -= ROUND_ITERATIONS) {
        wild_round(queues, sticky, ROUND_ITERATIONS);
        seed++;
    }
    wild_round(queues, sticky, left);
}

static void eight_threads_one_queue(void **state)
{
    (void)state;
    quiet_round(1);
}

static void eight_threads_eight_queues(void **state)
{
    (void)state;
    quiet_round(8);
}

static void everything_at_once_one_queue(void **state)
{
    (void)state;
    wild(1, false, wild_iterations());
}

static void everything_at_once_one_sticky_queue(void **state)
{
    (void)state;
    wild(1, true, (wild_iterations() + 3) / 4);
}

static void everything_at_once_eight_queues(void **state)
{
    (void)state;
    wild(8, true, (wild_iterations() + 3) / 4);
}

/* A log of four: a wait may not know any more how its work ended, but never says that failed work went well. */
static void small_log_never_lies(void **state)
{
    arena s;
    task workers[WORKERS];
    uint64_t cursor = 0, told = 0;
    gpusync_error error;
    gpusync_stats stats;
    (void)state;
    arena_open(&s, 1, false, 100, 4);
    be_nasty(400);
    start_tasks(&s, workers, WORKERS, wild_worker);
    join_tasks(workers, WORKERS);
    while (gpusync_next_error(s.ledgers[0].queue, &cursor, &error) == GPUSYNC_OK) told += 1 + error.dropped;
    stats = stats_of(s.ledgers[0].queue);
    assert_int_equal(told, stats.failures + s.ledgers[0].cancelled);
    assert_int_equal(stats.failures_dropped, told - 4);
    arena_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_threads_one_queue),
        cmocka_unit_test(eight_threads_eight_queues),
        cmocka_unit_test(small_log_never_lies),
        cmocka_unit_test(everything_at_once_one_queue),
        cmocka_unit_test(everything_at_once_one_sticky_queue),
        cmocka_unit_test(everything_at_once_eight_queues),
    };
    seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : gpusync_now_ns() % 1000000007u;
    printf("SEED=%llu, 8 x %u iterations\n", (unsigned long long)seed, wild_iterations());
    fflush(stdout);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
