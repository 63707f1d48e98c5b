/* The test of gpusync_fd.h, on softmetal: the descriptor by itself, with system calls that fail, and with a device
   whose work fails, hangs, or ends with the device. -DGPUSYNC_FD_PIPE=1 tests the pipe, -DON_KQUEUE the event of a
   kqueue. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include "gpusync_fd.h"
#include "softmetal.h"

static unsigned checks;
#define CHECK(good)                                               \
    do {                                                          \
        __atomic_add_fetch(&checks, 1, __ATOMIC_SEQ_CST);         \
        if (!(good)) {                                            \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #good); \
            exit(1);                                              \
        }                                                         \
    } while (0)

/* The system calls of gpusync_fd.h, which can be made to fail, and where the test can come in between. */
static int writes, interrupted, full, failing_calloc;
static void (*before_read)(void), (*after_read)(void);

static int interrupt(void)
{
    if (interrupted == 0) return 0;
    interrupted--;
    errno = EINTR;
    return 1;
}

static ssize_t test_write(int fd, const void *bytes, size_t size)
{
    if (interrupt()) return -1;
    __atomic_add_fetch(&writes, 1, __ATOMIC_SEQ_CST);
    if (full) {
        errno = EAGAIN;
        return -1;
    }
    return write(fd, bytes, size);
}

static void come_between(void (**what)(void))
{
    void (*once)(void) = *what;
    *what = NULL;
    if (once) once();
}

static ssize_t test_read(int fd, void *bytes, size_t size)
{
    ssize_t got;
    come_between(&before_read);
    got = interrupt() ? -1 : read(fd, bytes, size);
    if (got == -1 && errno == EAGAIN) { /* gpusync_fd_clear has read all there is */
        come_between(&after_read);
        errno = EAGAIN;
    }
    return got;
}

#if GPUSYNC_FD_PIPE
static int failing_fcntl;

static int test_fcntl(int fd, int command, int value)
{
    if (failing_fcntl && --failing_fcntl == 0) {
        errno = EMFILE;
        return -1;
    }
    return fcntl(fd, command, value);
}
#define fcntl(fd, ...) test_fcntl(fd, FIRST_TWO(__VA_ARGS__, 0, 0))
#define FIRST_TWO(command, value, ...) command, value
#endif

static void *test_calloc(size_t count, size_t size)
{
    return failing_calloc ? NULL : calloc(count, size);
}

#define write test_write
#define read test_read
#define calloc test_calloc
#define GPUSYNC_FD_IMPLEMENTATION
#include "gpusync_fd.h"
#undef write
#undef read
#undef calloc
#undef fcntl

/* -- what a loop does --------------------------------------------------------------------------------------------- */

static gpusync_fd *fd;

#ifdef ON_KQUEUE
static int queue_of_events;
static const char mark;

static gpusync_fd *make(void) { return gpusync_fd_create_kqueue(queue_of_events, 7, (void *)(uintptr_t)&mark); }

static bool readable(int timeout_ms)
{
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    struct kevent event;
    if (kevent(queue_of_events, NULL, 0, &event, 1, &limit) < 1) return false;
    CHECK(event.filter == EVFILT_USER && event.ident == 7 && event.udata == (const void *)&mark);
    return true;
}
#else
static gpusync_fd *make(void) { return gpusync_fd_create(); }

static bool readable(int timeout_ms)
{
    struct pollfd wanted = {gpusync_fd_get(fd), POLLIN, 0};
    return poll(&wanted, 1, timeout_ms) == 1;
}
#endif

static int open_descriptors(void)
{
    int open = 0, i;
    for (i = 0; i < 256; i++) open += fcntl(i, F_GETFD) != -1;
    return open;
}

/* -- the descriptor by itself ------------------------------------------------------------------------------------- */

static void test_notifications_are_one_wake_up(void)
{
    int i;
    CHECK(!readable(0));
    writes = 0;
    for (i = 0; i < 100000; i++) gpusync_fd_notify(fd); /* more than a pipe has room for */
    CHECK(writes <= 1);
    CHECK(readable(0));
    gpusync_fd_clear(fd);
    CHECK(!readable(0));
    gpusync_fd_notify(fd);
    CHECK(readable(0));
    gpusync_fd_clear(fd);
    gpusync_fd_clear(fd); /* without one to clear: does not block */
    CHECK(!readable(0));
}

static void notify(void) { gpusync_fd_notify(fd); }

