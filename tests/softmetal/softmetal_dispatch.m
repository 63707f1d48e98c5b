/* softmetal_dispatch.m - dispatch queues and workers: what libdispatch gives to a program in C

   softmetal_libdispatch.m has libdispatch's own names for it. On a Mac these stand in front of the system's: what is
   given to a queue that the system made goes on to the system.

   A sm_work is a function to run. It is in one place at a time: among the timers, in the line of its serial queue, among
   the ready, or with a worker. Of a serial queue at most one is ready or running.

   ThreadSanitizer must see the order that libdispatch promises, and none that our own lock adds. So it looks
   away while the lock is taken and held, and is told each edge by name. */
#ifdef __linux__
#define _GNU_SOURCE /* RTLD_NEXT */
#endif
#import "softmetal_internal.h"
#include <dlfcn.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
#define LOOK_AWAY() (AnnotateIgnoreSyncBegin(__FILE__, __LINE__), AnnotateIgnoreReadsBegin(__FILE__, __LINE__))
#define LOOK_AGAIN() (AnnotateIgnoreReadsEnd(__FILE__, __LINE__), AnnotateIgnoreSyncEnd(__FILE__, __LINE__))
#define COMES_BEFORE(edge) __tsan_release(edge)
#define COMES_AFTER(edge) __tsan_acquire(edge)
#endif
#endif
#ifndef LOOK_AWAY
#define LOOK_AWAY() ((void)0)
#define LOOK_AGAIN() ((void)0)
#define COMES_BEFORE(edge) ((void)(edge))
#define COMES_AFTER(edge) ((void)(edge))
#endif

typedef struct sm_work {
    struct sm_work *next;
    SoftMetalDispatchQueue *queue; /* not retained: `pending` keeps it */
    void *context;
    void (*function)(void *);
    uint64_t due; /* of a timer */
    bool by_hand; /* of a timer: softmetal_fire_timers alone fires it */
} sm_work;

#define IDLE_TIME UINT64_C(1000000000) /* a thread with nothing to do ends after this */

static struct {
    pthread_once_t once;
    pthread_mutex_t lock;
    pthread_cond_t work;   /* for workers: something is ready */
    sm_work *ready_first, *ready_last;
    sm_work *timers;              /* by their times */
    pthread_cond_t timers_change; /* for the thread of the timers, which is there from the first one on */
    bool timer_thread;
    unsigned pending; /* atomic: how many timers there are */
    unsigned ready, most, threads, idle, running;
    unsigned resting; /* of those: they wait for a command buffer, */
    unsigned stuck;   /* ... or in a serial queue behind one that does or did, which has not returned */
    unsigned unfinished; /* dispatched, or fired, and not through with; its queue may go with it */
    uint64_t dispatches, armed; /* atomic */
    char ended;                 /* the edge from every function to a look that finds nothing left */
} pool = {.once = PTHREAD_ONCE_INIT,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .most = SOFTMETAL_DISPATCH_THREADS};

static SoftMetalDispatchQueue *global_queue; /* lives as long as the process, so it is not counted */
static __thread SoftMetalDispatchQueue *current; /* its queue */

static void ends_in_function(void *work);
static pthread_key_t function_key; /* what the worker runs; so its destructor runs only where that does not return */

static void set_up(void)
{
    pthread_key_create(&function_key, ends_in_function);
    sm_cond_init(&pool.work);
    sm_cond_init(&pool.timers_change);
    global_queue = [[SoftMetalDispatchQueue alloc] init];
    global_queue->global = true;
    sm_count(SM_DISPATCH_QUEUE, -1);
}

static void enter(void)
{
    LOOK_AWAY();
    pthread_once(&pool.once, set_up);
    pthread_mutex_lock(&pool.lock);
}

static void leave(void)
{
    pthread_mutex_unlock(&pool.lock);
    LOOK_AGAIN();
}

/* ---------------------------------------------------------------------------- workers -- */

static void *worker_main(void *unused);

/* With the lock. An idle worker that was woken counts as idle until it has the lock; so does what is ready. */
static void start_workers(void)
{
    unsigned wanted = pool.ready < pool.most ? pool.ready : pool.most;
    for (unsigned have = pool.idle; have < wanted && pool.threads < pool.most; have++) {
        pool.threads++;
        sm_thread_start(worker_main, NULL);
    }
}

static void make_ready(sm_work *work)
{
    work->next = NULL;
    if (pool.ready_last)
        pool.ready_last->next = work;
    else
        pool.ready_first = work;
    pool.ready_last = work;
    pool.ready++;
}

static sm_work *take_ready(void)
{
    sm_work *work = pool.ready_first;
    pool.ready_first = work->next;
    if (!pool.ready_first) pool.ready_last = NULL;
    pool.ready--;
    return work;
}

