/* from.c - what from.h has no place for: the tests of a program, and the main of one that has no other */
#include "from.h"

#include <string.h>

static struct CMUnitTest tests[128];
static size_t test_count;

void add_tests(const struct CMUnitTest *rows, size_t count)
{
    if (test_count + count > sizeof tests / sizeof *tests)
        abort();
    memcpy(&tests[test_count], rows, count * sizeof *rows);
    test_count += count;
}

int run_all_tests(void)
{
    return _cmocka_run_group_tests("tests", tests + tests_left_out(test_count), tests_to_run(test_count), NULL, NULL);
}

__attribute__((weak)) int main(void)
{
    return run_all_tests();
}
