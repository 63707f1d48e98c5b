#!/usr/bin/env bash
# compile.sh - every way in which people include gpusync.h
#
#   tests/compile.sh [PART...]     parts: matrix ways symbols stubs strict objc copies macho; default: all
#
# The programs of tests/compile/ are compiled with warnings as errors, linked and, where this machine can, run.
# `make test-compile` calls this; what is needed to link with softmetal comes in the environment:
#   SOFTMETAL_LINK   libraries and options           SOFTMETAL_FLAGS  compiler options (-D...)
# Others: OUT (where the results go), GCC GXX CLANG CLANGXX, ZIG, JOBS.
# Ends with one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd)
src=$root/tests/compile
build=${BUILD:-$root/build}
out=${OUT:-$build/compile}
gcc=${GCC:-gcc} gxx=${GXX:-g++} clang=${CLANG:-clang} clangxx=${CLANGXX:-clang++}
zig=${ZIG:-$build/zig/node_modules/.bin/zig}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
read -r -a metal <<<"-DGPUSYNC_OBJC=1 -D_GNU_SOURCE ${SOFTMETAL_FLAGS:-}"
read -r -a link <<<"${SOFTMETAL_LINK:-}"
warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Wno-nonnull -Werror)
c_warnings=("${warnings[@]}" -Wstrict-prototypes)
export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$build/zig/cache}
export ZIG_LOCAL_CACHE_DIR=${ZIG_LOCAL_CACHE_DIR:-$build/zig/cache-local}

rm -rf "$out"
mkdir -p "$out"
number=0

# check NAME COMMAND...: runs it in the background, with a directory of its own as $dir; success is a pass
check() {
    local name=$1
    shift
    number=$((number + 1))
    local dir=$out/$number
    mkdir "$dir"
    echo "$name" >"$dir/name"
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    ("$@" >"$dir/log" 2>&1 </dev/null && echo pass >"$dir/result" || echo fail >"$dir/result") &
}

run() { timeout -k 5 60 "$@"; }
is() { # LANGUAGE FILE... -> the files, forced to be of that language
    local language=$1 file
    shift
    for file in "$@"; do printf '%s\n' -x "$language" "$file"; done
}

# ---------------------------------------------------------------- matrix
# build_run LANGUAGE COMPILER STANDARD OPTIMISE METAL SOURCES...: each file compiled on its own, linked, run
build_run() {
    local language=$1 compiler=$2 standard=$3 optimise=$4 objc=$5 file objects=()
    local flags=(-std="$standard" "$optimise" -I"$root")
    shift 5
    if [ "$language" = c ]; then flags+=("${c_warnings[@]}"); else flags+=("${warnings[@]}"); fi
    if [ "$objc" = 1 ]; then flags+=("${metal[@]}"); else flags+=(-DGPUSYNC_OBJC=0); fi
    for file in "$@"; do
        "$compiler" "${flags[@]}" -x "$language" -c "$src/$file" -o "$dir/$file.o" || return 1
        objects+=("$dir/$file.o")
    done
    if [ "$objc" = 1 ]; then
        "$compiler" "${objects[@]}" "${link[@]}" -o "$dir/program" || return 1
    else
        "$compiler" "${objects[@]}" -o "$dir/program" || return 1
    fi
    run "$dir/program"
}

standards_of() { # COMPILER LANGUAGE STANDARDS -> those it knows
    local standard
    for standard in $3; do
        if echo 'int main(void) { return 0; }' | "$1" -x "$2" -std="$standard" -fsyntax-only - 2>/dev/null; then
            echo "$standard"
        else
            echo "compile.sh: $1 does not know -std=$standard" >&2
        fi
    done
}

