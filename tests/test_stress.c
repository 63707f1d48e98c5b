/* test_stress.c - eight threads at once, on the real clock

   Each thread has a chain: work n copies a token from one place of its memory to the next, waits for value n - 1 of the
   thread's timeline, and signals n, on any of four queues that all threads share. A chain that runs out of order copies
   zeros. Between the links of its chain the thread commits plain work, waits in every way, discards, has callbacks and
   releases, makes queues and timelines and destroys them, at once or later. In peace all work succeeds; then some of it
   fails, and with it what waits for it, and nothing else.

   Proved: each ticket has the result that the test knows beforehand; what the GPU wrote is there when a wait says OK,
   and memory that is done is the program's (S2); each callback runs once, with that result; nothing is left over.

   A long life: the same again and again for PROCESS_SECONDS, default 2, costs a process no more than the first tenth.

   STRESS is a factor for the length, default 1. SEED is of all that is random; a failure prints it. */
#include "kit.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif

enum { WORKERS = 8, QUEUES = 4, PLACES = 64, WINDOW = 12, LINE = 16 };

static uint64_t seed;

#define check(condition) must_be((condition), #condition, __LINE__)
static void must_be(bool good, const char *what, int line)
{
    if (good)
        return;
    fprintf(stderr, "%s:%d: not so: %s (SEED=%llu)\n", __FILE__, line, what, (unsigned long long)seed);
    abort();
}

typedef struct flight {
    int queue;
    gpusync_ticket ticket;
    int place, from; /* of the memory, that the work writes and reads; below 0: none */
    bool fails;      /* it, or what it waits for */
    uint64_t value;  /* that it signals; 0: none */
} flight;

typedef struct worker {
    stage *s;
    pthread_t thread;
    uint64_t random;
    bool failures;
    unsigned rounds;
    unsigned char *bytes;
    void *memory;
    unsigned char token;
    gpusync_timeline *chain;
    uint64_t value;   /* the highest that is on its way */
    bool chain_fails; /* so does all that waits for it */
    bool followed;    /* ... and something does */
    int last_place;   /* where the token is then */
    flight window[WINDOW];
    unsigned count;
} worker;

/* What callbacks were promised, and what ran. */
static unsigned long promised_well, promised_badly, ran_well, ran_badly, promised_gone, gone, promised_destroyed,
    destroyed;

static void count_done(void *user, gpusync_result result, const gpusync_error *error)
{
    bool fails = user != NULL;
    check((error != NULL) == (result != GPUSYNC_OK));
    check(result == (fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK));
    COUNT(fails ? &ran_badly : &ran_well);
}

/* Of a queue that is abandoned: its work may have ended before. */
static void count_either(void *user, gpusync_result result, const gpusync_error *error)
{
    check((error != NULL) == (result != GPUSYNC_OK));
    check(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
    COUNT(&ran_well);
}

static void count_gone(void *user)
{
    COUNT(&gone);
}

static void count_destroyed(void *user)
{
    COUNT(&destroyed);
}

static uint64_t draw(worker *w, uint64_t n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (w->random * UINT64_C(0x2545F4914F6CDD1D) >> 33) % n;
}

static bool chance(worker *w, unsigned percent)
{
    return draw(w, 100) < percent;
}

static unsigned char *place_of(worker *w, int place)
{
    return w->bytes + place * LINE;
}

/* -- the end of a flight -------------------------------------------------------------------------------------- */

static gpusync_result wait_in_some_way(worker *w, const flight *f)
{
    gpusync_queue *q = w->s->q[f->queue];
    gpusync_wait_options options = {.handlers = chance(w, 30)};
    gpusync_point points[2] = {ticket_at(q, f->ticket), ticket_at(q, f->ticket)};
    gpusync_spin spin = {.max_spin_ns = 20000};
    gpusync_result result;
    size_t which = 7;
    switch (draw(w, 6)) {
    case 0: return gpusync_wait(q, f->ticket, GPUSYNC_FOREVER, NULL);
    case 1: return gpusync_wait(q, f->ticket, SECONDS(60), &options);
    case 2:
        while ((result = gpusync_poll(q, f->ticket, NULL)) == GPUSYNC_NOT_READY)
            sched_yield();
        return result;
    case 3:
        options.spin = &spin;
        while ((result = gpusync_wait(q, f->ticket, draw(w, 200000), &options)) == GPUSYNC_TIMEOUT) {}
        return result;
    case 4: return gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, &which);
    default:
        if (f->value && f->value <= GPUSYNC_MAX_VALUE)
            points[1] = at(w->chain, f->value);
        result = gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, SECONDS(60), NULL, &which);
        check(which < 2);
        return which == 0 ? result : gpusync_wait(q, f->ticket, SECONDS(60), NULL);
    }
}

