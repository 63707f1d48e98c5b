/* vulkan_device.m - finding a Vulkan device; memory, kernels, the clock */
#import "vulkan_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_loop.h"
#include "step.h"
#include "work.h"

/* ---------------------------------------------------------------------------------------- finding a device -- */

/* One for the process, and never destroyed: a driver that is unloaded leaks what its own globals name. */
static VkInstance instance;

static void set_up(void)
{
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo wanted = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    softmetal_set_quirks(&(softmetal_quirks){.no_metal4_family = true});
    softmetal_hide_selector("newMTL4CommandQueue");
    if (vkCreateInstance(&wanted, NULL, &instance)) instance = NULL;
}

/* A family of queues that has kernels, copies and times. */
static bool find_family(VulkanDevice *self)
{
    VkQueueFamilyProperties families[16];
    uint32_t count = 16;
    vkGetPhysicalDeviceQueueFamilyProperties(self->gpu, &count, families);
    for (uint32_t i = 0; i < count; i++) {
        if (!(families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) || families[i].timestampValidBits < 64) continue;
        self->family = i;
        self->line_count = families[i].queueCount < MOST_LINES ? families[i].queueCount : MOST_LINES;
        return true;
    }
    return false;
}

/* What is wrong with the device; NULL: nothing. A GPU is taken before a CPU. */
static const char *choose_gpu(VulkanDevice *self)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    VkPhysicalDevice all[16];
    uint32_t count = 16;
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &driver};
    pthread_once(&once, set_up);
    if (!instance) return "there is no Vulkan";
    VkResult listed = vkEnumeratePhysicalDevices(instance, &count, all);
    if ((listed && listed != VK_INCOMPLETE) || count == 0) return "Vulkan knows of none";
    for (uint32_t i = count; i-- > 0;) {
        self->gpu = all[i];
        vkGetPhysicalDeviceProperties(self->gpu, &self->properties);
        if (self->properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU) break;
    }
    if (self->properties.apiVersion < VK_API_VERSION_1_2) return "it is older than Vulkan 1.2";
    vkGetPhysicalDeviceProperties2(self->gpu, &properties);
    snprintf(self->driver, sizeof self->driver, "%s %s", driver.driverName, driver.driverInfo);
    return find_family(self) ? NULL : "no queue of it has kernels and times of 64 bits";
}

static VkResult make_device(VulkanDevice *self)
{
    static const char *const extensions[] = {VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME};
    static const float priorities[MOST_LINES] = {0};
    VkPhysicalDeviceVulkan12Features features = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .timelineSemaphore = VK_TRUE,
        .bufferDeviceAddress = VK_TRUE,
    };
    VkDeviceQueueCreateInfo lines = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
        .queueFamilyIndex = self->family,
        .queueCount = self->line_count,
        .pQueuePriorities = priorities,
    };
    VkDeviceCreateInfo wanted = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
        .pNext = &features,
        .queueCreateInfoCount = 1,
        .pQueueCreateInfos = &lines,
        .enabledExtensionCount = 1,
        .ppEnabledExtensionNames = extensions,
    };
    VkResult result = vkCreateDevice(self->gpu, &wanted, NULL, &self->device);
    for (unsigned i = 0; !result && i < self->line_count; i++)
        vkGetDeviceQueue(self->device, self->family, i, &self->lines[i]);
    return result;
}

/* Memory that the host sees without a flush, and reads through its caches. */
static bool find_memory(VulkanDevice *self)
{
    VkMemoryPropertyFlags needed = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
                                   VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(self->gpu, &memory);
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++) {
        self->memory_type = i;
        if ((memory.memoryTypes[i].propertyFlags & needed) == needed) return true;
    }
    return false;
}

/* -------------------------------------------------------------------------------------------------- memory -- */

