#!/usr/bin/env bash
# mutants.sh - faults in gpusync.h, one at a time: do the programs that mutants.txt names see each?
#
#   tests/mutants/mutants.sh [NUMBER...]    default: all
#
# plant.pl puts all faults into one copy of the header, and MUTANT chooses one. So each named program is built once,
# most with another implementation.o alone, at -O0. Without a fault each has to be green. A fault is seen when a program
# is red, or does not end in thrice the time that it takes without a fault, and ten seconds more; each of the named
# programs has to see it. Where "?" stands, all of TESTS run until one sees the fault: a new fault finds its program.
#
# CC BUILD SOFTMETAL_LINK   as make has them; BUILD/tests has the objects of all programs
# TESTS                     the programs for "?"
# JOBS                      programs at a time; default: the cores
#
# Ends with exactly one line "N passed, N failed": passed are the faults that were seen.

set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 1
: "${CC:?make test-mutants says which}" "${BUILD:?}" "${SOFTMETAL_LINK:?}"
export CC BUILD SOFTMETAL_LINK TESTS="${TESTS:-}" FIRST_RED=1 LC_ALL=C TURNS_LIMIT=2500 GRAPHS=2200
out=$BUILD/mutants
ulimit -c 0

compile() { # FILE FLAG...: with the faults
    local file=$1
    shift
    # shellcheck disable=SC2086 # CC is a list of words
    $CC -std=c11 -w -D_GNU_SOURCE -DGPUSYNC_OBJC=1 -DCMOCKA_DISABLE_DEPRECATION_WARNINGS "-I$out" -I. -Itests \
        -Itests/softmetal -Iexamples "$@" -c -o "$out/$(basename "$file" .c).o" "$file"
}

# --build PROGRAM: those with the implementation in them, perhaps by a file that they include, are compiled whole.
build() {
    local objects=("$BUILD/tests/$1.o" "$out/implementation.o" "$BUILD/tests/libkit.a")
    if [[ $1 == test_atomics* ]] || grep -q '^ *# *define *GPUSYNC_IMPLEMENTATION' "tests/$1.c"; then
        objects=("$out/$1.o" "$BUILD/tests/libkit.a")
        case $1 in
        test_atomics*)
            compile "tests/$1.c" -O1 -fsanitize=thread -Wno-tsan && objects+=("$BUILD/tests/turns_atomics.o")
            ;;
        test_turns*) compile "tests/$1.c" -O1 ;;
        *) compile "tests/$1.c" -O0 ;;
        esac || return
    fi
    [ "$1" != test_ports ] || objects+=(-luv)
    # shellcheck disable=SC2086 # lists of words
    $CC -o "$out/$1" "${objects[@]}" $SOFTMETAL_LINK -lcmocka -lpthread -lm
}

run() { # NUMBER PROGRAM LIMIT: what it says goes to $out/logs/NUMBER
    mkdir -p "$out/logs/$1"
    MUTANT=$1 JOBS=1 LOGS=$out/logs/$1 TIME_LIMIT=$3 tests/run.sh "$out/$2" >"$out/logs/$1/$2" 2>&1
}

# --green PROGRAM: says when it is red without a fault; notes how long it runs
green() {
    local begun=$EPOCHREALTIME
    if ! run 0 "$1" 120; then
        echo "red without a fault: $1"
        tail -n 8 "$out/logs/0/$1"
    fi
    echo $(((${EPOCHREALTIME/./} - ${begun/./}) / 1000)) >"$out/$1.ms"
}

# --plant NUMBER PROGRAM...: a line that begins with "seen" or "NOT SEEN"
plant() {
    local n=$1 begun=$SECONDS program any='' names
    shift
    names=$*
    # shellcheck disable=SC2086 # a list of words
    if [ "$names" = '?' ]; then any=1 && set -- $TESTS; fi
    for program in "$@"; do
        if run "$n" "$program" $(($(cat "$out/$program.ms") * 3 / 1000 + 10)); then
            [ -n "$any" ] || { echo "NOT SEEN: fault $n by $program" && return; }
        elif [ -n "$any" ]; then
            any='' names=$program
            break
        fi
    done
    if [ -n "$any" ]; then echo "NOT SEEN: fault $n by any of TESTS" && return; fi
    echo "seen $n by $names, $((SECONDS - begun)) s:$(
        grep -m1 -ahoE '<-- .*' "$out/logs/$n/$program" | sed 's/<--//; s/killed by signal 6 in//' | cut -c1-90)"
    rm -rf "$out/logs/$n"
}

case ${1:-} in
--build | --green | --plant)
    "${1#--}" "${@:2}"
    exit
    ;;
esac

fail() {
    cat "$@"
    echo "0 passed, 1 failed"
    exit 1
}
each() { xargs -r -P "${JOBS:-$(nproc)}" "$@"; }

mkdir -p "$out"
rm -rf "${out:?}"/*
perl "$here/plant.pl" "$here/mutants.txt" gpusync.h >"$out/gpusync.h" 2>"$out/log" || fail "$out/log"
perl "$here/plant.pl" "$here/mutants.txt" gpusync.h list >"$out/list"
: >"$out/chosen"
for n in "${@:-[0-9]+}"; do
    grep -E "^$n"$'\t' "$out/list" >>"$out/chosen" || fail <<<"there is no fault $n"
done
cut -f2 "$out/chosen" | sed "s/?/$TESTS/" | tr -s ' ' '\n' | sort -u | grep . >"$out/programs"
compile tests/implementation.c -O0 2>"$out/log" || fail "$out/log"
each -n 1 "$here/mutants.sh" --build <"$out/programs" 2>"$out/log" || fail "$out/log"
each -n 1 "$here/mutants.sh" --green <"$out/programs" >"$out/red"
[ ! -s "$out/red" ] || fail "$out/red"
each -L 1 "$here/mutants.sh" --plant <"$out/chosen" | tee "$out/results"
passed=$(grep -c '^seen' "$out/results")
failed=$(($(wc -l <"$out/chosen") - passed))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
