#!/usr/bin/env bash
# from-0.2.sh - examples/from-0.2.sh, on the programs for gpusync 0.2 in from-0.2
#
# tests/with.sh reads this file. The programs compile with the header of 0.2, as a commit of this repository has it,
# with -Wall -Wextra -Werror and without a warning: program.c as C99, by_hand.c as C99, by_hand.cc as C++11.
# expected.txt has what the script says of them.
# shellcheck disable=SC2154 # root, here, out and SOFTMETAL are with.sh's
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }

migrate=$root/examples/from-0.2.sh
samples="program.c by_hand.c by_hand.cc binding.py binding.rs library.exp CMakeLists.txt"
strict="-Wall -Wextra -Werror -D_POSIX_C_SOURCE=200809L"

ends_with() { # STATUS COMMAND...
    local expected=$1 status=0
    shift
    "$@" || status=$?
    [ $status -eq "$expected" ] || { echo "status $status, not $expected: $*" && return 1; }
}
copy_samples() { # DIRECTORY: makes it, and goes there
    local name
    mkdir -p "$1" && cd "$1" && for name in $samples; do cp "$here/from-0.2/$name" . || return; done
}

# The program is converted by the script alone, and runs. What the script leaves is told, by line, and stays as it is.
# shellcheck disable=SC2086 # lists of words
migrates() {
    local name compiler
    set -eo pipefail
    copy_samples "$out/from-0.2"

    # As they are, nothing of theirs compiles with this header: so each has something to change.
    for compiler in gcc clang; do
        for name in program.c by_hand.c; do
            if "$compiler" -std=c99 $strict $CPPFLAGS -I"$root" -fsyntax-only "$name" 2>/dev/null; then
                echo "$name compiles before it is changed" && return 1
            fi
        done
    done
    if g++ -std=c++11 $strict $CPPFLAGS -I"$root" -fsyntax-only by_hand.cc 2>/dev/null; then
        echo "by_hand.cc compiles before it is changed" && return 1
    fi

    # Told, and nothing is changed. Each awk that is here tells the same: original-awk is that of macOS.
    ends_with 1 "$migrate" $samples >told
    diff "$here/from-0.2/expected.txt" told
    for name in mawk gawk original-awk; do
        command -v $name >/dev/null || continue
        mkdir "bin-$name"
        ln -s "$(command -v $name)" "bin-$name/awk"
        PATH=$PWD/bin-$name:$PATH ends_with 1 "$migrate" $samples | diff "$here/from-0.2/expected.txt" -
    done
    for name in $samples; do cmp "$name" "$here/from-0.2/$name"; done

    # Changed: what is left is told in the same words.
    ends_with 1 "$migrate" --write $samples >told
    sed 's/ (--write does it)/ (done)/' "$here/from-0.2/expected.txt" | diff - told
    for name in program.c binding.py binding.rs; do cmp "$name.orig" "$here/from-0.2/$name"; done
    for name in by_hand.c by_hand.cc library.exp CMakeLists.txt; do
        cmp "$name" "$here/from-0.2/$name"
        [ ! -e "$name.orig" ]
    done

    # A second time nothing changes.
    mkdir first
    cp $samples first
    ends_with 1 "$migrate" --write $samples >told
    grep -v -e '--write does it' "$here/from-0.2/expected.txt" | diff - told
    for name in $samples; do cmp "$name" "first/$name"; done
    ends_with 0 "$migrate" program.c >told
    [ ! -s told ]

    # Comments and text are as they were; the program compiles without a warning, and runs.
    grep -F 'A library of another language has this symbol: gpusync_device_create_0_2.' program.c
    grep -F '/* not GPUSYNC_LOG_INFO */' program.c
    grep -F 'by the symbols gpusync_device_create_0_2' binding.py
    grep -F 'not gpusync_command_buffer_0_2 of' binding.py
    grep -F '//! gpusync 0.2 by its symbols: gpusync_device_create_0_2' binding.rs
    grep -F 'link_name = "gpusync_device_create"' binding.rs
    [ "$(wc -l <program.c)" -eq "$(wc -l <program.c.orig)" ]
    for compiler in gcc clang; do
        "$compiler" -std=c99 $strict $CPPFLAGS -I"$root" program.c $LDLIBS -o program
        timeout -k 5 60 ./program >said
        echo 'a, {b} and "c": done, 2 lines, 0 errors' | diff - said
    done
    cc -shared -fPIC "$root/tests/compile/implementation.c" -I"$root" $CPPFLAGS $LDLIBS -o libgpusync.so
    timeout -k 5 60 python3 binding.py >said
    echo 'ticket 1: done' | diff - said

    # Once what was left is done by hand, nothing is left.
    cp binding.py edited.py
    sed -i -e 's/("max_spin_ns", c_uint64)/&, ("until_near", c_bool)/' \
        -e 's/("handlers", c_bool)/&, ("through_loss", c_bool)/' -e '/_0_2"/d' edited.py
    ends_with 0 "$migrate" edited.py
}

