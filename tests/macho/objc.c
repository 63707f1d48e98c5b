/* objc.c - Apple's Objective-C binary interface, on the GNU runtime

   The classes, selectors and constant strings of the program are registered with the GNU runtime before the
   program begins. So softmetal runs as it is built for a Mac, with GNUstep's Foundation. Only what clang makes of
   softmetal is known: no properties, protocols, weak references, +load. */
#define _GNU_SOURCE
#include "darwin.h"
#include <objc/message.h>
#include <objc/runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------- what clang writes for macOS */

typedef struct method {
    const char *name, *types;
    IMP function;
} method;
typedef struct method_list {
    uint32_t entry_size, count;
    method list[];
} method_list;
typedef struct class_data {
    uint32_t flags, instance_start, instance_size, reserved;
    const uint8_t *layout;
    const char *name;
    const method_list *methods;
} class_data;
typedef struct apple_class {
    struct apple_class *meta;
    void *superclass; /* another of the program's, or GNUstep's */
    void *cache, *vtable;
    const class_data *data;
} apple_class;
typedef struct category {
    const char *name;
    void *class;
    const method_list *methods, *class_methods;
} category;
typedef struct apple_string {
    void *class;
    uint64_t flags;
    const char *text;
    uint64_t length;
} apple_string;
typedef struct gnu_string {
    Class class;
    const char *text;
    unsigned length;
} gnu_string;
#define ASCII 0x7C8u

/* ------------------------------------------------------------------------------------------------- classes */

typedef struct adopted {
    const apple_class *from;
    Class class;
} adopted;
static adopted classes[200];
static unsigned class_count;

__attribute__((noreturn)) static void refuse(const char *what, const char *name)
{
    fprintf(stderr, "macho-run: Objective-C: %s: %s\n", name, what);
    exit(127);
}

static Class meta_of(Class class)
{
    return object_getClass((id)class);
}

/* A class or metaclass of the program's, or NULL. */
static Class known(const void *class)
{
    for (unsigned i = 0; i < class_count; i++) {
        if (classes[i].from == class) return classes[i].class;
        if (classes[i].from->meta == class) return meta_of(classes[i].class);
    }
    return Nil;
}

static void add_methods(Class class, const method_list *methods)
{
    if (!methods) return;
    if (methods->entry_size != sizeof(method)) refuse("relative methods are not known", class_getName(class));
    for (uint32_t i = 0; i < methods->count; i++)
        if (!class_addMethod(class, sel_registerName(methods->list[i].name), methods->list[i].function,
                             methods->list[i].types))
            refuse("a method is there twice", methods->list[i].name);
}

/* The superclass comes first. Its size is that which the compiler took it for, so no field moves. */
static void adopt(apple_class *class)
{
    const class_data *data = class->data;
    if (known(class)) return;
    if (darwin_in_program(class->superclass)) adopt(class->superclass);
    Class superclass = darwin_in_program(class->superclass) ? known(class->superclass) : class->superclass;
    size_t size = class_getInstanceSize(superclass);
    Class made = objc_allocateClassPair(superclass, data->name, 0);
    if (!made) refuse("there is one of this name already", data->name);
    if (size > data->instance_size) refuse("its superclass is too large", data->name);
    if (data->instance_size > size && !class_addIvar(made, data->name, data->instance_size - size, 0, "c"))
        refuse("no room for its fields", data->name);
    add_methods(made, data->methods);
    add_methods(meta_of(made), class->meta->data->methods);
    objc_registerClassPair(made);
    if (class_count == sizeof classes / sizeof *classes) refuse("too many classes", data->name);
    classes[class_count].from = class;
    classes[class_count++].class = made;
}

static void name_class(void **place)
{
    if (!darwin_in_program(*place)) return;
    *place = known(*place);
    if (!*place) refuse("a class that is not in the list", "?");
}

/* -------------------------------------------------------------------------------------------- the sections */

void darwin_objc_section(const char *name, void *start, size_t size, int round)
{
    void **at = start, **end = at + size / sizeof *at;
    if (round == 0 && strncmp(name, "__objc_classlist", 16) == 0) {
        for (; at < end; at++) adopt(*at);
    } else if (round == 0 && strncmp(name, "__objc_selrefs", 16) == 0) {
        for (; at < end; at++) *at = (void *)sel_registerName(*at);
    } else if (round == 0 && strncmp(name, "__cfstring", 16) == 0) {
        apple_string *string = start;
        for (; (void **)string < end; string++) {
            gnu_string made = {objc_lookUpClass("NSConstantString"), string->text, (unsigned)string->length};
            if (string->flags != ASCII) refuse("a string that is not ASCII", "?");
            memcpy(string, &made, sizeof made);
        }
    } else if (round == 1 && (strncmp(name, "__objc_classrefs", 16) == 0 || strncmp(name, "__objc_superrefs", 16) == 0)) {
        for (; at < end; at++) name_class(at);
    } else if (round == 1 && strncmp(name, "__objc_catlist", 16) == 0) {
        for (; at < end; at++) {
            category *of = *at;
            name_class(&of->class);
            add_methods(of->class, of->methods);
            add_methods(meta_of(of->class), of->class_methods);
        }
    }
}

/* ------------------------------------------------------------------------- functions that this runtime lacks */

/* Of the runtime's classes, by the names that compiled code has for them; NULL: none such. */
void *darwin_objc_symbol(const char *name)
{
    static const char class[] = "OBJC_CLASS_$_", meta[] = "OBJC_METACLASS_$_";
    if (strncmp(name, class, sizeof class - 1) == 0) return objc_lookUpClass(name + sizeof class - 1);
    if (strncmp(name, meta, sizeof meta - 1) != 0) return NULL;
    Class found = objc_lookUpClass(name + sizeof meta - 1);
    return found ? meta_of(found) : Nil;
}

struct super2 {
    id receiver;
    Class class;
};
IMP darwin_super_method(const struct super2 *to, SEL selector); /* for machine.S */
IMP darwin_super_method(const struct super2 *to, SEL selector)
{
    return class_getMethodImplementation(class_getSuperclass(to->class), selector);
}

static id send(id object, const char *name)
{
    SEL selector = sel_registerName(name);
    return ((id(*)(id, SEL))class_getMethodImplementation(object_getClass(object), selector))(object, selector);
}
id objc_alloc_init(Class class);
id objc_alloc_init(Class class)
{
    return send(send((id)class, "alloc"), "init");
}
id objc_autorelease(id object);
id objc_autorelease(id object)
{
    return object ? send(object, "autorelease") : object;
}
/* A header's inline function in this runtime. */
Class darwin_class_of(id object) __asm__("object_getClass");
Class darwin_class_of(id object)
{
    return object ? object->class_pointer : Nil;
}

extern void *_objc_empty_cache, *__CFConstantStringClassReference; /* never looked at */
void *_objc_empty_cache, *__CFConstantStringClassReference;
