/* example.h - what the examples share and what is the point of none of them. Include it after gpusync.h. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MS ((uint64_t)1000000) /* gpusync counts in nanoseconds */

static int checks;

/* A wrong answer ends the program: what is printed last is what was wrong. */
static void check(bool good, const char *what)
{
    __atomic_fetch_add(&checks, 1, __ATOMIC_RELAXED); /* on any thread */
    if (good) return;
    printf("WRONG: %s\n", what);
    exit(1);
}

/* What this machine lacks is no mistake of the program. Test runners know what was skipped by this status. */
static void skip(const char *reason)
{
    fprintf(stderr, "skipped: %s\n", reason);
    exit(77);
}

/* The result of gpusync_device_create: a virtual machine may have no device. */
static void check_device(gpusync_result result)
{
    if (result == GPUSYNC_ERROR_NO_DEVICE) skip(gpusync_result_string(result));
    check(!result, gpusync_result_string(result));
}

/* The short name; gpusync_result_string gives a sentence. */
static __attribute__((unused)) const char *name_of(gpusync_result result)
{
#define EXAMPLE_NAME(name, number, text) result == GPUSYNC_##name ? #name :
    return GPUSYNC_RESULTS(EXAMPLE_NAME) "?";
#undef EXAMPLE_NAME
}

/* Where there is no GPU the examples are linked to a software device, which defines these functions: work
   that takes its time, and work that fails. With a real device no work fails on purpose. Both are called before the
   commit; with Metal 4, after softmetal_prepare_run for that commit. They are weak: on ELF references, which may be
   NULL, for a weak definition here would hide that of a shared library. Elsewhere stand-ins. */
void softmetal_set_duration(void *command_buffer, uint64_t ns);
void softmetal_fail(void *command_buffer, const char *domain, long code, const char *text);
void softmetal_prepare_run(void *command_buffer4, void *command_queue);

static bool real_device; /* known after the first call of any of them */

#ifdef __ELF__

#pragma weak softmetal_set_duration
#pragma weak softmetal_fail
#pragma weak softmetal_prepare_run
#define IF_SOFTMETAL(function, ...) (function ? function(__VA_ARGS__) : (void)(real_device = true))
#define softmetal_set_duration(...) IF_SOFTMETAL(softmetal_set_duration, __VA_ARGS__)
#define softmetal_fail(...) IF_SOFTMETAL(softmetal_fail, __VA_ARGS__)
#define softmetal_prepare_run(...) IF_SOFTMETAL(softmetal_prepare_run, __VA_ARGS__)

#else

__attribute__((weak)) void softmetal_set_duration(void *command_buffer, uint64_t ns)
{
    (void)command_buffer;
    (void)ns;
    real_device = true;
}

__attribute__((weak)) void softmetal_fail(void *command_buffer, const char *domain, long code, const char *text)
{
    (void)command_buffer;
    (void)domain;
    (void)code;
    (void)text;
    real_device = true;
}

__attribute__((weak)) void softmetal_prepare_run(void *command_buffer4, void *command_queue)
{
    (void)command_buffer4;
    (void)command_queue;
    real_device = true;
}

#endif
#endif
