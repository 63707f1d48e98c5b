/* graphs.h - random programs of queues and timelines beside a model of the contract (test_graphs.c, fuzz/fuzz.c,
   test_turns_graphs.c)

   A graph is a number of steps, all of them drawn from one seed, or from the bytes of a fuzzer: commits, submissions,
   markers, signals of the host, discards, cancelled work, and ends on the GPU, one at a time, on the manual clock.
   After each step the model below says what the contract allows: which work Metal has got by now and in which order,
   which work has ended and how, what each timeline shows, what is on record, and which callbacks have become due.
   gpusync has to agree with all of it.

   The model is written from the contract, and knows nothing of how gpusync works: no lists, no locks, no references.
   It goes through all work again and again until nothing moves.

   What the contract leaves open the model takes over from gpusync, and asks that it is one of what is allowed:
     - which of several failures that apply is told;
     - what comes first of changes in one step: of a send and a failure, of a failure and a value.

   The GPU runs and ends the command buffers of a queue in their order in half of the programs. In a quarter they run in
   any order, and end in theirs. In a quarter they end in any order, too. Each command buffer notes that it has run, and
   asks whether all has run, or ended, that its waits order before it.

   Not drawn in "everything": ends of queues and timelines, and little room. Nor beside such ends: values of other code,
   and the loss of the device.

   Other threads may be there beside the one that takes the steps: they run during a step, and rest when the model is
   asked. One of them may end a command buffer during a commit or a submission, which may then come too late.

   Environment: GRAPHS graphs in all (by default 1100), GRAPHS_SEED runs one. A failure prints both, and all steps. */
#ifndef GRAPHS_H
#define GRAPHS_H

#ifdef TURNS_H
#include "kit.h"

static const gpusync_hooks *const graph_hooks = &turns_hooks;

static uint64_t graph_now(void)
{
    return turns.now;
}

static void graph_pass(uint64_t ns)
{
    turns.now += ns;
}
#else
#include "still.h"

static const gpusync_hooks *const graph_hooks = &passing_hooks;

static uint64_t graph_now(void)
{
    return GET(&still_now);
}

static void graph_pass(uint64_t ns)
{
    pass(ns);
}
#endif

/* What may occur in a graph. */
enum {
    DRAWS_TICKETS = 1 << 0, /* waits for them */
    DRAWS_UNORDERED = 1 << 1,
    DRAWS_ON_GPU = 1 << 2,
    DRAWS_EMPTIES = 1 << 3, /* submissions without command buffers */
    DRAWS_SIGNALS = 1 << 4, /* of the host */
    DRAWS_LOOKS = 1 << 5,   /* a status comes without its handlers */
    DRAWS_POINTS = (1 << 6) - 1,
    DRAWS_ENCODED = 1 << 6,
    DRAWS_DISCARDS = 1 << 7,
    DRAWS_MARKERS = 1 << 8,
    DRAWS_ENQUEUED = 1 << 9,
    DRAWS_ALL_WORK = (1 << 10) - 1,
    DRAWS_METAL4 = 1 << 10,
    DRAWS_ROOM = 1 << 11, /* little of it */
    DRAWS_FAILS = 1 << 12,
    DRAWS_CANCELS = 1 << 13,
    DRAWS_ORDER_ONLY = 1 << 14,
    DRAWS_STICKY = 1 << 15,
    DRAWS_OTHERS = 1 << 16, /* values of other code */
    DRAWS_HOST_FAILS = 1 << 17,
    DRAWS_ENDS = 1 << 18
};

typedef struct graph_rules {
    const char *name;
    unsigned queues, timelines, steps, draws;
    unsigned loses; /* percent of the failures, behind a third of the steps, that tell that the device is lost */
} graph_rules;

/* From the simplest kind on. */
/* clang-format off */
static const graph_rules graph_kinds[] = {
    {"ordered", 2, 1, 50, 0, 0},
    {"tickets", 3, 1, 60, DRAWS_TICKETS | DRAWS_SIGNALS, 0},
    {"on_gpu", 3, 2, 60, DRAWS_POINTS & ~DRAWS_UNORDERED, 0},
    {"unordered", 3, 2, 60, DRAWS_POINTS, 0},
    {"encoded", 3, 2, 70, DRAWS_ALL_WORK, 0},
    {"metal4", 3, 2, 70, DRAWS_ALL_WORK | DRAWS_METAL4, 0},
    {"room", 3, 2, 80, (DRAWS_ALL_WORK & ~DRAWS_LOOKS) | DRAWS_METAL4 | DRAWS_ROOM, 0}, /* late handlers take room */
    {"failures", 3, 2, 70, DRAWS_ALL_WORK | DRAWS_FAILS, 0},
    {"cancelled", 3, 3, 70, DRAWS_ALL_WORK | DRAWS_FAILS | DRAWS_CANCELS | DRAWS_HOST_FAILS, 0},
    {"order_only", 3, 2, 70, DRAWS_ALL_WORK | DRAWS_FAILS | DRAWS_CANCELS | DRAWS_ORDER_ONLY, 0},
    {"sticky", 3, 2, 70, DRAWS_ALL_WORK | DRAWS_FAILS | DRAWS_CANCELS | DRAWS_STICKY, 0},
    {"others", 2, 3, 70, DRAWS_ALL_WORK | DRAWS_FAILS | DRAWS_OTHERS, 0},
    {"lost", 3, 2, 90, (DRAWS_ALL_WORK & ~DRAWS_EMPTIES) | DRAWS_METAL4 | DRAWS_FAILS | DRAWS_ORDER_ONLY, 70},
    {"ends", 4, 4, 80, DRAWS_ALL_WORK | DRAWS_METAL4 | DRAWS_FAILS | DRAWS_CANCELS | DRAWS_ORDER_ONLY | DRAWS_STICKY |
     DRAWS_HOST_FAILS | DRAWS_ENDS, 0},
    {"everything", 4, 4, 110, DRAWS_ALL_WORK | DRAWS_METAL4 | DRAWS_FAILS | DRAWS_CANCELS | DRAWS_ORDER_ONLY |
     DRAWS_STICKY | DRAWS_OTHERS | DRAWS_HOST_FAILS, 6},
};
/* clang-format on */

enum { MOST_WORK = 96, MOST_WAITS = 4, MOST_SIGNALS = 2, MOST_BUFFERS = 2, MOST_CALLBACKS = 512, MOST_COMMITS = 512 };
enum { MTL_COMMITTED = 2, MTL_ERROR = 5 }; /* MTLCommandBufferStatus */

/* -- the model ------------------------------------------------------------------------------------------------- */

/* OPEN: encoded, not committed. GONE: refused, or discarded. OVER: never ran, and fails in its turn. */
typedef enum model_state { MODEL_OPEN, MODEL_GONE, MODEL_HELD, MODEL_SENT, MODEL_OVER, MODEL_SETTLED } model_state;

/* A set of results: bit n is result -n. */
typedef uint64_t results;
#define RESULT(r) (UINT64_C(1) << -(r))
#define ONLY_OK RESULT(GPUSYNC_OK)

typedef struct model_point {
    int queue; /* below 0: a value */
    int64_t ticket;
    int timeline;
    uint64_t value;
} model_point;

typedef struct model_signal {
    int timeline;
    uint64_t value;
    bool by_host; /* and not by the GPU */
} model_signal;

typedef struct model_work {
    model_state state;
    int queue;
    int64_t ticket; /* UNORDERED: 0 */
    bool unordered, marker;
    bool encodes;  /* its waits and signals are encoded in its only buffer */
    bool on_gpu;   /* ... or it is a submission whose waits and signals the GPU makes */
    bool enqueued; /* its only buffer */
    int behind;    /* of a marker: the work, or -1 */
    model_point waits[MOST_WAITS];
    unsigned wait_count;
    model_signal signals[MOST_SIGNALS];
    unsigned signal_count;
    void *buffers[MOST_BUFFERS];
    void *run; /* of its buffers, on a queue of Metal 4 */
    unsigned buffer_count;
    bool fronted; /* there may be a buffer of gpusync's in front */
    /* by the GPU */
    bool wrote[MOST_BUFFERS], over[MOST_BUFFERS], front_over;
    bool ended;      /* the GPU is finished with it, and tells */
    bool faults;     /* one of its buffers fails */
    bool failed;     /* one of them has failed */
    void *loser;     /* that of them whose failure tells that the device is lost */
    bool loser_over; /* it has failed */
    results own;     /* OVER and SETTLED: what it may end with */
    results theirs;  /* ... as the failure of another, which it inherits */
    bool fixed;      /* OVER: no work in front of it is held, so it keeps its failure */
    bool cancelled;  /* OVER and SETTLED: while nothing had failed it */
    gpusync_result result;
    bool ran, recorded;
    bool rises;   /* it has failed, and its order_only timelines get its values all the same */
    int callback; /* that tells its end, or -1 */
} model_work;

typedef struct model_timeline {
    bool order_only, others;
    void *imported; /* the event, +1, or NULL */
    bool closed;    /* the program has destroyed it: nothing can be asked any more */
    uint64_t reached, sent, event;
    uint64_t began;  /* what was reached as the step began */
    uint64_t top;    /* the highest value that was drawn */
    results failure; /* 0: has not failed. Where nothing can be asked, all that may have come first */
    results causes;  /* of the step in which it failed */
    unsigned failed_at;
} model_timeline;

typedef struct model_queue {
    bool sticky, metal4;
    bool closed, abandoned; /* likewise */
    unsigned limit;         /* places */
    int stuck;              /* the work whose failure sticks, or -1 */
    int heirs_of;           /* the work that stuck until the last clear, or -1: tickets up to `cleared` inherit it */
    int64_t cleared;
    int64_t last;               /* ticket */
    int tickets[MOST_WORK + 1]; /* the work of each */
    int record[MOST_WORK];      /* work, in the order in which gpusync has put its failures on record */
    unsigned failures, recorded, told;
} model_queue;

typedef enum gpu_order { GPU_IN_ORDER, GPU_OVERLAPS, GPU_IN_ANY_ORDER } gpu_order;

typedef struct graph {
    stage s;
    const graph_rules *rules;
    gpu_order order;
    bool deaf; /* no listener hears: what other code signals is seen by looks alone, in the order of the steps */
    uint64_t seed, random;
    const uint8_t *bytes; /* NULL: the seed draws the steps, too */
    size_t left;
    unsigned step;
    void (*begin)(struct graph *g); /* other threads: a step begins; NULL: there are none */
    void (*rest)(struct graph *g);  /* ... and it is over: they come to rest */
    void (*judge)(struct graph *g); /* what came of them */
    int ending;                     /* the queue whose next command buffer one of them ends meanwhile; -1: none */
    model_work work[MOST_WORK + 1]; /* the last is drawn, and has no room */
    int work_count;
    model_timeline t[STAGE_MOST];
    model_queue q[STAGE_MOST];
    bool removed; /* the Metal device */
    bool tells;   /* ... and a command buffer, perhaps gpusync's own, has failed since */
    bool lost;
    uint64_t lost_at;
    struct {
        model_point point;
        int work;    /* whose end is told; -1: a value */
        bool at_end; /* it was registered behind the end */
        bool closed; /* its timeline was destroyed first */
        bool ran, seen, in_use;
        unsigned order;
        gpusync_result result;
    } callbacks[MOST_CALLBACKS];
    unsigned callback_count, call_order;
    unsigned gone[2 * STAGE_MOST]; /* calls of `destroyed`: queues, timelines */
    bool goes[2 * STAGE_MOST];     /* ... one is to come */
    /* What Metal was sent: buffers in the order of [commit], by the message hook. Those of gpusync's are retained. */
    pthread_mutex_t lock;
    struct {
        void *buffer, *queue;
        bool own;
    } commits[MOST_COMMITS];
    unsigned commit_count;
    char early[100]; /* what a command buffer found that ran too early */
    char text[1 << 16];
    size_t length;
} graph;

static graph *calling;

static bool draws(const graph *g, unsigned what)
{
    return (g->rules->draws & what) != 0;
}

/* Each step is printed as it is made. */
static bool graph_tells;

