/* test_timelines.c - timelines on the host: raising, waiting, failing, events that others signal, and what is kept

   This also runs on queues of Metal 4. */
#include <string.h>

#include "probe.h"
#include "stage.h"

/* -- hooks that count ------------------------------------------------------------------------------------ */

typedef struct sleep_log {
    gpusync_hooks hooks;
    long parks, unparks, yields;
    bool stubborn; /* a park with a deadline far away ends with an unpark only: no look now and then can help */
    gpusync_timeline *signal_at_yield, *signal_at_limit; /* to 5: at the third yield, when a park reached its deadline */
    void *event_at_limit; /* ... the same for an event */
} sleep_log;

static void log_yield(void *user)
{
    sleep_log *log = (sleep_log *)user;
    if (__atomic_add_fetch(&log->yields, 1, __ATOMIC_SEQ_CST) == 3 && log->signal_at_yield)
        assert_ok(gpusync_timeline_signal(log->signal_at_yield, 5));
    sched_yield();
}

static void log_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    sleep_log *log = (sleep_log *)user;
    if (log->stubborn && deadline_ns > gpusync_now_ns() + MS(20)) deadline_ns = GPUSYNC_FOREVER;
    __atomic_fetch_add(&log->parks, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_exchange_n(&waiter->scheduler_data[0], NULL, __ATOMIC_SEQ_CST)) {
        if (gpusync_now_ns() >= deadline_ns) {
            gpusync_timeline *timeline = __atomic_exchange_n(&log->signal_at_limit, NULL, __ATOMIC_SEQ_CST);
            void *event = __atomic_exchange_n(&log->event_at_limit, NULL, __ATOMIC_SEQ_CST);
            if (timeline) assert_ok(gpusync_timeline_signal(timeline, 5));
            if (event) metal_event_signal(event, 5);
            return;
        }
        sched_yield();
    }
}

static void log_unpark(void *user, gpusync_waiter *waiter)
{
    sleep_log *log = (sleep_log *)user;
    __atomic_fetch_add(&log->unparks, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&waiter->scheduler_data[0], (void *)waiter, __ATOMIC_SEQ_CST);
}

static long counted(const long *count) { return __atomic_load_n(count, __ATOMIC_SEQ_CST); }

static const gpusync_spin endless = {0, UINT32_MAX, 0, false};

/* Waits sleep at once. log may be NULL: threads. */
static void open_rig(rig *r, softmetal_clock clock, sleep_log *log)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    if (log) {
        memset(log, 0, sizeof *log);
        log->hooks.yield = log_yield;
        log->hooks.park = log_park;
        log->hooks.unpark = log_unpark;
        log->hooks.user = log;
        device_desc.hooks = &log->hooks;
    }
    device_desc.spin = &no_spin;
    rig_open_with(r, clock, device_desc, queue_desc);
    assert_int_equal(probe_registrations(), 0);
}

static void close_rig(rig *r)
{
    rig_close(r);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("listener"), 0);
    assert_int_equal(probe_registrations(), 0);
}

/* What the event stands at, and what value of it stands for 0. The event is not handed out by this, so that it is used
   again. */
static uint64_t event_value_of(gpusync_timeline *timeline) { return metal_event_value(probe_event_of(timeline, NULL)); }

static uint64_t base_of(gpusync_timeline *timeline)
{
    uint64_t base;
    (void)probe_event_of(timeline, &base);
    return base;
}

/* With an event of its own, which other code signals too. */
static gpusync_timeline *shared_timeline_at(gpusync_device *device, uint64_t initial)
{
    gpusync_timeline_desc desc = {.initial_value = initial, .signalled_by_others = true};
    gpusync_timeline *timeline;
    assert_ok(gpusync_timeline_create(device, &desc, &timeline));
    return timeline;
}

static gpusync_stats device_stats(rig *r)
{
    gpusync_stats stats;
    assert_ok(gpusync_device_get_stats(r->device, &stats));
    return stats;
}

/* -- making one ------------------------------------------------------------------------------------------ */

static void test_a_timeline_starts_at_its_initial_value(void **state)
{
    static const uint64_t values[] = {0, 1, 7, (uint64_t)1 << 40, GPUSYNC_MAX_VALUE};
    size_t i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (i = 0; i < sizeof values / sizeof values[0]; i++) {
        uint64_t base = 99;
        gpusync_timeline *timeline = timeline_at(r.device, values[i]);
        assert_true(value_of(timeline) == values[i]);
        assert_true(event_value_of(timeline) == values[i] + base_of(timeline));
        assert_ok(gpusync_timeline_wait(timeline, values[i], 0, NULL));
        assert_non_null(gpusync_timeline_metal(timeline, &base));
        assert_true(base == base_of(timeline));
        assert_true(metal_event_value(gpusync_timeline_metal(timeline, NULL)) == values[i] + base);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
    close_rig(&r);
}

static void test_an_initial_value_out_of_range_makes_no_timeline(void **state)
{
    static const uint64_t values[] = {GPUSYNC_MAX_VALUE + 1, ~(uint64_t)0};
    size_t i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (i = 0; i < 2; i++) {
        gpusync_timeline *timeline = (gpusync_timeline *)(void *)&r;
        gpusync_timeline_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.initial_value = values[i];
        assert_result(gpusync_timeline_create(r.device, &desc, &timeline), GPUSYNC_ERROR_NOT_RISING);
        assert_null(timeline);
    }
    assert_int_equal(softmetal_live("shared_event"), 0);
    close_rig(&r);
}

static void label_of(gpusync_timeline *timeline, char *text, size_t size)
{
    void *pool = metal_pool_push();
    metal_string_copy(metal_get(probe_event_of(timeline, NULL), "label"), text, size);
    metal_pool_pop(pool);
}

static void test_a_label_shows_in_the_report_and_on_the_event_of_its_own_timeline_only(void **state)
{
    gpusync_timeline_desc desc;
    gpusync_timeline *timeline;
    char name[16] = "frames", first[16], second[16];
    bool reported;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    memset(&desc, 0, sizeof desc);
    desc.label = name;
    assert_ok(gpusync_timeline_create(r.device, &desc, &timeline));
    memset(name, 'x', 6); /* it was copied */
    reported = reports(r.device, "'frames'");
    label_of(timeline, first, sizeof first);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_timeline_create(r.device, NULL, &timeline)); /* over the same event */
    label_of(timeline, second, sizeof second);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
    assert_true(reported);
    assert_string_equal(first, "frames");
    assert_string_equal(second, "");
}

