/* test_softmetal4.c - Metal 4 of the software device: it behaves as softmetal.h says, and aborts where it must

   As test_softmetal.c, which has what both generations share. */
#include "softmetal_words.h"

/* What the last feedback said. */
static struct report {
    long code, cause, root; /* -1: there is no such error */
    double start, end;
} report;

/* In a pool of softmetal's */
static void note_feedback(block *self, void *feedback)
{
    void *error = metal_get(feedback, "error"), *cause = below(error);
    report = (struct report){code_of(error), code_of(cause), code_of(below(cause)), metal_gpu_start(feedback),
                             metal_gpu_end(feedback)};
}

static void on_feedback(stage *s, int number)
{
    block b = stack_block(&s->n, number, note_feedback);
    metal4_add_feedback_handler(s->options, &b);
}

static stage *open4(softmetal_clock clock)
{
    stage *s = stage_open(clock);
    s->queue = s->n.queue = mine(metal4_queue_new(s->device));
    s->buffer = mine(metal4_buffer_new(s->device));
    s->allocator = mine(metal4_allocator_new(s->device));
    s->memory = memory_new(s->device, 64);
    s->options = mine(metal4_options_new());
    return s;
}
static int set_up(void **state) { return !(*state = open4(*(const softmetal_clock *)*state)); }

static void each_rule_that_is_broken_aborts(void **state), pools_are_watched(void **state);
KIT_ADD(first_they_fork, cmocka_unit_test(each_rule_that_is_broken_aborts), cmocka_unit_test(pools_are_watched))

/* The buffer fills the memory, or does nothing with 0, and is ended. */
static void record(stage *s, void *buffer, void *allocator, unsigned char value)
{
    metal4_begin(buffer, allocator);
    if (value) fill(buffer, s->memory, value);
    metal4_end(buffer);
}
static void *commit(stage *s)
{
    metal4_commit(s->queue, &s->buffer, 1, s->options);
    return s->clock == SOFTMETAL_MANUAL ? softmetal_last_buffer(s->queue) : NULL;
}
/* The stage's buffer, with another allocator each time. */
static void *run_of(stage *s, unsigned char value)
{
    record(s, s->buffer, mine(metal4_allocator_new(s->device)), value);
    return commit(s);
}

/* -- facts -------------------------------------------------------------------------------------------------------- */

