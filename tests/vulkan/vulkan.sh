#!/usr/bin/env bash
# vulkan.sh - gpusync on Metal over Vulkan: a device on which work takes time by itself
#
# Builds libmetal_vulkan.so, and with it stress.c, tests/test_portable.c, tests/beliefs, and the examples that need
# neither softmetal's panel nor a render pipeline. Runs all; without a sanitizer once more under Vulkan's validation
# layer, which has to be silent. A machine without a Vulkan device that is good enough fails: stress says the reason.
#
# `make test-vulkan` calls this, with CC, OBJC (clang), BUILD, SOFTMETAL_OBJS, SOFTMETAL_LINK; SANITIZE: flags.
# STRESS, SEED: of stress.c. EXAMPLES: these alone. RUN, JOBS, TIME_LIMIT: of run.sh.
# Ends with one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/../.." || exit 1
CC=${CC:-gcc} OBJC=${OBJC:-clang} SANITIZE=${SANITIZE:-} out=$BUILD/vulkan
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
passed=0 failed=0
export TIME_LIMIT=${TIME_LIMIT:-300}

count() { # of a part: the lines, which end with "N passed, N failed"
    local ok no
    cat "$1"
    read -r ok _ no _ <<<"$(tail -n 1 "$1")"
    [[ "$ok $no" =~ ^[0-9]+\ [0-9]+$ ]] || ok=0 no=1 # it has not come to its end
    passed=$((passed + ok)) failed=$((failed + no))
}

# ------------------------------------------------------------------------------------------------------------- build

for tool in glslangValidator "$OBJC"; do
    command -v "$tool" >/dev/null || { echo "vulkan.sh: no $tool" >&2; exit 1; }
done
rm -rf "$out"
mkdir -p "$out/examples" || exit 1
begin() { # COMMAND...: beside others
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    { "$@" || echo "$*" >>"$out/wrong"; } &
}
built() { # Have all that were begun ended well?
    wait
    if [ -e "$out/wrong" ]; then sed 's/^/vulkan.sh: this failed: /' "$out/wrong" >&2 && exit 1; fi
}

for kernel in step work; do
    glslangValidator --quiet -V --target-env vulkan1.2 "-D$kernel" --vn "vulkan_$kernel" -o "$out/$kernel.h" \
        tests/vulkan/kernels.comp || exit 1
done
# shellcheck disable=SC2016 # make's variable
objc_flags=$(env -u MAKEFLAGS make -s -f tests/softmetal/build.mk --eval 'flags:; @echo $(SOFTMETAL_CFLAGS)' flags) ||
    exit 1
warnings="-Wall -Wextra -Wshadow -Wno-unused-parameter -Werror"
includes="-I. -Itests -Iexamples"
c_flags="-g -gdwarf-4 $SANITIZE -DGPUSYNC_OBJC=1 $warnings $includes"
printf '#define GPUSYNC_IMPLEMENTATION\n#include "gpusync.h"\n' >"$out/implementation.c"
# shellcheck disable=SC2086 # lists of options, here and below
begin "$OBJC" $objc_flags -std=gnu11 -fno-objc-arc -g -O2 $warnings $SANITIZE "-I$out" -c tests/vulkan/vulkan_metal.m \
    -o "$out/vulkan_metal.o"
for source in "$out/implementation.c" tests/vulkan/stress.c tests/test_portable.c tests/beliefs/beliefs.c; do
    # shellcheck disable=SC2086
    begin $CC -O2 -std=c11 -D_GNU_SOURCE $c_flags -c "$source" -o "$out/$(basename "$source" .c).o"
