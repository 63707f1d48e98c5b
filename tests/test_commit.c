/* test_commit.c - tickets, their order and their end, room, who keeps what, and calls that refuse */
#include "kit.h"

#define ROOM 4u /* of the queues where room is the matter */
#define FULL .queue = {.max_command_buffer_count = ROOM}

/* May one more command buffer be made now? Leaves nothing behind. */
static bool has_room(gpusync_queue *queue)
{
    void *buffer = NULL;
    gpusync_result result = gpusync_command_buffer_create(queue, NULL, 0, &buffer);
    if (result == GPUSYNC_OK) {
        assert_ok(gpusync_command_buffer_discard(queue, buffer));
        return true;
    }
    assert_result(result, GPUSYNC_TIMEOUT);
    assert_null(buffer);
    return false;
}

/* How many command buffers may be made now. Leaves nothing behind. */
static unsigned room_of(gpusync_queue *queue)
{
    void *made[64];
    unsigned count = 0;
    while (count < LENGTH(made) && gpusync_command_buffer_create(queue, NULL, 0, &made[count]) == GPUSYNC_OK) count++;
    for (unsigned i = 0; i < count; i++) assert_ok(gpusync_command_buffer_discard(queue, made[i]));
    return count;
}

/* A queue over an MTLCommandQueue of the program's, in the stage's second place. */
static void own_queue(stage *s, unsigned long metal_most, uint32_t limit)
{
    assert_null(s->q[1]);
    s->metal[1] = metal_queue_new(s->metal_device, metal_most);
    gpusync_queue_desc desc = {.metal_queue = s->metal[1], .max_command_buffer_count = limit, .label = "own"};
    assert_ok(gpusync_queue_create(s->device, &desc, &s->q[1]));
}

/* -- tickets ------------------------------------------------------------------------------------------------------ */

on_all_kinds_with(test_S1_tickets_count_from_one_in_the_order_of_commits, .queues = 2)
{
    void *made_first = new_buffer(s->q[0]);
    assert_int_equal(commit_new(s->q[0]), 1);
    assert_int_equal(commit(s->q[0], made_first), 2);
    assert_int_equal(commit(s->q[1], new_buffer(s->q[1])), 1);
    assert_int_equal(SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0]), new_buffer(s->q[0]))), 3);
    SUBMIT(s->q[0], .flags = GPUSYNC_SUBMIT_UNORDERED); /* R30: has none */
    assert_ok(gpusync_commit(s->q[0], new_buffer(s->q[0]), NULL));
    assert_int_equal(commit_new(s->q[0]), 5);
}

on_both_kinds(test_S1_zero_and_below_are_done)
{
    static const gpusync_ticket none[] = {GPUSYNC_NO_TICKET, -1, -2, INT64_MIN};
    for (unsigned with_work = 0; with_work < 2; with_work++) {
        for (size_t i = 0; i < LENGTH(none); i++) {
            gpusync_times times = {1, 1};
            assert_true(gpusync_is_done(s->q[0], none[i]));
            assert_ok(gpusync_poll(s->q[0], none[i], &times));
            assert_true(times.gpu_start_s == 0 && times.gpu_end_s == 0);
            assert_ok(gpusync_wait(s->q[0], none[i], GPUSYNC_FOREVER, NULL));
        }
        commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    }
}

on_both_kinds(test_T13_the_frame_before_the_first_needs_no_if)
{
    gpusync_ticket ticket;
    assert_true(gpusync_version() == GPUSYNC_VERSION && GPUSYNC_EVERYTHING == INT64_MAX);
    assert_true((gpusync_ticket)-1 < 0 && sizeof(gpusync_ticket) == 8);
    assert_true(GPUSYNC_FOREVER == UINT64_MAX);
    for (int frame = 0; frame < 6; frame++) {
        ticket = commit_new(s->q[0]);
        assert_result(gpusync_wait(s->q[0], ticket - 2, 0, NULL), frame < 2 ? GPUSYNC_OK : GPUSYNC_TIMEOUT);
        if (frame >= 2) assert_true(finish_next(s->q[0]));
        assert_ok(gpusync_wait(s->q[0], ticket - 2, 0, NULL));
        assert_result(gpusync_wait(s->q[0], ticket - 1, 0, NULL), frame ? GPUSYNC_TIMEOUT : GPUSYNC_OK);
    }
}

/* -- order -------------------------------------------------------------------------------------------------------- */

/* Metal may run two buffers at once that share nothing, so the last may be through first. A failure waits for its turn,
   too, and does not touch the tickets before it. */
on_both_kinds(test_S3_T1_work_that_metal_ends_early_ends_in_its_turn)
{
    void *buffers[3] = {new_buffer(s->q[0]), new_buffer(s->q[0]), new_buffer(s->q[0])};
    job waits = {0};
    note notes[3] = {0};
    softmetal_fail_as(buffers[1], SOFTMETAL_PAGE_FAULT, NULL);
    for (int i = 0; i < 3; i++) assert_int_equal(commit(s->q[0], buffers[i]), i + 1);
    for (int i = 2; i >= 0; i--) on_done(ticket_at(s->q[0], i + 1), &notes[i]);
    softmetal_finish(buffers[2]);
    softmetal_finish(buffers[1]);
    for (int i = 0; i < 3; i++) {
        assert_result(gpusync_poll(s->q[0], i + 1, NULL), GPUSYNC_NOT_READY);
        assert_result(gpusync_wait(s->q[0], i + 1, 0, NULL), GPUSYNC_TIMEOUT);
        assert_false(gpusync_is_done(s->q[0], i + 1));
        assert_int_equal(calls_of(&notes[i]), 0);
    }
    assert_int_equal(gpusync_in_flight(s->q[0]), 3);
    assert_int_equal(failures_of(s->q[0]), 0);
    job_wait(&waits, s->q[0], 3, GPUSYNC_FOREVER);
    await_parked(1);
    softmetal_finish(buffers[0]);
    assert_ok(job_end(&waits));
    for (int i = 0; i < 3; i++) {
        gpusync_result result = i == 1 ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
        assert_true(gpusync_is_done(s->q[0], i + 1));
        assert_result(gpusync_poll(s->q[0], i + 1, NULL), result);
        assert_noted(&notes[i], result);
    }
    assert_in_order(notes, 3);
    assert_int_equal(failures_of(s->q[0]), 1);
}

/* -- the end ------------------------------------------------------------------------------------------------------ */

/* A poll reads Metal's status; is_done and in_flight ask Metal nothing. */
on_stage(test_S2_is_done_only_when_the_gpu_is_through)
{
    void *buffer = new_buffer(s->q[0]);
    gpusync_ticket ticket = commit(s->q[0], buffer);
    assert_false(gpusync_is_done(s->q[0], ticket));
    assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    softmetal_schedule(buffer);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    softmetal_execute(buffer);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    softmetal_complete(buffer); /* its handler has not run */
    uint64_t messages = softmetal_messages();
    assert_false(gpusync_is_done(s->q[0], ticket));
    assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(gpusync_in_flight(s->q[0]), 1);
    assert_int_equal(softmetal_messages(), messages);
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_true(gpusync_is_done(s->q[0], ticket));
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
    softmetal_finish(buffer);
    assert_true(gpusync_is_done(s->q[0], ticket));
    commit_new(s->q[0]);
    assert_true(gpusync_is_done(s->q[0], ticket));
    assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_false(gpusync_is_done(s->q[0], ticket + 2)); /* not issued */
    assert_false(gpusync_is_done(NULL, ticket));
    assert_false(gpusync_is_done(NULL, 0));
}

/* The memory of cancelled work is not free before that of the work in front of it. */
on_both_kinds_with(test_S2_is_done_of_cancelled_work_covers_the_work_before_it, .timelines = 1)
{
    gpusync_ticket running = commit_new(s->q[0]);
    gpusync_ticket held = commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    assert_false(gpusync_is_done(s->q[0], running));
    assert_false(gpusync_is_done(s->q[0], held));
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_NOT_READY);
    finish_all(s);
    assert_true(gpusync_is_done(s->q[0], held));
    assert_result(gpusync_poll(s->q[0], held, NULL), GPUSYNC_ERROR_CANCELLED);
}

