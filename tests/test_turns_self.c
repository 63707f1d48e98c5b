/* test_turns_self.c - the scheduler of turns.h itself: what it finds, reports and runs again, and how many schedules
   there are

   No engine of gpusync.h is needed: the races are of locks, points, parks, and of softmetal's own objects. A race that
   is to fail does so in a child, whose report is read and given back to a second child.

   Contents
     >>child    programs that end with a report
     >>count    how many schedules there are
     >>finds    lost updates, deadlocks, wake-ups that are lost, by search and by seed
     >>time     when time moves
     >>waiter   permits, and waiters that go
     >>reports  loops without an end, programs that change, crashes, a trace
     >>helpers  the GPU, the workers, conditions, messages as points
     >>atomics  with turns_atomics.c: test_atomics_self.c, which includes this file, has them too */
/* The callbacks of a device are those of this file, see >>helpers. */
#define TURNS_RUN_CALLBACKS(device, max, count) run_posted(device, max, count)
#include <stddef.h>
static int run_posted(void *device, size_t most, size_t *count);
#include "turns.h"

#include "from.h"
#include <sys/wait.h>
#include "../examples/metal.h"

/* What the tasks of races share. */
static int number;
static int stage;
static uint32_t locks[2];
static bool wished, granted;
static bool ready;
static gpusync_waiter *sleeper;
static char path[256]; /* the walkers' letters in the order of their steps */

/* The tasks of a race: its user. */
typedef struct part {
    const char *name;
    void (*body)(void *argument);
    void *argument;
} part;
#define PARTS(...) ((part[]){__VA_ARGS__, {NULL, NULL, NULL}})
#define RACE(called, at_end, ...) \
    {.name = called, .setup = add_parts, .teardown = at_end, .user = PARTS(__VA_ARGS__)}

static void add_parts(void *parts)
{
    number = stage = 0;
    locks[0] = locks[1] = 0;
    wished = granted = ready = false;
    sleeper = NULL;
    path[0] = 0;
    for (const part *p = (const part *)parts; p->name; p++)
        turns_add(p->name, p->body, p->argument);
}

/* ------------------------------------------------------------------------------------------------------ >>child -- */

/* ThreadSanitizer lets no child start threads, unless it is told to. */
extern const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}

enum { TEXT_MOST = 1 << 16, AGAIN_MOST = 4096 };

/* How a child ended. */
static struct {
    int status;
    char text[TEXT_MOST];
} child;

static void read_all(int from)
{
    size_t length = 0;
    ssize_t got = 1;
    while (got > 0 && length < TEXT_MOST - 1) {
        got = read(from, child.text + length, TEXT_MOST - 1 - length);
        if (got > 0)
            length += (size_t)got;
    }
    child.text[length] = 0;
}

/* A search of a race, or, where `seeds` is not 0, schedules by seed. */
typedef struct run {
    const turns_race *race;
    unsigned switches, seeds;
} run;

static run search(const turns_race *race, unsigned switches)
{
    return (run){race, switches, 0};
}

static run by_seed(const turns_race *race, unsigned seeds)
{
    return (run){race, 0, seeds};
}

/* Runs it in a child, in which one variable of the environment is set: "NAME=value", NULL for none. A child that ends
   well prints how many schedules it ran. */
static void run_child(run r, const char *setting)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        char *copy = setting ? strdup(setting) : NULL;
        dup2(ends[1], 2);
        close(ends[0]);
        if (copy)
            putenv(copy);
        uint64_t schedules = r.seeds ? turns_run_seeds(r.race, r.seeds) : turns_run_all(r.race, r.switches);
        fprintf(stderr, "%llu\n", (unsigned long long)schedules);
        _exit(0);
    }
    close(ends[1]);
    read_all(ends[0]);
    close(ends[0]);
    assert_int_equal(waitpid(process, &child.status, 0), process);
}

static void assert_told(const char *what)
{
    if (strstr(child.text, what))
        return;
    print_error("not in the report: %s\n%s\n", what, child.text);
    fail();
}

static void assert_fails(run r, const char *setting, const char *what)
{
    run_child(r, setting);
    if (!WIFSIGNALED(child.status))
        print_error("it ends well\n%s\n", child.text);
    assert_true(WIFSIGNALED(child.status));
    assert_told(what);
    assert_told("again: TURNS_RACE='");
}

