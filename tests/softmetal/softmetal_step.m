/* softmetal_step.m - the manual clock: one transition at a time */
#import "softmetal_internal.h"
#include <stdlib.h>

/* Every step holds the buffer and its engine, which the transition may be the last to need. */
static SoftMetalCommandBuffer *begin_step(void *command_buffer, const char *what)
{
    SoftMetalCommandBuffer *buffer = [sm_panel_argument(command_buffer, what) retain];
    SM_REQUIRE(buffer->engine->clock == SOFTMETAL_MANUAL, STEP_REAL_CLOCK, "%s", what);
    sm_engine_retain(buffer->engine);
    return buffer;
}

static void end_step(SoftMetalCommandBuffer *buffer)
{
    sm_engine *engine = buffer->engine;
    [buffer release];
    sm_engine_release(engine);
}

static void step(void *command_buffer, const char *what, void (*with)(SoftMetalCommandBuffer *buffer, const char *what))
{
    SoftMetalCommandBuffer *buffer = begin_step(command_buffer, what);
    with(buffer, what);
    end_step(buffer);
}

static unsigned long status_of(SoftMetalCommandBuffer *buffer)
{
    return __atomic_load_n(&buffer->status, __ATOMIC_ACQUIRE);
}

/* --------------------------------------------------------------------------- the work -- */

static void schedule(SoftMetalCommandBuffer *buffer, const char *what)
{
    SM_REQUIRE(status_of(buffer) == SM_COMMITTED, STEP_NOT_DUE, "%s: the status is %lu", what, status_of(buffer));
    sm_mark_scheduled(buffer);
    pthread_mutex_lock(&buffer->engine->lock);
    while (buffer->scheduled_blocks.count > 0) pthread_cond_wait(&buffer->changed, &buffer->engine->lock);
    pthread_mutex_unlock(&buffer->engine->lock);
}

static bool is_held_signal(SoftMetalCommandBuffer *entry)
{
    return entry->entry == SM_ENTRY_SIGNAL && sm_quirks().signals_held;
}

/* Buffers that share no tracked memory may overlap; the others keep the order of the queue. */
static void require_turn(SoftMetalCommandBuffer *buffer, const char *what)
{
    pthread_mutex_lock(&buffer->engine->lock);
    for (SoftMetalCommandBuffer *b = buffer->line_previous; b; b = b->line_previous) {
        SM_REQUIRE(b->entry != SM_ENTRY_WAIT || sm_wait_is_over(b), STEP_NOT_DUE, "%s: the queue waits for an event",
                   what);
        SM_REQUIRE(!is_held_signal(b), STEP_NOT_DUE, "%s: a signal before it is held", what);
        if (sm_is_operation(b)) continue;
        SM_REQUIRE(b->committed, STEP_NOT_DUE, "%s: an enqueued buffer before it is not committed", what);
        SM_REQUIRE(b->executed || sm_independent(buffer, b), STEP_NOT_DUE,
                   "%s: a buffer before it shares a resource", what);
    }
    pthread_mutex_unlock(&buffer->engine->lock);
}

static void execute(SoftMetalCommandBuffer *buffer, const char *what)
{
    SM_REQUIRE(status_of(buffer) == SM_SCHEDULED && !buffer->executed, STEP_NOT_DUE, "%s: the status is %lu", what,
               status_of(buffer));
    require_turn(buffer, what);
    sm_mark_started(buffer);
    buffer->outcome = sm_execute(buffer);
    SM_REQUIRE(!buffer->timing_out || buffer->outcome, STEP_NOT_DUE, "%s: it waits for no event", what);
    pthread_mutex_lock(&buffer->engine->lock);
    buffer->executed = true;
    pthread_mutex_unlock(&buffer->engine->lock);
}

static bool runs_no_handlers(SoftMetalCommandBuffer *buffer)
{
    return buffer->lose || buffer->completed_blocks.count == 0;
}

static void end_buffer(SoftMetalCommandBuffer *buffer)
{
    sm_end_handlers(buffer);
    sm_release_handlers(buffer);
    sm_let_go(buffer);
}