on_stage_with(test_S2_R30_in_flight_counts_all_work_that_is_not_done, .queues = 2, .timelines = 1)
{
    void *open = new_buffer(s->q[0]), *second = new_buffer(s->q[0]);
    assert_int_equal(gpusync_in_flight(s->q[0]), 0); /* open: no ticket yet */
    assert_int_equal(gpusync_in_flight(NULL), 0);
    commit(s->q[0], open);
    assert_int_equal(gpusync_in_flight(s->q[0]), 1);
    SUBMIT(s->q[0], BUFFERS(second, new_buffer(s->q[0])));
    assert_int_equal(gpusync_in_flight(s->q[0]), 2); /* not command buffers */
    commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    assert_int_equal(gpusync_in_flight(s->q[0]), 3);
    assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    SUBMIT(s->q[0], WAITS(at(s->t[0], 2)), BUFFERS(new_buffer(s->q[0])), .flags = GPUSYNC_SUBMIT_UNORDERED);
    assert_int_equal(gpusync_in_flight(s->q[0]), 5);
    assert_int_equal(gpusync_in_flight(s->q[1]), 0);
    assert_true(finish_next(s->q[0]));
    assert_int_equal(gpusync_in_flight(s->q[0]), 4);
    finish_all(s);
    assert_int_equal(gpusync_in_flight(s->q[0]), 3); /* the held one, the marker behind it, and the UNORDERED one */
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_true(gpusync_is_done(s->q[0], 4));
    assert_int_equal(gpusync_in_flight(s->q[0]), 1);
    assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_result(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_TIMEOUT);
    signal_value(s->t[0], 2);
    finish_all(s);
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
}

enum { RACED = 4000 };

static struct {
    stage *s;
    gpusync_ticket committed;
    bool over;
} raced;

static void *commit_and_wait(void *argument)
{
    stage *s = raced.s;
    for (unsigned i = 0; i < RACED / SLOW; i++) {
        gpusync_ticket ticket;
        void *buffer;
        must(!gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &buffer), "no command buffer");
        mark(s, buffer, i + 1);
        must(!gpusync_commit(s->q[0], buffer, &ticket), "a commit is refused");
        PUT(&raced.committed, ticket);
    }
    PUT(&raced.over, true);
    return argument;
}

/* Each work makes a mark, so the marks tell how much the GPU had done after the answer: is_done may not know of more,
   and in_flight, of what was committed before it was asked, not of less. */
on_stage_with(test_S2_neither_answer_is_ever_early, .real = true, .threads = true)
{
    void *first = new_buffer(s->q[0]);
    mark(s, first, 1); /* makes the pipeline */
    assert_ok(gpusync_command_buffer_discard(s->q[0], first));
    memset(&raced, 0, sizeof raced);
    raced.s = s;
    pthread_t thread = start(commit_and_wait, NULL);
    while (!GET(&raced.over)) {
        gpusync_ticket last = GET(&raced.committed);
        uint64_t in_flight = gpusync_in_flight(s->q[0]);
        unsigned ran = marks();
        must(last <= 0 || in_flight + ran >= (uint64_t)last, "in_flight is too small");
        for (gpusync_ticket ticket = last; ticket > last - 4 && ticket > 0; ticket--)
            must(!gpusync_is_done(s->q[0], ticket) || marks() >= (unsigned)ticket, "is_done is early");
    }
    join(thread);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL));
    assert_int_equal(marks(), RACED / SLOW);
}

/* -- ownership ---------------------------------------------------------------------------------------------------- */

/* An allocator that makes room by work of its own: no lock of gpusync's is held while it is called. */
static gpusync_queue *allocates_on;
static gpusync_ticket allocated;

static void commit_in_the_allocator(void)
{
    void *buffer;
    memory_calls(NULL);
    assert_ok(gpusync_command_buffer_create(allocates_on, NULL, 0, &buffer));
    assert_ok(gpusync_commit(allocates_on, buffer, &allocated));
}

on_stage_with(test_S10_the_allocator_may_commit, .timelines = 1)
{
    void *foreign = foreign_buffer(s->q[0]);
    allocates_on = s->q[0];
    memory_calls(commit_in_the_allocator);
    assert_int_equal(commit(s->q[0], foreign), 2);
    assert_int_equal(allocated, 1);
    memory_calls(commit_in_the_allocator);
    assert_int_equal(SUBMIT(s->q[0], SIGNALS(at(s->t[0], 1))), 4);
    metal_release(foreign);
    finish_all(s);
}

/* An open one until its discard, a committed one until its handler has run, one of held work until that ends. */
on_stage_with(test_ownership_buffers_are_kept_as_long_as_they_are_needed, .timelines = 1)
{
    long before = softmetal_live("command_buffer");
    void *foreign[3] = {foreign_buffer(s->q[0]), foreign_buffer(s->q[0]), foreign_buffer(s->q[0])};
    void *open = new_buffer(s->q[0]);
    encode_wait(s->q[0], foreign[0], at(s->t[0], 1)); /* open from here on */
    commit(s->q[0], foreign[1]);
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(foreign[2]));
    for (unsigned i = 0; i < 3; i++) metal_release(foreign[i]);
    assert_int_equal(softmetal_live("command_buffer"), before + 4);
    assert_ok(gpusync_command_buffer_discard(s->q[0], open));
    assert_int_equal(softmetal_live("command_buffer"), before + 3);
    assert_ok(gpusync_command_buffer_discard(s->q[0], foreign[0]));
    assert_int_equal(softmetal_live("command_buffer"), before + 2);
    finish_all(s);
    assert_int_equal(softmetal_live("command_buffer"), before + 1);
    assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
    assert_int_equal(softmetal_live("command_buffer"), before);
}

on_stage_with(test_ownership_device_and_queue_are_retained_and_given_back, .no_queue = true)
{
    gpusync_device *device;
    void *metal = metal_device_new();
    void *metal_queue = metal_queue_new(metal, 8);
    unsigned long of_device = softmetal_retain_count(metal);
    unsigned long of_queue = softmetal_retain_count(metal_queue);
    (void)s;
    gpusync_device_desc device_desc = {.metal_device = metal};
    assert_ok(gpusync_device_create(&device_desc, &device));
    assert_true(softmetal_retain_count(metal) > of_device);
    gpusync_queue_desc desc = {.metal_queue = metal_queue};
    gpusync_queue *queue = queue_from(device, &desc);
    assert_true(softmetal_retain_count(metal_queue) > of_queue);
    assert_ptr_equal(gpusync_queue_metal(queue), metal_queue); /* borrowed: nothing to release */
    assert_ptr_equal(gpusync_device_metal(device), metal);
    assert_ok(gpusync_queue_destroy(queue));
    assert_int_equal(softmetal_retain_count(metal_queue), of_queue);
    assert_ok(gpusync_device_destroy(device));
    assert_int_equal(softmetal_retain_count(metal), of_device);
    metal_release(metal_queue);
    metal_release(metal);
    assert_null(gpusync_queue_metal(NULL));
    assert_null(gpusync_device_metal(NULL));
}

/* Texts and descs are read during the call alone. */
on_stage(test_ownership_texts_are_copied)
{
    char text[] = "shadows";
    char label[32];
    void *buffer;
    gpusync_command_buffer_desc desc = {.label = text};
    assert_ok(gpusync_command_buffer_create(s->q[0], &desc, 0, &buffer));
    memset(text, 'x', sizeof text - 1);
    memset(&desc, 0xEE, sizeof desc);
    metal_string_copy(metal_get(buffer, "label"), label, sizeof label);
    assert_string_equal(label, "shadows");
    softmetal_fail_as(buffer, SOFTMETAL_PAGE_FAULT, NULL);
    commit(s->q[0], buffer);
    finish_all(s);
    assert_string_equal(failure_at(s->q[0], 0).label, "shadows");
}

static bool retains_references(void *buffer)
{
    return METAL__AS0(signed char)(buffer, metal__sel("retainedReferences")) != 0;
}

on_stage(test_ownership_references_are_retained_unless_asked_otherwise)
{
    void *buffer = new_buffer(s->q[0]);
    void *descriptor = metal_get(metal_get(metal__class("MTLCommandBufferDescriptor"), "alloc"), "init");
    assert_true(retains_references(buffer));
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    gpusync_command_buffer_desc desc = {.unretained_references = true};
    assert_ok(gpusync_command_buffer_create(s->q[0], &desc, 0, &buffer));
    assert_false(retains_references(buffer));
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    desc.unretained_references = false;
    desc.descriptor = descriptor;
    METAL__AS(void, unsigned long)(descriptor, metal__sel("setErrorOptions:"), 1ul);
    METAL__AS(void, signed char)(descriptor, metal__sel("setRetainedReferences:"), 0);
    assert_ok(gpusync_command_buffer_create(s->q[0], &desc, 0, &buffer));
    assert_false(retains_references(buffer));
    assert_int_equal(metal_number(buffer, "errorOptions"), 1);
    assert_int_equal(softmetal_retain_count(descriptor), 1); /* gpusync keeps none */
    assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
    metal_release(descriptor);
}

/* A queue of gpusync's has the label that it was given. One of the program's keeps its own, and so do its records where
   the program gives no other. */
