/* graph.h - programs of submissions, and the model that knows how each of them must end

   A program is a list of steps in an order in which it could run one by one: submissions, plain commits, and steps of
   the host, which waits and signals. It is submitted in another order, in which waits come before their signals. Each
   step copies a byte of everybody it waited for and then writes its own, so lost order shows as a wrong byte. Nobody
   signals a timeline without waiting for the value before his own; so the model can say what fails, and with whose
   error.

   Who includes this has the implementation in the same file, draws a program, opens it, runs it in his own way (submit,
   run_on_host), asks how it went (ask_steps, ask_timelines), and has check_program judge that. Whatever is wrong prints
   the program and fails as an assertion of cmocka's does. */
#ifndef GRAPH_H
#define GRAPH_H

#include "support.h"

#define QUEUES 4
#define TIMELINES 4
#define STEPS 28
#define EDGES 6
#define BUFFERS 3
#define PATIENCE SECONDS(20) /* for what is on its way */

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif
#ifndef THREAD_SANITIZER
#define THREAD_SANITIZER 0
#endif

#define GET(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define PUT(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)

/* What a step writes to its memory, at these offsets. */
enum {
    SEEN = 0,             /* by edge: the stamp of who was waited for */
    CELLS = SEEN + EDGES, /* by timeline: who signalled last before this step */
    LINE = CELLS + TIMELINES, /* the stamp of who is before this step on the queue */
    MARKS,                /* by command buffer: it ran */
    LINKS = MARKS + BUFFERS, /* by command buffer: the mark of the one before */
    STAMP = LINKS + BUFFERS,
    MEMORY
};

typedef enum kind { SUBMIT, COMMIT, HOST } kind;
enum { PENDING, ISSUED, REFUSED }; /* states of a step */

/* A wait: for a value of a timeline, or, where that is -1, for the ticket of a step. */
typedef struct edge {
    int step, timeline;
    uint64_t value;
    int head; /* the command buffer that has it at its head; -1: none, the submission itself waits */
} edge;

typedef struct promise {
    int timeline, previous; /* the step that signals before this one, or -1 */
    uint64_t value, before;
} promise;

typedef struct program program;

typedef struct step {
    /* what it is */
    program *program;
    kind kind;
    int index, queue, edges, buffers, promises;
    uint32_t flags;
    edge edge[EDGES]; /* in the order in which the first failure counts: the submission's, then by command buffer */
    promise promise[TIMELINES];
    int line;        /* the step before it on the queue that has memory to read, or -1 */
    int fails;       /* the command buffer that fails, or -1 */
    long code;
    uint64_t before; /* set of steps that have ended when this one's command buffers have */
    bool late_waits; /* for a command buffer that is discarded: is one made? */
    /* how it went */
    void *memory;    /* a Metal buffer */
    void *kept[BUFFERS]; /* its command buffers, +1, or NULL */
    gpusync_ticket ticket;
    unsigned state;
    gpusync_result result;
    gpusync_error error;
    unsigned calls, over;
    gpusync_result signalled[TIMELINES]; /* what the host was told */
    gpusync_result told, seen_in_callback;
    gpusync_error told_error;
} step;

typedef struct line {
    gpusync_timeline *timeline;
    void *cell; /* a Metal buffer of one byte: the stamp of the last who signalled */
    uint64_t initial, last, value;
    int signaller; /* the last; -1: none */
    gpusync_result result;
    gpusync_error error;
} line;

struct program {
    rig r;
    uint64_t seed, random;
    uint64_t (*source)(void);      /* of what is drawn; NULL: the seed's generator */
    bool (*again)(gpusync_result); /* try a call again that did nothing, for this reason? May be NULL */
    uint64_t patience;             /* of waits for what has to come */
    const gpusync_hooks *hooks;    /* of the device */
    bool keeps;                    /* the steps keep their command buffers, to be looked at */
    bool overlap;
    bool mute; /* steps do not read what others write */
    unsigned fail_per_mille;
    int queues, timelines, steps;
    gpusync_queue *queue[QUEUES];
    line line[TIMELINES];
    step step[STEPS];
    int order[STEPS], ordered; /* of submission */
};

static struct coverage {
    uint64_t programs, held, skipped, saved, failed, inherited, refused, hosts, overlapping;
} coverage;

static uint64_t draw(program *p)
{
    if (p->source) return p->source();
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    return p->random >> 11;
}

static uint64_t below(program *p, uint64_t limit)
{
    return draw(p) % limit;
}

static bool chance(program *p, unsigned per_mille)
{
    return below(p, 1000) < per_mille;
}

static int number(program *p, int limit)
{
    return (int)below(p, (uint64_t)limit);
}

static unsigned char stamp_of(const step *s)
{
    return (unsigned char)(s->index + 1);
}

/* -- saying what is wrong ----------------------------------------------------------------------------- */

