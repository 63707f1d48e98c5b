/* device.c - a pretended GPU: softmetal in a library that hides its functions, in the form that FORM names

   An example refers to these functions weakly. It finds none, and does what it does with a Mac's GPU. expect.pl lists the
   forms.

   fast is as fast as can be: when commit returns, the work and its handlers are over, unless they wait for what the
   program does later. slow takes ten times as long as device, and the virtual machine that tells no times five. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "softmetal.h"

#define US ((uint64_t)1000)
#define MS ((uint64_t)1000000)

/* The kernel of overlap.c, which cannot hand over its own. */
static void step(void *user, const softmetal_kernel_args *args)
{
    const uint32_t *x = args->buffers[0];
    uint32_t *y = args->buffers[1];
    (void)user;
    for (unsigned long i = 0; i < args->grid[0]; i++) y[i] = 3 * x[i] + 1;
}

static void finish(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    (void)object;
    if (phase == SOFTMETAL_AFTER && !strncmp(selector, "commit", strlen("commit"))) (void)softmetal_settle(100 * MS);
}

static double no_time(void) { return 0; }

static softmetal_range between(uint64_t min, uint64_t max, uint64_t factor)
{
    return (softmetal_range){min * US * factor, max * US * factor};
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
    const char *form = getenv("FORM");
    softmetal_set_kernel("step", step, NULL, 0);
    take_time(1);
    if (form && !strcmp(form, "device")) return;
    if (form && !strcmp(form, "no-times")) {
        take_time(5);
        softmetal_set_gpu_clock(no_time);
    } else if (form && !strcmp(form, "no-metal4")) {
        softmetal_hide_selector("newMTL4CommandQueue");
    } else if (form && !strcmp(form, "no-device")) {
        softmetal_fail_creation(1, true);
    } else if (form && !strcmp(form, "fast")) {
        take_time(0);
        softmetal_set_message_hook(finish, NULL);
    } else if (form && !strcmp(form, "slow")) {
        take_time(10);
    } else {
        fprintf(stderr, "pretended GPU: FORM names none of its forms\n");
        abort();
    }
}
