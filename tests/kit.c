/* kit.c - the bodies of kit.h */
#include "kit.h"

#include <time.h>

/* No step of a test takes so long: a thread that waits for one says what is missing, and ends the program. */
#define PATIENCE SECONDS(60)

/* -- assertions --------------------------------------------------------------------------------------------------- */

void assert_result_at(gpusync_result got, gpusync_result expected, const char *call, const char *file, int line)
{
    if (got == expected) return;
    print_error("%s: %d (%s), expected %d (%s)\n", call, got, gpusync_result_string(got), expected,
                gpusync_result_string(expected));
    _fail(file, line);
}

void must(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

#define HEAD 32u /* keeps the alignment of malloc */
#define TAIL 16u
#define LIVING UINT64_C(0x6770757379636E21)
#define FREED UINT64_C(0x6465616462656566)

typedef struct block_head {
    uint64_t state;
    size_t size;
} block_head;

static struct {
    long live, bytes, calls, refusals;
    long fail_at;
    void (*program)(void);
    bool later;
} memory;

/* Counts fail_at down in one step: with `later` no other thread finds a 0 in between, and gets memory. */
static bool call_fails(void)
{
    long now = GET(&memory.fail_at);
    long next;
    do {
        if (now == 0) return false;
        next = now == 1 && GET(&memory.later) ? 1 : now - 1;
    } while (!__atomic_compare_exchange_n(&memory.fail_at, &now, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return now == 1;
}

void *kit_malloc(size_t size)
{
    void (*program)(void) = GET(&memory.program);
    COUNT(&memory.calls);
    if (program) program();
    if (call_fails()) {
        COUNT(&memory.refusals);
        return NULL;
    }
    must(size > 0 && size < SIZE_MAX / 2, "GPUSYNC_MALLOC is asked for no memory, or for too much");
    block_head *head = (block_head *)malloc(HEAD + size + TAIL);
    must(head != NULL, "no memory");
    head->state = LIVING;
    head->size = size;
    unsigned char *start_of = (unsigned char *)head + HEAD;
    memset(start_of, 0xA5, size);
    memset(start_of + size, 0x5C, TAIL);
    COUNT(&memory.live);
    __atomic_fetch_add(&memory.bytes, (long)size, __ATOMIC_SEQ_CST);
    return start_of;
}

void kit_free(void *pointer)
{
    if (!pointer) return;
    block_head *head = (block_head *)(void *)((unsigned char *)pointer - HEAD);
    must(head->state != FREED, "GPUSYNC_FREE gets a block a second time");
    must(head->state == LIVING, "GPUSYNC_FREE gets what GPUSYNC_MALLOC did not give");
    const unsigned char *tail = (const unsigned char *)pointer + head->size;
    for (size_t i = 0; i < TAIL; i++) must(tail[i] == 0x5C, "a block was written behind its end");
    head->state = FREED;
    __atomic_fetch_sub(&memory.live, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&memory.bytes, (long)head->size, __ATOMIC_SEQ_CST);
    memset(pointer, 0xDD, head->size);
    free(head);
}

void memory_fail(long n, bool later)
{
    PUT(&memory.fail_at, 0);
    PUT(&memory.later, later);
    PUT(&memory.fail_at, n);
}

void memory_calls(void (*function)(void)) { PUT(&memory.program, function); }

/* -- threads ------------------------------------------------------------------------------------------------------ */

static long threads; /* started, and not joined */

pthread_t start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, argument), 0);
    COUNT(&threads);
    return thread;
}

void join(pthread_t thread)
{
    assert_int_equal(pthread_join(thread, NULL), 0);
    __atomic_fetch_sub(&threads, 1, __ATOMIC_SEQ_CST);
}

void gate_init(gate *g, unsigned size)
{
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->open, NULL);
    g->size = size;
}

void gate_wait(gate *g)
{
    pthread_mutex_lock(&g->lock);
    unsigned round = g->rounds;
    g->inside++;
    if (++g->arrived == g->size) {
        g->arrived = 0;
        g->rounds++;
        pthread_cond_broadcast(&g->open);
    }
    while (round == g->rounds) pthread_cond_wait(&g->open, &g->lock);
    if (--g->inside == 0) pthread_cond_broadcast(&g->open); /* gate_destroy */
    pthread_mutex_unlock(&g->lock);
}

