/* from.h - a program of tests can begin behind its first: TESTS_FROM, the number of tests that it leaves out

   A test that fails may leave a queue open, a thread asleep, a clock that stands. tests/run.sh ends the program there,
   and runs those behind it in a new process: what one test left fails no other. */
#ifndef FROM_H
#define FROM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

static inline size_t tests_left_out(size_t count)
{
    const char *from = getenv("TESTS_FROM");
    size_t number = from ? (size_t)strtoul(from, NULL, 10) : 0;
    return number < count ? number : count;
}

#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, setup, teardown) \
    _cmocka_run_group_tests(#tests, (tests) + tests_left_out(sizeof(tests) / sizeof(tests)[0]), \
                            sizeof(tests) / sizeof(tests)[0] - tests_left_out(sizeof(tests) / sizeof(tests)[0]), \
                            setup, teardown)

#endif
