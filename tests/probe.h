/* probe.h - what a few tests ask of the library's inside, or have it do

   Public calls, softmetal and the program's hooks come first; what is here cannot do without more. This is the only
   file of the tests that names what is private to gpusync.h (tests/private.sh looks for others): when the inside
   changes, this file is written anew behind its declarations, and no test is. So each of these is a promise, and there
   should be few.

   Included in place of support.h. The bodies are compiled where the implementation is: in compile/inside.c, which most
   programs are linked with; and in a program that defines GPUSYNC_IMPLEMENTATION before this, as it changes what the
   implementation is made of. */
#ifndef PROBE_H
#define PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include "locks.h"
#undef malloc
#undef posix_memalign
#undef free

/* What the library has taken from the C library: what Metal may still touch when the program's own memory is gone.
   (And, in a device without an allocator, all else.) */
extern struct probe_memory {
    long taken;      /* how often */
    long live;       /* blocks that it has not given back; slabs it never does */
    long fail_at;    /* fail the n-th time from now, 1 is the next; 0: never */
    bool fail_after; /* and every later time */
} probe_memory;

#ifdef GPUSYNC_IMPLEMENTATION
/* Counted without an order: a thread must not seem to wait for another one here, or ThreadSanitizer sees less. */
struct probe_memory probe_memory;

