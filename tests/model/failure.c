/* failure.c - a failure is known before the end is, once, and to every thread */

#include "rig.h"

static void *handler(void *i)
{
    finish((int)(long)i, BADLY);
    return NULL;
}

/* A command buffer fails. There are its handler, a thread that looks at the status too, and a thread that asks: each
   that sees the ticket done finds the failure on record. It is recorded once. */
static void *looks(void *unused)
{
    gpusync_result result = gpusync_wait(&Q, 1, 0);
    assert(result == GPUSYNC_ERROR_EXECUTION || result == GPUSYNC_TIMEOUT);
    return unused;
}
static void *asks(void *unused)
{
    uint64_t cursor = 0;
    gpusync_error error;
    if (!gpusync_is_done(&Q, 1)) return unused;
    gpusync_result result = gpusync_next_error(&Q, &cursor, &error);
    assert(result == GPUSYNC_OK && error.ticket == 1);
    result = gpusync_wait(&Q, 1, 0);
    assert(result == GPUSYNC_ERROR_EXECUTION);
    return unused;
}
static void known_first(void)
{
    commit(0);
    pthread_t one = start(handler, 0), two = start(looks, 0), three = start(asks, 0);
    join(one);
    join(two);
    join(three);
    assert(Q.log_count == 1 && B[0].live == 0 && gpusync_is_idle(&Q));
}

/* The second of two command buffers fails, and the first still runs. `completed` says nothing of that, so the thread
   that asks reads `done` of the ring's entry. When it finds the end there, it finds how the work ended. */
static void *asks_of_second(void *unused)
{
    gpusync__goal goal = goal_of(&Q, NULL, GPUSYNC__ONE, 2);
    if (!gpusync__met(&goal)) return unused;
    gpusync_result result = gpusync__result_of(&Q, &goal, false, NULL);
    assert(result == GPUSYNC_ERROR_EXECUTION && !gpusync_is_done(&Q, 1));
    return unused;
}
static void out_of_order(void)
{
    commit(0);
    commit(1);
    pthread_t one = start(handler, 1), two = start(asks_of_second, 0);
    join(one);
    join(two);
    assert(Q.log_count == 1 && B[1].live == 0 && Q.head.completed == 0);
}

/* A command buffer fails. One thread waits for everything, and another one asks what a wait asks first, without a lock.
   That one is not told that all went well, unless a wait has told of the failure. */
static gpusync_result waited;
static bool well;
static void *waits_for_everything(void *unused)
{
    waited = gpusync_wait(&Q, GPUSYNC_EVERYTHING, 0);
    assert(waited == GPUSYNC_ERROR_EXECUTION || waited == GPUSYNC_TIMEOUT || waited == GPUSYNC_OK);
    return unused;
}
static void *asks_for_everything(void *unused)
{
    well = gpusync__is_done_well(&Q, GPUSYNC_EVERYTHING);
    return unused;
}
static void covered(void)
{
    commit(0);
    pthread_t one = start(handler, 0), two = start(waits_for_everything, 0), three = start(asks_for_everything, 0);
    join(one);
    join(two);
    join(three);
    assert(waited != GPUSYNC_OK && (!well || waited == GPUSYNC_ERROR_EXECUTION));
    assert(Q.covered == (waited == GPUSYNC_ERROR_EXECUTION));
}

/* Two command buffers fail, and each handler makes memory for the log. That is made once, and has both failures. */
static gpusync__failed logs[2][2];
static int logs_made, logs_freed;
static void *makes_log(void *user, size_t size, size_t alignment)
{
    assert(size == sizeof logs[0]);
    return logs[__atomic_fetch_add(&logs_made, 1, __ATOMIC_RELAXED)];
}
static void frees_log(void *user, void *memory, size_t size)
{
    *(volatile uint64_t *)&((gpusync__failed *)memory)->node.number = 99;
    __atomic_fetch_add(&logs_freed, 1, __ATOMIC_RELAXED);
}
static void log_made(void)
{
    Q.log_most = 2;
    D.allocator.allocate = makes_log;
    D.allocator.release = frees_log;
    commit(0);
    commit(1);
    pthread_t one = start(handler, 0), two = start(handler, 1);
    join(one);
    join(two);
    assert(Q.log_count == 2 && logs_made == logs_freed + 1 && Q.log != &Q.last_failure);
    for (uint64_t ticket = 1; ticket <= 2; ticket++) {
        gpusync_error error;
        gpusync_result result = gpusync__ticket_result(&Q, ticket, &error);
        assert(result == GPUSYNC_ERROR_EXECUTION && error.ticket == ticket);
    }
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
