/* held.c - held work goes, or ends, whichever thread comes first; it goes once, and ends once

   gpusync__issue_held tries the order lock: so these run with WEAK_LOCK, which is acquire and release and no more. */

#include "rig.h"

static void *buffers[2] = {&B[0], &B[1]};
static gpusync_point points[2] = {{.timeline = &T, .value = 1}, {.timeline = &T, .value = 2}};
static gpusync_submission strict = {.waits = &points[0],
                                    .wait_count = 1,
                                    .command_buffers = &buffers[0],
                                    .command_buffer_count = 1,
                                    .flags = GPUSYNC_STRICT | GPUSYNC_UNORDERED};
static gpusync_submission later = {.waits = &points[1],
                                   .wait_count = 1,
                                   .command_buffers = &buffers[1],
                                   .command_buffer_count = 1,
                                   .flags = GPUSYNC_STRICT | GPUSYNC_UNORDERED};
static void *submits(void *submission)
{
    gpusync_ticket ticket;
    gpusync_result result = gpusync_submit(&Q, (gpusync_submission *)submission, &ticket);
    assert(result == GPUSYNC_OK);
    return NULL;
}
static void *signals(void *value)
{
    gpusync_result result = gpusync_timeline_signal(&T, (uint64_t)value);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_EXECUTION || (uint64_t)value == 1);
    return NULL;
}
static void *fails(void *unused)
{
    gpusync_result result = gpusync_timeline_fail(&T, NULL);
    assert(result == GPUSYNC_OK);
    return unused;
}
static void *cancels(void *unused)
{
    gpusync_result result = gpusync_cancel_held(&Q);
    assert(result == GPUSYNC_OK);
    if (__atomic_load_n(&Q.owed.count, __ATOMIC_ACQUIRE) == 0)
        *(volatile bool *)&links[0].broken = true; /* it is free, and may serve another submission */
    return unused;
}
#ifndef ENDS
#define ENDS WELL
#endif
static void *ends(void *unused)
{
    finish(0, ENDS);
    return unused;
}

/* Nothing is held, listed, pending, owed or about to be looked at, and each submission and link was given back once. */
static void nothing_is_left(int count)
{
    assert(gpusync_is_idle(&Q) && !Q.owed.count && !Q.inside && !Q.leaving);
    assert(!Q.issuing && !Q.lined && !Q.lined_ordered && !Q.held_buffers);
    for (int i = 0; i < GPUSYNC__LINES; i++) assert(!Q.lines[i].end[0]);
    assert(T.refs == 1 && !T.signal_count && !T.waiting.end[0] && !T.signals.end[0]);
    assert(!T.issued.end[0] && !T.passed && !T.stays);
    assert(!gpusync__has_listed(&T.waits) && !gpusync__has_listed(&Q.waits));
    all_are_free(count);
}
static void begin_held(int count)
{
    have_submissions(count);
    B[0].status = B[1].status = 0;
}
/* It was issued, and no thread had to look for it. It ends well. */
static void goes(int i)
{
    join_issues();
    assert(B[i].status == 2);
    finish(i, WELL);
    assert(B[i].live == 0);
}
static void has_failed(void)
{
    join_issues();
    gpusync_result result = gpusync_wait(&Q, 1, 0);
    assert(B[0].status == 0 && B[0].live == 1 && result == GPUSYNC_ERROR_EXECUTION && Q.log_count == 1);
}

/* A submission that the host has to wait for (STRICT) comes in, while the value that it needs is signalled, or the
   timeline fails, or both. In the end it was issued, or it has failed. */
static void against_signal(void)
{
    begin_held(1);
    pthread_t one = start(submits, (long)&strict), other = start(signals, 1);
    join(one);
    join(other);
    goes(0);
    nothing_is_left(1);
}
static void against_failure(void)
{
    begin_held(1);
    pthread_t one = start(submits, (long)&strict), other = start(fails, 0);
    join(one);
    join(other);
    has_failed();
    nothing_is_left(1);
}
static void against_both(void)
{
    begin_held(1);
    pthread_t one = start(submits, (long)&strict), two = start(signals, 1), three = start(fails, 0);
    join(one);
    join(two);
    join(three);
    join_issues();
    if (B[0].status == 2) goes(0);
    else has_failed();
    nothing_is_left(1);
}

