#!/usr/bin/env bash
# readme.sh - compiles, and where it can runs, the code blocks of README.md and of the pages in examples/ and tests/
#
#   tests/readme.sh [FILE...]
#
# A line "<!-- compile: HOW -->" right above a block says how, where the block does not say so itself:
#   file          declarations and functions          body   statements, compiled inside a function
#   run           statements, which run with softmetal in a program that has a device, a queue and a command buffer; a
#                 block that returns anything but 0 has failed
#   skip REASON   not compiled
# ```c with `int main` is compiled as C99 with the implementation, linked with softmetal and run. Other ```c, ```cpp and
# The program of README.md also runs where there is no Metal: there it has to fail, and to say why.
# ```objc blocks need HOW; ```sh blocks: every `make TARGET` has to be a target of the Makefile, and no line has a comment:
# they are pasted into zsh, which takes # for a word. Blocks of other languages are not looked at, blocks without a
# language are text.
# A link to a file of ours has to lead to one, and a link to a chapter to a heading.
# Environment as compile.sh. Ends with one line "N passed, N failed".

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd)
files=("$@")
[ $# -gt 0 ] || files=("$root"/README.md "$root"/examples/*.md "$root"/examples/with/README.md "$root"/tests/README.md
    "$root"/tests/macho/README.md)
build=${BUILD:-$root/build}
out=${OUT:-$build/readme}
read -r -a flags <<<"-I$root -I$root/examples -I$root/tests/softmetal -DGPUSYNC_OBJC=1 ${SOFTMETAL_FLAGS:-}"
read -r -a link <<<"${SOFTMETAL_LINK:-}"
# a result that a block ignores counts, a name that it leaves for the reader does not
warnings=(-Wall -Wextra -Wno-unused -Wunused-result -Werror)
passed=0 failed=0

# One file per block, N.LANGUAGE in the directory $out, with its line and its hint in N.about
split() { # FILE
    awk -v out="$out" '
        !inside && /^[ ]*```/ {
            inside = 1; n++
            language = $0; sub(/^[ ]*```/, "", language); sub(/[^A-Za-z0-9+-].*/, "", language)
            if (language == "") language = "text"
            file = out "/" n "." language
            print NR, language, (hint == "" ? "none" : hint) > (out "/" n ".about")
            printf "" > file
            next }
        inside && /^[ ]*```[ ]*$/ { inside = 0; hint = ""; close(file); next }
        inside { print > file; next }
        /^<!-- compile: .*-->/ { hint = $0; sub(/^<!-- compile: */, "", hint); sub(/ *-->.*/, "", hint); next }
        !/^[ \t]*$/ { hint = "" }
        END { print n + 0 > (out "/count"); if (inside) print "open" > (out "/open") }' "$1"
}

# The text outside of blocks and `code`
prose() { awk '/^[ ]*```/ { inside = !inside; next } !inside' "$1" | sed 's/`[^`]*`//g'; } # FILE
# What links call the headings: in small letters, a hyphen for each blank, no other signs
anchors() { # FILE
    awk '/^[ ]*```/ { inside = !inside; next } !inside && /^#+ /' "$1" | sed 's/^#* *//' | tr 'A-Z ' 'a-z-' |
        tr -cd 'a-z0-9_\n-'
}

links() { # FILE: those that lead nowhere
    local link target file status=0
    while read -r link; do
        case $link in *://* | mailto:*) continue ;; esac
        file=$1
        target=${link%%#*}
        if [ -n "$target" ]; then file=$(dirname "$1")/$target; fi
        if [ ! -e "$file" ]; then
            echo "($link): there is no $target"
            status=1
        elif [ "$link" != "$target" ] && ! anchors "$file" | grep -qxF -e "${link#*#}"; then
            echo "($link): ${file#"$root/"} has no such heading"
            status=1
        fi
    done < <(prose "$1" | grep -oE '\]\([^)]*\)' | sed 's/^](//; s/)$//')
    return $status
}

# What the blocks take from Apple's Metal and QuartzCore headers and from metal-cpp: the names, with the types that they have there.
names_of() { # LANGUAGE
    case $1 in
    cpp | c++)
        cat <<'END'
namespace MTL { struct CommandBuffer; struct CommandQueue { CommandBuffer *commandBuffer(); }; }
extern MTL::CommandQueue *mtlQueue;
END
        ;;
    objc)
        cat <<'END'
