/* softmetal_libdispatch.m - softmetal's dispatch queues under libdispatch's names

   An object file of its own: a program for a Mac that uses more of libdispatch than this is linked without it, and with
   the system's functions. Those know nothing of softmetal's queues. */
#import "softmetal_internal.h"

void *sm_libdispatch_attribute_of(void *attribute, unsigned qos_class, int relative_priority)
    SM_SYMBOL("dispatch_queue_attr_make_with_qos_class");
void *sm_libdispatch_attribute_of(void *attribute, unsigned qos_class, int relative_priority)
{
    return sm_dispatch_attribute_of(attribute, qos_class, relative_priority);
}

void *sm_libdispatch_queue_create(const char *label, void *attribute) SM_SYMBOL("dispatch_queue_create");
void *sm_libdispatch_queue_create(const char *label, void *attribute)
{
    (void)label;
    return sm_dispatch_queue_fails() ? nil : sm_dispatch_queue_new(attribute);
}

void *sm_libdispatch_global_queue(intptr_t identifier, uintptr_t flags) SM_SYMBOL("dispatch_get_global_queue");
void *sm_libdispatch_global_queue(intptr_t identifier, uintptr_t flags)
{
    return sm_dispatch_global_queue(identifier, flags);
}

void sm_libdispatch_async(void *queue, void *context, void (*function)(void *)) SM_SYMBOL("dispatch_async_f");
void sm_libdispatch_async(void *queue, void *context, void (*function)(void *))
{
    SM_BEFORE("dispatch_async_f");
    sm_dispatch_async(queue, context, function);
}

void sm_libdispatch_after(uint64_t when, void *queue, void *context, void (*function)(void *))
    SM_SYMBOL("dispatch_after_f");
void sm_libdispatch_after(uint64_t when, void *queue, void *context, void (*function)(void *))
{
    SM_BEFORE("dispatch_after_f");
    sm_dispatch_after(when, queue, context, function);
}

uint64_t sm_libdispatch_time(uint64_t when, int64_t delta) SM_SYMBOL("dispatch_time");
uint64_t sm_libdispatch_time(uint64_t when, int64_t delta) { return sm_dispatch_time(when, delta); }

void sm_libdispatch_retain(void *object) SM_SYMBOL("dispatch_retain");
void sm_libdispatch_retain(void *object)
{
    SM_BEFORE("dispatch_retain");
    sm_dispatch_retain(object, "dispatch_retain");
}

void sm_libdispatch_release(void *object) SM_SYMBOL("dispatch_release");
void sm_libdispatch_release(void *object)
{
    SM_BEFORE("dispatch_release");
    sm_dispatch_release(object);
}