static void print_step(const step *s)
{
    static const char *const kinds[] = {"submit", "commit", "host"};
    int i;
    print_message("%3d %s", s->index, kinds[s->kind]);
    if (s->kind != HOST)
        print_message(" on queue %d%s%s%s, %d buffers", s->queue, s->flags & SIGNALS_INSIDE ? " open" : "",
                      s->flags & GPUSYNC_STRICT ? " strict" : "", s->flags & GPUSYNC_UNORDERED ? " unordered" : "",
                      s->buffers);
    for (i = 0; i < s->edges; i++) {
        const edge *e = &s->edge[i];
        if (e->timeline < 0) print_message("; waits for ticket of %d", e->step);
        else print_message("; waits for %d:%llu of %d", e->timeline, (unsigned long long)e->value, e->step);
        if (e->head >= 0) print_message(" at head of buffer %d", e->head);
    }
    for (i = 0; i < s->promises; i++)
        print_message("; signals %d:%llu", s->promise[i].timeline, (unsigned long long)s->promise[i].value);
    if (s->fails >= 0) print_message("; buffer %d fails, code %ld", s->fails, s->code);
    print_message(" -> %s, ticket %llu, %d %s\n", GET(&s->state) == REFUSED ? "refused" : "made",
                  (unsigned long long)GET(&s->ticket), s->result, s->result ? s->error.message : "");
}

static void print_program(program *p)
{
    static char text[32768];
    int i;
    print_message("%d queues, %d timelines%s\n", p->queues, p->timelines, p->overlap ? ", overlapping" : "");
    for (i = 0; i < p->steps; i++) print_step(&p->step[i]);
    print_message("in the order");
    for (i = 0; i < p->ordered; i++) print_message(" %d", p->order[i]);
    print_message("\n");
    for (i = 0; i < p->timelines; i++)
        print_message("timeline %d: value %llu, %d %s\n", i, (unsigned long long)p->line[i].value, p->line[i].result,
                      p->line[i].result ? p->line[i].error.message : "");
    gpusync_report(p->r.device, text, sizeof text);
    print_message("%s\n", text);
}

