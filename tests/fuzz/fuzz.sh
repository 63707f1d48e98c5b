#!/usr/bin/env bash
# fuzz.sh - replays the corpus, fuzzes, and counts
#
#   tests/fuzz/fuzz.sh PROGRAM
#
# First every input of tests/fuzz/corpus is run once, and every public function of gpusync.h must have been called by
# then. Then the fuzzer looks for new ones for TIME seconds (60). An input that fails is kept next to PROGRAM.
#
# TIME   seconds
# SEED   where libFuzzer's random numbers begin (1): the same for the same sources, so that a run can be had again
# INPUT  one input: it is run, with every call told, and nothing else
#
# Ends with exactly one line "N passed, N failed": the inputs of the corpus, the public functions, the fuzzing.

set -euo pipefail
program=$1
here=$(cd "$(dirname "$0")" && pwd)
out=$(dirname "$program")
time=${TIME:-60}
seed=${SEED:-1}
options="-detect_leaks=0 -timeout=30 -rss_limit_mb=2048 -max_len=400 -len_control=0"
export ASAN_OPTIONS="detect_stack_use_after_return=1:detect_leaks=0" # objects and memory are counted by fuzz.c itself

if [ -n "${INPUT:-}" ]; then
    # shellcheck disable=SC2086
    if FUZZ_TELL=1 "$program" $options "$INPUT"; then
        echo "1 passed, 0 failed"
        exit 0
    fi
    echo "0 passed, 1 failed"
    exit 1
fi

mkdir -p "$out/found"
passed=0 failed=0
count() { # WHAT LOG STATUS N: N passed where STATUS is 0, else one failed
    if [ "$3" -eq 0 ]; then
        passed=$((passed + $4))
        echo "$1: passed"
        return
    fi
    failed=$((failed + 1))
    echo "FAILED: $1"
    grep -vE '^(#[0-9]+|INFO:|NOTE:|Use |") ?' "$2" | tail -n 60 | sed 's/^/    | /'
    sed -n "s,.*Test unit written to \(.*\),replay: make fuzz INPUT=\1," "$2"
}

inputs=("$here"/corpus/*)
status=0
# shellcheck disable=SC2086
"$program" $options -artifact_prefix="$out/" "${inputs[@]}" >"$out/corpus.log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then sed -n 's,^Running: ,,p' "$out/corpus.log" | tail -n 1 | sed 's,^,replay: make fuzz INPUT=,'; fi
count "${#inputs[@]} inputs of the corpus" "$out/corpus.log" "$status" "${#inputs[@]}"

status=0
# shellcheck disable=SC2086
FUZZ_CALLS=1 "$program" $options -runs=0 "$here/corpus" >"$out/calls.log" 2>&1 || status=$?
grep -E '^calls: ' "$out/calls.log" || status=1
count "every public function is called" "$out/calls.log" "$status" 1

if [ "$time" -gt 0 ] && [ "$failed" -eq 0 ]; then
    rm -rf "$out/found"
    mkdir -p "$out/found"
    status=0
    # shellcheck disable=SC2086
    "$program" $options -artifact_prefix="$out/" -max_total_time="$time" -seed="$seed" -print_final_stats=1 "$out/found" \
        "$here/corpus" >"$out/run.log" 2>&1 || status=$?
    sed -n 's,^stat::number_of_executed_units: *,inputs run: ,p; s,^stat::average_exec_per_sec: *,in a second: ,p' \
        "$out/run.log"
    count "$time s of fuzzing" "$out/run.log" "$status" 1
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
