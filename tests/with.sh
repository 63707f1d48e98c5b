#!/usr/bin/env bash
# with.sh - examples/with is built and run as its page says; what `make install` and `make dist` write is used
#
#   eval "$(make -s softmetal)"; tests/with.sh [PATTERN]     only the checks whose names match
#
# The commands are those of examples/with/README.md: the first block of sh under the heading of each folder, and each
# block of cmake. They run in clones of a repository that has the present tree in one commit, so what git ignores is
# missed. Three programs also meet the faults of tests/with/faults.c, and have to name the call and the reason.
#
# Environment: SOFTMETAL, CPPFLAGS, LDLIBS as `make softmetal` prints them; BUILD: results go to BUILD/with (build);
# V=1: says what passed, too.
# Needs gcc, g++, clang, clang++, make, git, cmake, pkg-config. Ends with one line "N passed, N failed".

set -uo pipefail
die() { echo "with.sh: $*" >&2; echo "0 passed, 1 failed"; exit 1; }
[ "$(uname -s)" = Linux ] || die "Linux only"
[ -n "${SOFTMETAL:-}" ] && [ -n "${CPPFLAGS:-}" ] && [ -n "${LDLIBS:-}" ] && [ -e "$SOFTMETAL/libsoftmetal.so" ] ||
    die 'SOFTMETAL, CPPFLAGS, LDLIBS name no softmetal. First: eval "$(make -s softmetal)"'
for tool in cc c++ gcc g++ clang clang++ make git cmake pkg-config nm sha256sum; do
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
text_of() { sed -n "s/^ *X($1, -*[0-9]*, \"\(.*\)\").*/\1/p" "$root/gpusync.h"; } # RESULT

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
    [ "$(tail -n 1 "$out/output")" = 'ticket 1: done' ]
}
meets() { # FOLDER FAULT CALL RESULT: its program with the fault ends with 1, and says that
    local text status=0 reason
    reason=$(text_of "$4")
    text=$(FAULT=$2 LD_PRELOAD=$out/faults.so timeout 60 "$out/$1/examples/with/$1/main" 2>&1) || status=$?
    echo "with the fault \"$2\" it ends with $status and says: $text"
    [ $status -eq 1 ]
    [ -n "$reason" ]
    [[ $text == *"$3"*"$reason"* ]]
    [ "$2" != work ] || grep -F 'Address Fault' <<<"$text"
}
faults() { # FOLDER
    clang -shared -fPIC -Wall -Wextra -Werror $CPPFLAGS "$root/tests/with/faults.c" $LDLIBS -o "$out/faults.so"
    FAULT=none LD_PRELOAD=$out/faults.so "$out/$1/examples/with/$1/main"
    meets "$1" device gpusync_device_create ERROR_NO_DEVICE
    meets "$1" queue gpusync_queue_create ERROR_METAL_NIL
    meets "$1" work gpusync_wait ERROR_EXECUTION
    meets "$1" time gpusync_wait TIMEOUT
}
exports() { # the static library has no name of gpusync
    nm -g --defined-only "$out/static/examples/with/static/librenderer.a" | awk 'NF == 3 { print $3 }' |
        diff - <(echo renderer_draw)
}
clean() { # no warning in C99 and C++11
    local flags="-D_POSIX_C_SOURCE=200809L -DGPUSYNC_OBJC=1 -I$root -Wall -Wextra -Wpedantic -Wconversion -Wshadow
        -Wundef -Wno-nonnull -Werror -fsyntax-only" file
    cd "$root/examples/with"
    for file in */*.c; do
        gcc -std=c99 $flags "$file"
        clang -std=c99 $flags "$file"
    done
    g++ -std=c++11 $flags cpp/main.cc
    clang++ -std=c++11 $flags cpp/main.cc
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
    for wanted in 0.4 0.6 0.5.99 1; do
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

check "examples/with has a heading for each folder, and 700 lines at most" eval '
    cd "$root/examples/with"; for name in */; do block sh "${name%/}"; done; [ "$(cat README.md */* | wc -l)" -le 700 ]'
for name in "$root"/examples/with/*/; do check "$(basename "$name"): built and run" folder "$(basename "$name")"; done
for name in plain static cpp; do check "$name: with faults" faults "$name"; done
check "static: exports no name of gpusync" exports
check "no warnings in C99 and C++11" clean
check "plain without Metal" no_metal
check "make install writes what the page says" install
check "CMake: find_package, moved; other versions are refused" find_package
check "CMake: FetchContent" in_cmake FetchContent fetched
check "CMake: a submodule" submodule
check "CMake: two copies in one tree" two_copies
check "make dist: the release is the commit, and builds" dist
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
