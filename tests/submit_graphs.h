/* submit_graphs.h - programs of submissions, and the model that knows how each of them must end

   A program is a list of steps in an order in which it could run one by one: submissions, plain commits, and steps of
   the host, which waits and signals. It is submitted in another order, in which waits come before their signals. Each
   step copies a byte of each step it waited for and then writes its own, so lost order shows as a wrong byte. Work that
   waits for a ticket which fails never runs. A step that fails has one of the errors of its waits and its work: the first
   that was found. The signals may be in any of a step's command buffers; then the steps that wait for them go on while
   the rest runs.

   On most timelines each step that signals waits for the value before its own. On "loose" ones, which the host does not
   signal, some do not: they come when that value is pending, on any queue, and gpusync keeps the values in their order, by
   the table of "Order" in gpusync.h. (test_submit_order.c goes through the table itself.)

   Some queues are of Metal 4. Their steps wait and signal in the submission alone, have command buffers, and are one run of
   the device; their commits neither wait nor signal.

   On some queues failures stick. Once such a failure was found, new steps are refused, held ones end with it, and each
   later one that ends well takes it, until the failure is cleared between two steps, or before a refused step is tried
   again. Whether a clear came before or after the failure is asked around it, and where the answers do not tell either is
   good. What had not ended when a failure was known has to take it.

   Between the steps come mishaps: what is held on a queue is cancelled, a queue or a timeline is destroyed, while work
   that names it is made, held or in flight. What names it later is left out, and each step that relies on that is told.
   The model knows the steps that a mishap may touch, and with which result; everything else has to end as if there were
   none.

   A test that includes this has the implementation in the same file, draws a program, opens it, runs it in its own way
   (submit, run_on_host), asks how it went (ask_steps, ask_timelines), and has check_program judge that. Whatever is
   wrong prints the program and fails as an assertion of cmocka's does. */
#ifndef SUBMIT_GRAPHS_H
#define SUBMIT_GRAPHS_H

#include "probe.h"
#include "stage.h"
#include <limits.h>

#define QUEUES 4
#define TIMELINES 4
#define STEPS 28
#define EDGES 6
#define STEP_BUFFERS 3
#define VALUES (TIMELINES + 1) /* of a step: one for each timeline, and a second one for one of them */
#define MISHAPS 3       /* that are drawn, besides clears */
#define MOST_MISHAPS 20 /* with clears, and what has to end in the end */
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

