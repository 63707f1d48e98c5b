/* softmetal_command_buffer.m - command buffers: what the program may do with one, and its states

   Transitions (each under the engine's lock):
     commit            NotEnqueued or Enqueued -> Committed; Metal takes a reference of its own
     sm_mark_scheduled Committed -> Scheduled
     sm_finish         the GPU has ended with it; leaves the line of its queue
     sm_publish        the GPU times are stored, Scheduled -> Completed or Error
     sm_end_handlers   every completed handler ran (or was lost): what the buffer refers to is released,
                       the place is free, waiters return
     sm_let_go         the blocks are released: Metal's reference goes
   Under the real clock the completion thread of the queue does the last three. */
#import "softmetal_internal.h"
#include <objc/runtime.h>
#include <stdlib.h>

static double (*gpu_clock)(void);

void softmetal_set_gpu_clock(double (*seconds)(void)) { __atomic_store_n(&gpu_clock, seconds, __ATOMIC_RELEASE); }

static double seconds_now(void)
{
    double (*clock)(void) = __atomic_load_n(&gpu_clock, __ATOMIC_ACQUIRE);
    return clock ? clock() : (double)sm_now() / 1e9;
}

static void *grow(void *array, unsigned count, unsigned *capacity, size_t size)
{
    if (count < *capacity) return array;
    *capacity = *capacity ? 2 * *capacity : 4;
    void *bigger = realloc(array, *capacity * size);
    SM_REQUIRE(bigger, INTERNAL, "out of memory");
    return bigger;
}

static void store_time(double *time, double seconds) { __atomic_store(time, &seconds, __ATOMIC_RELAXED); }

static double load_time(const double *time)
{
    double seconds;
    __atomic_load(time, &seconds, __ATOMIC_RELAXED);
    return seconds;
}

/* --------------------------------------------------------------------------- recording -- */

static bool is_committed(SoftMetalCommandBuffer *buffer)
{
    return __atomic_load_n(&buffer->committed, __ATOMIC_RELAXED);
}

void sm_check_encodable(SoftMetalCommandBuffer *buffer, const char *what)
{
    SM_REQUIRE(!is_committed(buffer), ENCODE_AFTER_COMMIT, "%s", what);
}

sm_command *sm_record(sm_recording *recording, sm_command_kind kind)
{
    recording->commands = grow(recording->commands, recording->command_count, &recording->command_capacity,
                               sizeof *recording->commands);
    sm_command *command = &recording->commands[recording->command_count++];
    *command = (sm_command){.kind = kind};
    return command;
}

void sm_refer(sm_recording *recording, id object)
{
    for (unsigned i = 0; i < recording->reference_count; i++)
        if (recording->references[i] == object) return;
    recording->references = grow(recording->references, recording->reference_count, &recording->reference_capacity,
                                 sizeof *recording->references);
    recording->references[recording->reference_count++] = recording->retains ? [object retain] : object;
}

void sm_recording_append(sm_recording *to, sm_recording *from)
{
    for (unsigned i = 0; i < from->command_count; i++) *sm_record(to, SM_FILL) = from->commands[i];
    for (unsigned i = 0; i < from->reference_count; i++) sm_refer(to, from->references[i]);
    from->command_count = 0; /* their bindings have moved */
    sm_recording_clear(from);
}

static void free_commands(sm_recording *recording)
{
    for (unsigned i = 0; i < recording->command_count; i++) {
        sm_binding *bindings = recording->commands[i].bindings;
        for (unsigned k = 0; bindings && k < SM_BINDINGS; k++) free(bindings[k].bytes);
        free(bindings);
    }
    free(recording->commands);
}

void sm_recording_clear(sm_recording *recording)
{
    free_commands(recording);
    for (unsigned i = 0; recording->retains && i < recording->reference_count; i++) [recording->references[i] release];
    free(recording->references);
    *recording = (sm_recording){.retains = recording->retains};
}

/* Unretained references are promises of the program: from commit on each object knows that it is
   needed, and aborts when it is destroyed. */
static void count_uses(SoftMetalCommandBuffer *buffer)
{
    for (unsigned i = 0; !buffer->recorded.retains && i < buffer->recorded.reference_count; i++) {
        SoftMetalObject *object = buffer->recorded.references[i];
        SM_REQUIRE(object_getClass(object) != sm_zombie_class(), DESTROYED_IN_USE, "%p was freed before commit",
                   (void *)object);
        __atomic_fetch_add(&object->uses, 1, __ATOMIC_RELAXED);
    }
}

