/* test_softmetal.c - the software device itself: it behaves as softmetal.h says, and aborts where it must

   Plain C, as every program that softmetal is made for. For each rule that is broken the program runs itself again, and
   expects SIGABRT and the rule's name on stderr. Under ThreadSanitizer it also runs itself with races that the device
   must not hide. Metal 4 is in test_softmetal4.c. */
#include "softmetal_words.h"

#include <dlfcn.h>

extern void os_unfair_lock_lock(uint32_t *lock);
extern bool os_unfair_lock_trylock(uint32_t *lock);
extern void os_unfair_lock_unlock(uint32_t *lock);
extern void *MTLCopyAllDevices(void);
extern signed char class_respondsToSelector(void *cls, void *selector);
extern void dispatch_retain(void *object);

static int set_up(void **state) { return !(*state = stage_open(*(const softmetal_clock *)*state)); }

static void each_rule_that_is_broken_aborts(void **state), pools_locks_and_classes_are_watched(void **state);
KIT_ADD(first_they_fork, cmocka_unit_test(each_rule_that_is_broken_aborts),
        cmocka_unit_test(pools_locks_and_classes_are_watched))

static void *unretained_in(void *queue) { return metal_get(queue, "commandBufferWithUnretainedReferences"); }
static void *serial(void) { return dispatch_queue_create("q", NULL); }
static void nothing(void *context) { (void)context; }
static void count_up(void *context) { COUNT((unsigned *)context); }
static void *in_thread(void *(*body)(void *), void *argument)
{
    pthread_join(begin_thread(body, argument), NULL);
    return NULL;
}
/* Commits it, and brings it to its end. */
static void *run(stage *s, void *buffer)
{
    metal_commit(buffer);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish(buffer);
    metal_wait_until_completed(buffer);
    return buffer;
}
static void *error_of(stage *s, void *buffer) { return metal_get(run(s, buffer), "error"); }

/* -- how a command buffer ends ------------------------------------------------------------------------------------ */

/* 1: the times are there, 2: the status, 4: what the buffer refers to, 8: its place; 16: of each block that is gone. */
static void look_at_end(block *self, void *buffer)
{
    notes *n = self->notes;
    n->found[self->number] = (metal_gpu_end(buffer) > 0) + 2u * (metal_status(buffer) == COMPLETED) +
                             4u * (softmetal_live("event") == 1) + 8u * (softmetal_outstanding(n->queue) == 1) +
                             16u * n->disposed;
}

on_both_clocks(a_buffer_ends_in_this_order)
{
    void *event = metal_get(s->device, "newEvent"), *pool = metal_pool_push(), *buffer = buffer_in(s->queue);
    metal_encode_signal(buffer, event, 1);
    metal_release(event);
    on_completed_do(buffer, &s->n, 1, look_at_end);
    on_completed_do(buffer, &s->n, 2, look_at_end);
    run(s, buffer);
    ORDER(&s->n, 1, 2);
    assert_int_equal(s->n.found[1], 15);
    assert_int_equal(s->n.found[2], s->clock == SOFTMETAL_MANUAL ? 15 : 15 + 16);
    assert_false(pthread_equal(s->n.thread, pthread_self()));
    assert_int_equal(softmetal_live("event") + softmetal_outstanding(s->queue), 0);
    metal_pool_pop(pool);
    settle(s);
    assert_int_equal(softmetal_live("command_buffer") + softmetal_live("block"), 0);
    assert_int_equal(s->n.disposed, 2);
}

/* Three buffers, the first of which has a handler that stays; the second one's status meanwhile. */
static unsigned long status_behind_a_slow_handler(stage *s)
{
    void *first = buffer_in(s->queue), *second = buffer_in(s->queue), *third = buffer_in(s->queue);
    void *event = event_new(s->device);
    s->n.gated = true;
    metal_commit(on_completed(first, &s->n, 1));
    assert_true(comes_to(&s->n.inside, 1));
    metal_commit(second);
    metal_encode_signal(third, event, 1);
    metal_commit(third);
    assert_true(reaches(event, 1, 20000)); /* the GPU has ended with the second one: events go past */
    return metal_status(second);
}

on_real(a_poller_sees_the_work)
{
    for (unsigned char i = 1; i <= 20; i++) {
        void *memory = memory_new(s->device, 64), *buffer = fill(buffer_in(s->queue), memory, i);
        metal_commit(buffer);
        while (metal_status(buffer) < COMPLETED)
            sched_yield();
        assert_int_equal(bytes_of(memory)[63], i);
    }
}

static void *take_and_drop(void *user)
{
    stage *s = user;
    void *pool = metal_pool_push();
    (void)buffer_in(s->n.queue);
    COUNT(&s->n.found[0]);
    metal_pool_pop(pool);
    return NULL;
}

/* By hand a full queue waits as long as a handler runs: its end is near, and the place comes with it. */
on_both_clocks(a_full_queue_blocks_the_next_buffer)
{
    void *queue = s->n.queue = mine(metal_queue_new(s->device, 1)), *first = on_completed(buffer_in(queue), &s->n, 1);
    const unsigned count = s->clock == SOFTMETAL_MANUAL ? 1 : 2;
    pthread_t threads[2];
    s->n.gated = true;
    metal_commit(first);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_complete(first), softmetal_begin_handler(first, 0);
    assert_false(softmetal_await_blocked(queue, 1, MS(1)));
    for (unsigned k = 0; k < count; k++) {
        threads[k] = begin_thread(take_and_drop, s);
        assert_true(softmetal_await_blocked(queue, k + 1, SECONDS(20)));
    }
    assert_true(softmetal_blocked(queue) == count && softmetal_outstanding(queue) == 1 && GET(&s->n.found[0]) == 0);
    PUT(&s->n.open, 1);
    for (unsigned k = 0; k < count; k++)
        pthread_join(threads[k], NULL);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish(first);
    assert_true(softmetal_blocked(queue) == 0 && softmetal_outstanding(queue) == 0);
    softmetal_set_quirks(&(softmetal_quirks){.full_queue_aborts = true}); /* there is room */
    (void)buffer_in(queue);
}

/* -- the manual clock --------------------------------------------------------------------------------------------- */

on_manual(handlers_of_two_buffers_run_at_once)
{
    notes other = {.gated = true};
    void *first = on_completed(buffer_in(s->queue), &s->n, 1), *second = on_completed(buffer_in(s->queue), &other, 2);
    s->n.gated = true;
    metal_commit(first);
    metal_commit(second);
    softmetal_complete(second); /* they share nothing: in any order */
    softmetal_complete(first);
    softmetal_begin_handler(first, 0);
    softmetal_begin_handler(second, 0);
    assert_true(comes_to(&s->n.inside, 1) && comes_to(&other.inside, 1));
    PUT(&other.open, 1);
    softmetal_join_handler(second, 0);
    assert_true(other.count == 1 && GET(&s->n.count) == 0);
    PUT(&s->n.open, 1);
    settle(s); /* `other` goes */
}

/* -- faults ------------------------------------------------------------------------------------------------------- */

static void *failed_in(stage *s, unsigned reason, const char *own)
{
    void *buffer = buffer_in(s->queue);
    softmetal_fail_as(buffer, reason, own);
    return error_of(s, buffer);
}

on_manual(the_drivers_number_makes_the_error)
{
    for (size_t i = 0; i < LENGTH(made_of_numbers); i++) {
        const struct made *made = &made_of_numbers[i];
        void *error = failed_in(s, made->number, NULL);
        char said[200];
        snprintf(said, sizeof said, "%s (%08x:%s%s)", made->words, made->number,
                 made->name ? "kIOGPUCommandBufferCallbackError" : "", made->name ? made->name : made->words);
        assert_text(metal_get(error, "domain"), "MTLCommandBufferErrorDomain");
        assert_text(metal_get(error, "localizedDescription"), said);
        assert_text(metal_get(below(error), "domain"), "IOGPUCommandQueueErrorDomain");
        assert_true(code_of(error) == made->code && code_of(below(error)) == made->number);
    }
    assert_text(metal_get(failed_in(s, SOFTMETAL_HANG, "own words"), "localizedDescription"), "own words");
}

on_both_clocks(a_failed_buffer_does_what_comes_before_its_fault)
{
    for (unsigned n = 0; n <= 3; n++) { /* signals before the fault; 3 are more than there are */
        void *event = event_new(s->device), *memory = memory_new(s->device, 4), *buffer = buffer_in(s->queue);
        metal_encode_signal(buffer, event, 1);
        metal_encode_signal(fill(buffer, memory, 1), event, 2);
        fill(buffer, memory, 2);
        if (n == 2) metal_encode_wait(buffer, event, 5); /* not met */
        if (n != 1) softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
        softmetal_fail_after_signals(buffer, n);
        assert_int_equal(code_of(error_of(s, buffer)), n == 1 ? 1 : 3);
        assert_int_equal(metal_event_value(event), n < 3 ? n : 2);
        assert_int_equal(bytes_of(memory)[0], n < 2 ? 0 : n - 1);
    }
}

/* Of unretained references, whose error tells of its encoders. */
static void *described(void *queue)
{
    void *wanted = mine(metal_get(metal__class("MTLCommandBufferDescriptor"), "new"));
    SEND(void, (ID, signed char), wanted, "setRetainedReferences:", 0);
    SEND(void, (ID, unsigned long), wanted, "setErrorOptions:", 1ul);
    return SEND(void *, (ID, void *), queue, "commandBufferWithDescriptor:", wanted);
}
/* Of three encoders: "", "1" and "2", the first with a signal behind it; or, with a wait, that one before the third. */
static void *buffer_with_encoders(stage *s, bool waits)
{
    void *event = event_new(s->device), *memory = memory_new(s->device, 4), *buffer = described(s->queue);
    for (int k = 0; k < 3; k++) {
        if (k == 1) metal_encode_signal(buffer, event, 1);
        if (k == 2 && waits) metal_encode_wait(buffer, event, 5);
        void *encoder = metal_get(buffer, "blitCommandEncoder");
        if (k > 0) metal_set_label(encoder, k == 1 ? "1" : "2");
        metal_fill(encoder, memory, 0, 4, 1);
        metal_do(encoder, "endEncoding");
    }
    return buffer;
}
static void *encoders_of(void *buffer)
{
    return user_info(metal_get(buffer, "error"), "MTLCommandBufferEncoderInfoErrorKey");
}
static void *object_at(void *array, unsigned long k)
{
    return SEND(void *, (ID, unsigned long), array, "objectAtIndex:", k);
}

