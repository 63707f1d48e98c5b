/* rig.h - a device, a queue, a timeline and a Metal for one execution of a model checker

   A harness includes this once. It brings in model_gpusync.h, which header.py has made of gpusync.h, and around it what
   the header needs of the world: Metal's objects, libdispatch, locks, hooks, memory. Objects are made by initialisers,
   so that they cost no events. What a harness does not use costs nothing.

   What Metal and the hooks do is as weak as it may be. A status and an event are stored with release and read relaxed:
   the header has fences for that. A lock is acquire and release. An unpark orders what a mutex orders. No access here
   is sequentially consistent: so none can stand in for one that the header lacks.

     MODEL_SLOTS   slots of the only slab; default 2
     RING          entries of the queue's ring, a power of two; default 4
     LIMIT         command buffers that the queue allows; default 64
     NOW           what the clock shows; default 1000
     WEAK_LOCK     a lock of C atomics. GenMC's own never fails in a trylock, so where gpusync__issue_held tries a lock
                   it is this */

#include <assert.h>
#include <genmc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef MODEL_SLOTS
#define MODEL_SLOTS 2
#endif
#ifndef RING
#define RING 4
#endif
#ifndef LIMIT
#define LIMIT 64
#endif

/* ---------------------------------------------------------------- what the header asks of libc

   GenMC knows no condition variables. No thread waits on one: there are hooks. */

typedef int pthread_cond_t;
typedef int pthread_condattr_t;
#define pthread_cond_init(cond, attributes) ((void)0)
#define pthread_cond_destroy(cond) ((void)0)
#define pthread_cond_wait(cond, mutex) 0
#define pthread_cond_timedwait(cond, mutex, at) 0
#define pthread_cond_signal(cond) ((void)0)
#define pthread_condattr_init(attributes) ((void)0)
#define pthread_condattr_setclock(attributes, clock) ((void)0)
#define pthread_condattr_destroy(attributes) ((void)0)
#undef pthread_equal
#define pthread_equal(one, other) ((one) == (other))

/* A structure is zeroed field by field, for a model checker takes no access that is wider or narrower than another one
   of the same place. One that is not known here ends the run, if it is ever reached. */
struct gpusync__goal;
struct gpusync__wait_entry;
struct gpusync_spin;
struct gpusync__failed;
struct gpusync_error;
struct gpusync_submission;
struct gpusync_wait_options;
struct gpusync__entrance;
static void zero_goal(struct gpusync__goal *goal, size_t size);
static void zero_watches(struct gpusync__wait_entry *entries, size_t size);
static void zero_error(struct gpusync_error *error, size_t size);
static void zero_submission(struct gpusync_submission *submission, size_t size);
static void zero_entrance(struct gpusync__entrance *entrance, size_t size);
/* The rig's is zero. */
static void *zero_memory(void *memory, size_t size) { return memory; }
static void zero_others(void *memory, size_t size);
#define memset(to, value, size) \
    _Generic((to), struct gpusync__goal *: zero_goal, struct gpusync__wait_entry *: zero_watches,                           \
        struct gpusync_error *: zero_error, struct gpusync_submission *: zero_submission,                              \
        struct gpusync__entrance *: zero_entrance, void *: zero_memory, default: zero_others)(to, size)

static void copy_bits(void *to, const void *from, size_t size)
{
    assert(size == sizeof(uint64_t));
    *(uint64_t *)to = *(const uint64_t *)from;
}
static void copy_no_text(void *to, const void *from, size_t size) {}
static void copy_pointers(void *to, const void *from, size_t size)
{
    for (size_t i = 0; i < size / sizeof(void *); i++) ((void **)to)[i] = ((void *const *)from)[i];
}
static void copy_unknown(void *to, const void *from, size_t size) { assert(!"copies what is not known"); }
#define memcpy(to, from, size) \
    _Generic((to), uint64_t *: copy_bits, double *: copy_bits, char *: copy_no_text, void **: copy_pointers,           \
        default: copy_unknown)(to, from, size)

#define posix_memalign(memory, alignment, size) 12 /* ENOMEM: the slab of the rig is all there is */

static void model_free(void *memory);
#define free(memory) model_free(memory)

