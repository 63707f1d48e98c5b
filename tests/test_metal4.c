/* test_metal4.c - queues of Metal 4: how they are made, what they commit, how that ends, what they refuse

   What is the same for either kind of queue is in the other programs, which run on both. */
#include "probe.h"
#include "clock.h"
#include "stage.h"

static const gpusync_queue_desc of_metal4 = {.metal4 = true, .label = "four"};

static void open_four(stage *s, softmetal_clock clock, unsigned queues)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    open_stage_on(s, clock, QUEUE_OF_METAL4, queues, device_desc, queue_desc);
}

/* A queue of Metal 4 first, one of the old kind second. */
static void open_mixed(stage *s, softmetal_clock clock)
{
    open_four(s, clock, 1);
    s->q[1] = queue_of_kind(QUEUE_OF_THE_PROGRAM, s->device, &(gpusync_queue_desc){.label = "second"});
    s->metal[1] = gpusync_queue_metal(s->q[1]);
}

/* An ended one (+1) that fills a byte, with an allocator that the test releases. memory NULL: it does nothing. */
static void *ended_buffer(stage *s, void *allocator, void *memory, size_t offset, unsigned char byte)
{
    void *buffer = metal4_buffer_new(s->rig.metal_device);
    softmetal_prepare_run(buffer, s->metal[0]);
    metal4_begin(buffer, allocator);
    if (memory) fill(buffer, memory, offset, byte);
    metal4_end(buffer);
    return buffer;
}

static gpusync_ticket commit_four(stage *s, void *const *buffers, size_t count)
{
    gpusync_ticket ticket = 0;
    assert_ok(gpusync_commit4(s->q[0], buffers, count, &ticket));
    return ticket;
}

static void *newest_run(stage *s) { return softmetal_last_buffer(s->metal[0]); }

/* -- how one is made ------------------------------------------------------------------------------------------ */

static gpusync_result create(gpusync_device *device, gpusync_queue_desc desc)
{
    gpusync_queue *queue = (gpusync_queue *)&desc;
    gpusync_result result = gpusync_queue_create(device, &desc, &queue);
    assert_int_equal(result == GPUSYNC_OK, queue != NULL);
    if (!queue) return result;
    assert_true(is_metal4(queue));
    assert_ok(gpusync_queue_destroy(queue));
    return result;
}

static void test_a_queue_is_made_or_given(void **state)
{
    gpusync_queue_desc desc = of_metal4, given;
    gpusync_queue *queue;
    char label[16];
    void *metal, *pool;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    assert_ok(create(r.device, desc));
    desc.label = NULL;
    assert_ok(create(r.device, desc));
    desc = of_metal4;
    assert_ok(gpusync_queue_create(r.device, &desc, &queue));
    pool = metal_pool_push();
    metal_string_copy(metal_get(gpusync_queue_metal(queue), "label"), label, sizeof label);
    metal_pool_pop(pool);
    assert_string_equal(label, "four");
    assert_ok(gpusync_queue_destroy(queue));

    memset(&given, 0, sizeof given);
    given.metal_queue = metal = metal4_queue_new(r.metal_device);
    assert_ok(create(r.device, given));
    given.metal4 = true; /* it is one: the same */
    assert_ok(create(r.device, given));
    assert_int_equal(softmetal_retain_count(metal), 1);
    metal_release(metal);
    rig_close(&r);
}

static void test_a_queue_is_refused(void **state)
{
    static const char *const missing[] = {"newMTL4CommandQueue", "supportsFamily:", "commit:count:options:",
                                          "signalEvent:value:", "waitForEvent:value:"};
    gpusync_queue_desc desc, given;
    softmetal_quirks quirks;
    void *other;
    size_t i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_REAL);
    memset(&given, 0, sizeof given);
    given.metal_queue = metal4_queue_new(r.metal_device);
    desc = of_metal4;
    desc.metal_queue = r.metal_queue; /* of the old kind */
    assert_result(create(r.device, desc), GPUSYNC_ERROR_UNSUPPORTED);
    softmetal_fail_creation(1, false);
    assert_result(create(r.device, of_metal4), GPUSYNC_ERROR_METAL_NIL);
    softmetal_fail_creation(0, false);
    softmetal_get_quirks(&quirks);
    quirks.no_metal4_family = true; /* the class has the methods, and the device is of no such family */
    softmetal_set_quirks(&quirks);
    assert_result(create(r.device, of_metal4), GPUSYNC_ERROR_UNSUPPORTED);
    assert_ok(create(r.device, given)); /* it is there, whatever the device says */
    quirks.no_metal4_family = false;
    softmetal_set_quirks(&quirks);
    softmetal_hide_class("MTL4CommitOptions");
    assert_result(create(r.device, of_metal4), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(create(r.device, given), GPUSYNC_ERROR_UNSUPPORTED);
    softmetal_hide_class("MTL4CommandQueueDescriptor"); /* then it has no label */
    assert_ok(create(r.device, of_metal4));
    softmetal_hide_class(NULL);
    softmetal_hide_selector("newMTL4CommandQueueWithDescriptor:error:");
    assert_ok(create(r.device, of_metal4));

    other = softmetal_new_device();
    metal_release(given.metal_queue);
    given.metal_queue = metal4_queue_new(other);
    assert_result(create(r.device, given), GPUSYNC_ERROR_INVALID_ARGUMENT);
    metal_release(given.metal_queue);
    metal_release(other);
    rig_close(&r);

    for (i = 0; i < LENGTH(missing); i++) {
        rig_open(&r, SOFTMETAL_REAL);
        given.metal_queue = i > 1 ? metal4_queue_new(r.metal_device) : NULL; /* the first two are the device's */
        softmetal_hide_selector(missing[i]);
        assert_result(create(r.device, i > 1 ? given : of_metal4), GPUSYNC_ERROR_UNSUPPORTED);
        metal_release(given.metal_queue);
        rig_close(&r);
    }
}

/* -- what it commits -------------------------------------------------------------------------------------------- */

static void test_one_ticket_for_what_is_committed_together(void **state)
{
    void *buffers[5], *allocators[5], *memory;
    gpusync_ticket_info info;
    gpusync_ticket first, all;
    size_t i;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_REAL, 1);
    memory = memory_of(&s, 8);
    for (i = 0; i < 5; i++) {
        allocators[i] = metal4_allocator_new(s.rig.metal_device);
        buffers[i] = ended_buffer(&s, allocators[i], memory, i, (unsigned char)(i + 1));
    }
    first = commit_four(&s, buffers, 1);
    all = commit_four(&s, buffers + 1, 4);
    assert_int_equal(first, 1);
    assert_int_equal(all, 2);
    for (i = 0; i < 5; i++) metal_release(buffers[i]); /* gpusync keeps them */
    assert_ok(gpusync_wait(s.q[0], all, SECONDS(20)));
    assert_true(gpusync_is_idle(s.q[0]));
    for (i = 0; i < 5; i++) assert_int_equal(bytes_of(memory)[i], i + 1);
    assert_ok(gpusync_get_info(s.q[0], all, &info));
    assert_true(info.gpu_end_s >= info.gpu_start_s && info.gpu_start_s > 0);
    assert_true(softmetal_settle(SECONDS(20)));
    assert_int_equal(softmetal_live("command_buffer4"), 0);
    for (i = 0; i < 5; i++) {
        metal4_allocator_reset(allocators[i]);
        metal_release(allocators[i]);
    }
    metal_release(memory);
    close_stage(&s);
}

/* Apple's own sample has one command buffer, and an allocator for each frame in flight. */
static void test_a_buffer_is_begun_again_while_it_is_in_flight(void **state)
{
    void *allocators[3], *memory, *buffer = NULL, *runs[3];
    gpusync_ticket tickets[3];
    size_t i;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    memory = memory_of(&s, 4);
    buffer = metal4_buffer_new(s.rig.metal_device);
    for (i = 0; i < 3; i++) {
        allocators[i] = metal4_allocator_new(s.rig.metal_device);
        metal4_begin(buffer, allocators[i]);
        fill(buffer, memory, i, (unsigned char)(i + 7));
        metal4_end(buffer);
        tickets[i] = commit_four(&s, &buffer, 1);
        runs[i] = newest_run(&s);
    }
    for (i = 0; i < 3; i++) {
        assert_result(gpusync_poll(s.q[0], tickets[i]), GPUSYNC_NOT_READY);
        softmetal_finish(runs[i]);
        assert_ok(gpusync_poll(s.q[0], tickets[i]));
        assert_int_equal(bytes_of(memory)[i], i + 7);
        metal4_allocator_reset(allocators[i]); /* aborts where its work may still run */
        metal_release(allocators[i]);
    }
    metal_release(buffer);
    metal_release(memory);
    close_stage(&s);
}

static void test_what_is_not_to_be_committed_is_refused(void **state)
{
    gpusync_ticket ticket;
    void *allocator, *both[2], *old;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    allocator = metal4_allocator_new(s.rig.metal_device);
    both[0] = both[1] = ended_buffer(&s, allocator, NULL, 0, 0);
#define REFUSES(expected, queue, buffers, count)                                  \
    do {                                                                          \
        ticket = 99;                                                              \
        assert_result(gpusync_commit4(queue, buffers, count, &ticket), expected); \
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);                              \
    } while (0)
    REFUSES(GPUSYNC_ERROR_INVALID_ARGUMENT, NULL, both, 1);
    REFUSES(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], NULL, 1);
    REFUSES(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], both, 0);
    REFUSES(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], both, 2); /* twice the same */
    REFUSES(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], both, SIZE_MAX);
    REFUSES(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], both, (size_t)1 << 60);
    REFUSES(GPUSYNC_ERROR_UNSUPPORTED, s.q[1], both, 1);      /* a queue of the old kind */
    both[1] = NULL;
    REFUSES(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], both, 2);
    REFUSES(GPUSYNC_ERROR_INVALID_ARGUMENT, s.q[0], both + 1, 1);
    old = kept_buffer_of(s.q[1]);
    both[1] = old;
    REFUSES(GPUSYNC_ERROR_UNSUPPORTED, s.q[0], both, 2);
    REFUSES(GPUSYNC_ERROR_UNSUPPORTED, s.q[0], &old, 1);
    softmetal_fail_creation(1, false); /* no options */
    REFUSES(GPUSYNC_ERROR_METAL_NIL, s.q[0], both, 1);
    softmetal_fail_creation(0, false);
    assert_result(gpusync_commit(s.q[0], both[0], NULL), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_commit(s.q[0], old, NULL), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_commit(s.q[1], both[0], NULL), GPUSYNC_ERROR_UNSUPPORTED);
    assert_true(gpusync_is_idle(s.q[0]));
    (void)commit_four(&s, both, 1); /* nothing was lost */
    finish(&s, 0);
    metal4_begin(both[0], allocator);
    metal4_end(both[0]);
    REFUSES(GPUSYNC_ERROR_UNSUPPORTED, s.q[0], both, 2); /* also behind one of a class that the queue knows by now */
#undef REFUSES
    assert_ok(gpusync_command_buffer_discard(s.q[1], old));
    metal_release(old);
    metal_release(both[0]);
    metal_release(allocator);
    close_stage(&s);
}

/* Of several command buffers gpusync keeps an array. Without one nothing is committed, and nothing is kept. */
static void test_without_an_array_several_are_refused(void **state)
{
    gpusync_submission both = {.command_buffer_count = 2};
    gpusync_ticket ticket = 99;
    void *allocators[2], *buffers[2];
    size_t i;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 2; i++) {
        allocators[i] = metal4_allocator_new(s.rig.metal_device);
        buffers[i] = ended_buffer(&s, allocators[i], NULL, 0, 0);
    }
    both.command_buffers = buffers;
    softmetal_hide_class("NSArray");
    assert_result(gpusync_commit4(s.q[0], buffers, 2, &ticket), GPUSYNC_ERROR_METAL_NIL);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    ticket = 99;
    assert_result(gpusync_submit(s.q[0], &both, &ticket), GPUSYNC_ERROR_METAL_NIL);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    assert_int_equal(softmetal_live("commit_options"), 0);
    for (i = 0; i < 2; i++) assert_int_equal(softmetal_retain_count(buffers[i]), 1);
    (void)commit_four(&s, buffers, 1); /* one alone needs none */
    softmetal_hide_class(NULL);
    finish(&s, 0);
    for (i = 0; i < 2; i++) {
        metal_release(buffers[i]);
        metal_release(allocators[i]);
    }
    close_stage(&s);
}

