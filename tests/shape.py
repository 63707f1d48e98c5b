#!/usr/bin/env python3
"""shape.py - what a reader of gpusync.h has to hold, in numbers: shape.sh calls it and says how

What is measured, of the part from the banner of >>impl to the end of >>stubs. Every branch of an #if is code,
but for C++. Comments are not, nor are preprocessor lines, so that a macro counts where it is used.

    tokens                       names, numbers, texts, operators and brackets, as C has them
    tokens_a_line                those of functions, by the lines of functions, signature included
    functions_above_N_tokens     longer functions, signature included
    complexity_above_N           functions with more ways: 1, and one for each if, for, while, do, case, &&, || and ?, and
                                 for each macro that begins with `for`
    nesting_above_3, nesting     functions that have control statements deeper than that in each other; the deepest there
                                 is. `else if` is no deeper than its `if`, nor is a block of its own.
    atomic_operations            uses of the builtins __atomic_..., and of macros made of them; not their definitions.
                                 A function around one of them counts once, and not where it is called.
    kinds_of_locks               fields and variables that are a gpusync__mutex or a pthread_mutex_t: the lock of a wait list
                                 is one kind, whatever has one
    structs, fields              structs and unions that have a body; what is declared in them, each name for itself. What
                                 one macro declares counts as one.
    comment_a_code_line          lines with nothing but comment, by lines with code, preprocessor lines among them
    who_in_1000_words            who, whoever, whom, somebody, nobody and everybody, in 1,000 words of comment
"""

import re
import signal
import sys
from collections import namedtuple

LITERAL = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)
TOKEN = re.compile(r"""[A-Za-z_]\w*|\.?\d(?:[eEpP][-+]|[\w.])*|"[^"]*"|'[^']*'|\.\.\.|->|\+\+|--|<<=|>>=|<<|>>|&&|\|\||"""
                   r"""[-+*/%&|^<>=!]=|[^\s\w]""")
