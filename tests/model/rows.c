/* The rows of model.sh: one of these, chosen by -DROW_..., is the whole program. Threads are a, b and c. Each calls
   gpusync.h's own functions on objects that are made by initialisers, which cost the checker nothing. References are
   so many that nothing goes, but in a row that is about that. */
#include "world.h"

#include <stdlib.h>

#define RING(ring)                       \
    {                                    \
        .next = &(ring), .prev = &(ring) \
    }
#define OBJECT(its_kind, of)                                                               \
    {                                                                                      \
        .kind = &(its_kind), .device = &D, .refs = 9, .waiting = RING((of).object.waiting) \
    }

static void hook_unpark(void *user, gpusync_waiter *waiter);
static void hook_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns);
static void hook_yield(void *user)
{
    __VERIFIER_assume(false); /* the thread comes back when what it waits for is there: that order is looked at */
}

static struct gpusync_device D = {
    .refs = 9, .hooks = {hook_yield, hook_park, hook_unpark, NULL}, .moved = RING(D.moved), .due = RING(D.due)};
static gpusync_error LOG[2];
static gpusync__work W[2];
static struct gpusync_queue Q = {
    .object = OBJECT(gpusync__queues, Q),
    .line = RING(Q.line),
    .late = RING(Q.late),
    .loose = {.works = RING(Q.loose.works), .stirred = RING(Q.loose.stirred), .waiting = RING(Q.loose.waiting)},
    .open = {.works = RING(Q.open.works)},
    .held = {.stirred = RING(Q.held.stirred), .send = gpusync__issue_job},
    .room = {.limit = 8, .waiting = RING(Q.room.waiting)},
    .moved = {.fire = gpusync__settle_all},
    .record = {.size = 2, .errors = LOG},
};
#define TIMELINE(of)                                                                                                 \
    {                                                                                                                \
        .object = OBJECT(gpusync__timelines, of), .promised = RING((of).promised), .expecting = RING((of).expecting) \
    }
static struct gpusync_timeline T[2] = {TIMELINE(T[0]), TIMELINE(T[1])};

static uint32_t metal_status = GPUSYNC__STATUS_COMMITTED;
static uint32_t data; /* not atomic: written by the GPU, or by the program */
static uint32_t sent; /* likewise: [commit] of W[0] */
static void *buffer = &data;
static gpusync_error EXECUTION = {.result = GPUSYNC_ERROR_EXECUTION, .failure = GPUSYNC_FAILURE_OTHER};

/* -- what the header leaves to Metal, and to other rows */

static unsigned long gpusync__send_ulong(void *self, void *sel)
{
#ifdef ROW_closed
    assert(sent == 1); /* no look asks a command buffer in front of [commit] */
#endif
    return RELAXED(&metal_status); /* Metal does not say more */
}
static void gpusync__send_work(gpusync_device *dev, gpusync__work *w)
{
    sent++;
}
static void gpusync__read_failure(void *source, void *command_buffer, gpusync_error *error) {}
static void gpusync__describe(const gpusync__work *w, gpusync_error *error)
{
    gpusync__own_error(error, w->result, NULL);
    error->ticket = gpusync__ticket_of(w);
}
static void gpusync__own_error(gpusync_error *error, gpusync_result result, const char *message)
{
    error->result = result;
    error->failure = GPUSYNC_FAILURE_OTHER;
    error->ticket = error->origin = 0;
    error->dropped = error->inherited = 0;
}
static gpusync_result gpusync_wait_many(const gpusync_point *points, size_t count, gpusync_wait_for how,
                                        uint64_t timeout_ns, const gpusync_wait_options *options, size_t *which)
{
    return GPUSYNC_TIMEOUT;
}
static gpusync_result gpusync__wait_point(const gpusync_point *point, uint64_t timeout_ns,
                                          const gpusync_wait_options *options)
{
    return GPUSYNC_TIMEOUT;
}
static gpusync__work *gpusync__foreign(gpusync_queue *q, void *buffer, gpusync__work *memory, gpusync_result *result)
{
    *result = GPUSYNC_ERROR_WRONG_QUEUE;
    return NULL;
}
static gpusync_result make(void *user, size_t i, void **made, gpusync_error *error)
{
    *made = &data;
    return GPUSYNC_OK;
}

/* One sleeper. Its permit and that it sleeps are in one word, so that both are read at once. The first park ends for no
   reason, as at the end of a slice. */
enum { PERMIT = 1, ASLEEP = 2 };
static uint32_t bed, parks;
static void hook_unpark(void *user, gpusync_waiter *waiter)
{
    (void)*(void *volatile *)waiter->scheduler_data; /* the frame has to be there */
    __atomic_fetch_or(&bed, PERMIT, __ATOMIC_ACQ_REL);
}
static void hook_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    if (!parks++)
        return;
    __atomic_fetch_or(&bed, ASLEEP, __ATOMIC_ACQ_REL);
    __VERIFIER_assume(__atomic_load_n(&bed, __ATOMIC_ACQUIRE) & PERMIT);
    (void)__atomic_exchange_n(&bed, 0, __ATOMIC_ACQUIRE);
}