/* The dispatch behind a clear serves the notification that falls inside of the clear. The next one needs a wake-up. */
static void test_a_notification_inside_of_a_clear_does_not_stop_the_next(void)
{
    int before;
    for (before = 0; before < 2; before++) {
        gpusync_fd_notify(fd);
        CHECK(readable(0));
        *(before ? &before_read : &after_read) = notify;
        gpusync_fd_clear(fd);
        before_read = after_read = NULL; /* of a kqueue nothing is read */
        gpusync_fd_notify(fd);
        CHECK(readable(0));
        gpusync_fd_clear(fd);
        CHECK(!readable(0));
    }
}

static void test_interrupted_and_full(void)
{
    errno = ENOENT;
    interrupted = 3;
#ifdef STAND_IN_SYS_EVENT_H
    events_interrupted = 3;
#endif
    gpusync_fd_notify(fd);
    CHECK(errno == ENOENT); /* of the thread that gpusync notifies on */
    CHECK(readable(0));
    interrupted = 3;
    gpusync_fd_clear(fd);
    interrupted = 0;
    CHECK(!readable(0));
    full = 1;
    errno = ENOENT;
    gpusync_fd_notify(fd); /* does not try again and again */
    full = 0;
    CHECK(errno == ENOENT);
    gpusync_fd_clear(fd);
    while (readable(0)) gpusync_fd_clear(fd);
}

static void test_a_failed_create_leaves_nothing_open(void)
{
    const int open = open_descriptors();
    failing_calloc = 1;
    CHECK(!make());
    failing_calloc = 0;
#ifndef ON_KQUEUE
    struct rlimit limit, none;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    none = limit;
    none.rlim_cur = 0;
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    CHECK(!make() && errno == EMFILE);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
#if GPUSYNC_FD_PIPE
    for (failing_fcntl = 1; failing_fcntl < 7;) {
        const int which = failing_fcntl;
        CHECK(!make() && errno == EMFILE);
        failing_fcntl = which + 1;
    }
    failing_fcntl = 0;
#endif
#endif
    CHECK(open_descriptors() == open);
    gpusync_fd_destroy(NULL);
}

static void test_the_descriptors_do_not_block_and_close_at_exec(void)
{
#ifndef ON_KQUEUE
    const int ends[] = {fd->readable, fd->writable};
    int i;
    for (i = 0; i < 2; i++) {
        CHECK(fcntl(ends[i], F_GETFL) & O_NONBLOCK);
        CHECK(fcntl(ends[i], F_GETFD) & FD_CLOEXEC);
    }
#endif
}

/* -- with a device ------------------------------------------------------------------------------------------------ */

typedef struct rig {
    gpusync_device *device;
    gpusync_queue *queue;
} rig;

static gpusync_result last_result;
static unsigned told;
static pthread_t loop_thread;

static void on_done(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    CHECK(pthread_equal(loop_thread, pthread_self()));
    CHECK((result == GPUSYNC_OK) == (error == NULL));
    last_result = result;
    told++;
}

static gpusync_result rig_open(rig *r, const gpusync_allocator *allocator)
{
    gpusync_device_desc desc = {0};
    gpusync_result result;
    r->queue = NULL;
    desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    desc.notify = gpusync_fd_notify;
    desc.notify_user = fd;
    desc.allocator = allocator;
    result = gpusync_device_create(&desc, &r->device);
    if (!result && (result = gpusync_queue_create(r->device, NULL, &r->queue)) != GPUSYNC_OK)
        CHECK(!gpusync_device_destroy(r->device));
    return result;
}

static void rig_close(rig *r)
{
    CHECK(!gpusync_queue_destroy(r->queue) && !gpusync_device_destroy(r->device));
}

static void *make_work(rig *r)
{
    void *buffer;
    CHECK(!gpusync_command_buffer(r->queue, NULL, &buffer));
    return buffer;
}

static void commit(rig *r, void *buffer)
{
    gpusync_ticket ticket;
    CHECK(!gpusync_commit(r->queue, buffer, &ticket));
    CHECK(!gpusync_on_done(gpusync_at_ticket(r->queue, ticket), on_done, NULL));
}

static void run_loop(rig *r, unsigned until, int timeout_ms)
{
    while (told < until && readable(timeout_ms)) {
        gpusync_fd_clear(fd);
        CHECK(!gpusync_dispatch(r->device, SIZE_MAX, NULL));
    }
}

static void begin(rig *r)
{
    CHECK(softmetal_settle(5000000000));
    softmetal_reset();
    told = 0;
    while (readable(0)) gpusync_fd_clear(fd);
    CHECK(!rig_open(r, NULL));
}

