/* softmetal_panel.m - settings, faults, the list of engines, settle and reset */
#import "softmetal_internal.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---------------------------------------------------------------------------- settings -- */

/* Word by word: settings are read on every commit and must not become a lock all threads share. */
static void copy_words(void *to, const void *from, size_t size)
{
    uint64_t *target = to;
    const uint64_t *source = from;
    for (size_t i = 0; i < size / sizeof *target; i++)
        __atomic_store_n(&target[i], __atomic_load_n(&source[i], __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

#define DEFAULT_WATCHDOG UINT64_C(5000000000)

static softmetal_timing timing_now = {.watchdog_ns = DEFAULT_WATCHDOG};
static union chaos_words { softmetal_chaos chaos; uint64_t words[(sizeof(softmetal_chaos) + 7) / 8]; } chaos_now;
static softmetal_clock clock_now;

void sm_timing(softmetal_timing *out) { copy_words(out, &timing_now, sizeof *out); }
void softmetal_get_timing(softmetal_timing *out) { sm_timing(out); }
void softmetal_set_timing(const softmetal_timing *timing) { copy_words(&timing_now, timing, sizeof *timing); }

/* Words: read often, and without a lock. */
typedef struct quirk_words { uint64_t words[(sizeof(softmetal_quirks) + 7) / 8]; } quirk_words;
static quirk_words quirks_now;

softmetal_quirks sm_quirks(void)
{
    softmetal_quirks quirks;
    quirk_words read;
    copy_words(&read, &quirks_now, sizeof read);
    memcpy(&quirks, &read, sizeof quirks);
    return quirks;
}
bool sm_quirk_at(size_t offset) { return __atomic_load_n((const bool *)&quirks_now + offset, __ATOMIC_RELAXED); }
void softmetal_get_quirks(softmetal_quirks *out) { *out = sm_quirks(); }
void softmetal_set_quirks(const softmetal_quirks *quirks)
{
    quirk_words given = {{0}};
    memcpy(&given, quirks, sizeof *quirks);
    copy_words(&quirks_now, &given, sizeof given);
    sm_advance_operations(); /* signals that were held */
}

softmetal_chaos sm_chaos(void)
{
    union chaos_words read;
    copy_words(&read, &chaos_now, sizeof read);
    return read.chaos;
}

void softmetal_set_chaos(const softmetal_chaos *chaos)
{
    union chaos_words given = {.chaos = *chaos};
    copy_words(&chaos_now, &given, sizeof given);
}

softmetal_clock sm_clock(void) { return __atomic_load_n(&clock_now, __ATOMIC_RELAXED); }
void softmetal_set_clock(softmetal_clock clock) { __atomic_store_n(&clock_now, clock, __ATOMIC_RELAXED); }

/* -------------------------------------------------------------------- creations that fail -- */

typedef struct sm_creations { unsigned count, failing; bool persistent; } sm_creations;
static sm_creations of_metal, of_dispatch;

static void fail_creation(sm_creations *kind, unsigned n, bool persistent)
{
    __atomic_store_n(&kind->failing, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&kind->count, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&kind->persistent, persistent, __ATOMIC_RELAXED);
    __atomic_store_n(&kind->failing, n, __ATOMIC_RELEASE);
}

static bool creation_fails(sm_creations *kind)
{
    unsigned chosen = __atomic_load_n(&kind->failing, __ATOMIC_RELAXED);
    unsigned number = __atomic_add_fetch(&kind->count, 1, __ATOMIC_RELAXED);
    if (chosen == 0) return false;
    return number == chosen || (number > chosen && __atomic_load_n(&kind->persistent, __ATOMIC_RELAXED));
}

void softmetal_fail_creation(unsigned n, bool persistent) { fail_creation(&of_metal, n, persistent); }
void softmetal_fail_dispatch_queue(unsigned n, bool persistent) { fail_creation(&of_dispatch, n, persistent); }

unsigned softmetal_creations(void) { return __atomic_load_n(&of_metal.count, __ATOMIC_RELAXED); }

bool sm_creation_fails(void) { return creation_fails(&of_metal); }
bool sm_dispatch_queue_fails(void) { return creation_fails(&of_dispatch); }

static unsigned failures_left;
static unsigned failure_number;

void softmetal_fail_next_as(unsigned n, unsigned reason)
{
    sm_check_reason(reason, "softmetal_fail_next_as");
    __atomic_store_n(&failures_left, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&failure_number, reason, __ATOMIC_RELAXED);
    __atomic_store_n(&failures_left, n, __ATOMIC_RELEASE);
}

bool sm_take_failure(sm_fault *fault)
{
    unsigned left = __atomic_load_n(&failures_left, __ATOMIC_RELAXED);
    while (left > 0) {
        if (!__atomic_compare_exchange_n(&failures_left, &left, left - 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        *fault = (sm_fault){.by_number = true, .number = __atomic_load_n(&failure_number, __ATOMIC_RELAXED)};
        return true;
    }
    return false;
}

/* --------------------------------------------------------------- faults of one buffer -- */

void softmetal_prepare_run(void *command_buffer4, void *command_queue)
{
    sm_check_argument((id)command_buffer4, [SoftMetalCommandBuffer4 class], "softmetal_prepare_run");
    sm_check_argument((id)command_queue, [SoftMetalQueue4 class], "softmetal_prepare_run");
    SoftMetalCommandBuffer4 *buffer = command_buffer4;
    [buffer->run release];
    buffer->run = sm_command_buffer_new(SM_ENTRY_RUN, command_queue);
}

void *softmetal_run_of(void *command_buffer4)
{
    sm_check_argument((id)command_buffer4, [SoftMetalCommandBuffer4 class], "softmetal_run_of");
    return ((SoftMetalCommandBuffer4 *)command_buffer4)->run;
}

SoftMetalCommandBuffer *sm_panel_argument(void *command_buffer, const char *what)
{
    if (![(id)command_buffer isKindOfClass:[SoftMetalCommandBuffer4 class]]) {
        sm_check_argument((id)command_buffer, [SoftMetalCommandBuffer class], what);
        return command_buffer;
    }
    SoftMetalCommandBuffer *run = ((SoftMetalCommandBuffer4 *)command_buffer)->run;
    SM_REQUIRE(run, PANEL_MISUSE, "%s: no run was prepared for this command buffer", what);
    return run;
}

/* Locks the buffer's engine; the fault must still have an effect, so the buffer is unfinished. */
static SoftMetalCommandBuffer *lock_unfinished(void *command_buffer, const char *what)
{
    SoftMetalCommandBuffer *buffer = sm_panel_argument(command_buffer, what);
    pthread_mutex_lock(&buffer->engine->lock);
    SM_REQUIRE(!buffer->finished, PANEL_MISUSE, "%s: the buffer is terminal", what);
    return buffer;
}

static SoftMetalCommandBuffer *lock_unhandled(void *command_buffer, const char *what)
{
    SoftMetalCommandBuffer *buffer = sm_panel_argument(command_buffer, what);
    pthread_mutex_lock(&buffer->engine->lock);
    SM_REQUIRE(!buffer->handlers_done, PANEL_MISUSE, "%s: the handlers have run", what);
    return buffer;
}

static void unlock(SoftMetalCommandBuffer *buffer)
{
    pthread_cond_broadcast(&buffer->changed);
    pthread_mutex_unlock(&buffer->engine->lock);
}

static NSString *new_string_or_nil(const char *text) { return text ? sm_new_string(text) : nil; }

void softmetal_fail(void *command_buffer, const char *domain, long code, const char *text)
{
    SoftMetalCommandBuffer *buffer = lock_unfinished(command_buffer, "softmetal_fail");
    sm_set_fault(buffer, (sm_fault){
                             .code = code, .domain = new_string_or_nil(domain), .text = new_string_or_nil(text)});
    unlock(buffer);
}

void softmetal_fail_as(void *command_buffer, unsigned reason, const char *text)
{
    sm_check_reason(reason, "softmetal_fail_as");
    SoftMetalCommandBuffer *buffer = lock_unfinished(command_buffer, "softmetal_fail_as");
    sm_set_fault(buffer, (sm_fault){.by_number = true, .number = reason, .text = new_string_or_nil(text)});
    unlock(buffer);
}

void softmetal_fail_after_signals(void *command_buffer, unsigned n)
{
    SoftMetalCommandBuffer *buffer = lock_unfinished(command_buffer, "softmetal_fail_after_signals");
    buffer->signals_before_fault = n;
    if (!buffer->fault.set) sm_set_fault(buffer, (sm_fault){.by_number = true, .number = SOFTMETAL_INTERNAL});
    unlock(buffer);
}

void softmetal_set_encoder_states(void *command_buffer, const long *states, unsigned count)
{
    long *copy = calloc(count + 1, sizeof *copy);
    SM_REQUIRE(copy, INTERNAL, "out of memory");
    for (unsigned k = 0; k < count; k++) copy[k] = states[k];
    SoftMetalCommandBuffer *buffer = lock_unfinished(command_buffer, "softmetal_set_encoder_states");
    free(buffer->encoder_states);
    buffer->encoder_states = copy;
    buffer->encoder_state_count = count;
    unlock(buffer);
}

void softmetal_set_duration(void *command_buffer, uint64_t ns)
{
    SoftMetalCommandBuffer *buffer = lock_unfinished(command_buffer, "softmetal_set_duration");
    buffer->has_duration = true;
    buffer->duration = ns;
    unlock(buffer);
}

void softmetal_status_after_handlers(void *command_buffer)
{
    SoftMetalCommandBuffer *buffer = lock_unfinished(command_buffer, "softmetal_status_after_handlers");
    buffer->status_after = true;
    unlock(buffer);
}

static void set_hang(void *command_buffer, unsigned hang, const char *what)
{
    SoftMetalCommandBuffer *buffer = lock_unfinished(command_buffer, what);
    buffer->hang = hang;
    unlock(buffer);
}

void softmetal_hang(void *command_buffer) { set_hang(command_buffer, 1, "softmetal_hang"); }
void softmetal_unhang(void *command_buffer) { set_hang(command_buffer, 0, "softmetal_unhang"); }

void softmetal_hold_handlers(void *command_buffer)
{
    SoftMetalCommandBuffer *buffer = lock_unhandled(command_buffer, "softmetal_hold_handlers");
    buffer->hold = true;
    unlock(buffer);
}

void softmetal_lose_handlers(void *command_buffer)
{
    SoftMetalCommandBuffer *buffer = lock_unhandled(command_buffer, "softmetal_lose_handlers");
    buffer->lose = true;
    unlock(buffer);
}

/* With the lock: the completion thread gets the buffer again. */
static void unpark(SoftMetalCommandBuffer *buffer)
{
    buffer->hold = false;
    if (!buffer->parked) return;
    buffer->parked = false;
    buffer->engine->unsettled++;
    sm_job *job = calloc(1, sizeof *job);
    SM_REQUIRE(job, INTERNAL, "out of memory");
    job->buffer = buffer;
    job->kind = SM_JOB_COMPLETED;
    job->published = true;
    sm_engine_post(buffer->engine, job);
}

void softmetal_deliver(void *command_buffer)
{
    SoftMetalCommandBuffer *buffer = lock_unhandled(command_buffer, "softmetal_deliver");
    SM_REQUIRE(buffer->hold, PANEL_MISUSE, "softmetal_deliver: the handlers are not held");
    unpark(buffer);
    unlock(buffer);
}

/* -------------------------------------------------------------------- list of engines -- */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static sm_engine *engines;

void sm_registry_add(sm_engine *engine)
{
    pthread_mutex_lock(&registry_lock);
    engine->next = engines;
    if (engines) engines->previous = engine;
    engines = engine;
    pthread_mutex_unlock(&registry_lock);
}

void sm_registry_remove(sm_engine *engine)
{
    pthread_mutex_lock(&registry_lock);
    if (engine->previous)
        engine->previous->next = engine->next;
    else
        engines = engine->next;
    if (engine->next) engine->next->previous = engine->previous;
    pthread_mutex_unlock(&registry_lock);
}

bool sm_for_each_engine(bool (*visit)(sm_engine *engine, void *user), void *user)
{
    bool go_on = true;
    pthread_mutex_lock(&registry_lock);
    for (sm_engine *engine = engines; engine && go_on; engine = engine->next) {
        pthread_mutex_lock(&engine->lock);
        go_on = visit(engine, user);
        pthread_mutex_unlock(&engine->lock);
    }
    pthread_mutex_unlock(&registry_lock);
    return go_on;
}

/* Removal ends every latency, so that no thread waits for a schedule that is far away. */
static bool wake_everything(sm_engine *engine, void *device)
{
    if (engine->device != device || engine->dying) return true;
    for (sm_job *job = engine->first_job; job; job = job->next)
        if (job->kind == SM_JOB_SCHEDULE) job->due = 0;
    pthread_cond_broadcast(&engine->jobs_changed);
    pthread_cond_broadcast(&engine->work);
    for (SoftMetalCommandBuffer *b = engine->line_first; b; b = b->line_next) pthread_cond_broadcast(&b->changed);
    return true;
}

void softmetal_remove_device(void *device)
{
    sm_check_argument((id)device, [SoftMetalDevice class], "device of softmetal_remove_device");
    __atomic_store_n(&((SoftMetalDevice *)device)->removed, 1, __ATOMIC_RELEASE);
    sm_for_each_engine(wake_everything, device);
    sm_advance_operations();
}

/* ------------------------------------------------------------------------------ settle -- */

/* Polls: a lock or a counter shared by all queues would order threads that Metal does not order. */
static bool poll_until(bool (*ready)(void), uint64_t timeout_ns)
{
    uint64_t deadline = sm_after(sm_now(), timeout_ns);
    while (!ready()) {
        if (sm_now() >= deadline) return false;
        struct timespec nap = {0, 20000};
        nanosleep(&nap, NULL);
    }
    return true;
}

static bool engine_is_settled(sm_engine *engine, void *unused)
{
    (void)unused;
    return engine->unsettled == 0;
}

static uint64_t activity;

void sm_note_activity(void) { __atomic_fetch_add(&activity, 1, __ATOMIC_RELAXED); }

static bool listeners_settled(void) { return sm_notifications_settled() && sm_dispatch_settled(); }

/* Work goes round: a handler dispatches a function that commits. It must not slip past behind the look. */
static bool settled(void)
{
    uint64_t before = __atomic_load_n(&activity, __ATOMIC_SEQ_CST);
    return sm_for_each_engine(engine_is_settled, NULL) && listeners_settled() && sm_drawables_settled() &&
           __atomic_load_n(&activity, __ATOMIC_SEQ_CST) == before;
}

bool softmetal_settle(uint64_t timeout_ns) { return poll_until(settled, timeout_ns); }

bool softmetal_settle_listeners(uint64_t timeout_ns) { return poll_until(listeners_settled, timeout_ns); }

bool softmetal_dispatched(uint64_t timeout_ns)
{
    return sm_in_dispatched() || poll_until(sm_dispatch_settled, timeout_ns);
}

/* ------------------------------------------------------------------------------- reset -- */

static bool require_no_work(sm_engine *engine, void *unused)
{
    (void)unused;
    for (SoftMetalCommandBuffer *b = engine->newest; b; b = b->older)
        SM_REQUIRE(!b->committed || b->finished, RESET_WITH_WORK, "%p", (void *)b);
    /* Signals in front of which nothing is left are about to fire. */
    for (SoftMetalCommandBuffer *b = engine->line_first; b; b = b->line_next)
        SM_REQUIRE(b->entry != SM_ENTRY_WAIT || sm_wait_is_over(b), RESET_WITH_WORK, "a wait of a Metal 4 queue");
    return true;
}

/* Handlers that the test held and never delivered are lost. */
static bool lose_parked(sm_engine *engine, void *unused)
{
    (void)unused;
    for (SoftMetalCommandBuffer *b = engine->newest; b; b = b->older) {
        if (b->handlers_done || !b->hold) continue;
        b->lose = true;
        unpark(b);
    }
    return true;
}

static bool find_abandoned(sm_engine *engine, void *found)
{
    if (engine->clock != SOFTMETAL_MANUAL) return true;
    for (SoftMetalCommandBuffer *b = engine->newest; b; b = b->older) {
        if (!b->finished || b->let_go) continue;
        *(SoftMetalCommandBuffer **)found = [b retain];
        return false;
    }
    return true;
}

/* Terminal buffers of the manual clock that the test did not step to their end. */
static void abandon_manual_buffers(void)
{
    for (;;) {
        SoftMetalCommandBuffer *buffer = nil;
        if (sm_for_each_engine(find_abandoned, &buffer)) return;
        sm_engine *engine = buffer->engine;
        sm_engine_retain(engine);
        sm_end_handlers(buffer);
        sm_release_handlers(buffer);
        sm_let_go(buffer);
        [buffer release];
        sm_engine_release(engine);
    }
}

static bool engine_is_alive(sm_engine *engine, void *unused)
{
    (void)unused;
    return !engine->dying;
}

/* Functions arm timers, and those fire: none is left only where nothing has begun since the look at them. */
static bool at_rest(void)
{
    uint64_t before = __atomic_load_n(&activity, __ATOMIC_SEQ_CST);
    return !sm_drop_timers() && settled() && sm_for_each_engine(engine_is_alive, NULL) &&
           __atomic_load_n(&activity, __ATOMIC_SEQ_CST) == before;
}

static bool readmit_device(sm_engine *engine, void *unused)
{
    (void)unused;
    if (!engine->dying) __atomic_store_n(&engine->device->removed, 0, __ATOMIC_RELEASE);
    return true;
}

static void default_settings(void)
{
    softmetal_set_clock(SOFTMETAL_REAL);
    softmetal_set_timing(&(softmetal_timing){.watchdog_ns = DEFAULT_WATCHDOG});
    softmetal_set_chaos(&(softmetal_chaos){.fail_per_mille = 0});
    softmetal_set_quirks(&(softmetal_quirks){.status_early = false});
    softmetal_set_seed(1);
    softmetal_fail_next_as(0, SOFTMETAL_INTERNAL);
    softmetal_fail_creation(0, false);
    softmetal_fail_dispatch_queue(0, false);
}

#define REST_LIMIT UINT64_C(10000000000)

void softmetal_reset(void)
{
    sm_for_each_engine(require_no_work, NULL);
    sm_for_each_engine(lose_parked, NULL);
    abandon_manual_buffers();
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    SM_REQUIRE(poll_until(at_rest, REST_LIMIT), RESET_WITH_WORK,
               "a handler, a listener or a dispatched function does not end");
    sm_for_each_engine(readmit_device, NULL);
    default_settings();
    sm_dispatch_reset();
    sm_library_reset();
    sm_message_reset();
}
