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
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

/* What the calls of this file can end with; the same on both sides below 35, except EAGAIN and EDEADLK. */
static int darwin_errno_of(int number)
{
    if (number == EAGAIN) return 35;
    if (number == EDEADLK) return 11;
    if (number < 0 || number > 34) broken("error number %d of Linux is not in darwin.c", number);
    return number;
}
#define DARWIN_EINVAL 22
#define DARWIN_ETIMEDOUT 60

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

static uint64_t darwin_clock_gettime_nsec_np(int id)
{
    struct timespec now;
    if (id != 0 && id != 6 && id != 8) broken("clock %d", id); /* REALTIME, MONOTONIC, UPTIME_RAW */
    clock_gettime(id ? CLOCK_MONOTONIC : CLOCK_REALTIME, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return id ? TO_NS(TO_TICKS(ns)) + (id == 6 ? SLEPT_S * 1000000000ull : 0) : ns;
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
    uint32_t sequence = __atomic_load_n(&c->sequence, __ATOMIC_SEQ_CST);
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
static int darwin_attr_setdetachstate(darwin_attributes *a, int state)
{
    if (a->signature != ATTRIBUTES_MADE || state < 1 || state > 2) return DARWIN_EINVAL;
    a->state = state;
    return 0;
}
static int darwin_thread_create(pthread_t *thread, const darwin_attributes *a, void *(*body)(void *), void *argument)
{
    pthread_attr_t attributes;
    size_t size = a && a->stack_size ? a->stack_size : THREAD_STACK;
    if (a && a->signature != ATTRIBUTES_MADE) broken("pthread_create: attributes were not initialised");
    pthread_attr_init(&attributes);
    /* glibc has its descriptor and the runner's thread variables on the same stack. */
    pthread_attr_setstacksize(&attributes, size + 16384);
    if (a && a->state == 2) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int result = pthread_create(thread, &attributes, body, argument);
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
static int darwin_thread_detach(pthread_t thread)
{
    return darwin_errno_of(pthread_detach(thread));
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

void darwin_start(const void *tlv, size_t size, size_t align)
{
    const char *text = getenv("MACHO_SPURIOUS");
    void *copy = size ? malloc(size) : NULL;
    if (text) spurious_every = strtoul(text, NULL, 10);
    if (copy) memcpy(copy, tlv, size); /* a program may write to the section, and no thread is to see that */
    tlv_start = copy;
    tlv_size = size;
    tlv_align = align;
    pthread_key_create(&tlv_key, free);
}

/* ------------------------------------------------------------------------------------------ text, files, processes */

static FILE *darwin_stderr;
__attribute__((constructor)) static void set_streams(void)
{
    darwin_stderr = stderr;
}

static void *darwin_dlsym(void *handle, const char *name)
{
    void *found;
    if (handle != (void *)-1 && handle != (void *)-2) broken("dlsym: handle %p", handle); /* NEXT, DEFAULT */
    found = handle == (void *)-2 ? darwin_own_symbol(name) : NULL;
    if (!found) found = darwin_symbol(name);
    return found ? found : dlsym(RTLD_DEFAULT, name);
}

/* ------------------------------------------------------------------------------------------ variable arguments */

/* For x86-64 both systems agree. On arm64 Apple has them all on the stack: programs enter through machine.S. */
#ifdef __x86_64__
#define VARIADIC(name) {#name, (void *)(uintptr_t)name}
#else
extern void darwin_fprintf(void), darwin_snprintf(void), darwin_vsnprintf(void);
#define VARIADIC(name) {#name, (void *)(uintptr_t)darwin_##name}
#endif

/* ----------------------------------------------------------------------------------------------------- names */

extern void *__memcpy_chk(void *, const void *, size_t, size_t);
extern void *_NSConcreteGlobalBlock[32], *_NSConcreteStackBlock[32], *_NSConcreteMallocBlock[32];
extern void *_Block_copy(const void *);
extern void _Block_release(const void *);

#define SAME(name) {#name, (void *)(uintptr_t)name}
#define OURS(name, function) {#name, (void *)(uintptr_t)function}
#define DATA(name, object) {#name, (void *)(uintptr_t)&object}

/* clang-format off */
static const struct { const char *name; void *address; } names[] = {
    /* _tlv_bootstrap is in descriptors, until the runner has seen them. */
    OURS(pthread_mutex_init, darwin_mutex_init), OURS(pthread_mutex_destroy, darwin_mutex_destroy),
    OURS(pthread_mutex_lock, darwin_mutex_lock), OURS(pthread_mutex_unlock, darwin_mutex_unlock),
    OURS(pthread_cond_init, darwin_cond_init), OURS(pthread_cond_destroy, darwin_cond_destroy),
    OURS(pthread_cond_wait, darwin_cond_wait),
    OURS(pthread_cond_timedwait_relative_np, darwin_cond_timedwait_relative_np),
    OURS(pthread_cond_signal, darwin_cond_signal), OURS(pthread_cond_broadcast, darwin_cond_broadcast),
    OURS(pthread_create, darwin_thread_create), OURS(pthread_join, darwin_thread_join),
    OURS(pthread_detach, darwin_thread_detach),
    OURS(pthread_attr_init, darwin_attr_init), OURS(pthread_attr_destroy, darwin_attr_destroy),
    OURS(pthread_attr_setdetachstate, darwin_attr_setdetachstate), OURS(pthread_key_create, darwin_key_create),
    OURS(pthread_setspecific, darwin_setspecific), OURS(pthread_getspecific, darwin_getspecific),
    OURS(pthread_once, darwin_once_call), SAME(pthread_self), SAME(pthread_equal), SAME(sched_yield),
    OURS(os_unfair_lock_lock, darwin_unfair_lock), OURS(os_unfair_lock_trylock, darwin_unfair_trylock),
    OURS(os_unfair_lock_unlock, darwin_unfair_unlock), OURS(clock_gettime_nsec_np, darwin_clock_gettime_nsec_np),
    SAME(nanosleep), SAME(usleep), SAME(malloc), SAME(calloc), SAME(realloc),
    SAME(free), SAME(memcpy), SAME(memmove), SAME(memset), SAME(memcmp), SAME(bzero), OURS(__bzero, bzero),
    SAME(strlen), SAME(strcmp), SAME(strncmp), SAME(strstr), SAME(strchr), SAME(strcpy), SAME(strtol), SAME(strtoul),
    SAME(strdup), SAME(strndup), SAME(isspace), SAME(isalnum), SAME(__memcpy_chk), DATA(__stderrp, darwin_stderr),
    SAME(fflush), VARIADIC(fprintf), VARIADIC(snprintf), VARIADIC(vsnprintf), SAME(abort), SAME(getenv),
    OURS(dlsym, darwin_dlsym), SAME(dladdr), OURS(_tlv_bootstrap, darwin_tlv_address),
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
