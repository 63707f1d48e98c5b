#!/usr/bin/env bash
# model.sh - gpusync.h under a model checker: every order of its threads that C11's memory model allows
#
#   GENMC=DIRECTORY tests/model/model.sh [NAME...]
#
# GENMC   a directory with GenMC 0.10.3, built with LLVM 14: see "The order of memory" in tests/README.md
# NAME    of properties or mutants, patterns as of the shell: ticket 'room*'. Default: all
# MODEL   rc11 (default), or imm: the model of the hardware. Mutants run with rc11 only
# BUILD   where the headers are made (build)
# LIMIT   seconds for one of them; default 600
#
# A property has to be green: GenMC explores all executions, and there are some. One that is known to be red has to be
# red. A mutant, which is the header with one fault, has to be red for a violation that GenMC names. Each core
# runs one of them at a time. Prints a line for each when it is over, and ends with exactly one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")" || exit 1
root=../..
model=${MODEL:-rc11}
limit=${LIMIT:-600}
names=${*:-*}
how="build it so: clone https://github.com/MPI-SWS/genmc at its tag v0.10.3; apt-get install clang-14 llvm-14-dev \
libclang-14-dev libffi-dev libedit-dev zlib1g-dev autoconf automake; autoreconf --install; \
./configure --with-llvm=/usr/lib/llvm-14; make"

stop() {
    echo "model.sh: $1" >&2
    exit 1
}
case $model in rc11 | imm) ;; *) stop "MODEL=$model: rc11 or imm" ;; esac
[ -n "${GENMC:-}" ] || stop "GENMC= names no directory with GenMC; $how"
if [ ! -x "$GENMC/genmc" ] || [ ! -e "$GENMC/include/genmc.h" ]; then stop "there is no GenMC in '$GENMC'; $how"; fi
for tool in clang-14 opt-14 python3; do
    command -v "$tool" >/dev/null || stop "$tool is missing (Debian: clang-14 llvm-14 python3)"
done
GENMC=$(cd "$GENMC" && pwd) || exit 1
work=${BUILD:-$root/build}/model
mkdir -p "$work" || exit 1
work=$(cd "$work" && pwd)
cores=$(nproc 2>/dev/null || echo 2)
trap 'rm -rf "$work/now"' EXIT

# ---------------------------------------------------------------- one run
# run HEADER FILE CASE FLAG...: leaves `verdict` (green, red, or what else came of it), `why`, `executions`, `seconds`
run() {
    local header=$1 file=$2 case=$3 status now=$work/now/$BASHPID
    shift 3
    verdict=broken why='' executions=0 seconds=0
    mkdir -p "$now"
    if ! clang-14 -c -emit-llvm -O0 -g -Xclang -disable-O0-optnone -fno-builtin -w -D__CONFIG_GENMC_INODE_DATA_SIZE=64 \
        -I "$GENMC/include" -I "$header" -I . -DCASE="$case" "$@" -o "$now/all.bc" "$file.c" 2>"$now/log" ||
        ! opt-14 -passes='always-inline,function(sroa),cgscc(inline),function(sroa,early-cse<memssa>,dce),globaldce' \
            -inline-threshold=20000 -o "$now/some.bc" "$now/all.bc" 2>>"$now/log"; then
        why="does not compile"
        return
    fi
    # GenMC's cache of instructions forgets some of them. It takes loops for spins that are none, and leaves executions
    # out. Its estimate costs as much as a short run.
    timeout "$limit" "$GENMC/genmc" "--$model" --disable-estimation --disable-loop-jump-threading \
        --disable-function-inliner --disable-instruction-caching --disable-spin-assume --input-from-bitcode-file \
        -- "$now/some.bc" >"$now/log" 2>&1
    status=$?
    executions=$(sed -n 's/^Number of complete executions explored: //p' "$now/log")
    seconds=$(sed -n 's/^Total wall-clock time: \(.*\)s$/\1/p' "$now/log")
    why=$(sed -n 's/^\(Error: .*\|Assertion violation: .*\)/\1/p' "$now/log" | tail -n 1)
    case $status in
    0) verdict=green ;;
    42) verdict=red ;;
    124) why="not through after $limit s" ;;
    *) why="GenMC ended with $status: $(tail -n 1 "$now/log")" ;;
    esac
    if [ $verdict = green ] && ! grep -q '^No errors were detected' "$now/log"; then verdict=broken why="no verdict"; fi
    if [ $verdict = green ] && [ "${executions:-0}" -eq 0 ]; then verdict=broken why="no execution is complete"; fi
    if [ $verdict = red ] && [ -z "$why" ]; then
        verdict=broken why="no violation: $(grep -m 1 '^Warning: ' "$now/log")"
    fi
    return 0
}

