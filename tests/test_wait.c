/* test_wait.c - waiting: every way of asking, what each wait costs, when it ends and how that is counted

   It also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"
#include <sys/mman.h>

static gpusync_device_desc device_desc_with(const gpusync_hooks *hooks)
{
    gpusync_device_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.hooks = hooks;
    return desc;
}

static gpusync_queue_desc queue_desc_with(const gpusync_spin *spin)
{
    gpusync_queue_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.spin = spin;
    return desc;
}

static uint64_t waits_counted(const gpusync_stats *s)
{
    return s->waits_inline + s->waits_status + s->waits_spin + s->waits_sleep + s->waits_unmet;
}

static bool a_wait_sleeps(gpusync_device *device)
{
    char text[4096];
    gpusync_report(device, text, sizeof text);
    return strstr(text, "a wait for ") != NULL;
}

/* -- hooks that count ------------------------------------------------------------------------------- */

typedef struct hook_log {
    gpusync_hooks hooks;
    long parks, unparks, yields;
    long early;              /* so many parks return at once */
    uint64_t last_deadline;
    void *complete_at_yield; /* this buffer becomes complete at the third yield */
    void *complete_at_limit; /* ... when a park has reached its deadline */
    void *finish_at_park;    /* the next park ends this one's work, handler and all */
    void *finish_queue;      /* the third yield, or the next park, ends all work of this Metal queue */
} hook_log;

static void log_yield(void *user)
{
    hook_log *log = (hook_log *)user;
    if (__atomic_add_fetch(&log->yields, 1, __ATOMIC_SEQ_CST) == 3 && log->complete_at_yield)
        show_end(log->complete_at_yield);
    if (log->yields == 3 && log->finish_queue) softmetal_finish_queue(log->finish_queue);
    sched_yield();
}

static void log_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    hook_log *log = (hook_log *)user;
    void *ends = __atomic_exchange_n(&log->finish_at_park, NULL, __ATOMIC_SEQ_CST);
    __atomic_store_n(&log->last_deadline, deadline_ns, __ATOMIC_SEQ_CST);
    if (ends) softmetal_finish(ends);
    if (log->finish_queue) softmetal_finish_queue(log->finish_queue);
    if (__atomic_add_fetch(&log->parks, 1, __ATOMIC_SEQ_CST) <= log->early) return;
    while (!__atomic_exchange_n(&waiter->scheduler_data[0], NULL, __ATOMIC_SEQ_CST)) {
        if (gpusync_now_ns() >= deadline_ns) {
            void *buffer = __atomic_exchange_n(&log->complete_at_limit, NULL, __ATOMIC_SEQ_CST);
            if (buffer) show_end(buffer);
            return;
        }
        sched_yield();
    }
}

static void log_unpark(void *user, gpusync_waiter *waiter)
{
    hook_log *log = (hook_log *)user;
    __atomic_fetch_add(&log->unparks, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&waiter->scheduler_data[0], (void *)waiter, __ATOMIC_SEQ_CST);
}

static void hook_log_init(hook_log *log)
{
    memset(log, 0, sizeof *log);
    log->hooks.yield = log_yield;
    log->hooks.park = log_park;
    log->hooks.unpark = log_unpark;
    log->hooks.user = log;
}

static void rig_open_counting(rig *r, hook_log *log, const gpusync_spin *spin)
{
    hook_log_init(log);
    rig_open_with(r, SOFTMETAL_MANUAL, device_desc_with(&log->hooks), queue_desc_with(spin));
}

/* -- an allocator whose memory can be made read-only: a write to it ends the program. Its maps stay. */

static struct { void *at; size_t size; } maps[64];
static unsigned map_count;

static void *map_allocate(void *user, size_t size, size_t alignment)
{
    (void)user;
    (void)alignment;
    assert_true(map_count < 64);
    maps[map_count].size = size;
    maps[map_count].at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(maps[map_count].at != MAP_FAILED);
    return maps[map_count++].at;
}

static void map_release(void *user, void *memory, size_t size)
{
    (void)user;
    (void)memory;
    (void)size;
}

static void protect_maps(int access)
{
    for (unsigned i = 0; i < map_count; i++) assert_int_equal(mprotect(maps[i].at, maps[i].size, access), 0);
}

/* -- nothing to wait for ---------------------------------------------------------------------------- */

/* Several threads may ask at once, and none takes a line of memory from another. */
static void test_waits_for_what_has_ended_write_to_no_memory(void **state)
{
    static const gpusync_allocator allocator = {map_allocate, map_release, NULL};
    gpusync_device_desc desc;
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    gpusync_ticket ticket = 0;
    void *buffer;
    (void)state;
    memset(&desc, 0, sizeof desc);
    desc.allocator = &allocator;
    map_count = 0;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    assert_ok(gpusync_device_create(&desc, &device));
    queue = queue_new(device);
    timeline = timeline_at(device, 5);
    for (int fails = 1; fails >= 0; fails--) {
        buffer = buffer_of(queue);
        if (fails) softmetal_fail(buffer, NULL, 1, NULL);
        ticket = commit_to(queue, buffer);
        softmetal_finish_queue(gpusync_queue_metal(queue));
        assert_result(gpusync_queue_wait(queue, 0), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    }
    {
        gpusync_point points[] = {gpusync_at_ticket(queue, ticket), gpusync_at_value(timeline, 4)};
        gpusync_wait_options options;
        memset(&options, 0, sizeof options);
        protect_maps(PROT_READ);
        assert_true(gpusync_is_done(queue, ticket));
        assert_true(gpusync_is_idle(queue));
        assert_int_equal(gpusync_in_flight(queue), 0);
        assert_ok(gpusync_wait(queue, ticket, 0));
        assert_ok(gpusync_queue_wait(queue, GPUSYNC_FOREVER)); /* an earlier one has told of the failure */
        assert_ok(gpusync_timeline_wait(timeline, 5, GPUSYNC_FOREVER, NULL));
        assert_ok(gpusync_timeline_wait(timeline, 4, 0, &options));
        assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
        assert_false(gpusync_device_is_lost(device));
        protect_maps(PROT_READ | PROT_WRITE);
    }
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_queue_destroy(queue));
    assert_ok(gpusync_device_destroy(device));
    drop_recordings();
}

/* Apple silicon has cache lines of 128 bytes. */
static void test_no_lock_shares_a_cache_line_with_what_other_threads_write(void **state)
{
    (void)state;
    assert_false(probe_shares_a_line());
}

/* Every way to wait, for nothing: no message, no allocation, and those of gpusync_wait_ex alone are counted. */
static void expect_free_waits(rig *r, gpusync_ticket ticket)
{
    uint64_t messages = softmetal_thread_messages(), before = stats_of(r->queue).waits_inline;
    long calls = r->memory.calls;
    assert_ok(gpusync_wait(r->queue, ticket, 0));
    assert_ok(gpusync_wait(r->queue, ticket, GPUSYNC_FOREVER));
    assert_ok(gpusync_wait_ex(r->queue, ticket, MS(1), NULL));
    assert_ok(gpusync_wait_ex(r->queue, GPUSYNC_EVERYTHING, MS(1), NULL));
    assert_ok(gpusync_queue_wait(r->queue, GPUSYNC_FOREVER));
    assert_ok(gpusync_device_wait(r->device, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_poll(r->queue, ticket));
    assert_true(gpusync_is_done(r->queue, ticket));
    assert_true(gpusync_is_idle(r->queue));
    assert_true(gpusync_is_done(r->queue, GPUSYNC_EVERYTHING));
    assert_int_equal(softmetal_thread_messages(), messages);
    assert_int_equal(r->memory.calls, calls);
    assert_int_equal(stats_of(r->queue).waits_inline, before + 2);
}

static void test_waits_on_a_queue_never_used_cost_nothing(void **state)
{
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    expect_free_waits(&r, GPUSYNC_NO_TICKET);
    rig_close(&r);
}

static void test_a_wait_for_the_device_takes_no_memory_for_timelines(void **state)
{
    gpusync_timeline *timelines[16];
    size_t i;
    long calls;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < LENGTH(timelines); i++) timelines[i] = timeline_new(r.device);
    calls = r.memory.calls;
    r.memory.fail_at = 1;
    r.memory.fail_after = true;
    assert_ok(gpusync_device_wait(r.device, GPUSYNC_FOREVER, NULL));
    r.memory.fail_at = 0;
    assert_int_equal(r.memory.calls, calls);
    for (i = 0; i < LENGTH(timelines); i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    rig_close(&r);
}

static void test_everything_is_done_when_the_queue_is_idle(void **state)
{
    void *buffer, *tracked;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    (void)commit_empty(&r, &buffer);
    assert_false(gpusync_is_done(r.queue, GPUSYNC_EVERYTHING));
    softmetal_finish(buffer);
    assert_true(gpusync_is_done(r.queue, GPUSYNC_EVERYTHING));
    assert_false(gpusync_is_done(NULL, GPUSYNC_EVERYTHING));
    if (!metal4_run()) {
        (void)track_a_buffer(&r, &tracked);
        assert_false(gpusync_is_done(r.queue, GPUSYNC_EVERYTHING));
        metal_commit(tracked);
        assert_false(gpusync_is_done(r.queue, GPUSYNC_EVERYTHING));
        softmetal_finish_queue(r.metal_queue);
        assert_ok(gpusync_poll(r.queue, GPUSYNC_EVERYTHING));
        assert_true(gpusync_is_done(r.queue, GPUSYNC_EVERYTHING));
        metal_release(tracked);
    }
    rig_close(&r);
}

static void test_waits_on_a_drained_queue_cost_nothing(void **state)
{
    gpusync_ticket ticket = 0;
    rig r;
    int i;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 300; i++) {
        void *buffer;
        ticket = commit_empty(&r, &buffer);
        softmetal_finish(buffer);
    }
    expect_free_waits(&r, ticket);
    expect_free_waits(&r, 1);
    expect_free_waits(&r, GPUSYNC_NO_TICKET);
    rig_close(&r);
}

