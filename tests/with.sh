#!/usr/bin/env bash
# with.sh - examples/with: every folder is built and run as its page says, and then with faults
#
#   tests/with.sh [FOLDER|packages|from-0.3...]      default: all
#
# The commands are those of examples/with/README.md: the first block of sh under the heading "## FOLDER". They are pasted
# into zsh, the shell of macOS, and into bash. They run in a copy of gpusync.h and examples/with, so that what is missing
# there is missed. What metal-cpp, Objective-C++ and Swift need is not on Linux: the first two are compiled with the
# stand-ins of tests/with, as far as that goes. Of Swift's package the C target is built and its module is read by Clang
# (tests/with/swift.m), and a parser reads the Swift code: no compiler does. Programs that run meet faults, which tests/with/faults.c plants: each has to end with
# an error, and with a text that names the call. The folders notify, cpp, rust and python have tests of their own, with
# faults that these plant: the second block of sh. The commands of examples/testing.md are pasted, too.
# with/packages.sh has the checks of make dist and make install, of CMake's FetchContent and of a submodule,
# with/from-0.3.sh those of examples/from-0.3.sh.
#
# `make test-with` calls this. In the environment: SOFTMETAL, the directory of `make softmetal`; BUILD; OUT, where the
# results go; ZIG; JOBS. A tool that is missing is a failure.
# Ends with one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd)
here=$root/tests/with
build=${BUILD:-$root/build}
out=${OUT:-$build/with}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
export SOFTMETAL=${SOFTMETAL:-$build/softmetal}
export CPPFLAGS="-DGPUSYNC_OBJC=1 -I$SOFTMETAL"
export LDLIBS="-L$SOFTMETAL -lsoftmetal -Wl,-rpath,$SOFTMETAL -lpthread"
export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$build/zig/cache}
export ZIG_LOCAL_CACHE_DIR=${ZIG_LOCAL_CACHE_DIR:-$build/zig/cache-local}
export ZIG_DEBUG_CMD=1 # Zig's translator of C is compiled without optimisation: 12 seconds, not 60
zig=${ZIG:-$build/zig/node_modules/.bin/zig}
PATH=$(dirname "$zig"):$PATH
unset CFLAGS CXXFLAGS LDFLAGS MAKEFLAGS MAKELEVEL MFLAGS
# What takes longest goes first
all="zig rust packages pkg-config cmake cpp static notify python plain metal-cpp objc++ from-0.3 swift"
folders=${*:-$all}
passed=0 failed=0
page=$root/examples/with/README.md

# A copy without what may have been built there
rm -rf "$out"
mkdir -p "$out/tree/examples" "$out/tree/.cargo"
cp "$root/gpusync.h" "$out/tree/"
(cd "$root/examples/with" && find . -type f \( -name '*.[ch]' -o -name '*.cc' -o -name '*.hpp' -o -name '*.mm' \
    -o -name '*.zig' -o -name '*.rs' -o -name '*.py' -o -name '*.swift' -o -name '*.modulemap' -o -name Cargo.toml \
    -o -name CMakeLists.txt -o -name '*.cmake' -o -name '*.in' \) \
    ! -path './*/build/*' ! -path './*/target/*' ! -path './*/.build/*' ! -name gpusync.h | sed 's,^\./,,' | sort) >"$out/files"
mkdir "$out/tree/examples/with"
(cd "$root/examples/with" && xargs cp --parents -t "$out/tree/examples/with" <"$out/files")
with=$out/tree/examples/with
# Cargo finds the crate cc where Debian puts it, and asks no server
cat >"$out/tree/.cargo/config.toml" <<'END'
[source.crates-io]
replace-with = "debian"
[source.debian]
directory = "/usr/share/cargo/registry"
[net]
offline = true
END

# check NAME COMMAND...: runs it in the background; its output is kept; success is a pass. The command does not stand in
# front of &&: the shell would ignore its `set -e`.
number=0
check() {
    number=$((number + 1))
    local log=$out/$number
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    echo "$1" >"$log.name"
    shift
    {
        ("$@" >"$log.log" 2>&1 </dev/null)
        case $? in 0) echo pass ;; *) echo fail ;; esac >"$log.result"
    } &
}

