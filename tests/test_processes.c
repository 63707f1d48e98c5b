/* test_processes.c - what a process goes through: forks, exits, signals, a stop, unloaded code, copies

   The program starts itself: with two arguments it is a child, which gets into a situation and leaves in a way with
   a status that has to arrive. Its alarm ends a child that hangs. The program also compiles itself, with COPY, to a
   shared object that has an implementation of its own. */
#include "kit.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

/* clang-format off */
#define CALLS(X) X(device_create) X(device_destroy) X(queue_create) X(queue_destroy) X(command_buffer_create) \
    X(encode_wait) X(encode_signal) X(commit) X(on_done) X(wait) X(timeline_create) X(timeline_wait) X(timeline_destroy)
/* clang-format on */
#define FIELD(name) __typeof__(gpusync_##name) *name;
#define FUNCTION(name) gpusync_##name,
typedef struct calls {
    CALLS(FIELD)
} calls;

#ifdef COPY
extern const calls copy_of_calls;
const calls copy_of_calls = {CALLS(FUNCTION)};
#else

static const calls own_calls = {CALLS(FUNCTION)};
static const char *program;
static bool began, go_on; /* of what stays where it is */

#define CHECK(condition) must(condition, "not so: " #condition)

static void await(const bool *flag)
{
    while (!GET(flag)) sched_yield();
}

/* -- copies of the implementation ---------------------------------------------------------------------------------- */

#ifndef __clang__
#define COMPILER "${CC:-gcc}"
#elif __has_feature(thread_sanitizer)
#define COMPILER "${CC:-clang} -fsanitize=thread"
#elif __has_feature(address_sanitizer)
#define COMPILER "${CC:-clang} -fsanitize=address"
#else
#define COMPILER "${CC:-clang}"
#endif

static char copy_path[512];

static void compile_copy(void)
{
    char command[2048];
    snprintf(copy_path, sizeof copy_path, "%s.%ld.so", program, (long)getpid());
    snprintf(command, sizeof command,
             COMPILER " -std=c11 -O1 -w -fPIC -shared -D_GNU_SOURCE -DGPUSYNC_OBJC=1 -DGPUSYNC_STATIC"
                      " -DGPUSYNC_IMPLEMENTATION -DCOPY -I. -Itests -Itests/softmetal -Iexamples -o '%s' " __FILE__,
             copy_path);
    assert_int_equal(system(command), 0);
}

static int remove_copy(void **state)
{
    return *copy_path ? remove(copy_path) : 0;
}

static void *load_copy(const calls **c)
{
    void *handle;
#ifdef __APPLE__
    skip(); /* a shared object of a Mac may find the system's objc_msgSend */
#endif
    if (!*copy_path) compile_copy();
    handle = dlopen(copy_path, RTLD_NOW);
    if (!handle) fail_msg("%s", dlerror());
    *c = (const calls *)dlsym(handle, "copy_of_calls");
    assert_true(*c && (*c)->commit != own_calls.commit);
    return handle;
}

/* A device, a queue, and a timeline of an event that others signal, too, by the calls of one copy. */
typedef struct party {
    const calls *c;
    uint64_t first, last, step; /* of the values that it signals */
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    unsigned done;
} party;

static void count_done(void *user, gpusync_result result, const gpusync_error *error)
{
    CHECK(result == GPUSYNC_OK && !error);
    COUNT((unsigned *)user);
}

static void party_open(party *p, void *metal_device, void *event)
{
    const gpusync_device_desc device = {.metal_device = metal_device, .log = kit_log};
    const gpusync_timeline_desc timeline = {.shared_event = event};
    assert_ok(p->c->device_create(&device, &p->device));
    assert_ok(p->c->queue_create(p->device, NULL, &p->queue));
    assert_ok(p->c->timeline_create(p->device, &timeline, &p->timeline));
}

static void *party_play(void *argument)
{
    party *p = (party *)argument;
    gpusync_ticket ticket = 0;
    void *buffer;
    for (uint64_t value = p->first; value <= p->last; value += p->step) {
        CHECK(p->c->command_buffer_create(p->queue, NULL, GPUSYNC_FOREVER, &buffer) == GPUSYNC_OK);
        CHECK(p->c->encode_wait(p->queue, buffer, at(p->timeline, value - 1)) == GPUSYNC_OK);
        CHECK(p->c->encode_signal(p->queue, buffer, at(p->timeline, value)) == GPUSYNC_OK);
        CHECK(p->c->commit(p->queue, buffer, &ticket) == GPUSYNC_OK);
        CHECK(p->c->on_done(ticket_at(p->queue, ticket), count_done, &p->done) == GPUSYNC_OK);
        CHECK(p->c->on_done(at(p->timeline, value), count_done, &p->done) == GPUSYNC_OK);
    }
    CHECK(p->c->wait(p->queue, ticket, SECONDS(30), NULL) == GPUSYNC_OK);
    CHECK(p->c->timeline_wait(p->timeline, p->last, SECONDS(30), NULL) == GPUSYNC_OK);
    return NULL;
}

