/* linux_runtime.m - functions of Apple's Objective-C runtime that programs call, and that the GNU one lacks. Linux only. */
#import "softmetal_internal.h"

id objc_autorelease(id object);
id objc_autorelease(id object)
{
    if (object) SM_REQUIRE(sm_has_pool(), NO_POOL, "%p, a %s", (void *)object, object_getClassName(object));
    return [object autorelease];
}

/* The GNU header has this one as an inline function only; programs want the symbol. */
Class sm_linux_class_of(id object) SM_SYMBOL("object_getClass");
Class sm_linux_class_of(id object) { return object ? object->class_pointer : Nil; }
