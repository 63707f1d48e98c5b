/* test_example_compute_graph.c - examples/compute_graph.c: a failure costs one graph at most; a stop waits for the GPU

   The example is compiled in here, with its implementation, and its main is run. */
#include "example_run.h"

/* -- what happens to a part, by its label ------------------------------------------------------------------------ */

typedef struct fate {
    const char *label;
    unsigned reason; /* why it fails; 0: it does not */
    unsigned times;  /* the first so many tries */
    bool hangs;      /* until the program waits */
} fate;

static fate fates[4];
static bool known_at_once;     /* the end of a part is known before the next one is made */
static bool out_of_time;       /* the wait reaches its limit */
static unsigned waits, at_once; /* waits of the program; commits of a graph while an older one was in flight */
static unsigned graph_of_last;

static void decide(unsigned n, void *buffer)
{
    char label[64];
    unsigned graph;
    void *pool = metal_pool_push();
    metal_string_copy(metal_get(buffer, "label"), label, sizeof label);
    metal_pool_pop(pool);
    graph = (unsigned)(label[strlen("graph ")] - '0');
    for (unsigned i = 1; i < n; i++)
        if (graph != graph_of_last && GET(&world.buffers[i])) at_once++;
    graph_of_last = graph;
    for (size_t i = 0; i < LENGTH(fates); i++) {
        fate *f = &fates[i];
        if (!f->label || strcmp(f->label, label) || !f->times) continue;
        f->times--;
        if (f->reason) softmetal_fail_as(buffer, f->reason, NULL);
        if (f->hangs) hang(n, buffer);
    }
}

static gpusync_result watched_wait(gpusync_queue *queue, uint64_t timeout_ns)
{
    waits++;
    if (out_of_time) return gpusync_queue_wait(queue, 0);
    for (unsigned n = 1; n <= world.commits; n++)
        if (GET(&world.buffers[n])) let_go_on(n);
    return gpusync_queue_wait(queue, timeout_ns);
}

static gpusync_result watched_buffer(gpusync_queue *queue, const gpusync_command_buffer_desc *desc, void **buffer)
{
    if (known_at_once) assert_true(softmetal_settle(SECONDS(20)));
    return gpusync_command_buffer(queue, desc, buffer);
}

#define gpusync_queue_wait watched_wait
#define gpusync_command_buffer watched_buffer
#define main example_main
#include "../examples/compute_graph.c"
#undef main
#undef gpusync_queue_wait
#undef gpusync_command_buffer
#include "example_end.h"

static int run(fate first, fate second)
{
    fates[0] = first;
    fates[1] = second;
    world.at_commit = decide;
    return example_main();
}

static int set_up(void **state)
{
    memset(fates, 0, sizeof fates);
    known_at_once = out_of_time = false;
    waits = at_once = graph_of_last = 0;
    return set_up_world(state);
}

static const fate none;

/* -- the tests --------------------------------------------------------------------------------------------------- */

#define GRAPH_2 "graph 2: stopped after 2 of 4 parts\n"
#define GRAPH_3 "graph 3: computed, try 1\n"

static void test_all_goes_well(void **state)
{
    (void)state;
    assert_int_equal(run(none, none), 0);
    assert_said("graph 1: computed, try 1\n" GRAPH_2 GRAPH_3);
    assert_string_equal(complained.text, "");
    assert_int_equal(world.commits, 4 + 2 + 4);
    assert_int_equal(waits, 3);
}

/* ggml-org/ggml#1545. A try at once would be refused, too. */
static void test_a_part_that_is_refused_in_the_background_puts_off_one_graph(void **state)
{
    fate refused = {"graph 1, part 2", SOFTMETAL_BACKGROUND, 1, false};
    (void)state;
    assert_int_equal(run(refused, none), 1);
    assert_said("graph 1: graph 1, part 2: not permitted\n"
                "graph 1: put off, try 1\n" GRAPH_2 GRAPH_3);
}

static void test_a_part_that_other_work_took_with_it_costs_one_try(void **state)
{
    fate victim = {"graph 1, part 2", SOFTMETAL_INNOCENT_VICTIM, 1, false};
    (void)state;
    assert_int_equal(run(victim, none), 0);
    assert_said("graph 1: graph 1, part 2: innocent victim\n"
                "graph 1: computed, try 2\n" GRAPH_2 GRAPH_3);
}