/* Three buffers of one allocator: the memory is 1, is copied to `to`, and is 3. */
static void commit_three(stage *s, void *to)
{
    void *buffers[3] = {s->buffer, mine(metal4_buffer_new(s->device)), mine(metal4_buffer_new(s->device))}, *compute;
    record(s, buffers[0], s->allocator, 1);
    metal4_begin(buffers[1], s->allocator);
    compute = metal_get(buffers[1], "computeCommandEncoder");
    assert_ptr_equal(metal_get(compute, "commandBuffer"), buffers[1]);
    metal4_barrier(compute);
    metal_copy(compute, s->memory, 0, to, 0, 64);
    metal_do(compute, "endEncoding");
    metal4_end(buffers[1]);
    record(s, buffers[2], s->allocator, 3);
    metal4_commit(s->queue, buffers, 3, s->options);
    settle(s);
    metal4_allocator_reset(s->allocator);
}
static void add_kernel(void *user, const softmetal_kernel_args *args)
{
    *(unsigned char *)args->buffers[0] = (unsigned char)(*(unsigned char *)args->buffers[2] + args->grid[0]);
}
static const metal_size one = {1, 1, 1};
static void *pipeline_of(stage *s) { return mine(metal_pipeline_new(s->device, "kernel void add(", "add", NULL, 0)); }
/* Adds one to the addend's bytes 1 and 2, by addresses that the table has at each dispatch. */
static void dispatch_two(stage *s, void *addend)
{
    void *table = metal4_table_new(s->device, 3), *compute;
    softmetal_set_kernel("add", add_kernel, NULL, 0);
    metal4_begin(s->buffer, s->allocator);
    compute = metal_get(s->buffer, "computeCommandEncoder");
    metal_set_pipeline(compute, pipeline_of(s));
    metal4_set_table(compute, table);
    for (unsigned i = 1; i <= 2; i++) {
        bytes_of(addend)[i] = (unsigned char)(5 * i);
        metal4_table_set(table, metal4_address(s->memory) + i, 0);
        metal4_table_set(table, metal4_address(addend) + i, 2);
        metal_dispatch(compute, one, one);
    }
    metal_do(compute, "endEncoding");
    metal4_end(s->buffer);
    metal_release(table); /* is copied at the dispatch */
    commit(s);
    settle(s);
}
static void keep_it(block *self, void *feedback)
{
    self->notes->found[0] = softmetal_dispatch_qos(NULL);
    self->notes->object = metal_retain(feedback);
}
/* The feedback of a queue that the program releases at once: the class of service of its dispatch queue, 0 for none. */
static unsigned class_of_feedback(stage *s)
{
    void *serial = dispatch_queue_create("q", dispatch_queue_attr_make_with_qos_class(NULL, 0x19, 0));
    void *queue = metal4_queue_new_on(s->device, serial);
    block b = stack_block(&s->n, 1, keep_it);
    metal4_add_feedback_handler(s->options, &b);
    record(s, s->buffer, s->allocator, 7);
    metal4_commit(queue, &s->buffer, 1, s->options);
    metal_release(queue);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish_queue(queue);
    settle(s);
    assert_true(metal_gpu_end(s->n.object) > 0);
    metal_release(s->n.object);
    dispatch_release(serial);
    return s->n.found[0];
}
static void *fail_run(stage *s, const char *domain, long code, unsigned number)
{
    on_feedback(s, 1);
    void *run = run_of(s, 1);
    if (number) softmetal_fail_as(run, number, NULL);
    if (!number) softmetal_fail(run, domain, code, NULL);
    softmetal_finish(run);
    return run;
}
static bool report_is(long code, long cause, long root)
{
    return report.code == code && report.cause == cause && report.root == root;
}
static bool numbers_have_codes(stage *s)
{
    for (size_t i = 0; i < LENGTH(made_of_numbers); i++) {
        fail_run(s, NULL, 0, made_of_numbers[i].number);
        if (!report_is(1, made_of_numbers[i].code4, made_of_numbers[i].number)) return false;
    }
    return true;
}
/* A run behind a wait, and a signal behind the run. */
static void *run_behind_wait(stage *s, void *event)
{
    metal4_wait(s->queue, event, 1);
    on_feedback(s, 1);
    void *run = run_of(s, 1);
    metal4_signal(s->queue, event, 5);
    return run;
}
static unsigned char first_byte(stage *s) { return bytes_of(s->memory)[0]; }
static void *prepared(stage *s)
{
    softmetal_prepare_run(s->buffer, s->queue);
    return s->buffer;
}
#define DUE(run, what) (softmetal_what_is_due(run) == SOFTMETAL_##what##_DUE)

