/* probes.h - how Metal behaves, asked of Metal itself

   gpusync relies on facts that no certain public source tells: examples/metal-behaves.md calls them assumed. Each has a
   row here: the belief, what gpusync does if it is wrong, and a probe, or the reason why there is none.

   A probe talks to Metal straight, in a process of its own, with a time limit, and answers one row or more: held; NOT
   held, as also when it crashed or hung; or not tried. Include this in one file, after gpusync.h with its bodies:
   beliefs.c is the program for a Mac; test_beliefs.c runs the probes on softmetal, and fills in `help`. */
#ifndef PROBES_H
#define PROBES_H

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../examples/metal.h"

/* What a software device can do for the probes. On a Mac all of it is as it is here. */
static struct help {
    bool (*at_rest)(void);           /* nothing is on its way any more: what has not come does not come */
    bool (*turned)(const char *row); /* this row should fail: what should not come is waited for longer */
    void *(*symbol)(const char *);   /* a variable of Metal's */
    uint64_t absence_ms;             /* how long is looked for what should not come */
    uint64_t patience_ms;            /* how long is waited for what should come */
    uint64_t watchdog_ms;            /* how long is waited for Metal to give up a wait */
    unsigned blocks;                 /* as many blocks as gpusync lets wait on an event, GPUSYNC__BLOCKS */
} help = {NULL, NULL, NULL, 50, 10000, 40000, GPUSYNC__BLOCKS};

#define HELD "held"
#define NOT_HELD "NOT held"
#define NOT_TRIED "not tried"
#define IF_TRUE(good) ((good) ? HELD : NOT_HELD)

/* Flushes, before what may crash. The text follows. */
#define SAY(row, answer, ...) (printf("row\t%s\t%s\t", row, answer), printf(__VA_ARGS__), putchar('\n'), fflush(stdout))

/* The rows of the probe that have no answer yet were not tried. */
#define LEAVE(why) (SAY("*", NOT_TRIED, why), _exit(0))

static void *device;  /* MTLDevice, in the probe's process */
static bool software; /* the GPU's work is done by the CPU */

static void nap(long us)
{
    struct timespec time = {0, us * 1000};
    nanosleep(&time, NULL);
}

#define MS_SINCE(begin_ns) ((gpusync_now_ns() - (begin_ns)) / 1000000)
#define READ(count) __atomic_load_n(&(count), __ATOMIC_ACQUIRE)
#define ADD_ONE(count) __atomic_add_fetch(&(count), 1, __ATOMIC_RELEASE)

#define ABSENCE_MS(row) (help.turned && help.turned(row) ? help.patience_ms : help.absence_ms)

/* Metal brings what is waited for: where nothing is on its way any more, it does not come. */
static bool is_over(uint64_t begin, uint64_t ms)
{
    return MS_SINCE(begin) > ms || (help.at_rest && help.at_rest());
}

#define WAIT_FOR(what, ms)                                                         \
    for (uint64_t begin_ns = gpusync_now_ns(); !(what) && !is_over(begin_ns, ms);) \
    nap(50)

static bool comes_within(const unsigned *count, unsigned target, uint64_t ms)
{
    WAIT_FOR(READ(*count) >= target, ms);
    return READ(*count) >= target;
}

#define COMES(count, target) comes_within(&(count), target, help.patience_ms)

static bool reaches(void *event, uint64_t value)
{
    WAIT_FOR(metal_event_value(event) >= value, help.patience_ms);
    return metal_event_value(event) >= value;
}

static bool ends_within(void *buffer, uint64_t ms)
{
    WAIT_FOR(metal_status(buffer) >= 4, ms);
    return metal_status(buffer) >= 4;
}

#define BYTES ((size_t)4 << 20)

/* What a block leads to, and what it saw. It outlives the probe: a block may come late. */
typedef struct note {
    unsigned count, copies, drops, early_drops;
    void (*act)(struct note *note, void *argument);
    void *event, *memory, *next; /* what act looks at */
    unsigned long status;
    uint64_t value;
    double start, end; /* of the GPU */
    bool filled, error;
    unsigned place, *places, go_on; /* the order in which blocks were called */
} note;

/* As the Clang block ABI lays them out; gpusync.h builds its own in the same way. */
typedef struct note_block {
    void *isa;
    int flags, reserved;
    void (*invoke)(void *self, void *argument);
    const struct note_descriptor *descriptor;
    note *note;
} note_block;

struct note_descriptor {
    unsigned long reserved, size;
    void (*copy)(void *to, const void *from);
    void (*dispose)(const void *block);
    const char *signature;
};

extern void *probes__stack_block[32] METAL__ASM("_NSConcreteStackBlock");

static void note_copied(void *to, const void *from)
{
    (void)from;
    ADD_ONE(((note_block *)to)->note->copies);
}

static void note_dropped(const void *block)
{
    note *n = ((const note_block *)block)->note;
    n->early_drops += !READ(n->count);
    ADD_ONE(n->drops);
}

static void note_called(void *self, void *argument)
{
    note *n = ((note_block *)self)->note;
    if (n->places)
        n->place = __atomic_fetch_add(n->places, 1, __ATOMIC_RELAXED);
    if (n->act)
        n->act(n, argument);
    ADD_ONE(n->count);
}

static const struct note_descriptor of_handler = {0, sizeof(note_block), note_copied, note_dropped, "v16@?0@8"};
static const struct note_descriptor of_listener = {0, sizeof(note_block), note_copied, note_dropped, "v24@?0@8Q16"};

static note_block block_of(note *n, const struct note_descriptor *descriptor)
{
    note_block block = {probes__stack_block, 1 << 25 | 1 << 30, 0, note_called, descriptor, n}; /* helpers, signature */
    return block;
}

static void give_block(void *object, const char *selector, note *n)
{
    note_block block = block_of(n, &of_handler);
    metal_set(object, selector, &block);
}