/* The others may not have left yet, and a thread of softmetal's is not joined. */
void gate_destroy(gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (g->inside) pthread_cond_wait(&g->open, &g->lock);
    pthread_mutex_unlock(&g->lock);
    pthread_cond_destroy(&g->open);
    pthread_mutex_destroy(&g->lock);
}

static void *job_thread(void *argument)
{
    job *j = (job *)argument;
    switch (j->kind) {
    case JOB_WAIT: j->result = gpusync_wait(j->queue, j->ticket, j->timeout_ns, &j->options); break;
    case JOB_VALUE: j->result = gpusync_timeline_wait(j->timeline, j->value, j->timeout_ns, &j->options); break;
    case JOB_MANY:
        j->result = gpusync_wait_many(j->points, j->count, j->how, j->timeout_ns, &j->options, &j->which);
        break;
    case JOB_DEVICE: j->result = gpusync_device_wait(j->device, j->timeout_ns, &j->options); break;
    case JOB_BUFFER: j->result = gpusync_command_buffer_create(j->queue, NULL, j->timeout_ns, &j->buffer); break;
    case JOB_CALL: j->result = j->call(j->argument); break;
    }
    PUT(&j->over, true);
    return NULL;
}

static void job_start(job *j, job_kind kind, uint64_t timeout_ns)
{
    if (!j->options.error) j->options.error = &j->error;
    memset(&j->error, 0, sizeof j->error);
    PUT(&j->over, false);
    j->kind = kind;
    j->timeout_ns = timeout_ns;
    j->thread = start(job_thread, j);
}

void job_wait(job *j, gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns)
{
    j->queue = queue;
    j->ticket = ticket;
    job_start(j, JOB_WAIT, timeout_ns);
}

void job_value(job *j, gpusync_timeline *timeline, uint64_t value, uint64_t timeout_ns)
{
    j->timeline = timeline;
    j->value = value;
    job_start(j, JOB_VALUE, timeout_ns);
}

void job_many(job *j, const gpusync_point *points, size_t count, gpusync_wait_for how, uint64_t timeout_ns)
{
    j->points = points;
    j->count = count;
    j->how = how;
    job_start(j, JOB_MANY, timeout_ns);
}

void job_device(job *j, gpusync_device *device, uint64_t timeout_ns)
{
    j->device = device;
    job_start(j, JOB_DEVICE, timeout_ns);
}

void job_buffer(job *j, gpusync_queue *queue, uint64_t timeout_ns)
{
    j->queue = queue;
    job_start(j, JOB_BUFFER, timeout_ns);
}

void job_call(job *j, gpusync_result (*call)(void *), void *argument)
{
    j->call = call;
    j->argument = argument;
    job_start(j, JOB_CALL, 0);
}

static gpusync_result destroy_queue(void *queue)
{
    return gpusync_queue_destroy((gpusync_queue *)queue);
}

void job_destroy(job *j, gpusync_queue *queue)
{
    job_call(j, destroy_queue, queue);
}

bool job_is_over(const job *j)
{
    return GET(&j->over);
}

gpusync_result job_end(job *j)
{
    join(j->thread);
    return j->result;
}

/* -- threads that sleep ------------------------------------------------------------------------------------------- */

const gpusync_spin no_spin = {0, 0, 0};

/* scheduler_data: [0] a permit is there, [1] the thread sleeps and counts as parked. */
static struct {
    pthread_once_t made;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned parked, rounds;
    unsigned long parks, unparks, yields;
    uint64_t deadline;
} bed = {.made = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

/* Its deadlines are times of the machine's monotonic clock. */
static void make_bed(void)
{
#ifdef __APPLE__
    pthread_cond_init(&bed.changed, NULL);
#else
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&bed.changed, &attributes);
    pthread_condattr_destroy(&attributes);
#endif
}

static void lock_bed(void)
{
    pthread_once(&bed.made, make_bed);
    pthread_mutex_lock(&bed.lock);
}

static uint64_t now_ns(void)
{
#ifdef __APPLE__
    return clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return SECONDS(now.tv_sec) + (uint64_t)now.tv_nsec;
#endif
}

