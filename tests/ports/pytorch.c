/* pytorch.c - what PyTorch's MPS back end synchronises: MPSStream, MPSEvent, MPSEventPool

   Any thread may use a stream or the pool, one at a time an event, and the streams outlive the events: as in PyTorch. A
   function that may raise gets an mps_exception, and returns true if it has raised. The next call of the stream that
   commits or waits raises a failure of the stream's work; then the stream is usable again. (What a commit has raised,
   the next wait for all work raises once more.) Work that waits for an event fails with the work in front of it. */
#include "gpusync.h"
#include "metal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* COMMIT_AND_CONTINUE is MPS_COMMIT here: the next dispatch opens a command buffer. */
typedef enum mps_sync { MPS_NONE, MPS_COMMIT, MPS_COMMIT_AND_WAIT } mps_sync;

typedef struct mps_exception {
    gpusync_result result;
    char message[320];
} mps_exception;

typedef struct mps_stream {
    gpusync_queue *queue;
    uint64_t limit_ns;    /* of a wait */
    pthread_mutex_t lock; /* around everything below, and around encoding: PyTorch's serial queue */
    void *buffer;         /* open, or NULL */
    gpusync_ticket last;
} mps_stream;

/* Begin with {0}, or acquire it. There is nothing to release, also while work waits for the event. */
typedef struct mps_event {
    mps_stream *stream; /* NULL: not recorded */
    gpusync_ticket ticket;
    struct mps_event *next; /* in the pool */
} mps_event;
static pthread_mutex_t mps_pool_lock = PTHREAD_MUTEX_INITIALIZER;
static mps_event *mps_pool; /* for the life of the process */

/* why NULL: what sticks has the reason, if that is one. A later failure than the one that is raised goes on sticking.
   Functions with _locked in their names are called under the lock. */
static bool mps_raise_locked(mps_stream *s, mps_exception *e, gpusync_result result, const gpusync_error *why)
{
    gpusync_error stuck;
    if (result == GPUSYNC_ERROR_EXECUTION && !why && gpusync_queue_failure(s->queue, &stuck) == GPUSYNC_OK)
        why = &stuck;
    if (result == GPUSYNC_ERROR_EXECUTION && why)
        (void)!gpusync_queue_clear_failure(s->queue, why->ticket);
    e->result = result;
    snprintf(e->message, sizeof e->message, "MPS: %s", why ? why->message : gpusync_result_string(result));
    return true;
}

bool mps_stream_create(mps_stream *s, gpusync_device *device, const char *label, uint64_t limit_ns)
{
    const gpusync_queue_desc desc = {.label = label, .sticky_failure = true};
    *s = (mps_stream){.limit_ns = limit_ns};
    if (gpusync_queue_create(device, &desc, &s->queue) != GPUSYNC_OK)
        return false;
    if (pthread_mutex_init(&s->lock, NULL) == 0)
        return true;
    gpusync_queue_destroy(s->queue);
    return false;
}

/* False: the GPU hangs, or the device is lost, and what the work uses must stay for ever. */
bool mps_stream_destroy(mps_stream *s)
{
    bool finished = false;
    if (gpusync_wait(s->queue, GPUSYNC_EVERYTHING, s->limit_ns, NULL) == GPUSYNC_TIMEOUT)
        gpusync_queue_abandon(s->queue);
    else
        finished = gpusync_queue_destroy(s->queue) == GPUSYNC_OK;
    pthread_mutex_destroy(&s->lock);
    return finished;
}

static bool mps_open_locked(mps_stream *s, mps_exception *e)
{
    gpusync_result result = GPUSYNC_OK;
    if (!s->buffer)
        result = gpusync_command_buffer_create(s->queue, NULL, s->limit_ns, &s->buffer);
    return result != GPUSYNC_OK && mps_raise_locked(s, e, result, NULL);
}

static bool mps_commit_locked(mps_stream *s, mps_exception *e)
{
    gpusync_result result;
    if (!s->buffer)
        return false;
    result = gpusync_commit(s->queue, s->buffer, &s->last);
    if (result != GPUSYNC_OK)
        gpusync_command_buffer_discard(s->queue, s->buffer);
    s->buffer = NULL;
    return result != GPUSYNC_OK && mps_raise_locked(s, e, result, NULL);
}