static void add_handler(void *buffer, note *n)
{
    give_block(buffer, "addCompletedHandler:", n);
}

#define NEW_QUEUE() metal_queue_new(device, 64)
#define MANY (software ? 4u : 500u) /* fills that take a GPU some milliseconds; software does them on the CPU */

static void fill(void *buffer, void *memory, unsigned value, unsigned times)
{
    void *blit = metal_blit_begin(buffer);
    for (unsigned i = 0; i < times; i++)
        metal_fill(blit, memory, 0, BYTES, (unsigned char)value);
    metal_end(blit);
}

/* Memory whose use keeps no command buffers apart. */
static void *untracked_new(void)
{
    const unsigned long untracked = 256; /* MTLResourceHazardTrackingModeUntracked */
    return METAL__AS(void *, unsigned long, unsigned long)(device, metal__sel("newBufferWithLength:options:"), BYTES,
                                                           untracked);
}

static unsigned char last_byte(void *memory)
{
    return ((volatile unsigned char *)metal_contents(memory))[BYTES - 1];
}

/* A command buffer of its own raises the event. */
static void *signal_from(void *queue, void *event, uint64_t value)
{
    void *buffer = metal_queue_command_buffer(queue);
    metal_encode_signal(buffer, event, value);
    metal_commit(buffer);
    return buffer;
}

static bool responds(void *object, const char *selector)
{
    return METAL__AS(signed char, void *)(object, metal__sel("respondsToSelector:"), metal__sel(selector)) != 0;
}

static void *new_event(void)
{
    void *event = metal_shared_event_new(device);
    if (!event)
        LEAVE("there is no shared event");
    return event;
}

static void look_at_end(note *n, void *buffer)
{
    n->status = metal_status(buffer);
    n->start = metal_gpu_start(buffer);
    n->end = metal_gpu_end(buffer);
    n->value = metal_event_value(n->event);
}

static void probe_handler(void)
{
    enum { ROUNDS = 50 };
    void *queue = NEW_QUEUE(), *memory = metal_buffer_new(device, BYTES), *event = new_event();
    unsigned i, terminal = 0, signalled = 0, filled = 0, right = 0, dropped = 0;
    for (i = 0; i < ROUNDS; i++) {
        void *buffer = metal_queue_command_buffer(queue);
        note *n = (note *)calloc(1, sizeof *n);
        double before = (double)gpusync_now_ns() / 1e9, after;
        n->act = look_at_end;
        n->event = event;
        add_handler(buffer, n);
        fill(buffer, memory, i + 1, 1);
        metal_encode_signal(buffer, event, i + 1);
        metal_commit(buffer);
        while (metal_status(buffer) < 4)
            continue;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        filled += last_byte(memory) == i + 1;
        if (!COMES(n->count, 1))
            break;
        metal_wait_until_completed(buffer);
        after = (double)gpusync_now_ns() / 1e9;
        metal_release(buffer);
        terminal += n->status >= 4;
        signalled += n->value >= i + 1;
        right += n->start > before - 1e-3 && n->end >= n->start && n->end < after + 1e-3; /* clocks are converted */
        COMES(n->drops, n->copies);
        dropped += n->count == 1 && n->copies == 1 && n->drops == 1 && !n->early_drops;
    }
    SAY("status and bytes", IF_TRUE(filled >= i && filled), "%u of %u times memory was filled when status was terminal",
        filled, i);
    SAY("block", IF_TRUE(dropped == ROUNDS), "%u of %u blocks were copied once, ran once, and were dropped then", dropped,
        ROUNDS);
    if (i < ROUNDS)
        LEAVE("a handler did not come");
    SAY("status first", IF_TRUE(terminal == i), "%u of %u handlers saw a terminal status", terminal, i);
    SAY("signal first", IF_TRUE(signalled == i), "%u of %u handlers saw the value", signalled, i);
    SAY("times", IF_TRUE(right == i), "%u of %u handlers found them between the commit and now", right, i);
}

/* As a timeline reads an event that other code signals. */
static void probe_value(void)
{
    enum { ROUNDS = 50 };
    void *queue = NEW_QUEUE(), *memory = metal_buffer_new(device, BYTES), *event = new_event();
    unsigned i, filled = 0;
    for (i = 0; i < ROUNDS; i++) {
        void *buffer = metal_queue_command_buffer(queue);
        fill(buffer, memory, i + 1, 1);
        metal_encode_signal(buffer, event, i + 1);
        metal_commit(buffer);
        if (!reaches(event, i + 1))
            break;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        filled += last_byte(memory) == i + 1;
    }
    SAY("value and bytes", IF_TRUE(filled == ROUNDS), "%u of %u times memory was filled when the event had the value",
        filled, ROUNDS);
}

static void probe_handler_order(void)
{
    enum { HANDLERS = 16 };
    static note notes[HANDLERS];
    static unsigned places;
    void *buffer = metal_queue_command_buffer(NEW_QUEUE());
    unsigned i, came = 0, right = 0;
    for (i = 0; i < HANDLERS; i++) {
        notes[i].places = &places;
        add_handler(buffer, &notes[i]);
    }
    metal_commit(buffer);
    for (i = 0; i < HANDLERS; i++) {
        came += COMES(notes[i].count, 1);
        right += notes[i].place == i;
    }
    if (came == HANDLERS)
        SAY("handler order", IF_TRUE(right == HANDLERS), "%u of %u in the place in which they were added", right, came);
}

/* As gpusync does where a handler tells that held work may go; and then the handler takes its time. */
static void commit_and_wait(note *n, void *buffer)
{
    static note inner;
    (void)buffer;
    metal_encode_signal(n->next, n->event, 1);
    add_handler(n->next, &inner);
    metal_commit(n->next);
    while (!READ(n->go_on))
        nap(50);
}