/* With the lock: until something changes, or the deadline. False: it is past. */
static bool sleep_until(uint64_t deadline_ns)
{
    uint64_t now = now_ns();
    struct timespec when;
    if (now >= deadline_ns) return false;
#ifdef __APPLE__
    deadline_ns -= now;
#endif
    when.tv_sec = (time_t)(deadline_ns / 1000000000u);
    when.tv_nsec = (long)(deadline_ns % 1000000000u);
#ifdef __APPLE__
    pthread_cond_timedwait_relative_np(&bed.changed, &bed.lock, &when);
#else
    pthread_cond_timedwait(&bed.changed, &bed.lock, &when);
#endif
    return true;
}

/* With the lock. */
static void is_up(gpusync_waiter *waiter)
{
    if (waiter->scheduler_data[1]) bed.parked--;
    waiter->scheduler_data[1] = NULL;
}

void kit_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    lock_bed();
    bed.parks++;
    bed.deadline = deadline_ns;
    if (!waiter->scheduler_data[0]) {
        waiter->scheduler_data[1] = waiter;
        bed.parked++;
    }
    pthread_cond_broadcast(&bed.changed);
    unsigned round = bed.rounds;
    while (!waiter->scheduler_data[0] && round == bed.rounds && sleep_until(deadline_ns)) {}
    is_up(waiter);
    waiter->scheduler_data[0] = NULL;
    pthread_mutex_unlock(&bed.lock);
}

void kit_unpark(void *user, gpusync_waiter *waiter)
{
    lock_bed();
    bed.unparks++;
    waiter->scheduler_data[0] = waiter;
    is_up(waiter);
    pthread_cond_broadcast(&bed.changed);
    pthread_mutex_unlock(&bed.lock);
}

void kit_yield(void *user)
{
    COUNT(&bed.yields);
    sched_yield();
}

const gpusync_hooks kit_hooks = {kit_yield, kit_park, kit_unpark, NULL};

/* Brief parks are for what another thread is about to do: no unpark follows. */
static void park_without_slices(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    kit_park(user, waiter, deadline_ns > gpusync_now_ns() + MS(2) ? UINT64_MAX / 4 : deadline_ns);
}

const gpusync_hooks without_slices = {kit_yield, park_without_slices, kit_unpark, NULL};

void await_parked(unsigned n)
{
    uint64_t limit = now_ns() + PATIENCE;
    lock_bed();
    while (bed.parked < n) must(sleep_until(limit), "await_parked: too few threads sleep");
    pthread_mutex_unlock(&bed.lock);
}

void await_parks(unsigned long n)
{
    uint64_t limit = now_ns() + PATIENCE;
    lock_bed();
    while (bed.parks < n) must(sleep_until(limit), "await_parks: park was called too seldom");
    pthread_mutex_unlock(&bed.lock);
}

void end_parks(void)
{
    lock_bed();
    bed.rounds++;
    pthread_cond_broadcast(&bed.changed);
    pthread_mutex_unlock(&bed.lock);
}

