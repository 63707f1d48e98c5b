/* test_graphs.c - random programs against a model of the contract: graphs.h

   One test for each kind of program, from the simplest one on, so that the first that fails says most. GRAPHS is how
   many run in all, GRAPHS_SEED is the seed of the only one. */
#include "graphs.h"

static const graph_rules kinds[] = {
    {.name = "ordered", .queues = 2, .timelines = 1, .steps = 50},
    {.name = "tickets", .queues = 3, .timelines = 1, .steps = 60, .tickets = true, .host_signals = true},
    {.name = "unordered",
     .queues = 3,
     .timelines = 2,
     .steps = 60,
     .tickets = true,
     .unordered = true,
     .host_signals = true,
     .looks = true},
    {.name = "host_sync",
     .queues = 3,
     .timelines = 2,
     .steps = 60,
     .tickets = true,
     .unordered = true,
     .host_sync = true,
     .empties = true,
     .host_signals = true,
     .looks = true},
    {.name = "encoded",
     .queues = 3,
     .timelines = 2,
     .steps = 70,
     .tickets = true,
     .unordered = true,
     .host_sync = true,
     .encoded = true,
     .discards = true,
     .markers = true,
     .host_signals = true,
     .looks = true},
    {.name = "failures",
     .queues = 3,
     .timelines = 2,
     .steps = 70,
     .tickets = true,
     .unordered = true,
     .host_sync = true,
     .empties = true,
     .encoded = true,
     .discards = true,
     .markers = true,
     .fails = true,
     .host_signals = true,
     .looks = true},
    {.name = "cancelled",
     .queues = 3,
     .timelines = 3,
     .steps = 70,
     .tickets = true,
     .unordered = true,
     .host_sync = true,
     .empties = true,
     .encoded = true,
     .discards = true,
     .markers = true,
     .fails = true,
     .host_signals = true,
     .cancels = true,
     .timeline_fails = true,
     .looks = true},
    {.name = "order_only",
     .queues = 3,
     .timelines = 2,
     .steps = 70,
     .tickets = true,
     .unordered = true,
     .host_sync = true,
     .encoded = true,
     .discards = true,
     .fails = true,
     .host_signals = true,
     .cancels = true,
     .order_only = true,
     .looks = true},
    {.name = "sticky",
     .queues = 3,
     .timelines = 2,
     .steps = 70,
     .tickets = true,
     .unordered = true,
     .host_sync = true,
     .encoded = true,
     .discards = true,
     .markers = true,
     .fails = true,
     .host_signals = true,
     .cancels = true,
     .sticky = true,
     .looks = true},
    {.name = "others",
     .queues = 2,
     .timelines = 3,
     .steps = 70,
     .tickets = true,
     .unordered = true,
     .host_sync = true,
     .encoded = true,
     .fails = true,
     .host_signals = true,
     .others = true,
     .looks = true},
    {.name = "everything",
     .queues = 4,
     .timelines = 4,
     .steps = 110,
     .tickets = true,
     .unordered = true,
     .host_sync = true,
     .empties = true,
     .encoded = true,
     .discards = true,
     .markers = true,
     .fails = true,
     .host_signals = true,
     .cancels = true,
     .order_only = true,
     .sticky = true,
     .others = true,
     .timeline_fails = true,
     .looks = true},
};

static unsigned long by_environment(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoul(text, NULL, 10) : otherwise;
}

static void run_kind(const char *name)
{
    unsigned long all = by_environment("GRAPHS", 2200 / SLOW);
    unsigned long count = (all + LENGTH(kinds) - 1) / LENGTH(kinds);
    unsigned long seed;
    size_t i = 0;
    while (strcmp(kinds[i].name, name) != 0)
        i++;
    if (getenv("GRAPHS_SEED")) {
        run_graph(&kinds[i], by_environment("GRAPHS_SEED", 0));
        return;
    }
    for (seed = 1; seed <= count; seed++)
        run_graph(&kinds[i], seed);
}

#define KIND(test, name)           \
    static void test(void **state) \
    {                              \
        (void)state;               \
        run_kind(name);            \
    }

KIND(test_S3_S6_S7_random_ordered_work, "ordered")
KIND(test_R7_random_waits_for_tickets, "tickets")
KIND(test_R1_random_UNORDERED_work, "unordered")
KIND(test_R2_R3_random_HOST_SYNC_work, "host_sync")
KIND(test_R4_R6_random_encoded_points_and_markers, "encoded")
KIND(test_S4_S8_R14_random_failures, "failures")
KIND(test_R8_R9_R27_random_cancelled_work, "cancelled")
KIND(test_R12_random_order_only_timelines, "order_only")
KIND(test_R11_R17_random_failures_that_stick, "sticky")
KIND(test_R18_random_values_of_other_code, "others")
KIND(test_S1_to_S8_random_programs_of_everything, "everything")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_S3_S6_S7_random_ordered_work),
        cmocka_unit_test(test_R7_random_waits_for_tickets),
        cmocka_unit_test(test_R1_random_UNORDERED_work),
        cmocka_unit_test(test_R2_R3_random_HOST_SYNC_work),
        cmocka_unit_test(test_R4_R6_random_encoded_points_and_markers),
        cmocka_unit_test(test_S4_S8_R14_random_failures),
        cmocka_unit_test(test_R8_R9_R27_random_cancelled_work),
        cmocka_unit_test(test_R12_random_order_only_timelines),
        cmocka_unit_test(test_R11_R17_random_failures_that_stick),
        cmocka_unit_test(test_R18_random_values_of_other_code),
        cmocka_unit_test(test_S1_to_S8_random_programs_of_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