/* e an event, b a buffer of the `older` queue, x and y what a row makes */
#define FACTS(X)                                                                                                       \
    X("a commit does its buffers in order", REAL, commit_three(s, x = memory_new(s->device, 64)),                      \
      bytes_of(x)[63] == 1 && bytes_of(s->memory)[63] == 3)                                                            \
    X("... and tells, in order, with times", REAL, on_feedback(s, 1); on_feedback(s, 2); run_of(s, 1); settle(s),      \
      n->count == 2 && n->order[0] == 1 && report.code == -1 && report.start > 0 && report.end >= report.start)        \
    X("... by hand as well", MANUAL, on_feedback(s, 1); on_feedback(s, 2); run_of(s, 1); settle(s),                    \
      n->count == 2 && n->order[0] == 1 && first_byte(s) == 1 && softmetal_live("run") == 0) \
    X("it takes the handlers out", MANUAL, on_feedback(s, 1); run_of(s, 1); run_of(s, 2); settle(s), n->count == 1)    \
    X("options drop what no commit took", MANUAL, on_feedback(s, 1), n->count == 0)                                    \
    X("a buffer is in several runs", MANUAL, x = run_of(s, 1); y = run_of(s, 2), \
      softmetal_outstanding(s->queue) == 2 && softmetal_buffer_at(s->queue, 1) == x && DUE(y, NOTHING) &&              \
      (softmetal_finish(x), first_byte(s)) == 1 && \
      DUE(y, COMPLETE) && (softmetal_finish(y), first_byte(s)) == 2)                                                   \
    X("runs that share nothing come in any order", MANUAL, x = run_of(s, 0); s->buffer = mine(metal4_buffer_new(       \
      s->device)); y = run_of(s, 1), (softmetal_complete(y), first_byte(s)) == 1 && DUE(x, COMPLETE))                  \
    X("a recording may be dropped", MANUAL, record(s, s->buffer, s->allocator, 1); run_of(s, 0); settle(s),            \
      first_byte(s) == 0)                                                                                              \
    X("kernels find memory by its address", REAL, dispatch_two(s, memory_new(s->device, 8)),                           \
      !memcmp(bytes_of(s->memory), "\0\6\13", 3))                                                                      \
    X("feedback comes on its dispatch queue", REAL, , class_of_feedback(s) == 0x19 && n->count == 1)                   \
    X("... not by hand, and goes unless it is kept", MANUAL, , class_of_feedback(s) == 0 && n->count == 1 &&           \
      softmetal_live("feedback") == 0)                                                                                 \
    X("an error is wrapped", MANUAL, , numbers_have_codes(s) && first_byte(s) == 0)                                    \
    X("... by code as well", MANUAL, fail_run(s, NULL, 6, 0), report_is(1, 6, SOFTMETAL_INTERNAL))                     \
    X("... but for one of another domain", MANUAL, fail_run(s, "own", 6, 0), report_is(6, -1, -1))                     \
    X("a buffer means its prepared run", MANUAL, on_feedback(s, 1); \
      softmetal_fail_as(prepared(s), SOFTMETAL_HANG, NULL); x = run_of(s, 1); softmetal_finish(s->buffer),             \
      x == softmetal_run_of(s->buffer) && report.root == SOFTMETAL_HANG) \
    X("removal fails runs, ends waits, signals nothing", REAL, run_behind_wait(s, e); \
      softmetal_remove_device(s->device); settle(s), \
      n->count == 1 && report.cause == 4 && metal_event_value(e) == 0 && first_byte(s) == 0) \
    X("... by hand as well", MANUAL, run_behind_wait(s, e); softmetal_remove_device(s->device); settle(s),             \
      n->count == 1 && report.cause == 4 && metal_event_value(e) == 0 && first_byte(s) == 0)                           \
    X("a wait holds what is behind it", REAL, run_behind_wait(s, e), !reaches(e, 1, 5) && first_byte(s) == 0 &&        \
      (metal_event_signal(e, 1), settle(s), first_byte(s)) == 1 && metal_event_value(e) == 5)                          \
    X("... by hand as well", MANUAL, x = run_behind_wait(s, e), DUE(x, WAIT) && \
      (metal_event_signal(e, 1), DUE(x, COMPLETE)) && (settle(s), metal_event_value(e)) == 5 && \
      softmetal_live("queue_operation") == 0) \
    X("... until it times out", REAL, set_watchdog(MS(20)); run_behind_wait(s, e); settle(s), report.code == -1 &&     \
      n->count == 1 && metal_event_value(e) == 5)                                                                      \
    X("... by hand, and that completes no run", MANUAL, x = run_behind_wait(s, e); softmetal_time_out(x),              \
      DUE(x, COMPLETE) && first_byte(s) == 0 && (settle(s), report.code) == -1 && metal_event_value(e) == 5)           \
    X("a signal with nothing before it fires", MANUAL, metal4_signal(s->queue, e, 1), metal_event_value(e) == 1)       \
    X("... of the queue's last event", MANUAL, metal4_signal(s->queue, e, 1); metal4_signal(s->queue,                  \
      x = event_new(s->device), 1), softmetal_last_signalled(s->queue) == x && !softmetal_last_signalled(older))       \
    X("... behind a run that fails, too", MANUAL, x = run_of(s, 1); softmetal_fail_as(x, SOFTMETAL_HANG, NULL);        \
      metal4_signal(s->queue, e, 1); settle(s), metal_event_value(e) == 1)                                             \
    X("queues of both kinds meet", REAL, metal_encode_wait(b, e, 1); metal_encode_signal(fill(b, s->memory, 9), e, 2); \
      metal_commit(b); run_of(s, 1); metal4_signal(s->queue, e, 1); metal4_wait(s->queue, e, 2);                       \
      metal4_signal(s->queue, e, 3); settle(s), metal_event_value(e) == 3 && first_byte(s) == 9)                       \
    X("a creation may fail", REAL, softmetal_fail_creation(1, true), !metal4_queue_new(s->device) &&                   \
      !metal4_buffer_new(s->device) && !metal4_allocator_new(s->device) && !metal4_options_new() &&                    \
      !metal4_table_new(s->device, 1) && softmetal_creations() == 5)                                                   \
    X("Metal 4 may be missing", REAL, softmetal_hide_selector("newMTL4CommandQueue"),                                  \
      !responds(s->device, "newMTL4CommandQueue") && responds(s->device, "newCommandQueue"))                           \
    X("a queue has messages of its kind", REAL, , responds(s->queue, "signalEvent:value:") &&                          \
      !responds(s->queue, "commandBuffer") && !responds(older, "signalEvent:value:"))

