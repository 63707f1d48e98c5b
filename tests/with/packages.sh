#!/usr/bin/env bash
# packages.sh - make dist, install and uninstall, and the projects of examples/with/README.md that use what these make
#
# tests/with.sh reads this file, and has the functions that this one lacks. The checks work on clones of a repository
# that `repository` makes: it has the present tree in one commit, with the tag of a release. So a file that git ignores
# is missed, and a change that is not committed yet is tested.
# shellcheck disable=SC2016,SC2154 # CMake's dollars; root, out, with, page and SOFTMETAL are with.sh's
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }

packages=$out/packages
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE # of a hook of git that runs the tests

# The compiler reads the macros here: the Makefile reads them with sed.
version_of() { # HEADER
    echo VERSION GPUSYNC_VERSION_MAJOR GPUSYNC_VERSION_MINOR GPUSYNC_VERSION_PATCH |
        cc -E -P -include "$1" - | awk '$1 == "VERSION" { print $2 "." $3 "." $4 }'
}

repository() {
    mkdir -p "$packages/home" || return 1
    # Since 2.38.1 git refuses a submodule by path, unless the user's configuration allows that.
    printf '%s\n' '[user]' 'name = gpusync' 'email = gpusync@example.org' '[protocol "file"]' 'allow = always' \
        '[advice]' 'detachedHead = false' >"$packages/home/.gitconfig"
    version=$(version_of "$root/gpusync.h")
    (
        HOME=$packages/home
        export HOME
        unset XDG_CONFIG_HOME
        git init -q "$packages/gpusync" && cd "$root" && export GIT_DIR="$packages/gpusync/.git" GIT_WORK_TREE=. &&
            git add -A && git commit -q -m "Everything" && git tag "v$version"
    )
}

# Each check begins with this, in a shell of its own: the first command that fails ends the check. Functions of with.sh
# look at statuses themselves: their calls stand in front of ||, where `set -e` has no effect.
prepare() {
    set -e
    HOME=$packages/home
    export HOME
    unset XDG_CONFIG_HOME BUILD PREFIX DESTDIR
}
clone() { git clone -q "file://$packages/gpusync" "$1"; } # DIRECTORY
same() { [ "$2" = "$3" ] || { echo "$1: it is \"$2\", not \"$3\"" && return 1; }; } # WHAT GOT EXPECTED
refuses_to() { # PATTERN COMMAND...: the command fails, and says that
    local pattern=$1 text
    shift
    if text=$("$@" 2>&1); then echo "it does not refuse: $*" && return 1; fi
    grep -F -- "$pattern" <<<"$text" || { echo "$* does not say \"$pattern\" but: $text" && return 1; }
}

# The same commit gives the same bytes: in another directory, and whatever umask the shell and git's configuration have.
dist() {
    local name=gpusync-$version one=$packages/dist/one other=$packages/dist/another_folder
    prepare
    mkdir "$packages/dist"
    clone "$one"
    clone "$other"
    make -C "$one" dist
    (umask 077 && git -C "$other" config tar.umask user && make -C "$other" dist BUILD=build-other)
    diff -r "$one/build/dist" "$other/build-other/dist"
    make -C "$one" dist
    diff -r "$one/build/dist" "$other/build-other/dist"

    cd "$one/build/dist"
    same "the release" "$(echo *)" "SHA256SUMS $name.h $name.tar.gz"
    same "SHA256SUMS" "$(cut -c 67- SHA256SUMS | paste -s -d' ' -)" "$name.h $name.tar.gz"
    sha256sum -c SHA256SUMS
    cmp "$name.h" "$root/gpusync.h"
    # gzip keeps neither the name nor the time of the tar file: the flags in byte 3 and the time behind them are 0.
    same "the first bytes" "$(od -An -tx1 -N 8 "$name.tar.gz" | tr -d ' ')" 1f8b080000000000
    { git -C "$one" ls-files && echo LICENSE; } | sed "s,^,$name/," | LC_ALL=C sort |
        diff - <(tar -tzf "$name.tar.gz" | grep -v '/$' | LC_ALL=C sort)
    same "owner and time in the archive" "$(TZ=UTC tar -tvzf "$name.tar.gz" --numeric-owner --full-time |
        awk '{ print $2, $4, $5 }' | sort -u)" \
        "0/0 $(TZ=UTC git -C "$one" log -1 --format=%cd --date=format-local:'%Y-%m-%d %H:%M:%S')"

    # A release is a commit: make dist refuses a tarball, below a clone and without one, and changed files.
    tar -xzf "$name.tar.gz"
    refuses_to "only in a clone" make -C "$name" dist
    mv "$name" "$packages/dist/"
    refuses_to "only in a clone" env GIT_CEILING_DIRECTORIES="$packages" make -C "$packages/dist/$name" dist
    [ ! -e "$packages/dist/$name/build" ] || { echo "it refuses, and leaves a folder" && return 1; }
    licence "$packages/dist/$name/LICENSE"
    echo >>"$one/README.md"
    refuses_to "README.md" make -C "$one" dist
    git -C "$one" checkout -q README.md
    : >"$one/examples/new.c"
    refuses_to "examples/new.c" make -C "$one" dist

    # The tarball builds as a clone does.
    make -C "$packages/dist/$name" run
}