# ---------------------------------------------------------------- all of them
passed=0 failed=0 running=0 shipped=
one_is_over() {
    if wait -n; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    running=$((running - 1))
}
all_are_over() {
    while [ "$running" -gt 0 ]; do one_is_over; done
}
begin() { # COMMAND...: on a core of its own; it ends well where what it ran is as it has to be
    [ "$running" -lt "$cores" ] || one_is_over
    "$@" &
    running=$((running + 1))
}
is_wanted() {
    local pattern
    set -f
    for pattern in $names; do
        # shellcheck disable=SC2254
        case $1 in $pattern) return 0 ;; esac
    done
    return 1
}
has_header() { # DIRECTORY [MUTANT]
    mkdir -p "$1"
    python3 -B header.py "$root/gpusync.h" "$1/model_gpusync.h" "${@:2}" 2>"$1/log"
}
tell() { # WANTED NAME TEXT
    if [ "$verdict" = "$1" ]; then
        printf '%-6s %-34s %7s executions %7.1f s  %s\n' "$verdict" "$2" "${executions:-?}" "${seconds:-0}" "$3"
    else
        printf 'FAILED %-34s is %s, not %s: %s\n' "$2" "$verdict" "$1" "$why"
        return 1
    fi
}
declare -A how_to_run=() colour=()
try_property() { # COLOUR NAME FILE CASE FLAG...
    run "$shipped" "${@:3}"
    tell "$1" "$2" "$3.c${why:+: $why}"
}
property() { # COLOUR NAME FILE CASE FLAG...
    colour[$2]=$1
    how_to_run[$2]="${*:3}"
    is_wanted "$2" || return 0
    if [ -z "$shipped" ]; then
        has_header "$work/shipped" || stop "$(cat "$work/shipped/log")"
        shipped=$work/shipped
    fi
    begin try_property "$@"
}
green() { property green "$@"; }
known() { property red "$@"; } # a defect that is not mended yet: green is a failure, so that the fix moves the line
try_mutant() { # NAME PROPERTY
    local header=$work/now/$BASHPID/header
    if has_header "$header" "$1"; then
        # shellcheck disable=SC2086
        run "$header" ${how_to_run[$2]}
    else
        verdict=broken why=$(tail -n +2 "$header/log" | head -n 2 | tr '\n' ' ')
    fi
    tell red "$1" "$2: ${why:0:100}"
}
mutant() { # NAME PROPERTY
    [ "$model" = rc11 ] && is_wanted "$1" || return 0
    case ${colour[$2]:-} in
    green) ;;
    red)
        echo "left out: $1: its property, $2, is red without it"
        return
        ;;
    *) stop "mutant $1: there is no property $2" ;;
    esac
    begin try_mutant "$@"
}

