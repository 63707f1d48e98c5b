/* test_beliefs.c - the probes for a Mac (tests/beliefs/probes.h), on a device that can be turned against each belief

   softmetal does what the lists of README.md and examples/README.md say of Metal, so no probe may say "differs".
   Each knob makes softmetal break one belief: the rows of this belief say so, and no other. So a probe that cannot fail
   is seen here. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "from.h"

#include "../gpusync.h"
#include "locks_end.h"
#include "slow.h"
#include "beliefs/probes.h"
#include "softmetal.h"

/* --------------------------------------------------------------------------------------------------- knobs -- */

typedef struct knob {
    const char *name;
    const char *rows[4]; /* that differ with it */
    const char *probe;   /* the knob is turned for this probe alone; NULL: for all of them */
    void (*turn)(softmetal_quirks *quirks);
} knob;

#define QUIRK(name) \
    static void turn_##name(softmetal_quirks *quirks) { quirks->name = true; }
QUIRK(global_blocks_copied)
QUIRK(status_after_handlers)
QUIRK(status_early)
QUIRK(wrapped_buffers)
QUIRK(handlers_backwards)
QUIRK(silent_dealloc)
QUIRK(events_not_kept)
QUIRK(deaf_listeners)
QUIRK(deaf_to_the_past)
QUIRK(refused_listeners)
QUIRK(open_waits)
QUIRK(signals_of_the_killed)
QUIRK(bare_errors)
QUIRK(lost_handlers)
QUIRK(status_autoreleases)
QUIRK(uncommitted_are_free)
QUIRK(early_places)
QUIRK(any_function)
QUIRK(late_unlock)
QUIRK(options_keep_handlers)
QUIRK(bare_feedback_errors)
QUIRK(signals_die_with_failure)
QUIRK(overtaken_signals)

static void turn_timers(softmetal_quirks *quirks)
{
    (void)quirks;
    softmetal_set_clock(SOFTMETAL_MANUAL); /* timers wait for the test */
    help.patience_ms = 300;
}

static void turn_dispatch(softmetal_quirks *quirks)
{
    (void)quirks;
    softmetal_set_dispatch_threads(0);
    help.patience_ms = 300;
}

static void set_watchdog(uint64_t ms)
{
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.watchdog_ns = ms * 1000000u;
    softmetal_set_timing(&timing);
}

static void turn_watchdog(softmetal_quirks *quirks)
{
    (void)quirks;
    set_watchdog(3600000);
    help.watchdog_ms = 300;
}

static void turn_deaf_device(softmetal_quirks *quirks)
{
    quirks->deaf_device = true;
    set_watchdog(100);
}

/* What is empty does not wait for the work in front of it. */
static void turn_overlapping(softmetal_quirks *quirks)
{
    softmetal_chaos chaos;
    (void)quirks;
    memset(&chaos, 0, sizeof chaos);
    chaos.overlap_per_mille = 1000;
    softmetal_set_chaos(&chaos);
}

/* The signal is there long before the work, so that no probe misses it. */
static void turn_early_signals(softmetal_quirks *quirks)
{
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.execute.min_ns = timing.execute.max_ns = 300000000;
    softmetal_set_timing(&timing);
    quirks->early_signals = true;
}

/* The work in front takes longer than a thread is kept from the processor: else, now and then, its bytes are there first. */
static void turn_overtaking_signals(softmetal_quirks *quirks)
{
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.execute.min_ns = timing.execute.max_ns = 20000000;
    softmetal_set_timing(&timing);
    quirks->overtaking_signals = true;
}

static double another_clock(void) { return (double)gpusync_now_ns() / 1e9 + 1000; }

static void turn_gpu_clock(softmetal_quirks *quirks)
{
    (void)quirks;
    softmetal_set_gpu_clock(another_clock);
}

static double no_clock(void) { return 0; }

static void turn_no_times(softmetal_quirks *quirks)
{
    (void)quirks;
    softmetal_set_gpu_clock(no_clock);
}

static void turn_no_method(softmetal_quirks *quirks)
{
    (void)quirks;
    softmetal_hide_selector("newMTL4CommandQueue");
}

/* A wait of the queue times out before the gate is open, so the work behind it runs. */
static void turn_impatient(softmetal_quirks *quirks)
{
    (void)quirks;
    set_watchdog(1);
}

static void turn_failure(softmetal_quirks *quirks)
{
    (void)quirks;
    softmetal_fail_next_as(1, SOFTMETAL_PAGE_FAULT);
}

