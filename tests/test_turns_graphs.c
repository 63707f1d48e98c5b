/* test_turns_graphs.c - the random programs of graphs.h, with threads beside the one that takes the steps

   The seed of a schedule draws the program, too. During a step
     - sleepers wait for points of the program. The model says when such a wait is over, and with what: a sleeper that
       is then still asleep has lost its wake-up
     - one thread asks about a point, or looks at everything. What has ended stays so
     - one thread ends a command buffer, where nothing of the program fails.
   When all of them have come to rest, the model asks about everything, as in test_graphs.c.

   Listeners hear nothing, as they have threads of softmetal's. Not run here: lost devices, where waits end by the
   clock. */
#define GPUSYNC_IMPLEMENTATION
#include "kit_memory.h"
#include "turns.h"
#include "graphs.h"

/* ---------------------------------------------------------------------------------------------------- >>threads -- */

enum { SLEEPERS = 2, MOST_POINTS = 2, STEPS = 24 };
#ifdef WITH_ATOMICS
enum { REACH = 8000 }; /* points of a schedule, roughly */
#else
enum { REACH = 3000 };
#endif

/* A thread that does something once each time it is asked to. */
typedef struct worker {
    void (*act)(struct worker *w);
    bool asked;
    bool leaves;
    /* what the call is about */
    model_point points[MOST_POINTS];
    gpusync_point real[MOST_POINTS];
    size_t count;
    gpusync_wait_for how;
    unsigned kind;
    void *buffer;
    gpusync_result result; /* what came of it */
    bool told;             /* the asker's is to be compared with the model */
} worker;

static graph *playing;
static worker sleepers[SLEEPERS], asker, ender;

static bool is_asked(void *of)
{
    return ((worker *)of)->asked;
}

static void work_on(void *of)
{
    worker *w = (worker *)of;
    for (;;) {
        turns_until(is_asked, w);
        if (w->leaves)
            return;
        w->act(w);
        w->asked = false;
    }
}

static void ask(worker *w)
{
    w->asked = true;
    w->told = false;
}

/* A thread that sleeps, or has nothing to do. Of one in a brief park this is not known yet. */
static bool rests(const turns_task *task)
{
    if (task->state == TURNS_PARKED)
        return !task->brief && !task->waiter->scheduler_data[0];
    return task->state == TURNS_OVER || (task->state == TURNS_UNTIL && !task->condition(task->condition_argument));
}

static bool all_rest(void *self)
{
    for (int i = 0; i < turns.count; i++)
        if (&turns.task[i] != self && !rests(&turns.task[i]))
            return false;
    return true;
}

/* --------------------------------------------------------------------------------------------------- >>sleepers -- */

static void sleep_until(worker *w)
{
    const gpusync_point *p = &w->real[0];
    if (w->count > 1 || w->kind == 0)
        w->result = gpusync_wait_many(w->real, w->count, w->how, GPUSYNC_FOREVER, NULL, NULL);
    else if (p->timeline)
        w->result = gpusync_timeline_wait(p->timeline, p->value, GPUSYNC_FOREVER, NULL);
    else
        w->result = gpusync_wait(p->queue, p->ticket, GPUSYNC_FOREVER, NULL);
}

static results point_result(const graph *g, const model_point *p)
{
    bool closed = p->queue < 0 ? g->t[p->timeline].closed : g->q[p->queue].closed;
    return model_point_result(g, p) | (closed ? RESULT(GPUSYNC_ERROR_DESTROYED) : 0);
}

/* 0: the wait is not over. R27. */
static results wait_result(const graph *g, const worker *w)
{
    results all = 0;
    size_t i, ended = 0;
    bool failed = false;
    for (i = 0; i < w->count; i++) {
        results one = point_result(g, &w->points[i]);
        all |= one;
        ended += one != 0;
        failed = failed || (one && !(one & ONLY_OK));
    }
    if (w->how == GPUSYNC_WAIT_ANY)
        return all;
    if (ended < w->count)
        return w->how == GPUSYNC_WAIT_ALL_OR_FAILURE && failed ? all & ~ONLY_OK : 0;
    return failed ? all & ~ONLY_OK : all;
}