/* The result is the one that was known before, and the bytes are there. */
static void land(worker *w, unsigned i)
{
    flight f = w->window[i];
    gpusync_queue *q = w->s->q[f.queue];
    gpusync_result result = wait_in_some_way(w, &f);
    gpusync_result again = gpusync_poll(q, f.ticket, NULL);
    if (result != (f.fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK) || again != result)
        fprintf(stderr, "ticket %d of queue %d, value %d: %d, then %d, expected to %s\n", (int)f.ticket, f.queue,
                (int)f.value, result, again, f.fails ? "fail" : "succeed");
    check(result == (f.fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK));
    check(again == result);
    if (f.place >= 0 && !f.fails)
        check(*place_of(w, f.place) == w->token);
    w->window[i] = w->window[--w->count];
}

static void land_all(worker *w)
{
    while (w->count)
        land(w, (unsigned)draw(w, w->count));
}

static flight *take_off(worker *w, int queue, int place)
{
    while (w->count == WINDOW)
        land(w, (unsigned)draw(w, w->count));
    flight *f = &w->window[w->count++];
    memset(f, 0, sizeof *f);
    f->queue = queue;
    f->place = place;
    f->from = -1;
    return f;
}

/* A place that nothing uses. S2: is_done alone decides that; and what the GPU has written there since then shows. */
static int free_place(worker *w)
{
    int place;
    bool used;
    do {
        place = 1 + (int)draw(w, PLACES - 1);
        used = place == w->last_place;
        for (unsigned i = 0; i < w->count; i++)
            if ((w->window[i].place == place || w->window[i].from == place) &&
                !gpusync_is_done(w->s->q[w->window[i].queue], w->window[i].ticket))
                used = true;
        for (unsigned i = 0; i < w->count && !used; i++)
            if (w->window[i].place == place)
                land(w, i--);
    } while (used);
    *place_of(w, place) = 0;
    return place;
}

/* -- steps ---------------------------------------------------------------------------------------------------- */

static void *make_buffer(worker *w, gpusync_queue *q)
{
    void *buffer = NULL;
    gpusync_result result;
    uint64_t limit = chance(w, 50) ? GPUSYNC_FOREVER : 100000;
    while ((result = gpusync_command_buffer_create(q, NULL, limit, &buffer)) == GPUSYNC_TIMEOUT) {}
    check(result == GPUSYNC_OK);
    softmetal_set_duration(buffer, 1000 * draw(w, 40));
    return buffer;
}

static void copy_token(worker *w, void *buffer, int from, int to)
{
    void *blit = metal_blit_begin(buffer);
    metal_copy(blit, w->memory, (size_t)from * LINE, w->memory, (size_t)to * LINE, 1);
    metal_end(blit);
}

static void fill_token(worker *w, void *buffer, int place)
{
    void *blit = metal_blit_begin(buffer);
    metal_fill(blit, w->memory, (size_t)place * LINE, 1, w->token);
    metal_end(blit);
}

