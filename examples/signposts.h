/* signposts.h - what a device's trace tells, as intervals: os_signpost for Instruments, or text

       static signposts posts;
       signposts_init(&posts, signposts_tell, stdout);      stdout: where text goes; not used by os_signpost
       gpusync_set_trace(device, signposts_trace, &posts);  while nothing is in flight
       ...
       gpusync_device_wait(device, limit_ns, &options);     options.handlers = true: until the ends were told
       ...                                                  the queues are destroyed
       gpusync_device_destroy(device);
       signposts_destroy(&posts);

   There are three kinds of intervals:

       ticket  from commit or submission to the end of the work
       held    the part of it that was spent on the host, for want of a signal
       wait    of a thread, a fiber or a task

   os_signpost takes the time itself, when it is called: an interval cannot be told later. A trace may tell events of one
   ticket in another order, for they come from several threads. So what ends before its begin is told is kept until then;
   its interval has no length. When the GPU ran it is in the text of its end.

   Include it in a C file, after gpusync.h. Unverified: the part for os_signpost was not yet compiled with Apple's headers,
   nor run on a Mac. */
#ifndef SIGNPOSTS_H
#define SIGNPOSTS_H

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__APPLE__) && defined(__has_include)
#if __has_include(<os/signpost.h>)
#define SIGNPOSTS_OS 1
#include <os/log.h>
#include <os/signpost.h>
#endif
#endif

typedef enum signposts_kind { SIGNPOSTS_TICKET, SIGNPOSTS_HELD, SIGNPOSTS_WAIT, SIGNPOSTS_KINDS } signposts_kind;

typedef struct signposts_interval {
    signposts_kind kind;
    const void *about;     /* the queue or the timeline; NULL: a wait for several points, or for all queues */
    uint64_t number;       /* the ticket or the value */
    uint64_t serial;       /* from 1 on, in the order of the begins */
    uint64_t os_id;        /* of os_signpost */
    const void *thread;    /* of a wait: where it began */
    bool begun;            /* false: only its end, or its issue, has been told yet */
    bool issued, over;     /* of a ticket */
    gpusync_result result; /* from here on: at the end. Of the work or of the wait */
    double gpu_s;          /* of a ticket: how long the GPU ran it; 0: Metal did not tell, or it never ran */
    char label[32];
} signposts_interval;

typedef struct signposts signposts;

/* Told of each begin and each end, one at a time: the begin of an interval comes before its end. The time is that since
   signposts_init. */
typedef void (*signposts_tell_fn)(signposts *s, bool begins, signposts_interval *interval, uint64_t time_ns);

struct signposts {
    pthread_mutex_t lock;
    signposts_tell_fn tell;
    void *user;
    signposts_interval *open; /* few: what is in flight, held or waited for */
    size_t count, room;
    uint64_t begun, ended; /* intervals told */
    uint64_t lost;         /* not told: there was no memory, or a wait ended that had not begun */
    uint64_t zero_ns;
#ifdef SIGNPOSTS_OS
    os_log_t log;
#endif
};

static void signposts_init(signposts *s, signposts_tell_fn tell, void *user)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->tell = tell;
    s->user = user;
    s->zero_ns = gpusync_now_ns();
}

/* -- the intervals that are open ----------------------------------------------------------------------------------- */

static __thread char signposts__here; /* its address is the thread */

/* A wait that began on another thread will do if no other is there: a fiber may go on on another thread. */
static signposts_interval *signposts__find(signposts *s, signposts_kind kind, const gpusync_trace_event *event)
{
    const void *about = event->timeline ? (const void *)event->timeline : (const void *)event->queue;
    uint64_t number = event->timeline ? event->value : event->ticket;
    signposts_interval *found = NULL;
    for (size_t n = 0; n < s->count; n++) {
        signposts_interval *i = &s->open[n];
        if (i->kind != kind || i->about != about || i->number != number) continue;
        found = i;
        if (kind != SIGNPOSTS_WAIT || i->thread == &signposts__here) break;
    }
    return found;
}

