#!/usr/bin/env bash
# mutants.sh - faults in gpusync.h, planted one at a time: does a test see each?
#
#   tests/mutants.sh [NUMBER|FIRST-LAST|drawn...]  the faults with these numbers, those of mutants/drawn.txt; default all
#   tests/mutants.sh --check                       says which texts of mutants/*.txt are not in gpusync.h, or nothing
#
# All faults are compiled into one copy of the header, and the environment variable MUTANT chooses one. So the tests and
# examples are compiled once. Without a fault all of them have to be green. That run also tells which programs come to the
# line of each fault. With a fault these run until the first is red: first the one that saw it last time, then the others,
# the quickest first. A program has half as many seconds again as it takes without a fault, and one more. One that runs out
# of time runs once more when all others are done, and has three times the seconds, and two more. It is a hang if it runs out of
# those, too: a fault that only costs time does not.
#
# BUILD CC                   as make has them
# JOBS                       how many programs run at a time; default 2
# TESTS BOTH EXAMPLES        names of programs; those of BOTH also run on queues of Metal 4
# UPDATE=1                   writes the program that saw each fault into its list
#
# Prints a line for each, and which of them ran out of time. Ends with exactly one line "N passed, N failed". Passed are
# those that a program has seen. A race may be seen now and then, so its run proves nothing. No program sees a fault that its
# list calls green, with a reason, so such a fault runs against all programs that reach it, and takes the longest. Both run only
# if they are asked for by their own number. A green fault has passed if no program sees it.

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd)
plant() { python3 -B "$root/tests/mutants/plant.py" "$root/gpusync.h" "$@"; } # python3 comes with clang-format
if [ "${1:-}" = --check ]; then
    plant --check
    exit
fi
: "${TESTS:?make test-mutants says which}" "${BOTH:?}" "${EXAMPLES:?}"
out=${BUILD:-$root/build}/mutants
tree=$out/tree bin=$out/${CC:-gcc}
jobs=${JOBS:-2}
export FIRST_RED=1 # a program ends with the first test that fails
LC_ALL=C
ulimit -c 0

# ---------------------------------------------------------------- the programs
# The tests ask for ../gpusync.h, so the copy has them beside it, as links.
mkdir -p "$tree"
rm -rf "$tree/tests" "$tree/examples"
cp -rs "$root/tests" "$root/examples" "$root/Makefile" "$tree/" 2>/dev/null
plant "$out/gpusync.h" || exit 1
cmp -s "$out/gpusync.h" "$tree/gpusync.h" || cp "$out/gpusync.h" "$tree/gpusync.h"
env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$tree" -j"$jobs" --no-print-directory programs \
    BUILD="$out" CC="${CC:-gcc}" CFLAGS='-O1 -g -w' TESTS="$TESTS" EXAMPLES="$EXAMPLES" >"$out/make.log" 2>&1 || {
    tail -n 30 "$out/make.log"
    echo "the tests could not be built with the faults"
    exit 1
}
runs=()
for name in $TESTS; do runs+=("$name"); done
for name in $BOTH; do runs+=("QUEUES=metal4 $name"); done
for name in $EXAMPLES; do runs+=("example $name"); done

# run RUN LIMIT LOGS -> status; a line that tells why stands in LOGS/why
run() {
    local words=()
    case $1 in
    QUEUES=metal4*) words=(--metal4 "$bin/tests/${1#* }") ;;
    example*) words=(--examples "$bin/examples/${1#* }") ;;
    *) words=("$bin/tests/$1") ;;
    esac
    mkdir -p "$3"
    (
        ulimit -f 400000
        TIME_LIMIT=$2 LOGS=$3 RUN="${RUN:-}" exec "$root/tests/run.sh" "${words[@]}" >"$3/why" 2>&1
    )
}
why() { # LOGS
    local line
    line=$(grep -m1 -aE '<-- |\[  FAILED  \] [a-z]' "$1/why" | sed 's/.*<-- //; s/.*\[  FAILED  \] //')
    echo "${line:0:100}"
}
ran_out_of_time() { # LOGS; SIGALRM: a test has a limit of its own
    grep -qaE '<-- (time limit of|killed by signal 14( |$))' "$1/why"
}
later() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    "$@" 2>/dev/null & # where bash tells of what was aborted
}