start=$SECONDS
echo "-- properties, $model"
# A wake-up
green ticket wake ticket
green everything wake ticket -DWHAT=GPUSYNC_EVERYTHING
green neighbours wake neighbours
green all-of-two wake neighbours -DKIND=GPUSYNC__ALL
green value wake value
green room wake room -DLIMIT=1
green room-passed-on wake room_for_two -DLIMIT=1
green all-points wake many
green any-point wake many -DHOW=GPUSYNC_WAIT_ANY
green any-of-both wake many -DHOW=GPUSYNC_WAIT_ANY -DBOTH=1
green any-and-again wake any_again -DHOW=GPUSYNC_WAIT_ANY -DBOTH=1
green handlers-begin wake handlers
green handlers-seen wake handlers -DSEES=1
green waiter-again wake waiter_again
green entry-again wake entry_again -DRING=2 -DMODEL_SLOTS=4
green ended-stays-ended wake ended_stays -DRING=2 -DMODEL_SLOTS=4
# Never early
green prefix prefix two_ends
green between-two-loads prefix between
green seen-when-idle prefix seen_after
green seen-in-status prefix seen_in_status
# Used again
green slot-again reuse slot
green late-look reuse late_look -DRING=2 -DMODEL_SLOTS=1
green ring-grows reuse ring_grows -DRING=2 -DMODEL_SLOTS=3
green orphan reuse orphan
green orphan-kept reuse orphan_kept
green room-of-a-lost-handler reuse lost_handler -DNOW=100000000
green taken-once reuse taken_once
# Failure
green failure-known-first failure known_first
green failure-out-of-order failure out_of_order
green failure-covered failure covered
green log-made-once failure log_made
# A lost device
green given-up-wait loss wait
green given-up-wait-many loss wait -DWAIT=waits_for_many
green given-up-polls loss asked
green given-up-looked-at loss looked_at
green given-up-handlers loss handler_is_lost
green given-up-callback loss called_back
green given-up-callback-fails loss called_back -DENDS=BADLY
green given-up-callback-meanwhile loss called_back -DWHEN=meanwhile
green given-up-submission loss submission -DWEAK_LOCK
# Timelines
green timeline-rises timeline rises
green timeline-fails timeline fails
green timeline-fails-value timeline fails -DLAST=1
green sleeper-of-two-signals timeline sleeper
green sleeper-of-failure timeline sleeper_of_failed
green sleeper-of-work timeline sleeper_of_work
green listener-again timeline listener_again
green listener-copied timeline listener_copied
green listener-made-once timeline listener_made
# Held work
green held-signalled held against_signal -DWEAK_LOCK
green held-failed held against_failure -DWEAK_LOCK
green held-both held against_both -DWEAK_LOCK
green held-device-lost held against_loss -DWEAK_LOCK
green held-stuck held against_stuck -DWEAK_LOCK -DMODEL_SLOTS=4 -DENDS=BADLY
green issue-held held issue_held -DWEAK_LOCK
green two-issues held two_issues -DWEAK_LOCK
green held-order held in_order -DWEAK_LOCK -DMODEL_SLOTS=3
green held-ticket held ticket_told -DWEAK_LOCK -DMODEL_SLOTS=3
green held-ticket-fails held ticket_told -DWEAK_LOCK -DMODEL_SLOTS=3 -DENDS=BADLY
green held-cancelled held ticket_forgotten -DWEAK_LOCK -DMODEL_SLOTS=3
green held-listens held listens -DWEAK_LOCK
green held-keeps held keeps -DWEAK_LOCK
green work-on-the-device held on_the_device -DWEAK_LOCK -DMODEL_SLOTS=4
green failure-on-the-device held fails_on_the_device -DWEAK_LOCK -DMODEL_SLOTS=4
green consumer-ends-first held ends_before -DWEAK_LOCK -DMODEL_SLOTS=3 -DENDS=BADLY
green lower-signal-fails held lower_fails -DWEAK_LOCK
green failed-abroad held fails_abroad -DWEAK_LOCK -DENDS=BADLY
green room-that-is-stuck held stuck -DWEAK_LOCK
# Callbacks, sweeps
green callback-registered callbacks registered_meanwhile
green callbacks-of-value callbacks registered_for_value
green callback-destroyed callbacks reached_then_gone
green callback-lost callbacks reached_then_gone -DTHEN=loses
green callback-asked-for callbacks asked_meanwhile
green callback-paid callbacks paid_meanwhile
green sweep-for-sleeper callbacks sweep_for_sleeper
green sweep-for-room callbacks sweep_for_room
green sweep-for-held callbacks sweep_for_held
# Destroy
green destroy-now-handler destroy queue
green destroy-handler destroy queue -DHOW=gpusync_queue_destroy
green destroy-now-poller destroy queue_with
green destroy-poller destroy queue_with -DHOW=gpusync_queue_destroy
green destroy-now-waiter destroy queue_with -DWITH=waiter
green destroy-now-sleeper destroy queue_with_sleeper
green destroy-now-sweep destroy swept
green destroy-now-tracked destroy tracked
green destroy-now-feedback destroy metal4
green destroy-now-issues destroy issued -DWEAK_LOCK
green close-callbacks destroy closed
green close-sweeps destroy closed -DASKED=sweeper
green close-both destroy closed -DAND=sweeper
green destroy-timeline-listener destroy listened
green destroy-timeline-waiter destroy timeline
green destroy-timeline-signal destroy timeline -DWITH_TIMELINE=signals
# Warm-up
green warm-up-asked warmup asked
green warm-up-library warmup one_library
green warm-up-waited warmup waited_for
green warm-up-destroyed warmup destroyed
green warm-up-destroyed-waiter warmup destroyed_with
green warm-up-destroyed-asker warmup destroyed_with -DWITH=polls
all_are_over
[ "$model" = rc11 ] && echo "-- mutants"
mutant weak-everywhere destroy-now-sweep
mutant looked-before-the-lock ticket
mutant looked-before-the-lock everything
mutant looked-before-the-lock all-of-two
mutant looked-before-the-lock room
mutant looked-before-the-lock all-points
mutant looked-before-the-lock any-point
mutant looked-before-the-lock waiter-again
mutant looked-before-the-lock any-of-both
mutant callback-not-looked-at callback-registered
mutant advance-by-one neighbours
mutant room-is-not-passed-on room-passed-on
mutant sleeper-not-told-of-the-handler handlers-begin
mutant handler-of-an-ended-ticket-not-blocked-for handlers-seen
mutant handler-begins-relaxed handlers-seen
mutant entries-counted-relaxed any-of-both
mutant waiter-read-after-the-count any-and-again
mutant taken-off-and-not-told room
mutant room-given-back-twice room-of-a-lost-handler
mutant completed-not-looked-at entry-again
mutant completed-looked-at-once ended-stays-ended
mutant completed-stored-relaxed failure-known-first
mutant completed-stored-relaxed prefix
mutant done-stored-relaxed failure-out-of-order
mutant ring-stored-relaxed ring-grows
mutant looked-at-without-a-reference late-look
mutant retained-after-the-unlock slot-again
mutant look-ends-another-ticket late-look
mutant begun-without-a-swap destroy-now-handler
mutant given-up-without-a-swap destroy-now-handler
mutant given-up-without-a-swap destroy-now-tracked
mutant queue-touched-before-the-swap destroy-now-handler
mutant orphan-not-taken-out orphan
mutant orphan-not-taken-out orphan-kept
mutant orphan-given-up-without-the-global-lock orphan
mutant tracked-not-looked-at taken-once
mutant issuing-not-cleared two-issues
mutant issuing-cleared-late two-issues
mutant issuing-not-looked-at two-issues
mutant issue-not-dispatched issue-held
mutant issued-without-the-order-lock held-order
mutant let-go-without-a-look held-signalled
mutant ticket-looked-at-before-the-lock held-ticket
mutant told-without-the-graph held-ticket-fails
mutant forgotten-though-told held-cancelled
mutant wanted-before-the-flag held-device-lost
mutant loss-not-looked-at held-device-lost
mutant stuck-not-looked-at held-stuck
mutant given-up-though-it-has-ended given-up-polls
mutant given-up-though-it-has-ended given-up-looked-at
mutant given-up-and-ends-all-the-same given-up-wait
mutant given-up-and-ends-all-the-same given-up-wait-many
mutant given-up-sleeper-not-stopped destroy-now-sleeper
mutant given-up-sleeper-not-stopped given-up-handlers
mutant given-up-callback-not-looked-at given-up-callback-meanwhile
mutant completed-passes-what-was-left given-up-polls
mutant timelines-fail-at-once callback-lost
mutant given-up-callback-not-told given-up-callback
mutant given-up-callback-not-told given-up-callback-fails
mutant woken-before-given-up given-up-handlers
mutant given-up-submission-ends-all-the-same given-up-submission
mutant announced-without-a-reference destroy-now-issues
mutant links-kept-before-the-last-reference held-keeps
mutant listens-without-a-reference held-listens
mutant failed-in-two-holds held-failed
mutant failed-in-two-holds held-both
mutant raised-in-two-holds work-on-the-device
mutant failure-after-the-signal lower-signal-fails
mutant counted-without-the-graph failed-abroad
mutant broken-wait-not-looked-at failure-on-the-device
mutant broken-wait-not-looked-at consumer-ends-first
mutant open-counted-without-the-order-lock room-that-is-stuck
mutant inside-counted-relaxed destroy-now-sweep
mutant closing-read-first destroy-now-sweep
mutant left-relaxed destroy-now-poller
mutant left-relaxed destroy-poller
mutant left-relaxed destroy-now-waiter
mutant running-handler-not-waited-for destroy-now-handler
mutant running-handler-not-waited-for destroy-handler
mutant running-handler-not-waited-for destroy-now-feedback
mutant leaving-not-waited-for destroy-now-handler
mutant leaving-counted-after-the-lock destroy-now-handler
mutant leaving-let-go-relaxed destroy-now-handler
mutant leaving-let-go-first destroy-now-handler
mutant slots-lost destroy-now-handler
mutant woken-before-the-flag destroy-now-sleeper
mutant sleepers-not-woken destroy-now-sleeper
mutant sleepers-of-values-not-woken destroy-timeline-waiter
mutant timeline-left-to-the-listener destroy-timeline-listener
mutant listener-inside-after-the-lock destroy-timeline-listener
mutant listening-let-go-relaxed destroy-timeline-listener
mutant block-taken-off-late listener-again
mutant block-of-the-stack-listed listener-copied
mutant device-entered-without-a-swap close-callbacks
mutant device-closed-without-a-swap close-sweeps
mutant device-closed-though-one-is-inside close-callbacks
mutant device-left-relaxed close-sweeps
mutant device-freed-with-functions-on-their-way close-callbacks
mutant device-let-go-relaxed close-callbacks
mutant device-let-go-in-two-steps close-both
mutant timer-taken-back-late sweep-for-sleeper
mutant timer-taken-back-late sweep-for-held
mutant refused-after-the-timer sweep-for-room
mutant asked-cleared-after-the-look callback-asked-for
mutant due-not-asked-for callback-asked-for
mutant two-callbacks-at-once callback-paid
mutant committed-read-first between-two-loads
mutant idle-read-relaxed seen-when-idle
mutant no-fence-behind-a-status seen-in-status
mutant recorded-after-the-end failure-known-first
mutant failed-flag-left-out failure-known-first
mutant covered-not-looked-at failure-covered
mutant last-failed-stored-late failure-covered
mutant log-made-twice log-made-once
mutant value-before-the-error timeline-fails
mutant value-before-the-error timeline-fails-value
mutant value-before-the-error sleeper-of-failure
mutant end-told-before-what-was-reached callback-destroyed
mutant timeline-left-relaxed destroy-timeline-signal
mutant listener-made-twice listener-made-once
mutant value-stored-after-telling value
mutant value-stored-after-telling callbacks-of-value
mutant told-only-where-written sleeper-of-work
mutant raised-without-showing sleeper-of-two-signals
mutant raised-without-showing timeline-rises
mutant pipeline-begun-twice warm-up-asked
mutant library-without-its-mutex warm-up-library
mutant counted-before-it-is-done warm-up-waited
mutant value-read-after-the-look warm-up-waited
mutant warm-up-inside-not-looked-at warm-up-destroyed-waiter
mutant warm-up-inside-not-looked-at warm-up-destroyed-asker
mutant warm-up-does-not-fail warm-up-destroyed-waiter
mutant task-leaves-before-it-counts warm-up-destroyed
all_are_over
[ $((passed + failed)) -gt 0 ] || stop "no property and no mutant is called '$names'"
echo "$((SECONDS - start)) s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
