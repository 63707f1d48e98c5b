/* linux_runtime.m - what Apple's Objective-C runtime has and the GNU one lacks

   The method lookup behind msgsend.S with its counters, objc_retain and its kin, autorelease pools,
   and the last word on class_respondsToSelector. Linux only. */
#import "softmetal_internal.h"
#include <objc/message.h>
#include <objc/runtime.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------- message counting -- */

/* A selector of the GNU runtime: the same name has one id and may have several of these. */
struct selector_view {
    const void *id;
    const char *types;
};

#define SELECTORS 4096 /* a power of two, far above what a program sends */
static struct {
    const void *id; /* claimed by a compare-and-swap, kept for ever */
    uint64_t count;
} selectors[SELECTORS];

static uint64_t messages, retain_calls;
static __thread uint64_t thread_messages;

static uint64_t *counter_of(const void *id)
{
    uintptr_t hash = (uintptr_t)id * UINT64_C(0x9E3779B97F4A7C15);
    for (unsigned i = 0; i < SELECTORS; i++) {
        unsigned slot = (unsigned)((hash >> 40) + i) & (SELECTORS - 1);
        const void *seen = __atomic_load_n(&selectors[slot].id, __ATOMIC_RELAXED);
        if (!seen &&
            __atomic_compare_exchange_n(&selectors[slot].id, &seen, id, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            seen = id;
        if (seen == id) return &selectors[slot].count;
    }
    sm_abort(SM_RULE_INTERNAL, "more than %d selectors", SELECTORS);
}

static const void *id_of(SEL selector)
{
    return ((const struct selector_view *)(const void *)selector)->id;
}

static void count_message(SEL selector)
{
    thread_messages++;
    __atomic_fetch_add(&messages, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(counter_of(id_of(selector)), 1, __ATOMIC_RELAXED);
}

uint64_t sm_linux_messages(void)
{
    return __atomic_load_n(&messages, __ATOMIC_RELAXED);
}
uint64_t sm_linux_thread_messages(void)
{
    return thread_messages;
}
uint64_t sm_linux_retain_count_calls(void)
{
    return __atomic_load_n(&retain_calls, __ATOMIC_RELAXED);
}
uint64_t sm_linux_message_count(const char *selector)
{
    return __atomic_load_n(counter_of(id_of(sel_registerName(selector))), __ATOMIC_RELAXED);
}

void sm_linux_reset(void)
{
    __atomic_store_n(&messages, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&retain_calls, 0, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < SELECTORS; i++) __atomic_store_n(&selectors[i].count, 0, __ATOMIC_RELAXED);
}

/* ---------------------------------------------------------------------------- the lookup -- */

extern void softmetal_return_zero(void); /* msgsend.S */

/* The method to enter, and the object to enter it with. */
struct method_of {
    IMP method;
    id object;
};

/* Called by objc_msgSend with every argument register saved. */
struct method_of softmetal_lookup(id receiver, SEL selector);
struct method_of softmetal_lookup(id receiver, SEL selector)
{
    count_message(selector);
    if (!receiver) return (struct method_of){(IMP)softmetal_return_zero, nil};
    if (object_getClass(receiver) == sm_zombie_class() && sm_zombie_class())
        sm_abort(strcmp(sel_getName(selector), "release") == 0 ? SM_RULE_OVER_RELEASE : SM_RULE_MESSAGE_TO_FREED,
                 "%s sent to %p", sel_getName(selector), (void *)receiver);
    SM_REQUIRE(!sm_hidden(selector), HIDDEN_SELECTOR, "%s", sel_getName(selector));
    sm_hook_before(receiver, selector);
    receiver = sm_answering(receiver, selector);
    sm_note_arrival(receiver, selector); /* after the hook, which sends messages of its own */
    return (struct method_of){objc_msg_lookup(receiver, selector), receiver};
}

/* The GNU runtime's function of this name, with hidden selectors taken out. A wrapper's class says what it
   passes on. */
BOOL class_respondsToSelector(Class cls, SEL selector)
{
    if (!cls || !selector || sm_hidden(selector)) return NO;
    if (cls == [SoftMetalWrapper class]) cls = [SoftMetalCommandBuffer class];
    return class_getInstanceMethod(cls, selector) != NULL;
}

/* ---------------------------------------------------------------------- autorelease pools -- */

/* Foundation's pools, because Foundation's objects look for those. The ones open on this thread are
   written down, so that a pop of something else is noticed before it frees a pool twice. */
#define MAX_POOLS 256
static __thread void *pools[MAX_POOLS];
static __thread unsigned pool_count;

void *objc_autoreleasePoolPush(void);
void *objc_autoreleasePoolPush(void)
{
    SM_REQUIRE(pool_count < MAX_POOLS, POOL_ORDER, "more than %d pools on this thread", MAX_POOLS);
    return pools[pool_count++] = [[NSAutoreleasePool alloc] init];
}

/* As Apple's does, popping an outer pool pops those inside it. */
void objc_autoreleasePoolPop(void *token);
void objc_autoreleasePoolPop(void *token)
{
    unsigned place = pool_count;
    while (place > 0 && pools[place - 1] != token) place--;
    SM_REQUIRE(place > 0, POOL_ORDER, "token %p, %u pools on this thread", token, pool_count);
    pool_count = place - 1;
    [(NSAutoreleasePool *)token release];
}

unsigned sm_linux_pools(void)
{
    return pool_count;
}

/* Pools that the program makes by hand count too. */
bool sm_has_pool(void)
{
    return pool_count > 0 || [NSAutoreleasePool currentPool] != nil;
}

/* --------------------------------------------------------------------------- objc_retain -- */

id objc_retain(id object);
id objc_retain(id object)
{
    __atomic_fetch_add(&retain_calls, 1, __ATOMIC_RELAXED);
    return [object retain];
}

void objc_release(id object);
void objc_release(id object)
{
    __atomic_fetch_add(&retain_calls, 1, __ATOMIC_RELAXED);
    [object release];
}

id objc_autorelease(id object);
id objc_autorelease(id object)
{
    if (object) SM_REQUIRE(sm_has_pool(), NO_POOL, "%p, a %s", (void *)object, object_getClassName(object));
    return [object autorelease];
}

id objc_retainAutoreleasedReturnValue(id object);
id objc_retainAutoreleasedReturnValue(id object)
{
    return objc_retain(object);
}

/* ------------------------------------------------------------------------ object_getClass -- */

/* The GNU header has this one as an inline function only; programs want the symbol. */
Class sm_linux_class_of(id object) __asm__("object_getClass");
Class sm_linux_class_of(id object)
{
    return object ? object->class_pointer : Nil;
}
