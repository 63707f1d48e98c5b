#!/usr/bin/env bash
# model.sh - what gpusync.h reads without its lock, under C's memory model and with it every processor's
#
#   GENMC=DIR tests/model/model.sh [ROW...]      default: all rows
#
# GenMC explores every execution that a memory model allows of a small program, here two or three threads that call the
# header's own functions. A row (rows.c) is such a program: no assertion may fail, nothing may race, no memory may be
# used after its end. It is checked under RC11 and under IMM. header.pl makes the header ready at each run, so what is
# checked is the header that ships: code and memory orders stay, messages to Metal and the clock are functions of
# world.h. The locks are atomics that acquire and release, which is what os_unfair_lock promises; row `missed` needs
# more of them: see world.h. Below each row stand faults, Perl that weakens an order or exchanges two statements of the header: the
# row has to see each, under RC11.
#
# What is not looked at: times (the clock stands still), what happens between the steps that a row has, Metal itself.
#
# GenMC is in no distribution. From its public repository, https://github.com/MPI-SWS/genmc:
#     apt-get install clang-14 llvm-14-dev libclang-14-dev libffi-dev libedit-dev zlib1g-dev autoconf automake libtool
#     git checkout v0.10.3      # "Release GenMC v0.10.3"
#     autoreconf --install && ./configure --with-llvm=/usr/lib/llvm-14 && make
#
# `make test-model GENMC=DIR` calls this. BUILD: where the programs go. CLANG, OPT: LLVM 14's. V=1: executions and
# seconds. MODELS: rc11, imm or both. Ends with one line "N passed, N failed".

# shellcheck disable=SC2016,SC2028 # Perl in quotes
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${BUILD:-$here/../../build}/model
genmc=${GENMC:-}/genmc
clang=${CLANG:-clang-14} opt=${OPT:-opt-14}
die() {
    echo "$0: $*" >&2
    exit 1
}
[ -n "${GENMC:-}" ] || die "GENMC is not set: the directory of a built GenMC 0.10.3. How to get one stands in $0"
[ -x "$genmc" ] || die "no program $genmc: GENMC is to be the directory of a built GenMC 0.10.3"
for tool in "$clang" "$opt" perl; do
    command -v "$tool" >/dev/null || die "no $tool"
done
mkdir -p "$out"
passed=0 failed=0 chosen=" $* " row='' flags=''