#define expect(p, condition, ...) \
    do \
        if (!(condition)) wrong(p, __LINE__, #condition, __VA_ARGS__); \
    while (0)
__attribute__((format(printf, 4, 5))) static void wrong(program *p, int at, const char *condition, const char *format,
                                                        ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_program(p);
    print_error("not so: %s: %s\n", condition, text);
    if (!p->source) print_error("GRAPH_SEED=%llu\n", (unsigned long long)p->seed);
    _fail(__FILE__, at);
}

/* -- drawing a program -------------------------------------------------------------------------------- */

static void depend(step *s, int on)
{
    s->before |= s->program->step[on].before | (uint64_t)1 << on;
}

static void add_edge(step *s, int on, int timeline, uint64_t value)
{
    edge *e = &s->edge[s->edges++];
    assert_true(s->edges <= EDGES);
    e->step = on;
    e->timeline = timeline;
    e->value = value;
    e->head = -1;
    depend(s, on);
}

/* Wait for a step by its ticket or by one of its signals; in vain where it has neither. */
static void wait_for_step(program *p, step *s, int on)
{
    const step *other = &p->step[on];
    if (other->promises && (other->kind == HOST || chance(p, 600))) {
        const promise *signal = &other->promise[number(p, other->promises)];
        add_edge(s, on, signal->timeline, signal->value - below(p, signal->value - signal->before));
    } else if (other->kind != HOST) {
        add_edge(s, on, -1, 0);
    }
}

static void draw_promise(program *p, step *s, int timeline)
{
    line *l = &p->line[timeline];
    promise *made = &s->promise[s->promises++];
    made->timeline = timeline;
    made->previous = l->signaller;
    made->before = l->last;
    made->value = l->last + 1 + below(p, 5);
    if (made->previous < 0) return;
    if (p->step[made->previous].kind != HOST && chance(p, 200)) {
        add_edge(s, made->previous, -1, 0);
    } else {
        const step *other = &p->step[made->previous];
        int i = 0;
        while (other->promise[i].timeline != timeline) i++;
        add_edge(s, made->previous, timeline, made->before - below(p, made->before - other->promise[i].before));
    }
}

static void draw_promises(program *p, step *s)
{
    int count = chance(p, 300) ? 0 : s->kind == HOST ? 1 : 1 + number(p, 3), first, i;
    if (count > p->timelines) count = p->timelines;
    first = number(p, p->timelines);
    for (i = 0; i < count; i++) draw_promise(p, s, (first + i) % p->timelines);
}

/* From here on others can wait for it. */
static void make_promises_known(program *p, const step *s)
{
    int i;
    for (i = 0; i < s->promises; i++) {
        line *l = &p->line[s->promise[i].timeline];
        l->signaller = s->index;
        l->last = s->promise[i].value;
    }
}

/* Where buffers may overlap, a wait must be at the head of one, or on the host, or no work may follow it. */
static int draw_head(program *p, const step *s)
{
    if (s->kind == COMMIT) return 0;
    if (s->kind == HOST || s->buffers == 0) return -1;
    if (p->overlap && !(s->flags & GPUSYNC_STRICT)) return number(p, s->buffers);
    return chance(p, 700) ? -1 : number(p, s->buffers);
}

static void draw_heads(program *p, step *s)
{
    int i, k;
    for (i = 0; i < s->edges; i++) {
        edge e = s->edge[i];
        e.head = draw_head(p, s);
        for (k = i; k > 0 && s->edge[k - 1].head > e.head; k--) s->edge[k] = s->edge[k - 1];
        s->edge[k] = e;
    }
}

static void draw_flags(program *p, step *s)
{
    if (chance(p, 500)) s->flags |= SIGNALS_INSIDE;
    if (chance(p, 200)) s->flags |= GPUSYNC_STRICT;
    if (chance(p, 200)) s->flags |= GPUSYNC_UNORDERED;
    if (p->overlap && !(s->flags & GPUSYNC_STRICT)) s->flags |= SIGNALS_INSIDE;
}

static void draw_step(program *p, int index)
{
    static const long codes[] = {1, 2, 3, 8, 9};
    step *s = &p->step[index];
    int waits = number(p, 4);
    s->program = p;
    s->index = index;
    s->kind = chance(p, 170) ? HOST : chance(p, 170) ? COMMIT : SUBMIT;
    s->queue = number(p, p->queues);
    s->fails = s->line = -1;
    s->buffers = s->kind == HOST ? 0 : s->kind == COMMIT ? 1 : number(p, BUFFERS + 1);
    if (s->kind == SUBMIT) draw_flags(p, s);
    while (index && waits-- > 0) /* mostly for one of the last six */
        wait_for_step(p, s, chance(p, 300) ? number(p, index) : index - 1 - number(p, index < 6 ? index : 6));
    draw_promises(p, s);
    make_promises_known(p, s);
    draw_heads(p, s);
    if (s->buffers && chance(p, p->fail_per_mille)) s->fails = number(p, s->buffers);
    s->code = codes[number(p, 5)];
    s->late_waits = chance(p, 100);
}

/* Has everything been submitted whose ticket the step needs, and what its queue has to get first? */
static bool may_come(const program *p, const bool *placed, const step *s)
{
    int i;
    if (s->kind == HOST || placed[s->index]) return false;
    for (i = 0; i < s->edges; i++)
        if (s->edge[i].timeline < 0 && !placed[s->edge[i].step]) return false;
    if (s->flags & GPUSYNC_UNORDERED) return true;
    for (i = 0; i < s->index; i++) {
        const step *other = &p->step[i];
        if (other->kind != HOST && other->queue == s->queue && !(other->flags & GPUSYNC_UNORDERED) && !placed[i])
            return false;
    }
    return true;
}

/* As it comes, in the order of the steps, or, as far as that can be, backwards: then everything is held. */
static void draw_order(program *p)
{
    bool placed[STEPS] = {false};
    uint64_t how = below(p, 4);
    for (;;) {
        int candidates[STEPS], count = 0, i;
        for (i = 0; i < p->steps; i++)
            if (may_come(p, placed, &p->step[i])) candidates[count++] = i;
        if (count == 0) return;
        i = candidates[how == 0 ? 0 : how == 1 ? count - 1 : number(p, count)];
        placed[i] = true;
        p->order[p->ordered++] = i;
    }
}

/* Steps on a queue that neither may pass the other are in order there, without a wait, as they share tracked memory. */
static void draw_lines(program *p)
{
    int i, last[QUEUES] = {-1, -1, -1, -1};
    for (i = 0; i < p->steps; i++) {
        step *s = &p->step[i];
        if (s->kind == HOST || s->buffers == 0 || s->flags & GPUSYNC_UNORDERED) continue;
        s->line = last[s->queue];
        last[s->queue] = i;
    }
}

/* Without a source, from the seed. */
static void draw_program(program *p, uint64_t seed, uint64_t (*source)(void))
{
    static const unsigned rates[] = {0, 30, 30, 200};
    int i;
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->source = source;
    p->random = seed * 0x9E3779B97F4A7C15u + 1;
    for (i = 0; i < 8 && !source; i++) (void)draw(p);
    p->queues = 1 + number(p, QUEUES);
    p->timelines = 1 + number(p, TIMELINES);
    p->steps = 2 + number(p, STEPS - 1);
    p->overlap = chance(p, 300);
    p->fail_per_mille = rates[number(p, 4)];
    for (i = 0; i < p->timelines; i++) {
        p->line[i].initial = p->line[i].last = chance(p, 500) ? 0 : below(p, 1000);
        p->line[i].signaller = -1;
    }
    for (i = 0; i < p->steps; i++) draw_step(p, i);
    /* work that waits for a timeline that fails is let go at once, and reads what is being written */
    for (i = 0; i < p->steps && THREAD_SANITIZER; i++) p->mute = p->mute || p->step[i].fails >= 0;
    draw_lines(p);
    draw_order(p);
}

/* -- running it --------------------------------------------------------------------------------------- */

/* The step whose stamp tells that this one has ended: itself, or, where it writes nothing, what it waited for. */
static const step *witness(const program *p, int index)
{
    const step *s = &p->step[index];
    while (s->kind != HOST && s->buffers == 0) {
        if (s->edges == 0) return NULL;
        s = &p->step[s->edge[0].step];
    }
    return s;
}

static void encode(step *s, int k, void *buffer)
{
    program *p = s->program;
    void *blit = metal_blit_begin(buffer);
    int i;
    if (k == 0 && s->line >= 0 && !p->mute) metal_copy(blit, p->step[s->line].memory, STAMP, s->memory, LINE, 1);
    if (k > 0) metal_copy(blit, s->memory, (size_t)(MARKS + k - 1), s->memory, (size_t)(LINKS + k), 1);
    for (i = 0; i < s->edges && !p->mute; i++) {
        const step *from = witness(p, s->edge[i].step);
        if (from && (s->edge[i].head < 0 ? 0 : s->edge[i].head) == k)
            metal_copy(blit, from->memory, STAMP, s->memory, (size_t)(SEEN + i), 1);
    }
    metal_fill(blit, s->memory, (size_t)(MARKS + k), 1, stamp_of(s));
    if (k == s->buffers - 1) {
        for (i = 0; i < s->promises && !p->mute; i++) {
            int timeline = s->promise[i].timeline;
            metal_copy(blit, p->line[timeline].cell, 0, s->memory, (size_t)(CELLS + timeline), 1);
            metal_fill(blit, p->line[timeline].cell, 0, 1, stamp_of(s));
        }
        metal_fill(blit, s->memory, STAMP, 1, stamp_of(s));
    }
    metal_end(blit);
}

static gpusync_point point_of(const program *p, const edge *e)
{
    gpusync_point point;
    memset(&point, 0, sizeof point);
    if (e->timeline >= 0) {
        point.timeline = p->line[e->timeline].timeline;
        point.value = e->value;
    } else {
        point.queue = p->queue[p->step[e->step].queue];
        point.ticket = GET(&p->step[e->step].ticket);
    }
    return point;
}

static size_t points_of(const step *s, int head, gpusync_point *points)
{
    size_t count = 0;
    int i;
    for (i = 0; i < s->edges; i++)
        if (s->edge[i].head == head) points[count++] = point_of(s->program, &s->edge[i]);
    return count;
}

static bool goes_again(const program *p, gpusync_result result)
{
    return result != GPUSYNC_OK && p->again && p->again(result);
}

static void *new_buffer(const step *s, const gpusync_command_buffer_desc *desc)
{
    gpusync_result result;
    void *buffer;
    do result = gpusync_command_buffer(s->program->queue[s->queue], desc, &buffer);
    while (goes_again(s->program, result));
    assert_ok(result);
    return buffer;
}

/* The waits that are to be at the head of a buffer, k-th of the step. */
static void encode_waits(const step *s, int k, void *buffer)
{
    gpusync_point points[EDGES];
    size_t i, count = points_of(s, k, points);
    gpusync_result result;
    for (i = 0; i < count; i++) {
        do result = gpusync_encode_wait(s->program->queue[s->queue], buffer, points[i]);
        while (goes_again(s->program, result));
        assert_ok(result);
    }
}

static void *make_buffer(step *s, int k)
{
    gpusync_command_buffer_desc desc;
    char text[32];
    void *buffer;
    memset(&desc, 0, sizeof desc);
    snprintf(text, sizeof text, "buffer %d of step %d", k, s->index);
    desc.label = text;
    buffer = new_buffer(s, &desc);
    encode_waits(s, k, buffer);
    encode(s, k, buffer);
    snprintf(text, sizeof text, "step %d failed", s->index);
    if (s->fails == k) softmetal_fail(buffer, NULL, s->code, text);
    if (s->program->keeps) s->kept[k] = metal_retain(buffer);
    return buffer;
}

/* What it signals must be known by now, one way or the other. */
static void on_complete(void *user, gpusync_result result, const gpusync_error *error)
{
    step *s = (step *)user;
    int i;
    __atomic_fetch_add(&s->calls, 1, __ATOMIC_SEQ_CST);
    s->told = result;
    if (error) s->told_error = *error;
    if (!error != !result) s->seen_in_callback = GPUSYNC_ERROR_INVALID_ARGUMENT;
    for (i = 0; i < s->promises; i++) {
        gpusync_timeline *timeline = s->program->line[s->promise[i].timeline].timeline;
        gpusync_result seen = gpusync_timeline_wait(timeline, s->promise[i].value, s->program->patience, NULL);
        if (seen == GPUSYNC_OK && result) s->seen_in_callback = GPUSYNC_NOT_READY;
        if (seen > 0 || seen == GPUSYNC_ERROR_WOULD_DEADLOCK) s->seen_in_callback = seen;
    }
    PUT(&s->over, 1);
}

static void fail_promises(step *s)
{
    int i;
    for (i = 0; i < s->promises; i++)
        (void)gpusync_timeline_fail(s->program->line[s->promise[i].timeline].timeline, &s->error);
}

/* The submission was not taken, or a ticket that it needs does not exist: whoever relies on it has to be told. */
static void refuse(step *s, void **buffers, const gpusync_error *error)
{
    int k;
    s->error = *error;
    s->result = error->result;
    for (k = 0; buffers && k < s->buffers; k++)
        assert_ok(gpusync_command_buffer_discard(s->program->queue[s->queue], buffers[k]));
    fail_promises(s);
    PUT(&s->state, REFUSED);
}

/* A step that was refused, of those whose tickets this one needs. */
static const step *refused_before(const step *s)
{
    int i;
    for (i = 0; i < s->edges; i++) {
        const step *other = &s->program->step[s->edge[i].step];
        if (s->edge[i].timeline < 0 && GET(&other->state) == REFUSED) return other;
    }
    return NULL;
}

static void explain_refusal(step *s, void **buffers, gpusync_result result)
{
    program *p = s->program;
    gpusync_wait_options options;
    gpusync_error error;
    int i;
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    options.error = &error;
    for (i = 0; i < s->promises; i++) {
        gpusync_timeline *timeline = p->line[s->promise[i].timeline].timeline;
        gpusync_result why = gpusync_timeline_wait(timeline, s->promise[i].value, 0, &options);
        if (why < 0) {
            expect(p, why == result, "step %d is refused with %d, its timeline failed with %d", s->index, result, why);
            refuse(s, buffers, &error);
            return;
        }
    }
    wrong(p, __LINE__, "a reason", "step %d is refused with %d (%s)", s->index, result, gpusync_result_string(result));
}

/* Its signals, in its last buffer. */
static gpusync_result encode_signals(const step *s, void *buffer, const gpusync_point *signals)
{
    gpusync_result result = GPUSYNC_OK;
    int i;
    for (i = 0; i < s->promises && result == GPUSYNC_OK; i++)
        do result = gpusync_encode_signal(s->program->queue[s->queue], buffer, signals[i]);
        while (goes_again(s->program, result));
    return result;
}

static gpusync_result commit(const step *s, void *buffer, gpusync_ticket *ticket)
{
    gpusync_result result;
    do result = gpusync_commit(s->program->queue[s->queue], buffer, ticket);
    while (goes_again(s->program, result));
    return result;
}

static void submit(step *s)
{
    program *p = s->program;
    gpusync_queue *q = p->queue[s->queue];
    gpusync_submission submission;
    gpusync_point waits[EDGES], signals[TIMELINES];
    gpusync_ticket ticket = 0;
    gpusync_result result = GPUSYNC_OK;
    void *buffers[BUFFERS];
    char label[32];
    bool inside = s->buffers && (s->kind == COMMIT || s->flags & SIGNALS_INSIDE);
    const step *missing = refused_before(s);
    int i;
    if (missing) {
        refuse(s, NULL, &missing->error);
        return;
    }
    for (i = 0; i < s->buffers; i++) buffers[i] = make_buffer(s, i);
    snprintf(label, sizeof label, "step %d", s->index);
    memset(&submission, 0, sizeof submission);
    submission.waits = waits;
    submission.wait_count = points_of(s, -1, waits);
    submission.command_buffers = buffers;
    submission.command_buffer_count = (size_t)s->buffers;
    submission.signals = signals;
    submission.signal_count = inside ? 0 : (size_t)s->promises;
    memset(signals, 0, sizeof signals);
    for (i = 0; i < s->promises; i++) {
        signals[i].timeline = p->line[s->promise[i].timeline].timeline;
        signals[i].value = s->promise[i].value;
    }
    submission.on_complete = on_complete;
    submission.user = s;
    submission.label = label;
    submission.flags = s->flags & ~SIGNALS_INSIDE;
    if (inside) result = encode_signals(s, buffers[s->buffers - 1], signals);
    if (result == GPUSYNC_OK && s->kind == COMMIT) result = commit(s, buffers[0], &ticket);
    else if (result == GPUSYNC_OK)
        do result = gpusync_submit(q, &submission, &ticket);
        while (goes_again(p, result));
    if (result != GPUSYNC_OK) {
        explain_refusal(s, buffers, result);
        return;
    }
    expect(p, ticket != 0, "step %d", s->index);
    PUT(&s->ticket, ticket);
    PUT(&s->state, ISSUED);
}

/* A command buffer that is not used after all takes nothing with it. */
static void make_and_discard(step *s)
{
    void *buffer;
    if (refused_before(s)) return;
    buffer = new_buffer(s, NULL);
    encode_waits(s, s->edges ? s->edge[0].head : -1, buffer);
    assert_ok(gpusync_command_buffer_discard(s->program->queue[s->queue], buffer));
}

/* On the thread of the host's steps. */
static gpusync_result wait_on_host(step *s, const edge *e)
{
    program *p = s->program;
    step *other = &p->step[e->step];
    gpusync_wait_options options;
    gpusync_result result;
    memset(&options, 0, sizeof options);
    options.error = &s->error;
    if (e->timeline >= 0) {
        result = gpusync_timeline_wait(p->line[e->timeline].timeline, e->value, p->patience, &options);
    } else {
        while (GET(&other->state) == PENDING) sched_yield();
        if (GET(&other->state) == REFUSED) {
            s->error = other->error;
            return other->result;
        }
        result = gpusync_wait_ex(p->queue[other->queue], GET(&other->ticket), p->patience, &options);
    }
    return result;
}

static void run_on_host(step *s)
{
    program *p = s->program;
    unsigned char *memory = (unsigned char *)metal_contents(s->memory);
    int i;
    for (i = 0; i < s->edges && s->result == GPUSYNC_OK; i++) {
        const step *from = witness(p, s->edge[i].step);
        s->result = wait_on_host(s, &s->edge[i]);
        if (s->result == GPUSYNC_OK && from && !p->mute)
            memory[SEEN + i] = ((const unsigned char *)metal_contents(from->memory))[STAMP];
    }
    if (s->result != GPUSYNC_OK) {
        fail_promises(s);
        return;
    }
    memory[STAMP] = stamp_of(s);
    for (i = 0; i < s->promises; i++) {
        line *l = &p->line[s->promise[i].timeline];
        unsigned char *cell = (unsigned char *)metal_contents(l->cell);
        if (!p->mute) {
            memory[CELLS + s->promise[i].timeline] = *cell;
            *cell = stamp_of(s);
        }
        do s->signalled[i] = gpusync_timeline_signal(l->timeline, s->promise[i].value);
        while (goes_again(p, s->signalled[i]));
    }
}

static void open_program(program *p, softmetal_clock clock)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    char label[32];
    int i;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = 256; /* so that whoever submits everything never waits for room */
    queue_desc.label = "queue 0";
    device_desc.hooks = p->hooks;
    rig_open_with(&p->r, clock, device_desc, queue_desc);
    p->queue[0] = p->r.queue;
    for (i = 1; i < p->queues; i++) {
        snprintf(label, sizeof label, "queue %d", i);
        queue_desc.label = label;
        assert_ok(gpusync_queue_create(p->r.device, &queue_desc, &p->queue[i]));
    }
    for (i = 0; i < p->timelines; i++) {
        gpusync_timeline_desc desc;
        memset(&desc, 0, sizeof desc);
        snprintf(label, sizeof label, "timeline %d", i);
        desc.label = label;
        desc.initial_value = p->line[i].initial;
        assert_ok(gpusync_timeline_create(p->r.device, &desc, &p->line[i].timeline));
        p->line[i].cell = metal_buffer_new(p->r.metal_device, 1);
    }
    for (i = 0; i < p->steps; i++) p->step[i].memory = metal_buffer_new(p->r.metal_device, MEMORY);
}

