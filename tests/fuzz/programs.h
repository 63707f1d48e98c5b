/* programs.h - inputs that are programs of submit_graphs.h: drawn from the bytes, run step by step, judged by the model

   Between the steps come questions, callbacks, calls that make no sense and allocations that fail: none of this may
   change how the program ends. In inputs whose first byte says so failures stick on some queues, and are cleared between
   the steps, which the model knows. */
#ifndef FUZZ_PROGRAMS_H
#define FUZZ_PROGRAMS_H

#include "fuzz.h"

/* What was seen so far of each step and timeline: it may not be taken back. */
static struct {
    bool done[STEPS], judged[STEPS];
    gpusync_result told[STEPS];
    uint64_t value[TIMELINES];
    uint64_t cursor[QUEUES], failures[QUEUES];
    late_reader late[QUEUES];
    int submitted, host; /* how far the two rows of steps have come */
    bool sticky;         /* the input is of those */
    bool fills;          /* at the end its queues are filled */
} seen;

static program *fuzzed;

static void heal(program *p)
{
    __atomic_store_n(&p->r.memory.fail_at, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&probe_memory.fail_at, 0, __ATOMIC_SEQ_CST);
}

/* The n-th allocation from now fails: the allocator's, or the C library's. */
static void arm(program *p)
{
    unsigned how = byte(), n = 1 + (how >> 2) % 16;
    if (how & 1)
        p->r.memory.fail_at = (long)n;
    else
        probe_memory.fail_at = (long)n;
    if (!(how & 2)) return;
    p->r.memory.fail_after = how & 1;
    probe_memory.fail_after = !(how & 1);
}

/* A call did nothing as there was no memory: now there is. */
static bool again_with_memory(gpusync_result result)
{
    if (result != GPUSYNC_ERROR_OUT_OF_MEMORY) return false;
    must(fuzzed->r.memory.fail_at != 0 || fuzzed->r.memory.calls >= 0, "no memory");
    heal(fuzzed);
    return true;
}

/* -- what holds at any time --------------------------------------------------------------------------- */

static void check_buffers(const program *p, const step *s, gpusync_result result)
{
    int k;
    for (k = 0; k < s->buffers; k++) {
        unsigned long status;
        if (!s->kept[k]) continue;
        status = metal_status(s->kept[k]);
        must(status != 2 && status != 3, "step %d is done, its buffer %d has status %lu", s->index, k, status);
        must(result != GPUSYNC_OK || status == 4, "step %d is well, its buffer %d has status %lu", s->index, k, status);
    }
    (void)p;
}

static void check_step_now(program *p, const step *s)
{
    gpusync_queue *q = p->queue[s->queue];
    bool done = gpusync_is_done(q, s->ticket);
    gpusync_result result = gpusync_poll(q, s->ticket);
    int i = s->index;
    must(result != GPUSYNC_NOT_READY || !done, "step %d is done and not ready", i);
    must(done || !seen.done[i], "step %d was done and is not", i);
    must(!seen.judged[i] || result == seen.told[i], "step %d ended with %d and now with %d", i, seen.told[i], result);
    seen.done[i] = done;
    if (result == GPUSYNC_NOT_READY || seen.judged[i]) return;
    must(result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION, "step %d ended with %d", i, result);
    must(result != GPUSYNC_OK || s->fails < 0, "step %d is well, its work failed", i);
    seen.judged[i] = true;
    seen.told[i] = result;
    check_buffers(p, s, result);
    if (result == GPUSYNC_OK && (s->buffers > 0 || s->kind == HOST))
        expect(p, step_bytes(s)[STAMP] == stamp_of(s), "step %d is well and did not write its stamp", i);
}

/* A value is known when every signal up to it was kept, and not before. */
static void check_line_now(program *p, int t)
{
    uint64_t value = 0;
    gpusync_result result = gpusync_timeline_query(p->line[t].timeline, &value);
    int i, k;
    must(value >= seen.value[t], "timeline %d fell to %llu", t, (unsigned long long)value);
    seen.value[t] = value;
    for (i = 0; i < p->steps && result == GPUSYNC_OK; i++) {
        const step *s = &p->step[i];
        for (k = 0; k < s->signals; k++) {
            if (s->signal[k].timeline != t || s->signal[k].value > value) continue;
            expect(p,
                   s->kind == HOST || (s->state == ISSUED && gpusync_poll(p->queue[s->queue], s->ticket) == GPUSYNC_OK),
                   "timeline %d is at %llu, step %d has not kept its signal", t, (unsigned long long)value, i);
            expect(p, s->kind != HOST || i < seen.host, "timeline %d is at %llu, the host's step %d has not come", t,
                   (unsigned long long)value, i);
        }
    }
}

