/* graphs.h - random programs of queues and timelines beside a model of the contract (test_graphs.c, fuzz/fuzz.c,
   test_turns_graphs.c)

   A graph is a number of steps, all of them drawn from one seed, or from the bytes of a fuzzer: commits, submissions,
   markers, signals of the host, discards, cancelled work, and ends on the GPU, one at a time, on the manual clock.
   After each step the model below says what the contract allows: which work Metal has got by now and in which order,
   which tickets have ended and how, what each timeline shows, what is on record, and which callbacks have become due.
   gpusync has to agree with all of it.

   The model is written from the contract, and knows nothing of how gpusync works: no lists, no locks, no references.
   It goes through all work again and again until nothing moves.

   What the contract leaves open the model takes over from gpusync, and asks that it is one of what is allowed:
     - which of several failures that apply is told;
     - what comes first of changes on two queues in one step (a failure, a send, a value);
     - whether ordered work behind held work has failed already, or fails in its turn;
     - whether a signal goes at once whose lower neighbours are in order by the one right below it;
     - what EVERYTHING tells where a failure sticks and an earlier one was not told.
   Two signals of one value are not drawn: each work signals a number of its own (its rank) on all its timelines, so
   that there is always one lowest. Orders within one step are tried one by one, and not each there is:
   one program in thousands may choose what the model does not try. The seeds of a run are 1, 2, 3, ..., so a run is
   green or red each time.

   Not drawn in "everything": ends of queues and timelines, and little room. Nor beside such ends: values of other code,
   order_only, and the loss of the device, whose order within one step is too much for the model.

   Other threads may be there beside the one that takes the steps: they run during a step, and rest when the model is
   asked. One of them may end a command buffer during a commit or a submission, which may then come too late. Not during
   what lets other work go, too: which goes first is then open, and the model tries one order.

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
typedef struct graph_rules {
    const char *name;
    unsigned queues, timelines;
    unsigned steps;
    bool unordered, host_sync, tickets, encoded, markers, fails, cancels, discards, host_signals, order_only, sticky;
    bool others, empties, looks, timeline_fails, metal4, ends, room;
    unsigned loses; /* percent of the failures, behind a third of the steps, that tell that the device is lost */
} graph_rules;

/* From the simplest kind on. */
/* clang-format off */
static const graph_rules graph_kinds[] = {
    {.name = "ordered", .queues = 2, .timelines = 1, .steps = 50},
    {.name = "tickets", .queues = 3, .timelines = 1, .steps = 60, .tickets = true, .host_signals = true},
    {.name = "unordered", .queues = 3, .timelines = 2, .steps = 60, .tickets = true, .unordered = true,
     .host_signals = true, .looks = true},
    {.name = "host_sync", .queues = 3, .timelines = 2, .steps = 60, .tickets = true, .unordered = true,
     .host_sync = true, .empties = true, .host_signals = true, .looks = true},
    {.name = "encoded", .queues = 3, .timelines = 2, .steps = 70, .tickets = true, .unordered = true, .host_sync = true,
     .encoded = true, .discards = true, .markers = true, .host_signals = true, .looks = true},
    {.name = "metal4", .queues = 3, .timelines = 2, .steps = 70, .metal4 = true, .tickets = true, .unordered = true,
     .host_sync = true, .empties = true, .encoded = true, .discards = true, .markers = true, .host_signals = true,
     .looks = true},
    {.name = "room", .queues = 3, .timelines = 2, .steps = 80, .metal4 = true, .tickets = true, .unordered = true,
     .host_sync = true, .empties = true, .encoded = true, .discards = true, .markers = true, .room = true,
     .host_signals = true, .looks = true},
    {.name = "failures", .queues = 3, .timelines = 2, .steps = 70, .tickets = true, .unordered = true,
     .host_sync = true, .empties = true, .encoded = true, .discards = true, .markers = true, .fails = true,
     .host_signals = true, .looks = true},
    {.name = "cancelled", .queues = 3, .timelines = 3, .steps = 70, .tickets = true, .unordered = true,
     .host_sync = true, .empties = true, .encoded = true, .discards = true, .markers = true, .fails = true,
     .host_signals = true, .cancels = true, .timeline_fails = true, .looks = true},
    {.name = "order_only", .queues = 3, .timelines = 2, .steps = 70, .tickets = true, .unordered = true,
     .host_sync = true, .encoded = true, .discards = true, .fails = true, .host_signals = true, .cancels = true,
     .order_only = true, .looks = true},
    {.name = "sticky", .queues = 3, .timelines = 2, .steps = 70, .tickets = true, .unordered = true, .host_sync = true,
     .encoded = true, .discards = true, .markers = true, .fails = true, .host_signals = true, .cancels = true,
     .sticky = true, .looks = true},
    {.name = "others", .queues = 2, .timelines = 3, .steps = 70, .tickets = true, .unordered = true, .host_sync = true,
     .encoded = true, .fails = true, .host_signals = true, .others = true, .looks = true},
    {.name = "lost", .queues = 3, .timelines = 2, .steps = 90, .metal4 = true, .tickets = true, .unordered = true,
     .host_sync = true, .encoded = true, .discards = true, .markers = true, .fails = true, .loses = 70,
     .host_signals = true, .order_only = true, .looks = true},
    {.name = "ends", .queues = 4, .timelines = 4, .steps = 80, .metal4 = true, .tickets = true, .unordered = true,
     .host_sync = true, .empties = true, .encoded = true, .discards = true, .markers = true, .host_signals = true,
     .fails = true, .cancels = true, .sticky = true, .timeline_fails = true, .ends = true, .looks = true},
    {.name = "everything", .queues = 4, .timelines = 4, .steps = 110, .tickets = true, .unordered = true,
     .host_sync = true, .empties = true, .encoded = true, .discards = true, .markers = true, .fails = true, .loses = 6,
     .host_signals = true, .cancels = true, .order_only = true, .sticky = true, .others = true, .timeline_fails = true,
     .metal4 = true, .looks = true},
};
/* clang-format on */

enum { MOST_WORK = 96, MOST_WAITS = 4, MOST_SIGNALS = 2, MOST_BUFFERS = 2, MOST_CALLBACKS = 256, MOST_COMMITS = 2048 };
enum { MTL_ERROR = 5 }; /* MTLCommandBufferStatusError */

/* -- the model ------------------------------------------------------------------------------------------------- */

/* OPEN: encoded, not committed. OVER: never ran, and its result is fixed; it waits for its turn. */
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
    bool by_host; /* and not by the GPU */
    bool overtaken;
    bool late;    /* R12: ... if it was held, though the model has it OVER; else the value comes in its turn */
    bool assumed; /* ... by what the model comes to later in the step: check_tickets asks whether it did */
} model_signal;

typedef struct model_work {
    model_state state;
    int queue;
    int64_t ticket;
    bool unordered, host_sync, marker;
    model_point waits[MOST_WAITS];
    unsigned wait_count;
    model_signal signals[MOST_SIGNALS];
    unsigned signal_count;
    uint64_t rank; /* the value of all its signals */
    bool encodes;  /* its waits and signals are encoded in its only buffer */
    void *buffers[MOST_BUFFERS];
    void *run; /* of its buffers, on a queue of Metal 4 */
    unsigned buffer_count;
    unsigned left;                /* what Metal has of it, and has not ended on the GPU */
    bool ended;                   /* the GPU is finished with it, and tells */
    bool faults;                  /* one of its buffers fails */
    bool failed;                  /* one of them has failed */
    void *loser;                  /* that of them whose failure tells that the device is lost */
    bool loser_over;              /* it has failed */
    results takes;                /* the failure that stuck before it in the order of tickets; 0: none */
    results may_take;
    results allowed; /* OVER: what it ends with */
    bool inherits;   /* OVER */
    /* OVER: it stood behind held work then. Whether such work has failed already, or fails in its turn, and then of
       whatever applies there, the contract leaves open. Nor does it say what comes first within one step. */
    bool behind_held;
    bool fixed; /* OVER: overtaken in an earlier step, so it ends with NOT_RISING, whatever fails or is cancelled */
    unsigned over_at, sent_at;
    bool was_behind;    /* HELD or OVER behind held work as the step began */
    bool was_overtaken; /* by what the model comes to later in the step: check_tickets asks whether it did */
    gpusync_result result;
    bool inherited, ran;
} model_work;

typedef struct model_timeline {
    bool order_only, others;
    void *imported; /* the event, +1, or NULL */
    bool closed; /* the program has destroyed it: nothing can be asked any more */
    uint64_t reached, sent, event;
    results failure; /* 0: has not failed */
    results causes;  /* of the step in which it failed */
    unsigned failed_at;
    uint64_t raises[MOST_WORK]; /* order_only: values of work that never ran or failed, not raised yet */
    bool raise_sent[MOST_WORK];
    unsigned raise_count;
} model_timeline;

typedef struct model_queue {
    bool sticky, metal4;
    bool closed, abandoned; /* likewise */
    unsigned limit;         /* places */
    results stuck;          /* 0: nothing sticks */
    results sticks;         /* all that would have stuck alone, since the last clear_failure */
    unsigned stuck_at;
    int64_t cleared;            /* failures of tickets up to this one do not stick */
    int64_t last;               /* ticket */
    int tickets[MOST_WORK + 1]; /* the work of each */
    int failures[MOST_WORK];    /* work, in the order in which it was settled */
    unsigned failure_count;
    bool told[MOST_WORK + 1]; /* a wait for everything has returned the failure of this ticket */
} model_queue;

typedef struct graph {
    stage s;
    const graph_rules *rules;
    bool deaf; /* no listener hears: what other code signals is seen by looks alone, in the order of the steps */
    uint64_t seed, random;
    const uint8_t *bytes; /* NULL: the seed draws the steps, too */
    size_t left;
    jmp_buf *aside;  /* where a program goes on that the model does not agree with */
    bool may_differ; /* else the test fails */
    unsigned step;
    void (*begin)(struct graph *g); /* other threads: a step begins; NULL: there are none */
    void (*rest)(struct graph *g);  /* ... and it is over: they come to rest */
    void (*judge)(struct graph *g); /* what came of them */
    int ending;                     /* the queue whose next command buffer one of them ends meanwhile; -1: none */
    model_work work[MOST_WORK + 1]; /* the last is drawn, and has no room */
    int work_count;
    model_timeline t[STAGE_MOST];
    model_queue q[STAGE_MOST];
    /* The orders within one step that the model tries: some work that may go goes before other work ends; which of the
       work without command buffers goes last, a bit for each that is held. */
    unsigned sends_first; /* how much */
    unsigned last;
    unsigned empty[MOST_WORK]; /* the bit of such work, or 0 */
    bool disagrees;
    bool removed; /* the Metal device */
    bool tells;   /* ... and a command buffer, perhaps gpusync's own, has failed since */
    bool lost;
    uint64_t lost_at;
    uint64_t top; /* highest rank drawn */
    bool used[4096];
    /* callbacks */
    struct {
        model_point point;
        bool ran, seen;
        bool closed; /* its timeline was destroyed first */
        unsigned order;
        gpusync_result result;
    } callbacks[MOST_CALLBACKS];
    unsigned callback_count;
    unsigned gone[2 * STAGE_MOST]; /* calls of `destroyed`: queues, timelines */
    bool goes[2 * STAGE_MOST];     /* ... one is to come */
    /* what Metal was sent: buffers in the order of [commit], by the message hook */
    pthread_mutex_t lock;
    void *signalling[2 * MOST_WORK];
    unsigned signalling_count;
    struct {
        void *buffer;
        bool signals;
    } commits[MOST_COMMITS];
    unsigned commit_count;
    int behind[STAGE_MOST]; /* the work whose program's buffers have all ended, and whose signals are in the next one */
    char text[1 << 16];
    size_t length;
} graph;

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

static void set_aside(graph *g)
{
    bool differs = g->may_differ;
    for (unsigned i = 0; i < g->rules->timelines; i++) /* perhaps because a signal was overtaken */
        differs = differs || g->t[i].failure;
    if (!g->aside || !differs)
        return;
    say(g, "%u: the model does not agree: set aside\n", g->step);
    longjmp(*g->aside, 1);
}

static const char *const state_names[] = {"open", "gone", "held", "sent", "over", "settled"};