static void promise_callback(worker *w, const flight *f)
{
    void *object;
    if (chance(w, 40)) {
        COUNT(f->fails ? &promised_badly : &promised_well);
        check(gpusync_on_done(ticket_at(w->s->q[f->queue], f->ticket), count_done, f->fails ? w : NULL) == GPUSYNC_OK);
    }
    if (chance(w, 20)) {
        object = softmetal_new_witness(count_gone, NULL);
        COUNT(&promised_gone);
        check(gpusync_release_after(w->s->q[f->queue], f->ticket, object) == GPUSYNC_OK);
        metal_release(object);
    }
}

/* The next link of the chain. HOST_SYNC, UNORDERED, encoded or submitted: all come to the same. */
static void step_chain(worker *w)
{
    /* What waits on the GPU for a timeline that fails stops waiting, and runs: two such links would run at once. */
    if (w->followed)
        return;
    w->followed = w->chain_fails;
    int queue = (int)draw(w, QUEUES);
    gpusync_queue *q = w->s->q[queue];
    int place = free_place(w);
    flight *f = take_off(w, queue, place);
    void *buffer = make_buffer(w, q);
    bool fails = w->failures && !w->chain_fails && chance(w, 3);
    gpusync_point wait = at(w->chain, w->value), signal = at(w->chain, w->value + 1);
    gpusync_submission submission = {0};
    bool encodes = chance(w, 40);
    if (encodes)
        check(gpusync_encode_wait(q, buffer, wait) == GPUSYNC_OK); /* what is encoded behind it waits */
    copy_token(w, buffer, w->last_place, place);
    f->from = w->last_place;
    if (fails)
        softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    /* A faulty buffer waits for nothing: it would fail the values below its own, which are on their way. */
    if (fails)
        check(gpusync_timeline_wait(w->chain, w->value, GPUSYNC_FOREVER, NULL) == GPUSYNC_OK);
    f->fails = fails || w->chain_fails;
    f->value = w->value + 1;
    gpusync_result result = GPUSYNC_OK;
    if (encodes) {
        result = gpusync_encode_signal(q, buffer, signal);
    } else {
        submission.wait_points = &wait;
        submission.wait_count = 1;
        submission.signal_points = &signal;
        submission.signal_count = 1;
    }
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    if (chance(w, 25))
        submission.flags |= GPUSYNC_SUBMIT_UNORDERED;
    if (submission.signal_points && chance(w, 25))
        submission.flags |= GPUSYNC_SUBMIT_ON_GPU;
    if (result == GPUSYNC_OK)
        result = gpusync_submit(q, &submission, &f->ticket);
    if (w->chain_fails && result == GPUSYNC_ERROR_EXECUTION) { /* the timeline has failed already: R13 */
        check(f->ticket == 0);
        check(gpusync_command_buffer_discard(q, buffer) == GPUSYNC_OK);
        w->count--;
        return;
    }
    check(result == GPUSYNC_OK);
    w->value++;
    w->last_place = place;
    w->chain_fails = w->chain_fails || fails;
    promise_callback(w, f);
}

/* S4: earlier work of its queue, which may have failed, is not among what it waits for. */
static void step_plain(worker *w)
{
    int queue = (int)draw(w, QUEUES);
    gpusync_queue *q = w->s->q[queue];
    int place = free_place(w);
    flight *f = take_off(w, queue, place);
    void *buffer = make_buffer(w, q);
    fill_token(w, buffer, place);
    f->fails = w->failures && chance(w, 5);
    if (f->fails)
        softmetal_fail_as(buffer, SOFTMETAL_OUT_OF_MEMORY, NULL);
    check(gpusync_commit(q, buffer, &f->ticket) == GPUSYNC_OK);
    promise_callback(w, f);
}

