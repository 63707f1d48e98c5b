/* stage.h - what a test plays on: a device, queues and timelines; and few words for work, submissions and callbacks

   A test program includes this (after probe.h where it needs that), and is done with set-up. With one queue, or with several and four timelines:

       rig r; rig_open(&r, SOFTMETAL_MANUAL); ... rig_close(&r);
       stage s; open_stage(&s, SOFTMETAL_MANUAL, 2); ... close_stage(&s); */
#ifndef STAGE_H
#define STAGE_H

#include "support.h"

/* -- a queue of a kind ---------------------------------------------------------------------------------------- */

typedef enum queue_kind {
    QUEUE_OF_GPUSYNC,     /* gpusync makes the queue of Metal's */
    QUEUE_OF_THE_PROGRAM, /* the program made it: desc.metal_queue, or one with room for 8 more than gpusync counts */
    QUEUE_OF_METAL4,      /* gpusync makes a queue of Metal 4 */
    QUEUE_KINDS
} queue_kind;

/* A test program that says "also runs on queues of Metal 4" in its first comment runs a second time, with QUEUES=metal4.
   Then QUEUE_OF_GPUSYNC means those. The words below make, fill, commit and submit the command buffers of either kind.
   What makes no sense there says so first in the test, and why. */
static MAYBE_UNUSED bool metal4_run(void)
{
    const char *queues = getenv("QUEUES");
    return queues && strcmp(queues, "metal4") == 0;
}

#define NOT_ON_METAL4(why)                  \
    do {                                    \
        if (!metal4_run()) break;           \
        printf("not on Metal 4: " why "\n"); \
        skip();                             \
    } while (0)

/* Without a message: tests count those. */
extern void *stage__class_of(void *object) METAL__ASM("object_getClass");
extern signed char stage__class_responds(void *cls, void *selector) METAL__ASM("class_respondsToSelector");

static MAYBE_UNUSED bool answers(void *object, const char *selector)
{
    return stage__class_responds(stage__class_of(object), metal__sel(selector)) != 0;
}

static MAYBE_UNUSED bool is_metal4(gpusync_queue *queue) { return answers(gpusync_queue_metal(queue), "commit:count:"); }

/* The one place where a test has a queue made. (Others ask how that fails, or cannot use cmocka.) desc may be NULL. */
static MAYBE_UNUSED gpusync_queue *queue_of_kind(queue_kind kind, gpusync_device *device, const gpusync_queue_desc *desc)
{
    gpusync_queue *queue = NULL;
    gpusync_queue_desc with;
    void *made = NULL;
    memset(&with, 0, sizeof with);
    if (desc) with = *desc;
    if (kind == QUEUE_OF_THE_PROGRAM && !with.metal_queue) {
        unsigned long room = with.max_command_buffer_count ? with.max_command_buffer_count : 64;
        with.metal_queue = made = metal_queue_new(gpusync_device_metal(device), room + 8);
    }
    if (kind == QUEUE_OF_METAL4 || (kind == QUEUE_OF_GPUSYNC && !with.metal_queue && metal4_run())) with.metal4 = true;
    assert_ok(gpusync_queue_create(device, &with, &queue));
    if (made) metal_release(made);
    return queue;
}

static MAYBE_UNUSED gpusync_queue *queue_new(gpusync_device *device)
{
    return queue_of_kind(QUEUE_OF_GPUSYNC, device, NULL);
}

/* -- command buffers of Metal 4 ----------------------------------------------------------------------------------- */

/* Metal keeps neither them nor their allocators alive: these stay until rig_close. */
typedef struct recording {
    void *buffer, *allocator;
    bool open; /* begun, not ended */
} recording;
static MAYBE_UNUSED recording *recordings;
static MAYBE_UNUSED size_t recording_count, recording_places;
static MAYBE_UNUSED pthread_mutex_t recordings_lock = PTHREAD_MUTEX_INITIALIZER;

/* An open one, borrowed. NULL: Metal has none. */
static MAYBE_UNUSED void *record_for(gpusync_queue *queue, const char *label)
{
    void *metal = gpusync_queue_metal(queue), *pool = metal_pool_push(), *device = metal_get(metal, "device");
    recording made = {metal4_buffer_new(device), metal4_allocator_new(device), true};
    metal_pool_pop(pool);
    if (!made.buffer || !made.allocator) {
        metal_release(made.buffer);
        metal_release(made.allocator);
        return NULL;
    }
    if (label) metal_set_label(made.buffer, label);
    softmetal_prepare_run(made.buffer, metal);
    metal4_begin(made.buffer, made.allocator);
    pthread_mutex_lock(&recordings_lock);
    if (recording_count == recording_places) {
        recording_places = 2 * recording_places + 64;
        recordings = (recording *)realloc(recordings, recording_places * sizeof *recordings);
        must(recordings != NULL, "no memory for recordings");
    }
    recordings[recording_count++] = made;
    pthread_mutex_unlock(&recordings_lock);
    return made.buffer;
}

/* Before it is committed; once, or more often. Others than those above are left alone. */
static MAYBE_UNUSED void end_recording(void *buffer)
{
    size_t i;
    pthread_mutex_lock(&recordings_lock);
    for (i = recording_count; i--;)
        if (recordings[i].buffer == buffer) break;
    if (i != SIZE_MAX && recordings[i].open) {
        recordings[i].open = false;
        metal4_end(buffer);
    }
    pthread_mutex_unlock(&recordings_lock);
}

static MAYBE_UNUSED void drop_recordings(void)
{
    size_t i;
    for (i = 0; i < recording_count; i++) {
        if (recordings[i].open) metal4_end(recordings[i].buffer);
        metal_release(recordings[i].buffer);
        metal_release(recordings[i].allocator);
    }
    free(recordings);
    recordings = NULL;
    recording_count = recording_places = 0;
}

/* gpusync_command_buffer, gpusync_commit and gpusync_submit, for either kind of queue. */
static MAYBE_UNUSED gpusync_result either_buffer(gpusync_queue *queue, const gpusync_command_buffer_desc *desc,
                                               void **buffer)
{
    if (!is_metal4(queue)) return gpusync_command_buffer(queue, desc, buffer);
    *buffer = record_for(queue, desc ? desc->label : NULL);
    return *buffer ? GPUSYNC_OK : GPUSYNC_ERROR_METAL_NIL;
}

static MAYBE_UNUSED gpusync_result either_commit(gpusync_queue *queue, void *buffer, gpusync_ticket *ticket)
{
    if (!is_metal4(queue)) return gpusync_commit(queue, buffer, ticket);
    end_recording(buffer);
    return gpusync_commit4(queue, &buffer, 1, ticket);
}

