/* races.h - the stage of races: a device with hooks of turns.h, queues on the manual clock, timelines, and notes of
   what the program was called for

   A race includes it, and nothing else, behind `#define GPUSYNC_IMPLEMENTATION`. Its set-up opens the stage, its
   tear-down closes it. What a task calls here ends the program where it does not go as it must, with the schedule.

   gpusync calls no function of the program with a lock of its own, nor after gpusync_device_destroy has returned OK (a
   race sets `stage.gone` then): each hook, callback, notify, log, and GPUSYNC_MALLOC and GPUSYNC_FREE check that (S10).
   That no object goes under a lock turns.h checks (A14).

   By default a race is searched with few switches, and runs for some seeds. TURNS_SWITCHES=2 searches alone,
   TURNS_SEEDS=20000 runs seeds alone, TURNS_SUMMARY=1 prints how many schedules there were. */
#ifndef RACES_H
#define RACES_H

#include <stddef.h>
static void *race_malloc(size_t size);
static void race_free(void *memory);
#define GPUSYNC_MALLOC(size) race_malloc(size)
#define GPUSYNC_FREE(memory) race_free(memory)
#include "kit_memory.h"
#include "turns.h"

#include "from.h"
#include "../examples/metal.h"

/* ------------------------------------------------------------------------------------------------------ >>stage -- */

enum { QUEUES = 3, TIMELINES = 2 };

static struct {
    gpusync_device *device; /* NULL, as each below: there is none, or the race has destroyed it */
    gpusync_queue *q[QUEUES];
    gpusync_timeline *t[TIMELINES];
    void *metal[QUEUES]; /* retained: the GPU goes on behind a destroy */
    bool gone;           /* the device's destroy has returned OK */
    long blocks;         /* of GPUSYNC_MALLOC */
    unsigned notifies, lines;
    unsigned early_parks;   /* so many parks of the task "sleeps" end at once */
    gpusync_waiter *waiter; /* of its last park */
} stage;

/* A function of the program is called: S10. */
static void check_called(void)
{
    turns_check(!stage.gone);
    turns_check(!turns_running() || turns_self()->locks == 0);
}

static void *race_malloc(size_t size)
{
    check_called();
    __atomic_fetch_add(&stage.blocks, 1, __ATOMIC_SEQ_CST);
    return kit_malloc(size);
}

static void race_free(void *memory)
{
    check_called();
    if (memory)
        __atomic_fetch_sub(&stage.blocks, 1, __ATOMIC_SEQ_CST);
    kit_free(memory);
}

static void race_yield(void *user)
{
    check_called();
    turns_yield(user);
}

static void race_park(void *user, gpusync_waiter *waiter, uint64_t deadline)
{
    check_called();
    if (strcmp(turns_self()->name, "sleeps") == 0) {
        stage.waiter = waiter;
        if (stage.early_parks > 0) {
            stage.early_parks--;
            turns_point("a park that ends early");
            return;
        }
    }
    turns_park(user, waiter, deadline);
}

static void race_unpark(void *user, gpusync_waiter *waiter)
{
    check_called();
    turns_unpark(user, waiter);
}

static void race_notify(void *user)
{
    check_called();
    stage.notifies++;
    turns_notify(user);
    check_called();
}

static void race_log(void *user, gpusync_log_level level, const char *text)
{
    turns_point("log");
    if (getenv("TURNS_TRACE"))
        fprintf(stderr, "log: %s\n", text);
    check_called();
    stage.lines++;
}

static const gpusync_hooks race_hooks = {.yield = race_yield, .park = race_park, .unpark = race_unpark};
static const gpusync_spin no_spin;

TURNS_UNUSED static gpusync_device_desc race_device(void)
{
    gpusync_device_desc desc = {
        .hooks = &race_hooks,
        .spin = &no_spin,
        .log = race_log,
        .callback_mode = GPUSYNC_CALLBACKS_MANUAL,
        .notify = race_notify,
    };
    return desc;
}

TURNS_UNUSED static void open_queue(int i, const gpusync_queue_desc *desc)
{
    turns_expect(gpusync_queue_create(stage.device, desc, &stage.q[i]), GPUSYNC_OK);
    stage.metal[i] = metal_retain(gpusync_queue_metal(stage.q[i]));
}

TURNS_UNUSED static void open_stage(int queues, int timelines)
{
    gpusync_device_desc desc = race_device();
    memset(&stage, 0, sizeof stage);
    turns_expect(gpusync_device_create(&desc, &stage.device), GPUSYNC_OK);
    for (int i = 0; i < queues; i++)
        open_queue(i, NULL);
    for (int i = 0; i < timelines; i++)
        turns_expect(gpusync_timeline_create(stage.device, NULL, &stage.t[i]), GPUSYNC_OK);
}

/* Destroys what the race has left, and checks that nothing remains. */
TURNS_UNUSED static void close_stage(void)
{
    for (int i = 0; i < QUEUES; i++)
        turns_expect(gpusync_queue_destroy(stage.q[i]), GPUSYNC_OK);
    for (int i = 0; i < TIMELINES; i++)
        turns_expect(gpusync_timeline_destroy(stage.t[i]), GPUSYNC_OK);
    turns_expect(gpusync_device_destroy(stage.device), GPUSYNC_OK);
    stage.gone = true;
    for (int i = 0; i < QUEUES; i++)
        metal_release(stage.metal[i]);
    turns_expect(softmetal_live("block"), 0);
    turns_expect(softmetal_live("command_buffer"), 0);
    turns_expect(stage.blocks, 0);
    turns_expect(softmetal_live("shared_event"), 0);
    turns_expect(softmetal_live("queue"), 0);
}