static void probe_slow_handler(void)
{
    static note n;
    static unsigned begun;
    void *queue = NEW_QUEUE(), *slow = metal_queue_command_buffer(queue), *next = metal_queue_command_buffer(queue);
    n = (note){.act = commit_and_wait, .places = &begun, .next = next, .event = metal_shared_event_new(device)};
    add_handler(slow, &n);
    metal_commit(slow);
    if (!COMES(begun, 1))
        return;
    bool kept = !ends_within(next, ABSENCE_MS("slow handler"));
    ADD_ONE(n.go_on);
    bool ended = ends_within(next, help.patience_ms) && metal_event_value(n.event) == 1;
    SAY("slow handler", IF_TRUE(kept && ended), "the status of the one behind it was %s while the handler ran",
        kept ? "kept back" : "terminal");
    SAY("commit in a handler", IF_TRUE(ended), "what the handler committed %s", ended ? "ended" : "did not end");
}

/* Main thread of a process that has no pool. The runtime tells of objects that are autoreleased there; Apple's does as
   OBJC_DEBUG_MISSING_POOLS is set. Whether it does is tried first. */
static void probe_pool(void)
{
    void *buffer = metal_queue_command_buffer(NEW_QUEUE());
    FILE *file = tmpfile();
    off_t sizes[3];
    if (!file || dup2(fileno(file), 2) < 0)
        LEAVE("there is no place for a file");
    metal_get(metal_string_new("a text that is too long for a tagged pointer on any system"), "autorelease");
    sizes[0] = lseek(2, 0, SEEK_END);
    metal_commit(buffer);
    metal_wait_until_completed(buffer);
    sizes[1] = lseek(2, 0, SEEK_END);
    for (unsigned i = 0; i < 32; i++)
        (void)metal_status(buffer);
    sizes[2] = lseek(2, 0, SEEK_END);
    SAY("status without a pool", sizes[0] > 0 ? IF_TRUE(sizes[2] == sizes[1]) : NOT_TRIED,
        "the runtime said %ld bytes of an object without a pool, and %ld of 32 reads of the status", (long)sizes[0],
        (long)(sizes[2] - sizes[1]));
}

/* An empty command buffer behind one that works for long, or waits at first. They share nothing that is tracked. */
static void follow(const char *row, bool waits)
{
    enum { ROUNDS = 5 };
    void *queue = NEW_QUEUE(), *memory = untracked_new(), *gate = new_event();
    unsigned behind = 0, sooner = 0;
    for (unsigned i = 1; i <= ROUNDS; i++) {
        void *work = metal_queue_command_buffer(queue), *empty = metal_queue_command_buffer(queue);
        if (waits)
            metal_encode_wait(work, gate, i);
        fill(work, memory, 1, waits ? MANY : 4 * MANY);
        metal_commit(work);
        metal_commit(empty);
        if (!ends_within(empty, waits ? ABSENCE_MS(row) : help.patience_ms)) {
            metal_event_signal(gate, i);
            ends_within(empty, help.patience_ms);
        }
        behind += metal_status(work) >= 4;
        metal_event_signal(gate, i); /* if the empty one was early */
        metal_wait_until_completed(work);
        metal_wait_until_completed(empty);
        sooner += metal_gpu_end(empty) > 0 && metal_gpu_end(empty) < metal_gpu_end(work);
    }
    SAY(row, IF_TRUE(behind == ROUNDS),
        "when the empty one had ended, %u of %u times the work had; the GPU had ended the empty one first %u times",
        behind, ROUNDS, sooner);
}

static void probe_empty_behind(void)
{
    follow("empty behind", false);
    follow("empty behind a wait", true);
}

/* Whether a command buffer does its work while the one before it waits, which works then, or not. */
static bool passes(bool works)
{
    enum { SHORT_MS = 1000 }; /* Metal does not give up a wait as soon */
    void *queue = NEW_QUEUE(), *gate = new_event(), *event = new_event();
    void *front = metal_queue_command_buffer(queue), *next = metal_queue_command_buffer(queue);
    metal_encode_wait(front, gate, 1);
    if (works)
        fill(front, untracked_new(), 1, 1);
    fill(next, untracked_new(), 1, 1);
    metal_encode_signal(next, event, 1);
    metal_commit(front);
    metal_commit(next);
    WAIT_FOR(metal_event_value(event), SHORT_MS);
    bool passed = metal_event_value(event) == 1;
    metal_event_signal(gate, 1);
    metal_wait_until_completed(next);
    return passed;
}

static void probe_wait_alone(void)
{
    bool works = passes(true), alone = passes(false);
    SAY("wait alone", works || alone ? IF_TRUE(alone) : NOT_TRIED,
        "behind one that waits and works the next one's work %s, behind one that only waits it %s",
        works ? "was done" : "was held back", alone ? "was done" : "was held back");
}

/* For a handler: how the command buffer before its own stands. */
static void look_before(note *n, void *buffer)
{
    (void)buffer;
    n->status = n->next ? metal_status(n->next) : 4;
}

