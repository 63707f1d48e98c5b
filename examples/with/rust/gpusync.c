/* What gpusync.rs links with: gpusync, and the descriptor that wakes an event loop. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#define GPUSYNC_FD_IMPLEMENTATION
#include "gpusync_fd.h"