static void say(graph *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(graph *g, const char *format, ...)
{
    va_list list;
    if (graph_tells) {
        va_start(list, format);
        vfprintf(stderr, format, list);
        va_end(list);
    }
    va_start(list, format);
    int n = vsnprintf(g->text + g->length, sizeof g->text - g->length, format, list);
    va_end(list);
    if (n > 0 && g->length + (size_t)n < sizeof g->text)
        g->length += (size_t)n;
}

static gpusync_result ask_work(const graph *g, const model_work *w);
static gpusync_result ask_timeline(const graph *g, int timeline, uint64_t *value);

#define wrong(g, ...)                                                                               \
    (fprintf(stderr, "\n%s", graph_tells ? "" : (g)->text), fprintf(stderr, "wrong: " __VA_ARGS__), \
     end_wrong(g, __FILE__, __LINE__))
static void end_wrong(graph *g, const char *file, int line)
{
    static const char *const state_names[] = {"open", "gone", "held", "sent", "over", "settled"};
    int i;
    fprintf(stderr, "\nThe model:");
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        if (w->state == MODEL_GONE)
            continue;
        fprintf(stderr, "\n  work %d, ticket %d of queue %d: %s", i, (int)w->ticket, w->queue, state_names[w->state]);
        if (w->state == MODEL_SETTLED)
            fprintf(stderr, " with %d", w->result);
        if (w->state == MODEL_SENT && w->ended)
            fprintf(stderr, " and over on the GPU");
        if (w->state != MODEL_OPEN)
            fprintf(stderr, "; gpusync says %d", ask_work(g, w));
    }
    for (i = 0; i < (int)g->rules->timelines; i++) {
        uint64_t value = 0;
        gpusync_result result = ask_timeline(g, i, &value);
        fprintf(stderr, "\n  timeline %d: %d, failures %llx; a query says %d, with %d", i, (int)g->t[i].reached,
                (unsigned long long)g->t[i].failure, (int)value, result);
    }
    fprintf(stderr, "\n%s: step %u", g->rules->name, g->step);
    if (g->bytes)
        fprintf(stderr, " of an input\n");
    else
        fprintf(stderr, " of GRAPHS_SEED=%llu\n", (unsigned long long)g->seed);
    _fail(file, line);
}

static uint64_t draw_by_seed(graph *g, uint64_t n)
{
    g->random ^= g->random << 13;
    g->random ^= g->random >> 7;
    g->random ^= g->random << 17;
    return (g->random * UINT64_C(0x2545F4914F6CDD1D) >> 33) % n;
}

/* A choice of the program. Behind the last byte each is 0. */
static uint64_t draw(graph *g, uint64_t n)
{
    uint64_t number = 0;
    unsigned bytes = n > 256 ? 2 : 1;
    if (!g->bytes)
        return draw_by_seed(g, n);
    for (; bytes && g->left; bytes--, g->left--)
        number = number << 8 | *g->bytes++;
    return number % n;
}

static bool chance(graph *g, unsigned percent)
{
    return draw(g, 100) < percent;
}

/* A choice of the checks. They take no bytes, so a byte that is added or lost moves no other. */
static bool chance_to_check(graph *g, unsigned percent)
{
    return draw_by_seed(g, 100) < percent;
}

/* What gpusync says of work: where no poll can ask, its callback tells, and there is one then. */
static gpusync_result ask_work(const graph *g, const model_work *w)
{
    if (!w->unordered && !g->q[w->queue].closed)
        return gpusync_poll(g->s.q[w->queue], w->ticket, NULL);
    return w->callback >= 0 && g->callbacks[w->callback].ran ? g->callbacks[w->callback].result : GPUSYNC_NOT_READY;
}

/* NOT_READY: nothing can be asked. */
static gpusync_result ask_timeline(const graph *g, int timeline, uint64_t *value)
{
    *value = 0;
    return g->t[timeline].closed ? GPUSYNC_NOT_READY : gpusync_timeline_query(g->s.t[timeline], value, NULL);
}

static bool model_ran(const model_work *w)
{
    return w->state == MODEL_SENT || (w->state == MODEL_SETTLED && w->ran);
}

/* Committed, and not settled: its signals count. */
static bool model_counts(const model_work *w)
{
    return w->state == MODEL_HELD || w->state == MODEL_SENT || w->state == MODEL_OVER;
}

static const model_signal *signal_of(const model_work *w, int timeline)
{
    unsigned k;
    for (k = 0; k < w->signal_count; k++)
        if (w->signals[k].timeline == timeline)
            return &w->signals[k];
    return NULL;
}

/* R33: the signal counts from the commit until its value is reached, or the work has settled; where the host raises the
   value then, until it is raised. NULL: there is none that counts. */
static const model_signal *signal_to_come(const graph *g, int work, int timeline)
{
    const model_timeline *t = &g->t[timeline];
    const model_work *w = &g->work[work];
    const model_signal *s = signal_of(w, timeline);
    bool counts = model_counts(w) || (w->rises && t->order_only && !t->failure);
    return s && counts && s->value > t->reached ? s : NULL;
}

/* Of one queue, and neither is UNORDERED. */
static bool model_in_turn(const model_work *a, const model_work *b)
{
    return a->queue == b->queue && !a->unordered && !b->unordered;
}

/* The lowest signal of the timeline that is sent and not reached; UINT64_MAX: none. */
static uint64_t model_lowest_sent(const graph *g, int timeline)
{
    uint64_t lowest = UINT64_MAX;
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        const model_signal *s = model_ran(w) ? signal_to_come(g, i, timeline) : NULL;
        if (s && s->value < lowest)
            lowest = s->value;
    }
    return lowest;
}

/* 0: it has not ended; else how. In the step in which a timeline fails that nothing can be asked of, it may have failed
   first, or have reached the value. */
static results model_point_result(const graph *g, const model_point *p)
{
    const model_work *w;
    if (p->queue < 0) {
        const model_timeline *t = &g->t[p->timeline];
        if (p->value > t->reached)
            return t->failure;
        return ONLY_OK | (t->closed && t->failed_at == g->step && p->value > t->began ? t->failure : 0);
    }
    if (p->ticket <= 0)
        return ONLY_OK;
    w = &g->work[g->q[p->queue].tickets[p->ticket]];
    return w->state == MODEL_SETTLED ? RESULT(w->result) : 0;
}

/* S3: ordered work that is held stands in front of this work. */
static bool model_behind_held(const graph *g, const model_work *w)
{
    int64_t ticket;
    for (ticket = 1; !w->unordered && ticket < w->ticket; ticket++)
        if (g->work[g->q[w->queue].tickets[ticket]].state == MODEL_HELD)
            return true;
    return false;
}

/* R19: nothing committed is to signal the value any more, as far as the work is in front of all held work. */
static bool model_never_comes(const graph *g, const model_work *w, const model_point *p)
{
    int i;
    if (p->queue >= 0 || !g->t[p->timeline].closed || g->t[p->timeline].others || model_behind_held(g, w))
        return false;
    for (i = 0; i < g->work_count; i++) {
        const model_signal *s = signal_to_come(g, i, p->timeline);
        if (s && s->value >= p->value && &g->work[i] != w)
            return false;
    }
    return true;
}

/* How work stands with what it waits for. */
typedef struct model_waits {
    bool over, well; /* all has ended; and may have ended well */
    bool badly;      /* something has failed, surely */
    results own;     /* what the work fails with itself */
    results theirs;  /* what it inherits */
} model_waits;

static model_waits model_look(const graph *g, const model_work *w)
{
    model_waits all = {true, true, false, 0, 0};
    unsigned i;
    for (i = 0; i < w->wait_count; i++) {
        const model_point *p = &w->waits[i];
        results result = model_point_result(g, p);
        bool sent = w->state == MODEL_SENT;
        bool badly = result && !(result & ONLY_OK);
        bool now = badly && p->queue < 0 && g->t[p->timeline].closed && g->t[p->timeline].failed_at == g->step;
        if (!sent && (now || (!result && model_never_comes(g, w, p)))) /* now: it never came, and then failed */
            all.own = RESULT(GPUSYNC_ERROR_DESTROYED);
        all.over = all.over && result;
        all.well = all.well && result & ONLY_OK;
        all.badly = all.badly || badly || all.own;
        all.theirs |= result & ~ONLY_OK;
    }
    return all;
}

/* S6, R36: it is reached; or, where the GPU waits, Metal has, or had, work whose signal the GPU makes, or others make
   one. */
static bool model_comes(const graph *g, const model_work *w, const model_point *p)
{
    results result = model_point_result(g, p);
    int i;
    if (result || p->queue >= 0 || !w->on_gpu)
        return result & ONLY_OK;
    if (g->t[p->timeline].others)
        return true;
    for (i = 0; i < g->work_count; i++) {
        const model_signal *s = model_ran(&g->work[i]) ? signal_to_come(g, i, p->timeline) : NULL;
        if (s && s->value >= p->value && !s->by_host)
            return true;
    }
    return false;
}

static bool model_waits_for(const model_work *w, int timeline, uint64_t value)
{
    unsigned i;
    for (i = 0; i < w->wait_count; i++)
        if (w->waits[i].queue < 0 && w->waits[i].timeline == timeline && w->waits[i].value >= value)
            return true;
    return false;
}

/* Where [commit] of the work's first buffer of the program stands; UINT32_MAX: nowhere. */
static unsigned commit_of(const graph *g, const model_work *w)
{
    unsigned i;
    for (i = 0; w->buffer_count && i < g->commit_count; i++)
        if (g->commits[i].buffer == w->buffers[0])
            return i;
    return UINT32_MAX;
}

/* R33, "Order of values": the highest signal of other work that is lower, and not reached, decides. */
static bool model_in_order(const graph *g, const model_work *w, const model_signal *signal)
{
    const model_timeline *t = &g->t[signal->timeline];
    const model_work *lower = NULL;
    uint64_t value = 0;
    int i;
    if (t->failure)
        return true;
    for (i = 0; i < g->work_count; i++) {
        const model_signal *s = signal_to_come(g, i, signal->timeline);
        if (&g->work[i] == w || !s || s->value <= value || s->value >= signal->value)
            continue;
        lower = &g->work[i];
        value = s->value;
    }
    if (!lower)
        return true;
    if (!model_ran(lower))
        return false;
    if (model_waits_for(w, signal->timeline, value))
        return true;
    if (!model_in_turn(lower, w))
        return false;
    if (signal->by_host)
        return true;
    return !signal_of(lower, signal->timeline)->by_host && (g->q[w->queue].metal4 || !t->imported || t->order_only);
}

static bool model_may_go(const graph *g, const model_work *w)
{
    unsigned i;
    if (w->state != MODEL_HELD || model_behind_held(g, w))
        return false;
    for (i = 0; i < w->wait_count; i++)
        if (!model_comes(g, w, &w->waits[i]))
            return false;
    for (i = 0; i < w->signal_count; i++)
        if (!model_in_order(g, w, &w->signals[i]))
            return false;
    return true;
}

/* R17, R32: what stuck before it ended, and it was committed before the clear. */
static results model_heirs(const graph *g, const model_work *w)
{
    const model_queue *q = &g->q[w->queue];
    if (w->unordered || w->marker)
        return 0;
    if (q->stuck >= 0)
        return RESULT(g->work[q->stuck].result);
    return q->heirs_of >= 0 && w->ticket <= q->cleared ? RESULT(g->work[q->heirs_of].result) : 0;
}

/* A failure of its own, or that of another, of work that is held, or that may still take another one. */
static void model_doom(model_work *w, results own, results theirs)
{
    if (w->state == MODEL_HELD || (w->state == MODEL_OVER && !w->fixed)) {
        w->state = MODEL_OVER;
        w->own |= own;
        w->theirs |= theirs;
    }
}

/* S7: what is held with a value up to this one comes too late. */
static void model_rise(graph *g, int timeline, uint64_t value)
{
    model_timeline *t = &g->t[timeline];
    int i;
    if (t->failure)
        return;
    t->sent = value > t->sent ? value : t->sent;
    t->top = value > t->top ? value : t->top;
    t->reached = value > t->reached ? value : t->reached;
    for (i = 0; i < g->work_count; i++) {
        const model_signal *s = signal_of(&g->work[i], timeline);
        if (s && s->value <= value)
            model_doom(&g->work[i], RESULT(GPUSYNC_ERROR_NOT_RISING), 0);
    }
}

static void model_fail_timeline(graph *g, int timeline, results failure)
{
    model_timeline *t = &g->t[timeline];
    uint64_t value;
    gpusync_result said = ask_timeline(g, timeline, &value);
    if (t->failure && t->failed_at != g->step)
        return;
    t->causes |= failure;
    t->failure = said < 0 ? RESULT(said) : t->causes;
    t->failed_at = g->step;
}

/* gpusync has failed the timeline below the value: which of the two came first in one step is left open. */
static bool model_failed_below(const graph *g, const model_signal *signal)
{
    uint64_t shown;
    return ask_timeline(g, signal->timeline, &shown) < 0 && shown < signal->value;
}