#define wrong(g, ...)                                                                                             \
    (set_aside(g), fprintf(stderr, "\n%s", graph_tells ? "" : (g)->text), fprintf(stderr, "wrong: " __VA_ARGS__), \
     end_wrong(g, __FILE__, __LINE__))
static void end_wrong(graph *g, const char *file, int line)
{
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
        if (w->state != MODEL_OPEN && !g->q[w->queue].closed)
            fprintf(stderr, "; a poll says %d", gpusync_poll(g->s.q[w->queue], w->ticket, NULL));
    }
    for (i = 0; i < (int)g->rules->timelines; i++) {
        uint64_t value = 0;
        gpusync_result result = g->t[i].closed ? GPUSYNC_NOT_READY : gpusync_timeline_query(g->s.t[i], &value, NULL);
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

/* What gpusync says of a ticket: where its queue is gone its callback tells, and close_queue has registered one. */
static gpusync_result ask_ticket(const graph *g, const model_work *w)
{
    unsigned i;
    if (!g->q[w->queue].closed)
        return gpusync_poll(g->s.q[w->queue], w->ticket, NULL);
    for (i = 0; i < g->callback_count; i++)
        if (g->callbacks[i].ran && g->callbacks[i].point.queue == w->queue && g->callbacks[i].point.ticket == w->ticket)
            return g->callbacks[i].result;
    return GPUSYNC_NOT_READY;
}

/* Whether its failure is that of what it waited for, and not its own. */
static bool ask_inherited(const graph *g, const model_work *w)
{
    gpusync_error error = {.inherited = w->inherits};
    gpusync_wait_options options = {.error = &error};
    if (!g->q[w->queue].closed && gpusync_wait(g->s.q[w->queue], w->ticket, 0, &options) >= 0)
        return false;
    return error.inherited;
}

/* NOT_READY: nobody can ask. */
static gpusync_result ask_timeline(const graph *g, int timeline, uint64_t *value)
{
    if (!g->t[timeline].closed)
        return gpusync_timeline_query(g->s.t[timeline], value, NULL);
    *value = 0;
    return GPUSYNC_NOT_READY;
}

/* Of the values that work is to signal (S7): each is a rank. */
static bool model_sent(const model_work *w)
{
    return w->state == MODEL_SENT;
}

static const model_signal *signal_of(const model_work *w, int timeline)
{
    unsigned k;
    for (k = 0; k < w->signal_count; k++)
        if (w->signals[k].timeline == timeline)
            return &w->signals[k];
    return NULL;
}

static bool signals_timeline(const model_work *w, int timeline)
{
    return signal_of(w, timeline) != NULL;
}

static bool gpu_signals(const model_work *w, int timeline)
{
    return signals_timeline(w, timeline) && !signal_of(w, timeline)->by_host;
}

/* The lowest signal of the timeline that is sent and not reached; UINT64_MAX: none. With what is to be raised. before:
   not that of work that stands behind this one in its queue, or NULL. */
static uint64_t model_lowest_of(const graph *g, int timeline, const model_work *before)
{
    const model_timeline *t = &g->t[timeline];
    uint64_t lowest = UINT64_MAX;
    unsigned k;
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        if (!model_sent(w) || w->rank >= lowest)
            continue;
        if (before && before->queue == w->queue && !before->unordered && !w->unordered && w->ticket > before->ticket)
            continue;
        for (k = 0; k < w->signal_count; k++)
            if (w->signals[k].timeline == timeline)
                lowest = w->rank;
    }
    for (k = 0; k < t->raise_count; k++)
        if (t->raise_sent[k] && t->raises[k] < lowest)
            lowest = t->raises[k];
    return lowest;
}

static uint64_t model_lowest_sent(const graph *g, int timeline)
{
    return model_lowest_of(g, timeline, NULL);
}

/* R18: where others signal, the event counts below the lowest own signal that is sent and not settled. */
static uint64_t model_reached(const graph *g, int timeline)
{
    const model_timeline *t = &g->t[timeline];
    uint64_t lowest, seen;
    uint64_t event = t->event;
    if (!t->others || t->failure)
        return t->reached;
    lowest = model_lowest_sent(g, timeline);
    if (event >= lowest)
        event = lowest - 1;
    if (ask_timeline(g, timeline, &seen) < 0 && event > seen)
        event = seen; /* it fails within this step, and its event was not read before */
    return event > t->reached ? event : t->reached;
}

/* 0: it has not ended; else how. */
static results model_point_result(const graph *g, const model_point *p)
{
    const model_work *w;
    if (p->queue < 0) {
        if (p->value <= model_reached(g, p->timeline))
            return ONLY_OK;
        return g->t[p->timeline].failure;
    }
    if (p->ticket <= 0)
        return ONLY_OK;
    w = &g->work[g->q[p->queue].tickets[p->ticket]];
    return w->state == MODEL_SETTLED ? RESULT(w->result) : 0;
}

/* R18: what other code has brought, and work behind this one in its queue is to signal again, is over for the work. */
static results model_wait_result(const graph *g, const model_work *w, const model_point *p)
{
    results result = model_point_result(g, p);
    if (result || p->queue >= 0 || !g->t[p->timeline].others || !model_sent(w) || !w->ended)
        return result;
    return g->t[p->timeline].event >= p->value && model_lowest_of(g, p->timeline, w) > p->value ? ONLY_OK : 0;
}

/* R19: nothing is to signal the value any more, neither work with a ticket nor an open command buffer, nor the host for
   work that has ended. */
static bool model_never_comes(const graph *g, const model_work *w, const model_point *p)
{
    unsigned k;
    int i;
    if (p->queue >= 0 || !g->t[p->timeline].closed || g->t[p->timeline].others || p->value <= g->t[p->timeline].sent)
        return false;
    for (i = 0; i < g->work_count; i++) {
        const model_work *other = &g->work[i];
        if (other != w && other->state != MODEL_GONE && other->state != MODEL_SETTLED && other->rank >= p->value &&
            signals_timeline(other, p->timeline))
            return false;
    }
    for (k = 0; k < g->t[p->timeline].raise_count; k++)
        if (g->t[p->timeline].raises[k] >= p->value)
            return false;
    return true;
}

static results model_failed_waits(const graph *g, const model_work *w)
{
    results all = 0;
    unsigned i;
    for (i = 0; i < w->wait_count; i++) {
        results result = model_wait_result(g, w, &w->waits[i]);
        if (!result && !model_sent(w) && model_never_comes(g, w, &w->waits[i]))
            result = RESULT(GPUSYNC_ERROR_DESTROYED);
        all |= result & ~ONLY_OK;
    }
    return all;
}

/* What has failed in gpusync, and in the model comes later within the step: check_values and check_tickets ask whether
   it did. */
static results model_failures_to_come(const graph *g, const model_work *w)
{
    results all = 0;
    unsigned i;
    for (i = 0; i < w->wait_count; i++) {
        const model_point *p = &w->waits[i];
        uint64_t value = UINT64_MAX;
        gpusync_result result;
        if (p->queue < 0 && g->t[p->timeline].closed) /* R19: or it never came, before its timeline failed */
            all |= RESULT(GPUSYNC_ERROR_DESTROYED);
        if (model_point_result(g, p))
            continue;
        if (p->queue >= 0)
            result = ask_ticket(g, &g->work[g->q[p->queue].tickets[p->ticket]]);
        else
            result = ask_timeline(g, p->timeline, &value);
        if (result < 0 && (p->queue >= 0 || value < p->value))
            all |= RESULT(result);
    }
    return all;
}

static bool model_waits_over(const graph *g, const model_work *w)
{
    unsigned i;
    for (i = 0; i < w->wait_count; i++)
        if (!model_wait_result(g, w, &w->waits[i]))
            return false;
    return true;
}

