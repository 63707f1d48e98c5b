/* test_atomics_graphs.c - test_turns_graphs.c, where each atomic operation is a point, too: see turns_atomics.c */
#define WITH_ATOMICS
#include "test_turns_graphs.c"