/* -- work of the queue, which has one of W each */

/* Work that is on no queue yet. */
static void have(int i, bool unordered)
{
    gpusync__work *w = &W[i];
    w->queue = &Q;
    w->refs = 9;
    w->buffers = &buffer;
    w->count = w->unheard = 1;
    w->unordered = unordered;
    w->gpu_end = 7;
}

/* Work that Metal has; its handler is still to come, so it stays on the queue's list. */
static void have_sent(int i, bool unordered)
{
    have(i, unordered);
    W[i].state = GPUSYNC__SENT;
    gpusync__line_up(&Q, &W[i]);
    Q.sent_count++;
}

/* Ends it, as gpusync__completed does. */
static void end(int i, gpusync_result result)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(&D);
    W[i].result = result;
    gpusync__end_work(&W[i], 1, &after);
    gpusync__finish(&D, &after);
}

#if !defined(ROW_warm)
static gpusync_result gpusync__await_goal(gpusync__goal *goal, uint64_t timeout_ns)
{
    return GPUSYNC_TIMEOUT;
}
#endif

/* -- the rows */

#define THREAD(name)                \
    static void name##_does(void);  \
    static void *name(void *unused) \
    {                               \
        name##_does();              \
        return unused;              \
    }                               \
    static void name##_does(void)

#if defined(ROW_completed)
/* The GPU writes, a look finds the end, a third thread asks: it reads what the GPU wrote, the times and the failure. */
THREAD(a)
{
    data = 1;
    __atomic_store_n(&metal_status, GPUSYNC__STATUS_COMPLETED, __ATOMIC_RELEASE);
}
THREAD(b)
{
    bool failed;
    if (gpusync__is_over(&W[0], &failed))
        gpusync__found_ended(&W[0], failed);
}
THREAD(c)
{
    gpusync_times times;
    if (!gpusync_is_done(&Q, 1))
        return;
    assert(data == 1);
    assert(gpusync_poll(&Q, 1, &times) == GPUSYNC_OK && times.gpu_end_s == 0); /* no handler has come */
}
#define BEFORE have_sent(0, false)

#elif defined(ROW_bad)
/* A ticket fails. A caller that asks for POINT, the ticket or everything, learns nothing yet, or the failure, never
   OK. */
THREAD(a)
{
    end(0, GPUSYNC_ERROR_EXECUTION);
}
THREAD(b)
{
    assert(!gpusync__is_well(&Q, POINT));
}
#define BEFORE have_sent(0, false)

#elif defined(ROW_stuck)
/* A failure sticks, and a wait for everything tells of it: a poll for everything is not OK all the same. */
THREAD(a)
{
    end(0, GPUSYNC_ERROR_EXECUTION);
}
THREAD(b)
{
    gpusync__goal goal;
    gpusync__goal_all(&Q, false, &goal);
    gpusync__wait wait = {.device = &D, .goals = &goal, .count = 1, .which = 1, .how = GPUSYNC_WAIT_ALL};
    gpusync__check_now(&wait, true);
}
THREAD(c)
{
    assert(!gpusync__is_well(&Q, GPUSYNC_EVERYTHING));
}
#define BEFORE have_sent(0, false), Q.record.sticky = true

#elif defined(ROW_busy_queue)
/* Of two works, of which one is UNORDERED, the second is committed before the first ends: the queue is never idle. FIRST:
   whether the first is the UNORDERED one. */
THREAD(a)
{
    gpusync__lock(&D);
    have_sent(1, !FIRST);
    gpusync__unlock(&D);
    end(0, GPUSYNC_OK);
}
THREAD(b)
{
    assert(!gpusync_is_done(&Q, GPUSYNC_EVERYTHING));
    assert(gpusync_in_flight(&Q) - 1 < 2); /* 1 or 2 */
}
#define BEFORE have_sent(0, FIRST)

#elif defined(ROW_failed)
/* A timeline gets a value, then fails. A thread that sees the value reads what was written before it; one that sees the
   failure has its result and the last value. */
THREAD(a)
{
    gpusync__after after = GPUSYNC__NOTHING;
    data = 1;
    gpusync__lock(&D);
    gpusync__reach(&T[0], 1, &after);
    gpusync__unlock(&D);
    gpusync__lock(&D);
    gpusync__fail(&T[0], &EXECUTION, &after);
    gpusync__unlock(&D);
}
THREAD(b)
{
#ifdef WAIT
    if (gpusync_timeline_wait(&T[0], 1, 0, NULL) == GPUSYNC_OK)
        assert(data == 1);
#else
    uint64_t value;
    gpusync_result result = gpusync_timeline_query(&T[0], &value, NULL);
    assert(result == GPUSYNC_OK || (result == GPUSYNC_ERROR_EXECUTION && value == 1));
    if (value == 1)
        assert(data == 1);
#endif
}

