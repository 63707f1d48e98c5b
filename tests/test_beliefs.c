/* test_beliefs.c - the probes for a Mac (tests/beliefs/probes.h), on a device that is turned against each belief

   softmetal behaves as examples/metal-behaves.md says, so no probe may say "NOT held". Each knob makes it break one
   belief: the rows of this belief say so, and no other row of their probe. So a probe that cannot fail is seen here. */
#include "from.h" /* cmocka */

#include "gpusync.h"
#include "softmetal.h"

#define GPUSYNC__BLOCKS 64 /* as in gpusync.h, which has its implementation elsewhere */
#define GPUSYNC__FAMILY_METAL4 5002
#include "beliefs/probes.h"

typedef struct knob {
    const char *rows[3]; /* that are NOT held with it, all of one probe */
    size_t quirk;
    void (*turn)(void); /* NULL: the quirk is all */
} knob;

#define QUIRK(name) offsetof(softmetal_quirks, name)
#define NONE SIZE_MAX
#define ABSENT (SIZE_MAX - 1) /* what the rows ask for is not there: they are not tried */

static void turn_failure(void)
{
    softmetal_fail_next_as(1, SOFTMETAL_PAGE_FAULT);
}

static void set_times(uint64_t watchdog_ms, uint64_t execute_ms)
{
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.watchdog_ns = watchdog_ms * 1000000;
    timing.execute.min_ns = timing.execute.max_ns = execute_ms * 1000000;
    softmetal_set_timing(&timing);
}

static void turn_watchdog(void)
{
    set_times(3600000, 0);
    help.watchdog_ms = 300;
}

static void turn_impatient(void)
{
    set_times(1, 0); /* the wait is given up before the gate is open */
}

static void turn_overlapping(void)
{
    const softmetal_chaos chaos = {.overlap_per_mille = 1000};
    softmetal_set_chaos(&chaos); /* what is empty does not wait for the work in front of it */
}

static void turn_out_of_order(void)
{
    const softmetal_chaos chaos = {.complete_out_of_order_per_mille = 1000};
    softmetal_set_chaos(&chaos);
}

static void turn_in_order(void)
{
    const softmetal_chaos chaos = {0};
    softmetal_set_chaos(&chaos);
}

/* The second of two pairs does not overlap. */
static void keep_apart(void *unused, softmetal_phase phase, void *object, const char *selector)
{
    static unsigned commits;
    if (phase == SOFTMETAL_BEFORE && !strcmp(selector, "commit") && ADD_ONE(commits) == 3)
        turn_in_order();
}

static void turn_apart(void)
{
    softmetal_set_message_hook(keep_apart, NULL);
}

static void turn_still(void)
{
    softmetal_set_clock(SOFTMETAL_MANUAL); /* nothing is scheduled or shown */
    help.patience_ms = 100;
}

static void keep(void *unused, softmetal_phase phase, void *object, const char *selector)
{
    if (phase == SOFTMETAL_AFTER && !strcmp(selector, "addPresentedHandler:"))
        metal_retain(object);
}

static void turn_kept_drawables(void)
{
    softmetal_set_message_hook(keep, NULL);
}

static void turn_no_drawables(void)
{
    softmetal_hide_selector("addPresentedHandler:");
}

static void turn_no_scheduled(void)
{
    softmetal_hide_selector("addScheduledHandler:");
}

static void turn_overtaking_signals(void)
{
    set_times(5000, 20); /* longer than a thread is kept from the processor: else its bytes may be there first */
}

static double another_clock(void)
{
    return (double)gpusync_now_ns() / 1e9 + 1000;
}

static void turn_gpu_clock(void)
{
    softmetal_set_gpu_clock(another_clock);
}

static void turn_no_method(void)
{
    softmetal_hide_selector("newMTL4CommandQueue");
}

/* A commit in a handler takes too long. */
static void hold_up(void *unused, softmetal_phase phase, void *object, const char *selector)
{
    static unsigned commits;
    if (phase == SOFTMETAL_BEFORE && !strcmp(selector, "commit") && ADD_ONE(commits) == 2)
        for (;;)
            nap(1000);
}

static void turn_hold_up(void)
{
    help.patience_ms = 300;
    softmetal_set_message_hook(hold_up, NULL);
}

static void *another_key(const char *name)
{
    static void *text;
    return text = metal_string_new(name + 1), &text;
}

static void turn_key(void)
{
    help.symbol = another_key;
}

