/* timeline.c - a timeline only rises, a failure is for good, and no waiter sleeps for ever */

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

/* A thread asks twice: the second answer is not below the first. A failure has its reason and, with LAST, the value
   before it. */
#ifndef LAST
#define LAST 0
#endif
static void *asks_twice(void *unused)
{
    uint64_t first, second;
    gpusync_result one = gpusync_timeline_query(&T, &first), two = gpusync_timeline_query(&T, &second);
    if (one == GPUSYNC_OK) assert(two != GPUSYNC_OK || second >= first);
    else assert(one == GPUSYNC_ERROR_CANCELLED && two == one && (!LAST || first == second));
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
static void *sleeps_for_two(void *unused)
{
    gpusync__goal goal = goal_of(NULL, &T, GPUSYNC__VALUE, 2);
    gpusync_result result = sleep_for(&goal, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK);
    return unused;
}
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
    start(sleeps_for_two, 0);
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

/* A waiter sleeps for 1, while work that signals 1 ends. */
static void *sleeps_for_one(void *unused)
{
    gpusync__goal goal = goal_of(NULL, &T, GPUSYNC__VALUE, 1);
    gpusync_result result = sleep_for(&goal, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void *ends(void *unused)
{
    finish(0, WELL);
    finish(1, WELL); /* our own, with the signal */
    return unused;
}
static void sleeper_of_work(void)
{
    void *buffers[1] = {&B[0]};
    gpusync_point point = {.timeline = &T, .value = 1};
    gpusync_submission work = {.signals = &point,
                               .signal_count = 1,
                               .command_buffers = buffers,
                               .command_buffer_count = 1};
    gpusync_ticket ticket;
    have_submissions(1);
    B[0].status = 0;
    made = 1;
    gpusync_result result = gpusync_submit(&Q, &work, &ticket);
    assert(result == GPUSYNC_OK && B[0].status == 2 && B[1].status == 2);
    start(sleeps_for_one, 0);
    join(start(ends, 0));
    assert(!lost(0));
}

/* The listener's block runs for 1, while a waiter falls asleep for 2, which others will signal. Then Metal is to tell of
   2, unless the waiter has still to fall asleep. */
static void listener_again(void)
{
    others_signal();
    STORE(&event_value, 1);
    start(sleeps_for_two, 0);
    join(start(block_runs, 0));
    if (!lost(0)) return; /* it has still to fall asleep: there is an order in which it has */
    assert(LOAD(&registered) == 2);
    STORE(&event_value, 2);
    block_runs((void *)1); /* so that it wakes up */
    assert(!lost(0));
}

/* Metal is to tell of 2, and of 1, and copies each registration while another thread makes the other one. In the end
   all copies are off the list. */
static void *listens_for(void *value)
{
    gpusync__listen(&T, (uint64_t)value);
    return NULL;
}
static void listener_copied(void)
{
    others_may_signal();
    pthread_t one = start(listens_for, 2), other = start(listens_for, 1);
    join(one);
    join(other);
    assert(listening.out->raw == 1 && listening.refs == 1 + (unsigned)registered);
    STORE(&event_value, 2);
    for (int i = 0; i < registered; i++) block_runs((void *)(long)i);
    assert(!listening.out && listening.refs == 1);
}

/* Two threads are the first of the device that listen. They make one listener. */
static void listener_made(void)
{
    D.listener = NULL;
    others_may_signal();
    pthread_t one = start(listens_for, 2), other = start(listens_for, 1);
    join(one);
    join(other);
    assert(D.listener == &metal_object && objects_made == 1);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