/* S6: reached, or signalled by work that Metal has; HOST_SYNC waits for what is reached (R2), tickets for the end. */
static bool model_comes(const graph *g, const model_work *w, const model_point *p)
{
    int i;
    if (model_point_result(g, p) == ONLY_OK)
        return true;
    if (p->queue >= 0 || w->host_sync)
        return false;
    if (g->t[p->timeline].others)
        return true;
    for (i = 0; i < g->work_count; i++) {
        const model_work *other = &g->work[i];
        if (model_sent(other) && other->rank >= p->value && gpu_signals(other, p->timeline))
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

/* Both go to the GPU, from one queue, in the order of tickets, so that nothing has to be held for the order of the
   two. */
static bool model_side_by_side(const model_work *a, const model_work *b, int timeline)
{
    bool ordered = a->queue == b->queue && !a->unordered && !b->unordered;
    return ordered && gpu_signals(a, timeline) && gpu_signals(b, timeline);
}

/* T3, R2, R4: may the signal go? MAYBE: the letter of the contract holds it, but what is below it is in order already
   by the signal right below, or the other way round. */
typedef enum model_answer { MODEL_NO, MODEL_MAYBE, MODEL_YES } model_answer;

static model_answer model_in_order(const graph *g, const model_work *w, int timeline)
{
    model_answer answer = MODEL_YES;
    const model_work *highest = NULL; /* of the lower ones that are sent */
    unsigned k;
    int i;
    if (g->t[timeline].failure)
        return MODEL_YES;
    for (i = 0; i < g->work_count; i++) {
        const model_work *other = &g->work[i];
        for (k = 0; k < other->signal_count; k++) {
            if (other->signals[k].timeline != timeline || other->rank >= w->rank)
                continue;
            if (other->state == MODEL_OPEN && other->queue != w->queue && other->rank > g->t[timeline].sent)
                return MODEL_NO;
            if (!model_sent(other))
                continue;
            if (!highest || other->rank > highest->rank)
                highest = other;
            if (model_waits_for(w, timeline, other->rank))
                continue;
            if (!model_side_by_side(other, w, timeline))
                answer = MODEL_MAYBE;
        }
    }
    for (k = 0; k < g->t[timeline].raise_count; k++) { /* R12: it counts as sent, until the host has raised it */
        uint64_t raise = g->t[timeline].raises[k];
        if (!g->t[timeline].raise_sent[k] || raise >= w->rank || model_waits_for(w, timeline, raise))
            continue;
        if (!highest || raise > highest->rank)
            return MODEL_NO;
        answer = MODEL_MAYBE;
    }
    if (highest && !model_waits_for(w, timeline, highest->rank) && !model_side_by_side(highest, w, timeline))
        return MODEL_NO;
    if (highest && highest->failed && g->t[timeline].order_only)
        return MODEL_MAYBE; /* the host makes that signal then, if it knows already */
    return answer;
}

static bool model_may_go(const graph *g, const model_work *w)
{
    const model_queue *q = &g->q[w->queue];
    int64_t ticket;
    unsigned i;
    if (w->state != MODEL_HELD)
        return false;
    for (ticket = 1; !w->unordered && ticket < w->ticket; ticket++) {
        const model_work *other = &g->work[q->tickets[ticket]];
        if (!other->unordered && other->state == MODEL_HELD)
            return false;
    }
    for (i = 0; i < w->wait_count; i++)
        if (!model_comes(g, w, &w->waits[i]))
            return false;
    for (i = 0; i < w->signal_count; i++) {
        model_answer answer = model_in_order(g, w, w->signals[i].timeline);
        if (answer == MODEL_NO)
            return false;
        if (answer == MODEL_MAYBE && commit_of(g, w) == UINT32_MAX)
            return false;
    }
    return true;
}

static void model_over(const graph *g, model_work *w, results allowed, bool inherits)
{
    w->over_at = g->step;
    w->state = MODEL_OVER;
    w->allowed = allowed;
    w->inherits = inherits;
}

/* Of all held work, before one of it moves. */
static void model_note_behind(graph *g)
{
    int64_t ticket;
    int i;
    for (i = 0; i < (int)g->rules->queues; i++) {
        bool behind = false;
        for (ticket = 1; ticket <= g->q[i].last; ticket++) {
            model_work *w = &g->work[g->q[i].tickets[ticket]];
            if (w->state != MODEL_HELD || w->unordered)
                continue;
            w->behind_held = behind;
            behind = true;
        }
    }
}

/* S7: what is held with a value up to this one comes too late. */
static void model_overtake(graph *g, int timeline, uint64_t value, const model_work *by)
{
    unsigned k;
    int i;
    model_note_behind(g);
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        if (w == by || w->rank > value)
            continue;
        if (w->state != MODEL_OPEN && w->state != MODEL_HELD && w->state != MODEL_OVER)
            continue;
        for (k = 0; k < w->signal_count; k++) {
            if (w->signals[k].timeline != timeline || w->signals[k].overtaken)
                continue;
            bool failed = w->state == MODEL_OVER && !w->inherits && w->allowed == RESULT(GPUSYNC_ERROR_NOT_RISING);
            failed |= w->signals[0].late || w->signals[w->signal_count - 1].late;
            w->signals[k].late |= !failed && (w->over_at == g->step || w->was_behind);
            w->signals[k].overtaken = w->state != MODEL_OVER || !g->t[timeline].order_only;
            if (w->state == MODEL_OVER && w->over_at == g->step)
                w->behind_held = true;
            if (w->state == MODEL_OVER && w->behind_held)
                w->allowed |= RESULT(GPUSYNC_ERROR_NOT_RISING);
            if (w->state == MODEL_HELD)
                model_over(g, w, RESULT(GPUSYNC_ERROR_NOT_RISING), false);
        }
    }
}

static void model_rise(graph *g, int timeline, uint64_t value, const model_work *by)
{
    model_timeline *t = &g->t[timeline];
    if (t->failure)
        return;
    if (value > t->sent)
        t->sent = value;
    model_overtake(g, timeline, value, by);
}

/* Where several failures in one step would fail it, the order between queues is left open: gpusync says which was
   first, and check_values asks whether it was one of them. below: the signal of the work that fails it; what the event
   shows from there on is not believed. */
static void model_fail_timeline(graph *g, int timeline, results failure, uint64_t below)
{
    model_timeline *t = &g->t[timeline];
    uint64_t value = 0, seen;
    int i;
    if (t->failure && t->failed_at == g->step)
        t->causes |= failure;
    if (t->failure)
        return;
    seen = model_reached(g, timeline);
    if (seen >= below)
        seen = below - 1;
    if (seen > t->reached)
        t->reached = seen;
    gpusync_result result = ask_timeline(g, timeline, &value);
    for (i = 0; result < 0 && i < g->work_count; i++) /* ... and the other way round */
        if (model_sent(&g->work[i]) && g->work[i].ended && g->work[i].rank == value && value > t->reached &&
            signals_timeline(&g->work[i], timeline))
            t->reached = value;
    if (t->others && result < 0 && value > t->reached && value < below && value < model_lowest_sent(g, timeline))
        t->reached = value; /* seen on the event within this step */
    t->failure = result < 0 ? RESULT(result) : failure;
    t->causes = failure;
    t->failed_at = g->step;
    t->raise_count = 0;
}

static void model_failed_signals(graph *g, model_work *w, results failure)
{
    uint64_t value;
    unsigned k;
    for (k = 0; k < w->signal_count; k++) {
        model_timeline *t = &g->t[w->signals[k].timeline];
        if (w->signals[k].overtaken || (t->order_only && t->failure))
            continue;
        if (w->signals[k].late && failure == RESULT(GPUSYNC_ERROR_NOT_RISING) && !ask_inherited(g, w))
            continue;
        if (!w->ran && (w->over_at == g->step || w->behind_held) && !t->order_only && !t->failure &&
            ask_timeline(g, w->signals[k].timeline, &value) == GPUSYNC_OK) {
            w->signals[k].overtaken = true;
            w->signals[k].assumed = true;
            continue;
        }
        if (t->order_only && !(w->ran && failure == RESULT(GPUSYNC_ERROR_DESTROYED))) {
            t->raises[t->raise_count] = w->rank;
            t->raise_sent[t->raise_count++] = w->ran;
        } else {
            model_fail_timeline(g, w->signals[k].timeline, failure, w->ran ? w->rank : UINT64_MAX);
        }
    }
}

/* R17. */
static void model_stick(graph *g, model_work *w)
{
    model_queue *q = &g->q[w->queue];
    int64_t ticket;
    if (!q->sticky || w->result == GPUSYNC_ERROR_CANCELLED || w->ticket <= q->cleared)
        return;
    if (!q->stuck)
        q->stuck_at = g->step;
    if (q->stuck_at == g->step) /* which of them was first is left open */
        q->stuck |= RESULT(w->result);
    q->sticks |= RESULT(w->result);
    for (ticket = w->ticket + 1; ticket <= q->last && !w->unordered; ticket++) {
        model_work *other = &g->work[q->tickets[ticket]];
        if (model_sent(other) && !other->unordered)
            other->takes |= RESULT(w->result);
    }
}

/* A timeline that fails and gets a value in one step, by two queues: which of the two was first is left open. Where
   the model comes to the value first and gpusync has failed the timeline below it, the failure has still to come in
   the model, or check_values finds a timeline that failed for nothing. */
static bool model_failed_before(const graph *g, int timeline, uint64_t value)
{
    uint64_t real;
    return ask_timeline(g, timeline, &real) < 0 && real < value;
}

static void model_settle(graph *g, model_work *w, results allowed, bool inherited)
{
    model_queue *q = &g->q[w->queue];
    gpusync_result result;
    unsigned k;
    int bit = __builtin_ctzll(allowed);
    w->ran = w->state == MODEL_SENT;
    w->state = MODEL_SETTLED;
    w->result = (gpusync_result)-bit;
    if (allowed & (allowed - 1)) { /* several are right */
        result = ask_ticket(g, w);
        if (result <= 0 && allowed & RESULT(result))
            w->result = result;
        else
            g->disagrees = true; /* and check_tickets says so */
    }
    w->inherited = inherited && w->result != GPUSYNC_OK;
    if (w->result == GPUSYNC_OK) {
        for (k = 0; k < w->signal_count; k++) {
            model_timeline *t = &g->t[w->signals[k].timeline];
            if (!t->failure && w->rank > t->reached && !model_failed_before(g, w->signals[k].timeline, w->rank))
                t->reached = w->rank;
        }
        return;
    }
    q->failures[q->failure_count++] = (int)(w - g->work);
    model_failed_signals(g, w, RESULT(w->result));
    model_stick(g, w);
}

/* What is OVER in this step, or was behind held work, may have been overtaken first by what the model comes to later.
   */
static results model_may_be_overtaken(graph *g, model_work *w)
{
    uint64_t value;
    unsigned k;
    if (!w->behind_held || !w->signal_count)
        return 0;
    if (w->allowed & RESULT(GPUSYNC_ERROR_NOT_RISING))
        return 0;
    if (ask_ticket(g, w) != GPUSYNC_ERROR_NOT_RISING)
        return 0;
    w->was_overtaken = true;
    for (k = 0; k < w->signal_count; k++)
        if (g->t[w->signals[k].timeline].order_only && model_lowest_sent(g, w->signals[k].timeline) > w->rank &&
            ask_timeline(g, w->signals[k].timeline, &value) == GPUSYNC_OK && value < w->rank)
            w->signals[k].overtaken = true;
    w->over_at = g->step;
    return RESULT(GPUSYNC_ERROR_NOT_RISING);
}

static bool model_is_overtaken(const graph *g, const model_work *w)
{
    unsigned k;
    for (k = 0; k < w->signal_count; k++)
        if (w->rank <= g->t[w->signals[k].timeline].sent)
            return true;
    return false;
}

/* S3: ordered work in its turn. S4, R8: work that failed on its own waits for nothing. */
static bool model_settle_one(graph *g, int queue)
{
    model_queue *q = &g->q[queue];
    bool turn = true;
    int64_t ticket;
    for (ticket = 1; ticket <= q->last; ticket++) {
        model_work *w = &g->work[q->tickets[ticket]];
        bool free_to = w->unordered || turn;
        if (w->state == MODEL_SETTLED)
            continue;
        if (!w->unordered)
            turn = false;
        if (!free_to)
            continue;
        if (w->state == MODEL_OVER) {
            if (!w->fixed && (w->inherits || w->behind_held))
                w->allowed |= model_failed_waits(g, w) | model_failures_to_come(g, w) | q->sticks;
            if (w->over_at == g->step)
                w->behind_held = true;
            model_settle(g, w, w->allowed | model_may_be_overtaken(g, w), w->inherits);
            return true;
        }
        if (w->state == MODEL_SENT && q->abandoned) {
            results given_up = w->failed && w->ended ? 0 : RESULT(GPUSYNC_ERROR_DESTROYED);
            model_settle(g, w, given_up | (w->failed ? RESULT(GPUSYNC_ERROR_EXECUTION) : 0), false);
            return true;
        }
        if (w->state != MODEL_SENT || !w->ended)
            continue;
        if (w->failed) {
            results allowed = RESULT(GPUSYNC_ERROR_EXECUTION);
            model_settle(g, w, allowed, false);
            return true;
        }
        if (model_waits_over(g, w)) {
            results failed = model_failed_waits(g, w) | w->takes;
            model_settle(g, w, (failed ? failed : ONLY_OK) | w->may_take, failed != 0 || w->may_take);
            return true;
        }
    }
    return false;
}

/* What may go and what sticks in one step: which comes first is left open, and so whether the work takes what sticks.
   */
static bool model_went_before(const graph *g, model_work *w)
{
    const model_queue *q = &g->q[w->queue];
    if (!q->stuck || q->stuck_at != g->step || commit_of(g, w) == UINT32_MAX || !model_may_go(g, w))
        return false;
    if (!w->unordered)
        w->may_take = q->sticks;
    return true;
}

static bool model_fail_held(graph *g)
{
    bool moved = false;
    int i;
    model_note_behind(g);
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        results failed;
        if (w->state != MODEL_HELD)
            continue;
        failed = model_failed_waits(g, w);
        if (!failed && model_went_before(g, w))
            continue;
        if (!failed)
            failed = g->q[w->queue].stuck;
        if (!failed)
            continue;
        model_over(g, w, failed, true);
        moved = true;
    }
    return moved;
}

/* R18, S7: a value of other code rises like any other. */
static bool model_read(graph *g)
{
    int i;
    for (i = 0; i < (int)g->rules->timelines; i++) {
        uint64_t reached = model_reached(g, i);
        if (reached <= g->t[i].reached)
            continue;
        model_rise(g, i, reached, NULL);
        g->t[i].reached = reached;
        return true;
    }
    return false;
}

static bool model_raise(graph *g)
{
    unsigned k, best;
    int i;
    for (i = 0; i < (int)g->rules->timelines; i++) {
        model_timeline *t = &g->t[i];
        uint64_t value, lowest = UINT64_MAX;
        int j;
        if (!t->raise_count)
            continue;
        for (best = 0, k = 1; k < t->raise_count; k++)
            if (t->raises[k] < t->raises[best])
                best = k;
        value = t->raises[best];
        for (j = 0; j < g->work_count; j++)
            for (k = 0; k < g->work[j].signal_count; k++)
                if (model_sent(&g->work[j]) && g->work[j].signals[k].timeline == i && g->work[j].rank < lowest)
                    lowest = g->work[j].rank;
        if (lowest < value)
            continue;
        t->raise_count--;
        t->raises[best] = t->raises[t->raise_count];
        t->raise_sent[best] = t->raise_sent[t->raise_count];
        model_rise(g, i, value, NULL);
        if (value > t->reached)
            t->reached = value;
        return true;
    }
    return false;
}

/* T3: of those that could go, the lowest value of a timeline first. Which goes first of two that share no timeline, and
   so what stands behind them in time to be compared, is left open: the model follows gpusync. */
static bool model_share_timeline(const graph *g, const model_work *a, const model_work *b)
{
    unsigned k;
    for (k = 0; k < a->signal_count; k++)
        if (signals_timeline(b, a->signals[k].timeline) && !g->t[a->signals[k].timeline].failure)
            return true;
    return false;
}

/* What stood behind held work as the step began may be too late to count among those that could go. */
static bool model_comes_late(const graph *g, const model_work *w, const model_work *other)
{
    return w->was_behind && commit_of(g, w) == UINT32_MAX && commit_of(g, other) != UINT32_MAX;
}