static void test_what_has_no_meaning_is_refused(void **state)
{
    const gpusync_wait_options blocking = {.blocking = true};
    gpusync_warmup *warmup = NULL;
    gpusync_ticket ticket;
    void *buffer, *made = &ticket;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    buffer = buffer_of(s.q[0]);
    assert_result(gpusync_command_buffer(s.q[0], NULL, &made), GPUSYNC_ERROR_UNSUPPORTED);
    assert_null(made);
    assert_result(gpusync_command_buffer_discard(s.q[0], buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
    assert_result(gpusync_encode_wait(s.q[0], buffer, at(s.a, 1)), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_encode_signal(s.q[0], buffer, at(s.a, 1)), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_track(s.q[0], buffer, &ticket), GPUSYNC_ERROR_UNSUPPORTED);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    REFUSED(GPUSYNC_ERROR_UNSUPPORTED, s.q[0], SIGNALS(at(s.a, 1)));
    (void)SUBMIT(s.q[0], WAITS(at(s.b, 1)), BUFFERS(open_on(&s, 0)));
    assert_result(gpusync_commit(s.q[0], buffer, &ticket), GPUSYNC_ERROR_UNSUPPORTED); /* nor behind held work */
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_ok(gpusync_cancel_held(s.q[0]));
    assert_result(gpusync_warmup_start(s.device, &(gpusync_warmup_desc){.queue = s.q[0]}, &warmup),
                  GPUSYNC_ERROR_UNSUPPORTED);
    assert_null(warmup);
    ticket = commit_to(s.q[0], buffer);
    assert_result(gpusync_wait_ex(s.q[0], ticket, 0, &blocking), GPUSYNC_ERROR_UNSUPPORTED);
    assert_result(gpusync_untrack(s.q[0], ticket), GPUSYNC_ERROR_INVALID_TICKET);
    assert_ok(gpusync_timeline_signal(s.a, 1)); /* No work is to signal it */
    close_stage(&s);
}

/* New, addFeedbackHandler:, commit; an array where there are several. Each buffer is retained, and released. (The first
   commit of a queue looks twice: it finds no memory, and makes some without a lock.) */
static void test_a_commit_sends_few_messages(void **state)
{
    size_t counts[] = {1, 2, 8}, i, k;
    void *buffers[8];
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    end_recording(buffers[0] = buffer_of(s.q[0]));
    (void)commit_four(&s, buffers, 1);
    finish(&s, 0);
    for (i = 0; i < LENGTH(counts); i++) {
        uint64_t before, retains;
        for (k = 0; k < counts[i]; k++) end_recording(buffers[k] = buffer_of(s.q[0]));
        before = softmetal_thread_messages();
        retains = softmetal_retain_count_calls();
        (void)commit_four(&s, buffers, counts[i]);
        before = softmetal_thread_messages() - before;
        retains = softmetal_retain_count_calls() - retains;
        assert_int_equal(before, counts[i] == 1 ? 3 : 4);
        assert_true(before + retains <= 4 + 2 * counts[i]);
        finish(&s, 0);
    }
    close_stage(&s);
}

/* The framework takes the handlers out of the options. Were they to stay, nothing would be told twice. */
static void test_each_commit_has_options_of_its_own(void **state)
{
    softmetal_quirks quirks;
    outcome told[4];
    size_t i;
    int keep;
    stage s;
    (void)state;
    for (keep = 0; keep < 2; keep++) {
        open_four(&s, SOFTMETAL_REAL, 1);
        softmetal_get_quirks(&quirks);
        quirks.options_keep_handlers = keep;
        softmetal_set_quirks(&quirks);
        memset(told, 0, sizeof told);
        for (i = 0; i < LENGTH(told); i++)
            assert_ok(gpusync_on_done(after(s.q[0], commit_on(&s, 0)), remember, &told[i]));
        for (i = 0; i < LENGTH(told); i++) assert_ended(&told[i], GPUSYNC_OK);
        assert_int_equal(softmetal_message_count("addFeedbackHandler:"), 4);
        close_stage(&s);
    }
}

/* The count bounds what is held, and no commit. */
static void test_the_limit_counts_commits_and_bounds_what_is_held(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_ticket ticket;
    void *buffers[6];
    size_t i;
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = 2;
    open_stage_on(&s, SOFTMETAL_MANUAL, QUEUE_OF_METAL4, 1, device_desc, queue_desc);
    for (i = 0; i < 6; i++) end_recording(buffers[i] = buffer_of(s.q[0]));
    (void)commit_four(&s, buffers, 3); /* one commit */
    assert_int_equal(rooms_taken(s.q[0]), 1);
    assert_true(reports(s.device, ", buffers 1 of 2"));
    for (i = 3; i < 6; i++) (void)commit_four(&s, buffers + i, 1);
    assert_int_equal(rooms_taken(s.q[0]), 4);
    finish(&s, 0);
    assert_int_equal(rooms_taken(s.q[0]), 0);
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(buffer_of(s.q[0]), buffer_of(s.q[0])));
    assert_int_equal(rooms_taken(s.q[0]), 1);
    buffers[0] = buffer_of(s.q[0]);
    assert_result(either_commit(s.q[0], buffers[0], &ticket), GPUSYNC_ERROR_QUEUE_FULL);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    (void)commit_to(s.q[0], buffers[0]);
    close_stage(&s);

    open_four(&s, SOFTMETAL_MANUAL, 1); /* without one there is none: Metal 4 has none */
    for (i = 0; i < 100; i++) (void)commit_on(&s, 0);
    assert_int_equal(softmetal_outstanding(s.metal[0]), 100);
    assert_true(reports(s.device, "'first': Metal 4, committed 100, completed 0, failed 0, buffers 100\n"));
    close_stage(&s);
}

/* -- how it ends ------------------------------------------------------------------------------------------------ */

/* No status is asked, and no event: what has run is not over before its feedback. */
static void test_the_feedback_alone_tells_of_the_end(void **state)
{
    gpusync_ticket ticket;
    uint64_t messages;
    void *buffer;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    buffer = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)));
    softmetal_complete(buffer); /* and the signal has come */
    assert_int_equal(raw_of(s.a), 1);
    messages = softmetal_thread_messages();
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(s.q[0], ticket, 0), GPUSYNC_TIMEOUT);
    assert_int_equal(value_of(s.a), 0);
    assert_int_equal(softmetal_thread_messages(), messages);
    softmetal_run_handler(buffer, 0);
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_int_equal(value_of(s.a), 1);
    softmetal_finish(buffer);
    close_stage(&s);
}

/* Sweeps find nothing. Destroy without a wait leaves the commit, and what it uses, to the feedback. */
static void test_without_its_feedback_it_has_not_ended(void **state)
{
    gpusync_ticket ticket;
    void *buffer, *metal;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    softmetal_let_timers_run(true);
    ticket = commit_to(s.q[0], buffer = open_on(&s, 0));
    softmetal_complete(buffer);
    assert_result(gpusync_wait(s.q[0], ticket, MS(120)), GPUSYNC_TIMEOUT);
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    metal = metal_retain(s.metal[0]);
    take_down_queue(&s, 0, true);
    assert_int_equal(softmetal_retain_count(metal), 2); /* the test, and softmetal's run */
    softmetal_finish(buffer);
    metal_release(metal);
    close_stage(&s);
}

typedef struct failing {
    unsigned number;
    long code; /* that softmetal makes of it */
    const char *text;
    gpusync_failure failure;
} failing;

/* Of three levels the middle one, though the outer one may be missing. test_failures.c has all classes. */
static void test_the_error_inside_the_error_is_told(void **state)
{
    static const failing list[] = {
        {SOFTMETAL_HANG, 1, "Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)",
         GPUSYNC_FAILURE_TIMEOUT},
        {SOFTMETAL_PAGE_FAULT, 6, "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)",
         GPUSYNC_FAILURE_PAGE_FAULT},
        {SOFTMETAL_OUT_OF_MEMORY, 3, "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
         GPUSYNC_FAILURE_OUT_OF_MEMORY},
        {SOFTMETAL_SUBMISSIONS_IGNORED, 5,
         "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)",
         GPUSYNC_FAILURE_ACCESS_REVOKED},
        {SOFTMETAL_INTERNAL, 6, "Internal Error (00000813:Internal Error)", GPUSYNC_FAILURE_OTHER},
    };
    softmetal_quirks quirks;
    gpusync_error error;
    void *buffers[2], *buffer;
    size_t i;
    int bare, several;
    stage s;
    (void)state;
    for (bare = 0; bare < 2; bare++)
        for (i = 0; i < LENGTH(list); i++)
            for (several = 0; several < 2; several++) {
                const failing *f = &list[i];
                gpusync_ticket ticket;
                open_four(&s, SOFTMETAL_MANUAL, 1);
                softmetal_get_quirks(&quirks);
                quirks.bare_feedback_errors = bare;
                softmetal_set_quirks(&quirks);
                end_recording(buffers[0] = buffer = OPEN(s.q[0], .label = "the culprit"));
                end_recording(buffers[1] = OPEN(s.q[0], .label = "another"));
                softmetal_fail_as(buffer, f->number, NULL);
                ticket = commit_four(&s, buffers, 1 + (size_t)several);
                finish(&s, 0);
                error = error_of(s.q[0], ticket);
                assert_result(error.result, GPUSYNC_ERROR_EXECUTION);
                assert_int_equal(error.failure, f->failure);
                assert_int_equal(error.code, f->code);
                assert_string_equal(error.domain, "MTL4CommandQueueErrorDomain");
                assert_string_equal(error.message, f->text);
                assert_string_equal(error.label, "the culprit");
                assert_string_equal(error.queue_label, "first");
                assert_int_equal(gpusync_device_is_lost(s.device), f->number == SOFTMETAL_SUBMISSIONS_IGNORED);
                close_stage(&s);
            }
}

/* One that has none inside, and no user info to look for it in, is told as it is. */
static void test_an_error_with_nothing_inside_is_told_as_it_is(void **state)
{
    gpusync_error error;
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    end_recording(buffer = OPEN(s.q[0], .label = "the culprit"));
    softmetal_fail(buffer, "MTL4CommandQueueErrorDomain", 1, "the reason is not known");
    ticket = commit_four(&s, &buffer, 1);
    finish(&s, 0);
    error = error_of(s.q[0], ticket);
    assert_result(error.result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error.code, 1);
    assert_string_equal(error.domain, "MTL4CommandQueueErrorDomain");
    assert_string_equal(error.message, "the reason is not known");
    close_stage(&s);
}

/* The domain decides before the code: the numbers of the one mean other things in the other. */
static void test_the_domain_decides_before_the_code(void **state)
{
    gpusync_ticket ticket;
    void *buffer;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    buffer = open_on(&s, 0);
    softmetal_fail(buffer, "MTLCommandBufferErrorDomain", 8, "old");
    ticket = commit_to(s.q[0], buffer);
    finish(&s, 0);
    assert_int_equal(error_of(s.q[0], ticket).failure, GPUSYNC_FAILURE_OUT_OF_MEMORY);
    buffer = open_on(&s, 0);
    softmetal_fail(buffer, "AnotherDomain", 3, "PageFault");
    ticket = commit_to(s.q[0], buffer);
    finish(&s, 0);
    assert_int_equal(error_of(s.q[0], ticket).failure, GPUSYNC_FAILURE_OTHER);
    buffer = open_on(&s, 1);
    softmetal_fail(buffer, NULL, 3, "page");
    ticket = commit_to(s.q[1], buffer);
    finish(&s, 1);
    assert_int_equal(error_of(s.q[1], ticket).failure, GPUSYNC_FAILURE_PAGE_FAULT);
    close_stage(&s);
}

