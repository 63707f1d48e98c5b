#!/usr/bin/env bash
# proof.sh - does the fuzzer find faults? They are planted, one at a time, in copies of gpusync.h
#
#   tests/fuzz/proof.sh DIRECTORY
#   tests/fuzz/proof.sh --check      says which faults cannot be planted any more, or nothing
#
# DIRECTORY/fuzz is the fuzzer without a fault: it has to get through the corpus. Each fault has LIMIT seconds (300):
# first the corpus is replayed, then new inputs are made from it. Which of the two found it, and when, is told.
#
# COMPILE  the compiler with its options, for a program in the directory of the repository
# LINK     what comes after the source
#
# Ends with exactly one line "N passed, N failed".

set -euo pipefail
out=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
limit=${LIMIT:-300}
options="-detect_leaks=0 -timeout=30 -rss_limit_mb=2048 -max_len=400 -len_control=0"
export ASAN_OPTIONS="detect_stack_use_after_return=1:detect_leaks=0" FUZZ_LIMIT=10
passed=0 failed=0

# Lines of gpusync.h: the whole of one is exchanged, and it has to be there exactly once.
faults=(
    lost_error "a submission is not told that a ticket it waited for has failed"
    '        if ((failed || gone) && !need->any_end) gpusync__doom(plan, need->rank, &error);'
    '        if (gone && !need->any_end) gpusync__doom(plan, need->rank, &error);'

    leaked_buffer "the command buffers of its own that a submission made before it failed are not released"
    '        gpusync__release_pooled(buffers[i]);'
    '        (void)buffers[i];'

    early_value "a value is known before a promise below it was kept"
    '    if (t->promised && t->promises.end[0]->number <= value) value = t->promises.end[0]->number - 1;'
    '    if (t->promised && t->promises.end[0]->number == 0) value = 0;'
)

if [ "$out" = --check ]; then
    for ((i = 0; i < ${#faults[@]}; i += 4)); do
        count=$(grep -cxF -- "${faults[i + 2]}" "$root/gpusync.h" || true)
        [ "$count" = 1 ] || echo "${faults[i]}: its line is there $count times"
    done
    exit
fi

# plant NAME LINE OTHER [N]
plant() {
    local dir=$out/proof/$1
    rm -rf "$dir"
    mkdir -p "$dir/tests"
    cp -R "$root/examples" "$dir/"
    cp -R "$root"/tests/*.h "$root/tests/fuzz" "$root/tests/softmetal" "$dir/tests/"
    LINE=$2 OTHER=$3 awk '
        $0 == ENVIRON["LINE"] { n++; print ENVIRON["OTHER"]; next }
        { print }
        END { exit n != 1 }' "$root/gpusync.h" >"$dir/gpusync.h" || {
        echo "the line is not there exactly once: $2"
        return 1
    }
    # shellcheck disable=SC2086
    (cd "$dir" && tests/fuzz/calls.sh gpusync.h >fuzz_calls.h &&
        ${COMPILE:?} -I"$dir" -o fuzz tests/fuzz/fuzz.c ${LINK:?}) 2>&1
}

# run PROGRAM LOG ARGUMENT...: 0 where it found nothing
run() {
    local program=$1 log=$2
    shift 2
    # shellcheck disable=SC2086
    "$program" $options -artifact_prefix="$(dirname "$program")/" "$@" >"$log" 2>&1
}

what_was_found() { # LOG
    LC_ALL=C grep -m1 -aE '^fuzz: |not so: |softmetal: |ERROR: AddressSanitizer|runtime error|, expected ' "$1" |
        cut -c1-150 || true
}

if run "$out/fuzz" "$out/proof.log" "$root"/tests/fuzz/corpus/*; then
    passed=$((passed + 1))
    echo "without a fault: the corpus passes"
else
    failed=$((failed + 1))
    echo "FAILED: without a fault: $(what_was_found "$out/proof.log")"
fi

for ((i = 0; i < ${#faults[@]}; i += 4)); do
    name=${faults[i]} dir=$out/proof/${faults[i]}
    echo "$name: ${faults[i + 1]}"
    if ! plant "$name" "${faults[i + 2]}" "${faults[i + 3]}"; then
        failed=$((failed + 1))
        continue
    fi
    start=$SECONDS by=
    if ! run "$dir/fuzz" "$dir/log" "$root"/tests/fuzz/corpus/*; then
        by="an input of the corpus"
    else
        mkdir -p "$dir/found"
        run "$dir/fuzz" "$dir/log" -max_total_time="$limit" "$dir/found" "$root/tests/fuzz/corpus" ||
            by="an input that the fuzzer made"
    fi
    # It counts when the same input passes where nothing is planted, as those of the corpus do.
    input=$(LC_ALL=C sed -n 's,.*Test unit written to ,,p' "$dir/log" | tail -n 1)
    if [ "$by" = "an input that the fuzzer made" ] &&
        { [ -z "$input" ] || ! run "$out/fuzz" "$dir/control.log" "$input"; }; then
        failed=$((failed + 1))
        echo "FAILED: what was found is not what was planted: $input"
        what_was_found "$dir/log"
    elif [ -n "$by" ]; then
        passed=$((passed + 1))
        echo "    found after $((SECONDS - start)) s by $by"
        echo "    $(what_was_found "$dir/log")"
    else
        failed=$((failed + 1))
        echo "FAILED: not found in $((SECONDS - start)) s"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
