/* probes.h - how Metal behaves, asked of Metal itself

   README.md lists what is open, and examples/metal-behaves.md, what gpusync relies on: each fact with its
   public source, or as assumed. Each bullet of the two has a row here, with a probe or with the reason why there is none.

   Each probe is a function that talks to Metal straight. It runs in a process of its own, with a time limit. One that
   crashes or hangs spoils no other, and that it did is its answer. A probe answers one or more rows. An answer is
     holds      it was tried, and it is as the bullet says
     differs    it was tried, and it is not; or the probe crashed, or did not end
     not seen   it could not be tried here, or what the bullet only allows for did not happen
   and a text with what was measured. Where a bullet says "may", `holds` says that it was seen to happen.

   Include this in one file, after gpusync.h with its implementation. beliefs.c is the program for a Mac; test_beliefs.c
   runs the probes on softmetal, and fills in `help`. Selectors and types are those of examples/metal.h. */
#ifndef PROBES_H
#define PROBES_H

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../examples/metal.h"

/* What a software device can do for the probes. On a Mac all of it is as it is here. */
static struct help {
    bool (*at_rest)(void);           /* nothing is on its way any more: what has not come does not come          */
    bool (*fail_next)(void);         /* the next commit of the process fails                                     */
    bool (*turned)(const char *row); /* this row should differ: what should not come is waited for              */
    uint64_t absence_ms;             /* how long is looked for what should not come                              */
    uint64_t patience_ms;            /* how long is waited for what should come                                  */
    uint64_t watchdog_ms;            /* how long is waited for the GPU's watchdog                                */
} help = {NULL, NULL, NULL, 50, 10000, 40000};

/* ------------------------------------------------------------------------------------------------- answers -- */

static void __attribute__((format(printf, 3, 4))) say(const char *row, const char *answer, const char *format, ...)
{
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    printf("row\t%s\t%s\t%s\n", row, answer, text);
    fflush(stdout); /* before what may crash */
}

static const char *if_true(bool good) { return good ? "holds" : "differs"; }

#define NOT_SEEN "not seen"

static void *device;  /* id<MTLDevice>, in the probe's process */
static bool software; /* the times of a software device say nothing */

/* ---------------------------------------------------------------------------------------------------- time -- */

static void nap(long us)
{
    struct timespec time = {0, us * 1000};
    nanosleep(&time, NULL);
}

static uint64_t now_ns(void) { return gpusync_now_ns(); }
static double us_since(uint64_t begin) { return (double)(now_ns() - begin) / 1e3; }

static unsigned read_count(const unsigned *count) { return __atomic_load_n(count, __ATOMIC_ACQUIRE); }
static void add_one(unsigned *count) { __atomic_add_fetch(count, 1, __ATOMIC_RELEASE); }

static uint64_t absence_ms(const char *row)
{
    return help.turned && help.turned(row) ? help.patience_ms : help.absence_ms;
}

/* Whether *count gets there. If it is Metal that counts, this ends where nothing can come any more. */
static bool comes_from(bool metal, const unsigned *count, unsigned target, uint64_t ms)
{
    uint64_t begin = now_ns();
    while (read_count(count) < target) {
        bool rest = metal && help.at_rest && help.at_rest();
        if (read_count(count) >= target) break;
        if (rest || now_ns() - begin > ms * 1000000u) return false;
        nap(50);
    }
    return true;
}
static bool comes_within(const unsigned *count, unsigned target, uint64_t ms)
{
    return comes_from(true, count, target, ms);
}
static bool comes(const unsigned *count, unsigned target) { return comes_within(count, target, help.patience_ms); }
static bool stays_away(const char *row, const unsigned *count, unsigned target)
{
    return !comes_within(count, target, absence_ms(row));
}

static bool reaches_within(void *event, uint64_t value, uint64_t ms)
{
    uint64_t begin = now_ns();
    while (metal_event_value(event) < value) {
        bool rest = help.at_rest && help.at_rest();
        if (metal_event_value(event) >= value) break;
        if (rest || now_ns() - begin > ms * 1000000u) return false;
        nap(50);
    }
    return true;
}

static bool ends_within(void *buffer, uint64_t ms)
{
    uint64_t begin = now_ns();
    while (metal_status(buffer) < 4) {
        if (now_ns() - begin > ms * 1000000u) return false;
        nap(50);
    }
    return true;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct spread {
    double low, median, high;
} spread;

static spread spread_of(double *numbers, unsigned count)
{
    spread s = {0, 0, 0};
    if (!count) return s;
    qsort(numbers, count, sizeof *numbers, by_size);
    s.low = numbers[0];
    s.median = numbers[count / 2];
    s.high = numbers[count - 1];
    return s;
}

/* -------------------------------------------------------------------------------------------------- blocks -- */

/* As the Clang block ABI lays them out, with one pointer in them; gpusync.h builds its own in the same way. */
typedef struct any_block {
    void *isa;
    int flags, reserved;
    void (*invoke)(void);
    const struct any_descriptor *descriptor;
    void *context;
} any_block;

struct any_descriptor {
    unsigned long reserved, size;
    const char *signature;
};

extern void *probes__global_block[32] METAL__ASM("_NSConcreteGlobalBlock");
extern void *probes__stack_block[32] METAL__ASM("_NSConcreteStackBlock");

static const struct any_descriptor of_handler = {0, sizeof(any_block), "v16@?0@8"};
static const struct any_descriptor of_listener = {0, sizeof(any_block), "v24@?0@8Q16"};

static any_block block_of(bool global, void (*invoke)(void), const struct any_descriptor *descriptor, void *context)
{
    any_block block;
    block.isa = global ? (void *)probes__global_block : (void *)probes__stack_block;
    block.flags = 1 << 30 | (global ? 1 << 28 : 0); /* BLOCK_HAS_SIGNATURE, BLOCK_IS_GLOBAL */
    block.reserved = 0;
    block.invoke = invoke;
    block.descriptor = descriptor;
    block.context = context;
    return block;
}

/* What a handler saw. */
typedef struct seen {
    unsigned count;
    unsigned long status;
    void *object, *block;
    uint64_t at;
    double start, end; /* of the GPU */
    struct seen_order *order;
} seen;

struct seen_order {
    unsigned count;
    const seen *places[64];
};

static void note_handler(void *self, void *buffer)
{
    seen *s = (seen *)((any_block *)self)->context;
    s->block = self;
    s->object = buffer;
    s->status = metal_status(buffer);
    s->at = now_ns();
    s->start = metal_gpu_start(buffer);
    s->end = metal_gpu_end(buffer);
    if (s->order) s->order->places[__atomic_fetch_add(&s->order->count, 1, __ATOMIC_RELAXED) % 64] = s;
    add_one(&s->count);
}

static void add_handler(void *buffer, seen *s)
{
    any_block block = block_of(false, (void (*)(void))note_handler, &of_handler, s);
    metal_add_completed_handler(buffer, &block);
}

/* ---------------------------------------------------------------------------------------------------- work -- */

#define BYTES ((size_t)4 << 20)

static void *new_queue(void) { return metal_queue_new(device, 64); }

static void fill(void *buffer, void *memory, unsigned char value, unsigned times)
{
    void *blit = metal_blit_begin(buffer);
    unsigned i;
    for (i = 0; i < times; i++) metal_fill(blit, memory, 0, BYTES, value);
    metal_end(blit);
}

/* Fills that take a GPU some milliseconds; a software device does them on the CPU. */
static unsigned many(void) { return software ? 4 : 500; }

static unsigned char last_byte(void *memory) { return ((volatile unsigned char *)metal_contents(memory))[BYTES - 1]; }

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
    /* BOOL is one byte on every platform that Metal is on */
    return METAL__AS(signed char, void *)(object, metal__sel("respondsToSelector:"), metal__sel(selector)) != 0;
}

/* ----------------------------------------------------------------------------------- blocks and handlers -- */

/* A write to the block is a crash, a copy of it has another address. */
static void probe_global_block(void)
{
    void *queue = new_queue(), *buffer = metal_queue_command_buffer(queue), *memory = metal_buffer_new(device, BYTES);
    size_t page = 16384; /* of arm64; a multiple of those of others */
    any_block *block = (any_block *)mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0), before;
    seen s;
    memset(&s, 0, sizeof s);
    if ((void *)block == MAP_FAILED) {
        say("global block", NOT_SEEN, "mmap failed");
        return;
    }
    before = block_of(true, (void (*)(void))note_handler, &of_handler, &s);
    memcpy(block, &before, sizeof before);
    mprotect(block, page, PROT_READ);
    metal_add_completed_handler(buffer, block);
    fill(buffer, memory, 1, 1);
    metal_commit(buffer);
    if (!comes(&s.count, 1)) {
        say("global block", NOT_SEEN, "its handler did not come");
        return;
    }
    metal_wait_until_completed(buffer);
    metal_release(buffer);
    say("global block", if_true(s.block == (void *)block && !memcmp(block, &before, sizeof before)),
        "in memory that cannot be written; it ran %s", s.block == (void *)block ? "where it is" : "as a copy");
}