static void party_close(party *p)
{
    assert_ok(p->c->queue_destroy(p->queue) || p->c->timeline_destroy(p->timeline) || p->c->device_destroy(p->device));
}

static void test_two_copies_share_a_metal_device_and_an_event(void **state)
{
    stage *s = stage_of(state);
    party a = {&own_calls, 1, 99, 2, .done = 0}, b = {NULL, 2, 100, 2, .done = 0};
    void *handle = load_copy(&b.c);
    void *event = metal_shared_event_new(s->metal_device);
    party_open(&a, s->metal_device, event);
    party_open(&b, s->metal_device, event);
    pthread_t thread = start(party_play, &a);
    party_play(&b);
    join(thread);
    party_close(&a);
    party_close(&b);
    assert_int_equal(metal_event_value(event), 100);
    assert_true(a.done == 100 && b.done == 100);
    metal_release(event);
    settle(s);
    assert_int_equal(dlclose(handle), 0);
}

/* Handlers come late: waits and the queue's destroy see the end by Metal's status, and Metal has blocks still. Where
   the log says that it has them behind the device's destroy, too, the code stays until Metal is through with them. */
static void test_the_code_is_unloaded_once_the_device_is_destroyed(void **state)
{
    stage *s = stage_of(state);
    unsigned i, unloaded = 0;
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.handler.max_ns = timing.event_listener.max_ns = MS(2);
    softmetal_set_timing(&timing);
    for (i = 0; i < 20; i++) {
        const unsigned lines = kit_now().log_lines;
        party p = {NULL, 1, 6, 1, .done = 0};
        void *handle = load_copy(&p.c);
        void *event = metal_shared_event_new(s->metal_device);
        party_open(&p, s->metal_device, event);
        party_play(&p);
        if (i % 2) { /* a listener's block */
            assert_ok(p.c->on_done(at(p.timeline, 9), count_done, &p.done));
            metal_event_signal(event, 9);
            assert_ok(p.c->timeline_wait(p.timeline, 9, SECONDS(30), NULL));
        }
        party_close(&p);
        assert_int_equal(p.done, 12 + i % 2);
        if (kit_now().log_lines != lines) settle(s);
        else unloaded++;
        assert_int_equal(dlclose(handle), 0);
        assert_null(dlopen(copy_path, RTLD_NOW | RTLD_NOLOAD));
        metal_event_signal(event, 1000);
        metal_release(event);
        commit_new(s->q[0]);
    }
    settle(s);
    assert_true(unloaded > 0);
}

/* -- calls that sleep ---------------------------------------------------------------------------------------------- */

enum { TICKET, REACHED, ANY, ALL, DEVICE, ROOM, WARM_UP, WITH_LIMIT, QUEUE = WITH_LIMIT, TIMELINE, KINDS };

static job sleepers[KINDS];
static gpusync_warmup *warmup;

static gpusync_result make(void *user, size_t i, void **made, gpusync_error *error)
{
    return GPUSYNC_OK;
}

static gpusync_result wait_for_warmup(void *limit)
{
    return gpusync_warmup_wait(warmup, *(uint64_t *)limit, NULL, NULL);
}

static gpusync_result destroy_timeline(void *timeline)
{
    return gpusync_timeline_destroy((gpusync_timeline *)timeline);
}

