#!/usr/bin/env bash
# with.sh - examples/with is built and run as its page says; what `make install` and `make dist` write is used
#
#   eval "$(make -s softmetal)"; tests/with.sh [PATTERN]     only the checks whose names match
#
# The commands are those of examples/with/README.md: the first block of sh under the heading of each folder, and each
# block of cmake. They run in clones of a repository that has the present tree in one commit, so what git ignores is
# missed. Most programs also meet the faults of tests/with/faults.c, and have to name the call and the reason. There is
# no Swift here: Clang reads the module, and finds what the Swift code names.
#
# Environment: SOFTMETAL, CPPFLAGS, LDLIBS as `make softmetal` prints them; BUILD: results go to BUILD/with (build);
# V=1: says what passed, too.
# Needs gcc, g++, clang, clang++, make, git, cmake, pkg-config, python3, rustc, libuv. Ends with one line
# "N passed, N failed".

set -uo pipefail
die() { echo "with.sh: $*" >&2; echo "0 passed, 1 failed"; exit 1; }
[ "$(uname -s)" = Linux ] || die "Linux only"
[ -n "${SOFTMETAL:-}" ] && [ -n "${CPPFLAGS:-}" ] && [ -n "${LDLIBS:-}" ] && [ -e "$SOFTMETAL/libsoftmetal.so" ] ||
    die 'SOFTMETAL, CPPFLAGS, LDLIBS name no softmetal. First: eval "$(make -s softmetal)"'
for tool in cc c++ gcc g++ clang clang++ make git cmake pkg-config nm python3 rustc sha256sum; do
    command -v "$tool" >/dev/null || missing="${missing:-} $tool"
done
[ -z "${missing:-}" ] || die "missing:$missing"
root=$(cd "$(dirname "$0")/.." && pwd)
out=${BUILD:-$root/build}/with
page=$root/examples/with/README.md
verbose=${V:-} only=${1:-.}
unset V BUILD CC CXX CFLAGS CXXFLAGS LDFLAGS MAKEFLAGS MAKELEVEL MFLAGS GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
rm -rf "$out"
mkdir -p "$out/repository" || die "cannot make $out"
passed=0 failed=0