static void *layer_of(stage *s, unsigned long side) { return mine(metal_layer_new(s->device, side, side)); }
static void *library_of(stage *s, const char *source)
{
    static const char message[] = "newLibraryWithSource:options:error:";
    return mine(SEND(void *, (ID, void *, void *, void **), s->device, message, text(source), NULL, NULL));
}
static void *function_of(void *library, const char *name)
{
    return mine(SEND(void *, (ID, void *), library, "newFunctionWithName:", text(name)));
}
/* Of a vertex and a fragment function, or of none; +0. */
static void *render_descriptor(void *vertex, void *fragment)
{
    void *wanted = mine(metal_get(metal__class("MTLRenderPipelineDescriptor"), "new"));
    metal_set_label(wanted, "screen");
    metal_set(wanted, "setVertexFunction:", vertex);
    metal_set(wanted, "setFragmentFunction:", fragment);
    return wanted;
}
static void *render_pipeline_from(void *device, void *wanted, void **error)
{
    return mine(SEND(void *, (ID, void *, void **), device, "newRenderPipelineStateWithDescriptor:error:", wanted, error));
}
static void *render_pipeline(stage *s, void **error)
{
    void *library = library_of(s, "vertex float4 v(uint i [[vertex_id]]) {}\nfragment half4 f() {}");
    void *vertex = function_of(library, "v"), *wanted = render_descriptor(vertex, function_of(library, "f"));
    return vertex ? render_pipeline_from(s->device, wanted, error) : NULL;
}
static void *color(void *wanted, unsigned long index)
{
    void *all = metal_get(wanted, "colorAttachments");
    return SEND(void *, (ID, unsigned long), all, "objectAtIndexedSubscript:", index);
}
static void *create(stage *s, unsigned which)
{
    switch (which) {
    case 0: return mine(metal_device_new());
    case 1: return mine(MTLCopyAllDevices());
    case 2: return mine(metal_queue_new(s->device, 2));
    case 3: return buffer_in(s->queue);
    case 4: return event_new(s->device);
    case 5: return mine(metal_get(s->device, "newEvent"));
    case 6: return listener_new();
    case 7: return memory_new(s->device, 4);
    case 8: return unretained_in(s->queue);
    case 9: return metal_next_drawable(layer_of(s, 2));
    case 10: return library_of(s, "kernel void add(");
    case 11: return function_of(library_of(s, "kernel void add("), "add");
    case 12: return mine(metal_pipeline_new(s->device, "kernel void add(", "add", NULL, 0));
    default: return render_pipeline(s, NULL);
    }
}