static void probe_status(void)
{
    enum { ROUNDS = 50 };
    void *queue = new_queue(), *memory = metal_buffer_new(device, BYTES);
    unsigned i, came = 0, terminal = 0, same = 0;
    for (i = 0; i < ROUNDS; i++) {
        void *buffer = metal_queue_command_buffer(queue);
        seen *s = (seen *)calloc(1, sizeof *s); /* not freed: a handler may come late */
        add_handler(buffer, s);
        fill(buffer, memory, 1, 1);
        metal_commit(buffer);
        if (comes(&s->count, 1)) {
            came++;
            terminal += s->status == 4;
            same += s->object == buffer;
        }
        metal_wait_until_completed(buffer);
        metal_release(buffer);
    }
    if (came < ROUNDS) {
        say("status first", NOT_SEEN, "%u of %u handlers came", came, ROUNDS);
        say("handler's object", NOT_SEEN, "%u of %u handlers came", came, ROUNDS);
        return;
    }
    say("status first", if_true(terminal == came), "%u of %u handlers saw Completed", terminal, came);
    say("handler's object", if_true(same == came), "%u of %u handlers got the pointer that was committed", same, came);
}

static void probe_handler_order(void)
{
    enum { HANDLERS = 16 };
    static seen s[HANDLERS];
    static struct seen_order order;
    void *queue = new_queue(), *buffer = metal_queue_command_buffer(queue);
    unsigned i, right = 0;
    for (i = 0; i < HANDLERS; i++) {
        s[i].order = &order;
        add_handler(buffer, &s[i]);
    }
    metal_commit(buffer);
    for (i = 0; i < HANDLERS; i++)
        if (!comes(&s[i].count, 1)) {
            say("handler order", NOT_SEEN, "handler %u did not come", i);
            return;
        }
    for (i = 0; i < HANDLERS; i++) right += order.places[i] == &s[i];
    say("handler order", if_true(right == HANDLERS), "%u of %u in the place in which they were added", right, HANDLERS);
}

static void wait_inside(void *self, void *buffer)
{
    const unsigned *told = (const unsigned *)((any_block *)self)->context;
    (void)buffer;
    add_one((unsigned *)((any_block *)self)->context + 1);
    while (!read_count(told)) nap(50);
}

static void probe_slow_handler(void)
{
    static unsigned told[2]; /* to go on, and that the handler has begun */
    any_block block = block_of(false, (void (*)(void))wait_inside, &of_handler, told);
    void *queue = new_queue(), *slow = metal_queue_command_buffer(queue), *next = metal_queue_command_buffer(queue);
    bool kept;
    metal_add_completed_handler(slow, &block);
    metal_commit(slow);
    if (!comes(&told[1], 1)) {
        say("slow handler", NOT_SEEN, "the handler did not come");
        return;
    }
    metal_commit(next);
    kept = !ends_within(next, absence_ms("slow handler"));
    add_one(&told[0]);
    say("slow handler", if_true(kept && ends_within(next, help.patience_ms)),
        "the status of the command buffer behind it was %s while the handler ran", kept ? "kept back" : "terminal");
}

static void probe_dealloc(void)
{
    static seen s;
    void *queue = new_queue(), *buffer = metal_queue_command_buffer(queue);
    add_handler(buffer, &s);
    metal_release(buffer); /* the last reference: metal_queue_command_buffer has a pool of its own */
    bool came =
        comes_within(&s.count, 1, help.absence_ms * 20); /* it is a place to be slow, not a reason to wait long */
    say("dealloc", if_true(came && s.count == 1), came ? "the handler ran, with status %lu" : "the handler did not run",
        s.status);
}

static void probe_released_event(void)
{
    void *a = new_queue(), *b = new_queue(), *done = metal_shared_event_new(device), *memory;
    void *event = metal_shared_event_new(device), *first, *second;
    memory = metal_buffer_new(device, BYTES);
    if (!done || !event) {
        say("released event", NOT_SEEN, "no shared event");
        return;
    }
    first = metal_queue_command_buffer(a);
    fill(first, memory, 1, 1);
    metal_encode_signal(first, event, 1);
    second = metal_queue_command_buffer(b);
    metal_encode_wait(second, event, 1);
    metal_encode_signal(second, done, 1);
    metal_release(event); /* the command buffers have the others, if they have any */
    metal_commit(second);
    metal_commit(first);
    metal_wait_until_completed(first);
    metal_wait_until_completed(second);
    say("released event",
        if_true(metal_status(first) == 4 && metal_status(second) == 4 && metal_event_value(done) == 1),
        "status %lu of the buffer that signals it, %lu of the one that waits for it", metal_status(first),
        metal_status(second));
}

/* ---------------------------------------------------------------------------------------------- libdispatch -- */

typedef struct run {
    unsigned count;
    uint64_t at;
} run;

static void note_run(void *context)
{
    run *r = (run *)context;
    r->at = now_ns();
    add_one(&r->count);
}

extern void *probes__global_queue(intptr_t, uintptr_t) METAL__ASM("dispatch_get_global_queue");
extern void *probes__queue_create(const char *, void *) METAL__ASM("dispatch_queue_create");
extern void probes__async(void *, void *, void (*)(void *)) METAL__ASM("dispatch_async_f");
extern void probes__after(uint64_t, void *, void *, void (*)(void *)) METAL__ASM("dispatch_after_f");
extern uint64_t probes__time(uint64_t, int64_t) METAL__ASM("dispatch_time");

static void probe_timer(void)
{
    enum { ROUNDS = 10 };
    const int64_t after_ns = 5000000;
    static run r[ROUNDS];
    double late[ROUNDS];
    unsigned i;
    spread s;
    for (i = 0; i < ROUNDS; i++) {
        uint64_t begin = now_ns();
        probes__after(probes__time(0, after_ns), probes__global_queue(0, 0), &r[i], note_run);
        if (!comes(&r[i].count, 1)) {
            say("timer", "differs", "timer %u did not come", i);
            return;
        }
        late[i] = ((double)(r[i].at - begin) - (double)after_ns) / 1e3;
    }
    s = spread_of(late, ROUNDS);
    say("timer", "holds", "%u of %u came; late by %.0f us, at most %.0f us", ROUNDS, ROUNDS, s.median, s.high);
}

static void probe_dispatch(void)
{
    enum { ROUNDS = 50 };
    static run r[ROUNDS];
    double late[ROUNDS];
    unsigned i;
    spread s;
    for (i = 0; i < ROUNDS; i++) {
        uint64_t begin = now_ns();
        probes__async(probes__global_queue(0, 0), &r[i], note_run);
        if (!comes(&r[i].count, 1)) {
            say("dispatch", "differs", "function %u did not run", i);
            return;
        }
        late[i] = (double)(r[i].at - begin) / 1e3;
    }
    s = spread_of(late, ROUNDS);
    say("dispatch", "holds", "%u of %u ran, after %.0f us, at most %.0f us", ROUNDS, ROUNDS, s.median, s.high);
}

/* ---------------------------------------------------------------------------------------------------- events -- */

typedef struct heard {
    unsigned count;
    uint64_t value, at;
} heard;

static void note_value(void *self, void *event, uint64_t value)
{
    heard *h = (heard *)((any_block *)self)->context;
    (void)event;
    h->value = value;
    h->at = now_ns();
    add_one(&h->count);
}

static void notify(void *event, void *listener, uint64_t value, heard *h)
{
    any_block block = block_of(false, (void (*)(void))note_value, &of_listener, h);
    METAL__AS(void, void *, uint64_t, void *)
    (event, metal__sel("notifyListener:atValue:block:"), listener, value, &block);
}

static void *new_listener(void)
{
    return METAL__AS(void *, void *)(metal_get(metal__class("MTLSharedEventListener"), "alloc"),
                                     metal__sel("initWithDispatchQueue:"), probes__queue_create("gpusync.beliefs", NULL));
}

typedef enum raiser { BY_CPU, BY_GPU, BEFORE_IT_WAS_ASKED } raiser;

static void listen_to(const char *row, raiser by)
{
    enum { ROUNDS = 20 };
    heard *h = (heard *)calloc(ROUNDS, sizeof *h); /* not freed: a block may come late */
    void *event = metal_shared_event_new(device), *queue = new_queue(), *listener = new_listener();
    unsigned i, came = 0, early = 0;
    double late[ROUNDS];
    spread s;
    if (!event || !listener) {
        say(row, NOT_SEEN, "no %s", event ? "listener" : "shared event");
        return;
    }
    for (i = 0; i < ROUNDS; i++) {
        uint64_t begin;
        if (by == BEFORE_IT_WAS_ASKED) metal_wait_until_completed(signal_from(queue, event, i + 1));
        begin = now_ns();
        notify(event, listener, i + 1, &h[i]);
        if (by == BY_CPU) metal_event_signal(event, i + 1);
        if (by == BY_GPU) signal_from(queue, event, i + 1);
        if (!comes_within(&h[i].count, 1, came == i ? help.patience_ms : help.absence_ms)) continue;
        late[came++] = (double)(h[i].at - begin) / 1e3;
        early += h[i].value < i + 1;
    }
    s = spread_of(late, came);
    say(row, if_true(came == ROUNDS && !early), "%u of %u blocks came, %u too early; after %.0f us, at most %.0f us",
        came, ROUNDS, early, s.median, s.high);
}

