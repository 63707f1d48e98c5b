#!/usr/bin/env bash
# counts.sh - instructions of the calls of gpusync.h, against limits
#
#   make test-counts
#
# "By hand": with a mutex, a condition variable and a handler that counts (see counts.c), counted alike.
# Counted by callgrind: the own part of a call, which is gpusync's functions and all that they call, but for messages,
# the Objective-C runtime and blocks behind them. Nor malloc, whose cost hangs on what the heap has seen: its calls have
# a column. What hangs on time costs more on a busy machine now and then: the least of two runs counts.
# Prints a table, ends with one line "N passed, N failed", and fails when a limit is broken.
#
# OLD=FILE   another gpusync.h, of 0.4 or newer: its instructions stand beside, without a limit
# DETAILS=1  which functions the instructions of each row are in
# CC, BUILD, SOFTMETAL_LINK: see common.sh

# shellcheck source=tests/bench/common.sh
. "$(dirname "$0")/common.sh"
needs_valgrind
handler=gpusync__completed # the function of the completed handler

# ------------------------------------------------------------------------------------------------ build and run

count() { # WHERE HEADER-DIRECTORY: callgrind's dumps in $build/WHERE, of two runs
    local dir=$build/$1 run
    local callgrind=(timeout 120 valgrind --tool=callgrind --compress-strings=no --compress-pos=no
        --collect-atstart=no "--toggle-collect=$handler" --toggle-collect=hand_completed)
    mkdir "$dir"
    compile "$2" "$dir/counts" "$here/counts.c" "$build/implementation.c" -Wl,-z,now,--strip-debug
    nm "$dir/counts" | grep -q " [tT] $handler\$" || broken "$1: there is no function $handler (handler in counts.sh)"
    for run in 1 2; do
        "${callgrind[@]}" --callgrind-out-file="$dir/run$run" "$dir/counts" >"$dir/log" 2>&1 || {
            cat "$dir/log" >&2
            broken "$1: callgrind failed"
        }
    done
}

if [ -n "${OLD:-}" ]; then
    mkdir "$build/include"
    sed 's/"dispatch_time"\|"dispatch_after_f"/"no_timer"/' "$OLD" >"$build/include/gpusync.h" ||
        broken "OLD=$OLD: no such file"
    count old "$build/include"
fi
count new "$top"

# --------------------------------------------------------------------------------------------------- evaluation

files_of() { # WHERE SCENARIO: its dump in each run
    grep -l "Trigger: Client Request: $2 [0-9]*\$" "$build/$1"/run* 2>/dev/null
}

counts_of() { # WHERE SCENARIO -> own instructions and allocations for a call, in the best run; "-": there is none
    local file
    { files_of "$1" "$2" || echo /dev/null; } | while read -r file; do count_in "$file"; done | sort -n | head -n 1
}

# Of a dump. With details also instructions and calls of each function; "->": of what gpusync calls, not all of it own.
count_in() { # FILE [details]
    awk -v details="${2:-}" '
        function ours(name) { return name ~ /^(gpusync_|hand_|metal_)/ }
        /^desc: Trigger:/ { times = $NF }
        /^fn=/ { fn = substr($0, 4) }
        /^cfn=/ { callee = substr($0, 5) }
        /^calls=/ { n = substr($1, 7); of_call = 1; next }
        /^[0-9+*-]/ {
            if (of_call && ours(fn) && !ours(callee)) {
                sum["-> " callee] += $2
                called["-> " callee] += n
                if (callee ~ /alloc/) allocations += n
                if (callee !~ /^(objc_|object_|class_|sel_|_Block_|malloc$|free$|park)/) own += $2
            } else if (!of_call && ours(fn)) {
                sum[fn] += $2
                own += $2
            }
            of_call = 0
        }
        END {
            if (!own) print "- -"
            else printf "%.1f %.2f\n", own / times, allocations / times
            if (details) for (at in sum) printf "%12.1f %6.2f  %s\n", sum[at] / times, called[at] / times, at
        }' "$1"
}

row() { # TITLE SCENARIO LIMIT
    local old=- own hand allocations verdict=ok
    [ -z "${OLD:-}" ] || read -r old _ <<<"$(counts_of old "$2")"
    read -r own allocations <<<"$(counts_of new "$2")"
    read -r hand _ <<<"$(counts_of new "hand_$2")"
    if awk -v a="$own" -v b="$3" 'BEGIN { exit !(a + 0 > 0 && a + 0 <= b) }'; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        verdict="FAILED: not within the limit"
    fi
    printf '%-36s %10s %10s %10s %10s %12s  %s\n' "$1" "$hand" "$old" "$own" "$3" "$allocations" "$verdict"
    [ -z "${DETAILS:-}" ] || count_in "$(files_of new "$2" | tail -n 1)" details | tail -n +2 | sort -rn
}

echo "instructions for a call, $($cc --version | head -n 1) -O2, $(uname -m)"
printf '%-36s %10s %10s %10s %10s %12s\n' "" "by hand" "${OLD:+OLD}" "gpusync.h" limit allocations
row "commit" commit 292
row "commit of a foreign buffer" commit_foreign 480
row "commit, Metal 4" commit4 643
row "submit of 8 command buffers, Metal 4" submit4 1006
row "handler without a waiter" handler 408
row "poll of work that runs" poll 214
row "wait for a ticket that has ended" wait_ticket 18
row "wait for everything, idle" wait_everything 22
row "wait for a value that is reached" wait_value 18
row "wait_many, ended, for a point" many_ended 28
row "wait_many, unmet, for a point" many_unmet 320
row "wait_many, asleep, for a point" many_asleep 500
row "submit with a wait and a signal" submit 1355
row "the same, strict: held" submit_strict 870
row "both encoded, commit" encode 1206
row "made, committed, waited for asleep" whole 2390
finish