static MAYBE_UNUSED gpusync_result either_submit(gpusync_queue *queue, const gpusync_submission *submission,
                                                  gpusync_ticket *ticket)
{
    size_t i;
    if (is_metal4(queue))
        for (i = 0; i < submission->command_buffer_count; i++) end_recording(submission->command_buffers[i]);
    return gpusync_submit(queue, submission, ticket);
}

/* A buffer that will not be committed. */
static MAYBE_UNUSED gpusync_result either_discard(gpusync_queue *queue, void *buffer)
{
    if (!is_metal4(queue)) return gpusync_command_buffer_discard(queue, buffer);
    end_recording(buffer);
    return GPUSYNC_OK;
}

/* MTLCommandBufferStatus; with Metal 4 that of the run. */
static MAYBE_UNUSED unsigned long status_of(void *buffer)
{
    return metal_status(answers(buffer, "status") ? buffer : softmetal_run_of(buffer));
}

/* For hooks at messages. Is it the commit of this buffer, at SOFTMETAL_AFTER? (With Metal 4: or a later commit.) */
static MAYBE_UNUSED bool commits(void *object, const char *selector, void *buffer)
{
    if (answers(buffer, "status")) return object == buffer && strcmp(selector, "commit") == 0;
    return strcmp(selector, "commit:count:options:") == 0 && status_of(buffer) >= 2;
}

/* ... Is this what a handler asks how the work has ended: the buffer, or a feedback of Metal 4? */
static MAYBE_UNUSED bool is_asked_by_handlers(void *object, void *buffer)
{
    return object == buffer || (answers(object, "GPUEndTime") && !answers(object, "status"));
}

/* -- a device with one queue ------------------------------------------------------------------------------------ */

typedef struct rig {
    memory_log memory;
    gpusync_allocator allocator;
    gpusync_device *device;
    gpusync_queue *queue;
    void *metal_device, *metal_queue; /* borrowed */
} rig;

/* With what a test has filled in. */
static MAYBE_UNUSED void rig_open_on(rig *r, softmetal_clock clock, queue_kind kind, gpusync_device_desc device_desc,
                                     gpusync_queue_desc queue_desc)
{
    memset(r, 0, sizeof *r);
    softmetal_reset();
    softmetal_set_clock(clock);
    r->allocator.allocate = memory_allocate;
    r->allocator.release = memory_release;
    r->allocator.user = &r->memory;
    device_desc.allocator = &r->allocator;
    assert_ok(gpusync_device_create(&device_desc, &r->device));
    r->queue = queue_of_kind(kind, r->device, &queue_desc);
    r->metal_device = gpusync_device_metal(r->device);
    r->metal_queue = gpusync_queue_metal(r->queue);
}

static MAYBE_UNUSED void rig_open_with(rig *r, softmetal_clock clock, gpusync_device_desc device_desc,
                                       gpusync_queue_desc queue_desc)
{
    rig_open_on(r, clock, QUEUE_OF_GPUSYNC, device_desc, queue_desc);
}

static MAYBE_UNUSED void rig_open(rig *r, softmetal_clock clock)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    rig_open_with(r, clock, device_desc, queue_desc);
}

/* A queue of Metal 4 may signal after the feedback of its work, and a queue that is destroyed more than 100 ms before
   that is kept for good: see drop_what_stays. So the signals come first, also on a slow machine. */
static MAYBE_UNUSED void await_signals(void)
{
    if (softmetal_live("queue4")) assert_true(softmetal_settle(SECONDS(20)));
}

/* All memory given back, no Metal object of the program left. */
static MAYBE_UNUSED void assert_all_given_back(const memory_log *memory)
{
    assert_int_equal(memory->live, 0);
    assert_true(softmetal_settle(SECONDS(10)));
    drop_recordings();
    assert_int_equal(softmetal_live("queue4"), 0);
    assert_int_equal(softmetal_live("run"), 0);
    assert_int_equal(softmetal_live("queue_operation"), 0);
    assert_int_equal(softmetal_live("commit_options"), 0);
    assert_int_equal(softmetal_live("command_buffer4"), 0);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    assert_int_equal(softmetal_live("queue"), 0);
    assert_int_equal(softmetal_live("block"), 0);
    assert_int_equal(softmetal_live("error"), 0);
}

/* Everything destroyed. */
static MAYBE_UNUSED void rig_close(rig *r)
{
    if (r->queue) await_signals();
    if (r->queue) assert_ok(gpusync_queue_destroy(r->queue));
    assert_ok(gpusync_device_destroy(r->device));
    assert_all_given_back(&r->memory);
}

/* Waits are for the handler, and do not spin. hooks may be NULL. */
static MAYBE_UNUSED void rig_open_hooked(rig *r, softmetal_clock clock, const gpusync_hooks *hooks, uint32_t size)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = hooks;
    device_desc.spin = &no_spin;
    queue_desc.max_command_buffer_count = size;
    rig_open_with(r, clock, device_desc, queue_desc);
}

static MAYBE_UNUSED gpusync_queue_desc queue_desc_of(uint32_t limit, uint32_t log_count)
{
    gpusync_queue_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.max_command_buffer_count = limit;
    desc.error_log_count = log_count;
    return desc;
}

/* Waits do not spin. hooks may be NULL. */
static MAYBE_UNUSED void rig_open_sleepy(rig *r, softmetal_clock clock, const gpusync_hooks *hooks,
                                         gpusync_queue_desc queue_desc)
{
    gpusync_device_desc device_desc;
    memset(&device_desc, 0, sizeof device_desc);
    device_desc.hooks = hooks;
    device_desc.spin = &no_spin;
    rig_open_with(r, clock, device_desc, queue_desc);
}

/* -- timelines ------------------------------------------------------------------------------------------------- */

/* A timeline over an event that others signal too. desc may be NULL. */
static MAYBE_UNUSED gpusync_result timeline_import(gpusync_device *device, void *event,
                                                   const gpusync_timeline_desc *desc, gpusync_timeline **out)
{
    gpusync_timeline_desc with;
    memset(&with, 0, sizeof with);
    if (desc) with = *desc;
    with.shared_event = event;
    return gpusync_timeline_create(device, &with, out);
}

static MAYBE_UNUSED gpusync_timeline *timeline_new(gpusync_device *device)
{
    gpusync_timeline *timeline = NULL;
    assert_ok(gpusync_timeline_create(device, NULL, &timeline));
    assert_non_null(timeline);
    return timeline;
}

static MAYBE_UNUSED gpusync_timeline *timeline_named(gpusync_device *device, const char *label)
{
    gpusync_timeline *timeline = NULL;
    gpusync_timeline_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.label = label;
    assert_ok(gpusync_timeline_create(device, &desc, &timeline));
    return timeline;
}

