#!/usr/bin/env bash
# The shape of gpusync.h: lines, comment-only lines and blanks of each section, as a table.
#   tests/shape.sh [HEADER]          the table
#   tests/shape.sh --check [HEADER]  says what is wrong with the header, or nothing:
#       a function that a comment names and nobody defines; a function of the implementation that is declared ahead and not
#       listed in >>objects, nor has a comment that says why
set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.."
check=false
if [ "${1:-}" = --check ]; then
    check=true
    shift
fi
header=${1:-gpusync.h}

table() {
    awk '
        function section(name) { names[++count] = name; at = count }
        BEGIN { section("front") }
        match($0, /^\/\* -+ >>[a-z]+/) { name = $0; sub(/.*>>/, "", name); sub(/[^a-z-].*/, "", name); sub(/-+$/, "", name); section(name) }
        {
            text = $0
            gsub(/^[ \t]+|[ \t]+$/, "", text)
            only = inside || text ~ /^\/\*/
            if (inside) {
                if (sub(/^.*\*\//, "", text)) { inside = 0; if (text != "") only = 0 }
            } else {
                while (match(text, /\/\*/)) {
                    rest = substr(text, RSTART + 2)
                    if ((end = index(rest, "*/")) == 0) { inside = 1; break }
                    text = substr(rest, end + 2)
                }
                if (only && !inside && text ~ /[^ \t]/) only = 0
            }
            lines[at]++
            if ($0 ~ /^[ \t]*$/ && !only) blanks[at]++
            else if (only) comments[at]++
            if (names[at] == "impl" || below) { below = 1; all++; told += only && $0 !~ /^[ \t]*$/ }
        }
        END {
            printf "%-15s %6s %8s %6s %6s\n", "section", "lines", "comment", "blank", "share"
            for (i = 1; i <= count; i++) {
                printf "%-15s %6d %8d %6d %5.0f%%\n", names[i], lines[i], comments[i], blanks[i], 100 * comments[i] / lines[i]
                sum += lines[i]
            }
            printf "%-15s %6d\n", "all", sum
            if (all) printf "%-15s %6d %8d %6s %5.1f%%\n", "from impl", all, told, "", 100 * told / all
        }' "$header"
}

# Names in comments that are no names of anything. Comments are what is between the two marks; code is the rest.
stale() {
    awk '
        {
            text = $0
            while (text != "") {
                if (inside) {
                    end = index(text, "*/")
                    part = end ? substr(text, 1, end - 1) : text
                    text = end ? substr(text, end + 2) : ""
                    if (end) inside = 0
                    while (match(part, /gpusync_+[a-z0-9_]+/)) {
                        named[substr(part, RSTART, RLENGTH)] = NR
                        part = substr(part, RSTART + RLENGTH)
                    }
                } else {
                    start = index(text, "/*")
                    part = start ? substr(text, 1, start - 1) : text
                    text = start ? substr(text, start + 2) : ""
                    if (start) inside = 1
                    while (match(part, /gpusync_+[a-z0-9_]+/)) {
                        used[substr(part, RSTART, RLENGTH)] = 1
                        part = substr(part, RSTART + RLENGTH)
                    }
                }
            }
        }
        END { for (name in named) if (!(name in used)) print named[name] ": a comment names " name ", which is not there" }
    ' <(sed '/>>history --/,$d' "$header") | sort -n
}

# Functions of the implementation that are declared ahead, outside of the list in >>objects. A variadic one is declared for
# its format.
ahead() {
    awk '
        match($0, /^\/\* -+ >>[a-z]+/) { name = $0; sub(/.*>>/, "", name); sub(/[^a-z-].*/, "", name); sub(/-+$/, "", name) }
        /^(static|GPUSYNC_[_]RARE|GPUSYNC_[_]INLINE) / && /\(/ && !/=/ {
            text = $0
            while (text !~ /[;{]/ && (getline more) > 0) text = text " " more
            if (text !~ /\{/ && text !~ /__attribute__\(\(format/ && name != "objects" && last !~ /\*\/$/)
                print NR ": declared ahead, and no comment says why: " substr(text, 1, 90)
        }
        { last = $0 }' "$header"
}

if $check; then
    stale
    ahead
else
    table
fi
