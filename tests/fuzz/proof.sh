#!/usr/bin/env bash
# proof.sh - do the fuzzers find faults? They are planted, one at a time, in copies of gpusync.h
#
#   tests/fuzz/proof.sh
#   tests/fuzz/proof.sh --check      says which faults cannot be planted any more, or nothing
#
# BUILD/how-to-fuzz and BUILD/how-to-threads say how the two programs are built, and where they are without a fault: there
# they have to get through their corpus. Each fault has LIMIT seconds (600): first the corpus is replayed, then new inputs
# are made from it, by a process for each core. Which of the two found it, and when, is told. What was found must pass
# without the fault: with threads TIMES times (20). An input that hangs must hang with the fault once more, in as many runs:
# on a busy machine any may, and then the search goes on.
#
# With CORPUS=none no corpus is used: the fuzzer begins with nothing, and has LIMIT seconds for each fault.
#
# BUILD   see there
# CORPUS  none: see there
# LIMIT   seconds for a fault (600)
# ONLY    names or patterns of faults
# RUN     put in front of the program threads
# SEED    where the random numbers of libFuzzer's first process begin (1)
# TIMES   how often what threads found is run without the fault (20)
#
# Ends with exactly one line "N passed, N failed".

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/fuzz/options.sh
. "$root/tests/fuzz/options.sh"
limit=${LIMIT:-600}
cores=$(nproc 2>/dev/null || echo 2)
case ${CORPUS:=} in
'' | none) ;;
*)
    echo "$0: CORPUS is none, or not set" >&2
    exit 2
    ;;
esac
export FUZZ_LIMIT=10
passed=0 failed=0

# A name, the program that finds it, what it is, a line of gpusync.h, and what comes in its place. The whole line is
# exchanged, and it has to be there exactly once.
faults=(
    lost_error fuzz "a submission is not told that a ticket it waited for has failed"
    '    link->broken = error != NULL;'
    '    if (!link->timeline) error = NULL;
    link->broken = error != NULL;'

    leaked_buffer fuzz "the command buffer in front that a submission made before it was refused is not released"
    '    gpusync__release_pooled(s->front);'
    '    (void)s->front;'

    early_value fuzz "a value is known while a signal below it is pending"
    '    uint64_t value = first && first->node.number <= t->kept ? first->node.number - 1 : t->kept;'
    '    uint64_t value = first && first->node.number == 0 ? 0 : t->kept;'

    late_record fuzz "a ticket is marked before its failure is on record"
    '        gpusync__record(q, outcome->error, false);'
    '        gpusync__end_ticket(q, slot->ticket, outcome, caught, deferred), gpusync__record(q, outcome->error, false);'

    unpaid fuzz "a timeline goes before its callbacks were called"
    '    gpusync__pay(dev, &t->owed, going);'
    ''

    locked_unpark fuzz "a waiter is woken under the lock of its wait list"
    '        caught->waiters[caught->count++] = w;'
    '    {
        gpusync_device *dev = entry->goal.queue ? entry->goal.queue->device : entry->goal.timeline->device;
        dev->hooks.unpark(dev->hooks.user, &w->open);
    }'

    other_object threads "a handler that gets another object than the one committed does nothing"
    '    void *report = q->metal4 ? object : slot->buffer;'
    '    void *report = q->metal4 ? object : slot->buffer;
    if (object != report) return;'

    listener_runs threads "a timeline goes while the block of its listener runs"
    '    uint64_t next = gpusync__next_awaited(t, raw - t->base);'
    '    GPUSYNC__SUB_SEQ(&t->inside, 1);
    uint64_t next = gpusync__next_awaited(t, raw - t->base);
    GPUSYNC__ADD_SEQ(&t->inside, 1);'

    still_inside threads "a queue goes before the waits that it has woken are out"
    '    gpusync__let_out(q->device, &q->inside, going);'
    '    if (going->device) gpusync__let_out(q->device, &q->inside, going);'

    late_look threads "the look for callbacks comes before the note that a thread asked is taken back"
    '    GPUSYNC__STORE_SEQ(&dev->asked, 0);'
    '    if (gpusync__device_enter(dev)) {
        gpusync__run_due(dev, SIZE_MAX);
        gpusync__device_leave(dev);
    }
    GPUSYNC__STORE_SEQ(&dev->asked, 0);
    gpusync__device_unref(dev);
    return;'

    lost_counts threads "the counts of a device forget those of the queues that were destroyed"
    '    gpusync__add_stats(&dev->gone, q);'
    ''

    kept_room fuzz "room for command buffers of its own that a submission did not make is not given back"
    '        gpusync__give_room(s->work.queue, s->own_buffers, NULL);'
    '        gpusync__give_room(s->work.queue, 1, NULL);'

    cleared_early fuzz "a clear of a failure that sticks leaves the tickets that have not ended free of it"
    '            slot->behind = failed;'
    '            slot->behind = 0;'

    ends_well fuzz "a submission that ends well behind a failure that sticks does not take the error"
    '        s->failed = gpusync__takes_failure(q, &s->work, &s->error);'
    '        s->failed = false;'

    gone_early fuzz "a queue that goes later is said to be gone while the GPU works for it"
    '    if (q->drains)'
    '    if (q->drains && !going->device)'

    early_end fuzz "a lost device gives its work up at the first look"
    '    if (dev->looked == 0 || gpusync__give_up_device(dev))'
    '    if (gpusync__give_up_device(dev) && ++dev->looked)'

    timelines_stay fuzz "a lost device gives its work up, and its timelines do not fail"
    '        t->calls->lose(t);'
    '        (void)t;'

    unretained_look threads "a look does not retain the command buffer while it reads the status"
    '    view->buffer = gpusync__retain(slot->buffer);'
    '    view->buffer = slot->buffer;
    (void)gpusync__retain(NULL);'

    given_up_ends fuzz "a submission of a lost device that is given up has an end, and a record"
    '        s->left = true;'
    '        s->left = reason->result != GPUSYNC_ERROR_DEVICE_LOST;'

    left_inside threads "a queue that goes later does not wait for the calls that are inside"
    '    gpusync__let_out(q->device, &q->inside, going);'
    '    if (!going->device) gpusync__let_out(q->device, &q->inside, going);'

    device_inside threads "a device that goes later does not wait for the calls that are inside"
    '    while (!gpusync__swap32(&dev->inside, 1, 0))'
    '    while (!going && !gpusync__swap32(&dev->inside, 1, 0))'

    left_listed fuzz "a wait for any of several points leaves the others on their lists"
    '        if (wait->entries[i].waiter)'
    '        if (wait->entries[i].waiter && !(wait->leaves && wait->any))'

    untold fuzz "of several waits for a ticket that are over at once only the last is told"
    '    *(caught->links ? &caught->last_link->also : &caught->links) = link;'
    '    caught->links = link;'

    forgotten_call fuzz "an object that goes later, and is not gone at the first look, forgets its callback"
    '        uint64_t ns = (uint64_t)(round < 50 ? round : 50) * GPUSYNC__LINGER_NS;'
    '        uint64_t ns = (uint64_t)(round < 50 ? round : 50) * GPUSYNC__LINGER_NS;
        ((gpusync__going *)going)->destroyed = NULL;'
)