/* By turns long work, and none. */
static void probe_ends(void)
{
    enum { BUFFERS = 16 };
    static note notes[BUFFERS];
    static unsigned places;
    void *queue = NEW_QUEUE(), *memory = untracked_new(), *buffers[BUFFERS];
    unsigned i, came = 0, right = 0, terminal = 0;
    bool overtaken = false;
    for (i = 0; i < BUFFERS; i++) {
        buffers[i] = metal_queue_command_buffer(queue);
        notes[i].places = &places;
        notes[i].act = look_before;
        notes[i].next = i ? buffers[i - 1] : NULL;
        add_handler(buffers[i], &notes[i]);
        if (i % 2 == 0)
            fill(buffers[i], memory, 1, MANY);
    }
    for (i = 0; i < BUFFERS; i++)
        metal_commit(buffers[i]);
    while (metal_status(buffers[0]) < 4 || metal_status(buffers[BUFFERS - 1]) < 4)
        for (i = BUFFERS - 1; i > 0; i--) /* a later one first */
            overtaken |= metal_status(buffers[i]) >= 4 && metal_status(buffers[i - 1]) < 4;
    for (i = 0; i < BUFFERS; i++) {
        came += COMES(notes[i].count, 1);
        right += notes[i].place == i;
        terminal += notes[i].status >= 4;
    }
    if (came == BUFFERS)
        SAY("ends in order", IF_TRUE(right == came && terminal == came && !overtaken),
            "%u of %u handlers came in their place, %u saw the end of the one before; a later status was terminal %s",
            right, came, terminal, overtaken ? "first" : "never first");
}

static void *five[6]; /* a queue of four places, and its command buffers */
static unsigned made;

static void *make_five(void *unused)
{
    for (unsigned i = 1; i <= 5; i++, ADD_ONE(made))
        five[i] = metal_queue_command_buffer(five[0]);
    return unused;
}

static void probe_limit(void)
{
    pthread_t thread;
    help.at_rest = NULL; /* it knows nothing of the thread */
    five[0] = metal_queue_new(device, 4);
    if (pthread_create(&thread, NULL, make_five, NULL))
        return;
    pthread_detach(thread); /* it may wait for ever */
    bool early = !COMES(made, 4) || comes_within(&made, 5, ABSENCE_MS("limit"));
    metal_release(five[1]); /* its last reference */
    bool late = !COMES(made, 5);
    SAY("limit", IF_TRUE(!early && !late), "the fifth of 4 allowed %s, and %s when one was released",
        early ? "did not wait" : "waited", late ? "did not come" : "came");
}

static void probe_signal_order(void)
{
    enum { ROUNDS = 20 };
    void *queue = NEW_QUEUE(), *memory = metal_buffer_new(device, BYTES), *event = new_event(), *gate = new_event();
    unsigned right[2] = {0};
    memset(metal_contents(memory), 0, BYTES);
    for (unsigned i = 1; i <= ROUNDS; i++) {
        void *slow = metal_queue_command_buffer(queue), *quick;
        bool waits = i % 2 == 0;
        if (waits)
            metal_encode_wait(slow, gate, i);
        fill(slow, memory, i, MANY);
        metal_encode_signal(slow, event, 2 * i - 1);
        metal_commit(slow);
        quick = signal_from(queue, event, 2 * i);
        if (waits)
            WAIT_FOR(metal_event_value(event) >= 2 * i, ABSENCE_MS("signals in order"));
        bool early = waits && metal_event_value(event) >= 2 * i;
        metal_event_signal(gate, i);
        if (!reaches(event, 2 * i))
            break;
        right[waits] += !early && last_byte(memory) == i;
        metal_wait_until_completed(slow);
        metal_wait_until_completed(quick);
        metal_release(quick);
        metal_release(slow);
    }
    SAY("signals in order", IF_TRUE(right[0] + right[1] == ROUNDS),
        "the first one's work was there at the second's signal %u of %u times, and %u of %u where it waited at first",
        right[0], ROUNDS / 2, right[1], ROUNDS / 2);
}

static void probe_falling(void)
{
    void *event = new_event();
    metal_event_signal(event, 5);
    metal_event_signal(event, 3);
    uint64_t by_cpu = metal_event_value(event);
    metal_event_signal(event, 5);
    metal_wait_until_completed(signal_from(NEW_QUEUE(), event, 4));
    uint64_t by_gpu = metal_event_value(event);
    SAY("events rise", IF_TRUE(by_cpu == 5 && by_gpu == 5), "at 5, the CPU wrote 3: %llu, the GPU wrote 4: %llu",
        (unsigned long long)by_cpu, (unsigned long long)by_gpu);
}

extern void *probes__queue_create(const char *, void *) METAL__ASM("dispatch_queue_create");

static void listen_to(void *event, uint64_t value, note *n)
{
    static void *listener;
    note_block block = block_of(n, &of_listener);
    if (!listener)
        listener =
            METAL__AS(void *, void *)(metal_get(metal__class("MTLSharedEventListener"), "alloc"),
                                      metal__sel("initWithDispatchQueue:"), probes__queue_create("beliefs", NULL));
    METAL__AS(void, void *, uint64_t, void *)
    (event, metal__sel("notifyListener:atValue:block:"), listener, value, &block);
}

enum raiser { BY_CPU, BY_GPU, BEFORE_IT_WAS_ASKED };

static void hear(const char *row, enum raiser by)
{
    enum { ROUNDS = 20 };
    note *notes = (note *)calloc(ROUNDS, sizeof *notes);
    void *event = new_event(), *queue = NEW_QUEUE();
    unsigned i, dropped = 0;
    for (i = 0; i < ROUNDS; i++) {
        if (by == BEFORE_IT_WAS_ASKED)
            metal_wait_until_completed(signal_from(queue, event, i + 1));
        listen_to(event, i + 1, &notes[i]);
        if (by == BY_CPU)
            metal_event_signal(event, i + 1);
        if (by == BY_GPU)
            signal_from(queue, event, i + 1);
        if (!COMES(notes[i].count, 1))
            break;
        dropped += COMES(notes[i].drops, notes[i].copies);
    }
    SAY(row, IF_TRUE(dropped == ROUNDS), "%u of %u blocks came, %u were dropped then", i, ROUNDS, dropped);
}

static void probe_listener(void)
{
    hear("listener, CPU", BY_CPU);
    hear("listener, GPU", BY_GPU);
    hear("listener, reached", BEFORE_IT_WAS_ASKED);
}