on_stage(test_ownership_a_label_goes_to_the_metal_queue_that_gpusync_makes)
{
    gpusync_queue_desc desc = {.label = "shadows"};
    char label[32];
    gpusync_queue *queue = queue_from(s->device, &desc);
    metal_string_copy(metal_get(gpusync_queue_metal(queue), "label"), label, sizeof label);
    assert_string_equal(label, "shadows");
    assert_ok(gpusync_queue_destroy(queue));
    desc.metal_queue = metal_queue_new(s->metal_device, 8);
    metal_set_label(desc.metal_queue, "theirs");
    for (unsigned i = 0; i < 2; i++) {
        desc.label = i ? "ours" : NULL;
        assert_ok(gpusync_queue_create(s->device, &desc, &queue));
        commit_failing(queue, SOFTMETAL_PAGE_FAULT);
        assert_true(finish_next(queue));
        assert_string_equal(failure_at(queue, 0).queue_label, i ? "ours" : "theirs");
        metal_string_copy(metal_get(desc.metal_queue, "label"), label, sizeof label);
        assert_string_equal(label, "theirs");
        assert_ok(gpusync_queue_destroy(queue));
    }
    metal_release(desc.metal_queue);
}

/* As under a validation layer: the queue's device is another object for the same GPU. */
on_stage(test_ownership_a_queue_of_the_same_gpu_is_taken_whatever_object_its_device_is)
{
    void *twin = softmetal_new_twin(s->metal_device);
    gpusync_queue_desc desc = {.metal_queue = metal_queue_new(twin, 8)};
    gpusync_queue *queue = queue_from(s->device, &desc);
    assert_ptr_equal(gpusync_queue_metal(queue), desc.metal_queue);
    gpusync_ticket ticket = commit_new(queue);
    assert_true(finish_next(queue));
    assert_ok(gpusync_poll(queue, ticket, NULL));
    assert_ok(gpusync_queue_destroy(queue));
    metal_release(desc.metal_queue);
    metal_release(twin);
}

/* Hooks and spins are read during the call alone. A wait that used what stands there later would not return. */
without_stage(test_ownership_hooks_and_spins_are_copied)
{
    gpusync_hooks hooks = kit_hooks;
    gpusync_spin spins[2] = {no_spin, no_spin};
    gpusync_device_desc desc = {.hooks = &hooks, .spin = &spins[0]};
    gpusync_queue_desc queue_desc = {.spin = &spins[1]};
    gpusync_device *device = NULL;
    job jobs[2] = {{.which = 0}};
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    assert_ok(gpusync_device_create(&desc, &device));
    gpusync_queue *queue = queue_from(device, &queue_desc);
    memset(&hooks, 0, sizeof hooks);
    spins[0].pause_iterations = spins[1].pause_iterations = UINT32_MAX;
    gpusync_timeline *timeline = new_timeline(device);
    job_wait(&jobs[0], queue, commit_new(queue), GPUSYNC_FOREVER);
    job_value(&jobs[1], timeline, 1, GPUSYNC_FOREVER); /* with the spin of the device */
    await_parked(2);
    assert_true(finish_next(queue));
    signal_value(timeline, 1);
    assert_ok(job_end(&jobs[0]));
    assert_ok(job_end(&jobs[1]));
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_queue_destroy(queue));
    assert_ok(gpusync_device_destroy(device));
}

/* What returns an object may have autoreleased it, or others: so at each such message of gpusync's, on whatever thread,
   one is autoreleased, for which softmetal demands a pool. Those that return a number or nothing do without. So it is
   with each release: it may be the last one, and a dealloc may do anything. */
static struct {
    long autoreleased, gone;
} inside_metal;
extern void *objc_autorelease(void *object);
static __thread bool of_the_test; /* messages on this thread are none of gpusync's */

static void one_is_gone(void *unused)
{
    COUNT(&inside_metal.gone);
}

static void autorelease_inside(void *user, softmetal_phase phase, void *object, const char *selector)
{
    static const char *const objects[] = {"commandBuffer", "commandQueue", "device", "domain", "error", "label",
                                          "localizedDescription", "newCommandQueueWithMaxCommandBufferCount:",
                                          "new", "newSharedEvent", "objectForKey:", "stringWithUTF8String:",
                                          "UTF8String", "userInfo"};
    size_t i = 0;
    if (phase != SOFTMETAL_BEFORE || of_the_test) return;
    while (i < LENGTH(objects) && strcmp(selector, objects[i]) != 0) i++;
    if (i == LENGTH(objects)) return;
    COUNT(&inside_metal.autoreleased);
    (void)objc_autorelease(softmetal_new_witness(one_is_gone, NULL));
}

static void autorelease_in_a_dealloc(const char *name)
{
    if (of_the_test || strcmp(name, "objc_release") != 0) return;
    COUNT(&inside_metal.autoreleased);
    (void)objc_autorelease(softmetal_new_witness(one_is_gone, NULL));
}

static void run_nothing(void *user, gpusync_result result, const gpusync_error *error)
{
}

/* On a thread without a pool. */
static void *tour_through_metal(void *unused)
{
    gpusync_queue_desc queue_desc = {.label = "a label that is too long to hide in a tagged pointer"};
    gpusync_timeline_desc desc = {.label = "progress", .signalled_by_others = true};
    gpusync_timeline *timelines[2];
    gpusync_queue *queues[2];
    gpusync_device *device;
    gpusync_ticket running, ticket;
    void *buffers[6], *object;
    must(!gpusync_device_create(NULL, &device), "a device");
    for (unsigned i = 0; i < 2; i++) {
        must(!gpusync_queue_create(device, &queue_desc, &queues[i]), "a queue");
        desc.signalled_by_others = i;
        must(!gpusync_timeline_create(device, &desc, &timelines[i]), "a timeline");
    }
    for (unsigned i = 0; i < 6; i++) {
        gpusync_command_buffer_desc buffer_desc = {.label = "one more label that is too long for a tagged pointer"};
        must(!gpusync_command_buffer_create(queues[i % 2], &buffer_desc, GPUSYNC_FOREVER, &buffers[i]), "a buffer");
    }
    of_the_test = true;
    object = metal_buffer_new(gpusync_device_metal(device), 16);
    softmetal_hang(buffers[1]);
    softmetal_fail(buffers[2], NULL, 2, NULL);
    of_the_test = false;
    must(!gpusync_commit(queues[1], buffers[1], &running), "a commit");
    must(!gpusync_encode_wait(queues[0], buffers[0], ticket_at(queues[1], running)), "encode_wait");
    must(!gpusync_encode_wait(queues[0], buffers[0], at(timelines[1], 1)), "encode_wait");
    must(!gpusync_encode_signal(queues[0], buffers[0], at(timelines[0], 1)), "encode_signal");
    must(!gpusync_commit(queues[0], buffers[0], &ticket), "a commit");
    must(!TRY_SUBMIT(queues[1], NULL, WAITS(at(timelines[0], 1)), BUFFERS(buffers[3]), SIGNALS(at(timelines[0], 2)),
                     .on_complete = run_nothing, .label = "a submission", .flags = GPUSYNC_SUBMIT_ON_GPU),
         "a submission");
    must(!gpusync_on_done(at(timelines[1], 1), run_nothing, NULL), "on_done");
    must(!gpusync_release_after(queues[0], ticket, object), "release_after");
    must(!gpusync_commit_marker(queues[1], buffers[1], NULL), "a marker");
    of_the_test = true;
    softmetal_unhang(buffers[1]);
    metal_event_signal(gpusync_timeline_metal(timelines[1], NULL), 1);
    of_the_test = false;
    must(!gpusync_wait(queues[0], ticket, GPUSYNC_FOREVER, NULL), "a wait");
    must(!gpusync_wait(queues[1], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL), "a wait");
    must(!gpusync_timeline_signal(timelines[0], 3), "a signal");
    must(!gpusync_commit(queues[0], buffers[2], &ticket), "a commit");
    must(gpusync_wait(queues[0], ticket, GPUSYNC_FOREVER, NULL) == GPUSYNC_ERROR_EXECUTION, "a wait for failed work");
    must(!TRY_SUBMIT(queues[1], NULL, WAITS(at(timelines[0], 20)), BUFFERS(buffers[5])), "a submission");
    must(!gpusync_queue_cancel_held(queues[1], GPUSYNC_EVERYTHING), "cancel");
    must(!gpusync_command_buffer_discard(queues[0], buffers[4]), "a discard");
    must(!gpusync_timeline_fail(timelines[0], NULL), "fail");
    must(!gpusync_device_run_callbacks(device, 1, NULL), "run_callbacks");
    for (unsigned i = 0; i < 2; i++) must(!gpusync_queue_destroy(queues[i]), "a destroy");
    for (unsigned i = 0; i < 2; i++) must(!gpusync_timeline_destroy(timelines[i]), "a destroy");
    must(!gpusync_device_destroy(device), "a destroy");
    of_the_test = true;
    metal_release(object);
    return unused;
}

without_stage(test_ownership_every_message_that_may_autorelease_has_a_pool)
{
    softmetal_reset();
    memset(&inside_metal, 0, sizeof inside_metal);
    softmetal_set_message_hook(autorelease_inside, NULL);
    softmetal_before = autorelease_in_a_dealloc;
    join(start(tour_through_metal, NULL));
    softmetal_before = NULL;
    softmetal_set_message_hook(NULL, NULL);
    assert_true(inside_metal.autoreleased > 20);
    assert_int_equal(inside_metal.gone, inside_metal.autoreleased); /* each with its pool */
}

