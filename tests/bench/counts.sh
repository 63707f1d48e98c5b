#!/usr/bin/env bash
# counts.sh - instructions, messages, allocations, system calls and wake-ups of gpusync's calls, against their limits
#
#   tests/bench/counts.sh
#
# Counted by callgrind: but for rows that hang on time, they are the same on every run of one compiler. Prints a table,
# ends with one line "N passed, N failed", and fails when a limit is broken.
#
# CC            default gcc
# BUILD         where to build; default build/counts
# HEADER_DIR    where gpusync.h is; default the repository
# SOFTMETAL_LINK  what links softmetal; default: built here

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$root/build/counts}
header=${HEADER_DIR:-$root}
cc=${CC:-gcc}
passed=0 failed=0

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

broken() { # TEXT
    echo "counts: $1"
    failed=$((failed + 1))
    finish
}

if [ "$(uname -s)" != Linux ] || ! command -v valgrind >/dev/null 2>&1; then
    echo "counts: needs Linux and valgrind: skipped"
    finish
fi

# ------------------------------------------------------------------------------------------------ build and run

mkdir -p "$build" && build=$(cd "$build" && pwd) || broken "cannot write $build"
if [ "$build" = "$root/build/counts" ]; then echo '*' >"$root/build/.gitignore"; fi
if [ -z "${SOFTMETAL_LINK:-}" ]; then
    # what build.mk says, without repeating it here
    SOFTMETAL_LINK=$(cd "$root" && printf '%s\n' 'default: $(BUILD)/libsoftmetal.a ; @echo "link: $(SOFTMETAL_LIB) $(SOFTMETAL_LDLIBS)"' \
        'include tests/softmetal/build.mk' | make -s --no-print-directory -f - BUILD="$build" SANITIZE= default |
        sed -n 's/^link: //p')
    [ -n "$SOFTMETAL_LINK" ] || broken "softmetal does not build"
fi
printf '#define GPUSYNC_IMPLEMENTATION\n#include "gpusync.h"\n' >"$build/implementation.c"
common="-std=c11 -D_GNU_SOURCE -DGPUSYNC_OBJC=1 -O2"
# The two are compiled apart, so that a call is a call. valgrind cannot read every compiler's debug information.
# shellcheck disable=SC2086 # lists of words
"$cc" $common -I"$header" -c -o "$build/implementation.o" "$build/implementation.c" &&
    "$cc" $common -include "$header/gpusync.h" -c -o "$build/counts.o" "$root/tests/bench/counts/counts.c" &&
    "$cc" -o "$build/counts" "$build/counts.o" "$build/implementation.o" $SOFTMETAL_LINK -lpthread -lm -Wl,--strip-debug ||
    broken "does not build"

rm -f "$build"/callgrind.*
"$build/counts" events >"$build/events" || broken "counts events: $(cat "$build/events")"
timeout 120 "$build/counts" memory >"$build/memory" || broken "counts memory: $(cat "$build/memory")"
if ! timeout 120 valgrind --tool=callgrind --callgrind-out-file="$build/callgrind" --collect-systime=yes \
    --compress-strings=no --compress-pos=no \
    --toggle-collect=gpusync_wait --toggle-collect=gpusync_queue_wait --toggle-collect=gpusync_commit \
    --toggle-collect=gpusync_commit4 --toggle-collect=gpusync_poll --toggle-collect=gpusync__completed \
    --toggle-collect=count_inline_is_idle --toggle-collect=count_inline_is_done \
    --toggle-collect=count_inline_in_flight \
    --toggle-collect=gpusync_timeline_query --toggle-collect=gpusync_timeline_wait --toggle-collect=gpusync_wait_many \
    --toggle-collect=count_submit --toggle-collect=count_by_hand \
    "$build/counts" callgrind >"$build/valgrind.log" 2>&1; then
    cat "$build/valgrind.log"
    broken "callgrind failed"
fi
# Of this one all is collected, on every thread.
if ! timeout 120 valgrind --tool=callgrind --callgrind-out-file="$build/callgrind.0" --collect-systime=yes \
    --compress-strings=no --compress-pos=no "$build/counts" whole >"$build/valgrind.log" 2>&1; then
    cat "$build/valgrind.log"
    broken "callgrind failed"