static bool holds(stage *s, size_t row, bool with)
{
    notes *n = &s->n;
    void *e = event_new(s->device), *older = mine(metal_queue_new(s->device, 4)), *b = buffer_in(older), *x, *y;
    FACTS(SEE_IN_TURN)
    return !with;
}
without_stage(facts_hold)
{
    static const fact rows[] = {FACTS(ROW_OF_FACT)};
    assert_facts(rows, LENGTH(rows), holds, open4);
}

static char saw[200];
static void hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    assert_ptr_equal(object, user);
    snprintf(saw + strlen(saw), sizeof saw - strlen(saw), "%c%s ", phase == SOFTMETAL_BEFORE ? '<' : '>', selector);
}

on_real(hooks_see_commits_and_operations)
{
    void *event = event_new(s->device);
    saw[0] = 0;
    record(s, s->buffer, s->allocator, 1);
    softmetal_set_message_hook(hook, s->queue);
    commit(s);
    metal4_wait(s->queue, event, 0);
    metal4_signal(s->queue, event, 1);
    softmetal_set_message_hook(NULL, NULL);
    settle(s);
    assert_string_equal(saw, "<commit:count:options: >commit:count:options: <waitForEvent:value: >waitForEvent:value: "
                             "<signalEvent:value: >signalEvent:value: ");
}

static void *commit_often(void *user)
{
    stage *s = user;
    void *pool = metal_pool_push(), *buffer = mine(metal4_buffer_new(s->device)), *event = event_new(s->device);
    void *allocator = mine(metal4_allocator_new(s->device));
    for (uint64_t i = 1; i <= 50; i++) {
        record(s, buffer, allocator, 0);
        metal4_commit(s->queue, &buffer, 1, NULL);
        metal4_signal(s->queue, event, i);
        while (metal_event_value(event) < i)
            sched_yield();
        metal4_allocator_reset(allocator);
    }
    metal_pool_pop(pool);
    return NULL;
}

on_real(threads_commit_to_one_queue)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        threads[i] = begin_thread(commit_often, s);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    settle(s);
    assert_int_equal(softmetal_outstanding(s->queue), 0);
}

/* -- quirks ------------------------------------------------------------------------------------------------------- */

static void fail_one(stage *s)
{
    on_feedback(s, 1);
    softmetal_fail_next_as(1, SOFTMETAL_HANG);
    run_of(s, 1);
}
static bool signals_in_order(stage *s, void *event, void *other)
{
    void *release = event_new(s->device), *listener = listener_new();
    metal4_wait(s->queue, release, 1);
    metal4_signal(s->queue, event, 1);
    metal4_signal(s->queue, other, 1);
    on_event(other, listener, 1, &s->n, 2);
    on_event(event, listener, 1, &s->n, 1);
    metal_event_signal(release, 1);
    settle(s);
    assert_int_equal(s->n.count, 2);
    return s->n.order[0] == 1;
}
/* ... which is then over. */
static softmetal_due due_behind(stage *s, void *event)
{
    metal4_signal(s->queue, event, 1);
    void *run = run_of(s, 1);
    softmetal_due due = softmetal_what_is_due(run);
    if (due == SOFTMETAL_COMPLETE_DUE) softmetal_finish(run);
    softmetal_set_quirks(&(softmetal_quirks){0});
    assert_int_equal(metal_event_value(event), 1);
    return due;
}
static bool fires_before_a_run(stage *s, void *event)
{
    metal4_signal(s->queue, event, 1);
    bool fires = metal_event_value(event) == 1;
    softmetal_complete(run_of(s, 1));
    return fires;
}

