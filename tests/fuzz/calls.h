/* calls.h - inputs that are calls as they come, with valid and invalid arguments, judged by what holds of all of them

   Two devices at most, with a few queues, timelines, command buffers and a warm-up. They come and go. Buffers fail,
   Metal answers nil, memory runs out, devices are lost. The judges: which results a call may have, given what was done
   to it; the status of the command buffers of whatever is said to have ended; that nothing is taken back; that every
   callback comes once; that all has ended when the GPU is through and what is held was given up.

   In inputs whose first byte says so (world.newer) failures stick on some queues, objects are destroyed later as well,
   also by their own callbacks, waits come when the device is lost, timers fire, callbacks run on a dispatch queue of the
   program's, spins are set, the log function asks for a report, and command buffers have descriptors. Other inputs stay
   what they are. The
   records of a queue where failures stick say what each of its tickets must tell, and which commits it must refuse.

   Left out: lost handlers, objects put around command buffers and listeners that hear nothing, which threads.c has; and
   command buffers with unretained references where work outlives its queue: what such work uses is the program's. */
#ifndef FUZZ_CALLS_OF_ALL_KINDS_H
#define FUZZ_CALLS_OF_ALL_KINDS_H

#include "fuzz.h"

#define DEVICES 2
#define OPENS 8
#define WORKS 48
#define EVENTS 8
#define FOURS 6       /* command buffers of Metal 4 */
#define PARTS4 3      /* ... that are committed together, at most */
#define ALLOCATORS 256
#define MADE_BY_METAL 80 /* command buffers, in a queue of ours; gpusync is told less */
#define STUCK 8          /* failures that stuck, of a queue */
#define GOERS 48         /* objects that go later */
#define LAST_WORKS 4     /* ... of whose work the command buffers are kept */

typedef struct machine {
    gpusync_device *device;
    memory_log memory;
    gpusync_allocator allocator;
    void *metal; /* +1, or NULL: the system's own, which is not lost */
    bool losable, manual, removed; /* removed: though perhaps no work has told of it */
    bool lost, given_up; /* as far as it has been told; given_up: some work was, so all that had not ended was */
    uint64_t since;      /* losable: the loss is not older */
    bool left_by4; /* a queue of Metal 4 has gone, or goes later: its last signal may still come */
    bool own_queue; /* callbacks run on a dispatch queue of the program's */
    bool goes;     /* later: no call takes it any more, but the dispatch by hand */
    unsigned gone; /* so often it was told */
    bool logs, asks; /* asks: its log function, for a report */
    unsigned timeouts; /* that the log was told of */
} machine;

/* The error of a failure that stuck. */
typedef struct stuck {
    gpusync_error error;
} stuck;

typedef struct lane {
    gpusync_queue *queue;
    void *metal; /* borrowed: gpu has it */
    int device, warming;
    bool given;   /* the Metal queue is ours */
    bool metal4;
    unsigned room; /* command buffers that it allows */
    bool forgets; /* failures push each other out */
    uint64_t cursor;
    late_reader late;
    bool sticky, blind; /* failures stick; blind: a record was lost, so that nothing is known of them */
    bool sticks;
    gpusync_ticket cleared; /* the failures of tickets up to this one stick no more */
    stuck stuck[STUCK];     /* the n-th at n % STUCK */
    unsigned stuck_count;
    uint64_t stuck_cursor;
} lane;

typedef struct tide {
    gpusync_timeline *timeline;
    void *event; /* of an imported one, borrowed from world.events */
    int device;
    uint64_t value, query;
    bool others; /* signal it, too */
} tide;

enum { MOST_PENDING = 6 }; /* of a submission; of each of its two buffers two */

typedef struct opened {
    void *buffer; /* +1 */
    int lane;
    bool made; /* by gpusync */
    bool tracked, headed, waits; /* headed: it waits, or signals; waits: gpusync_encode_wait took it */
    bool refused;         /* as a failure sticks, which was not cleared since */
    gpusync_point signals[2];
    gpusync_ticket ticket;
} opened;

typedef struct four {
    void *buffer;         /* +1; NULL: there is none */
    void *run;            /* +1: of its last commit; NULL: it was not committed since it began */
    int device, lane;     /* lane: of that commit, or -1 */
    gpusync_ticket ticket;
    bool ended;           /* recorded, and not committed */
    int recording;        /* into this allocator */
} four;

typedef struct work {
    gpusync_ticket ticket;
    int lane;
    void *buffers[2]; /* +1, or NULL; with Metal 4 the run */
    bool unseen;      /* it has a command buffer that is not there, perhaps one of gpusync's own */
    void *foreign;    /* +1, or NULL: other code committed it, and the work stands behind it */
    int recordings[PARTS4]; /* of Metal 4: 1 + allocator; 0: none */
    bool waits;       /* for something that may fail */
    bool inherits;    /* ... and takes the failure over, with its result */
    bool tracked;     /* committed by its owner, perhaps never */
    bool done, over, judged;
    bool given_up;    /* by a lost device: for good */
    bool behind;      /* it had not ended when a failure that sticks, of a lower ticket, was on record */
    gpusync_result told;
    gpusync_point pending[MOST_PENDING]; /* what it signals, while the timeline lives */
} work;

/* An object that goes later: it exists until it was told, once. */
typedef struct goer {
    bool taken, begun;
    bool silent; /* nothing is told of it */
    unsigned told;
    int device;
    uint64_t where;              /* its callbacks have that */
    gpusync_queue *queue;        /* a callback destroys it; or */
    gpusync_timeline *timeline;
    void *buffers[LAST_WORKS];   /* +1, or NULL */
} goer;

typedef enum way { WAITING, AT_ONCE, LATER } way;

static struct {
    machine machines[DEVICES];
    lane lanes[QUEUES];
    tide tides[TIMELINES];
    opened opens[OPENS];
    work works[WORKS];
    four fours[FOURS];
    goer goers[GOERS];
    void *allocators[ALLOCATORS]; /* +1: Metal keeps none of them */
    int allocator_count;
    void *events[EVENTS]; /* +1: others may signal them */
    int event_count, work_count, running;
    gpusync_warmup *warmup;
    int warmup_device;
    bool mixed;                /* some queues are of Metal 4 */
    bool newer;                /* what came with 0.3 is called, too */
    bool gentle;               /* nothing outlives its queue, no device is lost */
    bool short_of_memory, nil; /* in this call */
    bool was_short;            /* in a call before: a log of failures that was to be made then has one place */
    bool warmed_short;         /* the warm-up began with too little memory: its waits tell that */
    bool destroying;
    int leaving; /* the lane that is destroyed */
} world;

/* -- faults ------------------------------------------------------------------------------------------- */

static void may_be_lost(machine *m)
{
    if (!m->losable) m->since = clock_now;
    m->losable = gpu.sweeps = gpu.loses = true;
}

/* Perhaps its work was given up. */
static bool had_a_second(const machine *m) { return m->losable && clock_now >= m->since + SECONDS(1); }

static bool is_on_gpu(void *buffer) { return buffer && metal_status(buffer) >= 2 && metal_status(buffer) <= 3; }

static void no_faults(void)
{
    int i;
    for (i = 0; i < DEVICES; i++) PUT(&world.machines[i].memory.fail_at, 0);
    PUT(&probe_memory.fail_at, 0);
    softmetal_fail_creation(0, false);
    world.was_short = world.was_short || world.short_of_memory;
    world.short_of_memory = world.nil = false;
}

/* For the next call: the n-th allocation fails, or the n-th object that Metal should make is nil; or all from then on. */
static void some_fault(void)
{
    unsigned how = byte(), n = 1 + (how >> 3) % 8, i;
    bool after = how & 4;
    switch (how & 3) {
    case 0:
        softmetal_fail_creation(n, after);
        world.nil = true;
        break;
    case 1:
        probe_memory.fail_at = (long)n;
        probe_memory.fail_after = after;
        world.short_of_memory = true;
        break;
    default:
        for (i = 0; i < DEVICES; i++) {
            world.machines[i].memory.fail_after = after;
            world.machines[i].memory.fail_at = (long)n;
        }
        world.short_of_memory = true;
        break;
    }
}

/* It makes command buffers of its own: none of them comes, or one of two. */
static void some_fault_of_submit(void)
{
    unsigned how = byte();
    if (how & 1) {
        some_fault();
        return;
    }
    softmetal_fail_creation(1 + (how >> 2) % 3, how & 2);
    world.nil = true;
}

/* The results that a call may have, besides those that any fault allows. */
#define may(device, got, ...) may_at((device), (got), (const int[]){__VA_ARGS__, END}, #got, __FILE_NAME__, __LINE__)
static gpusync_result may_at(int device, gpusync_result got, const int *allowed, const char *call, const char *file,
                             int line)
{
    bool excused = (got == GPUSYNC_ERROR_OUT_OF_MEMORY && world.short_of_memory) ||
                   (got == GPUSYNC_ERROR_METAL_NIL && world.nil) || (got == GPUSYNC_ERROR_NO_DEVICE && world.nil) ||
                   (got == GPUSYNC_ERROR_UNSUPPORTED && world.nil) || /* no listener */
                   (got == GPUSYNC_ERROR_DEVICE_LOST && device >= 0 && world.machines[device].losable);
    no_faults();
    if (!excused) (void)answer_at(got, allowed, call, file, line);
    return got;
}

/* -- finding things ----------------------------------------------------------------------------------- */

static lane *some_lane(void)
{
    unsigned n = byte(), i;
    for (i = 0; i < QUEUES; i++)
        if (world.lanes[(n + i) % QUEUES].queue) return &world.lanes[(n + i) % QUEUES];
    return NULL;
}

static int index_of(const lane *l)
{
    return (int)(l - world.lanes);
}

static tide *some_tide(int device)
{
    unsigned n = byte(), i;
    for (i = 0; i < TIMELINES; i++) {
        tide *t = &world.tides[(n + i) % TIMELINES];
        if (t->timeline && (device < 0 || t->device == device)) return t;
    }
    return NULL;
}

static bool is_metal4_buffer(void *buffer) { return answers(buffer, "endCommandBuffer"); }

static opened *some_open(int of_lane)
{
    unsigned n = byte(), i;
    for (i = 0; i < OPENS; i++) {
        opened *o = &world.opens[(n + i) % OPENS];
        if (o->buffer && (of_lane < 0 || o->lane == of_lane)) return o;
    }
    return NULL;
}

static opened *free_open(void)
{
    int i;
    for (i = 0; i < OPENS; i++)
        if (!world.opens[i].buffer) return &world.opens[i];
    return NULL;
}

static work *some_work(int of_lane)
{
    int i, n = (int)byte();
    for (i = 0; i < world.work_count; i++) {
        work *w = &world.works[(n + i) % world.work_count];
        if (w->lane >= 0 && (of_lane < 0 || w->lane == of_lane)) return w;
    }
    return NULL;
}

/* A ticket, mostly a good one. */
static gpusync_ticket some_ticket(const lane *l)
{
    const work *w = some_work(one_in(24) ? -1 : index_of(l));
    if (one_in(32)) return byte();
    return w ? w->ticket : GPUSYNC_NO_TICKET;
}

static uint64_t some_value(const tide *t)
{
    unsigned n = byte();
    if (n == 255) return GPUSYNC_MAX_VALUE + 1;
    if (n == 254) return GPUSYNC_MAX_VALUE;
    return (t->value > 4 ? t->value - 4 : 0) + n % 12;
}

static size_t some_points(int device, gpusync_point *points, size_t most)
{
    size_t count = below_of((unsigned)most + 1), i;
    memset(points, 0, most * sizeof *points);
    for (i = 0; i < count; i++) {
        int where = one_in(32) ? -1 : device;
        tide *t = one_in(2) ? NULL : some_tide(where);
        lane *l = some_lane();
        if (t) {
            points[i].timeline = t->timeline;
            points[i].value = some_value(t);
        } else if (l && (l->device == device || where < 0)) {
            points[i].queue = l->queue;
            points[i].ticket = some_ticket(l);
        } else {
            return i;
        }
    }
    return count;
}

static uint64_t some_time(void)
{
    static const uint64_t times[] = {0, 0, 1000, MS(1), MS(60), SECONDS(2)};
    return times[below_of(6)];
}

static bool any_in_flight(void)
{
    int i;
    for (i = 0; i < gpu.count; i++)
        if (softmetal_outstanding(gpu.queues[i]) > 0) return true;
    return false;
}

/* -- what holds at any time --------------------------------------------------------------------------- */

/* Ended, by its ticket, and not given up: its allocators may be reset. */
static bool has_run4(const work *w, gpusync_result result)
{
    return metal_status(w->buffers[0]) >= 4 && (result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION);
}

/* What was registered with the ticket is told of the loss. What it was to release stays until the queue goes. */
static void check_tallies_given_up(const lane *l, const work *w)
{
    int i;
    for (i = 0; i < tally_count && i < TALLIES; i++) {
        tally *t = &tallies[i];
        if (t->where != (uint64_t)(uintptr_t)l->queue || t->ticket != w->ticket || !t->expected) continue;
        must(!t->releases || t->calls == 0, "the object of ticket %llu, which was given up, is released",
             (unsigned long long)w->ticket);
        if (t->releases) continue;
        t->exact = true;
        t->must_be = GPUSYNC_ERROR_DEVICE_LOST;
        must(t->calls == 0 || t->result == t->must_be, "a callback of ticket %llu, which was given up, was told %d",
             (unsigned long long)w->ticket, t->result);
    }
}

