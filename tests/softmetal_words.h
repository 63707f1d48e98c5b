/* softmetal_words.h - what the two programs that judge the software device share: a stage, blocks by hand, tables of
   rules to break and of quirks

   Plain C with the messages of examples/metal.h, as every program that softmetal is made for, and without gpusync. */
#ifndef SOFTMETAL_WORDS_H
#define SOFTMETAL_WORDS_H

#include "from.h"
#include "slow.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "metal.h"
#include "rules.h"
#include "softmetal.h"

#define FN static __attribute__((unused))
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define SECONDS(n) ((uint64_t)(n) * 1000000000u)
#define MS(n) ((uint64_t)(n) * 1000000u)
#define GET(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define PUT(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)
#define COUNT(p) __atomic_add_fetch(p, 1, __ATOMIC_SEQ_CST)

extern void *objc_autorelease(void *object);
extern void *_NSConcreteGlobalBlock[32], *_NSConcreteStackBlock[32], *_NSConcreteMallocBlock[32];
extern void *dispatch_queue_create(const char *label, void *attribute);
extern void *dispatch_queue_attr_make_with_qos_class(void *attribute, unsigned qos_class, int relative_priority);
extern void *dispatch_get_global_queue(intptr_t identifier, uintptr_t flags);
extern void dispatch_async_f(void *queue, void *context, void (*function)(void *));
extern void dispatch_after_f(uint64_t when, void *queue, void *context, void (*function)(void *));
extern uint64_t dispatch_time(uint64_t when, int64_t delta);
extern void dispatch_release(void *object);

/* A message with arguments, their types in parentheses. */
#define SEND(result, types, object, selector, ...) \
    (((result(*) types)metal__send)((object), metal__sel(selector), __VA_ARGS__))
#define ID void *, void *

enum { NOT_ENQUEUED, ENQUEUED, COMMITTED, SCHEDULED, COMPLETED, FAILED };

FN void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}
FN uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return SECONDS(t.tv_sec) + (uint64_t)t.tv_nsec;
}
FN bool comes_to(const unsigned *value, unsigned wanted)
{
    for (int i = 0; i < 20000 && GET(value) < wanted; i++)
        sleep_ms(1);
    return GET(value) >= wanted;
}
FN pthread_t begin_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, argument), 0);
    return thread;
}

FN void *mine(void *object) { return objc_autorelease(object); } /* goes with the stage */
FN void *text(const char *utf8) { return mine(metal_string_new(utf8)); }
FN void *event_new(void *device) { return mine(metal_shared_event_new(device)); }
FN void *memory_new(void *device, size_t bytes) { return mine(metal_buffer_new(device, bytes)); }
FN unsigned char *bytes_of(void *memory) { return metal_contents(memory); }
FN void *buffer_in(void *queue) { return metal_get(queue, "commandBuffer"); }
FN bool responds(void *object, const char *selector)
{
    return SEND(signed char, (ID, void *), object, "respondsToSelector:", metal__sel(selector)) != 0;
}
/* An encoder of the buffer, of Metal 4's kind where it is one of those, writes the value into the whole memory. */
FN void *fill(void *buffer, void *memory, unsigned char value)
{
    void *encoder = metal_get(buffer, responds(buffer, "commit") ? "blitCommandEncoder" : "computeCommandEncoder");
    metal_fill(encoder, memory, 0, metal_number(memory, "length"), value);
    metal_do(encoder, "endEncoding");
    return buffer;
}
FN bool reaches(void *event, uint64_t value, uint64_t ms)
{
    return SEND(signed char, (ID, uint64_t, uint64_t), event, "waitUntilSignaledValue:timeoutMS:", value, ms) != 0;
}
FN void *user_info(void *error, const char *key)
{
    return SEND(void *, (ID, void *), metal_get(error, "userInfo"), "objectForKey:", text(key));
}
FN long code_of(void *error) { return error ? (long)metal_number(error, "code") : -1; }
FN void *below(void *error) { return error ? user_info(error, "NSUnderlyingError") : NULL; }
FN void assert_text(void *string, const char *expected)
{
    char found[200];
    metal_string_copy(string, found, sizeof found);
    assert_string_equal(found, expected);
}
FN void set_watchdog(uint64_t ns)
{
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.watchdog_ns = ns;
    softmetal_set_timing(&timing);
}