/* Before the status is set: a thread that sees the buffer terminal may destroy what it named. */
void sm_end_uses(SoftMetalCommandBuffer *buffer)
{
    for (unsigned i = 0; !buffer->recorded.retains && i < buffer->recorded.reference_count; i++)
        __atomic_fetch_sub(&((SoftMetalObject *)buffer->recorded.references[i])->uses, 1, __ATOMIC_RELEASE);
}

static void drop_references(SoftMetalCommandBuffer *buffer)
{
    pthread_mutex_lock(&buffer->engine->lock);
    sm_recording *recorded = &buffer->recorded;
    sm_recording dropped = {.references = recorded->references, .reference_count = recorded->reference_count,
                            .retains = recorded->retains};
    recorded->references = NULL;
    recorded->reference_count = recorded->reference_capacity = 0;
    pthread_mutex_unlock(&buffer->engine->lock);
    sm_recording_clear(&dropped);
}

static bool is_tracked(id object)
{
    const unsigned long untracked = 256;
    return [object isKindOfClass:[SoftMetalBuffer class]] && !(((SoftMetalBuffer *)object)->options & untracked);
}

bool sm_independent(SoftMetalCommandBuffer *a, SoftMetalCommandBuffer *b)
{
    if (sm_is_operation(a) || sm_is_operation(b)) return false;
    const sm_recording *first = &a->recorded, *second = &b->recorded;
    for (unsigned i = 0; i < first->reference_count; i++)
        for (unsigned k = 0; k < second->reference_count; k++)
            if (first->references[i] == second->references[k] && is_tracked(first->references[i])) return false;
    return true;
}

static void begin_pass(SoftMetalCommandBuffer *buffer)
{
    if (!(buffer->error_options & SM_ENCODER_EXECUTION_STATUS)) return;
    buffer->passes = grow(buffer->passes, buffer->pass_count, &buffer->pass_capacity, sizeof *buffer->passes);
    buffer->passes[buffer->pass_count++] =
        (sm_pass){.begins = buffer->recorded.command_count};
    buffer->encoder->pass = buffer->pass_count;
}

static void free_passes(SoftMetalCommandBuffer *buffer)
{
    for (unsigned k = 0; k < buffer->pass_count; k++) [buffer->passes[k].label release];
    free(buffer->passes);
}

/* --------------------------------------------------------------------- place in queue -- */

static void join_line(SoftMetalCommandBuffer *buffer)
{
    sm_engine *engine = buffer->engine;
    buffer->in_line = true;
    buffer->line_previous = engine->line_last;
    if (engine->line_last)
        engine->line_last->line_next = buffer;
    else
        engine->line_first = buffer;
    engine->line_last = buffer;
}

void sm_leave_line(SoftMetalCommandBuffer *buffer)
{
    sm_engine *engine = buffer->engine;
    if (buffer->line_previous)
        buffer->line_previous->line_next = buffer->line_next;
    else
        engine->line_first = buffer->line_next;
    if (buffer->line_next)
        buffer->line_next->line_previous = buffer->line_previous;
    else
        engine->line_last = buffer->line_previous;
    buffer->line_next = buffer->line_previous = nil;
    buffer->in_line = false;
}

static void join_the_living(SoftMetalCommandBuffer *buffer)
{
    sm_engine *engine = buffer->engine;
    buffer->older = engine->newest;
    if (engine->newest) engine->newest->newer = buffer;
    engine->newest = buffer;
}

static void leave_the_living(SoftMetalCommandBuffer *buffer)
{
    if (buffer->newer)
        buffer->newer->older = buffer->older;
    else
        buffer->engine->newest = buffer->older;
    if (buffer->older) buffer->older->newer = buffer->newer;
}

static void free_place(SoftMetalCommandBuffer *buffer)
{
    if (!buffer->counted) return;
    buffer->counted = false;
    buffer->engine->outstanding--;
    pthread_cond_signal(&buffer->engine->room);
}