/* Leaves those of them that have no lower one before them that goes: from the lowest rank on. */
static void model_keep_lowest(const graph *g, bool *could_go)
{
    uint64_t rank;
    int i, k;
    for (rank = 1; rank <= g->top; rank++)
        for (i = 0; i < g->work_count; i++)
            for (k = 0; could_go[i] && g->work[i].rank == rank && k < g->work_count; k++)
                if (could_go[k] && g->work[k].rank < rank && model_share_timeline(g, &g->work[k], &g->work[i]) &&
                    !model_comes_late(g, &g->work[k], &g->work[i]))
                    could_go[i] = false;
}

/* has: only what Metal has by now. */
static bool model_send_one(graph *g, bool has)
{
    bool could_go[MOST_WORK];
    model_work *next = NULL;
    unsigned first = UINT32_MAX;
    unsigned k;
    int i;
    for (i = 0; i < g->work_count; i++)
        could_go[i] = model_may_go(g, &g->work[i]);
    model_keep_lowest(g, could_go);
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        unsigned place = w->buffer_count ? commit_of(g, w) : g->last & g->empty[i] ? UINT32_MAX : 0;
        if (!could_go[i] || (next && place >= first))
            continue;
        if (has && w->buffer_count && place == UINT32_MAX)
            continue;
        next = w;
        first = place;
    }
    if (!next)
        return false;
    next->state = MODEL_SENT;
    next->sent_at = g->step;
    next->ended = next->left == 0;
    for (k = 0; k < next->signal_count; k++)
        model_rise(g, next->signals[k].timeline, next->rank, next);
    return true;
}

static void model_move(graph *g)
{
    bool moved;
    int i;
    do {
        moved = g->sends_first && model_send_one(g, true);
        g->sends_first -= g->sends_first == 1;
        if (moved)
            continue;
        for (i = 0; i < (int)g->rules->queues; i++)
            while (model_settle_one(g, i))
                moved = true;
        if (moved)
            continue;
        moved = model_read(g) || model_fail_held(g) || model_raise(g) || model_send_one(g, false);
    } while (moved);
}

static bool model_ran(const model_work *w)
{
    return w->state == MODEL_SENT || (w->state == MODEL_SETTLED && w->ran);
}

/* Work that was overtaken has failed at once, behind held work too, and keeps that failure. What else failed in the
   same step may have come first. */
static void model_fix(graph *g)
{
    int i;
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        const model_queue *q = &g->q[w->queue];
        if (w->state == MODEL_SENT && !w->buffer_count && !w->unordered && w->sent_at == g->step && q->stuck &&
            q->stuck_at == g->step)
            w->may_take = q->sticks; /* nothing tells which came first */
        if (w->state != MODEL_OVER || w->fixed || w->inherits || w->allowed != RESULT(GPUSYNC_ERROR_NOT_RISING))
            continue;
        w->fixed = true;
        if (w->over_at == g->step)
            w->allowed |= model_failed_waits(g, w) | g->q[w->queue].sticks;
        if (w->allowed == RESULT(GPUSYNC_ERROR_NOT_RISING))
            w->behind_held = false;
    }
}

/* A second later what has not ended is answered with DEVICE_LOST. */
static gpusync_result not_yet(const graph *g, gpusync_result otherwise)
{
    return g->lost && graph_now() - g->lost_at >= SECONDS(1) ? GPUSYNC_ERROR_DEVICE_LOST : otherwise;
}

/* Moves the model by one step in the order that is set, and asks whether gpusync has done the same. */
static bool model_agrees(graph *g)
{
    int i;
    g->disagrees = false;
    model_move(g);
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        if (w->buffer_count && model_ran(w) != (commit_of(g, w) != UINT32_MAX))
            g->disagrees = true;
        if (w->state < MODEL_HELD || (g->q[w->queue].closed && ask_ticket(g, w) == GPUSYNC_NOT_READY))
            continue;
        if (ask_ticket(g, w) != (w->state == MODEL_SETTLED ? w->result : not_yet(g, GPUSYNC_NOT_READY)))
            g->disagrees = true;
    }
    for (i = 0; i < (int)g->rules->timelines; i++) {
        uint64_t value = 0;
        gpusync_result result = ask_timeline(g, i, &value);
        if (!g->t[i].closed && (value != model_reached(g, i) || (result < 0) != (g->t[i].failure != 0)))
            g->disagrees = true;
    }
    return !g->disagrees;
}

/* T6: it is lost when the failure is known, at the latest when the work has ended. What is held then ends with that;
   what was behind held work and has failed already may have failed in its turn. */
static void model_lose(graph *g)
{
    bool may_be = g->tells, must_be = false;
    int i;
    for (i = 0; i < g->work_count; i++) {
        may_be = may_be || g->work[i].loser_over;
        must_be = must_be || (g->work[i].loser_over && g->work[i].ended);
    }
    if (gpusync_device_is_lost(g->s.device) ? !may_be : must_be)
        wrong(g, "the device is %s", must_be ? "not lost" : "lost");
    if (g->lost || !gpusync_device_is_lost(g->s.device))
        return;
    say(g, "%u: the device is lost\n", g->step);
    g->lost = true;
    g->lost_at = graph_now();
    model_note_behind(g);
    for (i = 0; i < g->work_count; i++) {
        model_work *w = &g->work[i];
        if (w->state == MODEL_OVER && w->behind_held && !w->fixed)
            w->allowed |= RESULT(GPUSYNC_ERROR_DEVICE_LOST);
        if (w->state == MODEL_HELD)
            model_over(g, w, RESULT(GPUSYNC_ERROR_DEVICE_LOST), false);
    }
}

/* Gives held work without command buffers a bit each; returns how many bits there are. */
static unsigned model_count_empty(graph *g)
{
    enum { MOST_BITS = 8 };
    unsigned bits = 0;
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        bool counts = w->state == MODEL_HELD && !w->buffer_count && bits < MOST_BITS;
        g->empty[i] = counts ? 1u << bits : 0;
        bits += counts;
    }
    return bits;
}

/* Whether ordered work that is held stands in front of this work. */
static bool model_stands_behind(const graph *g, int i)
{
    const model_work *w = &g->work[i];
    int64_t ticket;
    for (ticket = 1; w->state == MODEL_OVER && !w->unordered && ticket < w->ticket; ticket++) {
        const model_work *other = &g->work[g->q[w->queue].tickets[ticket]];
        if (other->state == MODEL_HELD && !other->unordered)
            return true;
    }
    return false;
}

/* What goes and what ends within one step leave the order of the two open, and what has no command buffer leaves no
   trace of when it went: until one is what gpusync has done, each order is tried. */
static void model_step(graph *g)
{
    graph *before = (graph *)malloc(sizeof *before);
    unsigned orders, order, lasts;
    int i;
    must(before != NULL, "no memory");
    model_note_behind(g);
    for (i = 0; i < g->work_count; i++)
        g->work[i].was_behind = g->work[i].state == MODEL_HELD ? g->work[i].behind_held : model_stands_behind(g, i);
    memcpy(before->work, g->work, sizeof g->work);
    memcpy(before->t, g->t, sizeof g->t);
    memcpy(before->q, g->q, sizeof g->q);
    lasts = 1u << model_count_empty(g);
    orders = 3 * lasts;
    for (order = 0; order <= orders; order++) {
        if (order) {
            memcpy(g->work, before->work, sizeof g->work);
            memcpy(g->t, before->t, sizeof g->t);
            memcpy(g->q, before->q, sizeof g->q);
        }
        /* If none is, the checks tell what is wrong with the first. */
        g->sends_first = order < lasts || order == orders ? 0 : order < 2 * lasts ? MOST_WORK + 1 : 1;
        g->last = order % lasts;
        if (model_agrees(g))
            break;
    }
    free(before);
    model_fix(g);
}

static int64_t model_done(const graph *g, int queue)
{
    int64_t ticket = 0;
    while (ticket < g->q[queue].last && g->work[g->q[queue].tickets[ticket + 1]].state == MODEL_SETTLED)
        ticket++;
    return ticket;
}

/* Not asked beside order_only: never run work whose value is still to be raised has its room until then.
   R10: a place for each command buffer, and one at least for a ticket; on Metal 4 one for a ticket. It comes back at
   the end of the work; of work that never ran, when all tickets before it have ended, too. */
static bool model_has_room(const graph *g, int queue, unsigned places)
{
    int64_t done = model_done(g, queue);
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        bool ended = w->state == MODEL_GONE || (w->state == MODEL_SENT && w->ended) ||
                     (w->state == MODEL_SETTLED && (w->ran || w->ticket <= done));
        if (w->queue != queue || ended)
            continue;
        if (w->state == MODEL_OPEN)
            places += g->q[queue].metal4 ? 0 : w->buffer_count;
        else
            places += g->q[queue].metal4 || !w->buffer_count ? 1 : w->buffer_count;
    }
    return places <= g->q[queue].limit;
}

/* What a commit or submission of this work may be refused with; 0: it is accepted. */
static results model_refusals(const graph *g, const model_work *w)
{
    results all = g->lost ? RESULT(GPUSYNC_ERROR_DEVICE_LOST) : 0;
    unsigned k;
    if (g->q[w->queue].stuck)
        all |= RESULT(GPUSYNC_ERROR_EXECUTION);
    if ((g->q[w->queue].metal4 || !w->buffer_count) && !model_has_room(g, w->queue, 1))
        all |= RESULT(GPUSYNC_ERROR_QUEUE_FULL);
    for (k = 0; k < w->signal_count; k++) {
        int timeline = w->signals[k].timeline;
        all |= g->t[timeline].failure;
        if (g->t[timeline].failure)
            continue;
        if (w->rank <= g->t[timeline].sent || w->rank <= model_reached(g, timeline))
            all |= RESULT(GPUSYNC_ERROR_NOT_RISING);
        if (model_waits_for(w, timeline, w->rank))
            all |= RESULT(GPUSYNC_ERROR_NOT_RISING);
    }
    return all;
}

/* -- what gpusync does ----------------------------------------------------------------------------------------- */

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

/* A queue of Metal 4 has got the buffers of one work. */
static void watch_metal4(graph *g, const void *metal_queue)
{
    unsigned k;
    int i;
    lock_commits(g);
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        if (!w->run || g->s.metal[w->queue] != metal_queue || commit_of(g, w) != UINT32_MAX || !is_sent(w->buffers[0]))
            continue;
        must(g->commit_count + w->buffer_count <= MOST_COMMITS, "too many commits");
        for (k = 0; k < w->buffer_count; k++)
            g->commits[g->commit_count++].buffer = w->buffers[k];
    }
    unlock_commits(g);
}

static void watch(void *user, softmetal_phase phase, void *object, const char *selector)
{
    graph *g = (graph *)user;
    unsigned i;
    bool commits = strcmp(selector, "commit") == 0;
    if (phase == SOFTMETAL_AFTER && strcmp(selector, "commit:count:options:") == 0)
        watch_metal4(g, object);
    if (phase != SOFTMETAL_BEFORE || (!commits && strcmp(selector, "encodeSignalEvent:value:") != 0))
        return;
    lock_commits(g);
    for (i = 0; i < g->signalling_count && g->signalling[i] != object; i++) {}
    if (!commits) {
        must(i < LENGTH(g->signalling), "too many buffers with signals");
        g->signalling[i] = object;
        if (i == g->signalling_count)
            g->signalling_count++;
    } else {
        must(g->commit_count < MOST_COMMITS, "too many commits");
        g->commits[g->commit_count].buffer = object;
        g->commits[g->commit_count++].signals = i < g->signalling_count;
        if (i < g->signalling_count)
            g->signalling[i] = g->signalling[--g->signalling_count];
    }
    unlock_commits(g);
}

static void forget_signals_of(graph *g, void *buffer)
{
    unsigned i;
    lock_commits(g);
    for (i = 0; i < g->signalling_count && g->signalling[i] != buffer; i++) {}
    if (i < g->signalling_count)
        g->signalling[i] = g->signalling[--g->signalling_count];
    unlock_commits(g);
}

static int work_of(const graph *g, const void *buffer)
{
    unsigned k;
    int i;
    for (i = 0; i < g->work_count; i++)
        for (k = 0; k < g->work[i].buffer_count; k++)
            if (g->work[i].buffers[k] == buffer || g->work[i].run == buffer)
                return i;
    return -1;
}

