#!/usr/bin/env bash
# compile.sh - every way in which people include gpusync.h
#
#   tests/compile.sh [PART...]     parts: matrix ways symbols stubs strict objc copies marks; default: all
#
# The programs of tests/compile are compiled with warnings as errors, linked and, where this machine can, run. LDLIBS, as
# `make softmetal` prints it, is what links them with softmetal:
#   eval "$(make -s softmetal)" && tests/compile.sh
# Others: BUILD, OUT (where the results go), GCC GXX CLANG CLANGXX, JOBS, V=1.
# Ends with one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
src=$here/compile
root=$(cd "$here/.." && pwd)
build=${BUILD:-$root/build}
out=${OUT:-$build/compile}
gcc=${GCC:-gcc} gxx=${GXX:-g++} clang=${CLANG:-clang} clangxx=${CLANGXX:-clang++}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
metal=(-DGPUSYNC_OBJC=1 -D_GNU_SOURCE)
read -r -a link <<<"${LDLIBS:?run: eval \"\$(make -s softmetal)\"}"
warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Wno-nonnull -Werror)
c_warnings=("${warnings[@]}" -Wstrict-prototypes)

rm -rf "$out"
mkdir -p "$out" || exit 1
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

# Sets `language` and the first `standard` of a compiler
speak() {
    case $1 in
    "$gcc" | "$clang") language=c standard=c99 ;;
    *) language=c++ standard=c++11 ;;
    esac
}

# told WANT COMMAND...: it has to fail, with that in what it says
told() {
    local want=$1
    shift
    if "$@" >"$dir/told" 2>&1; then
        echo "this works, and should not: $*"
        return 1
    fi
    grep -q -e "$want" "$dir/told" || { echo "does not say '$want':"; cat "$dir/told"; return 1; }
}

# ---------------------------------------------------------------- matrix
# build_run LANGUAGE COMPILER STANDARD OPTIMISE METAL SOURCES...: each file compiled on its own, linked, run
build_run() {
    local language=$1 compiler=$2 standard=$3 optimise=$4 objc=$5 file objects=() libraries=()
    local flags=(-std="$standard" "$optimise" -I"$root")
    shift 5
    if [ "$language" = c ]; then flags+=("${c_warnings[@]}"); else flags+=("${warnings[@]}"); fi
    if [ "$objc" = 1 ]; then
        flags+=("${metal[@]}")
        libraries=("${link[@]}")
    else
        flags+=(-DGPUSYNC_OBJC=0)
    fi
    for file in "$@"; do
        "$compiler" "${flags[@]}" -x "$language" -c "$src/$file" -o "$dir/$file.o" || return 1
        objects+=("$dir/$file.o")
    done
    "$compiler" "${objects[@]}" "${libraries[@]}" -o "$dir/program" && run "$dir/program"
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
all_c='c99 c11 c17 c2x' all_cxx='c++11 c++14 c++17 c++20 c++2b'

matrix() {
    local compiler standard optimise language standards
    for compiler in "$gcc" "$clang" "$gxx" "$clangxx"; do
        speak "$compiler"
        if [ "$language" = c ]; then standards=$all_c; else standards=$all_cxx; fi
        for standard in $(standards_of "$compiler" "$language" "$standards"); do
            for optimise in -O0 -O2 -Os; do
                # Optimised code does not depend on the standard: the first and the last will do.
                case $optimise$standard in
                -O0* | -Os*99 | -Os*17 | -O2c99 | -O2c++11 | -O2*2[xb]) ;;
                *) continue ;;
                esac
                check "$compiler $standard $optimise, Metal: two files and an implementation" build_run \
                    "$language" "$compiler" "$standard" "$optimise" 1 program.c second.c implementation.c
            done
        done
    done
}

# ---------------------------------------------------------------- ways
# one HOW COMPILER METAL: the implementation in the program's own file
one() {
    local how=$1 compiler=$2 objc=$3 language standard libraries=() second=("$src/second.c")
    speak "$compiler"
    local flags=(-std="$standard" -O1 "${warnings[@]}" -I"$root" -DHOW="$how")
    if [ "$objc" = 1 ]; then
        flags+=("${metal[@]}")
        libraries=("${link[@]}")
    else
        flags+=(-DGPUSYNC_OBJC=0)
    fi
    if [ "$how" = 2 ]; then second=(); fi
    "$compiler" "${flags[@]}" -x "$language" "$src/program.c" "${second[@]}" -x none "${libraries[@]}" \
        -o "$dir/program" &&
        run "$dir/program"
}

