/* test_commit.c - making, committing and tracking command buffers: their owners, the order of tickets, what a commit
   costs, work committed behind gpusync's back, room in the queue, and every mistake that is refused

   It also runs on queues of Metal 4. */
#include "probe.h"
#include "clock.h"
#include "stage.h"

static void rig_open_limited(rig *r, softmetal_clock clock, uint32_t limit, const gpusync_hooks *hooks)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = hooks;
    queue_desc.max_command_buffer_count = limit;
    queue_desc.spin = &no_spin;
    rig_open_with(r, clock, device_desc, queue_desc);
}

/* A command buffer that the program made itself; +1. Of Metal 4: as all are. */
static void *own_buffer(rig *r)
{
    void *buffer = metal4_run() ? metal_retain(buffer_of(r->queue)) : metal_queue_command_buffer(r->metal_queue);
    assert_non_null(buffer);
    return buffer;
}

/* A Metal queue that the program made itself; +1. */
static void *own_queue(void *device)
{
    return metal4_run() ? metal4_queue_new(device) : metal_queue_new(device, 64);
}

static void *own_committed_buffer(rig *r)
{
    void *buffer = own_buffer(r);
    metal_commit(buffer);
    return buffer;
}

/* One of the program's own, tracked, and committed by the program; +1. */
static void *tracked_and_committed(rig *r, gpusync_ticket *ticket)
{
    void *buffer;
    *ticket = track_a_buffer(r, &buffer);
    metal_commit(buffer);
    return buffer;
}

typedef struct snapshot {
    gpusync_stats stats;
    long objects, memory;
    unsigned rooms;
    bool idle;
} snapshot;

static snapshot snap(rig *r)
{
    snapshot s;
    memset(&s, 0, sizeof s);
    s.stats = stats_of(r->queue);
    s.rooms = rooms_taken(r->queue);
    s.objects = softmetal_live(NULL);
    s.memory = r->memory.live;
    s.idle = gpusync_is_idle(r->queue);
    return s;
}

/* The call returns this, and changes nothing. */
#define refused(r, call, expected)                                                                   \
    do {                                                                                             \
        snapshot before_ = snap(r), after_;                                                          \
        assert_result(call, expected);                                                               \
        after_ = snap(r);                                                                            \
        assert_memory_equal(&before_, &after_, sizeof before_);                                      \
    } while (0)

/* -- ownership -------------------------------------------------------------------------------------- */

static void test_an_open_buffer_is_kept_alive_until_it_is_discarded(void **state)
{
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers are the program's");
    rig_open(&r, SOFTMETAL_MANUAL);
    buffer = open_buffer(&r);
    assert_int_equal(softmetal_retain_count(buffer), 1);
    assert_int_equal(softmetal_live("command_buffer"), 1);
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    assert_int_equal(softmetal_live("command_buffer"), 0);
    assert_int_equal(softmetal_outstanding(r.metal_queue), 0);
    assert_int_equal(stats_of(r.queue).commits, 0);
    rig_close(&r);
}

static void test_a_committed_buffer_is_kept_until_its_handler_ran(void **state)
{
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = commit_empty(&r, &buffer);
    assert_int_equal(softmetal_retain_count(buffer), 2); /* ours and Metal's, or the stage's */
    softmetal_complete(buffer);
    if (!metal4_run()) assert_ok(gpusync_poll(r.queue, ticket));
    assert_int_equal(softmetal_retain_count(buffer), 2);
    softmetal_run_handler(buffer, 0);
    assert_ok(gpusync_poll(r.queue, ticket));
    assert_int_equal(softmetal_retain_count(buffer), 1);
    softmetal_release_block(buffer, 0);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    rig_close(&r);
}

static void test_a_buffer_made_elsewhere_is_retained_and_given_back(void **state)
{
    unsigned long owners;
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    buffer = own_buffer(&r);
    owners = softmetal_retain_count(buffer);
    assert_ok(either_commit(r.queue, buffer, &ticket));
    assert_int_equal(ticket, 1);
    assert_int_equal(softmetal_retain_count(buffer), owners + (metal4_run() ? 1 : 2)); /* Metal 4 retains nothing */
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(r.queue, ticket, 0));
    assert_int_equal(softmetal_retain_count(buffer), owners);
    metal_release(buffer);
    rig_close(&r);
}

static void test_what_the_program_releases_after_commit_stays_for_the_handler(void **state)
{
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("the stage keeps those");
    rig_open(&r, SOFTMETAL_REAL);
    buffer = own_buffer(&r);
    assert_ok(gpusync_commit(r.queue, buffer, &ticket));
    metal_release(buffer);
    assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    rig_close(&r);
}

static void test_device_and_queue_are_retained_and_given_back(void **state)
{
    void *device, *queue;
    unsigned long devices;
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    rig r;
    (void)state;
    softmetal_reset();
    device = metal_device_new();
    queue = own_queue(device);
    devices = softmetal_retain_count(device);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.metal_device = device;
    queue_desc.metal_queue = queue;
    rig_open_on(&r, SOFTMETAL_REAL, QUEUE_OF_THE_PROGRAM, device_desc, queue_desc);
    assert_ptr_equal(r.metal_device, device);
    assert_ptr_equal(r.metal_queue, queue);
    assert_int_equal(softmetal_retain_count(device), devices + 1);
    assert_int_equal(softmetal_retain_count(queue), 2);
    assert_ok(gpusync_queue_destroy(r.queue));
    assert_int_equal(softmetal_retain_count(queue), 1);
    r.queue = NULL;
    metal_release(queue);
    rig_close(&r);
    assert_int_equal(softmetal_retain_count(device), devices - 1);
    metal_release(device);
}

/* A validation layer may hand out an object of its own for the device: the GPU behind it counts. */
static void test_a_queue_of_the_same_gpu_is_taken_whatever_object_its_device_is(void **state)
{
    gpusync_queue_desc desc;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *twin, *buffer;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&desc, 0, sizeof desc);
    twin = softmetal_new_twin(r.metal_device);
    desc.metal_queue = own_queue(twin);
    queue = queue_of_kind(QUEUE_OF_THE_PROGRAM, r.device, &desc);
    assert_ptr_equal(gpusync_queue_metal(queue), desc.metal_queue);
    assert_ok(either_buffer(queue, NULL, &buffer));
    assert_ok(either_commit(queue, buffer, &ticket));
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(queue, ticket, 0));
    assert_ok(gpusync_queue_destroy(queue));
    metal_release(desc.metal_queue);
    metal_release(twin);
    rig_close(&r);
}

void *class_getInstanceMethod(void *cls, void *selector);
void (*method_setImplementation(void *method, void (*implementation)(void)))(void);
void *object_getClass(void *object);
static void *no_device(void *self, void *selector)
{
    (void)self, (void)selector;
    return NULL;
}

/* A layer that hands out none: nobody can tell whose queue it is. */
static void test_a_queue_that_has_no_device_is_refused(void **state)
{
    gpusync_queue_desc desc;
    gpusync_queue *queue;
    gpusync_result result;
    void (*own_device)(void);
    void *method;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&desc, 0, sizeof desc);
    desc.metal_queue = own_queue(r.metal_device);
    method = class_getInstanceMethod(object_getClass(desc.metal_queue), metal__sel("device"));
    assert_non_null(method);
    own_device = method_setImplementation(method, (void (*)(void))no_device);
    result = gpusync_queue_create(r.device, &desc, &queue);
    (void)method_setImplementation(method, own_device);
    assert_result(result, GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(queue);
    metal_release(desc.metal_queue);
    rig_close(&r);
}

static void test_labels_reach_metal_and_references_stay_unretained_when_asked(void **state)
{
    gpusync_command_buffer_desc desc;
    char text[64];
    void *buffer, *pool;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers are the program's");
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&desc, 0, sizeof desc);
    desc.label = "gr\xC3\xBC\xC3\x9F";
    assert_ok(gpusync_command_buffer(r.queue, &desc, &buffer));
    pool = metal_pool_push();
    metal_string_copy(metal_get(buffer, "label"), text, sizeof text);
    metal_pool_pop(pool);
    assert_string_equal(text, desc.label);
    assert_int_equal(METAL__AS0(signed char)(buffer, metal__sel("retainedReferences")), 1);
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    desc.unretained_references = true;
    assert_ok(gpusync_command_buffer(r.queue, &desc, &buffer));
    assert_int_equal(METAL__AS0(signed char)(buffer, metal__sel("retainedReferences")), 0);
    assert_ok(gpusync_commit(r.queue, buffer, NULL));
    softmetal_finish(buffer);
    assert_ok(gpusync_command_buffer(r.queue, NULL, &buffer));
    assert_int_equal(METAL__AS0(signed char)(buffer, metal__sel("retainedReferences")), 1);
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    rig_close(&r);
}

/* -- order and cost --------------------------------------------------------------------------------- */

static void test_tickets_count_from_one_in_the_order_of_commit_not_of_creation(void **state)
{
    void *buffers[3];
    gpusync_ticket ticket;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 3; i++) buffers[i] = open_buffer(&r);
    for (i = 0; i < 3; i++) {
        assert_ok(either_commit(r.queue, buffers[2 - i], &ticket));
        assert_int_equal(ticket, i + 1);
    }
    softmetal_finish_queue(r.metal_queue);
    rig_close(&r);
}

#define COMMITTERS 8
#define COMMITS_EACH 60

typedef struct committer {
    gpusync_queue *queue;
    gpusync_ticket tickets[COMMITS_EACH];
    bool ok;
} committer;

static void *committer_body(void *argument)
{
    committer *c = (committer *)argument;
    int i;
    c->ok = true;
    for (i = 0; i < COMMITS_EACH; i++) {
        void *buffer = NULL;
        c->ok = c->ok && either_buffer(c->queue, NULL, &buffer) == GPUSYNC_OK;
        c->ok = c->ok && either_commit(c->queue, buffer, &c->tickets[i]) == GPUSYNC_OK;
        c->ok = c->ok && (i == 0 || c->tickets[i] > c->tickets[i - 1]);
    }
    return NULL;
}

static const char *handler_selector(void) { return metal4_run() ? "addFeedbackHandler:" : "addCompletedHandler:"; }

/* Gives other threads every chance to come between a ticket and its commit. */
static void dawdle(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    (void)phase;
    (void)object;
    if (strncmp(selector, "commit", 6) == 0 || strcmp(selector, handler_selector()) == 0) sched_yield();
}

static void test_ticket_order_is_queue_order_with_many_threads_committing(void **state)
{
    static committer committers[COMMITTERS];
    pthread_t threads[COMMITTERS];
    gpusync_ticket_info info;
    gpusync_ticket ticket, last;
    double previous = 0;
    void *first;
    int i;
    rig r;
    (void)state;
    rig_open_limited(&r, SOFTMETAL_REAL, 1024, NULL);
    first = open_buffer(&r);
    softmetal_hang(first);
    metal_retain(first);
    assert_ok(either_commit(r.queue, first, NULL));
    softmetal_set_message_hook(dawdle, NULL);
    for (i = 0; i < COMMITTERS; i++) {
        committers[i].queue = r.queue;
        threads[i] = start(committer_body, &committers[i]);
    }
    for (i = 0; i < COMMITTERS; i++) {
        join(threads[i]);
        assert_true(committers[i].ok);
    }
    softmetal_set_message_hook(NULL, NULL);
    softmetal_unhang(first);
    metal_release(first);
    assert_ok(gpusync_queue_wait(r.queue, GPUSYNC_FOREVER));
    assert_true(softmetal_settle(SECONDS(10))); /* the handlers bring the times */
    last = 1 + COMMITTERS * COMMITS_EACH;
    assert_int_equal(stats_of(r.queue).commits, last);
    for (ticket = 1; ticket <= last; ticket++) {
        assert_ok(gpusync_get_info(r.queue, ticket, &info));
        assert_true(info.gpu_start_s >= previous);
        previous = info.gpu_start_s;
    }
    rig_close(&r);
}