/* A buffer of gpusync's that signals: the one behind the program's, where GPU signals stand. */
static bool signals_behind(graph *g, const void *buffer)
{
    unsigned i;
    bool signals = false;
    if (!buffer || work_of(g, buffer) >= 0)
        return false;
    lock_commits(g);
    for (i = g->commit_count; i-- > 0;) {
        if (g->commits[i].buffer != buffer)
            continue;
        signals = g->commits[i].signals;
        break;
    }
    unlock_commits(g);
    return signals;
}

/* S3: a queue's ordered work in the order of tickets, each with its buffers side by side. */
static void check_sent_of_queue(graph *g, int queue)
{
    int64_t last = 0;
    int part_of = -1;
    unsigned part = 0, i;
    for (i = 0; i < g->commit_count; i++) {
        int n = work_of(g, g->commits[i].buffer);
        const model_work *w;
        if (n < 0 || g->work[n].queue != queue)
            continue;
        w = &g->work[n];
        if (part_of >= 0 ? part_of != n : w->buffers[0] != g->commits[i].buffer)
            wrong(g, "the buffers of work %d are not side by side", n);
        if (w->buffers[part] != g->commits[i].buffer)
            wrong(g, "the buffers of work %d go in another order", n);
        part_of = ++part < w->buffer_count ? n : -1;
        if (part_of >= 0)
            continue;
        part = 0;
        if (w->unordered)
            continue;
        if (w->ticket < last)
            wrong(g, "work %d goes behind ticket %d of its queue", n, (int)last);
        last = w->ticket;
    }
    if (part_of >= 0)
        wrong(g, "Metal has a part of work %d", part_of);
}

/* The work, or ordered work before it in its queue that signals the timeline, waits on the GPU for the value. */
static bool model_comes_behind(const graph *g, const model_work *w, int timeline, uint64_t value)
{
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *other = &g->work[i];
        bool before = other->queue == w->queue && !other->unordered && !w->unordered && other->ticket < w->ticket;
        if ((other == w || (before && other->rank > value && gpu_signals(other, timeline))) &&
            model_waits_for(other, timeline, value))
            return true;
    }
    return false;
}

/* S7: the signals of a timeline in rising order. Two threads may commit, and then one that waits for the other on the
   GPU may come first. */
static void check_sent_of_timeline(graph *g, int timeline)
{
    const model_work *highest = NULL;
    unsigned i;
    if (g->t[timeline].failure)
        return; /* nothing rises any more */
    for (i = 0; i < g->commit_count; i++) {
        int n = work_of(g, g->commits[i].buffer);
        if (n < 0 || !signals_timeline(&g->work[n], timeline))
            continue;
        if (highest && g->work[n].rank < highest->rank &&
            !(g->begin && model_comes_behind(g, highest, timeline, g->work[n].rank)))
            wrong(g, "work %d signals %d:%d behind %d", n, timeline, (int)g->work[n].rank, (int)highest->rank);
        if (!highest || g->work[n].rank > highest->rank)
            highest = &g->work[n];
    }
}

/* Metal has got what the model has sent, and nothing else. */
static void check_sent(graph *g)
{
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        bool sent = model_ran(w);
        if (!w->buffer_count || sent == (commit_of(g, w) != UINT32_MAX))
            continue;
        wrong(g, "Metal has %s work %d (ticket %d of queue %d), which is %s", sent ? "not got" : "got", i,
              (int)w->ticket, w->queue, state_names[w->state]);
    }
    for (i = 0; i < (int)g->rules->queues; i++)
        check_sent_of_queue(g, i);
    for (i = 0; i < (int)g->rules->timelines; i++)
        check_sent_of_timeline(g, i);
}

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
        if (gpusync_in_flight(g->s.q[i]) != (uint64_t)(g->q[i].last - done))
            wrong(g, "in flight on queue %d", i);
    }
}

static void check_tickets(graph *g)
{
    unsigned k;
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        gpusync_result expected = w->state == MODEL_SETTLED ? w->result : not_yet(g, GPUSYNC_NOT_READY);
        if (w->state == MODEL_OPEN || w->state == MODEL_GONE)
            continue;
        gpusync_result got = ask_ticket(g, w);
        if (got != expected && !(g->q[w->queue].closed && got == GPUSYNC_NOT_READY))
            wrong(g, "work %d, ticket %d of queue %d (%s): poll says %d (%s), the contract %d", i, (int)w->ticket,
                  w->queue, state_names[w->state], got, gpusync_result_string(got), expected);
        for (k = 0; k < w->signal_count; k++)
            if (w->signals[k].assumed && !g->t[w->signals[k].timeline].failure &&
                g->t[w->signals[k].timeline].sent < w->rank)
                wrong(g, "work %d has failed, and timeline %d has not", i, w->signals[k].timeline);
        if (w->was_overtaken && w->result == GPUSYNC_ERROR_NOT_RISING && !model_is_overtaken(g, w))
            wrong(g, "work %d is NOT_RISING, and nothing has overtaken it", i);
        if (expected == GPUSYNC_NOT_READY)
            expected = GPUSYNC_TIMEOUT;
        if (g->q[w->queue].closed || chance_to_check(g, 90))
            continue;
        got = gpusync_wait(g->s.q[w->queue], w->ticket, 0, NULL);
        if (got != expected)
            wrong(g, "work %d, ticket %d of queue %d (%s): a wait says %d (%s), the contract %d", i, (int)w->ticket,
                  w->queue, state_names[w->state], got, gpusync_result_string(got), expected);
    }
}

static void check_values(graph *g)
{
    int i;
    for (i = 0; i < (int)g->rules->timelines; i++) {
        uint64_t value = UINT64_MAX;
        uint64_t reached = model_reached(g, i);
        gpusync_result got = ask_timeline(g, i, &value);
        results allowed = g->t[i].failure ? g->t[i].failure : ONLY_OK;
        if (g->t[i].closed)
            continue;
        if (got > 0 || !(allowed & RESULT(got)))
            wrong(g, "timeline %d: query says %d (%s), allowed are %llx", i, got, gpusync_result_string(got),
                  (unsigned long long)allowed);
        if (g->t[i].failure & ~g->t[i].causes)
            wrong(g, "timeline %d fails with %d, which nothing caused", i, got);
        if (value != reached)
            wrong(g, "timeline %d shows %llu, the contract %llu", i, (unsigned long long)value,
                  (unsigned long long)reached);
        if (gpusync_timeline_wait(g->s.t[i], reached, 0, NULL) != GPUSYNC_OK)
            wrong(g, "a wait for what timeline %d shows fails", i);
        got = gpusync_timeline_wait(g->s.t[i], reached + 1, 0, NULL);
        if (g->t[i].failure ? got > 0 || !(allowed & RESULT(got)) : got != not_yet(g, GPUSYNC_TIMEOUT))
            wrong(g, "a wait for more than timeline %d shows says %d", i, got);
    }
}

static void check_failures(graph *g)
{
    int i;
    for (i = 0; i < (int)g->rules->queues; i++) {
        uint64_t cursor = 0;
        unsigned count = 0, seen = 0;
        gpusync_error error;
        int64_t last_ordered = 0;
        bool found[MOST_WORK + 1] = {false};
        if (g->q[i].closed)
            continue;
        while (gpusync_queue_next_error(g->s.q[i], &cursor, &error) == GPUSYNC_OK) {
            const model_work *w;
            if (error.ticket < 1 || error.ticket > g->q[i].last)
                wrong(g, "a failure of no ticket on queue %d", i);
            w = &g->work[g->q[i].tickets[error.ticket]];
            if (w->state != MODEL_SETTLED || w->result == GPUSYNC_OK || found[error.ticket])
                wrong(g, "a failure of ticket %d of queue %d", (int)error.ticket, i);
            found[error.ticket] = true;
            if (error.result != w->result ||
                (error.inherited != w->inherited && !w->behind_held && w->result != GPUSYNC_ERROR_DESTROYED) ||
                error.ran != (w->ran && w->buffer_count))
                wrong(g,
                      "the failure of ticket %d of queue %d: result %d, inherited %d, ran %d, the contract %d, %d, %d",
                      (int)error.ticket, i, error.result, error.inherited, error.ran, w->result, w->inherited, w->ran);
            if (!error.inherited && error.origin != error.ticket)
                wrong(g, "the origin of ticket %d", (int)error.ticket);
            if (!w->unordered && error.ticket < last_ordered)
                wrong(g, "failures of queue %d are out of order", i);
            if (!w->unordered)
                last_ordered = error.ticket;
            count++;
        }
        for (seen = 0; seen < g->q[i].failure_count; seen++)
            if (!found[g->work[g->q[i].failures[seen]].ticket])
                wrong(g, "no failure of ticket %d of queue %d is on record",
                      (int)g->work[g->q[i].failures[seen]].ticket, i);
        if (count != g->q[i].failure_count)
            wrong(g, "%u failures on queue %d", count, i);
    }
}

/* R27. */
static void check_everything(graph *g)
{
    int i;
    unsigned k;
    for (i = 0; i < (int)g->rules->queues; i++) {
        model_queue *q = &g->q[i];
        results allowed = 0;
        bool all = model_done(g, i) == q->last;
        int64_t first = INT64_MAX;
        bool unordered = false;
        if (q->closed)
            continue;
        for (k = 0; k < q->failure_count; k++) {
            const model_work *w = &g->work[q->failures[k]];
            if (q->told[w->ticket])
                continue;
            if (w->unordered)
                unordered = true;
            if (w->ticket < first)
                allowed = RESULT(w->result);
            if (w->ticket < first)
                first = w->ticket;
        }
        /* With UNORDERED failures among them, "first" may be by ticket or by end. */
        for (k = 0; k < q->failure_count && unordered; k++)
            if (!q->told[g->work[q->failures[k]].ticket])
                allowed |= RESULT(g->work[q->failures[k]].result);
        if (!allowed)
            allowed = ONLY_OK;
        allowed |= q->stuck; /* both are promised: the first, and what sticks */
        if (q->stuck)
            allowed &= ~ONLY_OK;
        gpusync_result got = gpusync_poll(g->s.q[i], GPUSYNC_EVERYTHING, NULL);
        if (!all && !q->stuck && got != not_yet(g, GPUSYNC_NOT_READY))
            wrong(g, "poll for everything of queue %d says %d", i, got);
        if (all && (got > 0 || !(allowed & RESULT(got))))
            wrong(g, "poll for everything of queue %d says %d, allowed are %llx", i, got, (unsigned long long)allowed);
        if (!all || chance_to_check(g, 60))
            continue;
        got = gpusync_wait(g->s.q[i], GPUSYNC_EVERYTHING, 0, NULL);
        if (got > 0 || !(allowed & RESULT(got)))
            wrong(g, "wait for everything of queue %d says %d, allowed are %llx", i, got, (unsigned long long)allowed);
        for (k = 0; k < q->failure_count; k++)
            q->told[g->work[q->failures[k]].ticket] = true;
    }
}

/* -- callbacks ------------------------------------------------------------------------------------------------- */

static graph *calling;
static unsigned call_order;

static void called(void *user, gpusync_result result, const gpusync_error *error)
{
    unsigned i = (unsigned)(uintptr_t)user;
    must((error == NULL) == (result == GPUSYNC_OK), "an error with OK, or none with a failure");
    must(!calling->callbacks[i].ran, "a callback was called twice");
    calling->callbacks[i].ran = true;
    calling->callbacks[i].result = result;
    calling->callbacks[i].order = ++call_order;
}

/* R25, S3: each that is due has been called, with its result; those of ordered tickets of a queue in their order,
   those of one point as they were registered. */
