#!/usr/bin/env bash
# fuzz.sh - replays a corpus, fuzzes, and counts
#
#   tests/fuzz/fuzz.sh PROGRAM
#
# First every input of the corpus is run once. By then the program must have called every public function of gpusync.h, and
# met each kind and option of its list (MEETS in common.h). Then the fuzzer looks for new ones for TIME seconds (60): a
# process for each core, each with inputs and a seed of its own. An input that fails is kept next to PROGRAM.
# The corpus of PROGRAM fuzz is tests/fuzz/corpus; of threads, tests/fuzz/corpus_threads.
#
# TIME   seconds
# SEED   where the random numbers of the first process begin (1), those of the next one later: the same for the same
#        sources, so that a run can be had again. Not with threads: these run as they like.
# INPUT  one input: it is run, with every call told, and nothing else. With threads N times (20): it may fail in some.
# RUN    put in front of PROGRAM
#
# Ends with exactly one line "N passed, N failed": the inputs of the corpus, what they reach, the fuzzing.

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
program=$1
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/fuzz/options.sh
. "$here/options.sh"
out=$(dirname "$program")
time=${TIME:-60}
seed=${SEED:-1}
name=$(basename "$program")
corpus=$(corpus_of "$name")
read -ra run <<<"${RUN:-}"
run+=("$program")
read -ra with <<<"$(options_of "$name")"
run+=("${with[@]}")

if [ -n "${INPUT:-}" ]; then
    times=1
    [ "$name" = fuzz ] || times=${N:-20}
    if FUZZ_TELL=1 "${run[@]}" -runs="$times" "$INPUT"; then
        echo "1 passed, 0 failed"
        exit 0
    fi
    echo "0 passed, 1 failed"
    exit 1
fi

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
    sed -n "s,.*Test unit written to \(.*\),replay: make $target INPUT=\1," "$2"
}
target=fuzz
[ "$name" = fuzz ] || target=fuzz-threads

inputs=("$corpus"/*)
status=0
"${run[@]}" -artifact_prefix="$out/" "${inputs[@]}" >"$out/$name.corpus.log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then
    sed -n 's,^Running: ,,p' "$out/$name.corpus.log" | tail -n 1 | sed "s,^,replay: make $target INPUT=,"
fi
count "${#inputs[@]} inputs of the corpus" "$out/$name.corpus.log" "$status" "${#inputs[@]}"

# Threads meet some kinds by chance, such as a wait that comes when the device is lost: a few replays have to meet all.
for try in 1 2 3 4 5; do
    status=0
    FUZZ_CALLS=1 "${run[@]}" -runs=0 "$corpus" >"$out/$name.calls.log" 2>&1 || status=$?
    [ "$name" = threads ] && [ "$try" -lt 5 ] && grep -q '^not met: ' "$out/$name.calls.log" || break
done
grep -E '^calls: ' "$out/$name.calls.log" || status=1
count "every public function is called, every kind and option met" "$out/$name.calls.log" "$status" 1

if [ "$time" -gt 0 ] && [ "$failed" -eq 0 ]; then
    cores=$(nproc 2>/dev/null || echo 2)
    processes=()
    rm -rf "$out/$name.found"
    for ((i = 0; i < cores; i++)); do
        mkdir -p "$out/$name.found/$i"
        "${run[@]}" -artifact_prefix="$out/" -max_total_time="$time" -seed=$((seed + i)) -print_final_stats=1 \
            "$out/$name.found/$i" "$corpus" >"$out/$name.run.$i.log" 2>&1 &
        processes+=($!)
    done
    for ((i = 0; i < cores; i++)); do
        status=0
        wait "${processes[i]}" || status=$?
        sed -n 's,^stat::number_of_executed_units: *,inputs run: ,p; s,^stat::average_exec_per_sec: *,in a second: ,p' \
            "$out/$name.run.$i.log"
        count "$time s of fuzzing, seed $((seed + i))" "$out/$name.run.$i.log" "$status" 1
    done
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
