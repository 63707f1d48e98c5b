#!/usr/bin/env bash
# growth.sh - how the cost of gpusync's calls grows with the number of things at hand, against growth.txt
#
#   tests/bench/growth.sh
#
# Counts the instructions of gpusync's own functions on all threads with callgrind: no softmetal, no libc. They are the
# same on every run of one compiler. growth.txt says at which two sizes a row runs, and what it cost when the line was
# written. A row that costs more fails. So does a row without a line, and a line without a row. Prints a table, ends
# with one line "N passed, N failed".
#
# UPDATE=1      lowers the lines of growth.txt whose rows cost less, and never raises one. A cost that is written as -
#               is filled in; a row without a ratio gets one if it is at most twice linear
# ROWS          patterns of the names of those to run: 'wait* hold_rising'; default *
# CC            default gcc
# BUILD         where to build; default build/growth
# HEADER_DIR    where gpusync.h is; default the repository
# LIMITS        the file; default growth.txt beside this
# JOBS          rows at a time; default one for each processor
# TIME_LIMIT    of a row at one size, in seconds; default 90
# SOFTMETAL_LINK  what links softmetal; default: built here

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$root/build/growth}
header=${HEADER_DIR:-$root}
cc=${CC:-gcc}
lines=${LIMITS:-$root/tests/bench/growth.txt}
jobs=${JOBS:-$(nproc)}
export LC_ALL=C

# ------------------------------------------------------------------------------------------------------- one row

# measure ROW N KIND: writes the count, or why there is none, to $build/rows/ROW.N. KIND: see "growth list"
measure() {
    local row=$1 size=$2 kind=$3 at=$build/rows/$1.$2 run=
    if [ "$kind" = instructions ]; then
        run="valgrind --tool=callgrind --instr-atstart=no --compress-strings=no --compress-pos=no --max-threads=4000
            --callgrind-out-file=$at.callgrind"
    fi
    # No symbol is bound on its first use: that would be counted in a small row and not seen in a large one.
    # shellcheck disable=SC2086 # a list of words
    LD_BIND_NOW=1 timeout -k 5 "$TIME_LIMIT" $run "$build/growth" "$row" "$size" >"$at.out" 2>"$at.err" || {
        local status=$?
        if [ $status -ge 124 ]; then echo "no end within $TIME_LIMIT s"; fi >"$at.why"
        grep -hE '^(growth|softmetal|valgrind):|Assertion' "$at.err" >>"$at.why" || true
        [ -s "$at.why" ] || tail -n 3 "$at.err" >"$at.why"
        echo "failed: $(sed 's/^growth: failed: //' "$at.why" | paste -s -d' ')" >"$at"
        return
    }
    if [ "$kind" = wakes ]; then
        cp "$at.out" "$at"
    else
        # What a function calls is counted with that. A dump is the one that the program asked for.
        awk '
            /^fn=/ { own = substr($0, 4) ~ /^(gpusync_|counted_)/; next }
            /^calls=/ { callee = 1; next }
            /^[0-9+*-]/ { if (own && !callee) sum += $2; callee = 0 }
            END { if (sum) printf "%.0f\n", sum; else print "failed: nothing was counted" }' "$at.callgrind.1" >"$at" ||
            echo "failed: no dump" >"$at"
    fi
}

if [ "${1:-}" = --measure ]; then
    shift
    measure "$@"
    exit
fi

# -------------------------------------------------------------------------------------------------------- build

passed=0 failed=0

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

broken() { # TEXT
    echo "growth: $1"
    failed=$((failed + 1))
    finish
}

[ "$(uname -s)" = Linux ] || broken "needs Linux"
command -v valgrind >/dev/null 2>&1 || broken "needs valgrind, which is missing"
[ -s "$lines" ] || broken "there is no $lines"
mkdir -p "$build" && build=$(cd "$build" && pwd) || broken "cannot write $build"
if [ "$build" = "$root/build/growth" ]; then echo '*' >"$root/build/.gitignore"; fi
if [ -z "${SOFTMETAL_LINK:-}" ]; then
    # what build.mk says, without repeating it here
    SOFTMETAL_LINK=$(cd "$root" && printf '%s\n' 'default: $(BUILD)/libsoftmetal.a ; @echo "link: $(SOFTMETAL_LIB) $(SOFTMETAL_LDLIBS)"' \
        'include tests/softmetal/build.mk' | make -s --no-print-directory -f - BUILD="$build" SANITIZE= default |
        sed -n 's/^link: //p')
    [ -n "$SOFTMETAL_LINK" ] || broken "softmetal does not build"