on_real(the_nth_creation_fails)
{
    void *buffer = buffer_in(s->queue);
    for (unsigned which = 0; which <= 13; which++) {
        unsigned own = which <= 10 ? 1 : which - 9;
        softmetal_fail_creation(0, false);
        assert_non_null(create(s, which));
        assert_int_equal(softmetal_creations(), own);
        softmetal_fail_creation(own, which % 2);
        assert_null(create(s, which));
        assert_true((create(s, which) == NULL) == which % 2);
    }
    softmetal_fail_creation(1, false);
    assert_null(metal_get(buffer, "blitCommandEncoder"));
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static unsigned heard(stage *s)
{
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    return GET(&s->n.count);
}

/* -- facts -------------------------------------------------------------------------------------------------------- */

static void *signalling(void *buffer, void *event, uint64_t value)
{
    metal_encode_signal(buffer, event, value);
    return buffer;
}
static void *waiting(void *buffer, void *event)
{
    metal_encode_wait(buffer, event, 1);
    return buffer;
}
static void *hanging(void *buffer)
{
    softmetal_hang(buffer);
    metal_commit(buffer);
    return buffer;
}
static void *committed(void *buffer)
{
    metal_commit(buffer);
    return buffer;
}
static void wait_in_vain(stage *s, void *buffer, void *event, void *signalled)
{
    signalling(waiting(buffer, event), signalled, 1);
    set_watchdog(MS(50));
    metal_commit(buffer);
    if (s->clock == SOFTMETAL_MANUAL) softmetal_time_out(buffer);
    metal_wait_until_completed(buffer);
}
static void listen(stage *s, void *event, uint64_t value) { on_event(event, listener_new(), value, &s->n, 1); }
static void drop(stage *s, bool lose)
{
    void *pool = metal_pool_push(), *buffer = on_completed(buffer_in(s->queue), &s->n, 1);
    if (lose) softmetal_lose_handlers(buffer);
    metal_pool_pop(pool);
}
static double duration(void *buffer) { return metal_gpu_end(buffer) - metal_gpu_start(buffer); }
static double test_clock(void) { return 7; }
static uint64_t registry(void *device) { return METAL__AS0(uint64_t)(device, metal__sel("registryID")); }
static bool code_is(void *error, long code, long number)
{
    return code_of(error) == code && code_of(below(error)) == number;
}
static void *failing(void *buffer, long code)
{
    softmetal_fail(buffer, NULL, code, NULL);
    return buffer;
}
static void set_chaos(unsigned fail, unsigned disorder, unsigned overlap)
{
    softmetal_set_chaos(&(softmetal_chaos){fail, disorder, overlap});
}
static void note_class(void *context) { *(unsigned *)context = softmetal_dispatch_qos(NULL); }
static void note_other_status(block *self, void *buffer)
{
    self->notes->found[self->number] = (unsigned)metal_status(self->notes->object);
}
/* Three buffers come in each of their orders now and then; the oldest has no status where another one is the first. */
static bool completes_in_any_order(stage *s, bool early)
{
    const unsigned each = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7;
    unsigned seen = 0;
    set_chaos(0, 1000, 0);
    for (int round = 0; round < 1000 && seen != each; round++) {
        void *pool = metal_pool_push(), *all[3];
        s->n.count = 0;
        for (int i = 0; i < 3; i++)
            all[i] = on_completed_do(buffer_in(s->queue), &s->n, i, note_other_status);
        s->n.object = all[0];
        for (int i = 0; i < 3; i++)
            metal_commit(all[i]);
        for (int i = 0; i < 3; i++)
            metal_wait_until_completed(all[i]);
        int first = s->n.order[0];
        if ((s->n.found[first] == COMPLETED) == (early || first == 0)) seen |= 1u << (3 * first + s->n.order[1]);
        metal_pool_pop(pool);
    }
    return seen == each;
}
static void *on(void *object, const char *adds, notes *n, int number, void (*does)(block *, void *))
{
    block b = stack_block(n, number, does);
    metal_set(object, adds, &b);
    return object;
}
static void *on_scheduled(void *buffer, notes *n, int number)
{
    return on(buffer, "addScheduledHandler:", n, number, note_status);
}
static void drop_unscheduled(stage *s)
{
    void *pool = metal_pool_push();
    on_scheduled(buffer_in(s->queue), &s->n, 1);
    metal_pool_pop(pool);
}
static double shown_at(void *drawable) { return METAL__AS0(double)(drawable, metal__sel("presentedTime")); }
static void note_shown(block *self, void *drawable) { self->notes->found[self->number] = 1 + (shown_at(drawable) > 0); }
/* With the handlers 1 and 2. */
static void *shown_later(stage *s)
{
    void *drawable = mine(softmetal_new_drawable(s->device));
    on(drawable, "addPresentedHandler:", &s->n, 1, note_shown);
    return on(drawable, "addPresentedHandler:", &s->n, 2, note_shown);
}
static void *presented(void *drawable)
{
    softmetal_present(drawable);
    return drawable;
}
/* The two handlers have run, each saw what it had to see, and they are gone. */
static bool ran_with(stage *s, void *drawable, unsigned seen)
{
    assert_true(softmetal_settle(SECONDS(20)));
    ORDER(&s->n, 1, 2);
    return s->n.given == drawable && s->n.found[1] == seen && s->n.found[2] == seen && s->n.disposed == 2 &&
           !pthread_equal(s->n.thread, pthread_self());
}
static void take_and_leave(void *queue) { (void)buffer_in(queue); } /* in a pool that is drained then */
static void take_in_block(block *self, void *object) { (void)object, take_and_leave(self->notes->queue); }
static unsigned class_in_function(unsigned qos_class)
{
    unsigned found = 0;
    void *queue = dispatch_queue_create("q", dispatch_queue_attr_make_with_qos_class(NULL, qos_class, -1));
    dispatch_async_f(queue, &found, note_class);
    assert_true(softmetal_dispatched(SECONDS(20)));
    dispatch_release(queue);
    return found;
}

static void *completed(void *buffer)
{
    softmetal_complete(committed(buffer));
    return buffer;
}
#define DUE(buffer, what) (softmetal_what_is_due(buffer) == SOFTMETAL_##what##_DUE)
/* Fills two bytes in the middle of `from`, and copies them to the middle of `to`. */
static void *copying(void *buffer, void *to, void *from)
{
    void *blit = metal_get(buffer, "blitCommandEncoder");
    metal_fill(blit, from, 0, 2, 7);
    metal_copy(blit, from, 0, to, 1, 2);
    metal_do(blit, "endEncoding");
    return buffer;
}
static void *committed_alone(void *device)
{
    void *queue = metal_queue_new(device, 1), *pool = metal_pool_push(), *buffer = committed(buffer_in(queue));
    metal_pool_pop(pool);
    metal_release(queue);
    return buffer;
}
static void set_latency(softmetal_timing *timing, softmetal_range *which)
{
    softmetal_get_timing(timing);
    *which = (softmetal_range){MS(30), MS(30)};
    softmetal_set_timing(timing);
}
static uint64_t time_to_status(void *buffer)
{
    uint64_t start = now_ns();
    metal_commit(buffer);
    while (metal_status(buffer) < COMPLETED)
        sched_yield();
    return now_ns() - start;
}
static bool states_are(stage *s, void *buffer, long first, long second, long third)
{
    const long states[] = {first, second, third};
    if (metal_status(buffer) < COMMITTED) run(s, buffer);
    void *all = encoders_of(buffer);
    assert_int_equal(metal_number(all, "count"), 3);
    for (unsigned k = 0; k < 3; k++) {
        assert_text(metal_get(object_at(all, k), "label"), k == 0 ? "" : k == 1 ? "1" : "2");
        if ((long)metal_number(object_at(all, k), "errorState") != states[k]) return false;
    }
    return true;
}

/* b, c, f buffers; c of unretained references; g one of another queue; e event; m memory; d device */
#define FACTS(X)                                                                                                       \
    X("a buffer is new, enqueued, committed", MANUAL, , metal_status(b) == NOT_ENQUEUED &&                             \
      (metal_enqueue(b), metal_enqueue(b), metal_status(b)) == ENQUEUED && metal_status(committed(b)) == COMMITTED)    \
    X("... scheduled", MANUAL, softmetal_schedule(committed(b)), metal_status(b) == SCHEDULED)                         \
    X("... executed, which is no status", MANUAL, softmetal_schedule(committed(fill(b, m, 1))); softmetal_execute(b),  \
      metal_status(b) == SCHEDULED && bytes_of(m)[3] == 1)                                                             \
    X("... completed, before its handlers", MANUAL, completed(on_completed(b, n, 1)), metal_status(b) == COMPLETED &&  \
      softmetal_handler_count(b) == 1 && n->count == 0 && softmetal_outstanding(q) == 3)                               \
    X("handlers run in any order, and again", MANUAL, completed(on_completed(on_completed(b, n, 1), n, 2));            \
      softmetal_run_handler(b, 1); softmetal_call_handler_again(b, 1); softmetal_run_handler(b, 0),                    \
      n->count == 3 && n->order[1] == 2 && n->order[2] == 1 && softmetal_outstanding(q) == 2 && n->disposed == 0)      \
    X("... and then blocks go", MANUAL, softmetal_finish(committed(on_completed(b, n, 1))), n->disposed == 1)          \
    X("the first comes first", MANUAL, committed(fill(b, m, 1)); committed(fill(f, m, 2)), DUE(b, COMPLETE) &&         \
      DUE(f, NOTHING) && softmetal_first_in_line(q) == b && (softmetal_complete(b), DUE(f, COMPLETE)))                 \
    X("what shares nothing comes in any order", MANUAL, committed(b); completed(f), DUE(b, COMPLETE))                  \
    X("... also past a wait, which holds up its own buffer alone", MANUAL, committed(fill(waiting(b, e), m, 1));        \
      completed(signalling(f, e, 1)), bytes_of(m)[0] == 0 && (softmetal_complete(b), bytes_of(m)[0] == 1))             \
    X("... and signals of one event, which does not fall", MANUAL, committed(signalling(b, e, 1));                     \
      completed(signalling(f, e, 2)), metal_event_value(e) == 2 && (softmetal_complete(b), metal_event_value(e)) == 2) \
    X("... to its end", MANUAL, committed(on_completed(b, n, 1)); softmetal_finish(committed(on_completed(f, n, 2)));  \
      softmetal_finish(b), n->order[0] == 2 && n->order[1] == 1)                                                       \
    X("handlers are due", MANUAL, completed(on_completed(b, n, 1)), DUE(b, HANDLERS) && !softmetal_first_in_line(q))   \
    X("a wait is due until the event rises", MANUAL, committed(waiting(b, e)), DUE(b, WAIT) &&                         \
      (metal_event_signal(e, 1), DUE(b, COMPLETE)))                                                                    \
    X("... or the buffer has a signal for it", MANUAL, committed(waiting(signalling(b, e, 1), e)), DUE(b, COMPLETE))   \
    X("... and a fault passes it", MANUAL, committed(failing(waiting(b, e), 1)), DUE(b, FAULT))                        \
    X("buffers are found by age", MANUAL, committed(b), softmetal_last_buffer(q) == f &&                               \
      softmetal_buffer_at(q, 2) == b && !softmetal_buffer_at(q, 3) && softmetal_due_at(q, 2, &due) == b &&             \
      due == SOFTMETAL_COMPLETE_DUE && !softmetal_due_at(q, 3, &due))                                                  \
    X("a queue is finished in order", MANUAL, committed(on_completed(c, n, 1)); committed(on_completed(b, n, 2));      \
      softmetal_finish_queue(q), n->count == 2 && n->order[0] == 1)                                                    \
    X("reset loses what is not stepped", MANUAL, completed(on_completed(b, n, 1)); softmetal_reset(), n->count == 0 && \
      n->disposed == 1)                                                                                                \
    X("reset ends quirks and timing", REAL, softmetal_set_quirks(&(softmetal_quirks){.falling_events = true});           \
      set_watchdog(1); softmetal_reset(); softmetal_get_quirks(&quirks); softmetal_get_timing(&timing),                \
      !quirks.falling_events && timing.watchdog_ns == SECONDS(5))                                                        \
    X("fills and copies stay in their range", REAL, run(s, copying(b, m, memory_new(d, 4))),                           \
      !memcmp(bytes_of(m), "\0\7\7\0", 4))                                                                             \
    X("work keeps the queue's order", REAL, metal_enqueue(fill(b, m, 1)); committed(fill(f, m, 2)); run(s, b);         \
      metal_wait_until_completed(f), bytes_of(m)[0] == 2)                                                              \
    X("references are kept", MANUAL, fill(fill(b, m, 1), m, 2), softmetal_retain_count(m) == 2)                        \
    X("... until the end", MANUAL, run(s, fill(b, m, 1)), softmetal_retain_count(m) == 1)                              \
    X("... where they are asked for", MANUAL, fill(fill(c, m, 1), m, 2), softmetal_retain_count(m) == 1)               \
    X("... or by a descriptor", MANUAL, l = fill(described(q), m, 1), softmetal_retain_count(m) == 1 &&                \
      metal_number(l, "errorOptions") == 1 && metal_get(l, "commandQueue") == q && metal_get(l, "device") == d)        \
    X("a label is a copy", REAL, metal_set_label(b, "name"); assert_text(metal_get(b, "label"), "name"), true)         \
    X("Metal keeps what is committed, and its queue", MANUAL, l = committed_alone(d), softmetal_live("queue") == 3 &&  \
      (softmetal_finish(l), softmetal_live("queue") == 2))                                                             \
    X("the GPU takes its time", REAL, set_latency(&timing, &timing.execute); run(s, b), duration(b) >= 0.03)           \
    X("a schedule comes before that", REAL, set_latency(&timing, &timing.schedule), time_to_status(b) >= MS(30) &&     \
      (run(s, f), duration(f) < 0.03))                                                                                 \
    X("... a notification behind it", REAL, set_latency(&timing, &timing.notify), time_to_status(b) >= MS(30) &&       \
      (run(s, f), duration(f) < 0.03))                                                                                 \
    X("... and handlers last", REAL, set_latency(&timing, &timing.handler); on_completed(b, n, 1), time_to_status(b)   \
      && n->count == 0 && (metal_wait_until_completed(b), n->count == 1))                                              \
    X("a listener takes its time", REAL, set_latency(&timing, &timing.event_listener); start = now_ns();               \
      listen(s, e, 0), heard(s) == 1 && now_ns() - start >= MS(30))                                                    \
    X("... on its dispatch queue", REAL, softmetal_set_dispatch_threads(0); l = serial(); \
      on_event(e, listener_on(l), 0, n, 1); dispatch_release(l), \
      !softmetal_settle_listeners(MS(2)) && (softmetal_set_dispatch_threads(1), heard(s) == 1)) \
    X("a faulty encoder is told", MANUAL, failing(l = buffer_with_encoders(s, false), 3), states_are(s, l, 4, 3, 3))   \
    X("... the one behind a signal", MANUAL, softmetal_fail_after_signals(l = buffer_with_encoders(s, false), 1),      \
      states_are(s, l, 1, 4, 3))                                                                                       \
    X("... none where a wait times out", MANUAL, softmetal_time_out(committed(l = buffer_with_encoders(s, true))),     \
      states_are(s, l, 1, 1, 3))                                                                                       \
    X("... one that suffers where a device goes", MANUAL, softmetal_remove_device(d),                                  \
      states_are(s, buffer_with_encoders(s, false), 2, 3, 3))                                                          \
    X("... and what a test chooses", MANUAL, softmetal_set_encoder_states(l = buffer_with_encoders(s, false),          \
      (const long[]){9, 0}, 2), states_are(s, failing(l, 3), 9, 0, 3))                                                 \
    X("... but not without the option", MANUAL, run(s, failing(b, 3)), !encoders_of(b))                                \
    X("an error has the code of its number", MANUAL, , code_is(error_of(s, failing(b, 3)), 3, SOFTMETAL_PAGE_FAULT))   \
    X("... the one with the star", MANUAL, , code_is(error_of(s, failing(b, 1)), 1, SOFTMETAL_INTERNAL) &&             \
      code_is(error_of(s, failing(c, 2)), 2, SOFTMETAL_TIMEOUT))                                                       \
    X("... or none", MANUAL, , code_is(error_of(s, failing(b, 12)), 12, -1))                                           \
    X("an error may be of any domain", MANUAL, softmetal_fail(b, "own", 2, "text"), code_is(error_of(s, b), 2, -1))    \
    X("the next ones fail", MANUAL, softmetal_fail_next_as(2, SOFTMETAL_HANG), code_is(error_of(s, b), 2, SOFTMETAL_HANG) && \
      code_is(error_of(s, c), 2, SOFTMETAL_HANG) && !error_of(s, f)) \
    X("... or one of a label", MANUAL, setenv("SOFTMETAL_KILL", "victim", 1); metal_set_label(b, "victim"); \
      metal_set_label(c, "other"), code_is(error_of(s, b), 3, SOFTMETAL_PAGE_FAULT) && !error_of(s, c) && \
      (metal_set_label(f, "victim"), unsetenv("SOFTMETAL_KILL"), !error_of(s, f))) \
    X("the watchdog ends a wait", REAL, wait_in_vain(s, b, e, e), code_of(metal_get(b, "error")) == 2)                 \
    X("... by hand", MANUAL, signalling(b, e, 0); wait_in_vain(s, b, e, e), code_is(metal_get(b, "error"), 2, 2) &&    \
      metal_event_value(e) == 0 && !error_of(s, c))                                                                    \
    X("a hang does not end", REAL, hanging(b), !softmetal_settle(MS(5)) && (softmetal_unhang(b), !error_of(s, c)))     \
    X("removal ends a hang, and waits", REAL, hanging(signalling(b, e, 1)); committed(waiting(g, e));                  \
      softmetal_remove_device(d), code_of(error_of(s, c)) == 11 && code_of(metal_get(b, "error")) == 11 &&             \
      (settle(s), code_of(metal_get(g, "error"))) == 11 && metal_event_value(e) == 0)                                  \
    X("reset brings a device back", REAL, softmetal_remove_device(d); softmetal_reset(), !error_of(s, b))              \
    X("held handlers hold back no others", REAL, softmetal_hold_handlers(on_completed(b, n, 1)); committed(b);         \
      run(s, on_completed(c, n, 2)), n->count == 1 && metal_status(b) == COMPLETED &&                                  \
      (softmetal_deliver(b), metal_wait_until_completed(b), n->order[1] == 1))                                         \
    X("... and reset loses them", REAL, softmetal_hold_handlers(on_completed(b, n, 1)); committed(b); settle(s);       \
      softmetal_reset(), n->count == 0 && n->disposed == 1)                                                            \
    X("lost handlers hold up no waiter", REAL, softmetal_lose_handlers(on_completed(b, n, 1)); run(s, b),              \
      n->count == 0 && n->disposed == 1)                                                                               \
    X("a dropped buffer runs its handlers", REAL, n->status = COMPLETED; drop(s, false), n->count == 1 &&              \
      n->disposed == 1 && n->status == NOT_ENQUEUED && pthread_equal(n->thread, pthread_self()))                       \
    X("... unless they are lost", REAL, drop(s, true), n->count == 0 && n->disposed == 1)                              \
    X("handlers have a pool", REAL, run(s, on_completed_do(b, n, 1, take_in_block)), softmetal_live("command_buffer") == 4) \
    X("... by hand", MANUAL, run(s, on_completed_do(b, n, 1, take_in_block)), softmetal_live("command_buffer") == 4)   \
    X("... listeners", REAL, on_event_do(e, l, 0, n, 1, take_in_block), heard(s) == 1 &&                               \
      softmetal_live("command_buffer") == 4)                                                                           \
    X("... on their queue, too", REAL, on_event_do(e, listener_on(l = serial()), 0, n, 1, take_in_block);              \
      dispatch_release(l), heard(s) == 1 && softmetal_live("command_buffer") == 4)                                     \
    X("... and functions", REAL, dispatch_async_f(l = serial(), q, take_and_leave); dispatch_release(l),               \
      softmetal_dispatched(SECONDS(20)) && softmetal_live("command_buffer") == 4)                                      \
    X("... scheduled ones, too", REAL, run(s, on(b, "addScheduledHandler:", n, 1, take_in_block)),                     \
      n->count == 1 && softmetal_live("command_buffer") == 4)                                                          \
    X("... and those of drawables", REAL, presented(on(shown_later(s), "addPresentedHandler:", n, 3, take_in_block)),  \
      n->count == 3 && softmetal_live("command_buffer") == 4)                                                          \
    X("scheduled handlers have their step", MANUAL, softmetal_schedule(committed(on_completed(                         \
      on_scheduled(on_scheduled(b, n, 1), n, 2), n, 3))), n->count == 2 && n->order[1] == 2 && n->disposed == 2 &&     \
      n->given == b && n->status == SCHEDULED && !pthread_equal(n->thread, pthread_self()))                            \
    X("... or are part of another", MANUAL, completed(on_scheduled(b, n, 1)), n->count == 1 && n->status == SCHEDULED) \
    X("... and come first by themselves", REAL, run(s, on_completed_do(on_scheduled(b, n, 1), n, 2, NULL)),            \
      n->count == 2 && n->order[0] == 1 && n->status == SCHEDULED)                                                     \
    X("... also behind others", REAL, hanging(b); committed(on_scheduled(f, n, 1)), comes_to(&n->count, 1) &&          \
      metal_status(f) == SCHEDULED && (softmetal_unhang(b), true))                                                     \
    X("... but not of a dropped buffer", REAL, drop_unscheduled(s), n->count == 0 && n->disposed == 1)                 \
    X("a drawable is shown by the test", MANUAL, metal_do(l = shown_later(s), "present"), softmetal_settle(0) &&       \
      n->count == 0 && shown_at(l) == 0 && ran_with(s, presented(l), 2))                                               \
    X("... or dropped, with calls", MANUAL, softmetal_drop_drawable(l = shown_later(s), true), ran_with(s, l, 1))      \
    X("... or without", MANUAL, softmetal_drop_drawable(shown_later(s), false), n->count == 0 && n->disposed == 2)     \
    X("... or by itself, once", REAL, metal_do(l = shown_later(s), "present"), ran_with(s, l, 2) &&                    \
      (metal_do(on(l, "addPresentedHandler:", n, 3, NULL), "present"), ran_with(s, l, 2)))                             \
    X("... behind the work", REAL, metal_present(b, l = shown_later(s)); hanging(b); sleep_ms(5),                      \
      GET(&n->count) == 0 && (softmetal_unhang(b), ran_with(s, l, 2)))                                                 \
    X("... or never", MANUAL, metal_release(on(softmetal_new_drawable(d), "addPresentedHandler:", n, 1, NULL)),        \
      n->count == 0 && n->disposed == 1)                                                                               \
    X("durations are kept", REAL, softmetal_set_duration(b, MS(5)); run(s, b), duration(b) >= 0.005)                   \
    X("times are the machine's", REAL, seconds = (double)now_ns() / 1e9; run(s, b), metal_gpu_start(b) >= seconds)     \
    X("... or the test's", REAL, softmetal_set_gpu_clock(test_clock); run(s, b), metal_gpu_end(b) == 7)                \
    X("chance fails", MANUAL, set_chaos(1000, 0, 0), code_of(error_of(s, b)) == 1)                                     \
    X("chance completes in any order", REAL, , completes_in_any_order(s, false))                                       \
    X("... but for an early status", REAL, softmetal_set_quirks(&(softmetal_quirks){.status_early = true}),            \
      completes_in_any_order(s, true))                                                                                 \
    X("chance overlaps", REAL, hanging(b); set_chaos(0, 0, 1000); run(s, c), metal_status(b) < COMPLETED &&            \
      (softmetal_unhang(b), true))                                                                                     \
    X("... also past a wait, which holds up its own buffer alone", REAL, committed(fill(waiting(b, e), m, 1));          \
      set_chaos(0, 0, 1000); run(s, c), bytes_of(m)[0] == 0 && (run(s, signalling(f, e, 1)),                           \
      metal_wait_until_completed(b), bytes_of(m)[0] == 1))                                                             \
    X("... and signals of one event, which does not fall", REAL, hanging(signalling(b, e, 1)); set_chaos(0, 0, 1000);  \
      run(s, signalling(c, e, 2)), metal_event_value(e) == 2 && metal_status(b) < COMPLETED && (softmetal_unhang(b),   \
      metal_wait_until_completed(b), metal_event_value(e)) == 2)                                                       \
    X("... but not what shares memory", REAL, hanging(fill(b, m, 1)); set_chaos(0, 0, 1000); committed(fill(f, m, 2)); \
      sleep_ms(5), metal_status(f) < COMPLETED && (softmetal_unhang(b), true))                                         \
    X("events only rise", REAL, metal_event_signal(e, 5); metal_event_signal(e, 3), metal_event_value(e) == 5)         \
    X("a wait for one ends in time", REAL, , !reaches(e, 1, 5) && (run(s, signalling(b, e, 1)), reaches(e, 1, 20000))) \
    X("listeners run in order", REAL, on_event(e, l, 2, n, 3); on_event(e, l, 1, n, 1); on_event(e, l, 2, n, 4);       \
      run(s, signalling(b, e, 1)); metal_event_signal(e, 2), heard(s) == 3 && n->order[0] == 1 && n->order[1] == 3)    \
    X("... also for the past", REAL, metal_event_signal(e, 5); listen(s, e, 3), heard(s) == 1 && n->value == 5)        \
    X("... and not for the future", REAL, metal_event_signal(e, 1); listen(s, e, 2), heard(s) == 0)                    \
    X("queues meet at events", REAL, committed(fill(waiting(b, e), m, 2)); run(s, signalling(fill(g, m, 1), e, 1));    \
      metal_wait_until_completed(b), bytes_of(m)[3] == 2)                                                              \
    X("a hidden selector is not answered", REAL, softmetal_hide_selector("commit"), !responds(b, "commit") &&          \
      !class_respondsToSelector(metal_get(b, "class"), metal__sel("commit")) && responds(b, "enqueue"))                \
    X("a hidden class is not found", REAL, softmetal_hide_class("MTL4CommitOptions"),                                  \
      !metal__class("MTL4CommitOptions") && metal__class("MTLCommandBufferDescriptor"))                                \
    X("... until reset", REAL, softmetal_hide_selector("commit"); softmetal_hide_class("MTL4CommitOptions");           \
      softmetal_reset(), responds(b, "commit") && metal__class("MTL4CommitOptions"))                                   \
    X("there is one default device", REAL, , mine(metal_device_new()) == d)                                            \
    X("... all of the list", REAL, l = mine(MTLCopyAllDevices()), object_at(l, 0) == d) \
    X("a new device is another GPU", REAL, , registry(mine(softmetal_new_device())) != registry(d))                    \
    X("a twin is the same", REAL, l = mine(softmetal_new_twin(d)), l != d && registry(l) == registry(d))               \
    X("nil answers zero", REAL, metal_release(NULL), !metal_get(NULL, "device") && metal_gpu_end(NULL) == 0)           \
    X("a witness tells of its end", REAL, l = softmetal_new_witness(count_up, &n->count); metal_retain(l);             \
      metal_release(l); seconds = n->count; metal_release(l), seconds == 0 && n->count == 1)                           \
    X("a queue has its class of service", REAL, , class_in_function(0x19) == 0x19)                                     \
    X("... where there is such a class", REAL, , class_in_function(5) == 0)                                            \
    X("a dispatch queue may be missing", REAL, softmetal_fail_dispatch_queue(2, false); l = serial(), !serial() &&     \
      (dispatch_release(l), true))                                                                                     \
    X("a timer comes in its time", REAL, start = now_ns(); dispatch_after_f(dispatch_time(0, MS(20)), l = serial(),    \
      &n->count, count_up); dispatch_release(l), comes_to(&n->count, 1) && now_ns() - start >= MS(20))                 \
    X("times are told apart", REAL, start = dispatch_time(0, 0), dispatch_time(start, 5) == start + 5 &&               \
      dispatch_time(start, -5) == start - 5 && dispatch_time(start, INT64_MIN) == 1 &&                                 \
      dispatch_time(UINT64_MAX, -5) == UINT64_MAX && dispatch_time(0, INT64_MAX) > start)                              \
    X("there are only Apple's global queues", REAL, , dispatch_get_global_queue(2, 0) &&                               \
      !dispatch_get_global_queue(3, 0) && !dispatch_get_global_queue(0, 1))

static bool holds(stage *s, size_t row, bool with)
{
    notes *n = &s->n;
    void *d = s->device, *q = s->queue, *e = event_new(d), *m = memory_new(d, 4), *b = buffer_in(q);
    void *c = unretained_in(q), *f = buffer_in(q), *g = buffer_in(mine(metal_queue_new(d, 1))), *l = listener_new();
    double seconds;
    uint64_t start;
    softmetal_due due;
    softmetal_quirks quirks;
    softmetal_timing timing;
    FACTS(SEE_IN_TURN)
    (void)g;
    return !with;
}
without_stage(facts_hold)
{
    static const fact rows[] = {FACTS(ROW_OF_FACT)};
    assert_facts(rows, LENGTH(rows), holds, stage_open);
}

/* -- kernels, layers, messages ------------------------------------------------------------------------------------ */

static void add_kernel(void *user, const softmetal_kernel_args *args)
{
    unsigned char *to = args->buffers[1];
    COUNT((unsigned *)user);
    *to = (unsigned char)(*(unsigned char *)args->buffers[0] + args->grid[0] * args->grid[1] * args->grid[2]);
    assert_true(args->lengths[0] == 2 && args->lengths[1] == 5 && !args->buffers[2]);
}

on_real(kernels_run)
{
    unsigned ran = 0;
    char message[100];
    void *memory = memory_new(s->device, 8), *other = memory_new(s->device, 8), *buffer = buffer_in(s->queue);
    unsigned char bytes[2] = {40, 0};
    softmetal_set_kernel("add", add_kernel, &ran, MS(5));
    void *pipeline = mine(metal_pipeline_new(s->device, "kernel void none (\nkernel void add(", "add", NULL, 0));
    assert_int_equal(softmetal_compiles(), 1);
    assert_null(function_of(library_of(s, "kernel void add("), "other"));
    assert_null(metal_pipeline_new(s->device, "#error", "add", message, sizeof message));
    assert_string_equal(message, "program_source: error: #error");
    void *compute = metal_get(buffer, "computeCommandEncoder");
    metal_set_pipeline(compute, pipeline);
    metal_set_bytes(compute, bytes, 2, 0);
    bytes[0] = 0;
    metal_set_buffer(compute, memory, 3, 1);
    metal_dispatch(compute, (metal_size){2, 1, 1}, (metal_size){1, 1, 1});
    metal_set_buffer(compute, other, 3, 1);
    metal_dispatch(compute, (metal_size){1, 1, 1}, (metal_size){3, 1, 1});
    metal_do(compute, "endEncoding");
    run(s, buffer);
    assert_true(ran == 2 && bytes_of(memory)[3] == 42 && bytes_of(other)[3] == 43);
    assert_true(metal_gpu_end(buffer) - metal_gpu_start(buffer) >= 0.01);
}

on_real(render_pipelines_are_made)
{
    char text[100];
    void *wanted = render_descriptor(NULL, NULL), *error = wanted, *pipeline = render_pipeline(s, &error);
    assert_true(pipeline && !error && softmetal_compiles() == 1 && softmetal_live("pipeline") == 1);
    metal_string_copy(metal_get(pipeline, "label"), text, sizeof text);
    assert_string_equal(text, "screen");
    assert_ptr_equal(metal_get(pipeline, "device"), s->device);
    assert_true(!metal_get(wanted, "vertexFunction") && !metal_get(wanted, "fragmentFunction"));
    assert_int_equal(metal_number(color(wanted, 7), "pixelFormat"), 0);
    SEND(void, (ID, unsigned long), color(wanted, 7), "setPixelFormat:", 80ul);
    assert_int_equal(metal_number(color(wanted, 7), "pixelFormat"), 80);
    softmetal_fail_creation(4, false);
    assert_null(render_pipeline(s, &error));
    metal_error_copy(error, text, sizeof text);
    assert_string_equal(text, "Compiler encountered an internal error");
    assert_int_equal(softmetal_compiles(), 1);
}

typedef struct region { metal_size at, size; } region;
static unsigned char pixel_of(void *drawable, unsigned long x, unsigned long y)
{
    unsigned char pixel[4];
    SEND(void, (ID, void *, unsigned long, region, unsigned long), metal_get(drawable, "texture"),
         "getBytes:bytesPerRow:fromRegion:mipmapLevel:", pixel, 4ul, ((region){{x, y, 0}, {1, 1, 1}}), 0ul);
    return pixel[0];
}
on_real(a_layer_has_three_drawables)
{
    void *layer = layer_of(s, 2), *memory = memory_new(s->device, 16), *pool = metal_pool_push(), *drawable = NULL;
    bytes_of(memory)[12] = 77;
    for (int i = 0; i < 3; i++) {
        void *buffer = buffer_in(s->queue), *blit = metal_get(buffer, "blitCommandEncoder");
        drawable = metal_next_drawable(layer);
        metal_copy_to_drawable(blit, memory, 2, 2, drawable);
        metal_do(blit, "endEncoding");
        metal_present(buffer, drawable);
        run(s, buffer);
    }
    assert_true(pixel_of(drawable, 1, 1) == 77 && pixel_of(drawable, 0, 1) == 0);
    assert_null(metal_next_drawable(layer)); /* after a second: all three are in use */
    metal_pool_pop(pool);
    assert_non_null(metal_next_drawable(layer));
    assert_null(metal_next_drawable(layer_of(s, 0)));
}

static stage *hooked;
static char saw[300];
static void saw_it(const char *before, const char *what)
{
    snprintf(saw + strlen(saw), sizeof saw - strlen(saw), "%s%s ", before, what);
}
static void hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    assert_true(user == hooked && object);
    (void)metal_status(hooked->n.object); /* is not seen */
    saw_it(phase == SOFTMETAL_BEFORE ? "<" : ">", selector);
}
static void note_before(const char *name) { saw_it("", name); }