# A project of the page, with plain's program, is built and run by the commands of "cmake".
project() { # DIRECTORY HEADING
    local output=$1/output
    mkdir -p "$1"
    block cmake "$2" | sed "s,https://.*/gpusync\$,file://$packages/gpusync," >>"$1/CMakeLists.txt"
    [ -s "$1/CMakeLists.txt" ] || { echo "examples/with/README.md has no CMakeLists.txt under \"$2\"" && return 1; }
    cp "$with/plain/main.c" "$1/"
    (cd "$1" && commands cmake | paste_into bash) >"$output" 2>&1 || { cat "$output" && return 1; }
    same "the last line" "$(tail -n 1 "$output")" "ticket 1: done"
}

# By git, and from a tarball, without a warning. The project gets the version.
fetch_content() {
    local dir=$packages/fetch_content sum
    prepare
    project "$dir" FetchContent
    has_version "$dir"
    git --git-dir "$packages/gpusync/.git" archive --prefix=gpusync/ -o "$packages/gpusync.tar.gz" HEAD
    sum=$(sha256sum "$packages/gpusync.tar.gz" | cut -d' ' -f1)
    sed -i -e "s,^ *GIT_REPOSITORY .*,    URL file://$packages/gpusync.tar.gz," -e "s,^ *GIT_TAG .*,    URL_HASH SHA256=$sum," \
        "$dir/CMakeLists.txt"
    cmake -S "$dir" -B "$dir/build-url" >"$dir/output" 2>&1 || { cat "$dir/output" && return 1; }
    if grep -A 9 Warning "$dir/output"; then return 1; fi
}

has_version() { # DIRECTORY of a project: gpusync_VERSION is that of the header there
    echo 'file(WRITE "${CMAKE_BINARY_DIR}/version" "${gpusync_VERSION}")' >>"$1/CMakeLists.txt"
    cmake "$1/build"
    same "gpusync_VERSION" "$(cat "$1/build/version")" "$version"
}

# A library that links with the target can be exported by the project.
submodule() {
    local dir=$packages/submodule
    prepare
    git init -q "$dir"
    cd "$dir"
    commands "A submodule" | sed "s,https://.*/gpusync\$,file://$packages/gpusync," | paste_into bash
    same "the commit of the submodule" "$(git -C gpusync describe --tags)" "v$version"
    project "$dir" "A submodule"
    has_version "$dir"
    cat >>CMakeLists.txt <<'END_OF_FILE'
add_library(renderer STATIC main.c)
target_link_libraries(renderer PUBLIC gpusync::gpusync)
install(TARGETS renderer EXPORT app DESTINATION lib)
install(EXPORT app DESTINATION lib/cmake/app)
END_OF_FILE
    cmake build
}