/* The handler may come between two looks at the ticket: what info says is of one of them. (Seen in 1 of 100 rounds.) */
static void test_info_that_is_ok_never_has_a_result_that_is_not_ready(void **state)
{
    gpusync_ticket_info info;
    gpusync_result result;
    gpusync_ticket ticket;
    void *buffer;
    int round;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    for (round = 0; round < 2000; round++) {
        assert_ok(either_buffer(r.queue, NULL, &buffer));
        assert_ok(either_commit(r.queue, buffer, &ticket));
        do result = gpusync_get_info(r.queue, ticket, &info);
        while (result == GPUSYNC_NOT_READY);
        assert_ok(result);
        assert_ok(info.result);
    }
    rig_close(&r);
}

/* While the first buffer is between its ticket and its commit, another thread commits the second. */
typedef struct overtaking {
    rig *r;
    void *second;
    gpusync_ticket second_ticket;
    gpusync_result result;
    bool begun, returned;
    pthread_t thread;
    void *order[2]; /* as Metal saw the commits */
    int commits;
} overtaking;

static void *overtaker_body(void *argument)
{
    overtaking *o = (overtaking *)argument;
    o->result = either_commit(o->r->queue, o->second, &o->second_ticket);
    __atomic_store_n(&o->returned, true, __ATOMIC_SEQ_CST);
    return NULL;
}

static void let_overtake(void *user, softmetal_phase phase, void *object, const char *selector)
{
    overtaking *o = (overtaking *)user;
    if (strcmp(selector, "commit") == 0 && phase == SOFTMETAL_AFTER)
        o->order[__atomic_fetch_add(&o->commits, 1, __ATOMIC_SEQ_CST)] = object;
    if (strcmp(selector, handler_selector()) != 0 || phase != SOFTMETAL_BEFORE) return;
    if (object == o->second || o->begun) return;
    o->begun = true;
    o->thread = start(overtaker_body, o);
    {   /* it must not come through; were it allowed to, this is plenty of time */
        uint64_t limit = gpusync_now_ns() + MS(50);
        while (!__atomic_load_n(&o->returned, __ATOMIC_SEQ_CST) && gpusync_now_ns() < limit) sched_yield();
    }
}

static void test_nothing_comes_between_a_ticket_and_its_commit(void **state)
{
    overtaking o;
    gpusync_ticket ticket;
    void *first;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&o, 0, sizeof o);
    o.r = &r;
    first = open_buffer(&r);
    o.second = open_buffer(&r);
    softmetal_set_message_hook(let_overtake, &o);
    assert_ok(either_commit(r.queue, first, &ticket));
    join(o.thread);
    softmetal_set_message_hook(NULL, NULL);
    assert_ok(o.result);
    assert_int_equal(ticket, 1);
    assert_int_equal(o.second_ticket, 2);
    if (metal4_run()) { /* where it is the queue that commits */
        assert_ptr_equal(softmetal_first_in_line(r.metal_queue), softmetal_run_of(first));
    } else {
        assert_ptr_equal(o.order[0], first);
        assert_ptr_equal(o.order[1], o.second);
    }
    softmetal_finish_queue(r.metal_queue);
    rig_close(&r);
}

static void test_a_commit_sends_three_messages_and_four_for_a_buffer_made_elsewhere(void **state)
{
    uint64_t before;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("other messages");
    rig_open(&r, SOFTMETAL_MANUAL);
    buffer = open_buffer(&r);
    before = softmetal_thread_messages();
    assert_ok(gpusync_commit(r.queue, buffer, NULL));
    assert_int_equal(softmetal_thread_messages() - before, 3);
    assert_int_equal(softmetal_message_count("status"), 1);
    assert_int_equal(softmetal_message_count("addCompletedHandler:"), 1);
    assert_int_equal(softmetal_message_count("commit"), 1);
    assert_int_equal(softmetal_message_count("commandQueue"), 0);
    buffer = own_buffer(&r);
    before = softmetal_thread_messages();
    assert_ok(gpusync_commit(r.queue, buffer, NULL));
    assert_int_equal(softmetal_thread_messages() - before, 4);
    assert_int_equal(softmetal_message_count("commandQueue"), 1);
    assert_int_equal(softmetal_message_count("status"), 2);
    softmetal_finish_queue(r.metal_queue);
    metal_release(buffer);
    rig_close(&r);
}

/* What a queue had in hand is there for the next. */
static void test_queues_that_come_and_go_leave_their_slots(void **state)
{
    unsigned i;
    long taken = 0;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    probe_forget_spare_memory(NULL); /* what earlier tests left would do for all of them */
    for (i = 0; i < 300; i++) {
        gpusync_queue *queue;
        void *buffer;
        unsigned k;
        queue = queue_new(r.device);
        for (k = 0; k < 1 + (i + 12) % 13; k++) { /* the most at first */
            assert_ok(either_buffer(queue, NULL, &buffer));
            assert_ok(either_commit(queue, buffer, NULL));
        }
        softmetal_finish_queue(gpusync_queue_metal(queue));
        assert_ok(gpusync_queue_destroy(queue));
        if (i == 0) taken = probe_memory.taken;
    }
    assert_int_equal(probe_memory.taken, taken);
    rig_close(&r);
}

#define LONG_RUN 100000
static void test_a_hundred_thousand_commits_allocate_nothing_after_the_first_thousand(void **state)
{
    long calls = 0, taken = 0, i;
    gpusync_ticket ticket = 0;
    rig r;
    (void)state;
    rig_open_limited(&r, SOFTMETAL_REAL, 64, NULL);
    for (i = 0; i < LONG_RUN; i++) {
        if (i == 1000) {
            calls = r.memory.calls;
            taken = probe_memory.taken;
        }
        ticket = commit_empty(&r, NULL);
        if (i % 50 == 0) assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    }
    assert_ok(gpusync_queue_wait(r.queue, GPUSYNC_FOREVER));
    assert_int_equal(r.memory.calls, calls);
    assert_int_equal(probe_memory.taken, taken);
    assert_int_equal(ticket, LONG_RUN);
    rig_close(&r);
}

/* -- track ------------------------------------------------------------------------------------------ */

static void test_a_tracked_buffer_counts_as_committed_until_its_owner_committed_it_and_it_ended(void **state)
{
    void *tracked, *after;
    gpusync_ticket ticket, next;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    tracked = own_buffer(&r);
    assert_ok(gpusync_track(r.queue, tracked, &ticket));
    assert_int_equal(ticket, 1);
    assert_false(gpusync_is_idle(r.queue));
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_NOT_READY);
    assert_result(gpusync_queue_wait(r.queue, MS(1)), GPUSYNC_TIMEOUT);
    next = commit_empty(&r, &after);
    assert_int_equal(next, 2);
    softmetal_finish(after); /* may end first: the tracked one is behind it in the queue by now */
    assert_ok(gpusync_wait(r.queue, next, 0));
    assert_false(gpusync_is_done(r.queue, next));
    metal_commit(tracked);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_NOT_READY);
    softmetal_finish(tracked);
    assert_true(gpusync_is_idle(r.queue));
    assert_ok(gpusync_wait(r.queue, ticket, 0));
    assert_int_equal(softmetal_retain_count(tracked), 1);
    metal_release(tracked);
    rig_close(&r);
}

/* How a wait may sleep: after a spin, at once, or inside Metal. */
static const gpusync_wait_options ways_to_wait[] = {{.spin = NULL}, {.spin = &no_spin}, {.blocking = true}};

static void test_a_sleeper_on_a_tracked_buffer_is_woken_by_its_end_however_it_waits(void **state)
{
    size_t i;
    (void)state;
    NOT_ON_METAL4("no track");
    for (i = 0; i < LENGTH(ways_to_wait); i++) {
        wait_job job;
        void *tracked;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        tracked = own_buffer(&r);
        memset(&job, 0, sizeof job);
        job.queue = r.queue;
        job.timeout_ns = GPUSYNC_FOREVER;
        job.options = &ways_to_wait[i];
        assert_ok(gpusync_track(r.queue, tracked, &job.ticket));
        job.thread = start(wait_job_body, &job);
        await_sleepers(r.device, 1); /* `blocking`, too: what is not committed cannot be waited for inside Metal */
        metal_commit(tracked);
        softmetal_finish(tracked);
        assert_ok(wait_job_join(&job));
        metal_release(tracked);
        rig_close(&r);
    }
}

/* An MTLCommandBufferDescriptor; +1. */
static void *descriptor_new(void)
{
    return metal_get(metal_get(metal__class("MTLCommandBufferDescriptor"), "alloc"), "init");
}

static bool retains_references(void *object)
{
    return METAL__AS0(signed char)(object, metal__sel("retainedReferences")) != 0;
}