static void test_three_tries_and_then_the_next_graph(void **state)
{
    fate victim = {"graph 1, part 2", SOFTMETAL_INNOCENT_VICTIM, 100, false};
    (void)state;
    assert_int_equal(run(victim, none), 1);
    assert_said("graph 1: graph 1, part 2: innocent victim\n"
                "graph 1: graph 1, part 2: innocent victim\n"
                "graph 1: graph 1, part 2: innocent victim\n"
                "graph 1: given up, try 3\n" GRAPH_2 GRAPH_3);
    assert_has(&complained, "gpusync_queue_wait(b->queue, LIMIT): the work ended with an error");
}

static void test_a_page_fault_is_not_tried_again(void **state)
{
    fate fault = {"graph 1, part 4", SOFTMETAL_PAGE_FAULT, 100, false};
    (void)state;
    assert_int_equal(run(fault, none), 1);
    assert_said("graph 1: graph 1, part 4: page fault\n"
                "graph 1: given up, try 1\n" GRAPH_2 GRAPH_3);
    assert_int_equal(world.commits, 4 + 2 + 4);
}

/* The graph is not tried again where one of two failures is final. */
static void test_a_failure_that_is_transient_does_not_hide_one_that_is_not(void **state)
{
    fate victim = {"graph 1, part 1", SOFTMETAL_INNOCENT_VICTIM, 100, true};
    fate fault = {"graph 1, part 2", SOFTMETAL_PAGE_FAULT, 100, false};
    (void)state;
    assert_int_equal(run(victim, fault), 1);
    assert_has(&said, "graph 1: given up, try 1\n" GRAPH_2 GRAPH_3);
}

static void test_a_known_failure_stops_the_commits(void **state)
{
    fate refused = {"graph 1, part 2", SOFTMETAL_OUT_OF_MEMORY, 1, false};
    (void)state;
    known_at_once = true;
    assert_int_equal(run(refused, none), 1);
    assert_said("graph 1: graph 1, part 2: out of memory\n"
                "graph 1: put off, try 1\n" GRAPH_2 GRAPH_3);
    assert_int_equal(world.commits, 2 + 2 + 4);
    assert_has(&complained, "gpusync_command_buffer(b->queue, &desc, &buffer): ");
}

/* The parts that the GPU has hang until the program waits: without a wait the next graph would begin beside them. */
static void test_a_stop_waits_for_what_is_in_flight(void **state)
{
    fate first = {"graph 2, part 1", 0, 1, true}, second = {"graph 2, part 2", 0, 1, true};
    (void)state;
    assert_int_equal(run(first, second), 0);
    assert_said("graph 1: computed, try 1\n" GRAPH_2 GRAPH_3);
    assert_int_equal(at_once, 0);
    assert_int_equal(waits, 3);
}

static void test_a_stopped_graph_that_fails_does_not_end_the_next_one(void **state)
{
    fate fault = {"graph 2, part 1", SOFTMETAL_BACKGROUND, 100, true};
    (void)state;
    assert_int_equal(run(fault, none), 1);
    assert_said("graph 1: computed, try 1\n"
                "graph 2: graph 2, part 1: not permitted\n" GRAPH_2 GRAPH_3);
    assert_int_equal(world.commits, 4 + 2 + 4);
}

static void test_a_gpu_that_hangs_ends_the_program(void **state)
{
    fate hung = {"graph 1, part 3", 0, 1, true};
    (void)state;
    out_of_time = true;
    assert_int_equal(run(hung, none), 1);
    assert_said("");
    assert_has(&complained, "gpusync_queue_wait(b->queue, LIMIT): the time limit passed first; the work goes on\n");
    assert_int_equal(waits, 1);
}

static void test_without_a_device_it_is_skipped(void **state)
{
    (void)state;
    softmetal_fail_creation(1, true);
    assert_int_equal(run(none, none), 77);
    assert_string_equal(complained.text, "skipped: Metal has no device\n");
}

#define story(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        story(test_all_goes_well),
        story(test_a_part_that_is_refused_in_the_background_puts_off_one_graph),
        story(test_a_part_that_other_work_took_with_it_costs_one_try),
        story(test_three_tries_and_then_the_next_graph),
        story(test_a_page_fault_is_not_tried_again),
        story(test_a_failure_that_is_transient_does_not_hide_one_that_is_not),
        story(test_a_known_failure_stops_the_commits),
        story(test_a_stop_waits_for_what_is_in_flight),
        story(test_a_stopped_graph_that_fails_does_not_end_the_next_one),
        story(test_a_gpu_that_hangs_ends_the_program),
        story(test_without_a_device_it_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