/* What softmetal makes of the driver's numbers, for either kind of queue. */
static const struct made {
    unsigned number;
    long code, code4;
    const char *words, *name; /* name NULL: the words once more */
} made_of_numbers[] = {
    {SOFTMETAL_TIMEOUT, 2, 1, "Caused GPU Timeout Error", "Timeout"},
    {SOFTMETAL_HANG, 2, 1, "Caused GPU Hang Error", "Hang"},
    {SOFTMETAL_SUBMISSIONS_IGNORED, 4, 5, "Ignored (for causing prior/excessive GPU errors)", "SubmissionsIgnored"},
    {SOFTMETAL_INNOCENT_VICTIM, 1, 6, "Discarded (victim of GPU error/recovery)", "InnocentVictim"},
    {SOFTMETAL_BACKGROUND, 7, 2, "Insufficient Permission (to submit GPU work from background)",
     "BackgroundExecutionNotPermitted"},
    {SOFTMETAL_OUT_OF_MEMORY, 8, 3, "Insufficient Memory", "OutOfMemory"},
    {SOFTMETAL_INVALID_RESOURCE, 9, 6, "Invalid Resource", "InvalidResource"},
    {SOFTMETAL_PAGE_FAULT, 3, 6, "Caused GPU Address Fault Error", "PageFault"},
    {SOFTMETAL_IMPACTING_INTERACTIVITY, 1, 6, "Impacting Interactivity", "ImpactingInteractivity"},
    {SOFTMETAL_FIRST_INTERNAL, 1, 6, "Internal Error", NULL},
    {0xE00002BD, 1, 6, "Internal Error", NULL},
};

/* -- blocks by hand, and what they did ---------------------------------------------------------------------------- */

typedef struct block block;
typedef struct notes {
    int order[64];
    unsigned count, disposed, inside, open; /* atomic. A handler stays inside until it is open, where `gated` */
    bool gated;
    unsigned long status; /* of the last handler's buffer */
    uint64_t value;       /* of the last listener's event */
    void *given, *self;   /* what the last handler got, and its block */
    pthread_t thread;
    void *queue, *object; /* for what a test's own function looks at */
    unsigned found[4];
} notes;
struct block {
    void *isa;
    int32_t flags, reserved;
    void (*invoke)(void *self, void *object, uint64_t value);
    const void *descriptor;
    notes *notes;
    int number;
    void (*does)(block *self, void *object);
};
typedef struct descriptor {
    uintptr_t reserved, size;
    void (*copy)(void *, const void *);
    void (*dispose)(const void *);
    const char *signature, *layout;
} descriptor;

FN void block_invoke(void *self, void *object, uint64_t value)
{
    block *b = self;
    notes *n = b->notes;
    n->given = object;
    n->self = self;
    n->value = value;
    n->thread = pthread_self();
    if (b->does) b->does(b, object);
    COUNT(&n->inside);
    while (n->gated && !GET(&n->open))
        sleep_ms(1);
    n->order[GET(&n->count) % 64] = b->number;
    COUNT(&n->count);
}
FN void note_status(block *self, void *object) { self->notes->status = metal_status(object); }
FN void block_copy(void *to, const void *from) { (void)to, (void)from; }
FN void block_dispose(const void *self) { COUNT(&((const block *)self)->notes->disposed); }
FN const descriptor stack_descriptor = {0, sizeof(block), block_copy, block_dispose, "v24@?0@8Q16", NULL};
FN const struct { uintptr_t reserved, size; const char *signature; } plain_descriptor = {
    0, sizeof(block), "v24@?0@8Q16"};

