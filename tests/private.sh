#!/usr/bin/env bash
# private.sh - tests ask the library through its public calls, and through tests/probe.h
#
# Names what else under tests/ uses what is private to gpusync.h: its names (gpusync__, GPUSYNC__), and members of its
# structures, which are found by compiling each test with nothing but the public part of the header. Prints nothing when
# there is none. CC: the compiler. BUILD: where the copy is made.

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.."
build=${BUILD:-$PWD/build}
compiler=${CC:-gcc}
dir=$build/private

# Where the names are symbols or words to look for, and not used. What else may use them says why here.
# example_run.h: keeps the bodies out of the examples that it compiles, by the header's own guard.
# model/: a model checker gets through few steps, so its harnesses call the one function that is in question.
except='^tests/(probe\.h|example_run\.h|locks\.h|private\.sh|floors\.sh|shape\.py|compile\.sh|compile/|guards/|softmetal/|macho/mutants\.sh|fuzz/proof\.sh|bench/counts\.sh|model/|mutants)'

files=$(git ls-files --cached --others --exclude-standard tests 2>/dev/null || find tests -type f)
echo "$files" | grep -vE "$except" | tr '\n' '\0' | xargs -0 grep -nEI '\b(gpusync|GPUSYNC)__' /dev/null || true

rm -rf "$dir"
mkdir -p "$dir"
sed '/^#endif \/\* GPUSYNC_H \*\/$/q' gpusync.h >"$dir/gpusync.h"
if cmp -s gpusync.h "$dir/gpusync.h"; then
    echo "gpusync.h: no line '#endif /* GPUSYNC_H */' ends the public part"
fi
cp -R tests examples "$dir/"
cd "$dir"
for test in tests/test_*.c tests/known_red/*.c; do
    [ -e "$test" ] || continue
    log=$("$compiler" -std=c11 -D_GNU_SOURCE -DGPUSYNC_OBJC=1 -DPROBE_BLIND -w -fsyntax-only -Itests -Itests/softmetal \
        "$test" 2>&1) || echo "$log" | grep -E 'error' | head -n 5
done