static void assert_passes(run r, const char *setting)
{
    run_child(r, setting);
    if (child.status != 0)
        print_error("%s\n", child.text);
    assert_int_equal(child.status, 0);
}

/* It fails; and so does the schedule that its report names, alone and at the same point. name: "TURNS_CHOICES=" or
   "TURNS_SEED="; what stands behind it in the report is set without the quotes, which are the shell's. */
static void assert_fails_again(run r, const char *name, const char *what)
{
    char again[AGAIN_MOST];
    char point[64];
    size_t length = 0;
    assert_fails(r, NULL, what);
    const char *from = strstr(child.text, name);
    assert_non_null(from);
    for (; *from && *from != '\n' && length < AGAIN_MOST - 1; from++)
        if (*from != '"')
            again[length++] = *from;
    again[length] = 0;
    from = strstr(child.text, ", point ");
    assert_non_null(from);
    snprintf(point, sizeof point, "%.*s", (int)strcspn(from, "\n"), from);
    assert_fails(r, again, what);
    assert_told("schedule 1, point");
    assert_told(point);
}

/* ------------------------------------------------------------------------------------------------------ >>count -- */

static int steps;           /* points of each walker */
static char paths[64][256]; /* of all schedules */
static unsigned path_count;

static void take_step(const char *name)
{
    size_t length = strlen(path);
    path[length] = *name;
    path[length + 1] = 0;
}

static void walk(void *name)
{
    for (int k = 0; k <= steps; k++) {
        take_step((const char *)name);
        if (k < steps)
            turns_point("a step");
    }
}

/* No schedule comes twice. */
static void keep_path(void *user)
{
    for (unsigned i = 0; i < path_count; i++)
        turns_check(strcmp(paths[i], path) != 0);
    strcpy(paths[path_count++], path);
}

static const turns_race walk_race = RACE("walk", keep_path, {"a", walk, "a"}, {"b", walk, "b"});
static const turns_race crowd_race = RACE("crowd", keep_path, {"a", walk, "a"}, {"b", walk, "b"}, {"c", walk, "c"});

static void assert_schedules(const turns_race *race, int points, unsigned switches, uint64_t expected)
{
    steps = points;
    path_count = 0;
    assert_int_equal(turns_run_all(race, switches), expected);
    assert_int_equal(path_count, expected);
}

without_stage(the_schedules_are_those_counted_by_hand)
{
    /* Two tasks of k points: 2 orders without a switch; with one, at any of the first one's k points, 2k more; with a
       second one, at any of the other one's k points, 2k^2 more. */
    assert_schedules(&walk_race, 3, 0, 2);
    assert_schedules(&walk_race, 3, 1, 2 + 6);
    assert_schedules(&walk_race, 3, 2, 2 + 6 + 18);
    /* Three tasks of k points: 6 orders. One switch while the first runs: 3 firsts, k points, 2 others, and at the
       other's end 2 that may go on. One while the second runs: 6 beginnings, k points, one other. */
    assert_schedules(&crowd_race, 2, 0, 6);
    assert_schedules(&crowd_race, 2, 1, 6 + 12 * 2 + 6 * 2);
    /* Each interleaving of two times three steps is one schedule: 6 over 3. */
    assert_schedules(&walk_race, 2, 99, 20);
}

static void walk_and_yield(void *name)
{
    take_step((const char *)name);
    turns_yield(NULL);
    take_step((const char *)name);
    turns_point("a step");
    take_step((const char *)name);
}

/* The other one goes on at a yield, and at the next point it does not. */
without_stage(a_yield_is_a_switch_that_does_not_count)
{
    const turns_race race = RACE("yield", keep_path, {"a", walk_and_yield, "a"}, {"b", walk_and_yield, "b"});
    assert_schedules(&race, 0, 0, 2);
    assert_string_equal(paths[0], "abaabb");
    assert_string_equal(paths[1], "babbaa");
}

without_stage(a_search_with_a_limit_ends_there)
{
    turns_race race = walk_race;
    race.limit = 5;
    assert_schedules(&race, 3, 2, 5);
}

