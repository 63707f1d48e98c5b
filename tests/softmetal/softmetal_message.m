/* softmetal_message.m - the program's messages: hidden selectors and classes, hooks, counts, the way to the method */
#ifdef __linux__
#define _GNU_SOURCE /* dladdr */
#endif
#import "softmetal_internal.h"
#include <dlfcn.h>
#include <objc/message.h>
#include <objc/runtime.h>
#include <string.h>

/* -------------------------------------------------------------------- hidden selectors -- */

#define MAX_HIDDEN 32
static const char *hidden_names[MAX_HIDDEN]; /* of the runtime: never freed, as threads on their way out may still ask */
static unsigned hidden_count; /* published after the name it counts */

void softmetal_hide_selector(const char *selector)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    SM_REQUIRE(selector, PANEL_MISUSE, "softmetal_hide_selector without a name");
    pthread_mutex_lock(&lock);
    unsigned count = hidden_count;
    SM_REQUIRE(count < MAX_HIDDEN, PANEL_MISUSE, "more than %d hidden selectors", MAX_HIDDEN);
    __atomic_store_n(&hidden_names[count], sel_getName(sel_registerName(selector)), __ATOMIC_RELAXED);
    __atomic_store_n(&hidden_count, count + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}

bool sm_hidden(SEL selector)
{
    unsigned count = __atomic_load_n(&hidden_count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++)
        if (strcmp(__atomic_load_n(&hidden_names[i], __ATOMIC_RELAXED), sel_getName(selector)) == 0) return true;
    return false;
}

static void show_all_selectors(void) { __atomic_store_n(&hidden_count, 0, __ATOMIC_RELEASE); }

/* In front of the runtime's, with hidden selectors taken out. */
BOOL sm_class_responds(Class cls, SEL selector) SM_SYMBOL("class_respondsToSelector");
BOOL sm_class_responds(Class cls, SEL selector)
{
    if (!cls || !selector || sm_hidden(selector)) return NO;
    return class_getInstanceMethod(cls, selector) != NULL;
}

/* ---------------------------------------------------------------------- hidden classes -- */

static const char *hidden_class;

void softmetal_hide_class(const char *name) { __atomic_store_n(&hidden_class, name, __ATOMIC_RELEASE); }

/* In front of the runtime's, too. */
id sm_class_named(const char *name) SM_SYMBOL("objc_getClass");
id sm_class_named(const char *name)
{
    const char *hidden = __atomic_load_n(&hidden_class, __ATOMIC_ACQUIRE);
    if (hidden && strcmp(name, hidden) == 0) return nil;
    if (strcmp(name, "CAMetalLayer") != 0) return (id)objc_lookUpClass(name);
    /* Under this name it would be in the way of QuartzCore's. tests/vulkan has none. */
    return sm_device_class() == [SoftMetalDevice class] ? (id)[SoftMetalLayer class] : nil;
}

/* A runtime knows the class that was registered first by its name, and programs get that one. On a Mac it is Metal's
   where Metal is in the process, which it is as soon as AppKit is (unverified). */
void sm_require_own_classes(void)
{
    static const char *const names[] = {"MTLSharedEventListener",         "MTLCommandBufferDescriptor",
                                        "MTL4CommandQueueDescriptor",     "MTL4ArgumentTableDescriptor",
                                        "MTL4CommitOptions"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        Class cls = objc_lookUpClass(names[i]);
        if (sm_descends(cls, [SoftMetalObject class])) continue;
        Dl_info where = {.dli_fname = NULL};
        dladdr((void *)cls, &where);
        sm_abort(SM_RULE_CLASS_TAKEN, "%s is that of %s", names[i], where.dli_fname ? where.dli_fname : "the program");
    }
}

/* ------------------------------------------------------------------------------- hooks -- */

static softmetal_message_hook hook_function;
static void *hook_user;
static __thread bool in_hook;

/* The user pointer is published by the function pointer. */
void softmetal_set_message_hook(softmetal_message_hook hook, void *user)
{
    __atomic_store_n(&hook_function, (softmetal_message_hook)NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&hook_user, user, __ATOMIC_RELAXED);
    __atomic_store_n(&hook_function, hook, __ATOMIC_RELEASE);
}

static void call_hook(softmetal_phase phase, id object, const char *selector)
{
    softmetal_message_hook hook = __atomic_load_n(&hook_function, __ATOMIC_ACQUIRE);
    if (!hook || in_hook) return;
    in_hook = true;
    hook(__atomic_load_n(&hook_user, __ATOMIC_RELAXED), phase, object, selector);
    in_hook = false;
}