/* It will never end, whatever Metal says later. Not before a second has passed. */
static void check_work_given_up(const lane *l, work *w)
{
    machine *m = &world.machines[l->device];
    gpusync_stats stats;
    must(had_a_second(m), "ticket %llu was given up %llu ns after the loss", (unsigned long long)w->ticket,
         (unsigned long long)(clock_now - m->since));
    must(!gpusync_is_done(l->queue, w->ticket) && !gpusync_is_done(l->queue, GPUSYNC_EVERYTHING) &&
             !gpusync_is_idle(l->queue) && gpusync_in_flight(l->queue) > 0,
         "ticket %llu was given up, and is done", (unsigned long long)w->ticket);
    answer(gpusync_poll(l->queue, GPUSYNC_EVERYTHING), GPUSYNC_ERROR_DEVICE_LOST);
    answer(gpusync_get_stats(l->queue, &stats), GPUSYNC_OK);
    must(stats.completions < stats.commits, "ticket %llu was given up, and counts as an end",
         (unsigned long long)w->ticket);
    check_tallies_given_up(l, w);
    w->given_up = m->given_up = true;
    meet(work_given_up);
}

static void check_work(work *w)
{
    const lane *l = &world.lanes[w->lane];
    bool lost = world.machines[l->device].losable, done = gpusync_is_done(l->queue, w->ticket), failed = false,
         ran = true;
    gpusync_result now = gpusync_poll(l->queue, w->ticket);
    gpusync_ticket_info info;
    int i;
    must(now != GPUSYNC_NOT_READY || !done, "ticket %llu is done and not ready", (unsigned long long)w->ticket);
    must(done || !w->done, "ticket %llu was done", (unsigned long long)w->ticket);
    must(!w->given_up || now == GPUSYNC_ERROR_DEVICE_LOST, "ticket %llu was given up, and now says %d",
         (unsigned long long)w->ticket, now);
    must(!w->over || now == w->told || now == GPUSYNC_ERROR_RESULT_UNKNOWN,
         "ticket %llu ended with %d, and now with %d", (unsigned long long)w->ticket, w->told, now);
    w->done = done;
    if (now == GPUSYNC_NOT_READY) {
        must(!w->over, "ticket %llu has ended and is not ready", (unsigned long long)w->ticket);
        must(!world.machines[l->device].given_up, "ticket %llu was not given up with the others",
             (unsigned long long)w->ticket);
        return;
    }
    if (now == GPUSYNC_ERROR_DEVICE_LOST) must(lost, "the device is not lost");
    if (now == GPUSYNC_ERROR_DEVICE_LOST &&
        gpusync_get_info(l->queue, w->ticket, &info) == GPUSYNC_ERROR_DEVICE_LOST) {
        must(!w->over, "ticket %llu has ended, and was given up", (unsigned long long)w->ticket);
        check_work_given_up(l, w);
        return;
    }
    must(!w->given_up, "ticket %llu was given up, and has ended", (unsigned long long)w->ticket);
    for (i = 0; i < PARTS4 && !w->over; i++)
        if (w->recordings[i] && has_run4(w, now)) metal4_allocator_reset(world.allocators[w->recordings[i] - 1]);
    w->over = true;
    w->told = now;
    for (i = 0; i < 2; i++) {
        unsigned long status = w->buffers[i] ? metal_status(w->buffers[i]) : 4;
        must(status != 2 && status != 3, "ticket %llu ended with %d, a buffer has status %lu",
             (unsigned long long)w->ticket, now, status);
        failed = failed || status == 5;
        ran = ran && status == 4;
    }
    must(now != GPUSYNC_OK || !w->foreign || metal_status(w->foreign) >= 4,
         "ticket %llu is well, and what was committed before it is not over", (unsigned long long)w->ticket);
    switch ((int)now) {
    case GPUSYNC_OK: must(ran, "ticket %llu is well, its work is not", (unsigned long long)w->ticket); break;
    case GPUSYNC_ERROR_EXECUTION:
        must(failed || w->waits || l->sticky || !w->buffers[0], "ticket %llu has failed, its work has not",
             (unsigned long long)w->ticket);
        break;
    case GPUSYNC_ERROR_CANCELLED:
    case GPUSYNC_ERROR_DESTROYED:
    case GPUSYNC_ERROR_DEVICE_LOST: /* it was held; or what it waited for was, or was given up */
        must(!w->buffers[0] || w->waits || l->sticky || !ran, "ticket %llu was given up, its work has run",
             (unsigned long long)w->ticket);
        break;
    case GPUSYNC_ERROR_RESULT_UNKNOWN:
        must(l->forgets || world.was_short || w->told == now, "ticket %llu is forgotten", (unsigned long long)w->ticket);
        break;
    default: must(false, "ticket %llu ended with %d", (unsigned long long)w->ticket, now);
    }
}

static stuck *last_stuck(lane *l) { return &l->stuck[(l->stuck_count - 1) % STUCK]; }

/* The records of a queue where failures stick. Of those that stick at once the lowest ticket counts. Whatever is above it
   and has not ended by now takes the error, unless it fails by itself. */
static void read_stuck(lane *l)
{
    gpusync_error error;
    int i;
    while (l->sticky && gpusync_next_error(l->queue, &l->stuck_cursor, &error) == GPUSYNC_OK) {
        bool sticks = error.result == GPUSYNC_ERROR_EXECUTION || error.result == GPUSYNC_ERROR_RESULT_UNKNOWN;
        l->blind = l->blind || error.dropped;
        if (l->blind || !sticks || error.ticket <= l->cleared) continue;
        if (l->sticks && error.ticket > last_stuck(l)->error.ticket) continue;
        l->stuck_count++;
        last_stuck(l)->error = error;
        l->sticks = true;
    }
    if (!l->sticks || l->blind) return;
    for (i = 0; i < world.work_count; i++) {
        work *w = &world.works[i];
        if (w->lane == index_of(l) && !w->over && w->ticket > last_stuck(l)->error.ticket &&
            gpusync_poll(l->queue, w->ticket) == GPUSYNC_NOT_READY)
            w->behind = true;
    }
}

/* A commit or submission has told. signals: its timelines may have failed. */
static void check_admission(lane *l, gpusync_result result, bool signals)
{
    must(!world.machines[l->device].lost || result != GPUSYNC_OK, "a lost device takes work");
    if (!l->sticky || l->blind) return;
    must(!l->sticks || result != GPUSYNC_OK, "a failure sticks, and work is taken");
    meet_if(l->sticks && result == GPUSYNC_ERROR_EXECUTION, refused_as_a_failure_sticks);
    read_stuck(l); /* it may have waited for room */
    if (result != GPUSYNC_ERROR_EXECUTION || signals || l->blind) return;
    must(l->sticks, "no failure sticks, and work is refused");
}

static bool is_same_failure(const gpusync_error *a, const gpusync_error *b)
{
    return a->result == b->result && a->failure == b->failure && a->code == b->code && !strcmp(a->domain, b->domain) &&
           !strcmp(a->message, b->message) && !strcmp(a->label, b->label) && !strcmp(a->queue_label, b->queue_label);
}

/* It has ended behind a failure that stuck: with that error, or one of its own. */
static void judge_stuck(lane *l, work *w)
{
    gpusync_wait_options options;
    gpusync_error error;
    bool own = w->inherits || w->unseen, same = false;
    unsigned n;
    int i;
    if (w->judged || !w->over || l->blind) return;
    w->judged = true;
    if (!w->behind) return;
    must(w->told != GPUSYNC_OK, "ticket %llu ended well behind a failure that stuck", (unsigned long long)w->ticket);
    for (i = 0; i < 2; i++) own = own || (w->buffers[i] && metal_status(w->buffers[i]) == 5);
    if (own || l->forgets || world.was_short || l->stuck_count > STUCK || w->told == GPUSYNC_ERROR_CANCELLED ||
        w->told == GPUSYNC_ERROR_DESTROYED || w->told == GPUSYNC_ERROR_DEVICE_LOST)
        return;
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    options.error = &error;
    answer(gpusync_wait_ex(l->queue, w->ticket, 0, &options), w->told);
    for (n = 0; n < l->stuck_count; n++)
        same = same || (l->stuck[n].error.ticket < w->ticket && is_same_failure(&error, &l->stuck[n].error));
    must(error.ticket == w->ticket && same, "ticket %llu failed of \"%s\", which did not stick", (unsigned long long)w->ticket,
         error.message);
}

static void check_sticky(lane *l)
{
    int i;
    for (i = 0; i < world.work_count; i++)
        if (world.works[i].lane == index_of(l) && world.works[i].over) judge_stuck(l, &world.works[i]);
    read_stuck(l);
}

static void check_lane(lane *l)
{
    uint64_t count = gpusync_in_flight(l->queue), least = 0;
    gpusync_stats stats;
    int i;
    for (i = 0; i < world.work_count; i++) /* what was found by other polls since has ended, too */
        least += world.works[i].lane == index_of(l) && !world.works[i].over &&
                 gpusync_poll(l->queue, world.works[i].ticket) == GPUSYNC_NOT_READY;
    answer(gpusync_get_stats(l->queue, &stats), GPUSYNC_OK);
    must(count >= stats.commits - stats.completions, "%llu in flight, %llu have not ended", (unsigned long long)count,
         (unsigned long long)(stats.commits - stats.completions));
    must(count >= least, "%llu in flight, and %llu have not ended", (unsigned long long)count,
         (unsigned long long)least);
    count = gpusync_in_flight(l->queue);
    must((count == 0) == gpusync_is_idle(l->queue), "%llu in flight, and the queue is %sidle", (unsigned long long)count,
         count ? "" : "not ");
    if (l->sticky) check_sticky(l);
}

/* A value is known when every signal up to it was kept: by work that has ended well. */
static void check_signals(const tide *t, uint64_t value)
{
    int i, k;
    for (i = 0; i < OPENS; i++)
        for (k = 0; k < 2; k++)
            must(!world.opens[i].buffer || world.opens[i].signals[k].timeline != t->timeline ||
                     world.opens[i].signals[k].value > value,
                 "a timeline is at %llu, and what is to signal less is not committed", (unsigned long long)value);
    for (i = 0; i < world.work_count; i++)
        for (k = 0; k < MOST_PENDING; k++) {
            const work *w = &world.works[i];
            gpusync_result kept;
            if (w->lane < 0 || w->pending[k].timeline != t->timeline || w->pending[k].value > value) continue;
            kept = gpusync_poll(world.lanes[w->lane].queue, w->ticket);
            must(kept == GPUSYNC_OK || kept == GPUSYNC_ERROR_RESULT_UNKNOWN,
                 "a timeline is at %llu, and what is to signal %llu says %d", (unsigned long long)value,
                 (unsigned long long)w->pending[k].value, kept);
        }
}

static void check_world(void)
{
    int i;
    for (i = 0; i < world.work_count; i++)
        if (world.works[i].lane >= 0) check_work(&world.works[i]);
    for (i = 0; i < QUEUES; i++)
        if (world.lanes[i].queue) check_lane(&world.lanes[i]);
    for (i = 0; i < TIMELINES; i++) {
        tide *t = &world.tides[i];
        uint64_t value = 0;
        if (!t->timeline) continue;
        if (gpusync_timeline_query(t->timeline, &value) == GPUSYNC_OK) {
            check_signals(t, value);
            must(!world.machines[t->device].given_up, "work was given up, and timeline %d has not failed", i);
        }
        must(value >= t->query, "a timeline fell to %llu", (unsigned long long)value);
        t->query = value;
        if (value > t->value && value < GPUSYNC_MAX_VALUE - 1000) t->value = value;
    }
    for (i = 0; i < DEVICES; i++) {
        machine *m = &world.machines[i];
        bool lost = m->device && !m->goes && gpusync_device_is_lost(m->device);
        must(!lost || m->losable, "device %d is lost", i);
        m->lost = m->lost || lost;
    }
}

static void forget_signals(const gpusync_timeline *timeline)
{
    int i, k;
    for (i = 0; i < world.work_count; i++)
        for (k = 0; k < MOST_PENDING; k++)
            if (world.works[i].pending[k].timeline == timeline) world.works[i].pending[k].timeline = NULL;
    for (i = 0; i < OPENS; i++)
        for (k = 0; k < 2; k++)
            if (world.opens[i].signals[k].timeline == timeline) world.opens[i].signals[k].timeline = NULL;
}

static void forget_work(work *w)
{
    int i;
    for (i = 0; i < 2; i++) metal_release(w->buffers[i]);
    metal_release(w->foreign);
    memset(w, 0, sizeof *w);
    w->lane = -1;
}

static work *remember_work(const lane *l, gpusync_ticket ticket, void *first, void *second, bool waits, bool tracked)
{
    work *w = &world.works[world.work_count < WORKS ? world.work_count++ : (int)below_of(WORKS)];
    if (w->lane >= 0) forget_work(w);
    w->lane = index_of(l);
    w->ticket = ticket;
    w->buffers[0] = one_in(3) ? NULL : metal_retain(first);
    w->unseen = first && !w->buffers[0];
    w->buffers[1] = metal_retain(second);
    w->waits = waits;
    w->tracked = tracked;
    return w;
}

/* -- making and destroying ---------------------------------------------------------------------------- */

static void must_be_there(const machine *m) { must(GET(&m->gone) == 0, "a function of a device that is gone is called"); }

/* With a report, while its device is the program's. */
static void on_log(void *user, gpusync_log_level level, const char *text)
{
    machine *m = (machine *)user;
    char report[2048];
    must_be_there(m);
    must(level >= GPUSYNC_LOG_WARNING && level <= GPUSYNC_LOG_ERROR && text && !strchr(text, '\n'),
         "a bad line in the log");
    if (strstr(text, " timed out")) COUNT(&m->timeouts);
    if (!m->asks || m->goes) return;
    must(gpusync_report(m->device, report, sizeof report) > 0, "a report without a line");
    meet(log_asks_for_report);
}

