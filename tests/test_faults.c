/* test_faults.c - every creation by Metal and every allocation fails in turn, once and for good, in a scenario that uses
   every call: each answer is a documented one, nothing is lost, and everything is given back

   It also runs on queues of Metal 4. */
#define GPUSYNC_IMPLEMENTATION
#include "probe.h"
#include "stage.h"

/* -- the scenario ----------------------------------------------------------------------------------- */

#define EXTRA_QUEUES 18 /* so that gpusync_device_wait needs memory */
#define FEW 40          /* command buffers */
#define MANY 270        /* so that the ring grows, which takes memory */

typedef struct scenario {
    rig r;
    gpusync_queue *given, *extra[EXTRA_QUEUES];
    void *metal_queue; /* +1, behind `given` */
    long allocations;  /* asked for */
    int buffers;
} scenario;

static void *count_and_allocate(void *user, size_t size, size_t alignment)
{
    scenario *s = (scenario *)user;
    __atomic_fetch_add(&s->allocations, 1, __ATOMIC_SEQ_CST);
    return memory_allocate(&s->r.memory, size, alignment);
}

static void release_counted(void *user, void *memory, size_t size)
{
    memory_release(&((scenario *)user)->r.memory, memory, size);
}

static void one_of(gpusync_result got, const gpusync_result *expected, const char *call, int line)
{
    if (got == GPUSYNC_OK) return;
    for (; *expected != GPUSYNC_OK; expected++)
        if (got == *expected) return;
    print_error("%s: %d (%s) is not documented\n", call, got, gpusync_result_string(got));
    _fail(__FILE__, line);
}
#define ANSWERS(...) ((const gpusync_result[]){__VA_ARGS__, GPUSYNC_OK})
#define NO_MEMORY GPUSYNC_ERROR_OUT_OF_MEMORY
#define NIL GPUSYNC_ERROR_METAL_NIL
#define check(call, ...) one_of(call, ANSWERS(__VA_ARGS__), #call, __LINE__)

static bool set_up(scenario *s)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    int i;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    s->r.allocator.allocate = count_and_allocate;
    s->r.allocator.release = release_counted;
    s->r.allocator.user = s;
    device_desc.allocator = &s->r.allocator;
    check(gpusync_device_create(&device_desc, &s->r.device), GPUSYNC_ERROR_NO_DEVICE, NO_MEMORY);
    if (!s->r.device) return false;
    queue_desc.max_command_buffer_count = 1024;
    queue_desc.label = "made";
    queue_desc.metal4 = metal4_run();
    check(gpusync_queue_create(s->r.device, &queue_desc, &s->r.queue), NIL, NO_MEMORY);
    s->metal_queue = metal4_run() ? metal4_queue_new(gpusync_device_metal(s->r.device))
                                  : metal_queue_new(gpusync_device_metal(s->r.device), 64);
    if (s->metal_queue) {
        memset(&queue_desc, 0, sizeof queue_desc);
        queue_desc.metal_queue = s->metal_queue;
        check(gpusync_queue_create(s->r.device, &queue_desc, &s->given), NO_MEMORY);
    }
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.metal4 = metal4_run();
    for (i = 0; i < EXTRA_QUEUES; i++)
        check(gpusync_queue_create(s->r.device, &queue_desc, &s->extra[i]), NIL, NO_MEMORY);
    if (!s->r.queue) s->r.queue = s->given;
    if (s->r.queue == s->given) s->given = NULL;
    return s->r.queue != NULL;
}

/* A commit to a queue of Metal 4 makes options. */
static gpusync_result nil_options(void) { return metal4_run() ? NIL : NO_MEMORY; }

/* Commit, and when that is refused try again; else give the buffer back. Nothing may be lost on the way. */
static gpusync_ticket commit_or_discard(scenario *s, void *buffer)
{
    gpusync_ticket ticket = 99;
    gpusync_result result = either_commit(s->r.queue, buffer, &ticket);
    check(result, NO_MEMORY, nil_options());
    if (result != GPUSYNC_OK) {
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        check(either_commit(s->r.queue, buffer, &ticket), NO_MEMORY, nil_options());
    }
    if (ticket == GPUSYNC_NO_TICKET) assert_ok(either_discard(s->r.queue, buffer));
    return ticket;
}