SoftMetalCommandBuffer *sm_command_buffer_new(sm_entry entry, SoftMetalAnyQueue *queue)
{
    Class cls = entry == SM_ENTRY_BUFFER ? [SoftMetalCommandBuffer class]
                : entry == SM_ENTRY_RUN  ? [SoftMetalRun class]
                                         : [SoftMetalQueueOperation class];
    SoftMetalCommandBuffer *buffer = [[cls alloc] init];
    buffer->queue = [queue retain];
    buffer->engine = queue->engine;
    buffer->entry = entry;
    sm_cond_init(&buffer->changed);
    if (sm_is_operation(buffer)) return buffer;
    pthread_mutex_lock(&buffer->engine->lock);
    buffer->counted = entry == SM_ENTRY_BUFFER && !SM_QUIRK(uncommitted_are_free);
    join_the_living(buffer);
    pthread_mutex_unlock(&buffer->engine->lock);
    return buffer;
}

/* --------------------------------------------------------------------------- transitions -- */

/* A plain store: Metal promises no more. The fence keeps what came before it in its place on every processor, and
   ThreadSanitizer, which does not look at fences, sees no more order than `worked` gives. */
static void set_status(SoftMetalCommandBuffer *buffer, unsigned long status)
{
    __atomic_thread_fence(__ATOMIC_RELEASE);
    __atomic_store_n(&buffer->status, status, __ATOMIC_RELAXED);
}

void sm_set_fault(SoftMetalCommandBuffer *buffer, sm_fault fault)
{
    [buffer->fault.domain release];
    [buffer->fault.text release];
    buffer->fault = fault;
    buffer->fault.set = true;
}

static bool is_to_be_killed(SoftMetalCommandBuffer *buffer)
{
    const char *label = getenv("SOFTMETAL_KILL");
    if (!label)
        return false;
    NSString *text = [[NSString alloc] initWithUTF8String:label];
    bool same = [buffer->label isEqualToString:text];
    [text release];
    return same;
}

static void draw_chaos(SoftMetalCommandBuffer *buffer)
{
    softmetal_chaos chaos = sm_chaos();
    softmetal_quirks quirks = sm_quirks();
    sm_fault fault;
    if (quirks.lost_handlers) buffer->lose = true;
    if (quirks.status_after_handlers) buffer->status_after = true;
    if (!buffer->fault.set && sm_take_failure(&fault))
        sm_set_fault(buffer, fault);
    else if (!buffer->fault.set && is_to_be_killed(buffer))
        sm_set_fault(buffer, (sm_fault){.by_number = true, .number = SOFTMETAL_PAGE_FAULT});
    else if (!buffer->fault.set && sm_chance(chaos.fail_per_mille))
        sm_set_fault(buffer, (sm_fault){.by_number = true, .number = SOFTMETAL_INTERNAL});
    buffer->late = sm_chance(chaos.complete_out_of_order_per_mille);
    buffer->overlap = sm_chance(chaos.overlap_per_mille);
}

static void post(SoftMetalCommandBuffer *buffer, sm_job_kind kind, uint64_t due)
{
    sm_job *job = calloc(1, sizeof *job);
    SM_REQUIRE(job, INTERNAL, "out of memory");
    job->buffer = buffer;
    job->kind = kind;
    job->late = kind == SM_JOB_COMPLETED && buffer->late;
    job->due = job->late ? sm_after(due, 2 * SM_MILLISECOND) : due;
    sm_engine_post(buffer->engine, job);
}

/* A buffer that must wait for its turn is scheduled meanwhile; one that need not is by its worker. */
static void schedule_ahead(SoftMetalCommandBuffer *buffer)
{
    bool must_wait = buffer->line_previous != nil;
    if (must_wait && buffer->engine->clock == SOFTMETAL_REAL) post(buffer, SM_JOB_SCHEDULE, buffer->schedule_due);
}

/* With the engine's lock, as of a buffer or run. */
static void begin_life_of_work(SoftMetalCommandBuffer *buffer)
{
    softmetal_timing timing;
    sm_timing(&timing);
    draw_chaos(buffer);
    buffer->schedule_due = sm_after(sm_now(), sm_draw(timing.schedule));
}

static void overtake(SoftMetalCommandBuffer *buffer)
{
    const sm_command *command = buffer->recorded.commands;
    if (buffer->entry != SM_ENTRY_BUFFER || buffer->recorded.command_count != 1 || command->kind != SM_SIGNAL) return;
    sm_event_raise(command->object, command->value);
}