static bool mps_wait(mps_stream *s, gpusync_ticket ticket, mps_exception *e)
{
    gpusync_error why;
    const gpusync_wait_options options = {.handlers = true, .error = &why};
    gpusync_result result = gpusync_wait(s->queue, ticket, s->limit_ns, &options);
    if (result == GPUSYNC_OK)
        return false;
    pthread_mutex_lock(&s->lock);
    mps_raise_locked(s, e, result, result < GPUSYNC_OK ? &why : NULL);
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* encode (NULL: nothing) gets the stream's open command buffer. */
bool mps_stream_dispatch(mps_stream *s, void (*encode)(void *buffer, void *user), void *user, mps_sync sync,
                         mps_exception *e)
{
    bool raised;
    pthread_mutex_lock(&s->lock);
    raised = encode && mps_open_locked(s, e);
    if (!raised && encode)
        encode(s->buffer, user);
    if (!raised && sync != MPS_NONE)
        raised = mps_commit_locked(s, e);
    pthread_mutex_unlock(&s->lock);
    return raised || (sync == MPS_COMMIT_AND_WAIT && mps_wait(s, GPUSYNC_EVERYTHING, e));
}

/* For MPSGraph, which commits by itself: run commits to the Metal queue, and returns its last command buffer (+1), or
   NULL. That goes past the work that gpusync holds for events, so the stream's work ends first. */
bool mps_stream_run_graph(mps_stream *s, void *(*run)(void *metal_queue, void *user), void *user, mps_exception *e)
{
    gpusync_result result = GPUSYNC_OK;
    void *committed;
    bool raised;
    if (mps_stream_dispatch(s, NULL, NULL, MPS_COMMIT_AND_WAIT, e))
        return true;
    pthread_mutex_lock(&s->lock);
    committed = run(gpusync_queue_metal(s->queue), user);
    if (committed)
        result = gpusync_commit_marker(s->queue, committed, NULL);
    metal_release(committed);
    raised = result != GPUSYNC_OK && mps_raise_locked(s, e, result, NULL);
    pthread_mutex_unlock(&s->lock);
    return raised;
}

bool mps_event_record(mps_event *event, mps_stream *s, mps_exception *e)
{
    bool raised;
    pthread_mutex_lock(&s->lock);
    raised = mps_open_locked(s, e) || mps_commit_locked(s, e);
    if (!raised)
        *event = (mps_event){.stream = s, .ticket = s->last};
    pthread_mutex_unlock(&s->lock);
    return raised;
}

/* What is encoded into the stream from now on waits. gpusync holds the command buffer that waits for a ticket, and all
   behind it: so later ones need no wait of their own. What was encoded before must not wait, and is committed. */
bool mps_event_wait(const mps_event *event, mps_stream *s, mps_exception *e)
{
    gpusync_result result;
    bool raised;
    if (!event->stream || event->stream == s)
        return false;
    pthread_mutex_lock(&s->lock);
    raised = mps_commit_locked(s, e) || mps_open_locked(s, e);
    if (!raised) {
        result = gpusync_encode_wait(s->queue, s->buffer, gpusync_at_ticket(event->stream->queue, event->ticket));
        raised = result != GPUSYNC_OK && mps_raise_locked(s, e, result, NULL);
    }
    pthread_mutex_unlock(&s->lock);
    return raised;
}

/* Has the recorded work ended, well or badly? */
bool mps_event_query(const mps_event *event)
{
    return event->stream && gpusync_poll(event->stream->queue, event->ticket, NULL) != GPUSYNC_NOT_READY &&
           gpusync_is_done(event->stream->queue, event->ticket);
}

bool mps_event_synchronize(const mps_event *event, mps_exception *e)
{
    return event->stream && mps_wait(event->stream, event->ticket, e);
}

/* Milliseconds between the ends of what two events have recorded: waits for both, and so polls have times. The latest
   end counts: Metal may overlap command buffers. Raises if start ended later, or one has no time (256 commits old). */
bool mps_event_elapsed_time(const mps_event *start, const mps_event *end, double *ms, mps_exception *e)
{
    double ends[2] = {0};
    for (int i = 0; i < 2; i++) {
        const mps_event *event = i ? end : start;
        gpusync_times times;
        if (mps_event_synchronize(event, e))
            return true;
        for (gpusync_ticket t = event->ticket; t > 0 && t > event->ticket - 256; t--)
            if (gpusync_poll(event->stream->queue, t, &times) != GPUSYNC_NOT_READY && times.gpu_end_s > ends[i])
                ends[i] = times.gpu_end_s;
    }
    *ms = (ends[1] - ends[0]) * 1e3;
    return (ends[0] == 0 || *ms < 0) && mps_raise_locked(NULL, e, GPUSYNC_ERROR_INVALID_ARGUMENT, NULL);
}

mps_event *mps_event_acquire(void)
{
    pthread_mutex_lock(&mps_pool_lock);
    mps_event *event = mps_pool;
    mps_pool = event ? event->next : NULL;
    pthread_mutex_unlock(&mps_pool_lock);
    return event ? event : (mps_event *)calloc(1, sizeof *event);
}

void mps_event_release(mps_event *event)
{
    pthread_mutex_lock(&mps_pool_lock);
    *event = (mps_event){.next = mps_pool};
    mps_pool = event;
    pthread_mutex_unlock(&mps_pool_lock);
}