static void test_work_that_ends_and_work_that_fails(void)
{
    rig r;
    void *buffer;
    begin(&r);
    commit(&r, make_work(&r));
    run_loop(&r, 1, 5000);
    CHECK(told == 1 && last_result == GPUSYNC_OK);
    buffer = make_work(&r);
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    commit(&r, buffer);
    run_loop(&r, 2, 5000);
    CHECK(told == 2 && last_result == GPUSYNC_ERROR_EXECUTION);
    rig_close(&r);
}

static void test_work_that_hangs_wakes_no_loop(void)
{
    rig r;
    void *buffer;
    begin(&r);
    buffer = make_work(&r);
    softmetal_hang(buffer);
    commit(&r, buffer);
    run_loop(&r, 1, 100);
    CHECK(told == 0);
    softmetal_unhang(buffer);
    run_loop(&r, 1, 5000);
    CHECK(told == 1 && last_result == GPUSYNC_OK);
    rig_close(&r);
}

static void test_a_device_that_goes_wakes_the_loop(void)
{
    rig r;
    void *buffer;
    begin(&r);
    buffer = make_work(&r);
    softmetal_set_duration(buffer, 60000000000);
    commit(&r, buffer);
    softmetal_remove_device(gpusync_device_metal(r.device));
    run_loop(&r, 1, 5000);
    CHECK(told == 1 && (last_result == GPUSYNC_ERROR_EXECUTION || last_result == GPUSYNC_ERROR_DEVICE_LOST));
    rig_close(&r);
}

static void *no_memory(void *user, size_t size, size_t alignment)
{
    (void)user, (void)size, (void)alignment;
    return NULL;
}
static void no_release(void *user, void *memory, size_t size) { (void)user, (void)memory, (void)size; }

static void test_without_memory_or_metal(void)
{
    const gpusync_allocator none = {no_memory, no_release, NULL};
    void *buffer;
    rig r;
    begin(&r);
    softmetal_fail_creation(1, false);
    CHECK(gpusync_command_buffer(r.queue, NULL, &buffer) == GPUSYNC_ERROR_METAL_NIL);
    rig_close(&r);
    CHECK(rig_open(&r, &none) == GPUSYNC_ERROR_OUT_OF_MEMORY);
    CHECK(!readable(0));
}

static void test_one_callback_at_a_time_wakes_for_the_rest(void)
{
    rig r;
    int i;
    begin(&r);
    for (i = 0; i < 3; i++) commit(&r, make_work(&r));
    CHECK(softmetal_settle(5000000000));
    while (told < 3) {
        const unsigned before = told;
        CHECK(readable(5000));
        gpusync_fd_clear(fd);
        CHECK(!gpusync_dispatch(r.device, 1, NULL));
        CHECK(told <= before + 1);
    }
    rig_close(&r);
}

/* Two threads commit, and the loop has nothing but the descriptor: a lost wake-up ends the loop after five seconds. */
enum { ROUNDS = 1000 };

static void *commit_many(void *user)
{
    int i;
    for (i = 0; i < ROUNDS; i++) commit((rig *)user, make_work((rig *)user));
    return NULL;
}

static void test_no_wake_up_is_lost(void)
{
    pthread_t threads[2];
    rig r;
    int i;
    begin(&r);
    for (i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, commit_many, &r));
    run_loop(&r, 2 * ROUNDS, 5000);
    for (i = 0; i < 2; i++) CHECK(!pthread_join(threads[i], NULL));
    CHECK(told == 2 * ROUNDS);
    rig_close(&r);
}

int main(void)
{
    int open;
    loop_thread = pthread_self();
    alarm(120);
#ifdef ON_KQUEUE
    queue_of_events = kqueue();
    CHECK(queue_of_events != -1);
#endif
    open = open_descriptors();
    CHECK((fd = make()) != NULL);
    test_notifications_are_one_wake_up();
    test_a_notification_inside_of_a_clear_does_not_stop_the_next();
    test_interrupted_and_full();
    test_a_failed_create_leaves_nothing_open();
    test_the_descriptors_do_not_block_and_close_at_exec();
    test_work_that_ends_and_work_that_fails();
    test_work_that_hangs_wakes_no_loop();
    test_a_device_that_goes_wakes_the_loop();
    test_without_memory_or_metal();
    test_one_callback_at_a_time_wakes_for_the_rest();
    test_no_wake_up_is_lost();
    CHECK(softmetal_settle(5000000000) && !softmetal_live("device") && !softmetal_live("queue"));
    gpusync_fd_notify(fd);
    gpusync_fd_destroy(fd);
    CHECK(open_descriptors() == open);
#ifdef ON_KQUEUE
    CHECK(!readable(0)); /* the event has left the kqueue */
#endif
    printf("all %u checks passed\n", checks);
    return 0;
}