static void test_calls_without_a_timeline_are_refused(void **state)
{
    gpusync_timeline *timeline = NULL;
    uint64_t value = 99, base = 99;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    event = metal_shared_event_new(r.metal_device);
    assert_result(gpusync_timeline_create(NULL, NULL, &timeline), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_timeline_create(r.device, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(timeline_import(NULL, event, NULL, &timeline), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(timeline_import(r.device, event, NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_timeline_query(NULL, &value), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(value, 0);
    assert_result(gpusync_timeline_signal(NULL, 1), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_timeline_fail(NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_timeline_wait(NULL, 0, 0, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(gpusync_timeline_metal(NULL, &base));
    assert_int_equal(base, 0);
    assert_ok(gpusync_timeline_destroy(NULL));
    timeline = timeline_at(r.device, 0);
    assert_result(gpusync_timeline_query(timeline, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

/* -- raising it from the host ---------------------------------------------------------------------------- */

static void test_a_signal_that_does_not_raise_the_timeline_is_refused_and_changes_nothing(void **state)
{
    static const uint64_t refused[] = {0, 1, 4, 5, GPUSYNC_MAX_VALUE + 1, ~(uint64_t)0};
    gpusync_timeline *timeline;
    size_t i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 1);
    assert_ok(gpusync_timeline_signal(timeline, 5));
    for (i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_result(gpusync_timeline_signal(timeline, refused[i]), GPUSYNC_ERROR_NOT_RISING);
        assert_int_equal(value_of(timeline), 5);
        assert_int_equal(event_value_of(timeline), 5);
    }
    assert_ok(gpusync_timeline_signal(timeline, 6));
    assert_ok(gpusync_timeline_signal(timeline, GPUSYNC_MAX_VALUE));
    assert_true(event_value_of(timeline) == GPUSYNC_MAX_VALUE);
    assert_result(gpusync_timeline_signal(timeline, GPUSYNC_MAX_VALUE), GPUSYNC_ERROR_NOT_RISING);
    assert_ok(gpusync_timeline_wait(timeline, GPUSYNC_MAX_VALUE, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_asking_for_the_value_sends_no_message_where_no_other_code_signals(void **state)
{
    gpusync_timeline *timeline;
    uint64_t messages;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 3);
    messages = softmetal_thread_messages();
    assert_int_equal(value_of(timeline), 3);
    assert_int_equal(softmetal_thread_messages(), messages);
    assert_ok(gpusync_timeline_destroy(timeline));
    timeline = shared_timeline_at(r.device, 3);
    messages = softmetal_thread_messages();
    assert_int_equal(value_of(timeline), 3);
    assert_int_equal(softmetal_thread_messages(), messages + 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

/* The host signals 5 while 3 is pending, and then 4: the timeline rises to 5 with that work, or when it was discarded. */
static void signal_below_what_is_signalled(rig *r, bool cancelled)
{
    gpusync_timeline *timeline = timeline_at(r->device, 1), *go = timeline_at(r->device, 0);
    value_job job;
    (void)SUBMIT(r->queue, NO_WORK(r->queue), WAITS(at(go, 1)), SIGNALS(at(timeline, 3))); /* held */
    assert_ok(gpusync_timeline_signal(timeline, 5));
    value_job_start(&job, timeline, 5, GPUSYNC_FOREVER);
    await_sleepers(r->device, 1);
    assert_int_equal(value_of(timeline), 2);
    assert_result(gpusync_timeline_signal(timeline, 2), GPUSYNC_ERROR_NOT_RISING); /* reached */
    assert_result(gpusync_timeline_signal(timeline, 3), GPUSYNC_ERROR_NOT_RISING); /* pending */
    assert_result(gpusync_timeline_signal(timeline, 5), GPUSYNC_ERROR_NOT_RISING); /* the highest that was signalled */
    assert_ok(gpusync_timeline_signal(timeline, 4));
    assert_result(gpusync_timeline_signal(timeline, 5), GPUSYNC_ERROR_NOT_RISING); /* still the highest */
    assert_int_equal(value_of(timeline), 2);
    assert_int_equal(raw_of(timeline), 2);
    if (cancelled) {
        assert_ok(gpusync_cancel_held(r->queue));
        assert_result(value_job_join(&job), GPUSYNC_ERROR_CANCELLED);
    } else {
        assert_ok(gpusync_timeline_signal(go, 1));
        finish_queue(r->queue);
        assert_ok(value_job_join(&job));
        assert_int_equal(value_of(timeline), 5);
        assert_int_equal(raw_of(timeline), 5);
        assert_result(gpusync_timeline_signal(timeline, 4), GPUSYNC_ERROR_NOT_RISING);
        assert_ok(gpusync_timeline_signal(timeline, 6));
    }
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_timeline_destroy(go));
}

static void test_the_host_may_signal_a_value_below_one_that_a_pending_signal_keeps_back(void **state)
{
    int cancelled;
    rig r;
    (void)state;
    for (cancelled = 0; cancelled < 2; cancelled++) {
        open_rig(&r, SOFTMETAL_MANUAL, NULL);
        signal_below_what_is_signalled(&r, cancelled);
        close_rig(&r);
    }
}

/* Of a discarded signal nothing stays: the timeline rises to the highest value that was signalled. */
static void test_a_discarded_signal_lets_the_host_s_values_be_reached(void **state)
{
    gpusync_timeline *timeline;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("no gpusync_encode_signal");
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 1);
    buffer = open_buffer(&r);
    assert_ok(gpusync_encode_signal(r.queue, buffer, at(timeline, 3)));
    assert_ok(gpusync_timeline_signal(timeline, 5));
    assert_ok(gpusync_timeline_signal(timeline, 4));
    assert_int_equal(value_of(timeline), 2);
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    assert_int_equal(value_of(timeline), 5);
    assert_int_equal(raw_of(timeline), 5);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

typedef struct signal_job {
    gpusync_timeline *timeline;
    gate *together;
    uint64_t first, step, last;
    long accepted, refused;
    bool largest_accepted;
} signal_job;

static void *signal_body(void *argument)
{
    signal_job *job = (signal_job *)argument;
    uint64_t value;
    gate_wait(job->together);
    for (value = job->first; value <= job->last; value += job->step) {
        gpusync_result result = gpusync_timeline_signal(job->timeline, value);
        if (result == GPUSYNC_OK) job->accepted++;
        else if (result == GPUSYNC_ERROR_NOT_RISING) job->refused++;
        if (value == job->last) job->largest_accepted = result == GPUSYNC_OK;
    }
    return NULL;
}

static void test_of_signals_at_a_time_the_larger_value_counts(void **state)
{
    enum { THREADS = 4, VALUES = 400 };
    gpusync_timeline *timeline;
    signal_job jobs[THREADS];
    pthread_t threads[THREADS];
    gate together;
    value_job waiter;
    int round, i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    gate_init(&together, THREADS);
    for (round = 0; round < 20; round++) {
        timeline = timeline_at(r.device, 0);
        value_job_start(&waiter, timeline, VALUES, GPUSYNC_FOREVER);
        memset(jobs, 0, sizeof jobs);
        for (i = 0; i < THREADS; i++) {
            jobs[i].timeline = timeline;
            jobs[i].together = &together;
            jobs[i].first = (uint64_t)i + 1;
            jobs[i].step = THREADS;
            jobs[i].last = (uint64_t)(VALUES - THREADS + i + 1);
            threads[i] = start(signal_body, &jobs[i]);
        }
        for (i = 0; i < THREADS; i++) {
            join(threads[i]);
            assert_int_equal(jobs[i].accepted + jobs[i].refused, VALUES / THREADS);
        }
        assert_true(jobs[THREADS - 1].largest_accepted);
        assert_ok(value_job_join(&waiter));
        assert_int_equal(value_of(timeline), VALUES);
        assert_int_equal(event_value_of(timeline), base_of(timeline) + VALUES);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
    gate_destroy(&together);
    close_rig(&r);
}

typedef struct duel {
    gpusync_timeline *timeline;
    uint64_t turn; /* a thread that has signalled adds DUELS + 1 */
    uint64_t accepted;
    bool over;
} duel;

enum { DUELS = 20000 };

/* So that one comes a little later, now the one, now the other. */
static void dawdle(uint64_t rounds)
{
    uint64_t i;
    for (i = 0; i < 20 * rounds; i++) __asm__ __volatile__("");
}

/* Spin, so that both go at the same time, but leave the other a processor. */
static void yield_sometimes(void)
{
    static __thread unsigned rounds;
    if (++rounds % 200 == 0) sched_yield();
}

static void *duel_body(void *argument)
{
    duel *d = (duel *)argument;
    uint64_t turn;
    for (turn = 1; turn <= DUELS; turn++) {
        while (__atomic_load_n(&d->turn, __ATOMIC_SEQ_CST) < turn) {
            if (__atomic_load_n(&d->over, __ATOMIC_SEQ_CST)) return NULL;
            yield_sometimes();
        }
        dawdle(turn % 7);
        if (gpusync_timeline_signal(d->timeline, 2 * turn - 1) == GPUSYNC_OK) d->accepted++; /* the smaller, but first */
        __atomic_fetch_add(&d->turn, DUELS + 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&d->turn, __ATOMIC_SEQ_CST) > DUELS) yield_sometimes();
    }
    return NULL;
}

static void test_the_smaller_of_two_signals_at_the_same_time_never_undoes_the_larger(void **state)
{
    gpusync_timeline *timeline;
    pthread_t thread;
    uint64_t turn, limit = gpusync_now_ns() + SECONDS(5); /* where both have one processor, fewer */
    duel d;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 0);
    memset(&d, 0, sizeof d);
    d.timeline = timeline;
    thread = start(duel_body, &d);
    for (turn = 1; turn <= DUELS && gpusync_now_ns() < limit; turn++) {
        __atomic_store_n(&d.turn, turn, __ATOMIC_SEQ_CST);
        dawdle(turn % 13);
        assert_ok(gpusync_timeline_signal(timeline, 2 * turn));
        while (__atomic_load_n(&d.turn, __ATOMIC_SEQ_CST) <= DUELS) yield_sometimes();
        assert_int_equal(value_of(timeline), 2 * turn);
        __atomic_store_n(&d.turn, turn, __ATOMIC_SEQ_CST);
    }
    __atomic_store_n(&d.over, true, __ATOMIC_SEQ_CST);
    join(thread);
    assert_true(turn > 1);
    assert_int_equal(event_value_of(timeline), base_of(timeline) + 2 * (turn - 1));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

/* The program itself has the work wait for a value of the event, and has it signalled behind the work. 0: neither. */
static gpusync_ticket commit_between(rig *r, void *buffer, void *event, uint64_t wait, uint64_t signal)
{
    gpusync_ticket ticket;
    if (wait && metal4_run()) metal4_wait(r->metal_queue, event, wait);
    else if (wait) metal_encode_wait(buffer, event, wait);
    if (signal && !metal4_run()) metal_encode_signal(buffer, event, signal);
    ticket = commit_to(r->queue, buffer);
    if (signal && metal4_run()) metal4_signal(r->metal_queue, event, signal);
    return ticket;
}

static void test_a_signal_reaches_work_that_waits_on_the_device(void **state)
{
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    void *buffer, *event;
    uint64_t base;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_REAL, NULL);
    timeline = timeline_at(r.device, 0);
    assert_ok(gpusync_timeline_signal(timeline, 9));
    assert_ok(gpusync_timeline_destroy(timeline)); /* the next one begins at a base */
    timeline = timeline_at(r.device, 2);
    buffer = open_buffer(&r);
    event = gpusync_timeline_metal(timeline, &base);
    assert_int_equal(base, 7);
    ticket = commit_between(&r, buffer, event, base + 3, 0);
    assert_result(gpusync_wait(r.queue, ticket, MS(2)), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_signal(timeline, 3));
    assert_ok(gpusync_wait(r.queue, ticket, SECONDS(4)));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

/* -- waiting --------------------------------------------------------------------------------------------- */

static void test_a_value_that_is_reached_costs_no_message_and_no_memory_and_no_count(void **state)
{
    gpusync_wait_options options;
    gpusync_timeline *timeline;
    uint64_t messages, before;
    long calls;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    memset(&options, 0, sizeof options);
    options.blocking = true;
    timeline = shared_timeline_at(r.device, 5); /* even where others signal */
    messages = softmetal_thread_messages();
    calls = r.memory.calls;
    before = device_stats(&r).waits_inline;
    assert_ok(gpusync_timeline_wait(timeline, 0, 0, NULL));
    assert_ok(gpusync_timeline_wait(timeline, 5, MS(1), NULL));
    assert_ok(gpusync_timeline_wait(timeline, 4, GPUSYNC_FOREVER, &options));
    assert_int_equal(softmetal_thread_messages(), messages);
    assert_int_equal(r.memory.calls, calls);
    assert_int_equal(device_stats(&r).waits_inline, before);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_a_wait_that_makes_no_sense_is_refused(void **state)
{
    gpusync_timeline *timeline;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 5);
    assert_result(gpusync_timeline_wait(timeline, GPUSYNC_MAX_VALUE + 1, 0, NULL), GPUSYNC_ERROR_NOT_RISING);
    assert_result(gpusync_timeline_wait(timeline, ~(uint64_t)0, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_NOT_RISING);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static const gpusync_spin time_limited = {UINT32_MAX, UINT32_MAX, 50000, false};
static const gpusync_spin *const budgets[] = {NULL, &no_spin, &time_limited, &endless};

/* The value is not reached: every limit is kept, and nothing stays behind. `blocking` has no effect on a wait for a
   value. */
static void wait_in_vain(rig *r, gpusync_timeline *timeline)
{
    static const uint64_t limits[] = {0, 1, MS(1), MS(3)};
    size_t b, m, l;
    for (b = 0; b < 4; b++)
        for (m = 0; m < 2; m++)
            for (l = 0; l < 4; l++) {
                uint64_t begun = gpusync_now_ns(), unmet = device_stats(r).waits_unmet;
                gpusync_wait_options options;
                memset(&options, 0, sizeof options);
                options.spin = budgets[b];
                options.blocking = m == 1;
                assert_result(gpusync_timeline_wait(timeline, 6, limits[l], &options), GPUSYNC_TIMEOUT);
                assert_true(gpusync_now_ns() - begun >= limits[l]);
                assert_int_equal(device_stats(r).waits_unmet, unmet + 1);
                assert_false(reports(r->device, "a wait for "));
            }
}

static void test_every_budget_keeps_its_time_limit_and_leaves_nothing(void **state)
{
    gpusync_timeline *made, *imported;
    sleep_log log;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    made = timeline_at(r.device, 5);
    imported = timeline_over(r.device, &event);
    wait_in_vain(&r, made);
    wait_in_vain(&r, imported);
    assert_ok(gpusync_timeline_signal(made, 6)); /* no waiter is there to be woken */
    metal_event_signal(event, 6);
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(log.unparks, 0);
    assert_int_equal(softmetal_live("block"), 0);
    assert_int_equal(value_of(imported), 6);
    assert_ok(gpusync_timeline_wait(made, 6, 0, NULL));
    assert_ok(gpusync_timeline_wait(imported, 6, 0, NULL));
    assert_ok(gpusync_timeline_destroy(made));
    assert_ok(gpusync_timeline_destroy(imported));
    metal_release(event);
    close_rig(&r);
}

static void test_every_budget_waits_for_a_signal(void **state)
{
    size_t b, m;
    (void)state;
    for (b = 0; b < 4; b++)
        for (m = 0; m < 2; m++) {
            gpusync_timeline *timeline;
            value_job job;
            rig r;
            open_rig(&r, SOFTMETAL_MANUAL, NULL);
            timeline = timeline_at(r.device, 0);
            memset(&job, 0, sizeof job);
            job.timeline = timeline;
            job.value = 2;
            job.timeout_ns = b % 2 ? GPUSYNC_FOREVER : SECONDS(30);
            job.options.spin = budgets[b];
            job.options.blocking = m == 1;
            job.thread = start(value_job_body, &job);
            assert_ok(gpusync_timeline_signal(timeline, 1));
            assert_ok(gpusync_timeline_signal(timeline, 2));
            assert_ok(value_job_join(&job));
            assert_ok(gpusync_timeline_destroy(timeline));
            close_rig(&r);
        }
}

static void test_a_value_reached_at_the_deadline_is_reached(void **state)
{
    softmetal_timing timing;
    gpusync_timeline *timeline;
    gpusync_result result;
    sleep_log log;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    timeline = timeline_at(r.device, 0);
    log.signal_at_limit = timeline;
    do result = gpusync_timeline_wait(timeline, 5, MS(5), NULL);
    while (log.signal_at_limit); /* it did not even come to park: again */
    assert_ok(result);
    assert_ok(gpusync_timeline_destroy(timeline));
    softmetal_get_timing(&timing);
    timing.event_listener.min_ns = timing.event_listener.max_ns = MS(100); /* too late to tell */
    softmetal_set_timing(&timing);
    timeline = timeline_over(r.device, &event);
    log.event_at_limit = event;
    do result = gpusync_timeline_wait(timeline, 5, MS(5), NULL);
    while (log.event_at_limit);
    assert_ok(result);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

static void test_a_signal_seen_while_spinning_parks_no_thread(void **state)
{
    gpusync_wait_options options;
    gpusync_timeline *timeline;
    sleep_log log;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    timeline = timeline_at(r.device, 0);
    memset(&options, 0, sizeof options);
    options.spin = &endless;
    log.signal_at_yield = timeline;
    assert_ok(gpusync_timeline_wait(timeline, 5, GPUSYNC_FOREVER, &options));
    assert_int_equal(log.yields, 3);
    assert_int_equal(log.parks + log.unparks, 0);
    assert_int_equal(device_stats(&r).waits_spin, 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

/* More than are woken at a time. */
#define MANY_WAITERS 40

static void test_a_signal_wakes_every_sleeper_itself_and_once(void **state)
{
    value_job jobs[MANY_WAITERS];
    gpusync_timeline *timeline;
    sleep_log log;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_at(r.device, 0);
    for (i = 0; i < MANY_WAITERS; i++) value_job_start(&jobs[i], timeline, 1 + (uint64_t)i % 3, GPUSYNC_FOREVER);
    await_sleepers(r.device, MANY_WAITERS);
    assert_ok(gpusync_timeline_signal(timeline, 3));
    assert_int_equal(counted(&log.unparks), MANY_WAITERS);
    for (i = 0; i < MANY_WAITERS; i++) assert_ok(value_job_join(&jobs[i]));
    assert_true(log.parks <= MANY_WAITERS);
    assert_int_equal(device_stats(&r).waits_sleep, MANY_WAITERS);
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_a_sleeper_is_woken_for_its_own_value_only(void **state)
{
    enum { WAITERS = 12 };
    value_job jobs[WAITERS];
    gpusync_timeline *timeline;
    sleep_log log;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_at(r.device, 0);
    for (i = WAITERS - 1; i >= 0; i--) value_job_start(&jobs[i], timeline, 10 * ((uint64_t)i + 1), GPUSYNC_FOREVER);
    await_sleepers(r.device, WAITERS);
    for (i = 0; i < WAITERS; i++) {
        assert_ok(gpusync_timeline_signal(timeline, 10 * (uint64_t)i + 9));
        assert_int_equal(counted(&log.unparks), i);
        assert_ok(gpusync_timeline_signal(timeline, 10 * (uint64_t)i + 10));
        assert_int_equal(counted(&log.unparks), i + 1);
        assert_ok(value_job_join(&jobs[i]));
    }
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static __attribute__((noinline)) void wait_a_little(gpusync_timeline *timeline, uint64_t value)
{
    assert_result(gpusync_timeline_wait(timeline, value, 1, NULL), GPUSYNC_TIMEOUT);
}

static void test_a_signal_after_a_timeout_finds_no_waiter(void **state)
{
    gpusync_timeline *timelines[2];
    sleep_log log;
    void *event;
    uint64_t i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    timelines[0] = timeline_at(r.device, 0);
    timelines[1] = timeline_over(r.device, &event);
    for (i = 1; i <= 50; i++) {
        wait_a_little(timelines[0], i);
        wait_a_little(timelines[1], i);
        assert_int_equal(sleepers_of(r.device), 0);
        assert_ok(gpusync_timeline_signal(timelines[0], i));
        metal_event_signal(event, i);
    }
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(log.unparks, 0);
    assert_ok(gpusync_timeline_destroy(timelines[0]));
    assert_ok(gpusync_timeline_destroy(timelines[1]));
    metal_release(event);
    close_rig(&r);
}

static void test_a_wait_without_memory_to_sleep_with_says_so_and_leaves_nothing(void **state)
{
    gpusync_timeline *timeline;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_at(r.device, 0);
    r.memory.fail_at = 1;
    assert_result(gpusync_timeline_wait(timeline, 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_int_equal(sleepers_of(r.device), 0);
    assert_result(gpusync_timeline_wait(timeline, 1, MS(1), NULL), GPUSYNC_TIMEOUT);
    must_return_within(20); /* else something is still inside of it */
    assert_ok(gpusync_timeline_destroy(timeline));
    has_returned();
    close_rig(&r);
}

/* -- failing --------------------------------------------------------------------------------------------- */

static gpusync_error reason_of(gpusync_result result, int64_t code, const char *text)
{
    gpusync_error reason;
    memset(&reason, 0, sizeof reason);
    reason.result = result;
    reason.failure = GPUSYNC_FAILURE_PAGE_FAULT;
    reason.code = code;
    snprintf(reason.message, sizeof reason.message, "%s", text);
    return reason;
}

static void expect_failure(gpusync_timeline *timeline, const gpusync_error *reason, uint64_t reached)
{
    gpusync_wait_options options;
    gpusync_error error;
    uint64_t value = 99;
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    options.error = &error;
    assert_result(gpusync_timeline_wait(timeline, 0, 0, &options), reason->result); /* reached ones too */
    assert_int_equal(error.code, reason->code);
    assert_string_equal(error.message, reason->message);
    assert_int_equal(error.failure, reason->failure);
    assert_int_equal(error.result, reason->result);
    assert_result(gpusync_timeline_wait(timeline, GPUSYNC_MAX_VALUE, GPUSYNC_FOREVER, NULL), reason->result);
    assert_result(gpusync_timeline_query(timeline, &value), reason->result);
    assert_int_equal(value, reached);
    assert_result(gpusync_timeline_signal(timeline, 1000), reason->result);
    assert_result(gpusync_timeline_signal(timeline, 0), reason->result);
}

static void test_the_first_failure_stays_and_answers_every_call(void **state)
{
    gpusync_error reason = reason_of(GPUSYNC_ERROR_EXECUTION, 42, "first");
    gpusync_error later = reason_of(GPUSYNC_ERROR_CANCELLED, 43, "second");
    gpusync_timeline *timelines[2];
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timelines[0] = timeline_at(r.device, 7);
    timelines[1] = timeline_over(r.device, &event);
    metal_event_signal(event, 7);
    assert_int_equal(value_of(timelines[1]), 7);
    for (i = 0; i < 2; i++) {
        assert_ok(gpusync_timeline_fail(timelines[i], &reason));
        expect_failure(timelines[i], &reason, 7);
        assert_result(gpusync_timeline_fail(timelines[i], &later), GPUSYNC_ERROR_EXECUTION);
        assert_result(gpusync_timeline_fail(timelines[i], NULL), GPUSYNC_ERROR_EXECUTION);
        expect_failure(timelines[i], &reason, 7);
    }
    metal_event_signal(event, 9); /* raises nothing any more */
    expect_failure(timelines[1], &reason, 7);
    assert_true(reports(r.device, "failed"));
    for (i = 0; i < 2; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    metal_release(event);
    close_rig(&r);
}

static void test_a_failure_without_an_error_is_a_failed_execution(void **state)
{
    static const gpusync_result results[] = {GPUSYNC_OK, GPUSYNC_TIMEOUT, GPUSYNC_NOT_READY, GPUSYNC_ERROR_CANCELLED,
                                             GPUSYNC_ERROR_DEVICE_LOST};
    size_t i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (i = 0; i <= sizeof results / sizeof results[0]; i++) {
        gpusync_timeline *timeline = timeline_at(r.device, 0);
        gpusync_wait_options options;
        gpusync_error reason, error;
        gpusync_result expected = GPUSYNC_ERROR_EXECUTION;
        memset(&reason, 0, sizeof reason);
        memset(&options, 0, sizeof options);
        options.error = &error;
        if (i < sizeof results / sizeof results[0]) reason.result = results[i];
        if (reason.result < 0) expected = reason.result;
        assert_ok(gpusync_timeline_fail(timeline, i < sizeof results / sizeof results[0] ? &reason : NULL));
        assert_result(gpusync_timeline_wait(timeline, 1, 0, &options), expected);
        assert_int_equal(error.result, expected);
        assert_int_equal(error.failure, GPUSYNC_FAILURE_OTHER);
        assert_string_equal(error.message, i < LENGTH(results) ? "" : "the program failed the timeline");
        assert_ok(gpusync_timeline_destroy(timeline));
    }
    close_rig(&r);
}

static void test_a_failure_wakes_every_sleeper_with_its_reason(void **state)
{
    gpusync_error reason = reason_of(GPUSYNC_ERROR_CANCELLED, -7, "no more frames");
    value_job jobs[MANY_WAITERS];
    gpusync_timeline *timelines[2];
    sleep_log log;
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timelines[0] = timeline_at(r.device, 0);
    timelines[1] = timeline_over(r.device, &event);
    for (i = 0; i < MANY_WAITERS; i++) value_job_start(&jobs[i], timelines[i % 2], (uint64_t)i + 1, GPUSYNC_FOREVER);
    await_sleepers(r.device, MANY_WAITERS);
    assert_ok(gpusync_timeline_fail(timelines[0], &reason));
    assert_int_equal(counted(&log.unparks), MANY_WAITERS / 2);
    assert_ok(gpusync_timeline_fail(timelines[1], &reason));
    assert_int_equal(counted(&log.unparks), MANY_WAITERS);
    for (i = 0; i < MANY_WAITERS; i++) {
        assert_result(value_job_join(&jobs[i]), GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(jobs[i].error.code, -7);
        assert_string_equal(jobs[i].error.message, "no more frames");
    }
    assert_ok(gpusync_timeline_destroy(timelines[0]));
    assert_ok(gpusync_timeline_destroy(timelines[1]));
    metal_release(event);
    close_rig(&r);
}

static void test_a_failure_lets_waits_on_the_device_go_on(void **state)
{
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    void *buffer, *event;
    uint64_t base;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_REAL, NULL);
    timeline = timeline_at(r.device, 0);
    buffer = open_buffer(&r);
    event = gpusync_timeline_metal(timeline, &base);
    ticket = commit_between(&r, buffer, event, base + 1000, 0);
    assert_result(gpusync_wait(r.queue, ticket, MS(2)), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_fail(timeline, NULL));
    assert_ok(gpusync_wait(r.queue, ticket, SECONDS(4)));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_a_failure_writes_the_event_that_gpusync_made_and_no_imported_one(void **state)
{
    gpusync_timeline_desc desc = {0};
    gpusync_timeline *timeline;
    void *event;
    int shared;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (shared = 0; shared < 2; shared++) {
        timeline = shared ? shared_timeline_at(r.device, 3) : timeline_at(r.device, 3);
        event = metal_retain(gpusync_timeline_metal(timeline, NULL));
        assert_ok(gpusync_timeline_fail(timeline, NULL));
        assert_true(metal_event_value(event) == ~(uint64_t)0);
        assert_ok(gpusync_timeline_destroy(timeline));
        metal_release(event);

        event = metal_shared_event_new(r.metal_device);
        desc.signalled_by_others = shared; /* which an event from elsewhere says of itself */
        metal_event_signal(event, 3);
        assert_ok(timeline_import(r.device, event, &desc, &timeline));
        assert_ok(gpusync_timeline_fail(timeline, NULL));
        assert_int_equal(metal_event_value(event), 3);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_int_equal(metal_event_value(event), 3);
        metal_release(event);
    }
    close_rig(&r);
}

typedef struct fail_job {
    gpusync_timeline *timeline;
    gate *together;
    gpusync_error reason;
    gpusync_result result;
} fail_job;

static void *fail_body(void *argument)
{
    fail_job *job = (fail_job *)argument;
    gate_wait(job->together);
    job->result = gpusync_timeline_fail(job->timeline, &job->reason);
    return NULL;
}

static void test_of_failures_and_signals_at_a_time_one_failure_is_the_first_for_all(void **state)
{
    enum { THREADS = 3 };
    gate together;
    int round, i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    gate_init(&together, THREADS + 1);
    for (round = 0; round < 60; round++) {
        gpusync_timeline *timeline = timeline_at(r.device, 0);
        fail_job jobs[THREADS];
        signal_job signals;
        pthread_t threads[THREADS + 1];
        value_job waiter;
        uint64_t value = 99;
        int first = -1;
        value_job_start(&waiter, timeline, 1000, GPUSYNC_FOREVER);
        memset(&signals, 0, sizeof signals);
        signals.timeline = timeline;
        signals.together = &together;
        signals.first = signals.step = 1;
        signals.last = 30;
        threads[THREADS] = start(signal_body, &signals);
        for (i = 0; i < THREADS; i++) {
            jobs[i].timeline = timeline;
            jobs[i].together = &together;
            jobs[i].reason = reason_of((gpusync_result)(GPUSYNC_ERROR_EXECUTION - i), i, "one of three");
            threads[i] = start(fail_body, &jobs[i]);
        }
        for (i = 0; i <= THREADS; i++) join(threads[i]);
        for (i = 0; i < THREADS; i++)
            if (jobs[i].result == GPUSYNC_OK) {
                assert_int_equal(first, -1);
                first = i;
            }
        assert_in_range(first, 0, THREADS - 1);
        for (i = 0; i < THREADS; i++)
            if (i != first) assert_result(jobs[i].result, jobs[first].reason.result);
        assert_result(value_job_join(&waiter), jobs[first].reason.result);
        assert_int_equal(waiter.error.code, first);
        assert_result(gpusync_timeline_query(timeline, &value), jobs[first].reason.result);
        assert_int_equal(value, signals.accepted); /* 1, 2, 3, ... up to where it failed */
        assert_int_equal(signals.refused, 0);
        assert_true(event_value_of(timeline) == ~(uint64_t)0);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
    gate_destroy(&together);
    close_rig(&r);
}

/* -- signals from outside -------------------------------------------------------------------------------- */

static void encode_and_finish(rig *r, void *event, uint64_t raw)
{
    void *buffer = open_buffer(r);
    (void)commit_between(r, buffer, event, 0, raw);
    softmetal_finish(buffer);
}

static void test_a_value_of_other_code_is_seen_on_the_event_whatever_its_base(void **state)
{
    uint64_t used;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (used = 0; used < 20; used += 9) {
        uint64_t base = 99;
        gpusync_timeline *timeline = timeline_at(r.device, 0);
        void *event;
        value_job job;
        if (used) assert_ok(gpusync_timeline_signal(timeline, used));
        assert_ok(gpusync_timeline_destroy(timeline));
        timeline = shared_timeline_at(r.device, 1);
        event = gpusync_timeline_metal(timeline, &base);
        assert_int_equal(base, used ? used - 1 : 0);
        value_job_start(&job, timeline, 4, GPUSYNC_FOREVER);
        await_sleepers(r.device, 1);
        encode_and_finish(&r, event, base + 3);
        assert_int_equal(value_of(timeline), 3);
        assert_result(gpusync_timeline_wait(timeline, 4, 0, NULL), GPUSYNC_TIMEOUT);
        encode_and_finish(&r, event, base + 4);
        assert_ok(value_job_join(&job));
        assert_result(gpusync_timeline_signal(timeline, 4), GPUSYNC_ERROR_NOT_RISING);
        assert_ok(gpusync_timeline_signal(timeline, 5)); /* the host may go on */
        assert_int_equal(event_value_of(timeline), base + 5);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
    close_rig(&r);
}

static void test_what_other_code_signals_counts_only_where_the_timeline_says_that_it_does(void **state)
{
    gpusync_timeline *alone, *shared;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    alone = timeline_at(r.device, 1);
    shared = shared_timeline_at(r.device, 1);
    raise_behind_its_back(alone, 5);
    raise_behind_its_back(shared, 5);
    assert_int_equal(value_of(alone), 1);
    assert_result(gpusync_timeline_wait(alone, 5, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(softmetal_message_count("notifyListener:atValue:block:"), 0);
    assert_false(reports(r.device, "timeline 1 '': value 1, signalled by others too"));
    assert_ok(gpusync_timeline_wait(shared, 5, 0, NULL)); /* by asking the event */
    assert_int_equal(value_of(shared), 5);
    assert_true(reports(r.device, "timeline 2 '': value 5, signalled by others too"));
    raise_behind_its_back(shared, 9);
    assert_result(gpusync_timeline_signal(shared, 8), GPUSYNC_ERROR_NOT_RISING); /* the event knows better */
    assert_int_equal(value_of(shared), 9);
    assert_ok(gpusync_timeline_signal(shared, 10));
    assert_int_equal(raw_of(shared), 10);
    assert_ok(gpusync_timeline_destroy(alone));
    assert_ok(gpusync_timeline_destroy(shared));
    close_rig(&r);
}

static void test_a_sleeper_is_told_by_an_event_that_had_an_earlier_use(void **state)
{
    gpusync_timeline *timeline;
    sleep_log log;
    value_job job;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_at(r.device, 9);
    assert_ok(gpusync_timeline_destroy(timeline));
    timeline = shared_timeline_at(r.device, 0); /* at a base */
    value_job_start(&job, timeline, 3, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    while (softmetal_live("block") == 0) sched_yield();
    assert_true(softmetal_settle(SECONDS(10))); /* a registration for a value of long ago would be gone now */
    encode_and_finish(&r, gpusync_timeline_metal(timeline, NULL), 9 + 3);
    assert_ok(value_job_join(&job));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_an_imported_timeline_shows_the_event_as_it_is(void **state)
{
    gpusync_timeline *timeline;
    uint64_t base = 99;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    event = metal_shared_event_new(r.metal_device);
    metal_event_signal(event, 41);
    assert_ok(timeline_import(r.device, event, NULL, &timeline));
    assert_ptr_equal(gpusync_timeline_metal(timeline, &base), event);
    assert_int_equal(base, 0);
    assert_true(reports(r.device, "value 41")); /* without being asked first */
    assert_int_equal(value_of(timeline), 41);
    metal_event_signal(event, 43);
    assert_ok(gpusync_timeline_wait(timeline, 42, 0, NULL)); /* by asking the event */
    assert_int_equal(value_of(timeline), 43);
    assert_result(gpusync_timeline_signal(timeline, 43), GPUSYNC_ERROR_NOT_RISING);
    metal_event_signal(event, 50);
    assert_result(gpusync_timeline_signal(timeline, 44), GPUSYNC_ERROR_NOT_RISING); /* the event knows better */
    assert_ok(gpusync_timeline_signal(timeline, 51));
    assert_int_equal(metal_event_value(event), 51);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_int_equal(softmetal_retain_count(event), 1);
    metal_release(event);
    close_rig(&r);
}

static void test_only_shared_events_can_be_imported(void **state)
{
    gpusync_timeline *timeline = (gpusync_timeline *)(void *)&timeline;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    event = metal_get(r.metal_device, "newEvent");
    assert_non_null(event);
    assert_result(timeline_import(r.device, event, NULL, &timeline), GPUSYNC_ERROR_UNSUPPORTED);
    assert_null(timeline);
    assert_result(timeline_import(r.device, r.metal_queue, NULL, &timeline), GPUSYNC_ERROR_UNSUPPORTED);
    assert_int_equal(softmetal_retain_count(event), 1);
    metal_release(event);
    event = metal_shared_event_new(r.metal_device);
    softmetal_hide_selector("notifyListener:atValue:block:");
    assert_result(timeline_import(r.device, event, NULL, &timeline), GPUSYNC_ERROR_UNSUPPORTED);
    metal_release(event);
    close_rig(&r);
}

static void test_the_failure_that_another_wrote_to_an_event_is_a_failure(void **state)
{
    gpusync_timeline *timelines[2];
    uint64_t value;
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timelines[0] = timeline_over(r.device, &event);
    timelines[1] = shared_timeline_at(r.device, 0);
    for (i = 0; i < 2; i++) {
        raise_behind_its_back(timelines[i], 7);
        assert_int_equal(value_of(timelines[i]), 7);
        metal_event_signal(gpusync_timeline_metal(timelines[i], NULL), ~(uint64_t)0);
        assert_result(gpusync_timeline_wait(timelines[i], 8, SECONDS(30), NULL), GPUSYNC_ERROR_EXECUTION);
        assert_result(gpusync_timeline_query(timelines[i], &value), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(value, 7);
        assert_ok(gpusync_timeline_destroy(timelines[i]));
    }
    assert_ok(timeline_import(r.device, event, NULL, &timelines[0])); /* from the start */
    assert_result(gpusync_timeline_wait(timelines[0], 0, 0, NULL), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_timeline_destroy(timelines[0]));
    metal_release(event);
    close_rig(&r);
}

static void *signal_event(void *event)
{
    metal_event_signal(event, 12); /* above what is asked for */
    return NULL;
}

static void test_the_listener_wakes_waiters_for_an_event_that_another_thread_signals(void **state)
{
    gpusync_timeline *timeline;
    sleep_log log;
    value_job jobs[3];
    pthread_t thread;
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_over(r.device, &event);
    for (i = 0; i < 3; i++) value_job_start(&jobs[i], timeline, 10 + (uint64_t)i, GPUSYNC_FOREVER);
    await_sleepers(r.device, 3);
    metal_event_signal(event, 9);
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(counted(&log.unparks), 0);
    thread = start(signal_event, event);
    for (i = 0; i < 3; i++) assert_ok(value_job_join(&jobs[i]));
    join(thread);
    assert_int_equal(counted(&log.unparks), 3);
    assert_int_equal(value_of(timeline), 12);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

static void test_encoded_signals_of_other_queues_wake_a_waiter(void **state)
{
    void *queue, *event, *buffer;
    gpusync_timeline *timeline;
    sleep_log log;
    value_job job;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_REAL, &log);
    log.stubborn = true;
    queue = metal_queue_new(r.metal_device, 8);
    timeline = timeline_over(r.device, &event);
    value_job_start(&job, timeline, 2, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    buffer = metal_queue_command_buffer(queue);
    softmetal_set_duration(buffer, MS(1));
    metal_encode_signal(buffer, event, 2);
    metal_commit(buffer);
    assert_ok(value_job_join(&job));
    metal_wait_until_completed(buffer);
    metal_release(buffer);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    metal_release(queue);
    close_rig(&r);
}

static uint64_t notifications(void) { return softmetal_message_count("notifyListener:atValue:block:"); }

/* Sleepers for these values, one after another: each has come to rest, behind what it asks Metal for, before the next
   one. */
static void sleep_for(rig *r, const sleep_log *log, gpusync_timeline *timeline, value_job *jobs, const uint64_t *values,
                      unsigned count)
{
    long parks = counted(&log->parks);
    unsigned i;
    for (i = 0; i < count; i++) {
        value_job_start(&jobs[i], timeline, values[i], GPUSYNC_FOREVER);
        while (counted(&log->parks) <= parks + (long)i) sched_yield();
    }
    await_sleepers(r->device, count);
}

/* The lowest value is registered for. The block that is called for it registers for the next one, above what the event
   shows. */
static void test_one_registration_at_a_time_serves_all_waiters(void **state)
{
    static const uint64_t values[] = {1, 1, 1, 2, 2, 2, 3, 3, 3}, more[] = {4, 5, 6, 8};
    value_job jobs[9];
    gpusync_timeline *timeline;
    sleep_log log;
    void *event;
    unsigned i, k;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_over(r.device, &event);
    sleep_for(&r, &log, timeline, jobs, values, 9);
    for (i = 0; i < 9; i++) assert_result(gpusync_timeline_wait(timeline, values[i], 1, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(notifications(), 1);
    assert_int_equal(softmetal_live("block"), 1);
    for (i = 1; i <= 3; i++) {
        metal_event_signal(event, i);
        for (k = 0; k < 3; k++) assert_ok(value_job_join(&jobs[3 * i - 3 + k]));
        assert_true(softmetal_settle(SECONDS(10)));
        assert_int_equal(counted(&log.unparks), 3 * i);
        assert_int_equal(notifications(), i < 3 ? i + 1 : 3);
        assert_int_equal(softmetal_live("block"), i < 3);
    }
    sleep_for(&r, &log, timeline, jobs, more, 4);
    metal_event_signal(event, 7); /* past three of them: one block tells of all, and registers for the fourth */
    for (i = 0; i < 3; i++) assert_ok(value_job_join(&jobs[i]));
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(counted(&log.unparks), 12);
    assert_int_equal(notifications(), 5);
    assert_int_equal(softmetal_live("block"), 1);
    metal_event_signal(event, 8);
    assert_ok(value_job_join(&jobs[3]));
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(notifications(), 5);
    assert_int_equal(softmetal_live("block"), 0);
    assert_int_equal(softmetal_live("listener"), 1);
    assert_int_equal(probe_registrations(), 1); /* which is the timeline's */
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_int_equal(probe_registrations(), 0);
    metal_release(event);
    close_rig(&r);
}

/* Waits, callbacks and held work: what is next is the lowest value of any of them. */
static void test_the_next_registration_is_for_whatever_waits_next(void **state)
{
    static const uint64_t values[] = {2, 6};
    gpusync_timeline *timeline;
    value_job jobs[2];
    sleep_log log;
    outcome o = {0};
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_over(r.device, &event);
    sleep_for(&r, &log, timeline, jobs, values, 2);
    on_value(timeline, 4, &o);
    /* STRICT: the host waits. And what goes to the device, which waits itself, is not listened for. */
    (void)SUBMIT(r.queue, NO_WORK(r.queue), WAITS(at(timeline, 3)), .flags = GPUSYNC_UNORDERED);
    (void)SUBMIT(r.queue, NO_WORK(r.queue), WAITS(at(timeline, 5)), .flags = GPUSYNC_STRICT | GPUSYNC_UNORDERED);
    assert_int_equal(notifications(), 1); /* 2 */
    metal_event_signal(event, 2);
    assert_ok(value_job_join(&jobs[0]));
    assert_true(softmetal_settle_listeners(SECONDS(10)));
    assert_int_equal(notifications(), 2); /* 4 */
    metal_event_signal(event, 3);
    assert_true(softmetal_settle_listeners(SECONDS(10)));
    assert_int_equal(notifications(), 2);
    assert_int_equal(calls_of(&o), 0);
    metal_event_signal(event, 4);
    assert_true(softmetal_settle_listeners(SECONDS(10)));
    assert_int_equal(calls_of(&o), 1);
    assert_int_equal(notifications(), 3); /* 5 */
    assert_true(reports(r.device, "held for"));
    metal_event_signal(event, 5);
    assert_true(softmetal_settle_listeners(SECONDS(10)));
    assert_false(reports(r.device, "held for"));
    assert_int_equal(notifications(), 4); /* 6 */
    metal_event_signal(event, 6);
    assert_ok(value_job_join(&jobs[1]));
    assert_true(softmetal_settle_listeners(SECONDS(10)));
    assert_int_equal(notifications(), 4);
    softmetal_finish_queue(r.metal_queue);
    assert_ok(gpusync_queue_wait(r.queue, SECONDS(20)));
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

/* A value below those that are registered for comes before them, so that it is registered for, too. */
static void test_a_lower_value_is_registered_for_besides(void **state)
{
    static const uint64_t values[] = {3, 2, 1};
    gpusync_timeline *timeline;
    value_job jobs[3];
    sleep_log log;
    int at_once;
    unsigned i;
    void *event;
    rig r;
    (void)state;
    for (at_once = 0; at_once < 2; at_once++) {
        open_rig(&r, SOFTMETAL_MANUAL, &log);
        log.stubborn = true;
        timeline = timeline_over(r.device, &event);
        for (i = 0; i < 3; i++) {
            sleep_for(&r, &log, timeline, &jobs[i], &values[i], 1);
            assert_result(gpusync_timeline_wait(timeline, values[i], 1, NULL), GPUSYNC_TIMEOUT);
            assert_int_equal(notifications(), i + 1);
            assert_int_equal(softmetal_live("block"), i + 1);
            assert_int_equal(probe_registrations(), 1);
        }
        for (i = 0; i < 3; i++) assert_result(gpusync_timeline_wait(timeline, values[i], 1, NULL), GPUSYNC_TIMEOUT);
        assert_int_equal(notifications(), 3);
        for (i = at_once ? 3 : 1; i <= 3; i++) {
            metal_event_signal(event, i);
            assert_ok(value_job_join(&jobs[3 - i]));
            assert_int_equal(value_of(timeline), i);
        }
        for (i = 0; i < 2 && at_once; i++) assert_ok(value_job_join(&jobs[2 - i]));
        assert_int_equal(counted(&log.unparks), 3);
        assert_true(softmetal_settle(SECONDS(10)));
        assert_int_equal(softmetal_live("block"), 0);
        if (at_once) assert_int_equal(notifications(), 3);
        assert_ok(gpusync_timeline_destroy(timeline));
        metal_release(event);
        close_rig(&r);
    }
}

static void test_registrations_that_have_served_do_not_pile_up(void **state)
{
    gpusync_timeline *timeline;
    uint64_t i;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_over(r.device, &event);
    for (i = 1; i <= 1000; i++) {
        assert_result(gpusync_timeline_wait(timeline, i, 1, NULL), GPUSYNC_TIMEOUT);
        assert_in_range(notifications(), 1, i);
        metal_event_signal(event, i);
        if (i % 10) continue;
        assert_true(softmetal_settle(SECONDS(10)));
        assert_int_equal(softmetal_live("block"), 0);
        assert_int_equal(probe_registrations(), 1);
    }
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

/* Metal ends the process, on some systems, when too many blocks wait for one event. A value that does not come is
   registered for once, whatever is told of meanwhile: for a sleeper, for waits that give up and come again, and for
   those that were there before lower ones. */
static void test_registrations_for_a_value_that_does_not_come_do_not_pile_up(void **state)
{
    enum { FAR = 1000, FALLING = 20 };
    static const uint64_t far[] = {FAR};
    gpusync_timeline *timeline;
    softmetal_quirks quirks;
    gpusync_point points[2];
    outcome told = {0};
    value_job job;
    sleep_log log;
    uint64_t i, value = 0;
    size_t which;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    softmetal_get_quirks(&quirks);
    quirks.refused_listeners = true;
    softmetal_set_quirks(&quirks);
    timeline = timeline_over(r.device, &event);
    for (i = 0; i < FALLING; i++) on_value(timeline, FALLING - i, &told);
    assert_int_equal(softmetal_live("block"), FALLING);
    while (value < FALLING) {
        metal_event_signal(event, ++value);
        assert_true(softmetal_settle(SECONDS(10)));
        assert_int_equal(softmetal_live("block"), FALLING - value);
        assert_int_equal(notifications(), FALLING);
    }
    for (i = 0; i < 150; i++) {
        points[0] = at(timeline, FAR);
        points[1] = at(timeline, value + 1);
        assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, 1, NULL, &which), GPUSYNC_TIMEOUT);
        assert_in_range(softmetal_live("block"), 1, 2);
        metal_event_signal(event, ++value);
        assert_true(softmetal_settle(SECONDS(10)));
        assert_in_range(softmetal_live("block"), 0, 1);
    }
    log.stubborn = true;
    sleep_for(&r, &log, timeline, &job, far, 1);
    for (i = 0; i < 150; i++) {
        assert_result(gpusync_timeline_wait(timeline, value + 1, 1, NULL), GPUSYNC_TIMEOUT);
        assert_in_range(softmetal_live("block"), 1, 2);
        metal_event_signal(event, ++value);
        assert_true(softmetal_settle(SECONDS(10)));
        assert_int_equal(softmetal_live("block"), 1);
    }
    metal_event_signal(event, FAR);
    assert_ok(value_job_join(&job));
    assert_true(softmetal_settle(SECONDS(10)));
    assert_int_equal(softmetal_live("block"), 0);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

static void test_a_listener_that_comes_after_the_timeline_touches_nothing(void **state)
{
    softmetal_timing timing;
    gpusync_timeline *timeline;
    sleep_log log;
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    softmetal_get_timing(&timing);
    timing.event_listener.min_ns = timing.event_listener.max_ns = MS(5);
    softmetal_set_timing(&timing);
    for (i = 0; i < 6; i++) {
        timeline = timeline_over(r.device, &event);
        assert_result(gpusync_timeline_wait(timeline, 4, 1, NULL), GPUSYNC_TIMEOUT);
        assert_result(gpusync_timeline_wait(timeline, 3, 1, NULL), GPUSYNC_TIMEOUT); /* lower: a second block */
        assert_int_equal(softmetal_live("block"), 2);
        if (i % 2) metal_event_signal(event, 4); /* due, but not yet */
        assert_ok(gpusync_timeline_destroy(timeline));
        if (i % 2 == 0) assert_int_equal(probe_registrations(), 1); /* what the blocks lead to */
        if (i % 3) metal_event_signal(event, 5);
        if (i == 5) { /* not even a device */
            assert_ok(gpusync_queue_destroy(r.queue));
            r.queue = NULL;
            rig_close(&r);
        }
        assert_true(softmetal_settle(SECONDS(10)));
        metal_release(event);
        assert_true(softmetal_settle(SECONDS(10)));
        assert_int_equal(softmetal_live("block"), 0);
        assert_int_equal(probe_registrations(), 0);
        assert_int_equal(notifications(), 2 * (i + 1));
    }
    assert_int_equal(log.unparks, 0);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("listener"), 0);
}

/* One memory for all of them, which the last of the timeline and the blocks gives back. */
static void test_registrations_for_values_that_never_come_go_with_the_event(void **state)
{
    gpusync_timeline *timeline;
    uint64_t i;
    long taken;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    probe_forget_spare_memory(NULL);
    taken = probe_memory.taken;
    timeline = timeline_over(r.device, &event);
    for (i = 40; i >= 1; i--) assert_result(gpusync_timeline_wait(timeline, i, 1, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(softmetal_live("block"), 40);
    for (i = 1; i <= 40; i++) assert_result(gpusync_timeline_wait(timeline, i, 1, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(softmetal_live("block"), 40);
    assert_int_equal(probe_registrations(), 1);
    assert_int_equal(probe_memory.taken - taken, 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_int_equal(softmetal_live("block"), 40); /* no call can take them back from the event */
    assert_int_equal(probe_registrations(), 1);
    metal_release(event);
    assert_int_equal(softmetal_live("block"), 0);
    assert_int_equal(probe_registrations(), 0);
    timeline = shared_timeline_at(r.device, 0); /* the same for an event of our own, */
    assert_non_null(gpusync_timeline_metal(timeline, NULL)); /* which is not used again */
    assert_result(gpusync_timeline_wait(timeline, 1, 1, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(softmetal_live("block"), 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_int_equal(softmetal_live("block"), 0);
    assert_int_equal(probe_registrations(), 0);
    close_rig(&r);
}

static struct {
    void *event;
    pthread_t test;
    int listening, destroying, destroyed, destroyed_early;
} meeting;

static void meet_in_the_listener(void *user, softmetal_phase phase, void *object, const char *selector)
{
    int i;
    (void)user;
    if (phase != SOFTMETAL_BEFORE || object != meeting.event || strcmp(selector, "signaledValue") != 0) return;
    if (pthread_equal(pthread_self(), meeting.test)) return;
    if (__atomic_exchange_n(&meeting.listening, 1, __ATOMIC_SEQ_CST)) return;
    while (!__atomic_load_n(&meeting.destroying, __ATOMIC_SEQ_CST)) sched_yield();
    for (i = 0; i < 2000; i++) sched_yield();
    meeting.destroyed_early = __atomic_load_n(&meeting.destroyed, __ATOMIC_SEQ_CST);
}

static void test_destroy_lets_a_listener_that_is_at_it_finish(void **state)
{
    gpusync_timeline *timeline;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    memset(&meeting, 0, sizeof meeting);
    timeline = timeline_over(r.device, &meeting.event);
    meeting.test = pthread_self();
    assert_result(gpusync_timeline_wait(timeline, 3, 1, NULL), GPUSYNC_TIMEOUT);
    softmetal_set_message_hook(meet_in_the_listener, NULL);
    metal_event_signal(meeting.event, 3);
    while (!__atomic_load_n(&meeting.listening, __ATOMIC_SEQ_CST)) sched_yield();
    __atomic_store_n(&meeting.destroying, 1, __ATOMIC_SEQ_CST);
    assert_ok(gpusync_timeline_destroy(timeline));
    __atomic_store_n(&meeting.destroyed, 1, __ATOMIC_SEQ_CST);
    assert_true(softmetal_settle(SECONDS(10)));
    softmetal_set_message_hook(NULL, NULL);
    assert_false(meeting.destroyed_early);
    metal_release(meeting.event);
    close_rig(&r);
}

/* What wakes a sleeper where no listener can: the sweeper looks at the event. */
static void test_without_a_class_of_listeners_the_sweeper_looks(void **state)
{
    gpusync_timeline *timeline;
    sleep_log log;
    value_job job;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_over(r.device, &event);
    softmetal_hide_class("MTLSharedEventListener");
    value_job_start(&job, timeline, 5, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    metal_event_signal(event, 5);
    while (softmetal_timers() == 0) sched_yield(); /* it is listed first, then it asks for a sweep */
    softmetal_fire_timer();
    assert_ok(value_job_join(&job));
    assert_int_equal(softmetal_live("block"), 0);
    assert_result(gpusync_timeline_wait(timeline, 6, MS(1), NULL), GPUSYNC_TIMEOUT);
    softmetal_hide_class(NULL);
    value_job_start(&job, timeline, 6, GPUSYNC_FOREVER); /* and from here on it is told again */
    while (softmetal_live("block") == 0) sched_yield();
    metal_event_signal(event, 6);
    assert_ok(value_job_join(&job));
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

/* It was taken with the timeline. No timer fires. */
static void test_a_registration_takes_no_memory(void **state)
{
    static const uint64_t values[] = {6, 5, 7};
    gpusync_timeline *timeline;
    value_job jobs[3];
    sleep_log log;
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timeline = timeline_over(r.device, &event);
    probe_forget_spare_memory(NULL);
    probe_memory.fail_after = true;
    PUT(&probe_memory.fail_at, 1);
    sleep_for(&r, &log, timeline, jobs, values, 3);
    metal_event_signal(event, 5);
    assert_ok(value_job_join(&jobs[1]));
    metal_event_signal(event, 6);
    assert_ok(value_job_join(&jobs[0]));
    metal_event_signal(event, 7);
    assert_ok(value_job_join(&jobs[2]));
    PUT(&probe_memory.fail_at, 0);
    assert_true(softmetal_settle(SECONDS(10)));
    for (i = 0; i < 2; i++) assert_result(gpusync_timeline_wait(timeline, 8, 1, NULL), GPUSYNC_TIMEOUT);
    assert_int_equal(softmetal_live("block"), 1);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

/* -- events that are used again -------------------------------------------------------------------------- */

static void test_an_event_is_used_again_and_goes_on_from_where_it_is(void **state)
{
    static const uint64_t initial[] = {0, 3, 0, 500, 2, 0};
    uint64_t raw = 0;
    void *event = NULL;
    size_t i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (i = 0; i < sizeof initial / sizeof initial[0]; i++) {
        gpusync_timeline *timeline = timeline_at(r.device, initial[i]);
        if (event) assert_ptr_equal(probe_event_of(timeline, NULL), event);
        event = probe_event_of(timeline, NULL);
        if (raw < initial[i]) raw = initial[i];
        assert_int_equal(event_value_of(timeline), raw);
        assert_int_equal(value_of(timeline), initial[i]);
        assert_int_equal(base_of(timeline), raw - initial[i]);
        assert_result(gpusync_timeline_wait(timeline, initial[i] + 1, 0, NULL), GPUSYNC_TIMEOUT);
        assert_result(gpusync_timeline_signal(timeline, initial[i]), GPUSYNC_ERROR_NOT_RISING);
        assert_ok(gpusync_timeline_signal(timeline, initial[i] + 2));
        raw += 2;
        assert_int_equal(event_value_of(timeline), raw);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_int_equal(softmetal_live("shared_event"), 1);
        assert_int_equal(softmetal_message_count("newSharedEvent"), 1);
    }
    close_rig(&r);
}

typedef struct taker {
    gpusync_device *device;
    gpusync_timeline *timeline;
} taker;

static void take_an_event(void *user)
{
    taker *other = (taker *)user;
    other->timeline = timeline_new(other->device);
}

static void test_two_timelines_that_are_made_at_once_do_not_get_one_event(void **state)
{
    bool acted = true;
    int n;
    (void)state;
    for (n = 1; acted; n++) {
        gpusync_timeline *timeline;
        taker other;
        rig r;
        open_rig(&r, SOFTMETAL_MANUAL, NULL);
        assert_ok(gpusync_timeline_destroy(timeline_new(r.device))); /* its event is kept: for one of the two */
        other.device = r.device;
        other.timeline = NULL;
        probe_at_each(n, take_an_event, &other);
        timeline = timeline_new(r.device);
        acted = probe_has_acted();
        assert_int_equal(acted, other.timeline != NULL);
        if (acted) assert_ptr_not_equal(probe_event_of(timeline, NULL), probe_event_of(other.timeline, NULL));
        assert_int_equal(softmetal_live("shared_event"), 1 + acted);
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_ok(gpusync_timeline_destroy(other.timeline));
        close_rig(&r);
    }
    assert_true(n > 2);
}

enum { HAND_OUT, FAIL, USE_UP, REASONS_TO_DROP };

static void test_an_event_that_others_may_know_or_that_is_used_up_is_not_used_again(void **state)
{
    int reason;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (reason = 0; reason < REASONS_TO_DROP; reason++) {
        gpusync_timeline *timeline = timeline_at(r.device, 5);
        assert_ok(gpusync_timeline_destroy(timeline));
        timeline = timeline_at(r.device, 1); /* over the same event, with a base */
        assert_int_equal(base_of(timeline), 4);
        if (reason == HAND_OUT) assert_non_null(gpusync_timeline_metal(timeline, NULL));
        if (reason == FAIL) assert_ok(gpusync_timeline_fail(timeline, NULL));
        if (reason == USE_UP) assert_ok(gpusync_timeline_signal(timeline, GPUSYNC_MAX_VALUE));
        assert_ok(gpusync_timeline_destroy(timeline));
        assert_int_equal(softmetal_live("shared_event"), 0);
    }
    close_rig(&r);
}

/* However high an event of the pool stands: GPUSYNC_MAX_VALUE of the timeline over it is a value of the event, and not the
   one that means failure. The GPU, which compares the event's values, keeps to the order. */
static void test_no_value_of_a_timeline_wraps_around_on_an_event_that_stands_high(void **state)
{
    static const uint64_t stands[] = {GPUSYNC_MAX_VALUE / 2, GPUSYNC_MAX_VALUE - 2, GPUSYNC_MAX_VALUE - 1,
                                      GPUSYNC_MAX_VALUE};
    size_t i, round;
    rig r;
    (void)state;
    for (i = 0; i < LENGTH(stands); i++) {
        open_rig(&r, SOFTMETAL_MANUAL, NULL);
        assert_ok(gpusync_timeline_destroy(timeline_at(r.device, stands[i])));
        for (round = 0; round < 5; round++) { /* each begins where the one before has left the event */
            gpusync_timeline *timeline = timeline_at(r.device, round % 2);
            uint64_t base = base_of(timeline);
            assert_true(base < ~(uint64_t)0 - GPUSYNC_MAX_VALUE);
            assert_int_equal(event_value_of(timeline), base + round % 2);
            assert_ok(gpusync_timeline_signal(timeline, 2));
            if (round % 2) assert_ok(gpusync_timeline_signal(timeline, GPUSYNC_MAX_VALUE / 3));
            assert_ok(gpusync_timeline_destroy(timeline));
        }
        close_rig(&r);
    }
}

static void test_work_waits_for_the_highest_value_on_an_event_that_stands_high(void **state)
{
    gpusync_timeline *timeline;
    gpusync_ticket_info infos[2];
    gpusync_ticket first, second;
    gpusync_queue *other;
    void *buffer;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_REAL, NULL);
    other = queue_new(r.device);
    assert_ok(gpusync_timeline_destroy(timeline_at(r.device, GPUSYNC_MAX_VALUE - 1)));
    timeline = timeline_at(r.device, 0);
    buffer = buffer_of(r.queue);
    softmetal_set_duration(buffer, MS(5));
    first = SUBMIT(r.queue, BUFFERS(buffer), SIGNALS(at(timeline, GPUSYNC_MAX_VALUE)));
    second = SUBMIT(other, NO_WORK(other), WAITS(at(timeline, GPUSYNC_MAX_VALUE)));
    assert_ok(gpusync_wait(r.queue, first, SECONDS(20)));
    assert_ok(gpusync_wait(other, second, SECONDS(20)));
    assert_ok(gpusync_get_info(r.queue, first, &infos[0]));
    assert_ok(gpusync_get_info(other, second, &infos[1]));
    assert_true(infos[1].gpu_end_s >= infos[0].gpu_start_s + 0.004); /* the work in front of the signal takes 5 ms */
    assert_ok(gpusync_queue_destroy(other));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static void test_an_imported_event_is_not_used_for_other_timelines(void **state)
{
    gpusync_timeline *timeline;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_over(r.device, &event);
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_int_equal(softmetal_retain_count(event), 1);
    timeline = timeline_at(r.device, 0);
    assert_ptr_not_equal(probe_event_of(timeline, NULL), event);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

static void test_a_bounded_number_of_events_is_kept(void **state)
{
    enum { TIMELINES = 100 };
    gpusync_timeline *timelines[TIMELINES];
    int round, i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (round = 0; round < 2; round++) {
        for (i = 0; i < TIMELINES; i++) timelines[i] = timeline_at(r.device, (uint64_t)i);
        for (i = 0; i < TIMELINES; i++) assert_int_equal(value_of(timelines[i]), i);
        for (i = 0; i < TIMELINES; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
        assert_in_range(softmetal_live("shared_event"), 1, 32);
    }
    close_rig(&r); /* and none of them outlives the device */
}

static void test_a_timeline_that_could_not_be_made_costs_no_event(void **state)
{
    static const gpusync_timeline_desc shared = {.signalled_by_others = true};
    gpusync_timeline *timeline;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    r.memory.fail_at = 1;
    assert_result(gpusync_timeline_create(r.device, NULL, &timeline), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_null(timeline);
    assert_in_range(softmetal_live("shared_event"), 0, 1);
    softmetal_fail_creation(1, false);
    if (softmetal_live("shared_event") == 0)
        assert_result(gpusync_timeline_create(r.device, NULL, &timeline), GPUSYNC_ERROR_METAL_NIL);
    assert_null(timeline);
    softmetal_fail_creation(0, false);
    event = metal_shared_event_new(r.metal_device);
    r.memory.fail_at = 1;
    assert_result(timeline_import(r.device, event, NULL, &timeline), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_null(timeline);
    assert_int_equal(softmetal_retain_count(event), 1);
    PUT(&probe_memory.fail_at, 1); /* of what Metal's blocks lead to */
    assert_result(timeline_import(r.device, event, NULL, &timeline), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_null(timeline);
    assert_int_equal(softmetal_retain_count(event), 1);
    metal_release(event);
    PUT(&probe_memory.fail_at, 1);
    assert_result(gpusync_timeline_create(r.device, &shared, &timeline), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_null(timeline);
    PUT(&probe_memory.fail_at, 0);
    assert_in_range(softmetal_live("shared_event"), 0, 1);
    assert_int_equal(probe_registrations(), 0);
    assert_ok(gpusync_timeline_destroy(timeline_at(r.device, 0)));
    close_rig(&r);
}

/* -- the end --------------------------------------------------------------------------------------------- */

static void test_destroy_ends_the_waits_that_sleep(void **state)
{
    value_job jobs[MANY_WAITERS];
    gpusync_timeline *timelines[2];
    sleep_log log;
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timelines[0] = timeline_at(r.device, 0);
    timelines[1] = timeline_over(r.device, &event);
    for (i = 0; i < MANY_WAITERS; i++) value_job_start(&jobs[i], timelines[i % 2], 1 + (uint64_t)i / 2,
                                                       GPUSYNC_FOREVER);
    await_sleepers(r.device, MANY_WAITERS);
    assert_ok(gpusync_timeline_destroy(timelines[0]));
    assert_ok(gpusync_timeline_destroy(timelines[1]));
    for (i = 0; i < MANY_WAITERS; i++) assert_result(value_job_join(&jobs[i]), GPUSYNC_ERROR_DESTROYED);
    assert_true(counted(&log.unparks) >= MANY_WAITERS); /* a destroy that waits for long asks them again */
    metal_release(event);
    close_rig(&r);
}

static void test_destroy_ends_a_wait_that_spins(void **state)
{
    gpusync_timeline *timeline;
    sleep_log log;
    value_job job;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    timeline = timeline_at(r.device, 0);
    value_job_start_spinning(&job, timeline, 1, GPUSYNC_FOREVER, &endless);
    while (counted(&log.yields) < 10) sched_yield();
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_result(value_job_join(&job), GPUSYNC_ERROR_DESTROYED);
    close_rig(&r);
}

static struct {
    gpusync_timeline *timeline;
    pthread_t thread;
    gpusync_result result;
    unsigned yields; /* of the thread that destroys */
    bool begun, slept, done;
} amid;

static void *destroy_amid_body(void *unused)
{
    amid.result = gpusync_timeline_destroy(amid.timeline);
    PUT(&amid.done, true);
    return unused;
}

/* Until it has returned, or waits. */
static void destroy_amid(void *unused)
{
    PUT(&amid.begun, true);
    amid.thread = start(destroy_amid_body, unused);
    while (!GET(&amid.done) && GET(&amid.yields) < 50) sched_yield();
}

static void yield_amid(void *user)
{
    (void)user;
    COUNT(&amid.yields);
    sched_yield();
}

/* The waiting thread has come to its sleep, and was at no such point before. */
static void park_amid(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    if (!GET(&amid.begun)) {
        (void)probe_has_acted();
        amid.slept = true;
        destroy_amid(NULL);
    }
    thread_park(waiter, deadline_ns);
}

static void unpark_amid(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

/* No wait sleeps on in a timeline that goes, wherever it is when that begins. */
static void test_destroy_may_come_at_every_point_of_a_wait(void **state)
{
    gpusync_hooks hooks = {yield_amid, park_amid, unpark_amid, NULL};
    int way, place;
    (void)state;
    for (way = 0; way < 3; way++) {
        place = 0;
        do {
            gpusync_timeline *other;
            gpusync_point points[2];
            gpusync_result result;
            void *event = NULL;
            rig r;
            rig_open_sleepy(&r, SOFTMETAL_MANUAL, &hooks, queue_desc_of(0, 0));
            memset(&amid, 0, sizeof amid);
            other = timeline_new(r.device);
            amid.timeline = way == 2 ? timeline_over(r.device, &event) : timeline_new(r.device);
            points[0] = at(other, 1);
            points[1] = at(amid.timeline, 1);
            probe_at_each(++place, destroy_amid, NULL);
            must_return_within(60);
            result = way == 1 ? gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL)
                              : gpusync_timeline_wait(amid.timeline, 1, GPUSYNC_FOREVER, NULL);
            has_returned();
            (void)probe_has_acted();
            assert_true(amid.begun);
            join(amid.thread);
            assert_ok(amid.result);
            assert_result(result, GPUSYNC_ERROR_DESTROYED);
            assert_ok(gpusync_timeline_destroy(other));
            if (event) metal_release(event);
            rig_close(&r);
        } while (!amid.slept);
        assert_true(place > 2);
    }
}

static void test_a_device_stays_while_it_has_timelines(void **state)
{
    gpusync_timeline *timelines[2];
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timelines[0] = timeline_at(r.device, 0);
    timelines[1] = timeline_over(r.device, &event);
    assert_ok(gpusync_queue_destroy(r.queue));
    r.queue = NULL;
    assert_result(gpusync_device_destroy(r.device), GPUSYNC_ERROR_IN_USE);
    assert_ok(gpusync_timeline_destroy(timelines[0]));
    assert_result(gpusync_device_destroy(r.device), GPUSYNC_ERROR_IN_USE);
    assert_ok(gpusync_timeline_signal(timelines[1], 1));
    assert_ok(gpusync_timeline_destroy(timelines[1]));
    metal_release(event);
    close_rig(&r);
}

static void lose_device(rig *r)
{
    void *buffer;
    commit_empty(r, &buffer);
    softmetal_fail(buffer, NULL, 4, NULL);
    softmetal_finish(buffer);
    assert_true(gpusync_device_is_lost(r->device));
}

/* The loss ends no wait: the host, and what others do, still raise a timeline. But there is no new one. */
static void test_a_timeline_of_a_lost_device_can_be_signalled(void **state)
{
    value_job jobs[3];
    gpusync_timeline *timelines[3], *none = NULL;
    sleep_log log;
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    timelines[0] = timeline_at(r.device, 5);
    timelines[1] = timeline_at(r.device, 5);
    timelines[2] = timeline_over(r.device, &event);
    for (i = 0; i < 3; i++) value_job_start(&jobs[i], timelines[i], 6, GPUSYNC_FOREVER);
    await_sleepers(r.device, 3);
    lose_device(&r);
    assert_int_equal(counted(&log.unparks), 0);
    assert_result(gpusync_timeline_create(r.device, NULL, &none), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(none);
    assert_result(timeline_import(r.device, event, NULL, &none), GPUSYNC_ERROR_DEVICE_LOST);
    assert_null(none);
    assert_result(gpusync_timeline_wait(timelines[0], 6, 0, NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_timeline_wait(timelines[0], 6, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_wait(timelines[0], 5, 0, NULL));
    assert_ok(gpusync_timeline_signal(timelines[0], 6));
    assert_ok(value_job_join(&jobs[0]));
    assert_int_equal(event_value_of(timelines[0]), 6);
    assert_result(gpusync_timeline_signal(timelines[0], 6), GPUSYNC_ERROR_NOT_RISING);
    assert_int_equal(value_of(timelines[0]), 6);
    metal_event_signal(event, 7);
    assert_ok(value_job_join(&jobs[2]));
    assert_int_equal(value_of(timelines[2]), 7);
    assert_ok(gpusync_timeline_fail(timelines[1], NULL));
    assert_result(value_job_join(&jobs[1]), GPUSYNC_ERROR_EXECUTION);
    for (i = 0; i < 3; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    assert_true(softmetal_settle_listeners(SECONDS(10)));
    assert_int_equal(owners_of(event), 1);
    metal_release(event);
    close_rig(&r);
}

/* A second after the loss every timeline fails; one that has failed keeps its reason. */
static void test_giving_up_fails_every_timeline_of_a_lost_device(void **state)
{
    gpusync_error broken = reason_of(GPUSYNC_ERROR_CANCELLED, -7, "no more frames"), error;
    gpusync_wait_options options = {.error = &error};
    value_job jobs[MANY_WAITERS];
    gpusync_timeline *timelines[5];
    uint64_t value;
    sleep_log log;
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, &log);
    log.stubborn = true;
    for (i = 0; i < 2; i++) timelines[i] = timeline_at(r.device, 5);
    timelines[2] = shared_timeline_at(r.device, 5);
    timelines[3] = timeline_over(r.device, &event);
    timelines[4] = timeline_at(r.device, 7);
    assert_ok(gpusync_timeline_fail(timelines[4], &broken));
    for (i = 0; i < MANY_WAITERS; i++) value_job_start(&jobs[i], timelines[i % 4], 6 + (uint64_t)i, GPUSYNC_FOREVER);
    await_sleepers(r.device, MANY_WAITERS);
    lose_device(&r);
    assert_int_equal(sleepers_of(r.device), MANY_WAITERS);
    probe_give_up_lost(r.device);
    for (i = 0; i < MANY_WAITERS; i++) {
        assert_result(value_job_join(&jobs[i]), GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(jobs[i].error.result, GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_not_equal(jobs[i].error.message[0], 0);
    }
    metal_event_signal(event, 100); /* too late */
    for (i = 0; i < 4; i++) {
        memset(&error, 0, sizeof error);
        assert_result(gpusync_timeline_wait(timelines[i], 0, 0, &options), GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(error.result, GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(gpusync_timeline_wait(timelines[i], 99, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(gpusync_timeline_signal(timelines[i], 99), GPUSYNC_ERROR_DEVICE_LOST);
        assert_result(gpusync_timeline_fail(timelines[i], &broken), GPUSYNC_ERROR_DEVICE_LOST);
        value = 99;
        assert_result(gpusync_timeline_query(timelines[i], &value), GPUSYNC_ERROR_DEVICE_LOST);
        assert_int_equal(value, i == 3 ? 0 : 5);
        if (i < 3) assert_true(event_value_of(timelines[i]) == UINT64_MAX); /* what the GPU waits for there ends */
    }
    assert_int_equal(metal_event_value(event), 100);
    expect_failure(timelines[4], &broken, 7);
    for (i = 0; i < 5; i++) assert_ok(gpusync_timeline_destroy(timelines[i]));
    assert_true(softmetal_settle_listeners(SECONDS(10)));
    assert_int_equal(owners_of(event), 1);
    metal_release(event);
    close_rig(&r);
}

static void note_result(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    PUT((int *)user, (int)result);
}

/* What others have signalled by then has been reached, though Metal told nobody: gpusync looks before it gives up. */
static void test_a_value_that_came_unseen_is_reached_before_its_timeline_is_given_up(void **state)
{
    softmetal_quirks quirks;
    gpusync_timeline *timeline;
    int reached = 77, missed = 77;
    uint64_t value;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_over(r.device, &event);
    assert_ok(gpusync_on_done(at(timeline, 6), note_result, &reached));
    assert_ok(gpusync_on_done(at(timeline, 7), note_result, &missed));
    lose_device(&r);
    softmetal_get_quirks(&quirks);
    quirks.deaf_listeners = true;
    softmetal_set_quirks(&quirks);
    metal_event_signal(event, 6);
    probe_give_up_lost(r.device);
    assert_true(softmetal_settle_listeners(SECONDS(10)));
    assert_result((gpusync_result)GET(&reached), GPUSYNC_OK);
    assert_result((gpusync_result)GET(&missed), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_timeline_query(timeline, &value), GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(value, 6);
    assert_ok(gpusync_timeline_destroy(timeline));
    metal_release(event);
    close_rig(&r);
}

/* -- insight --------------------------------------------------------------------------------------------- */

static void test_the_report_tells_of_timelines_and_their_waiters(void **state)
{
    gpusync_timeline_desc desc;
    gpusync_timeline *made, *imported;
    value_job jobs[2];
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    memset(&desc, 0, sizeof desc);
    desc.label = "frames";
    desc.initial_value = 16;
    assert_ok(gpusync_timeline_create(r.device, &desc, &made));
    desc.label = "decoder";
    event = metal_shared_event_new(r.metal_device);
    metal_event_signal(event, 70);
    assert_ok(timeline_import(r.device, event, &desc, &imported));
    value_job_start(&jobs[0], made, 17, GPUSYNC_FOREVER);
    value_job_start(&jobs[1], imported, 71, GPUSYNC_FOREVER);
    await_sleepers(r.device, 2);
    assert_true(reports(r.device, "timeline 1 'frames': value 16"));
    assert_true(reports(r.device, "a wait for value 17, asleep for"));
    assert_true(reports(r.device, " ms: no other work is to signal it\n"));
    assert_true(reports(r.device, "timeline 2 'decoder': value 70, signalled by others too"));
    assert_true(reports(r.device, "a wait for value 71, asleep for"));
    assert_true(reports(r.device, " ms: others signal it\n"));
    assert_ok(gpusync_timeline_signal(made, 17));
    assert_ok(gpusync_timeline_fail(imported, NULL));
    assert_ok(value_job_join(&jobs[0]));
    assert_result(value_job_join(&jobs[1]), GPUSYNC_ERROR_EXECUTION);
    assert_true(reports(r.device, "timeline 1 'frames': value 17"));
    assert_true(reports(r.device, "timeline 2 'decoder': failed"));
    assert_false(reports(r.device, "a wait for "));
    assert_ok(gpusync_timeline_destroy(made));
    assert_false(reports(r.device, "frames"));
    assert_ok(gpusync_timeline_destroy(imported));
    metal_release(event);
    close_rig(&r);
}

static void test_every_wait_is_counted_once_with_the_device(void **state)
{
    gpusync_timeline *timeline;
    gpusync_stats stats;
    value_job job;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    timeline = timeline_over(r.device, &event);
    metal_event_signal(event, 1);
    assert_ok(gpusync_timeline_wait(timeline, 1, 0, NULL)); /* status */
    assert_ok(gpusync_timeline_wait(timeline, 1, 0, NULL)); /* inline, and not counted */
    assert_result(gpusync_timeline_wait(timeline, 2, 0, NULL), GPUSYNC_TIMEOUT); /* unmet */
    assert_result(gpusync_timeline_wait(timeline, 2, MS(1), NULL), GPUSYNC_TIMEOUT); /* unmet */
    value_job_start(&job, timeline, 2, GPUSYNC_FOREVER); /* sleep */
    await_sleepers(r.device, 1);
    metal_event_signal(event, 2);
    assert_ok(value_job_join(&job));
    stats = device_stats(&r);
    assert_int_equal(stats.waits_inline, 0);
    assert_int_equal(stats.waits_status, 1);
    assert_int_equal(stats.waits_spin, 0);
    assert_int_equal(stats.waits_sleep, 1);
    assert_int_equal(stats.waits_unmet, 2);
    stats = stats_of(r.queue);
    assert_int_equal(stats.waits_inline + stats.waits_status + stats.waits_sleep + stats.waits_unmet, 0);
    assert_ok(gpusync_timeline_destroy(timeline));
    stats = device_stats(&r);
    assert_int_equal(stats.waits_sleep, 1); /* they outlive the timeline */
    metal_release(event);
    close_rig(&r);
}

static struct {
    gpusync_timeline *timeline;
    gpusync_result reached, waited, polled, destroyed, signalled;
    int lines;
} in_log;

static void use_timelines_in_log(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
    in_log.lines++;
    in_log.reached = gpusync_timeline_wait(in_log.timeline, 1, GPUSYNC_FOREVER, NULL);
    in_log.waited = gpusync_timeline_wait(in_log.timeline, 2, GPUSYNC_FOREVER, NULL);
    in_log.polled = gpusync_timeline_wait(in_log.timeline, 2, 0, NULL);
    in_log.destroyed = gpusync_timeline_destroy(in_log.timeline);
    in_log.signalled = gpusync_timeline_signal(in_log.timeline, 2);
}

static void test_inside_the_log_hook_a_wait_that_would_have_to_wait_says_so(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    void *buffer;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&in_log, 0, sizeof in_log);
    device_desc.log = use_timelines_in_log;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    in_log.timeline = timeline_at(r.device, 1);
    commit_empty(&r, &buffer);
    softmetal_fail(buffer, NULL, 1, NULL);
    softmetal_finish(buffer);
    assert_int_equal(in_log.lines, 1);
    assert_ok(in_log.reached);
    assert_result(in_log.waited, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_result(in_log.polled, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_result(in_log.destroyed, GPUSYNC_ERROR_WOULD_DEADLOCK);
    assert_ok(in_log.signalled);
    assert_int_equal(value_of(in_log.timeline), 2);
    assert_ok(gpusync_timeline_destroy(in_log.timeline));
    close_rig(&r);
}

typedef struct reporter {
    rig *r;
    int stop;
    bool seen_half_made;
} reporter;

static void *report_all_the_time(void *argument)
{
    reporter *reporting = (reporter *)argument;
    while (!__atomic_load_n(&reporting->stop, __ATOMIC_SEQ_CST))
        if (reports(reporting->r->device, "'made': value 0")) reporting->seen_half_made = true;
    return NULL;
}

static void test_a_report_sees_a_timeline_as_it_was_made_or_not_at_all(void **state)
{
    reporter reporting = {NULL, 0, false};
    gpusync_timeline_desc desc;
    pthread_t thread;
    void *event;
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    event = metal_shared_event_new(r.metal_device);
    metal_event_signal(event, 5);
    memset(&desc, 0, sizeof desc);
    desc.label = "made";
    desc.initial_value = 5;
    reporting.r = &r;
    thread = start(report_all_the_time, &reporting);
    for (i = 0; i < 300; i++) {
        gpusync_timeline *made, *imported;
        assert_ok(gpusync_timeline_create(r.device, &desc, &made));
        assert_ok(timeline_import(r.device, event, NULL, &imported));
        assert_ok(gpusync_timeline_destroy(made));
        assert_ok(gpusync_timeline_destroy(imported));
    }
    __atomic_store_n(&reporting.stop, 1, __ATOMIC_SEQ_CST);
    join(thread);
    assert_false(reporting.seen_half_made);
    metal_release(event);
    close_rig(&r);
}

/* -- together -------------------------------------------------------------------------------------------- */

static void test_host_and_device_take_turns(void **state)
{
    gpusync_timeline *timeline;
    uint64_t base, turn;
    void *event;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_REAL, NULL);
    timeline = shared_timeline_at(r.device, 0);
    event = gpusync_timeline_metal(timeline, &base);
    for (turn = 1; turn < 200; turn += 2) {
        void *buffer = open_buffer(&r);
        (void)commit_between(&r, buffer, event, base + turn, base + turn + 1);
        assert_ok(gpusync_timeline_signal(timeline, turn));
        assert_ok(gpusync_timeline_wait(timeline, turn + 1, SECONDS(4), NULL));
        assert_int_equal(value_of(timeline), turn + 1);
    }
    assert_ok(gpusync_queue_wait(r.queue, SECONDS(10)));
    assert_ok(gpusync_timeline_destroy(timeline));
    close_rig(&r);
}

static int handed_over;

static void *hand_over(void *argument)
{
    handed_over = 42; /* plain: the signal orders it */
    assert_ok(gpusync_timeline_signal((gpusync_timeline *)argument, 1));
    return NULL;
}

static void test_what_was_done_before_a_signal_is_seen_after_the_wait(void **state)
{
    int i;
    rig r;
    (void)state;
    open_rig(&r, SOFTMETAL_MANUAL, NULL);
    for (i = 0; i < 50; i++) {
        gpusync_timeline *timeline = timeline_at(r.device, 0);
        pthread_t thread;
        handed_over = 0;
        thread = start(hand_over, timeline);
        if (i % 2) assert_ok(gpusync_timeline_wait(timeline, 1, GPUSYNC_FOREVER, NULL));
        else
            while (gpusync_timeline_wait(timeline, 1, 0, NULL) != GPUSYNC_OK) sched_yield();
        assert_int_equal(handed_over, 42);
        join(thread);
        assert_ok(gpusync_timeline_destroy(timeline));
    }
    close_rig(&r);
}

typedef struct crowd {
    gpusync_timeline *timelines[3];
    void *event; /* of the last */
    int *through; /* so many have done their part */
    uint64_t seed;
} crowd;

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

#define CROWD_END 1000000

static void *crowd_body(void *argument)
{
    crowd *c = (crowd *)argument;
    uint64_t last[3] = {0, 0, 0};
    int i;
    for (i = 0; i < 400; i++) {
        size_t which = next_random(&c->seed) % 3;
        gpusync_timeline *timeline = c->timelines[which];
        uint64_t value = last[which] + next_random(&c->seed) % 3, now = 0;
        gpusync_result result;
        switch (next_random(&c->seed) % 4) {
        case 0:
            result = gpusync_timeline_signal(timeline, value);
            assert_true(result == GPUSYNC_OK || result == GPUSYNC_ERROR_NOT_RISING);
            break;
        case 1:
            if (which == 2) metal_event_signal(c->event, value);
            break;
        default:
            result = gpusync_timeline_wait(timeline, value, next_random(&c->seed) % 200000, NULL);
            assert_true(result == GPUSYNC_OK || result == GPUSYNC_TIMEOUT);
            now = value_of(timeline);
            if (result == GPUSYNC_OK) assert_true(now >= value);
        }
        now = value_of(timeline);
        assert_true(now >= last[which]); /* it never sinks */
        last[which] = now;
    }
    __atomic_fetch_add(c->through, 1, __ATOMIC_SEQ_CST);
    for (i = 0; i < 3; i++) assert_ok(gpusync_timeline_wait(c->timelines[i], CROWD_END, GPUSYNC_FOREVER, NULL));
    return NULL;
}

static void test_a_crowd_that_signals_and_waits_at_random_loses_no_wake_up(void **state)
{
    enum { THREADS = 6 };
    int round, i;
    (void)state;
    for (round = 0; round < 4; round++) {
        crowd crowds[THREADS];
        pthread_t threads[THREADS];
        int through = 0;
        sleep_log log;
        rig r;
        open_rig(&r, SOFTMETAL_MANUAL, &log);
        memset(crowds, 0, sizeof crowds);
        crowds[0].timelines[0] = timeline_at(r.device, 0);
        crowds[0].timelines[1] = timeline_at(r.device, 0);
        crowds[0].timelines[2] = timeline_over(r.device, &crowds[0].event);
        log.stubborn = true; /* a lost one would hang */
        crowds[0].through = &through;
        for (i = 1; i < THREADS; i++) crowds[i] = crowds[0];
        for (i = 0; i < THREADS; i++) {
            crowds[i].seed = (uint64_t)(round * THREADS + i);
            threads[i] = start(crowd_body, &crowds[i]);
        }
        while (__atomic_load_n(&through, __ATOMIC_SEQ_CST) < THREADS) sched_yield();
        await_sleepers(r.device, THREADS);
        assert_ok(gpusync_timeline_signal(crowds[0].timelines[0], CROWD_END));
        assert_ok(gpusync_timeline_signal(crowds[0].timelines[1], CROWD_END));
        metal_event_signal(crowds[0].event, CROWD_END);
        for (i = 0; i < THREADS; i++) join(threads[i]);
        for (i = 0; i < 3; i++) assert_ok(gpusync_timeline_destroy(crowds[0].timelines[i]));
        metal_release(crowds[0].event);
        close_rig(&r);
    }
}

/* -- every step fails in turn ---------------------------------------------------------------------------- */

static bool one_of(gpusync_result got, gpusync_result a, gpusync_result b, gpusync_result c)
{
    return got == a || got == b || got == c;
}

static void use_every_call(rig *r)
{
    const gpusync_result ok = GPUSYNC_OK, no_memory = GPUSYNC_ERROR_OUT_OF_MEMORY, nil = GPUSYNC_ERROR_METAL_NIL;
    gpusync_timeline *made = NULL, *imported = NULL;
    gpusync_timeline_desc desc;
    uint64_t value;
    void *event;
    memset(&desc, 0, sizeof desc);
    desc.label = "made";
    desc.initial_value = 1;
    assert_true(one_of(gpusync_timeline_create(r->device, &desc, &made), ok, no_memory, nil));
    if (made) {
        assert_true(one_of(gpusync_timeline_wait(made, 2, 1, NULL), GPUSYNC_TIMEOUT, no_memory, no_memory));
        assert_ok(gpusync_timeline_signal(made, 2));
        assert_ok(gpusync_timeline_wait(made, 2, GPUSYNC_FOREVER, NULL));
        assert_ok(gpusync_timeline_query(made, &value));
        assert_ok(gpusync_timeline_destroy(made));
    }
    assert_true(one_of(gpusync_timeline_create(r->device, NULL, &made), ok, no_memory, nil)); /* a used event */
    event = metal_shared_event_new(r->metal_device);
    if (event) {
        assert_true(one_of(timeline_import(r->device, event, &desc, &imported), ok, no_memory, no_memory));
        if (imported) {
            assert_true(one_of(gpusync_timeline_wait(imported, 5, 1, NULL), GPUSYNC_TIMEOUT, no_memory, no_memory));
            metal_event_signal(event, 5);
            assert_ok(gpusync_timeline_wait(imported, 5, GPUSYNC_FOREVER, NULL));
            assert_ok(gpusync_timeline_fail(imported, NULL));
            assert_ok(gpusync_timeline_destroy(imported));
        }
        metal_release(event);
    }
    if (made) {
        assert_ok(gpusync_timeline_fail(made, NULL));
        assert_result(gpusync_timeline_wait(made, 1, GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_timeline_destroy(made));
    }
}

static void test_whatever_fails_nothing_is_lost(void **state)
{
    int after, step;
    (void)state;
    for (after = 0; after < 2; after++)
        for (step = 1; step < 12; step++) {
            rig r;
            open_rig(&r, SOFTMETAL_MANUAL, NULL);
            r.memory.fail_after = after;
            r.memory.fail_at = step;
            use_every_call(&r);
            r.memory.fail_at = 0;
            close_rig(&r);
            open_rig(&r, SOFTMETAL_MANUAL, NULL);
            softmetal_fail_creation((unsigned)step, after);
            use_every_call(&r);
            softmetal_fail_creation(0, false);
            close_rig(&r);
        }
}

/* -- a reason whose texts have no end ---------------------------------------------------------------- */

static void test_a_reason_for_failure_is_cut_to_fit(void **state)
{
    static const int others[] = {-9999, -23, 1}; /* no errors of ours */
    gpusync_timeline *timeline;
    gpusync_wait_options options;
    gpusync_error reason, told;
    size_t i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_ok(gpusync_timeline_create(r.device, NULL, &timeline));
        memset(&reason, 'x', sizeof reason);
        reason.result = (gpusync_result)others[i];
        reason.failure = GPUSYNC_FAILURE_OTHER;
        assert_ok(gpusync_timeline_fail(timeline, &reason));
        memset(&options, 0, sizeof options);
        options.error = &told;
        assert_result(gpusync_timeline_wait(timeline, 1, 0, &options), GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(strlen(told.domain), sizeof told.domain - 1);
        assert_int_equal(strlen(told.message), sizeof told.message - 1);
        assert_int_equal(strlen(told.label), sizeof told.label - 1);
        assert_int_equal(strlen(told.queue_label), sizeof told.queue_label - 1);
        assert_int_equal(told.dropped, 0); /* that is for a reader of records */
        assert_ok(gpusync_timeline_destroy(timeline));
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_timeline_starts_at_its_initial_value),
        cmocka_unit_test(test_an_initial_value_out_of_range_makes_no_timeline),
        cmocka_unit_test(test_a_label_shows_in_the_report_and_on_the_event_of_its_own_timeline_only),
        cmocka_unit_test(test_calls_without_a_timeline_are_refused),
        cmocka_unit_test(test_a_signal_that_does_not_raise_the_timeline_is_refused_and_changes_nothing),
        cmocka_unit_test(test_asking_for_the_value_sends_no_message_where_no_other_code_signals),
        cmocka_unit_test(test_the_host_may_signal_a_value_below_one_that_a_pending_signal_keeps_back),
        cmocka_unit_test(test_a_discarded_signal_lets_the_host_s_values_be_reached),
        cmocka_unit_test(test_of_signals_at_a_time_the_larger_value_counts),
        cmocka_unit_test(test_the_smaller_of_two_signals_at_the_same_time_never_undoes_the_larger),
        cmocka_unit_test(test_a_signal_reaches_work_that_waits_on_the_device),
        cmocka_unit_test(test_a_value_that_is_reached_costs_no_message_and_no_memory_and_no_count),
        cmocka_unit_test(test_a_wait_that_makes_no_sense_is_refused),
        cmocka_unit_test(test_every_budget_keeps_its_time_limit_and_leaves_nothing),
        cmocka_unit_test(test_every_budget_waits_for_a_signal),
        cmocka_unit_test(test_a_value_reached_at_the_deadline_is_reached),
        cmocka_unit_test(test_a_signal_seen_while_spinning_parks_no_thread),
        cmocka_unit_test(test_a_signal_wakes_every_sleeper_itself_and_once),
        cmocka_unit_test(test_a_sleeper_is_woken_for_its_own_value_only),
        cmocka_unit_test(test_a_signal_after_a_timeout_finds_no_waiter),
        cmocka_unit_test(test_a_wait_without_memory_to_sleep_with_says_so_and_leaves_nothing),
        cmocka_unit_test(test_the_first_failure_stays_and_answers_every_call),
        cmocka_unit_test(test_a_failure_without_an_error_is_a_failed_execution),
        cmocka_unit_test(test_a_failure_wakes_every_sleeper_with_its_reason),
        cmocka_unit_test(test_a_failure_lets_waits_on_the_device_go_on),
        cmocka_unit_test(test_a_failure_writes_the_event_that_gpusync_made_and_no_imported_one),
        cmocka_unit_test(test_of_failures_and_signals_at_a_time_one_failure_is_the_first_for_all),
        cmocka_unit_test(test_a_value_of_other_code_is_seen_on_the_event_whatever_its_base),
        cmocka_unit_test(test_what_other_code_signals_counts_only_where_the_timeline_says_that_it_does),
        cmocka_unit_test(test_a_sleeper_is_told_by_an_event_that_had_an_earlier_use),
        cmocka_unit_test(test_an_imported_timeline_shows_the_event_as_it_is),
        cmocka_unit_test(test_only_shared_events_can_be_imported),
        cmocka_unit_test(test_the_failure_that_another_wrote_to_an_event_is_a_failure),
        cmocka_unit_test(test_the_listener_wakes_waiters_for_an_event_that_another_thread_signals),
        cmocka_unit_test(test_encoded_signals_of_other_queues_wake_a_waiter),
        cmocka_unit_test(test_one_registration_at_a_time_serves_all_waiters),
        cmocka_unit_test(test_the_next_registration_is_for_whatever_waits_next),
        cmocka_unit_test(test_a_lower_value_is_registered_for_besides),
        cmocka_unit_test(test_registrations_that_have_served_do_not_pile_up),
        cmocka_unit_test(test_registrations_for_a_value_that_does_not_come_do_not_pile_up),
        cmocka_unit_test(test_a_listener_that_comes_after_the_timeline_touches_nothing),
        cmocka_unit_test(test_registrations_for_values_that_never_come_go_with_the_event),
        cmocka_unit_test(test_destroy_lets_a_listener_that_is_at_it_finish),
        cmocka_unit_test(test_without_a_class_of_listeners_the_sweeper_looks),
        cmocka_unit_test(test_a_registration_takes_no_memory),
        cmocka_unit_test(test_an_event_is_used_again_and_goes_on_from_where_it_is),
        cmocka_unit_test(test_two_timelines_that_are_made_at_once_do_not_get_one_event),
        cmocka_unit_test(test_an_event_that_others_may_know_or_that_is_used_up_is_not_used_again),
        cmocka_unit_test(test_no_value_of_a_timeline_wraps_around_on_an_event_that_stands_high),
        cmocka_unit_test(test_work_waits_for_the_highest_value_on_an_event_that_stands_high),
        cmocka_unit_test(test_an_imported_event_is_not_used_for_other_timelines),
        cmocka_unit_test(test_a_bounded_number_of_events_is_kept),
        cmocka_unit_test(test_a_timeline_that_could_not_be_made_costs_no_event),
        cmocka_unit_test(test_destroy_ends_the_waits_that_sleep),
        cmocka_unit_test(test_destroy_ends_a_wait_that_spins),
        cmocka_unit_test(test_destroy_may_come_at_every_point_of_a_wait),
        cmocka_unit_test(test_a_device_stays_while_it_has_timelines),
        cmocka_unit_test(test_a_timeline_of_a_lost_device_can_be_signalled),
        cmocka_unit_test(test_giving_up_fails_every_timeline_of_a_lost_device),
        cmocka_unit_test(test_a_value_that_came_unseen_is_reached_before_its_timeline_is_given_up),
        cmocka_unit_test(test_the_report_tells_of_timelines_and_their_waiters),
        cmocka_unit_test(test_every_wait_is_counted_once_with_the_device),
        cmocka_unit_test(test_inside_the_log_hook_a_wait_that_would_have_to_wait_says_so),
        cmocka_unit_test(test_a_report_sees_a_timeline_as_it_was_made_or_not_at_all),
        cmocka_unit_test(test_host_and_device_take_turns),
        cmocka_unit_test(test_what_was_done_before_a_signal_is_seen_after_the_wait),
        cmocka_unit_test(test_a_crowd_that_signals_and_waits_at_random_loses_no_wake_up),
        cmocka_unit_test(test_whatever_fails_nothing_is_lost),
        cmocka_unit_test(test_a_reason_for_failure_is_cut_to_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