/* T9: Metal copies the block of the handler, and gpusync takes no memory of its own where work comes and goes. */
on_both_kinds_with(test_T9_a_commit_costs_one_block_of_metals_and_no_memory_of_gpusyncs, .timelines = 1)
{
    long blocks = softmetal_live("block");
    long allocations = 0;
    for (unsigned i = 1; i <= 100; i++) {
        void *buffer = new_buffer(s->q[0]);
        if (i == 11) allocations = kit_now().allocations;
        commit(s->q[0], buffer);
        assert_int_equal(softmetal_live("block"), blocks + 1);
        assert_true(finish_next(s->q[0]));
        assert_int_equal(softmetal_live("block"), blocks);
    }
    assert_int_equal(kit_now().allocations, allocations);
    SUBMIT(s->q[0], BUFFERS(new_buffer(s->q[0]), new_buffer(s->q[0])), SIGNALS(at(s->t[0], 1)));
    assert_int_equal(softmetal_live("block"), blocks + (long)softmetal_outstanding(s->metal[0]));
    finish_all(s);
    assert_int_equal(softmetal_live("block"), blocks);
}

/* -- calls that refuse -------------------------------------------------------------------------------------------- */

/* What no refused call changes, and the objects that it is refused with. */
typedef struct scene {
    stage *s;
    gpusync_ticket ticket; /* what a program keeps there from before */
    void *out;
    void *open, *of_other, *late, *doomed, *half, *pointed, *last; /* open ones */
    void *sent, *held, *ended, *owner_committed, *foreign, *enqueued, *discarded, *string, *descriptor;
    void *other_device, *queue_of_other;
    unsigned long retains[6];
    uint64_t in_flight[3];
    unsigned failures, room, log_lines;
    long blocks, live;
} scene;

#define OLDER ((gpusync_ticket)77)

static void count_scene(scene *c)
{
    stage *s = c->s;
    void *kept[] = {c->open, c->late, c->sent, c->held, c->foreign, c->enqueued};
    for (unsigned i = 0; i < 6; i++) c->retains[i] = softmetal_retain_count(kept[i]);
    for (unsigned i = 0; i < 3; i++) c->in_flight[i] = gpusync_in_flight(s->q[i]);
    c->failures = failures_of(s->q[0]) + failures_of(s->q[1]) + failures_of(s->q[2]);
    c->room = room_of(s->q[0]);
    c->log_lines = kit_now().log_lines;
    c->blocks = kit_now().blocks;
    c->live = softmetal_live(NULL);
}

static void set_scene(scene *c, stage *s)
{
    memset(c, 0, sizeof *c);
    c->s = s;
    c->ended = foreign_buffer(s->q[0]);
    commit(s->q[0], c->ended);
    finish_all(s);
    c->open = new_buffer(s->q[0]);
    c->of_other = new_buffer(s->q[1]);
    c->sent = new_buffer(s->q[0]);
    commit(s->q[0], c->sent);
    c->held = waiting(s->q[1], at(s->t[0], 1));
    commit(s->q[1], c->held);
    c->foreign = foreign_buffer(s->q[0]);
    c->enqueued = foreign_buffer(s->q[1]);
    metal_enqueue(c->enqueued);
    c->pointed = signalling(s->q[0], at(s->t[1], 9));
    metal_enqueue(c->pointed);
    c->late = new_buffer(s->q[0]);
    encode_signal(s->q[0], c->late, at(s->t[1], 4));
    signal_value(s->t[1], 5);
    c->doomed = new_buffer(s->q[0]);
    encode_signal(s->q[0], c->doomed, at(s->t[2], 1));
    fail_timeline(s->t[2], GPUSYNC_ERROR_COMPILE);
    c->half = new_buffer(s->q[0]);
    encode_signal(s->q[0], c->half, at(s->t[1], 20));
    c->owner_committed = foreign_buffer(s->q[0]);
    metal_commit(c->owner_committed);
    c->discarded = foreign_buffer(s->q[0]);
    encode_wait(s->q[0], c->discarded, at(s->t[1], 1));
    assert_ok(gpusync_command_buffer_discard(s->q[0], c->discarded));
    c->string = metal_string_new("no command buffer, only a longer text");
    c->descriptor = metal_get(metal_get(metal__class("MTLCommandBufferDescriptor"), "alloc"), "init");
    c->other_device = softmetal_new_device();
    c->queue_of_other = metal_queue_new(c->other_device, 8);
    while (has_room(s->q[2])) c->last = new_buffer(s->q[2]);
    c->ticket = OLDER;
    (void)(room_of(s->q[0]) + room_of(s->q[1])); /* what a queue keeps for its next buffer it may have kept before */
    count_scene(c);
}

static void refused_at(scene *c, gpusync_result got, gpusync_result expected, const char *call, int line)
{
    scene now = *c;
    assert_result_at(got, expected, call, __FILE__, line);
    count_scene(&now);
    if (c->ticket != OLDER || c->out != NULL || memcmp(now.retains, c->retains, sizeof now.retains) ||
        memcmp(now.in_flight, c->in_flight, sizeof now.in_flight) || now.failures != c->failures ||
        now.room != c->room || now.log_lines != c->log_lines || now.blocks != c->blocks || now.live != c->live) {
        print_error("%s, line %d: changed something (ticket %lld, blocks %ld, objects %ld, room %d)\n", call, line,
                    (long long)c->ticket, now.blocks - c->blocks, now.live - c->live, (int)(now.room - c->room));
        _fail(__FILE__, line);
    }
}
#define refused(call, expected) refused_at(&c, (call), GPUSYNC_##expected, #call, __LINE__)

static gpusync_result make(scene *c, gpusync_queue *queue, const gpusync_command_buffer_desc *desc)
{
    c->out = c; /* a refused call puts NULL there */
    return gpusync_command_buffer_create(queue, desc, 0, &c->out);
}

/* Without a queue of the program's Metal is asked for one, and has none. */
static gpusync_result make_queue(scene *c, gpusync_device *device, void *metal_queue)
{
    gpusync_queue *queue = (gpusync_queue *)(void *)c;
    gpusync_queue_desc desc = {.metal_queue = metal_queue};
    if (!metal_queue) softmetal_fail_creation(1, true);
    gpusync_result result = gpusync_queue_create(device, &desc, &queue);
    softmetal_fail_creation(0, false);
    c->out = queue;
    return result;
}

static void strike_scene(scene *c)
{
    stage *s = c->s;
    signal_value(s->t[0], 1);
    commit(s->q[1], c->enqueued);
    metal_commit(c->pointed); /* Metal runs nothing behind it before */
    commit(s->q[0], c->open);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], 3, NULL)); /* the next number: no refused call has used one up */
    assert_ok(gpusync_poll(s->q[1], 2, NULL));
    metal_release(c->enqueued);
    metal_release(c->ended);
    metal_release(c->foreign);
    metal_release(c->owner_committed);
    metal_release(c->discarded);
    metal_release(c->string);
    metal_release(c->descriptor);
    metal_release(c->queue_of_other);
    metal_release(c->other_device);
}