/* In the order of softmetal.h */
#define QUIRKS(X)                                                                                                      \
    X(no_metal4_family, REAL, , !SEND(signed char, (ID, long), s->device, "supportsFamily:", 5002l))                   \
    X(bare_feedback_errors, MANUAL, fail_one(s); settle(s), report.code == 1 && report.cause == SOFTMETAL_HANG)        \
    X(options_keep_handlers, MANUAL, on_feedback(s, 1); run_of(s, 1); run_of(s, 2); settle(s), s->n.count == 2)        \
    X(signals_die_with_failure, MANUAL, fail_one(s); metal4_signal(s->queue, e, 1); settle(s), \
      metal_event_value(e) == 0) \
    X(overtaken_signals, REAL, , !signals_in_order(s, e, f))                                                           \
    X(signals_held, MANUAL, , due_behind(s, e) == SOFTMETAL_NOTHING_DUE)                                               \
    X(signals_late, MANUAL, , !fires_before_a_run(s, e))

static bool sees(stage *s, size_t row, bool with)
{
    void *e = event_new(s->device), *f = event_new(s->device);
    QUIRKS(SEE_IN_TURN)
    return false;
}
without_stage(each_quirk_is_seen_with_it_and_not_without)
{
    static const fact rows[] = {QUIRKS(ROW_OF_QUIRK)};
    const size_t from = offsetof(softmetal_quirks, no_metal4_family);
    assert_int_equal(LENGTH(rows), sizeof(softmetal_quirks) - from);
    assert_quirks(rows, LENGTH(rows), from, sees, open4);
}

/* -- rules -------------------------------------------------------------------------------------------------------- */

static stage *on_stage;
static void *add_another(void *unused)
{
    block b = global_block(&on_stage->n, 2, NULL);
    metal4_add_feedback_handler(on_stage->options, &b);
    return unused;
}
static void intrude(void *to, const void *from)
{
    pthread_join(begin_thread(add_another, NULL), NULL);
}
static void add_intruding(stage *s)
{
    static const descriptor intruding = {0, sizeof(block), intrude, block_dispose, "v16@?0@8", NULL};
    block b = stack_block(&s->n, 1, NULL);
    b.descriptor = &intruding;
    metal4_add_feedback_handler(s->options, &b);
}
/* An encoder of the stage's buffer, which records; then with a dispatch that has one argument. */
static void *compute_in(stage *s)
{
    metal4_begin(s->buffer, s->allocator);
    return metal_get(s->buffer, "computeCommandEncoder");
}
static void *bind(stage *s, void *pipeline, uint64_t address)
{
    void *compute = compute_in(s), *table = metal4_table_new(s->device, 1);
    metal_set_pipeline(compute, pipeline);
    metal4_table_set(table, address, 0);
    metal4_set_table(compute, table);
    metal_dispatch(compute, one, one);
    return compute;
}
static void end_and_commit(stage *s, void *compute)
{
    metal_do(compute, "endEncoding");
    metal4_end(s->buffer);
    commit(s);
}
static void commit_two(stage *s, void *second)
{
    void *buffers[2] = {s->buffer, second};
    record(s, s->buffer, s->allocator, 1);
    metal4_commit(s->queue, buffers, 2, NULL);
}
static void feedback_on_released_queue(stage *s)
{
    void *serial = dispatch_queue_create("q", NULL), *queue;
    softmetal_set_clock(SOFTMETAL_REAL);
    queue = metal4_queue_new_on(s->device, serial);
    dispatch_release(serial);
    on_feedback(s, 1);
    record(s, s->buffer, s->allocator, 0);
    metal4_commit(queue, &s->buffer, 1, s->options);
    softmetal_settle(SECONDS(20));
}

