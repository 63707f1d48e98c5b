#!/usr/bin/env bash
# on-a-mac.sh - what a person with a Mac runs once: does Metal behave as gpusync relies on, and does gpusync work here?
#
#   tests/on-a-mac.sh [FILE]      writes a report in Markdown, to be pasted into an issue; default BUILD/on-a-mac.md
#
# It needs Apple's command line tools, and takes some minutes: the probes of tests/beliefs, plainly and under Metal's
# API validation; tests/test_portable.c and the examples on the machine's Metal device; the suite on softmetal, where
# cmocka is installed (brew install cmocka). Three probes wait for Metal to give up a wait. No kernel runs without an
# end, and nothing hangs the GPU. Each part has a time limit, and the report grows part by part. BUILD/on-a-mac keeps
# what each part says.
#
# Elsewhere than on a Mac softmetal answers, so that the script itself is tried. No Mac has run it yet: it was tried on
# Linux, also with programs that stand in for a Mac's. In the environment: BUILD, where things are built (build);
# NO_SUITE=1, to leave out the suite. The exit status is 0 when the report is complete, whatever it says.

set -u
cd "$(dirname "$0")/.." || exit 2
build=${BUILD:-build}
report=${1:-$build/on-a-mac.md}
logs=$build/on-a-mac
mkdir -p "$logs/stand-in" "$(dirname "$report")" || exit 2
[ -e "$build/.gitignore" ] || echo '*' >"$build/.gitignore"
link='-framework Metal -framework CoreGraphics -framework Foundation -lobjc'
system=$(uname -s)
validation='MTL_DEBUG_LAYER=1 MTL_DEBUG_LAYER_ERROR_MODE=assert MTL_DEBUG_LAYER_WARNING_MODE=nslog'

fact() { # NAME COMMAND...
    local name=$1 value
    shift
    value=$("$@" 2>/dev/null | head -n 1)
    echo "| $name | ${value:-unknown} |"
}

machine() {
    echo '| | |'
    echo '|---|---|'
    fact 'date' date -u '+%Y-%m-%d %H:%M UTC'
    fact 'commit' git describe --always --dirty --abbrev=12
    if [ "$system" = Darwin ]; then
        fact 'machine' sysctl -n hw.model
        fact 'processor' sysctl -n machdep.cpu.brand_string
        fact 'macOS' sw_vers -productVersion
        fact 'virtual machine (1: yes)' sysctl -n kern.hv_vmm_present
        fact 'translated by Rosetta (1: yes)' sysctl -n sysctl.proc_translated
        fact 'compiler' "${CC:-cc}" --version
    else
        echo '| NO MAC | softmetal answers, a software device: none of this says anything about Metal |'
    fi
}

# Runs a part, and shows the last lines of what it said, indented unless they are a table.
part() { # NAME SECONDS INDENT COMMAND...
    local name=$1 limit=$2 indent=$3 log status
    shift 3
    log=$logs/$(echo "$name" | tr -c 'a-z0-9\n' _).log
    echo "$name ..." >&2
    tests/limit.pl "$limit" "$@" >"$log" 2>&1 </dev/null
    status=$?
    printf '\n## %s\n\n' "$name"
    [ $status -eq 0 ] || printf 'It ended with status %s; 124: it did not end in %s s.\n\n' $status "$limit"
    tail -n 60 "$log" | cut -c1-500 | sed "s/^/$indent/"
    return $status
}

# In the place of cmocka, which may be missing here: what tests/test_portable.c needs of it.
cat >"$logs/stand-in/cmocka.h" <<'END' || exit 2
#include <stdio.h>
#include <string.h>
static jmp_buf stand_in_out;
static void stand_in_check(int good, const char *what, const char *got, int line)
{
    if (good) return;
    printf("line %d: %s: %s\n", line, what, got);
    longjmp(stand_in_out, 1);
}
#define skip() longjmp(stand_in_out, 2)
#define assert_true(good) stand_in_check(good, #good, "no", __LINE__)
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_ptr_equal(a, b) assert_true((const void *)(a) == (const void *)(b))
static void stand_in_equal(const char *got, const char *wanted, const char *what, int line)
{
    stand_in_check(!strcmp(got, wanted), what, got, line);
}
#define assert_string_equal(a, b) stand_in_equal(a, b, #a, __LINE__)
struct CMUnitTest { const char *name; void (*test)(void **); int (*begin)(void **), (*end)(void **); };
#define cmocka_unit_test_setup_teardown(test, begin, end) { #test, test, begin, end }
static int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *t, size_t n, void *begin, void *end)
{
    static const char *const words[] = {"[       OK ]", "[  FAILED  ]", "[  SKIPPED ]"};
    static volatile int how, failed;
    printf("[==========] Running %zu test(s).\n", n);
    for (; n > 0; n--, t++, failed += how == 1) {
        printf("[ RUN      ] %s\n", t->name);
        if ((how = t->begin(NULL) ? 1 : setjmp(stand_in_out)) == 0) t->test(NULL);
        if (t->end(NULL)) how = 1;
        printf("%s %s\n", words[how], t->name);
        fflush(stdout);
    }
    return (void)name, (void)begin, (void)end, failed;
}
END
printf '#define GPUSYNC_IMPLEMENTATION\n#include "gpusync.h"\n' >"$logs/implementation.c" || exit 2

if [ "$system" != Darwin ]; then
    exports=$(make -s BUILD="$build" softmetal) || exit 2
    eval "$exports"
    CPPFLAGS="-D_GNU_SOURCE $CPPFLAGS" link=$LDLIBS
fi
built() { sed -n 's/^built: //p' "$logs/$1.log"; } # what make says that it has built

{
    printf '# gpusync: what Metal does here\n\n'
    machine
    if part 'the probes build' 300 '    ' make BUILD="$build" beliefs; then
        program=$(built the_probes_build)
        part 'the probes plainly' 600 '' env MTL_DEBUG_LAYER=0 "$program"
        # shellcheck disable=SC2086
        part 'the probes under api validation' 600 '' env $validation "$program"
    fi
    # shellcheck disable=SC2086 # these are lists of words, here and below
    if part 'the portable tests build' 300 '    ' ${CC:-cc} -std=c11 -O1 -g ${CPPFLAGS:-} -I"$logs/stand-in" -I. \
        -Itests -Iexamples -o "$logs/test_portable" tests/test_portable.c "$logs/implementation.c" $link -lpthread; then
        part 'the portable tests' 300 '    ' env MTL_DEBUG_LAYER=0 LOGS="$logs" tests/run.sh "$logs/test_portable"
        part 'the portable tests under api validation' 300 '    ' env $validation LOGS="$logs/validated" \
            tests/run.sh "$logs/test_portable"
    fi
    if part 'the examples build' 600 '    ' make BUILD="$build" examples; then
        # shellcheck disable=SC2046
        part 'the examples' 600 '    ' env MTL_DEBUG_LAYER=0 LOGS="$logs" tests/run.sh --examples \
            $(built the_examples_build)
    fi
    if [ -n "${NO_SUITE:-}" ]; then
        printf '\n## the suite on softmetal\n\nLeft out.\n'
    else
        part 'the suite on softmetal' 1800 '    ' make BUILD="$build" test EXAMPLES=
    fi
    printf '\nThe report is complete.\n'
} >"$report"
grep -hE '^[0-9]+ held, |^ *[0-9]+ passed, ' "$report" >&2
grep -q '^The report is complete' "$report" || exit 2
echo "$report: please paste it into an issue" >&2
