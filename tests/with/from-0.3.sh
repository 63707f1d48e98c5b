#!/usr/bin/env bash
# from-0.3.sh - examples/from-0.3.sh, on the programs for gpusync 0.3 in from-0.3
#
# tests/with.sh reads this file. The programs compile with the header of 0.3, as a commit of this repository has it,
# with -Wall -Wextra -Werror and without a warning: the C ones as C99, wrapper.cc as C++20. expected.txt has what the
# script says of them. by_hand.diff is what it leaves to a person, in frames.c and wrapper.cc.
# shellcheck disable=SC2154 # root, here, out and SOFTMETAL are with.sh's
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }

migrate=$root/examples/from-0.3.sh
samples="pipeline.c frames.c wrapper.cc binding.py binding.rs library.exp CMakeLists.txt"
changed="pipeline.c frames.c wrapper.cc binding.py binding.rs"
strict="-Wall -Wextra -Werror -D_POSIX_C_SOURCE=200809L"

ends_with() { # STATUS COMMAND...
    local expected=$1 status=0
    shift
    "$@" || status=$?
    [ $status -eq "$expected" ] || { echo "status $status, not $expected: $*" && return 1; }
}
copy_samples() { # DIRECTORY: makes it, and goes there
    local name
    mkdir -p "$1" && cd "$1" && for name in $samples; do cp "$here/from-0.3/$name" . || return; done
}
# A C++20 compiler asks for fields that a designated initialiser leaves out.
# shellcheck disable=SC2086 # lists of words
compile() { # COMPILER FILE OPTION...
    local compiler=$1 file=$2 language
    shift 2
    case $file in
    *.c) language=-std=c99 ;;
    *) compiler=${compiler/%gcc/g++} && compiler=${compiler/%clang/clang++} && language="-std=c++20 -Wno-missing-field-initializers" ;;
    esac
    "$compiler" $language $strict $CPPFLAGS -I"$root" "$file" "$@"
}

