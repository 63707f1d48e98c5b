/* test_graph.c - random programs of submissions against a model that knows how each must end

   See graph.h. Here a program runs with random latencies, late handlers and failures, and the steps of the host have a
   thread of their own.

   GRAPH_SEED  runs one program, and prints it; a failure prints the seed
   STRESS      "full": 2,000 programs, however long they take */
#define GPUSYNC_IMPLEMENTATION
#include "graph.h"

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
        if (s->late_waits) make_and_discard(s);
        submit(s);
        if (s->state == ISSUED && chance(p, 200))
            (void)!gpusync_wait(p->queue[s->queue], s->ticket, below(p, 50000)); /* only to change the timing */
    }
    ask_steps(p);
    join(host);
    ask_timelines(p);
}

static void run_seed(uint64_t seed, bool verbose)
{
    static program p;
    draw_program(&p, seed, NULL);
    p.patience = PATIENCE;
    open_program(&p, SOFTMETAL_REAL);
    set_timing(&p);
    run_program(&p);
    if (verbose) print_program(&p);
    check_program(&p);
    close_program(&p);
    coverage.programs++;
    coverage.overlapping += p.overlap;
}

static void test_random_programs_end_as_the_model_says(void **state)
{
    const char *one = getenv("GRAPH_SEED"), *stress = getenv("STRESS");
    bool full = stress && strcmp(stress, "full") == 0;
    uint64_t begun = gpusync_now_ns(), seed = begun % 1000000007u * 10000, i;
    (void)state;
    if (one) {
        run_seed(strtoull(one, NULL, 10), true);
        return;
    }
    memset(&coverage, 0, sizeof coverage);
    for (i = 0; i < 2000 && (full || i < 200 || gpusync_now_ns() - begun < SECONDS(6)); i++)
        run_seed(seed + i, false);
    print_message("%llu programs, %llu overlapping; %llu held, %llu waits skipped, %llu buffers saved, "
                  "%llu host steps; %llu failed, %llu by what they waited for, %llu refused\n",
                  (unsigned long long)coverage.programs, (unsigned long long)coverage.overlapping,
                  (unsigned long long)coverage.held, (unsigned long long)coverage.skipped,
                  (unsigned long long)coverage.saved, (unsigned long long)coverage.hosts,
                  (unsigned long long)coverage.failed, (unsigned long long)coverage.inherited,
                  (unsigned long long)coverage.refused);
    /* it was no walk in the park */
    assert_true(coverage.held > coverage.programs && coverage.skipped && coverage.saved && coverage.hosts);
    assert_true(coverage.failed && coverage.inherited && coverage.refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_programs_end_as_the_model_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
