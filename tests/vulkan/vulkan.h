/* vulkan.h - what a program can ask of Metal over Vulkan, beside what Metal itself answers

   vulkan_internal.h says what this device is. */
#ifndef VULKAN_METAL_H
#define VULKAN_METAL_H

#include <stddef.h>

/* Before its commit: the command buffer ends with this code of MTLCommandBufferErrorDomain. It waits for its events, and
   does none of its commands and signals. The text may be NULL. */
void vulkan_fail(void *command_buffer, long code, const char *text);

/* Objects of the device that live: queues, command buffers, events, memory, blocks. 0 at the end of a program that leaks
   none. What Vulkan still works on has up to 10 s to end. */
long vulkan_live(void);

/* The device, its driver and the clock of its times, in one line. */
void vulkan_describe(void *device, char *out, size_t size);

#endif