FN block stack_block(notes *n, int number, void (*does)(block *, void *))
{
    return (block){_NSConcreteStackBlock, 1 << 25 | 1 << 30, 0, block_invoke, &stack_descriptor, n, number, does};
}
FN block global_block(notes *n, int number, void (*does)(block *, void *))
{
    return (block){_NSConcreteGlobalBlock, 1 << 28 | 1 << 30, 0, block_invoke, &plain_descriptor, n, number, does};
}
FN void *on_completed_do(void *buffer, notes *n, int number, void (*does)(block *, void *))
{
    block b = stack_block(n, number, does);
    metal_add_completed_handler(buffer, &b);
    return buffer;
}
FN void *on_completed(void *buffer, notes *n, int number) { return on_completed_do(buffer, n, number, note_status); }
FN void on_event_do(void *event, void *listener, uint64_t value, notes *n, int number, void (*does)(block *, void *))
{
    block b = stack_block(n, number, does);
    SEND(void, (ID, void *, uint64_t, void *), event, "notifyListener:atValue:block:", listener, value, &b);
}
#define on_event(event, listener, value, n, number) on_event_do(event, listener, value, n, number, NULL)
FN void *listener_new(void) { return mine(metal_get(metal__class("MTLSharedEventListener"), "new")); }
FN void *listener_on(void *dispatch_queue)
{
    return mine(SEND(void *, (ID, void *), metal_get(metal__class("MTLSharedEventListener"), "alloc"),
                     "initWithDispatchQueue:", dispatch_queue));
}
FN void assert_order(const notes *n, const int *expected, unsigned count)
{
    assert_int_equal(GET(&n->count), count);
    assert_memory_equal(n->order, expected, count * sizeof *expected);
}
#define ORDER(n, ...) assert_order(n, (const int[]){__VA_ARGS__}, LENGTH(((const int[]){__VA_ARGS__})))

/* -- a stage ------------------------------------------------------------------------------------------------------ */

typedef struct stage {
    void *device, *queue, *pool;
    softmetal_clock clock;
    notes n;
    void *buffer, *allocator, *memory, *options; /* of test_softmetal4.c */
} stage;

FN stage *stage_open(softmetal_clock clock)
{
    static stage s;
    memset(&s, 0, sizeof s);
    softmetal_reset();
    softmetal_set_clock(clock);
    s.clock = clock;
    s.pool = metal_pool_push();
    s.device = mine(metal_device_new());
    s.queue = s.n.queue = mine(metal_queue_new(s.device, 64));
    return &s;
}
FN void settle(stage *s)
{
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish_queue(s->queue);
    assert_true(softmetal_settle(SECONDS(20)));
}
FN void stage_close(stage *s)
{
    PUT(&s->n.open, 1);
    settle(s);
    metal_pool_pop(s->pool);
    softmetal_reset();
    assert_int_equal(softmetal_live(NULL), 0);
}

/* In a table of tests: the stage is the test's state. */
FN softmetal_clock real_clock = SOFTMETAL_REAL, manual_clock = SOFTMETAL_MANUAL;
FN int tear_down(void **state) { return stage_close(*state), 0; }
#define on_real(test) KIT_TEST(test, ON_REAL(test))
#define on_manual(test) KIT_TEST(test, ON_MANUAL(test))
#define on_both_clocks(test) KIT_TEST(test, ON_REAL(test), ON_MANUAL(test))
#define ON_REAL(test) {#test, test, set_up, tear_down, &real_clock}
#define ON_MANUAL(test) {#test "_by_hand", test, set_up, tear_down, &manual_clock}

/* -- what ends the process: a program runs itself again with a word and a number ---------------------------------- */

FN const char *own_path;

