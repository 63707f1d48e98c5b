/* timeline.c - a timeline only rises, and a failure is for good */

#include "rig.h"

static void *signaller(void *value)
{
    gpusync_result result = gpusync_timeline_signal(&T, (uint64_t)value);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_CANCELLED ||
           (result == GPUSYNC_ERROR_NOT_RISING && (uint64_t)value == 1));
    return NULL;
}
static void *failer(void *unused)
{
    gpusync_error reason;
    zero_error(&reason, 0);
    reason.result = GPUSYNC_ERROR_CANCELLED;
    reason.failure = GPUSYNC_FAILURE_OTHER;
    reason.ticket = 42;
    gpusync_result result = gpusync_timeline_fail(&T, &reason);
    assert(result == GPUSYNC_OK);
    return unused;
}

/* A thread asks twice: the second answer is not below the first. A failure has its reason and the value before it. */
static void *asks_twice(void *unused)
{
    uint64_t first, second;
    gpusync_result one = gpusync_timeline_query(&T, &first), two = gpusync_timeline_query(&T, &second);
    if (one == GPUSYNC_OK) assert(two != GPUSYNC_OK || second >= first);
    else assert(one == GPUSYNC_ERROR_CANCELLED && two == one && first == second);
    return unused;
}
static void rises(void)
{
    start(asks_twice, 0);
    pthread_t one = start(signaller, 1), other = start(signaller, 2);
    join(one);
    join(other);
    assert(T.value == 2 && event_value == 2);
}
static void fails(void)
{
    start(asks_twice, 0);
    pthread_t one = start(signaller, 2), other = start(failer, 0);
    join(one);
    join(other);
    assert(T.value == GPUSYNC__FAILED_VALUE && event_value == GPUSYNC__FAILED_VALUE);
}

/* A waiter sleeps for 2, while 1 and 2 are signalled, or 2 is signalled and the timeline fails. */
static void *sleeps(void *unused)
{
    gpusync_error error;
    gpusync_wait_options options = {.error = &error};
    gpusync_result result = gpusync_timeline_wait(&T, 2, GPUSYNC_FOREVER, &options);
    assert(result == GPUSYNC_OK || (result == GPUSYNC_ERROR_CANCELLED && error.ticket == 42));
    return unused;
}
static void sleeper(void)
{
    start(sleeps, 0);
    pthread_t one = start(signaller, 1), other = start(signaller, 2);
    join(one);
    join(other);
    assert(!lost(0));
}
static void sleeper_of_failed(void)
{
    start(sleeps, 0);
    pthread_t one = start(signaller, 2), other = start(failer, 0);
    join(one);
    join(other);
    assert(!lost(0));
}

/* The listener's block runs, while another thread begins to listen for another value: that takes registrations which
   are through off the timeline's list. Each registration is on one list in the end, and has no reference too many. */
static gpusync__listening pair[2] = {{0}, {.next = NULL}};
static void *block_runs(void *unused)
{
    gpusync__context_block block = {{0}, &pair[0]};
    gpusync__listener_invoke(&block, &event_value, 1);
    gpusync__listener_dispose(&block);
    return unused;
}
static void *listens(void *unused)
{
    gpusync__listen_for_value(&T, 2);
    return unused;
}
static void listeners(void)
{
    pair[0].refs = 2; /* a reference of the list, and one of Metal's block */
    pair[0].state = GPUSYNC__ARMED;
    pair[0].device = &D;
    pair[0].timeline = &T;
    pair[0].node.number = 1;
    gpusync__list_add(&T.listenings, &pair[0].node);
    T.flags = GPUSYNC__OUTSIDE;
    gpusync__global.listenings = &pair[1];
    STORE(&event_value, 1);
    pthread_t one = start(block_runs, 0), other = start(listens, 0);
    join(one);
    join(other);
    int listed = 0, spare = 0;
    for (gpusync__node *n = T.listenings.end[0]; n; n = n->beside[1], listed++) /* the list's, and that of Metal's block */
        assert(listed < 2 && ((gpusync__listening *)(void *)n)->refs == (n->number == 2 ? 2 : 1));
    for (gpusync__listening *l = gpusync__global.listenings; l; l = l->next, spare++) assert(spare < 2 && !l->refs);
    assert(T.value == 1 && registered == 1 && listed + spare == 2 && T.listenings.end[1]->number == 2);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
