/* known_red.c - defects that are known and not mended yet, one test each

   The rules
     A test says what would be right, through public calls and softmetal (probe.h where nothing else stops a thread at
     the place), in a situation that shows the defect every time: nothing rests on luck, nothing on a sleep.
     What is expected to fail stands in EXPECTED_RED, with the defect in a few words; around it, all else has to hold.
     So a test that is red for another reason, or crashes, is not taken for the known defect.
     A call that never returns is red as well: the program ends itself after LIMIT seconds.
     Each test has a process of its own: `known_red NAME` runs one, `known_red` lists them, tests/known_red.sh runs
     all of them at once, and fails when one of them is green.
     A test that is green is mended: move it to the suite, into the file of its chapter, with EXPECTED_RED taken off, in
     the commit that mends it. A defect that is found and cannot be mended at once gets its test here first.
   Numbers go on with those of test_interleavings.c and test_interleavings_of_submissions.c. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

/* Time passes when a test says so, besides its own pace. */
static uint64_t passed_ns;

#ifdef __APPLE__
static uint64_t hooked_clock(clockid_t id)
{
    return clock_gettime_nsec_np(id) + __atomic_load_n(&passed_ns, __ATOMIC_SEQ_CST);
}
#define clock_gettime_nsec_np hooked_clock
#else
static int hooked_clock(clockid_t id, struct timespec *now)
{
    int result = clock_gettime(id, now);
    uint64_t ns = (uint64_t)now->tv_nsec + __atomic_load_n(&passed_ns, __ATOMIC_SEQ_CST);
    now->tv_sec += (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return result;
}
#define clock_gettime hooked_clock
#endif

#define GPUSYNC_IMPLEMENTATION
#include "../stage.h"
#undef clock_gettime
#undef clock_gettime_nsec_np
#undef pthread_cond_timedwait

/* -- what is expected ------------------------------------------------------------------------------------------- */

#define LIMIT 8u /* seconds */
enum { GREEN = 0, RED_ELSEWHERE = 1, NO_TEST = 2, RED = 10 }; /* how the program ends */

static const char *volatile expected; /* while that runs */

#define EXPECTED_RED(defect, statement)                                                                                \
    do {                                                                                                               \
        expected = (defect);                                                                                           \
        print_message("expected red: %s\n", defect);                                                                   \
        statement;                                                                                                     \
        expected = NULL;                                                                                               \
        print_message("green: %s\n", defect);                                                                          \
    } while (0)

static void say(const char *text) { (void)!write(STDOUT_FILENO, text, strlen(text)); }

static void end_by_the_limit(int number)
{
    const char *defect = expected;
    (void)number;
    say(defect ? "red as expected, a call does not return: " : "a call does not return");
    if (defect) say(defect);
    say("\n");
    _exit(defect ? RED : RED_ELSEWHERE);
}

/* == one of them ================================================================================================== */

static const struct CMUnitTest all[] = {
    {NULL, NULL, NULL, NULL, NULL}, /* ends the list */
};

static int run_one(const struct CMUnitTest *test)
{
    const struct CMUnitTest tests[] = {*test};
    int failed;
    signal(SIGALRM, end_by_the_limit);
    alarm(LIMIT);
    failed = cmocka_run_group_tests_name(test->name, tests, NULL, NULL);
    alarm(0);
    if (!failed) return GREEN;
    if (!expected) return RED_ELSEWHERE;
    print_message("red as expected: %s\n", expected);
    return RED;
}

int main(int argc, char **argv)
{
    int result = NO_TEST;
    size_t i;
    for (i = 0; all[i].name; i++) {
        if (argc < 2) puts(all[i].name);
        else if (strcmp(all[i].name, argv[1]) == 0) result = run_one(&all[i]);
    }
    fflush(NULL);
    _exit(argc < 2 ? GREEN : result); /* whatever a red test has left is left */
}