check() { # NAME COMMAND...: passes if the command does not fail; in front of && or in an if the shell ignores set -e
    local name=$1 log=$out/log
    [[ $name =~ $only ]] || return
    shift
    (set -e; "$@") >"$log" 2>&1 </dev/null
    if [ $? -eq 0 ]; then
        passed=$((passed + 1))
        [ -z "$verbose" ] || echo "passed: $name"
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
        tail -n 30 "$log" | sed 's/^/    | /'
    fi
}
refused() { # TEXT COMMAND...: fails, and says the text
    local text
    if text=$("${@:2}" 2>&1); then echo "not refused: ${*:2}" && return 1; fi
    grep -qF -e "$1" <<<"$(tr -s ' \n' ' ' <<<"$text")" || { echo "does not say \"$1\": $text" && return 1; }
}
block() { # LANGUAGE HEADING: the first block of that language there
    awk -v fence="\`\`\`$1" -v heading="$2" '
        !inside && /^#+ / { at = !seen && $2 == heading; seen = seen || at; next }
        at && $0 == fence { inside = 1; next } inside && /^```$/ { exit } inside
        inside { lines++ } END { exit !lines }' "$page" || { echo "no $1 under the heading $2" && return 1; }
}
text_of() { grep -A1 "^ *X($1, " "$root/gpusync.h" | tr -d '\n' | sed 's/[^"]*"\([^"]*\)".*/\1/'; } # RESULT

# ------------------------------------------------------------------------------------------------- the repository

version=$(echo 'VERSION GPUSYNC_VERSION_MAJOR.GPUSYNC_VERSION_MINOR.GPUSYNC_VERSION_PATCH' |
    cc -E -P -include "$root/gpusync.h" - | sed -n 's/^VERSION //p' | tr -d ' ')
(cd "$root" && git ls-files -z -co --exclude-standard |
    while read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done >"$out/files" &&
    tar -c --null -T "$out/files") | tar -x -C "$out/repository" || die "git lists no files of $root"
export GIT_CONFIG_GLOBAL=$out/gitconfig GIT_CONFIG_NOSYSTEM=1
printf '%s\n' '[user]' 'name = gpusync' 'email = gpusync@example.org' '[advice]' 'detachedHead = false' \
    "[url \"$out/repository\"]" 'insteadOf = https://github.com/OWNER/gpusync' >"$out/gitconfig"
(cd "$out/repository" && git init -q && git add -A && git commit -q -m release && git tag "v$version") ||
    die "no repository in $out"
clone() { git clone -q "$out/repository" "$out/$1" && cd "$out/$1"; } # NAME: and go there

# ---------------------------------------------------------------------------------------------------- the folders

folder() { # NAME
    local commands
    commands=$(block sh "$1")
    clone "$1"
    cd "examples/with/$1"
    timeout 300 bash -e <<<"$commands" | tee "$out/output"
    tail -n 1 "$out/output" | grep -xE 'ticket [1-9]: done'
}
with_fault() { # FOLDER FAULT: its program, without the shims that the name python3 may lead to
    local program=(./main)
    cd "$out/$1/examples/with/$1"
    [ "$1" != python ] || program=("$(python3 -c 'import sys; print(sys.executable)')" main.py)
    FAULT=$2 LD_PRELOAD=$out/faults.so timeout 60 "${program[@]}" 2>&1
}
plant() { clang -shared -fPIC -Wall -Wextra -Werror $CPPFLAGS "$root/tests/with/faults.c" $LDLIBS -o "$out/faults.so"; }
meets() { # FOLDER FAULT CALL RESULT [STATUS]: its program with the fault ends with 1 or STATUS, and says that
    local text status=0 reason
    reason=$(text_of "$4")
    text=$(with_fault "$1" "$2") || status=$?
    echo "with the fault \"$2\" it ends with $status and says: $text"
    [ $status -eq "${5:-1}" ]
    [ -n "$reason" ]
    [[ $text == *"$3"*"$reason"* ]]
    [ "$2" != work ] || grep -F 'Address Fault' <<<"$text"
}
faults() { # FOLDER
    plant
    with_fault "$1" none
    meets "$1" device gpusync_device_create ERROR_NO_DEVICE
    meets "$1" queue gpusync_queue_create ERROR_METAL_NIL
    meets "$1" work gpusync_wait ERROR_EXECUTION
    meets "$1" time gpusync_wait TIMEOUT
}
marker_faults() { # a ticket behind a frame of sokol_gfx ends, and does not tell of its failure
    plant
    with_fault sokol_gfx none
    with_fault sokol_gfx work
    meets sokol_gfx device MTLCreateSystemDefaultDevice ERROR_NO_DEVICE
    meets sokol_gfx queue frames_open ERROR_INVALID_ARGUMENT
    meets sokol_gfx time frames_begin TIMEOUT 99 # what sokol_gfx has is left: no sg_shutdown
}
exports() { # the static library has no name of gpusync
    nm -g --defined-only "$out/static/examples/with/static/librenderer.a" | awk 'NF == 3 { print $3 }' |
        diff - <(echo renderer_draw)
}
clean() { # no warning in C99, C++17 and Objective-C with ARC, for which the runtime of GNUstep here has no functions
    local flags="-D_POSIX_C_SOURCE=200809L -DGPUSYNC_OBJC=1 -I$root -I$root/examples -Wall -Wextra -Wpedantic -Wconversion -Wshadow
        -Wundef -Wno-nonnull -Werror -fsyntax-only" file
    cd "$root/examples/with"
    for file in */*.c; do
        gcc -std=c99 $flags "$file"
        clang -std=c99 $flags "$file"
    done
    g++ -std=c++17 -fno-exceptions $flags cpp/main.cc
    clang++ -std=c++17 -fno-exceptions $flags cpp/main.cc
    clang -fblocks -fobjc-runtime=gnustep-2.0 -fobjc-arc $flags objc/main.m
    clang -fblocks -fobjc-runtime=gnustep-2.0 -fno-objc-arc $flags objc/main.m
}
copies() { # an owner in C++ is moved, never copied
    c++ -std=c++17 -Wall -Wextra -Werror -I"$root" -I"$root/examples/with/cpp" -fsyntax-only -xc++ - <<'EOF'
#include "gpusync.hpp"
template <class T> constexpr bool moves()
{
    return std::is_nothrow_move_constructible_v<T> && !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
}
static_assert(moves<gpu::device>() && moves<gpu::queue>() && moves<gpu::command_buffer>());
EOF
}
swift() { # the module has each name of gpusync that the Swift code has; nil is allowed where the code passes nil
    cd "$root/examples/with/swift"
    { echo '@import CGpusync;'
        grep -oE '\bgpusync_[a-z_]+' example.swift | sort -u | sed 's/.*/extern __typeof__(&) *use_&;/'
        cat <<'EOF'
void nil(gpusync_device *_Nonnull device, gpusync_queue *_Nonnull queue, void *_Nonnull buffer);
void nil(gpusync_device *_Nonnull device, gpusync_queue *_Nonnull queue, void *_Nonnull buffer)
{
    gpusync_device *_Nullable no_device = 0;
    gpusync_queue *_Nullable no_queue = 0;
    void *_Nullable made = 0;
    gpusync_ticket ticket = 0;
    int results = gpusync_device_create(0, &no_device) + gpusync_queue_create(device, 0, &no_queue) +
                  gpusync_command_buffer_create(queue, 0, 0, &made) + gpusync_commit(queue, buffer, &ticket);
    gpusync_queue_destroy_later(results ? no_queue : 0, 0, 0);
    gpusync_device_destroy_later(no_device, 0, 0);
}
EOF
    } >"$out/swift.m"
    grep -q use_gpusync_on_done "$out/swift.m"
    clang -fmodules -fmodules-cache-path="$out/modules" -fmodule-map-file=module.modulemap -DGPUSYNC_OBJC=1 \
        -Wall -Wextra -Wnullable-to-nonnull-conversion -Werror -fsyntax-only "$out/swift.m"
}
layouts() { # the structs of the bindings are as large as those of the header
    local sizes
    printf '%s\n' '#include "gpusync.h"' '#include <stdio.h>' 'int main(void) {' \
        'printf("%zu %zu\n", sizeof(gpusync_error), sizeof(gpusync_wait_options)); }' |
        cc -I"$root" -xc - -o "$out/sizes"
    sizes=$("$out/sizes")
    cd "$out/python/examples/with/python"
    sed 's/^def check.*/from ctypes import sizeof; sys.exit(print(sizeof(Error), sizeof(WaitOptions)))\n&/' main.py >sizes.py
    python3 sizes.py | diff - <(echo "$sizes")
    cd "$out/rust/examples/with/rust"
    { cat gpusync.rs && echo 'fn main() { println!("{} {}", size_of::<Error>(), size_of::<WaitOptions>()); }' &&
        echo 'use std::mem::size_of;'; } >sizes.rs
    rustc --edition 2021 -A warnings -C link-args="gpusync.o $LDLIBS" sizes.rs
    ./sizes | diff - <(echo "$sizes")
}
libuv() {
    local commands
    commands=$(block sh libuv)
    clone libuv
    timeout 300 bash -e <<<"$commands"
}
no_metal() {
    clone no-metal
    cc examples/with/plain/main.c -I. -o main
    refused "gpusync_device_create(NULL, &device): $(text_of ERROR_UNSUPPORTED)" ./main
}

# --------------------------------------------------------------------------------------------------- the packages

install() { # exactly the files of the page's table
    local there="$out/a place/opt/gpusync"
    clone install
    (umask 077 && make install DESTDIR="$out/a place" PREFIX=/opt/gpusync)
    (cd "$out/a place" && find . \( ! -type d -o ! -perm 755 \) -printf '%m %P\n') | sort |
        diff - <(sed -n 's,^| `\([a-z]*/.*\)` | .*,644 opt/gpusync/\1,p' "$page" | sort)
    cmp gpusync.h "$there/include/gpusync.h"
    head -n 1 "$there/share/licenses/gpusync/LICENSE" | grep -x 'SPDX-License-Identifier: MIT'
    tail -n 1 "$there/share/licenses/gpusync/LICENSE" | grep -x 'IN THE SOFTWARE.'
    git status --porcelain | diff - /dev/null
    export PKG_CONFIG_PATH=$there/lib/pkgconfig
    pkg-config --modversion gpusync | diff - <(echo "$version")
    [ "$(pkg-config --libs gpusync | tr -d ' ')" = "" ]
    make install darwin=1 DESTDIR="$out/a place" PREFIX=/opt/gpusync
    block sh Into | diff - <(echo "export CPPFLAGS= LDLIBS='$(pkg-config --libs gpusync | sed 's/ *$//')'")
}
app() { # FOLDER [OPTION...]: configures the project of CMake in it
    cmake -S "$out/$1" -B "$out/$1/build" -Wno-dev "${@:2}"
}
in_cmake() { # HEADING FOLDER: the page's project, built and run as the folder cmake is
    local commands
    mkdir -p "$out/$2"
    block cmake "$1" >"$out/$2/CMakeLists.txt"
    commands=$(block sh cmake)
    cp "$root/examples/with/plain/main.c" "$out/$2/"
    cd "$out/$2"
    bash -e <<<"$commands"
}
find_package() { # an installation that was moved
    local wanted
    clone packages
    make install PREFIX="$out/prefix"
    mv "$out/prefix" "$out/moved"
    mv gpusync.h elsewhere.h
    export CMAKE_PREFIX_PATH=$out/moved
    in_cmake find_package found
    mkdir "$out/asks"
    for wanted in 0.5 0.7 0.6.99 1; do
        printf '%s\n' 'cmake_minimum_required(VERSION 3.13)' 'project(app C)' "find_package(gpusync $wanted REQUIRED)" \
            >"$out/asks/CMakeLists.txt"
        refused 'compatible with requested version' app asks
    done
}
submodule() {
    clone app/gpusync
    in_cmake A app
}
two_copies() { # of one header, and of two
    mkdir "$out/two"
    clone two/one
    clone two/two
    printf '%s\n' 'cmake_minimum_required(VERSION 3.13)' 'project(app C)' 'add_subdirectory(one/examples/with/cmake)' \
        'add_subdirectory(two/examples/with/cmake)' >"$out/two/CMakeLists.txt"
    app two
    echo '/* another */' >>gpusync.h
    refused 'is there already, with another header' app two
}
dist() {
    local name=gpusync-$version
    clone dist
    make dist
    cd build/dist
    ls | diff - <(printf '%s\n' SHA256SUMS "$name.h" "$name.tar.gz")
    awk '{ print $2 }' SHA256SUMS | diff - <(printf '%s\n' "$name.h" "$name.tar.gz")
    sha256sum -c SHA256SUMS
    cmp "$name.h" ../../gpusync.h
    cp SHA256SUMS "$out/sums"
    tar -xzf "$name.tar.gz" -C "$out"
    cd ../..
    make dist | diff - "$out/sums" # twice the same
    echo >>README.md
    refused 'Commit these first: M README.md' make dist
    git checkout -q README.md
    (cd "$out/$name" && diff -r --exclude .git --exclude build --exclude LICENSE . ../dist)
    head -n 1 "$out/$name/LICENSE" | grep -x 'SPDX-License-Identifier: MIT'
    cd "$out/$name" # the release without git
    env -u CPPFLAGS -u LDLIBS -u SOFTMETAL make -j2 run
    make install PREFIX="$out/released"
    cmp "$out/released/include/gpusync.h" gpusync.h
}

short() { # what git has
    local name
    cd "$out/repository/examples/with"
    for name in */; do block sh "${name%/}" >"$out/block"; done
    [ "$(cat README.md */* | wc -l)" -le 1000 ] || { echo "more than 1,000 lines" && return 1; }
    for name in README.md cpp/* objc/* python/* rust/* swift/*; do
        [ "$(wc -l <"$name")" -le "$([ "$name" = README.md ] && echo 250 || echo 60)" ] || { echo "$name" && return 1; }
    done
}
check "a heading for each folder; no file is too long" short
for name in "$root"/examples/with/*/; do
    name=$(basename "$name")
    [ "$name" = swift ] || check "$name: built and run" folder "$name"
done
for name in plain static cpp objc python rust; do check "$name: with faults" faults "$name"; done
check "sokol_gfx: with faults" marker_faults
check "cpp: owners are moved, not copied" copies
check "swift: Clang reads the module" swift
check "python, rust: the layout of structs" layouts
check "libuv: built and run" libuv
check "static: exports no name of gpusync" exports
check "no warnings in C99, C++17 and Objective-C" clean
check "plain without Metal" no_metal
check "make install writes what the page says" install
check "CMake: find_package, moved; other versions are refused" find_package
check "CMake: FetchContent" in_cmake FetchContent fetched
check "CMake: a submodule" submodule
check "CMake: two copies in one tree" two_copies
check "make dist: the release is the commit, and builds" dist
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