/* With the lock: gives the work to its queue, and wakes a worker when it can begin. */
static void enqueue(sm_work *work)
{
    SoftMetalDispatchQueue *queue = work->queue;
    pool.unfinished++;
    sm_note_activity();
    work->next = NULL;
    if (queue->global || !queue->busy) {
        queue->busy = true;
        make_ready(work);
        pthread_cond_signal(&pool.work);
        start_workers();
        return;
    }
    if (queue->last)
        queue->last->next = work;
    else
        queue->first = work;
    queue->last = work;
    if (queue->rests) pool.stuck++;
}

static void ends_in_function(void *work) { SM_REQUIRE(!work, EXIT_IN_FUNCTION, "pthread_exit"); }

bool sm_in_dispatched(void)
{
    pthread_once(&pool.once, set_up);
    return pthread_getspecific(function_key);
}

static void call(sm_work *work)
{
    SoftMetalDispatchQueue *queue = work->queue;
    COMES_AFTER(work);
    if (!queue->global) COMES_AFTER(&queue->busy);
    pthread_setspecific(function_key, work);
    current = queue;
    void *autoreleased = sm_pool_push();
    work->function(work->context);
    SM_REQUIRE(sm_is_innermost_pool(autoreleased), POOL_ORDER, "a dispatched function left a pool open");
    sm_pool_close(autoreleased);
    pthread_setspecific(function_key, NULL);
    if (!queue->global) COMES_BEFORE(&queue->busy);
    COMES_BEFORE(&pool.ended);
}

static unsigned waiting_in(const SoftMetalDispatchQueue *queue)
{
    unsigned count = 0;
    for (const sm_work *work = queue->first; work; work = work->next) count++;
    return count;
}

/* With the lock, which it gives up where the work was the last thing that kept its queue: the queue goes. */
static void let_go(sm_work *work)
{
    SoftMetalDispatchQueue *queue = work->queue;
    free(work);
    if (--queue->pending > 0 || !queue->released) return;
    leave();
    sm_count(SM_DISPATCH_QUEUE, 1); /* its last release has taken it off */
    [queue dealloc];
    enter();
}

/* With the lock. What is next on the queue is ready then: the worker that has ended takes it or what is before it. */
static void end(sm_work *work)
{
    SoftMetalDispatchQueue *queue = work->queue;
    sm_work *next = queue->first;
    if (queue->rests) pool.stuck -= waiting_in(queue);
    queue->rests = false;
    if (next) {
        queue->first = next->next;
        if (!queue->first) queue->last = NULL;
        make_ready(next);
    } else {
        queue->busy = false;
    }
    let_go(work);
}

static void *worker_main(void *unused)
{
    (void)unused;
    uint64_t idle_until = 0;
    enter();
    for (;;) {
        if (pool.ready > 0 && pool.running < pool.most) {
            sm_work *work = take_ready();
            pool.running++;
            leave();
            call(work);
            enter();
            pool.running--;
            end(work);
            pool.unfinished--; /* who finds nothing left finds the queue gone */
            idle_until = 0;
            continue;
        }
        uint64_t now = sm_now();
        if (idle_until == 0) idle_until = now + IDLE_TIME;
        if (now >= idle_until) break;
        pool.idle++;
        sm_cond_wait_until(&pool.work, &pool.lock, idle_until);
        pool.idle--;
    }
    pool.threads--;
    leave();
    return NULL;
}

/* ------------------------------------------------------------------------- the timers -- */

static sm_work *take_timer(sm_work **link)
{
    sm_work *timer = *link;
    *link = timer->next;
    __atomic_fetch_sub(&pool.pending, 1, __ATOMIC_RELAXED);
    return timer;
}

static void *timers_main(void *unused)
{
    (void)unused;
    enter();
    for (;;) {
        sm_work **next = &pool.timers;
        while (*next && (*next)->by_hand) next = &(*next)->next;
        if (*next && (*next)->due <= sm_now())
            enqueue(take_timer(next));
        else
            sm_cond_wait_until(&pool.timers_change, &pool.lock, *next ? (*next)->due : SM_FOREVER);
    }
}

static void arm(sm_work *timer, uint64_t due)
{
    enter();
    sm_work **place = &pool.timers;
    while (*place && (*place)->due <= due) place = &(*place)->next;
    timer->due = due;
    timer->by_hand = sm_clock() == SOFTMETAL_MANUAL;
    timer->next = *place;
    *place = timer;
    timer->queue->pending++;
    __atomic_fetch_add(&pool.pending, 1, __ATOMIC_RELAXED);
    sm_note_activity();
    if (!timer->by_hand && !pool.timer_thread) sm_thread_start(timers_main, NULL);
    if (!timer->by_hand) pool.timer_thread = true;
    pthread_cond_signal(&pool.timers_change);
    leave();
}