matrix() {
    local compiler standard optimise language standards
    for compiler in "$gcc" "$clang" "$gxx" "$clangxx"; do
        case $compiler in
        "$gcc" | "$clang") language=c standards='c99 c11 c17 c2x' ;;
        *) language=c++ standards='c++11 c++14 c++17 c++20 c++2b' ;;
        esac
        for standard in $(standards_of "$compiler" $language "$standards"); do
            for optimise in -O0 -O2 -Os; do
                # What a compiler makes of optimised code does not depend on the standard: the first and the last will do.
                case $optimise$standard in -O0* | -Os*99 | -Os*17 | -O2c99 | -O2c++11 | -O2*2[xb]) ;; *) continue ;; esac
                check "$compiler $standard $optimise, Metal: two files and an implementation" build_run \
                    $language "$compiler" "$standard" "$optimise" 1 program.c second.c implementation.c
            done
            check "$compiler $standard -O0, no Metal: two files and an implementation" build_run \
                $language "$compiler" "$standard" -O0 0 program.c second.c implementation.c
            check "$compiler $standard -O2, no Metal: every call" build_run \
                $language "$compiler" "$standard" -O2 0 stubs.c implementation.c
        done
    done
}

# ---------------------------------------------------------------- ways
# one HOW LANGUAGE COMPILER STANDARD METAL
one() {
    local how=$1 language=$2 compiler=$3 standard=$4 objc=$5
    local flags=(-std="$standard" -O1 "${warnings[@]}" -I"$root" -DHOW="$how") libraries=() second=("$src/second.c")
    if [ "$objc" = 1 ]; then
        flags+=("${metal[@]}")
        libraries=("${link[@]}")
    else
        flags+=(-DGPUSYNC_OBJC=0)
    fi
    if [ "$how" = 2 ]; then second=(); fi
    mapfile -t files < <(is "$language" "$src/program.c" "${second[@]}")
    "$compiler" "${flags[@]}" "${files[@]}" -x none "${libraries[@]}" -o "$dir/program" || return 1
    run "$dir/program"
}

own_assert() { # no trace of the C library's assert
    one 3 c "$gcc" c99 1 || return 1
    if nm -u "$dir/program" | grep -i '__assert'; then return 1; fi
}

mixed() { # COMPILER-OF-PROGRAM COMPILER-OF-IMPLEMENTATION
    local flags=(-O0 "${warnings[@]}" "${metal[@]}" -I"$root")
    local name language=c implementation=c
    case $1 in *++*) language=c++ ;; esac
    case $2 in *++*) implementation=c++ ;; esac
    for name in program second; do
        "$1" "${flags[@]}" -x $language -c "$src/$name.c" -o "$dir/$name.o" || return 1
    done
    "$2" "${flags[@]}" -x $implementation -c "$src/implementation.c" -o "$dir/implementation.o" || return 1
    "$gxx" "$dir"/*.o "${link[@]}" -o "$dir/program" || return 1
    run "$dir/program"
}

two_private_copies() { # GPUSYNC_STATIC in two files of a program, and the shared implementation besides
    "$gcc" -O0 "${warnings[@]}" "${metal[@]}" -I"$root" -DHOW=2 -c "$src/program.c" -o "$dir/1.o" &&
        "$gcc" -O0 "${warnings[@]}" "${metal[@]}" -I"$root" -DHOW=2 -Dmain=other_main -c "$src/program.c" \
            -o "$dir/2.o" &&
        "$gcc" -O0 "${warnings[@]}" "${metal[@]}" -I"$root" -c "$src/implementation.c" -o "$dir/3.o" &&
        "$gcc" "$dir"/[123].o "${link[@]}" -o "$dir/program" && run "$dir/program"
}

ways() {
    local objc language compiler standard
    for objc in 1 0; do
        for compiler in "$gcc" "$clang" "$gxx" "$clangxx"; do
            case $compiler in
            "$gcc" | "$clang") language=c standard=c99 ;;
            *) language=c++ standard=c++11 ;;
            esac
            check "$compiler $standard, OBJC=$objc: implementation after a plain include" \
                one 1 $language "$compiler" $standard $objc
            check "$compiler $standard, OBJC=$objc: GPUSYNC_STATIC" one 2 $language "$compiler" $standard $objc
        done
    done
    check "GPUSYNC_ASSERT of our own" own_assert
    check "GPUSYNC_STATIC in two files next to a shared implementation" two_private_copies
    check "C program, C++ implementation" mixed "$gcc" "$gxx"
    check "C++ program, C implementation" mixed "$gxx" "$gcc"
    check "gcc program, clang implementation" mixed "$gcc" "$clang"
    check "clang program, gcc implementation" mixed "$clang" "$gcc"
}

# ---------------------------------------------------------------- symbols
# Names of the functions that the public part declares; $1: 0 or 1 for GPUSYNC_OBJC
declared() {
    echo '#include "gpusync.h"' | "$clang" -std=c99 -DGPUSYNC_OBJC="$1" -I"$root" -x c -Xclang -ast-dump -fsyntax-only \
        -fno-color-diagnostics - | grep -v ' static inline$' | sed -n "s/^.-FunctionDecl [^']* \(gpusync_[A-Za-z0-9_]*\) '.*/\1/p" | sort -u
}

