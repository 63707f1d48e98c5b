#!/usr/bin/env bash
# guards.sh - each access to a field of the library's structs, checked against guards.txt while the tests run
#
#   tests/guards/guards.sh             the table is complete, a fault in it is seen, and the tests pass on the checked copy
#
# BUILD CC   as make has them
# TESTS      names of programs
# OBJECTS    what make has compiled of them: those that only use the library need not be compiled again
#
# Ends with exactly one line "N passed, N failed".

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
root=$(cd "$(dirname "$0")/../.." && pwd)
: "${TESTS:?make test-guards says which}" "${OBJECTS:?}"
out=${BUILD:-$root/build}/guards
tree=$out/tree
passed=0 failed=0
guards() { python3 -B "$root/tests/guards/guards.py" "$root/gpusync.h" "$@"; } # python3 comes with clang-format

check() { # NAME, and what was found wrong on stdin
    local found
    found=$(cat)
    if [ -z "$found" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED: %s:\n%s\n' "$1" "$found"
    fi
}
check "fields without a rule, rules for what is not there" < <(guards --check 2>&1 || echo "does not work")

# The tests ask for ../gpusync.h, so the copy has them beside it, as links.
mkdir -p "$tree"
rm -rf "$tree/tests" "$tree/examples"
cp -rsf "$root/tests" "$root/examples" "$root/Makefile" "$tree/"
make_() { # TARGET...
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$tree" -j"$(nproc)" --no-print-directory BUILD="$out" \
        CC="${CC:-gcc} -w" "$@"
}
run() { # TESTS: with the copy that $out/gpusync.h is
    cmp -s "$out/gpusync.h" "$tree/gpusync.h" || cp "$out/gpusync.h" "$tree/gpusync.h"
    make_ "$out/$(basename "${CC:-gcc}")/flags"
    # As they are newer than the flags and the copy, make does not compile them.
    for object in $OBJECTS; do cp "$object" "$out/$(basename "${CC:-gcc}")/tests/"; done
    make_ test TESTS="$1" EXAMPLES=
}

# A wrong rule is seen, or nothing is checked.
sed 's/^  queue: refused took_ns$/  order: refused took_ns/' "$root/tests/guards/guards.txt" >"$out/wrong.txt"
guards "$out/gpusync.h" "$out/wrong.txt"
check "a rule that names another lock is not seen" < <(
    { run test_wait 2>&1 || true; } | # it is red
        grep -E 'guards: .* queue\.(refused|took_ns) .*held: .*waits\.lock' >/dev/null || echo "test_wait is green")

guards "$out/gpusync.h"
export GUARDS_ASKED=$out/asked.txt
rm -f "$GUARDS_ASKED"
run "$TESTS" 2>&1 | tee "$out/run.log" | grep -v '^[0-9]* passed, [0-9]* failed$' || true
line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$out/run.log" | tail -n 1)
[ -n "$line" ] || line="0 passed, 1 failed"
passed=$((passed + ${line%% *}))
line=${line#*, }
failed=$((failed + ${line%% *}))
check "fields with a rule, and exempt functions, that no test has come to" < <(
    comm -23 <(guards --asked | sort) <(sort -u "$GUARDS_ASKED") || echo "does not work")

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