static signposts_interval *signposts__add(signposts *s, signposts_kind kind, const gpusync_trace_event *event)
{
    if (s->count == s->room) {
        size_t room = s->room * 2 + 64;
        void *open = realloc(s->open, room * sizeof *s->open);
        if (!open) return s->lost++, (signposts_interval *)NULL;
        s->open = (signposts_interval *)open;
        s->room = room;
    }
    signposts_interval *i = &s->open[s->count++];
    memset(i, 0, sizeof *i);
    i->kind = kind;
    i->about = event->timeline ? (const void *)event->timeline : (const void *)event->queue;
    i->number = event->timeline ? event->value : event->ticket;
    i->thread = &signposts__here;
    snprintf(i->label, sizeof i->label, "%s", event->label);
    return i;
}

static void signposts__begin(signposts *s, signposts_interval *i, uint64_t time_ns)
{
    if (!i) return;
    i->begun = true;
    i->serial = ++s->begun;
    s->tell(s, true, i, time_ns - s->zero_ns);
}

/* The last one moves to its place: a pointer to another interval is good for nothing after this. */
static void signposts__end(signposts *s, signposts_interval *i, gpusync_result result, uint64_t time_ns)
{
    if (!i) return;
    i->result = result;
    s->ended++;
    s->tell(s, false, i, time_ns - s->zero_ns);
    *i = s->open[--s->count];
}

/* -- the hook ------------------------------------------------------------------------------------------------------ */

/* Commit and hold are told by one thread, in this order; issue is told before completed. Else any order may come. */
static void signposts__note(signposts *s, const gpusync_trace_event *event)
{
    signposts_interval *ticket = signposts__find(s, SIGNPOSTS_TICKET, event);
    bool gone = !ticket || ticket->issued; /* for a hold: it is over already */
    switch (event->kind) {
    case GPUSYNC_TRACE_COMMIT:
    case GPUSYNC_TRACE_SUBMIT:
        if (ticket && ticket->begun) { /* of a queue that was here before: gpusync_queue_destroy_now */
            signposts__end(s, ticket, GPUSYNC_ERROR_DESTROYED, event->time_ns);
            ticket = NULL;
        }
        if (!ticket) ticket = signposts__add(s, SIGNPOSTS_TICKET, event);
        signposts__begin(s, ticket, event->time_ns);
        if (ticket && ticket->over) signposts__end(s, ticket, ticket->result, event->time_ns);
        break;
    case GPUSYNC_TRACE_HOLD:
        signposts__begin(s, signposts__add(s, SIGNPOSTS_HELD, event), event->time_ns);
        if (gone) signposts__end(s, signposts__find(s, SIGNPOSTS_HELD, event), GPUSYNC_OK, event->time_ns);
        break;
    case GPUSYNC_TRACE_ISSUE:
        if (!ticket) ticket = signposts__add(s, SIGNPOSTS_TICKET, event);
        if (ticket) ticket->issued = true;
        signposts__end(s, signposts__find(s, SIGNPOSTS_HELD, event), GPUSYNC_OK, event->time_ns);
        break;
    case GPUSYNC_TRACE_COMPLETED:
        signposts__end(s, signposts__find(s, SIGNPOSTS_HELD, event), event->result, event->time_ns); /* never issued */
        ticket = signposts__find(s, SIGNPOSTS_TICKET, event);
        if (!ticket) ticket = signposts__add(s, SIGNPOSTS_TICKET, event);
        if (!ticket) break;
        ticket->over = true;
        ticket->result = event->result;
        ticket->gpu_s = event->gpu_end_s - event->gpu_start_s;
        if (ticket->begun) signposts__end(s, ticket, event->result, event->time_ns);
        break;
    case GPUSYNC_TRACE_WAIT_BEGIN: signposts__begin(s, signposts__add(s, SIGNPOSTS_WAIT, event), event->time_ns); break;
    case GPUSYNC_TRACE_WAIT_END: {
        signposts_interval *wait = signposts__find(s, SIGNPOSTS_WAIT, event);
        s->lost += !wait;
        signposts__end(s, wait, event->result, event->time_ns);
        break;
    }
    case GPUSYNC_TRACE_SIGNAL:
    case GPUSYNC_TRACE_CALLBACK: break; /* these have no length */
    }
}