static void complete(SoftMetalCommandBuffer *buffer, const char *what)
{
    SM_REQUIRE(!buffer->finished, STEP_NOT_DUE, "%s: the buffer is terminal", what);
    if (status_of(buffer) < SM_SCHEDULED) schedule(buffer, what);
    if (!buffer->executed) execute(buffer, what);
    sm_finish(buffer);
    if (runs_no_handlers(buffer)) end_buffer(buffer);
}

void softmetal_schedule(void *command_buffer) { step(command_buffer, "softmetal_schedule", schedule); }
void softmetal_execute(void *command_buffer) { step(command_buffer, "softmetal_execute", execute); }
void softmetal_complete(void *command_buffer) { step(command_buffer, "softmetal_complete", complete); }

/* ----------------------------------------------------------------------- the handlers -- */

unsigned softmetal_handler_count(void *command_buffer)
{
    SoftMetalCommandBuffer *buffer = sm_panel_argument(command_buffer, "softmetal_handler_count");
    pthread_mutex_lock(&buffer->engine->lock);
    unsigned count = buffer->completed_blocks.count;
    pthread_mutex_unlock(&buffer->engine->lock);
    return count;
}

static void require_handler(SoftMetalCommandBuffer *buffer, unsigned k, const char *what)
{
    SM_REQUIRE(k < buffer->completed_blocks.count, STEP_NOT_DUE, "%s: there is no handler %u", what, k);
}

static void post_handler(SoftMetalCommandBuffer *buffer, unsigned k, sm_job_kind kind)
{
    sm_job *job = calloc(1, sizeof *job);
    SM_REQUIRE(job, INTERNAL, "out of memory");
    job->buffer = buffer;
    job->kind = kind;
    job->handler = k;
    sm_engine_post(buffer->engine, job);
}

static void wait_for_state(SoftMetalCommandBuffer *buffer, unsigned k, sm_block_state state)
{
    while (buffer->completed_blocks.items[k].state < state) pthread_cond_wait(&buffer->changed, &buffer->engine->lock);
}

static void begin_handler(SoftMetalCommandBuffer *buffer, unsigned k, const char *what)
{
    pthread_mutex_lock(&buffer->engine->lock);
    require_handler(buffer, k, what);
    SM_REQUIRE(buffer->finished, STEP_NOT_DUE, "%s: the buffer is not complete", what);
    SM_REQUIRE(buffer->completed_blocks.items[k].state == SM_BLOCK_WAITING, STEP_NOT_DUE, "%s: handler %u was begun",
               what, k);
    post_handler(buffer, k, SM_JOB_HANDLER);
    wait_for_state(buffer, k, SM_BLOCK_RUNNING);
    pthread_mutex_unlock(&buffer->engine->lock);
}

static void join_handler(SoftMetalCommandBuffer *buffer, unsigned k, const char *what)
{
    pthread_mutex_lock(&buffer->engine->lock);
    require_handler(buffer, k, what);
    SM_REQUIRE(buffer->completed_blocks.items[k].state != SM_BLOCK_WAITING, STEP_NOT_DUE,
               "%s: handler %u was not begun", what, k);
    wait_for_state(buffer, k, SM_BLOCK_RAN);
    pthread_mutex_unlock(&buffer->engine->lock);
}

static void step_handler(void *command_buffer, unsigned k, const char *what, bool begins, bool joins)
{
    SoftMetalCommandBuffer *buffer = begin_step(command_buffer, what);
    if (begins) begin_handler(buffer, k, what);
    if (joins) join_handler(buffer, k, what);
    end_step(buffer);
}

void softmetal_begin_handler(void *buffer, unsigned k) { step_handler(buffer, k, "softmetal_begin_handler", true, false); }
void softmetal_join_handler(void *buffer, unsigned k) { step_handler(buffer, k, "softmetal_join_handler", false, true); }
void softmetal_run_handler(void *buffer, unsigned k) { step_handler(buffer, k, "softmetal_run_handler", true, true); }