/* What a step writes to its memory, at these offsets. */
enum {
    SEEN = 0,             /* by edge: the stamp of the step that was waited for */
    CELLS = SEEN + EDGES, /* by timeline: the stamp of the step that signalled last before this one */
    LINE = CELLS + TIMELINES, /* the stamp of the step before this one on the queue */
    MARKS,                /* by command buffer: it ran */
    LINKS = MARKS + STEP_BUFFERS, /* by command buffer: the mark of the one before */
    STAMP = LINKS + STEP_BUFFERS,
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

typedef struct pending_signal {
    int timeline, previous; /* the step that signals before this one, or -1 */
    uint64_t value, before;
    int at;         /* the command buffer that it is encoded into; as many as there are: the submission has it */
    uint64_t ended; /* set of steps that have ended when the device gets there */
    bool free;      /* its step does not wait for the value before */
} pending_signal;

/* What is known of a queue where failures stick: sets of its steps that had failed, and of those that had not ended after
   that, or had not been committed. */
typedef struct look {
    unsigned when;
    uint64_t failed, unended, uncommitted;
} look;

/* What comes between: a cancel or a destroy; or the clear of a failure that sticks. */
typedef enum mishap_kind { CANCEL, END_TIMELINE, END_QUEUE, END_QUEUE_NOW, CLEAR } mishap_kind;
typedef struct mishap {
    mishap_kind kind;
    int which; /* the queue or the timeline */
    int place; /* it comes before the step at this place of the order */
    bool done; /* its object was still there */
    look look;         /* of a clear: before it; but `unended` is asked after it */
    uint64_t open;     /* ... set of steps whose tickets had not ended after it */
    uint64_t patience; /* ... how long it waits for an end first */
} mishap;

/* What the model knows of a wait, or whether a failure sticks. */
typedef enum verdict { WELL, MAYBE, BADLY } verdict;

typedef struct program program;

typedef struct step {
    /* what it is */
    program *program;
    kind kind;
    int index, queue, edges, buffers, signals;
    uint32_t flags;
    edge edge[EDGES]; /* in the order in which the first failure counts: the submission's, then by command buffer */
    pending_signal signal[VALUES]; /* of one timeline in rising order */
    bool backwards;  /* the last command buffer gets its signals first */
    int place;       /* in the order of submission; -1: none, it is the host's */
    int make_at;     /* where in that order its command buffers are made */
    bool dropped;    /* they are discarded when its turn comes */
    int line;        /* the step before it on the queue that has memory to read, or -1 */
    int fails;       /* the command buffer that fails, or -1 */
    long code;
    uint64_t before; /* set of steps that have ended when this one's command buffers have */
    bool late_waits; /* for a command buffer that is discarded: is one made? */
    /* how it went */
    void *memory;        /* a Metal buffer */
    void *made[STEP_BUFFERS]; /* its command buffers */
    bool is_made;
    bool left;           /* left out: it names what is gone, or was dropped */
    bool given_up;       /* ... and its command buffers, which were to signal something, went with the queue */
    bool lost;           /* held for certain when its queue was cancelled or destroyed */
    void *kept[STEP_BUFFERS]; /* its command buffers, +1, or NULL */
    gpusync_ticket ticket;
    unsigned state;
    unsigned when;           /* it was issued, or refused */
    look look;               /* just before it was submitted */
    gpusync_result result;
    gpusync_error error;
    unsigned calls, over;
    gpusync_result signalled[VALUES]; /* what the host was told */
    gpusync_result polled;              /* just before its queue was destroyed */
    gpusync_result told, seen_in_callback;
    gpusync_error told_error;
} step;

typedef struct line {
    gpusync_timeline *timeline;
    void *event, *cell; /* +1; a Metal buffer of one byte: the stamp of the last step that signalled */
    uint64_t initial, last, value;
    int signaller;         /* the last; -1: none */
    bool loose;            /* some steps signal it without a wait for the value before; the host does not */
    bool gone;             /* destroyed, or about to be */
    unsigned calls;        /* of the callback for the last value */
    gpusync_result told;   /* ... with this */
    gpusync_result result; /* of one that is gone: of the first step that did not signal it */
    gpusync_error error;
} line;

/* The callers besides the thread that submits and destroys. */
enum { BY_HOST, BY_CALLBACK, CALLERS };

struct program {
    rig r;
    uint64_t seed, random;
    uint64_t (*source)(void);      /* of what is drawn; NULL: the seed's generator */
    bool (*again)(gpusync_result); /* try a call again that did nothing, for this reason? May be NULL */
    uint64_t patience;             /* of waits for what has to come */
    const gpusync_hooks *hooks;    /* of the device */
    bool keeps;                    /* the steps keep their command buffers, to be looked at */
    bool plain;   /* no mishaps, all signals at the end of the steps, nothing made ahead, commits do not call back */
    bool overlap;
    bool mute;    /* steps do not read what others write */
    unsigned fail_per_mille;
    int queues, timelines, steps, mishaps;
    bool metal4[QUEUES], sticky[QUEUES]; /* of what kind the queues are */
    gpusync_queue *queue[QUEUES];
    void *metal_queue[QUEUES]; /* of Metal 4, +1 */
    bool queue_gone[QUEUES];   /* destroyed, or about to be */
    const void *used[CALLERS]; /* the queue or timeline that each of them is calling */
    line line[TIMELINES];
    step step[STEPS];
    mishap mishap[MOST_MISHAPS];
    int order[STEPS], ordered; /* of submission */
    uint64_t others;           /* tickets of other queues of the device */
    int now;                   /* the place of the order */
    unsigned events;           /* steps that were issued or refused, looks and clears, one after the other */
};

static struct coverage {
    uint64_t programs, held, failed, inherited, refused, hosts, overlapping;
    uint64_t mishaps;                    /* done */
    uint64_t spread, ahead;              /* steps that signal in several buffers; that a mishap found made */
    uint64_t lost, ended, flying;        /* ... held for certain; ended by what befell their queue; these in flight */
    uint64_t left, given_up, unsignalled; /* ... that waited for what no work was to signal */
    uint64_t steps4, across;             /* steps of Metal 4; waits of one kind of queue for the other that went well */
    uint64_t sticky, stuck, turned_away; /* steps where failures stick; failed of what stuck; these refused */
    uint64_t cleared, freed;             /* clears that ended something; steps that went well behind one of these */
    uint64_t taken, dropped, resumed;    /* steps that had to take a failure, held ones; refused, taken after a clear */
    uint64_t awaited, loose;             /* steps that never ran, as a ticket had failed; signals out of order, made */
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

static bool is_of_metal4(const step *s) { return s->kind != HOST && s->program->metal4[s->queue]; }
static bool is_sticky(const step *s) { return s->kind != HOST && s->program->sticky[s->queue]; }

/* -- saying what is wrong ----------------------------------------------------------------------------- */

static void print_step(const step *s)
{
    static const char *const kinds[] = {"submit", "commit", "host"};
    int i;
    print_message("%3d %s", s->index, kinds[s->kind]);
    if (s->kind != HOST)
        print_message(" on queue %d%s%s%s%s%s, %d buffers", s->queue, is_of_metal4(s) ? " of Metal 4" : "",
                      is_sticky(s) ? " (sticky)" : "", s->flags & SIGNALS_INSIDE ? " open" : "",
                      s->flags & GPUSYNC_STRICT ? " strict" : "", s->flags & GPUSYNC_UNORDERED ? " unordered" : "",
                      s->buffers);
    for (i = 0; i < s->edges; i++) {
        const edge *e = &s->edge[i];
        if (e->timeline < 0) print_message("; waits for ticket of %d", e->step);
        else print_message("; waits for %d:%llu of %d", e->timeline, (unsigned long long)e->value, e->step);
        if (e->head >= 0) print_message(" at head of buffer %d", e->head);
    }
    for (i = 0; i < s->signals; i++) {
        print_message("; signals %d:%llu", s->signal[i].timeline, (unsigned long long)s->signal[i].value);
        if (s->signal[i].at < s->buffers) print_message(" in buffer %d", s->signal[i].at);
        if (s->signal[i].free) print_message(" (free)");
    }
    if (s->make_at < s->place) print_message("; made at %d", s->make_at);
    if (s->dropped) print_message("; dropped");
    if (s->fails >= 0) print_message("; buffer %d fails, code %ld", s->fails, s->code);
    print_message(" -> %s at %u, ticket %llu, %d %s", GET(&s->state) == REFUSED ? "refused" : "made", s->when,
                  (unsigned long long)GET(&s->ticket), s->result, s->result ? s->error.message : "");
    if (is_sticky(s))
        print_message("; look at %u: failed %llx, unended %llx", s->look.when, (unsigned long long)s->look.failed,
                      (unsigned long long)s->look.unended);
    print_message("\n");
}

static void print_mishap(const mishap *m)
{
    static const char *const kinds[] = {"cancel queue", "destroy timeline", "destroy queue", "destroy now queue",
                                        "clear queue"};
    print_message("at %d of the order: %s %d%s", m->place, kinds[m->kind], m->which, m->done ? "" : " (not done)");
    if (m->kind == CLEAR)
        print_message(" at %u, failed before %llx, open after %llx, unended %llx", m->look.when,
                      (unsigned long long)m->look.failed, (unsigned long long)m->open,
                      (unsigned long long)m->look.unended);
    print_message("\n");
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
    for (i = 0; i < p->mishaps; i++) print_mishap(&p->mishap[i]);
    for (i = 0; i < p->timelines; i++)
        print_message("timeline %d%s: value %llu, %d %s\n", i, GET(&p->line[i].gone) ? " (gone)" : "",
                      (unsigned long long)p->line[i].value, p->line[i].result,
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
    _fail(__FILE__, at);
}

/* -- drawing a program -------------------------------------------------------------------------------- */

/* The pending signal that brings this value. */
static const pending_signal *pending_of(const step *s, int timeline, uint64_t value)
{
    int i = 0;
    while (s->signal[i].timeline != timeline || s->signal[i].value < value) i++;
    return &s->signal[i];
}

/* Set of steps that have ended when the wait is over. */
static uint64_t ended_by(const program *p, const edge *e)
{
    const step *on = &p->step[e->step];
    if (e->timeline >= 0) return pending_of(on, e->timeline, e->value)->ended;
    return on->before | (uint64_t)1 << e->step;
}

static void add_edge(step *s, int on, int timeline, uint64_t value)
{
    edge *e = &s->edge[s->edges++];
    assert_true(s->edges <= EDGES);
    e->step = on;
    e->timeline = timeline;
    e->value = value;
    e->head = -1;
    s->before |= ended_by(s->program, e);
}

/* Wait for a step by its ticket or by one of its signals; in vain where it has neither. */
static void wait_for_step(program *p, step *s, int on)
{
    const step *other = &p->step[on];
    if (other->signals && (other->kind == HOST || chance(p, 600))) {
        const pending_signal *signal = &other->signal[number(p, other->signals)];
        add_edge(s, on, signal->timeline, signal->value - below(p, signal->value - signal->before));
    } else if (other->kind != HOST) {
        add_edge(s, on, -1, 0);
    }
}

static void draw_signal(program *p, step *s, int timeline)
{
    line *l = &p->line[timeline];
    pending_signal *made = &s->signal[s->signals++];
    made->timeline = timeline;
    made->previous = l->signaller;
    made->before = l->last;
    made->value = l->last + 1 + (l->loose ? 0 : below(p, 5));
    if (made->previous < 0) return;
    made->free = l->loose && chance(p, 600);
    if (made->free) return;
    if (p->step[made->previous].kind != HOST && chance(p, 200)) {
        add_edge(s, made->previous, -1, 0);
    } else {
        const pending_signal *other = pending_of(&p->step[made->previous], timeline, made->before);
        add_edge(s, made->previous, timeline, made->before - below(p, made->before - other->before));
    }
}

/* A second signal of one timeline. */
static void draw_signal_again(program *p, step *s)
{
    const pending_signal *first = &s->signal[number(p, s->signals)];
    pending_signal *made = &s->signal[s->signals++];
    *made = *first;
    made->before = first->value;
    made->value = first->value + 1 + (p->line[made->timeline].loose ? 0 : below(p, 5));
}

static void draw_signals(program *p, step *s)
{
    bool bare = s->kind == COMMIT && is_of_metal4(s);
    int count = bare || chance(p, 300) ? 0 : s->kind == HOST ? 1 : 1 + number(p, 3), first, i;
    if (count > p->timelines) count = p->timelines;
    first = number(p, p->timelines);
    for (i = 0; i < count; i++)
        if (s->kind != HOST || !p->line[(first + i) % p->timelines].loose) draw_signal(p, s, (first + i) % p->timelines);
    if (!p->plain && count && s->kind != HOST && chance(p, 150)) draw_signal_again(p, s);
}

/* From here on others can wait for it. */
static void make_signals_known(program *p, const step *s)
{
    int i;
    for (i = 0; i < s->signals; i++) {
        line *l = &p->line[s->signal[i].timeline];
        l->signaller = s->index;
        l->last = s->signal[i].value;
    }
}

/* Where buffers may overlap, a wait must be at the head of one, or on the host, or no work may follow it. */
static int draw_head(program *p, const step *s)
{
    if (is_of_metal4(s)) return -1;
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

/* The first command buffer that may signal this: with what has to come before it at its head, or before its own. */
static int first_place(const step *s, const pending_signal *made)
{
    const pending_signal *other;
    int i, at = 0;
    for (i = 0; i < s->edges; i++) {
        const edge *e = &s->edge[i];
        if ((e->timeline == made->timeline || e->step == made->previous) && e->head > at) at = e->head;
    }
    for (other = s->signal; other != made; other++)
        if (other->timeline == made->timeline && other->at > at) at = other->at;
    return at;
}

/* All at the end, or in whatever command buffers. */
static void draw_places(program *p, step *s)
{
    bool inside = s->buffers && !is_of_metal4(s) && (s->kind == COMMIT || s->flags & SIGNALS_INSIDE);
    bool spread = !p->plain && s->buffers && !is_of_metal4(s) && s->kind == SUBMIT && chance(p, 500);
    int last = inside ? s->buffers - 1 : s->buffers, i, k;
    for (i = 0; i < s->signals; i++) {
        pending_signal *made = &s->signal[i];
        int first = spread ? first_place(s, made) : last;
        made->at = first + (spread ? number(p, last - first + 1) : 0);
        made->ended = s->before | (uint64_t)1 << s->index;
        if (made->at >= s->buffers - 1) continue;
        made->ended = 0; /* a step that waits for it goes on when that command buffer has ended */
        for (k = 0; k < s->edges; k++)
            if (s->edge[k].head <= made->at) made->ended |= ended_by(p, &s->edge[k]);
    }
    s->backwards = spread && chance(p, 300);
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
    s->place = s->make_at = -1;
    s->kind = chance(p, 170) ? HOST : chance(p, 170) ? COMMIT : SUBMIT;
    s->queue = number(p, p->queues);
    s->fails = s->line = -1;
    s->buffers = s->kind == HOST ? 0 : s->kind == COMMIT ? 1 : number(p, STEP_BUFFERS + 1);
    if (is_of_metal4(s)) s->buffers = 1 + number(p, STEP_BUFFERS);
    if (s->kind == SUBMIT) draw_flags(p, s);
    if (is_of_metal4(s) && s->kind == COMMIT) waits = 0;
    while (index && waits-- > 0) /* mostly for one of the last six */
        wait_for_step(p, s, chance(p, 300) ? number(p, index) : index - 1 - number(p, index < 6 ? index : 6));
    draw_signals(p, s);
    make_signals_known(p, s);
    draw_heads(p, s);
    draw_places(p, s);
    if (s->buffers && chance(p, p->fail_per_mille + (is_sticky(s) ? 150 : 0))) s->fails = number(p, s->buffers);
    if (s->fails >= 0 && is_of_metal4(s)) s->fails = 0; /* they are one run, which has the first one's name */
    s->code = codes[number(p, 5)];
    s->late_waits = chance(p, 100) && !is_of_metal4(s);
}

/* Have all lower values of the timeline been submitted? What is not pending may be passed over. */
static bool is_next(const program *p, const bool *placed, const step *s, const pending_signal *made)
{
    int i, k;
    for (i = 0; i < s->index; i++)
        for (k = 0; k < p->step[i].signals && !placed[i]; k++) {
            const pending_signal *other = &p->step[i].signal[k];
            if (other->timeline == made->timeline && other->value <= made->before) return false;
        }
    return true;
}

/* Has everything been submitted whose ticket the step needs, whose signal has to be pending, and what its queue has to
   get first? */
static bool may_come(const program *p, const bool *placed, const step *s)
{
    int i;
    if (s->kind == HOST || placed[s->index]) return false;
    for (i = 0; i < s->edges; i++)
        if (s->edge[i].timeline < 0 && !placed[s->edge[i].step]) return false;
    for (i = 0; i < s->signals; i++)
        if (s->signal[i].free && !is_next(p, placed, s, &s->signal[i])) return false;
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
        p->step[i].place = p->step[i].make_at = p->ordered;
        p->order[p->ordered++] = i;
    }
}

/* Some get their command buffers, with all that is encoded into them, as soon as the tickets are there for that, or a
   while later; and some of these come to nothing. */
static void draw_makes(program *p)
{
    int i, k;
    for (i = 0; i < p->steps && !p->plain; i++) {
        step *s = &p->step[i];
        int first = 0;
        if (s->buffers == 0 || !chance(p, 200)) continue;
        for (k = 0; k < s->edges; k++)
            if (s->edge[k].timeline < 0 && p->step[s->edge[k].step].place >= first)
                first = p->step[s->edge[k].step].place + 1;
        s->make_at = first + number(p, s->place - first + 1);
        s->dropped = chance(p, 100) && s->make_at < s->place;
    }
}

static bool is_about(const program *p, const mishap *m, const step *s)
{
    bool timeline = m->kind == END_TIMELINE;
    int i;
    if (!timeline && s->queue == m->which) return true;
    for (i = 0; i < s->edges; i++)
        if (timeline ? s->edge[i].timeline == m->which
                     : s->edge[i].timeline < 0 && p->step[s->edge[i].step].queue == m->which)
            return true;
    for (i = 0; timeline && i < s->signals; i++)
        if (s->signal[i].timeline == m->which) return true;
    return false;
}

/* Behind the last step that names it, or just before the last that was made ahead: so that there is something to lose.
   Or anywhere in the second half. */
static int draw_mishap_place(program *p, const mishap *m)
{
    uint64_t how = below(p, 4);
    int i, last = -1;
    for (i = 0; i < p->ordered && how < 3; i++) {
        const step *s = &p->step[p->order[i]];
        if (is_about(p, m, s) && (how < 2 || s->make_at < i)) last = i;
    }
    if (last >= 0) return how < 2 ? last + 1 : last;
    return p->ordered / 2 + number(p, p->ordered - p->ordered / 2 + 1);
}

/* The timeline of a wait at the head of its command buffers that no work is to signal when it is submitted, or of a
   signal in those that are dropped; -1: it has none. */
static int loose_timeline(const program *p, const step *s)
{
    int k;
    for (k = 0; k < s->edges; k++) {
        const edge *e = &s->edge[k];
        const step *other = &p->step[e->step];
        if (e->timeline >= 0 && e->head >= 0 && (other->kind == HOST || other->make_at > s->place)) return e->timeline;
    }
    for (k = 0; k < s->signals && s->dropped; k++)
        if (s->signal[k].at < s->buffers) return s->signal[k].timeline;
    return -1;
}

/* A timeline goes just before the turn of a step whose command buffers are made. */
static bool aim_at_made(program *p, mishap *m)
{
    int first = number(p, p->steps), i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[(first + i) % p->steps];
        if (s->make_at == s->place || loose_timeline(p, s) < 0) continue;
        m->which = loose_timeline(p, s);
        m->place = s->place;
        return true;
    }
    return false;
}

static void draw_mishap(program *p, mishap *m)
{
    m->kind = (mishap_kind)number(p, 4);
    if (m->kind == END_TIMELINE && chance(p, 300) && aim_at_made(p, m)) return;
    m->which = number(p, m->kind == END_TIMELINE ? p->timelines : p->queues);
    m->place = draw_mishap_place(p, m);
}

/* Where a timeline goes, no command buffer that is made ahead signals it without a wait for the value before: it would reach
   values that are left out. */
static void make_in_time(program *p, const mishap *m)
{
    int i, k;
    for (i = 0; i < p->steps; i++) {
        step *s = &p->step[i];
        for (k = 0; k < s->signals; k++)
            if (s->signal[k].free && s->signal[k].timeline == m->which) s->make_at = s->place;
    }
}

static void draw_mishaps(program *p)
{
    int i;
    if (p->plain || chance(p, 400)) return;
    p->mishaps = 1 + number(p, MISHAPS);
    for (i = 0; i < p->mishaps; i++) {
        draw_mishap(p, &p->mishap[i]);
        if (p->mishap[i].kind == END_TIMELINE) make_in_time(p, &p->mishap[i]);
    }
}

/* One before the step at this place. NULL: there are too many. */
static mishap *add_mishap(program *p, mishap_kind what, int which, int place)
{
    mishap *m = &p->mishap[p->mishaps];
    if (p->mishaps == MOST_MISHAPS) return NULL;
    p->mishaps++;
    memset(m, 0, sizeof *m);
    m->kind = what;
    m->which = which;
    m->place = place;
    return m;
}

/* Mostly behind a step that fails, and when that has ended; or anywhere. */
static void draw_clear(program *p, int queue)
{
    int first = number(p, p->steps), place = number(p, p->ordered + 1), i;
    mishap *m;
    for (i = 0; i < p->steps && !chance(p, 100); i++) {
        const step *s = &p->step[(first + i) % p->steps];
        if (s->kind == HOST || s->queue != queue || s->fails < 0) continue;
        place = s->place + 1 + number(p, 3);
        break;
    }
    m = add_mishap(p, CLEAR, queue, place < p->ordered ? place : p->ordered);
    if (m && chance(p, 700)) m->patience = below(p, 2 * PATIENCE / 10000);
}

static void draw_clears(program *p)
{
    int queue, left;
    for (queue = 0; queue < p->queues && !p->plain; queue++)
        for (left = p->sticky[queue] ? number(p, 5) : 0; left > 0; left--) draw_clear(p, queue);
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

/* Without a source, from the seed. sticky: with a source, failures stick on some queues, too. */
static void draw_program(program *p, uint64_t seed, uint64_t (*source)(void), bool sticky)
{
    static const unsigned rates[] = {0, 30, 30, 200};
    int i;
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->source = source;
    p->plain = source != NULL; /* the programs that a corpus was made for stay what they are */
    p->random = seed * 0x9E3779B97F4A7C15u + 1;
    for (i = 0; i < 8 && !source; i++) (void)draw(p);
    p->queues = 1 + number(p, QUEUES);
    p->timelines = 1 + number(p, TIMELINES);
    p->steps = 2 + number(p, STEPS - 1);
    p->overlap = chance(p, 300);
    p->fail_per_mille = rates[number(p, 4)];
    for (i = 0; i < p->queues && !p->plain; i++) p->metal4[i] = chance(p, 400);
    for (i = 0; i < p->queues && (sticky || !p->plain); i++) p->sticky[i] = chance(p, p->plain ? 700 : 300);
    for (i = 0; i < p->timelines; i++) {
        p->line[i].initial = p->line[i].last = chance(p, 500) ? 0 : below(p, 1000);
        p->line[i].signaller = -1;
        p->line[i].loose = !p->plain && !p->overlap && chance(p, 400);
    }
    for (i = 0; i < p->steps; i++) draw_step(p, i);
    draw_lines(p);
    draw_order(p);
    draw_makes(p);
    draw_mishaps(p);
    draw_clears(p);
    /* work that waits for a timeline that fails is let go at once, and reads what is being written */
    for (i = 0; i < p->steps && THREAD_SANITIZER; i++)
        p->mute = p->mute || p->mishaps || p->step[i].dropped || p->step[i].fails >= 0;
}

/* -- what may go while others use it ------------------------------------------------------------------- */

/* Before a call with it. False: it is gone. */
static bool begin_use(program *p, int caller, const void *object, const bool *gone)
{
    PUT(&p->used[caller], object);
    if (!GET(gone)) return true;
    PUT(&p->used[caller], NULL);
    return false;
}

static bool begin_timeline(program *p, int caller, int timeline)
{
    return begin_use(p, caller, p->line[timeline].timeline, &p->line[timeline].gone);
}

static void end_use(program *p, int caller)
{
    PUT(&p->used[caller], NULL);
}

/* No caller begins a call with it from here on. A caller in one gets through, or sleeps until destroy wakes it. */
static void take_away(program *p, const void *object, bool *gone)
{
    PUT(gone, true);
    while (GET(&p->used[BY_CALLBACK]) == object) sched_yield();
    while (GET(&p->used[BY_HOST]) == object && sleepers_of(p->r.device) == 0) sched_yield();
}

static bool is_gone(const program *p, const edge *e)
{
    return e->timeline >= 0 ? GET(&p->line[e->timeline].gone) : GET(&p->queue_gone[p->step[e->step].queue]);
}

/* Would the next call with the step name something that is gone? What has been encoded is not named again. */
static bool names_gone(const step *s)
{
    const program *p = s->program;
    int i;
    if (GET(&p->queue_gone[s->queue])) return true;
    for (i = 0; i < s->edges; i++)
        if (is_gone(p, &s->edge[i]) && !(s->is_made && s->edge[i].head >= 0)) return true;
    for (i = 0; i < s->signals; i++)
        if (GET(&p->line[s->signal[i].timeline].gone) && !(s->is_made && s->signal[i].at < s->buffers)) return true;
    return false;
}

/* -- running it --------------------------------------------------------------------------------------- */

/* The step that has left a byte when the wait is over, and where: the step that was waited for or, where that writes
   nothing, what it waited for itself. */
static const step *witness(const program *p, const edge *e, size_t *at)
{
    const step *s = &p->step[e->step];
    for (; s->kind != HOST && s->buffers == 0; s = &p->step[e->step]) {
        if (s->edges == 0) return NULL;
        e = &s->edge[0];
    }
    *at = STAMP;
    if (s->kind != HOST && e->timeline >= 0) {
        const pending_signal *made = pending_of(s, e->timeline, e->value);
        if (made->at < s->buffers) *at = (size_t)(MARKS + made->at);
    }
    return s;
}

/* The signal that stands for the step in the timeline's cell. */
static bool is_first_of_its_timeline(const step *s, const pending_signal *made)
{
    const pending_signal *other = s->signal;
    while (other->timeline != made->timeline) other++;
    return other == made;
}

/* For each timeline that the step signals in this command buffer, it writes to the timeline's cell. */
static void encode_cells(const step *s, int k, void *blit)
{
    program *p = s->program;
    int i;
    for (i = 0; i < s->signals && !p->mute; i++) {
        const pending_signal *made = &s->signal[i];
        void *cell = p->line[made->timeline].cell;
        if (k != (made->at < s->buffers ? made->at : s->buffers - 1) || !is_first_of_its_timeline(s, made)) continue;
        if (p->line[made->timeline].loose) continue; /* its steps may come at the same time */
        metal_copy(blit, cell, 0, s->memory, (size_t)(CELLS + made->timeline), 1);
        metal_fill(blit, cell, 0, 1, stamp_of(s));
    }
}

static void encode(step *s, int k, void *buffer)
{
    program *p = s->program;
    void *blit = encoder_of(buffer);
    size_t at;
    int i;
    if (k == 0 && s->line >= 0 && !p->mute) metal_copy(blit, p->step[s->line].memory, STAMP, s->memory, LINE, 1);
    if (k > 0) metal_copy(blit, s->memory, (size_t)(MARKS + k - 1), s->memory, (size_t)(LINKS + k), 1);
    for (i = 0; i < s->edges && !p->mute; i++) {
        const step *from = witness(p, &s->edge[i], &at);
        if (from && (s->edge[i].head < 0 ? 0 : s->edge[i].head) == k)
            metal_copy(blit, from->memory, at, s->memory, (size_t)(SEEN + i), 1);
    }
    metal_fill(blit, s->memory, (size_t)(MARKS + k), 1, stamp_of(s));
    encode_cells(s, k, blit);
    if (k == s->buffers - 1) metal_fill(blit, s->memory, STAMP, 1, stamp_of(s));
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

static bool is_stuck_and_cleared(const step *s, gpusync_result result);

/* ERROR_EXECUTION: a failure sticks. */
static gpusync_result new_buffer(const step *s, const gpusync_command_buffer_desc *desc, void **buffer)
{
    gpusync_result result;
    do result = either_buffer(s->program->queue[s->queue], desc, buffer);
    while (goes_again(s->program, result) || is_stuck_and_cleared(s, result));
    expect(s->program, result == GPUSYNC_OK || (result == GPUSYNC_ERROR_EXECUTION && is_sticky(s) && !is_of_metal4(s)),
           "step %d gets no command buffer: %d", s->index, result);
    return result;
}

/* The waits that are to be at the head of a buffer, k-th of the step. */
static gpusync_result encode_waits(const step *s, int k, void *buffer)
{
    gpusync_point points[EDGES];
    size_t i, count = points_of(s, k, points);
    gpusync_result result = GPUSYNC_OK;
    for (i = 0; i < count && result == GPUSYNC_OK; i++) {
        do result = gpusync_encode_wait(s->program->queue[s->queue], buffer, points[i]);
        while (goes_again(s->program, result));
    }
    return result;
}

static gpusync_result make_buffer(step *s, int k)
{
    gpusync_result result;
    gpusync_command_buffer_desc desc;
    char text[32];
    void *buffer;
    memset(&desc, 0, sizeof desc);
    snprintf(text, sizeof text, "buffer %d of step %d", k, s->index);
    desc.label = text;
    result = new_buffer(s, &desc, &buffer);
    if (result != GPUSYNC_OK) return result;
    s->made[k] = buffer;
    result = encode_waits(s, k, buffer);
    expect(s->program, result == GPUSYNC_OK, "step %d: %d", s->index, result);
    encode(s, k, buffer);
    snprintf(text, sizeof text, "step %d failed", s->index);
    if (s->fails == k) softmetal_fail(buffer, NULL, s->code, text);
    if (s->program->keeps) s->kept[k] = metal_retain(buffer);
    return GPUSYNC_OK;
}

/* What it signals must be known by now, one way or the other. */
static void on_complete(void *user, gpusync_result result, const gpusync_error *error)
{
    step *s = (step *)user;
    program *p = s->program;
    int i;
    __atomic_fetch_add(&s->calls, 1, __ATOMIC_SEQ_CST);
    s->told = result;
    if (error) s->told_error = *error;
    if (!error != !result) s->seen_in_callback = GPUSYNC_ERROR_INVALID_ARGUMENT;
    for (i = 0; i < s->signals; i++) {
        const line *l = &p->line[s->signal[i].timeline];
        gpusync_result seen;
        if (!begin_timeline(p, BY_CALLBACK, s->signal[i].timeline)) continue;
        seen = gpusync_timeline_wait(l->timeline, s->signal[i].value, p->patience, NULL);
        end_use(p, BY_CALLBACK);
        if (seen == GPUSYNC_OK && result) s->seen_in_callback = GPUSYNC_NOT_READY;
        if (seen == GPUSYNC_ERROR_WOULD_DEADLOCK && l->loose) continue; /* a lower value is pending */
        if (seen > 0 || seen == GPUSYNC_ERROR_WOULD_DEADLOCK) s->seen_in_callback = seen;
    }
    PUT(&s->over, 1);
}

static void on_last_value(void *user, gpusync_result result, const gpusync_error *error)
{
    line *l = (line *)user;
    l->told = !error != !result ? GPUSYNC_ERROR_INVALID_ARGUMENT : result;
    __atomic_fetch_add(&l->calls, 1, __ATOMIC_SEQ_CST);
}

static bool has_callback(const step *s)
{
    return s->state == ISSUED && (s->kind == SUBMIT || !s->program->plain);
}

static void fail_signals(step *s)
{
    program *p = s->program;
    int i, caller = s->kind == HOST ? BY_HOST : CALLERS;
    for (i = 0; i < s->signals; i++) {
        const line *l = &p->line[s->signal[i].timeline];
        if (caller == BY_HOST ? !begin_timeline(p, caller, s->signal[i].timeline) : GET(&l->gone)) continue;
        (void)gpusync_timeline_fail(l->timeline, &s->error);
        if (caller == BY_HOST) end_use(p, caller);
    }
}

/* The submission was not taken, or a ticket that it needs does not exist: steps that rely on it have to be told. */
static void refuse(step *s, const gpusync_error *error)
{
    int k;
    s->error = *error;
    s->result = error->result;
    for (k = 0; k < s->buffers && s->made[k] && !GET(&s->program->queue_gone[s->queue]); k++)
        assert_ok(either_discard(s->program->queue[s->queue], s->made[k]));
    fail_signals(s);
    s->when = ++s->program->events;
    PUT(&s->state, REFUSED);
}

/* It names what is gone, or was dropped. */
static gpusync_error leave_out(step *s)
{
    gpusync_error error;
    memset(&error, 0, sizeof error);
    error.result = GPUSYNC_ERROR_DESTROYED;
    error.failure = GPUSYNC_FAILURE_OTHER;
    snprintf(error.message, sizeof error.message, "step %d is left out", s->index);
    snprintf(error.label, sizeof error.label, "step %d", s->index);
    snprintf(error.queue_label, sizeof error.queue_label, "queue %d", s->queue);
    s->left = true;
    return error;
}

/* Its command buffers went with the queue: what they were to signal has failed. */
static void check_given_up(step *s)
{
    program *p = s->program;
    int i;
    for (i = 0; i < s->signals; i++) {
        const pending_signal *made = &s->signal[i];
        if (made->at == s->buffers) continue;
        s->given_up = true;
        if (GET(&p->line[made->timeline].gone)) continue;
        expect(p, gpusync_timeline_wait(p->line[made->timeline].timeline, made->value, 0, NULL) < 0,
               "step %d was given up, and timeline %d has not failed", s->index, made->timeline);
    }
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

/* How a step that was issued has ended by now, and why. NOT_READY: it has not. */
static gpusync_result end_of_step(const program *p, const step *s, gpusync_error *error)
{
    gpusync_wait_options options;
    gpusync_result result = gpusync_poll(p->queue[s->queue], s->ticket);
    memset(&options, 0, sizeof options);
    memset(error, 0, sizeof *error);
    options.error = error;
    if (result == GPUSYNC_NOT_READY) return result;
    return gpusync_wait_ex(p->queue[s->queue], s->ticket, 0, &options);
}

static bool same(const gpusync_error *a, const gpusync_error *b);

/* Set of the steps of the queue that have failed by now. */
static uint64_t failed_steps(const program *p, int queue)
{
    uint64_t set = 0;
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        if (s->kind == HOST || s->state != ISSUED || s->queue != queue) continue;
        set |= (uint64_t)(gpusync_poll(p->queue[queue], s->ticket) < GPUSYNC_OK) << i;
    }
    return set;
}

/* ... of those whose tickets have not ended. */
static uint64_t open_steps(const program *p, int queue)
{
    uint64_t set = 0;
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        if (s->kind == HOST || s->state != ISSUED || s->queue != queue) continue;
        set |= (uint64_t)(gpusync_poll(p->queue[queue], s->ticket) == GPUSYNC_NOT_READY) << i;
    }
    return set;
}

/* ... of those with a command buffer that has not come to this status. Below COMPLETED: whoever ends the ticket has not
   begun to. */
static uint64_t steps_below(const program *p, int queue, unsigned long status)
{
    uint64_t set = 0;
    int i, k;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        if (s->kind == HOST || s->state != ISSUED || s->queue != queue) continue;
        for (k = 0; k < (is_of_metal4(s) ? 1 : s->buffers); k++) /* there they are one run, of the first */
            if (s->kept[k] && status_of(s->kept[k]) < status) set |= (uint64_t)1 << i;
    }
    return set;
}

/* A clear of the queue of `one`, after that was submitted and before this event. */
static bool clears(const mishap *m, const step *one, unsigned before)
{
    return m->kind == CLEAR && m->done && m->which == one->queue && m->look.when > one->when && m->look.when < before;
}

/* Does the failure of `one`, if it is one that sticks, do so at this event? What fails after a clear that covers it never
   does. MAYBE: it failed while the clear went on. */
static verdict sticks(const program *p, const step *one, unsigned when)
{
    verdict v = BADLY;
    int i;
    for (i = 0; i < p->mishaps; i++) {
        const mishap *m = &p->mishap[i];
        if (!clears(m, one, when)) continue;
        if ((m->look.failed | m->open) >> one->index & 1) return WELL;
        v = MAYBE;
    }
    return v;
}

/* Does one stick that was found by now, so that the queue refuses the step? *error: of the lowest ticket. */
static verdict sticks_before(const program *p, const step *s, gpusync_error *error)
{
    verdict most = WELL;
    int i;
    for (i = 0; i < p->ordered && is_sticky(s); i++) {
        const step *one = &p->step[p->order[i]];
        gpusync_error of_one;
        verdict v;
        if (one->queue != s->queue || one->state != ISSUED) continue;
        if (end_of_step(p, one, &of_one) != GPUSYNC_ERROR_EXECUTION) continue;
        v = sticks(p, one, UINT_MAX);
        if (v <= most) continue;
        most = v;
        *error = of_one;
    }
    return most;
}

/* by_queue: a call refused the step that does so where a failure sticks. */
static void explain_refusal(step *s, gpusync_result result, bool by_queue)
{
    program *p = s->program;
    gpusync_wait_options options;
    gpusync_error error, stuck;
    verdict v = by_queue && result == GPUSYNC_ERROR_EXECUTION ? sticks_before(p, s, &stuck) : WELL;
    int i;
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    options.error = &error;
    for (i = 0; i < s->signals && v != BADLY; i++) {
        const line *l = &p->line[s->signal[i].timeline];
        if (GET(&l->gone) || gpusync_timeline_wait(l->timeline, s->signal[i].value, 0, &options) != result) continue;
        refuse(s, &error);
        return;
    }
    if (v != WELL) {
        refuse(s, &stuck);
        return;
    }
    wrong(p, __LINE__, "a reason", "step %d is refused with %d (%s)", s->index, result, gpusync_result_string(result));
}

static gpusync_point signal_of(const program *p, const pending_signal *made)
{
    return gpusync_at_value(p->line[made->timeline].timeline, made->value);
}

/* The signals that are in its command buffers. */
static gpusync_result encode_signals(const step *s)
{
    const program *p = s->program;
    gpusync_result result = GPUSYNC_OK;
    int n, i;
    for (n = 0; n < s->buffers; n++) {
        int k = s->backwards ? s->buffers - 1 - n : n;
        for (i = 0; i < s->signals && result == GPUSYNC_OK; i++) {
            if (s->signal[i].at != k) continue;
            do result = gpusync_encode_signal(p->queue[s->queue], s->made[k], signal_of(p, &s->signal[i]));
            while (goes_again(p, result));
        }
    }
    return result;
}

static gpusync_result commit(const step *s, gpusync_ticket *ticket)
{
    gpusync_queue *q = s->program->queue[s->queue];
    gpusync_result result;
    int k;
    for (k = 0; k < s->buffers && is_of_metal4(s); k++) end_recording(s->made[k]);
    do result = is_of_metal4(s) ? gpusync_commit4(q, s->made, (size_t)s->buffers, ticket)
                                : gpusync_commit(q, s->made[0], ticket);
    while (goes_again(s->program, result));
    return result;
}

static gpusync_result submit_all(step *s, gpusync_ticket *ticket)
{
    program *p = s->program;
    gpusync_submission submission;
    gpusync_point waits[EDGES], signals[VALUES];
    gpusync_result result;
    char label[32];
    int i;
    snprintf(label, sizeof label, "step %d", s->index);
    memset(&submission, 0, sizeof submission);
    submission.waits = waits;
    submission.wait_count = points_of(s, -1, waits);
    submission.command_buffers = s->made;
    submission.command_buffer_count = (size_t)s->buffers;
    submission.signals = signals;
    for (i = 0; i < s->signals; i++)
        if (s->signal[i].at == s->buffers) signals[submission.signal_count++] = signal_of(p, &s->signal[i]);
    submission.on_complete = on_complete;
    submission.user = s;
    submission.label = label;
    submission.flags = s->flags & ~SIGNALS_INSIDE;
    do result = either_submit(p->queue[s->queue], &submission, ticket);
    while (goes_again(p, result));
    return result;
}

/* Its command buffers, with all that is encoded into them: as soon as that can be. */
static void make(step *s)
{
    program *p = s->program;
    gpusync_result result = GPUSYNC_OK;
    gpusync_error error;
    bool stuck;
    int k;
    if (s->is_made || refused_before(s) || names_gone(s)) return;
    stuck = s->buffers && !is_of_metal4(s) && sticks_before(p, s, &error) == BADLY;
    for (k = 0; k < s->buffers && result == GPUSYNC_OK; k++) result = make_buffer(s, k);
    expect(p, !stuck || result == GPUSYNC_ERROR_EXECUTION || sticks_before(p, s, &error) != BADLY,
           "step %d gets command buffers while a failure sticks", s->index);
    s->is_made = true;
    if (result != GPUSYNC_OK) {
        explain_refusal(s, result, true);
        return;
    }
    result = encode_signals(s);
    if (result != GPUSYNC_OK) explain_refusal(s, result, false);
}

static void look_at(const program *p, int queue, look *l, unsigned when)
{
    l->when = when;
    l->failed = failed_steps(p, queue);
    l->unended = steps_below(p, queue, COMPLETED);
    l->uncommitted = steps_below(p, queue, COMMITTED);
}

static void submit(step *s)
{
    program *p = s->program;
    const step *missing = refused_before(s);
    gpusync_ticket ticket = 0;
    gpusync_result result;
    gpusync_error error;
    verdict v;
    int k;
    p->now = s->place;
    make(s);
    if (s->state == REFUSED) return;
    if (missing || s->dropped || names_gone(s)) {
        error = missing ? missing->error : leave_out(s);
        if (s->is_made && GET(&p->queue_gone[s->queue])) check_given_up(s);
        refuse(s, &error);
        return;
    }
    do {
        v = sticks_before(p, s, &error);
        if (is_sticky(s)) look_at(p, s->queue, &s->look, ++p->events);
        result = s->kind == COMMIT ? commit(s, &ticket) : submit_all(s, &ticket);
        expect(p, v != BADLY || result == GPUSYNC_ERROR_EXECUTION, "step %d comes behind a failure that sticks: %d",
               s->index, result);
        for (k = 0; k < s->buffers && result != GPUSYNC_OK; k++)
            expect(p, ticket == 0 && status_of(s->made[k]) == 0, "step %d was refused, ticket %llu, buffer %d committed",
                   s->index, (unsigned long long)ticket, k);
    } while (is_stuck_and_cleared(s, result));
    if (result != GPUSYNC_OK) {
        explain_refusal(s, result, true);
        return;
    }
    expect(p, ticket != 0, "step %d", s->index);
    if (s->kind == COMMIT && !p->plain)
        assert_ok(gpusync_on_done(gpusync_at_ticket(p->queue[s->queue], ticket), on_complete, s));
    s->when = ++p->events;
    PUT(&s->ticket, ticket);
    PUT(&s->state, ISSUED);
}

/* A command buffer that is not used after all takes nothing with it. */
static void make_and_discard(step *s)
{
    gpusync_result result;
    void *buffer;
    if (s->is_made || refused_before(s) || names_gone(s)) return;
    if (new_buffer(s, NULL, &buffer) != GPUSYNC_OK) return; /* the step will be refused, too */
    result = encode_waits(s, s->edges ? s->edge[0].head : -1, buffer);
    expect(s->program, result == GPUSYNC_OK, "step %d: %d", s->index, result);
    assert_ok(gpusync_command_buffer_discard(s->program->queue[s->queue], buffer));
}

/* On the thread of the host's steps. */
static gpusync_result wait_on_host(step *s, const edge *e)
{
    program *p = s->program;
    step *other = &p->step[e->step];
    gpusync_wait_options options;
    gpusync_result result = GPUSYNC_ERROR_DESTROYED;
    memset(&options, 0, sizeof options);
    options.error = &s->error;
    if (e->timeline >= 0) {
        if (begin_timeline(p, BY_HOST, e->timeline))
            result = gpusync_timeline_wait(p->line[e->timeline].timeline, e->value, p->patience, &options);
    } else {
        while (GET(&other->state) == PENDING) sched_yield();
        if (GET(&other->state) == REFUSED) {
            s->error = other->error;
            return other->result;
        }
        if (begin_use(p, BY_HOST, p->queue[other->queue], &p->queue_gone[other->queue]))
            result = gpusync_wait_ex(p->queue[other->queue], GET(&other->ticket), p->patience, &options);
    }
    end_use(p, BY_HOST);
    if (result == GPUSYNC_ERROR_DESTROYED && is_gone(p, e) && s->error.failure != GPUSYNC_FAILURE_CANCELLED)
        s->error = leave_out(s); /* else the work, which was given up, has ended so */
    return result;
}

static void signal_on_host(step *s, int i)
{
    program *p = s->program;
    const pending_signal *made = &s->signal[i];
    line *l = &p->line[made->timeline];
    unsigned char *memory = (unsigned char *)metal_contents(s->memory);
    unsigned char *cell = (unsigned char *)metal_contents(l->cell);
    s->signalled[i] = GPUSYNC_ERROR_DESTROYED;
    if (!begin_timeline(p, BY_HOST, made->timeline)) return;
    if (!p->mute && !l->loose) {
        memory[CELLS + made->timeline] = *cell;
        *cell = stamp_of(s);
    }
    do s->signalled[i] = gpusync_timeline_signal(l->timeline, made->value);
    while (goes_again(p, s->signalled[i]));
    end_use(p, BY_HOST);
}

static void run_on_host(step *s)
{
    program *p = s->program;
    unsigned char *memory = (unsigned char *)metal_contents(s->memory);
    size_t at;
    int i;
    for (i = 0; i < s->edges && s->result == GPUSYNC_OK; i++) {
        const step *from = witness(p, &s->edge[i], &at);
        s->result = wait_on_host(s, &s->edge[i]);
        if (s->result == GPUSYNC_OK && from && !p->mute)
            memory[SEEN + i] = ((const unsigned char *)metal_contents(from->memory))[at];
    }
    if (s->result != GPUSYNC_OK) {
        fail_signals(s);
        return;
    }
    memory[STAMP] = stamp_of(s);
    for (i = 0; i < s->signals; i++) signal_on_host(s, i);
}

/* -- mishaps ------------------------------------------------------------------------------------------- */

/* It waits for work that is not submitted yet, or that is held for certain itself. */
static bool waits_for_held(const program *p, const step *s, const bool *held)
{
    int i;
    for (i = 0; i < s->edges; i++) {
        const step *other = &p->step[s->edge[i].step];
        if (other->kind != HOST && (other->state == PENDING || held[other->index])) return true;
    }
    return false;
}

/* What is held for certain, or was ended while it was, as something has failed. What only the host keeps from going may
   have gone, and what is behind held work on its queue as well, once that was ended. */
static void find_held(const program *p, bool *held)
{
    bool more = true;
    int i;
    while (more) {
        more = false;
        for (i = 0; i < p->steps; i++)
            if (p->step[i].state == ISSUED && !held[i] && waits_for_held(p, &p->step[i], held)) more = held[i] = true;
    }
}

static void lose_held(program *p, int queue)
{
    bool held[STEPS] = {false};
    int i;
    find_held(p, held);
    for (i = 0; i < p->steps; i++) p->step[i].lost = p->step[i].lost || (held[i] && p->step[i].queue == queue);
}

/* Does the device still have one of its command buffers? */
static bool goes_on(const step *s)
{
    int k;
    for (k = 0; k < (is_of_metal4(s) ? 1 : s->buffers); k++) {
        unsigned long status = s->kept[k] ? status_of(s->kept[k]) : COMPLETED;
        if (status >= COMMITTED && status < COMPLETED) return true;
    }
    return false;
}

/* Every step has been called back, and what had ended before has not changed. What goes on had not ended, and a failure
   that it was to have counts no more. */
static void read_ends(program *p, int queue, bool now)
{
    int i;
    for (i = 0; i < p->steps; i++) {
        step *s = &p->step[i];
        if (s->state != ISSUED || s->queue != queue) continue;
        expect(p, GET(&s->over) && GET(&s->calls) == 1, "step %d has been called back %u times", i, GET(&s->calls));
        s->result = s->told;
        if (s->result) s->error = s->told_error;
        expect(p, s->polled == GPUSYNC_NOT_READY || s->polled == s->result,
               "step %d had ended with %d, and now with %d", i, s->polled, s->result);
        expect(p, !now || s->result == GPUSYNC_ERROR_DESTROYED || s->polled == s->result || !goes_on(s),
               "step %d had not ended, and ended with %d", i, s->result);
    }
}

static void end_queue(program *p, int queue, bool now)
{
    gpusync_queue *q = p->queue[queue];
    int i;
    lose_held(p, queue);
    for (i = 0; i < p->steps; i++)
        if (p->step[i].state == ISSUED && p->step[i].queue == queue)
            p->step[i].polled = gpusync_poll(q, p->step[i].ticket);
    take_away(p, q, &p->queue_gone[queue]);
    assert_ok(now ? gpusync_queue_destroy_now(q) : gpusync_queue_destroy(q));
    read_ends(p, queue, now);
}

/* The last step that was issued to the queue, or a few before it. NULL: there is none. */
static const step *last_issued(program *p, int queue)
{
    const step *found = NULL;
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        if (s->kind != HOST && s->queue == queue && s->state == ISSUED && (!found || chance(p, 700))) found = s;
    }
    return found;
}

static void clear(program *p, mishap *m)
{
    const step *s = m->patience ? last_issued(p, m->which) : NULL;
    if (s) (void)!gpusync_wait(p->queue[m->which], s->ticket, m->patience); /* only so that there is something to clear */
    m->look.when = ++p->events;
    m->look.failed = failed_steps(p, m->which);
    assert_result(gpusync_queue_clear_failure(p->queue[m->which]),
                  p->sticky[m->which] ? GPUSYNC_OK : GPUSYNC_ERROR_INVALID_ARGUMENT);
    m->look.unended = steps_below(p, m->which, COMPLETED);
    m->open = open_steps(p, m->which);
}

static void run_mishap(program *p, mishap *m)
{
    line *l = &p->line[m->kind == END_TIMELINE ? m->which : 0];
    m->done = !(m->kind == END_TIMELINE ? l->gone : p->queue_gone[m->which]);
    if (!m->done) return;
    switch (m->kind) {
    case CANCEL:
        lose_held(p, m->which);
        assert_ok(gpusync_cancel_held(p->queue[m->which]));
        break;
    case END_TIMELINE:
        take_away(p, l->timeline, &l->gone);
        assert_ok(gpusync_timeline_destroy(l->timeline));
        expect(p, GET(&l->calls) == 1, "timeline %d was told of %u times", m->which, GET(&l->calls));
        break;
    case CLEAR: clear(p, m); break;
    default: end_queue(p, m->which, m->kind == END_QUEUE_NOW); break;
    }
}

/* The queue has refused the step, perhaps because a failure sticks: is that cleared now, so that the call may succeed? */
static bool is_stuck_and_cleared(const step *s, gpusync_result result)
{
    program *p = s->program;
    mishap *m;
    if (p->plain || result != GPUSYNC_ERROR_EXECUTION || !is_sticky(s) || !chance(p, 300)) return false;
    m = add_mishap(p, CLEAR, s->queue, p->now);
    if (m) run_mishap(p, m);
    return m != NULL;
}

/* What comes before the step at this place of the order is submitted. */
static MAYBE_UNUSED void prepare(program *p, int place)
{
    int i, count = p->mishaps; /* more may come while steps are made */
    p->now = place;
    for (i = 0; i < count; i++)
        if (p->mishap[i].place == place && !p->mishap[i].look.when) run_mishap(p, &p->mishap[i]);
    for (i = 0; i < p->steps; i++)
        if (p->step[i].make_at == place && p->step[i].place > place) make(&p->step[i]);
}

/* -- before and after ---------------------------------------------------------------------------------- */

static void open_program(program *p, softmetal_clock clock)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    char label[32];
    int i;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = 256; /* so that a thread that submits everything never waits for room */
    queue_desc.label = "queue 0";
    queue_desc.sticky_failure = p->sticky[0];
    device_desc.hooks = p->hooks;
    rig_open_on(&p->r, clock, p->metal4[0] ? QUEUE_OF_METAL4 : QUEUE_OF_GPUSYNC, device_desc, queue_desc);
    p->queue[0] = p->r.queue;
    for (i = 1; i < p->queues; i++) {
        snprintf(label, sizeof label, "queue %d", i);
        queue_desc.label = label;
        queue_desc.sticky_failure = p->sticky[i];
        p->queue[i] = queue_of_kind(p->metal4[i] ? QUEUE_OF_METAL4 : QUEUE_OF_GPUSYNC, p->r.device, &queue_desc);
    }
    for (i = 0; i < p->queues; i++)
        p->metal_queue[i] = p->metal4[i] ? metal_retain(gpusync_queue_metal(p->queue[i])) : NULL;
    for (i = 0; i < p->timelines; i++) {
        gpusync_timeline_desc desc;
        memset(&desc, 0, sizeof desc);
        snprintf(label, sizeof label, "timeline %d", i);
        desc.label = label;
        desc.initial_value = p->line[i].initial;
        assert_ok(gpusync_timeline_create(p->r.device, &desc, &p->line[i].timeline));
        p->line[i].event = metal_retain(gpusync_timeline_metal(p->line[i].timeline, NULL));
        p->line[i].cell = metal_buffer_new(p->r.metal_device, 1);
        if (p->plain) continue;
        assert_ok(gpusync_on_done(gpusync_at_value(p->line[i].timeline, p->line[i].last), on_last_value, &p->line[i]));
    }
    for (i = 0; i < p->steps; i++) p->step[i].memory = metal_buffer_new(p->r.metal_device, MEMORY);
}