#elif defined(ROW_lost)
/* A thread that sees that the device is lost has the reason, and when. */
THREAD(a)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(&D);
    gpusync__lose(&D, &(gpusync_error){.failure = GPUSYNC_FAILURE_ACCESS_REVOKED}, 1, &after);
    gpusync__unlock(&D);
}
THREAD(b)
{
    if (gpusync_device_is_lost(&D))
        assert(RELAXED(&D.lost) == GPUSYNC_FAILURE_ACCESS_REVOKED);
    assert(!gpusync__lost_long(&D)); /* reads lost_ns; the clock stands still */
}

#elif defined(ROW_closed)
/* A commit against the destroy that gives up: there is no look at a buffer, and no end of abandon, in front of
   [commit]. */
THREAD(a)
{
    gpusync_result result = gpusync__enter(&Q, &W[0], NULL, false, NULL);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
}
THREAD(b)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(&D);
    gpusync__shut(&Q.object, &after);
    gpusync__finish(&D, &after);
    gpusync__abandon(&Q);
    assert(Q.object.head.committed == sent);
}
#define BEFORE have(0, false)

#elif defined(ROW_wakers)
/* A thread waits for both timelines, which two others signal, or one of them closes: no wake-up is lost, and no waker
   touches the frame after its end. */
THREAD(a)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(&D);
    gpusync__reach(&T[0], 1, &after);
    gpusync__finish(&D, &after);
}
THREAD(b)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(&D);
#ifdef CLOSE
    gpusync__shut(&T[1].object, &after);
#else
    gpusync__reach(&T[1], 1, &after);
#endif
    gpusync__finish(&D, &after);
}
#define VALUE(i)                                                                                           \
    {                                                                                                      \
        .node = {.fire = gpusync__rouse}, .object = &T[i].object, .aim = &gpusync__for_number, .number = 1 \
    }
static gpusync__goal goals[2] = {VALUE(0), VALUE(1)};
THREAD(c)
{
    gpusync__wait wait = {.device = &D, .goals = goals, .count = 2, .which = 2, .how = GPUSYNC_WAIT_ALL};
    gpusync__sleeper *s = malloc(sizeof *s);
    gpusync__sleeper_init(s, &D, goals, 2);
    while (!gpusync__prepare(&wait, s, false))
        hook_park(NULL, &s->waiter, 0);
    gpusync__sleeper_end(s, &D);
    free(s);
#ifdef CLOSE
    assert(wait.result == GPUSYNC_ERROR_DESTROYED);
#endif
}

#elif defined(ROW_missed)
/* A thread makes work ready, whose job sends it. Another one has the order lock, for a commit that is refused, for
   nothing, or for other work, by the same job: all is sent. */
static void make_ready(gpusync__work *w)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(&D);
    gpusync__stir(w, &after);
    gpusync__finish(&D, &after);
}
THREAD(a)
{
#if defined(TWO)
    make_ready(&W[1]);
#elif defined(NOTHING)
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__issue(&Q, &after); /* what was ready has been sent */
#else
    gpusync__enter(&Q, NULL, NULL, false, NULL); /* there is no such open work */
#endif
}
THREAD(b)
{
    make_ready(&W[0]);
}
#define BEFORE before()
static void before(void)
{
    for (int i = 0; i < 2; i++) {
        have(i, true);
        W[i].state = GPUSYNC__HELD;
        gpusync__line_up(&Q, &W[i]);
    }
    Q.held.count = 2;
}
#define AFTER assert(Q.held.stirred.next == &Q.held.stirred && !Q.held.issue.listed)

#elif defined(ROW_job)
/* Two threads change what a job is about, and have it run: it sees both changes, though it may run once, and it is
   listed by one thread at a time. */
static gpusync__job job;
static uint32_t changes, seen;
static void look_at_changes(gpusync__job *ran, gpusync__after *after)
{
    gpusync__lock(&D);
    seen = changes;
    gpusync__unlock(&D);
}
static void *change(void *unused)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(&D);
    changes++;
    gpusync__later(&after, &job, look_at_changes);
    gpusync__finish(&D, &after);
    return unused;
}
#define a change
#define b change
#define AFTER assert(seen == 2 && !job.listed)

#elif defined(ROW_busy)
/* The last callback of an object runs: a thread that sees no object, and then that nothing runs, sees what the callback
   wrote. */
