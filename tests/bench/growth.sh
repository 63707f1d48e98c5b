#!/usr/bin/env bash
# growth.sh - how the cost of gpusync's calls grows with the number of things at hand
#
#   make test-growth [ROWS='waits held']
#
# Counts the instructions of gpusync's own functions with callgrind: not those of softmetal and libc. Each row of the
# table below runs at three sizes n. Its cost for one of the n may be, at the largest n, so many times what it is at the
# smallest. "linear" means 1.5 at most; a row with a higher limit is known to grow faster, and must not get worse.
# Prints a table, ends with one line "N passed, N failed", and fails when a limit is broken.
#
# ROWS  names of the rows to run; default all
# JOBS  how many run at a time; default one for each processor
# CC, BUILD, SOFTMETAL_LINK: see common.sh

table() { # NAME LIMIT SIZES WHAT; the slowest first
    cat <<'END'
queues            1.5 100,200,400  n queues with work held for n values of one timeline
chain             1.5 100,200,400  a failure through a chain of n queues
callbacks         1.5 100,400,1000 callbacks of n rising values, signalled one by one
callbacks_falling 4.0 100,400,1000 the same of falling values: each is looked for from the end of a list
waits             1.5 100,400,1000 n waits on one timeline, signalled one by one
commits           1.5 100,400,1000 commits of n open buffers, in the order of making
held              1.5 100,400,1000 n works that are held, sent one by one, and ended
cancel            1.5 100,400,1000 cancel_held with n works
abandon           1.5 100,400,1000 abandon with n works, half of them held
poll              1.5 100,400,1000 one poll of a ticket behind n UNORDERED ones that run
poll_held         1.5 100,400,1000 one poll of a ticket behind n UNORDERED ones that are held
report            1.5 100,400,1000 a report of n tickets that run
END
}

# shellcheck source=tests/bench/common.sh
. "$(dirname "$0")/common.sh"
needs_valgrind

measure() { # ROW N...: the counts, or why there is none, to $build/ROW
    local at=$build/$1 dump
    # No symbol is bound on its first use: that would count more in a small row than in a large one.
    LD_BIND_NOW=1 timeout -k 5 100 valgrind --tool=callgrind --instr-atstart=no --compress-strings=no \
        --compress-pos=no --max-threads=4000 --callgrind-out-file="$at.callgrind" "$build/growth" "$@" \
        >"$at.log" 2>&1 || {
        echo "ended with $?: $(grep -hE '^(bench|softmetal):|Assertion' "$at.log" || echo "see $at.log")" >"$at"
        return
    }
    for ((dump = 1; dump < $#; dump++)); do
        awk '
            /^fn=/ { own = substr($0, 4) ~ /^gpusync_/; next }
            /^calls=/ { callee = 1; next }
            /^[0-9+*-]/ { if (own && !callee) sum += $2; callee = 0 }
            END { printf "%.0f ", sum }' "$at.callgrind.$dump"
    done >"$at"
}

compile "$top" "$build/growth" "$here/growth.c" "$build/implementation.c" -Wl,--strip-debug
for row in ${ROWS:-}; do
    table | grep -q "^$row " || broken "there is no row $row"
done
while read -r row limit sizes what; do
    case " ${ROWS:-$row} " in *" $row "*) printf '%s\n' "$row $limit $sizes $what" ;; esac
done < <(table) >"$build/rows"
while read -r row _ sizes _; do
    while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" ]; do wait -n; done
    # shellcheck disable=SC2086 # a list of numbers
    measure "$row" ${sizes//,/ } </dev/null &
done <"$build/rows"
wait

echo "instructions of gpusync for one of n, $($cc --version | head -n 1) -O2, $(uname -m)"
printf '%-18s %15s %24s %7s %6s\n' "" "n" "instructions" growth limit
while read -r row limit sizes what; do
    if awk -v row="$row" -v limit="$limit" -v sizes="$sizes" -v costs="$(cat "$build/$row")" -v what="$what" 'BEGIN {
        k = split(sizes, n, ",")
        if (split(costs, cost, " ") != k || costs ~ /[^0-9 ]/) { printf "%-18s FAILED: %s\n", row, costs; exit 1 }
        for (i = 1; i <= k; i++) {
            if (!cost[i]) { printf "%-18s FAILED: nothing was counted\n", row; exit 1 }
            each = each sprintf("%8.0f", cost[i] / n[i])
        }
        growth = cost[k] / n[k] / (cost[1] / n[1])
        verdict = growth <= 1.5 ? "linear" : "MORE than linear"
        if (growth > limit) verdict = "FAILED: " verdict
        printf "%-18s %15s %24s %7.2f %6.1f  %s: %s\n", row, sizes, each, growth, limit, verdict, what
        exit growth > limit
    }'; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done <"$build/rows"
finish