static void test_waits_after_a_failure_still_send_no_message(void **state)
{
    uint64_t messages;
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    softmetal_fail_next(1, 2);
    commit_empty(&r, &buffer);
    softmetal_finish(buffer);
    commit_empty(&r, &buffer);
    softmetal_finish(buffer);
    messages = softmetal_thread_messages();
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    assert_ok(gpusync_wait(r.queue, 2, 0));
    assert_result(gpusync_wait(r.queue, 1, 0), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(softmetal_thread_messages(), messages);
    assert_int_equal(stats_of(r.queue).waits_inline, 2); /* those with a failure */
    rig_close(&r);
}

/* -- every way to wait, blocking and not, with every budget ------------------------------------------ */

typedef gpusync_result (*way)(rig *r, gpusync_ticket ticket, uint64_t timeout_ns, const gpusync_wait_options *options);

static gpusync_result by_wait(rig *r, gpusync_ticket ticket, uint64_t timeout_ns, const gpusync_wait_options *options)
{
    (void)options;
    return gpusync_wait(r->queue, ticket, timeout_ns);
}
static gpusync_result by_wait_ex(rig *r, gpusync_ticket ticket, uint64_t timeout_ns, const gpusync_wait_options *options)
{
    return gpusync_wait_ex(r->queue, ticket, timeout_ns, options);
}
static gpusync_result by_everything(rig *r, gpusync_ticket ticket, uint64_t timeout_ns, const gpusync_wait_options *options)
{
    (void)ticket;
    return gpusync_wait_ex(r->queue, GPUSYNC_EVERYTHING, timeout_ns, options);
}
static gpusync_result by_queue_wait(rig *r, gpusync_ticket ticket, uint64_t timeout_ns, const gpusync_wait_options *options)
{
    (void)ticket;
    (void)options;
    return gpusync_queue_wait(r->queue, timeout_ns);
}
static gpusync_result by_device_wait(rig *r, gpusync_ticket ticket, uint64_t timeout_ns, const gpusync_wait_options *options)
{
    (void)ticket;
    return gpusync_device_wait(r->device, timeout_ns, options);
}

static const struct {
    const char *name;
    way call;
    bool takes_options;
} ways[] = {{"gpusync_wait", by_wait, false},
            {"gpusync_wait_ex", by_wait_ex, true},
            {"gpusync_wait_ex EVERYTHING", by_everything, true},
            {"gpusync_queue_wait", by_queue_wait, false},
            {"gpusync_device_wait", by_device_wait, true}};
static const gpusync_spin time_limited = {UINT32_MAX, UINT32_MAX, 50000, false};
static const gpusync_spin endless = {UINT32_MAX, UINT32_MAX, 0, false};
static const gpusync_spin *const budgets[] = {NULL, &no_spin, &time_limited, &endless};
enum { BY_DEVICE, BY_QUEUE, BY_OPTIONS, PLACES };

typedef struct wait_case {
    way call;
    bool blocking; /* which the options alone can say */
    const gpusync_spin *spin;
    int place; /* where the budget is set */
} wait_case;

static void case_open(rig *r, const wait_case *c, softmetal_clock clock)
{
    gpusync_device_desc device_desc = device_desc_with(NULL);
    gpusync_queue_desc queue_desc = queue_desc_with(NULL);
    if (c->place == BY_DEVICE) {
        device_desc.spin = c->spin;
    } else if (c->place == BY_QUEUE) {
        if (c->spin) device_desc.spin = c->spin == &no_spin ? &endless : &no_spin; /* must not be used */
        queue_desc = queue_desc_with(c->spin);
    }
    rig_open_with(r, clock, device_desc, queue_desc);
}

static gpusync_result case_wait(rig *r, const wait_case *c, gpusync_ticket ticket, uint64_t timeout_ns)
{
    gpusync_wait_options options;
    memset(&options, 0, sizeof options);
    options.blocking = c->blocking;
    options.spin = c->spin;
    return c->call(r, ticket, timeout_ns, c->place == BY_OPTIONS ? &options : NULL);
}

/* Metal 4 has no waitUntilCompleted. A wait for a device takes no notice of `blocking`, nor of a queue's budget. */
static bool is_possible(const wait_case *c)
{
    if (c->call == by_device_wait && c->place == BY_QUEUE) return false;
    return !c->blocking || (c->place == BY_OPTIONS && (c->call == by_device_wait || !metal4_run()));
}

static bool spins(const wait_case *c)
{
    return c->spin != &no_spin && (!c->blocking || c->call == by_device_wait);
}

static void for_each_case(void (*visit)(const wait_case *c))
{
    size_t w, b;
    int place, blocking;
    for (w = 0; w < sizeof ways / sizeof ways[0]; w++)
        for (blocking = 0; blocking < 2; blocking++)
            for (b = 0; b < sizeof budgets / sizeof budgets[0]; b++)
                for (place = 0; place < PLACES; place++) {
                    wait_case c = {ways[w].call, blocking, budgets[b], place};
                    if (place == BY_OPTIONS && !ways[w].takes_options) continue;
                    if (is_possible(&c)) visit(&c);
                }
}

/* A wait for the device counts there, any other at its queue. */
static gpusync_stats all_stats_of(gpusync_device *device)
{
    gpusync_stats stats;
    assert_ok(gpusync_device_get_stats(device, &stats));
    return stats;
}

/* Real clock: a wait returns when the work is done, not before; the result is the same whichever way it waits. */
static void wait_for_real_work(const wait_case *c)
{
    static const uint64_t limits[] = {SECONDS(20), GPUSYNC_FOREVER, GPUSYNC_FOREVER - 1};
    gpusync_stats stats;
    size_t i;
    rig r;
    case_open(&r, c, SOFTMETAL_REAL);
    for (i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        gpusync_ticket ticket;
        commit_lasting(&r, 100000);
        ticket = commit_lasting(&r, 200000);
        assert_ok(case_wait(&r, c, ticket, limits[i]));
        assert_true(gpusync_is_done(r.queue, ticket) || gpusync_poll(r.queue, ticket) == GPUSYNC_OK);
    }
    stats = all_stats_of(r.device);
    assert_in_range(waits_counted(&stats), 0, 3); /* one that comes after the end is not counted */
    assert_int_equal(stats.waits_unmet, 0);
    if (!spins(c)) assert_int_equal(stats.waits_spin, 0);
    rig_close(&r);
}

/* Manual clock: the work is not done, so every limit must be kept, and nothing may stay behind. */
static void wait_without_success(const wait_case *c)
{
    uint64_t begun;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    case_open(&r, c, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    assert_result(case_wait(&r, c, ticket, 0), GPUSYNC_TIMEOUT);
    assert_result(case_wait(&r, c, ticket, 1), GPUSYNC_TIMEOUT);
    begun = gpusync_now_ns();
    assert_result(case_wait(&r, c, ticket, MS(1)), GPUSYNC_TIMEOUT);
    assert_true(gpusync_now_ns() - begun >= MS(1));
    assert_false(a_wait_sleeps(r.device));
    assert_int_equal(all_stats_of(r.device).waits_unmet, 3);
    show_end(buffer);
    assert_ok(case_wait(&r, c, ticket, 0));
    assert_int_equal(all_stats_of(r.device).waits_status, metal4_run() ? 0 : 1);
    softmetal_finish(buffer);
    assert_ok(case_wait(&r, c, ticket, 0));
    assert_true(all_stats_of(r.device).waits_inline <= (metal4_run() ? 2u : 1u)); /* only those with options are counted */
    assert_int_equal(all_stats_of(r.device).waits_unmet, 3);
    assert_int_equal(all_stats_of(r.device).waits_spin + all_stats_of(r.device).waits_sleep, 0);
    rig_close(&r);
}

static void test_every_way_and_budget_waits_for_real_work(void **state)
{
    (void)state;
    for_each_case(wait_for_real_work);
}

static void test_every_way_and_budget_keeps_its_time_limit(void **state)
{
    (void)state;
    for_each_case(wait_without_success);
}

static void test_the_failure_of_the_work_comes_through_every_way(void **state)
{
    size_t w, m;
    (void)state;
    for (w = 0; w < sizeof ways / sizeof ways[0]; w++)
        for (m = 0; m < 3; m++) { /* a wait that decides, one that sleeps at once, one that blocks */
            wait_case c = {ways[w].call, m == 2, m == 1 ? &no_spin : NULL, m == 2 ? BY_OPTIONS : BY_QUEUE};
            gpusync_ticket ticket;
            rig r;
            if (!is_possible(&c) || (m == 2 && !ways[w].takes_options)) continue;
            case_open(&r, &c, SOFTMETAL_REAL);
            softmetal_fail_next(1, 3);
            ticket = commit_lasting(&r, 100000);
            assert_result(case_wait(&r, &c, ticket, GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
            rig_close(&r);
        }
}

/* -- options->error ------------------------------------------------------------------------------- */

/* Every call that has options, and what they say. */
enum { OF_TICKET, OF_EVERYTHING, OF_DEVICE, OF_VALUE, OF_POINTS, OF_VALUES, CALLS };

typedef struct asker {
    rig r;
    gpusync_timeline *timeline;
    gpusync_ticket ticket; /* not over */
    uint64_t value;        /* not reached */
    uint64_t timeout_ns;
    bool handlers, blocking;
    unsigned asks; /* 1 << OF_..., to ask */
    gpusync_result results[CALLS];
    gpusync_error errors[CALLS];
    long rounds;
} asker;

static gpusync_result ask(asker *a, int call, gpusync_error *error)
{
    gpusync_wait_options options = {.error = error, .handlers = a->handlers, .blocking = a->blocking};
    gpusync_point points[20];
    int i;
    for (i = 0; i < 20; i++)
        points[i] = call == OF_VALUES ? at(a->timeline, a->value) : after(a->r.queue, i ? a->ticket : GPUSYNC_NO_TICKET);
    if (call == OF_TICKET) return gpusync_wait_ex(a->r.queue, a->ticket, a->timeout_ns, &options);
    if (call == OF_EVERYTHING) return gpusync_wait_ex(a->r.queue, GPUSYNC_EVERYTHING, a->timeout_ns, &options);
    if (call == OF_DEVICE) return gpusync_device_wait(a->r.device, a->timeout_ns, &options);
    if (call == OF_VALUE) return gpusync_timeline_wait(a->timeline, a->value, a->timeout_ns, &options);
    return gpusync_wait_many(points, call == OF_POINTS ? 2 : 20, GPUSYNC_WAIT_ALL, a->timeout_ns, &options, NULL);
}

/* Where no assertion can jump, too. */
static void ask_all(asker *a)
{
    int call;
    for (call = 0; call < CALLS; call++) {
        memset(&a->errors[call], 0x77, sizeof a->errors[call]);
        if (a->asks & 1u << call) a->results[call] = ask(a, call, &a->errors[call]);
    }
    COUNT(&a->rounds);
}

static void ask_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)result;
    (void)error;
    ask_all((asker *)user);
}

static void assert_filled(const gpusync_error *error, gpusync_result result)
{
    assert_result(error->result, result);
    assert_int_not_equal(error->failure, GPUSYNC_FAILURE_NONE);
    assert_non_null(memchr(error->message, 0, sizeof error->message));
    assert_int_not_equal(error->message[0], 0);
    assert_non_null(memchr(error->domain, 0, sizeof error->domain));
    assert_non_null(memchr(error->label, 0, sizeof error->label));
    assert_non_null(memchr(error->queue_label, 0, sizeof error->queue_label));
}

static void assert_answers(const asker *a, gpusync_result expected)
{
    int call;
    for (call = 0; call < CALLS; call++) {
        if (!(a->asks & 1u << call)) continue;
        assert_result(a->results[call], expected);
        assert_filled(&a->errors[call], expected);
    }
}

static void asker_open(asker *a, gpusync_callback_mode callbacks)
{
    gpusync_device_desc device_desc = device_desc_with(NULL);
    memset(a, 0, sizeof *a);
    device_desc.spin = &no_spin;
    device_desc.callback_mode = callbacks;
    rig_open_with(&a->r, SOFTMETAL_MANUAL, device_desc, queue_desc_with(NULL));
    a->timeline = timeline_new(a->r.device);
    a->ticket = commit_empty(&a->r, NULL);
    a->value = 1;
    a->timeout_ns = MS(1);
    a->asks = (1u << CALLS) - 1;
}

static void asker_close(asker *a)
{
    if (a->r.queue) finish_queue(a->r.queue);
    if (a->timeline) assert_ok(gpusync_timeline_destroy(a->timeline));
    rig_close(&a->r);
}

static void test_in_a_callback_the_error_of_a_wait_is_filled(void **state)
{
    asker a;
    (void)state;
    asker_open(&a, GPUSYNC_CALLBACKS_QUEUED);
    for (a.timeout_ns = 0; a.timeout_ns <= MS(1); a.timeout_ns += MS(1)) {
        assert_ok(gpusync_on_done(after(a.r.queue, GPUSYNC_NO_TICKET), ask_in_callback, &a));
        assert_int_equal(CALLED(a.rounds), 1 + a.timeout_ns / MS(1));
        assert_answers(&a, GPUSYNC_ERROR_WOULD_DEADLOCK);
    }
    asker_close(&a);
}

static void test_without_memory_the_error_of_a_wait_is_filled(void **state)
{
    enum { MORE = 16 };
    gpusync_queue *more[MORE];
    asker a;
    int i;
    (void)state;
    asker_open(&a, GPUSYNC_CALLBACKS_QUEUED);
    a.r.memory.fail_at = 1;
    a.r.memory.fail_after = true;
    ask_all(&a);
    a.r.memory.fail_at = 0;
    assert_answers(&a, GPUSYNC_ERROR_OUT_OF_MEMORY);
    for (i = 0; i < MORE; i++) more[i] = queue_new(a.r.device);
    a.asks = 1u << OF_DEVICE; /* whose list has no place in the call any more */
    a.r.memory.fail_at = 1;
    ask_all(&a);
    a.r.memory.fail_at = 0;
    assert_answers(&a, GPUSYNC_ERROR_OUT_OF_MEMORY);
    for (i = 0; i < MORE; i++) assert_ok(gpusync_queue_destroy(more[i]));
    asker_close(&a);
}

static void test_the_error_of_a_wait_for_what_there_is_not_is_filled(void **state)
{
    asker a;
    (void)state;
    asker_open(&a, GPUSYNC_CALLBACKS_QUEUED);
    a.ticket = 77;
    a.asks = 1u << OF_TICKET | 1u << OF_POINTS;
    ask_all(&a);
    assert_answers(&a, GPUSYNC_ERROR_INVALID_TICKET);
    a.value = GPUSYNC_MAX_VALUE + 1;
    a.asks = 1u << OF_VALUE | 1u << OF_VALUES;
    ask_all(&a);
    assert_answers(&a, GPUSYNC_ERROR_NOT_RISING);
    asker_close(&a);
}

/* A wait goes on when the device is lost, and its limit leaves no error. When the work is given up every wait tells. */
static void test_the_error_of_a_wait_on_a_lost_device_is_filled_with_queues_and_without(void **state)
{
    gpusync_queue *other;
    void *metal, *lost;
    asker a;
    int call, handlers;
    (void)state;
    asker_open(&a, GPUSYNC_CALLBACKS_QUEUED);
    metal = metal_retain(a.r.metal_queue);
    other = queue_new(a.r.device);
    (void)commit_empty_to(other, &lost);
    fail_with_the_device(lost);
    softmetal_finish(lost);
    assert_true(gpusync_device_is_lost(a.r.device));
    ask_all(&a);
    for (call = 0; call < CALLS; call++) assert_result(a.results[call], GPUSYNC_TIMEOUT);
    probe_give_up_lost(a.r.device);
    for (handlers = 0; handlers < 2; handlers++) {
        a.handlers = handlers;
        ask_all(&a);
        assert_answers(&a, GPUSYNC_ERROR_DEVICE_LOST);
    }
    assert_ok(gpusync_queue_destroy(a.r.queue));
    assert_ok(gpusync_queue_destroy(other));
    a.r.queue = NULL;
    a.asks = 1u << OF_DEVICE;
    ask_all(&a);
    assert_answers(&a, GPUSYNC_ERROR_DEVICE_LOST);
    softmetal_finish_queue(metal);
    metal_release(metal);
    asker_close(&a);
}

/* Once all has ended, before anything is given up. */
static void test_the_error_of_a_wait_for_everything_of_a_lost_device_is_filled(void **state)
{
    void *lost;
    asker a;
    (void)state;
    asker_open(&a, GPUSYNC_CALLBACKS_QUEUED);
    lost = open_buffer(&a.r);
    fail_with_the_device(lost);
    assert_ok(either_commit(a.r.queue, lost, NULL));
    finish_queue(a.r.queue);
    a.asks = 1u << OF_EVERYTHING | 1u << OF_DEVICE;
    ask_all(&a);
    assert_answers(&a, GPUSYNC_ERROR_DEVICE_LOST);
    asker_close(&a);
}

static void fail_one(gpusync_queue *queue, const char *text)
{
    void *buffer = buffer_of(queue);
    softmetal_fail(buffer, "TestDomain", 42, text);
    assert_ok(either_commit(queue, buffer, NULL));
    finish_queue(queue);
}

static void test_the_error_of_a_wait_for_the_device_is_that_of_the_first_queue_that_has_one(void **state)
{
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    gpusync_queue *second, *third;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    second = queue_new(r.device);
    third = queue_new(r.device);
    fail_one(second, "second");
    fail_one(third, "third");
    assert_result(gpusync_device_wait(r.device, 0, &options), GPUSYNC_ERROR_EXECUTION);
    assert_string_equal(error.message, "second");
    assert_ok(gpusync_queue_destroy(second));
    assert_ok(gpusync_queue_destroy(third));
    rig_close(&r);
}

/* It returns one failure, and has read all of them: a later wait for everything of another queue returns none. */
static void test_a_wait_for_the_device_counts_for_the_failures_of_all_its_queues(void **state)
{
    gpusync_queue *second, *third;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    second = queue_new(r.device);
    third = queue_new(r.device);
    fail_one(second, "second");
    fail_one(third, "third");
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(third, 0));
    assert_ok(gpusync_device_wait(r.device, 0, NULL));
    assert_ok(gpusync_queue_destroy(second));
    assert_ok(gpusync_queue_destroy(third));
    rig_close(&r);
}

/* The park of a wait runs this once, on a thread of its own, and then ends the first work. */
static struct {
    rig *r;
    gpusync_queue *other;
    void *first;
    way inner;
    gpusync_result answer;
    int parks;
} overlap;

static void *act_meanwhile(void *unused)
{
    (void)unused;
    if (overlap.other) fail_one(overlap.other, "later");
    if (overlap.other != overlap.r->queue) softmetal_finish(overlap.first); /* or it has ended in front of the later */
    if (overlap.inner) overlap.answer = overlap.inner(overlap.r, GPUSYNC_EVERYTHING, 0, NULL);
    return NULL;
}

static void overlap_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    if (overlap.parks++ == 0) join(start(act_meanwhile, NULL));
    thread_park(waiter, deadline_ns);
}