static gpusync_result ask_step(const program *p, step *s)
{
    gpusync_wait_options options;
    memset(&options, 0, sizeof options);
    options.error = &s->error;
    return gpusync_wait_ex(p->queue[s->queue], s->ticket, p->patience, &options);
}

/* How the steps have ended: they all have, or will within the program's patience. */
static void ask_steps(program *p)
{
    int i;
    for (i = 0; i < p->steps; i++) {
        step *s = &p->step[i];
        if (s->state != ISSUED || p->queue_gone[s->queue]) continue;
        s->result = ask_step(p, s);
        expect(p, s->result <= 0, "step %d has not ended", i);
    }
}

static bool signals(const step *s, int timeline)
{
    int i;
    for (i = 0; i < s->signals; i++)
        if (s->signal[i].timeline == timeline) return true;
    return false;
}

/* What a timeline that is gone would say. */
static gpusync_result result_of_gone(const program *p, int timeline)
{
    int i;
    for (i = 0; i < p->steps; i++)
        if (signals(&p->step[i], timeline) && p->step[i].result) return p->step[i].result;
    return GPUSYNC_OK;
}

/* ... and then the timelines, when the host has done its part. */
static void ask_timelines(program *p)
{
    int i;
    for (i = 0; i < p->timelines; i++) {
        line *l = &p->line[i];
        gpusync_wait_options options;
        gpusync_result result;
        l->result = result_of_gone(p, i);
        if (l->gone) continue;
        memset(&options, 0, sizeof options);
        options.error = &l->error;
        l->result = gpusync_timeline_wait(l->timeline, l->last, p->patience, &options);
        result = gpusync_timeline_query(l->timeline, &l->value);
        expect(p, result == l->result, "timeline %d: the wait said %d, the question %d", i, l->result, result);
    }
}

