/* softmetal_queue4.m - Metal 4: command queues, commits, what a commit answers

   A commit makes a run: an object of the same kind as a command buffer, in the line of its queue, with the
   commands of all buffers of the array and the handlers of the options. A signal or a wait of the queue stands in
   the same line. It has no step of its own: under the manual clock it is over as soon as it stands first and
   waits for nothing. */
#import "softmetal_internal.h"
#include <objc/runtime.h>
#include <stdlib.h>

/* --------------------------------------------------------------------------- feedback -- */

@implementation SoftMetalFeedback
+ (sm_kind)softmetalKind { return SM_FEEDBACK; }
- (id)error { return sm_handed_out(error); }
- (double)GPUStartTime { return gpu_start; }
- (double)GPUEndTime { return gpu_end; }
- (void)dealloc
{
    [error release];
    [super dealloc];
}
@end

id sm_new_feedback(SoftMetalCommandBuffer *run)
{
    SoftMetalFeedback *feedback = [[SoftMetalFeedback alloc] init];
    pthread_mutex_lock(&run->engine->lock);
    feedback->error = [run->error retain];
    pthread_mutex_unlock(&run->engine->lock);
    feedback->gpu_start = [run GPUStartTime];
    feedback->gpu_end = [run GPUEndTime];
    return feedback;
}

static void run_dispatched_handlers(void *run)
{
    sm_engine *engine = ((SoftMetalCommandBuffer *)run)->engine;
    sm_run_handlers(run, false);
    sm_let_go(run);
    sm_engine_release(engine);
}

bool sm_dispatch_handlers(SoftMetalCommandBuffer *buffer)
{
    if (buffer->entry != SM_ENTRY_RUN || buffer->completed_blocks.count == 0) return false;
    id feedback_queue = ((SoftMetalQueue4 *)buffer->queue)->feedback_queue;
    if (!feedback_queue) return false;
    sm_engine_retain(buffer->engine);
    sm_dispatch(feedback_queue, buffer, run_dispatched_handlers, "the feedback queue");
    return true;
}

/* ---------------------------------------------------------------------------- options -- */

/* Relaxed: it watches, and orders nothing. */
static void enter_options(MTL4CommitOptions *options, const char *what)
{
    SM_REQUIRE(!__atomic_exchange_n(&options->busy, true, __ATOMIC_RELAXED), OPTIONS_SHARED, "%s", what);
}

static void leave_options(MTL4CommitOptions *options) { __atomic_store_n(&options->busy, false, __ATOMIC_RELAXED); }

static void sm_take_handlers(MTL4CommitOptions *options, SoftMetalCommandBuffer *run)
{
    enter_options(options, "commit:count:options:");
    if (sm_quirks().options_keep_handlers) {
        for (unsigned k = 0; k < options->blocks.count; k++)
            sm_blocks_add(&run->completed_blocks, sm_block_take_again(options->blocks.items[k].block));
    } else {
        run->completed_blocks = options->blocks;
        options->blocks = (sm_blocks){.items = NULL};
    }
    leave_options(options);
}

@implementation MTL4CommitOptions
+ (sm_kind)softmetalKind { return SM_COMMIT_OPTIONS; }
- (id)init
{
    if (!(self = [super init]) || !sm_creation_fails()) return self;
    [self release];
    return nil;
}
- (void)addFeedbackHandler:(id)block
{
    SM_REQUIRE(block, NIL_ARGUMENT, "addFeedbackHandler:");
    enter_options(self, "addFeedbackHandler:");
    sm_blocks_add(&blocks, sm_block_take(block));
    leave_options(self);
}
- (void)dealloc
{
    enter_options(self, "release");
    sm_blocks_end(&blocks, nil);
    [super dealloc];
}
@end

/* ----------------------------------------------------------- signals and waits of a queue -- */

/* Queues of the manual clock: without one there is nothing to advance, and no caller takes a lock to see that. */
static unsigned stepped_queues;

static bool is_removed(SoftMetalCommandBuffer *entry)
{
    return __atomic_load_n(&entry->engine->device->removed, __ATOMIC_ACQUIRE);
}

bool sm_wait_is_over(SoftMetalCommandBuffer *operation)
{
    const sm_command *wait = &operation->recorded.commands[0];
    return operation->executed || is_removed(operation) || sm_event_value(wait->object) >= wait->value;
}

/* A thread that sees a signal may destroy the event: from there on the operation has a reference. */
static void take_effect(SoftMetalCommandBuffer *operation)
{
    const sm_command *command = &operation->recorded.commands[0];
    bool dead = operation->follows_failure && sm_quirks().signals_die_with_failure;
    SoftMetalEvent *event = [command->object retain];
    sm_end_uses(operation);
    if (operation->entry == SM_ENTRY_SIGNAL && !dead && !is_removed(operation)) sm_event_raise(event, command->value);
    [event release];
}

/* It has left the line, and goes. */
static void let_operation_go(SoftMetalCommandBuffer *operation)
{
    sm_engine *engine = operation->engine;
    sm_engine_retain(engine);
    sm_let_go(operation);
    sm_engine_release(engine);
}

