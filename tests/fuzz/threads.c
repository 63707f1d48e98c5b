/* threads.c - bytes to public calls on four threads, on the real clock, under ThreadSanitizer

   The first HEADER bytes say how softmetal is in this input, and what is there at first. Then come records of RECORD
   bytes: the first says which thread it is for, the others what this thread does. Each thread goes through its own,
   again and again. All use the same devices, queues, timelines and warm-up. A command buffer belongs to one thread.

   The rules of >>threads are kept. The place of an object counts the calls in it. The thread that destroys the object
   takes it out, and waits until no thread is in a call of it, but for waits that sleep. Counting orders no memory
   between the threads that use the object: so ThreadSanitizer sees the order that gpusync makes, and no other. (A
   fence, which ThreadSanitizer does not know, makes the counting right.)

   There is no model. Judged is what holds in every order: tickets end, or their queue goes; a callback comes once, and
   not after destroy; is_done, counts and values do not go back; counts add up; no memory and no object is left.

   The last byte of the header says whether there is what came with 0.3, too (world.newer): queues where failures stick,
   devices that give their work up, objects that go later, also let go by callbacks, callbacks on a dispatch queue of the program's,
   spins, reports in the log function, and command buffers with descriptors. (References are unretained where work does not
   outlive its queue.) Where failures stick each ticket that has failed has a record of its own. What goes later tells
   once, when its callbacks have come; that of a device, when its memory has been given back.

   When no thread has got on for PATIENCE_MS, the main thread ends what waits for the program: it signals events as
   others do, gives up what is held or tracked, and has timelines fail. So threads may wait without a limit.

   Threads run as they like, so an input that failed may pass: make fuzz-threads INPUT= runs it N times.

   FUZZ_TELL=1   tells every call
   FUZZ_CALLS=1  tells at the end which public functions were not called, and which kinds and options were not met, and fails
                 when there is one; numbers: how often each was
   FUZZ_LIMIT    seconds after which an input hangs; default 20: then it is told what each thread is doing */
#define TALLIES 512
#define SPIN_NS 50000
#define MEETS_HERE(X)                                                                                                \
    X(hooks_given) X(hooks_by_threads) X(wait_blocks) X(work_without_handlers) X(buffers_are_wrapped) X(listeners_are_deaf)
#include "common.h"

#define CREW 4 /* threads; each is known by 1 + its number, the main thread by MAIN */
#define MAIN (CREW + 1)
#define HEADER 32
#define RECORD 8
#define PATIENCE_MS 20
#define DEVICES 2
#define QUEUES 3
#define TIMELINES 3
#define OPENS 4  /* command buffers of a thread */
#define FOURS 3  /* and those of Metal 4 */
#define KNOWN 16 /* tickets of a queue that all threads know */
#define KEPT 256 /* allocators and events, until the end */
#define GOERS 512 /* objects that go later */
#define TOLD 2048 /* tickets of a queue where failures stick, of which the records are compared */
#define MADE_BY_METAL 400

/* -- places: what all threads share ------------------------------------------------------------------- */

typedef struct place {
    void *object; /* NULL: there is none, or it goes */
    void *self;   /* the same, for threads that are in a call */
    int taken;    /* by the thread that makes it, until it is gone */
    int uses;     /* calls in it, but for waits that sleep */
    unsigned life;
    struct place *of; /* the device's */
    /* Written before the object is there. */
    bool metal4, given, small, manual, sleeps; /* sleeps: its waits come by our hooks */
    bool own_queue; /* of a device: callbacks run on a dispatch queue of the program's */
    bool asks;      /* of a device: its log function, for a report */
    bool sticky;
    unsigned room;  /* of a queue: command buffers that it allows */
    uint64_t late;  /* of a queue: the cursor of a reader that began with it */
    int had_sticky; /* of a device: queues where failures stick */
    bool others;      /* of a timeline: other code signals it, too */
    unsigned objects; /* of a device: places taken by queues, timelines and a warm-up of it */
    memory_log memory;
    gpusync_allocator allocator;
    void *metal;
    gpusync_ticket known[KNOWN];
    unsigned known_count;
    uint64_t highest;           /* of a timeline: values up to this one were given away */
    uint64_t seen, completions; /* a value, or a ticket that is done; and the count: none of them falls */
    uint64_t issued;            /* of a device: tickets */
} place;

static struct {
    place devices[DEVICES], queues[QUEUES], timelines[TIMELINES], warmups[1];
    void *kept[KEPT];   /* +1 */
    void *events[KEPT]; /* ... that others may signal, +1 */
    int kept_count, event_count;
    bool losable, lossy, mixed, overlaps, short_of_memory, nil, warms, abandons, newer, gentle;
    unsigned rounds, stuck;
    uint64_t until;  /* no more records: some take long */
    int ready, over; /* threads */
    const uint8_t *records;
    size_t record_count;
} world;

/* What the calling thread is in. */
static _Thread_local struct {
    place *in[32];
    unsigned count;
    bool sleeps; /* when it parks, it is not in a call any more */
} mine;

static uint64_t steps[FUZZ_THREADS]; /* that the threads have made */

static void *enter(place *p)
{
    void *object;
    if (mine.count == LENGTH(mine.in)) return NULL;
    __atomic_fetch_add(&p->uses, 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    object = __atomic_load_n(&p->object, __ATOMIC_ACQUIRE);
    if (object) mine.in[mine.count++] = p;
    else __atomic_fetch_sub(&p->uses, 1, __ATOMIC_RELEASE);
    return object;
}

static void leave_to(unsigned count)
{
    while (mine.count > count) __atomic_fetch_sub(&mine.in[--mine.count]->uses, 1, __ATOMIC_RELEASE);
}
static void leave(void) { leave_to(0); }

static void give_room_back(place *p, void *object);

/* The object is taken out, once, and no thread is in a call of it. */
static void *take_out(place *p)
{
    void *object = __atomic_exchange_n(&p->object, NULL, __ATOMIC_ACQ_REL);
    unsigned stuck = GET(&world.stuck);
    if (!object) return NULL;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&fuzz_doing[fuzz_me], "waits until no thread uses what it destroys", __ATOMIC_RELAXED);
    while (__atomic_load_n(&p->uses, __ATOMIC_ACQUIRE) > 0) {
        if (GET(&world.stuck) != stuck) give_room_back(p, object);
        stuck = GET(&world.stuck);
        sched_yield();
    }
    return object;
}

/* ... and the calling thread is in a call of its device, which stays for as long as there is the object. */
static void *take_out_of_device(place *p)
{
    void *object = take_out(p);
    while (object && !enter(p->of)) sched_yield();
    return object;
}

