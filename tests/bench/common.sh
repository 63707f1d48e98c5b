# common.sh - what the scripts of this folder share; each of them sources it
#
# CC              default gcc
# BUILD           where to build, in bench/NAME there; default build
# SOFTMETAL_LINK  what links softmetal; the Makefile sets it
# shellcheck shell=bash

set -u
export LC_ALL=C
tool=$(basename "$0" .sh)
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cc=${CC:-gcc}
build=${BUILD:-$top/build}/bench/$tool
passed=0 failed=0

finish() { # the last line of every script
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

broken() { # TEXT: nothing more can be done
    echo "$tool: $1" >&2
    failed=$((failed + 1))
    finish
}

needs_valgrind() {
    [ "$(uname -s)" = Linux ] || broken "Linux only"
    command -v valgrind >/dev/null 2>&1 || broken "valgrind is missing (Debian: apt install valgrind)"
}

# compile HEADER-DIRECTORY OUTPUT SOURCE...: callgrind cannot read the debug information of every compiler.
compile() {
    local header=$1 output=$2
    shift 2
    # shellcheck disable=SC2086 # lists of words
    $cc -std=c11 -D_GNU_SOURCE -DGPUSYNC_OBJC=1 -O2 -Wall -Wextra -Wno-unused-function -Wno-unused-parameter \
        -I"$header" -I"$top/tests/softmetal" -I"$top/examples" -o "$output" "$@" \
        $SOFTMETAL_LINK -lpthread -lm || broken "$output does not build"
}

[ -n "${SOFTMETAL_LINK:-}" ] || broken "SOFTMETAL_LINK is empty: use the Makefile, which knows how to link softmetal"
rm -rf "$build"
mkdir -p "$build" && build=$(cd "$build" && pwd) || broken "cannot write $build"
printf '#define GPUSYNC_IMPLEMENTATION\n#include <gpusync.h>\n' >"$build/implementation.c"
