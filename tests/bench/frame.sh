#!/usr/bin/env bash
# frame.sh - what gpusync takes of a frame, and of threads that commit, on a Metal that costs nothing
#
#   make bench-frame
#
# frame.c has a Metal of its own, of a few instructions and without threads. A frame makes a command buffer, commits
# it and waits for it: the work has ended when it is waited for, or the wait sleeps, and it ends in the park hook.
# Then threads commit and do not wait. While more than 8 works run, a thread that makes another command buffer has one
# end. A commit message takes the time that a row names: gpusync has the queue's order lock meanwhile.
#   by hand  a completed handler counts under a mutex, and signals a condition variable
#   0.4      that header, for comparison
#   0.5      gpusync.h. At the right: how long it holds the device's lock, in a build that measures that
# Each way has its turn in each round. Prints medians with quartiles, and the ratio by round, with its range too. The
# figures are of this machine and its load: on a busy one trust the ratios, and those of few threads. A row fails when a
# result is wrong, never by a time. Ends with one line "N passed, N failed".
#
# OLD     a gpusync.h of 0.4; default: that of the history, if there is one; else the column is empty
# ROUNDS  of the rows of threads, default 31; the first two have three times as many. All take some 30 s
# CC, BUILD: see common.sh

SOFTMETAL_LINK=-lpthread # none of it is here
# shellcheck source=tests/bench/common.sh
. "$(dirname "$0")/common.sh"
[ "$(uname -sm)" = "Linux x86_64" ] || broken "Linux on x86-64 only: one objc_msgSend returns numbers of both kinds"

# way NAME HEADER-DIRECTORY OPTION...: an object in which only run_NAME is visible, as each has its own objc_msgSend
way() {
    local object=$build/$1.o
    compile "$2" "$object" "$here/frame.c" -c "-DWAY=run_$1" -Wno-unused-command-line-argument "${@:3}"
    objcopy --keep-global-symbol="run_$1" "$object" || broken "objcopy failed"
    objects+=("$object")
}

objects=() old=$build/0.4
mkdir "$old"
if [ -n "${OLD:-}" ]; then
    cp "$OLD" "$old/gpusync.h" || broken "OLD=$OLD: no such file"
elif ! git -C "$top" show 'a6ecf9b^:gpusync.h' >"$old/gpusync.h" 2>/dev/null; then
    old=''
fi
way hand "$top" -DBY_HAND
[ -z "$old" ] || way old "$old"
way new "$top"
way lock "$top" -DHELD=1
compile "$top" "$build/frame" "$here/frame.c" "${objects[@]}"
echo "$($cc --version | head -n 1) -O2, $(uname -sm), $(getconf _NPROCESSORS_ONLN) processors"
exec "$build/frame" ${ROUNDS:+"$ROUNDS"}
