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
#undef calloc
#undef posix_memalign

/* What the library has taken from the C library: what Metal may still touch when the program's own memory is gone.
   (And, in a device without an allocator, all else.) */
extern struct probe_memory {
    long taken;      /* how often */
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
    return probe_memory_fails() ? 12 : posix_memalign(memory, alignment, size);
}
static long probe_callocs; /* slabs of registrations */
static __attribute__((unused)) void *probe_calloc(size_t count, size_t size)
{
    if (probe_memory_fails()) return NULL;
    __atomic_fetch_add(&probe_callocs, 1, __ATOMIC_RELAXED);
    return calloc(count, size);
}
static __attribute__((unused)) void *probe_malloc(size_t size)
{
    return probe_memory_fails() ? NULL : malloc(size);
}

#define malloc(size) (locks_do_malloc("malloc", __func__), probe_malloc(size))
#define calloc(count, size) (locks_do_malloc("calloc", __func__), probe_calloc(count, size))
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
    PROBE_DEPENDENCY_LISTS, /* a submission has asked for what it waits for, and lists itself there: it looks again then */
    PROBE_LISTENS,        /* the event of a timeline is to tell of a value that others signal: it is asked to */
    PROBE_CALLBACK_LISTS, /* a callback is listed at what it is about */
    PROBE_SIGNAL_LISTS,   /* a signal of a submission is listed as pending, or is refused: the value does not rise */
    PROBE_SIGNAL_MOVES,   /* a pending signal of an open command buffer becomes that of the submission which takes it */
    PROBE_QUEUES_LISTED,  /* a wait for a device lists its queues, and once more where it had no room for so many */
    PROBE_LINES_UP,       /* a submission that is to be held stands in its line: whether it is free to go is looked at again then */
    PROBE_GIVES_UP,       /* a submission that will not go to the device is about to leave the lists of what it waits for */
    PROBE_TAKES_ROOM,     /* a submission takes the room for its own command buffers, which may be gone by now */
    PROBE_SETS_OUT,       /* the signals of a submission are issued, or one must stay behind another. No other submission does
                             the same meanwhile, and the thread keeps the device: the code calls nothing of gpusync */
    PROBE_TIMELINE        /* a call enters the timeline, to ask it or to change it: a place in many calls, but for those of
                             PROBE_SETS_OUT */
} probe_place;

/* The n-th time from now that a thread comes to the place, it runs the code. Once. timeline: the place is one of this
   timeline; NULL: of any object. The code may call gpusync, but must not wait for what the thread keeps meanwhile: in a
   commit or submission that is the queue's turn to commit. A test that names a place asserts that the code has run. */
void probe_at(probe_place place, const gpusync_timeline *timeline, int n, void (*act)(void *), void *argument);

/* The same at the n-th of all points at which a thread has nothing of the library in its hands and is about to go on:
   what another thread may do at all it may do there. A test goes through every point of a call with n = 1, 2, 3, until
   the code has not run. It asserts that there was one, and never how many. */
void probe_at_each(int n, void (*act)(void *), void *argument);

/* The same at every point, also in the middle of what other threads see as one step: the code must not wait for a thread
   that may need the same object. */
void probe_amid_each(int n, void (*act)(void *), void *argument);

/* Has the code run? If not, it will not any more. */
bool probe_has_acted(void);

/* Does the calling thread hold no lock of the library? In a function of the program it may hold none. */
bool probe_holds_no_lock(void);

/* Has it taken none since the call before this? */
bool probe_took_no_lock(void);

/* Forget what is spare of the memory from the C library, of this queue (NULL: of no queue) and of all: what is needed
   next is taken anew. It is lost for good. */
void probe_forget_spare_memory(gpusync_queue *queue);

/* Registrations with events that are in use. */
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

/* The state of a submission with this ticket, or of the one that is to signal the lowest value of the timeline; and the
   stage of the first point that it waits for: by the names of the tables in gpusync.h. A pinned submission stays until it
   is unpinned, and keeps its queue from being destroyed. */
typedef struct probe_pin probe_pin;
probe_pin *probe_pin_ticket(gpusync_queue *queue, gpusync_ticket ticket);
void probe_unpin(probe_pin *pin);
const char *probe_state_of(const probe_pin *pin);
const char *probe_stage_of_wait(const probe_pin *pin);
const char *probe_state_of_signaller(gpusync_timeline *timeline);

/* The stage of the pending signal of this value: by the names of the table in gpusync.h. */
const char *probe_stage_of_signal(gpusync_timeline *timeline, uint64_t value);

/* Whether the last of the fields that some threads write, or only read, and the first of those that others write share a
   cache line of 128 bytes. */
bool probe_shares_a_line(void);

/* The event that a Metal 4 queue signals behind all others, or NULL if it has none. */
void *probe_mark(gpusync_queue *queue);

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
    [PROBE_DEPENDENCY_LISTS] = "gpusync__list_dependency",
    [PROBE_LISTENS] = "gpusync__listen",
    [PROBE_CALLBACK_LISTS] = "gpusync__list_callback",
    [PROBE_SIGNAL_LISTS] = "gpusync__link_signal",
    [PROBE_SIGNAL_MOVES] = "gpusync__signals_of",
    [PROBE_QUEUES_LISTED] = "gpusync__wait_device",
    [PROBE_LINES_UP] = "gpusync__line_up",
    [PROBE_GIVES_UP] = "gpusync__forget_dependencies",
    [PROBE_TAKES_ROOM] = "gpusync__take_rooms",
    [PROBE_SETS_OUT] = "gpusync__set_out_now",
};
enum { PROBE_EACH = PROBE_TIMELINE + 1, PROBE_AMID_EACH };

