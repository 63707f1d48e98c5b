/* fiber.h - stacks to switch between, over ucontext: the machinery of job_system.c, and not its point

   Include it before everything else. ucontext is deprecated on macOS, and works; an engine has a switch of its own
   in a few lines of assembler. Half of this is for the sanitizers, which want to be told about every switch. */
#ifndef FIBER_H
#define FIBER_H

#ifdef __APPLE__
#define _XOPEN_SOURCE 700
#undef _DARWIN_C_SOURCE
#define _DARWIN_C_SOURCE
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#elif __has_feature(thread_sanitizer)
#define FIBER_TSAN 1
#endif
#endif
#ifdef FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

/* Where something goes on: a fiber, or a thread while it runs a fiber. */
typedef struct fiber_context {
    ucontext_t registers;
    void (*body)(void *);
    void *argument;
    struct fiber_context *from; /* the context that switched to it last */
    void *stack, *fake_stack, *tsan;
    size_t size;
} fiber_context;

/* Not inlined, so that no caller keeps the thread's own variables over a switch: it may return on another thread. */
__attribute__((noinline)) static void fiber_switch(fiber_context *from, fiber_context *to)
{
    to->from = from;
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->size);
#endif
#ifdef FIBER_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    swapcontext(&from->registers, &to->registers);
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, (const void **)&from->from->stack, &from->from->size);
#endif
}

static void fiber_main(unsigned high, unsigned low)
{
    fiber_context *fiber = (fiber_context *)(((uintptr_t)high << 16 << 16) | low);
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(NULL, (const void **)&fiber->from->stack, &fiber->from->size);
#endif
    fiber->body(fiber->argument); /* never returns: it switches away for good */
}

/* The calling thread, so that its fibers can switch back to it. */
static void fiber_of_thread(fiber_context *thread)
{
    (void)thread;
#ifdef FIBER_TSAN
    thread->tsan = __tsan_get_current_fiber();
#endif
}

static bool fiber_make(fiber_context *fiber, size_t stack_size, void (*body)(void *), void *argument)
{
    fiber->body = body;
    fiber->argument = argument;
    fiber->size = stack_size;
    fiber->stack = malloc(stack_size);
    if (!fiber->stack || getcontext(&fiber->registers)) return false;
    fiber->registers.uc_stack.ss_sp = fiber->stack;
    fiber->registers.uc_stack.ss_size = stack_size;
    fiber->registers.uc_link = NULL;
    makecontext(&fiber->registers, (void (*)(void))fiber_main, 2, (unsigned)((uintptr_t)fiber >> 16 >> 16),
                (unsigned)(uintptr_t)fiber);
#ifdef FIBER_TSAN
    fiber->tsan = __tsan_create_fiber(0);
#endif
    return true;
}

/* One that has switched away for good. */
static void fiber_free(fiber_context *fiber)
{
#ifdef FIBER_TSAN
    __tsan_destroy_fiber(fiber->tsan);
#endif
    free(fiber->stack);
}

#endif
