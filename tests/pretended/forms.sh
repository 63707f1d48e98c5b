#!/usr/bin/env bash
# forms.sh - runs the examples on a pretended GPU, in each of its forms
#
#   tests/pretended/forms.sh PROGRAM...
#
# The output of each has to be as tests/expect/NAME.txt says. Then each line of it that was asked for is exchanged for
# another one, and expect.pl has to see that. `make test-examples` calls this. LOGS: where the outputs go.
# Ends with one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
here=$(cd "$(dirname "$0")/.." && pwd)
passed=0 failed=0

count() { # LINES that end with "N passed, N failed"; shows the others
    local ok no
    read -r ok _ no _ <<<"${1##*$'\n'}"
    [[ "$ok $no" =~ ^[0-9]+\ [0-9]+$ ]] || ok=0 no=1 # it has not come to its end
    passed=$((passed + ok)) failed=$((failed + no))
    [ "$1" = "${1##*$'\n'}" ] || echo "${1%$'\n'*}"
}

for form in device no-metal4 no-device no-times fast slow; do
    echo "--- $form"
    count "$(FORM=$form LOGS=$LOGS/$form "$here/run.sh" --examples "$@")"
    for program in "$@"; do
        log=$LOGS/$form/$(basename "$program").log
        status=0
        ! grep -q '^skipped: ' "$log" || status=77
        count "$("$here/expect.pl" --plant "$here/expect/$(basename "$program").txt" "$log" $status $form)"
    done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