without_stage(the_environment_says_how_much_is_searched)
{
    turns_race strolls = walk_race;
    strolls.teardown = NULL;
    steps = 3;
    path_count = 0;
    assert_passes(search(&walk_race, 1), "TURNS_SWITCHES=2");
    assert_string_equal(child.text, "26\n");
    assert_passes(search(&walk_race, 1), "TURNS_RACE=run");
    assert_string_equal(child.text, "0\n");
    assert_passes(search(&walk_race, 1), "TURNS_RACE=walk");
    assert_string_equal(child.text, "8\n");
    assert_passes(by_seed(&strolls, 10), NULL);
    assert_string_equal(child.text, "11\n"); /* the first one measures the reach */
    assert_passes(by_seed(&strolls, 10), "TURNS_SEEDS=3");
    assert_string_equal(child.text, "4\n");
    assert_passes(search(&walk_race, 1), "TURNS_SUMMARY=1");
    assert_told("walk: 8 schedules, ");
}

/* ------------------------------------------------------------------------------------------------------ >>finds -- */

static void add_one(void *unused)
{
    int was = number;
    turns_point("between");
    number = was + 1;
}

static void check_sum(void *user)
{
    turns_check(number == 2);
}

static const turns_race sum_race = RACE("sum", check_sum, {"one", add_one, NULL}, {"two", add_one, NULL});

without_stage(a_lost_update_is_found)
{
    assert_passes(search(&sum_race, 0), NULL);
    assert_fails_again(search(&sum_race, 1), "TURNS_CHOICES=", "not true: number == 2");
    assert_passes(search(&sum_race, 1), "TURNS_CHOICES=");
    assert_fails_again(by_seed(&sum_race, 100), "TURNS_SEED=", "not true: number == 2");
}

static void add_one_locked(void *unused)
{
    os_unfair_lock_lock(&locks[0]);
    add_one(unused);
    os_unfair_lock_unlock(&locks[0]);
}

static void add_one_when_it_can(void *unused)
{
    while (!os_unfair_lock_trylock(&locks[0]))
        turns_yield(NULL);
    add_one(unused);
    os_unfair_lock_unlock(&locks[0]);
}

/* No schedule loses an update. */
without_stage(a_lock_excludes)
{
    const turns_race race = RACE("locked", check_sum, {"one", add_one_locked, NULL},
                                 {"two", add_one_when_it_can, NULL});
    assert_true(turns_run_all(&race, 4) > 50);
    assert_int_equal(turns_run_seeds(&race, 500), 501);
}

static void look_before_the_unlock(void *unused)
{
    os_unfair_lock_lock(&locks[0]);
    os_unfair_lock_lock(&locks[1]);
    os_unfair_lock_unlock(&locks[1]);
    granted = wished;
    os_unfair_lock_unlock(&locks[0]);
}

static void wish(void *unused)
{
    wished = true;
    if (!os_unfair_lock_trylock(&locks[0]))
        return;
    granted = true;
    os_unfair_lock_unlock(&locks[0]);
}

static void check_granted(void *user)
{
    turns_check(granted);
}

/* A try-lock may fail after all that the owner has looked at, if that has taken another lock within. */
without_stage(a_try_lock_that_fails_behind_the_last_look_is_found)
{
    const turns_race race = RACE("wish", check_granted, {"looks", look_before_the_unlock, NULL},
                                 {"wishes", wish, NULL});
    assert_fails_again(search(&race, 1), "TURNS_CHOICES=", "not true: granted");
}

static void take_both(void *first)
{
    uint32_t *one = (uint32_t *)first;
    uint32_t *other = &locks[one == &locks[0]];
    os_unfair_lock_lock(one);
    os_unfair_lock_lock(other);
    os_unfair_lock_unlock(other);
    os_unfair_lock_unlock(one);
}

without_stage(a_deadlock_of_two_locks_is_found_and_reported)
{
    const turns_race race = RACE("two locks", NULL, {"forth", take_both, &locks[0]}, {"back", take_both, &locks[1]});
    assert_passes(search(&race, 0), NULL);
    assert_fails_again(search(&race, 1), "TURNS_CHOICES=", "no task can go on: a deadlock, or a wake-up is lost");
    assert_told("forth        wants a lock of back, at: lock");
    assert_told("back         wants a lock of forth, at: lock");
}

static void pass_points(void)
{
    for (int k = 0; k < 5; k++)
        turns_point("on the way");
}

static void climb_twice(void *from)
{
    for (int k = *(const int *)from; k < 4; k += 2) {
        pass_points();
        if (stage == k)
            stage = k + 1;
        pass_points();
    }
}