# From a release to a program, and back. The installation is moved before it is used.
installed() {
    local top=$packages/release dest=$packages/root prefix=$packages/moved
    prepare
    clone "$top"
    make -C "$top" dist
    tar -xzf "$top/build/dist/gpusync-$version.tar.gz" -C "$packages"
    top=$packages/gpusync-$version
    mkdir -p "$dest/opt/it/include" "$dest/opt/it/lib/cmake/other"
    : >"$dest/opt/it/include/other.h"
    : >"$dest/opt/it/lib/cmake/other/otherConfig.cmake"
    chmod 700 "$dest/opt/it/lib"
    (umask 077 && make -C "$top" install DESTDIR="$dest" PREFIX=/opt/it)
    same "what is in DESTDIR" "$(cd "$dest" && find . -mindepth 1 -maxdepth 2)" "./opt
./opt/it"
    mv "$dest/opt/it" "$prefix"
    diff - <(cd "$prefix" && find . -type f ! -name 'other*' -printf '%m %P\n' | LC_ALL=C sort) <<END_OF_LIST
644 include/gpusync.h
644 lib/cmake/gpusync/gpusyncConfig.cmake
644 lib/cmake/gpusync/gpusyncConfigVersion.cmake
644 lib/pkgconfig/gpusync.pc
644 share/licenses/gpusync/LICENSE
END_OF_LIST
    # What the umask says holds for nobody else; what was there stays as it is.
    diff - <(cd "$prefix" && find . -mindepth 1 -type d ! -path '*other*' -printf '%m %P\n' | LC_ALL=C sort) <<END_OF_LIST
700 lib
755 include
755 lib/cmake
755 lib/cmake/gpusync
755 lib/pkgconfig
755 share
755 share/licenses
755 share/licenses/gpusync
END_OF_LIST
    cmp "$prefix/include/gpusync.h" "$root/gpusync.h"
    licence "$prefix/share/licenses/gpusync/LICENSE"

    export CMAKE_PREFIX_PATH=$prefix PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    project "$packages/find_package" find_package
    (cd "$packages/find_package" && cmake -B build -DSOFTMETAL= && cmake --build build)
    says_unsupported "$packages/find_package/build/main" || return 1
    languages "$packages/languages"
    runs pkg-config || return 1

    make -C "$top" uninstall DESTDIR="$packages" PREFIX=/moved
    same "what uninstall left" "$(cd "$prefix" && find . -type f -o -name gpusync | LC_ALL=C sort)" \
        "./include/other.h
./lib/cmake/other/otherConfig.cmake"
    make -C "$top" uninstall DESTDIR="$packages" PREFIX=/moved # there is nothing left to delete
}

# The library of "static" as a package: its users need no gpusync, unless it says PRIVATE alone.
library() {
    local dir=$packages/library
    prepare
    clone "$dir"
    mkdir -p "$dir/renderer" "$dir/app"
    cp "$with"/static/renderer.[ch] "$dir/renderer/"
    block cmake "A package of it" >"$dir/renderer/CMakeLists.txt"
    make -C "$dir" install PREFIX="$dir/gpusync"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.13)' 'project(app C)' 'find_package(renderer REQUIRED)' \
        'add_executable(app app.c)' 'target_link_libraries(app PRIVATE renderer::renderer)' >"$dir/app/CMakeLists.txt"
    printf '%s\n' '#include <renderer.h>' '#include <stdio.h>' 'int main(void) { char text[512];' \
        'int bad = renderer_draw(1000, text, sizeof text); puts(text); return bad; }' >"$dir/app/app.c"
    cd "$dir"
    cmake -S renderer -B renderer/build -DCMAKE_PREFIX_PATH="$dir/gpusync" -DCMAKE_INSTALL_PREFIX="$dir/prefix"
    cmake --build renderer/build --target install
    if grep -r gpusync "$dir/prefix/lib/cmake"; then return 1; fi
    cmake -S app -B app/build -DCMAKE_PREFIX_PATH="$dir/prefix"
    cmake --build app/build
    says_unsupported app/build/app || return 1

    # CMake takes an installed file that is less than a second older for the same: this one goes to a folder of its own.
    sed -i 's/\$<BUILD_INTERFACE:\(.*\)>/\1/' renderer/CMakeLists.txt
    cmake --build renderer/build
    cmake --install renderer/build --prefix "$dir/private"
    grep -rF '$<LINK_ONLY:gpusync::gpusync>' "$dir/private/lib/cmake"
}