/* The first kinds, for what the first queue, the first timeline ... do not end. */
static void fall_asleep(const stage *s, unsigned kinds, uint64_t limit)
{
    static gpusync_point points[2];
    static uint64_t of_warmup;
    of_warmup = limit;
    points[0] = ticket_at(s->q[0], 1);
    points[1] = at(s->t[0], 1);
    memset(sleepers, 0, sizeof sleepers);
    job_wait(&sleepers[TICKET], s->q[0], 1, limit);
    job_value(&sleepers[REACHED], s->t[0], 1, limit);
    job_many(&sleepers[ANY], points, 2, GPUSYNC_WAIT_ANY, limit);
    job_many(&sleepers[ALL], points, 2, GPUSYNC_WAIT_ALL, limit);
    job_device(&sleepers[DEVICE], s->device, limit);
    if (kinds > ROOM) job_buffer(&sleepers[ROOM], s->q[1], limit);
    if (kinds > WARM_UP) job_call(&sleepers[WARM_UP], wait_for_warmup, &of_warmup);
    if (kinds > QUEUE) job_destroy(&sleepers[QUEUE], s->q[2]);
    if (kinds > TIMELINE) job_call(&sleepers[TIMELINE], destroy_timeline, s->t[1]);
}

/* The report has a line for each call that sleeps; for ANY one for each point. */
static void await_sleepers(const stage *s, unsigned n)
{
    static char text[65536];
    const char *from;
    unsigned found;
    do {
        gpusync_device_report(s->device, text, sizeof text);
        for (found = 0, from = text; (from = strstr(from, "a wait for")) != NULL; from++) found++;
    } while (found < n);
}

/* -- children ------------------------------------------------------------------------------------------------------ */

enum { STATUS = 42, HUNG = 3 };

static stage g; /* a child's */
static void *hung[HUNG];
static void (*at_the_end)(void);

/* The last of the program's own code, behind what atexit calls. */
static void __attribute__((destructor)) come_to_the_end(void)
{
    if (at_the_end) at_the_end();
}

static void stay_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    PUT(&began, true);
    await(&go_on);
}

static void stay_in_log(void *user, gpusync_log_level level, const char *text)
{
    stay_in_callback(user, GPUSYNC_OK, NULL);
}

static void let_go(void)
{
    for (unsigned i = 0; i < HUNG; i++) softmetal_unhang(hung[i]);
}

static void leave_in_log(void *user, gpusync_log_level level, const char *text)
{
    exit(STATUS);
}

/* It would wait for the handler that is in the log. */
static void destroy_in_log(void)
{
    CHECK(gpusync_queue_destroy(g.q[3]) == GPUSYNC_ERROR_WOULD_DEADLOCK);
    CHECK(gpusync_wait(g.q[0], 1, GPUSYNC_FOREVER, NULL) == GPUSYNC_ERROR_WOULD_DEADLOCK);
    CHECK(gpusync_device_destroy(g.device) == GPUSYNC_ERROR_WOULD_DEADLOCK);
}

static void end_during_exit(void)
{
    let_go();
    CHECK(gpusync_device_wait(g.device, SECONDS(20), NULL) == GPUSYNC_OK);
}

static void end_behind_the_device(void)
{
    CHECK(softmetal_live("block") > 0);
    let_go();
    CHECK(softmetal_settle(SECONDS(20)) && softmetal_live("block") == 0);
}

static void *keep_busy(void *unused)
{
    for (;; PUT(&began, true)) CHECK(!gpusync_wait(g.q[3], commit_new(g.q[3]), GPUSYNC_FOREVER, NULL));
    return unused;
}

static void abandon_all(void)
{
    for (unsigned i = 0; i < STAGE_MOST; i++) assert_ok(gpusync_queue_abandon(g.q[i]));
    assert_ok(gpusync_timeline_destroy(g.t[0]));
    assert_ok(gpusync_device_destroy(g.device));
    assert_true(log_has(GPUSYNC_LOG_WARNING, "never unload"));
    at_the_end = end_behind_the_device;
}