static id new_memory(VulkanDevice *self, unsigned long length, unsigned long options)
{
    VkBufferCreateInfo wanted = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = length,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT,
    };
    VkMemoryAllocateFlagsInfo addressed = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
        .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT,
    };
    VkMemoryAllocateInfo of_memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &addressed};
    VkBufferDeviceAddressInfo of_buffer = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO};
    VkMemoryRequirements needs;
    void *bytes;
    SM_REQUIRE(length > 0, BAD_LENGTH, "a buffer of 0 bytes");
    VulkanBuffer *made = [[VulkanBuffer alloc] init];
    made->device = (SoftMetalDevice *)[self retain];
    made->length = length;
    made->options = options;
    VK_DO(vkCreateBuffer(self->device, &wanted, NULL, &made->buffer));
    vkGetBufferMemoryRequirements(self->device, made->buffer, &needs);
    of_memory.allocationSize = needs.size;
    of_memory.memoryTypeIndex = self->memory_type;
    if (vkAllocateMemory(self->device, &of_memory, NULL, &made->memory)) {
        [made release]; /* of a length that there is not */
        return nil;
    }
    VK_DO(vkBindBufferMemory(self->device, made->buffer, made->memory, 0));
    VK_DO(vkMapMemory(self->device, made->memory, 0, VK_WHOLE_SIZE, 0, &bytes));
    made->bytes = memset(bytes, 0, length);
    of_buffer.buffer = made->buffer;
    made->address = vkGetBufferDeviceAddress(self->device, &of_buffer);
    return made;
}

@implementation VulkanBuffer
- (void)dealloc
{
    vkDestroyBuffer(((VulkanDevice *)device)->device, buffer, NULL);
    vkFreeMemory(((VulkanDevice *)device)->device, memory, NULL);
    bytes = NULL; /* no softmetal's to free */
    [super dealloc];
}
@end

/* ------------------------------------------------------------------------------------------------- kernels -- */

static const struct kernel {
    const char *name;
    const uint32_t *code;
    size_t size;
} kernels[] = {
    {"bench_loop", vulkan_bench_loop, sizeof vulkan_bench_loop},
    {"step", vulkan_step, sizeof vulkan_step},
    {"work", vulkan_work, sizeof vulkan_work},
};

static void make_layout(VulkanDevice *self)
{
    VkPushConstantRange arguments = {VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(kernel_arguments)};
    VkPipelineLayoutCreateInfo wanted = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .pushConstantRangeCount = 1,
        .pPushConstantRanges = &arguments,
    };
    VK_DO(vkCreatePipelineLayout(self->device, &wanted, NULL, &self->layout));
}

static VkPipeline compile(VulkanDevice *self, const char *name)
{
    const struct kernel *kernel = kernels, *end = kernels + sizeof kernels / sizeof *kernels;
    while (kernel < end && strcmp(kernel->name, name) != 0) kernel++;
    SM_REQUIRE(kernel < end, INTERNAL, "kernels.comp has no kernel %s", name);
    VkShaderModuleCreateInfo code = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
        .codeSize = kernel->size,
        .pCode = kernel->code,
    };
    VkShaderModule module;
    VkPipeline pipeline;
    VK_DO(vkCreateShaderModule(self->device, &code, NULL, &module));
    VkComputePipelineCreateInfo wanted = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main"},
        .layout = self->layout,
    };
    VK_DO(vkCreateComputePipelines(self->device, VK_NULL_HANDLE, 1, &wanted, NULL, &pipeline));
    vkDestroyShaderModule(self->device, module, NULL);
    return pipeline;
}

@implementation VulkanPipeline
- (void)dealloc
{
    vkDestroyPipeline(((VulkanDevice *)device)->device, pipeline, NULL);
    [super dealloc];
}
@end

/* ----------------------------------------------------------------------------------------------- the clock -- */