/* The same against the loss of the device, which tells the queue alone. It is the device's first submission: where the
   loss comes before `upper` is set, the submission sees the flag. */
static void *loses(void *unused)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__lose(&D, &deferred);
    gpusync__do_deferred(&D, &deferred);
    return unused;
}
static void *submits_or_not(void *submission)
{
    gpusync_ticket ticket;
    gpusync_result result = gpusync_submit(&Q, (gpusync_submission *)submission, &ticket);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DEVICE_LOST || result == GPUSYNC_ERROR_EXECUTION);
    return NULL;
}
static void against_loss(void)
{
    D.timelines.end[0] = D.timelines.end[1] = NULL;
    begin_held(1);
    pthread_t one = start(submits_or_not, (long)&strict), other = start(loses, 0);
    join(one);
    join(other);
    join_issues();
    assert(B[0].status == 0 && B[0].live == 1);
    nothing_is_left(1);
}

/* The same against a failure that sticks: the failed command buffer's handler tells the queue alone. */
static void against_stuck(void)
{
    Q.sticky = true;
    have_log();
    begin_held(1);
    gpusync__hook_in(&D);
    commit(0);
    pthread_t one = start(submits_or_not, (long)&later), other = start(ends, 0);
    join(one);
    join(other);
    join_issues();
    assert(B[1].status == 0 && B[1].live == 1 && Q.stuck.ticket == 1 && Q.log_count == gpusync__committed(&Q));
    nothing_is_left(1);
}

/* Held work may go, while another thread has the order lock. */
static void *orders(void *unused)
{
    gpusync__lock(&Q.order);
    gpusync__unlock(&Q.order);
    return unused;
}
static void issue_held(void)
{
    begin_held(1);
    submits(&strict);
    pthread_t one = start(signals, 1), other = start(orders, 0);
    join(one);
    join(other);
    goes(0);
    nothing_is_left(1);
}

/* Two threads let one held submission each go. */
static void two_issues(void)
{
    begin_held(2);
    submits(&strict);
    submits(&later);
    pthread_t one = start(signals, 1), other = start(signals, 2);
    join(one);
    join(other);
    goes(0);
    goes(1);
    nothing_is_left(2);
}

/* Held work goes, while another thread commits, which is to stand behind it. */
static void *commits_behind(void *unused)
{
    gpusync_ticket ticket;
    gpusync_result result = gpusync_commit(&Q, &B[1], &ticket);
    assert(result == GPUSYNC_OK && ticket == 2);
    return unused;
}
static void in_order(void)
{
    begin_held(2);
    strict.flags = GPUSYNC_STRICT;
    submits(&strict);
    pthread_t one = start(signals, 1), other = start(commits_behind, 0);
    join(one);
    join(other);
    goes(0);
    goes(1);
    assert(places[0] == 1 && places[1] == 2);
    nothing_is_left(2);
}

/* A ticket ends (ENDS=BADLY: it fails), while a submission that waits for it comes in. That goes, or fails, too. */
static gpusync_point ticket_one = {.queue = &Q, .ticket = 1};
static gpusync_submission second = {.waits = &ticket_one,
                                    .wait_count = 1,
                                    .command_buffers = &buffers[1],
                                    .command_buffer_count = 1,
                                    .flags = GPUSYNC_STRICT | GPUSYNC_UNORDERED};
static void ticket_told(void)
{
    have_log();
    begin_held(1);
    commit(0);
    pthread_t one = start(submits, (long)&second), other = start(ends, 0);
    join(one);
    join(other);
    if (ENDS == WELL) goes(1);
    else join_issues();
    assert(Q.log_count == (ENDS == WELL ? 0 : 2) && B[1].status == (ENDS == WELL ? WELL : 0));
    nothing_is_left(1);
}

