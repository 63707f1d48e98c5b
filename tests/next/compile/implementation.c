/* The one file of a program that has the implementation. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