/* With the lock. */
static void calibrate(VulkanDevice *self)
{
    static const VkCalibratedTimestampInfoEXT clocks[] = {
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, .timeDomain = VK_TIME_DOMAIN_DEVICE_EXT},
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, .timeDomain = VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT},
    };
    PFN_vkGetCalibratedTimestampsEXT get =
        (PFN_vkGetCalibratedTimestampsEXT)vkGetDeviceProcAddr(self->device, "vkGetCalibratedTimestampsEXT");
    uint64_t both[2], deviation;
    VK_DO(get(self->device, 2, clocks, both, &deviation));
    self->calibrated_ticks = both[0];
    self->calibrated_ns = both[1];
}

double vulkan_seconds(VulkanDevice *device, uint64_t ticks)
{
    if (sm_now() - device->calibrated_ns > 50 * SM_MILLISECOND) calibrate(device); /* clocks drift */
    double since = (double)(int64_t)(ticks - device->calibrated_ticks) * (double)device->properties.limits.timestampPeriod;
    return ((double)device->calibrated_ns + since) / 1e9;
}

/* ---------------------------------------------------------------------------------------------- the device -- */

/* softmetal's MTLCreateSystemDefaultDevice makes one of these. */
Class sm_device_class(void)
{
    return [VulkanDevice class];
}

@implementation VulkanDevice

- (id)init
{
    if (!(self = [super init])) return nil;
    pthread_mutex_init(&lock, NULL);
    (void)[VulkanBuffer class], (void)[VulkanPipeline class], (void)[VulkanEvent class];
    (void)[VulkanQueue class], (void)[VulkanCommandBuffer class];
    const char *wrong = choose_gpu(self);
    if (!wrong && !find_memory(self)) wrong = "it has no memory that the host shares";
    if (!wrong && make_device(self)) wrong = "it lacks timeline semaphores, addresses of buffers or times to be compared";
    if (wrong) {
        fprintf(stderr, "Metal over Vulkan has no device: %s\n", wrong);
        [self dealloc]; /* a release takes the lock under which the default device is made */
        return nil;
    }
    make_layout(self);
    calibrate(self);
    atexit(vulkan_come_to_rest); /* so it runs before what the driver and the layer have left for the end */
    return self;
}

- (NSString *)name
{
    return sm_handed_out([[sm_new_string(properties.deviceName) autorelease] self]);
}
- (id)newCommandQueueWithMaxCommandBufferCount:(unsigned long)count
{
    return vulkan_new_queue(self, count);
}
- (id)newBufferWithLength:(unsigned long)length options:(unsigned long)options
{
    return new_memory(self, length, options);
}
- (id)newSharedEvent
{
    VulkanEvent *event = [[VulkanEvent alloc] init];
    event->owner = [self retain];
    return event;
}
- (id)newEvent /* it answers more than an MTLEvent does */
{
    return [self newSharedEvent];
}
- (id)newComputePipelineStateWithFunction:(id)function error:(id *)error
{
    sm_check_argument(function, [SoftMetalFunction class], "newComputePipelineStateWithFunction:error:");
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init]; /* for UTF8String */
    VulkanPipeline *made = [[VulkanPipeline alloc] init];
    made->device = (SoftMetalDevice *)[self retain];
    made->pipeline = compile(self, [((SoftMetalFunction *)function)->name UTF8String]);
    [pool release];
    if (error) *error = nil;
    return made;
}
- (void)dealloc
{
    if (device) {
        vulkan_free_engines(self);
        vkDestroyPipelineLayout(device, layout, NULL);
        vkDestroyDevice(device, NULL);
    }
    pthread_mutex_destroy(&lock);
    [super dealloc];
}

@end

void vulkan_describe(void *device, char *out, size_t size)
{
    sm_check_argument((id)device, [VulkanDevice class], "vulkan_describe");
    const VulkanDevice *self = device;
    snprintf(out, size, "%s; driver: %s; Vulkan %u.%u; times: the device's, calibrated with CLOCK_MONOTONIC",
             self->properties.deviceName, self->driver, VK_API_VERSION_MAJOR(self->properties.apiVersion),
             VK_API_VERSION_MINOR(self->properties.apiVersion));
}