/* Work of either kind that runs, held work, an open buffer and callbacks: every child leaves with these. */
static void get_into(const char *situation)
{
    static note notes[STAGE_MOST];
    const stage_desc desc = {.real = true,
                             .threads = true,
                             .mixed = true,
                             .queues = 4,
                             .timelines = 1,
                             .device.log = strcmp(situation, "handler") == 0 ? stay_in_log
                                           : strcmp(situation, "log") == 0   ? leave_in_log
                                                                             : NULL};
    stage_open(&g, &desc);
    for (unsigned i = 0; i < HUNG; i++) {
        softmetal_hang(hung[i] = metal_retain(new_buffer(g.q[i])));
        on_done(ticket_at(g.q[i], commit(g.q[i], hung[i])), &notes[i]);
    }
    commit(g.q[1], waiting(g.q[1], ticket_at(g.q[0], 1)));
    new_buffer(g.q[3]);
    if (desc.device.log) {
        at_the_end = desc.device.log == leave_in_log ? destroy_in_log : NULL;
        commit_failing(g.q[3], SOFTMETAL_PAGE_FAULT);
        await(&began);
    } else if (strcmp(situation, "callback") == 0) {
        assert_ok(gpusync_on_done(ticket_at(g.q[3], 0), stay_in_callback, NULL));
        await(&began);
    } else if (strcmp(situation, "due") == 0) {
        softmetal_set_dispatch_threads(0);
        on_done(ticket_at(g.q[3], commit_new(g.q[3])), &notes[3]);
        assert_ok(gpusync_wait(g.q[3], 1, GPUSYNC_FOREVER, NULL));
    } else if (strcmp(situation, "busy") == 0) {
        start(keep_busy, NULL);
        await(&began);
    } else if (strcmp(situation, "sleepers") == 0) {
        fall_asleep(&g, ROOM, GPUSYNC_FOREVER);
        await_sleepers(&g, ROOM + 1);
    } else if (strcmp(situation, "ends") == 0) {
        at_the_end = end_during_exit;
    } else if (strcmp(situation, "abandoned") == 0) {
        abandon_all();
    } else if (strcmp(situation, "fresh") == 0) {
        let_go();
        settle(&g);
        for (unsigned i = 0; i < HUNG; i++) assert_noted(&notes[i], GPUSYNC_OK);
    }
}

/* The GPU goes on while the process stands, and no handler tells of the ends. */
static void stand_still(void)
{
    static job limited, unlimited, ended, lost;
    static note noted;
    void *buffer[4];
    stage_open(&g, &(stage_desc){.threads = true, .queues = 4});
    for (unsigned i = 0; i < 4; i++) commit(g.q[i], buffer[i] = new_buffer(g.q[i]));
    on_done(ticket_at(g.q[1], 1), &noted);
    job_wait(&limited, g.q[0], 1, MS(900));
    job_wait(&unlimited, g.q[1], 1, GPUSYNC_FOREVER);
    job_wait(&ended, g.q[2], 1, MS(900));
    job_wait(&lost, g.q[3], 1, GPUSYNC_FOREVER);
    await_sleepers(&g, 4);
    softmetal_complete(buffer[2]);
    softmetal_complete(buffer[3]);
    raise(SIGSTOP);
    uint64_t from = gpusync_now_ns();
    CHECK(job_end(&ended) == GPUSYNC_OK && job_end(&lost) == GPUSYNC_OK && job_end(&limited) == GPUSYNC_TIMEOUT);
    CHECK(gpusync_now_ns() - from < MS(500));
    CHECK(!job_is_over(&unlimited));
    finish_next(g.q[1]);
    CHECK(job_end(&unlimited) == GPUSYNC_OK && calls_of(&noted) == 1);
    stage_close(&g);
}

static int child(const char *way, const char *situation)
{
    alarm(30);
    if (strcmp(situation, "stop") == 0) stand_still();
    else get_into(situation);
    if (strcmp(way, "exit") == 0) exit(STATUS);
    if (strcmp(way, "_exit") == 0) _exit(STATUS);
    return STATUS;
}

/* situation NULL: the child calls nothing but _exit. */
static pid_t begin_child(const char *way, const char *situation)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0 && situation) execl(program, program, way, situation, (char *)NULL);
    if (pid == 0) _exit(situation ? 1 : STATUS);
    return pid;
}

static void end_child(pid_t pid, const char *what)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != STATUS) fail_msg("%s: wait status %#x", what, (unsigned)status);
}

static void test_a_process_leaves_and_keeps_its_status(void **state)
{
    static const char *const ways[] = {"exit", "_exit", "return"};
    pid_t pids[LENGTH(ways)];
    for (unsigned i = 0; i < LENGTH(ways); i++) pids[i] = begin_child(ways[i], (const char *)*state);
    for (unsigned i = 0; i < LENGTH(ways); i++) end_child(pids[i], ways[i]);
}

static void test_behind_a_stop_limits_hold_and_nothing_is_lost(void **state)
{
    pid_t pid = begin_child("return", "stop");
    int status = 0;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    sleep(1); /* the stop itself, across the child's limits: nothing is ordered by it */
    assert_int_equal(kill(pid, SIGCONT), 0);
    end_child(pid, "stop");
}