/* -- what gpusync calls ------------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    unsigned count;
    gpusync_log_level level[64];
    char line[64][512];
} lines = {.lock = PTHREAD_MUTEX_INITIALIZER};

void kit_log(void *user, gpusync_log_level level, const char *text)
{
    pthread_mutex_lock(&lines.lock);
    must(strchr(text, '\n') == NULL, "a line of the log has a newline in it");
    if (lines.count < LENGTH(lines.line)) {
        lines.level[lines.count] = level;
        snprintf(lines.line[lines.count], sizeof lines.line[0], "%s", text);
    }
    lines.count++;
    pthread_mutex_unlock(&lines.lock);
}

bool log_has(gpusync_log_level level, const char *part)
{
    bool found = false;
    pthread_mutex_lock(&lines.lock);
    for (unsigned i = 0; i < lines.count && i < LENGTH(lines.line); i++)
        if (lines.level[i] == level && strstr(lines.line[i], part)) found = true;
    pthread_mutex_unlock(&lines.lock);
    return found;
}

static unsigned long notify_calls;

void kit_notify(void *user)
{
    COUNT(&notify_calls);
}

static unsigned last_order;

void remember(void *user, gpusync_result result, const gpusync_error *error)
{
    note *n = (note *)user;
    must((error != NULL) == (result != GPUSYNC_OK), "a callback gets an error with OK, or none with a failure");
    n->result = result;
    n->has_error = error != NULL;
    if (error) n->error = *error;
    n->thread = pthread_self();
    n->order = COUNT(&last_order) + 1;
    COUNT(&n->calls);
}

void remember_destroyed(void *user)
{
    remember(user, GPUSYNC_OK, NULL);
}

void on_done(gpusync_point point, note *n)
{
    assert_ok(gpusync_on_done(point, remember, n));
}

unsigned calls_of(note *n)
{
    assert_true(softmetal_dispatched(PATIENCE));
    return GET(&n->calls);
}

void assert_noted_at(note *n, gpusync_result result, const char *file, int line)
{
    unsigned calls = calls_of(n);
    if (calls != 1) {
        print_error("a callback was called %u times\n", calls);
        _fail(file, line);
    }
    assert_result_at(n->result, result, "a callback's result", file, line);
}

void assert_in_order(note *notes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(calls_of(&notes[i]), 1);
        if (i) assert_true(notes[i - 1].order < notes[i].order);
    }
}

kit_counts kit_now(void)
{
    kit_counts now;
    memset(&now, 0, sizeof now);
    now.blocks = GET(&memory.live);
    now.bytes = GET(&memory.bytes);
    now.allocations = GET(&memory.calls);
    now.refusals = GET(&memory.refusals);
    lock_bed();
    now.parked = bed.parked;
    now.parks = bed.parks;
    now.unparks = bed.unparks;
    now.park_deadline = bed.deadline;
    pthread_mutex_unlock(&bed.lock);
    now.yields = GET(&bed.yields);
    pthread_mutex_lock(&lines.lock);
    now.log_lines = lines.count;
    pthread_mutex_unlock(&lines.lock);
    now.notifies = GET(&notify_calls);
    return now;
}

/* -- command buffers of Metal 4 ------------------------------------------------------------------------------------ */

#define MOST_POINTS 8u

/* One that new_buffer made. It is recorded anew for each mark: so it has ended whenever the test commits it. */
typedef struct recording {
    struct recording *next;
    void *buffer, *allocator;
    void *leader; /* the first of its submission, which has the run */
    unsigned waits, signals, marks;
    gpusync_point wait[MOST_POINTS], signal[MOST_POINTS];
    void *number[MOST_POINTS], *table[MOST_POINTS];
} recording;

static pthread_mutex_t recordings_lock = PTHREAD_MUTEX_INITIALIZER;
static recording *recordings; /* the newest first */

extern void *class_of(void *object) METAL__ASM("object_getClass");
extern signed char class_responds(void *cls, void *selector) METAL__ASM("class_respondsToSelector");

/* No message: a test may count them. */
bool is_metal4(gpusync_queue *queue)
{
    return class_responds(class_of(gpusync_queue_metal(queue)), metal__sel("commit:count:options:"));
}

/* NULL: it is none of Metal 4, or the test's own. */
static recording *recording_of(const void *buffer)
{
    recording *r = __atomic_load_n(&recordings, __ATOMIC_SEQ_CST);
    while (r && r->buffer != buffer) r = r->next;
    return r;
}

static void *new_recording(gpusync_queue *queue, const char *label)
{
    recording *r = (recording *)calloc(1, sizeof *r);
    void *metal = gpusync_queue_metal(queue);
    void *device = metal_get(metal, "device");
    must(r != NULL, "no memory");
    r->buffer = metal4_buffer_new(device);
    r->allocator = metal4_allocator_new(device);
    must(r->buffer && r->allocator, "Metal has no command buffer, or no allocator");
    if (label) metal_set_label(r->buffer, label);
    metal4_begin(r->buffer, r->allocator);
    metal4_end(r->buffer);
    softmetal_prepare_run(r->buffer, metal);
    pthread_mutex_lock(&recordings_lock);
    r->next = recordings;
    __atomic_store_n(&recordings, r, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&recordings_lock);
    return r->buffer;
}

/* No work of Metal's is left. */
static void drop_recordings(void)
{
    recording *r;
    while ((r = recordings) != NULL) {
        recordings = r->next;
        metal_release(r->buffer);
        metal_release(r->allocator);
        for (unsigned i = 0; i < r->marks; i++) {
            metal_release(r->table[i]);
            metal_release(r->number[i]);
        }
        free(r);
    }
}

