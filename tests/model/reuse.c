/* reuse.c - slots and rings are used again, and no thread takes them for what they were */

#include "rig.h"

/* One has the ticket of a command buffer and polls, while its handler runs and the same slot goes to the next commit.
   The buffer is not read after it was released, and the poll never says anything of the later ticket. */
static void *handler(void *unused)
{
    finish(0, WELL);
    return unused;
}
static void *poller(void *unused)
{
    gpusync_result result = gpusync_poll(&Q, 1);
    assert(result == GPUSYNC_OK || result == GPUSYNC_NOT_READY);
    return unused;
}
static void *committer(void *unused)
{
    gpusync__lock(&Q.waits.lock);
    bool is_free = Q.free_slots != NULL;
    gpusync__unlock(&Q.waits.lock);
    __VERIFIER_assume(is_free); /* only the orders in which it is the same slot */
    gpusync_ticket ticket = commit(1);
    assert(ticket == 2 && B[1].handler == &slab.slots[0]);
    return unused;
}
static void slot(void)
{
    gpusync__slot *s = &slab.slots[0];
    s->next = NULL; /* the only one */
    commit(0);
    pthread_t one = start(handler, 0), two = start(poller, 0), three = start(committer, 0);
    join(one);
    join(two);
    join(three);
    assert(B[0].live == 0 && B[1].live == 2); /* Metal's and ours */
    assert(s->ticket == 2 && s->state == GPUSYNC__ARMED && s->buffer == &B[1]);
    assert(gpusync_is_done(&Q, 1) && !gpusync_is_done(&Q, 2));
    finish(1, WELL);
    assert(gpusync_is_idle(&Q) && B[1].live == 0 && Q.outstanding == 0 && none_in_flight());
    assert(free_slots(Q.free_slots) == 1);
}

/* A thread looks at a ticket, whose handler runs and leaves the slot. Slot and entry go on to the ticket after the next
   one, which is in flight at the end. The look changes nothing of it, and the buffer stays until the look is over.
   RING=2, MODEL_SLOTS=1. */
static void *ends_and_goes_on(void *unused)
{
    finish(0, WELL);
    commit(1);
    finish(1, WELL);
    commit(2);
    return unused;
}
static void *looks_once(void *unused)
{
    bool ended = gpusync__look_tickets(&Q, 1, 1, NULL);
    assert(!ended || gpusync__has_ended(&Q, 1));
    return unused;
}
static void late_look(void)
{
    gpusync__slot *s = &slab.slots[0];
    commit(0);
    pthread_t one = start(looks_once, 0), other = start(ends_and_goes_on, 0);
    join(one);
    join(other);
    assert(s->ticket == 3 && entries[1].slot == s && s->back == &entries[1].slot); /* where 1 was */
    assert(!(s->traits & GPUSYNC__ENDED) && s->state == GPUSYNC__ARMED && s->buffer == &B[2] && B[2].live == 2);
    assert(B[0].live == 0 && B[1].live == 0 && Q.head.completed == 2 && Q.outstanding == 1);
    finish(2, WELL);
    assert(gpusync_is_idle(&Q) && B[2].live == 0 && free_slots(Q.free_slots) == 1);
}

/* The ring grows, for a third ticket comes while the first is in flight: a poll of the first finds it where it was.
   RING=2, MODEL_SLOTS=3. */
static struct {
    gpusync__ring ring;
    gpusync__entry entries[4];
} longer;
static void *allocates(void *user, size_t size, size_t alignment)
{
    assert(size == sizeof longer);
    return &longer;
}
static void *commits_third(void *unused)
{
    gpusync_ticket ticket = commit(2);
    assert(ticket == 3 && Q.ring == &longer.ring && longer.ring.older == &ring && longer.ring.first == 3);
    return unused;
}
static void *asks_for_first(void *unused)
{
    gpusync__goal goal = goal_of(&Q, NULL, GPUSYNC__ONE, 1);
    assert(!gpusync__met(&goal));
    return unused;
}
static void ring_grows(void)
{
    D.allocator.allocate = allocates;
    commit(0);
    commit(1);
    pthread_t one = start(commits_third, 0), two = start(asks_for_first, 0);
    join(one);
    join(two);
    finish(0, WELL);
    finish(1, WELL);
    finish(2, WELL);
    assert(gpusync_is_idle(&Q) && free_slots(Q.free_slots) == 3);
}