static void on_notify(void *user) { must_be_there((const machine *)user); }

static void on_trace(void *user, const gpusync_trace_event *event)
{
    must_be_there((const machine *)user);
    must(event->kind <= GPUSYNC_TRACE_CALLBACK && event->time_ns <= clock_now, "a bad event");
}

static void make_device(void)
{
    int i = (int)below_of(DEVICES);
    machine *m = &world.machines[i];
    gpusync_device_desc desc;
    unsigned how = byte();
    if (m->device) return;
    memset(m, 0, sizeof *m);
    memset(&desc, 0, sizeof desc);
    m->allocator.allocate = memory_allocate;
    m->allocator.release = memory_release;
    m->allocator.user = &m->memory;
    m->manual = how & 1;
    m->metal = how & 2 ? softmetal_new_device() : NULL;
    desc.metal_device = m->metal;
    desc.hooks = &fuzz_hooks;
    desc.allocator = &m->allocator;
    desc.spin = how & 12 ? &no_spin : NULL;
    desc.callback_mode = m->manual ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED;
    desc.notify = how & 16 ? on_notify : NULL;
    desc.log = how & 32 ? on_log : NULL;
    desc.notify_user = desc.log_user = m;
    m->logs = how & 32;
    m->asks = world.newer && (how & 128);
    if (world.newer) {
        unsigned more = byte();
        desc.spin = some_spin();
        m->own_queue = !m->manual && more & 1;
        if (m->own_queue) desc.callback_queue = callback_queue_new();
    }
    if (one_in(8)) {
        some_fault();
        m->memory.fail_at = world.short_of_memory;
    }
    may(-1, gpusync_device_create(&desc, &m->device), GPUSYNC_OK);
    if (desc.callback_queue) dispatch_release(desc.callback_queue);
    if (!m->device) {
        must(m->memory.live == 0, "a device that was not made has memory");
        metal_release(m->metal);
        memset(m, 0, sizeof *m);
        return;
    }
    must(!gpusync_device_is_lost(m->device) && gpusync_device_metal(m->device), "a new device");
    meet_if(m->manual, callbacks_by_hand);
    meet_if(!m->manual, callbacks_queued);
    meet_if(m->own_queue, callback_queue_given);
    meet_if(!desc.spin, device_spins_by_itself);
    meet_if(desc.spin && desc.spin->max_spin_ns + desc.spin->yield_iterations > 0, device_spins);
    meet_if(desc.spin && desc.spin->max_spin_ns + desc.spin->yield_iterations == 0, device_spins_not);
    if (how & 64) answer(gpusync_set_trace(m->device, on_trace, m), GPUSYNC_OK);
}

/* Functions of a device run where its callbacks do. */
static void must_be_at_home(const machine *m)
{
    must(m->manual == (pthread_equal(pthread_self(), gpu.main) != 0), "a callback on a thread that it is not for");
    if (m->own_queue) must_be_on_callback_queue();
}

static void check_callbacks_of(uint64_t where)
{
    int i;
    for (i = 0; i < tally_count && i < TALLIES; i++)
        must(tallies[i].where != where || !tallies[i].expected || tallies[i].calls == 1,
             "destroyed, and callback %d came %u times", i, tallies[i].calls);
}

/* What has been destroyed later is gone: nothing of it is on the GPU, and no callback is left. */
static void on_destroyed(void *user)
{
    goer *g = (goer *)user;
    const machine *m = &world.machines[g->device];
    int i;
    must(g->taken && g->begun && !g->silent, "what was not destroyed is told of");
    meet(told_that_it_went);
    must(COUNT(&g->told) == 0, "what was destroyed is told of twice");
    must_be_there(m);
    must_be_at_home(m);
    check_callbacks_of(g->where);
    for (i = 0; i < LAST_WORKS && !had_a_second(m); i++)
        must(!is_on_gpu(g->buffers[i]), "destroyed with work in flight");
}

/* NULL: there is no place. */
static goer *new_goer(int device, const void *object)
{
    int i;
    for (i = 0; i < GOERS && world.goers[i].taken; i++) continue;
    if (i == GOERS) return NULL;
    world.goers[i].taken = true;
    world.goers[i].device = device;
    world.goers[i].where = (uint64_t)(uintptr_t)object;
    return &world.goers[i];
}

static void forget_goer(goer *g)
{
    int i;
    for (i = 0; i < LAST_WORKS; i++) metal_release(g->buffers[i]);
    memset(g, 0, sizeof *g);
}

/* Is one on its way? Of a silent one it is not known. */
static bool some_goes(int device, bool silent)
{
    int i;
    for (i = 0; i < GOERS; i++)
        if (world.goers[i].taken && world.goers[i].device == device && world.goers[i].silent == silent &&
            !world.goers[i].told)
            return true;
    return false;
}

static void on_device_gone(void *user)
{
    machine *m = (machine *)user;
    must(m->goes && COUNT(&m->gone) == 0, "a device goes that was not destroyed, or twice");
    must_be_at_home(m);
    must(GET(&m->memory.live) == 0, "the allocator has %ld blocks out", GET(&m->memory.live));
}

/* Those that are gone leave their places. */
static void bury_devices(void)
{
    int i, k;
    for (i = 0; i < DEVICES; i++) {
        machine *m = &world.machines[i];
        if (!m->goes || !m->gone) continue;
        must(!some_goes(i, false), "a device is gone before its objects");
        for (k = 0; k < GOERS; k++)
            if (world.goers[k].device == i) forget_goer(&world.goers[k]);
        metal_release(m->metal);
        memset(m, 0, sizeof *m);
    }
}

/* Timers fire, and what is due by hand is called: so what goes later goes on. */
static void go_on(size_t most)
{
    size_t count;
    int i;
    let_time_pass();
    for (i = 0; i < DEVICES; i++) {
        const machine *m = &world.machines[i];
        if (m->device && m->manual && !m->gone) answer(gpusync_dispatch(m->device, most, &count), GPUSYNC_OK);
    }
    come_to_rest_now();
    bury_devices();
}

static void drop_fours_of(int device);

static bool is_in_use(int device)
{
    int i;
    if (some_goes(device, false)) return true;
    for (i = 0; i < QUEUES; i++)
        if (world.lanes[i].queue && world.lanes[i].device == device) return true;
    for (i = 0; i < TIMELINES; i++)
        if (world.tides[i].timeline && world.tides[i].device == device) return true;
    return world.warmup && world.warmup_device == device;
}

/* Also while objects of it are there. */
static void destroy_device_later(int i)
{
    machine *m = &world.machines[i];
    drop_fours_of(i);
    come_to_rest_now();
    m->goes = true;
    meet(device_goes_later);
    answer(gpusync_device_destroy_later(m->device, on_device_gone, m), GPUSYNC_OK);
    come_to_rest_now();
    bury_devices();
}

static void destroy_device(int i)
{
    machine *m = &world.machines[i];
    gpusync_result result;
    int k;
    if (!m->device || m->goes) return;
    if (world.newer && one_in(2) && (!is_in_use(i) || some_goes(i, false))) {
        bool any = false;
        for (k = 0; k < QUEUES; k++) any = any || (world.lanes[k].queue && world.lanes[k].device == i);
        for (k = 0; k < TIMELINES; k++) any = any || (world.tides[k].timeline && world.tides[k].device == i);
        if (!any && !(world.warmup && world.warmup_device == i)) {
            destroy_device_later(i);
            return;
        }
    }
    if (is_in_use(i)) {
        answer(gpusync_device_destroy(m->device), GPUSYNC_ERROR_IN_USE);
        return;
    }
    drop_fours_of(i);
    come_to_rest_now(); /* what has told that it is gone lets the device go behind that */
    result = answer(gpusync_device_destroy(m->device), GPUSYNC_OK,
                    some_goes(i, true) ? GPUSYNC_ERROR_IN_USE : GPUSYNC_OK);
    if (result != GPUSYNC_OK) return;
    must(m->memory.live == 0, "the allocator has %ld blocks out", m->memory.live);
    for (k = 0; k < GOERS; k++)
        if (world.goers[k].device == i) forget_goer(&world.goers[k]);
    metal_release(m->metal);
    memset(m, 0, sizeof *m);
}

/* What a queue of Metal 4 cannot be. False: it was tried. */
static bool want_metal4(lane *l, gpusync_queue_desc *desc)
{
    machine *m = &world.machines[l->device];
    unsigned how = byte();
    l->metal4 = !(how & 1);
    if (!l->metal4) return true;
    l->given = how & 2;
    desc->metal4 = !l->given || how & 4;
    if (how >= 32) return true;
    desc->metal_queue = metal_queue_new(gpusync_device_metal(m->device), MADE_BY_METAL);
    desc->metal4 = true;
    may(l->device, gpusync_queue_create(m->device, desc, &l->queue), GPUSYNC_ERROR_UNSUPPORTED);
    must(!l->queue, "a queue that cannot be");
    metal_release(desc->metal_queue);
    return false;
}

static void *new_metal_queue(int device, bool metal4)
{
    void *metal = gpusync_device_metal(world.machines[device].device);
    return metal4 ? metal4_queue_new(metal) : metal_queue_new(metal, MADE_BY_METAL);
}

/* Newer inputs take the other where there is none. */
static int some_device(void)
{
    int device = (int)below_of(DEVICES);
    const machine *m = &world.machines[device];
    return world.newer && (!m->device || m->goes) ? !device : device;
}

static void make_queue(void)
{
    lane *l = &world.lanes[below_of(QUEUES)];
    int device = some_device(), other = !device;
    machine *m = &world.machines[device];
    gpusync_queue_desc desc;
    unsigned how = byte(), least;
    void *given = NULL;
    if (l->queue || !m->device || m->goes || gpu.count == METAL_QUEUES) return;
    memset(l, 0, sizeof *l);
    memset(&desc, 0, sizeof desc);
    l->device = device;
    l->given = how & 9; /* small limits only with a Metal queue of ours: buffers that were given up count while we keep them */
    l->forgets = how & 2;
    desc.label = how & 4 ? "a queue" : NULL;
    desc.max_command_buffer_count = how & 8 ? 2 + below_of(8) : 0;
    least = how & 16 ? 1 + below_of(4) : 0;
    if (l->given && least) desc.max_command_buffer_count = least;
    l->room = desc.max_command_buffer_count ? desc.max_command_buffer_count : 63; /* the default */
    desc.error_log_count = l->forgets ? 1 + below_of(2) : 0;
    l->sticky = desc.sticky_failure = world.newer && (how & 32);
    if (world.newer) {
        desc.spin = some_spin();
        if (one_in(4)) desc.spin = &no_spin;
    }
    if (world.mixed && !m->removed && !want_metal4(l, &desc)) return;
    if (l->given) {
        bool foreign = world.machines[other].device && (how & 128);
        given = new_metal_queue(foreign ? other : device, l->metal4);
        desc.metal_queue = given;
        if (foreign && gpusync_device_metal(m->device) != gpusync_device_metal(world.machines[other].device)) {
            may(device, gpusync_queue_create(m->device, &desc, &l->queue), INVALID);
            must(!l->queue, "a queue over another device's");
            metal_release(given);
            return;
        }
    }
    if (one_in(8)) some_fault();
    may(device, gpusync_queue_create(m->device, &desc, &l->queue), GPUSYNC_OK);
    must(!l->queue || !m->lost, "a lost device makes a queue");
    if (l->queue) {
        l->metal = gpusync_queue_metal(l->queue);
        must(!given || l->metal == given, "another queue");
        must(is_metal4(l->queue) == l->metal4, "a queue of the other kind");
        meet_if(l->metal4, queue_of_metal4);
        meet_if(l->given, queue_given);
        meet_if(desc.max_command_buffer_count, queue_small);
        meet_if(desc.spin && desc.spin != &no_spin, queue_spin);
        meet_if(desc.spin == &no_spin, queue_spins_not);
        meet_if(l->sticky, sticky_queue);
        meet_if(l->sticky && l->metal4, sticky_queue_of_metal4);
        gpu_add(l->metal);
    }
    metal_release(given);
}

static void forget_lane(lane *l)
{
    int i;
    for (i = 0; i < world.work_count; i++)
        if (world.works[i].lane == index_of(l)) forget_work(&world.works[i]);
    for (i = 0; i < OPENS; i++) {
        if (!world.opens[i].buffer || world.opens[i].lane != index_of(l)) continue;
        metal_release(world.opens[i].buffer);
        world.opens[i].buffer = NULL;
    }
    for (i = 0; i < FOURS; i++)
        if (world.fours[i].lane == index_of(l)) world.fours[i].lane = -1;
    l->queue = NULL;
}

static bool is_warming(const lane *l)
{
    return world.warmup && l->warming;
}

static void finish_all(void);

/* Does work wait for a value, and that for a pending signal below it? Perhaps of work that waits for the first: the program's
   mistake. Only the failing of the timeline ends that, and it may be gone: then destroy would not return. */
static bool may_wait_for_itself(const lane *l)
{
    static char text[16384];
    if (world.machines[l->device].goes) return false; /* its timelines have failed */
    gpusync_report(world.machines[l->device].device, text, sizeof text);
    return strstr(text, "signalled, but kept back by value") != NULL;
}

