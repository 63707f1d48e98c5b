/* Loaded in front of a program (LD_PRELOAD), which then meets what FAULT names, and has to tell of it. Whatever it
   meets, at its end nothing of Metal's may be left. */
#include "softmetal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void plant(void)
{
    const char *fault = getenv("FAULT");
    softmetal_timing timing;
    if (!fault) return;
    if (!strcmp(fault, "work")) softmetal_fail_next(1, 3);
    if (!strcmp(fault, "device")) softmetal_fail_creation(1, true);
    if (!strcmp(fault, "queue")) softmetal_fail_creation(2, true);
    if (!strcmp(fault, "time")) {
        softmetal_get_timing(&timing);
        timing.execute.min_ns = timing.execute.max_ns = 1300000000; /* more than the second that the programs wait */
        softmetal_set_timing(&timing);
    }
}

__attribute__((destructor)) static void look(void)
{
    if (!getenv("FAULT")) return;
    if (softmetal_settle(5000000000) && !softmetal_live("device") && !softmetal_live("queue") &&
        !softmetal_live("command_buffer"))
        return;
    fprintf(stderr, "left over: %ld devices, %ld queues, %ld command buffers\n", softmetal_live("device"),
            softmetal_live("queue"), softmetal_live("command_buffer"));
    _exit(99);
}