static void overlap_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

static void open_overlap(rig *r, gpusync_queue **second)
{
    static const gpusync_hooks hooks = {NULL, overlap_park, overlap_unpark, NULL};
    rig_open_hooked(r, SOFTMETAL_MANUAL, &hooks, 0);
    *second = queue_new(r->device);
    memset(&overlap, 0, sizeof overlap);
    overlap.r = r;
    overlap.answer = 99;
}

/* The failure counts for each wait that had begun, though another one has returned it by then. */
static void test_a_failure_is_told_to_each_of_the_waits_that_overlap(void **state)
{
    static const way inside[] = {by_device_wait, by_queue_wait, by_everything};
    size_t w;
    (void)state;
    for (w = 0; w < LENGTH(inside); w++) {
        gpusync_queue *second;
        gpusync_error error;
        gpusync_wait_options options = {.error = &error};
        rig r;
        open_overlap(&r, &second);
        overlap.inner = inside[w];
        overlap.first = buffer_of(r.queue);
        softmetal_fail(overlap.first, "TestDomain", 42, "it broke");
        (void)commit_to(r.queue, overlap.first);
        assert_result(gpusync_device_wait(r.device, GPUSYNC_FOREVER, &options), GPUSYNC_ERROR_EXECUTION);
        assert_string_equal(error.message, "it broke");
        assert_true(overlap.parks > 0);
        assert_result(overlap.answer, GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_device_wait(r.device, 0, NULL)); /* one that begins now is told nothing */
        assert_ok(gpusync_queue_wait(r.queue, 0));
        assert_ok(gpusync_queue_destroy(second));
        rig_close(&r);
    }
}

/* It is left to the waits that begin behind it. */
static void test_a_wait_for_the_device_leaves_out_the_failure_of_later_work(void **state)
{
    int own;
    (void)state;
    for (own = 0; own < 2; own++) { /* of another queue, which was idle; or of the one that it waits for */
        gpusync_queue *second, *fails;
        gpusync_error error;
        gpusync_wait_options options = {.error = &error};
        rig r;
        open_overlap(&r, &second);
        (void)commit_empty(&r, &overlap.first);
        overlap.other = fails = own ? r.queue : second;
        assert_ok(gpusync_device_wait(r.device, GPUSYNC_FOREVER, &options));
        assert_true(overlap.parks > 0);
        assert_result(gpusync_wait_ex(fails, GPUSYNC_EVERYTHING, 0, &options), GPUSYNC_ERROR_EXECUTION);
        assert_string_equal(error.message, "later");
        assert_ok(gpusync_device_wait(r.device, 0, NULL));
        assert_ok(gpusync_queue_destroy(second));
        rig_close(&r);
    }
}

/* A program may keep its first failure in one place, and wait on. */
static void test_a_wait_that_returns_no_error_leaves_the_place_for_it_alone(void **state)
{
    gpusync_error untouched;
    asker a;
    int call, round;
    (void)state;
    memset(&untouched, 0x77, sizeof untouched);
    asker_open(&a, GPUSYNC_CALLBACKS_QUEUED);
    ask_all(&a);
    for (call = 0; call < CALLS; call++) {
        assert_result(a.results[call], GPUSYNC_TIMEOUT);
        assert_memory_equal(&a.errors[call], &untouched, sizeof untouched);
    }
    finish_queue(a.r.queue);
    softmetal_fail_next(1, 3);
    (void)commit_empty(&a.r, NULL);
    finish_queue(a.r.queue);
    assert_result(gpusync_queue_wait(a.r.queue, 0), GPUSYNC_ERROR_EXECUTION); /* told */
    assert_ok(gpusync_timeline_signal(a.timeline, 1));
    for (round = 0; round < 2; round++) {
        a.handlers = round;
        ask_all(&a);
        for (call = 0; call < CALLS; call++) {
            assert_ok(a.results[call]);
            assert_memory_equal(&a.errors[call], &untouched, sizeof untouched);
        }
    }
    asker_close(&a);
}

/* In the destroy call, which runs the callback. */
static void test_the_error_of_a_wait_for_what_is_being_destroyed_is_filled(void **state)
{
    void *metal;
    asker a;
    (void)state;
    asker_open(&a, GPUSYNC_CALLBACKS_MANUAL);
    metal = metal_retain(a.r.metal_queue);
    a.asks = 1u << OF_VALUE | 1u << OF_VALUES;
    assert_ok(gpusync_on_done(at(a.timeline, 1), ask_in_callback, &a));
    assert_ok(gpusync_timeline_destroy(a.timeline));
    assert_int_equal(a.rounds, 1);
    assert_answers(&a, GPUSYNC_ERROR_DESTROYED);
    a.timeline = NULL;
    a.asks = 1u << OF_TICKET | 1u << OF_EVERYTHING | 1u << OF_POINTS;
    assert_ok(gpusync_on_done(after(a.r.queue, a.ticket), ask_in_callback, &a));
    assert_ok(gpusync_queue_destroy_now(a.r.queue));
    assert_int_equal(a.rounds, 2);
    assert_answers(&a, GPUSYNC_ERROR_DESTROYED);
    a.r.queue = NULL;
    softmetal_finish_queue(metal);
    metal_release(metal);
    asker_close(&a);
}

