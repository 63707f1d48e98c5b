/* test_submit_graphs.c - random programs of submissions against a model that knows how each must end

   See submit_graphs.h. Here a program runs with random latencies, late handlers and failures, and the steps of the host have a
   thread of their own.

   GRAPH_SEED      runs one program, and prints it; what fails or hangs prints the seed
   GRAPH_PROGRAMS  runs so many, from GRAPH_SEED on where that is given, however long they take
   STRESS          "full": 2,000 programs, however long they take */
#include "submit_graphs.h"
#include <signal.h>

static void *host_body(void *argument)
{
    program *p = (program *)argument;
    int i;
    for (i = 0; i < p->steps; i++)
        if (p->step[i].kind == HOST) run_on_host(&p->step[i]);
    return NULL;
}

static void set_timing(program *p)
{
    softmetal_timing timing;
    softmetal_chaos chaos;
    softmetal_set_seed(p->seed);
    softmetal_get_timing(&timing);
    if (chance(p, 800)) {
        timing.schedule.max_ns = below(p, 10000);
        timing.execute.max_ns = below(p, 50000);
        timing.notify.max_ns = below(p, 50000);
    }
    timing.watchdog_ns = PATIENCE / 2;
    softmetal_set_timing(&timing);
    memset(&chaos, 0, sizeof chaos);
    chaos.late_handler_per_mille = (unsigned)below(p, 2) * 100;
    chaos.overlap_per_mille = p->overlap ? 500 : 0;
    softmetal_set_chaos(&chaos);
}

static void run_program(program *p)
{
    pthread_t host = start(host_body, p);
    int i;
    for (i = 0; i < p->ordered; i++) {
        step *s = &p->step[p->order[i]];
        prepare(p, i);
        if (s->late_waits) make_and_discard(s);
        submit(s);
        if (s->state == ISSUED && chance(p, 200))
            (void)!gpusync_wait(p->queue[s->queue], s->ticket, below(p, 50000)); /* only to change the timing */
    }
    prepare(p, p->ordered);
    ask_steps(p);
    join(host);
    /* what was left to itself goes on, and waits for nothing that does not come: it is not the watchdog that ends it */
    expect(p, !p->mishaps || softmetal_settle(PATIENCE / 4), "work of a queue that is gone does not end");
    ask_timelines(p);
}

/* 0: none. For code that does not know its program: an alarm, an assertion. */
static uint64_t running;

static void tell_seed(int number)
{
    char text[64];
    int length = snprintf(text, sizeof text, "%s: GRAPH_SEED=%llu\n", number == SIGALRM ? "hangs" : "died",
                          (unsigned long long)running);
    (void)!write(STDERR_FILENO, text, (size_t)length);
    signal(number, SIG_DFL);
    raise(number);
}

static void run_seed(uint64_t seed, bool verbose)
{
    static program p;
    running = seed;
    alarm(100);
    draw_program(&p, seed, NULL, false);
    p.patience = PATIENCE;
    p.keeps = chance(&p, 700);
    open_program(&p, SOFTMETAL_REAL);
    set_timing(&p);
    run_program(&p);
    if (verbose) print_program(&p);
    check_program(&p);
    close_program(&p);
    coverage.programs++;
    coverage.overlapping += p.overlap;
    running = 0;
    alarm(0);
}

static void tell_coverage(void)
{
    const struct coverage *c = &coverage;
    print_message("%llu programs, %llu overlapping; %llu held, %llu host steps; "
                  "%llu failed, %llu by what they waited for, %llu refused\n",
                  (unsigned long long)c->programs, (unsigned long long)c->overlapping, (unsigned long long)c->held,
                  (unsigned long long)c->hosts, (unsigned long long)c->failed, (unsigned long long)c->inherited,
                  (unsigned long long)c->refused);
    print_message("%llu mishaps: %llu steps ended by them, %llu of these in flight, %llu were held for certain; "
                  "%llu left out, %llu given up, %llu unsignalled; %llu made ahead of one, %llu with spread signals\n",
                  (unsigned long long)c->mishaps, (unsigned long long)c->ended, (unsigned long long)c->flying,
                  (unsigned long long)c->lost, (unsigned long long)c->left, (unsigned long long)c->given_up,
                  (unsigned long long)c->unsignalled, (unsigned long long)c->ahead, (unsigned long long)c->spread);
    print_message("%llu steps on queues of Metal 4, %llu waits of one kind of queue for the other\n",
                  (unsigned long long)c->steps4, (unsigned long long)c->across);
    print_message("%llu steps where failures stick: %llu failed of what stuck, %llu of these refused; %llu clears of a "
                  "failure, %llu steps went well behind one; %llu had to take what stuck, %llu of "
                  "these held, %llu were resumed\n",
                  (unsigned long long)c->sticky, (unsigned long long)c->stuck, (unsigned long long)c->turned_away,
                  (unsigned long long)c->cleared, (unsigned long long)c->freed, (unsigned long long)c->taken,
                  (unsigned long long)c->dropped, (unsigned long long)c->resumed);
    print_message("%llu steps never ran, as a ticket had failed; %llu signals did not wait for the value before\n",
                  (unsigned long long)c->awaited, (unsigned long long)c->loose);
}

static void test_random_programs_end_as_the_model_says(void **state)
{
    const char *one = getenv("GRAPH_SEED"), *many = getenv("GRAPH_PROGRAMS"), *stress = getenv("STRESS");
    bool full = many || (stress && strcmp(stress, "full") == 0);
    uint64_t begun = gpusync_now_ns(), seed = one ? strtoull(one, NULL, 10) : begun % 1000000007u * 10000, i;
    uint64_t most = many ? strtoull(many, NULL, 10) : 2000;
    (void)state;
    signal(SIGALRM, tell_seed);
    signal(SIGABRT, tell_seed);
    if (one && !many) {
        run_seed(seed, true);
        return;
    }
    memset(&coverage, 0, sizeof coverage);
    for (i = 0; i < most && (full || i < 200 || gpusync_now_ns() - begun < SECONDS(6)); i++)
        run_seed(seed + i, false);
    tell_coverage();
    if (most < 200) return;
    /* it was no walk in the park */
    assert_true(coverage.held > coverage.programs && coverage.hosts);
    assert_true(coverage.failed && coverage.inherited && coverage.refused);
    assert_true(coverage.steps4 && coverage.across);
    assert_true(coverage.stuck > coverage.turned_away && coverage.turned_away && coverage.cleared && coverage.freed);
    assert_true(coverage.resumed && coverage.awaited && coverage.loose);
    assert_true(coverage.taken || coverage.programs < 600); /* one program in thirty */
    assert_true(coverage.mishaps && coverage.ended && coverage.lost && coverage.left && coverage.spread);
}

static int tell_what_failed(void **state)
{
    (void)state;
    if (running) print_error("GRAPH_SEED=%llu\n", (unsigned long long)running);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_random_programs_end_as_the_model_says, tell_what_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
