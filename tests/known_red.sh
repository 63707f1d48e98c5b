#!/usr/bin/env bash
# known_red.sh - runs the tests of known defects, and counts
#
#   tests/known_red.sh PROGRAM
#
# PROGRAM is tests/known_red/known_red.c: without an argument it lists its tests, with a name it runs that one and ends
# with 10 when what is marked in it as the defect is red. "Passed" is a test that is red so. A failure is one that is
# green, that is red elsewhere, that crashes, or of which a sanitizer or GNUstep complains. All run at once, each in a
# process of its own: most of them wait.
#
# Ends with exactly one line "N passed, N failed".

set -euo pipefail
program=$1
logs=$program.logs
limit_pl=$(dirname "$0")/limit.pl
limit=60 # seconds for each, should its own limit fail
bad='autorelease called without pool|(Address|Leak|Thread|UndefinedBehavior)Sanitizer|runtime error: '
bad="$bad|failed with exception|^softmetal: "
export CMOCKA_MESSAGE_OUTPUT=STDOUT

rm -rf "$logs"
mkdir -p "$logs"
tests=$("$program") # none, where nothing is known
for name in $tests; do
    {
        status=0
        "$limit_pl" "$limit" "$program" "$name" </dev/null >"$logs/$name.log" 2>&1 || status=$?
        echo "$status" >"$logs/$name.status"
    } &
done
wait

passed=0 failed=0
for name in $tests; do
    log=$logs/$name.log
    status=$(cat "$logs/$name.status")
    why=
    case $status in
    10) LC_ALL=C grep -q '^red as expected' "$log" || why="says nothing of what is expected" ;;
    0) why="is green: mended? Move it to the suite" ;;
    124) why="does not end" ;;
    *) why="is red for another reason than the known one (exit status $status)" ;;
    esac
    if LC_ALL=C grep -qE -- "$bad" "$log"; then
        why="${why:+$why; }$(LC_ALL=C grep -m1 -E -- "$bad" "$log" | cut -c1-100)"
    fi
    if [ -z "$why" ]; then
        passed=$((passed + 1))
        printf 'red: %s\n     %s\n' "$name" "$(LC_ALL=C sed -n 's/^red as expected[^:]*: //p' "$log" | tail -n 1)"
    else
        failed=$((failed + 1))
        printf 'FAILED: %s %s\n' "$name" "$why"
        tail -n 20 "$log" | sed 's/^/    | /'
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