# Any name does for PREFIX, and is printed as it is. What `make softmetal` prints is split into words: it refuses names
# that would not survive that, before it builds anything.
odd_names() {
    local prefix="$packages/it's \$HOME, \"a, b\"" dir
    prepare
    clone "$packages/odd"
    make -C "$packages/odd" install PREFIX="${prefix//\$/\$\$}" >"$packages/odd.output"
    same "what it says" "$(sed -n 's/^installed: //p' "$packages/odd.output" | sort)" "$(find "$prefix" -type f | sort)"
    [ -s "$prefix/include/gpusync.h" ]
    make -C "$packages/odd" uninstall PREFIX="${prefix//\$/\$\$}"
    same "what uninstall left" "$(find "$prefix" -type f)" ""
    for dir in "$packages/a b" "$packages/it's"; do
        clone "$dir"
        refuses_to "make softmetal: the shell would split" make -C "$dir" softmetal
        [ ! -e "$dir/build" ] || { echo "it refuses, and builds" && return 1; }
    done
    refuses_to "make softmetal: the shell would split" make -C "$packages/odd" softmetal BUILD="$packages/a b/build"
}

licence() { # FILE
    local line
    same "its first line" "$(head -n 1 "$1")" "SPDX-License-Identifier: MIT"
    same "its last line" "$(tail -n 1 "$1")" "IN THE SOFTWARE."
    for line in '^Copyright (c) ' '^Permission is hereby granted, free of charge' ' WITHOUT WARRANTY OF ANY KIND'; do
        grep "$line" "$1" || { echo "$1 lacks: $line" && return 1; }
    done
}

# A file of each of the three languages may have the implementation. On Linux CMake links a program of Objective-C
# without an rpath: LD_LIBRARY_PATH takes its place.
languages() { # DIRECTORY
    local language
    mkdir "$1"
    cat >"$1/CMakeLists.txt" <<'END_OF_FILE'
cmake_minimum_required(VERSION 3.16)
project(app C CXX OBJC)
find_package(gpusync REQUIRED)
add_library(test OBJECT test.c)
target_link_libraries(test PRIVATE gpusync::gpusync)
foreach(language c cc m)
    add_executable(${language} main.${language})
    target_link_libraries(${language} PRIVATE gpusync::gpusync)
endforeach()
END_OF_FILE
    for language in c cc m; do cp "$with/plain/main.c" "$1/main.$language"; done
    echo '#include "softmetal.h"' >"$1/test.c"
    (cd "$1" && cmake -B build -DSOFTMETAL="$SOFTMETAL" -DCMAKE_OBJC_COMPILER=clang && cmake --build build)
    for language in c cc m; do
        same "main.$language" "$(LD_LIBRARY_PATH=$SOFTMETAL "$1/build/$language")" "ticket 1: done"
    done
}

# configure CONTENT PATTERN [OPTION...]: CMake refuses this project, and says so; without a pattern it takes it, and says nothing
configure() {
    local content=$1 pattern=$2 dir status=0 said
    shift 2
    dir=$(mktemp -d "$packages/project.XXXXXX")
    printf '%s\n' 'cmake_minimum_required(VERSION 3.13)' 'project(app C)' "$content" >"$dir/CMakeLists.txt"
    said=$(cmake -S "$dir" -B "$dir/build" "$@" 2>&1) || status=1
    said=$(tr -s ' \n' ' ' <<<"$said") # CMake breaks lines
    case $pattern in
    "") if [ $status = 0 ] && ! grep -E 'Warning|Error' <<<"$said"; then return 0; fi ;;
    "warns: "*) if [ $status = 0 ] && grep -F -- "${pattern#warns: }" <<<"$said"; then return 0; fi ;;
    *) if [ $status = 1 ] && grep -F -- "$pattern" <<<"$said"; then return 0; fi ;;
    esac
    echo "with $content $*"
    echo "CMake's status is $status, \"$pattern\" was expected. It says: $said"
    return 1
}

