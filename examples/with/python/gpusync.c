/* libgpusync.so: gpusync, and the descriptor that wakes the loop of asyncio. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#define GPUSYNC_FD_IMPLEMENTATION
#include "gpusync_fd.h"
