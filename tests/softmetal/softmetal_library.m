/* softmetal_library.m - libraries, functions, pipelines, kernels */
#import "softmetal_internal.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------- kernels -- */

typedef struct kernel_node {
    struct kernel_node *next;
    sm_kernel_entry entry;
    char name[];
} kernel_node;

static pthread_mutex_t kernel_lock = PTHREAD_MUTEX_INITIALIZER;
static kernel_node *kernels;
static uint64_t compiles;

static kernel_node *find(const char *name)
{
    kernel_node *node = kernels;
    while (node && strcmp(node->name, name) != 0) node = node->next;
    return node;
}

void softmetal_set_kernel(const char *name, softmetal_kernel fn, void *user, uint64_t duration_ns)
{
    SM_REQUIRE(name, PANEL_MISUSE, "softmetal_set_kernel without a name");
    pthread_mutex_lock(&kernel_lock);
    kernel_node *node = find(name);
    if (!node) {
        node = calloc(1, sizeof *node + strlen(name) + 1);
        SM_REQUIRE(node, INTERNAL, "out of memory");
        strcpy(node->name, name);
        node->next = kernels;
        kernels = node;
    }
    node->entry = (sm_kernel_entry){fn, user, duration_ns};
    pthread_mutex_unlock(&kernel_lock);
}

sm_kernel_entry sm_find_kernel(const char *name)
{
    pthread_mutex_lock(&kernel_lock);
    kernel_node *node = find(name);
    sm_kernel_entry entry = node ? node->entry : (sm_kernel_entry){NULL, NULL, 0};
    pthread_mutex_unlock(&kernel_lock);
    return entry;
}

/* -------------------------------------------------------------------------- compiling -- */

uint64_t softmetal_compiles(void) { return __atomic_load_n(&compiles, __ATOMIC_RELAXED); }

void sm_library_reset(void)
{
    pthread_mutex_lock(&kernel_lock);
    while (kernels) {
        kernel_node *node = kernels;
        kernels = node->next;
        free(node);
    }
    pthread_mutex_unlock(&kernel_lock);
    __atomic_store_n(&compiles, 0, __ATOMIC_RELAXED);
}

static const char *skip_space(const char *text)
{
    while (isspace((unsigned char)*text)) text++;
    return text;
}

static size_t length_of_word(const char *text)
{
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_') length++;
    return length;
}

/* Behind `kernel`, `vertex` or `fragment`: the name in `TYPE NAME(`, or nil (+1). */
static NSString *new_name_behind(const char *text)
{
    const char *type = skip_space(text), *name = skip_space(type + length_of_word(type));
    size_t length = length_of_word(name);
    if (name == type + length_of_word(type) || length == 0 || *skip_space(name + length) != '(') return nil;
    char *copy = strndup(name, length);
    NSString *result = sm_new_string(copy);
    free(copy);
    return result;
}

static NSArray *new_names(const char *source)
{
    static const char *const words[] = {"kernel", "vertex", "fragment"};
    NSMutableArray *names = [[NSMutableArray alloc] init];
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (const char *at = source; (at = strstr(at, words[i]));) {
            NSString *name = new_name_behind(at += strlen(words[i]));
            if (name) [names addObject:name];
            [name release];
        }
    }
    return names;
}

static SoftMetalError *new_compile_error(void)
{
    return sm_new_error(@"MTLLibraryErrorDomain", 3, @"program_source: error: #error");
}

id sm_new_library(SoftMetalDevice *device, NSString *source, id *error)
{
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init]; /* for UTF8String */
    const char *text = [source UTF8String];
    SoftMetalLibrary *library = nil;
    *error = strstr(text, "#error") ? new_compile_error() : nil;
    if (!*error) {
        library = [[SoftMetalLibrary alloc] init];
        library->device = [device retain];
        library->names = new_names(text);
    }
    [pool release];
    return library;
}

id sm_new_pipeline(SoftMetalDevice *device, SoftMetalFunction *function)
{
    __atomic_fetch_add(&compiles, 1, __ATOMIC_RELAXED);
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init]; /* for UTF8String */
    SoftMetalPipeline *pipeline = [[SoftMetalPipeline alloc] init];
    pipeline->device = [device retain];
    pipeline->name = strdup([function->name UTF8String]);
    [pool release];
    return pipeline;
}