# A program is converted by the script alone, and runs. What the script leaves is told, by line, and stays as it is. Two
# programs run once a person has done what was told.
# shellcheck disable=SC2086 # lists of words
migrates() {
    local name compiler
    set -eo pipefail
    copy_samples "$out/from-0.3"

    # As they are, nothing of theirs compiles with this header: so each has something to change.
    for compiler in gcc clang; do
        for name in pipeline.c frames.c wrapper.cc; do
            if compile $compiler "$name" -fsyntax-only 2>/dev/null; then
                echo "$name compiles before it is changed" && return 1
            fi
        done
    done

    # Told, and nothing is changed. Each awk that is here tells the same: original-awk is that of macOS.
    ends_with 1 "$migrate" $samples >told
    diff "$here/from-0.3/expected.txt" told
    for name in mawk gawk original-awk; do
        command -v $name >/dev/null || continue
        mkdir "bin-$name"
        ln -s "$(command -v $name)" "bin-$name/awk"
        PATH=$PWD/bin-$name:$PATH ends_with 1 "$migrate" $samples | diff "$here/from-0.3/expected.txt" -
    done
    for name in $samples; do cmp "$name" "$here/from-0.3/$name"; done

    # Changed: what is left is told in the same words.
    ends_with 1 "$migrate" --write $samples >told
    sed 's/ (--write does it)/ (done)/' "$here/from-0.3/expected.txt" | diff - told
    for name in $changed; do cmp "$name.orig" "$here/from-0.3/$name"; done
    for name in library.exp CMakeLists.txt; do
        cmp "$name" "$here/from-0.3/$name"
        [ ! -e "$name.orig" ]
    done

    # A second time nothing changes.
    mkdir first
    cp $samples first
    ends_with 1 "$migrate" --write $samples >told
    grep -v -e '--write does it' "$here/from-0.3/expected.txt" | diff - told
    for name in $samples; do cmp "$name" "first/$name"; done
    ends_with 0 "$migrate" pipeline.c >told
    [ ! -s told ]

    # Comments and text are as they were; the program compiles without a warning, and runs.
    grep -F 'A library of another language has this symbol: gpusync_device_create_0_3.' pipeline.c
    grep -F '// gpusync makes a queue' pipeline.c
    grep -F '/* as many as Metal takes */' pipeline.c
    grep -F '/* in the order of their making: (first, last) */' pipeline.c
    grep -F 'by the symbols gpusync_device_create_0_3' binding.py
    grep -F 'not gpusync_command_buffer_0_3 of' binding.py
    grep -F '//! gpusync 0.3 by its symbols: gpusync_device_create_0_3' binding.rs
    grep -F 'link_name = "gpusync_device_create"' binding.rs
    for compiler in gcc clang; do
        compile $compiler pipeline.c $LDLIBS -o program
        timeout -k 5 60 ./program >said
        echo '12 steps, 0 lines' | diff - said
    done

    # Once what was left is done by hand, nothing is left, and the programs run.
    git apply "$here/from-0.3/by_hand.diff"
    ends_with 0 "$migrate" frames.c wrapper.cc
    for compiler in gcc clang; do
        compile $compiler frames.c $LDLIBS -o frames
        compile $compiler wrapper.cc $LDLIBS -o wrapper
        for name in "" more; do # more: BLOCKING, and gpusync_queue_destroy_now
            timeout -k 5 60 ./frames $name >said
            echo '30 frames, 0 late, 0 timeouts' | diff - said
            timeout -k 5 60 ./wrapper $name >said
            echo '4 of 4' | diff - said
        done
    done
    cc -shared -fPIC "$root/tests/compile/implementation.c" -I"$root" $CPPFLAGS $LDLIBS -o libgpusync.so
    sed -i -e '/"max_in_flight"/s/.*/                ("error_log_count", c_uint32), ("spin", c_void_p),/' \
        -e 's/("wait_mode", c_int), \(.*\)/\1  # from-0.3: ok/' -e 's/("mode", c_int), //' -e 's/("through_loss", c_bool)/("blocking", c_bool)/' \
        -e 's/gpusync_device_wait(device, c_uint64(0))/gpusync_device_wait(device, 0, None)/' binding.py
    ends_with 0 "$migrate" binding.py
    timeout -k 5 60 python3 binding.py >said
    echo 'ticket 1: done' | diff - said
}