on_manual(hooks_and_counters_see_the_programs_messages)
{
    hooked = s;
    void *event = event_new(s->device), *buffer = s->n.object = buffer_in(s->queue);
    uint64_t all = softmetal_messages();
    saw[0] = 0;
    softmetal_set_message_hook(hook, s);
    (void)metal_status(buffer);
    on(mine(softmetal_new_drawable(s->device)), "addPresentedHandler:", &s->n, 1, NULL);
    metal_commit(on_scheduled(buffer, &s->n, 2));
    (void)metal_event_value(event);
    metal_event_signal(event, 1);
    (void)metal_number(event, "hash");
    softmetal_set_message_hook(NULL, NULL);
    assert_string_equal(saw, "<status >status <addPresentedHandler: >addPresentedHandler: <addScheduledHandler: "
                             ">addScheduledHandler: <commit >commit <signaledValue >signaledValue <setSignaledValue: "
                             ">setSignaledValue: <hash ");
    assert_true(softmetal_message_count("commit") == 1 && softmetal_message_count("status") == 1 + 13); /* of the hook */
    assert_int_equal(softmetal_messages() - all, 7 + 13);
    saw[0] = 0;
    softmetal_before = note_before;
    void *pool = metal_pool_push();
    metal_release(metal_retain(event));
    metal_pool_pop(pool);
    (void)metal_status(buffer);
    softmetal_before = NULL;
    assert_string_equal(saw, "objc_release objc_autoreleasePoolPop objc_msgSend ");
    softmetal_finish(buffer);
    softmetal_reset();
    assert_int_equal(softmetal_messages() + softmetal_message_count("commit"), 0);
}