/* clang-format off */
static const knob knobs[] = {
    {"global_blocks_copied", {"global block"}, NULL, turn_global_blocks_copied},
    {"status_after_handlers", {"status first", "killed, status first"}, NULL, turn_status_after_handlers},
    {"wrapped_buffers", {"handler's object"}, NULL, turn_wrapped_buffers},
    {"handlers_backwards", {"handler order"}, NULL, turn_handlers_backwards},
    {"status_early", {"slow handler"}, NULL, turn_status_early},
    {"overlapping", {"empty behind"}, "empty_behind", turn_overlapping},
    {"silent_dealloc", {"dealloc"}, NULL, turn_silent_dealloc},
    {"events_not_kept", {"released event"}, NULL, turn_events_not_kept},
    {"timers", {"timer"}, "timer", turn_timers},
    {"dispatch", {"dispatch"}, "dispatch", turn_dispatch},
    {"deaf_listeners", {"listener, CPU"}, NULL, turn_deaf_listeners},
    {"deaf_to_the_past", {"listener, reached"}, NULL, turn_deaf_to_the_past},
    {"refused_listeners", {"no exception"}, NULL, turn_refused_listeners},
    {"open_waits", {"wait keeps back"}, NULL, turn_open_waits},
    {"early_signals", {"signal comes after"}, "gates", turn_early_signals},
    {"deaf_device", {"CPU wakes device"}, "cpu_signal", turn_deaf_device},
    {"overtaking_signals", {"signals in order"}, "signal_order", turn_overtaking_signals},
    {"no_times", {"times are set"}, NULL, turn_no_times},
    {"gpu_clock", {"times' clock"}, NULL, turn_gpu_clock},
    {"status_autoreleases", {"status without a pool"}, "pool", turn_status_autoreleases},
    {"late_unlock", {"lock"}, NULL, turn_late_unlock},
    {"any_function", {"missing function"}, NULL, turn_any_function},
    {"uncommitted_are_free", {"limit, uncommitted"}, NULL, turn_uncommitted_are_free},
    {"early_places", {"limit, handlers"}, NULL, turn_early_places},
    {"watchdog", {"watchdog"}, "killed", turn_watchdog},
    {"lost_handlers", {"killed, handlers"}, "killed", turn_lost_handlers},
    {"signals_of_the_killed", {"killed, signals"}, NULL, turn_signals_of_the_killed},
    {"bare_errors", {"error's number"}, NULL, turn_bare_errors},
    {"no_method", {"Metal 4's family"}, NULL, turn_no_method},
    {"options_keep_handlers", {"handlers leave the options"}, NULL, turn_options_keep_handlers},
    {"impatient", {"feedback behind a wait", "feedback without work"}, "feedback_gate", turn_impatient},
    {"failure", {"wait times out"}, "wait4", turn_failure},
    {"lost_feedback", {"feedback once"}, "feedback", turn_lost_handlers},
    {"lost_feedback_of_failure", {"failed, feedback"}, "failed4", turn_lost_handlers},
    {"bare_feedback_errors", {"failed, the error inside"}, NULL, turn_bare_feedback_errors},
    {"overtaken_signals", {"signals in order, Metal 4"}, NULL, turn_overtaken_signals},
    {"signals_die_with_failure", {"failed, signals"}, NULL, turn_signals_die_with_failure},
};
/* clang-format on */
#define KNOBS (sizeof knobs / sizeof *knobs)

/* ------------------------------------------------------------------------------------------- in the child -- */

#if PROBES_UNDER_TSAN
/* It would sleep for a second at the end of each child. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "atexit_sleep_ms=0"; }
#endif

static bool expected(const knob *k, const char *name)
{
    size_t i;
    for (i = 0; i < 4 && k->rows[i]; i++)
        if (!strcmp(k->rows[i], name)) return true;
    return false;
}

static const knob *knob_now;
static bool timers_are_due;

static bool turned(const char *row) { return expected(knob_now, row); }

/* A timer that is armed does come, unless the clock is the test's. */
static bool at_rest(void) { return softmetal_settle(0) && (!timers_are_due || softmetal_timers() == 0); }

static bool fail_next(void)
{
    softmetal_fail_next_as(1, SOFTMETAL_PAGE_FAULT);
    return true;
}

static const char *knob_name;

static void turn_and_probe(const char *probe)
{
    softmetal_quirks quirks;
    size_t i;
    softmetal_get_quirks(&quirks);
    help.at_rest = at_rest;
    help.fail_next = fail_next;
    help.absence_ms = 20;
    help.patience_ms = help.watchdog_ms = 60000;
    timers_are_due = true;
    if (!strcmp(probe, "killed") || !strcmp(probe, "wait4")) set_watchdog(100);
    for (i = 0; i < KNOBS; i++)
        if (!strcmp(knobs[i].name, knob_name) && (!knobs[i].probe || !strcmp(knobs[i].probe, probe))) {
            knob_now = &knobs[i];
            help.turned = turned; /* what comes now should not: its coming is not missed, however busy the machine */
            timers_are_due = strcmp(knob_name, "timers") != 0;
            knobs[i].turn(&quirks);
        }
    softmetal_set_quirks(&quirks);
    run_probe(probe);
}

