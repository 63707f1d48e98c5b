#!/usr/bin/env bash
# vulkan.sh - gpusync on Metal over Vulkan: a device on which work takes time by itself
#
#   tests/vulkan/vulkan.sh [--plain] FOLDER EXAMPLE...
#
# FOLDER has the programs stress, test_portable and beliefs, and the examples below examples/. `make test-vulkan` calls this.
# Without --plain the programs have a sanitizer, and are run once. With it they are run a second time under Vulkan's
# validation layer, which has to be silent, and the questions of tests/beliefs are asked that this device can answer.
# A machine without a Vulkan device that is good enough fails: stress says the reason.
# STRESS: of stress. RUN, JOBS, TIME_LIMIT: of run.sh. Ends with one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
plain=
if [ "$1" = --plain ]; then plain=1 && shift; fi
folder=$1 && shift
here=$(cd "$(dirname "$0")/.." && pwd)
passed=0 failed=0

count() { # the lines of a part, which end with "N passed, N failed"
    local ok no
    cat "$1"
    read -r ok _ no _ <<<"$(tail -n 1 "$1")"
    [[ "$ok $no" =~ ^[0-9]+\ [0-9]+$ ]] || ok=0 no=1 # it has not come to its end
    passed=$((passed + ok)) failed=$((failed + no))
}

# What is Mesa's, beside what is GNUstep's. And the compiler's checks of memory alone: lavapipe fills word by word with memcpy,
# which the sanitizer's own would make forty times as slow.
cat "$here"/softmetal/tsan.supp "$here"/vulkan/tsan.supp >"$folder/tsan.supp"
export TSAN_OPTIONS="suppressions=$folder/tsan.supp:history_size=5:second_deadlock_stack=1"
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:replace_intrin=0"

# The examples find a real device, and one without Metal 4.
run() { # LOGS
    mkdir -p "$folder/$1"
    FORM=no-metal4 LOGS=$folder/$1 "$here/run.sh" "$folder/stress" "$folder/test_portable" --examples "${examples[@]}" \
        >"$folder/$1.txt" 2>&1
    count "$folder/$1.txt"
}

# What is asked of Metal, and holds on this device as well: the rest it cannot say (Metal 4, a watchdog, times of 50 us), or it
# does otherwise, as gpusync allows for: it sets a status before an earlier handler has returned, and drops the handlers of a
# command buffer that is never committed.
holding="global_block status handler_order empty_behind released_event listener exception gates cpu_signal signal_order pool
    locks compiling limit dispatch timer family"
beliefs() {
    local probe answers ok=0 no=0
    for probe in $holding; do
        answers=$("$here/limit.pl" 60 "$folder/beliefs" --probe "$probe" 2>&1 | grep -a "^row")
        if [ -z "$answers" ] || grep -qP '^row\t[^\t]*\tdiffers' <<<"$answers" || ! grep -qP '\tholds\t' <<<"$answers"; then
            no=$((no + 1))
            printf 'FAILED: beliefs, %s:\n%s\n' "$probe" "$answers"
        else
            ok=$((ok + 1))
        fi
    done
    echo "$ok passed, $no failed"
}

# Was the layer there, and had it nothing to say?
silent() {
    local ok=0 no=0
    if VK_LOADER_DEBUG=layer "$folder/test_portable" 2>&1 | grep -q 'Insert instance layer "VK_LAYER_KHRONOS_validation"'; then
        ok=$((ok + 1))
    else
        no=$((no + 1))
        echo "FAILED: the loader does not find the validation layer"
    fi
    if grep -aE 'VUID-|UNASSIGNED-|Validation (Error|Warning)' "$folder"/validated/*.log | head -n 20 | grep -a .; then
        no=$((no + 1))
        echo "FAILED: the validation layer is not silent"
    else
        ok=$((ok + 1))
    fi
    echo "$ok passed, $no failed"
}

examples=()
for name in "$@"; do examples+=("$folder/examples/$name"); done
run logs
if [ -n "$plain" ]; then
    echo "--- with Vulkan's validation layer"
    export VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation
    STRESS=${STRESS:-1}
    STRESS=$(awk "BEGIN { print $STRESS / 4 }") run validated
    silent >"$folder/silent.txt"
    count "$folder/silent.txt"
    unset VK_INSTANCE_LAYERS
    echo "--- the questions of tests/beliefs"
    beliefs >"$folder/beliefs.txt"
    count "$folder/beliefs.txt"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