static const knob knobs[] = {
    {{"status and bytes", "signal first"}, NONE, turn_failure},
    {{"block"}, QUIRK(lost_handlers), NULL},
    {{"status first"}, QUIRK(status_after_handlers), NULL},
    {{"times"}, NONE, turn_gpu_clock},
    {{"value and bytes"}, NONE, turn_failure},
    {{"handler order"}, QUIRK(handlers_backwards), NULL},
    {{"slow handler"}, QUIRK(status_early), NULL},
    {{"slow handler", "commit in a handler"}, NONE, turn_hold_up},
    {{"status without a pool"}, QUIRK(status_autoreleases), NULL},
    {{"empty behind", "empty behind a wait"}, NONE, turn_overlapping},
    {{"wait alone"}, NONE, turn_apart},
    {{"wait alone"}, ABSENT, turn_in_order},
    {{"ends in order"}, NONE, turn_out_of_order},
    {{"limit"}, QUIRK(uncommitted_are_free), NULL},
    {{"signals in order"}, QUIRK(overtaking_signals), turn_overtaking_signals},
    {{"events rise"}, QUIRK(falling_events), NULL},
    {{"listener, CPU"}, QUIRK(deaf_listeners), NULL},
    {{"listener, CPU", "listener, GPU", "listener, reached"}, QUIRK(deaf_to_everything), NULL},
    {{"listener, reached"}, QUIRK(deaf_to_the_past), NULL},
    {{"many blocks"}, QUIRK(refused_listeners), NULL},
    {{"watchdog"}, NONE, turn_watchdog},
    {{"driver's number"}, QUIRK(bare_errors), NULL},
    {{"killed, handler"}, QUIRK(lost_handlers), NULL},
    {{"watchdog, at the end"}, NONE, turn_watchdog},
    {{"scheduled once"}, NONE, turn_still},
    {{"scheduled once"}, ABSENT, turn_no_scheduled},
    {{"presented once"}, NONE, turn_still},
    {{"presented never"}, NONE, turn_kept_drawables},
    {{"presented once", "presented never"}, ABSENT, turn_no_drawables},
    {{"encoder's key"}, NONE, turn_key},
    {{"Metal 4's family"}, NONE, turn_no_method},
    {{"feedback once"}, QUIRK(lost_handlers), NULL},
    {{"feedback behind a wait"}, NONE, turn_impatient},
    {{"commits"}, NONE, turn_failure},
    {{"signals in order, Metal 4"}, QUIRK(overtaken_signals), NULL},
    {{"wait times out"}, NONE, turn_failure},
};
#define KNOBS (sizeof knobs / sizeof *knobs)

static const knob *turned; /* NULL: none */

static bool is_turned(const char *row)
{
    for (size_t i = 0; turned && i < 3 && turned->rows[i]; i++)
        if (!strcmp(turned->rows[i], row))
            return true;
    return false;
}

static bool at_rest(void)
{
    return softmetal_settle(0);
}

/* In a child, without threads of softmetal's: those would not come along through a fork. */
static void turn_and_probe(const char *probe)
{
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    help.at_rest = at_rest;
    help.turned = is_turned;
    help.absence_ms = 20;
    help.blocks = 128; /* refused_listeners refuses those beyond 100 */
    help.patience_ms = help.watchdog_ms = 60000;
    if (!strncmp(probe, "killed", 6) || !strcmp(probe, "wait4"))
        set_times(100, 0);
    if (!strcmp(probe, "wait_alone"))
        turn_overlapping(); /* what it asks is of an overlap */
    if (turned && turned->turn)
        turned->turn();
    if (turned && turned->quirk < ABSENT)
        *(bool *)((char *)&quirks + turned->quirk) = true;
    softmetal_set_quirks(&quirks);
    if (turned && !freopen("/dev/null", "w", stderr)) /* rules that the device is made to break */
        _exit(2);
    run_probe(probe);
}

/* Apple's libraries may not be used behind a fork, so there a program begins anew. */
static void begin(const char *probe)
{
#ifdef __APPLE__
    char number[2] = {turned ? (char)('0' + (turned - knobs)) : 0};
    execl(own_path, own_path, "--probe", probe, number, (char *)NULL);
    _exit(127);
#else
    turn_and_probe(probe);
#endif
}

static bool is(size_t row, const char *verdict)
{
    return !strcmp(answers[row].verdict, verdict);
}

static void check(bool good, size_t row, size_t number)
{
    if (!good)
        fail_msg("knob %zu, %s: %s, %s", number, rows[row].name, answers[row].verdict, answers[row].text);
}

without_stage(test_each_belief_holds_on_softmetal)
{
    turned = NULL;
    ask_all(begin, NULL);
    for (size_t i = 0; i < ROWS; i++)
        check(is(i, rows[i].probe ? HELD : NOT_TRIED), i, 0);
}

without_stage(test_each_belief_fails_on_a_device_that_breaks_it)
{
    bool seen[ROWS] = {false};
    for (turned = knobs; turned < knobs + KNOBS; turned++) {
        size_t first = 0;
        while (strcmp(rows[first].name, turned->rows[0]) != 0)
            first++;
        while (first && rows[first - 1].probe == rows[first].probe)
            first--;
        ask(first, begin);
        for (size_t i = first; i < rows_end(first); i++) {
            const char *verdict = turned->quirk == ABSENT ? NOT_TRIED : NOT_HELD;
            check(is_turned(rows[i].name) == is(i, verdict), i, (size_t)(turned - knobs));
            seen[i] |= is(i, NOT_HELD);
        }
    }
    for (size_t i = 0; i < ROWS; i++)
        assert_true(seen[i] || !rows[i].probe);
}

/* In the child: ends as a probe does whose time is over. */
static void hang(const char *probe)
{
    raise(SIGALRM);
}

without_stage(test_two_hangs_end_the_questions)
{
    ask_all(hang, NULL);
    for (size_t i = 0, second = rows_end(0); i < ROWS; i++)
        check(is(i, i < rows_end(second) ? NOT_HELD : NOT_TRIED), i, 0);
}

int main(int count, char **arguments)
{
    own_path = arguments[0];
    (void)become_probe; /* a Mac's program begins so */
    if (count == 4 && !strcmp(arguments[1], "--probe")) {
        turned = arguments[3][0] ? &knobs[arguments[3][0] - '0'] : NULL;
        turn_and_probe(arguments[2]);
    }
    return run_all_tests();
}
