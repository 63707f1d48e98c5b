/* What examples/with/notify takes from kqueue, for systems without one: user events, by their manual page. There is one
   kqueue, and it takes one event. */
#ifndef STAND_IN_SYS_EVENT_H
#define STAND_IN_SYS_EVENT_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct kevent {
    uintptr_t ident;
    int16_t filter;
    uint16_t flags;
    uint32_t fflags;
    intptr_t data;
    void *udata;
};

#define EVFILT_USER (-10)
#define EV_ADD 0x0001
#define EV_DELETE 0x0002
#define EV_CLEAR 0x0020
#define NOTE_TRIGGER 0x01000000
#define EV_SET(event, ident_, filter_, flags_, fflags_, data_, udata_)                                                \
    ((event)->ident = (ident_), (event)->filter = (filter_), (event)->flags = (uint16_t)(flags_),                     \
     (event)->fflags = (fflags_), (event)->data = (data_), (event)->udata = (udata_))

enum { THE_KQUEUE = 77 };
static struct kevent the_event;
static bool event_added, event_triggered;
static int events_interrupted; /* so many changes are interrupted before they are made */
static pthread_mutex_t event_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t event_due = PTHREAD_COND_INITIALIZER;

static inline int kqueue(void) { return THE_KQUEUE; }

static inline int change_event(const struct kevent *change)
{
    if (events_interrupted) {
        events_interrupted--;
        errno = EINTR;
        return -1;
    }
    bool known = event_added && change->ident == the_event.ident;
    if (change->filter != EVFILT_USER || (!known && !(change->flags & EV_ADD))) {
        errno = ENOENT;
        return -1;
    }
    if (change->flags & EV_ADD) event_added = true;
    if (change->flags & EV_DELETE) event_added = event_triggered = false;
    if (change->flags & EV_ADD) the_event = *change;
    the_event.udata = change->udata;
    if (change->fflags & NOTE_TRIGGER) {
        event_triggered = true;
        pthread_cond_signal(&event_due);
    }
    return 0;
}

static inline int take_event(struct kevent *event, const struct timespec *limit)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += limit->tv_sec + (end.tv_nsec + limit->tv_nsec) / 1000000000;
    end.tv_nsec = (end.tv_nsec + limit->tv_nsec) % 1000000000;
    while (!event_triggered)
        if (pthread_cond_timedwait(&event_due, &event_lock, &end)) return 0;
    *event = the_event;
    if (the_event.flags & EV_CLEAR) event_triggered = false;
    return 1;
}

static inline int kevent(int queue, const struct kevent *changes, int change_count, struct kevent *events,
                         int event_count, const struct timespec *limit)
{
    int result = 0;
    if (queue != THE_KQUEUE) {
        errno = EBADF;
        return -1;
    }
    pthread_mutex_lock(&event_lock);
    if (change_count) result = change_event(changes);
    if (!result && event_count) result = take_event(events, limit);
    pthread_mutex_unlock(&event_lock);
    return result;
}

#endif
