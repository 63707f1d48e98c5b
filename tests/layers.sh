#!/usr/bin/env bash
# layers.sh - the layers of gpusync.h as a fact: the header is cut behind each, compiled, and the core is tested
#
#   tests/layers.sh [compile] [core] [link]      default: all
#
# compile: what is above the cut is gone, so a function that names one of a higher layer does not compile. gcc and clang,
#          C and C++. Public calls of higher layers are declared by the front, and not defined: a use is an error, too.
# core:    test programs are built with the core alone. A test that calls what is above it is counted apart; no other may
#          fail, and each program has to have as many that pass as its row below says.
# link:    what a program links that makes a command buffer, commits it, and waits: bytes, against the limit.
# LDLIBS, as `make softmetal` prints it, is what links with softmetal:
#   eval "$(make -s softmetal)" && tests/layers.sh
# Others: BUILD, OUT (where the results go), GCC GXX CLANG CLANGXX, LINK_LIMIT. Ends with one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-$PWD/build}
out=${OUT:-$build/layers}
gcc=${GCC:-gcc} gxx=${GXX:-g++} clang=${CLANG:-clang} clangxx=${CLANGXX:-clang++}
parts=${*:-compile core link}
link_limit=${LINK_LIMIT:-23800}
read -r -a link <<<"${LDLIBS:?run: eval \"\$(make -s softmetal)\"}"
passed=0 failed=0
rm -rf "$out"
mkdir -p "$out" || exit 1

result() { # NAME, and the status before
    if [ "$?" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED: %s\n' "$1"
        head -n 6 "$out/log"
    fi
}

cut_behind() { # LAYER: the header without what is above it
    awk -v above="   Layer $(($1 + 1))\\\\." '
        /^#else \/\* GPUSYNC_OBJC \*\/$/ { skip = 0; print "#ifdef __cplusplus\n}\n#endif"; tail = 1 }
        tail { print; next }
        skip { next }
        /^\/\* -+ >>[a-z0-9]+ --$/ { held = $0; next }
        held != "" && $0 ~ "^" above { skip = 1; held = ""; next }
        held != "" { print held; held = "" }
        { print }' gpusync.h
}

for layer in 0 1 2 3 4 5 6 7; do
    mkdir "$out/$layer"
    cut_behind "$layer" >"$out/$layer/gpusync.h"
done
lines=$(wc -l <"$out/0/gpusync.h")
for layer in 1 2 3 4 5 6 7; do
    more=$(wc -l <"$out/$layer/gpusync.h")
    [ "$more" -gt "$lines" ] 2>"$out/log"
    result "the cut behind layer $layer is not longer than the one before"
    lines=$more
done

flags=(-DGPUSYNC_IMPLEMENTATION -DGPUSYNC_OBJC=1 -D_GNU_SOURCE -Wall -Wextra -Wno-unused -Werror -c -o "$out/object.o")
case " $parts " in *' compile '*)
    for layer in 0 1 2 3 4 5 6; do
        for compiler in "$gcc -x c -std=c11" "$clang -x c -std=c11" "$gxx -x c++ -std=c++17" "$clangxx -x c++ -std=c++17"; do
            read -r -a command <<<"$compiler"
            "${command[@]}" "${flags[@]}" "$out/$layer/gpusync.h" >"$out/log" 2>&1
            result "layers 0 to $layer: $compiler"
            # A function of gpusync's that is not defined, but for the plain symbols at the end of the header
            ! nm "$out/object.o" 2>&1 | grep -E ' U .*gpusync' | grep -vE '_create_[0-9_]+$' >"$out/log"
            result "layers 0 to $layer name something above: $compiler"
        done
    done
    ;;
esac