/* Blocks whose values never come. Metal may refuse with an exception, which ends the process. */
static void probe_many_blocks(void)
{
    static note never;
    void *event = new_event();
    for (unsigned i = 0; i < help.blocks; i++)
        listen_to(event, i + 1, &never);
    SAY("many blocks", IF_TRUE(!never.count), "%u blocks wait on one event", help.blocks);
}

/* The code of the error inside; -1: there is none. Within a pool. */
static long inner_code(void *error)
{
    void *key = metal_string_new("NSUnderlyingError");
    error = METAL__AS(void *, void *)(metal_get(error, "userInfo"), metal__sel("objectForKey:"), key);
    metal_release(key);
    return error ? METAL__AS0(long)(error, metal__sel("code")) : -1;
}

/* A wait for a value that no thread signals: Metal's own limit ends the command buffer. No other way to a failed one is
   known to leave the machine usable. */
static void probe_killed(void)
{
    static note n;
    void *buffer = metal_queue_command_buffer(NEW_QUEUE()), *never = new_event(), *event = new_event(), *error;
    uint64_t begin = gpusync_now_ns();
    char text[200];
    n.act = look_at_end;
    n.event = event;
    metal_encode_wait(buffer, never, 1);
    metal_encode_signal(buffer, event, 1);
    add_handler(buffer, &n);
    metal_commit(buffer);
    if (!ends_within(buffer, help.watchdog_ms) || metal_status(buffer) != 5) {
        SAY("watchdog", NOT_HELD, "status %lu after %.1f s", metal_status(buffer), (double)MS_SINCE(begin) / 1e3);
        return;
    }
    (void)metal_pool_push();
    error = metal_get(buffer, "error");
    metal_error_copy(error, text, sizeof text);
    SAY("watchdog", IF_TRUE(error != NULL), "after %.1f s, code %ld: %s", (double)MS_SINCE(begin) / 1e3,
        (long)metal_number(error, "code"), text);
    SAY("driver's number", IF_TRUE(inner_code(error) == 2 || strstr(text, "(00000002:") || strstr(text, "code 2)")),
        "the error inside has code %ld", inner_code(error));
    SAY("killed, handler", IF_TRUE(COMES(n.count, 1) && n.status == 5),
        "%u came, and saw status %lu, the signal at %llu", n.count, n.status, (unsigned long long)n.value);
}

/* As gpusync waits for the lower value of a timeline before it signals a higher one. */
static void probe_killed_at_end(void)
{
    void *buffer = metal_queue_command_buffer(NEW_QUEUE()), *never = new_event(), *event = new_event();
    void *memory = metal_buffer_new(device, BYTES);
    uint64_t begin = gpusync_now_ns();
    fill(buffer, memory, 1, 1);
    metal_encode_wait(buffer, never, 1);
    metal_encode_signal(buffer, event, 1);
    metal_commit(buffer);
    ends_within(buffer, help.watchdog_ms);
    SAY("watchdog, at the end", IF_TRUE(metal_status(buffer) == 5),
        "status %lu after %.1f s, the work %s, the signal at %llu", metal_status(buffer), (double)MS_SINCE(begin) / 1e3,
        last_byte(memory) ? "was done" : "was not done", (unsigned long long)metal_event_value(event));
}

/* Of how many blocks Metal has dropped all copies. */
static unsigned dropped_of(const note *notes, unsigned count)
{
    unsigned dropped = 0;
    for (unsigned i = 0; i < count; i++)
        dropped += READ(notes[i].copies) && READ(notes[i].drops) == READ(notes[i].copies);
    return dropped;
}

static void probe_scheduled(void)
{
    static note notes[2];
    void *queue = NEW_QUEUE(), *run = metal_queue_command_buffer(queue), *never = metal_queue_command_buffer(queue);
    if (!responds(run, "addScheduledHandler:"))
        LEAVE("not asked: no scheduled handlers here");
    give_block(run, "addScheduledHandler:", &notes[0]);
    give_block(never, "addScheduledHandler:", &notes[1]);
    metal_commit(run);
    metal_release(run);
    metal_release(never); /* its last reference */
    WAIT_FOR(dropped_of(notes, 2) == 2, help.patience_ms);
    SAY("scheduled once", IF_TRUE(dropped_of(notes, 2) == 2 && notes[0].count == 1 && notes[1].count < 2),
        "%u calls of a committed one's, %u of a released one's; %u of 2 blocks were dropped", notes[0].count,
        notes[1].count, dropped_of(notes, 2));
}

static void look_at_frame(note *n, void *drawable)
{
    n->end = METAL__AS0(double)(drawable, metal__sel("presentedTime"));
}

/* As many frames at once as a layer has: some of those that are presented may be dropped. */
static void show(const char *row, bool present)
{
    enum { FRAMES = 3 };
    const metal_extent another = {32, 32};
    note *notes = (note *)calloc(FRAMES, sizeof *notes);
    void *layer = metal_layer_new(device, 64, 64), *buffer = metal_queue_command_buffer(NEW_QUEUE()), *drawable;
    void *pool = metal_pool_push();
    unsigned frames = 0, called = 0, twice = 0, shown = 0, dropped;
    while (frames < FRAMES && responds(drawable = metal_next_drawable(layer), "addPresentedHandler:")) {
        notes[frames].act = look_at_frame;
        give_block(drawable, "addPresentedHandler:", &notes[frames++]);
        if (present)
            metal_present(buffer, drawable);
    }
    metal_commit(buffer);
    metal_pool_pop(pool);
    if (!frames)
        LEAVE("not asked: no drawable here");
    WAIT_FOR(dropped_of(notes, frames) == frames, help.patience_ms);
    dropped = dropped_of(notes, frames);
    METAL__AS(void, metal_extent)(layer, metal__sel("setDrawableSize:"), another); /* has ended frames */
    WAIT_FOR(dropped_of(notes, frames) == frames, help.patience_ms);
    for (unsigned i = 0; i < frames; i++) {
        called += READ(notes[i].count) == 1;
        twice += notes[i].count > 1;
        shown += notes[i].end > 0;
    }
    SAY(row, IF_TRUE(dropped == frames && !twice),
        "of %u blocks %u were called once, %u more often, %u with a time; %u were dropped, %u once the layer was resized",
        frames, called, twice, shown, dropped, dropped_of(notes, frames));
}