/* -- waits and signals, operations of the queue ------------------------------------------------------------------- */

static void test_waits_and_signals_are_operations_of_the_queue(void **state)
{
    gpusync_ticket ticket;
    void *work;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 3)));
    work = open_on(&s, 0);
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 3)), BUFFERS(work, open_on(&s, 0)), SIGNALS(at(s.b, 5), at(s.c, 1)));
    assert_count("waitForEvent:value:", 0, 1);
    assert_count("signalEvent:value:", 0, 2); /* and none of gpusync's own */
    assert_count("commit:count:options:", 0, 1);
    assert_count("commandBuffer", 0, 2); /* for the old queue: the work, and the signal behind it */
    assert_int_equal(softmetal_what_is_due(work), SOFTMETAL_WAIT_DUE);
    finish(&s, 1);
    assert_int_equal(softmetal_what_is_due(work), SOFTMETAL_COMPLETE_DUE);
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_int_equal(value_of(s.b), 5);
    assert_int_equal(raw_of(s.b), 5);
    assert_int_equal(value_of(s.c), 1);
    close_stage(&s);
}

/* Values and tickets go both ways, on the real clock. */
static void test_both_kinds_of_queue_take_turns(void **state)
{
    unsigned i, turns = 200 / SLOW + 2;
    gpusync_ticket last = 0;
    void *memory;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_REAL);
    memory = memory_of(&s, 2);
    for (i = 0; i < turns; i++) {
        void *four, *old;
        if (i % 16 == 0) assert_ok(gpusync_wait(s.q[0], last, SECONDS(20))); /* what waits for a ticket is held: room */
        four = open_on(&s, 0);
        old = open_on(&s, 1);
        copy(four, memory, 1, memory, 0);
        fill(old, memory, 1, (unsigned char)(i + 1));
        last = SUBMIT(s.q[1], WAITS(at(s.a, i)), BUFFERS(old), SIGNALS(at(s.b, i + 1)), .flags = SIGNALS_INSIDE);
        last = i % 2 ? SUBMIT(s.q[0], WAITS(after(s.q[1], last)), BUFFERS(four), SIGNALS(at(s.a, i + 1)))
                     : SUBMIT(s.q[0], WAITS(at(s.b, i + 1)), BUFFERS(four), SIGNALS(at(s.a, i + 1)));
    }
    assert_ok(gpusync_wait(s.q[0], last, SECONDS(20)));
    assert_int_equal(bytes_of(memory)[0], (unsigned char)turns);
    assert_ok(gpusync_device_wait(s.device, SECONDS(20), NULL));
    metal_release(memory);
    close_stage(&s);
}

/* Metal gives a wait up after a while, runs the work, and reports no error. */
static void test_a_wait_that_was_given_up_is_a_timeout(void **state)
{
    gpusync_ticket producer, consumer, behind;
    gpusync_error error;
    void *work;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    work = open_on(&s, 1);
    producer = SUBMIT(s.q[1], BUFFERS(work), SIGNALS(at(s.a, 1)));
    consumer = SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(OPEN(s.q[0], .label = "hasty")), SIGNALS(at(s.b, 1)));
    softmetal_time_out(newest_run(&s));
    softmetal_finish(newest_run(&s)); /* without an error */
    assert_result(gpusync_poll(s.q[0], consumer), GPUSYNC_NOT_READY); /* what it waits for may still fail first */
    finish(&s, 1);
    assert_ok(gpusync_poll(s.q[1], producer));
    assert_result(gpusync_poll(s.q[0], consumer), GPUSYNC_ERROR_EXECUTION);
    error = error_of(s.q[0], consumer);
    assert_int_equal(error.failure, GPUSYNC_FAILURE_TIMEOUT);
    assert_string_equal(error.label, "hasty");
    assert_string_equal(error.queue_label, "first");
    assert_int_equal(error.ticket, consumer);
    assert_int_equal(error.code, 0);
    assert_string_equal(error.domain, "");
    assert_int_equal(error_at(s.b, 1).failure, GPUSYNC_FAILURE_TIMEOUT);
    behind = commit_on(&s, 0); /* later work is not concerned */
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], behind));
    close_stage(&s);
}

static void test_a_wait_that_was_given_up_in_front_of_several_command_buffers_is_a_timeout(void **state)
{
    gpusync_ticket consumer;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 1)));
    consumer = SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(open_on(&s, 0), open_on(&s, 0)), SIGNALS(at(s.b, 1)));
    softmetal_time_out(softmetal_first_in_line(s.metal[0]));
    finish(&s, 0);
    finish(&s, 1);
    assert_result(gpusync_poll(s.q[0], consumer), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error_of(s.q[0], consumer).failure, GPUSYNC_FAILURE_TIMEOUT);
    assert_int_equal(error_at(s.b, 1).failure, GPUSYNC_FAILURE_TIMEOUT);
    close_stage(&s);
}

/* It cannot be told from a wait that was met. */
static void test_a_value_that_comes_late_hides_the_timeout(void **state)
{
    gpusync_ticket consumer;
    void *run;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 1)));
    consumer = SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(open_on(&s, 0)));
    run = newest_run(&s);
    softmetal_time_out(run);
    softmetal_complete(run);
    finish(&s, 1);
    softmetal_finish(run);
    assert_ok(gpusync_poll(s.q[0], consumer));
    close_stage(&s);
}

/* For a ticket the host waits, on either kind of queue: the GPU gets no wait that could be given up. */
static void test_a_wait_for_a_ticket_is_no_operation_of_the_queue(void **state)
{
    gpusync_ticket producer, consumer;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    producer = commit_on(&s, 1);
    consumer = SUBMIT(s.q[0], WAITS(after(s.q[1], producer)), BUFFERS(open_on(&s, 0)));
    assert_int_equal(held_on(s.device, s.q[0]), 1);
    assert_int_equal(softmetal_outstanding(s.metal[0]), 0);
    finish(&s, 1);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    assert_count("commit:count:options:", 0, 1);
    assert_count("waitForEvent:value:", 0, 0);
    producer = commit_on(&s, 0); /* and the other way round */
    (void)SUBMIT(s.q[1], WAITS(after(s.q[0], producer)), BUFFERS(open_on(&s, 1)));
    assert_int_equal(held_on(s.device, s.q[1]), 1);
    finish(&s, 0);
    assert_int_equal(held_on(s.device, s.q[1]), 0);
    assert_count("signalEvent:value:", 0, 0);
    assert_ok(gpusync_poll(s.q[0], consumer));
    close_stage(&s);
}

/* Where the work failed by itself, its error counts: the feedback has it, and then the wait is not looked at. */
static void test_an_error_counts_more_than_a_wait_that_was_given_up(void **state)
{
    gpusync_ticket consumer;
    void *buffer;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 1)));
    buffer = open_on(&s, 0);
    softmetal_fail(buffer, NULL, 3, "no memory");
    consumer = SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(buffer));
    softmetal_time_out(buffer);
    finish(&s, 0);
    finish(&s, 1);
    assert_int_equal(error_of(s.q[0], consumer).failure, GPUSYNC_FAILURE_OUT_OF_MEMORY);
    close_stage(&s);
}

/* Whether signals fire behind failed work is not known. No work hangs either way: the timeline's own event gets the
   value of the failure. */
static void test_a_failed_producer_lets_its_consumers_go(void **state)
{
    softmetal_quirks quirks;
    gpusync_ticket consumer, last;
    gpusync_error error;
    void *buffer;
    int die;
    stage s;
    (void)state;
    for (die = 0; die < 2; die++) {
        open_mixed(&s, SOFTMETAL_REAL);
        softmetal_get_quirks(&quirks);
        quirks.signals_die_with_failure = die;
        softmetal_set_quirks(&quirks);
        buffer = OPEN(s.q[0], .label = "the culprit");
        softmetal_fail(buffer, "TestDomain", 42, "it broke");
        (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, 1)));
        consumer = SUBMIT(s.q[1], WAITS(at(s.a, 1)), BUFFERS(open_on(&s, 1)));
        assert_result(gpusync_wait(s.q[1], consumer, SECONDS(20)), GPUSYNC_ERROR_EXECUTION);
        error = error_of(s.q[1], consumer);
        assert_original(&error, "first", 1);
        last = SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.b, 1))); /* signals fire again */
        assert_ok(gpusync_wait(s.q[0], last, SECONDS(20)));
        close_stage(&s);
    }
}