# Without the version that some names end with.
exported() { nm -g --defined-only "$1" | awk 'NF == 3 { print $3 }' | unversioned; }
version=$(sed -n 's/^#define GPUSYNC_VERSION_M[AI][JN]OR *//p' "$root/gpusync.h" | paste -s -d_ -)
unversioned() { sed "s/^\(.*gpusync_.*\)_$version\$/\1/" | sort -u; }

# What bindings call by its name: three calls, which have a symbol with the version besides, and those that are inline in C.
# stdin: the names that nm tells
for_bindings() {
    local name names
    names=$(cat)
    for name in gpusync_{device_create,queue_create,command_buffer}{,_"$version"} \
        gpusync_{is_idle,is_done,in_flight,at_ticket,at_value}; do
        grep -qx "$name" <<<"$names" || { echo "there is no symbol $name"; return 1; }
    done
}

symbols_of() { # COMPILER LANGUAGE OPTIMISE METAL: exactly the declared functions
    "$1" "$3" -I"$root" -D_GNU_SOURCE -DGPUSYNC_OBJC="$4" -x "$2" -c "$src/implementation.c" -o "$dir/i.o" || return 1
    exported "$dir/i.o" >"$dir/exported"
    nm -g --defined-only "$dir/i.o" | awk 'NF == 3 { print $3 }' | for_bindings || return 1
    declared "$4" >"$dir/declared"
    [ "$(wc -l <"$dir/declared")" -gt 20 ] || { echo "found too few declarations"; return 1; }
    if grep -v '^gpusync_' "$dir/exported"; then
        echo "^ exported, but does not begin with gpusync_"
        return 1
    fi
    if comm -13 "$dir/exported" "$dir/declared" | grep .; then
        echo "^ declared, but not exported"
        return 1
    fi
    if comm -23 "$dir/exported" "$dir/declared" | grep -v '^gpusync__'; then
        echo "^ exported, but not declared"
        return 1
    fi
}

symbols_static() { # COMPILER LANGUAGE OPTIMISE
    "$1" "$3" -I"$root" "${metal[@]}" -DHOW=2 -x "$2" -c "$src/program.c" -o "$dir/s.o" || return 1
    exported "$dir/s.o" >"$dir/exported"
    echo main | diff - "$dir/exported"
}

symbols_user() { # a file that only uses gpusync defines nothing of it
    "$1" -O0 -I"$root" "${metal[@]}" -x "$2" -c "$src/second.c" -o "$dir/u.o" || return 1
    exported "$dir/u.o" >"$dir/exported"
    printf 'second_is_done\nsecond_is_idle\nsecond_poll\n' | diff - "$dir/exported"
}

symbols_api() { # GPUSYNC_API as for a shared library: exactly the declared functions are visible
    "$1" -O2 -fPIC -shared -fvisibility=hidden -I"$root" "${metal[@]}" \
        '-DGPUSYNC_API=__attribute__((visibility("default")))' -x "$2" "$src/implementation.c" -x none \
        -Wl,--unresolved-symbols=ignore-all -o "$dir/lib.so" || return 1
    nm -D -g --defined-only "$dir/lib.so" | awk 'NF == 3 && $3 !~ /^_/ { print $3 }' >"$dir/names"
    for_bindings <"$dir/names" || return 1
    unversioned <"$dir/names" >"$dir/exported"
    declared 1 | diff - "$dir/exported"
}