static void destroy_queue_later(lane *l, goer *g)
{
    int i, k, n = 0;
    for (i = 0; i < world.work_count; i++)
        for (k = 0; k < 2 && n < LAST_WORKS && world.works[i].lane == index_of(l); k++)
            if (world.works[i].buffers[k]) g->buffers[n++] = metal_retain(world.works[i].buffers[k]);
    g->begun = true;
    g->silent = one_in(12);
    meet(queue_goes_later);
    meet_if(g->silent, goes_untold);
    meet_if(!gpusync_is_idle(l->queue), goes_with_work);
    answer(gpusync_queue_destroy_later(l->queue, g->silent ? NULL : on_destroyed, g), GPUSYNC_OK);
}

/* Does the ticket end with a result of its own? */
static bool has_own_result(const lane *l, gpusync_ticket ticket)
{
    int i;
    for (i = 0; i < world.work_count; i++)
        if (world.works[i].lane == index_of(l) && world.works[i].ticket == ticket) return !world.works[i].inherits;
    return false; /* it is forgotten */
}

/* All that has not ended does so when the queue is destroyed at once: but for what has failed of what it waits for, and
   is not over yet. On a lost device it may be lost, and where failures stick what was before it has it. fails: the
   timelines that such work was to signal. */
static void expect_destroyed(const lane *l, bool *fails)
{
    uint64_t value;
    int i, k, n;
    for (i = 0; i < TIMELINES; i++) fails[i] = false;
    if (l->sticky || world.machines[l->device].losable) return;
    for (i = 0; i < world.work_count; i++)
        for (k = 0; k < MOST_PENDING && world.works[i].lane == index_of(l) && !world.works[i].inherits; k++)
            for (n = 0; n < TIMELINES; n++)
                if (world.works[i].pending[k].timeline && world.works[i].pending[k].timeline == world.tides[n].timeline)
                    fails[n] = fails[n] || (gpusync_poll(l->queue, world.works[i].ticket) == GPUSYNC_NOT_READY &&
                                            gpusync_timeline_query(world.tides[n].timeline, &value) == GPUSYNC_OK);
    for (i = 0; i < tally_count && i < TALLIES; i++) {
        tally *t = &tallies[i];
        if (t->where != (uint64_t)(uintptr_t)l->queue || !t->expected || t->calls || !t->ticket) continue;
        if (t->releases) continue;
        if (!has_own_result(l, t->ticket) || gpusync_poll(l->queue, t->ticket) != GPUSYNC_NOT_READY) continue;
        t->exact = true;
        t->must_be = GPUSYNC_ERROR_DESTROYED;
        meet(destroyed_at_once_with_work);
    }
}

static void check_destroyed(const bool *fails)
{
    gpusync_wait_options options;
    gpusync_error error;
    int i;
    memset(&options, 0, sizeof options);
    options.error = &error;
    for (i = 0; i < TIMELINES; i++) {
        if (!fails[i]) continue;
        memset(&error, 0, sizeof error);
        must(gpusync_timeline_wait(world.tides[i].timeline, 0, 0, &options) < 0,
             "a queue was destroyed at once, and a timeline that its work was to signal has not failed");
        must(error.result != GPUSYNC_ERROR_DESTROYED || error.failure == GPUSYNC_FAILURE_CANCELLED,
             "a queue was destroyed at once, and a timeline has failed with class %d", (int)error.failure);
        must(error.result != GPUSYNC_ERROR_CANCELLED, "a queue was destroyed at once, and a timeline says %d", error.result);
    }
}

static void destroy_queue(lane *l, way how)
{
    bool fails[TIMELINES];
    goer *g = NULL;
    int i, k;
    if (is_warming(l)) return;
    /* What is in flight there is kept for good: nothing tells of its end. */
    if (l->metal4 && world.machines[l->device].losable) finish_all();
    if (how != AT_ONCE && may_wait_for_itself(l)) {
        finish_all();
        how = AT_ONCE;
    }
    if (how == LATER) g = new_goer(l->device, l->queue);
    if (fuzz_tells)
        fprintf(stderr, "  queue %d goes%s\n", index_of(l), g ? " later" : how == AT_ONCE ? " now" : "");
    come_to_rest_now(); /* no callback is in a call of what goes, */
    world.destroying = true; /* ... and none makes one */
    world.leaving = index_of(l);
    world.machines[l->device].left_by4 |= l->metal4;
    gpu.idle = 0;
    if (g) {
        destroy_queue_later(l, g);
    } else if (how == AT_ONCE) {
        expect_destroyed(l, fails);
        answer(gpusync_queue_destroy_now(l->queue), GPUSYNC_OK);
        check_destroyed(fails);
        check_callbacks_of((uint64_t)(uintptr_t)l->queue);
    } else {
        answer(gpusync_queue_destroy(l->queue), GPUSYNC_OK);
        for (i = 0; i < world.work_count && !had_a_second(&world.machines[l->device]); i++)
            for (k = 0; k < 2 && world.works[i].lane == index_of(l); k++)
                must(!is_on_gpu(world.works[i].buffers[k]), "destroyed with work in flight");
        check_callbacks_of((uint64_t)(uintptr_t)l->queue);
    }
    come_to_rest_now();
    world.destroying = false;
    world.leaving = -1;
    forget_lane(l);
}

static way some_way(void)
{
    bool now = !world.gentle && one_in(2);
    if (world.newer && one_in(2)) return LATER;
    return now ? AT_ONCE : WAITING;
}

static void *some_event(int device)
{
    if (world.event_count == EVENTS) return NULL;
    world.events[world.event_count] = metal_shared_event_new(gpusync_device_metal(world.machines[device].device));
    return world.events[world.event_count++];
}

static void make_timeline(void)
{
    tide *t = &world.tides[below_of(TIMELINES)];
    int device = some_device();
    machine *m = &world.machines[device];
    gpusync_timeline_desc desc;
    unsigned how = byte();
    gpusync_result result;
    if (t->timeline || !m->device || m->goes) return;
    memset(t, 0, sizeof *t);
    memset(&desc, 0, sizeof desc);
    t->device = device;
    desc.initial_value = how & 1 ? byte() : 0;
    desc.label = how & 2 ? "a timeline" : NULL;
    desc.signalled_by_others = how & 4;
    if (how & 8) t->event = some_event(device);
    if (one_in(8)) some_fault();
    result = t->event ? timeline_import(m->device, t->event, &desc, &t->timeline)
                      : gpusync_timeline_create(m->device, &desc, &t->timeline);
    may(device, result, GPUSYNC_OK);
    must((result == GPUSYNC_OK) == (t->timeline != NULL), "a timeline");
    must(!t->timeline || !m->lost, "a lost device makes a timeline");
    t->value = t->event ? 0 : desc.initial_value;
    t->others = desc.signalled_by_others;
    meet_if(t->others && t->timeline, timeline_of_others);
}

/* Work that waits for a value that it is to signal itself, perhaps through other work, or for one above it, is the
   program's mistake, too: it ends when the timeline fails, and a program that has destroyed that cannot let it fail. So
   may any work that waits for a value above one that is pending; and for that one, where others signal as well: then it
   need not be held. */
static bool may_need_a_failure(const tide *t)
{
    static char text[16384];
    static const char waits[] = "waits for value ";
    const char *line = text;
    uint64_t lowest = UINT64_MAX;
    bool others;
    int i, k;
    if (world.machines[t->device].goes) return true;
    if (some_goes(t->device, false) || some_goes(t->device, true)) return true; /* its work is not known any more */
    for (i = 0; i < world.work_count; i++)
        for (k = 0; k < MOST_PENDING && !world.works[i].over; k++) {
            const gpusync_point *pending = &world.works[i].pending[k];
            if (pending->timeline == t->timeline && pending->value < lowest) lowest = pending->value;
        }
    if (lowest == UINT64_MAX) return false;
    gpusync_report(world.machines[t->device].device, text, sizeof text);
    others = strstr(text, "signalled by others too") != NULL;
    while ((line = strstr(line, waits)) != NULL)
        if (strtoull(line += sizeof waits - 1, NULL, 10) >= lowest + !others) return true;
    return false;
}

/* A command buffer that has a signal in it, and is neither committed nor discarded, keeps back all that is signalled
   above. That, too, is the program's mistake where work waits for it, or an open command buffer does, and the timeline
   goes. */
static void discard_what_keeps_back(tide *t)
{
    static char text[16384];
    bool waits;
    int i;
    if (world.machines[t->device].goes) return; /* it fails first */
    gpusync_report(world.machines[t->device].device, text, sizeof text);
    waits = strstr(text, "waits for value ") != NULL;
    for (i = 0; i < OPENS; i++) waits = waits || (world.opens[i].buffer && world.opens[i].waits);
    for (i = 0; i < OPENS && waits; i++) {
        opened *o = &world.opens[i];
        if (!o->buffer || (o->signals[0].timeline != t->timeline && o->signals[1].timeline != t->timeline)) continue;
        answer(gpusync_command_buffer_discard(world.lanes[o->lane].queue, o->buffer), GPUSYNC_OK);
        metal_release(o->buffer);
        o->buffer = NULL;
    }
}

static void destroy_timeline(tide *t, way how)
{
    goer *g;
    discard_what_keeps_back(t);
    if (may_need_a_failure(t)) {
        if (fuzz_tells) fprintf(stderr, "  timeline %d fails first\n", (int)(t - world.tides));
        (void)gpusync_timeline_fail(t->timeline, NULL);
    }
    come_to_rest_now(); /* no callback is in a call of what goes, */
    world.destroying = true; /* ... and none makes one */
    forget_signals(t->timeline);
    g = how == LATER ? new_goer(t->device, t->timeline) : NULL;
    if (g) {
        g->begun = true;
        g->silent = one_in(12);
        meet(timeline_goes_later);
        meet_if(g->silent, goes_untold);
        answer(gpusync_timeline_destroy_later(t->timeline, g->silent ? NULL : on_destroyed, g), GPUSYNC_OK);
    } else {
        answer(gpusync_timeline_destroy(t->timeline), GPUSYNC_OK);
        check_callbacks_of((uint64_t)(uintptr_t)t->timeline);
    }
    come_to_rest_now();
    world.destroying = false;
    t->timeline = NULL;
}

/* -- command buffers ---------------------------------------------------------------------------------- */

static void tell_points(const char *what, const gpusync_point *points, size_t count)
{
    size_t i;
    int k;
    for (i = 0; i < count && fuzz_tells; i++)
        for (k = 0; k < QUEUES; k++) {
            if (points[i].timeline && points[i].timeline == world.tides[k].timeline)
                fprintf(stderr, "    %s %llu of timeline %d\n", what, (unsigned long long)points[i].value, k);
            if (!points[i].timeline && points[i].queue && points[i].queue == world.lanes[k].queue)
                fprintf(stderr, "    %s ticket %llx of queue %d\n", what, (unsigned long long)points[i].ticket, k);
        }
}

static bool put_signal(lane *l, opened *o, gpusync_point point)
{
    int k = o->signals[0].timeline != NULL;
    if (o->signals[k].timeline || o->tracked) return false;
    tell_points("the buffer signals", &point, 1);
    if (may(l->device, gpusync_encode_signal(l->queue, o->buffer, point), ENDS, MISFITS) != GPUSYNC_OK) return false;
    o->made = o->headed = true;
    o->signals[k] = point;
    for (k = 0; k < TIMELINES; k++)
        if (world.tides[k].timeline == point.timeline) world.tides[k].value = point.value;
    return true;
}

static void put_wait(lane *l, opened *o, gpusync_point point)
{
    if (o->tracked) {
        answer(gpusync_encode_wait(l->queue, o->buffer, point), GPUSYNC_ERROR_ALREADY_TRACKED, MISFITS, ENDS,
               GPUSYNC_ERROR_OUT_OF_MEMORY, GPUSYNC_ERROR_METAL_NIL, GPUSYNC_ERROR_DEVICE_LOST);
        return;
    }
    tell_points("the buffer waits for", &point, 1);
    if (may(l->device, gpusync_encode_wait(l->queue, o->buffer, point), ENDS, MISFITS) == GPUSYNC_OK)
        o->made = o->headed = o->waits = true;
}