static void sm_hook_before(id object, SEL selector)
{
    if (!__atomic_load_n(&hook_function, __ATOMIC_RELAXED)) return;
    call_hook(SOFTMETAL_BEFORE, object, sel_getName(selector));
}

void sm_hook_after(id object, const char *selector) { call_hook(SOFTMETAL_AFTER, object, selector); }

void (*softmetal_before)(const char *name);

/* ------------------------------------------------------------------------------- counts -- */

/* What is the same for all selectors of a name. */
static const void *id_of(SEL selector)
{
#ifdef __APPLE__
    return (const void *)selector;
#else
    return *(const void *const *)(const void *)selector; /* the GNU runtime has one for each type that it met */
#endif
}

#define SELECTORS 4096 /* a power of two, far above what a program sends */
static struct {
    const void *id; /* claimed by a compare-and-swap, kept for ever */
    uint64_t count;
} selectors[SELECTORS];

static uint64_t messages;

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

static void count_message(SEL selector)
{
    __atomic_fetch_add(&messages, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(counter_of(id_of(selector)), 1, __ATOMIC_RELAXED);
}

uint64_t softmetal_messages(void) { return __atomic_load_n(&messages, __ATOMIC_RELAXED); }
uint64_t softmetal_message_count(const char *selector)
{
    return __atomic_load_n(counter_of(id_of(sel_registerName(selector))), __ATOMIC_RELAXED);
}

static void count_from_zero(void)
{
    __atomic_store_n(&messages, 0, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < SELECTORS; i++) __atomic_store_n(&selectors[i].count, 0, __ATOMIC_RELAXED);
}

/* Each becomes a message: build.mk keeps clang from calling the function in its place. */
id sm_retain(id object) SM_SYMBOL("objc_retain");
id sm_retain(id object) { return [object retain]; }

void sm_release(id object) SM_SYMBOL("objc_release");
void sm_release(id object)
{
    SM_BEFORE("objc_release");
    [object release];
}

/* --------------------------------------------------------- the program's or softmetal's? -- */

/* What objc_msgSend of this thread is about to enter. The method takes the note away, so that the
   same method, when softmetal itself calls it later, finds none. */
static __thread id arrived_object;
static __thread SEL arrived_selector;

static void note_arrival(id object, SEL selector)
{
    arrived_object = object;
    arrived_selector = selector;
}

bool sm_arrived(id object, SEL selector)
{
    bool arrived = arrived_object == object && arrived_selector && sel_isEqual(arrived_selector, selector);
    arrived_object = nil;
    return arrived;
}

/* ---------------------------------------------------------------------------- the lookup -- */

extern void softmetal_return_zero(void); /* softmetal_msgsend.S */

/* The method to enter, and the object to enter it with. */
struct method_of {
    IMP method;
    id object;
};

/* As the runtime's own objc_msgSend finds it: of a class's first message, of a class, of one that is forwarded. The GNU
   runtime forwards only where it is told the object. */
static struct method_of method_of(id object, SEL selector)
{
#ifdef __APPLE__
    return (struct method_of){class_getMethodImplementation(object_getClass(object), selector), object};
#else
    return (struct method_of){objc_msg_lookup(object, selector), object};
#endif
}

/* Called by objc_msgSend with every argument register saved. */
struct method_of softmetal_lookup(id receiver, SEL selector);
struct method_of softmetal_lookup(id receiver, SEL selector)
{
    SM_BEFORE("objc_msgSend");
    count_message(selector);
    if (!receiver) return (struct method_of){(IMP)softmetal_return_zero, nil};
    if (object_getClass(receiver) == sm_zombie_class() && sm_zombie_class())
        sm_abort(strcmp(sel_getName(selector), "release") == 0 ? SM_RULE_OVER_RELEASE : SM_RULE_MESSAGE_TO_FREED,
                 "%s sent to %p", sel_getName(selector), (void *)receiver);
    SM_REQUIRE(!sm_hidden(selector), HIDDEN_SELECTOR, "%s", sel_getName(selector));
    sm_hook_before(receiver, selector);
    note_arrival(receiver, selector); /* after the hook, which sends messages of its own */
    return method_of(receiver, selector);
}

#ifdef __APPLE__
/* The same for softmetal's own messages. */
struct method_of softmetal_own_lookup(id receiver, SEL selector);
struct method_of softmetal_own_lookup(id receiver, SEL selector)
{
    return receiver ? method_of(receiver, selector) : (struct method_of){(IMP)softmetal_return_zero, nil};
}
#endif

void sm_message_reset(void)
{
    softmetal_set_message_hook(NULL, NULL);
    show_all_selectors();
    softmetal_hide_class(NULL);
    softmetal_set_gpu_clock(NULL);
    count_from_zero();
}