done
# shellcheck disable=SC2046 # names
examples=${EXAMPLES:-$(basename -s .c $(grep -LE '"softmetal.h"|metal_refuse_next|MTLRender' examples/*.c))}
for name in $examples; do # shellcheck disable=SC2086
    begin $CC -O1 -std=c99 -D_POSIX_C_SOURCE=200809L $c_flags -c "examples/$name.c" -o "$out/examples/$name.o"
done
built

# Softmetal's runtime is in the library as well, and hides its functions: a program may not ask its panel.
libraries="${SOFTMETAL_LINK#* }"
echo '{ local: softmetal_*; };' >"$out/map"
# shellcheck disable=SC2086
"$OBJC" -shared $SANITIZE "-Wl,--version-script=$out/map" -Wl,-soname,libmetal_vulkan.so -o "$out/libmetal_vulkan.so" \
    "$out/vulkan_metal.o" $SOFTMETAL_OBJS $libraries -lvulkan || exit 1
for object in "$out"/{stress,test_portable,beliefs,examples/*}.o; do
    case $object in
    */event_loop.o) more=-luv ;;
    */stress.o | */test_portable.o) more="$out/implementation.o -lcmocka" ;;
    *) more= ;;
    esac
    # shellcheck disable=SC2086
    begin $CC $SANITIZE -o "${object%.o}" "$object" $more "$out/libmetal_vulkan.so" "-Wl,-rpath,$out" $libraries \
        -lpthread -lm
done
built

# --------------------------------------------------------------------------------------------------------------- run

# What is Mesa's, beside what is GNUstep's. And the compiler's checks of memory alone: lavapipe fills word by word with
# memcpy, which the sanitizer's own would make forty times as slow.
cat tests/softmetal/tsan.supp tests/vulkan/tsan.supp >"$out/tsan.supp"
export TSAN_OPTIONS="suppressions=$out/tsan.supp:history_size=5:second_deadlock_stack=1"
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:replace_intrin=0"

run() { # LOGS: the examples find a real device, and one without Metal 4
    mkdir -p "$out/$1"
    # shellcheck disable=SC2046,SC2086 # names
    FORM=no-metal4 LOGS=$out/$1 tests/run.sh "$out/stress" "$out/test_portable" --examples \
        $(printf "$out/examples/%s " $examples) >"$out/$1.txt" 2>&1
    count "$out/$1.txt"
}

# Two answers of tests/beliefs are others here, and gpusync allows for both: a status is set before an earlier handler
# has returned, and nothing ends work that hangs. What Metal 4 or a GPU that hangs would have to answer is not tried.
beliefs() {
    tests/limit.pl 300 "$out/beliefs" >"$out/beliefs.md" 2>"$out/beliefs.log"
    awk -F' *[|] *' '
        $2 == "slow handler" || $2 == "watchdog" { next }
        $4 == "held" { ok++ }
        $4 ~ /NOT held/ { no++; print "FAILED: beliefs, " $2 ": " $5 }
        / held, .* not tried$/ { over = 1 }
        END { if (!over) { no++; print "FAILED: beliefs has not come to its end" }
              print ok + 0 " passed, " no + 0 " failed" }' "$out/beliefs.md"
}

silent() { # Was the validation layer there, and had it nothing to say?
    local said
    if ! VK_LOADER_DEBUG=layer "$out/test_portable" 2>&1 | grep -q 'Insert instance layer "VK_LAYER_KHRONOS_val'; then
        echo "FAILED: the loader does not find the validation layer (Debian: vulkan-validationlayers)"
        echo "0 passed, 1 failed"
    elif said=$(grep -aE 'VUID-|UNASSIGNED-|Validation (Error|Warning)' "$out"/validated/*.log); then
        printf 'FAILED: the validation layer is not silent:\n%s\n' "$(head -n 20 <<<"$said")"
        echo "0 passed, 1 failed"
    else
        echo "1 passed, 0 failed"
    fi
}

run logs
if [ -z "$SANITIZE" ]; then
    echo "--- with Vulkan's validation layer"
    export VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation
    STRESS=$(awk "BEGIN { print ${STRESS:-1} / 4 }") run validated
    silent >"$out/silent.txt"
    count "$out/silent.txt"
    unset VK_INSTANCE_LAYERS
    echo "--- the questions of tests/beliefs"
    beliefs >"$out/beliefs.txt"
    count "$out/beliefs.txt"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