fi

# --------------------------------------------------------------------------------------------------- evaluation

# counts_of SCENARIO FUNCTION -> calls, instructions inclusive, own, calls out, system calls, allocations; per call
#
# own: of gpusync's functions (or of the hand-written sequence) and of everything that they call, down to the bottom,
# except for the Objective-C runtime and softmetal behind it, and for `finish`, by which a hook has softmetal's work end. calls out: from gpusync's functions to any other. allocations: of those, malloc and its kind.
# System calls likewise; clock_gettime is none outside of valgrind, which hides the kernel's page for it. One that ends
# on another thread is counted where this thread happens to be: so none are counted in code that is not in libc, or whose
# instructions are not counted, and a single one in all the rounds is none.
counts_of() {
    local file
    file=$(grep -l "Trigger: Client Request: $1\$" "$build"/callgrind.[0-9]* 2>/dev/null | head -n 1)
    if [ -z "$file" ]; then
        echo "0 0 0 0 0 0"
        return
    fi
    LC_ALL=C awk -v target="$2" '
        function ours(name) { return name ~ /^(gpusync_|count_|metal_)/ }
        /^fn=/ { fn = substr($0, 4); next }
        /^cfn=/ { callee = substr($0, 5); next }
        /^calls=/ { n = substr($1, 7); of_call = 1; next }
        /^[0-9+*-]/ {
            if (of_call) {
                of_call = 0
                if (callee == target) { calls += n; inclusive += $2 }
                if (!ours(fn) || ours(callee)) next
                out += n
                if (callee ~ /alloc|memalign/) allocations += n
                if (callee ~ /^(objc_|object_|class_|sel_|finish)/) next
                own += $2
                if (callee !~ /^clock_gettime/ && $2 > 0) system_calls += $3
            } else if (ours(fn)) {
                own += $2
            }
        }
        END {
            if (!calls) { print "0 0 0 0 0 0"; exit }
            if (system_calls == 1) system_calls = 0
            printf "%d %.1f %.1f %.1f %.2f %.2f\n", calls, inclusive / calls, own / calls, out / calls, system_calls / calls,
                   allocations / calls
        }' "$file"
}

below() { # VALUE LIMIT
    LC_ALL=C awk -v value="$1" -v limit="$2" 'BEGIN { exit !(value + 0 <= limit + 0) }'
}