static void commit_ours(scenario *s)
{
    static const char *const labels[] = {NULL, "labelled"};
    gpusync_command_buffer_desc desc;
    void *first = NULL, *buffer;
    int i;
    memset(&desc, 0, sizeof desc);
    for (i = 0; i < s->buffers; i++) {
        gpusync_ticket ticket;
        desc.label = labels[i % 2];
        desc.unretained_references = i % 3 == 0;
        if (first && softmetal_outstanding(gpusync_queue_metal(s->r.queue)) > 50 && s->metal_queue &&
            gpusync_queue_metal(s->r.queue) == s->metal_queue)
            break; /* the short queue had to do */
        check(either_buffer(s->r.queue, &desc, &buffer), NIL, NO_MEMORY);
        if (!buffer) continue;
        if (!first) softmetal_hang(buffer);
        if (!first) first = metal_retain(buffer);
        if (i == 20) softmetal_fail(buffer, NULL, 2, "on purpose");
        ticket = commit_or_discard(s, buffer);
        if (ticket == GPUSYNC_NO_TICKET && first == buffer) {
            metal_release(first);
            first = NULL;
        }
    }
    if (first) {
        gpusync_wait_options options;
        memset(&options, 0, sizeof options);
        options.mode = GPUSYNC_WAIT_HANDLER;
        check(gpusync_wait_ex(s->r.queue, 1, MS(1), &options), GPUSYNC_TIMEOUT, NO_MEMORY);
        assert_result(gpusync_poll(s->r.queue, 1), GPUSYNC_NOT_READY);
        softmetal_unhang(first);
        metal_release(first);
    }
}

static void commit_theirs(scenario *s)
{
    void *metal_queue = gpusync_queue_metal(s->r.queue), *buffer = metal_queue_command_buffer(metal_queue);
    gpusync_ticket ticket = 0;
    if (buffer) {
        gpusync_result result = either_commit(s->r.queue, buffer, NULL);
        check(result, NO_MEMORY);
        if (result != GPUSYNC_OK) metal_commit(buffer); /* still ours */
        metal_release(buffer);
    }
    buffer = metal_queue_command_buffer(metal_queue);
    if (buffer) {
        check(gpusync_track(s->r.queue, buffer, &ticket), NO_MEMORY);
        metal_commit(buffer);
        metal_release(buffer);
    }
    buffer = metal_queue_command_buffer(metal_queue);
    if (buffer) {
        ticket = 0;
        check(gpusync_track(s->r.queue, buffer, &ticket), NO_MEMORY);
        if (ticket) assert_ok(gpusync_untrack(s->r.queue, ticket));
        metal_release(buffer);
    }
    buffer = metal_queue_command_buffer(metal_queue);
    if (buffer) {
        softmetal_set_duration(buffer, MS(1));
        metal_commit(buffer);
        ticket = 0;
        check(gpusync_track_committed(s->r.queue, buffer, &ticket), NO_MEMORY);
        if (ticket) check(gpusync_wait(s->r.queue, ticket, GPUSYNC_FOREVER), NO_MEMORY);
        metal_release(buffer);
    }
    check(either_buffer(s->r.queue, NULL, &buffer), NIL, NO_MEMORY);
    if (buffer) assert_ok(either_discard(s->r.queue, buffer));
}

static void ask_and_wait(scenario *s)
{
    gpusync_error error;
    gpusync_stats stats, device_stats;
    gpusync_ticket_info info;
    uint64_t cursor = 0, failures = 0;
    char text[256];
    check(gpusync_device_wait(s->r.device, GPUSYNC_FOREVER), NO_MEMORY, GPUSYNC_ERROR_EXECUTION);
    check(gpusync_queue_wait(s->r.queue, GPUSYNC_FOREVER), NO_MEMORY, GPUSYNC_ERROR_EXECUTION);
    while (gpusync_poll(s->r.queue, GPUSYNC_EVERYTHING) == GPUSYNC_NOT_READY) sched_yield();
    while (gpusync_next_error(s->r.queue, &cursor, &error) == GPUSYNC_OK)
        if (error.result == GPUSYNC_ERROR_EXECUTION) failures++;
    assert_ok(gpusync_get_stats(s->r.queue, &stats));
    assert_ok(gpusync_device_get_stats(s->r.device, &device_stats));
    assert_in_range(stats.failures, failures, failures + stats.failures_dropped); /* the log may have got no memory */
    assert_int_equal(stats.commits, stats.completions);
    assert_int_equal(stats.commits, device_stats.commits);
    if (stats.commits) check(gpusync_get_info(s->r.queue, 1, &info), GPUSYNC_ERROR_RESULT_UNKNOWN);
    assert_true(gpusync_report(s->r.device, text, sizeof text) > 0);
    assert_false(gpusync_device_is_lost(s->r.device));
}