/* How the steps have ended: they all have, or will within the program's patience. */
static void ask_steps(program *p)
{
    int i;
    for (i = 0; i < p->steps; i++) {
        step *s = &p->step[i];
        gpusync_wait_options options;
        if (s->state != ISSUED) continue;
        memset(&options, 0, sizeof options);
        options.error = &s->error;
        s->result = gpusync_wait_ex(p->queue[s->queue], s->ticket, p->patience, &options);
        expect(p, s->result <= 0, "step %d has not ended", i);
    }
}

/* ... and then the timelines, when the host has done its part. */
static void ask_timelines(program *p)
{
    int i;
    for (i = 0; i < p->timelines; i++) {
        line *l = &p->line[i];
        gpusync_wait_options options;
        gpusync_result result;
        memset(&options, 0, sizeof options);
        options.error = &l->error;
        l->result = gpusync_timeline_wait(l->timeline, l->last, p->patience, &options);
        result = gpusync_timeline_query(l->timeline, &l->value);
        expect(p, result == l->result, "timeline %d: the wait said %d, the question %d", i, l->result, result);
    }
}

/* -- the model ---------------------------------------------------------------------------------------- */

/* The same failure, whoever tells it: all but the ticket. */
static bool same(const gpusync_error *a, const gpusync_error *b)
{
    return a->result == b->result && a->failure == b->failure && a->code == b->code && !strcmp(a->domain, b->domain) &&
           !strcmp(a->message, b->message) && !strcmp(a->label, b->label) && !strcmp(a->queue_label, b->queue_label);
}