void softmetal_call_handler_again(void *command_buffer, unsigned k)
{
    static const char what[] = "softmetal_call_handler_again";
    SoftMetalCommandBuffer *buffer = begin_step(command_buffer, what);
    pthread_mutex_lock(&buffer->engine->lock);
    require_handler(buffer, k, what);
    SM_REQUIRE(buffer->completed_blocks.items[k].state == SM_BLOCK_RAN, STEP_NOT_DUE,
               "%s: handler %u has not run", what, k);
    buffer->completed_blocks.items[k].state = SM_BLOCK_RUNNING;
    post_handler(buffer, k, SM_JOB_HANDLER_AGAIN);
    wait_for_state(buffer, k, SM_BLOCK_RAN);
    pthread_mutex_unlock(&buffer->engine->lock);
    end_step(buffer);
}

/* ----------------------------------------------------------------------- what is due -- */

/* But for waits of the queue. */
static bool has_its_turn(SoftMetalCommandBuffer *buffer)
{
    for (SoftMetalCommandBuffer *b = buffer->line_previous; b; b = b->line_previous)
        if (is_held_signal(b))
            return false;
        else if (sm_is_operation(b))
            continue;
        else if (!b->committed || (!b->executed && !sm_independent(buffer, b))) return false;
    return true;
}

/* The first wait of the queue, of those before the run, that holds it; nil. */
static SoftMetalCommandBuffer *holding_wait(SoftMetalCommandBuffer *run)
{
    SoftMetalCommandBuffer *first = nil;
    for (SoftMetalCommandBuffer *b = run->line_previous; b; b = b->line_previous)
        if (b->entry == SM_ENTRY_WAIT && !sm_wait_is_over(b)) first = b;
    return first;
}

/* By the event's value now, or by what the buffer itself signals before it. */
static bool is_reached(SoftMetalCommandBuffer *buffer, unsigned at)
{
    const sm_command *wait = &buffer->recorded.commands[at];
    if (sm_event_value(wait->object) >= wait->value) return true;
    while (at-- > 0) {
        const sm_command *other = &buffer->recorded.commands[at];
        if (other->kind == SM_SIGNAL && other->object == wait->object && other->value >= wait->value) return true;
    }
    return false;
}

/* Waits behind the signals that a fault waits for are not met. */
static bool waits_for_nothing(SoftMetalCommandBuffer *buffer)
{
    if (holding_wait(buffer)) return false;
    unsigned count = buffer->recorded.command_count;
    if (buffer->signals_before_fault > 0) count = sm_commands_before_fault(buffer);
    for (unsigned i = 0; i < count; i++)
        if (buffer->recorded.commands[i].kind == SM_WAIT && !is_reached(buffer, i)) return false;
    return true;
}

/* Under the engine's lock. */
static softmetal_due what_is_due(SoftMetalCommandBuffer *buffer)
{
    if (buffer->finished) return buffer->let_go ? SOFTMETAL_NOTHING_DUE : SOFTMETAL_HANDLERS_DUE;
    if (!buffer->committed || !(buffer->executed || has_its_turn(buffer))) return SOFTMETAL_NOTHING_DUE;
    if (buffer->executed || buffer->engine->device->removed || waits_for_nothing(buffer)) return SOFTMETAL_COMPLETE_DUE;
    bool fails_now = buffer->fault.set && buffer->signals_before_fault == 0;
    return fails_now && !holding_wait(buffer) ? SOFTMETAL_FAULT_DUE : SOFTMETAL_WAIT_DUE;
}

softmetal_due softmetal_what_is_due(void *command_buffer)
{
    SoftMetalCommandBuffer *buffer = begin_step(command_buffer, "softmetal_what_is_due");
    pthread_mutex_lock(&buffer->engine->lock);
    softmetal_due due = what_is_due(buffer);
    pthread_mutex_unlock(&buffer->engine->lock);
    end_step(buffer);
    return due;
}

void *softmetal_due_at(void *command_queue, unsigned k, softmetal_due *due)
{
    sm_check_argument((id)command_queue, [SoftMetalAnyQueue class], "queue of softmetal_due_at");
    sm_engine *engine = ((SoftMetalAnyQueue *)command_queue)->engine;
    pthread_mutex_lock(&engine->lock);
    SoftMetalCommandBuffer *buffer = engine->newest;
    while (buffer && k-- > 0) buffer = buffer->older;
    if (buffer) *due = what_is_due(buffer);
    pthread_mutex_unlock(&engine->lock);
    return buffer;
}