static void test_the_error_of_a_wait_that_makes_no_sense_is_filled(void **state)
{
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    gpusync_point nothing;
    asker a;
    int call;
    (void)state;
    memset(&nothing, 0, sizeof nothing);
    asker_open(&a, GPUSYNC_CALLBACKS_QUEUED);
    for (call = 0; call < 4; call++) {
        gpusync_result result;
        memset(&error, 0x77, sizeof error);
        if (call == 0) result = gpusync_wait_ex(NULL, 1, 0, &options);
        else if (call == 1) result = gpusync_wait_ex(NULL, GPUSYNC_EVERYTHING, 0, &options);
        else if (call == 2) result = gpusync_device_wait(NULL, 0, &options);
        else result = gpusync_timeline_wait(NULL, 1, 0, &options);
        assert_result(result, GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_filled(&error, GPUSYNC_ERROR_INVALID_ARGUMENT);
    }
    error.result = GPUSYNC_OK;
    assert_result(gpusync_wait_many(&nothing, 1, GPUSYNC_WAIT_ALL, 0, &options, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_filled(&error, GPUSYNC_ERROR_INVALID_ARGUMENT);
    error.result = GPUSYNC_OK;
    assert_result(gpusync_wait_many(NULL, 0, GPUSYNC_WAIT_ANY, 0, &options, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_filled(&error, GPUSYNC_ERROR_INVALID_ARGUMENT);
    if (metal4_run()) {
        a.blocking = true;
        a.asks = 1u << OF_TICKET | 1u << OF_EVERYTHING;
        ask_all(&a);
        assert_answers(&a, GPUSYNC_ERROR_UNSUPPORTED);
    }
    asker_close(&a);
}

/* -- how a wait ended ------------------------------------------------------------------------------- */

static void test_an_end_seen_while_spinning_is_counted_as_spin_and_parks_no_thread(void **state)
{
    static const gpusync_spin spin = {2, 100, 0, false};
    hook_log log;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &spin);
    ticket = commit_empty(&r, &buffer);
    log.complete_at_yield = buffer;
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    assert_int_equal(log.yields, 3);
    assert_int_equal(log.parks + log.unparks, 0);
    assert_int_equal(stats_of(r.queue).waits_spin, 1);
    softmetal_finish(buffer);
    rig_close(&r);
}

static void test_the_spin_budget_is_spent_before_the_first_park_and_not_more(void **state)
{
    static const gpusync_spin spin = {5, 9, 0, false};
    hook_log log;
    void *buffer;
    gpusync_ticket ticket;
    uint64_t messages;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &spin);
    ticket = commit_empty(&r, &buffer);
    messages = softmetal_thread_messages();
    assert_result(gpusync_wait(r.queue, ticket, MS(800)), GPUSYNC_TIMEOUT); /* a busy machine may stop it for long */
    assert_int_equal(log.yields, 9);
    assert_true(log.parks >= 1);
    assert_true(log.parks >= 1);
    /* one look before, 14 while spinning, then one for each slice of sleep and one at the end */
    if (metal4_run()) assert_int_equal(softmetal_thread_messages(), messages);
    else assert_in_range(softmetal_thread_messages() - messages, 16, 15 + (uint64_t)log.parks + 1);
    softmetal_finish(buffer);
    rig_close(&r);
}

/* The work ends at the third yield of a wait that spins, or at the first park of one that does not. */
static void end_the_work(hook_log *log, void *buffer)
{
    log->yields = log->parks = 0;
    log->complete_at_yield = log->finish_at_park = buffer;
}

static void test_a_queue_has_a_spin_of_its_own(void **state)
{
    static const gpusync_spin spin = {0, 9, 0, false};
    int sleeps; /* the queue that has its own; the others spin */
    (void)state;
    for (sleeps = 0; sleeps < 2; sleeps++) {
        gpusync_device_desc device_desc;
        gpusync_queue_desc queue_desc = queue_desc_with(sleeps ? &no_spin : &spin);
        gpusync_queue *own;
        gpusync_ticket ticket;
        hook_log log;
        void *buffer;
        rig r;
        hook_log_init(&log);
        device_desc = device_desc_with(&log.hooks);
        device_desc.spin = sleeps ? &spin : &no_spin;
        rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc_with(NULL));
        own = queue_of_kind(QUEUE_OF_GPUSYNC, r.device, &queue_desc);
        ticket = commit_empty(&r, &buffer);
        end_the_work(&log, buffer);
        assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
        assert_int_equal(log.yields, sleeps ? 3 : 0);
        finish_queue(r.queue);
        ticket = commit_empty_to(own, &buffer);
        end_the_work(&log, buffer);
        assert_ok(gpusync_wait(own, ticket, GPUSYNC_FOREVER));
        assert_int_equal(log.yields, sleeps ? 0 : 3);
        finish_queue(own);
        assert_ok(gpusync_queue_destroy(own));
        rig_close(&r);
    }
}

static void test_a_wait_for_the_device_has_the_spin_of_its_options(void **state)
{
    static const gpusync_spin spin = {0, 9, 0, false};
    static const gpusync_wait_options options = {.spin = &spin};
    gpusync_device_desc device_desc;
    hook_log log;
    void *buffer;
    rig r;
    (void)state;
    hook_log_init(&log);
    device_desc = device_desc_with(&log.hooks);
    device_desc.spin = &no_spin;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc_with(NULL));
    commit_empty(&r, &buffer);
    end_the_work(&log, buffer);
    assert_ok(gpusync_device_wait(r.device, GPUSYNC_FOREVER, &options));
    assert_int_equal(log.yields, 3);
    assert_int_equal(log.parks, 0);
    finish_queue(r.queue);
    commit_empty(&r, &buffer);
    end_the_work(&log, buffer);
    assert_ok(gpusync_device_wait(r.device, GPUSYNC_FOREVER, NULL));
    assert_int_equal(log.yields, 0);
    finish_queue(r.queue);
    rig_close(&r);
}

static void test_a_time_limit_on_spinning_ends_it(void **state)
{
    static const gpusync_spin spin = {0, UINT32_MAX, 2000000, false};
    hook_log log;
    wait_job job;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &spin);
    ticket = commit_empty(&r, &buffer);
    wait_job_start(&job, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1); /* never, were there no limit */
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&job));
    assert_true(log.yields > 0);
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    rig_close(&r);
}

static void test_spinning_ends_with_the_wait_however_long_it_may_take(void **state)
{
    static const gpusync_spin spins[] = {{0, 0, SECONDS(20), false}, {32, UINT32_MAX, SECONDS(20), false}};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof spins / sizeof spins[0]; i++) {
        hook_log log;
        uint64_t begun;
        void *buffer;
        gpusync_ticket ticket;
        rig r;
        rig_open_counting(&r, &log, &spins[i]);
        ticket = commit_empty(&r, &buffer);
        begun = gpusync_now_ns();
        assert_result(gpusync_wait(r.queue, ticket, MS(5)), GPUSYNC_TIMEOUT);
        assert_in_range(gpusync_now_ns() - begun, MS(5), SECONDS(10));
        softmetal_finish(buffer);
        rig_close(&r);
    }
}

typedef struct costly_wait {
    wait_job job;
    uint64_t messages;
} costly_wait;

static void *costly_wait_body(void *argument)
{
    costly_wait *wait = (costly_wait *)argument;
    uint64_t before = softmetal_thread_messages();
    wait->job.result = gpusync_wait(wait->job.queue, wait->job.ticket, GPUSYNC_FOREVER);
    wait->messages = softmetal_thread_messages() - before;
    return NULL;
}

static void test_a_wait_that_sleeps_costs_one_status_one_unpark_and_no_command_buffer(void **state)
{
    hook_log log;
    costly_wait wait;
    void *buffer;
    pthread_t thread;
    uint64_t made;
    long parks;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    memset(&wait, 0, sizeof wait);
    wait.job.queue = r.queue;
    wait.job.ticket = commit_empty(&r, &buffer);
    made = softmetal_message_count("commandBuffer");
    thread = start(costly_wait_body, &wait);
    await_sleepers(r.device, 1);
    softmetal_finish(buffer);
    join(thread);
    assert_ok(wait.job.result);
    parks = log.parks;
    assert_int_equal(log.unparks, 1);
    assert_int_equal(log.yields, 0);
    assert_int_equal(softmetal_message_count("commandBuffer"), made);
    /* one for the look before; one for each slice of 50 ms, should the machine have been that slow */
    if (metal4_run()) assert_int_equal(wait.messages, 0);
    else assert_in_range(wait.messages, 1, (uint64_t)(parks > 1 ? parks : 1));
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    rig_close(&r);
}

/* -- blocking --------------------------------------------------------------------------------------- */

/* A wait without a limit, on a thread of its own. On return it is in Metal's waitUntilCompleted. */
static void block_in_metal(wait_job *job, gpusync_queue *queue, gpusync_ticket ticket, const gpusync_wait_options *options)
{
    uint64_t before = softmetal_message_count("waitUntilCompleted");
    memset(job, 0, sizeof *job);
    job->queue = queue;
    job->ticket = ticket;
    job->timeout_ns = GPUSYNC_FOREVER;
    job->options = options;
    job->thread = start(wait_job_body, job);
    while (softmetal_message_count("waitUntilCompleted") == before) sched_yield();
}

/* It neither spins, whatever the budget, nor parks. */
static void test_a_blocking_wait_without_a_limit_waits_in_metal(void **state)
{
    static const gpusync_wait_options options = {.spin = &endless, .blocking = true};
    hook_log log;
    wait_job job;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("Metal has no wait there");
    rig_open_counting(&r, &log, &endless);
    ticket = commit_empty(&r, &buffer);
    block_in_metal(&job, r.queue, ticket, &options);
    assert_false(a_wait_sleeps(r.device));
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&job));
    assert_int_equal(softmetal_message_count("waitUntilCompleted"), 1);
    assert_int_equal(log.yields + log.parks + log.unparks, 0);
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    rig_close(&r);
}

/* Metal's wait has no limit: the waiter sleeps as without `blocking`. */
static void test_a_blocking_wait_with_a_limit_sleeps_at_once(void **state)
{
    static const gpusync_wait_options options = {.spin = &endless, .blocking = true};
    hook_log log;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("Metal has no wait there");
    rig_open_counting(&r, &log, &endless);
    ticket = commit_empty(&r, &buffer);
    assert_result(gpusync_wait_ex(r.queue, ticket, MS(5), &options), GPUSYNC_TIMEOUT);
    assert_true(log.parks > 0);
    log.finish_at_park = buffer;
    assert_ok(gpusync_wait_ex(r.queue, ticket, SECONDS(20), &options));
    assert_int_equal(log.yields, 0);
    assert_int_equal(softmetal_message_count("waitUntilCompleted"), 0);
    rig_close(&r);
}

/* Metal ends the program when it is to wait for such a buffer. The waiter sleeps until the handler. */
static void test_a_blocking_wait_for_what_is_not_committed_sleeps(void **state)
{
    static const gpusync_wait_options options = {.blocking = true};
    int held;
    (void)state;
    NOT_ON_METAL4("Metal has no wait there");
    for (held = 0; held < 2; held++) {
        wait_job job;
        void *tracked = NULL;
        gpusync_ticket ticket;
        gpusync_timeline *timeline;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        timeline = timeline_new(r.device);
        ticket = held ? hold_on(r.queue, timeline, 1, NULL) : track_a_buffer(&r, &tracked);
        memset(&job, 0, sizeof job);
        job.queue = r.queue;
        job.ticket = ticket;
        job.timeout_ns = GPUSYNC_FOREVER;
        job.options = &options;
        job.thread = start(wait_job_body, &job);
        await_sleepers(r.device, 1);
        if (held) assert_ok(gpusync_timeline_signal(timeline, 1));
        else metal_commit(tracked);
        softmetal_finish_queue(r.metal_queue);
        assert_ok(wait_job_join(&job));
        assert_int_equal(softmetal_message_count("waitUntilCompleted"), 0);
        if (tracked) metal_release(tracked);
        assert_ok(gpusync_timeline_destroy(timeline));
        rig_close(&r);
    }
}

/* All calls except gpusync_wait_ex ignore `blocking`: the waiter spins as its budget says, then sleeps. */
static void test_blocking_has_no_effect_in_other_waits(void **state)
{
    static const gpusync_spin spin = {0, 9, 0, false};
    int call, sleeps;
    (void)state;
    for (call = 0; call < 3; call++)
        for (sleeps = 0; sleeps < 2; sleeps++) {
            const gpusync_wait_options options = {.spin = sleeps ? &no_spin : &spin, .blocking = true};
            gpusync_timeline *timeline;
            gpusync_point points[2];
            gpusync_result result;
            hook_log log;
            void *buffer;
            rig r;
            rig_open_counting(&r, &log, NULL);
            timeline = timeline_new(r.device);
            buffer = buffer_of(r.queue);
            points[0] = after(r.queue, SUBMIT(r.queue, BUFFERS(buffer), SIGNALS(at(timeline, 1))));
            points[1] = at(timeline, 1);
            log.finish_queue = r.metal_queue;
            if (call == 0) result = gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, &options, NULL);
            else if (call == 1) result = gpusync_timeline_wait(timeline, 1, GPUSYNC_FOREVER, &options);
            else result = gpusync_device_wait(r.device, GPUSYNC_FOREVER, &options);
            assert_ok(result);
            assert_int_equal(log.yields, sleeps ? 0 : 3);
            assert_int_equal(log.parks > 0, sleeps);
            assert_int_equal(softmetal_message_count("waitUntilCompleted"), 0);
            assert_ok(gpusync_timeline_destroy(timeline));
            rig_close(&r);
        }
}