/* Work that waits on the host for tickets of its thread, on any queue. */
static void step_ticket(worker *w)
{
    int queue = (int)draw(w, QUEUES);
    gpusync_point wait;
    gpusync_submission submission = {.wait_points = &wait, .wait_count = 1};
    gpusync_result result;
    if (w->count < 2)
        return;
    flight *f = take_off(w, queue, -1);
    flight before = w->window[draw(w, w->count - 1)];
    wait = ticket_at(w->s->q[before.queue], before.ticket);
    f->fails = before.fails;
    submission.flags = chance(w, 50) ? 0 : GPUSYNC_SUBMIT_ON_GPU;
    while ((result = gpusync_submit(w->s->q[queue], &submission, &f->ticket)) == GPUSYNC_ERROR_QUEUE_FULL)
        sched_yield();
    check(result == GPUSYNC_OK);
    promise_callback(w, f);
}

static void step_discard(worker *w)
{
    gpusync_queue *q = w->s->q[draw(w, QUEUES)];
    void *buffer = make_buffer(w, q);
    if (!w->chain_fails)
        check(gpusync_encode_signal(q, buffer, at(w->chain, w->value + 1)) == GPUSYNC_OK || w->failures);
    check(gpusync_command_buffer_discard(q, buffer) == GPUSYNC_OK);
    check(gpusync_command_buffer_discard(q, buffer) == GPUSYNC_ERROR_UNKNOWN_BUFFER);
}

/* The host takes the chain's next value, once the last one is there. */
static void step_host(worker *w)
{
    gpusync_error error = {.message = "no text"};
    if (w->chain_fails)
        return;
    const gpusync_wait_options options = {.error = &error};
    gpusync_result result = gpusync_timeline_wait(w->chain, w->value, GPUSYNC_FOREVER, &options);
    if (result != GPUSYNC_OK)
        fprintf(stderr, "the chain: %s: %s, ticket %lld of %s\n", gpusync_result_string(result), error.message,
                (long long)error.origin, error.queue_label);
    check(result == GPUSYNC_OK);
    w->value++;
    check(gpusync_timeline_signal(w->chain, w->value) == GPUSYNC_OK);
}

static void end_chain(worker *w)
{
    uint64_t value = 0;
    land_all(w);
    if (!w->chain_fails)
        check(gpusync_timeline_wait(w->chain, w->value, SECONDS(60), NULL) == GPUSYNC_OK);
    check(gpusync_timeline_query(w->chain, &value, NULL) == (w->chain_fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK));
    check(w->chain_fails ? value < w->value : value == w->value);
    if (chance(w, 50)) {
        check(gpusync_timeline_destroy(w->chain) == GPUSYNC_OK);
        return;
    }
    COUNT(&promised_destroyed);
    check(gpusync_timeline_destroy_later(w->chain, count_destroyed, NULL) == GPUSYNC_OK);
}

static void begin_chain(worker *w)
{
    gpusync_timeline_desc desc = {.initial_value = draw(w, 5)};
    check(gpusync_timeline_create(w->s->device, &desc, &w->chain) == GPUSYNC_OK);
    w->value = desc.initial_value;
    w->chain_fails = false;
    w->followed = false;
    w->last_place = 0;
    *place_of(w, 0) = w->token;
}

/* A queue of the thread's own comes and goes, with work in flight. */
static void step_queue(worker *w)
{
    gpusync_queue *q = NULL;
    unsigned i, buffers = (unsigned)draw(w, 4);
    const bool abandoned = chance(w, 25);
    check(gpusync_queue_create(w->s->device, NULL, &q) == GPUSYNC_OK);
    for (i = 0; i < buffers; i++) {
        gpusync_ticket ticket = 0;
        check(gpusync_commit(q, make_buffer(w, q), &ticket) == GPUSYNC_OK);
        check(ticket == (gpusync_ticket)i + 1);
        COUNT(&promised_well);
        check(gpusync_on_done(ticket_at(q, ticket), abandoned ? count_either : count_done, NULL) == GPUSYNC_OK);
    }
    if (abandoned) {
        check(gpusync_queue_abandon(q) == GPUSYNC_OK);
        return;
    }
    if (chance(w, 50)) {
        check(gpusync_queue_destroy(q) == GPUSYNC_OK);
        return;
    }
    COUNT(&promised_destroyed);
    check(gpusync_queue_destroy_later(q, count_destroyed, NULL) == GPUSYNC_OK);
}