# The rows: a program, and how many of its tests pass with the core alone, at least
rows='test_commit 14
test_wait 15
test_many 5
test_spin 15
test_fibers 2
test_failures 18'
above=88 # the exit status of a test that calls what is above the core
build_one() { # NAME: of tests/, with the core in place of the header
    "$gcc" -O1 -w -std=gnu11 -I"$out/3" -I. -Itests -Itests/softmetal -Iexamples -D_GNU_SOURCE -DGPUSYNC_OBJC=1 \
        -DCMOCKA_DISABLE_DEPRECATION_WARNINGS -c -o "$out/$1.o" "tests/$1.c"
}
core() {
    build_one kit && build_one from && build_one implementation || return
    ar rcs "$out/libkit.a" "$out/kit.o" "$out/from.o" "$out/implementation.o"
    "$gcc" "${flags[@]}" -x c gpusync.h && nm "$out/object.o" | awk '$2 == "T" { print $3 }' | sort >"$out/all"
    nm "$out/implementation.o" | awk '$2 == "T" { print $3 }' | sort >"$out/core"
    {
        printf '#include <%s.h>\n' stddef unistd
        # In the core there are no callbacks that the kit could run; and nothing is destroyed by a destroy of NULL.
        echo 'int gpusync_device_run_callbacks(void *d, size_t m, size_t *n) { if (n) *n = 0; return 0; }'
        comm -23 "$out/all" "$out/core" | grep '^gpusync_' | grep -v run_callbacks |
            sed "/destroy/s/.*/int &(void *o) { if (o) _exit($above); return 0; }/; t; s/.*/void &(void) { _exit($above); }/"
    } >"$out/above.c"
    "$gcc" -w -c -o "$out/above.o" "$out/above.c"
}
core_tests() { # PROGRAM: each test in a process of its own. Prints how many passed, and how many are above the core
    local good=0 over=0 bad=0 i status
    for ((i = 0; i < 128; i++)); do
        TESTS_FROM=$i TESTS_MOST=1 timeout -k 5 60 "$out/$1" >"$out/one" 2>&1
        status=$?
        grep -q 'Running 0 test' "$out/one" && break
        case $status in
        0) good=$((good + 1)) ;;
        "$above") over=$((over + 1)) ;;
        *) bad=$((bad + 1)) && cat "$out/one" >>"$out/log" ;;
        esac
    done
    echo "$good $over $bad"
}
case " $parts " in *' core '*)
    core >"$out/log" 2>&1
    result "the core does not compile"
    while read -r name least; do
        build_one "$name" >"$out/log" 2>&1 && "$gcc" -o "$out/$name" "$out/$name.o" "$out/libkit.a" "$out/above.o" \
            "${link[@]}" -lcmocka -lpthread -lm >"$out/log" 2>&1
        result "$name does not link with the core"
        read -r good over bad <<<"$(core_tests "$name")"
        echo "$name: $good passed, $over call what is above the core, $bad failed"
        [ "$bad" -eq 0 ]
        result "$name fails with the core"
        [ "$good" -ge "$least" ]
        result "$name: fewer than $least tests pass"
    done <<<"$rows"
    ;;
esac
plain() { # what links that commits and waits: the sum of the sizes of symbols with gpusync in their names
    cat >"$out/plain.c" <<'EOF'
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
int main(void)
{
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_ticket ticket;
    void *buffer;
    if (gpusync_device_create(NULL, &device) || gpusync_queue_create(device, NULL, &queue)) return 1;
    if (gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer)) return 1;
    if (gpusync_commit(queue, buffer, &ticket) || gpusync_wait(queue, ticket, GPUSYNC_FOREVER, NULL)) return 1;
    gpusync_queue_destroy(queue);
    gpusync_device_destroy(device);
    return 0;
}
EOF
    "$gcc" -std=gnu11 -Os -ffunction-sections -fdata-sections -DGPUSYNC_OBJC=1 -I. -o "$out/plain" "$out/plain.c" \
        -Wl,--gc-sections "${link[@]}" && "$out/plain" || return
    bytes=0
    while read -r _ size _ name; do
        case $name in *gpusync*) bytes=$((bytes + 16#$size)) ;; esac
    done < <(nm -S "$out/plain" | grep ' [0-9a-f]* [a-zA-Z] ')
    echo "commit and wait, linked: $bytes bytes of $link_limit"
    [ "$bytes" -gt 0 ] && [ "$bytes" -le "$link_limit" ]
}
case " $parts " in *' link '*)
    plain 2>"$out/log"
    result "a program that commits and waits links more than $link_limit bytes"
    ;;
esac
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
