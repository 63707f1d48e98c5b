/* vulkan_event.m - shared events: the host's value, and the places of Vulkan's semaphores that raise it */
#import "vulkan_internal.h"
#include <stdlib.h>

static bool is_reached(const vulkan_signal *signal)
{
    uint64_t now;
    VK_DO(vkGetSemaphoreCounterValue(signal->engine->device->device, signal->engine->semaphore, &now));
    return now >= signal->place;
}

void vulkan_event_add(VulkanEvent *event, vulkan_engine *engine, uint64_t place, uint64_t value)
{
    event->signals = realloc(event->signals, (event->signal_count + 1) * sizeof *event->signals);
    SM_REQUIRE(event->signals, INTERNAL, "out of memory");
    event->signals[event->signal_count++] = (vulkan_signal){engine, place, value};
}

/* One that is reached comes first: Vulkan makes what was written before it visible to the part that waits. One that is
   pending is nothing to wait for where the host has raised the event already. */
const vulkan_signal *vulkan_event_signal(VulkanEvent *event, uint64_t value)
{
    const vulkan_signal *pending = NULL;
    for (unsigned i = 0; i < event->signal_count; i++) {
        const vulkan_signal *signal = &event->signals[i];
        if (signal->value < value) continue;
        if (is_reached(signal)) return signal;
        if (!pending || signal->value < pending->value) pending = signal;
    }
    return sm_event_value(event) < value ? pending : NULL;
}

/* Of the signals that are reached, the highest stays. */
void vulkan_event_look(VulkanEvent *event)
{
    uint64_t value = 0;
    unsigned kept = 0;
    pthread_mutex_lock(&event->owner->lock);
    for (unsigned i = 0; i < event->signal_count; i++)
        if (event->signals[i].value > value && is_reached(&event->signals[i])) value = event->signals[i].value;
    for (unsigned i = 0; i < event->signal_count; i++)
        if (event->signals[i].value >= value || !is_reached(&event->signals[i]))
            event->signals[kept++] = event->signals[i];
    event->signal_count = kept;
    pthread_mutex_unlock(&event->owner->lock);
    if (value > sm_event_value(event)) sm_event_raise(event, value);
}

@implementation VulkanEvent

- (uint64_t)signaledValue
{
    vulkan_event_look(self);
    return [super signaledValue];
}

- (void)setSignaledValue:(uint64_t)wanted
{
    [super setSignaledValue:wanted];
    pthread_mutex_lock(&owner->lock);
    vulkan_pump(owner);
    pthread_mutex_unlock(&owner->lock);
}

- (void)dealloc
{
    free(signals);
    [owner release];
    [super dealloc];
}

@end
