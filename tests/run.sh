#!/usr/bin/env bash
# run.sh - runs test programs and examples, and counts
#
#   tests/run.sh PROGRAM... [--examples PROGRAM...]
#
# A test program is a cmocka program: its tests are counted one by one. It is given TIME_LIMIT seconds (120). A test that
# fails, crashes or hangs ends it, and those behind run in a new process (see from.h). Besides a failed test these count as
# failures: a test that did not get to run, as behind a second that hangs, a program that ran no test, an exit status that
# is not zero, and a line that tells of a sanitizer's finding or of an object autoreleased without a pool.
#
# An example is one test: its output has to be as tests/expect/NAME.txt says. expect.pl has the rules.
#
# Several programs run at a time, and what they say is shown in the order of the arguments. Examples on a Mac's GPU run one
# after another.
#
# JOBS         how many at a time; default: twice as many as there are cores, and four at most: most of them sleep
# FORM         where examples run, as expect.pl names it. Default: mac on a Mac, else softmetal
# FIRST_RED=1  the first test that fails ends its program for good; those behind it count as failed
# RUN          command put in front of every program (valgrind, setarch ...)
# LOGS         where the outputs are kept; default: next to each program
# TOTAL_LIMIT  seconds after which no further program begins; each that is left out is a failure. Default: none
#
# Says at the end once more what failed: the last lines of a long run show that.
# Ends with exactly one line "N passed, N failed".

set -u
here=$(cd "$(dirname "$0")" && pwd)
limit=${TIME_LIMIT:-120}
expect=${EXPECT:-$here/expect}
form=softmetal
[ "$(uname -s)" != Darwin ] || form=mac
form=${FORM:-$form}
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}
[ -n "${JOBS:-}" ] || jobs=$((jobs < 2 ? 2 * jobs : 4))
longest=400 # lines of a failed program's output that are shown
passed=0 failed=0 skipped=0 failures=
bad='autorelease called without pool'
bad="$bad|(Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer|^[^ ]+:[0-9]+:[0-9]+: runtime error: "
bad="$bad|==[0-9]+== (Invalid (read|write|free)|Conditional jump|Use of uninit|Process terminating)"

export CMOCKA_MESSAGE_OUTPUT=${CMOCKA_MESSAGE_OUTPUT:-STDOUT}

# execute PROGRAM LOG -> status
execute() {
    # In the background: so this shell hears of a signal while it waits, and limit.pl ends the program.
    # shellcheck disable=SC2086 # RUN is a list of words
    "$here/limit.pl" "$limit" ${RUN:-} "$1" </dev/null >"$2" 2>&1 9>&- &
    child=$!
    wait "$child"
}

show() { # LOG: without the tests that had nothing to say, and not more than the last lines
    LC_ALL=C awk -v log_file="$1" -v longest="$longest" '
        function keep(text) { line[n++] = text }
        /^\[ RUN      \] / { if (held != "") keep(held); held = $0; next }
        /^\[       OK \] / && held != "" { held = ""; next }
        { if (held != "") keep(held); held = ""; keep($0) }
        END { if (held != "") keep(held)
              if (n > longest) print "    | ... (the whole of it: " log_file ")"
              for (i = (n > longest ? n - longest : 0); i < n; i++) print "    | " line[i] }' "$1"
}

why_of() { # STATUS
    case $1 in
    124) echo "time limit of $limit s" ;;
    127) echo "could not be started" ;;
    12[89] | 1[3-9][0-9]) echo "killed by signal $(($1 - 128))" ;;
    *) echo "exit status $1" ;;
    esac
}

gist() { # LOG: what was found wrong, and the end
    { LC_ALL=C grep -aE '^\[ +(ERROR|LINE|FAILED) +\]|Sanitizer: ' "$1" | head -n 9; LC_ALL=C tail -n 3 "$1"; } |
        awk '!seen[$0]++ { print "    | " substr($0, 1, 200) }'
}

report() { # NAME PASSED FAILED SECONDS REASON LOG
    local line
    line=$(printf '%-36s %4d passed, %d failed  %3d s%s' "$1" "$2" "$3" "$4" "${5:+  <-- $5}")
    echo "$line"
    passed=$((passed + $2))
    failed=$((failed + $3))
    if [ "$3" -gt 0 ]; then
        show "$6"
        failures+=$line$'\n'$(gist "$6")$'\n'
    fi
}