fi
common="-std=c11 -D_GNU_SOURCE -DGPUSYNC_OBJC=1 -O2 -I$header"
# The two are compiled apart, so that a call is a call. valgrind cannot read every compiler's debug information.
# shellcheck disable=SC2086 # lists of words
"$cc" $common -c -o "$build/implementation.o" "$root/tests/bench/growth/implementation.c" &&
    "$cc" $common -c -o "$build/growth.o" "$root/tests/bench/growth/growth.c" &&
    "$cc" -o "$build/growth" "$build/growth.o" "$build/implementation.o" $SOFTMETAL_LINK -lpthread -Wl,--strip-debug ||
    broken "does not build"
"$build/growth" list >"$build/list" || broken "growth list fails"

# What counts depend on besides the source: the compiler's name, its version and the machine.
compiler="$(printf '%s\n' '#ifdef __clang__' 'clang __clang_major__' '#else' 'gcc __GNUC__' '#endif' |
    "$cc" -E -P -x c - | paste -s -d' ' | sed 's/^ *//') $(uname -m)"

# --------------------------------------------------------------------------------------------------------- lines

# The file without comments: "compiler NAME VERSION MACHINE", then NAME N N COUNT COUNT [RATIO]
sed 's/#.*//; /^[[:space:]]*$/d' "$lines" >"$build/lines"
written_with=$(sed -n 's/^compiler *//p' "$build/lines")
sed -i '/^compiler /d' "$build/lines"
[ -n "$written_with" ] || broken "$lines does not name the compiler"
malformed=$(awk '!(NF == 5 || NF == 6) || $2 $3 !~ /^[0-9]+$/ || $2 + 0 >= $3 + 0 || $4 !~ /^([0-9]+|-)$/ ||
    $5 !~ /^([0-9]+|-)$/ || (NF == 6 && $6 !~ /^[0-9.]+$/) || seen[$1]++' "$build/lines")
[ -z "$malformed" ] || broken "lines that make no sense, or twice: $malformed"

kind_of() { awk -v row="$1" '$1 == row { print $2 }' "$build/list"; }
chosen() { # ROW
    local pattern
    set -f
    for pattern in ${ROWS:-*}; do
        # shellcheck disable=SC2254 # a pattern
        case $1 in $pattern) set +f && return 0 ;; esac
    done
    set +f
    return 1
}

while read -r row kind; do
    grep -q "^$row " "$build/lines" && continue
    echo "$row ($kind): FAILED: no line in growth.txt"
    failed=$((failed + 1))
done <"$build/list"

# ------------------------------------------------------------------------------------------------------------ run

# The costly ones first, and wakes, which take long without doing much.
rm -rf "$build/rows"
mkdir -p "$build/rows"
while read -r row small large _ was _; do
    kind=$(kind_of "$row")
    [ -n "$kind" ] && chosen "$row" || continue
    least=0
    if [ "$kind" = wakes ]; then was=999999999999999 least=$was; fi
    echo "$was $row $large $kind"
    echo "$least $row $small $kind"
done <"$build/lines" | sed 's/^-/999999999999/' | sort -s -k1,1nr | cut -d' ' -f2- >"$build/work"
export BUILD="$build" TIME_LIMIT=${TIME_LIMIT:-90}
[ -s "$build/work" ] || broken "there are no such rows"
xargs -P "$jobs" -L 1 "$0" --measure <"$build/work" || broken "the rows do not run"

# ---------------------------------------------------------------------------------------------------------- judge

# Counts do not vary. The 2 % let the odd instruction in, and another patch level of the compiler. Another compiler, or
# machine, needs more or fewer instructions for the same: what grows faster still shows. Wakes go by the clock: on
# a busy machine sleepers come late, and so less often, hardly ever more often.
tolerance=2
if [ "$compiler" != "$written_with" ]; then
    tolerance=25
    echo "growth.txt is of $written_with, this is $compiler: $tolerance % more are allowed"
    if [ -n "${UPDATE:-}" ]; then broken "UPDATE=1 is for $written_with"; fi
