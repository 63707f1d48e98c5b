/* held.c - held work goes, or ends, whichever thread comes first

   gpusync__issue_ready tries the order lock: so these run with WEAK_LOCK, which is acquire and release and no more. */

#include "rig.h"

/* A submission that the host has to wait for (STRICT) comes in, while the value that it needs is signalled, or the
   timeline fails, or both. In the end it was issued, or it has failed. Nothing is left wanted, listed or owed. */
static void *buffers[1] = {&B[0]};
static gpusync_point point = {.timeline = &T, .value = 1};
static gpusync_submission strict = {
    .waits = &point, .wait_count = 1, .command_buffers = buffers, .command_buffer_count = 1, .flags = GPUSYNC_STRICT};
static void *submits(void *submission)
{
    gpusync_ticket ticket;
    gpusync_result result = gpusync_submit(&Q, (gpusync_submission *)submission, &ticket);
    assert(result == GPUSYNC_OK);
    return NULL;
}
static void *signals(void *unused)
{
    gpusync_result result = gpusync_timeline_signal(&T, 1);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION);
    return unused;
}
static void *fails(void *unused)
{
    gpusync_result result = gpusync_timeline_fail(&T, NULL);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void nothing_is_left(void)
{
    assert(gpusync_is_idle(&Q) && Q.owed.count == 0 && T.refs == 1 && !gpusync__has_listed(&T.waits));
    assert(!Q.wanted && !Q.is_deferred && !Q.lined && !Q.line.first && !Q.ready && !Q.held_buffers);
}
static void against_signal(void)
{
    have_submissions(1);
    B[0].status = 0;
    pthread_t one = start(submits, (long)&strict), other = start(signals, 0);
    join(one);
    join(other);
    assert(B[0].status == 2 && !gpusync_is_idle(&Q)); /* issued: no thread has to look for it */
    finish(0, WELL);
    assert(B[0].live == 0);
    nothing_is_left();
}
static void has_failed(void)
{
    gpusync_result result = gpusync_wait(&Q, 1, 0);
    assert(B[0].status == 0 && B[0].live == 1 && result == GPUSYNC_ERROR_EXECUTION && Q.log_count == 1);
    nothing_is_left();
}
static void against_failure(void)
{
    have_submissions(1);
    B[0].status = 0;
    pthread_t one = start(submits, (long)&strict), other = start(fails, 0);
    join(one);
    join(other);
    has_failed();
}
static void against_both(void)
{
    have_submissions(1);
    B[0].status = 0;
    pthread_t one = start(submits, (long)&strict), two = start(signals, 0), three = start(fails, 0);
    join(one);
    join(two);
    join(three);
    if (B[0].status != 2) {
        has_failed();
        return;
    }
    finish(0, WELL);
    assert(B[0].live == 0);
    nothing_is_left();
}

/* The same against the loss of the device: the held work ends. */
static void *loses(void *unused)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__lose(&D, &deferred);
    gpusync__do_deferred(&D, &deferred);
    return unused;
}
static void *submits_or_not(void *unused)
{
    gpusync_ticket ticket;
    gpusync_result result = gpusync_submit(&Q, &strict, &ticket);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DEVICE_LOST);
    return unused;
}
static void against_loss(void)
{
    D.timelines.root = D.timelines.end[0] = D.timelines.end[1] = NULL; /* the loss tells the queue alone */
    have_submissions(1);
    B[0].status = 0;
    pthread_t one = start(submits_or_not, 0), other = start(loses, 0);
    join(one);
    join(other);
    assert(B[0].status == 0 && B[0].live == 1);
    nothing_is_left();
}

/* The same against a failure that sticks: the failed command buffer's handler tells the queue alone. */
static gpusync__sticky sticky;
static void *more_buffers[1] = {&B[1]};
static gpusync_submission later = {
    .waits = &point, .wait_count = 1, .command_buffers = more_buffers, .command_buffer_count = 1, .flags = GPUSYNC_STRICT};