static void check_callbacks(graph *g)
{
    size_t count = 0;
    unsigned expected = 0, i, j;
    if (gpusync_device_run_callbacks(g->s.device, SIZE_MAX, &count) != GPUSYNC_OK)
        wrong(g, "run_callbacks fails");
    for (i = 0; i < g->callback_count; i++) {
        results right =
            g->callbacks[i].closed ? RESULT(GPUSYNC_ERROR_DESTROYED) : model_point_result(g, &g->callbacks[i].point);
        if (g->callbacks[i].ran && !right)
            wrong(g, "callback %u was called too early", i);
        if (!g->callbacks[i].ran && right)
            wrong(g, "callback %u was not called", i);
        if (!right || g->callbacks[i].seen)
            continue;
        g->callbacks[i].seen = true;
        expected++;
        if (g->callbacks[i].result > 0 || !(right & RESULT(g->callbacks[i].result)))
            wrong(g, "callback %u gets %d", i, g->callbacks[i].result);
    }
    if (count != expected && !g->rules->ends) /* a destroy runs some, and `destroyed` is one */
        wrong(g, "%zu callbacks were run, %u were due", count, expected);
    for (i = 0; i < g->callback_count; i++)
        for (j = 0; j < g->callback_count; j++) {
            const model_point *a = &g->callbacks[i].point, *b = &g->callbacks[j].point;
            if (i == j || !g->callbacks[i].ran || !g->callbacks[j].ran || a->queue != b->queue)
                continue;
            if (a->queue < 0 && (a->timeline != b->timeline || i > j || a->value != b->value))
                continue;
            if (a->queue >= 0 && (a->ticket > b->ticket || (a->ticket == b->ticket && i > j)))
                continue;
            if (a->queue >= 0 && a->ticket < b->ticket)
                continue; /* judged where both were registered before the end */
            if (g->callbacks[i].order > g->callbacks[j].order)
                wrong(g, "callback %u runs behind %u", i, j);
        }
}

static gpusync_point real_point(const graph *g, const model_point *p)
{
    return p->queue < 0 ? at(g->s.t[p->timeline], p->value) : ticket_at(g->s.q[p->queue], p->ticket);
}

static void register_callback(graph *g, const model_point *p)
{
    unsigned i = g->callback_count;
    if (i == MOST_CALLBACKS)
        return;
    g->callbacks[i].point = *p;
    g->callback_count++;
    say(g, "  on_done %u: queue %d ticket %d timeline %d value %d\n", i, p->queue, (int)p->ticket, p->timeline,
        (int)p->value);
    assert_ok(gpusync_on_done(real_point(g, p), called, (void *)(uintptr_t)i));
}

/* -- the steps ------------------------------------------------------------------------------------------------- */

/* R18: what the GPU has written to the events that others signal. What other code writes, step_others notes, and what
   gpusync writes itself is reached by then. A query is a look. */
static void read_events(graph *g)
{
    uint64_t base = 0, value, seen;
    int i, j;
    for (i = 0; i < (int)g->rules->timelines; i++) {
        if (!g->t[i].others || g->t[i].failure || ask_timeline(g, i, &value) != GPUSYNC_OK)
            continue;
        seen = metal_event_value(gpusync_timeline_metal(g->s.t[i], &base)) - base;
        for (j = 0; j < g->work_count; j++) {
            const model_work *w = &g->work[j];
            bool by_gpu = model_sent(w) && gpu_signals(w, i);
            if (by_gpu && w->rank <= seen && w->rank > g->t[i].event)
                g->t[i].event = w->rank;
        }
    }
    /* A listener's block runs on a thread of its own. */
    assert_true(softmetal_settle_listeners(SECONDS(60)));
}

/* A discarded command buffer, and one that never ran, counts in Metal while the program has a reference. */
static void let_go(model_work *w)
{
    while (w->buffer_count)
        metal_release(w->buffers[--w->buffer_count]);
    w->run = NULL;
}

static void check(graph *g)
{
    int i;
    if (g->rest)
        g->rest(g);
    if (g->rules->others)
        read_events(g);
    if (g->rules->ends)
        assert_ok(gpusync_device_run_callbacks(g->s.device, SIZE_MAX, NULL));
    model_lose(g);
    model_step(g);
    for (i = 0; i < g->work_count; i++)
        if (g->work[i].state == MODEL_SETTLED && !g->work[i].ran &&
            g->work[i].ticket <= model_done(g, g->work[i].queue))
            let_go(&g->work[i]);
    check_sent(g);
    check_done(g);
    check_tickets(g);
    check_values(g);
    check_failures(g);
    check_everything(g);
    if (g->rules->ends || chance_to_check(g, 70))
        check_callbacks(g);
    if (g->judge)
        g->judge(g);
}

static uint64_t new_rank(graph *g)
{
    uint64_t low = g->top > 6 ? g->top - 6 : 1;
    uint64_t rank = low + draw(g, 10);
    while (g->used[rank])
        rank++;
    g->used[rank] = true;
    if (rank > g->top)
        g->top = rank;
    return rank;
}

static bool draw_point(graph *g, model_point *p)
{
    memset(p, 0, sizeof *p);
    if (g->rules->tickets && chance(g, 35)) {
        p->queue = (int)draw(g, g->rules->queues);
        p->ticket = (int64_t)draw(g, (uint64_t)g->q[p->queue].last + 1);
        return p->ticket > 0 && !g->q[p->queue].closed;
    }
    if (!g->rules->timelines)
        return false;
    p->queue = -1;
    p->timeline = (int)draw(g, g->rules->timelines);
    p->value = 1 + draw(g, g->top + 2);
    return !g->t[p->timeline].closed;
}

static model_work *new_work(graph *g, int queue)
{
    model_work *w = &g->work[g->work_count];
    memset(w, 0, sizeof *w);
    w->queue = queue;
    return w;
}

/* R29: there the host signals what the work waits for, too. */
static bool waits_on_metal4(const graph *g, const model_work *w, int timeline)
{
    unsigned k;
    for (k = 0; g->q[w->queue].metal4 && k < w->wait_count; k++)
        if (w->waits[k].queue < 0 && w->waits[k].timeline == timeline && !model_point_result(g, &w->waits[k]))
            return true;
    return false;
}

static void draw_points(graph *g, model_work *w)
{
    unsigned waits = (unsigned)draw(g, 3);
    unsigned signals = g->rules->timelines ? (unsigned)draw(g, 3) : 0;
    while (waits-- > 0) {
        model_point p;
        if (draw_point(g, &p))
            w->waits[w->wait_count++] = p;
    }
    if (signals)
        w->rank = new_rank(g);
    while (signals-- > 0) {
        int timeline = (int)draw(g, g->rules->timelines);
        if (g->t[timeline].closed || (g->t[timeline].others && !g->deaf) || signals_timeline(w, timeline))
            continue;
        w->signals[w->signal_count].by_host = w->host_sync || waits_on_metal4(g, w, timeline);
        w->signals[w->signal_count++].timeline = timeline;
    }
}

/* The graph's own reference keeps the address of each buffer its own. */
static void *draw_buffer(graph *g, model_work *w)
{
    void *buffer = new_buffer(g->s.q[w->queue]);
    int number = (int)(w - g->work);
    metal_retain(buffer);
    mark(&g->s, buffer, (uint32_t)number);
    w->buffers[w->buffer_count++] = buffer;
    if (g->q[w->queue].metal4)
        w->run = softmetal_run_of(w->buffers[0]);
    if (g->rules->fails && chance(g, 12) && !w->loser && !(w->run && w->faults)) {
        void *fails = w->run ? w->run : buffer;
        bool loses = g->rules->loses && 3 * g->step > g->rules->steps && chance(g, g->rules->loses);
        softmetal_fail_as(fails, loses ? SOFTMETAL_SUBMISSIONS_IGNORED : SOFTMETAL_PAGE_FAULT, NULL);
        w->faults = true;
        if (loses)
            w->loser = fails;
    }
    return buffer;
}

static void accept(graph *g, model_work *w, int64_t ticket)
{
    model_queue *q = &g->q[w->queue];
    if (ticket != q->last + 1)
        wrong(g, "ticket %d, expected %d", (int)ticket, (int)q->last + 1);
    w->ticket = ++q->last;
    q->tickets[w->ticket] = (int)(w - g->work);
    w->left = w->run ? 1 : w->buffer_count;
    w->state = MODEL_HELD;
    say(g, "  ticket %d\n", (int)ticket);
}