THREAD(a)
{
    gpusync__run_due(&D, NULL, 1);
}
THREAD(b)
{
    gpusync__lock(&D);
    bool in_use = D.alive != 0;
    gpusync__unlock(&D);
    if (in_use)
        return;
    gpusync__outlast(&D, NULL, &D.calling, 0, GPUSYNC_FOREVER);
    assert(data == 1);
}
static void destroyed(void *user)
{
    data = 1;
}
#define BEFORE before()
static void before(void)
{
    gpusync__after after = GPUSYNC__NOTHING;
    D.alive = 1;
    Q.object.gone.object = &Q.object;
    Q.object.gone.built_in = true;
    Q.object.gone.destroyed = destroyed;
    gpusync__append(&D, &Q.object.gone, &after);
}

#elif defined(ROW_asked)
/* Callbacks become due, TWO: by two threads, while the dispatch queue runs others: each is run, or the queue is asked
   to. */
static uint32_t ran, dispatched;
void gpusync__dispatch_async(void *queue, void *context, void (*fn)(void *))
{
    __atomic_fetch_add(&dispatched, 1, __ATOMIC_RELAXED);
}
static void called(void *user, gpusync_result result, const gpusync_error *error)
{
    ran++;
}
#ifdef TWO
enum { CALLS = 3 };
#else
enum { CALLS = 2 };
#endif
static gpusync__callback *calls[CALLS];
static void *post(void *i)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(&D);
    gpusync__append(&D, calls[(intptr_t)i], &after);
    gpusync__finish(&D, &after);
    return i;
}
#define a post
#ifdef TWO
#define JOIN_C
THREAD(c)
{
    post((void *)2);
}
#endif
THREAD(b)
{
    gpusync__answer(&D);
}
#define BEFORE before()
static void before(void)
{
    for (int i = 0; i < CALLS; i++) {
        calls[i] = malloc(sizeof *calls[i]);
        calls[i]->object = &Q.object;
        calls[i]->node.number = 0;
        calls[i]->error.result = GPUSYNC_OK;
        calls[i]->user = NULL;
        calls[i]->fn = called;
        calls[i]->destroyed = NULL;
        calls[i]->lost = NULL;
        calls[i]->built_in = false;
    }
    Q.object.owed = CALLS;
    post((void *)1);
}
#define AFTER assert(ran == CALLS || dispatched == 2)

#elif defined(ROW_warm)
/* An item is made: a thread that sees that it is done has it; one that waits for the next end does not wait in
   vain. */
static gpusync__item item;
static struct gpusync_warmup warmup = {
    .object = OBJECT(gpusync__warmups, warmup), .items = &item, .count = 1, .fn = make};
static uint64_t awaited;
static gpusync_result gpusync__await_goal(gpusync__goal *goal, uint64_t timeout_ns)
{
    awaited = goal->number;
    return GPUSYNC_TIMEOUT;
}
THREAD(a)
{
    gpusync__make_once(&warmup, 0);
}
THREAD(b)
{
    void *made;
    gpusync_result result = gpusync_warmup_get(&warmup, 0, 0, &made, NULL);
    assert(result == GPUSYNC_OK ? made == &data : result == GPUSYNC_TIMEOUT && !made);
}
#define AFTER assert(awaited <= warmup.object.head.completed)

#elif defined(ROW_refs)
/* The last reference of a timeline goes while a look goes through the device's objects: it takes the timeline with its
   memory, or not at all. */
static struct gpusync_timeline *t;
THREAD(a)
{
    gpusync__unref(&t->object);
}
THREAD(b)
{
    gpusync__object *first = gpusync__next_object(&D, NULL);
    if (first)
        assert(!gpusync__next_object(&D, first));
}
#define BEFORE before()
static void before(void)
{
    t = malloc(sizeof *t);
    t->object.refs = 1;
    t->object.kind = &gpusync__timelines;
    t->object.alert = 0;
    t->object.device = &D;
    t->object.next = NULL;
    t->object.at = &D.objects;
    t->listening = NULL;
    t->listener = t->event = NULL;
    t->sent = t->base = 0;
    t->shared = true;
    D.objects = &t->object;
    D.objects_end = &t->object.next;
}
#endif

int main(void)
{
    pthread_t threads[3];
#ifdef BEFORE
    BEFORE;
#endif
    pthread_create(&threads[0], NULL, a, NULL);
    pthread_create(&threads[1], NULL, b, NULL);
#if defined(ROW_completed) || defined(ROW_stuck) || defined(ROW_wakers) || defined(JOIN_C)
    pthread_create(&threads[2], NULL, c, NULL);
#endif
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
#ifdef JOIN_C
    pthread_join(threads[2], NULL);
#endif
#ifdef AFTER
    AFTER;
#endif
    assert(RELAXED(&bed) != ASLEEP); /* else the sleeper sleeps for ever: all wakers have gone */
    return 0;
}