/* No text is ever looked at. */
#define strlen(text) ((size_t)0)
#define strcmp(one, other) 1
#define strstr(text, part) NULL
#define strchr(text, character) NULL

/* ---------------------------------------------------------------- what the header asks of Metal */

static uint64_t model_now(void);
static void *send_id(void *self, void *sel);
static unsigned long send_ulong(void *self, void *sel);
static double send_double(void *self, void *sel) { return 0; }
static long send_long(void *self, void *sel) { return 0; }
static const char *send_text(void *self, void *sel) { return NULL; }
static void send_void(void *self, void *sel);
static void send_void_id(void *self, void *sel, void *other);
static void send_void_value(void *self, void *sel, uint64_t value);
static void *send_id_id(void *self, void *sel, void *other);
static void *send_id_text(void *self, void *sel, const char *text) { return self; } /* a string: its class will do */
static void *send_unknown(void *self, void *sel, ...)
{
    assert(!"sends what is not known");
    return NULL;
}
#define MODEL_SEND(result)                                           \
    _Generic((result(*)(void *, void *))0, void *(*)(void *, void *) \
             : send_id, unsigned long (*)(void *, void *)            \
             : send_ulong, double (*)(void *, void *)                \
             : send_double, long (*)(void *, void *)                 \
             : send_long, const char *(*)(void *, void *)            \
             : send_text, void (*)(void *, void *)                   \
             : send_void)
#define MODEL_SEND1(result, argument)                                                 \
    _Generic((result(*)(void *, void *, argument))0, void (*)(void *, void *, void *) \
             : send_void_id, void (*)(void *, void *, uint64_t)                       \
             : send_void_value, void *(*)(void *, void *, void *)                     \
             : send_id_id, void *(*)(void *, void *, const char *)                    \
             : send_id_text, default                                                  \
             : send_unknown)
static void model_encode(void *object, void *sel, void *event, uint64_t value);
static void model_notify(void *event, void *sel, void *listener, uint64_t value, void *block);
static void model_commit4(void *queue, void *sel, void *const *buffers, unsigned long count, void *options);
static void *model_pipeline(void *device, void *sel, void *function, void **error);
static void *model_library(void *device, void *sel, void *text, void *options, void **error);

static void copy_goal(struct gpusync__goal *to, const struct gpusync__goal *from);
static void copy_options(struct gpusync_wait_options *to, const struct gpusync_wait_options *from);
static void copy_spin(struct gpusync_spin *to, const struct gpusync_spin *from);
static void copy_error(struct gpusync_error *to, const struct gpusync_error *from);
static void copy_failed(struct gpusync__failed *to, const struct gpusync__failed *from);

#define GPUSYNC_ASSERT(condition) assert(condition)
#define GPUSYNC_IMPLEMENTATION
#define GPUSYNC_STATIC
#define GPUSYNC_OBJC 1
#include "model_gpusync.h"

/* ---------------------------------------------------------------- structures, field by field */

