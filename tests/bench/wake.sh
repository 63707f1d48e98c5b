#!/usr/bin/env bash
# wake.sh - how soon a wait returns after the GPU's end, and its processor time, on the real clock
#
#   make bench-wake
#
# A frame is one command buffer, and a wait for it. The ways: by hand (a completed handler, a mutex, a condition
# variable), gpusync with its default spin, gpusync with a spin of zeros, and gpusync 0.4, whose header comes from git,
# where git still has it. Prints, in us: the median of the rounds' medians, from the GPU's end to the return; from the
# call of the program's own handler to the return, below 0 where a status told first; processor time of the thread, and
# of the process with the device's threads. Then the same over Vulkan, if `make test-vulkan` has built that device.
# The waiting thread has a processor of its own, which the device's threads do not use: two processors are needed.
# The figures are of this machine and its load: compare ways of one run. Nothing here can fail by a time.
#
# ROUNDS  default 9
# CC, BUILD, SOFTMETAL_LINK: see common.sh

# shellcheck source=tests/bench/common.sh
. "$(dirname "$0")/common.sh"
vulkan=$(cd "$build/../.." && pwd)/vulkan/libmetal_vulkan.so
mkdir -p "$build/old"
headers=("$top") names=(0.5)
if git -C "$top" show a6ecf9b^:gpusync.h >"$build/old.h" 2>/dev/null; then
    sed 's/"dispatch_time"/"wake_time"/; s/"dispatch_after_f"/"wake_after"/' "$build/old.h" >"$build/old/gpusync.h"
    headers+=("$build/old") names+=(0.4)
fi
for device in softmetal vulkan; do
    if [ "$device" = vulkan ]; then
        [ -e "$vulkan" ] || { echo "vulkan: left out, make test-vulkan builds it"; continue; }
        SOFTMETAL_LINK="-DVULKAN $vulkan -Wl,-rpath,$(dirname "$vulkan") ${SOFTMETAL_LINK#* }"
    fi
    for k in "${!headers[@]}"; do compile "${headers[k]}" "$build/$device-${names[k]}" "$here/wake.c"; done
    for ((round = 0; round < ${ROUNDS:-9}; round++)); do
        for k in "${!headers[@]}"; do # the newest has the ways that are not gpusync's, too
            ways='hand default park'
            [ "$k" = 0 ] || ways=default
            # shellcheck disable=SC2086 # a list of words
            timeout 60 "$build/$device-${names[k]}" "${names[k]}" $ways || echo failed
        done
    done >"$build/$device.txt"
    echo "$device: us, medians; from the GPU's end and from the handler to the return; processor time"
    if sort -k1,1n -k2,4 -k5n "$build/$device.txt" | awk '
        function tell() {
            if (n) printf "%s%9.1f", number ? "" : "\n" row, all[int((n + 1) / 2)]
        }
        BEGIN { printf "%8s  %-12s%9s%9s%9s%9s", "length", "", "end", "handler", "thread", "process" }
        NF != 5 { bad = 1; next }
        $1 " " $2 " " $3 " " $4 != last { tell(); last = $1 " " $2 " " $3 " " $4; n = 0 }
        { row = sprintf("%8s  %-4s%-8s", $1, $2, $3); number = $4; all[++n] = $5 }
        END { tell(); print ""; exit bad || !n }'; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $device"
    fi
done
finish
