#!/usr/bin/env bash
# readme.sh - compiles, and where it can runs, the code blocks of README.md and of the pages in examples/ and tests/
#
#   eval "$(make -s softmetal)"; tests/readme.sh [FILE...]
#
# A line "<!-- compile: HOW -->" right above a block says how:
#   file          declarations and functions: compiled       body   statements, compiled inside a function
#   run           statements, which run with softmetal in a program that has what `wrap` declares, and fail by returning
#                 anything but 0; of sh: commands, which run in a directory that looks like the project's own
#   skip REASON   neither compiled nor run
# Blocks of c, cpp and objc need such a line, except c with `int main`: that is compiled as C99, linked with softmetal,
# and run; the one of README.md also without Metal, where it has to fail and say why. In sh each `make TARGET` is in the
# Makefile, and no line has a comment: a pasted one is none to zsh. Links lead to files and headings of ours.
# Without a FILE tests/picture.py draws its picture again: that has the texts of examples/killed.svg.
#
# Environment: CPPFLAGS, LDLIBS as `make softmetal` prints them; CC (cc); BUILD: results go to BUILD/readme (build).
# Needs gcc, clang, make, python3. Ends with one line "N passed, N failed".

set -u
die() { echo "readme.sh: $*" >&2; echo "0 passed, 1 failed"; exit 1; }
[ "$(uname -s)" = Linux ] || die "Linux only"
[ -n "${CPPFLAGS:-}" ] && [ -n "${LDLIBS:-}" ] ||
    die 'CPPFLAGS and LDLIBS name no softmetal. First: eval "$(make -s softmetal)"'
root=$(cd "$(dirname "$0")/.." && pwd)
picture=
if [ $# -eq 0 ]; then
    picture=killed.svg
    set -- "$root"/{README.md,.github/CONTRIBUTING.md,examples/*.md,examples/with/README.md,tests/README.md}
fi
build=${BUILD:-$root/build} cc=${CC:-cc}
top=$build/readme passed=0 failed=0
unset CC CXX CFLAGS MAKEFLAGS MAKELEVEL MFLAGS V
# a result that a block ignores counts, a name that it leaves for the reader does not
flags="-Wall -Wextra -Wno-unused -Wunused-result -Werror -D_POSIX_C_SOURCE=200809L -I$root -I$root/examples"

fail() { # WHAT [LOG]
    failed=$((failed + 1))
    echo "FAILED: $1"
    [ $# -eq 1 ] || head -n 40 "$2" | sed 's/^/    | /'
}

# One file per block, N.LANGUAGE in the directory $out, with its line and its hint in N.about
split() { # PAGE
    awk -v out="$out" '
        !inside && /^ *```/ {
            inside = 1; n++
            language = $0; sub(/^ *```/, "", language); if (language == "") language = "text"
            if (language !~ /^[A-Za-z0-9+-]+$/) language = "unknown"
            print NR, language, (hint == "" ? "none" : hint) > (out "/" n ".about")
            printf "" > (file = out "/" n "." language)
            next }
        inside && /^ *``` *$/ { inside = 0; hint = ""; close(file); next }
        inside { print > file; next }
        /^<!-- compile: .*-->/ { hint = $0; sub(/^<!-- compile: */, "", hint); sub(/ *-->.*/, "", hint); next }
        !/^[ \t]*$/ { hint = "" }
        END { print n + 0 > (out "/count"); if (inside) print "open" > (out "/open") }' "$1"
}