static void step_everything(worker *w)
{
    gpusync_queue *q = w->s->q[draw(w, QUEUES)];
    gpusync_result result;
    size_t count;
    if (chance(w, 30))
        result = gpusync_device_wait(w->s->device, draw(w, 500000), NULL);
    else
        result = gpusync_wait(q, GPUSYNC_EVERYTHING, draw(w, 500000), NULL);
    check(result == GPUSYNC_OK || result == GPUSYNC_TIMEOUT || (w->failures && result == GPUSYNC_ERROR_EXECUTION));
    (void)gpusync_in_flight(q);
    check(gpusync_device_run_callbacks(w->s->device, 3, &count) == GPUSYNC_OK);
}

static void *work(void *argument)
{
    worker *w = (worker *)argument;
    begin_chain(w);
    for (unsigned round = 0; round < w->rounds; round++) {
        unsigned what = (unsigned)draw(w, 100);
        void *pool = metal_pool_push();
        if (what < 40) {
            step_chain(w);
        } else if (what < 60) {
            step_plain(w);
        } else if (what < 68) {
            step_ticket(w);
        } else if (what < 73) {
            step_discard(w);
        } else if (what < 76) {
            step_host(w);
        } else if (what < 79) {
            step_queue(w);
        } else if (what < 84) {
            step_everything(w);
        } else if (what < 86) {
            end_chain(w);
            begin_chain(w);
        } else if (w->count) {
            land(w, (unsigned)draw(w, w->count));
        }
        metal_pool_pop(pool);
    }
    end_chain(w);
    return NULL;
}

/* -- the tests ------------------------------------------------------------------------------------------------ */

static void set_latencies(void)
{
    softmetal_timing timing;
    softmetal_chaos chaos = {.complete_out_of_order_per_mille = 20};
    softmetal_get_timing(&timing);
    timing.watchdog_ns = SECONDS(60); /* 5 s may pass on a machine that stands still now and then; a deadlock lasts */
    timing.schedule.max_ns = 10000;
    timing.notify.max_ns = 20000;
    timing.handler.max_ns = 20000;
    timing.event_listener.max_ns = 20000;
    softmetal_set_timing(&timing);
    softmetal_set_seed(seed);
    softmetal_set_chaos(&chaos);
}

static unsigned length_of_run(void)
{
    const char *text = getenv("STRESS");
    double factor = text && *text ? strtod(text, NULL) : 1;
    return (unsigned)(2000 * factor / SLOW) + 20;
}

static void run_stress(stage *s, bool failures, unsigned length, unsigned pass)
{
    static worker workers[WORKERS];
    const char *text = getenv("SEED");
    seed = (text ? strtoull(text, NULL, 10) : 1) + pass;
    promised_well = promised_badly = ran_well = ran_badly = promised_gone = gone = 0;
    promised_destroyed = destroyed = 0;
    set_latencies();
    memset(workers, 0, sizeof workers);
    for (unsigned i = 0; i < WORKERS; i++) {
        worker *w = &workers[i];
        w->s = s;
        w->random = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15) + i * UINT64_C(0xBF58476D1CE4E5B9);
        w->failures = failures;
        w->rounds = length;
        w->memory = metal_buffer_new(s->metal_device, PLACES * LINE);
        w->bytes = (unsigned char *)metal_contents(w->memory);
        w->token = (unsigned char)(i + 1);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        workers[i].thread = start(work, &workers[i]);
    for (unsigned i = 0; i < WORKERS; i++)
        join(workers[i].thread);
    settle(s);
    assert_int_equal(ran_well, promised_well);
    assert_int_equal(ran_badly, promised_badly);
    assert_int_equal(gone, promised_gone);
    assert_int_equal(destroyed, promised_destroyed);
    for (unsigned i = 0; i < QUEUES; i++) {
        assert_int_equal(gpusync_in_flight(s->q[i]), 0);
        assert_true(gpusync_is_done(s->q[i], GPUSYNC_EVERYTHING));
    }
    for (unsigned i = 0; i < WORKERS; i++)
        metal_release(workers[i].memory);
}