TURNS_UNUSED static void turns_gpus(int queues)
{
    for (int i = 0; i < queues; i++)
        turns_gpu(stage.metal[i]);
}

/* ------------------------------------------------------------------------------------------------------ >>notes -- */

/* What a callback of the program was told. */
typedef struct outcome {
    int calls;
    gpusync_result result;
    gpusync_ticket ticket; /* of the submission: there before on_complete runs */
} outcome;

TURNS_UNUSED static void note_outcome(void *user, gpusync_result result, const gpusync_error *error)
{
    outcome *o = (outcome *)user;
    check_called();
    turns_check((error != NULL) == (result != GPUSYNC_OK));
    turns_check(!error || error->result == result);
    o->calls++;
    o->result = result;
}

TURNS_UNUSED static void note_submission(void *user, gpusync_result result, const gpusync_error *error)
{
    turns_check(((outcome *)user)->ticket > 0);
    note_outcome(user, result, error);
}

TURNS_UNUSED static void count_gone(void *user)
{
    check_called();
    ++*(int *)user;
}

/* Which of several endings were seen, over all schedules of a race, as bits: a race in which only one side wins proves
   nothing. */
static unsigned seen;

TURNS_UNUSED static void see(unsigned ending)
{
    seen |= 1u << ending;
}

/* ------------------------------------------------------------------------------------------------------- >>work -- */

TURNS_UNUSED static void *make_buffer(gpusync_queue *q)
{
    void *buffer;
    turns_expect(gpusync_command_buffer_create(q, NULL, GPUSYNC_FOREVER, &buffer), GPUSYNC_OK);
    return buffer;
}

TURNS_UNUSED static gpusync_ticket commit_buffer(gpusync_queue *q, void *buffer)
{
    gpusync_ticket ticket;
    turns_expect(gpusync_commit(q, buffer, &ticket), GPUSYNC_OK);
    return ticket;
}

/* One command buffer. wait and signal: NULL or a point. o: NULL or what on_complete fills. UNORDERED: returns 0. */
TURNS_UNUSED static gpusync_ticket submit_buffer(gpusync_queue *q, void *buffer, const gpusync_point *wait,
                                                 const gpusync_point *signal, outcome *o, uint32_t flags)
{
    outcome none = {0};
    gpusync_ticket *ticket = o ? &o->ticket : &none.ticket;
    bool unordered = flags & GPUSYNC_SUBMIT_UNORDERED;
    gpusync_submission submission = {
        .wait_points = wait,
        .wait_count = wait != NULL,
        .command_buffers = &buffer,
        .command_buffer_count = 1,
        .signal_points = signal,
        .signal_count = signal != NULL,
        .on_complete = !o ? NULL : unordered ? note_outcome : note_submission,
        .user = o,
        .flags = flags,
    };
    turns_expect(gpusync_submit(q, &submission, unordered ? NULL : ticket), GPUSYNC_OK);
    return *ticket;
}

TURNS_UNUSED static gpusync_result wait_for_ever(gpusync_queue *q, gpusync_ticket ticket)
{
    return gpusync_wait(q, ticket, GPUSYNC_FOREVER, NULL);
}

TURNS_UNUSED static bool is_committed(void *buffer)
{
    return metal_status(buffer) != 0;
}

TURNS_UNUSED static unsigned records_of(gpusync_queue *q)
{
    uint64_t cursor = 0;
    gpusync_error error;
    unsigned count = 0;
    while (gpusync_queue_next_error(q, &cursor, &error) == GPUSYNC_OK)
        count++;
    return count;
}

/* -------------------------------------------------------------------------------------------------------- >>run -- */

/* expected: the endings that must have been seen, as bits. */
static void check_count(uint64_t count, unsigned expected)
{
    if (getenv("TURNS_RACE") || getenv("TURNS_CHOICES") || getenv("TURNS_SEED"))
        return;
    assert_true(count > 1);
    assert_int_equal(seen & expected, expected);
}

/* Searches with so many switches, and runs so many seeds, unless the environment asks for one of the two. A search ends
   after 1,000 schedules, or TURNS_LIMIT, 0 for none: make test is not to take long. With each atomic operation a point,
   a search with one switch is a long one. */
TURNS_UNUSED static void run_race(const turns_race *one, unsigned switches, unsigned seeds, unsigned expected)
{
    uint64_t count = 0;
    const char *limit = getenv("TURNS_LIMIT");
    turns_race copy = *one;
    if (!copy.limit)
        copy.limit = limit ? strtoull(limit, NULL, 10) : 1000;
    seen = 0;
#ifdef WITH_ATOMICS
    switches = 0;
    seeds *= 2;
#endif
    if (!getenv("TURNS_SEEDS") || getenv("TURNS_SWITCHES"))
        count += turns_run_all(&copy, switches);
    if (!getenv("TURNS_SWITCHES") || getenv("TURNS_SEEDS"))
        count += turns_run_seeds(&copy, seeds);
    check_count(count, expected);
}

/* The same of a race that needs no more than these. */
TURNS_UNUSED static void race(const char *name, void (*set_up)(void *), void (*tear_down)(void *), void *user,
                              unsigned switches, unsigned seeds, unsigned expected)
{
    const turns_race one = {.name = name, .setup = set_up, .teardown = tear_down, .user = user};
    run_race(&one, switches, seeds, expected);
}

/* Of a race whose program the seed draws: there is nothing to search. */
TURNS_UNUSED static void run_random(const turns_race *race, unsigned seeds, unsigned expected)
{
    seen = 0;
    check_count(turns_run_seeds(race, seeds), expected);
}

#endif