static bool is_own(const step *s, const gpusync_error *error)
{
    char message[32], label[32], queue[32];
    snprintf(message, sizeof message, "step %d failed", s->index);
    snprintf(label, sizeof label, "buffer %d of step %d", s->fails, s->index);
    snprintf(queue, sizeof queue, "queue %d", s->queue);
    return s->fails >= 0 && error->result == GPUSYNC_ERROR_EXECUTION && error->code == s->code &&
           !strcmp(error->message, message) && !strcmp(error->label, label) && !strcmp(error->queue_label, queue);
}

static bool signals(const step *s, int timeline)
{
    int i;
    for (i = 0; i < s->promises; i++)
        if (s->promise[i].timeline == timeline) return true;
    return false;
}

static uint64_t value_before(const step *s, int timeline)
{
    int i = 0;
    while (s->promise[i].timeline != timeline) i++;
    return s->promise[i].before;
}

/* Can the timeline have failed before `s` had asked it, through `culprit`? Not through somebody who waited for s and
   then died in his own work. */
static bool may_have_broken(const step *culprit, const line *l, const step *s)
{
    return culprit != s && culprit->result && same(&culprit->error, &l->error) &&
           !((culprit->before >> s->index & 1) && is_own(culprit, &culprit->error));
}

/* What the wait must have said. A timeline fails as a whole: values that were reached before can be asked for too
   late, then MAYBE. */
