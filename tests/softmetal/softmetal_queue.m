/* softmetal_queue.m - command queues and the threads behind them

   An engine is what a queue and its threads share. Under the real clock its workers play the GPU
   (one, or several while buffers overlap) and its one completion thread brings what has ended to its
   end: times, status, handlers, references, room, waiters (softmetal.h, >>end). Under the manual clock
   there are no workers, and as many completion threads as handlers run at once. Threads start when
   first needed, hold a reference to the engine, and end when the queue is gone. */
#import "softmetal_internal.h"
#include <stdlib.h>

/* ---------------------------------------------------------------------------- workers -- */

static bool may_start(SoftMetalCommandBuffer *buffer)
{
    SoftMetalCommandBuffer *before = buffer->line_previous;
    for (; before; before = before->line_previous) {
        if (!before->started) return false;
        if (!buffer->overlap || !sm_independent(buffer, before)) return false;
    }
    return buffer->committed;
}

/* Buffers start in the order of the line: nothing passes one that has not started. */
static SoftMetalCommandBuffer *next_to_start(sm_engine *engine)
{
    SoftMetalCommandBuffer *buffer = engine->line_first;
    while (buffer && buffer->started) buffer = buffer->line_next;
    return buffer && may_start(buffer) ? buffer : nil;
}

static void run_buffer(sm_engine *engine, SoftMetalCommandBuffer *buffer)
{
    if (sm_is_operation(buffer)) {
        sm_perform_operation(buffer);
        return;
    }
    pthread_mutex_lock(&engine->lock);
    sm_wait_precisely(&buffer->changed, &engine->lock, buffer->schedule_due, &engine->device->removed, 0);
    pthread_mutex_unlock(&engine->lock);
    sm_mark_scheduled(buffer);
    sm_mark_started(buffer);
    buffer->outcome = sm_execute(buffer);
    sm_finish(buffer);
}

static void *worker_main(void *argument)
{
    sm_engine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        SoftMetalCommandBuffer *buffer = next_to_start(engine);
        if (buffer) {
            buffer->started = true;
            sm_engine_pump(engine); /* the next one may overlap with this one */
            pthread_mutex_unlock(&engine->lock);
            run_buffer(engine, buffer);
            pthread_mutex_lock(&engine->lock);
            continue;
        }
        if (engine->dying) break;
        engine->idle_workers++;
        pthread_cond_wait(&engine->work, &engine->lock);
        engine->idle_workers--;
    }
    pthread_mutex_unlock(&engine->lock);
    sm_engine_release(engine);
    return NULL;
}

void sm_engine_pump(sm_engine *engine)
{
    if (engine->clock == SOFTMETAL_MANUAL || !next_to_start(engine)) return;
    if (engine->idle_workers > 0) {
        pthread_cond_signal(&engine->work);
        return;
    }
    sm_engine_retain(engine);
    sm_thread_start(worker_main, engine);
}

/* ----------------------------------------------------------------- completion threads -- */

static __thread sm_engine *engine_of_running_handler;

sm_engine *sm_engine_of_running_handler(void) { return engine_of_running_handler; }

/* The first job that is not late. When there is none, one of the late ones by chance, once the first of them is due. */
static sm_job *next_job(sm_engine *engine)
{
    sm_job *job = engine->first_job;
    while (job && job->late) job = job->next;
    if (job || !engine->first_job || engine->first_job->due > sm_now()) return job ? job : engine->first_job;
    job = engine->first_job;
    for (uint64_t skip = sm_draw((softmetal_range){0, engine->waiting_jobs - 1}); skip > 0; skip--) job = job->next;
    return job;
}

static void unlink_job(sm_engine *engine, sm_job *job)
{
    sm_job *previous = NULL;
    for (sm_job *j = engine->first_job; j != job; j = j->next) previous = j;
    if (previous)
        previous->next = job->next;
    else
        engine->first_job = job->next;
    if (engine->last_job == job) engine->last_job = previous;
    engine->waiting_jobs--;
}

/* A buffer has come to its end: the late ones have been overtaken, and are due. By chance they may be overtaken again. */
static void late_jobs_are_due(sm_engine *engine)
{
    for (sm_job *job = engine->first_job; job; job = job->next) {
        if (!job->late) continue;
        job->late = sm_chance(sm_chaos().complete_out_of_order_per_mille);
        job->due = 0;
    }
}

/* With the lock, which it gives up meanwhile. */
static void complete_buffer(sm_engine *engine, sm_job *job)
{
    SoftMetalCommandBuffer *buffer = job->buffer;
    if (!job->published) {
        softmetal_timing timing;
        sm_timing(&timing);
        sm_publish(buffer);
        if (timing.handler.max_ns > 0) {
            pthread_mutex_unlock(&engine->lock);
            sm_sleep_precisely(sm_draw(timing.handler));
            pthread_mutex_lock(&engine->lock);
        }
    }
    buffer->parked = buffer->hold;
    if (buffer->parked) {
        engine->unsettled--;
        return;
    }
    bool lose = buffer->lose;
    pthread_mutex_unlock(&engine->lock);
    if (lose || !sm_dispatch_handlers(buffer)) {
        sm_run_handlers(buffer, lose);
        sm_let_go(buffer);
    }
    pthread_mutex_lock(&engine->lock);
    late_jobs_are_due(engine);
}

