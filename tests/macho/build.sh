#!/usr/bin/env bash
# build.sh - what macho.sh and mutants.sh share: the runner, softmetal and the programs, built for one processor
#
# Sourced. Wants `set -u`; BUILD and SOFTMETAL_LDLIBS as the Makefile gives them. Sets root, here, out.
# shellcheck disable=SC2034 # some of it is for the script that sources it

[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${BUILD:-$root/build}
out=$build/macho
zig=${ZIG:-$build/zig/node_modules/.bin/zig}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
arm64=$build/arm64/root # made by tests/deps.sh macho
native=$(uname -m)
ulimit -c 0 # programs that end with abort are a part of it
export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$build/zig/cache}
export ZIG_LOCAL_CACHE_DIR=${ZIG_LOCAL_CACHE_DIR:-$build/zig/cache-local}

program_warnings=(-w)
archive=
runner_sources=("$here"/runner.c "$here"/darwin.c "$here"/objc.c "$here"/machine.S)
runner_flags=(-std=gnu11 -O2 -g -Wall -Wextra -fno-omit-frame-pointer -fPIC)
# Nothing of the runner's calls these two, so the linker would leave them out.
# shellcheck disable=SC2054 # the commas are the linker's
runner_libs=(-Wl,--no-as-needed -lcmocka -ljansson -Wl,--as-needed -lpthread -lm -ldl)

die() {
    echo "${0##*/}: $1" >&2
    exit 2
}

newer() { # FILE SOURCE...: FILE has to be made
    local file=$1 source
    shift
    [ -e "$file" ] || return 0
    for source in "$@"; do
        if [ "$source" -nt "$file" ]; then return 0; fi
    done
    return 1
}

# Of several processors the one of this machine is served with what it has; arm64 by qemu's user emulation.
check_arch() { # ARCH
    case $native-$1 in
    x86_64-x86_64 | x86_64-aarch64 | aarch64-aarch64) ;;
    *) die "a program of macOS for $1 cannot be run on this machine ($(uname -s), $native)" ;;
    esac
}

runner() { # ARCH: makes $out/ARCH/macho-run
    local dir=$out/$1
    mkdir -p "$dir"
    newer "$dir/macho-run" "${runner_sources[@]}" "$here"/darwin.h "$here"/build.sh || return 0
    echo "  macho-run for $1"
    rm -f "$dir/macho-run"
    if [ "$1" = "$native" ]; then runner_native "$dir"; else runner_qemu "$dir"; fi || die "the runner for $1 cannot be built"
}

runner_native() { # DIRECTORY
    # shellcheck disable=SC2086 # a list of options
    gcc "${runner_flags[@]}" -rdynamic -o "$1/macho-run" "${runner_sources[@]}" -Wl,--no-as-needed $SOFTMETAL_LDLIBS \
        "${runner_libs[@]}"
}

