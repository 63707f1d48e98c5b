/* The one file of a program that has the implementation. Programs in other languages compile it as C. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"

/* The bindings in rust/ and python/ write down how large this is, too: a change of one alone fails in the other. */
typedef char gpusync_error_has_480_bytes[sizeof(gpusync_error) == 480 ? 1 : -1];