/* As complete_buffer. */
static void run_job(sm_engine *engine, sm_job *job)
{
    if (job->kind == SM_JOB_COMPLETED) {
        complete_buffer(engine, job);
        return;
    }
    pthread_mutex_unlock(&engine->lock);
    switch (job->kind) {
    case SM_JOB_SCHEDULE: sm_mark_scheduled(job->buffer); break;
    case SM_JOB_SCHEDULED: sm_run_scheduled_handlers(job->buffer); break;
    case SM_JOB_HANDLER: sm_run_handler(job->buffer, job->handler); break;
    case SM_JOB_HANDLER_AGAIN: sm_run_handler_again(job->buffer, job->handler); break;
    case SM_JOB_COMPLETED: break;
    }
    pthread_mutex_lock(&engine->lock);
}

static void *completer_main(void *argument)
{
    sm_engine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        sm_job *job = next_job(engine);
        if (job && job->due > sm_now()) {
            sm_doze(&engine->jobs_changed, &engine->lock, job->due);
            continue;
        }
        if (job) {
            unlink_job(engine, job);
            engine_of_running_handler = engine;
            run_job(engine, job);
            free(job);
            engine_of_running_handler = NULL;
            continue;
        }
        if (engine->dying) break;
        engine->idle_completers++;
        pthread_cond_wait(&engine->jobs_changed, &engine->lock);
        engine->idle_completers--;
    }
    pthread_mutex_unlock(&engine->lock);
    sm_engine_release(engine);
    return NULL;
}

static void start_completer(sm_engine *engine)
{
    engine->completers++;
    sm_engine_retain(engine);
    sm_thread_start(completer_main, engine);
}

void sm_engine_post(sm_engine *engine, sm_job *job)
{
    job->next = NULL;
    if (engine->last_job)
        engine->last_job->next = job;
    else
        engine->first_job = job;
    engine->last_job = job;
    engine->waiting_jobs++;
    bool serial = engine->clock == SOFTMETAL_REAL;
    bool enough = serial ? engine->completers > 0 : engine->waiting_jobs <= engine->idle_completers;
    if (!enough) start_completer(engine);
    /* All of them: one may be dozing over a job that this one overtakes. */
    pthread_cond_broadcast(&engine->jobs_changed);
}

/* ---------------------------------------------------------------------------- engines -- */

sm_engine *sm_engine_new(SoftMetalDevice *device, unsigned limit)
{
    sm_engine *engine = calloc(1, sizeof *engine);
    SM_REQUIRE(engine, INTERNAL, "out of memory");
    pthread_mutex_init(&engine->lock, NULL);
    sm_cond_init(&engine->work);
    sm_cond_init(&engine->jobs_changed);
    sm_cond_init(&engine->room);
    sm_cond_init(&engine->more_blocked);
    engine->refs = 1;
    engine->clock = sm_clock();
    engine->device = device;
    engine->limit = limit;
    sm_registry_add(engine);
    return engine;
}

void sm_engine_retain(sm_engine *engine) { __atomic_fetch_add(&engine->refs, 1, __ATOMIC_RELAXED); }