typedef enum verdict { WELL, MAYBE, BADLY } verdict;
static verdict judge(const program *p, const step *s, const edge *e, const gpusync_error **error)
{
    const step *other = &p->step[e->step];
    verdict v = WELL;
    int i;
    *error = &other->error;
    if (e->timeline < 0) return other->result ? BADLY : WELL;
    *error = &p->line[e->timeline].error;
    for (i = 0; i < p->steps; i++) {
        const step *one = &p->step[i];
        if (!signals(one, e->timeline) || !one->result) continue;
        if (e->value > value_before(one, e->timeline)) return BADLY;
        if (may_have_broken(one, &p->line[e->timeline], s)) v = MAYBE;
    }
    return v;
}

static const unsigned char *bytes_of(const step *s)
{
    return (const unsigned char *)metal_contents(s->memory);
}

static bool has_run(const step *s)
{
    int k;
    for (k = 0; k < s->buffers; k++)
        if (bytes_of(s)[MARKS + k]) return true;
    return false;
}

/* Every failure begins with work that failed by itself, and that the step depends on or shares a timeline with. */
static void check_origin(program *p, const gpusync_error *error, int by)
{
    int i;
    for (i = 0; i < p->steps; i++)
        if (is_own(&p->step[i], error) && p->step[i].state == ISSUED && same(&p->step[i].error, error)) return;
    wrong(p, __LINE__, "somebody's failure", "%d has \"%s\"", by, error->message);
}