symbols() {
    local optimise
    for optimise in -O0 -O2; do
        check "exported symbols, gcc $optimise" symbols_of "$gcc" c $optimise 1
        check "exported symbols, clang $optimise" symbols_of "$clang" c $optimise 1
        check "exported symbols, g++ $optimise" symbols_of "$gxx" c++ $optimise 1
        check "exported symbols, clang++ $optimise" symbols_of "$clangxx" c++ $optimise 1
        check "exported symbols without Metal, gcc $optimise" symbols_of "$gcc" c $optimise 0
        check "exported symbols without Metal, g++ $optimise" symbols_of "$gxx" c++ $optimise 0
        check "GPUSYNC_STATIC exports nothing, gcc $optimise" symbols_static "$gcc" c $optimise
        check "GPUSYNC_STATIC exports nothing, clang++ $optimise" symbols_static "$clangxx" c++ $optimise
    done
    check "users define no symbol, gcc" symbols_user "$gcc" c
    check "users define no symbol, clang" symbols_user "$clang" c
    check "GPUSYNC_API of a shared library, gcc" symbols_api "$gcc" c
    check "GPUSYNC_API of a shared library, clang" symbols_api "$clang" c
    check "GPUSYNC_API of a shared library, g++" symbols_api "$gxx" c++
    check "GPUSYNC_API of a shared library, clang++" symbols_api "$clangxx" c++
}