/* The registry counts too: an engine it lists must not go away under a reader. */
void sm_engine_release(sm_engine *engine)
{
    if (__atomic_fetch_sub(&engine->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
    sm_registry_remove(engine);
    pthread_cond_destroy(&engine->work);
    pthread_cond_destroy(&engine->jobs_changed);
    pthread_cond_destroy(&engine->room);
    pthread_cond_destroy(&engine->more_blocked);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

static void engine_die(sm_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->dying = true;
    pthread_cond_broadcast(&engine->work);
    pthread_cond_broadcast(&engine->jobs_changed);
    pthread_mutex_unlock(&engine->lock);
    sm_engine_release(engine);
}

/* -------------------------------------------------------------------------- the queue -- */

static __thread unsigned in_stepped_handlers;

void sm_stepped_handler(sm_engine *engine, int change)
{
    in_stepped_handlers += (unsigned)change;
    pthread_mutex_lock(&engine->lock);
    engine->stepped_handlers += (unsigned)change;
    pthread_cond_broadcast(&engine->room);
    pthread_mutex_unlock(&engine->lock);
}

/* The manual clock does not move by itself; but where a handler runs on another thread, its end is near, and the place
   comes with it. */
static void wait_for_room(sm_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    while (engine->outstanding >= engine->limit) {
        SM_REQUIRE(!SM_QUIRK(full_queue_aborts), QUEUE_FULL_BLOCK, "%u buffers of %u are outstanding",
                   engine->outstanding, engine->limit);
        SM_REQUIRE(engine->clock == SOFTMETAL_REAL || engine->stepped_handlers > in_stepped_handlers, WOULD_BLOCK,
                   "%u buffers of %u are outstanding",
                   engine->outstanding, engine->limit);
        engine->blocked++;
        pthread_cond_broadcast(&engine->more_blocked);
        pthread_cond_wait(&engine->room, &engine->lock);
        engine->blocked--;
    }
    if (!SM_QUIRK(uncommitted_are_free)) engine->outstanding++;
    pthread_mutex_unlock(&engine->lock);
}

static id make_buffer(SoftMetalQueue *queue, bool retains)
{
    SM_REQUIRE(sm_has_pool(), NO_POOL, "commandBuffer");
    if (sm_creation_fails()) return nil;
    wait_for_room(queue->engine);
    SoftMetalCommandBuffer *buffer = sm_command_buffer_new(SM_ENTRY_BUFFER, queue);
    buffer->recorded.retains = retains;
    return [buffer autorelease];
}

@implementation SoftMetalAnyQueue

- (id)device { return device; }

- (NSString *)label { return sm_label_under(&engine->lock, &label); }

- (void)dealloc
{
    engine_die(engine);
    [label release];
    [device release];
    [super dealloc];
}

@end

@implementation SoftMetalQueue

+ (sm_kind)softmetalKind { return SM_QUEUE; }

- (id)commandBuffer
{
    bool sent = sm_arrived(self, _cmd);
    id buffer = make_buffer(self, true);
    if (sent) sm_hook_after(self, "commandBuffer");
    return buffer;
}

- (id)commandBufferWithUnretainedReferences { return make_buffer(self, false); }

- (id)commandBufferWithDescriptor:(id)descriptor
{
    sm_check_argument(descriptor, [MTLCommandBufferDescriptor class], "descriptor");
    MTLCommandBufferDescriptor *wanted = descriptor;
    SoftMetalCommandBuffer *buffer = make_buffer(self, wanted->retains);
    if (buffer) buffer->error_options = wanted->error_options;
    return buffer;
}

- (void)setLabel:(NSString *)text { sm_set_label_under(&engine->lock, &label, text); }

@end

@implementation MTLCommandBufferDescriptor
+ (sm_kind)softmetalKind { return SM_DESCRIPTOR; }
- (id)init
{
    if ((self = [super init])) retains = YES;
    return self;
}
- (BOOL)retainedReferences { return retains; }
- (void)setRetainedReferences:(BOOL)wanted { retains = wanted; }
- (unsigned long)errorOptions { return error_options; }
- (void)setErrorOptions:(unsigned long)options { error_options = options; }
@end

static unsigned count_of(id queue, bool blocked)
{
    sm_check_argument(queue, [SoftMetalAnyQueue class], "queue of softmetal_outstanding or softmetal_blocked");
    sm_engine *engine = ((SoftMetalAnyQueue *)queue)->engine;
    pthread_mutex_lock(&engine->lock);
    unsigned count = blocked ? engine->blocked : engine->outstanding;
    pthread_mutex_unlock(&engine->lock);
    return count;
}
unsigned softmetal_outstanding(void *command_queue) { return count_of(command_queue, false); }
unsigned softmetal_blocked(void *command_queue) { return count_of(command_queue, true); }

bool softmetal_await_blocked(void *command_queue, unsigned count, uint64_t timeout_ns)
{
    sm_check_argument((id)command_queue, [SoftMetalAnyQueue class], "queue of softmetal_await_blocked");
    sm_engine *engine = ((SoftMetalAnyQueue *)command_queue)->engine;
    uint64_t deadline = sm_after(sm_now(), timeout_ns);
    pthread_mutex_lock(&engine->lock);
    while (engine->blocked < count && sm_now() < deadline)
        sm_cond_wait_until(&engine->more_blocked, &engine->lock, deadline);
    bool reached = engine->blocked >= count;
    pthread_mutex_unlock(&engine->lock);
    return reached;
}

void *softmetal_buffer_at(void *command_queue, unsigned k)
{
    sm_check_argument((id)command_queue, [SoftMetalAnyQueue class], "queue of softmetal_buffer_at");
    sm_engine *engine = ((SoftMetalAnyQueue *)command_queue)->engine;
    pthread_mutex_lock(&engine->lock);
    SoftMetalCommandBuffer *buffer = engine->newest;
    while (buffer && k-- > 0) buffer = buffer->older;
    pthread_mutex_unlock(&engine->lock);
    return buffer;
}

void *softmetal_last_buffer(void *command_queue) { return softmetal_buffer_at(command_queue, 0); }