void sm_commit(SoftMetalCommandBuffer *buffer)
{
    sm_engine *engine = buffer->engine;
    bool operation = sm_is_operation(buffer);
    count_uses(buffer);
    if (SM_QUIRK(overtaking_signals)) overtake(buffer);
    [buffer retain]; /* Metal's own reference, until sm_let_go */
    pthread_mutex_lock(&engine->lock);
    if (!operation) begin_life_of_work(buffer);
    sm_note_activity();
    __atomic_store_n(&buffer->committed, true, __ATOMIC_RELAXED);
    engine->unsettled++;
    if (!buffer->in_line) join_line(buffer);
    set_status(buffer, SM_COMMITTED);
    if (buffer->entry == SM_ENTRY_BUFFER && !buffer->counted) { /* see uncommitted_are_free */
        buffer->counted = true;
        engine->outstanding++;
    }
    if (buffer->entry == SM_ENTRY_RUN) {
        engine->newest_run = buffer;
        engine->newest_run_failed = false;
        buffer->counted = true;
        engine->outstanding++;
    }
    buffer->follows_failure = engine->newest_run_failed;
    if (!operation) schedule_ahead(buffer);
    sm_engine_pump(engine);
    pthread_mutex_unlock(&engine->lock);
}

void sm_mark_scheduled(SoftMetalCommandBuffer *buffer)
{
    pthread_mutex_lock(&buffer->engine->lock);
    if (buffer->status == SM_COMMITTED) {
        set_status(buffer, SM_SCHEDULED);
        if (buffer->scheduled_blocks.count > 0) post(buffer, SM_JOB_SCHEDULED, 0);
    }
    pthread_mutex_unlock(&buffer->engine->lock);
}

void sm_mark_started(SoftMetalCommandBuffer *buffer)
{
    pthread_mutex_lock(&buffer->engine->lock);
    buffer->began = seconds_now();
    pthread_mutex_unlock(&buffer->engine->lock);
}

unsigned sm_commands_before_fault(SoftMetalCommandBuffer *buffer)
{
    unsigned count = buffer->recorded.command_count, signals = 0;
    if (!buffer->fault.set) return count;
    if (buffer->signals_before_fault == 0) return 0;
    for (unsigned i = 0; i < count; i++)
        if (buffer->recorded.commands[i].kind == SM_SIGNAL && ++signals == buffer->signals_before_fault) return i + 1;
    return count;
}

/* What the encoder at which a buffer ends is told: a wait ends it before the encoder, and a device that is gone blames
   none. Assumed. */
static id new_error(SoftMetalCommandBuffer *buffer)
{
    bool run = buffer->entry == SM_ENTRY_RUN;
    softmetal_encoder_state here = SOFTMETAL_ENCODER_PENDING;
    SoftMetalError *error = buffer->outcome; /* takes over its reference */
    if (!error && __atomic_load_n(&buffer->engine->device->removed, __ATOMIC_ACQUIRE)) {
        here = SOFTMETAL_ENCODER_AFFECTED;
        error = sm_new_error_of_removal(run);
    } else if (!error && buffer->fault.set) {
        here = SOFTMETAL_ENCODER_FAULTED;
        error = sm_new_failure(&buffer->fault, run);
    }
    if (error) sm_tell_encoders(error, buffer, here);
    return error;
}

static void store_gpu_times(SoftMetalCommandBuffer *buffer)
{
    store_time(&buffer->gpu_start, buffer->began);
    store_time(&buffer->gpu_end, buffer->ended);
}

void sm_publish(SoftMetalCommandBuffer *buffer)
{
    if (!sm_quirks().late_times) store_gpu_times(buffer);
    if (!buffer->status_after) set_status(buffer, buffer->final_status);
}

/* The signals of the queue up to the next commit are told, and those that come until then will be. */
static void tell_of_failure(SoftMetalCommandBuffer *run)
{
    for (SoftMetalCommandBuffer *b = run->line_next; b && sm_is_operation(b); b = b->line_next)
        b->follows_failure = true;
    if (run->engine->newest_run == run) run->engine->newest_run_failed = true;
}