static void zero_goal(gpusync__goal *g, size_t size)
{
    g->queue = NULL;
    g->timeline = NULL;
    g->kind = 0;
    g->stops = 0;
    g->handlers = false;
    g->ticket = g->covered = 0;
}
static void copy_goal(gpusync__goal *to, const gpusync__goal *from)
{
    to->queue = from->queue;
    to->timeline = from->timeline;
    to->kind = from->kind;
    to->stops = from->stops;
    to->handlers = from->handlers;
    to->ticket = from->ticket;
    to->covered = from->covered;
}
static void copy_options(gpusync_wait_options *to, const gpusync_wait_options *from)
{
    to->spin = from->spin;
    to->error = from->error;
    to->handlers = from->handlers;
    to->blocking = from->blocking;
}
static void copy_spin(gpusync_spin *to, const gpusync_spin *from)
{
    to->pause_iterations = from->pause_iterations;
    to->yield_iterations = from->yield_iterations;
    to->max_spin_ns = from->max_spin_ns;
    to->until_near = from->until_near;
}
static void zero_node(gpusync__node *node) { node->linked = false; } /* the rest gets a value when it is listed */
static void zero_watches(gpusync__wait_entry *w, size_t size)
{
    for (size_t i = 0; i < size / sizeof *w; i++) {
        zero_node(&w[i].node);
        zero_goal(&w[i].goal, 0);
        w[i].waiter = NULL;
        w[i].list = 0;
        w[i].over = false;
    }
}
static void zero_error(gpusync_error *e, size_t size)
{
    e->result = GPUSYNC_OK;
    e->failure = GPUSYNC_FAILURE_NONE;
    e->ticket = 0;
    e->code = 0;
    e->dropped = 0;
}
static void copy_error(gpusync_error *to, const gpusync_error *from)
{
    to->result = from->result;
    to->failure = from->failure;
    to->ticket = from->ticket;
    to->code = from->code;
    to->dropped = from->dropped;
}
static void copy_failed(gpusync__failed *to, const gpusync__failed *from)
{
    copy_error(&to->error, &from->error);
    to->given_up = from->given_up;
}
static void zero_submission(gpusync_submission *s, size_t size)
{
    s->waits = s->signals = NULL;
    s->command_buffers = NULL;
    s->wait_count = s->signal_count = s->command_buffer_count = 0;
    s->flags = 0;
    s->label = NULL;
    s->on_complete = NULL;
    s->user = NULL;
    s->timeout_ns = NULL;
}
static void zero_entrance(gpusync__entrance *in, size_t size)
{
    in->buffers = NULL;
    in->count = 0;
    in->all = NULL;
    in->joined = NULL;
    in->enqueued = in->lacks_memory = false;
    in->worst = GPUSYNC__FOUND_OVER;
}
/* ---------------------------------------------------------------- Metal */

#define SELECTOR(name, text) .name = (void *)(text),
static const struct gpusync__selectors gpusync__sel = {GPUSYNC__SELECTORS(SELECTOR)};

#define LOAD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define STORE(p, value) __atomic_store_n(p, value, __ATOMIC_RELAXED)

/* A command buffer, or the feedback of a commit of Metal 4. `live`: references; ours are counted, and Metal's one. */
typedef struct command_buffer {
    _Alignas(16) uint64_t status;
    uint64_t live;
    void *handler;
    uint64_t failed;
} command_buffer;
#define COMMITTED     \
    {                 \
        2, 1, NULL, 0 \
    }
#define UNCOMMITTED   \
    {                 \
        0, 1, NULL, 0 \
    }
#define BUFFERS 6
static command_buffer B[BUFFERS] = {COMMITTED, COMMITTED, COMMITTED, COMMITTED, COMMITTED, COMMITTED};
static int metal_queue, metal_device, metal_class, metal_object;
static int objects_made; /* by `new` */
static uint64_t event_value; /* of the only event */
static int made;             /* which command buffer the Metal queue makes next */
/* How many commits there were, and which of them a buffer's was. Plain: the order lock is over commits. */
static int commits, places[BUFFERS];

