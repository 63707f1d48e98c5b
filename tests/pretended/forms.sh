#!/usr/bin/env bash
# forms.sh - builds the examples for a pretended GPU (device.c), and runs them on it in each of its forms
#
#   tests/pretended/forms.sh [NAME...]     default: all examples that do not include softmetal.h
#
# The output of each has to be as tests/expect/NAME.txt says, and an empty output must not do. Comes in the environment:
# SOFTMETAL_LINK, or LDLIBS as `make softmetal` prints it: what a program links; CC (gcc), BUILD (build).
# Ends with one line "N passed, N failed".
set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/../.." || exit 1
mkdir -p "${BUILD:=build}/pretended" && out=$(cd "$BUILD/pretended" && pwd) || exit 1
read -r -a link <<<"${SOFTMETAL_LINK:-${LDLIBS:?or SOFTMETAL_LINK is missing: see make softmetal}}"
compile=("${CC:-gcc}" -g -gdwarf-4 -std=c99 -D_POSIX_C_SOURCE=200809L -DGPUSYNC_OBJC=1 -Wall -Wextra -Wpedantic -Werror)
if [ $# -eq 0 ]; then
    for file in examples/*.c; do grep -q '"softmetal.h"' "$file" || set -- "$@" "$(basename "$file" .c)"; done
fi
passed=0 failed=0 programs=()
for name in "$@"; do
    libraries=()
    [ "$name" != event_loop ] || libraries=(-luv)
    programs+=("$out/$name")
    "${compile[@]}" -Itests/softmetal -o "$out/$name" "examples/$name.c" tests/pretended/device.c "${link[@]}" \
        "${libraries[@]}" -lpthread || exit 1
    if tests/expect.pl "tests/expect/$name.txt" /dev/null 0 device >/dev/null; then
        echo "tests/expect/$name.txt asks for nothing"
        failed=$((failed + 1))
    fi
done
for form in device no-metal4 no-device no-times fast slow; do
    echo "--- $form"
    says=$(FORM=$form LOGS=$out/logs/$form tests/run.sh --examples "${programs[@]}")
    echo "$says"
    read -r ok _ no _ <<<"${says##*$'\n'}"
    skipped=$(sed -n 's/^\([0-9]*\) skipped, see above$/\1/p' <<<"$says") # where the form asks for that
    [[ "$ok $no" =~ ^[0-9]+\ [0-9]+$ ]] || ok=0 no=1 # run.sh has not come to its end
    passed=$((passed + ok + ${skipped:-0})) failed=$((failed + no))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
