/* slow.h - how much less is done under ThreadSanitizer, and under qemu, for which tests/macho/build.sh defines it */
#ifndef SLOW_H
#define SLOW_H

#if defined(SLOW)
#elif defined(__SANITIZE_THREAD__)
#define SLOW 20u
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLOW 20u
#endif
#endif
#ifndef SLOW
#define SLOW 1u
#endif

#endif