/* A forked child may call exec and _exit. */
static void test_forks_with_work_in_flight_do_no_harm(void **state)
{
    stage *s = stage_of(state);
    note notes[8] = {{0}}, noted = {0};
    job sleeper = {0};
    pid_t pids[8];
    void *buffer = new_buffer(s->q[0]);
    softmetal_hang(buffer);
    on_done(ticket_at(s->q[0], commit(s->q[0], buffer)), &noted);
    job_value(&sleeper, s->t[0], 1, GPUSYNC_FOREVER);
    SUBMIT(s->q[1], WAITS(ticket_at(s->q[0], 1)), SIGNALS(at(s->t[0], 1)), .flags = GPUSYNC_SUBMIT_UNORDERED);
    await_sleepers(s, 1);
    for (unsigned i = 0; i < LENGTH(pids); i++) {
        on_done(ticket_at(s->q[1], commit_new(s->q[1])), &notes[i]);
        pids[i] = begin_child("_exit", i % 4 ? NULL : "fresh");
    }
    softmetal_unhang(buffer);
    assert_ok(job_end(&sleeper));
    settle(s);
    assert_noted(&noted, GPUSYNC_OK);
    for (unsigned i = 0; i < LENGTH(pids); i++) {
        assert_noted(&notes[i], GPUSYNC_OK);
        end_child(pids[i], "fork");
    }
}

/* -- signals ------------------------------------------------------------------------------------------------------- */

/* A signal for each thread. How many have left their calls? */
static unsigned shake(unsigned kinds)
{
    unsigned i, over = 0;
    for (i = 0; i < kinds; i++) {
        over += job_is_over(&sleepers[i]);
        pthread_kill(sleepers[i].thread, SIGUSR1);
    }
    sched_yield();
    return over;
}

/* No signal in a join: in there a thread's memory is freed, and ThreadSanitizer's runtime waits for itself for ever if a
   signal comes while it does that. */
static void end_sleepers(unsigned kinds, gpusync_result expected)
{
    sigset_t all, before;
    sigfillset(&all);
    for (unsigned i = 0; i < kinds; i++) {
        pthread_sigmask(SIG_SETMASK, &all, &before);
        gpusync_result result = job_end(&sleepers[i]);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        assert_result(result, expected);
    }
}

static void shake_all_kinds(stage *s)
{
    const gpusync_warmup_desc desc = {.fn = make, .count = 1};
    unsigned over;
    began = go_on = false;
    for (unsigned i = 0; i < 3; i++) commit_new(s->q[i]);
    assert_ok(gpusync_on_done(at(s->t[1], 0), stay_in_callback, NULL));
    await(&began);
    softmetal_set_dispatch_threads(1); /* which stays in the callback: nothing is made */
    assert_ok(gpusync_warmup_start(s->device, &desc, &warmup));
    uint64_t from = gpusync_now_ns();
    fall_asleep(s, WITH_LIMIT, MS(150));
    while ((over = shake(WITH_LIMIT)) < WITH_LIMIT) assert_true(over == 0 || gpusync_now_ns() - from >= MS(150));
    assert_true(gpusync_now_ns() - from < SECONDS(5));
    end_sleepers(WITH_LIMIT, GPUSYNC_TIMEOUT);
    fall_asleep(s, KINDS, GPUSYNC_FOREVER);
    await_sleepers(s, KINDS + 1);
    for (unsigned i = 0; i < 300; i++) assert_int_equal(shake(KINDS), 0);
    signal_value(s->t[0], 1);
    for (unsigned i = 0; i < 3; i++) finish_next(s->q[i]);
    PUT(&go_on, true);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    while (shake(KINDS) < KINDS) {}
    end_sleepers(KINDS, GPUSYNC_OK);
    assert_ok(gpusync_warmup_destroy(warmup));
    s->q[2] = NULL;
    s->t[1] = NULL;
}

static unsigned long caught;
static void do_nothing(int number)
{
    COUNT(&caught);
}

