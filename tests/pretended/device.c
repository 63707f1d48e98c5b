/* device.c - makes of softmetal the GPU that FORM names; forms.sh links it with the examples

   device, no-times, no-metal4, no-device; fast: when commit returns, the work and its handlers are over, unless they
   wait for what the program does later; slow: ten times as slow as device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "softmetal.h"

static void finish(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    (void)object;
    if (phase == SOFTMETAL_AFTER && !strncmp(selector, "commit", strlen("commit"))) (void)softmetal_settle(100000000);
}

static double no_time(void)
{
    return 0;
}

static softmetal_range between(uint64_t min_us, uint64_t max_us, uint64_t factor)
{
    return (softmetal_range){min_us * 1000 * factor, max_us * 1000 * factor};
}

static void take_time(uint64_t factor)
{
    softmetal_timing timing;
    softmetal_get_timing(&timing);
    timing.schedule = between(20, 60, factor);
    timing.execute = between(5, 30, factor);
    timing.notify = between(10, 60, factor);
    timing.handler = between(5, 40, factor);
    timing.event_listener = between(20, 60, factor);
    softmetal_set_timing(&timing);
}

__attribute__((constructor)) static void take_form(void)
{
    const char *form = getenv("FORM") ? getenv("FORM") : "";
    take_time(!strcmp(form, "slow") ? 10 : !strcmp(form, "fast") ? 0 : 1);
    if (!strcmp(form, "no-times")) softmetal_set_gpu_clock(no_time);
    else if (!strcmp(form, "no-metal4")) softmetal_hide_selector("newMTL4CommandQueue");
    else if (!strcmp(form, "no-device")) softmetal_fail_creation(1, true);
    else if (!strcmp(form, "fast")) softmetal_set_message_hook(finish, NULL);
    else if (strcmp(form, "device") && strcmp(form, "slow")) {
        fprintf(stderr, "pretended GPU: FORM names none of its forms\n");
        abort();
    }
}