/* S8, R9, R12: what is reached was overtaken. R21: of what is given up the end is unknown, unless the GPU has told. */
static void model_failed_signals(graph *g, model_work *w, results failure)
{
    bool given_up = w->ran && g->q[w->queue].abandoned, said = failure == RESULT(GPUSYNC_ERROR_DESTROYED);
    unsigned k;
    for (k = 0; k < w->signal_count; k++) {
        model_timeline *t = &g->t[w->signals[k].timeline];
        bool unknown = given_up && (!w->ended || (said && model_failed_below(g, &w->signals[k])));
        if (w->signals[k].value > t->reached && (!t->order_only || unknown))
            model_fail_timeline(g, w->signals[k].timeline, failure);
    }
    w->rises = true;
}

static void model_settle(graph *g, model_work *w, results own, results theirs, gpusync_result said)
{
    model_queue *q = &g->q[w->queue];
    results allowed = own | theirs;
    unsigned k;
    w->ran = w->state == MODEL_SENT;
    w->state = MODEL_SETTLED;
    w->own = own;
    w->theirs = theirs;
    w->result = said <= 0 && allowed & RESULT(said) ? said : (gpusync_result)-__builtin_ctzll(allowed);
    if (w->result != GPUSYNC_OK) {
        q->failures++;
        model_failed_signals(g, w, RESULT(w->result));
        bool sticks = !w->unordered && w->result != GPUSYNC_ERROR_CANCELLED && w->ticket > q->cleared;
        if (q->sticky && q->stuck < 0 && sticks)
            q->stuck = (int)(w - g->work);
        return;
    }
    for (k = 0; k < w->signal_count; k++) {
        model_timeline *t = &g->t[w->signals[k].timeline];
        if (!t->failure && w->signals[k].value > t->reached && !model_failed_below(g, &w->signals[k]))
            t->reached = w->signals[k].value;
    }
}

/* How the work ends, if it can. S4, R8: work that failed on its own waits for nothing. R21: what the GPU has not ended
   of an abandoned queue is given up. */
static bool model_ends(const graph *g, const model_work *w, results *own, results *theirs)
{
    const model_queue *q = &g->q[w->queue];
    bool failed = w->failed || (w->behind >= 0 && g->work[w->behind].failed); /* a marker fails with its error */
    model_waits waits = model_look(g, w);
    results heirs = model_heirs(g, w);
    *own = w->own | waits.own;
    *theirs = w->theirs | waits.theirs | heirs;
    if (w->cancelled) {
        *own = RESULT(GPUSYNC_ERROR_CANCELLED);
        *theirs = 0;
        return true;
    }
    if (w->state != MODEL_SENT) {
        *own |= g->lost && !w->fixed ? RESULT(GPUSYNC_ERROR_DEVICE_LOST) : 0;
        return w->state == MODEL_OVER;
    }
    if (q->abandoned)
        *own |= RESULT(GPUSYNC_ERROR_DESTROYED);
    if (failed && (w->ended || q->abandoned))
        *own |= RESULT(GPUSYNC_ERROR_EXECUTION);
    else if (w->ended && waits.well && !heirs)
        *own |= ONLY_OK;
    return *own || (w->ended && waits.over);
}

/* S3: ordered work and markers in their turn. well: only what ends so. agreed: only with what gpusync says. */
static bool model_settle_one(graph *g, bool well, bool agreed)
{
    results own, theirs;
    int i;
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        bool turn = model_counts(w) && (w->unordered || w->ticket == 1 ||
                                        g->work[g->q[w->queue].tickets[w->ticket - 1]].state == MODEL_SETTLED);
        if (!turn || !model_ends(g, w, &own, &theirs) || (well && (own | theirs) != ONLY_OK))
            continue;
        gpusync_result said = ask_work(g, w);
        if (agreed && (said > 0 || !((own | theirs) & RESULT(said))))
            continue;
        model_settle(g, w, own, theirs, said);
        return true;
    }
    return false;
}

static bool model_fail_held(graph *g)
{
    bool moved = false;
    int i;
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        model_waits waits = model_look(g, w);
        bool sticks = !w->unordered && g->q[w->queue].stuck >= 0;
        if (w->state != MODEL_HELD || !(waits.badly || sticks || g->lost || (waits.theirs && ask_work(g, w) < 0)))
            continue;
        waits.theirs |= sticks ? model_heirs(g, w) : 0;
        waits.own |= g->lost ? RESULT(GPUSYNC_ERROR_DEVICE_LOST) : 0;
        model_doom(w, waits.own, waits.theirs);
        moved = true;
    }
    return moved;
}

/* R18: where others signal, the event counts below the lowest own signal that is sent and not settled. It rises like
   any other. */
static bool model_read(graph *g)
{
    int i;
    for (i = 0; i < (int)g->rules->timelines; i++) {
        model_timeline *t = &g->t[i];
        uint64_t lowest = model_lowest_sent(g, i), event = t->event, seen;
        if (!t->others || t->failure)
            continue;
        if (event >= lowest)
            event = lowest - 1;
        if (ask_timeline(g, i, &seen) < 0 && event > seen)
            event = seen; /* it fails within this step, and its event was not read before */
        if (event <= t->reached)
            continue;
        model_rise(g, i, event);
        return true;
    }
    return false;
}

/* R12: once each lower value that committed work is to signal is reached. */
static bool model_raise(graph *g)
{
    int i, j;
    for (i = 0; i < (int)g->rules->timelines; i++) {
        const model_signal *lowest = NULL;
        bool raises = false;
        for (j = 0; j < g->work_count; j++) {
            const model_signal *s = signal_to_come(g, j, i);
            if (!s || (lowest && s->value > lowest->value))
                continue;
            lowest = s;
            raises = g->work[j].rises;
        }
        if (!raises || model_failed_below(g, lowest))
            continue;
        model_rise(g, i, lowest->value);
        return true;
    }
    return false;
}

/* has: only what gpusync has sent by now. Without command buffers that is not seen before the end. */
static bool model_send_one(graph *g, bool has)
{
    unsigned k;
    int i;
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        bool sent = w->buffer_count ? commit_of(g, w) != UINT32_MAX : has && ask_work(g, w) == GPUSYNC_OK;
        if ((has && !sent) || !model_may_go(g, w))
            continue;
        w->state = MODEL_SENT;
        w->ended = w->buffer_count == 0;
        for (k = 0; k < w->signal_count; k++)
            if (w->signals[k].value > g->t[w->signals[k].timeline].sent)
                g->t[w->signals[k].timeline].sent = w->signals[k].value;
        return true;
    }
    return false;
}

/* What gpusync has sent is sent as early as it may be, and what ends well ends before what fails. Where the contract
   leaves the order open, gpusync has then had another one only if a check below says so. */
static void model_move(graph *g)
{
    int i;
    for (i = 0; i < (int)g->rules->timelines; i++)
        g->t[i].began = g->t[i].reached;
    while (model_send_one(g, true) || model_settle_one(g, true, true) || model_read(g) || model_raise(g) ||
           model_settle_one(g, false, true) || model_fail_held(g) || model_send_one(g, false) ||
           model_settle_one(g, false, false)) {}
    for (i = 0; i < g->work_count; i++) {
        if (g->lost && g->work[i].state == MODEL_OVER)
            model_doom(&g->work[i], RESULT(GPUSYNC_ERROR_DEVICE_LOST), 0);
        g->work[i].fixed = g->work[i].state == MODEL_OVER && !model_behind_held(g, &g->work[i]);
    }
}

/* A second later what has not ended is answered with DEVICE_LOST. */
static gpusync_result not_yet(const graph *g, gpusync_result otherwise)
{
    return g->lost && graph_now() - g->lost_at >= SECONDS(1) ? GPUSYNC_ERROR_DEVICE_LOST : otherwise;
}

/* T6: it is lost when the failure is known, at the latest when the work has ended. What is held then ends with that. */
static void model_lose(graph *g)
{
    bool may_be = g->tells, must_be = false;
    int i;
    for (i = 0; i < g->work_count; i++) {
        may_be = may_be || g->work[i].loser_over;
        must_be = must_be || (g->work[i].loser_over && g->work[i].state == MODEL_SETTLED);
    }
    if (gpusync_device_is_lost(g->s.device) ? !may_be : must_be)
        wrong(g, "the device is %s", must_be ? "not lost" : "lost");
    if (g->lost || !gpusync_device_is_lost(g->s.device))
        return;
    say(g, "%u: the device is lost\n", g->step);
    g->lost = true;
    g->lost_at = graph_now();
}

static int64_t model_done(const graph *g, int queue)
{
    int64_t ticket = 0;
    while (ticket < g->q[queue].last && g->work[g->q[queue].tickets[ticket + 1]].state == MODEL_SETTLED)
        ticket++;
    return ticket;
}

/* gpusync_in_flight: UNORDERED work counts from the first that has not ended on. */
static uint64_t model_in_flight(const graph *g, int queue)
{
    uint64_t tickets = (uint64_t)(g->q[queue].last - model_done(g, queue)), unordered = 0;
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        if (w->queue == queue && w->unordered && (model_counts(w) || (w->state == MODEL_SETTLED && unordered)))
            unordered++;
    }
    return tickets + unordered;
}

static bool model_all_ended(const graph *g, int queue)
{
    int i;
    for (i = 0; i < g->work_count; i++)
        if (g->work[i].queue == queue && model_counts(&g->work[i]))
            return false;
    return true;
}

/* R37: a place for each command buffer, gpusync's own, too, and one at least for work; on Metal 4 one for work. */
static unsigned model_places(const graph *g, const model_work *w)
{
    if (w->state == MODEL_OPEN)
        return g->q[w->queue].metal4 ? 0 : w->buffer_count;
    return g->q[w->queue].metal4 || !w->buffer_count ? 1 : w->buffer_count + w->fronted;
}

/* surely: at the latest a place comes back when work ends, perhaps as soon as the GPU is finished with it. */
static bool model_has_room(const graph *g, int queue, unsigned places, bool surely)
{
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        if (w->queue == queue && (w->state == MODEL_OPEN || (model_counts(w) && (surely || !w->ended))))
            places += model_places(g, w);
    }
    return places <= g->q[queue].limit;
}

/* R33: what a signal may be refused with, now; 0: it is not. */
static results model_judge(const graph *g, const model_work *w, const model_signal *signal)
{
    const model_timeline *t = &g->t[signal->timeline];
    bool rises =
        signal->value > t->sent && signal->value > t->reached && !model_waits_for(w, signal->timeline, signal->value);
    int i;
    if (t->failure)
        return t->failure;
    for (i = 0; i < g->work_count; i++) {
        const model_signal *s = signal_to_come(g, i, signal->timeline);
        if (s && (s->value == signal->value || (model_in_turn(&g->work[i], w) && s->value >= signal->value)))
            rises = false;
    }
    return rises ? 0 : RESULT(GPUSYNC_ERROR_NOT_RISING);
}

/* What a commit or submission of this work may say. */
static results model_answers(const graph *g, const model_work *w)
{
    const model_queue *q = &g->q[w->queue];
    results all = g->lost ? RESULT(GPUSYNC_ERROR_DEVICE_LOST) : 0;
    model_work committed = *w;
    unsigned k;
    committed.state = MODEL_HELD;
    committed.ticket = q->last + 1;
    bool needs_room = model_places(g, &committed) > model_places(g, w);
    if (q->stuck >= 0)
        all |= RESULT(GPUSYNC_ERROR_EXECUTION);
    if (needs_room && !model_has_room(g, w->queue, 1, false))
        all |= RESULT(GPUSYNC_ERROR_QUEUE_FULL);
    if (w->enqueued && (w->wait_count || w->signal_count || model_behind_held(g, &committed))) /* R34 */
        all |= RESULT(GPUSYNC_ERROR_ENQUEUED);
    for (k = 0; k < w->signal_count; k++)
        all |= model_judge(g, w, &w->signals[k]);
    if (needs_room && !model_has_room(g, w->queue, 1, true))
        return (all ? all : ONLY_OK) | RESULT(GPUSYNC_ERROR_QUEUE_FULL);
    return all ? all : ONLY_OK;
}

/* -- what the GPU does ------------------------------------------------------------------------------------------ */

/* Threads that take turns need no lock, and must not have this one at a point. */
static void lock_commits(graph *g)
{
    if (!g->begin)
        pthread_mutex_lock(&g->lock);
}

static void unlock_commits(graph *g)
{
    if (!g->begin)
        pthread_mutex_unlock(&g->lock);
}

/* The work that the command buffer, or run, of the program is of, and which of it. -1: none. */
static int work_of(const graph *g, const void *buffer, unsigned *which)
{
    unsigned k;
    int i;
    for (i = 0; i < g->work_count; i++)
        for (k = 0; k < g->work[i].buffer_count; k++)
            if (g->work[i].buffers[k] == buffer || g->work[i].run == buffer) {
                *which = k;
                return i;
            }
    return -1;
}

