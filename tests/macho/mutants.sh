#!/usr/bin/env bash
# mutants.sh - lines of gpusync.h and of softmetal that are Apple's alone, broken one by one: does a run of the Mach-O
# programs see it?
#
#   tests/macho/mutants.sh [ARCH...]      x86_64, aarch64; default both
#   tests/macho/mutants.sh --check        says which texts are not in their files once, or nothing
#
# A mutant runs on the first ARCH that can see it. It is seen when the program compiled and its run was red for the
# reason that stands with the mutant: so neither a mistake of this script nor a failure of something else is taken for
# success. The unbroken header goes first and has to be green in every run that is used. Environment as for macho.sh.
#
# Prints a line for each, and ends with exactly one line "N passed, N failed": passed are those seen, and the controls.

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
# shellcheck source=tests/macho/build.sh
. "$(dirname "$0")/build.sh"
check=
if [ "${1:-}" = --check ]; then check=yes && shift; fi
archs=${*:-x86_64 aarch64}
dir=$out/mutants
limit() { # TEST: seconds; an unbroken run takes two, that of test_faults thirty, and more on a busy machine
    if [ "$1" = test_faults ]; then echo 300; else echo 60; fi
}
export CMOCKA_MESSAGE_OUTPUT=STDOUT
for arch in $archs; do check_arch "$arch"; done

names=() tests=() on=() reasons=() froms=() tos=() files=() file=gpusync.h
# NAME TEST ARCHS-THAT-SEE-IT REASON FROM TO: FROM has to be in `file` once. REASON: a regular expression for a
# line of the output, "hangs" for a run that is stopped after the limit.
mutant() {
    names+=("$1") tests+=("$2") on+=("$3") reasons+=("$4") froms+=("$5") tos+=("$6") files+=("$file")
}
both="x86_64 aarch64"

mutant "the clock goes on while the machine sleeps" test_wait "$both" 'FAILED TEST' \
    'return clock_gettime_nsec_np(CLOCK_UPTIME_RAW);' \
    'return clock_gettime_nsec_np(CLOCK_MONOTONIC);'
mutant "a deadline given where Apple wants a duration" test_wait "$both" hangs \
    $'    ns = gpusync_now_ns();\n    if (ns >= deadline_ns)\n        return ETIMEDOUT;\n    ns = deadline_ns - ns;\n' ''
mutant "a duration given where a deadline is wanted" test_wait "$both" 'FAILED TEST' \
    'return pthread_cond_timedwait_relative_np(cond, mutex, &at);' 'return pthread_cond_timedwait(cond, mutex, &at);'
mutant "a deadline that has passed is not looked for" test_wait "$both" hangs \
    $'    if (ns >= deadline_ns)\n        return ETIMEDOUT;\n' ''
mutant "ETIMEDOUT is Linux's number" test_wait "$both" hangs \
    'deadline_ns) != ETIMEDOUT)' 'deadline_ns) != 110)'
mutant "a condition variable is not initialised" test_wait "$both" '^darwin: .*condition variable .* was not initialised' \
    $'#ifdef __APPLE__\n    pthread_cond_init(cond, NULL);\n' $'#ifdef __APPLE__\n    (void)cond;\n'
mutant "a waiter's mutex is destroyed while it is locked" test_wait "$both" '^darwin: .* is locked' \
    'pthread_mutex_destroy(&w->mutex);' 'pthread_mutex_lock(&w->mutex); pthread_mutex_destroy(&w->mutex);'
# On Linux and in zeroed memory a mutex needs no initialisation.
mutant "a waiter's mutex is not initialised" test_wait "$both" '^darwin: pthread_mutex_(lock|destroy): mutex .* was not initialised' \
    $'    pthread_mutex_init(&w->mutex, NULL);\n' ''
mutant "names without Apple's underscore" test_wait "$both" '^macho-run: .* without an underscore' \
    '__asm__(GPUSYNC__TEXT(__USER_LABEL_PREFIX__) name)' '__asm__(name)'
