#!/usr/bin/env bash
# calls.sh - a macro for each public function of gpusync.h, which counts the calls of it
#
#   tests/fuzz/calls.sh GPUSYNC_H >fuzz_calls.h

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
sed '/^#endif \/\* GPUSYNC_H \*\/$/q' "$1" | grep -E '^GPUSYNC_API|^ +gpusync_' | grep -oE '\bgpusync_[a-z][a-z0-9_]*\(' |
    tr -d '(' | sort -u | awk '
        { name[n++] = $1 }
        END { print "static const char *const fuzz_names[] = {"
              for (i = 0; i < n; i++) printf "    \"%s\",\n", name[i]
              print "};"
              for (i = 0; i < n; i++)
                  printf "#define %s(...) (fuzz_call(%d, \"%s\"), %s(__VA_ARGS__))\n", name[i], i, name[i], name[i] }'