static void probe_listener(void)
{
    listen_to("listener, CPU", BY_CPU);
    listen_to("listener, GPU", BY_GPU);
    listen_to("listener, reached", BEFORE_IT_WAS_ASKED);
}

/* An exception ends the process: Metal's way to refuse, if it has one. Blocks whose values never come. */
static void probe_exception(void)
{
    enum { BLOCKS = 1000 };
    static heard never;
    void *event = metal_shared_event_new(device), *listener = new_listener();
    unsigned i;
    if (!event || !listener) {
        say("no exception", NOT_SEEN, "no %s", event ? "listener" : "shared event");
        return;
    }
    for (i = 0; i < BLOCKS; i++) notify(event, listener, i + 1, &never);
    say("no exception", "holds", "%u blocks wait on one event", BLOCKS);
}

/* An empty command buffer behind one that waits at first, and then works; the two share nothing. */
static void probe_empty_behind(void)
{
    enum { ROUNDS = 5 };
    void *queue = new_queue(), *other = new_queue(), *memory = metal_buffer_new(device, BYTES);
    void *gate = metal_shared_event_new(device);
    unsigned i, ended = 0, behind = 0;
    if (!gate) {
        say("empty behind", NOT_SEEN, "no shared event");
        return;
    }
    for (i = 1; i <= ROUNDS; i++) {
        void *work = metal_queue_command_buffer(queue), *empty = metal_queue_command_buffer(queue);
        metal_encode_wait(work, gate, i);
        fill(work, memory, 1, many());
        metal_commit(work);
        metal_commit(empty);
        if (!ends_within(empty, absence_ms("empty behind"))) {
            signal_from(other, gate, i);
            if (!ends_within(empty, help.patience_ms)) break;
        }
        ended++;
        behind += metal_status(work) >= 4;
        signal_from(other, gate, i); /* if the empty one was early */
        metal_wait_until_completed(work);
        metal_release(work);
        metal_release(empty);
    }
    say("empty behind", ended == ROUNDS ? if_true(behind == ROUNDS) : NOT_SEEN,
        "when the empty one had ended, %u of %u times the work in front of it had", behind, ended);
}

/* A gate that the GPU opens: what the CPU's signals do is another probe's. */
static void probe_gates(void)
{
    enum { ROUNDS = 3 };
    void *queue = new_queue(), *other = new_queue(), *memory = metal_buffer_new(device, BYTES);
    void *gate = metal_shared_event_new(device), *done = metal_shared_event_new(device);
    unsigned i, opened = 0, kept = 0, after = 0;
    if (!gate || !done) {
        say("wait keeps back", NOT_SEEN, "no shared event");
        say("signal comes after", NOT_SEEN, "no shared event");
        return;
    }
    memset(metal_contents(memory), 0, BYTES);
    for (i = 1; i <= ROUNDS; i++) {
        void *buffer = metal_queue_command_buffer(queue);
        metal_encode_wait(buffer, gate, i);
        fill(buffer, memory, (unsigned char)i, many());
        metal_encode_signal(buffer, done, i);
        metal_commit(buffer);
        kept += !reaches_within(done, i, absence_ms("wait keeps back")) && metal_status(buffer) < 4;
        signal_from(other, gate, i);
        opened += reaches_within(done, i, help.patience_ms);
        after += last_byte(memory) == i;
        metal_wait_until_completed(buffer);
        metal_release(buffer);
    }
    say("wait keeps back", if_true(kept == ROUNDS && opened == ROUNDS),
        "%u of %u were kept back for %u ms, and %u ran when the GPU had opened the gate", kept, ROUNDS,
        (unsigned)absence_ms("wait keeps back"), opened);
    say("signal comes after", opened == ROUNDS ? if_true(after == ROUNDS) : NOT_SEEN,
        "%u of %u times the memory was filled when the signal was seen", after, ROUNDS);
}

static void probe_overlap(void)
{
    enum { ROUNDS = 20 };
    void *queue = new_queue(), *first = metal_buffer_new(device, BYTES), *second = metal_buffer_new(device, BYTES);
    unsigned i, overlaps = 0;
    for (i = 0; i < ROUNDS; i++) {
        void *a = metal_queue_command_buffer(queue), *b = metal_queue_command_buffer(queue);
        fill(a, first, 1, many());
        fill(b, second, 1, many());
        metal_commit(a);
        metal_commit(b);
        metal_wait_until_completed(a);
        metal_wait_until_completed(b);
        overlaps += metal_gpu_start(b) < metal_gpu_end(a);
        metal_release(a);
        metal_release(b);
    }
    say("overlap", overlaps ? "holds" : NOT_SEEN, "%u of %u times the second began before the first's end", overlaps,
        ROUNDS);
}

static void probe_cpu_signal(void)
{
    enum { ROUNDS = 10 };
    void *queue = new_queue(), *event = metal_shared_event_new(device);
    unsigned i, good = 0;
    unsigned long status = 0;
    double late[ROUNDS];
    spread s;
    if (!event) {
        say("CPU wakes device", NOT_SEEN, "no shared event");
        return;
    }
    for (i = 0; i < ROUNDS; i++) {
        void *buffer = metal_queue_command_buffer(queue);
        uint64_t begin;
        metal_encode_wait(buffer, event, i + 1);
        metal_commit(buffer);
        nap(2000);
        begin = now_ns();
        metal_event_signal(event, i + 1);
        if (!ends_within(buffer, help.watchdog_ms)) break;
        status = metal_status(buffer);
        if (status != 4) break;
        late[good++] = us_since(begin);
        metal_release(buffer);
    }
    s = spread_of(late, good);
    say("CPU wakes device", if_true(good == ROUNDS),
        "%u of %u; status seen after %.0f us, at most %.0f us (last status %lu)", good, ROUNDS, s.median, s.high,
        status);
}

static void probe_signal_order(void)
{
    enum { ROUNDS = 20 };
    void *queue = new_queue(), *memory = metal_buffer_new(device, BYTES), *event = metal_shared_event_new(device);
    unsigned i, right = 0;
    if (!event) {
        say("signals in order", NOT_SEEN, "no shared event");
        return;
    }
    memset(metal_contents(memory), 0, BYTES);
    for (i = 1; i <= ROUNDS; i++) {
        void *slow = metal_queue_command_buffer(queue), *quick;
        fill(slow, memory, (unsigned char)i, many());
        metal_encode_signal(slow, event, 2 * i - 1);
        metal_commit(slow);
        quick = signal_from(queue, event, 2 * i);
        if (!reaches_within(event, 2 * i, help.patience_ms)) break;
        right += last_byte(memory) == i;
        metal_wait_until_completed(quick);
        metal_release(quick);
        metal_release(slow);
    }
    say("signals in order", if_true(right == ROUNDS),
        "%u of %u times the first one's work was there at the second's signal", right, ROUNDS);
}

/* The driver's number, of the text of an error; -1: it has none. */
static long number_in(const char *text)
{
    const char *at = strstr(text, "(IOAF code ");
    char *end;
    if (at) return strtol(at + strlen("(IOAF code "), NULL, 10);
    for (at = strchr(text, '('); at; at = strchr(at + 1, '(')) {
        unsigned long number = strtoul(at + 1, &end, 16);
        if (end == at + 9 && *end == ':') return (long)number;
    }
    return -1;
}

/* Within a pool. */
static void *under(void *error, const char *key)
{
    void *name = metal_string_new(key), *info = metal_get(error, "userInfo");
    void *found = METAL__AS(void *, void *)(info, metal__sel("objectForKey:"), name);
    metal_release(name);
    return found;
}

/* An error of a time limit has the driver's number 2, inside and in its text. Within a pool. */
static void say_number(void *error)
{
    char text[400], domain[64] = "no error";
    void *inside = under(error, "NSUnderlyingError");
    long number = inside ? METAL__AS0(long)(inside, metal__sel("code")) : -1, shown;
    if (inside) metal_string_copy(metal_get(inside, "domain"), domain, sizeof domain);
    metal_error_copy(error, text, sizeof text);
    shown = number_in(text);
    say("error's number", if_true(shown == 2 && (!inside || number == 2)), "inside: %s, code %ld; in the text: %ld",
        domain, number, shown);
}

/* A wait for a value that no thread signals: Metal's own time-out ends the command buffer. No other way to a killed one
   is known to leave the machine usable. */