static void check_stage(void *user)
{
    turns_check(stage < 4);
}

/* One, two, one, two, in this order, with points around. PCT's bound for two tasks of k points in all is 1 in 2 k^2:
   with 42 points, 1 in 3,528 for exactly two changes. The stages leave room around each change, and so it is found much
   earlier. */
without_stage(a_defect_of_depth_three_is_found)
{
    static int from[] = {0, 1};
    const turns_race race = RACE("stage", check_stage, {"even", climb_twice, &from[0]}, {"odd", climb_twice, &from[1]});
    assert_passes(search(&race, 1), NULL);
    assert_fails_again(search(&race, 2), "TURNS_CHOICES=", "not true: stage < 4");
    assert_fails_again(by_seed(&race, 100), "TURNS_SEED=", "not true: stage < 4");
}

/* ------------------------------------------------------------------------------------------------------- >>time -- */

static struct {
    bool careful;   /* the sleeper looks again when it is listed */
    uint64_t slice; /* of its park; UINT64_MAX: none */
    bool limited;
    uint64_t woke_at;
} nap;

static void sleep_until_ready(void *unused)
{
    gpusync_waiter waiter = {{NULL, NULL}};
    uint64_t deadline = nap.slice == UINT64_MAX ? UINT64_MAX : turns_now() + nap.slice;
    turns_limit(nap.limited);
    if (!ready) {
        turns_point("not ready");
        sleeper = &waiter;
        if (!nap.careful || !ready)
            turns_hooks.park(turns_hooks.user, &waiter, deadline);
        sleeper = NULL;
    }
    nap.woke_at = turns_now();
}

static void make_ready(void *unused)
{
    ready = true;
    turns_point("ready");
    if (sleeper)
        turns_hooks.unpark(turns_hooks.user, sleeper);
}

static void set_nap(bool careful, uint64_t slice, bool limited)
{
    nap.careful = careful;
    nap.slice = slice;
    nap.limited = limited;
}

without_stage(a_wake_up_that_is_lost_is_found)
{
    const turns_race race = RACE("wake", NULL, {"sleeps", sleep_until_ready, NULL}, {"wakes", make_ready, NULL});
    set_nap(false, UINT64_MAX, false);
    assert_fails_again(search(&race, 1), "TURNS_CHOICES=", "no task can go on: a deadlock, or a wake-up is lost");
    assert_told("sleeps       parked, at: park");
    assert_told("wakes        over");
    set_nap(false, 50000000, false); /* slices do not hide it */
    assert_fails(search(&race, 1), NULL, "a wake-up is lost");
    set_nap(true, UINT64_MAX, false); /* it is not lost */
    assert_true(turns_run_all(&race, 3) > 4);
    set_nap(false, 1000000, false); /* a brief park ends by time */
    assert_true(turns_run_all(&race, 1) > 4);
}

static void check_moment(void *user)
{
    turns_check(nap.woke_at == UINT64_C(1000000000) + 100 + nap.slice + 100);
}

/* Nothing wakes it, and time moves to its deadline and not beyond. */
without_stage(time_moves_to_a_limit_of_the_program)
{
    turns_race race = RACE("lone", check_moment, {"sleeps", sleep_until_ready, NULL});
    set_nap(false, UINT64_C(3000000000), true);
    assert_int_equal(turns_run_all(&race, 0), 1);
    set_nap(false, UINT64_C(3000000000), false);
    assert_fails(search(&race, 0), NULL, "a wake-up is lost");
    race.timed = true;
    assert_int_equal(turns_run_all(&race, 0), 1);
}

/* ----------------------------------------------------------------------------------------------------- >>waiter -- */

/* The waker holds the lock while it unparks, and the sleeper takes it before it gives its waiter away. */
static void park_until_ready(void *unused)
{
    gpusync_waiter *waiter = (gpusync_waiter *)calloc(1, sizeof *waiter);
    sleeper = waiter;
    while (!ready)
        turns_hooks.park(NULL, waiter, UINT64_MAX);
    os_unfair_lock_lock(&locks[0]);
    sleeper = NULL;
    os_unfair_lock_unlock(&locks[0]);
    memset(waiter, 0xff, sizeof *waiter); /* a scheduler that reads it takes this for a permit */
    free(waiter);
    turns_point("the waiter is gone");
}