static void check_failed(program *p, const step *s)
{
    const gpusync_error *error;
    bool found = false;
    int i;
    for (i = 0; i < s->edges && !found; i++) {
        verdict v = judge(p, s, &s->edge[i], &error);
        found = v != WELL && same(&s->error, error);
        /* what never ran was ended by the first failure that came, what ran waited for all of them */
        if (v == BADLY && !found)
            expect(p, s->kind != HOST && !has_run(s), "step %d does not tell what its wait %d said: %s", s->index, i,
                   error->message);
    }
    for (i = 0; i < s->promises && s->state == REFUSED; i++) {
        const line *l = &p->line[s->promise[i].timeline];
        found = found || (l->result && same(&s->error, &l->error));
    }
    expect(p, found || is_own(s, &s->error), "step %d failed with \"%s\"", s->index, s->error.message);
    expect(p, s->state != REFUSED || !has_run(s), "step %d ran", s->index);
    check_origin(p, &s->error, s->index);
    coverage.failed++;
    coverage.inherited += !is_own(s, &s->error);
    coverage.refused += s->state == REFUSED;
}

static void check_bytes(program *p, const step *s)
{
    const unsigned char *bytes = bytes_of(s);
    int i, k;
    if (s->kind != HOST && s->buffers == 0) return;
    expect(p, bytes[STAMP] == stamp_of(s), "step %d did not write its stamp", s->index);
    for (k = 1; k < s->buffers; k++)
        expect(p, bytes[LINKS + k] == stamp_of(s), "step %d: buffer %d ran before the one in front", s->index, k);
    if (p->mute) return;
    for (i = 0; i < s->edges; i++) {
        const step *from = witness(p, s->edge[i].step);
        expect(p, !from || bytes[SEEN + i] == stamp_of(from), "step %d: wait %d saw %u", s->index, i, bytes[SEEN + i]);
    }
    if (s->line >= 0 && p->step[s->line].result == GPUSYNC_OK)
        expect(p, bytes[LINE] == stamp_of(&p->step[s->line]), "step %d ran before step %d", s->index, s->line);
}

/* Who signalled a timeline before has written there, and nobody else since: unless it failed, which lets all go. */
static void check_cells(program *p, const step *s)
{
    int i;
    if (p->mute || (s->kind != HOST && s->buffers == 0)) return;
    for (i = 0; i < s->promises; i++) {
        int timeline = s->promise[i].timeline, previous = s->promise[i].previous;
        if (p->line[timeline].result) continue;
        while (previous >= 0 && p->step[previous].kind != HOST && p->step[previous].buffers == 0) {
            const step *other = &p->step[previous];
            int k = 0;
            while (other->promise[k].timeline != timeline) k++;
            previous = other->promise[k].previous;
        }
        expect(p, bytes_of(s)[CELLS + timeline] == (previous < 0 ? 0 : stamp_of(&p->step[previous])),
               "step %d saw %u in the cell of timeline %d", s->index, bytes_of(s)[CELLS + timeline], timeline);
    }
}

static void check_well(program *p, const step *s)
{
    const gpusync_error *error;
    int i;
    expect(p, s->fails < 0, "step %d had work that failed", s->index);
    for (i = 0; i < s->edges; i++)
        expect(p, judge(p, s, &s->edge[i], &error) != BADLY, "step %d went well, its wait %d had failed", s->index, i);
    for (i = 0; i < s->promises; i++)
        expect(p, !s->signalled[i] || s->signalled[i] == p->line[s->promise[i].timeline].result,
               "step %d signalled and was told %d", s->index, s->signalled[i]);
    check_bytes(p, s);
    check_cells(p, s);
}

