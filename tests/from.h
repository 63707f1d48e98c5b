/* from.h - a program of tests can begin behind its first: TESTS_FROM, the number of tests that it leaves out; TESTS_MOST:
   how many it runs then, at most

   A test that fails may leave a queue open, a thread asleep, a clock that stands. tests/run.sh ends the program there,
   and runs those behind it in a new process: what one test left fails no other.

   without_stage is the head of a test, and so is what others make of KIT_TEST: that has a `stage *s`. from.c runs the
   tests of a program, in the order in which they stand; a main of its own calls run_all_tests, or has an array as
   cmocka's programs have. */
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

static inline size_t tests_to_run(size_t count)
{
    const char *most = getenv("TESTS_MOST");
    size_t left = count - tests_left_out(count), number = most ? (size_t)strtoul(most, NULL, 10) : left;
    return number < left ? number : left;
}

#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, setup, teardown) \
    _cmocka_run_group_tests(#tests, (tests) + tests_left_out(sizeof(tests) / sizeof(tests)[0]), \
                            tests_to_run(sizeof(tests) / sizeof(tests)[0]), setup, teardown)

#define without_stage(test) KIT_PLAIN_TEST(test, cmocka_unit_test(test))
#define KIT_PLAIN_TEST(test, ...) \
    static void test(void **state); \
    KIT_ADD(test, __VA_ARGS__) \
    static void test(__attribute__((unused)) void **state)
#define KIT_ADD(test, ...) \
    static const struct CMUnitTest test##_rows[] = {__VA_ARGS__}; \
    __attribute__((constructor)) static void test##_is_there(void) \
    { \
        add_tests(test##_rows, sizeof test##_rows / sizeof *test##_rows); \
    }
#define KIT_TEST(test, ...) \
    static void test##_body(stage *s); \
    static void test(void **state) \
    { \
        test##_body(*state); \
    } \
    KIT_ADD(test, __VA_ARGS__) \
    static void test##_body(__attribute__((unused)) stage *s)
void add_tests(const struct CMUnitTest *rows, size_t count);
int run_all_tests(void);

#endif