mixed() { # COMPILER-OF-PROGRAM COMPILER-OF-IMPLEMENTATION
    local flags=(-O0 "${warnings[@]}" "${metal[@]}" -I"$root") name language standard
    speak "$1"
    for name in program second; do
        "$1" "${flags[@]}" -x "$language" -c "$src/$name.c" -o "$dir/$name.o" || return 1
    done
    speak "$2"
    "$2" "${flags[@]}" -x "$language" -c "$src/implementation.c" -o "$dir/implementation.o" &&
        "$gxx" "$dir"/*.o "${link[@]}" -o "$dir/program" && run "$dir/program"
}

two_private_copies() { # GPUSYNC_STATIC in two files of a program, and the shared implementation besides
    local compile=("$gcc" -O0 "${warnings[@]}" "${metal[@]}" -I"$root")
    "${compile[@]}" -DHOW=2 -c "$src/program.c" -o "$dir/1.o" &&
        "${compile[@]}" -DHOW=2 -Dmain=other_main -c "$src/program.c" -o "$dir/2.o" &&
        "${compile[@]}" -c "$src/implementation.c" -o "$dir/3.o" &&
        "$gcc" "$dir"/[123].o "${link[@]}" -o "$dir/program" && run "$dir/program"
}

private_beside_api() { # no symbol of gpusync leaves the file
    "$gcc" -O0 "${metal[@]}" '-DGPUSYNC_API=__attribute__((visibility("default")))' -DGPUSYNC_STATIC -I"$root" \
        -c "$src/implementation.c" -o "$dir/s.o" && ! nm -g "$dir/s.o" | grep gpusync_
}

bindings() { # COMPILER-OF-IMPLEMENTATION: what another language finds at run time
    local language standard
    speak "$1"
    "$gcc" -std=c11 -O0 "${warnings[@]}" "${metal[@]}" -I"$root" -DVERSION="\"$version\"" -c "$src/bindings.c" \
        -o "$dir/bindings.o" &&
        "$1" -O2 "${warnings[@]}" "${metal[@]}" -I"$root" -x "$language" -c "$src/implementation.c" \
            -o "$dir/implementation.o" &&
        "$gxx" -rdynamic "$dir"/*.o "${link[@]}" -ldl -o "$dir/program" && run "$dir/program"
}

embedded() { # COMPILER CASE OPTION...
    local language standard
    speak "$1"
    "$1" "${warnings[@]}" -DGPUSYNC_OBJC=1 -DCASE="$2" "${@:3}" -I"$root" -x "$language" -c "$src/embedded.c" -o "$dir/e.o"
}

ways() {
    local objc compiler
    for compiler in "$gcc" "$clang" "$gxx" "$clangxx"; do
        for objc in 1 0; do
            check "$compiler, OBJC=$objc: implementation after a plain include" one 1 "$compiler" $objc
            check "$compiler, OBJC=$objc: GPUSYNC_STATIC" one 2 "$compiler" $objc
        done
        check "$compiler: GPUSYNC_MALLOC and GPUSYNC_FREE" one 3 "$compiler" 1
        check "$compiler: behind macros of other headers" embedded "$compiler" 1 -D_GNU_SOURCE
        check "$compiler: GPUSYNC_STATIC too late" told 'before the first include' embedded "$compiler" 2 -D_GNU_SOURCE
    done
    check "GPUSYNC_STATIC in two files next to a shared implementation" two_private_copies
    check "an old POSIX" told 'needs POSIX' embedded "$gcc" 0 -std=c99 -D_POSIX_C_SOURCE=199309L
    check "GPUSYNC_STATIC beside GPUSYNC_API" private_beside_api
    check "C program, C++ implementation" mixed "$gcc" "$gxx"
    check "C++ program, C implementation" mixed "$gxx" "$gcc"
    check "gcc program, clang implementation" mixed "$gcc" "$clang"
    check "clang program, gcc implementation" mixed "$clang" "$gcc"
    check "a binding, C implementation" bindings "$gcc"
    check "a binding, C++ implementation" bindings "$gxx"
}

# ---------------------------------------------------------------- symbols
# Names of the functions that the public part declares; $1: 0 or 1 for GPUSYNC_OBJC
declared() {
    echo '#include <gpusync.h>' | "$clang" -std=c99 -DGPUSYNC_OBJC="$1" -I"$root" -x c -Xclang -ast-dump -fsyntax-only \
        -fno-color-diagnostics - | grep -v ' static inline$' |
        sed -n "s/^.-FunctionDecl [^']* \(gpusync_[A-Za-z0-9_]*\) '.*/\1/p" | sort -u
}