/* Notes of which run the buffers are part. False: points were encoded into one of them, so it may not be submitted. */
static bool make_one_run(const gpusync_submission *s)
{
    bool pointed = false;
    if (!s->command_buffers || !__atomic_load_n(&recordings, __ATOMIC_SEQ_CST)) return true;
    for (size_t i = 0; i < s->command_buffer_count; i++) {
        recording *r = recording_of(s->command_buffers[i]);
        if (r) r->leader = s->command_buffers[0];
        if (r && r->waits + r->signals) pointed = true;
    }
    return !pointed;
}

gpusync_result submit_to(gpusync_queue *queue, const gpusync_submission *submission, gpusync_ticket *ticket)
{
    if (!make_one_run(submission)) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    return gpusync_submit(queue, submission, ticket);
}

/* -- marks -------------------------------------------------------------------------------------------------------- */

#define MOST_MARKS 65536u

static struct {
    void *pipeline; /* of the stage's device */
    unsigned count;
    uint32_t number[MOST_MARKS];
} noted;

static void note_mark(void *user, const softmetal_kernel_args *args)
{
    uint32_t number;
    unsigned i = COUNT(&noted.count);
    must(i < MOST_MARKS && args->buffers[0] != NULL, "too many marks, or one without its number");
    memcpy(&number, args->buffers[0], sizeof number);
    PUT(&noted.number[i], number);
}

static void encode_mark(void *buffer, void *table, uint32_t number);

static void record_mark(recording *r, uint32_t number)
{
    void *device = metal_get(r->allocator, "device");
    unsigned i = r->marks++;
    must(i < MOST_POINTS, "too many marks in a command buffer of Metal 4");
    r->number[i] = metal_buffer_new(device, sizeof number);
    memcpy(metal_contents(r->number[i]), &number, sizeof number);
    r->table[i] = metal4_table_new(device, 1);
    metal4_table_set(r->table[i], metal4_address(r->number[i]), 0);
    metal4_begin(r->buffer, r->allocator);
    for (i = 0; i < r->marks; i++) encode_mark(r->buffer, r->table[i], 0);
    metal4_end(r->buffer);
}

/* table: of Metal 4, where the number stands; NULL: in the command buffer. */
static void encode_mark(void *buffer, void *table, uint32_t number)
{
    const metal_size one = {1, 1, 1};
    void *compute = metal_compute_begin(buffer);
    metal_set_pipeline(compute, noted.pipeline);
    if (table) metal4_set_table(compute, table);
    else metal_set_bytes(compute, &number, sizeof number, 0);
    metal_dispatch(compute, one, one);
    metal_end(compute);
}

void mark(stage *s, void *buffer, uint32_t number)
{
    recording *r = recording_of(buffer);
    if (!noted.pipeline) noted.pipeline = metal_pipeline_new(s->metal_device, "kernel void mark()", "mark", NULL, 0);
    assert_non_null(noted.pipeline);
    if (r) record_mark(r, number);
    else encode_mark(buffer, NULL, number);
}

void *marked(stage *s, unsigned queue, uint32_t number)
{
    void *buffer = new_buffer(s->q[queue]);
    mark(s, buffer, number);
    return buffer;
}

unsigned marks(void)
{
    return GET(&noted.count);
}

uint32_t mark_at(unsigned i)
{
    assert_true(i < marks());
    return GET(&noted.number[i]);
}

void forget_marks(void)
{
    PUT(&noted.count, 0);
}

void assert_marks_at(const uint32_t *expected, unsigned count, const char *file, int line)
{
    bool good = marks() == count;
    for (unsigned i = 0; good && i < count; i++) good = mark_at(i) == expected[i];
    if (good) return;
    print_error("the GPU made the marks");
    for (unsigned i = 0; i < marks() && i < 32; i++) print_error(" %u", mark_at(i));
    print_error(", expected");
    for (unsigned i = 0; i < count && i < 32; i++) print_error(" %u", expected[i]);
    print_error("\n");
    _fail(file, line);
}

/* -- the stage ---------------------------------------------------------------------------------------------------- */