verdict() { # FAULT MODEL FLAG...: sets `verdict` to green, red, or what else came, and `cost`
    local fault=$1 model=$2 text
    shift 2
    verdict=broken cost=
    perl "$here/header.pl" "$fault" <"$here/../../gpusync.h" >"$out/header.h" || return
    "$clang" -c -emit-llvm -O0 -g -Xclang -disable-O0-optnone -fno-builtin -w -D__CONFIG_GENMC_INODE_DATA_SIZE=64 \
        -I "$GENMC/include" -I "$out" "-DROW_$row" "$@" -o "$out/row.bc" "$here/rows.c" || return
    # The checker's own inliner and caches are off: the first takes long for a large program, the last has a fault.
    "$opt" -passes='always-inline,function(sroa),cgscc(inline),function(sroa,early-cse<memssa>,dce),globaldce' \
        -inline-threshold=20000 "$out/row.bc" -o "$out/row.opt.bc" || return
    timeout "${TIME_LIMIT:-120}" "$genmc" "--$model" --disable-estimation --disable-loop-jump-threading \
        --disable-function-inliner --disable-instruction-caching --input-from-bitcode-file -- "$out/row.opt.bc" \
        >"$out/row.txt" 2>&1
    case $? in
    0) verdict=green ;;
    42) verdict=red ;;
    *) verdict="broken, $? of GenMC" ;;
    esac
    text=$(sed -n 's/^Number of complete executions explored: //p; s/^Number of blocked executions seen: /+/p
                   s/^Total wall-clock time: //p; s/^Error: //p' "$out/row.txt")
    cost=${text//$'\n'/ }
}

judge() { # WANTED NAME
    if [ "$verdict" = "$1" ]; then
        passed=$((passed + 1))
        [ -z "${V:-}" ] || echo "$1: $2 ($cost)"
    else
        failed=$((failed + 1))
        echo "FAILED: $2 is $verdict, not $1"
        tail -n 30 "$out/row.txt"
    fi
}

row() { # ROW FLAG...
    row=$1 flags=${*:2}
    [ "$chosen" = "  " ] || [ "${chosen/ $row /}" != "$chosen" ] || { row=; return; }
    local model
    # shellcheck disable=SC2086 # flags are words
    for model in ${MODELS:-rc11 imm}; do
        verdict '' $model $flags
        judge green "$row${flags:+ $flags}, $model"
    done
}

fault() { # NAME PERL
    [ -n "$row" ] || return
    # shellcheck disable=SC2086
    verdict "$2" rc11 $flags
    judge red "$row${flags:+ $flags}: $1"
}

# Perl for faults. FUNCTION is where, the others are patterns.
relax() { # FUNCTION ACCESS
    echo 's{(\n[^\n]*\b'"$1"'\([^;]*?\)\n\{.*?)('"$2"')}{my ($head, $it) = ($1, $2);
        $it =~ s/GPUSYNC__STORE(_SEQ)?\((.*)\)$/__atomic_store_n($2, __ATOMIC_RELAXED)/;
        $it =~ s/GPUSYNC__LOAD(_SEQ)?\((.*)\)$/__atomic_load_n($2, __ATOMIC_RELAXED)/;
        $it =~ s/GPUSYNC__(ADD|SUB)\((.*)\)$/"__atomic_fetch_" . lc($1) . "($2, __ATOMIC_RELAXED)"/e;
        $it =~ s/__ATOMIC_(ACQUIRE|SEQ_CST)/__ATOMIC_RELAXED/;
        $head . $it}se'
}
exchange() { # FUNCTION FIRST SECOND
    echo 's{(\n[^\n]*\b'"$1"'\([^;]*?\)\n\{.*?)('"$2"')(.*?)('"$3"')}{$1$4$3$2}s'
}
delay() { # FUNCTION FIRST SECOND: moves the first to behind the second
    echo 's{(\n[^\n]*\b'"$1"'\([^;]*?\)\n\{.*?)('"$2"')(.*?'"$3"')}{$1$3$2}s'
}
record_late=$(delay gpusync__settle 'if \(outcome == GPUSYNC__BADLY\)\n *gpusync__settle_badly\(q, w, after\);' \
    'gpusync__publish\(q, w->unordered, after\);')
completed=$(relax gpusync__publish 'GPUSYNC__STORE\(unordered \? &head->ended : &head->completed, settled\)')

row completed
fault "completed is stored relaxed" "$completed"
fault "is_done loads it relaxed" "$(relax gpusync_is_done '__atomic_load_n\(&head->completed, __ATOMIC_ACQUIRE\)')"
fault "no fence follows the status" 's/__atomic_thread_fence\(__ATOMIC_ACQUIRE\);(\n    return status)/$1/'

for point in 1 GPUSYNC_EVERYTHING; do
    row bad -DPOINT=$point
    fault "completed is stored relaxed" "$completed"
    fault "the record comes after completed" "$record_late"
    fault "what has failed is read before completed" \
        's/if \(!gpusync_is_done\(q, ticket\)\)/uint64_t bad = GPUSYNC__LOAD(&q->record.bad);
         bool unreported = GPUSYNC__LOAD(&q->record.unreported);\n$&/;
         s/(return !|>= )GPUSYNC__LOAD\(&q->record\.(bad|unreported)\)/$1$2/g'
done

row stuck
fault "the record comes after completed" "$record_late"
fault "a wait that tells hides what sticks" 's/ \|\| gpusync__sticks\(q\)\);/);/'

for first in true false; do
    load=completed
    [ $first = false ] || load=ended
    row busy_queue -DFIRST=$first
    fault "the number of its end is stored relaxed" "$completed"
    fault "$load is loaded relaxed" "$(relax gpusync_is_done "__atomic_load_n\(&head->$load, __ATOMIC_ACQUIRE\)")"
done

row failed
fault "error comes after FAILED" "$(delay gpusync__fail 'COPY_ERROR\(t->error, \*error\);' \
    'gpusync__alarm\(&t->object, GPUSYNC__FAILED\);')"
fault "alert is stored relaxed" "$(relax gpusync__alarm 'GPUSYNC__STORE\(&t->alert, t->alert \| reason\)')"
fault "alert is loaded relaxed" "$(relax gpusync_timeline_query 'GPUSYNC__LOAD\(&timeline->object.alert\)')"
fault "the value is read before alert" "$(delay gpusync_timeline_query 'bool failed =[^;]*;' \
    '\*value = [^;]*;')"