fi
echo "own instructions, $("$cc" --version | head -n 1) -O2, $(uname -m)"
format='%-30s %6s %6s %11s %12s %8s %9s %12s %7s'
# shellcheck disable=SC2059 # a format
printf "$format\n" "" n n cost cost ratio exponent limit 'ratio<='

# verdict of a line: OK, BETTER or FAILED and why; the table's row; the line as UPDATE=1 would write it
judge() { # ROW SMALL LARGE WAS_SMALL WAS_LARGE RATIO_LIMIT COST_SMALL COST_LARGE KIND
    awk -v row="$1" -v small="$2" -v large="$3" -v was_small="$4" -v was="$5" -v most="$6" -v a="$7" -v b="$8" \
        -v kind="$9" -v tolerance="$tolerance" -v format="$format" 'BEGIN {
        allowed = kind == "wakes" ? 5 : tolerance
        least = kind == "wakes" ? 0.7 : 1 # what UPDATE takes for an improvement
        ratio = a > 0 ? sprintf("%.2f", b / a) : "-"
        exponent = a > 0 && b > 0 && small > 0 ? sprintf("%.2f", log(b / a) / log(large / small)) : "-"
        limit = was == "-" ? "-" : sprintf("%.0f", was * (1 + allowed / 100))
        verdict = "OK"
        if (was == "-") verdict = "NEW"
        else if (b > was * (1 + allowed / 100))
            verdict = sprintf("FAILED: %s more than %.0f", was > 0 ? sprintf("%.1f %%", (b / was - 1) * 100) : b, was)
        else if (b < was * (kind == "wakes" ? least : 0.9) && allowed < 10)
            verdict = sprintf("BETTER: %.0f %% less than %.0f", (1 - b / was) * 100, was)
        if (most != "" && b > most * a) verdict = "FAILED: the ratio is above " most
        printf "%s\n" format "\n", verdict, row, small, large, a, b, ratio, exponent, limit, most
        if (was == "-" || b < was * least) { was_small = a; was = b }
        if (most == "" && kind != "wakes" && small > 0 && b <= 2 * large / small * a) most = 2 * large / small
        printf "%-30s %5d %5d %10.0f %11.0f %s\n", row, small, large, was_small, was, most
    }'
}

cp "$lines" "$build/updated"
while read -r row small large was_small was most; do
    kind=$(kind_of "$row")
    if [ -z "$kind" ]; then
        echo "$row: FAILED: growth.txt has it, growth.c has not"
        failed=$((failed + 1))
        continue
    fi
    chosen "$row" || continue
    a=$(cat "$build/rows/$row.$small" 2>/dev/null || echo "failed: no result")
    b=$(cat "$build/rows/$row.$large" 2>/dev/null || echo "failed: no result")
    if ! [[ $a =~ ^[0-9]+$ && $b =~ ^[0-9]+$ ]]; then
        printf '%-30s %6d %6d  FAILED: %s; %s\n' "$row" "$small" "$large" "${a#failed: }" "${b#failed: }"
        failed=$((failed + 1))
        continue
    fi
    { read -r verdict; IFS= read -r text; IFS= read -r line; } < <(
        judge "$row" "$small" "$large" "$was_small" "$was" "$most" "$a" "$b" "$kind")
    case $verdict in
    OK) remark=ok ;;
    BETTER*) remark="ok ($verdict: UPDATE=1 lowers the line)" ;;
    NEW) remark="FAILED: the line has no cost yet: UPDATE=1 writes it" ;;
    *) remark=$verdict ;;
    esac
    if [ -n "${UPDATE:-}" ] && [ "$verdict" = NEW ]; then remark="ok (new)"; fi
    echo "$text  $remark"
    case $remark in ok*) passed=$((passed + 1)) ;; *) failed=$((failed + 1)) ;; esac
    sed -i "s/^$row .*/${line%"${line##*[! ]}"}/" "$build/updated"
done <"$build/lines"

if [ -n "${UPDATE:-}" ] && ! cmp -s "$build/updated" "$lines"; then
    diff "$lines" "$build/updated" | grep '^[<>]' || true
    cp "$build/updated" "$lines"
    echo "$lines is rewritten"
fi
echo "the rows took $SECONDS s"
finish