/* -- limits ----------------------------------------------------------------------------------------- */

static void test_huge_limits_do_not_overflow(void **state)
{
    uint64_t limits[5];
    size_t i;
    (void)state;
    limits[0] = GPUSYNC_FOREVER;
    limits[1] = GPUSYNC_FOREVER - 1;
    limits[2] = GPUSYNC_FOREVER - gpusync_now_ns();
    limits[3] = (uint64_t)1 << 63;
    limits[4] = GPUSYNC_FOREVER - 2;
    for (i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        gpusync_spin spin = {0, 1, 0, false};
        hook_log log;
        wait_job job;
        void *buffer;
        gpusync_ticket ticket;
        rig r;
        spin.max_spin_ns = limits[i];
        rig_open_counting(&r, &log, &spin);
        ticket = commit_empty(&r, &buffer);
        wait_job_start(&job, r.queue, ticket, limits[i]);
        await_sleepers(r.device, 1);
        softmetal_finish(buffer);
        assert_ok(wait_job_join(&job));
        assert_int_equal(log.yields, 1);
        assert_ok(gpusync_device_wait(r.device, limits[i], NULL));
        rig_close(&r);
    }
}

static void test_a_wait_that_timed_out_changes_nothing_and_can_be_repeated(void **state)
{
    hook_log log;
    gpusync_stats before, after;
    void *buffer;
    gpusync_ticket ticket;
    int i;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    ticket = commit_empty(&r, &buffer);
    before = stats_of(r.queue);
    for (i = 0; i < 5; i++) assert_result(gpusync_wait(r.queue, ticket, 100000), GPUSYNC_TIMEOUT);
    after = stats_of(r.queue);
    assert_int_equal(after.waits_unmet, before.waits_unmet + 5);
    assert_int_equal(after.commits, before.commits);
    assert_int_equal(after.completions, before.completions);
    assert_false(a_wait_sleeps(r.device));
    assert_false(gpusync_is_done(r.queue, ticket));
    softmetal_finish(buffer);
    assert_int_equal(log.unparks, 0); /* no waiter is left to be woken */
    assert_ok(gpusync_wait(r.queue, ticket, 0));
    rig_close(&r);
}

static void complete_after_first_status(void *user, softmetal_phase phase, void *object, const char *selector)
{
    bool *done = (bool *)user;
    if (phase != SOFTMETAL_AFTER || strcmp(selector, "status") != 0 || *done) return;
    *done = true;
    softmetal_complete(object);
}

static void test_done_at_the_deadline_wins_also_when_no_time_was_left_to_park(void **state)
{
    bool done = false;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("the status is not read");
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc_with(NULL), queue_desc_with(&no_spin));
    ticket = commit_empty(&r, &buffer);
    softmetal_set_message_hook(complete_after_first_status, &done);
    assert_ok(gpusync_wait(r.queue, ticket, 1));
    softmetal_set_message_hook(NULL, NULL);
    assert_true(done);
    softmetal_finish(buffer);
    rig_close(&r);
}

static void test_done_at_the_deadline_of_a_park_wins(void **state)
{
    gpusync_result result;
    hook_log log;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    ticket = commit_empty(&r, &buffer);
    log.complete_at_limit = buffer;
    do result = gpusync_wait(r.queue, ticket, MS(2));
    while (log.complete_at_limit); /* it did not even come to park: again */
    assert_ok(result);
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    softmetal_finish(buffer);
    rig_close(&r);
}

/* -- what is waited for ----------------------------------------------------------------------------- */

static void test_queue_wait_is_not_extended_by_later_commits(void **state)
{
    hook_log log;
    wait_job job;
    void *first, *second;
    gpusync_ticket later;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    commit_empty(&r, &first);
    wait_job_start(&job, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    later = commit_empty(&r, &second);
    softmetal_finish(first);
    assert_ok(wait_job_join(&job));
    assert_int_equal(log.unparks, 1); /* woken by the first, not by having a look of its own */
    assert_result(gpusync_poll(r.queue, later), GPUSYNC_NOT_READY);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_TIMEOUT);
    softmetal_finish(second);
    rig_close(&r);
}

/* Of waits for everything up to the first ticket, and up to the second, the first is over with the first. */
static void test_of_waits_for_everything_those_are_woken_whose_tickets_have_ended(void **state)
{
    wait_job early, late;
    hook_log log;
    void *first, *second;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    commit_empty(&r, &first);
    wait_job_start(&early, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    commit_empty(&r, &second);
    wait_job_start(&late, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    softmetal_finish(first);
    assert_int_equal(log.unparks, 1);
    assert_int_equal(sleepers_of(r.device), 1);
    assert_ok(wait_job_join(&early));
    softmetal_finish(second);
    assert_ok(wait_job_join(&late));
    rig_close(&r);
}

/* `blocking`: Metal waits for one command buffer after the other. What has ended before its turn is passed. */
static void test_a_blocking_wait_for_everything_passes_what_has_ended(void **state)
{
    static const gpusync_wait_options options = {.blocking = true};
    wait_job job;
    void *buffers[3];
    unsigned i;
    rig r;
    (void)state;
    NOT_ON_METAL4("Metal has no wait there");
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 3; i++) {
        commit_empty(&r, &buffers[i]);
        metal_retain(buffers[i]);
    }
    softmetal_finish(buffers[1]);
    assert_ok(gpusync_poll(r.queue, 2));
    block_in_metal(&job, r.queue, GPUSYNC_EVERYTHING, &options);
    softmetal_finish(buffers[0]);
    while (softmetal_message_count("waitUntilCompleted") < 2) sched_yield();
    softmetal_finish(buffers[2]);
    assert_ok(wait_job_join(&job));
    assert_int_equal(softmetal_message_count("waitUntilCompleted"), 2);
    for (i = 0; i < 3; i++) metal_release(buffers[i]);
    rig_close(&r);
}

static void test_a_ticket_that_ends_before_an_earlier_one_is_done_for_poll_and_wait_only(void **state)
{
    void *buffers[3];
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 3; i++) commit_empty(&r, &buffers[i]);
    softmetal_finish(buffers[1]);
    assert_ok(gpusync_poll(r.queue, 2));
    assert_ok(gpusync_wait(r.queue, 2, 0));
    assert_ok(gpusync_wait_ex(r.queue, 2, GPUSYNC_FOREVER, NULL));
    assert_false(gpusync_is_done(r.queue, 2));
    assert_result(gpusync_poll(r.queue, 1), GPUSYNC_NOT_READY);
    assert_result(gpusync_poll(r.queue, 3), GPUSYNC_NOT_READY);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_TIMEOUT);
    softmetal_finish(buffers[0]);
    assert_true(gpusync_is_done(r.queue, 2));
    assert_false(gpusync_is_done(r.queue, 3));
    assert_false(gpusync_is_idle(r.queue));
    softmetal_finish(buffers[2]);
    assert_true(gpusync_is_done(r.queue, 3));
    assert_true(gpusync_is_idle(r.queue));
    assert_int_equal(stats_of(r.queue).completions, 3);
    rig_close(&r);
}

static void test_the_end_is_seen_by_poll_before_the_handler_ran_and_then_not_twice(void **state)
{
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no status shows the end before the feedback");
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    softmetal_schedule(buffer);
    softmetal_execute(buffer);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_NOT_READY);
    softmetal_complete(buffer);
    assert_false(gpusync_is_done(r.queue, ticket));
    assert_ok(gpusync_poll(r.queue, ticket));
    assert_true(gpusync_is_done(r.queue, ticket));
    softmetal_run_handler(buffer, 0);
    assert_int_equal(stats_of(r.queue).completions, 1);
    softmetal_finish_queue(r.metal_queue);
    rig_close(&r);
}

/* -- a lost device ------------------------------------------------------------------------------------- */

/* Any of the ways, on a thread of its own. */
typedef struct way_job {
    rig *r;
    way call;
    gpusync_ticket ticket;
    gpusync_result result;
    bool over;
    pthread_t thread;
} way_job;

static void *way_job_body(void *argument)
{
    way_job *job = (way_job *)argument;
    job->result = job->call(job->r, job->ticket, GPUSYNC_FOREVER, NULL);
    PUT(&job->over, true);
    return NULL;
}

static void way_job_start(way_job *job, rig *r, way call, gpusync_ticket ticket)
{
    memset(job, 0, sizeof *job);
    job->r = r;
    job->call = call;
    job->ticket = ticket;
    job->thread = start(way_job_body, job);
}

static gpusync_result way_job_join(way_job *job)
{
    join(job->thread);
    return job->result;
}

/* Work of another queue, which goes, takes the device with it. */
static void lose_the_device(rig *r)
{
    gpusync_queue *other = queue_new(r->device);
    void *fatal;
    (void)commit_empty_to(other, &fatal);
    fail_with_the_device(fatal);
    softmetal_finish(fatal);
    assert_true(gpusync_device_is_lost(r->device));
    assert_ok(gpusync_queue_destroy(other));
}

static bool is_for_everything(way call) { return call != by_wait && call != by_wait_ex; }

/* ... with the result that the work has. A wait for everything then tells of the device. */
static void test_on_a_lost_device_each_wait_goes_on_until_metal_tells_of_the_end(void **state)
{
    size_t w;
    int fails;
    (void)state;
    for (w = 0; w < LENGTH(ways); w++)
        for (fails = 0; fails < 2; fails++) {
            gpusync_ticket ticket;
            way_job job;
            void *buffer;
            rig r;
            rig_open_with(&r, SOFTMETAL_MANUAL, device_desc_with(NULL), queue_desc_with(&no_spin));
            ticket = commit_empty(&r, &buffer);
            way_job_start(&job, &r, ways[w].call, ticket);
            await_sleepers(r.device, 1);
            lose_the_device(&r);
            assert_result(ways[w].call(&r, ticket, 0, NULL), GPUSYNC_TIMEOUT);
            assert_result(ways[w].call(&r, ticket, MS(2), NULL), GPUSYNC_TIMEOUT);
            assert_false(GET(&job.over));
            if (fails) softmetal_fail(buffer, "TestDomain", 42, "it broke");
            softmetal_finish(buffer);
            assert_result(way_job_join(&job), is_for_everything(ways[w].call) ? GPUSYNC_ERROR_DEVICE_LOST
                                              : fails                         ? GPUSYNC_ERROR_EXECUTION
                                                                              : GPUSYNC_OK);
            probe_give_up_lost(r.device); /* there is nothing, and it changes nothing */
            assert_result(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
            assert_true(gpusync_is_done(r.queue, ticket));
            assert_true(gpusync_is_idle(r.queue));
            rig_close(&r);
        }
}

/* Asleep, or spinning. Metal's report comes too late then. What had ended keeps its end. */
static void test_on_a_lost_device_each_wait_ends_when_its_work_is_given_up(void **state)
{
    size_t w;
    int spins;
    (void)state;
    for (w = 0; w < LENGTH(ways); w++)
        for (spins = 0; spins < 2; spins++) {
            gpusync_ticket ended, ticket;
            gpusync_ticket_info info;
            void *metal;
            gpusync_error error;
            uint64_t cursor;
            way_job job;
            rig r;
            gpusync_device_desc desc = device_desc_with(NULL);
            desc.spin = spins ? &endless : &no_spin;
            rig_open_with(&r, SOFTMETAL_MANUAL, desc, queue_desc_with(NULL));
            metal = metal_retain(r.metal_queue);
            ended = commit_empty(&r, NULL);
            finish_queue(r.queue);
            ticket = commit_empty(&r, NULL);
            way_job_start(&job, &r, ways[w].call, ticket);
            if (!spins) await_sleepers(r.device, 1);
            lose_the_device(&r);
            assert_false(GET(&job.over));
            probe_give_up_lost(r.device);
            assert_result(way_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
            if (spins) softmetal_finish_queue(metal);
            assert_result(ways[w].call(&r, ticket, 0, NULL), GPUSYNC_ERROR_DEVICE_LOST);
            assert_result(ways[w].call(&r, ticket, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
            assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_DEVICE_LOST);
            assert_result(gpusync_get_info(r.queue, ticket, &info), GPUSYNC_ERROR_DEVICE_LOST);
            assert_false(gpusync_is_done(r.queue, ticket));
            assert_false(gpusync_is_idle(r.queue));
            cursor = 0;
            assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
            assert_ok(gpusync_wait(r.queue, ended, GPUSYNC_FOREVER));
            assert_ok(gpusync_poll(r.queue, ended));
            assert_ok(gpusync_get_info(r.queue, ended, &info));
            assert_ok(gpusync_queue_destroy(r.queue)); /* waits for nothing: all was given up */
            r.queue = NULL;
            softmetal_finish_queue(metal);
            metal_release(metal);
            rig_close(&r);
        }
}

static void *destroy_queue_of(void *argument)
{
    must(gpusync_queue_destroy(((rig *)argument)->queue) == GPUSYNC_OK, "gpusync_queue_destroy");
    return NULL;
}

/* With Metal alone: it is in Metal's hands, and nothing that gpusync knows ends it. Destroy waits for it. */
static void test_a_blocking_wait_on_a_lost_device_ends_with_metal_and_delays_destroy(void **state)
{
    static const gpusync_wait_options options = {.blocking = true};
    gpusync_ticket ticket;
    pthread_t destroyer;
    wait_job job;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("Metal has no wait there");
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc_with(NULL), queue_desc_with(&no_spin));
    ticket = commit_empty(&r, &buffer);
    block_in_metal(&job, r.queue, ticket, &options);
    lose_the_device(&r);
    probe_give_up_lost(r.device);
    assert_result(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER), GPUSYNC_ERROR_DEVICE_LOST);
    destroyer = start(destroy_queue_of, &r);
    while (gpusync_poll(r.queue, ticket) != GPUSYNC_ERROR_DESTROYED) sched_yield();
    softmetal_finish(buffer);
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_DEVICE_LOST);
    join(destroyer);
    r.queue = NULL;
    rig_close(&r);
}