id sm_new_render_pipeline(SoftMetalDevice *device, MTLRenderPipelineDescriptor *wanted)
{
    __atomic_fetch_add(&compiles, 1, __ATOMIC_RELAXED);
    SoftMetalRenderPipeline *pipeline = [[SoftMetalRenderPipeline alloc] init];
    pipeline->device = [device retain];
    pipeline->label = [wanted->label copy];
    return pipeline;
}

/* ---------------------------------------------------------------------------- classes -- */

@implementation SoftMetalLibrary
+ (sm_kind)softmetalKind { return SM_LIBRARY; }
- (id)device { return device; }
SM_HAS_LABEL
- (id)newFunctionWithName:(NSString *)name
{
    SM_REQUIRE(name, NIL_ARGUMENT, "newFunctionWithName:");
    if (sm_creation_fails() || ![names containsObject:name]) return nil;
    SoftMetalFunction *function = [[SoftMetalFunction alloc] init];
    function->device = [device retain];
    function->name = [name copy];
    return function;
}
- (void)dealloc
{
    [names release];
    [label release];
    [device release];
    [super dealloc];
}
@end

@implementation SoftMetalFunction
+ (sm_kind)softmetalKind { return SM_FUNCTION; }
- (id)device { return device; }
- (NSString *)name { return sm_handed_out(name); }
- (void)dealloc
{
    [name release];
    [device release];
    [super dealloc];
}
@end

@implementation SoftMetalPipeline
+ (sm_kind)softmetalKind { return SM_PIPELINE; }
- (id)device { return device; }
- (void)dealloc
{
    free(name);
    [device release];
    [super dealloc];
}
@end

@implementation SoftMetalRenderPipeline
+ (sm_kind)softmetalKind { return SM_PIPELINE; }
+ (const char *)metalName { return "MTLRenderPipelineState"; }
- (id)device { return device; }
- (NSString *)label { return sm_handed_out(label); }
- (void)dealloc
{
    [label release];
    [device release];
    [super dealloc];
}
@end

/* ----------------------------------------------------------- what describes a pipeline -- */

@implementation SoftMetalColorAttachment
+ (sm_kind)softmetalKind { return SM_DESCRIPTOR; }
+ (const char *)metalName { return "MTLRenderPipelineColorAttachmentDescriptor"; }
- (unsigned long)pixelFormat { return format; }
- (void)setPixelFormat:(unsigned long)wanted { format = wanted; }
@end

@implementation SoftMetalColorAttachments
+ (sm_kind)softmetalKind { return SM_DESCRIPTOR; }
+ (const char *)metalName { return "MTLRenderPipelineColorAttachmentDescriptorArray"; }
- (id)objectAtIndexedSubscript:(unsigned long)index
{
    SM_REQUIRE(index < SM_COLORS, BAD_BINDING, "objectAtIndexedSubscript: %lu", index);
    if (!colors[index]) colors[index] = [[SoftMetalColorAttachment alloc] init];
    return colors[index];
}
- (void)dealloc
{
    for (unsigned i = 0; i < SM_COLORS; i++) [colors[i] release];
    [super dealloc];
}
@end

static void take_function(SoftMetalFunction **place, id function, const char *what)
{
    if (function) sm_check_argument(function, [SoftMetalFunction class], what);
    [function retain];
    [*place release];
    *place = function;
}

@implementation MTLRenderPipelineDescriptor
+ (sm_kind)softmetalKind { return SM_DESCRIPTOR; }
SM_HAS_LABEL
- (id)init
{
    if ((self = [super init])) colors = [[SoftMetalColorAttachments alloc] init];
    return self;
}
- (id)colorAttachments { return colors; }
- (id)vertexFunction { return vertex; }
- (void)setVertexFunction:(id)function { take_function(&vertex, function, "setVertexFunction:"); }
- (id)fragmentFunction { return fragment; }
- (void)setFragmentFunction:(id)function { take_function(&fragment, function, "setFragmentFunction:"); }
- (void)dealloc
{
    [label release];
    [vertex release];
    [fragment release];
    [colors release];
    [super dealloc];
}
@end
