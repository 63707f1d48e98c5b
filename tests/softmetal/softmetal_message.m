/* softmetal_message.m - hidden selectors and classes, hooks on messages, message counts */
#import "softmetal_internal.h"
#include <objc/runtime.h>
#include <stdlib.h>
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

static void show_all_selectors(void)
{
    __atomic_store_n(&hidden_count, 0, __ATOMIC_RELEASE);
}

/* ---------------------------------------------------------------------- hidden classes -- */

static const char *hidden_class;

void softmetal_hide_class(const char *name)
{
    __atomic_store_n(&hidden_class, name, __ATOMIC_RELEASE);
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

/* Stands in front of the runtime's function of this name, for the program that softmetal is linked into. The runtimes
   declare it with different types, so it has a name of its own here. */
id sm_class_named(const char *name) __asm__(TEXT(__USER_LABEL_PREFIX__) "objc_getClass");
id sm_class_named(const char *name)
{
    const char *hidden = __atomic_load_n(&hidden_class, __ATOMIC_ACQUIRE);
    return hidden && strcmp(name, hidden) == 0 ? nil : (id)objc_lookUpClass(name);
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

void sm_hook_before(id object, SEL selector)
{
    if (!__atomic_load_n(&hook_function, __ATOMIC_RELAXED)) return;
    call_hook(SOFTMETAL_BEFORE, object, sel_getName(selector));
}

void sm_hook_after(id object, const char *selector)
{
    call_hook(SOFTMETAL_AFTER, object, selector);
}

/* ----------------------------------------------------------- did objc_msgSend send it? -- */

#ifdef __APPLE__

bool softmetal_sees_messages(void)
{
    return false;
}
bool sm_arrived(id object, SEL selector)
{
    (void)object, (void)selector;
    return true;
}
uint64_t softmetal_messages(void)
{
    return 0;
}
uint64_t softmetal_thread_messages(void)
{
    return 0;
}
uint64_t softmetal_message_count(const char *selector)
{
    (void)selector;
    return 0;
}
uint64_t softmetal_retain_count_calls(void)
{
    return 0;
}

#else

/* What objc_msgSend of this thread is about to enter. The method takes the note away, so that the
   same method, when softmetal itself calls it later, finds none. */
static __thread id arrived_object;
static __thread SEL arrived_selector;

void sm_note_arrival(id object, SEL selector)
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

bool softmetal_sees_messages(void)
{
    return true;
}
uint64_t softmetal_messages(void)
{
    return sm_linux_messages();
}
uint64_t softmetal_thread_messages(void)
{
    return sm_linux_thread_messages();
}
uint64_t softmetal_message_count(const char *selector)
{
    return sm_linux_message_count(selector);
}
uint64_t softmetal_retain_count_calls(void)
{
    return sm_linux_retain_count_calls();
}

#endif

void sm_message_reset(void)
{
    softmetal_set_message_hook(NULL, NULL);
    show_all_selectors();
    softmetal_hide_class(NULL);
    softmetal_set_gpu_clock(NULL);
#ifndef __APPLE__
    sm_linux_reset();
#endif
}
