/* device_metal.c - make bench-device: the real Metal device, with kernels */
#include <stddef.h>

#include "device.h"

const bench_device *device_choose(void)
{
    return &kernels_device;
}