#include <pthread.h>
@protocol MTLBlitCommandEncoder
- (void)endEncoding;
@end
@class NSError;
@protocol MTLSharedEvent
- (void)notifyListener:(id)listener atValue:(uint64_t)value block:(void (^)(id<MTLSharedEvent>, uint64_t))block;
@end
typedef enum { MTLCommandBufferStatusError = 5 } MTLCommandBufferStatus;
@protocol MTLCommandBuffer
@property(readonly) MTLCommandBufferStatus status;
@property(readonly) NSError *error;
- (id<MTLBlitCommandEncoder>)blitCommandEncoder;
- (void)enqueue;
- (void)commit;
- (void)waitUntilCompleted;
- (void)addCompletedHandler:(void (^)(id<MTLCommandBuffer>))block;
- (void)encodeSignalEvent:(id<MTLSharedEvent>)event value:(uint64_t)value;
- (void)encodeWaitForEvent:(id<MTLSharedEvent>)event value:(uint64_t)value;
- (void)presentDrawable:(id)drawable;
@end
@protocol MTLCommandQueue
- (id<MTLCommandBuffer>)commandBuffer;
@end
typedef bool BOOL;
#define YES true
extern void report(NSError *error);
typedef struct dispatch_semaphore_s *dispatch_semaphore_t;
enum { DISPATCH_TIME_NOW = 0 };
#define DISPATCH_TIME_FOREVER UINT64_MAX
extern uint64_t dispatch_time(uint64_t when, int64_t ns);
extern long dispatch_semaphore_wait(dispatch_semaphore_t, uint64_t), dispatch_semaphore_signal(dispatch_semaphore_t);
extern dispatch_semaphore_t frames, reached;
extern id<MTLCommandQueue> metalQueue;
extern id<MTLCommandBuffer> buffer, produced, consumed, buffers[4];
extern id<MTLSharedEvent> event;
extern id listener;
extern pthread_mutex_t lock;
extern pthread_cond_t changed;
extern BOOL finished;
extern int n, mine;
@protocol MTLTexture
@end
@protocol CAMetalDrawable
@property(readonly) id<MTLTexture> texture;
@end
@interface CAMetalLayer
- (id<CAMetalDrawable>)nextDrawable;
@end
extern CAMetalLayer *layer;
END
        ;;
    esac
}

# compile FILE LANGUAGE HOW -> FILE with a suffix, wrapped where needed
wrap() {
    local file=$1 language=$2 how=$3 source
    case $language in c) source=$file.block.c ;; cpp | c++) source=$file.block.cc ;; objc) source=$file.block.m ;; esac
    {
        if [ "$how" = body ]; then
            grep -E '^[ ]*#[ ]*(include|define|import)' "$file"
            printf '#include "gpusync.h"\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n'
            printf 'extern gpusync_device *device;\nextern gpusync_queue *queue;\nextern gpusync_ticket ticket;\n'
            printf 'extern void *metal_device, *metal_queue;\nextern gpusync_result result;\n'
            [ "$language" = objc ] || echo 'extern void *buffer;'
            names_of "$language"
            printf 'int block(void);\nint block(void)\n{\n'
            grep -vE '^[ ]*#[ ]*(include|define|import)' "$file"
            printf 'return 0;\n}\n'
        else
            grep -q '#[ ]*include "gpusync.h"' "$file" || echo '#include "gpusync.h"'
            cat "$file"
        fi
    } >"$source"
    echo "$source"
}

# The statements of FILE in a program of their own
running() { # FILE
    local includes='^[ ]*#[ ]*(include|define|import)'
    {
        grep -E "$includes" "$1"
        printf '#define GPUSYNC_IMPLEMENTATION\n#include "gpusync.h"\n#include <stdio.h>\n'
        printf 'static gpusync_device *device;\nstatic gpusync_queue *queue;\nstatic gpusync_ticket ticket;\n'
        printf 'static void *buffer;\nstatic int block(void)\n{\n(void)ticket;\n'
        grep -vE "$includes" "$1"
        printf 'return 0;\n}\nint main(void)\n{\n'
        printf 'if (gpusync_device_create(NULL, &device)) return 1;\n'
        printf 'if (gpusync_queue_create(device, NULL, &queue)) return 1;\n'
        printf 'if (gpusync_command_buffer(queue, NULL, &buffer)) return 1;\nreturn block();\n}\n'
    } >"$1.run"
    program "$1.run"
}

