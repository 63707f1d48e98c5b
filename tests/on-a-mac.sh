#!/usr/bin/env bash
# on-a-mac.sh - what a person with a Mac runs once: asks Metal whether it behaves as README.md and examples/metal-behaves.md say,
# and writes a report
#
#   tests/on-a-mac.sh [FILE]      the report, in Markdown; default BUILD/on-a-mac.md
#
# It takes some minutes. The probes of tests/beliefs/probes.h run twice: plainly, and under Metal's API validation. That
# puts objects of its own in the place of Metal's. The portable tests run under API validation too, where cmocka is
# installed (brew install cmocka). Two probes wait for Metal to end a command buffer that waits for nothing. No kernel
# runs without an end, and nothing hangs the GPU. A probe that crashes or does not end is told as such.
#
# The report grows row by row: what ends this script, or the machine, leaves what was seen until then. After two hangs
# the GPU is left alone, and the report says what was left out. Each part has a time limit, in seconds below: 32 minutes
# in all, 39 with BENCH.
#
# Elsewhere than on a Mac softmetal answers, so that the script itself is tried. In the environment
#   BUILD    where things are built (build)
#   PROGRAM  the probes, built already; RUN: put in front of it
#   BENCH=1  all of make bench-device, four minutes more; without it only what a wait's spin depends on: how long after
#            its end a command buffer shows it, how late a timed sleep comes, and what gpusync_spin.until_near would gain
#
# The exit status is 0 when there is a report, whatever it says.

set -u
cd "$(dirname "$0")/.." || exit 2
build=${BUILD:-build}
report=${1:-$build/on-a-mac.md}
logs=$build/on-a-mac
mkdir -p "$logs" "$(dirname "$report")" || exit 2
[ -e "$build/.gitignore" ] || echo '*' >"$build/.gitignore"
system=$(uname -s)
build_limit=300 probes_limit=600 run_limit=60 tests_limit=300 bench_limit=480 unknowns_limit=60

fact() { # NAME COMMAND...
    local name=$1 value
    shift
    value=$("$@" 2>/dev/null | head -n 1)
    echo "| $name | ${value:-unknown} |"
}
known() { sysctl -n "$1" 2>/dev/null; } # of the kernel's names

version() {
    sed -n 's/^.define GPUSYNC_VERSION_M[AI][JN]OR *//p; s/^.define GPUSYNC_VERSION_PATCH *//p' gpusync.h |
        paste -s -d. -
}
commit() {
    git rev-parse --short=12 HEAD | tr -d '\n'
    git diff --quiet HEAD -- || printf ', with changes'
}

machine() {
    echo '| | |'
    echo '|---|---|'
    fact 'date' date -u '+%Y-%m-%d %H:%M UTC'
    fact 'gpusync' version
    fact 'commit' commit
    if [ "$system" = Darwin ]; then
        fact 'machine' known hw.model
        fact 'processor' known machdep.cpu.brand_string
        fact 'macOS' sw_vers -productVersion
        fact 'build' sw_vers -buildVersion
        fact 'virtual machine (1: yes)' known kern.hv_vmm_present
        fact 'translated by Rosetta (1: yes)' known sysctl.proc_translated
        fact 'command line tools' "${CC:-cc}" --version
    else
        fact 'system' uname -sr
        echo '| NO MAC | softmetal answers, a software device: none of this says anything about Metal |'
    fi
    fact 'architecture' uname -m
}

hangs=0
left_out() { # WHAT: true after two hangs
    [ $hangs -ge 2 ] || return 1
    echo "left out: $1" >&2
    printf '\nLeft out after %d hangs: %s.\n' $hangs "$1"
}
ended() { # STATUS SECONDS
    if [ "$1" -eq 124 ]; then
        hangs=$((hangs + 1))
        echo "It did not end in $2 s."
    else
        echo "It ended with status $1."
    fi
}

# The probes, and the tail of what Metal said meanwhile.
probes() { # NAME VARIABLE=VALUE...
    local name=$1 log=$logs/$1.log status
    shift
    if left_out "the probes, $name"; then return; fi
    echo "asking: $name" >&2
    # shellcheck disable=SC2086 # RUN is a list of words
    tests/limit.pl $probes_limit env "$@" ${RUN:-} "$program" 2>"$log"
    status=$?
    hangs=$((hangs + $(grep -c '^hangs: ' "$log")))
    [ $status -eq 0 ] || ended $status $probes_limit
    if [ -s "$log" ]; then
        printf '\nOn stderr, the last lines:\n\n'
        tail -n 30 "$log" | cut -c1-300 | sed 's/^/    /'
    fi
}

# What a make target prints at its end.
made() { # SECONDS TARGET VARIABLE=VALUE...
    local limit=$1 target=$2 log=$logs/$2.log status
    shift 2
    if left_out "make $target"; then return; fi
    echo "making: $target" >&2
    tests/limit.pl "$limit" env "$@" make "$target" >"$log" 2>&1
    status=$?
    printf '\n### make %s %s\n\n' "$target" "$*"
    ended $status "$limit"
    printf '\nThe last lines:\n\n'
    tail -n "${LINES_SHOWN:-15}" "$log" | cut -c1-200 | sed 's/^/    /'
}

has_cmocka() {
    [ -e /opt/homebrew/include/cmocka.h ] || [ -e /usr/local/include/cmocka.h ] || [ -e /usr/include/cmocka.h ]
}

program=${PROGRAM:-}
if [ -z "$program" ]; then
    echo "building the probes" >&2
    tests/limit.pl $build_limit make BUILD="$build" beliefs >"$logs/build.log" 2>&1 || {
        cat "$logs/build.log" >&2
        echo "on-a-mac.sh: the probes do not build" >&2
        exit 2
    }
    program=$(sed -n 's/^built: //p' "$logs/build.log")
fi
case $program in */*) ;; *) program=./$program ;; esac

validation='MTL_DEBUG_LAYER=1 MTL_DEBUG_LAYER_ERROR_MODE=assert MTL_DEBUG_LAYER_WARNING_MODE=nslog'

{
    echo '# gpusync: what Metal does here'
    echo
    machine
    printf '\n## Plainly\n\n'
    probes plainly MTL_DEBUG_LAYER=0
    printf '\n## Under API validation\n\n%s\n\n' "$validation"
    # shellcheck disable=SC2086 # words, here and below
    probes validated $validation
    if [ "$system" = Darwin ]; then
        printf '\n## Programs\n'
        made $run_limit run MTL_DEBUG_LAYER=0
        if has_cmocka; then
            # shellcheck disable=SC2086
            made $tests_limit test-device $validation
        else
            printf '\nmake test-device: left out, cmocka is not installed (brew install cmocka).\n'
        fi
        if [ -n "${BENCH:-}" ]; then
            LINES_SHOWN=200 made $bench_limit bench-device MTL_DEBUG_LAYER=0
        else
            LINES_SHOWN=90 made $unknowns_limit bench-device MTL_DEBUG_LAYER=0 BENCH_ONLY=none
        fi
    fi
    printf '\nThe report is complete.\n'
} >"$report" || exit 2
grep -E '^[0-9]+ hold, [0-9]+ differ, [0-9]+ not seen$' "$report" >&2
echo "$report: please paste it into an issue" >&2