/* A wait of a queue is over; nothing else moves but what is then due of itself. */
static void time_out_wait(SoftMetalCommandBuffer *run, const char *what)
{
    pthread_mutex_lock(&run->engine->lock);
    SoftMetalCommandBuffer *wait = holding_wait(run);
    SM_REQUIRE(has_its_turn(run), STEP_NOT_DUE, "%s: a run before it shares a resource", what);
    SM_REQUIRE(wait, STEP_NOT_DUE, "%s: the queue waits for no event", what);
    wait->executed = true;
    pthread_mutex_unlock(&run->engine->lock);
    sm_advance_operations();
}

void softmetal_time_out(void *command_buffer)
{
    static const char what[] = "softmetal_time_out";
    SoftMetalCommandBuffer *buffer = begin_step(command_buffer, what);
    SM_REQUIRE(!buffer->executed, STEP_NOT_DUE, "%s: the work is done", what);
    if (buffer->entry == SM_ENTRY_RUN) {
        time_out_wait(buffer, what);
    } else {
        buffer->timing_out = true;
        complete(buffer, what);
    }
    end_step(buffer);
}

/* With the lock: what is a command buffer or a run. */
static SoftMetalCommandBuffer *first_work(sm_engine *engine)
{
    SoftMetalCommandBuffer *first = engine->line_first;
    while (first && sm_is_operation(first)) first = first->line_next;
    return first;
}

void *softmetal_first_in_line(void *command_queue)
{
    sm_check_argument((id)command_queue, [SoftMetalAnyQueue class], "queue of softmetal_first_in_line");
    sm_engine *engine = ((SoftMetalAnyQueue *)command_queue)->engine;
    pthread_mutex_lock(&engine->lock);
    void *first = first_work(engine);
    pthread_mutex_unlock(&engine->lock);
    return first;
}

/* ------------------------------------------------------------------------ all the rest -- */

/* A handler that was begun may be running at this moment. */
static bool is_waiting(SoftMetalCommandBuffer *buffer, unsigned k)
{
    pthread_mutex_lock(&buffer->engine->lock);
    bool waiting = buffer->completed_blocks.items[k].state == SM_BLOCK_WAITING;
    pthread_mutex_unlock(&buffer->engine->lock);
    return waiting;
}

static void finish(SoftMetalCommandBuffer *buffer, const char *what)
{
    if (!buffer->finished) complete(buffer, what);
    for (unsigned k = 0; !buffer->lose && k < buffer->completed_blocks.count; k++) {
        if (is_waiting(buffer, k)) begin_handler(buffer, k, what);
        join_handler(buffer, k, what);
    }
    end_buffer(buffer);
}

void softmetal_finish(void *command_buffer) { step(command_buffer, "softmetal_finish", finish); }

/* The first in line; then what is terminal but not at its end: the oldest committed one either way. */
static SoftMetalCommandBuffer *retain_next_unfinished(sm_engine *engine)
{
    SoftMetalCommandBuffer *next = nil;
    pthread_mutex_lock(&engine->lock);
    for (SoftMetalCommandBuffer *b = engine->newest; b; b = b->older)
        if (b->finished && !b->let_go) next = b;
    SoftMetalCommandBuffer *first = first_work(engine);
    if (!next && first && first->committed) next = first;
    [next retain];
    pthread_mutex_unlock(&engine->lock);
    return next;
}

void softmetal_finish_queue(void *command_queue)
{
    sm_check_argument((id)command_queue, [SoftMetalAnyQueue class], "softmetal_finish_queue");
    sm_engine *engine = ((SoftMetalAnyQueue *)command_queue)->engine;
    SM_REQUIRE(engine->clock == SOFTMETAL_MANUAL, STEP_REAL_CLOCK, "softmetal_finish_queue");
    SoftMetalCommandBuffer *buffer;
    /* The last handler may let go of the last reference to the queue. */
    [(id)command_queue retain];
    while ((buffer = retain_next_unfinished(engine))) {
        finish(buffer, "softmetal_finish_queue");
        [buffer release];
    }
    [(id)command_queue release];
}