/* S5: a call that refuses has changed nothing; T14: nor written the ticket. */
on_stage_with(test_S5_T14_F6_a_refused_call_has_changed_nothing, .queues = 3, .timelines = 3,
              .queue = {.max_command_buffer_count = 12})
{
    gpusync_queue *q = s->q[0];
    scene c;
    set_scene(&c, s);
    gpusync_ticket *ticket = &c.ticket;
    /* gpusync_commit */
    refused(gpusync_commit(NULL, c.open, ticket), ERROR_INVALID_ARGUMENT);
    refused(gpusync_commit(q, NULL, ticket), ERROR_INVALID_ARGUMENT);
    refused(gpusync_commit(s->q[1], c.open, ticket), ERROR_WRONG_QUEUE);
    refused(gpusync_commit(q, c.of_other, ticket), ERROR_WRONG_QUEUE);
    refused(gpusync_commit(s->q[1], c.foreign, ticket), ERROR_WRONG_QUEUE);
    refused(gpusync_commit(q, c.sent, ticket), ERROR_ALREADY_COMMITTED);
    refused(gpusync_commit(q, c.ended, ticket), ERROR_ALREADY_COMMITTED);
    refused(gpusync_commit(q, c.owner_committed, ticket), ERROR_ALREADY_COMMITTED);
    refused(gpusync_commit(s->q[1], c.held, ticket), ERROR_ALREADY_COMMITTED);
    refused(gpusync_commit(s->q[1], c.enqueued, ticket), ERROR_ENQUEUED);
    refused(gpusync_commit(q, c.pointed, ticket), ERROR_ENQUEUED); /* for good */
    refused(gpusync_commit(q, c.late, ticket), ERROR_NOT_RISING);
    refused(gpusync_commit(q, c.doomed, ticket), ERROR_COMPILE);
    refused(gpusync_commit(q, c.late, NULL), ERROR_NOT_RISING);
    /* gpusync_submit: the same, about any of its buffers */
    refused(TRY_SUBMIT(NULL, ticket, BUFFERS(c.open)), ERROR_INVALID_ARGUMENT);
    refused(gpusync_submit(q, NULL, ticket), ERROR_INVALID_ARGUMENT);
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open, NULL)), ERROR_INVALID_ARGUMENT);
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open, c.open)), ERROR_INVALID_ARGUMENT);
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open), .flags = 1u << 30), ERROR_INVALID_ARGUMENT);
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open), .flags = 1), ERROR_INVALID_ARGUMENT); /* of older versions */
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open), .flags = 2), ERROR_INVALID_ARGUMENT);
    refused(TRY_SUBMIT(q, ticket, .flags = GPUSYNC_SUBMIT_UNORDERED), ERROR_INVALID_ARGUMENT); /* R30: has none */
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open, c.of_other)), ERROR_WRONG_QUEUE);
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open, c.sent)), ERROR_ALREADY_COMMITTED);
    refused(TRY_SUBMIT(s->q[1], ticket, BUFFERS(c.of_other, c.held)), ERROR_ALREADY_COMMITTED);
    refused(TRY_SUBMIT(s->q[1], ticket, BUFFERS(c.of_other, c.enqueued)), ERROR_ENQUEUED);
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open, c.half)), ERROR_INVALID_ARGUMENT); /* R35: has a point */
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open), SIGNALS(at(s->t[2], 1))), ERROR_COMPILE);
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open), WAITS(ticket_at(q, 3))), ERROR_INVALID_TICKET);
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open), WAITS(ticket_at(q, GPUSYNC_EVERYTHING))), ERROR_INVALID_TICKET);
    refused(TRY_SUBMIT(q, ticket, BUFFERS(c.open), SIGNALS(ticket_at(q, 1))), ERROR_INVALID_ARGUMENT);
    refused(TRY_SUBMIT(q, ticket, WAITS(at(s->t[1], 9)), SIGNALS(at(s->t[1], 8))), ERROR_NOT_RISING);
    refused(TRY_SUBMIT(s->q[2], ticket, SIGNALS(at(s->t[1], 30))), ERROR_QUEUE_FULL);
    refused(TRY_SUBMIT(s->q[2], ticket, BUFFERS(c.last), WAITS(at(s->t[1], 30)), .flags = GPUSYNC_SUBMIT_ON_GPU),
            ERROR_QUEUE_FULL);
    refused(TRY_SUBMIT(s->q[2], NULL, .flags = GPUSYNC_SUBMIT_UNORDERED), ERROR_QUEUE_FULL);
    refused(TRY_SUBMIT(s->q[2], ticket, WAITS(at(s->t[1], 30))), ERROR_QUEUE_FULL);
    /* gpusync_commit_marker */
    refused(gpusync_commit_marker(NULL, NULL, ticket), ERROR_INVALID_ARGUMENT);
    refused(gpusync_commit_marker(q, c.open, ticket), ERROR_NOT_COMMITTED);
    refused(gpusync_commit_marker(q, c.foreign, ticket), ERROR_NOT_COMMITTED);
    refused(gpusync_commit_marker(s->q[1], c.held, ticket), ERROR_NOT_COMMITTED);
    refused(gpusync_commit_marker(s->q[1], c.enqueued, ticket), ERROR_NOT_COMMITTED);
    refused(gpusync_commit_marker(s->q[1], c.sent, ticket), ERROR_WRONG_QUEUE);
    refused(gpusync_commit_marker(s->q[2], NULL, ticket), ERROR_QUEUE_FULL);
    /* gpusync_encode_wait, gpusync_encode_signal */
    refused(gpusync_encode_wait(q, c.sent, at(s->t[1], 20)), ERROR_ALREADY_COMMITTED);
    refused(gpusync_encode_wait(s->q[1], c.enqueued, at(s->t[1], 20)), ERROR_ENQUEUED);
    refused(gpusync_encode_signal(s->q[1], c.enqueued, at(s->t[1], 30)), ERROR_ENQUEUED);
    refused(gpusync_encode_wait(s->q[1], c.held, at(s->t[1], 20)), ERROR_ALREADY_COMMITTED);
    refused(gpusync_encode_signal(s->q[1], c.held, at(s->t[1], 30)), ERROR_ALREADY_COMMITTED);
    refused(gpusync_encode_wait(s->q[1], c.foreign, at(s->t[1], 20)), ERROR_WRONG_QUEUE);
    refused(gpusync_encode_signal(q, c.open, at(s->t[2], 1)), ERROR_COMPILE);
    refused(gpusync_encode_signal(q, c.open, at(s->t[1], 5)), ERROR_NOT_RISING);
    refused(gpusync_encode_wait(q, c.open, ticket_at(q, 3)), ERROR_INVALID_TICKET);
    refused(gpusync_encode_wait(q, c.half, at(s->t[1], 20)), ERROR_INVALID_ARGUMENT); /* behind a signal */
    refused(gpusync_encode_wait(q, c.foreign, ticket_at(q, 3)), ERROR_INVALID_TICKET); /* it is not open now either */
    refused(gpusync_encode_signal(q, c.foreign, ticket_at(q, 0)), ERROR_INVALID_ARGUMENT);
    refused(gpusync_encode_signal(q, c.foreign, at(s->t[2], 1)), ERROR_COMPILE);
    /* gpusync_command_buffer_create */
    refused(make(&c, NULL, NULL), ERROR_INVALID_ARGUMENT);
    refused(gpusync_command_buffer_create(q, NULL, 0, NULL), ERROR_INVALID_ARGUMENT);
    refused(make(&c, q, &(gpusync_command_buffer_desc){.descriptor = c.string}), ERROR_INVALID_ARGUMENT);
    refused(make(&c, q, &(gpusync_command_buffer_desc){.descriptor = s->metal[0]}), ERROR_INVALID_ARGUMENT);
    refused(make(&c, q, &(gpusync_command_buffer_desc){.descriptor = c.descriptor, .unretained_references = true}),
            ERROR_INVALID_ARGUMENT); /* K15: the descriptor says it */
    refused(make(&c, s->q[2], NULL), TIMEOUT);
    /* gpusync_command_buffer_discard */
    refused(gpusync_command_buffer_discard(NULL, c.open), ERROR_INVALID_ARGUMENT);
    refused(gpusync_command_buffer_discard(q, NULL), ERROR_INVALID_ARGUMENT);
    refused(gpusync_command_buffer_discard(q, c.sent), ERROR_UNKNOWN_BUFFER);
    refused(gpusync_command_buffer_discard(s->q[1], c.held), ERROR_UNKNOWN_BUFFER);
    refused(gpusync_command_buffer_discard(q, c.ended), ERROR_UNKNOWN_BUFFER);
    refused(gpusync_command_buffer_discard(q, c.foreign), ERROR_UNKNOWN_BUFFER);
    refused(gpusync_command_buffer_discard(q, c.discarded), ERROR_UNKNOWN_BUFFER);
    refused(gpusync_command_buffer_discard(s->q[1], c.open), ERROR_UNKNOWN_BUFFER);
    /* tickets */
    refused(gpusync_poll(NULL, 1, NULL), ERROR_INVALID_ARGUMENT);
    refused(gpusync_poll(q, 3, NULL), ERROR_INVALID_TICKET);
    refused(gpusync_poll(q, GPUSYNC_EVERYTHING - 1, NULL), ERROR_INVALID_TICKET);
    refused(gpusync_wait(NULL, 1, 0, NULL), ERROR_INVALID_ARGUMENT);
    refused(gpusync_wait(q, 3, GPUSYNC_FOREVER, NULL), ERROR_INVALID_TICKET);
    refused(gpusync_queue_cancel_held(NULL, GPUSYNC_EVERYTHING), ERROR_INVALID_ARGUMENT);
    refused(gpusync_queue_cancel_held(q, GPUSYNC_NO_TICKET), ERROR_INVALID_TICKET);
    refused(gpusync_queue_cancel_held(q, -1), ERROR_INVALID_TICKET);
    refused(gpusync_queue_cancel_held(q, INT64_MIN), ERROR_INVALID_TICKET);
    refused(gpusync_queue_cancel_held(q, 3), ERROR_INVALID_TICKET);
    refused(gpusync_queue_cancel_held(s->q[1], 2), ERROR_INVALID_TICKET); /* one is held */
    refused(gpusync_queue_cancel_held(q, GPUSYNC_EVERYTHING - 1), ERROR_INVALID_TICKET);
    refused(gpusync_queue_cancel_held(q, 1), NOT_READY); /* has ended */
    refused(gpusync_queue_cancel_held(q, 2), NOT_READY); /* Metal has it */
    refused(gpusync_queue_failure(q, &(gpusync_error){.ticket = 0}), ERROR_INVALID_ARGUMENT); /* not sticky */
    refused(gpusync_queue_clear_failure(NULL, GPUSYNC_EVERYTHING), ERROR_INVALID_ARGUMENT);
    refused(gpusync_queue_clear_failure(q, GPUSYNC_EVERYTHING), ERROR_INVALID_ARGUMENT); /* nor here */
    refused(gpusync_device_wait(NULL, 0, NULL), ERROR_INVALID_ARGUMENT);
    /* gpusync_queue_create */
    c.out = NULL;
    refused(make_queue(&c, NULL, NULL), ERROR_INVALID_ARGUMENT);
    refused(gpusync_queue_create(s->device, NULL, NULL), ERROR_INVALID_ARGUMENT);
    refused(make_queue(&c, s->device, c.string), ERROR_UNSUPPORTED);
    refused(make_queue(&c, s->device, c.queue_of_other), ERROR_INVALID_ARGUMENT);
    refused(make_queue(&c, s->device, NULL), ERROR_METAL_NIL);
    /* Where Metal makes no command buffer of a descriptor */
    softmetal_hide_selector("commandBufferWithDescriptor:");
    refused(make(&c, q, &(gpusync_command_buffer_desc){.descriptor = c.descriptor}), ERROR_UNSUPPORTED);
    strike_scene(&c);
}