# ---------------------------------------------------------------- stubs
# windows LANGUAGE STANDARD FILES...: compiled; together they lack nothing but what C's library has there. Not linked: for
# that Zig would first compile that library, for more than a minute.
windows() {
    local language=$1 standard=$2 file driver=cc flags=("${c_warnings[@]}")
    shift 2
    if [ "$language" = c++ ]; then driver=c++ flags=("${warnings[@]}"); fi
    for file in "$@"; do
        "$zig" $driver -target x86_64-windows-gnu -std="$standard" -O2 "${flags[@]}" -I"$root" -x "$language" \
            -c "$src/$file" -o "$dir/$file.o" && magic "$dir/$file.o" 6486 || return 1
    done
    nm "$dir"/*.o | sed -n 's/^[0-9a-f]* [A-TV-Z] //p' | sort -u >"$dir/defined"
    grep -qx main "$dir/defined" || { echo "no main"; return 1; }
    if nm "$dir"/*.o | sed -n 's/^ *U //p' | sort -u | comm -23 - "$dir/defined" |
        grep -vxE '__main|__imp___acrt_iob_func|fprintf|memchr|puts|strcmp'; then
        echo "^ not defined"
        return 1
    fi
}

stubs() {
    check "Windows: stubs" windows c c99 stubs.c implementation.c
    check "Windows: a program of two files" windows c c99 program.c second.c implementation.c
    check "Windows: C++" windows c++ c++17 stubs.c implementation.c
}

# ---------------------------------------------------------------- strict
# -Weverything, but for what is so on purpose: structs are laid out by hand; C++98 lacked long long and more; names have
# two underscores, which C++ keeps for itself; NULL is C's. In a user's file nothing else. In the implementation:
#   bad-function-cast           the clock's uint64_t becomes a double
#   cast-function-type-strict   objc_msgSend is called as what each method is
#   switch-default              switches over enumerators have a case for each, so that a new one is noticed
#   unsafe-buffer-usage         C has pointers
strict_user=(-Weverything -Wno-unknown-warning-option -Wno-padded)
strict_user_cxx=(-Wno-c++98-compat-pedantic -Wno-reserved-identifier -Wno-reserved-macro-identifier
    -Wno-zero-as-null-pointer-constant)
strict_body=(-Wno-bad-function-cast -Wno-cast-function-type-strict -Wno-switch-default -Wno-unsafe-buffer-usage
    -Wno-unsafe-buffer-usage-in-libc-call)

everything() { # LANGUAGE STANDARD FILE COMPILER...
    local language=$1 standard=$2 file=$3 flags=("${strict_user[@]}")
    shift 3
    if [ "$language" = c++ ]; then flags+=("${strict_user_cxx[@]}"); fi
    if [ "$file" = implementation.c ]; then flags+=("${strict_body[@]}"); fi
    "$@" "${flags[@]}" -Werror -x "$language" -std="$standard" -I"$root" -c "$src/$file" -o "$dir/e.o"
}

old_style() { # STANDARD FILE OPTION...: g++, which has no -Weverything. clang's has it
    local standard=$1 file=$2
    shift 2
    "$gxx" -std="$standard" "${warnings[@]}" -Wold-style-cast -I"$root" "$@" -x c++ -c "$src/$file" -o "$dir/o.o"
}

strict() {
    local standard language file compiler
    for file in strict.c implementation.c; do
        for standard in $(standards_of "$clang" c 'c99 c11 c17 c2x') $(standards_of "$clang" c++ 'c++11 c++14 c++17 c++20 c++2b'); do
            case $standard in *++*) language=c++ compiler=$clangxx ;; *) language=c compiler=$clang ;; esac
            check "$compiler $standard -Weverything: $file" everything $language "$standard" $file "$compiler" "${metal[@]}"
            check "$compiler $standard -Weverything, no Metal: $file" everything $language "$standard" $file "$compiler" \
                -DGPUSYNC_OBJC=0
        done
        for standard in $(standards_of "$gxx" c++ 'c++11 c++14 c++17 c++20 c++2b'); do
            check "$gxx $standard -Wold-style-cast: $file" old_style "$standard" $file "${metal[@]}"
            check "$gxx $standard -Wold-style-cast, no Metal: $file" old_style "$standard" $file -DGPUSYNC_OBJC=0
        done
        check "aarch64-macos c99 -Weverything: $file" everything c c99 $file "$zig" cc -target aarch64-macos -UNDEBUG
        check "aarch64-macos c++11 -Weverything: $file" everything c++ c++11 $file "$zig" c++ -target aarch64-macos -UNDEBUG
    done
}

# ---------------------------------------------------------------- objc
# objective LANGUAGE FILE COMPILER-OPTION...: compile only
objective() {
    local language=$1 file=$2
    shift 2
    "$clang" -x "$language" "${warnings[@]}" "${metal[@]}" -I"$root" -c "$src/$file" -o "$dir/o.o" "$@"
}

objc() {
    local arc language file
    local new=(-fobjc-runtime=gnustep-2.0)
    for language in objective-c objective-c++; do
        for file in objc.m implementation.c program.c; do
            for arc in -fobjc-arc -fno-objc-arc; do
                check "$language $arc: $file" objective $language $file "${new[@]}" $arc -fblocks
            done
        done
    done
    check "objective-c -fobjc-arc: GPUSYNC_STATIC" objective objective-c program.c "${new[@]}" -fobjc-arc -DHOW=2
}

# ---------------------------------------------------------------- macho
magic() { # FILE HEX
    local have
    have=$(head -c $((${#2} / 2)) "$1" | od -An -tx1 | tr -d ' \n')
    [ "$have" = "$2" ] || { echo "$1 begins with $have, not $2"; return 1; }
}

# macho TARGET LANGUAGE STANDARD FILES... -- OPTIONS...: compiled and linked, Metal's symbols left open. Zig defines NDEBUG
# for every -O but -O0: the assertions would not be compiled. C++ is linked as C is: nothing here asks for its library, which
# Zig would first compile for macOS, for more than a minute.
macho() {
    local target=$1 language=$2 standard=$3 files=() file objects=() driver=cc
    shift 3
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        files+=("$1")
        shift
    done
    [ $# -gt 0 ] && shift
    case $language in *++) driver=c++ ;; esac
    for file in "${files[@]}"; do
        objects+=("$dir/${file##*/}.o")
        "$zig" $driver -target "$target" -std="$standard" -O1 -UNDEBUG -I"$root" "$@" -x "$language" -c "$file" \
            -o "$dir/${file##*/}.o" || return 1
    done
    "$zig" cc -target "$target" -O1 "${objects[@]}" -Wl,-undefined,dynamic_lookup -o "$dir/program" || return 1
    magic "$dir/program" cffaedfe
}

# Apple's other systems, compiled only: Zig knows the targets and has no libSystem to link with, but for Catalyst. Nor does
# it look for C's headers there; those that it has for macOS are Darwin's, and ask TargetConditionals.h which system it is.
# The number is that of the platform, which the object has to name. watchOS has no Metal.
apple_targets='aarch64-ios.12.0=2 aarch64-ios.14.0-simulator=7 x86_64-ios.12.0-simulator=7
    aarch64-maccatalyst=6 x86_64-maccatalyst=6
    aarch64-tvos.12.0=3 aarch64-tvos.14.0-simulator=8 aarch64-visionos.1.0=11 aarch64-visionos.1.0-simulator=12'