static void reset_counts(void)
{
    must(kit_now().blocks == 0, "gpusync has memory already as the stage is opened");
    memory_fail(0, false);
    PUT(&memory.calls, 0);
    PUT(&memory.refusals, 0);
    lock_bed();
    must(bed.parked == 0, "a thread sleeps already as the stage is opened");
    bed.parks = bed.unparks = 0;
    PUT(&bed.yields, 0);
    bed.deadline = 0;
    pthread_mutex_unlock(&bed.lock);
    pthread_mutex_lock(&lines.lock);
    lines.count = 0;
    pthread_mutex_unlock(&lines.lock);
    PUT(&notify_calls, 0);
    PUT(&last_order, 0);
    forget_marks();
}

static bool of_metal4; /* stages that are opened now */

void stage_open(stage *s, const stage_desc *desc)
{
    static const char *const queue_labels[STAGE_MOST] = {"first", "second", "third", "fourth"};
    static const char *const timeline_labels[STAGE_MOST] = {"a", "b", "c", "d"};
    unsigned queues = desc->no_queue ? 0 : desc->queues ? desc->queues : 1;
    gpusync_device_desc device = desc->device;
    gpusync_queue_desc queue = desc->queue;
    gpusync_timeline_desc timeline = desc->timeline;
    memset(s, 0, sizeof *s);
    softmetal_reset();
    softmetal_set_clock(desc->real ? SOFTMETAL_REAL : SOFTMETAL_MANUAL);
    softmetal_set_kernel("mark", note_mark, NULL, 0);
    reset_counts();
    s->real = desc->real;
    s->live = softmetal_live(NULL);
    s->pool = metal_pool_push();
    if (!device.hooks && !desc->threads) device.hooks = &kit_hooks;
    if (!device.spin && !desc->spins) device.spin = &no_spin;
    if (!device.log) device.log = kit_log;
    if (!device.notify && device.callback_mode == GPUSYNC_CALLBACKS_MANUAL) device.notify = kit_notify;
    assert_ok(gpusync_device_create(&device, &s->device));
    s->metal_device = metal_retain(gpusync_device_metal(s->device));
    for (unsigned i = 0; i < queues; i++) {
        queue.label = queue_labels[i];
        s->q[i] = queue_of_kind(desc->mixed ? i % 2 == 0 : of_metal4 || desc->metal4, s->device, &queue);
        s->metal[i] = metal_retain(gpusync_queue_metal(s->q[i]));
    }
    for (unsigned i = 0; i < desc->timelines; i++) {
        timeline.label = timeline_labels[i];
        assert_ok(gpusync_timeline_create(s->device, &timeline, &s->t[i]));
    }
}

static void tell_live(void)
{
    static const char *const kinds[] = {"device",   "queue", "command_buffer", "encoder",    "buffer",  "event",
                                        "shared_event", "listener", "library",  "function",   "pipeline", "error",
                                        "block",    "descriptor", "queue4",    "dispatch_queue", "run"};
    for (unsigned i = 0; i < LENGTH(kinds); i++)
        if (softmetal_live(kinds[i])) print_error("  %ld of kind %s\n", softmetal_live(kinds[i]), kinds[i]);
}

void stage_close(stage *s)
{
    memory_fail(0, false);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(GET(&threads), 0);
    if (!s->real) finish_all(s);
    for (unsigned i = 0; i < STAGE_MOST; i++) assert_ok(gpusync_queue_destroy(s->q[i]));
    for (unsigned i = 0; i < STAGE_MOST; i++) assert_ok(gpusync_timeline_destroy(s->t[i]));
    assert_true(softmetal_dispatched(PATIENCE)); /* what a destroy_later has left to do */
    assert_ok(gpusync_device_destroy(s->device));
    assert_true(softmetal_settle(PATIENCE));
    drop_recordings();
    metal_release(noted.pipeline);
    noted.pipeline = NULL;
    for (unsigned i = 0; i < STAGE_MOST; i++) metal_release(s->metal[i]);
    metal_release(s->metal_device);
    metal_pool_pop(s->pool);
    assert_int_equal(kit_now().parked, 0);
    if (softmetal_live(NULL) != s->live) tell_live();
    assert_int_equal(softmetal_live(NULL), s->live);
    assert_int_equal(kit_now().blocks, 0);
    memset(s, 0, sizeof *s);
}