static void check_timeline(program *p, int timeline)
{
    const line *l = &p->line[timeline];
    uint64_t reached = l->last;
    bool failed = false, found = false, own = true;
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        if (!signals(s, timeline) || !s->result) continue;
        if (!failed) reached = value_before(s, timeline);
        own = own && same(&s->error, &l->error) && (failed || is_own(s, &s->error));
        failed = true;
        found = found || same(&s->error, &l->error);
    }
    expect(p, failed == (l->result != GPUSYNC_OK), "timeline %d: %d", timeline, l->result);
    if (!failed) {
        expect(p, l->value == l->last, "timeline %d ends at %llu", timeline, (unsigned long long)l->value);
        return;
    }
    expect(p, found && l->result == l->error.result, "timeline %d failed with \"%s\"", timeline, l->error.message);
    check_origin(p, &l->error, timeline);
    /* one that died of something else may have ended the timeline before its time */
    expect(p, l->value <= reached && (!own || l->value == reached), "timeline %d had reached %llu, not %llu", timeline,
           (unsigned long long)l->value, (unsigned long long)reached);
}

/* Each failure is on record once, and the counts add up. */
static void check_queue(program *p, int queue)
{
    gpusync_stats stats = stats_of(p->queue[queue]);
    gpusync_error error;
    uint64_t cursor = 0, made = 0, failed = 0, recorded = 0;
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        if (s->kind == HOST || s->queue != queue || s->state != ISSUED) continue;
        made++;
        failed += s->result != GPUSYNC_OK;
    }
    while (gpusync_next_error(p->queue[queue], &cursor, &error) == GPUSYNC_OK) {
        for (i = 0; i < p->steps; i++) {
            const step *s = &p->step[i];
            if (s->kind == HOST || s->queue != queue || s->ticket != error.ticket) continue;
            expect(p, s->result && same(&s->error, &error), "the record of step %d: %s", i, error.message);
            recorded++;
        }
    }
    expect(p, stats.commits == made && stats.completions == made, "queue %d: %llu and %llu of %llu", queue,
           (unsigned long long)stats.commits, (unsigned long long)stats.completions, (unsigned long long)made);
    expect(p, stats.failures == failed && recorded == failed, "queue %d: %llu failures, %llu recorded of %llu", queue,
           (unsigned long long)stats.failures, (unsigned long long)recorded, (unsigned long long)failed);
    coverage.held += stats.held;
    coverage.skipped += stats.waits_skipped;
    coverage.saved += stats.buffers_saved;
}

static void check_program(program *p)
{
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        if (s->state == ISSUED && s->result) expect(p, s->error.ticket == s->ticket, "step %d", i);
        if (s->result) check_failed(p, s);
        else check_well(p, s);
        coverage.hosts += s->kind == HOST;
    }
    for (i = 0; i < p->timelines; i++) check_timeline(p, i);
    for (i = 0; i < p->queues; i++) check_queue(p, i);
}

/* -- the end ------------------------------------------------------------------------------------------ */

static void destroy_queues(program *p)
{
    int i;
    for (i = 0; i < p->queues; i++) assert_ok(gpusync_queue_destroy(p->queue[i]));
    p->r.queue = NULL;
}

static void forget_buffers(program *p)
{
    int i, k;
    for (i = 0; i < p->steps; i++)
        for (k = 0; k < BUFFERS; k++) metal_release(p->step[i].kept[k]);
}

static void destroy_timelines(program *p)
{
    int i;
    for (i = 0; i < p->timelines; i++) assert_ok(gpusync_timeline_destroy(p->line[i].timeline));
}

static void check_callbacks(program *p)
{
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        unsigned calls = s->kind == SUBMIT && s->state == ISSUED;
        expect(p, GET(&s->calls) == calls, "step %d was called back %u times", i, GET(&s->calls));
        if (!calls) continue;
        expect(p, s->told == s->result && (!s->result || same(&s->told_error, &s->error)), "step %d was told %d", i,
               s->told);
        expect(p, s->seen_in_callback == GPUSYNC_OK, "step %d saw %d in its callback", i, s->seen_in_callback);
    }
}

/* They use the timelines, and may come a moment later than the end of their tickets. */
static void await_callbacks(program *p)
{
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        while (s->kind == SUBMIT && s->state == ISSUED && !GET(&s->over)) sched_yield();
    }
}

/* Everything is given back: the events to the pool, all else to whom it came from. */
static void close_program(program *p)
{
    bool queues_first = p->seed % 2;
    long live;
    int i;
    if (queues_first) destroy_queues(p);
    else await_callbacks(p);
    destroy_timelines(p);
    forget_buffers(p);
    if (!queues_first) destroy_queues(p);
    check_callbacks(p);
    expect(p, softmetal_settle(PATIENCE), "the handlers have not run");
    live = softmetal_live("shared_event");
    assert_in_range(live - events_kept(p->r.device), 0, 1); /* one may be the device's, for itself */
    for (i = 0; i < p->steps; i++) {
        assert_int_equal(softmetal_retain_count(p->step[i].memory), 1);
        metal_release(p->step[i].memory);
    }
    for (i = 0; i < p->timelines; i++) metal_release(p->line[i].cell);
    rig_close(&p->r);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("buffer"), 0);
    assert_int_equal(softmetal_live("device"), 0);
}

#endif