/* `body`: the child of a fork runs it, where a program may use libraries behind one, and no thread was started yet. */
FN int run_again(const char *word, size_t number, int (*body)(size_t), char *said, size_t capacity)
{
    int ends[2], result = 0;
    char argument[16];
    size_t length = 0;
    ssize_t got;
    snprintf(argument, sizeof argument, "%zu", number);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
#ifndef __APPLE__
        signal(SIGSEGV, SIG_DFL); /* cmocka's */
        if (body) _exit(body(number));
#endif
        execl(own_path, own_path, word, argument, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while ((got = read(ends[0], said + length, capacity - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = 0;
    close(ends[0]);
    waitpid(child, &result, 0);
    return result;
}
FN bool aborted(int result) { return WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT; }

/* A table of rules is a macro of X(rule, statements that break it). Each case ends in SIGABRT, with the rule's name on
   stderr, or with more of the line where the case has more. These tests come first. */
#define NAME_OF_CASE(rule, ...) rule,
#define COUNT_CASE(rule, ...) +1
#define BREAK_IN_TURN(rule, ...) \
    if (wanted-- == 0) {         \
        __VA_ARGS__;             \
    }
#ifndef __has_feature
#define __has_feature(name) 0
#endif
FN void assert_they_abort(int (*body)(size_t), const char *const *rules, size_t from, size_t to)
{
    unsigned wrong = 0;
    for (size_t i = from; i < to; i++) {
        char said[4096], start[200];
        int result = run_again("--break", i, body, said, sizeof said);
        snprintf(start, sizeof start, "softmetal: %s%s", rules[i], strchr(rules[i], ' ') ? "\n" : ": ");
        if (aborted(result) && strstr(said, start)) continue;
        print_error("case %zu, %s: status %d, it said: %s\n", i, rules[i], result, said);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}
#define NAME_OF_RULE(identifier, name, text) name,
FN void assert_each_has_a_case(const char *const *rules, size_t count, const char *const *broken, size_t cases)
{
    for (size_t r = 0, c; r < count; r++) {
        for (c = 0; c < cases && strcmp(rules[r], broken[c]) != 0; c++)
            ;
        if (c == cases && strcmp(rules[r], "internal")) fail_msg("the rule %s has no case", rules[r]);
    }
}

#ifdef __APPLE__
#define NOT_ON_A_MAC(why) (print_message("skip: on a Mac " why "\n"), skip())
#else
#define NOT_ON_A_MAC(why) ((void)0)
#endif

/* -- facts and quirks -----------------------------------------------------------------------------------------------

   A table is a macro of X(what, clock, what a program does, what it sees). A fact is seen. A quirk is seen with it, and
   not without; the table has each quirk from offset `from` on, in the order of softmetal.h. */
typedef struct fact {
    const char *name;
    size_t offset; /* of a quirk */
    softmetal_clock clock;
} fact;
#define ROW_OF_FACT(name, clock, ...) {name, 0, SOFTMETAL_##clock},
#define ROW_OF_QUIRK(quirk, clock, ...) {#quirk, offsetof(softmetal_quirks, quirk), SOFTMETAL_##clock},
#define SEE_IN_TURN(name, clock, does, sees) \
    if (row-- == 0) {                        \
        does;                                \
        return sees;                         \
    }
typedef bool see(stage *s, size_t row, bool with);
FN unsigned wrong_at(const fact *rows, size_t row, bool with, see *seen, stage *(*open)(softmetal_clock), bool is_quirk)
{
    softmetal_quirks quirks = {0};
    stage *s = open(rows[row].clock);
    if (is_quirk) ((bool *)&quirks)[rows[row].offset] = with;
    softmetal_set_quirks(&quirks);
    bool right = seen(s, row, with) == with;
    if (!right) print_error("%s: %s\n", rows[row].name, with ? "not seen" : "seen without it");
    softmetal_set_quirks(&(softmetal_quirks){0});
    stage_close(s);
    return !right;
}
FN void assert_facts(const fact *rows, size_t count, see *seen, stage *(*open)(softmetal_clock))
{
    unsigned wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += wrong_at(rows, i, true, seen, open, false);
    assert_int_equal(wrong, 0);
}
FN void assert_quirks(const fact *rows, size_t count, size_t from, see *seen, stage *(*open)(softmetal_clock))
{
    unsigned wrong = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(rows[i].offset, from + i);
        wrong += wrong_at(rows, i, false, seen, open, true) + wrong_at(rows, i, true, seen, open, true);
    }
    assert_int_equal(wrong, 0);
}

#endif