# ---------------------------------------------------------------- without a fault
start=$SECONDS
measure() { # RUN
    local began=$EPOCHREALTIME status=ok reached=$out/reached/${1// /-}
    truncate -s 8192 "$reached"
    REACHED=$reached MUTANT=0 run "$1" 120 "$out/logs/0/${1// /-}" || status=red
    printf '%s\t%s\t%s\n' "$((${EPOCHREALTIME/./} - ${began/./}))" "$status" "$1" >>"$out/times.new"
}
if [ ! -e "$out/times" ] || [ -n "$(find "$bin" -newer "$out/times" -type f -perm -u+x -print -quit)" ] ||
    [ "$(wc -l <"$out/times")" -ne ${#runs[@]} ]; then
    rm -rf "$out/times" "$out/times.new" "$out/reached"
    mkdir -p "$out/reached"
    for name in "${runs[@]}"; do later measure "$name"; done
    wait
    if grep -P '\tred\t' "$out/times.new" >"$out/red"; then
        while IFS=$'\t' read -r _ _ name; do
            echo "red without a fault: $name"
            sed 's/^/    | /' "$out/logs/0/${name// /-}/why" | tail -n 20
        done <"$out/red"
        exit 1
    fi
    sort -n "$out/times.new" >"$out/times"
fi
declare -A limit_of last_limit_of
rm -rf "$out/reach"
mkdir -p "$out/reach" # a file for each fault: the programs that come to it, the quickest first
while IFS=$'\t' read -r us _ name; do
    limit_of[$name]=$((us * 3 / 2000000 + 1))
    last_limit_of[$name]=$((us * 3 / 1000000 + 2))
    od -An -v -tu1 -w1 "$out/reached/${name// /-}" |
        awk -v name="$name" -v to="$out/reach/" '$1 { print name >>(to (NR - 1)); close(to (NR - 1)) }'
done <"$out/times"
echo "green without a fault: ${#runs[@]} programs, in $((SECONDS - start)) s"

# ---------------------------------------------------------------- with each
wanted() { # NUMBER KIND
    local one
    for one in "${asked[@]}"; do
        if [ "$1" = "$one" ]; then return 0; fi
    done
    [ "$2" = - ] || return 1
    [ ${#only[@]} -gt 0 ] || return 0
    for one in "${only[@]}"; do
        if [ "$1" -ge "${one%-*}" ] && [ "$1" -le "${one#*-}" ]; then return 0; fi
    done
    return 1
}
try() { # NUMBER KIND REASON TEST FUNCTION WORDS
    local name limit programs logs=$out/logs/$1 green=$out/tried/$1.green what="$1 $5: $6"
    rm -rf "$logs"
    touch "$green" "$out/reach/$1"
    mapfile -t programs < <(grep -xF -- "$4" "$out/reach/$1"; cat "$out/reach/$1")
    for name in "${programs[@]}"; do
        if grep -qxF -- "$name" "$green"; then continue; fi
        limit=${limit_of[$name]}
        [ -z "$again" ] || limit=${last_limit_of[$name]}
        if MUTANT=$1 run "$name" "$limit" "$logs"; then
            echo "$name" >>"$green"
            continue
        fi
        if ran_out_of_time "$logs" && [ -z "$again" ]; then
            printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$name" "$5" "$6" >"$out/tried/$1.late"
            echo "out of time, to be run again: $name: $what"
            return
        fi
        if ran_out_of_time "$logs"; then echo "$1" >>"$out/tried/hangs"; fi
        echo "$1 $name" >"$out/result/$1.seen"
        if [ "$2" = - ] || [ "$2" = race ]; then
            echo passed >"$out/result/$1"
            echo "seen by $name: $what: $(why "$logs")"
        else
            echo failed >"$out/result/$1"
            echo "FAILED: $what: should be green ($2), and $name sees it: $(why "$logs")"
        fi
        return
    done
    if [ "$2" = - ]; then
        echo failed >"$out/result/$1"
        echo "NOT SEEN by the $(wc -l <"$out/reach/$1") programs that come to it: $what"
    else
        echo passed >"$out/result/$1"
        echo "green ($2: $3): $what"
    fi
}

only=() again= asked=("$@")
for one in "$@"; do
    if [ "$one" = drawn ]; then
        mapfile -t -O "${#only[@]}" only < <(sed -n 's/^= \([0-9]*\) .*/\1/p' "$root/tests/mutants/drawn.txt")
    else
        only+=("$one")
    fi
done
left_out=
rm -rf "$out/result" "$out/tried"
mkdir -p "$out/result" "$out/tried"
touch "$out/tried/hangs"
plant --list >"$out/list"
while IFS=$'\t' read -r number kind reason seen function words; do
    if wanted "$number" "$kind"; then
        later try "$number" "$kind" "$reason" "$seen" "$function" "$words"
    elif [ "$kind" != - ] && wanted "$number" -; then
        left_out+="$number ($kind) "
    fi
done <"$out/list"
wait
[ -z "$left_out" ] || echo "races and what is called green, left out: $left_out"
again=1
while IFS=$'\t' read -r number kind reason name function words; do
    later try "$number" "$kind" "$reason" "$name" "$function" "$words"
done < <(cat "$out"/tried/*.late 2>/dev/null | sort -n)
wait
late=$(cat "$out"/tried/*.late 2>/dev/null | cut -f1 | sort -n | tr '\n' ' ')
if [ -n "$late" ]; then
    echo "ran out of time at first: $late"
    echo "... and again: $(sort -n "$out/tried/hangs" | tr '\n' ' ')"
fi
if [ -n "${UPDATE:-}" ]; then
    cat "$out"/result/*.seen >"$out/seen" 2>/dev/null && plant --seen "$out/seen"
fi
echo "$((SECONDS - start)) s"
passed=$(grep -lx passed "$out"/result/* | wc -l) failed=$(grep -lx failed "$out"/result/* | wc -l)
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
