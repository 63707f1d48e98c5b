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

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <sys/wait.h>
#include "../examples/metal.h"

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

/* Runs a body in a child, in which one variable of the environment is set: "NAME=value", NULL for none. */
static void run_child(void (*body)(void), const char *setting)
{
    int ends[2];
    pid_t process;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        char *copy = setting ? strdup(setting) : NULL;
        dup2(ends[1], 2);
        close(ends[0]);
        if (copy)
            putenv(copy);
        body();
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

static void assert_fails(void (*body)(void), const char *setting, const char *what)
{
    run_child(body, setting);
    if (!WIFSIGNALED(child.status))
        print_error("it ends well\n%s\n", child.text);
    assert_true(WIFSIGNALED(child.status));
    assert_told(what);
    assert_told("again: TURNS_RACE='");
}

static void assert_passes(void (*body)(void), const char *setting)
{
    run_child(body, setting);
    if (child.status != 0)
        print_error("%s\n", child.text);
    assert_int_equal(child.status, 0);
}

/* What the report says for one more run, without the quotes that are the shell's: "TURNS_CHOICES=3:1". */
static void take_setting(const char *name, char again[AGAIN_MOST])
{
    const char *from = strstr(child.text, name);
    size_t length = 0;
    assert_non_null(from);
    for (; *from && *from != '\n' && length < AGAIN_MOST - 1; from++)
        if (*from != '"')
            again[length++] = *from;
    again[length] = 0;
}

/* The body fails; and so does the schedule that its report names, alone and at the same point. */
static void assert_fails_again(void (*body)(void), const char *name, const char *what)
{
    char again[AGAIN_MOST];
    char point[64];
    const char *from;
    assert_fails(body, NULL, what);
    take_setting(name, again);
    from = strstr(child.text, ", point ");
    assert_non_null(from);
    snprintf(point, sizeof point, "%.*s", (int)strcspn(from, "\n"), from);
    assert_fails(body, again, what);
    assert_told("schedule 1, point");
    assert_told(point);
}

/* ------------------------------------------------------------------------------------------------------ >>count -- */

static int steps;           /* points of each walker */
static int walkers;         /* tasks */
static char path[256];      /* the walkers' letters in the order of their steps */
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

static void add_walkers(void *user)
{
    static char names[] = "a\0b\0c";
    (void)user;
    path[0] = 0;
    for (int i = 0; i < walkers; i++)
        turns_add(names + 2 * i, walk, names + 2 * i);
}

static void keep_path(void *user)
{
    (void)user;
    for (unsigned i = 0; i < path_count; i++)
        turns_check(strcmp(paths[i], path) != 0);
    strcpy(paths[path_count++], path);
}

static const turns_race walk_race = {.name = "walk", .setup = add_walkers, .teardown = keep_path};

static void assert_schedules(int tasks, int points, unsigned switches, uint64_t expected)
{
    walkers = tasks;
    steps = points;
    path_count = 0;
    assert_int_equal(turns_run_all(&walk_race, switches), expected);
    assert_int_equal(path_count, expected);
}

/* Two tasks of k points: 2 orders without a switch; with one, at any of the first one's k points, 2k more; with a
   second one, at any of the other one's k points, 2k^2 more. */
static void two_tasks_have_the_schedules_counted_by_hand(void **state)
{
    (void)state;
    assert_schedules(2, 3, 0, 2);
    assert_schedules(2, 3, 1, 2 + 6);
    assert_schedules(2, 3, 2, 2 + 6 + 18);
}

/* Three tasks of k points: 6 orders. One switch while the first runs: 3 firsts, k points, 2 others, and at the other's
   end 2 that may go on. One while the second runs: 6 beginnings, k points, one other. */
static void three_tasks_have_the_schedules_counted_by_hand(void **state)
{
    (void)state;
    assert_schedules(3, 2, 0, 6);
    assert_schedules(3, 2, 1, 6 + 12 * 2 + 6 * 2);
}

/* Each interleaving of two times three steps is one schedule: 6 over 3. */
static void without_a_bound_each_interleaving_is_one_schedule(void **state)
{
    (void)state;
    assert_schedules(2, 2, 99, 20);
}

static void walk_and_yield(void *name)
{
    take_step((const char *)name);
    turns_yield(NULL);
    take_step((const char *)name);
    turns_point("a step");
    take_step((const char *)name);
}

static void add_yielders(void *user)
{
    add_walkers(user);
    for (int i = 0; i < walkers; i++)
        turns.task[i].body = walk_and_yield;
}

/* The other one goes on at a yield, and at the next point it does not. */
static void a_yield_is_a_switch_that_does_not_count(void **state)
{
    const turns_race race = {.name = "yield", .setup = add_yielders, .teardown = keep_path};
    (void)state;
    walkers = 2;
    path_count = 0;
    assert_int_equal(turns_run_all(&race, 0), 2);
    assert_string_equal(paths[0], "abaabb");
    assert_string_equal(paths[1], "babbaa");
}

static void a_search_with_a_limit_ends_there(void **state)
{
    turns_race race = walk_race;
    (void)state;
    race.limit = 5;
    walkers = 2;
    steps = 3;
    path_count = 0;
    assert_int_equal(turns_run_all(&race, 2), 5);
}

static void search_walk(void)
{
    walkers = 2;
    steps = 3;
    path_count = 0;
    turns_run_all(&walk_race, 1);
    fprintf(stderr, "%u\n", path_count);
}

static void forget_path(void *user)
{
    (void)user;
    path_count++;
}

static void seed_walk(void)
{
    turns_race race = walk_race;
    race.teardown = forget_path;
    walkers = 2;
    steps = 3;
    path_count = 0;
    turns_run_seeds(&race, 10);
    fprintf(stderr, "%u\n", path_count);
}

static void the_environment_says_how_much_is_searched(void **state)
{
    (void)state;
    assert_passes(search_walk, "TURNS_SWITCHES=2");
    assert_string_equal(child.text, "26\n");
    assert_passes(search_walk, "TURNS_RACE=run");
    assert_string_equal(child.text, "0\n");
    assert_passes(search_walk, "TURNS_RACE=walk");
    assert_string_equal(child.text, "8\n");
    assert_passes(seed_walk, NULL);
    assert_string_equal(child.text, "11\n"); /* the first one measures the reach */
    assert_passes(seed_walk, "TURNS_SEEDS=3");
    assert_string_equal(child.text, "4\n");
    assert_passes(search_walk, "TURNS_SUMMARY=1");
    assert_told("walk: 8 schedules, ");
}

/* ------------------------------------------------------------------------------------------------------ >>finds -- */

static int number;

static void add_one(void *unused)
{
    int was = number;
    (void)unused;
    turns_point("between");
    number = was + 1;
}

static void add_adders(void *user)
{
    (void)user;
    number = 0;
    turns_add("one", add_one, NULL);
    turns_add("two", add_one, NULL);
}

static void check_sum(void *user)
{
    (void)user;
    turns_check(number == 2);
}

static const turns_race sum_race = {.name = "sum", .setup = add_adders, .teardown = check_sum};

static void search_sum(void)
{
    turns_run_all(&sum_race, 1);
}

static void search_sum_without_switches(void)
{
    turns_run_all(&sum_race, 0);
}

static void seed_sum(void)
{
    turns_run_seeds(&sum_race, 100);
}

static void a_lost_update_is_found_at_one_switch(void **state)
{
    (void)state;
    assert_passes(search_sum_without_switches, NULL);
    assert_fails_again(search_sum, "TURNS_CHOICES=", "not true: number == 2");
    assert_passes(search_sum, "TURNS_CHOICES=");
}

static void a_lost_update_is_found_by_seed(void **state)
{
    (void)state;
    assert_fails_again(seed_sum, "TURNS_SEED=", "not true: number == 2");
}

/* The same with a lock: no schedule loses an update. */
static uint32_t lock_of_number;

static void add_one_locked(void *unused)
{
    os_unfair_lock_lock(&lock_of_number);
    add_one(unused);
    os_unfair_lock_unlock(&lock_of_number);
}

static void add_one_when_it_can(void *unused)
{
    while (!os_unfair_lock_trylock(&lock_of_number))
        turns_yield(NULL);
    add_one(unused);
    os_unfair_lock_unlock(&lock_of_number);
}

static void add_lockers(void *user)
{
    (void)user;
    number = 0;
    turns_add("one", add_one_locked, NULL);
    turns_add("two", add_one_when_it_can, NULL);
}

static const turns_race locked_race = {.name = "locked", .setup = add_lockers, .teardown = check_sum};

static void a_lock_excludes(void **state)
{
    (void)state;
    assert_true(turns_run_all(&locked_race, 4) > 50);
    assert_int_equal(turns_run_seeds(&locked_race, 500), 501);
}

static uint32_t locks[2];

/* A try-lock may fail after all that the owner has looked at, if that has taken another lock within. */
static bool wished, granted;

static void look_before_the_unlock(void *unused)
{
    (void)unused;
    os_unfair_lock_lock(&locks[0]);
    os_unfair_lock_lock(&locks[1]);
    os_unfair_lock_unlock(&locks[1]);
    granted = wished;
    os_unfair_lock_unlock(&locks[0]);
}

static void wish(void *unused)
{
    (void)unused;
    wished = true;
    if (!os_unfair_lock_trylock(&locks[0]))
        return;
    granted = true;
    os_unfair_lock_unlock(&locks[0]);
}

static void add_wish(void *user)
{
    (void)user;
    wished = granted = false;
    locks[0] = locks[1] = 0;
    turns_add("looks", look_before_the_unlock, NULL);
    turns_add("wishes", wish, NULL);
}

static void check_granted(void *user)
{
    (void)user;
    turns_check(granted);
}

static const turns_race wish_race = {.name = "wish", .setup = add_wish, .teardown = check_granted};

static void search_wish(void)
{
    turns_run_all(&wish_race, 1);
}

static void a_try_lock_that_fails_behind_the_last_look_is_found(void **state)
{
    (void)state;
    assert_fails_again(search_wish, "TURNS_CHOICES=", "not true: granted");
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

static void add_takers(void *user)
{
    (void)user;
    locks[0] = locks[1] = 0;
    turns_add("forth", take_both, &locks[0]);
    turns_add("back", take_both, &locks[1]);
}

static const turns_race deadlock_race = {.name = "two locks", .setup = add_takers};

static void search_deadlock(void)
{
    turns_run_all(&deadlock_race, 1);
}

static void search_deadlock_without_switches(void)
{
    turns_run_all(&deadlock_race, 0);
}

static void a_deadlock_of_two_locks_is_found_and_reported(void **state)
{
    (void)state;
    assert_passes(search_deadlock_without_switches, NULL);
    assert_fails_again(search_deadlock, "TURNS_CHOICES=", "no task can go on: a deadlock, or a wake-up is lost");
    assert_told("forth        wants a lock of back, at: lock");
    assert_told("back         wants a lock of forth, at: lock");
}

static void take_twice(void *unused)
{
    (void)unused;
    os_unfair_lock_lock(&locks[0]);
    os_unfair_lock_lock(&locks[0]);
}

static void add_taker_twice(void *user)
{
    (void)user;
    locks[0] = 0;
    turns_add("twice", take_twice, NULL);
}

static const turns_race twice_race = {.name = "twice", .setup = add_taker_twice};

static void search_twice(void)
{
    turns_run_all(&twice_race, 0);
}

static void a_lock_that_is_taken_twice_is_reported(void **state)
{
    (void)state;
    assert_fails(search_twice, NULL, "twice        wants a lock of twice");
}

static void hold(void *unused)
{
    (void)unused;
    os_unfair_lock_lock(&locks[0]);
}

static void let_go(void *unused)
{
    (void)unused;
    os_unfair_lock_unlock(&locks[0]);
}

static void add_thief(void *user)
{
    (void)user;
    locks[0] = 0;
    turns_add("holds", hold, NULL);
    turns_add("lets go", let_go, NULL);
}

static const turns_race thief_race = {.name = "thief", .setup = add_thief};

static void search_thief(void)
{
    turns_run_all(&thief_race, 0);
}

static void an_unlock_by_another_task_is_reported(void **state)
{
    (void)state;
    assert_fails(search_thief, NULL, "an unlock of a lock that the task does not own");
}

static void *object;

static void release_under_a_lock(void *unused)
{
    (void)unused;
    os_unfair_lock_lock(&locks[0]);
    metal_release(metal_retain(object));
    os_unfair_lock_unlock(&locks[0]);
}

static void add_releaser(void *user)
{
    (void)user;
    locks[0] = 0;
    object = metal_device_new();
    turns_add("releases", release_under_a_lock, NULL);
}

static const turns_race release_race = {.name = "release", .setup = add_releaser};

static void search_release(void)
{
    turns_run_all(&release_race, 0);
}

static void a_release_under_a_lock_is_reported(void **state)
{
    (void)state;
    assert_fails(search_release, NULL, "a release under a lock");
}

/* A defect of depth 3: one, two, one, two, in this order, with points around. */
static int stage;

static void pass_points(void)
{
    for (int k = 0; k < 5; k++)
        turns_point("on the way");
}

static void go_up(int from)
{
    pass_points();
    if (stage == from)
        stage = from + 1;
    pass_points();
}

static void climb_even(void *unused)
{
    (void)unused;
    go_up(0);
    go_up(2);
}

static void climb_odd(void *unused)
{
    (void)unused;
    go_up(1);
    go_up(3);
}

static void add_climbers(void *user)
{
    (void)user;
    stage = 0;
    turns_add("even", climb_even, NULL);
    turns_add("odd", climb_odd, NULL);
}

static void check_stage(void *user)
{
    (void)user;
    turns_check(stage < 4);
}

static const turns_race stage_race = {.name = "stage", .setup = add_climbers, .teardown = check_stage};

static void search_stage_at_one(void)
{
    turns_run_all(&stage_race, 1);
}

static void search_stage_at_two(void)
{
    turns_run_all(&stage_race, 2);
}

static void seed_stage(void)
{
    turns_run_seeds(&stage_race, 100);
}

/* PCT's bound for two tasks of k points in all is 1 in 2 k^2: with 42 points, 1 in 3,528 for exactly two changes. The
   stages leave room around each change, and so it is found much earlier. */
static void a_defect_of_depth_three_is_found(void **state)
{
    (void)state;
    assert_passes(search_stage_at_one, NULL);
    assert_fails_again(search_stage_at_two, "TURNS_CHOICES=", "not true: stage < 4");
    assert_fails_again(seed_stage, "TURNS_SEED=", "not true: stage < 4");
}

/* ------------------------------------------------------------------------------------------------------- >>time -- */

static bool ready;
static bool careful; /* the sleeper looks again when it is listed */
static gpusync_waiter *sleeper;
static uint64_t slice; /* of the sleeper's park; UINT64_MAX: none */
static bool limited;
static uint64_t woke_at;

static void sleep_until_ready(void *unused)
{
    gpusync_waiter waiter = {{NULL, NULL}};
    uint64_t deadline = slice == UINT64_MAX ? slice : turns_now() + slice;
    (void)unused;
    turns_limit(limited);
    if (!ready) {
        turns_point("not ready");
        sleeper = &waiter;
        if (!careful || !ready)
            turns_hooks.park(turns_hooks.user, &waiter, deadline);
        sleeper = NULL;
    }
    woke_at = turns_now();
}

static void make_ready(void *unused)
{
    (void)unused;
    ready = true;
    turns_point("ready");
    if (sleeper)
        turns_hooks.unpark(turns_hooks.user, sleeper);
}

static void add_sleeper(void *user)
{
    (void)user;
    ready = false;
    sleeper = NULL;
    turns_add("sleeps", sleep_until_ready, NULL);
    turns_add("wakes", make_ready, NULL);
}

static const turns_race wake_race = {.name = "wake", .setup = add_sleeper};

static void search_wake(void)
{
    turns_run_all(&wake_race, 1);
}

static void set_wake(bool look_again, uint64_t slice_ns, bool has_limit)
{
    careful = look_again;
    slice = slice_ns;
    limited = has_limit;
}

static void a_wake_up_that_is_lost_is_found(void **state)
{
    (void)state;
    set_wake(false, UINT64_MAX, false);
    assert_fails_again(search_wake, "TURNS_CHOICES=", "no task can go on: a deadlock, or a wake-up is lost");
    assert_told("sleeps       parked, at: park");
    assert_told("wakes        over");
}

static void a_wake_up_that_is_not_lost_is_not_reported(void **state)
{
    (void)state;
    set_wake(true, UINT64_MAX, false);
    assert_true(turns_run_all(&wake_race, 3) > 4);
}

static void slices_hide_no_lost_wake_up(void **state)
{
    (void)state;
    set_wake(false, 50000000, false);
    assert_fails(search_wake, NULL, "a wake-up is lost");
}

static void a_brief_park_ends_by_time(void **state)
{
    (void)state;
    set_wake(false, 1000000, false);
    assert_true(turns_run_all(&wake_race, 1) > 4);
}

/* Nothing wakes it, and time moves to its deadline and not beyond. */
static void add_lone_sleeper(void *user)
{
    (void)user;
    ready = false;
    turns_add("sleeps", sleep_until_ready, NULL);
}

static void check_moment(void *user)
{
    (void)user;
    turns_check(woke_at == UINT64_C(1000000000) + 100 + slice + 100);
}

static const turns_race lone_race = {.name = "lone", .setup = add_lone_sleeper, .teardown = check_moment};
static const turns_race timed_race = {
    .name = "timed", .setup = add_lone_sleeper, .teardown = check_moment, .timed = true};

static void search_lone(void)
{
    turns_run_all(&lone_race, 0);
}

static void time_moves_to_a_limit_of_the_program(void **state)
{
    (void)state;
    set_wake(false, UINT64_C(3000000000), true);
    assert_int_equal(turns_run_all(&lone_race, 0), 1);
    set_wake(false, UINT64_C(3000000000), false);
    assert_int_equal(turns_run_all(&timed_race, 0), 1);
    assert_fails(search_lone, NULL, "a wake-up is lost");
}

/* ----------------------------------------------------------------------------------------------------- >>waiter -- */

/* The waker holds this lock while it unparks, and the sleeper takes it before it gives its waiter away. */
static uint32_t lock_of_sleeper;

static void park_until_ready(void *unused)
{
    gpusync_waiter *waiter = (gpusync_waiter *)calloc(1, sizeof *waiter);
    (void)unused;
    sleeper = waiter;
    while (!ready)
        turns_hooks.park(NULL, waiter, UINT64_MAX);
    os_unfair_lock_lock(&lock_of_sleeper);
    sleeper = NULL;
    os_unfair_lock_unlock(&lock_of_sleeper);
    memset(waiter, 0xff, sizeof *waiter); /* a scheduler that reads it takes this for a permit */
    free(waiter);
    turns_point("the waiter is gone");
}

static bool is_listed(void *unused)
{
    (void)unused;
    return sleeper != NULL;
}

/* The first unpark has no reason: the sleeper parks again, unless it is ready by then. */
static void wake_twice(void *unused)
{
    (void)unused;
    turns_until(is_listed, NULL);
    turns_hooks.unpark(NULL, sleeper);
    os_unfair_lock_lock(&lock_of_sleeper);
    ready = true;
    if (sleeper)
        turns_hooks.unpark(NULL, sleeper);
    os_unfair_lock_unlock(&lock_of_sleeper);
}

static void add_parker(void *user)
{
    (void)user;
    ready = false;
    sleeper = NULL;
    turns_add("sleeps", park_until_ready, NULL);
    turns_add("wakes", wake_twice, NULL);
}

static void check_none_listed(void *user)
{
    (void)user;
    turns_check(!sleeper);
}

static const turns_race waiter_race = {.name = "waiter", .setup = add_parker, .teardown = check_none_listed};

static void the_waiter_is_not_touched_after_its_last_park(void **state)
{
    (void)state;
    assert_true(turns_run_all(&waiter_race, 3) > 10);
    assert_int_equal(turns_run_seeds(&waiter_race, 300), 301);
}

static void unpark_then_park(void *unused)
{
    gpusync_waiter waiter = {{NULL, NULL}};
    (void)unused;
    turns_hooks.unpark(NULL, &waiter);
    turns_hooks.unpark(NULL, &waiter);
    turns_hooks.park(NULL, &waiter, UINT64_MAX); /* the permit, one at most */
    turns_limit(true);
    turns_hooks.park(NULL, &waiter, turns_now() + 5000000000u);
    turns_check(turns_now() >= UINT64_C(6000000000));
}

static void add_permit(void *user)
{
    (void)user;
    turns_add("alone", unpark_then_park, NULL);
}

static const turns_race permit_race = {.name = "permit", .setup = add_permit};

static void an_unpark_leaves_one_permit(void **state)
{
    (void)state;
    assert_int_equal(turns_run_all(&permit_race, 0), 1);
}

/* ---------------------------------------------------------------------------------------------------- >>reports -- */

static void spin_with_yields(void *unused)
{
    (void)unused;
    while (!ready)
        turns_yield(NULL);
}

static void spin_with_looks(void *unused)
{
    (void)unused;
    while (!ready)
        (void)turns_now();
}

static void spin_with_points(void *unused)
{
    (void)unused;
    while (!ready)
        turns_point("not ready");
}

static void (*spinner)(void *unused);

static void add_spinners(void *user)
{
    (void)user;
    ready = false;
    sleeper = NULL;
    turns_add("spins", spinner, NULL);
    turns_add("ready", make_ready, NULL);
}

static uint64_t points_most;

static void check_points(void *user)
{
    (void)user;
    turns_check(turns.points < points_most);
}

/* No change of priority is at a point that is reached. */
static const turns_race spin_race = {
    .name = "spin",
    .setup = add_spinners,
    .teardown = check_points,
    .reach = UINT64_C(1) << 40,
};

/* A loop without a yield ends by seed only: in a search no task is made to switch. */
static void a_loop_that_waits_for_others_ends(void **state)
{
    (void)state;
    points_most = 100;
    spinner = spin_with_yields;
    assert_true(turns_run_all(&spin_race, 2) > 3);
    assert_int_equal(turns_run_seeds(&spin_race, 100), 100);
    spinner = spin_with_looks;
    assert_true(turns_run_all(&spin_race, 2) > 3);
    assert_int_equal(turns_run_seeds(&spin_race, 100), 100);
    points_most = 2000;
    spinner = spin_with_points;
    assert_int_equal(turns_run_seeds(&spin_race, 100), 100);
}

static void walk_for_ever(void *unused)
{
    (void)unused;
    for (;;)
        turns_point("on and on");
}

static void add_endless(void *user)
{
    (void)user;
    turns_add("endless", walk_for_ever, NULL);
}

static void search_endless(void)
{
    const turns_race race = {.name = "endless", .setup = add_endless};
    turns_run_all(&race, 0);
}

static void add_more_each_time(void *user)
{
    static int times;
    (void)user;
    times++;
    steps = 2;
    for (int i = 0; i < 1 + times; i++)
        turns_add("same", walk, "s");
    path[0] = 0;
}

static void search_changing(void)
{
    const turns_race race = {.name = "changes", .setup = add_more_each_time};
    turns_run_all(&race, 1);
}

static void a_schedule_without_an_end_and_a_program_that_changes_are_reported(void **state)
{
    (void)state;
    assert_fails(search_endless, NULL, "a schedule does not end");
    assert_fails(search_changing, NULL, "the program is not the same each time");
}

static void crash(void *unused)
{
    (void)unused;
    turns_point("soon");
    abort();
}

static void assert_itself(void *unused)
{
    (void)unused;
    turns_expect(steps + 1, 8);
}

static void add_crash(void *user)
{
    (void)user;
    turns_add("crashes", crash, NULL);
}

static void add_assertion(void *user)
{
    (void)user;
    steps = 6;
    turns_add("asserts", assert_itself, NULL);
}

static void seed_crash(void)
{
    const turns_race race = {.name = "crash", .setup = add_crash, .reach = 10};
    turns_run_seeds(&race, 1);
}

static void search_assertion(void)
{
    const turns_race race = {.name = "assertion", .setup = add_assertion};
    turns_run_all(&race, 0);
}

static void a_signal_and_an_answer_that_is_not_expected_are_reported(void **state)
{
    (void)state;
    assert_fails(seed_crash, NULL, "the program ends by signal 6");
    assert_told("again: TURNS_RACE='crash' TURNS_SEED=1:10");
    assert_told("* crashes      ready, at: soon");
    assert_int_equal(WTERMSIG(child.status), SIGABRT);
    assert_fails(search_assertion, NULL, "steps + 1: 7, expected 8");
}

static void a_trace_has_each_point(void **state)
{
    (void)state;
    run_child(search_sum_without_switches, "TURNS_TRACE=1");
    assert_string_equal(child.text, "1 one: between\n2 one: its end\n3 two: between\n4 two: its end\n"
                                    "1 two: between\n2 two: its end\n3 one: between\n4 one: its end\n");
}

/* The same seed draws the same numbers. */
static unsigned drawn[3];

static void draw_numbers(void *user)
{
    unsigned *kept = (unsigned *)user;
    *kept = turns_draw(1u << 30);
    turns_add("alone", walk, "s");
    path[0] = 0;
    steps = 0;
}

static void each_seed_draws_its_own_numbers(void **state)
{
    turns_race race = {.name = "draw", .setup = draw_numbers, .reach = 10};
    (void)state;
    for (int i = 0; i < 3; i++) {
        race.user = &drawn[i];
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
    (void)device;
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
    (void)unused;
    return number >= 1;
}

static void post_callbacks(void *unused)
{
    (void)unused;
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
    number = 0;
    turns_add("posts", post_callbacks, NULL);
    if (when_told)
        turns_callbacks_when_told(NULL);
    else
        turns_callbacks(NULL);
}

static void search_callbacks_when_told(void)
{
    static char yes;
    const turns_race race = {.name = "told", .setup = add_poster, .teardown = check_sum, .user = &yes};
    turns_run_all(&race, 3);
    turns_run_seeds(&race, 100);
}

static void the_callbacks_are_a_task(void **state)
{
    const turns_race polls = {.name = "polls", .setup = add_poster, .teardown = check_sum};
    (void)state;
    tells = true;
    assert_passes(search_callbacks_when_told, NULL);
    tells = false;
    assert_true(turns_run_all(&polls, 3) > 4);
    assert_int_equal(turns_run_seeds(&polls, 100), 101);
    assert_fails(search_callbacks_when_told, NULL, "no task can go on");
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
    (void)unused;
    turns_until(is_completed, buffers[0]);
    turns_check(turns_state_of("first") == TURNS_OVER);
    turns_check(metal_status(buffers[1]) == 4);
}

static void make_queue(void *user)
{
    (void)user;
    device = metal_device_new();
    queue = metal_queue_new(device, 8);
    for (int i = 0; i < 2; i++)
        buffers[i] = metal_queue_command_buffer(queue);
    turns_add("first", commit_buffer, &buffers[0]);
    turns_add("second", commit_buffer, &buffers[1]);
    turns_add("awaits", await_completion, NULL);
    turns_gpu(queue);
}

static void release_queue(void *user)
{
    (void)user;
    turns_check(metal_status(buffers[0]) == 4);
    for (int i = 0; i < 2; i++)
        metal_release(buffers[i]);
    metal_release(queue);
    metal_release(device);
    turns_check(softmetal_live("command_buffer") == 0);
}

static const turns_race gpu_race = {.name = "gpu", .setup = make_queue, .teardown = release_queue};

static void search_gpu(void)
{
    turns_run_all(&gpu_race, 0);
}

static void the_gpu_is_a_task_and_messages_are_points(void **state)
{
    (void)state;
    run_child(search_gpu, "TURNS_TRACE=1");
    assert_int_equal(child.status, 0);
    assert_told("first: objc_msgSend");
    assert_told("gpu 0: a step of the GPU");
    assert_true(turns_run_all(&gpu_race, 2) > 20);
    assert_int_equal(turns_run_seeds(&gpu_race, 300), 301);
}

extern void *dispatch_queue_create(const char *label, void *attribute);
extern void dispatch_async_f(void *to, void *context, void (*function)(void *context));
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
    (void)unused;
    dispatch_async_f(serial, NULL, run_dispatched);
    for (int k = 0; k < 3; k++)
        add_one_locked(NULL);
}

static void make_serial(void *user)
{
    (void)user;
    serial = dispatch_queue_create("turns", NULL);
    number = 0;
    ran = 0;
    turns_add("dispatches", dispatch_one, NULL);
    turns_workers();
}

static void release_serial(void *user)
{
    (void)user;
    turns_check(ran == 3);
    turns_check(number == 6);
    dispatch_release(serial);
}

static const turns_race serial_race = {.name = "workers", .setup = make_serial, .teardown = release_serial};

static void the_workers_are_a_task(void **state)
{
    (void)state;
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
    (void)unused;
    __atomic_fetch_add(&number, 1, __ATOMIC_SEQ_CST);
}

static void exchange_until_it_holds(void *unused)
{
    int was = __atomic_load_n(&number, __ATOMIC_RELAXED);
    (void)unused;
    while (!__atomic_compare_exchange_n(&number, &was, was + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        continue;
}

static void (*adder)(void *unused);

static void add_atomic_adders(void *user)
{
    (void)user;
    number = 0;
    turns_add("one", adder, NULL);
    turns_add("two", adder, NULL);
}

static const turns_race atomic_race = {.name = "atomic", .setup = add_atomic_adders, .teardown = check_sum};

static void search_atomics(void)
{
    turns_run_all(&atomic_race, 1);
}

static void each_atomic_operation_is_a_point(void **state)
{
    (void)state;
    adder = add_one_in_two_atomics;
    assert_fails_again(search_atomics, "TURNS_CHOICES=", "not true: number == 2");
    adder = add_one_in_one_atomic;
    assert_int_equal(turns_run_all(&atomic_race, 1), 2 + 2);
    adder = exchange_until_it_holds;
    assert_true(turns_run_all(&atomic_race, 3) > 4);
}
#endif

int main(void)
{
    unsetenv("TURNS_SEEDS"); /* of a long run */
    unsetenv("TURNS_SWITCHES");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_tasks_have_the_schedules_counted_by_hand),
        cmocka_unit_test(three_tasks_have_the_schedules_counted_by_hand),
        cmocka_unit_test(without_a_bound_each_interleaving_is_one_schedule),
        cmocka_unit_test(a_yield_is_a_switch_that_does_not_count),
        cmocka_unit_test(a_search_with_a_limit_ends_there),
        cmocka_unit_test(the_environment_says_how_much_is_searched),
        cmocka_unit_test(a_lost_update_is_found_at_one_switch),
        cmocka_unit_test(a_lost_update_is_found_by_seed),
        cmocka_unit_test(a_lock_excludes),
        cmocka_unit_test(a_try_lock_that_fails_behind_the_last_look_is_found),
        cmocka_unit_test(a_deadlock_of_two_locks_is_found_and_reported),
        cmocka_unit_test(a_lock_that_is_taken_twice_is_reported),
        cmocka_unit_test(an_unlock_by_another_task_is_reported),
        cmocka_unit_test(a_release_under_a_lock_is_reported),
        cmocka_unit_test(a_defect_of_depth_three_is_found),
        cmocka_unit_test(a_wake_up_that_is_lost_is_found),
        cmocka_unit_test(a_wake_up_that_is_not_lost_is_not_reported),
        cmocka_unit_test(slices_hide_no_lost_wake_up),
        cmocka_unit_test(a_brief_park_ends_by_time),
        cmocka_unit_test(time_moves_to_a_limit_of_the_program),
        cmocka_unit_test(a_loop_that_waits_for_others_ends),
        cmocka_unit_test(the_waiter_is_not_touched_after_its_last_park),
        cmocka_unit_test(an_unpark_leaves_one_permit),
        cmocka_unit_test(a_schedule_without_an_end_and_a_program_that_changes_are_reported),
        cmocka_unit_test(a_signal_and_an_answer_that_is_not_expected_are_reported),
        cmocka_unit_test(a_trace_has_each_point),
        cmocka_unit_test(each_seed_draws_its_own_numbers),
#ifdef WITH_ATOMICS
        cmocka_unit_test(each_atomic_operation_is_a_point),
#endif
        cmocka_unit_test(the_callbacks_are_a_task),
        cmocka_unit_test(the_gpu_is_a_task_and_messages_are_points),
        cmocka_unit_test(the_workers_are_a_task),
    };
    unsetenv("TURNS_SUMMARY");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