static MAYBE_UNUSED gpusync_timeline *timeline_at(gpusync_device *device, uint64_t initial)
{
    gpusync_timeline *timeline = NULL;
    gpusync_timeline_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.initial_value = initial;
    assert_ok(gpusync_timeline_create(device, &desc, &timeline));
    assert_non_null(timeline);
    return timeline;
}

/* Over an event of the test's, which it is to release: others signal it too. */
static MAYBE_UNUSED gpusync_timeline *timeline_over(gpusync_device *device, void **event)
{
    gpusync_timeline *timeline = NULL;
    *event = metal_shared_event_new(gpusync_device_metal(device));
    assert_non_null(*event);
    assert_ok(timeline_import(device, *event, NULL, &timeline));
    return timeline;
}

static MAYBE_UNUSED uint64_t value_of(gpusync_timeline *timeline)
{
    uint64_t value = 99;
    assert_ok(gpusync_timeline_query(timeline, &value));
    return value;
}

/* -- several queues, and timelines --------------------------------------------------------------------------- */

#define STAGE_QUEUES 4u
#define STAGE_TIMELINES 4u

typedef struct stage {
    rig rig; /* the device, the first queue's Metal queue; the queue itself is q[0] alone */
    softmetal_clock clock;
    gpusync_device *device;
    gpusync_queue *q[STAGE_QUEUES]; /* NULL: there is none, or the test has destroyed it */
    void *metal[STAGE_QUEUES];      /* their Metal queues */
    union {
        gpusync_timeline *t[STAGE_TIMELINES]; /* at 0 */
        struct {
            gpusync_timeline *a, *b, *c, *d;
        };
    };
} stage;

/* With what a test has filled in; the queues are all of this kind. Labels: first, second, ...; a, b, c, d. */
static MAYBE_UNUSED void open_stage_on(stage *s, softmetal_clock clock, queue_kind kind, unsigned queues,
                                       gpusync_device_desc device_desc, gpusync_queue_desc queue_desc)
{
    static const char *const queue_labels[STAGE_QUEUES] = {"first", "second", "third", "fourth"};
    static const char *const timeline_labels[STAGE_TIMELINES] = {"a", "b", "c", "d"};
    unsigned i;
    memset(s, 0, sizeof *s);
    queue_desc.label = queue_labels[0];
    rig_open_on(&s->rig, clock, kind, device_desc, queue_desc);
    s->clock = clock;
    s->device = s->rig.device;
    s->q[0] = s->rig.queue;
    s->rig.queue = NULL;
    for (i = 1; i < queues; i++) {
        queue_desc.label = queue_labels[i];
        s->q[i] = queue_of_kind(kind, s->device, &queue_desc);
    }
    for (i = 0; i < queues; i++) s->metal[i] = gpusync_queue_metal(s->q[i]);
    for (i = 0; i < STAGE_TIMELINES; i++) s->t[i] = timeline_named(s->device, timeline_labels[i]);
}

/* Queues with room for so many command buffers (0: the default). */
static MAYBE_UNUSED void open_stage_with(stage *s, softmetal_clock clock, unsigned queues, uint32_t max_buffers)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = max_buffers;
    open_stage_on(s, clock, QUEUE_OF_GPUSYNC, queues, device_desc, queue_desc);
}

static MAYBE_UNUSED void open_stage(stage *s, softmetal_clock clock, unsigned queues)
{
    open_stage_with(s, clock, queues, 0);
}

/* On the manual clock nothing may be in flight. */
static MAYBE_UNUSED void close_idle_stage(stage *s)
{
    unsigned i;
    softmetal_set_message_hook(NULL, NULL);
    await_signals();
    for (i = 0; i < STAGE_QUEUES; i++) assert_ok(gpusync_queue_destroy(s->q[i]));
    for (i = 0; i < STAGE_TIMELINES; i++) assert_ok(gpusync_timeline_destroy(s->t[i]));
    rig_close(&s->rig);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("listener"), 0);
    assert_int_equal(softmetal_live("buffer"), 0);
}

static MAYBE_UNUSED void finish_queue(gpusync_queue *queue) { softmetal_finish_queue(gpusync_queue_metal(queue)); }

/* Sentinels that are in flight end first. */
static MAYBE_UNUSED void close_queue(stage *s, unsigned i)
{
    if (s->clock == SOFTMETAL_MANUAL) softmetal_finish_queue(s->metal[i]);
    assert_ok(gpusync_queue_destroy(s->q[i]));
    s->q[i] = NULL;
}

static MAYBE_UNUSED void close_stage(stage *s)
{
    unsigned i;
    softmetal_set_message_hook(NULL, NULL);
    if (s->clock == SOFTMETAL_REAL) await_signals();
    for (i = 0; i < STAGE_QUEUES; i++)
        if (s->q[i]) close_queue(s, i);
    close_idle_stage(s);
}

/* The timeline is made anew, with an event of its own that other code signals, too. */
static MAYBE_UNUSED void share_timeline(stage *s, unsigned i)
{
    gpusync_timeline_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.signalled_by_others = true;
    assert_ok(gpusync_timeline_destroy(s->t[i]));
    assert_ok(gpusync_timeline_create(s->device, &desc, &s->t[i]));
}

/* Other code, which gpusync does not know, raises the event. */
static MAYBE_UNUSED void raise_behind_its_back(gpusync_timeline *timeline, uint64_t value)
{
    uint64_t base;
    void *event = gpusync_timeline_metal(timeline, &base);
    metal_event_signal(event, value + base);
}

/* In the middle of a test. */
static MAYBE_UNUSED void take_down_timeline(stage *s, unsigned i)
{
    assert_ok(gpusync_timeline_destroy(s->t[i]));
    s->t[i] = NULL;
}

static MAYBE_UNUSED void take_down_queue(stage *s, unsigned i, bool now)
{
    assert_ok(now ? gpusync_queue_destroy_now(s->q[i]) : gpusync_queue_destroy(s->q[i]));
    s->q[i] = NULL;
}

/* What is still on the device ends unheard. */
static MAYBE_UNUSED void orphan_queue(stage *s, unsigned i)
{
    void *metal = metal_retain(s->metal[i]);
    take_down_queue(s, i, true);
    softmetal_finish_queue(metal);
    metal_release(metal);
}

/* Metal 4: a queue that is destroyed while it has a submission with waits or signals in flight is kept for good. The
   test, which knows that all is over, gives back the queue, and the event that it was asked for, which it has
   signalled last. */
static MAYBE_UNUSED void drop_queue_that_stays(void *metal)
{
    if (metal4_run()) metal_release(softmetal_last_signalled(metal));
    if (metal4_run()) metal_release(metal);
}