static void check_now(program *p)
{
    int i;
    for (i = 0; i < p->steps; i++)
        if (p->step[i].kind != HOST && p->step[i].state == ISSUED) check_step_now(p, &p->step[i]);
    for (i = 0; i < p->timelines; i++) check_line_now(p, i);
}

/* -- the program's own steps -------------------------------------------------------------------------- */

static bool submit_next(program *p)
{
    step *s;
    if (seen.submitted == p->ordered) return false;
    s = &p->step[p->order[seen.submitted]];
    if (s->late_waits) make_and_discard(s);
    submit(s);
    seen.submitted++;
    heal(p);
    return true;
}

/* Would the host's step get through its waits, or fail in one, without having to wait? */
static bool is_ready(program *p, const step *s)
{
    int i;
    for (i = 0; i < s->edges; i++) {
        const edge *e = &s->edge[i];
        const step *other = &p->step[e->step];
        gpusync_result result;
        if (e->timeline < 0 && other->state == PENDING) return false;
        if (e->timeline < 0 && other->state == REFUSED) return true;
        result = e->timeline >= 0 ? gpusync_timeline_wait(p->line[e->timeline].timeline, e->value, 0, NULL)
                                  : gpusync_wait(p->queue[other->queue], other->ticket, 0);
        if (result == GPUSYNC_TIMEOUT) return false;
        if (result != GPUSYNC_OK) return true;
    }
    return true;
}

static bool host_next(program *p)
{
    while (seen.host < p->steps && p->step[seen.host].kind != HOST) seen.host++;
    if (seen.host == p->steps || !is_ready(p, &p->step[seen.host])) return false;
    run_on_host(&p->step[seen.host]);
    seen.host++;
    heal(p);
    come_to_rest_now();
    return true;
}

/* -- and what comes between --------------------------------------------------------------------------- */

static const step *some_step(const program *p)
{
    int i, n = (int)below_of((unsigned)p->steps);
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[(n + i) % p->steps];
        if (s->kind != HOST && s->state == ISSUED) return s;
    }
    return NULL;
}

/* The answer of a wait without time, from that of the poll. */
static gpusync_result as_wait(gpusync_result poll)
{
    return poll == GPUSYNC_NOT_READY ? GPUSYNC_TIMEOUT : poll;
}

