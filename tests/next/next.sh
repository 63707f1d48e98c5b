#!/usr/bin/env bash
# next.sh - the second floor with one lock over the graph, beside the one that ships: tests/next/next.sh [GOAL...]
#
# second-floor.patch rebuilds the second floor of gpusync.h, and the tests that look inside it. When that floor passes
# everything it takes the other one's place, and this folder goes: gpusync.h never has both.
# Copies the tree to BUILD/next, patches the copy, and runs "make GOAL..." there (test). With --check it patches a copy
# and no more, and prints what did not apply: .ci/run tree calls it so.

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/../.."

BUILD="${BUILD:-$PWD/build}"
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
copy=$BUILD/next
mkdir -p "$BUILD"
rm -rf "$copy.new"
mkdir "$copy.new"
tar -c --exclude='./build*' --exclude=./.git . | tar -x -C "$copy.new"
patched=0
patch -d "$copy.new" -p1 -s --no-backup-if-mismatch <tests/next/second-floor.patch || patched=$?
if [ "${1:-}" = --check ]; then
    rm -rf "$copy.new"
    exit $patched
fi
[ $patched = 0 ] || exit $patched
# A file that is the same keeps its time, so that make builds again only what has changed.
mkdir -p "$copy"
(cd "$copy.new" && find . -type f -print0 | while IFS= read -r -d '' name; do
    cmp -s "$name" "$copy/$name" || { mkdir -p "$copy/$(dirname "$name")" && cp -p "$name" "$copy/$name" && touch "$copy/$name"; }
done)
rm -rf "$copy.new"
[ $# -gt 0 ] || set -- test
make -C "$copy" BUILD="$copy/build" "$@"
