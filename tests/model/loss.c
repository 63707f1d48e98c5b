/* loss.c - a lost device gives up what has not ended: every thread is told the same of a ticket, and once

   The handler of the work comes just then. ENDS=BADLY: the work has failed. */

#include "rig.h"

#ifndef ENDS
#define ENDS WELL
#endif
static void *handler(void *unused)
{
    finish(0, ENDS);
    return unused;
}
static bool given_up;
static void *gives_up(void *unused)
{
    given_up = gpusync__give_up_queue(&Q); /* as gpusync__give_up_device: this queue is all there is */
    return unused;
}
static bool says_how(gpusync_result result)
{
    return result == (ENDS == WELL ? GPUSYNC_OK : GPUSYNC_ERROR_EXECUTION) || result == GPUSYNC_ERROR_DEVICE_LOST;
}
static gpusync_result polled(void)
{
    gpusync_result result = gpusync_poll(&Q, 1);
    assert(says_how(result) || result == GPUSYNC_NOT_READY);
    return result;
}
static void commit_then_lose(void)
{
    have_log();
    commit(0);
    D.lost_ns = 1;
    Q.flags = GPUSYNC__LOST;
    D.timelines.end[0] = D.timelines.end[1] = NULL;
}
/* Both are through: the ticket has ended, or never will, and says so again and again. */
static void all_agree(gpusync_result told)
{
    assert(given_up && says_how(told) && polled() == told && polled() == told);
    assert(none_in_flight() && !Q.inside && !Q.leaving && B[0].live == 0 && !gpusync__has_listed(&Q.waits));
    assert(Q.log_count == (told == GPUSYNC_ERROR_EXECUTION));
    assert(gpusync_is_done(&Q, 1) == (told != GPUSYNC_ERROR_DEVICE_LOST));
}

/* A wait: what it returns is what a poll says after it. WAIT: of one ticket, or of many points. */
#ifndef WAIT
#define WAIT waits_for_one
#endif
static gpusync_result waits_for_one(void)
{
    gpusync__goal goal = goal_of(&Q, NULL, GPUSYNC__ONE, 1);
    gpusync_result result = sleep_for(&goal, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK);
    return gpusync__goal_result(&goal, true, NULL);
}
static gpusync_result waits_for_many(void)
{
    gpusync__goal goal = goal_of(&Q, NULL, GPUSYNC__ONE, 1);
    gpusync__wait_entry entry;
    gpusync__wait wait = {&D, &D.stats, &D.backoff, &entry, 1, 1, GPUSYNC_OK, true, NULL, false, false, false, NULL};
    zero_watches(&entry, sizeof entry);
    copy_goal(&entry.goal, &goal);
    bool entered = gpusync__enter(&Q);
    gpusync_result result = gpusync__sleep(&wait, GPUSYNC_FOREVER);
    assert(entered && result == GPUSYNC_OK);
    return wait.result;
}
static gpusync_result waited;
static void *waits(void *unused)
{
    waited = WAIT();
    return unused;
}
static void wait(void)
{
    commit_then_lose();
    pthread_t one = start(handler, 0), two = start(gives_up, 0), three = start(waits, 0);
    join(one);
    join(two);
    assert(!lost(0));
    join(three);
    all_agree(waited);
}

/* What a thread is told of the end stays. It asks without a look, as a poll does where another thread has found the end. */
static gpusync_result first = GPUSYNC_NOT_READY;
static void *asks(void *unused)
{
    const gpusync__goal goal = {&Q, NULL, GPUSYNC__ONE, 0, false, 1, 0};
    if (gpusync__has_ended(&Q, 1)) first = gpusync__result_of(&Q, &goal, false, NULL);
    return unused;
}
static void asked(void)
{
    commit_then_lose();
    pthread_t one = start(handler, 0), two = start(gives_up, 0), three = start(asks, 0);
    join(one);
    join(two);
    join(three);
    all_agree(first == GPUSYNC_NOT_READY ? polled() : first);
}

/* A thread polls, and its look finds the end. The handler comes when all is told. */
static void *polls(void *unused)
{
    first = polled();
    return unused;
}
static void looked_at(void)
{
    commit_then_lose();
    STORE(&B[0].status, ENDS);
    pthread_t two = start(gives_up, 0), three = start(polls, 0);
    join(two);
    join(three);
    handler(NULL);
    all_agree(first);
}

/* The work has ended, and a wait is for its handler, which does not come. The wait is over when the device has given up
   what has not ended. */
static void *waits_for_handler(void *unused)
{
    gpusync__goal goal = goal_of(&Q, NULL, GPUSYNC__ONE, 1);
    goal.handlers = true;
    goal.stops |= GPUSYNC__GIVEN_UP;
    gpusync_result result = sleep_for(&goal, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void handler_is_lost(void)
{
    commit_then_lose();
    STORE(&B[0].status, ENDS);
    polls(NULL);
    pthread_t two = start(gives_up, 0), three = start(waits_for_handler, 0);
    join(two);
    assert(!lost(0));
    join(three);
    handler(NULL);
    all_agree(first);
}

/* A callback that is there before, or (WHEN=meanwhile) is registered meanwhile, is called once, and told the same. */
#ifndef WHEN
#define WHEN before
#endif
enum { before, meanwhile };
static int called;
static gpusync_result told;
static void callback(void *user, gpusync_result result, const gpusync_error *error)
{
    assert(called++ == 0);
    told = result;
}
static void *registers(void *unused)
{
    gpusync_result result = gpusync_on_done(gpusync_at_ticket(&Q, 1), callback, NULL);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void called_back(void)
{
    pthread_t three;
    commit_then_lose();
    if (WHEN == before) registers(NULL);
    pthread_t one = start(handler, 0), two = start(gives_up, 0);
    if (WHEN == meanwhile) three = start(registers, 0);
    join(one);
    join(two);
    if (WHEN == meanwhile) join(three);
    for (int i = LOAD(&calls_asked); i > 0; i--) gpusync__answer(&D);
    assert(called == 1 && Q.owed.count == 0 && !D.due && D.refs == 1);
    all_agree(told);
}

/* The work is a submission, and signals a value. It ends once: its ticket says how, and the timeline says the same. */
static void submission(void)
{
    void *buffers[1] = {&B[0]};
    gpusync_point point = {.timeline = &T, .value = 1};
    gpusync_submission work = {.signals = &point,
                               .signal_count = 1,
                               .command_buffers = buffers,
                               .command_buffer_count = 1,
                               .flags = GPUSYNC_STRICT};
    have_submissions(1);
    have_log();
    B[0].status = 0;
    gpusync_result result = gpusync_submit(&Q, &work, NULL);
    assert(result == GPUSYNC_OK && B[0].status == 2);
    D.lost_ns = 1;
    Q.flags = GPUSYNC__LOST;
    pthread_t one = start(handler, 0), two = start(gives_up, 0);
    join(one);
    join(two);
    gpusync_result end = polled();
    assert(given_up || end != GPUSYNC_ERROR_DEVICE_LOST); /* the handler was about to end it */
    assert(says_how(end) && polled() == end && none_in_flight() && B[0].live == 0 && !Q.inside && !Q.leaving);
    assert(gpusync_is_done(&Q, 1) == (end != GPUSYNC_ERROR_DEVICE_LOST));
    assert(end == GPUSYNC_OK ? T.reached == 1 && !T.failed : T.reached == 1 || T.failed);
    assert(T.refs == 1 && !T.signal_count && !T.issued.end[0]);
    all_are_free(1);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