void sm_finish(SoftMetalCommandBuffer *buffer)
{
    sm_engine *engine = buffer->engine;
    softmetal_timing timing;
    sm_timing(&timing);
    __atomic_store_n(&buffer->worked, 1, __ATOMIC_RELEASE);
    sm_end_uses(buffer);
    for (NSUInteger i = 0; i < [buffer->presents count]; i++) [[buffer->presents objectAtIndex:i] present];
    pthread_mutex_lock(&engine->lock);
    buffer->error = new_error(buffer);
    buffer->outcome = nil;
    buffer->final_status = buffer->error ? SM_ERRONEOUS : SM_COMPLETED;
    buffer->ended = seconds_now();
    buffer->executed = buffer->finished = true;
    if (buffer->entry == SM_ENTRY_RUN && buffer->error) tell_of_failure(buffer);
    if (engine->newest_run == buffer) engine->newest_run = nil;
    sm_leave_line(buffer);
    if (engine->clock == SOFTMETAL_MANUAL) {
        sm_publish(buffer);
    } else {
        if (sm_quirks().status_early && !buffer->status_after) set_status(buffer, buffer->final_status);
        post(buffer, SM_JOB_COMPLETED, sm_after(sm_now(), sm_draw(timing.notify)));
    }
    pthread_mutex_unlock(&engine->lock);
    sm_advance_operations();
}

/* ------------------------------------------------------------------------------ handlers -- */

static void call(const sm_block *held, SoftMetalCommandBuffer *buffer)
{
    id given = buffer->entry == SM_ENTRY_RUN ? sm_new_feedback(buffer) : buffer;
    sm_block_call(held, given);
    if (given != buffer) [given release];
}

void sm_run_scheduled_handlers(SoftMetalCommandBuffer *buffer)
{
    sm_blocks blocks = buffer->scheduled_blocks; /* nothing adds any more */
    sm_blocks_end(&blocks, buffer);
    pthread_mutex_lock(&buffer->engine->lock);
    buffer->scheduled_blocks = blocks;
    pthread_cond_broadcast(&buffer->changed);
    pthread_mutex_unlock(&buffer->engine->lock);
}

void sm_end_handlers(SoftMetalCommandBuffer *buffer)
{
    [buffer->presents release];
    buffer->presents = nil;
    drop_references(buffer);
    pthread_mutex_lock(&buffer->engine->lock);
    if (!buffer->handlers_done) {
        buffer->handlers_done = true;
        sm_dispatch_rest(-buffer->dispatched_waits);
        store_gpu_times(buffer);
        if (buffer->status_after) set_status(buffer, buffer->final_status);
        free_place(buffer);
        pthread_cond_broadcast(&buffer->changed);
    }
    pthread_mutex_unlock(&buffer->engine->lock);
}

void sm_run_handlers(SoftMetalCommandBuffer *buffer, bool lose)
{
    store_gpu_times(buffer);
    bool backwards = SM_QUIRK(handlers_backwards);
    unsigned count = buffer->completed_blocks.count;
    for (unsigned k = 0; k < count; k++) {
        sm_block *held = &buffer->completed_blocks.items[backwards ? count - 1 - k : k];
        if (!lose) call(held, buffer);
        sm_block_drop(held);
    }
    sm_end_handlers(buffer);
    sm_release_handlers(buffer);
}

static void set_block_state(SoftMetalCommandBuffer *buffer, unsigned k, sm_block_state state)
{
    pthread_mutex_lock(&buffer->engine->lock);
    buffer->completed_blocks.items[k].state = state;
    pthread_cond_broadcast(&buffer->changed);
    pthread_mutex_unlock(&buffer->engine->lock);
}

/* The manual clock has no step for the end of the handlers: it comes with the last of them. */
void sm_run_handler(SoftMetalCommandBuffer *buffer, unsigned k)
{
    store_gpu_times(buffer);
    sm_stepped_handler(buffer->engine, 1);
    set_block_state(buffer, k, SM_BLOCK_RUNNING);
    call(&buffer->completed_blocks.items[k], buffer);
    pthread_mutex_lock(&buffer->engine->lock);
    bool last = ++buffer->handlers_ran == buffer->completed_blocks.count;
    pthread_mutex_unlock(&buffer->engine->lock);
    if (last) sm_end_handlers(buffer);
    sm_stepped_handler(buffer->engine, -1);
    set_block_state(buffer, k, SM_BLOCK_RAN);
}