log_of() { # PROGRAM
    if [ -n "${LOGS:-}" ]; then
        mkdir -p "$LOGS"
        echo "$LOGS/$(basename "$1").log"
    else
        echo "$1.log"
    fi
}

# execute_from NUMBER PROGRAM LOG -> status; adds to what is counted of the program: planned ok no skip open
# A test's own output may come before the tag on the same line.
execute_from() {
    local status counts more_planned more_ok more_no more_skip
    TESTS_FROM=$1 CMOCKA_TEST_ABORT=1 execute "$2" "$3.part"
    status=$?
    counts=$(LC_ALL=C awk '
        function tail(tag) { return substr($0, index($0, tag) + length(tag)) }
        BEGIN { open = "" }
        /\[==========\] .*Running [0-9]+ test/ {
            n = $0; sub(/.*Running /, "", n); planned += n + 0; next }
        /\[ RUN      \] /  { open = tail("[ RUN      ] "); next }
        /\[       OK \] /  { if (open != "" && tail("[       OK ] ") == open) { ok++; open = "" } next }
        /\[  FAILED  \] /  { if (open != "" && tail("[  FAILED  ] ") == open) { no++; open = "" } next }
        /\[  SKIPPED \] /  { if (open != "" && tail("[  SKIPPED ] ") == open) { skip++; open = "" } next }
        END { gsub(/[^A-Za-z0-9_.-]/, "_", open)
              print planned + 0, ok + 0, no + 0, skip + 0, (open == "" ? "-" : open) }' "$3.part")
    { cat "$3.part" && echo; } >>"$3"
    rm -f "$3.part"
    [ "$1" -eq 0 ] || counts="0 ${counts#* }"
    read -r more_planned more_ok more_no more_skip open <<EOF
$counts
EOF
    planned=$((planned + more_planned)) ok=$((ok + more_ok)) no=$((no + more_no)) skip=$((skip + more_skip))
    return "$status"
}

run_test() {
    local name log start status planned=0 ok=0 no=0 skip=0 rest open hung=0 reason=
    name=$(basename "$1")
    log=$(log_of "$1")
    start=$SECONDS
    : >"$log"
    execute_from 0 "$1" "$log"
    status=$?
    # A test ended the program: those behind it run in a new process, unless two have hung.
    while [ "$open" != - ] && [ -z "${FIRST_RED:-}" ]; do
        case $status in
        134) reason="${reason:+$reason, }$open failed" ;; # cmocka aborts
        *) reason="${reason:+$reason, }$(why_of "$status") in $open" ;;
        esac
        no=$((no + 1))
        [ "$status" -ne 124 ] || hung=$((hung + 1))
        open=-
        if [ "$hung" -gt 1 ] || [ $((ok + no + skip)) -ge "$planned" ]; then break; fi
        execute_from $((ok + no + skip)) "$1" "$log"
        status=$?
    done
    rest=$((planned - ok - no - skip))
    if [ "$status" -ne 0 ] && [ "$hung" -lt 2 ] && { [ "$no" -eq 0 ] || [ "$rest" -ne 0 ]; }; then
        reason="${reason:+$reason, }$(why_of "$status")"
    fi
    if [ "$open" != - ]; then reason="${reason:-ended} in $open"; fi
    if [ "$rest" -gt 0 ]; then
        reason="${reason:-ended early}, $rest not finished"
        no=$((no + rest))
    fi
    if [ "$planned" -eq 0 ]; then
        reason="${reason:+$reason, }no test ran"
        no=1
    fi
    if [ "$no" -eq 0 ] && [ "$status" -ne 0 ]; then no=1; fi
    if LC_ALL=C grep -qE -- "$bad" "$log"; then
        reason="${reason:+$reason, }$(LC_ALL=C grep -cE -- "$bad" "$log") forbidden lines, the first: $(
            LC_ALL=C grep -m1 -E -- "$bad" "$log" | cut -c1-100)"
        if [ "$no" -eq 0 ]; then no=1; fi
    fi
    report "$name" "$ok" "$no" $((SECONDS - start)) "$reason" "$log"
    if [ "$skip" -gt 0 ]; then
        skipped=$((skipped + skip))
        LC_ALL=C awk '/skipped, listed below/ || /SKIPPED.*test\(s\)/ { exit }
                      /^skip: / || /\[  SKIPPED \] / { print "    " $0 }' "$log"
    fi
}