/* Destroy waits no longer for the work than other calls do, and what is under way ends with it. */
static void test_destroying_a_queue_of_a_lost_device_waits_until_its_work_is_given_up(void **state)
{
    gpusync_ticket ticket;
    pthread_t destroyer;
    void *metal;
    rig r;
    (void)state;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc_with(NULL), queue_desc_with(&no_spin));
    metal = metal_retain(r.metal_queue);
    ticket = commit_empty(&r, NULL);
    lose_the_device(&r);
    destroyer = start(destroy_queue_of, &r);
    while (gpusync_poll(r.queue, ticket) != GPUSYNC_ERROR_DESTROYED) sched_yield(); /* it is there: the GPU has work */
    probe_give_up_lost(r.device);
    join(destroyer);
    r.queue = NULL;
    softmetal_finish_queue(metal);
    metal_release(metal);
    rig_close(&r);
}

/* -- a wait for many, of which one queue goes ---------------------------------------------------------- */

#define SLEEPERS 40
static unsigned woken_count;

/* The waits have no limit: only an unpark ends theirs. The destroy parks here, too, for a moment. */
static void park_until_woken(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    thread_park(waiter, deadline_ns);
}

static void unpark_and_note(void *user, gpusync_waiter *waiter)
{
    (void)user;
    COUNT(&woken_count);
    thread_unpark(waiter);
}

/* A queue that is destroyed lets a wait for many out, which does not need it any more, and sleeps on for another queue. Of
   all sleepers of the device that one alone is woken. */
static void test_a_queue_that_goes_wakes_the_wait_for_many_and_no_other(void **state)
{
    gpusync_hooks hooks = {NULL, park_until_woken, unpark_and_note, NULL};
    wait_job sleepers[SLEEPERS];
    gpusync_point points[2];
    gpusync_queue *other;
    gpusync_ticket ticket;
    void *buffer, *ended;
    many_job many;
    unsigned i;
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    other = queue_new(r.device);
    ticket = commit_empty(&r, &buffer);
    points[0] = after(other, commit_empty_to(other, &ended));
    points[1] = after(r.queue, ticket);
    many_job_start(&many, points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    for (i = 0; i < SLEEPERS; i++) wait_job_start(&sleepers[i], r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2 + SLEEPERS);
    PUT(&woken_count, 0);
    softmetal_finish(ended); /* which wakes nobody: the wait is for both */
    assert_int_equal(GET(&woken_count), 0);
    assert_ok(gpusync_queue_destroy(other));
    assert_int_equal(GET(&woken_count), 1);
    await_sleepers(r.device, 1 + SLEEPERS);
    softmetal_finish(buffer);
    for (i = 0; i < SLEEPERS; i++) assert_ok(wait_job_join(&sleepers[i]));
    assert_ok(many_job_join(&many));
    rig_close(&r);
}

#define MANY_QUEUES 20

typedef struct device_job {
    gpusync_device *device;
    gpusync_result result;
} device_job;

static void *device_job_body(void *argument)
{
    device_job *job = (device_job *)argument;
    job->result = gpusync_device_wait(job->device, GPUSYNC_FOREVER, NULL);
    return NULL;
}

static void test_device_wait_covers_every_queue_up_to_what_it_had_committed(void **state)
{
    gpusync_queue *queues[MANY_QUEUES], *first;
    void *buffers[MANY_QUEUES], *later;
    device_job job;
    pthread_t thread;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    first = r.queue;
    for (i = 0; i < MANY_QUEUES; i++) {
        queues[i] = queue_new(r.device);
        r.queue = queues[i];
        commit_empty(&r, &buffers[i]);
    }
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(r.device, MS(1), NULL), GPUSYNC_TIMEOUT);
    job.device = r.device;
    thread = start(device_job_body, &job);
    await_sleepers(r.device, 1);
    r.queue = queues[MANY_QUEUES - 1];
    commit_empty(&r, &later);
    for (i = 0; i < MANY_QUEUES; i++) softmetal_finish(buffers[(i * 7) % MANY_QUEUES]);
    join(thread);
    assert_ok(job.result);
    assert_false(gpusync_is_idle(r.queue));
    softmetal_finish(later);
    for (i = 0; i < MANY_QUEUES; i++) assert_ok(gpusync_queue_destroy(queues[i]));
    r.queue = first;
    rig_close(&r);
}

static void test_device_wait_waits_for_the_last_queue_as_for_the_first(void **state)
{
    gpusync_queue *queues[MANY_QUEUES], *first;
    void *buffer;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    first = r.queue;
    for (i = 0; i < MANY_QUEUES; i++) queues[i] = queue_new(r.device);
    for (i = 0; i < MANY_QUEUES; i++) {
        r.queue = queues[i];
        commit_empty(&r, &buffer);
        assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_TIMEOUT);
        softmetal_finish(buffer);
        assert_ok(gpusync_device_wait(r.device, 0, NULL));
    }
    for (i = 0; i < MANY_QUEUES; i++) assert_ok(gpusync_queue_destroy(queues[i]));
    r.queue = first;
    rig_close(&r);
}

typedef struct more_queues {
    rig *r;
    size_t busy; /* so many of them */
    gpusync_queue *made[9];
} more_queues;

static void make_more_queues(void *argument)
{
    more_queues *m = (more_queues *)argument;
    size_t i;
    for (i = 0; i < LENGTH(m->made); i++) m->made[i] = queue_new(m->r->device);
    for (i = 0; i < m->busy; i++) (void)commit_empty_to(m->made[LENGTH(m->made) - 1 - i], NULL);
}

static void check_queues_that_are_made_meanwhile(size_t busy)
{
    gpusync_queue *queues[16];
    more_queues more;
    size_t i;
    rig r;
    rig_open(&r, SOFTMETAL_MANUAL);
    more.r = &r;
    more.busy = busy;
    (void)commit_empty(&r, NULL);
    for (i = 0; i < LENGTH(queues); i++) { /* and r.queue. Those that are idle take no room */
        queues[i] = queue_new(r.device);
        (void)commit_empty_to(queues[i], NULL);
    }
    probe_at(PROBE_QUEUES_LISTED, NULL, 2, make_more_queues, &more);
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_TIMEOUT);
    assert_true(probe_has_acted());
    finish_queue(r.queue);
    for (i = 0; i < LENGTH(queues); i++) finish_queue(queues[i]);
    for (i = 0; i < busy; i++) {
        assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_TIMEOUT);
        finish_queue(more.made[LENGTH(more.made) - 1 - i]);
    }
    assert_ok(gpusync_device_wait(r.device, 0, NULL));
    for (i = 0; i < LENGTH(queues); i++) assert_ok(gpusync_queue_destroy(queues[i]));
    for (i = 0; i < LENGTH(more.made); i++) assert_ok(gpusync_queue_destroy(more.made[i]));
    rig_close(&r);
}

/* There are more queues than it had room for, and while it gets room for those, more are made: one that works, for which
   there is room as well, and then more than that. */
static void test_device_wait_covers_queues_that_are_made_while_it_begins(void **state)
{
    (void)state;
    check_queues_that_are_made_meanwhile(1);
    check_queues_that_are_made_meanwhile(9);
}

static void test_device_wait_tells_a_timeout_before_an_error(void **state)
{
    gpusync_queue *second, *first;
    void *stuck, *failed;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    first = r.queue;
    commit_empty(&r, &stuck);
    second = queue_new(r.device);
    r.queue = second;
    softmetal_fail_next(1, 2);
    commit_empty(&r, &failed);
    softmetal_finish(failed);
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_TIMEOUT);
    softmetal_finish(stuck);
    assert_result(gpusync_device_wait(r.device, 0, NULL), GPUSYNC_ERROR_EXECUTION); /* now all of it ended */
    assert_ok(gpusync_device_wait(r.device, 0, NULL));
    assert_ok(gpusync_queue_destroy(second));
    r.queue = first;
    rig_close(&r);
}

/* -- handlers that misbehave ------------------------------------------------------------------------ */

static void test_a_lost_handler_costs_time_and_no_hang(void **state)
{
    hook_log log;
    wait_job one, all;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no status shows the end where the feedback is lost");
    rig_open_counting(&r, &log, &no_spin);
    ticket = commit_empty(&r, &buffer);
    softmetal_lose_handlers(buffer);
    softmetal_let_timers_run(true);
    wait_job_start(&one, r.queue, ticket, GPUSYNC_FOREVER);
    wait_job_start(&all, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    softmetal_complete(buffer);
    assert_ok(wait_job_join(&one));
    assert_ok(wait_job_join(&all));
    assert_true(gpusync_is_idle(r.queue));
    assert_int_equal(stats_of(r.queue).waits_sleep, 2);
    assert_int_equal(stats_of(r.queue).completions, 1);
    rig_close(&r);
}

/* One look finds all that has ended, though no handler has come. */
static void test_a_wait_for_everything_without_time_finds_all_that_has_ended(void **state)
{
    enum { MANY = 5 };
    void *buffers[MANY];
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no status to look at");
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < MANY; i++) commit_empty(&r, &buffers[i]);
    for (i = 0; i < MANY; i++) softmetal_complete(buffers[i]);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    softmetal_finish_queue(r.metal_queue);
    rig_close(&r);
}