static void probe_presented(void)
{
    dlopen("/System/Library/Frameworks/QuartzCore.framework/QuartzCore", RTLD_NOW);
    show("presented once", true);
    show("presented never", false);
}

static void probe_encoder_key(void)
{
    static const char name[] = "MTLCommandBufferEncoderInfoErrorKey";
    void **key = (void **)(help.symbol ? help.symbol(name) : dlsym(RTLD_DEFAULT, name));
    char text[80] = "";
    if (!key)
        return;
    metal_string_copy(*key, text, sizeof text);
    SAY("encoder's key", IF_TRUE(!strcmp(text, name)), "its text is \"%s\"", text);
}

typedef struct work4 {
    void *queue, *buffer, *memory, *event;
} work4;

static bool has_family4(void)
{
    return responds(device, "supportsFamily:") &&
           METAL__AS(signed char, long)(device, metal__sel("supportsFamily:"), GPUSYNC__FAMILY_METAL4) != 0;
}

static bool make4(work4 *w)
{
    w->queue = metal4_queue_new(device);
    w->buffer = metal4_buffer_new(device);
    w->memory = metal_buffer_new(device, BYTES);
    w->event = new_event();
    if (!w->queue || !w->buffer || !w->memory)
        return false;
    memset(metal_contents(w->memory), 0, BYTES);
    metal4_queue_use(w->queue, metal_residency_new(device, &w->memory, 1));
    return true;
}

static work4 open4(void)
{
    work4 w;
    if (!has_family4() || !responds(device, "newMTL4CommandQueue") || !make4(&w))
        LEAVE("there is no Metal 4");
    return w;
}

static void look_at_feedback(note *n, void *feedback)
{
    void *pool = metal_pool_push();
    n->error = metal_get(feedback, "error") != NULL;
    n->filled = n->memory && last_byte(n->memory) != 0; /* no later commit writes there meanwhile */
    metal_pool_pop(pool);
}

/* value 0: a command buffer without work. n NULL: no feedback. */
static void commit4(const work4 *w, unsigned value, note *n)
{
    void *options = n ? metal4_options_new() : NULL;
    metal4_begin(w->buffer, metal4_allocator_new(device));
    if (value) {
        void *encoder = metal_compute_begin(w->buffer);
        metal4_barrier(encoder); /* commits of one queue may overlap */
        metal_fill(encoder, w->memory, 0, BYTES, (unsigned char)value);
        metal_end(encoder);
    }
    metal4_end(w->buffer);
    if (n) {
        note_block block = block_of(n, &of_handler);
        n->act = look_at_feedback;
        metal4_add_feedback_handler(options, &block);
    }
    metal4_commit(w->queue, &w->buffer, 1, options);
    metal_release(options);
}

static void probe_family(void)
{
    bool family = has_family4(), method = responds(device, "newMTL4CommandQueue");
    work4 w;
    if (!family && method)
        return;
    SAY("Metal 4's family", IF_TRUE(!family || (method && make4(&w))), "the device is %s the family, and has %s method",
        family ? "of" : "not of", method ? "the" : "no");
}

static void probe_feedback(void)
{
    static note n;
    work4 w = open4();
    n.memory = w.memory;
    commit4(&w, 1, &n);
    commit4(&w, 0, NULL);
    metal4_signal(w.queue, w.event, 1);
    reaches(w.event, 1);
    COMES(n.count, 1);
    comes_within(&n.count, 2, ABSENCE_MS("feedback once"));
    COMES(n.drops, n.copies);
    SAY("feedback once", IF_TRUE(n.count == 1 && n.filled && n.copies == 1 && n.drops == 1),
        "%u feedbacks of one commit; the work was %s; %u of %u copies of the block were dropped", n.count,
        n.filled ? "done" : "not done", n.drops, n.copies);
}

static void probe_feedback_gate(void)
{
    static note n;
    work4 w = open4();
    void *gate = new_event();
    metal4_wait(w.queue, gate, 1);
    commit4(&w, 0, &n);
    bool early = comes_within(&n.count, 1, ABSENCE_MS("feedback behind a wait"));
    signal_from(NEW_QUEUE(), gate, 1);
    SAY("feedback behind a wait", IF_TRUE(!early && COMES(n.count, 1)), "it came %s the gate was open",
        early ? "before" : "when");
}

static void probe_commits(void)
{
    enum { COMMITS = 200 };
    static note notes[COMMITS];
    unsigned good = 0;
    work4 w = open4();
    void *gate = new_event();
    metal4_wait(w.queue, gate, 1);
    for (unsigned i = 0; i < COMMITS; i++)
        commit4(&w, i + 1, &notes[i]);
    metal4_signal(w.queue, w.event, 1);
    signal_from(NEW_QUEUE(), gate, 1);
    for (unsigned i = 0; i < COMMITS; i++)
        good += COMES(notes[i].count, 1) && !notes[i].error;
    reaches(w.event, 1);
    SAY("commits", IF_TRUE(good == COMMITS && last_byte(w.memory) == COMMITS),
        "one command buffer, %u commits behind a wait: %u feedbacks without an error, the last byte is %u", COMMITS,
        good, last_byte(w.memory));
}