# Wrong arguments are refused before any file is changed; each file keeps its line ends.
migrates_carefully() {
    set -eo pipefail
    copy_samples "$out/from-0.3-carefully"
    ends_with 2 "$migrate" 2>/dev/null
    ends_with 2 "$migrate" --unknown pipeline.c 2>/dev/null
    ends_with 2 "$migrate" --write pipeline.c not_there.c 2>/dev/null
    ends_with 2 "$migrate" --write pipeline.c . 2>/dev/null
    cmp pipeline.c "$here/from-0.3/pipeline.c"
    chmod a-w pipeline.c
    [ -w pipeline.c ] || ends_with 2 "$migrate" --write pipeline.c 2>/dev/null # root may write it
    chmod u+w pipeline.c
    echo "an older one" >pipeline.c.orig
    ends_with 2 "$migrate" --write pipeline.c >said 2>&1
    grep -F pipeline.c.orig said
    if grep -F "(done)" said; then return 1; fi # nothing is
    echo "an older one" | cmp - pipeline.c.orig
    cmp pipeline.c "$here/from-0.3/pipeline.c"

    printf 'gpusync_wait_options o = {&s, GPUSYNC_WAIT_DEFAULT, &e};\r\nint last;' >ends.c
    chmod 755 ends.c
    ends_with 0 "$migrate" --write ends.c
    printf 'gpusync_wait_options o = {.spin = &s, .error = &e};\r\nint last;' | cmp - ends.c
    [ -x ends.c ]
    printf 'int r = gpusync_device_wait(d, 5);\n' >"-name = 1.c"
    ends_with 0 "$migrate" --write -- "-name = 1.c"
    grep -F 'gpusync_device_wait(d, 5, NULL)' -- "./-name = 1.c"

    # What goes, wherever it stands in the initialiser; a line of which nothing is left goes, too.
    cat >out.c <<'END'
gpusync_wait_options a = {.mode = GPUSYNC_WAIT_DEFAULT}, b = {.mode = 0, .error = &e}, c = {.error = &e, .mode = 0,};
gpusync_queue_desc d = {
    .max_in_flight = 0,
    .label = "d",
    .wait_mode = GPUSYNC_WAIT_DEFAULT
}, e = {NULL, "e", 4, 0}, f = {0, 0, 0, 0, 5,
    &s, GPUSYNC_WAIT_DEFAULT, true, false};
gpusync_command_buffer_desc g = {&limit, "g", false, 0, NULL}, h = {.log_state = (void *)0, .error_options = 0u};
gpusync_wait_options i[] = {{&s, GPUSYNC_WAIT_BLOCKING}, [2] = {&s, 0, &e, true, false}, {.handlers = true, .through_loss = false}};
gpusync_timeline_desc j = {.label = "j", .fail_writes_event = false, .initial_value = 2}, k = {.fail_writes_event = 0};
END
    ends_with 0 "$migrate" --write out.c
    cat <<'END' | diff - out.c
gpusync_wait_options a = {0}, b = {.error = &e}, c = {.error = &e,};
gpusync_queue_desc d = {
    .label = "d"
}, e = {.metal_queue = NULL, .label = "e", .max_command_buffer_count = 4}, f = {.metal_queue = 0, .label = 0, .max_command_buffer_count = 0, .error_log_count = 5,
    .spin = &s, .metal4 = true, .sticky_failure = false};
gpusync_command_buffer_desc g = {.timeout_ns = &limit, .label = "g", .unretained_references = false}, h = {0};
gpusync_wait_options i[] = {{.spin = &s, .blocking = true}, [2] = {.spin = &s, .error = &e, .handlers = true}, {.handlers = true}};
gpusync_timeline_desc j = {.label = "j", .initial_value = 2}, k = {0};
END

    # What is right already: short, named, of another type, in a declaration, with the fields of 0.4
    cat >right.c <<'END'
gpusync_wait_options none = {0}, one = {&spin}, named = {.handlers = true}, *pointer = &none, all[2] = {{0}};
gpusync_wait_options new = {&spin, &error, true, false}, null = {NULL, NULL, true, true}, empty = {};
gpusync_queue_desc count = {metal, "label", 64}, latest = {metal, "label", 64, 8, &spin, false, true};
gpusync_device_desc latest_device = {metal, NULL, NULL, &spin, &log, user, GPUSYNC_CALLBACKS_QUEUED, NULL, NULL, NULL};
gpusync_command_buffer_desc limited = {&limit, "label", true}, described = {&limit, NULL, false, NULL};
gpusync_timeline_desc own = {5, "own", NULL, false}, imported = {0, "imported", event}, others = {.signalled_by_others = true};
gpusync_queue_desc forgets = {.sticky_failure = false}; void forget(gpusync_queue_desc *desc) { desc->sticky_failure = 0; }
struct mine { gpusync_wait_options options; int mode; } m = {{0}, 1};
my_gpusync_queue_desc a = {1, 2, 3, 4}; gpusync_queue_desc_of b = {1, 2, 3, 4}; gpusync_spin s = {1, 2, 3, true};
gpusync_queue_desc make(gpusync_spin, gpusync_queue_desc desc, int n) { int a[] = {1, 2, 3, 4}; return (gpusync_queue_desc){0}; }
int mode = other.mode + max_in_flight; void wait_mode(int log_report); int log_state;
gpusync_result r = gpusync_device_wait(device, limit, NULL), (*f)(gpusync_device *, uint64_t) = my_gpusync_device_wait;
#if GPUSYNC_VERSION >= 300 /* == 300 */
#endif
size_t n = sizeof(gpusync_wait_options);
const char *t = "GPUSYNC_WAIT_HANDLER, gpusync_throttle, gpusync_wait_options o = {1, 2, 3}"; char c = '"'; // gpusync_throttle
/* gpusync_device_create_0_3, gpusync_queue_destroy_now
   gpusync_wait_options o = {NULL, GPUSYNC_WAIT_DEFAULT}; */
END
    cp right.c before.c
    ends_with 0 "$migrate" --write right.c
    cmp right.c before.c

    # What only a person can do: a value in a macro, around #if, with a comment in it
    cat >left.c <<'END'
#define DESC {NULL, "label", 64, 0, 8}
gpusync_queue_desc a = DESC, b = {NULL, "b", 0,
#ifdef MANY
    0,
#else
    3,
#endif
    8};
gpusync_wait_options c = {.mode = GPUSYNC_WAIT_DEFAULT /* its own */, .handlers = true};
static gpusync_result wait_all(gpusync_result (*wait)(gpusync_device *, uint64_t)) { return wait(device, 0); }
int main(void) { return wait_all(gpusync_device_wait); } /* 0.3's */
gpusync_timeline_desc d = {5, "d", event, true}, e = {.shared_event = event, .fail_writes_event = true};
gpusync_queue_desc f = {.sticky_failure = stream != NULL};
gpusync_wait_options g = {.handlers = true, .through_loss = true}, h = {&s, 0, &e, true, true};
void until_metal_says(gpusync_wait_options *options) { options->through_loss = true; }
END
    cp left.c before.c
    ends_with 1 "$migrate" --write left.c >said
    cmp left.c before.c
    cat <<'END' | diff - said
left.c:2: gpusync_queue_desc has other fields now: name those that stay in this initialiser
left.c:9: gpusync_wait_options has other fields now: name those that stay in this initialiser
left.c:11: gpusync_device_wait takes options, too: NULL
left.c:12: gpusync_timeline_desc.fail_writes_event is gone, and signalled_by_others has its place: a failure writes UINT64_MAX to an event that gpusync made; write it to an imported one yourself, after gpusync_timeline_fail
left.c:12: gpusync_timeline_desc.fail_writes_event is gone: a failure writes UINT64_MAX to an event that gpusync made; write it to an imported one yourself, after gpusync_timeline_fail
left.c:13: sticky_failure: tickets end in any order, each that takes the failure has a record, gpusync_command_buffer is refused, too
left.c:14: gpusync_wait_options.through_loss is gone: take it out; every wait goes on when the device is lost; gpusync_get_info and gpusync_is_idle tell whether memory may be freed
left.c:14: gpusync_wait_options.through_loss is gone: take it out; every wait goes on when the device is lost; gpusync_get_info and gpusync_is_idle tell whether memory may be freed
left.c:14: gpusync_wait_options has other fields now: name those that stay in this initialiser
left.c:15: through_loss is gone: take it out; every wait goes on when the device is lost; gpusync_get_info and gpusync_is_idle tell whether memory may be freed
END

    # A value without a name that means something else is told, before it has its name and after
    echo 'gpusync_queue_desc q = {NULL, "q", 0, 0, 0, NULL, GPUSYNC_WAIT_DEFAULT, false, true};' >sticks.c
    ends_with 1 "$migrate" --write sticks.c >said
    grep -F 'sticks.c:1: sticky_failure: ' said
    grep -F '.metal4 = false, .sticky_failure = true}' sticks.c
    ends_with 1 "$migrate" sticks.c >said
    [ "$(wc -l <said)" -eq 1 ]
    grep -F 'sticks.c:1: sticky_failure: ' said
}
