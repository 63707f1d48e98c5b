/* softmetal_object.m - reference counts, zombies, live counts, rules */
#import "softmetal_internal.h"
#include <objc/runtime.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------------------ rules -- */

static const struct { const char *name, *text; } rules[] = {
#define SM_RULE_ROW(identifier, name, text) {name, text},
    SM_RULES(SM_RULE_ROW) SM_RULES_OF_METAL4(SM_RULE_ROW)
#undef SM_RULE_ROW
};

static bool aborting;

void sm_abort(sm_rule rule, const char *format, ...)
{
    static const struct timespec nap = {1, 0};
    char detail[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    fprintf(stderr, "softmetal: %s: %s (%s)\n", rules[rule].name, rules[rule].text, detail);
    fflush(stderr);
    /* A second thread in abort would end the process while the handler of SIGABRT runs for the first thread. A fuzzer's
       handler writes the input. So the second thread waits for the end of the process. */
    if (__atomic_exchange_n(&aborting, true, __ATOMIC_SEQ_CST))
        for (;;) nanosleep(&nap, NULL);
    abort();
}

/* ----------------------------------------------------------------------------- counts -- */

/* As softmetal_live is asked, and as programs know the objects; NULL: a class with the name that programs use, or none of
   theirs. */
static const struct { const char *kind, *metal; } names[SM_KINDS] = {
    {"device", "MTLDevice"}, {"queue", "MTLCommandQueue"}, {"command_buffer", "MTLCommandBuffer"},
    {"encoder", "MTLCommandEncoder"}, {"buffer", "MTLBuffer"}, {"event", "MTLEvent"}, {"shared_event", "MTLSharedEvent"},
    {"listener", NULL}, {"library", "MTLLibrary"}, {"function", "MTLFunction"}, {"pipeline", "MTLComputePipelineState"},
    {"error", "NSError"}, {"block", NULL}, {"descriptor", NULL}, {"dispatch_queue", "dispatch_queue_t"},
    {"queue4", "MTL4CommandQueue"}, {"command_buffer4", "MTL4CommandBuffer"}, {"allocator", "MTL4CommandAllocator"},
    {"argument_table", "MTL4ArgumentTable"}, {"commit_options", NULL}, {"feedback", "MTL4CommitFeedback"}, {"run", NULL},
    {"queue_operation", NULL}, {"layer", "CAMetalLayer"}, {"drawable", "CAMetalDrawable"}, {"texture", "MTLTexture"},
    {"encoder_info", "MTLCommandBufferEncoderInfo"},
};

static long live[SM_KINDS];

void sm_count(sm_kind kind, long change) { __atomic_fetch_add(&live[kind], change, __ATOMIC_RELAXED); }

static long live_of_all_kinds(void)
{
    long sum = 0;
    for (int kind = 0; kind < SM_KINDS; kind++) sum += __atomic_load_n(&live[kind], __ATOMIC_RELAXED);
    return sum;
}

long softmetal_live(const char *kind)
{
    if (!kind) return live_of_all_kinds();
    for (int k = 0; k < SM_KINDS; k++)
        if (strcmp(kind, names[k].kind) == 0) return __atomic_load_n(&live[k], __ATOMIC_RELAXED);
    sm_abort(SM_RULE_PANEL_MISUSE, "softmetal_live: no kind is called \"%s\"", kind);
}

/* ---------------------------------------------------------------------------- zombies -- */

/* Freed objects keep their memory for a while, under a class that only knows how to complain. The
   ring is lock-free: a slot is handed over by one exchange, which orders nothing else. */
#define QUARANTINE 4096
static void *quarantine[QUARANTINE];
static unsigned long quarantine_next;
static void *zombie_class;

Class sm_zombie_class(void) { return (Class)__atomic_load_n(&zombie_class, __ATOMIC_RELAXED); }

static void become_zombie(id object)
{
    Class zombie = [SoftMetalZombie class];
    __atomic_store_n(&zombie_class, (void *)zombie, __ATOMIC_RELAXED);
    object_setClass(object, zombie);
    unsigned long slot = __atomic_fetch_add(&quarantine_next, 1, __ATOMIC_RELAXED) % QUARANTINE;
    id oldest = (id)__atomic_exchange_n(&quarantine[slot], (void *)object, __ATOMIC_ACQ_REL);
    if (oldest) NSDeallocateObject(oldest);
}

static void __attribute__((noreturn)) complain(id zombie, SEL selector)
{
    sm_abort(SM_RULE_MESSAGE_TO_FREED, "%s sent to %p", sel_getName(selector), (void *)zombie);
}

@implementation SoftMetalZombie
- (id)retain { complain(self, _cmd); }
- (oneway void)release { sm_abort(SM_RULE_OVER_RELEASE, "release of the freed %p", (void *)self); }
- (id)autorelease { complain(self, _cmd); }
- (NSUInteger)retainCount { complain(self, _cmd); }
- (BOOL)respondsToSelector:(SEL)selector { complain(self, selector); }
- (BOOL)isKindOfClass:(Class)cls
{
    (void)cls;
    complain(self, _cmd);
}
- (NSMethodSignature *)methodSignatureForSelector:(SEL)selector { complain(self, selector); }
- (void)forwardInvocation:(NSInvocation *)invocation { complain(self, [invocation selector]); }
- (void)doesNotRecognizeSelector:(SEL)selector { complain(self, selector); }
- (NSString *)description { complain(self, _cmd); }
- (NSUInteger)hash { complain(self, _cmd); }
@end

/* ------------------------------------------------------------------------- the object -- */

@implementation SoftMetalObject

+ (sm_kind)softmetalKind { sm_abort(SM_RULE_INTERNAL, "%s has no kind", class_getName(self)); }

+ (id)allocWithZone:(NSZone *)zone
{
    (void)zone;
    SoftMetalObject *object = NSAllocateObject(self, 0, NULL);
    if (!object) sm_abort(SM_RULE_INTERNAL, "out of memory");
    __atomic_store_n(&object->refs, 1, __ATOMIC_RELAXED);
    sm_count([self softmetalKind], 1);
    return object;
}

+ (id)alloc { return [self allocWithZone:NULL]; }

- (id)retain
{
    long before = __atomic_fetch_add(&refs, 1, __ATOMIC_RELAXED);
    SM_REQUIRE(before > 0, MESSAGE_TO_FREED, "retain of %p, a %s", (void *)self, object_getClassName(self));
    return self;
}

- (oneway void)release
{
    long before = __atomic_fetch_sub(&refs, 1, __ATOMIC_ACQ_REL);
    SM_REQUIRE(before > 0, OVER_RELEASE, "release of %p, a %s", (void *)self, object_getClassName(self));
    if (before > 1) return;
    long needed = __atomic_load_n(&uses, __ATOMIC_ACQUIRE);
    SM_REQUIRE(needed == 0, DESTROYED_IN_USE, "%p, a %s, is named by %ld", (void *)self, object_getClassName(self),
               needed);
    [self dealloc];
}

- (id)autorelease
{
    SM_REQUIRE(sm_has_pool(), NO_POOL, "%p, a %s", (void *)self, object_getClassName(self));
    return [super autorelease];
}

- (NSUInteger)retainCount { return (NSUInteger)__atomic_load_n(&refs, __ATOMIC_RELAXED); }

- (BOOL)respondsToSelector:(SEL)selector { return sm_hidden(selector) ? NO : [super respondsToSelector:selector]; }

+ (const char *)metalName
{
    const char *name = names[[self softmetalKind]].metal;
    return name ? name : class_getName(self);
}

/* The runtime asks for the signature of a message that it finds no method for, whoever sent it. */
#define TELLS_OF_UNKNOWN(sign, of_class, its_class)                                                                    \
    sign(NSMethodSignature *)methodSignatureForSelector : (SEL)selector                                                \
    {                                                                                                                  \
        NSMethodSignature *signature = [super methodSignatureForSelector:selector];                                    \
        SM_REQUIRE(signature, UNKNOWN_MESSAGE, of_class "%s has no %s", [its_class metalName], sel_getName(selector)); \
        return signature;                                                                                              \
    }
TELLS_OF_UNKNOWN(-, "", [self class])
TELLS_OF_UNKNOWN(+, "the class ", self)

/* The subclasses release what they hold, then come here. NSObject's dealloc is left out: it would free
   the memory, which stays as a zombie. */
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wobjc-missing-super-calls"
- (void)dealloc
{
    sm_count([[self class] softmetalKind], -1);
    become_zombie(self);
}
#pragma clang diagnostic pop

@end

unsigned long softmetal_retain_count(void *object)
{
    sm_check_argument((id)object, [SoftMetalObject class], "object of softmetal_retain_count");
    return (unsigned long)__atomic_load_n(&((SoftMetalObject *)object)->refs, __ATOMIC_RELAXED);
}

bool sm_descends(Class cls, Class from)
{
    while (cls && cls != from) cls = class_getSuperclass(cls);
    return cls != Nil;
}

void sm_check_argument(id object, Class cls, const char *what)
{
    SM_REQUIRE(object, NIL_ARGUMENT, "%s", what);
    Class actual = object_getClass(object);
    SM_REQUIRE(actual != sm_zombie_class(), MESSAGE_TO_FREED, "%s is freed: %p", what, (void *)object);
    SM_REQUIRE(sm_descends(actual, cls), WRONG_CLASS, "%s is a %s, not a %s", what, class_getName(actual),
               class_getName(cls));
}

id sm_handed_out(id object)
{
    if (!object) return nil;
    SM_REQUIRE(sm_has_pool(), NO_POOL, "%p, a %s", (void *)object, object_getClassName(object));
    return [[object retain] autorelease];
}

NSString *sm_label_under(pthread_mutex_t *lock, NSString **label)
{
    pthread_mutex_lock(lock);
    NSString *text = [*label retain];
    pthread_mutex_unlock(lock);
    id result = sm_handed_out(text);
    [text release];
    return result;
}

void sm_set_label_under(pthread_mutex_t *lock, NSString **label, NSString *text)
{
    NSString *copy = [text copy];
    pthread_mutex_lock(lock);
    NSString *old = *label;
    *label = copy;
    pthread_mutex_unlock(lock);
    [old release];
}

NSString *sm_new_string(const char *text) { return [[NSString alloc] initWithUTF8String:text]; }

/* ----------------------------------------------------------------------------- blocks -- */

/* Of a block's flags these change while it lives: the count of a heap block. */
#define BLOCK_COUNT_BITS UINT32_C(0xffff)

struct block_header {
    void *isa;
    uint32_t flags, reserved;
    void *invoke;
    const struct block_descriptor {
        unsigned long reserved, size;
    } *descriptor;
};

extern void *_Block_copy(const void *block);
extern void _Block_release(const void *block);
extern void *_NSConcreteGlobalBlock[32], *_NSConcreteStackBlock[32], *_NSConcreteMallocBlock[32];

#define BLOCK_NEEDS_FREE (UINT32_C(1) << 24)
#define BLOCK_IS_GLOBAL (UINT32_C(1) << 28)

static void require_block(const struct block_header *header)
{
    uint32_t fitting = BLOCK_NEEDS_FREE;
    if (header->isa == _NSConcreteGlobalBlock)
        fitting = BLOCK_IS_GLOBAL;
    else if (header->isa == _NSConcreteStackBlock)
        fitting = 0;
    else
        SM_REQUIRE(header->isa == _NSConcreteMallocBlock, BAD_BLOCK, "the class of block %p is %p",
                   (const void *)header, header->isa);
    SM_REQUIRE((header->flags & (BLOCK_NEEDS_FREE | BLOCK_IS_GLOBAL)) == fitting, BAD_BLOCK,
               "the flags of block %p are %#x", (const void *)header, header->flags);
    SM_REQUIRE(header->invoke, BAD_BLOCK, "block %p has no function", (const void *)header);
}

sm_block sm_block_take(void *block)
{
    require_block(block);
    return sm_block_take_again(block);
}

sm_block sm_block_take_again(void *block)
{
    sm_block held = {.block = _Block_copy(block), .state = SM_BLOCK_WAITING};
    const struct block_header *header = held.block;
    SM_REQUIRE(header, NIL_ARGUMENT, "block");
    held.isa = header->isa;
    held.invoke = header->invoke;
    held.flags = header->flags & ~BLOCK_COUNT_BITS;
    sm_count(SM_BLOCK, 1);
    return held;
}

void sm_block_check(const sm_block *held)
{
    const struct block_header *header = held->block;
    bool same = header->isa == held->isa && header->invoke == held->invoke &&
                (header->flags & ~BLOCK_COUNT_BITS) == held->flags;
    SM_REQUIRE(same, BLOCK_CHANGED, "block %p", held->block);
}

void sm_block_drop(sm_block *held)
{
    sm_block_check(held);
    _Block_release(held->block);
    sm_count(SM_BLOCK, -1);
    held->state = SM_BLOCK_RELEASED;
}

void sm_block_call(const sm_block *held, id given)
{
    sm_block_check(held);
    void *pool = sm_pool_push();
    ((void (^)(id))held->block)(given);
    sm_pool_close(pool);
}

void sm_blocks_add(sm_blocks *blocks, sm_block held)
{
    if (blocks->count == blocks->capacity) {
        blocks->capacity = blocks->capacity ? 2 * blocks->capacity : 2;
        blocks->items = realloc(blocks->items, blocks->capacity * sizeof *blocks->items);
        SM_REQUIRE(blocks->items, INTERNAL, "out of memory");
    }
    blocks->items[blocks->count++] = held;
}

void sm_blocks_end(sm_blocks *blocks, id given)
{
    for (unsigned k = 0; k < blocks->count; k++) {
        if (given) sm_block_call(&blocks->items[k], given);
        sm_block_drop(&blocks->items[k]);
    }
    free(blocks->items);
    *blocks = (sm_blocks){.items = NULL};
}

/* --------------------------------------------------------------------------- witness -- */

@interface SoftMetalWitness : NSObject {
@public
    void (*gone)(void *user);
    void *user;
}
@end

@implementation SoftMetalWitness
- (void)dealloc
{
    gone(user);
    [super dealloc];
}
@end

void *softmetal_new_witness(void (*gone)(void *user), void *user)
{
    SM_REQUIRE(gone, PANEL_MISUSE, "softmetal_new_witness");
    SoftMetalWitness *witness = [[SoftMetalWitness alloc] init];
    witness->gone = gone;
    witness->user = user;
    return witness;
}
