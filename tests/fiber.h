/* fiber.h - stacks to switch between, over ucontext: for tests whose waits run on fibers

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
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#define FIBER_LEAVE(from, to) __sanitizer_start_switch_fiber(&(from)->fake_stack, (to)->stack, (to)->size)
#define FIBER_ENTER(to, from) __sanitizer_finish_switch_fiber((to)->fake_stack, &(from)->stack, &(from)->size)
#elif defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define FIBER_LEAVE(from, to) ((from)->tsan = __tsan_get_current_fiber(), __tsan_switch_to_fiber((to)->tsan, 0))
#define FIBER_ENTER(to, from) ((void)0)
#define FIBER_TSAN 1
#else
#define FIBER_LEAVE(from, to) ((void)0)
#define FIBER_ENTER(to, from) ((void)0)
#endif

/* Where something goes on: a fiber, or, of all zeros at first, a thread while it runs a fiber. */
typedef struct fiber_context {
    ucontext_t registers;
    void (*body)(void *);
    void *argument;
    struct fiber_context *from; /* the context that switched to it last */
    void *fake_stack, *tsan;
    const void *stack;
    size_t size;
} fiber_context;

/* Not inlined, so that no caller keeps the thread's own variables over a switch: it may return on another thread. */
__attribute__((noinline)) static void fiber_switch(fiber_context *from, fiber_context *to)
{
    to->from = from;
    FIBER_LEAVE(from, to);
    swapcontext(&from->registers, &to->registers);
    FIBER_ENTER(from, from->from);
}

static void fiber_main(unsigned high, unsigned low)
{
    fiber_context *fiber = (fiber_context *)(((uintptr_t)high << 16 << 16) | low);
    FIBER_ENTER(fiber, fiber->from);
    fiber->body(fiber->argument); /* never returns: it switches away for good */
}

static bool fiber_make(fiber_context *fiber, size_t size, void (*body)(void *), void *argument)
{
    void *stack = malloc(size);
    fiber->body = body;
    fiber->argument = argument;
    fiber->stack = stack;
    fiber->size = size;
    if (!stack || getcontext(&fiber->registers)) return false;
    fiber->registers.uc_stack.ss_sp = stack;
    fiber->registers.uc_stack.ss_size = size;
    fiber->registers.uc_link = NULL;
    makecontext(&fiber->registers, (void (*)(void))fiber_main, 2, (unsigned)((uintptr_t)fiber >> 16 >> 16),
                (unsigned)(uintptr_t)fiber);
#ifdef FIBER_TSAN
    fiber->tsan = __tsan_create_fiber(0);
#endif
    return true;
}

static void fiber_free(fiber_context *fiber) /* one that has switched away for good */
{
#ifdef FIBER_TSAN
    __tsan_destroy_fiber(fiber->tsan);
#endif
    free((void *)fiber->registers.uc_stack.ss_sp);
}

#endif
