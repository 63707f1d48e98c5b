/* wake.c - no wake-up is lost

   A sleeping waiter has a permit when all threads that could wake it are through. Each case says what it sleeps for. */

#include "rig.h"

static void *handler(void *i)
{
    finish((int)(long)i, WELL);
    return NULL;
}
static void *signaller(void *value)
{
    gpusync_result result = gpusync_timeline_signal(&T, (uint64_t)value);
    assert(result == GPUSYNC_OK);
    return NULL;
}

/* A ticket (or, with WHAT=GPUSYNC_EVERYTHING, everything): one command buffer, its handler, a whole wait. */
#ifndef WHAT
#define WHAT 1
#endif
static void *wait_for_ticket(void *unused)
{
    gpusync_result result = gpusync_wait(&Q, WHAT, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void ticket(void)
{
    commit(0);
    start(wait_for_ticket, 0);
    join(start(handler, 0));
    assert(!lost(0));
}

/* The second of two tickets, or with KIND=GPUSYNC__ALL both: two handlers mark neighbours, in any order. */
#ifndef KIND
#define KIND GPUSYNC__ONE
#endif
static void *sleep_for_second(void *unused)
{
    gpusync__goal goal = goal_of(&Q, NULL, KIND, 2);
    gpusync_result result = sleep_for(&goal, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void *mark(void *number)
{
    static const gpusync__outcome outcome = {0, 0, NULL, false};
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__catch caught;
    gpusync__catch_nothing(&caught);
    gpusync__lock(&Q.waits.lock); /* what the handler does */
    gpusync__end_ticket(&Q, (uint64_t)number, &outcome, &caught, &deferred);
    gpusync__unlock(&Q.waits.lock);
    gpusync__tell(&Q, (uint64_t)number, &caught, &deferred);
    return NULL;
}
static void neighbours(void)
{
    commit(0);
    commit(1);
    start(sleep_for_second, 0);
    pthread_t one = start(mark, 1), other = start(mark, 2);
    join(one);
    join(other);
    assert(!lost(0) && gpusync_is_idle(&Q));
}

/* A value of a timeline: the host signals it. */
static void *sleep_for_value(void *value)
{
    gpusync__goal goal = goal_of(NULL, &T, GPUSYNC__VALUE, (uint64_t)value);
    gpusync_result result = sleep_for(&goal, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK);
    return NULL;
}
static void value(void)
{
    start(sleep_for_value, 1);
    join(start(signaller, 1));
    assert(!lost(0));
}

/* Room for one command buffer, where all is taken. One thread waits for it, and a slot is free. The other one gives
   room, takes it again if it can, and gives it back: a commit and its end. */
#define LATER 5000
static void *wait_for_room(void *unused)
{
    gpusync__slot *slot;
    gpusync_result result = gpusync__wait_for_room(&Q, LATER, &slot);
    assert(result == GPUSYNC_OK);
    gpusync__give_room(&Q, 1, slot);
    return unused;
}
static void *give_and_take(void *unused)
{
    gpusync__give_room(&Q, 1, NULL);
    bool taken = gpusync__take_rooms(&Q, 1);
    if (taken) gpusync__give_room(&Q, 1, NULL);
    return unused;
}
static void room(void)
{
    Q.outstanding = 1;
    start(wait_for_room, 0);
    join(start(give_and_take, 0));
    assert(!lost(0)); /* no other thread comes */
}

/* Room once, and two waiters for it. One of them gets no memory for a slot, takes no room, and passes on what it was
   told of. The other one only waits. */
static int refused;
static void *gets_no_slot(void *unused)
{
    gpusync__slot *slot;
    gpusync_result result = gpusync__wait_for_room(&Q, LATER, &slot);
    assert(result == GPUSYNC_ERROR_OUT_OF_MEMORY);
    __atomic_store_n(&refused, 1, __ATOMIC_RELEASE);
    return unused;
}
static void *wait_below(void *unused)
{
    gpusync_result result = gpusync__wait_below(&Q, 1, LATER);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void *give(void *unused)
{
    gpusync__give_room(&Q, 1, NULL);
    return unused;
}
static void room_for_two(void)
{
    Q.outstanding = 1;
    Q.free_slots = NULL;
    start(gets_no_slot, 0);
    start(wait_below, 0);
    join(start(give, 0));
    bool passed_on = __atomic_load_n(&refused, __ATOMIC_ACQUIRE);
    bool one = lost(0), other = lost(1);
    assert(!(one && other) && !(passed_on && (one || other)));
}

/* Many points: a ticket, whose handler comes, and a value, which is signalled. HOW: all of them, or, where the ticket
   never ends (unless BOTH), any. */
#ifndef HOW
#define HOW GPUSYNC_WAIT_ALL
#endif
#ifndef BOTH
#define BOTH 0
#endif
static void *wait_for_many(void *unused)
{
    gpusync_point points[2] = {gpusync_at_ticket(&Q, 1), gpusync_at_value(&T, 1)};
    size_t which;
    gpusync_result result = gpusync_wait_many(points, 2, HOW, GPUSYNC_FOREVER, NULL, &which);
    assert(result == GPUSYNC_OK && (which == (HOW == GPUSYNC_WAIT_ANY ? 1 : 2) || (BOTH && which == 0)));
    return unused;
}
static void many(void)
{
    commit(0);
    start(wait_for_many, 0);
    pthread_t other = start(signaller, 1);
    if (HOW == GPUSYNC_WAIT_ALL || BOTH) join(start(mark, 1));
    join(other);
    assert(!lost(0));
}

/* Any of both, and the waiter serves another wait at once, while the thread that took the first entry off has not left
   the wait list. */
static void *wait_for_any_and_again(void *unused)
{
    gpusync__goal again = goal_of(&Q, NULL, GPUSYNC__ONE, 1);
    (void)wait_for_many(unused);
    gpusync_result result = sleep_for(&again, NOW - 1);
    assert(result == GPUSYNC_OK || result == GPUSYNC_TIMEOUT);
    return unused;
}
static void any_again(void)
{
    commit(0);
    start(wait_for_any_and_again, 0);
    pthread_t one = start(mark, 1), other = start(signaller, 1);
    join(one);
    join(other);
    assert(!lost(0));
}

/* The handlers of a ticket, which a wait asks for: it sees the end in the status, or in the mark, and goes on until the
   handler has begun. With SEES: what the program's own handler wrote, which ran before, is seen then. */
#ifndef SEES
#define SEES 0
#endif
static int own_handler; /* plain: an access that is not ordered is a race */
static void *handler_after_own(void *unused)
{
    __atomic_store_n(&B[0].status, WELL, __ATOMIC_RELEASE);
    if (SEES) own_handler = 1;
    gpusync__completed(B[0].handler, &B[0]);
    gpusync__release(&B[0]);
    return unused;
}
static void *wait_for_handlers(void *unused)
{
    gpusync_wait_options options = {.handlers = true};
    gpusync_result result = gpusync_wait_ex(&Q, 1, GPUSYNC_FOREVER, &options);
    assert(result == GPUSYNC_OK && (!SEES || own_handler == 1));
    return unused;
}
static void handlers(void)
{
    commit(0);
    start(wait_for_handlers, 0);
    join(start(handler_after_own, 0));
    assert(!lost(0));
}

/* A waiter used again: its first wait is over by its deadline, while the handler is about to wake it. Then it sleeps
   for a value, and the handler's unpark is one too many. */
static void *waits_twice(void *unused)
{
    gpusync__goal first = goal_of(&Q, NULL, GPUSYNC__ONE, 1);
    gpusync_result result = sleep_for(&first, NOW - 1);
    assert(result == GPUSYNC_OK || result == GPUSYNC_TIMEOUT);
    return sleep_for_value((void *)1);
}
static void waiter_again(void)
{
    commit(0);
    start(waits_twice, 0);
    pthread_t one = start(mark, 1), other = start(signaller, 1);
    join(one);
    join(other);
    assert(!lost(0));
}

/* A ring's entry used again: ticket 2 has ended, and 1 has not. A waiter falls asleep for 2, while 1 ends and the entry
   of 2 goes on to ticket 4, which ends. RING=2, MODEL_SLOTS=4. */
static void *reuse_entry(void *unused)
{
    __VERIFIER_assume(GPUSYNC__LOAD_SEQ(&Q.head.completed) >= 2);
    gpusync__lock(&Q.waits.lock);
    for (int i = 2; i < 4; i++) {
        assert(gpusync__ring_is_ready(&Q));
        gpusync__enter_ring(&Q, &slab.slots[i], GPUSYNC__ARMED, NOW);
    }
    gpusync__unlock(&Q.waits.lock);
    return mark((void *)4);
}
static void entry_again(void)
{
    commit(0);
    commit(1);
    mark((void *)2);
    assert(RING == 2 && Q.head.committed == 2 && !Q.head.completed);
    start(sleep_for_second, 0);
    pthread_t one = start(mark, 1), other = start(reuse_entry, 0);
    join(one);
    join(other);
    assert(!lost(0));
}

/* A thread that has seen that ticket 2 has ended sees so again, whatever became of its entry meanwhile. */
static void *asks_twice(void *unused)
{
    gpusync__goal goal = goal_of(&Q, NULL, GPUSYNC__ONE, 2);
    if (gpusync__met(&goal)) assert(gpusync__met(&goal));
    return unused;
}
static void ended_stays(void)
{
    commit(0);
    commit(1);
    mark((void *)2);
    start(asks_twice, 0);
    pthread_t one = start(mark, 1), other = start(reuse_entry, 0);
    join(one);
    join(other);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