/* A ticket ends, while a submission that is held for it is cancelled: it goes, or it ends. */
static void ticket_forgotten(void)
{
    begin_held(1);
    commit(0);
    submits(&second);
    pthread_t one = start(cancels, 0), other = start(ends, 0);
    join(one);
    join(other);
    join_issues();
    if (B[1].status == 2) goes(1);
    else assert(B[1].live == 1 && Q.log_count == 1);
    nothing_is_left(1);
}

/* Work that signals 1 is on the device. A submission that waits for 1 comes in while that work ends well. It is issued,
   and ends well too. */
static gpusync_submission first = {
    .signals = &points[0], .signal_count = 1, .command_buffers = &buffers[0], .command_buffer_count = 1};
static gpusync_submission follows = {
    .waits = &points[0], .wait_count = 1, .command_buffers = &buffers[1], .command_buffer_count = 1};
static void *both_end(void *unused)
{
    finish(0, WELL);
    finish(2, WELL); /* our own, with the signal */
    return unused;
}
static void on_the_device(void)
{
    begin_held(2);
    for (int i = 0; i < 4; i++) B[i].status = 0;
    made = 2;
    submits(&first);
    gpusync__submission *before = links[1].submission;
    gpusync__submission_keep(before); /* so that its memory does not serve the other one */
    made = 3;
    pthread_t one = start(submits, (long)&follows), other = start(both_end, 0);
    join(one);
    join(other);
    join_issues();
    if (B[3].status == 2) finish(3, WELL); /* our own, with the wait */
    goes(1);
    gpusync__submission_unref(before);
    gpusync_result result = gpusync_wait(&Q, 1, 0), result2 = gpusync_wait(&Q, 2, 0);
    assert(result == GPUSYNC_OK && result2 == GPUSYNC_OK && Q.log_count == 0 && T.value == 1);
    nothing_is_left(2);
}

/* The same where the work fails. What needs it fails with it, whether the device has it by then or not. */
static void *first_fails(void *unused)
{
    finish(0, BADLY);
    finish(2, WELL);
    return unused;
}
static void fails_on_the_device(void)
{
    have_log();
    begin_held(2);
    for (int i = 0; i < 4; i++) B[i].status = 0;
    made = 2;
    submits(&first);
    gpusync__submission *before = links[1].submission;
    gpusync__submission_keep(before);
    made = 3;
    pthread_t one = start(submits, (long)&follows), other = start(first_fails, 0);
    join(one);
    join(other);
    join_issues();
    if (B[3].status == 2) finish(3, WELL);
    if (B[1].status == 2) goes(1);
    gpusync__submission_unref(before);
    gpusync_result result = gpusync_wait(&Q, 1, 0), result2 = gpusync_wait(&Q, 2, 0);
    assert(result == GPUSYNC_ERROR_EXECUTION && result2 == GPUSYNC_ERROR_EXECUTION && Q.log_count == 2 && T.failed);
    nothing_is_left(2);
}

/* Both are on the device, and the second one ends while the first one fails. It does not end before that, and fails
   with it. The host makes the signal. */
static gpusync_submission signals_one = {.signals = &points[0],
                                         .signal_count = 1,
                                         .command_buffers = &buffers[0],
                                         .command_buffer_count = 1,
                                         .flags = GPUSYNC_STRICT};
static void *second_ends(void *unused)
{
    finish(1, WELL);
    return unused;
}
static void ends_before(void)
{
    have_log();
    begin_held(2);
    B[3].status = 0;
    submits(&signals_one);
    made = 3;
    submits(&follows);
    finish(3, WELL); /* our own, with the wait */
    pthread_t one = start(second_ends, 0), other = start(ends, 0);
    join(one);
    join(other);
    gpusync_result result = gpusync_wait(&Q, 1, 0), result2 = gpusync_wait(&Q, 2, 0);
    assert(result == GPUSYNC_ERROR_EXECUTION && result2 == GPUSYNC_ERROR_EXECUTION && Q.log_count == 2 && T.failed);
    nothing_is_left(2);
}

/* Work that is to signal 1 fails, while work that is to signal 2 ends well. 2 is not reached. This is the step alone
   that ends the signals. */