/* -- libdispatch, and the lock ------------------------------------------------------------------------------------ */

typedef struct gate {
    unsigned inside, passed, open; /* atomic */
} gate;

static void pass(void *context)
{
    gate *g = context;
    COUNT(&g->inside);
    while (!GET(&g->open))
        sleep_ms(1);
    __atomic_sub_fetch(&g->inside, 1, __ATOMIC_SEQ_CST);
    COUNT(&g->passed);
}

typedef struct tally {
    uint32_t lock;
    void *queue;
    unsigned count, next; /* plain */
} tally;
static void tally_up(void *context) { ((tally *)context)->count++; }
static void *give(void *context)
{
    for (int i = 0; i < 500; i++)
        dispatch_async_f(((tally *)context)->queue, context, tally_up);
    return NULL;
}
static struct item { tally *t; unsigned number; } items[200];
static void expect_next(void *context)
{
    struct item *item = context;
    if (item->number == item->t->next) item->t->next++;
}

on_real(a_serial_queue_runs_one_function_at_a_time_in_order)
{
    tally t = {.queue = serial()};
    gate g = {0, 0, 0};
    pthread_t givers[3];
    for (int i = 0; i < 3; i++)
        givers[i] = begin_thread(give, &t);
    for (unsigned i = 0; i < LENGTH(items); i++) {
        items[i] = (struct item){&t, i};
        dispatch_async_f(t.queue, &items[i], expect_next);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(givers[i], NULL);
    for (int i = 0; i < 3; i++)
        dispatch_async_f(t.queue, &g, pass);
    assert_true(comes_to(&g.inside, 1));
    sleep_ms(5);
    assert_int_equal(GET(&g.inside), 1);
    PUT(&g.open, 1);
    dispatch_retain(t.queue);
    dispatch_release(t.queue);
    dispatch_release(t.queue); /* what is pending runs all the same */
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_true(g.passed == 3 && t.count == 1500 && t.next == LENGTH(items));
    assert_int_equal(softmetal_dispatches(), 1500 + LENGTH(items) + 3);
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
}

/* By their times they are 0, 1, 2; the one for ever never comes. */
static void *arm_timers(tally *t, uint64_t first)
{
    void *queue = t->queue = serial();
    for (unsigned i = 1; i < 4; i++) {
        unsigned number = i % 3;
        items[number] = (struct item){t, number};
        dispatch_after_f(dispatch_time(0, (int64_t)(first + SECONDS(number))), queue, &items[number], expect_next);
    }
    dispatch_after_f(UINT64_MAX, queue, NULL, (void (*)(void *))abort);
    dispatch_release(queue);
    return queue;
}
on_both_clocks(a_timer_comes_when_the_test_fires_it)
{
    tally t = {.next = 0};
    uint64_t first = s->clock == SOFTMETAL_MANUAL ? 0 : SECONDS(1000);
    assert_int_equal(softmetal_dispatch_qos(arm_timers(&t, first)), 0); /* they keep their queue */
    sleep_ms(5);
    assert_true(softmetal_timers_armed() == 4 && softmetal_timers_pending() == 3);
    assert_true(softmetal_dispatched(0) && softmetal_settle(0) && t.next == 0); /* nobody waits for them */
    assert_true(softmetal_fire_timers() == 3 && softmetal_fire_timers() == 0);
    assert_true(softmetal_dispatched(SECONDS(20)) && t.next == 3);
    arm_timers(&t, first);
    softmetal_reset();
    assert_int_equal(softmetal_timers_armed() + softmetal_timers_pending() + softmetal_fire_timers(), 0);
}

on_real(queues_run_at_once_as_far_as_there_are_workers)
{
    void *global = dispatch_get_global_queue(0, 0), *queue = serial();
    for (unsigned most = 2; most <= SOFTMETAL_DISPATCH_THREADS; most *= 32) {
        gate g = {0, 0, 0};
        softmetal_set_dispatch_threads(most);
        dispatch_async_f(queue, &g, pass);
        for (unsigned i = 0; i < most; i++)
            dispatch_async_f(global, &g, pass);
        assert_true(comes_to(&g.inside, most));
        assert_false(softmetal_dispatched(MS(2)));
        assert_int_equal(GET(&g.inside), most);
        PUT(&g.open, 1);
        assert_true(softmetal_dispatched(SECONDS(20)));
        assert_int_equal(g.passed, most + 1);
    }
    dispatch_release(global);
    dispatch_release(global); /* it does not count */
    assert_true(!dispatch_get_global_queue(3, 0) && !dispatch_get_global_queue(0, 1));
    dispatch_release(queue);
}

static void wait_in_function(void *user)
{
    stage *s = user;
    metal_wait_until_completed(s->n.object);
    PUT(&s->n.found[0], 1);
}

/* A function that waits for a buffer of the manual clock, and what is behind it, do not end by themselves. */
on_manual(what_waits_for_the_test_is_not_waited_for)
{
    tally t = {.queue = serial()};
    s->n.object = buffer_in(s->queue);
    metal_commit(s->n.object);
    dispatch_async_f(t.queue, s, wait_in_function);
    dispatch_async_f(t.queue, &t, tally_up);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(GET(&s->n.found[0]), 0);
    softmetal_finish(s->n.object);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_true(GET(&s->n.found[0]) == 1 && t.count == 1);
    dispatch_release(t.queue);
}

on_real(what_the_system_made_is_left_to_the_system)
{
    void *(*system_create)(const char *, void *), *queue;
    unsigned count = 0;
    *(void **)&system_create = dlsym(RTLD_NEXT, "dispatch_queue_create");
    if (!system_create) print_message("skip: there is no libdispatch behind softmetal's\n"), skip();
    queue = system_create("q", NULL);
    dispatch_async_f(queue, &count, count_up);
    assert_true(comes_to(&count, 1));
    dispatch_after_f(0, queue, &count, count_up);
    assert_true(comes_to(&count, 2));
    dispatch_retain(queue);
    dispatch_release(queue);
    dispatch_release(queue);
}

static void *count_under_lock(void *argument)
{
    tally *t = argument;
    for (unsigned i = 0; i < 100000 / SLOW; i++) {
        if (i % 2 || !os_unfair_lock_trylock(&t->lock)) os_unfair_lock_lock(&t->lock);
        t->count++;
        os_unfair_lock_unlock(&t->lock);
    }
    return NULL;
}

static void *take_once(void *argument)
{
    tally *t = argument;
    os_unfair_lock_lock(&t->lock);
    COUNT(&t->count);
    os_unfair_lock_unlock(&t->lock);
    return NULL;
}

on_real(one_thread_at_a_time_has_a_lock)
{
    tally t = {.lock = 0};
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++)
        threads[i] = begin_thread(count_under_lock, &t);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(t.count == 4 * (100000 / SLOW) && t.lock == 0);
    os_unfair_lock_lock(&t.lock);
    for (unsigned i = 0; i < 4; i++)
        threads[i] = begin_thread(take_once, &t);
    sleep_ms(20); /* so that some sleep: the test holds for those that do not, too */
    os_unfair_lock_unlock(&t.lock);
    assert_true(comes_to(&t.count, 4 * (100000 / SLOW) + 4));
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* -- quirks ------------------------------------------------------------------------------------------------------- */

static void *handled(stage *s, void (*does)(block *, void *))
{
    return run(s, on_completed(on_completed_do(buffer_in(s->queue), &s->n, 1, does), &s->n, 2));
}
static bool signals_while_it_hangs(void *buffer, void *event, bool with)
{
    bool signals = reaches(event, 1, with ? 20000 : 20);
    softmetal_unhang(buffer);
    return signals;
}
static bool hang_says(stage *s, const char *words)
{
    void *error = failed_in(s, SOFTMETAL_HANG, NULL);
    char said[200];
    metal_error_copy(error, said, sizeof said);
    return !strcmp(said, words) && !below(error);
}
static void *info(stage *s)
{
    void *buffer = buffer_with_encoders(s, false);
    softmetal_fail_as(buffer, SOFTMETAL_HANG, NULL);
    return encoders_of(run(s, buffer));
}
static void *ns_null(void) { return metal_get(metal__class("NSNull"), "null"); }
static unsigned long count_behind_status(void *buffer)
{
    void *pool = metal_pool_push();
    unsigned long count = metal_status(buffer) * 0 + softmetal_retain_count(buffer);
    metal_pool_pop(pool);
    return count;
}
/* In a process of its own: 101 listeners, or a second buffer of a queue for one, which else waits for its alarm, or timers. */
enum { LISTENERS, PLACES, TIMERS };
static int end_process(unsigned number)
{
    stage *s = stage_open(SOFTMETAL_REAL);
    static tally t;
    void *event = event_new(s->device), *queue = mine(metal_queue_new(s->device, 1));
    softmetal_set_quirks(&(softmetal_quirks){.refused_listeners = number & 1, .full_queue_aborts = number & 1});
    alarm(2);
    for (int i = 0; i < (number / 2 == LISTENERS ? 101 : 0); i++)
        listen(s, event, 9);
    for (int i = 0; i < (number / 2 == PLACES ? 2 : 0); i++)
        buffer_in(queue);
    softmetal_set_clock(number & 1 ? SOFTMETAL_MANUAL : SOFTMETAL_REAL);
    if (number / 2 == TIMERS) arm_timers(&t, SECONDS(1000));
    return 0;
}
without_stage(a_process_ends_with_timers)
{
    char said[4096];
    for (unsigned manual = 0; manual < 2; manual++)
        assert_int_equal(run_again("--end", 2 * TIMERS + manual, NULL, said, sizeof said), 0);
}
static bool ends_the_process(unsigned what, bool with)
{
    char said[4096];
    return aborted(run_again("--end", 2 * what + with, NULL, said, sizeof said));
}

#define HANG_OF_IOACCEL "Caused GPU Hang Error (00000003:kIOAccelCommandBufferCallbackErrorHang)"
/* b and c are buffers, c of unretained references, e is an event */
#define QUIRKS(X)                                                                                                      \
    X(status_early, REAL, , status_behind_a_slow_handler(s) == COMPLETED)                                              \
    X(late_times, MANUAL, metal_commit(on_completed(b, &s->n, 1)); softmetal_complete(b), metal_gpu_end(b) == 0)       \
    X(status_after_handlers, MANUAL, handled(s, NULL), s->n.status == SCHEDULED)                                       \
    X(lost_handlers, MANUAL, handled(s, NULL), s->n.count == 0)                                                        \
    X(lost_drawables, MANUAL, presented(c = shown_later(s)), shown_at(c) == 0 && s->n.disposed == 2 && s->n.count == 0) \
    X(deaf_listeners, REAL, listen(s, e, 1); metal_event_signal(e, 1), heard(s) == 0)                                  \
    X(deaf_to_everything, REAL, listen(s, e, 1); metal_encode_signal(b, e, 1); run(s, b),                              \
      heard(s) == 0 && (softmetal_tell_listeners(e), heard(s) == 1))                                                   \
    X(deaf_to_the_past, REAL, metal_event_signal(e, 1); listen(s, e, 1),                                               \
      heard(s) == 0 && (metal_event_signal(e, 2), heard(s) == 1))                                                      \
    X(doubled_listeners, REAL, listen(s, e, 1); metal_event_signal(e, 1), heard(s) == 2)                               \
    X(refused_listeners, REAL, , ends_the_process(LISTENERS, with))                                                    \
    X(falling_events, REAL, metal_event_signal(e, 5); metal_event_signal(e, 3), metal_event_value(e) == 3)             \
    X(overtaking_signals, REAL, hanging(b); metal_encode_signal(c, e, 1); metal_commit(c),                             \
      signals_while_it_hangs(b, e, with))                                                                              \
    X(handlers_backwards, REAL, handled(s, NULL), s->n.order[0] == 2)                                                  \
    X(status_autoreleases, REAL, , count_behind_status(b) == 2)                                                        \
    X(uncommitted_are_free, REAL, , softmetal_outstanding(s->queue) == 0)                                              \
    X(full_queue_aborts, REAL, , ends_the_process(PLACES, with))                                                       \
    X(bare_errors, MANUAL, , hang_says(s, "Caused GPU Hang Error"))                                                    \
    X(ioaccel_errors, MANUAL, , hang_says(s, HANG_OF_IOACCEL)) \
    X(ioaf_errors, MANUAL, , hang_says(s, "Caused GPU Hang Error (IOAF code 3)"))                                      \
    X(alien_error_below, MANUAL, , below(failed_in(s, SOFTMETAL_HANG, NULL)) == ns_null())                             \
    X(no_encoder_info, MANUAL, , !info(s))                                                                             \
    X(null_encoder_info, MANUAL, , info(s) == ns_null())                                                               \
    X(empty_encoder_info, MANUAL, , metal_number(info(s), "count") == 0)                                               \
    X(alien_encoder_info, MANUAL, , object_at(info(s), 1) == ns_null())                                                \
    X(bare_encoder_info, MANUAL, , !metal_get(object_at(info(s), 1), "label"))

static bool sees(stage *s, size_t row, bool with)
{
    void *e = event_new(s->device), *b = buffer_in(s->queue), *c = unretained_in(s->queue);
    QUIRKS(SEE_IN_TURN)
    (void)c;
    return false;
}

without_stage(each_quirk_is_seen_with_it_and_not_without)
{
    static const fact rows[] = {QUIRKS(ROW_OF_QUIRK)};
    assert_int_equal(LENGTH(rows), offsetof(softmetal_quirks, no_metal4_family));
    assert_quirks(rows, LENGTH(rows), 0, sees, stage_open);
}

/* -- rules -------------------------------------------------------------------------------------------------------- */

static void wait_for_it(block *self, void *buffer) { (void)self, metal_wait_until_completed(buffer); }
static void retain_it(block *self, void *buffer) { (void)self, metal_release(metal_retain(buffer)); }
static void *ended(void *encoder)
{
    metal_do(encoder, "endEncoding");
    return encoder;
}
static void *gone(void *object)
{
    metal_release(object);
    return object;
}
static void *blit_in(void *buffer) { return metal_get(buffer, "blitCommandEncoder"); }
static void *compute_in(void *buffer) { return metal_get(buffer, "computeCommandEncoder"); }
static void *drawable_of(stage *s, bool framebuffer)
{
    void *layer = layer_of(s, 2);
    if (framebuffer) SEND(void, (ID, signed char), layer, "setFramebufferOnly:", 1);
    return metal_next_drawable(layer);
}
static void add_block(void *buffer, void *isa, int32_t flags, void (*invoke)(void *, void *, uint64_t))
{
    block b = global_block(NULL, 1, NULL);
    b.isa = isa;
    b.flags = flags | 1 << 30;
    b.invoke = invoke;
    metal_add_completed_handler(buffer, &b);
}
static void *without_pool(void *queue) { return buffer_in(queue); }
static void *behind_outer_pop(void *queue)
{
    void *outer = metal_pool_push();
    (void)metal_pool_push();
    metal_pool_pop(outer); /* the inner one goes too */
    return buffer_in(queue);
}
static void *label_without_pool(void *queue) { return metal_get(queue, "label"); }
static void pool_in_function(void *context) { (void)context, (void)metal_pool_push(); }
static void dispatch_on(void *context, void (*function)(void *))
{
    dispatch_async_f(serial(), context, function);
    softmetal_settle(SECONDS(20));
}
/* A queue behind its last release, which a function keeps that waits for a worker; that is no licence. */
static void *released(void)
{
    void *queue = serial();
    softmetal_set_dispatch_threads(0);
    dispatch_async_f(queue, NULL, nothing);
    dispatch_release(queue);
    return queue;
}
static void *lock_it(void *lock)
{
    os_unfair_lock_lock(lock);
    return NULL;
}

#define UNKNOWN(what) "unknown-message: softmetal has no method for the message (" what ")"
/* d device, q queue, b and c buffers, c of unretained references, m memory, e event, n notes; other: a device */
#define RULES(X)                                                                                                       \
    X("handler-after-commit", on_completed(committed(b), n, 1))                                                        \
    X("handler-after-commit", on_scheduled(committed(b), n, 1))                                                        \
    X("double-commit", committed(committed(b)))                                                                        \
    X("commit-with-active-encoder", blit_in(b); metal_commit(b))                                                       \
    X("encode-after-commit", compute_in(committed(b)))                                                                 \
    X("encode-after-commit", metal_encode_signal(committed(b), e, 1))                                                  \
    X("wait-before-commit", metal_wait_until_completed(b))                                                             \
    X("wait-in-own-handler", softmetal_finish(committed(on_completed_do(b, n, 1, wait_for_it))))                       \
    X("enqueued-never-committed", pool = metal_pool_push(); metal_enqueue(buffer_in(q)); metal_pool_pop(pool))         \
    X("command-buffer-would-block", q = metal_queue_new(d, 1); buffer_in(q); buffer_in(q))                             \
    X("queue-full-block", softmetal_set_quirks(&(softmetal_quirks){.full_queue_aborts = true});                        \
      q = metal_queue_new(d, 1); buffer_in(q); buffer_in(q))                                                           \
    X("second-active-encoder", blit_in(b); compute_in(b))                                                              \
    X("event-with-active-encoder", blit_in(b); waiting(b, e))                                                          \
    X("double-end-encoding", ended(ended(blit_in(b))))                                                                 \
    X("encode-after-end", metal_fill(ended(blit_in(b)), m, 0, 4, 1))                                                   \
    X("encoder-not-ended", pool = metal_pool_push(); blit_in(buffer_in(q)); metal_pool_pop(pool))                      \
    X("blit-out-of-range", metal_fill(blit_in(b), m, SIZE_MAX, 2, 1))                                                  \
    X("blit-out-of-range", metal_copy(blit_in(b), m, 0, memory_new(d, 2), 0, 3))                                       \
    X("blit-out-of-range", metal_copy_to_drawable(blit_in(b), memory_new(d, 64), 3, 1, drawable_of(s, false)))         \
    X("bad-binding", metal_set_buffer(compute_in(b), m, 0, 31))                                                        \
    X("bad-binding", metal_set_buffer(compute_in(b), m, 4, 0))                                                         \
    X("bad-binding", color(render_descriptor(NULL, NULL), 8))                                                          \
    X("no-pipeline", metal_dispatch(compute_in(b), (metal_size){1, 1, 1}, (metal_size){1, 1, 1}))                      \
    X("nil-argument", metal_fill(blit_in(b), NULL, 0, 1, 1))                                                           \
    X("nil-argument", metal_add_completed_handler(b, NULL))                                                            \
    X("nil-argument", metal_set(mine(softmetal_new_drawable(d)), "addPresentedHandler:", NULL))                        \
    X("nil-argument", on_event(e, NULL, 1, n, 1))                                                                      \
    X("nil-argument", dispatch_on(NULL, NULL))                                                                         \
    X("nil-argument", render_pipeline_from(d, render_descriptor(NULL, NULL), NULL))                                    \
    X("wrong-class", metal_fill(blit_in(b), e, 0, 1, 1))                                                               \
    X("wrong-class", dispatch_async_f(e, NULL, nothing))                                                               \
    X("wrong-class", render_descriptor(e, NULL))                                                                       \
    X("wrong-class", metal_set_pipeline(compute_in(b), render_pipeline(s, NULL)))                                      \
    X("other-device", metal_fill(blit_in(b), memory_new(other, 4), 0, 4, 1))                                           \
    X("other-device", waiting(b, metal_get(other, "newEvent")))                                                        \
    X("other-device", c = function_of(library_of(s, "vertex float4 v("), "v"); render_pipeline_from(other,             \
      render_descriptor(c, c), NULL))                                                                                  \
    X("bad-length", memory_new(d, 0))                                                                                  \
    X("bad-length", metal_queue_new(d, 0))                                                                             \
    X("bad-layer", SEND(void, (ID, unsigned long), layer_of(s, 2), "setMaximumDrawableCount:", 4ul))                   \
    X("framebuffer-only", metal_copy_to_drawable(blit_in(b), memory_new(d, 64), 2, 2, drawable_of(s, true)))           \
    X("hidden-selector", softmetal_hide_selector("commandBuffer"); buffer_in(q))                                       \
    X("unknown-message", metal_get(q, "stop"))                                                                     \
    X(UNKNOWN("MTLCommandBuffer has no waitUntilScheduled"), metal_do(b, "waitUntilScheduled"))                        \
    X(UNKNOWN("MTLDevice has no newHeap"), metal_get(d, "newHeap"))                                                    \
    X(UNKNOWN("MTLComputeCommandEncoder has no end"), metal_get(compute_in(b), "end"))                                 \
    X(UNKNOWN("MTLBlitCommandEncoder has no end"), metal_get(blit_in(b), "end"))                                       \
    X(UNKNOWN("MTLRenderPipelineState has no end"), metal_get(render_pipeline(s, NULL), "end"))                        \
    X(UNKNOWN("MTL4CommandQueue has no fence"), metal_get(metal4_queue_new(d), "fence"))                               \
    X(UNKNOWN("MTLCommandBuffer has no end"), SEND(void *, (ID, void *), b, "performSelector:", metal__sel("end")))    \
    X(UNKNOWN("the class MTL4CommitOptions has no plain"), metal_get(metal__class("MTL4CommitOptions"), "plain"))      \
    X("over-release", gone(gone(metal_buffer_new(d, 4))))                                                              \
    X("over-release", metal_release(b); metal_pool_pop(s->pool))                                                       \
    X("over-release", gone(gone(softmetal_new_device())))                                                              \
    X("over-release", dispatch_release(released()))                                                                    \
    X("message-to-freed", metal_contents(gone(metal_buffer_new(d, 4))))                                                \
    X("message-to-freed", metal_retain(gone(metal_buffer_new(d, 4))))                                                  \
    X("message-to-freed", metal_fill(blit_in(b), gone(metal_buffer_new(d, 4)), 0, 4, 1))                               \
    X("message-to-freed", pool = metal_pool_push(); on_completed_do(buffer_in(q), n, 1, retain_it);                    \
      metal_pool_pop(pool))                                                                                            \
    X("message-to-freed", dispatch_async_f(released(), NULL, nothing))                                                 \
    X("pool-order", pool = metal_pool_push(); c = metal_pool_push(); metal_pool_pop(pool); metal_pool_pop(c))          \
    X("pool-order", dispatch_on(NULL, pool_in_function))                                                               \
    X("destroyed-in-use", m = metal_buffer_new(d, 4); committed(fill(c, m, 1)); gone(m))                               \
    X("destroyed-in-use", m = metal_shared_event_new(d); committed(waiting(c, m)); gone(m))                            \
    X("destroyed-in-use", m = metal_buffer_new(d, 4); fill(c, m, 1); gone(m); metal_commit(c))                         \
    X("bad-block", add_block(b, NULL, 1 << 28, block_invoke))                                                          \
    X("bad-block", add_block(b, _NSConcreteStackBlock, 1 << 28, block_invoke))                                         \
    X("bad-block", add_block(b, _NSConcreteGlobalBlock, 1 << 28, NULL))                                                \
    X("block-changed", metal_add_completed_handler(b, &changed); changed.invoke = NULL; run(s, b)) \
    X("dispatch-attribute", dispatch_queue_create("q", s))                                                             \
    X("exit-in-function", dispatch_on(NULL, pthread_exit))                                                             \
    X("step-not-due", softmetal_execute(committed(b)))                                                                 \
    X("step-not-due", softmetal_schedule(committed(b)); softmetal_schedule(b))                                         \
    X("step-not-due", softmetal_run_handler(committed(on_completed(b, n, 1)), 0))                                      \
    X("step-not-due", on_completed(on_completed(b, n, 1), n, 2); softmetal_run_handler(completed(b), 0);               \
      softmetal_run_handler(b, 0))                                                                                     \
    X("step-not-due", softmetal_call_handler_again(completed(on_completed(b, n, 1)), 0))                               \
    X("step-not-due", completed(waiting(b, e)))                                                                        \
    X("step-not-due", committed(fill(b, m, 1)); completed(fill(c, m, 1)))                                              \
    X("step-not-due", metal_enqueue(b); completed(c))                                                                  \
    X("step-not-due", softmetal_drop_drawable(presented(shown_later(s)), true))                                        \
    X("step-not-due", softmetal_time_out(committed(b)))                                                                \
    X("step-not-due", softmetal_fail(waiting(b, e), NULL, 1, NULL); softmetal_time_out(committed(b)))                  \
    X("step-on-real-clock", softmetal_set_clock(SOFTMETAL_REAL); completed(buffer_in(metal_queue_new(d, 1))))          \
    X("reset-with-work", committed(b); softmetal_reset())                                                              \
    X("panel-misuse", softmetal_fail(completed(b), NULL, 1, NULL))                                                     \
    X("panel-misuse", softmetal_fail_as(b, SOFTMETAL_FIRST_INTERNAL - 1, NULL))                                        \
    X("panel-misuse", softmetal_live("teapot"))                                                                        \
    X("panel-misuse", softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS + 1))