static struct {
    int where, countdown;
    const void *lock; /* of the timeline, or NULL */
    void (*act)(void *);
    void *argument;
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
    if (where == PROBE_TIMELINE) return !probe_has_word(probe_functions[PROBE_SETS_OUT], step->function);
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
    probe_act.act(probe_act.argument);
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

static gpusync__listening *probe_forgotten; /* registrations */
static gpusync__post *probe_forgotten_posts;

void probe_forget_spare_memory(gpusync_queue *queue)
{
    gpusync__listening **end = &probe_forgotten;
    gpusync__post **last = &probe_forgotten_posts;
    if (queue) {
        gpusync__lock(&queue->waits.lock);
        queue->free_slots = NULL;
        gpusync__unlock(&queue->waits.lock);
    }
    gpusync__lock(&gpusync__global.lock);
    gpusync__global.free = NULL;
    while (*end) end = &(*end)->next;
    *end = gpusync__global.listenings;
    gpusync__global.listenings = NULL;
    while (*last) last = &(*last)->next;
    *last = gpusync__global.posts;
    gpusync__global.posts = NULL;
    gpusync__unlock(&gpusync__global.lock);
}

static long probe_length(const gpusync__listening *listening)
{
    long length = 0;
    for (; listening; listening = listening->next) length++;
    return length;
}

long probe_registrations(void)
{
    long made = __atomic_load_n(&probe_callocs, __ATOMIC_SEQ_CST) * GPUSYNC__SLAB_LISTENINGS, used;
    gpusync__lock(&gpusync__global.lock);
    used = made - probe_length(gpusync__global.listenings) - probe_length(probe_forgotten);
    gpusync__unlock(&gpusync__global.lock);
    return used;
}

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
    const gpusync__submission *s;
    const gpusync__due *due;
    unsigned count = 0;
    gpusync__lock(&queue->device->submission_lock);
    *references = 0;
    for (s = GPUSYNC__LOAD_SEQ(&queue->free_submissions); s; s = s->next) {
        *references += GPUSYNC__LOAD_SEQ(&s->refs);
        count++;
    }
    for (due = queue->device->pools[GPUSYNC__POOL_SUBMISSIONS].free; due; due = due->next) {
        s = (const gpusync__submission *)(const void *)due;
        *references += GPUSYNC__LOAD_SEQ(&s->refs);
        count++;
    }
    gpusync__unlock(&queue->device->submission_lock);
    return count;
}

probe_pin *probe_pin_ticket(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync__slot *slot = gpusync__ticket_begin(queue, ticket);
    gpusync__submission *s = slot && slot->kind == GPUSYNC__SUBMISSION ? slot->submission : NULL;
    if (s) gpusync__submission_keep(s);
    if (slot) gpusync__ticket_end(queue, slot);
    return (probe_pin *)(void *)s;
}

void probe_unpin(probe_pin *pin) { gpusync__submission_unref((gpusync__submission *)(void *)pin); }

const char *probe_state_of(const probe_pin *pin)
{
    gpusync__submission *s = (gpusync__submission *)(void *)pin;
    uint64_t ticket = GPUSYNC__LOAD_SEQ(&s->work.ticket);
    if (ticket == 0) return "entering";
    if (gpusync__has_ended(s->work.queue, ticket)) return "ended";
    if (gpusync__is_issued(s)) return GPUSYNC__LOAD_SEQ(&s->running) ? "issued" : "over";
    return s->lined ? "held" : "given up";
}

const char *probe_stage_of_wait(const probe_pin *pin)
{
    static const char *const names[] = {"AWAITED", "COMING", "ABROAD", "OVER"};
    return names[GPUSYNC__LOAD_SEQ(&((const gpusync__submission *)(const void *)pin)->dependencies->stage)];
}

const char *probe_state_of_signaller(gpusync_timeline *timeline)
{
    const char *state = "none";
    GPUSYNC__LOCK_TIMELINE(timeline);
    if (gpusync__cover(timeline, 0)) state = probe_state_of((probe_pin *)(void *)gpusync__cover(timeline, 0)->submission);
    GPUSYNC__UNLOCK_TIMELINE(timeline);
    return state;
}

const char *probe_stage_of_signal(gpusync_timeline *timeline, uint64_t value)
{
    static const char *const names[] = {"PENDING", "ISSUED"};
    const char *name = "over";
    GPUSYNC__LOCK_TIMELINE(timeline);
    const gpusync__pending_signal *signal = gpusync__cover(timeline, value);
    if (signal && signal->node.number == value) name = names[signal->stage];
    GPUSYNC__UNLOCK_TIMELINE(timeline);
    return name;
}

void *probe_mark(gpusync_queue *queue) { return GPUSYNC__LOAD_SEQ(&queue->mark); }

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
           PROBE_SHARES(gpusync_queue, last_ready, order) || PROBE_SHARES(gpusync_queue, held_buffers, waits.lock) ||
           PROBE_SHARES(gpusync_device, end, inside) || PROBE_SHARES(gpusync_device, stats, lock) ||
           PROBE_SHARES(gpusync_device, goes, waiter_lock) ||
           PROBE_SHARES(gpusync_device, free_waiters, submission_lock) || PROBE_SHARES(gpusync_timeline, label, inside) ||
           PROBE_SHARES(gpusync_timeline, place, waits.lock);
#undef PROBE_SHARES
}

#endif
#endif
