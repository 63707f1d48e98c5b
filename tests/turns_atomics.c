/* turns_atomics.c - each atomic operation of a program becomes a point of turns.h

   What is to have these points is compiled with -fsanitize=thread, and linked without: this file stands in for the
   sanitizer's runtime. It is itself compiled without. One thread runs at a time, so that a plain access is atomic here,
   and every order of memory is the strictest. Plain accesses of the program are no points. What comes behind a store has
   one before it: others may see the store, and not yet what comes behind it.

   Contents
     >>atomics  the operations, each behind a point
     >>rest     what the compiler calls besides: it does nothing, or the plain thing */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* In turns.h: a point, unless the memory is the scheduler's own. */
extern void turns_atomic(const volatile void *p, const char *name);

/* ---------------------------------------------------------------------------------------------------- >>atomics -- */

#define LOAD(bits, T)                                             \
    T __tsan_atomic##bits##_load(const volatile T *p, int order); \
    T __tsan_atomic##bits##_load(const volatile T *p, int order)  \
    {                                                             \
        (void)order;                                              \
        turns_atomic(p, "atomic load");                           \
        return *p;                                                \
    }

#define STORE(bits, T)                                                   \
    void __tsan_atomic##bits##_store(volatile T *p, T value, int order); \
    void __tsan_atomic##bits##_store(volatile T *p, T value, int order)  \
    {                                                                    \
        (void)order;                                                     \
        turns_atomic(p, "atomic store");                                 \
        *p = value;                                                      \
        turns_atomic(p, "behind an atomic store");                       \
    }

/* Stores `next`, in which `was` is the old value; returns the old value. */
#define CHANGE(bits, T, operation, next)                                    \
    T __tsan_atomic##bits##_##operation(volatile T *p, T value, int order); \
    T __tsan_atomic##bits##_##operation(volatile T *p, T value, int order)  \
    {                                                                       \
        T was;                                                              \
        (void)order;                                                        \
        turns_atomic(p, "atomic " #operation);                              \
        was = *p;                                                           \
        *p = (T)(next);                                                     \
        return was;                                                         \
    }

#define COMPARE_EXCHANGE(bits, T, strength)                                                                            \
    bool __tsan_atomic##bits##_compare_exchange_##strength(volatile T *p, T *expected, T value, int order, int other); \
    bool __tsan_atomic##bits##_compare_exchange_##strength(volatile T *p, T *expected, T value, int order, int other)  \
    {                                                                                                                  \
        (void)order;                                                                                                   \
        (void)other;                                                                                                   \
        turns_atomic(p, "atomic compare_exchange");                                                                    \
        if (*p != *expected) {                                                                                         \
            *expected = *p;                                                                                            \
            return false;                                                                                              \
        }                                                                                                              \
        *p = value;                                                                                                    \
        return true;                                                                                                   \
    }

/* As clang calls it: returns the old value. */
#define COMPARE_EXCHANGE_VALUE(bits, T)                                                                     \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T *p, T expected, T value, int order, int other); \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T *p, T expected, T value, int order, int other)  \
    {                                                                                                       \
        T was = expected;                                                                                   \
        (void)__tsan_atomic##bits##_compare_exchange_strong(p, &was, value, order, other);                  \
        return was;                                                                                         \
    }

#define ATOMICS(bits, T)                        \
    LOAD(bits, T)                               \
    STORE(bits, T)                              \
    CHANGE(bits, T, exchange, value)            \
    CHANGE(bits, T, fetch_add, was + value)     \
    CHANGE(bits, T, fetch_sub, was - value)     \
    CHANGE(bits, T, fetch_or, was | value)      \
    CHANGE(bits, T, fetch_and, was &value)      \
    CHANGE(bits, T, fetch_xor, was ^ value)     \
    CHANGE(bits, T, fetch_nand, ~(was & value)) \
    COMPARE_EXCHANGE(bits, T, strong)           \
    COMPARE_EXCHANGE(bits, T, weak)             \
    COMPARE_EXCHANGE_VALUE(bits, T)

ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

/* A fence changes nothing where every order is the strictest. */
#define FENCE(kind)                               \
    void __tsan_atomic_##kind##_fence(int order); \
    void __tsan_atomic_##kind##_fence(int order)  \
    {                                             \
        (void)order;                              \
    }
FENCE(thread)
FENCE(signal)

/* ------------------------------------------------------------------------------------------------------- >>rest -- */

#define NOTHING(name)                \
    void name(void *p, size_t size); \
    void name(void *p, size_t size)  \
    {                                \
        (void)p;                     \
        (void)size;                  \
    }
NOTHING(__tsan_init)
NOTHING(__tsan_func_entry)
NOTHING(__tsan_func_exit)
NOTHING(__tsan_read_range)
NOTHING(__tsan_write_range)

#define ACCESS(size)                              \
    NOTHING(__tsan_read##size)                    \
    NOTHING(__tsan_write##size)                   \
    NOTHING(__tsan_read_write##size)              \
    NOTHING(__tsan_unaligned_read##size)          \
    NOTHING(__tsan_unaligned_write##size)         \
    NOTHING(__tsan_unaligned_read_write##size)    \
    NOTHING(__tsan_volatile_read##size)           \
    NOTHING(__tsan_volatile_write##size)          \
    NOTHING(__tsan_unaligned_volatile_read##size) \
    NOTHING(__tsan_unaligned_volatile_write##size)
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

/* clang calls these in place of the functions of <string.h>. */
#define PLAIN(function, T)                                  \
    void *__tsan_##function(void *to, T from, size_t size); \
    void *__tsan_##function(void *to, T from, size_t size)  \
    {                                                       \
        return function(to, from, size);                    \
    }
PLAIN(memcpy, const void *)
PLAIN(memmove, const void *)
PLAIN(memset, int)