CXX = re.compile(r"^#ifdef __cplusplus$.*?(?=^#(?:else|endif)\b)", re.M | re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
BANNER = re.compile(r"^/\* -+ >>([a-z0-9-]+) --", re.M)
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")
MUTEXES = ("gpusync__mutex", "pthread_mutex_t")
VAGUE = ("who", "whoever", "whom", "somebody", "nobody", "everybody")

Token = namedtuple("Token", "text line")
Function = namedtuple("Function", "name line lines tokens complexity nesting")


def blanked(text):
    """As many lines, and nothing on them."""
    return " " + "\n" * text.count("\n")


def without_comments(text):
    return LITERAL.sub(lambda found: found[0] if found[0][0] in "\"'" else blanked(found[0]), text)


def comments_of(text):
    return "\n".join(found[0] for found in LITERAL.finditer(text) if found[0][0] == "/")


def tokens_of(code):
    line, at, tokens = 1, 0, []
    code = LITERAL.sub(lambda found: found[0][0] * 2, code)  # what a text says is of no interest
    for found in TOKEN.finditer(code):
        line += code.count("\n", at, found.start())
        at = found.start()
        tokens.append(Token(found[0], line))
    return tokens


def behind(tokens, at):
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    while True:
        depth += tokens[at].text in OPENING
        depth -= tokens[at].text in CLOSING
        at += 1
        if depth == 0:
            return at


class Header:
    """The text, its sections, and what its macros are."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.text = file.read()
        begins = [(0, "front")] + [(found.start(), found[1]) for found in BANNER.finditer(self.text)]
        ends = [at for at, _ in begins[1:]] + [len(self.text)]
        self.sections = {name: self.text[at:end] for (at, name), end in zip(begins, ends)}
        self.lines = {name: self.text.count("\n", 0, at) for at, name in begins}  # above the section
        macros = re.findall(r"^#define (\w+)\b(?:\([^)]*\))?((?:[^\n]*\\\n)*[^\n]*)", without_comments(self.text), re.M)
        self.loops = {name for name, body in macros if re.match(r"[\\\s]*for \(", body)}
        self.atomics, more = set(), {name for name, body in macros if "__atomic_" in body}
        while more:
            self.atomics |= more
            more = {name for name, body in macros if not self.atomics.isdisjoint(re.findall(r"\w+", body))} - self.atomics

    def implementation(self):
        """The names of its sections. A list of others gets figures of its own by Part."""
        names = list(self.sections)
        return names[names.index("impl"):names.index("stubs") + 1]


class Part:
    """Some sections that follow each other, and what is measured of them."""

    def __init__(self, header, names):
        self.header = header
        self.text = "".join(header.sections[name] for name in names)
        self.above = header.lines[names[0]]
        code = without_comments(self.text)
        self.code_lines = sum(not line.isspace() for line in code.splitlines(True))
        self.blank_lines = sum(line.isspace() for line in self.text.splitlines(True))
        self.lines = self.text.count("\n")
        self.comment_lines = self.lines - self.code_lines - self.blank_lines
        for unwanted in (CXX, DIRECTIVE):
            code = unwanted.sub(lambda found: blanked(found[0]), code)
        self.tokens = tokens_of(code)
        self.functions = list(self.find_functions())

    def find_functions(self):
        """A definition ends with what would be a declaration, but for the body behind it."""
        at = start = name = 0
        while at < len(self.tokens):
            text = self.tokens[at].text
            before = [token.text for token in self.tokens[start:at]]
            end = behind(self.tokens, at) if text in OPENING else at + 1
            if text == "(":
                name = at - 1
                if at == start + 1 and before[0].isupper():  # a macro that makes a definition of its own
                    start = end
            elif text == "{" and before[-1] == ")" and "=" not in before:
                yield self.function(start, name, at, end)
                start = end
            elif text in (";", "}"):
                start = end
            at = end

    def function(self, start, name, body, end):
        first, last = self.tokens[start].line, self.tokens[end - 1].line
        ways = {"if", "for", "while", "case", "&&", "||", "?"} | self.header.loops
        complexity = 1 + sum(token.text in ways for token in self.tokens[body:end])
        self.deepest = 0
        self.statement(body, 0)
        return Function(self.tokens[name].text, self.above + first, last - first + 1, end - start, complexity,
                        self.deepest)

    def statement(self, at, depth):
        """Goes through one, and returns where the next begins."""

        def text(at):
            return self.tokens[at].text

        self.deepest = max(self.deepest, depth)
        if text(at) == "{":
            at += 1
            while text(at) != "}":
                at = self.statement(at, depth)
            return at + 1
        if text(at) in {"if", "for", "while", "switch"} | self.header.loops:
            is_if = text(at) == "if"
            at = self.statement(behind(self.tokens, at + 1), depth + 1)
            if is_if and text(at) == "else":
                at = self.statement(at + 1, depth if text(at + 1) == "if" else depth + 1)
            return at
        if text(at) == "do":
            at = self.statement(at + 1, depth + 1)
        elif text(at) in ("case", "default") or text(at + 1) == ":":
            while text(at) != ":":
                at += 1
            return at + 1
        while text(at) not in (";", "}"):  # a macro with cases has no semicolon
            at = behind(self.tokens, at) if text(at) in OPENING else at + 1
        return at + (text(at) == ";")

    def structs_and_fields(self):
        structs = fields = 0
        in_struct = [False]  # for each bracket that is open
        texts = [token.text for token in self.tokens]
        for at, text in enumerate(texts):
            if in_struct[-1] and text in (";", ",", "}"):
                fields += texts[at - 1] not in (";", "{", "}")
            if text in OPENING:
                in_struct.append(text == "{" and not {"struct", "union"}.isdisjoint(texts[max(at - 2, 0):at]))
                structs += in_struct[-1]
            elif text in CLOSING:
                in_struct.pop()
        return structs, fields

    def locks(self):
        """Of `TYPE a, b;` both names. A pointer is none."""
        texts = [token.text for token in self.tokens]
        return sum(1 + texts[at:texts.index(";", at)].count(",") for at, text in enumerate(texts)
                   if text in MUTEXES and texts[at + 1].isidentifier())

    def figures(self):
        """Name, figure, and digits behind the point, in the order in which they are told."""
        functions = self.functions
        words = re.findall(r"[a-z][a-z']*", comments_of(self.text).lower())
        structs, fields = self.structs_and_fields()

        def above(what, limit):
            return sum(getattr(function, what) > limit for function in functions)

        return [
            ("tokens", len(self.tokens), 0),
            ("tokens_a_line", sum(f.tokens for f in functions) / sum(f.lines for f in functions), 2),
            ("functions_above_240_tokens", above("tokens", 240), 0),
            ("functions_above_500_tokens", above("tokens", 500), 0),
            ("complexity_above_15", above("complexity", 15), 0),
            ("complexity_above_25", above("complexity", 25), 0),
            ("nesting_above_3", above("nesting", 3), 0),
            ("nesting", max(function.nesting for function in functions), 0),
            ("atomic_operations",
             sum(token.text.startswith("__atomic_") or token.text in self.header.atomics for token in self.tokens), 0),
            ("kinds_of_locks", self.locks(), 0),
            ("structs", structs, 0),
            ("fields", fields, 0),
            ("comment_a_code_line", self.comment_lines / self.code_lines, 3),
            ("who_in_1000_words", 1000 * sum(word in VAGUE for word in words) / len(words), 2),
        ]


def print_sections(header):
    row = "{:<16} {:>6} {:>6} {:>8} {:>6} {:>7} {:>7} {:>10}"
    print(row.format("section", "lines", "code", "comment", "blank", "share", "tokens", "functions"))
    below = header.implementation()
    parts = [(name, [name]) for name in header.sections] + [("all", list(header.sections)), (">>impl to stubs", below)]
    for name, sections in parts:
        part = Part(header, sections)
        share = f"{100 * part.comment_lines / part.lines:.1f} %"
        print(row.format(name, part.lines, part.code_lines, part.comment_lines, part.blank_lines, share,
                         len(part.tokens), len(part.functions)))


def print_functions(header):
    row = "{:>6} {:>6} {:>10} {:>7} {:>6}  {}"
    print(row.format("tokens", "lines", "complexity", "nesting", "at", "function"))
    functions = Part(header, header.implementation()).functions
    for function in sorted(functions, key=lambda function: -function.tokens):
        print(row.format(function.tokens, function.lines, function.complexity, function.nesting, function.line,
                         function.name))


def judged(header, limits, update):
    """For each measure its row of the table, and what is wrong, or None. With `update` better limits are written."""
    with open(limits, encoding="utf-8") as file:
        text = file.read()
    lines = dict(re.findall(r"^(\w+) +(\S+ +(?:most|least))$", text, re.M))
    for name, figure, digits in Part(header, header.implementation()).figures():
        figure = f"{figure:.{digits}f}"
        limit, direction = lines.pop(name, "- most").split()
        lower = direction == "most"
        better = 0 if limit == "-" else float(limit) - float(figure) if lower else float(figure) - float(limit)
        wrong = None
        verdict = "ok"
        if limit == "-":
            wrong = f"{name} has no limit"
        elif better < 0:
            wrong = f"{name} is {figure}, and may be at {direction} {limit}"
        elif better > 0:
            verdict = f"ok ({better:.{digits}f} better: UPDATE=1 {'lowers' if lower else 'raises'} the limit)"
            if update:
                text = re.sub(rf"^({name} +){re.escape(limit)} ", lambda old: old[1] + figure + " ", text, flags=re.M)
        yield f"{name:<28} {figure:>8} {limit:>8}  {f'FAILED: {wrong}' if wrong else verdict}", wrong
    for name in lines:
        wrong = f"{name} has a limit, and is not measured"
        yield f"{name:<28} {'-':>8} {'-':>8}  FAILED: {wrong}", wrong
    if update:
        with open(limits, "w", encoding="utf-8") as file:
            file.write(text)


def stale(header):
    """Names in comments that are no names of anything. What has changed since is told under names that are gone."""
    text = header.text[:header.text.index(">>history --")]
    name = re.compile(r"gpusync_+[a-z0-9_]+")
    there = set(name.findall(without_comments(text)))
    for gone in sorted(set(name.findall(comments_of(text))) - there):
        yield f"a comment names {gone}, which is not there"


def ahead(header):
    """Functions of the implementation that are declared ahead, outside of the list in >>objects. A variadic one is
    declared for its format."""
    for section in header.implementation():
        text = header.sections[section]
        for found in re.finditer(r"^(?:static|GPUSYNC__RARE|GPUSYNC__INLINE) [^=;{]*\([^=;{]*;", text, re.M):
            explained = text[:found.start()].endswith("*/\n")
            if section != "objects" and not explained and "__attribute__((format" not in found[0]:
                line = header.lines[section] + text.count("\n", 0, found.start()) + 1
                yield f"{line}: declared ahead, and no comment says why: {' '.join(found[0].split())}"


# What a function knows of Metal 4 by: the queue's flag and table, a slot's trait, what a queue and a submission have for it
# alone, and functions of >>metal4.
METAL4 = re.compile(r"\w*(?:metal4|METAL4)\w*|\bfour\b|->marks?\b|\bkept_count\b|\bs->options\b|\bgpusync__\w+4\b")


def of_metal4(header):
    """The list in >>metal4 has each function that knows of Metal 4 and stands elsewhere, and no other."""
    listed = re.findall(r"^     (gpusync_\w+)  ", header.sections["metal4"], re.M)
    lines = without_comments(header.text).split("\n")
    of_its_own = "|".join(function.name for function in Part(header, ["metal4"]).functions)
    calls = re.compile(rf"\b(?:{of_its_own})\(")
    known = set()
    for section in header.implementation():
        if section in ("metal4", "stubs"):
            continue
        for function in Part(header, [section]).functions:
            body = "\n".join(lines[function.line - 1:function.line - 1 + function.lines])
            if METAL4.search(body) or calls.search(body):
                known.add(function.name)
    for name in sorted(known - set(listed)):
        yield f"{name} knows of Metal 4, and is not in the list of >>metal4"
    for name in sorted(set(listed) - known):
        yield f"{name} is in the list of >>metal4, and does not know of Metal 4"
    if len(listed) != len(set(listed)):
        yield "the list of >>metal4 names a function twice"


def relaxed(header):
    """Each relaxed store says what publishes it, or that it is a guess: on its line, or above it and its neighbours."""
    lines = header.text.split("\n")
    for at, line in enumerate(lines):
        if "GPUSYNC__STORE_RELAXED(" not in line or line.startswith("#define"):
            continue
        above = at
        while "GPUSYNC__STORE_RELAXED(" in lines[above]:
            above -= 1
        if not re.search(r"published by|a guess", line + lines[above - 1] + lines[above], re.I):
            yield f"{at + 1}: a relaxed store, and no comment says what publishes it: {line.strip()}"


def main(what, path, limits, update):
    header = Header(path)
    if what == "--check":
        for wrong in (*stale(header), *ahead(header), *of_metal4(header), *relaxed(header)):
            print(wrong)
    elif what == "--functions":
        print_functions(header)
    elif what == "--limits":
        for _, wrong in judged(header, limits, False):
            if wrong:
                print(wrong)
    else:
        print_sections(header)
        print(f"\n{'measure':<28} {'figure':>8} {'limit':>8}")
        failed = False
        for row, wrong in judged(header, limits, update):
            print(row)
            failed = failed or wrong
        sys.exit(1 if failed else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "| head"
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "1")
