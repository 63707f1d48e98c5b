/* reuse.c - slots and plans are used again, and nobody takes them for what they were */

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
    __VERIFIER_assume(LOAD(&Q.returned) != NULL); /* only the orders in which it is the same slot */
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
    assert(s->refs == 1 && s->ticket == 2 && s->state == GPUSYNC__ARMED && s->buffer == &B[1] && !s->claimed);
    assert(gpusync_is_done(&Q, 1) && !gpusync_is_done(&Q, 2));
    finish(1, WELL);
    assert(gpusync_is_idle(&Q) && B[1].live == 0 && Q.outstanding == 0 && Q.slots == 0);
}

/* Slots come back from two threads, while a third takes the list, twice: none is lost, and none is there twice. */
static gpusync__slot *list;
static int seen[3];
static void count_all(gpusync__slot *s)
{
    for (int n = 0; s; s = s->next, n++) {
        assert(n < 3);
        __atomic_fetch_add(&seen[s - slab.slots], 1, __ATOMIC_RELAXED);
    }
}
static void *gives_back(void *i)
{
    gpusync__slot_free(&slab.slots[(long)i]); /* without a queue: to all */
    return NULL;
}
static void *takes_twice(void *unused)
{
    count_all(__atomic_exchange_n(&gpusync__global.returned, (gpusync__slot *)NULL, __ATOMIC_SEQ_CST));
    count_all(__atomic_exchange_n(&gpusync__global.returned, (gpusync__slot *)NULL, __ATOMIC_SEQ_CST));
    return unused;
}
static void slot_list(void)
{
    slab.slots[2].next = NULL;
    gpusync__global.returned = &slab.slots[2];
    pthread_t one = start(gives_back, 0), two = start(gives_back, 1), three = start(takes_twice, 0);
    join(one);
    join(two);
    join(three);
    count_all(gpusync__global.returned);
    assert(seen[0] == 1 && seen[1] == 1 && seen[2] == 1);
}

/* Plans: the queue's list has two. Two threads take one each, and one of them gives its own back; so does a third one,
   which has had one before. A plan has one owner, and none is lost. */
static int owned[3];
static void *takes(void *gives)
{
    gpusync__plan *plan = gpusync__plan_new(&Q, 0, 0, 0);
    if (!plan) return NULL;
    assert(__atomic_exchange_n(&owned[plan - plans], 1, __ATOMIC_RELAXED) == 0);
    plan->need_count++; /* plain: nobody else has it */
    if (gives) {
        STORE(&owned[plan - plans], 0);
        gpusync__plan_put(&Q, plan);
    }
    return NULL;
}
static void *gives(void *unused)
{
    plans[0].need_count++;
    STORE(&owned[0], 0);
    gpusync__plan_put(&Q, &plans[0]);
    return unused;
}
static void plan_list(void)
{
    int there = 0;
    have_plans(3);
    Q.free_plans = &plans[1];
    owned[0] = 1;
    pthread_t one = start(takes, 0), two = start(takes, 1), three = start(gives, 0);
    join(one);
    join(two);
    join(three);
    for (gpusync__plan *p = Q.free_plans; p; p = p->next, there++) assert(there < 3 && !owned[p - plans]);
    for (gpusync__plan *p = D.free_plans; p; p = p->next, there++) assert(there < 3 && !owned[p - plans]);
    assert(there + owned[0] + owned[1] + owned[2] == 3);
}

/* A tracked command buffer is given up, while its handler comes after all and somebody reads its status. It is released
   once by us and once by Metal, and not read after that. The slot is free in the end, and the ticket has ended. */
static void *gives_up(void *unused)
{
    gpusync_result result = gpusync_untrack(&Q, 1);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_INVALID_TICKET);
    return unused;
}
static void *late_handler(void *unused)
{
    gpusync__completed(B[0].handler, &B[0]);
    gpusync__release(&B[0]);
    return unused;
}
static void *looks(void *unused)
{
    gpusync__slot *s = gpusync__ref_ticket(&Q, 1);
    if (!s) return unused;
    (void)gpusync__status(s->buffer);
    gpusync__unref(s);
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
    assert(B[0].live == 0 && slab.slots[0].refs == 0 && slab.slots[0].state == GPUSYNC__FREE);
    assert(gpusync_is_idle(&Q) && Q.slots == 0 && Q.outstanding == 0 && Q.tracked == 0);
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
    assert(B[0].live == 1 && slab.slots[0].refs == 1 && slab.slots[0].state == GPUSYNC__ORPHANED);
    (void)late_handler(NULL);
    is_gone();
}

/* The same slot, if it is free by then, serves another command buffer, which nobody has given up. */
static void *handler_then_other(void *unused)
{
    gpusync_ticket ticket;
    (void)late_handler(NULL);
    B[1].status = 0;
    (void)gpusync_track(&Q, &B[1], &ticket); /* or there is no slot yet */
    return unused;
}
static void orphan_again(void)
{
    track_one();
    pthread_t one = start(gives_up, 0), two = start(handler_then_other, 0);
    join(one);
    join(two);
    assert(B[0].live == 0 && B[1].live == 1 + (int)Q.slots && Q.slots <= 1);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
