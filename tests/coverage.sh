#!/usr/bin/env bash
# coverage.sh - how much of gpusync.h the programs have run that were just run
#
#   tests/coverage.sh FOLDER      that of the objects: gcc's counters lie beside them, and the report goes there
#
# The tests have one copy of the implementation, some programs and the examples one each; gcovr adds them up, line by line
# and branch by branch. What counts:
#   lines     those that gcc makes code of. What only Apple compiles is not among them.
#   branches  those that gcc makes, each way of each condition, also of && || ?: and loops. Left out are those on lines
#             without code, such as a closing brace, and those of assertions: their other way ends the program.
#
# What nothing runs here, and why (by functions; the report has the lines):
#   gpusync__revive, __heard, __arm, __prepare, gpusync_poll, gpusync_device_wait   another thread has to come in between:
#             test_atomics_* and tests/model run them, and are no part of this
#   gpusync__many_goals, gpusync_submit   sizes near SIZE_MAX
#   the plain symbols at the end of the implementation   tests/compile/bindings.c calls them, in a build of its own
#   gpusync__read_encoder, __use_queue   objects of Metal's that lack what all known ones have
#   others    the second half of a condition that an invariant keeps from being decisive, as a text of the report that
#             needs two states at once
#
# Prints the lines that nothing ran. Branches that nothing took are in FOLDER/not_covered.txt, and printed where there
# are too many. Ends with exactly one line "N passed, N failed": the limit of lines and that of branches.

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.." || exit 1
out=$1
lines=99 # per cent, at least
branches=98

rm -f "$out/coverage.json"
status=0
gcovr --root . --object-directory "$out" --filter 'gpusync\.h$' --exclude-unreachable-branches \
    --exclude-lines-by-pattern ' *GPUSYNC_ASSERT\(.*' --fail-under-line $lines --fail-under-branch $branches \
    --print-summary --json "$out/coverage.json" --html-details "$out/coverage.html" "$out" \
    >"$out/summary.txt" 2>"$out/gcovr.log" || status=$?
if [ ! -s "$out/coverage.json" ] || [ $((status & ~6)) -ne 0 ]; then
    tail -n 20 "$out/gcovr.log"
    echo "0 passed, 1 failed"
    exit 1
fi

# A line of C that begins in column 1 and has a name with a bracket begins a function. + and -: taken and not, in gcc's
# order of the branches of that line.
jq -r '.files[].lines[] | select(."gcovr/noncode" or ."gcovr/excluded" | not) |
       [.line_number, .count, ([.branches[] | if .count > 0 then "+" else "-" end] | join(""))] | @tsv' \
    "$out/coverage.json" | awk -F '\t' '
        NR == FNR {
            if (/^[A-Za-z]/ && match($0, /gpusync_[a-z0-9_]+\(/)) name = substr($0, RSTART, RLENGTH - 1)
            of[FNR] = name
            sub(/^ +/, "")
            text[FNR] = $0
            next
        }
        $2 == 0 { print "line " $1 " of " of[$1] ": " text[$1] }
        $2 > 0 && index($3, "-") { print "branches " $3 " of line " $1 " of " of[$1] ": " text[$1] }' gpusync.h - \
        >"$out/not_covered.txt"

passed=0 failed=0
judge() { # WHAT BIT LIMIT: the bit of gcovr's status that tells of the limit
    if [ $((status & $2)) -eq 0 ]; then
        passed=$((passed + 1))
        echo "$(grep "^$1: " "$out/summary.txt"), at least $3 % are asked for"
    else
        failed=$((failed + 1))
        echo "FAILED: $(grep "^$1: " "$out/summary.txt"), at least $3 % are asked for"
    fi
}
judge lines 2 $lines
grep '^line ' "$out/not_covered.txt" | sed 's/^/    /'
judge branches 4 $branches
if [ $((status & 4)) -ne 0 ]; then grep '^branches ' "$out/not_covered.txt" | sed 's/^/    /'; fi
echo "all of it: $out/not_covered.txt, $out/coverage.html"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
