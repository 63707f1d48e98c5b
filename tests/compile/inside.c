/* inside.c - the implementation as most test programs have it: in one object, which each of them is linked with

   Under the assertions of locks.h, which the compiler includes in front; with the clock of clock.h, which is the machine's
   until a program says otherwise; and with the probes of probe.h. */
#define GPUSYNC_IMPLEMENTATION
#include "clock.h"
#include "probe.h"