/* Two signals with nothing in between: where the second is seen, the first has to be there. */
static void probe_signals4(void)
{
    enum { ROUNDS = 50 };
    unsigned i, right = 0;
    work4 w = open4();
    void *second = new_event();
    for (i = 1; i <= ROUNDS; i++) {
        uint64_t begin = gpusync_now_ns();
        commit4(&w, i, NULL);
        metal4_signal(w.queue, w.event, i);
        metal4_signal(w.queue, second, i);
        while (metal_event_value(second) < i && MS_SINCE(begin) < help.patience_ms)
            continue;
        right += metal_event_value(w.event) >= i;
        if (!reaches(w.event, i))
            break;
    }
    SAY("signals in order, Metal 4", IF_TRUE(right == ROUNDS),
        "%u of %u times the first was there when the second was seen", right, ROUNDS);
}

static void probe_wait4(void)
{
    static note n;
    uint64_t begin = gpusync_now_ns();
    work4 w = open4();
    void *never = new_event();
    n.memory = w.memory;
    metal4_wait(w.queue, never, 1);
    commit4(&w, 1, &n);
    bool came = comes_within(&n.count, 1, help.watchdog_ms);
    SAY("wait times out", IF_TRUE(came && !n.error && n.filled), "%s after %.1f s, %s error, the work %s",
        came ? "a feedback" : "no feedback", (double)MS_SINCE(begin) / 1e3, n.error ? "with an" : "without an",
        n.filled ? "was done" : "was not done");
}

typedef struct belief {
    const char *name, *text, *otherwise; /* otherwise: what gpusync does where Metal behaves differently */
    void (*probe)(void);                 /* rows of one probe stand together; NULL: there is none */
    const char *probe_name;              /* or why there is none */
} belief;

#define ROW(name, probe, belief, otherwise)            \
    {                                                  \
        name, belief, otherwise, probe_##probe, #probe \
    }

/* clang-format off */
static const belief rows[] = {
    ROW("status and bytes", handler, "who reads a terminal status, and fences, sees what the GPU wrote",
        "a wait that ends by a look returns before the memory is right"),
    ROW("block", handler, "a handler's block on the stack is copied once, runs once, and is dropped then",
        "gpusync_device_destroy waits a second, and the log says that gpusync must stay loaded"),
    ROW("status first", handler, "handlers see the terminal status",
        "gpusync asks for the error: work without one has succeeded"),
    ROW("signal first", handler, "handlers see the signals of their command buffer in the event",
        "a value is reached for gpusync while the event shows it late; other code may see that"),
    ROW("times", handler, "handlers find the GPU's times, in seconds of the clock of gpusync_now_ns",
        "gpusync_times and the trace show what Metal says; wake_ns of gpusync_stats is wrong"),
    ROW("value and bytes", value, "a thread that reads an event's value, and fences, sees what the GPU wrote before",
        "a wait for a value of other code returns before the memory is right"),
    ROW("handler order", handler_order, "the handlers of a command buffer run in the order of their addition",
        "a wait with options.handlers may return before a handler of the program has run"),
    ROW("slow handler", slow_handler, "while a handler runs, later command buffers of the queue show no end",
        "their waits end earlier"),
    ROW("commit in a handler", slow_handler, "a handler may encode a signal into another command buffer, and commit it",
        "work that was held never ends where Metal's thread sends it"),
    ROW("status without a pool", pool, "reading the status autoreleases nothing",
        "a thread without a pool leaks an object at each look"),
    ROW("empty behind", empty_behind, "an empty command buffer ends no earlier than those before it in its queue",
        "the ticket of a marker without `behind` ends, and memory seems free, while other code's work still runs"),
    ROW("empty behind a wait", empty_behind, "the same behind one that waits for an event at first",
        "the same, where the other code's work waits"),
    ROW("wait alone", wait_alone, "a command buffer that only waits does not hold back the next one's work",
        "nothing breaks: waits of a submission ON_GPU keep untracked work back, too"),
    ROW("ends in order", ends, "status and handlers show the ends of a queue's command buffers in the order of commits",
        "nothing breaks: a ticket ends when those before it have"),
    ROW("limit", limit, "commandBuffer blocks at the queue's limit; uncommitted command buffers count",
        "a program's own queue has more room than gpusync uses"),
    ROW("signals in order", signal_order, "command buffers of one queue make their signals in their order",
        "nothing breaks: the GPU waits for the lower one first; values of other code may come too early"),
    ROW("events rise", falling, "a value that is lower than the event's changes nothing",
        "the host writes its values, and the GPU's next one, once more"),
    ROW("listener, CPU", listener, "a listener's block comes when the CPU raises the event, and is dropped then",
        "values of other code are found by looks, after 50 to 400 ms"),
    ROW("listener, GPU", listener, "it comes when the GPU raises the event", "as for the CPU"),
    ROW("listener, reached", listener, "it comes when the value was reached before",
        "nothing: gpusync reads the event after it has asked"),
    ROW("many blocks", many_blocks, "as many blocks as gpusync lets wait on an event raise no exception",
        "the process ends: no C code can catch it"),
    ROW("watchdog", killed, "Metal ends a command buffer whose wait takes too long, with an error",
        "work that waits for a value of other code may never end: gpusync_queue_abandon"),
    ROW("driver's number", killed, "the error of a time limit has the driver's number 2, inside or in the text",
        "Metal's code decides the class of the failure"),
    ROW("killed, handler", killed, "the handler of a killed command buffer comes, and sees the error",
        "a look finds the end, after 50 to 400 ms"),
    ROW("watchdog, at the end", killed_at_end, "it does so where the wait is the command buffer's end, behind its work",
        "a wait that a program encodes there may never end: gpusync_queue_abandon; gpusync ends its own"),
    ROW("scheduled once", scheduled, "a block of addScheduledHandler: is called once, or dropped if never committed",
        "neither: a value of gpusync_timeline_signal_from never comes: fail the timeline; called twice: nothing"),
    ROW("presented once", presented, "a block of addPresentedHandler: is called once, or dropped without a call",
        "as for the scheduled one; and gpusync_device_destroy waits a second: gpusync must stay loaded"),
    ROW("presented never", presented, "the same of a drawable that is released, and never presented",
        "as for the presented one"),
    ROW("encoder's key", encoder_key, "the key of the encoders' states has its own name as its text",
        "gpusync_error.encoder stays empty"),
    ROW("Metal 4's family", family, "a device of MTLGPUFamilyMetal4 makes what Metal 4 needs, no other is asked",
        "wrongly in: METAL_NIL or an exception; wrongly out: ERROR_UNSUPPORTED"),
    ROW("feedback once", feedback, "a commit with options has one feedback; its block is dropped then",
        "none: the ticket never ends; a second one: nothing, a block counts once"),
    ROW("feedback behind a wait", feedback_gate, "a commit without work has its feedback after a wait before it",
        "its ticket ends too early"),
    ROW("commits", commits, "a command buffer may begin again while it is in flight, and no number of commits blocks",
        "use a command buffer for each commit; a commit may block"),
    ROW("signals in order, Metal 4", signals4, "signals of one queue come in the order of the calls",
        "an event may be released before its last signal"),
    ROW("wait times out", wait4, "a queue of Metal 4 gives up a wait that takes too long, without an error",
        "with an error: the ticket fails with that; never: the queue stands still"),
    {"driver's other numbers", "each has the class that metal-behaves.md lists", "the class is another one", NULL,
        "the GPU would have to be hung, or its memory used up"},
    {"lost device", "it is useless to this process", "the program is told of a loss too early", NULL,
        "the GPU would have to be hung again and again, or removed"},
    {"failed commit, Metal 4", "it has a feedback with the real error inside, and the queue still makes its signals",
        "the ticket never ends; the class is OTHER; events and the queue are never released", NULL,
        "the GPU would have to be hung"},
};
/* clang-format on */
#define ROWS (sizeof rows / sizeof *rows)

