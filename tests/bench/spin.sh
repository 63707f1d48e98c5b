#!/usr/bin/env bash
# spin.sh - the default spin of a wait against two simple rules: to park at once, and to spin for 50 us, then park
#
#   make bench-spin
#
# In virtual time, so each run gives the same figures. A row is a pattern of work; its figures are means of a wait in
# us: late, from the GPU's end to the return of the wait, and processor time. Their size hangs on what spin.c lets a
# wake-up, a status and a handler cost: they compare the rules, and do not say what a Mac does. The default's limits
# stand in the table of spin.c. A rule that is better than the default in both figures is named.
# Ends with one line "N passed, N failed", and fails when the default breaks a limit.
#
# CC, BUILD, SOFTMETAL_LINK: see common.sh

# shellcheck source=tests/bench/common.sh
. "$(dirname "$0")/common.sh"
compile "$top" "$build/spin" "$here/spin.c"
exec "$build/spin"
