#!/usr/bin/env bash
# from-0.2.sh - what a program that was written for gpusync 0.2 has to change for 0.3, line by line
#
#   examples/from-0.2.sh [--write] FILE...
#
# Prints "FILE:LINE: what to do" for each place. With --write it makes the changes that are mechanical, and keeps the
# file as it was in FILE.orig. The other places are yours. After you have looked at one that may stay as it is, write
# "from-0.2: ok" into a comment on its line: the script passes over the line.
# Exit status: 0 nothing is left to do, 1 something is left, 2 an argument is wrong, or a file cannot be written.
#
# The script reads words and braces, and compiles nothing. It does not see a type behind a typedef of yours, a struct
# inside a struct, and values that come out of a macro: there -Wextra shows what is missing. It changes no comment.

set -u
LC_ALL=C
export LC_ALL

misuse() {
    echo "from-0.2.sh: $1" >&2
    exit 2
}
usage() {
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit "$1"
}

write=0
while [ $# -gt 0 ]; do
    case $1 in
    --write) write=1 ;;
    --help) usage 0 ;;
    --) shift && break ;;
    -*) misuse "there is no option $1" ;;
    *) break ;;
    esac
    shift
done
[ $# -gt 0 ] || usage 2 >&2
for file; do
    [ -f "$file" ] || misuse "$file is not a file"
    [ -r "$file" ] || misuse "$file cannot be read"
    [ $write = 0 ] || [ -w "$file" ] || misuse "$file cannot be written"
done

# What comments and strings look like: c; slash, as in Rust, with comments like those of C; hash, as in Python.
# `list` is a list of symbols for a linker.
kind_of() { # FILE
    case ${1##*/} in
    *.c | *.m | *.h) echo c ;;
    *.cc | *.cpp | *.cxx | *.C | *.mm | *.hh | *.hpp | *.hxx | *.inl | *.ipp) echo c++ ;;
    *.py | *.rb | *.sh | *.pl | *.toml | *.cmake | CMakeLists.txt | Makefile | *.mk) echo hash ;;
    *.exp | *.exports | *.def | *.txt | *.sym | *.map | *.ver | *.lds) echo list ;;
    *) echo slash ;;
    esac
}

# The program is one awk script. It reads a whole file, notes what it finds by line, and at the end prints that, and
# the changed file to `out`. Its status is 10, and 1 more if something is left, 2 more if there are changes.
# shellcheck disable=SC2016 # awk's dollars
program='
function mask(text,    n, i, c, two, skip) { # sets seen: without comments; code: without the insides of strings, too
    seen = code = ""
    quote = kind == "hash" ? quote : "" # a text between three quotes may be long; another string ends with its line
    if (length(quote) < 3) quote = ""
    n = length(text)
    for (i = 1; i <= n; i += skip) {
        c = substr(text, i, 1)
        two = substr(text, i, 2)
        skip = 1
        if (comment) {
            if (two == "*/") { comment = 0; skip = 2 }
            seen = seen substr("  ", 1, skip)
            code = code substr("  ", 1, skip)
        } else if (quote != "") {
            if (c == "\\" && i < n) skip = 2
            else if (substr(text, i, length(quote)) == quote) { skip = length(quote); c = quote; quote = "" }
            seen = seen (length(quote) == 3 ? substr("  ", 1, skip) : substr(text, i, skip)) # as good as a comment
            code = code (quote == "" ? c : substr("__", 1, skip))
        } else if (kind == "hash" ? c == "#" : two == "//" || kind == "list" && c == "#") {
            for (; i <= n; i++) { seen = seen " "; code = code " " }
        } else if (two == "/*" && kind != "hash") {
            comment = 1
            skip = 2
            seen = seen "  "
            code = code "  "
        } else {
            if (kind == "hash" && (substr(text, i, 3) == "\"\"\"")) { quote = c = "\"\"\""; skip = 3 }
            else if (c == "\"") quote = c
            else if (c == "\047" && kind != "slash" && kind != "list" && \
                     !(substr(code, length(code)) ~ /[0-9]/ && substr(text, i + 1, 1) ~ /[0-9a-fA-F]/)) quote = c
            seen = seen c
            code = code c
        }
    }
}

function left(line, text) { if (!passed[line]) { told[line] = told[line] name ":" line ": " text "\n"; rest++ } }
function change(line, text, more) {
    told[line] = told[line] name ":" line ": " text (write ? " (done)" : " (--write does it)") more "\n"
    changes++
}
function edit(line, column, count, text,    i) { # the last column first
    for (i = ++edits[line]; i > 1 && at[line, i - 1] < column; i--) {
        at[line, i] = at[line, i - 1]
        away[line, i] = away[line, i - 1]
        put[line, i] = put[line, i - 1]
    }
    at[line, i] = column
    away[line, i] = count
    put[line, i] = text
}
# Is text[column...] the whole word? One blank line never is.
function whole(text, column, count) {
    return substr(text, column - 1, column > 1) !~ /[A-Za-z0-9_]/ && substr(text, column + count, 1) !~ /[A-Za-z0-9_]/
}