static void note_commit(graph *g, void *buffer, void *queue)
{
    unsigned k;
    lock_commits(g);
    must(g->commit_count < MOST_COMMITS, "too many commits");
    g->commits[g->commit_count].buffer = buffer;
    g->commits[g->commit_count].queue = queue;
    g->commits[g->commit_count].own = work_of(g, buffer, &k) < 0;
    if (g->commits[g->commit_count++].own)
        metal_retain(buffer); /* no other gets its address */
    unlock_commits(g);
}

/* A queue of Metal 4 has got the buffers of one work. */
static void watch(void *user, softmetal_phase phase, void *object, const char *selector)
{
    graph *g = (graph *)user;
    unsigned k;
    int i;
    if (phase == SOFTMETAL_BEFORE && strcmp(selector, "commit") == 0)
        note_commit(g, object, metal_get(object, "commandQueue"));
    if (phase != SOFTMETAL_AFTER || strcmp(selector, "commit:count:options:") != 0)
        return;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        bool sent = w->run && g->s.metal[w->queue] == object && commit_of(g, w) == UINT32_MAX && is_sent(w->buffers[0]);
        for (k = 0; sent && k < w->buffer_count; k++)
            note_commit(g, w->buffers[k], object);
    }
}

/* gpusync's own command buffer in front of the work, where the GPU waits; NULL: there is none. */
static const void *front_of(const graph *g, const model_work *w)
{
    unsigned first = commit_of(g, w), i = first, which;
    if (first == UINT32_MAX || w->run || w->marker)
        return NULL;
    while (i-- > 0)
        if (g->commits[i].queue == g->commits[first].queue)
            return work_of(g, g->commits[i].buffer, &which) < 0 ? g->commits[i].buffer : NULL;
    return NULL;
}

/* Everything that the work has written is there, or will never be. all: of each of its command buffers. */
static void needs_written(graph *g, const model_work *reader, const model_work *w, bool all)
{
    unsigned k;
    bool there = true;
    if (w == reader || w->marker || commit_of(g, w) == UINT32_MAX)
        return;
    for (k = all ? 0 : w->buffer_count - 1; k < w->buffer_count; k++)
        there = there && (w->wrote[k] || w->over[k]);
    if (!there)
        snprintf(g->early, sizeof g->early, "work %d runs before work %d, which its waits order before it",
                 (int)(reader - g->work), (int)(w - g->work));
}

static void needs_tickets(graph *g, const model_work *reader, int queue, int64_t last)
{
    int64_t ticket;
    for (ticket = 1; ticket <= last; ticket++)
        needs_written(g, reader, &g->work[g->q[queue].tickets[ticket]], true);
}

/* R36, "Overlap": the work that signals the value, or a lower one, comes before this work, which runs now. Where this
   work is held until the value is reached, all tickets before that work do, too. Where both do it on the GPU, and
   nothing but the contract orders them (gpu), the command buffer that signals does (on Metal 4: all before the signal),
   but not where other code may signal, nor once the timeline has failed. */
static void needs_value(graph *g, const model_work *reader, int timeline, uint64_t value, bool gpu)
{
    const model_timeline *t = &g->t[timeline];
    int i;
    for (i = 0; i < g->work_count && !(reader->on_gpu && t->others); i++) {
        const model_work *w = &g->work[i];
        const model_signal *s = model_ran(w) ? signal_of(w, timeline) : NULL;
        bool reached = !reader->on_gpu || (s && s->by_host);
        if (!s || s->value > value || (!reached && (!gpu || t->failure)))
            continue;
        needs_written(g, reader, w, reached || w->run);
        if (reached || w->run)
            needs_tickets(g, reader, w->queue, w->ticket);
    }
}

/* What the waits of this work order before it, which runs now: not those in a command buffer of gpusync's own in front,
   with which it shares nothing. last: it signals on the GPU, at its end. Each signal comes behind the lower ones. */
static void check_memory(graph *g, const model_work *w, bool last)
{
    unsigned k;
    for (k = 0; k < w->wait_count; k++) {
        const model_point *p = &w->waits[k];
        if (p->queue >= 0)
            needs_tickets(g, w, p->queue, p->ticket);
        else
            needs_value(g, w, p->timeline, p->value, w->encodes || w->run);
    }
    for (k = 0; k < w->signal_count && last && !w->run; k++)
        if (!w->signals[k].by_host && !g->t[w->signals[k].timeline].failure)
            needs_value(g, w, w->signals[k].timeline, w->signals[k].value - 1, true);
}

/* A kernel: the command buffer with this number runs. Its signals are at its end. */
static void run_buffer(void *user, const softmetal_kernel_args *args)
{
    graph *g = (graph *)user;
    uint32_t number;
    unsigned k;
    memcpy(&number, args->buffers[0], sizeof number);
    model_work *w = &g->work[number / MOST_BUFFERS];
    w->wrote[number % MOST_BUFFERS] = true;
    if (w->state == MODEL_GONE && w->enqueued) /* R34: the program has committed that itself, and it signals nothing */
        return;
    bool last = number % MOST_BUFFERS == w->buffer_count - 1;
    check_memory(g, w, last);
    for (k = 0; !w->run && last && k < w->signal_count; k++) {
        uint64_t *event = &g->t[w->signals[k].timeline].event;
        if (!w->signals[k].by_host && w->signals[k].value > *event)
            *event = w->signals[k].value;
    }
}

/* S3: a queue's ordered work in the order of tickets, each with its buffers side by side. */
static void check_sent_of_queue(graph *g, int queue)
{
    int64_t last = 0;
    int part_of = -1;
    unsigned part = 0, i, k;
    for (i = 0; i < g->commit_count; i++) {
        int n = work_of(g, g->commits[i].buffer, &k);
        if (n < 0 || g->work[n].queue != queue || g->work[n].marker || g->work[n].state == MODEL_GONE)
            continue;
        const model_work *w = &g->work[n];
        if ((part_of >= 0 && part_of != n) || k != part)
            wrong(g, "the buffers of work %d go in another order", n);
        part_of = ++part < w->buffer_count ? n : -1;
        part = part_of >= 0 ? part : 0;
        if (w->unordered)
            continue;
        if (w->ticket < last)
            wrong(g, "work %d goes behind ticket %d of its queue", n, (int)last);
        last = w->ticket;
    }
    if (part_of >= 0)
        wrong(g, "Metal has a part of work %d", part_of);
}

/* S7: the signals of a timeline in rising order. Two threads may commit, and then one that waits for the other on the
   GPU may come first. */
static void check_sent_of_timeline(graph *g, int timeline)
{
    const model_signal *highest = NULL;
    const model_work *behind = NULL;
    unsigned i, k;
    if (g->t[timeline].failure)
        return; /* nothing rises any more */
    for (i = 0; i < g->commit_count; i++) {
        int n = work_of(g, g->commits[i].buffer, &k);
        const model_signal *s = n >= 0 && g->work[n].state != MODEL_GONE ? signal_of(&g->work[n], timeline) : NULL;
        if (!s)
            continue;
        if (highest && s->value < highest->value && !(g->begin && model_waits_for(behind, timeline, s->value)))
            wrong(g, "work %d signals %d:%d behind %d", n, timeline, (int)s->value, (int)highest->value);
        if (!highest || s->value > highest->value) {
            highest = s;
            behind = &g->work[n];
        }
    }
}

/* Metal has got what the model has sent, and nothing else. */
static void check_sent(graph *g)
{
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        if (w->state != MODEL_GONE && w->buffer_count && model_ran(w) != (commit_of(g, w) != UINT32_MAX))
            wrong(g, "Metal has %s work %d (ticket %d of queue %d)", model_ran(w) ? "not got" : "got", i,
                  (int)w->ticket, w->queue);
    }
    for (i = 0; i < (int)g->rules->queues; i++)
        check_sent_of_queue(g, i);
    for (i = 0; i < (int)g->rules->timelines; i++)
        check_sent_of_timeline(g, i);
    if (g->early[0])
        wrong(g, "%s", g->early);
}

/* -- what gpusync tells ------------------------------------------------------------------------------------------ */

static void check_done(graph *g)
{
    int i;
    for (i = 0; i < (int)g->rules->queues; i++) {
        int64_t done = model_done(g, i);
        if (g->q[i].closed)
            continue;
        if (!gpusync_is_done(g->s.q[i], done))
            wrong(g, "ticket %d of queue %d is not done", (int)done, i);
        if (gpusync_is_done(g->s.q[i], done + 1))
            wrong(g, "ticket %d of queue %d is done", (int)done + 1, i);
        if (gpusync_is_done(g->s.q[i], GPUSYNC_EVERYTHING) != model_all_ended(g, i))
            wrong(g, "everything of queue %d is done, or is not", i);
        if (gpusync_in_flight(g->s.q[i]) != model_in_flight(g, i))
            wrong(g, "in flight on queue %d: %d, the contract %d", i, (int)gpusync_in_flight(g->s.q[i]),
                  (int)model_in_flight(g, i));
    }
}

static void check_work(graph *g)
{
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        gpusync_result expected = w->state == MODEL_SETTLED ? w->result : GPUSYNC_NOT_READY;
        if (!model_counts(w) && w->state != MODEL_SETTLED)
            continue;
        if (!w->unordered && !g->q[w->queue].closed)
            expected = w->state == MODEL_SETTLED ? w->result : not_yet(g, GPUSYNC_NOT_READY);
        gpusync_result got = ask_work(g, w);
        if (got != expected)
            wrong(g, "work %d, ticket %d of queue %d: gpusync says %d (%s), the contract %d", i, (int)w->ticket,
                  w->queue, got, gpusync_result_string(got), expected);
        if (w->unordered || g->q[w->queue].closed || chance_to_check(g, 90))
            continue;
        got = gpusync_wait(g->s.q[w->queue], w->ticket, 0, NULL);
        if (got != (expected == GPUSYNC_NOT_READY ? GPUSYNC_TIMEOUT : expected))
            wrong(g, "work %d, ticket %d of queue %d: a wait says %d (%s), the contract %d", i, (int)w->ticket,
                  w->queue, got, gpusync_result_string(got), expected);
    }
}

static void check_values(graph *g)
{
    int i;
    for (i = 0; i < (int)g->rules->timelines; i++) {
        model_timeline *t = &g->t[i];
        uint64_t value;
        gpusync_result got = ask_timeline(g, i, &value);
        if (t->closed)
            continue;
        if (got > 0 || !((t->failure ? t->causes : ONLY_OK) & RESULT(got)))
            wrong(g, "timeline %d: query says %d (%s), allowed are %llx", i, got, gpusync_result_string(got),
                  (unsigned long long)t->causes);
        if (value != t->reached)
            wrong(g, "timeline %d shows %d, the contract %d", i, (int)value, (int)t->reached);
        if (gpusync_timeline_wait(g->s.t[i], t->reached, 0, NULL) != GPUSYNC_OK)
            wrong(g, "a wait for what timeline %d shows fails", i);
        gpusync_result above = gpusync_timeline_wait(g->s.t[i], t->reached + 1, 0, NULL);
        if (above != (t->failure ? got : not_yet(g, GPUSYNC_TIMEOUT)))
            wrong(g, "a wait for more than timeline %d shows says %d", i, above);
    }
}

/* S4, R14: each failure is on record once, those of tickets in their order, with what the contract says of it. */
static void check_record(graph *g, int queue)
{
    model_queue *q = &g->q[queue];
    gpusync_error error;
    uint64_t cursor = 0;
    int64_t last = 0;
    unsigned n;
    for (n = 0; gpusync_queue_next_error(g->s.q[queue], &cursor, &error) == GPUSYNC_OK; n++) {
        bool ticket = error.ticket > 0 && error.ticket <= q->last;
        int i = ticket ? q->tickets[error.ticket] : atoi(error.label) % MOST_WORK; /* UNORDERED */
        model_work *w = &g->work[i];
        if (w->queue != queue || w->state != MODEL_SETTLED || n >= q->failures || error.ticket != w->ticket ||
            error.result != w->result || w->result == GPUSYNC_OK || (n < q->recorded ? q->record[n] != i : w->recorded))
            wrong(g, "queue %d has a failure of ticket %d with %d on record", queue, (int)error.ticket, error.result);
        if (n == q->recorded)
            q->record[q->recorded++] = i;
        w->recorded = true;
        if (error.inherited ? !(w->theirs & RESULT(w->result)) : !(w->own & RESULT(w->result)))
            wrong(g, "the failure of work %d is inherited, or is not", i);
        if (error.ran != (w->ran && w->buffer_count) || error.in_use || error.dropped)
            wrong(g, "the failure of work %d: ran %d, in_use %d, dropped %d", i, error.ran, error.in_use,
                  (int)error.dropped);
        if (!error.inherited && (error.origin != error.ticket || error.queue_user != q))
            wrong(g, "the origin of work %d", i);
        if (error.inherited && error.origin > 0) {
            const model_queue *from = (const model_queue *)error.queue_user;
            const model_work *first = &g->work[from->tickets[error.origin]];
            if (first->state != MODEL_SETTLED || !(first->own & RESULT(w->result)))
                wrong(g, "work %d inherits from work %d", i, (int)(first - g->work));
        }
        if (error.result == GPUSYNC_ERROR_DEVICE_LOST && error.failure != GPUSYNC_FAILURE_ACCESS_REVOKED &&
            error.failure != GPUSYNC_FAILURE_DEVICE_REMOVED) /* R38 */
            wrong(g, "the failure of work %d is of class %d", i, error.failure);
        if (w->ticket && w->ticket <= last)
            wrong(g, "failures of queue %d are out of order", queue);
        last = w->ticket ? w->ticket : last;
    }
    if (n != q->failures)
        wrong(g, "%u failures of queue %d are on record, the contract says %u", n, queue, q->failures);
}