platform() { # OBJECT NUMBER: has the load command of 24 bytes that names this platform
    od -An -v -tx4 -w4 -N 4096 "$1" | tr -d ' \n' | grep -q "0000003200000018$(printf %08x "$2")" ||
        { echo "${1##*/} is not for platform $2"; return 1; }
}

# apple TARGET=PLATFORM LANGUAGE STANDARD FILES... -- OPTIONS...
apple() {
    local target=${1%=*} platform=${1#*=} language=$2 standard=$3 files=() file driver=cc
    shift 3
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        files+=("$1")
        shift
    done
    [ $# -gt 0 ] && shift
    case $language in *++) driver=c++ ;; esac
    for file in "${files[@]}"; do
        "$zig" $driver -target "$target" -isystem "$darwin_headers" -std="$standard" -O0 -UNDEBUG -I"$root" \
            "${warnings[@]}" "$@" -x "$language" -c "$src/$file" -o "$dir/$file.o" && platform "$dir/$file.o" "$platform" ||
            return 1
    done
}

apple_systems() {
    local target name files='program.c second.c implementation.c'
    darwin_headers=$("$zig" env | sed -n 's/^[ .]*"*lib_dir[ ":=]*"\(.*\)".*$/\1/p')
    darwin_headers=$darwin_headers/libc/include/any-darwin-any
    if [ ! -e "$darwin_headers/TargetConditionals.h" ]; then check "Zig has Darwin's headers" ls "$darwin_headers"; fi
    for target in $apple_targets; do
        name=${target%=*}
        # shellcheck disable=SC2086 # words
        check "$name: C99" apple "$target" c c99 $files -- -Wstrict-prototypes
        # shellcheck disable=SC2086
        check "$name: Objective-C++, ARC" apple "$target" objective-c++ c++17 objc.m implementation.c -- -fobjc-arc
        # What a language makes of the header does not depend on which of Apple's systems it is: the header never asks.
        [ "$name" = aarch64-ios.12.0 ] || continue
        # shellcheck disable=SC2086
        check "$name: C++11" apple "$target" c++ c++11 $files --
        check "$name: GPUSYNC_STATIC" apple "$target" c c11 program.c -- -DHOW=2
        check "$name: Objective-C, ARC" apple "$target" objective-c c11 objc.m implementation.c -- -fobjc-arc
        check "$name: Objective-C, no ARC" apple "$target" objective-c c11 objc.m -- -fno-objc-arc
    done
    for target in aarch64-maccatalyst x86_64-maccatalyst; do
        check "$target: linked" macho $target c c99 "$src/program.c" "$src/second.c" "$src/implementation.c" --
    done
}

# stand_in TARGET LANGUAGE STANDARD FILE OPTION...: compiled only, with compile/apple in place of headers that Zig lacks
stand_in() {
    local target=$1 language=$2 standard=$3 file=$4
    shift 4
    "$zig" cc -target "$target" -std="$standard" -O1 -UNDEBUG -isystem "$src/apple" -I"$root" -I"$root/examples" "$@" \
        -x "$language" -c "$root/examples/$file" -o "$dir/$file.o"
}

macho_part() {
    local target file files cmocka
    apple_systems
    for file in /usr/include /usr/local/include; do
        if [ -e "$file/cmocka.h" ]; then cmocka=$file; fi
    done
    mkdir -p "$out/include"
    cp "${cmocka:-/usr/include}/cmocka.h" "$out/include/"
    cp -r "${cmocka:-/usr/include}"/uv.h "${cmocka:-/usr/include}"/uv "$out/include/" # has the parts for macOS too
    for target in aarch64-macos x86_64-macos; do
        check "$target: program, C99" macho $target c c99 "$src/program.c" "$src/second.c" "$src/implementation.c" \
            -- "${c_warnings[@]}"
        check "$target: program, C++17" macho $target c++ c++17 "$src/program.c" "$src/second.c" \
            "$src/implementation.c" -- "${warnings[@]}"
        check "$target: program, C23" macho $target c c23 "$src/program.c" "$src/second.c" "$src/implementation.c" \
            -- "${c_warnings[@]}"
        check "$target: program, C++23" macho $target c++ c++23 "$src/program.c" "$src/second.c" \
            "$src/implementation.c" -- "${warnings[@]}"
        check "$target: GPUSYNC_STATIC" macho $target c c99 "$src/program.c" -- "${c_warnings[@]}" -DHOW=2
        check "$target: after Apple's own Objective-C headers" macho $target c c99 "$src/program.c" "$src/second.c" \
            "$src/implementation.c" -- "${c_warnings[@]}" -include objc/message.h -include objc/runtime.h
        check "$target: examples/signposts.c with os_signpost, against stand-ins" stand_in $target c c99 signposts.c \
            "${c_warnings[@]}"
        check "$target: examples/render_loop.m, against stand-ins" stand_in $target objective-c c11 render_loop.m \
            "${warnings[@]}" -fobjc-arc
        check "$target: examples/ios_background.c as an app, against stand-ins" stand_in $target objective-c c11 \
            ios_background.c "${warnings[@]}" -fobjc-arc
        # What test-macho does not compile, with the same warnings
        [ $target = aarch64-macos ] || continue
        check "$target: examples/event_loop.c" macho $target c c99 "$root/examples/event_loop.c" -- "${c_warnings[@]}" \
            -isystem "$out/include"
        for file in "$root"/tests/known_red/*.c; do
            [ -e "$file" ] || continue
            check "$target: tests/known_red/${file##*/}" macho $target c c11 "$file" -- "${c_warnings[@]}" \
                -D_XOPEN_SOURCE=700 -D_DARWIN_C_SOURCE= -Wno-deprecated-declarations -isystem "$out/include" \
                -I"$root/tests" -I"$root/tests/softmetal"
        done
        read -r -a files < <(sed -n 's/^bench_device := //p' "$root/Makefile")
        files=("${files[@]/#/$root/tests/bench/}")
        check "$target: make bench-device" macho $target c c11 "${files[@]/%/.c}" "$src/implementation.c" -- \
            "${c_warnings[@]}" -D_XOPEN_SOURCE=700 -D_DARWIN_C_SOURCE= -isystem "$out/include"
    done
}