# Wrong arguments are refused before any file is changed; each file keeps its line ends.
migrates_carefully() {
    set -eo pipefail
    copy_samples "$out/from-0.2-carefully"
    ends_with 2 "$migrate" 2>/dev/null
    ends_with 2 "$migrate" --unknown program.c 2>/dev/null
    ends_with 2 "$migrate" --write program.c not_there.c 2>/dev/null
    ends_with 2 "$migrate" --write program.c . 2>/dev/null
    cmp program.c "$here/from-0.2/program.c"
    chmod a-w program.c
    [ -w program.c ] || ends_with 2 "$migrate" --write program.c 2>/dev/null # root may write it
    chmod u+w program.c
    echo "an older one" >program.c.orig
    ends_with 2 "$migrate" --write program.c >said 2>&1
    grep -F program.c.orig said
    if grep -F "(done)" said; then return 1; fi # nothing is
    echo "an older one" | cmp - program.c.orig
    cmp program.c "$here/from-0.2/program.c"

    printf 'gpusync_spin s = {1, 2, 3};\r\nint last;' >ends.c
    chmod 755 ends.c
    ends_with 0 "$migrate" --write ends.c
    printf 'gpusync_spin s = {.pause_iterations = 1, .yield_iterations = 2, .max_spin_ns = 3};\r\nint last;' |
        cmp - ends.c
    [ -x ends.c ]
    printf 'gpusync_spin s = {1, 2, 3};\n' >"-name = 1.c"
    ends_with 0 "$migrate" --write -- "-name = 1.c"
    grep -F .max_spin_ns -- "./-name = 1.c"

    # What is right already: short, named, of another type, in a declaration, with the new field
    cat >right.c <<'END'
gpusync_spin none = {0}, one = {1, 2}, named = {.max_spin_ns = 5}, *pointer = &none, all[2] = {{0}};
gpusync_spin new = {1, 2, 3, true}, empty = {}, called = make(1, 2, 3), cast = *(gpusync_spin *)(void *)&one;
struct mine { gpusync_spin spin; } m = {{0}};
my_gpusync_spin a = {1, 2, 3}; gpusync_spin_of b = {1, 2, 3}; gpusync_point p = {q, 1, NULL, 0};
gpusync_spin make(gpusync_spin, gpusync_queue_desc desc, int n) { int a[] = {1, 2, 3}; return (gpusync_spin){0}; }
void log_to(void *user, gpusync_log_level level, const char *text);
void log_of(void *user, gpusync_log_level level, const char *text) { if (level > GPUSYNC_LOG_WARNING) puts(text); }
#if GPUSYNC_VERSION >= 200 /* == 200 */
#endif
size_t n = sizeof(gpusync_spin);
const char *s = "GPUSYNC_LOG_INFO, gpusync_spin s = {1, 2, 3}"; char c = '"'; // gpusync_spin s = {1, 2, 3};
/* gpusync_device_create_0_2
   gpusync_spin s = {1, 2, 3}; */
END
    cp right.c before.c
    ends_with 0 "$migrate" --write right.c
    cmp right.c before.c
}