static void test_held_work_keeps_its_recordings(void **state)
{
    void *one, *list[3], *other;
    gpusync_ticket ticket;
    unsigned flags;
    stage s;
    (void)state;
    for (flags = 0; flags <= GPUSYNC_UNORDERED; flags += GPUSYNC_UNORDERED) {
        open_four(&s, SOFTMETAL_MANUAL, 1);
        one = open_on(&s, 0);
        list[0] = open_on(&s, 0);
        list[1] = open_on(&s, 0);
        list[2] = open_on(&s, 0);
        other = open_on(&s, 0);
        (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(one), .flags = flags);
        (void)SUBMIT(s.q[0], WAITS(at(s.a, 2)), .command_buffers = list, .command_buffer_count = 3, .flags = flags);
        assert_int_equal(held_on(s.device, s.q[0]), 2);
        assert_result(gpusync_commit4(s.q[0], &one, 1, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
        assert_result(gpusync_commit4(s.q[0], &list[2], 1, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
        end_recording(other);
        assert_result(gpusync_commit4(s.q[0], LIST(void *const, other, list[1]), 2, &ticket),
                      GPUSYNC_ERROR_ALREADY_TRACKED);
        REFUSED(GPUSYNC_ERROR_ALREADY_TRACKED, s.q[0], BUFFERS(other, one));
        ticket = commit_to(s.q[0], other); /* held behind them, or not */
        assert_int_equal(held_on(s.device, s.q[0]), flags ? 2 : 3);
        if (!flags) assert_result(gpusync_commit4(s.q[0], &other, 1, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
        assert_ok(gpusync_timeline_signal(s.a, 2));
        finish(&s, 0);
        assert_ok(gpusync_queue_wait(s.q[0], 0));
        assert_int_equal(held_on(s.device, s.q[0]), 0);
        close_stage(&s);
    }
}

/* In either line, that of the unordered ones too. */
static void test_what_is_held_is_found_in_either_line(void **state)
{
    void *loose, *lined;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    loose = open_on(&s, 0);
    lined = open_on(&s, 0);
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(loose), .flags = GPUSYNC_UNORDERED);
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(lined));
    assert_result(gpusync_commit4(s.q[0], &loose, 1, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    assert_result(gpusync_commit4(s.q[0], &lined, 1, NULL), GPUSYNC_ERROR_ALREADY_TRACKED);
    REFUSED(GPUSYNC_ERROR_ALREADY_TRACKED, s.q[0], BUFFERS(loose));
    assert_ok(gpusync_cancel_held(s.q[0]));
    assert_ok(gpusync_commit4(s.q[0], &loose, 1, NULL)); /* given up: it is free again */
    close_stage(&s);
}

/* More buffers, waits and signals than a submission has places for. */
static void test_many_of_everything(void **state)
{
    gpusync_point waits[12], signals[12];
    void *buffers[40], *memory;
    gpusync_submission sub;
    gpusync_ticket ticket = 0;
    size_t i;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_REAL);
    memory = memory_of(&s, 40);
    for (i = 0; i < 12; i++) {
        waits[i] = at(s.a, i + 1);
        signals[i] = at(s.b, i + 1);
        (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(waits[i]));
    }
    for (i = 0; i < 40; i++) fill(buffers[i] = open_on(&s, 0), memory, i, (unsigned char)(i + 1));
    memset(&sub, 0, sizeof sub);
    sub.waits = waits;
    sub.signals = signals;
    sub.wait_count = sub.signal_count = 12;
    sub.command_buffers = buffers;
    sub.command_buffer_count = 40;
    assert_ok(either_submit(s.q[0], &sub, &ticket));
    assert_ok(gpusync_wait(s.q[0], ticket, SECONDS(20)));
    for (i = 0; i < 40; i++) assert_int_equal(bytes_of(memory)[i], i + 1);
    assert_int_equal(value_of(s.b), 12);
    metal_release(memory);
    close_stage(&s);
}

/* The host waits and signals, as elsewhere: the queue gets no operation. */
static void test_strict_leaves_it_to_the_host(void **state)
{
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.a, 1)));
    ticket = SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(open_on(&s, 0)), SIGNALS(at(s.b, 1)), .flags = GPUSYNC_STRICT);
    assert_int_equal(held_on(s.device, s.q[0]), 1);
    finish(&s, 1);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    finish(&s, 0);
    assert_ok(gpusync_poll(s.q[0], ticket));
    assert_int_equal(raw_of(s.b), 1);
    assert_count("waitForEvent:value:", 0, 0);
    assert_count("signalEvent:value:", 0, 0);
    close_stage(&s);
}

/* -- lifetimes -------------------------------------------------------------------------------------------------- */

static void hold_signals(bool held)
{
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    quirks.signals_held = held;
    softmetal_set_quirks(&quirks);
}

/* What gpusync keeps for good is forgotten. So the test, which knows it, takes the reference that gpusync has left. (The
   recordings of the test have runs, which have references to the queue.) */
static void assert_left_for_good(void *object, unsigned long others)
{
    drop_recordings();
    assert_int_equal(softmetal_retain_count(object), others + 1);
    metal_release(object);
}

/* The queue is left, with the event that it was to signal last. Gives the test's reference back. */
static void assert_queue_left(void *metal)
{
    assert_left_for_good(softmetal_last_signalled(metal), 0);
    assert_left_for_good(metal, 1);
    metal_release(metal);
}

static void assert_not_left(void *object, unsigned long others)
{
    drop_recordings();
    assert_int_equal(softmetal_retain_count(object), others);
}

/* Metal retains nothing, and softmetal aborts where something is freed that it needs: so this passes only where
   gpusync keeps all of it. The command buffers go with the feedback. The queue, the events of the waits and the
   signals, and the one that destroy has the queue signal behind them stay for good: within 100 ms that does not come.
   */
static void test_what_is_left_in_flight_is_kept(void **state)
{
    void *plain, *work, *list[3], *allocators[5], *metal, *event, *signalled;
    gpusync_timeline *own;
    uint64_t base, began;
    size_t i;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    for (i = 0; i < 5; i++) allocators[i] = metal4_allocator_new(s.rig.metal_device);
    own = timeline_new(s.device);
    event = metal_retain(gpusync_timeline_metal(own, &base));
    signalled = metal_retain(gpusync_timeline_metal(s.a, &base));
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(own, 1)));
    plain = ended_buffer(&s, allocators[0], NULL, 0, 0);
    work = ended_buffer(&s, allocators[1], NULL, 0, 0);
    for (i = 0; i < 3; i++) list[i] = ended_buffer(&s, allocators[2 + i], NULL, 0, 0);
    (void)commit_four(&s, &plain, 1);
    assert_ok(gpusync_submit(s.q[0],
                             &(gpusync_submission){WAITS(at(own, 1)), BUFFERS(work), SIGNALS(at(own, 2), at(s.a, 1))},
                             NULL));
    (void)commit_four(&s, list, 3);
    metal_release(plain);
    metal_release(work);
    for (i = 0; i < 3; i++) metal_release(list[i]);
    metal = metal_retain(s.metal[0]);
    began = gpusync_now_ns();
    take_down_queue(&s, 0, true);
    assert_true(gpusync_now_ns() - began >= MS(100));
    assert_count("signalEvent:value:", 0, 2 + 1);
    assert_int_equal(softmetal_live("shared_event"), 4 + 1 + 1); /* the stage's own, this one, and that of destroy */
    assert_ok(gpusync_timeline_destroy(own));
    finish(&s, 1);
    assert_int_equal(softmetal_live("command_buffer4"), 5);
    softmetal_finish_queue(metal);
    assert_int_equal(softmetal_live("command_buffer4"), 0);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    for (i = 0; i < 5; i++) metal_release(allocators[i]);
    assert_int_equal(softmetal_retain_count(event), 1 + 2); /* the test; gpusync, for the wait and for the signal */
    metal_release(event);
    assert_left_for_good(event, 1);
    assert_left_for_good(signalled, 2); /* the test, and the timeline, which is there still */
    assert_left_for_good(softmetal_last_signalled(metal), 0); /* that of destroy */
    assert_left_for_good(metal, 1);
    metal_release(event);
    metal_release(signalled);
    metal_release(metal);
    close_stage(&s);
}

/* A value is reached, and the queue has not come to the wait for it: work in front of that runs still. What is left
   in flight then keeps the event for the wait. */
static void test_the_event_of_a_wait_that_is_left_in_flight_is_kept_though_its_value_is_reached(void **state)
{
    void *hung[2], *event, *metal;
    gpusync_timeline *t;
    int i;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_REAL);
    t = timeline_over(s.device, &event);
    metal = metal_retain(s.metal[0]);
    for (i = 0; i < 2; i++) softmetal_hang(hung[i] = metal_retain(open_on(&s, (unsigned)i)));
    (void)commit_to(s.q[0], hung[0]);
    (void)SUBMIT(s.q[1], BUFFERS(hung[1]), SIGNALS(at(t, 1)));
    (void)SUBMIT(s.q[0], WAITS(at(t, 1)), BUFFERS(open_on(&s, 0)));
    assert_count("waitForEvent:value:", 0, 1);
    softmetal_unhang(hung[1]);
    assert_ok(gpusync_timeline_wait(t, 1, SECONDS(20), NULL));
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    close_queue(&s, 1);
    assert_int_equal(softmetal_live("queue_operation"), 1);
    take_down_queue(&s, 0, true);
    assert_ok(gpusync_timeline_destroy(t));
    assert_int_equal(softmetal_retain_count(event), 1 + 1); /* the test; gpusync, for the wait */
    softmetal_unhang(hung[0]);
    assert_true(softmetal_settle(SECONDS(20)));
    for (i = 0; i < 2; i++) metal_release(hung[i]);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    assert_left_for_good(event, 1);
    assert_left_for_good(softmetal_last_signalled(metal), 0);
    assert_left_for_good(metal, 1);
    metal_release(event);
    metal_release(metal);
    close_stage(&s);
}

/* A value that a wait of the queue is for comes from elsewhere. That it is reached tells nothing of the queue's own
   signals. */
static void test_a_wait_that_was_met_tells_nothing_of_the_signals_in_front_of_it(void **state)
{
    void *events[2], *metal;
    gpusync_timeline *t[2];
    int i;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    metal = metal_retain(s.metal[0]);
    for (i = 0; i < 2; i++) {
        t[i] = timeline_new(s.device);
        events[i] = metal_retain(gpusync_timeline_metal(t[i], NULL));
    }
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(t[1], 1)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t[0], 1)));
    (void)SUBMIT(s.q[0], WAITS(at(t[1], 1)), BUFFERS(open_on(&s, 0)));
    finish(&s, 1);
    assert_int_equal(value_of(t[1]), 1);
    assert_int_equal(softmetal_live("queue_operation"), 2); /* the signal is in front of the wait */
    take_down_queue(&s, 0, true); /* which fails the timeline: its event does not show the signal any more */
    assert_true(metal_event_value(events[0]) == UINT64_MAX);
    for (i = 0; i < 2; i++) assert_ok(gpusync_timeline_destroy(t[i]));
    for (i = 0; i < 2; i++) assert_int_equal(softmetal_retain_count(events[i]), 1 + 1);
    softmetal_finish_queue(metal);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    for (i = 0; i < 2; i++) {
        assert_left_for_good(events[i], 1);
        metal_release(events[i]);
    }
    assert_queue_left(metal);
    close_stage(&s);
}

/* Work without waits and signals needs the queue no longer than until its feedback. */
static void test_a_plain_commit_that_is_left_in_flight_leaves_nothing(void **state)
{
    void *buffer, *metal;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    (void)commit_to(s.q[0], buffer = open_on(&s, 0));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)));
    metal = metal_retain(s.metal[0]);
    take_down_queue(&s, 0, true);
    softmetal_finish_queue(metal);
    assert_not_left(metal, 1);
    metal_release(metal);
    close_stage(&s);
}

static void test_release_after_keeps_the_rest(void **state)
{
    void *buffer, *allocator, *memory;
    gpusync_ticket ticket;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_REAL, 1);
    allocator = metal4_allocator_new(s.rig.metal_device);
    memory = memory_of(&s, 1);
    buffer = ended_buffer(&s, allocator, memory, 0, 1);
    softmetal_set_duration(buffer, MS(3));
    ticket = commit_four(&s, &buffer, 1);
    assert_ok(gpusync_release_after(after(s.q[0], ticket), memory));
    assert_ok(gpusync_release_after(after(s.q[0], ticket), allocator));
    metal_release(buffer);
    metal_release(memory);
    metal_release(allocator); /* what is freed too early aborts */
    assert_ok(gpusync_queue_wait(s.q[0], SECONDS(20)));
    close_stage(&s);
}

/* The signal of the last submission may come behind its feedback: its event outlives the timeline until then. */
static void test_events_stay_until_their_signals_have_come(void **state)
{
    gpusync_timeline *t;
    unsigned i, rounds = 300 / SLOW + 5;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_REAL, 1);
    for (i = 0; i < rounds; i++) {
        void *event = metal_shared_event_new(s.rig.metal_device);
        assert_ok(timeline_import(s.device, event, NULL, &t)); /* of which nothing is kept for others */
        metal_release(event);
        (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, 1)));
        assert_ok(gpusync_timeline_wait(t, 1, SECONDS(20), NULL));
        assert_ok(gpusync_timeline_destroy(t));
    }
    close_stage(&s);
}

/* The feedback comes before the signal. A timeline that goes then keeps the event all the same: Metal does not. Once the
   event shows the signal, the next submission that ends gives it back. */
static void test_an_event_outlives_its_timeline_until_its_signal_has_come(void **state)
{
    gpusync_timeline *t;
    void *event;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    t = timeline_over(s.device, &event);
    hold_signals(true);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, 1)));
    finish(&s, 0);
    assert_int_equal(value_of(t), 1);
    assert_ok(gpusync_timeline_destroy(t));
    metal_release(event); /* the last reference but gpusync's */
    assert_int_equal(softmetal_live("queue_operation"), 1);
    assert_int_equal(softmetal_live("shared_event"), 4 + 1); /* the stage's own, and this one */
    hold_signals(false);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    assert_int_equal(softmetal_live("shared_event"), 4 + 1);
    (void)commit_on(&s, 0);
    finish(&s, 0);
    assert_int_equal(softmetal_live("shared_event"), 4 + 1); /* a plain commit does not look */
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    finish(&s, 0);
    assert_int_equal(softmetal_live("shared_event"), 4);
    close_stage(&s);
}

