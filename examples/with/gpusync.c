/* The one file of a program that has the implementation. Programs in other languages compile it as C. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