/* The same for the event of each wait and signal of such a submission. */
static MAYBE_UNUSED void drop_what_stays(void *event)
{
    if (metal4_run()) metal_release(event);
}

static MAYBE_UNUSED void finish(stage *s, unsigned i)
{
    softmetal_finish_queue(s->metal[i]);
    assert_true(softmetal_dispatched(SECONDS(20))); /* which tells of what was committed elsewhere */
}

/* -- command buffers ------------------------------------------------------------------------------------------- */

/* A command buffer with these waits at its head. On an error *buffer is NULL. */
static MAYBE_UNUSED gpusync_result make_behind(gpusync_queue *queue, const gpusync_command_buffer_desc *desc,
                                               const gpusync_point *waits, size_t count, void **buffer)
{
    gpusync_result result = either_buffer(queue, desc, buffer);
    size_t i;
    for (i = 0; i < count && result == GPUSYNC_OK; i++) result = gpusync_encode_wait(queue, *buffer, waits[i]);
    if (result == GPUSYNC_OK || !*buffer) return result;
    assert_ok(either_discard(queue, *buffer));
    *buffer = NULL;
    return result;
}

/* ... with this wait (NULL: none), which the test keeps alive. */
static MAYBE_UNUSED void *buffer_behind(gpusync_queue *queue, const gpusync_point *wait)
{
    void *buffer = NULL;
    assert_ok(make_behind(queue, NULL, wait, wait != NULL, &buffer));
    return metal_retain(buffer);
}

static MAYBE_UNUSED void *kept_buffer_of(gpusync_queue *queue) { return buffer_behind(queue, NULL); }

static MAYBE_UNUSED void *kept_buffer_after(gpusync_queue *queue, gpusync_point wait)
{
    return buffer_behind(queue, &wait);
}

/* One that gpusync has not made; +1. With Metal 4 it makes none. */
static MAYBE_UNUSED void *their_buffer(gpusync_queue *queue)
{
    return is_metal4(queue) ? kept_buffer_of(queue) : metal_queue_command_buffer(gpusync_queue_metal(queue));
}

/* An empty one of gpusync_command_buffer, borrowed until it is committed. */
static MAYBE_UNUSED void *buffer_of(gpusync_queue *queue)
{
    void *buffer = NULL;
    assert_ok(either_buffer(queue, NULL, &buffer));
    assert_non_null(buffer);
    return buffer;
}

static MAYBE_UNUSED void *open_buffer(rig *r) { return buffer_of(r->queue); }

static MAYBE_UNUSED gpusync_ticket commit_to(gpusync_queue *queue, void *buffer)
{
    gpusync_ticket ticket = 0;
    assert_ok(either_commit(queue, buffer, &ticket));
    return ticket;
}

/* An empty one, committed. *buffer (may be NULL) is borrowed: alive until its handler has run. */
static MAYBE_UNUSED gpusync_ticket commit_empty_to(gpusync_queue *queue, void **buffer)
{
    void *made = buffer_of(queue);
    if (buffer) *buffer = made;
    return commit_to(queue, made);
}

static MAYBE_UNUSED gpusync_ticket commit_empty(rig *r, void **buffer) { return commit_empty_to(r->queue, buffer); }

/* A committed command buffer that runs for this long (real clock). */
static MAYBE_UNUSED gpusync_ticket commit_lasting(rig *r, uint64_t ns)
{
    gpusync_ticket ticket = 0;
    void *made = open_buffer(r);
    softmetal_set_duration(made, ns);
    assert_ok(either_commit(r->queue, made, &ticket));
    return ticket;
}

/* One of the program's own, tracked and not committed; +1. */
static MAYBE_UNUSED gpusync_ticket track_a_buffer(rig *r, void **buffer)
{
    gpusync_ticket ticket;
    *buffer = metal_queue_command_buffer(r->metal_queue);
    assert_ok(gpusync_track(r->queue, *buffer, &ticket));
    return ticket;
}

typedef struct wish {
    const char *label;
    bool unretained_references;
    const gpusync_point *waits;
    size_t wait_count;
} wish;

#define OPEN(queue, ...) open_at(queue, &(wish){__VA_ARGS__}, __FILE__, __LINE__)
static MAYBE_UNUSED void *open_at(gpusync_queue *queue, const wish *w, const char *file, int line)
{
    gpusync_command_buffer_desc desc = {.label = w->label, .unretained_references = w->unretained_references};
    void *buffer = NULL;
    assert_result_at(make_behind(queue, &desc, w->waits, w->wait_count, &buffer), GPUSYNC_OK, "make_behind", file, line);
    return buffer;
}

static MAYBE_UNUSED void *open_on(stage *s, unsigned i) { return OPEN(s->q[i], .label = "work"); }

static MAYBE_UNUSED gpusync_ticket commit_on(stage *s, unsigned i) { return commit_to(s->q[i], open_on(s, i)); }

/* For copies and fills. Metal 4 has one kind of encoder. */
static MAYBE_UNUSED void *encoder_of(void *buffer)
{
    return answers(buffer, "blitCommandEncoder") ? metal_blit_begin(buffer) : metal_compute_begin(buffer);
}

static MAYBE_UNUSED void fill(void *buffer, void *memory, size_t offset, unsigned char byte)
{
    void *blit = encoder_of(buffer);
    metal_fill(blit, memory, offset, 1, byte);
    metal_end(blit);
}

static MAYBE_UNUSED void copy(void *buffer, void *from, size_t from_offset, void *to, size_t to_offset)
{
    void *blit = encoder_of(buffer);
    metal_copy(blit, from, from_offset, to, to_offset, 1);
    metal_end(blit);
}

static MAYBE_UNUSED void *memory_of(stage *s, size_t length)
{
    void *memory = metal_buffer_new(s->rig.metal_device, length);
    assert_non_null(memory);
    memset(metal_contents(memory), 0, length);
    return memory;
}

/* Metal orders nothing by what is written to it. */
static MAYBE_UNUSED void *untracked_memory(stage *s, size_t length)
{
    const unsigned long untracked = 256; /* MTLResourceHazardTrackingModeUntracked */
    void *memory = METAL__AS(void *, unsigned long, unsigned long)(
        s->rig.metal_device, metal__sel("newBufferWithLength:options:"), (unsigned long)length, untracked);
    assert_non_null(memory);
    memset(metal_contents(memory), 0, length);
    return memory;
}

static MAYBE_UNUSED unsigned char *bytes_of(void *memory) { return (unsigned char *)metal_contents(memory); }

/* -- saying what to submit ------------------------------------------------------------------------------------- */

static MAYBE_UNUSED gpusync_point at(gpusync_timeline *timeline, uint64_t value)
{
    return gpusync_at_value(timeline, value);
}

