#!/usr/bin/env bash
# spin.sh - the default spin of a wait against simple rules: to park at once, to spin for 20 us or 50 us, then park, and
#           to pause 32 times and yield 224 times, then park
#
#   make bench-spin
#
# In virtual time, so each run gives the same figures. A row is a pattern of work; its figures are means of a wait in
# us: late, from the GPU's end to the return of the wait, and processor time. Their size hangs on what spin.c lets a
# wake-up, a status, a handler and a yield cost: they compare the rules, and do not say what a Mac does. Some rows have
# limits for the default, in the table of spin.c. At the end it counts the rows in which the default is the best or
# within 5 %: in one of the two figures (the rule of 0.4's benchmark, which had the first two rules alone, and all but
# one of these rows), and in their weighed sum. A row in which that sum is higher says by how much.
# Ends with one line "N passed, N failed", and fails when a limit is broken, or a count is lower than it was.
#
# CC, BUILD, SOFTMETAL_LINK: see common.sh

# shellcheck source=tests/bench/common.sh
. "$(dirname "$0")/common.sh"
compile "$top" "$build/spin" "$here/spin.c"
exec "$build/spin"