/* -- the model ---------------------------------------------------------------------------------------- */

static bool has_labels(const gpusync_error *error)
{
    return error->label[0] || error->queue_label[0];
}

/* The same failure, whichever call tells it: all but the ticket. What befell a timeline, or command buffers that were
   not committed, has no labels, and gets those of the first work that fails of it. */
static bool same(const gpusync_error *a, const gpusync_error *b)
{
    bool labels = !has_labels(a) || !has_labels(b) ||
                  (!strcmp(a->label, b->label) && !strcmp(a->queue_label, b->queue_label));
    return a->result == b->result && a->failure == b->failure && a->code == b->code && !strcmp(a->domain, b->domain) &&
           !strcmp(a->message, b->message) && labels;
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

static uint64_t value_before(const step *s, int timeline)
{
    int i = 0;
    while (s->signal[i].timeline != timeline) i++;
    return s->signal[i].before;
}

static const unsigned char *step_bytes(const step *s)
{
    return (const unsigned char *)metal_contents(s->memory);
}

static bool has_run(const step *s)
{
    int k;
    for (k = 0; k < s->buffers; k++)
        if (step_bytes(s)[MARKS + k]) return true;
    return false;
}

/* The destroy of the queue, if there was one. */
static const mishap *end_of_queue(const program *p, int queue)
{
    int i;
    for (i = 0; i < p->mishaps; i++) {
        const mishap *m = &p->mishap[i];
        if (m->done && m->which == queue && (m->kind == END_QUEUE || m->kind == END_QUEUE_NOW)) return m;
    }
    return NULL;
}

/* With what does a queue that goes end what it gives up? */
static gpusync_result end_of_given_up(const mishap *m)
{
    return m && m->kind == END_QUEUE_NOW ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_ERROR_CANCELLED;
}

/* May the failure of `one` have become that of the step? Of one that would have ended well, if it comes behind; of one that
   was held, wherever it stands; of one that was refused. */
static bool may_take(const program *p, const step *s, const step *one)
{
    bool held = s->state == ISSUED && !has_run(s);
    int i;
    if (one == s || one->kind == HOST || one->queue != s->queue || one->state != ISSUED) return false;
    if (one->result != GPUSYNC_ERROR_EXECUTION || (one->when > s->when && !held)) return false;
    for (i = 0; i < p->mishaps; i++) {
        const mishap *m = &p->mishap[i];
        if (!clears(m, one, UINT_MAX)) continue;
        if (held && m->look.when > s->when && m->open >> one->index & 1) continue; /* it was found, and not on record yet */
        if (m->open >> one->index & 1 || (m->look.failed >> one->index & 1 && m->look.when < s->when)) return false;
    }
    return true;
}

/* Did the step have to take a failure that was known before it ended? The number of the last step whose error that may
   be. */
static unsigned last_to_take(const program *p, const step *s, const look *l)
{
    unsigned last = UINT_MAX;
    int i;
    for (i = 0; i < p->steps && (l->unended & ~l->failed) >> s->index & 1; i++) {
        const step *one = &p->step[i];
        if (!(l->failed >> i & 1) || one->result != GPUSYNC_ERROR_EXECUTION || one->when > s->when) continue;
        if (sticks(p, one, l->when) == BADLY && one->when < last) last = one->when;
    }
    return last;
}

static unsigned has_to_take(const program *p, const step *s)
{
    unsigned last = UINT_MAX, other;
    int i;
    for (i = 0; i < p->steps + p->mishaps && is_sticky(s) && s->state == ISSUED; i++) {
        const look *l = i < p->steps ? &p->step[i].look : &p->mishap[i - p->steps].look;
        bool here = i < p->steps ? is_sticky(&p->step[i]) && p->step[i].queue == s->queue
                                 : p->mishap[i - p->steps].kind == CLEAR && p->mishap[i - p->steps].which == s->queue;
        other = here && l->when ? last_to_take(p, s, l) : UINT_MAX;
        if (other < last) last = other;
    }
    return last;
}

/* Was the step held when a failure was known that stuck for good? */
static bool had_to_be_dropped(const program *p, const step *s)
{
    int i, k;
    for (i = 0; i < p->steps && is_sticky(s) && s->state == ISSUED; i++) {
        const look *l = &p->step[i].look;
        if (!is_sticky(&p->step[i]) || p->step[i].queue != s->queue || !(l->uncommitted >> s->index & 1)) continue;
        for (k = 0; k < p->steps; k++)
            if (l->failed >> k & 1 && p->step[k].result == GPUSYNC_ERROR_EXECUTION &&
                sticks(p, &p->step[k], UINT_MAX) == BADLY)
                return true;
    }
    return false;
}

/* Is this the error of a failure that stuck, and that the step took? */
static bool may_have_taken(const program *p, const step *s, const gpusync_error *error)
{
    unsigned last = has_to_take(p, s);
    int i;
    for (i = 0; i < p->steps && is_sticky(s) && !s->left; i++) {
        const step *one = &p->step[i];
        if (may_take(p, s, one) && one->when <= last && same(&one->error, error)) return true;
    }
    return false;
}

/* Is this what a timeline says that the step has broken? A buffer that is refused and discarded breaks it with the failure
   that sticks then. */
static bool is_told_of(const step *s, const gpusync_error *error)
{
    if (!s->result) return false;
    if (same(&s->error, error)) return true;
    if (s->state == REFUSED && may_have_taken(s->program, s, error)) return true;
    return s->given_up && error->result == end_of_given_up(end_of_queue(s->program, s->queue)) &&
           error->failure == GPUSYNC_FAILURE_CANCELLED;
}

/* Did it end with its queue, which was destroyed at once? */
static bool was_cut_short(const step *s)
{
    const mishap *m = s->state == ISSUED ? end_of_queue(s->program, s->queue) : NULL;
    return m && m->kind == END_QUEUE_NOW && s->result == GPUSYNC_ERROR_DESTROYED;
}

/* Can the timeline have failed before `s` had asked it, through `culprit`? Not through a step that waited for s and
   then failed in its own work. */
static bool may_have_broken(const step *culprit, const line *l, const step *s)
{
    return culprit != s && culprit->result && (l->gone || is_told_of(culprit, &l->error)) &&
           !((culprit->before >> s->index & 1) && is_own(culprit, &culprit->error) && !was_cut_short(culprit));
}

/* A commit that neither waits nor signals; nothing is encoded for a wait that has been reached. */
static bool may_be_plain(const step *s)
{
    return s->kind == COMMIT && s->signals == 0;
}

/* Is other work to signal what the wait is for? The smallest pending signal that is not below it counts: without that no
   larger one is kept. What the host is about to signal is not pending. */
static bool is_to_be_signalled(const program *p, const step *s, const edge *e)
{
    uint64_t least = GPUSYNC_FOREVER;
    int i, k, by = s->index;
    for (i = 0; i < p->steps; i++) {
        const step *one = &p->step[i];
        for (k = 0; k < one->signals && one->state == ISSUED; k++) {
            const pending_signal *made = &one->signal[k];
            if (made->timeline != e->timeline || made->value < e->value || made->value >= least) continue;
            least = made->value;
            by = i;
        }
    }
    return by != s->index;
}

/* Can something that befell its queue have ended the step with this? What is held never runs then; what is in flight goes
   on. */
static bool may_end_with(const step *s, gpusync_result result)
{
    const program *p = s->program;
    int i;
    for (i = 0; i < p->mishaps && s->state == ISSUED; i++) {
        const mishap *m = &p->mishap[i];
        if (!m->done || m->kind == END_TIMELINE || m->which != s->queue || m->place <= s->place) continue;
        if (result == end_of_given_up(m) && (m->kind == END_QUEUE_NOW || !has_run(s))) return true;
    }
    return false;
}

static bool was_ended(const step *s) { return may_end_with(s, s->result); }

/* Could the wait itself end with ERROR_DESTROYED? For a value that no other work is to signal; for a ticket that was
   asked for when its queue was gone, or for a plain commit that this left in flight. */
static bool may_be_destroyed(const program *p, const step *s, const edge *e)
{
    const step *other = &p->step[e->step];
    const mishap *m;
    if (e->timeline >= 0) return p->line[e->timeline].gone && !is_to_be_signalled(p, s, e);
    m = end_of_queue(p, other->queue);
    return m && (s->place >= m->place || (m->kind == END_QUEUE_NOW && may_be_plain(other)));
}

/* Has the host not signalled the value, as the timeline was gone? */
static bool is_left_out(const program *p, const edge *e)
{
    const step *other = &p->step[e->step];
    return other->kind == HOST && p->line[e->timeline].gone &&
           other->signalled[pending_of(other, e->timeline, e->value) - other->signal] != GPUSYNC_OK;
}

/* What the wait must have said. A timeline fails as a whole: values that were reached before can be asked for too
   late, then MAYBE. */
static verdict judge(const program *p, const step *s, const edge *e)
{
    const step *other = &p->step[e->step];
    verdict v = WELL;
    int i;
    if (e->timeline < 0) return other->result ? BADLY : may_be_destroyed(p, s, e) ? MAYBE : WELL;
    if (is_left_out(p, e)) return BADLY;
    for (i = 0; i < p->steps; i++) {
        const step *one = &p->step[i];
        if (!signals(one, e->timeline) || !one->result) continue;
        if (e->value > value_before(one, e->timeline)) return BADLY;
        if (may_have_broken(one, &p->line[e->timeline], s)) v = MAYBE;
    }
    return v;
}

/* Of a timeline that is gone it is not known which step broke it first: may it have been one with this step's error? */
static bool is_broken_by_others(const program *p, const step *s, int timeline)
{
    int i;
    for (i = 0; i < p->steps; i++)
        if (i != s->index && signals(&p->step[i], timeline) && is_told_of(&p->step[i], &s->error)) return true;
    return false;
}

/* What the wait has said: is that the step's error? */
static bool is_from(const program *p, const step *s, const edge *e)
{
    if (s->error.result == GPUSYNC_ERROR_DESTROYED && may_be_destroyed(p, s, e)) return true;
    if (e->timeline < 0) return same(&s->error, &p->step[e->step].error);
    if (!p->line[e->timeline].gone) return same(&s->error, &p->line[e->timeline].error);
    return is_broken_by_others(p, s, e->timeline);
}

/* Every failure begins with work that failed by itself, and that the step depends on or shares a timeline with; or with
   a step that a mishap has touched. */
static bool is_origin(const program *p, const step *s, const gpusync_error *error)
{
    int i;
    if (s->given_up && is_told_of(s, error)) return true;
    if (!s->result || !same(&s->error, error)) return false;
    if (s->left || was_ended(s) || (is_own(s, error) && s->state == ISSUED)) return true;
    for (i = 0; i < s->edges; i++)
        if (error->result == GPUSYNC_ERROR_DESTROYED && may_be_destroyed(p, s, &s->edge[i]) &&
            judge(p, s, &s->edge[i]) != WELL)
            return true;
    return false;
}

static void check_origin(program *p, const gpusync_error *error, int by)
{
    int i;
    for (i = 0; i < p->steps; i++)
        if (is_origin(p, &p->step[i], error)) return;
    wrong(p, __LINE__, "the failure of a step", "%d has %d \"%s\" of \"%s\" on \"%s\"", by, error->result, error->message,
          error->label, error->queue_label);
}

static void count_failed(const program *p, const step *s, bool ended)
{
    int i;
    coverage.failed++;
    coverage.inherited += !is_own(s, &s->error) && !ended && !s->left;
    coverage.refused += s->state == REFUSED;
    coverage.ended += ended;
    coverage.flying += ended && has_run(s);
    coverage.left += s->left;
    coverage.given_up += s->given_up;
    for (i = 0; i < s->edges && !ended; i++)
        if (s->edge[i].timeline >= 0 && s->error.result == GPUSYNC_ERROR_DESTROYED &&
            may_be_destroyed(p, s, &s->edge[i])) {
            coverage.unsignalled++;
            break;
        }
}

static void check_failed(program *p, const step *s)
{
    bool took = may_have_taken(p, s, &s->error), ended = was_ended(s), found = ended || s->left || took;
    int i;
    coverage.stuck += took;
    coverage.turned_away += took && s->state == REFUSED;
    coverage.taken += has_to_take(p, s) != UINT_MAX;
    coverage.dropped += had_to_be_dropped(p, s);
    expect(p, !had_to_be_dropped(p, s) || !has_run(s), "step %d was held, and ran behind a failure that stuck", s->index);
    for (i = 0; i < s->edges; i++) {
        verdict v = judge(p, s, &s->edge[i]);
        found = found || (v != WELL && is_from(p, s, &s->edge[i]));
        expect(p, v != BADLY || found || s->kind != HOST, "step %d does not tell what its wait %d said", s->index, i);
        if (v != BADLY || s->edge[i].timeline >= 0 || s->state != ISSUED) continue;
        expect(p, !has_run(s), "step %d ran, and the ticket of its wait %d had failed", s->index, i);
        coverage.awaited++;
    }
    for (i = 0; i < s->signals && s->state == REFUSED; i++) {
        const line *l = &p->line[s->signal[i].timeline];
        found = found || (l->gone ? is_broken_by_others(p, s, s->signal[i].timeline)
                                  : l->result && same(&s->error, &l->error));
    }
    expect(p, found || is_own(s, &s->error), "step %d failed with \"%s\"", s->index, s->error.message);
    expect(p, s->state != REFUSED || !has_run(s), "step %d ran", s->index);
    expect(p, !s->lost || !has_run(s), "step %d was held, and given up, and ran", s->index);
    check_origin(p, &s->error, s->index);
    count_failed(p, s, ended);
}

static void check_bytes(program *p, const step *s)
{
    const unsigned char *bytes = step_bytes(s);
    int i, k;
    if (s->kind != HOST && s->buffers == 0) return;
    expect(p, bytes[STAMP] == stamp_of(s), "step %d did not write its stamp", s->index);
    for (k = 1; k < s->buffers; k++)
        expect(p, bytes[LINKS + k] == stamp_of(s), "step %d: buffer %d ran before the one in front", s->index, k);
    if (p->mute) return;
    for (i = 0; i < s->edges; i++) {
        size_t at;
        const step *from = witness(p, &s->edge[i], &at);
        expect(p, !from || bytes[SEEN + i] == stamp_of(from), "step %d: wait %d saw %u", s->index, i, bytes[SEEN + i]);
    }
    if (s->line >= 0 && p->step[s->line].result == GPUSYNC_OK)
        expect(p, bytes[LINE] == stamp_of(&p->step[s->line]), "step %d ran before step %d", s->index, s->line);
}

/* The step that signalled a timeline before has written there, and no other step since: unless the timeline failed,
   which lets all go. */
static void check_cells(program *p, const step *s)
{
    int i;
    if (p->mute || (s->kind != HOST && s->buffers == 0)) return;
    for (i = 0; i < s->signals; i++) {
        int timeline = s->signal[i].timeline, previous = s->signal[i].previous;
        if (p->line[timeline].loose || p->line[timeline].result || s->signalled[i]) continue;
        while (previous >= 0 && p->step[previous].kind != HOST && p->step[previous].buffers == 0) {
            const step *other = &p->step[previous];
            int k = 0;
            while (other->signal[k].timeline != timeline) k++;
            previous = other->signal[k].previous;
        }
        expect(p, step_bytes(s)[CELLS + timeline] == (previous < 0 ? 0 : stamp_of(&p->step[previous])),
               "step %d saw %u in the cell of timeline %d", s->index, step_bytes(s)[CELLS + timeline], timeline);
    }
}

static void check_well(program *p, const step *s)
{
    int i;
    expect(p, s->fails < 0, "step %d had work that failed", s->index);
    expect(p, !s->lost, "step %d was held, and given up, and went well", s->index);
    expect(p, !had_to_be_dropped(p, s), "step %d was held, and went well behind a failure that stuck", s->index);
    expect(p, has_to_take(p, s) == UINT_MAX, "step %d went well behind a failure that stuck", s->index);
    for (i = 0; i < s->edges; i++)
        expect(p, judge(p, s, &s->edge[i]) != BADLY, "step %d went well, its wait %d had failed", s->index, i);
    for (i = 0; i < s->signals; i++) {
        const line *l = &p->line[s->signal[i].timeline];
        expect(p, !s->signalled[i] || l->gone || s->signalled[i] == l->result, "step %d signalled and was told %d",
               s->index, s->signalled[i]);
    }
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
        own = own && !l->loose && same(&s->error, &l->error) && (failed || (is_own(s, &s->error) && !was_cut_short(s)));
        failed = true;
        found = found || is_told_of(s, &l->error);
    }
    expect(p, failed == (l->result != GPUSYNC_OK), "timeline %d: %d", timeline, l->result);
    if (!failed) {
        expect(p, l->value == l->last, "timeline %d ends at %llu", timeline, (unsigned long long)l->value);
        return;
    }
    expect(p, found && l->result == l->error.result, "timeline %d failed with \"%s\"", timeline, l->error.message);
    check_origin(p, &l->error, timeline);
    /* one that died of something else, or with its queue, may have ended the timeline before its time */
    expect(p, l->value <= reached && (!own || l->value == reached), "timeline %d had reached %llu, not %llu", timeline,
           (unsigned long long)l->value, (unsigned long long)reached);
}

