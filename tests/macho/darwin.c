/* darwin.c - libSystem for the runner: the functions that the tests' programs import, on Linux

   Where types, constants and meaning are the same on both systems, the table at the end has glibc's function. The
   others are here, with the sizes, numbers and error codes of macOS. They are stricter than Apple's: a program that
   does what Apple's manual leaves undefined, like taking a mutex that was destroyed, is told and ends with abort.

   MACHO_SPURIOUS=N in the environment: one in N waits for a condition variable ends at once, for no reason. */
#define _GNU_SOURCE
#include "darwin.h"
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *program_path;
static unsigned long spurious_every, waits;

__attribute__((noreturn, format(printf, 1, 2))) static void broken(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("darwin: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

/* --------------------------------------------------------------------------------------------- error numbers */

/* The same on both sides below 35, except EAGAIN. Above that: only what the calls of this file can end with. */
static int darwin_errno_of(int number)
{
    switch (number) {
    case EAGAIN: return 35;
    case EDEADLK: return 11;
    case ETIMEDOUT: return 60;
    case ENOSYS: return 78;
    case ENOTSUP: return 45;
    case EOVERFLOW: return 84;
    case ENAMETOOLONG: return 63;
    case ELOOP: return 62;
    default:
        if (number < 0 || number > 34) broken("error number %d of Linux is not in darwin.c", number);
        return number;
    }
}
#define DARWIN_EINVAL 22
#define DARWIN_ETIMEDOUT 60

static __thread int darwin_errno;
static int *darwin_error(void)
{
    return &darwin_errno;
}
/* The result of a system call, with errno in Darwin's numbers. */
static long kept(long result)
{
    if (result == -1) darwin_errno = darwin_errno_of(errno);
    return result;
}

/* ---------------------------------------------------------------------------------------------------- clocks */

/* A Mac counts ticks: of 1 ns with Intel's processors, of 125/3 ns with Apple's, and none while it sleeps. That is
   CLOCK_UPTIME_RAW. CLOCK_MONOTONIC goes on in a sleep; this machine pretends to one of SLEPT_S, so that a program that
   takes one clock for the other is far off. */
#ifdef __x86_64__
#define TO_TICKS(ns) (ns)
#define TO_NS(ticks) (ticks)
#else
#define TO_TICKS(ns) ((ns) / 125 * 3 + (ns) % 125 * 3 / 125)
#define TO_NS(ticks) ((ticks) / 3 * 125 + (ticks) % 3 * 125 / 3)
#endif
#define SLEPT_S 54321

/* What clang makes of a loop that fills an array. */
static void darwin_memset_pattern16(void *to, const void *pattern, size_t length)
{
    for (size_t done = 0; done < length; done += 16)
        memcpy((char *)to + done, pattern, length - done < 16 ? length - done : 16);
}

static int darwin_clock_gettime(int id, struct timespec *now)
{
    uint64_t ns;
    switch (id) {
    case 0: return (int)kept(clock_gettime(CLOCK_REALTIME, now));
    case 12: return (int)kept(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, now));
    case 16: return (int)kept(clock_gettime(CLOCK_THREAD_CPUTIME_ID, now));
    case 4:
    case 5:
    case 6:
    case 8:
    case 9: /* MONOTONIC_RAW, its APPROX, MONOTONIC, UPTIME_RAW, its APPROX */
        clock_gettime(CLOCK_MONOTONIC, now);
        ns = (uint64_t)now->tv_sec * 1000000000u + (uint64_t)now->tv_nsec;
        ns = TO_NS(TO_TICKS(ns)) + (id < 8 ? SLEPT_S * 1000000000ull : 0);
        now->tv_sec = (time_t)(ns / 1000000000u);
        now->tv_nsec = (long)(ns % 1000000000u);
        return 0;
    default: broken("clock %d", id);
    }
}
static uint64_t darwin_clock_gettime_nsec_np(int id)
{
    struct timespec now;
    darwin_clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---------------------------------------------------------------------------- mutexes, condition variables */

typedef struct darwin_mutex { /* pthread_mutex_t, 64 bytes */
    long signature;
    uint32_t word; /* 0: free, 1: taken, 2: taken and perhaps waited for */
    uint32_t owner;
    char opaque[48];
} darwin_mutex;
typedef struct darwin_cond { /* pthread_cond_t, 48 bytes */
    long signature;
    uint32_t sequence, waiters;
    darwin_mutex *mutex; /* that the waiters came with */
    char opaque[24];
} darwin_cond;
typedef char mutex_is_64[sizeof(darwin_mutex) == 64 ? 1 : -1];
typedef char cond_is_48[sizeof(darwin_cond) == 48 ? 1 : -1];

#define MUTEX_INITIALIZER 0x32AAABA7L
#define MUTEX_MADE 0x4D555458L
#define COND_INITIALIZER 0x3CB0B1BBL
#define COND_MADE 0x434F4E44L
#define GONE 0L

static uint32_t self_number(void)
{
    static __thread uint32_t number;
    static __thread int of_process; /* after a fork the number is another */
    if (!number || of_process != getpid()) {
        of_process = getpid();
        number = (uint32_t)syscall(SYS_gettid);
    }
    return number;
}

/* ETIMEDOUT or 0, which may be for nothing. timeout: a duration; NULL for none. */
static int futex_wait(uint32_t *word, uint32_t seen, const struct timespec *timeout)
{
    long result = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, timeout, NULL, 0);
    return result == -1 && errno == ETIMEDOUT ? ETIMEDOUT : 0;
}
static void futex_wake(uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void check_mutex(const darwin_mutex *m, const char *call)
{
    long signature = __atomic_load_n(&m->signature, __ATOMIC_RELAXED);
    if (signature != MUTEX_INITIALIZER && signature != MUTEX_MADE)
        broken("%s: mutex %p was not initialised or was destroyed (signature %#lx)", call, (const void *)m, signature);
}
static void check_cond(const darwin_cond *c, const char *call)
{
    long signature = __atomic_load_n(&c->signature, __ATOMIC_RELAXED);
    if (signature != COND_INITIALIZER && signature != COND_MADE)
        broken("%s: condition variable %p was not initialised or was destroyed (signature %#lx)", call, (const void *)c,
               signature);
}

static int darwin_mutex_init(darwin_mutex *m, const void *attributes)
{
    if (attributes) broken("pthread_mutex_init: attributes are not handled");
    memset(m, 0xA5, sizeof *m); /* a program that keeps something in its 64 bytes loses it */
    m->word = m->owner = 0;
    __atomic_store_n(&m->signature, MUTEX_MADE, __ATOMIC_RELEASE);
    return 0;
}

static void take(darwin_mutex *m, const char *call)
{
    uint32_t seen = 0, self = self_number();
    check_mutex(m, call);
    if (!__atomic_compare_exchange_n(&m->word, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        if (__atomic_load_n(&m->owner, __ATOMIC_RELAXED) == self)
            broken("%s: mutex %p is this thread's already", call, (void *)m);
        while (__atomic_exchange_n(&m->word, 2, __ATOMIC_ACQUIRE) != 0) futex_wait(&m->word, 2, NULL);
    }
    __atomic_store_n(&m->owner, self, __ATOMIC_RELAXED);
}
static void give(darwin_mutex *m, const char *call)
{
    check_mutex(m, call);
    if (__atomic_load_n(&m->owner, __ATOMIC_RELAXED) != self_number())
        broken("%s: mutex %p is not this thread's", call, (void *)m);
    __atomic_store_n(&m->owner, 0, __ATOMIC_RELAXED);
    if (__atomic_exchange_n(&m->word, 0, __ATOMIC_RELEASE) == 2) futex_wake(&m->word, 1); /* by now it may be gone */
}
static int darwin_mutex_lock(darwin_mutex *m)
{
    return take(m, "pthread_mutex_lock"), 0;
}
static int darwin_mutex_unlock(darwin_mutex *m)
{
    return give(m, "pthread_mutex_unlock"), 0;
}
static int darwin_mutex_trylock(darwin_mutex *m)
{
    uint32_t seen = 0;
    check_mutex(m, "pthread_mutex_trylock");
    if (!__atomic_compare_exchange_n(&m->word, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return EBUSY;
    __atomic_store_n(&m->owner, self_number(), __ATOMIC_RELAXED);
    return 0;
}
static int darwin_mutex_destroy(darwin_mutex *m)
{
    check_mutex(m, "pthread_mutex_destroy");
    if (__atomic_load_n(&m->word, __ATOMIC_RELAXED)) broken("pthread_mutex_destroy: mutex %p is locked", (void *)m);
    m->signature = GONE;
    return 0;
}

static int darwin_cond_init(darwin_cond *c, const void *attributes)
{
    if (attributes) broken("pthread_cond_init: attributes are not handled");
    memset(c, 0xA5, sizeof *c);
    c->sequence = c->waiters = 0;
    c->mutex = NULL;
    __atomic_store_n(&c->signature, COND_MADE, __ATOMIC_RELEASE);
    return 0;
}
static int darwin_cond_destroy(darwin_cond *c)
{
    check_cond(c, "pthread_cond_destroy");
    if (__atomic_load_n(&c->waiters, __ATOMIC_SEQ_CST))
        broken("pthread_cond_destroy: a thread waits for %p", (void *)c);
    c->signature = GONE;
    return 0;
}

/* timeout: a duration; NULL for none. */
static int wait_for(darwin_cond *c, darwin_mutex *m, const struct timespec *timeout, const char *call)
{
    struct timespec whole_ticks;
    uint32_t sequence;
    int result = 0;
    check_cond(c, call);
    check_mutex(m, call);
    if (timeout && (timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000 || timeout->tv_sec < 0))
        broken("%s: %ld s and %ld ns are no time", call, (long)timeout->tv_sec, timeout->tv_nsec);
    if (timeout && timeout->tv_sec < 10000000000) { /* cut to ticks, as there: it may end one early */
        uint64_t ns = (uint64_t)timeout->tv_sec * 1000000000u + (uint64_t)timeout->tv_nsec;
        ns = TO_NS(TO_TICKS(ns));
        whole_ticks.tv_sec = (time_t)(ns / 1000000000u);
        whole_ticks.tv_nsec = (long)(ns % 1000000000u);
        timeout = &whole_ticks;
    }
    sequence = __atomic_load_n(&c->sequence, __ATOMIC_SEQ_CST);
    if (__atomic_fetch_add(&c->waiters, 1, __ATOMIC_SEQ_CST) && c->mutex != m)
        broken("%s: condition variable %p with two mutexes", call, (void *)c);
    c->mutex = m;
    give(m, call); /* as Apple's, even when there is no time left */
    if (timeout && !timeout->tv_sec && !timeout->tv_nsec)
        result = ETIMEDOUT;
    else if (!spurious_every || __atomic_add_fetch(&waits, 1, __ATOMIC_RELAXED) % spurious_every)
        result = futex_wait(&c->sequence, sequence, timeout);
    take(m, call);
    __atomic_fetch_sub(&c->waiters, 1, __ATOMIC_SEQ_CST);
    return result ? DARWIN_ETIMEDOUT : 0;
}
static int darwin_cond_wait(darwin_cond *c, darwin_mutex *m)
{
    return wait_for(c, m, NULL, "pthread_cond_wait");
}
static int darwin_cond_timedwait_relative_np(darwin_cond *c, darwin_mutex *m, const struct timespec *timeout)
{
    return wait_for(c, m, timeout, "pthread_cond_timedwait_relative_np");
}
static int darwin_cond_timedwait(darwin_cond *c, darwin_mutex *m, const struct timespec *deadline)
{
    struct timespec now, left = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (deadline->tv_sec > now.tv_sec || (deadline->tv_sec == now.tv_sec && deadline->tv_nsec > now.tv_nsec)) {
        left.tv_sec = deadline->tv_sec - now.tv_sec;
        left.tv_nsec = deadline->tv_nsec - now.tv_nsec;
        if (left.tv_nsec < 0) left.tv_nsec += 1000000000, left.tv_sec--;
    }
    return wait_for(c, m, &left, "pthread_cond_timedwait");
}
static int wake(darwin_cond *c, int count, const char *call)
{
    check_cond(c, call);
    if (!__atomic_load_n(&c->waiters, __ATOMIC_SEQ_CST)) return 0;
    __atomic_fetch_add(&c->sequence, 1, __ATOMIC_SEQ_CST);
    futex_wake(&c->sequence, count); /* the last touch: a waiter may destroy it now */
    return 0;
}
static int darwin_cond_signal(darwin_cond *c)
{
    return wake(c, 1, "pthread_cond_signal");
}
static int darwin_cond_broadcast(darwin_cond *c)
{
    return wake(c, 0x7FFFFFFF, "pthread_cond_broadcast");
}

typedef struct darwin_once { /* pthread_once_t, 16 bytes */
    long signature;
    uint32_t state; /* 0, 1: the function runs, 2: it has run */
    char opaque[4];
} darwin_once;
typedef char once_is_16[sizeof(darwin_once) == 16 ? 1 : -1];

#define ONCE_INITIALIZER 0x30B1BCBAL

static int darwin_once_call(darwin_once *once, void (*function)(void))
{
    uint32_t seen = 0;
    if (once->signature != ONCE_INITIALIZER)
        broken("pthread_once: %p was not initialised (signature %#lx)", (void *)once, once->signature);
    if (__atomic_load_n(&once->state, __ATOMIC_ACQUIRE) == 2) return 0;
    if (__atomic_compare_exchange_n(&once->state, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        function();
        __atomic_store_n(&once->state, 2, __ATOMIC_RELEASE);
        futex_wake(&once->state, 0x7FFFFFFF);
    } else {
        while (__atomic_load_n(&once->state, __ATOMIC_ACQUIRE) != 2) futex_wait(&once->state, 1, NULL);
    }
    return 0;
}

/* As Apple's, it is the thread's that took it: to take it again, or to give another's back, ends the program. */
static void darwin_unfair_lock(uint32_t *lock)
{
    uint32_t seen = 0, self = self_number() << 1;
    while (!__atomic_compare_exchange_n(lock, &seen, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        if ((seen & ~1u) == self) broken("os_unfair_lock_lock: lock %p is this thread's already", (void *)lock);
        if (seen & 1 || __atomic_compare_exchange_n(lock, &seen, seen | 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            futex_wait(lock, seen | 1, NULL);
        self |= 1; /* others may be asleep, too */
        seen = 0;
    }
}
static bool darwin_unfair_trylock(uint32_t *lock)
{
    uint32_t seen = 0;
    return __atomic_compare_exchange_n(lock, &seen, self_number() << 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
static void darwin_unfair_unlock(uint32_t *lock)
{
    uint32_t seen = __atomic_exchange_n(lock, 0, __ATOMIC_RELEASE);
    if ((seen & ~1u) != self_number() << 1)
        broken("os_unfair_lock_unlock: lock %p is not this thread's", (void *)lock);
    if (seen & 1) futex_wake(lock, 1); /* by now it may be gone */
}

/* --------------------------------------------------------------------------------------------------- threads */

/* A pthread_t is a word on both sides, so pthread_self and pthread_equal are glibc's. */
typedef struct darwin_attributes { /* pthread_attr_t, 64 bytes */
    long signature;
    size_t stack_size;
    int state; /* PTHREAD_CREATE_JOINABLE 1, PTHREAD_CREATE_DETACHED 2 */
    char opaque[44];
} darwin_attributes;
#define ATTRIBUTES_MADE 0x54484441L
#define THREAD_STACK (512u * 1024) /* unless the attributes say more; not of the first thread */
#ifdef __x86_64__
#define STACK_MIN 8192u
#define STACK_PAGE 4096u
#else
#define STACK_MIN 16384u
#define STACK_PAGE 16384u
#endif

static int darwin_attr_init(darwin_attributes *a)
{
    memset(a, 0, sizeof *a);
    a->signature = ATTRIBUTES_MADE;
    a->state = 1;
    return 0;
}
static int darwin_attr_destroy(darwin_attributes *a)
{
    if (a->signature != ATTRIBUTES_MADE) return DARWIN_EINVAL;
    a->signature = GONE;
    return 0;
}
static int darwin_attr_setstacksize(darwin_attributes *a, size_t size)
{
    if (size % 4096 == 0) size = (size + STACK_PAGE - 1) / STACK_PAGE * STACK_PAGE;
    if (a->signature != ATTRIBUTES_MADE || size % STACK_PAGE || size < STACK_MIN) return DARWIN_EINVAL;
    a->stack_size = size;
    return 0;
}
static int darwin_attr_setdetachstate(darwin_attributes *a, int state)
{
    if (a->signature != ATTRIBUTES_MADE || state < 1 || state > 2) return DARWIN_EINVAL;
    a->state = state;
    return 0;
}
static int darwin_thread_create(pthread_t *thread, const darwin_attributes *a, void *(*body)(void *), void *argument)
{
    pthread_attr_t attributes;
    int result;
    size_t size = a && a->stack_size ? a->stack_size : THREAD_STACK;
    if (a && a->signature != ATTRIBUTES_MADE) broken("pthread_create: attributes were not initialised");
    pthread_attr_init(&attributes);
    /* glibc has its descriptor and the runner's thread variables on the same stack. */
    pthread_attr_setstacksize(&attributes, size + 16384);
    if (a && a->state == 2) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    result = pthread_create(thread, &attributes, body, argument);
    pthread_attr_destroy(&attributes);
    return darwin_errno_of(result);
}
/* A key has 64 bits. */
static int darwin_key_create(unsigned long *key, void (*end)(void *))
{
    pthread_key_t made;
    int result = pthread_key_create(&made, end);
    if (result == 0) *key = made;
    return darwin_errno_of(result);
}
static int darwin_setspecific(unsigned long key, const void *value)
{
    return darwin_errno_of(pthread_setspecific((pthread_key_t)key, value));
}
static void *darwin_getspecific(unsigned long key)
{
    return pthread_getspecific((pthread_key_t)key);
}
static int darwin_thread_join(pthread_t thread, void **result)
{
    return darwin_errno_of(pthread_join(thread, result));
}

/* ----------------------------------------------------------------------------------------------- libdispatch */

/* The system's, behind that of softmetal: what a program gets that is linked without softmetal_libdispatch.o. A queue runs
   its functions one after the other on threads that come and go, the global one all at once. */
typedef struct darwin_work {
    struct darwin_work *next;
    struct darwin_queue *queue;
    void (*function)(void *);
    void *context;
    uint64_t delay_ns;
} darwin_work;
typedef struct darwin_queue {
    void *class; /* an object of the Objective-C runtime's, as Apple's are */
    pthread_mutex_t lock;
    bool global, busy;
    long references;
    darwin_work *first, **end;
} darwin_queue;

/* An attribute of a class of service is its place in this array. All classes are the same here. */
static char attributes[0x22];
static void *darwin_queue_attribute(void *attribute, unsigned qos_class, int priority)
{
    if (attribute || qos_class >= sizeof attributes || priority)
        broken("dispatch_queue_attr_make_with_qos_class: %p, %#x, %d", attribute, qos_class, priority);
    return &attributes[qos_class];
}

static darwin_queue *darwin_queue_create(const char *label, void *attribute)
{
    darwin_queue *q = calloc(1, sizeof *q);
    (void)label;
    if (!q) broken("dispatch_queue_create: no memory");
    if (attribute && ((char *)attribute < attributes || (char *)attribute >= attributes + sizeof attributes))
        broken("dispatch_queue_create: %p is no attribute", attribute);
    q->class = darwin_objc_class("OS_dispatch_queue");
    pthread_mutex_init(&q->lock, NULL);
    q->references = 1;
    q->end = &q->first;
    return q;
}
static pthread_once_t made_global = PTHREAD_ONCE_INIT;
static darwin_queue *global_queue;
static void make_global(void)
{
    global_queue = darwin_queue_create("global", NULL);
    global_queue->global = true;
}
static darwin_queue *darwin_global_queue(long identifier, unsigned long flags)
{
    pthread_once(&made_global, make_global);
    return identifier || flags ? NULL : global_queue;
}
static void darwin_dispatch_retain(darwin_queue *q)
{
    __atomic_fetch_add(&q->references, 1, __ATOMIC_RELAXED);
}
static void darwin_dispatch_release(darwin_queue *q)
{
    long before = __atomic_fetch_sub(&q->references, 1, __ATOMIC_ACQ_REL);
    if (before <= 0) broken("dispatch_release: %p once too often", (void *)q);
    if (before == 1 && !q->global) free(q);
}
static void on_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, argument)) broken("libdispatch: no thread");
    pthread_detach(thread);
}
static void run_work(darwin_work *work)
{
    work->function(work->context);
    darwin_dispatch_release(work->queue);
    free(work);
}
static void *run_one(void *work)
{
    run_work(work);
    return NULL;
}
static void *run_queue(void *queue)
{
    darwin_queue *q = queue;
    darwin_work *work;
    for (;;) {
        pthread_mutex_lock(&q->lock);
        if ((work = q->first) && !(q->first = work->next)) q->end = &q->first;
        if (!work) q->busy = false;
        pthread_mutex_unlock(&q->lock);
        if (!work) break;
        run_work(work);
    }
    darwin_dispatch_release(q);
    return NULL;
}
static void enqueue(darwin_work *work)
{
    darwin_queue *q = work->queue;
    bool start;
    if (q->global) {
        on_thread(run_one, work);
        return;
    }
    pthread_mutex_lock(&q->lock);
    *q->end = work;
    q->end = &work->next;
    start = !q->busy;
    q->busy = true;
    pthread_mutex_unlock(&q->lock);
    if (!start) return;
    darwin_dispatch_retain(q);
    on_thread(run_queue, q);
}
static darwin_work *new_work(darwin_queue *q, void *context, void (*function)(void *))
{
    darwin_work *work = calloc(1, sizeof *work);
    if (!work) broken("libdispatch: no memory");
    darwin_dispatch_retain(q);
    work->queue = q;
    work->function = function;
    work->context = context;
    return work;
}
static void darwin_dispatch_async_f(darwin_queue *q, void *context, void (*function)(void *))
{
    enqueue(new_work(q, context, function));
}
/* Its times are ticks. */
static uint64_t darwin_dispatch_time(uint64_t when, int64_t delta_ns)
{
    if (delta_ns < 0 || when >> 62) broken("dispatch_time: %#lx and %ld ns", (long)when, (long)delta_ns);
    return (when ? when : TO_TICKS(darwin_clock_gettime_nsec_np(8))) + TO_TICKS((uint64_t)delta_ns);
}
static void *wait_and_enqueue(void *timer)
{
    darwin_work *work = timer;
    struct timespec left = {(time_t)(work->delay_ns / 1000000000u), (long)(work->delay_ns % 1000000000u)};
    while (nanosleep(&left, &left)) {
    }
    enqueue(work);
    return NULL;
}
static void darwin_dispatch_after_f(uint64_t when, darwin_queue *q, void *context, void (*function)(void *))
{
    darwin_work *work = new_work(q, context, function);
    uint64_t now = TO_TICKS(darwin_clock_gettime_nsec_np(8));
    work->delay_ns = when > now ? TO_NS(when - now) : 0;
    on_thread(wait_and_enqueue, work);
}

/* ------------------------------------------------------------------------------------ thread-local variables */

__thread void *darwin_tlv_block; /* for machine.S */
static const void *tlv_start;
static size_t tlv_size, tlv_align;
static pthread_key_t tlv_key;

void *darwin_tlv_make(void)
{
    void *block;
    if (!tlv_size) broken("a thread-local variable, and no section for them");
    if (posix_memalign(&block, tlv_align < 16 ? 16 : tlv_align, tlv_size))
        broken("no memory for thread-local variables");
    memcpy(block, tlv_start, tlv_size);
    darwin_tlv_block = block;
    pthread_setspecific(tlv_key, block); /* frees it when the thread ends */
    return block;
}

void darwin_start(const char *program, const void *tlv, size_t size, size_t align)
{
    const char *text = getenv("MACHO_SPURIOUS");
    void *copy = size ? malloc(size) : NULL;
    if (text) spurious_every = strtoul(text, NULL, 10);
    program_path = program;
    if (copy) memcpy(copy, tlv, size); /* a program may write to the section, and no thread is to see that */
    tlv_start = copy;
    tlv_size = size;
    tlv_align = align;
    pthread_key_create(&tlv_key, free);
}

/* ------------------------------------------------------------------------------------------ text, files, processes */

static FILE *darwin_stdin, *darwin_stdout, *darwin_stderr;
__attribute__((constructor)) static void set_streams(void)
{
    darwin_stdin = stdin;
    darwin_stdout = stdout;
    darwin_stderr = stderr;
}

__attribute__((noreturn)) static void darwin_assert_rtn(const char *function, const char *file, int line,
                                                        const char *what)
{
    fprintf(stderr, "Assertion failed: (%s), function %s, file %s, line %d.\n", what, function ? function : "?", file,
            line);
    abort();
}

static int darwin_nanosleep(const struct timespec *time, struct timespec *left)
{
    return (int)kept(nanosleep(time, left));
}
static int darwin_usleep(unsigned us)
{
    return (int)kept(usleep(us));
}
static int darwin_pipe(int ends[2])
{
    return (int)kept(pipe(ends));
}
static ssize_t darwin_read(int file, void *to, size_t size)
{
    return kept(read(file, to, size));
}
/* Signals that have the same number here and there. */
static void check_signal(int number)
{
    if (number == SIGALRM || number == SIGABRT || number == SIGTERM) return;
    fprintf(stderr, "macho-run: signal %d is not known\n", number);
    abort();
}

typedef void darwin_handler(int number);
static darwin_handler *darwin_signal(int number, darwin_handler *handler)
{
    check_signal(number);
    return signal(number, handler);
}

static int darwin_raise(int number)
{
    check_signal(number);
    return (int)kept(raise(number));
}

static ssize_t darwin_write(int file, const void *from, size_t size)
{
    return kept(write(file, from, size));
}
static int darwin_close(int file)
{
    return (int)kept(close(file));
}
/* The bits of PROT_ and MAP_PRIVATE are the same on both, MAP_ANON is not. */
#define DARWIN_MAP_ANON 0x1000
static void *darwin_mmap(void *at, size_t size, int access, int flags, int file, off_t offset)
{
    if (flags != (MAP_PRIVATE | DARWIN_MAP_ANON)) broken("mmap: flags %#x", flags);
    at = mmap(at, size, access, MAP_PRIVATE | MAP_ANONYMOUS, file, offset);
    return (void *)(uintptr_t)kept((long)(intptr_t)at);
}
static int darwin_mprotect(void *at, size_t size, int access)
{
    return (int)kept(mprotect(at, size, access));
}
static int darwin_setenv(const char *name, const char *value, int replace)
{
    return (int)kept(setenv(name, value, replace));
}
static int darwin_dup2(int file, int as)
{
    return (int)kept(dup2(file, as));
}
static int darwin_mkstemp(char *path)
{
    return (int)kept(mkstemp(path));
}
static int darwin_unlink(const char *path)
{
    return (int)kept(unlink(path));
}
static pid_t darwin_fork(void)
{
    return (pid_t)kept(fork());
}
/* The two that stop a process and let it go on have other numbers. */
static int darwin_kill(pid_t pid, int number)
{
    if (number != 17 && number != 19) check_signal(number);
    return (int)kept(kill(pid, number == 17 ? SIGSTOP : number == 19 ? SIGCONT : number));
}

typedef struct darwin_action {
    darwin_handler *handler;
    uint32_t mask;
    int flags;
} darwin_action;
/* Without a mask and flags: what a call of the system's is interrupted by. */
static int darwin_sigaction(int number, const darwin_action *action, darwin_action *before)
{
    struct sigaction with;
    check_signal(number);
    if (before || !action || action->mask || action->flags) {
        fprintf(stderr, "macho-run: sigaction with more than a handler is not known\n");
        abort();
    }
    memset(&with, 0, sizeof with);
    with.sa_handler = action->handler;
    return (int)kept(sigaction(number, &with, NULL));
}

typedef struct darwin_timeval {
    int64_t seconds;
    int32_t microseconds;
} darwin_timeval;
typedef struct darwin_timer {
    darwin_timeval interval, value;
} darwin_timer;
static int darwin_setitimer(int which, const darwin_timer *timer, darwin_timer *before)
{
    struct itimerval with = {{timer->interval.seconds, timer->interval.microseconds},
                             {timer->value.seconds, timer->value.microseconds}};
    if (which != ITIMER_REAL || before) {
        fprintf(stderr, "macho-run: setitimer is known for the real time alone\n");
        abort();
    }
    return (int)kept(setitimer(ITIMER_REAL, &with, NULL));
}

/* The events of poll that exist on both have the same bits; so have waitpid's options, and its status, but for the
   number of the signal that has stopped a process. */
static int darwin_poll(struct pollfd *list, unsigned count, int ms)
{
    return (int)kept(poll(list, count, ms));
}
static pid_t darwin_waitpid(pid_t pid, int *status, int options)
{
    pid_t found = waitpid(pid, status, options);
    if (found > 0 && status && WIFSTOPPED(*status) && WSTOPSIG(*status) == SIGSTOP) *status = 17 << 8 | 0x7f;
    return (pid_t)kept(found);
}

#define DARWIN_O_NONBLOCK 4
static int darwin_vfcntl(int file, int call, va_list list)
{
    long argument = va_arg(list, long), flags;
    switch (call) {
    case 1: return (int)kept(fcntl(file, F_GETFD));
    case 2: return (int)kept(fcntl(file, F_SETFD, (int)argument)); /* FD_CLOEXEC is the same */
    case 3:
        flags = kept(fcntl(file, F_GETFL));
        return (int)(flags < 0 ? flags : (flags & O_ACCMODE) | (flags & O_NONBLOCK ? DARWIN_O_NONBLOCK : 0));
    case 4:
        if (argument & ~(long)(O_ACCMODE | DARWIN_O_NONBLOCK)) broken("fcntl: flags %#lx", argument);
        return (int)kept(fcntl(file, F_SETFL, argument & DARWIN_O_NONBLOCK ? O_NONBLOCK : 0));
    default: broken("fcntl: call %d", call);
    }
}

/* Of a Mach-O program, often of the running one, so it needs the runner again: this file, or what MACHO_RUN names,
   which is a script where qemu has to come first. */
static int darwin_vexecl(const char *path, const char *first, va_list list)
{
    const char *runner = getenv("MACHO_RUN");
    char *arguments[64];
    unsigned count = 0;
    (void)first; /* the runner gives its path as argv[0] */
    arguments[count++] = (char *)(uintptr_t) "macho-run";
    arguments[count++] = (char *)(uintptr_t)path;
    while (count < 63 && (arguments[count] = va_arg(list, char *)) != NULL) count++;
    arguments[count] = NULL;
    execv(runner ? runner : "/proc/self/exe", arguments);
    return (int)kept(-1);
}

static void *darwin_dlsym(void *handle, const char *name)
{
    void *found;
    if (handle != (void *)-1 && handle != (void *)-2) broken("dlsym: handle %p", handle); /* NEXT, DEFAULT */
    found = handle == (void *)-2 ? darwin_own_symbol(name) : NULL;
    if (!found) found = darwin_symbol(name);
    return found ? found : dlsym(RTLD_DEFAULT, name);
}

/* -------------------------------------------------------------------------------------------------- contexts */

/* Apple's ucontext_t has `data` only for a program that defines _XOPEN_SOURCE. For all others getcontext writes past
   the end of theirs; here too. */
typedef struct darwin_context {
    int on_stack;
    uint32_t signals;
    struct {
        void *base;
        size_t size;
        int flags;
    } stack;
    struct darwin_context *link;
    size_t machine_size; /* 0: nothing in it to go to */
    void *machine;       /* &data */
#ifdef __x86_64__
    uint64_t data[89];
#else
    uint64_t data[102];
#endif
} darwin_context;
typedef char machine_at_56[offsetof(darwin_context, data) == 56 ? 1 : -1];

extern int darwin_context_save(darwin_context *); /* machine.S; 0, and again on every return to it */
extern int darwin_context_swap(darwin_context *from, const darwin_context *to);
extern int darwin_context_load(const darwin_context *);
extern void darwin_context_start(void);
void darwin_context_done(darwin_context *);

static int darwin_setcontext(const darwin_context *to)
{
    if (!to->machine_size) return darwin_errno = DARWIN_EINVAL, -1;
    return darwin_context_load(to);
}
static int darwin_swapcontext(darwin_context *from, const darwin_context *to)
{
    if (!to->machine_size) return darwin_errno = DARWIN_EINVAL, -1;
    from->machine = from->data;
    from->machine_size = sizeof from->data;
    return darwin_context_swap(from, to);
}
void darwin_context_done(darwin_context *done)
{
    if (!done->link) _exit(0);
    done->machine_size = 0;
    darwin_setcontext(done->link);
    abort();
}
static void darwin_vmakecontext(darwin_context *context, void (*function)(void), int count, va_list list)
{
    char *top = (char *)context->stack.base + context->stack.size;
    uint64_t *arguments, *machine = context->data;
    int i;
    if (!context->stack.base || count < 0 || count > 8) {
        context->machine_size = 0;
        return;
    }
    if (!context->machine_size) broken("makecontext: without getcontext before it");
    arguments = (uint64_t *)(((uintptr_t)top & ~(uintptr_t)15) - 8 * sizeof *arguments);
    memset(arguments, 0, 8 * sizeof *arguments);
    context->machine = context->data;
#ifdef __x86_64__
    if (count > 6) broken("makecontext: more than 6 arguments");
    for (i = 0; i < count; i++) arguments[i] = va_arg(list, uint64_t); /* whole words, as Apple's */
    machine[3] = (uintptr_t)function;                                  /* rbx */
    machine[8] = 0;                                                    /* rbp */
    machine[9] = (uintptr_t)arguments;                                 /* rsp */
    machine[14] = (uintptr_t)arguments;                                /* r12 */
    machine[15] = (uintptr_t)context;                                  /* r13 */
    machine[18] = (uintptr_t)darwin_context_start;                     /* rip */
#else
    memset(context->stack.base, 0, (size_t)((char *)arguments - (char *)context->stack.base)); /* as Apple's does */
    for (i = 0; i < count; i++) arguments[i] = va_arg(list, unsigned); /* as Apple's: half of a pointer is lost */
    machine[21] = (uintptr_t)context;                                  /* x19 */
    machine[22] = (uintptr_t)function;                                 /* x20 */
    machine[23] = (uintptr_t)arguments;                                /* x21 */
    machine[31] = 0;                                                   /* fp */
    machine[32] = (uintptr_t)darwin_context_start;                     /* lr */
    machine[33] = (uintptr_t)arguments;                                /* sp */
#endif
}

/* ------------------------------------------------------------------------------------------ variable arguments */

/* For x86-64 both systems agree. On arm64 Apple has them all on the stack: programs enter through machine.S. */
#ifdef __x86_64__
static int darwin_fcntl(int file, int call, ...)
{
    va_list list;
    int result;
    va_start(list, call);
    result = darwin_vfcntl(file, call, list);
    va_end(list);
    return result;
}
static int darwin_execl(const char *path, const char *first, ...)
{
    va_list list;
    int result;
    va_start(list, first);
    result = darwin_vexecl(path, first, list);
    va_end(list);
    return result;
}
static void darwin_makecontext(darwin_context *context, void (*function)(void), int count, ...)
{
    va_list list;
    va_start(list, count);
    darwin_vmakecontext(context, function, count, list);
    va_end(list);
}
#define VARIADIC(name)                 \
    {                                  \
#name, (void *)(uintptr_t)name \
    }
#else
int darwin_fcntl_list(int file, int call, va_list *list)
{
    return darwin_vfcntl(file, call, *list);
}
int darwin_execl_list(const char *path, const char *first, va_list *list)
{
    return darwin_vexecl(path, first, *list);
}
void darwin_makecontext_list(darwin_context *context, void (*function)(void), int count, va_list *list)
{
    darwin_vmakecontext(context, function, count, *list);
}
extern void darwin_fcntl(void), darwin_execl(void), darwin_makecontext(void);
extern void darwin_printf(void), darwin_fprintf(void), darwin_snprintf(void), darwin_vsnprintf(void),
    darwin_vfprintf(void), darwin_sscanf(void), darwin___snprintf_chk(void), darwin___vsnprintf_chk(void);
#define VARIADIC(name)                          \
    {                                           \
#name, (void *)(uintptr_t)darwin_##name \
    }
#endif

/* ----------------------------------------------------------------------------------------------------- names */

extern void *__memcpy_chk(void *, const void *, size_t, size_t), *__memset_chk(void *, int, size_t, size_t);
extern void *__memmove_chk(void *, const void *, size_t, size_t);
extern char *__strncat_chk(char *, const char *, size_t, size_t), *__strcpy_chk(char *, const char *, size_t);
extern char *__strcat_chk(char *, const char *, size_t), *__strncpy_chk(char *, const char *, size_t, size_t);
extern int __cxa_atexit(void (*)(void *), void *, void *);
extern uintptr_t __stack_chk_guard_value;
uintptr_t __stack_chk_guard_value = 0xFF0A0D00BADC0DE5u;
extern void __stack_chk_fail(void);
#ifdef __x86_64__
extern int __snprintf_chk(char *, size_t, int, size_t, const char *, ...);
extern int __vsnprintf_chk(char *, size_t, int, size_t, const char *, va_list);
#endif
extern void *_NSConcreteGlobalBlock[32], *_NSConcreteStackBlock[32], *_NSConcreteMallocBlock[32];
extern void *_Block_copy(const void *);
extern void _Block_release(const void *);

#define SAME(name)                     \
    {                                  \
#name, (void *)(uintptr_t)name \
    }
#define OURS(name, function)               \
    {                                      \
#name, (void *)(uintptr_t)function \
    }
#define DATA(name, object)                \
    {                                     \
#name, (void *)(uintptr_t)&object \
    }

/* clang-format off */
static const struct { const char *name; void *address; } names[] = {
    OURS(pthread_mutex_init, darwin_mutex_init), OURS(pthread_mutex_destroy, darwin_mutex_destroy),
    OURS(pthread_mutex_lock, darwin_mutex_lock), OURS(pthread_mutex_unlock, darwin_mutex_unlock),
    OURS(pthread_mutex_trylock, darwin_mutex_trylock),
    OURS(pthread_cond_init, darwin_cond_init), OURS(pthread_cond_destroy, darwin_cond_destroy),
    OURS(pthread_cond_wait, darwin_cond_wait), OURS(pthread_cond_timedwait, darwin_cond_timedwait),
    OURS(pthread_cond_timedwait_relative_np, darwin_cond_timedwait_relative_np),
    OURS(pthread_cond_signal, darwin_cond_signal), OURS(pthread_cond_broadcast, darwin_cond_broadcast),
    OURS(pthread_create, darwin_thread_create), OURS(pthread_join, darwin_thread_join),
    OURS(pthread_attr_init, darwin_attr_init), OURS(pthread_attr_destroy, darwin_attr_destroy),
    OURS(pthread_attr_setstacksize, darwin_attr_setstacksize),
    OURS(pthread_attr_setdetachstate, darwin_attr_setdetachstate),
    OURS(pthread_key_create, darwin_key_create), OURS(pthread_setspecific, darwin_setspecific),
    OURS(pthread_getspecific, darwin_getspecific),
    OURS(pthread_once, darwin_once_call), SAME(pthread_self), SAME(pthread_equal), SAME(pthread_detach),
    SAME(pthread_exit),
    SAME(sched_yield),
    OURS(os_unfair_lock_lock, darwin_unfair_lock), OURS(os_unfair_lock_trylock, darwin_unfair_trylock),
    OURS(os_unfair_lock_unlock, darwin_unfair_unlock),
    OURS(dispatch_queue_attr_make_with_qos_class, darwin_queue_attribute),
    OURS(dispatch_queue_create, darwin_queue_create), OURS(dispatch_get_global_queue, darwin_global_queue),
    OURS(dispatch_async_f, darwin_dispatch_async_f), OURS(dispatch_after_f, darwin_dispatch_after_f),
    OURS(dispatch_time, darwin_dispatch_time), OURS(dispatch_retain, darwin_dispatch_retain),
    OURS(dispatch_release, darwin_dispatch_release),

    OURS(clock_gettime, darwin_clock_gettime), OURS(clock_gettime_nsec_np, darwin_clock_gettime_nsec_np),
    OURS(nanosleep, darwin_nanosleep), OURS(usleep, darwin_usleep), SAME(clock), /* in microseconds on both */
    SAME(time),

    SAME(malloc), SAME(calloc), SAME(realloc), SAME(free), SAME(posix_memalign),
    SAME(memcpy), SAME(memmove), SAME(memset), SAME(memcmp), SAME(memchr), SAME(bzero), OURS(__bzero, bzero),
    OURS(memset_pattern16, darwin_memset_pattern16),
    SAME(strlen), SAME(strnlen), SAME(strcmp), SAME(strncmp), SAME(strstr), SAME(strchr), SAME(strcspn), SAME(strrchr), SAME(strpbrk),
    SAME(strcpy), SAME(strncpy), SAME(strcat), SAME(strtok_r), SAME(strtol), SAME(strtoul),
    SAME(strtoull), SAME(strtod), SAME(atoi), SAME(atof), SAME(strdup), SAME(strndup), SAME(isspace), SAME(isalnum),
    SAME(qsort),
    SAME(__memcpy_chk), SAME(__memmove_chk), SAME(__memset_chk), SAME(__strncat_chk), SAME(__strcpy_chk),
    SAME(__strcat_chk), SAME(__strncpy_chk),

    DATA(__stdinp, darwin_stdin), DATA(__stdoutp, darwin_stdout), DATA(__stderrp, darwin_stderr),
    SAME(puts), SAME(putchar), SAME(fputs), SAME(fputc), SAME(fwrite), SAME(fread), SAME(fgets), SAME(fflush),
    SAME(fopen), SAME(fclose), SAME(fseek), SAME(ftell), SAME(rewind), SAME(tmpfile),
    VARIADIC(printf), VARIADIC(fprintf), VARIADIC(snprintf), VARIADIC(vsnprintf), VARIADIC(vfprintf), VARIADIC(sscanf),
    VARIADIC(__snprintf_chk), VARIADIC(__vsnprintf_chk),

    SAME(abort), SAME(exit), SAME(_exit), SAME(getenv), SAME(unsetenv), SAME(__cxa_atexit), SAME(alarm), SAME(getpid),
    OURS(__error, darwin_error), OURS(__assert_rtn, darwin_assert_rtn),
    DATA(__stack_chk_guard, __stack_chk_guard_value), SAME(__stack_chk_fail),
    OURS(pipe, darwin_pipe), OURS(read, darwin_read), OURS(write, darwin_write), OURS(close, darwin_close),
    OURS(signal, darwin_signal), OURS(raise, darwin_raise),
    OURS(dup2, darwin_dup2), OURS(mkstemp, darwin_mkstemp), OURS(unlink, darwin_unlink), OURS(fork, darwin_fork),
    OURS(poll, darwin_poll), OURS(waitpid, darwin_waitpid), OURS(kill, darwin_kill), OURS(setenv, darwin_setenv),
    OURS(sigaction, darwin_sigaction), OURS(setitimer, darwin_setitimer),
    OURS(mmap, darwin_mmap), OURS(mprotect, darwin_mprotect),
    OURS(fcntl, darwin_fcntl), OURS(execl, darwin_execl), OURS(dlsym, darwin_dlsym), SAME(dladdr),

    /* glibc's writes 68 bytes (x86-64) or 180 (arm64), without the signals; a jmp_buf of macOS has 148 or 192. */
    OURS(setjmp, _setjmp), SAME(longjmp),
    OURS(getcontext, darwin_context_save), OURS(setcontext, darwin_setcontext), OURS(swapcontext, darwin_swapcontext),
    OURS(makecontext, darwin_makecontext),

    OURS(_tlv_bootstrap, darwin_tlv_address), /* in descriptors, until the runner has seen them */
    DATA(_NSConcreteGlobalBlock, _NSConcreteGlobalBlock), DATA(_NSConcreteStackBlock, _NSConcreteStackBlock),
    DATA(_NSConcreteMallocBlock, _NSConcreteMallocBlock), SAME(_Block_copy), SAME(_Block_release),
};
/* clang-format on */

void *darwin_symbol(const char *name)
{
    size_t i, length = strcspn(name, "$"); /* variants: fopen$DARWIN_EXTSN, close$NOCANCEL */
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(names[i].name, name, length) == 0 && !names[i].name[length]) return names[i].address;
    return NULL;
}