/* The panel has set the state, and waits until it is SM_BLOCK_RAN once more. */
void sm_run_handler_again(SoftMetalCommandBuffer *buffer, unsigned k)
{
    sm_stepped_handler(buffer->engine, 1);
    call(&buffer->completed_blocks.items[k], buffer);
    sm_stepped_handler(buffer->engine, -1);
    set_block_state(buffer, k, SM_BLOCK_RAN);
}

void sm_release_handlers(SoftMetalCommandBuffer *buffer)
{
    sm_blocks *blocks = &buffer->completed_blocks;
    for (unsigned k = 0; k < blocks->count; k++)
        if (blocks->items[k].state != SM_BLOCK_RELEASED) sm_block_drop(&blocks->items[k]);
}

/* Only once for each commit. The caller keeps the engine alive. */
void sm_let_go(SoftMetalCommandBuffer *buffer)
{
    sm_engine *engine = buffer->engine;
    pthread_mutex_lock(&engine->lock);
    bool again = buffer->let_go;
    buffer->let_go = true;
    pthread_mutex_unlock(&engine->lock);
    if (again) return;
    [buffer release];
    pthread_mutex_lock(&engine->lock);
    engine->unsettled--;
    pthread_mutex_unlock(&engine->lock);
}

/* ----------------------------------------------------------------------------- the class -- */

static void require_no_encoder(SoftMetalCommandBuffer *buffer, sm_rule rule, const char *what)
{
    if (buffer->encoder) sm_abort(rule, "%s", what);
}

static void require_same_device(SoftMetalCommandBuffer *buffer, SoftMetalDevice *device, const char *what)
{
    SM_REQUIRE(!device || device == buffer->engine->device, OTHER_DEVICE, "%s", what);
}

static void encode_event(SoftMetalCommandBuffer *buffer, sm_command_kind kind, id event, uint64_t value,
                         const char *what)
{
    sm_check_encodable(buffer, what);
    require_no_encoder(buffer, SM_RULE_EVENT_WITH_ENCODER, what);
    sm_check_argument(event, [SoftMetalEvent class], what);
    require_same_device(buffer, ((SoftMetalEvent *)event)->device, what);
    sm_refer(&buffer->recorded, event);
    sm_command *command = sm_record(&buffer->recorded, kind);
    command->object = event;
    command->value = value;
}

static void add_handler(SoftMetalCommandBuffer *buffer, SEL selector, sm_blocks *blocks, id block)
{
    const char *what = sel_getName(selector);
    bool sent = sm_arrived(buffer, selector);
    SM_REQUIRE(block, NIL_ARGUMENT, "%s", what);
    SM_REQUIRE(!is_committed(buffer), HANDLER_AFTER_COMMIT, "%s", what);
    sm_block held = sm_block_take(block); /* may run the program's copy helper: no lock */
    pthread_mutex_lock(&buffer->engine->lock);
    sm_blocks_add(blocks, held);
    pthread_mutex_unlock(&buffer->engine->lock);
    if (sent) sm_hook_after(buffer, what);
}

static id make_encoder(SoftMetalCommandBuffer *buffer, Class cls, const char *what)
{
    sm_check_encodable(buffer, what);
    require_no_encoder(buffer, SM_RULE_SECOND_ENCODER, what);
    SM_REQUIRE(sm_has_pool(), NO_POOL, "%s", what);
    if (sm_creation_fails()) return nil;
    buffer->encoder = [[cls alloc] initWithBuffer:buffer];
    begin_pass(buffer);
    return [buffer->encoder autorelease];
}

@implementation SoftMetalCommandBuffer

+ (sm_kind)softmetalKind { return SM_COMMAND_BUFFER; }

- (id)commandQueue { return queue; }
- (id)device { return queue->device; }
- (BOOL)retainedReferences { return recorded.retains; }
- (unsigned long)errorOptions { return error_options; }

- (unsigned long)status
{
    bool sent = sm_arrived(self, _cmd);
    unsigned long now = __atomic_load_n(&status, __ATOMIC_ACQUIRE);
    if (now >= SM_COMPLETED) (void)__atomic_load_n(&worked, __ATOMIC_ACQUIRE);
    if (SM_QUIRK(status_autoreleases)) [[self retain] autorelease];
    if (sent) sm_hook_after(self, "status");
    return now;
}