static void probe_killed(void)
{
    static seen s;
    void *queue = new_queue(), *memory = metal_buffer_new(device, BYTES), *buffer = metal_queue_command_buffer(queue);
    void *never = metal_shared_event_new(device), *signalled = metal_shared_event_new(device), *pool, *error;
    static const char *const others[] = {"killed, handlers", "killed, status first", "killed, signals",
                                         "error's number"};
    uint64_t begin;
    bool ended;
    unsigned i;
    long code = 0;
    char text[160];
    unsigned long status;
    if (!never || !signalled) {
        say("watchdog", NOT_SEEN, "no shared event");
        for (i = 0; i < 4; i++) say(others[i], NOT_SEEN, "no shared event");
        return;
    }
    metal_encode_wait(buffer, never, 1);
    fill(buffer, memory, 1, 1);
    metal_encode_signal(buffer, signalled, 1);
    add_handler(buffer, &s);
    begin = now_ns();
    metal_commit(buffer);
    ended = ends_within(buffer, help.watchdog_ms);
    status = metal_status(buffer);
    if (!ended || status != 5) {
        say("watchdog", ended ? NOT_SEEN : "differs",
            ended ? "the wait did not hold: status %lu" : "status %lu after %.1f s", status, us_since(begin) / 1e6);
        for (i = 0; i < 4; i++) say(others[i], NOT_SEEN, "nothing was killed");
        metal_event_signal(never, 1);
        return;
    }
    pool = metal_pool_push();
    error = metal_get(buffer, "error");
    code = error ? METAL__AS0(long)(error, metal__sel("code")) : 0;
    metal_error_copy(error, text, sizeof text);
    say_number(error);
    metal_pool_pop(pool);
    say("watchdog", if_true(error != NULL), "after %.2f s, with code %ld: %s", us_since(begin) / 1e6, code, text);
    if (comes(&s.count, 1)) {
        say("killed, handlers", "holds", "%.0f us after the commit", (double)(s.at - begin) / 1e3);
        say("killed, status first", if_true(s.status == 5), "the handler saw status %lu", s.status);
    } else {
        say("killed, handlers", "differs", "none came");
        say("killed, status first", NOT_SEEN, "no handler came");
    }
    say("killed, signals", if_true(!reaches_within(signalled, 1, absence_ms("killed, signals"))),
        "the event behind it is at %llu", (unsigned long long)metal_event_value(signalled));
}

/* ----------------------------------------------------------------------------------------------------- times -- */

static void probe_times(void)
{
    enum { ROUNDS = 100 };
    void *queue = new_queue(), *memory = metal_buffer_new(device, BYTES);
    unsigned i, zeros = 0, early_zeros = 0, outside = 0;
    double least = 1e300, most = -1e300, late[ROUNDS], look[ROUNDS];
    spread s;
    for (i = 0; i < ROUNDS; i++) {
        void *buffer = metal_queue_command_buffer(queue);
        seen *handled = (seen *)calloc(1, sizeof *handled); /* not freed: a handler may come late */
        double before, start, end, after;
        uint64_t seen_at;
        add_handler(buffer, handled);
        fill(buffer, memory, 1, 4);
        before = (double)now_ns() / 1e9;
        metal_commit(buffer);
        while (metal_status(buffer) < 4) continue;
        seen_at = now_ns();
        start = metal_gpu_start(buffer);
        end = metal_gpu_end(buffer);
        look[i] = us_since(seen_at); /* gpusync looks before it wakes a waiter */
        after = (double)now_ns() / 1e9;
        early_zeros += start == 0 || end == 0;
        metal_wait_until_completed(buffer); /* from here on they are there in any case */
        if (!comes(&handled->count, 1)) break;
        zeros += handled->start == 0 || handled->end == 0;
        start = metal_gpu_start(buffer);
        end = metal_gpu_end(buffer);
        if (start - before < least) least = start - before;
        if (after - end > most) most = after - end;
        late[i] = (after - end) * 1e6;
        /* a millisecond, as the GPU's clock is converted */
        outside += start < before - 1e-3 || end < start || end > after + 1e-3;
        metal_release(buffer);
    }
    if (i < ROUNDS) {
        const char *const times_rows[] = {"times are set", "times are late", "times' clock", "50 us"};
        for (i = 0; i < 4; i++) say(times_rows[i], NOT_SEEN, "a handler did not come");
        return;
    }
    s = spread_of(look, ROUNDS);
    say("times are set", if_true(!zeros),
        "%u of %u handlers found one that was 0; a look at both takes %.2f us, at most %.2f us", zeros, ROUNDS, s.median,
        s.high);
    say("times are late", early_zeros > zeros ? "holds" : NOT_SEEN,
        "%u of %u times one was 0 right after the status was terminal", early_zeros, ROUNDS);
    say("times' clock", zeros ? NOT_SEEN : if_true(!outside),
        "%u of %u outside of commit and end; GPUStartTime at least %.0f us after the commit, the end was seen "
        "at most %.0f us after GPUEndTime",
        outside, ROUNDS, least * 1e6, most * 1e6);
    s = spread_of(late, ROUNDS);
    if (software || outside || zeros)
        say("50 us", NOT_SEEN, "%s: %.0f us, at most %.0f us",
            software ? "the times of a software device" : "times in doubt", s.median, s.high);
    else
        say("50 us", if_true(s.median <= 50), "status seen %.0f us after GPUEndTime, %.0f us at best, %.0f us at most",
            s.median, s.low, s.high);
}

#define TEN(what) \
    what;         \
    what;         \
    what;         \
    what;         \
    what;         \
    what;         \
    what;         \
    what;         \
    what;         \
    what
#define MEASURE(ns, what)                                       \
    do {                                                        \
        double probes__runs[21];                                \
        unsigned probes__i, probes__k;                          \
        for (probes__i = 0; probes__i < 21; probes__i++) {      \
            uint64_t probes__begin = now_ns();                  \
            for (probes__k = 0; probes__k < 100; probes__k++) { \
                TEN(what);                                      \
            }                                                   \
            probes__runs[probes__i] = us_since(probes__begin);  \
        }                                                       \
        (ns) = spread_of(probes__runs, 21).median;              \
    } while (0)

#ifdef __APPLE__
extern int swtch_pri(int) __attribute__((weak_import)); /* <mach/mach_traps.h>: the trap that sched_yield is */
#endif

static void probe_pauses(void)
{
    double trap = 0, mach = 0; /* 0: there is none */
    MEASURE(trap, sched_yield());
#ifdef __APPLE__
    if (swtch_pri) MEASURE(mach, swtch_pri(0));
#endif
#if defined(__aarch64__)
    double isb, yield;
    MEASURE(isb, __asm__ __volatile__("isb" ::: "memory"));
    MEASURE(yield, __asm__ __volatile__("yield" ::: "memory"));
    say("pause", software ? NOT_SEEN : if_true(isb >= 3 && isb <= 50 && yield < isb / 2),
        "%sisb %.1f ns, yield %.1f ns, sched_yield %.0f ns, swtch_pri %.0f ns", software ? "a software device: " : "",
        isb, yield, trap, mach);
#else
    double pause;
    MEASURE(pause, __builtin_ia32_pause());
    say("pause", NOT_SEEN, "no arm64: pause %.1f ns, sched_yield %.0f ns, swtch_pri %.0f ns", pause, trap, mach);
#endif
}

/* make bench-device measures the park hook's own way to sleep, at four lengths. */
static void probe_timed_sleep(void)
{
    enum { ROUNDS = 50 };
    double late[ROUNDS];
    unsigned i;
    spread s;
    for (i = 0; i < ROUNDS; i++) {
        uint64_t begin = now_ns();
        nap(1000);
        late[i] = us_since(begin) - 1000;
    }
    s = spread_of(late, ROUNDS);
    say("timed sleep", software ? NOT_SEEN : if_true(s.median < 50), "%sa sleep of 1 ms is late by %.0f us, at most %.0f us",
        software ? "a software device: " : "", s.median, s.high);
}

/* A probe of its own, as a kernel may forbid wfe to programs. sevl sets the event that the next wfe takes. */
static void probe_wfe(void)
{
#if defined(__aarch64__)
    double wfe;
    MEASURE(wfe, __asm__ __volatile__("sevl\n\twfe" ::: "memory"));
    say("wfe", "holds", "sevl and wfe together %.1f ns%s", wfe, software ? ", beside a software device" : "");
#else
    say("wfe", NOT_SEEN, "no arm64");
#endif
}

/* ------------------------------------------------------------------------------------------- pools and locks -- */

/* What the runtime says of objects that are autoreleased where there is no pool; Apple's says it as
   OBJC_DEBUG_MISSING_POOLS is set. Whether it does is tried first. */