static void check_sleeper(graph *g, worker *w)
{
    results right = w->count ? wait_result(g, w) : 0;
    if (!w->count)
        return;
    if (w->asked && right)
        wrong(g, "a sleeper sleeps on, and its wait is over with %llx", (unsigned long long)right);
    if (w->asked)
        return;
    if (w->result > 0 || !(right & RESULT(w->result)))
        wrong(g, "a sleeper comes back with %d, allowed are %llx", w->result, (unsigned long long)right);
    w->count = 0;
}

static void ask_sleeper(graph *g, worker *w)
{
    static const gpusync_wait_for hows[] = {GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ANY, GPUSYNC_WAIT_ALL_OR_FAILURE};
    unsigned count = 1 + (unsigned)draw(g, MOST_POINTS);
    if (w->asked || chance(g, 30))
        return;
    w->how = hows[draw(g, LENGTH(hows))];
    w->kind = (unsigned)draw(g, 2);
    for (w->count = 0; w->count < count; w->count++) {
        if (!draw_point(g, &w->points[w->count]))
            break;
        w->real[w->count] = real_point(g, &w->points[w->count]);
    }
    if (w->count == 0)
        return;
    say(g, "%u: a sleeper waits (%d) for", g->step, (int)w->how);
    for (count = 0; count < w->count; count++)
        say(g, " %d:%d of %s", w->points[count].queue < 0 ? w->points[count].timeline : w->points[count].queue,
            (int)(w->points[count].ticket + (int64_t)w->points[count].value),
            w->points[count].queue < 0 ? "timelines" : "queues");
    say(g, "\n");
    ask(w);
}

/* --------------------------------------------------------------------------------------- >>the asker, the ender -- */

static void ask_about(worker *w)
{
    const gpusync_point *p = &w->real[0];
    uint64_t value = 0;
    size_t count;
    switch (w->kind) {
    case 0: assert_ok(gpusync_device_run_callbacks(playing->s.device, 0, &count)); return;
    case 1:
        w->result = p->timeline ? gpusync_timeline_query(p->timeline, &value, NULL)
                                : gpusync_poll(p->queue, p->ticket, NULL);
        if (p->timeline && value < p->value)
            return;
        break;
    case 2:
        w->result = p->timeline ? gpusync_timeline_wait(p->timeline, p->value, 0, NULL)
                                : gpusync_wait(p->queue, p->ticket, 0, NULL);
        break;
    default: w->result = gpusync_wait_many(p, 1, GPUSYNC_WAIT_ALL, 0, NULL, NULL); break;
    }
    w->told = w->result <= 0 && w->kind;
}

static void check_asker(graph *g)
{
    if (!asker.told)
        return;
    asker.told = false;
    results right = point_result(g, &asker.points[0]);
    if (asker.kind == 1 && asker.points[0].queue < 0)
        right |= g->t[asker.points[0].timeline].failure; /* the value was there, and the timeline has failed above it */
    if (!(right & RESULT(asker.result)))
        wrong(g, "the asker was told %d, allowed are %llx", asker.result, (unsigned long long)right);
}

static void ask_asker(graph *g)
{
    asker.kind = (unsigned)draw(g, 4);
    if (!draw_point(g, &asker.points[0]))
        return;
    asker.real[0] = real_point(g, &asker.points[0]);
    ask(&asker);
}

static void end_buffer(worker *w)
{
    softmetal_finish(w->buffer);
}

static void ask_ender(graph *g)
{
    int queue = (int)draw(g, g->rules->queues);
    void *buffer = softmetal_first_in_line(g->s.metal[queue]);
    unsigned which;
    if (draws(g, DRAWS_FAILS | DRAWS_ENDS | DRAWS_ROOM) || chance(g, 50))
        return;
    if (!buffer || softmetal_what_is_due(buffer) != SOFTMETAL_COMPLETE_DUE)
        return;
    say(g, "%u: meanwhile the GPU ends a buffer on queue %d, work %d\n", g->step, queue, work_of(g, buffer, &which));
    ender.buffer = metal_retain(buffer);
    g->ending = queue;
    ask(&ender);
}