/* R32. */
static void check_sticks(graph *g, int queue)
{
    const model_queue *q = &g->q[queue];
    gpusync_error error = {.ticket = 0};
    gpusync_result got = gpusync_queue_failure(g->s.q[queue], &error);
    gpusync_result expected = q->stuck >= 0 ? GPUSYNC_OK : GPUSYNC_NOT_READY;
    if (got != (q->sticky ? expected : GPUSYNC_ERROR_INVALID_ARGUMENT))
        wrong(g, "queue_failure of queue %d says %d", queue, got);
    if (got == GPUSYNC_OK && (error.ticket != g->work[q->stuck].ticket || error.result != g->work[q->stuck].result))
        wrong(g, "ticket %d with %d sticks to queue %d", (int)error.ticket, error.result, queue);
}

/* R31: the oldest failure that was not told; if there is none, what sticks. */
static gpusync_result model_everything(const graph *g, int queue)
{
    const model_queue *q = &g->q[queue];
    int teller = q->told < q->recorded ? q->record[q->told] : q->stuck;
    if (!model_all_ended(g, queue))
        return not_yet(g, GPUSYNC_NOT_READY);
    return teller < 0 ? GPUSYNC_OK : g->work[teller].result;
}

static void wait_for_everything(graph *g, int queue)
{
    gpusync_point point = ticket_at(g->s.q[queue], GPUSYNC_EVERYTHING);
    gpusync_wait_for how = (gpusync_wait_for)draw_by_seed(g, 3);
    gpusync_result expected = model_everything(g, queue);
    gpusync_result got = chance_to_check(g, 50) ? gpusync_wait_many(&point, 1, how, 0, NULL, NULL)
                                                : gpusync_wait(g->s.q[queue], GPUSYNC_EVERYTHING, 0, NULL);
    if (got != (expected == GPUSYNC_NOT_READY ? GPUSYNC_TIMEOUT : expected))
        wrong(g, "a wait for everything of queue %d says %d, the contract %d", queue, got, expected);
    if (model_all_ended(g, queue))
        g->q[queue].told = g->q[queue].recorded;
}

/* ... of the device, which tells the failures of one queue: a poll shows which, unless one that sticks is the same. */
static void wait_for_device(graph *g)
{
    bool ended = true, failed = false, hidden = false;
    unsigned told = 0;
    int i;
    for (i = 0; i < (int)g->rules->queues; i++) {
        ended = ended && (g->q[i].closed || model_everything(g, i) <= 0);
        failed = failed || (!g->q[i].closed && model_everything(g, i) < 0);
    }
    gpusync_result got = gpusync_device_wait(g->s.device, 0, NULL);
    if (ended ? (got < 0) != failed : got != GPUSYNC_TIMEOUT)
        wrong(g, "a wait for the device says %d", got);
    for (i = 0; got < 0 && i < (int)g->rules->queues; i++) {
        unsigned before = g->q[i].told;
        if (g->q[i].closed || model_everything(g, i) != got)
            continue;
        g->q[i].told = g->q[i].recorded;
        gpusync_result now = gpusync_poll(g->s.q[i], GPUSYNC_EVERYTHING, NULL);
        if (model_everything(g, i) == got)
            hidden = gpusync_wait(g->s.q[i], GPUSYNC_EVERYTHING, 0, NULL) == got;
        else if (now == got)
            g->q[i].told = before;
        else
            told++;
    }
    if (got < 0 && told != 1 && (told || !hidden))
        wrong(g, "a wait for the device with %d tells the failures of %u queues", got, told);
}

static void check_everything(graph *g)
{
    int i;
    for (i = 0; i < (int)g->rules->queues; i++) {
        if (g->q[i].closed)
            continue;
        check_record(g, i);
        check_sticks(g, i);
        gpusync_result got = gpusync_poll(g->s.q[i], GPUSYNC_EVERYTHING, NULL);
        if (got != model_everything(g, i))
            wrong(g, "a poll for everything of queue %d says %d, the contract %d", i, got, model_everything(g, i));
        if (chance_to_check(g, 20))
            wait_for_everything(g, i);
    }
    if (!g->lost && chance_to_check(g, 10))
        wait_for_device(g);
}

/* -- callbacks ------------------------------------------------------------------------------------------------- */

static void called(void *user, gpusync_result result, const gpusync_error *error)
{
    unsigned i = (unsigned)(uintptr_t)user;
    must((error == NULL) == (result == GPUSYNC_OK), "an error with OK, or none with a failure");
    must(!calling->callbacks[i].ran, "a callback was called twice");
    calling->callbacks[i].ran = true;
    calling->callbacks[i].result = result;
    calling->callbacks[i].in_use = error && error->in_use;
    calling->callbacks[i].order = ++calling->call_order;
}

/* Of one point, in the order in which they were registered; of tickets of a queue, in their order. */
static bool comes_before(const graph *g, unsigned i, unsigned j)
{
    const model_point *a = &g->callbacks[i].point, *b = &g->callbacks[j].point;
    if (a->queue != b->queue)
        return false;
    if (a->queue < 0)
        return a->timeline == b->timeline && a->value == b->value && i < j;
    if (a->ticket == b->ticket)
        return g->callbacks[i].work == g->callbacks[j].work && i < j;
    return a->ticket && a->ticket < b->ticket && !g->callbacks[i].at_end;
}

/* R25, S3: each that is due has been called, with its result. */
static void check_callbacks(graph *g)
{
    unsigned i, j;
    for (i = 0; i < g->callback_count; i++) {
        const model_work *w = g->callbacks[i].work < 0 ? NULL : &g->work[g->callbacks[i].work];
        results right = g->callbacks[i].closed      ? RESULT(GPUSYNC_ERROR_DESTROYED)
                        : !w                        ? model_point_result(g, &g->callbacks[i].point)
                        : w->state == MODEL_SETTLED ? RESULT(w->result)
                                                    : 0;
        if (g->callbacks[i].ran != (right != 0))
            wrong(g, "callback %u was %s", i, right ? "not called" : "called too early");
        if (!right || g->callbacks[i].seen)
            continue;
        g->callbacks[i].seen = true;
        if (g->callbacks[i].result > 0 || !(right & RESULT(g->callbacks[i].result)))
            wrong(g, "callback %u gets %d", i, g->callbacks[i].result);
        bool given_up = w && g->q[w->queue].abandoned && w->ran; /* S2, R30 */
        if (w && (g->callbacks[i].in_use ? !given_up : given_up && !w->ended))
            wrong(g, "callback %u of work %d: in_use %d", i, g->callbacks[i].work, g->callbacks[i].in_use);
        for (j = 0; j < g->callback_count; j++)
            if (g->callbacks[j].ran && comes_before(g, i, j) && g->callbacks[i].order > g->callbacks[j].order)
                wrong(g, "callback %u runs behind %u", i, j);
    }
}

static gpusync_point real_point(const graph *g, const model_point *p)
{
    return p->queue < 0 ? at(g->s.t[p->timeline], p->value) : ticket_at(g->s.q[p->queue], p->ticket);
}

/* work: the point is that of its end; -1: it is a value. */
static unsigned new_callback(graph *g, const model_point *p, int work)
{
    unsigned i = g->callback_count++;
    must(i < MOST_CALLBACKS, "too many callbacks");
    g->callbacks[i].point = *p;
    g->callbacks[i].work = work;
    g->callbacks[i].at_end = work >= 0 && g->work[work].state == MODEL_SETTLED;
    return i;
}

static void register_callback(graph *g, const model_point *p)
{
    unsigned i = new_callback(g, p, p->queue < 0 ? -1 : g->q[p->queue].tickets[p->ticket]);
    say(g, "  on_done %u: queue %d ticket %d timeline %d value %d\n", i, p->queue, (int)p->ticket, p->timeline,
        (int)p->value);
    assert_ok(gpusync_on_done(real_point(g, p), called, (void *)(uintptr_t)i));
}

/* -- the steps ------------------------------------------------------------------------------------------------- */

/* R18: what queues of Metal 4 have written to the events that others signal. What command buffers write, run_buffer
   notes; what other code does, step_others; what gpusync writes itself is reached by then. A query is a look. */
static void read_events(graph *g)
{
    uint64_t base = 0, value, seen;
    int i, j;
    for (i = 0; i < (int)g->rules->timelines; i++) {
        if (!g->t[i].others || g->t[i].failure || ask_timeline(g, i, &value) != GPUSYNC_OK)
            continue;
        seen = metal_event_value(gpusync_timeline_metal(g->s.t[i], &base)) - base;
        for (j = 0; j < g->work_count; j++) {
            const model_signal *s = g->work[j].state == MODEL_SENT ? signal_of(&g->work[j], i) : NULL;
            if (s && !s->by_host && g->work[j].run && s->value <= seen && s->value > g->t[i].event)
                g->t[i].event = s->value;
        }
    }
    /* A listener's block runs on a thread of its own. */
    assert_true(softmetal_settle_listeners(SECONDS(60)));
}

/* What never runs counts in Metal while the program has a reference. */
static void let_go(model_work *w)
{
    while (w->buffer_count)
        metal_release(w->buffers[--w->buffer_count]);
}

static void run_all_callbacks(graph *g)
{
    size_t count;
    do
        assert_ok(gpusync_device_run_callbacks(g->s.device, SIZE_MAX, &count));
    while (count);
}

static void look_everywhere(graph *g)
{
    assert_ok(gpusync_device_run_callbacks(g->s.device, 0, NULL));
}

static void check(graph *g)
{
    uint64_t flying[STAGE_MOST] = {0};
    int i;
    if (g->rest)
        g->rest(g);
    for (i = 0; i < (int)g->rules->queues; i++) /* before a call looks */
        flying[i] = g->q[i].closed ? 0 : gpusync_in_flight(g->s.q[i]);
    if (draws(g, DRAWS_OTHERS))
        read_events(g);
    run_all_callbacks(g);
    model_lose(g);
    model_move(g);
    check_sent(g);
    check_done(g);
    check_work(g);
    check_values(g);
    check_everything(g);
    check_callbacks(g);
    for (i = 0; i < (int)g->rules->queues; i++)
        if (!g->q[i].closed && flying[i] != model_in_flight(g, i) && !draws(g, DRAWS_OTHERS))
            wrong(g, "without a look %d are in flight on queue %d, the contract %d", (int)flying[i], i,
                  (int)model_in_flight(g, i));
    for (i = 0; i < g->work_count; i++)
        if (g->work[i].state == MODEL_SETTLED && !g->work[i].ran)
            let_go(&g->work[i]);
    if (g->judge)
        g->judge(g);
}

/* Mostly above what is sent and committed, sometimes below: another queue may have a higher one that is held. */
static uint64_t new_value(graph *g, int timeline)
{
    model_timeline *t = &g->t[timeline];
    uint64_t value =
        chance(g, 70) || t->top <= t->reached ? t->top + 1 + draw(g, 2) : t->reached + 1 + draw(g, t->top - t->reached);
    if (value > t->top)
        t->top = value;
    return value;
}

static bool draw_point(graph *g, model_point *p)
{
    memset(p, 0, sizeof *p);
    if (draws(g, DRAWS_TICKETS) && chance(g, 35)) {
        int64_t from;
        p->queue = (int)draw(g, g->rules->queues);
        from = model_done(g, p->queue) > 2 ? model_done(g, p->queue) - 2 : 0;
        p->ticket = from + (int64_t)draw(g, (uint64_t)(g->q[p->queue].last - from) + 1);
        return p->ticket > 0 && !g->q[p->queue].closed;
    }
    p->queue = -1;
    p->timeline = (int)draw(g, g->rules->timelines);
    const model_timeline *t = &g->t[p->timeline];
    uint64_t low = t->reached > 2 ? t->reached - 1 : 1;
    p->value = low + draw(g, (t->top > low ? t->top - low : 0) + 3);
    return !t->closed;
}

