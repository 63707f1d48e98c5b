#!/usr/bin/env bash
# fuzz.sh - libFuzzer draws the random programs of graphs.h, and their model judges them
#
# A process for each core looks for an input that fails, from nothing, for TIME seconds (60). Each has inputs and a seed
# of its own. An input that fails is kept, and the command that runs it again is printed.
#
# TIME    seconds
# SEED    of the first process (1); the next ones have those behind it
# INPUT   this input runs once, and prints its steps; nothing else does
# RUN     put in front of the program
# BUILD   where everything is built (build)
# HEADER  a folder with another gpusync.h, such as a copy with a fault
#
# Ends with exactly one line "N passed, N failed": a process or an input each.

set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
input=${INPUT:+$(realpath -- "$INPUT")}
build=$(mkdir -p "${BUILD:-$root/build}" && cd "${BUILD:-$root/build}" && pwd) && cd "$root" || exit 1
out=$build/fuzz${HEADER:+-$(realpath -- "$HEADER" | cksum | cut -d' ' -f1)}
seed=${SEED:-1}
time=${TIME:-60}
read -ra run <<<"${RUN:-}"
run+=("$out/fuzz" -timeout=30 -rss_limit_mb=2048 -detect_leaks=0) # the stage counts objects and memory itself
export ASAN_OPTIONS=detect_stack_use_after_return=1:detect_leaks=0
export UBSAN_OPTIONS=print_stacktrace=1

fail() {
    echo "fuzz.sh: $1" >&2
    echo "0 passed, 1 failed"
    exit 1
}
[ "$(uname -s)" = Linux ] || fail "Linux only"
for tool in clang make gnustep-config; do
    command -v $tool >/dev/null || fail "$tool is missing"
done
echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
    clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null ||
    fail "clang has no libFuzzer (Debian: libclang-rt-NN-dev)"
mkdir -p "$out"
env -u MAKELEVEL make -s -f tests/fuzz/fuzz.mk BUILD="$out" HEADER="${HEADER:-}" SANITIZE= >"$out/make.log" 2>&1 || {
    tail -n 20 "$out/make.log" >&2
    fail "the fuzzer could not be built"
}

if [ -n "$input" ]; then
    if FUZZ_TELL=1 "${run[@]}" "$input"; then
        echo "1 passed, 0 failed"
        exit 0
    fi
    echo "0 passed, 1 failed"
    exit 1
fi

passed=0 failed=0 processes=()
trap 'kill "${processes[@]}" 2>/dev/null' EXIT
trap 'exit 130' HUP INT TERM
for ((i = 0; i < $(nproc); i++)); do
    rm -rf "$out/corpus.$i"
    mkdir -p "$out/corpus.$i"
    "${run[@]}" -artifact_prefix="$out/" -seed=$((seed + i)) -max_total_time="$time" -max_len=1000 -len_control=0 \
        -print_final_stats=1 "$out/corpus.$i" </dev/null >"$out/$i.log" 2>&1 &
    processes+=($!)
done
for i in "${!processes[@]}"; do
    if wait "${processes[i]}"; then
        passed=$((passed + 1))
        sed -n "s,^stat::number_of_executed_units: *,seed $((seed + i)): programs: ,p" \
            "$out/$i.log"
    else
        failed=$((failed + 1))
        echo "FAILED: seed $((seed + i)), after $(grep -ac '^#' "$out/$i.log") reports of libFuzzer"
        grep -avE '^(#[0-9]+|INFO:|NOTE:|Dictionary|stat::|Base64|0x|artifact)' "$out/$i.log" | tail -n 60 |
            cut -c1-200 | sed 's/^/    | /'
        sed -n 's,.*Test unit written to ,again: make fuzz INPUT=,p' "$out/$i.log"
    fi
done
processes=()
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