prose() { awk '/^ *```/ { inside = !inside; next } !inside' "$1"; } # PAGE: without blocks
# What links call the headings: in small letters, a hyphen for each blank, no other signs
anchors() { prose "$1" | sed -n 's/^##* *//p' | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9_\n-'; } # PAGE

links() { # PAGE: those that lead nowhere
    local link target file status=0
    while read -r link; do
        case $link in *://* | mailto:*) continue ;; esac
        file=$1 target=${link%%#*}
        [ -z "$target" ] || file=$(dirname "$1")/$target
        if [ ! -e "$file" ]; then
            echo "($link): there is no $target" && status=1
        elif [ "$link" != "$target" ] && ! anchors "$file" | grep -qxF -e "${link#*#}"; then
            echo "($link): ${file#"$root/"} has no such heading" && status=1
        fi
    done < <(prose "$1" | sed 's/`[^`]*`//g' | grep -oE '\]\([^)]*\)' | sed 's/^](//; s/)$//')
    return $status
}

# What blocks of objc and cpp take from headers that Linux lacks: the names, with the types that they have there
apple='#include <pthread.h>
#define YES true
#define DISPATCH_TIME_FOREVER UINT64_MAX
enum { DISPATCH_TIME_NOW = 0 }; typedef bool BOOL; @class NSError; @protocol MTLTexture @end
typedef enum { MTLCommandBufferStatusError = 5 } MTLCommandBufferStatus;
@protocol MTLBlitCommandEncoder - (void)endEncoding; @end
@protocol MTLSharedEvent
- (void)notifyListener:(id)listener atValue:(uint64_t)value block:(void (^)(id<MTLSharedEvent>, uint64_t))block; @end
@protocol MTLCommandBuffer
@property(readonly) MTLCommandBufferStatus status; @property(readonly) NSError *error;
- (id<MTLBlitCommandEncoder>)blitCommandEncoder; - (void)presentDrawable:(id)drawable;
- (void)enqueue; - (void)commit; - (void)waitUntilCompleted;
- (void)addCompletedHandler:(void (^)(id<MTLCommandBuffer>))block;
- (void)encodeSignalEvent:(id<MTLSharedEvent>)event value:(uint64_t)value;
- (void)encodeWaitForEvent:(id<MTLSharedEvent>)event value:(uint64_t)value; @end
@protocol MTLCommandQueue - (id<MTLCommandBuffer>)commandBuffer; @end
@protocol CAMetalDrawable @property(readonly) id<MTLTexture> texture; @end
@interface CAMetalLayer - (id<CAMetalDrawable>)nextDrawable; @end
typedef struct dispatch_semaphore_s *dispatch_semaphore_t; extern uint64_t dispatch_time(uint64_t when, int64_t ns);
extern long dispatch_semaphore_wait(dispatch_semaphore_t, uint64_t), dispatch_semaphore_signal(dispatch_semaphore_t);
extern void report(NSError *error); extern int n, mine; extern id listener; extern BOOL finished;
extern id<MTLCommandQueue> metalQueue; extern id<MTLCommandBuffer> buffer, produced, consumed, buffers[4];
extern id<MTLSharedEvent> event; extern CAMetalLayer *layer; extern dispatch_semaphore_t frames, reached;
extern pthread_mutex_t lock; extern pthread_cond_t changed;'
metal_cpp='static void *buffer;
namespace MTL { struct CommandBuffer; struct CommandQueue { CommandBuffer *commandBuffer(); }; }
extern MTL::CommandQueue *mtlQueue;'

wrap() { # FILE LANGUAGE: its statements in a program
    local includes='^ *# *(include|define|import)'
    grep -E "$includes" "$1"
    printf '%s\n' '#include "gpusync.h"' '#include "softmetal.h"' '#include <stdio.h>' '#include <stdlib.h>' \
        '#include <string.h>' 'static gpusync_device *device; static gpusync_queue *queue;' \
        'static gpusync_timeline *timeline; static gpusync_ticket ticket;' \
        'static gpusync_result result; static void *metal_device, *metal_queue;'
    case $2 in objc) echo "$apple" ;; cpp) echo "$metal_cpp" ;; c) echo 'static void *buffer;' ;; esac
    echo 'static int block(void) {'
    grep -vE "$includes" "$1"
    echo 'return 0; }'
    [ "$2" != c ] || printf '%s\n' 'int main(void) {' 'if (gpusync_device_create(NULL, &device) ||' \
        'gpusync_queue_create(device, NULL, &queue) || gpusync_timeline_create(device, NULL, &timeline) ||' \
        'gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer)) return 100;' 'return block(); }'
}

program() { # FILE
    local implementation=$top/implementation.o
    ! grep -q '^ *# *define GPUSYNC_IMPLEMENTATION' "$1" || implementation=
    "$cc" -std=c99 $flags $CPPFLAGS -xc "$1" -xnone $implementation $LDLIBS -o "$1.program" || return
    timeout -k 5 60 "$1.program" </dev/null || { echo "it ended with status $?" && return 1; }
}

# What a stranger on Linux sees first: a status of 1, and a text that names the call and has the reason
without_metal() { # FILE
    local text reason='Metal is unavailable'
    "$cc" -std=c99 $flags -DGPUSYNC_OBJC=0 -xc "$1" -o "$1.without" || return
    text=$(timeout -k 5 60 "$1.without" 2>&1 </dev/null)
    [ $? -eq 1 ] && grep "gpusync_device_create.*$reason" <<<"$text" && return
    echo "without Metal it has to end with 1 and say: gpusync_device_create ... $reason. It says: $text" && return 1
}

commands() { # FILE HOW
    local word status=0
    for word in $(grep -oE '(^|[^a-z-])make( [^;&|)]*|$)' "$1" | sed 's/^[^a-z]*make//; s/-C [^ ]*//'); do
        case $word in *=* | -*) continue ;; esac
        grep -qE "^([a-z-]+ )*$word( [a-z-]+)*:([^=]|\$)" "$root/Makefile" || { echo "no target $word" && status=1; }
    done
    if grep -nE '(^|[[:space:]])#' "$1"; then echo "a comment" && status=1; fi
    case $2 in
    none) return $status ;;
    run) [ $status -eq 0 ] && cd "$top/tree" && unset SOFTMETAL CPPFLAGS LDLIBS && BUILD=$build \
        timeout -k 5 300 bash -e "$1" </dev/null ;;
    *) echo "of sh there is run and skip, not $2" && return 1 ;;
    esac
}