/* An event of gpusync's own serves the next timeline then, and not before: a late signal would be a value of that one. */
static void test_an_event_goes_to_the_pool_when_its_signal_has_come(void **state)
{
    gpusync_timeline *first, *second, *third;
    void *event;
    uint64_t base;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    first = timeline_new(s.device);
    hold_signals(true);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(first, 7)));
    finish(&s, 0);
    assert_ok(gpusync_timeline_destroy(first));
    assert_int_equal(softmetal_live("shared_event"), 4 + 1);
    second = timeline_new(s.device);
    assert_int_equal(softmetal_live("shared_event"), 4 + 2); /* a new one */
    hold_signals(false);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    finish(&s, 0);
    third = timeline_new(s.device);
    assert_int_equal(softmetal_live("shared_event"), 4 + 2); /* the first one's */
    event = gpusync_timeline_metal(third, &base);
    assert_non_null(event);
    assert_int_equal(base, 7);
    assert_ok(gpusync_timeline_destroy(second));
    assert_ok(gpusync_timeline_destroy(third));
    close_stage(&s);
}

/* Feedbacks may come in any order. What counts is the order of the queue: the signal behind A is in front of B. fails: B
   does, and the event has the value of the failure: that the signal behind A has come tells nothing of the one behind B. */
static void check_an_event_outlives_feedbacks(bool fails)
{
    gpusync_timeline *t;
    void *event, *a, *b;
    stage s;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    t = timeline_new(s.device);
    event = metal_retain(gpusync_timeline_metal(t, NULL));
    a = open_on(&s, 0);
    (void)SUBMIT(s.q[0], BUFFERS(a), SIGNALS(at(s.a, 1)));
    b = open_on(&s, 0);
    if (fails) softmetal_fail(b, NULL, 3, "no memory");
    (void)SUBMIT(s.q[0], BUFFERS(b), SIGNALS(at(t, 1)));
    softmetal_complete(a);
    hold_signals(true); /* that of B */
    softmetal_complete(b);
    softmetal_finish(b);
    softmetal_finish(a);
    if (fails) assert_true(metal_event_value(event) == UINT64_MAX);
    else assert_int_equal(value_of(t), 1);
    assert_ok(gpusync_timeline_destroy(t));
    assert_int_equal(softmetal_live("queue_operation"), 1);
    assert_int_equal(softmetal_retain_count(event), 2); /* the test, and gpusync for the signal */
    hold_signals(false);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 2)));
    finish(&s, 0);
    assert_int_equal(softmetal_retain_count(event), 1);
    metal_release(event);
    close_stage(&s);
}

static void test_an_event_outlives_feedbacks_in_another_order(void **state)
{
    (void)state;
    check_an_event_outlives_feedbacks(false);
}

static void test_the_event_of_a_failed_timeline_outlives_feedbacks_in_another_order(void **state)
{
    (void)state;
    check_an_event_outlives_feedbacks(true);
}

static void delay_signals(bool late)
{
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    quirks.signals_late = late;
    softmetal_set_quirks(&quirks);
}

/* The device may let work begin behind a signal that it has not made yet. What is kept goes in the order of the queue's
   signals: where one has come, and the one in front of it has not, both stay. */
static void test_kept_events_go_in_the_order_of_their_signals(void **state)
{
    enum { SEVERAL = 3 };
    gpusync_timeline *t[SEVERAL];
    void *events[SEVERAL];
    int i;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < SEVERAL; i++) t[i] = timeline_over(s.device, &events[i]);
    delay_signals(true);
    for (i = 0; i < SEVERAL; i++) {
        (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t[i], 1)));
        finish(&s, 0);
        assert_int_equal(value_of(t[i]), 1);
        assert_ok(gpusync_timeline_destroy(t[i]));
    }
    assert_int_equal(softmetal_live("queue_operation"), SEVERAL);
    metal_event_signal(events[1], 1); /* as if the device had made the signal of the second, and of no other */
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    finish(&s, 0);
    for (i = 0; i < SEVERAL; i++) assert_int_equal(softmetal_retain_count(events[i]), 2);
    metal_event_signal(events[0], 1);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 2)));
    finish(&s, 0);
    for (i = 0; i < SEVERAL; i++) assert_int_equal(softmetal_retain_count(events[i]), i < 2 ? 1 : 2);
    for (i = 0; i < 2; i++) (void)metal_retain(events[i]); /* it makes them later, which softmetal checks */
    delay_signals(false);
    for (i = 0; i < 2; i++) metal_release(events[i]);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 3)));
    finish(&s, 0);
    for (i = 0; i < SEVERAL; i++) {
        assert_int_equal(softmetal_retain_count(events[i]), 1);
        metal_release(events[i]);
    }
    close_stage(&s);
}

/* Several signals of the queue are about one event, which stays for the last of them. */
static void test_an_event_stays_until_it_shows_the_last_value(void **state)
{
    gpusync_timeline *t;
    void *event;
    uint64_t value;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    t = timeline_over(s.device, &event);
    delay_signals(true);
    for (value = 1; value <= 2; value++) (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, value)));
    finish(&s, 0);
    assert_int_equal(value_of(t), 2);
    assert_ok(gpusync_timeline_destroy(t));
    for (value = 1; value <= 2; value++) {
        metal_event_signal(event, value); /* as if the device had made this signal */
        (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, value)));
        finish(&s, 0);
        assert_int_equal(softmetal_retain_count(event), value == 1 ? 2 : 1);
    }
    (void)metal_retain(event); /* the device makes them later, which softmetal checks */
    delay_signals(false);
    metal_release(event);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    metal_release(event);
    close_stage(&s);
}

/* The event of a failed timeline has the value of the failure, and does not show its signals. It stays until a later
   signal of the same queue has come: then its own have, too. Signals of another queue tell nothing, nor does another
   failed timeline. */
static void test_the_event_of_a_failed_timeline_goes_with_a_later_signal_of_its_queue(void **state)
{
    enum { SEVERAL = 2 };
    gpusync_timeline *t;
    void *events[SEVERAL], *buffer;
    int i;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 2);
    for (i = 0; i < SEVERAL; i++) {
        t = timeline_new(s.device);
        events[i] = metal_retain(gpusync_timeline_metal(t, NULL));
        buffer = open_on(&s, 0);
        softmetal_fail(buffer, NULL, 3, "no memory");
        (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(t, 1)));
        finish(&s, 0);
        assert_true(metal_event_value(events[i]) == UINT64_MAX);
        assert_ok(gpusync_timeline_destroy(t));
    }
    assert_int_equal(softmetal_live("queue_operation"), 0); /* they have come, which gpusync does not know */
    for (i = 0; i < SEVERAL; i++) assert_int_equal(softmetal_retain_count(events[i]), 2);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.b, 1)));
    finish(&s, 1);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(s.b, 2)));
    finish(&s, 1);
    for (i = 0; i < SEVERAL; i++) assert_int_equal(softmetal_retain_count(events[i]), 2);
    delay_signals(true);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    finish(&s, 0);
    for (i = 0; i < SEVERAL; i++) assert_int_equal(softmetal_retain_count(events[i]), 2);
    delay_signals(false);
    for (i = 0; i < SEVERAL; i++) assert_int_equal(softmetal_retain_count(events[i]), 2);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 2)));
    finish(&s, 0);
    for (i = 0; i < SEVERAL; i++) {
        assert_int_equal(softmetal_retain_count(events[i]), 1);
        metal_release(events[i]);
    }
    close_stage(&s);
}

/* Whether signals fire behind failed work is not known. The host does not write the event of others, which never
   shows a signal that did not. That keeps nothing of the work behind it. */
static void test_a_signal_that_never_comes_keeps_no_later_ones(void **state)
{
    enum { SEVERAL = 3 };
    softmetal_quirks quirks;
    gpusync_timeline *t;
    void *events[SEVERAL], *buffer;
    int i;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    softmetal_get_quirks(&quirks);
    quirks.signals_die_with_failure = true;
    softmetal_set_quirks(&quirks);
    for (i = 0; i < SEVERAL; i++) {
        t = timeline_over(s.device, &events[i]);
        buffer = open_on(&s, 0);
        if (i == 0) softmetal_fail(buffer, NULL, 3, "no memory");
        (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(t, 1)));
        finish(&s, 0);
        assert_int_equal(metal_event_value(events[i]), i > 0);
        assert_ok(gpusync_timeline_destroy(t));
    }
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)));
    finish(&s, 0);
    for (i = 0; i < SEVERAL; i++) {
        assert_int_equal(softmetal_retain_count(events[i]), 1);
        metal_release(events[i]);
    }
    close_stage(&s);
}

/* Two threads end a submission each. One that looks at what the queue keeps stops where it asks for the value of its own
   event. */
typedef struct two_looks {
    void *events[2];
    bool stopped[2], goes_on[2];
} two_looks;

static void stop_at_questions(void *user, softmetal_phase phase, void *object, const char *selector)
{
    two_looks *l = (two_looks *)user;
    int i = object == l->events[1];
    if (phase != SOFTMETAL_BEFORE || object != l->events[i] || strcmp(selector, "signaledValue") != 0) return;
    PUT(&l->stopped[i], true);
    while (!GET(&l->goes_on[i])) sched_yield();
}

static void *finish_body(void *buffer)
{
    softmetal_finish(buffer);
    return NULL;
}

/* What is kept is asked without a lock, and is in no list meanwhile. What two threads had in hand has its place in the
   order of the signals afterwards. */
static void test_kept_events_keep_their_order_while_two_threads_look(void **state)
{
    void *buffers[2], *second;
    gpusync_timeline *t[2];
    pthread_t threads[2];
    two_looks l;
    int i;
    stage s;
    (void)state;
    open_mixed(&s, SOFTMETAL_MANUAL);
    memset(&l, 0, sizeof l);
    for (i = 0; i < 2; i++) {
        t[i] = timeline_new(s.device);
        l.events[i] = metal_retain(gpusync_timeline_metal(t[i], NULL));
    }
    buffers[1] = open_on(&s, 1);
    (void)SUBMIT(s.q[1], BUFFERS(buffers[1]), SIGNALS(at(s.a, 1)), .flags = SIGNALS_INSIDE);
    delay_signals(true);
    buffers[0] = open_on(&s, 0);
    (void)SUBMIT(s.q[0], BUFFERS(buffers[0]), SIGNALS(at(t[0], 1)));
    second = open_on(&s, 0);
    (void)SUBMIT(s.q[0], WAITS(at(s.a, 1)), BUFFERS(second), SIGNALS(at(t[1], 1)));
    softmetal_complete(buffers[1]);
    softmetal_complete(buffers[0]);
    softmetal_finish(second); /* its wait is open: the thread of the other queue is to end it */
    assert_ok(gpusync_timeline_fail(t[1], NULL));
    assert_true(metal_event_value(l.events[1]) == UINT64_MAX);
    softmetal_set_message_hook(stop_at_questions, &l);
    must_return_within(60); /* else the first thread looks at no event, or the second waits for the first */
    threads[0] = start(finish_body, buffers[0]);
    while (!GET(&l.stopped[0])) sched_yield();
    PUT(&l.goes_on[1], true);
    threads[1] = start(finish_body, buffers[1]); /* it asks the event behind the one that the first has in hand */
    join(threads[1]);
    assert_true(GET(&l.stopped[1]));
    PUT(&l.goes_on[0], true);
    join(threads[0]);
    has_returned();
    softmetal_set_message_hook(NULL, NULL);
    for (i = 0; i < 2; i++) assert_ok(gpusync_timeline_destroy(t[i]));
    for (i = 0; i < 2; i++) assert_int_equal(softmetal_retain_count(l.events[i]), 2);
    metal_event_signal(l.events[0], 1); /* as if the device had made the first signal, and not the second */
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.b, 1)));
    finish(&s, 0);
    for (i = 0; i < 2; i++) assert_int_equal(softmetal_retain_count(l.events[i]), 1 + i);
    delay_signals(false);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.b, 2)));
    finish(&s, 0);
    for (i = 0; i < 2; i++) {
        assert_int_equal(softmetal_retain_count(l.events[i]), 1);
        metal_release(l.events[i]);
    }
    close_stage(&s);
}