static void test_a_status_that_comes_after_the_handlers_is_no_hang(void **state)
{
    static const gpusync_wait_options blocking = {.blocking = true};
    int blocks;
    (void)state;
    for (blocks = 0; blocks < (metal4_run() ? 1 : 2); blocks++) {
        wait_job job;
        void *buffer;
        gpusync_ticket ticket;
        rig r;
        rig_open_with(&r, SOFTMETAL_MANUAL, device_desc_with(NULL), queue_desc_with(&no_spin));
        ticket = commit_empty(&r, &buffer);
        softmetal_status_after_handlers(buffer);
        if (blocks) block_in_metal(&job, r.queue, ticket, &blocking);
        else wait_job_start(&job, r.queue, ticket, GPUSYNC_FOREVER);
        if (!blocks) await_sleepers(r.device, 1);
        softmetal_finish(buffer);
        assert_ok(wait_job_join(&job));
        assert_true(gpusync_is_idle(r.queue));
        assert_int_equal(stats_of(r.queue).completions, 1);
        rig_close(&r);
    }
}

/* -- many waiters ----------------------------------------------------------------------------------- */

#define MANY_THREADS 40

static void test_each_waiter_on_its_own_ticket_is_woken_once(void **state)
{
    wait_job jobs[MANY_THREADS];
    void *buffers[MANY_THREADS];
    hook_log log;
    int i;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    for (i = 0; i < MANY_THREADS; i++) {
        gpusync_ticket ticket = commit_empty(&r, &buffers[i]);
        wait_job_start(&jobs[i], r.queue, ticket, GPUSYNC_FOREVER);
    }
    await_sleepers(r.device, MANY_THREADS);
    for (i = 0; i < MANY_THREADS; i++) {
        int k = (i * 11) % MANY_THREADS; /* out of order */
        softmetal_finish(buffers[k]);
        assert_ok(wait_job_join(&jobs[k]));
        assert_int_equal(__atomic_load_n(&log.unparks, __ATOMIC_SEQ_CST), i + 1);
    }
    assert_int_equal(stats_of(r.queue).waits_sleep, MANY_THREADS);
    assert_true(log.parks <= MANY_THREADS);
    rig_close(&r);
}

static void test_every_waiter_on_one_ticket_is_woken_once(void **state)
{
    wait_job jobs[MANY_THREADS];
    hook_log log;
    void *buffer;
    gpusync_ticket ticket;
    int i;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    ticket = commit_empty(&r, &buffer);
    for (i = 0; i < MANY_THREADS; i++)
        wait_job_start(&jobs[i], r.queue, i % 2 ? ticket : GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, MANY_THREADS);
    softmetal_finish(buffer);
    for (i = 0; i < MANY_THREADS; i++) assert_ok(wait_job_join(&jobs[i]));
    assert_int_equal(log.unparks, MANY_THREADS);
    rig_close(&r);
}

static void test_default_hooks_wake_every_thread_too(void **state)
{
    wait_job jobs[MANY_THREADS];
    void *buffer;
    gpusync_ticket ticket;
    int i;
    rig r;
    (void)state;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc_with(NULL), queue_desc_with(&no_spin));
    ticket = commit_empty(&r, &buffer);
    for (i = 0; i < MANY_THREADS; i++) wait_job_start(&jobs[i], r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, MANY_THREADS);
    softmetal_finish(buffer);
    for (i = 0; i < MANY_THREADS; i++) assert_ok(wait_job_join(&jobs[i]));
    assert_int_equal(stats_of(r.queue).waits_sleep, MANY_THREADS);
    rig_close(&r);
}

/* -- the contract of the hooks ---------------------------------------------------------------------- */

static void test_the_wait_goes_on_when_parks_return_early(void **state)
{
    hook_log log;
    wait_job job;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    log.early = 3;
    ticket = commit_empty(&r, &buffer);
    wait_job_start(&job, r.queue, ticket, GPUSYNC_FOREVER);
    while (__atomic_load_n(&log.parks, __ATOMIC_SEQ_CST) < 4) sched_yield();
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&job));
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    rig_close(&r);
}

static void test_early_returns_do_not_extend_the_deadline(void **state)
{
    hook_log log;
    uint64_t begun;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    log.early = INT32_MAX; /* park never sleeps */
    ticket = commit_empty(&r, &buffer);
    begun = gpusync_now_ns();
    assert_result(gpusync_wait(r.queue, ticket, MS(200)), GPUSYNC_TIMEOUT);
    assert_true(gpusync_now_ns() - begun >= MS(200));
    assert_true(log.parks > 1);
    softmetal_finish(buffer);
    rig_close(&r);
}

static void test_a_park_is_told_the_deadline_of_the_wait(void **state)
{
    hook_log log;
    wait_job job;
    uint64_t begun, ended;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open_counting(&r, &log, &no_spin);
    ticket = commit_empty(&r, &buffer);
    begun = gpusync_now_ns();
    assert_result(gpusync_wait(r.queue, ticket, MS(400)), GPUSYNC_TIMEOUT);
    ended = gpusync_now_ns();
    assert_in_range(log.last_deadline, begun + MS(400), ended);
    assert_int_equal(log.parks, 1);
    wait_job_start(&job, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    softmetal_finish(buffer);
    assert_ok(wait_job_join(&job));
    assert_true(log.last_deadline == GPUSYNC_FOREVER);
    rig_close(&r);
}

static struct {
    gpusync_waiter *waiter;
    void *buffer;
} kept;

static void keep_waiter(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user, (void)deadline_ns;
    kept.waiter = waiter;
    softmetal_finish(kept.buffer);
}

static void unpark_nothing(void *user, gpusync_waiter *waiter) { (void)user, (void)waiter; }

static void test_an_unpark_before_the_park_is_not_lost(void **state)
{
    /* The default hooks: unpark leaves a permit, one at most. With a waiter that a wait has used. */
    gpusync_hooks hooks = probe_default_hooks();
    gpusync_hooks keeping = {NULL, keep_waiter, unpark_nothing, NULL};
    gpusync_ticket ticket;
    uint64_t deadline;
    rig r;
    (void)state;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc_with(&keeping), queue_desc_with(&no_spin));
    kept.waiter = NULL;
    ticket = commit_empty(&r, &kept.buffer);
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    assert_non_null(kept.waiter);
    hooks.unpark(hooks.user, kept.waiter);
    hooks.unpark(hooks.user, kept.waiter);
    hooks.park(hooks.user, kept.waiter, GPUSYNC_FOREVER);
    deadline = gpusync_now_ns() + MS(1);
    hooks.park(hooks.user, kept.waiter, deadline);
    assert_true(gpusync_now_ns() >= deadline);
    hooks.park(hooks.user, kept.waiter, 0);
    rig_close(&r);
}

static void test_park_and_unpark_come_together_or_not_at_all(void **state)
{
    gpusync_hooks hooks = {NULL, NULL, NULL, NULL};
    gpusync_device_desc desc = device_desc_with(&hooks);
    gpusync_device *device = (gpusync_device *)(void *)&hooks;
    (void)state;
    softmetal_reset();
    memset(&hooks, 0, sizeof hooks);
    hooks.park = log_park;
    assert_result(gpusync_device_create(&desc, &device), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(device);
    memset(&hooks, 0, sizeof hooks);
    hooks.unpark = log_unpark;
    assert_result(gpusync_device_create(&desc, &device), GPUSYNC_ERROR_INVALID_ARGUMENT);
    memset(&hooks, 0, sizeof hooks);
    hooks.yield = log_yield;
    assert_ok(gpusync_device_create(&desc, &device));
    assert_ok(gpusync_device_destroy(device));
}

static void *to_complete;

static void park_not_at_all(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    void *buffer = __atomic_exchange_n(&to_complete, NULL, __ATOMIC_SEQ_CST);
    (void)user;
    (void)waiter;
    (void)deadline_ns;
    if (buffer) softmetal_complete(buffer); /* and no handler */
    else if (softmetal_timers()) softmetal_fire_timer();
    sched_yield();
}

static void test_a_park_that_returns_early_does_not_put_off_the_look_at_the_status(void **state)
{
    gpusync_hooks hooks = {NULL, park_not_at_all, unpark_nothing, NULL};
    gpusync_ticket ticket;
    uint64_t begin;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("the status is not read");
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    ticket = commit_empty(&r, &buffer);
    begin = gpusync_now_ns();
    to_complete = buffer;
    assert_ok(gpusync_wait(r.queue, ticket, SECONDS(30)));
    assert_true(gpusync_now_ns() - begin < SECONDS(10)); /* some 50 ms, on a quiet machine */
    softmetal_finish(buffer);
    rig_close(&r);
}

static rig *disturbed;

/* Other work of the queue ends. */
static void end_something_else(rig *r)
{
    void *foreign;
    (void)track_a_buffer(r, &foreign);
    metal_commit(foreign);
    softmetal_finish(foreign);
    assert_true(softmetal_dispatched(SECONDS(20)));
    metal_release(foreign);
}

static void park_and_be_disturbed(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    park_not_at_all(user, waiter, deadline_ns);
    end_something_else(disturbed);
}

static void test_other_ends_do_not_put_off_the_look_at_the_status(void **state)
{
    gpusync_hooks hooks = {NULL, park_and_be_disturbed, unpark_nothing, NULL};
    gpusync_ticket ticket;
    uint64_t begin;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("the status is not read");
    rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
    disturbed = &r;
    ticket = commit_empty(&r, &buffer);
    begin = gpusync_now_ns();
    to_complete = buffer; /* at the first park, and no handler comes */
    assert_ok(gpusync_wait(r.queue, ticket, SECONDS(30)));
    assert_true(gpusync_now_ns() - begin < SECONDS(10));
    softmetal_finish(buffer);
    rig_close(&r);
}

static void test_a_spin_budget_may_be_a_time_alone(void **state)
{
    gpusync_wait_options options;
    gpusync_spin spin = {0, 0, 0, false};
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open_sleepy(&r, SOFTMETAL_REAL, NULL, queue_desc_of(0, 0));
    memset(&options, 0, sizeof options);
    spin.max_spin_ns = SECONDS(30);
    options.spin = &spin;
    ticket = commit_lasting(&r, MS(2));
    assert_ok(gpusync_wait_ex(r.queue, ticket, GPUSYNC_FOREVER, &options));
    assert_int_equal(stats_of(r.queue).waits_sleep, 0);
    ticket = commit_lasting(&r, MS(400));
    spin.max_spin_ns = MS(1);
    assert_ok(gpusync_wait_ex(r.queue, ticket, GPUSYNC_FOREVER, &options));
    assert_int_equal(stats_of(r.queue).waits_sleep, 1);
    rig_close(&r);
}

/* -- GPU times -------------------------------------------------------------------------------------- */

static void test_gpu_times_lie_within_the_call_and_in_order(void **state)
{
    gpusync_ticket_info info;
    double begun, last_end = 0;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    begun = (double)gpusync_now_ns() / 1e9;
    for (i = 0; i < 5; i++) {
        gpusync_ticket ticket = commit_lasting(&r, MS(1));
        assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
        assert_true(softmetal_settle(SECONDS(10))); /* the handler brings the times */
        assert_ok(gpusync_get_info(r.queue, ticket, &info));
        assert_ok(info.result);
        assert_true(info.gpu_start_s >= begun && info.gpu_start_s >= last_end);
        assert_true(info.gpu_end_s - info.gpu_start_s >= 0.00099);
        assert_true(info.gpu_end_s <= (double)gpusync_now_ns() / 1e9);
        last_end = info.gpu_end_s;
    }
    rig_close(&r);
}

static void test_info_is_kept_for_the_last_256_tickets_and_then_unknown(void **state)
{
    gpusync_ticket_info info;
    gpusync_ticket ticket;
    void *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (ticket = 1; ticket <= 600; ticket++) {
        commit_empty(&r, &buffer);
        assert_result(gpusync_get_info(r.queue, ticket, &info), GPUSYNC_NOT_READY);
        if (ticket % 7 == 0) softmetal_fail(buffer, NULL, 1, NULL);
        softmetal_finish(buffer);
    }
    for (ticket = 1; ticket <= 600 - 256; ticket++)
        assert_result(gpusync_get_info(r.queue, ticket, &info), GPUSYNC_ERROR_RESULT_UNKNOWN);
    for (; ticket <= 600; ticket++) {
        assert_ok(gpusync_get_info(r.queue, ticket, &info));
        assert_true(info.gpu_start_s > 0 && info.gpu_end_s >= info.gpu_start_s);
        if (ticket % 7 == 0) assert_true(info.result == GPUSYNC_ERROR_EXECUTION || info.result == GPUSYNC_ERROR_RESULT_UNKNOWN);
    }
    assert_result(gpusync_get_info(r.queue, 601, &info), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_get_info(r.queue, GPUSYNC_NO_TICKET, &info), GPUSYNC_ERROR_RESULT_UNKNOWN);
    rig_close(&r);
}

/* -- growth ----------------------------------------------------------------------------------------- */

#define IN_FLIGHT 1000
#define ENDS_EARLY 100 /* the buffer with this index */

static void shuffle(int *order, int n, uint64_t seed)
{
    int i;
    for (i = 0; i < n; i++) order[i] = i;
    for (i = n - 1; i > 0; i--) {
        int k, swap = order[i];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        k = (int)((seed >> 33) % (uint64_t)(i + 1));
        order[i] = order[k];
        order[k] = swap;
    }
}

/* Finish 1000 buffers in this order; the prefix and each ticket's own end are right after every step. */
static void finish_in_order(const int *order)
{
    static void *buffers[IN_FLIGHT];
    static bool ended[IN_FLIGHT + 2];
    gpusync_queue_desc desc = queue_desc_with(&no_spin);
    gpusync_ticket_info info;
    wait_job first, last;
    uint64_t prefix = 0;
    int i;
    rig r;
    desc.max_command_buffer_count = 1024;
    memset(ended, 0, sizeof ended);
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc_with(NULL), desc);
    for (i = 0; i < IN_FLIGHT; i++) {
        assert_int_equal(commit_empty(&r, &buffers[i]), i + 1);
        if (i == ENDS_EARLY + 50) { /* its mark must outlive the growth */
            softmetal_finish(buffers[ENDS_EARLY]);
            ended[ENDS_EARLY + 1] = true;
        }
        if (i > 0) continue;
        wait_job_start(&first, r.queue, 1, GPUSYNC_FOREVER); /* sleeps while the ring grows */
        await_sleepers(r.device, 1);
    }
    assert_ok(gpusync_poll(r.queue, ENDS_EARLY + 1));
    wait_job_start(&last, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    for (i = 0; i < IN_FLIGHT; i++) {
        uint64_t ticket = (uint64_t)order[i] + 1;
        if (order[i] == ENDS_EARLY) continue;
        assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_NOT_READY);
        if (i % 10 == 0) { /* seen without the handler: the slot is found in the ring as it is now */
            show_end(buffers[order[i]]);
            assert_ok(gpusync_poll(r.queue, ticket));
        }
        softmetal_finish(buffers[order[i]]);
        ended[ticket] = true;
        while (ended[prefix + 1]) prefix++;
        assert_ok(gpusync_poll(r.queue, ticket));
        assert_true(gpusync_is_done(r.queue, prefix));
        assert_false(gpusync_is_done(r.queue, prefix + 1));
    }
    assert_true(gpusync_is_idle(r.queue));
    assert_ok(wait_job_join(&first));
    assert_ok(wait_job_join(&last));
    for (i = 1; i <= IN_FLIGHT; i++) assert_ok(gpusync_get_info(r.queue, (gpusync_ticket)i, &info));
    assert_int_equal(stats_of(r.queue).completions, IN_FLIGHT);
    rig_close(&r);
}