static MAYBE_UNUSED gpusync_point after(gpusync_queue *queue, gpusync_ticket ticket)
{
    return gpusync_at_ticket(queue, ticket);
}

#define LIST(type, ...) ((type[]){__VA_ARGS__})
#define LENGTH_OF_LIST(type, ...) (sizeof LIST(type, __VA_ARGS__) / sizeof(type))
#define WAITS(...) .waits = LIST(gpusync_point, __VA_ARGS__), .wait_count = LENGTH_OF_LIST(gpusync_point, __VA_ARGS__)
#define SIGNALS(...) \
    .signals = LIST(gpusync_point, __VA_ARGS__), .signal_count = LENGTH_OF_LIST(gpusync_point, __VA_ARGS__)
#define BUFFERS(...) \
    .command_buffers = LIST(void *const, __VA_ARGS__), .command_buffer_count = LENGTH_OF_LIST(void *const, __VA_ARGS__)

/* For a submission without command buffers. Metal 4 has none: an empty command buffer takes its place there. */
#define NO_WORK(queue)                                                                \
    .command_buffers = LIST(void *const, is_metal4(queue) ? buffer_of(queue) : NULL), \
    .command_buffer_count = is_metal4(queue) ? 1 : 0

/* A flag of submissions in tests: the signals are encoded at the end of the last command buffer, if there is one. With
   Metal 4 they are operations of the queue in any case. */
#define SIGNALS_INSIDE (1u << 16)

static MAYBE_UNUSED gpusync_result submit_as_told(gpusync_queue *queue, const gpusync_submission *submission,
                                                  gpusync_ticket *ticket)
{
    gpusync_submission s = *submission;
    size_t i;
    if (ticket) *ticket = GPUSYNC_NO_TICKET;
    if (s.flags & SIGNALS_INSIDE && s.command_buffer_count && !is_metal4(queue)) {
        for (i = 0; i < s.signal_count; i++) {
            gpusync_result result =
                gpusync_encode_signal(queue, s.command_buffers[s.command_buffer_count - 1], s.signals[i]);
            if (result != GPUSYNC_OK) return result;
        }
        s.signals = NULL;
        s.signal_count = 0;
    }
    s.flags &= ~SIGNALS_INSIDE;
    return either_submit(queue, &s, ticket);
}

#define SUBMIT(queue, ...) submit_at(queue, &(gpusync_submission){__VA_ARGS__}, __FILE__, __LINE__)
static MAYBE_UNUSED gpusync_ticket submit_at(gpusync_queue *queue, const gpusync_submission *submission, const char *file, int line)
{
    gpusync_ticket ticket = 0;
    assert_result_at(submit_as_told(queue, submission, &ticket), GPUSYNC_OK, "gpusync_submit", file, line);
    if (ticket == GPUSYNC_NO_TICKET) _fail(file, line);
    return ticket;
}

#define TRY_SUBMIT(queue, ticket, ...) submit_as_told(queue, &(gpusync_submission){__VA_ARGS__}, ticket)

#define REFUSED(expected, queue, ...) \
    refused_at(expected, queue, &(gpusync_submission){__VA_ARGS__}, __FILE__, __LINE__)
static MAYBE_UNUSED void refused_at(gpusync_result expected, gpusync_queue *queue, const gpusync_submission *submission,
                       const char *file, int line)
{
    gpusync_ticket ticket = 99;
    assert_result_at(submit_as_told(queue, submission, &ticket), expected, "gpusync_submit", file, line);
    if (ticket != GPUSYNC_NO_TICKET) _fail(file, line);
}

/* -- asking ---------------------------------------------------------------------------------------------------- */

enum { NOT_ENQUEUED, ENQUEUED, COMMITTED, SCHEDULED, COMPLETED };

static MAYBE_UNUSED uint64_t reached(gpusync_timeline *timeline, gpusync_result failure)
{
    uint64_t value = 99;
    assert_result(gpusync_timeline_query(timeline, &value), failure);
    return value;
}

static MAYBE_UNUSED uint64_t raw_of(gpusync_timeline *timeline)
{
    uint64_t base;
    void *event = gpusync_timeline_metal(timeline, &base);
    return metal_event_value(event) - base;
}

/* The error that a wait for the point fills: it has ended, and badly. */
static MAYBE_UNUSED gpusync_error error_of_point(gpusync_point point)
{
    gpusync_error error;
    gpusync_wait_options options;
    gpusync_result result;
    memset(&error, 0, sizeof error);
    memset(&options, 0, sizeof options);
    options.error = &error;
    if (point.timeline) result = gpusync_timeline_wait(point.timeline, point.value, 0, &options);
    else result = gpusync_wait_ex(point.queue, point.ticket, 0, &options);
    assert_true(result < 0);
    assert_int_equal(error.result, result);
    return error;
}

static MAYBE_UNUSED gpusync_error error_of(gpusync_queue *queue, gpusync_ticket ticket)
{
    return error_of_point(gpusync_at_ticket(queue, ticket));
}

static MAYBE_UNUSED gpusync_error error_at(gpusync_timeline *timeline, uint64_t value)
{
    return error_of_point(gpusync_at_value(timeline, value));
}

static MAYBE_UNUSED bool reports(gpusync_device *device, const char *words)
{
    char text[8192];
    assert_true(gpusync_report(device, text, sizeof text) < sizeof text);
    return strstr(text, words) != NULL;
}

/* Messages are counted where softmetal sees them; elsewhere every count is right. */
static MAYBE_UNUSED void assert_count(const char *selector, uint64_t before, uint64_t expected)
{
    assert_int_equal(softmetal_message_count(selector) - before, expected);
}

static MAYBE_UNUSED uint64_t made_so_far(void) { return softmetal_message_count("commandBuffer"); }
static MAYBE_UNUSED uint64_t waits_so_far(void) { return softmetal_message_count("encodeWaitForEvent:value:"); }

static MAYBE_UNUSED void await_status(void *buffer, unsigned long status)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    while (status_of(buffer) < status) {
        assert_true(gpusync_now_ns() < limit);
        sched_yield();
    }
}

/* The work ends where a poll can see it: in the status; with Metal 4, by the feedback. To be finished all the same. */
static MAYBE_UNUSED void show_end(void *buffer)
{
    if (answers(buffer, "blitCommandEncoder")) softmetal_complete(buffer);
    else softmetal_finish(buffer);
}

/* -- what a callback was told --------------------------------------------------------------------------------- */

typedef struct outcome {
    long calls, order; /* order: of all callbacks of the program, from 1 */
    gpusync_result result;
    gpusync_error error;
    bool has_error, nested, pooled;
    pthread_t thread;
    void (*then)(struct outcome *); /* what the callback does besides, with what the test has filled in: */
    stage *stage;
    gpusync_queue *queue;
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    void *buffer;
    struct outcome *next;
    gate *gate;
    gpusync_result answers[32];
    unsigned answered;
} outcome;