static __attribute__((unused)) bool probe_memory_fails(void)
{
    long at = __atomic_load_n(&probe_memory.fail_at, __ATOMIC_SEQ_CST), next;
    __atomic_fetch_add(&probe_memory.taken, 1, __ATOMIC_RELAXED);
    do { /* in one step, as call_fails of support.h */
        if (at == 0) return false;
        next = at == 1 && probe_memory.fail_after ? 1 : at - 1;
    } while (!__atomic_compare_exchange_n(&probe_memory.fail_at, &at, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return at == 1;
}

static __attribute__((unused)) int probe_memalign(void **memory, size_t alignment, size_t size)
{
    int result = probe_memory_fails() ? 12 : posix_memalign(memory, alignment, size);
    if (result == 0) __atomic_fetch_add(&probe_memory.live, 1, __ATOMIC_RELAXED);
    return result;
}
static long probe_listening; /* what Metal's blocks of timelines lead to */
static __attribute__((unused)) void *probe_malloc(size_t size, const char *function)
{
    void *memory = probe_memory_fails() ? NULL : malloc(size);
    if (memory) __atomic_fetch_add(&probe_memory.live, 1, __ATOMIC_RELAXED);
    if (memory && strcmp(function, "gpusync__timeline_new") == 0)
        __atomic_fetch_add(&probe_listening, 1, __ATOMIC_RELAXED);
    return memory;
}
static __attribute__((unused)) void probe_free(void *memory, const char *function)
{
    if (memory && (strcmp(function, "gpusync__timeline_new") == 0 || strcmp(function, "gpusync__listening_unref") == 0))
        __atomic_fetch_sub(&probe_listening, 1, __ATOMIC_RELAXED);
    if (memory) __atomic_fetch_sub(&probe_memory.live, 1, __ATOMIC_RELAXED);
    free(memory);
}

#define malloc(size) (locks_do_malloc("malloc", __func__), probe_malloc(size, __func__))
#define free(memory) probe_free(memory, __func__)
#define posix_memalign(memory, alignment, size) \
    (locks_do_malloc("posix_memalign", __func__), probe_memalign(memory, alignment, size))
#endif
#include "../gpusync.h"
#include "support.h"

/* -- what can be asked ------------------------------------------------------------------------------------------ */

/* Places in the middle of a call. A thread that comes to one is about to do what the place says. */
typedef enum probe_place {
    PROBE_NOWHERE,
    PROBE_WAITER_LISTS,   /* a waiter has seen that what it waits for has not come, and lists itself: it looks again then */
    PROBE_WAITER_LEAVES,  /* a waiter takes itself off the list of what it waited for */
    PROBE_END_IS_TOLD,    /* a thread has found the end of a ticket: it ends that, and tells what waits for it, in one step */
    PROBE_ENTERS,         /* a submission, or an encoded signal, has asked Metal for all that it has to know, and takes its place
                             among what waits and signals, in one step: it is looked at there whether it may, and may go */
    PROBE_ENCODES,        /* the same, of an encoded wait or signal */
    PROBE_LISTENS,        /* the event of a timeline is to tell of a value that others signal: it is asked to */
    PROBE_CALLBACK_LISTS, /* a callback is listed at what it is about */
    PROBE_QUEUES_LISTED,  /* a wait for a device lists its queues, and once more where it had no room for so many */
    PROBE_UNLISTS,        /* a submission that will not go to the device leaves the list of a ticket that it waits for, or finds that
                             another thread has taken it from there. The thread keeps the graph: the code waits for no thread
                             that may need it */
    PROBE_TELLS,          /* a thread has taken what waits for a ticket off its list, and is about to tell that it is over */
    PROBE_TAKES_ROOM,     /* a submission takes the room for its own command buffers, which may be gone by now */
    PROBE_ISSUES,         /* a thread looks for held work that may go, and issues it, in one step */
    PROBE_TIMELINE        /* a call enters the timeline, to ask for its value, or to show it: a place in many calls */
} probe_place;

/* The n-th time from now that a thread comes to the place, it runs the code. Once. timeline: the place is one of this
   timeline; NULL: of any object. The code may call gpusync, but must not wait for what the thread keeps meanwhile: in a
   commit or submission that is the queue's turn to commit. A test that names a place asserts that the code has run. */
void probe_at(probe_place place, const gpusync_timeline *timeline, int n, void (*act)(void *), void *argument);

/* The same at the n-th of all points at which a thread has nothing of the library in its hands and is about to go on:
   what another thread may do at all it may do there. A test goes through every point of a call with n = 1, 2, 3, until
   the code has not run. It asserts that there was one, and never how many. */
void probe_at_each(int n, void (*act)(void *), void *argument);

/* The completed handler of the newest command buffer in flight, as Metal has it. */
void *probe_handler(gpusync_queue *queue);
/* Calls the handler once more. True: its slot was free before and is, and no other list has it. */
bool probe_calls_again(void *handler, void *buffer);

/* The same at every point, also in the middle of what other threads see as one step: the code must not wait for a thread
   that may need the same object. */
void probe_amid_each(int n, void (*act)(void *), void *argument);

/* Has the code run? If not, it will not any more. */
bool probe_has_acted(void);

/* Does the calling thread hold no lock of the library? In a function of the program it may hold none. */
bool probe_holds_no_lock(void);

/* Has it taken none since the call before this? */
bool probe_took_no_lock(void);

/* The second passes that a lost device gives its work: both looks of the sweep come, and what has not ended is given up.
   On the manual clock, whose timers fire here; not inside a dispatched function. */
void probe_give_up_lost(gpusync_device *device);

/* Both looks come, and no more, because the test has a thread stand still in a commit, whose queue cannot be given up. */
void probe_give_up_amid_a_commit(gpusync_device *device);

/* Is the first (1) or second (2) of those looks still to come? A look comes again where another thread had the lock that
   commits take. False in code of probe_at and its like: the thread that stands still there may have that lock. */
bool probe_looks_again(const gpusync_device *device, unsigned look);

/* One of those two looks, on the dispatch queue of the device's sweeps. */
void probe_look_at_lost(gpusync_device *device);

/* Was the queue's work given up? */
bool probe_is_given_up(gpusync_queue *queue);

/* Of a device, without what its queues and calls take. */
size_t probe_device_bytes(void);

/* Forget what is spare of the memory from the C library, of this queue (NULL: of no queue) and of all: what is needed
   next is taken anew. It is lost for good. */
void probe_forget_spare_memory(gpusync_queue *queue);

/* Timelines that other code signals too: those that are there, or that Metal keeps a block about. */
long probe_registrations(void);

/* What the library does where the program has no hooks. */
gpusync_hooks probe_default_hooks(void);

/* Has the library seen the end of the ticket? Without a look at Metal, and whatever came before it. */
bool probe_has_ended(gpusync_queue *queue, gpusync_ticket ticket);

/* The event of a timeline, and its base, without its being handed out: one that is may not be used again. */
void *probe_event_of(const gpusync_timeline *timeline, uint64_t *base);

/* The value that the library knows, without a look at the event; UINT64_MAX: the timeline has failed. */
uint64_t probe_value_of(const gpusync_timeline *timeline);

/* Does anything have to be told when the timeline rises? */
bool probe_is_listed(gpusync_timeline *timeline);

/* How many submissions' memory the queue and its device have to spare, and how many references there are to that. While
   nothing runs. */
unsigned probe_spare_submissions(gpusync_queue *queue, uint32_t *references);

/* The stage of a submission with this ticket, or of the one that is to signal the lowest value of the timeline ("none"), by
   the names of the table in gpusync.h. A pinned submission stays until it is unpinned, and keeps its queue from being
   destroyed. */
typedef struct probe_pin probe_pin;
probe_pin *probe_pin_ticket(gpusync_queue *queue, gpusync_ticket ticket);
probe_pin *probe_pin_signaller(gpusync_timeline *timeline); /* of the lowest value; NULL: there is none */
void probe_unpin(probe_pin *pin);
const char *probe_state_of(const probe_pin *pin);
const char *probe_state_of_signaller(gpusync_timeline *timeline);

/* Whether the last of the fields that some threads write, or only read, and the first of those that others write share a
   cache line of 128 bytes. */
bool probe_shares_a_line(void);

/* How often the library's own yield hook has given the processor away on this thread. */
uint64_t probe_yields(void);

/* Which rule of locks.h seems to be broken: see locks_pretended there. */
void probe_pretend(const char *act, int kind);

/* -- how it is found out: private names from here on ------------------------------------------------------------ */

#if defined(GPUSYNC_IMPLEMENTATION) && !defined(PROBE_BLIND) /* blind: for tests/private.sh, a test without the inside */

/* Where each place is found: the functions that take a lock there. This table alone changes with the inside. */
static const char *const probe_functions[] = {
    [PROBE_WAITER_LISTS] = "gpusync__enlist",
    [PROBE_WAITER_LEAVES] = "gpusync__delist",
    [PROBE_END_IS_TOLD] = "gpusync__leave_slot gpusync__settle gpusync__publish",
    [PROBE_ENTERS] = "gpusync__enter_submission",
    [PROBE_ENCODES] = "gpusync__encode_ordered",
    [PROBE_LISTENS] = "gpusync__listen",
    [PROBE_CALLBACK_LISTS] = "gpusync__list_callback",
    [PROBE_QUEUES_LISTED] = "gpusync__wait_together gpusync__enter_queues",
    [PROBE_UNLISTS] = "gpusync__unlist_wait",
    [PROBE_TELLS] = "gpusync__links_over",
    [PROBE_TAKES_ROOM] = "gpusync__take_rooms",
    [PROBE_ISSUES] = "gpusync__next_to_go",
};
enum { PROBE_EACH = PROBE_TIMELINE + 1, PROBE_AMID_EACH };

static struct {
    int where, countdown;
    const void *lock; /* of the timeline, or NULL */
    void (*act)(void *);
    void *argument;
    int acting; /* how many threads are in `act` */
} probe_act;

static bool probe_has_word(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (; (words = strstr(words, word)) != NULL; words += length)
        if (words[length] == '\0' || words[length] == ' ') return true;
    return false;
}

static bool probe_is_at(int where, const locks_step *step)
{
    const void *lock = __atomic_load_n(&probe_act.lock, __ATOMIC_SEQ_CST);
    if (where == PROBE_AMID_EACH) return true;
    if (where == PROBE_EACH) return step->held == 0;
    if (step->after || (lock && lock != step->lock)) return false;
    if (where == PROBE_TIMELINE) return true;
    return probe_has_word(probe_functions[where], step->function);
}

static void probe_come_by(const locks_step *step)
{
    int where = __atomic_load_n(&probe_act.where, __ATOMIC_SEQ_CST);
    if (where == PROBE_NOWHERE || !probe_is_at(where, step) ||
        __atomic_sub_fetch(&probe_act.countdown, 1, __ATOMIC_SEQ_CST) != 0 ||
        !__atomic_compare_exchange_n(&probe_act.where, &where, PROBE_NOWHERE, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST))
        return;
    __atomic_add_fetch(&probe_act.acting, 1, __ATOMIC_SEQ_CST);
    probe_act.act(probe_act.argument);
    __atomic_sub_fetch(&probe_act.acting, 1, __ATOMIC_SEQ_CST);
}

static void probe_arm(int where, const void *lock, int n, void (*act)(void *), void *argument)
{
    probe_act.act = act;
    probe_act.argument = argument;
    __atomic_store_n(&probe_act.lock, lock, __ATOMIC_SEQ_CST);
    __atomic_store_n(&locks_at_step, probe_come_by, __ATOMIC_SEQ_CST);
    __atomic_store_n(&probe_act.countdown, n, __ATOMIC_SEQ_CST);
    __atomic_store_n(&probe_act.where, where, __ATOMIC_SEQ_CST);
}

void probe_at(probe_place place, const gpusync_timeline *timeline, int n, void (*act)(void *), void *argument)
{
    probe_arm((int)place, timeline ? &timeline->waits.lock : NULL, n, act, argument);
}

void probe_at_each(int n, void (*act)(void *), void *argument)
{
    probe_arm(PROBE_EACH, NULL, n, act, argument);
}

void probe_amid_each(int n, void (*act)(void *), void *argument)
{
    probe_arm(PROBE_AMID_EACH, NULL, n, act, argument);
}

bool probe_has_acted(void)
{
    return __atomic_exchange_n(&probe_act.where, PROBE_NOWHERE, __ATOMIC_SEQ_CST) == PROBE_NOWHERE;
}

bool probe_holds_no_lock(void) { return locks_mine.count == 0; }

bool probe_took_no_lock(void)
{
    static __thread uint64_t before;
    bool none = locks_mine.taken == before;
    before = locks_mine.taken;
    return none;
}

static void probe_look_by_timer(gpusync_device *device)
{
    __atomic_store_n(&device->lost_ns, 1, __ATOMIC_SEQ_CST); /* long ago, and so is the first look */
    for (unsigned timers = softmetal_timers(); timers; timers--) softmetal_fire_timer();
}

void probe_give_up_lost(gpusync_device *device)
{
    for (unsigned look = 1; look <= 2; look++)
        do probe_look_by_timer(device);
        while (probe_looks_again(device, look));
}

void probe_give_up_amid_a_commit(gpusync_device *device)
{
    for (unsigned look = 1; look <= 2; look++) probe_look_by_timer(device);
}

__attribute__((no_sanitize("thread"))) /* no sweep runs meanwhile: each ends before its timer has fired */
bool probe_looks_again(const gpusync_device *device, unsigned look)
{
    return device->lost_ns && device->looked < look && __atomic_load_n(&probe_act.acting, __ATOMIC_SEQ_CST) == 0;
}

void probe_look_at_lost(gpusync_device *device)
{
    bool found = false;
    __atomic_store_n(&device->lost_ns, 1, __ATOMIC_SEQ_CST); /* long ago, and so is the first look */
    (void)gpusync__sweep_device(device, &found);
    (void)gpusync__next_look(device);
}

bool probe_is_given_up(gpusync_queue *queue) { return gpusync__is_given_up(queue); }

size_t probe_device_bytes(void) { return sizeof(gpusync_device); }

void probe_forget_spare_memory(gpusync_queue *queue)
{
    if (queue) {
        gpusync__lock(&queue->waits.lock);
        queue->free_slots = NULL;
        gpusync__unlock(&queue->waits.lock);
    }
    gpusync__lock(&gpusync__global.lock);
    gpusync__global.free = NULL;
    gpusync__unlock(&gpusync__global.lock);
}

long probe_registrations(void) { return __atomic_load_n(&probe_listening, __ATOMIC_SEQ_CST); }

gpusync_hooks probe_default_hooks(void)
{
    gpusync_hooks hooks = {gpusync__default_yield, gpusync__default_park, gpusync__default_unpark, NULL};
    return hooks;
}

bool probe_has_ended(gpusync_queue *queue, gpusync_ticket ticket)
{
    return gpusync__has_ended(queue, ticket);
}

void *probe_event_of(const gpusync_timeline *timeline, uint64_t *base)
{
    if (base) *base = timeline->base;
    return timeline->event;
}

uint64_t probe_value_of(const gpusync_timeline *timeline) { return gpusync__value_of(timeline); }

bool probe_is_listed(gpusync_timeline *timeline)
{
    gpusync__lock(&timeline->waits.lock);
    bool listed = gpusync__has_listed(&timeline->waits);
    gpusync__unlock(&timeline->waits.lock);
    return listed;
}

unsigned probe_spare_submissions(gpusync_queue *queue, uint32_t *references)
{
    gpusync__lock(&queue->device->submission_lock);
    void *const *spare = queue->device->pools[GPUSYNC__POOL_SUBMISSIONS].free;
    unsigned count = 0;
    for (*references = 0; spare; spare = (void *const *)*spare) {
        *references += GPUSYNC__LOAD_SEQ(&((const gpusync__submission *)(const void *)spare)->refs);
        count++;
    }
    gpusync__unlock(&queue->device->submission_lock);
    return count;
}

probe_pin *probe_pin_ticket(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync__view view;
    if (!gpusync__view_ticket(queue, ticket, &view)) return NULL;
    if (view.s) return (probe_pin *)(void *)view.s; /* with its reference */
    gpusync__view_end(queue, &view);
    return NULL;
}

probe_pin *probe_pin_signaller(gpusync_timeline *timeline)
{
    GPUSYNC__LOCK_GRAPH(timeline->device);
    const gpusync__link *first = gpusync__cover(timeline, 0);
    gpusync__submission *s = first ? first->submission : NULL;
    if (s) gpusync__submission_keep(s);
    GPUSYNC__UNLOCK_GRAPH(timeline->device);
    return (probe_pin *)(void *)s;
}

void probe_unpin(probe_pin *pin) { gpusync__submission_unref((gpusync__submission *)(void *)pin); }

static const char *probe_state(const gpusync__submission *s)
{
    static const char *const names[] = {"ENTERING", "HELD", "ISSUED", "OVER"};
    return names[s->stage];
}

const char *probe_state_of(const probe_pin *pin)
{
    gpusync__submission *s = (gpusync__submission *)(void *)pin;
    GPUSYNC__LOCK_GRAPH(s->device);
    const char *state = probe_state(s);
    GPUSYNC__UNLOCK_GRAPH(s->device);
    return state;
}

const char *probe_state_of_signaller(gpusync_timeline *timeline)
{
    GPUSYNC__LOCK_GRAPH(timeline->device);
    const gpusync__link *first = gpusync__cover(timeline, 0);
    const char *state = first ? probe_state(first->submission) : "none";
    GPUSYNC__UNLOCK_GRAPH(timeline->device);
    return state;
}

uint64_t probe_yields(void) { return locks_yields; }

void probe_pretend(const char *act, int kind)
{
    __atomic_store_n(&locks_pretended.kind, kind, __ATOMIC_RELAXED); /* other threads may read the act before */
    __atomic_store_n(&locks_pretended.act, act, __ATOMIC_SEQ_CST);
}

bool probe_shares_a_line(void)
{
#define PROBE_SHARES(type, last, first) \
    ((offsetof(type, last) + sizeof(((type *)0)->last) - 1) / 128 == offsetof(type, first) / 128)
    return PROBE_SHARES(gpusync_queue, head.completed, head.committed) ||
           PROBE_SHARES(gpusync_queue, head.committed, device) || PROBE_SHARES(gpusync_queue, label, inside) ||
           PROBE_SHARES(gpusync_queue, sent, order) || PROBE_SHARES(gpusync_queue, open, waits.lock) ||
           PROBE_SHARES(gpusync_device, trace_user, inside) || PROBE_SHARES(gpusync_device, stats, lock) ||
           PROBE_SHARES(gpusync_device, goes, graph) ||
           PROBE_SHARES(gpusync_device, asks, submission_lock) || PROBE_SHARES(gpusync_timeline, label, inside) ||
           PROBE_SHARES(gpusync_timeline, place, waits.lock);
#undef PROBE_SHARES
}

void *probe_handler(gpusync_queue *queue) { return queue->ends.flight[1]; }

bool probe_calls_again(void *handler, void *buffer)
{
    gpusync__slot *slot = (gpusync__slot *)handler, *other;
    bool was_free = gpusync__state_of(slot) == GPUSYNC__FREE;
    gpusync__completed(handler, buffer);
    for (other = gpusync__global.free; other && other != slot;) other = other->next;
    return was_free && !other && gpusync__state_of(slot) == GPUSYNC__FREE;
}

#endif
#endif