static void refused_device(const gpusync_device_desc *desc, gpusync_result expected)
{
    gpusync_device *device = (gpusync_device *)(uintptr_t)desc;
    long blocks = kit_now().blocks;
    long live = softmetal_live(NULL);
    assert_result(gpusync_device_create(desc, &device), expected);
    assert_null(device);
    assert_int_equal(kit_now().blocks, blocks);
    assert_int_equal(softmetal_live(NULL), live);
}

/* The system's default device is asked for first, then the list of all. */
without_stage(test_S5_a_refused_device_leaves_nothing)
{
    gpusync_hooks no_unpark = {.park = kit_park};
    gpusync_hooks no_park = {.unpark = kit_unpark};
    void *string = metal_string_new("no device");
    gpusync_device_desc desc = {.hooks = &no_unpark};
    gpusync_device *device = NULL;
    softmetal_reset();
    refused_device(&desc, GPUSYNC_ERROR_INVALID_ARGUMENT);
    desc.hooks = &no_park;
    refused_device(&desc, GPUSYNC_ERROR_INVALID_ARGUMENT);
    desc = (gpusync_device_desc){.callback_mode = (gpusync_callback_mode)(GPUSYNC_CALLBACKS_MANUAL + 1)};
    refused_device(&desc, GPUSYNC_ERROR_INVALID_ARGUMENT);
    desc = (gpusync_device_desc){.metal_device = string};
    refused_device(&desc, GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(gpusync_device_create(NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    softmetal_fail_creation(1, true);
    refused_device(NULL, GPUSYNC_ERROR_NO_DEVICE);
    softmetal_fail_creation(1, false);
    assert_ok(gpusync_device_create(NULL, &device));
    softmetal_fail_creation(0, false);
    assert_non_null(gpusync_device_metal(device));
    assert_ok(gpusync_device_destroy(device));
    metal_release(string);
}

enum { RIVALS = 4, RIVALRIES = 2000 };

static struct {
    gpusync_queue *queue;
    gate go;
    unsigned failures;
} rivalry;

static void *make_one(void *argument)
{
    for (unsigned i = 0; i < RIVALRIES / SLOW; i++) {
        void *buffer = NULL;
        gate_wait(&rivalry.go); /* the queue is there */
        if (gpusync_command_buffer_create(rivalry.queue, NULL, 0, &buffer)) COUNT(&rivalry.failures);
        gate_wait(&rivalry.go); /* each has asked */
    }
    return argument;
}

/* What gpusync keeps for its next work, of one that was discarded, is enough for one of them. There is memory. */
without_stage(test_R16_rivals_get_their_memory)
{
    gpusync_device_desc desc = {.hooks = &kit_hooks, .spin = &no_spin};
    pthread_t threads[RIVALS];
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    memset(&rivalry, 0, sizeof rivalry);
    gate_init(&rivalry.go, RIVALS + 1);
    for (unsigned i = 0; i < RIVALS; i++) threads[i] = start(make_one, NULL);
    for (unsigned i = 0; i < RIVALRIES / SLOW; i++) {
        gpusync_device *device;
        assert_ok(gpusync_device_create(&desc, &device));
        assert_ok(gpusync_queue_create(device, NULL, &rivalry.queue));
        assert_ok(gpusync_command_buffer_discard(rivalry.queue, new_buffer(rivalry.queue)));
        gate_wait(&rivalry.go);
        gate_wait(&rivalry.go);
        assert_ok(gpusync_queue_destroy(rivalry.queue)); /* discards what is open */
        assert_ok(gpusync_device_destroy(device));
    }
    for (unsigned i = 0; i < RIVALS; i++) join(threads[i]);
    gate_destroy(&rivalry.go);
    assert_int_equal(rivalry.failures, 0);
}

/* -- discard ------------------------------------------------------------------------------------------------------ */

on_stage_with(test_T4_a_discard_signals_nothing_and_withdraws_nothing, .queues = 2, .timelines = 1)
{
    void *dropped = signalling(s->q[0], at(s->t[0], 1));
    job waits = {0};
    job_value(&waits, s->t[0], 1, GPUSYNC_FOREVER);
    await_parked(1);
    assert_ok(gpusync_command_buffer_discard(s->q[0], dropped));
    assert_int_equal(value_of(s->t[0]), 0);
    assert_false(job_is_over(&waits));
    SUBMIT(s->q[1], BUFFERS(new_buffer(s->q[1])), SIGNALS(at(s->t[0], 1)));
    finish_all(s);
    assert_ok(job_end(&waits));
    assert_int_equal(gpusync_in_flight(s->q[0]), 0);
    assert_int_equal(failures_of(s->q[0]), 0);
}

/* -- markers ------------------------------------------------------------------------------------------------------ */

on_stage(test_T2_a_marker_tells_the_end_of_what_other_code_committed)
{
    void *others = foreign_buffer(s->q[0]), *later = foreign_buffer(s->q[0]);
    gpusync_ticket ticket = 0;
    note n = {0};
    mark(s, others, 1);
    metal_commit(others);
    assert_ok(gpusync_commit_marker(s->q[0], NULL, &ticket));
    assert_int_equal(ticket, 1);
    on_done(ticket_at(s->q[0], ticket), &n);
    metal_commit(later);
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    softmetal_finish(others);
    assert_false(gpusync_is_done(s->q[0], ticket));
    assert_true(finish_next(s->q[0]));
    assert_marks(1);
    assert_true(gpusync_is_done(s->q[0], ticket)); /* `later` is not among it */
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    assert_noted(&n, GPUSYNC_OK);
    finish_all(s);
    metal_release(later);
    metal_release(others);
}

on_stage(test_T2_the_marker_behind_a_buffer_that_failed_fails)
{
    enum { BEFORE_THE_MARKER, BEHIND_IT, FOUND_BY_A_LOOK, WAYS } way;
    for (way = BEFORE_THE_MARKER; way < WAYS; way++) {
        void *others = foreign_buffer(s->q[0]);
        gpusync_ticket behind = 0, blind = 0;
        unsigned before = failures_of(s->q[0]);
        softmetal_fail_as(others, SOFTMETAL_OUT_OF_MEMORY, NULL);
        metal_commit(others);
        if (way == BEFORE_THE_MARKER) finish_all(s);
        assert_ok(gpusync_commit_marker(s->q[0], others, &behind));
        if (way == FOUND_BY_A_LOOK) softmetal_lose_handlers(softmetal_last_buffer(s->metal[0]));
        assert_ok(gpusync_commit_marker(s->q[0], NULL, &blind));
        finish_all(s);
        assert_result(gpusync_poll(s->q[0], behind, NULL), GPUSYNC_ERROR_EXECUTION);
        assert_ok(gpusync_poll(s->q[0], blind, NULL)); /* the end, and not the success */
        assert_int_equal(failures_of(s->q[0]), before + 1);
        assert_int_equal(failure_at(s->q[0], before).ticket, behind);
        assert_int_equal(failure_at(s->q[0], before).failure, GPUSYNC_FAILURE_OUT_OF_MEMORY);
        assert_true(failure_at(s->q[0], before).transient);
        metal_release(others);
    }
}

/* Where Metal runs them side by side, the marker's own command buffer is over first. */
on_stage_with(test_T2_the_marker_behind_a_buffer_waits_for_it_where_they_overlap, .real = true)
{
    const softmetal_chaos overlap = {.overlap_per_mille = 1000};
    softmetal_set_chaos(&overlap);
    for (unsigned fails = 0; fails < 2; fails++) {
        void *others = foreign_buffer(s->q[0]);
        gpusync_ticket behind = 0;
        if (fails) softmetal_fail_as(others, SOFTMETAL_OUT_OF_MEMORY, NULL);
        softmetal_hang(others);
        metal_commit(others);
        assert_ok(gpusync_commit_marker(s->q[0], others, &behind));
        metal_wait_until_completed(softmetal_last_buffer(s->metal[0]));
        assert_int_not_equal(metal_status(others), 4);
        assert_result(gpusync_wait(s->q[0], behind, MS(20), &(gpusync_wait_options){.handlers = true}),
                      GPUSYNC_TIMEOUT);
        assert_false(gpusync_is_done(s->q[0], behind));
        softmetal_unhang(others);
        assert_result(gpusync_wait(s->q[0], behind, SECONDS(20), NULL), fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_true(gpusync_is_done(s->q[0], behind));
        metal_release(others);
    }
}

on_stage(test_T2_the_marker_behind_a_buffer_that_succeeded_succeeds)
{
    void *others = foreign_buffer(s->q[0]), *mine = new_buffer(s->q[0]);
    gpusync_ticket behind = 0, of_mine = 0;
    long live = softmetal_live("command_buffer");
    metal_commit(others);
    commit(s->q[0], mine);
    assert_ok(gpusync_commit_marker(s->q[0], others, &behind));
    metal_release(others); /* retained until the ticket has ended */
    assert_ok(gpusync_commit_marker(s->q[0], mine, &of_mine));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], behind, NULL));
    assert_ok(gpusync_poll(s->q[0], of_mine, NULL));
    assert_int_equal(softmetal_live("command_buffer"), live - 2);
}

/* R30: its buffer goes to Metal at once, and its ticket ends in its turn, behind the held work, with its own result. */
on_stage_with(test_R30_a_marker_passes_held_work_and_ends_in_its_turn, .timelines = 1)
{
    for (unsigned fails = 0; fails < 2; fails++) {
        void *held = waiting(s->q[0], at(s->t[0], fails + 1)), *others = foreign_buffer(s->q[0]);
        gpusync_ticket ordered = commit(s->q[0], held), marker = 0;
        note notes[2] = {0};
        if (fails) softmetal_fail_as(others, SOFTMETAL_OUT_OF_MEMORY, NULL);
        metal_commit(others);
        assert_ok(gpusync_commit_marker(s->q[0], others, &marker));
        on_done(ticket_at(s->q[0], marker), &notes[1]);
        on_done(ticket_at(s->q[0], ordered), &notes[0]);
        assert_true(is_sent(softmetal_last_buffer(s->metal[0]))); /* the marker's own */
        finish_all(s);
        assert_false(is_sent(held));
        assert_result(gpusync_poll(s->q[0], marker, NULL), GPUSYNC_NOT_READY);
        assert_result(gpusync_wait(s->q[0], marker, 0, NULL), GPUSYNC_TIMEOUT);
        assert_int_equal(calls_of(&notes[1]) + failures_of(s->q[0]), 0);
        signal_value(s->t[0], fails + 1);
        finish_all(s);
        assert_true(gpusync_is_done(s->q[0], marker));
        assert_ok(gpusync_poll(s->q[0], ordered, NULL));
        assert_noted(&notes[1], fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_in_order(notes, 2);
        metal_release(others);
    }
}

/* ... and so does ordered work behind it, which it does not hold. */
on_stage(test_R30_work_behind_a_marker_goes_at_once_and_ends_in_its_turn)
{
    void *slow = foreign_buffer(s->q[0]), *mine = new_buffer(s->q[0]);
    gpusync_ticket marker = 0;
    metal_commit(slow);
    assert_ok(gpusync_commit_marker(s->q[0], slow, &marker));
    gpusync_ticket ticket = commit(s->q[0], mine);
    softmetal_finish(mine); /* shares nothing with the others, so Metal may run it first */
    assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], marker, NULL));
    assert_ok(gpusync_poll(s->q[0], ticket, NULL));
    metal_release(slow);
}