#define RULES_OF_LINUX(X)                                                                                              \
    X("autorelease-without-pool", in_thread(without_pool, q))                                                          \
    X("autorelease-without-pool", in_thread(behind_outer_pop, q))                                                      \
    X("autorelease-without-pool", metal_set_label(q, "q"); in_thread(label_without_pool, q))                           \
    X("locked-twice", lock_it(&lock); if (!os_unfair_lock_trylock(&lock)) lock_it(&lock))                              \
    X("unlocked-by-other", in_thread(lock_it, &lock); os_unfair_lock_unlock(&lock))                                    \
    X("class-taken", setenv("PLANT_CLASS", "MTLSharedEventListener", 1);                                               \
      execl(own_path, own_path, "--break", "0", (char *)NULL))
static const char *const broken[] = {RULES(NAME_OF_CASE) RULES_OF_LINUX(NAME_OF_CASE)};
enum { OF_ANY_SYSTEM = 0 RULES(COUNT_CASE) };

/* A class that the runtime knows before softmetal's: in a process that begins here. */
extern void *objc_allocateClassPair(void *superclass, const char *name, size_t extra);
extern void objc_registerClassPair(void *cls);
static __attribute__((constructor(101))) void plant_class(void)
{
    const char *name = getenv("PLANT_CLASS");
    if (name) objc_registerClassPair(objc_allocateClassPair(metal__class("NSObject"), name, 0));
}