fault "the value is stored relaxed" "$(relax gpusync__reach 'GPUSYNC__STORE\(&object->head.completed, value\)')"
fault "the value is loaded relaxed" "$(relax gpusync_timeline_query \
    'GPUSYNC__LOAD\(&timeline->object.head.completed\)')"

row failed -DWAIT
fault "the value is loaded relaxed" "$(relax gpusync_timeline_wait \
    'GPUSYNC__LOAD\(&timeline->object.head.completed\)')"

row lost
fault "lost_ns comes after lost" "$(delay gpusync__lose 'dev->lost_ns = now;' 'GPUSYNC__STORE\(&dev->lost, [^;]*;')"
fault "lost is stored relaxed" "$(relax gpusync__lose 'GPUSYNC__STORE\(&dev->lost, [^;]*\)(?=;)')"
fault "lost is loaded relaxed" "$(relax gpusync__lost_long 'GPUSYNC__LOAD\(&dev->lost\)')"

row closed
fault "abandon does not take the order lock" 's/(\n    gpusync__mutex_(un)?lock\(&q->order\);){2}//'
fault "new work is not refused" 's/alert < GPUSYNC__STUCK \? GPUSYNC_OK : gpusync__refusal\(alert, marker\)/GPUSYNC_OK/'

split='gpusync__unlock(DEV); gpusync__lock(DEV);'
row wakers
fault "woken is cleared before next is read" "$(delay gpusync__unpark_one 'after->woken = s->next;' \
    'GPUSYNC__STORE_SEQ\(&s->woken, false\);')"
fault "wakers goes down before the unpark" "$(delay gpusync__unpark_one 'dev->hooks.unpark\([^;]*;' \
    'GPUSYNC__SUB\(&s->wakers, 1\);')"
fault "woken is cleared relaxed" "$(relax gpusync__unpark_one 'GPUSYNC__STORE_SEQ\(&s->woken, false\)')"
fault "woken is loaded relaxed" "$(relax gpusync__prepare 'GPUSYNC__LOAD_SEQ\(&s->woken\)')"
fault "wakers goes down relaxed" "$(relax gpusync__unpark_one 'GPUSYNC__SUB\(&s->wakers, 1\)')"
fault "wakers is loaded relaxed" "$(relax gpusync__outlast 'GPUSYNC__LOAD_SEQ\(count\)')"
unasked='s/ && !GPUSYNC__LOAD_SEQ\(&s->woken\)//'
fault "prepare does not ask for woken" "$unasked"
fault "no thread adds to wakers" 's/GPUSYNC__ADD\(&s->wakers, 1\);//; s/GPUSYNC__SUB\(&s->wakers, 1\);//'
fault "check and list in two holds" \
    "s/bool over = gpusync__check\(wait\);(?=\n    bool stays)/$& $split/;s/\bDEV\b/wait->device/g"
fault "wakers is loaded relaxed at the end" "$(relax gpusync__sleeper_end 'GPUSYNC__LOAD_SEQ\(&s->wakers\)')"
fault "the sleeper does not outlast its wakers" 's/gpusync__outlast\(dev, s, &s->wakers, 0, GPUSYNC_FOREVER\);/;/'

row wakers -DCLOSE
fault "CLOSED comes after the sleepers, in a hold of its own" "$(delay gpusync__shut \
    'gpusync__alarm\(t, GPUSYNC__CLOSED\);' 't->kind->shut\([^;]*;'
    ); s/gpusync__alarm\(t, GPUSYNC__CLOSED\);/$split $&/; s/\bDEV\b/t->device/g"
fault "prepare does not ask for woken" "$unasked"

row missed -DSEQ
set='GPUSYNC__STORE_SEQ\(&q->held.missed, true\);'
fault "missed is set with release" "s/$set/GPUSYNC__STORE(&q->held.missed, true);/"
fault "enter loads missed with acquire" 's/(bool missed = )GPUSYNC__LOAD_SEQ/$1GPUSYNC__LOAD/'
fault "enter reads missed before the unlock" "$(delay gpusync__enter 'gpusync__mutex_unlock\(&q->order\);(?=\n    bool)' \
    'bool missed = [^;]*;')"
fault "missed is set when the try has failed" "s/$set/if (!gpusync__mutex_try_lock(&q->order)) { $&
    return; } gpusync__mutex_unlock(&q->order); $&/"