static model_work *new_work(graph *g, int queue)
{
    model_work *w = &g->work[g->work_count];
    memset(w, 0, sizeof *w);
    w->queue = queue;
    w->behind = w->callback = -1;
    return w;
}

static void draw_points(graph *g, model_work *w)
{
    unsigned waits = (unsigned)draw(g, 3);
    unsigned signals = (unsigned)draw(g, 3);
    while (waits-- > 0) {
        model_point p;
        if (draw_point(g, &p))
            w->waits[w->wait_count++] = p;
    }
    while (signals-- > 0) {
        model_signal *s = &w->signals[w->signal_count];
        s->timeline = (int)draw(g, g->rules->timelines);
        if (g->t[s->timeline].closed || (g->t[s->timeline].others && !g->deaf) || signal_of(w, s->timeline))
            continue;
        s->value = new_value(g, s->timeline);
        s->by_host = !w->on_gpu;
        if (g->q[w->queue].metal4 && model_waits_for(w, s->timeline, g->t[s->timeline].reached + 1))
            s->by_host = true; /* R29 */
        w->signal_count++;
    }
    for (waits = 0; waits < w->wait_count; waits++)
        if (w->on_gpu && !w->encodes && w->waits[waits].queue < 0 && model_point_result(g, &w->waits[waits]) != ONLY_OK)
            w->fronted = true;
}

/* The graph's own reference keeps the address of each buffer its own. */
static void *draw_buffer(graph *g, model_work *w)
{
    char label[8];
    int number = (int)(w - g->work);
    snprintf(label, sizeof label, "%d", number);
    void *buffer = named_buffer(g->s.q[w->queue], label);
    metal_retain(buffer);
    mark(&g->s, buffer, (uint32_t)number * MOST_BUFFERS + w->buffer_count);
    w->buffers[w->buffer_count++] = buffer;
    if (g->q[w->queue].metal4)
        w->run = softmetal_run_of(w->buffers[0]);
    if (draws(g, DRAWS_FAILS) && chance(g, 12) && !w->loser && !(w->run && w->faults)) {
        void *fails = w->run ? w->run : buffer;
        bool loses = g->rules->loses && 3 * g->step > g->rules->steps && chance(g, g->rules->loses);
        softmetal_fail_as(fails, loses ? SOFTMETAL_SUBMISSIONS_IGNORED : SOFTMETAL_PAGE_FAULT, NULL);
        w->faults = true;
        if (loses)
            w->loser = fails;
    }
    return buffer;
}

static void tell_work(graph *g, const model_work *w, const char *what)
{
    unsigned k;
    say(g, "%u: %s work %d on queue %d%s%s%s%s", g->step, what, (int)(w - g->work), w->queue,
        w->unordered ? " UNORDERED" : "", w->on_gpu && !w->encodes ? " ON_GPU" : "", w->enqueued ? " enqueued" : "",
        w->loser    ? " loses the device"
        : w->faults ? " fails"
                    : "");
    say(g, ", %u buffers", w->buffer_count);
    for (k = 0; k < w->wait_count; k++) {
        const model_point *p = &w->waits[k];
        if (p->queue < 0)
            say(g, ", waits %d:%d", p->timeline, (int)p->value);
        if (p->queue >= 0)
            say(g, ", waits ticket %d of %d", (int)p->ticket, p->queue);
    }
    for (k = 0; k < w->signal_count; k++)
        say(g, ", signals %d:%d", w->signals[k].timeline, (int)w->signals[k].value);
    say(g, "\n");
}

/* Metal's queue would wait for an enqueued buffer: the program commits that itself. */
static void throw_away(graph *g, model_work *w)
{
    unsigned k;
    w->state = MODEL_GONE;
    for (k = 0; k < w->buffer_count; k++) {
        if (w->enqueued)
            metal_commit(w->buffers[k]);
        if (!w->run)
            assert_ok(gpusync_command_buffer_discard(g->s.q[w->queue], w->buffers[k]));
    }
    if (!w->enqueued)
        let_go(w);
}

/* Either the work is accepted, or refused as the contract says; then it has changed nothing. */
static bool judge(graph *g, model_work *w, results answers, gpusync_result got, int64_t ticket)
{
    model_queue *q = &g->q[w->queue];
    if (g->ending >= 0 && w->signal_count)
        answers |= RESULT(GPUSYNC_ERROR_NOT_RISING);
    if (got > 0 || !(answers & RESULT(got)))
        wrong(g, "the call says %d (%s), allowed are %llx", got, gpusync_result_string(got),
              (unsigned long long)answers);
    if (ticket != (got || w->unordered ? -7 : q->last + 1))
        wrong(g, "ticket %d behind %d", (int)ticket, (int)q->last);
    say(g, got ? "  refused with %d\n" : "  accepted\n", got);
    if (got)
        return false;
    w->state = MODEL_HELD;
    if (w->unordered)
        return true;
    w->ticket = ++q->last;
    q->tickets[w->ticket] = (int)(w - g->work);
    return true;
}

/* Whether the program may make work there. Where new command buffers are refused the call says so. */
static bool can_make(graph *g, int queue)
{
    const model_queue *q = &g->q[queue];
    void *buffer = NULL;
    results allowed = g->lost ? RESULT(GPUSYNC_ERROR_DEVICE_LOST) : 0;
    if (q->closed || g->work_count == MOST_WORK)
        return false;
    if (q->stuck >= 0)
        allowed |= RESULT(GPUSYNC_ERROR_EXECUTION);
    if (!allowed || q->metal4)
        return true;
    gpusync_result got = gpusync_command_buffer_create(g->s.q[queue], NULL, 0, &buffer);
    if (got >= 0 || !(allowed & RESULT(got)) || buffer)
        wrong(g, "command_buffer_create says %d, allowed are %llx", got, (unsigned long long)allowed);
    return false;
}

/* R37: there is no place for another command buffer. Where only the program can make one, a wait for it says so. */
static bool is_full(graph *g, int queue)
{
    void *buffer = NULL;
    unsigned open = 0;
    int i;
    if (g->q[queue].metal4 || model_has_room(g, queue, 1, true))
        return false;
    say(g, "%u: queue %d may be full\n", g->step, queue);
    gpusync_result got = gpusync_command_buffer_create(g->s.q[queue], NULL, 0, &buffer);
    if (got == GPUSYNC_OK && model_has_room(g, queue, 1, false)) {
        assert_ok(gpusync_command_buffer_discard(g->s.q[queue], buffer));
        return false;
    }
    assert_int_equal(got, GPUSYNC_TIMEOUT);
    for (i = 0; i < g->work_count; i++)
        open += g->work[i].queue == queue && g->work[i].state == MODEL_OPEN ? g->work[i].buffer_count : 0;
    if (open == g->q[queue].limit && !g->begin) /* else no time passes in the wait */
        assert_result(gpusync_command_buffer_create(g->s.q[queue], NULL, GPUSYNC_FOREVER, &buffer),
                      GPUSYNC_ERROR_QUEUE_FULL);
    assert_null(buffer);
    return true;
}

static void step_submit(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    model_work *w = new_work(g, queue);
    gpusync_point waits[MOST_WAITS], signals[MOST_SIGNALS];
    gpusync_ticket ticket = -7;
    unsigned buffers = chance(g, 25) ? 2 : 1;
    char label[8];
    unsigned k;
    if (!can_make(g, queue))
        return;
    if (is_full(g, queue) || (draws(g, DRAWS_EMPTIES) && chance(g, 10)))
        buffers = 0;
    else if (buffers == 2 && !g->q[queue].metal4 && !model_has_room(g, queue, 2, true))
        buffers = 1;
    g->work_count++;
    w->unordered = draws(g, DRAWS_UNORDERED) && chance(g, 30);
    w->on_gpu = draws(g, DRAWS_ON_GPU) && chance(g, 40);
    unsigned flags = (w->unordered ? GPUSYNC_SUBMIT_UNORDERED : 0) | (w->on_gpu ? GPUSYNC_SUBMIT_ON_GPU : 0);
    w->on_gpu = w->on_gpu && buffers;
    draw_points(g, w);
    for (k = 0; k < buffers; k++)
        draw_buffer(g, w);
    for (k = 0; k < w->wait_count; k++)
        waits[k] = real_point(g, &w->waits[k]);
    for (k = 0; k < w->signal_count; k++)
        signals[k] = at(g->s.t[w->signals[k].timeline], w->signals[k].value);
    tell_work(g, w, "submit");
    snprintf(label, sizeof label, "%d", (int)(w - g->work));
    gpusync_submission submission = {.wait_points = waits, .wait_count = w->wait_count, .signal_points = signals,
                                     .signal_count = w->signal_count, .command_buffers = w->buffers,
                                     .command_buffer_count = w->buffer_count, .label = label, .flags = flags};
    if (w->unordered || chance(g, 30)) {
        submission.on_complete = called;
        submission.user = (void *)(uintptr_t)g->callback_count;
    }
    if (w->unordered && chance(g, 5)) /* R30 */
        assert_true(gpusync_submit(g->s.q[queue], &submission, &ticket) < 0);
    results answers = model_answers(g, w);
    gpusync_result got = submit_to(g->s.q[queue], &submission, w->unordered ? NULL : &ticket);
    if (!judge(g, w, answers, got, ticket)) {
        throw_away(g, w);
        return;
    }
    if (submission.on_complete) {
        model_point end = {.queue = queue, .ticket = w->ticket};
        w->callback = (int)new_callback(g, &end, (int)(w - g->work));
    }
}

/* R33, R34, R35: a wait behind a signal, points and submissions mixed, points of an enqueued buffer. */
static void refuse_open(graph *g, const model_work *w)
{
    gpusync_queue *queue = g->s.q[w->queue];
    const gpusync_submission mixed = {.command_buffers = w->buffers, .command_buffer_count = 1};
    gpusync_result got = gpusync_submit(queue, &mixed, NULL);
    if (w->enqueued ? got >= 0 : got != GPUSYNC_ERROR_INVALID_ARGUMENT)
        wrong(g, "a submission of work %d says %d", (int)(w - g->work), got);
    got = gpusync_encode_wait(queue, w->buffers[0], ticket_at(queue, 0));
    if (w->enqueued ? got != GPUSYNC_ERROR_ENQUEUED : w->signal_count && got != GPUSYNC_ERROR_INVALID_ARGUMENT)
        wrong(g, "encode_wait of work %d says %d", (int)(w - g->work), got);
    if (w->enqueued)
        assert_result(gpusync_encode_signal(queue, w->buffers[0], at(g->s.t[0], GPUSYNC_MAX_VALUE)),
                      GPUSYNC_ERROR_ENQUEUED);
}

/* A buffer that stays open for a while, with encoded waits and signals, or enqueued, or both. What the program commits
   itself waits for what is reached alone, or it would hold up its queue. */
static void step_open(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    model_work *w = new_work(g, queue);
    unsigned k, kept = 0;
    if (g->q[queue].metal4 || !can_make(g, queue) || is_full(g, queue))
        return;
    g->work_count++;
    w->enqueued = draws(g, DRAWS_ENQUEUED) && chance(g, 15);
    if (!w->enqueued || chance(g, 30)) {
        w->encodes = w->on_gpu = true;
        draw_points(g, w);
    }
    void *buffer = draw_buffer(g, w);
    for (k = 0; k < w->wait_count; k++)
        if (!w->enqueued || model_point_result(g, &w->waits[k]) & ONLY_OK)
            w->waits[kept++] = w->waits[k];
    w->wait_count = kept;
    tell_work(g, w, "open");
    for (k = 0; k < w->wait_count; k++)
        encode_wait(g->s.q[queue], buffer, real_point(g, &w->waits[k]));
    for (k = 0, kept = 0; k < w->signal_count; k++) {
        model_signal signal = w->signals[k];
        results refusals = model_judge(g, w, &signal);
        gpusync_result got = gpusync_encode_signal(g->s.q[queue], buffer, at(g->s.t[signal.timeline], signal.value));
        if (g->ending >= 0 && got)
            refusals |= RESULT(GPUSYNC_ERROR_NOT_RISING);
        if (got > 0 || !((refusals ? refusals : ONLY_OK) & RESULT(got)))
            wrong(g, "encode_signal %d:%d says %d, allowed are %llx", signal.timeline, (int)signal.value, got,
                  (unsigned long long)refusals);
        if (got == GPUSYNC_OK)
            w->signals[kept++] = signal;
        else
            say(g, "  signal %d:%d is refused\n", signal.timeline, (int)signal.value);
    }
    w->signal_count = kept;
    if (w->enqueued)
        metal_enqueue(buffer);
    if (w->enqueued || (w->wait_count + w->signal_count && chance(g, 20)))
        refuse_open(g, w);
}