static bool is_listed(void *unused)
{
    return sleeper != NULL;
}

/* The first unpark has no reason: the sleeper parks again, unless it is ready by then. */
static void wake_twice(void *unused)
{
    turns_until(is_listed, NULL);
    turns_hooks.unpark(NULL, sleeper);
    os_unfair_lock_lock(&locks[0]);
    ready = true;
    if (sleeper)
        turns_hooks.unpark(NULL, sleeper);
    os_unfair_lock_unlock(&locks[0]);
}

static void check_none_listed(void *user)
{
    turns_check(!sleeper);
}

without_stage(the_waiter_is_not_touched_after_its_last_park)
{
    const turns_race race = RACE("waiter", check_none_listed, {"sleeps", park_until_ready, NULL},
                                 {"wakes", wake_twice, NULL});
    assert_true(turns_run_all(&race, 3) > 10);
    assert_int_equal(turns_run_seeds(&race, 300), 301);
}

static void unpark_then_park(void *unused)
{
    gpusync_waiter waiter = {{NULL, NULL}};
    turns_hooks.unpark(NULL, &waiter);
    turns_hooks.unpark(NULL, &waiter);
    turns_hooks.park(NULL, &waiter, UINT64_MAX); /* the permit, one at most */
    turns_limit(true);
    turns_hooks.park(NULL, &waiter, turns_now() + 5000000000u);
    turns_check(turns_now() >= UINT64_C(6000000000));
}

without_stage(an_unpark_leaves_one_permit)
{
    const turns_race race = RACE("permit", NULL, {"alone", unpark_then_park, NULL});
    assert_int_equal(turns_run_all(&race, 0), 1);
}

/* ---------------------------------------------------------------------------------------------------- >>reports -- */

static enum { WITH_YIELDS, WITH_LOOKS, WITH_POINTS } loop;

static void spin(void *unused)
{
    while (!ready) {
        if (loop == WITH_YIELDS)
            turns_yield(NULL);
        else if (loop == WITH_LOOKS)
            (void)turns_now();
        else
            turns_point("not ready");
    }
}

static void check_points(void *user)
{
    turns_check(turns.points < (loop == WITH_POINTS ? 2000 : 100));
}

/* A loop without a yield ends by seed only: in a search no task is made to switch. No change of priority is at a point
   that is reached. */
without_stage(a_loop_that_waits_for_others_ends)
{
    turns_race race = RACE("spin", check_points, {"spins", spin, NULL}, {"ready", make_ready, NULL});
    race.reach = UINT64_C(1) << 40;
    for (loop = WITH_YIELDS; loop <= WITH_LOOKS; loop++) {
        assert_true(turns_run_all(&race, 2) > 3);
        assert_int_equal(turns_run_seeds(&race, 100), 100);
    }
    assert_int_equal(turns_run_seeds(&race, 100), 100); /* WITH_POINTS */
}

static void take(void *lock)
{
    os_unfair_lock_lock((uint32_t *)lock);
}

static void take_twice(void *lock)
{
    take(lock);
    take(lock);
}

static void let_go(void *lock)
{
    os_unfair_lock_unlock((uint32_t *)lock);
}

static void release_under_a_lock(void *lock)
{
    void *object = metal_device_new();
    take(lock);
    metal_release(object);
}

static void walk_for_ever(void *unused)
{
    for (;;)
        turns_point("on and on");
}

static void assert_itself(void *unused)
{
    turns_expect(stage + 7, 8);
}

static void add_more_each_time(void *user)
{
    static part more[] = {{"same", walk, "s"}, {"same", walk, "s"}, {"same", walk, "s"}, {NULL, NULL, NULL}};
    static int times;
    steps = 2;
    add_parts(times++ ? more : &more[1]);
}