/* A place for a new object; what it had of the last one is forgotten. */
static bool claim(place *p, place *of)
{
    int free = 0;
    if (!__atomic_compare_exchange_n(&p->taken, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return false;
    p->life++;
    p->of = of;
    if (of) __atomic_fetch_add(&of->objects, 1, __ATOMIC_RELAXED);
    p->metal4 = p->given = p->small = p->manual = p->sleeps = p->sticky = p->own_queue = p->asks = false;
    p->others = false;
    p->had_sticky = 0;
    memset(&p->memory, 0, sizeof p->memory);
    p->metal = NULL;
    memset(p->known, 0, sizeof p->known);
    p->known_count = 0;
    p->highest = p->seen = p->completions = p->issued = 0;
    return true;
}
static void publish(place *p, void *object)
{
    if (p->self != object) p->self = object; /* a thread in a call of a queue may be reading that of its device */
    __atomic_store_n(&p->object, object, __ATOMIC_RELEASE);
}
static void vacate(place *p)
{
    if (p->of) __atomic_fetch_sub(&p->of->objects, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&p->taken, 0, __ATOMIC_RELEASE);
}

/* One that is there: the calling thread is in it. of: of this device, NULL: of any. */
static place *some(place *places, unsigned count, const place *of)
{
    unsigned n = byte(), i;
    for (i = 0; i < count; i++) {
        place *p = &places[(n + i) % count];
        unsigned before = mine.count;
        if (!enter(p)) continue;
        if (!of || p->of == of) return p;
        leave_to(before);
    }
    return NULL;
}
#define some_device() some(world.devices, DEVICES, NULL)
#define some_queue(of) some(world.queues, QUEUES, (of))
#define some_timeline(of) some(world.timelines, TIMELINES, (of))

static gpusync_device *device_of(const place *p) { return (gpusync_device *)(p->of ? p->of->self : p->self); }
static gpusync_queue *queue_of(const place *p) { return (gpusync_queue *)p->self; }
static gpusync_timeline *timeline_of(const place *p) { return (gpusync_timeline *)p->self; }

static void raise_to(uint64_t *number, uint64_t value)
{
    uint64_t seen = __atomic_load_n(number, __ATOMIC_RELAXED);
    while (seen < value &&
           !__atomic_compare_exchange_n(number, &seen, value, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        continue;
}

/* -- what calls may answer ---------------------------------------------------------------------------- */

#define may(got, ...) may_at((got), (const int[]){__VA_ARGS__, END}, #got, __FILE_NAME__, __LINE__)
static gpusync_result may_at(gpusync_result got, const int *allowed, const char *call, const char *file, int line)
{
    bool excused = (got == GPUSYNC_ERROR_OUT_OF_MEMORY && world.short_of_memory) ||
                   ((got == GPUSYNC_ERROR_METAL_NIL || got == GPUSYNC_ERROR_NO_DEVICE) && world.nil) ||
                   (got == GPUSYNC_ERROR_UNSUPPORTED && world.nil) || /* no listener */
                   (got == GPUSYNC_ERROR_DEVICE_LOST && world.losable);
    if (excused && fuzz_tells) fprintf(stderr, "%*s    %d\n", 30 * fuzz_me, "", got);
    if (!excused) (void)answer_at(got, allowed, call, file, line);
    return got;
}

/* The n-th allocation from now fails, or the n-th object that Metal should make is nil: for whichever thread. */
static void some_fault(const place *device)
{
    unsigned how = byte(), n = 1 + (how >> 2) % 16;
    if (how % 4 == 0 && world.nil) softmetal_fail_creation(n, false);
    if (how % 4 == 1 && world.short_of_memory) PUT(&probe_memory.fail_at, (long)n);
    if (how % 4 == 2 && world.short_of_memory) PUT(&((place *)device)->memory.fail_at, (long)n);
}

static void no_faults(void)
{
    int i;
    for (i = 0; i < DEVICES; i++) PUT(&world.devices[i].memory.fail_at, 0);
    PUT(&probe_memory.fail_at, 0);
    softmetal_fail_creation(0, false);
}

/* -- hooks -------------------------------------------------------------------------------------------- */

/* A function of the program's takes its time now and then: so others come in between. */
static void dawdle(void)
{
    static _Thread_local uint32_t calls;
    struct timespec nap = {0, 20000};
    calls = calls * 1664525u + 1013904223u;
    if (calls >> 26 == 0) nanosleep(&nap, NULL);
    else if (calls >> 30 == 1) sched_yield();
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t permit;
} buckets[16]; /* a few, so that threads that sleep have little in common */

static unsigned bucket_of(const gpusync_waiter *waiter) { return (unsigned)((uintptr_t)waiter >> 6) % LENGTH(buckets); }

static void hook_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    unsigned n = bucket_of(waiter);
    struct timespec at = {(time_t)(deadline_ns / SECONDS(1)), (long)(deadline_ns % SECONDS(1))};
    (void)user;
    if (mine.sleeps) leave();
    pthread_mutex_lock(&buckets[n].lock);
    while (!waiter->scheduler_data[0] && gpusync_now_ns() < deadline_ns)
        if (deadline_ns == GPUSYNC_FOREVER) pthread_cond_wait(&buckets[n].permit, &buckets[n].lock);
        else pthread_cond_timedwait(&buckets[n].permit, &buckets[n].lock, &at);
    waiter->scheduler_data[0] = NULL;
    pthread_mutex_unlock(&buckets[n].lock);
}

static void hook_unpark(void *user, gpusync_waiter *waiter)
{
    unsigned n = bucket_of(waiter);
    (void)user;
    pthread_mutex_lock(&buckets[n].lock);
    waiter->scheduler_data[0] = waiter;
    pthread_cond_broadcast(&buckets[n].permit);
    pthread_mutex_unlock(&buckets[n].lock);
    dawdle();
}

static const gpusync_hooks hooks = {NULL, hook_park, hook_unpark, NULL};

/* With a report, while its device is there. */
static void on_log(void *user, gpusync_log_level level, const char *text)
{
    place *p = (place *)user;
    unsigned before = mine.count;
    char report[512];
    dawdle();
    must(level >= GPUSYNC_LOG_WARNING && level <= GPUSYNC_LOG_ERROR && text && !strchr(text, '\n'), "a bad line in the log");
    if (!p->asks || !enter(p)) return;
    must(gpusync_report(device_of(p), report, sizeof report) > 0, "a report without a line");
    meet(log_asks_for_report);
    leave_to(before);
}

static void on_notify(void *user)
{
    (void)user;
    dawdle();
}

static void on_trace(void *user, const gpusync_trace_event *event)
{
    (void)user;
    dawdle();
    must(event->kind <= GPUSYNC_TRACE_CALLBACK, "a bad event");
}

/* -- numbers to draw ---------------------------------------------------------------------------------- */

/* Without a limit only where a wait that sleeps keeps no thread from destroying. */
static uint64_t some_time(const place *device)
{
    static const uint64_t times[] = {0, 0, 1000, 100000, MS(1), MS(3)};
    unsigned n = byte();
    return n % 8 < 6 ? times[n % 8] : device->sleeps ? GPUSYNC_FOREVER : MS(2);
}

static gpusync_ticket some_ticket(place *q)
{
    unsigned n = byte();
    gpusync_ticket ticket = __atomic_load_n(&q->known[n % KNOWN], __ATOMIC_RELAXED);
    return n == 255 ? 77777 : ticket;
}

/* Of those that were given away; now and then of none. */
static uint64_t some_value(place *t)
{
    uint64_t highest = __atomic_load_n(&t->highest, __ATOMIC_RELAXED), back = below_of(8);
    if (back == 7) return highest + 1;
    return highest > back ? highest - back : highest;
}

/* No other thread promises or signals it. Drawn after all that its work waits for: so none of that waits for it. */
static uint64_t new_value(place *t) { return __atomic_add_fetch(&t->highest, 1 + (byte() % 8 == 0), __ATOMIC_RELAXED); }

static size_t some_points(const place *device, gpusync_point *points, size_t most)
{
    size_t count = below_of((unsigned)most + 1), i;
    memset(points, 0, most * sizeof *points);
    for (i = 0; i < count; i++) {
        place *p = one_in(2) ? some_queue(device) : some_timeline(device);
        if (!p) return i;
        if (p >= world.queues && p < world.queues + QUEUES) points[i] = gpusync_at_ticket(queue_of(p), some_ticket(p));
        else points[i] = gpusync_at_value(timeline_of(p), some_value(p));
    }
    return count;
}

static void issued(place *q, gpusync_ticket ticket)
{
    unsigned n = __atomic_fetch_add(&q->known_count, 1, __ATOMIC_RELAXED);
    must(ticket > 0, "no ticket");
    __atomic_store_n(&q->known[n % KNOWN], ticket, __ATOMIC_RELAXED);
    __atomic_fetch_add(&q->of->issued, 1, __ATOMIC_RELAXED);
}

static void *keep(void *object)
{
    int n = __atomic_fetch_add(&world.kept_count, 1, __ATOMIC_RELAXED);
    must(n < KEPT, "too many are kept");
    return world.kept[n] = object;
}
static bool can_keep(void) { return __atomic_load_n(&world.kept_count, __ATOMIC_RELAXED) < KEPT - CREW - 1; }

static void keep_event(void *event)
{
    int n = __atomic_fetch_add(&world.event_count, 1, __ATOMIC_RELAXED);
    must(n < KEPT, "too many events are kept");
    __atomic_store_n(&world.events[n], event, __ATOMIC_RELEASE);
}
static bool can_keep_event(void) { return __atomic_load_n(&world.event_count, __ATOMIC_RELAXED) < KEPT - CREW - 1; }

/* -- callbacks ---------------------------------------------------------------------------------------- */

static uint64_t where_of(const place *p) { return (uint64_t)(uintptr_t)p + ((uint64_t)p->life << 48); }

/* It will come; and not after its queue or timeline was destroyed. */
static void promised(tally *t, const place *p)
{
    if (!t) return;
    t->expected = true;
    __atomic_store_n(&t->where, where_of(p), __ATOMIC_RELEASE);
}

static void check_callbacks_at(uint64_t where)
{
    int i, count = __atomic_load_n(&tally_count, __ATOMIC_RELAXED);
    for (i = 0; i < count && i < TALLIES; i++) {
        if (__atomic_load_n(&tallies[i].where, __ATOMIC_ACQUIRE) != where) continue;
        must(GET(&tallies[i].calls) == 1, "destroyed, and callback %d came %u times", i, GET(&tallies[i].calls));
    }
}

static void check_callbacks_of(const place *p) { check_callbacks_at(where_of(p)); }

/* -- what goes later ---------------------------------------------------------------------------------- */

/* It exists until it was told, once. */
typedef struct goer {
    place *place;   /* of a device: it is vacated then. Others are at once */
    uint64_t where; /* where its callbacks were registered */
    bool own_queue; /* its device's callbacks run there */
    unsigned told;
} goer;

static goer goers[GOERS];
static int goer_count;

/* NULL: there is no place. */
static goer *new_goer(place *p)
{
    int n = __atomic_load_n(&goer_count, __ATOMIC_RELAXED) < GOERS ? __atomic_fetch_add(&goer_count, 1, __ATOMIC_RELAXED)
                                                                   : GOERS;
    if (n >= GOERS) return NULL;
    goers[n].place = p;
    goers[n].where = where_of(p);
    goers[n].own_queue = p->of ? p->of->own_queue : p->own_queue;
    return &goers[n];
}

static void on_destroyed(void *user)
{
    goer *g = (goer *)user;
    check_callbacks_at(g->where);
    meet(told_that_it_went);
    if (g->own_queue) must_be_on_callback_queue();
    must(COUNT(&g->told) == 0, "what was destroyed is told of twice");
}

static void on_device_gone(void *user)
{
    goer *g = (goer *)user;
    must(GET(&g->place->memory.live) == 0, "the allocator has %ld blocks out", GET(&g->place->memory.live));
    if (g->own_queue) must_be_on_callback_queue();
    metal_release(g->place->metal);
    vacate(g->place);
    must(COUNT(&g->told) == 0, "a device is gone twice");
}

/* Has all gone that was to? */
static bool all_are_gone(void)
{
    int i, count = __atomic_load_n(&goer_count, __ATOMIC_RELAXED);
    for (i = 0; i < count && i < GOERS; i++)
        if (GET(&goers[i].told) == 0) return false;
    return true;
}

/* The object was taken out of its place. A timeline fails first: else work that waits for itself through it would not
   end, nor would a queue that goes later, of which no other thread knows any more. */
static void go_later(place *p, void *object, goer *g)
{
    gpusync_destroyed_fn told = (g - goers) % 5 == 4 ? NULL : on_destroyed; /* NULL: its device tells, by its own end */
    meet_if(!told, goes_untold);
    if (!told) PUT(&g->told, 1);
    if (p >= world.queues && p < world.queues + QUEUES) {
        meet(queue_goes_later);
        meet_if(!gpusync_is_idle((gpusync_queue *)object), goes_with_work);
        answer(gpusync_queue_destroy_later((gpusync_queue *)object, told, g), GPUSYNC_OK);
    } else {
        meet(timeline_goes_later);
        (void)gpusync_timeline_fail((gpusync_timeline *)object, NULL);
        answer(gpusync_timeline_destroy_later((gpusync_timeline *)object, told, g), GPUSYNC_OK);
    }
    vacate(p);
}

/* Is the calling thread in a call of a queue or timeline, and runs callbacks in it? */
static bool is_inside(void)
{
    unsigned i;
    for (i = 0; i < mine.count; i++)
        if (mine.in[i]->of) return true;
    return false;
}

/* In a callback: it was the last owner of some object. Which one is by luck. Threads in a call of it do not wait for this
   callback, but for others that wait for one of them. */
static void on_let_go(void *user, gpusync_result result, const gpusync_error *error)
{
    unsigned n = (unsigned)((tally *)user - tallies) % (QUEUES + TIMELINES);
    place *p = n < QUEUES ? &world.queues[n] : &world.timelines[n - QUEUES];
    bool lets = !is_inside() && __atomic_load_n(&goer_count, __ATOMIC_RELAXED) < GOERS - 16;
    void *object = lets ? take_out(p) : NULL;
    on_tally(user, result, error);
    meet_if(object, let_go_by_a_callback);
    if (object) go_later(p, object, new_goer(p));
}

/* In a callback: nothing may wait. */
static void on_talk(void *user, gpusync_result result, const gpusync_error *error)
{
    unsigned before = mine.count, i;
    bool sleeps = mine.sleeps;
    const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &none;
    on_tally(user, result, error);
    mine.sleeps = false;
    for (i = 0; i < QUEUES; i++) {
        place *p = &world.queues[i];
        gpusync_queue *q = (gpusync_queue *)enter(p);
        void *buffer = NULL;
        if (!q) continue;
        may(gpusync_queue_wait(q, SECONDS(1)), ENDS, GPUSYNC_ERROR_WOULD_DEADLOCK);
        may(gpusync_poll(q, some_ticket(p)), ENDS, GPUSYNC_NOT_READY, GPUSYNC_ERROR_INVALID_TICKET);
        may(gpusync_dispatch(device_of(p), 1, NULL), GPUSYNC_ERROR_WOULD_DEADLOCK);
        if (!p->metal4 && gpusync_command_buffer(q, &desc, &buffer) == GPUSYNC_OK) {
            gpusync_ticket ticket = 0;
            gpusync_result done = gpusync_commit(q, buffer, &ticket);
            if (done == GPUSYNC_OK) issued(p, ticket);
            else answer(gpusync_command_buffer_discard(q, buffer), GPUSYNC_OK);
        }
        leave_to(before);
    }
    mine.sleeps = sleeps;
}

/* -- making and destroying ---------------------------------------------------------------------------- */

static void make_device(void)
{
    place *p = &world.devices[below_of(DEVICES)];
    gpusync_device_desc desc;
    gpusync_device *device = NULL;
    unsigned how = byte();
    if (!claim(p, NULL)) return;
    memset(&desc, 0, sizeof desc);
    p->allocator.allocate = memory_allocate;
    p->allocator.release = memory_release;
    p->allocator.user = &p->memory;
    p->manual = how & 1;
    p->sleeps = how & 2;
    p->metal = how & 4 ? softmetal_new_device() : NULL;
    desc.metal_device = p->metal;
    desc.hooks = p->sleeps ? &hooks : NULL;
    desc.allocator = &p->allocator;
    desc.spin = how & 24 ? &no_spin : NULL;
    desc.callback_mode = p->manual ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED;
    desc.notify = how & 32 ? on_notify : NULL;
    desc.log = how & 64 ? on_log : NULL;
    desc.log_user = p;
    if (world.newer) {
        unsigned more = byte();
        p->asks = more & 1;
        desc.spin = some_spin();
        p->own_queue = !p->manual && more & 2;
        if (p->own_queue) desc.callback_queue = callback_queue_new();
    }
    may(gpusync_device_create(&desc, &device), GPUSYNC_OK);
    if (desc.callback_queue) dispatch_release(desc.callback_queue);
    meet_if(p->sleeps, hooks_given);
    meet_if(!p->sleeps, hooks_by_threads);
    meet_if(p->manual, callbacks_by_hand);
    meet_if(!p->manual, callbacks_queued);
    meet_if(p->own_queue, callback_queue_given);
    meet_if(!desc.spin, device_spins_by_itself);
    meet_if(desc.spin && desc.spin->max_spin_ns + desc.spin->yield_iterations > 0, device_spins);
    meet_if(desc.spin && desc.spin->max_spin_ns + desc.spin->yield_iterations == 0, device_spins_not);
    if (device && how & 128) answer(gpusync_set_trace(device, on_trace, NULL), GPUSYNC_OK);
    if (device) {
        publish(p, device);
        return;
    }
    must(GET(&p->memory.live) == 0, "a device that was not made has memory");
    metal_release(p->metal);
    vacate(p);
}

/* The device of MANUAL callbacks goes in a dispatch. */
static void destroy_device_later(gpusync_device *device, goer *g, bool manual)
{
    meet(device_goes_later);
    answer(gpusync_device_destroy_later(device, on_device_gone, g), GPUSYNC_OK);
    while (manual && GET(&g->told) == 0) {
        answer(gpusync_dispatch(device, 1 + below_of(4), NULL), GPUSYNC_OK);
        sched_yield();
    }
}

/* later: where nothing is left of it but what goes itself. */
static void destroy_device(place *p, bool later)
{
    gpusync_device *device = (gpusync_device *)take_out(p);
    goer *g;
    if (!device) return;
    g = later && __atomic_load_n(&p->objects, __ATOMIC_ACQUIRE) == 0 ? new_goer(p) : NULL;
    if (g) {
        destroy_device_later(device, g, p->manual);
        return;
    }
    if (answer(gpusync_device_destroy(device), GPUSYNC_OK, GPUSYNC_ERROR_IN_USE) == GPUSYNC_ERROR_IN_USE) {
        publish(p, device);
        return;
    }
    must(GET(&p->memory.live) == 0, "the allocator has %ld blocks out", GET(&p->memory.live));
    metal_release(p->metal);
    vacate(p);
}

static void make_queue(void)
{
    place *device = some_device(), *p = &world.queues[below_of(QUEUES)];
    gpusync_queue_desc desc;
    gpusync_queue *queue = NULL;
    unsigned how = byte(), least;
    if (!device || !claim(p, device)) return;
    memset(&desc, 0, sizeof desc);
    p->metal4 = world.mixed && how & 1;
    p->given = how & 2;
    p->small = how & 24;
    p->sleeps = device->sleeps;
    desc.label = how & 4 ? "a queue" : NULL;
    desc.max_command_buffer_count = how & 8 ? 4 + below_of(8) : 0;
    least = how & 16 ? 2 + below_of(4) : 0;
    if (least) desc.max_command_buffer_count = least;
    p->room = desc.max_command_buffer_count ? desc.max_command_buffer_count : 63; /* the default */
    desc.error_log_count = how & 32 ? 1 + below_of(3) : 0;
    desc.metal4 = p->metal4;
    p->sticky = desc.sticky_failure = world.newer && how & 64;
    if (world.newer) {
        desc.spin = some_spin();
        if (one_in(4)) desc.spin = &no_spin;
    }
    if (p->given)
        desc.metal_queue = p->metal4 ? metal4_queue_new(gpusync_device_metal(device_of(p)))
                                     : metal_queue_new(gpusync_device_metal(device_of(p)), MADE_BY_METAL);
    if (p->given && !desc.metal_queue) p->given = false; /* Metal has no memory */
    may(gpusync_queue_create(device_of(p), &desc, &queue), GPUSYNC_OK);
    metal_release(desc.metal_queue);
    meet_if(p->metal4, queue_of_metal4);
    meet_if(p->given, queue_given);
    meet_if(p->small, queue_small);
    meet_if(desc.spin && desc.spin != &no_spin, queue_spin);
    meet_if(desc.spin == &no_spin, queue_spins_not);
    meet_if(p->sticky, sticky_queue);
    meet_if(p->sticky && p->metal4, sticky_queue_of_metal4);
    if (p->sticky) COUNT(&device->had_sticky);
    if (queue) {
        p->late = begin_to_read(queue);
        publish(p, queue);
    } else {
        vacate(p);
    }
}

/* Each count is read for itself, while other threads wait on: a sleep is counted before its latency, and so is the number
   of latencies. So what comes first is asked for once more. */
static void check_stats(const place *q, const gpusync_stats *stats)
{
    gpusync_stats later;
    answer(gpusync_get_stats(queue_of(q), &later), GPUSYNC_OK);
    must(stats->wakes <= later.waits_sleep, "%llu sleeps, and %llu latencies", (unsigned long long)later.waits_sleep,
         (unsigned long long)stats->wakes);
    must(later.wakes || !stats->wake_ns, "%llu ns of no latencies", (unsigned long long)stats->wake_ns);
}

typedef enum way { WAITING, AT_ONCE, LATER } way;

static void destroy_queue(place *p, way how)
{
    gpusync_queue *queue = (gpusync_queue *)take_out_of_device(p);
    bool now = how == AT_ONCE && !world.lossy && !world.gentle; /* lossy: the events of work without handlers would
                                                                   stay for good */
    goer *g = queue && how == LATER ? new_goer(p) : NULL;
    if (!queue) return;
    if (g) {
        go_later(p, queue, g);
        return;
    }
    answer(now ? gpusync_queue_destroy_now(queue) : gpusync_queue_destroy(queue), GPUSYNC_OK);
    check_callbacks_of(p);
    vacate(p);
}

static void make_timeline(void)
{
    place *device = some_device(), *p = &world.timelines[below_of(TIMELINES)];
    gpusync_timeline_desc desc;
    gpusync_timeline *timeline = NULL;
    unsigned how = byte();
    if (!device || !can_keep_event() || !claim(p, device)) return;
    memset(&desc, 0, sizeof desc);
    p->sleeps = device->sleeps;
    desc.initial_value = how & 1 ? byte() : 0;
    desc.label = how & 2 ? "a timeline" : NULL;
    desc.signalled_by_others = how & 4;
    if ((how & 24) == 24) desc.shared_event = metal_shared_event_new(gpusync_device_metal(device_of(p)));
    p->given = desc.shared_event;
    p->others = p->given || desc.signalled_by_others;
    p->highest = p->given ? 0 : desc.initial_value;
    may(gpusync_timeline_create(device_of(p), &desc, &timeline), GPUSYNC_OK);
    if (desc.shared_event) keep_event(desc.shared_event);
    meet_if(timeline && desc.signalled_by_others, timeline_of_others);
    if (timeline) publish(p, timeline);
    else vacate(p);
}

static void destroy_timeline(place *p, way how)
{
    gpusync_timeline *timeline = (gpusync_timeline *)take_out_of_device(p);
    goer *g = timeline && how == LATER ? new_goer(p) : NULL;
    if (!timeline) return;
    if (g) {
        go_later(p, timeline, g);
        return;
    }
    /* Work may wait for a value that it is to signal itself, perhaps through a ticket: only this ends it. */
    if (GET(&p->of->had_sticky)) (void)gpusync_timeline_fail(timeline, NULL);
    answer(gpusync_timeline_destroy(timeline), GPUSYNC_OK);
    check_callbacks_of(p);
    vacate(p);
}

/* -- command buffers: each is of one thread ----------------------------------------------------------- */

typedef struct opened {
    void *buffer; /* +1 */
    place *queue;
    unsigned life;
    bool made, signals, was_tracked;
    gpusync_ticket tracked; /* the thread that takes the number out commits or untracks */
    uint32_t locked;        /* queue and life: of the main thread, which untracks what is stuck, and of the owner */
} opened;

typedef struct four {
    void *buffer; /* +1 */
    void *metal;  /* the device's */
    gpusync_ticket ticket;
    place *queue; /* of its last commit: NULL, it was recorded since */
    unsigned life;
} four;

static opened opens[FUZZ_THREADS][OPENS];
static four fours[FUZZ_THREADS][FOURS];

static void lock_open(opened *o)
{
    while (__atomic_exchange_n(&o->locked, 1, __ATOMIC_ACQUIRE)) sched_yield();
}

static void unlock_open(opened *o) { __atomic_store_n(&o->locked, 0, __ATOMIC_RELEASE); }

static void let_go(opened *o)
{
    metal_release(o->buffer);
    o->buffer = NULL;
    __atomic_store_n(&o->tracked, GPUSYNC_NO_TICKET, __ATOMIC_RELAXED);
}

/* One whose queue is there; the thread is in that. Where the queue has gone, so does the buffer. */
static opened *some_open(void)
{
    unsigned n = byte(), i;
    for (i = 0; i < OPENS; i++) {
        opened *o = &opens[fuzz_me][(n + i) % OPENS];
        if (!o->buffer) continue;
        if (enter(o->queue) && o->life == o->queue->life) return o;
        leave();
        let_go(o);
    }
    return NULL;
}

/* Of a queue with little room a thread has one: else it would wait for room that it takes itself. */
static opened *new_open(place *q)
{
    opened *found = NULL;
    unsigned i;
    for (i = 0; i < OPENS; i++) {
        opened *o = &opens[fuzz_me][i];
        if (o->buffer && o->queue == q && q->small) return NULL;
        if (!o->buffer) found = o;
    }
    if (!found) return NULL;
    lock_open(found);
    found->queue = q;
    found->life = q->life;
    unlock_open(found);
    found->made = found->signals = found->was_tracked = false;
    return found;
}

/* What the GPU does with it. */
static void draw_fate(const place *q, void *buffer)
{
    unsigned how = byte();
    if (how == 0 && world.losable) softmetal_fail(buffer, NULL, 11, NULL); /* DeviceRemoved */
    else if (how < 16) softmetal_fail_as(buffer, how & 1 ? SOFTMETAL_INTERNAL : SOFTMETAL_INNOCENT_VICTIM, NULL);
    else if (how < 128) softmetal_set_duration(buffer, (how % 16) * 10000u);
    else if (how < 136 && world.lossy && !q->metal4) {
        softmetal_lose_handlers(buffer);
        meet(work_without_handlers);
    }
}

static void make_buffer(void)
{
    place *q = some_queue(NULL);
    opened *o = q && !q->metal4 ? new_open(q) : NULL;
    gpusync_command_buffer_desc desc;
    buffer_options options;
    uint64_t time;
    void *buffer = NULL;
    if (!o) return;
    if (q->given && one_in(4)) {
        o->buffer = metal_queue_command_buffer(gpusync_queue_metal(queue_of(q)));
        if (o->buffer) draw_fate(q, o->buffer);
        return;
    }
    memset(&desc, 0, sizeof desc);
    time = below_of(8) ? 100000 : MS(3);
    desc.timeout_ns = &time;
    desc.label = one_in(2) ? "a buffer" : NULL;
    memset(&options, 0, sizeof options);
    if (world.newer) some_descriptor(&options, &desc, gpusync_device_metal(device_of(q)));
    if (world.gentle && !world.losable && one_in(4)) ask_for_unretained(&options, &desc);
    may(gpusync_command_buffer(queue_of(q), &desc, &buffer), ENDS, GPUSYNC_TIMEOUT, GPUSYNC_ERROR_QUEUE_FULL);
    check_buffer_options(&options, buffer);
    if (!buffer) return;
    o->buffer = metal_retain(buffer);
    o->made = true;
    draw_fate(q, buffer);
}

static opened *some_or_new_open(void)
{
    opened *o = some_open();
    if (o) return o;
    make_buffer();
    leave();
    return some_open();
}

static void encode_some(void)
{
    opened *o = some_or_new_open();
    place *t, *q;
    gpusync_point point;
    if (!o || o->was_tracked) return;
    q = o->queue;
    if (one_in(2)) {
        if (!some_points(q->of, &point, 1)) return;
        if (may(gpusync_encode_wait(queue_of(q), o->buffer, point), ENDS, MISFITS) == GPUSYNC_OK) o->made = true;
    } else if ((t = some_timeline(q->of)) != NULL) {
        point = gpusync_at_value(timeline_of(t), new_value(t));
        if (may(gpusync_encode_signal(queue_of(q), o->buffer, point), ENDS, MISFITS) == GPUSYNC_OK)
            o->made = o->signals = true;
    }
}

static void commit_one(void)
{
    opened *o = some_or_new_open();
    gpusync_ticket ticket = 0;
    gpusync_result result;
    if (!o || o->was_tracked) return;
    result = may(gpusync_commit(queue_of(o->queue), o->buffer, &ticket), GPUSYNC_OK, NOT_HELD,
                 o->queue->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    if (result != GPUSYNC_OK) {
        meet_if(result == GPUSYNC_ERROR_EXECUTION, refused_as_a_failure_sticks);
        must(ticket == 0, "a ticket for nothing");
        return;
    }
    issued(o->queue, ticket);
    let_go(o);
}

typedef struct second {
    gpusync_device *device;
    int passed;
} second;

/* On the dispatch queue where the device's timers run. */
static void give_up_lost(void *of)
{
    second *s = (second *)of;
    gpusync_device *device = s->device;
    int look;
    for (look = 0; look < 2 && gpusync_device_is_lost(device); look++) probe_look_at_lost(device);
    COUNT(&s->passed);
}

extern void dispatch_async_f(void *queue, void *context, void (*function)(void *));

/* That which a lost device gives its work. */
static void let_the_second_pass(const place *d)
{
    second s = {device_of(d), 0};
    if (!gpusync_device_is_lost(s.device)) return;
    dispatch_async_f(s.device->sweep_queue, &s, give_up_lost);
    while (!GET(&s.passed)) sched_yield();
}

/* What is told of a ticket of a lost device stays so: it has ended, or was given up. Its queue may have gone. */
static void check_lost(place *q, unsigned life, gpusync_ticket ticket, void *buffer, gpusync_result told)
{
    gpusync_ticket_info info;
    gpusync_result now;
    if (!enter(q) || q->life != life) return;
    now = gpusync_poll(queue_of(q), ticket);
    if (now == GPUSYNC_ERROR_DESTROYED || !gpusync_device_is_lost(device_of(q))) return;
    must(now == told || now == GPUSYNC_ERROR_RESULT_UNKNOWN, "a wait for ticket %llu says %d, and a poll %d",
         (unsigned long long)ticket, told, now);
    if (gpusync_get_info(queue_of(q), ticket, &info) == GPUSYNC_ERROR_DEVICE_LOST) {
        must(!gpusync_is_done(queue_of(q), ticket) && !gpusync_is_idle(queue_of(q)),
             "ticket %llu was given up, and is done", (unsigned long long)ticket);
        meet(work_given_up);
        meet_if(buffer, wait_ended_by_giving_up);
        return;
    }
    must(!buffer || metal_status(buffer) < 2 || metal_status(buffer) > 3,
         "ticket %llu has ended with %d, and the GPU has its work", (unsigned long long)ticket, now);
}

static void commit_and_lose(void)
{
    opened *o = some_or_new_open();
    gpusync_wait_options options;
    gpusync_ticket ticket = 0;
    gpusync_queue *queue;
    gpusync_result result;
    uint64_t time, until;
    place *q;
    unsigned life;
    void *buffer;
    memset(&options, 0, sizeof options);
    if (!o || o->was_tracked) return;
    q = o->queue;
    life = o->life;
    queue = queue_of(q);
    buffer = metal_retain(o->buffer);
    if (world.losable && one_in(8)) softmetal_fail_as(buffer, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
    else if (world.losable) softmetal_set_duration(buffer, MS(4)); /* it is in flight when the device is lost */
    if (may(gpusync_commit(queue, buffer, &ticket), GPUSYNC_OK, NOT_HELD,
            o->queue->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK) == GPUSYNC_OK) {
        issued(o->queue, ticket);
        time = some_time(o->queue);
        let_go(o);
        options.spin = one_in(2) ? &no_spin : NULL;
        if (world.losable && q->of->metal && one_in(4)) softmetal_remove_device(q->of->metal);
        meet_if(gpusync_device_is_lost(device_of(q)), wait_on_lost_device);
        until = gpusync_now_ns() + MS(1);
        while (world.losable && !gpusync_device_is_lost(device_of(q)) && gpusync_now_ns() < until) sched_yield();
        if (world.losable && one_in(2)) let_the_second_pass(q->of);
        mine.sleeps = true;
        result = may(gpusync_wait_ex(queue, ticket, time, &options), ENDS, GPUSYNC_TIMEOUT);
        if (result != GPUSYNC_TIMEOUT && result != GPUSYNC_ERROR_OUT_OF_MEMORY)
            check_lost(q, life, ticket, buffer, result);
    }
    metal_release(buffer);
}

static void discard(void)
{
    opened *o = some_open();
    if (!o || o->was_tracked) return;
    answer(gpusync_command_buffer_discard(queue_of(o->queue), o->buffer),
           o->made ? GPUSYNC_OK : GPUSYNC_ERROR_UNKNOWN_BUFFER);
    let_go(o);
}

static void track(void)
{
    opened *o = some_or_new_open();
    gpusync_ticket ticket = 0;
    if (!o || o->was_tracked) return;
    if (may(gpusync_track(queue_of(o->queue), o->buffer, &ticket), GPUSYNC_OK, INVALID) != GPUSYNC_OK) return;
    meet_if(o->queue->sticky, sticky_queue_tracks);
    issued(o->queue, ticket);
    o->was_tracked = true;
    PUT(&o->tracked, ticket);
}

/* Of whichever thread: the main thread does it too. */
static void untrack(opened *o, gpusync_queue *queue)
{
    gpusync_ticket ticket = __atomic_exchange_n(&o->tracked, GPUSYNC_NO_TICKET, __ATOMIC_ACQ_REL);
    if (ticket) /* a lost device may have given it up */
        answer(gpusync_untrack(queue, ticket), GPUSYNC_OK, world.losable ? GPUSYNC_ERROR_INVALID_TICKET : GPUSYNC_OK);
}

/* A call that Metal keeps waits for room that a thread has which waits for the call to end: the one that destroys the queue
   unsticks it, as the main thread finds the queue no more. */
static void give_room_back(place *p, void *object)
{
    int i, k;
    if (p < world.queues || p >= world.queues + QUEUES) return;
    for (i = 1; i <= CREW; i++)
        for (k = 0; k < OPENS; k++) {
            opened *o = &opens[i][k];
            lock_open(o);
            if (o->queue == p && o->life == p->life) {
                if (GET(&o->tracked)) untrack(o, (gpusync_queue *)object);
                if (i == fuzz_me && o->buffer && (o->was_tracked || !o->made)) let_go(o); /* Metal counts it until then */
            }
            unlock_open(o);
        }
}

/* An empty command buffer behind one that other code has committed: its ticket tells that both are over. */
static void commit_one_behind(place *q, void *foreign)
{
    const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    gpusync_ticket ticket = 0;
    void *buffer = NULL;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &none;
    may(gpusync_command_buffer(queue_of(q), &desc, &buffer), ENDS, GPUSYNC_TIMEOUT, GPUSYNC_ERROR_QUEUE_FULL);
    if (!buffer) return;
    if (may(gpusync_commit(queue_of(q), buffer, &ticket), GPUSYNC_OK, NOT_HELD,
            q->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK) != GPUSYNC_OK) {
        answer(gpusync_command_buffer_discard(queue_of(q), buffer), GPUSYNC_OK);
        return;
    }
    issued(q, ticket);
    meet(foreign_buffer_told_by_one_behind);
    mine.sleeps = true;
    if (may(gpusync_wait(queue_of(q), ticket, MS(3)), ENDS, GPUSYNC_TIMEOUT) == GPUSYNC_OK && !world.overlaps)
        must(metal_status(foreign) >= 4, "ticket %llu is well, and what was committed before it is not over",
             (unsigned long long)ticket);
}

static void commit_behind_the_back(void)
{
    opened *o = some_or_new_open();
    gpusync_ticket ticket = 0;
    bool tell = one_in(2);
    if (!o) return;
    if (o->was_tracked) {
        if (tell) untrack(o, queue_of(o->queue));
        else if (__atomic_exchange_n(&o->tracked, GPUSYNC_NO_TICKET, __ATOMIC_ACQ_REL)) metal_commit(o->buffer);
        let_go(o); /* or the main thread was first: then it is untracked */
    } else if (!o->made) {
        metal_commit(o->buffer);
        if (tell) {
            commit_one_behind(o->queue, o->buffer);
        } else { /* Metal takes no handler any more */
            bool sticky = o->queue->sticky;
            may(gpusync_track(queue_of(o->queue), o->buffer, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED);
            may(gpusync_commit(queue_of(o->queue), o->buffer, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED,
                sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_ERROR_ALREADY_COMMITTED);
            must(ticket == 0, "a ticket for what other code has committed");
            meet(foreign_buffer_refused);
        }
        let_go(o);
    }
}

/* Recorded, and not committed since. */
static size_t some_fours(const place *q, four **found, void **buffers, size_t most)
{
    void *metal = gpusync_device_metal(device_of(q));
    size_t count = 0;
    unsigned i;
    for (i = 0; i < FOURS && count < most; i++) {
        four *f = &fours[fuzz_me][i];
        if (f->buffer && f->metal != metal) continue;
        if (f->queue) {
            unsigned before = mine.count;
            bool there = enter(f->queue) && f->life == f->queue->life;
            gpusync_result how = there ? gpusync_poll(queue_of(f->queue), f->ticket) : GPUSYNC_ERROR_DESTROYED;
            leave_to(before);
            if (how == GPUSYNC_NOT_READY) continue; /* begun again it would be another recording */
            /* Its queue goes, another took its place, or the device is lost: the buffer may be committed yet. */
            if (how == GPUSYNC_ERROR_DESTROYED || how == GPUSYNC_ERROR_DEVICE_LOST) {
                metal_release(f->buffer);
                f->buffer = NULL;
            }
        }
        if (!f->buffer) {
            f->buffer = metal4_buffer_new(metal);
            f->metal = metal;
        }
        if (!can_keep()) continue;
        metal4_begin(f->buffer, keep(metal4_allocator_new(metal)));
        if (one_in(2)) metal_end(metal_compute_begin(f->buffer));
        metal4_end(f->buffer);
        f->queue = NULL;
        found[count] = f;
        buffers[count++] = f->buffer;
    }
    return count;
}

/* -- submitting --------------------------------------------------------------------------------------- */

static void submit_some(void)
{
    place *q = some_queue(NULL), *t;
    gpusync_submission submission;
    gpusync_point waits[3], signals[2];
    opened *from[2] = {NULL, NULL};
    four *recorded[2];
    void *buffers[2] = {NULL, NULL};
    uint64_t time = below_of(4) ? 100000 : MS(3);
    gpusync_ticket ticket = 0;
    tally *over;
    bool signalled = false, plain;
    size_t i;
    if (!q) return;
    plain = q->metal4 && one_in(3); /* gpusync_commit4 */
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = buffers;
    if (q->metal4) {
        submission.command_buffer_count = some_fours(q, recorded, buffers, 1 + below_of(2));
        if (submission.command_buffer_count == 0) return;
        softmetal_prepare_run(buffers[0], gpusync_queue_metal(queue_of(q)));
        draw_fate(q, softmetal_run_of(buffers[0]));
    }
    for (i = below_of(8); !q->metal4 && i < OPENS && submission.command_buffer_count < 2; i++) {
        opened *o = &opens[fuzz_me][i];
        if (!o->buffer || o->queue != q || o->life != q->life || o->was_tracked) continue;
        from[submission.command_buffer_count] = o;
        signalled = signalled || o->signals;
        buffers[submission.command_buffer_count++] = o->buffer;
    }
    submission.waits = waits;
    submission.wait_count = !signalled && !plain && one_in(2) ? some_points(q->of, waits, 3) : 0;
    submission.signals = signals;
    memset(signals, 0, sizeof signals);
    for (i = below_of(3); !plain && i-- > 0 && (t = some_timeline(q->of)) != NULL;)
        signals[submission.signal_count++] = gpusync_at_value(timeline_of(t), new_value(t));
    submission.flags = byte() & 6;
    submission.timeout_ns = &time;
    submission.label = one_in(2) ? "some work" : NULL;
    over = !plain && one_in(2) ? tally_new() : NULL;
    submission.on_complete = over ? one_in(2) ? on_talk : on_tally : NULL;
    submission.user = over;
    if (one_in(8)) some_fault(q->of);
    if (q->metal4 && submission.wait_count + submission.signal_count == 0 && !over)
        may(gpusync_commit4(queue_of(q), buffers, submission.command_buffer_count, &ticket), GPUSYNC_OK, NOT_HELD,
            q->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    else may(gpusync_submit(queue_of(q), &submission, &ticket), ENDS, NO_ROOM, MISFITS, GPUSYNC_ERROR_UNSUPPORTED);
    if (q->metal4) note_what_may_stay(queue_of(q), &submission, ticket != 0);
    if (!ticket) return;
    meet_if(q->sticky && (submission.flags & GPUSYNC_UNORDERED), sticky_queue_unordered);
    issued(q, ticket);
    promised(over, q);
    meet_if(submission.flags & GPUSYNC_STRICT, submission_strict);
    meet_if(submission.flags & GPUSYNC_UNORDERED, submission_unordered);
    meet_if(submission.command_buffer_count == 0, submission_barrier);
    meet_if(q->metal4, submission_of_metal4);
    meet_if(q->metal4 && submission.command_buffer_count > 1, commit4_of_several);
    for (i = 0; i < submission.command_buffer_count; i++) {
        if (from[i]) let_go(from[i]);
        if (!q->metal4) continue;
        recorded[i]->queue = q;
        recorded[i]->life = q->life;
        recorded[i]->ticket = ticket;
    }
}

/* -- timelines ---------------------------------------------------------------------------------------- */

static void move_timeline(void)
{
    place *t = some_timeline(NULL);
    gpusync_wait_options options;
    gpusync_error reason;
    uint64_t value, seen;
    if (!t) return;
    memset(&options, 0, sizeof options);
    switch (below_of(8)) {
    case 0:
    case 1: may(gpusync_timeline_signal(timeline_of(t), new_value(t)), ENDS, GPUSYNC_ERROR_NOT_RISING); break;
    case 2: /* others do what they are expected to, or the main thread does it at last */
        if (!t->others || !can_keep_event()) break;
        value = new_value(t);
        {
            uint64_t base = 0;
            void *event = gpusync_timeline_metal(timeline_of(t), &base);
            keep_event(metal_retain(event));
            if (!one_in(2)) break;
            metal_event_signal(event, base + value);
            if (one_in(4)) { /* while the listeners are told */
                leave();
                destroy_timeline(t, world.newer && one_in(2) ? LATER : WAITING);
            }
        }
        break;
    case 3:
        if (!one_in(8)) break;
        memset(&reason, 0, sizeof reason);
        reason.result = GPUSYNC_ERROR_EXECUTION;
        may(gpusync_timeline_fail(timeline_of(t), one_in(2) ? &reason : NULL), ENDS);
        break;
    case 4:
    case 5:
        seen = __atomic_load_n(&t->seen, __ATOMIC_ACQUIRE);
        value = 0;
        may(gpusync_timeline_query(timeline_of(t), &value), ENDS);
        must(value >= seen, "a timeline fell from %llu to %llu", (unsigned long long)seen, (unsigned long long)value);
        raise_to(&t->seen, value);
        break;
    default: {
        gpusync_timeline *timeline = timeline_of(t);
        uint64_t time = some_time(t);
        value = some_value(t);
        options.spin = world.newer ? some_spin() : NULL;
        meet_if(options.spin, wait_for_value_spins);
        mine.sleeps = true;
        may(gpusync_timeline_wait(timeline, value, time, options.spin ? &options : NULL), ENDS, GPUSYNC_TIMEOUT, GPUSYNC_ERROR_NOT_RISING);
        break;
    }
    }
}

/* Others signal its values, and it goes while the blocks of its listener run. No other thread knows it. */
static void signal_one_that_goes(void)
{
    place *device = some_device();
    static const gpusync_timeline_desc desc = {0, NULL, NULL, true};
    unsigned count = 1 + below_of(4), delay = byte(), later = byte(), i;
    gpusync_timeline *timeline = NULL;
    uint64_t base = 0, where, until;
    goer *g;
    void *event;
    if (!device) return;
    may(gpusync_timeline_create(device_of(device), &desc, &timeline), GPUSYNC_OK);
    if (!timeline) return;
    where = (uint64_t)(uintptr_t)timeline;
    event = metal_retain(gpusync_timeline_metal(timeline, &base));
    for (i = 1; i <= count; i++) {
        tally *told = tally_new();
        if (!told || may(gpusync_on_done(gpusync_at_value(timeline, i), on_tally, told), GPUSYNC_OK) != GPUSYNC_OK) continue;
        told->expected = true;
        __atomic_store_n(&told->where, where, __ATOMIC_RELEASE);
    }
    metal_event_signal(event, base + count);
    metal_release(event);
    until = gpusync_now_ns() + delay * (delay & 1 ? 500u : 50u);
    while (gpusync_now_ns() < until) continue;
    g = later & 1 ? new_goer(device) : NULL;
    if (g) {
        g->where = where;
        answer(gpusync_timeline_destroy_later(timeline, on_destroyed, g), GPUSYNC_OK);
        return;
    }
    answer(gpusync_timeline_destroy(timeline), GPUSYNC_OK);
    check_callbacks_at(where);
}

/* -- asking and waiting ------------------------------------------------------------------------------- */

/* As a program does that lets so many be in flight. */
static void pace(const place *q, unsigned ahead, uint64_t time)
{
    gpusync_queue *queue = queue_of(q);
    gpusync_stats stats;
    answer(gpusync_get_stats(queue, &stats), GPUSYNC_OK);
    if (stats.commits <= ahead) return;
    meet(wait_paces);
    mine.sleeps = true;
    may(gpusync_wait(queue, stats.commits - ahead, time), ENDS, GPUSYNC_TIMEOUT);
}

static void wait_for_some(void)
{
    place *q = some_queue(NULL);
    gpusync_queue *queue = q ? queue_of(q) : NULL;
    gpusync_device *device = q ? device_of(q) : NULL;
    gpusync_wait_options options;
    gpusync_error error;
    gpusync_point points[20];
    gpusync_wait_for wait_for;
    gpusync_ticket ticket;
    uint64_t time;
    size_t count, which = 0;
    unsigned how = byte();
    if (!q) return;
    memset(&options, 0, sizeof options);
    options.error = &error;
    options.blocking = how % 4 == 3;
    options.spin = how & 16 ? &no_spin : world.newer ? some_spin() : NULL;
    if (how % 4 == 2) options.spin = &no_spin;
    options.handlers = how >= 224;
    time = options.handlers ? MS(2) : some_time(q);
    ticket = one_in(8) ? GPUSYNC_EVERYTHING : some_ticket(q);
    meet_if(options.spin, wait_spins);
    meet_if(options.spin && options.spin->until_near, wait_until_near);
    meet_if(options.handlers, wait_for_handlers);
    meet_if(options.handlers && gpusync_device_is_lost(device), wait_for_handlers_on_lost_device);
    switch (below_of(8)) {
    case 0:
        mine.sleeps = true;
        may(gpusync_queue_wait(queue, time), ENDS, GPUSYNC_TIMEOUT);
        break;
    case 1: /* of the device: that is not left */
        time = time == GPUSYNC_FOREVER ? MS(3) : time;
        meet_if(options.blocking && !(how & 32), wait_blocks_in_vain);
        may(gpusync_device_wait(device, time, how & 32 ? NULL : &options), ENDS, GPUSYNC_TIMEOUT);
        break;
    case 2:
    case 3:
    case 4:
        mine.sleeps = true;
        meet_if(options.blocking && !(how & 32) && !q->metal4 && time == GPUSYNC_FOREVER, wait_blocks);
        if (how & 32) may(gpusync_wait(queue, ticket, time), ENDS, GPUSYNC_TIMEOUT, GPUSYNC_ERROR_INVALID_TICKET);
        else if (options.blocking && q->metal4)
            answer(gpusync_wait_ex(queue, ticket, time, &options), GPUSYNC_ERROR_UNSUPPORTED);
        else may(gpusync_wait_ex(queue, ticket, time, &options), ENDS, GPUSYNC_TIMEOUT, GPUSYNC_ERROR_INVALID_TICKET);
        break;
    case 5:
        pace(q, 1 + below_of(8), time);
        break;
    default:
        count = some_points(q->of, points, 19);
        if (one_in(8)) some_fault(q->of);
        wait_for = (gpusync_wait_for)below_of(3);
        meet_if(wait_for == GPUSYNC_WAIT_ANY, wait_for_any);
        meet_if(wait_for == GPUSYNC_WAIT_ALL, wait_for_all);
        mine.sleeps = true;
        may(gpusync_wait_many(points, count, wait_for, time, how & 32 ? &options : NULL, &which), ENDS, GPUSYNC_TIMEOUT,
            MISFITS);
        must(which <= count, "the point %zu of %zu", which, count);
        break;
    }
}

static void have_some_told(void)
{
    place *p = one_in(2) ? some_timeline(NULL) : some_queue(NULL);
    tally *told = p ? tally_new() : NULL;
    gpusync_result result;
    gpusync_point point;
    unsigned how = byte();
    if (!told) return;
    if (p >= world.queues && p < world.queues + QUEUES) point = gpusync_at_ticket(queue_of(p), some_ticket(p));
    else point = gpusync_at_value(timeline_of(p), some_value(p));
    if (one_in(8)) some_fault(p->of);
    if (how & 1) {
        void *object = softmetal_new_witness(on_gone, told);
        result = may(gpusync_release_after(point, object), GPUSYNC_OK, MISFITS, GPUSYNC_ERROR_DESTROYED);
        metal_release(object);
        if (result != GPUSYNC_OK) told->expected = true;
    } else {
        gpusync_done_fn fn = how & 2 ? on_talk : world.newer && how & 4 ? on_let_go : on_tally;
        result = may(gpusync_on_done(point, fn, told), GPUSYNC_OK, MISFITS, GPUSYNC_ERROR_DESTROYED);
    }
    if (result == GPUSYNC_OK) promised(told, p);
}

static void look_around(void)
{
    place *q = some_queue(NULL);
    gpusync_ticket_info info;
    gpusync_ticket ticket;
    gpusync_stats stats;
    gpusync_error error;
    uint64_t seen, cursor = 0, late;
    size_t count = 0, left = 100;
    char text[4096];
    if (!q) return;
    ticket = some_ticket(q);
    switch (below_of(8)) {
    case 0:
        (void)(may(gpusync_get_info(queue_of(q), ticket, &info), GPUSYNC_OK, GPUSYNC_NOT_READY, MISFITS,
                   GPUSYNC_ERROR_RESULT_UNKNOWN, GPUSYNC_ERROR_DESTROYED));
        break;
    case 1:
        seen = __atomic_load_n(&q->completions, __ATOMIC_ACQUIRE);
        answer(gpusync_get_stats(queue_of(q), &stats), GPUSYNC_OK);
        must(stats.completions >= seen, "completions fell from %llu to %llu", (unsigned long long)seen,
             (unsigned long long)stats.completions);
        raise_to(&q->completions, stats.completions);
        check_stats(q, &stats);
        answer(gpusync_device_get_stats(device_of(q), &stats), GPUSYNC_OK);
        break;
    case 2: (void)gpusync_report(device_of(q), text, sizeof text); break;
    case 3:
        late = begin_to_read(queue_of(q));
        while (left-- > 0 && gpusync_next_error(queue_of(q), &cursor, &error) == GPUSYNC_OK) {
            must(error.result < 0 && gpusync_poll(queue_of(q), error.ticket) != GPUSYNC_OK, "ticket %llu has failed",
                 (unsigned long long)error.ticket);
            must(gpusync_failure_is_transient(error.failure) == may_pass(error.failure), "a failure of class %d",
                 (int)error.failure);
        }
        if (gpusync_next_error(queue_of(q), &late, &error) != GPUSYNC_OK) break; /* recorded since */
        must(gpusync_poll(queue_of(q), error.ticket) != GPUSYNC_OK, "ticket %llu has failed",
             (unsigned long long)error.ticket);
        break;
    case 4:
        may(gpusync_dispatch(device_of(q), 1 + below_of(4), &count), GPUSYNC_OK);
        must(count == 0 || q->of->manual, "%zu callbacks that were not due here", count);
        break;
    case 5:
    case 6:
        seen = __atomic_load_n(&q->seen, __ATOMIC_ACQUIRE);
        must(gpusync_is_done(queue_of(q), seen), "ticket %llu was done", (unsigned long long)seen);
        if (!gpusync_is_done(queue_of(q), ticket)) break;
        raise_to(&q->seen, ticket);
        must(gpusync_poll(queue_of(q), ticket) != GPUSYNC_NOT_READY, "ticket %llu is done and not ready",
             (unsigned long long)ticket);
        break;
    default:
        if (may(gpusync_poll(queue_of(q), ticket), ENDS, GPUSYNC_NOT_READY, GPUSYNC_ERROR_INVALID_TICKET) ==
            GPUSYNC_ERROR_DEVICE_LOST)
            check_lost(q, q->life, ticket, NULL, GPUSYNC_ERROR_DEVICE_LOST);
        (void)gpusync_is_idle(queue_of(q));
        (void)gpusync_device_is_lost(device_of(q));
        break;
    }
}

/* How a ticket is said to have ended, if it is. */
static bool has_ended(gpusync_result result)
{
    return result != GPUSYNC_NOT_READY && result != GPUSYNC_ERROR_INVALID_TICKET && result != GPUSYNC_ERROR_DEVICE_LOST &&
           result != GPUSYNC_ERROR_DESTROYED;
}

static void look_around_newly(void)
{
    place *q = one_in(8) ? NULL : some_queue(NULL), *device;
    gpusync_ticket first;
    gpusync_result before;
    gpusync_stats stats;
    uint64_t count;
    size_t length;
    char text[512];
    if (!q && (device = some_device()) != NULL) /* in no call of a queue: callbacks may let any go */
        answer(gpusync_dispatch(device_of(device), 1 + below_of(4), NULL), GPUSYNC_OK);
    if (!q) return;
    switch (below_of(6)) {
    case 0:
    case 1:
        meet_if(q->sticky, failure_cleared);
        answer(gpusync_queue_clear_failure(queue_of(q)), q->sticky ? GPUSYNC_OK : INVALID);
        break;
    case 2:
        length = gpusync_queue_report(queue_of(q), text, sizeof text);
        must(length > 0 && strlen(text) == (length < sizeof text ? length : sizeof text - 1), "a report that is cut wrongly");
        break;
    case 3:
        count = gpusync_in_flight(queue_of(q));
        answer(gpusync_get_stats(queue_of(q), &stats), GPUSYNC_OK);
        must(count <= stats.commits, "%llu in flight of %llu", (unsigned long long)count,
             (unsigned long long)stats.commits);
        break;
    case 4: check_struct_sizes(); break;
    default:
        first = some_ticket(q);
        before = gpusync_poll(queue_of(q), first);
        if (q->sticky && has_ended(before) && before != GPUSYNC_ERROR_RESULT_UNKNOWN)
            may(gpusync_poll(queue_of(q), first), before, GPUSYNC_ERROR_RESULT_UNKNOWN); /* no failure comes over it later */
        break;
    }
}

/* -- warm-ups ----------------------------------------------------------------------------------------- */

static void run_a_job(void *user) { __atomic_fetch_add((unsigned *)user, 1, __ATOMIC_RELAXED); }

static void destroy_warmup(place *p)
{
    gpusync_warmup *warmup = (gpusync_warmup *)take_out_of_device(p);
    if (!warmup) return;
    answer(gpusync_warmup_destroy(warmup), GPUSYNC_OK);
    vacate(p);
}

static void use_warmup(gpusync_warmup *warmup, const place *device, bool sleeps)
{
    size_t done = 0, total = 0;
    void *pipeline = NULL;
    gpusync_error error;
    uint64_t time = sleeps ? some_time(device) : MS(1);
    unsigned how = below_of(4);
    answer(gpusync_warmup_poll(warmup, &done, &total), GPUSYNC_OK, GPUSYNC_NOT_READY);
    must(done <= total, "%zu of %zu", done, total);
    mine.sleeps = sleeps;
    if (how & 1) may(gpusync_warmup_wait(warmup, time), ENDS, WARMS);
    else may(gpusync_warmup_pipeline(warmup, how, time, &pipeline, &error), ENDS, WARMS, INVALID);
}

static void warm_up(void)
{
    static const char *const sources[] = {"kernel void add() {}", "kernel void sub() {}", "#error"};
    static unsigned jobs_run;
    gpusync_warmup_job job = {run_a_job, &jobs_run};
    gpusync_pipeline_desc pipelines[2];
    gpusync_warmup_desc desc;
    gpusync_warmup *warmup = NULL;
    place *p = &world.warmups[0], *device, *q;
    unsigned how = byte(), i;
    if (how & 1 && enter(p)) {
        use_warmup((gpusync_warmup *)p->self, p->of, true);
        return;
    }
    if (how & 2) {
        destroy_warmup(p);
        return;
    }
    q = how & 4 ? some_queue(NULL) : NULL;
    device = q ? q->of : some_device();
    if (!device || (q && q->metal4)) return;
    memset(&desc, 0, sizeof desc);
    memset(pipelines, 0, sizeof pipelines);
    for (i = 0; i < 2; i++) {
        pipelines[i].source = sources[below_of(3)];
        pipelines[i].function = one_in(2) ? "add" : "sub";
    }
    desc.pipelines = pipelines;
    desc.pipeline_count = below_of(3);
    desc.jobs = &job;
    desc.job_count = how >> 3 & 1;
    desc.disabled = how & 16;
    desc.queue = q ? queue_of(q) : NULL; /* which has to outlive it: so it goes in this call */
    if (!q && !claim(p, device)) return;
    __atomic_store_n(&world.warms, true, __ATOMIC_RELAXED);
    may(gpusync_warmup_start((gpusync_device *)device->self, &desc, &warmup), GPUSYNC_OK, GPUSYNC_ERROR_DESTROYED);
    if (!q) {
        if (warmup) publish(p, warmup);
        else vacate(p);
    } else if (warmup) {
        use_warmup(warmup, device, false);
        answer(gpusync_warmup_destroy(warmup), GPUSYNC_OK);
    }
}

/* -- the crew ----------------------------------------------------------------------------------------- */

static void lose_a_device(void)
{
    place *d = some_device();
    if (!d || !world.losable) return;
    if (one_in(2)) let_the_second_pass(d);
    else if (d->metal && one_in(4)) softmetal_remove_device(d->metal);
}

static void destroy_something(void)
{
    unsigned how = byte(), n = below_of(6);
    bool later = world.newer && how & 16;
    if (how % 4 == 0) destroy_queue(&world.queues[n % QUEUES], later ? LATER : WAITING);
    else if (how % 8 == 1) destroy_queue(&world.queues[n % QUEUES], AT_ONCE);
    else if (how % 4 == 2) destroy_timeline(&world.timelines[n % TIMELINES], later ? LATER : WAITING);
    else if (how % 8 == 3) destroy_device(&world.devices[n % DEVICES], later);
}

static void be_foolish(void)
{
    place *q = some_queue(NULL), *t = q ? some_timeline(q->of) : NULL;
    talk_nonsense(q ? device_of(q) : NULL, q ? queue_of(q) : NULL, t ? timeline_of(t) : NULL, q && q->sticky);
}

static void cancel(void)
{
    place *q = some_queue(NULL);
    if (q && one_in(4)) answer(gpusync_cancel_held(queue_of(q)), GPUSYNC_OK);
}

static void do_something(void)
{
    switch (below_of(world.newer ? 44 : 32)) {
    case 0: make_device(); break;
    case 1:
    case 2: make_queue(); break;
    case 3: make_timeline(); break;
    case 4:
    case 5:
    case 6: make_buffer(); break;
    case 7:
    case 8: encode_some(); break;
    case 9:
    case 10:
    case 11: commit_one(); break;
    case 12: discard(); break;
    case 13: track(); break;
    case 14: commit_behind_the_back(); break;
    case 15:
    case 16:
    case 17:
    case 18: submit_some(); break;
    case 19:
    case 20: move_timeline(); break;
    case 21:
    case 22:
    case 23: wait_for_some(); break;
    case 24: have_some_told(); break;
    case 25:
    case 26: look_around(); break;
    case 27: warm_up(); break;
    case 28: lose_a_device(); break;
    case 29: destroy_something(); break;
    case 30: cancel(); break;
    case 31: be_foolish(); break;
    case 32:
    case 33: commit_and_lose(); break;
    case 34:
    case 35:
    case 36: look_around_newly(); break;
    case 37: destroy_something(); break;
    case 38:
    case 39: signal_one_that_goes(); break;
    case 40: wait_for_some(); break;
    default: commit_one(); break;
    }
}

/* What the thread has open takes room that others wait for. */
static void drop_opens(void)
{
    int k;
    for (k = 0; k < OPENS; k++) {
        opened *o = &opens[fuzz_me][k];
        if (!o->buffer) continue;
        if (enter(o->queue) && o->life == o->queue->life) {
            if (o->was_tracked) untrack(o, queue_of(o->queue));
            else if (o->made) answer(gpusync_command_buffer_discard(queue_of(o->queue), o->buffer), GPUSYNC_OK);
        }
        leave();
        let_go(o);
    }
}

static void take_bytes(const uint8_t *from, size_t count)
{
    size_t i;
    input.at = from;
    input.end = from + count;
    input.filler = 0x9E3779B97F4A7C15u;
    for (i = 0; i < count; i++) input.filler = (input.filler ^ from[i]) * 0x100000001B3u;
    input.filler |= 1;
}

static void *work(void *argument)
{
    unsigned number = (unsigned)(uintptr_t)argument, round, stuck = 0;
    size_t i;
    fuzz_me = 1 + (int)number;
    COUNT(&world.ready);
    while (GET(&world.ready) < CREW) sched_yield(); /* at once */
    for (round = 0; round < world.rounds; round++)
        for (i = 0; i < world.record_count; i++) {
            const uint8_t *record = world.records + RECORD * i;
            void *pool;
            if (*record % CREW != number || gpusync_now_ns() > world.until) continue;
            pool = metal_pool_push();
            take_bytes(record + 1, RECORD - 1);
            do_something();
            leave();
            mine.sleeps = false;
            if (__atomic_load_n(&world.stuck, __ATOMIC_RELAXED) != stuck) drop_opens();
            stuck = __atomic_load_n(&world.stuck, __ATOMIC_RELAXED);
            metal_pool_pop(pool);
            __atomic_fetch_add(&steps[fuzz_me], 1, __ATOMIC_RELAXED);
        }
    drop_opens();
    for (i = 0; i < FOURS; i++) metal_release(fours[fuzz_me][i].buffer);
    __atomic_store_n(&fuzz_doing[fuzz_me], "is through", __ATOMIC_RELAXED);
    COUNT(&world.over);
    return NULL;
}

/* -- the main thread: what ends when nothing else does, and the end ------------------------------------ */

static void signal_events(void)
{
    int i, count = __atomic_load_n(&world.event_count, __ATOMIC_RELAXED);
    for (i = 0; i < count; i++) {
        void *event = __atomic_load_n(&world.events[i], __ATOMIC_ACQUIRE);
        if (event && metal_event_value(event) < GPUSYNC_MAX_VALUE / 2) metal_event_signal(event, GPUSYNC_MAX_VALUE / 2);
    }
}

/* What waits for the program goes on, or ends. */
static void unstick(void)
{
    int i, k;
    __atomic_fetch_add(&world.stuck, 1, __ATOMIC_RELAXED);
    signal_events();
    for (i = 0; i < QUEUES; i++)
        if (enter(&world.queues[i])) answer(gpusync_cancel_held(queue_of(&world.queues[i])), GPUSYNC_OK);
    for (i = 0; i < TIMELINES; i++)
        if (enter(&world.timelines[i])) (void)gpusync_timeline_fail(timeline_of(&world.timelines[i]), NULL);
    for (i = 1; i <= CREW; i++)
        for (k = 0; k < OPENS; k++) {
            opened *o = &opens[i][k];
            unsigned before = mine.count;
            lock_open(o);
            if (GET(&o->tracked) && enter(o->queue) && o->life == o->queue->life) untrack(o, queue_of(o->queue));
            unlock_open(o);
            leave_to(before);
        }
    leave();
}

static uint64_t steps_of_all(void)
{
    uint64_t sum = 0;
    int i;
    for (i = 1; i <= CREW; i++) sum += __atomic_load_n(&steps[i], __ATOMIC_RELAXED);
    return sum;
}

static void await_crew(const pthread_t *crew)
{
    struct timespec ms = {0, 1000000};
    uint64_t last = 0;
    unsigned same = 0, i;
    while (GET(&world.over) < CREW) {
        uint64_t now = steps_of_all();
        nanosleep(&ms, NULL);
        same = now == last ? same + 1 : 0;
        last = now;
        if (same < PATIENCE_MS) continue;
        unstick();
        same = 0;
    }
    for (i = 0; i < CREW; i++) join(crew[i]);
}

static void tell_report(const place *d)
{
    static char text[16384];
    gpusync_report(device_of(d), text, sizeof text);
    fprintf(stderr, "%s\n", text);
}

/* Where failures stick: each ticket that took the failure of an earlier one has a record of its own. */
static void check_sticky(place *q, uint64_t commits)
{
    static bool recorded[TOLD];
    uint64_t cursor = 0, n;
    gpusync_error error;
    gpusync_stats stats;
    memset(recorded, 0, sizeof recorded);
    answer(gpusync_get_stats(queue_of(q), &stats), GPUSYNC_OK);
    if (commits >= TOLD || world.losable || stats.failures_dropped) return;
    while (gpusync_next_error(queue_of(q), &cursor, &error) == GPUSYNC_OK)
        if (error.ticket < TOLD) recorded[error.ticket] = true;
    for (n = 1; n <= commits; n++) {
        gpusync_result now = gpusync_poll(queue_of(q), n);
        must(now >= 0 || recorded[n], "ticket %llu failed with %d without a record", (unsigned long long)n, now);
    }
}

/* Everything has ended. */
static void check_queue(place *q)
{
    gpusync_result result = gpusync_queue_wait(queue_of(q), SECONDS(10));
    gpusync_stats stats;
    uint64_t n, found, from_the_first = 0;
    if (result == GPUSYNC_TIMEOUT) tell_report(q->of);
    may(result, ENDS);
    answer(gpusync_get_stats(queue_of(q), &stats), GPUSYNC_OK);
    for (n = 1; n <= stats.commits; n++) may(gpusync_poll(queue_of(q), n), ENDS);
    answer(gpusync_get_stats(queue_of(q), &stats), GPUSYNC_OK);
    check_stats(q, &stats);
    must(stats.failures <= stats.completions && stats.completions <= stats.commits,
         "%llu commits, %llu ends, %llu failures", (unsigned long long)stats.commits,
         (unsigned long long)stats.completions, (unsigned long long)stats.failures);
    must(stats.completions == stats.commits || world.losable, "%llu commits, %llu have ended",
         (unsigned long long)stats.commits, (unsigned long long)stats.completions);
    must(world.losable || (gpusync_is_idle(queue_of(q)) && gpusync_is_done(queue_of(q), GPUSYNC_EVERYTHING)),
         "not idle");
    must(world.losable || gpusync_in_flight(queue_of(q)) == 0, "%llu in flight",
         (unsigned long long)gpusync_in_flight(queue_of(q)));
    if (q->sticky) check_sticky(q, stats.commits);
    if (q->sticky) answer(gpusync_queue_clear_failure(queue_of(q)), GPUSYNC_OK); /* else it makes no command buffer */
    if (!world.losable && !q->metal4) fill_queue(queue_of(q), q->room, SECONDS(10));
    n = count_failures(queue_of(q), &from_the_first);
    found = count_failures(queue_of(q), &q->late);
    from_the_first = 0; /* callbacks may still commit what fails */
    must(n <= found && found <= count_failures(queue_of(q), &from_the_first), "a reader finds %llu failures, another one %llu",
         (unsigned long long)found, (unsigned long long)n);
    meet_if(found, errors_from_now);
    must(gpusync_is_done(queue_of(q), q->seen) && stats.completions >= q->completions, "what was done is not");
}

/* Every ticket has ended, and every timeline has failed: so none is left for destroy. A lost device keeps what was to be
   released. What goes later waits on a dispatch queue for callbacks that are due by hand. */
static void come_to_rest(bool (*settled)(uint64_t timeout_ns), const char *otherwise)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    size_t count = 1;
    int i;
    do {
        for (i = 0; i < DEVICES; i++, count = 1)
            while (enter(&world.devices[i]) && count > 0)
                answer(gpusync_dispatch(device_of(&world.devices[i]), SIZE_MAX, &count), GPUSYNC_OK);
        leave();
        must(gpusync_now_ns() < limit, "%s", otherwise);
    } while (!settled(MS(2)));
}
static void dispatch_all(void) { come_to_rest(softmetal_dispatched, "callbacks do not end"); }

/* What was destroyed later is gone, and has told so. */
static void await_goers(void)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(10);
    int i;
    while (!all_are_gone()) {
        for (i = 0; i < DEVICES; i++)
            if (enter(&world.devices[i])) answer(gpusync_dispatch(device_of(&world.devices[i]), SIZE_MAX, NULL), GPUSYNC_OK);
        leave();
        must(gpusync_now_ns() < limit, "what was destroyed later does not go");
        sched_yield();
    }
    dispatch_all(); /* also those of the device: it counts what is gone */
}

static void check_callbacks(void)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(10);
    int i;
    await_goers();
    dispatch_all();
    for (i = 0; i < tally_count && i < TALLIES && !world.losable; i++) {
        while (tallies[i].expected && GET(&tallies[i].calls) == 0 && gpusync_now_ns() < limit) {
            dispatch_all(); /* of an object that goes untold, perhaps */
            sched_yield();
        }
        must(!tallies[i].expected || GET(&tallies[i].calls) == 1, "callback %d came %u times", i, GET(&tallies[i].calls));
    }
}

/* Those for which there was no place among what goes later, and those that objects keep which go untold. */
static void destroy_last_devices(void)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(10);
    int i;
    for (i = 0; i < DEVICES; i++) {
        place *d = &world.devices[i];
        while (GET(&d->taken)) {
            if (enter(d)) answer(gpusync_dispatch(device_of(d), SIZE_MAX, NULL), GPUSYNC_OK);
            leave();
            destroy_device(d, false);
            must(gpusync_now_ns() < limit || !GET(&d->taken), "the device is still in use");
            sched_yield();
        }
    }
    dispatch_all();
}

static void end_world(void)
{
    bool timelines_first = one_in(2);
    unsigned nows = byte(), laters = world.newer ? byte() : 0;
    int i;
    unstick();
    no_faults();
    if (!world.abandons) {
        come_to_rest(softmetal_settle, "the GPU does not come to rest");
        for (i = 0; i < QUEUES; i++)
            if (enter(&world.queues[i])) check_queue(&world.queues[i]);
        leave();
        check_callbacks();
    }
    destroy_warmup(&world.warmups[0]);
    leave();
    for (i = 0; i < TIMELINES && timelines_first; i++)
        destroy_timeline(&world.timelines[i], laters & 1 ? LATER : WAITING);
    leave();
    for (i = 0; i < QUEUES; i++)
        destroy_queue(&world.queues[i], laters >> i & 2 ? LATER : nows >> i & 1 ? AT_ONCE : WAITING);
    leave();
    for (i = 0; i < TIMELINES; i++) destroy_timeline(&world.timelines[i], laters & 16 ? LATER : WAITING);
    leave();
    if (!(laters & 32)) await_goers(); /* else the device goes before its objects */
    for (i = 0; i < DEVICES; i++) {
        place *d = &world.devices[i];
        gpusync_stats stats;
        if (!enter(d)) continue;
        if (laters & 32) {
            leave();
            destroy_device(d, true);
            continue;
        }
        answer(gpusync_device_get_stats(device_of(d), &stats), GPUSYNC_OK);
        must(stats.commits >= d->issued, "%llu tickets, and %llu were given", (unsigned long long)stats.commits,
             (unsigned long long)d->issued);
        must(stats.commits == d->issued || world.warms, "%llu tickets, and %llu were given",
             (unsigned long long)stats.commits, (unsigned long long)d->issued);
        leave();
        destroy_device(d, laters & 64);
    }
    await_goers();
    destroy_last_devices();
    come_to_rest(softmetal_settle, "the GPU does not come to rest");
    while (world.kept_count > 0) metal_release(world.kept[--world.kept_count]);
    while (world.event_count > 0) metal_release(world.events[--world.event_count]);
    give_back_all_that_stays();
    check_tallies();
}

/* How softmetal is: devices may differ, work takes its time and fails, handlers are late or do not come. */
static void draw_softmetal(void)
{
    softmetal_timing timing;
    softmetal_quirks quirks;
    softmetal_chaos chaos;
    unsigned how = byte(), slow = byte(), wild = byte();
    softmetal_set_seed(1 + byte());
    softmetal_get_timing(&timing);
    timing.schedule.max_ns = slow & 1 ? 10000 : 0;
    timing.execute.max_ns = (slow >> 1 & 7) * 20000;
    timing.notify.max_ns = slow & 16 ? 50000 : 0;
    timing.handler.max_ns = slow & 32 ? 50000 : 0;
    timing.event_listener.max_ns = slow & 64 ? 100000 : 0;
    timing.watchdog_ns = MS(5);
    softmetal_set_timing(&timing);
    memset(&chaos, 0, sizeof chaos);
    chaos.fail_per_mille = wild & 1 ? 100 : 0;
    chaos.late_handler_per_mille = wild & 2 ? 100 : 0;
    world.overlaps = wild & 4;
    chaos.overlap_per_mille = world.overlaps ? 300 : 0;
    softmetal_set_chaos(&chaos);
    softmetal_get_quirks(&quirks);
    quirks.status_early = how & 1;
    quirks.late_times = how & 2;
    quirks.wrapped_buffers = how & 4;
    quirks.blocks_released_late = how & 8;
    quirks.early_places = how & 16;
    quirks.bare_feedback_errors = how & 32;
    quirks.options_keep_handlers = how & 64;
    meet_if(quirks.wrapped_buffers, buffers_are_wrapped);
    meet_if(quirks.options_keep_handlers && world.mixed, commit_options_keep_handlers);
    /* Rare: what they cost is time, until gpusync looks by itself. */
    quirks.deaf_listeners = (wild >> 3) == 1;
    quirks.deaf_device = (wild >> 3) == 2;
    quirks.deaf_to_the_past = (wild >> 3) == 3;
    meet_if(quirks.deaf_listeners, listeners_are_deaf);
    softmetal_set_quirks(&quirks);
}

static void play(bool newer)
{
    pthread_t crew[CREW];
    unsigned how = byte(), what = byte(), i;
    memset(opens, 0, sizeof opens);
    memset(fours, 0, sizeof fours);
    memset(goers, 0, sizeof goers);
    goer_count = 0;
    world.until = gpusync_now_ns() + SECONDS(1);
    world.rounds = 1 + how % 8;
    world.abandons = how & 64;
    world.mixed = what & 1;
    world.losable = (what & 7) == 2 || (newer && (what & 7) == 6); /* with Metal 4 what a lost device has in flight may stay for good */
    world.lossy = (what & (newer ? 15 : 31)) == 4;
    world.short_of_memory = what & 32;
    world.nil = what & 64 && !world.mixed;
    world.newer = newer;
    world.gentle = newer && what & 128;
    draw_softmetal();
    for (i = 0; i < 8; i++) {
        if (i < 2) make_device();
        else if (i < 5) make_queue();
        else make_timeline();
        leave();
    }
    for (i = 0; i < CREW; i++) crew[i] = start(work, (void *)(uintptr_t)i);
    await_crew(crew);
    end_world();
}

/* Of ThreadSanitizer. */
void AnnotateBenignRaceSized(const char *file, int line, const volatile void *memory, size_t size, const char *why);
void AnnotateIgnoreReadsBegin(const char *file, int line);

/* -- the watchdog ------------------------------------------------------------------------------------- */

static uint64_t inputs; /* begun and ended */

static void *watch(void *argument)
{
    const char *text = getenv("FUZZ_LIMIT");
    unsigned limit = text ? (unsigned)atoi(text) : 20, same = 0, i;
    uint64_t last = 0;
    for (;;) {
        struct timespec second = {1, 0};
        uint64_t now = GET(&inputs);
        nanosleep(&second, NULL);
        same = now == last && now % 2 ? same + 1 : 0;
        last = now;
        if (same < limit) continue;
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        fprintf(stderr, "fuzz: hangs: this input takes more than %u s\n", same);
        for (i = 0; i <= MAIN; i++)
            fprintf(stderr, "  %s %u: %s, %llu steps\n",
                    i == 0      ? "callbacks"
                    : i == MAIN ? "main"
                                : "thread",
                    i, __atomic_load_n(&fuzz_doing[i], __ATOMIC_RELAXED), (unsigned long long)steps[i]);
        for (i = 0; i < DEVICES; i++)
            if (world.devices[i].object) tell_report(&world.devices[i]);
        abort();
    }
    return argument;
}

/* libFuzzer's counters of what was run: bytes that every thread counts up, as it comes. The compiler has these two names
   for itself. */
__asm__(".pushsection .data\nfuzz_counters: .quad __start___sancov_cntrs, __stop___sancov_cntrs\n.popsection\n");
extern char *const counters[2] __asm__("fuzz_counters");
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    unsigned i;
    (void)argc, (void)argv;
    begin();
    fuzz_me = MAIN;
    AnnotateBenignRaceSized(__FILE__, __LINE__, counters[0], (size_t)(counters[1] - counters[0]), "libFuzzer's");
    for (i = 0; i < LENGTH(buckets); i++) {
        pthread_mutex_init(&buckets[i].lock, NULL);
        init_condition(&buckets[i].permit);
    }
    (void)start(watch, NULL);
    return 0;
}

/* Pieces are records: so what threads do stays, and comes at other places and on other threads. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    size_t count, at, from;
    uint8_t record[RECORD];
    drawn = seed;
    if (draw_below(2)) return LLVMFuzzerMutate(data, size, most);
    if (size < HEADER + RECORD || draw_below(8) == 0) return draw_input(data, HEADER + 4 * RECORD, most);
    count = (size - HEADER) / RECORD;
    at = HEADER + RECORD * draw_below(count);
    switch (draw_below(6)) {
    case 0: draw_bytes(data + draw_below(HEADER), 1); break;
    case 1: draw_bytes(data + HEADER - 1, 1); break;
    case 2: draw_bytes(data + at, 1 + draw_below(RECORD)); break;
    case 3: /* of another thread */
        data[at] = (uint8_t)draw_below(CREW);
        break;
    case 4: /* once more, by some thread */
        from = HEADER + RECORD * draw_below(count);
        memcpy(record, data + from, RECORD);
        record[0] = (uint8_t)draw_below(CREW);
        if (open_gap(data, &size, most, at, RECORD)) memcpy(data + at, record, RECORD);
        break;
    default:
        if (open_gap(data, &size, most, at, RECORD)) draw_bytes(data + at, RECORD);
        break;
    }
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void *pool;
    if (size < 8) return 0;
    COUNT(&inputs);
    pool = metal_pool_push();
    softmetal_reset();
    memset(&world, 0, sizeof world);
    memset(steps, 0, sizeof steps);
    world.records = data + HEADER;
    world.record_count = size > HEADER ? (size - HEADER) / RECORD : 0;
    take_bytes(data, size < HEADER ? size : HEADER);
    play(size >= HEADER && data[HEADER - 1] % 4 != 3);
    metal_pool_pop(pool);
    check_nothing_is_left();
    COUNT(&inputs);
    return 0;
}