/* d device, q queue, b buffer, a allocator, x: of a reference that the case releases; other: a device */
#define RULES(X)                                                                                                       \
    X("allocator-reset-in-use", record(s, b, a, 1); commit(s); metal4_allocator_reset(a))                              \
    X("allocator-reset-while-recording", metal4_begin(b, a); metal4_allocator_reset(a))                                \
    X("allocator-taken", metal4_begin(b, a); metal4_begin(metal4_buffer_new(d), a))                                    \
    X("begin-while-recording", metal4_begin(b, a); metal4_begin(b, metal4_allocator_new(d)))                           \
    X("end-without-begin", metal4_end(b))                                                                              \
    X("end-without-begin", record(s, b, a, 1); metal4_end(b))                                                          \
    X("end-with-active-encoder", compute_in(s); metal4_end(b))                                                         \
    X("second-active-encoder", compute_in(s); metal_get(b, "computeCommandEncoder"))                                   \
    X("encoder-outside-recording", metal_get(b, "computeCommandEncoder"))                                              \
    X("encoder-outside-recording", record(s, b, a, 0); metal_get(b, "computeCommandEncoder"))                          \
    X("encode-after-end", x = compute_in(s); metal_do(x, "endEncoding"); metal_fill(x, s->memory, 0, 1, 1))            \
    X("encoder-not-ended", s->buffer = metal4_buffer_new(d); compute_in(s); metal_release(s->buffer))                  \
    X("blit-out-of-range", metal_fill(compute_in(s), s->memory, 1, 64, 1))                                             \
    X("no-pipeline", metal_dispatch(compute_in(s), one, one))                                                          \
    X("unknown-gpu-address", bind(s, pipeline_of(s), 4096))                                                            \
    X("unknown-gpu-address", x = metal_buffer_new(d, 4); address = metal4_address(x); metal_release(x);                \
      bind(s, pipeline_of(s), address))                                                                                \
    X("message-to-freed", x = compute_in(s); metal_set_pipeline(x, pipeline_of(s)); y = metal4_table_new(d, 1);        \
      metal4_set_table(x, y); metal_release(y); metal_dispatch(x, one, one))                                           \
    X("bad-binding", metal4_table_set(metal4_table_new(d, 2), 0, 2))                                                   \
    X("bad-binding", metal4_table_new(d, 32))                                                                          \
    X("empty-commit", metal4_commit(q, &b, 0, NULL))                                                                   \
    X("nil-argument", metal4_commit(q, NULL, 1, NULL))                                                                 \
    X("nil-in-commit", commit_two(s, NULL))                                                                            \
    X("buffer-twice-in-commit", commit_two(s, b))                                                                      \
    X("wrong-class", commit_two(s, buffer_in(metal_queue_new(d, 1))))                                                  \
    X("commit-not-ended", metal4_begin(b, a); commit(s))                                                               \
    X("commit-not-ended", commit(s))                                                                                   \
    X("commit-not-ended", run_of(s, 1); commit(s))                                                                     \
    X("recording-reset", record(s, b, a, 1); metal4_allocator_reset(a); commit(s))                                     \
    X("other-device", record(s, b, a, 1); metal4_commit(metal4_queue_new(other), &b, 1, NULL))                         \
    X("other-device", metal4_wait(q, metal_get(other, "newEvent"), 1))                                                 \
    X("wrong-class", record(s, b, a, 1); metal4_commit(q, &b, 1, s->memory))                                           \
    X("nil-argument", metal4_add_feedback_handler(s->options, NULL))                                                   \
    X("nil-argument", metal4_signal(q, NULL, 1))                                                                       \
    X("destroyed-in-use", s->memory = metal_buffer_new(d, 4); run_of(s, 1); metal_release(s->memory))                  \
    X("destroyed-in-use", x = metal4_allocator_new(d); record(s, b, x, 1); commit(s); metal_release(x))                \
    X("destroyed-in-use", x = metal4_allocator_new(d); metal4_begin(b, x); metal_release(x))                           \
    X("destroyed-in-use", x = metal4_allocator_new(d); record(s, b, x, 1); metal_release(x); commit(s))                \
    X("destroyed-in-use", s->memory = metal_buffer_new(d, 4); record(s, b, a, 1); metal_release(s->memory); commit(s)) \
    X("destroyed-in-use", s->buffer = metal4_buffer_new(d); run_of(s, 1); metal_release(s->buffer))                    \
    X("destroyed-in-use", x = metal_pipeline_new(d, "kernel void add(", "add", NULL, 0);                               \
      end_and_commit(s, bind(s, x, 0)); metal_release(x))                                                              \
    X("destroyed-in-use", x = metal_buffer_new(d, 4); end_and_commit(s, bind(s, pipeline_of(s), metal4_address(x)));   \
      metal_release(x))                                                                                                \
    X("destroyed-in-use", x = metal_shared_event_new(d); metal4_wait(q, x, 1); metal_release(x))                       \
    X("destroyed-in-use", x = metal_shared_event_new(d); run_of(s, 1); metal4_signal(q, x, 1); metal_release(x))       \
    X("options-on-two-threads", add_intruding(s))                                                                      \
    X("step-not-due", softmetal_time_out(run_of(s, 1)))                                                                \
    X("step-not-due", run_of(s, 1); metal4_wait(q, event_new(d), 1); softmetal_time_out(run_of(s, 2)))                 \
    X("step-not-due", metal4_wait(q, event_new(d), 1); softmetal_complete(run_of(s, 1)))                               \
    X("step-not-due", softmetal_set_quirks(&(softmetal_quirks){.signals_held = true});                                 \
      metal4_signal(q, event_new(d), 1); softmetal_complete(run_of(s, 1)))                                             \
    X("reset-with-work", run_of(s, 1); softmetal_reset())                                                              \
    X("reset-with-work", metal4_wait(q, event_new(d), 1); alarm(5); softmetal_reset())                                 \
    X("message-to-freed", on_feedback(s, 1); softmetal_finish(run_of(s, 1)); metal_gpu_start(s->n.given))              \
    X("message-to-freed", x = run_of(s, 1); softmetal_finish(x); softmetal_what_is_due(x))                             \
    X("message-to-freed", feedback_on_released_queue(s))                                                               \
    X("panel-misuse", softmetal_fail_as(b, SOFTMETAL_HANG, NULL)) /* no run was prepared */                            \
    X("hidden-selector", softmetal_hide_selector("newMTL4CommandQueue"); metal4_queue_new(d))                          \
    X("feedback-queue-not-serial", metal4_queue_new_on(d, dispatch_get_global_queue(0, 0)))