static model_work *draw_open(graph *g)
{
    int first = g->work_count ? (int)draw(g, (uint64_t)g->work_count) : 0;
    int i;
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[(first + i) % g->work_count];
        if (w->state == MODEL_OPEN)
            return w;
    }
    return NULL;
}

static bool commit_work(graph *g, model_work *w)
{
    gpusync_ticket ticket = -7;
    tell_work(g, w, "commit");
    results answers = model_answers(g, w);
    gpusync_result got = gpusync_commit(g->s.q[w->queue], w->buffers[0], &ticket);
    return judge(g, w, answers, got, ticket);
}

static void step_commit_open(graph *g)
{
    model_work *w = draw_open(g);
    if (w)
        commit_work(g, w);
}

static void step_commit_plain(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    model_work *w = new_work(g, queue);
    if (!can_make(g, queue) || is_full(g, queue))
        return;
    g->work_count++;
    draw_buffer(g, w);
    if (!commit_work(g, w))
        throw_away(g, w);
}

static void step_discard(graph *g)
{
    model_work *w = draw_open(g);
    if (!w || g->ending >= 0)
        return;
    tell_work(g, w, "discard");
    throw_away(g, w);
}

/* Whatever is held, and whatever sticks. */
static void step_marker(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    model_work *w = new_work(g, queue);
    gpusync_ticket ticket = -7;
    results refusals = g->lost ? RESULT(GPUSYNC_ERROR_DEVICE_LOST) : 0;
    if (g->q[queue].closed || g->q[queue].metal4 || g->work_count == MOST_WORK)
        return;
    if (g->q[queue].last && chance(g, 40))
        w->behind = g->q[queue].tickets[1 + (int)draw(g, (uint64_t)g->q[queue].last)];
    const model_work *behind = w->behind < 0 ? NULL : &g->work[w->behind];
    if (behind && (!model_ran(behind) || behind->buffer_count != 1)) {
        refusals |= behind->buffer_count && !model_ran(behind) ? RESULT(GPUSYNC_ERROR_NOT_COMMITTED) : 0;
        if (!refusals || !behind->buffer_count || g->ending >= 0)
            return;
    }
    if (!model_has_room(g, queue, 1, false))
        refusals |= RESULT(GPUSYNC_ERROR_QUEUE_FULL);
    refusals = refusals ? refusals : ONLY_OK;
    if (!model_has_room(g, queue, 1, true))
        refusals |= RESULT(GPUSYNC_ERROR_QUEUE_FULL);
    g->work_count++;
    w->marker = true;
    w->state = MODEL_GONE;
    say(g, "%u: marker work %d on queue %d behind work %d\n", g->step, (int)(w - g->work), queue, w->behind);
    gpusync_result got = gpusync_commit_marker(g->s.q[queue], behind ? behind->buffers[0] : NULL, &ticket);
    if (!judge(g, w, refusals, got, ticket))
        return;
    w->buffers[w->buffer_count++] = metal_retain(softmetal_last_buffer(g->s.metal[queue]));
    w->state = MODEL_SENT;
}

/* R3. */
static void step_host_signal(graph *g)
{
    int i = (int)draw(g, g->rules->timelines);
    model_timeline *t = &g->t[i];
    uint64_t value = t->reached + draw(g, t->top - t->reached + 3);
    results allowed = ONLY_OK;
    if (t->closed || g->ending >= 0)
        return;
    if (value <= t->reached || value >= model_lowest_sent(g, i))
        allowed = RESULT(GPUSYNC_ERROR_NOT_RISING);
    if (t->failure)
        allowed = t->failure;
    gpusync_result got = gpusync_timeline_signal(g->s.t[i], value);
    say(g, "%u: host signals %d:%d: %d\n", g->step, i, (int)value, got);
    if (got > 0 || !(allowed & RESULT(got)))
        wrong(g, "a signal of the host says %d, allowed are %llx", got, (unsigned long long)allowed);
    if (got != GPUSYNC_OK)
        return;
    model_rise(g, i, value);
    if (t->event < value)
        t->event = value;
}

/* R18: other code. */
static void step_others(graph *g)
{
    int i = (int)draw(g, g->rules->timelines);
    uint64_t base = 0;
    void *event;
    if (!g->t[i].others || g->t[i].failure || g->t[i].closed)
        return;
    g->t[i].event += 1 + draw(g, 3);
    say(g, "%u: other code signals %d:%d\n", g->step, i, (int)g->t[i].event);
    event = gpusync_timeline_metal(g->s.t[i], &base);
    metal_event_signal(event, g->t[i].event + base);
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    look_everywhere(g);
}

static void model_cancel_one(model_work *w)
{
    w->cancelled |= w->state == MODEL_HELD;
    model_doom(w, RESULT(GPUSYNC_ERROR_CANCELLED), 0);
}

static void model_cancel(graph *g, int queue)
{
    int i;
    for (i = 0; i < g->work_count; i++)
        if (g->work[i].queue == queue)
            model_cancel_one(&g->work[i]);
}

static void cancel_queue(graph *g, int queue)
{
    if (g->q[queue].closed)
        return;
    say(g, "%u: cancel_held of queue %d\n", g->step, queue);
    assert_ok(gpusync_queue_cancel_held(g->s.q[queue], GPUSYNC_EVERYTHING));
    model_cancel(g, queue);
}

/* What has failed behind held work is held, or is not. */
static void cancel_ticket(graph *g, int queue)
{
    const model_queue *q = &g->q[queue];
    int64_t ticket = (int64_t)draw(g, (uint64_t)q->last + 3) - 1;
    model_work *w = ticket > 0 && ticket <= q->last ? &g->work[q->tickets[ticket]] : NULL;
    bool failed = w && w->state == MODEL_OVER && !w->fixed && !(w->own & RESULT(GPUSYNC_ERROR_CANCELLED));
    if (q->closed)
        return;
    say(g, "%u: cancel_held of ticket %d of queue %d\n", g->step, (int)ticket, queue);
    gpusync_result got = gpusync_queue_cancel_held(g->s.q[queue], ticket);
    if (!failed || (got != GPUSYNC_OK && got != GPUSYNC_NOT_READY))
        assert_result(got, !w ? GPUSYNC_ERROR_INVALID_TICKET : w->state == MODEL_HELD ? GPUSYNC_OK : GPUSYNC_NOT_READY);
    if (got == GPUSYNC_OK)
        model_cancel_one(w);
}

static void step_cancel(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    if (chance(g, 30))
        cancel_queue(g, queue);
    else
        cancel_ticket(g, queue);
}

static void count_gone(void *user)
{
    ++*(unsigned *)user;
}

/* R19: waits and callbacks of the host end, and work goes on. */
static void close_timeline(graph *g, int timeline, bool later)
{
    unsigned i, object = STAGE_MOST + (unsigned)timeline;
    say(g, "%u: timeline %d is destroyed%s\n", g->step, timeline, later ? " later" : "");
    for (i = 0; i < g->callback_count; i++) {
        const model_point *p = &g->callbacks[i].point;
        if (p->queue < 0 && p->timeline == timeline && !model_point_result(g, p))
            g->callbacks[i].closed = true;
    }
    g->goes[object] = later;
    if (later)
        assert_ok(gpusync_timeline_destroy_later(g->s.t[timeline], count_gone, &g->gone[object]));
    else
        assert_ok(gpusync_timeline_destroy(g->s.t[timeline]));
    g->s.t[timeline] = NULL;
    g->t[timeline].closed = true;
}

/* R20, R21: open command buffers are discarded, held work is cancelled; what Metal has goes on, or is given up. Then
   callbacks alone tell of it. */
static void close_queue(graph *g, int queue, bool abandon)
{
    bool busy = false;
    int i;
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        if (w->queue != queue)
            continue;
        if (w->state == MODEL_OPEN && w->enqueued)
            throw_away(g, w);
        if (w->state == MODEL_OPEN)
            w->state = MODEL_GONE;
    }
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        model_point p = {.queue = queue, .ticket = w->ticket};
        if (w->queue != queue)
            continue;
        busy = busy || w->state == MODEL_SENT;
        if (!w->unordered && w->ticket)
            w->callback = (int)g->callback_count;
        if (!w->unordered && w->ticket)
            register_callback(g, &p);
    }
    g->goes[queue] = busy && !abandon;
    say(g, "%u: queue %d is %s\n", g->step, queue, abandon ? "abandoned" : busy ? "destroyed later" : "destroyed");
    if (abandon)
        assert_ok(gpusync_queue_abandon(g->s.q[queue]));
    else if (busy)
        assert_ok(gpusync_queue_destroy_later(g->s.q[queue], count_gone, &g->gone[queue]));
    else
        assert_ok(gpusync_queue_destroy(g->s.q[queue]));
    g->s.q[queue] = NULL;
    g->q[queue].closed = true;
    model_cancel(g, queue);
    if (abandon)
        model_move(g); /* what Metal has is given up behind that */
    g->q[queue].abandoned = abandon;
}

static void step_end(graph *g)
{
    int what = (int)draw(g, 4), queue = (int)draw(g, g->rules->queues), timeline = (int)draw(g, g->rules->timelines);
    if (what < 2 && !g->t[timeline].closed)
        close_timeline(g, timeline, what == 1);
    if (what >= 2 && !g->q[queue].closed)
        close_queue(g, queue, what == 3);
}

static void check_gone(graph *g, bool all)
{
    unsigned i;
    for (i = 0; i < LENGTH(g->gone); i++)
        if (g->gone[i] > g->goes[i] || (all && g->gone[i] < g->goes[i]))
            wrong(g, "`destroyed` of %s %u was called %u times", i < STAGE_MOST ? "queue" : "timeline", i % STAGE_MOST,
                  g->gone[i]);
    for (i = 0; i < g->rules->queues; i++)
        if (g->gone[i] && !model_all_ended(g, (int)i))
            wrong(g, "`destroyed` of queue %u was called, and its work has not ended", i);
}

/* R32. */
static void step_clear(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    model_queue *q = &g->q[queue];
    if (!q->sticky || q->closed)
        return;
    int64_t ticket = chance(g, 50) ? GPUSYNC_EVERYTHING : (int64_t)draw(g, (uint64_t)q->last + 1);
    bool clears = q->stuck >= 0 && ticket >= g->work[q->stuck].ticket;
    say(g, "%u: clear_failure of queue %d, ticket %d\n", g->step, queue, (int)ticket);
    assert_result(gpusync_queue_clear_failure(g->s.q[queue], ticket),
                  clears || q->stuck < 0 ? GPUSYNC_OK : GPUSYNC_NOT_READY);
    if (!clears)
        return;
    q->heirs_of = q->stuck;
    q->stuck = -1;
    q->cleared = q->last;
}

static void step_timeline_fail(graph *g)
{
    int i = (int)draw(g, g->rules->timelines);
    gpusync_error reason = {.result = GPUSYNC_ERROR_COMPILE};
    results allowed = g->t[i].failure ? g->t[i].failure : ONLY_OK;
    if (g->t[i].closed || chance(g, 70))
        return;
    say(g, "%u: the host fails timeline %d\n", g->step, i);
    gpusync_result got = gpusync_timeline_fail(g->s.t[i], &reason);
    if (got > 0 || !(allowed & RESULT(got)))
        wrong(g, "timeline_fail says %d", got);
    if (got == GPUSYNC_OK)
        model_fail_timeline(g, i, RESULT(GPUSYNC_ERROR_COMPILE));
}

/* The work's GPU part is over when its buffers are, and the one of gpusync's in front. Where handlers of another of its
   buffers have not run, a look has to tell the end. untold: there is the status alone. */
static void buffer_over(graph *g, void *buffer, int queue, bool untold)
{
    softmetal_due due = SOFTMETAL_NOTHING_DUE;
    bool fails = metal_status(buffer) == MTL_ERROR, late = false;
    unsigned k, which = 0;
    int n = work_of(g, buffer, &which);
    bool front = n < 0;
    for (n = front ? 0 : n; front && n < g->work_count && front_of(g, &g->work[n]) != buffer;)
        n++;
    model_work *w = &g->work[n];
    if (g->removed && fails)
        g->tells = true;
    w->failed = w->failed || fails;
    w->loser_over = w->loser_over || (fails && (w->loser == buffer || g->removed));
    w->front_over = w->front_over || front;
    w->over[which] = w->over[which] || !front;
    bool ended = w->run || !front_of(g, w) || w->front_over;
    for (k = 0; k < w->buffer_count; k++) {
        w->over[k] = w->over[k] || w->run;
        ended = ended && w->over[k];
    }
    if (!ended || w->state == MODEL_GONE)
        return;
    w->ended = !w->run || !untold; /* R29: the feedback tells, and nothing else */
    for (k = 0; softmetal_due_at(g->s.metal[queue], k, &due) != NULL; k++)
        late = late || due == SOFTMETAL_HANDLERS_DUE;
    if (late)
        look_everywhere(g);
}