static void *submits_later(void *unused)
{
    gpusync_ticket ticket;
    gpusync_result result = gpusync_submit(&Q, &later, &ticket);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION);
    return unused;
}
static void *ends_badly(void *unused)
{
    finish(0, BADLY);
    return unused;
}
static void against_stuck(void)
{
    Q.sticky = &sticky;
    have_log();
    have_submissions(1);
    commit(0);
    B[1].status = 0;
    pthread_t one = start(submits_later, 0), other = start(ends_badly, 0);
    join(one);
    join(other);
    assert(B[1].status == 0 && B[1].live == 1 && sticky.error.ticket == 1 && Q.log_count == gpusync__committed(&Q));
    nothing_is_left();
}

/* Something about a held submission changes. The thread that changes it has what is held issued, while another thread
   has the order lock, or does the same for another submission. In the end gpusync__issue_ready has looked at each, and
   nothing is wanted. */
static void *stirs(void *i)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__mark_ready(&submissions[(long)i], &deferred);
    gpusync__run(&D, &deferred);
    return NULL;
}
static void *orders(void *unused)
{
    gpusync__lock(&Q.order);
    gpusync__order_end(&Q);
    return unused;
}
static void hold(gpusync__submission *s)
{
    gpusync__hook_in(&D);
    s->device = &D;
    s->work.queue = &Q;
    s->flags = GPUSYNC_UNORDERED;
    s->lined = true;
    s->missing = 1; /* it stays where it is */
}
static void issue_held(void)
{
    hold(&submissions[0]);
    pthread_t one = start(stirs, 0), other = start(orders, 0);
    join(one);
    join(other);
    assert(!Q.wanted && !Q.is_deferred && !Q.inside && !Q.ready);
}
static void two_issues(void)
{
    hold(&submissions[0]);
    hold(&submissions[1]);
    pthread_t one = start(stirs, 0), other = start(stirs, 1);
    join(one);
    join(other);
    assert(!Q.wanted && !Q.is_deferred && !Q.inside && !Q.ready);
}

/* Work that signals 1 is on the device. A submission that waits for 1 comes in while that work ends well. It is issued,
   and ends well too. */
static gpusync_submission first = {
    .signals = &point, .signal_count = 1, .command_buffers = buffers, .command_buffer_count = 1};
static gpusync_submission second = {
    .waits = &point, .wait_count = 1, .command_buffers = more_buffers, .command_buffer_count = 1};
static void *ends(void *unused)
{
    finish(0, WELL);
    finish(2, WELL); /* our own, with the signal */
    return unused;
}
static void on_the_device(void)
{
    have_submissions(2);
    for (int i = 0; i < 4; i++) B[i].status = 0;
    made = 2;
    submits(&first);
    made = 3;
    pthread_t one = start(submits, (long)&second), other = start(ends, 0);
    join(one);
    join(other);
    assert(B[1].status == 2);
    if (B[3].status == 2) finish(3, WELL); /* our own, with the wait */
    finish(1, WELL);
    gpusync_result result = gpusync_wait(&Q, 1, 0), result2 = gpusync_wait(&Q, 2, 0);
    assert(result == GPUSYNC_OK && result2 == GPUSYNC_OK && Q.log_count == 0 && T.value == 1 && !T.signal_count);
    nothing_is_left();
}

/* gpusync__is_full_for_good counts what is tracked and not committed, while an open command buffer is committed. */
static void *counts(void *unused)
{
    (void)gpusync__is_full_for_good(&Q);
    return unused;
}
static void *commits_open(void *unused)
{
    gpusync_ticket ticket;
    gpusync_result result = gpusync_commit(&Q, &B[2], &ticket);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void stuck(void)
{
    void *buffer;
    gpusync_ticket ticket;
    B[0].status = 0;
    made = 2;
    gpusync_result result = gpusync_command_buffer(&Q, NULL, &buffer);
    assert(result == GPUSYNC_OK && buffer == &B[2]);
    result = gpusync_track(&Q, &B[0], &ticket);
    assert(result == GPUSYNC_OK && !Q.index);
    pthread_t one = start(counts, 0), other = start(commits_open, 0);
    join(one);
    join(other);
    assert(!gpusync__is_full_for_good(&Q) && Q.outstanding == 2);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
