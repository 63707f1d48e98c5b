#!/usr/bin/env bash
# tree.sh - what git has: names at the top, layout, scripts. Ends with one line "N passed, N failed"

set -u
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0
check() { # NAME, and what was found wrong on stdin
    if found=$(cat) && [ -z "$found" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED: %s:\n%s\n' "$1" "$(head -n 20 <<<"$found")"
    fi
}
files=$(git ls-files)
[ -n "$files" ] || { echo "git has no files"; exit 1; }
grep_in() { # PATTERN-OF-FILES PATTERN
    grep -E "$1" <<<"$files" | tr '\n' '\0' | xargs -0 grep -nE "$2" /dev/null || true
}
check "more than gpusync.h README.md Makefile examples tests at the top" < <(
    cut -d/ -f1 <<<"$files" | sort -u | grep -vxE 'gpusync\.h|README\.md|Makefile|examples|tests|\..*' || true)
check "blanks at the end of lines" < <(grep_in '\.(h|c|m|S|sh|mk|yml|md)$|Makefile|run$' '[[:space:]]+$')
check "tabs in C" < <(grep_in '\.(h|c|m)$' $'\t')
check "lines of gpusync.h with more than 120 characters" < <(
    awk 'length > 120 { print NR ": " length }' gpusync.h 2>&1)
check "gpusync.h is not laid out as .clang-format says" < <(
    clang-format --style=file gpusync.h 2>&1 | diff gpusync.h - 2>&1)
check "functions and structs of gpusync.h are named that are gone" < <(
    have=$(grep -oE '\bgpusync__[a-z0-9_]+' gpusync.h | sort -u)
    grep -vxE 'gpusync\.h|tests/mutants/plant\.pl' <<<"$files" | tr '\n' '\0' |
        xargs -0 grep -ohE '\bgpusync__[a-z0-9_]*[a-z0-9]\b' | sort -u | grep -vxFf <(echo "$have") || true)
check "scripts that cannot be executed, or have syntax errors" < <(
    for name in .ci/run tests/*.sh tests/*/*.sh tests/*.py; do
        [ -x "$name" ] || echo "$name"
        case $name in *.py) ;; *) bash -n "$name" 2>&1 || true ;; esac
    done)
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
