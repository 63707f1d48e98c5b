/* failure.c - a failure is known before the end is, once, and to everybody */

#include "rig.h"

static void *handler(void *i)
{
    finish((int)(long)i, BADLY);
    return NULL;
}

/* A command buffer fails. Its handler, one who looks at the status too, and one who asks: whoever sees the ticket done
   finds the failure on record. It is recorded once. */
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

/* Two failures at once, and a log hook: it hears of each, once. */
static int logged;
static void hook(void *user, gpusync_log_level level, const char *text)
{
    __atomic_fetch_add(&logged, 1, __ATOMIC_RELAXED);
}
static void *fails(void *ticket)
{
    gpusync_error error;
    zero_error(&error, 0);
    error.result = GPUSYNC_ERROR_EXECUTION;
    error.ticket = (uint64_t)ticket;
    gpusync__record(&Q, &error);
    gpusync__log_failures(&Q);
    return NULL;
}
static void log_hook(void)
{
    D.log = hook;
    have_log();
    pthread_t one = start(fails, 1), two = start(fails, 2);
    join(one);
    join(two);
    assert(logged == 2);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