judge() { # CONDITION... : each "VALUE LIMIT"; sets verdict
    verdict=ok
    while [ $# -gt 0 ]; do
        if ! below "${1% *}" "${1#* }"; then verdict="TOO MANY (${1% *} > ${1#* })"; fi
        shift
    done
    if [ "$verdict" = ok ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

event() { # SCENARIO FIELD
    awk -v name="$1" -v field="$2" '$1 == name { print $field; found = 1 } END { if (!found) print 999999 }' "$build/events"
}

version=$("$cc" --version | head -n 1)
echo "per call, $version -O2, $(uname -m)"
printf '%-26s %12s %8s %9s %8s %8s %8s\n' "" instructions limit messages retains allocs syscalls

idle_row() { # TITLE SCENARIO FUNCTION LIMIT
    local calls inclusive own out system allocs messages retains
    read -r calls inclusive own out system allocs <<<"$(counts_of "$2" "$3")"
    messages=$(event "$2" 2) retains=$(event "$2" 3)
    allocs=$(awk -v a="$allocs" -v b="$(event "$2" 4)" 'BEGIN { print a + b }')
    if [ "$calls" -eq 0 ]; then inclusive=999999; fi
    # no call leaves gpusync at all: so no message, no allocation and no system call can hide there
    judge "$inclusive $4" "$messages 0" "$retains 0" "$allocs 0" "$system 0" "$out 0"
    printf '%-26s %12s %8s %9s %8s %8s %8s  %s\n' "$1" "$inclusive" "$4" "$messages" "$retains" "$allocs" "$system" "$verdict"
}

idle_row "gpusync_wait, never used" wait_never_used gpusync_wait 13
idle_row "gpusync_wait, idle" wait_idle gpusync_wait 13
idle_row "queue_wait, never used" queue_wait_never_used gpusync_queue_wait 13
idle_row "queue_wait, idle" queue_wait_idle gpusync_queue_wait 13
# A failure in the past costs later waits nothing.
idle_row "gpusync_wait, 1 failure" wait_1_failure gpusync_wait 20
idle_row "... 64 failures" wait_64_failures gpusync_wait 20
idle_row "queue_wait, 1 failure" queue_wait_1_failure gpusync_queue_wait 20
idle_row "... 64 failures" queue_wait_64_failures gpusync_queue_wait 20
idle_row "gpusync_is_idle inlined" is_idle count_inline_is_idle 8
idle_row "gpusync_is_done inlined" is_done count_inline_is_done 14
idle_row "gpusync_in_flight inlined" in_flight count_inline_in_flight 7
idle_row "timeline_query" timeline_query gpusync_timeline_query 30
idle_row "timeline_wait, reached" timeline_wait gpusync_timeline_wait 15

commit_row() { # TITLE SCENARIO EVENTS LIMIT EXTRA: messages and retains besides addCompletedHandler: and commit
    local calls inclusive own out system allocs messages retains extra
    read -r calls inclusive own out system allocs <<<"$(counts_of "$2" gpusync_commit)"
    if [ "$calls" -eq 0 ]; then own=999999; fi
    messages=$(event "$3" 2) retains=$(event "$3" 3)
    extra=$(awk -v m="$messages" -v r="$retains" 'BEGIN { print m - 2 + r }')
    judge "$own $4" "$allocs 0" "$(event "$2" 4) 0" "$system 0" "$extra $5"
    printf '%-26s %12s %8s %9s %8s %8s %8s  %s\n' "$1" "$own" "$4" "$messages" "$retains" "$allocs" "$system" "$verdict"
}

# One release comes later, in the handler. Buffers made elsewhere are asked for their queue and retained; a burst of them
# finds no free slot now and then, and is looked at twice.
commit_row "gpusync_commit, own part" commit commit_messages 199 1
commit_row "... of a foreign buffer" commit_foreign commit_messages_foreign 241 3.3

# A poll asks for the status of work that runs, and retains the command buffer meanwhile.
poll_row() { # TITLE SCENARIO LIMIT
    local calls inclusive own out system allocs messages retains
    read -r calls inclusive own out system allocs <<<"$(counts_of "$2" gpusync_poll)"
    if [ "$calls" -eq 0 ]; then own=999999; fi
    messages=$(event "$2" 2) retains=$(event "$2" 3)
    judge "$own $3" "$allocs 0" "$(event "$2" 4) 0" "$system 0" "$messages 1" "$retains 2"
    printf '%-26s %12s %8s %9s %8s %8s %8s  %s\n' "$1" "$own" "$3" "$messages" "$retains" "$allocs" "$system" "$verdict"
}

poll_row "gpusync_poll, it runs" poll 145

commit4_row() { # TITLE BUFFERS LIMIT: messages and retains, at most 4 and 2 for each command buffer
    local calls inclusive own out system allocs messages retains
    read -r calls inclusive own out system allocs <<<"$(counts_of "commit4_$2" gpusync_commit4)"
    if [ "$calls" -eq 0 ]; then own=999999; fi
    messages=$(event "commit4_$2" 2) retains=$(event "commit4_$2" 3)
    judge "$own $3" "$allocs 0" "$(event "commit4_$2" 4) 0" "$system 0" \
        "$(awk -v m="$messages" -v r="$retains" 'BEGIN { print m + r }') $((4 + 2 * $2))"
    printf '%-26s %12s %8s %9s %8s %8s %8s  %s\n' "$1" "$own" "$3" "$messages" "$retains" "$allocs" "$system" "$verdict"
}

commit4_row "gpusync_commit4" 1 261
commit4_row "... of 8 together" 8 553

# The handler of one commit, without its messages. On a busy machine Metal's end may lie where the time of the work is
# made out another way, which costs a few more now and then.
handler_row() { # TITLE SCENARIO LIMIT
    local calls inclusive own out system allocs
    read -r calls inclusive own out system allocs <<<"$(counts_of "$2" gpusync__completed)"
    if [ "$calls" -eq 0 ]; then own=999999; fi
    judge "$own $3" "$allocs 0" "$system 0"
    printf '%-26s %12s %8s %9s %8s %8s %8s  %s\n' "$1" "$own" "$3" - - "$allocs" "$system" "$verdict"
}

handler_row "handler, no waiter" handler 205

# From gpusync_command_buffer to the return of a wait that has slept, with the handler. The same program counts 2,225 on
# version 0.2.
whole_row() { # TITLE SCENARIO LIMIT
    local calls inclusive own out system allocs
    read -r calls inclusive own out system allocs <<<"$(counts_of "$2" gpusync_wait_ex)"
    if [ "$calls" -eq 0 ]; then own=999999; fi
    judge "$own $3" "$allocs 0"
    printf '%-26s %12s %8s %9s %8s %8s %8s  %s\n' "$1" "$own" "$3" - - "$allocs" "$system" "$verdict"
}

whole_row "made, committed, waited" whole 1970

# A part of that wait: what gpusync's own functions, its locks and its clock take on this thread, which also plays Metal.
# 0 to the park: the looks, the wait entry, the sweep's timer, in sections >>wait and >>wait-lists. The end to the unpark:
# the handler ends the ticket, takes the wait entry off and gives the room back. The park to the return: the waiter looks
# once more, counts how late it came, and reads the result.
stretch_row() { # TITLE DUMP LIMIT
    local file own
    file=$(grep -l "Trigger: Client Request: $2\$" "$build"/callgrind.0.[0-9]* 2>/dev/null | head -n 1)
    own=$([ -z "$file" ] || LC_ALL=C awk '
        /^fn=/ { ours = substr($0, 4) ~ /^(gpusync_|os_unfair_lock_|clock_gettime|memset|memcpy)/; next }
        /^calls=/ { of_call = 1; next }
        /^[0-9+*-]/ { if (of_call) of_call = 0; else if (ours) sum += $2 }
        END { print sum + 0 }' "$file")
    if [ "${own:-0}" -eq 0 ]; then own=999999; fi
    judge "$own $3"
    printf '%-26s %12s %8s  %s\n' "$1" "$own" "$3" "$verdict"
}

stretch_row "... call to park" to_park 905
stretch_row "... end to unpark" to_unpark 400
stretch_row "... park to return" to_return 360

hand_row() { # TITLE SCENARIO
    local calls inclusive own out system allocs
    read -r calls inclusive own out system allocs <<<"$(counts_of "$2" count_by_hand)"
    printf '%-26s %12s %8s %9s %8s %8s %8s\n' "$1" "$own" - "$(event "$2" 2)" "$(event "$2" 3)" "$allocs" "$system"
}

submit_row() { # TITLE SHAPE MESSAGES INSTRUCTIONS: besides those of the hand-written sequence; messages by selector
    local calls inclusive own out system allocs by_hand limit sends wanted
    read -r calls inclusive by_hand out system allocs <<<"$(counts_of "hand_$2" count_by_hand)"
    read -r calls inclusive own out system allocs <<<"$(counts_of "submit_$2" count_submit)"
    if [ "$calls" -eq 0 ]; then own=999999; fi
    limit=$(LC_ALL=C awk -v h="$by_hand" -v most="$4" 'BEGIN { print h + most }')
    wanted=$(printf '%s\n' "$(event "hand_$2" 5)" "$3" | tr ',' '\n' | LC_ALL=C sort | paste -s -d,)
    sends=$(event "submit_$2" 5)
    judge "$own $limit" "$allocs 0" "$(event "submit_$2" 4) 0" "$system 0" "$([ "$sends" = "$wanted" ]; echo $?) 0"
    if [ "$sends" != "$wanted" ]; then verdict="$verdict: sends $sends, not $wanted"; fi
    printf '%-26s %12s %8s %9s %8s %8s %8s  %s\n' "$1" "$own" "$limit" "$(event "submit_$2" 2)" "$(event "submit_$2" 3)" \
        "$allocs" "$system" "$verdict"
}

# Handlers, and the status of the program's buffer (a second commit is found by it), are all that gpusync adds. With a
# wait in front the signal is encoded by a call of its own. Where both are encoded there are four calls: the making of the
# buffer, gpusync_encode_wait, gpusync_encode_signal, gpusync_commit.
hand_row "wait in front, by hand" hand_front
submit_row "... encode_signal, submit" front addCompletedHandler:=2,status=1 1732
hand_row "... and signal behind" hand_around
submit_row "... gpusync_submit" around addCompletedHandler:=3,status=1 1252
hand_row "both encoded, by hand" hand_head
submit_row "... encode both, commit" head addCompletedHandler:=1,status=1 857

many_row() { # KIND LIMIT: instructions of gpusync_wait_many for a point
    local few many
    few=$(counts_of "many_$1_1024" gpusync_wait_many | awk '{ print $1 ? $2 / 1024 : 999999 }')
    many=$(counts_of "many_$1_4096" gpusync_wait_many | awk '{ print $1 ? $2 / 4096 : 999999 }')
    judge "$many $(LC_ALL=C awk -v few="$few" 'BEGIN { print few * 1.2 }')" "$few $2"
    printf 'wait_many, %-6s: %.1f instructions a point at 1,024, %.1f at 4,096  %s\n' "$1" "$few" "$many" "$verdict"
}

many_row ended 36
many_row unmet 436
many_row asleep 552

code_row() { # WHAT OBJECT LIMIT: bytes of machine code, without data and unwind tables
    local bytes
    bytes=$(size -A "$2" | awk '/^\.text/ { sum += $2 } END { print sum ? sum : 999999 }')
    judge "$bytes $3"
    printf '%-26s %d bytes of code, at most %d  %s\n' "$1" "$bytes" "$3" "$verdict"
}

# What a linker leaves of a copy that is compiled into the program, which makes a queue, commits and waits.
cat >"$build/alone.c" <<'EOF'
#define GPUSYNC_STATIC
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#ifdef WITH_ON_DONE
static void done(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)error;
    *(gpusync_result *)user = result;
}
#endif
int main(void)
{
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffer;
    if (gpusync_device_create(NULL, &device) || gpusync_queue_create(device, NULL, &queue)) return 1;
    if (gpusync_command_buffer(queue, NULL, &buffer) || gpusync_commit(queue, buffer, &ticket)) return 1;
#ifdef WITH_ON_DONE
    gpusync_result result;
    if (gpusync_on_done(gpusync_at_ticket(queue, ticket), done, &result)) return 1;
#endif
    return gpusync_wait(queue, ticket, GPUSYNC_FOREVER);
}
EOF
alone() { # OBJECT [OPTION...]
    local object=$1
    shift
    # shellcheck disable=SC2086
    "$cc" $common -w -I"$header" "$@" -ffunction-sections -fdata-sections -c -o "$object.o" "$build/alone.c" &&
        ld -r --gc-sections -e main -o "$object" "$object.o" || broken "does not build alone"
}
alone "$build/alone"
alone "$build/alone_on_done" -DWITH_ON_DONE
code_row "all of gpusync" "$build/implementation.o" 90500
code_row "commit and wait alone" "$build/alone" 28700
code_row "... with gpusync_on_done" "$build/alone_on_done" 29600

burst_row() { # WHAT: a tenth of the peak may stay
    local peak held
    read -r peak held <<<"$(awk -v name="$1" '$1 == name { print $2, $3; found = 1 } END { if (!found) print 0, 999999999 }' \
        "$build/memory")"
    judge "$held $((peak / 10))"
    printf 'a burst of 100,000 %-11s %d bytes at its peak, %d some seconds later, at most %d  %s\n' "$1:" "$peak" "$held" \
        $((peak / 10)) "$verdict"
}

burst_row callbacks
burst_row submissions

parks=$(event sleep 2) unparks=$(event sleep 3) buffers=$(event sleep 4)
judge "$parks 1" "$unparks 1" "$buffers 0"
echo "a wait that sleeps: $parks park, $unparks unpark, $buffers extra command buffers  $verdict"
finish