static void tell_work(graph *g, const model_work *w, const char *what)
{
    unsigned k;
    say(g, "%u: %s work %d on queue %d%s%s%s", g->step, what, (int)(w - g->work), w->queue,
        w->unordered ? " UNORDERED" : "", w->host_sync ? " HOST_SYNC" : "",
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
        say(g, ", signals %d:%d", w->signals[k].timeline, (int)w->rank);
    say(g, "\n");
}

static void throw_away(graph *g, model_work *w)
{
    unsigned k;
    for (k = 0; k < w->buffer_count && !w->run; k++) {
        assert_ok(gpusync_command_buffer_discard(g->s.q[w->queue], w->buffers[k]));
        forget_signals_of(g, w->buffers[k]);
    }
    let_go(w);
    w->state = MODEL_GONE;
}

/* Either the work is accepted, or refused as the contract says; then it has changed nothing. */
static void judge(graph *g, model_work *w, results refusals, gpusync_result got, int64_t ticket)
{
    if (g->ending >= 0 && w->signal_count && got == GPUSYNC_ERROR_NOT_RISING)
        refusals |= RESULT(got);
    if (!refusals) {
        if (got != GPUSYNC_OK)
            wrong(g, "refused with %d (%s)", got, gpusync_result_string(got));
        accept(g, w, ticket);
        return;
    }
    if (got >= 0 || !(refusals & RESULT(got)))
        wrong(g, "refusal %d (%s), allowed are %llx", got, gpusync_result_string(got), (unsigned long long)refusals);
    if (ticket != -7)
        wrong(g, "a refused call writes the ticket");
    say(g, "  refused with %d\n", got);
}

static bool room_for_work(const graph *g)
{
    return g->work_count < MOST_WORK;
}

static bool can_make(graph *g, int queue)
{
    void *buffer = NULL;
    results allowed = 0;
    if (g->lost)
        allowed |= RESULT(GPUSYNC_ERROR_DEVICE_LOST);
    if (g->q[queue].stuck)
        allowed |= RESULT(GPUSYNC_ERROR_EXECUTION);
    if (g->q[queue].closed)
        return false;
    if (!allowed || g->q[queue].metal4)
        return room_for_work(g);
    gpusync_result got = gpusync_command_buffer_create(g->s.q[queue], NULL, 0, &buffer);
    if (got >= 0 || !(allowed & RESULT(got)) || buffer)
        wrong(g, "command_buffer_create says %d, allowed are %llx", got, (unsigned long long)allowed);
    return false;
}

/* There is no place for another command buffer, and a call that does not wait says so. */
static bool is_full(graph *g, int queue)
{
    void *buffer = NULL;
    if (g->q[queue].metal4 || model_has_room(g, queue, 1))
        return false;
    say(g, "%u: queue %d is full\n", g->step, queue);
    assert_result(gpusync_command_buffer_create(g->s.q[queue], NULL, 0, &buffer), GPUSYNC_TIMEOUT);
    assert_null(buffer);
    return true;
}

static void step_submit(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    model_work *w = new_work(g, queue);
    gpusync_point waits[MOST_WAITS], signals[MOST_SIGNALS];
    gpusync_ticket ticket = -7;
    unsigned buffers = chance(g, 15) ? 2 : 1;
    unsigned k;
    bool callback = chance(g, 40) && g->callback_count < MOST_CALLBACKS;
    results refusals;
    if (!can_make(g, queue))
        return;
    if (is_full(g, queue))
        buffers = 0;
    else if (buffers == 2 && !g->q[queue].metal4 && !model_has_room(g, queue, 2))
        buffers = 1;
    g->work_count++;
    w->unordered = g->rules->unordered && chance(g, 30);
    w->host_sync = g->rules->host_sync && chance(g, 25);
    if ((w->host_sync || g->q[queue].metal4) && g->rules->empties && chance(g, 30))
        buffers = 0;
    if (!buffers)
        w->host_sync = true; /* R29 */
    draw_points(g, w);
    for (k = 0; k < buffers; k++)
        draw_buffer(g, w);
    for (k = 0; k < w->wait_count; k++)
        waits[k] = real_point(g, &w->waits[k]);
    for (k = 0; k < w->signal_count; k++)
        signals[k] = at(g->s.t[w->signals[k].timeline], w->rank);
    tell_work(g, w, "submit");
    gpusync_submission submission = {.wait_points = waits, .wait_count = w->wait_count, .signal_points = signals,
                                     .signal_count = w->signal_count, .command_buffers = w->buffers,
                                     .command_buffer_count = w->buffer_count};
    if (w->unordered)
        submission.flags |= GPUSYNC_SUBMIT_UNORDERED;
    if (!w->host_sync)
        submission.flags |= GPUSYNC_SUBMIT_ON_GPU;
    if (callback) {
        submission.on_complete = called;
        submission.user = (void *)(uintptr_t)g->callback_count;
    }
    refusals = model_refusals(g, w);
    w->state = MODEL_GONE;
    gpusync_result got = gpusync_submit(g->s.q[queue], &submission, &ticket);
    judge(g, w, refusals, got, ticket);
    if (got != GPUSYNC_OK) {
        if (g->ending < 0)
            check_sent(g);
        throw_away(g, w);
        return;
    }
    if (!callback)
        return;
    memset(&g->callbacks[g->callback_count].point, 0, sizeof g->callbacks[0].point);
    g->callbacks[g->callback_count].point.queue = queue;
    g->callbacks[g->callback_count].point.ticket = ticket;
    say(g, "  with on_complete %u\n", g->callback_count);
    g->callback_count++;
}

/* R29: what a queue of Metal 4 does not have changes nothing. */
static void refuse_on_metal4(graph *g, int queue)
{
    void *buffer = new_buffer(g->s.q[queue]);
    gpusync_point point = ticket_at(g->s.q[queue], 0);
    gpusync_ticket ticket = -7;
    say(g, "%u: queue %d is one of Metal 4: refused\n", g->step, queue);
    assert_result(gpusync_encode_wait(g->s.q[queue], buffer, point), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_encode_signal(g->s.q[queue], buffer, point), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_commit_marker(g->s.q[queue], NULL, &ticket), GPUSYNC_ERROR_UNSUPPORTED);
    assert_true(ticket == -7);
}

/* A buffer with encoded waits and signals, which stays open for a while. */
static void step_encode(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    model_work *w = new_work(g, queue);
    unsigned k, kept = 0;
    if (g->q[queue].metal4 && !g->q[queue].closed)
        refuse_on_metal4(g, queue);
    if (g->q[queue].metal4 || !can_make(g, queue) || is_full(g, queue))
        return;
    g->work_count++;
    w->encodes = true;
    draw_points(g, w);
    void *buffer = draw_buffer(g, w);
    tell_work(g, w, "encode");
    w->state = MODEL_OPEN;
    for (k = 0; k < w->wait_count; k++)
        encode_wait(g->s.q[queue], buffer, real_point(g, &w->waits[k]));
    for (k = 0; k < w->signal_count; k++) {
        model_signal signal = w->signals[k];
        const model_timeline *t = &g->t[signal.timeline];
        results allowed = t->failure ? t->failure : w->rank <= t->sent ? RESULT(GPUSYNC_ERROR_NOT_RISING) : ONLY_OK;
        gpusync_result got = gpusync_encode_signal(g->s.q[queue], buffer, at(g->s.t[signal.timeline], w->rank));
        bool itself = model_waits_for(w, signal.timeline, w->rank);
        if (g->ending >= 0)
            allowed |= RESULT(GPUSYNC_ERROR_NOT_RISING);
        if (got > 0 || !(allowed & RESULT(got))) {
            /* The contract does not say which of the two calls finds that the buffer waits for its own signal. */
            if (!itself || got != GPUSYNC_ERROR_NOT_RISING)
                wrong(g, "encode_signal %d:%d says %d, allowed are %llx", signal.timeline, (int)w->rank, got,
                      (unsigned long long)allowed);
        }
        if (got == GPUSYNC_OK)
            w->signals[kept++] = signal;
        if (got != GPUSYNC_OK)
            say(g, "  signal %d:%d is refused\n", signal.timeline, (int)w->rank);
    }
    w->signal_count = kept;
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

static void step_commit_open(graph *g)
{
    model_work *w = draw_open(g);
    gpusync_ticket ticket = -7;
    results refusals;
    if (!w)
        return;
    tell_work(g, w, "commit");
    refusals = model_refusals(g, w);
    gpusync_result got = gpusync_commit(g->s.q[w->queue], w->buffers[0], &ticket);
    judge(g, w, refusals, got, ticket);
}

static void step_commit_plain(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    model_work *w = new_work(g, queue);
    gpusync_ticket ticket = -7;
    results refusals;
    if (!can_make(g, queue) || is_full(g, queue))
        return;
    g->work_count++;
    draw_buffer(g, w);
    tell_work(g, w, "commit");
    refusals = model_refusals(g, w);
    gpusync_result got = gpusync_commit(g->s.q[queue], w->buffers[0], &ticket);
    judge(g, w, refusals, got, ticket);
    if (got != GPUSYNC_OK)
        throw_away(g, w);
}

/* R11: open work that is dropped fails its timelines where a failure sticks to its queue. */
static void model_discard(graph *g, model_work *w)
{
    w->state = MODEL_GONE;
    w->over_at = UINT32_MAX;
    if (g->q[w->queue].stuck)
        model_failed_signals(g, w, g->q[w->queue].stuck);
}

static void step_discard(graph *g)
{
    model_work *w = draw_open(g);
    if (!w || g->ending >= 0)
        return;
    tell_work(g, w, "discard");
    throw_away(g, w);
    model_discard(g, w);
}

static void step_marker(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    model_work *w = new_work(g, queue);
    gpusync_ticket ticket = -7;
    results refusals;
    if (g->q[queue].metal4 && !g->q[queue].closed)
        refuse_on_metal4(g, queue);
    if (g->q[queue].closed || g->q[queue].metal4 || !room_for_work(g))
        return;
    g->work_count++;
    w->unordered = true;
    w->marker = true;
    tell_work(g, w, "marker");
    w->state = MODEL_GONE;
    refusals = g->lost ? RESULT(GPUSYNC_ERROR_DEVICE_LOST) : 0;
    if (!model_has_room(g, queue, 1))
        refusals |= RESULT(GPUSYNC_ERROR_QUEUE_FULL);
    gpusync_result got = gpusync_commit_marker(g->s.q[queue], NULL, &ticket);
    if (refusals) {
        judge(g, w, refusals, got, ticket);
        return;
    }
    assert_ok(got);
    w->buffers[w->buffer_count++] = metal_retain(softmetal_last_buffer(g->s.metal[queue]));
    accept(g, w, ticket);
    w->state = MODEL_SENT; /* R6: at once, whatever is held, and whatever sticks */
}

/* R3. */
static void step_host_signal(graph *g)
{
    int i = (int)draw(g, g->rules->timelines);
    model_timeline *t = &g->t[i];
    uint64_t value = 1 + draw(g, g->top + 2);
    uint64_t reached = model_reached(g, i);
    results allowed = ONLY_OK;
    if (t->closed || g->ending >= 0)
        return;
    gpusync_result got = gpusync_timeline_signal(g->s.t[i], value);
    if (value <= reached || value >= model_lowest_sent(g, i))
        allowed = RESULT(GPUSYNC_ERROR_NOT_RISING);
    if (t->failure)
        allowed = t->failure;
    say(g, "%u: host signals %d:%d: %d\n", g->step, i, (int)value, got);
    if (got > 0 || !(allowed & RESULT(got)))
        wrong(g, "a signal of the host says %d, allowed are %llx", got, (unsigned long long)allowed);
    if (got != GPUSYNC_OK)
        return;
    model_rise(g, i, value, NULL);
    t->reached = value;
    if (t->event < value)
        t->event = value;
}

static void look_everywhere(graph *g)
{
    size_t count;
    assert_ok(gpusync_device_run_callbacks(g->s.device, 0, &count));
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

static void model_cancel(graph *g, int queue)
{
    int i;
    for (i = 0; i < g->work_count; i++)
        if (g->work[i].queue == queue && g->work[i].state == MODEL_OVER && g->work[i].behind_held && !g->work[i].fixed)
            g->work[i].allowed |= RESULT(GPUSYNC_ERROR_CANCELLED);
    for (i = 0; i < g->work_count; i++)
        if (g->work[i].queue == queue && g->work[i].state == MODEL_HELD)
            model_over(g, &g->work[i], RESULT(GPUSYNC_ERROR_CANCELLED), false);
}

static void cancel_queue(graph *g, int queue)
{
    if (g->q[queue].closed)
        return;
    say(g, "%u: cancel_held of queue %d\n", g->step, queue);
    assert_ok(gpusync_queue_cancel_held(g->s.q[queue]));
    model_cancel(g, queue);
}

static void step_cancel(graph *g)
{
    cancel_queue(g, (int)draw(g, g->rules->queues));
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
        model_point p = {.queue = queue, .ticket = w->ticket};
        if (w->queue != queue || w->state == MODEL_SETTLED || w->state == MODEL_GONE)
            continue;
        busy = busy || w->state == MODEL_SENT;
        if (w->state != MODEL_OPEN)
            register_callback(g, &p);
        else
            forget_signals_of(g, w->buffers[0]);
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
    for (i = 0; i < g->work_count; i++)
        if (g->work[i].queue == queue && g->work[i].state == MODEL_OPEN)
            model_discard(g, &g->work[i]);
    model_cancel(g, queue);
    if (abandon)
        model_move(g); /* which of the two comes first is left open */
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
        if (g->gone[i] && model_done(g, (int)i) != g->q[i].last)
            wrong(g, "`destroyed` of queue %u was called, and its work has not ended", i);
}

static void step_clear(graph *g)
{
    int queue = (int)draw(g, g->rules->queues), i;
    if (!g->q[queue].sticky || g->q[queue].closed)
        return;
    say(g, "%u: clear_failure of queue %d\n", g->step, queue);
    assert_ok(gpusync_queue_clear_failure(g->s.q[queue], GPUSYNC_EVERYTHING));
    for (i = 0; i < g->work_count; i++) /* it ends with a newer one that sticks "by its turn", even if not any more */
        if (g->work[i].queue == queue && g->work[i].state == MODEL_OVER && g->work[i].inherits)
            g->work[i].allowed |= g->q[queue].sticks;
    g->q[queue].stuck = 0;
    g->q[queue].sticks = 0;
    g->q[queue].cleared = g->q[queue].last;
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
    model_fail_timeline(g, i, RESULT(GPUSYNC_ERROR_COMPILE), UINT64_MAX);
}

/* Where handlers of one of its buffers have not run, a look has to tell the end. */
static void work_over(graph *g, model_work *w)
{
    softmetal_due due = SOFTMETAL_NOTHING_DUE;
    bool late = false;
    unsigned k;
    for (k = 0; softmetal_due_at(g->s.metal[w->queue], k, &due) != NULL; k++)
        if (due == SOFTMETAL_HANDLERS_DUE)
            late = true;
    w->ended = true;
    if (late)
        look_everywhere(g);
}

static void note_failure(const graph *g, model_work *w, void *buffer)
{
    if (metal_status(buffer) != MTL_ERROR)
        return;
    if (w->loser == buffer || g->removed)
        w->loser_over = true;
    w->failed = true;
}

/* The work's GPU part is over when its buffers are, and the one of gpusync's behind them that signals. untold: there is
   the status alone. */
static void buffer_over(graph *g, void *buffer, int queue, bool untold)
{
    int n = work_of(g, buffer);
    model_work *w;
    if (g->removed && metal_status(buffer) == MTL_ERROR)
        g->tells = true;
    if (n >= 0) {
        w = &g->work[n];
        w->left--;
        note_failure(g, w, buffer);
        if (w->left)
            return;
        if (w->run)
            w->ended = !untold; /* R29: the feedback tells, and nothing else */
        else if (signals_behind(g, softmetal_first_in_line(g->s.metal[queue])))
            g->behind[queue] = n;
        else
            work_over(g, w);
    } else if (signals_behind(g, buffer) && g->behind[queue] >= 0) {
        w = &g->work[g->behind[queue]];
        g->behind[queue] = -1;
        note_failure(g, w, buffer);
        work_over(g, w);
    }
}

/* One buffer ends on one queue: with its handlers, or first the status alone, and somebody looks. */
static bool step_gpu(graph *g, int queue, bool all)
{
    void *metal = g->s.metal[queue];
    softmetal_due due = SOFTMETAL_NOTHING_DUE;
    void *buffer;
    unsigned k;
    bool look = g->rules->looks && chance(g, 25);
    if (g->ending >= 0)
        return false;
    for (k = 0; (buffer = softmetal_due_at(metal, k, &due)) != NULL; k++) {
        int n = work_of(g, buffer);
        if (due != SOFTMETAL_HANDLERS_DUE || !(all || chance(g, 60)))
            continue;
        say(g, "%u: late handlers on queue %d, work %d\n", g->step, queue, n);
        softmetal_finish(buffer);
        if (n >= 0 && g->work[n].run)
            g->work[n].ended = true;
        return true;
    }
    buffer = softmetal_first_in_line(metal);
    if (!buffer || softmetal_what_is_due(buffer) != SOFTMETAL_COMPLETE_DUE)
        return false;
    metal_retain(buffer);
    say(g, "%u: the GPU ends a buffer on queue %d, work %d%s\n", g->step, queue, work_of(g, buffer),
        look ? " (status alone, and a look)" : "");
    if (look)
        softmetal_complete(buffer);
    else
        softmetal_finish(buffer);
    buffer_over(g, buffer, queue, look);
    if (look)
        look_everywhere(g);
    metal_release(buffer);
    return true;
}

static void step_callback(graph *g)
{
    model_point p;
    if (draw_point(g, &p))
        register_callback(g, &p);
}

static void one_step(graph *g)
{
    const graph_rules *r = g->rules;
    unsigned what = (unsigned)draw(g, 100);
    if (g->lost && chance(g, 20)) {
        say(g, "%u: time passes\n", g->step);
        graph_pass(MS(draw(g, 1000)));
    } else if (r->loses && 2 * g->step > r->steps && chance(g, 1)) {
        say(g, "%u: the device is removed\n", g->step);
        softmetal_remove_device(g->s.metal_device);
        g->removed = true;
    } else if (r->ends && 3 * g->step > r->steps && chance(g, 6)) {
        step_end(g);
    } else if (what < 40) {
        step_gpu(g, (int)draw(g, r->queues), r->room); /* late handlers fill Metal's queue */
    } else if (what < 60) {
        step_submit(g);
    } else if (what < 65) {
        step_commit_plain(g);
    } else if (what < 72) {
        if (r->encoded)
            step_encode(g);
    } else if (what < 78) {
        if (r->encoded)
            step_commit_open(g);
    } else if (what < 80) {
        if (r->discards)
            step_discard(g);
    } else if (what < 82) {
        if (r->markers)
            step_marker(g);
    } else if (what < 86) {
        if (r->host_signals && r->timelines)
            step_host_signal(g);
    } else if (what < 88) {
        if (r->cancels)
            step_cancel(g);
    } else if (what < 91) {
        if (r->sticky)
            step_clear(g);
    } else if (what < 93) {
        if (r->others)
            step_others(g);
    } else if (what < 94) {
        if (r->timeline_fails && r->timelines)
            step_timeline_fail(g);
    } else {
        step_callback(g);
    }
}

static void finish_gpu(graph *g)
{
    bool moved;
    int i;
    do {
        moved = false;
        for (i = 0; i < (int)g->rules->queues; i++) {
            if (!step_gpu(g, i, true))
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

/* Open buffers are committed or discarded, what can end does; then what still waits is cancelled, and all has ended. */
static void end_graph(graph *g)
{
    model_work *w;
    int i;
    while ((w = draw_open(g)) != NULL) {
        tell_work(g, w, "discard");
        throw_away(g, w);
        model_discard(g, w);
        check(g);
        g->step++;
    }
    finish_gpu(g);
    for (i = 0; i < (int)g->rules->timelines; i++) {
        if (!g->t[i].others || g->t[i].failure || g->t[i].closed)
            continue;
        say(g, "%u: the host fails timeline %d, which others signal\n", g->step, i);
        assert_ok(gpusync_timeline_fail(g->s.t[i], NULL));
        model_fail_timeline(g, i, RESULT(GPUSYNC_ERROR_EXECUTION), UINT64_MAX);
        check(g);
        g->step++;
    }
    release_gpu(g);
    finish_gpu(g);
    g->may_differ = true; /* whatever the kind of the program, work is cancelled now */
    for (i = 0; i < (int)g->rules->queues; i++) {
        cancel_queue(g, i);
        check(g);
        g->step++;
        finish_gpu(g);
    }
    for (i = 0; i < (int)g->rules->queues; i++) {
        if (model_done(g, i) != g->q[i].last)
            wrong(g, "ticket %d of queue %d never ends", (int)model_done(g, i) + 1, i);
        assert_true(g->q[i].closed || !gpusync_in_flight(g->s.q[i]));
    }
    check_callbacks(g);
    assert_ok(gpusync_device_run_callbacks(g->s.device, SIZE_MAX, NULL));
    check_gone(g, true);
}

/* The order on the GPU, by what it wrote: work that never ran wrote nothing, work that waited wrote behind what it
   waited for, and a queue's work in the order in which Metal got it. */
static unsigned mark_of(int work)
{
    unsigned i;
    for (i = 0; i < marks(); i++)
        if (mark_at(i) == (uint32_t)work)
            return i;
    return UINT32_MAX;
}

static void check_marks(graph *g)
{
    unsigned last[STAGE_MOST] = {0}, k;
    int i;
    for (i = 0; i < g->work_count; i++) {
        const model_work *w = &g->work[i];
        unsigned mine = mark_of(i);
        if (!w->ran && mine != UINT32_MAX)
            wrong(g, "work %d never ran, and has written", i);
        if (w->state != MODEL_SETTLED || w->result != GPUSYNC_OK || !w->buffer_count || w->marker)
            continue;
        if (mine == UINT32_MAX)
            wrong(g, "work %d ran, and has not written", i);
        for (k = 0; k < w->wait_count; k++) {
            const model_point *p = &w->waits[k];
            int other = p->queue >= 0 ? g->q[p->queue].tickets[p->ticket] : -1;
            int j;
            if (other >= 0 && g->work[other].buffer_count && !g->work[other].marker && mark_of(other) > mine)
                wrong(g, "work %d runs before work %d, whose ticket it waits for", i, other);
            for (j = 0; p->queue < 0 && !g->t[p->timeline].others && j < g->work_count; j++) {
                unsigned n;
                other = -1;
                for (n = 0; n < g->work[j].signal_count; n++)
                    if (g->work[j].signals[n].timeline == p->timeline && g->work[j].rank <= p->value)
                        other = j;
                if (other < 0 || g->work[j].state != MODEL_SETTLED || g->work[j].result != GPUSYNC_OK)
                    continue;
                if (g->work[j].buffer_count && mark_of(j) > mine)
                    wrong(g, "work %d runs before work %d, whose value it waits for", i, j);
            }
        }
    }
    for (k = 0; k < g->commit_count; k++) {
        i = work_of(g, g->commits[k].buffer);
        if (i < 0 || g->work[i].buffers[0] != g->commits[k].buffer)
            continue;
        unsigned mine = mark_of(i);
        if (mine == UINT32_MAX)
            continue;
        if (mine < last[g->work[i].queue])
            wrong(g, "work %d runs out of the order of queue %d", i, g->work[i].queue);
        last[g->work[i].queue] = mine;
    }
}

/* An event of the program's, which may have been signalled already. */
static void import_event(graph *g, unsigned i, gpusync_timeline_desc *desc)
{
    model_timeline *t = &g->t[i];
    desc->shared_event = t->imported = metal_shared_event_new(g->s.metal_device);
    t->reached = t->sent = t->event = draw(g, 3);
    if (t->event)
        metal_event_signal(desc->shared_event, t->event);
}

static void open_graph(graph *g)
{
    stage_desc desc = {
        .no_queue = true, .device.callback_mode = GPUSYNC_CALLBACKS_MANUAL, .device.hooks = graph_hooks};
    unsigned i;
    softmetal_quirks quirks;
    stage_open(&g->s, &desc);
    softmetal_get_quirks(&quirks);
    g->deaf = g->begin || (g->rules->others && chance(g, 50)); /* listeners have threads of their own */
    quirks.deaf_to_everything = g->deaf;
    softmetal_set_quirks(&quirks);
    for (i = 0; i < g->rules->queues; i++) {
        gpusync_queue_desc queue = {.max_command_buffer_count = 400, .error_log_count = 128};
        queue.sticky_failure = g->rules->sticky && chance(g, 60);
        if (g->rules->room)
            queue.max_command_buffer_count = 2 + (uint32_t)draw(g, 7);
        g->q[i].limit = queue.max_command_buffer_count;
        queue.metal4 = g->rules->metal4 && chance(g, 50);
        g->q[i].sticky = queue.sticky_failure;
        g->q[i].metal4 = queue.metal4;
        assert_ok(gpusync_queue_create(g->s.device, &queue, &g->s.q[i]));
        g->s.metal[i] = metal_retain(gpusync_queue_metal(g->s.q[i]));
        g->behind[i] = -1;
        say(g, "queue %u, room for %u%s%s\n", i, g->q[i].limit, g->q[i].sticky ? " sticky" : "",
            g->q[i].metal4 ? " of Metal 4" : "");
    }
    for (i = 0; i < g->rules->timelines; i++) {
        gpusync_timeline_desc timeline = {0};
        timeline.order_only = g->rules->order_only && chance(g, 50);
        timeline.signalled_by_others = g->rules->others && chance(g, 40);
        if (timeline.signalled_by_others && chance(g, 50))
            import_event(g, i, &timeline);
        g->t[i].order_only = timeline.order_only;
        g->t[i].others = timeline.signalled_by_others;
        assert_ok(gpusync_timeline_create(g->s.device, &timeline, &g->s.t[i]));
        say(g, "timeline %u%s%s%s\n", i, timeline.order_only ? " order_only" : "",
            timeline.signalled_by_others ? " signalled by others" : "",
            timeline.shared_event ? ", of an event of the program's" : "");
    }
    softmetal_set_message_hook(watch, g);
}

/* Ends all work of a program that was set aside: with the manual clock a destroy would wait for ever for work that the
   destroy of another queue lets go. */
static inline void let_all_end(graph *g)
{
    gpusync_result result;
    unsigned k, round;
    int i;
    bool busy = true;
    for (i = 0; i < g->work_count; i++)
        for (k = 0; k < g->work[i].buffer_count; k++)
            if (!g->q[g->work[i].queue].closed)
                result = gpusync_command_buffer_discard(g->s.q[g->work[i].queue], g->work[i].buffers[k]);
    for (i = 0; i < (int)g->rules->timelines; i++)
        if (g->t[i].others && !g->t[i].closed)
            result = gpusync_timeline_fail(g->s.t[i], NULL);
    release_gpu(g);
    (void)result; /* those that are open, and those that have not failed */
    for (round = 0; busy; round++) {
        must(round < MOST_WORK, "work never ends");
        for (i = 0; i < (int)g->rules->queues; i++)
            if (!g->q[i].closed)
                assert_ok(gpusync_queue_cancel_held(g->s.q[i]));
        finish_all(&g->s);
        assert_ok(gpusync_device_run_callbacks(g->s.device, SIZE_MAX, NULL)); /* `destroyed`, too */
        for (busy = false, i = 0; i < (int)g->rules->queues; i++)
            busy = busy || (!g->q[i].closed && gpusync_in_flight(g->s.q[i]));
    }
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
    for (i = 0; i < (int)g->rules->timelines; i++)
        metal_release(g->t[i].imported);
    softmetal_set_message_hook(NULL, NULL);
    for (i = 0; g->removed && i < (int)g->rules->queues;
         i++) { /* no signal of Metal 4 comes there: nothing is to stay */
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
    g->top = 1;
    calling = g;
    call_order = 0;
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
    check_marks(g);
}

static inline void run_graph(const graph_rules *rules, uint64_t seed)
{
    graph *g = new_graph(rules, seed);
    open_graph(g);
    play_graph(g);
    close_graph(g);
}

/* A fuzzer's program. Returns whether the model agreed. may_differ: else the test fails, before the program's end. */
static inline bool run_bytes(const graph_rules *rules, const uint8_t *bytes, size_t size, bool may_differ)
{
    graph *g = new_graph(rules, 0);
    jmp_buf aside;
    volatile bool agrees = true;
    g->bytes = bytes;
    g->left = size;
    g->aside = &aside;
    g->may_differ = may_differ;
    open_graph(g);
    if (!setjmp(aside)) {
        play_graph(g);
    } else {
        agrees = false;
        let_all_end(g);
    }
    close_graph(g);
    return agrees;
}

#endif