/* A failure that sticks is told by every wait for everything. */
static void check_everything(program *p, int queue)
{
    verdict most = WELL;
    int i, round;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        verdict v;
        if (!is_sticky(s) || s->queue != queue || s->state != ISSUED || s->result != GPUSYNC_ERROR_EXECUTION) continue;
        v = sticks(p, s, UINT_MAX);
        if (v > most) most = v;
    }
    for (round = 0; round < 3; round++) {
        gpusync_result result = gpusync_queue_wait(p->queue[queue], 0);
        expect(p, most != BADLY || result == GPUSYNC_ERROR_EXECUTION, "queue %d: a failure sticks, and a wait says %d",
               queue, result);
        expect(p, most != WELL || round == 0 || result == GPUSYNC_OK, "queue %d: no failure sticks, and a wait says %d",
               queue, result);
    }
}

/* Each failure is on record once, and the counts add up. What was cancelled is on record, but counts as no failure. */
static void check_queue(program *p, int queue)
{
    gpusync_stats stats = stats_of(p->queue[queue]);
    gpusync_error error;
    uint64_t cursor = 0, made = 0, failed = 0, ended = 0, recorded = 0;
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        if (s->kind == HOST || s->queue != queue || s->state != ISSUED) continue;
        made++;
        failed += s->result != GPUSYNC_OK;
        ended += was_ended(s);
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
    expect(p, stats.failures <= failed && stats.failures + ended >= failed,
           "queue %d: %llu failures of %llu", queue, (unsigned long long)stats.failures, (unsigned long long)failed);
    expect(p, recorded == failed, "queue %d: %llu recorded of %llu", queue, (unsigned long long)recorded,
           (unsigned long long)failed);
    expect(p, gpusync_in_flight(p->queue[queue]) == 0, "queue %d has %llu in flight", queue,
           (unsigned long long)gpusync_in_flight(p->queue[queue]));
    check_everything(p, queue);
}