static int break_rule(size_t wanted)
{
    static block changed;
    static uint32_t lock;
    alarm(50);
    stage *s = stage_open(SOFTMETAL_MANUAL);
    notes *n = &s->n;
    void *d = s->device, *q = s->queue, *b = buffer_in(q), *c = unretained_in(q), *m = memory_new(d, 4);
    void *e = event_new(d), *pool, *other = mine(softmetal_new_device());
    changed = global_block(n, 1, NULL);
    RULES(BREAK_IN_TURN)
    RULES_OF_LINUX(BREAK_IN_TURN)
    fprintf(stderr, "the rule did not hold\n");
    return 0;
}

static void each_rule_that_is_broken_aborts(void **state)
{
    static const char *const rules[] = {SM_RULES(NAME_OF_RULE)};
    assert_each_has_a_case(rules, LENGTH(rules), broken, LENGTH(broken));
    assert_they_abort(break_rule, broken, 0, OF_ANY_SYSTEM);
}
static void pools_locks_and_classes_are_watched(void **state)
{
    NOT_ON_A_MAC("softmetal does not see every pool, and the lock is the system's");
    assert_they_abort(break_rule, broken, OF_ANY_SYSTEM, LENGTH(broken));
}

/* -- many threads, and races -------------------------------------------------------------------------------------- */