static void tear_down(scenario *s)
{
    int i;
    for (i = 0; i < EXTRA_QUEUES; i++) assert_ok(gpusync_queue_destroy(s->extra[i]));
    assert_ok(gpusync_queue_destroy_now(s->given));
    assert_ok(gpusync_queue_destroy(s->r.queue));
    metal_release(s->metal_queue);
    assert_ok(gpusync_device_destroy(s->r.device));
}

enum { METAL, ALLOCATOR, C_LIBRARY, SOURCES };

/* One run with fault number n; false when the fault was never met. */
static bool run(int source, long n, bool for_good)
{
    static scenario s;
    long objects;
    bool met;
    softmetal_reset();
    memset(&s, 0, sizeof s);
    objects = softmetal_live(NULL);
    s.buffers = source == METAL ? FEW : MANY;
    probe_forget_spare_memory(NULL); /* what earlier tests left would hide that more is needed */
    if (source == METAL) softmetal_fail_creation((unsigned)n, for_good);
    if (source == ALLOCATOR) s.r.memory.fail_at = n;
    s.r.memory.fail_after = for_good;
    probe_memory.fail_at = source == C_LIBRARY ? n : 0;
    probe_memory.fail_after = for_good;
    probe_memory.taken = 0;
    if (set_up(&s)) {
        commit_ours(&s);
        if (!metal4_run()) commit_theirs(&s);
        ask_and_wait(&s);
    }
    tear_down(&s);
    if (source == METAL) met = n <= (long)softmetal_creations();
    else met = n <= (source == ALLOCATOR ? s.allocations : probe_memory.taken);
    probe_memory.fail_at = 0;
    softmetal_fail_creation(0, false);
    assert_int_equal(s.r.memory.live, 0);
    assert_true(softmetal_settle(SECONDS(20)));
    drop_recordings();
    assert_int_equal(softmetal_live(NULL), objects);
    return met;
}

static void run_all(int source, bool for_good)
{
    long n = 1;
    while (run(source, n, for_good)) n++;
    assert_true(n > 1);
}

static void test_a_creation_that_fails_once_loses_nothing(void **state)
{
    (void)state;
    run_all(METAL, false);
}

static void test_creations_that_fail_from_some_point_on_lose_nothing(void **state)
{
    (void)state;
    run_all(METAL, true);
}

static void test_an_allocation_that_fails_once_loses_nothing(void **state)
{
    (void)state;
    run_all(ALLOCATOR, false);
}

static void test_allocations_that_fail_from_some_point_on_lose_nothing(void **state)
{
    (void)state;
    run_all(ALLOCATOR, true);
}

static void test_a_slab_that_cannot_be_had_once_loses_nothing(void **state)
{
    (void)state;
    run_all(C_LIBRARY, false);
}

static void test_slabs_that_cannot_be_had_from_some_point_on_lose_nothing(void **state)
{
    (void)state;
    run_all(C_LIBRARY, true);
}

/* -- single faults ---------------------------------------------------------------------------------- */

static void rig_open_wide(rig *r, softmetal_clock clock)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = 1024;
    rig_open_with(r, clock, device_desc, queue_desc);
}