/* What has gone is counted as well. */
static void check_device(program *p)
{
    gpusync_stats stats;
    uint64_t made = 0;
    int i;
    for (i = 0; i < p->steps; i++) made += p->step[i].state == ISSUED;
    made += p->others;
    assert_ok(gpusync_device_get_stats(p->r.device, &stats));
    expect(p, stats.commits == made, "%llu of %llu", (unsigned long long)stats.commits, (unsigned long long)made);
    coverage.held += stats.held;
}

static bool signals_in_several(const step *s)
{
    int i, first = -1;
    for (i = 0; i < s->signals; i++) {
        int at = s->signal[i].at;
        if (at == s->buffers) continue;
        if (first >= 0 && at != first) return true;
        first = at;
    }
    return false;
}

static void count_step(const program *p, const step *s)
{
    int i;
    coverage.steps4 += is_of_metal4(s);
    coverage.sticky += is_sticky(s);
    for (i = 0; i < p->mishaps && is_sticky(s) && s->state == ISSUED && !s->result; i++) {
        const mishap *m = &p->mishap[i];
        if (m->kind != CLEAR || m->which != s->queue || !m->look.failed || m->look.when > s->when) continue;
        coverage.freed++;
        break;
    }
    for (i = 0; i < s->edges && s->kind != HOST && s->result == GPUSYNC_OK; i++) {
        const step *other = &p->step[s->edge[i].step];
        coverage.across += other->kind != HOST && is_of_metal4(other) != is_of_metal4(s);
    }
    for (i = 0; i < s->signals; i++) coverage.loose += s->signal[i].free && s->state == ISSUED && !s->result;
    for (i = 0; i < p->mishaps && s->state == ISSUED; i++)
        if (p->mishap[i].kind == CLEAR && p->mishap[i].which == s->queue && s->look.when &&
            p->mishap[i].look.when + 1 == s->look.when) {
            coverage.resumed++;
            break;
        }
    coverage.hosts += s->kind == HOST;
    coverage.spread += s->state == ISSUED && signals_in_several(s);
    coverage.lost += s->lost;
    for (i = 0; i < p->mishaps; i++)
        if (s->is_made && s->make_at < p->mishap[i].place && p->mishap[i].place <= s->place) {
            coverage.ahead++;
            break;
        }
}

