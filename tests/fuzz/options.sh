#!/usr/bin/env bash
# options.sh - what fuzz.sh and proof.sh tell the two programs, fuzz and threads; read by both

[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
corpus_of() { # PROGRAM
    if [ "$1" = fuzz ]; then echo "$folder/corpus"; else echo "$folder/corpus_threads"; fi
}
options_of() { # PROGRAM
    local length=400
    [ "$1" = fuzz ] || length=900
    # Entropic schedules cost more than the inputs do, from some thousand features on.
    echo "-entropic=0 -detect_leaks=0 -timeout=30 -rss_limit_mb=2048 -max_len=$length -len_control=0"
}
# Objects and memory are counted by the programs themselves. A race ends the program.
export ASAN_OPTIONS="detect_stack_use_after_return=1:detect_leaks=0"
export TSAN_OPTIONS="suppressions=$folder/../softmetal/tsan.supp:history_size=5:second_deadlock_stack=1"
TSAN_OPTIONS="$TSAN_OPTIONS:halt_on_error=1:report_signal_unsafe=0"