static void ask_about(program *p, const step *s)
{
    gpusync_queue *q = p->queue[s->queue];
    gpusync_result now = gpusync_poll(q, s->ticket);
    gpusync_wait_options options;
    gpusync_ticket_info info;
    gpusync_error error;
    unsigned how;
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    options.error = &error;
    how = below_of(5);
    if (how == 2) options.spin = &no_spin;
    options.blocking = how == 3;
    switch (below_of(4)) {
    case 0:
        answer(gpusync_wait_ex(q, s->ticket, 0, &options), as_wait(now));
        must(now != GPUSYNC_ERROR_EXECUTION || (error.result == now && error.ticket == s->ticket), "no error for it");
        break;
    case 1:
        answer(gpusync_get_info(q, s->ticket, &info), now == GPUSYNC_NOT_READY ? now : GPUSYNC_OK);
        must(now == GPUSYNC_NOT_READY || info.result == now, "the info says %d, the poll %d", info.result, now);
        break;
    case 2: answer(gpusync_wait(q, s->ticket, MS(byte())), GPUSYNC_TIMEOUT, GPUSYNC_OK, GPUSYNC_ERROR_EXECUTION); break;
    default:
        must(!gpusync_is_idle(q) || gpusync_queue_wait(q, 0) != GPUSYNC_TIMEOUT, "idle, and something to wait for");
        answer(gpusync_wait_ex(q, GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_TIMEOUT, GPUSYNC_OK, GPUSYNC_ERROR_EXECUTION);
        break;
    }
}

static void ask_about_many(program *p)
{
    gpusync_point points[20];
    gpusync_result each[20], result;
    size_t count = below_of(20), i, which = 99, ended = 0, failed = 0;
    bool any = one_in(2) && count > 0;
    memset(points, 0, sizeof points);
    for (i = 0; i < count; i++) {
        const step *s = some_step(p);
        if (s && one_in(2)) {
            points[i].queue = p->queue[s->queue];
            points[i].ticket = s->ticket;
            each[i] = as_wait(gpusync_poll(points[i].queue, s->ticket));
        } else {
            points[i].timeline = p->line[below_of((unsigned)p->timelines)].timeline;
            points[i].value = byte();
            each[i] = gpusync_timeline_wait(points[i].timeline, points[i].value, 0, NULL);
        }
        ended += each[i] != GPUSYNC_TIMEOUT;
        failed += each[i] < 0;
    }
    result = gpusync_wait_many(points, count, any ? GPUSYNC_WAIT_ANY : GPUSYNC_WAIT_ALL, 0, NULL, &which);
    if (any) {
        must((result == GPUSYNC_TIMEOUT) == (ended == 0), "any of %zu, of which %zu have ended: %d", count, ended,
             result);
        must(ended == 0 || (which < count && each[which] == result), "any: %zu with %d", which, result);
    } else if (failed == 0) {
        must(result == (ended == count ? GPUSYNC_OK : GPUSYNC_TIMEOUT), "all %zu, %zu have ended: %d", count, ended,
             result);
    } else {
        must(result < 0, "all %zu, %zu have failed: %d", count, failed, result);
        must(which < count && each[which] == result, "all: %zu with %d", which, result);
    }
}

static void have_it_told(program *p)
{
    const step *s = some_step(p);
    int t = (int)below_of((unsigned)p->timelines);
    tally *mine = tally_new();
    void *witness_object;
    if (!mine) return;
    switch (s ? below_of(3) : 2) {
    case 0:
        answer(gpusync_on_done(gpusync_at_ticket(p->queue[s->queue], s->ticket), on_tally, mine), GPUSYNC_OK);
        break;
    case 1:
        witness_object = softmetal_new_witness(on_gone, mine);
        answer(gpusync_release_after(gpusync_at_ticket(p->queue[s->queue], s->ticket), witness_object), GPUSYNC_OK);
        metal_release(witness_object);
        break;
    default:
        answer(gpusync_on_done(gpusync_at_value(p->line[t].timeline, (uint64_t)byte() * 4), on_tally, mine),
               GPUSYNC_OK);
        break;
    }
    mine->expected = true;
}

static void read_errors(program *p)
{
    int q = (int)below_of((unsigned)p->queues);
    gpusync_error error;
    while (gpusync_next_error(p->queue[q], &seen.cursor[q], &error) == GPUSYNC_OK) {
        must(error.result == GPUSYNC_ERROR_EXECUTION && error.dropped == 0, "a failure with %d", error.result);
        must(gpusync_failure_is_transient(error.failure) == may_pass(error.failure), "a failure of class %d",
             (int)error.failure);
        answer(gpusync_poll(p->queue[q], error.ticket), GPUSYNC_ERROR_EXECUTION);
        seen.failures[q]++;
    }
}

static void count_things(program *p)
{
    int q = (int)below_of((unsigned)p->queues), i;
    gpusync_stats stats, all;
    uint64_t issued = 0;
    answer(gpusync_get_stats(p->queue[q], &stats), GPUSYNC_OK);
    answer(gpusync_device_get_stats(p->r.device, &all), GPUSYNC_OK);
    for (i = 0; i < p->steps; i++)
        issued += p->step[i].kind != HOST && p->step[i].state == ISSUED && p->step[i].queue == q;
    must(stats.commits == issued && stats.completions <= issued, "%llu of %llu", (unsigned long long)stats.commits,
         (unsigned long long)issued);
    must(all.commits >= stats.commits && all.failures >= stats.failures, "the sum is less");
}

static void write_report(program *p)
{
    static char text[16384];
    size_t length = gpusync_report(p->r.device, NULL, 0), size = byte() * 16u, again;
    again = gpusync_report(p->r.device, size ? text : NULL, size);
    must(again == length, "a report of %zu, then of %zu", length, again);
    must(size == 0 || strlen(text) == (length < size ? length : size - 1), "a report that is cut wrongly");
}

static void begin_a_reader(program *p)
{
    unsigned q = below_of((unsigned)p->queues);
    read_late(&seen.late[q], p->queue[q], below_of(64) % 4 == 0);
}

static void make_something_else(program *p)
{
    int n = (int)below_of((unsigned)p->queues);
    gpusync_queue *q = p->queue[n];
    gpusync_timeline *timeline = NULL;
    gpusync_queue *queue = NULL;
    void *buffer = NULL;
    gpusync_result result;
    if (one_in(2)) arm(p);
    switch (below_of(3)) {
    case 0:
        result = answer(gpusync_timeline_create(p->r.device, NULL, &timeline), GPUSYNC_OK, GPUSYNC_ERROR_OUT_OF_MEMORY);
        must((result == GPUSYNC_OK) == (timeline != NULL), "a timeline");
        heal(p);
        answer(gpusync_timeline_destroy(timeline), GPUSYNC_OK);
        break;
    case 1:
        result = answer(gpusync_queue_create(p->r.device, NULL, &queue), GPUSYNC_OK, GPUSYNC_ERROR_OUT_OF_MEMORY);
        must((result == GPUSYNC_OK) == (queue != NULL), "a queue");
        heal(p);
        answer(one_in(2) ? gpusync_queue_destroy_now(queue) : gpusync_queue_destroy(queue), GPUSYNC_OK);
        break;
    default:
        result = answer(gpusync_command_buffer(q, NULL, &buffer), GPUSYNC_OK, GPUSYNC_ERROR_OUT_OF_MEMORY,
                        p->sticky[n] ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        must((result == GPUSYNC_OK) == (buffer != NULL), "a command buffer");
        heal(p);
        answer(gpusync_command_buffer_discard(q, buffer), buffer ? GPUSYNC_OK : INVALID);
        answer(gpusync_command_buffer_discard(q, p), GPUSYNC_ERROR_UNKNOWN_BUFFER);
        break;
    }
    heal(p);
}

static void on_later(void *user) { COUNT((unsigned *)user); }

/* One with work and an open command buffer goes later: when its work has ended. */
static void make_and_let_go(program *p)
{
    gpusync_queue_desc desc;
    gpusync_queue *queue = NULL;
    gpusync_timeline *timeline = NULL;
    gpusync_ticket ticket = 0;
    unsigned told = 0, rounds = 0;
    void *buffer = NULL, *metal;
    memset(&desc, 0, sizeof desc);
    desc.sticky_failure = one_in(2);
    if (one_in(4)) {
        answer(gpusync_timeline_create(p->r.device, NULL, &timeline), GPUSYNC_OK);
        answer(gpusync_timeline_destroy_later(timeline, on_later, &told), GPUSYNC_OK);
        for (; GET(&told) == 0; let_time_pass()) must(rounds++ < 100, "a timeline does not go");
        must(told == 1, "a timeline went %u times", told);
        return;
    }
    answer(gpusync_queue_create(p->r.device, &desc, &queue), GPUSYNC_OK);
    metal = metal_retain(gpusync_queue_metal(queue));
    answer(gpusync_command_buffer(queue, NULL, &buffer), GPUSYNC_OK);
    if (one_in(2)) answer(gpusync_commit(queue, buffer, &ticket), GPUSYNC_OK);
    p->others += ticket;
    answer(gpusync_queue_destroy_later(queue, on_later, &told), GPUSYNC_OK);
    if (ticket) {
        let_time_pass();
        must(GET(&told) == 0, "a queue with work in flight is gone");
        softmetal_finish(buffer);
    }
    for (; GET(&told) == 0; let_time_pass()) must(rounds++ < 100, "a queue does not go");
    must(told == 1, "a queue went %u times", told);
    metal_release(metal);
}

/* What came with 0.3. */
static void come_between_newly(program *p)
{
    int q = (int)below_of((unsigned)p->queues);
    const step *s = some_step(p);
    char text[256];
    size_t size = 1 + byte(), length;
    mishap *m;
    switch (below_of(6)) {
    case 0:
    case 1:
    case 2:
        m = add_mishap(p, CLEAR, q, seen.submitted);
        if (m) run_mishap(p, m);
        break;
    case 3:
        if (s)
            answer(gpusync_wait_ex(p->queue[s->queue], s->ticket, 0, NULL),
                   as_wait(gpusync_poll(p->queue[s->queue], s->ticket)));
        break;
    case 4:
        length = gpusync_queue_report(p->queue[q], text, size);
        must(length > 0 && strlen(text) == (length < size ? length : size - 1), "a report that is cut wrongly");
        break;
    default: make_and_let_go(p); break;
    }
}

static void come_between(program *p)
{
    const step *s = some_step(p);
    size_t count = 7;
    if (seen.sticky && one_in(3)) {
        come_between_newly(p);
        come_to_rest_now();
        return;
    }
    switch (below_of(10)) {
    case 0:
    case 1:
        if (s) ask_about(p, s);
        break;
    case 2: ask_about_many(p); break;
    case 3: have_it_told(p); break;
    case 4: read_errors(p); break;
    case 5: count_things(p); break;
    case 6: write_report(p); break;
    case 7: begin_a_reader(p); break;
    case 8: make_something_else(p); break;
    default:
        answer(gpusync_dispatch(p->r.device, byte(), &count), GPUSYNC_OK);
        must(count == 0, "%zu callbacks were left to be dispatched", count);
        answer(gpusync_device_wait(p->r.device, 0, NULL), GPUSYNC_OK, GPUSYNC_TIMEOUT, GPUSYNC_ERROR_EXECUTION);
        break;
    }
    come_to_rest_now();
}

static void trace_nothing(void *user, const gpusync_trace_event *event)
{
    must(event->kind <= GPUSYNC_TRACE_CALLBACK, "an event of kind %d", (int)event->kind);
    __atomic_fetch_add((uint64_t *)user, 1, __ATOMIC_RELAXED);
}

static void play_by_the_bytes(program *p)
{
    while (!input_is_over()) {
        unsigned op = byte();
        switch (op & 15) {
        case 0: arm(p); /* fall through */
        case 1:
        case 2:
        case 3:
        case 4: (void)submit_next(p); break;
        case 5: (void)host_next(p); break;
        case 6:
        case 7:
        case 8:
        case 9:
        case 10: (void)gpu_step(op >> 4, op >> 6, op & 1); break;
        case 11: talk_nonsense(p->r.device, p->queue[0], p->line[0].timeline, p->sticky[0]); break;
        default: come_between(p); break;
        }
        heal(p);
        check_now(p);
    }
}

/* All that is left. What the model has drawn always ends. */
static void play_to_the_end(program *p)
{
    bool moved;
    int i;
    do {
        moved = submit_next(p);
        moved = host_next(p) || moved;
        moved = gpu_step(0, 0, true) || moved;
        check_now(p);
    } while (moved);
    expect(p, seen.submitted == p->ordered, "%d of %d steps are submitted", seen.submitted, p->ordered);
    while (seen.host < p->steps && p->step[seen.host].kind != HOST) seen.host++;
    expect(p, seen.host == p->steps, "the host's step %d cannot be run", seen.host);
    for (i = 0; i < p->steps; i++)
        if (p->step[i].kind != HOST && p->step[i].state == ISSUED)
            expect(p, gpusync_is_done(p->queue[p->step[i].queue], p->step[i].ticket), "step %d is not done", i);
    for (i = 0; i < p->queues; i++) {
        expect(p, gpusync_is_idle(p->queue[i]), "queue %d is not idle", i);
        expect(p, p->keeps || softmetal_outstanding(gpusync_queue_metal(p->queue[i])) == 0,
               "queue %d has command buffers", i);
        if (seen.fills && !p->keeps && !p->metal4[i] && !p->sticky[i]) fill_queue(p->queue[i], 256, 0);
    }
}

static void play_program(bool sticky)
{
    static program p;
    unsigned how = byte();
    uint64_t events = 0;
    int i;
    memset(&seen, 0, sizeof seen);
    seen.sticky = sticky;
    seen.fills = how & 8;
    meet_if(!sticky, program);
    meet_if(sticky, sticky_program);
    fuzzed = &p;
    draw_program(&p, how & 1, draw_from_bytes, sticky);
    p.keeps = how >> 1 & 1;
    p.again = again_with_memory;
    p.hooks = &fuzz_hooks;
    gpu.in_order = !p.overlap;
    open_program(&p, SOFTMETAL_MANUAL);
    for (i = 0; i < p.queues; i++) gpu_add(gpusync_queue_metal(p.queue[i]));
    if (how & 4) answer(gpusync_set_trace(p.r.device, trace_nothing, &events), GPUSYNC_OK);
    play_by_the_bytes(&p);
    play_to_the_end(&p);
    ask_steps(&p);
    ask_timelines(&p);
    check_program(&p);
    gpu_forget();
    close_program(&p);
    must(!(how & 4) || events > 0, "a trace without events");
    check_tallies();
}

#endif
