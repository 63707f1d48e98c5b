#!/usr/bin/env bash
# counts.sh - instructions of the calls of gpusync.h, against limits
#
#   make test-counts
#
# Counted by callgrind: the own part of a call, which is gpusync's functions and all that they call, but for messages,
# the Objective-C runtime and blocks behind them. Nor malloc, whose cost hangs on what the heap has seen: its calls have
# a column. What hangs on time costs more on a busy machine now and then: the least of three runs counts.
# Prints a table, ends with one line "N passed, N failed", and fails when a limit is broken.
#
# OLD=FILE   another gpusync.h, with the names of 0.5: its instructions stand beside, without a limit
# DETAILS=1  which functions the instructions of each row are in
# CC, BUILD, SOFTMETAL_LINK: see common.sh

# shellcheck source=tests/bench/common.sh
. "$(dirname "$0")/common.sh"
needs_valgrind
handler=gpusync__completed # the function of the completed handler

# ------------------------------------------------------------------------------------------------ build and run

count() { # WHERE HEADER-DIRECTORY: callgrind's dumps in $build/WHERE, of three runs
    local dir=$build/$1 name run
    local callgrind=(timeout 120 valgrind --tool=callgrind --compress-strings=no --compress-pos=no)
    local collect=()
    for name in gpusync_commit gpusync_poll count_submit $handler; do collect+=("--toggle-collect=$name"); done
    mkdir "$dir"
    compile "$2" "$dir/counts" "$here/counts.c" "$build/implementation.c" -Wl,-z,now,--strip-debug
    nm "$dir/counts" | grep -q " [tT] $handler\$" || broken "$1: there is no function $handler (handler in counts.sh)"
    for run in 1 2 3; do
        "${callgrind[@]}" --callgrind-out-file="$dir/run$run" "${collect[@]}" "$dir/counts" calls >"$dir/log" 2>&1 &&
            "${callgrind[@]}" --callgrind-out-file="$dir/run$run.whole" "$dir/counts" whole >"$dir/log" 2>&1 ||
            { cat "$dir/log" >&2; broken "$1: callgrind failed"; }
    done
}

if [ -n "${OLD:-}" ]; then
    mkdir "$build/include"
    cp "$OLD" "$build/include/gpusync.h" || broken "OLD=$OLD: no such file"
    count old "$build/include"
fi
count new "$top"

# --------------------------------------------------------------------------------------------------- evaluation

# counts_of WHERE SCENARIO FUNCTION -> own instructions and allocations for a call of the function, in the best run
counts_of() {
    local file
    { grep -l "Trigger: Client Request: $2\$" "$build/$1"/run* 2>/dev/null || echo /dev/null; } |
        while read -r file; do count_in "$file" "$3"; done | sort -n | head -n 1
}

count_in() { # FILE FUNCTION
    awk -v target="$2" '
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
    awk -v target="$2" '
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

row() { # TITLE SCENARIO FUNCTION LIMIT
    local old=- own allocations verdict=ok
    [ -z "${OLD:-}" ] || read -r old _ <<<"$(counts_of old "$2" "$3")"
    read -r own allocations <<<"$(counts_of new "$2" "$3")"
    if awk -v a="$own" -v b="$4" 'BEGIN { exit !(a > 0 && a <= b) }'; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        verdict="FAILED: not within the limit"
    fi
    printf '%-36s %10s %10s %10s %12s  %s\n' "$1" "$old" "$own" "$4" "$allocations" "$verdict"
    [ -z "${DETAILS:-}" ] || details "$2" "$3"
}

echo "instructions for a call, $($cc --version | head -n 1) -O2, $(uname -m)"
printf '%-36s %10s %10s %10s %12s\n' "" "${OLD:+OLD}" "gpusync.h" limit allocations
row "commit" commit gpusync_commit 360
row "commit of a foreign buffer" commit_foreign gpusync_commit 720
row "handler without a waiter" handler "$handler" 470
row "poll of work that runs" poll gpusync_poll 180
row "submit with a wait and a signal" submit count_submit 1750
row "made, committed, waited for asleep" whole gpusync_wait 2650
finish