static unsigned complaints(void (*act)(void *), void *object)
{
    char text[8192];
    size_t length = 0;
    ssize_t got;
    int ends[2], kept = dup2(2, 60); /* a number that is free in so young a process */
    unsigned count = 0;
    const char *at;
    if (kept < 0 || pipe(ends)) return 0;
    fflush(stderr);
    dup2(ends[1], 2);
    close(ends[1]);
    act(object);
    fflush(stderr);
    dup2(kept, 2); /* the last writer is gone */
    close(kept);
    while ((got = read(ends[0], text + length, sizeof text - 1 - length)) > 0) length += (size_t)got;
    close(ends[0]);
    text[length] = 0;
    for (at = text; (at = strstr(at, "pool")) != NULL; at++) count++;
    for (at = text; (at = strstr(at, "POOL")) != NULL; at++) count++;
    return count;
}

static void autorelease_one(void *unused)
{
    void *string = metal_string_new("a text that is too long for a tagged pointer, whatever the version of the system");
    (void)unused;
    metal_get(string, "autorelease");
}

static void read_status(void *buffer)
{
    unsigned i;
    for (i = 0; i < 32; i++) (void)metal_status(buffer);
}

/* Main thread of a process that has no pool. */
static void probe_pool(void)
{
    void *queue = new_queue(), *buffer = metal_queue_command_buffer(queue);
    unsigned told = complaints(autorelease_one, NULL), before, after;
    before = complaints(read_status, buffer);
    metal_commit(buffer);
    metal_wait_until_completed(buffer);
    after = complaints(read_status, buffer);
    say("status without a pool", told ? if_true(before + after == 0) : NOT_SEEN,
        told ? "%u complaints of the runtime about 64 reads" : "the runtime does not complain of a missing pool",
        before + after);
}

extern void probes__lock(uint32_t *) METAL__ASM("os_unfair_lock_lock");
extern void probes__unlock(uint32_t *) METAL__ASM("os_unfair_lock_unlock");

#define PROBES_UNDER_TSAN 0
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#undef PROBES_UNDER_TSAN
#define PROBES_UNDER_TSAN 1
#endif
#endif

#define LOCKS 500u
static struct locked {
    uint32_t lock, done;
} * lock_at[LOCKS];
static unsigned lock_turn; /* the lock that the other thread may take, and one more */

static void *unlocker(void *unused)
{
    unsigned i;
    for (i = 0; i < LOCKS; i++) {
        struct locked *l = lock_at[i];
        while (read_count(&lock_turn) <= i) sched_yield();
        probes__lock(&l->lock);
        l->done = 1;
        probes__unlock(&l->lock); /* from here on the memory may be gone */
    }
    return unused;
}