static void check_program(program *p)
{
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        if (s->state == ISSUED && s->result)
            expect(p, s->error.ticket == s->ticket, "step %d: the error is of ticket %llu", i,
                   (unsigned long long)s->error.ticket);
        if (s->result) check_failed(p, s);
        else check_well(p, s);
        count_step(p, s);
    }
    for (i = 0; i < p->timelines; i++)
        if (!p->line[i].gone) check_timeline(p, i);
    for (i = 0; i < p->queues; i++)
        if (!p->queue_gone[i]) check_queue(p, i);
    check_device(p);
    for (i = 0; i < p->mishaps; i++) {
        const mishap *m = &p->mishap[i];
        coverage.mishaps += m->done && m->kind != CLEAR;
        coverage.cleared += m->done && m->kind == CLEAR && m->look.failed;
    }
}

/* -- the end ------------------------------------------------------------------------------------------ */

static void destroy_queues(program *p)
{
    int i;
    for (i = 0; i < p->queues; i++)
        if (!p->queue_gone[i]) assert_ok(gpusync_queue_destroy(p->queue[i]));
    p->r.queue = NULL;
}

static void forget_buffers(program *p)
{
    int i, k;
    for (i = 0; i < p->steps; i++)
        for (k = 0; k < STEP_BUFFERS; k++) metal_release(p->step[i].kept[k]);
}