block() { # FILE LANGUAGE HOW PAGE
    local source=$1.source mode how=$3
    if [ "$2" = sh ]; then commands "$1" "$3"; return; fi
    [ "$2" != c ] || ! grep -q 'int main' "$1" || how=program
    case $how in
    program) program "$1" && { [ "$4" != "$root/README.md" ] || without_metal "$1"; }; return ;;
    file) { echo '#include "gpusync.h"' && cat "$1"; } >"$source" ;;
    body | run) wrap "$1" "$2" >"$source" ;;
    *) echo "say how to compile it: <!-- compile: body -->, file, run or skip REASON in the line above" && return 1 ;;
    esac
    case $2-$3 in
    c-run) program "$source"; return ;;
    *-run) echo "what is run is c or sh" && return 1 ;;
    c-*) mode='-xc -std=c99' ;;
    cpp-*) mode='-xc++ -std=c++17' ;;
    objc-*) mode='-xobjective-c -fobjc-runtime=gnustep-2.0 -fobjc-arc -fblocks' ;;
    esac
    clang $mode $flags -Wno-unused-parameter $CPPFLAGS -fsyntax-only "$source" # gcc sees no ignored result in that
}

# README shows the program at the head of gpusync.h, and says how many lines of it there are to read
same_program() {
    sed -n '/^       #define GPUSYNC_IMPLEMENTATION/,/^   Contents/p' "$root/gpusync.h" | sed '$d; s/^       //' | sed '$d' >"$top/head"
    sed -n '/^#define GPUSYNC_IMPLEMENTATION/,/^```/p' "$root/README.md" | sed '$d' | diff "$top/head" -
}
line_of() { grep -n "^/\* --* >>$1 --" "$root/gpusync.h" | cut -d: -f1; }
same_lines() {
    local front=$(($(line_of impl) - 1)) core=$(($(line_of more) - $(line_of core)))
    local says="first $(sed -E 's/(.*)(...)$/\1,\2/' <<<"$front") lines, which are the documentation, a program with one queue needs $core "
    tr '\n' ' ' <"$root/README.md" | grep -qF "$says" || { echo "README does not say: $says" && return 1; }
}

texts() { sed -n 's/.*<text[^>]*>\([^<]*\)<.*/\1/p' "$1" | grep -vx '[0-9]*'; } # SVG: those that are no numbers

draw() { # PICTURE
    CC=$cc timeout -k 5 120 "$root/tests/picture.py" "$top/$1" </dev/null &&
        diff <(texts "$root/examples/$1") <(texts "$top/$1") && texts "$top/$1" | grep -q .
}

rm -rf "$top" && mkdir -p "$top/tree/build"
ln -s "$root"/{gpusync.h,Makefile,examples,tests} "$top/tree/"
echo '#include "gpusync.h"' | "$cc" -std=c99 $flags $CPPFLAGS -DGPUSYNC_IMPLEMENTATION -xc -c - \
    -o "$top/implementation.o" || die "gpusync.h does not compile"
for page; do
    shown=${page#"$root/"}
    out=$top/${shown//\//_}
    mkdir -p "$out"
    [ -s "$page" ] || { fail "there is no $shown" && continue; }
    split "$page"
    [ ! -e "$out/open" ] || fail "the last code block of $shown has no end"
    if links "$page" >"$out/links.log"; then passed=$((passed + 1)); else fail "links of $shown" "$out/links.log"; fi
    for ((i = 1; i <= $(cat "$out/count"); i++)); do
        read -r line language how reason <"$out/$i.about"
        file=$out/$i.$language name="$shown line $line, $language"
        case $language in
        c | cpp | objc | sh) ;;
        text | cmake | swift | metal | diff) continue ;;
        *) fail "$name: not a language that this script knows" && continue ;;
        esac
        if [ "$how" = skip ]; then
            if [ -n "$reason" ]; then echo "skipped: $name: $reason"; else fail "$name: skip without a reason"; fi
        elif (block "$file" "$language" "$how" "$page") >"$file.log" 2>&1; then
            passed=$((passed + 1))
        else
            fail "$name" "$file.log"
        fi
    done
done
for check in same_program same_lines; do
    if $check >"$top/$check.log" 2>&1; then passed=$((passed + 1)); else fail "README.md: $check" "$top/$check.log"; fi
done
if [ -n "$picture" ]; then
    if draw "$picture" >"$top/picture.log" 2>&1; then
        passed=$((passed + 1))
    else
        fail "the picture examples/$picture, by tests/picture.py" "$top/picture.log"
    fi
fi
[ "$passed" -gt 0 ] || fail "nothing was judged"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
