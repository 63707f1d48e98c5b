#!/usr/bin/env bash
# pictures.sh - are the pictures of examples/pictures what their JSON gives, byte by byte?
#
#   tests/pictures.sh DIRECTORY      DIRECTORY: where to draw
#
# `make test-pictures` calls this. The charts of tests/bench/chart.sh are drawn too, which needs gnuplot and jq: without
# them that is left out, and said to be.
#
# Ends with exactly one line "N passed, N failed": the pictures, and the charts.

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.." || exit 1
out=$1 pictures=examples/pictures
passed=0 failed=0
mkdir -p "$out"
if ! python3 -B $pictures/pictures.py --draw "$out"; then
    failed=1
    echo "FAILED: pictures.py does not draw all pictures"
fi
for picture in "$pictures"/*.svg; do
    name=$(basename "$picture")
    if cmp "$picture" "$out/$name"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name is not what its JSON gives: call make pictures"
    fi
done

rm -rf "$out/charts"
if ! command -v gnuplot >/dev/null || ! command -v jq >/dev/null; then
    echo "skipped: the charts of tests/bench/chart.sh, for want of gnuplot or jq"
elif tests/bench/chart.sh $pictures/waiting.json "$out/charts" &&
    [ -s "$out/charts/waiting-150.svg" ] && [ -s "$out/charts/waiting-1000.svg" ]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo "FAILED: tests/bench/chart.sh does not draw $pictures/waiting.json"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
