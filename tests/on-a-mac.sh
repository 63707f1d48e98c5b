#!/usr/bin/env bash
# on-a-mac.sh - what a person with a Mac runs once: asks Metal what README.md believes of it, and writes a report
#
#   tests/on-a-mac.sh [FILE]      the report, in Markdown; default BUILD/on-a-mac.md
#
# It takes some minutes. The probes of tests/beliefs/probes.h run twice: plainly, and under Metal's API validation. That
# puts objects of its own in the place of Metal's. The portable tests run under API validation too, where cmocka is
# installed (brew install cmocka). Two probes wait for Metal to end a command buffer that waits for nothing. No kernel
# runs without an end, and nothing hangs the GPU. A probe that crashes or does not end is told as such.
#
# Elsewhere than on a Mac softmetal answers, so that the script itself is tried. In the environment
#   BUILD    where things are built (build)
#   PROGRAM  the probes, built already; RUN: put in front of it
#   BENCH=1  also make bench-device, four minutes more
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

# The probes, and the tail of what Metal said meanwhile.
probes() { # NAME VARIABLE=VALUE...
    local name=$1 log=$logs/$1.log
    shift
    echo "asking: $name" >&2
    # shellcheck disable=SC2086 # RUN is a list of words
    env "$@" ${RUN:-} "$program" >"$logs/$name.md" 2>"$log"
    local status=$?
    cat "$logs/$name.md"
    [ "$status" -eq 0 ] || echo "The program ended with status $status."
    if [ -s "$log" ]; then
        printf '\nOn stderr, the last lines:\n\n'
        tail -n 30 "$log" | cut -c1-300 | sed 's/^/    /'
    fi
}

# What a make target prints at its end.
made() { # TARGET VARIABLE=VALUE...
    local target=$1 status
    shift
    echo "making: $target" >&2
    env "$@" make "$target" >"$logs/$target.log" 2>&1
    status=$?
    printf '\n### make %s %s\n\nExit status %d. The last lines:\n\n' "$target" "$*" "$status"
    tail -n "${LINES_SHOWN:-15}" "$logs/$target.log" | cut -c1-200 | sed 's/^/    /'
}

has_cmocka() {
    [ -e /opt/homebrew/include/cmocka.h ] || [ -e /usr/local/include/cmocka.h ] || [ -e /usr/include/cmocka.h ]
}

program=${PROGRAM:-}
if [ -z "$program" ]; then
    echo "building the probes" >&2
    make BUILD="$build" beliefs >"$logs/build.log" 2>&1 || {
        cat "$logs/build.log" >&2
        echo "on-a-mac.sh: the probes do not build" >&2
        exit 2
    }
    program=$(sed -n 's/^built: //p' "$logs/build.log")
fi
case $program in */*) ;; *) program=./$program ;; esac

validation='MTL_DEBUG_LAYER=1 MTL_DEBUG_LAYER_ERROR_MODE=assert MTL_DEBUG_LAYER_WARNING_MODE=nslog'
read -r -a layers <<<"$validation"

{
    echo '# gpusync: what Metal does here'
    echo
    machine
    printf '\n## Plainly\n\n'
    probes plainly MTL_DEBUG_LAYER=0
    printf '\n## Under API validation\n\n%s\n\n' "$validation"
    probes validated "${layers[@]}"
    if [ "$system" = Darwin ]; then
        printf '\n## Programs\n'
        made run MTL_DEBUG_LAYER=0
        if has_cmocka; then
            made test-device "${layers[@]}"
        else
            printf '\nmake test-device: left out, cmocka is not installed (brew install cmocka).\n'
        fi
        [ -z "${BENCH:-}" ] || LINES_SHOWN=200 made bench-device MTL_DEBUG_LAYER=0
    fi
} >"$report.new" || exit 2
mv "$report.new" "$report"
grep -E '^[0-9]+ hold, [0-9]+ differ, [0-9]+ not seen$' "$report" >&2
echo "$report: please paste it into an issue" >&2