/* A signal has not come when the queue is destroyed. That has the queue signal one event more, and waits for it, as
   it comes behind all others: for 100 ms. Then the queue and the events stay, and stay when the signals have come.
   lost: another queue has lost the device by then. */
static void check_signals_that_come_after_destroy(bool lost)
{
    enum { SEVERAL = 3 };
    gpusync_timeline *t[SEVERAL];
    void *events[SEVERAL], *metal;
    uint64_t began;
    int i;
    stage s;
    open_four(&s, SOFTMETAL_MANUAL, 2);
    for (i = 0; i < SEVERAL; i++) t[i] = timeline_over(s.device, &events[i]);
    metal = metal_retain(s.metal[0]);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t[0], 1))); /* this signal comes in time */
    finish(&s, 0);
    delay_signals(true);
    for (i = 1; i < SEVERAL; i++) {
        (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t[i], 1)));
        finish(&s, 0);
        assert_int_equal(value_of(t[i]), 1);
    }
    for (i = 0; i < SEVERAL; i++) assert_ok(gpusync_timeline_destroy(t[i]));
    if (lost) {
        void *buffer = OPEN(s.q[1], .label = "the culprit");
        end_recording(buffer);
        softmetal_fail_as(buffer, SOFTMETAL_SUBMISSIONS_IGNORED, NULL);
        assert_ok(gpusync_commit4(s.q[1], &buffer, 1, NULL));
        finish(&s, 1);
        assert_true(gpusync_device_is_lost(s.device));
    }
    began = gpusync_now_ns();
    take_down_queue(&s, 0, false);
    assert_true(gpusync_now_ns() - began >= MS(100));
    assert_count("signalEvent:value:", 0, SEVERAL + 1);
    assert_int_equal(softmetal_live("queue_operation"), SEVERAL - 1 + 1);
    assert_int_equal(softmetal_live("shared_event"), 4 + SEVERAL + 1); /* the stage's own, the test's, destroy's */
    assert_int_equal(softmetal_retain_count(events[0]), 1); /* the test alone */
    for (i = 1; i < SEVERAL; i++) assert_int_equal(softmetal_retain_count(events[i]), 2);
    delay_signals(false);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    for (i = 1; i < SEVERAL; i++) {
        assert_int_equal(metal_event_value(events[i]), 1);
        assert_left_for_good(events[i], 1);
    }
    assert_left_for_good(softmetal_last_signalled(metal), 0); /* that of destroy */
    assert_left_for_good(metal, 1);
    for (i = 0; i < SEVERAL; i++) metal_release(events[i]);
    metal_release(metal);
    close_stage(&s);
}

static void test_a_signal_that_has_not_come_keeps_queue_and_event_for_good(void **state)
{
    (void)state;
    check_signals_that_come_after_destroy(false);
    check_signals_that_come_after_destroy(true);
}

/* Work is left in flight, and its signals and those before it come after that. */
static void test_events_outlive_a_queue_that_went_at_once(void **state)
{
    gpusync_timeline *t[2];
    void *events[2], *metal, *buffer;
    int i;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    for (i = 0; i < 2; i++) t[i] = timeline_over(s.device, &events[i]);
    hold_signals(true);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t[0], 1)));
    finish(&s, 0);
    buffer = open_on(&s, 0);
    (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(t[1], 1)));
    metal = metal_retain(s.metal[0]);
    take_down_queue(&s, 0, true);
    for (i = 0; i < 2; i++) assert_ok(gpusync_timeline_destroy(t[i]));
    hold_signals(false); /* the first has come */
    assert_int_equal(softmetal_first_in_line(metal) != NULL, 1);
    hold_signals(true);
    softmetal_finish(buffer);
    assert_int_equal(softmetal_live("queue_operation"), 2); /* the second, and that of destroy behind it */
    hold_signals(false);
    for (i = 0; i < 2; i++) {
        assert_int_equal(metal_event_value(events[i]), 1);
        assert_left_for_good(events[i], 1);
        metal_release(events[i]);
    }
    assert_queue_left(metal);
    close_stage(&s);
}

/* A timeline that comes after that gets another event, and no value of the signal that is still to come. */
static void test_the_event_of_a_signal_that_has_not_come_serves_no_other_timeline(void **state)
{
    gpusync_timeline *t;
    void *event, *metal;
    uint64_t base;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    t = timeline_new(s.device);
    hold_signals(true);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, 1)));
    finish(&s, 0);
    event = metal_retain(probe_event_of(t, &base));
    metal = metal_retain(s.metal[0]);
    take_down_queue(&s, 0, true);
    assert_ok(gpusync_timeline_destroy(t));
    t = timeline_new(s.device);
    assert_ptr_not_equal(probe_event_of(t, &base), event);
    hold_signals(false);
    assert_int_equal(value_of(t), 0);
    assert_ok(gpusync_timeline_destroy(t));
    assert_left_for_good(event, 1);
    metal_release(event);
    assert_queue_left(metal);
    close_stage(&s);
}

/* What has come by the time that the queue goes is given back, and the queue is asked for nothing more. now: nothing
   else is waited for, either. */
static void check_a_signal_that_came_in_time(bool now)
{
    gpusync_timeline *t;
    void *event, *metal;
    stage s;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    t = timeline_over(s.device, &event);
    metal = metal_retain(s.metal[0]);
    hold_signals(true);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, 1)));
    finish(&s, 0);
    hold_signals(false); /* behind the feedback, and before the destroy */
    take_down_queue(&s, 0, now);
    assert_not_left(metal, 1);
    assert_ok(gpusync_timeline_destroy(t));
    assert_not_left(event, 1);
    assert_count("signalEvent:value:", 0, 1);
    assert_int_equal(softmetal_live("shared_event"), 4 + 1); /* the stage's own, and the test's */
    assert_int_equal(events_kept(s.device), 0);
    metal_release(event);
    metal_release(metal);
    close_stage(&s);
}

static void test_a_signal_that_came_before_destroy_keeps_nothing(void **state)
{
    (void)state;
    check_a_signal_that_came_in_time(false);
    check_a_signal_that_came_in_time(true);
}

/* Signals come while destroy asks for the last of them. */
typedef struct asking {
    void *metal, *event;  /* the queue, and the event that it signals before destroy */
    unsigned asked, most; /* at the question with this number they come */
    bool finishes;        /* and what is in flight ends */
} asking;

static void come_while_asked(void *user, softmetal_phase phase, void *object, const char *selector)
{
    asking *a = (asking *)user;
    bool asks = phase == SOFTMETAL_BEFORE && strcmp(selector, "signaledValue") == 0 && object != a->event;
    if (!asks || object != softmetal_last_signalled(a->metal)) return;
    if (++a->asked != a->most) return;
    if (a->finishes) softmetal_finish_queue(a->metal);
    delay_signals(false);
}

/* failed: the event of the timeline does not show its signal. now: work is in flight still. */
static void check_signals_that_come_during_destroy(bool failed, bool now)
{
    asking a = {.most = 3, .finishes = now};
    gpusync_timeline *t[2];
    void *events[2], *metal, *buffer;
    int i;
    stage s;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    metal = metal_retain(s.metal[0]);
    t[0] = timeline_over(s.device, &events[0]);
    t[1] = timeline_new(s.device);
    events[1] = metal_retain(gpusync_timeline_metal(t[1], NULL));
    delay_signals(true);
    for (i = 0; i < 2; i++) {
        buffer = open_on(&s, 0);
        if (failed && i == 1) softmetal_fail(buffer, NULL, 3, "no memory");
        (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(t[i], 1)));
    }
    if (!now) finish(&s, 0);
    assert_int_equal(metal_event_value(events[1]) == UINT64_MAX, failed && !now);
    for (i = 0; i < 2; i++) assert_ok(gpusync_timeline_destroy(t[i]));
    assert_int_equal(softmetal_live("queue_operation"), 2);
    for (i = 0; i < 2; i++) assert_int_equal(softmetal_retain_count(events[i]), 2);
    a.metal = metal;
    a.event = events[1];
    softmetal_set_message_hook(come_while_asked, &a);
    PUT(&clock_now, gpusync_now_ns());
    PUT(&clock_is_real, false); /* the 100 ms that destroy asks for do not go by, however late its thread is */
    take_down_queue(&s, 0, now);
    PUT(&clock_is_real, true);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(a.asked, a.most);
    assert_count("signalEvent:value:", 0, 2 + 1);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    for (i = 0; i < 2; i++) {
        assert_not_left(events[i], 1);
        metal_release(events[i]);
    }
    assert_not_left(metal, 1);
    assert_int_equal(softmetal_live("shared_event"), 4 + 1);
    assert_int_equal(events_kept(s.device), 1); /* that of destroy */
    metal_release(metal);
    close_stage(&s);
}

static void test_a_signal_that_comes_while_destroy_asks_keeps_nothing(void **state)
{
    int failed, now;
    (void)state;
    for (failed = 0; failed < 2; failed++)
        for (now = 0; now < 2; now++) check_signals_that_come_during_destroy(failed, now);
}

/* An event of the pool serves, from the value on at which it stands, and goes back. */
static void test_destroy_asks_with_an_event_of_the_pool_that_goes_on_at_its_value(void **state)
{
    asking a = {.most = 1};
    gpusync_timeline *t;
    void *event, *spare;
    uint64_t i, base;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 2);
    t = timeline_new(s.device);
    for (i = 1; i <= 3; i++) (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, i)));
    finish(&s, 0);
    spare = softmetal_last_signalled(s.metal[0]);
    assert_ok(gpusync_timeline_destroy(t));
    take_down_queue(&s, 0, false);
    assert_int_equal(metal_event_value(spare), 3);
    assert_int_equal(softmetal_live("shared_event"), 4 + 1);
    t = timeline_over(s.device, &event);
    delay_signals(true);
    (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(t, 1)));
    finish(&s, 1);
    assert_ok(gpusync_timeline_destroy(t));
    assert_int_equal(softmetal_retain_count(event), 2); /* the test's, and what is kept */
    a.metal = metal_retain(s.metal[1]);
    a.event = event;
    softmetal_set_message_hook(come_while_asked, &a);
    take_down_queue(&s, 1, false);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(a.asked, 1);
    assert_ptr_equal(softmetal_last_signalled(a.metal), spare);
    assert_int_equal(metal_event_value(spare), 4);
    assert_not_left(event, 1);
    assert_not_left(a.metal, 1);
    t = timeline_new(s.device);
    assert_int_equal(softmetal_live("shared_event"), 4 + 1 + 1); /* the stage's own, the test's, and this */
    assert_ptr_equal(gpusync_timeline_metal(t, &base), spare);
    assert_int_equal(base, 4);
    assert_ok(gpusync_timeline_destroy(t));
    metal_release(event);
    metal_release(a.metal);
    close_stage(&s);
}

/* Metal has no event with which to ask: destroy does not wait, and the queue and the event stay. */
static void test_without_an_event_to_ask_with_queue_and_event_stay_for_good(void **state)
{
    gpusync_timeline *t;
    void *event, *metal;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    metal = metal_retain(s.metal[0]);
    t = timeline_over(s.device, &event);
    hold_signals(true);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, 1)));
    finish(&s, 0);
    assert_ok(gpusync_timeline_destroy(t));
    softmetal_fail_creation(1, true);
    take_down_queue(&s, 0, false);
    softmetal_fail_creation(0, false);
    assert_count("newSharedEvent", 0, 4 + 1 + 1); /* the stage's own, the test's, and the one that failed */
    assert_count("signalEvent:value:", 0, 1);
    assert_int_equal(softmetal_retain_count(event), 2);
    hold_signals(false);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    assert_left_for_good(event, 1);
    assert_left_for_good(metal, 1);
    metal_release(event);
    metal_release(metal);
    close_stage(&s);
}