static void *work_on_shared_queue(void *user)
{
    stage *s = user;
    notes n = {.count = 0};
    for (unsigned i = 1; i <= 100; i++) {
        void *pool = metal_pool_push(), *memory = memory_new(s->device, 64), *buffer = buffer_in(s->n.queue);
        run(s, on_completed(fill(buffer, memory, (unsigned char)i), &n, 1));
        assert_int_equal(bytes_of(memory)[63], metal_status(buffer) == COMPLETED ? i : 0);
        assert_int_equal(GET(&n.count), i);
        metal_pool_pop(pool);
    }
    return NULL;
}

on_real(threads_share_a_queue)
{
    pthread_t threads[4];
    s->n.queue = mine(metal_queue_new(s->device, 3)); /* fewer places than threads */
    softmetal_set_chaos(&(softmetal_chaos){50, 100, 300});
    softmetal_set_seed(42);
    for (int i = 0; i < 4; i++)
        threads[i] = begin_thread(work_on_shared_queue, s);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    settle(s);
    assert_int_equal(softmetal_outstanding(s->n.queue), 0);
}

/* What Metal and libdispatch leave unordered, ThreadSanitizer finds unordered. The flags order the moments alone. */
static int plain, written, looked;
static void raise_flag(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELAXED); }
static void await_flag(int *flag)
{
    while (!__atomic_load_n(flag, __ATOMIC_RELAXED))
        sleep_ms(1);
}
static void write_it(void *context) { (void)context, plain = 1; }
static void write_late(block *self, void *buffer)
{
    await_flag(&looked);
    write_it(self);
}
static void stay(void *context)
{
    raise_flag(&written);
    await_flag(&looked);
}
static void look(void *context)
{
    await_flag(&written);
    assert_int_equal(plain, 1);
    raise_flag(&looked);
}
static void *dispatch_and_stay(void *queue)
{
    write_it(NULL);
    dispatch_async_f(queue, NULL, nothing);
    stay(NULL);
    return NULL;
}
enum { HANDLER_AND_LATER_STATUS, DISPATCHERS, FUNCTION_AND_DISPATCHER, QUEUES, RACES };
static int run_race(size_t race)
{
    stage *s = stage_open(SOFTMETAL_REAL);
    void *first = on_completed_do(buffer_in(s->queue), &s->n, 1, write_late), *second = buffer_in(s->queue);
    void *third = buffer_in(s->queue), *event = event_new(s->device), *queue = serial();
    alarm(50);
    if (race == HANDLER_AND_LATER_STATUS) {
        metal_encode_signal(third, event, 1);
        metal_commit(first);
        metal_commit(second);
        metal_commit(third);
        assert_true(reaches(event, 1, 20000)); /* the GPU ends with the second one before the handler writes */
        raise_flag(&looked);
        while (metal_status(second) < COMPLETED)
            sleep_ms(1);
        assert_int_equal(plain, 1);
    } else if (race == DISPATCHERS) {
        pthread_t thread = begin_thread(dispatch_and_stay, queue);
        await_flag(&written);
        dispatch_async_f(queue, NULL, nothing);
        look(NULL);
        pthread_join(thread, NULL);
    } else {
        dispatch_async_f(queue, NULL, write_it);
        dispatch_async_f(queue, NULL, stay); /* keeps the worker */
        if (race == QUEUES) await_flag(&written), dispatch_async_f(serial(), NULL, look);
        if (race == FUNCTION_AND_DISPATCHER) look(NULL);
    }
    assert_true(softmetal_settle(SECONDS(20)));
    _exit(0);
}

without_stage(races_are_not_hidden)
{
    if (!__has_feature(thread_sanitizer)) print_message("skip: races are looked for with SANITIZE=thread\n"), skip();
    for (size_t i = 0; i < RACES; i++) {
        char said[16384];
        (void)run_again("--race", i, NULL, said, sizeof said);
        if (!strstr(said, "data race")) fail_msg("race %zu: %s", i, said);
    }
}

int main(int count, char **arguments)
{
    own_path = arguments[0];
    if (count == 3 && !strcmp(arguments[1], "--break")) return break_rule((size_t)atoi(arguments[2]));
    if (count == 3 && !strcmp(arguments[1], "--end")) return end_process((unsigned)atoi(arguments[2]));
    if (count == 3 && !strcmp(arguments[1], "--race")) return run_race((size_t)atoi(arguments[2]));
    return run_all_tests();
}