if [ "${1:-}" = --check ]; then
    for ((i = 0; i < ${#faults[@]}; i += 5)); do
        count=$(grep -cxF -- "${faults[i + 3]}" "$root/gpusync.h" || true)
        [ "$count" = 1 ] || echo "${faults[i]}: its line is there $count times"
    done
    exit
fi

# look_up NAME: how the program is built, and run
look_up() {
    compile='' link='' program=''
    # shellcheck disable=SC1090
    . "${BUILD:?}/how-to-$1"
    read -ra front <<<"$([ "$1" = fuzz ] || echo "${RUN:-}")"
    read -ra with <<<"$(options_of "$1")"
    inputs=("$(corpus_of "$1")"/*)
}

# plant DIRECTORY TARGET LINE OTHER
plant() {
    rm -rf "$1"
    mkdir -p "$1/tests"
    cp -R "$root/examples" "$1/"
    cp -R "$root"/tests/*.h "$root/tests/fuzz" "$root/tests/softmetal" "$1/tests/"
    LINE=$3 OTHER=$4 awk '
        $0 == ENVIRON["LINE"] { n++; print ENVIRON["OTHER"]; next }
        { print }
        END { exit n != 1 }' "$root/gpusync.h" >"$1/gpusync.h" || {
        echo "the line is not there exactly once: $3"
        return 1
    }
    # shellcheck disable=SC2086
    (cd "$1" && tests/fuzz/calls.sh gpusync.h >fuzz_calls.h && $compile -I"$1" -o "$2" "tests/fuzz/$2.c" $link) 2>&1
}

# run PROGRAM LOG ARGUMENT...: 0 where it found nothing
run() {
    local program=$1 log=$2
    shift 2
    "${front[@]}" "$program" "${with[@]}" -artifact_prefix="$(dirname "$program")/" "$@" >"$log" 2>&1
}

# search SECONDS CORPUS...: a process for each core, each with inputs and a seed of its own, until one has found something:
# then 0, and $dir/log is what it said
search() {
    local left=$1 i log
    shift
    rm -f "$dir"/log.*
    for ((i = 0; i < cores; i++)); do
        mkdir -p "$dir/found/$seed"
        "${front[@]}" "$dir/$target" "${with[@]}" -artifact_prefix="$dir/" -seed="$seed" -max_total_time="$left" \
            "$dir/found/$seed" "$@" >"$dir/log.$i" 2>&1 &
        seed=$((seed + 1))
    done
    while wait -n; do :; done # until one has found something, or none is left
    {
        jobs -rp | xargs -r kill -KILL
        wait
    } 2>/dev/null
    for log in "$dir"/log.*; do
        if LC_ALL=C grep -qa 'Test unit written to ' "$log"; then
            mv "$log" "$dir/log"
            return 0
        fi
    done
    return 1
}

hung_once() { # what stands in the log was a hang, and does not come again
    LC_ALL=C grep -qa '^fuzz: hangs' "$dir/log" && run "$dir/$target" "$dir/again.log" -runs="$times" "$input"
}

what_was_found() { # LOG
    LC_ALL=C grep -m1 -aE '^fuzz: |not so: |^softmetal: |^locks: |Sanitizer: |runtime error|, expected |Assertion' "$1" |
        cut -c1-150 || true
}

count() { # STATUS TEXT
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "$2"
}

for name in fuzz threads; do
    [ "$CORPUS" != none ] || break
    look_up $name
    log=$(dirname "$program")/$name.proof.log
    if run "$program" "$log" "${inputs[@]}"; then
        count 0 "without a fault: the corpus of $name passes"
    else
        count 1 "FAILED: without a fault, $name: $(what_was_found "$log")"
    fi
done

wanted() { # NAME
    local pattern
    [ -n "${ONLY:-}" ] || return 0
    for pattern in $ONLY; do
        # shellcheck disable=SC2053
        if [[ $1 == $pattern ]]; then return 0; fi
    done
    return 1
}

# All are compiled before the first search: each on one core, while a search has every core.
for ((i = 0; i < ${#faults[@]}; i += 5)); do
    wanted "${faults[i]}" || continue
    look_up "${faults[i + 1]}"
    dir=$(dirname "$program")/proof/${faults[i]}
    mkdir -p "$(dirname "$dir")"
    [ "$(jobs -rp | wc -l)" -lt "$cores" ] || wait -n || true
    plant "$dir" "${faults[i + 1]}" "${faults[i + 3]}" "${faults[i + 4]}" >"$dir.compiled" 2>&1 &
done
wait

for ((i = 0; i < ${#faults[@]}; i += 5)); do
    name=${faults[i]} target=${faults[i + 1]}
    wanted "$name" || continue
    look_up "$target"
    dir=$(dirname "$program")/proof/$name
    echo "$name: ${faults[i + 2]}"
    if [ ! -x "$dir/$target" ]; then
        cat "$dir.compiled"
        count 1 "FAILED: it cannot be planted"
        continue
    fi
    start=$SECONDS by='' seed=${SEED:-1} times=1 corpus=()
    [ "$target" = fuzz ] || times=${TIMES:-20}
    [ "$CORPUS" = none ] || corpus=("$(corpus_of "$target")")
    if [ "$CORPUS" != none ] && ! run "$dir/$target" "$dir/log" "${inputs[@]}"; then
        input=$(LC_ALL=C sed -n 's,^Running: ,,p' "$dir/log" | tail -n 1)
        took=$((SECONDS - start))
        hung_once || by="an input of the corpus"
    fi
    while [ -z "$by" ] && [ $((SECONDS - start)) -lt "$limit" ]; do
        search $((limit - (SECONDS - start))) ${corpus[@]+"${corpus[@]}"} || continue
        input=$(LC_ALL=C sed -n 's,.*Test unit written to ,,p' "$dir/log" | tail -n 1)
        took=$((SECONDS - start))
        hung_once || by="an input that the fuzzer made"
    done
    if [ -z "$by" ]; then
        count 1 "FAILED: not found by $target in $((SECONDS - start)) s"
    elif [ -z "$input" ] || ! run "$program" "$dir/control.log" -runs="$times" "$input"; then
        count 1 "FAILED: what was found is not what was planted: $input: $(what_was_found "$dir/log")"
    else
        count 0 "    found by $target after $took s by $by: $(what_was_found "$dir/log")"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