# ---- a cursor over the code: line li, column co
function here() { return li > lines ? "" : co > size[li] ? "\n" : substr(bare[li], co, 1) }
function step() {
    if (co <= size[li]) { co++; return }
    li++
    co = 1
    if (bare[li] ~ /^[ \t]*#/) directive = 1
}
function blanks() { while (here() ~ /^[ \t\r\n\\]$/) step() }
function word(    text) {
    while (here() ~ /^[A-Za-z0-9_]$/) { text = text here(); step() }
    return text
}
function over(    depth, c) { # an expression: to the , or ; or bracket that ends it
    while ((c = here()) != "") {
        if (c ~ /^[(\[{]$/) depth++
        else if (!depth && c ~ /^[])},;]$/) return
        else if (c ~ /^[])}]$/) depth--
        step()
    }
}

# The cursor is at the { of an initialiser, and behind its } afterwards. Notes what to do with it.
function initialiser(type, array,    first, count, named, nested, i, c, l, value_l, value_o, end_l, end_o) {
    first = li
    directive = 0
    step()
    for (blanks(); (c = here()) != "}"; blanks()) {
        if (c == "" || c == ";") return
        value_l[++count] = li
        value_o[count] = co
        named = named || c == "." || c == "[" && !array
        nested = nested || c == "{"
        if (c == "[" && array) { # [i] = ...
            step()
            over()
            step()
            blanks()
            if (here() == "=") step()
            blanks()
            value_l[count] = li
            value_o[count] = co
        }
        over()
        if (here() == ",") step()
        else if (here() != "}") return
    }
    step()
    if (array) {
        end_l = li
        end_o = co
        for (i = 1; i <= count; i++) {
            li = value_l[i]
            co = value_o[i]
            if (here() == "{") initialiser(type, 0)
        }
        li = end_l
        co = end_o
        return
    }
    if (named || count < fields[type] || count > fields[type] && !directive) return
    c = type " ends with " last[type] " now: "
    for (l = first; l <= li; l++) if (passed[l]) return
    if (cxx) left(first, c "assign its fields by name, or add a value")
    else if (nested || directive || defines[first]) left(first, c "name the fields of this initialiser")
    else {
        change(first, c "the initialiser names its fields")
        for (i = 1; i <= count; i++) edit(value_l[i], value_o[i], 0, "." field[type, i] " = ")
    }
}

# The cursor is behind the name of a type: looks for the initialisers of what is declared, or of (type){...}
function declared(type, before,    c, text, pointer, array) {
    for (;;) {
        blanks()
        pointer = array = 0
        while (here() == "*" || here() == "&") { pointer = 1; step(); blanks() }
        if (here() == ")" || here() == "[") { # a compound literal, or a cast
            if (before !~ /\([ \t]*((const|struct)[ \t]+)*$/) return
            if (here() == "[") { array = 1; step(); over(); step(); blanks() }
            if (here() != ")" || pointer) return
            step()
            blanks()
            if (here() == "{") initialiser(type, array)
            return
        }
        if (here() == "{" && cxx && before !~ /(struct|class)[ \t]+$/) { initialiser(type, 0); return }
        text = word()
        if (text == "const" || text == "volatile") continue
        if (text == "") return
        blanks()
        while (here() == "[") { array = 1; step(); over(); step(); blanks() }
        c = here()
        if (c == "=") { step(); blanks() }
        if (here() == "{" && !pointer && (c == "=" || cxx)) initialiser(type, array)
        else if (c == "=") over()
        else if (c != ",") return
        blanks()
        if (here() != ",") return
        step()
    }
}

function find_initialisers(line,    from, column, count, text) {
    for (from = 1; match(substr(bare[line], from), /gpusync_(spin|wait_options|queue_desc|device_desc)/); ) {
        column = from + RSTART - 1
        count = RLENGTH
        from = column + count
        if (!whole(bare[line], column, count)) continue
        text = substr(bare[line], column, count)
        li = line
        co = from
        declared(text, substr(bare[line], 1, column - 1))
    }
}

# A log function that does not look at the level
function find_log_functions(line,    from, column, name_of, body, depth, text) {
    for (from = 1; match(substr(bare[line], from), /gpusync_log_level/); ) {
        column = from + RSTART - 1
        from = column + RLENGTH
        if (!whole(bare[line], column, RLENGTH)) continue
        li = line
        co = from
        blanks()
        name_of = word()
        blanks()
        if (here() != "," && here() != ")") continue
        while (here() != "" && here() !~ /^[;{})=]$/) step()
        if (here() != ")") continue
        step()
        for (blanks(); here() ~ /^[A-Za-z_>-]$/; step()) blanks() # noexcept, -> void
        blanks()
        if (here() != "{") continue
        body = ""
        for (depth = 0; here() != ""; step()) {
            if (here() == "{") depth++
            if (here() == "}" && !--depth) break
            body = body here()
        }
        gsub(/[^A-Za-z0-9_()]+/, " ", body)
        gsub(/\( *void *\) *[A-Za-z0-9_]+/, " ", body)
        gsub(/[()]/, " ", body)
        if (name_of == "" || index(" " body " ", " " name_of " ") == 0)
            left(line, "a log function gets warnings, too: look at the level")
    }
}

