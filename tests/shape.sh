#!/usr/bin/env bash
# shape.sh - the shape of gpusync.h: its sections, and what a reader has to hold, against the limits of shape.txt
#
#   tests/shape.sh [HEADER]               a table of the sections, and one of the measures; fails where a limit is broken
#   UPDATE=1 tests/shape.sh               the same, and moves the limits that the header does better than. Never the others
#   tests/shape.sh --functions [HEADER]   the functions of the implementation, the longest first
#   tests/shape.sh --limits [HEADER]      says which limits are broken, or nothing
#   tests/shape.sh --check [HEADER]       says what else is wrong with the header, or nothing:
#       a function that a comment names and that is not defined; a function of the implementation that is declared ahead and
#       not listed in >>objects, nor has a comment that says why; a function that knows of Metal 4, stands outside of
#       >>metal4, and is not in the list there; a relaxed store that does not say what publishes it
#
# Linux only. shape.py says what is measured. LIMITS: the file; default shape.txt beside this.

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.."
what=table
case ${1:-} in
--functions | --limits | --check)
    what=$1
    shift
    ;;
esac
exec python3 -B tests/shape.py "$what" "${1:-gpusync.h}" "${LIMITS:-tests/shape.txt}" "${UPDATE:-0}"
