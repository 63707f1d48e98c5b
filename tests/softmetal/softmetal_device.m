/* softmetal_device.m - the device and the C functions that find it */
#import "softmetal_internal.h"
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
static SoftMetalDevice *default_device; /* not retained: cleared when the last reference goes */
static uint64_t devices_made;

/* ------------------------------------------------------------------ finding a device -- */

/* tests/vulkan has a class of its own, and the function that names it. */
__attribute__((weak)) Class sm_device_class(void) { return [SoftMetalDevice class]; }

/* +1, or nil where there is no such device. */
static SoftMetalDevice *new_device(void)
{
    SoftMetalDevice *device = [[sm_device_class() alloc] init];
    if (device) device->registry_id = 0x50F7000 + __atomic_add_fetch(&devices_made, 1, __ATOMIC_RELAXED);
    return device;
}

/* GNUstep's GSAutoreleasedBuffer, behind UTF8String, sets its class first and its function last, without a lock: of two
   first calls one can jump to NULL. */
static void set_up_texts(void)
{
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    (void)[@"narrow" UTF8String];
    (void)[[sm_new_string("\xE2\x82\xAC") autorelease] UTF8String];
    [pool release];
}

/* Classes that a program finds by name alone, and those it meets on several threads at once, are
   set up here: the GNU runtime initialises a class at its first message. */
static void set_up_classes(void)
{
    sm_require_own_classes();
    (void)[SoftMetalZombie class], (void)[SoftMetalError class], (void)[SoftMetalQueue class];
    (void)[SoftMetalCommandBuffer class], (void)[SoftMetalBlitEncoder class], (void)[SoftMetalComputeEncoder class];
    (void)[SoftMetalBuffer class], (void)[SoftMetalEvent class], (void)[SoftMetalSharedEvent class];
    (void)[MTLSharedEventListener class], (void)[MTLCommandBufferDescriptor class], (void)[SoftMetalLibrary class];
    (void)[SoftMetalFunction class], (void)[SoftMetalPipeline class], (void)[SoftMetalDevice class];
    (void)[SoftMetalLayer class], (void)[SoftMetalDrawable class], (void)[SoftMetalTexture class];
    (void)[SoftMetalQueue4 class], (void)[SoftMetalCommandBuffer4 class], (void)[SoftMetalAllocator class];
    (void)[SoftMetalComputeEncoder4 class], (void)[SoftMetalArgumentTable class], (void)[SoftMetalFeedback class];
    (void)[SoftMetalRun class], (void)[SoftMetalQueueOperation class], (void)[MTL4CommitOptions class];
    (void)[MTL4CommandQueueDescriptor class], (void)[MTL4ArgumentTableDescriptor class];
    (void)[NSMutableDictionary class], (void)[NSString class], (void)[NSAutoreleasePool class];
    NSMutableArray *names = [[NSMutableArray alloc] init]; /* of libraries: its class has another name */
    [names addObject:@"name"];
    (void)[names containsObject:@"name"];
    [names release];
    set_up_texts();
}

static SoftMetalDevice *retained_default_device(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_up_classes);
    pthread_mutex_lock(&device_lock);
    if (default_device)
        [default_device retain];
    else
        default_device = new_device();
    SoftMetalDevice *device = default_device;
    pthread_mutex_unlock(&device_lock);
    return device;
}

void *MTLCreateSystemDefaultDevice(void);
void *MTLCreateSystemDefaultDevice(void) { return sm_creation_fails() ? NULL : (void *)retained_default_device(); }

/* Looked up by its name: a linker that strips what nothing refers to leaves it. */
__attribute__((used)) void *MTLCopyAllDevices(void);
void *MTLCopyAllDevices(void)
{
    if (sm_creation_fails()) return NULL;
    id device = retained_default_device();
    NSArray *list = [[NSArray alloc] initWithObjects:&device count:device ? 1 : 0];
    [device release];
    return list;
}

void *softmetal_new_device(void) { return new_device(); }

void *softmetal_new_twin(void *device)
{
    sm_check_argument((id)device, [SoftMetalDevice class], "softmetal_new_twin");
    SoftMetalDevice *twin = new_device();
    twin->registry_id = ((SoftMetalDevice *)device)->registry_id;
    return twin;
}