static void count_gone(void *user) { COUNT((long *)user); }

typedef struct yields {
    pthread_t tester;
    long of_others;
} yields;

static void count_yields_of_others(void *user)
{
    yields *y = (yields *)user;
    if (!pthread_equal(pthread_self(), y->tester)) COUNT(&y->of_others);
    sched_yield();
}

/* gpusync_queue_destroy_later asks once, and its thread, which calls no hook, looks for 100 ms whether that has come.
   False: this one was too late to have it come in time. */
static bool check_signals_that_come_when_destroy_later_asks(bool come)
{
    yields y = {pthread_self(), 0};
    gpusync_hooks hooks = {count_yields_of_others, NULL, NULL, &y};
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_timeline *t;
    void *event, *metal;
    uint64_t began, limit;
    long gone = 0, before;
    bool in_time, came;
    stage s;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    open_stage_on(&s, SOFTMETAL_MANUAL, QUEUE_OF_METAL4, 1, device_desc, queue_desc);
    metal = metal_retain(s.metal[0]);
    t = timeline_over(s.device, &event);
    hold_signals(true);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, 1)));
    finish(&s, 0);
    assert_ok(gpusync_timeline_destroy(t));
    began = gpusync_now_ns();
    limit = began + SECONDS(20);
    assert_ok(gpusync_queue_destroy_later(s.q[0], count_gone, &gone));
    s.q[0] = NULL;
    while (softmetal_message_count("signalEvent:value:") < 1 + 1) {
        assert_true(gpusync_now_ns() < limit);
        sched_yield();
    }
    before = GET(&gone);
    if (gpusync_now_ns() - began < MS(100)) assert_int_equal(before, 0);
    assert_int_equal(softmetal_retain_count(event), 2);
    if (come) hold_signals(false);
    in_time = gpusync_now_ns() - began < MS(100);
    for (; !GET(&gone); sched_yield()) assert_true(gpusync_now_ns() < limit);
    assert_int_equal(softmetal_timers_armed(), 0);
    if (!come) assert_true(gpusync_now_ns() - began >= MS(100));
    assert_int_equal(gone, 1);
    assert_int_equal(GET(&y.of_others), 0);
    assert_count("signalEvent:value:", 0, 1 + 1);
    assert_int_equal(softmetal_live("shared_event"), 4 + 1 + 1); /* the stage's own, the test's, destroy's */
    came = events_kept(s.device) == 1;
    if (!come || in_time) assert_int_equal(came, come);
    hold_signals(false);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    if (came) {
        assert_not_left(event, 1);
        assert_not_left(metal, 1);
    } else {
        assert_left_for_good(event, 1);
        assert_left_for_good(softmetal_last_signalled(metal), 0);
        assert_left_for_good(metal, 1);
    }
    metal_release(event);
    metal_release(metal);
    close_stage(&s);
    return came == come;
}

static void test_a_queue_that_goes_later_asks_once_and_looks_for_100_ms(void **state)
{
    int tries = 1;
    (void)state;
    while (!check_signals_that_come_when_destroy_later_asks(true)) assert_true(tries++ < 100);
    (void)check_signals_that_come_when_destroy_later_asks(false);
}

/* The queue signals what the program names, and nothing else. The host writes none of these values, also where it
   reaches them before the event shows them. */
static void test_the_queue_alone_signals_the_values_of_its_work(void **state)
{
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    hold_signals(true);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1), at(s.b, 1)));
    finish(&s, 0);
    assert_ok(gpusync_timeline_wait(s.a, 1, 0, NULL));
    assert_int_equal(value_of(s.b), 1);
    assert_int_equal(raw_of(s.a), 0);
    assert_int_equal(raw_of(s.b), 0);
    assert_count("setSignaledValue:", 0, 0);
    assert_count("signalEvent:value:", 0, 2);
    hold_signals(false);
    assert_int_equal(raw_of(s.a), 1);
    assert_int_equal(raw_of(s.b), 1);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)));
    (void)commit_on(&s, 0);
    finish(&s, 0);
    assert_count("signalEvent:value:", 0, 2);
    assert_ok(gpusync_timeline_signal(s.a, 2)); /* a value of the host's */
    assert_count("setSignaledValue:", 0, 1);
    take_down_queue(&s, 0, false);
    assert_count("signalEvent:value:", 0, 2);
    assert_count("setSignaledValue:", 0, 1);
    close_stage(&s);
}

static void finish_before_the_signal(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase == SOFTMETAL_BEFORE && strcmp(selector, "signalEvent:value:") == 0) softmetal_finish_queue(object);
}

/* The feedback of the work comes before the submitting thread has sent the signal behind it. */
static void test_a_feedback_may_come_before_the_signal_is_sent(void **state)
{
    gpusync_timeline *t;
    void *event;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    t = timeline_over(s.device, &event);
    hold_signals(true);
    softmetal_set_message_hook(finish_before_the_signal, NULL);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, 1)));
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(value_of(t), 1);
    assert_count("setSignaledValue:", 0, 0);
    assert_int_equal(metal_event_value(event), 0);
    assert_ok(gpusync_timeline_destroy(t));
    metal_release(event); /* softmetal aborts where this was the last reference */
    hold_signals(false);
    close_stage(&s);
}

static void check_a_failed_timeline(bool imports, bool strict)
{
    bool asks = !imports && !strict; /* the event has the value of the failure, and shows no signal */
    gpusync_timeline *t;
    void *event = NULL, *metal, *buffer;
    stage s;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    t = imports ? timeline_over(s.device, &event) : timeline_new(s.device);
    metal = metal_retain(s.metal[0]);
    buffer = open_on(&s, 0);
    softmetal_fail(buffer, NULL, 3, "no memory");
    (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(t, 1)), .flags = strict ? GPUSYNC_STRICT : 0);
    finish(&s, 0);
    assert_int_equal(error_at(t, 1).failure, GPUSYNC_FAILURE_OUT_OF_MEMORY);
    if (imports) assert_int_equal(metal_event_value(event), strict ? 0 : 1); /* the queue's signal, and no failure */
    else assert_true(metal_event_value(gpusync_timeline_metal(t, NULL)) == UINT64_MAX);
    assert_ok(gpusync_timeline_destroy(t));
    take_down_queue(&s, 0, false);
    if (imports) assert_not_left(event, 1);
    assert_not_left(metal, 1);
    assert_int_equal(softmetal_live("shared_event"), 4 + imports + asks); /* the stage's own, the test's, destroy's */
    assert_int_equal(events_kept(s.device), asks);
    assert_count("signalEvent:value:", 0, !strict + asks);
    metal_release(event);
    metal_release(metal);
    close_stage(&s);
}

/* Work fails, and so does its timeline. The signal behind the work comes all the same, and so does the one with which
   destroy asks where the event does not show it. */
static void test_a_failed_timeline_gives_everything_back(void **state)
{
    (void)state;
    check_a_failed_timeline(false, false);
    check_a_failed_timeline(true, false);
}

/* With STRICT the queue has no signal, for which anything were to be kept. */
static void test_a_timeline_that_failed_by_strict_work_gives_everything_back(void **state)
{
    (void)state;
    check_a_failed_timeline(false, true);
    check_a_failed_timeline(true, true);
}

/* An event with the value of a failure does not show whether the signal has come. It stays where destroy does not
   learn it. */
static void test_the_event_of_a_failed_timeline_stays_for_the_signal(void **state)
{
    gpusync_timeline *t;
    void *event, *buffer, *metal;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    metal = metal_retain(s.metal[0]);
    t = timeline_new(s.device);
    event = gpusync_timeline_metal(t, NULL);
    buffer = open_on(&s, 0);
    softmetal_fail(buffer, NULL, 3, "no memory");
    (void)SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(t, 3)));
    hold_signals(true);
    finish(&s, 0);
    assert_true(metal_event_value(event) == UINT64_MAX);
    assert_ok(gpusync_timeline_destroy(t));
    assert_int_equal(softmetal_live("queue_operation"), 1);
    take_down_queue(&s, 0, false);
    assert_int_equal(softmetal_live("queue_operation"), 1 + 1);
    hold_signals(false); /* softmetal aborts where the event is gone */
    assert_int_equal(softmetal_live("queue_operation"), 0);
    assert_left_for_good(event, 0);
    assert_queue_left(metal);
    close_stage(&s);
}

/* An event that the host or another queue has raised to the value or above counts as signalled. */
static void check_an_event_that_is_above_the_value(bool by_the_host)
{
    gpusync_timeline *t;
    void *event, *metal;
    stage s;
    open_four(&s, SOFTMETAL_MANUAL, 2);
    metal = metal_retain(s.metal[0]);
    t = timeline_new(s.device);
    event = metal_retain(gpusync_timeline_metal(t, NULL));
    if (!by_the_host) (void)SUBMIT(s.q[1], BUFFERS(open_on(&s, 1)), SIGNALS(at(t, 5)));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(t, 3)));
    if (!by_the_host) finish(&s, 1);
    hold_signals(true);
    finish(&s, 0);
    if (by_the_host) assert_ok(gpusync_timeline_signal(t, 5));
    assert_int_equal(metal_event_value(event), 5);
    assert_ok(gpusync_timeline_destroy(t));
    assert_int_equal(softmetal_live("queue_operation"), 1);
    take_down_queue(&s, 0, false);
    assert_count("signalEvent:value:", 0, 1 + !by_the_host); /* destroy asks for nothing */
    hold_signals(false); /* softmetal aborts where the event is gone: the test has it */
    assert_int_equal(softmetal_live("queue_operation"), 0);
    assert_not_left(event, 1);
    assert_not_left(metal, 1);
    metal_release(event);
    metal_release(metal);
    close_stage(&s);
}

static void test_an_event_that_is_above_the_value_counts_as_signalled(void **state)
{
    (void)state;
    check_an_event_that_is_above_the_value(true);
    check_an_event_that_is_above_the_value(false);
}

/* Destroy pays what it owes, also of the last submission, whose events it keeps the longest. */
static void test_destroy_calls_back_for_the_last_submission(void **state)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    outcome told[2];
    stage s;
    (void)state;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(told, 0, sizeof told);
    device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    open_stage_on(&s, SOFTMETAL_MANUAL, QUEUE_OF_METAL4, 1, device_desc, queue_desc);
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 1)), TELL(&told[0]));
    (void)SUBMIT(s.q[0], BUFFERS(open_on(&s, 0)), SIGNALS(at(s.a, 2)), TELL(&told[1]));
    finish(&s, 0);
    assert_int_equal(calls_so_far(&told[1]), 0);
    take_down_queue(&s, 0, false);
    assert_ended(&told[0], GPUSYNC_OK);
    assert_ended(&told[1], GPUSYNC_OK);
    assert_true(told[0].order < told[1].order);
    close_stage(&s);
}

void *dispatch_queue_create(const char *label, void *attribute);
void dispatch_release(void *object);

/* Callbacks, releases and waits are told on the feedback queue that the program chose. */
static void test_feedback_comes_on_the_queue_of_the_program(void **state)
{
    gpusync_queue_desc desc;
    gpusync_queue *queue;
    outcome o;
    void *dispatch, *metal;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_REAL, 1);
    memset(&desc, 0, sizeof desc);
    memset(&o, 0, sizeof o);
    dispatch = dispatch_queue_create("feedback", NULL);
    desc.metal_queue = metal = metal4_queue_new_on(s.rig.metal_device, dispatch);
    assert_ok(gpusync_queue_create(s.device, &desc, &queue));
    assert_ok(gpusync_on_done(after(queue, commit_empty_to(queue, NULL)), remember, &o));
    assert_ok(gpusync_queue_wait(queue, SECONDS(20)));
    assert_ended(&o, GPUSYNC_OK);
    assert_ok(gpusync_queue_destroy(queue));
    metal_release(metal);
    dispatch_release(dispatch);
    close_stage(&s);
}