static void destroy_timelines(program *p)
{
    int i;
    for (i = 0; i < p->timelines; i++)
        if (!p->line[i].gone) assert_ok(gpusync_timeline_destroy(p->line[i].timeline));
}

/* A timeline that went cannot be asked: but nothing fails after its last value was reached. */
static void check_line_callback(program *p, int timeline)
{
    const line *l = &p->line[timeline];
    expect(p, GET(&l->calls) == 1, "timeline %d was told of %u times", timeline, GET(&l->calls));
    if (l->gone && l->told == GPUSYNC_ERROR_DESTROYED) return;
    if (!l->gone) expect(p, l->told == l->result, "of timeline %d was told %d", timeline, l->told);
    else expect(p, !l->told == !l->result, "of timeline %d was told %d, its steps %d", timeline, l->told, l->result);
}

static void check_callbacks(program *p)
{
    int i;
    for (i = 0; i < p->timelines && !p->plain; i++) check_line_callback(p, i);
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        unsigned calls = has_callback(s);
        expect(p, GET(&s->calls) == calls, "step %d was called back %u times", i, GET(&s->calls));
        if (!calls) continue;
        expect(p, s->told == s->result && (!s->result || same(&s->told_error, &s->error)), "step %d was told %d", i,
               s->told);
        expect(p, s->seen_in_callback == GPUSYNC_OK, "step %d saw %d in its callback", i,
               s->seen_in_callback);
    }
}

/* They use the timelines, and may come a moment later than the end of their tickets. */
static void await_callbacks(program *p)
{
    int i;
    for (i = 0; i < p->steps; i++) {
        const step *s = &p->step[i];
        while (has_callback(s) && !GET(&s->over)) sched_yield();
    }
}

/* Gives back the program's reference, and those that stay for good. How many these were. */
static long let_go_of(void *object)
{
    long owners = (long)softmetal_retain_count(object), left;
    for (left = owners; left > 0; left--) metal_release(object);
    return owners - 1;
}

/* A queue of Metal 4 stays for good if a signal of its steps does not come within 100 ms of its destruction, and with
   it the event by which gpusync asks for that, which it has signalled last. Everything else goes. */
static bool let_go_of_queues(program *p)
{
    bool any = false;
    int i, k;
    drop_recordings(); /* they have the queue, too */
    for (i = 0; i < p->queues; i++) {
        bool may_stay = false;
        void *asked = p->metal4[i] ? softmetal_last_signalled(p->metal_queue[i]) : NULL;
        long stays = p->metal4[i] ? let_go_of(p->metal_queue[i]) : 0;
        for (k = 0; k < p->steps; k++) {
            const step *s = &p->step[k];
            may_stay = may_stay || (is_of_metal4(s) && s->queue == i && s->kind == SUBMIT && s->edges + s->signals > 0);
        }
        expect(p, stays == 0 || (stays == 1 && may_stay), "queue %d has %ld owners", i, stays);
        if (stays) metal_release(asked);
        any = any || stays;
    }
    return any;
}

/* Everything is given back: the events to the pool, all else to where it came from. */
static void close_program(program *p)
{
    bool queues_first = p->seed % 2, stays;
    long live;
    int i;
    if (queues_first) destroy_queues(p);
    else await_callbacks(p);
    destroy_timelines(p);
    forget_buffers(p);
    if (!queues_first) destroy_queues(p);
    check_callbacks(p);
    expect(p, softmetal_settle(PATIENCE), "the handlers have not run");
    stays = let_go_of_queues(p);
    for (i = 0; i < p->timelines && !stays; i++) metal_release(p->line[i].event);
    live = softmetal_live("shared_event");
    /* one may be the device's, for itself */
    expect(p, stays || (live >= events_kept(p->r.device) && live <= events_kept(p->r.device) + 1), "%ld events", live);
    for (i = 0; i < p->steps; i++) {
        assert_int_equal(softmetal_retain_count(p->step[i].memory), 1);
        metal_release(p->step[i].memory);
    }
    for (i = 0; i < p->timelines; i++) metal_release(p->line[i].cell);
    rig_close(&p->r);
    for (i = 0; i < p->timelines && stays; i++) (void)let_go_of(p->line[i].event);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("buffer"), 0);
    assert_int_equal(softmetal_live("device"), 0);
}

#endif