#define PROBE_LIMIT_S 90

/* In the child. Never returns: what is in flight, and threads that wait, are left behind. */
static void run_probe(const char *name)
{
    char text[64];
    alarm(PROBE_LIMIT_S); /* also ends a probe whose main thread hangs in Metal */
    device = metal_device_new();
    if (!device)
        LEAVE("there is no Metal device");
    metal_string_copy(metal_get_retained(device, "name"), text, sizeof text);
    software = !strcmp(text, "softmetal");
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].probe && !strcmp(rows[i].probe_name, name)) {
            rows[i].probe();
            _exit(0);
        }
    _exit(2);
}

static struct answer {
    char verdict[16], text[400];
} answers[ROWS];

static void answer(size_t row, const char *verdict, const char *text)
{
    snprintf(answers[row].verdict, sizeof answers[row].verdict, "%s", verdict);
    snprintf(answers[row].text, sizeof answers[row].text, "%s", text);
}

static void take_line(const char *line, size_t first, size_t last)
{
    char name[64], verdict[16], text[400];
    if (sscanf(line, "row\t%63[^\t]\t%15[^\t]\t%399[^\n]", name, verdict, text) == 3)
        for (size_t i = first; i < last; i++)
            if (*name == '*' ? !answers[i].verdict[0] : !strcmp(rows[i].name, name))
                answer(i, verdict, text);
}

/* In the child: a program that begins anew, as Apple's libraries do not survive a fork. */
static const char *own_path; /* with a slash in it */
static void become_probe(const char *name)
{
    setenv("OBJC_DEBUG_MISSING_POOLS", strcmp(name, "pool") ? "NO" : "YES", 1); /* read when a process begins */
    execl(own_path, own_path, "--probe", name, (char *)NULL);
    _exit(127);
}

/* The row behind those of the probe of row `first`. */
static size_t rows_end(size_t first)
{
    size_t last = first + 1;
    while (last < ROWS && rows[first].probe && rows[last].probe == rows[first].probe)
        last++;
    return last;
}

/* Runs the probe of row `first`, which also answers the rows after it that name it; begin is called in a child. Returns
   whether the probe hung. */
static bool ask(size_t first, void (*begin)(const char *name))
{
    char line[600], why[64] = "the probe got no further";
    size_t last = rows_end(first);
    int ends[2], status = 0;
    for (size_t i = first; i < last; i++)
        answer(i, rows[i].probe ? "" : NOT_TRIED, rows[i].probe ? "" : rows[i].probe_name);
    fflush(stdout);
    if (!rows[first].probe || pipe(ends))
        return false;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        begin(rows[first].probe_name);
    }
    close(ends[1]);
    FILE *lines = fdopen(ends[0], "r");
    while (fgets(line, sizeof line, lines))
        take_line(line, first, last);
    fclose(lines);
    waitpid(child, &status, 0);
    bool hung = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    if (status)
        snprintf(why, sizeof why, hung ? "the probe did not end in %d s" : "the probe crashed, status %d",
                 hung ? PROBE_LIMIT_S : status);
    for (size_t i = first; i < last; i++)
        if (!answers[i].verdict[0] || (status && i == last - 1))
            answer(i, status ? NOT_HELD : NOT_TRIED, why);
    return hung;
}

/* tell, unless it is NULL, is called for each row as soon as it has its answer. */
static void ask_all(void (*begin)(const char *name), void (*tell)(size_t row))
{
    unsigned hangs = 0;
    for (size_t first = 0, last; first < ROWS; first = last) {
        last = rows_end(first);
        if (hangs < 2)
            hangs += ask(first, begin);
        else
            for (size_t i = first; i < last; i++)
                answer(i, NOT_TRIED, "two probes did not end: nothing more was asked");
        for (size_t i = first; tell && i < last; i++)
            tell(i);
    }
}

#endif