runner_qemu() { # DIRECTORY
    local gcc
    gcc=$(echo "$arm64"/usr/lib/gcc/aarch64-linux-gnu/*)
    clang --target=aarch64-linux-gnu "--sysroot=$arm64" -isystem "$gcc/include" "${runner_flags[@]}" -fuse-ld=lld -pie \
        -rdynamic -o "$1/macho-run.elf" "${runner_sources[@]}" -Wl,--no-as-needed -L"$gcc" -lBlocksRuntime -lgnustep-base \
        -lobjc "${runner_libs[@]}" -Wl,--allow-shlib-undefined || return 1
    # A program that starts itself again comes back here too: darwin.c's execl asks MACHO_RUN.
    printf '#!/bin/sh\nexport MACHO_RUN=%s\nexec qemu-aarch64 -cpu max -L %s %s "$@"\n' \
        "'$1/macho-run'" "'$arm64'" "'$1/macho-run.elf'" >"$1/macho-run.new"
    chmod +x "$1/macho-run.new"
    mv "$1/macho-run.new" "$1/macho-run"
}

# The options are those of tests/softmetal/build.mk for a Mac. ctype.h would have its functions look into tables of
# libSystem's.
softmetal() { # ARCH DIRECTORY SOURCES: makes DIRECTORY/libsoftmetal.a, and users/libsoftmetal.a in it
    local dir=$2/softmetal source objects=() for_users=() options
    newer "$2/libsoftmetal.a" "$3"/* "$here"/include/*/* "$here"/build.sh || return 0
    echo "  softmetal for $1"
    rm -rf "$dir" "$2"/libsoftmetal.a "$2"/users/libsoftmetal.a
    mkdir -p "$dir" "$2"/users
    for source in "$3"/softmetal*.[mS]; do
        objects+=("$dir/$(basename "$source").o")
        case $source in
        *.S) options=() ;;
        *) options=(-std=gnu11 -fblocks -fno-objc-arc -fno-objc-convert-messages-to-runtime-calls -UNDEBUG
            -isystem "$here/include" -D_DONT_USE_CTYPE_INLINE_ -Wall -Wextra -Wshadow -Wstrict-prototypes
            -Wmissing-prototypes -Wno-unused-parameter -Wno-deprecated-declarations -Werror) ;;
        esac
        # As the Makefile's archive for users: they keep the system's libdispatch.
        case $source in
        */softmetal_libdispatch.m) ;;
        *) for_users+=("${objects[-1]}") ;;
        esac
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        "$zig" cc -target "$1-macos" -O2 -g "${options[@]}" -c "$source" -o "${objects[-1]}" &
    done
    wait
    for source in "${objects[@]}"; do # Zig's compiler leaves an empty file behind
        [ -s "$source" ] || die "softmetal for $1 cannot be compiled"
    done
    "$zig" ar --format=darwin rcs "$2/users/libsoftmetal.a" "${for_users[@]}" &&
        "$zig" ar --format=darwin rcs "$2/libsoftmetal.a" "${objects[@]}" || die "softmetal for $1 cannot be built"
}

# Only these of Linux's headers, beside the ones of macOS that Zig brings.
headers() {
    local header
    mkdir -p "$out/include"
    for header in cmocka.h jansson.h jansson_config.h; do
        cp "$(find /usr/include /usr/local/include -name "$header" 2>/dev/null | head -n 1)" "$out/include/" ||
            die "no $header"
    done
}

# Zig defines NDEBUG for every -O but -O0, and drops what nothing refers to, which Apple's linker does when it is told to: test_bindings
# looks for such symbols. `archive`: where another libsoftmetal.a is. `inside`: the object of tests/compile/inside.c, where it
# has been compiled; else it is, with the test. As with make test, `inside` alone is optimised. Zig adds a sanitizer to what is not
# optimised, unless it is told not to.
program() { # ARCH TREE SOURCE TARGET STANDARD OPTION...: SOURCE is a path in TREE
    local arch=$1 tree=$2 source=$2/$3 target=$4 standard=$5 implementation=()
    shift 5
    if ! grep -q '^ *# *define *GPUSYNC_IMPLEMENTATION' "$source"; then
        case $source in
        */tests/*) implementation=("${inside:-$tree/tests/compile/inside.c}") ;;
        *) implementation=("$tree/tests/compile/implementation.c") ;;
        esac
    fi
    rm -f "$target"
    compile_program "$arch" "$tree" "$standard" -O0 -fno-sanitize=undefined "$@" \
        -Wl,--no-gc-sections -Wl,-undefined,dynamic_lookup "$source" \
        "${implementation[@]}" "${archive:-$out/$arch}/libsoftmetal.a" -o "$target"
}

compile_program() { # ARCH TREE STANDARD ARGUMENT...
    local arch=$1 tree=$2 standard=$3
    shift 3
    if [ "$arch" != "$native" ]; then set -- -DSLOW=20u "$@"; fi # qemu would take too long
    "$zig" cc -target "$arch-macos" -std="$standard" -O2 -UNDEBUG -g "${program_warnings[@]}" -D_XOPEN_SOURCE=700 \
        -D_DARWIN_C_SOURCE= -I"$tree" -I"$tree/tests" -I"$root/tests/softmetal" -I"$tree/examples" -isystem "$out/include" "$@"
}