program() { # FILE
    cp "$1" "$1.c"
    grep -q '^[ ]*#[ ]*define GPUSYNC_IMPLEMENTATION' "$1" || set -- "$1" "$root/tests/compile/implementation.c"
    local file=$1
    shift
    "${CC:-gcc}" -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror "${flags[@]}" "$file.c" "$@" "${link[@]}" \
        -o "$file.program" && timeout -k 5 60 "$file.program" </dev/null || return 1
    if [ "$readme" = "$root/README.md" ]; then without_metal "$file"; fi
}

# What a stranger on Linux sees first: status 1, and one line that names the call and has a reason
without_metal() { # FILE
    local text
    "$file.program" | grep -q '^ticket 1: ' || { echo "with softmetal it does not print: ticket 1" && return 1; }
    "${CC:-gcc}" -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -I"$root" -DGPUSYNC_OBJC=0 "$1.c" \
        -o "$1.without" || return 1
    text=$(timeout -k 5 60 "$1.without" 2>&1 </dev/null)
    if [ $? -ne 1 ] || ! grep -qE '^gpusync_device_create\(.*\): .{20,}$' <<<"$text"; then
        echo "without Metal it has to end with 1 and say which call failed and why. It printed: $text"
        return 1
    fi
}

targets() { # FILE: the targets that the Makefile does not have
    local word words status=0
    words=$(grep -E '^[ ]*(\$ )?make( |$)|&& make( |$)' "$1" | sed 's/#.*//; s/.*make//; s/&&.*//')
    for word in $words; do
        case $word in
        *=* | -*) continue ;;
        esac
        if ! grep -qE "^([A-Za-z-]+ )*$word( [A-Za-z-]+)*:([^=]|\$)" "$root/Makefile"; then
            echo "the Makefile has no target $word"
            status=1
        fi
    done
    return $status
}

block() { # FILE LANGUAGE HOW
    local source
    case $2 in
    c)
        if grep -q 'int main' "$1"; then
            program "$1"
            return
        fi
        ;;
    sh)
        targets "$1" && ! grep -nE '(^|[[:space:]])#' "$1"
        return
        ;;
    esac
    case $3 in
    body | file) ;;
    run)
        running "$1"
        return
        ;;
    *)
        echo "say how to compile it: <!-- compile: body -->, file, run or skip REASON in the line above"
        return 1
        ;;
    esac
    source=$(wrap "$1" "$2" "$3")
    case $2 in
    c) "${CC:-gcc}" -std=c99 -D_POSIX_C_SOURCE=200809L "${warnings[@]}" "${flags[@]}" -fsyntax-only "$source" ;;
    cpp | c++) "${CLANGXX:-clang++}" -std=c++17 "${warnings[@]}" "${flags[@]}" -fsyntax-only "$source" ;;
    objc) "${CLANG:-clang}" -fobjc-runtime=gnustep-2.0 -fobjc-arc -fblocks "${warnings[@]}" -Wno-unused-parameter \
        "${flags[@]}" -fsyntax-only "$source" ;;
    esac
}

rm -rf "$out"
top=$out
for ((f = 0; f < ${#files[@]}; f++)); do
    readme=${files[f]}
    shown=${readme#"$root/"}
    out=$top/$f
    mkdir -p "$out"
    if [ ! -s "$readme" ]; then
        echo "FAILED: there is no $shown"
        failed=$((failed + 1))
        continue
    fi
    split "$readme"
    if [ -e "$out/open" ]; then
        echo "FAILED: the last code block of $shown has no end"
        failed=$((failed + 1))
    fi
    if links "$readme" >"$out/links.log"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: links of $shown"
        sed 's/^/    | /' "$out/links.log"
    fi
    count=$(cat "$out/count")
    for ((i = 1; i <= count; i++)); do
        read -r line language how reason <"$out/$i.about"
        file=$out/$i.$language
        name="$shown line $line, $language"
        case $language in c | cpp | c++ | objc | sh) ;; *) continue ;; esac
        if [ "$how" = skip ]; then
            if [ -n "$reason" ]; then
                echo "skipped: $name: $reason"
            else
                echo "FAILED: $name: skip without a reason"
                failed=$((failed + 1))
            fi
        elif block "$file" "$language" "$how" >"$file.log" 2>&1; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            echo "FAILED: $name"
            head -n 40 "$file.log" | sed 's/^/    | /'
        fi
    done
done
if [ $((passed + failed)) -eq 0 ]; then
    echo "no code block was compiled"
    failed=1
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