static void probe_locks(void)
{
    size_t page = 16384;
    unsigned i;
    pthread_t thread;
    char *memory = (char *)mmap(NULL, LOCKS * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if ((void *)memory == MAP_FAILED) {
        say("lock", NOT_SEEN, "mmap failed");
        return;
    }
    for (i = 0; i < LOCKS; i++) lock_at[i] = (struct locked *)(memory + i * page); /* zeros: a lock that is free */
    if (pthread_create(&thread, NULL, unlocker, NULL)) {
        say("lock", NOT_SEEN, "no thread");
        return;
    }
    for (i = 0; i < LOCKS; i++) {
        struct locked *l = lock_at[i];
        probes__lock(&l->lock);
        add_one(&lock_turn);
        if (i % 2) nap(100); /* long enough for the other thread to sleep in its lock: another way to unlock */
        while (!l->done) {
            probes__unlock(&l->lock);
            probes__lock(&l->lock);
        }
        if (PROBES_UNDER_TSAN) probes__unlock(&l->lock); /* it cannot count locks that are gone */
        mprotect(l, page, PROT_NONE); /* as if it were freed, by its last owner; a touch is a crash */
    }
    pthread_join(thread, NULL);
    say("lock", "holds", "%u words of zeros were locks, and gone as soon as the next owner had them", LOCKS);
}

/* -------------------------------------------------------------------------------------------------- compiling -- */

/* As a warm-up compiles, but for its dispatch queues. Within a pool. */
static void *library_of(const char *source)
{
    void *text = metal_string_new(source), *error = NULL;
    void *library = METAL__AS(void *, void *, void *, void **)(
        device, metal__sel("newLibraryWithSource:options:error:"), text, NULL, &error);
    metal_release(text);
    return library;
}

static void *function_of(void *library, const char *name)
{
    void *text = metal_string_new(name);
    void *function = METAL__AS(void *, void *)(library, metal__sel("newFunctionWithName:"), text);
    metal_release(text);
    return function;
}

static void probe_compiling(void)
{
    void *pool = metal_pool_push(), *there = NULL, *missing = NULL;
    void *library =
        library_of("#include <metal_stdlib>\nkernel void one(device int *p [[buffer(0)]]) { p[0] = 1; }\n");
    if (library) {
        there = function_of(library, "one");
        missing = function_of(library, "another");
    }
    metal_pool_pop(pool);
    say("missing function", library && there ? if_true(!missing) : NOT_SEEN, "newFunctionWithName: gives %s",
        !library   ? "nothing: there is no library"
        : !there   ? "nil for a function that is there"
        : missing  ? "an object"
                   : "nil");
}

/* ---------------------------------------------------------------------------------------------------- limits -- */

typedef struct maker {
    void *queue, *buffers[8];
    unsigned made, wanted;
} maker;

static void *make_buffers(void *context)
{
    maker *m = (maker *)context;
    unsigned i;
    for (i = 0; i < m->wanted; i++) {
        m->buffers[i] = metal_queue_command_buffer(m->queue);
        add_one(&m->made);
    }
    return NULL;
}

static void probe_limit(void)
{
    static maker uncommitted, after_handler;
    static unsigned told[2]; /* to go on, and that the handler has begun */
    any_block block = block_of(false, (void (*)(void))wait_inside, &of_handler, told);
    pthread_t thread;
    void *buffer;
    bool blocked;
    uncommitted.queue = metal_queue_new(device, 4);
    uncommitted.wanted = 5;
    if (pthread_create(&thread, NULL, make_buffers, &uncommitted)) return;
    pthread_detach(thread); /* it may wait for ever */
    if (comes_from(false, &uncommitted.made, 4, help.patience_ms)) {
        blocked = !comes_from(false, &uncommitted.made, 5, absence_ms("limit, uncommitted"));
        metal_release(uncommitted.buffers[0]); /* its last reference */
        say("limit, uncommitted", if_true(blocked && comes_from(false, &uncommitted.made, 5, help.patience_ms)),
            "the fifth of 4 allowed %s; %u were made when one was released", blocked ? "waited" : "came at once",
            read_count(&uncommitted.made));
    } else {
        say("limit, uncommitted", "differs", "commandBuffer waited with %u of 4 allowed",
            read_count(&uncommitted.made));
    }
    after_handler.queue = metal_queue_new(device, 1);
    after_handler.wanted = 1;
    buffer = metal_queue_command_buffer(after_handler.queue);
    metal_add_completed_handler(buffer, &block);
    metal_commit(buffer);
    if (!comes(&told[1], 1) || pthread_create(&thread, NULL, make_buffers, &after_handler)) {
        say("limit, handlers", NOT_SEEN, "the handler did not come");
        return;
    }
    pthread_detach(thread);
    blocked = !comes_from(false, &after_handler.made, 1, absence_ms("limit, handlers"));
    add_one(&told[0]);
    say("limit, handlers", if_true(blocked && comes_from(false, &after_handler.made, 1, help.patience_ms)),
        "while the handler of the one before ran it %s", blocked ? "waited" : "came at once");
}

/* --------------------------------------------------------------------------------------------------- Metal 4 -- */

typedef struct work4 {
    void *queue, *buffer, *allocator, *memory, *done;
} work4;

/* As gpusync asks. A device may answer to the method and not have it. */
static bool has_family4(void)
{
    const long metal4 = 5002; /* MTLGPUFamilyMetal4 */
    return responds(device, "supportsFamily:") &&
           METAL__AS(signed char, long)(device, metal__sel("supportsFamily:"), metal4) != 0;
}
static bool has_metal4(void) { return has_family4() && responds(device, "newMTL4CommandQueue"); }

static bool open4(work4 *w)
{
    memset(w, 0, sizeof *w);
    w->queue = metal4_queue_new(device);
    w->buffer = metal4_buffer_new(device);
    w->allocator = metal4_allocator_new(device);
    w->memory = metal_buffer_new(device, BYTES);
    w->done = metal_shared_event_new(device);
    if (!w->queue || !w->buffer || !w->allocator || !w->memory || !w->done) return false;
    memset(metal_contents(w->memory), 0, BYTES);
    metal4_queue_use(w->queue, metal_residency_new(device, &w->memory, 1));
    return true;
}

static void record4(void *buffer, void *allocator, void *memory, unsigned char value)
{
    metal4_begin(buffer, allocator);
    if (memory) {
        void *encoder = metal_compute_begin(buffer);
        metal_fill(encoder, memory, 0, BYTES, value);
        metal_end(encoder);
    }
    metal4_end(buffer);
}

typedef struct fed {
    unsigned count, order;
    bool error, filled, signalled;
    long code, inner_code, first_code;
    double start, end;
    uint64_t at, value;
    const work4 *work;
    unsigned *orders;
} fed;

static void note_feedback(void *self, void *feedback)
{
    fed *f = (fed *)((any_block *)self)->context;
    void *pool = metal_pool_push(), *error = metal_get(feedback, "error"), *inner;
    f->at = now_ns();
    f->error = error != NULL;
    if (error) {
        f->code = METAL__AS0(long)(error, metal__sel("code"));
        inner = under(error, "NSUnderlyingError");
        f->inner_code = inner ? METAL__AS0(long)(inner, metal__sel("code")) : -1;
    }
    f->start = metal_gpu_start(feedback);
    f->end = metal_gpu_end(feedback);
    if (f->work) {
        f->signalled = f->value && metal_event_value(f->work->done) >= f->value;
        if (!f->orders) f->filled = last_byte(f->work->memory) != 0; /* no later commit writes there meanwhile */
    }
    if (f->orders) f->order = __atomic_fetch_add(f->orders, 1, __ATOMIC_RELAXED);
    metal_pool_pop(pool);
    add_one(&f->count);
}

static void *options_for(fed *f)
{
    void *options = metal4_options_new();
    any_block block = block_of(false, (void (*)(void))note_feedback, &of_handler, f);
    metal4_add_feedback_handler(options, &block);
    return options;
}

static const char no_metal4[] = "the device has no Metal 4";

#define NEEDS_METAL4(w, ...)                                                                            \
    do {                                                                                                \
        static const char *const probes__rows[] = {__VA_ARGS__};                                        \
        bool probes__has = has_metal4();                                                                \
        unsigned probes__i;                                                                             \
        if (probes__has && open4(w)) break;                                                             \
        for (probes__i = 0; probes__i < sizeof probes__rows / sizeof *probes__rows; probes__i++)        \
            say(probes__rows[probes__i], NOT_SEEN, "%s", probes__has ? "Metal 4 gave nil" : no_metal4); \
        return;                                                                                         \
    } while (0)

/* The second commit has the same options, and no handler of its own. */
static void probe_feedback(void)
{
    static fed f;
    work4 w;
    void *options, *allocators[2];
    unsigned i;
    NEEDS_METAL4(&w, "feedback once", "handlers leave the options", "retain is enough");
    allocators[0] = w.allocator;
    allocators[1] = metal4_allocator_new(device);
    f.work = &w;
    options = options_for(&f);
    for (i = 0; i < 2; i++) {
        record4(w.buffer, allocators[i], w.memory, 1);
        metal4_commit(w.queue, &w.buffer, 1, options);
        metal4_signal(w.queue, w.done, i + 1);
        if (!reaches_within(w.done, i + 1, help.patience_ms)) break;
        if (i == 0) {
            comes(&f.count, 1);
            stays_away("feedback once", &f.count, 2);
            say("feedback once", if_true(read_count(&f.count) == 1), "%u feedbacks of one commit, GPU time %.0f us",
                read_count(&f.count), (f.end - f.start) * 1e6);
        }
    }
    stays_away("handlers leave the options", &f.count, 2);
    say("handlers leave the options", i < 2 || !read_count(&f.count) ? NOT_SEEN : if_true(read_count(&f.count) == 1),
        "%u feedbacks after a second commit with the same options", read_count(&f.count));
    metal_release(options);
    metal_release(w.buffer);
    metal_release(allocators[0]);
    metal_release(allocators[1]);
    metal_release(w.queue);
    nap((long)help.absence_ms * 1000);
    say("retain is enough", if_true(last_byte(w.memory) == 1), "all was released once the work had ended");
}

static void feedback_at_gate(const char *row, bool work)
{
    fed *f = (fed *)calloc(1, sizeof *f); /* not freed: a handler may come late */
    work4 *w = (work4 *)malloc(sizeof *w);
    void *gate = metal_shared_event_new(device), *classic = new_queue();
    bool early, came;
    if (!gate || !open4(w)) {
        say(row, NOT_SEEN, "Metal 4 gave nil");
        return;
    }
    f->work = w;
    record4(w->buffer, w->allocator, work ? w->memory : NULL, 1);
    metal4_wait(w->queue, gate, 1);
    metal4_commit(w->queue, &w->buffer, 1, options_for(f));
    early = !stays_away(row, &f->count, 1);
    signal_from(classic, gate, 1);
    came = comes(&f->count, 1);
    say(row, if_true(!early && came && (!work || f->filled)), "it %s%s",
        early  ? "came before the gate was open"
        : came ? "came when the gate was open"
               : "never came",
        !work       ? ""
        : f->filled ? ", and the work was done"
                    : ", the work was not done");
}

static void probe_feedback_gate(void)
{
    work4 w;
    NEEDS_METAL4(&w, "feedback behind a wait", "feedback without work");
    feedback_at_gate("feedback behind a wait", true);
    feedback_at_gate("feedback without work", false);
}

static void probe_family(void)
{
    bool method = responds(device, "newMTL4CommandQueue"), works;
    work4 w;
    if (!has_family4()) {
        say("Metal 4's family", method ? NOT_SEEN : "holds",
            method ? "the device answers to newMTL4CommandQueue and is not of the family: it is not asked further"
                   : "the device is not of the family, and has no newMTL4CommandQueue");
        return;
    }
    works = method && open4(&w);
    say("Metal 4's family", if_true(works), "the device is of the family, and %s",
        works    ? "makes what Metal 4 needs"
        : method ? "gave nil for something that Metal 4 needs"
                 : "has no newMTL4CommandQueue");
}

/* Two signals with nothing in between: where the second is seen, the first has to be there. */
static void probe_signals4(void)
{
    enum { ROUNDS = 50 };
    void *second = metal_shared_event_new(device);
    unsigned i, came = 0, right = 0;
    work4 w;
    NEEDS_METAL4(&w, "signals in order, Metal 4");
    for (i = 1; second && i <= ROUNDS; i++) {
        uint64_t begin = now_ns();
        record4(w.buffer, metal4_allocator_new(device), w.memory, (unsigned char)i);
        metal4_commit(w.queue, &w.buffer, 1, NULL);
        metal4_signal(w.queue, w.done, i);
        metal4_signal(w.queue, second, i);
        while (metal_event_value(second) < i && now_ns() - begin < help.patience_ms * 1000000u) continue;
        if (metal_event_value(second) < i) break;
        right += metal_event_value(w.done) >= i;
        came++;
        if (!reaches_within(w.done, i, help.patience_ms)) break;
    }
    say("signals in order, Metal 4", came == ROUNDS ? if_true(right == ROUNDS) : NOT_SEEN,
        "%u of %u times the first signal was there when the second was seen", right, came);
}

/* Also that there is no limit of 64 commits, and that a committed command buffer begins again. */
static void probe_commits(void)
{
    enum { COMMITS = 200 };
    static fed f[COMMITS];
    unsigned i, orders = 0, came = 0, in_order = 0, before_signal = 0, after_gate = 0;
    void *gate = metal_shared_event_new(device), *classic = new_queue();
    work4 w;
    NEEDS_METAL4(&w, "begin again", "commits without a limit", "feedbacks in any order", "signal after feedback");
    metal4_wait(w.queue, gate, 1);
    for (i = 0; i < COMMITS; i++) {
        f[i].work = &w;
        f[i].orders = &orders;
        f[i].value = i + 1;
        record4(w.buffer, metal4_allocator_new(device), w.memory, (unsigned char)(i + 1));
        metal4_commit(w.queue, &w.buffer, 1, options_for(&f[i]));
        metal4_signal(w.queue, w.done, i + 1);
    }
    after_gate = metal_event_value(w.done) == 0; /* all of them were in flight at once */
    signal_from(classic, gate, 1);
    for (i = 0; i < COMMITS; i++) came += comes(&f[i].count, 1);
    reaches_within(w.done, COMMITS, help.patience_ms);
    for (i = 0; i < COMMITS; i++) {
        in_order += f[i].order == i;
        before_signal += !f[i].signalled;
    }
    say("begin again", if_true(came == COMMITS && last_byte(w.memory) == COMMITS),
        "one command buffer and %u allocators: %u feedbacks, the last recording's byte is %u", COMMITS, came,
        last_byte(w.memory));
    say("commits without a limit", after_gate ? if_true(metal_event_value(w.done) == COMMITS) : NOT_SEEN,
        "%u commits behind a wait, none of them blocked", COMMITS);
    say("feedbacks in any order", in_order < COMMITS ? "holds" : NOT_SEEN, "%u of %u were in order", in_order, COMMITS);
    say("signal after feedback", before_signal ? "holds" : NOT_SEEN,
        "%u of %u feedbacks came before the signal behind their work was seen", before_signal, COMMITS);
}

static void probe_wait4(void)
{
    static fed f;
    void *never = metal_shared_event_new(device);
    uint64_t begin = now_ns();
    work4 w;
    NEEDS_METAL4(&w, "wait times out");
    f.work = &w;
    record4(w.buffer, w.allocator, w.memory, 1);
    metal4_wait(w.queue, never, 1);
    metal4_commit(w.queue, &w.buffer, 1, options_for(&f));
    if (comes_within(&f.count, 1, help.watchdog_ms))
        say("wait times out", if_true(!f.error && f.filled), "after %.2f s the work behind the wait %s, %s",
            (double)(f.at - begin) / 1e9, f.filled ? "ran" : "did not run",
            f.error ? "with an error" : "without an error");
    else say("wait times out", "differs", "no feedback after %.1f s", us_since(begin) / 1e6);
    metal_event_signal(never, 1);
}

/* A commit fails where the device can be asked to let it fail. Real hardware would have to be hung. */
static void probe_failed4(void)
{
    static fed f;
    work4 w;
    static const char *const rows[] = {"failed, feedback", "failed, the error inside", "failed, signals"};
    unsigned i;
    NEEDS_METAL4(&w, "failed, feedback", "failed, the error inside", "failed, signals");
    if (!help.fail_next || !help.fail_next()) {
        for (i = 0; i < 3; i++)
            say(rows[i], NOT_SEEN, "a commit of Metal 4 cannot be made to fail without a hang of the GPU");
        return;
    }
    record4(w.buffer, w.allocator, w.memory, 1);
    metal4_commit(w.queue, &w.buffer, 1, options_for(&f));
    metal4_signal(w.queue, w.done, 1);
    if (!comes(&f.count, 1)) {
        say("failed, feedback", "differs", "none came");
        say("failed, the error inside", NOT_SEEN, "no feedback");
    } else {
        say("failed, feedback", if_true(f.error), "it %s", f.error ? "has an error" : "has no error");
        say("failed, the error inside", if_true(f.error && f.code == 1 && f.inner_code > 1), "code %ld, inside %ld",
            f.code, f.inner_code);
    }
    say("failed, signals", if_true(reaches_within(w.done, 1, help.patience_ms)), "the event behind it is at %llu",
        (unsigned long long)metal_event_value(w.done));
}

/* ------------------------------------------------------------------------------------------------------ table -- */

static void probe_numbers(void)
{
    say("other numbers", NOT_SEEN, "not probed: the GPU would have to be hung, or its memory used up");
}
static void probe_validation(void)
{
    say("handlers under a lock", NOT_SEEN, "not probed: a handler that is added after the commit ends the process");
}
static void probe_lost(void)
{
    say("lost device", NOT_SEEN, "not probed: the GPU would have to be hung again and again, or be removed");
    say("lost device's signals", NOT_SEEN, "not probed, for the same reason");
}

typedef struct belief {
    const char *name;
    const char *bullet; /* how the bullet begins, of one of the two lists; "- (...)": of none, but of this place */
    const char *text;
    void (*probe)(void); /* rows of one probe stand together */
    const char *probe_name;
} belief;

#define ROW(name, bullet, belief, probe)            \
    {                                               \
        name, bullet, belief, probe_##probe, #probe \
    }

/* clang-format off */
static const belief rows[] = {
    ROW("global block", "A block that claims",
        "Metal uses a global block where it is, and only reads it", global_block),
    ROW("status first", "The status is terminal",
        "a handler sees the terminal status", status),
    ROW("handler's object", "- (gpusync.h, `>>caveats`)",
        "a handler gets the pointer that was committed", status),
    ROW("handlers under a lock", "A handler can be added only",
        "API validation may run handlers under a lock", validation),
    ROW("handler order", "The completed handlers of a command buffer",
        "they run in the order in which they were added", handler_order),
    ROW("slow handler", "A queue runs the handlers",
        "a handler keeps back the status of the command buffer behind its own", slow_handler),
    ROW("empty behind", "An empty command buffer ends",
        "it ends no earlier than the command buffers in front of it", empty_behind),
    ROW("dealloc", "A command buffer that is deallocated",
        "deallocated without commit it runs its completed handlers", dealloc),
    ROW("released event", "A command buffer keeps the events",
        "it keeps those that are encoded in it", released_event),
    ROW("timer", "Functions given to `dispatch_async_f`",
        "a timer of `dispatch_after_f` comes", timer),
    ROW("dispatch", "Functions given to `dispatch_async_f`",
        "they run soon", dispatch),
    ROW("listener, CPU", "A listener's block runs",
        "it runs when the CPU raises the event (`differs`: IREE is right)", listener),
    ROW("listener, GPU", "A listener's block runs",
        "it runs when the GPU raises the event", listener),
    ROW("listener, reached", "A listener's block runs",
        "it runs when the value was reached before", listener),
    ROW("no exception", "`notifyListener:atValue:block:`",
        "it raises none, however many blocks wait", exception),
    ROW("wait keeps back", "A wait at the head of a command buffer",
        "it keeps back all that is encoded behind it", gates),
    ROW("signal comes after", "A wait at the head of a command buffer",
        "a signal at the end comes after all of it", gates),
    ROW("overlap", "A wait at the head of a command buffer",
        "command buffers of one queue that share nothing may overlap", overlap),
    ROW("CPU wakes device", "`setSignaledValue:` from the CPU",
        "it wakes waits on the device", cpu_signal),
    ROW("signals in order", "Two command buffers of one queue",
        "they signal one event in the order of their commits", signal_order),
    ROW("times are set", "`GPUStartTime` and `GPUEndTime`",
        "they are there when the handlers run", times),
    ROW("times are late", "`GPUStartTime` and `GPUEndTime`",
        "they may be 0 where the status alone was seen", times),
    ROW("times' clock", "`GPUStartTime` and `GPUEndTime`",
        "they are seconds of the clock of `gpusync_now_ns`", times),
    ROW("50 us", "A terminal status shows",
        "it shows within 50 us of the GPU's end", times),
    ROW("pause", "The pause of a spin",
        "`isb` takes some tens of cycles, `yield` next to none", pauses),
    ROW("wfe", "The pause of a spin",
        "a program may use `wfe`, which gpusync does not", wfe),
    ROW("status without a pool", "Reading `status`",
        "it autoreleases nothing", pool),
    ROW("lock", "An `os_unfair_lock`",
        "zeros are a free lock; it may be freed as soon as it is unlocked", locks),
    ROW("missing function", "A function that a library lacks",
        "it is nil from `newFunctionWithName:`", compiling),
    ROW("limit, uncommitted", "`commandBuffer` blocks while",
        "it blocks at the limit; uncommitted ones count", limit),
    ROW("limit, handlers", "`commandBuffer` blocks while",
        "a place is taken until the handlers have run", limit),
    ROW("watchdog", "The watchdog ends",
        "it ends a command buffer whose wait takes some seconds, with an error", killed),
    ROW("error's number", "Errors are made from a number",
        "an error of a time limit has the number 2, in the error inside and in the text", killed),
    ROW("killed, handlers", "The status is terminal",
        "a killed command buffer runs its handlers", killed),
    ROW("killed, status first", "The status is terminal",
        "they see the terminal status", killed),
    ROW("killed, signals", "A command buffer that is killed",
        "it does not run the signals encoded in it", killed),
    ROW("other numbers", "Errors are made from a number",
        "each number has the meaning that is listed", numbers),
    ROW("lost device", "After an error of the classes",
        "the device is useless to this process", lost),
    ROW("lost device's signals", "A Metal 4 queue of a device that is lost",
        "it may still make its signals, where the device was not removed", lost),
    ROW("timed sleep", "Timed sleeps end less than",
        "they come less than 50 us late", timed_sleep),
    ROW("Metal 4's family", "`supportsFamily:` with `MTLGPUFamilyMetal4`",
        "a device of the family makes what Metal 4 needs, and no other has the method", family),
    ROW("feedback once", "A feedback comes for each commit",
        "a feedback comes for a commit with options, once", feedback),
    ROW("handlers leave the options", "A commit takes the handlers",
        "they do not run again after a second commit with the same options", feedback),
    ROW("retain is enough", "A commit retains nothing",
        "nothing else is needed once the work has ended", feedback),
    ROW("feedback behind a wait", "A wait of the queue holds back",
        "the feedback does not come before it; the work is done then", feedback_gate),
    ROW("feedback without work", "A Metal 4 command buffer without work",
        "its feedback does not come before a wait in front of it", feedback_gate),
    ROW("begin again", "A committed command buffer may begin again",
        "with another allocator, while earlier commits are in flight", commits),
    ROW("commits without a limit", "A committed command buffer may begin again",
        "there is no limit of commits", commits),
    ROW("feedbacks in any order", "A signal of a queue comes",
        "feedbacks may come in any order", commits),
    ROW("signal after feedback", "A signal of a queue comes",
        "a signal may come after the feedback of the work before it", commits),
    ROW("signals in order, Metal 4", "The signals of one Metal 4 queue",
        "they come in the order of the calls", signals4),
    ROW("wait times out", "A Metal 4 queue whose wait times out",
        "it runs the work behind it, without an error", wait4),
    ROW("failed, feedback", "A feedback comes for each commit",
        "a failed commit has its feedback too", failed4),
    ROW("failed, the error inside", "The error of a feedback may",
        "the error has the first real one inside", failed4),
    ROW("failed, signals", "Signals of a Metal 4 queue come",
        "those behind a failed commit come", failed4),
};
/* clang-format on */
#define ROWS (sizeof rows / sizeof *rows)

/* --------------------------------------------------------------------------------------------------- running -- */

#define PROBE_LIMIT_S 90u
#define DEVICE_LIMIT_S 30u
#define MOST_HANGS 2u /* then the device hangs, and is asked nothing more */
#define NO_DEVICE 77

/* In the child. Never returns: what is in flight, and threads that wait, are left behind. */
static void run_probe(const char *name)
{
    size_t i;
    alarm(PROBE_LIMIT_S); /* also ends a probe whose main thread hangs in Metal */
    device = metal_device_new();
    if (!device) _exit(NO_DEVICE);
    {
        char text[64];
        metal_string_copy(metal_get_retained(device, "name"), text, sizeof text);
        software = !strcmp(text, "softmetal");
    }
    for (i = 0; i < ROWS; i++)
        if (!strcmp(rows[i].probe_name, name)) {
            rows[i].probe();
            fflush(stdout);
            _exit(0);
        }
    _exit(2);
}

typedef struct answer {
    char verdict[16], text[400];
} answer;

static answer answers[ROWS];

static void take_line(char *line)
{
    char *name = strchr(line, '\t'), *verdict, *text;
    size_t i;
    if (strncmp(line, "row\t", 4) || !name || !(verdict = strchr(name + 1, '\t')) ||
        !(text = strchr(verdict + 1, '\t')))
        return;
    *name++ = *verdict++ = *text++ = 0;
    for (i = 0; i < ROWS; i++)
        if (!strcmp(rows[i].name, name)) {
            snprintf(answers[i].verdict, sizeof answers[i].verdict, "%s", verdict);
            snprintf(answers[i].text, sizeof answers[i].text, "%s", text);
        }
}

static bool hung(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM; }

static void how_it_ended(int status, unsigned limit_s, char *text, size_t size)
{
    if (hung(status)) snprintf(text, size, "did not end in %u s", limit_s);
    else if (WIFSIGNALED(status)) snprintf(text, size, "crashed with signal %d", WTERMSIG(status));
    else snprintf(text, size, "ended with status %d", WEXITSTATUS(status));
}

/* In the child: a program that begins anew, as Apple's libraries do not survive a fork. */
static const char *own_path; /* with a slash in it */
static void prepare_environment(const char *probe) /* which Apple's runtime reads when the process begins */
{
    setenv("OBJC_DEBUG_MISSING_POOLS", !strcmp(probe, "pool") ? "YES" : "NO", 1);
}
static void become_probe(const char *name)
{
    prepare_environment(name);
    execl(own_path, own_path, "--probe", name, (char *)NULL);
    _exit(127);
}

/* The row behind those of the probe of row `first`. */
static size_t rows_end(size_t first)
{
    size_t last = first;
    while (last < ROWS && rows[last].probe == rows[first].probe) last++;
    return last;
}

/* Runs the probe of row `first`, which also answers the rows after it that name it. `begin` is called in a child. With
   `quiet` what the child says on stderr is not shown. Returns whether the probe hung. */
static bool ask(size_t first, void (*begin)(const char *name), bool quiet)
{
    char text[16384], ended[64];
    size_t length = 0, last = rows_end(first), i;
    ssize_t got;
    int ends[2], status = 0;
    pid_t child;
    char *line, *next;
    for (i = first; i < last; i++) answers[i].verdict[0] = answers[i].text[0] = 0;
    fflush(stdout);
    if (pipe(ends)) return false;
    child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        if (quiet) dup2(ends[1], 2); /* lines that are no answers are not looked at */
        begin(rows[first].probe_name);
        _exit(127);
    }
    close(ends[1]);
    while ((got = read(ends[0], text + length, sizeof text - 1 - length)) > 0) length += (size_t)got;
    text[length] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    for (line = text; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        take_line(line);
    }
    how_it_ended(status, PROBE_LIMIT_S, ended, sizeof ended);
    for (i = first; i < last; i++) {
        answer *a = &answers[i];
        if (WIFEXITED(status) && WEXITSTATUS(status) == NO_DEVICE) {
            snprintf(a->verdict, sizeof a->verdict, NOT_SEEN);
            snprintf(a->text, sizeof a->text, "no Metal device");
        } else if (!a->verdict[0]) {
            snprintf(a->verdict, sizeof a->verdict, "differs");
            snprintf(a->text, sizeof a->text, "%s", status ? ended : "the probe gave no answer");
        }
    }
    if (status && !(WIFEXITED(status) && WEXITSTATUS(status) == NO_DEVICE) && !strstr(answers[last - 1].text, ended)) {
        snprintf(answers[last - 1].verdict, sizeof answers[last - 1].verdict, "differs");
        length = strlen(answers[last - 1].text);
        snprintf(answers[last - 1].text + length, sizeof answers[last - 1].text - length, "; then it %s", ended);
    }
    return hung(status);
}