/* -- insight ------------------------------------------------------------------------------------------------------ */

typedef struct seen {
    pthread_mutex_t lock;
    unsigned of_kind[16];
    double start, end;
} seen;

static void see(void *user, const gpusync_trace_event *event)
{
    seen *it = (seen *)user;
    pthread_mutex_lock(&it->lock);
    it->of_kind[event->kind]++;
    if (event->kind == GPUSYNC_TRACE_COMPLETED) {
        it->start = event->gpu_start_s;
        it->end = event->gpu_end_s;
    }
    pthread_mutex_unlock(&it->lock);
}

static void test_the_trace_and_the_report_tell_of_it(void **state)
{
    void *buffers[2];
    seen it;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_MANUAL, 1);
    memset(&it, 0, sizeof it);
    pthread_mutex_init(&it.lock, NULL);
    assert_ok(gpusync_set_trace(s.device, see, &it));
    end_recording(buffers[0] = OPEN(s.q[0], .label = "frame 7"));
    end_recording(buffers[1] = OPEN(s.q[0], .label = "more"));
    (void)commit_four(&s, buffers, 2);
    (void)SUBMIT(s.q[0], BUFFERS(OPEN(s.q[0], .label = "inner")), SIGNALS(at(s.a, 1)), .label = "outer");
    assert_true(reports(s.device, "Metal 4"));
    assert_true(reports(s.device, "ticket 1 'frame 7': committed for"));
    assert_true(reports(s.device, "ticket 2 'outer': submitted for"));
    assert_true(reports(s.device, "ticket 2 'inner': committed for"));
    finish(&s, 0);
    assert_ok(gpusync_queue_wait(s.q[0], 0));
    assert_int_equal(it.of_kind[GPUSYNC_TRACE_COMMIT], 1);
    assert_int_equal(it.of_kind[GPUSYNC_TRACE_SUBMIT], 1);
    assert_int_equal(it.of_kind[GPUSYNC_TRACE_ISSUE], 1);
    assert_int_equal(it.of_kind[GPUSYNC_TRACE_COMPLETED], 2);
    assert_int_equal(it.of_kind[GPUSYNC_TRACE_SIGNAL], 1);
    assert_true(it.end >= it.start && it.start > 0);
    assert_ok(gpusync_set_trace(s.device, NULL, NULL));
    pthread_mutex_destroy(&it.lock);
    close_stage(&s);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

/* Every allocation and every object that a commit or a submission needs, missing in turn. Nothing is lost. */
static void test_whatever_is_missing_nothing_is_lost(void **state)
{
    unsigned kind, k;
    (void)state;
    for (kind = 0; kind < 4; kind++)
        for (k = 1; k < 12; k++) {
            gpusync_ticket ticket = 9;
            void *buffers[6];
            gpusync_result result;
            size_t i;
            stage s;
            open_four(&s, SOFTMETAL_MANUAL, 1);
            for (i = 0; i < 6; i++) end_recording(buffers[i] = buffer_of(s.q[0]));
            if (kind % 2) s.rig.memory.fail_at = (long)k;
            else softmetal_fail_creation(k, false);
            result = kind < 2 ? gpusync_commit4(s.q[0], buffers, 6, &ticket)
                              : gpusync_submit(s.q[0],
                                               &(gpusync_submission){.command_buffers = buffers,
                                                                     .command_buffer_count = 6,
                                                                     SIGNALS(at(s.a, 1))},
                                               &ticket);
            s.rig.memory.fail_at = 0;
            softmetal_fail_creation(0, false);
            if (result != GPUSYNC_OK) {
                assert_result(result, kind % 2 ? GPUSYNC_ERROR_OUT_OF_MEMORY : GPUSYNC_ERROR_METAL_NIL);
                assert_int_equal(ticket, GPUSYNC_NO_TICKET);
                assert_true(gpusync_is_idle(s.q[0]));
                ticket = commit_four(&s, buffers, 6); /* they are as they were */
            }
            finish(&s, 0);
            assert_ok(gpusync_poll(s.q[0], ticket));
            close_stage(&s);
        }
}

/* -- several threads ---------------------------------------------------------------------------------------------- */

enum { CROWD = 4 };

typedef struct member {
    stage *s;
    unsigned id, rounds;
    gate *gate;
    pthread_t thread;
} member;

/* A frame loop of its own: one command buffer, two allocators. */
static void *commit_and_wait(void *argument)
{
    member *m = (member *)argument;
    stage *s = m->s;
    gpusync_ticket tickets[2] = {0, 0};
    void *allocators[2], *buffer = metal4_buffer_new(s->rig.metal_device);
    unsigned i;
    allocators[0] = metal4_allocator_new(s->rig.metal_device);
    allocators[1] = metal4_allocator_new(s->rig.metal_device);
    gate_wait(m->gate);
    for (i = 0; i < m->rounds; i++) {
        unsigned k = i % 2;
        must(gpusync_wait(s->q[0], tickets[k], SECONDS(20)) == GPUSYNC_OK, "the frame before last has ended");
        if (i > 1) metal4_allocator_reset(allocators[k]);
        metal4_begin(buffer, allocators[k]);
        metal4_end(buffer);
        if (i % 3)
            must(gpusync_commit4(s->q[0], &buffer, 1, &tickets[k]) == GPUSYNC_OK, "gpusync_commit4");
        else
            must(gpusync_submit(s->q[0],
                                &(gpusync_submission){BUFFERS(buffer), SIGNALS(at(s->t[m->id], i + 1)),
                                                      .flags = GPUSYNC_UNORDERED},
                                &tickets[k]) == GPUSYNC_OK,
                 "gpusync_submit");
    }
    must(gpusync_wait(s->q[0], tickets[0], SECONDS(20)) == GPUSYNC_OK, "it ends");
    must(gpusync_wait(s->q[0], tickets[1], SECONDS(20)) == GPUSYNC_OK, "it ends");
    metal_release(buffer);
    metal_release(allocators[0]);
    metal_release(allocators[1]);
    return NULL;
}

static void test_threads_commit_and_wait_at_once(void **state)
{
    member crowd[CROWD];
    unsigned i;
    gate g;
    stage s;
    (void)state;
    open_four(&s, SOFTMETAL_REAL, 1);
    gate_init(&g, CROWD);
    for (i = 0; i < CROWD; i++) {
        crowd[i] = (member){.s = &s, .id = i, .rounds = 600 / SLOW + 10, .gate = &g};
        crowd[i].thread = start(commit_and_wait, &crowd[i]);
    }
    for (i = 0; i < CROWD; i++) join(crowd[i].thread);
    assert_true(gpusync_is_idle(s.q[0]));
    gate_destroy(&g);
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_queue_is_made_or_given),
        cmocka_unit_test(test_a_queue_is_refused),
        cmocka_unit_test(test_one_ticket_for_what_is_committed_together),
        cmocka_unit_test(test_a_buffer_is_begun_again_while_it_is_in_flight),
        cmocka_unit_test(test_what_is_not_to_be_committed_is_refused),
        cmocka_unit_test(test_without_an_array_several_are_refused),
        cmocka_unit_test(test_what_has_no_meaning_is_refused),
        cmocka_unit_test(test_a_commit_sends_few_messages),
        cmocka_unit_test(test_each_commit_has_options_of_its_own),
        cmocka_unit_test(test_the_limit_counts_commits_and_bounds_what_is_held),
        cmocka_unit_test(test_the_feedback_alone_tells_of_the_end),
        cmocka_unit_test(test_without_its_feedback_it_has_not_ended),
        cmocka_unit_test(test_the_error_inside_the_error_is_told),
        cmocka_unit_test(test_an_error_with_nothing_inside_is_told_as_it_is),
        cmocka_unit_test(test_the_domain_decides_before_the_code),
        cmocka_unit_test(test_waits_and_signals_are_operations_of_the_queue),
        cmocka_unit_test(test_both_kinds_of_queue_take_turns),
        cmocka_unit_test(test_a_wait_that_was_given_up_is_a_timeout),
        cmocka_unit_test(test_a_wait_that_was_given_up_in_front_of_several_command_buffers_is_a_timeout),
        cmocka_unit_test(test_a_value_that_comes_late_hides_the_timeout),
        cmocka_unit_test(test_a_wait_for_a_ticket_is_no_operation_of_the_queue),
        cmocka_unit_test(test_an_error_counts_more_than_a_wait_that_was_given_up),
        cmocka_unit_test(test_a_failed_producer_lets_its_consumers_go),
        cmocka_unit_test(test_held_work_keeps_its_recordings),
        cmocka_unit_test(test_what_is_held_is_found_in_either_line),
        cmocka_unit_test(test_many_of_everything),
        cmocka_unit_test(test_strict_leaves_it_to_the_host),
        cmocka_unit_test(test_what_is_left_in_flight_is_kept),
        cmocka_unit_test(test_the_event_of_a_wait_that_is_left_in_flight_is_kept_though_its_value_is_reached),
        cmocka_unit_test(test_a_wait_that_was_met_tells_nothing_of_the_signals_in_front_of_it),
        cmocka_unit_test(test_a_plain_commit_that_is_left_in_flight_leaves_nothing),
        cmocka_unit_test(test_release_after_keeps_the_rest),
        cmocka_unit_test(test_events_stay_until_their_signals_have_come),
        cmocka_unit_test(test_an_event_outlives_its_timeline_until_its_signal_has_come),
        cmocka_unit_test(test_an_event_goes_to_the_pool_when_its_signal_has_come),
        cmocka_unit_test(test_an_event_outlives_feedbacks_in_another_order),
        cmocka_unit_test(test_kept_events_go_in_the_order_of_their_signals),
        cmocka_unit_test(test_an_event_stays_until_it_shows_the_last_value),
        cmocka_unit_test(test_the_event_of_a_failed_timeline_goes_with_a_later_signal_of_its_queue),
        cmocka_unit_test(test_a_signal_that_has_not_come_keeps_queue_and_event_for_good),
        cmocka_unit_test(test_events_outlive_a_queue_that_went_at_once),
        cmocka_unit_test(test_the_event_of_a_signal_that_has_not_come_serves_no_other_timeline),
        cmocka_unit_test(test_a_signal_that_came_before_destroy_keeps_nothing),
        cmocka_unit_test(test_a_signal_that_comes_while_destroy_asks_keeps_nothing),
        cmocka_unit_test(test_destroy_asks_with_an_event_of_the_pool_that_goes_on_at_its_value),
        cmocka_unit_test(test_without_an_event_to_ask_with_queue_and_event_stay_for_good),
        cmocka_unit_test(test_the_queue_alone_signals_the_values_of_its_work),
        cmocka_unit_test(test_a_feedback_may_come_before_the_signal_is_sent),
        cmocka_unit_test(test_a_failed_timeline_gives_everything_back),
        cmocka_unit_test(test_destroy_calls_back_for_the_last_submission),
        cmocka_unit_test(test_feedback_comes_on_the_queue_of_the_program),
        cmocka_unit_test(test_the_trace_and_the_report_tell_of_it),
        cmocka_unit_test(test_whatever_is_missing_nothing_is_lost),
        cmocka_unit_test(test_threads_commit_and_wait_at_once),
        cmocka_unit_test(test_a_timeline_that_failed_by_strict_work_gives_everything_back),
        cmocka_unit_test(test_the_event_of_a_failed_timeline_stays_for_the_signal),
        cmocka_unit_test(test_an_event_that_is_above_the_value_counts_as_signalled),
        cmocka_unit_test(test_a_queue_that_goes_later_asks_once_and_looks_for_100_ms),
        cmocka_unit_test(test_the_event_of_a_failed_timeline_outlives_feedbacks_in_another_order),
        cmocka_unit_test(test_kept_events_keep_their_order_while_two_threads_look),
        cmocka_unit_test(test_a_signal_that_never_comes_keeps_no_later_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