without_stage(what_must_not_be_is_reported)
{
    const struct {
        turns_race race;
        unsigned switches;
        const char *told;
    } rows[] = {
        {RACE("a", NULL, {"twice", take_twice, locks}), 0, "twice        wants a lock of twice"},
        {RACE("b", NULL, {"holds", take, locks}, {"lets go", let_go, locks}), 0,
         "an unlock of a lock that the task does not own"},
        {RACE("c", NULL, {"releases", release_under_a_lock, locks}), 0, "a release under a lock"},
        {RACE("d", NULL, {"endless", walk_for_ever, NULL}), 0, "a schedule does not end"},
        {{.name = "e", .setup = add_more_each_time}, 1, "the program is not the same each time"},
        {RACE("f", NULL, {"asserts", assert_itself, NULL}), 0, "stage + 7: 7, expected 8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_fails(search(&rows[i].race, rows[i].switches), NULL, rows[i].told);
}

static void crash(void *unused)
{
    turns_point("soon");
    abort();
}

without_stage(a_signal_is_reported)
{
    turns_race race = RACE("crash", NULL, {"crashes", crash, NULL});
    race.reach = 10;
    assert_fails(by_seed(&race, 1), NULL, "the program ends by signal 6");
    assert_told("again: TURNS_RACE='crash' TURNS_SEED=1:10");
    assert_told("* crashes      ready, at: soon");
    assert_int_equal(WTERMSIG(child.status), SIGABRT);
}

without_stage(a_trace_has_each_point)
{
    run_child(search(&sum_race, 0), "TURNS_TRACE=1");
    assert_string_equal(child.text, "1 one: between\n2 one: its end\n3 two: between\n4 two: its end\n"
                                    "1 two: between\n2 two: its end\n3 one: between\n4 one: its end\n2\n");
}

static void draw_numbers(void *user)
{
    unsigned *kept = (unsigned *)user;
    *kept = turns_draw(1u << 30);
    add_parts(PARTS({"alone", walk, "s"}));
}

/* The same seed draws the same numbers. */
without_stage(each_seed_draws_its_own_numbers)
{
    unsigned drawn[3];
    steps = 0;
    for (int i = 0; i < 3; i++) {
        const turns_race race = {.name = "draw", .setup = draw_numbers, .user = &drawn[i], .reach = 10};
        turns_run_seeds(&race, i == 2 ? 2 : 1);
    }
    assert_int_equal(drawn[0], drawn[1]);
    assert_int_not_equal(drawn[0], drawn[2]);
}

/* ---------------------------------------------------------------------------------------------------- >>helpers -- */

/* A device of this test has callbacks that are posted, and which take a point to run. */
static int posted;
static bool tells;

static int run_posted(void *device, size_t most, size_t *count)
{
    *count = 0;
    turns_point("a look for callbacks");
    while (posted > 0 && *count < most) {
        posted--;
        turns_point("a callback");
        number++;
        ++*count;
    }
    return 0;
}

static bool is_first_run(void *unused)
{
    return number >= 1;
}

static void post_callbacks(void *unused)
{
    posted++;
    if (tells)
        turns_notify(NULL);
    turns_point("posted");
    turns_until(is_first_run, NULL);
    posted++;
    if (tells)
        turns_notify(NULL);
}

static void add_poster(void *when_told)
{
    posted = 0;
    add_parts(PARTS({"posts", post_callbacks, NULL}));
    if (when_told)
        turns_callbacks_when_told(NULL);
    else
        turns_callbacks(NULL);
}

without_stage(the_callbacks_are_a_task)
{
    const turns_race polls = {.name = "polls", .setup = add_poster, .teardown = check_sum};
    const turns_race told = {.name = "told", .setup = add_poster, .teardown = check_sum, .user = &tells};
    tells = true;
    assert_passes(search(&told, 3), NULL);
    assert_passes(by_seed(&told, 100), NULL);
    tells = false;
    assert_true(turns_run_all(&polls, 3) > 4);
    assert_int_equal(turns_run_seeds(&polls, 100), 101);
    assert_fails(search(&told, 3), NULL, "no task can go on");
    assert_told("posts        waits for a condition");
}

/* These make softmetal's threads: no child is made behind them that needs these. */
static void *device;
static void *queue;
static void *buffers[2];

static void commit_buffer(void *place)
{
    void **buffer = (void **)place;
    metal_commit(*buffer);
}

static bool is_completed(void *buffer)
{
    return softmetal_what_is_due(buffer) == SOFTMETAL_NOTHING_DUE && softmetal_outstanding(queue) == 0;
}

static void await_completion(void *unused)
{
    turns_until(is_completed, buffers[0]);
    turns_check(turns_state_of("first") == TURNS_OVER);
    turns_check(metal_status(buffers[1]) == 4);
}

static void make_queue(void *user)
{
    device = metal_device_new();
    queue = metal_queue_new(device, 8);
    for (int i = 0; i < 2; i++)
        buffers[i] = metal_queue_command_buffer(queue);
    add_parts(PARTS({"first", commit_buffer, &buffers[0]}, {"second", commit_buffer, &buffers[1]},
                    {"awaits", await_completion, NULL}));
    turns_gpu(queue);
}

static void release_queue(void *user)
{
    turns_check(metal_status(buffers[0]) == 4);
    for (int i = 0; i < 2; i++)
        metal_release(buffers[i]);
    metal_release(queue);
    metal_release(device);
    turns_check(softmetal_live("command_buffer") == 0);
}

static const turns_race gpu_race = {.name = "gpu", .setup = make_queue, .teardown = release_queue};

without_stage(the_gpu_is_a_task_and_messages_are_points)
{
    run_child(search(&gpu_race, 0), "TURNS_TRACE=1");
    assert_int_equal(child.status, 0);
    assert_told("first: objc_msgSend");
    assert_told("gpu 0: a step of the GPU");
    assert_true(turns_run_all(&gpu_race, 2) > 20);
    assert_int_equal(turns_run_seeds(&gpu_race, 300), 301);
}

extern void *dispatch_queue_create(const char *label, void *attribute);
extern void dispatch_async_f(void *to, void *context, void (*function)(void *context));
extern void dispatch_after_f(uint64_t when, void *to, void *context, void (*function)(void *context));
extern void dispatch_release(void *object);

static void *serial;
static int ran;

static void run_dispatched(void *context)
{
    turns_check(turns_state_of("workers") == TURNS_READY);
    turns_check(strcmp(turns_self()->name, "workers") == 0);
    add_one_locked(context);
    if (++ran < 3)
        dispatch_async_f(serial, NULL, run_dispatched);
}

static void dispatch_one(void *unused)
{
    dispatch_async_f(serial, NULL, run_dispatched);
    for (int k = 0; k < 3; k++)
        add_one_locked(NULL);
    dispatch_after_f(0, serial, NULL, run_dispatched);
    turns_check(softmetal_fire_timers() == 1);
}

static void make_serial(void *user)
{
    serial = dispatch_queue_create("turns", NULL);
    ran = 0;
    add_parts(PARTS({"dispatches", dispatch_one, NULL}));
    turns_workers();
}

static void release_serial(void *user)
{
    turns_check(ran == 4);
    turns_check(number == 7);
    dispatch_release(serial);
}

static const turns_race serial_race = {.name = "workers", .setup = make_serial, .teardown = release_serial};

without_stage(the_workers_are_a_task)
{
    assert_true(turns_run_all(&serial_race, 2) > 20);
    assert_int_equal(turns_run_seeds(&serial_race, 300), 301);
}

/* ---------------------------------------------------------------------------------------------------- >>atomics -- */

#ifdef WITH_ATOMICS
static void add_one_in_two_atomics(void *unused)
{
    int was = __atomic_load_n(&number, __ATOMIC_SEQ_CST);
    (void)unused;
    __atomic_store_n(&number, was + 1, __ATOMIC_SEQ_CST);
}

static void add_one_in_one_atomic(void *unused)
{
    __atomic_fetch_add(&number, 1, __ATOMIC_SEQ_CST);
}

static void exchange_until_it_holds(void *unused)
{
    int was = __atomic_load_n(&number, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&number, &was, was + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        continue;
}

without_stage(each_atomic_operation_is_a_point)
{
    turns_race race = {.name = "atomic", .setup = add_parts, .teardown = check_sum};
    race.user = PARTS({"one", add_one_in_two_atomics, NULL}, {"two", add_one_in_two_atomics, NULL});
    assert_fails_again(search(&race, 1), "TURNS_CHOICES=", "not true: number == 2");
    race.user = PARTS({"one", add_one_in_one_atomic, NULL}, {"two", add_one_in_one_atomic, NULL});
    assert_int_equal(turns_run_all(&race, 1), 2 + 2);
    race.user = PARTS({"one", exchange_until_it_holds, NULL}, {"two", exchange_until_it_holds, NULL});
    assert_true(turns_run_all(&race, 3) > 4);
}
#endif

int main(void)
{
    unsetenv("TURNS_SEEDS"); /* of a long run */
    unsetenv("TURNS_SWITCHES");
    unsetenv("TURNS_SUMMARY");
    return run_all_tests();
}