on_stage_with(test_S1_to_S8_eight_threads_in_peace, .queues = QUEUES, .real = true, .threads = true, .spins = true)
{
    run_stress(s, false, length_of_run(), 0);
    for (unsigned i = 0; i < QUEUES; i++)
        assert_int_equal(failures_of(s->q[i]), 0);
}

on_stage_with(test_S4_S8_eight_threads_and_failures, .queues = QUEUES, .real = true, .queue.error_log_count = 16384)
{
    run_stress(s, true, length_of_run(), 0); /* the log holds all failures: no result is unknown */
}

also_on_stage_with(test_S4_S8_eight_threads_and_failures, .queues = QUEUES, .real = true,
                   .queue.error_log_count = 16384, .device.callback_mode = GPUSYNC_CALLBACKS_MANUAL)

enum { BLOCKS, OBJECTS, THREADS, KILOBYTES, FIGURES };

static void look(long peak[FIGURES])
{
    long now[FIGURES] = {kit_now().blocks, softmetal_live(NULL), 0, 0};
    char line[256];
    FILE *file = fopen("/proc/self/status", "r"); /* NULL on a Mac */
    while (file && fgets(line, sizeof line, file)) {
        (void)sscanf(line, "VmRSS: %ld", &now[KILOBYTES]);
        (void)sscanf(line, "Threads: %ld", &now[THREADS]);
    }
    if (file)
        fclose(file);
    for (unsigned i = 0; i < FIGURES; i++)
        peak[i] = now[i] > peak[i] ? now[i] : peak[i];
}

/* Looks when nothing is in flight: the peaks of the last tenth against those of the first. */
on_stage_with(test_a_long_life_costs_no_more_than_a_short_one, .queues = QUEUES, .real = true, .threads = true,
              .spins = true, .queue.error_log_count = 1024)
{
    const char *text = getenv("PROCESS_SECONDS");
    const uint64_t length = SECONDS(text && *text ? strtoul(text, NULL, 10) : 2), from = gpusync_now_ns();
    const bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
    long first[FIGURES] = {0}, last[FIGURES] = {0};
    gpusync_stats stats;
    unsigned pass;
    for (pass = 0; gpusync_now_ns() - from < length; pass++) {
        const uint64_t age = gpusync_now_ns() - from;
        run_stress(s, true, 100, pass);
        if (age <= length / 10)
            look(first);
        if (age >= length / 10 * 9 || pass == 0)
            look(last);
    }
    assert_ok(gpusync_device_get_stats(s->device, NULL, &stats));
    print_message("%u passes, %llu tickets, %llu failures; blocks, objects, threads, KB:", pass,
                  (unsigned long long)stats.commits, (unsigned long long)stats.failures);
    for (unsigned i = 0; i < FIGURES; i++)
        print_message(" %ld -> %ld", first[i], last[i]);
    print_message("\n");
    assert_true(last[BLOCKS] > 0 && last[BLOCKS] <= first[BLOCKS] + 4 * 64); /* each queue keeps 64 works */
    assert_true(last[OBJECTS] <= first[OBJECTS] + 32);
    assert_true(last[THREADS] <= first[THREADS] + 16);
    assert_true(sanitized || last[KILOBYTES] <= first[KILOBYTES] + first[KILOBYTES] / 20 + 1024);
}
