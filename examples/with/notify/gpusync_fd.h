/* gpusync_fd.h - a file descriptor that becomes readable when callbacks of gpusync are due: for poll, epoll, kqueue,
   libuv, asyncio, mio and every other loop that waits for descriptors

       #define GPUSYNC_FD_IMPLEMENTATION                        // in ONE file: C99, C++11
       #include "gpusync_fd.h"

       gpusync_fd *fd = gpusync_fd_create();
       desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;           // of the gpusync_device_desc
       desc.notify = gpusync_fd_notify;
       desc.notify_user = fd;
       ...
       when gpusync_fd_get(fd) is readable, the loop calls
           gpusync_fd_clear(fd);
           gpusync_dispatch(device, SIZE_MAX, NULL);            // runs the callbacks on the loop's thread

   The file needs no other: not even gpusync.h. Several devices may share a descriptor; the loop then dispatches each.

   Coalescing  Notifications between two calls of gpusync_fd_clear make one wake-up. A wake-up may find nothing due.
   Blocking    No call blocks. The descriptors have O_NONBLOCK.
   Closing     Metal's threads call gpusync_fd_notify until the device is gone. So first take the descriptor out of the
               loop, then destroy the device, then call gpusync_fd_destroy. After gpusync_device_destroy_later wait for
               its `destroyed`. A descriptor that is closed too early may be a file that the program opens meanwhile:
               gpusync would write into it.
   exec        The descriptors have FD_CLOEXEC. Linux sets it as it makes the descriptor. Elsewhere a thread that forks
               between pipe and fcntl passes the descriptors on to its child, which is harmless: see fork.
   fork        A child has the same pipe or eventfd as its parent. A child that reads takes the wake-up from its parent.
               The child must not call gpusync, so it has no use for the descriptor: let it close the descriptor, exec,
               or _exit. A kqueue is not there in the child. */
#ifndef GPUSYNC_FD_H
#define GPUSYNC_FD_H

#include <stdint.h>

/* GPUSYNC_FD_PIPE 1: a pipe on Linux, too, in place of an eventfd. GPUSYNC_FD_KQUEUE 1: the system has kqueue. */
#ifndef GPUSYNC_FD_PIPE
#ifdef __linux__
#define GPUSYNC_FD_PIPE 0
#else
#define GPUSYNC_FD_PIPE 1
#endif
#endif
#ifndef GPUSYNC_FD_KQUEUE
#ifdef __APPLE__
#define GPUSYNC_FD_KQUEUE 1
#else
#define GPUSYNC_FD_KQUEUE 0
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpusync_fd gpusync_fd;

/* Make an eventfd on Linux, a pipe elsewhere. Returns NULL when the process or the system has no descriptor or no
   memory left: errno tells. */
gpusync_fd *gpusync_fd_create(void);

#if GPUSYNC_FD_KQUEUE
/* For a loop that has a kqueue: no descriptor is made. The kqueue gets an EVFILT_USER event with this ident and udata
   whenever callbacks are due. The loop chooses an ident that no other EVFILT_USER event of its kqueue has. The kqueue
   has to stay open until gpusync_fd_destroy. Returns NULL as kevent fails: errno tells. */
gpusync_fd *gpusync_fd_create_kqueue(int kqueue, uintptr_t ident, void *udata);
#endif

/* The descriptor to wait for, until it is readable. Never read it: call gpusync_fd_clear. Of gpusync_fd_create_kqueue:
   the kqueue. */
int gpusync_fd_get(const gpusync_fd *fd);

/* For gpusync_device_desc.notify; notify_user is the gpusync_fd. Any thread. Leaves errno as it was. */
void gpusync_fd_notify(void *fd);

/* Makes the descriptor unreadable until the next notification. Call it before gpusync_dispatch, never after: callbacks
   that became due in between would get no wake-up. Any thread, if each one that calls it dispatches afterwards. */
void gpusync_fd_clear(gpusync_fd *fd);

/* Closes the descriptors; takes the event out of the kqueue. NULL: nothing to do. */
void gpusync_fd_destroy(gpusync_fd *fd);

#ifdef __cplusplus
}
#endif
#endif

#if defined(GPUSYNC_FD_IMPLEMENTATION) && !defined(GPUSYNC_FD_IMPLEMENTED)
#define GPUSYNC_FD_IMPLEMENTED

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>
#if !GPUSYNC_FD_PIPE
#include <sys/eventfd.h>
#endif
#if GPUSYNC_FD_KQUEUE
#include <sys/event.h>
#endif