/* -- buffers that the program has enqueued ------------------------------------------------------------------------ */

/* Metal runs them in the order in which they were enqueued; tickets count in that of the commits, and EVERYTHING covers
   them. */
on_stage(test_R34_enqueued_buffers_may_be_committed_in_any_order)
{
    void *buffers[3];
    for (uint32_t i = 0; i < 3; i++) metal_enqueue(buffers[i] = marked(s, 0, i));
    for (unsigned i = 3; i > 0; i--) assert_int_equal(commit(s->q[0], buffers[i - 1]), 4 - i);
    softmetal_finish(buffers[0]); /* ticket 3 */
    softmetal_finish(buffers[1]);
    for (gpusync_ticket ticket = 1; ticket <= 3; ticket++)
        assert_result(gpusync_poll(s->q[0], ticket, NULL), GPUSYNC_NOT_READY);
    assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_TIMEOUT);
    finish_all(s);
    assert_ok(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL));
    assert_marks(0, 1, 2);
}

/* -- room --------------------------------------------------------------------------------------------------------- */

enum way { OPEN, COMMITTED, SUBMITTED, MARKER };

typedef struct taken {
    const char *name;
    unsigned places, buffers;
    enum way way;
    bool waits, signals, foreign; /* made by the program */
    uint32_t flags;
} taken;

static void take_places(stage *s, const taken *row)
{
    gpusync_point wait = at(s->t[0], 1), signal = at(s->t[1], 1);
    void *buffers[2] = {NULL};
    gpusync_submission submission = {.wait_points = &wait, .wait_count = row->waits, .command_buffers = buffers,
                                     .command_buffer_count = row->buffers, .signal_points = &signal,
                                     .signal_count = row->signals, .flags = row->flags};
    for (unsigned i = 0; i < row->buffers; i++)
        buffers[i] = row->foreign ? foreign_buffer(s->q[0]) : new_buffer(s->q[0]);
    if (row->way < SUBMITTED && row->waits) encode_wait(s->q[0], buffers[0], wait); /* open from here on */
    if (row->way == COMMITTED) commit(s->q[0], buffers[0]);
    if (row->way == SUBMITTED) submit_at(s->q[0], &submission, __FILE__, __LINE__);
    if (row->way == MARKER) assert_ok(gpusync_commit_marker(s->q[0], NULL, NULL));
    for (unsigned i = 0; i < row->buffers && row->foreign; i++) metal_release(buffers[i]);
}

/* On a Metal queue of gpusync's, and on one of the program's. */
without_stage(test_R37_room_counts_command_buffers_and_work_without_any)
{
    static const taken rows[] = {
        {"open", 1, 1, OPEN, .waits = false},
        {"sent", 1, 1, COMMITTED, .waits = false},
        {"held", 1, 1, COMMITTED, .waits = true},
        {"a marker", 1, 0, MARKER, .waits = false},
        {"the program's own", 1, 1, COMMITTED, .foreign = true},
        {"the program's own, open", 1, 1, OPEN, .waits = true, .foreign = true},
        {"the program's own, submitted", 2, 2, SUBMITTED, .foreign = true},
        {"a submission of two", 2, 2, SUBMITTED, .waits = false},
        {"without buffers", 1, 0, SUBMITTED, .waits = true, .signals = true},
        {"without buffers, ON_GPU", 1, 0, SUBMITTED, .waits = true, .signals = true, .flags = GPUSYNC_SUBMIT_ON_GPU},
        {"the host waits and signals", 1, 1, SUBMITTED, .waits = true, .signals = true},
        {"the GPU waits", 2, 1, SUBMITTED, .waits = true, .flags = GPUSYNC_SUBMIT_ON_GPU},
        {"the GPU waits, UNORDERED", 2, 1, SUBMITTED, .waits = true,
         .flags = GPUSYNC_SUBMIT_ON_GPU | GPUSYNC_SUBMIT_UNORDERED},
        {"the GPU signals", 1, 1, SUBMITTED, .signals = true, .flags = GPUSYNC_SUBMIT_ON_GPU},
    };
    for (size_t i = 0; i < 2 * LENGTH(rows); i++) {
        const taken *row = &rows[i / 2];
        gpusync_queue_desc desc = {.max_command_buffer_count = ROOM};
        stage s;
        stage_open(&s, &(stage_desc){.timelines = 2, .no_queue = true});
        desc.metal_queue = i % 2 ? metal_queue_new(s.metal_device, ROOM + 1) : NULL;
        s.q[0] = queue_from(s.device, &desc);
        s.metal[0] = i % 2 ? desc.metal_queue : metal_retain(gpusync_queue_metal(s.q[0]));
        assert_int_equal(room_of(s.q[0]), ROOM);
        take_places(&s, row);
        unsigned room = room_of(s.q[0]);
        if (room != ROOM - row->places) fail_msg("%s: room for %u of %u is left", row->name, room, ROOM);
        signal_value(s.t[0], 1);
        finish_all(&s);
        if (row->way != OPEN) assert_int_equal(room_of(s.q[0]), ROOM);
        stage_close(&s);
    }
}