/* What may end next; or, where command buffers overlap, what may run. A marker is behind all that is before it
   (assumed), and so is whatever is not the first, where the order of the queue holds. */
static void *draw_due(graph *g, int queue)
{
    softmetal_due due = SOFTMETAL_NOTHING_DUE;
    void *found = NULL, *buffer, *first = softmetal_first_in_line(g->s.metal[queue]);
    unsigned k, which, count = 0;
    for (k = 0; (buffer = softmetal_due_at(g->s.metal[queue], k, &due)) != NULL; k++) {
        int n = work_of(g, buffer, &which);
        bool fixed = g->order == GPU_IN_ORDER || g->removed || (n >= 0 && g->work[n].marker);
        bool ran = g->order == GPU_OVERLAPS && (n < 0 || g->work[n].wrote[which] || g->work[n].faults);
        if (due == SOFTMETAL_COMPLETE_DUE && (buffer == first || (!fixed && !ran)) && draw(g, ++count) == 0)
            found = buffer;
    }
    return found;
}

/* One buffer ends on one queue: with its handlers, or first the status alone, and a call looks. */
static bool move_gpu(graph *g, int queue, bool all)
{
    void *metal = g->s.metal[queue];
    softmetal_due due = SOFTMETAL_NOTHING_DUE;
    void *buffer;
    unsigned k, which = 0;
    bool look = draws(g, DRAWS_LOOKS) && chance(g, 25);
    if (g->ending >= 0)
        return false;
    for (k = 0; (buffer = softmetal_due_at(metal, k, &due)) != NULL; k++) {
        int n = work_of(g, buffer, &which);
        if (due != SOFTMETAL_HANDLERS_DUE || !(all || chance(g, 60)))
            continue;
        say(g, "%u: late handlers on queue %d, work %d\n", g->step, queue, n);
        softmetal_finish(buffer);
        if (n >= 0 && g->work[n].run)
            g->work[n].ended = true;
        return true;
    }
    buffer = draw_due(g, queue);
    if (!buffer)
        return false;
    metal_retain(buffer);
    int n = work_of(g, buffer, &which);
    bool ends = g->order != GPU_OVERLAPS || buffer == softmetal_first_in_line(metal);
    say(g, "%u: the GPU %s buffer %u of work %d on queue %d%s\n", g->step, ends ? "ends" : "runs", which, n, queue,
        look && ends ? " (status alone, and a look)" : "");
    if (!ends && metal_status(buffer) == MTL_COMMITTED)
        softmetal_schedule(buffer);
    if (!ends)
        softmetal_execute(buffer);
    else if (look)
        softmetal_complete(buffer);
    else
        softmetal_finish(buffer);
    if (ends)
        buffer_over(g, buffer, queue, look);
    if (look)
        look_everywhere(g);
    metal_release(buffer);
    return true;
}

static void step_gpu(graph *g)
{
    move_gpu(g, (int)draw(g, g->rules->queues), false);
}

static void step_callback(graph *g)
{
    model_point p;
    if (g->callback_count < MOST_CALLBACKS / 2 && draw_point(g, &p))
        register_callback(g, &p);
}

static void one_step(graph *g)
{
    static const struct {
        unsigned percent, draws;
        void (*take)(graph *g);
    } steps[] = {
        {38, 0, step_gpu}, {20, 0, step_submit}, {5, 0, step_commit_plain}, {7, DRAWS_ENCODED, step_open},
        {6, DRAWS_ENCODED, step_commit_open}, {2, DRAWS_DISCARDS, step_discard}, {2, DRAWS_MARKERS, step_marker},
        {4, DRAWS_SIGNALS, step_host_signal}, {4, DRAWS_CANCELS, step_cancel}, {3, DRAWS_STICKY, step_clear},
        {2, DRAWS_OTHERS, step_others}, {1, DRAWS_HOST_FAILS, step_timeline_fail}, {6, 0, step_callback},
    };
    unsigned what = (unsigned)draw(g, 100), i = 0;
    if (g->lost && chance(g, 20)) {
        say(g, "%u: time passes\n", g->step);
        graph_pass(MS(draw(g, 1000)));
    } else if (g->rules->loses && 2 * g->step > g->rules->steps && chance(g, 1)) {
        say(g, "%u: the device is removed\n", g->step);
        softmetal_remove_device(g->s.metal_device);
        g->removed = true;
    } else if (draws(g, DRAWS_ENDS) && 3 * g->step > g->rules->steps && chance(g, 6)) {
        step_end(g);
    } else {
        while (what >= steps[i].percent)
            what -= steps[i++].percent;
        if (!steps[i].draws || draws(g, steps[i].draws))
            steps[i].take(g);
    }
}

static void finish_gpu(graph *g)
{
    bool moved;
    int i;
    do {
        moved = false;
        for (i = 0; i < (int)g->rules->queues; i++) {
            if (!move_gpu(g, i, true))
                continue;
            moved = true;
            check(g);
            g->step++;
        }
    } while (moved);
}

/* gpusync does not write to an event of the program's: other code lets the GPU go on. */
static void release_gpu(graph *g)
{
    int i;
    for (i = 0; i < (int)g->rules->timelines; i++)
        if (g->t[i].imported)
            metal_event_signal(g->t[i].imported, GPUSYNC_MAX_VALUE);
}

/* Open buffers are discarded, what can end does; then what still waits is cancelled, and all has ended. */
static void end_graph(graph *g)
{
    model_work *w;
    int i;
    while ((w = draw_open(g)) != NULL) {
        tell_work(g, w, "discard");
        throw_away(g, w);
        check(g);
        g->step++;
    }
    finish_gpu(g);
    for (i = 0; i < (int)g->rules->timelines; i++) {
        if (!g->t[i].others || g->t[i].failure || g->t[i].closed)
            continue;
        say(g, "%u: the host fails timeline %d, which others signal\n", g->step, i);
        assert_ok(gpusync_timeline_fail(g->s.t[i], NULL));
        model_fail_timeline(g, i, RESULT(GPUSYNC_ERROR_EXECUTION));
        check(g);
        g->step++;
    }
    release_gpu(g);
    finish_gpu(g);
    for (i = 0; i < (int)g->rules->queues; i++) {
        cancel_queue(g, i);
        check(g);
        g->step++;
        finish_gpu(g);
    }
    for (i = 0; i < (int)g->rules->queues; i++)
        if (!model_all_ended(g, i))
            wrong(g, "work of queue %d never ends", i);
    check_gone(g, true);
    for (i = 0; i < g->work_count; i++) {
        unsigned k;
        w = &g->work[i];
        for (k = 0; w->state == MODEL_SETTLED && !w->marker && k < MOST_BUFFERS; k++)
            if (w->wrote[k] ? !w->ran : k < w->buffer_count && w->result == GPUSYNC_OK)
                wrong(g, "buffer %u of work %d has run, or has not", k, i);
    }
}

static void open_graph(graph *g)
{
    stage_desc desc = {.no_queue = true, .device.callback_mode = GPUSYNC_CALLBACKS_MANUAL, .device.hooks = graph_hooks};
    static const gpu_order orders[] = {GPU_IN_ORDER, GPU_IN_ORDER, GPU_OVERLAPS, GPU_IN_ANY_ORDER};
    unsigned i;
    softmetal_quirks quirks;
    stage_open(&g->s, &desc);
    softmetal_set_kernel("mark", run_buffer, g, 0);
    softmetal_get_quirks(&quirks);
    g->deaf = g->begin || (draws(g, DRAWS_OTHERS) && chance(g, 75)); /* listeners have threads of their own */
    quirks.deaf_to_everything = g->deaf;
    softmetal_set_quirks(&quirks);
    g->order = orders[draw(g, LENGTH(orders))];
    if (g->order != GPU_IN_ORDER)
        say(g, "command buffers %s\n", g->order == GPU_OVERLAPS ? "overlap" : "run and end in any order");
    for (i = 0; i < g->rules->queues; i++) {
        gpusync_queue_desc queue = {.max_command_buffer_count = 400, .error_log_count = 128, .user = &g->q[i]};
        queue.sticky_failure = draws(g, DRAWS_STICKY) && chance(g, 60);
        if (draws(g, DRAWS_ROOM))
            queue.max_command_buffer_count = 2 + (uint32_t)draw(g, 7);
        g->q[i].limit = queue.max_command_buffer_count;
        g->q[i].sticky = queue.sticky_failure;
        g->q[i].metal4 = draws(g, DRAWS_METAL4) && chance(g, 50);
        g->q[i].stuck = g->q[i].heirs_of = -1;
        g->s.q[i] = queue_of_kind(g->q[i].metal4, g->s.device, &queue);
        g->s.metal[i] = metal_retain(gpusync_queue_metal(g->s.q[i]));
        say(g, "queue %u, room for %u%s%s\n", i, g->q[i].limit, g->q[i].sticky ? " sticky" : "",
            g->q[i].metal4 ? " of Metal 4" : "");
    }
    for (i = 0; i < g->rules->timelines; i++) {
        gpusync_timeline_desc timeline = {0};
        timeline.order_only = draws(g, DRAWS_ORDER_ONLY) && chance(g, 50);
        timeline.signalled_by_others = draws(g, DRAWS_OTHERS) && chance(g, 60);
        if (timeline.signalled_by_others && chance(g, 70)) {
            timeline.shared_event = g->t[i].imported = metal_shared_event_new(g->s.metal_device);
            g->t[i].reached = g->t[i].sent = g->t[i].event = g->t[i].top = draw(g, 3); /* was signalled already */
            metal_event_signal(timeline.shared_event, g->t[i].event);
        }
        g->t[i].order_only = timeline.order_only;
        g->t[i].others = timeline.signalled_by_others;
        assert_ok(gpusync_timeline_create(g->s.device, &timeline, &g->s.t[i]));
        say(g, "timeline %u%s%s%s\n", i, timeline.order_only ? " order_only" : "",
            timeline.signalled_by_others ? " signalled by others" : "",
            timeline.shared_event ? ", of an event of the program's" : "");
    }
    softmetal_set_message_hook(watch, g);
}

/* Ends the program: nothing is left of it. */
static void close_graph(graph *g)
{
    softmetal_quirks quirks;
    unsigned k;
    int i;
    for (i = 0; i < g->work_count; i++)
        for (k = 0; k < g->work[i].buffer_count; k++)
            metal_release(g->work[i].buffers[k]);
    for (k = 0; k < g->commit_count; k++)
        if (g->commits[k].own)
            metal_release(g->commits[k].buffer);
    for (i = 0; i < (int)g->rules->timelines; i++)
        metal_release(g->t[i].imported);
    softmetal_set_message_hook(NULL, NULL);
    for (i = 0; g->removed && i < (int)g->rules->queues; i++) {
        /* no signal of Metal 4 comes there: nothing is to stay */
        void *own = softmetal_last_signalled(g->s.metal[i]);
        if (own)
            metal_event_signal(own, MOST_WORK);
    }
    assert_true(softmetal_settle_listeners(SECONDS(60)));
    stage_close(&g->s);
    softmetal_get_quirks(&quirks);
    quirks.deaf_to_everything = false;
    softmetal_set_quirks(&quirks);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static graph *new_graph(const graph_rules *rules, uint64_t seed)
{
    graph *g = (graph *)calloc(1, sizeof *g);
    int i;
    must(g != NULL, "no memory");
    pthread_mutex_init(&g->lock, NULL);
    g->rules = rules;
    g->seed = seed;
    g->ending = -1;
    g->random = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
    calling = g;
    for (i = 0; i < 8; i++)
        draw_by_seed(g, 2);
    return g;
}

static void play_graph(graph *g)
{
    for (g->step = 0; g->step < g->rules->steps && (!g->bytes || g->left); g->step++) {
        if (g->begin)
            g->begin(g);
        one_step(g);
        check(g);
        check_gone(g, false);
    }
    end_graph(g);
}

static inline void run_graph(const graph_rules *rules, uint64_t seed)
{
    graph *g = new_graph(rules, seed);
    open_graph(g);
    play_graph(g);
    close_graph(g);
}

/* A fuzzer's program. */
static inline void run_bytes(const graph_rules *rules, const uint8_t *bytes, size_t size)
{
    graph *g = new_graph(rules, 0);
    g->bytes = bytes;
    g->left = size;
    open_graph(g);
    play_graph(g);
    close_graph(g);
}

#endif