# The CMake package finds its header through links, and in the folders of packagers. What cannot be it refuses while
# CMake runs: later nobody knows why.
elsewhere() {
    local dir=$packages/elsewhere top name package
    local shows='find_package(gpusync REQUIRED)
        if(NOT gpusync_INCLUDE_DIR STREQUAL "${EXPECTED}")
            message(FATAL_ERROR "${gpusync_INCLUDE_DIR}")
        endif()'
    prepare
    clone "$dir"
    for name in merged vcpkg debian cellar; do
        top=$dir/$name/usr
        make -C "$dir" install PREFIX="$top"
        package=$top/lib/cmake/gpusync
        case $name in
        merged) ln -s usr/lib "$dir/merged/lib" && package=$dir/merged/lib/cmake/gpusync ;;
        vcpkg) mkdir "$top/share/gpusync" && mv "$package"/* "$top/share/gpusync/" && package=$top/share/gpusync ;;
        debian) mkdir -p "$top/lib/x86_64-linux-gnu/cmake" && mv "$package" "$top/lib/x86_64-linux-gnu/cmake/" && package=$top/lib/x86_64-linux-gnu/cmake/gpusync ;;
        cellar) mkdir -p "$dir/linked/cmake" && ln -s "$package" "$dir/linked/cmake/" && package=$dir/linked/cmake/gpusync ;;
        esac
        configure "$shows" "" -Dgpusync_DIR="$package" -DEXPECTED="$top/include"
    done

    # Without its header, or with one of another version somewhere above
    top=$dir/merged/usr
    make -C "$dir" install PREFIX="$top/local"
    rm "$top/local/include/gpusync.h"
    sed -i 's/^\(#define GPUSYNC_VERSION_PATCH\) .*/\1 99/' "$top/include/gpusync.h"
    configure 'find_package(gpusync REQUIRED)' "${version%.*}.99" -DCMAKE_PREFIX_PATH="$top/local"
    rm "$top/include/gpusync.h"
    configure 'find_package(gpusync REQUIRED)' "has include/gpusync.h" -DCMAKE_PREFIX_PATH="$top/local"
    configure 'find_package(gpusync)
        if(gpusync_FOUND OR TARGET gpusync::gpusync)
            message(FATAL_ERROR "it is found")
        endif()' "warns: has include/gpusync.h" -DCMAKE_PREFIX_PATH="$top/local"

    export CMAKE_PREFIX_PATH=$dir/vcpkg/usr
    configure 'find_package(gpusync REQUIRED COMPONENTS part)' "no component part"
    configure 'find_package(gpusync REQUIRED SOFTMETAL)' "no component SOFTMETAL" # a name without a keyword, too
    configure 'find_package(gpusync REQUIRED OPTIONAL_COMPONENTS part)' ""
    configure 'find_package(gpusync)' "whole path" -DSOFTMETAL=build/softmetal
    configure 'find_package(gpusync)' "/not/there" -DSOFTMETAL=/not/there
}

