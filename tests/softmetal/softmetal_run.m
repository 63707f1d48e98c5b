/* softmetal_run.m - doing the work that a command buffer recorded */
#import "softmetal_internal.h"
#include <string.h>

static bool removed(SoftMetalCommandBuffer *buffer)
{
    return __atomic_load_n(&buffer->engine->device->removed, __ATOMIC_ACQUIRE);
}

/* A buffer that is going to end in Error does nothing any more, but for what comes before its fault. */
static bool doomed(SoftMetalCommandBuffer *buffer)
{
    pthread_mutex_lock(&buffer->engine->lock);
    bool faulty = buffer->fault.set && buffer->signals_made >= buffer->signals_before_fault;
    pthread_mutex_unlock(&buffer->engine->lock);
    return faulty || removed(buffer);
}

/* Whether it was the last signal before the buffer's fault: nothing behind it is done, not even a wait. */
static bool was_last_signal(SoftMetalCommandBuffer *buffer)
{
    pthread_mutex_lock(&buffer->engine->lock);
    bool last = ++buffer->signals_made == buffer->signals_before_fault && buffer->fault.set;
    pthread_mutex_unlock(&buffer->engine->lock);
    return last;
}

static void sit_out_hang(SoftMetalCommandBuffer *buffer)
{
    while (buffer->hang && !removed(buffer)) pthread_cond_wait(&buffer->changed, &buffer->engine->lock);
}

static void pass_time(SoftMetalCommandBuffer *buffer, uint64_t duration)
{
    sm_wait_precisely(&buffer->changed, &buffer->engine->lock, sm_after(sm_now(), duration),
                      &buffer->engine->device->removed, 0);
}

/* The buffer's own running time, spent before its first effect: early readers see old bytes. */
static void spend_duration(SoftMetalCommandBuffer *buffer)
{
    softmetal_timing timing;
    sm_timing(&timing);
    uint64_t drawn = sm_draw(timing.execute);
    pthread_mutex_lock(&buffer->engine->lock);
    sit_out_hang(buffer);
    pass_time(buffer, buffer->has_duration ? buffer->duration : drawn);
    sit_out_hang(buffer);
    pthread_mutex_unlock(&buffer->engine->lock);
}

/* A fixed duration of the buffer includes its kernels. */
static void spend_kernel(SoftMetalCommandBuffer *buffer, uint64_t duration)
{
    if (buffer->engine->clock == SOFTMETAL_MANUAL || duration == 0) return;
    pthread_mutex_lock(&buffer->engine->lock);
    if (!buffer->has_duration) pass_time(buffer, duration);
    pthread_mutex_unlock(&buffer->engine->lock);
}

static void dispatch(SoftMetalCommandBuffer *buffer, const sm_command *command)
{
    sm_kernel_entry kernel = sm_find_kernel(((SoftMetalPipeline *)command->object)->name);
    spend_kernel(buffer, kernel.duration);
    if (!kernel.fn || removed(buffer)) return;
    softmetal_kernel_args args;
    memset(&args, 0, sizeof args);
    memcpy(args.grid, command->grid, sizeof args.grid);
    for (unsigned i = 0; i < SM_BINDINGS; i++) {
        const sm_binding *binding = &command->bindings[i];
        args.lengths[i] = binding->length;
        if (binding->buffer)
            args.buffers[i] = ((SoftMetalBuffer *)binding->buffer)->bytes + binding->offset;
        else
            args.buffers[i] = binding->bytes;
    }
    kernel.fn(kernel.user, &args);
}

static void perform(SoftMetalCommandBuffer *buffer, const sm_command *command)
{
    SoftMetalBuffer *memory = command->object;
    switch (command->kind) {
    case SM_FILL: memset(memory->bytes + command->offset, (int)command->value, command->length); break;
    case SM_COPY:
        memmove(((SoftMetalBuffer *)command->destination)->bytes + command->destination_offset,
                memory->bytes + command->offset, command->length);
        break;
    case SM_DISPATCH: dispatch(buffer, command); break;
    case SM_SIGNAL: sm_event_raise(command->object, command->value); break;
    case SM_WAIT: break;
    }
}

/* The error (+1) that the wait ends the buffer with, or nil. */
static id wait_for_event(SoftMetalCommandBuffer *buffer, const sm_command *command)
{
    if (buffer->engine->clock == SOFTMETAL_MANUAL) {
        if (sm_event_value(command->object) >= command->value || doomed(buffer)) return nil;
        SM_REQUIRE(buffer->timing_out, STEP_NOT_DUE, "the buffer waits for value %llu of an event",
                   (unsigned long long)command->value);
        return sm_new_error_of_timeout();
    }
    const unsigned *gone = &buffer->engine->device->removed;
    switch (sm_event_device_wait(command->object, command->value, gone)) {
    case SM_WAIT_TIMEOUT: return sm_new_error_of_timeout();
    case SM_WAIT_REMOVED: return sm_new_error_of_removal(false);
    case SM_WAIT_REACHED: break;
    }
    return nil;
}

id sm_execute(SoftMetalCommandBuffer *buffer)
{
    bool spent = buffer->engine->clock == SOFTMETAL_MANUAL;
    for (unsigned i = 0; i < buffer->recorded.command_count; i++) {
        const sm_command *command = &buffer->recorded.commands[i];
        if (command->kind == SM_WAIT) {
            id error = wait_for_event(buffer, command);
            if (error) return error;
            buffer->stopped = i + 1;
            continue;
        }
        if (!spent) spend_duration(buffer);
        spent = true;
        if (doomed(buffer)) return nil; /* sm_finish says why */
        perform(buffer, command);
        buffer->stopped = i + 1;
        if (command->kind == SM_SIGNAL && was_last_signal(buffer)) return nil;
    }
    if (!spent) spend_duration(buffer);
    return nil;
}