function find_info(line,    from, column, a, b, operator) {
    for (from = 1; match(substr(bare[line], from), /GPUSYNC_LOG_INFO/); ) {
        column = from + RSTART - 1
        from = column + 16
        if (!whole(bare[line], column, 16)) continue
        b = substr(bare[line], 1, column - 1)
        a = substr(bare[line], from)
        operator = kind != "c" || passed[line] ? "" : match(b, />=[ \t]*$/) || match(b, /[^>=<-]>[ \t]*$/) || \
            match(b, /!=[ \t]*$/) ? "before" : match(a, /^[ \t]*(<=|<[^<=]|!=)/) ? "after" : ""
        if (operator == "before") {
            if (substr(b, RSTART, 1) !~ /[>!]/) RSTART++ # what stands in front of >
            edit(line, RSTART, from - RSTART, ">= GPUSYNC_LOG_WARNING")
            change(line, "GPUSYNC_LOG_INFO is gone: compare with >= GPUSYNC_LOG_WARNING")
        } else if (operator == "after") {
            if (substr(a, RLENGTH, 1) != "=") RLENGTH-- # what stands behind <
            edit(line, column, 16 + RLENGTH, "GPUSYNC_LOG_WARNING <=")
            change(line, "GPUSYNC_LOG_INFO is gone: compare with GPUSYNC_LOG_WARNING <=")
        } else if (b ~ /case[ \t]+$/) left(line, "GPUSYNC_LOG_INFO is gone: take the case out")
        else left(line, "GPUSYNC_LOG_INFO is gone: the levels are GPUSYNC_LOG_WARNING and GPUSYNC_LOG_ERROR")
    }
}

function find_symbols(line,    from, column, count, text, start) {
    for (from = 1; match(substr(shown[line], from), /gpusync_(device_create|queue_create|command_buffer)_0_2/); ) {
        column = from + RSTART - 1
        count = RLENGTH
        from = column + count
        start = column - (substr(shown[line], column - 1, column > 1) == "_") # as Mach-O has it
        if (!whole(shown[line], start, from - start)) continue
        text = substr(shown[line], column, count - 4)
        if (kind == "list" || kind != "c" && shown[line] ~ /^[ \t]*_?gpusync_[a-z_]*_0_2[ \t\r]*;?[ \t\r]*$/) {
            left(line, text "_0_2 is " text "_0_3 for C, and " text " for other languages" listed)
            listed = ""
        } else if (!passed[line]) {
            edit(line, from - 4, 4, "")
            change(line, text "_0_2 is " text, kind == "c" ? "" : "; compare gpusync_struct_sizes at the start")
        }
    }
    if (shown[line] ~ /["\047]_0_2["\047]/) left(line, "symbols with _0_2 are plain now: gpusync_device_create")
}

# A struct that another language declares again. A field of that name with a type is a declaration.
function find_structs(line,    type, type_of) {
    type_of = "[\"\047]? *[:,] *(u64|UInt64|c_uint64|ctypes[.]|bool|Bool|c_bool|c_void_p|u8|[*?]|Option|Unsafe)"
    for (type in fields)
        if (shown[line] ~ ("(^|[^A-Za-z0-9_])" field[type, fields[type]] type_of) && !declares[last[type]])
            left(line, "a declaration of " type ": add " last[type] " at the end")
}

function find_words(line) {
    if (bare[line] ~ /(GPUSYNC_VERSION(_MINOR)?|gpusync_version *\( *\))[^=!<>]*(==|!=|<=) *2(0[0-9])?([^0-9]|$)/)
        left(line, "this asks for version 0.2")
    if (bare[line] ~ /waits_inline/) left(line, "waits_inline leaves out most waits for work that has ended well")
    if (shown[line] ~ /promised by/) left(line, "the report says \"pending in\" for \"promised by\"")
    if (shown[line] ~ /nobody has promised it/)
        left(line, "the report says \"no other work is to signal it\" for \"nobody has promised it\"")
    if (shown[line] ~ /signalled or promised already/) left(line, "the text of ERROR_NOT_RISING says \"pending\" now")
}