static gpusync_submission signals_two = {.signals = &points[1],
                                         .signal_count = 1,
                                         .command_buffers = &buffers[1],
                                         .command_buffer_count = 1,
                                         .flags = GPUSYNC_STRICT};
static void *ends_signals(void *s)
{
    gpusync_error error;
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    bool fails = ((gpusync__submission *)s)->work.ticket == 1;
    zero_error(&error, 0);
    error.result = GPUSYNC_ERROR_EXECUTION;
    gpusync__end_signals((gpusync__submission *)s, !fails, fails ? &error : NULL, &deferred);
    return NULL;
}
static void lower_fails(void)
{
    begin_held(2);
    submits(&signals_one);
    submits(&signals_two);
    gpusync__link *link = gpusync__link_at(T.issued.end[0]);
    gpusync__link *higher = gpusync__link_at(T.issued.end[1]);
    pthread_t one = start(ends_signals, (long)link->submission), other = start(ends_signals, (long)higher->submission);
    join(one);
    join(other);
    assert(T.failed && !T.reached && !T.signal_count && event_value == GPUSYNC__FAILED_VALUE);
}

/* Work that the device has fails, while it waits for a value that other code signals, and another thread hears of that
   value. One of the two ends it, and the timeline fails with it. */
static gpusync_submission both = {.waits = &points[0], .wait_count = 1, .signals = &points[1], .signal_count = 1};
static void *hears_of_one(void *unused)
{
    send_void_value(&event_value, gpusync__sel.setSignaledValue, 1);
    return block_runs(unused);
}
static void fails_abroad(void)
{
    begin_held(2);
    others_signal();
    submits(&both);
    assert(B[0].status == 2 && T.waiting.end[0] && !none_in_flight());
    pthread_t one = start(ends, 0), other = start(hears_of_one, 0);
    join(one);
    join(other);
    join_issues();
    gpusync_result result = gpusync_wait(&Q, 1, 0);
    assert(result == GPUSYNC_ERROR_EXECUTION && T.failed && event_value == GPUSYNC__FAILED_VALUE && Q.log_count == 1);
    nothing_is_left(2);
}

/* Other code signals what work of a Metal 4 queue is held for, and a thread finds that, issues the work, and gets the
   feedback, while the thread that submits it is about to listen. */
static void *finds_and_ends(void *unused)
{
    uint64_t value;
    gpusync_result result = gpusync_timeline_query(&T, &value);
    assert(result == GPUSYNC_OK && value == 1);
    __VERIFIER_assume(__atomic_load_n(&B[0].status, __ATOMIC_ACQUIRE) == 2);
    gpusync__completed(B[0].handler, &B[4]);
    return unused;
}
static void listens(void)
{
    begin_held(1);
    others_signal();
    Q.metal4 = true;
    Q.limit = UINT32_MAX;
    STORE(&event_value, 1);
    pthread_t one = start(submits, (long)&strict), other = start(finds_and_ends, 0);
    join(one);
    join(other);
    join_issues();
    nothing_is_left(1);
}

/* The same where the value is the host's, and the work signals another one. Metal 4 retains no event, so that its links
   outlive the submission: they leave it when no thread has a reference any more. The value has come by then. */
static gpusync_submission passes = {.waits = &points[0],
                                    .wait_count = 1,
                                    .signals = &points[1],
                                    .signal_count = 1,
                                    .command_buffers = &buffers[0],
                                    .command_buffer_count = 1};
static void *signals_and_ends(void *unused)
{
    signals((void *)1);
    __VERIFIER_assume(__atomic_load_n(&B[0].status, __ATOMIC_ACQUIRE) == 2);
    send_void_value(&event_value, gpusync__sel.setSignaledValue, 2);
    gpusync__completed(B[0].handler, &B[4]);
    return unused;
}
static void keeps(void)
{
    begin_held(2);
    Q.metal4 = true;
    Q.limit = UINT32_MAX;
    pthread_t one = start(submits, (long)&passes), other = start(signals_and_ends, 0);
    join(one);
    join(other);
    join_issues();
    assert(!Q.kept.end[0] && T.value == 2);
    nothing_is_left(2);
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
    assert(result == GPUSYNC_OK);
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
