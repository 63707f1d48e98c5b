#!/usr/bin/env bash
# forms.sh - builds the examples for a pretended GPU (device.c), and runs them on it in each of its forms
#
#   tests/pretended/forms.sh [NAME...]     default: all examples that do not include softmetal.h
#
# The output of each has to be as tests/expect/NAME.txt says, and an empty output must not do. Comes in the environment:
# CC, BUILD (absolute), SOFTMETAL_OBJS (relative to the root of the repository), SOFTMETAL_LINK (the archive, and what
# else a program links). Ends with one line "N passed, N failed".
set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/../.." || exit 1
out=${BUILD:?}/pretended
read -r -a objects <<<"${SOFTMETAL_OBJS:?}"
read -r -a link <<<"${SOFTMETAL_LINK:?}"
link=("${link[@]:1}") # without the archive: its objects are in the library
flags=(-g -gdwarf-4 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -DGPUSYNC_OBJC=1 -Itests/softmetal)
if [ $# -eq 0 ]; then
    for file in examples/*.c; do grep -q '"softmetal.h"' "$file" || set -- "$@" "$(basename "$file" .c)"; done
fi
mkdir -p "$out" || exit 1
echo '{ local: softmetal_*; };' >"$out/map"
"${CC:?}" "${flags[@]}" -std=gnu11 -fPIC -shared -Wl,--version-script="$out/map" -Wl,-soname,libpretended.so \
    -o "$out/libpretended.so" tests/pretended/device.c "${objects[@]}" "${link[@]}" || exit 1

passed=0 failed=0 programs=()
for name in "$@"; do
    libraries=()
    [ "$name" != event_loop ] || libraries=(-luv)
    programs+=("$out/$name")
    "$CC" "${flags[@]}" -std=c99 -D_POSIX_C_SOURCE=200809L -o "$out/$name" "examples/$name.c" \
        "$out/libpretended.so" -Wl,-rpath,"$out" "${link[@]}" "${libraries[@]}" || exit 1
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