# Of CMake. A tag belongs to the command that names gpusync. Commands may be in capitals.
function find_cmake(line,    text) {
    text = tolower(shown[line])
    if (text ~ /^[ \t]*[a-z_]+[ \t]*\(/) fetches = 0
    if (text ~ /gpusync/) fetches = 1
    if (text ~ /find_package[ \t]*\([ \t]*gpusync[ \t]+"?0[.]2([^0-9]|$)/)
        left(line, "this asks for version 0.2: find_package(gpusync 0.3)")
    if (fetches && text ~ /git_tag[ \t]+"?v0[.]2([^0-9]|$)/) left(line, "this asks for version 0.2: GIT_TAG v0.3.0")
}

BEGIN {
    fields["gpusync_spin"] = split("pause_iterations yield_iterations max_spin_ns", f)
    for (i in f) field["gpusync_spin", i] = f[i]
    fields["gpusync_wait_options"] = split("spin mode error handlers", f)
    for (i in f) field["gpusync_wait_options", i] = f[i]
    fields["gpusync_queue_desc"] = split("metal_queue label max_command_buffer_count max_in_flight error_log_count" \
                                         " spin wait_mode metal4", f)
    for (i in f) field["gpusync_queue_desc", i] = f[i]
    fields["gpusync_device_desc"] = split("metal_device hooks allocator spin wait_mode log log_user callback_mode" \
                                          " callback_queue notify notify_user", f)
    for (i in f) field["gpusync_device_desc", i] = f[i]
    last["gpusync_spin"] = "until_near"
    last["gpusync_wait_options"] = "through_loss"
    last["gpusync_queue_desc"] = "sticky_failure"
    last["gpusync_device_desc"] = "log_report"
    cxx = kind == "c++"
    if (cxx) kind = "c"
    name = ENVIRON["NAME"]
    listed = "; list gpusync_at_ticket and gpusync_at_value, too"
}
{
    line = ++lines
    raw[line] = $0
    mask($0)
    shown[line] = seen
    bare[line] = code
    size[line] = length(code)
    passed[line] = index($0, "from-0.2: ok") > 0
    defines[line] = kind == "c" && (code ~ /^[ \t]*#/ || line > 1 && defines[line - 1] && raw[line - 1] ~ /\\\r?$/)
    if (code ~ /__cplusplus/) cxx = 1
    if (seen ~ /gpusync/) ours = 1
    if (seen ~ /gpusync_at_ticket/) listed = ""
    for (type in last) if (seen ~ ("(^|[^A-Za-z0-9_])" last[type] "([^A-Za-z0-9_]|$)")) declares[last[type]] = 1
}
END {
    for (line = 1; line <= lines; line++) {
        find_symbols(line)
        find_info(line)
        find_words(line)
        if (kind == "hash") find_cmake(line)
        if (kind == "c") {
            find_initialisers(line)
            find_log_functions(line)
        } else if (ours) find_structs(line)
    }
    for (line = 1; line <= lines; line++) {
        printf "%s", told[line]
        text = raw[line]
        for (i = 1; i <= edits[line]; i++)
            text = substr(text, 1, at[line, i] - 1) put[line, i] substr(text, at[line, i] + away[line, i])
        end = line < lines || newline ? "\n" : ""
        printf "%s%s", text, end >out
    }
    exit 10 + (rest > 0) + 2 * (changes > 0)
}'

new=$(mktemp "${TMPDIR:-/tmp}/from-0.2.XXXXXX") || exit 2
said=$(mktemp "${TMPDIR:-/tmp}/from-0.2.XXXXXX") || exit 2
trap 'rm -f "$new" "$said"' EXIT
trap 'exit 2' HUP INT TERM
status=0
for file; do
    case $file in /*) path=$file ;; *) path=./$file ;; esac
    newline=0
    [ -n "$(tail -c 1 "$path")" ] || newline=1
    NAME=$file awk -v kind="$(kind_of "$file")" -v write=$write -v newline=$newline -v out="$new" "$program" "$path" >"$said"
    found=$(($? - 10))
    case $found in
    0 | 1 | 2 | 3) ;;
    *) misuse "awk could not read $file" ;;
    esac
    if [ $found -ge 2 ] && [ $write = 1 ]; then
        [ ! -e "$path.orig" ] || misuse "$file is as it was, because there is a $file.orig"
        cp -p "$path" "$path.orig" || misuse "$file is as it was, because $file.orig cannot be written"
        cat "$new" >"$path" || misuse "$file cannot be written: $file.orig has what it was"
    fi
    cat "$said" # now that it is done
    case $found$write in 00 | 01 | 21) ;; *) status=1 ;; esac
done
exit $status