static MAYBE_UNUSED long outcomes_so_far;
static MAYBE_UNUSED __thread int in_outcomes;

static MAYBE_UNUSED void remember(void *user, gpusync_result result, const gpusync_error *error)
{
    outcome *o = (outcome *)user;
    PUT(&o->order, COUNT(&outcomes_so_far) + 1);
    o->nested = in_outcomes++ > 0;
    o->result = result;
    o->has_error = error != NULL;
    if (error) o->error = *error;
    o->thread = pthread_self();
    if (o->then) o->then(o);
    in_outcomes--;
    COUNT(&o->calls);
}

#define TELL(o) .on_complete = remember, .user = (o)

static MAYBE_UNUSED long calls_of(outcome *o) { return CALLED(o->calls); }
static MAYBE_UNUSED long calls_so_far(const outcome *o) { return GET(&o->calls); } /* while callbacks are held up */
static MAYBE_UNUSED bool ran_here(const outcome *o) { return pthread_equal(o->thread, pthread_self()) != 0; }

/* Callbacks follow a moment after the end that a wait has seen. */
static MAYBE_UNUSED void await_calls(outcome *o, long count)
{
    uint64_t limit = gpusync_now_ns() + SECONDS(20);
    while (calls_of(o) < count) {
        assert_true(gpusync_now_ns() < limit);
        sched_yield();
    }
}

static MAYBE_UNUSED void await_call(outcome *o) { await_calls(o, 1); }

/* Called once, with this result and the error that belongs to it. */
static MAYBE_UNUSED void assert_ended(outcome *o, gpusync_result result)
{
    await_call(o);
    assert_int_equal(calls_of(o), 1);
    assert_result(o->result, result);
    assert_int_equal(o->has_error, result != GPUSYNC_OK);
    if (o->has_error) assert_result(o->error.result, result);
}

/* -- work that fails ---------------------------------------------------------------------------------------------- */

/* Work on this queue that will fail in a way of its own, and signals the value. Killed work signals nothing. */
static MAYBE_UNUSED gpusync_ticket submit_failing(stage *s, unsigned i, gpusync_point signal)
{
    void *buffer = OPEN(s->q[i], .label = "the culprit");
    softmetal_fail(buffer, "TestDomain", 42, "it broke");
    return SUBMIT(s->q[i], BUFFERS(buffer), SIGNALS(signal), .flags = SIGNALS_INSIDE, .label = "submission");
}

/* It will take the device with it: DeviceRemoved, of the kind of its queue. */
static MAYBE_UNUSED void fail_with_the_device(void *buffer)
{
    softmetal_fail(buffer, NULL, answers(buffer, "status") ? 11 : 4, NULL);
}

static MAYBE_UNUSED void assert_original(const gpusync_error *error, const char *queue_label, gpusync_ticket ticket)
{
    assert_int_equal(error->result, GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(error->failure, GPUSYNC_FAILURE_OTHER);
    assert_int_equal(error->code, 42);
    assert_string_equal(error->domain, "TestDomain");
    assert_string_equal(error->message, "it broke");
    assert_string_equal(error->label, "the culprit");
    assert_string_equal(error->queue_label, queue_label);
    assert_int_equal(error->ticket, ticket);
}

/* A thread's body: the host fails the timeline. */
static MAYBE_UNUSED void *fail_with_code_77(void *timeline)
{
    gpusync_error reason;
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_EXECUTION;
    reason.code = 77;
    strcpy(reason.domain, "test");
    strcpy(reason.message, "the first link broke");
    assert_ok(gpusync_timeline_fail((gpusync_timeline *)timeline, &reason));
    return NULL;
}

/* -- work that others do ------------------------------------------------------------------------------------------ */

/* A timeline over an event that others know too. Waits for it go to the device at once: no work has to signal. */
typedef struct foreign_stage {
    stage stage;
    gpusync_timeline *timeline;
    void *event, *queue; /* a queue that gpusync has never heard of */
} foreign_stage;

static MAYBE_UNUSED void open_foreign(foreign_stage *f, softmetal_clock clock)
{
    open_stage(&f->stage, clock, 2);
    f->event = metal_shared_event_new(f->stage.rig.metal_device);
    f->queue = metal_queue_new(f->stage.rig.metal_device, 8);
    assert_ok(timeline_import(f->stage.device, f->event, NULL, &f->timeline));
}

static MAYBE_UNUSED void close_foreign(foreign_stage *f)
{
    assert_ok(gpusync_timeline_destroy(f->timeline));
    metal_release(f->event);
    metal_release(f->queue);
    close_stage(&f->stage);
}

/* Work of other code: writes a byte, then signals. */
static MAYBE_UNUSED void signal_abroad(foreign_stage *f, void *memory, unsigned char byte, uint64_t value)
{
    void *buffer = metal_queue_command_buffer(f->queue);
    if (memory) fill(buffer, memory, 0, byte);
    metal_encode_signal(buffer, f->event, value);
    metal_commit(buffer);
    if (f->stage.clock == SOFTMETAL_MANUAL) softmetal_finish(buffer);
    metal_release(buffer);
}

/* -- tickets of every kind ----------------------------------------------------------------------------------------- */

enum { PLAIN_COMMIT, SUBMISSION, BARRIER, TRACKED, TICKET_KINDS };

/* A ticket of this kind on the queue; the buffer that has to be finished for it. */
static MAYBE_UNUSED gpusync_ticket ticket_of(stage *s, unsigned i, int kind, bool fails)
{
    gpusync_ticket ticket = 0;
    void *buffer = kind == TRACKED   ? metal_queue_command_buffer(s->metal[i])
                   : kind != BARRIER ? open_on(s, i)
                                     : NULL;
    if (buffer && fails) softmetal_fail(buffer, "TestDomain", 42, "it broke");
    if (kind == PLAIN_COMMIT) {
        ticket = commit_to(s->q[i], buffer);
    } else if (kind == SUBMISSION) {
        ticket = SUBMIT(s->q[i], BUFFERS(buffer));
    } else if (kind == BARRIER) {
        if (fails) softmetal_fail_next(1, 42);
        ticket = SUBMIT(s->q[i], SIGNALS(at(s->b, value_of(s->b) + 1)));
    } else {
        assert_ok(gpusync_track(s->q[i], buffer, &ticket));
        metal_commit(buffer);
        metal_release(buffer);
    }
    return ticket;
}

/* -- work that is held --------------------------------------------------------------------------------------------- */

/* A submission that waits for a value which no work is to signal, with one command buffer. */
static MAYBE_UNUSED gpusync_ticket hold_on(gpusync_queue *queue, gpusync_timeline *timeline, uint64_t number, outcome *e)
{
    return SUBMIT(queue, WAITS(at(timeline, number)), BUFFERS(buffer_of(queue)), .on_complete = e ? remember : NULL,
                  .user = e);
}

/* As the report says. */
static MAYBE_UNUSED unsigned held_on(gpusync_device *device, gpusync_queue *queue)
{
    char label[32], name[40], *text = report_of(device), *line, *rest;
    bool of_the_queue = false;
    unsigned count = 0;
    void *pool = metal_pool_push();
    metal_string_copy(metal_get(gpusync_queue_metal(queue), "label"), label, sizeof label);
    metal_pool_pop(pool);
    snprintf(name, sizeof name, "'%s'", label);
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "  queue ", 8) == 0) of_the_queue = strstr(line, name) != NULL;
        else if (of_the_queue && strstr(line, ": held for ")) count++;
    }
    free(text);
    return count;
}