mutant "pthread's function for os_unfair_lock" test_wait "$both" '^darwin: pthread_mutex_lock: mutex .* was not initialised' \
    'GPUSYNC__SYMBOL("os_unfair_lock_lock")' 'GPUSYNC__SYMBOL("pthread_mutex_lock")'
mutant "an os_unfair_lock of another thread is unlocked" test_wait "$both" '^darwin: os_unfair_lock_unlock: .* is not this thread' \
    $'static void gpusync__leave(gpusync_queue *q)\n{\n' \
    $'static void gpusync__leave(gpusync_queue *q)\n{\n    gpusync__mutex none = {7};\n    (gpusync__unlock)(&none);\n'
mutant "the slots' blocks have no class" test_wait "$both" '^softmetal: bad-block' \
    'slot->block.isa = gpusync__global_block;' 'slot->block.isa = NULL;'
mutant "every image is named as on Linux" test_faults "$both" '^darwin: dlsym: handle' \
    '#define GPUSYNC__EVERY_IMAGE ((void *)(intptr_t)-2)' '#define GPUSYNC__EVERY_IMAGE NULL'
# x86-64 passes variable arguments as it does all others.
mutant "objc_msgSend is called as a variadic function" test_wait aarch64 'exception: Segmentation fault|^softmetal: ' \
    '((result(*)(void *, void *, argument))gpusync__send)' '((result(*)(void *, ...))gpusync__send)'

file=tests/softmetal/softmetal_internal.h
mutant "softmetal's own messages go through the program's objc_msgSend" test_softmetal x86_64 'FAILED  |^softmetal: ' \
    $'#ifdef __APPLE__\n/* A program' $'#if 0\n/* A program'
file=tests/softmetal/softmetal_msgsend.S
mutant "softmetal's objc_msgSend loses an argument" test_wait aarch64 'Uncaught exception .* nil' \
    $'    ldp     x2, x3, [sp, #32]\n' $'    mov     x2, #0\n'
file=tests/softmetal/softmetal_time.m
mutant "softmetal's clock goes on while the machine sleeps" test_softmetal_dispatch "$both" 'FAILED TEST' \
    'CLOCK_UPTIME_RAW' 'CLOCK_MONOTONIC'
mutant "softmetal gives a deadline where Apple wants a duration" test_softmetal_dispatch "$both" \
    'FAILED  |^softmetal: reset-with-work' 'timespec_of(deadline - now)' 'timespec_of(deadline)'
file=tests/softmetal/softmetal_dispatch.m
mutant "the system's timer gets a time of softmetal's" test_softmetal_dispatch aarch64 'FAILED  ' \
    'behind.time(NOW, (int64_t)delay)' 'when'