- (id)error
{
    pthread_mutex_lock(&engine->lock);
    bool visible = finished; /* also where the status comes after the handlers */
    pthread_mutex_unlock(&engine->lock);
    return visible ? sm_handed_out(error) : nil;
}

- (void)enqueue
{
    pthread_mutex_lock(&engine->lock);
    if (!in_line && !committed) {
        join_line(self);
        set_status(self, SM_ENQUEUED);
    }
    pthread_mutex_unlock(&engine->lock);
}

- (void)commit
{
    bool sent = sm_arrived(self, _cmd);
    SM_REQUIRE(!is_committed(self), DOUBLE_COMMIT, "%p", (void *)self);
    require_no_encoder(self, SM_RULE_COMMIT_WITH_ENCODER, "commit");
    if (sent) [self retain]; /* the hook still names it */
    sm_commit(self);
    if (sent) {
        sm_hook_after(self, "commit");
        [self release];
    }
}

- (void)addScheduledHandler:(id)block { add_handler(self, _cmd, &scheduled_blocks, block); }
- (void)addCompletedHandler:(id)block { add_handler(self, _cmd, &completed_blocks, block); }

- (void)waitUntilCompleted
{
    pthread_mutex_lock(&engine->lock);
    SM_REQUIRE(committed, WAIT_BEFORE_COMMIT, "waitUntilCompleted");
    SM_REQUIRE(handlers_done || sm_engine_of_running_handler() != engine, WAIT_IN_HANDLER, "waitUntilCompleted");
    if (!handlers_done && sm_in_dispatched()) {
        dispatched_waits++; /* until the thread that sets the flag takes them off */
        sm_dispatch_rest(1);
    }
    while (!handlers_done) pthread_cond_wait(&changed, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
}

- (double)GPUStartTime { return load_time(&gpu_start); }
- (double)GPUEndTime { return load_time(&gpu_end); }

- (void)encodeSignalEvent:(id)event value:(uint64_t)value
{
    encode_event(self, SM_SIGNAL, event, value, "encodeSignalEvent:value:");
}
- (void)encodeWaitForEvent:(id)event value:(uint64_t)value
{
    encode_event(self, SM_WAIT, event, value, "encodeWaitForEvent:value:");
}

- (id)blitCommandEncoder { return make_encoder(self, [SoftMetalBlitEncoder class], "blitCommandEncoder"); }
- (id)computeCommandEncoder { return make_encoder(self, [SoftMetalComputeEncoder class], "computeCommandEncoder"); }

- (void)presentDrawable:(id)drawable { sm_present(self, drawable, "presentDrawable:"); }

- (NSString *)label { return sm_label_under(&engine->lock, &label); }
- (void)setLabel:(NSString *)text { sm_set_label_under(&engine->lock, &label, text); }

/* The completed handlers of a buffer that was never committed run here, as in WebKit/WebKit#39597. Its scheduled
   handlers do not (assumed). */
- (void)dealloc
{
    SM_REQUIRE(!in_line, ENQUEUED_NOT_COMMITTED, "%p", (void *)self);
    pthread_mutex_lock(&engine->lock);
    if (!sm_is_operation(self)) leave_the_living(self);
    pthread_mutex_unlock(&engine->lock);
    for (unsigned k = 0; !committed && k < completed_blocks.count; k++) {
        if (!lose) call(&completed_blocks.items[k], self);
        sm_block_drop(&completed_blocks.items[k]);
    }
    sm_release_handlers(self);
    sm_blocks_end(&scheduled_blocks, nil);
    sm_recording_clear(&recorded);
    [presents release];
    pthread_mutex_lock(&engine->lock);
    free_place(self);
    pthread_mutex_unlock(&engine->lock);
    free(completed_blocks.items);
    free_passes(self);
    free(encoder_states);
    [fault.domain release];
    [fault.text release];
    [error release];
    [label release];
    pthread_cond_destroy(&changed);
    [queue release];
    [super dealloc];
}

@end

@implementation SoftMetalRun
+ (sm_kind)softmetalKind { return SM_RUN; }
@end

@implementation SoftMetalQueueOperation
+ (sm_kind)softmetalKind { return SM_QUEUE_OPERATION; }
@end

bool sm_is_operation(SoftMetalCommandBuffer *buffer)
{
    return buffer->entry == SM_ENTRY_SIGNAL || buffer->entry == SM_ENTRY_WAIT;
}
