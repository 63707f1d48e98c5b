/* stress.c - many threads at once, on a device whose work takes time and ends when it likes

   Threads fill, copy and compute, and wait in every way that gpusync has. Chains of work go from queue to queue,
   submitted in order and in any other. Command buffers fail at random. Queues, timelines and devices are destroyed
   while work is in flight. Proved: each wait tells how the work ended. What the GPU wrote is what the CPU computes.
   Failed work, and held work that is given up, has written nothing. Each callback comes once, and each failure is on
   record once. No object is left.

   STRESS  factor for the length, default 1; 0.2 is a fifth
   SEED    of all that is random; printed, default from the clock */
#include "stress.h"

enum { THREADS = 8, QUEUES = 4, LINKS = 32, GATE = 8, FLIGHT = 9, WAITERS = 6, TRIES = 12 };
enum { BY_VALUE, BY_STRICT_VALUE, BY_TICKET }; /* how a job waits for another one */
enum { IN_ORDER, BY_QUEUE, SHUFFLED };         /* how a chain is submitted */
static double factor = 1;

static unsigned length(unsigned rounds)
{
    double scaled = rounds * factor;
    return scaled < 1 ? 1 : (unsigned)scaled;
}

/* -- threads with jobs of their own -------------------------------------------------------------------------------- */

/* With reversed the jobs are committed in the opposite order, each before the one that it waits for. */
static void draw_job(task *t, unsigned k, bool reversed)
{
    job *j = &t->jobs[k];
    const job *before = t->crowd->heirs && k ? j - 1 : NULL;
    unsigned by = below(&t->random, reversed ? 2 : 3);
    long inherited = before ? before->expected : 0;
    if (!j->signal.timeline || j->expected) { /* the timeline has failed */
        well(gpusync_timeline_destroy(j->signal.timeline));
        j->signal = gpusync_at_value(new_timeline(false), 0);
    }
    j->signal.value++;
    j->cells = &t->cells[k];
    j->queue = below(&t->random, on.count);
    j->way = below(&t->random, WAYS);
    draw_ops(j->ops, &t->random, 24);
    j->signal_count = t->crowd->heirs || j->way == VALUE || j->way == MANY;
    j->code = t->crowd->failing && !inherited && below(&t->random, 16) == 0 ? codes[below(&t->random, 6)] : 0;
    j->expected = inherited ? inherited : j->code;
    j->runs = inherited && by == BY_VALUE && (before->code || before->runs);
    j->flags = (reversed ? GPUSYNC_UNORDERED : 0) | (before && by == BY_STRICT_VALUE ? GPUSYNC_STRICT : 0);
    j->by_ticket = before && by == BY_TICKET;
    j->wait_count = before != NULL;
    if (before) j->waits[0] = before->signal;
}

