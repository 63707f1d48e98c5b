/* darwin.h - between runner.c, darwin.c, objc.c and machine.S */
#ifndef DARWIN_H
#define DARWIN_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* libSystem's function or object of this name, which has no underscore in front; NULL: darwin.c lacks it. */
void *darwin_symbol(const char *name);

/* Of the Objective-C runtime: a class; NULL: there is none of this name. */
void *darwin_objc_symbol(const char *name);
/* Of every section, in two rounds: takes over what is Objective-C's. */
void darwin_objc_section(const char *name, void *start, size_t size, int round);

/* runner.c's: whether this is a place of the program's; what the program itself has under this name. */
bool darwin_in_program(const void *address);
void *darwin_own_symbol(const char *name);

/* To be called before anything of the program runs. tlv: the first values of a thread's variables; size may be 0. */
void darwin_start(const void *tlv, size_t size, size_t align);

/* In machine.S; called by the program with a descriptor, and may change no register but the result's (arm64: and x16,
   x17), so it is no function for C. */
void darwin_tlv_address(void);
void *darwin_tlv_make(void);

#endif
