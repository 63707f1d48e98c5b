/* A loop around poll(2). gpusync_fd.h wakes it when a callback is due, and the callback runs on the loop's thread. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#define GPUSYNC_FD_IMPLEMENTATION
#include "gpusync_fd.h"
#include <poll.h>
#include <stdio.h>

static int failed(const char *call, gpusync_result result)
{
    if (result) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result != GPUSYNC_OK;
}
#define FAILED(call) failed(#call, call)

static gpusync_result ended = GPUSYNC_TIMEOUT; /* of the work, once its callback has run */

static void work_done(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    ended = result;
    if (error) fprintf(stderr, "ticket %d: %s\n", (int)error->ticket, error->message);
}

static void loop_until(gpusync_device *device, gpusync_fd *fd, uint64_t deadline_ns)
{
    struct pollfd wanted = {gpusync_fd_get(fd), POLLIN, 0}; /* a real loop has sockets here, too */
    while (ended == GPUSYNC_TIMEOUT && gpusync_now_ns() < deadline_ns) {
        if (poll(&wanted, 1, 1 + (int)((deadline_ns - gpusync_now_ns()) / 1000000)) < 1) continue;
        gpusync_fd_clear(fd);
        gpusync_dispatch(device, SIZE_MAX, NULL);
    }
}

int main(void)
{
    gpusync_fd *fd = gpusync_fd_create();
    gpusync_device_desc desc = {0};
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    void *buffer; /* an id<MTLCommandBuffer> */
    int bad = !fd;

    if (bad) perror("gpusync_fd_create");
    desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    desc.notify = gpusync_fd_notify;
    desc.notify_user = fd;
    bad = bad || FAILED(gpusync_device_create(&desc, &device)) || FAILED(gpusync_queue_create(device, NULL, &queue)) ||
          FAILED(gpusync_command_buffer(queue, NULL, &buffer)) ||
          /* ... encode work into the buffer here ... */
          FAILED(gpusync_commit(queue, buffer, &ticket)) ||
          FAILED(gpusync_on_done(gpusync_at_ticket(queue, ticket), work_done, NULL));
    if (!bad) {
        loop_until(device, fd, gpusync_now_ns() + 1000000000);
        bad = failed("gpusync_on_done", ended);
    }
    if (queue) bad |= FAILED(gpusync_queue_destroy(queue)); /* waits for what is in flight, and runs its callbacks */
    if (device) bad |= FAILED(gpusync_device_destroy(device));
    gpusync_fd_destroy(fd); /* last: until here a thread of Metal's may notify */
    if (!bad) printf("ticket %d: done\n", (int)ticket);
    return bad;
}