# Without the version that some names end with.
exported() { nm -g --defined-only "$1" | awk 'NF == 3 { print $3 }' | unversioned; }
version=$(sed -n 's/^#define GPUSYNC_VERSION_M[AI][JN]OR *//p' "$root/gpusync.h" | paste -s -d_ -)
unversioned() { sed "s/^\(.*gpusync_.*\)_$version\$/\1/" | sort -u; }

# What bindings call by its name: three calls, which have a symbol with the version besides, and those that are inline
# in C. stdin: the names that nm tells
for_bindings() {
    local name names
    names=$(cat)
    for name in gpusync_{device_create,queue_create,command_buffer_create}{,_"$version"} \
        gpusync_{is_done,in_flight,at_ticket,at_value}; do
        grep -qx "$name" <<<"$names" || { echo "there is no symbol $name"; return 1; }
    done
}

symbols_of() { # COMPILER OPTIMISE METAL: exactly the declared functions
    local language standard
    speak "$1"
    "$1" "$2" -I"$root" -D_GNU_SOURCE -DGPUSYNC_OBJC="$3" -x "$language" -c "$src/implementation.c" -o "$dir/i.o" ||
        return 1
    exported "$dir/i.o" >"$dir/exported"
    nm -g --defined-only "$dir/i.o" | awk 'NF == 3 { print $3 }' | for_bindings || return 1
    declared "$3" >"$dir/declared"
    [ "$(wc -l <"$dir/declared")" -gt 40 ] || { echo "found too few declarations"; return 1; }
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

symbols_static() { # COMPILER OPTIMISE
    local language standard
    speak "$1"
    "$1" "$2" -I"$root" "${metal[@]}" -DHOW=2 -x "$language" -c "$src/program.c" -o "$dir/s.o" || return 1
    exported "$dir/s.o" >"$dir/exported"
    echo main | diff - "$dir/exported"
}

symbols_user() { # COMPILER: a file that only uses gpusync defines nothing of it
    "$1" -O0 -I"$root" "${metal[@]}" -c "$src/second.c" -o "$dir/u.o" || return 1
    exported "$dir/u.o" >"$dir/exported"
    printf 'second_in_flight\nsecond_is_done\nsecond_poll\n' | diff - "$dir/exported"
}

symbols_api() { # COMPILER: GPUSYNC_API as for a shared library: exactly the declared functions are visible
    local language standard
    speak "$1"
    "$1" -O2 -fPIC -shared -fvisibility=hidden -I"$root" "${metal[@]}" \
        '-DGPUSYNC_API=__attribute__((visibility("default")))' -x "$language" "$src/implementation.c" -x none \
        -Wl,--unresolved-symbols=ignore-all -o "$dir/lib.so" || return 1
    nm -D -g --defined-only "$dir/lib.so" | awk 'NF == 3 && $3 !~ /^_/ { print $3 }' >"$dir/names"
    for_bindings <"$dir/names" || return 1
    unversioned <"$dir/names" >"$dir/exported"
    declared 1 | diff - "$dir/exported"
}

symbols() {
    local optimise compiler
    for compiler in "$gcc" "$clang" "$gxx" "$clangxx"; do
        for optimise in -O0 -O2; do
            check "exported symbols, $compiler $optimise" symbols_of "$compiler" $optimise 1
            check "GPUSYNC_STATIC exports nothing, $compiler $optimise" symbols_static "$compiler" $optimise
        done
        check "exported symbols without Metal, $compiler" symbols_of "$compiler" -O2 0
        check "GPUSYNC_API of a shared library, $compiler" symbols_api "$compiler"
    done
    check "users define no symbol, gcc" symbols_user "$gcc"
    check "users define no symbol, clang" symbols_user "$clang"
}

# ---------------------------------------------------------------- stubs
every_call() { # stubs.c calls each function that the header declares
    local name missing=0
    [ "$(declared 0 | wc -l)" -gt 40 ] || { echo "found too few declarations"; return 1; }
    for name in $(declared 0); do
        grep -q "\\b$name(" "$src/stubs.c" || { echo "stubs.c does not call $name"; missing=1; }
    done
    [ $missing = 0 ]
}

stubs() {
    local compiler standard language standards
    check "stubs.c calls every function" every_call
    for compiler in "$gcc" "$clang" "$gxx" "$clangxx"; do
        speak "$compiler"
        if [ "$language" = c ]; then standards='c99 c2x'; else standards='c++11 c++2b'; fi
        for standard in $(standards_of "$compiler" "$language" "$standards"); do
            check "$compiler $standard -O0, no Metal: two files and an implementation" build_run \
                "$language" "$compiler" "$standard" -O0 0 program.c second.c implementation.c
            check "$compiler $standard -O2, no Metal: every call" build_run \
                "$language" "$compiler" "$standard" -O2 0 stubs.c implementation.c
        done
    done
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
        for standard in $(standards_of "$clang" c "$all_c") $(standards_of "$clang" c++ "$all_cxx"); do
            case $standard in *++*) language=c++ compiler=$clangxx ;; *) language=c compiler=$clang ;; esac
            check "$compiler $standard -Weverything: $file" everything "$language" "$standard" $file \
                "$compiler" "${metal[@]}"
        done
        check "$clang c99 -Weverything, no Metal: $file" everything c c99 $file "$clang" -DGPUSYNC_OBJC=0
        check "$clangxx c++11 -Weverything, no Metal: $file" everything c++ c++11 $file "$clangxx" -DGPUSYNC_OBJC=0
        for standard in $(standards_of "$gxx" c++ 'c++11 c++2b'); do
            check "$gxx $standard -Wold-style-cast: $file" old_style "$standard" $file "${metal[@]}"
        done
        check "$gxx c++11 -Wold-style-cast, no Metal: $file" old_style c++11 $file -DGPUSYNC_OBJC=0
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