static unsigned empty_timers(void (*with)(sm_work *timer))
{
    unsigned count = 0;
    enter();
    for (; pool.timers; count++) with(take_timer(&pool.timers));
    leave();
    return count;
}

bool sm_drop_timers(void) { return empty_timers(let_go) > 0; }
unsigned softmetal_fire_timers(void) { return empty_timers(enqueue); }
unsigned softmetal_timers_pending(void) { return __atomic_load_n(&pool.pending, __ATOMIC_RELAXED); }

/* ------------------------------------------------------------------------- the queues -- */

@implementation SoftMetalDispatchQueue

+ (sm_kind)softmetalKind { return SM_DISPATCH_QUEUE; }

- (id)retain { return global ? self : [super retain]; }

/* The references are the program's; what has yet to run keeps the queue without one. */
- (oneway void)release
{
    if (global) return;
    long before = __atomic_fetch_sub(&refs, 1, __ATOMIC_ACQ_REL);
    SM_REQUIRE(before > 0, OVER_RELEASE, "release of the dispatch queue %p", (void *)self);
    if (before > 1) return;
    enter();
    released = true;
    bool kept = pending > 0;
    if (kept) sm_count(SM_DISPATCH_QUEUE, -1); /* what is left is no business of the program's */
    leave();
    if (!kept) [self dealloc];
}

@end

/* ----------------------------------------------------------------- the system's libdispatch -- */

/* Behind softmetal's; NULL on Linux, unless a program has one. Unverified: on a Mac RTLD_NEXT leads from the program,
   which softmetal is a part of, to the system's functions. */
static struct {
    void (*async)(void *queue, void *context, void (*function)(void *));
    void (*after)(uint64_t when, void *queue, void *context, void (*function)(void *));
    uint64_t (*time)(uint64_t when, int64_t delta);
    void (*retain)(void *object);
    void (*release)(void *object);
} behind;

static void look_behind(void)
{
    *(void **)&behind.async = dlsym(RTLD_NEXT, "dispatch_async_f");
    *(void **)&behind.after = dlsym(RTLD_NEXT, "dispatch_after_f");
    *(void **)&behind.time = dlsym(RTLD_NEXT, "dispatch_time");
    *(void **)&behind.retain = dlsym(RTLD_NEXT, "dispatch_retain");
    *(void **)&behind.release = dlsym(RTLD_NEXT, "dispatch_release");
}

/* Whether the object is the system's. What is neither that nor a queue of softmetal's is a mistake. */
static bool is_behind(id object, const char *what)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    Class cls = object_getClass(object);
    if (cls == [SoftMetalDispatchQueue class]) return false;
    pthread_once(&once, look_behind);
    if (behind.async && cls && cls != sm_zombie_class() && !sm_descends(cls, [SoftMetalObject class])) return true;
    sm_check_argument(object, [SoftMetalDispatchQueue class], what);
    return false;
}

bool sm_may_be_concurrent(id queue, const char *what)
{
    return !is_behind(queue, what) && ((SoftMetalDispatchQueue *)queue)->global;
}

/* -------------------------------------------------------------------- what programs call -- */

static sm_work *new_work(id queue, void *context, void (*function)(void *), const char *what)
{
    SM_REQUIRE(__atomic_load_n(&((SoftMetalDispatchQueue *)queue)->refs, __ATOMIC_RELAXED) > 0, MESSAGE_TO_FREED,
               "%s: the queue %p had its last release", what, (void *)queue);
    LOOK_AWAY();
    sm_work *work = calloc(1, sizeof *work);
    SM_REQUIRE(work, INTERNAL, "out of memory");
    work->queue = queue;
    work->context = context;
    work->function = function;
    LOOK_AGAIN();
    COMES_BEFORE(work);
    return work;
}

void sm_dispatch(id queue, void *context, void (*function)(void *), const char *what)
{
    bool theirs = is_behind(queue, what);
    SM_REQUIRE(function, NIL_ARGUMENT, "%s", what);
    if (theirs) {
        behind.async(queue, context, function);
        return;
    }
    sm_work *work = new_work(queue, context, function, what);
    enter();
    work->queue->pending++;
    enqueue(work);
    leave();
}

void sm_dispatch_async(id queue, void *context, void (*function)(void *))
{
    __atomic_fetch_add(&pool.dispatches, 1, __ATOMIC_RELAXED);
    sm_dispatch(queue, context, function, "dispatch_async_f");
}

/* An attribute of a class of service is its place in this array: nothing is made, nothing goes. As Apple's, a class or
   priority that does not exist changes nothing. */
static const unsigned classes_of_service[] = {0, 0x09, 0x11, 0x15, 0x19, 0x21};
#define CLASSES (sizeof classes_of_service / sizeof *classes_of_service)
#define LOWEST_RELATIVE_PRIORITY (-15)