/* ---------------------------------------------------------------------------------------------------- >>program -- */

static void begin_step(graph *g)
{
    for (unsigned i = 0; i < SLEEPERS; i++)
        ask_sleeper(g, &sleepers[i]);
    if (draws(g, DRAWS_ENDS)) {
        turns_until(all_rest, turns_self()); /* a call on an object that is about to go has begun */
        return;
    }
    ask_asker(g);
    ask_ender(g);
}

static void come_to_rest(graph *g)
{
    turns_until(all_rest, turns_self());
    if (g->ending < 0)
        return;
    buffer_over(g, ender.buffer, g->ending, false);
    metal_release(ender.buffer);
    g->ending = -1;
}

static void after_step(graph *g)
{
    turns_until(all_rest, turns_self()); /* the checks have looked */
    for (unsigned i = 0; i < SLEEPERS; i++)
        check_sleeper(g, &sleepers[i]);
    check_asker(g);
}

static void play(void *unused)
{
    graph *g = playing;
    void *pool = metal_pool_push();
    play_graph(g);
    for (unsigned i = 0; i < g->rules->timelines; i++)
        if (!g->t[i].closed)
            (void)!gpusync_timeline_fail(g->s.t[i], NULL);
    turns_until(all_rest, turns_self());
    for (unsigned i = 0; i < SLEEPERS; i++)
        turns_check(!sleepers[i].asked);
    for (unsigned i = 0; i < SLEEPERS; i++)
        sleepers[i].asked = sleepers[i].leaves = true;
    asker.asked = asker.leaves = true;
    ender.asked = ender.leaves = true;
    metal_pool_pop(pool);
}

static void set_up(void *kind)
{
    static graph_rules rules;
    rules = *(const graph_rules *)kind;
    rules.steps = STEPS;
    playing = new_graph(&rules, turns_seed());
    playing->begin = begin_step;
    playing->rest = come_to_rest;
    playing->judge = after_step;
    open_graph(playing);
    turns_add("program", play, NULL);
    for (unsigned i = 0; i < SLEEPERS; i++) {
        sleepers[i] = (worker){.act = sleep_until};
        turns_add(i ? "sleeper two" : "sleeper one", work_on, &sleepers[i]);
    }
    asker = (worker){.act = ask_about};
    turns_add("asker", work_on, &asker);
    ender = (worker){.act = end_buffer};
    turns_add("ender", work_on, &ender);
}

static void tear_down(void *unused)
{
    close_graph(playing);
}

static void run_kind(const char *name, unsigned seeds)
{
    turns_race race = {.name = name, .setup = set_up, .teardown = tear_down, .reach = REACH, .changes = 24};
    size_t i = 0;
    while (strcmp(graph_kinds[i].name, name) != 0)
        i++;
    race.user = (void *)(uintptr_t)&graph_kinds[i];
    turns_run_seeds(&race, seeds);
}

#define KIND(test, name) \
    without_stage(test) \
    { \
        run_kind(name, 20); \
    }

KIND(test_S3_S6_S7_ordered_work_and_threads, "ordered")
KIND(test_R7_waits_for_tickets_and_threads, "tickets")
KIND(test_R2_R3_R36_work_that_waits_and_signals_on_the_GPU_and_threads, "on_gpu")
KIND(test_R30_UNORDERED_work_and_threads, "unordered")
KIND(test_R33_R34_R35_encoded_points_markers_enqueued_buffers_and_threads, "encoded")
KIND(test_R29_queues_of_metal_4_and_threads, "metal4")
KIND(test_R10_R37_little_room_and_threads, "room")
KIND(test_S4_S8_R14_failures_and_threads, "failures")
KIND(test_R8_R9_R31_cancelled_work_and_threads, "cancelled")
KIND(test_R12_order_only_timelines_and_threads, "order_only")
KIND(test_R32_failures_that_stick_and_threads, "sticky")
KIND(test_R18_values_of_other_code_and_threads, "others")
KIND(test_R19_to_R22_ends_and_threads, "ends")

int main(void)
{
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* assertions cannot jump out of a task */
    return run_all_tests();
}