run_example() {
    local name log start status reason
    name=$(basename "$1")
    log=$(log_of "$1")
    start=$SECONDS
    execute "$1" "$log"
    status=$?
    if [ "$status" -ne 0 ] && [ "$status" -ne 77 ]; then
        reason=$(why_of "$status")
    elif LC_ALL=C grep -qE -- "$bad" "$log"; then
        reason="forbidden line: $(LC_ALL=C grep -m1 -E -- "$bad" "$log" | cut -c1-100)"
    else
        reason=$("$here/expect.pl" "$expect/$name.txt" "$log" "$status" "$form" 2>&1)
        case $? in
        0) reason= ;;
        77)
            skipped=$((skipped + 1))
            printf '%-36s %s\n' "example $name" "$(tail -n 1 "$log")"
            return
            ;;
        *) reason=${reason:-expect.pl failed} ;;
        esac
    fi
    if [ -z "$reason" ]; then
        report "example $name" 1 0 $((SECONDS - start)) "" "$log"
    else
        report "example $name" 0 1 $((SECONDS - start)) "$reason" "$log"
    fi
}

run_program() { # PROGRAM, of this `kind`
    if [ -n "${TOTAL_LIMIT:-}" ] && [ "$SECONDS" -ge "$TOTAL_LIMIT" ]; then
        report "$(basename "$1")" 0 1 0 "not run: all together have $TOTAL_LIMIT s" /dev/null
    elif [ $kind = example ]; then
        run_example "$1"
    else
        run_test "$1"
    fi
}

# A shell for each program writes what is to be shown, and counts; at its end it puts a line back into `free`. Who takes a
# line may start the next program.
work=$(mktemp -d "${TMPDIR:-/tmp}/gpusync-run.XXXXXX") || exit 1
started=0 shown=0
trap 'rm -rf "$work"' EXIT
trap 'kill $(jobs -p) 2>/dev/null; wait; exit 130' HUP INT TERM
mkfifo "$work/free" && exec 9<>"$work/free" || exit 1
for ((i = 0; i < jobs; i++)); do echo >&9; done

start_program() { # PROGRAM
    local each=$work/$started
    read -r _ <&9
    started=$((started + 1))
    # shellcheck disable=SC2030,SC2031 # they are counted from 0 in each shell, and added up by show_ended
    (
        passed=0 failed=0 skipped=0 failures='' child=''
        trap 'kill $child 2>/dev/null; exit 130' HUP INT TERM
        trap 'mv "$each.says" "$each" 2>/dev/null; echo >&9' EXIT
        run_program "$1" >"$each.says"
        printf '%s' "$failures" >"$each.failures"
        echo "$passed $failed $skipped" >"$each.counts"
    ) &
}

# shellcheck disable=SC2031
show_ended() {
    local each ok no skip
    while each=$work/$shown && [ -e "$each" ]; do
        shown=$((shown + 1))
        cat "$each"
        read -r ok no skip 2>/dev/null <"$each.counts" || ok=0 no=1 skip=0
        passed=$((passed + ok)) failed=$((failed + no)) skipped=$((skipped + skip))
        if [ -s "$each.failures" ]; then failures+=$(cat "$each.failures")$'\n'; fi
        rm -f "$each" "$each".*
    done
}

kind=plain
for program in "$@"; do
    case $program in
    --examples)
        kind=example
        while [ "$form" = mac ] && [ "$jobs" -gt 1 ]; do read -r _ <&9 && jobs=$((jobs - 1)); done
        ;;
    *)
        start_program "$program"
        show_ended
        ;;
    esac
done
wait
show_ended
if [ "$skipped" -gt 0 ]; then echo "$skipped skipped, see above"; fi
if [ $((passed + failed)) -eq 0 ] && [ "$skipped" -eq 0 ]; then
    echo "nothing was run"
    failed=1
fi
if [ -n "$failures" ]; then printf 'What failed:\n%s' "$failures"; fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