/* For gpusync_set_trace, with a signposts as its user. */
static void signposts_trace(void *user, const gpusync_trace_event *event)
{
    signposts *s = (signposts *)user;
    pthread_mutex_lock(&s->lock);
    signposts__note(s, event);
    pthread_mutex_unlock(&s->lock);
}

/* End what is still open, with ERROR_DESTROYED: what the GPU has not ended when its queue goes is not told of. */
static size_t signposts_end_open(signposts *s)
{
    pthread_mutex_lock(&s->lock);
    size_t ended = 0;
    while (s->count) {
        signposts_interval *last = &s->open[s->count - 1];
        ended += last->begun;
        if (last->begun) signposts__end(s, last, GPUSYNC_ERROR_DESTROYED, gpusync_now_ns());
        else s->count--;
    }
    pthread_mutex_unlock(&s->lock);
    return ended;
}

static void signposts_destroy(signposts *s)
{
    (void)signposts_end_open(s);
    free(s->open);
    pthread_mutex_destroy(&s->lock);
}

/* -- tellers ------------------------------------------------------------------------------------------------------- */

static const char *signposts_name(signposts_kind kind)
{
    return kind == SIGNPOSTS_TICKET ? "ticket" : kind == SIGNPOSTS_HELD ? "held" : "wait";
}

/* "OK, 152 us on the GPU" */
static void signposts_outcome(const signposts_interval *i, char *text, size_t size)
{
#define SIGNPOSTS__NAME(name, number, sentence) i->result == GPUSYNC_##name ? #name:
    const char *result = GPUSYNC_RESULTS(SIGNPOSTS__NAME) "?";
#undef SIGNPOSTS__NAME
    if (i->gpu_s > 0) snprintf(text, size, "%s, %.0f us on the GPU", result, i->gpu_s * 1e6);
    else snprintf(text, size, "%s", result);
}

/* As text: user is a FILE *. First the interval's serial number, then the time in ms. */
static __attribute__((unused)) void signposts_text(signposts *s, bool begins, signposts_interval *i, uint64_t time_ns)
{
    char ended_as[64] = "";
    if (!begins) signposts_outcome(i, ended_as, sizeof ended_as);
    fprintf((FILE *)s->user, "%3" PRIu64 " %8.3f  %s  %-6s  %s %" PRIu64 "%s%s\n", i->serial, (double)time_ns / 1e6,
            begins ? "begin" : "end  ", signposts_name(i->kind), i->label, i->number, begins ? "" : ": ", ended_as);
}

#ifdef SIGNPOSTS_OS
/* In Instruments: os_signpost, subsystem "gpusync". Names have to be literals, and labels of ours are no secrets. */
static __attribute__((unused)) void signposts_os(signposts *s, bool begins, signposts_interval *i, uint64_t time_ns)
{
    (void)time_ns; /* os_signpost has its own */
    if (__builtin_available(macOS 10.14, iOS 12.0, tvOS 12.0, *)) {
        char ended_as[64];
        if (!s->log) s->log = os_log_create("gpusync", "signposts"); /* the same object for each signposts */
        if (!os_signpost_enabled(s->log)) return;
        if (begins) i->os_id = os_signpost_id_generate(s->log);
        if (!i->os_id) return; /* began while no tool recorded */
        signposts_outcome(i, ended_as, sizeof ended_as);
#define SIGNPOSTS__EMIT(name)                                                               \
    do {                                                                                    \
        if (begins)                                                                         \
            os_signpost_interval_begin(s->log, i->os_id, name, "%{public}s %llu", i->label, \
                                       (unsigned long long)i->number);                      \
        else os_signpost_interval_end(s->log, i->os_id, name, "%{public}s", ended_as);      \
    } while (0)
        switch (i->kind) {
        case SIGNPOSTS_TICKET: SIGNPOSTS__EMIT("ticket"); break;
        case SIGNPOSTS_HELD: SIGNPOSTS__EMIT("held"); break;
        case SIGNPOSTS_WAIT: SIGNPOSTS__EMIT("wait"); break;
        case SIGNPOSTS_KINDS: break;
        }
#undef SIGNPOSTS__EMIT
    }
}
#define signposts_tell signposts_os
#else
#define signposts_tell signposts_text
#endif

#endif
