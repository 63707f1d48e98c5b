#!/usr/bin/env bash
# counts.sh - instructions of the calls of tests/next/gpusync.h beside those of gpusync.h at the top, against limits
#
#   tests/next/counts.sh
#
# Counted by callgrind: the own part of a call, which is gpusync's functions and all that they call, but for messages,
# the Objective-C runtime and blocks behind them. Nor malloc, whose cost hangs on what the heap has seen: its calls have
# a column. What hangs on time costs more on a busy machine now and then: the least of three runs counts.
# Prints a table, ends with one line "N passed, N failed", and fails when a limit is broken.
#
# CC              default gcc
# BUILD           where to build; default build/next-counts
# HEADER_DIR      where the newer gpusync.h is; default tests/next
# DETAILS=1       which functions the instructions of each row are in
# SOFTMETAL_LINK  what links softmetal: make next-counts gives it

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
HANDLER=gpusync__completed     # the function of the completed handler
HANDLER_OLD=gpusync__completed # ... of the header at the top
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
header=${HEADER_DIR:-$here}
build=${BUILD:-$top/build/next-counts}
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

command -v valgrind >/dev/null 2>&1 || broken "needs valgrind"
[ -n "${SOFTMETAL_LINK:-}" ] || broken "SOFTMETAL_LINK is empty: call make next-counts"
rm -rf "$build"
mkdir -p "$build" && build=$(cd "$build" && pwd) || broken "cannot write $build"

# ------------------------------------------------------------------------------------------------ build and run

printf '#define GPUSYNC_IMPLEMENTATION\n#include <gpusync.h>\n' >"$build/implementation.c"

count() { # WHERE HEADER-DIRECTORY HANDLER: callgrind's dumps in $build/WHERE, of three runs
    local dir=$build/$1 flags name run
    local callgrind=(timeout 120 valgrind --tool=callgrind --compress-strings=no --compress-pos=no)
    local collect=()
    for name in gpusync_commit gpusync_poll count_submit "$3"; do collect+=("--toggle-collect=$name"); done
    flags="-std=c11 -D_GNU_SOURCE -DGPUSYNC_OBJC=1 -O2 -I$2 -I$top/tests/softmetal -I$top/examples"
    mkdir "$dir"
    # The two are compiled apart, so that a call is a call. valgrind cannot read every compiler's debug information.
    # shellcheck disable=SC2086 # lists of words
    "$cc" $flags -c -o "$dir/implementation.o" "$build/implementation.c" &&
        "$cc" $flags -c -o "$dir/counts.o" "$here/counts.c" &&
        "$cc" -o "$dir/counts" "$dir"/*.o $SOFTMETAL_LINK -lpthread -lm -Wl,-z,now,--strip-debug ||
        broken "$1: does not build"
    nm "$dir/implementation.o" | grep -q " [tT] $3\$" || broken "$1: there is no function $3 (HANDLER in counts.sh)"
    for run in 1 2 3; do
        "${callgrind[@]}" --callgrind-out-file="$dir/run$run" "${collect[@]}" "$dir/counts" calls >"$dir/log" 2>&1 &&
            "${callgrind[@]}" --callgrind-out-file="$dir/run$run.whole" "$dir/counts" whole >"$dir/log" 2>&1 ||
            { cat "$dir/log"; broken "$1: callgrind failed"; }
    done
}

count old "$top" "$HANDLER_OLD"
count new "$header" "$HANDLER"

# --------------------------------------------------------------------------------------------------- evaluation

# counts_of WHERE SCENARIO FUNCTION -> own instructions and allocations for a call of the function, in the best run
counts_of() {
    local file
    { grep -l "Trigger: Client Request: $2\$" "$build/$1"/run* 2>/dev/null || echo /dev/null; } |
        while read -r file; do count_in "$file" "$3"; done | LC_ALL=C sort -n | head -n 1
}

count_in() { # FILE FUNCTION
    LC_ALL=C awk -v target="$2" '
        function ours(name) { return name ~ /^(gpusync_|count_)/ }
        /^fn=/ { fn = substr($0, 4); next }
        /^cfn=/ { callee = substr($0, 5); next }
        /^calls=/ { n = substr($1, 7); of_call = 1; next }
        /^[0-9+*-]/ {
            if (of_call) {
                of_call = 0
                if (callee == target) calls += n
                if (!ours(fn) || ours(callee)) next
                if (callee ~ /alloc/) allocations += n
                if (callee !~ /^(objc_|object_|class_|sel_|_Block_|malloc$|free$|park$)/) own += $2
            } else if (ours(fn)) {
                own += $2
            }
        }
        END { if (calls) printf "%.1f %.2f\n", own / calls, allocations / calls; else print "999999 0" }' "$1"
}

# Instructions and calls, for a call of the function; "->": of what gpusync calls. Not all of it is own: see above.
details() { # SCENARIO FUNCTION
    local file
    file=$(grep -l "Trigger: Client Request: $1\$" "$build/new"/run* | head -n 1)
    LC_ALL=C awk -v target="$2" '
        /^fn=/ { fn = substr($0, 4); next }
        /^cfn=/ { callee = substr($0, 5); next }
        /^calls=/ { n = substr($1, 7); of_call = 1; next }
        /^[0-9+*-]/ {
            at = fn
            if (of_call) {
                of_call = 0
                if (callee == target) calls += n
                if (callee ~ /^(gpusync_|count_)/) next
                at = "-> " callee
                if (fn ~ /^gpusync_/) times[at] += n
            }
            if (fn ~ /^gpusync_/) sum[at] += $2
        }
        END { for (at in sum) printf "%12.1f %6.2f  %s\n", sum[at] / calls, times[at] / calls, at }' "$file" | sort -rn
}

row() { # TITLE SCENARIO FUNCTION-OLD FUNCTION-NEW LIMIT
    local old new allocations verdict=ok
    read -r old _ <<<"$(counts_of old "$2" "$3")"
    read -r new allocations <<<"$(counts_of new "$2" "$4")"
    if LC_ALL=C awk -v a="$new" -v b="$5" 'BEGIN { exit !(a > 0 && a <= b) }'; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        verdict="FAILED: not within the limit"
    fi
    printf '%-36s %10s %10s %10s %12s  %s\n' "$1" "$old" "$new" "$5" "$allocations" "$verdict"
    [ -z "${DETAILS:-}" ] || details "$2" "$4"
}

version_of() { sed -n 's/^#define GPUSYNC_VERSION_M[AI][JN]OR *//p' "$1/gpusync.h" | paste -s -d.; }
echo "instructions for a call, $("$cc" --version | head -n 1) -O2, $(uname -m)"
printf '%-36s %10s %10s %10s %12s\n' "" "$(version_of "$top")" "$(version_of "$header")" limit allocations
row "commit" commit gpusync_commit gpusync_commit 360
row "commit of a foreign buffer" commit_foreign gpusync_commit gpusync_commit 720
row "handler without a waiter" handler "$HANDLER_OLD" "$HANDLER" 470
row "poll of work that runs" poll gpusync_poll gpusync_poll 180
row "submit with a wait and a signal" submit count_submit count_submit 1750
row "made, committed, waited for asleep" whole gpusync_wait_ex gpusync_wait 2650
finish