# ---------------------------------------------------------------- copies
# A program with gpusync and a library with its own, of another version (0.99) or of the same.
side() { # NAME HEADER-DIRECTORY OPTION...: $dir/NAME.o
    local name=$1 header=$2
    shift 2
    "${compile[@]}" "${warnings[@]}" -I"$header" "$@" -x "$language" -c "$src/copies.c" -o "$dir/$name.o"
}

copies_of() { # VERSION LIBRARY PROGRAM: the objects of both sides, and library.a; options are words
    local library program header=$root
    read -r -a library <<<"$2"
    read -r -a program <<<"$3"
    if [ "$1" = other ]; then
        header=$dir/other
        mkdir "$header" || return 1
        sed 's/^#define GPUSYNC_VERSION_MINOR .*/#define GPUSYNC_VERSION_MINOR 99/' "$root/gpusync.h" >"$header/gpusync.h"
        ! cmp -s "$root/gpusync.h" "$header/gpusync.h" || return 1
    fi
    side library "$header" -DLIBRARY=1 "${library[@]}" && side program "$root" -DLIBRARY=0 "${program[@]}" || return 1
    [ "$2" != -DIMPLEMENTS=0 ] || "${compile[@]}" "${warnings[@]}" -I"$header" -x "$language" \
        -c "$src/implementation.c" -o "$dir/implementation.o"
}

linked() { "${compile[@]}" "$@" "${libraries[@]}" -o "$dir/program"; }

# apart COMPILER LANGUAGE VERSION LIBRARY PROGRAM: both link, run, and each has its own version
apart() {
    local language=$2 compile libraries=("${link[@]}")
    compile=("$1" -O0 "${metal[@]}")
    copies_of "$3" "$4" "$5" && linked "$dir/program.o" "$dir/library.o" && run "$dir/program"
}