static void test_a_thousand_in_flight_end_in_reverse_order(void **state)
{
    static int order[IN_FLIGHT];
    int i;
    (void)state;
    for (i = 0; i < IN_FLIGHT; i++) order[i] = IN_FLIGHT - 1 - i;
    finish_in_order(order);
}

static void test_a_thousand_in_flight_end_in_random_order(void **state)
{
    static int order[IN_FLIGHT];
    (void)state;
    shuffle(order, IN_FLIGHT, 1);
    finish_in_order(order);
    shuffle(order, IN_FLIGHT, 42);
    finish_in_order(order);
}

/* An argument is a pattern of the names of the tests to run: test_a_*. */
/* -- what has ended when the queue goes ------------------------------------------------------------------ */

static struct {
    gpusync_queue *queue;
    pthread_t destroyer;
    bool begun;
} going;

static void *destroy_the_queue(void *queue)
{
    assert_ok(gpusync_queue_destroy((gpusync_queue *)queue));
    return NULL;
}

/* The poll has read that the work has ended; then a destroy begins, which waits for the poll. */
static void begin_to_destroy(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    (void)object;
    if (going.begun || phase != SOFTMETAL_AFTER || strcmp(selector, "status") != 0) return;
    going.begun = true;
    going.destroyer = start(destroy_the_queue, going.queue);
    while (gpusync_poll(going.queue, 1) != GPUSYNC_ERROR_DESTROYED) sched_yield();
}

static void test_a_poll_that_came_before_destroy_tells_that_the_work_ended_well(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("no status to read");
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    softmetal_complete(buffer);
    memset(&going, 0, sizeof going);
    going.queue = r.queue;
    softmetal_set_message_hook(begin_to_destroy, NULL);
    assert_ok(gpusync_poll(r.queue, ticket));
    softmetal_set_message_hook(NULL, NULL);
    assert_true(going.begun);
    softmetal_finish(buffer);
    join(going.destroyer);
    r.queue = NULL;
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_poll_that_came_before_destroy_tells_that_the_work_ended_well),
        cmocka_unit_test(test_waits_for_what_has_ended_write_to_no_memory),
        cmocka_unit_test(test_no_lock_shares_a_cache_line_with_what_other_threads_write),
        cmocka_unit_test(test_waits_on_a_queue_never_used_cost_nothing),
        cmocka_unit_test(test_a_wait_for_the_device_takes_no_memory_for_timelines),
        cmocka_unit_test(test_everything_is_done_when_the_queue_is_idle),
        cmocka_unit_test(test_waits_on_a_drained_queue_cost_nothing),
        cmocka_unit_test(test_waits_after_a_failure_still_send_no_message),
        cmocka_unit_test(test_every_way_and_budget_waits_for_real_work),
        cmocka_unit_test(test_every_way_and_budget_keeps_its_time_limit),
        cmocka_unit_test(test_the_failure_of_the_work_comes_through_every_way),
        cmocka_unit_test(test_in_a_callback_the_error_of_a_wait_is_filled),
        cmocka_unit_test(test_without_memory_the_error_of_a_wait_is_filled),
        cmocka_unit_test(test_the_error_of_a_wait_for_what_there_is_not_is_filled),
        cmocka_unit_test(test_the_error_of_a_wait_on_a_lost_device_is_filled_with_queues_and_without),
        cmocka_unit_test(test_the_error_of_a_wait_for_everything_of_a_lost_device_is_filled),
        cmocka_unit_test(test_the_error_of_a_wait_for_what_is_being_destroyed_is_filled),
        cmocka_unit_test(test_the_error_of_a_wait_for_the_device_is_that_of_the_first_queue_that_has_one),
        cmocka_unit_test(test_a_wait_for_the_device_counts_for_the_failures_of_all_its_queues),
        cmocka_unit_test(test_a_failure_is_told_to_each_of_the_waits_that_overlap),
        cmocka_unit_test(test_a_wait_for_the_device_leaves_out_the_failure_of_later_work),
        cmocka_unit_test(test_a_wait_that_returns_no_error_leaves_the_place_for_it_alone),
        cmocka_unit_test(test_the_error_of_a_wait_that_makes_no_sense_is_filled),
        cmocka_unit_test(test_an_end_seen_while_spinning_is_counted_as_spin_and_parks_no_thread),
        cmocka_unit_test(test_the_spin_budget_is_spent_before_the_first_park_and_not_more),
        cmocka_unit_test(test_a_queue_has_a_spin_of_its_own),
        cmocka_unit_test(test_a_wait_for_the_device_has_the_spin_of_its_options),
        cmocka_unit_test(test_a_time_limit_on_spinning_ends_it),
        cmocka_unit_test(test_spinning_ends_with_the_wait_however_long_it_may_take),
        cmocka_unit_test(test_a_wait_that_sleeps_costs_one_status_one_unpark_and_no_command_buffer),
        cmocka_unit_test(test_a_blocking_wait_without_a_limit_waits_in_metal),
        cmocka_unit_test(test_a_blocking_wait_with_a_limit_sleeps_at_once),
        cmocka_unit_test(test_a_blocking_wait_for_what_is_not_committed_sleeps),
        cmocka_unit_test(test_blocking_has_no_effect_in_other_waits),
        cmocka_unit_test(test_huge_limits_do_not_overflow),
        cmocka_unit_test(test_a_wait_that_timed_out_changes_nothing_and_can_be_repeated),
        cmocka_unit_test(test_done_at_the_deadline_wins_also_when_no_time_was_left_to_park),
        cmocka_unit_test(test_done_at_the_deadline_of_a_park_wins),
        cmocka_unit_test(test_queue_wait_is_not_extended_by_later_commits),
        cmocka_unit_test(test_of_waits_for_everything_those_are_woken_whose_tickets_have_ended),
        cmocka_unit_test(test_a_blocking_wait_for_everything_passes_what_has_ended),
        cmocka_unit_test(test_a_ticket_that_ends_before_an_earlier_one_is_done_for_poll_and_wait_only),
        cmocka_unit_test(test_the_end_is_seen_by_poll_before_the_handler_ran_and_then_not_twice),
        cmocka_unit_test(test_on_a_lost_device_each_wait_goes_on_until_metal_tells_of_the_end),
        cmocka_unit_test(test_on_a_lost_device_each_wait_ends_when_its_work_is_given_up),
        cmocka_unit_test(test_a_blocking_wait_on_a_lost_device_ends_with_metal_and_delays_destroy),
        cmocka_unit_test(test_destroying_a_queue_of_a_lost_device_waits_until_its_work_is_given_up),
        cmocka_unit_test(test_a_queue_that_goes_wakes_the_wait_for_many_and_no_other),
        cmocka_unit_test(test_device_wait_covers_every_queue_up_to_what_it_had_committed),
        cmocka_unit_test(test_device_wait_waits_for_the_last_queue_as_for_the_first),
        cmocka_unit_test(test_device_wait_covers_queues_that_are_made_while_it_begins),
        cmocka_unit_test(test_device_wait_tells_a_timeout_before_an_error),
        cmocka_unit_test(test_a_lost_handler_costs_time_and_no_hang),
        cmocka_unit_test(test_a_wait_for_everything_without_time_finds_all_that_has_ended),
        cmocka_unit_test(test_a_status_that_comes_after_the_handlers_is_no_hang),
        cmocka_unit_test(test_each_waiter_on_its_own_ticket_is_woken_once),
        cmocka_unit_test(test_every_waiter_on_one_ticket_is_woken_once),
        cmocka_unit_test(test_default_hooks_wake_every_thread_too),
        cmocka_unit_test(test_the_wait_goes_on_when_parks_return_early),
        cmocka_unit_test(test_early_returns_do_not_extend_the_deadline),
        cmocka_unit_test(test_a_park_is_told_the_deadline_of_the_wait),
        cmocka_unit_test(test_an_unpark_before_the_park_is_not_lost),
        cmocka_unit_test(test_park_and_unpark_come_together_or_not_at_all),
        cmocka_unit_test(test_gpu_times_lie_within_the_call_and_in_order),
        cmocka_unit_test(test_info_is_kept_for_the_last_256_tickets_and_then_unknown),
        cmocka_unit_test(test_a_thousand_in_flight_end_in_reverse_order),
        cmocka_unit_test(test_a_thousand_in_flight_end_in_random_order),
        cmocka_unit_test(test_a_park_that_returns_early_does_not_put_off_the_look_at_the_status),
        cmocka_unit_test(test_other_ends_do_not_put_off_the_look_at_the_status),
        cmocka_unit_test(test_a_spin_budget_may_be_a_time_alone),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
