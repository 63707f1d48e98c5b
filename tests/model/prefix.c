/* prefix.c - gpusync_is_done and gpusync_is_idle are never early */

#include "rig.h"

/* Two command buffers, their handlers in any order, and an asker. `ended` is written before the end is told. */
static int ended[3];
static void *handler(void *i)
{
    STORE(&ended[(long)i + 1], 1);
    finish((int)(long)i, WELL);
    return NULL;
}
static void *asks_both(void *unused)
{
    if (gpusync_is_done(&Q, 2)) assert(LOAD(&ended[1]) && LOAD(&ended[2]));
    if (gpusync_is_idle(&Q)) assert(LOAD(&ended[1]) && LOAD(&ended[2]));
    return unused;
}
static void two_ends(void)
{
    commit(0);
    commit(1);
    pthread_t one = start(handler, 0), other = start(handler, 1);
    start(asks_both, 0);
    join(one);
    join(other);
    assert(gpusync_is_idle(&Q) && gpusync_is_done(&Q, 2));
}

/* A commit and an earlier end come between the two loads of gpusync_is_idle: ticket 1 ends, 2 is committed first. */
static void *commits_then_ends(void *unused)
{
    commit(1);
    finish(0, WELL);
    return unused;
}
static void *never_idle(void *unused)
{
    assert(!gpusync_is_idle(&Q));
    return unused;
}
static void between(void)
{
    commit(0);
    pthread_t one = start(commits_then_ends, 0), other = start(never_idle, 0);
    join(one);
    join(other);
}

/* A thread that sees the queue idle sees what was written before the end: a plain access, which races if that is not
   so. */
static int written;
static void *writes_then_ends(void *unused)
{
    written = 1;
    finish(0, WELL);
    return unused;
}
static void *idle_then_reads(void *unused)
{
    if (gpusync_is_idle(&Q)) assert(written);
    return unused;
}
static void seen_after(void)
{
    commit(0);
    start(idle_then_reads, 0);
    join(start(writes_then_ends, 0));
}

/* The same for a thread that reads the status: Metal stores it, and the header's fence orders what is read after it. */
static void *gpu(void *unused)
{
    written = 1;
    __atomic_store_n(&B[0].status, WELL, __ATOMIC_RELEASE);
    return unused;
}
static void *polls(void *unused)
{
    gpusync_result result = gpusync_poll(&Q, 1);
    if (result == GPUSYNC_OK) assert(written);
    return unused;
}
static void seen_in_status(void)
{
    commit(0);
    start(polls, 0);
    join(start(gpu, 0));
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