text_of() { # RESULT without GPUSYNC_: its text
    local text
    text=$(sed -n "s/^$1 //p" "$out/texts")
    if [ -n "$text" ]; then echo "$text"; else echo "gpusync.h has no text of $1"; fi
}

block() { # LANGUAGE HEADING [PAGE [N]]: the first or Nth block of that language there
    awk -v fence="\`\`\`$1" -v heading="$2" -v wanted="${4:-1}" '
        !inside && /^##+ / { if (at) exit; sub(/^#+ /, ""); at = $0 == heading; next }
        at && $0 == fence { inside = ++blocks == wanted; next } inside && /^```$/ { exit } inside' "${3:-$page}"
}
commands() { block sh "$@"; } # HEADING [PAGE]: what the page says there

# As on a terminal: there zsh takes # for a word, and a program sees the variables that are exported.
paste_into() { # SHELL; the commands come on stdin
    case $1 in
    zsh) PS1='' PS2='' timeout -k 5 300 zsh -f -i +m +o promptsp -e -s ;;
    bash) timeout -k 5 300 bash -e -s ;;
    esac
}

# The program is run with the fault, or with none. It has to end as it should, to say all of that, and to leave
# nothing over.
meet() { # FOLDER FAULT PATTERN...
    local status pattern text run expected=1
    [ "$2" != none ] || expected=0
    run=$(commands "$1" | tail -n 1)
    cd "$with/$1" || return 1
    # shellcheck disable=SC2086 # words; cargo itself would not like to meet a fault
    [ "$run" != "cargo run" ] || run=target/debug/with-rust
    text=$(FAULT=$2 LD_PRELOAD=$out/faults.so timeout -k 5 60 $run 2>&1)
    status=$?
    shift 2
    echo "$text"
    if [ $status -ne $expected ]; then echo "exit status $status" && return 1; fi
    for pattern in "$@"; do grep -qF -- "$pattern" <<<"$text" || { echo "does not say: $pattern" && return 1; }; done
}

# What the program calls to learn of the end: a wait, or what has it told
call_of() { case $1 in notify | rust | python) echo gpusync_on_done ;; *) echo gpusync_wait ;; esac; } # FOLDER
# The reason that Metal gave; metal-cpp's program is too short to ask for it
reason() { [ "$1" = metal-cpp ] || echo Address; } # FOLDER

built() { # FOLDER: by its commands, the last of which runs it
    local text shell status
    text=$(commands "$1")
    if [ -z "$text" ]; then echo "examples/with/README.md has no commands under \"## $1\"" && return 1; fi
    echo "$text"
    if [ "$1" = metal-cpp ]; then
        text="METAL_CPP=$here; CPPFLAGS=\"$CPPFLAGS -isystem $(gcc -print-file-name=include)\"; $text"
    fi
    for shell in zsh bash; do
        (cd "$with/$1" && paste_into $shell <<<"$text") >"$out/$1.output" 2>&1
        status=$?
        cat "$out/$1.output"
        [ $status -eq 0 ] || { echo "$shell ended with $status" && return 1; }
        tail -n 1 "$out/$1.output" | grep -qx 'ticket 1: done' || { echo "$shell does not end with: ticket 1: done" && return 1; }
    done
}

testing() { # examples/testing.md, in a directory that looks like the project's own
    local dir=$out/testing shell
    mkdir -p "$dir/build"
    ln -s "$root"/gpusync.h "$root"/Makefile "$root"/examples "$root"/tests "$dir/" || return
    for shell in zsh bash; do
        (cd "$dir" && unset CPPFLAGS LDLIBS SOFTMETAL && rm -f build/* &&
            commands Build "$root/examples/testing.md" | BUILD=$build paste_into $shell) || return
    done
}

# With what `make softmetal SANITIZE=` prints a program finds its own mistakes, and none of GNUstep's.
# SANITIZERS FLAW: a line of C with a mistake, which is made 20 times, as TSan may miss a race once.
sanitized() {
    local dir=$out/sanitized-$1 flaw=$2 program
    mkdir -p "$dir" || return
    printf '%s\n' '#include <pthread.h>' '#include <stdlib.h>' 'static int shared;' \
        'static void *race(void *memory) { shared++; return memory; }' \
        '__attribute__((constructor)) static void err(void) { for (int i = 0; i < 20; i++) { pthread_t thread;' \
        '    if (pthread_create(&thread, NULL, race, NULL)) exit(2);' "    $flaw" \
        '    if (pthread_join(thread, NULL)) exit(2); } }' >"$dir/flaw.c"
    (
        unset CC CXX CPPFLAGS LDLIBS SOFTMETAL ASAN_OPTIONS LSAN_OPTIONS TSAN_OPTIONS UBSAN_OPTIONS
        cd "$root" || exit
        text=$(make -s --no-print-directory softmetal SANITIZE="$1" BUILD="$build") || exit
        echo "$text"
        eval "$text"
        for program in "$root/examples/test_render_loop.c" "$root/examples/test_render_loop.c $dir/flaw.c"; do
            # shellcheck disable=SC2086 # lists of words
            "$CC" -I"$root" $program $CPPFLAGS $LDLIBS -o "$dir/program" || exit
            timeout -k 5 100 "$dir/program" >"$dir/output" 2>&1
            case $?$program in
            0*flaw.c) echo "it does not see: $flaw" && exit 1 ;;
            0* | *flaw.c) ;;
            *) cat "$dir/output" && exit 1 ;;
            esac
            case $program in *flaw.c) grep -E 'Sanitizer' "$dir/output" || { cat "$dir/output" && exit 1; } ;; esac
        done
    )
}

# The faults come side by side, as one of them takes a second
runs() { # FOLDER
    local fault
    if ! built "$1"; then return 1; fi
    declare -A pids=()
    meet "$1" none 'ticket 1: done' >"$out/$1.none" 2>&1 & pids[none]=$!
    meet "$1" device gpusync_device_create "$(text_of ERROR_NO_DEVICE)" >"$out/$1.device" 2>&1 & pids[device]=$!
    if [ "$1" != metal-cpp ]; then # makes its Metal queue itself
        meet "$1" queue gpusync_queue_create "$(text_of ERROR_METAL_NIL)" >"$out/$1.queue" 2>&1 & pids[queue]=$!
    fi
    meet "$1" work "$(call_of "$1")" "$(text_of ERROR_EXECUTION)" $(reason "$1") >"$out/$1.work" 2>&1 & pids[work]=$!
    meet "$1" time "$(call_of "$1")" "$(text_of TIMEOUT)" >"$out/$1.time" 2>&1 & pids[time]=$!
    for fault in "${!pids[@]}"; do
        if wait "${pids[$fault]}"; then continue; fi
        echo "with the fault \"$fault\" it printed:"
        cat "$out/$1.$fault"
        return 1
    done
}

# By the second block: the folder's own test
tested() { # FOLDER
    local text
    text=$(commands "$1" "$page" 2)
    if [ -z "$text" ]; then echo "examples/with/README.md has no second block under \"## $1\"" && return 1; fi
    echo "$text"
    cd "$with/$1" && paste_into zsh <<<"$text"
}

says_unsupported() { # COMMAND...: status 1, and one line
    local text status
    text=$("$@" 2>&1)
    status=$?
    if [ $status -ne 1 ] || [ "$(wc -l <<<"$text")" -ne 1 ] ||
        ! grep -F gpusync_device_create <<<"$text" | grep -F "$(text_of ERROR_UNSUPPORTED)"; then
        echo "exit status $status; it printed: $text"
        return 1
    fi
}

no_metal() { # the header where there is no Metal: the programs say so
    local dir=$out/no_metal
    mkdir -p "$dir"
    cp "$with"/python/*.py "$dir/"
    cc -std=c99 -D_POSIX_C_SOURCE=200809L "$with/plain/main.c" -I"$out/tree" -o "$dir/main" &&
        c++ "$with/cpp/main.cc" -I"$out/tree" -o "$dir/main++" &&
        cc -shared -fPIC "$with/python/gpusync.c" -I"$out/tree" -o "$dir/libgpusync.so" || return 1
    says_unsupported "$dir/main" && says_unsupported "$dir/main++" && says_unsupported python3 "$dir/main.py"
}

# The bindings of other languages link with a library of any version: the program has to see at its start that its own
# declarations are of another header. A later one, and one of the same version with another struct.
refuses() { # FOLDER HEADER-DIRECTORY
    local text dir=$out/refuses/$1-${2##*/} status
    mkdir -p "$dir" || return 1
    case $1 in
    python)
        # shellcheck disable=SC2086 # lists of words
        cc -shared -fPIC "$with/python/gpusync.c" -I"$2" $CPPFLAGS $LDLIBS -o "$dir/libgpusync.so" || return 1
        cp "$with"/python/*.py "$dir/"
        set -- python3 "$dir/main.py"
        ;;
    zig)
        # shellcheck disable=SC2086
        "$zig" cc "$with/zig/main.o" "$root/tests/compile/implementation.c" -I"$2" $CPPFLAGS $LDLIBS -o "$dir/main" || return 1
        set -- "$dir/main"
        ;;
    rust)
        # shellcheck disable=SC2086
        cc -c "$with/rust/gpusync.c" -I"$2" $CPPFLAGS -o "$dir/gpusync.o" && ar rcs "$dir/libgpusync.a" "$dir/gpusync.o" &&
            rustc --edition 2021 "$with/rust/main.rs" -L "$dir" -l static=gpusync -L "$SOFTMETAL" -l softmetal \
                -C link-arg="-Wl,-rpath,$SOFTMETAL" -o "$dir/main" || return 1
        set -- "$dir/main"
        ;;
    cpp) # a library of another version does not link
        # shellcheck disable=SC2086
        sed '/define GPUSYNC_IMPLEMENTATION/d' "$with/cpp/main.cc" >"$dir/main.cc" &&
            cc -c "$root/tests/compile/implementation.c" -I"$2" $CPPFLAGS -o "$dir/gpusync.o" &&
            c++ "$dir/main.cc" "$dir/gpusync.o" -I"$out/tree" -I"$with/cpp" $CPPFLAGS $LDLIBS -o "$dir/main" || return 1
        set -- "$dir/main"
        ;;
    esac
    text=$(timeout -k 5 60 "$@" 2>&1)
    status=$?
    echo "$text"
    [ $status -ne 0 ] || { echo "it does not mind another header" && return 1; }
    grep -qF 'of another gpusync.h' <<<"$text" || { echo "it does not say why" && return 1; }
}

binding() { # FOLDER
    runs "$1" && refuses "$1" "$out/later" && refuses "$1" "$out/larger" || return
    case $1 in rust | python) tested "$1" ;; esac
}

# The descriptor's other forms: a pipe, and the event of a kqueue, for which Linux has a stand-in. For macOS all compile.
notify() {
    local form forms=(-DGPUSYNC_FD_PIPE=1 "-DON_KQUEUE -DGPUSYNC_FD_KQUEUE=1 -I$here/kqueue") dir=$out/notify target
    runs notify && tested notify || return
    mkdir -p "$dir"
    for form in "${forms[@]}"; do
        # shellcheck disable=SC2086 # lists of words
        cc -std=c99 -D_POSIX_C_SOURCE=200809L "$with/notify/test.c" $form -I"$out/tree" $CPPFLAGS $LDLIBS -o "$dir/test" &&
            timeout -k 5 100 "$dir/test" || return
    done
    for target in aarch64-macos x86_64-macos; do
        for form in notify/main.c "notify/test.c -I$SOFTMETAL" "notify/test.c -DON_KQUEUE -I$SOFTMETAL"; do
            # shellcheck disable=SC2086
            (cd "$with" && "$zig" cc -target "$target" -std=c99 -Wall -Wextra -Werror -I"$out/tree" -c $form -o "$dir/$target.o") ||
                return
        done
    done
}

# A stranger copies one folder and gpusync.h. So what several need is in each, and the same.
alone() {
    local file folder compiled=0
    for file in "$root"/examples/with/{python,rust}/gpusync_fd.h; do
        cmp "$root/examples/with/notify/gpusync_fd.h" "$file" || return
    done
    for folder in notify cpp rust python; do
        mkdir -p "$out/alone/$folder" && cp "$with/$folder"/*.{c,h,cc,hpp} "$out/tree/gpusync.h" "$out/alone/$folder/" 2>/dev/null
        for file in "$out/alone/$folder"/*.c "$out/alone/$folder"/*.cc; do
            [ -e "$file" ] || continue
            case $file in *.c) cc -fsyntax-only "$file" -I"$SOFTMETAL" ;; *) c++ -fsyntax-only "$file" -I"$SOFTMETAL" ;; esac || return
            compiled=$((compiled + 1))
        done
    done
    [ $compiled -ge 6 ] || { echo "found $compiled files alone" && return 1; }
}

other_headers() {
    mkdir -p "$out/later" "$out/larger" &&
        sed 's/^#define GPUSYNC_VERSION_MINOR .*/#define GPUSYNC_VERSION_MINOR 99/' "$out/tree/gpusync.h" >"$out/later/gpusync.h" &&
        sed 's,^    char queue_label\[64\];,    char queue_label[80];,' "$out/tree/gpusync.h" >"$out/larger/gpusync.h" &&
        ! cmp -s "$out/tree/gpusync.h" "$out/later/gpusync.h" && ! cmp -s "$out/tree/gpusync.h" "$out/larger/gpusync.h"
}

static() {
    runs static || return 1
    echo "the library exports:"
    nm -g --defined-only "$with/static/librenderer.a" | awk 'NF == 3 { print $3 }' | tee "$out/static.names"
    echo renderer_draw | cmp - "$out/static.names"
}

cpp() { # what is moved compiles, what is copied does not
    local head='#include "gpusync.hpp"' move='gpu::queue move(gpu::queue &q) { return std::move(q); }'
    local copy='gpu::queue copy(gpu::queue &q) { return q; }'
    local flags=(-std=c++11 -Wall -Wextra -Werror -I"$out/tree" -I"$with/cpp")
    runs cpp && tested cpp && refuses cpp "$out/larger" || return 1
    # shellcheck disable=SC2086 # lists of words
    c++ -std=c++11 "$with/cpp/test.cc" -I"$out/tree" $CPPFLAGS $LDLIBS -o "$out/cpp.11" && "$out/cpp.11" || return 1
    echo "$head $move" | sed 's/ gpu/\n&/' >"$out/move.cc"
    echo "$head $copy" | sed 's/ gpu/\n&/' >"$out/copy.cc"
    c++ "${flags[@]}" -fsyntax-only "$out/move.cc" || return 1
    if c++ "${flags[@]}" -fsyntax-only "$out/copy.cc" 2>/dev/null; then echo "a queue can be copied" && return 1; fi
}

for_macos() { # FILE OPTION...
    local file=$1 target
    shift
    for target in aarch64-macos x86_64-macos; do
        "$zig" c++ -target "$target" -std=c++17 -Wall -Wextra -Werror -I"$out/tree" -I"$here" "$@" -c "$with/$file" \
            -o "$out/$target.o" || return 1
    done
}

metal_cpp() {
    runs metal-cpp && for_macos metal-cpp/main.cc
}

# Fails where the Swift code could not take the module for what it does.
reads_module() { # HEADER CACHE
    local include=$with/swift/Sources/CGpusync/include
    cp "$1" "$include/gpusync.h" && "${CLANG:-clang}" -fblocks -fmodules -fmodules-cache-path="$out/$2" \
        -fmodule-map-file="$include/module.modulemap" -Wall -Wextra -Werror -Wnonnull -Wnullable-to-nonnull-conversion \
        -fsyntax-only "$here/swift.m"
}

# The C target with the options that SwiftPM gives it on a Mac (swiftlang/swift-package-manager,
# Sources/Build/BuildDescription/ClangModuleBuildDescription.swift). Without -fmodule-name Clang imports the module where
# the file includes the header, and there is no implementation.
swift() {
    local name package=$with/swift target=$with/swift/Sources/CGpusync wanted file sources
    local options=(-fblocks -fmodules -fmodule-name=CGpusync -I "$target/include" -DSWIFT_PACKAGE=1)
    sources=$(find "$package" -name '*.swift' | sort)
    wanted=$(sed -n '/^    targets:/,$ { s/.*name: "\([A-Za-z]*\)".*/\1/p; }' "$package/Package.swift" | sort)
    same "targets and folders" "$(cd "$package/Sources" && printf '%s\n' * | sort)" "$wanted" || return
    cp "$out/tree/gpusync.h" "$target/include/" || return
    # shellcheck disable=SC2086 # lists of words
    "${CLANG:-clang}" "${options[@]}" -fmodules-cache-path="$out/modules" -O0 -DDEBUG=1 $CPPFLAGS -c "$target/gpusync.c" \
        -o "$out/swift.o" || return
    "$zig" cc -target aarch64-macos "${options[@]}" -fmodules-cache-path="$out/modules-macos" -fobjc-arc -O2 \
        -c "$target/gpusync.c" -o "$out/swift-macos.o" || return
    # shellcheck disable=SC2013,SC2086 # names and files without blanks
    for name in $(grep -ohE '\bgpusync_\w+' $sources | sort -u); do
        grep -qw "$name" "$here/swift.m" || { echo "tests/with/swift.m does not look at $name" && return 1; }
        ! grep -q "IS($name," "$here/swift.m" || nm "$out/swift.o" | grep -q " T $name\$" ||
            { echo "the object does not define $name" && return 1; }
    done
    reads_module "$out/tree/gpusync.h" modules || return
    sed '/gpusync_on_done(/,/;/s/GPUSYNC_OPT user/user/' "$out/tree/gpusync.h" >"$out/swift-nil.h"
    sed 's/^    char message\[256\];/    char message[255];/' "$out/tree/gpusync.h" >"$out/swift-type.h"
    for name in nil type; do
        ! cmp -s "$out/tree/gpusync.h" "$out/swift-$name.h" && ! reads_module "$out/swift-$name.h" "modules-$name" 2>/dev/null ||
            { echo "another header is not noticed: $name" && return 1; }
    done
    # shellcheck disable=SC2086
    node "$here/swift.js" "$build/swift/node_modules" $sources || return
    for file in $sources; do # each without its last bracket, which is its last line
        sed '$d' "$file" >"$out/swift-broken.swift"
        ! node "$here/swift.js" "$build/swift/node_modules" "$out/swift-broken.swift" >/dev/null ||
            { echo "the parser does not notice that $file has lost its end" && return 1; }
    done
}

files() { # each has a place on the page and at most 40 lines; what is there to be shipped, and its test, may have more
    local file status=0 lines most
    while read -r file; do
        lines=$(wc -l <"$root/examples/with/$file")
        case $file in notify/* | cpp/* | rust/* | python/* | swift/*) most=900 ;; cmake/*.cmake) most=90 ;; *) most=40 ;; esac
        [ "$lines" -le $most ] || { echo "$file has $lines lines, not $most" && status=1; }
        grep -qF "]($file)" "$page" || { echo "README.md has no link to $file" && status=1; }
    done <"$out/files"
    [ "$(wc -l <"$out/files")" -gt 15 ] || { echo "found too few files" && status=1; }
    return $status
}

printf '%s\n' '#include "gpusync.h"' '#include <stdio.h>' '#define PRINT(name, value, text) puts(#name " " text);' \
    'int main(void) { GPUSYNC_RESULTS(PRINT) return 0; }' >"$out/texts.c"
cc -I"$out/tree" "$out/texts.c" -o "$out/texts.program" && "$out/texts.program" >"$out/texts"

linked() { # an example finds softmetal in the library, too: its kernel is a function in C
    # shellcheck disable=SC2086 # lists of words
    cc -std=c99 -D_POSIX_C_SOURCE=200809L "$root/examples/overlap.c" $CPPFLAGS $LDLIBS -o "$out/overlap" || return
    "$out/overlap"
}

clean() { # C99 and C++11, without a warning of either compiler
    local file compiler flags=(-D_POSIX_C_SOURCE=200809L -DGPUSYNC_OBJC=1 -I"$out/tree" -I"$SOFTMETAL" -Wall -Wextra
        -Wpedantic -Wconversion -Wshadow -Wundef -Wno-nonnull -Werror -fsyntax-only)
    for compiler in gcc clang; do
        for file in "$with/gpusync.c" "$with"/*/*.c "$here"/*.c; do
            "$compiler" -std=c99 "${flags[@]}" -Wstrict-prototypes "$file" || return 1
        done
    done
    echo '#include "gpusync_fd.h"' >"$out/fd.cc"
    for compiler in g++ clang++; do
        for file in "$with"/cpp/*.cc; do "$compiler" -std=c++11 "${flags[@]}" "$file" || return 1; done
        "$compiler" -std=c++20 "${flags[@]}" "$with/cpp/test.cc" || return 1
        for file in 0 1; do
            "$compiler" -std=c++11 "${flags[@]}" -DGPUSYNC_FD_IMPLEMENTATION -DGPUSYNC_FD_PIPE=$file -I"$with/notify" \
                "$out/fd.cc" || return 1
        done
    done
}

# Side by side: Zig translates C with a program that it compiles first
clang -shared -fPIC -Wall -Wextra -Werror -I"$SOFTMETAL" "$here/faults.c" -L"$SOFTMETAL" -lsoftmetal \
    -Wl,-rpath,"$SOFTMETAL" -o "$out/faults.so" || { echo "0 passed, 1 failed" && exit 1; }
other_headers || { echo "0 passed, 1 failed" && exit 1; }
# shellcheck source=tests/with/packages.sh
. "$here/packages.sh"
# shellcheck source=tests/with/from-0.3.sh
. "$here/from-0.3.sh"
repository || { echo "0 passed, 1 failed" && exit 1; }
for folder in $folders; do
    case $folder in
    packages)
        check "packages: make dist is the commit, twice the same, and builds" dist
        check "packages: a library of one's own, without gpusync for its users" library
        check "packages: folders with odd names" odd_names
        check "packages: CMake's FetchContent" fetch_content
        check "packages: a submodule of git" submodule
        check "packages: CMake's package in folders of packagers; what it refuses" elsewhere
        check "packages: two copies in one tree of CMake" copies
        check "packages: the header's version everywhere; the frameworks" versions
        ;;
    pkg-config) check "pkg-config, find_package: installed, built, run, and with faults; uninstalled" installed ;;
    zig) check "zig: built, run, and with faults; refuses a library of another header" binding zig ;;
    rust | python) check "$folder: built, run, and with faults; refuses a library of another header; its test" binding "$folder" ;;
    notify) check "notify: built, run, and with faults; its test, of each form; compiled for macOS" notify ;;
    plain | cmake) check "$folder: built, run, and with faults" runs "$folder" ;;
    static) check "static: built, run, and with faults; exports no name of gpusync" static ;;
    cpp) check "cpp: built, run, and with faults; refuses a library of another header; its test; does not copy" cpp ;;
    metal-cpp) check "metal-cpp: built with a stand-in, run, and with faults; compiled for macOS" metal_cpp ;;
    objc++) check "objc++: compiled for macOS, ARC" for_macos objc++/main.mm -fobjc-arc ;;
    from-0.3)
        check "from-0.3: programs for 0.3 are changed, compile without warnings, and run; the rest is told" migrates
        check "from-0.3: refuses what it cannot do, and leaves the rest as it is" migrates_carefully
        ;;
    swift) check "swift: the C target of the package, its module as the Swift code takes it, the syntax" swift ;;
    *) check "there is no examples/with/$folder" false ;;
    esac
done
check "plain, cpp, python where there is no Metal" no_metal
check "C and C++ without warnings" clean
check "examples/overlap.c with the library of make softmetal" linked
check "examples/testing.md: its commands in zsh and bash" testing
check "what make softmetal SANITIZE=thread prints" sanitized thread 'shared--;'
check "what make softmetal SANITIZE=address,undefined prints" sanitized address,undefined 'free(malloc(1)), shared = ((volatile char *)malloc(1))[shared + 1];'
check "files: their lines, and on the page" files
check "folders that are there to be shipped need no other" alone
wait
for ((i = 1; i <= number; i++)); do
    read -r name <"$out/$i.name"
    if [ "$(cat "$out/$i.result" 2>/dev/null)" = pass ]; then
        passed=$((passed + 1))
        [ -z "${V:-}" ] || echo "passed: $name"
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
        tail -n 40 "$out/$i.log" | sed 's/^/    | /'
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