/* It fires again in its turn, which changes nothing. */
static void let_next_signal_overtake(SoftMetalCommandBuffer *operation)
{
    const uint64_t millisecond = 1000000;
    pthread_mutex_lock(&operation->engine->lock);
    SoftMetalCommandBuffer *next = operation->line_next;
    const sm_command *command = next && next->entry == SM_ENTRY_SIGNAL ? &next->recorded.commands[0] : NULL;
    SoftMetalEvent *event = command ? [command->object retain] : nil;
    uint64_t value = command ? command->value : 0;
    pthread_mutex_unlock(&operation->engine->lock);
    if (!event) return;
    sm_event_raise(event, value);
    [event release];
    sm_sleep_precisely(millisecond);
}

static void leave_line(SoftMetalCommandBuffer *operation)
{
    operation->executed = operation->finished = true;
    sm_leave_line(operation);
}

void sm_perform_operation(SoftMetalCommandBuffer *operation)
{
    const sm_command *command = &operation->recorded.commands[0];
    if (operation->entry == SM_ENTRY_WAIT) /* however it ends, later work runs */
        sm_event_device_wait(command->object, command->value, &operation->engine->device->removed);
    else if (SM_QUIRK(overtaken_signals))
        let_next_signal_overtake(operation);
    take_effect(operation); /* before it leaves the line: another worker has the next one then */
    pthread_mutex_lock(&operation->engine->lock);
    leave_line(operation);
    pthread_mutex_unlock(&operation->engine->lock);
    let_operation_go(operation);
}

/* A wait that is over lets later work pass, so it is not kept by work before it that goes on: that is what a run goes by,
   too (softmetal_step.m). A signal comes behind all that is before it. */
static SoftMetalCommandBuffer *due_operation(const sm_engine *engine)
{
    for (SoftMetalCommandBuffer *b = engine->line_first; b; b = b->line_next) {
        if (!sm_is_operation(b)) continue;
        if (b->entry == SM_ENTRY_WAIT) return sm_wait_is_over(b) ? b : nil;
        if (sm_quirks().signals_held) return nil;
        if (b == engine->line_first && !sm_quirks().signals_late) return b;
    }
    return nil;
}

static bool find_due(sm_engine *engine, void *found)
{
    SoftMetalCommandBuffer *due = engine->clock == SOFTMETAL_MANUAL ? due_operation(engine) : nil;
    if (!due) return true;
    leave_line(due);
    *(SoftMetalCommandBuffer **)found = due;
    return false;
}

void sm_advance_operations(void)
{
    for (;;) {
        SoftMetalCommandBuffer *operation = nil;
        if (__atomic_load_n(&stepped_queues, __ATOMIC_RELAXED) == 0 || sm_for_each_engine(find_due, &operation)) return;
        take_effect(operation);
        let_operation_go(operation);
    }
}

static void operate(SoftMetalQueue4 *queue, sm_entry entry, id event, uint64_t value, const char *what)
{
    sm_check_argument(event, [SoftMetalEvent class], what);
    SoftMetalDevice *device = ((SoftMetalEvent *)event)->device;
    SM_REQUIRE(!device || device == queue->device, OTHER_DEVICE, "%s", what);
    SoftMetalCommandBuffer *operation = sm_command_buffer_new(entry, queue);
    sm_refer(&operation->recorded, event);
    sm_command *command = sm_record(&operation->recorded, entry == SM_ENTRY_SIGNAL ? SM_SIGNAL : SM_WAIT);
    command->object = event;
    command->value = value;
    sm_commit(operation);
    [operation release];
    sm_advance_operations();
}

/* ---------------------------------------------------------------------------- commits -- */

static void check_committable(SoftMetalQueue4 *queue, const id *buffers, unsigned long at)
{
    SM_REQUIRE(buffers[at], NIL_IN_COMMIT, "place %lu", at);
    sm_check_argument(buffers[at], [SoftMetalCommandBuffer4 class], "command buffer of a commit");
    for (unsigned long k = 0; k < at; k++)
        SM_REQUIRE(buffers[k] != buffers[at], TWICE_IN_COMMIT, "places %lu and %lu", k, at);
    SoftMetalCommandBuffer4 *buffer = buffers[at];
    SM_REQUIRE(buffer->device == queue->device, OTHER_DEVICE, "command buffer of a commit");
    static const char *const names[] = {"nothing was recorded", "it is recording", "", "it is committed"};
    SM_REQUIRE(buffer->state == SM_STATE4_ENDED, COMMIT_NOT_ENDED, "place %lu: %s", at, names[buffer->state]);
    SM_REQUIRE(object_getClass(buffer->allocator) != sm_zombie_class(), DESTROYED_IN_USE,
               "the allocator %p was freed before commit", (void *)buffer->allocator);
    SM_REQUIRE(buffer->generation == buffer->allocator->generation, RECORDING_RESET, "place %lu", at);
}