static bool is_buffer(const void *object)
{
    return (const command_buffer *)object >= B && (const command_buffer *)object < B + BUFFERS;
}
/* A message to a command buffer after its last release is a use after it was freed. */
static void check_live(const void *object)
{
    if (is_buffer(object)) assert(LOAD(&((const command_buffer *)object)->live) > 0);
}
void *gpusync__retain(void *object)
{
    if (is_buffer(object)) assert(__atomic_fetch_add(&((command_buffer *)object)->live, 1, __ATOMIC_RELAXED) > 0);
    return object;
}
void gpusync__release(void *object)
{
    if (is_buffer(object)) assert(__atomic_fetch_sub(&((command_buffer *)object)->live, 1, __ATOMIC_ACQ_REL) > 0);
}
static void *send_id(void *self, void *sel)
{
    check_live(self);
    if (sel == gpusync__sel.commandBuffer) {
        STORE(&B[made].status, 0);
        return &B[made];
    }
    if (sel == gpusync__sel.commandQueue) return &metal_queue;
    if (sel == gpusync__sel.error && is_buffer(self))
        return LOAD(&((command_buffer *)self)->failed) ? &metal_object : NULL;
    if (sel == gpusync__sel.newObject) __atomic_fetch_add(&objects_made, 1, __ATOMIC_RELAXED);
    if (sel == gpusync__sel.newObject || sel == gpusync__sel.newSharedEvent) return &metal_object;
    return NULL;
}
static void *send_id_id(void *self, void *sel, void *other)
{
    assert(sel == gpusync__sel.newFunctionWithName);
    return &metal_object;
}
static unsigned long send_ulong(void *self, void *sel)
{
    if (sel == gpusync__sel.signaledValue) return LOAD(&event_value);
    assert(sel == gpusync__sel.status);
    check_live(self);
    return LOAD(&((command_buffer *)self)->status);
}
static void send_void(void *self, void *sel)
{
    command_buffer *buffer = (command_buffer *)self;
    check_live(self);
    if (sel == gpusync__sel.commit) {
        assert(LOAD(&buffer->status) < 2); /* once */
        places[buffer - B] = ++commits;
        __atomic_store_n(&buffer->status, 2, __ATOMIC_RELEASE);
    }
    else __VERIFIER_assume(__atomic_load_n(&buffer->status, __ATOMIC_ACQUIRE) >= 4); /* waitUntilCompleted */
}
static void send_void_id(void *self, void *sel, void *other)
{
    if (sel == gpusync__sel.addCompletedHandler) ((command_buffer *)self)->handler = other;
    if (sel == gpusync__sel.addFeedbackHandler) B[0].handler = other; /* of Metal 4 there is one commit at a time */
}
/* An event only rises. */
static void send_void_value(void *self, void *sel, uint64_t value)
{
    uint64_t before = LOAD(&event_value);
    assert(sel == gpusync__sel.setSignaledValue);
    while (before < value &&
           !__atomic_compare_exchange_n(&event_value, &before, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {}
}
static void model_encode(void *object, void *sel, void *event, uint64_t value) {}
static void model_commit4(void *queue, void *sel, void *const *buffers, unsigned long count, void *options)
{
    __atomic_store_n(&B[0].status, 2, __ATOMIC_RELEASE);
}
void gpusync__objc_msg_send(void) { assert(!"a message by its own type"); }
void *gpusync__sel_register(const char *name) { return (void *)name; }
void *gpusync__class_named(const char *name) { return &metal_class; }
void *gpusync__class_of(void *object) { return &metal_class; }
signed char gpusync__class_responds(void *cls, void *sel) { return 1; }
void *gpusync__pool_push(void) { return NULL; }
void gpusync__pool_pop(void *pool) { (void)pool; }
void *gpusync__default_device(void) { return &metal_device; }
void *gpusync__all_devices(void) { return NULL; }
void *gpusync__global_block[32];
void *gpusync__stack_block[32];

/* Metal: the command buffer ends, its handler runs, and Metal lets go of it. */
static void finish(int i, unsigned status)
{
    __atomic_store_n(&B[i].status, status, __ATOMIC_RELEASE);
    gpusync__completed(B[i].handler, &B[i]);
    gpusync__release(&B[i]);
}
#define WELL 4
#define BADLY 5

/* ---------------------------------------------------------------- the listener: registrations */

#define REGISTRATIONS 2
static int registered; /* how many blocks Metal has got, and its copies of them */
static gpusync__listener_block registrations[REGISTRATIONS];
static void model_notify(void *event, void *sel, void *listener, uint64_t value, void *block)
{
    const gpusync__listener_block *from = (const gpusync__listener_block *)block;
    int i = __atomic_fetch_add(&registered, 1, __ATOMIC_ACQ_REL);
    assert(i < REGISTRATIONS);
    registrations[i].listening = from->listening;
    registrations[i].raw = from->raw;
    registrations[i].next = from->next;
    ((const struct gpusync__listener_descriptor *)(const void *)from->head.descriptor)->copy(&registrations[i], from);
}
/* Metal calls one of them, where the event stands at its value, and lets go of it. */
static void *block_runs(void *i)
{
    gpusync__listener_block *block = &registrations[(long)i];
    gpusync__listener_invoke(block, &event_value, block->raw);
    gpusync__listener_dispose(block);
    return NULL;
}

/* ---------------------------------------------------------------- libdispatch: what was asked for */

static int calls_asked, sweeps_asked;
static int tasks_begun, libraries_made; /* of a warm-up */
void *gpusync__dispatch_queue_create(const char *label, void *attr) { return &metal_object; }
/* A deferred issue is a thread: join_issues() waits for it. */
#define ISSUES 2
static int issues_begun;
static pthread_t issues[ISSUES];
static void *issues_later(void *queue)
{
    gpusync__issue_later(queue);
    return NULL;
}
void gpusync__dispatch_async(void *queue, void *context, void (*fn)(void *))
{
    if (fn == gpusync__issue_later) {
        int i = __atomic_fetch_add(&issues_begun, 1, __ATOMIC_ACQ_REL);
        assert(i < ISSUES);
        pthread_create(&issues[i], NULL, issues_later, context);
        return;
    }
    assert(fn == gpusync__answer || fn == gpusync__compile);
    __atomic_fetch_add(fn == gpusync__answer ? &calls_asked : &tasks_begun, 1, __ATOMIC_ACQ_REL);
}
uint64_t gpusync__dispatch_time(uint64_t when, int64_t delta_ns) { return when + (uint64_t)delta_ns; }
void gpusync__dispatch_after(uint64_t when, void *queue, void *context, void (*fn)(void *))
{
    __atomic_fetch_add(&sweeps_asked, 1, __ATOMIC_ACQ_REL);
}
void gpusync__dispatch_retain(void *queue) { (void)queue; }
void gpusync__dispatch_release(void *queue) { (void)queue; }
static void *model_pipeline(void *device, void *sel, void *function, void **error) { return &metal_object; }
static void *model_library(void *device, void *sel, void *text, void *options, void **error)
{
    __atomic_fetch_add(&libraries_made, 1, __ATOMIC_RELAXED);
    return &metal_object;
}

/* ---------------------------------------------------------------- locks, clock, hooks, memory */

#ifdef WEAK_LOCK
void gpusync__lock(gpusync__mutex *m)
{
    uint32_t none = 0;
    __VERIFIER_assume(__atomic_compare_exchange_n(&m->word, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
}
bool gpusync__try_lock(gpusync__mutex *m)
{
    uint32_t none = 0;
    return __atomic_compare_exchange_n(&m->word, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
void gpusync__unlock(gpusync__mutex *m) { __atomic_store_n(&m->word, 0, __ATOMIC_RELEASE); }
#else
typedef char a_mutex_fits[sizeof(pthread_mutex_t) <= sizeof(gpusync__mutex) ? 1 : -1];
void gpusync__lock(gpusync__mutex *m) { pthread_mutex_lock((pthread_mutex_t *)(void *)m); }
bool gpusync__try_lock(gpusync__mutex *m) { return pthread_mutex_trylock((pthread_mutex_t *)(void *)m) == 0; }
void gpusync__unlock(gpusync__mutex *m) { pthread_mutex_unlock((pthread_mutex_t *)(void *)m); }
#endif

#ifndef NOW
#define NOW 1000
#endif
static uint64_t model_now(void) { return NOW; }

/* A thread that lingers is not looked at any more: there is an order in which what it lingers for comes first. Unless
   that never comes: where only the thread that lingers could have woken a sleeper, none may sleep now. */
static bool only_waker_lingers;
static bool lost(int waiter);
static void model_yield(void *user)
{
    if (only_waker_lingers) assert(!lost(0) && !lost(1));
    __VERIFIER_assume(false);
}

#define SLEEPERS 2
enum { PERMIT = 1, ASLEEP = 2 }; /* in one word, so that both are read at once */
static gpusync__waiter waiters[SLEEPERS];
static int beds[SLEEPERS]; /* of the waiters */
static int *bed_of(const gpusync_waiter *waiter)
{
    return &beds[(const gpusync__waiter *)(const void *)waiter - waiters];
}
static void model_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    __atomic_fetch_or(bed_of(waiter), ASLEEP, __ATOMIC_ACQ_REL);
    __VERIFIER_assume(__atomic_load_n(bed_of(waiter), __ATOMIC_ACQUIRE) & PERMIT);
    (void)__atomic_exchange_n(bed_of(waiter), 0, __ATOMIC_ACQ_REL);
}
static void model_unpark(void *user, gpusync_waiter *waiter)
{
    __atomic_fetch_or(bed_of(waiter), PERMIT, __ATOMIC_ACQ_REL);
}
/* All threads that could wake it have been joined: does this waiter sleep without a permit? Then it sleeps for good. */
static bool lost(int waiter) { return __atomic_load_n(&beds[waiter], __ATOMIC_ACQUIRE) == ASLEEP; }

static void *no_memory(void *user, size_t size, size_t alignment) { return NULL; }
static void keep_memory(void *user, void *memory, size_t size) {}

/* ---------------------------------------------------------------- the objects */

extern struct gpusync_device D;
extern struct gpusync_queue Q;
extern struct gpusync_timeline T;

static gpusync__callback callbacks[2] = {{.due = {.previous = &callbacks[1].due}}}; /* as gpusync__pool_give has them */
static gpusync__waiter waiters[SLEEPERS] = {{.next = &waiters[1]}};
static gpusync_spin at_once; /* no wait spins: it sleeps at once */
struct gpusync_device D = {
    .metal = &metal_device,
    .hooks = {.yield = model_yield, .park = model_park, .unpark = model_unpark},
    .allocator = {.allocate = no_memory, .release = keep_memory},
    .spin = &at_once,
    .inside = 1,
    .refs = 1,
    .timers = 1, /* a sweep is on its way, so that no thread has to ask for one */
    .sweep_ns = 1,
    .pace_ns = GPUSYNC__SWEEP_NS,
    .queues = {{&Q.place, &Q.place}},
    .timelines = {{&T.place, &T.place}},
    .objects = 2,
    .queue_count = 1,
    .timeline_count = 1,
    .listener = &metal_object,
    .free_waiters = waiters,
    .pools = {[GPUSYNC__POOL_CALLBACKS] = {.free = &callbacks[0], .count = 2}},
    .callback_queue = &metal_object,
    .sweep_queue = &metal_object,
    .destroy_queue = &metal_object,
};
static gpusync__entry entries[RING];
static gpusync__ring ring = {NULL, 0, RING - 1, entries};
static gpusync__slab slab; /* its slots are free: see begin() */
struct gpusync_queue Q = {
    .device = &D,
    .metal = &metal_queue,
    .limit = LIMIT,
    .log_most = 1,
    .ring = &ring,
    .buffer_class = &metal_class,
    .options_class = &metal_class,
    .spin = &at_once,
    .place = {.number = 1, .linked = true},
    .ends = {.flight = {&Q.ends, &Q.ends}},
    .log = &Q.last_failure,
    .log_size = 1,
};
struct gpusync_timeline T = {
    .calls = &gpusync__values,
    .device = &D,
    .event = &event_value,
    .refs = 1,
    .place = {.number = 1, .linked = true},
};

/* Before all else: the slots. */
static void begin(void)
{
    for (int i = 0; i + 1 < MODEL_SLOTS; i++) slab.slots[i].next = &slab.slots[i + 1];
    Q.free_slots = slab.slots;
    gpusync__global.slabs = &slab;
}

/* A log that has a place for two failures, not for the last one alone. */
static gpusync__failed records[2];
static void have_log(void)
{
    Q.log = records;
    Q.log_size = Q.log_most = 2;
}

/* The timeline's event is signalled by others, too, and Metal is to tell of the value 1. What the registrations share is
   written when it is freed: plain, so that this races with every access that is not ordered before it. */
static gpusync__listening listening;
static int frees, device_frees;
static void others_may_signal(void)
{
    listening.refs = 1;
    listening.timeline = &T;
    T.listening = &listening;
}
static void others_signal(void)
{
    others_may_signal();
    gpusync__listen(&T, 1);
}
static void overwrite_device(void)
{
    volatile struct gpusync_device *dev = &D;
    dev->inside = dev->refs = dev->asked = dev->timers = dev->due_count = dev->objects = 99;
    dev->sweep_ns = dev->pace_ns = 99;
    dev->queues.end[0] = dev->timelines.end[0] = NULL;
    dev->due = NULL;
    dev->sweep_queue = dev->callback_queue = NULL;
}
static void model_free(void *memory)
{
    if (memory == &D) {
        assert(device_frees++ == 0);
        overwrite_device();
        return;
    }
    assert(memory == &listening && frees++ == 0);
    *(volatile uint32_t *)&listening.refs = 99;
    *(void *volatile *)&listening.timeline = NULL;
}

/* Free submissions, and as many links. */
#define SUBMISSIONS 3
static gpusync__submission submissions[SUBMISSIONS];
static gpusync__link links[SUBMISSIONS];
static void have_submissions(int count)
{
    for (int i = 0; i < count; i++) {
        gpusync__pool_give(&D, GPUSYNC__POOL_SUBMISSIONS, &submissions[i], NULL);
        gpusync__pool_give(&D, GPUSYNC__POOL_LINKS, &links[i], NULL);
    }
}
/* Of them the header zeroes some fields of a new one. Each serves once, and is zero. */
static void zero_others(void *memory, size_t size)
{
    size_t one = (size_t)((char *)memory - (char *)submissions) / sizeof *submissions;
    size_t other = (size_t)((char *)memory - (char *)links) / sizeof *links;
    assert(one < SUBMISSIONS || other < SUBMISSIONS);
    assert(one < SUBMISSIONS ? !submissions[one].device : !links[other].submission);
}
/* Every submission, and every link, is free, once. */
static void all_are_free(int count)
{
    int of[2] = {0, 0};
    for (int i = 0; i < 2; i++)
        for (void **p = (void **)D.pools[i ? GPUSYNC__POOL_LINKS : GPUSYNC__POOL_SUBMISSIONS].free; p; p = (void **)*p)
            assert(of[i]++ < count);
    assert(of[0] == count && of[1] == count);
}

/* ---------------------------------------------------------------- words for harnesses */

/* The program commits command buffer i, which it has made itself. */
static gpusync_ticket commit(int i)
{
    gpusync_ticket ticket = 0;
    B[i].status = 0;
    gpusync_result result = gpusync_commit(&Q, &B[i], &ticket);
    assert(result == GPUSYNC_OK);
    return ticket;
}

/* No slot is in flight. */
static bool none_in_flight(void) { return Q.ends.flight[0] == &Q.ends && Q.ends.flight[1] == &Q.ends; }
/* The slots that the queue, or every queue, can take. Only a thread that has joined all that give any may ask. */
static int free_slots(const gpusync__slot *s)
{
    int count = 0;
    for (; s; s = s->next) assert(count++ < MODEL_SLOTS && s->state == GPUSYNC__FREE);
    return count;
}

/* The sleeping part of a wait alone. What comes before it, looks and spins, only adds reads. The caller asks how the goal
   ended. */
static gpusync_result asks_later(const gpusync__wait *unused) { return GPUSYNC_OK; }
static gpusync_result sleep_for(const gpusync__goal *goal, uint64_t deadline)
{
    gpusync__wait_entry entry;
    gpusync__wait wait = {&D, &Q.stats, &Q.backoff, &entry, 1, 1, GPUSYNC_OK, false, asks_later, true, false, false, NULL};
    zero_watches(&entry, sizeof entry);
    copy_goal(&entry.goal, goal);
    return gpusync__sleep(&wait, deadline);
}
static gpusync__goal goal_of(gpusync_queue *q, gpusync_timeline *t, uint32_t kind, uint64_t number)
{
    gpusync__goal goal;
    zero_goal(&goal, 0);
    goal.queue = q;
    goal.timeline = t;
    goal.kind = kind;
    goal.stops = GPUSYNC__CLOSING;
    goal.ticket = number;
    return goal;
}

typedef void *thread_fn(void *context);
static pthread_t start(thread_fn *fn, long argument)
{
    pthread_t thread;
    pthread_create(&thread, NULL, fn, (void *)argument);
    return thread;
}
static void join(pthread_t thread) { pthread_join(thread, NULL); }
/* What was dispatched by threads that have been joined, or by another issue. */
static void join_issues(void)
{
    for (int i = 0; i < LOAD(&issues_begun); i++) join(issues[i]);
}