static bool is_attribute(const void *object)
{
    const unsigned *place = object;
    return place >= classes_of_service && place < classes_of_service + CLASSES;
}

void *sm_dispatch_attribute_of(void *attribute, unsigned qos_class, int relative_priority)
{
    SM_REQUIRE(!attribute || is_attribute(attribute), DISPATCH_ATTRIBUTE, "dispatch_queue_attr_make_with_qos_class: %p",
               attribute);
    if (relative_priority > 0 || relative_priority < LOWEST_RELATIVE_PRIORITY) return attribute;
    for (size_t i = 0; i < CLASSES; i++)
        if (classes_of_service[i] == qos_class) return (void *)&classes_of_service[i];
    return attribute;
}

id sm_dispatch_queue_new(void *attribute)
{
    SM_REQUIRE(!attribute || is_attribute(attribute), DISPATCH_ATTRIBUTE, "dispatch_queue_create: %p", attribute);
    SoftMetalDispatchQueue *queue = [[SoftMetalDispatchQueue alloc] init];
    if (attribute) queue->qos_class = *(const unsigned *)attribute;
    return queue;
}

/* One queue for every class of service. As Apple's, NULL for a class or flags that do not exist. */
id sm_dispatch_global_queue(intptr_t identifier, uintptr_t flags)
{
    static const intptr_t known[] = {0, 2, -2, INT16_MIN, 0x21, 0x19, 0x15, 0x11, 0x09};
    enter();
    leave();
    for (unsigned i = 0; flags == 0 && i < sizeof known / sizeof known[0]; i++)
        if (known[i] == identifier) return global_queue;
    return nil;
}

/* In ns of sm_now, which are not the units of a Mac's libdispatch. */
uint64_t sm_dispatch_time(uint64_t when, int64_t delta)
{
    if (when == SM_FOREVER) return when;
    if (when == 0) when = sm_now();
    if (delta >= 0) return sm_after(when, (uint64_t)delta);
    return when > -(uint64_t)delta ? when + (uint64_t)delta : 1;
}

void sm_dispatch_after(uint64_t when, id queue, void *context, void (*function)(void *))
{
    static const char what[] = "dispatch_after_f";
    uint64_t now = sm_now();
    __atomic_fetch_add(&pool.armed, 1, __ATOMIC_RELAXED);
    bool theirs = is_behind(queue, what);
    SM_REQUIRE(function, NIL_ARGUMENT, "%s", what);
    if (when == SM_FOREVER) return;
    if (theirs)
        behind.after(behind.time(0, when > now ? (int64_t)(when - now) : 0), queue, context, function);
    else
        arm(new_work(queue, context, function, what), when);
}

id sm_dispatch_retain(id object, const char *what)
{
    if (is_attribute((void *)object)) return object;
    if (is_behind(object, what))
        behind.retain(object);
    else
        [object retain];
    return object;
}

void sm_dispatch_release(id object)
{
    SM_REQUIRE(object, NIL_ARGUMENT, "dispatch_release");
    if (is_attribute((void *)object)) return;
    if (object_getClass(object) != sm_zombie_class() && is_behind(object, "dispatch_release"))
        behind.release(object);
    else
        [object release];
}

/* -------------------------------------------------------------------------- the panel -- */

void softmetal_set_dispatch_threads(unsigned most)
{
    SM_REQUIRE(most <= SOFTMETAL_DISPATCH_THREADS, PANEL_MISUSE, "softmetal_set_dispatch_threads: %u", most);
    enter();
    pool.most = most;
    pthread_cond_broadcast(&pool.work);
    start_workers();
    leave();
}

uint64_t softmetal_dispatches(void) { return __atomic_load_n(&pool.dispatches, __ATOMIC_RELAXED); }
uint64_t softmetal_timers_armed(void) { return __atomic_load_n(&pool.armed, __ATOMIC_RELAXED); }

unsigned softmetal_dispatch_qos(void *queue)
{
    if (queue) sm_check_argument(queue, [SoftMetalDispatchQueue class], "softmetal_dispatch_qos");
    SoftMetalDispatchQueue *asked = queue ? queue : current;
    return asked ? asked->qos_class : 0;
}

bool sm_dispatch_settled(void)
{
    enter();
    bool settled = pool.unfinished == pool.resting + pool.stuck;
    leave();
    if (settled) COMES_AFTER(&pool.ended);
    return settled;
}

void sm_dispatch_rest(int more)
{
    if (more == 0) return;
    enter();
    pool.resting += (unsigned)more;
    if (more > 0 && !current->global && !current->rests) {
        current->rests = true;
        pool.stuck += waiting_in(current);
    }
    leave();
}

void sm_dispatch_reset(void)
{
    __atomic_store_n(&pool.dispatches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pool.armed, 0, __ATOMIC_RELAXED);
}