/* -- an audience that waits to be let in --------------------------------------------------------------------------- */

/* So many that more than two holds of the queue's lock are needed to tell all of them. A queue with this room may hold
   as many. */
#define AUDIENCE 40u
#define AUDIENCE_ROOM 64u

typedef struct guest {
    struct audience *audience;
    void *buffer; /* NULL: not let in yet */
    bool gone;
    pthread_t thread;
} guest;

/* Threads that wait for a command buffer each, while a held submission has all the room that they need. To cancel that
   gives it back at once. */
typedef struct audience {
    gpusync_hooks hooks;
    gpusync_queue *queue;
    guest guests[AUDIENCE];
    unsigned asleep, woken, in;
    bool one_by_one;                 /* the next guest is woken only when the last woken one is in */
    void (*between)(void *argument); /* runs once, when the next one is about to be woken; NULL: nothing does */
    void *argument;
} audience;

static MAYBE_UNUSED void audience_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    audience *a = (audience *)user;
    COUNT(&a->asleep);
    thread_park(waiter, deadline_ns);
}

static MAYBE_UNUSED void audience_unpark(void *user, gpusync_waiter *waiter)
{
    audience *a = (audience *)user;
    unsigned woken = COUNT(&a->woken) + 1;
    void (*between)(void *) = __atomic_exchange_n(&a->between, NULL, __ATOMIC_SEQ_CST);
    if (between) between(a->argument);
    thread_unpark(waiter);
    while (GET(&a->one_by_one) && GET(&a->in) < woken) sched_yield();
}

/* A stage where the first queue has room for an audience, and for so many more command buffers: open ones, which stay,
   take the rest. Callbacks are by hand. Not of Metal 4: there a submission has room for one, whatever it commits. */
static MAYBE_UNUSED void open_stage_for(audience *a, stage *s, unsigned queues, uint32_t more)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    uint32_t i;
    memset(a, 0, sizeof *a);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    a->hooks.park = audience_park;
    a->hooks.unpark = audience_unpark;
    a->hooks.user = a;
    device_desc.hooks = &a->hooks;
    device_desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    device_desc.spin = &no_spin;
    queue_desc.max_command_buffer_count = AUDIENCE_ROOM;
    open_stage_on(s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, queues, device_desc, queue_desc);
    a->queue = s->q[0];
    for (i = AUDIENCE + more; i < AUDIENCE_ROOM; i++) (void)buffer_of(a->queue);
}

static MAYBE_UNUSED void *wait_to_be_let_in(void *argument)
{
    guest *g = (guest *)argument;
    const uint64_t limit = SECONDS(60);
    gpusync_command_buffer_desc desc;
    void *buffer = NULL;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = &limit;
    must(gpusync_command_buffer(g->audience->queue, &desc, &buffer) == GPUSYNC_OK, "a guest was not let in");
    PUT(&g->buffer, buffer);
    COUNT(&g->audience->in);
    return NULL;
}

/* The first queue has no more room than they need. When this returns they sleep. */
static MAYBE_UNUSED void keep_out(audience *a, stage *s)
{
    void *buffers[AUDIENCE - 1]; /* gpusync makes one more, for the wait */
    unsigned i;
    for (i = 0; i < LENGTH(buffers); i++) buffers[i] = buffer_of(a->queue);
    SUBMIT(a->queue, WAITS(at(s->d, 1)), .command_buffers = buffers, .command_buffer_count = LENGTH(buffers));
    for (i = 0; i < AUDIENCE; i++) {
        a->guests[i].audience = a;
        a->guests[i].thread = start(wait_to_be_let_in, &a->guests[i]);
    }
    while (GET(&a->asleep) < AUDIENCE) sched_yield();
}

/* Each guest that is in gives the room back, and so lets in those that are not. */
static MAYBE_UNUSED void send_home(audience *a)
{
    unsigned left = AUDIENCE, i;
    PUT(&a->one_by_one, false);
    for (i = 0; left; i = (i + 1) % AUDIENCE) {
        guest *g = &a->guests[i];
        if (g->gone) continue;
        if (!GET(&g->buffer)) {
            sched_yield();
            continue;
        }
        join(g->thread);
        assert_ok(gpusync_command_buffer_discard(a->queue, g->buffer));
        g->gone = true;
        left--;
    }
}

/* -- what was committed --------------------------------------------------------------------------------------------- */

/* The command buffers of `commit` messages, in their order; with Metal 4 their runs. */
typedef struct commit_log {
    void *buffers[64];
    unsigned count;
} commit_log;

/* The one that is not in the log yet. */
static MAYBE_UNUSED void *run_just_committed(const commit_log *log, void *metal_queue)
{
    unsigned i, k;
    void *run;
    for (k = 0; (run = softmetal_buffer_at(metal_queue, k)) != NULL; k++) {
        for (i = 0; i < log->count && log->buffers[i] != run; i++) {}
        if (i == log->count && metal_status(run) >= COMMITTED) break;
    }
    return run;
}

static MAYBE_UNUSED void log_commits(void *user, softmetal_phase phase, void *object, const char *selector)
{
    commit_log *log = (commit_log *)user;
    if (phase != SOFTMETAL_AFTER) return;
    if (strcmp(selector, "commit:count:options:") == 0) object = run_just_committed(log, object);
    else if (strcmp(selector, "commit") != 0) return;
    assert_true(log->count < 64);
    log->buffers[log->count++] = object;
}

/* Those of them that the test knows, in their order. */
static MAYBE_UNUSED void assert_commits(const commit_log *log, void *const *buffers, unsigned count)
{
    unsigned i, k, at = 0;
    for (i = 0; i < log->count; i++)
        for (k = 0; k < count; k++)
            if (log->buffers[i] == (metal4_run() ? softmetal_run_of(buffers[k]) : buffers[k]))
                assert_int_equal(k, at++);
    assert_int_equal(at, count);
}

