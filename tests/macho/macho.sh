#!/usr/bin/env bash
# macho.sh - the tests and the examples, compiled for macOS and run on Linux
#
#   tests/macho/macho.sh [ARCH...]      x86_64, aarch64; default both
#
# README.md beside this file says how and what that proves. `make test-macho` calls this. What has been built stays
# until a source is newer. In the environment
#   BUILD, SOFTMETAL_LDLIBS   as the Makefile gives them
#   TESTS EXAMPLES     names of those to build and run; default all
#   MACHO_CFLAGS       more options for the programs
#   MACHO_SPURIOUS, MACHO_TRACE  for the runner
#   ZIG, JOBS
#
# Ends with exactly one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
# shellcheck source=tests/macho/build.sh
. "$(dirname "$0")/build.sh"
archs=${*:-x86_64 aarch64}
program_warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Wstrict-prototypes -Wno-nonnull
    -Wno-deprecated-declarations -Werror) # deprecated: ucontext, of fiber.h
names() { printf '%s\n' "$@" | sed 's,.*/,,; s/\.c$//'; }
read -r -d '' -a tests <<<"${TESTS-$(names "$root"/tests/test_*.c)}"
read -r -d '' -a wanted <<<"${EXAMPLES-$(names "$root"/examples/*.c)}"
examples=()
for name in ${wanted[@]+"${wanted[@]}"}; do
    if [ "$name" = event_loop ]; then # libuv would have to be compiled for macOS, with its kqueue
        echo 'left out, as there is no libuv of macOS here: examples/event_loop.c'
    else
        examples+=("$name")
    fi
done
users=() # built once more as users build theirs
for name in ${examples[@]+"${examples[@]}"}; do
    case $name in test_render_loop | overlap) users+=("$name") ;; esac
done
for arch in $archs; do check_arch "$arch"; done

# ---------------------------------------------------------------- building
# A program that does not compile is not there afterwards, and run.sh counts it as failed.
make_program() { # ARCH KIND NAME STANDARD
    local target=$out/$1/$2/$3 kind=${2#users/} locks=() archive='' inside=$out/$1/inside.o
    [ "$kind" = "$2" ] || archive=$out/$1/users
    [ "$kind" != tests ] || locks=(-include "$root/tests/locks.h")
    # shellcheck disable=SC2086 # a list of options
    program "$1" "$root" "$kind/$3.c" "$target" "$4" "${locks[@]}" ${MACHO_CFLAGS:-} >"$target.log" 2>&1 ||
        { echo "FAILED: $2/$3.c does not compile for $1:"; head -n 40 "$target.log" | sed 's/^/    | /'; }
}

inside() { # ARCH: the implementation of the tests that have none of their own
    local target=$out/$1/inside.o
    newer "$target" "$root"/gpusync.h "$root"/tests/*.h "$root"/tests/softmetal/*.h "$root"/examples/*.h \
        "$root"/tests/compile/inside.c "$here"/build.sh "$out/$1/flags" || return 0
    rm -f "$target"
    # shellcheck disable=SC2086 # a list of options
    compile_program "$1" "$root" c11 -include "$root/tests/locks.h" ${MACHO_CFLAGS:-} -c "$root/tests/compile/inside.c" \
        -o "$target" || die "the implementation for $1 cannot be compiled"
}

build() { # ARCH KIND STANDARD NAME...
    local arch=$1 kind=$2 standard=$3 name
    shift 3
    for name in "$@"; do
        newer "$out/$arch/$kind/$name" "$out/$arch/libsoftmetal.a" "$root/${kind#users/}/$name.c" "$root"/gpusync.h "$root"/tests/*.h \
            "$root"/tests/softmetal/*.h "$root"/tests/beliefs/*.h "$root"/examples/*.h "$root"/tests/compile/i*.c "$here"/build.sh \
            "$out/$arch/flags" || continue
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        make_program "$arch" "$kind" "$name" "$standard" &
    done
}

start=$SECONDS
headers
for arch in $archs; do
    mkdir -p "$out/$arch/tests/beliefs" "$out/$arch/examples" "$out/$arch/users/examples"
    echo "${MACHO_CFLAGS:-}" | cmp -s - "$out/$arch/flags" || echo "${MACHO_CFLAGS:-}" >"$out/$arch/flags"
    runner "$arch"
    softmetal "$arch" "$out/$arch" "$root/tests/softmetal"
    if [ ${#tests[@]} -gt 0 ]; then inside "$arch"; fi
    build "$arch" tests c11 ${tests[@]+"${tests[@]}"}
    build "$arch" examples c99 ${examples[@]+"${examples[@]}"}
    build "$arch" users/examples c99 ${users[@]+"${users[@]}"}
done
for arch in $archs; do
    case " ${tests[*]-} " in *" test_beliefs "*) build "$arch" tests/beliefs c11 beliefs ;; esac
done
wait
echo "built for $archs in $((SECONDS - start)) s"

# ---------------------------------------------------------------- running
passed=0 failed=0
for arch in $archs; do
    start=$SECONDS
    dir=$out/$arch programs=()
    for name in ${tests[@]+"${tests[@]}"}; do programs+=("$dir/tests/$name"); done
    programs+=(--examples)
    [ ! -e "$dir/tests/beliefs/beliefs" ] || programs+=("$dir/tests/beliefs/beliefs") # as make test-beliefs runs it
    for name in ${examples[@]+"${examples[@]}"}; do programs+=("$dir/examples/$name"); done
    for name in ${users[@]+"${users[@]}"}; do programs+=("$dir/users/examples/$name"); done
    # Under qemu, four at a time beside other work on two cores, programs have run into a limit of 300 s.
    RUN="$dir/macho-run" LOGS=$dir/logs TIME_LIMIT=${TIME_LIMIT:-1500} "$root/tests/run.sh" "${programs[@]}" |
        tee "$dir/run.log" | grep -vE '^[0-9]+ passed, [0-9]+ failed$'
    read -r ok _ no _ < <(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$dir/run.log" | tail -n 1) || ok=0 no=1
    echo "$arch: $ok passed, $no failed  $((SECONDS - start)) s"
    passed=$((passed + ok)) failed=$((failed + no))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