# An archive, as libraries come: the linker takes the implementation out of it only where the program needs it.
archive() { "${ar[@]}" rcs "$dir/library.a" "$@"; }

# told WANT COMMAND...: it has to fail, with that in what it says
told() {
    local want=$1
    shift
    if "$@" >"$dir/told" 2>&1; then
        echo "this links, and should not: $*"
        return 1
    fi
    grep -q -e "$want" "$dir/told" || { echo "does not say '$want':"; cat "$dir/told"; return 1; }
}

clash() { # COMPILER LANGUAGE: an archive with an implementation of another version
    local language=$2 compile libraries=("${link[@]}") ar=(ar)
    compile=("$1" -O0 "${metal[@]}")
    copies_of other -DIMPLEMENTS=0 -DIMPLEMENTS=1 && archive "$dir/library.o" "$dir/implementation.o" || return 1
    told 'multiple definition of .gpusync_commit' linked "$dir/program.o" "$dir/library.a"
}

lacks() { # COMPILER LANGUAGE: a library that takes the program's implementation, but is of another version
    local language=$2 compile libraries=("${link[@]}") ar=(ar)
    compile=("$1" -O0 "${metal[@]}")
    copies_of other -DIMPLEMENTS=0 -DIMPLEMENTS=1 && archive "$dir/library.o" || return 1
    told 'undefined reference to .gpusync_device_create_0_99' linked "$dir/program.o" "$dir/library.a"
}

shared() { # COMPILER LANGUAGE: the same version twice: the program's implementation serves both
    local language=$2 compile libraries=("${link[@]}") ar=(ar)
    compile=("$1" -O0 "${metal[@]}")
    copies_of same -DIMPLEMENTS=0 -DIMPLEMENTS=1 && archive "$dir/library.o" "$dir/implementation.o" &&
        linked "$dir/program.o" "$dir/library.a" && run "$dir/program"
}



mach_clash() { # ARCH
    local language=c compile libraries=(-Wl,-undefined,dynamic_lookup) ar=("$zig" ar --format=darwin)
    compile=("$zig" cc -target "$1-macos" -O0)
    copies_of other -DIMPLEMENTS=0 -DIMPLEMENTS=1 && archive "$dir/library.o" "$dir/implementation.o" || return 1
    told 'duplicate symbol.*gpusync_commit' linked "$dir/program.o" "$dir/library.a"
}

copies() {
    local compiler language own=-DIMPLEMENTS=1
    for compiler in "$gcc" "$clang" "$gxx" "$clangxx"; do
        case $compiler in "$gcc" | "$clang") language=c ;; *) language=c++ ;; esac
        check "$compiler: another version in an archive is told" clash "$compiler" $language
        check "$compiler: a library that wants another version is told" lacks "$compiler" $language
        check "$compiler: the same version twice is shared" shared "$compiler" $language
        check "$compiler: another version, GPUSYNC_STATIC" apart "$compiler" $language other \
            "$own -DGPUSYNC_STATIC" "$own"
        check "$compiler: GPUSYNC_STATIC twice" apart "$compiler" $language other "$own -DGPUSYNC_STATIC" \
            "$own -DGPUSYNC_STATIC"
    done
    for compiler in aarch64 x86_64; do
        check "$compiler-macos: another version in an archive is told" mach_clash $compiler
    done
}

# ----------------------------------------------------------------
for part in ${*:-matrix ways symbols stubs strict objc copies macho}; do
    case $part in
    matrix | ways | symbols | stubs | strict | objc | copies) $part ;;
    macho) macho_part ;;
    *)
        echo "compile.sh: no part named $part" >&2
        exit 2
        ;;
    esac
done
wait

passed=0 failed=0
for ((i = 1; i <= number; i++)); do
    if [ "$(cat "$out/$i/result" 2>/dev/null)" = pass ]; then
        passed=$((passed + 1))
        [ -z "${V:-}" ] || echo "pass: $(cat "$out/$i/name")"
    else
        failed=$((failed + 1))
        echo "FAILED: $(cat "$out/$i/name")"
        head -n 40 "$out/$i/log" | sed 's/^/    | /'
    fi
done
[ "$number" -gt 0 ] || { echo "nothing was compiled"; failed=1; }
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
