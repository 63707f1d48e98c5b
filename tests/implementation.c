/* implementation.c - the implementation as most test programs have it: one object, which each of them is linked with */
#define GPUSYNC_IMPLEMENTATION
#include "kit_memory.h"
#include "gpusync.h"