on_stage(test_R10_the_default_is_63)
{
    assert_int_equal(room_of(s->q[0]), 63);
}

enum { BY_HANDLER, BY_LOOK, BY_CALL, BY_DISCARD, BY_CANCEL, BY_CALLS };

/* What brings a place back. A call with a timeout of 0 looks once, so it finds work that has ended itself. */
on_stage_with(test_R10_a_place_comes_back_at_the_end, .timelines = 1, FULL)
{
    for (unsigned by = BY_HANDLER; by < BY_CALLS; by++) {
        void *buffer = new_buffer(s->q[0]), *last = NULL;
        while (has_room(s->q[0])) last = new_buffer(s->q[0]);
        if (by == BY_CANCEL) encode_wait(s->q[0], buffer, at(s->t[0], by + 1));
        if (by != BY_DISCARD) commit(s->q[0], buffer);
        assert_false(has_room(s->q[0]));
        if (by == BY_HANDLER) softmetal_finish(buffer);
        if (by == BY_LOOK || by == BY_CALL) softmetal_complete(buffer);
        if (by == BY_LOOK) assert_ok(gpusync_poll(s->q[0], GPUSYNC_EVERYTHING, NULL));
        if (by == BY_DISCARD) assert_ok(gpusync_command_buffer_discard(s->q[0], buffer));
        if (by == BY_CANCEL) assert_ok(gpusync_queue_cancel_held(s->q[0], GPUSYNC_EVERYTHING));
        assert_true(has_room(s->q[0]));
        finish_all(s);
        assert_ok(gpusync_command_buffer_discard(s->q[0], last));
        while (room_of(s->q[0]) < ROOM) {
            void *left = softmetal_last_buffer(s->metal[0]);
            assert_non_null(left);
            assert_ok(gpusync_command_buffer_discard(s->q[0], left));
        }
    }
}

/* A limit of billions does not wrap around to a few. */
on_stage(test_R10_a_huge_limit_is_no_small_one)
{
    static const uint32_t limits[] = {UINT32_MAX, UINT32_MAX / 3 + 1, UINT32_MAX / 2, UINT32_MAX / 8 + 1};
    for (unsigned i = 0; i < LENGTH(limits); i++) {
        gpusync_queue_desc desc = {.max_command_buffer_count = limits[i]};
        gpusync_queue *queue = queue_from(s->device, &desc);
        assert_int_equal(room_of(queue), 64); /* as many as it tries */
        assert_ok(gpusync_queue_destroy(queue));
    }
}

static void *queue_of_handler;
static bool room_in_handler;

static void see_room(void *user, gpusync_result result, const gpusync_error *error)
{
    room_in_handler = has_room((gpusync_queue *)queue_of_handler);
}

/* A program that makes its next buffer when it is told of the end of the last finds room. */
on_stage_with(test_R10_the_place_is_there_when_a_callback_runs, FULL,
              .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    void *buffer = new_buffer(s->q[0]);
    while (has_room(s->q[0])) (void)new_buffer(s->q[0]);
    queue_of_handler = s->q[0];
    room_in_handler = false;
    assert_ok(gpusync_on_done(ticket_at(s->q[0], commit(s->q[0], buffer)), see_room, NULL));
    softmetal_finish(buffer);
    run_callbacks(s);
    assert_true(room_in_handler);
}

/* The program's own buffers never wait, and are counted. */
on_stage_with(test_R10_buffers_of_the_program_may_exceed_the_limit, .timelines = 2, FULL)
{
    for (unsigned i = 0; i < 2 * ROOM; i++) take_places(s, &(taken){"own", 1, 1, COMMITTED, .foreign = true});
    assert_int_equal(gpusync_in_flight(s->q[0]), 2 * ROOM);
    assert_int_equal(kit_now().parks, 0);
    for (unsigned i = 0; i < 2 * ROOM; i++) {
        assert_int_equal(has_room(s->q[0]), 2 * ROOM - i < ROOM);
        assert_true(finish_next(s->q[0]));
    }
    assert_int_equal(room_of(s->q[0]), ROOM);
}

static gpusync_result marker_of(void *queue)
{
    return gpusync_commit_marker((gpusync_queue *)queue, NULL, NULL);
}

/* Metal counts the buffers that other code has made and not committed: gpusync does not know them. Here a call does not
   return before Metal has a place, whatever its limit, nor does a marker behind them. */
on_stage_with(test_R10_foreign_buffers_that_fill_the_queue_block_in_metal, .real = true)
{
    own_queue(s, 2, 4);
    for (unsigned marker = 0; marker < 2; marker++) {
        void *foreign[2] = {foreign_buffer(s->q[1]), foreign_buffer(s->q[1])};
        job call = {0};
        if (marker) job_call(&call, marker_of, s->q[1]);
        else job_buffer(&call, s->q[1], 0);
        assert_true(softmetal_await_blocked(s->metal[1], 1, SECONDS(60)));
        assert_false(job_is_over(&call));
        metal_release(foreign[0]);
        assert_ok(job_end(&call));
        if (!marker) assert_ok(gpusync_command_buffer_discard(s->q[1], call.buffer));
        metal_release(foreign[1]);
    }
    assert_ok(gpusync_wait(s->q[1], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL));
}

enum { BUSY = 300 };

typedef struct busy {
    gpusync_queue *queue;
    gpusync_timeline *mine, *others;
    uint64_t value;
} busy;

/* Each thread signals a timeline of its own, and waits on the GPU for that of its neighbour now and then. */
static void *keep_busy(void *argument)
{
    busy *b = (busy *)argument;
    for (unsigned i = 0; i < BUSY / SLOW; i++) {
        gpusync_ticket ticket;
        gpusync_result result;
        uint64_t reached = 0;
        void *buffer;
        must(!gpusync_command_buffer_create(b->queue, NULL, GPUSYNC_FOREVER, &buffer), "no room");
        must(!gpusync_timeline_query(b->others, &reached, NULL), "a timeline has failed");
        do {
            if (i % 3 == 0) result = gpusync_commit_marker(b->queue, NULL, NULL);
            else if (i % 3 == 1) result = TRY_SUBMIT(b->queue, NULL, .label = "empty");
            else result = GPUSYNC_OK;
            must(!result || result == GPUSYNC_ERROR_QUEUE_FULL, "a marker or a barrier is refused");
            result = TRY_SUBMIT(b->queue, &ticket, WAITS(at(b->others, reached)), BUFFERS(buffer),
                                SIGNALS(at(b->mine, b->value + 1)), .flags = GPUSYNC_SUBMIT_ON_GPU);
            must(!result || result == GPUSYNC_ERROR_QUEUE_FULL, "a submission is refused");
        } while (result);
        b->value++;
        if (i % 8 == 0) must(!gpusync_wait(b->queue, ticket, GPUSYNC_FOREVER, NULL), "work fails");
    }
    return NULL;
}

/* Metal ends the program where it would block. */
on_stage_with(test_R10_gpusyncs_calls_never_block_in_metal, .real = true, .threads = true, .timelines = 4,
              .queue = {.max_command_buffer_count = 8})
{
    busy b[4];
    pthread_t threads[4];
    own_queue(s, 9, 8);
    set_quirks(.full_queue_aborts = true);
    for (unsigned i = 0; i < 4; i++) b[i] = (busy){s->q[i % 2], s->t[i], s->t[(i + 2) % 4], 0};
    for (unsigned i = 0; i < 4; i++) threads[i] = start(keep_busy, &b[i]);
    for (unsigned i = 0; i < 4; i++) join(threads[i]);
    for (unsigned i = 0; i < 2; i++) assert_ok(gpusync_wait(s->q[i], GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL));
    for (unsigned i = 0; i < 4; i++) assert_int_equal(value_of(s->t[i]), BUSY / SLOW);
    assert_int_equal(softmetal_blocked(s->metal[0]) + softmetal_blocked(s->metal[1]), 0);
}

static stage *refilled;

/* Metal counts a command buffer until its handler returns, gpusync until it begins: the log is called in between. */
static void submit_in_the_handler(void *user, gpusync_log_level level, const char *text)
{
    stage *s = refilled;
    SUBMIT(s->q[0], WAITS(at(s->t[0], 1)), BUFFERS(new_buffer(s->q[0])), SIGNALS(at(s->t[1], 1)),
           .flags = GPUSYNC_SUBMIT_ON_GPU);
}

on_stage_with(test_R10_in_a_handler_there_is_a_place_in_metal_for_all_of_a_submission, .timelines = 2,
              .queue = {.max_command_buffer_count = 2}, .device = {.log = submit_in_the_handler})
{
    refilled = s;
    commit_failing(s->q[0], SOFTMETAL_PAGE_FAULT);
    assert_true(finish_next(s->q[0]));
    signal_value(s->t[0], 1);
    finish_all(s);
    assert_int_equal(value_of(s->t[1]), 1);
}