/* What Metal is to do when its shaders fail, or log: the descriptor says it, and gpusync only passes the descriptor on. */
static void test_a_buffer_is_made_with_the_descriptor_of_the_program(void **state)
{
    gpusync_command_buffer_desc desc = {.label = "with a descriptor"};
    void *buffer, *log, *descriptor, *pool;
    gpusync_ticket ticket;
    char label[32];
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers are the program's");
    rig_open(&r, SOFTMETAL_MANUAL);
    log = metal_shared_event_new(r.metal_device); /* stands for an MTLLogState */
    desc.descriptor = descriptor = descriptor_new();
    METAL__AS(void, unsigned long)(descriptor, metal__sel("setErrorOptions:"), 1ul);
    METAL__AS(void, void *)(descriptor, metal__sel("setLogState:"), log);
    assert_int_equal(softmetal_retain_count(log), 2);
    assert_ok(gpusync_command_buffer(r.queue, &desc, &buffer));
    assert_int_equal(metal_number(buffer, "errorOptions"), 1);
    assert_true(retains_references(buffer));
    assert_int_equal(softmetal_retain_count(log), 3); /* the buffer has it, too */
    pool = metal_pool_push();
    metal_string_copy(metal_get(buffer, "label"), label, sizeof label);
    metal_pool_pop(pool);
    assert_string_equal(label, "with a descriptor");
    assert_int_equal(softmetal_retain_count(descriptor), 1); /* gpusync keeps none */
    assert_ok(gpusync_commit(r.queue, buffer, &ticket));
    softmetal_fail(buffer, NULL, 3, NULL);
    softmetal_finish(buffer);
    assert_result(gpusync_wait(r.queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(softmetal_retain_count(log), 2);
    METAL__AS(void, signed char)(descriptor, metal__sel("setRetainedReferences:"), 0); /* one serves any number of calls */
    METAL__AS(void, unsigned long)(descriptor, metal__sel("setErrorOptions:"), 0ul);
    METAL__AS(void, void *)(descriptor, metal__sel("setLogState:"), NULL);
    desc.label = NULL;
    assert_ok(gpusync_command_buffer(r.queue, &desc, &buffer));
    assert_false(retains_references(buffer));
    assert_int_equal(metal_number(buffer, "errorOptions"), 0);
    assert_null(metal_get(buffer, "label"));
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    assert_int_equal(softmetal_retain_count(log), 1);
    metal_release(descriptor);
    metal_release(log);
    rig_close(&r);
}

/* Nothing is made, and no room taken, also where the queue is full: there is no wait for room. */
static void test_a_descriptor_that_cannot_be_used_is_refused(void **state)
{
    gpusync_command_buffer_desc desc;
    void *buffer = NULL, *descriptor, *string, *made;
    int full;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers are the program's");
    for (full = 0; full < 2; full++) {
        rig_open_limited(&r, SOFTMETAL_MANUAL, 1, NULL);
        if (full) (void)commit_empty(&r, NULL);
        string = metal_string_new("no descriptor, only a longer text");
        descriptor = descriptor_new();
        memset(&desc, 0, sizeof desc);
        desc.descriptor = descriptor;
        desc.unretained_references = true; /* the descriptor says whether it retains */
        refused(&r, gpusync_command_buffer(r.queue, &desc, &buffer), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_null(buffer);
        desc.unretained_references = false;
        desc.descriptor = string;
        refused(&r, gpusync_command_buffer(r.queue, &desc, &buffer), GPUSYNC_ERROR_INVALID_ARGUMENT);
        desc.descriptor = r.metal_queue;
        refused(&r, gpusync_command_buffer(r.queue, &desc, &buffer), GPUSYNC_ERROR_INVALID_ARGUMENT);
        if (!full) { /* which has errorOptions, too */
            desc.descriptor = made = metal_queue_command_buffer(r.metal_queue);
            refused(&r, gpusync_command_buffer(r.queue, &desc, &buffer), GPUSYNC_ERROR_INVALID_ARGUMENT);
            metal_release(made);
        }
        desc.descriptor = descriptor;
        softmetal_hide_selector("commandBufferWithDescriptor:");
        refused(&r, gpusync_command_buffer(r.queue, &desc, &buffer), GPUSYNC_ERROR_UNSUPPORTED);
        desc.unretained_references = true; /* no Metal would take these two */
        refused(&r, gpusync_command_buffer(r.queue, &desc, &buffer), GPUSYNC_ERROR_INVALID_ARGUMENT);
        desc.descriptor = NULL;
        if (full) {
            softmetal_finish_queue(r.metal_queue);
        } else { /* without a descriptor nothing is missed */
            assert_ok(gpusync_command_buffer(r.queue, &desc, &buffer));
            assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
        }
        metal_release(descriptor);
        metal_release(string);
        rig_close(&r);
    }
}

static void test_a_buffer_that_metal_does_not_make_by_a_descriptor_takes_no_room(void **state)
{
    gpusync_command_buffer_desc desc = {.label = NULL};
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers are the program's");
    rig_open_limited(&r, SOFTMETAL_MANUAL, 1, NULL);
    desc.descriptor = descriptor_new();
    softmetal_fail_creation(1, false);
    refused(&r, gpusync_command_buffer(r.queue, &desc, &buffer), GPUSYNC_ERROR_METAL_NIL);
    assert_null(buffer);
    assert_ok(gpusync_command_buffer(r.queue, &desc, &buffer));
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    metal_release(desc.descriptor);
    rig_close(&r);
}

/* Three rounds: the memory of what ended is used for what comes. Without memory the queue finds them as well. */
static void test_each_of_many_tracked_buffers_is_known(void **state)
{
    enum { MANY = 300 };
    static void *buffers[MANY];
    gpusync_ticket tickets[MANY];
    int round, i, without;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    for (without = 0; without < 2; without++) {
        rig_open_limited(&r, SOFTMETAL_MANUAL, 2 * MANY, NULL);
        if (without) { /* the rings of tickets are made before */
            for (i = 0; i < MANY; i++) buffers[i] = own_buffer(&r);
            for (i = 0; i < MANY; i++) assert_ok(gpusync_commit(r.queue, buffers[i], NULL));
            for (i = 0; i < MANY; i++) softmetal_finish(buffers[i]);
            for (i = 0; i < MANY; i++) metal_release(buffers[i]);
            r.memory.fail_after = true;
            r.memory.fail_at = 1;
        }
        for (round = 0; round < 3; round++) {
            for (i = 0; i < MANY; i++) {
                buffers[i] = own_buffer(&r);
                assert_ok(gpusync_track(r.queue, buffers[i], &tickets[i]));
            }
            for (i = 0; i < MANY; i++) {
                assert_result(gpusync_track(r.queue, buffers[i], NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
                assert_result(gpusync_commit(r.queue, buffers[i], NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
            }
            for (i = 0; i < MANY; i += 2) assert_ok(gpusync_untrack(r.queue, tickets[i]));
            for (i = 0; i < MANY; i++) {
                if (i % 2) assert_result(gpusync_track(r.queue, buffers[i], NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
                else assert_ok(gpusync_track(r.queue, buffers[i], &tickets[i]));
            }
            for (i = 0; i < MANY; i++) metal_commit(buffers[i]);
            for (i = 0; i < MANY; i++) softmetal_finish(buffers[i]);
            for (i = 0; i < MANY; i++) metal_release(buffers[i]);
            assert_ok(gpusync_wait(r.queue, tickets[MANY - 1], 0));
        }
        r.memory.fail_at = 0;
        rig_close(&r);
    }
}

typedef struct tracker {
    rig *r;
    void *buffer;
    gpusync_ticket ticket;
    gpusync_result result;
} tracker;

static void track_one(void *argument)
{
    tracker *t = (tracker *)argument;
    t->result = gpusync_track(t->r->queue, t->buffer, &t->ticket);
}

static void untrack_one(void *argument)
{
    tracker *t = (tracker *)argument;
    t->result = gpusync_untrack(t->r->queue, t->ticket);
}

/* The index by which they are found is too small for one more. Two threads make it larger at the same time. */
static void test_tracked_buffers_are_known_where_two_calls_make_room_for_them(void **state)
{
    enum { FEW = 16 };
    bool over = false;
    int place, i;
    (void)state;
    NOT_ON_METAL4("no track");
    for (place = 1; !over; place++) {
        void *buffers[FEW + 2];
        gpusync_result result;
        tracker other;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        for (i = 0; i < FEW + 2; i++) buffers[i] = own_buffer(&r);
        for (i = 0; i < FEW; i++) assert_ok(gpusync_track(r.queue, buffers[i], NULL));
        other.r = &r;
        other.buffer = buffers[FEW + 1];
        probe_at_each(place, track_one, &other);
        result = gpusync_track(r.queue, buffers[FEW], NULL);
        over = !probe_has_acted();
        if (over) track_one(&other);
        assert_ok(result);
        assert_ok(other.result);
        for (i = 0; i < FEW + 2; i++)
            assert_result(gpusync_track(r.queue, buffers[i], NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
        for (i = 0; i < FEW + 2; i++) {
            metal_commit(buffers[i]);
            softmetal_finish(buffers[i]);
            metal_release(buffers[i]);
        }
        assert_true(gpusync_is_idle(r.queue));
        rig_close(&r);
    }
    assert_true(place > 2);
}

/* ... also where the queue is full: made elsewhere, they have Metal's room already, and the calls wait for none. */
static void test_buffers_made_elsewhere_never_wait_for_room(void **state)
{
    enum { FEW = 16, LIMIT = 8 };
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    void *buffers[2 * FEW], *buffer;
    int i;
    rig r;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = LIMIT;
    if (!metal4_run()) { /* gpusync counts to 8, and Metal to more */
        device_desc.metal_device = metal_device_new();
        queue_desc.metal_queue = metal_queue_new(device_desc.metal_device, LIMIT + 2 * FEW);
    }
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    metal_release(queue_desc.metal_queue);
    metal_release(device_desc.metal_device);
    for (i = 0; i < LIMIT; i++) (void)commit_empty(&r, NULL);
    for (i = 0; i < 2 * FEW; i++) buffers[i] = own_buffer(&r);
    must_return_within(20);
    for (i = 0; i < FEW && !metal4_run(); i++) assert_ok(gpusync_track(r.queue, buffers[i], NULL));
    for (i = 0; i < FEW && !metal4_run(); i++)
        assert_result(gpusync_commit(r.queue, buffers[i], NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    for (i = metal4_run() ? 0 : FEW; i < 2 * FEW; i++) {
        gpusync_ticket ticket = 0;
        assert_ok(either_commit(r.queue, buffers[i], &ticket));
        assert_int_equal(ticket, LIMIT + i + 1);
    }
    has_returned();
    assert_int_equal(rooms_taken(r.queue), LIMIT + 2 * FEW); /* they count */
    if (!metal4_run()) {
        const uint64_t at_once = 0;
        const gpusync_command_buffer_desc desc = {.timeout_ns = &at_once};
        assert_result(gpusync_command_buffer(r.queue, &desc, &buffer), GPUSYNC_TIMEOUT);
        for (i = 0; i < FEW; i++) metal_commit(buffers[i]);
    }
    softmetal_finish_queue(r.metal_queue);
    for (i = 0; i < 2 * FEW; i++) metal_release(buffers[i]);
    assert_true(gpusync_is_idle(r.queue));
    assert_int_equal(rooms_taken(r.queue), 0);
    rig_close(&r);
}

enum { RINGFUL = 256 }; /* tickets that a new queue has a place for */

static void commit_two_ringfuls(void *argument)
{
    rig *r = (rig *)argument;
    int i;
    for (i = 0; i < 2 * RINGFUL; i++) (void)commit_empty(r, NULL);
}

/* The queue has no place for another ticket. Others make as many as the commit is about to make, twice those that there
   are, and take all of them. */
static void test_a_commit_makes_places_once_more_where_others_have_taken_them(void **state)
{
    bool over = false;
    int place;
    (void)state;
    for (place = 1; !over; place++) {
        gpusync_ticket ticket, last;
        void *buffer;
        rig r;
        rig_open_limited(&r, SOFTMETAL_MANUAL, 4 * RINGFUL, NULL);
        for (ticket = 1; ticket <= RINGFUL; ticket++) (void)commit_empty(&r, NULL);
        buffer = open_buffer(&r);
        probe_at_each(place, commit_two_ringfuls, &r);
        assert_ok(either_commit(r.queue, buffer, &last));
        over = !probe_has_acted();
        assert_int_equal(gpusync_in_flight(r.queue), over ? RINGFUL + 1 : 3 * RINGFUL + 1);
        softmetal_finish(buffer);
        assert_ok(gpusync_poll(r.queue, last));
        for (ticket = 1; ticket < last; ticket++) assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_NOT_READY);
        softmetal_finish_queue(r.metal_queue);
        assert_true(gpusync_is_idle(r.queue));
        rig_close(&r);
    }
    assert_true(place > 2);
}

/* Neither for the index of tracked buffers, which can do without, nor for tickets, which cannot. */
static void test_a_commit_of_a_buffer_made_elsewhere_without_memory_changes_nothing(void **state)
{
    enum { FEW = 16 };
    void *tracked[FEW], *own, *buffer;
    gpusync_ticket ticket = 99;
    int i, k;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < FEW; i++) {
        tracked[i] = own_buffer(&r);
        assert_ok(gpusync_track(r.queue, tracked[i], NULL));
        for (k = FEW; i == 0 && k < RINGFUL; k++) { /* behind the first, which keeps their places */
            (void)commit_empty(&r, &buffer);
            softmetal_finish(buffer);
        }
    }
    own = own_buffer(&r);
    r.memory.fail_after = true;
    r.memory.fail_at = 1;
    assert_result(gpusync_commit(r.queue, own, &ticket), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_int_equal(rooms_taken(r.queue), FEW);
    r.memory.fail_at = 0;
    assert_ok(gpusync_commit(r.queue, own, &ticket));
    assert_int_equal(ticket, RINGFUL + 1);
    softmetal_finish(own);
    assert_ok(gpusync_poll(r.queue, ticket));
    metal_release(own);
    for (i = 0; i < FEW; i++) {
        metal_commit(tracked[i]);
        softmetal_finish(tracked[i]);
        metal_release(tracked[i]);
    }
    assert_true(gpusync_is_idle(r.queue));
    rig_close(&r);
}

static void test_two_calls_that_untrack_one_ticket_end_it_once(void **state)
{
    bool over = false;
    int place;
    (void)state;
    NOT_ON_METAL4("no track");
    for (place = 1; !over; place++) {
        gpusync_result result;
        tracker other;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        other.r = &r;
        other.buffer = own_buffer(&r);
        track_one(&other);
        assert_ok(other.result);
        probe_at_each(place, untrack_one, &other);
        result = gpusync_untrack(r.queue, other.ticket);
        over = !probe_has_acted();
        if (over) untrack_one(&other);
        assert_true((result == GPUSYNC_OK) != (other.result == GPUSYNC_OK));
        assert_result(result == GPUSYNC_OK ? other.result : result, GPUSYNC_ERROR_INVALID_TICKET);
        assert_result(gpusync_poll(r.queue, other.ticket), GPUSYNC_ERROR_CANCELLED);
        assert_int_equal(stats_of(r.queue).completions, 1);
        assert_int_equal(rooms_taken(r.queue), 0);
        metal_release(other.buffer);
        rig_close(&r);
    }
    assert_true(place > 2);
}

static void test_untrack_cancels_the_ticket_and_gives_the_buffer_back(void **state)
{
    uint64_t cursor = 0;
    gpusync_error error;
    char report[1024];
    wait_job job;
    void *tracked, *after;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    tracked = own_buffer(&r);
    metal_set_label(tracked, "theirs");
    assert_ok(gpusync_track(r.queue, tracked, &ticket));
    commit_empty(&r, &after);
    softmetal_finish(after);
    assert_int_equal(stats_of(r.queue).completions, 1); /* though the one before it has not ended */
    wait_job_start(&job, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    assert_ok(gpusync_untrack(r.queue, ticket));
    assert_result(wait_job_join(&job), GPUSYNC_ERROR_CANCELLED);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_CANCELLED);
    assert_true(gpusync_is_idle(r.queue));
    assert_ok(gpusync_queue_wait(r.queue, 0)); /* nothing failed */
    assert_int_equal(softmetal_retain_count(tracked), 1);
    gpusync_report(r.device, report, sizeof report);
    assert_non_null(strstr(report, "buffers 0 of 63")); /* its room is free again */
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_int_equal(error.failure, GPUSYNC_FAILURE_CANCELLED);
    assert_int_equal(error.ticket, ticket);
    assert_string_equal(error.label, "theirs");
    assert_result(error.result, GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(stats_of(r.queue).failures, 0);
    assert_int_equal(stats_of(r.queue).completions, 2);
    assert_result(gpusync_untrack(r.queue, ticket), GPUSYNC_ERROR_INVALID_TICKET);
    metal_release(tracked);
    rig_close(&r);
}

/* Its end is known at once, and kept when the work in front of it ends: then everything has ended. */
static void test_a_ticket_that_is_untracked_behind_running_work_has_ended(void **state)
{
    gpusync_ticket_info info;
    gpusync_ticket front, tracked, behind;
    void *running, *buffer, *last;
    outcome o = {0};
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    front = commit_empty(&r, &running);
    tracked = track_a_buffer(&r, &buffer);
    behind = commit_empty(&r, &last);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, tracked), remember, &o));
    assert_ok(gpusync_untrack(r.queue, tracked));
    assert_result(gpusync_poll(r.queue, tracked), GPUSYNC_ERROR_CANCELLED);
    assert_ended(&o, GPUSYNC_ERROR_CANCELLED);
    assert_ok(gpusync_get_info(r.queue, tracked, &info));
    assert_result(info.result, GPUSYNC_ERROR_CANCELLED);
    assert_false(gpusync_is_done(r.queue, tracked)); /* late, never early */
    assert_result(gpusync_poll(r.queue, front), GPUSYNC_NOT_READY);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_TIMEOUT);
    softmetal_finish(running);
    assert_true(gpusync_is_done(r.queue, tracked));
    assert_result(gpusync_poll(r.queue, behind), GPUSYNC_NOT_READY);
    softmetal_finish(last);
    assert_true(gpusync_is_idle(r.queue));
    assert_ok(gpusync_queue_wait(r.queue, 0));
    assert_result(gpusync_wait(r.queue, tracked, 0), GPUSYNC_ERROR_CANCELLED);
    assert_int_equal(stats_of(r.queue).completions, 3);
    assert_int_equal(rooms_taken(r.queue), 0);
    assert_int_equal(softmetal_retain_count(buffer), 1);
    metal_release(buffer);
    rig_close(&r);
}

/* A queue that tracks nothing does not search for what it is to commit. So each tracked buffer counts until its ticket has
   ended, and no longer: however that ends, and whoever finds it. */
static void test_a_tracked_buffer_is_known_whatever_became_of_the_others(void **state)
{
    gpusync_ticket polled, dropped, known, ticket = 99;
    void *first, *second, *last;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    polled = track_a_buffer(&r, &first);
    dropped = track_a_buffer(&r, &second);
    known = track_a_buffer(&r, &last);
    metal_commit(first);
    softmetal_complete(first);
    assert_ok(gpusync_poll(r.queue, polled)); /* and then its handler comes */
    softmetal_finish(first);
    assert_ok(gpusync_untrack(r.queue, dropped));
    metal_commit(second); /* after all: its handler comes, too */
    softmetal_finish(second);
    assert_result(gpusync_commit(r.queue, last, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_result(gpusync_track(r.queue, last, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    metal_commit(last);
    softmetal_finish(last);
    assert_ok(gpusync_wait(r.queue, known, 0));
    assert_true(gpusync_is_idle(r.queue));
    metal_release(first);
    metal_release(second);
    metal_release(last);
    rig_close(&r);
}

static void test_an_untracked_buffer_that_is_committed_after_all_changes_nothing(void **state)
{
    gpusync_stats before, after;
    void *tracked, *other;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    tracked = own_buffer(&r);
    assert_ok(gpusync_track(r.queue, tracked, &ticket));
    assert_ok(gpusync_untrack(r.queue, ticket));
    commit_empty(&r, &other); /* very likely with the slot that was given back */
    before = stats_of(r.queue);
    metal_commit(tracked);
    softmetal_finish(tracked);
    after = stats_of(r.queue);
    assert_memory_equal(&before, &after, sizeof before);
    assert_result(gpusync_poll(r.queue, 2), GPUSYNC_NOT_READY);
    softmetal_finish(other);
    assert_ok(gpusync_poll(r.queue, 2));
    metal_release(tracked);
    rig_close(&r);
}

static void test_a_buffer_can_be_tracked_again_after_untrack(void **state)
{
    void *tracked;
    gpusync_ticket ticket;
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    tracked = own_buffer(&r);
    for (i = 0; i < 3; i++) {
        assert_ok(gpusync_track(r.queue, tracked, &ticket));
        assert_int_equal(ticket, i + 1);
        if (i < 2) assert_ok(gpusync_untrack(r.queue, ticket));
    }
    metal_commit(tracked);
    softmetal_finish(tracked); /* three handlers, one of them meant */
    assert_ok(gpusync_poll(r.queue, 3));
    assert_int_equal(stats_of(r.queue).completions, 3);
    assert_int_equal(softmetal_retain_count(tracked), 1);
    metal_release(tracked);
    rig_close(&r);
}

static void test_a_buffer_of_gpusync_can_be_tracked_and_committed_by_its_owner(void **state)
{
    void *buffer;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    buffer = open_buffer(&r);
    assert_ok(gpusync_track(r.queue, buffer, &ticket));
    assert_result(gpusync_command_buffer_discard(r.queue, buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    metal_commit(buffer);
    softmetal_finish(buffer);
    assert_ok(gpusync_poll(r.queue, ticket));
    rig_close(&r);
}

/* The slots of what has ended serve what comes later: that is not given up instead. */
static void test_untrack_of_what_has_ended_leaves_later_tickets_alone(void **state)
{
    enum { MANY = 20 };
    gpusync_ticket ended[MANY], open[MANY];
    void *buffers[MANY];
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < MANY; i++) {
        buffers[i] = own_buffer(&r);
        assert_ok(gpusync_track(r.queue, buffers[i], &ended[i]));
        metal_commit(buffers[i]);
        softmetal_finish(buffers[i]);
        metal_release(buffers[i]);
    }
    for (i = 0; i < MANY; i++) assert_ok(gpusync_track(r.queue, buffers[i] = own_buffer(&r), &open[i]));
    for (i = 0; i < MANY; i++) assert_result(gpusync_untrack(r.queue, ended[i]), GPUSYNC_ERROR_INVALID_TICKET);
    for (i = 0; i < MANY; i++) {
        assert_result(gpusync_poll(r.queue, open[i]), GPUSYNC_NOT_READY);
        metal_commit(buffers[i]);
        softmetal_finish(buffers[i]);
        assert_ok(gpusync_poll(r.queue, open[i]));
        metal_release(buffers[i]);
    }
    rig_close(&r);
}

/* Nor is what has the place of an ended ticket by now, a lap or more later. */
static void test_untrack_of_an_old_ticket_leaves_what_has_its_place_alone(void **state)
{
    enum { MANY = 1000 };
    gpusync_ticket ticket, old;
    void *buffer;
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < MANY; i++) {
        commit_empty(&r, &buffer);
        softmetal_finish(buffer);
    }
    assert_ok(gpusync_track(r.queue, buffer = own_buffer(&r), &ticket));
    for (old = 1; old < ticket; old++) assert_result(gpusync_untrack(r.queue, old), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_NOT_READY);
    metal_commit(buffer);
    softmetal_finish(buffer);
    assert_ok(gpusync_poll(r.queue, ticket));
    metal_release(buffer);
    rig_close(&r);
}

static void test_untrack_refuses_what_is_no_open_tracked_ticket(void **state)
{
    void *committed, *tracked;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &committed);
    tracked = own_buffer(&r);
    assert_ok(gpusync_track(r.queue, tracked, &ticket));
    assert_result(gpusync_untrack(r.queue, 0), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_untrack(r.queue, 1), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_untrack(r.queue, 3), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_untrack(r.queue, GPUSYNC_EVERYTHING), GPUSYNC_ERROR_INVALID_TICKET);
    metal_commit(tracked);
    assert_result(gpusync_untrack(r.queue, ticket), GPUSYNC_ERROR_ALREADY_COMMITTED);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_NOT_READY);
    softmetal_finish_queue(r.metal_queue);
    assert_result(gpusync_untrack(r.queue, ticket), GPUSYNC_ERROR_INVALID_TICKET);
    assert_ok(gpusync_poll(r.queue, ticket));
    assert_ok(gpusync_poll(r.queue, GPUSYNC_EVERYTHING));
    metal_release(tracked);
    rig_close(&r);
}

/* The slot is its handler's still. */
static void test_untrack_refuses_what_a_poll_has_seen_to_end_before_its_handler(void **state)
{
    gpusync_ticket ticket;
    gpusync_error error;
    uint64_t cursor = 0;
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = track_a_buffer(&r, &buffer);
    metal_commit(buffer);
    softmetal_complete(buffer);
    assert_ok(gpusync_poll(r.queue, ticket));
    assert_result(gpusync_untrack(r.queue, ticket), GPUSYNC_ERROR_INVALID_TICKET); /* it is over already */
    assert_ok(gpusync_poll(r.queue, ticket));
    softmetal_finish(buffer);
    assert_result(gpusync_untrack(r.queue, ticket), GPUSYNC_ERROR_INVALID_TICKET);
    assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
    assert_int_equal(rooms_taken(r.queue), 0);
    metal_release(buffer);
    rig_close(&r);
}

/* -- tracked work that its owner has committed -------------------------------------------------------- */

/* by_poll: a poll reads the status; else the handler comes. */
static void six_wait_for_tracked_work(bool by_poll)
{
    wait_job jobs[6];
    void *tracked;
    gpusync_ticket ticket;
    int i;
    rig r;
    rig_open_limited(&r, SOFTMETAL_MANUAL, 64, NULL);
    tracked = tracked_and_committed(&r, &ticket);
    for (i = 0; i < 6; i++) wait_job_start(&jobs[i], r.queue, i % 2 ? ticket : GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 6);
    assert_false(gpusync_is_done(r.queue, ticket));
    if (by_poll) {
        softmetal_complete(tracked);
        assert_ok(gpusync_poll(r.queue, ticket));
    } else {
        softmetal_finish(tracked);
    }
    for (i = 0; i < 6; i++) assert_ok(wait_job_join(&jobs[i]));
    assert_true(gpusync_is_idle(r.queue));
    softmetal_finish(tracked);
    metal_release(tracked);
    rig_close(&r);
}

static void test_the_end_of_tracked_work_wakes_every_waiter(void **state)
{
    (void)state;
    NOT_ON_METAL4("no track");
    six_wait_for_tracked_work(false);
}

static void test_a_poll_that_sees_the_end_of_tracked_work_wakes_every_waiter(void **state)
{
    (void)state;
    NOT_ON_METAL4("no track");
    six_wait_for_tracked_work(true);
}

static void test_to_track_needs_nothing_that_metal_may_not_have(void **state)
{
    void *tracked, *buffer;
    gpusync_ticket ticket;
    wait_job job;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open_limited(&r, SOFTMETAL_MANUAL, 2, NULL);
    tracked = own_buffer(&r);
    softmetal_fail_creation(1, true);
    assert_ok(gpusync_track(r.queue, tracked, &ticket));
    metal_commit(tracked);
    wait_job_start(&job, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    softmetal_finish(tracked);
    assert_ok(wait_job_join(&job));
    assert_true(gpusync_is_idle(r.queue));
    softmetal_fail_creation(0, false);
    metal_release(tracked);
    buffer = open_buffer(&r);
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    rig_close(&r);
}

/* Work that other code has committed gets no ticket: it is too late for a handler. On a device that ends the command buffers
   of a queue in order an empty one behind it tells its end, and nothing of how it ended. */
static void test_an_empty_buffer_behind_work_of_other_code_tells_its_end_and_not_its_failure(void **state)
{
    gpusync_ticket ticket;
    void *foreign;
    int fails;
    rig r;
    (void)state;
    NOT_ON_METAL4("a buffer may be committed again");
    for (fails = 0; fails < 2; fails++) {
        rig_open(&r, SOFTMETAL_REAL);
        foreign = own_buffer(&r);
        softmetal_set_duration(foreign, MS(2));
        if (fails) softmetal_fail(foreign, NULL, 8, NULL);
        metal_commit(foreign);
        assert_result(gpusync_commit(r.queue, foreign, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED);
        assert_result(gpusync_track(r.queue, foreign, &ticket), GPUSYNC_ERROR_ALREADY_COMMITTED);
        ticket = commit_empty(&r, NULL);
        assert_ok(gpusync_wait(r.queue, ticket, SECONDS(20)));
        assert_int_equal(metal_status(foreign), fails ? 5 : 4);
        assert_ok(gpusync_queue_wait(r.queue, 0));
        assert_int_equal(stats_of(r.queue).failures, 0);
        metal_release(foreign);
        rig_close(&r);
    }
}

static void test_queue_wait_is_not_extended_by_work_tracked_later(void **state)
{
    gpusync_ticket ticket;
    wait_job job;
    void *first, *second;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    first = tracked_and_committed(&r, &ticket);
    wait_job_start(&job, r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    second = tracked_and_committed(&r, &ticket);
    softmetal_finish(first);
    assert_ok(wait_job_join(&job));
    assert_false(gpusync_is_idle(r.queue));
    softmetal_finish_queue(r.metal_queue);
    metal_release(first);
    metal_release(second);
    rig_close(&r);
}

static void test_a_failure_of_tracked_work_is_told_like_any_other(void **state)
{
    uint64_t cursor = 0;
    gpusync_error error;
    void *tracked;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    ticket = track_a_buffer(&r, &tracked);
    softmetal_fail(tracked, NULL, 8, NULL);
    metal_commit(tracked);
    softmetal_complete(tracked);
    assert_result(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_poll(r.queue, ticket), GPUSYNC_ERROR_EXECUTION);
    assert_result(gpusync_queue_wait(r.queue, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    assert_result(gpusync_wait(r.queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    assert_ok(gpusync_next_error(r.queue, &cursor, &error));
    assert_int_equal(error.ticket, ticket);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_OUT_OF_MEMORY);
    assert_result(gpusync_next_error(r.queue, &cursor, &error), GPUSYNC_NOT_READY);
    softmetal_finish_queue(r.metal_queue);
    metal_release(tracked);
    rig_close(&r);
}

static void test_finished_tracked_work_is_dropped_so_what_is_kept_stays_bounded(void **state)
{
    gpusync_queue_desc queue_desc;
    gpusync_device_desc device_desc;
    void *device;
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    device = metal_device_new();
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.metal_device = device;
    queue_desc.max_command_buffer_count = 32;
    rig_open_on(&r, SOFTMETAL_MANUAL, QUEUE_OF_THE_PROGRAM, device_desc, queue_desc);
    for (i = 0; i < 1000; i++) {
        gpusync_ticket ticket;
        void *tracked = tracked_and_committed(&r, &ticket);
        softmetal_finish(tracked);
        assert_int_equal(owners_of(tracked), 1);
        metal_release(tracked);
        assert_int_equal(softmetal_live("command_buffer"), 0);
    }
    assert_ok(gpusync_poll(r.queue, GPUSYNC_EVERYTHING));
    assert_int_equal(stats_of(r.queue).completions, 1000);
    softmetal_finish_queue(r.metal_queue);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    rig_close(&r);
    metal_release(device);
}

static void test_finished_tracked_work_is_let_go_when_metal_lets_go(void **state)
{
    gpusync_ticket ticket;
    void *tracked;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    tracked = tracked_and_committed(&r, &ticket);
    assert_true(softmetal_retain_count(tracked) > 2); /* besides Metal's own */
    assert_false(gpusync_is_idle(r.queue));
    softmetal_finish(tracked);
    assert_int_equal(owners_of(tracked), 1);
    metal_release(tracked);
    rig_close(&r);
}

static void test_waits_for_tracked_work_end_on_the_real_clock_however_they_wait(void **state)
{
    size_t k;
    (void)state;
    NOT_ON_METAL4("no track");
    for (k = 0; k < LENGTH(ways_to_wait); k++) {
        void *tracked[2];
        gpusync_ticket ticket = 0;
        int i;
        rig r;
        rig_open(&r, SOFTMETAL_REAL);
        for (i = 0; i < 2; i++) {
            ticket = track_a_buffer(&r, &tracked[i]);
            softmetal_set_duration(tracked[i], MS(1));
            metal_commit(tracked[i]);
        }
        assert_ok(gpusync_wait_ex(r.queue, ticket, GPUSYNC_FOREVER, &ways_to_wait[k]));
        assert_ok(gpusync_wait_ex(r.queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, &ways_to_wait[k]));
        assert_true(metal_status(tracked[1]) == 4);
        for (i = 0; i < 2; i++) metal_release(tracked[i]);
        rig_close(&r);
    }
}

/* -- room ------------------------------------------------------------------------------------------- */

static gpusync_result make_within(rig *r, uint64_t timeout_ns, void **buffer)
{
    gpusync_command_buffer_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &timeout_ns;
    return either_buffer(r->queue, &desc, buffer);
}

static void test_a_full_queue_is_waited_for_no_longer_than_asked(void **state)
{
    uint64_t begun;
    void *first, *second, *third;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers take room at the commit");
    rig_open_limited(&r, SOFTMETAL_MANUAL, 2, NULL);
    first = open_buffer(&r); /* not committed: counts all the same */
    commit_empty(&r, &second);
    third = &r;
    assert_result(make_within(&r, 0, &third), GPUSYNC_TIMEOUT);
    assert_null(third);
    begun = gpusync_now_ns();
    assert_result(make_within(&r, MS(2), &third), GPUSYNC_TIMEOUT);
    assert_true(gpusync_now_ns() - begun >= MS(2));
    assert_int_equal(softmetal_live("command_buffer"), 2);
    softmetal_finish(second);
    assert_ok(make_within(&r, 0, &third));
    assert_result(make_within(&r, 0, &second), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_command_buffer_discard(r.queue, first));
    assert_ok(make_within(&r, 0, &second));
    assert_ok(gpusync_command_buffer_discard(r.queue, second));
    assert_ok(gpusync_command_buffer_discard(r.queue, third));
    rig_close(&r);
}

/* Parks until the unpark, deaf to deadlines, so that only a wake-up can end it; gives up after five seconds. At an open
   gate a thread that was woken goes on at once. */
typedef struct deaf_hooks {
    gpusync_hooks hooks;
    bool closed;
    long parks, woken, gave_up;
} deaf_hooks;

static void deaf_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    deaf_hooks *deaf = (deaf_hooks *)user;
    uint64_t limit = gpusync_now_ns() + SECONDS(5);
    (void)deadline_ns;
    __atomic_fetch_add(&deaf->parks, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_exchange_n(&waiter->scheduler_data[0], NULL, __ATOMIC_SEQ_CST)) {
        if (gpusync_now_ns() >= limit) {
            __atomic_fetch_add(&deaf->gave_up, 1, __ATOMIC_SEQ_CST);
            return;
        }
        sched_yield();
    }
    __atomic_fetch_add(&deaf->woken, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&deaf->closed, __ATOMIC_SEQ_CST)) sched_yield();
}

static void deaf_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    __atomic_store_n(&waiter->scheduler_data[0], (void *)waiter, __ATOMIC_SEQ_CST);
}

static void deaf_init(deaf_hooks *deaf)
{
    memset(deaf, 0, sizeof *deaf);
    deaf->hooks.park = deaf_park;
    deaf->hooks.unpark = deaf_unpark;
    deaf->hooks.user = deaf;
}

typedef struct keeper {
    void *buffer;
    unsigned parks, found;
} keeper;

static void keeping_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    keeper *k = (keeper *)user;
    (void)deadline_ns;
    k->parks++;
    if (waiter->scheduler_data[1] == (void *)waiter) k->found++;
    waiter->scheduler_data[1] = (void *)waiter;
    softmetal_finish(k->buffer);
}

static void keeping_unpark(void *user, gpusync_waiter *waiter) { (void)user, (void)waiter; }

static void test_what_the_hooks_put_into_a_waiter_is_there_in_its_next_wait(void **state)
{
    enum { WAITS = 3 };
    keeper k = {NULL, 0, 0};
    gpusync_hooks hooks = {NULL, keeping_park, keeping_unpark, &k};
    int i;
    rig r;
    (void)state;
    rig_open_limited(&r, SOFTMETAL_MANUAL, 64, &hooks);
    for (i = 0; i < WAITS; i++) {
        gpusync_ticket ticket = commit_empty(&r, &k.buffer);
        assert_ok(gpusync_wait(r.queue, ticket, GPUSYNC_FOREVER));
    }
    assert_int_equal(k.parks, WAITS);
    assert_int_equal(k.found, WAITS - 1);
    rig_close(&r);
}

static void test_a_poll_wakes_a_sleeper_for_tracked_work(void **state)
{
    deaf_hooks deaf;
    wait_job job;
    void *tracked;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    deaf_init(&deaf);
    rig_open_limited(&r, SOFTMETAL_MANUAL, 64, &deaf.hooks);
    tracked = tracked_and_committed(&r, &ticket);
    wait_job_start(&job, r.queue, ticket, GPUSYNC_FOREVER);
    await_sleepers(r.device, 1);
    softmetal_complete(tracked);
    assert_ok(gpusync_poll(r.queue, ticket)); /* wakes it: these hooks know no deadline */
    assert_ok(wait_job_join(&job));
    assert_int_equal(deaf.gave_up, 0);
    assert_true(deaf.parks <= 1); /* it was woken once, and not in vain */
    softmetal_finish(tracked);
    metal_release(tracked);
    rig_close(&r);
}

typedef struct maker {
    gpusync_queue *queue;
    void *buffer;
    gpusync_result result;
    bool discards;
    pthread_t thread;
} maker;

static void *maker_body(void *argument)
{
    maker *m = (maker *)argument;
    m->result = either_buffer(m->queue, NULL, &m->buffer);
    if (m->discards && m->result == GPUSYNC_OK) m->result = either_discard(m->queue, m->buffer);
    return NULL;
}

static void maker_start(maker *m, rig *r, bool discards)
{
    memset(m, 0, sizeof *m);
    m->queue = r->queue;
    m->discards = discards;
    m->thread = start(maker_body, m);
}

static void test_a_thread_that_waits_for_room_is_woken_by_a_completion_and_by_a_discard(void **state)
{
    deaf_hooks deaf;
    maker m;
    void *buffer;
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers take room at the commit");
    deaf_init(&deaf);
    rig_open_limited(&r, SOFTMETAL_MANUAL, 1, &deaf.hooks);
    for (i = 0; i < 2; i++) {
        buffer = open_buffer(&r);
        if (i == 0) assert_ok(gpusync_commit(r.queue, buffer, NULL));
        maker_start(&m, &r, false);
        await_sleepers(r.device, 1);
        if (i == 0) softmetal_finish(buffer);
        else assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
        join(m.thread);
        assert_ok(m.result);
        assert_int_equal(deaf.gave_up, 0);
        assert_ok(gpusync_command_buffer_discard(r.queue, m.buffer));
    }
    assert_int_equal(stats_of(r.queue).waits_sleep, 0); /* room is no wait for work */
    rig_close(&r);
}

static void test_room_that_another_thread_took_is_waited_for_again_and_woken_for_again(void **state)
{
    deaf_hooks deaf;
    maker makers[2];
    void *first, *second;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers take room at the commit");
    deaf_init(&deaf);
    PUT(&clock_is_real, false); /* no second goes by, however late a thread is */
    rig_open_limited(&r, SOFTMETAL_MANUAL, 1, &deaf.hooks);
    first = open_buffer(&r);
    maker_start(&makers[0], &r, true);
    maker_start(&makers[1], &r, true);
    await_sleepers(r.device, 2);
    while (__atomic_load_n(&deaf.parks, __ATOMIC_SEQ_CST) < 2) sched_yield(); /* listed is not asleep yet */
    __atomic_store_n(&deaf.closed, true, __ATOMIC_SEQ_CST);
    assert_ok(gpusync_command_buffer_discard(r.queue, first));
    while (__atomic_load_n(&deaf.woken, __ATOMIC_SEQ_CST) < 1) sched_yield();
    assert_ok(make_within(&r, 0, &second)); /* before the one that was woken for it */
    __atomic_store_n(&deaf.closed, false, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&deaf.parks, __ATOMIC_SEQ_CST) < 2 + __atomic_load_n(&deaf.woken, __ATOMIC_SEQ_CST))
        sched_yield(); /* the maker that was woken in vain is asleep again */
    assert_ok(gpusync_command_buffer_discard(r.queue, second));
    join(makers[0].thread);
    join(makers[1].thread);
    assert_ok(makers[0].result);
    assert_ok(makers[1].result);
    assert_int_equal(deaf.gave_up, 0);
    rig_close(&r);
    PUT(&clock_is_real, true);
}

static void test_many_threads_share_a_short_queue(void **state)
{
    maker makers[24];
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers take room at the commit");
    rig_open_limited(&r, SOFTMETAL_REAL, 2, NULL);
    for (i = 0; i < 24; i++) maker_start(&makers[i], &r, true);
    for (i = 0; i < 24; i++) {
        join(makers[i].thread);
        assert_ok(makers[i].result);
    }
    assert_int_equal(softmetal_outstanding(r.metal_queue), 0);
    rig_close(&r);
}

static void test_metal_is_never_asked_for_more_buffers_than_its_queue_holds(void **state)
{
    void *buffer, *next;
    gpusync_ticket ticket;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers take room at the commit");
    rig_open_limited(&r, SOFTMETAL_MANUAL, 1, NULL);
    ticket = commit_empty(&r, &buffer);
    softmetal_complete(buffer); /* its handlers, and so its place, are still to come */
    assert_ok(gpusync_poll(r.queue, ticket));
    assert_int_equal(softmetal_outstanding(r.metal_queue), 1);
    assert_result(make_within(&r, 0, &next), GPUSYNC_TIMEOUT);
    softmetal_finish(buffer);
    assert_ok(make_within(&r, 0, &next));
    assert_ok(gpusync_command_buffer_discard(r.queue, next));
    rig_close(&r);
}

/* A callback that stays until it may leave. */
typedef struct stay {
    bool inside, leave;
} stay;

static bool comes_true(const bool *flag)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    while (!__atomic_load_n(flag, __ATOMIC_SEQ_CST) && gpusync_now_ns() < limit) sched_yield();
    return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}

static void stay_inside(void *user, gpusync_result result, const gpusync_error *error)
{
    stay *s = (stay *)user;
    (void)result;
    (void)error;
    __atomic_store_n(&s->inside, true, __ATOMIC_SEQ_CST);
    (void)comes_true(&s->leave);
}

/* Metal counts a buffer until its handlers have returned, and a callback may take its time. A call that gets a buffer
   in its place meanwhile is not blocked inside Metal, where softmetal aborts. */
static void test_making_a_buffer_does_not_block_while_a_callback_runs(void **state)
{
    stay s = {false, false};
    gpusync_ticket ticket;
    void *ended, *next;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers take room at the commit");
    rig_open_limited(&r, SOFTMETAL_MANUAL, 1, NULL);
    ticket = commit_empty(&r, &ended);
    metal_retain(ended);
    assert_ok(gpusync_on_done(gpusync_at_ticket(r.queue, ticket), stay_inside, &s));
    softmetal_complete(ended);
    softmetal_begin_handler(ended, 0);
    assert_true(comes_true(&s.inside));
    softmetal_join_handler(ended, 0); /* Metal has its place back when the handlers have returned */
    softmetal_finish(ended);
    assert_ok(make_within(&r, SECONDS(10), &next));
    __atomic_store_n(&s.leave, true, __ATOMIC_SEQ_CST);
    metal_release(ended);
    assert_ok(gpusync_command_buffer_discard(r.queue, next));
    rig_close(&r);
}

static void test_a_lost_handler_does_not_cost_its_room(void **state)
{
    const uint64_t limit_ns = SECONDS(30);
    gpusync_command_buffer_desc desc;
    gpusync_ticket ticket;
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no status shows what a lost handler would tell");
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &limit_ns;
    rig_open_sleepy(&r, SOFTMETAL_REAL, NULL, queue_desc_of(1, 0));
    for (i = 0; i < 3; i++) {
        void *buffer = NULL;
        assert_ok(gpusync_command_buffer(r.queue, &desc, &buffer));
        softmetal_lose_handlers(buffer);
        assert_ok(gpusync_commit(r.queue, buffer, &ticket));
        assert_ok(gpusync_wait(r.queue, ticket, SECONDS(30)));
    }
    rig_close(&r);
}

static void lose_handlers_at_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase == SOFTMETAL_BEFORE && strcmp(selector, "commit") == 0) softmetal_lose_handlers(object);
}

static void test_tracked_work_whose_handler_is_lost_gives_its_room_back(void **state)
{
    const uint64_t limit_ns = SECONDS(30);
    gpusync_command_buffer_desc desc;
    gpusync_ticket ticket;
    void *buffer, *buffers[2];
    int i;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &limit_ns;
    rig_open_sleepy(&r, SOFTMETAL_REAL, NULL, queue_desc_of(2, 0));
    softmetal_set_message_hook(lose_handlers_at_commit, NULL);
    for (i = 0; i < 3; i++) {
        buffer = metal_queue_command_buffer(r.metal_queue);
        softmetal_set_duration(buffer, MS(2));
        assert_ok(gpusync_track(r.queue, buffer, &ticket));
        metal_commit(buffer);
        assert_ok(gpusync_wait(r.queue, ticket, SECONDS(30)));
        metal_release(buffer);
    }
    softmetal_set_message_hook(NULL, NULL);
    assert_ok(gpusync_command_buffer(r.queue, &desc, &buffers[0])); /* all the room that there is */
    assert_ok(gpusync_command_buffer(r.queue, &desc, &buffers[1]));
    for (i = 0; i < 2; i++) assert_ok(gpusync_command_buffer_discard(r.queue, buffers[i]));
    rig_close(&r);
}

/* -- how many are in flight --------------------------------------------------------------------------- */

static void test_in_flight_is_the_number_of_tickets_that_have_not_ended(void **state)
{
    void *buffers[5];
    uint64_t i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    assert_int_equal(gpusync_in_flight(NULL), 0);
    assert_int_equal(gpusync_in_flight(r.queue), 0);
    for (i = 0; i < 5; i++) {
        buffers[i] = open_buffer(&r);
        assert_int_equal(gpusync_in_flight(r.queue), i); /* one that is made is not committed */
        (void)commit_to(r.queue, buffers[i]);
        assert_int_equal(gpusync_in_flight(r.queue), i + 1);
    }
    for (i = 0; i < 5; i++) {
        if (i == 2) softmetal_fail(buffers[i], NULL, 1, NULL); /* badly is an end, too */
        softmetal_finish(buffers[i]);
        assert_int_equal(gpusync_in_flight(r.queue), 4 - i);
    }
    assert_true(gpusync_is_idle(r.queue));
    rig_close(&r);
}

static void test_in_flight_counts_what_has_ended_behind_a_ticket_that_has_not(void **state)
{
    void *buffers[4];
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 4; i++) commit_empty(&r, &buffers[i]);
    softmetal_finish(buffers[3]);
    softmetal_finish(buffers[1]);
    assert_ok(gpusync_poll(r.queue, 4));
    assert_int_equal(gpusync_in_flight(r.queue), 4);
    softmetal_finish(buffers[0]);
    assert_int_equal(gpusync_in_flight(r.queue), 2); /* the third, and the fourth behind it */
    softmetal_finish(buffers[2]);
    assert_int_equal(gpusync_in_flight(r.queue), 0);
    rig_close(&r);
}

static void test_in_flight_counts_held_work(void **state)
{
    gpusync_timeline *timeline;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    timeline = timeline_new(r.device);
    (void)hold_on(r.queue, timeline, 1, NULL);
    (void)commit_empty(&r, NULL); /* held behind it */
    assert_int_equal(gpusync_in_flight(r.queue), 2);
    assert_ok(gpusync_cancel_held(r.queue));
    assert_int_equal(gpusync_in_flight(r.queue), 0);
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

static void test_in_flight_counts_tracked_work(void **state)
{
    gpusync_ticket tracked;
    void *own, *committed;
    rig r;
    (void)state;
    NOT_ON_METAL4("nothing can be tracked");
    rig_open(&r, SOFTMETAL_MANUAL);
    tracked = track_a_buffer(&r, &own);
    assert_int_equal(gpusync_in_flight(r.queue), 1);
    (void)track_a_buffer(&r, &committed);
    metal_commit(committed);
    assert_int_equal(gpusync_in_flight(r.queue), 2);
    assert_ok(gpusync_untrack(r.queue, tracked));
    assert_int_equal(gpusync_in_flight(r.queue), 1);
    softmetal_finish(committed);
    assert_int_equal(gpusync_in_flight(r.queue), 0);
    metal_release(own);
    metal_release(committed);
    rig_close(&r);
}

enum { FLIERS = 2, FLIGHTS = 1000 };

typedef struct airport {
    rig r;
    uint64_t begun, committed; /* commits that have begun, and those that have returned */
    unsigned landed;           /* committers that are done */
} airport;

static void *commit_many(void *argument)
{
    airport *a = (airport *)argument;
    unsigned i;
    for (i = 0; i < FLIGHTS / SLOW; i++) {
        void *buffer = NULL;
        must(either_buffer(a->r.queue, NULL, &buffer) == GPUSYNC_OK, "a buffer");
        COUNT(&a->begun);
        must(either_commit(a->r.queue, buffer, NULL) == GPUSYNC_OK, "a commit");
        COUNT(&a->committed);
    }
    COUNT(&a->landed);
    return NULL;
}

/* Between the two loads tickets are issued, and others end. The number is never less than that of the tickets which were
   in flight all the time, and never more than that of the tickets which may have been. */
static void test_in_flight_is_never_too_small_while_threads_commit_and_work_ends(void **state)
{
    pthread_t threads[FLIERS];
    gpusync_ticket done = 0; /* is_done has said yes to it */
    bool last = false;
    airport a;
    unsigned i;
    (void)state;
    memset(&a, 0, sizeof a);
    rig_open(&a.r, SOFTMETAL_REAL);
    for (i = 0; i < FLIERS; i++) threads[i] = start(commit_many, &a);
    while (!last) {
        uint64_t committed, ended, number, begun;
        last = GET(&a.landed) == FLIERS;
        while (gpusync_is_done(a.r.queue, done + 1)) done++;
        committed = GET(&a.committed);
        number = gpusync_in_flight(a.r.queue);
        ended = stats_of(a.r.queue).completions;
        begun = GET(&a.begun);
        if (committed > ended) assert_true(number >= committed - ended);
        assert_true(number <= begun - done);
    }
    for (i = 0; i < FLIERS; i++) join(threads[i]);
    assert_ok(gpusync_queue_wait(a.r.queue, SECONDS(60)));
    while (!gpusync_is_idle(a.r.queue)) sched_yield();
    assert_int_equal(gpusync_in_flight(a.r.queue), 0);
    rig_close(&a.r);
}

/* -- mistakes --------------------------------------------------------------------------------------- */

/* The queue still does what it should. */
static void still_works(rig *r)
{
    void *buffer;
    gpusync_ticket ticket = commit_empty(r, &buffer);
    softmetal_finish(buffer);
    assert_ok(gpusync_wait(r->queue, ticket, 0));
}

static void test_null_is_refused_everywhere(void **state)
{
    const gpusync_result invalid = GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_ticket ticket = 77;
    gpusync_queue *queue = (gpusync_queue *)(void *)&ticket;
    gpusync_ticket_info info;
    gpusync_error error;
    gpusync_stats stats;
    uint64_t cursor = 0;
    unsigned long owners;
    void *buffer = &ticket, *real;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    real = own_buffer(&r);
    owners = softmetal_retain_count(real);
    refused(&r, gpusync_device_create(NULL, NULL), invalid);
    refused(&r, gpusync_queue_create(NULL, NULL, &queue), invalid);
    assert_null(queue);
    refused(&r, gpusync_queue_create(r.device, NULL, NULL), invalid);
    refused(&r, gpusync_command_buffer(NULL, NULL, &buffer), invalid);
    assert_null(buffer);
    refused(&r, gpusync_command_buffer(r.queue, NULL, NULL), invalid);
    refused(&r, gpusync_command_buffer_discard(NULL, real), invalid);
    refused(&r, gpusync_command_buffer_discard(r.queue, NULL), invalid);
    refused(&r, gpusync_commit(NULL, real, &ticket), invalid);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    refused(&r, gpusync_commit(r.queue, NULL, NULL), invalid);
    refused(&r, gpusync_track(NULL, real, NULL), invalid);
    refused(&r, gpusync_track(r.queue, NULL, NULL), invalid);
    refused(&r, gpusync_untrack(NULL, 1), invalid);
    refused(&r, gpusync_poll(NULL, 0), invalid);
    refused(&r, gpusync_wait(NULL, 0, 0), invalid);
    refused(&r, gpusync_wait_ex(NULL, 0, 0, NULL), invalid);
    refused(&r, gpusync_queue_wait(NULL, 0), invalid);
    refused(&r, gpusync_device_wait(NULL, 0, NULL), invalid);
    refused(&r, gpusync_next_error(NULL, &cursor, &error), invalid);
    refused(&r, gpusync_next_error(r.queue, NULL, &error), invalid);
    refused(&r, gpusync_next_error(r.queue, &cursor, NULL), invalid);
    refused(&r, gpusync_get_info(NULL, 0, &info), invalid);
    refused(&r, gpusync_get_info(r.queue, 0, NULL), invalid);
    refused(&r, gpusync_get_stats(NULL, &stats), invalid);
    refused(&r, gpusync_get_stats(r.queue, NULL), invalid);
    refused(&r, gpusync_device_get_stats(NULL, &stats), invalid);
    refused(&r, gpusync_device_get_stats(r.device, NULL), invalid);
    assert_ok(gpusync_queue_destroy(NULL));
    assert_ok(gpusync_queue_destroy_now(NULL));
    assert_ok(gpusync_device_destroy(NULL));
    assert_false(gpusync_is_idle(NULL));
    assert_false(gpusync_is_done(NULL, 0));
    assert_false(gpusync_device_is_lost(NULL));
    assert_null(gpusync_device_metal(NULL));
    assert_null(gpusync_queue_metal(NULL));
    assert_int_equal(gpusync_report(NULL, NULL, 0), 0);
    assert_int_equal(softmetal_retain_count(real), owners);
    metal_release(real);
    still_works(&r);
    rig_close(&r);
}

/* Unless the call is OK. */
static void test_an_info_that_is_not_known_is_zero(void **state)
{
    static const gpusync_ticket_info zero;
    void *buffer;
    int i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    (void)commit_empty(&r, &buffer);
    for (i = 0; i < 4; i++) {
        const struct {
            gpusync_queue *queue;
            gpusync_ticket ticket;
            gpusync_result result;
        } asked[] = {{NULL, 1, GPUSYNC_ERROR_INVALID_ARGUMENT},
                     {r.queue, 0, GPUSYNC_ERROR_RESULT_UNKNOWN},
                     {r.queue, 1, GPUSYNC_NOT_READY},
                     {r.queue, 2, GPUSYNC_ERROR_INVALID_TICKET}};
        gpusync_ticket_info info;
        memset(&info, 0x55, sizeof info);
        assert_result(gpusync_get_info(asked[i].queue, asked[i].ticket, &info), asked[i].result);
        assert_memory_equal(&info, &zero, sizeof info);
    }
    softmetal_finish(buffer);
    rig_close(&r);
}

static void test_tickets_that_were_not_issued_are_refused(void **state)
{
    const gpusync_ticket top = (gpusync_ticket)1 << 63;
    const gpusync_ticket wrong[] = {3, 1000, top - 1, top, top | 2, GPUSYNC_EVERYTHING - 1};
    gpusync_ticket_info info;
    void *buffer, *tracked = NULL;
    gpusync_ticket ticket;
    size_t i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &buffer);
    if (metal4_run()) {
        commit_empty(&r, &buffer);
    } else {
        tracked = tracked_and_committed(&r, &ticket);
    }
    for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        refused(&r, gpusync_poll(r.queue, wrong[i]), GPUSYNC_ERROR_INVALID_TICKET);
        refused(&r, gpusync_wait(r.queue, wrong[i], 0), GPUSYNC_ERROR_INVALID_TICKET);
        refused(&r, gpusync_wait(r.queue, wrong[i], GPUSYNC_FOREVER), GPUSYNC_ERROR_INVALID_TICKET);
        refused(&r, gpusync_wait_ex(r.queue, wrong[i], GPUSYNC_FOREVER, NULL), GPUSYNC_ERROR_INVALID_TICKET);
        refused(&r, gpusync_get_info(r.queue, wrong[i], &info), GPUSYNC_ERROR_INVALID_TICKET);
        if (!metal4_run())
            refused(&r, gpusync_untrack(r.queue, wrong[i]), GPUSYNC_ERROR_INVALID_TICKET);
        assert_false(gpusync_is_done(r.queue, wrong[i]));
    }
    softmetal_finish_queue(r.metal_queue);
    metal_release(tracked);
    still_works(&r);
    rig_close(&r);
}

static void test_a_buffer_of_another_queue_is_refused(void **state)
{
    gpusync_queue *queue;
    void *elsewhere, *ours;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers are of no queue");
    rig_open(&r, SOFTMETAL_MANUAL);
    queue = queue_new(r.device);
    elsewhere = metal_queue_command_buffer(gpusync_queue_metal(queue));
    ours = open_buffer(&r);
    refused(&r, gpusync_commit(r.queue, elsewhere, NULL), GPUSYNC_ERROR_WRONG_QUEUE);
    refused(&r, gpusync_track(r.queue, elsewhere, NULL), GPUSYNC_ERROR_WRONG_QUEUE);
    refused(&r, gpusync_command_buffer_discard(r.queue, elsewhere), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    refused(&r, gpusync_commit(queue, ours, NULL), GPUSYNC_ERROR_WRONG_QUEUE);
    refused(&r, gpusync_command_buffer_discard(queue, ours), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    assert_int_equal(softmetal_retain_count(elsewhere), 1);
    assert_ok(gpusync_commit(r.queue, ours, NULL)); /* still open where it belongs */
    softmetal_finish(ours);
    metal_release(elsewhere);
    assert_ok(gpusync_queue_destroy(queue));
    still_works(&r);
    rig_close(&r);
}

static void test_a_buffer_that_is_committed_already_is_refused(void **state)
{
    void *ours, *foreign;
    rig r;
    (void)state;
    NOT_ON_METAL4("a buffer may be committed again");
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &ours);
    foreign = own_committed_buffer(&r);
    metal_retain(ours);
    refused(&r, gpusync_commit(r.queue, ours, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    refused(&r, gpusync_track(r.queue, ours, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    refused(&r, gpusync_command_buffer_discard(r.queue, ours), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    refused(&r, gpusync_commit(r.queue, foreign, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    refused(&r, gpusync_track(r.queue, foreign, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    softmetal_finish_queue(r.metal_queue);
    refused(&r, gpusync_commit(r.queue, ours, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    refused(&r, gpusync_track(r.queue, ours, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    metal_release(ours);
    metal_release(foreign);
    still_works(&r);
    rig_close(&r);
}

static void test_a_buffer_of_gpusync_that_its_owner_committed_is_refused(void **state)
{
    void *ours;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers are the program's");
    rig_open(&r, SOFTMETAL_MANUAL);
    ours = open_buffer(&r);
    metal_commit(ours);
    refused(&r, gpusync_commit(r.queue, ours, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    refused(&r, gpusync_track(r.queue, ours, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    metal_retain(ours);
    softmetal_finish_queue(r.metal_queue);
    assert_int_equal(rooms_taken(r.queue), 1); /* until gpusync lets go of it */
    assert_ok(gpusync_command_buffer_discard(r.queue, ours));
    assert_int_equal(rooms_taken(r.queue), 0);
    assert_int_equal(owners_of(ours), 1);
    metal_release(ours);
    still_works(&r);
    rig_close(&r);
}

static void test_tracking_twice_is_refused(void **state)
{
    void *tracked;
    rig r;
    (void)state;
    NOT_ON_METAL4("no track");
    rig_open(&r, SOFTMETAL_MANUAL);
    tracked = own_buffer(&r);
    assert_ok(gpusync_track(r.queue, tracked, NULL));
    refused(&r, gpusync_track(r.queue, tracked, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    refused(&r, gpusync_commit(r.queue, tracked, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    metal_commit(tracked);
    refused(&r, gpusync_track(r.queue, tracked, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    refused(&r, gpusync_commit(r.queue, tracked, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    softmetal_finish_queue(r.metal_queue);
    metal_release(tracked);
    still_works(&r);
    rig_close(&r);
}

static void test_discarding_twice_is_refused(void **state)
{
    void *buffer;
    rig r;
    (void)state;
    NOT_ON_METAL4("its buffers are the program's");
    rig_open(&r, SOFTMETAL_MANUAL);
    buffer = open_buffer(&r);
    metal_retain(buffer);
    assert_ok(gpusync_command_buffer_discard(r.queue, buffer));
    refused(&r, gpusync_command_buffer_discard(r.queue, buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    assert_ok(gpusync_commit(r.queue, buffer, NULL)); /* a buffer like any other now */
    softmetal_finish(buffer);
    metal_release(buffer);
    still_works(&r);
    rig_close(&r);
}

static void test_objects_that_are_no_command_buffers_or_queues_are_refused(void **state)
{
    gpusync_queue_desc desc;
    gpusync_queue *queue;
    void *string, *other_device, *other_queue;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    string = metal_string_new("no command buffer, only a longer text");
    refused(&r, either_commit(r.queue, string, NULL), GPUSYNC_ERROR_UNSUPPORTED);
    refused(&r, gpusync_track(r.queue, string, NULL), GPUSYNC_ERROR_UNSUPPORTED);
    refused(&r, gpusync_command_buffer_discard(r.queue, string), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    refused(&r, either_commit(r.queue, r.metal_queue, NULL), GPUSYNC_ERROR_UNSUPPORTED);
    memset(&desc, 0, sizeof desc);
    desc.metal_queue = string;
    refused(&r, gpusync_queue_create(r.device, &desc, &queue), GPUSYNC_ERROR_UNSUPPORTED);
    assert_null(queue);
    other_device = softmetal_new_device();
    other_queue = metal_queue_new(other_device, 64);
    desc.metal_queue = other_queue;
    refused(&r, gpusync_queue_create(r.device, &desc, &queue), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(softmetal_retain_count(other_queue), 1);
    metal_release(other_queue);
    metal_release(other_device);
    metal_release(string);
    still_works(&r);
    rig_close(&r);
}

static void test_buffers_without_the_methods_that_are_needed_are_refused(void **state)
{
    static const char *const needed[] = {"addCompletedHandler:", "commandQueue", "status", "GPUStartTime"};
    size_t i;
    (void)state;
    NOT_ON_METAL4("other methods");
    for (i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        void *buffer;
        rig r;
        rig_open(&r, SOFTMETAL_MANUAL);
        buffer = own_buffer(&r);
        softmetal_hide_selector(needed[i]);
        refused(&r, gpusync_commit(r.queue, buffer, NULL), GPUSYNC_ERROR_UNSUPPORTED);
        metal_release(buffer);
        rig_close(&r);
    }
}

static void test_half_an_allocator_is_refused(void **state)
{
    gpusync_allocator half = {NULL, memory_release, NULL};
    gpusync_device_desc device_desc;
    gpusync_device *device;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.allocator = &half;
    refused(&r, gpusync_device_create(&device_desc, &device), GPUSYNC_ERROR_INVALID_ARGUMENT);
    half.allocate = memory_allocate;
    half.release = NULL;
    refused(&r, gpusync_device_create(&device_desc, &device), GPUSYNC_ERROR_INVALID_ARGUMENT);
    still_works(&r);
    rig_close(&r);
}

static void test_what_is_no_metal_device_is_refused(void **state)
{
    void *strangers[4], *twin;
    gpusync_device_desc device_desc;
    gpusync_device *device;
    size_t i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    memset(&device_desc, 0, sizeof device_desc);
    strangers[0] = metal_retain(r.metal_queue);
    strangers[1] = metal_string_new("a device"); /* softmetal does not count its owners */
    strangers[2] = metal_buffer_new(r.metal_device, 16);
    strangers[3] = metal_shared_event_new(r.metal_device);
    for (i = 0; i < LENGTH(strangers); i++) {
        unsigned long owners = i == 1 ? 0 : softmetal_retain_count(strangers[i]);
        device = (gpusync_device *)(void *)&r;
        device_desc.metal_device = strangers[i];
        refused(&r, gpusync_device_create(&device_desc, &device), GPUSYNC_ERROR_INVALID_ARGUMENT);
        assert_null(device);
        if (i != 1) assert_int_equal(softmetal_retain_count(strangers[i]), owners);
        metal_release(strangers[i]);
    }
    device_desc.metal_device = twin = softmetal_new_twin(r.metal_device); /* a device as good as any */
    assert_ok(gpusync_device_create(&device_desc, &device));
    assert_ok(gpusync_device_destroy(device));
    metal_release(twin);
    still_works(&r);
    rig_close(&r);
}

static void test_every_result_and_failure_has_a_text_of_its_own(void **state)
{
#define RESULT(name, value, text) GPUSYNC_##name,
    static const gpusync_result results[] = {GPUSYNC_RESULTS(RESULT)};
#undef RESULT
    const char *unknown = gpusync_result_string((gpusync_result)999);
    size_t n, m;
    int i, k;
    (void)state;
#define SAYS(name, value, text) assert_string_equal(gpusync_result_string(GPUSYNC_##name), text);
    GPUSYNC_RESULTS(SAYS)
#undef SAYS
    for (n = 0; n < LENGTH(results); n++) {
        const char *text = gpusync_result_string(results[n]);
        assert_true(text[0]);
        assert_string_not_equal(text, unknown);
        for (m = n + 1; m < LENGTH(results); m++)
            assert_string_not_equal(text, gpusync_result_string(results[m]));
    }
    assert_string_equal(gpusync_result_string((gpusync_result)-9), unknown); /* a number of 0.3 that is used no more */
    for (i = GPUSYNC_FAILURE_NONE; i <= GPUSYNC_FAILURE_OTHER; i++)
        for (k = i + 1; k <= GPUSYNC_FAILURE_OTHER + 1; k++)
            assert_string_not_equal(gpusync_failure_string((gpusync_failure)i), gpusync_failure_string((gpusync_failure)k));
}

/* An argument is a pattern of the names of the tests to run: test_a_*. */
/* The allocator commits, on another thread: a program's allocator may take a mutex, and a thread that has it may commit, or
   make a command buffer. So a queue takes no memory under a lock that those need. */
static struct {
    gpusync_queue *queue;
    memory_log memory;
    void *other;
    bool commits; /* in the next call */
    unsigned committed;
} grows;

static void *commit_another(void *unused)
{
    void *made = buffer_of(grows.queue);
    must(either_commit(grows.queue, grows.other, NULL) == GPUSYNC_OK, "a commit beside one that takes memory");
    if (!metal4_run()) must(gpusync_command_buffer_discard(grows.queue, made) == GPUSYNC_OK, "it was made beside that");
    return unused;
}

static void *allocate_and_commit(void *user, size_t size, size_t alignment)
{
    if (__atomic_exchange_n(&grows.commits, false, __ATOMIC_SEQ_CST)) {
        join(start(commit_another, NULL));
        grows.committed++;
    }
    return memory_allocate(user, size, alignment);
}

static void test_no_commit_waits_for_one_that_takes_memory(void **state)
{
    enum { RING = 256 }; /* what a queue has place for without more memory */
    gpusync_allocator allocator = {allocate_and_commit, memory_release, &grows.memory};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_device *device;
    int i;
    (void)state;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    memset(&grows, 0, sizeof grows);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.allocator = &allocator;
    if (!metal4_run()) queue_desc.max_command_buffer_count = RING + 4;
    assert_ok(gpusync_device_create(&device_desc, &device));
    grows.queue = queue_of_kind(metal4_run() ? QUEUE_OF_METAL4 : QUEUE_OF_GPUSYNC, device, &queue_desc);
    must_return_within(20);
    for (i = 0; i < RING; i++) (void)commit_empty_to(grows.queue, NULL);
    grows.other = buffer_of(grows.queue);
    PUT(&grows.commits, true);
    (void)commit_empty_to(grows.queue, NULL); /* its ticket finds no place */
    assert_int_equal(grows.committed, 1);
    has_returned();
    finish_queue(grows.queue);
    assert_true(gpusync_is_idle(grows.queue));
    assert_ok(gpusync_queue_destroy(grows.queue));
    assert_ok(gpusync_device_destroy(device));
    drop_recordings();
    assert_int_equal(grows.memory.live, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_commit_waits_for_one_that_takes_memory),
        cmocka_unit_test(test_in_flight_is_the_number_of_tickets_that_have_not_ended),
        cmocka_unit_test(test_in_flight_counts_what_has_ended_behind_a_ticket_that_has_not),
        cmocka_unit_test(test_in_flight_counts_held_work),
        cmocka_unit_test(test_in_flight_counts_tracked_work),
        cmocka_unit_test(test_in_flight_is_never_too_small_while_threads_commit_and_work_ends),
        cmocka_unit_test(test_info_that_is_ok_never_has_a_result_that_is_not_ready),
        cmocka_unit_test(test_queues_that_come_and_go_leave_their_slots),
        cmocka_unit_test(test_an_open_buffer_is_kept_alive_until_it_is_discarded),
        cmocka_unit_test(test_a_committed_buffer_is_kept_until_its_handler_ran),
        cmocka_unit_test(test_a_buffer_made_elsewhere_is_retained_and_given_back),
        cmocka_unit_test(test_what_the_program_releases_after_commit_stays_for_the_handler),
        cmocka_unit_test(test_device_and_queue_are_retained_and_given_back),
        cmocka_unit_test(test_a_queue_of_the_same_gpu_is_taken_whatever_object_its_device_is),
        cmocka_unit_test(test_a_queue_that_has_no_device_is_refused),
        cmocka_unit_test(test_labels_reach_metal_and_references_stay_unretained_when_asked),
        cmocka_unit_test(test_tickets_count_from_one_in_the_order_of_commit_not_of_creation),
        cmocka_unit_test(test_ticket_order_is_queue_order_with_many_threads_committing),
        cmocka_unit_test(test_nothing_comes_between_a_ticket_and_its_commit),
        cmocka_unit_test(test_a_commit_sends_three_messages_and_four_for_a_buffer_made_elsewhere),
        cmocka_unit_test(test_a_hundred_thousand_commits_allocate_nothing_after_the_first_thousand),
        cmocka_unit_test(test_a_tracked_buffer_counts_as_committed_until_its_owner_committed_it_and_it_ended),
        cmocka_unit_test(test_a_sleeper_on_a_tracked_buffer_is_woken_by_its_end_however_it_waits),
        cmocka_unit_test(test_a_buffer_is_made_with_the_descriptor_of_the_program),
        cmocka_unit_test(test_a_descriptor_that_cannot_be_used_is_refused),
        cmocka_unit_test(test_a_buffer_that_metal_does_not_make_by_a_descriptor_takes_no_room),
        cmocka_unit_test(test_each_of_many_tracked_buffers_is_known),
        cmocka_unit_test(test_tracked_buffers_are_known_where_two_calls_make_room_for_them),
        cmocka_unit_test(test_buffers_made_elsewhere_never_wait_for_room),
        cmocka_unit_test(test_a_commit_makes_places_once_more_where_others_have_taken_them),
        cmocka_unit_test(test_a_commit_of_a_buffer_made_elsewhere_without_memory_changes_nothing),
        cmocka_unit_test(test_two_calls_that_untrack_one_ticket_end_it_once),
        cmocka_unit_test(test_untrack_cancels_the_ticket_and_gives_the_buffer_back),
        cmocka_unit_test(test_a_ticket_that_is_untracked_behind_running_work_has_ended),
        cmocka_unit_test(test_a_tracked_buffer_is_known_whatever_became_of_the_others),
        cmocka_unit_test(test_an_untracked_buffer_that_is_committed_after_all_changes_nothing),
        cmocka_unit_test(test_a_buffer_can_be_tracked_again_after_untrack),
        cmocka_unit_test(test_a_buffer_of_gpusync_can_be_tracked_and_committed_by_its_owner),
        cmocka_unit_test(test_untrack_of_what_has_ended_leaves_later_tickets_alone),
        cmocka_unit_test(test_untrack_of_an_old_ticket_leaves_what_has_its_place_alone),
        cmocka_unit_test(test_untrack_refuses_what_is_no_open_tracked_ticket),
        cmocka_unit_test(test_untrack_refuses_what_a_poll_has_seen_to_end_before_its_handler),
        cmocka_unit_test(test_the_end_of_tracked_work_wakes_every_waiter),
        cmocka_unit_test(test_a_poll_that_sees_the_end_of_tracked_work_wakes_every_waiter),
        cmocka_unit_test(test_to_track_needs_nothing_that_metal_may_not_have),
        cmocka_unit_test(test_an_empty_buffer_behind_work_of_other_code_tells_its_end_and_not_its_failure),
        cmocka_unit_test(test_queue_wait_is_not_extended_by_work_tracked_later),
        cmocka_unit_test(test_a_failure_of_tracked_work_is_told_like_any_other),
        cmocka_unit_test(test_finished_tracked_work_is_dropped_so_what_is_kept_stays_bounded),
        cmocka_unit_test(test_finished_tracked_work_is_let_go_when_metal_lets_go),
        cmocka_unit_test(test_waits_for_tracked_work_end_on_the_real_clock_however_they_wait),
        cmocka_unit_test(test_what_the_hooks_put_into_a_waiter_is_there_in_its_next_wait),
        cmocka_unit_test(test_a_poll_wakes_a_sleeper_for_tracked_work),
        cmocka_unit_test(test_a_full_queue_is_waited_for_no_longer_than_asked),
        cmocka_unit_test(test_a_thread_that_waits_for_room_is_woken_by_a_completion_and_by_a_discard),
        cmocka_unit_test(test_room_that_another_thread_took_is_waited_for_again_and_woken_for_again),
        cmocka_unit_test(test_many_threads_share_a_short_queue),
        cmocka_unit_test(test_metal_is_never_asked_for_more_buffers_than_its_queue_holds),
        cmocka_unit_test(test_making_a_buffer_does_not_block_while_a_callback_runs),
        cmocka_unit_test(test_null_is_refused_everywhere),
        cmocka_unit_test(test_an_info_that_is_not_known_is_zero),
        cmocka_unit_test(test_tickets_that_were_not_issued_are_refused),
        cmocka_unit_test(test_a_buffer_of_another_queue_is_refused),
        cmocka_unit_test(test_a_buffer_that_is_committed_already_is_refused),
        cmocka_unit_test(test_a_buffer_of_gpusync_that_its_owner_committed_is_refused),
        cmocka_unit_test(test_tracking_twice_is_refused),
        cmocka_unit_test(test_discarding_twice_is_refused),
        cmocka_unit_test(test_objects_that_are_no_command_buffers_or_queues_are_refused),
        cmocka_unit_test(test_buffers_without_the_methods_that_are_needed_are_refused),
        cmocka_unit_test(test_half_an_allocator_is_refused),
        cmocka_unit_test(test_what_is_no_metal_device_is_refused),
        cmocka_unit_test(test_every_result_and_failure_has_a_text_of_its_own),
        cmocka_unit_test(test_a_lost_handler_does_not_cost_its_room),
        cmocka_unit_test(test_tracked_work_whose_handler_is_lost_gives_its_room_back),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
