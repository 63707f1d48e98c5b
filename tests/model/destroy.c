/* destroy.c - no thread touches what was destroyed

   When a queue or timeline is freed, its memory is written here: plain, so that this races with every access that is
   not ordered before it. */

#include "rig.h"

static int freed;
static void overwrite_queue(void)
{
    volatile struct gpusync_queue *q = &Q;
    q->device = NULL;
    q->metal = NULL;
    q->ring = NULL;
    q->head.completed = q->head.committed = 99;
    q->flags = q->outstanding = q->inside = q->leaving = q->tracked = q->owed.count = q->lined = 99;
    q->free_slots = q->ends.flight[0] = q->ends.flight[1] = NULL;
    for (int i = 0; i < GPUSYNC__LISTS; i++) q->waits.lists[i].end[0] = NULL;
    q->held_buffers = q->lined_ordered = 99;
    q->open = NULL;
    q->refused = true;
    q->issuing = true;
    for (int i = 0; i < GPUSYNC__LINES; i++) q->lines[i].end[0] = NULL;
    q->log_count = q->logged = q->covered = q->last_failed = 99;
    q->place.beside[1] = NULL;
}
static void overwrite_timeline(void)
{
    volatile struct gpusync_timeline *t = &T;
    t->device = NULL;
    t->event = NULL;
    t->value = t->reached = t->kept = t->hosted = t->on_event = t->largest = 99;
    t->flags = t->inside = t->refs = t->owed.count = t->signal_count = 99;
    t->waits.lists[GPUSYNC__WAITS].end[0] = NULL;
    t->waiting.end[0] = t->signals.end[0] = t->issued.end[0] = NULL;
    t->listening = NULL;
    t->place.beside[1] = NULL;
}
static void overwrite(void *user, void *memory, size_t size)
{
    if (memory == &Q) overwrite_queue();
    if (memory == &T) overwrite_timeline();
    if (memory == &Q || memory == &T) freed++;
}

/* A queue goes (HOW: gpusync_queue_destroy, gpusync_queue_destroy_now), while the handler of its command buffer runs or
   comes. WITH: also while another thread polls or waits; it was inside before. Every slot is free in the end. */
#ifndef HOW
#define HOW gpusync_queue_destroy_now
#endif
static void *destroyer(void *with)
{
    if (with) __VERIFIER_assume(LOAD(&Q.inside) != 0); /* a call that is inside, not one that begins */
    gpusync_result result = HOW(&Q);
    assert(result == GPUSYNC_OK);
    return NULL;
}
static void *handler(void *unused)
{
    finish(0, WELL);
    return unused;
}
static void *poller(void *unused)
{
    gpusync_result result = gpusync_poll(&Q, 1);
    assert(result == GPUSYNC_OK || result == GPUSYNC_NOT_READY || result == GPUSYNC_ERROR_DESTROYED);
    return unused;
}
static void *waiter(void *unused) /* what comes before it sleeps is as in a poll */
{
    gpusync__goal goal = goal_of(&Q, NULL, GPUSYNC__ONE, 1);
    if (!gpusync__enter(&Q)) return unused;
    gpusync_result result = sleep_for(&goal, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK);
    gpusync__leave(&Q);
    return unused;
}
static void all_slots_are_free(void) { assert(free_slots(gpusync__global.free) == MODEL_SLOTS); }
static void queue(void)
{
    D.allocator.release = overwrite;
    commit(0);
    pthread_t one = start(handler, 0), two = start(destroyer, 0);
    join(one);
    join(two);
    assert(freed == 1 && B[0].live == 0);
    all_slots_are_free();
}
#ifndef WITH
#define WITH poller
#endif
static void queue_with(void)
{
    D.allocator.release = overwrite;
    commit(0);
    pthread_t one = start(handler, 0), two = start(destroyer, 1), three = start(WITH, 0);
    join(one);
    join(two);
    assert(!lost(0));
    join(three);
    assert(freed == 1 && B[0].live == 0);
    all_slots_are_free();
}

/* A tracked command buffer is given up, while its handler comes, late or in time, and then the queue goes. Whatever the
   handler finds, it is through with the queue by then, or touches the slot alone. */
static void *gives_up_then_goes(void *unused)
{
    gpusync_result result = gpusync_untrack(&Q, 1);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_INVALID_TICKET || result == GPUSYNC_ERROR_ALREADY_COMMITTED);
    return destroyer(NULL);
}
static void tracked(void)
{
    gpusync_ticket ticket;
    D.allocator.release = overwrite;
    B[0].status = 0;
    gpusync_result result = gpusync_track(&Q, &B[0], &ticket);
    assert(result == GPUSYNC_OK && ticket == 1);
    pthread_t one = start(handler, 0), two = start(gives_up_then_goes, 0);
    join(one);
    join(two);
    assert(freed == 1 && B[0].live == 0);
    all_slots_are_free();
}

/* A queue goes, while a waiter sleeps in it for work whose handler comes only after that: destroy wakes the waiter. */
static void *waiter_in_vain(void *unused)
{
    gpusync_result result = gpusync_wait_ex(&Q, 1, GPUSYNC_FOREVER, NULL);
    assert(result == GPUSYNC_ERROR_DESTROYED);
    return unused;
}
static void queue_with_sleeper(void)
{
    D.allocator.release = overwrite;
    only_waker_lingers = true;
    commit(0);
    pthread_t one = start(waiter_in_vain, 0), two = start(destroyer, 1);
    join(one);
    join(two);
    assert(freed == 1);
    finish(0, WELL);
    assert(B[0].live == 0);
    all_slots_are_free();
}