# ---------------------------------------------------------------- copies
# A program with gpusync and a library with its own, of another version (0.99) or of the same.
side() { # NAME HEADER-DIRECTORY OPTION...: $dir/NAME.o
    local name=$1 header=$2
    shift 2
    "${compile[@]}" "${warnings[@]}" -I"$header" "$@" -x "$language" -c "$src/copies.c" -o "$dir/$name.o"
}

# copies_of COMPILER VERSION LIBRARY PROGRAM: the objects of both sides; options are words. Sets `compile`.
copies_of() {
    local library program header=$root language standard
    speak "$1"
    compile=("$1" -O0 "${metal[@]}")
    read -r -a library <<<"$3"
    read -r -a program <<<"$4"
    if [ "$2" = other ]; then
        header=$dir/other
        mkdir "$header" || return 1
        sed 's/^\(#define GPUSYNC_VERSION_MINOR\) .*/\1 99/' "$root/gpusync.h" >"$header/gpusync.h"
        ! cmp -s "$root/gpusync.h" "$header/gpusync.h" || return 1
    fi
    side library "$header" -DLIBRARY=1 "${library[@]}" && side program "$root" -DLIBRARY=0 "${program[@]}" || return 1
    [ "$3" != -DIMPLEMENTS=0 ] || "${compile[@]}" "${warnings[@]}" -I"$header" -x "$language" \
        -c "$src/implementation.c" -o "$dir/implementation.o"
}

linked() { "${compile[@]}" "$@" "${link[@]}" -o "$dir/program"; }

# An archive, as libraries come: the linker takes the implementation out of it only where the program needs it.
archive() { ar rcs "$dir/library.a" "$@"; }

apart() { # COMPILER VERSION LIBRARY PROGRAM: both link, run, and each has its own version
    local compile
    copies_of "$1" "$2" "$3" "$4" && linked "$dir/program.o" "$dir/library.o" && run "$dir/program"
}

clash() { # COMPILER: an archive with an implementation of another version
    local compile
    copies_of "$1" other -DIMPLEMENTS=0 -DIMPLEMENTS=1 && archive "$dir/library.o" "$dir/implementation.o" || return 1
    told 'multiple definition of .gpusync_commit' linked "$dir/program.o" "$dir/library.a"
}