# Two copies in one tree: there is one target, and so one header.
copies() {
    local dir=$packages/copies
    local two='add_subdirectory(${DIR}/one/examples/with/cmake one)
        add_subdirectory(${DIR}/two/examples/with/cmake two)'
    local found='add_subdirectory(${DIR}/one/examples/with/cmake one)
        find_package(gpusync REQUIRED)'
    prepare
    mkdir "$dir"
    clone "$dir/one"
    cp -r "$dir/one" "$dir/two"
    set -- -DDIR="$dir" -DCMAKE_PREFIX_PATH="$dir/prefix"
    make -C "$dir/one" install PREFIX="$dir/prefix"
    configure "$two" "" "$@"
    configure "$found" "" "$@"
    # A patch keeps the API.
    sed -i 's/^\(#define GPUSYNC_VERSION_PATCH\) .*/\1 98/' "$dir/two/gpusync.h"
    make -C "$dir/two" install PREFIX="$dir/prefix"
    configure "$two" "warns: $dir/one/gpusync.h of $version" "$@"
    configure "$found
        if(NOT gpusync_VERSION STREQUAL $version OR NOT gpusync_INCLUDE_DIR STREQUAL \"\${DIR}/one\")
            message(FATAL_ERROR \"\${gpusync_VERSION} in \${gpusync_INCLUDE_DIR}\")
        endif()" "warns: $dir/one/gpusync.h of $version" "$@"
    sed -i 's/^\(#define GPUSYNC_VERSION_MINOR\) .*/\1 99/' "$dir/two/gpusync.h"
    make -C "$dir/two" install PREFIX="$dir/prefix"
    configure "$two" "$dir/one/gpusync.h of $version" "$@"
    configure "$found" "$dir/one/gpusync.h of $version" "$@"
}

# Both packages have the version of the header, and find_package takes requests for its minor number. For a Mac both
# name the frameworks that the page names, and for Linux none.
versions() {
    local dir=$packages/versions prefix=$packages/versions/prefix frameworks
    prepare
    head -n 1 "$root/gpusync.h" | grep -F " v$version " ||
        { echo "the first line of gpusync.h is not of $version" && return 1; }
    clone "$dir"
    sed -i -e 's/^\(#define GPUSYNC_VERSION_MAJOR\) .*/\1 7/; s/^\(#define GPUSYNC_VERSION_MINOR\) .*/\1 8/' \
        -e 's/^\(#define GPUSYNC_VERSION_PATCH\) .*/\1 9/' "$dir/gpusync.h"
    same "the version of the changed header" "$(version_of "$dir/gpusync.h")" 7.8.9
    make -C "$dir" install PREFIX="$prefix"
    export CMAKE_PREFIX_PATH=$prefix PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    same "gpusync.pc's version" "$(pkg-config --modversion gpusync)" 7.8.9
    mkdir "$dir/app"
    cat >"$dir/app/CMakeLists.txt" <<'END_OF_FILE'
cmake_minimum_required(VERSION 3.19)
project(app C)
function(ask expected)
    foreach(asked IN LISTS ARGN)
        unset(gpusync_DIR CACHE)
        string(REPLACE " " ";" words "${asked}")
        find_package(gpusync ${words} QUIET)
        if(NOT gpusync_FOUND STREQUAL expected)
            message(SEND_ERROR "find_package(gpusync ${asked}): found is ${gpusync_FOUND}")
        endif()
    endforeach()
endfunction()
set(INCLUDE "a variable of the project")
ask(1 7.8 7.8.0 7.8.9 "7.8.9 EXACT" 7.8...7.9 7.7...7.8.9 "OPTIONAL_COMPONENTS part")
ask(0 7 7.7 7.9 8.8 7.8.10 "7.8.8 EXACT" 7.7...<7.8.9 7.8.10...8 "COMPONENTS part")
find_package(gpusync REQUIRED)
file(WRITE "${CMAKE_BINARY_DIR}/folder" "${gpusync_INCLUDE_DIR}")
get_target_property(links gpusync::gpusync INTERFACE_LINK_LIBRARIES)
file(WRITE "${CMAKE_BINARY_DIR}/version" "${gpusync_VERSION}")
file(WRITE "${CMAKE_BINARY_DIR}/links" "${links}")
END_OF_FILE
    cmake -S "$dir/app" -B "$dir/app/build"
    same "the version of the CMake package" "$(cat "$dir/app/build/version")" 7.8.9
    same "the folder of the CMake package" "$(cat "$dir/app/build/folder")" "$prefix/include"
    same "gpusync.pc's libraries on Linux" "$(pkg-config --libs gpusync | tr -d ' ')" ""
    same "the target's libraries on Linux" "$(cat "$dir/app/build/links")" links-NOTFOUND

    frameworks=$(sed -n "s/^export CPPFLAGS= LDLIBS='\(.*\)'\$/\1/p" "$page")
    make -C "$dir" install SYSTEM=Darwin PREFIX="$prefix"
    same "gpusync.pc's libraries on a Mac" "$(pkg-config --libs gpusync | sed 's/ *$//')" "$frameworks"
    sed -i 's/^project.*/&\nset(APPLE 1)/' "$dir/app/CMakeLists.txt"
    cmake -S "$dir/app" -B "$dir/app/build"
    same "the target's libraries on a Mac" "$(sed 's/;/ /g; s/ objc$/ -lobjc/' "$dir/app/build/links")" "$frameworks"
}
