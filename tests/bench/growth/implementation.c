/* implementation.c - gpusync as growth.c counts it

   Its clock is growth.c's, so that no count depends on how fast the machine is. What it has libc move counts by the
   word: an insertion by memmove grows as any other does. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int growth_clock(clockid_t clock, struct timespec *now);
void counted_words(size_t size);

__attribute__((noinline)) void counted_words(size_t size)
{
    for (; size >= sizeof(size_t); size -= sizeof(size_t)) __asm__ volatile("");
}

#define COUNT_WORDS(size) ((void)(__builtin_constant_p(size) ? (void)0 : counted_words(size)))

static inline __attribute__((always_inline, unused)) void *counted_copy(void *to, const void *from, size_t size)
{
    COUNT_WORDS(size);
    return memcpy(to, from, size);
}

static inline __attribute__((always_inline, unused)) void *counted_move(void *to, const void *from, size_t size)
{
    COUNT_WORDS(size);
    return memmove(to, from, size);
}

static inline __attribute__((always_inline, unused)) void *counted_fill(void *to, int byte, size_t size)
{
    COUNT_WORDS(size);
    return memset(to, byte, size);
}

#define clock_gettime growth_clock
#define memcpy counted_copy
#define memmove counted_move
#define memset counted_fill
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h" /* of the repository, or another one */
