/* The one file of a program that has the implementation. Programs in other languages compile it as C. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"

/* The bindings in rust/ and python/ declare this again. A change of it is noticed here, and when they start. */
typedef char gpusync_error_has_480_bytes[sizeof(gpusync_error) == 480 ? 1 : -1];