/* -- callbacks ------------------------------------------------------------------------------------------------------ */

static MAYBE_UNUSED struct {
    long count; /* calls of the notify hook */
    pthread_t thread;
} notified;

static MAYBE_UNUSED void note_due(void *user)
{
    (void)user;
    PUT(&notified.thread, pthread_self());
    COUNT(&notified.count);
}

/* callback_queue: a dispatch queue of the program's, or NULL. */
static MAYBE_UNUSED void open_stage_over(stage *s, softmetal_clock clock, gpusync_callback_mode mode, void *callback_queue)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&notified, 0, sizeof notified);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.callback_mode = mode;
    device_desc.callback_queue = callback_queue;
    device_desc.notify = note_due;
    open_stage_on(s, clock, QUEUE_OF_GPUSYNC, 2, device_desc, queue_desc);
}

static MAYBE_UNUSED void open_callback_stage(stage *s, softmetal_clock clock, gpusync_callback_mode mode)
{
    open_stage_over(s, clock, mode, NULL);
}

/* Everything that is committed to the first two queues ends. */
static MAYBE_UNUSED void finish_stage(stage *s)
{
    if (s->q[0]) softmetal_finish_queue(s->metal[0]);
    if (s->q[1]) softmetal_finish_queue(s->metal[1]);
    if (s->q[0]) softmetal_finish_queue(s->metal[0]); /* what that has added */
}

/* ... and what is due by hand is done. */
static MAYBE_UNUSED void settle(stage *s)
{
    size_t n;
    assert_true(softmetal_dispatched(SECONDS(20))); /* callbacks may commit more */
    finish_stage(s);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_ok(gpusync_dispatch(s->device, SIZE_MAX, &n));
}

static MAYBE_UNUSED gpusync_ticket submit_well(gpusync_queue *queue, const gpusync_submission *submission)
{
    gpusync_ticket ticket = 0;
    assert_ok(either_submit(queue, submission, &ticket));
    return ticket;
}

/* A submission of a command buffer (none where it is NULL) between one wait and one signal (none where NULL). */
static MAYBE_UNUSED gpusync_ticket submit_between(gpusync_queue *queue, const gpusync_point *wait, void *buffer,
                                                  const gpusync_point *signal)
{
    gpusync_submission submission;
    memset(&submission, 0, sizeof submission);
    submission.waits = wait;
    submission.wait_count = wait != NULL;
    submission.command_buffers = &buffer;
    submission.command_buffer_count = buffer != NULL;
    submission.signals = signal;
    submission.signal_count = signal != NULL;
    return submit_well(queue, &submission);
}

/* No work is to signal the value 1: it is held. */
static MAYBE_UNUSED gpusync_ticket submit_held(stage *s, gpusync_queue *queue)
{
    gpusync_point wait = at(s->t[0], 1);
    return submit_between(queue, &wait, buffer_of(queue), NULL);
}

static MAYBE_UNUSED void answer(outcome *o, gpusync_result result)
{
    must(o->answered < LENGTH(o->answers), "too many answers");
    o->answers[o->answered++] = result;
}

static MAYBE_UNUSED void on_done(gpusync_queue *queue, gpusync_ticket ticket, outcome *o)
{
    assert_ok(gpusync_on_done(gpusync_at_ticket(queue, ticket), remember, o));
}

static MAYBE_UNUSED void on_value(gpusync_timeline *timeline, uint64_t value, outcome *o)
{
    assert_ok(gpusync_on_done(gpusync_at_value(timeline, value), remember, o));
}

/* They have run once each, in this order. */
static MAYBE_UNUSED void assert_in_order(outcome *o, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) assert_int_equal(calls_of(&o[i]), 1);
    for (i = 1; i < count; i++) assert_true(o[i - 1].order < o[i].order);
}

/* -- the tables in gpusync.h --------------------------------------------------------------------------------------- */

#define TABLE_MOST 10 /* rows or columns */

typedef struct table {
    char names[TABLE_MOST][32]; /* of the columns */
    char rows[TABLE_MOST][32];
    char cells[TABLE_MOST][TABLE_MOST][32];
    unsigned columns, row_count;
} table;

/* The words of a line, which two spaces or more part; how many there are. */
static MAYBE_UNUSED unsigned split(const char *line, char (*words)[32], unsigned most)
{
    unsigned count = 0;
    while (*line == ' ') line++;
    while (*line && *line != '\n' && count < most) {
        const char *end = strstr(line, "  ");
        size_t length = end ? (size_t)(end - line) : strlen(line) - 1; /* without the line's end */
        size_t kept = length < sizeof words[0] ? length : sizeof words[0] - 1; /* lines of other text */
        memcpy(words[count], line, kept);
        words[count++][kept] = '\0';
        line += length;
        while (*line == ' ') line++;
    }
    return count;
}

/* The table with this word above its rows (NULL: none), and this name of the first column. It ends at an empty line. */
static MAYBE_UNUSED void read_table(const char *corner, const char *first, table *t)
{
    char line[256], words[TABLE_MOST + 1][32];
    FILE *header = fopen("gpusync.h", "r");
    bool found = false;
    assert_non_null(header);
    memset(t, 0, sizeof *t);
    while (fgets(line, sizeof line, header)) {
        unsigned count = split(line, words, TABLE_MOST + 1), at = corner != NULL;
        if (found && count == 0) {
            if (t->row_count) break; /* else the empty line below the names */
        } else if (found) {
            assert_int_equal(count, t->columns + 1);
            assert_true(t->row_count < TABLE_MOST);
            memcpy(t->rows[t->row_count], words[0], sizeof words[0]);
            memcpy(t->cells[t->row_count++], words[1], sizeof t->cells[0]);
        } else if (count > at + 1 && count - at <= TABLE_MOST && strcmp(words[at], first) == 0 &&
                   (!corner || strcmp(words[0], corner) == 0)) {
            found = true;
            t->columns = count - at;
            memcpy(t->names, words[at], t->columns * sizeof words[0]);
        }
    }
    fclose(header);
    assert_true(found && t->row_count > 1);
}

/* -- a stack on which a call for each link of a chain would have no room ---------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SMALL_STACK 262144u
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SMALL_STACK 262144u
#endif
#endif
#ifndef SMALL_STACK
#define SMALL_STACK 65536u
#endif

static MAYBE_UNUSED void on_small_stack(void *(*body)(void *), void *argument)
{
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, SMALL_STACK), 0);
    assert_int_equal(pthread_create(&thread, &attributes, body, argument), 0);
    join(thread);
    pthread_attr_destroy(&attributes);
}

#endif
