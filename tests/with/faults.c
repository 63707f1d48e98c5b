/* Loaded in front of a program (LD_PRELOAD), which then meets what FAULT names, and has to tell of it. */
#include "softmetal.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void plant(void)
{
    const char *fault = getenv("FAULT");
    softmetal_timing timing;
    if (!fault) return;
    if (!strcmp(fault, "device")) softmetal_fail_creation(1, true);
    if (!strcmp(fault, "queue")) softmetal_fail_creation(2, true);
    if (!strcmp(fault, "work")) softmetal_fail_next_as(1, SOFTMETAL_PAGE_FAULT);
    if (strcmp(fault, "time")) return;
    softmetal_get_timing(&timing);
    timing.execute.min_ns = timing.execute.max_ns = 1500000000; /* more than the second that the programs wait */
    softmetal_set_timing(&timing);
}

/* Whatever the program met, nothing may be left. */
__attribute__((destructor)) static void look(void)
{
    if (!getenv("FAULT")) return;
    if (!softmetal_settle(5000000000) || softmetal_live("device") || softmetal_live("queue") ||
        softmetal_live("command_buffer"))
        _exit(99);
}
