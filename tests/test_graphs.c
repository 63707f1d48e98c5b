/* test_graphs.c - random programs against a model of the contract: graphs.h

   One test for each kind of program, from the simplest one on, so that the first that fails says most. GRAPHS is how
   many run in all, GRAPHS_SEED is the seed of the only one. */
#define GPUSYNC_IMPLEMENTATION
#include "graphs.h"

static unsigned long by_environment(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoul(text, NULL, 10) : otherwise;
}

static void run_kind(const char *name)
{
    unsigned long all = by_environment("GRAPHS", 1100 / SLOW);
    unsigned long count = (all + LENGTH(graph_kinds) - 1) / LENGTH(graph_kinds);
    size_t i = 0;
    while (strcmp(graph_kinds[i].name, name) != 0)
        i++;
    if (getenv("GRAPHS_SEED")) {
        run_graph(&graph_kinds[i], by_environment("GRAPHS_SEED", 0));
        return;
    }
    for (unsigned long seed = 1; seed <= count; seed++)
        run_graph(&graph_kinds[i], seed);
}

#define KIND(test, name) \
    without_stage(test) \
    { \
        run_kind(name); \
    }

KIND(test_S3_S6_S7_random_ordered_work, "ordered")
KIND(test_R7_random_waits_for_tickets, "tickets")
KIND(test_R2_R3_R36_random_work_that_waits_and_signals_on_the_GPU, "on_gpu")
KIND(test_R30_random_UNORDERED_work, "unordered")
KIND(test_R33_R34_R35_random_encoded_points_markers_and_enqueued_buffers, "encoded")
KIND(test_R29_random_work_on_queues_of_metal_4_and_beside_them, "metal4")
KIND(test_R10_R37_random_work_on_queues_with_little_room, "room")
KIND(test_S4_S8_R14_random_failures, "failures")
KIND(test_R8_R9_R31_random_cancelled_work, "cancelled")
KIND(test_R12_random_order_only_timelines, "order_only")
KIND(test_R32_random_failures_that_stick, "sticky")
KIND(test_R18_random_values_of_other_code, "others")
KIND(test_R38_random_programs_whose_device_is_lost, "lost")
KIND(test_R19_to_R22_random_ends_of_queues_and_timelines, "ends")
KIND(test_S1_to_S8_random_programs_of_everything, "everything")