lacks() { # COMPILER: a library that takes the program's implementation, but is of another version
    local compile
    copies_of "$1" other -DIMPLEMENTS=0 -DIMPLEMENTS=1 && archive "$dir/library.o" || return 1
    told 'undefined reference to .gpusync_device_create_0_99' linked "$dir/program.o" "$dir/library.a"
}

shared() { # COMPILER: the same version twice: the program's implementation serves both
    local compile
    copies_of "$1" same -DIMPLEMENTS=0 -DIMPLEMENTS=1 && archive "$dir/library.o" "$dir/implementation.o" &&
        linked "$dir/program.o" "$dir/library.a" && run "$dir/program"
}

copies() {
    local compiler own=-DIMPLEMENTS=1
    for compiler in "$gcc" "$clang" "$gxx" "$clangxx"; do
        check "$compiler: another version in an archive is told" clash "$compiler"
        check "$compiler: a library that wants another version is told" lacks "$compiler"
        check "$compiler: the same version twice is shared" shared "$compiler"
        check "$compiler: another version, GPUSYNC_STATIC" apart "$compiler" other "$own -DGPUSYNC_STATIC" "$own"
        check "$compiler: GPUSYNC_STATIC twice" apart "$compiler" other "$own -DGPUSYNC_STATIC" "$own -DGPUSYNC_STATIC"
    done
}

# ---------------------------------------------------------------- marks
marks_case() { # COMPILER CASE: only compiled
    local language standard
    speak "$1"
    "$1" -std="$standard" -Wunused-result -Wnonnull -Werror "${metal[@]}" -I"$root" -DCASE="$2" -x "$language" \
        -c "$src/marks.c" -o "$dir/m.o"
}

# Every result but those of calls that destroy, give up or raise errors of their own has to be looked at.
free_results='command_buffer_discard device_destroy device_destroy_later device_get_stats device_run_callbacks
    device_set_trace queue_abandon queue_cancel_held queue_destroy queue_destroy_later timeline_destroy
    timeline_destroy_later timeline_fail warmup_destroy'
results_to_look_at() {
    echo '#include <gpusync.h>' | "$clang" -std=c99 -DGPUSYNC_OBJC=1 -I"$root" -x c -Xclang -ast-dump -fsyntax-only \
        -fno-color-diagnostics - | awk '
        /^.-FunctionDecl / { if (name != "") print name
                             name = match($0, /gpusync_[a-z0-9_]+ .gpusync_result/) ? substr($0, RSTART + 8) : ""
                             sub(/ .*/, "", name) }
        /WarnUnusedResultAttr/ { name = "" }
        END { if (name != "") print name }' | sort -u >"$dir/free"
    tr -s ' \n' '\n' <<<"$free_results" | grep . | sort | diff - "$dir/free"
}

every_pointer() { # in the declarations: with the warning that the header switches off for its implementation
    sed '/^#pragma clang diagnostic ignored "-Wnullability-completeness"/d' "$root/gpusync.h" >"$dir/gpusync.h"
    ! cmp -s "$root/gpusync.h" "$dir/gpusync.h" || { echo "the header does not switch the warning off"; return 1; }
    echo '#include "gpusync.h"' >"$dir/all.c"
    "$clang" -std=c99 -Wnullability-completeness -Werror "${metal[@]}" -I"$dir" -fsyntax-only "$dir/all.c"
}

marks() {
    local case compiler
    check "what may be NULL, clang" marks_case "$clang" 0
    check "what may be NULL, clang++" marks_case "$clangxx" 0
    for case in {1..15}; do
        check "NULL is told, case $case" told 'error: .*nonnull' marks_case "$clang" $case
    done
    for compiler in "$gcc" "$clang" "$gxx" "$clangxx"; do
        for case in 20 21 22 23 24; do
            check "a result that is not looked at is told, $compiler, case $case" told 'error: ignoring return value' \
                marks_case "$compiler" $case
        done
    done
    check "which results may be ignored" results_to_look_at
    check "every pointer of the declarations is marked" every_pointer
}

# ----------------------------------------------------------------
for part in ${*:-matrix ways symbols stubs strict objc copies marks}; do
    case $part in
    matrix | ways | symbols | stubs | strict | objc | copies | marks) $part ;;
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
