#!/usr/bin/env bash
# from-0.3.sh - what a program that was written for gpusync 0.3 has to change for 0.4, line by line
#
#   examples/from-0.3.sh [--write] FILE...
#
# Prints "FILE:LINE: what to do" for each place. With --write it makes the changes that are mechanical, and keeps the
# file as it was in FILE.orig. The other places are yours. After you have looked at one that may stay as it is, write
# "from-0.3: ok" into a comment on its line: the script passes over the line.
# Exit status: 0 nothing is left to do, 1 something is left, 2 an argument is wrong, or a file cannot be written.
#
# The script reads words and braces, and compiles nothing. It does not see a type behind a typedef of yours, a struct
# inside a struct, and values that come out of a macro: there the compiler shows what is missing. It changes no comment.

set -u
LC_ALL=C
export LC_ALL

misuse() {
    echo "from-0.3.sh: $1" >&2
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

# -- the tables: a row for each thing that has gone or changed

# NAME: TEXT        has gone; TEXT says what takes its place
# .NAME: TEXT       the same of a field of a public struct
# ~NAME: TEXT       compiles as before, and means something else
# "WORDS: TEXT      stands in a text of gpusync no more, or more rarely
rows='
gpusync_track_committed: call gpusync_track before the commit, or submit an empty command buffer behind it, GPUSYNC_UNORDERED
GPUSYNC_ERROR_NOT_COMMITTED: no call returns it
gpusync_throttle: after the commit, if (ticket >= n) gpusync_wait(queue, ticket - n + 1, ...), which returns failures, too; or keep a ticket for each slot
gpusync_wait_mode: a gpusync_spin of zeros sleeps at once, gpusync_wait_options.blocking calls waitUntilCompleted
GPUSYNC_WAIT_DEFAULT: take it out
GPUSYNC_WAIT_SPIN_THEN_HANDLER: take it out; neither its queue nor the device may have a spin of zeros then
GPUSYNC_WAIT_HANDLER: give the wait, the queue or the device a gpusync_spin of zeros
GPUSYNC_WAIT_BLOCKING: set gpusync_wait_options.blocking, for gpusync_wait_ex alone
gpusync_report_fn: call gpusync_report in the log function, for a warning
GPUSYNC_TRACE_SCHEDULED: GPUSYNC_TRACE_COMPLETED tells when the GPU began, in gpu_start_s
GPUSYNC_LATENCIES: gpusync_stats.wake_ns / wakes is the average
.max_in_flight: wait for an earlier ticket; max_command_buffer_count is the limit of the Metal queue
.wait_mode: HANDLER is a gpusync_spin of zeros, SPIN_THEN_HANDLER no spin here and none of zeros for the device, BLOCKING is gpusync_wait_options.blocking of each wait
.mode: HANDLER is a gpusync_spin of zeros, BLOCKING is gpusync_wait_options.blocking, for gpusync_wait_ex alone
.log_report: call gpusync_report in the log function, for a warning
.error_options: make an MTLCommandBufferDescriptor, and pass it as descriptor
.log_state: make an MTLCommandBufferDescriptor, and pass it as descriptor
.spurious_wakes: nothing counts them
.waits_skipped: nothing counts them
.buffers_saved: nothing counts them
.wake_latencies: wake_ns / wakes is the average
gpusync_timeline_expect: set signalled_by_others in the desc of the timeline; shared_event implies it
.through_loss: take it out; every wait goes on when the device is lost; gpusync_get_info and gpusync_is_idle tell whether memory may be freed
.fail_writes_event: a failure writes UINT64_MAX to an event that gpusync made; write it to an imported one yourself, after gpusync_timeline_fail
~sticky_failure: tickets end in any order, each that takes the failure has a record, gpusync_command_buffer is refused, too
~gpusync_queue_destroy_now: what has not ended ends with GPUSYNC_ERROR_DESTROYED, held work and submissions, too
"a wait for: a wait for several points, or for a device, that times out writes one line to the log
'

# Public structs, and their fields in 0.3. +FIELD=VALUE is new, VALUE stands for none. -FIELD=KIND has gone. By the KIND an
# initialiser for 0.4 is not taken for one of 0.3: number, the beginning of the names of an enum, or any. /FIELD=NEW has
# gone, and NEW has its place.
structs='
gpusync_device_desc metal_device hooks allocator spin -wait_mode=GPUSYNC_WAIT_ log log_user callback_mode callback_queue \
    notify notify_user -log_report=any
gpusync_queue_desc metal_queue label max_command_buffer_count -max_in_flight=number error_log_count spin \
    -wait_mode=GPUSYNC_WAIT_ metal4 sticky_failure
gpusync_command_buffer_desc timeout_ns label unretained_references -error_options=number -log_state=any +descriptor=NULL
gpusync_wait_options spin -mode=GPUSYNC_WAIT_ error handlers -through_loss=any +blocking=false
gpusync_timeline_desc initial_value label shared_event /fail_writes_event=signalled_by_others
'

# Fields whose names are too common to be looked for everywhere: of initialisers, and of variables with such a type
common='mode'

# Functions that have another name, and the same parameters: OLD NEW
renamed='
gpusync_device_wait_ex gpusync_device_wait
'

# Functions that take one more argument: NAME, how many they took, what stands for none, its name
longer='
gpusync_device_wait 2 NULL options
'

# What a library has to export, too
exports='gpusync_failure_is_transient'

# The program is one awk script. It reads a whole file, notes what it finds by line, and at the end prints that, and
# the changed file to `out`. Its status is 10, and 1 more if something is left, 2 more if there are changes.
# shellcheck disable=SC2016 # awk's dollars
program='
function mask(text,    n, i, c, two, skip) { # sets seen_text: without comments; code: without the insides of strings, too
    seen_text = code = ""
    quote = kind == "hash" ? quote : "" # a text between three quotes may be long; another string ends with its line
    if (length(quote) < 3) quote = ""
    n = length(text)
    for (i = 1; i <= n; i += skip) {
        c = substr(text, i, 1)
        two = substr(text, i, 2)
        skip = 1
        if (comment) {
            if (two == "*/") { comment = 0; skip = 2 }
            seen_text = seen_text substr("  ", 1, skip)
            code = code substr("  ", 1, skip)
        } else if (quote != "") {
            if (c == "\\" && i < n) skip = 2
            else if (substr(text, i, length(quote)) == quote) { skip = length(quote); c = quote; quote = "" }
            seen_text = seen_text (length(quote) == 3 ? substr("  ", 1, skip) : substr(text, i, skip)) # as good as a comment
            code = code (quote == "" ? c : substr("__", 1, skip))
        } else if (kind == "hash" ? c == "#" : two == "//" || kind == "list" && c == "#") {
            for (; i <= n; i++) { seen_text = seen_text " "; code = code " " }
        } else if (two == "/*" && kind != "hash") {
            comment = 1
            skip = 2
            seen_text = seen_text "  "
            code = code "  "
        } else {
            if (kind == "hash" && (substr(text, i, 3) == "\"\"\"")) { quote = c = "\"\"\""; skip = 3 }
            else if (c == "\"") quote = c
            else if (c == "\047" && kind != "slash" && kind != "list" && \
                     !(substr(code, length(code)) ~ /[0-9]/ && substr(text, i + 1, 1) ~ /[0-9a-fA-F]/)) quote = c
            seen_text = seen_text c
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
function over(    depth, c) { # an expression: to the , or ; or bracket that ends it. last_l, last_o: behind its last word
    while ((c = here()) != "") {
        if (c ~ /^[(\[{]$/) depth++
        else if (!depth && c ~ /^[])},;]$/) return
        else if (c ~ /^[])}]$/) depth--
        if (c !~ /^[ \t\r\n\\]$/) {
            last_l = li
            last_o = co + 1
        }
        step()
    }
}

# ---- initialisers

# The cursor is at the { of an initialiser, and behind its } afterwards. Notes what to do with it.
# Of value i: begin_l, begin_o its place; end_l, end_o the place behind it; comma the column of its comma, on the same line.
function initialiser(type, array,    begin_l, begin_o, end_l, end_o, comma, name_of, value, removed, count, named, simple, \
                     first, i, c, l, o) {
    first = li
    directive = 0
    simple = !defines[first]
    step()
    for (blanks(); (c = here()) != "}"; blanks()) {
        if (c == "" || c == ";") return
        begin_l[++count] = l = li
        begin_o[count] = o = co
        name_of[count] = ""
        if (c == "[" && array) { # [i] = ...
            step()
            over()
            step()
            blanks()
            if (here() == "=") step()
            blanks()
            begin_l[count] = li
            begin_o[count] = co
        } else if (c == ".") {
            named++
            step()
            name_of[count] = word()
            blanks()
            if (here() == "=") step()
            blanks()
            l = li
            o = co
        } else if (c == "{") simple = 0
        over()
        value[count] = text_between(l, o, li, co)
        end_l[count] = last_l
        end_o[count] = last_o
        comma[count] = here() == "," ? (li == last_l ? co : -1) : 0
        if (here() == ",") step()
        else if (here() != "}") return
    }
    step()
    if (array) {
        l = li
        o = co
        for (i = 1; i <= count; i++) {
            li = begin_l[i]
            co = begin_o[i]
            if (here() == "{") initialiser(type, 0)
        }
        li = l
        co = o
        return
    }
    for (l = first; l <= li; l++) if (passed[l]) simple = -1
    if (simple < 0) return
    if (directive) simple = 0
    if (named && named < count) return
    if (!named) {
        if (count < (first_gone[type] ? first_gone[type] : fields[type]) || count > fields[type] && !directive) return
        for (i = 1; i <= count; i++) {
            name_of[i] = field[type, i]
            if ((type, name_of[i]) in in_place) {
                if (!is_none(value[i])) # else it is none of the new one, too
                    left(begin_l[i], type "." name_of[i] " is gone, and " in_place[type, name_of[i]] " has its place: " \
                         why["." name_of[i]])
                return
            }
            if ((type, name_of[i]) in gone && !may_be(value[i], gone[type, name_of[i]])) return # one for 0.4
        }
    }

    # what cannot simply go
    for (i = 1; i <= count; i++) {
        removed[i] = 0
        if (comma[i] < 0) simple = 0
        if (!((type, name_of[i]) in gone)) {
            if (!named && ("~" name_of[i]) in why && !is_none(value[i]))
                tell_once(begin_l[i], name_of[i], name_of[i] ": " why["~" name_of[i]])
            continue
        }
        if (end_l[i] != begin_l[i] || has_comment(begin_l[i], begin_o[i], end_o[i] - begin_o[i]) ||
            comma[i] && has_comment(begin_l[i], end_o[i], comma[i] - end_o[i])) simple = 0
        if (is_none(value[i])) removed[i] = 1
        else if (name_of[i] == "mode" && value[i] == "GPUSYNC_WAIT_BLOCKING" && !cxx) removed[i] = 2
        else {
            if (named || !directive) left(begin_l[i], type "." name_of[i] " is gone: " why["." name_of[i]])
            removed[i] = -1
            if (!named) simple = 0
        }
        if (removed[i] > 0) c = "some"
        seen(begin_l[i], begin_o[i], end_l[i], end_o[i])
    }
    if (named && c != "some") return
    if (!simple) {
        c = "name those that stay in this initialiser"
        if (cxx && !named) c = "assign those that stay by name, or leave the others out"
        left(first, type " has other fields now: " c)
        return
    }
    if (named) change(first, type " has other fields now: the initialiser leaves out what has gone")
    else if (cxx) change(first, type " has other fields now: the initialiser has those that stay")
    else change(first, type " has other fields now: the initialiser names those that stay")
    take_out(type, count, begin_l, begin_o, end_l, end_o, removed, comma)
    for (i = 1; i <= count; i++)
        if (removed[i] == 2) edit(begin_l[i], begin_o[i], end_o[i] - begin_o[i], ".blocking = true")
        else if (removed[i] <= 0 && !named && !cxx) edit(begin_l[i], begin_o[i], 0, "." name_of[i] " = ")
    if (cxx && !named && count == fields[type] && added[type] != "") {
        for (i = count; removed[i] == 1; ) i--
        c = added[type]
        gsub(/NULL/, "nullptr", c)
        edit(end_l[i], end_o[i], 0, c)
    }
}

# Takes the values that are 1 in `removed` out, with a comma for each. Comments stay, and so does the last value of all.
function take_out(type, count, begin_l, begin_o, end_l, end_o, removed, comma,    i, l, o, n, last_kept) {
    for (i = 1; i <= count; i++) if (removed[i] != 1) last_kept = i
    if (!last_kept) {
        edit(begin_l[1], begin_o[1], end_o[1] - begin_o[1], "0")
        last_kept = 1
    }
    if (last_kept < count && !comma[count]) edit(end_l[last_kept], comma[last_kept], 1, "")
    for (i = 1; i <= count; i++) {
        if (removed[i] != 1 || i == last_kept) continue
        l = begin_l[i]
        o = begin_o[i]
        n = (comma[i] ? comma[i] + 1 : end_o[i]) - o
        if (i < last_kept && match(substr(raw[l], o + n), /^[ \t]+/)) n += RLENGTH
        if ((i > last_kept || o + n > length(raw[l])) && match(substr(raw[l], 1, o - 1), /[^ \t][ \t]+$/)) {
            RLENGTH--
            o -= RLENGTH
            n += RLENGTH
        }
        edit(l, o, n, "")
    }
}

function has_comment(l, o, n) { return substr(raw[l], o, n) != substr(shown[l], o, n) }

# May a field of this kind have the value?
function may_be(text, of) {
    if (of == "any") return 1
    if (of == "number") return text !~ /^(NULL|nullptr|true|false|[&"].*)$/
    return text == "0" || index(text, of) || text ~ /[Mm]ode/
}

# Is it the value of a field that is not set?
function is_none(text) { return text ~ /^(0[uUlL]*|NULL|nullptr|false|GPUSYNC_WAIT_DEFAULT|\( ?void ?\* ?\) ?0)$/ }

function text_between(l, o, end_l, end_o,    text) { # the code, with one blank for several
    for (; l < end_l; l++) {
        text = text substr(bare[l], o) " "
        o = 1
    }
    text = text substr(bare[l], o, end_o - o)
    gsub(/[ \t\r\n\\]+/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
    return text
}

# The words between two places are dealt with.
function seen(l, o, end_l, end_o,    column) {
    for (; l <= end_l; l++) {
        while (match(substr(bare[l], o), /[A-Za-z_][A-Za-z0-9_]*/)) {
            column = o + RSTART - 1
            if (l == end_l && column >= end_o) break
            dealt[l, column] = 1
            o = column + RLENGTH
        }
        o = 1
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
        variable[type, text] = 1
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
    for (from = 1; match(substr(bare[line], from), /gpusync_[a-z_]+/); ) {
        column = from + RSTART - 1
        count = RLENGTH
        from = column + count
        text = substr(bare[line], column, count)
        if (!(text in fields) || !whole(bare[line], column, count)) continue
        li = line
        co = from
        declared(text, substr(bare[line], 1, column - 1))
    }
}

# ---- words

# options.mode = GPUSYNC_WAIT_BLOCKING, in a statement
function find_blocking(line,    column, count, b, text) {
    if (!match(bare[line], /(\.|->)[ \t]*mode[ \t]*=[ \t]*GPUSYNC_WAIT_BLOCKING/)) return
    column = RSTART
    count = RLENGTH
    b = substr(bare[line], 1, column - 1)
    if (passed[line] || cxx && b !~ /[A-Za-z0-9_)\]]$/ || !whole(bare[line], column + count - 21, 21)) return
    text = substr(bare[line], column, 1) == "." ? ".blocking = true" : "->blocking = true"
    for (b = column; b < column + count; b++) if ((line, b) in dealt) return
    edit(line, column, count, text)
    change(line, "GPUSYNC_WAIT_BLOCKING is gone: gpusync_wait_options.blocking, for gpusync_wait_ex alone")
    seen(line, column, line, column + count)
}

# Each word of the tables. In C a field has . or -> in front; in other languages its name is as good as that.
function find_words(line,    text, from, column, count, id, is_field) {
    text = kind == "c" ? bare[line] : shown[line]
    for (from = 1; match(substr(text, from), /[A-Za-z_][A-Za-z0-9_]*/); ) {
        column = from + RSTART - 1
        count = RLENGTH
        from = column + count
        id = substr(text, column, count)
        if (kind == "list") sub(/^_/, "", id)
        if ((line, column) in dealt || !whole(text, column, count)) continue
        is_field = ours && kind != "list" && (kind != "c" || substr(text, 1, column - 1) ~ /(\.|->)[ \t]*$/)
        if (id in new_name) find_renamed(line, text, column, id)
        else if (id in why) {
            if (kind == "list") tell_once(line, id, id " is gone: the library does not export it")
            else tell_once(line, id, id " is gone: " why[id])
        } else if (is_field && id in is_common) find_common(line, text, column, id)
        else if (is_field && ("." id) in why) tell_once(line, id, id " is gone: " why["." id])
        else if (("~" id) in why && kind != "list" && !is_off(text, from)) tell_once(line, id, id ": " why["~" id])
        if (id in arguments && kind != "list") find_longer(line, text, column, id)
    }
    if (kind != "list")
        for (id in why)
            if (id ~ /^"/ && index(shown[line], substr(id, 2)) && !index(bare[line], substr(id, 2))) left(line, why[id])
}
function find_common(line, text, column, id,    type, of) { # of a variable that the file declares
    of = substr(text, 1, column - 1)
    if (kind != "c" || !match(of, /[A-Za-z0-9_]+[ \t]*(\.|->)[ \t]*$/)) return
    of = substr(of, RSTART)
    sub(/[ \t]*(\.|->)[ \t]*$/, "", of)
    for (type in fields)
        if ((type, id) in gone && (type, of) in variable) tell_once(line, id, type "." id " is gone: " why["." id])
}
# Is a field set to none? The column is behind its name.
function is_off(text, column) {
    text = substr(text, column)
    if (!match(text, /^[ \t]*[=:][ \t]*[A-Za-z0-9_]+/)) return 0
    text = substr(text, 1, RLENGTH)
    sub(/^[ \t]*[=:][ \t]*/, "", text)
    return is_none(text)
}
function tell_once(line, id, text) {
    if ((line, id) in told_of) return
    told_of[line, id] = 1
    left(line, text)
}

function find_renamed(line, text, column, id) {
    if (kind == "list") left(line, id " is gone: the library exports " new_name[id])
    else if (!passed[line]) {
        edit(line, column, length(id), new_name[id])
        change(line, id " is " new_name[id])
    }
}

# A call that takes one more argument now
function find_longer(line, text, column, id,    count, depth, first) {
    if (kind != "c") { # what stands in brackets on the line; a call, a declaration or a list of types
        text = substr(text, column + length(id))
        if (!match(text, /^["\047]?([.]argtypes)?[ \t]*[:=]?[ \t]*[(\[]/)) return
        text = substr(text, RLENGTH + 1)
        depth = count = 1
        for (; depth && text != ""; text = substr(text, 2)) {
            if (text ~ /^[(\[]/) depth++
            if (text ~ /^[])]/) depth--
            count += depth == 1 && text ~ /^,/
        }
        if (count == arguments[id]) left(line, another[id])
        return
    }
    li = line
    co = column + length(id)
    directive = 0
    blanks()
    if (here() != "(") {
        tell_once(line, id, another[id])
        return
    }
    step()
    for (blanks(); here() != ")"; blanks()) {
        if (here() == "" || here() == ";") return
        if (!count++) first = word()
        over()
        if (here() == ",") step()
    }
    if (count != arguments[id]) return
    if (directive || passed[li] || first ~ /^gpusync_/) left(line, another[id])
    else if (!passed[line]) {
        edit(li, co, 0, ", " (cxx && nothing[id] == "NULL" ? "nullptr" : nothing[id]))
        change(line, another[id])
    }
}

function find_symbols(line,    from, column, count, text, start) {
    for (from = 1; match(substr(shown[line], from), /gpusync_(device_create|queue_create|command_buffer)_0_3/); ) {
        column = from + RSTART - 1
        count = RLENGTH
        from = column + count
        start = column - (substr(shown[line], column - 1, column > 1) == "_") # as Mach-O has it
        if (!whole(shown[line], start, from - start)) continue
        text = substr(shown[line], column, count - 4)
        if (kind == "list" || kind != "c" && shown[line] ~ /^[ \t]*_?gpusync_[a-z_]*_0_3[ \t\r]*;?[ \t\r]*$/) {
            left(line, text "_0_3 is " text "_0_4 for C, and " text " for other languages" listed)
            listed = ""
        } else if (!passed[line]) {
            edit(line, from - 4, 4, "")
            change(line, text "_0_3 is " text, kind == "c" ? "" : "; compare gpusync_struct_sizes at the start")
        }
    }
}

# A struct that another language declares again. A field of that name with a type is a declaration.
function find_structs(line,    type, type_of, f) {
    type_of = "[\"\047]? *[:,] *(u64|u32|i32|u8|bool|Bool|UInt64|UInt32|Int32|c_u?int(32|64)?|c_bool|c_void_p|ctypes[.]|" \
              "[*?]|Option|Unsafe)"
    for (type in fields)
        if (added[type] != "" && is_declared(line, stays[type], type_of) && !declares[added_name[type]])
            left(line, "a declaration of " type ": add " added_names[type] " at the end")
    for (f in is_common)
        for (type in fields)
            if ((type, f) in gone && is_declared(line, f, type_of) && declares[stays[type]])
                left(line, type "." f " is gone: " why["." f])
}
function is_declared(line, name_of, type_of) { return shown[line] ~ ("(^|[^A-Za-z0-9_])" name_of type_of) }

function find_versions(line) {
    if (bare[line] ~ /(GPUSYNC_VERSION(_MINOR)?|gpusync_version *\( *\))[^=!<>]*(==|!=|<=) *3(0[0-9])?([^0-9]|$)/ ||
        bare[line] ~ /(GPUSYNC_VERSION(_MINOR)?|gpusync_version *\( *\))[^=!<>]*< *4(00)?([^0-9]|$)/)
        left(line, "this asks for version 0.3")
    if (kind != "c" && shown[line] ~ /gpusync *(= *0[.]3|< *0[.]4)([^0-9]|$)/)
        left(line, "this asks for version 0.3: gpusync >= 0.4, gpusync < 0.5")
}

# Of CMake. A tag belongs to the command that names gpusync. Commands may be in capitals.
function find_cmake(line,    text) {
    text = tolower(shown[line])
    if (text ~ /^[ \t]*[a-z_]+[ \t]*\(/) fetches = 0
    if (text ~ /gpusync/) fetches = 1
    if (text ~ /find_package[ \t]*\([ \t]*gpusync[ \t]+"?0[.]3([^0-9]|$)/)
        left(line, "this asks for version 0.3: find_package(gpusync 0.4)")
    if (fetches && text ~ /git_tag[ \t]+"?v0[.]3([^0-9]|$)/) left(line, "this asks for version 0.3: GIT_TAG v0.4.0")
}

function read_tables(    n, i, j, k, m, line, part, text) {
    n = split(ENVIRON["ROWS"], line, "\n")
    for (i = 1; i <= n; i++)
        if (line[i] != "") why[substr(line[i], 1, index(line[i], ": ") - 1)] = substr(line[i], index(line[i], ": ") + 2)
    text = ENVIRON["STRUCTS"]
    gsub(/\\\n/, " ", text)
    n = split(text, line, "\n")
    for (i = 1; i <= n; i++) {
        m = split(line[i], part, " ")
        for (j = 2; j <= m; j++) {
            k = index(part[j], "=")
            text = k ? substr(part[j], 2, k - 2) : part[j]
            if (part[j] ~ /^[+]/) {
                added_names[part[1]] = added_names[part[1]] (added_name[part[1]] == "" ? "" : " and ") text
                added_name[part[1]] = text
                added[part[1]] = added[part[1]] ", " substr(part[j], k + 1)
                continue
            }
            if (substr(part[j], 1, 1) == "/") in_place[part[1], text] = substr(part[j], k + 1)
            field[part[1], ++fields[part[1]]] = text
            if (!k) stays[part[1]] = text
            else {
                gone[part[1], text] = substr(part[j], 1, 1) == "/" ? "any" : substr(part[j], k + 1)
                if (!first_gone[part[1]]) first_gone[part[1]] = j - 1
            }
        }
    }
    n = split(ENVIRON["COMMON"], part, " ")
    for (i = 1; i <= n; i++) is_common[part[i]] = 1
    n = split(ENVIRON["RENAMED"], line, "\n")
    for (i = 1; i <= n; i++) if (split(line[i], part, " ")) new_name[part[1]] = part[2]
    n = split(ENVIRON["LONGER"], line, "\n")
    for (i = 1; i <= n; i++)
        if (split(line[i], part, " ")) {
            arguments[part[1]] = part[2]
            nothing[part[1]] = part[3]
            another[part[1]] = part[1] " takes " part[4] ", too: " part[3]
        }
}

BEGIN {
    read_tables()
    cxx = kind == "c++"
    if (cxx) kind = "c"
    name = ENVIRON["NAME"]
    listed = "; list " ENVIRON["EXPORTS"] ", too"
}
{
    line = ++lines
    raw[line] = $0
    mask($0)
    shown[line] = seen_text
    bare[line] = code
    size[line] = length(code)
    passed[line] = index($0, "from-0.3: ok") > 0
    defines[line] = kind == "c" && (code ~ /^[ \t]*#/ || line > 1 && defines[line - 1] && raw[line - 1] ~ /\\\r?$/)
    if (code ~ /__cplusplus/) cxx = 1
    if (seen_text ~ /gpusync/) ours = 1
    if (index(seen_text, ENVIRON["EXPORTS"])) listed = ""
    for (type in fields) {
        if (seen_text ~ ("(^|[^A-Za-z0-9_])" stays[type] "([^A-Za-z0-9_]|$)")) declares[stays[type]] = 1
        if (added[type] != "" && seen_text ~ ("(^|[^A-Za-z0-9_])" added_name[type] "([^A-Za-z0-9_]|$)"))
            declares[added_name[type]] = 1
    }
}
END {
    for (line = 1; line <= lines; line++) if (kind == "c") find_initialisers(line)
    for (line = 1; line <= lines; line++) {
        if (kind == "c") find_blocking(line)
        find_symbols(line)
        find_words(line)
        find_versions(line)
        if (kind == "hash") find_cmake(line)
        if (kind != "c" && kind != "list" && ours) find_structs(line)
    }
    for (line = 1; line <= lines; line++) {
        printf "%s", told[line]
        text = raw[line]
        for (i = 1; i <= edits[line]; i++)
            text = substr(text, 1, at[line, i] - 1) put[line, i] substr(text, at[line, i] + away[line, i])
        if (edits[line] && text ~ /^[ \t\r]*$/) continue # nothing is left of the line
        end = line < lines || newline ? "\n" : ""
        printf "%s%s", text, end >out
    }
    exit 10 + (rest > 0) + 2 * (changes > 0)
}'

new=$(mktemp "${TMPDIR:-/tmp}/from-0.3.XXXXXX") || exit 2
said=$(mktemp "${TMPDIR:-/tmp}/from-0.3.XXXXXX") || exit 2
trap 'rm -f "$new" "$said"' EXIT
trap 'exit 2' HUP INT TERM
status=0
for file; do
    case $file in /*) path=$file ;; *) path=./$file ;; esac
    newline=0
    [ -n "$(tail -c 1 "$path")" ] || newline=1
    NAME=$file ROWS=$rows STRUCTS=$structs COMMON=$common RENAMED=$renamed LONGER=$longer EXPORTS=$exports \
        awk -v kind="$(kind_of "$file")" -v write=$write -v newline=$newline -v out="$new" "$program" "$path" >"$said"
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