static void wait_for_some(const task *t, gpusync_wait_for how)
{
    gpusync_point points[JOBS];
    size_t which;
    gpusync_result result;
    for (unsigned k = 0; k < JOBS; k++) points[k] = gpusync_at_ticket(on.queues[t->jobs[k].queue], t->jobs[k].ticket);
    result = gpusync_wait_many(points, JOBS, how, GPUSYNC_FOREVER, NULL, &which);
    same(result, which < JOBS && t->jobs[which].expected ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    for (unsigned k = 0; k < JOBS; k++)
        if (how == GPUSYNC_WAIT_ALL || k == which) /* these have ended */
            same(gpusync_wait(on.queues[t->jobs[k].queue], t->jobs[k].ticket, 0),
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
    open_device(c->queues, c->room, THREADS * JOBS * length(c->rounds));
    for (unsigned i = 0; i < THREADS; i++) {
        task *t = &tasks[i];
        t->crowd = c;
        for (unsigned k = 0; k < JOBS; k++) {
            make_cells(&t->cells[k]);
            t->jobs[k].told = nothing_told;
        }
        start(t, do_jobs, i, &random);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        same(pthread_join(tasks[i].thread, NULL), 0);
        for (unsigned k = 0; k < JOBS; k++) {
            well(gpusync_timeline_destroy(tasks[i].jobs[k].signal.timeline));
            release_cells(&tasks[i].cells[k]);
        }
    }
    close_device();
    check(c->failing == (on.failures > 0));
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
    gpusync_ticket before = n && c->form != IN_ORDER ? __atomic_load_n(&j[-1].ticket, __ATOMIC_ACQUIRE) : 0;
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
    c->values = new_timeline(false);
    c->gates = new_timeline(false);
    for (unsigned n = 0; n < LINKS; n++) {
        job *j = &c->links[n];
        unsigned place = below(random, n + 1);
        c->order[n] = c->order[place];
        c->order[place] = n;
        j->queue = n % QUEUES;
        j->cells = &c->cells;
        j->signal = gpusync_at_value(c->values, n + 1);
        j->signal_count = 1;
        j->flags = c->form == SHUFFLED ? GPUSYNC_UNORDERED : 0;
        if (c->form != IN_ORDER && below(random, 2)) j->flags |= GPUSYNC_STRICT;
        draw_ops(j->ops, random, 24);
        compute(&c->cells, j->ops);
    }
    for (unsigned i = 0; i < submitters + 2; i++) {
        tasks[i].chain = c;
        start(&tasks[i], i < submitters ? submit_links : i == submitters ? await_chain : raise_gates, i, random);
    }
    for (unsigned i = 0; i < submitters + 2; i++) same(pthread_join(tasks[i].thread, NULL), 0);
    for (unsigned n = 0; n < LINKS; n++) {
        well(wait_once(&c->links[n], below(random, CALLS), GPUSYNC_FOREVER));
        metal_release(c->links[n].buffer);
    }
    well(gpusync_timeline_destroy(c->values));
    well(gpusync_timeline_destroy(c->gates));
    release_cells(&c->cells);
    free(tasks);
}

static void test_chains(void **state)
{
    unsigned form = *(const unsigned *)*state;
    uint64_t random = seed | 1;
    open_device(QUEUES, 0, LINKS * length(120));
    for (unsigned left = length(120); left; left--) {
        chain *c = (chain *)calloc(1, sizeof *c);
        c->form = form;
        run_chain(c, &random);
        free(c);
    }
    close_device();
    check((form == IN_ORDER) == (on.held == 0));
}

/* -- objects are destroyed while work is in flight ----------------------------------------------------------------- */

typedef struct flight {
    job jobs[FLIGHT]; /* each signals its value; the last may be held, for a value that never comes */
    cells cells[FLIGHT];
    unsigned count;
    bool held, timelines_first;
    gpusync_timeline *values, *never;
    told gone[4]; /* of the timelines, the queue and the device */
} flight;

static _Thread_local bool *begun_here; /* of a thread's wait: that it is inside of the call, or over */

static void note_begin(void *user, const gpusync_trace_event *event)
{
    (void)user;
    if (event->kind == GPUSYNC_TRACE_WAIT_BEGIN && begun_here) __atomic_store_n(begun_here, true, __ATOMIC_SEQ_CST);
}

static void *wait_in_flight(void *argument)
{
    task *t = (task *)argument;
    const flight *f = t->flight;
    const job *j = &f->jobs[below(&t->random, f->count)];
    unsigned way = below(&t->random, CALLS);
    bool of_all = way == QUEUE || way == DEVICE;
    gpusync_result result;
    begun_here = &t->begun;
    result = wait_once(j, way, GPUSYNC_FOREVER);
    __atomic_store_n(&t->begun, true, __ATOMIC_SEQ_CST);
    if (result == GPUSYNC_ERROR_EXECUTION) check(of_all && f->held && f->timelines_first);
    else if (result == GPUSYNC_ERROR_CANCELLED) check(!of_all && f->held);
    else check(result == GPUSYNC_OK || (result == GPUSYNC_ERROR_DESTROYED && way != DEVICE));
    if (result == GPUSYNC_OK && j->wait_count) check(of_all); /* there given-up work is no failure */
    if (result == GPUSYNC_OK && way != DEVICE) check(cells_agree(j->cells));
    return NULL;
}

static void destroy_timelines(flight *f, bool later)
{
    gpusync_timeline *both[] = {f->values, f->never};
    for (unsigned i = 0; i < 2; i++)
        if (later) well(gpusync_timeline_destroy_later(both[i], tell_gone, &f->gone[i]));
        else well(gpusync_timeline_destroy(both[i]));
    for (unsigned i = 0; i < 2 && later; i++) (void)await_told(&f->gone[i]);
}

static void launch(flight *f, uint64_t *random)
{
    f->held = below(random, 2);
    f->timelines_first = below(random, 2);
    f->count = 1 + below(random, 8) + f->held;
    f->values = new_timeline(false);
    f->never = new_timeline(false);
    for (unsigned i = 0; i < 4; i++) f->gone[i] = nothing_told;
    for (unsigned i = 0; i < f->count; i++) {
        job *j = &f->jobs[i];
        *j = (job){.way = CALLBACK, .cells = &f->cells[i], .signal_count = 1, .told = nothing_told};
        j->signal = gpusync_at_value(f->values, i + 1);
        make_cells(j->cells);
        draw_ops(j->ops, random, 1 + below(random, 400));
        j->wait_count = f->held && i == f->count - 1;
        j->waits[0] = gpusync_at_value(f->never, 1);
        if (!j->wait_count) compute(j->cells, j->ops);
        commit_job(j);
    }
}

/* What was told of a job once its queue is gone, by destroy or, with now, by destroy_now. */
static void check_told(const flight *f, unsigned i, bool now)
{
    const job *j = &f->jobs[i];
    bool held = j->wait_count;
    same(__atomic_load_n(&j->told.count, __ATOMIC_SEQ_CST), 1);
    if (held && f->timelines_first) same(j->told.result, GPUSYNC_ERROR_DESTROYED);
    else if (held) same(j->told.result, now ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_ERROR_CANCELLED);
    else check(j->told.result == GPUSYNC_OK || (now && j->told.result == GPUSYNC_ERROR_DESTROYED));
    if (!now) check(cells_agree(j->cells));
}

static void fly(flight *f, uint64_t *random)
{
    task *tasks = (task *)calloc(WAITERS, sizeof *tasks);
    bool later = below(random, 2);
    unsigned how = below(random, 3);
    gpusync_result result;
    open_device(1, 0, 1);
    well(gpusync_set_trace(on.device, note_begin, NULL));
    launch(f, random);
    for (unsigned i = 0; i < WAITERS; i++) {
        tasks[i].flight = f;
        start(&tasks[i], wait_in_flight, i, random);
    }
    for (unsigned i = 0; i < WAITERS; i++) /* no wait begins in what is being destroyed */
        while (!__atomic_load_n(&tasks[i].begun, __ATOMIC_SEQ_CST)) sched_yield();
    if (f->timelines_first) destroy_timelines(f, later);
    if (how == 0) well(gpusync_queue_destroy(on.queues[0]));
    if (how == 1) well(gpusync_queue_destroy_now(on.queues[0]));
    if (how == 2) well(gpusync_queue_destroy_later(on.queues[0], tell_gone, &f->gone[2]));
    if (how == 2) (void)await_told(&f->gone[2]);
    for (unsigned i = 0; i < f->count; i++) check_told(f, i, how == 1);
    for (unsigned i = 0; i < WAITERS; i++) same(pthread_join(tasks[i].thread, NULL), 0);
    if (!f->timelines_first) destroy_timelines(f, later);
    close_rest();
    if (later) well(gpusync_device_destroy_later(on.device, tell_gone, &f->gone[3]));
    if (later) (void)await_told(&f->gone[3]);
    while (!later && (result = gpusync_device_destroy(on.device)) != GPUSYNC_OK) same(result, GPUSYNC_ERROR_IN_USE);
    for (unsigned i = 0; i < f->count; i++) { /* the GPU may still be at work, after destroy_now */
        job *j = &f->jobs[i];
        if (!j->wait_count) metal_wait_until_completed(j->buffer);
        check(cells_agree(j->cells));
        same(j->told.count, 1);
        metal_release(j->buffer);
        release_cells(j->cells);
    }
    for (unsigned i = 0; i < 4; i++) same(f->gone[i].count, i == 2 ? how == 2 : later);
    free(tasks);
}

static void test_flights(void **state)
{
    uint64_t random = seed | 1;
    (void)state;
    for (unsigned left = length(250); left; left--) {
        flight *f = (flight *)calloc(1, sizeof *f);
        fly(f, &random);
        free(f);
    }
}

/* -- time limits --------------------------------------------------------------------------------------------------- */

/* In each try the limit is met. Without a try the thread waits for the end, with limits all the same. */
static void *wait_with_limits(void *argument)
{
    task *t = (task *)argument;
    job mine = *t->awaited;
    mine.way = RETRIED;
    for (unsigned i = 0; i < t->rounds; i++) {
        uint64_t limit = below(&t->random, 1500000), began = gpusync_now_ns();
        same(wait_once(&mine, below(&t->random, CALLS), limit), GPUSYNC_TIMEOUT);
        check(gpusync_now_ns() - began >= limit);
    }
    if (t->rounds) return NULL;
    well(wait_for(&mine, &t->random));
    check(cells_agree(mine.cells));
    return NULL;
}

static void have_threads_wait(const job *j, unsigned tries, uint64_t *random)
{
    task *tasks = (task *)calloc(THREADS, sizeof *tasks);
    for (unsigned i = 0; i < THREADS; i++) {
        tasks[i].awaited = j;
        tasks[i].rounds = tries;
        start(&tasks[i], wait_with_limits, i, random);
    }
    for (unsigned i = 0; i < THREADS; i++) same(pthread_join(tasks[i].thread, NULL), 0);
    free(tasks);
}

/* The work cannot end before the host signals: it is held until then, or waits on the GPU, where others may signal. */
static void test_limits(void **state)
{
    uint64_t random = seed | 1;
    (void)state;
    for (unsigned left = length(40); left; left--) {
        static cells c;
        job j = {.cells = &c, .signal_count = 1, .wait_count = 1};
        gpusync_timeline *gate, *values;
        open_device(1, 0, 1);
        gate = new_timeline(left % 2);
        values = new_timeline(false);
        make_cells(&c);
        draw_ops(j.ops, &random, 3000);
        j.waits[0] = gpusync_at_value(gate, 1);
        j.signal = gpusync_at_value(values, 1);
        commit_job(&j);
        have_threads_wait(&j, TRIES, &random);
        compute(&c, j.ops);
        well(gpusync_timeline_signal(gate, 1));
        have_threads_wait(&j, 0, &random);
        metal_release(j.buffer);
        well(gpusync_timeline_destroy(gate));
        well(gpusync_timeline_destroy(values));
        release_cells(&c);
        close_device();
    }
}

#define TEST(name, function, form) {name, function, NULL, no_object_is_left, form}
int main(void)
{
    static crowd one_queue = {1, 12, 900, false, false}, eight_queues = {8, 0, 900, false, false};
    static crowd one_fails = {1, 0, 400, true, false}, eight_fail = {8, 0, 400, true, false};
    static crowd heirs = {4, 0, 800, true, true};
    static unsigned in_order = IN_ORDER, by_queue = BY_QUEUE, shuffled = SHUFFLED;
    const struct CMUnitTest tests[] = {
        TEST("eight threads on one queue", test_threads_do_jobs, &one_queue),
        TEST("eight threads on eight queues", test_threads_do_jobs, &eight_queues),
        TEST("failures on one queue are of their tickets alone", test_threads_do_jobs, &one_fails),
        TEST("failures on eight queues are of their tickets alone", test_threads_do_jobs, &eight_fail),
        TEST("failures are inherited", test_threads_do_jobs, &heirs),
        TEST("a chain that is submitted in order is never held", test_chains, &in_order),
        TEST("a chain is submitted by a thread for each queue", test_chains, &by_queue),
        TEST("a chain is submitted in any order", test_chains, &shuffled),
        TEST("queues, timelines and devices go while work is in flight", test_flights, NULL),
        TEST("limits are kept, and the work ends later", test_limits, NULL),
    };
    if (getenv("STRESS")) factor = strtod(getenv("STRESS"), NULL);
    check(factor > 0);
    seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : gpusync_now_ns() % 1000000007u;
    printf("SEED=%llu STRESS=%g\n", (unsigned long long)seed, factor);
    fflush(stdout);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