static void commit(SoftMetalQueue4 *queue, const id *buffers, unsigned long count, id options)
{
    SM_REQUIRE(count > 0, EMPTY_COMMIT, "count 0");
    SM_REQUIRE(buffers, NIL_ARGUMENT, "array of a commit");
    if (options) sm_check_argument(options, [MTL4CommitOptions class], "options of a commit");
    for (unsigned long i = 0; i < count; i++) check_committable(queue, buffers, i);
    SoftMetalCommandBuffer *run = ((SoftMetalCommandBuffer4 *)buffers[0])->run;
    bool prepared = run && run->queue == queue && !run->committed;
    run = prepared ? [run retain] : sm_command_buffer_new(SM_ENTRY_RUN, queue);
    for (unsigned long i = 0; i < count; i++) {
        SoftMetalCommandBuffer4 *buffer = buffers[i];
        sm_recording_append(&run->recorded, &buffer->recorded);
        buffer->state = SM_STATE4_COMMITTED;
        buffer->allocator = nil;
    }
    if (options) sm_take_handlers(options, run);
    sm_commit(run);
    [run release];
}

/* The hook still names the queue. */
static void hook_after(SoftMetalQueue4 *queue, bool sent, const char *selector)
{
    if (!sent) return;
    sm_hook_after(queue, selector);
    [queue release];
}

void *softmetal_last_signalled(void *command_queue)
{
    sm_check_argument((id)command_queue, [SoftMetalAnyQueue class], "queue of softmetal_last_signalled");
    bool four = [(id)command_queue isKindOfClass:[SoftMetalQueue4 class]];
    return four ? __atomic_load_n(&((SoftMetalQueue4 *)command_queue)->last_signalled, __ATOMIC_SEQ_CST) : NULL;
}

@implementation SoftMetalQueue4

+ (sm_kind)softmetalKind { return SM_QUEUE4; }

- (void)commit:(const id *)buffers count:(unsigned long)count
{
    bool sent = sm_arrived(self, _cmd);
    if (sent) [self retain];
    commit(self, buffers, count, nil);
    hook_after(self, sent, "commit:count:");
}

- (void)commit:(const id *)buffers count:(unsigned long)count options:(id)options
{
    bool sent = sm_arrived(self, _cmd);
    if (sent) [self retain];
    commit(self, buffers, count, options);
    hook_after(self, sent, "commit:count:options:");
}

- (void)signalEvent:(id)event value:(uint64_t)value
{
    bool sent = sm_arrived(self, _cmd);
    if (sent) [self retain];
    __atomic_store_n(&last_signalled, event, __ATOMIC_SEQ_CST); /* not retained, as by Metal */
    operate(self, SM_ENTRY_SIGNAL, event, value, "signalEvent:value:");
    hook_after(self, sent, "signalEvent:value:");
}

- (void)waitForEvent:(id)event value:(uint64_t)value
{
    bool sent = sm_arrived(self, _cmd);
    if (sent) [self retain];
    operate(self, SM_ENTRY_WAIT, event, value, "waitForEvent:value:");
    hook_after(self, sent, "waitForEvent:value:");
}

- (void)addResidencySet:(id)set { SM_REQUIRE(set, NIL_ARGUMENT, "addResidencySet:"); }

- (void)dealloc
{
    if (engine->clock == SOFTMETAL_MANUAL) __atomic_fetch_sub(&stepped_queues, 1, __ATOMIC_RELAXED);
    [super dealloc];
}

@end

@implementation MTL4CommandQueueDescriptor
+ (sm_kind)softmetalKind { return SM_DESCRIPTOR; }
SM_HAS_LABEL
- (void)setFeedbackQueue:(id)queue { feedback_queue = queue; }
- (void)dealloc
{
    [label release];
    [super dealloc];
}
@end

/* ------------------------------------------------------------------------- the device -- */

static id new_queue(SoftMetalDevice *device, NSString *label, id feedback_queue)
{
    SM_REQUIRE(!feedback_queue || !sm_may_be_concurrent(feedback_queue, "feedbackQueue"), FEEDBACK_QUEUE,
               "the global queue");
    if (sm_creation_fails()) return nil;
    SoftMetalQueue4 *queue = [[SoftMetalQueue4 alloc] init];
    queue->device = [device retain];
    queue->engine = sm_engine_new(device, UINT32_MAX);
    queue->label = [label copy];
    queue->feedback_queue = feedback_queue;
    if (queue->engine->clock == SOFTMETAL_MANUAL) __atomic_fetch_add(&stepped_queues, 1, __ATOMIC_RELAXED);
    return queue;
}

@implementation SoftMetalDevice (Queue4)

- (id)newMTL4CommandQueue { return new_queue(self, nil, nil); }

- (id)newMTL4CommandQueueWithDescriptor:(id)descriptor error:(id *)error
{
    if (error) *error = nil;
    sm_check_argument(descriptor, [MTL4CommandQueueDescriptor class], "newMTL4CommandQueueWithDescriptor:error:");
    MTL4CommandQueueDescriptor *wanted = descriptor;
    return new_queue(self, wanted->label, wanted->feedback_queue);
}

@end
