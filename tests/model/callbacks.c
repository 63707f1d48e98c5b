/* callbacks.c - what is due is called, once, and sweeps come while there is a reason */

#include "rig.h"

static int called;
static void count_call(void *user, gpusync_result result, const gpusync_error *error)
{
    assert(result == GPUSYNC_OK);
    __atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
}
/* What the dispatch queue was asked for, in a thread that is joined with the thread that asked. */
static void dispatch(void)
{
    for (int i = LOAD(&calls_asked); i > 0; i--) gpusync__answer(&D);
}

/* A callback is registered for a ticket, while its handler runs. */
static void *handler(void *unused)
{
    finish(0, WELL);
    return unused;
}
static void *registrar(void *unused)
{
    gpusync_result result = gpusync_on_done(gpusync_at_ticket(&Q, 1), count_call, NULL);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void registered_meanwhile(void)
{
    commit(0);
    pthread_t one = start(registrar, 0), other = start(handler, 0);
    join(one);
    join(other);
    assert(calls_asked == 1);
    dispatch();
    assert(called == 1 && Q.owed.count == 0 && !D.due && D.refs == 1);
}

/* One callback is registered for a value, and then a second one, while the value is signalled. They are called in this
   order. */
static void in_order(void *number, gpusync_result result, const gpusync_error *error)
{
    assert(result == GPUSYNC_OK && LOAD(&called) == (int)(long)number);
    __atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
}
static void *registers(void *number)
{
    gpusync_result result = gpusync_on_done(gpusync_at_value(&T, 1), in_order, number);
    assert(result == GPUSYNC_OK);
    return NULL;
}
static void *signals(void *unused)
{
    gpusync_result result = gpusync_timeline_signal(&T, 1);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void registered_for_value(void)
{
    registers((void *)0);
    pthread_t one = start(registers, 1), other = start(signals, 0);
    join(one);
    join(other);
    dispatch();
    assert(called == 2 && T.owed.count == 0 && !D.due);
}

/* A callback is registered for a value, which work signals. Another thread sees the value reached, and destroys the
   timeline, or (THEN=loses) finds that the device is lost. The callback is told that all went well. */
#ifndef THEN
#define THEN destroys
#endif
static void *ends_work(void *unused)
{
    finish(0, WELL);
    return unused;
}
static void destroys(void)
{
    gpusync_result result = gpusync_timeline_destroy(&T);
    assert(result == GPUSYNC_OK);
}
static void loses(void)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__lose(&D, &deferred);
    gpusync__do_deferred(&D, &deferred);
}
static void *sees_it(void *unused)
{
    uint64_t value;
    gpusync_result result = gpusync_timeline_query(&T, &value);
    assert(result == GPUSYNC_OK);
    __VERIFIER_assume(value == 1);
    THEN();
    return unused;
}
static void reached_then_gone(void)
{
    void *buffers[1] = {&B[0]};
    gpusync_point point = {.timeline = &T, .value = 1};
    gpusync_submission work = {.signals = &point,
                               .signal_count = 1,
                               .command_buffers = buffers,
                               .command_buffer_count = 1,
                               .flags = GPUSYNC_STRICT};
    have_submissions(1);
    B[0].status = 0;
    gpusync_result result = gpusync_submit(&Q, &work, NULL);
    assert(result == GPUSYNC_OK);
    result = gpusync_on_done(point, count_call, NULL);
    assert(result == GPUSYNC_OK);
    pthread_t one = start(ends_work, 0), other = start(sees_it, 0);
    join(one);
    join(other);
    dispatch();
    assert(called == 1 && T.owed.count == 0 && !D.due);
}

/* A callback becomes due, while the dispatch queue is about to look for what was due before. */
static gpusync__callback *make_callback(void)
{
    gpusync__goal goal = goal_of(&Q, NULL, GPUSYNC__ONE, 0);
    return gpusync__callback_new(&D, &goal, count_call, NULL);
}
static gpusync__callback *callback;
static void *becomes_due(void *unused)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__push_due(&D, &callback->due, &deferred);
    gpusync__ask_for_calls(&D, &deferred);
    return unused;
}
static void *answers(void *unused)
{
    gpusync__answer(&D);
    return unused;
}
static void asked_meanwhile(void)
{
    callback = make_callback();
    D.asked = 1; /* for an earlier one, which destroy has paid */
    D.refs = 2;
    pthread_t one = start(becomes_due, 0), other = start(answers, 0);
    join(one);
    join(other);
    dispatch();
    assert(called == 1 && Q.owed.count == 0 && !D.due && D.refs == 1 && !D.calling);
}

/* The dispatch queue calls one, while destroy pays what its own object is owed: each is called once, one at a time. */
static int inside_callback;
static void alone(void *user, gpusync_result result, const gpusync_error *error)
{
    assert(__atomic_exchange_n(&inside_callback, 1, __ATOMIC_RELAXED) == 0);
    count_call(user, result, error);
    STORE(&inside_callback, 0);
}
static void *pays(void *unused)
{
    gpusync__pay(&D, &Q.owed, &Q.going);
    return unused;
}
static void paid_meanwhile(void)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    callback = make_callback();
    callback->due.fn = alone;
    gpusync__push_due(&D, &callback->due, &deferred);
    D.asked = 1;
    D.refs = 2;
    pthread_t one = start(pays, 0), other = start(answers, 0);
    join(one);
    join(other);
    dispatch();
    assert(called == 1 && Q.owed.count == 0 && !D.due && D.refs == 1 && !D.calling);
}

/* A waiter falls asleep for work whose handler is lost, while the last sweep looks for a reason to go on: a timer is on
   its way for as long as the waiter sleeps. */
static void *sleeps(void *unused)
{
    gpusync__goal goal = goal_of(&Q, NULL, GPUSYNC__ONE, 1);
    gpusync_result result = sleep_for(&goal, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void *sweeps(void *unused)
{
    gpusync__sweep(&D);
    return unused;
}
static void sweep_for_sleeper(void)
{
    commit(0);
    D.refs = 2;
    start(sleeps, 0);
    join(start(sweeps, 0));
    if (!lost(0)) return; /* it has still to fall asleep: there is an order in which it has */
    assert(LOAD(&sweeps_asked) > 0);
    finish(0, WELL); /* so that it wakes up */
}

/* The same for a call that got no room, and may ask again. */
static void *asks_for_room(void *unused)
{
    gpusync_result result = gpusync__wait_below(&Q, 1, 0);
    assert(result == GPUSYNC_TIMEOUT);
    return unused;
}
static void sweep_for_room(void)
{
    commit(0);
    D.refs = 2;
    pthread_t one = start(asks_for_room, 0), other = start(sweeps, 0);
    join(one);
    join(other);
    assert(LOAD(&sweeps_asked) > 0);
}

/* The same for work that is held. */
static void *submits_held(void *unused)
{
    gpusync_point point = {.timeline = &T, .value = 1};
    gpusync_submission work = {.waits = &point, .wait_count = 1};
    gpusync_result result = gpusync_submit(&Q, &work, NULL);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void sweep_for_held(void)
{
    have_submissions(1);
    D.refs = 2;
    pthread_t one = start(submits_held, 0), other = start(sweeps, 0);
    join(one);
    join(other);
    assert(Q.lined == 1 && LOAD(&sweeps_asked) > 0);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
