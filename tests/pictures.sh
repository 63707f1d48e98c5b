#!/usr/bin/env bash
# pictures.sh - are the pictures of examples/pictures what their JSON gives, byte by byte?
#
#   tests/pictures.sh DIRECTORY      DIRECTORY: where to draw
#
# `make test-pictures` calls this. Another gnuplot draws in another way: with one that did not draw them the two charts
# are left out, and said to be.
#
# Ends with exactly one line "N passed, N failed": the pictures.

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.." || exit 1
out=$1 pictures=examples/pictures
passed=0 failed=0
mkdir -p "$out"
python3 -B $pictures/pictures.py --draw "$out" && tests/bench/chart.sh $pictures/waiting.json "$out" || failed=1
here=$(gnuplot --version)
for picture in "$pictures"/*.svg; do
    name=$(basename "$picture")
    by=$(sed -n 's,^<desc>Produced by GNUPLOT \(.*[0-9]\) *</desc>,gnuplot \1,p' "$picture")
    if [ -n "$by" ] && [ "$by" != "$here" ]; then
        echo "skipped: $name was drawn by $by, and here is $here"
    elif cmp "$picture" "$out/$name"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name is not what its JSON gives: call make pictures, or make bench-chart with PICTURES=1"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
