#!/usr/bin/env bash
# bench.sh - a commit and a wait for work that takes its time, beside what one writes by hand, on softmetal
#
#   make bench      runs frame.sh first, which has what gpusync itself takes
#
# By the wall clock. A row is how long the GPU works; a column is a way to commit and wait:
#   device              a bare command buffer, made and committed: no handler, no wait. What a way takes beyond this,
#                       and beyond the GPU's time that the row names, is its own part
#   gpusync             with the default spin: it needs a processor of its own beside those of softmetal's two threads
#   by hand             a completed handler counts under a mutex, and signals a condition variable
#   waitUntilCompleted  Metal's own wait
#   gpusync, no spin    a spin of zeros: sleeps at once
# In each round every way has its turn, with a new queue, and the order changes. Prints medians with quartiles. The
# figures are of this machine and its load: compare columns of one run. A row fails when a result is wrong, never by a
# time. Ends with one line "N passed, N failed".
#
# ROUNDS  default 31, which take some five seconds
# RUN     what to run the program with; default nothing
# CC, BUILD, SOFTMETAL_LINK: see common.sh

# shellcheck source=tests/bench/common.sh
. "$(dirname "$0")/common.sh"
"$here/frame.sh" || broken "frame.sh has failed"
compile "$top" "$build/bench" "$here/bench.c" "$build/implementation.c"
echo "$($cc --version | head -n 1) -O2, $(uname -sm), $(getconf _NPROCESSORS_ONLN) processors"
exec ${RUN:-} "$build/bench" ${ROUNDS:+"$ROUNDS"}