/* ------------------------------------------------------------------------- the device -- */

static bool missing(id argument, const char *what)
{
    SM_REQUIRE(argument, NIL_ARGUMENT, "%s", what);
    return sm_creation_fails();
}

static id new_queue(SoftMetalDevice *device, unsigned long limit)
{
    SM_REQUIRE(limit > 0, BAD_LENGTH, "newCommandQueueWithMaxCommandBufferCount: 0");
    if (sm_creation_fails()) return nil;
    SoftMetalQueue *queue = [[SoftMetalQueue alloc] init];
    queue->device = [device retain];
    queue->engine = sm_engine_new(device, limit > UINT32_MAX ? UINT32_MAX : (unsigned)limit);
    return queue;
}

static id new_memory(SoftMetalDevice *device, unsigned long length, unsigned long options)
{
    SM_REQUIRE(length > 0, BAD_LENGTH, "a buffer of 0 bytes");
    if (sm_creation_fails()) return nil;
    unsigned char *memory = calloc(1, length);
    if (!memory) return nil;
    SoftMetalBuffer *buffer = [[SoftMetalBuffer alloc] init];
    buffer->device = [device retain];
    buffer->bytes = memory;
    buffer->length = length;
    buffer->options = options;
    return buffer;
}

@implementation SoftMetalDevice

+ (sm_kind)softmetalKind { return SM_DEVICE; }

/* The last reference goes under the lock of MTLCreateSystemDefaultDevice, so that it never finds a
   dying device. The others need no lock. */
- (oneway void)release
{
    long seen = __atomic_load_n(&refs, __ATOMIC_RELAXED);
    while (seen > 1)
        if (__atomic_compare_exchange_n(&refs, &seen, seen - 1, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&device_lock);
    long before = __atomic_fetch_sub(&refs, 1, __ATOMIC_ACQ_REL);
    if (before == 1 && default_device == self) default_device = nil;
    pthread_mutex_unlock(&device_lock);
    SM_REQUIRE(before > 0, OVER_RELEASE, "release of the device %p", (void *)self);
    if (before == 1) [self dealloc];
}

- (NSString *)name { return @"softmetal"; }
- (uint64_t)registryID { return registry_id; }

- (BOOL)supportsFamily:(long)family
{
    bool apple = family >= 1001 && family <= 1008;
    bool common = family >= 3001 && family <= 3003;
    const long mac2 = 2002, metal3 = 5001, metal4 = 5002;
    if (family == metal4) return !sm_quirks().no_metal4_family;
    return apple || common || family == mac2 || family == metal3;
}

- (id)newCommandQueue { return [self newCommandQueueWithMaxCommandBufferCount:64]; }
- (id)newCommandQueueWithMaxCommandBufferCount:(unsigned long)count { return new_queue(self, count); }

- (id)newBufferWithLength:(unsigned long)length options:(unsigned long)options
{
    return new_memory(self, length, options);
}

- (id)newEvent
{
    if (sm_creation_fails()) return nil;
    SoftMetalEvent *event = [[SoftMetalEvent alloc] init];
    event->device = [self retain];
    return event;
}

- (id)newSharedEvent
{
    if (sm_creation_fails()) return nil;
    return [[SoftMetalSharedEvent alloc] init];
}

- (id)newLibraryWithSource:(NSString *)source options:(id)options error:(id *)error
{
    (void)options;
    if (error) *error = nil;
    if (missing(source, "newLibraryWithSource:options:error:")) return nil;
    id failure = nil;
    id library = sm_new_library(self, source, &failure);
    if (error) *error = sm_handed_out(failure);
    [failure release];
    return library;
}

- (id)newComputePipelineStateWithFunction:(id)function error:(id *)error
{
    if (error) *error = nil;
    sm_check_argument(function, [SoftMetalFunction class], "newComputePipelineStateWithFunction:error:");
    SM_REQUIRE(((SoftMetalFunction *)function)->device == self, OTHER_DEVICE, "function");
    if (!sm_creation_fails()) return sm_new_pipeline(self, function);
    id failure = sm_new_error(@"SoftCompilerErrorDomain", 2, @"Compiler encountered an internal error");
    if (error) *error = sm_handed_out(failure);
    [failure release];
    return nil;
}

@end