/* A sweep walks the queues of the device, while the only one goes. The handler comes after that. */
static void *sweeper(void *unused)
{
    gpusync__sweep(&D);
    return unused;
}
static void swept(void)
{
    D.allocator.release = overwrite;
    D.timelines.end[0] = D.timelines.end[1] = NULL;
    D.refs = 2;
    commit(0);
    pthread_t one = start(destroyer, 0), two = start(sweeper, 0);
    join(one);
    join(two);
    assert(freed == 1 && D.refs == (LOAD(&sweeps_asked) ? 2 : 1));
    handler(NULL);
    assert(B[0].live == 0);
    all_slots_are_free();
}

/* A commit of Metal 4, whose feedback comes while the queue goes. The slot alone retains the command buffer, and what
   the device may still use is kept. */
static void *feedback(void *unused)
{
    gpusync__completed(B[0].handler, &B[4]);
    return unused;
}
static void metal4(void)
{
    void *buffers[1] = {&B[0]};
    gpusync_ticket ticket;
    D.allocator.release = overwrite;
    Q.metal4 = true;
    Q.limit = UINT32_MAX;
    B[0].live = 1; /* the program's, which lets go of it after the commit */
    gpusync_result result = gpusync_commit4(&Q, buffers, 1, &ticket);
    assert(result == GPUSYNC_OK && ticket == 1 && B[0].live == 2 && B[0].handler == &slab.slots[0]);
    gpusync__release(&B[0]);
    pthread_t one = start(feedback, 0), two = start(destroyer, 0);
    join(one);
    join(two);
    assert(freed == 1 && B[0].live == 0);
    all_slots_are_free();
}

/* A queue goes, while a thread signals the value that its held work waits for. That thread issues the work, or destroy
   ends it. When the queue is gone its submission is free, and may serve another queue. */
static void *signals_value(void *unused)
{
    gpusync_result result = gpusync_timeline_signal(&T, 1);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void *destroys_then_reuses(void *unused)
{
    destroyer(unused);
    *(volatile uint32_t *)&submissions[0].running = 1;
    return unused;
}
static void issued(void)
{
    gpusync_point point = {.timeline = &T, .value = 1};
    gpusync_submission work = {.waits = &point, .wait_count = 1, .flags = GPUSYNC_STRICT};
    D.allocator.release = overwrite;
    have_submissions(1);
    gpusync_result result = gpusync_submit(&Q, &work, NULL);
    assert(result == GPUSYNC_OK);
    pthread_t one = start(signals_value, 0), two = start(destroys_then_reuses, 0);
    join(one);
    join(two);
    join_issues();
    assert(freed == 1 && T.refs == 1);
    all_are_free(1);
}

/* A device goes, while functions that it has dispatched come (AND: one more): for callbacks, or (ASKED=sweeper) a sweep.
   Each enters and is let out, or finds that the device is gone: then it touches nothing but what it goes by, until the
   last of them, or the thread that closes, frees the memory, once. What an entered function uses is written when the
   device lets go of it: plain, so that this races with every access that is not ordered before it. */
#ifndef ASKED
#define ASKED answers
#endif
static void *answers(void *unused)
{
    gpusync__answer(&D);
    return unused;
}
static void overwrite_what_is_used(void *user, void *memory, size_t size)
{
    volatile struct gpusync_device *dev = &D;
    dev->queues.end[0] = dev->timelines.end[0] = NULL;
    dev->due_count = 99;
    dev->due = NULL;
    freed++;
}
static void *closes(void *unused)
{
    gpusync__device_close(&D, NULL);
    return unused;
}
static void closed(void)
{
    D.allocator.release = overwrite_what_is_used;
    D.free_waiters->next = NULL;
    D.pools[GPUSYNC__POOL_CALLBACKS].free = NULL;
    D.refs = 2;
    D.asked = 1;
    D.timelines.end[0] = D.timelines.end[1] = NULL;
    D.queues.end[0] = D.queues.end[1] = NULL;
#ifdef AND
    D.refs = 3;
    pthread_t three = start(AND, 0);
#endif
    pthread_t one = start(ASKED, 0), two = start(closes, 0);
    join(one);
    join(two);
#ifdef AND
    join(three);
#endif
    assert(freed == 1 && device_frees == 1 && sweeps_asked == 0);
}

/* A timeline goes, while the block of its listener runs or comes: the value is signalled by others. The thread with the
   last reference frees what the block leads to. */
static void *timeline_destroyer(void *with)
{
    if (with) __VERIFIER_assume(LOAD(&T.inside) != 0);
    gpusync_result result = gpusync_timeline_destroy(&T);
    assert(result == GPUSYNC_OK);
    return NULL;
}
static void listened(void)
{
    D.allocator.release = overwrite;
    others_signal();
    STORE(&event_value, 1);
    pthread_t one = start(block_runs, 0), two = start(timeline_destroyer, 0);
    join(one);
    join(two);
    assert(freed == 1 && frees == 1);
}

/* A timeline goes, while a wait sleeps in it, or (WITH_TIMELINE=signals) while a thread signals. */
#ifndef WITH_TIMELINE
#define WITH_TIMELINE waits
#endif
static void *waits(void *unused)
{
    gpusync_result result = gpusync_timeline_wait(&T, 2, GPUSYNC_FOREVER, NULL);
    assert(result == GPUSYNC_ERROR_DESTROYED);
    return unused;
}
static void *signals(void *unused)
{
    gpusync_result result = gpusync_timeline_signal(&T, 1);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
    return unused;
}
static void timeline(void)
{
    D.allocator.release = overwrite;
    only_waker_lingers = true;
    pthread_t one = start(WITH_TIMELINE, 0), two = start(timeline_destroyer, 1);
    join(one);
    join(two);
    assert(freed == 1);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