/* A tracked command buffer is given up, while the program commits it after all: its handler comes, and a thread looks
   at its status. It is released once by us and once by Metal, and not read after that. The slot is free in the end, and
   the ticket has ended. */
static void *gives_up(void *unused)
{
    gpusync_result result = gpusync_untrack(&Q, 1);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_INVALID_TICKET || result == GPUSYNC_ERROR_ALREADY_COMMITTED);
    return unused;
}
static void *late_handler(void *unused)
{
    finish(0, WELL);
    return unused;
}
static void *looks(void *unused)
{
    (void)gpusync__look_tickets(&Q, 1, 1, NULL);
    return unused;
}
static void track_one(void)
{
    gpusync_ticket ticket;
    B[0].status = 0;
    gpusync_result result = gpusync_track(&Q, &B[0], &ticket);
    assert(result == GPUSYNC_OK && ticket == 1);
}
static void is_gone(void)
{
    assert(B[0].live == 0 && gpusync_is_idle(&Q) && none_in_flight() && Q.outstanding == 0 && Q.tracked == 0);
    assert(free_slots(Q.free_slots) + free_slots(gpusync__global.free) == MODEL_SLOTS);
}
static void orphan(void)
{
    track_one();
    pthread_t one = start(gives_up, 0), two = start(late_handler, 0), three = start(looks, 0);
    join(one);
    join(two);
    join(three);
    is_gone();
}

/* The same where the handler comes only when the command buffer is deallocated: so gpusync must not be what keeps it,
   however many readers come and go. */
static void orphan_kept(void)
{
    track_one();
    pthread_t one = start(gives_up, 0), two = start(looks, 0), three = start(looks, 0);
    join(one);
    join(two);
    join(three);
    assert(B[0].live == 1 && slab.slots[0].state == GPUSYNC__ORPHANED);
    (void)late_handler(NULL);
    is_gone();
}

/* A handler comes late, just when the sweep takes it for lost: the room is given back once. NOW is late enough. */
static void *sweeps(void *unused)
{
    (void)gpusync__sweep_slots(&Q);
    return unused;
}
static void lost_handler(void)
{
    commit(0);
    commit(1);
    STORE(&B[0].status, WELL);
    looks(NULL);
    assert(gpusync_is_done(&Q, 1) && NOW > 1 + GPUSYNC__LOST_HANDLER_NS);
    slab.slots[0].late.ended_ns = 1;
    pthread_t one = start(late_handler, 0), two = start(sweeps, 0);
    join(one);
    join(two);
    assert(Q.outstanding == 1 && B[0].live == 0);
    finish(1, WELL);
    assert(Q.outstanding == 0 && free_slots(Q.free_slots) == MODEL_SLOTS);
}

/* One thread tracks a command buffer, and another one commits it. The queue takes it once. */
static int taken;
static void *takes(void *tracks)
{
    gpusync_ticket ticket;
    gpusync_result result = tracks ? gpusync_track(&Q, &B[0], &ticket) : gpusync_commit(&Q, &B[0], &ticket);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_ALREADY_TRACKED ||
           result == GPUSYNC_ERROR_ALREADY_COMMITTED);
    if (result == GPUSYNC_OK) __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    return NULL;
}
static void taken_once(void)
{
    B[0].status = 0;
    pthread_t one = start(takes, 0), two = start(takes, 1);
    join(one);
    join(two);
    assert(taken == 1 && Q.outstanding == 1 && B[0].live == 2 && Q.head.committed == 1);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