/* This process has no threads of softmetal's yet: those would not come along through a fork. Apple's libraries may not
   be used behind one at all, so there a program begins anew. */
static void begin(const char *probe)
{
#ifdef __APPLE__
    prepare_environment(probe);
    execl(own_path, own_path, "--probe", probe, knob_name, (char *)NULL);
    _exit(127);
#else
    turn_and_probe(probe);
#endif
}

/* -------------------------------------------------------------------------------------------------- tests -- */

static bool says(size_t at, const char *verdict) { return !strcmp(answers[at].verdict, verdict); }

/* The rows that software has no say in, or that only allow for something */
static bool may_be_unseen(const char *name)
{
    /* clang-format off */
    static const char *const names[] = {
        "overlap", "50 us", "pause", "wfe", "feedbacks in any order", "signal after feedback", "times are late",
        "other numbers", "handlers under a lock", "lost device", "lost device's signals", "timed sleep"};
    /* clang-format on */
    size_t i;
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

static void test_each_belief_holds_on_softmetal(void **state)
{
    size_t i;
    unsigned wrong = 0;
    (void)state;
    knob_name = "";
    ask_all(begin, true, NULL);
    for (i = 0; i < ROWS; i++)
        if (!says(i, "holds") && !(says(i, NOT_SEEN) && may_be_unseen(rows[i].name))) {
            print_message("%s: %s, %s\n", rows[i].name, answers[i].verdict, answers[i].text);
            wrong++;
        }
    assert_int_equal(wrong, 0);
}

static bool is_probe_of(const knob *k, const char *probe)
{
    size_t i;
    if (k->probe) return !strcmp(k->probe, probe);
    for (i = 0; i < ROWS; i++)
        if (!strcmp(rows[i].probe_name, probe) && expected(k, rows[i].name)) return true;
    return false;
}

/* Another belief's probe, which the knob must leave alone. All pairs take a minute: KNOBS=all in the environment, as in
   make test-beliefs. Else each probe is tried with some of the knobs. Under ThreadSanitizer and qemu with none: a knob
   turns no more there than elsewhere. */
static bool is_tried(const knob *k, size_t at)
{
    const char *which = getenv("KNOBS");
    if (k->probe || SLOW > 1) return false;
    return (which && !strcmp(which, "all")) || (at + (size_t)(k - knobs)) % 16 == 0;
}

/* Under ThreadSanitizer the lock goes later, see probe_locks; on a Mac it is the system's. */
#ifdef __APPLE__
#define LOCK_STAYS true
#else
#define LOCK_STAYS PROBES_UNDER_TSAN
#endif

static void test_each_knob_turns_its_belief_round(void **state)
{
    const char *only = getenv("KNOB"); /* this one alone */
    size_t n, i;
    unsigned wrong = 0;
    (void)state;
    for (n = 0; n < KNOBS; n++) {
        const knob *k = &knobs[n];
        bool asked = false;
        if (LOCK_STAYS && k->turn == turn_late_unlock) {
            print_message("left out, as softmetal does not decide when the lock is touched last: late_unlock\n");
            continue;
        }
        if (only && strcmp(only, k->name) != 0) continue;
        knob_name = k->name;
        for (i = 0; i < ROWS; i++) {
            if (i == 0 || rows[i].probe != rows[i - 1].probe) {
                asked = is_probe_of(k, rows[i].probe_name) || is_tried(k, i);
                if (asked) ask(i, begin, true);
            }
            if (!asked || says(i, "differs") == expected(k, rows[i].name)) continue;
            print_message("%s, with %s: %s, %s\n", rows[i].name, k->name, answers[i].verdict, answers[i].text);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

/* In the child: ends as a probe does whose time is over. */
static void hang(const char *probe)
{
    (void)probe;
    raise(SIGALRM);
}

static size_t told;

static void count_row(size_t row)
{
    assert_int_equal(row, told); /* in order, and each has its answer by then */
    assert_true(answers[row].verdict[0]);
    told++;
}

static void test_two_hangs_end_the_questions(void **state)
{
    size_t second = rows_end(0), i;
    (void)state;
    told = 0;
    ask_all(hang, true, count_row);
    assert_int_equal(told, ROWS);
    assert_true(says(0, "differs"));
    assert_true(says(second, "differs"));
    assert_non_null(strstr(answers[second].text, "did not end"));
    for (i = rows_end(second); i < ROWS; i++) {
        assert_true(says(i, NOT_SEEN));
        assert_non_null(strstr(answers[i].text, "not asked"));
    }
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_hangs_end_the_questions),
        cmocka_unit_test(test_each_belief_holds_on_softmetal),
        cmocka_unit_test(test_each_knob_turns_its_belief_round),
    };
    own_path = arguments[0];
    (void)become_probe; /* a Mac's program begins so */
    if (count == 4 && !strcmp(arguments[1], "--probe")) {
        knob_name = arguments[3];
        turn_and_probe(arguments[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