/* The places that the queue counts as taken, of the report's "buffers N of M". */
static unsigned places_taken(gpusync_device *device)
{
    unsigned taken = 0;
    size_t size = gpusync_report(device, NULL, 0) + 1000;
    char *text = (char *)malloc(size), *at;
    assert_non_null(text);
    gpusync_report(device, text, size);
    at = strstr(text, "buffers ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "buffers %u of ", &taken), 1);
    free(text);
    return taken;
}

static void test_a_buffer_refused_for_want_of_memory_is_still_the_callers(void **state)
{
    unsigned long owners;
    unsigned taken;
    gpusync_stats before, after;
    gpusync_ticket ticket = 99;
    void *ours, *own, *other;
    int i;
    rig r;
    (void)state;
    rig_open_wide(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 256; i++) commit_empty(&r, NULL);
    ours = open_buffer(&r);
    other = open_buffer(&r);
    own = metal4_run() ? metal_retain(open_buffer(&r)) : metal_queue_command_buffer(r.metal_queue);
    owners = softmetal_retain_count(own);
    before = stats_of(r.queue);
    taken = places_taken(r.device);
    r.memory.fail_at = 1;
    r.memory.fail_after = true;
    assert_result(either_commit(r.queue, ours, &ticket), NO_MEMORY);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_result(either_commit(r.queue, own, &ticket), NO_MEMORY);
    if (!metal4_run()) {
        assert_result(gpusync_track(r.queue, own, &ticket), NO_MEMORY);
        assert_result(gpusync_track(r.queue, other, &ticket), NO_MEMORY);
    }
    after = stats_of(r.queue);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(places_taken(r.device), taken);
    assert_int_equal(softmetal_retain_count(own), owners);
    assert_int_equal(softmetal_retain_count(ours), 1);
    assert_int_equal(status_of(ours), 0);
    assert_int_equal(status_of(own), 0);
    assert_int_equal(softmetal_handler_count(own), 0);
    r.memory.fail_at = 0;
    assert_ok(either_discard(r.queue, other));
    assert_ok(either_commit(r.queue, ours, &ticket));
    assert_int_equal(ticket, 257);
    assert_ok(either_commit(r.queue, own, &ticket));
    assert_int_equal(ticket, 258);
    softmetal_finish_queue(r.metal_queue);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    assert_int_equal(softmetal_retain_count(own), owners);
    metal_release(own);
    rig_close(&r);
}

static void test_without_memory_to_sleep_a_wait_says_so_and_can_be_repeated(void **state)
{
    gpusync_wait_options options;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open_wide(&r, SOFTMETAL_MANUAL);
    memset(&options, 0, sizeof options);
    options.mode = GPUSYNC_WAIT_HANDLER;
    ticket = commit_empty(&r, &buffer);
    r.memory.fail_at = 1;
    assert_result(gpusync_wait_ex(r.queue, ticket, GPUSYNC_FOREVER, &options), NO_MEMORY);
    assert_int_equal(stats_of(r.queue).waits_unmet, 1);
    assert_result(gpusync_wait_ex(r.queue, ticket, MS(1), &options), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_ok(gpusync_wait_ex(r.queue, ticket, GPUSYNC_FOREVER, &options));
    rig_close(&r);
}

static void test_destroy_waits_for_what_is_in_flight_also_without_memory_to_sleep(void **state)
{
    rig r;
    (void)state;
    rig_open_wide(&r, SOFTMETAL_REAL);
    commit_lasting(&r, MS(10));
    r.memory.fail_at = 1;
    r.memory.fail_after = true;
    assert_ok(gpusync_queue_destroy(r.queue));
    r.queue = NULL;
    assert_true(softmetal_settle(SECONDS(10)));
    rig_close(&r);
}

static void test_without_a_slot_nothing_is_made_or_taken(void **state)
{
    void *buffer = &state, *own, *committed = NULL;
    unsigned long owners;
    gpusync_ticket ticket = 99;
    int i;
    rig r;
    (void)state;
    rig_open_wide(&r, SOFTMETAL_MANUAL);
    if (metal4_run()) {
        own = metal_retain(open_buffer(&r));
    } else {
        own = metal_queue_command_buffer(r.metal_queue);
        committed = metal_queue_command_buffer(r.metal_queue);
        metal_commit(committed);
    }
    owners = softmetal_retain_count(own);
    probe_forget_spare_memory(NULL);
    probe_memory.fail_at = 1;
    probe_memory.fail_after = true;
    for (i = 0; i < 3; i++) {
        assert_result(either_commit(r.queue, own, &ticket), NO_MEMORY);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        if (metal4_run()) continue;
        assert_result(gpusync_command_buffer(r.queue, NULL, &buffer), NO_MEMORY);
        assert_null(buffer);
        assert_result(gpusync_track(r.queue, own, &ticket), NO_MEMORY);
        assert_result(gpusync_track_committed(r.queue, committed, &ticket), NO_MEMORY);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    }
    assert_int_equal(softmetal_live("command_buffer"), metal4_run() ? 0 : 2);
    assert_int_equal(softmetal_retain_count(own), owners);
    if (committed) assert_int_equal(softmetal_retain_count(committed), 2);
    assert_true(gpusync_is_idle(r.queue));
    probe_memory.fail_at = 0;
    assert_ok(either_commit(r.queue, own, &ticket));
    softmetal_finish_queue(r.metal_queue);
    metal_release(own);
    metal_release(committed);
    rig_close(&r);
}

static void test_a_nil_command_buffer_leaves_the_room_it_was_to_have(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    void *buffer = &state;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers are the program's");
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = 1;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    softmetal_fail_creation(1, false);
    assert_result(gpusync_command_buffer(r.queue, NULL, &buffer), NIL);
    assert_null(buffer);
    assert_ok(gpusync_command_buffer(r.queue, NULL, &buffer));
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    rig_close(&r);
}

/* What gpusync makes to be told of the end of work that others have committed, if it makes anything. */
static void test_a_nil_command_buffer_of_gpusyncs_own_gives_its_place_back(void **state)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    gpusync_ticket ticket;
    void *own;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open_wide(&r, SOFTMETAL_MANUAL);
    own = metal_queue_command_buffer(r.metal_queue);
    metal_commit(own);
    softmetal_fail_creation(1, false);
    assert_ok(gpusync_track_committed(r.queue, own, &ticket));
    softmetal_fail_creation(0, false);
    softmetal_finish(own);
    assert_ok(gpusync_wait(r.queue, ticket, SECONDS(20)));
    while (places_taken(r.device) > 0) {
        assert_true(gpusync_now_ns() < limit);
        sched_yield();
    }
    metal_release(own);
    rig_close(&r);
}

static void test_a_nil_metal_queue_makes_no_queue(void **state)
{
    gpusync_queue *queue = (gpusync_queue *)(void *)&state;
    gpusync_queue_desc desc;
    long memory;
    rig r;
    (void)state;
    rig_open_wide(&r, SOFTMETAL_MANUAL);
    memory = r.memory.live;
    memset(&desc, 0, sizeof desc);
    desc.metal4 = metal4_run();
    softmetal_fail_creation(1, false);
    assert_result(gpusync_queue_create(r.device, &desc, &queue), NIL);
    assert_null(queue);
    assert_int_equal(r.memory.live, memory);
    rig_close(&r);
}

static void test_a_device_is_found_in_the_list_when_there_is_no_default_one(void **state)
{
    gpusync_device *device = NULL;
    long devices;
    (void)state;
    softmetal_reset();
    devices = softmetal_live("device");
    softmetal_fail_creation(1, false);
    assert_ok(gpusync_device_create(NULL, &device));
    assert_non_null(gpusync_device_metal(device));
    assert_ok(gpusync_device_destroy(device));
    softmetal_fail_creation(1, true);
    assert_result(gpusync_device_create(NULL, &device), GPUSYNC_ERROR_NO_DEVICE);
    assert_null(device);
    softmetal_fail_creation(0, false);
    assert_int_equal(softmetal_live("device"), devices);
}

/* A device without an allocator has its memory from the C library. */
static void test_without_an_allocator_the_c_library_may_have_no_memory_either(void **state)
{
    gpusync_timeline *timeline = NULL;
    gpusync_device *device;
    (void)state;
    softmetal_reset();
    assert_ok(gpusync_device_create(NULL, &device));
    probe_memory.fail_after = false;
    probe_memory.fail_at = 1;
    assert_result(gpusync_timeline_create(device, NULL, &timeline), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_null(timeline);
    assert_int_equal(probe_memory.fail_at, 0);
    assert_ok(gpusync_timeline_create(device, NULL, &timeline));
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_device_destroy(device));
}

/* What a device shares with dispatch queues outlives it, and the next device gets it. Where there is none to be had no
   device is made, and nothing stays of it. */
static void test_what_outlives_a_device_may_not_be_had(void **state)
{
    gpusync_device_desc desc;
    gpusync_allocator allocator;
    gpusync_device *devices[64];
    memory_log memory;
    gpusync_result result = GPUSYNC_OK;
    long alive, live;
    size_t count = 0;
    (void)state;
    softmetal_reset();
    memset(&desc, 0, sizeof desc);
    memset(&memory, 0, sizeof memory);
    allocator.allocate = memory_allocate;
    allocator.release = memory_release;
    allocator.user = &memory;
    desc.allocator = &allocator;
    while (true) {
        alive = memory.live;
        live = softmetal_live(NULL);
        probe_memory.fail_after = false;
        probe_memory.fail_at = 1; /* of the C library: the allocator gives */
        result = gpusync_device_create(&desc, &devices[count]);
        if (result != GPUSYNC_OK) break;
        assert_true(++count < LENGTH(devices));
    }
    assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_int_equal(probe_memory.fail_at, 0);
    assert_null(devices[count]);
    assert_int_equal(memory.live, alive);
    assert_int_equal(softmetal_live(NULL), live);
    assert_ok(gpusync_device_create(&desc, &devices[count]));
    count++;
    while (count--) assert_ok(gpusync_device_destroy(devices[count]));
    assert_int_equal(memory.live, 0);
}

/* An argument is a pattern of the names of the tests to run: test_a_*. */
/* The empty command buffer of a warm-up has no slot: that is the warm-up's result, not a reason to wait on. */
static void test_a_blocking_warm_up_without_memory_for_its_command_buffer_returns(void **state)
{
    gpusync_warmup_desc desc;
    gpusync_warmup *warmup;
    rig r;
    (void)state;
    NOT_ON_METAL4("warm-ups have no queue");
    rig_open(&r, SOFTMETAL_REAL);
    memset(&desc, 0, sizeof desc);
    desc.queue = r.queue;
    desc.blocking = true;
    probe_forget_spare_memory(r.queue);
    probe_memory.fail_after = 0;
    probe_memory.fail_at = 1;
    assert_ok(gpusync_warmup_start(r.device, &desc, &warmup));
    assert_int_equal(probe_memory.fail_at, 0);
    assert_result(gpusync_warmup_wait(warmup, 0), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_ok(gpusync_warmup_destroy(warmup));
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_creation_that_fails_once_loses_nothing),
        cmocka_unit_test(test_creations_that_fail_from_some_point_on_lose_nothing),
        cmocka_unit_test(test_an_allocation_that_fails_once_loses_nothing),
        cmocka_unit_test(test_allocations_that_fail_from_some_point_on_lose_nothing),
        cmocka_unit_test(test_a_slab_that_cannot_be_had_once_loses_nothing),
        cmocka_unit_test(test_slabs_that_cannot_be_had_from_some_point_on_lose_nothing),
        cmocka_unit_test(test_a_buffer_refused_for_want_of_memory_is_still_the_callers),
        cmocka_unit_test(test_without_memory_to_sleep_a_wait_says_so_and_can_be_repeated),
        cmocka_unit_test(test_destroy_waits_for_what_is_in_flight_also_without_memory_to_sleep),
        cmocka_unit_test(test_without_a_slot_nothing_is_made_or_taken),
        cmocka_unit_test(test_a_nil_command_buffer_leaves_the_room_it_was_to_have),
        cmocka_unit_test(test_a_nil_command_buffer_of_gpusyncs_own_gives_its_place_back),
        cmocka_unit_test(test_a_nil_metal_queue_makes_no_queue),
        cmocka_unit_test(test_a_device_is_found_in_the_list_when_there_is_no_default_one),
        cmocka_unit_test(test_without_an_allocator_the_c_library_may_have_no_memory_either),
        cmocka_unit_test(test_what_outlives_a_device_may_not_be_had),
        cmocka_unit_test(test_a_blocking_warm_up_without_memory_for_its_command_buffer_returns),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