fault "the lock acquires and releases, and no more" 's/\z/#undef SEQ\n/'

row missed -DSEQ -DNOTHING
fault "issue loads missed with acquire" \
    's/while \(GPUSYNC__LOAD_SEQ\(&q->held.missed\)/while (GPUSYNC__LOAD(&q->held.missed)/'
fault "issue does not look after its unlock" \
    's/while \((GPUSYNC__LOAD_SEQ\(&q->held.missed\) && [^{]*)\) \{/for (bool once = true; once && $1; once = false) {/'
fault "missed is cleared after the search" "$(delay gpusync__issue 'GPUSYNC__STORE_SEQ\(&q->held.missed, false\);' \
    'gpusync__unlock\(dev\);')"

MODELS=rc11 row missed -DSEQ -DTWO
fault "a send is not followed by a search" "s/$set \/\* there may be more \*\///"

row job
clear='GPUSYNC__STORE_SEQ\(&job->listed, false\);'
fault "listed is cleared after the run" "$(delay gpusync__work_off "$clear" 'run\(job, after\);')"
fault "listed is cleared before next is read" "$(delay gpusync__work_off 'after->jobs = job->next;' "$clear")"
fault "listed is cleared before the function is read" "$(delay gpusync__work_off \
    'gpusync__run run = job->run;' "$clear")"
fault "listed is cleared relaxed" "$(relax gpusync__work_off 'GPUSYNC__STORE_SEQ\(&job->listed, false\)')"
fault "listed is loaded relaxed" "$(relax gpusync__later 'GPUSYNC__LOAD_SEQ\(&job->listed\)')"
fault "no thread asks whether it is listed" \
    's/if \(GPUSYNC__LOAD_SEQ\(&job->listed\)\)\n *return false;//; s/GPUSYNC__STORE_SEQ\(&job->listed, false\);//; s/job->listed = true;//'

row busy
fault "calling goes down relaxed" "$(relax gpusync__caller_remove 'GPUSYNC__STORE\(&dev->calling, dev->calling - 1\)')"
fault "calling is loaded relaxed" "$(relax gpusync__outlast 'GPUSYNC__LOAD_SEQ\(count\)')"
fault "calling goes up after the object has gone, in a hold of its own" \
    "$(delay gpusync__next_due 'gpusync__caller_add\([^;]*;' 'object_gone[^;]*;\n *\}\n *gpusync__unlock\(dev\);'
    ); s/(?<=gpusync__unlock\(dev\);)(gpusync__caller_add\([^;]*;)/gpusync__lock(dev); \$1 gpusync__unlock(dev);/"

row asked
fault "asked is cleared after the callbacks" "$(delay gpusync__answer 'GPUSYNC__STORE_SEQ\(&dev->asked, 0\);' \
    'gpusync__run_due\([^;]*;')"

MODELS=rc11 row asked -DTWO
fault "listed is cleared with release" 's/GPUSYNC__STORE_SEQ(?=\(&job->listed, false\))/GPUSYNC__STORE/'
fault "listed is loaded with acquire" 's/GPUSYNC__LOAD_SEQ(?=\(&job->listed\))/GPUSYNC__LOAD/'

row warm
done='GPUSYNC__STORE\(&item->state, GPUSYNC__DONE\)'
fault "DONE is stored relaxed" "$(relax gpusync__make_once "$done")"
fault "DONE is loaded relaxed" 's/GPUSYNC__LOAD\(&item->state\)/__atomic_load_n(&item->state, __ATOMIC_RELAXED)/g'
fault "completed rises before DONE" "$(delay gpusync__make_once "$done;" \
    'GPUSYNC__STORE\(&t->head.completed, [^;]*;')"
fault "completed is stored relaxed" "$(relax gpusync__make_once \
    'GPUSYNC__STORE\(&t->head.completed, t->head.completed \+ 1\)')"
fault "completed is loaded relaxed" "$(relax gpusync_warmup_get 'GPUSYNC__LOAD\(&t->head.completed\)')"

row refs
fault "revive takes an object that is about to go" 's/return n != 0;/return true;/'
fault "references go down relaxed" "$(relax gpusync__unref 'GPUSYNC__SUB\(&t->refs, 1\)')"

[ $((passed + failed)) -gt 0 ] || die "no such row:$chosen"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