static void make_buffer_for(lane *l)
{
    opened *o = free_open();
    gpusync_command_buffer_desc desc;
    buffer_options options;
    gpusync_point points[3];
    size_t i, count;
    uint64_t time = some_time();
    gpusync_result result;
    bool unretained;
    if (!l || l->metal4 || !o || (!l->given && softmetal_outstanding(l->metal) > 40)) return;
    memset(&desc, 0, sizeof desc);
    memset(&options, 0, sizeof options);
    memset(o, 0, sizeof *o);
    desc.timeout_ns = &time;
    desc.label = one_in(2) ? "a buffer" : NULL;
    unretained = world.gentle && one_in(4);
    if (world.newer) some_descriptor(&options, &desc, gpusync_device_metal(world.machines[l->device].device));
    if (unretained) ask_for_unretained(&options, &desc);
    count = one_in(3) ? some_points(l->device, points, 3) : 0;
    if (one_in(8)) some_fault();
    result = may(l->device, gpusync_command_buffer(l->queue, &desc, &o->buffer), GPUSYNC_OK, GPUSYNC_TIMEOUT,
                 GPUSYNC_ERROR_QUEUE_FULL, l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    check_admission(l, result, false);
    check_buffer_options(&options, o->buffer);
    if (!o->buffer) return;
    (void)metal_retain(o->buffer);
    o->lane = index_of(l);
    o->made = true;
    for (i = 0; i < count; i++) put_wait(l, o, points[i]);
}

static void make_buffer_by_gpusync(void) { make_buffer_for(some_lane()); }

static void make_buffer_by_metal(void)
{
    lane *l = some_lane();
    opened *o = free_open();
    if (!l || l->metal4 || !o || !l->given || softmetal_outstanding(l->metal) + 40 > MADE_BY_METAL) return;
    memset(o, 0, sizeof *o);
    o->buffer = metal_queue_command_buffer(l->metal);
    o->lane = index_of(l);
}

static void encode_some(void)
{
    opened *o = some_open(-1);
    lane *l = o ? &world.lanes[o->lane] : NULL;
    gpusync_point point;
    if (!o) return;
    if (one_in(8)) some_fault();
    if (one_in(2)) {
        if (some_points(l->device, &point, 1)) put_wait(l, o, point);
    } else {
        tide *t = some_tide(one_in(32) ? -1 : l->device);
        if (t) (void)put_signal(l, o, gpusync_at_value(t->timeline, t->value + 1 + below_of(4)));
    }
    no_faults();
}

/* What is refused as a failure sticks, and then discarded, was to signal timelines: they fail. */
static void check_refused(const opened *o)
{
    uint64_t value;
    int k;
    for (k = 0; k < 2 && o->refused; k++)
        must(!o->signals[k].timeline || gpusync_timeline_query(o->signals[k].timeline, &value) < GPUSYNC_OK,
             "a buffer was refused and discarded, and what it was to signal has not failed");
}

static void let_go(opened *o)
{
    metal_release(o->buffer);
    o->buffer = NULL;
}

static void discard(void)
{
    opened *o = some_open(-1);
    lane *l = some_lane();
    if (!o || !l) return;
    if (o->lane != index_of(l) || !o->made || o->tracked) {
        answer(gpusync_command_buffer_discard(l->queue, o->buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
        return;
    }
    answer(gpusync_command_buffer_discard(l->queue, o->buffer), GPUSYNC_OK);
    answer(gpusync_command_buffer_discard(l->queue, o->buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    check_refused(o);
    let_go(o);
}

static void commit_one(void)
{
    opened *o = some_open(-1);
    lane *l;
    gpusync_ticket ticket = 0;
    gpusync_result result;
    work *w;
    if (!o) return;
    l = one_in(16) ? some_lane() : &world.lanes[o->lane];
    if (index_of(l) != o->lane) {
        may(l->device, gpusync_commit(l->queue, o->buffer, &ticket),
            l->metal4 ? GPUSYNC_ERROR_UNSUPPORTED : GPUSYNC_ERROR_WRONG_QUEUE, l->sticky ? GPUSYNC_ERROR_EXECUTION : INVALID);
        return;
    }
    if (one_in(8)) some_fault();
    if (o->tracked) {
        may(l->device, gpusync_commit(l->queue, o->buffer, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED,
            l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_ERROR_ALREADY_TRACKED);
        return;
    }
    result = may(l->device, gpusync_commit(l->queue, o->buffer, &ticket), GPUSYNC_OK, NOT_HELD,
                 l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    check_admission(l, result, false);
    if (result == GPUSYNC_ERROR_EXECUTION) o->refused = o->made;
    if (result != GPUSYNC_OK) {
        must(metal_status(o->buffer) == 0 && ticket == 0, "a commit that failed has done something");
        return;
    }
    w = remember_work(l, ticket, o->buffer, NULL, true, false); /* behind what is held it may be given up */
    w->inherits = o->waits;
    memcpy(w->pending, o->signals, sizeof o->signals);
    if (metal_status(o->buffer) >= 2)
        may(l->device, gpusync_commit(l->queue, o->buffer, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED,
            GPUSYNC_ERROR_ALREADY_TRACKED, l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_ERROR_ALREADY_TRACKED);
    let_go(o);
}

static void track_one(void)
{
    opened *o = some_open(-1);
    lane *l = o ? &world.lanes[o->lane] : NULL;
    gpusync_ticket ticket = 0;
    if (!o) return;
    if (one_in(8)) some_fault();
    if (o->tracked) {
        may(l->device, gpusync_track(l->queue, o->buffer, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
        return;
    }
    if (o->headed) {
        may(l->device, gpusync_track(l->queue, o->buffer, &ticket), INVALID, GPUSYNC_OK);
        if (!ticket) return;
    } else if (may(l->device, gpusync_track(l->queue, o->buffer, &ticket), GPUSYNC_OK) != GPUSYNC_OK) {
        return;
    }
    meet_if(l->sticky, sticky_queue_tracks);
    o->tracked = true;
    o->ticket = ticket;
    remember_work(l, ticket, o->buffer, NULL, false, true);
}

/* False: a lost device has given it up. */
static bool untrack_now(const lane *l, const opened *o)
{
    gpusync_ticket_info info;
    bool given_up = world.machines[l->device].losable &&
                    gpusync_get_info(l->queue, o->ticket, &info) == GPUSYNC_ERROR_DEVICE_LOST;
    answer(gpusync_untrack(l->queue, o->ticket), given_up ? GPUSYNC_ERROR_INVALID_TICKET : GPUSYNC_OK);
    return !given_up;
}

static void untrack_one(void)
{
    opened *o = some_open(-1);
    lane *l = o ? &world.lanes[o->lane] : NULL;
    if (!o || !o->tracked) return;
    if (untrack_now(l, o)) {
        answer(gpusync_untrack(l->queue, o->ticket), GPUSYNC_ERROR_INVALID_TICKET);
        answer(gpusync_poll(l->queue, o->ticket), GPUSYNC_ERROR_CANCELLED, GPUSYNC_ERROR_RESULT_UNKNOWN);
    }
    let_go(o);
}

/* An empty command buffer behind one that other code has committed: its ticket tells that both are over. */
static void commit_one_behind(lane *l, void *foreign)
{
    const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    gpusync_ticket ticket = 0;
    gpusync_result result;
    void *buffer = NULL;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &none;
    result = may(l->device, gpusync_command_buffer(l->queue, &desc, &buffer), GPUSYNC_OK, GPUSYNC_TIMEOUT,
                 GPUSYNC_ERROR_QUEUE_FULL, l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    check_admission(l, result, false);
    if (!buffer) return;
    (void)metal_retain(buffer);
    result = may(l->device, gpusync_commit(l->queue, buffer, &ticket), GPUSYNC_OK, NOT_HELD,
                 l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    check_admission(l, result, false);
    if (result == GPUSYNC_OK) {
        work *w = remember_work(l, ticket, buffer, NULL, true, false);
        if (gpu.in_order) w->foreign = metal_retain(foreign);
        meet(foreign_buffer_told_by_one_behind);
    } else {
        answer(gpusync_command_buffer_discard(l->queue, buffer), GPUSYNC_OK);
    }
    metal_release(buffer);
}

/* By its owner, without gpusync; and then another one tells of it, or it was tracked before. */
static void commit_behind_the_back(void)
{
    opened *o = some_open(-1);
    lane *l = o ? &world.lanes[o->lane] : NULL;
    gpusync_ticket ticket = 0;
    bool told;
    if (!o || (o->made && !o->tracked)) return;
    told = o->tracked;
    metal_commit(o->buffer);
    if (told) {
        may(l->device, gpusync_untrack(l->queue, o->ticket), GPUSYNC_ERROR_ALREADY_COMMITTED,
            GPUSYNC_ERROR_INVALID_TICKET);
    } else if (!one_in(8)) {
        if (one_in(2)) (void)gpu_step_any();
        if (one_in(8)) some_fault();
        commit_one_behind(l, o->buffer);
    } else { /* Metal takes no handler any more */
        may(l->device, gpusync_track(l->queue, o->buffer, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED);
        may(l->device, gpusync_commit(l->queue, o->buffer, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED,
            l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_ERROR_ALREADY_COMMITTED);
        must(ticket == 0, "a ticket for what other code has committed");
        meet(foreign_buffer_refused);
    }
    let_go(o);
}

static void read_from_now(void)
{
    lane *l = some_lane();
    if (l) read_late(&l->late, l->queue, clock_now & 64);
}

/* A command buffer or run. The last two reasons lose the device; 0 stands for DeviceRemoved. */
static void fail_for_a_reason(void *work, const lane *l)
{
    static const unsigned reasons[] = {
        SOFTMETAL_TIMEOUT,       SOFTMETAL_HANG,             SOFTMETAL_INNOCENT_VICTIM,         SOFTMETAL_BACKGROUND,
        SOFTMETAL_OUT_OF_MEMORY, SOFTMETAL_INVALID_RESOURCE, SOFTMETAL_IMPACTING_INTERACTIVITY, SOFTMETAL_PAGE_FAULT,
        SOFTMETAL_INTERNAL,      SOFTMETAL_FIRST_INTERNAL,   SOFTMETAL_SUBMISSIONS_IGNORED,     0};
    unsigned reason = reasons[below_of(world.gentle ? 10 : 12)];
    if (reason == 0 || reason == SOFTMETAL_SUBMISSIONS_IGNORED) may_be_lost(&world.machines[l->device]);
    if (one_in(8)) softmetal_fail(work, "another domain", (long)reason, "it fails");
    else if (reason == 0) softmetal_fail(work, NULL, 11, NULL);
    else softmetal_fail_as(work, reason, one_in(4) ? "" : NULL);
}

static void fail_a_buffer(void)
{
    opened *o = some_open(-1);
    if (o) fail_for_a_reason(o->buffer, &world.lanes[o->lane]);
}

#include "calls4.h"

static void submit_some(void)
{
    lane *l = some_lane();
    gpusync_submission submission;
    gpusync_point waits[3], signals[2], pending[MOST_PENDING];
    opened *from[2] = {NULL, NULL};
    void *buffers[2] = {NULL, NULL};
    uint64_t time = some_time();
    gpusync_ticket ticket = 0;
    gpusync_result result;
    bool inherits;
    tally *over;
    work *w;
    size_t i;
    if (l && l->metal4) submit4_some(l);
    if (!l || l->metal4) return;
    if (world.newer && !one_in(4)) make_buffer_for(l);
    memset(&submission, 0, sizeof submission);
    memset(signals, 0, sizeof signals);
    memset(pending, 0, sizeof pending);
    for (i = below_of(3); i-- > 0;) {
        opened *o = some_open(index_of(l));
        if (!o || o->tracked || o == from[0]) continue;
        from[submission.command_buffer_count] = o;
        buffers[submission.command_buffer_count++] = o->buffer;
    }
    submission.command_buffers = buffers;
    submission.waits = waits;
    submission.wait_count = one_in(2) ? some_points(l->device, waits, 3) : 0;
    inherits = submission.wait_count > 0;
    for (i = 0; i < submission.command_buffer_count; i++) inherits = inherits || from[i]->waits;
    submission.signals = signals;
    for (i = below_of(3); i-- > 0;) {
        tide *t = some_tide(l->device);
        if (!t) break;
        signals[submission.signal_count].timeline = t->timeline;
        signals[submission.signal_count++].value = t->value + 1 + below_of(4);
    }
    submission.flags = byte() & (one_in(16) ? 15 : 7);
    submission.timeout_ns = &time;
    submission.label = one_in(2) ? "some work" : NULL;
    if (fuzz_tells)
        fprintf(stderr, "  to queue %d: %zu buffers, flags %x\n", index_of(l), submission.command_buffer_count,
                submission.flags);
    tell_points("waits for", waits, submission.wait_count);
    tell_points("signals", signals, submission.signal_count);
    over = one_in(2) ? tally_new() : NULL;
    submission.on_complete = over ? on_tally : NULL;
    submission.user = over;
    for (i = 0; submission.flags & 1 && submission.command_buffer_count && i < submission.signal_count; i++)
        if (!put_signal(l, from[submission.command_buffer_count - 1], signals[i])) return;
    if (submission.flags & 1 && submission.command_buffer_count) submission.signal_count = 0;
    submission.flags &= ~1u;
    if (one_in(3)) some_fault_of_submit();
    result = may(l->device, gpusync_submit(l->queue, &submission, &ticket), ENDS, NO_ROOM, MISFITS,
                 GPUSYNC_ERROR_UNSUPPORTED);
    check_admission(l, result, submission.signal_count > 0);
    for (i = 0; i < submission.command_buffer_count && l->sticks && result == GPUSYNC_ERROR_EXECUTION; i++)
        from[i]->refused = from[i]->made && submission.signal_count == 0;
    if (result != GPUSYNC_OK) {
        must(ticket == 0, "a ticket and %d", result);
        for (i = 0; i < submission.command_buffer_count; i++)
            must(metal_status(buffers[i]) == 0, "a submission that failed has done something");
        must(!over || over->calls == 0, "a submission that failed is over");
        return;
    }
    meet_if(submission.flags & GPUSYNC_STRICT, submission_strict);
    meet_if(submission.flags & GPUSYNC_UNORDERED, submission_unordered);
    meet_if(l->sticky && (submission.flags & GPUSYNC_UNORDERED), sticky_queue_unordered);
    meet_if(submission.command_buffer_count == 0, submission_barrier);
    if (over) {
        over->expected = true;
        over->where = (uint64_t)(uintptr_t)l->queue;
        over->ticket = ticket;
    }
    memcpy(pending, signals, submission.signal_count * sizeof *signals);
    for (i = 0; i < submission.command_buffer_count; i++) memcpy(pending + 2 * (i + 1), from[i]->signals, sizeof signals);
    w = remember_work(l, ticket, buffers[0], buffers[1], true, false);
    w->unseen = w->unseen || (submission.wait_count + submission.signal_count && !(submission.flags & GPUSYNC_STRICT));
    w->inherits = inherits;
    memcpy(w->pending, pending, sizeof pending);
    for (i = 0; i < submission.command_buffer_count; i++) let_go(from[i]);
    for (i = 0; i < submission.signal_count; i++) {
        int k;
        for (k = 0; k < TIMELINES; k++)
            if (world.tides[k].timeline == signals[i].timeline) world.tides[k].value = signals[i].value;
    }
}

/* -- timelines ---------------------------------------------------------------------------------------- */

static void wait_for_value(const tide *t, const gpusync_wait_options *options)
{
    gpusync_point point = gpusync_at_value(t->timeline, some_value(t));
    meet_if(options && options->spin, wait_for_value_spins);
    await_points(&point, 1, GPUSYNC_WAIT_ALL);
    may(t->device, gpusync_timeline_wait(t->timeline, point.value, some_time(), options), ENDS, GPUSYNC_TIMEOUT,
        GPUSYNC_ERROR_NOT_RISING);
    await_nothing();
}

static void move_timeline(void)
{
    tide *t = some_tide(-1);
    gpusync_error reason;
    uint64_t value, base = 0;
    void *event;
    if (!t) return;
    memset(&reason, 0, sizeof reason);
    switch (below_of(8)) {
    case 0:
    case 1:
    case 2:
        value = t->value + below_of(4);
        if (may(t->device, gpusync_timeline_signal(t->timeline, value), ENDS, GPUSYNC_ERROR_NOT_RISING) == GPUSYNC_OK)
            t->value = value;
        break;
    case 3:
        if (world.event_count == EVENTS || t->event) break;
        event = gpusync_timeline_metal(t->timeline, &base);
        if (!t->others) break;
        world.events[world.event_count++] = metal_retain(event);
        break;
    case 4:
        reason.result = one_in(4) ? GPUSYNC_OK : GPUSYNC_ERROR_EXECUTION;
        memcpy(reason.message, "on purpose", 11);
        if (!one_in(4)) break;
        may(t->device, gpusync_timeline_fail(t->timeline, one_in(4) ? NULL : &reason), ENDS);
        (void)(answer(gpusync_timeline_wait(t->timeline, t->value + 9, 0, NULL), GPUSYNC_ERROR_EXECUTION,
                      GPUSYNC_ERROR_CANCELLED, GPUSYNC_ERROR_DESTROYED, GPUSYNC_ERROR_DEVICE_LOST,
                      GPUSYNC_ERROR_RESULT_UNKNOWN));
        break;
    case 5:
        if (!t->event) break;
        metal_event_signal(t->event, metal_event_value(t->event) + below_of(4)); /* as others do */
        break;
    case 6:
        if (one_in(4)) destroy_timeline(t, world.newer && one_in(2) ? LATER : WAITING);
        break;
    default:
        wait_for_value(t, NULL);
        break;
    }
}

/* -- asking and waiting ------------------------------------------------------------------------------- */

/* On a lost device a wait ends as the work does, or when that is given up, or at its limit; and a poll says the same
   from then on. That for everything is never well, and ends when all has, or was given up. of_lane -1: all lanes. */
static void check_wait_on_lost(int device, int of_lane, gpusync_ticket ticket, bool handlers, gpusync_result result)
{
    const machine *m = &world.machines[device];
    int i;
    if (!m->device || m->goes || !gpusync_device_is_lost(m->device)) return;
    meet(wait_on_lost_device);
    meet_if(handlers, wait_for_handlers_on_lost_device);
    must(ticket != GPUSYNC_EVERYTHING || !m->lost || result == GPUSYNC_ERROR_DEVICE_LOST || result == GPUSYNC_TIMEOUT,
         "a wait for everything of a lost device says %d", result);
    if (result == GPUSYNC_TIMEOUT || result == GPUSYNC_ERROR_INVALID_TICKET) return;
    for (i = 0; i < world.work_count; i++) {
        work *w = &world.works[i];
        gpusync_result now;
        if (w->lane < 0 || world.lanes[w->lane].device != device || (of_lane >= 0 && w->lane != of_lane)) continue;
        if (ticket != GPUSYNC_EVERYTHING && ticket != w->ticket) continue;
        now = gpusync_poll(world.lanes[w->lane].queue, w->ticket);
        must(now != GPUSYNC_NOT_READY, "a wait says %d, and ticket %llu has not ended", result,
             (unsigned long long)w->ticket);
        must(ticket == GPUSYNC_EVERYTHING || now == result || now == GPUSYNC_ERROR_RESULT_UNKNOWN ||
                 (handlers && now == GPUSYNC_OK && result == GPUSYNC_ERROR_DEVICE_LOST && had_a_second(m)),
             "a wait for ticket %llu says %d, and a poll %d", (unsigned long long)w->ticket, result, now);
        check_work(w);
        meet_if(w->given_up, wait_ended_by_giving_up);
    }
}

/* Lines of all logs: callbacks that run meanwhile do not wait. */
static void begin_to_count_timeouts(void)
{
    int i;
    for (i = 0; i < DEVICES; i++) PUT(&world.machines[i].timeouts, 0);
}

/* A wait with a limit tells once that it has timed out, for however many points it is. NULL: it was for nothing. */
static void check_timeouts(const machine *m, gpusync_result result, uint64_t time, bool several)
{
    unsigned lines = 0, least = m && m->logs && time && result == GPUSYNC_TIMEOUT, most = least;
    int i;
    if (m && m->logs && result < 0 && several) most = 1; /* one has failed, and others have timed out */
    for (i = 0; i < DEVICES; i++) lines += GET(&world.machines[i].timeouts);
    must(lines >= least && lines <= most, "a wait says %d, and the log has %u lines on a time-out", result, lines);
}

static const machine *machine_of(const gpusync_point *point)
{
    int i;
    for (i = 0; i < TIMELINES; i++)
        if (point->timeline && world.tides[i].timeline == point->timeline) return &world.machines[world.tides[i].device];
    for (i = 0; i < QUEUES; i++)
        if (!point->timeline && world.lanes[i].queue == point->queue) return &world.machines[world.lanes[i].device];
    return NULL;
}

/* As a program does that lets so many be in flight. */
static void pace(lane *l, unsigned ahead, uint64_t time)
{
    gpusync_stats stats;
    gpusync_result result;
    answer(gpusync_get_stats(l->queue, &stats), GPUSYNC_OK);
    if (stats.commits <= ahead) return;
    begin_to_count_timeouts();
    result = may(l->device, gpusync_wait(l->queue, stats.commits - ahead, time), ENDS, GPUSYNC_TIMEOUT);
    check_timeouts(&world.machines[l->device], result, time, false);
    meet(wait_paces);
}

static void wait_for_some(void)
{
    lane *l = some_lane();
    gpusync_wait_options options, *with;
    gpusync_error error;
    gpusync_point points[MOST_POINTS];
    gpusync_wait_for wait_for;
    const tide *t;
    size_t count, which = 0;
    gpusync_ticket ticket;
    gpusync_result result;
    uint64_t time;
    bool stuck;
    unsigned how;
    if (!l) return;
    memset(&options, 0, sizeof options);
    how = byte();
    options.error = &error;
    options.blocking = how % 3 == 1; /* with a limit: it does not spin, and sleeps as others do */
    options.handlers = how >= 128;
    options.spin = world.newer ? some_spin() : NULL;
    if (how % 3 == 2) options.spin = &no_spin;
    meet_if(options.spin, wait_spins);
    meet_if(options.spin && options.spin->until_near, wait_until_near);
    switch (below_of(world.newer ? 7 : 6)) {
    case 0:
        stuck = l->sticks && !l->blind;
        time = some_time();
        begin_to_count_timeouts();
        result = may(l->device, gpusync_queue_wait(l->queue, time), ENDS, GPUSYNC_TIMEOUT);
        check_timeouts(&world.machines[l->device], result, time, false);
        must(!stuck || result != GPUSYNC_OK, "a failure sticks, and a wait for everything says nothing of it");
        check_wait_on_lost(l->device, index_of(l), GPUSYNC_EVERYTHING, false, result);
        break;
    case 1:
        time = some_time();
        begin_to_count_timeouts();
        result = may(l->device, gpusync_device_wait(world.machines[l->device].device, time, how & 64 ? NULL : &options),
                     ENDS, GPUSYNC_TIMEOUT);
        check_timeouts(&world.machines[l->device], result, time, false);
        check_wait_on_lost(l->device, -1, GPUSYNC_EVERYTHING, !(how & 64) && options.handlers, result);
        meet_if(options.blocking && !(how & 64), wait_blocks_in_vain);
        break;
    case 2:
    case 3:
        ticket = one_in(8) ? GPUSYNC_EVERYTHING : some_ticket(l);
        points[0] = gpusync_at_ticket(l->queue, ticket);
        if (!options.handlers && ticket != GPUSYNC_EVERYTHING) await_points(points, 1, GPUSYNC_WAIT_ALL);
        time = some_time();
        options.blocking = options.blocking && !l->metal4; /* refuse4 has that */
        begin_to_count_timeouts();
        result = may(l->device, gpusync_wait_ex(l->queue, ticket, time, &options), ENDS, GPUSYNC_TIMEOUT,
                     GPUSYNC_ERROR_INVALID_TICKET);
        check_timeouts(&world.machines[l->device], result, time, false);
        meet_if(options.blocking, wait_blocks_in_vain);
        meet_if(options.handlers, wait_for_handlers);
        check_wait_on_lost(l->device, index_of(l), ticket, options.handlers, result);
        break;
    case 4: pace(l, 1 + below_of(8), some_time()); break;
    case 6:
        t = some_tide(l->device);
        if (t) wait_for_value(t, &options);
        break;
    default:
        count = some_points(l->device, points, 19);
        wait_for = (gpusync_wait_for)below_of(3);
        meet_if(wait_for == GPUSYNC_WAIT_ANY, wait_for_any);
        meet_if(wait_for == GPUSYNC_WAIT_ALL, wait_for_all);
        if (one_in(4)) some_fault();
        with = one_in(2) ? &options : NULL;
        if (!options.handlers || !with) await_points(points, count, wait_for);
        time = some_time();
        begin_to_count_timeouts();
        result = may(l->device, gpusync_wait_many(points, count, wait_for, time, with, &which), ENDS, GPUSYNC_TIMEOUT,
                     MISFITS);
        check_timeouts(count ? machine_of(&points[0]) : NULL, result, time, true);
        must(which <= count, "the point %zu of %zu", which, count);
        break;
    }
    await_nothing();
}

/* In a callback: nothing may wait, nothing may be destroyed. */
static void on_talk(void *user, gpusync_result result, const gpusync_error *error)
{
    int i;
    on_tally(user, result, error);
    for (i = 0; i < QUEUES && !world.destroying; i++) {
        gpusync_queue *q = world.lanes[i].queue;
        if (!q || world.machines[world.lanes[i].device].goes) continue;
        answer(gpusync_queue_wait(q, SECONDS(1)), ENDS, GPUSYNC_ERROR_WOULD_DEADLOCK, GPUSYNC_ERROR_DEVICE_LOST);
        answer(gpusync_queue_destroy(q), GPUSYNC_ERROR_WOULD_DEADLOCK);
        answer(gpusync_dispatch(world.machines[world.lanes[i].device].device, 1, NULL), GPUSYNC_ERROR_WOULD_DEADLOCK);
    }
}

static void have_some_told(void)
{
    lane *l = some_lane();
    tide *t = some_tide(-1);
    tally *mine = tally_new();
    gpusync_result result = GPUSYNC_NOT_READY;
    gpusync_ticket ticket = 0;
    void *object;
    unsigned how = byte();
    if (!mine) return;
    if (one_in(6)) some_fault();
    if (how % 3 == 0 && t) {
        result = may(t->device,
                     gpusync_on_done(gpusync_at_value(t->timeline, some_value(t)), how & 4 ? on_talk : on_tally, mine),
                     GPUSYNC_OK, GPUSYNC_ERROR_NOT_RISING);
    } else if (how % 3 == 1 && l) {
        ticket = some_ticket(l);
        result = may(l->device,
                     gpusync_on_done(gpusync_at_ticket(l->queue, ticket), how & 4 ? on_talk : on_tally, mine),
                     GPUSYNC_OK, GPUSYNC_ERROR_INVALID_TICKET);
    } else if (l) {
        object = softmetal_new_witness(on_gone, mine);
        ticket = some_ticket(l);
        mine->releases = true;
        result = may(l->device, gpusync_release_after(gpusync_at_ticket(l->queue, ticket), object), GPUSYNC_OK,
                     GPUSYNC_ERROR_INVALID_TICKET);
        must(mine->calls == 0, "an object that was not retained");
        metal_release(object);
        if (result != GPUSYNC_OK) {
            must(mine->calls == 1, "an object that was retained");
            mine->expected = true;
        }
    }
    no_faults();
    if (result != GPUSYNC_OK) return;
    mine->where = (uint64_t)(uintptr_t)(how % 3 == 0 && t ? (void *)t->timeline : (void *)l->queue);
    mine->ticket = ticket;
    mine->expected = true;
}

/* The last owner of an object is a callback, of another queue or of its own. */
static void on_let_go(void *user, gpusync_result result, const gpusync_error *error)
{
    goer *g = (goer *)user;
    must((result == GPUSYNC_OK) == (error == NULL), "a callback with %d and %s error", result, error ? "an" : "no");
    must(g->taken && !g->begun, "a callback comes twice");
    meet(let_go_by_a_callback);
    g->begun = true;
    if (g->queue) answer(gpusync_queue_destroy_later(g->queue, on_destroyed, g), GPUSYNC_OK);
    else answer(gpusync_timeline_destroy_later(g->timeline, on_destroyed, g), GPUSYNC_OK);
}

static void have_timeline_let_go(lane *l, goer *g)
{
    gpusync_result result;
    gpusync_point point = gpusync_at_ticket(l->queue, some_ticket(l));
    may(l->device, gpusync_timeline_create(world.machines[l->device].device, NULL, &g->timeline), GPUSYNC_OK);
    if (!g->timeline) {
        forget_goer(g);
        return;
    }
    g->where = (uint64_t)(uintptr_t)g->timeline;
    result = may(l->device, gpusync_on_done(point, on_let_go, g), GPUSYNC_OK, GPUSYNC_ERROR_INVALID_TICKET);
    if (result == GPUSYNC_OK) return;
    answer(gpusync_timeline_destroy(g->timeline), GPUSYNC_OK);
    forget_goer(g);
}

/* With work behind that of the callback, or without. */
static void have_queue_let_go(const lane *l, goer *g)
{
    gpusync_queue_desc desc;
    gpusync_ticket first = 0, ticket = 0;
    void *buffer;
    int left = 1 + (int)below_of(3), n = 0;
    memset(&desc, 0, sizeof desc);
    desc.sticky_failure = one_in(2);
    may(l->device, gpusync_queue_create(world.machines[l->device].device, &desc, &g->queue), GPUSYNC_OK);
    if (!g->queue) {
        forget_goer(g);
        return;
    }
    g->where = (uint64_t)(uintptr_t)g->queue;
    gpu_add(gpusync_queue_metal(g->queue));
    while (left-- > 0) {
        buffer = NULL;
        if (may(l->device, gpusync_command_buffer(g->queue, NULL, &buffer), GPUSYNC_OK) != GPUSYNC_OK) break;
        if (one_in(4)) fail_for_a_reason(buffer, l);
        g->buffers[n] = metal_retain(buffer);
        if (one_in(4)) break; /* it is left open */
        if (may(l->device, gpusync_commit(g->queue, buffer, &ticket), GPUSYNC_OK) != GPUSYNC_OK) break;
        first = first ? first : ticket;
        n++;
    }
    if (first && may(l->device, gpusync_on_done(gpusync_at_ticket(g->queue, first), on_let_go, g), GPUSYNC_OK) == GPUSYNC_OK)
        return;
    if (world.machines[l->device].losable) finish_all();
    answer(gpusync_queue_destroy(g->queue), GPUSYNC_OK);
    forget_goer(g);
}

static void have_let_go(void)
{
    lane *l = some_lane();
    goer *g = l ? new_goer(l->device, l) : NULL;
    if (!g) return;
    if (one_in(2)) have_timeline_let_go(l, g);
    else if (gpu.count < METAL_QUEUES) have_queue_let_go(l, g);
    else forget_goer(g);
}

/* What is in flight behind the failure still takes it. What comes is free. */
static void clear_failure(void)
{
    lane *l = some_lane();
    gpusync_stats stats;
    int i;
    if (!l) return;
    if (l->sticky) check_world(); /* whatever has ended by now is known */
    answer(gpusync_queue_clear_failure(l->queue), l->sticky ? GPUSYNC_OK : INVALID);
    if (!l->sticky) return;
    answer(gpusync_get_stats(l->queue, &stats), GPUSYNC_OK);
    meet_if(l->sticks, failure_cleared);
    l->cleared = stats.commits;
    l->sticks = false;
    for (i = 0; i < OPENS; i++)
        if (world.opens[i].lane == index_of(l)) world.opens[i].refused = false;
}

/* A report is as long as it says, or cut. */
static void report_on(gpusync_queue *queue)
{
    static char text[4096];
    size_t size = byte() * 16u, length = gpusync_queue_report(queue, size ? text : NULL, size);
    must(size == 0 || strlen(text) == (length < size ? length : size - 1), "a report of %zu bytes, cut to %zu", length,
         size);
    must(length > 0, "a report without a line");
}

static void look_around(void)
{
    static char text[8192];
    lane *l = some_lane();
    gpusync_ticket_info info;
    gpusync_stats stats;
    gpusync_error error;
    size_t count = 0;
    if (!l) return;
    switch (below_of(6)) {
    case 0:
        (void)(answer(gpusync_get_info(l->queue, some_ticket(l), &info), GPUSYNC_OK, GPUSYNC_NOT_READY,
                      GPUSYNC_ERROR_INVALID_TICKET, GPUSYNC_ERROR_RESULT_UNKNOWN, GPUSYNC_ERROR_DESTROYED,
                      had_a_second(&world.machines[l->device]) ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK));
        break;
    case 1:
        answer(gpusync_get_stats(l->queue, &stats), GPUSYNC_OK);
        must(stats.completions <= stats.commits && stats.failures <= stats.completions &&
                 stats.wakes <= stats.waits_sleep && (stats.wakes || !stats.wake_ns),
             "stats that do not add up");
        answer(gpusync_device_get_stats(world.machines[l->device].device, &stats), GPUSYNC_OK);
        break;
    case 2: (void)gpusync_report(world.machines[l->device].device, text, sizeof text); break;
    case 3:
        while (gpusync_next_error(l->queue, &l->cursor, &error) == GPUSYNC_OK) {
            must(error.result < 0 && (error.dropped == 0 || l->forgets || world.was_short), "a failure with %d",
                 error.result);
            must(gpusync_failure_is_transient(error.failure) == may_pass(error.failure), "a failure of class %d",
                 (int)error.failure);
            must(gpusync_poll(l->queue, error.ticket) < 0, "ticket %llu has failed", (unsigned long long)error.ticket);
            must(gpusync_get_info(l->queue, error.ticket, &info) != GPUSYNC_ERROR_DEVICE_LOST,
                 "ticket %llu was given up, and is on record", (unsigned long long)error.ticket);
        }
        break;
    case 4:
        answer(gpusync_dispatch(world.machines[l->device].device, 1 + below_of(4), &count), GPUSYNC_OK);
        must(count == 0 || world.machines[l->device].manual, "%zu callbacks that were not due here", count);
        break;
    default:
        must(!gpusync_is_idle(l->queue) || gpusync_poll(l->queue, GPUSYNC_EVERYTHING) != GPUSYNC_NOT_READY, "idle");
        (void)gpusync_device_is_lost(world.machines[l->device].device);
        break;
    }
}

/* -- warm-ups ----------------------------------------------------------------------------------------- */

static void run_a_job(void *user)
{
    __atomic_fetch_add((unsigned *)user, 1, __ATOMIC_SEQ_CST);
}

static void tell_report(gpusync_device *device)
{
    static char text[16384];
    gpusync_report(device, text, sizeof text);
    fprintf(stderr, "%s\n", text);
}

static void await_warmup(void)
{
    size_t done = 0, total = 0;
    while (gpusync_warmup_poll(world.warmup, &done, &total) == GPUSYNC_NOT_READY) {
        gpu_warm();
        if (gpu.naps == 20000) tell_report(world.machines[world.warmup_device].device);
    }
    must(done == total, "a warm-up that is done with %zu of %zu", done, total);
}

static bool has_open(const lane *l)
{
    int i;
    for (i = 0; i < OPENS; i++)
        if (world.opens[i].buffer && world.opens[i].lane == index_of(l)) return true;
    return false;
}

static void warm_up(void)
{
    static const char *const sources[] = {"kernel void add() {}", "kernel void sub() {}", "#error"};
    static unsigned jobs_run;
    gpusync_warmup_job job = {run_a_job, &jobs_run};
    gpusync_pipeline_desc pipelines[3];
    gpusync_warmup_desc desc;
    lane *l = some_lane();
    uint64_t later;
    unsigned how = byte();
    gpusync_error error;
    void *pipeline = &desc;
    size_t i;
    if (!l || (l->metal4 && !world.warmup)) return;
    if (world.warmup) {
        gpusync_result result;
        i = below_of(4);
        world.short_of_memory = world.warmed_short;
        result = may(world.warmup_device, gpusync_warmup_pipeline(world.warmup, i, some_time(), &pipeline, &error),
                     WARMS, INVALID, GPUSYNC_ERROR_EXECUTION);
        must((result == GPUSYNC_OK) == (pipeline != NULL), "a pipeline with %d", result);
        world.short_of_memory = world.warmed_short;
        may(world.warmup_device, gpusync_warmup_wait(world.warmup, some_time()), WARMS, GPUSYNC_ERROR_EXECUTION,
            GPUSYNC_ERROR_CANCELLED);
        if (how & 1) return;
        answer(gpusync_warmup_destroy(world.warmup), GPUSYNC_OK);
        world.warmup = NULL;
        for (i = 0; i < QUEUES; i++) world.lanes[i].warming = false;
        return;
    }
    if (world.machines[l->device].losable) return;
    memset(&desc, 0, sizeof desc);
    memset(pipelines, 0, sizeof pipelines);
    for (i = 0; i < 3; i++) {
        pipelines[i].source = sources[below_of(3)];
        pipelines[i].function = one_in(2) ? "add" : "sub";
    }
    desc.pipelines = pipelines;
    desc.pipeline_count = how % 4;
    desc.jobs = &job;
    desc.job_count = how >> 2 & 1;
    desc.queue = how & 8 ? l->queue : NULL;
    desc.blocking = how & 16;
    desc.disabled = how & 32;
    if (!desc.queue) return; /* the fuzzer cannot step the warm-up's own Metal queue */
    /* it waits for room, and behind what is held, however long that takes */
    if (!gpusync_is_idle(l->queue) || has_open(l) || find_due(l->metal, 0)) return;
    l->warming = true;
    come_to_rest_now();
    gpu.warming = l->metal;
    gpu.naps = 0;
    later = clock_now + SECONDS(1000);
    jobs_run = 0;
    if (desc.blocking && one_in(4)) some_fault();
    world.warmed_short = world.short_of_memory;
    may(l->device, gpusync_warmup_start(world.machines[l->device].device, &desc, &world.warmup), GPUSYNC_OK);
    no_faults();
    world.warmup_device = l->device;
    if (world.warmup) await_warmup();
    else l->warming = false;
    gpu.warming = NULL;
    come_to_rest_now();
    PUT(&clock_now, later);
    must(!world.warmup || jobs_run == (desc.disabled ? 0 : desc.job_count), "%u jobs", jobs_run);
}

/* -- the whole ---------------------------------------------------------------------------------------- */

static void fail_timelines(void)
{
    int i;
    for (i = 0; i < TIMELINES; i++)
        if (world.tides[i].timeline) (void)gpusync_timeline_fail(world.tides[i].timeline, NULL);
}

/* Nothing has moved for long: others signal what they were expected to. Then the GPU's watchdog comes. */
static void unstick(unsigned idle)
{
    softmetal_due due = SOFTMETAL_NOTHING_DUE;
    int i;
    unsigned k;
    void *buffer;
    for (i = 0; i < world.event_count; i++) metal_event_signal(world.events[i], GPUSYNC_MAX_VALUE / 2);
    for (i = 0; i < DEVICES && idle == 4032; i++)
        if (world.machines[i].device && !world.machines[i].goes) tell_report(world.machines[i].device); /* it will not get any better */
    if (idle < 512) return;
    must(world.leaving < 0 || !world.machines[world.lanes[world.leaving].device].lost,
         "destroy waits on for work of a lost device");
    /* what is destroyed waits for what others hold: a pending signal, say, of a value below the one that it has seen */
    for (i = 0; i < QUEUES && idle == 1024; i++)
        if (world.lanes[i].queue && i != world.leaving) (void)gpusync_cancel_held(world.lanes[i].queue);
    if (idle == 2048) fail_timelines(); /* "a ticket whose command buffer was killed never ends" of known_red.c */
    come_to_rest_now(); /* what all this made due is done, and releases command buffers no more */
    for (i = 0; i < gpu.count; i++)
        for (k = 0; (buffer = softmetal_due_at(gpu.queues[i], k, &due)) != NULL; k++) {
            if (due == SOFTMETAL_WAIT_DUE) softmetal_time_out(buffer);
            if (due == SOFTMETAL_WAIT_DUE && answers(gpu.queues[i], "commit:count:")) return; /* its run goes on */
            if (due != SOFTMETAL_WAIT_DUE && due != SOFTMETAL_FAULT_DUE) continue;
            softmetal_finish(buffer);
            return;
        }
}

/* If it has a queue of Metal 4 that goes, or went, before work tells of the loss, that queue's last signal is never made,
   and what the signal needs is kept for good. Such a device is lost by failing work alone. */
static bool may_be_removed(const machine *m)
{
    int k;
    for (k = 0; k < QUEUES; k++)
        if (world.lanes[k].queue && world.lanes[k].metal4 && &world.machines[world.lanes[k].device] == m) return false;
    return m->metal && !m->goes && !m->left_by4 && !world.gentle;
}

static void lose_a_device(void)
{
    machine *m = &world.machines[below_of(DEVICES)];
    if (!may_be_removed(m) || !one_in(world.newer ? 4 : 8)) return;
    may_be_lost(m);
    m->removed = true;
    softmetal_remove_device(m->metal);
}

static void give_up_held(void)
{
    lane *l = some_lane();
    if (!l) return;
    if (one_in(4)) answer(gpusync_cancel_held(l->queue), GPUSYNC_OK);
    else encode_some();
}

static void do_something4(void)
{
    switch (below_of(8)) {
    case 0:
    case 1: make_four(); break;
    case 2: record_again(); break;
    case 3:
    case 4: commit4_some(); break;
    case 5:
    case 6: submit_some(); break;
    default: refuse4(); break;
    }
}

/* For all that was committed, and perhaps for a value, which may never come. */
static void wait_for_row(const lane *l, gpusync_point *points, size_t count)
{
    const tide *t = one_in(2) ? some_tide(l->device) : NULL;
    gpusync_wait_for wait_for = (gpusync_wait_for)below_of(3);
    gpusync_wait_options options;
    size_t which = 0;
    memset(&options, 0, sizeof options);
    options.spin = some_spin();
    if (t) points[count++] = gpusync_at_value(t->timeline, t->value + 1);
    await_points(points, count, wait_for);
    may(l->device, gpusync_wait_many(points, count, wait_for, some_time(), &options, &which), ENDS, GPUSYNC_TIMEOUT, MISFITS);
    await_nothing();
    must(which <= count, "the point %zu of %zu", which, count);
}

/* The device is lost behind them. */
static void wait_for_lost(const lane *l, gpusync_ticket ticket)
{
    machine *m = &world.machines[l->device];
    gpusync_wait_options options;
    gpusync_result result;
    memset(&options, 0, sizeof options);
    options.handlers = one_in(3);
    if (!may_be_removed(m)) return;
    may_be_lost(m);
    m->removed = true;
    softmetal_remove_device(m->metal);
    if (one_in(2)) (void)gpusync_wait(l->queue, ticket, 0); /* it finds the loss, perhaps */
    result = may(l->device, gpusync_wait_ex(l->queue, ticket, some_time(), &options), ENDS, GPUSYNC_TIMEOUT);
    check_wait_on_lost(l->device, index_of(l), ticket, options.handlers, result);
}

/* Work of this lane takes the device with it. */
static void lose_by_work(lane *l)
{
    const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    gpusync_ticket ticket = 0;
    void *buffer = NULL;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &none;
    if (l->metal4 || gpusync_command_buffer(l->queue, &desc, &buffer) != GPUSYNC_OK) return;
    may_be_lost(&world.machines[l->device]);
    softmetal_fail_as(buffer, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    (void)metal_retain(buffer);
    if (gpusync_commit(l->queue, buffer, &ticket) != GPUSYNC_OK) {
        answer(gpusync_command_buffer_discard(l->queue, buffer), GPUSYNC_OK);
    } else {
        (void)remember_work(l, ticket, buffer, NULL, true, false);
        if (softmetal_what_is_due(buffer) == SOFTMETAL_COMPLETE_DUE) softmetal_finish(buffer);
        come_to_rest_now();
    }
    metal_release(buffer);
}

/* ... and the GPU hangs. */
static void wait_for_hung(const lane *l, gpusync_ticket ticket)
{
    lane *other = some_lane();
    gpusync_wait_options options;
    gpusync_result result;
    uint64_t time = MS(1) << below_of(16);
    if (world.gentle || other->device != l->device || (other == l && gpu.in_order)) return;
    memset(&options, 0, sizeof options);
    options.handlers = one_in(3);
    lose_by_work(other);
    gpu.hangs = true;
    result = may(l->device, gpusync_wait_ex(l->queue, ticket, time, &options), ENDS, GPUSYNC_TIMEOUT);
    gpu.hangs = false;
    check_wait_on_lost(l->device, index_of(l), ticket, options.handlers, result);
}

/* One behind the other, and some of them fail: of what is in flight together the first failure counts. */
static void commit_a_row(void)
{
    lane *l = some_lane();
    unsigned how = byte(), left = 1 + how % 4;
    const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    gpusync_point points[5];
    size_t count = 0;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &none;
    while (l && !l->metal4 && left-- > 0 && (l->given || softmetal_outstanding(l->metal) <= 40)) {
        gpusync_ticket ticket = 0;
        gpusync_result result;
        void *buffer = NULL;
        result = may(l->device, gpusync_command_buffer(l->queue, &desc, &buffer), GPUSYNC_OK, GPUSYNC_TIMEOUT,
                     GPUSYNC_ERROR_QUEUE_FULL, l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        check_admission(l, result, false);
        if (!buffer) break;
        (void)metal_retain(buffer);
        if (how >> left & 16) softmetal_fail_as(buffer, SOFTMETAL_TIMEOUT, NULL);
        result = may(l->device, gpusync_commit(l->queue, buffer, &ticket), GPUSYNC_OK, NOT_HELD,
                     l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        check_admission(l, result, false);
        if (result == GPUSYNC_OK) {
            (void)remember_work(l, ticket, buffer, NULL, true, false);
            points[count++] = gpusync_at_ticket(l->queue, ticket);
        } else {
            answer(gpusync_command_buffer_discard(l->queue, buffer), GPUSYNC_OK);
        }
        metal_release(buffer);
    }
    if (count == 0) return;
    how = below_of(16);
    if (how < 7) wait_for_row(l, points, count);
    if (how == 7) wait_for_lost(l, points[one_in(2) ? 0 : count - 1].ticket);
    if (how == 8) wait_for_hung(l, one_in(4) ? GPUSYNC_EVERYTHING : points[one_in(2) ? 0 : count - 1].ticket);
}

/* What came with 0.3. */
static void do_something_new(void)
{
    lane *l;
    switch (below_of(14)) {
    case 0:
    case 1: clear_failure(); break;
    case 2: have_let_go(); break;
    case 3: go_on(1 + below_of(4)); break;
    case 4:
        l = some_lane();
        if (l) destroy_queue(l, LATER);
        break;
    case 5:
        l = some_lane();
        if (l) report_on(l->queue);
        break;
    case 6: check_struct_sizes(); break;
    case 7: commit_one(); break;
    case 8:
    case 9: submit_some(); break;
    default: commit_a_row(); break;
    }
}

static void do_something(void)
{
    lane *l;
    tide *t;
    if (world.mixed && one_in(2)) {
        do_something4();
        return;
    }
    if (world.newer && byte() % 4 == 1) {
        do_something_new();
        return;
    }
    switch (below_of(36)) {
    case 0: make_device(); break;
    case 1: make_queue(); break;
    case 2: make_timeline(); break;
    case 3:
    case 4:
    case 5: make_buffer_by_gpusync(); break;
    case 6: make_buffer_by_metal(); break;
    case 7: discard(); break;
    case 8:
    case 9: commit_one(); break;
    case 10: track_one(); break;
    case 11: untrack_one(); break;
    case 12: commit_behind_the_back(); break;
    case 13: read_from_now(); break;
    case 14:
    case 15:
    case 16:
    case 17: submit_some(); break;
    case 18:
    case 19: move_timeline(); break;
    case 20: fail_a_buffer(); break;
    case 21:
    case 22:
    case 23:
    case 24: (void)gpu_step_any(); break;
    case 25:
    case 26: wait_for_some(); break;
    case 27: have_some_told(); break;
    case 28:
    case 29: look_around(); break;
    case 30: give_up_held(); break;
    case 31: lose_a_device(); break;
    case 32:
        l = some_lane();
        if (l && one_in(4)) destroy_queue(l, some_way());
        break;
    case 33: warm_up(); break;
    case 34:
        l = some_lane();
        t = l ? some_tide(l->device) : NULL;
        talk_nonsense(l ? world.machines[l->device].device : NULL, l ? l->queue : NULL, t ? t->timeline : NULL,
                      l && l->sticky);
        break;
    default: destroy_device((int)below_of(DEVICES)); break;
    }
}

/* Of lost devices: then their work has ended, or was given up. */
static void let_the_second_pass(void)
{
    uint64_t until = clock_now + SECONDS(3);
    unsigned rounds = 0;
    int i;
    while (clock_now < until && pass_time()) must(rounds++ < 4096, "time does not pass");
    check_world();
    for (i = 0; i < world.work_count; i++) {
        work *w = &world.works[i];
        must(w->lane < 0 || !world.machines[world.lanes[w->lane].device].lost || w->over || w->given_up,
             "a second after the loss ticket %llu of queue %d is neither over nor given up", (unsigned long long)w->ticket,
             w->lane);
    }
    for (i = 0; i < TIMELINES; i++) {
        const tide *t = &world.tides[i];
        uint64_t value;
        must(!t->timeline || !world.machines[t->device].lost || gpusync_timeline_query(t->timeline, &value) < 0,
             "a second after the loss timeline %d has not failed", i);
    }
}

/* The GPU gets through with everything, whatever it takes. */
static void finish_all(void)
{
    unsigned idle = 0;
    do gpu_finish();
    while (any_in_flight() && (unstick(idle += 64), gpu_step(0, 0, true) || idle < 4096));
}

/* All has ended. A lost device keeps the room of what it had in flight, and a Metal queue that is not ours that of buffers
   which were given up and that we keep. */
static void check_room(void)
{
    int i;
    for (i = 0; i < QUEUES; i++) {
        const lane *l = &world.lanes[i];
        if (!l->queue || !l->given || l->metal4 || l->sticky || world.machines[l->device].losable) continue;
        fill_queue(l->queue, l->room, 0);
    }
}

static void check_all_has_ended(void)
{
    int i;
    if (gpu.loses && one_in(2)) let_the_second_pass();
    for (i = 0; i < QUEUES; i++)
        if (world.lanes[i].queue) answer(gpusync_cancel_held(world.lanes[i].queue), GPUSYNC_OK);
    for (i = 0; i < OPENS; i++) {
        opened *o = &world.opens[i];
        if (!o->buffer) continue;
        if (o->tracked)
            (void)untrack_now(&world.lanes[o->lane], o);
        else if (o->made)
            answer(gpusync_command_buffer_discard(world.lanes[o->lane].queue, o->buffer), GPUSYNC_OK);
        check_refused(o);
        let_go(o);
    }
    finish_all();
    come_to_rest_now();
    check_world();
    /* A value that is to be signalled by work that waits for a higher one waits for itself: the program's mistake, which only
       this ends. */
    fail_timelines();
    finish_all();
    come_to_rest_now();
    check_world();
    for (i = 0; i < world.work_count; i++) {
        const work *w = &world.works[i];
        const machine *m = w->lane < 0 ? NULL : &world.machines[world.lanes[w->lane].device];
        if (!m || w->over || w->given_up || (m->losable && !m->lost)) continue;
        tell_report(m->device);
        must(false, "ticket %llu of queue %d has not ended", (unsigned long long)w->ticket, w->lane);
    }
    check_room();
}

static way some_last_way(void)
{
    bool now = !world.gentle && one_in(3);
    if (world.newer && one_in(2)) return LATER;
    return now ? AT_ONCE : WAITING;
}

/* All that goes later is gone, each once. */
static void await_goers(void)
{
    unsigned rounds = 0;
    bool any = true;
    int i;
    while (any) {
        finish_all();
        go_on(SIZE_MAX);
        any = false;
        for (i = 0; i < GOERS; i++)
            any = any || (world.goers[i].taken && !world.goers[i].silent && !world.goers[i].told);
        for (i = 0; i < DEVICES; i++) {
            if (rounds > 16 && !world.machines[i].goes) destroy_device(i); /* perhaps all that it has is silent */
            any = any || world.machines[i].device;
        }
        must(rounds++ < 2000, "what was destroyed later does not go");
    }
}

static void destroy_all(void)
{
    bool timelines_first = one_in(2), devices_first = world.newer && one_in(3);
    int i;
    if (world.warmup) answer(gpusync_warmup_destroy(world.warmup), GPUSYNC_OK);
    world.warmup = NULL;
    if (devices_first) fail_timelines(); /* a report on a device that goes could not say what waits for itself */
    for (i = 0; i < DEVICES && devices_first; i++)
        if (world.machines[i].device && !world.machines[i].goes) destroy_device_later(i);
    for (i = 0; i < TIMELINES && timelines_first; i++)
        if (world.tides[i].timeline) destroy_timeline(&world.tides[i], world.newer && one_in(2) ? LATER : WAITING);
    for (i = 0; i < QUEUES; i++)
        if (world.lanes[i].queue) destroy_queue(&world.lanes[i], some_last_way());
    for (i = 0; i < TIMELINES; i++)
        if (world.tides[i].timeline) destroy_timeline(&world.tides[i], world.newer && one_in(2) ? LATER : WAITING);
    for (i = 0; i < DEVICES; i++) destroy_device(i);
    if (world.newer) await_goers();
    finish_all();
    gpu_forget();
    while (world.event_count > 0) metal_release(world.events[--world.event_count]);
    while (world.allocator_count > 0) metal_release(world.allocators[--world.allocator_count]);
    give_back_all_that_stays();
}

/* Ways in which devices may differ. */
static void draw_quirks(void)
{
    softmetal_quirks quirks;
    unsigned how = byte();
    softmetal_get_quirks(&quirks);
    quirks.bare_feedback_errors = how & 1;
    quirks.options_keep_handlers = how & 2;
    meet_if(how & 2, commit_options_keep_handlers);
    quirks.bare_errors = how & 4;
    quirks.ioaccel_errors = how & 8;
    quirks.ioaf_errors = how & 16;
    /* Not signals_die_with_failure: what the last signals need, and the queue, would stay for good. */
    softmetal_set_quirks(&quirks);
}

static void play_calls(bool mixed, bool newer)
{
    unsigned how = byte(), more;
    int i;
    memset(&world, 0, sizeof world);
    for (i = 0; i < WORKS; i++) world.works[i].lane = -1;
    for (i = 0; i < FOURS; i++) world.fours[i].lane = -1;
    world.mixed = mixed;
    world.newer = newer;
    world.gentle = how & 1;
    world.leaving = -1;
    gpu.in_order = how & 2;
    gpu.unstick = unstick;
    gpu.sweeps = newer;
    gpu.loses = false;
    gpu.idle = 0;
    softmetal_set_clock(SOFTMETAL_MANUAL);
    if (mixed) draw_quirks();
    make_device();
    make_queue();
    for (i = 0; i < 2 && newer; i++) {
        make_queue();
        make_timeline();
    }
    more = how >> 3;
    while (!input_is_over() || more-- > 0) { /* a short input goes on for a while by itself */
        do_something();
        gpu.idle = 0;
        come_to_rest_now();
        bury_devices();
        check_world();
    }
    if (how & 4) check_all_has_ended();
    destroy_all();
    gpu.unstick = NULL;
    gpu.sweeps = gpu.loses = false;
    check_tallies();
}

#endif