#define RULES_OF_LINUX(X)                                                                                              \
    X("autorelease-without-pool", metal4_begin(b, a); metal_retain(b); metal_retain(a); metal_pool_pop(s->pool);       \
      metal_get(b, "computeCommandEncoder"))
static const char *const broken[] = {RULES(NAME_OF_CASE) RULES_OF_LINUX(NAME_OF_CASE)};
enum { OF_ANY_SYSTEM = 0 RULES(COUNT_CASE) };

static int break_rule(size_t wanted)
{
    alarm(50);
    stage *s = on_stage = open4(SOFTMETAL_MANUAL);
    void *d = s->device, *q = s->queue, *b = s->buffer, *a = s->allocator, *other = mine(softmetal_new_device());
    void *x, *y;
    uint64_t address;
    RULES(BREAK_IN_TURN)
    RULES_OF_LINUX(BREAK_IN_TURN)
    fprintf(stderr, "the rule did not hold\n");
    return 0;
}
static void each_rule_that_is_broken_aborts(void **state)
{
    static const char *const rules[] = {SM_RULES_OF_METAL4(NAME_OF_RULE)};
    assert_each_has_a_case(rules, LENGTH(rules), broken, LENGTH(broken));
    assert_they_abort(break_rule, broken, 0, OF_ANY_SYSTEM);
}
static void pools_are_watched(void **state)
{
    NOT_ON_A_MAC("softmetal does not see every pool");
    assert_they_abort(break_rule, broken, OF_ANY_SYSTEM, LENGTH(broken));
}

int main(int count, char **arguments)
{
    own_path = arguments[0];
    if (count == 3 && !strcmp(arguments[1], "--break")) return break_rule((size_t)atoi(arguments[2]));
    return run_all_tests();
}