/* `tell`, unless it is NULL, is called for each row as soon as it has its answer. */
static void ask_all(void (*begin)(const char *name), bool quiet, void (*tell)(size_t row))
{
    size_t first, last, i;
    unsigned hangs = 0;
    for (first = 0; first < ROWS; first = last) {
        last = rows_end(first);
        if (hangs < MOST_HANGS) {
            if (ask(first, begin, quiet)) {
                hangs++;
                fprintf(stderr, "hangs: %s\n", rows[first].probe_name); /* on-a-mac.sh counts these lines */
            }
        } else {
            for (i = first; i < last; i++) {
                snprintf(answers[i].verdict, sizeof answers[i].verdict, NOT_SEEN);
                snprintf(answers[i].text, sizeof answers[i].text, "not asked: %u probes did not end", hangs);
            }
        }
        for (i = first; tell && i < last; i++) tell(i);
    }
}

/* In a child. What the device says of itself. */
static __attribute__((unused)) void describe_device(void)
{
    static const struct {
        const char *name;
        long number; /* MTLGPUFamily */
    } families[] = {{"Apple5", 1005},  {"Apple6", 1006}, {"Apple7", 1007}, {"Apple8", 1008}, {"Apple9", 1009},
                    {"Apple10", 1010}, {"Mac2", 2002},   {"Metal3", 5001}, {"Metal4", 5002}};
    void *pool, *metal = metal_device_new();
    char text[128];
    size_t i;
    printf("| | |\n|---|---|\n");
    if (!metal) {
        printf("| GPU | none |\n\n");
        return;
    }
    pool = metal_pool_push();
    metal_string_copy(metal_get(metal, "name"), text, sizeof text);
    printf("| GPU | %s |\n| families |", text);
    for (i = 0; responds(metal, "supportsFamily:") && i < sizeof families / sizeof *families; i++)
        if (METAL__AS(signed char, long)(metal, metal__sel("supportsFamily:"), families[i].number))
            printf(" %s", families[i].name);
    printf(" |\n| Metal 4 queues | %s |\n", responds(metal, "newMTL4CommandQueue") ? "yes" : "no");
    printf("\n");
    metal_pool_pop(pool);
}

/* Answers in Markdown: the heading, the rows, and how many there are of each kind. What is told is on disk at once: it
   stays when the machine does not. */
static __attribute__((unused)) void print_heading(void)
{
    printf("| bullet | row | | measured |\n|---|---|---|---|\n");
    fflush(stdout);
}

static __attribute__((unused)) void print_row(size_t row)
{
    const answer *a = &answers[row];
    const char *mark = a->verdict[0] == 'd' ? "**" : "";
    printf("| %s%s | %s: %s | %s%s%s | %s |\n", rows[row].bullet, rows[row].bullet[0] == '-' ? "" : " ...",
           rows[row].name, rows[row].text, mark, a->verdict, mark, a->text);
    fflush(stdout);
}

static __attribute__((unused)) void print_counts(void)
{
    unsigned holds = 0, differs = 0, unseen = 0;
    size_t i;
    for (i = 0; i < ROWS; i++) {
        holds += answers[i].verdict[0] == 'h';
        differs += answers[i].verdict[0] == 'd';
        unseen += answers[i].verdict[0] == 'n';
    }
    printf("\n%u hold, %u differ, %u not seen\n", holds, differs, unseen);
}

#endif