# ---------------------------------------------------------------- what is to run
passed=0 failed=0 controls=()
say() { # ok|no TEXT
    if [ "$1" = ok ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "$2"
}
count_of() { # TEXT PATTERN
    local rest=${1//"$2"/}
    echo $(((${#1} - ${#rest}) / ${#2}))
}

if [ -n "$check" ]; then
    for i in "${!names[@]}"; do
        count=$(count_of "$(cat "$root/${files[$i]}")" "${froms[$i]}")
        [ "$count" -eq 1 ] || echo "${names[$i]}: its text is $count times in ${files[$i]}"
    done
    exit
fi

arch_of() { # INDEX: the first of those wanted that can see it, or nothing
    local arch
    for arch in $archs; do
        case " ${on[$1]} " in *" $arch "*) echo "$arch" && return ;; esac
    done
}

work() { # DIRECTORY ARCH TEST: builds and runs; leaves `compiled`, `status`, `output`
    local status archive=
    if [ -e "$1/archive" ]; then
        archive=$1/archive
        (softmetal "$2" "$archive" "$1/tests/softmetal") >"$1/compiler" 2>&1 || return
    fi
    program "$2" "$1" "tests/$3.c" "$1/program" c11 -include "$1/tests/locks.h" >>"$1/compiler" 2>&1 || return
    : >"$1/compiled"
    timeout -k 5 "$(limit "$3")" "$out/$2/macho-run" "$1/program" </dev/null >"$1/output" 2>&1
    status=$?
    echo "$status" >"$1/status"
    rm -f "$1/program"
}

# The tests ask for ../gpusync.h, so each mutant has them beside it, as links.
tree() { # DIRECTORY
    mkdir "$1"
    cp -rs "$root/tests" "$root/examples" "$1/"
}

later() { # DIRECTORY ARCH TEST
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    work "$@" 2>/dev/null & # where bash tells of what was aborted
}

start=$SECONDS
rm -rf "$dir"
mkdir -p "$dir"
headers
for arch in $archs; do
    runner "$arch"
    softmetal "$arch" "$out/$arch" "$root/tests/softmetal"
done
LC_ALL=C
for i in "${!names[@]}"; do
    arch=$(arch_of "$i")
    [ -n "$arch" ] || continue
    control=control-$arch-${tests[$i]}
    if [ ! -d "$dir/$control" ]; then
        tree "$dir/$control"
        controls+=("$control")
        cp "$root/gpusync.h" "$dir/$control/"
        later "$dir/$control" "$arch" "${tests[$i]}"
    fi
    tree "$dir/$i"
    source_text=$(cat "$root/${files[$i]}")
    count=$(count_of "$source_text" "${froms[$i]}")
    echo "$count" >"$dir/$i/count"
    [ "$count" -eq 1 ] || continue
    [ "${files[$i]}" = gpusync.h ] || { cp "$root/gpusync.h" "$dir/$i/" && mkdir "$dir/$i/archive"; }
    rm -f "$dir/$i/${files[$i]}"
    printf '%s\n' "${source_text/"${froms[$i]}"/"${tos[$i]}"}" >"$dir/$i/${files[$i]}"
    later "$dir/$i" "$arch" "${tests[$i]}"
done
wait

# ---------------------------------------------------------------- what came of it
for control in ${controls[@]+"${controls[@]}"}; do
    if [ "$(cat "$dir/$control/status" 2>/dev/null)" = 0 ]; then
        say ok "green as it is: ${control#control-}"
    else
        say no "FAILED: unbroken, and not green: ${control#control-}"
        tail -n 30 "$dir/$control/compiler" "$dir/$control/output" 2>/dev/null | sed 's/^/    | /'
    fi
done
for i in "${!names[@]}"; do
    arch=$(arch_of "$i")
    what="${names[$i]} ($arch, ${tests[$i]})"
    if [ -z "$arch" ]; then
        echo "left out, can be seen on ${on[$i]} only: ${names[$i]}"
        continue
    fi
    if [ "$(cat "$dir/$i/count")" -ne 1 ]; then
        say no "FAILED: $what: what is to be broken is in ${files[$i]} $(cat "$dir/$i/count") times, not once"
        continue
    fi
    if [ ! -e "$dir/$i/compiled" ]; then
        say no "FAILED: $what: does not compile"
        head -n 10 "$dir/$i/compiler" | sed 's/^/    | /'
        continue
    fi
    status=$(cat "$dir/$i/status")
    if [ "$status" -eq 0 ]; then
        say no "NOT SEEN: $what"
    elif [ "${reasons[$i]}" = hangs ] && [ "$status" -eq 124 ]; then
        say ok "seen: $what: hangs"
    elif line=$(grep -m1 -aE -- "${reasons[$i]}" "$dir/$i/output"); then
        say ok "seen: $what: ${line:0:100}"
    else
        say no "FAILED: $what: red for another reason (status $status), not for '${reasons[$i]}'"
        tail -n 20 "$dir/$i/output" | sed 's/^/    | /'
    fi
done
echo "$((SECONDS - start)) s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