static void test_signals_end_no_wait_and_move_no_limit(void **state)
{
    static const int flags[] = {0, SA_RESTART};
    const struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    stage s;
    for (unsigned i = 0; i < LENGTH(flags); i++) {
        struct sigaction act = {.sa_handler = do_nothing, .sa_flags = flags[i]};
        PUT(&caught, 0);
        stage_open(&s,
                   &(stage_desc){.threads = true, .queues = 3, .timelines = 2, .queue.max_command_buffer_count = 1});
        assert_int_equal(sigaction(SIGUSR1, &act, NULL) | sigaction(SIGALRM, &act, NULL), 0);
        setitimer(ITIMER_REAL, &often, NULL);
        shake_all_kinds(&s);
        setitimer(ITIMER_REAL, &never, NULL);
        assert_true(GET(&caught) > 1000);
        stage_close(&s);
    }
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static void commit_and_finish(stage *s, unsigned count)
{
    while (count-- > 0) {
        if (count % 2) commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
        else commit_new(s->q[0]);
        finish_next(s->q[0]);
    }
}

static void count_gone(void *user)
{
    COUNT((unsigned *)user);
}

/* What is registered and has not run is all that grows: by a block each. */
static void test_callbacks_that_never_run_cost_their_own_memory_alone(void **state)
{
    enum { EACH = 100 };
    static note notes[2 * EACH][2];
    stage *s = stage_of(state);
    unsigned i, gone = 0;
    memset(notes, 0, sizeof notes);
    softmetal_set_dispatch_threads(0);
    commit_and_finish(s, EACH);
    long blocks = kit_now().blocks;
    long bytes = kit_now().bytes;
    for (i = 0; i < 2 * EACH; i++) {
        void *object = softmetal_new_witness(count_gone, &gone);
        gpusync_ticket ticket = commit_new(s->q[0]);
        on_done(ticket_at(s->q[0], ticket), &notes[i][0]);
        on_done(at(s->t[0], i + 1), &notes[i][1]);
        assert_ok(gpusync_release_after(s->q[0], ticket, object));
        metal_release(object);
        signal_value(s->t[0], i + 1);
        finish_next(s->q[0]);
        commit_and_finish(s, 10);
        assert_int_equal(kit_now().blocks, blocks + 3 * ((long)i + 1));
        assert_int_equal((kit_now().bytes - bytes) % ((long)i + 1), 0);
    }
    assert_int_equal(gone, 0);
    assert_ok(gpusync_queue_destroy(s->q[0]));
    assert_ok(gpusync_timeline_destroy(s->t[0]));
    s->q[0] = NULL;
    s->t[0] = NULL;
    assert_int_equal(gone, 2 * EACH);
    for (i = 0; i < 2 * EACH; i++) assert_true(notes[i][0].calls == 1 && notes[i][1].calls == 1);
    assert_true(kit_now().blocks < blocks);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
}

/* For children: a sanitizer has read its own by now. */
static void add_option(const char *name, const char *option)
{
    const char *old = getenv(name);
    char text[1024];
    snprintf(text, sizeof text, "%s:%s", old ? old : "", option);
    setenv(name, text, 1);
}

#define LEAVES(name, situation) {name, test_a_process_leaves_and_keeps_its_status, NULL, NULL, (void *)(situation)}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        ON_STAGE(test_forks_with_work_in_flight_do_no_harm, .real = true, .threads = true, .queues = 2,
                      .timelines = 1),
        LEAVES("test_a_process_leaves_with_work_in_flight", "flight"),
        LEAVES("test_a_process_leaves_while_threads_sleep_in_waits", "sleepers"),
        LEAVES("test_a_process_leaves_while_a_thread_commits_and_waits", "busy"),
        LEAVES("test_a_process_leaves_with_callbacks_due", "due"),
        LEAVES("test_a_process_leaves_while_a_callback_runs", "callback"),
        LEAVES("test_a_process_leaves_while_a_handler_runs", "handler"),
        LEAVES("test_a_process_leaves_in_its_log", "log"),
        LEAVES("test_a_process_leaves_and_work_ends_meanwhile", "ends"),
        LEAVES("test_a_process_leaves_and_abandoned_work_ends_meanwhile", "abandoned"),
        cmocka_unit_test(test_behind_a_stop_limits_hold_and_nothing_is_lost),
        cmocka_unit_test(test_signals_end_no_wait_and_move_no_limit),
        ON_STAGE(test_two_copies_share_a_metal_device_and_an_event, .real = true, .no_queue = true),
        ON_STAGE(test_the_code_is_unloaded_once_the_device_is_destroyed, .real = true),
        ON_STAGE(test_callbacks_that_never_run_cost_their_own_memory_alone, .timelines = 1),
        ON_STAGE(test_callbacks_that_never_run_cost_their_own_memory_alone, .timelines = 1,
                      .device.callback_mode = GPUSYNC_CALLBACKS_MANUAL),
    };
    program = arguments[0];
    if (count == 3) return child(arguments[1], arguments[2]);
    add_option("ASAN_OPTIONS", "detect_leaks=0"); /* children leave with all that they have */
    add_option("TSAN_OPTIONS", "atexit_sleep_ms=50");
    return cmocka_run_group_tests(tests, NULL, remove_copy);
}
#endif