struct gpusync_fd {
    int readable; /* what the loop waits for: the pipe's end for reading, the eventfd, the kqueue */
    int writable; /* the pipe's end for writing, or the eventfd again; -1: the event of a kqueue */
    bool told;    /* set by the first notification, cleared by gpusync_fd_clear: in between nothing is written */
#if GPUSYNC_FD_KQUEUE
    uintptr_t ident;
    void *udata; /* kevent stores it again with each change */
#endif
};

#if GPUSYNC_FD_PIPE
static bool gpusync_fd_prepare(int descriptor)
{
    int flags = fcntl(descriptor, F_GETFL);
    return flags != -1 && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) != -1 &&
           fcntl(descriptor, F_SETFD, FD_CLOEXEC) != -1;
}
#endif

gpusync_fd *gpusync_fd_create(void)
{
    gpusync_fd *fd = (gpusync_fd *)calloc(1, sizeof *fd);
    if (!fd) return NULL;
#if GPUSYNC_FD_PIPE
    int ends[2];
    if (pipe(ends)) {
        free(fd);
        return NULL;
    }
    fd->readable = ends[0];
    fd->writable = ends[1];
    if (!gpusync_fd_prepare(ends[0]) || !gpusync_fd_prepare(ends[1])) {
        int reason = errno;
        gpusync_fd_destroy(fd);
        errno = reason;
        return NULL;
    }
#else
    fd->readable = fd->writable = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd->readable == -1) {
        free(fd);
        return NULL;
    }
#endif
    return fd;
}

#if GPUSYNC_FD_KQUEUE
/* EINTR: kevent may not have made the change. To make it twice does no harm. */
static int gpusync_fd_change(const gpusync_fd *fd, unsigned short flags, unsigned notes)
{
    struct kevent change;
    int status;
    EV_SET(&change, fd->ident, EVFILT_USER, flags, notes, 0, fd->udata);
    do status = kevent(fd->readable, &change, 1, NULL, 0, NULL);
    while (status == -1 && errno == EINTR);
    return status;
}

gpusync_fd *gpusync_fd_create_kqueue(int kqueue, uintptr_t ident, void *udata)
{
    gpusync_fd *fd = (gpusync_fd *)calloc(1, sizeof *fd);
    if (!fd) return NULL;
    fd->readable = kqueue;
    fd->writable = -1;
    fd->ident = ident;
    fd->udata = udata;
    if (gpusync_fd_change(fd, EV_ADD | EV_CLEAR, 0) == -1) { /* EV_CLEAR: the kqueue tells each trigger once */
        free(fd);
        return NULL;
    }
    return fd;
}
#endif

int gpusync_fd_get(const gpusync_fd *fd)
{
    return fd->readable;
}

/* EAGAIN, of a full pipe or a full counter, is as good as success: the descriptor is readable. */
static void gpusync_fd_wake(const gpusync_fd *fd)
{
    const uint64_t one = 1; /* an eventfd takes eight bytes, and a pipe does not mind */
    ssize_t written;
#if GPUSYNC_FD_KQUEUE
    if (fd->writable == -1) {
        gpusync_fd_change(fd, 0, NOTE_TRIGGER);
        return;
    }
#endif
    do written = write(fd->writable, &one, sizeof one);
    while (written == -1 && errno == EINTR);
}

/* gpusync has listed the callback before it notifies. So a notification that finds `told` set may leave the wake-up to
   the gpusync_fd_clear that clears `told` after it: the dispatch behind that call finds the callback. */
void gpusync_fd_notify(void *fd)
{
    gpusync_fd *self = (gpusync_fd *)fd;
    int before = errno; /* of the code that the handler interrupted, on a thread that is not ours */
    if (!__atomic_exchange_n(&self->told, true, __ATOMIC_ACQ_REL)) gpusync_fd_wake(self);
    errno = before;
}

/* First it reads, then it clears `told`. In the other order a notification in between would write, this call would read
   that, and `told` would stay set over an empty descriptor: no wake-up would come any more. */
void gpusync_fd_clear(gpusync_fd *fd)
{
    uint64_t bytes[8]; /* more than one notification may have written: each between `told` and its write */
    ssize_t got;
    if (fd->writable != -1) {
        do got = read(fd->readable, bytes, sizeof bytes);
        while (got > 0 || (got == -1 && errno == EINTR));
    }
    (void)__atomic_exchange_n(&fd->told, false, __ATOMIC_ACQ_REL);
}

void gpusync_fd_destroy(gpusync_fd *fd)
{
    if (!fd) return;
#if GPUSYNC_FD_KQUEUE
    if (fd->writable == -1) gpusync_fd_change(fd, EV_DELETE, 0);
#endif
    /* No close again after EINTR: the descriptor is gone, and its number may be another file's already. */
    if (fd->writable != -1) close(fd->readable);
    if (fd->writable != -1 && fd->writable != fd->readable) close(fd->writable);
    free(fd);
}

#endif