int stage_set_up(void **state)
{
    const stage_desc *desc = (const stage_desc *)*state;
    stage *s = (stage *)malloc(sizeof *s);
    must(s != NULL, "no memory");
    stage_open(s, desc);
    *state = s;
    return 0;
}

int stage_tear_down(void **state)
{
    stage *s = stage_of(state);
    stage_close(s);
    free(s);
    *state = NULL;
    return 0;
}

int stages_are_metal4(void **state)
{
    of_metal4 = true;
    return 0;
}

int stages_are_legacy(void **state)
{
    of_metal4 = false;
    return 0;
}

/* -- work --------------------------------------------------------------------------------------------------------- */

void *named_buffer(gpusync_queue *queue, const char *label)
{
    void *buffer = NULL;
    if (is_metal4(queue)) return new_recording(queue, label);
    gpusync_command_buffer_desc desc = {.label = label};
    assert_ok(gpusync_command_buffer_create(queue, &desc, 0, &buffer));
    assert_non_null(buffer);
    return buffer;
}

void *new_buffer(gpusync_queue *queue)
{
    return named_buffer(queue, NULL);
}

void *foreign_buffer(gpusync_queue *queue)
{
    void *buffer = is_metal4(queue) ? metal_retain(new_buffer(queue))
                                    : metal_queue_command_buffer(gpusync_queue_metal(queue));
    assert_non_null(buffer);
    return buffer;
}

gpusync_ticket commit(gpusync_queue *queue, void *buffer)
{
    recording *r = recording_of(buffer);
    gpusync_ticket ticket = 0;
    if (r && r->waits + r->signals) {
        const gpusync_submission s = {.wait_points = r->wait, .wait_count = r->waits, .signal_points = r->signal,
                                      .signal_count = r->signals, BUFFERS(buffer), .flags = GPUSYNC_SUBMIT_ON_GPU};
        r->leader = buffer;
        assert_ok(gpusync_submit(queue, &s, &ticket));
        return ticket;
    }
    assert_ok(gpusync_commit(queue, buffer, &ticket));
    assert_true(ticket > 0);
    return ticket;
}

gpusync_ticket commit_new(gpusync_queue *queue)
{
    return commit(queue, new_buffer(queue));
}

gpusync_ticket commit_failing(gpusync_queue *queue, unsigned reason)
{
    void *buffer = new_buffer(queue);
    softmetal_fail_as(buffer, reason, NULL);
    return commit(queue, buffer);
}

void encode_wait(gpusync_queue *queue, void *buffer, gpusync_point point)
{
    recording *r = recording_of(buffer);
    must(!r || r->waits < MOST_POINTS, "too many waits in a command buffer of Metal 4");
    if (r) {
        r->wait[r->waits++] = point;
        return;
    }
    assert_ok(gpusync_encode_wait(queue, buffer, point));
}

void encode_signal(gpusync_queue *queue, void *buffer, gpusync_point point)
{
    recording *r = recording_of(buffer);
    must(!r || r->signals < MOST_POINTS, "too many signals in a command buffer of Metal 4");
    if (r) {
        r->signal[r->signals++] = point;
        return;
    }
    assert_ok(gpusync_encode_signal(queue, buffer, point));
}

gpusync_queue *queue_of_kind(bool metal4, gpusync_device *device, const gpusync_queue_desc *desc)
{
    gpusync_queue *queue = NULL;
    assert_ok((metal4 ? gpusync_metal4_queue_create : gpusync_queue_create)(device, desc, &queue));
    return queue;
}

gpusync_queue *queue_from(gpusync_device *device, const gpusync_queue_desc *desc)
{
    return queue_of_kind(false, device, desc);
}

gpusync_timeline *timeline_from(gpusync_device *device, const gpusync_timeline_desc *desc)
{
    gpusync_timeline *timeline = NULL;
    assert_ok(gpusync_timeline_create(device, desc, &timeline));
    return timeline;
}

gpusync_timeline *new_timeline(gpusync_device *device)
{
    return timeline_from(device, NULL);
}

void other_code_signals(gpusync_timeline *timeline, uint64_t value)
{
    uint64_t base = 0;
    void *event = gpusync_timeline_metal(timeline, &base);
    metal_event_signal(event, base + value);
}

