/* test_atomics_self.c - test_turns_self.c once more, with turns_atomics.c: each atomic operation is a point */
#define WITH_ATOMICS
#include "test_turns_self.c"
