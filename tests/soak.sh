#!/usr/bin/env bash
# soak.sh - random tests with new seeds, for hours
#
#   tests/soak.sh HOURS [SEED]
#
# Jobs of a minute or two, in turn, on every core: threads that do everything at once, graphs of submissions, both
# fuzzers, faults that come together, callbacks on many threads; under AddressSanitizer or ThreadSanitizer, on queues of
# both kinds. Each job has a seed of its own, counted from SEED; default: the clock.
#
# The first job that fails ends the soak: the end of its output is shown, and the command that runs it again. What
# depends on threads need not fail again.
#
# BUILD  where everything is built (build); the outputs are in BUILD/soak
# RUN    command put in front of programs under ThreadSanitizer: setarch -R
#
# Ends with a line for each kind of job, and with exactly one line "N passed, N failed": the jobs.

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.." || exit 1
hours=${1:-}
first=${2:-$(date +%s)000000}
build=${BUILD:-$PWD/build}
out=$build/soak
asan=$build/clang-address-undefined
tsan=$build/clang-thread
cores=$(nproc 2>/dev/null || echo 2)
limit=900 # seconds for a job: one that takes longer hangs
seconds=$(awk -v hours="$hours" 'BEGIN { printf "%d", hours * 3600 }')
if [ "$seconds" -le 0 ]; then
    echo "soak: HOURS= is a number of hours, such as 1 or 0.1"
    echo "0 passed, 1 failed"
    exit 1
fi

kinds=(stress-tsan graphs fuzz faults stress-asan fuzz-threads callbacks)
with_asan="CC=clang SANITIZE=address,undefined"
with_tsan="CC=clang SANITIZE=thread${RUN:+ RUN='$RUN'}"

build_all() {
    local make="make -j$cores --no-print-directory BUILD='$build'"
    eval "$make programs $with_asan TESTS='test_stress test_submit_graphs test_faults' EXAMPLES=" &&
        eval "$make programs $with_tsan TESTS='test_stress test_retention' EXAMPLES=" &&
        eval "$make fuzz fuzz-threads TIME=0" # their corpora, once
}

# Both set `command`, and `again`: how it is run again.
fuzz_job() { # PROGRAM TARGET
    local with name
    name=$(basename "$1")
    # shellcheck source=tests/fuzz/options.sh
    mapfile -t with < <(. tests/fuzz/options.sh && echo "ASAN_OPTIONS=$ASAN_OPTIONS" && echo "TSAN_OPTIONS=$TSAN_OPTIONS" &&
        options_of "$name" && corpus_of "$name")
    # shellcheck disable=SC2206 # RUN and the options are lists of words
    command=(env "${with[0]}" "${with[1]}" ${RUN:-} "$1" ${with[2]} -artifact_prefix="$folder/" -max_total_time=90
        -seed="$((seed % 4294967295))" -print_final_stats=1 "$folder/found" "${with[3]}")
    again="make $2 INPUT=\$(ls $folder/*-*)" # libFuzzer keeps it as crash-..., timeout-...
}
test_job() { # OPTIONS SANITIZER FOLDER TEST [FILTER]: OPTIONS are NAME=VALUE
    local kind=
    [ $((number / ${#kinds[@]} % 2)) -eq 0 ] || [ "$4" = test_submit_graphs ] || kind=QUEUES=metal4 # graphs mix both
    # shellcheck disable=SC2206 # RUN and the options are lists of words
    command=(env $1 $kind)
    # shellcheck disable=SC2206
    [ "$3" != "$tsan" ] || command+=(${RUN:-})
    command+=("$3/tests/$4" ${5:+"$5"})
    again="$1 ${kind:+$kind }make test $2 TESTS=$4 EXAMPLES="
}
choose() { # KIND
    case $1 in
    fuzz) fuzz_job "$asan/fuzz/fuzz" fuzz ;;
    fuzz-threads) fuzz_job "$tsan/fuzz/threads" fuzz-threads ;;
    stress-tsan) test_job "SEED=$seed STRESS=2" "$with_tsan" "$tsan" test_stress ;;
    stress-asan) test_job "SEED=$seed STRESS=10" "$with_asan" "$asan" test_stress ;;
    callbacks) test_job "SEED=$seed STRESS=4" "$with_tsan" "$tsan" test_retention ;;
    faults) test_job "SEED=$seed STRESS=8" "$with_asan" "$asan" test_faults 'test_faults_that*' ;;
    graphs) test_job "GRAPH_SEED=$seed GRAPH_PROGRAMS=1000" "$with_asan" "$asan" test_submit_graphs ;;
    esac
}

count_units() { # inputs of a fuzzer, programs of graphs, rounds of faults; else 1
    local units
    units=$(sed -n 's/^stat::number_of_executed_units: *//p; s/^\([0-9]*\) programs, .*/\1/p' "$folder/log")
    [ -n "$units" ] || units=$(grep -c '^SEED=' "$folder/log")
    echo "${units:-1}"
}

work() { # the jobs number $1, $1 + cores, ...
    local number seed kind folder command again status begun
    for ((number = $1; SECONDS < seconds; number += cores)); do
        [ ! -e "$out/failed" ] || return
        kind=${kinds[number % ${#kinds[@]}]} seed=$((first + number * 10000)) folder=$out/$number
        mkdir -p "$folder/found"
        choose "$kind"
        begun=$SECONDS status=0
        timeout -k 5 "$limit" "${command[@]}" </dev/null >"$folder/log" 2>&1 || status=$?
        echo "$kind $status $((SECONDS - begun)) $(count_units)" >>"$out/done"
        if [ "$status" -ne 0 ]; then
            (set -C && echo "$number" >"$out/failed") 2>/dev/null || return
            echo "FAILED: $kind, seed $seed, status $status; the whole output: $folder/log"
            grep -v '^#[0-9]' "$folder/log" | tail -n 80 | sed 's/^/    | /'
            echo "again: $again"
            return
        fi
        rm -rf "$folder/found"
    done
}

rm -rf "$out"
mkdir -p "$out"
echo "soak: seed $first, $hours h on $cores cores"
if ! build_all >"$out/build.log" 2>&1; then
    tail -n 40 "$out/build.log"
    echo "0 passed, 1 failed"
    exit 1
fi
SECONDS=0
for ((i = 0; i < cores; i++)); do work "$i" & done
wait
for kind in "${kinds[@]}"; do
    awk -v kind="$kind" '$1 == kind { n++; s += $3; u += $4 }
        END { printf "%-13s %4d jobs %7d s %9d %s\n", kind, n, s, u,
              kind ~ /fuzz/ ? "inputs" : kind == "graphs" ? "programs" : kind == "faults" ? "rounds" : "runs" }' "$out/done"
done
failed=0
[ ! -e "$out/failed" ] || failed=$(awk '$2 != 0' "$out/done" | wc -l)
echo "$(awk '$2 == 0' "$out/done" | wc -l) passed, $failed failed"
[ "$failed" -eq 0 ]