void *signalling(gpusync_queue *queue, gpusync_point signal)
{
    void *buffer = new_buffer(queue);
    encode_signal(queue, buffer, signal);
    return buffer;
}

void *waiting(gpusync_queue *queue, gpusync_point wait)
{
    void *buffer = new_buffer(queue);
    encode_wait(queue, buffer, wait);
    return buffer;
}

void signal_value(gpusync_timeline *timeline, uint64_t value)
{
    assert_ok(gpusync_timeline_signal(timeline, value));
}

uint64_t value_of(gpusync_timeline *timeline)
{
    uint64_t value = UINT64_MAX;
    assert_ok(gpusync_timeline_query(timeline, &value, NULL));
    return value;
}

uint64_t shown(gpusync_timeline *timeline)
{
    uint64_t base = 0;
    void *event = gpusync_timeline_metal(timeline, &base);
    return metal_event_value(event) - base;
}

void fail_timeline(gpusync_timeline *timeline, gpusync_result result)
{
    assert_ok(gpusync_timeline_fail(timeline, &(const gpusync_error){.result = result}));
}

gpusync_ticket submit_at(gpusync_queue *queue, const gpusync_submission *submission, const char *file, int line)
{
    bool unordered = submission->flags & GPUSYNC_SUBMIT_UNORDERED;
    gpusync_ticket ticket = 0;
    gpusync_result result = submit_to(queue, submission, unordered ? NULL : &ticket);
    assert_result_at(result, GPUSYNC_OK, "gpusync_submit", file, line);
    if (ticket <= 0 && !unordered) _fail(file, line);
    return ticket;
}

bool is_sent(void *buffer)
{
    const recording *r = recording_of(buffer);
    if (r) return metal_status(softmetal_run_of(r->leader ? r->leader : buffer)) >= 2;
    return metal_status(buffer) >= 2; /* MTLCommandBufferStatusCommitted */
}

/* -- the GPU ------------------------------------------------------------------------------------------------------ */

bool finish_next_of(void *metal_queue)
{
    softmetal_due due = SOFTMETAL_NOTHING_DUE;
    void *buffer;
    void *next = NULL;
    for (unsigned k = 0; (buffer = softmetal_due_at(metal_queue, k, &due)) != NULL; k++)
        if (due == SOFTMETAL_HANDLERS_DUE) next = buffer;
    buffer = softmetal_first_in_line(metal_queue);
    if (!next && buffer && softmetal_what_is_due(buffer) == SOFTMETAL_COMPLETE_DUE) next = buffer;
    if (next) softmetal_finish(next);
    return next != NULL;
}

bool finish_next(gpusync_queue *queue)
{
    return finish_next_of(gpusync_queue_metal(queue));
}

static bool finish_some(stage *s)
{
    bool moved = false;
    for (unsigned i = 0; i < STAGE_MOST; i++)
        while (s->metal[i] && finish_next_of(s->metal[i])) moved = true;
    return moved;
}

void finish_all(stage *s)
{
    while (finish_some(s)) {}
}

size_t run_callbacks(stage *s)
{
    size_t count = 0;
    assert_true(softmetal_dispatched(PATIENCE));
    if (s->device) assert_ok(gpusync_device_run_callbacks(s->device, SIZE_MAX, &count));
    return count;
}

void settle(stage *s)
{
    bool moved;
    do {
        if (s->real) assert_true(softmetal_settle(PATIENCE));
        moved = !s->real && finish_some(s);
        if (run_callbacks(s)) moved = true;
    } while (moved);
}

/* -- failures ----------------------------------------------------------------------------------------------------- */

unsigned failures_of(gpusync_queue *queue)
{
    gpusync_error error;
    uint64_t cursor = 0;
    unsigned count = 0;
    while (gpusync_queue_next_error(queue, &cursor, &error) == GPUSYNC_OK) count++;
    return count;
}

gpusync_error failure_at(gpusync_queue *queue, unsigned i)
{
    gpusync_error error;
    uint64_t cursor = 0;
    memset(&error, 0, sizeof error);
    do assert_ok(gpusync_queue_next_error(queue, &cursor, &error));
    while (i-- > 0);
    return error;
}
